/* phases.h - where the time of a call goes: Q K^T, softmax, P V, merge and the rest.
 * SPDX-License-Identifier: MIT
 *
 * A call of its own by a copy of the kernel table whose functions count ticks, on one thread, apart
 * from the timed calls. Of gradients the phases are those whose tensors they have: S and dP count
 * as Q K^T, p and dS as softmax, what adds to dQ, dK and dV as P V, and the rows of dQ as they are
 * stored as merge. Where Q K^T computes the exponentials of an earlier block beside its products,
 * the copy computes them before, alone: the phases are apart then, the bits the same, and the sum
 * is more than the call takes. */
#ifndef BENCH_PHASES_H
#define BENCH_PHASES_H

#include "../attn.h"
#include "cases/case.h"

/* A call and what it writes. */
typedef struct phase_call {
    attn_params p;
    const attn_gradients *g; /* NULL = a forward call */
    void *workspace;
    size_t workspace_bytes;
    const void *result;
    size_t result_bytes;
} phase_call;

typedef struct phase_times { /* seconds */
    double qk;
    double softmax; /* masks, softcap and bias of the logits, maxima, exponentials and sums */
    double pv;      /* with the rescaling of sums of P V */
    double merge;   /* of states, and the division at the end */
    double rest;    /* packing, widening of 16-bit storage, deciding what to do */
    double clock;   /* that reading the clock took, a part of the five above */
} phase_times;

/* The fastest of a few calls with one worker and the kernels `set`. 0 = a call failed, memory is
 * short, or the result is not what the calls before wrote. Not for two threads at a time: the
 * counters are static. */
int phases_measure(const attn_kernels *set, const phase_call *c, phase_times *out);

/* All five together. */
double phases_sum(const phase_times *t);

/* Prints the phases of the rows that have them. */
void phases_report(const bench_result *results, int n);

#endif
