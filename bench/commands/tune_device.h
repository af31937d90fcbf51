/* tune_device.h - from how many operations on the OpenCL device is faster than the CPU.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_TUNE_DEVICE_H
#define BENCH_TUNE_DEVICE_H

#include "../run.h"

typedef struct tune_crossover {
    char device[128]; /* "" = there is none */
    double flops;     /* for attn_opencl_options.least_flops; 0 = nothing can be said */
    int keys;         /* of the shortest call at which it won */
} tune_crossover;

/* Prints what it measures: prefills of growing length with arrays of the host, by all threads of
 * the CPU and by the device in turn. */
void tune_device(bench_context *x, double seconds, tune_crossover *out);

/* The first of n growing lengths from which on the device was faster at each one; n = at none. */
int tune_crossover_of(const double *cpu_seconds, const double *device_seconds, int n);

#endif
