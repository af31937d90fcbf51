/* dilated_errors.c - every sentence of dilated attention: one wrong thing in a right call. Size
 * query and run have the same status, the check its sentence; nothing is written.
 * SPDX-License-Identifier: MIT
 */
#include "dilated.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 4, SEQ = 10, DIM = 4, COUNT = BATCH * HEADS * SEQ * DIM };

typedef struct right_call {
    attn_params p;
    attn_dilated d;
    attn_dilated_branch branches[2];
    attn_gradients g;
    int backward; /* the row is about attn_dilated_backward */
} right_call;

static float values[COUNT], outputs[4][COUNT];
static int32_t ints[BATCH * SEQ + 1];
static uint8_t bytes_of_mask[BATCH * SEQ * SEQ];
static int64_t bases[BATCH];

static float keep_score(void *user, const attn_pair *at, float logit)
{
    (void)user, (void)at;
    return logit;
}

static void make_right(right_call *c)
{
    memset(c, 0, sizeof *c);
    c->p.batch = BATCH;
    c->p.num_heads_q = HEADS;
    c->p.seq_len_q = c->p.seq_len_kv = SEQ;
    c->p.head_dim = DIM;
    c->p.q.data = c->p.k.data = c->p.v.data = values;
    c->p.o.data = outputs[0];
    c->branches[1].segment = 5;
    c->branches[1].dilation = 2;
    c->d.num_branches = 2;
    c->d.branches = c->branches;
    c->g.dout.data = values;
    c->g.dq.data = outputs[1];
    c->g.dk.data = outputs[2];
    c->g.dv.data = outputs[3];
}

#define MAKER(name, ...)                                                                           \
    static void name(right_call *c)                                                                \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }

MAKER(key_base, c->p.key_base = bases)
MAKER(ring, c->p.kv_rows.ring = SEQ)
MAKER(pages, c->p.kv_rows.page_size = 2)
MAKER(recent, c->p.recent.keys = c->p.recent.ring = 3)
MAKER(shared_keys, c->p.shared_keys = 2)
MAKER(alignment, c->p.alignment = ATTN_ALIGN_TOP_LEFT)
MAKER(q_segments, c->p.q_segments = ints)
MAKER(view, c->p.view = (const attn_view *)(const void *)bases)
MAKER(tree, c->p.tree_parents = ints)
MAKER(cells, c->p.block_mask.bitmap = bytes_of_mask)
MAKER(lists, c->p.key_list.data = ints)
MAKER(partial, c->p.partial = 1)
MAKER(part, c->p.part.rows = 1; c->p.part.row_count = 1)
MAKER(insight, c->p.insight.entropy = outputs[1])
MAKER(skip, c->p.skip.below = 0.5f; c->p.skip.dropped = outputs[1])
MAKER(logits, c->p.logits.data = outputs[1])
MAKER(q_len, ints[0] = 3; ints[1] = 2; c->p.kv_len = ints; c->p.seq_len_q = 2; c->p.q_len = ints)
MAKER(rows, c->p.seq_len_kv = SEQ - 1)
MAKER(no_dilated, c->d.num_branches = -77)
MAKER(merge, c->d.merge = 2)
MAKER(variant, c->d.variant = -1)
MAKER(no_branches, c->d.num_branches = 0)
MAKER(null_branches, c->d.branches = NULL)
MAKER(block_rows, c->d.block_rows = -1)
MAKER(segment, c->branches[1].segment = -5)
MAKER(dilation, c->branches[0].dilation = -1)
MAKER(offset, c->branches[1].offset = 2)
MAKER(offset_alone, c->branches[0].offset = 1)
MAKER(head_begin, c->branches[0].head_begin = HEADS)
MAKER(head_count, c->branches[1].head_begin = 2; c->branches[1].head_count = 3)
MAKER(mean_lse, c->d.merge = 1; c->p.lse.data = outputs[1])
MAKER(mean_stats, c->d.merge = 1; c->p.stats.data = outputs[1])
MAKER(gathered_stats, c->d.variant = 1; c->p.stats.data = outputs[1])
MAKER(stats_type, c->p.stats.data = outputs[1]; c->p.stats.dtype = 1)
MAKER(mean_sinks, c->d.merge = 1; c->p.sinks = values)
MAKER(mean_softmax1, c->d.merge = 1; c->p.softmax1 = 1)
MAKER(index_short, c->d.variant = 1; c->d.index = ints; c->d.index_positions = SEQ - 1)
MAKER(heads, c->p.num_heads_kv = 3)
MAKER(dbias, c->backward = 1; c->p.bias.data = values; c->g.dbias.data = outputs[1])
MAKER(dslopes, c->backward = 1; c->p.alibi_slopes = values; c->g.dslopes = outputs[1])
MAKER(mean_dlse, c->backward = 1; c->d.merge = 1; c->g.dlse.data = values)
MAKER(naive_gradients, c->backward = 1; c->p.impl = ATTN_IMPL_NAIVE)
MAKER(no_derivative, c->backward = 1; c->p.score = keep_score; c->p.lse.data = outputs[1])
MAKER(no_dout, c->backward = 1; c->g.dout.data = NULL; c->p.lse.data = outputs[1])
MAKER(no_lse, c->backward = 1)
MAKER(gemms, c->backward = 1; c->g.gemms = 3; c->p.lse.data = outputs[1])

#define REFUSED_FOR(make, name, way_out)                                                           \
    {                                                                                              \
        make, ATTN_ERR_UNSUPPORTED,                                                                \
            name " is set, but dilated attention does not take it" way_out, 0                      \
    }
#define REFUSED(make, name) REFUSED_FOR(make, name, "")
#define A_CACHE ": it describes a cache, whose keys attn_cache_read copies into one array"

static const struct {
    void (*make)(right_call *c);
    attn_status status;
    const char *sentence;
    int late; /* only the run looks at it */
} table[] = {
    REFUSED(key_base, "key_base"),
    REFUSED_FOR(ring, "kv_rows.ring (10)", A_CACHE),
    REFUSED_FOR(pages, "kv_rows.page_size (2)", A_CACHE),
    REFUSED_FOR(recent, "recent.keys (3)", A_CACHE),
    REFUSED(shared_keys, "shared_keys (2)"),
    REFUSED(alignment, "alignment (1)"),
    { q_segments, ATTN_ERR_ARG, "q_segments and kv_segments: give both or neither", 0 },
    { no_derivative, ATTN_ERR_ARG, "score is given, but score_derivative is NULL", 0 },
    REFUSED(view, "view"),
    REFUSED(tree, "tree_parents"),
    REFUSED(cells, "block_mask.bitmap"),
    REFUSED(lists, "key_list.data"),
    { partial, ATTN_ERR_UNSUPPORTED,
      "partial (1) is set, but dilated attention does not take it: it works with finished rows",
      0 },
    REFUSED(part, "part.rows (1)"),
    REFUSED_FOR(insight, "insight.entropy",
                ": attn_forward keeps it beside the sums of whole rows"),
    { logits, ATTN_ERR_UNSUPPORTED,
      "logits.data is set, but dilated attention does not take it: ask for logits in a call with "
      "all keys",
      0 },
    { rows, ATTN_ERR_ARG,
      "q_len[0] (10) exceeds kv_len: rows are the last positions of the sequence", 0 },
    { no_dilated, ATTN_ERR_ARG, "dilated is NULL", 0 },
    { merge, ATTN_ERR_ARG, "merge (2) must be 0 (LSE) or 1 (mean)", 0 },
    { variant, ATTN_ERR_ARG, "variant (-1) must be 0 (strided) or 1 (gathered)", 0 },
    { no_branches, ATTN_ERR_ARG, "num_branches (0) must be at least 1", 0 },
    { null_branches, ATTN_ERR_ARG, "branches is NULL", 0 },
    { block_rows, ATTN_ERR_ARG, "block_rows (-1) must be 0 (chosen) or a number of rows", 0 },
    { segment, ATTN_ERR_ARG,
      "branches[1].segment (-5) must be from 0 to the largest size of memory", 0 },
    { dilation, ATTN_ERR_ARG,
      "branches[0].dilation (-1) must be from 0 to the largest size of memory", 0 },
    { offset, ATTN_ERR_ARG, "branches[1].offset (2) must be below its dilation (2)", 0 },
    { offset_alone, ATTN_ERR_ARG, "branches[0].offset (1) must be below its dilation (1)", 0 },
    { head_begin, ATTN_ERR_ARG,
      "branches[0].head_begin (4) and head_count (0) exceed num_heads_q (4): a branch is for query "
      "heads that there are",
      0 },
    { head_count, ATTN_ERR_ARG,
      "branches[1].head_begin (2) and head_count (3) exceed num_heads_q (4): a branch is for query "
      "heads that there are",
      0 },
    { mean_lse, ATTN_ERR_UNSUPPORTED,
      "lse.data is set, but a mean of branches is no softmax and has none", 0 },
    { mean_stats, ATTN_ERR_UNSUPPORTED,
      "stats.data is set, but a mean of branches is no softmax and has none", 0 },
    { gathered_stats, ATTN_ERR_UNSUPPORTED,
      "stats.data is set, but the gathered variant merges by the LSE and has none", 0 },
    { stats_type, ATTN_ERR_ARG, "stats.dtype (1) must be 0: f32", 0 },
    { mean_sinks, ATTN_ERR_UNSUPPORTED,
      "sinks or softmax1 is set, but a mean of branches is no softmax to hold one", 0 },
    { mean_softmax1, ATTN_ERR_UNSUPPORTED,
      "sinks or softmax1 is set, but a mean of branches is no softmax to hold one", 0 },
    { index_short, ATTN_ERR_ARG, "index_positions (9) is below the longest sequence (10)", 0 },
    { heads, ATTN_ERR_ARG, "num_heads_q (4) must be a multiple of num_heads_kv (3)", 0 },
    { dbias, ATTN_ERR_UNSUPPORTED,
      "dbias or dslopes is asked for, but there are dq, dk, dv and dsinks alone", 0 },
    { dslopes, ATTN_ERR_UNSUPPORTED,
      "dbias or dslopes is asked for, but there are dq, dk, dv and dsinks alone", 0 },
    { naive_gradients, ATTN_ERR_UNSUPPORTED,
      "impl (2) must be tiled for gradients of merged branches: naive reads neither stats nor lse",
      0 },
    { mean_dlse, ATTN_ERR_UNSUPPORTED, "dlse.data is set, but a mean of branches has no lse", 0 },
    { no_dout, ATTN_ERR_ARG,
      "dout.data is NULL: the gradient of the loss by o, zeros if only dlse has one", 1 },
    { no_lse, ATTN_ERR_ARG,
      "stats.data and lse.data are NULL: attn_backward reads what attn_forward wrote", 1 },
    { gemms, ATTN_ERR_ARG, "gemms (3) must be 0, 5 or 7", 0 },
    REFUSED_FOR(skip, "skip.below", ": attn_forward with all keys takes it"),
};

static void check_one(const right_call *c, attn_status expected, const char *sentence, int late)
{
    const attn_dilated *d = c->d.num_branches == -77 ? NULL : &c->d;
    const size_t room = 1 << 20;
    void *workspace = test_alloc(room);
    char text[300];
    size_t need = 1;
    attn_status sized, run;
    memset(outputs, 0x5a, sizeof outputs);
    if (c->backward) {
        sized = attn_dilated_backward_workspace_size(&c->p, d, &c->g, &need);
        run = attn_dilated_backward(&c->p, d, &c->g, workspace, room);
        attn_dilated_backward_check(&c->p, d, &c->g, workspace, room, text, sizeof text);
    } else {
        sized = attn_dilated_workspace_size(&c->p, d, &need);
        run = attn_dilated_forward(&c->p, d, workspace, room);
        attn_dilated_check(&c->p, d, workspace, room, text, sizeof text);
    }
    CHECK(sized == (late ? ATTN_OK : expected) && (late || need == 0), "size query: %s",
          attn_status_string(sized));
    CHECK(run == expected, "run: %s", attn_status_string(run));
    CHECK(strcmp(text, sentence) == 0, "'%s' instead of '%s'", text, sentence);
    CHECK(all_bytes(outputs, sizeof outputs, 0x5a) && all_bytes(workspace, room, 0xff), "written");
}

/* Sizes that no memory holds, of rows that share their elements. Programs of 32 bits cannot even
 * count some of them. */
static void make_large(right_call *c, int64_t length, int64_t dim)
{
    make_right(c);
    c->d.variant = ATTN_DILATED_GATHERED;
    c->p.seq_len_q = c->p.seq_len_kv = length;
    c->p.head_dim = dim;
    c->p.head_dim_v = 1;
    c->p.q.stride_seq = c->p.k.stride_seq = c->p.v.stride_seq = ATTN_STRIDE_BROADCAST;
}

static void check_sizes(void)
{
    right_call c;
    size_t need = 1;
    if (sizeof(size_t) == 4 || !begin_case("errors, sizes"))
        return;
    make_large(&c, (int64_t)1 << 31, 1);
    check_one(&c, ATTN_ERR_OVERFLOW,
              "kv_len (2147483648) exceeds the positions that the gathered variant can index", 0);
    make_large(&c, 1 << 30, 1 << 30);
    CHECK(attn_dilated_workspace_size(&c.p, &c.d, &need) == ATTN_ERR_OVERFLOW && need == 0,
          "%zu bytes", need);
}

static void check_others(void)
{
    static unsigned char room[1 << 20];
    right_call c;
    char text[200];
    int32_t index[100];
    attn_backend device;
    size_t need;
    make_right(&c);
    CHECK(strcmp(attn_dilated_check(NULL, &c.d, NULL, 0, text, sizeof text), "params is NULL") == 0,
          "%s", text);
    CHECK(strcmp(attn_dilated_check(&c.p, &c.d, room, sizeof room, text, sizeof text), "ok") == 0,
          "%s", text);
    CHECK(strcmp(attn_dilated_check(&c.p, &c.d, NULL, 0, NULL, 0), "workspace too small") == 0,
          "no buffer");
    CHECK(attn_dilated_workspace_size(&c.p, &c.d, NULL) == ATTN_ERR_ARG, "no bytes");
    CHECK(attn_dilated_backward_workspace_size(&c.p, &c.d, NULL, &need) == ATTN_ERR_ARG, "no g");
    CHECK(strcmp(attn_dilated_backward_check(&c.p, &c.d, NULL, NULL, 0, text, sizeof text),
                 "gradients is NULL") == 0,
          "%s", text);
    memset(&device, 0, sizeof device);
    device.abi = ATTN_KERNEL_ABI;
    c.p.backend = &device;
    CHECK(attn_dilated_workspace_size(&c.p, &c.d, &need) == ATTN_ERR_UNSUPPORTED, "a backend");
    /* all of 10, and of 5 + 5 every second one */
    CHECK(attn_dilated_index_size(&c.d, SEQ) == 16, "%lld",
          (long long)attn_dilated_index_size(&c.d, SEQ));
    CHECK(attn_dilated_index(&c.d, SEQ, index, 15) == ATTN_ERR_WORKSPACE, "too few entries");
    CHECK(attn_dilated_index(&c.d, SEQ, index, 16) == ATTN_OK && index[10] == 0 && index[12] == 4 &&
              index[13] == 5 && index[15] == 9,
          "the index");
    CHECK(attn_dilated_index_size(NULL, SEQ) == 0 &&
              attn_dilated_index(NULL, SEQ, index, 16) == ATTN_ERR_ARG,
          "no branches");
    CHECK(attn_dilated_index_size(&c.d, -1) == 0 &&
              attn_dilated_index(&c.d, -1, index, 16) == ATTN_ERR_ARG,
          "no positions");
}

void dilated_errors(void)
{
    right_call c;
    for (int n = 0; n < (int)(sizeof table / sizeof *table); n++) {
        if (!begin_case("error %d: %s", n, table[n].sentence))
            continue;
        make_right(&c);
        table[n].make(&c);
        check_one(&c, table[n].status, table[n].sentence, table[n].late);
    }
    if (begin_case("errors, lengths of entries")) {
        make_right(&c);
        q_len(&c);
        c.p.q_len = NULL;
        c.p.seq_len_q = 3;
        check_one(&c, ATTN_ERR_ARG,
                  "q_len[1] (3) exceeds kv_len: rows are the last positions of the sequence", 0);
        memset(ints, 0, sizeof ints);
    }
    check_sizes();
    if (begin_case("errors, the rest"))
        check_others();
}
