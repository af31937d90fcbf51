/* gradients.h - cases that compute gradients: what the call needs, the call and its check.
 * SPDX-License-Identifier: MIT
 *
 * Asked for are dq, dk and dv, dbias where the case has a bias and dsinks where it has sinks. o and
 * lse come from a forward call with the library's own choice of kernels, before anything is timed,
 * so that a fault planted in the kernels of the backward call is not in them. */
#ifndef BENCH_GRADIENTS_H
#define BENCH_GRADIENTS_H

#include <stddef.h>
#include <stdint.h>

#include "../../attn.h"
#include "case.h"
#include "dilated.h"

enum { GRADIENTS_MAX_ARRAYS = 7 };

typedef struct gradients_job {
    const bench_case *c;
    const dilated_job *dilated; /* NULL = the case is dense */
    attn_gradients g;
    void *owned[GRADIENTS_MAX_ARRAYS]; /* lse and what g points to */
    int num_owned;
} gradients_job;

/* Bytes beside q, k, v, o, lse and the gradients of the first four: of dbias. */
double gradients_more_bytes(const bench_case *c);

/* Sets what *p and job->g say of the call, with the address `any` wherever one is looked at. */
void gradients_describe(const bench_case *c, attn_params *p, gradients_job *job, void *any);

/* What attn_backward would do, in the fields of *info that both calls have, and with how many
 * products for a tile. Otherwise its status, and why says it. */
attn_status gradients_explain(gradients_job *job, const attn_params *p, attn_info *info, int *gemms,
                              char *why, size_t why_bytes);

/* The arrays: NaN in those that the call writes. p->q to p->o are there; o and lse are written by a
 * forward call. 0 with a sentence; gradients_free in any case. */
int gradients_make(attn_params *p, uint64_t seed, gradients_job *job, char *why, size_t why_bytes);

/* Sampled rows of dq, keys of dk and dv, elements of dbias and heads of dsinks against a
 * computation in double: the worst error, and the same in units of its tolerance. 0 = no memory. */
int gradients_verify(const gradients_job *job, const attn_params *p, double *max_err,
                     double *err_tolerance);

/* Adds 1 to the first number of a row of dq, dk, dv, or to a number of dbias or dsinks, counted
 * from 1 as they lie in memory, one array after the other. */
void gradients_spoil(gradients_job *job, const attn_params *p, int64_t row);

void gradients_free(gradients_job *job);

#endif
