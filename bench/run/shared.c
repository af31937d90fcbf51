/* shared.c - measures a case that processes share: --mpi.
 * SPDX-License-Identifier: MIT
 *
 * Every process makes the whole inputs from the seed and copies its part of them, so that nothing is
 * sent before the first call. What the ranks wrote is joined on rank 0, which compares it with the
 * oracle. A call takes as long as its slowest rank. No rank may leave the order of the others'
 * calls: what one of them cannot do, none of them does. */
#include "stages.h"

#include <math.h>
#include <stdlib.h>

#include "../../tests/sampled.h"
#include "../machine/team.h"
#include "../measure.h"

enum { LEAST = 3, MOST = 1000, ALONE = 3 };

/* Whether all ranks can go on; else all of them have the reason of the first that cannot. */
static int all_can(int can, bench_result *r)
{
    const int failed = team_first(!can);
    if (failed >= 0)
        team_tell(failed, r->skipped, sizeof r->skipped);
    return failed < 0;
}

/* Before a call, since one that begins ends only with all ranks. */
static int all_go_on(bench_result *r)
{
    return all_can(!stop_wanted() || run_stopped(r), r);
}

/* Seconds of a call of all ranks, negative = one failed; *own: of this one. */
static double call_together(bench_run *run, double *own)
{
    team_sum(0); /* all begin at once */
    *own = measure_once(run_call, run);
    return team_first(*own < 0) >= 0 ? -1 : team_most(*own);
}

static int first_call(bench_context *x, bench_run *run, bench_result *r)
{
    double own;
    const double seconds = call_together(run, &own);
    r->cold_ms = 1e3 * seconds;
    *run_pace(x, run) = seconds / run->model.flops;
    return (seconds >= 0 && rings_collect(&run->rings)) || run_skip(r, "the first call failed");
}

/* As many samples as rank 0 thinks right. */
static int samples_of(const bench_context *x, const bench_run *run, const bench_result *r)
{
    const double call = 1e-3 * r->cold_ms, share = run_time_share(x, run->c);
    const double wanted = fmin(fmax(x->min_time / call, LEAST), MOST);
    const double most = share > 0 ? fmax(share / call, 1) : MOST;
    int samples = run_iterations(run) > 0 ? run_iterations(run) : (int)fmin(wanted, most);
    team_tell(0, &samples, sizeof samples);
    return samples;
}

/* Of one rank: seconds of a call outside and inside the transport, means of the samples; of these the
 * wait for messages, the least of the samples, as it is compared with the least of a few alone. */
typedef struct rank_times {
    double compute, exchange, awaited;
} rank_times;

static int time_calls(bench_run *run, int samples, double *seconds, rank_times *times,
                      bench_result *r)
{
    const int warmup = samples > 1 ? run->c->warmup : 0;
    for (int i = -warmup; i < samples; i++) {
        double own;
        if (!all_go_on(r))
            return 0;
        team_awaited();
        const double together = call_together(run, &own);
        if (together < 0)
            return run_skip(r, "a timed call failed");
        if (i < 0)
            continue;
        const double exchange = rings_own(&run->rings)->seconds;
        seconds[i] = together;
        times->compute += (own - exchange) / samples;
        times->exchange += exchange / samples;
        times->awaited = fmin(times->awaited, team_awaited());
    }
    return 1;
}

/* Seconds in which a rank waits for `count` exchanges of this number of bytes that nothing is computed
 * beside, mean of the ranks; 0 = they failed. */
static double exchanges_alone(const attn_transport *t, int count, size_t bytes)
{
    char *const send = calloc(bytes + 1, 1), *const receive = malloc(bytes + 1);
    double best = HUGE_VAL;
    int failed = team_first(!send || !receive) >= 0;
    for (int round = 0; round < ALONE && !failed; round++) {
        team_sum(0);
        team_awaited();
        for (int i = 0; i < count; i++) {
            const int bad = t->begin(t->user, send, bytes, receive, bytes);
            failed |= t->agree(t->user, bad) != 0 || t->end(t->user) != 0;
        }
        best = fmin(best, team_sum(team_awaited()) / t->size);
        failed = team_first(failed) >= 0;
    }
    free(send);
    free(receive);
    return failed ? 0 : best;
}

/* Overlap: the share of the waits for messages that is gone when the rank computes beside them. */
static void fill_exchange(const bench_run *run, const rank_times *times, bench_result *r)
{
    const attn_ring_stats *const s = rings_own(&run->rings);
    const int ranks = run->rings.num_ranks, exchanges = (int)team_most((double)s->exchanges);
    const double bytes = exchanges > 0 ? team_most(s->bytes_sent) / exchanges : 0;
    const double longest = team_most(times->compute);
    const double awaited = team_sum(times->awaited) / ranks;
    const double alone =
        exchanges > 0 ? exchanges_alone(run->rings.transport, exchanges, (size_t)bytes) : 0;
    r->moved_bytes = (int64_t)team_sum(s->bytes_sent);
    r->exchange_ms = 1e3 * team_sum(times->exchange) / ranks;
    r->exchange_awaited_ms = 1e3 * awaited;
    r->exchange_alone_ms = 1e3 * alone;
    r->overlap = alone > 0 ? fmax(0, 1 - awaited / alone) : 0;
    r->compute_balance = longest / (team_sum(times->compute) / ranks);
    r->rank_balance = team_most(s->pairs) / (team_sum(s->pairs) / ranks);
}

static void fill_times(const bench_run *run, double *seconds, int samples, bench_result *r)
{
    bench_stats s;
    bench_stats_of(seconds, samples, &s);
    r->samples = samples;
    r->ms_min = 1e3 * s.min;
    r->ms_mean = 1e3 * s.mean;
    r->ms_std = 1e3 * s.std;
    r->ms_p50 = 1e3 * s.p50;
    r->ms_p95 = 1e3 * s.p95;
    r->ms_p99 = 1e3 * s.p99;
    r->tokens_per_s = (double)(sampled_rows_in_use(&run->plain) / run->p.num_heads_q) / s.p50;
    r->gflops = run->model.flops / s.p50 * 1e-9;
    if (run_reads_all(run))
        r->gbytes_per_s = run->model.kv_bytes / s.p50 * 1e-9;
}

static void time_run(bench_context *x, bench_run *run, bench_result *r)
{
    rank_times times = { 0, 0, HUGE_VAL };
    const int samples = samples_of(x, run, r);
    double *const seconds = malloc((size_t)samples * sizeof *seconds);
    if (all_can(seconds || run_no_memory(run, r), r) &&
        time_calls(run, samples, seconds, &times, r)) {
        fill_times(run, seconds, samples, r);
        fill_exchange(run, &times, r);
    }
    free(seconds);
}

void run_shared(bench_context *x, bench_run *run, bench_result *r)
{
    model_sizes(run->c, &run->model);
    run->bytes_before = (team_neighbours() - 1) * 2 * run->model.tensor_bytes;
    if (all_can(run_set_up(x, NULL, run, r), r) && all_go_on(r) &&
        all_can(first_call(x, run, r) && run_watched(x, RUN_CALLED, run, r), r) &&
        all_can(team_rank() > 0 || run_verify(run, r), r))
        time_run(x, run, r);
    run_release(run);
}
