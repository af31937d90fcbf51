/* ranking.h - the fastest path of each case, and all paths in order.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_RANKING_H
#define BENCH_RANKING_H

#include "../cases/case.h"

typedef struct bench_rank {
    const char *path;
    int cases, won; /* timed; in which no path was faster */
    double share;   /* geometric mean over its cases of the best time / its own, by P50: 1 = always
                     * the fastest */
} bench_rank;

/* Best first; how many were written. Only cases that the path was timed in count for it. */
int ranking_of(const bench_result *results, int n, bench_rank *out, int max);

/* Prints both where more than two paths were timed; 0 = nothing. */
int ranking_report(const bench_result *results, int n);

#endif
