/* selfcheck.h - the bench shows that it would notice: wrong results, wrong counts, wrong times.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_SELFCHECK_H
#define BENCH_SELFCHECK_H

#include "run.h"

/* Prints failures and the closing line; returns how many checks failed. */
int selfcheck(bench_context *context);

/* ---- for the files of checks */

/* Counts a check, and says what and which value when it did not hold. */
void expect(int held, const char *what, double value);

void check_masks(bench_context *context); /* masks_test.c */
void check_lists(bench_context *context); /* presets_test.c */

#endif
