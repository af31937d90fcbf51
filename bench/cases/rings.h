/* rings.h - a case divided among ranks: a thread each, with a transport within the process.
 * SPDX-License-Identifier: MIT
 *
 * Each rank has arrays of its own for its positions of q, k, v, o and, backward, lse, dout, dq, dk
 * and dv: filled from the case's arrays before the first call, and copied back after it. */
#ifndef BENCH_RINGS_H
#define BENCH_RINGS_H

#include "../../attn.h"
#include "case.h"
#include "paths.h"

typedef struct rings_rank rings_rank;

typedef struct rings_job {
    const bench_case *c;
    attn_ring ring; /* but for transport and stats, which each rank has */
    int num_ranks;  /* 0 = the case is not divided */
    int canonical;  /* the result has the bits of one process */
    rings_rank *ranks;
} rings_job;

/* Sets what the job says of a call by a path of a ring; otherwise num_ranks becomes 0. */
void rings_describe(const bench_case *c, const bench_path *path, int threads, rings_job *job);

/* Whether the case can be divided; 0 with a sentence. */
int rings_possible(const rings_job *job, char *why, size_t why_bytes);

/* The bytes of workspace of all ranks together; otherwise the status, and why says it. */
attn_status rings_size(rings_job *job, const attn_params *p, const attn_gradients *g, size_t *bytes,
                       char *why, size_t why_bytes);

/* The ranks' arrays and workspaces, with what p and g (NULL = a forward call) point to; 0 = no
 * memory. */
int rings_make(rings_job *job, const attn_params *p, const attn_gradients *g);

/* One call by all ranks. */
attn_status rings_call(rings_job *job);

/* A fault for checks of the bench: the first rank has the keys of the last one. */
void rings_plant(rings_job *job);

/* Copies what the ranks wrote to where p and g point. */
void rings_collect(rings_job *job);

/* What the last call moved, in all; seconds in the transport, mean of the ranks; pairs of the rank
 * that had most over the mean. */
typedef struct rings_figures {
    double moved_bytes, exchange_seconds, balance;
} rings_figures;
rings_figures rings_told(const rings_job *job);

void rings_free(rings_job *job);

#endif
