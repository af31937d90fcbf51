/* selfcheck.h - the bench shows that it would notice: wrong results, wrong counts, wrong times.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_SELFCHECK_H
#define BENCH_SELFCHECK_H

#include "run.h"

/* Prints failures and the closing line; returns how many checks failed. */
int selfcheck(bench_context *context);

#endif
