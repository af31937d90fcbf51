/* verdicts.h - naive against tiled and CPU against device in words, and what comparable suites
 * expect.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_VERDICTS_H
#define BENCH_VERDICTS_H

#include "../cases/case.h"

/* What is compared; the second of each is "ours", the first "theirs". */
typedef enum verdict_kind {
    VERDICT_TILED,        /* naive and tiled on the CPU: of the same kernels and threads, those
                           * compiled without vectors left out */
    VERDICT_TILED_DEVICE, /* naive and tiled on the device */
    VERDICT_DEVICE,       /* the CPU's fastest path and the device with arrays of the host */
    VERDICT_RESIDENT,     /* and with arrays that are on it */
    VERDICT_KINDS
} verdict_kind;

enum { VERDICT_TEXT = 32 };

/* One scenario: rows of both of the same case. */
typedef struct bench_verdict {
    const char *preset, *scenario;
    char text[VERDICT_TEXT];          /* from the table of thresholds */
    int cases, won;                   /* compared; in which ours was the faster one, by P50 */
    double speedup;                   /* ours over theirs, geometric mean */
    double memory_saved;              /* share of theirs' workspace, geometric mean */
    double launch, transfer, compute; /* shares of our calls on the device, summed over the cases */
    int64_t shortest, longest;        /* keys, of the cases compared */
    int64_t crossover; /* from so many keys on ours is the faster one at every length; 0 =
                                * it is not at the longest one */
    int noisy;         /* pairs of which a row was disturbed */
} bench_verdict;

int verdicts_of(verdict_kind kind, const bench_result *results, int n, bench_verdict *out, int max);

/* What is called so much speed: "tiled is much faster" and the like. */
void verdict_text(verdict_kind kind, double speedup, char text[VERDICT_TEXT]);

/* An expectation next to what the rows say. */
typedef struct bench_expectation {
    const char *claim;
    int cases;       /* rows that it is measured from; 0 = not measured, and why says the reason */
    double measured; /* in its unit: percent or times */
    const char *unit, *why;
    int met;   /* measured reaches the lower end of what is claimed */
    int noisy; /* pairs of which a row was disturbed */
} bench_expectation;

/* Expectation i from these rows; 0 beyond the last. */
int verdicts_expectation(const bench_result *results, int n, int i, bench_expectation *out);

/* Prints both; 0 = nothing, as no row has its counterpart. */
int verdicts_report(const bench_result *results, int n);

#endif
