/* pool.h - a parallel_for for tests: threads or one, any order of indices, failures on request.
 * SPDX-License-Identifier: MIT
 *
 *     pool threads = pool_of(3, POOL_SHUFFLED, 1);
 *     p.num_workers = threads.workers;
 *     p.parallel_for = pool_for;
 *     p.parallel_user = &threads;
 *
 * One pool runs at a time. Checks and random numbers are left to the calling thread.
 */
#ifndef ATTN_TESTS_POOL_H
#define ATTN_TESTS_POOL_H

#include "test.h"

enum { POOL_ASCENDING, POOL_DESCENDING, POOL_SHUFFLED, POOL_ORDERS };
enum { POOL_MAX_WORKERS = 16, POOL_MAX_ITEMS = 1 << 16 };

typedef struct pool {
    int workers, order;
    int threads;      /* nonzero: real ones, where there are any; else the caller plays each */
    int fail_at;      /* the loop of this number returns nonzero; -1 = none */
    int fail_percent; /* and runs this share of its indices first */
    /* what happened */
    int loops;     /* calls of pool_for */
    int64_t items; /* indices run, in all loops */
    int wrong;     /* loops of which an index did not run exactly once */
} pool;

extern const int pool_has_threads;

pool pool_of(int workers, int order, int threads);

/* An attn_parallel_for_fn; user is a pool. */
int pool_for(void *user, int64_t n, attn_task_fn task, void *arg);

#endif
