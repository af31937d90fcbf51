/* memory.h - `bench memory`: how memory grows with the length, one fresh process for each point.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H

#include "../run.h"

enum { MEMORY_MAX_POINTS = 16 };

/* The exponent of n lengths and their growth; bytes that cannot be told from none count as that
 * many: see memory.c. */
double memory_exponent(const double *lengths, const double *growth, int n);

/* Prints the table and the exponents. *n results are written, at most MEMORY_MAX_POINTS. Returns
 * the exit status: 0 = both exponents are what they should be. */
int memory_command(bench_context *x, int quick, bench_result *results, int *n);

#endif
