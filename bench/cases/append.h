/* append.h - cases that append keys and values to a cache: the call and its check.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_APPEND_H
#define BENCH_APPEND_H

#include "keys.h"

typedef struct append_job {
    keys_store store;
    attn_rope rope;
    attn_cache_step step;
    float *table;     /* cos, then sin, of every position of the cache; NULL = none */
    float *read_back; /* k, then v, of one sequence, for the check */
} append_job;

/* An empty cache and a step of the plain arrays p->k and p->v. 0 with a sentence in why;
 * append_free in any case. */
int append_make(const bench_case *c, const attn_params *p, uint64_t seed, append_job *job,
                char *why, size_t why_bytes);

/* A measure_fn: appends the step; a cache that is full is emptied before. */
int append_call(void *job);

/* What the last call stored against double precision: the worst error, and the same in units of
 * its tolerance. 0 with a sentence: it cannot be read. */
int append_verify(append_job *job, double *max_err, double *err_tolerance, char *why,
                  size_t why_bytes);

void append_free(append_job *job);

#endif
