/* scaling.h - how time and memory grow with the length: exponents of scenarios that differ in it.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_SCALING_H
#define BENCH_SCALING_H

#include "../cases/case.h"

enum { SCALING_LEAST = 3 }; /* lengths of a scenario that exponents are fitted for */

/* Rows of one scenario and path that differ in the number of keys, and rows with it, alone. Each
 * exponent is the slope of a quantity over the keys, both as logarithms. */
typedef struct bench_scaling {
    const char *preset, *scenario, *path;
    int64_t shortest, longest; /* keys */
    int cases;
    double pairs, time, workspace;
} bench_scaling;

/* At most max of them are written; returns how many. */
int scaling_of(const bench_result *results, int n, bench_scaling *out, int max);

/* Prints them; nothing where there are none. */
void scaling_report(const bench_result *results, int n);

#endif
