/* caches.h - the summary of preset cache: storage types, where keys lie, sharing, appending.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_CACHES_H
#define BENCH_CACHES_H

#include "../cases/case.h"

/* What pages of one size, or a ring, cost in decoding over a contiguous cache. */
typedef struct caches_cost {
    const char *keys;
    int64_t page_size;
    int cases;
    double mean, worst; /* percent of the time; mean: of the geometric mean of the ratios */
    const char *worst_case;
    double goal; /* 0 = none */
    int noisy;   /* rows that were disturbed */
} caches_cost;

/* One for each place of keys that decoding was timed with, in order of appearance. */
int caches_costs(const bench_result *results, int n, caches_cost *out, int max);

/* Prints nothing where there are no such rows. */
void caches_report(const bench_result *results, int n);

#endif
