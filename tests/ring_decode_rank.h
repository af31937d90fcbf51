/* ring_decode_rank.h - decoding over ranks that are threads (tests/ring_decode.c) or processes (tests/mpi.c):
 * random calls, a rank's own keys, its call, and the comparison with one process and the oracle.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_RING_DECODE_RANK_H
#define ATTN_TESTS_RING_DECODE_RANK_H

#include "ring_cases.h"

enum { DECODE_MOST_RANKS = 6, DECODE_MOST_RANGES = 4 * DECODE_MOST_RANKS };

typedef enum decode_kind {
    DECODE_ALIGNED = 0, /* up to 9000 keys, cut between chunks: the bits of one process */
    DECODE_SMALL,       /* up to 200 keys, cut anywhere */
    DECODE_FAULTY       /* as DECODE_SMALL, every rank with something to do */
} decode_kind;

/* One call; o, lse and stats of p are those of one process. */
typedef struct decode_problem {
    attn_params p;
    attn_ring ring; /* without a transport */
    int spread;     /* of the ranks' keys: 0 [b, h, s, d], 1 [b, s, h, d], 2 with gaps */
    int cached;     /* nonzero: ranks draw pages, a ring, both or neither, each for itself */
    const ring_fault *fault; /* NULL: none; FETCH does not occur */
    int other_rows;          /* nonzero: the last rank has another number of rows */
    int32_t q_len[3], kv_len[3], kv_begin[3], prefix[3];
    int64_t key_base[3];
    float sinks[8], slopes[8];
    attn_ring_range ranges[DECODE_MOST_RANGES];
    int64_t first[DECODE_MOST_RANKS + 1];
    void *memory[16];
    int blocks;
    uint64_t random;
} decode_problem;

typedef struct decode_outcome {
    char why[300]; /* "" = all is well */
    attn_ring_stats stats;
    uint32_t sum; /* of all outputs, equal on all ranks */
    double worst; /* error in units of its tolerance */
} decode_outcome;

/* The same for the same seed; 0 if one process failed. decode_problem_free is called in any case. */
int decode_problem_make(decode_problem *x, uint64_t seed, int ranks, int kind);
void decode_problem_free(decode_problem *x);

/* This rank's part: with a fault every rank must return what it leads to, and write nothing. */
void decode_rank_run(const decode_problem *x, const attn_transport *t, decode_outcome *out);

#endif
