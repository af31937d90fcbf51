/* features.h - every mask and modifier as one row of a table, switched on with random values.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_FEATURES_H
#define ATTN_TESTS_FEATURES_H

#include "test.h"

/* Two features of the same slot set the same field in two ways and cannot meet. */
typedef struct feature {
    const char *name, *slot;
    void (*shape)(test_shape *s);   /* before the tensors are made; NULL = nothing */
    void (*setup)(test_problem *t); /* after; NULL = nothing. In the order of the table */
} feature;

extern const feature features[];
extern const int feature_count;

/* Index by name; fails the run on an unknown one. */
int feature_find(const char *name);

/* Makes a problem of *shape with the features of the list switched on in the table's order. */
void features_make(test_problem *t, test_shape shape, const int *list, int count);

/* The derivative of the callback of "score_fn" by its logit, where that is not -inf. */
float features_score_derivative(void *user, const attn_pair *at, float logit);

/* Callbacks are to see the pairs of this problem from now on, whose lengths have changed. */
void features_told(const test_problem *t);

/* How often a callback saw a pair whose pos, n, i or j was not what attn.h says, since made. */
int features_bad_pairs(void);

#endif
