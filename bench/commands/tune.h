/* tune.h - `bench tune`: measures which sizes suit this machine and writes them for p.tuning.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_TUNE_H
#define BENCH_TUNE_H

#include <stdint.h>

#include "../run.h"
#include "tuning.h"

enum { TUNE_MAX_CASES = 2, TUNE_MAX_TRIALS = 10 };

/* One value tried. */
typedef struct tune_trial {
    int64_t value;
    double seconds[TUNE_MAX_CASES]; /* medians */
    double error[TUNE_MAX_CASES];   /* of the medians, as shares of them */
} tune_trial;

#define TUNE_LEAST_GAIN 0.02

/* Which of n >= 2 trials to take: the first and the last are the usual value, measured twice. The
 * fastest that is ahead of the usual one by more than TUNE_LEAST_GAIN and than the noise, and
 * behind in no case; else 0. The noise is how far the two lie apart, or their error where that is
 * more. *gain is that of the fastest, taken or not. */
int tune_choose(const tune_trial *trials, int n, int cases, double *gain, double *noise);

/* Candidate `value` of field `field` as the table of what is tried has it, with its name; 0 beyond
 * the last. Value 0 is the usual one (-1 = none can be named). */
int tune_candidate(int field, int value, const char **name, int64_t *out);

/* `bench tune`: returns the exit status. */
int tune_command(bench_context *x, int quick, const char *path);

#endif
