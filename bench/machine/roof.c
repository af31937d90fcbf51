/* roof.c - the two peaks that a row is held against, for as many threads as it has.
 * SPDX-License-Identifier: MIT */
#include "../run.h"

#include "machine.h"

double roof_cpus(const bench_context *x, int threads)
{
    return x->machine.cpus > 0 && threads > x->machine.cpus ? x->machine.cpus : threads;
}

static double read_peak(bench_context *x, int threads)
{
    int i = 0;
    if (threads == 1)
        return x->probe.read_gbs;
    while (i < x->num_read_peaks && x->read_peaks[i].threads != threads)
        i++;
    if (i < x->num_read_peaks)
        return x->read_peaks[i].gbytes_per_s;
    const double rate = probe_reading(threads, pool_parallel_for, x->workers);
    if (i < RUN_MAX_READ_PEAKS) {
        x->read_peaks[i].threads = threads;
        x->read_peaks[i].gbytes_per_s = rate;
        x->num_read_peaks++;
    }
    return rate;
}

void roof_peaks(bench_context *x, bench_result *r)
{
    r->fma_peak_gflops = x->probe.best.gflops * roof_cpus(x, (int)r->threads);
    r->read_peak_gbytes_per_s = read_peak(x, (int)r->threads);
}
