/* backward_poison.c - gradients: NaN and Inf show in what they belong to, and nowhere else.
 * SPDX-License-Identifier: MIT
 *
 * Each case runs twice, clean and with poison, the forward call included. A row is touched when an
 * input of it, or of a key that is alive for it, carries poison: K, V of a key that dropout keeps,
 * the bias of the pair, q, dout, dlse. Then its dq may change, and dk and dv of the keys that are
 * alive for it, and the sums that it enters; every other element must have the bits of the clean
 * run. Where a touched row meets a NaN, its dq and the dk of its keys must be NaN, but for keys
 * that an Inf in K may have given a logit of -Inf.
 */
#include "backward.h"
#include "features.h"
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const float poisons[] = { NAN, HUGE_VALF, -HUGE_VALF };

/* How an element may differ from the clean run; more than one: the largest. */
enum { SAME, ANY, IS_NAN };
/* Of a pair. */
enum { ALIVE = 1, KEPT = 2 };

typedef struct expectation {
    gradients_case clean, dirty;
    uint8_t *pairs; /* [batch, heads, seq_q, seq_kv], by i and j */
    oracle_gradient size[ORACLE_GRADIENTS];
    uint8_t *change[ORACLE_GRADIENTS]; /* by element */
    int touched;                       /* rows */
} expectation;

static int64_t index_of(const oracle_gradient *of, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return ((a * of->size[1] + b) * of->size[2] + c) * of->size[3] + d;
}

static uint8_t *pair_at(const expectation *e, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_params *p = &e->clean.t.p;
    return e->pairs + ((b * p->num_heads_q + h) * p->seq_len_q + i) * p->seq_len_kv + j;
}

/* Calls function for every row in use. */
static void for_rows(expectation *e,
                     void (*function)(expectation *e, int64_t b, int64_t h, int64_t i))
{
    const attn_params *p = &e->clean.t.p;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < oracle_rows(p, b); i++)
                function(e, b, h, i);
}

static void find_alive(expectation *e, int64_t b, int64_t h, int64_t i)
{
    const attn_params *p = &e->clean.t.p;
    for (int64_t j = 0; j < oracle_keys(p, b); j++) {
        const int alive = oracle_visible(p, b, h, i, j) &&
                          oracle_logit(p, b, h, i, j, ATTN_LOGITS_BIAS, NULL) > -HUGE_VAL;
        const int kept = p->dropout_p == 0 || oracle_kept(p, b, h, i, j);
        *pair_at(e, b, h, i, j) = (uint8_t)(alive ? ALIVE + (kept ? KEPT : 0) : 0);
    }
}

/* ---- what poison touches --------------------------------------------------------------------- */

static int poison_in(int dtype, const void *data, ptrdiff_t at, int64_t count)
{
    int worst = SAME;
    for (int64_t d = 0; d < count; d++) {
        const double x = oracle_load(dtype, data, at + (ptrdiff_t)d);
        const int change = x != x ? IS_NAN : fabs(x) == HUGE_VAL ? ANY : SAME;
        worst = change > worst ? change : worst;
    }
    return worst;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

static float bias_at(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t column = j + (p->kv_begin != NULL ? p->kv_begin[b] : 0);
    return (float)oracle_load(p->bias.dtype, p->bias.data, oracle_bias_index(p, b, h, i, column));
}

/* The poison of one alive pair: of its key and its bias. */
static int pair_poison(const expectation *e, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_params *p = &e->dirty.t.p;
    const int64_t kv_head = h / (p->num_heads_q / e->clean.t.k.heads), dim_v = e->clean.t.v.dim;
    int worst = poison_in(p->k.dtype, p->k.data,
                          oracle_key_offset(p, &p->k, p->head_dim, b, kv_head, j), p->head_dim);
    if (*pair_at(e, b, h, i, j) & KEPT)
        worst = larger(worst, poison_in(p->v.dtype, p->v.data,
                                        oracle_key_offset(p, &p->v, dim_v, b, kv_head, j), dim_v));
    if (p->bias.data != NULL) {
        const float bias = bias_at(p, b, h, i, j);
        worst = larger(worst, bias != bias ? IS_NAN : fabsf(bias) == HUGE_VALF ? ANY : SAME);
    }
    return worst;
}

static int row_poison(const expectation *e, int64_t b, int64_t h, int64_t i)
{
    const attn_params *p = &e->dirty.t.p;
    const attn_tensor *dout = &e->dirty.g.dout;
    const int64_t dim_v = e->clean.t.v.dim, row = i + (p->cu_seqlens_q ? p->cu_seqlens_q[b] : 0);
    int worst = poison_in(p->q.dtype, p->q.data, oracle_row_offset(p, &p->q, p->head_dim, b, h, i),
                          p->head_dim);
    worst = larger(worst, poison_in(dout->dtype, dout->data,
                                    oracle_row_offset(p, dout, dim_v, b, h, i), dim_v));
    if (e->dirty.g.dlse.data != NULL) {
        const float dlse = tensor_get(&e->dirty.dlse, p->cu_seqlens_q ? 0 : b, h, row, 0);
        worst = larger(worst, dlse != dlse ? IS_NAN : fabsf(dlse) == HUGE_VALF ? ANY : SAME);
    }
    return worst;
}

static void mark(expectation *e, int which, int64_t first, int64_t count, int change)
{
    uint8_t *to = e->change[which];
    for (int64_t n = first; to != NULL && n < first + count; n++)
        to[n] = (uint8_t)larger(to[n], change);
}

/* Element (b, h, i, j) of a sum, whose summed axes have one element. */
static int64_t summed_index(const oracle_gradient *of, int64_t b, int64_t h, int64_t i, int64_t j)
{
    return index_of(of, of->size[0] > 1 ? b : 0, of->size[1] > 1 ? h : 0, of->size[2] > 1 ? i : 0,
                    of->size[3] > 1 ? j : 0);
}

static void mark_pair(expectation *e, int64_t b, int64_t h, int64_t i, int64_t j, int change)
{
    const attn_params *p = &e->clean.t.p;
    const int64_t kv_head = h / (p->num_heads_q / e->clean.t.k.heads);
    const int64_t column = j + (p->kv_begin != NULL ? p->kv_begin[b] : 0);
    const oracle_gradient *size = e->size;
    mark(e, ORACLE_DK, index_of(&size[ORACLE_DK], b, kv_head, j, 0), p->head_dim, change);
    if (*pair_at(e, b, h, i, j) & KEPT)
        mark(e, ORACLE_DV, index_of(&size[ORACLE_DV], b, kv_head, j, 0), e->clean.t.v.dim, ANY);
    mark(e, ORACLE_DBIAS, summed_index(&size[ORACLE_DBIAS], b, h, i, column), 1, change);
    mark(e, ORACLE_DSLOPES, summed_index(&size[ORACLE_DSLOPES], b, h, 0, 0), 1, change);
}

static void expect_row(expectation *e, int64_t b, int64_t h, int64_t i)
{
    const attn_params *p = &e->clean.t.p;
    int change = row_poison(e, b, h, i), keys = SAME, alive = 0;
    for (int64_t j = 0; j < oracle_keys(p, b); j++)
        if (*pair_at(e, b, h, i, j) & ALIVE) {
            keys = larger(keys, pair_poison(e, b, h, i, j));
            alive |= *pair_at(e, b, h, i, j);
        }
    if (change == IS_NAN && !(alive & KEPT))
        change = ANY; /* dout meets no V, and the naive way does not look at O */
    change = larger(change, keys);
    if (change == SAME)
        return;
    e->touched++;
    mark(e, ORACLE_DSINKS, h, 1, ANY);
    if (!alive)
        return; /* dq of an empty row is +0, and it enters nothing but the sink's sum */
    mark(e, ORACLE_DQ, index_of(&e->size[ORACLE_DQ], b, h, i, 0), p->head_dim, change);
    for (int64_t j = 0; j < oracle_keys(p, b); j++)
        if (*pair_at(e, b, h, i, j) & ALIVE)
            mark_pair(e, b, h, i, j,
                      pair_poison(e, b, h, i, j) == ANY && change == IS_NAN ? ANY : change);
}

/* ---- both runs ------------------------------------------------------------------------------- */

typedef struct looking {
    const expectation *e;
    int which;
    int64_t index, wrong;
    char first[200];
} looking;

static void look(void *user, const int64_t at[4])
{
    looking *l = user;
    const int change = l->e->change[l->which][l->index++];
    float clean, dirty;
    int held;
    if (!gradients_get(&l->e->clean, l->which, at, &clean) ||
        !gradients_get(&l->e->dirty, l->which, at, &dirty))
        return;
    held = change == SAME  ? float_bits(clean) == float_bits(dirty)
           : change == ANY ? 1
                           : float_bits(dirty) == 0x7fc00000u; /* in all types, read as f32 */
    if (!held && l->wrong++ == 0)
        snprintf(l->first, sizeof l->first,
                 "%s[%lld, %lld, %lld, %lld]: clean %g, with poison %g%s",
                 oracle_gradient_name(l->which), (long long)at[0], (long long)at[1],
                 (long long)at[2], (long long)at[3], (double)clean, (double)dirty,
                 change == IS_NAN ? ", must be NaN" : "");
}

static void compare_runs(expectation *e)
{
    for (int which = 0; which < ORACLE_GRADIENTS; which++) {
        looking l = { e, which, 0, 0, "" };
        if (e->change[which] == NULL)
            continue;
        gradients_each(&e->size[which], look, &l);
        CHECK(l.wrong == 0, "%lld elements are wrong, first %s", (long long)l.wrong, l.first);
    }
}

static void make_expectation(expectation *e, const char *first)
{
    static const char *const banned[] = { "long", NULL };
    int list[4];
    const attn_params *p = &e->clean.t.p;
    size_t bytes;
    memset(e, 0, sizeof *e);
    list[0] = feature_find(first);
    gradients_make(&e->clean, gradients_shape(1), list, gradients_add(list, 1, 3, banned));
    random_way(&e->clean);
    gradients_forward(&e->clean);
    bytes = (size_t)(p->batch * p->num_heads_q * p->seq_len_q * p->seq_len_kv);
    e->pairs = test_alloc(bytes);
    memset(e->pairs, 0, bytes);
    oracle_gradient_sizes(p, e->size);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        const int64_t *size = e->size[n].size;
        bytes = (size_t)(size[0] * size[1] * size[2] * size[3]);
        e->change[n] = bytes > 0 ? test_alloc(bytes) : NULL;
        if (bytes > 0)
            memset(e->change[n], SAME, bytes);
    }
    for_rows(e, find_alive);
    gradients_twin(&e->clean, &e->dirty);
    gradients_own_inputs(&e->dirty);
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Nonzero: no row sees the key that lies there, whatever batch entry or head calls it its own. */
static int is_dead_everywhere(const expectation *e, const test_tensor *t, const attn_tensor *a,
                              int64_t b0, int64_t head, int64_t s)
{
    const attn_params *p = &e->dirty.t.p;
    const ptrdiff_t here =
        (ptrdiff_t)b0 * t->step_batch + (ptrdiff_t)head * t->step_head + (ptrdiff_t)s * t->step_seq;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t j = 0; j < oracle_keys(p, b); j++) {
                if (oracle_key_offset(p, a, t->dim, b, h / (p->num_heads_q / t->heads), j) != here)
                    continue;
                for (int64_t i = 0; i < oracle_rows(p, b); i++)
                    if (*pair_at(e, b, h, i, j) & ALIVE)
                        return 0;
            }
    return 1;
}

static void poison_dead(const expectation *e, test_tensor *t, const attn_tensor *a)
{
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t s = 0; s < t->seq; s++)
                for (int64_t d = 0; d < t->dim && is_dead_everywhere(e, t, a, b, h, s); d++)
                    tensor_set(t, b, h, s, d, poisons[rng_int(0, 2)]);
}

static void dead_keys(expectation *e)
{
    poison_dead(e, &e->dirty.t.k, &e->dirty.t.p.k);
    poison_dead(e, &e->dirty.t.v, &e->dirty.t.p.v);
}

/* One element of a few rows: NaN, or one of `kinds`. */
static void poison_some(test_tensor *t, int kinds)
{
    const int64_t rows = t->batch * t->heads * t->seq;
    for (int64_t n = rng_int(1, 1 + rows / 40); n > 0; n--)
        tensor_set(t, rng_int(0, t->batch - 1), rng_int(0, t->heads - 1), rng_int(0, t->seq - 1),
                   rng_int(0, t->dim - 1), poisons[rng_int(0, kinds - 1)]);
}

static void some_k(expectation *e)
{
    poison_some(&e->dirty.t.k, 3);
}

static void some_v(expectation *e)
{
    poison_some(&e->dirty.t.v, 3);
}

static void some_q(expectation *e)
{
    poison_some(&e->dirty.t.q, 3);
}

static void some_dout(expectation *e)
{
    poison_some(&e->dirty.dout, 3);
}

static void some_dlse(expectation *e)
{
    if (e->dirty.g.dlse.data != NULL)
        poison_some(&e->dirty.dlse, 3);
}

/* A bias of its own for each pair, 0 but for poison: where it is not alive; with `live`, here and
 * there where it is. The clean run has none. */
static void poison_bias(expectation *e, int live)
{
    attn_params *p = &e->dirty.t.p;
    const int64_t count = p->batch * p->num_heads_q * p->seq_len_q * p->seq_len_kv;
    float *bias = test_alloc((size_t)count * sizeof *bias);
    if (p->bias.data != NULL || p->score != NULL) /* there a dead key may be the callback's */
        return;
    p->bias.data = bias;
    p->bias.stride_kv = 1;
    p->bias.stride_q = (ptrdiff_t)p->seq_len_kv;
    p->bias.stride_head = (ptrdiff_t)(p->seq_len_kv * p->seq_len_q);
    p->bias.stride_batch = (ptrdiff_t)(p->seq_len_kv * p->seq_len_q * p->num_heads_q);
    for (int64_t n = 0; n < count; n++)
        bias[n] = poisons[rng_int(0, 2)];
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < oracle_rows(p, b); i++)
                for (int64_t j = 0; j < oracle_keys(p, b); j++)
                    if (*pair_at(e, b, h, i, j) & ALIVE)
                        bias[((b * p->num_heads_q + h) * p->seq_len_q + i) * p->seq_len_kv + j +
                             (p->kv_begin != NULL ? p->kv_begin[b] : 0)] =
                            live && rng_chance(1) ? poisons[rng_int(0, 1)] : 0.0f;
}

static void hidden_bias(expectation *e)
{
    poison_bias(e, 0);
}

static void some_bias(expectation *e)
{
    poison_bias(e, 1);
}

static const struct {
    const char *name;
    void (*place)(expectation *e);
    int touches; /* nonzero: rows must be touched now and then, else never */
} places[] = {
    { "K and V of keys that no row sees", dead_keys, 0 },
    { "K of some keys", some_k, 1 },
    { "V of some keys", some_v, 1 },
    { "q of some rows", some_q, 1 },
    { "dout of some rows", some_dout, 1 },
    { "dlse of some rows", some_dlse, 1 },
    { "bias of hidden pairs", hidden_bias, 0 },
    { "bias of some pairs", some_bias, 1 },
};
enum { PLACES = sizeof places / sizeof *places };

static const char *const maskers[] = {
    "causal",   "causal_top", "causal_off", "prefix", "window",   "chunked", "segments",
    "tree",     "bool",       "bits",       "bitmap", "csr",      "mask_fn", "mask_tile",
    "bias_f32", "score_fn",   "q_len",      "kv_len", "kv_begin", "varlen",  "dropout",
    "softcap",  "sinks",      "alibi",      "gqa",    "mixed",
};
enum { MASKERS = sizeof maskers / sizeof *maskers };

static int touched_by[PLACES];

static void run_place(int place, const char *masker, int impl)
{
    expectation e;
    make_expectation(&e, masker);
    e.clean.t.p.impl = e.dirty.t.p.impl = impl;
    places[place].place(&e);
    gradients_remember(&e.dirty);
    for_rows(&e, expect_row);
    touched_by[place] += e.touched;
    CHECK(places[place].touches || e.touched == 0, "%d rows are touched", e.touched);
    if (gradients_run(&e.clean) && gradients_forward(&e.dirty) && gradients_run(&e.dirty))
        compare_runs(&e);
}

/* A sink of -inf is none: whatever its rows carry, its gradient is +0. */
static void check_no_sink(int impl)
{
    static const float q[] = { 1, 2 }, dout[] = { HUGE_VALF, 3 };
    const float sinks[] = { -HUGE_VALF, 0 };
    float o[2], lse[2], dsinks[2] = { NAN, NAN };
    attn_params p = {
        .batch = 1, .num_heads_q = 2, .seq_len_q = 1, .seq_len_kv = 1, .head_dim = 1
    };
    attn_gradients g = { .dout.data = dout, .dsinks = dsinks };
    size_t need = 0;
    p.impl = impl;
    p.q.data = p.k.data = p.v.data = q;
    p.o.data = o;
    p.lse.data = lse;
    p.sinks = sinks;
    CHECK(test_run(&p) == ATTN_OK, "attn_forward failed");
    CHECK(attn_backward_workspace_size(&p, &g, &need) == ATTN_OK &&
              attn_backward(&p, &g, test_alloc(need), need) == ATTN_OK,
          "attn_backward failed");
    CHECK(float_bits(dsinks[0]) == 0, "%g of the sink that is none", (double)dsinks[0]);
    CHECK(dsinks[1] < 0, "%g of the other", (double)dsinks[1]);
}

void backward_poison(void)
{
    memset(touched_by, 0, sizeof touched_by);
    for (int m = 0; m < MASKERS; m++)
        for (int n = 0; n < PLACES * 2; n++) {
            if (!T.best && T.only_case < 0 && (n + m) % 8 != 0)
                pass_over_case();
            else if (begin_case("%s: %s%s", maskers[m], places[n / 2].name, n % 2 ? ", naive" : ""))
                run_place(n / 2, maskers[m], n % 2 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED);
        }
    if (begin_case("no sink"))
        check_no_sink(ATTN_IMPL_TILED);
    if (begin_case("no sink, naive"))
        check_no_sink(ATTN_IMPL_NAIVE);
    for (int n = 0; n < PLACES && all_cases_run(); n++)
        CHECK(touched_by[n] > 0 || !places[n].touches, "%s: no row was touched", places[n].name);
}
