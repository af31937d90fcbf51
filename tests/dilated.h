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
/* A call in which every position is a row; stored: of heads of whole units, in tensors of f32. */
void dilated_make_square(dilated_case *c, int most_features, int64_t most_positions, int stored);
/* Other branches. */
void dilated_branches(dilated_case *c);
/* The call as the options of the command line have it, on no device. */
attn_params dilated_params(const attn_params *p);
/* Holds the outputs of a call to the two definitions of tests/dilated.c. */
void dilated_check(const dilated_case *c);
/* The pairs of all heads and branches, of a call whose masks are causal, window and prefix. */
double dilated_count(const dilated_case *c);
/* attn_dilated_forward in a workspace of the size asked for; nonzero when it went well. */
int dilated_run(const attn_params *p, const attn_dilated *d);
/* Whether there is a call of attn_forward that is the same softmax. */
int dilated_is_one_softmax(const dilated_case *c);
/* The call of attn_forward that is the same softmax: its bias holds all that branches say. */
attn_params dilated_one_softmax(const dilated_case *c);

/* tests/dilated_backward.c, tests/dilated_errors.c */
void dilated_gradients(void);
/* A call as by dilated_make_square, of one softmax or a mean, with gradients by one process, which those of the
 * oracle have met if it is short; nonzero when it went well. */
int dilated_gradients_square(dilated_case *c, attn_gradients *g, int64_t most_positions);
void dilated_errors(void);

#endif
