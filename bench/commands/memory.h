/* memory.h - `bench memory`: how memory grows with the length, one fresh process for each point.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_MEMORY_H
#define BENCH_MEMORY_H

#include "../run.h"

enum { MEMORY_MAX_POINTS = 32 };

/* The exponent of n lengths and their growth; bytes that cannot be told from none count as that
 * many: see memory.c. */
double memory_exponent(const double *lengths, const double *growth, int n);

/* The exponent by which n bytes grow from one length to the next: what does not grow is not in it.
 * Lengths are in one ratio. */
double memory_growth_exponent(const double *lengths, const double *bytes, int n);

/* Prints the table and the exponents. *n results are written, at most MEMORY_MAX_POINTS. Returns
 * the exit status: 0 = all exponents are what they should be. */
int memory_command(bench_context *x, int quick, bench_result *results, int *n);

#endif
