/* stats.c - what many timings of the same call say.
 * SPDX-License-Identifier: MIT */
#include "stats.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(const double *sorted, int n, double q)
{
    const double at = q * (double)(n - 1);
    const int low = (int)at;
    if (low + 1 >= n)
        return sorted[n - 1];
    return sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low]);
}

void bench_stats_of(double *values, int n, bench_stats *out)
{
    double sum = 0, squares = 0;
    qsort(values, (size_t)n, sizeof *values, ascending);
    for (int i = 0; i < n; i++)
        sum += values[i];
    out->n = n;
    out->min = values[0];
    out->mean = sum / n;
    for (int i = 0; i < n; i++) {
        const double d = values[i] - out->mean;
        squares += d * d;
    }
    out->std = n > 1 ? sqrt(squares / (n - 1)) : 0;
    out->p50 = bench_quantile(values, n, 0.50);
    out->p95 = bench_quantile(values, n, 0.95);
    out->p99 = bench_quantile(values, n, 0.99);
    /* How many of n values lie below their true median has a deviation of sqrt(n) / 2. */
    const double share = 0.5 / sqrt(n);
    out->p50_error =
        0.5 * (bench_quantile(values, n, 0.5 + share) - bench_quantile(values, n, 0.5 - share));
}

double bench_exponent(const double *x, const double *y, int n)
{
    double mean_x = 0, mean_y = 0, products = 0, squares = 0;
    for (int i = 0; i < n; i++) {
        mean_x += log(x[i]) / n;
        mean_y += log(y[i]) / n;
    }
    for (int i = 0; i < n; i++) {
        products += (log(x[i]) - mean_x) * (log(y[i]) - mean_y);
        squares += (log(x[i]) - mean_x) * (log(x[i]) - mean_x);
    }
    return products / squares;
}
