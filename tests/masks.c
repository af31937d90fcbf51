/* masks.c - all pairs of masks and modifiers, and some named triples, against the oracle.
 * SPDX-License-Identifier: MIT
 *
 * The table of features is in tests/features.c. Each pair runs with SHAPES random shapes, the tiled
 * path at several tile sizes and the naive one. A matrix of the worst error in tenths of the
 * tolerance is printed; an empty cell fails.
 */
#include "features.h"
#include "laws.h"

#include <stdio.h>
#include <string.h>

enum { SHAPES = 3, OTHER_SETS_PERCENT = 12 };

/* Pairs that the API can express and refuses. Those of one slot cannot even be written down. */
static const struct {
    const char *a, *b, *why;
} refused[] = {
    { "sinks", "softmax1", "both are the sink" },
    { "bitmap", "csr", "two forms of one block mask" },
};

static const struct {
    const char *names[3];
    int64_t dim; /* 0 = random */
} triples[] = {
    { { "softcap", "window", "scale" }, 256 },
    { { "softcap", "window", "causal" }, 256 },
    { { "varlen", "segments", "sinks" }, 0 },
    { { "gqa", "bias_f32", "kv_len" }, 0 }, /* lengths of 0: empty rows */
    { { "gqa", "bias_f16", "bool" }, 0 },
    { { "varlen", "causal", "alibi" }, 0 },
    { { "kv_begin", "bias_f32", "bits" }, 0 },
    { { "kv_begin", "segments", "key_base" }, 0 },
    { { "key_base", "chunked", "causal_off" }, 0 },
    { { "long", "kv_begin", "key_base" }, 0 },
    { { "long", "key_base", "window" }, 0 },
    { { "prefix", "window", "kv_len" }, 0 },
    { { "tree", "kv_len", "gqa" }, 0 },
    { { "dropout", "key_base", "gqa" }, 0 },
    { { "sinks", "dropout", "partial" }, 0 },
    { { "mixed", "negative", "q_len" }, 0 },
    { { "logits", "kv_begin", "sinks" }, 0 },
};

enum { MAX_FEATURES = 64 };
static double worst[MAX_FEATURES][MAX_FEATURES];
static int runs[MAX_FEATURES][MAX_FEATURES];

static int is_refused(int a, int b)
{
    for (size_t n = 0; n < sizeof refused / sizeof *refused; n++) {
        const int x = feature_find(refused[n].a), y = feature_find(refused[n].b);
        if ((x == a && y == b) || (x == b && y == a))
            return 1;
    }
    return 0;
}

static int is_same_slot(int a, int b)
{
    return a != b && strcmp(features[a].slot, features[b].slot) == 0;
}

static void random_plan(attn_params *p)
{
    static const int64_t tiles[] = { 0, 16, 32, 64, 128 };
    p->tile_keys = (int)RNG_PICK(tiles);
    p->naive_whole = rng_chance(30);
    p->force_redo = rng_chance(15);
}

static double check_both(test_problem *t, int shape)
{
    double units, naive;
    random_plan(&t->p);
    units = problem_check(t);
    CHECK(features_bad_pairs() == 0, "a callback was told a wrong position %d times",
          features_bad_pairs());
    if (T.impl != ATTN_IMPL_DEFAULT || shape != 0)
        return units;
    t->p.impl = ATTN_IMPL_NAIVE;
    if (t->p.o.data != NULL)
        problem_new_output(t);
    naive = problem_check(t);
    return units > naive ? units : naive;
}

static void run_pair(int a, int b, int shape)
{
    test_problem t;
    int list[2];
    double units;
    list[0] = a, list[1] = b;
    features_make(&t, shape_random(), list, 2);
    if (is_refused(a, b)) {
        CHECK(test_run(&t.p) != ATTN_OK, "%s and %s together must be refused", features[a].name,
              features[b].name);
        return;
    }
    units = check_both(&t, shape);
    if (!(units <= worst[a][b]))
        worst[a][b] = units;
    runs[a][b]++;
}

/* Sets other than the best run a sample; which cases it holds follows from the seed. */
static int is_sampled(int a, int b, int shape)
{
    uint64_t x = T.seed * 0x9e3779b97f4a7c15u + hash_text(T.kernels);
    x += (uint64_t)((a * MAX_FEATURES + b) * SHAPES + shape) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 31)) * 0x94d049bb133111ebu;
    return T.best || T.only_case >= 0 || (x >> 33) % 100 < OTHER_SETS_PERCENT;
}

static void run_pairs(void)
{
    for (int a = 0; a < feature_count; a++)
        for (int b = a; b < feature_count; b++)
            for (int shape = 0; shape < SHAPES; shape++)
                if (is_same_slot(a, b) || !is_sampled(a, b, shape))
                    pass_over_case();
                else if (begin_case("%s + %s, shape %d", features[a].name, features[b].name, shape))
                    run_pair(a, b, shape);
}

static void run_triples(void)
{
    for (size_t n = 0; n < sizeof triples / sizeof *triples; n++)
        for (int shape = 0; shape < 2 * SHAPES; shape++) {
            int list[3];
            test_problem t;
            test_shape s;
            for (int f = 0; f < 3; f++)
                list[f] = feature_find(triples[n].names[f]);
            if (!begin_case("%s + %s + %s, shape %d", triples[n].names[0], triples[n].names[1],
                            triples[n].names[2], shape))
                continue;
            s = shape_random();
            if (triples[n].dim != 0)
                s.dim = s.dim_v = triples[n].dim;
            features_make(&t, s, list, 3);
            check_both(&t, shape);
        }
}

/* Up to six features of different slots. */
static void make_crowd(test_problem *t)
{
    int list[6], chosen = 0;
    for (int attempt = 0; attempt < 6; attempt++) {
        const int f = (int)rng_int(0, feature_count - 1);
        int fits = 1;
        for (int c = 0; c < chosen; c++)
            fits &= f != list[c] && !is_same_slot(f, list[c]) && !is_refused(f, list[c]);
        if (fits)
            list[chosen++] = f;
    }
    features_make(t, shape_random(), list, chosen);
}

static void run_crowds(int count)
{
    for (int n = 0; n < count; n++) {
        test_problem t;
        if (!begin_case("crowd %d", n))
            continue;
        make_crowd(&t);
        check_both(&t, 0);
    }
}

/* The workspace is exactly what is asked for, and then anything from the least to that. */
FUZZ_HARNESS(forward, "a call of up to six features: tiled, naive, in little memory")
{
    test_problem t, little;
    (void)bytes;
    (void)count;
    make_crowd(&t);
    random_plan(&t.p);
    problem_check(&t);
    twin(&t, &little);
    if (problem_run_small(&little, (int)rng_int(0, 100)))
        CHECK(problem_same_bits(&t, &little), "in little memory");
    check_both(&little, 0);
}

/* ---- the matrix ------------------------------------------------------------------------------ */

static char cell(int a, int b)
{
    const double units = worst[a][b];
    if (is_same_slot(a, b))
        return '-';
    if (is_refused(a, b))
        return 'x';
    if (runs[a][b] == 0)
        return '.';
    return units > 1 ? '!' : (char)('0' + (units < 1 ? (int)(units * 10) : 9));
}

static void print_matrix(void)
{
    int total = 0;
    printf("  Worst error in tenths of the tolerance; - the same field, x refused by the API\n");
    for (int line = 0; line < 2; line++) {
        printf("  %13s", "");
        for (int b = 0; b < feature_count; b++)
            printf("%c", line == 0 ? '0' + b / 10 : '0' + b % 10);
        printf("\n");
    }
    for (int a = 0; a < feature_count; a++) {
        printf("  %2d %-10.10s", a, features[a].name);
        for (int b = 0; b < feature_count; b++)
            printf("%c", b < a ? cell(b, a) : cell(a, b));
        printf("\n");
        for (int b = a; b < feature_count; b++)
            total += runs[a][b];
    }
    printf("  %d runs of pairs, %d features\n", total, feature_count);
}

static void check_no_empty_cell(void)
{
    for (int a = 0; a < feature_count; a++)
        for (int b = a; b < feature_count; b++)
            if (cell(a, b) == '.')
                CHECK(0, "no run of %s with %s", features[a].name, features[b].name);
}

TEST_GROUP(masks, RUN_ROUNDED_TOO, "all pairs of masks and modifiers against the oracle")
{
    memset(worst, 0, sizeof worst);
    memset(runs, 0, sizeof runs);
    if (feature_count > MAX_FEATURES) {
        CHECK(feature_count <= MAX_FEATURES, "%d features do not fit", feature_count);
        return;
    }
    run_pairs();
    run_triples();
    run_crowds(T.best ? 400 : 40);
    if (!all_cases_run() || !T.best)
        return;
    print_matrix();
    check_no_empty_cell();
}
