/* probe.h - what this machine can do at most: FMA peak and read bandwidth, both measured.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_PROBE_H
#define BENCH_PROBE_H

#include "../../attn.h"

typedef struct probe_peak {
    const char *name;       /* of the unit, e.g. "avx2"; NULL = none */
    double gflops;          /* a multiplication and an addition count as 2; one thread */
    double flops_per_cycle; /* 0 = no clock estimate */
} probe_peak;

enum { PROBE_MAX_UNITS = 4 };

typedef struct probe_result {
    probe_peak units[PROBE_MAX_UNITS]; /* those this CPU has, narrowest first */
    int num_units;
    probe_peak avx2; /* name NULL where there is none */
    probe_peak best;
    double ghz;      /* clock estimate; 0 = unknown */
    double read_gbs; /* of one thread reading memory far larger than the caches; 0 = no memory */
} probe_result;

/* The unit that a kernel set uses: the one whose name its own begins with, else the best. */
const probe_peak *probe_unit_of(const probe_result *p, const char *set);

/* GB/s of so many threads reading memory far larger than the caches; 0 = no memory. One thread
 * needs no parallel_for. */
double probe_reading(int threads, attn_parallel_for_fn parallel_for, void *user);

/* Takes about half a second. */
void probe_machine(probe_result *out);

#endif
