/* run.c - measures one case by one path: data, call, check, timing.
 * SPDX-License-Identifier: MIT
 *
 * Order: make the buffers, fill them, one cold call, compare sampled rows with the double oracle,
 * only then warm-up and timing; of a group all but the timing first. Calls of few rows are bound by
 * memory: a plain loop that reads their K and V is timed in turn with them. What a cache holds was
 * appended from plain arrays, and the oracle reads these: it would notice a wrong page. */
#include "stages.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../machine/peak.h"
#include "../machine/team.h"
#include "../measure.h"

int run_skip(bench_result *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->skipped, sizeof r->skipped, format, args);
    va_end(args);
    return 0;
}

int run_watched(bench_context *x, run_stage stage, bench_run *run, bench_result *r)
{
    return !x->watch || x->watch(stage, run, r) ||
           run_skip(r, "a call with a planted fault failed");
}

int run_stopped(bench_result *r)
{
    return run_skip(r, "%s", stop_cause());
}

static int cold_call(bench_context *x, bench_run *run, bench_result *r)
{
    const int64_t before = peak_rss(); /* inputs and output are written, the workspace is not */
    const double seconds = measure_once(run_timed_call, run);
    r->cold_ms = 1e3 * seconds;
    if (x->alone)
        r->rss_growth_bytes = peak_rss() - before;
    if (run->model.flops > 0 && !run->path->device) /* there it builds kernels, too */
        *run_pace(x, run) = seconds / run->model.flops;
    if (seconds < 0)
        return stop_wanted() ? run_stopped(r) : run_skip(r, "the first call failed");
    if (run_is_divided(run))
        (void)rings_collect(&run->rings);
    return on_device_fetch(&run->p, &run->device) || run_skip(r, "reading from the device failed");
}

int run_set_up(bench_context *x, const bench_run *first, bench_run *run, bench_result *r)
{
    model_sizes(run->c, &run->model);
    if (stop_wanted())
        return run_stopped(r);
    if (!run_within_memory(x, run, r))
        return 0; /* before anything takes time or memory */
    model_of(run->c, &run->model);
    r->visible = run->model.pairs * 4 / run->model.logits_bytes;
    r->kv_token_bytes = (int64_t)run->model.kv_token_bytes;
    r->kv_bytes = (int64_t)run->model.kv_bytes;
    if (!run_set_params(x, run, r))
        return 0;
    run->plain = run->p;
    if (!run_size_up(run, r))
        return 0;
    if (!run_within_memory(x, run, r) || !run_within_time(x, run, r))
        return 0;
    return run_watched(x, RUN_SIZED, run, r) && run_make_buffers(x, first, run, r);
}

/* All but the timing; what stands in the way is said in r->skipped. */
static int prepare(bench_context *x, const bench_run *first, bench_run *run, bench_result *r)
{
    return run_set_up(x, first, run, r) && cold_call(x, run, r) &&
           run_watched(x, RUN_CALLED, run, r) && run_verify(run, r);
}

/* One case that the first of the processes share, while the others wait. */
static void run_of_team(bench_context *x, const bench_case *c, const char *path, bench_result *r)
{
    bench_run run;
    run_begin(x, c, path, &run, r);
    if (team_rank() == 0)
        roof_peaks(x, r);
    team_rest();
    if (team_choose(c->ranks))
        run_shared(x, &run, r);
    team_rest();
    x->runs_left--;
}

/* Whether phases.h knows the call. */
static int has_phases(const bench_run *run)
{
    return !run->c->appends && !run_is_dilated(run) && !run_is_divided(run);
}

/* After the timed calls, so that these are as without. In o there may be what a neighbour in the
 * group wrote: one more call, for the bits to compare with. */
static void add_phases(bench_run *run, bench_result *r)
{
    phase_times t;
    const run_tensor_sizes bytes = run_sizes(run);
    const int backward = run->c->backward;
    const attn_gradients *const g = &run->gradients.g;
    const phase_call c = { .p = run->p,
                           .g = backward ? g : NULL,
                           .workspace = run->workspace,
                           .workspace_bytes = run->workspace_bytes,
                           .result = backward ? g->dq.data : run->o,
                           .result_bytes = backward ? bytes.q : bytes.o };
    const attn_kernels *const set = run->p.kernels ? run->p.kernels : attn_kernels_find(r->kernels);
    if (run_call(run) || !phases_measure(set, &c, &t)) {
        run_skip(r, RUN_WRONG " or failed call while phases were counted");
        return;
    }
    r->phase_qk_ms = 1e3 * t.qk;
    r->phase_softmax_ms = 1e3 * t.softmax;
    r->phase_pv_ms = 1e3 * t.pv;
    r->phase_merge_ms = 1e3 * t.merge;
    r->phase_rest_ms = 1e3 * t.rest;
    r->phase_clock_ms = 1e3 * t.clock;
}

/* After the timed calls. What the device's own memory can do stands for the reading loop
 * of the CPU. */
static int add_device(bench_context *x, bench_run *run, bench_result *r)
{
    const double share = x->min_time > 0 ? x->min_time : 1;
    if (!on_device_split(run_call, run, &run->device, (int)(1e3 * share / r->ms_p50), r))
        return run_skip(r, "a call on the device failed");
    if (r->compute_ms > 0)
        r->compute_gflops = 1e-6 * run->model.flops / r->compute_ms;
    r->read_peak_gbytes_per_s = device_copy_rate();
    if (run->c->seq_q <= RUN_FEW_ROWS && mask_reads_all(run->c->mask) && r->compute_ms > 0 &&
        r->read_peak_gbytes_per_s > 0)
        r->pct_read_bw =
            100 * run->model.kv_bytes / (1e6 * r->compute_ms) / r->read_peak_gbytes_per_s;
    *run_pace(x, run) = 1e-3 * r->ms_p50 / run->model.flops;
    return 1;
}

void run_group(bench_context *context, const bench_case *cases, int n, const char *path,
               bench_result *results)
{
    bench_run runs[RUN_MAX_GROUP];
    double bytes = 0;
    if (cases->ranks) {
        run_of_team(context, cases, path, results);
        return;
    }
    memset(runs, 0, sizeof runs);
    for (int i = 0; i < n; i++) {
        runs[i].c = &cases[i];
        runs[i].path = path_find(path);
        runs[i].bytes_before = bytes;
        run_describe(context, &cases[i], runs[i].path, &results[i]);
        if (!runs[i].path->device)
            roof_peaks(context, &results[i]);
        const bench_run *const first = i ? &runs[0] : NULL;
        if (prepare(context, first, &runs[i], &results[i]))
            bytes += run_bytes(&runs[i]);
        else
            run_release(&runs[i]);
    }
    run_time(context, runs, n, results);
    for (int i = 0; i < n; i++) {
        if (results[i].skipped[0] || stop_wanted())
            continue;
        if (runs[i].path->device)
            add_device(context, &runs[i], &results[i]);
        else if (context->phases && has_phases(&runs[i]))
            add_phases(&runs[i], &results[i]);
    }
    for (int i = n; i-- > 0;)
        run_release(&runs[i]);
    context->runs_left -= n;
}

void run_begin(const bench_context *x, const bench_case *c, const char *path, bench_run *run,
               bench_result *r)
{
    memset(run, 0, sizeof *run);
    run->c = c;
    run->path = path_find(path);
    run_describe(x, c, run->path, r);
    model_sizes(c, &run->model);
}

int run_refused(bench_context *x, const bench_case *c, const char *path, char *why, size_t bytes)
{
    bench_run run;
    bench_result r;
    run_begin(x, c, path, &run, &r);
    const int asked =
        !run.path->device && run_within_memory(x, &run, &r) && run_set_params(x, &run, &r);
    const int refused = asked && run_explain(&run, &r, why, bytes) != ATTN_OK;
    run_release(&run);
    return refused;
}

void run_case(bench_context *context, const bench_case *c, const char *path, bench_result *r)
{
    run_group(context, c, 1, path, r);
}
