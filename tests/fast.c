/* fast.c - p.fast: which kernels run, what the bits depend on, how large the error is, every misuse.
 * SPDX-License-Identifier: MIT
 *
 * Masks, outputs, NaN and threads are those of the groups that run with the set that rounds, too.
 */
#include "features.h"
#include "laws.h"
#include "test.h"

#include <math.h>
#include <string.h>

static test_shape shape_of(int64_t rows, int64_t keys, int64_t dim, int dtype)
{
    test_shape s;
    memset(&s, 0, sizeof s);
    s.batch = 1;
    s.heads_q = s.heads_kv = 2;
    s.seq_q = rows, s.seq_kv = keys;
    s.dim = dim, s.dim_v = dim;
    s.dtype_q = s.dtype_k = s.dtype_v = dtype;
    return s;
}

static const char *kernels_of(const attn_params *p, attn_info *info)
{
    CHECK(attn_explain(p, info) == ATTN_OK, "attn_explain: %s", info->reasons);
    return info->kernels_name;
}

static int rounds(const attn_params *p, attn_info *info)
{
    const attn_kernels *set = attn_kernels_find(kernels_of(p, info));
    return set != NULL && set->pack_values != NULL;
}

/* The most rows that are computed as without p.fast. */
static int64_t rows_of_usual(const attn_kernels *rounding)
{
    if (rounding == NULL)
        return INT64_MAX;
    return strncmp(rounding->name, "avx512", 6) == 0 ? 16 : 8;
}

/* Calls of few rows, gradients' kernels and machines without a unit have the bits of ever. */
static void check_choice(void)
{
    static const int64_t rows[] = { 1, 8, 9, 16, 17, 64 };
    const int64_t usual_rows = rows_of_usual(test_rounding_set());
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        test_problem t, usual;
        test_shape s = shape_of(rows[n], 70, 32, ATTN_BF16);
        attn_info info;
        int rounded;
        if (!begin_case("%lld rows", (long long)rows[n]))
            continue;
        problem_make(&t, &s);
        usual = t;
        problem_new_output(&t);
        t.p.fast = 1;
        rounded = rounds(&t.p, &info);
        CHECK(rounded == (rows[n] > usual_rows), "%s for %lld rows", info.kernels_name,
              (long long)rows[n]);
        CHECK(!rounds(&usual.p, &info), "%s without p.fast", info.kernels_name);
        if (problem_run(&t) && problem_run(&usual))
            CHECK(problem_same_bits(&t, &usual) == !rounded, "the bits of kernels %s",
                  info.kernels_name);
        problem_check(&t);
    }
}

/* A set of f32 that the caller chooses runs, and one that rounds only where p.fast is set. */
static void check_given_sets(void)
{
    const attn_kernels *rounding = test_rounding_set();
    test_problem t;
    test_shape s = shape_of(40, 70, 32, ATTN_F32);
    attn_info info;
    char why[200];
    if (!begin_case("p.kernels and p.fast"))
        return;
    problem_make(&t, &s);
    t.p.fast = 1;
    t.p.kernels = attn_kernels_get(0);
    CHECK(strcmp(kernels_of(&t.p, &info), attn_kernels_get(0)->name) == 0, "%s", info.kernels_name);
    for (int i = 0; attn_kernels_get(i) != NULL; i++)
        CHECK(attn_kernels_get(i)->pack_values == NULL, "a set that rounds is among all");
    if (rounding == NULL)
        return;
    t.p.kernels = rounding;
    t.p.fast = 0;
    CHECK(attn_workspace_size(&t.p, &(size_t){ 0 }) == ATTN_ERR_ARG, "taken without p.fast");
    CHECK(strcmp(attn_check(&t.p, NULL, 0, why, sizeof why),
                 "kernels round what they multiply to bf16, which fast must allow") == 0,
          "\"%s\"", why);
}

/* Tiles of 32 keys and more, the second pass and little memory change no bit of a call. */
static void check_call(test_problem first)
{
    static const int keys[] = { 0, 32, 64, 256 };
    test_problem t;
    first.p.fast = 1;
    first.p.kernels = test_rounding_set();
    for (size_t n = 0; n < 2 * sizeof keys / sizeof *keys && problem_run(&first); n++) {
        t = first;
        problem_new_output(&t);
        t.p.tile_keys = keys[n / 2];
        t.p.force_redo = n % 2;
        if (problem_run(&t))
            CHECK(problem_same_bits(&first, &t), "tiles of %d keys, redo %d", keys[n / 2],
                  (int)(n % 2));
    }
    t = first;
    problem_new_output(&t);
    if (problem_run_small(&t, 0))
        CHECK(problem_same_bits(&first, &t), "the least workspace");
}

/* Each mask and modifier, and in every third round absolute positions, where tiles begin anywhere. */
static void check_bits(void)
{
    for (int round = 0; round < 60 && test_rounding_set() != NULL; round++) {
        const int one =
            round % 3 != 0 ? (int)rng_int(0, feature_count - 1) : feature_find("key_base");
        test_problem t;
        if (!begin_case("the bits, %d: %s", round, features[one].name))
            continue;
        features_make(&t, shape_random(), &one, 1);
        t.p.impl = round % 4 == 3 ? ATTN_IMPL_NAIVE : ATTN_IMPL_AUTO;
        check_call(t);
    }
}

/* The root of the mean square of the difference from a call without p.fast, over that of its result. */
static double relative_error(const test_problem *t, const test_problem *usual)
{
    double square = 0, all = 0;
    for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < 300; i++)
            for (int64_t d = 0; d < 128; d++) {
                const double x = (double)tensor_get(&usual->o, 0, h, i, d);
                const double by = (double)tensor_get(&t->o, 0, h, i, d) - x;
                square += by * by;
                all += x * x;
            }
    return sqrt(square / all);
}

/* The error is what rounding p and q to 8 bits explains. */
static void compare_with_usual(test_problem *t, const char *what)
{
    test_problem usual = *t;
    problem_new_output(t);
    t->p.fast = 1;
    if (problem_run(t) && problem_run(&usual)) {
        const double error = relative_error(t, &usual);
        CHECK(error > 2e-4 && error < 5e-3, "%s: relative error %.3g", what, error);
    }
}

static void check_error(void)
{
    if (test_rounding_set() == NULL || !begin_case("2 x 300 rows, 500 keys of 128"))
        return;
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
        test_shape s = shape_of(300, 500, 128, dtype);
        test_problem t;
        problem_make(&t, &s);
        compare_with_usual(&t, dtype_name(dtype));
    }
}

/* Quantised K and V, also as whole numbers, and in every second round the last keys in f32 beside them. */
static void check_quantised(void)
{
    for (int round = 0; round < 24 && test_rounding_set() != NULL; round++) {
        test_shape s = shape_of(300, 500, 128, ATTN_F32);
        test_problem t;
        attn_tensor k, v;
        if (!begin_case("quantised K and V, %d", round))
            continue;
        problem_make(&t, &s);
        k = t.p.k, v = t.p.v;
        quantise_for_levels(&t);
        if (round % 2) {
            t.p.causal = round / 2 % 2;
            t.p.recent.keys = 1 + rng_int(0, 300);
            t.p.recent.ring = 500;
            t.p.recent.k = k;
            t.p.recent.v = v;
        }
        compare_with_usual(&t, dtype_name(t.p.k.dtype));
    }
}

TEST_GROUP(fast, RUN_ONCE, "products of rounded numbers: kernels, bits, error, misuse")
{
    CHECK(attn_cpu_permits_tiles() == attn_cpu_permits_tiles(), "two answers");
    if (test_rounding_set() == NULL)
        SKIP("no kernel set of this CPU rounds");
    check_choice();
    check_given_sets();
    check_bits();
    check_error();
    check_quantised();
}
