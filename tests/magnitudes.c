/* magnitudes.c - logits up to 1e6, scales from 1e-30 to 1e30, outlier channels, ties, one-hot rows.
 * SPDX-License-Identifier: MIT
 *
 * Scores here are sums of small integers, exact in binary32 in any order, so that only what comes
 * behind the sum of q.k rounds. The reference is the textbook in double over the exact scores.
 */
#include "magnitudes.h"

#include <math.h>
#include <string.h>

static const int storages[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
static const int impls[] = { ATTN_IMPL_TILED, ATTN_IMPL_NAIVE };

/* Lengths on both sides of blocks, tiles and chunks; dims with and without a rest of 4; one row and
 * many, which take other kernels. */
test_shape magnitudes_shape(int dtype)
{
    static const int64_t dims[] = { 1, 2, 3, 4, 6, 7, 16, 31, 32, 33, 64, 70 };
    static const int64_t keys[] = { 1, 2, 15, 16, 17, 33, 48, 64, 100, 200, 1025, MAX_SEQ };
    static const int64_t rows[] = { 1, 1, 2, 5, 18 };
    test_shape s = { 0 };
    s.batch = 1, s.heads_kv = 1, s.heads_q = rng_int(1, 8);
    s.seq_q = RNG_PICK(rows), s.seq_kv = RNG_PICK(keys);
    s.dim = RNG_PICK(dims), s.dim_v = rng_int(1, 20);
    s.dtype_q = s.dtype_k = s.dtype_v = dtype;
    s.dtype_o = rng_chance(50) ? dtype : ATTN_F32;
    return s;
}

void fill_integers(test_tensor *t, int most)
{
    for (int64_t h = 0; h < t->heads; h++)
        for (int64_t i = 0; i < t->seq; i++)
            for (int64_t d = 0; d < t->dim; d++)
                tensor_set(t, 0, h, i, d, (float)rng_int(-most, most));
    tensor_remember(t);
}

/* The keys of the case as floats. */
float key_rows[MAX_SEQ][MAX_DIM];

void load_key_rows(const test_problem *t)
{
    for (int64_t j = 0; j < t->k.seq; j++)
        for (int64_t d = 0; d < t->k.dim; d++)
            key_rows[j][d] = tensor_get(&t->k, 0, 0, j, d);
}

/* A row of q times key j, integers and so exact. */
static double exact_score(const float *q, int64_t j, int64_t dim)
{
    double s = 0;
    for (int64_t d = 0; d < dim; d++)
        s += (double)q[d] * (double)key_rows[j][d];
    return s;
}

void load_query(const test_problem *t, int64_t h, int64_t i, float *q)
{
    for (int64_t d = 0; d < t->q.dim; d++)
        q[d] = tensor_get(&t->q, 0, h, i, d);
}

/* ---- against the textbook -------------------------------------------------------------------- */

/* Behind the exact sum a logit rounds when c multiplies it and when the bias is added, each half an
 * ulp at its size. c is off by one factor for all keys, so that only the distance from the maximum
 * counts, as in the exponent and in the exponential; but the logit itself where something unscaled
 * stands beside it. */
static void finish_textbook(textbook *b)
{
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j <= b->keys; j++)
        most = fmax(most, b->logit[j]);
    for (int64_t j = 0; j <= b->keys; j++)
        sum += b->p[j] = exp(b->logit[j] - most);
    for (int64_t j = 0; j <= b->keys; j++) {
        b->p[j] /= sum;
        b->error[j] += 4 + 3.5 * (most - b->logit[j]);
        b->error[j] = fmin(ldexp(b->error[j], -24), 30);
    }
}

void open_textbook(const test_problem *t, int64_t h, int64_t i, textbook *b)
{
    const float *bias = t->p.bias.data;
    float q[MAX_DIM];
    const double factors = bias || t->p.sinks ? 2 : 1;
    b->keys = t->p.causal ? t->k.seq - t->q.seq + i + 1 : t->k.seq;
    load_query(t, h, i, q);
    for (int64_t j = 0; j < b->keys; j++) {
        const double z = (double)t->p.scale * exact_score(q, j, t->q.dim);
        const double x = bias ? (double)bias[i * t->k.seq + j] : 0;
        b->logit[j] = z + x;
        b->error[j] = factors * fabs(z) + (bias ? fabs(z + x) + fabs(x) : 0);
    }
    b->logit[b->keys] = t->p.sinks ? (double)t->p.sinks[h] : -INFINITY;
    b->error[b->keys] = t->p.sinks ? 2 * fabs(b->logit[b->keys]) : 0;
    finish_textbook(b);
}

double textbook_value(const test_problem *t, const textbook *b, int64_t d, double *error)
{
    const double u = ldexp(1, -24), sums = 40 + (double)(b->keys < 1024 ? b->keys : 1024);
    double o = 0, most = 0, size = 0;
    *error = 0;
    for (int64_t j = 0; j < b->keys; j++)
        o += b->p[j] * (double)tensor_get(&t->v, 0, 0, j, d);
    for (int64_t j = 0; j <= b->keys; j++) {
        const double v = j < b->keys ? (double)tensor_get(&t->v, 0, 0, j, d) : 0;
        if (b->p[j] == 0)
            continue;
        *error += b->p[j] * fabs(v - o) * expm1(b->error[j]);
        most = fmax(most, b->error[j]);
        size += b->p[j] * (fabs(v) + fabs(o));
    }
    *error = *error * exp(most) + u * sums * size + 1e-30;
    if (t->o.dtype != ATTN_F32)
        *error += fabs(o) * (t->o.dtype == ATTN_F16 ? ldexp(1, -11) : ldexp(1, -8)) + 1e-7;
    return o;
}

/* |O - textbook| in units of what the rounding of its logits and sums may be. */
static double row_units(const test_problem *t, const textbook *b, int64_t h, int64_t i)
{
    double worst = 0;
    for (int64_t d = 0; d < t->v.dim; d++) {
        double error;
        const double o = textbook_value(t, b, d, &error);
        worst = fmax(worst, tolerance_units((double)tensor_get(&t->o, 0, h, i, d), o, error));
    }
    return worst;
}

static void compare_with_textbook(test_problem *t)
{
    static textbook b;
    double worst = 0;
    for (int64_t h = 0; h < t->q.heads; h++)
        for (int64_t i = 0; i < t->q.seq; i++) {
            open_textbook(t, h, i, &b);
            if (b.keys > 0)
                worst = fmax(worst, row_units(t, &b, h, i));
        }
    worst_note(worst);
    CHECK(worst <= 1, "%.3g times what exact scores allow", worst);
}

/* A bias of integers, some -inf, a sink between two logits, or neither. */
void add_extras(test_problem *t, int with_bias, int with_sinks)
{
    if (with_bias) {
        float *bias = test_alloc((size_t)(t->q.seq * t->k.seq) * sizeof *bias);
        for (int64_t n = 0; n < t->q.seq * t->k.seq; n++)
            bias[n] = n % t->k.seq > 0 && rng_chance(5) ? -INFINITY : (float)rng_int(-9, 9);
        t->p.bias.data = bias;
        t->p.bias.stride_batch = t->p.bias.stride_head = ATTN_STRIDE_BROADCAST;
    }
    if (with_sinks) {
        float *sinks = test_alloc((size_t)t->q.heads * sizeof *sinks);
        for (int64_t h = 0; h < t->q.heads; h++) {
            float q[MAX_DIM];
            load_query(t, h, 0, q);
            sinks[h] = (float)((double)t->p.scale * (exact_score(q, 0, t->q.dim) + 0.5));
        }
        t->p.sinks = sinks;
    }
}

static void check_both(test_problem *t)
{
    for (int n = 0; n < 2; n++) {
        t->p.impl = impls[n];
        problem_new_output(t);
        if (!run_with_stats(t))
            continue;
        compare_with_textbook(t);
        compare_gradients(t);
    }
}

/* The best set gets all cases, the others a third. */
static int is_for_this_set(int number)
{
    return T.best || T.only_case >= 0 || number % 3 == 0;
}

/* Scores of about 100 to 1e6, times scales that leave logits of about 1e-28 to 1e32. */
static void check_scales(void)
{
    static const float scales[] = { 1e-30f, 1e-10f, 1e-3f, 0.125f, 0.3f,  1.0f,
                                    8.0f,   512.0f, 1e4f,  1e10f,  1e20f, 1e30f };
    static const int sizes[] = { 4, 30, 180 };
    for (size_t n = 0; n < sizeof scales / sizeof *scales; n++)
        for (int type = 0; type < 3; type++)
            for (int size = 0; size < 3; size++)
                for (int extras = (int)n % 2; extras < 4; extras += 2) {
                    test_problem t;
                    test_shape s;
                    if (!is_for_this_set((int)n + type + size)) {
                        pass_over_case();
                        continue;
                    }
                    if (!begin_case("scale %g, %s of at most %d%s%s", (double)scales[n],
                                    dtype_name(storages[type]), sizes[size],
                                    extras & 1 ? ", bias" : "", extras & 2 ? ", sinks" : ""))
                        continue;
                    s = magnitudes_shape(storages[type]);
                    problem_make(&t, &s);
                    fill_integers(&t.q, sizes[size]);
                    fill_integers(&t.k, sizes[size]);
                    t.p.scale = scales[n];
                    t.p.causal = s.seq_kv >= s.seq_q && rng_chance(30);
                    load_key_rows(&t);
                    add_extras(&t, extras & 1, extras & 2);
                    check_both(&t);
                }
}

/* Keys that differ from the query in a few places: logits near 1e6 that lie 0, 1, 2, ... apart. */
static void make_neighbours(test_problem *t)
{
    for (int64_t h = 0; h < t->q.heads; h++)
        for (int64_t i = 0; i < t->q.seq; i++)
            for (int64_t d = 0; d < t->q.dim; d++)
                tensor_set(&t->q, 0, h, i, d, d == 5 ? 1.0f : d % 2 ? -176.0f : 176.0f);
    for (int64_t j = 0; j < t->k.seq; j++)
        for (int64_t d = 0; d < t->k.dim; d++)
            tensor_set(&t->k, 0, 0, j, d,
                       d == 5  ? (float)rng_int(-3, 3)
                       : d % 2 ? -176.0f
                               : 176.0f);
    for (int64_t j = 0; j < t->k.seq; j++) { /* the sum stays, the order of its terms does not */
        const int64_t from = 6 + rng_int(0, (t->k.dim - 8) / 2) * 2;
        tensor_set(&t->k, 0, 0, j, from, 176.0f - (float)rng_int(0, 60));
        tensor_set(&t->k, 0, 0, j, 4, 352.0f - tensor_get(&t->k, 0, 0, j, from));
    }
    tensor_remember(&t->q);
    tensor_remember(&t->k);
}

static void check_neighbours(void)
{
    for (int n = 0; n < 24; n++) {
        test_problem t;
        test_shape s;
        if (!is_for_this_set(n / 3)) {
            pass_over_case();
            continue;
        }
        if (!begin_case("neighbours near 1e6, %d", n))
            continue;
        s = magnitudes_shape(storages[n % 3]);
        s.dim = 30 + n / 3 % 4; /* bf16 holds the numbers: they are below 256 */
        problem_make(&t, &s);
        make_neighbours(&t);
        t.p.scale = 1.0f;
        load_key_rows(&t);
        add_extras(&t, n & 1, n & 2);
        check_both(&t);
    }
}

/* ---- bit for bit ----------------------------------------------------------------------------- */

/* Every key has the numbers of key 0 in another order, and the query is the same in all places. */
static void make_ties(test_problem *t)
{
    for (int64_t h = 0; h < t->q.heads; h++)
        for (int64_t i = 0; i < t->q.seq; i++) {
            const float x = (float)rng_int(1, 9);
            for (int64_t d = 0; d < t->q.dim; d++)
                tensor_set(&t->q, 0, h, i, d, x);
        }
    for (int64_t d = 0; d < t->k.dim; d++)
        tensor_set(&t->k, 0, 0, 0, d, (float)rng_int(-50, 50));
    for (int64_t j = 1; j < t->k.seq; j++)
        for (int64_t d = 0; d < t->k.dim; d++) {
            const int64_t at = rng_int(0, d);
            tensor_set(&t->k, 0, 0, j, d, tensor_get(&t->k, 0, 0, j, at));
            tensor_set(&t->k, 0, 0, j, at, tensor_get(&t->k, 0, 0, 0, d));
        }
    tensor_remember(&t->q);
    tensor_remember(&t->k);
}

/* Rows whose value is known exactly. */
static void expect_rows(const test_problem *t, const float *right)
{
    int64_t wrong = 0;
    for (int64_t h = 0; h < t->o.heads; h++)
        for (int64_t i = 0; i < t->o.seq; i++)
            for (int64_t d = 0; d < t->o.dim; d++)
                wrong += tensor_get(&t->o, 0, h, i, d) != right[d];
    CHECK(wrong == 0, "%lld of %lld values of O are not exact", (long long)wrong,
          (long long)(t->o.heads * t->o.seq * t->o.dim));
}

/* Keys with one score have one weight, whatever the scale: O is the mean of V, here exactly. */
static void check_ties(void)
{
    static const float scales[] = { 1e-30f, 1e-5f, 0.3f, 1.0f, 512.0f, 1e4f, 1e15f, 1e30f };
    static const int64_t keys[] = { 2, 16, 32, 64, 256, 1024, 2048 };
    static const int64_t dims[] = { 2, 3, 8, 13, 32, 66 };
    for (int n = 0; n < 84; n++) {
        test_problem t;
        test_shape s;
        float mean[32];
        if (!begin_case("ties, scale %g, %s", (double)scales[n % 8], dtype_name(storages[n % 3])))
            continue;
        s = magnitudes_shape(storages[n % 3]);
        s.seq_kv = keys[n % 7], s.dim = RNG_PICK(dims);
        s.dtype_o = ATTN_F32;
        problem_make(&t, &s);
        make_ties(&t);
        fill_integers(&t.v, 100);
        t.p.scale = scales[n % 8];
        for (int64_t d = 0; d < s.dim_v; d++) {
            double sum = 0;
            for (int64_t j = 0; j < s.seq_kv; j++)
                sum += (double)tensor_get(&t.v, 0, 0, j, d);
            mean[d] = (float)(sum / (double)s.seq_kv);
        }
        for (int impl = 0; impl < 2; impl++) {
            t.p.impl = impls[impl];
            problem_new_output(&t);
            if (problem_run(&t))
                expect_rows(&t, mean);
        }
    }
}

/* One key has all the weight, since a mask hides the others or their logits lie far below it: O is
 * its value. */
static void check_one_hot(void)
{
    static const float scales[] = { 1e-30f, 1.0f, 512.0f, 1e10f, 1e30f };
    for (int n = 0; n < 60; n++) {
        const int hidden = n % 2;
        test_problem t;
        test_shape s;
        float value[32];
        int64_t hot;
        if (!begin_case("one hot, scale %g, %s, %s", (double)scales[n % 5],
                        dtype_name(storages[n % 3]), hidden ? "the others hidden" : "far above"))
            continue;
        s = magnitudes_shape(storages[n % 3]);
        s.dtype_o = s.dtype_v;
        problem_make(&t, &s);
        hot = rng_int(0, s.seq_kv - 1);
        t.p.scale = scales[hidden ? n % 5 : 1 + n % 4];
        tensor_fill(&t.q, 120.0f);
        for (int64_t j = 0; j < s.seq_kv; j++)
            for (int64_t d = 0; d < s.dim; d++)
                tensor_set(&t.k, 0, 0, j, d, j == hot || hidden ? 7.0f : (float)rng_int(-7, 5));
        tensor_remember(&t.q);
        tensor_remember(&t.k);
        if (hidden) {
            uint8_t *shown = test_alloc((size_t)(s.seq_q * s.seq_kv));
            for (int64_t k = 0; k < s.seq_q * s.seq_kv; k++)
                shown[k] = k % s.seq_kv == hot;
            t.p.bool_mask.data = shown;
            t.p.bool_mask.stride_batch = t.p.bool_mask.stride_head = ATTN_STRIDE_BROADCAST;
        }
        for (int64_t d = 0; d < s.dim_v; d++)
            value[d] = tensor_get(&t.v, 0, 0, hot, d);
        for (int impl = 0; impl < 2; impl++) {
            t.p.impl = impls[impl];
            problem_new_output(&t);
            if (!run_with_stats(&t))
                continue;
            expect_rows(&t, value);
            expect_one_hot_gradients(&t, hot);
        }
    }
}

/* ---- outlier channels ------------------------------------------------------------------------ */

/* 16-bit numbers, of which a few channels are 40 times as large. Their products are exact, and so
 * the sums round where they are added and nowhere else. */
static void check_channels(void)
{
    for (int n = 0; n < 30; n++) {
        test_problem t;
        test_shape s;
        if (!begin_case("outlier channels, %s, %d", dtype_name(storages[1 + n % 2]), n))
            continue;
        s = magnitudes_shape(storages[1 + n % 2]);
        s.dim = RNG_PICK(((int64_t[]){ 32, 64, 66, 128 }));
        problem_make(&t, &s);
        for (int64_t d = 3; d < s.dim; d += 29) {
            for (int64_t h = 0; h < s.heads_q; h++)
                for (int64_t i = 0; i < s.seq_q; i++)
                    tensor_set(&t.q, 0, h, i, d, 40.0f * rng_normal());
            for (int64_t j = 0; j < s.seq_kv; j++)
                tensor_set(&t.k, 0, 0, j, d, 40.0f * rng_normal());
        }
        tensor_remember(&t.q);
        tensor_remember(&t.k);
        for (int impl = 0; impl < 2; impl++) {
            t.p.impl = impls[impl];
            problem_new_output(&t);
            problem_check(&t);
        }
    }
}

TEST_GROUP(magnitudes, RUN_EACH_SET, "logits to 1e6, scales 1e-30 to 1e30, ties, one-hot rows")
{
    check_scales();
    check_neighbours();
    check_ties();
    check_one_hot();
    check_channels();
    check_sums_of_p();
}
