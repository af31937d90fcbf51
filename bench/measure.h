/* measure.h - the measuring core: times any call, knows nothing of attention.
 * SPDX-License-Identifier: MIT
 *
 * One call (measure.c, clock.c, stats.c):
 *
 *     measure_plan plan = {10, 100, 0, 0};
 *     measure_result r;
 *     double cold = measure_once(call, arg);
 *     if (measure(&plan, call, arg, &r)) printf("%g ms\n", 1e3 * r.seconds.p50);
 *
 * Functions to compare, registered by pointer (suite.c as well); examples/custom_bench.c is whole:
 *
 *     measure_suite suite = {.plan = {2, 20, 0, 0}};
 *     measure_entry mine = {.name = "mine", .call = run_mine, .check = is_wrong, .arg = &data};
 *     measure_add(&suite, &mine);
 *     measure_add(&suite, &theirs);
 *     int all_right = measure_run(&suite);
 *     measure_print(&suite, stdout);
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdio.h>

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
    int against;           /* how many places before it the job stands that it is compared with;
                            * negative: behind it */
    int cold;              /* nonzero: never led in: it finds the caches as the others leave them */
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
 * 1 ms is led in by an untimed one, unless its job is cold: caches and sleeping threads are then as
 * its own repetition leaves them, not as the others do. min_time and max_time are for all together. */
int measure_in_turn(const measure_plan *plan, measure_job *jobs, int n);

/* ---- suites */

enum { MEASURE_MAX_ENTRIES = 32 };

typedef struct measure_entry {
    const char *name;
    measure_fn call;
    measure_fn check;      /* after the first call, before any timing: 0 = its result is right; NULL
                            * = not checked */
    void *arg;             /* of both */
    double flops, bytes;   /* of one call, for the rates; 0 = no rate */
    const char *refused;   /* written: why it was not timed; NULL = it was */
    double cold;           /* written: seconds of the first call */
    double speedup;        /* written: how many times as fast as the first that was timed, median
                            * sample by sample; 1 = it is the first, 0 = unknown */
    measure_result result; /* written */
} measure_entry;

/* Zeros but for the plan to begin with. */
typedef struct measure_suite {
    measure_plan plan;
    int n;
    measure_entry entries[MEASURE_MAX_ENTRIES];
} measure_suite;

/* Copies the entry, not its name; 0 = the suite is full or the entry has no name or no call. */
int measure_add(measure_suite *suite, const measure_entry *entry);

/* Calls and checks each, then times in turn those that were right: a wrong one is never timed. 1 =
 * all were timed; otherwise the entries say which were not and why. */
int measure_run(measure_suite *suite);

/* An aligned table, and the same with a head line as CSV: names in quotes, times in ms, empty where
 * there is no rate. An entry that was not timed is one line in the table, none in CSV. */
void measure_print(const measure_suite *suite, FILE *out);
void measure_csv(const measure_suite *suite, FILE *out);

#endif
