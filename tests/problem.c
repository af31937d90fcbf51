/* problem.c - making calls, running them in guarded memory, comparing them with the oracle.
 * SPDX-License-Identifier: MIT
 */
#include "oracle.h"
#include "strides.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- running ------------------------------------------------------------------------------- */

/* The place of a tensor's last element, packed but for the distance between its rows. */
static int64_t last_element(const attn_params *p, int64_t heads, int64_t rows, int64_t dim,
                            ptrdiff_t stride_seq)
{
    const int64_t row = stride_seq != 0 ? stride_seq : dim;
    return (p->batch * heads - 1) * rows * dim + (rows - 1) * row + dim - 1;
}

int fits_memory(const attn_params *p)
{
    const int64_t hq = p->num_heads_q, hk = p->num_heads_kv, nq = p->seq_len_q, nk = p->seq_len_kv;
    const int64_t dim = p->head_dim, dim_v = p->head_dim_v;
    const int64_t last[] = {
        last_element(p, hq, nq, dim, 0),
        last_element(p, hk, nk, dim, p->k.stride_seq),
        last_element(p, hk, nk, dim_v, p->v.stride_seq),
        last_element(p, hq, nq, dim_v, 0),
    };
    const int dtype[] = { p->q.dtype, p->k.dtype, p->v.dtype, p->o.dtype };
    for (int i = 0; i < 4; i++)
        if ((last[i] + 1) * (int64_t)dtype_size(dtype[i]) >= PTRDIFF_MAX / 4)
            return 0;
    return 1;
}

const char *const rounding_sets[ROUNDING_SETS] = { "avx512_amx", "avx512_bf16", "neon_bf16" };

static const attn_kernels *rounding_set(const char *name)
{
    const attn_kernels *set = attn_kernels_find(name);
    return set != NULL && set->pack_values != NULL ? set : NULL;
}

const attn_kernels *test_rounding_set(void)
{
    const attn_kernels *set = rounding_set(T.only);
    for (int i = 0; set == NULL && i < ROUNDING_SETS; i++)
        set = rounding_set(rounding_sets[i]);
    return set;
}

attn_params test_params(const attn_params *p)
{
    attn_params q = *p;
    char text[200], why[200] = "";
    snprintf(text, sizeof text, "%s%s%s%s",
             p->kernels == NULL && T.kernels != NULL ? "kernels=" : "",
             p->kernels == NULL && T.kernels != NULL ? T.kernels : "",
             p->impl != ATTN_IMPL_DEFAULT || T.impl == ATTN_IMPL_DEFAULT ? ""
             : T.impl == ATTN_IMPL_NAIVE                                 ? " impl=naive"
                                                                         : " impl=tiled",
             T.force_redo ? " redo=1" : "");
    if (attn_params_from_string(&q, text, why, sizeof why) != ATTN_OK)
        CHECK(0, "attn_params_from_string refuses \"%s\": %s", text, why);
    if (T.fast && q.kernels != NULL && q.kernels->pack_values != NULL)
        q.fast = 1;
    if (T.table != NULL)
        q.kernels = T.table;
    if (q.backend == NULL)
        q.backend = T.backend;
    return q;
}

void test_reword(attn_params *p, attn_gradients *g)
{
    if (rng_aside(0, 3) != 0)
        strides_forget(p, g, (int)rng_aside(0, 1), p->part.rows ? p->part.row_count : p->seq_len_q,
                       p->part.keys ? p->part.key_count : p->seq_len_kv);
}

/* ---- short calls: the long way, which a text of tuning asks for, gives the same bits */

/* The elements of o in their order; their number is returned. */
static size_t elements_of(const attn_params *p, float *to)
{
    attn_problem pr;
    size_t n = 0;
    CHECK(attn_problem_of(p, &pr, NULL, 0) == ATTN_OK, "attn_problem_of failed");
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t s = 0; s < p->seq_len_q; s++)
                for (int64_t d = 0; d < pr.p.head_dim_v; d++, n++)
                    if (to != NULL)
                        to[n] = ((const float *)
                                     p->o.data)[b * pr.p.o.stride_batch + h * pr.p.o.stride_head +
                                                s * pr.p.o.stride_seq + d];
    return n;
}

int test_is_short(const attn_params *p)
{
    attn_info info;
    return attn_explain(p, &info) == ATTN_OK && strstr(info.reasons, "; short: ") != NULL;
}

/* It has a workspace of its own, as it may need more than a short call has. */
static void check_long_way(const attn_params *p)
{
    attn_params q = *p;
    size_t n, need = 0;
    float *o;
    if (p->backend != NULL || !test_is_short(p))
        return;
    n = elements_of(p, NULL);
    o = test_alloc(2 * n * sizeof *o);
    elements_of(p, o);
    q.tuning = "attn-tuning 1 end";
    CHECK(attn_workspace_size(&q, &need) == ATTN_OK && !test_is_short(&q) &&
              attn_forward(&q, test_alloc(need), need) == ATTN_OK,
          "the long way failed");
    elements_of(p, o + n);
    CHECK(memcmp(o, o + n, n * sizeof *o) == 0, "a short call has other bits than the long way");
}

/* Workspace of `need` bytes after `shift` bytes of filler, so that its address is not aligned. */
static attn_status run_in(const attn_params *p, size_t need, size_t shift)
{
    unsigned char *memory = test_alloc(need + shift);
    attn_status status;
    int filler_kept = 1;
    memset(memory, 0x5a, shift);
    status = attn_forward(p, memory + shift, need);
    if (status == ATTN_OK)
        check_long_way(p);
    for (size_t i = 0; i < shift; i++)
        filler_kept &= memory[i] == 0x5a;
    if (!filler_kept || test_margins() != 0)
        CHECK(0, "bytes beyond the ends of a buffer were written (workspace of %lu bytes)",
              (unsigned long)need);
    return status;
}

attn_status test_run(const attn_params *p)
{
    const size_t shift = test_variation() * 13u % 64;
    const int mark = test_mark();
    attn_params q = test_params(p);
    size_t need = 0;
    attn_status status;
    test_reword(&q, NULL);
    status = attn_workspace_size(&q, &need);
    if (status != ATTN_OK)
        return status;
    status = run_in(&q, need, shift);
    test_release_to(mark);
    return status;
}

/* At an address where alignment costs most, so that the size serves at any. */
size_t test_least_workspace(const attn_params *p)
{
    char text[64], place[2 * 64];
    const char *const worst = place + 64 - (uintptr_t)place % 64 + 1;
    size_t least = 0, enough = 0;
    CHECK(attn_workspace_size(p, &enough) == ATTN_OK, "attn_workspace_size failed");
    while (least < enough) {
        const size_t middle = least + (enough - least) / 2;
        if (strcmp(attn_check(p, worst, middle, text, sizeof text), "ok") == 0)
            enough = middle;
        else
            least = middle + 1;
    }
    return least;
}

attn_status test_run_small(const attn_params *p, int percent)
{
    const int mark = test_mark();
    attn_params q = test_params(p);
    size_t least, best;
    attn_status status;
    test_reword(&q, NULL);
    best = least = test_least_workspace(&q);
    status = attn_workspace_size(&q, &best);
    if (status == ATTN_OK)
        status = run_in(&q, least + (best - least) / 100 * (size_t)percent, 5);
    test_release_to(mark);
    return status;
}

attn_status test_run_least(const attn_params *p)
{
    return test_run_small(p, 0);
}

/* ---- problems ------------------------------------------------------------------------------ */

static int64_t random_length(int64_t most)
{
    static const int64_t edges[] = {
        1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128
    };
    const int64_t length = rng_chance(40) ? RNG_PICK(edges) : rng_int(1, most);
    return length < most ? length : rng_int(1, most);
}

test_shape shape_random(void)
{
    static const int64_t dims[] = { 1, 2, 3, 4, 5, 8, 16, 17, 32, 33, 40, 64, 80, 96, 128 };
    test_shape s;
    memset(&s, 0, sizeof s);
    s.batch = rng_int(1, 2);
    s.heads_kv = rng_int(1, 2);
    s.heads_q = s.heads_kv;
    s.seq_q = rng_chance(25) ? rng_int(1, 4) : random_length(70);
    s.seq_kv = random_length(150);
    s.dim = RNG_PICK(dims);
    s.dim_v = s.dim;
    if (s.dim > 40 && s.seq_q > 33)
        s.seq_q = rng_int(1, 33);
    s.factor_q = rng_chance(30) ? 4.0f : 1.0f;
    return s;
}

/* With cu_seqlens the packed order is [token, head, dim]: BSHD steps, strides not given. */
static void make_tensor(test_tensor *t, const test_shape *s, int dtype, int layout, int64_t heads,
                        int64_t seq, int64_t dim)
{
    const int packed = s->varlen && layout == LAYOUT_PACKED;
    tensor_make(t, dtype, packed ? LAYOUT_BSHD : layout, s->varlen ? 1 : s->batch, heads, seq, dim);
    if (packed)
        t->stride_batch = t->stride_head = t->stride_seq = 0;
}

static void fill_input(test_tensor *t, float factor)
{
    tensor_fill_normal(t, factor != 0 ? factor : 1.0f);
}

/* Cuts 0..total into `count` sequences at random; empty ones are welcome. */
static int32_t *random_cuts(int64_t count, int64_t total)
{
    int32_t *cuts = test_alloc((size_t)(count + 1) * sizeof *cuts);
    cuts[0] = 0;
    for (int64_t b = 0; b < count; b++) {
        const int64_t left = total - cuts[b];
        const int64_t most = 2 * left / (count - b) < left ? 2 * left / (count - b) : left;
        cuts[b + 1] = (int32_t)(b + 1 == count ? total : cuts[b] + rng_int(0, most));
    }
    return cuts;
}

/* Statistics for the rows of o, in any layout; with cu_seqlens packed as the lse is. */
static void make_stats(test_problem *t, int is_asked)
{
    const int layout = rng_aside(0, 1) ? LAYOUT_PACKED : (int)rng_aside(0, LAYOUT_NEGATIVE);
    tensor_make(&t->stats, ATTN_F32, layout, t->o.batch, t->o.heads, t->o.seq, 2);
    tensor_remember(&t->stats);
    memset(&t->p.stats, 0, sizeof t->p.stats);
    if (is_asked)
        t->p.stats = tensor_output(&t->stats);
}

void problem_new_output(test_problem *t)
{
    test_shape s;
    memset(&s, 0, sizeof s);
    s.batch = t->o.batch;
    s.varlen = t->p.cu_seqlens_q != NULL;
    make_tensor(&t->o, &s, t->o.dtype, t->p.o.stride_seq == 0 ? LAYOUT_PACKED : t->o.layout,
                t->o.heads, t->o.seq, t->o.dim);
    tensor_remember(&t->o);
    t->p.o = tensor_output(&t->o);
    make_stats(t, t->p.stats.data != NULL);
    if (t->p.lse.data == NULL)
        return;
    tensor_make(&t->lse, ATTN_F32, LAYOUT_PACKED, t->lse.batch, t->lse.heads, t->lse.seq, 1);
    tensor_remember(&t->lse);
    t->p.lse = tensor_output(&t->lse);
}

static int stored_as(int dtype)
{
    return dtype == ATTN_F32 ? T.storage : dtype;
}

void problem_make(test_problem *t, const test_shape *s)
{
    const int64_t heads_kv = s->heads_kv != 0 ? s->heads_kv : s->heads_q;
    const int64_t dim_v = s->dim_v != 0 ? s->dim_v : s->dim;
    memset(t, 0, sizeof *t);
    make_tensor(&t->q, s, stored_as(s->dtype_q), s->layout_q, s->heads_q, s->seq_q, s->dim);
    make_tensor(&t->k, s, stored_as(s->dtype_k), s->layout_k, heads_kv, s->seq_kv, s->dim);
    make_tensor(&t->v, s, stored_as(s->dtype_v), s->layout_v, heads_kv, s->seq_kv, dim_v);
    make_tensor(&t->o, s, stored_as(s->dtype_o), s->layout_o, s->heads_q, s->seq_q, dim_v);
    fill_input(&t->q, s->factor_q);
    fill_input(&t->k, s->factor_k);
    fill_input(&t->v, s->factor_v);
    t->p.batch = s->batch;
    t->p.fast = T.fast;
    t->p.num_heads_q = s->heads_q, t->p.num_heads_kv = s->heads_kv;
    t->p.seq_len_q = s->seq_q, t->p.seq_len_kv = s->seq_kv;
    t->p.head_dim = s->dim, t->p.head_dim_v = s->dim_v;
    t->p.q = tensor_input(&t->q);
    t->p.k = tensor_input(&t->k);
    t->p.v = tensor_input(&t->v);
    t->p.o = tensor_output(&t->o);
    if (!s->no_lse) {
        tensor_make(&t->lse, ATTN_F32, LAYOUT_PACKED, s->varlen ? 1 : s->batch, s->heads_q,
                    s->seq_q, 1);
        t->p.lse = tensor_output(&t->lse);
        tensor_remember(&t->lse);
    }
    tensor_remember(&t->o);
    make_stats(t, s->stats == STATS_OFTEN ? rng_aside(0, 99) < 60 : s->stats == STATS_ALWAYS);
    if (s->varlen) {
        t->p.cu_seqlens_q = random_cuts(s->batch, s->seq_q);
        t->p.cu_seqlens_kv = random_cuts(s->batch, s->seq_kv);
    }
}

/* After a run that ended with this status. */
static int check_after(const test_problem *t, attn_status status)
{
    char text[300];
    const int inputs =
        tensor_unchanged(&t->q) && tensor_unchanged(&t->k) && tensor_unchanged(&t->v);
    const int gaps =
        tensor_gaps_unchanged(&t->o) && (t->p.lse.data == NULL || tensor_gaps_unchanged(&t->lse)) &&
        (t->p.stats.data == NULL ||
         (t->p.partial ? tensor_unchanged(&t->stats) : tensor_gaps_unchanged(&t->stats)));
    if (status != ATTN_OK)
        return CHECK(0, "%s: %s", attn_status_string(status),
                     attn_check(&t->p, text, 0, text, sizeof text));
    if (!inputs)
        return CHECK(inputs, "an input tensor was changed");
    return CHECK(gaps, "an output was written outside its elements");
}

int problem_run(test_problem *t)
{
    return check_after(t, test_run(&t->p));
}

int problem_run_small(test_problem *t, int percent)
{
    return check_after(t, test_run_small(&t->p, percent));
}

static int tensor_bits_equal(const test_tensor *a, const test_tensor *b)
{
    for (int64_t n = 0; n < a->batch; n++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t s = 0; s < a->seq; s++)
                for (int64_t d = 0; d < a->dim; d++)
                    if (float_bits(tensor_get(a, n, h, s, d)) !=
                        float_bits(tensor_get(b, n, h, s, d)))
                        return 0;
    return 1;
}

int problem_same_bits(const test_problem *a, const test_problem *b)
{
    return tensor_bits_equal(&a->o, &b->o) &&
           (a->p.lse.data == NULL || b->p.lse.data == NULL ||
            tensor_bits_equal(&a->lse, &b->lse)) &&
           (a->p.stats.data == NULL || b->p.stats.data == NULL ||
            tensor_bits_equal(&a->stats, &b->stats));
}

/* ---- comparing ----------------------------------------------------------------------------- */

typedef struct finding {
    double units, value, expected;
    int64_t b, h, i, d; /* d = -1: the lse; -2, -3: m and l of the statistics */
} finding;

typedef struct comparison {
    const attn_params *p;
    oracle_result expected;
    finding worst;
    int64_t b, h, i, dim_v;
    double lag; /* of m behind the largest logit, base 2 */
} comparison;

static void find(comparison *c, int64_t d, double units, double value, double expected)
{
    if (units <= c->worst.units)
        return;
    c->worst.units = units;
    c->worst.value = value, c->worst.expected = expected;
    c->worst.b = c->b, c->worst.h = c->h, c->worst.i = c->i, c->worst.d = d;
}

double tolerance_units(double value, double expected, double tolerance)
{
    if (expected != expected)
        return value != value ? 0 : HUGE_VAL;
    if (value == expected)
        return 0;
    if (!(fabs(value) < HUGE_VAL) || !(tolerance > 0) || !(fabs(expected) < HUGE_VAL))
        return HUGE_VAL;
    return fabs(value - expected) / tolerance;
}

int is_stored_form(int dtype, const void *data, ptrdiff_t index)
{
    static const uint32_t nans[] = { 0x7fc00000u, 0x7e00u, 0x7fc0u };
    const double value = oracle_load(dtype, data, index);
    uint32_t bits = 0;
    uint16_t half;
    if (dtype == ATTN_F32) {
        memcpy(&bits, (const char *)data + index * 4, sizeof bits);
    } else {
        memcpy(&half, (const char *)data + index * 2, sizeof half);
        bits = half;
    }
    return value != value ? bits == nans[dtype] : value != 0 || bits == 0;
}

static void compare_o(comparison *c)
{
    const attn_params *p = c->p;
    attn_tensor o;
    ptrdiff_t at;
    if (p->o.data == NULL)
        return;
    memset(&o, 0, sizeof o);
    o.stride_batch = p->o.stride_batch;
    o.stride_head = p->o.stride_head;
    o.stride_seq = p->o.stride_seq;
    at = oracle_row_offset(p, &o, c->dim_v, c->b, c->h, c->i);
    for (int64_t d = 0; d < c->dim_v; d++) {
        const double value = oracle_load(p->o.dtype, p->o.data, at + (ptrdiff_t)d);
        const double expected = c->expected.o[d], tolerance = c->expected.o_tolerance[d];
        const double storage = oracle_storage_error(p->o.dtype, fabs(expected) + tolerance);
        double units = tolerance_units(value, expected, tolerance);
        if (tolerance > 0 && units < HUGE_VAL && p->o.dtype != ATTN_F32)
            units = fmax(0, units - storage / tolerance); /* what the storage type may add */
        if (!is_stored_form(p->o.dtype, p->o.data, at + (ptrdiff_t)d))
            units = HUGE_VAL;
        find(c, d, units, value, expected);
    }
}

/* The number of a row in packed sums. */
static int64_t row_number(const comparison *c)
{
    const attn_params *p = c->p;
    if (p->cu_seqlens_q != NULL)
        return c->h * p->seq_len_q + p->cu_seqlens_q[c->b] + c->i;
    return (c->b * p->num_heads_q + c->h) * p->seq_len_q + c->i;
}

/* Where the row begins in the lse, 1 float each, or the statistics, 2. */
static ptrdiff_t place_in(const comparison *c, const attn_output *sums, int floats)
{
    const attn_params *p = c->p;
    const int varlen = p->cu_seqlens_q != NULL;
    if (sums->stride_seq == 0 && sums->stride_head == 0 && sums->stride_batch == 0)
        return (ptrdiff_t)row_number(c) * floats;
    return (ptrdiff_t)(varlen ? c->i + p->cu_seqlens_q[c->b] : c->i) * sums->stride_seq +
           (ptrdiff_t)c->h * sums->stride_head +
           (varlen ? 0 : (ptrdiff_t)c->b * sums->stride_batch);
}

static void compare_lse(comparison *c)
{
    const attn_output *lse = &c->p->lse;
    const ptrdiff_t at = place_in(c, lse, 1);
    double value;
    if (lse->data == NULL)
        return;
    value = oracle_load(ATTN_F32, lse->data, at);
    find(c, -1,
         is_stored_form(ATTN_F32, lse->data, at)
             ? tolerance_units(value, c->expected.lse, c->expected.lse_tolerance)
             : HUGE_VAL,
         value, c->expected.lse);
}

/* The LSE that the library makes of these sums. */
static float lse_of(float m, float l)
{
    float o = 0, lse = NAN;
    const attn_state state = { .num_rows = 1, .head_dim_v = 1, .m = &m, .l = &l, .o = &o };
    attn_params p;
    memset(&p, 0, sizeof p);
    p.batch = p.num_heads_q = p.num_heads_kv = p.seq_len_q = p.head_dim = 1;
    p.lse.data = &lse;
    CHECK(attn_state_finish(&p, &state) == ATTN_OK, "attn_state_finish of one row");
    return lse;
}

/* Without an alive key: nothing, or the sink alone. */
static void compare_empty_stats(comparison *c, float m, float l)
{
    const float sink = (float)oracle_sink(c->p, c->h), sink2 = sink * 0x1.715476p+0f;
    const float expected = sink != sink ? float_from_bits(0x7fc00000u) : sink2 == 0 ? 0 : sink2;
    find(c, -2, float_bits(m) == float_bits(expected) ? 0 : HUGE_VAL, (double)m, (double)expected);
    find(c, -3, l == (sink == -HUGE_VALF ? 0.0f : 1.0f) ? 0 : HUGE_VAL, (double)l, 1);
}

/* How far m may be from what its logit says: more where that is of rounded numbers. */
static double slack_of(const comparison *c, double maximum)
{
    return 1e-4 * (fabs(maximum) + 1) + (c->p->fast ? 4 * c->expected.lse_tolerance : 0);
}

/* m + log2(l) is the LSE; m may lie up to c->lag below the largest logit, and at the sink where that
 * is more. The lse of the call is made of them. */
static void compare_stats(comparison *c)
{
    const attn_params *p = c->p;
    const attn_output *stats = &p->stats, *lse = &p->lse;
    const ptrdiff_t at = place_in(c, stats, 2);
    const double ln2 = log(2.0), sink = oracle_sink(p, c->h) / ln2;
    const double most = c->expected.maximum / ln2, slack = slack_of(c, fmax(most, sink));
    float m, l;
    double value;
    if (stats->data == NULL)
        return;
    m = ((const float *)stats->data)[at];
    l = ((const float *)stats->data)[at + 1];
    for (int n = 0; n < 2; n++)
        if (!is_stored_form(ATTN_F32, stats->data, at + n))
            find(c, -2 - n, HUGE_VAL, (double)m, (double)l);
    if (c->expected.alive == 0) {
        compare_empty_stats(c, m, l);
        return;
    }
    value = ((double)m + log((double)l) / ln2) * ln2;
    find(c, -3, tolerance_units(value, c->expected.lse, c->expected.lse_tolerance), value,
         c->expected.lse);
    if (c->expected.lse == c->expected.lse &&
        !((double)m >= fmax(most - c->lag, sink) - slack && (double)m <= fmax(most, sink) + slack))
        find(c, -2, HUGE_VAL, (double)m, fmax(most, sink));
    if (T.exact && lse->data != NULL) {
        const float stored = ((const float *)lse->data)[place_in(c, lse, 1)];
        if (float_bits(lse_of(m, l)) != float_bits(stored))
            find(c, -1, HUGE_VAL, (double)stored, (double)lse_of(m, l));
    }
}

/* A raw state: m may lie up to 16 below the maximum (base 2), o / l and m + log2 l are the row. */
static void compare_state(comparison *c)
{
    const attn_params *p = c->p;
    const int64_t row = row_number(c);
    const double m = (double)p->state.m[row], l = (double)p->state.l[row];
    const double maximum = c->expected.maximum / log(2.0);
    const double factor = p->dropout_p != 0 ? 1 / (1 - (double)p->dropout_p) : 1;
    const float *o = p->state.o + row * c->dim_v;
    if (c->expected.alive == 0) {
        int empty = m == -HUGE_VAL && l == 0;
        for (int64_t d = 0; d < c->dim_v; d++)
            empty &= float_bits(o[d]) == 0;
        find(c, -1, empty ? 0 : HUGE_VAL, m, -HUGE_VAL);
        return;
    }
    if (!(m >= maximum - 16 - slack_of(c, maximum) && m <= maximum + slack_of(c, maximum)))
        find(c, -1, HUGE_VAL, m, maximum);
    find(c, -1,
         tolerance_units((m + log(l) / log(2.0)) * log(2.0), c->expected.lse,
                         c->expected.lse_tolerance),
         (m + log(l) / log(2.0)) * log(2.0), c->expected.lse);
    for (int64_t d = 0; d < c->dim_v; d++)
        find(c, d,
             tolerance_units((double)o[d] / l * factor, c->expected.o[d],
                             c->expected.o_tolerance[d]),
             (double)o[d] / l * factor, c->expected.o[d]);
}

static void compare_row(comparison *c)
{
    if (oracle_row_full(c->p, c->b, c->h, c->i, &c->expected) != 0) {
        find(c, -1, HUGE_VAL, 0, 0);
        return;
    }
    if (c->p->partial) {
        compare_state(c);
    } else {
        compare_o(c);
        compare_lse(c);
        compare_stats(c);
    }
}

double compare_with_oracle(const attn_params *p)
{
    return compare_copies_with_oracle(p, 1);
}

double compare_copies_with_oracle(const attn_params *p, int copies)
{
    comparison c;
    const int mark = test_mark();
    memset(&c, 0, sizeof c);
    c.p = p;
    c.lag = 16 + log((double)copies) / log(2.0);
    c.dim_v = p->head_dim_v != 0 ? p->head_dim_v : p->head_dim;
    c.expected.o = test_alloc_at((size_t)c.dim_v * sizeof(double), PLACE_HEAP);
    c.expected.o_abs = NULL;
    c.expected.o_tolerance = test_alloc_at((size_t)c.dim_v * sizeof(double), PLACE_HEAP);
    for (c.b = 0; c.b < p->batch; c.b++)
        for (c.h = 0; c.h < p->num_heads_q; c.h++)
            for (c.i = 0; c.i < oracle_rows(p, c.b); c.i++)
                compare_row(&c);
    test_release_to(mark);
    worst_note(c.worst.units);
    CHECK(c.worst.units <= 1,
          "%.3g times the tolerance at b=%lld h=%lld i=%lld d=%lld: %.9g, expected %.9g",
          c.worst.units, (long long)c.worst.b, (long long)c.worst.h, (long long)c.worst.i,
          (long long)c.worst.d, c.worst.value, c.worst.expected);
    return c.worst.units;
}

/* The logits of one row at the stage asked for: column by column, -inf or +0 where nothing is. */
static void compare_logits_row(comparison *c, const float *row)
{
    const attn_params *p = c->p;
    const int stage = p->logits.stage;
    const int64_t begin = p->kv_begin != NULL ? p->kv_begin[c->b] : 0;
    const int is_softmax = stage == ATTN_LOGITS_SOFTMAX;
    for (int64_t column = 0; column < p->seq_len_kv; column++) {
        const int64_t j = column - begin;
        double expected = -HUGE_VAL, error = 0, units;
        if (j >= 0 && j < oracle_keys(p, c->b))
            expected =
                oracle_logit(p, c->b, c->h, c->i, j, is_softmax ? ATTN_LOGITS_BIAS : stage, &error);
        error *= ORACLE_LOGIT_FACTOR / 16777216.0;
        if (is_softmax) {
            expected = expected > -HUGE_VAL ? exp(expected - c->expected.lse) : 0;
            error = expected * (error + c->expected.lse_tolerance + 1e-6) + 1e-37;
        }
        units = tolerance_units((double)row[column], expected, error);
        if (is_softmax && float_bits(row[column]) == 0x80000000u)
            units = HUGE_VAL;
        find(c, column, units, (double)row[column], expected);
    }
}

double compare_logits(const attn_params *p)
{
    const attn_logits *l = &p->logits;
    const int64_t rows = l->rows != NULL || l->num_rows != 0 ? l->num_rows : p->seq_len_q;
    comparison c;
    memset(&c, 0, sizeof c);
    c.p = p;
    for (c.b = 0; c.b < p->batch; c.b++)
        for (c.h = 0; c.h < p->num_heads_q; c.h++)
            for (int64_t r = 0; r < rows; r++) {
                c.i = l->rows != NULL ? l->rows[r] : r;
                if (oracle_row_full(p, c.b, c.h, c.i, &c.expected) != 0)
                    continue;
                compare_logits_row(&c, l->data + ((c.b * p->num_heads_q + c.h) * rows + r) *
                                                     p->seq_len_kv);
            }
    worst_note(c.worst.units);
    CHECK(c.worst.units <= 1,
          "logits, stage %d: %.3g times the tolerance at b=%lld h=%lld i=%lld column %lld: %.9g, "
          "expected %.9g",
          l->stage, c.worst.units, (long long)c.worst.b, (long long)c.worst.h, (long long)c.worst.i,
          (long long)c.worst.d, c.worst.value, c.worst.expected);
    return c.worst.units;
}

/* Rows that no sequence uses keep the 0xff bytes they were made with. */
static int is_row_untouched(const test_tensor *t, int64_t b, int64_t h, int64_t s)
{
    for (int64_t d = 0; d < t->dim; d++)
        if (float_bits(tensor_get(t, b, h, s, d)) != (t->dtype == ATTN_BF16  ? 0xffff0000u
                                                      : t->dtype == ATTN_F16 ? 0xffffe000u
                                                                             : 0xffffffffu))
            return 0;
    return 1;
}

static int is_state_untouched(const attn_params *p, int64_t b, int64_t h, int64_t s)
{
    const int64_t row = (b * p->num_heads_q + h) * p->seq_len_q + s;
    const int64_t dim_v = p->head_dim_v != 0 ? p->head_dim_v : p->head_dim;
    return float_bits(p->state.m[row]) == 0xffffffffu &&
           float_bits(p->state.l[row]) == 0xffffffffu &&
           float_bits(p->state.o[row * dim_v]) == 0xffffffffu &&
           float_bits(p->state.o[row * dim_v + dim_v - 1]) == 0xffffffffu;
}

int problem_padding_untouched(const test_problem *t)
{
    const attn_params *p = &t->p;
    const int varlen = p->cu_seqlens_q != NULL;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t end = varlen ? p->cu_seqlens_q[b + 1] : p->seq_len_q;
        int64_t s = (varlen ? p->cu_seqlens_q[b] : 0) + oracle_rows(p, b);
        for (; s < end; s++)
            for (int64_t h = 0; h < p->num_heads_q; h++)
                if (!is_row_untouched(&t->o, varlen ? 0 : b, h, s) ||
                    (p->lse.data != NULL && !is_row_untouched(&t->lse, varlen ? 0 : b, h, s)) ||
                    (p->stats.data != NULL && !is_row_untouched(&t->stats, varlen ? 0 : b, h, s)) ||
                    (p->partial && !is_state_untouched(p, varlen ? 0 : b, h, s)))
                    return 0;
    }
    return 1;
}

double problem_check(test_problem *t)
{
    if (!problem_run(t))
        return HUGE_VAL;
    if (!problem_padding_untouched(t))
        CHECK(0, "a row beyond q_len was written");
    if (t->p.logits.data != NULL) {
        const double units = compare_logits(&t->p);
        const double others = compare_with_oracle(&t->p);
        return units > others ? units : others;
    }
    return compare_with_oracle(&t->p);
}
