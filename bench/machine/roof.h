/* roof.h - the two peaks that a row is held against, for as many threads as it has.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_ROOF_H
#define BENCH_ROOF_H

#include "../run.h"

/* Fills the row's peaks: FMA of one thread times threads; reading from memory measured with that
 * many threads, once for each number of them (0.1 s and 128 MiB). */
void roof_peaks(bench_context *x, bench_result *r);

#endif
