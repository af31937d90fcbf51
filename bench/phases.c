/* phases.c - where the time of a call goes: Q K^T, softmax, P V, merge and the rest.
 * SPDX-License-Identifier: MIT */
#include "run.h"

#include "../tests/spy.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "report/report.h"

enum { CALLS = 5, COST_CALLS = 1000, COST_ROUNDS = 5 };
#define ENOUGH_SECONDS 1.0 /* no further call after that */

typedef enum phase { REST, QK, SOFTMAX, PV, MERGE, PHASES } phase;

/* What each kernel counts as. */
static const int phase_of[SPY_KERNELS] = { [SPY_qk] = QK,
                                           [SPY_qk_runs] = QK,
                                           [SPY_qk_units] = QK,
                                           [SPY_qk_units_runs] = QK,
                                           [SPY_softcap] = SOFTMAX,
                                           [SPY_add_distances] = SOFTMAX,
                                           [SPY_add_rows] = SOFTMAX,
                                           [SPY_clip] = SOFTMAX,
                                           [SPY_hide] = SOFTMAX,
                                           [SPY_hide_bytes] = SOFTMAX,
                                           [SPY_hide_others] = SOFTMAX,
                                           [SPY_drop] = SOFTMAX,
                                           [SPY_running_max] = SOFTMAX,
                                           [SPY_maximum] = SOFTMAX,
                                           [SPY_exp_sum] = SOFTMAX,
                                           [SPY_exp_block] = SOFTMAX,
                                           [SPY_rescale] = PV,
                                           [SPY_pv] = PV,
                                           [SPY_pv_runs] = PV,
                                           [SPY_pv_select] = PV,
                                           [SPY_merge] = MERGE,
                                           [SPY_result] = MERGE,
                                           [SPY_gradient] = SOFTMAX,
                                           [SPY_softcap_gradient] = SOFTMAX,
                                           [SPY_dots] = SOFTMAX,
                                           [SPY_outer] = PV,
                                           [SPY_outer_select] = PV };

static const phase_clock machine_clock = { clock_ticks, clock_seconds };

static struct {
    const phase_clock *clock;
    uint64_t begin, ticks[PHASES];
    int64_t calls;
} counter;

/* ---- the copy of a set: its kernels count their ticks */

static void end_kernel(int kernel, void *first)
{
    (void)first;
    if (phase_of[kernel] == REST)
        return;
    counter.ticks[phase_of[kernel]] += counter.clock->ticks() - counter.begin;
    counter.calls++;
}

static void *begin_kernel(int kernel, void *first)
{
    if (phase_of[kernel] != REST)
        counter.begin = counter.clock->ticks();
    return first;
}

/* ---- measuring */

/* Ticks of counting alone, a call: the least of some rounds. */
static double count_cost(void)
{
    uint64_t least = UINT64_MAX;
    for (int round = 0; round < COST_ROUNDS; round++) {
        const uint64_t begin = counter.clock->ticks();
        for (int i = 0; i < COST_CALLS; i++)
            end_kernel(SPY_merge, begin_kernel(SPY_merge, NULL));
        const uint64_t ticks = counter.clock->ticks() - begin;
        if (ticks < least)
            least = ticks;
    }
    return (double)least / COST_CALLS;
}

double phases_sum(const phase_times *t)
{
    return t->qk + t->softmax + t->pv + t->merge + t->rest;
}

/* Ticks become seconds by the clock of the same call. */
static int one_call(const phase_call *c, double cost, phase_times *t)
{
    const phase_clock *const clock = counter.clock;
    memset(counter.ticks, 0, sizeof counter.ticks);
    counter.calls = 0;
    const double start = clock->seconds();
    const uint64_t begin = clock->ticks();
    const attn_status status = c->g ? attn_backward(&c->p, c->g, c->workspace, c->workspace_bytes)
                                    : attn_forward(&c->p, c->workspace, c->workspace_bytes);
    if (status != ATTN_OK)
        return 0;
    const uint64_t ticks = clock->ticks() - begin;
    const double seconds = clock->seconds() - start, tick = ticks ? seconds / (double)ticks : 0;
    t->qk = tick * (double)counter.ticks[QK];
    t->softmax = tick * (double)counter.ticks[SOFTMAX];
    t->pv = tick * (double)counter.ticks[PV];
    t->merge = tick * (double)counter.ticks[MERGE];
    t->rest = seconds - t->qk - t->softmax - t->pv - t->merge;
    t->clock = tick * cost * (double)counter.calls;
    return 1;
}

static int best_call(const phase_call *c, phase_times *out)
{
    const double cost = count_cost(), start = counter.clock->seconds();
    for (int i = 0; i < CALLS && (!i || counter.clock->seconds() - start < ENOUGH_SECONDS); i++) {
        phase_times t;
        if (!one_call(c, cost, &t))
            return 0;
        if (!i || phases_sum(&t) < phases_sum(out))
            *out = t;
    }
    return 1;
}

int phases_measure(const attn_kernels *set, const phase_call *c, phase_times *out)
{
    phase_call counted = *c;
    const attn_kernels copy = spy_on(set, begin_kernel);
    void *const before = malloc(c->result_bytes);
    if (!before)
        return 0;
    spy.after = end_kernel;
    counter.clock = c->clock ? c->clock : &machine_clock;
    memcpy(before, c->result, c->result_bytes);
    counted.p.kernels = &copy;
    counted.p.num_workers = 1;
    counted.p.parallel_for = NULL;
    const int good = best_call(&counted, out) && !memcmp(before, c->result, c->result_bytes);
    free(before);
    return good;
}

/* ---- printing */

static double sum_of(const bench_result *r)
{
    return r->phase_qk_ms + r->phase_softmax_ms + r->phase_pv_ms + r->phase_merge_ms +
           r->phase_rest_ms;
}

static void say_row(const bench_result *r)
{
    const double sum = sum_of(r);
    const double parts[] = { r->phase_qk_ms, r->phase_softmax_ms, r->phase_pv_ms, r->phase_merge_ms,
                             r->phase_rest_ms };
    say("  %-22s %-14s", r->name, r->path);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        say(" %8.3f %2.0f%%", parts[i], 100 * parts[i] / sum);
    if (r->threads == 1)
        say(" %7.0f %%", 100 * sum / r->ms_min);
    else
        say(" %9s", "-");
    say(" %5.1f %%\n", 100 * r->phase_clock_ms / sum);
}

static void say_head(void)
{
    report_heading("phases of one call on one thread, ms and share of their sum");
    say("  %-22s %-14s %12s %12s %12s %12s %12s %9s %7s\n", "case", "path", "Q K^T", "softmax",
        "P V", "merge", "rest", "sum/min", "clock");
}

void phases_report(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        if (results[i].skipped[0] || sum_of(&results[i]) <= 0)
            continue;
        if (!said++)
            say_head();
        say_row(&results[i]);
    }
    if (said)
        say("sum/min: of the fastest timed call; merge has the last division; rest: packing, "
            "widening, deciding;\n  clock: what reading the clock took, within the phases; of "
            "gradients Q K^T is S and dP, softmax p and\n  dS, P V what adds to dQ, dK and dV\n");
}
