/* dilated.h - random calls of dilated attention.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_DILATED_H
#define ATTN_TESTS_DILATED_H

#include "../attn.h"
#include "test.h"

enum { DILATED_BRANCHES = 4 };

typedef struct dilated_case {
    test_problem t;
    attn_dilated d;
    attn_dilated_branch branches[DILATED_BRANCHES]; /* d.branches, set again by whoever copies */
} dilated_case;

/* A random call with up to that number of features of tests/features.c. */
void dilated_make(dilated_case *c, int most_features, int64_t most_positions);
/* Other branches. */
void dilated_branches(dilated_case *c);
/* attn_dilated_forward in a workspace of the size asked for; nonzero when it went well. */
int dilated_run(const attn_params *p, const attn_dilated *d);
/* The call of attn_forward that is the same softmax: its bias holds all that branches say. */
attn_params dilated_one_softmax(const dilated_case *c);

/* tests/dilated_backward.c, tests/dilated_errors.c */
void dilated_gradients(void);
void dilated_errors(void);

#endif
