/* selfcheck.h - the bench shows that it would notice: wrong results, wrong counts, wrong times.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_SELFCHECK_H
#define BENCH_SELFCHECK_H

#include "run.h"

/* Prints failures and the closing line; returns how many checks failed. */
int selfcheck(bench_context *context);

/* Counts a check; held = 0: prints what it was about, and the value. */
typedef void selfcheck_expect(int held, const char *what, double value);

/* The part about paths, rankings, verdicts, phases: selfcheck_paths.c. */
void selfcheck_paths(bench_context *context, selfcheck_expect *expect);

#endif
