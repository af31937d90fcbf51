/* stats.h - what many timings of the same call say.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

typedef struct bench_stats {
    int n;
    double min, mean, std; /* std: of the sample, divisor n - 1; 0 for one value */
    double p50, p95, p99;  /* linear between the two nearest order statistics */
    double p50_error;      /* half the 68 % interval of p50, whatever the distribution is */
} bench_stats;

/* Sorts the n >= 1 values in place and describes them. */
void bench_stats_of(double *values, int n, bench_stats *out);

/* The quantile q in [0, 1] of n >= 1 ascending values. */
double bench_quantile(const double *sorted, int n, double q);

/* The exponent e of y = c * x^e, by least squares of the logarithms of n >= 2 points; every number
 * is positive and not all x are equal. */
double bench_exponent(const double *x, const double *y, int n);

#endif
