/* backward.c - gradients of random calls against the oracle.
 * SPDX-License-Identifier: MIT
 *
 * A call has one mask or modifier of tests/features.c and up to four more, random layouts and
 * storage types of everything read and written, and runs by the tiled path, with 5 or 7 matrix
 * products and any size of tile, and by the naive one. Rows and keys beyond the lengths hold NaN,
 * and what lies between the elements of an output must not change. Rows that see nothing and keys
 * that nobody sees are +0 exactly: the oracle gives them no tolerance.
 */
#include "backward.h"
#include "features.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OTHERS = 4, ROUNDS = 12, CROWDS = 800, OTHER_SETS = 8 };

/* How to compute: no bit depends on it. */
void random_way(gradients_case *s)
{
    static const int64_t tiles[] = { 0, 16, 32, 64, 128, 256 }, products[] = { 0, 5, 7 };
    s->t.p.tile_keys = (int)RNG_PICK(tiles);
    s->t.p.force_redo = rng_chance(15);
    s->g.gemms = (int)RNG_PICK(products);
}

/* Some outputs are not wanted; one at least is. */
static void drop_outputs(gradients_case *s)
{
    if (rng_chance(10))
        s->g.dq.data = NULL;
    if (rng_chance(10))
        s->g.dk.data = NULL;
    if (rng_chance(10))
        s->g.dbias.data = NULL;
    if (rng_chance(10) && (s->g.dq.data != NULL || s->g.dk.data != NULL))
        s->g.dv.data = NULL;
}

/* Both implementations against the oracle, which is asked twice where its tolerance depends on the
 * way: where o is stored in 16 bits, and for sums over rows. */
static void check_both(gradients_case *s)
{
    gradients_case naive;
    oracle_gradient expected[ORACLE_GRADIENTS];
    if (!gradients_forward(s) || !gradients_run(s))
        return;
    if (!CHECK(oracle_backward(&s->t.p, &s->g, expected) == 0, "no memory"))
        return;
    gradients_check(s, expected);
    CHECK(features_bad_pairs() == 0, "a callback was told a wrong position %d times",
          features_bad_pairs());
    gradients_twin(s, &naive);
    naive.t.p.impl = ATTN_IMPL_NAIVE;
    if (rng_chance(60) && gradients_run(&naive)) {
        if (s->t.p.o.dtype == ATTN_F32 && s->t.p.bias.data == NULL && s->t.p.alibi_slopes == NULL)
            gradients_check(&naive, expected);
        else
            gradients_check_oracle(&naive);
    }
    oracle_backward_free(expected);
}

static void run_features(void)
{
    for (int f = 0; f < feature_count; f++)
        for (int n = 0; n < ROUNDS; n++) {
            int list[1 + OTHERS], count = 1;
            gradients_case s;
            if (!gradients_takes(f) || (!T.best && T.only_case < 0 && n % OTHER_SETS != 0)) {
                pass_over_case();
                continue;
            }
            if (!begin_case("%s%s, %d", features[f].name, n < 4 ? "" : " and others", n))
                continue;
            list[0] = f;
            if (n >= 4)
                count = gradients_add(list, 1, OTHERS, NULL);
            gradients_make(&s, gradients_shape(1), list, count);
            random_way(&s);
            drop_outputs(&s);
            check_both(&s);
        }
}

static void run_crowds(void)
{
    for (int n = 0; n < CROWDS; n++) {
        int list[2 + OTHERS];
        gradients_case s;
        if (!T.best && T.only_case < 0 && n % OTHER_SETS != 0) {
            pass_over_case();
            continue;
        }
        if (!begin_case("crowd %d", n))
            continue;
        gradients_make(&s, gradients_shape(1), list, gradients_add(list, 0, 2 + OTHERS, NULL));
        random_way(&s);
        check_both(&s);
    }
}

FUZZ_HARNESS(backward, "gradients of a call of up to six features: tiled, naive, least memory")
{
    int list[2 + OTHERS];
    gradients_case s, least;
    (void)bytes;
    (void)count;
    gradients_make(&s, gradients_shape(1), list, gradients_add(list, 0, 2 + OTHERS, NULL));
    random_way(&s);
    drop_outputs(&s);
    check_both(&s);
    gradients_twin(&s, &least);
    if (gradients_run_least(&least))
        gradients_same(&s, &least, "in the least memory");
}

/* More than a chunk of 1024 rows, keys or both, few of the other and small heads. */
static void run_chunks(void)
{
    static const int64_t lengths[] = { 1023, 1024, 1025, 1100, 2049, 2100 };
    static const char *const banned[] = {
        "long", "dims", "tree", "kv_len", "q_len", "varlen", NULL
    };
    for (int n = 0; n < 24; n++) {
        int list[3], count;
        test_shape shape;
        gradients_case s;
        if (!begin_case("chunks, %d", n))
            continue;
        memset(&shape, 0, sizeof shape);
        shape.batch = rng_int(1, 2);
        shape.heads_q = shape.heads_kv = 1;
        shape.seq_q = n % 3 == 1 ? rng_int(1, 5) : RNG_PICK(lengths);
        shape.seq_kv = n % 3 == 0 ? rng_int(1, 5) : n % 3 == 1 ? RNG_PICK(lengths) : 1030;
        shape.dim = rng_int(1, 3);
        shape.dim_v = rng_int(1, 3);
        count = gradients_add(list, 0, 3, banned);
        if (n % 3 == 2) { /* a million pairs, of which a window leaves few */
            if (n != 2 && n != 5)
                continue;
            shape.batch = 1;
            list[0] = feature_find("window");
            count = 1;
        }
        gradients_make(&s, shape, list, count);
        if (n % 3 == 2)
            s.t.p.window_left = s.t.p.window_right = n == 2 ? 3 : 40;
        random_way(&s);
        check_both(&s);
    }
}

/* Without rows, keys or both: what nothing enters is +0, all of it. */
static void run_empty(void)
{
    for (int n = 0; n < 24; n++) {
        static const char *const names[] = { "sinks", "bias_f32", "alibi" };
        int list[3], count = 0;
        gradients_case s;
        test_shape shape = gradients_shape(1);
        if (!begin_case("empty, %d", n))
            continue;
        shape.batch = n % 8 == 7 ? 0 : 2;
        shape.seq_q = n % 2 == 0 ? 0 : 3;
        shape.seq_kv = n % 4 < 2 ? 0 : 5;
        for (int f = 0; f < 3; f++)
            if (rng_chance(60))
                list[count++] = feature_find(names[f]);
        gradients_make(&s, shape, list, count);
        random_way(&s);
        check_both(&s);
    }
}

/* Quick, for a sanitizer of threads: what runs on them, with the best set. */
TEST_GROUP(backward, RUN_EACH_SET, "gradients against the oracle; NaN and Inf; the same bits")
{
    if (getenv("ATTN_TEST_QUICK") != NULL) {
        if (T.best)
            backward_laws();
        return;
    }
    run_features();
    run_crowds();
    run_chunks();
    run_empty();
    backward_poison();
    backward_laws();
}
