/* timing.c - times runs in turn with the loops that bound them.
 * SPDX-License-Identifier: MIT */
#include "stages.h"

#include "../../tests/sampled.h"
#include "../machine/peak.h"
#include "../measure.h"

/* Samples that are doubled until they last a time take up to four times as long in all. */
#define DOUBLING 4

static void set_roof(bench_run *run, const bench_result *r)
{
    const bench_case *const c = run->c;
    /* Scales, 4 bytes a row, are not read here. */
    const double key = (double)case_bytes(run->p.k.dtype, c->head_dim);
    const double value = (double)case_bytes(run->p.v.dtype, c->head_dim_v);
    const double rows = case_stored_keys(c) * (double)c->heads_kv;
    const reading roof = { { run->p.k.data, run->p.v.data },
                           { (size_t)(rows * key), (size_t)(rows * value) },
                           (int)r->threads,
                           run->p.parallel_for,
                           run->p.parallel_user,
                           0 };
    if (c->appends || run->path->device || !run_reads_all(run))
        return;
    if (c->seq_q <= RUN_FEW_ROWS || (c->threads && !run_is_divided(run)))
        run->roof = roof;
}

static void set_tile(bench_run *run, const bench_result *r)
{
    kernel_loop loop = { (int)r->threads, run->p.parallel_for, run->p.parallel_user, 0, 0 };
    if (run->path->device || run->c->seq_q <= RUN_FEW_ROWS || run_is_divided(run))
        return;
    if (kernel_loop_make(&loop, r->kernels, run->model.flops))
        run->tile = loop;
}

void run_set_loops(bench_run *run, const bench_result *r)
{
    set_roof(run, r);
    set_tile(run, r);
}

/* The call's rate and its loops' of the same moment. */
static void fill_rates(const bench_run *run, const measure_job *jobs, bench_result *r)
{
    const measure_job *const timed = &jobs[run->job], *const loop = &jobs[run->roof_job];
    const measure_job *const tile = &jobs[run->tile_job];
    if (run_reads_all(run))
        r->gbytes_per_s = run->model.kv_bytes / timed->result.seconds.p50 * 1e-9;
    if (timed->against)
        r->speedup = 1 / timed->ratio_p50;
    if (run->tile.threads) {
        const double flops = kernel_loop_flops(&run->tile);
        r->kernel_loop_gflops = flops / tile->result.seconds.p50 * 1e-9;
        r->pct_kernel_loop = 100 * tile->ratio_p50 * run->model.flops / flops;
    }
    if (!run->roof.threads)
        return;
    r->read_gbytes_per_s = run->model.kv_bytes / loop->result.seconds.p50 * 1e-9;
    r->pct_read_bw = 100 * loop->ratio_p50;
}

static void fill_ring(const bench_run *run, bench_result *r)
{
    const rings_figures f = rings_told(&run->rings);
    r->moved_bytes = (int64_t)f.moved_bytes;
    r->exchange_ms = 1e3 * f.exchange_seconds;
    r->rank_balance = f.balance;
}

/* A call on several threads leaves some idle: whether others had their CPUs is told by the reading
 * loop, which keeps all of them busy, before and after the measurement. */
static double running_of(const bench_run *run, const measure_result *m)
{
    if (run->roof.threads < 2)
        return m->running;
    const double after = reading_running(&run->roof);
    return run->roof.threads * (after < run->running_before ? after : run->running_before);
}

/* Percent of a peak; 0 = there is none. In cycles where there is a clock estimate: both sides then
 * mean the same clock rate. */
static double share_of(const probe_peak *peak, double gflops, double per_cycle, double threads)
{
    if (!peak->name)
        return 0;
    const double share = per_cycle > 0 && peak->flops_per_cycle > 0
                             ? per_cycle / peak->flops_per_cycle
                             : gflops / peak->gflops;
    return 100 * share / threads;
}

static void fill_result(const bench_context *x, const bench_run *run, const measure_job *jobs,
                        bench_result *r)
{
    const measure_result *const m = &jobs[run->job].result;
    const double threads = roof_cpus(x, (int)r->threads); /* that can run at once */
    const double seconds = m->seconds.p50, gflops = run->model.flops / seconds * 1e-9;
    const double per_cycle = m->cycles_p50 > 0 ? run->model.flops / m->cycles_p50 : 0;
    r->samples = m->seconds.n;
    r->ms_min = 1e3 * m->seconds.min;
    r->ms_mean = 1e3 * m->seconds.mean;
    r->ms_std = 1e3 * m->seconds.std;
    r->ms_p50 = 1e3 * seconds;
    r->ms_p95 = 1e3 * m->seconds.p95;
    r->ms_p99 = 1e3 * m->seconds.p99;
    if (!run->path->device)
        r->pct_running = 100 * running_of(run, m) / threads;
    r->tokens_per_s = (double)(sampled_rows_in_use(&run->plain) / run->p.num_heads_q) / seconds;
    r->gflops = gflops;
    fill_rates(run, jobs, r);
    if (run_is_divided(run))
        fill_ring(run, r);
    r->peak_rss_bytes = peak_rss();
    if (run->path->device)
        return; /* the CPU's cycles and peaks are not its own */
    const probe_peak *const unit = probe_unit_of(&x->probe, r->kernels);
    r->pct_fma_peak = share_of(&x->probe.best, gflops, per_cycle, threads);
    r->pct_set_peak = share_of(unit, gflops, per_cycle, threads);
    r->pct_avx2_peak = share_of(&x->probe.avx2, gflops, per_cycle, threads);
    r->cycles_p10 = m->cycles_p10;
    r->cycles_p50 = m->cycles_p50;
}

/* A step of decoding finds nothing of a layer's keys in the caches, since those of all other layers
 * came between. Groups of caches are timed so: near 1 ms some would be led in, and others not. */
static int reads_memory(const bench_run *run)
{
    const bench_case *const c = run->c;
    return c->group && c->seq_q <= RUN_FEW_ROWS && !c->appends && c->keys.typed;
}

/* A run that borrows tensors is compared with the call of their owner. */
static measure_job call_job(bench_run *run)
{
    const measure_job job = { .call = run_timed_call,
                              .arg = run,
                              .cold = reads_memory(run),
                              .against = run->owner ? run->job - run->owner->job : 0 };
    return job;
}

static measure_job loop_job(bench_run *run)
{
    const measure_job job = { .call = reading_run,
                              .arg = &run->roof,
                              .cold = reads_memory(run),
                              .against = run->roof_job - run->job };
    reading_choose(&run->roof);
    if (run->roof.threads > 1)
        run->running_before = reading_running(&run->roof);
    return job;
}

static measure_job tile_job(bench_run *run)
{
    const measure_job job = { .call = kernel_loop_run,
                              .arg = &run->tile,
                              .against = run->tile_job - run->job };
    return job;
}

/* Calls and loops in turn, where there are loops. After a call come its kernel loop and the reading
 * loop of the run half of the group away: right after its own call that would find in the last cache
 * what the call had to fetch from memory, and several in a row would slow down the call behind
 * them. */
static int add_jobs(bench_run **runs, int n, measure_job *jobs)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        bench_run *const other = runs[(i + n / 2) % n];
        runs[i]->job = count++;
        if (runs[i]->tile.threads)
            runs[i]->tile_job = count++;
        if (other->roof.threads)
            other->roof_job = count++;
    }
    for (int i = 0; i < n; i++) {
        jobs[runs[i]->job] = call_job(runs[i]);
        if (runs[i]->roof.threads)
            jobs[runs[i]->roof_job] = loop_job(runs[i]);
        if (runs[i]->tile.threads)
            jobs[runs[i]->tile_job] = tile_job(runs[i]);
    }
    return count;
}

int run_iterations(const bench_run *run)
{
    const bench_case *const c = run->c;
    return run->path->device && c->device_iterations ? c->device_iterations : c->iterations;
}

void run_time(const bench_context *x, bench_run *runs, int n, bench_result *results)
{
    measure_job jobs[3 * RUN_MAX_GROUP];
    measure_plan plan = { runs->c->warmup, run_iterations(runs), x->min_time, 0 };
    double longest = 0;
    bench_run *timed_runs[RUN_MAX_GROUP];
    int ready = 0;
    for (int i = 0; i < n; i++) {
        if (results[i].skipped[0])
            continue;
        timed_runs[ready++] = &runs[i];
        if (runs[i].path->device)
            continue; /* most of the first call is building kernels */
        if (1e-3 * results[i].cold_ms > longest)
            longest = 1e-3 * results[i].cold_ms;
    }
    if (!ready)
        return;
    const int num_jobs = add_jobs(timed_runs, ready, jobs);
    const double share = run_time_share(x, runs->c);
    if (share > 0 && plan.min_time > share / DOUBLING)
        plan.min_time = share / DOUBLING;
    plan.min_time *= ready;
    plan.max_time = share * ready;
    if (plan.max_time > 0 && longest * ready > plan.max_time / 4)
        plan.warmup = 0;
    const int timed = plan.max_time >= 0 && measure_in_turn(&plan, jobs, num_jobs);
    for (int i = 0; i < n; i++) {
        bench_result *const r = &results[i];
        if (r->skipped[0])
            continue;
        if (timed)
            fill_result(x, &runs[i], jobs, r);
        else if (plan.max_time < 0)
            run_skip(r, "the time is up after one call of %.3g ms", r->cold_ms);
        else if (stop_wanted())
            run_stopped(r);
        else
            run_skip(r, "a timed call failed");
    }
}
