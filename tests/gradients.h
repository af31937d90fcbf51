/* gradients.h - a forward call, what its gradients need beside it, and where they go.
 * SPDX-License-Identifier: MIT
 *
 *     gradients_case s;
 *     gradients_make(&s, shape, list, count);   // features of the list, dout, dlse, all outputs
 *     if (gradients_forward(&s) && gradients_run(&s))
 *         gradients_check(&s, expected);        // expected: of oracle_backward(&s.t.p, &s.g)
 *
 * Outputs have random layouts and storage types; every byte of them is 0xff before a run, so that
 * one that should be written and is not shows as a NaN that is never stored.
 */
#ifndef ATTN_TESTS_GRADIENTS_H
#define ATTN_TESTS_GRADIENTS_H

#include "oracle_backward.h"
#include "test.h"

typedef struct gradients_case {
    test_problem t; /* o, stats and lse are inputs of the backward call */
    attn_gradients g;
    test_tensor dout, dlse;
    struct {
        unsigned char *memory;
        size_t bytes;
    } out[ORACLE_GRADIENTS]; /* whole blocks, gaps included */
} gradients_case;

/* A random small shape, in which work for the oracle is limited; `work` scales the limit. */
test_shape gradients_shape(int work);
/* Whether attn_backward can take feature f. */
int gradients_takes(int f);
/* Adds up to `most` random features that it can take to the `count` in list, all of different
 * slots; none named in banned, by feature or slot (NULL at the end, or NULL). Returns how many they
 * are then. */
int gradients_add(int *list, int count, int most, const char *const *banned);

/* Probabilities come from stats in three calls of four, with lse beside it or not, else from lse. */
void gradients_make(gradients_case *s, test_shape shape, const int *list, int count);
/* The same without features, for a problem that is there: dout, dlse and outputs. */
void gradients_attach(gradients_case *s);
/* New outputs of other layouts, all 0xff; storage types as before or, with dtype -1, at random. */
void gradients_new_outputs(gradients_case *s, int dtype);
/* A copy with outputs of its own: the same storage types. */
void gradients_twin(const gradients_case *a, gradients_case *b);

/* Gives s copies of all its inputs, to be changed without changing those of another; then their
 * bytes must be remembered again. */
void gradients_own_inputs(gradients_case *s);
void gradients_remember(gradients_case *s);

/* Runs attn_forward, then writes NaN over all rows and keys that are beyond the lengths. */
int gradients_forward(gradients_case *s);

/* test_params(p), but the implementation is the one asked for here, tiled by default. */
attn_params gradients_params(const attn_params *p);
/* attn_backward with a workspace of exactly the size asked for; of the least size that
 * attn_backward_check takes. */
attn_status backward_run(const attn_params *p, const attn_gradients *g);
attn_status backward_run_least(const attn_params *p, const attn_gradients *g);
/* The same with checks: status, inputs unchanged, nothing but elements in use written. */
int gradients_run(gradients_case *s);
int gradients_run_least(gradients_case *s);

/* One CHECK for each gradient that is wanted; returns the worst error in units of its tolerance. */
double gradients_check(const gradients_case *s, const oracle_gradient expected[ORACLE_GRADIENTS]);
/* Calls the oracle, too. */
double gradients_check_oracle(const gradients_case *s);

/* Element `at` of gradient `which` as f32; NULL elements, those not in use: returns 0. */
int gradients_get(const gradients_case *s, int which, const int64_t at[4], float *value);
/* Elements of which the bits differ, of those gradients that both have; *first: text of the first.
 */
int64_t gradients_differences(const gradients_case *a, const gradients_case *b, char first[200]);
/* CHECKs that there are none. */
int gradients_same(const gradients_case *a, const gradients_case *b, const char *what);
/* Calls function for every element of the sizes given, in order. */
void gradients_each(const oracle_gradient *of, void (*function)(void *user, const int64_t at[4]),
                    void *user);

#endif
