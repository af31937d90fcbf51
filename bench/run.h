/* run.h - measures one case by one path: data, call, check, timing.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_RUN_H
#define BENCH_RUN_H

#include "cases/jobs.h"
#include "cases/cases.h"
#include "machine/machine.h"

struct bench_run;
enum { RUN_MAX_READ_PEAKS = 8 };

/* Stages of a run: the call is described; its kernels and workspace are known; its keys are stored;
 * it is divided among ranks; it was called once. RUN_STEP is of commands without cases: a kernel was
 * timed, a size begins to be tried; run and r are NULL then. */
typedef enum run_stage {
    RUN_DESCRIBED,
    RUN_SIZED,
    RUN_FILLED,
    RUN_DIVIDED,
    RUN_CALLED,
    RUN_STEP
} run_stage;

/* Looks at a run at a stage and changes what it likes; 0 = the case cannot go on. */
typedef int run_watch(run_stage stage, struct bench_run *run, bench_result *r);

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
    int alone;        /* this process runs one case: its peak memory is the case's */
    run_watch *watch; /* for checks of the bench: may plant a fault; NULL = none */
} bench_context;

/* Fills *r; path: a name that path_find knows. r->skipped says why when there is nothing to time:
 * memory, time, a path that this machine or case does not have or a result that is wrong. */
void run_case(bench_context *context, const bench_case *c, const char *path, bench_result *r);

enum { RUN_MAX_GROUP = 12 }; /* one thread to 1024 by powers of two, and one more */

/* The same for n <= RUN_MAX_GROUP cases, timed in turn: all by the plan of the first. */
void run_group(bench_context *context, const bench_case *cases, int n, const char *path,
               bench_result *results);

/* One case by one path, from its buffers to its times. */
typedef struct bench_run {
    const bench_case *c;
    const bench_path *path;
    bench_model model;
    attn_params p, plain; /* plain: k and v as they were before a cache took them */
    mask_arrays mask;
    keys_store keys;         /* empty: k and v are plain arrays */
    append_job append;       /* of a case that appends */
    gradients_job gradients; /* of a backward one */
    dilated_job dilated;     /* of a dilated one */
    rings_job rings;         /* of a path of ranks */
    device_job device;       /* of a path of a device */
    attn_info info;
    void *q, *k, *v, *o, *workspace;
    float *scales;                 /* of i8, one for each row */
    const struct bench_run *owner; /* whose tensors these are; NULL = its own */
    int job, roof_job, tile_job;   /* indices of its call and its two loops among the timed ones */
    size_t workspace_bytes;
    double bytes_before; /* that the runs before it in its group take */
    reading roof;        /* of K and V; threads 0 = the case has many rows */
    kernel_loop tile;    /* of its kernels; threads 0 = the case has few rows, or they have none */
    double running_before;
} bench_run;

/* A measure_fn: one call of a run. */
int run_call(void *run);

/* Nonzero: r was skipped because its result was wrong. */
int run_was_wrong(const bench_result *r);

/* About how many seconds the run will take, by its FLOPs at half of the measured FMA peak and its
 * bytes at the measured read rate. 0 = it will be skipped for memory, or the machine lacks the
 * path. Of a device only the time that samples last is known. */
double run_expected(const bench_context *x, const bench_case *c, const char *path);

/* Whether the library refuses the call of a case by a path on the CPU; why then says the reason. */
int run_refused(bench_context *x, const bench_case *c, const char *path, char *why, size_t bytes);

/* ---- stop.c: Ctrl-C, SIGTERM. From stop_on_signals on the first one only asks to stop: runs fail
 * from their next call on, and callers write what they have and end with stop_status(). */
void stop_on_signals(void);
int stop_wanted(void);
const char *stop_cause(void);
int stop_status(void);

/* Shows x->watch a RUN_STEP. */
void stop_step(const bench_context *x);

/* ---- phases.c: where the time of a call goes: Q K^T, softmax, P V, merge and the rest.
 *
 * A call of its own by a copy of the kernel table whose functions count ticks, on one thread, apart
 * from the timed calls. Of gradients the phases are those whose tensors they have: S and dP count
 * as Q K^T, p and dS as softmax, what adds to dQ, dK and dV as P V, and the rows of dQ as they are
 * stored as merge. */

/* What tells the time: clock.h, or what a test gives. */
typedef struct phase_clock {
    uint64_t (*ticks)(void);
    double (*seconds)(void);
} phase_clock;

/* A call and what it writes. */
typedef struct phase_call {
    attn_params p;
    const attn_gradients *g; /* NULL = a forward call */
    void *workspace;
    size_t workspace_bytes;
    const void *result;
    size_t result_bytes;
    const phase_clock *clock; /* NULL = clock.h */
} phase_call;

typedef struct phase_times { /* seconds */
    double qk;
    double softmax; /* masks, softcap and bias of the logits, maxima, exponentials and sums */
    double pv;      /* with the rescaling of sums of P V */
    double merge;   /* of states, and the division at the end */
    double rest;    /* packing, widening of 16-bit storage, deciding what to do */
    double clock;   /* that reading the clock took, a part of the five above */
} phase_times;

/* The fastest of a few calls with one worker and the kernels `set`. 0 = a call failed, memory is
 * short, or the result is not what the calls before wrote. Not for two threads at a time: the
 * counters are static. */
int phases_measure(const attn_kernels *set, const phase_call *c, phase_times *out);

/* All five together. */
double phases_sum(const phase_times *t);

/* Prints the phases of the rows that have them. */
void phases_report(const bench_result *results, int n);

/* ---- roof.c: the two peaks that a row is held against, for as many threads as it has. */

/* How many of these threads can run at once. */
double roof_cpus(const bench_context *x, int threads);

/* Fills the row's peaks: FMA of one thread times threads, but no more than CPUs; reading from
 * memory measured with that many threads, once for each number of them (0.1 s and 128 MiB). */
void roof_peaks(bench_context *x, bench_result *r);

#endif
