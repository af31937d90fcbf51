/* plant.h - faults on purpose, which the bench must notice.
 * SPDX-License-Identifier: MIT */
#ifndef ATTN_TESTS_BENCH_PLANT_H
#define ATTN_TESTS_BENCH_PLANT_H

#include "../../bench/run.h"

/* The call is told of another segment, step, first position of the heads, or merging than the case
 * has. */
typedef enum dilated_fault {
    DILATED_RIGHT,
    DILATED_LENGTH,
    DILATED_STEP,
    DILATED_HEADS,
    DILATED_MERGE,
    DILATED_FAULTS
} dilated_fault;

/* REPEATED: the last page of sequence 0 is said to be the first one; SWAPPED: they are said to be
 * each other, so that the same keys come in another order. */
typedef enum keys_fault { KEYS_RIGHT, KEYS_REPEATED, KEYS_SWAPPED } keys_fault;

/* All zero: none. */
typedef struct plant_faults {
    const char
        *wrong; /* a kernel: "qk", "qk_units", "pv", of gradients "outer" and "gradient", too */
    double slowdown; /* percent, by products Q K^T that are repeated */
    dilated_fault branches;
    keys_fault pages;
    int scores;    /* computed without p.integer, whatever the case says */
    int ranks;     /* the first rank has the keys of the last one */
    int interrupt; /* a signal after the first call of this run or in this step, from 1 */
    int signal;    /* SIGINT, which is Ctrl-C, or SIGTERM */
    int again;     /* and once more */
    int spoil; /* adds 1 to the first number of this row of the result, counted from 1; -1: changes
                * its last bit, within every tolerance */
} plant_faults;

extern plant_faults faults;

/* A run_watch: plants them. */
int plant_watch(run_stage stage, bench_run *run, bench_result *r);

/* Whether `wrong` can be that. */
int plant_knows(const char *product);

#endif
