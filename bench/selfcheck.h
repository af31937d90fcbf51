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

void check_masks(bench_context *context); /* selfcheck_masks.c */
void check_lists(bench_context *context); /* selfcheck_presets.c */

void check_files(void);                   /* costs, exponents, JSON: selfcheck_files.c */

/* Paths, rankings, verdicts, phases: selfcheck_paths.c. */
void check_paths(bench_context *context);

#endif
