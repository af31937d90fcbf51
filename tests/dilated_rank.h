/* dilated_rank.h - dilated attention over ranks, for ranks that are threads (tests/dilated_ring.c) or
 * processes (tests/mpi.c): a rank's own tensors, its call, and the comparison with one process.
 * SPDX-License-Identifier: MIT
 *
 * It shares nothing with the harness of test.c, which knows one thread. What is not a rank's own is
 * nowhere in its tensors: what it reads of other ranks has come by messages.
 */
#ifndef ATTN_TESTS_DILATED_RANK_H
#define ATTN_TESTS_DILATED_RANK_H

#include "ring_cases.h"

/* One call; o, lse and stats of p, and the gradients of g, are those of one process. */
typedef struct dilated_rank_case {
    attn_params p;
    attn_dilated d;
    const attn_gradients *g; /* NULL: a forward call */
    attn_ring ring;          /* without a transport */
    int spread; /* of the ranks' tensors: 0 [b, h, s, d], 1 [b, s, h, d], 2 with gaps */
    const ring_fault *fault; /* NULL: none; of those of rings FETCH does not occur */
    int other_branches;      /* nonzero: the last rank has another dilation */
} dilated_rank_case;

typedef struct dilated_rank_outcome {
    char why[300]; /* "" = all is well */
    attn_ring_stats stats;
} dilated_rank_outcome;

/* This rank's part: with a fault every rank must return what it leads to. */
void dilated_rank_run(const dilated_rank_case *c, const attn_transport *t,
                      dilated_rank_outcome *out);

/* A random call of its own, the same for the same seed, with its answer by one process; 0 if that failed.
 * x->memory is to be freed. */
typedef struct dilated_rank_problem {
    dilated_rank_case c;
    attn_dilated_branch branches[3];
    attn_gradients g;
    float *memory;
} dilated_rank_problem;
int dilated_rank_make(dilated_rank_problem *x, uint64_t seed, int ranks);
/* The same with gradients. */
int dilated_rank_make_gradients(dilated_rank_problem *x, uint64_t seed, int ranks);

#endif
