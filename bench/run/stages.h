/* stages.h - the stages of a run, a file each; run.c leads a run through them.
 * SPDX-License-Identifier: MIT
 *
 * What takes a bench_result and returns an int gives 0 where the run cannot go on, and r->skipped then
 * says why. */
#ifndef BENCH_RUN_STAGES_H
#define BENCH_RUN_STAGES_H

#include "../run.h"

#define RUN_WRONG "wrong result"

/* Calls of at most these rows are bound by memory. */
enum { RUN_FEW_ROWS = 16 };

static inline int run_is_dilated(const bench_run *run)
{
    return run->c->dilated.branches > 0;
}

/* Among ranks. */
static inline int run_is_divided(const bench_run *run)
{
    return run->rings.num_ranks > 0;
}

static inline int run_is_resident(const bench_run *run)
{
    return run->path->device == PATH_DEVICE_ARRAYS;
}

/* ---- run.c */

/* Says why a run is skipped; returns 0. */
int run_skip(bench_result *r, const char *format, ...);
int run_stopped(bench_result *r);

/* What checks of the bench do to the run at this stage. */
int run_watched(bench_context *x, run_stage stage, bench_run *run, bench_result *r);

/* Everything before the first call. first: of the group, NULL = this is it. */
int run_set_up(bench_context *x, const bench_run *first, bench_run *run, bench_result *r);

/* An empty run and its row. */
void run_begin(const bench_context *x, const bench_case *c, const char *path, bench_run *run,
               bench_result *r);

/* ---- shared.c */

/* The whole run on each of the chosen processes (machine/team.h). */
void run_shared(bench_context *x, bench_run *run, bench_result *r);

/* ---- describe.c */

/* What is known before anything runs. */
void run_describe(const bench_context *x, const bench_case *c, const bench_path *path,
                  bench_result *r);

/* Every field of the call but the pointers; 0 also when the library has no such way. */
int run_set_params(bench_context *x, bench_run *run, bench_result *r);
/* Scales of one number a row, where K or V is of i8. */
void run_set_scales(bench_run *run, const float *scales);

/* Whether all of k and v is read, as far as is known. */
int run_reads_all(const bench_run *run);

const attn_gradients *run_gradients(const bench_run *run);
attn_status run_explain(bench_run *run, bench_result *r, char *why, size_t why_bytes);

/* The workspace, the kernels and the FLOPs of the call, which must be those that the bench counts. */
int run_size_up(bench_run *run, bench_result *r);

/* ---- memory.c */

typedef struct run_tensor_sizes {
    size_t q, k, v, o;
} run_tensor_sizes;

run_tensor_sizes run_sizes(const bench_run *run);
double run_bytes(const bench_run *run);

/* 0 when the case needs more memory than it may take, as far as this is known. */
int run_within_memory(const bench_context *x, const bench_run *run, bench_result *r);

int run_no_memory(const bench_run *run, bench_result *r);
int run_make_buffers(bench_context *x, const bench_run *first, bench_run *run, bench_result *r);

/* Those that borrow tensors before their owner. */
void run_release(bench_run *run);

/* ---- call.c */

/* A call that is timed, a measure_fn as run_call: the next one after Ctrl-C fails. */
int run_timed_call(void *run);

/* ---- verify.c */

int run_verify(bench_run *run, bench_result *r);

/* ---- timing.c */

/* Which loops are timed in turn with the call. */
void run_set_loops(bench_run *run, const bench_result *r);

int run_iterations(const bench_run *run);

/* Times the runs whose result has no reason to skip them. */
void run_time(const bench_context *x, bench_run *runs, int n, bench_result *results);

/* ---- limits.c */

/* This run's share of the time left, or what its case may take if that is less; 0 = there is no
 * limit, negative = the deadline has passed. */
double run_time_share(const bench_context *x, const bench_case *c);

/* Seconds per FLOP of the last run of this kind. */
double *run_pace(bench_context *x, const bench_run *run);

/* 0 when one call would take more than this run's share of the time, going by the last one. */
int run_within_time(bench_context *x, const bench_run *run, bench_result *r);

#endif
