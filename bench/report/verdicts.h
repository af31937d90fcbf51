/* verdicts.h - naive against tiled in words, and what comparable suites expect.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_VERDICTS_H
#define BENCH_VERDICTS_H

#include "../cases/case.h"

/* One scenario: rows of naive and tiled of the same case, kernels and threads, those compiled
 * without vectors left out. */
typedef struct bench_verdict {
    const char *preset, *scenario, *text; /* text: from the table of thresholds */
    int cases, won;                       /* compared; in which tiled was the faster one, by P50 */
    double speedup;                       /* tiled over naive, geometric mean */
    double memory_saved;                  /* share of naive's workspace, geometric mean */
    int64_t shortest, longest;            /* keys, of the cases compared */
    int64_t crossover;                    /* from so many keys on tiled is the faster one at every
                                           * length; 0 = it is not at the longest one */
    int noisy;                            /* pairs of which a row was disturbed */
} bench_verdict;

int verdicts_of(const bench_result *results, int n, bench_verdict *out, int max);

/* What is called so much speed: "tiled is much faster" and the like. */
const char *verdict_text(double speedup);

/* An expectation next to what the rows say. */
typedef struct bench_expectation {
    const char *claim;
    int cases;       /* rows that it is measured from; 0 = not measured, and why says the reason */
    double measured; /* in its unit: percent or times */
    const char *unit, *why;
    int met;         /* measured reaches the lower end of what is claimed */
    int noisy;       /* pairs of which a row was disturbed */
} bench_expectation;

/* Expectation i from these rows; 0 beyond the last. */
int verdicts_expectation(const bench_result *results, int n, int i, bench_expectation *out);

/* Prints both; 0 = nothing, as no row of naive has its row of tiled. */
int verdicts_report(const bench_result *results, int n);

#endif
