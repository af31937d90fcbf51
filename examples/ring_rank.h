/* ring_rank.h - one rank of a context-parallel call, over any transport: ring.c (threads) and
 * mpi_ring.c (processes) share it.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_EXAMPLES_RING_RANK_H
#define ATTN_EXAMPLES_RING_RANK_H

#include "../attn.h"

typedef struct ring_rank {
    int layout;         /* an attn_ring_layout */
    int arrival;        /* nonzero merges parts as they arrive: see attn_ring.arrival */
    int64_t positions;  /* length of the whole sequence */
    /* ---- the result */
    int64_t length;     /* number of positions of this rank */
    uint64_t checksum;  /* of its rows of O; the sum over ranks does not depend on the cut */
    attn_ring_stats stats;
    char why[200];      /* "ok", or a sentence that says what is wrong */
} ring_rank;

/* Makes this rank's q, k and v, which no other rank needs to have, and computes its rows of O. */
void ring_rank_run(ring_rank *r, const attn_transport *transport);

#endif
