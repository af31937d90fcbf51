/* ring_errors.c - every field of attn_ring and attn_transport wrong in turn, and those of
 * attn_params that a ring does not take. Of the group ring.
 * SPDX-License-Identifier: MIT
 *
 * One row of the table is one wrong call. For each the call and its workspace query must agree on
 * the status, the sentence of the check must hold the words, and no byte of an output or of the
 * workspace may change.
 */
#include "watched_ranks.h"
#include "test.h"

#include <stddef.h>
#include <string.h>

enum { LENGTH = 9, DIM = 4, WORKSPACE = 1 << 20, PAINT = 0x5a };

static float in[7][LENGTH * DIM];
static struct outputs {
    float o[LENGTH * DIM], lse[LENGTH], dq[LENGTH * DIM], dk[LENGTH * DIM], dv[LENGTH * DIM];
    float dbias[LENGTH * LENGTH], dsinks[1], dslopes[1];
} out;
static unsigned char workspace[WORKSPACE];
static int32_t lengths[2] = { 0, LENGTH };

/* ---- a right call of one rank out of two, of which the other one agrees with everything ------ */

typedef struct whole_call {
    attn_params p;
    attn_gradients g;
    attn_ring ring;
    attn_transport t;
    attn_ring_range ranges[4];
    int64_t first[3];
} whole_call;

static int echo_agree(void *user, int value)
{
    (void)user;
    return value;
}

static int echo_begin(void *user, const void *send, size_t send_bytes, void *receive,
                      size_t receive_bytes)
{
    (void)user, (void)send, (void)send_bytes;
    memset(receive, 0, receive_bytes);
    return 0;
}

static int echo_end(void *user)
{
    (void)user;
    return 0;
}

static void echo_cancel(void *user)
{
    (void)user;
}

static void make_right(whole_call *c)
{
    static const attn_ring_range ranges[] = { { 0, 3 }, { 6, 3 }, { 3, 3 }, { 9, 0 } };
    memset(c, 0, sizeof *c);
    c->p.batch = c->p.num_heads_q = 1;
    c->p.seq_len_q = c->p.seq_len_kv = LENGTH;
    c->p.head_dim = DIM;
    c->p.q.data = in[0], c->p.k.data = in[1], c->p.v.data = in[2];
    c->p.o.data = out.o, c->p.lse.data = out.lse;
    c->g.dout.data = in[3];
    c->g.dq.data = out.dq, c->g.dk.data = out.dk, c->g.dv.data = out.dv;
    c->t.size = 2;
    c->t.agree = echo_agree, c->t.begin = echo_begin;
    c->t.end = echo_end, c->t.cancel = echo_cancel;
    c->ring.shard = 2;
    memcpy(c->ranges, ranges, sizeof ranges);
    c->first[1] = 2, c->first[2] = 3;
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef enum kind { TO_INT, TO_I64, TO_STRIDE, TO_NULL, TO_DATA } kind;
enum {
    FORWARD = 1,
    BACKWARD = 2,
    BOTH = 3,
    CUSTOM = 4, /* of ring.ranges */
    LATE = 8    /* what a workspace query does not look at */
};

typedef struct row {
    const char *field;
    size_t at; /* its place in whole_call */
    kind how;
    int64_t value;
    int when;
    attn_status status;
    const char *words;
} row;

#define ROW(field, how, value, when, status, words)                                                \
    "" #field, offsetof(whole_call, field), how, value, when, ATTN_ERR_##status, words

static const row rows[] = {
    { ROW(t.size, TO_INT, 0, BOTH, ARG, "transport.size (0) must be from 1 to 4096") },
    { ROW(t.size, TO_INT, 4097, BOTH, ARG, "transport.size (4097) must be from 1 to 4096") },
    { ROW(t.rank, TO_INT, 2, BOTH, ARG, "transport.rank (2) must be from 0 to size - 1") },
    { ROW(t.rank, TO_INT, -1, BOTH, ARG, "transport.rank (-1) must be") },
    { ROW(t.agree, TO_NULL, 0, BOTH, ARG, "transport.agree, begin, end or cancel is NULL") },
    { ROW(t.begin, TO_NULL, 0, BOTH, ARG, "transport.agree, begin, end or cancel is NULL") },
    { ROW(t.end, TO_NULL, 0, BOTH, ARG, "transport.agree, begin, end or cancel is NULL") },
    { ROW(t.cancel, TO_NULL, 0, BOTH, ARG, "transport.agree, begin, end or cancel is NULL") },
    { ROW(ring.transport, TO_NULL, 0, BOTH, ARG, "ring.transport is NULL") },
    { ROW(ring.layout, TO_INT, 4, BOTH, ARG, "ring.layout (4) must be at most 3") },
    { ROW(ring.layout, TO_INT, -1, BOTH, ARG, "ring.layout (-1) must be at least 0") },
    { ROW(ring.layout, TO_INT, 3, BOTH, ARG, "ring.shard (2) is set, but ring.layout is") },
    { ROW(ring.shard, TO_I64, -1, BOTH, ARG, "ring.shard (-1) must be at least 0") },
    { ROW(ring.shard, TO_I64, INT64_MAX, BOTH, ARG, "ring.shard (9223372036854775807) must be") },
    { ROW(ring.ranges, TO_NULL, 0, BOTH | CUSTOM, ARG, "but ring.ranges or first_range is NULL") },
    { ROW(ring.first_range, TO_NULL, 0, BOTH | CUSTOM, ARG,
          "but ring.ranges or first_range is NULL") },
    { ROW(ring.ranges, TO_DATA, 0, BOTH, ARG,
          "ring.layout (0) must be ATTN_RING_CUSTOM (3) when") },
    { ROW(first[0], TO_I64, -1, BOTH | CUSTOM, ARG,
          "ring.first_range[0] (-1) must be at least 0") },
    { ROW(first[1], TO_I64, 4, BOTH | CUSTOM, ARG, "ring.first_range[2] (3) is below the entry") },
    { ROW(ranges[1].count, TO_I64, 10, BOTH | CUSTOM, ARG,
          "ring.ranges.count[1] (10) must be from") },
    { ROW(ranges[1].count, TO_I64, -1, BOTH | CUSTOM, ARG,
          "ring.ranges.count[1] (-1) must be from") },
    { ROW(ranges[1].begin, TO_I64, 2, BOTH | CUSTOM, ARG, "ring.ranges.begin[1] (2) must follow") },
    { ROW(ranges[1].begin, TO_I64, 7, BOTH | CUSTOM, ARG, "ring.ranges.begin[1] (7) must follow") },
    { ROW(ranges[1].begin, TO_I64, INT64_MAX, BOTH | CUSTOM, ARG,
          "must follow the range before it") },
    { ROW(ranges[2].begin, TO_I64, 4, BOTH | CUSTOM, ARG,
          "ring.ranges: position (3) is in no range") },
    { ROW(ranges[2].count, TO_I64, 2, BOTH | CUSTOM, ARG,
          "ring.ranges: position (5) is in no range") },
    { ROW(ranges[2].count, TO_I64, 6, BOTH | CUSTOM, ARG,
          "ring.ranges: number (3) of ranges that are not empty: some positions are in two") },
    { ROW(first[2], TO_I64, 4, BOTH | CUSTOM, ARG, NULL) }, /* an empty range more: no error */
    { ROW(p.seq_len_q, TO_I64, 8, BOTH, UNSUPPORTED,
          "seq_len_q (8) must be seq_len_kv (9): a ring") },
    { ROW(p.batch, TO_I64, -1, BOTH, ARG, "batch (-1) must be at least 0") },
    { ROW(p.cu_seqlens_q, TO_DATA, 0, BOTH, UNSUPPORTED,
          "cu_seqlens_q is set, but a ring of ranks does not take it: tell documents") },
    { ROW(p.cu_seqlens_kv, TO_DATA, 0, BOTH, UNSUPPORTED,
          "cu_seqlens_kv is set, but a ring of ranks does not") },
    { ROW(p.kv_rows.ring, TO_I64, 9, BOTH, UNSUPPORTED,
          "kv_rows.ring (9) is set, but a ring of ranks does not") },
    { ROW(p.kv_rows.page_size, TO_I64, 3, BOTH, UNSUPPORTED,
          "kv_rows.page_size (3) is set, but a ring of ranks does not") },
    { ROW(
        p.partial, TO_INT, 1, BOTH, UNSUPPORTED,
        "partial (1) is set, but a ring of ranks does not take it: it works with finished rows") },
    { ROW(p.insight.top, TO_INT, 3, BOTH, UNSUPPORTED, "insight.top (3)") },
    { ROW(p.part.rows, TO_INT, 1, BOTH, UNSUPPORTED, "part.rows (1) is set, but a ring of ranks") },
    { ROW(p.k.dtype, TO_INT, 3, BACKWARD, UNSUPPORTED,
          "k.dtype (3) is set, but attn_backward does not take it: 0 is f32, 1 is f16") },
    { ROW(p.v.dtype, TO_INT, 7, BACKWARD, UNSUPPORTED,
          "v.dtype (7) is set, but attn_backward does not") },
    { ROW(p.integer, TO_INT, 1, BACKWARD, UNSUPPORTED,
          "integer (1) is set, but attn_backward does not take it") },
    { ROW(p.rotated, TO_INT, 3, BACKWARD, UNSUPPORTED,
          "rotated (3) is set, but attn_backward does not take it: 1 is K, 2 is V") },
    { ROW(p.part.keys, TO_INT, 1, BOTH, UNSUPPORTED, "part.keys (1) is set, but a ring of ranks") },
    { ROW(p.part.row_begin, TO_I64, 3, BOTH, UNSUPPORTED,
          "part.row_begin (3) is set, but a ring of ranks") },
    { ROW(p.part.row_count, TO_I64, 3, BOTH, UNSUPPORTED,
          "part.row_count (3) is set, but a ring of ranks") },
    { ROW(p.part.key_begin, TO_I64, 3, BOTH, UNSUPPORTED,
          "part.key_begin (3) is set, but a ring of ranks") },
    { ROW(p.part.key_count, TO_I64, 3, BOTH, UNSUPPORTED,
          "part.key_count (3) is set, but a ring of ranks") },
    { ROW(p.part.key_row, TO_I64, 3, BOTH, UNSUPPORTED,
          "part.key_row (3) is set, but a ring of ranks") },
    { ROW(p.part.continued, TO_INT, 1, BOTH, UNSUPPORTED,
          "part.continued (1) is set, but a ring of ranks") },
    { ROW(p.block_mask.block_q, TO_I64, 4, BOTH, ARG,
          "block_mask.block_q (4) is set, but neither bitmap") },
    { ROW(p.block_mask.block_k, TO_I64, 4, BOTH, ARG,
          "block_mask.block_k (4) is set, but neither bitmap") },
    { ROW(p.key_list.width, TO_I64, 4, BOTH, ARG,
          "key_list.width (4) is set, but key_list.data is NULL") },
    { ROW(p.key_list.rows, TO_I64, 4, BOTH, ARG,
          "key_list.rows (4) is set, but key_list.data is NULL") },
    { ROW(p.impl, TO_INT, ATTN_IMPL_NAIVE, BOTH, UNSUPPORTED,
          "impl (2) (naive): a ring is built") },
    { ROW(p.impl, TO_INT, 7, BOTH, ARG,
          "impl (7) must be at most 3: 0 is default, 1 is tiled, 2 is naive, 3 is auto") },
    { ROW(p.head_dim, TO_I64, 0, BOTH, ARG, "head_dim (0) must be at least 1") },
    { ROW(p.num_heads_kv, TO_I64, 3, BOTH, ARG, "must be a multiple of num_heads_kv (3)") },
    { ROW(p.window_left, TO_I64, 3, BOTH, ARG, "window_left (3) is set, but window is 0") },
    { ROW(p.q.stride_seq, TO_STRIDE, 0, BOTH, OVERFLOW, "q") },
    { ROW(p.q.data, TO_NULL, 0, BOTH | LATE, ARG, "q.data is NULL") },
    { ROW(p.k.data, TO_NULL, 0, BOTH | LATE, ARG, "k.data is NULL") },
    { ROW(p.v.data, TO_NULL, 0, BOTH | LATE, ARG, "v.data is NULL") },
    { ROW(p.lse.data, TO_NULL, 0, BACKWARD | LATE, ARG, "stats.data and lse.data are NULL") },
    { ROW(p.o.data, TO_NULL, 0, BACKWARD, ARG, "o.data is NULL: gradients need the o of the") },
    { ROW(g.dout.data, TO_NULL, 0, BACKWARD | LATE, ARG, "dout.data is NULL") },
    { ROW(g.gemms, TO_INT, 6, BACKWARD, ARG, "gemms (6) must be 0, 5 or 7") },
    { ROW(g.dbias.data, TO_DATA, 0, BACKWARD, ARG, "dbias is asked for, but bias.data is NULL") },
    { ROW(g.dsinks, TO_DATA, 0, BACKWARD, ARG, "dsinks is asked for, but sinks is NULL") },
    { ROW(g.dslopes, TO_DATA, 0, BACKWARD, ARG, "dslopes is asked for, but alibi_slopes is NULL") },
    { ROW(p.skip.dropped, TO_DATA, 0, BOTH, UNSUPPORTED,
          "skip.dropped is set, but a ring of ranks does not take it") },
};

static void spoil(whole_call *c, const row *wrong)
{
    const int number = (int)wrong->value;
    const ptrdiff_t stride = PTRDIFF_MAX / 8;
    const void *const data = lengths, *const none = NULL;
    void *at = (char *)c + wrong->at;
    c->ring.transport = &c->t;
    if (wrong->when & CUSTOM) {
        c->ring.layout = ATTN_RING_CUSTOM;
        c->ring.shard = 0;
        c->ring.ranges = c->ranges;
        c->ring.first_range = c->first;
    }
    switch (wrong->how) {
    case TO_INT:
        memcpy(at, &number, sizeof number);
        break;
    case TO_I64:
        memcpy(at, &wrong->value, sizeof wrong->value);
        break;
    case TO_STRIDE:
        memcpy(at, &stride, sizeof stride);
        break;
    case TO_NULL:
        memcpy(at, &none, sizeof none);
        break;
    case TO_DATA:
        memcpy(at, &data, sizeof data);
        break;
    }
}

/* ---- checking one call ----------------------------------------------------------------------- */

static void paint(void)
{
    memset(&out, PAINT, sizeof out);
    memset(workspace, PAINT, sizeof workspace);
}

static attn_status size_of(const whole_call *c, int backward, size_t *bytes)
{
    return backward ? attn_ring_backward_workspace_size(&c->p, &c->g, &c->ring, bytes)
                    : attn_ring_workspace_size(&c->p, &c->ring, bytes);
}

static attn_status run_call(const whole_call *c, int backward, void *room, size_t bytes)
{
    return backward ? attn_ring_backward(&c->p, &c->g, &c->ring, room, bytes)
                    : attn_ring_forward(&c->p, &c->ring, room, bytes);
}

static const char *sentence_of(const whole_call *c, int backward, const void *room, size_t bytes,
                               char text[300])
{
    return backward ? attn_ring_backward_check(&c->p, &c->g, &c->ring, room, bytes, text, 300)
                    : attn_ring_check(&c->p, &c->ring, room, bytes, text, 300);
}

static void expect(const whole_call *c, int backward, int late, attn_status status,
                   const char *words)
{
    char text[300];
    size_t bytes = 77;
    attn_status got;
    paint();
    got = size_of(c, backward, &bytes);
    CHECK(late ? got == ATTN_OK : got == status && bytes == 0, "workspace query: %s, %zu bytes",
          attn_status_string(got), bytes);
    got = run_call(c, backward, workspace, sizeof workspace);
    CHECK(got == status, "%s", attn_status_string(got));
    sentence_of(c, backward, workspace, sizeof workspace, text);
    CHECK(strstr(text, words) != NULL, "says: %s", text);
    CHECK(all_bytes(&out, sizeof out, PAINT), "an output was written");
    CHECK(all_bytes(workspace, sizeof workspace, PAINT), "the workspace was written");
}

static void expect_ok(const whole_call *c, int backward)
{
    char text[300];
    size_t bytes = 0;
    paint();
    CHECK(size_of(c, backward, &bytes) == ATTN_OK && bytes > 0 && bytes <= WORKSPACE, "%zu bytes",
          bytes);
    CHECK(strcmp(sentence_of(c, backward, workspace, bytes, text), "ok") == 0, "says: %s", text);
    CHECK(run_call(c, backward, workspace, bytes) == ATTN_OK, "refused");
    CHECK(!all_bytes(&out, sizeof out, PAINT), "nothing was written");
}

static void one_wrong_field(const row *wrong)
{
    for (int backward = 0; backward < 2; backward++) {
        whole_call c;
        if (!(wrong->when & (backward ? BACKWARD : FORWARD)))
            continue;
        if (!begin_case("%s = %lld%s", wrong->field, (long long)wrong->value,
                        backward ? ", backward" : ""))
            continue;
        make_right(&c);
        spoil(&c, wrong);
        if (wrong->words == NULL)
            expect_ok(&c, backward);
        else
            expect(&c, backward, wrong->when & LATE, wrong->status, wrong->words);
    }
}

/* Values of key_base that no call takes must not count before they are refused. */
static void wild_key_base(void)
{
    static const int64_t wild[] = { INT64_MIN, -1, INT64_MAX, ((int64_t)1 << 58) + 1024 };
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++)
        for (int backward = 0; backward < 2; backward++) {
            whole_call c;
            if (!begin_case("key_base %d%s", (int)i, backward ? ", backward" : ""))
                continue;
            make_right(&c);
            c.ring.transport = &c.t;
            c.p.key_base = &wild[i];
            expect(&c, backward, 0, ATTN_ERR_ARG, "key_base[0] (");
        }
}

/* One of two ranks holds no position, and refuses what the other one refuses. */
static void empty_rank(void)
{
    static const struct wrong {
        size_t at;
        kind how;
        int64_t value;
    } wrongs[] = {
        { offsetof(whole_call, p.k.dtype), TO_INT, 9 },
        { offsetof(whole_call, p.head_dim), TO_I64, 0 },
        { offsetof(whole_call, p.num_heads_kv), TO_I64, -5 },
        { offsetof(whole_call, p.scale), TO_INT, 0x7f800000 },
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++)
        for (int way = 0; way < 4; way++) {
            const int backward = way & 1, rank = way >> 1;
            const row wrong = {
                "", wrongs[i].at, wrongs[i].how, wrongs[i].value, BOTH, ATTN_ERR_ARG, ""
            };
            whole_call c;
            if (!begin_case("rank %d of one shard, field %d%s", rank, (int)i,
                            backward ? ", backward" : ""))
                continue;
            make_right(&c);
            c.ring.shard = 16;
            c.t.rank = rank;
            spoil(&c, &wrong);
            expect(&c, backward, 0, ATTN_ERR_ARG, "");
        }
}

/* Without any position no part of the call is there to refuse. */
static void no_positions(void)
{
    whole_call c;
    if (!begin_case("gradients of no positions in whole numbers"))
        return;
    make_right(&c);
    c.ring.transport = &c.t;
    c.p.seq_len_q = c.p.seq_len_kv = 0;
    c.p.integer = 1;
    expect(&c, 1, 0, ATTN_ERR_UNSUPPORTED, "integer (1) is set, but attn_backward");
}

/* ---- what no field tells --------------------------------------------------------------------- */

static void whole_arguments(void)
{
    whole_call c;
    char text[300];
    size_t bytes = 0;
    if (!begin_case("missing arguments"))
        return;
    make_right(&c);
    c.ring.transport = &c.t;
    CHECK(attn_ring_forward(NULL, &c.ring, workspace, WORKSPACE) == ATTN_ERR_ARG, "params NULL");
    CHECK(attn_ring_forward(&c.p, NULL, workspace, WORKSPACE) == ATTN_ERR_ARG, "ring NULL");
    CHECK(attn_ring_backward(&c.p, NULL, &c.ring, workspace, WORKSPACE) == ATTN_ERR_ARG,
          "gradients NULL");
    CHECK(attn_ring_workspace_size(&c.p, &c.ring, NULL) == ATTN_ERR_ARG, "bytes NULL");
    CHECK(attn_ring_workspace_size(NULL, &c.ring, &bytes) == ATTN_ERR_ARG, "params NULL");
    CHECK(attn_ring_backward_workspace_size(&c.p, NULL, &c.ring, &bytes) == ATTN_ERR_ARG,
          "gradients NULL");
    CHECK(strcmp(attn_ring_check(NULL, &c.ring, NULL, 0, text, 300), "params is NULL") == 0,
          "says: %s", text);
    CHECK(strcmp(attn_ring_check(&c.p, NULL, NULL, 0, text, 300), "ring is NULL") == 0, "says: %s",
          text);
    CHECK(strcmp(attn_ring_backward_check(&c.p, NULL, &c.ring, NULL, 0, text, 300),
                 "gradients is NULL") == 0,
          "says: %s", text);
    CHECK(strcmp(attn_ring_check(&c.p, NULL, NULL, 0, NULL, 0), "bad argument") == 0,
          "without a buffer");
    CHECK(attn_ring_describe(&c.p, &c.ring, 0, NULL) == ATTN_ERR_ARG, "info NULL");
}

/* What the queries of the layout refuse. */
static void layout_queries(void)
{
    static const int ranks[] = { -1, 2 };
    whole_call c;
    attn_ring_range range;
    attn_ring_info info;
    int64_t count;
    if (!begin_case("questions about the layout"))
        return;
    make_right(&c);
    CHECK(attn_ring_ranges(&c.p, NULL, 0, &range, 1, &count) == ATTN_ERR_ARG, "ring NULL");
    CHECK(attn_ring_ranges(&c.p, &c.ring, 0, &range, 1, &count) == ATTN_ERR_ARG, "no transport");
    c.ring.transport = &c.t;
    CHECK(attn_ring_ranges(&c.p, &c.ring, 0, &range, 1, NULL) == ATTN_ERR_ARG, "count NULL");
    CHECK(attn_ring_ranges(&c.p, &c.ring, 0, &range, -1, &count) == ATTN_ERR_ARG, "most -1");
    CHECK(attn_ring_ranges(&c.p, &c.ring, 0, NULL, 1, &count) == ATTN_ERR_ARG, "ranges NULL");
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        CHECK(attn_ring_ranges(&c.p, &c.ring, ranks[i], &range, 1, &count) == ATTN_ERR_ARG &&
                  count == 0,
              "ranges of rank %d", ranks[i]);
        CHECK(attn_ring_describe(&c.p, &c.ring, ranks[i], &info) == ATTN_ERR_ARG &&
                  info.length == 0,
              "rank %d described", ranks[i]);
    }
    c.t.size = 0;
    CHECK(attn_ring_describe(&c.p, &c.ring, 0, &info) == ATTN_ERR_ARG, "a ring of no ranks");
}

/* Lengths that no ring takes, and a workspace that no memory holds. */
static void long_ring(void)
{
    whole_call c;
    if (!begin_case("a length of 2^45 + 1"))
        return;
    make_right(&c);
    c.ring.transport = &c.t;
    c.p.seq_len_q = c.p.seq_len_kv = ((int64_t)1 << 45) + 1;
    expect(&c, 0, 0, ATTN_ERR_OVERFLOW, "seq_len_kv (35184372088833) must be from 0 to 2^45");
    expect(&c, 1, 0, ATTN_ERR_OVERFLOW, "seq_len_kv (35184372088833) must be from 0 to 2^45");
    if (sizeof(size_t) == 4) /* Such an output is too large already. */
        return;
    c.p.seq_len_q = c.p.seq_len_kv = (int64_t)1 << 44;
    c.p.head_dim = 1 << 20;
    c.p.head_dim_v = 1;
    c.p.q.stride_seq = c.p.k.stride_seq = c.p.v.stride_seq = ATTN_STRIDE_BROADCAST;
    c.ring.shard = (int64_t)1 << 43;
    expect(&c, 0, 0, ATTN_ERR_OVERFLOW,
           "seq_len_kv (17592186044416): the workspace of a ring would exceed the address space");
}

static void small_workspace(void)
{
    for (int backward = 0; backward < 2; backward++) {
        whole_call c;
        size_t bytes = 0;
        char text[300];
        if (!begin_case("workspace%s", backward ? ", backward" : ""))
            continue;
        make_right(&c);
        c.ring.transport = &c.t;
        expect_ok(&c, backward);
        size_of(&c, backward, &bytes);
        paint();
        CHECK(run_call(&c, backward, workspace, bytes - 1) == ATTN_ERR_WORKSPACE, "taken");
        CHECK(run_call(&c, backward, NULL, bytes) == ATTN_ERR_WORKSPACE, "NULL taken");
        CHECK(all_bytes(&out, sizeof out, PAINT), "an output was written");
        sentence_of(&c, backward, workspace, bytes - 1, text);
        CHECK(strstr(text, ") must be at least ") != NULL, "says: %s", text);
    }
}

/* A transport fails by itself at one agreement. */
typedef struct failing {
    int calls, fail_at;
} failing;

static int fail_to_agree(void *user, int value)
{
    failing *f = user;
    return f->calls++ == f->fail_at ? -1 : value;
}

static int agreement_failed(int backward, int at)
{
    failing f = { 0, at };
    attn_ring_stats stats;
    whole_call c;
    attn_status status;
    make_right(&c);
    c.t.user = &f;
    c.t.agree = fail_to_agree;
    c.ring.transport = &c.t;
    c.ring.stats = &stats;
    paint();
    status = run_call(&c, backward, workspace, sizeof workspace);
    CHECK(status == (f.calls > at ? ATTN_ERR_CALLBACK : ATTN_OK), "agreement %d: %s", at,
          attn_status_string(status));
    if (f.calls <= at)
        return 0;
    CHECK(all_bytes(&out, sizeof out, PAINT), "agreement %d: an output was written", at);
    CHECK(stats.failed_rank == 0, "agreement %d: rank %d is told", at, stats.failed_rank);
    return 1;
}

static void failing_transport(void)
{
    for (int backward = 0; backward < 2; backward++) {
        int at = 0;
        if (!begin_case("a transport that cannot agree%s", backward ? ", backward" : ""))
            continue;
        while (agreement_failed(backward, at))
            at++;
        CHECK(at >= 4, "%d agreements in all", at);
    }
}

/* ---- ranks that disagree --------------------------------------------------------------------- */

typedef struct quarrel {
    int field, rank; /* what is different, on which rank */
    attn_status status[3];
    attn_ring_stats stats[3];
} quarrel;

static const int32_t ids[LENGTH];
static const uint8_t all_visible[] = { 0xff, 0xff };

static void differ(whole_call *c, int field)
{
    switch (field) {
    case 0:
        c->p.causal = 0;
        break;
    case 1:
        c->p.scale = 0.25f;
        break;
    case 2:
        c->ring.layout = ATTN_RING_ZIGZAG;
        break;
    case 3:
        c->ring.shard = 3;
        break;
    case 4:
        c->p.k.dtype = ATTN_F16;
        break;
    case 5:
        c->p.seq_len_q = c->p.seq_len_kv = LENGTH - 1;
        break;
    case 6:
        c->p.q_len = &lengths[0];
        break;
    case 7:
        c->p.dropout_p = 0.5f;
        break;
    case 8:
        c->p.sinks = in[0];
        break;
    case 9:
        c->p.alibi_slopes = in[0];
        break;
    case 10:
        c->p.prefix = &lengths[0];
        break;
    case 11:
        c->p.q_segments = c->p.kv_segments = ids;
        break;
    case 12:
        c->p.block_mask.block_q = 8;
        break;
    case 13:
        c->p.block_mask.block_k = 8;
        break;
    case 14:
        c->p.bool_mask.invert = 1;
        break;
    case 15:
        c->p.rotated = ATTN_ROTATED_V;
        break;
    default:
        c->p.bias.data = in[0];
        c->p.bias.stride_batch = c->p.bias.stride_head = ATTN_STRIDE_BROADCAST;
        c->p.bias.stride_q = ATTN_STRIDE_BROADCAST;
        break;
    }
}

static void quarrel_rank(void *arg, const attn_transport *t)
{
    static unsigned char rooms[3][WORKSPACE / 4];
    static struct outputs outputs[3];
    quarrel *q = arg;
    whole_call c;
    make_right(&c);
    c.p.o.data = outputs[t->rank].o;
    c.p.lse.data = outputs[t->rank].lse;
    c.ring.transport = t;
    c.ring.stats = &q->stats[t->rank];
    c.p.causal = 1;
    c.p.bool_mask.data = all_visible;
    c.p.bool_mask.stride_q = c.p.bool_mask.stride_kv = ATTN_STRIDE_BROADCAST;
    c.p.bool_mask.stride_batch = c.p.bool_mask.stride_head = ATTN_STRIDE_BROADCAST;
    c.p.block_mask.stride_batch = c.p.block_mask.stride_head = ATTN_STRIDE_BROADCAST;
    c.p.block_mask.stride_row = ATTN_STRIDE_BROADCAST;
    c.p.block_mask.bitmap = all_visible;
    c.p.block_mask.block_q = c.p.block_mask.block_k = 4;
    if (t->rank == q->rank)
        differ(&c, q->field);
    q->status[t->rank] = attn_ring_forward(&c.p, &c.ring, rooms[t->rank], sizeof rooms[0]);
}

/* Parameters that differ between ranks are refused on all of them. */
static void ranks_disagree(void)
{
    for (int field = 0; field < 17 && virtual_ranks_most() >= 3; field++)
        for (int rank = -1; rank < 3; rank++) {
            quarrel q = { field, rank, { 0 }, { { 0 } } };
            if (!begin_case("rank %d differs in %d", rank, field) ||
                !CHECK(watched_ranks_run(3, quarrel_rank, &q) == 0, "no threads"))
                continue;
            for (int r = 0; r < 3; r++)
                CHECK(q.status[r] == (rank < 0 ? ATTN_OK : ATTN_ERR_ARG) &&
                          q.stats[r].failed_rank == -1,
                      "rank %d: %s", r, attn_status_string(q.status[r]));
        }
}

/* A call of one rank that has every sum over rows. */
static void make_sums(whole_call *c, struct outputs *to)
{
    make_right(c);
    c->p.bias.data = in[0];
    c->p.sinks = c->p.alibi_slopes = in[4];
    c->g.dq.data = to->dq, c->g.dk.data = to->dk, c->g.dv.data = to->dv;
    c->g.dbias.data = to->dbias;
    c->g.dsinks = to->dsinks, c->g.dslopes = to->dslopes;
}

/* Sums over rows that lie in other outputs, at odd addresses, in strides that say nothing. */
static void wrong_sums(void)
{
    static const char *const words[] = { "dq overlaps dsinks", "dslopes overlaps dsinks",
                                         "dbias overlaps dv",
                                         "dbias.stride_q (ATTN_STRIDE_BROADCAST) must be 0",
                                         "dsinks: its address must be a multiple of 4" };
    for (int i = 0; i < (int)(sizeof words / sizeof *words); i++) {
        whole_call c;
        if (!begin_case("sums over rows: %s", words[i]))
            continue;
        make_sums(&c, &out);
        c.ring.transport = &c.t;
        expect_ok(&c, 1);
        if (i == 0)
            c.g.dsinks = out.dq + 3;
        if (i == 1)
            c.g.dslopes = c.g.dsinks;
        if (i == 2)
            c.g.dbias.data = out.dv + 5;
        if (i == 3)
            c.g.dbias.stride_q = ATTN_STRIDE_BROADCAST;
        if (i == 4)
            c.g.dsinks = (float *)(void *)((char *)out.dsinks + 2);
        expect(&c, 1, i < 3, ATTN_ERR_ARG, words[i]);
    }
}

static void quarrel_about_sums(void *arg, const attn_transport *t)
{
    static unsigned char rooms[3][WORKSPACE / 4];
    static struct outputs outputs[3];
    quarrel *q = arg;
    whole_call c;
    make_sums(&c, &outputs[t->rank]);
    c.p.o.data = outputs[t->rank].o;
    c.p.lse.data = outputs[t->rank].lse;
    c.ring.transport = t;
    c.ring.stats = &q->stats[t->rank];
    if (t->rank == q->rank && q->field == 0)
        c.g.dbias.data = NULL;
    if (t->rank == q->rank && q->field == 1)
        c.g.dsinks = NULL;
    if (t->rank == q->rank && q->field == 2)
        c.g.dslopes = NULL;
    if (t->rank == q->rank && q->field == 3)
        c.p.bias.stride_q = ATTN_STRIDE_BROADCAST;
    q->status[t->rank] = attn_ring_backward(&c.p, &c.g, &c.ring, rooms[t->rank], sizeof rooms[0]);
}

/* Ranks must ask for the same sums. */
static void ranks_disagree_about_sums(void)
{
    for (int field = 0; field < 4 && virtual_ranks_most() >= 3; field++)
        for (int rank = -1; rank < 3; rank++) {
            quarrel q = { field, rank, { 0 }, { { 0 } } };
            if (!begin_case("rank %d differs in sum %d", rank, field) ||
                !CHECK(watched_ranks_run(3, quarrel_about_sums, &q) == 0, "no threads"))
                continue;
            for (int r = 0; r < 3; r++)
                CHECK(q.status[r] == (rank < 0 ? ATTN_OK : ATTN_ERR_ARG), "rank %d: %s", r,
                      attn_status_string(q.status[r]));
        }
}

/* Logits that a ring cannot give. */
static void wrong_logits(void)
{
    static float logits[LENGTH * LENGTH];
    static const int32_t chosen[] = { 4, LENGTH };
    for (int way = 0; way < 4; way++) {
        whole_call c;
        if (!begin_case("logits of a ring, %d", way))
            continue;
        make_right(&c);
        c.ring.transport = &c.t;
        c.p.logits.data = way == 3 ? out.o : logits;
        if (way == 0) {
            c.p.logits.stage = ATTN_LOGITS_SOFTMAX;
            expect(&c, 0, 0, ATTN_ERR_UNSUPPORTED,
                   "logits.stage (3) (probabilities) needs all keys at once: set ring.gather");
            expect_ok(&c, 1); /* Gradients do not look at logits. */
            c.ring.gather = 1;
            expect_ok(&c, 0);
        } else if (way == 1) {
            c.p.logits.num_rows = LENGTH;
            expect(&c, 0, 1, ATTN_ERR_ARG, "logits.num_rows (9) exceeds the rows of the call");
        } else if (way == 2) {
            c.p.logits.rows = chosen;
            c.p.logits.num_rows = 2;
            expect(&c, 0, 1, ATTN_ERR_ARG, "logits.rows[1] (9) must be a row from 0");
        } else {
            expect(&c, 0, 1, ATTN_ERR_ARG, "o overlaps logits.data");
        }
    }
}

void test_ring_errors(void)
{
    for (int i = 0; i < 7; i++)
        for (int j = 0; j < LENGTH * DIM; j++)
            in[i][j] = 0.25f;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        one_wrong_field(&rows[i]);
    whole_arguments();
    layout_queries();
    long_ring();
    small_workspace();
    failing_transport();
    ranks_disagree();
    wrong_sums();
    wrong_logits();
    ranks_disagree_about_sums();
    wild_key_base();
    empty_rank();
    no_positions();
}
