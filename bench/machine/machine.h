/* machine.h - what it is measured on: description, peaks, threads, the device.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "../../attn.h"
#include "../../attn_opencl.h"

/* ---- machine.c: what the program runs on. */

typedef struct machine_info {
    char cpu[96];       /* model name, "unknown" where the system does not tell */
    char isa[160];      /* vector extensions found */
    const char *system; /* "linux", ... */
    const char *compiler, *flags, *revision; /* of this binary */
    int cpus;                                /* online */
    int64_t l1d, l2, l3;                     /* bytes; 0 = unknown */
    int64_t memory;                          /* bytes of the machine; 0 = unknown */
    int64_t memory_usable; /* the same or less: address space limit, container limit */
} machine_info;

void machine_describe(machine_info *out);

/* Whether isa would name all of these vector extensions, "avx2 fma"; "" = any CPU has them. */
int machine_has(const char *names);

/* ---- probe.c: what this machine can do at most: FMA peak and read bandwidth, both measured. */

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

/* GB/s of `threads` threads reading memory far larger than the caches; 0 = no memory. One thread
 * needs no parallel_for. */
double probe_reading(int threads, attn_parallel_for_fn parallel_for, void *user);

/* Takes about half a second. */
void probe_machine(probe_result *out);

/* ---- large.c: memory in large pages where the system gives them: 2 MiB instead of 4 KiB.
 *
 * Which 4 KiB pages a buffer gets decides by chance which of its lines displace each other in the
 * caches: decoding from equal caches of 8192 keys, timed in turn, took 0.85 to 1.25 of the time of
 * the first of them in small pages, 0.97 to 1.02 in large ones. */

/* For free; NULL = there is no memory. Systems other than Linux may give pages of any size. */
void *large_alloc(size_t bytes);

/* ---- pool.c: threads for p.parallel_for. */

typedef struct pool pool;

/* A pool of n >= 1 workers, the caller being one of them; NULL when threads cannot be had. */
pool *pool_create(int n);
void pool_destroy(pool *p);

/* A pool of exactly n workers, numbered from 0 to n-1: p itself, or a smaller or larger one that is
 * made once and destroyed with p. NULL where p is NULL or threads cannot be had. */
pool *pool_of(pool *p, int n);

/* An attn_parallel_for_fn; user is the pool. Indices are handed out one by one, in order. */
int pool_parallel_for(void *user, int64_t n, attn_task_fn task, void *arg);

/* ---- reading.c: how fast these very bytes can be read now: the roof of calls bound by memory.
 *
 *     reading r = {{k, v}, {k_bytes, v_bytes}, 2, pool_parallel_for, pool, 0};
 *     reading_choose(&r);
 *     reading_run(&r);                   a measure_fn: each of the two threads reads half of both */

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

/* ---- kernel_loop.c: how fast a register tile of products runs from L1 now: the roof of calls bound
 * by arithmetic.
 *
 *     kernel_loop loop = {2, pool_parallel_for, pool, 0, 0};
 *     if (kernel_loop_make(&loop, "avx2", flops))
 *         kernel_loop_run(&loop);        a measure_fn: each of the two threads runs the tile */

typedef struct kernel_loop {
    int threads; /* 0: no loop; 1: the two fields below are not used */
    attn_parallel_for_fn parallel_for;
    void *user;
    int tile;       /* set by kernel_loop_make, as is what follows: of a kernel set, */
    int64_t rounds; /* which each thread computes this often in a run */
} kernel_loop;

/* Chooses the tile of a kernel set, and rounds for an eighth of a call of `flops`, or a little more.
 * 0 = there is no tile for this set or machine, or its sums are wrong. Not for two threads at a
 * time. */
int kernel_loop_make(kernel_loop *loop, const char *set, double flops);

/* One run, 0. */
int kernel_loop_run(void *loop);

/* FLOPs of a run, of all threads. */
double kernel_loop_flops(const kernel_loop *loop);

/* ---- scalar.c: the portable kernels compiled without vectorisation. */

/* The best portable set of attn.c, one number at a time: what a plain C loop gives. */
const attn_kernels *scalar_kernels(void);

/* ---- device.c: the OpenCL device: opened once, when something first needs it. */

/* How the device adds up: as it likes, or with the bits of the CPU. An object for each. */
typedef enum device_order { DEVICE_FREE, DEVICE_EXACT, DEVICE_ORDERS } device_order;

/* Before anything is opened. name: a part of the name of a platform or device, NULL = the best; a
 * device that is no GPU is taken only where `any` says so: its kernels take seconds to build, and
 * it computes on the CPU, where the library does so itself. */
void device_choose(const char *name, int any);

/* NULL: why has the whole sentence. */
attn_opencl *device_get(device_order order, char *why, size_t bytes);

/* What was opened; NULL = nothing was, or could be. */
const attn_opencl_info *device_opened(void);

void device_close(void);

/* ---- arrays on the device, for the object of DEVICE_FREE */

void *device_new(size_t bytes, const void *host); /* a cl_mem with a copy of host; NULL = there is
                                                   * no memory */
int device_read(void *mem, void *host, size_t bytes);
void device_free(void *mem);

/* GB/s of copying one array on the device to another, bytes read and written; measured once. 0 =
 * not possible. */
double device_copy_rate(void);

#endif
