/* stability.c - finite in, finite out, at every scale; no floating-point exceptions.
 * SPDX-License-Identifier: MIT
 *
 * The promise (docs/canon.md): finite results while every partial sum of q.k, scale log2(e) times
 * it, and 2^16 kv_len max|v| stay below 2^127. The data here stays inside.
 */
#include "features.h"
#include "laws.h"
#include "oracle.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

static int64_t not_finite(const test_tensor *t)
{
    int64_t count = 0;
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t s = 0; s < t->seq; s++)
                for (int64_t d = 0; d < t->dim; d++) {
                    const float x = tensor_get(t, b, h, s, d);
                    count += !(x - x == 0.0f);
                }
    return count;
}

/* Runs with both implementations, asks for finite results and compares with the oracle. */
static void check_finite(test_problem *t)
{
    static const int impls[] = { ATTN_IMPL_TILED, ATTN_IMPL_NAIVE };
    for (int n = 0; n < 2; n++) {
        t->p.impl = impls[n];
        problem_new_output(t);
        problem_check(t);
        CHECK(not_finite(&t->o) == 0 && not_finite(&t->lse) == 0,
              "impl %d: %lld values of O and %lld of lse are not finite", impls[n],
              (long long)not_finite(&t->o), (long long)not_finite(&t->lse));
    }
}

static test_shape small_shape(void)
{
    test_shape s = shape_random();
    s.seq_q = rng_int(1, 10);
    s.seq_kv = rng_int(2, 100);
    return s;
}

/* ---- scales ---------------------------------------------------------------------------------- */

static void check_scales(void)
{
    static const float factors[] = { 1e-38f, 1e-30f, 1e-20f, 1e-10f, 1e-4f, 1.0f,
                                     30.0f,  1e3f,   1e6f,   1e10f,  1e15f };
    static const float values[] = { 1e-30f, 1e-15f, 1.0f, 1e15f, 1e30f };
    const int count = (int)(sizeof factors / sizeof *factors);
    for (int q = 0; q < count; q++)
        for (int k = 0; k < count; k++) {
            test_problem t;
            test_shape s;
            if (!begin_case("q of %g, k of %g", (double)factors[q], (double)factors[k]))
                continue;
            s = small_shape();
            s.factor_q = factors[q];
            s.factor_k = factors[k];
            s.factor_v = values[rng_int(0, 4)];
            problem_make(&t, &s);
            check_finite(&t);
        }
}

/* ---- shapes of the logits over the keys ------------------------------------------------------ */

/* With head_dim 1, q = 1 and scale 1 the logits are K itself. */
static float ascending(int64_t j, int64_t n)
{
    return 20.0f * (float)(j - n / 2); /* every block raises the maximum: 320 > 16 */
}

static float descending(int64_t j, int64_t n)
{
    return ascending(n - j, n);
}

static float slowly(int64_t j, int64_t n)
{
    (void)n;
    return 0.05f * (float)j; /* the maximum rises, but by less than the threshold in most blocks */
}

static float alternating(int64_t j, int64_t n)
{
    (void)n;
    return j % 2 == 0 ? -1e4f : 1e4f;
}

static float last_dominates(int64_t j, int64_t n)
{
    return j == n - 1 ? 1e4f : rng_normal();
}

static float first_dominates(int64_t j, int64_t n)
{
    (void)n;
    return j == 0 ? 1e4f : rng_normal();
}

static float all_equal(int64_t j, int64_t n)
{
    (void)j, (void)n;
    return 3.0f;
}

static float very_low(int64_t j, int64_t n)
{
    (void)n;
    return -1e30f - 1e24f * (float)j;
}

static float outliers(int64_t j, int64_t n)
{
    (void)n;
    return j % 97 == 5 ? 500.0f * rng_normal() : rng_normal();
}

static float steps_of_16(int64_t j, int64_t n)
{
    (void)n;
    return 11.0903549f * (float)(j / 16); /* 16 ln 2: at the threshold itself, block after block */
}

static const struct {
    const char *name;
    float (*logit)(int64_t j, int64_t n);
} curves[] = {
    { "ascending", ascending },
    { "descending", descending },
    { "slowly ascending", slowly },
    { "alternating +-1e4", alternating },
    { "the last dominates", last_dominates },
    { "the first dominates", first_dominates },
    { "all equal", all_equal },
    { "near -1e30", very_low },
    { "outliers", outliers },
    { "steps of the threshold", steps_of_16 },
};

static void check_curves(void)
{
    static const int64_t lengths[] = { 40, 1030, 10000 };
    for (size_t c = 0; c < sizeof curves / sizeof *curves; c++)
        for (int n = 0; n < 3; n++) {
            test_problem t;
            test_shape s;
            if (!begin_case("%s, %lld keys", curves[c].name, (long long)lengths[n]))
                continue;
            memset(&s, 0, sizeof s);
            s.batch = 1, s.heads_q = 1, s.seq_q = 3, s.seq_kv = lengths[n];
            s.dim = 1, s.dim_v = 2;
            problem_make(&t, &s);
            tensor_fill(&t.q, 1.0f);
            for (int64_t j = 0; j < s.seq_kv; j++)
                tensor_set(&t.k, 0, 0, j, 0, curves[c].logit(j, s.seq_kv));
            tensor_remember(&t.k);
            t.p.scale = 1.0f;
            check_finite(&t);
        }
}

/* A few rows far away from all others. */
static void check_outlier_rows(void)
{
    for (int n = 0; n < 10; n++) {
        test_problem t;
        test_shape s;
        if (!begin_case("outlier rows, %d", n))
            continue;
        s = small_shape();
        problem_make(&t, &s);
        for (int64_t i = 0; i < s.seq_q; i += 3)
            for (int64_t d = 0; d < s.dim; d++)
                tensor_set(&t.q, 0, 0, i, d, 1e4f * rng_normal());
        for (int64_t j = 1; j < s.seq_kv; j += 7)
            for (int64_t d = 0; d < s.dim; d++)
                tensor_set(&t.k, 0, 0, j, d, 1e3f * rng_normal());
        tensor_remember(&t.q);
        tensor_remember(&t.k);
        check_finite(&t);
    }
}

/* ---- exceptions ------------------------------------------------------------------------------ */

#if defined FE_INVALID && defined FE_DIVBYZERO
static void check_flags_of(const char *name, int impl, int redo)
{
    static const char *const banned[] = { "bias", "sinks", "score_fn", NULL }; /* may hold -inf */
    test_problem t;
    attn_status status;
    int raised;
    make_background(&t, name, 0, strcmp(name, "bias_f32") == 0 ? NULL : banned);
    t.p.impl = impl;
    t.p.force_redo = redo;
    feclearexcept(FE_ALL_EXCEPT);
    status = test_run(&t.p);
    raised = fetestexcept(FE_INVALID | FE_DIVBYZERO);
    if (T.backend != NULL) /* a device that is this CPU raises what it likes */
        raised = 0;
    CHECK(status == ATTN_OK && raised == 0, "%s: %s%s raised", attn_status_string(status),
          (raised & FE_INVALID) != 0 ? "INVALID " : "",
          (raised & FE_DIVBYZERO) != 0 ? "DIVBYZERO" : "");
    feclearexcept(FE_ALL_EXCEPT);
}

static void check_flags(void)
{
    static const char *const names[] = { "gqa",     "f16",    "bf16",     "long",      "kv_len",
                                         "q_len",   "causal", "window",   "segments",  "bool",
                                         "softcap", "alibi",  "softmax1", "dropout",   "odd_dims",
                                         "tree",    "bits",   "csr",      "mask_tile", "varlen",
                                         "logits",  "partial" };
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (int way = 0; way < 3; way++)
            if (begin_case("exceptions with %s, %s", names[n],
                           way == 0   ? "tiled"
                           : way == 1 ? "naive"
                                      : "redo"))
                check_flags_of(names[n], way == 1 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED, way == 2);
}
#else
static void check_flags(void)
{
    SKIP("no floating-point exceptions on this platform");
}
#endif

TEST_GROUP(stability, RUN_EACH_SET, "finite in, finite out, at every scale; no FP exceptions")
{
    check_scales();
    check_curves();
    check_outlier_rows();
    check_flags();
}
