/* outputs.c - every kind of output and where none is written.
 * SPDX-License-Identifier: MIT
 */
#include "features.h"
#include "laws.h"
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- which outputs are asked for changes none of them --------------------------------------- */

static void check_alone(int round)
{
    static const char *const banned[] = { "partial", "logits", NULL };
    test_problem both, alone;
    make_background(&both, NULL, 1, banned);
    both.p.impl = round % 2 == 0 ? ATTN_IMPL_DEFAULT : ATTN_IMPL_NAIVE;
    twin(&both, &alone);
    both.p.stats = tensor_output(&both.stats);
    if (round / 2 % 2 == 0)
        memset(&alone.p.lse, 0, sizeof alone.p.lse);
    if (round / 2 % 3 != 0)
        memset(&alone.p.o, 0, sizeof alone.p.o);
    if (alone.p.o.data == NULL && alone.p.lse.data == NULL)
        alone.p.stats = tensor_output(&alone.stats);
    if (!problem_run(&both) || !run_part(&alone.p, "some outputs alone"))
        return;
    if (alone.p.o.data == NULL)
        alone.o = both.o;
    CHECK(problem_same_bits(&both, &alone), "o, lse and stats alone and together");
}

/* ---- logits --------------------------------------------------------------------------------- */

static void check_stage(int round)
{
    static const int32_t some[] = { 0, 3, 3, 1 };
    test_problem t;
    test_shape s = shape_random();
    int64_t rows;
    s.seq_q = rng_int(4, 40);
    s.heads_q = s.heads_kv * rng_int(1, 3);
    problem_make(&t, &s);
    t.p.impl = round % 2 == 0 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE;
    t.p.logits.stage = round / 2 % 4;
    t.p.causal = 1;
    t.p.softcap = rng_chance(50) ? 2.0f : 0.0f;
    t.p.softmax1 = rng_chance(30);
    t.p.logits.num_rows = round % 3 == 0 ? 0 : round % 3 == 1 ? 2 : 4;
    t.p.logits.rows = round % 3 == 2 ? some : NULL;
    rows = t.p.logits.num_rows != 0 ? t.p.logits.num_rows : s.seq_q;
    t.p.logits.data = test_alloc((size_t)(s.batch * s.heads_q * rows * s.seq_kv) * sizeof(float));
    if (round % 5 == 0) { /* nothing else asked for */
        memset(&t.p.o, 0, sizeof t.p.o);
        memset(&t.p.lse, 0, sizeof t.p.lse);
        memset(&t.p.stats, 0, sizeof t.p.stats);
    }
    if (run_part(&t.p, "logits"))
        compare_logits(&t.p);
}

/* Rows beyond q_len keep what they held; probabilities of a row sum to 1. */
static void check_logits_rows(int round)
{
    test_problem t;
    test_shape s = shape_random();
    int32_t length;
    float *data;
    int touched = 0;
    double sum_error = 0;
    s.batch = 1;
    problem_make(&t, &s);
    length = (int32_t)rng_int(0, s.seq_q);
    t.p.q_len = &length;
    t.p.impl = round % 2 == 0 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE;
    t.p.logits.stage = ATTN_LOGITS_SOFTMAX;
    data = test_alloc((size_t)(s.heads_q * s.seq_q * s.seq_kv) * sizeof(float));
    t.p.logits.data = data;
    if (!problem_run(&t))
        return;
    for (int64_t h = 0; h < s.heads_q; h++)
        for (int64_t i = 0; i < s.seq_q; i++) {
            const float *row = data + (h * s.seq_q + i) * s.seq_kv;
            double sum = 0;
            for (int64_t j = 0; j < s.seq_kv; j++) {
                sum += (double)row[j];
                touched += i >= length && float_bits(row[j]) != 0xffffffffu;
            }
            if (i < length && fabs(sum - 1) > sum_error)
                sum_error = fabs(sum - 1);
        }
    CHECK(touched == 0, "%d logits of rows beyond q_len were written", touched);
    CHECK(sum_error < 1e-5, "probabilities sum to 1 but for %g", sum_error);
}

/* ---- raw states ----------------------------------------------------------------------------- */

static void give_state(test_problem *t)
{
    const size_t rows = (size_t)(t->p.batch * t->p.num_heads_q * t->p.seq_len_q);
    t->p.partial = 1;
    t->p.state.m = test_alloc(rows * sizeof(float));
    t->p.state.l = test_alloc(rows * sizeof(float));
    t->p.state.o = test_alloc(rows * (size_t)t->o.dim * sizeof(float));
}

static void check_partial(int round)
{
    static const char *const banned[] = {
        "partial", "logits", "varlen", "sinks", "softmax1", NULL
    };
    test_problem a, b;
    size_t rows;
    make_background(&a, round % 2 == 0 ? "kv_len" : "dropout", 1, banned);
    give_state(&a);
    twin(&a, &b);
    give_state(&b);
    b.p.softmax1 = 1; /* no sink enters a partial state */
    if (!problem_run(&a) || !problem_run(&b))
        return;
    CHECK(tensor_unchanged(&a.o) && tensor_unchanged(&a.lse) && tensor_unchanged(&a.stats),
          "partial wrote o, lse or stats, too");
    rows = (size_t)(a.p.batch * a.p.num_heads_q * a.p.seq_len_q);
    CHECK(memcmp(a.p.state.m, b.p.state.m, rows * sizeof(float)) == 0 &&
              memcmp(a.p.state.l, b.p.state.l, rows * sizeof(float)) == 0 &&
              memcmp(a.p.state.o, b.p.state.o, rows * (size_t)a.o.dim * sizeof(float)) == 0,
          "a sink entered a raw state");
    compare_with_oracle(&a.p);
    CHECK(attn_state_finish(&b.p, &b.p.state) == ATTN_OK, "attn_state_finish");
    a.p.partial = 0;
    a.p.softmax1 = 1;
    if (problem_run(&a) && a.p.impl != ATTN_IMPL_NAIVE && T.impl != ATTN_IMPL_NAIVE && T.exact)
        CHECK(problem_same_bits(&a, &b), "a raw state, finished, and one call");
}

static void check_refused(int round)
{
    test_problem t;
    test_shape s = shape_random();
    (void)round;
    problem_make(&t, &s);
    give_state(&t);
    t.p.logits.data = test_alloc((size_t)(s.batch * s.heads_q * s.seq_q * s.seq_kv) * 4);
    t.p.logits.stage = ATTN_LOGITS_SOFTMAX;
    CHECK(test_run(&t.p) == ATTN_ERR_UNSUPPORTED, "probabilities with partial");
    CHECK(attn_state_finish(&t.p, &t.p.state) == ATTN_ERR_UNSUPPORTED, "probabilities of a state");
    t.p.partial = 0;
    CHECK(attn_state_finish(&t.p, &t.p.state) == ATTN_ERR_UNSUPPORTED, "probabilities of a state");
    CHECK(tensor_unchanged(&t.o) && tensor_unchanged(&t.lse) && tensor_unchanged(&t.stats),
          "a refused state was written");
}

static float minus_zero(void *user, const attn_pair *at, float logit)
{
    (void)user, (void)at, (void)logit;
    return -0.0f;
}

/* The maximum of logits that are all -0 is stored as +0. */
static void check_partial_zero(int round)
{
    test_problem t;
    test_shape s = shape_random();
    int64_t wrong = 0;
    problem_make(&t, &s);
    give_state(&t);
    t.p.score = minus_zero;
    t.p.impl = round % 2 == 0 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE;
    if (!problem_run(&t))
        return;
    for (int64_t row = 0; row < s.batch * s.heads_q * s.seq_q; row++)
        wrong += float_bits(t.p.state.m[row]) != 0;
    CHECK(wrong == 0, "%lld maxima of logits of -0 are not +0", (long long)wrong);
}

/* ---- storage types of O --------------------------------------------------------------------- */

/* O in 16 bits is the f32 result, rounded once; -0 becomes +0. */
static void check_rounded(int round)
{
    static const float factors[] = { 1.0f, 1e-6f, 2e-8f, 3e4f, 1e5f, 1e-38f, 1e30f };
    const int dtype = round % 2 == 0 ? ATTN_F16 : ATTN_BF16;
    test_problem wide, narrow;
    test_shape s = shape_random();
    int wrong = 0, minus = 0;
    s.factor_v = factors[round / 2 % (int)(sizeof factors / sizeof *factors)];
    problem_make(&wide, &s);
    twin(&wide, &narrow);
    narrow.o.dtype = dtype;
    problem_new_output(&narrow);
    if (!problem_run(&wide) || !problem_run(&narrow))
        return;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads_q; h++)
            for (int64_t i = 0; i < s.seq_q; i++)
                for (int64_t d = 0; d < s.dim_v; d++) {
                    uint16_t bits;
                    float value;
                    dtype_store(dtype, &bits, tensor_get(&wide.o, b, h, i, d));
                    value = tensor_get(&narrow.o, b, h, i, d);
                    minus += float_bits(value) == 0x80000000u;
                    if (bits == 0x8000u)
                        bits = 0;
                    wrong += float_bits(value) != float_bits(dtype_load(dtype, &bits));
                }
    CHECK(wrong - minus == 0, "%d values of O in %s are not the f32 values, rounded", wrong - minus,
          dtype_name(dtype));
    CHECK(minus == 0, "%d values of O in %s are -0", minus, dtype_name(dtype));
}

/* Sums that are -0 by IEEE are stored as +0. */
static void check_zero(int round)
{
    test_problem t;
    test_shape s = shape_random();
    int wrong = 0;
    s.dtype_o = round % 3;
    problem_make(&t, &s);
    tensor_fill(&t.v, -0.0f);
    t.p.impl = round % 2 == 0 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE;
    if (!problem_run(&t))
        return;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads_q; h++)
            for (int64_t i = 0; i < s.seq_q; i++)
                for (int64_t d = 0; d < s.dim_v; d++)
                    wrong += float_bits(tensor_get(&t.o, b, h, i, d)) != 0;
    CHECK(wrong == 0, "%d values of O are not +0", wrong);
}

/* ---- nothing to see, nothing to do ---------------------------------------------------------- */

static uint32_t stored_bits(float x)
{
    return x != x ? 0x7fc00000u : x == 0 ? 0 : float_bits(x);
}

static void check_empty_rows(int round)
{
    const float sinks[] = { -2.5f,
                            0.0f,
                            -3e38f,
                            1e-30f, /* -3e38 * log2(e): -inf */
                            float_from_bits(0xffc01234u),
                            -0.0f };
    const int first = round / 2 % 2 == 1 ? 4 : (int)rng_int(0, 3);
    test_problem t;
    test_shape s = shape_random();
    int32_t lengths[2] = { 0, 0 };
    int wrong = 0;
    s.heads_q = s.heads_kv = first == 4 ? 2 : rng_int(1, 6 - first);
    s.dtype_o = round % 3;
    s.stats = STATS_ALWAYS;
    problem_make(&t, &s);
    t.p.kv_len = lengths;
    t.p.impl = round % 2 == 0 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE;
    t.p.sinks = round / 2 % 3 == 1 ? sinks + first : NULL;
    t.p.softmax1 = round / 2 % 3 == 2;
    t.p.causal = rng_chance(50);
    if (!problem_run(&t))
        return;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads_q; h++)
            for (int64_t i = 0; i < s.seq_q; i++) {
                const float lse = t.p.sinks != NULL   ? t.p.sinks[h]
                                  : t.p.softmax1 != 0 ? 0.0f
                                                      : -HUGE_VALF;
                const float sink2 = lse * 0x1.715476p+0f, l = lse == -HUGE_VALF ? 0.0f : 1.0f;
                wrong += float_bits(tensor_get(&t.lse, b, h, i, 0)) != stored_bits(lse);
                wrong += float_bits(tensor_get(&t.stats, b, h, i, 0)) != stored_bits(sink2);
                wrong += float_bits(tensor_get(&t.stats, b, h, i, 1)) != float_bits(l);
                for (int64_t d = 0; d < s.dim_v; d++)
                    wrong += float_bits(tensor_get(&t.o, b, h, i, d)) != 0;
            }
    CHECK(wrong == 0, "%d values of empty rows are not +0 and -inf or the sink itself", wrong);
}

/* Element d of o, or with -1 the lse, with -2 l of the statistics. */
static float result_of(const test_problem *t, int64_t b, int64_t h, int64_t i, int64_t d)
{
    return d == -2   ? tensor_get(&t->stats, b, h, i, 1)
           : d == -1 ? tensor_get(&t->lse, b, h, i, 0)
                     : tensor_get(&t->o, b, h, i, d);
}

/* A NaN sink makes the rows of its head NaN, and no others. */
static void check_nan_sink(int round)
{
    float sinks[2][4];
    test_problem t[2];
    test_shape s = shape_random();
    int64_t nan_head;
    int wrong = 0, others = 0;
    s.heads_q = s.heads_kv = rng_int(1, 4);
    s.dtype_o = round % 3;
    s.stats = STATS_ALWAYS;
    nan_head = rng_int(0, s.heads_q - 1);
    problem_make(&t[0], &s);
    t[0].p.impl = round % 2 == 0 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE;
    twin(&t[0], &t[1]);
    for (int h = 0; h < 4; h++)
        sinks[0][h] = sinks[1][h] = rng_normal();
    sinks[1][nan_head] = float_from_bits(0xffc00001u);
    for (int n = 0; n < 2; n++) {
        t[n].p.sinks = sinks[n];
        if (round % 4 < 2) {
            if (!problem_run(&t[n]))
                return;
            continue;
        }
        give_state(&t[n]);
        if (!problem_run(&t[n]))
            return;
        CHECK(attn_state_finish(&t[n].p, &t[n].p.state) == ATTN_OK, "attn_state_finish");
    }
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads_q; h++)
            for (int64_t i = 0; i < s.seq_q; i++)
                for (int64_t d = -2; d < t[0].o.dim; d++) {
                    const uint32_t without = float_bits(result_of(&t[0], b, h, i, d));
                    const uint32_t with = float_bits(result_of(&t[1], b, h, i, d));
                    if (h == nan_head)
                        wrong += with != 0x7fc00000u;
                    else
                        others += with != without;
                }
    CHECK(wrong == 0, "%d values are not 7fc00000 in spite of a NaN sink", wrong);
    CHECK(others == 0, "%d values changed by the NaN sink of another head", others);
}

static void check_empty_sizes(int round)
{
    test_problem t;
    test_shape s = shape_random();
    if (round % 4 == 0)
        s.batch = 0;
    else if (round % 4 == 1)
        s.seq_q = 0;
    else if (round % 4 == 2)
        s.seq_kv = 0;
    else
        s.seq_q = s.seq_kv = 0;
    problem_make(&t, &s);
    t.p.impl = round < 4 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE;
    t.p.causal = rng_chance(50);
    problem_check(&t);
}

/* ---- converting ----------------------------------------------------------------------------- */

/* What a value of one type becomes in another, by this file's own means. */
static int64_t wrong_conversions(int to, int from, const void *source, size_t count)
{
    unsigned char *result = test_alloc(count * dtype_size(to));
    int64_t wrong = 0;
    if (attn_convert(result, to, source, from, count) != ATTN_OK)
        return -1;
    for (size_t n = 0; n < count; n++) {
        unsigned char expected[4];
        dtype_store(to, expected,
                    dtype_load(from, (const unsigned char *)source + n * dtype_size(from)));
        wrong += memcmp(expected, result + n * dtype_size(to), dtype_size(to)) != 0;
    }
    return wrong;
}

static void check_convert_16(int from)
{
    uint16_t *all = test_alloc(65536 * sizeof *all);
    for (uint32_t n = 0; n < 65536; n++)
        all[n] = (uint16_t)n;
    for (int to = ATTN_F32; to <= ATTN_BF16; to++) {
        const int64_t wrong = wrong_conversions(to, from, all, 65536);
        CHECK(wrong == 0, "all %s to %s: %lld wrong", dtype_name(from), dtype_name(to),
              (long long)wrong);
    }
}

/* Every 16-bit value as f32, the middle to its upper neighbour, and the floats next to both. */
static void check_convert_32(int to)
{
    enum { EACH = 6 };
    float *values = test_alloc(65536 * EACH * sizeof *values);
    int64_t wrong;
    for (uint32_t n = 0; n < 65536; n++) {
        const uint16_t code = (uint16_t)n;
        const uint16_t above = (uint16_t)((n & 0x7fffu) == 0x7fffu ? n : n + 1);
        const float low = dtype_load(to, &code), high = dtype_load(to, &above);
        const float middle = 0.5f * low + 0.5f * high;
        float *at = values + n * EACH;
        at[0] = low, at[1] = middle;
        for (int side = 0; side < 2; side++) {
            at[2 + side] = float_from_bits(float_bits(low) + (side == 0 ? 1u : 0xffffffffu));
            at[4 + side] = float_from_bits(float_bits(middle) + (side == 0 ? 1u : 0xffffffffu));
        }
    }
    wrong = wrong_conversions(to, ATTN_F32, values, 65536 * EACH);
    CHECK(wrong == 0, "f32 to %s: %lld wrong", dtype_name(to), (long long)wrong);
}

static void check_convert_random(void)
{
    uint32_t *values = test_alloc(100000 * sizeof *values);
    for (int n = 0; n < 100000; n++)
        values[n] = (uint32_t)(rng_u64() >> 32);
    for (int to = ATTN_F32; to <= ATTN_BF16; to++)
        CHECK(wrong_conversions(to, ATTN_F32, values, 100000) == 0, "random f32 to %s",
              dtype_name(to));
}

static void check_convert(int round)
{
    if (round < 2)
        check_convert_16(ATTN_F16 + round);
    else if (round < 4)
        check_convert_32(ATTN_F16 + round - 2);
    else
        check_convert_random();
}

/* ---- ALiBi slopes --------------------------------------------------------------------------- */

static double exact_slope(int64_t h, int64_t heads)
{
    int64_t lower = 1;
    while (lower * 2 <= heads)
        lower *= 2;
    if (h < lower)
        return pow(2.0, -8.0 * (double)(h + 1) / (double)lower);
    return pow(2.0, -8.0 * (double)(2 * (h - lower) + 1) / (double)(2 * lower));
}

static void check_slopes(int round)
{
    float slopes[130];
    const int64_t heads = round < 40 ? round + 1 : rng_int(41, 130);
    double worst = 0;
    CHECK(attn_alibi_slopes(slopes, heads) == ATTN_OK, "%lld heads", (long long)heads);
    for (int64_t h = 0; h < heads; h++) {
        const double exact = exact_slope(h, heads);
        const double ulps = fabs((double)slopes[h] - exact) / oracle_storage_error(ATTN_F32, exact);
        worst = ulps / 2 > worst ? ulps / 2 : worst;
    }
    CHECK(worst <= 2, "%lld heads: %g ulp", (long long)heads, worst);
}

/* ---- the group ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    void (*run)(int round);
    int rounds;
} checks[] = {
    { "one output alone", check_alone, 40 },
    { "logits", check_stage, 48 },
    { "rows of logits", check_logits_rows, 20 },
    { "raw states", check_partial, 30 },
    { "maxima of -0", check_partial_zero, 8 },
    { "NaN sink", check_nan_sink, 24 },
    { "probabilities of a part", check_refused, 1 },
    { "O in 16 bits", check_rounded, 42 },
    { "minus zero", check_zero, 12 },
    { "empty rows", check_empty_rows, 24 },
    { "empty sizes", check_empty_sizes, 8 },
    { "conversion", check_convert, 5 },
    { "ALiBi slopes", check_slopes, 50 },
};

TEST_GROUP(outputs, RUN_ROUNDED_TOO, "lse, logits, partial states, storage types, empty rows")
{
    for (size_t n = 0; n < sizeof checks / sizeof *checks; n++)
        for (int round = 0; round < checks[n].rounds; round++)
            if (begin_case("%s, %d", checks[n].name, round))
                checks[n].run(round);
}
