/* pool.h - threads for p.parallel_for.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_POOL_H
#define BENCH_POOL_H

#include "../../attn.h"

typedef struct pool pool;

/* A pool of n >= 1 workers, the caller being one of them; NULL when threads cannot be had. */
pool *pool_create(int n);
void pool_destroy(pool *p);

/* A pool of exactly n workers, numbered from 0 to n-1: p itself, or a smaller or larger one that is
 * made once and destroyed with p. NULL where p is NULL or threads cannot be had. */
pool *pool_of(pool *p, int n);

/* An attn_parallel_for_fn; user is the pool. Indices are handed out one by one, in order. */
int pool_parallel_for(void *user, int64_t n, attn_task_fn task, void *arg);

#endif
