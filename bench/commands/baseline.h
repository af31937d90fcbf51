/* baseline.h - `--baseline FILE`: this run against an older one of the same kind of machine.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_BASELINE_H
#define BENCH_BASELINE_H

#include "../run.h"

#define BASELINE_SLOWER 3 /* exit status */

typedef struct baseline baseline;

/* The JSON file of an older run; NULL when it is not one or of another kind of machine, and a
 * sentence was printed to stderr. */
baseline *baseline_open(const char *path, const machine_info *machine);
void baseline_close(baseline *b);

/* Compares n results with those of the file, case by case, measures again what looks slower, and
 * prints a table. 0 = not slower; BASELINE_SLOWER; 1 = nothing could be compared. */
int baseline_compare(const baseline *b, bench_context *x, const bench_result *results, int n);

typedef enum baseline_verdict {
    BASELINE_SAME,
    BASELINE_IS_FASTER,
    BASELINE_IS_SLOWER,
    BASELINE_SUSPECT
} baseline_verdict;

/* What a ratio of new to old cycles says of a row with that roof. */
baseline_verdict baseline_judge(double ratio, const char *roof);

#endif
