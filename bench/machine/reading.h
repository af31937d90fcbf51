/* reading.h - how fast these very bytes can be read now: the roof of calls bound by memory.
 * SPDX-License-Identifier: MIT
 *
 *     reading r = {{k, v}, {k_bytes, v_bytes}, 2, pool_parallel_for, pool, 0};
 *     reading_choose(&r);
 *     reading_run(&r);                   a measure_fn: each of the two threads reads half of both
 */
#ifndef BENCH_READING_H
#define BENCH_READING_H

#include <stddef.h>
#include <stdint.h>

#include "../../attn.h"

typedef struct reading {
    const void *data[2];
    size_t bytes[2];
    int threads; /* 1: the two fields below are not used */
    attn_parallel_for_fn parallel_for;
    void *user;
    int loop; /* which loop reads; any CPU has loop 0 */
} reading;

/* Reads every line of both buffers once; 0. */
int reading_run(void *r);

/* Sets r->loop to the fastest for these buffers at this moment, by some runs of each. */
void reading_choose(reading *r);

/* Lets the threads read for a while: CPU time of all of them / (time * threads), near 1 when each
 * has a CPU of its own; 0 = unknown. */
double reading_running(const reading *r);

/* The loops; NULL beyond the last. */
const char *reading_name(int i);
int reading_usable(int i);

/* What one of r->threads reads. Returns, for checks, the sum of the first 8 bytes of its lines as
 * integers, if their other bytes are 0. A line is 64 bytes; what is left at the end is not read. */
uint64_t reading_part(const reading *r, int64_t index);

#endif
