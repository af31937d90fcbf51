/* measure.h - the measuring core: times any call, knows nothing of attention.
 * SPDX-License-Identifier: MIT
 *
 *     measure_plan plan = {10, 100, 0, 0};
 *     measure_result r;
 *     double cold = measure_once(call, arg);
 *     if (measure(&plan, call, arg, &r)) printf("%g ms\n", 1e3 * r.seconds.p50);
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include "stats.h"

typedef int (*measure_fn)(void *arg); /* 0 = it worked */

typedef struct measure_plan {
    int warmup;      /* calls before the first timed one */
    int iterations;  /* timed samples; 0 = doubled until they last min_time */
    double min_time; /* seconds that all samples together last at least, when iterations is 0 */
    double max_time; /* seconds after which no further sample begins; 0 = no limit */
} measure_plan;

typedef struct measure_result {
    bench_stats seconds; /* of one call */
    double cycles_p50;   /* median of one call's clock cycles; 0 = unknown */
    double cycles_p10;   /* the 10 % quantile of those in which a CPU ran it: others only add */
    double running;      /* CPU time / time of all samples: of one thread below 1 when it had to
                          * share its CPU or slept; 0 = unknown */
    int calls_per_sample;
} measure_result;

typedef struct measure_job {
    measure_fn call;
    void *arg;
    int against;           /* how many places before it the job stands that it is compared with */
    measure_result result; /* written */
    double ratio_p50;      /* written: median, sample by sample, of its time / that job's */
} measure_job;

/* Seconds of one call, or -1 when it fails. */
double measure_once(measure_fn call, void *arg);

/* 1 = measured; 0 = a call failed or memory is short. Each sample is one call, or, for calls below
 * 20 microseconds, as many as last that long (the clock's own cost is about 0.03). The clock rate
 * is taken before and after every sample. */
int measure(const measure_plan *plan, measure_fn call, void *arg, measure_result *out);

/* The same for n calls that are compared with one another: the first sample of each, then the
 * second of each and so on, so that a machine that slows down slows down all of them. A call below
 * 1 ms is led in by an untimed one: caches and sleeping threads are then as its own repetition
 * leaves them, not as the others do. min_time and max_time are for all together. */
int measure_in_turn(const measure_plan *plan, measure_job *jobs, int n);

#endif
