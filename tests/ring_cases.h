/* ring_cases.h - random calls over a ring, for ranks that are threads (tests/ring.c) or processes
 * (tests/mpi.c).
 * SPDX-License-Identifier: MIT
 *
 *     ring_case c;
 *     if (ring_case_make(&c, seed, ranks, RING_ALIGNED)) {    // the same on every rank
 *         ring_case_run(&c, transport, NULL, &outcome);       // each rank; any number of threads
 *         puts(outcome.why);                                  // "" = all is well
 *     }
 *     ring_case_free(&c);
 *
 * Every rank makes the whole problem and its answer by one call of attn_forward, takes its own
 * positions, and compares. It shares nothing with the harness of test.c, which knows one thread.
 */
#ifndef ATTN_TESTS_RING_CASES_H
#define ATTN_TESTS_RING_CASES_H

#include "../attn.h"
#include "oracle.h"
#include "oracle_backward.h"

#include <stddef.h>
#include <stdint.h>

typedef enum ring_case_kind {
    RING_ALIGNED = 0, /* cut between chunks of 1024 keys: the bits of one process */
    RING_SMALL,       /* up to 120 positions, cut anywhere, gradients: the bounds of the oracle */
    RING_MIXED,       /* up to 3000 positions, cut anywhere */
    RING_FAULTY       /* as RING_SMALL, every rank with something to do */
} ring_case_kind;

/* Without stats gradients read the lse; with both it is spoiled for them. */
enum { SUMS_LSE = 0, SUMS_STATS, SUMS_BOTH };

typedef struct ring_case {
    char name[200];
    int ranks, kind;
    attn_params p; /* the whole problem; o, lse and stats by one process */
    attn_gradients g;
    attn_ring ring; /* without a transport */
    double pairs;   /* that ranks may compute, in all */
    int spread;     /* of the ranks' tensors: 0 [b, h, s, d], 1 [b, s, h, d], 2 with gaps */
    int forgets;    /* nonzero: packed strides are 0, in layouts that take turns by rank */
    int gathers;    /* ring.gather of the backward call, */
    void *dq;       /* and then dq by one process */
    int fetches;    /* keys and values come by ring.fetch */
    int stored;     /* in types that only K and V may have, which have no gradients */
    int sums;       /* that ranks are asked for: SUMS_... */
    int wanted[ORACLE_GRADIENTS];
    uint64_t random;
    void *memory[40];
    int blocks;
    oracle_gradient expected[ORACLE_GRADIENTS];
} ring_case;

/* What fails, where. */
typedef enum ring_fault_kind {
    RING_FAULT_NONE = 0,
    RING_FAULT_BEGIN,
    RING_FAULT_END,
    RING_FAULT_FETCH,
    RING_FAULT_COMPUTE,
    RING_FAULT_WORKSPACE,
    RING_FAULT_ARGUMENT,
    RING_FAULT_KINDS
} ring_fault_kind;

typedef struct ring_fault {
    int kind, rank, at; /* at: the call of that callback that fails, from 0 on */
    int backward;
} ring_fault;

/* How many calls of the callback can fail in a case of RING_FAULTY: each exchange of shards, and those
 * of sums over all rows. */
static inline int ring_fault_places(const ring_case *c, int kind, int backward)
{
    const int hops = c->ranks - 1;
    if (kind != RING_FAULT_BEGIN && kind != RING_FAULT_END)
        return 1;
    if (!backward || hops == 0)
        return hops;
    return (c->gathers ? 2 * hops : c->ranks + 1) + 2 * hops;
}

typedef struct ring_outcome {
    char why[400];
    attn_ring_stats stats, backward;
    double worst;         /* error in units of its tolerance */
    uint32_t shared_bits; /* hash of the gradients that every rank must have alike */
} ring_outcome;

/* 0 = no memory, or the call is wrong; name then says which. */
int ring_case_make(ring_case *c, uint64_t seed, int ranks, int kind);
void ring_case_free(ring_case *c);

/* The bytes of whole units of a storage type. */
int64_t ring_bytes_of(int dtype, int64_t numbers);

/* What is wrong with the lse and the statistics of a row of head h, NULL = nothing: m + log2(l) must be the
 * LSE, and m from 16 below the largest logit, base 2, up to it, or the sink where that is more. Each may be
 * NULL. *worst becomes the largest error in units of its tolerance. */
const char *ring_sums_wrong(const attn_params *p, int64_t h, const oracle_result *expected,
                            const float *lse, const float *stats, double *worst);

/* This rank's part. With a fault every rank must first return what it leads to, with all outputs as
 * they were; the next call must do well. */
void ring_case_run(const ring_case *c, const attn_transport *t, const ring_fault *fault,
                   ring_outcome *out);

#endif
