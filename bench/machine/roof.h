/* roof.h - the two peaks that a row is held against, for as many threads as it has.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_ROOF_H
#define BENCH_ROOF_H

#include "../run.h"

/* How many of so many threads can run at once. */
double roof_cpus(const bench_context *x, int threads);

/* Fills the row's peaks: FMA of one thread times threads, but no more than CPUs; reading from
 * memory measured with that many threads, once for each number of them (0.1 s and 128 MiB). */
void roof_peaks(bench_context *x, bench_result *r);

#endif
