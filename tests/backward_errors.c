/* backward_errors.c - every field of attn_gradients wrong in turn, and those of attn_params that
 * have no gradients.
 * SPDX-License-Identifier: MIT
 *
 * One row of the table is one wrong call. For each attn_backward, attn_backward_workspace_size and
 * attn_backward_explain must agree on the status, the sentence of attn_backward_check must hold the
 * words, and no byte of an output or of the workspace may change.
 */
#include "backward.h"
#include "pool.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    BATCH = 2,
    HEADS_Q = 4,
    HEADS_KV = 2,
    SEQ_Q = 5,
    SEQ_KV = 7,
    DIM = 8,
    DIM_V = 6,
    WORKSPACE = 1 << 20,
    PAINT = 0x5a
};

/* ---- a right call ---------------------------------------------------------------------------- */

static struct inputs {
    float q[BATCH * HEADS_Q * SEQ_Q * DIM], k[BATCH * HEADS_KV * SEQ_KV * DIM];
    float v[BATCH * HEADS_KV * SEQ_KV * DIM_V];
    float o[BATCH * HEADS_Q * SEQ_Q * DIM_V], lse[BATCH * HEADS_Q * SEQ_Q];
    float dout[BATCH * HEADS_Q * SEQ_Q * DIM_V], dlse[BATCH * HEADS_Q * SEQ_Q];
    float bias[SEQ_Q * SEQ_KV], sinks[HEADS_Q], slopes[HEADS_Q];
} in;

/* Next to each other, so that one look sees them all. */
static struct outputs {
    float dq[BATCH * HEADS_Q * SEQ_Q * DIM], dk[BATCH * HEADS_KV * SEQ_KV * DIM];
    float dv[BATCH * HEADS_KV * SEQ_KV * DIM_V];
    float dbias[SEQ_Q * SEQ_KV], dsinks[HEADS_Q], dslopes[HEADS_Q];
} out;

static unsigned char workspace[WORKSPACE];

static float no_change(void *user, const attn_pair *at, float logit)
{
    (void)user, (void)at;
    return logit;
}

static float one(void *user, const attn_pair *at, float logit)
{
    (void)user, (void)at, (void)logit;
    return 1;
}

typedef struct whole_call {
    attn_params p;
    attn_gradients g;
} whole_call;

/* With everything that there are gradients of, but for `without`. */
enum {
    ALL = 0,
    NO_BIAS = 1,
    NO_SINKS = 2,
    NO_SLOPES = 4,
    NO_SCORE = 8,
    NO_WISHES = 16,
    NAIVE = 32,
    LATE = 64 /* only attn_backward and attn_backward_check look at data */
};

static void set_modifiers(whole_call *c, int without)
{
    if (!(without & NO_BIAS)) {
        c->p.bias.data = in.bias;
        c->p.bias.stride_batch = c->p.bias.stride_head = ATTN_STRIDE_BROADCAST;
    }
    c->p.sinks = without & NO_SINKS ? NULL : in.sinks;
    c->p.alibi_slopes = without & NO_SLOPES ? NULL : in.slopes;
    c->p.alibi_stride = ATTN_STRIDE_BROADCAST;
    c->p.score = without & NO_SCORE ? NULL : no_change;
}

static void set_wishes(whole_call *c, int without)
{
    c->g.score_derivative = without & NO_SCORE ? NULL : one;
    if (without & NO_WISHES)
        return;
    c->g.dq.data = out.dq;
    c->g.dk.data = out.dk;
    c->g.dv.data = out.dv;
    c->g.dbias.data = without & NO_BIAS ? NULL : out.dbias;
    c->g.dsinks = without & NO_SINKS ? NULL : out.dsinks;
    c->g.dslopes = without & NO_SLOPES ? NULL : out.dslopes;
}

static whole_call right_call(int without)
{
    whole_call c;
    memset(&c, 0, sizeof c);
    c.p.batch = BATCH;
    c.p.num_heads_q = HEADS_Q, c.p.num_heads_kv = HEADS_KV;
    c.p.seq_len_q = SEQ_Q, c.p.seq_len_kv = SEQ_KV;
    c.p.head_dim = DIM, c.p.head_dim_v = DIM_V;
    c.p.q.data = in.q, c.p.k.data = in.k, c.p.v.data = in.v;
    c.p.o.data = in.o, c.p.lse.data = in.lse;
    c.p.impl = without & NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    c.p.num_workers = 1;
    c.g.dout.data = in.dout, c.g.dlse.data = in.dlse;
    set_modifiers(&c, without);
    set_wishes(&c, without);
    return c;
}

/* ---- the table ------------------------------------------------------------------------------- */

/* TO_STRIDE: 0 = broadcast, 1 = so large that a few steps leave the address space. TO_DATA: some
 * memory is given. */
typedef enum kind { TO_INT, TO_I64, TO_STRIDE, TO_NULL, TO_DATA, TO_SCORE } kind;

typedef struct row {
    const char *field;
    size_t at; /* its place in whole_call */
    kind how;
    int64_t value;
    int without;
    attn_status status;
    const char *words; /* that the sentence must hold */
} row;

#define FIELD(name) #name, offsetof(whole_call, name)
#define ARG ATTN_ERR_ARG
#define OVER ATTN_ERR_OVERFLOW
#define NOT_BUILT ATTN_ERR_UNSUPPORTED

static const row rows[] = {
    { FIELD(g.gemms), TO_INT, 6, ALL, ARG, "gemms (6)" },
    { FIELD(g.gemms), TO_INT, -1, ALL, ARG, "gemms (-1)" },
    { FIELD(g.gemms), TO_INT, 1, NAIVE, ARG, "gemms (1)" },
    { FIELD(g.dout.dtype), TO_INT, 3, ALL, ARG, "dout.dtype (3)" },
    { FIELD(g.dlse.dtype), TO_INT, 1, ALL, ARG, "dlse.dtype (1) must be 0: f32" },
    { FIELD(g.dq.dtype), TO_INT, 3, ALL, ARG, "dq.dtype (3)" },
    { FIELD(g.dk.dtype), TO_INT, -1, ALL, ARG, "dk.dtype (-1)" },
    { FIELD(g.dv.dtype), TO_INT, 99, ALL, ARG, "dv.dtype (99)" },
    { FIELD(g.dq.stride_batch), TO_STRIDE, 0, ALL, ARG, "dq.stride_batch" },
    { FIELD(g.dq.stride_head), TO_STRIDE, 0, ALL, ARG, "dq.stride_head" },
    { FIELD(g.dq.stride_seq), TO_STRIDE, 0, NAIVE, ARG, "dq.stride_seq" },
    { FIELD(g.dk.stride_batch), TO_STRIDE, 0, ALL, ARG, "dk.stride_batch" },
    { FIELD(g.dk.stride_head), TO_STRIDE, 0, NAIVE, ARG, "dk.stride_head" },
    { FIELD(g.dk.stride_seq), TO_STRIDE, 0, ALL, ARG, "dk.stride_seq" },
    { FIELD(g.dv.stride_batch), TO_STRIDE, 0, NAIVE, ARG, "dv.stride_batch" },
    { FIELD(g.dv.stride_head), TO_STRIDE, 0, ALL, ARG, "dv.stride_head" },
    { FIELD(g.dv.stride_seq), TO_STRIDE, 0, ALL, ARG, "dv.stride_seq" },
    { FIELD(g.dbias.stride_batch), TO_STRIDE, 0, ALL, ARG, "dbias.stride_batch" },
    { FIELD(g.dbias.stride_head), TO_STRIDE, 0, ALL, ARG, "dbias.stride_head" },
    { FIELD(g.dbias.stride_q), TO_STRIDE, 0, ALL, ARG, "dbias.stride_q" },
    { FIELD(g.dbias.stride_kv), TO_STRIDE, 0, NAIVE, ARG, "dbias.stride_kv" },
    { FIELD(g.dbias.data), TO_DATA, 0, NO_BIAS, ARG, "dbias" },
    { FIELD(g.dsinks), TO_DATA, 0, NO_SINKS, ARG, "dsinks" },
    { FIELD(g.dslopes), TO_DATA, 0, NO_SLOPES, ARG, "dslopes" },
    { FIELD(g.score_derivative), TO_NULL, 0, ALL, ARG, "score_derivative" },
    { FIELD(g.score_derivative), TO_SCORE, 0, NO_SCORE, ARG, "score_derivative" },
    { FIELD(g.dout.data), TO_NULL, 0, LATE, ARG, "dout.data" },
    { FIELD(g.dout.data), TO_NULL, 0, NAIVE | LATE, ARG, "dout.data" },
    { FIELD(g.dq.data), TO_NULL, 0, NO_WISHES | LATE, ARG, "nothing is asked for" },
    { FIELD(p.o.data), TO_NULL, 0, LATE, ARG, "o.data" },
    { FIELD(p.lse.data), TO_NULL, 0, LATE, ARG,
      "stats.data and lse.data are NULL: attn_backward reads what attn_forward wrote" },
    { FIELD(p.stats.dtype), TO_INT, 1, ALL, ARG, "stats.dtype (1) must be 0" },
    { FIELD(p.q.data), TO_NULL, 0, LATE, ARG, "q.data" },
    { FIELD(p.v.data), TO_NULL, 0, LATE, ARG, "v.data" },
    { FIELD(p.recent.keys), TO_I64, SEQ_KV, ALL, NOT_BUILT,
      "recent.keys (7) is set, but attn_backward does not take it: it describes a cache" },
    { FIELD(p.skip.dropped), TO_DATA, 0, ALL, NOT_BUILT,
      "skip.dropped is set, but attn_backward does not take it" },
    { FIELD(p.num_heads_kv), TO_I64, 3, ALL, ARG, "num_heads_kv (3)" },
    { FIELD(p.head_dim), TO_I64, 0, ALL, ARG, "head_dim (0)" },
    { FIELD(p.tile_keys), TO_INT, 24, ALL, ARG, "tile_keys (24)" },
    { FIELD(g.dout.stride_seq), TO_STRIDE, 1, ALL, OVER, "dout" },
    { FIELD(g.dlse.stride_head), TO_STRIDE, 1, ALL, OVER, "dlse" },
    { FIELD(g.dq.stride_seq), TO_STRIDE, 1, ALL, OVER, "dq" },
    { FIELD(g.dk.stride_seq), TO_STRIDE, 1, ALL, OVER, "dk" },
    { FIELD(g.dv.stride_head), TO_STRIDE, 1, ALL, OVER, "dv" },
    { FIELD(g.dbias.stride_q), TO_STRIDE, 1, ALL, OVER, "dbias" },
    { FIELD(p.seq_len_q), TO_I64, INT64_C(1) << 60, ALL, OVER, "" },
    { FIELD(p.head_dim), TO_I64, INT64_C(1) << 60, NAIVE, OVER, "" },
};

static void apply(const row *r, whole_call *c)
{
    unsigned char *at = (unsigned char *)c + r->at;
    const ptrdiff_t stride = r->value != 0 ? PTRDIFF_MAX / 2 : ATTN_STRIDE_BROADCAST;
    const int narrow = r->how == TO_INT ? (int)r->value : 0;
    float *const data = out.dbias;
    const attn_score_derivative_fn function = one;
    switch (r->how) {
    case TO_INT:
        memcpy(at, &narrow, sizeof narrow);
        break;
    case TO_I64:
        memcpy(at, &r->value, sizeof r->value);
        break;
    case TO_STRIDE:
        memcpy(at, &stride, sizeof stride);
        break;
    case TO_NULL:
        memset(at, 0, sizeof(void *));
        break;
    case TO_DATA:
        memcpy(at, &data, sizeof data);
        break;
    case TO_SCORE:
        memcpy(at, &function, sizeof function);
        break;
    }
}

/* ---- checking -------------------------------------------------------------------------------- */

static void paint_outputs(void)
{
    memset(&out, PAINT, sizeof out);
    memset(workspace, PAINT, sizeof workspace);
}

static void check_untouched(void)
{
    CHECK(all_bytes(&out, sizeof out, PAINT), "an output changed");
    CHECK(all_bytes(workspace, sizeof workspace, PAINT), "the workspace changed");
}

/* The sentence is cut where the room ends. */
static void check_truncation(const whole_call *c, size_t bytes, const char *whole)
{
    char small[24];
    memset(small, '#', sizeof small);
    attn_backward_check(&c->p, &c->g, workspace, bytes, small, 12);
    CHECK(strlen(small) == (strlen(whole) < 11 ? strlen(whole) : 11) &&
              strncmp(small, whole, strlen(small)) == 0 && small[12] == '#' && small[23] == '#',
          "'%.24s' of '%s'", small, whole);
    CHECK(attn_backward_check(&c->p, &c->g, workspace, bytes, NULL, 100)[0] != '\0',
          "nothing without a buffer");
    CHECK(attn_backward_check(&c->p, &c->g, workspace, bytes, small, 0)[0] != '\0',
          "nothing without room");
}

static void check_refusal(const whole_call *c, size_t bytes, attn_status status, const char *words)
{
    char sentence[300];
    attn_status got;
    paint_outputs();
    got = attn_backward(&c->p, &c->g, workspace, bytes);
    CHECK(got == status, "attn_backward says '%s', not '%s'", attn_status_string(got),
          attn_status_string(status));
    check_untouched();
    attn_backward_check(&c->p, &c->g, workspace, bytes, sentence, sizeof sentence);
    CHECK(strcmp(sentence, "ok") != 0 && strlen(sentence) >= 10, "the sentence is '%s'", sentence);
    CHECK(strstr(sentence, words) != NULL, "'%s' does not hold '%s'", sentence, words);
    check_truncation(c, bytes, sentence);
}

static void check_row(const row *r)
{
    whole_call c = right_call(r->without);
    attn_backward_info info;
    attn_status got;
    size_t need = 12345;
    apply(r, &c);
    check_refusal(&c, sizeof workspace, r->status, r->words);
    got = attn_backward_workspace_size(&c.p, &c.g, &need);
    CHECK(got == (r->without & LATE ? ATTN_OK : r->status), "attn_backward_workspace_size: '%s'",
          attn_status_string(got));
    got = attn_backward_explain(&c.p, &c.g, &info);
    CHECK(got == (r->without & LATE ? ATTN_OK : r->status), "attn_backward_explain: '%s'",
          attn_status_string(got));
}

/* Every row's call is right before it is broken; without this the table would prove little. */
static void check_right(const row *r)
{
    const whole_call c = right_call(r->without & ~NO_WISHES);
    char sentence[300];
    paint_outputs();
    CHECK(strcmp(attn_backward_check(&c.p, &c.g, workspace, WORKSPACE, sentence, sizeof sentence),
                 "ok") == 0,
          "'%s'", sentence);
    CHECK(attn_backward(&c.p, &c.g, workspace, WORKSPACE) == ATTN_OK, "refused");
    CHECK(!all_bytes(out.dq, sizeof out.dq, PAINT), "dq was not written");
}

/* ---- what the table cannot say --------------------------------------------------------------- */

static void check_unsupported(void)
{
    whole_call c = right_call(ALL);
    c.p.partial = 1;
    c.p.state.m = out.dq, c.p.state.l = out.dk, c.p.state.o = out.dv;
    c.p.o.data = c.p.lse.data = c.p.stats.data = NULL;
    if (begin_case("gradients of a part"))
        check_refusal(&c, sizeof workspace, ATTN_ERR_UNSUPPORTED, "partial");
    c.p.state.m = NULL; /* to give it would not help */
    if (begin_case("gradients of a part without a state"))
        check_refusal(&c, sizeof workspace, ATTN_ERR_UNSUPPORTED, "partial");
    c = right_call(NO_SINKS);
    c.p.softmax1 = 1;
    c.g.dsinks = out.dsinks;
    if (begin_case("dsinks of softmax1"))
        check_refusal(&c, sizeof workspace, ATTN_ERR_ARG, "dsinks");
}

/* Rows of dk that no key uses may be memory of somebody else, of a cache, too. */
static void check_unused_rows(void)
{
    static const int32_t three[BATCH] = { 3, 3 };
    whole_call c = right_call(ALL);
    char text[200];
    c.p.kv_len = three;
    c.p.kv_rows.ring = SEQ_KV;
    c.g.dv.data = out.dk + 3 * DIM;
    c.g.dv.stride_seq = DIM_V;
    c.g.dv.stride_head = (ptrdiff_t)SEQ_KV * DIM;
    c.g.dv.stride_batch = HEADS_KV * c.g.dv.stride_head;
    if (!begin_case("dv among unused rows of dk"))
        return;
    CHECK(strcmp(attn_backward_check(&c.p, &c.g, workspace, WORKSPACE, text, sizeof text), "ok") ==
              0,
          "%s", text);
    c.g.dv.data = out.dk + 3 * DIM - 1;
    check_refusal(&c, sizeof workspace, ATTN_ERR_ARG, "dk overlaps dv");
}

static void check_null_pointers(void)
{
    const whole_call c = right_call(ALL);
    attn_backward_info info;
    char text[100];
    size_t need;
    if (!begin_case("gradients: NULL instead of an argument"))
        return;
    paint_outputs();
    CHECK(attn_backward(NULL, &c.g, workspace, WORKSPACE) == ATTN_ERR_ARG, "no params");
    CHECK(attn_backward(&c.p, NULL, workspace, WORKSPACE) == ATTN_ERR_ARG, "no gradients");
    CHECK(attn_backward_workspace_size(NULL, &c.g, &need) == ATTN_ERR_ARG, "size, no params");
    CHECK(attn_backward_workspace_size(&c.p, NULL, &need) == ATTN_ERR_ARG, "size, no gradients");
    CHECK(attn_backward_workspace_size(&c.p, &c.g, NULL) == ATTN_ERR_ARG, "size, no bytes");
    CHECK(attn_backward_explain(NULL, &c.g, &info) == ATTN_ERR_ARG, "explain, no params");
    CHECK(attn_backward_explain(&c.p, NULL, &info) == ATTN_ERR_ARG, "explain, no gradients");
    CHECK(attn_backward_explain(&c.p, &c.g, NULL) == ATTN_ERR_ARG, "explain, no info");
    CHECK(strcmp(attn_backward_check(NULL, &c.g, NULL, 0, text, sizeof text), "ok") != 0, "ok?");
    CHECK(strcmp(attn_backward_check(&c.p, NULL, NULL, 0, text, sizeof text), "ok") != 0, "ok?");
    check_untouched();
}

/* attn_backward_explain tells what probabilities are computed from, and what the LSE alone costs. */
static void check_origin(void)
{
    const struct {
        int without, stats, lse;
        const char *words;
    } origins[] = {
        { ALL, 1, 0, "stats" },
        { ALL, 1, 1, "stats" },
        { ALL, 0, 1, "lse: relative error up to 2e-7 * abs(lse) + 3e-6; stats serve large logits" },
        { ALL, 0, 0, "nothing yet: attn_backward needs stats, or lse" },
        { NAIVE, 1, 1, "a softmax of its own" },
        { NAIVE, 0, 0, "a softmax of its own" },
    };
    for (size_t n = 0; n < sizeof origins / sizeof *origins; n++) {
        whole_call c = right_call(origins[n].without);
        attn_backward_info info;
        c.p.stats.data = origins[n].stats ? in.lse : NULL;
        c.p.lse.data = origins[n].lse ? in.lse : NULL;
        if (!begin_case("gradients: where probabilities come from, %d", (int)n))
            continue;
        CHECK(attn_backward_explain(&c.p, &c.g, &info) == ATTN_OK, "refused");
        CHECK(strcmp(info.probabilities, origins[n].words) == 0, "'%s'", info.probabilities);
        c.g.gemms = 1;
        CHECK(attn_backward_explain(&c.p, &c.g, &info) == ATTN_ERR_ARG &&
                  strcmp(info.probabilities, "none") == 0,
              "'%s' of a call that is refused", info.probabilities);
    }
}

/* One byte less than the least is too little. */
static void check_workspace(int without)
{
    whole_call c = right_call(without);
    char text[300];
    size_t least = 0, enough = 0;
    if (!begin_case("gradients: workspace of the wrong size%s", without & NAIVE ? ", naive" : ""))
        return;
    CHECK(attn_backward_workspace_size(&c.p, &c.g, &enough) == ATTN_OK && enough <= WORKSPACE,
          "%lu bytes", (unsigned long)enough);
    while (least < enough) {
        const size_t middle = least + (enough - least) / 2;
        attn_backward_check(&c.p, &c.g, workspace, middle, text, sizeof text);
        if (strcmp(text, "ok") == 0)
            enough = middle;
        else
            least = middle + 1;
    }
    CHECK(least > 1000, "%lu bytes are enough", (unsigned long)least);
    check_refusal(&c, least - 1, ATTN_ERR_WORKSPACE, "workspace_bytes");
    paint_outputs();
    CHECK(attn_backward(&c.p, &c.g, NULL, WORKSPACE) == ATTN_ERR_WORKSPACE, "NULL accepted");
    CHECK(attn_backward(&c.p, &c.g, NULL, 0) == ATTN_ERR_WORKSPACE, "nothing accepted");
    check_untouched();
    CHECK(attn_backward(&c.p, &c.g, workspace, least) == ATTN_OK, "the least that is accepted");
    CHECK(attn_backward(&c.p, &c.g, workspace, (size_t)-1) == ATTN_OK, "endless");
}

static void check_failing_loops(void)
{
    for (int fail_at = 0; fail_at < 3; fail_at++) {
        whole_call c = right_call(ALL);
        pool workers = pool_of(3, POOL_SHUFFLED, 0);
        if (!begin_case("gradients: a parallel loop that fails, %d", fail_at))
            continue;
        workers.fail_at = fail_at;
        workers.fail_percent = 50;
        c.p.num_workers = workers.workers;
        c.p.parallel_for = pool_for;
        c.p.parallel_user = &workers;
        CHECK(attn_backward(&c.p, &c.g, workspace, WORKSPACE) == ATTN_ERR_CALLBACK, "not told");
        CHECK(workers.loops == fail_at + 1, "%d loops ran", workers.loops);
    }
}

/* Sizes of the naive way that no memory has, of each worker and more so of all. */
static void check_overflow(void)
{
    whole_call c = right_call(NAIVE);
    size_t need = 1;
    if (!begin_case("gradients: a workspace beyond all memory"))
        return;
    c.p.batch = c.p.num_heads_q = c.p.num_heads_kv = c.p.head_dim = c.p.head_dim_v = 1;
    c.p.seq_len_q = c.p.seq_len_kv = INT64_C(1) << 40;
    c.p.bias.stride_q = ATTN_STRIDE_BROADCAST;
    c.p.num_workers = 8;
    c.p.parallel_for = pool_for; /* not called */
    CHECK(attn_backward_workspace_size(&c.p, &c.g, &need) == ATTN_ERR_OVERFLOW && need == 0,
          "%lu bytes", (unsigned long)need);
}

/* The naive way takes neither o nor lse: one may be missing and the other NaN. */
static void check_naive_inputs(void)
{
    whole_call c = right_call(NAIVE);
    static struct outputs first;
    if (!begin_case("gradients: the naive way without o and lse"))
        return;
    CHECK(attn_backward(&c.p, &c.g, workspace, WORKSPACE) == ATTN_OK, "refused");
    first = out;
    paint_outputs();
    c.p.o.data = NULL;
    memset(in.lse, 0xff, sizeof in.lse);
    CHECK(attn_backward(&c.p, &c.g, workspace, WORKSPACE) == ATTN_OK, "refused without them");
    CHECK(memcmp(&first, &out, sizeof out) == 0, "other bits without them");
}

static void fill_inputs(void)
{
    float *x = in.q;
    const size_t count = sizeof in / sizeof *x;
    rng_seed(T.seed);
    for (size_t n = 0; n < count; n++)
        x[n] = rng_normal();
    for (size_t n = 0; n < sizeof in.lse / sizeof *in.lse; n++)
        in.lse[n] = 3.0f;
}

void backward_errors(void)
{
    fill_inputs();
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        if (begin_case("gradients: right call for %s", rows[n].field))
            check_right(&rows[n]);
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++)
        if (begin_case("gradients: %s = %lld in the call %x", rows[n].field,
                       (long long)rows[n].value, (unsigned)rows[n].without))
            check_row(&rows[n]);
    check_unsupported();
    check_null_pointers();
    check_unused_rows();
    check_origin();
    check_workspace(ALL);
    check_workspace(NAIVE);
    check_failing_loops();
    check_overflow();
    check_naive_inputs();
}
