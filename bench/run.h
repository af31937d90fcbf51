/* run.h - measures one case by one path: data, call, check, timing.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "cases/case.h"
#include "cases/dilated.h"
#include "cases/keys.h"
#include "machine/machine.h"
#include "cases/paths.h"
#include "machine/pool.h"
#include "machine/probe.h"

enum { RUN_MAX_READ_PEAKS = 8 };

typedef struct bench_context {
    machine_info machine;
    probe_result probe;
    pool *workers; /* NULL = the calling thread */
    int threads;
    int many;                /* threads of the paths that have several: --threads, or all CPUs */
    const char *kernels;     /* NULL = the best */
    char *tuning;            /* text for p.tuning; NULL = none */
    const char *tuning_file; /* it came from here; "" = there is none, or the library ignores it */
    uint64_t seed;
    double min_time;    /* seconds, see measure.h */
    int kernel_samples; /* timed samples of each kernel of `bench kernels` */
    double deadline;    /* of clock_seconds; 0 = none: what does not fit is listed as skipped */
    int runs_left;      /* cases times implementations that share the time left */
    double pace[2][PATHS_MAX]; /* seconds per FLOP of the last run by path, of many rows, and of
                                * few, which memory binds; 0 = none */
    int phases;                /* measured, too: see phases.h */
    struct {
        int threads;
        double gbytes_per_s;
    } read_peaks[RUN_MAX_READ_PEAKS]; /* see roof.h */
    int num_read_peaks;
    int alone;                    /* this process runs one case: its peak memory is the case's */
    double plant_slowdown;        /* percent: see plant.h; 0 = none */
    const char *plant_wrong;      /* a product that is wrong; NULL = none */
    dilated_fault plant_branches; /* selfcheck: the call is told of other branches */
    int plant_ranks;              /* selfcheck: a rank has the wrong keys */
    keys_fault plant_pages;       /* selfcheck: a page table is wrong */
    int spoil; /* selfcheck: spoils an element of this row after the call; 0 = none */
} bench_context;

/* Fills *r; path: a name that path_find knows. r->skipped says why when there is nothing to time:
 * memory, time, a path that this machine or case does not have or a result that is wrong. */
void run_case(bench_context *context, const bench_case *c, const char *path, bench_result *r);

enum { RUN_MAX_GROUP = 12 }; /* one thread to 1024 by powers of two, and one more */

/* The same for n <= RUN_MAX_GROUP cases, timed in turn: all by the plan of the first. */
void run_group(bench_context *context, const bench_case *cases, int n, const char *path,
               bench_result *results);

/* Nonzero: r was skipped because its result was wrong. */
int run_was_wrong(const bench_result *r);

#endif
