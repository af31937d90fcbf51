/* limits.c - how long a run may take, and is expected to.
 * SPDX-License-Identifier: MIT */
#include "stages.h"

#include <math.h>

#include "../clock.h"
#include "../machine/peak.h"

#define SHARE_OF_PEAK 0.5
#define SAMPLED 3.0 /* samples that double until they last a time take two to four times as long */
enum { LEAST_SAMPLES = 3 };

double run_time_share(const bench_context *x, const bench_case *c)
{
    if (x->deadline <= 0)
        return c->max_time;
    const double left = x->deadline - clock_seconds();
    const double share = left > 0 ? left / (x->runs_left > 0 ? x->runs_left : 1) : -1;
    return c->max_time > 0 && c->max_time < share ? c->max_time : share;
}

double *run_pace(bench_context *x, const bench_run *run)
{
    return &x->pace[run->c->seq_q <= RUN_FEW_ROWS][path_index(run->path)];
}

int run_within_time(bench_context *x, const bench_run *run, bench_result *r)
{
    const double share = run_time_share(x, run->c), pace = *run_pace(x, run);
    const double expected = pace * run->model.flops;
    if (share < 0)
        return run_skip(r, "the time is up");
    if (share == 0 || expected <= share)
        return 1;
    if (share == run->c->max_time)
        return run_skip(r, "one call takes about %.3g s, more than %.3g s (--max-time)", expected,
                        share);
    return run_skip(r, "the time is up: one call takes about %.3g s, its share is %.3g s", expected,
                    share);
}

static double call_expected(const bench_context *x, const bench_run *run, int threads)
{
    const char *const own = run->path->kernels ? run->path->kernels : run->c->kernels;
    const char *const set = own ? own : x->kernels ? x->kernels : "";
    const double peak = 1e9 * SHARE_OF_PEAK * probe_unit_of(&x->probe, set)->gflops;
    const double rate = 1e9 * x->probe.read_gbs;
    if (run->path->device || peak <= 0 || rate <= 0)
        return 0;
    return fmax(run->model.flops / (peak * roof_cpus(x, threads)), run->model.kv_bytes / rate);
}

double run_expected(const bench_context *x, const bench_case *c, const char *path)
{
    bench_run run;
    bench_result r;
    run_begin(x, c, path, &run, &r);
    if (!run_within_memory(x, &run, &r) ||
        !path_usable(run.path, x->many, r.skipped, sizeof r.skipped))
        return 0;
    model_of(c, &run.model);
    const double call = call_expected(x, &run, (int)r.threads * (c->ranks ? c->ranks : 1));
    const int samples = run_iterations(&run);
    const double least = fmax(SAMPLED * x->min_time, LEAST_SAMPLES * call);
    const double timed = samples > 0 ? (c->warmup + samples) * call : c->warmup * call + least;
    const double most = c->max_time > 0 ? c->max_time : HUGE_VAL;
    return call > most ? 0 : call + fmin(timed, most);
}
