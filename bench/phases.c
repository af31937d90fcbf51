/* phases.c - where the time of a call goes: Q K^T, softmax, P V, merge and the rest.
 * SPDX-License-Identifier: MIT */
#include "run.h"

#include "../attn_simd.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "report/report.h"

enum { CALLS = 5, COST_CALLS = 1000, COST_ROUNDS = 5 };
#define ENOUGH_SECONDS 1.0 /* no further call after that */

typedef enum phase { QK, SOFTMAX, PV, MERGE, PHASES } phase;

static struct {
    const attn_kernels *set; /* what the copy calls */
    uint64_t ticks[PHASES];
    int64_t calls;
} counter;

/* ---- the copy: each function calls that of the set and counts its ticks */

#define COUNTED(phase, call)                                                                       \
    do {                                                                                           \
        const uint64_t begin_ = clock_ticks();                                                     \
        call;                                                                                      \
        counter.ticks[phase] += clock_ticks() - begin_;                                            \
        counter.calls++;                                                                           \
    } while (0)

static void count_exp_block(const attn_exp *e)
{
    COUNTED(SOFTMAX, counter.set->exp_block(e));
}

/* What would be computed beside the products comes before them. */
static void count_qk(float *s, const float *qt, const float *k, ptrdiff_t k_stride, int n,
                     int64_t head_dim, attn_lanes lanes, const attn_exp *beside, attn_ahead *ahead)
{
    if (beside)
        count_exp_block(beside);
    COUNTED(QK, counter.set->qk(s, qt, k, k_stride, n, head_dim, lanes, NULL, ahead));
}

static void count_qk_runs(float *s, const float *qt, const attn_runs *k, int n, int64_t head_dim,
                          attn_lanes lanes, const attn_exp *beside, attn_ahead *ahead)
{
    if (beside)
        count_exp_block(beside);
    COUNTED(QK, counter.set->qk_runs(s, qt, k, n, head_dim, lanes, NULL, ahead));
}

#define COUNT(kernel, phase, parameters, arguments)                                                \
    static void count_##kernel parameters                                                          \
    {                                                                                              \
        COUNTED(phase, counter.set->kernel arguments);                                             \
    }

COUNT(softcap, SOFTMAX, (float *s, int n, float cap2, float icap2), (s, n, cap2, icap2))
COUNT(add_scaled, SOFTMAX, (float *s, const float *x, const float *factor, int n),
      (s, x, factor, n))
COUNT(clip, SOFTMAX, (float *s, int n, const int *begin, const int *end), (s, n, begin, end))
COUNT(hide, SOFTMAX, (float *s, const uint8_t *alive, int n), (s, alive, n))
COUNT(maximum, SOFTMAX, (const float *s, int n, float *m), (s, n, m))
COUNT(exp_sum, SOFTMAX, (float *s, int n, float dead, const float *m, float *l), (s, n, dead, m, l))
COUNT(rescale, PV, (float *x, const float *alpha, int64_t count), (x, alpha, count))
COUNT(pv, PV,
      (float *o, const float *p, const float *v, ptrdiff_t v_stride, int n, int64_t head_dim_v,
       attn_lanes lanes, attn_ahead *ahead),
      (o, p, v, v_stride, n, head_dim_v, lanes, ahead))
COUNT(pv_runs, PV,
      (float *o, const float *p, const attn_runs *v, int n, int64_t head_dim_v, attn_lanes lanes,
       attn_ahead *ahead),
      (o, p, v, n, head_dim_v, lanes, ahead))
COUNT(pv_select, PV,
      (float *o, const float *p, const float *v, ptrdiff_t v_stride, int n, int64_t head_dim_v,
       attn_lanes lanes),
      (o, p, v, v_stride, n, head_dim_v, lanes))
COUNT(merge, MERGE, (float *a, float *b, int64_t head_dim_v), (a, b, head_dim_v))
COUNT(result, MERGE,
      (float *const *out, const float *o, const float *l, float factor, int64_t head_dim_v),
      (out, o, l, factor, head_dim_v))
COUNT(gradient, SOFTMAX, (float *s, float *dp, int n, const float *lse2, const float *delta),
      (s, dp, n, lse2, delta))
COUNT(softcap_gradient, SOFTMAX, (float *ds, const float *t, const float *p, int n), (ds, t, p, n))
COUNT(dots, SOFTMAX, (float *to, const float *a, const float *b, int64_t dim), (to, a, b, dim))
COUNT(outer, PV, (float *c, ptrdiff_t c_stride, const attn_terms *terms, int n, int64_t columns),
      (c, c_stride, terms, n, columns))
COUNT(outer_select, PV,
      (float *c, ptrdiff_t c_stride, const attn_terms *terms, int n, int64_t columns),
      (c, c_stride, terms, n, columns))

static int count_running_max(const float *s, int n, float *m, float *l, float *alpha)
{
    int found;
    COUNTED(SOFTMAX, found = counter.set->running_max(s, n, m, l, alpha));
    return found;
}

static attn_kernels counting_copy(const attn_kernels *set)
{
    attn_kernels k = *set;
    counter.set = set;
    k.qk = count_qk;
    k.softcap = count_softcap;
    k.add_scaled = count_add_scaled;
    k.clip = count_clip;
    k.hide = count_hide;
    k.running_max = count_running_max;
    k.maximum = count_maximum;
    k.exp_sum = count_exp_sum;
    k.exp_block = count_exp_block;
    k.rescale = count_rescale;
    k.pv = count_pv;
    k.pv_select = count_pv_select;
    k.merge = count_merge;
    k.result = count_result;
    k.gradient = count_gradient;
    k.softcap_gradient = count_softcap_gradient;
    k.dots = count_dots;
    k.outer = count_outer;
    k.outer_select = count_outer_select;
    if (k.qk_runs)
        k.qk_runs = count_qk_runs;
    if (k.pv_runs)
        k.pv_runs = count_pv_runs;
    return k;
}

/* ---- measuring */

/* Ticks of counting alone, a call: the least of some rounds. */
static double count_cost(void)
{
    uint64_t least = UINT64_MAX;
    for (int round = 0; round < COST_ROUNDS; round++) {
        const uint64_t begin = clock_ticks();
        for (int i = 0; i < COST_CALLS; i++)
            COUNTED(MERGE, (void)0);
        const uint64_t ticks = clock_ticks() - begin;
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
    memset(counter.ticks, 0, sizeof counter.ticks);
    counter.calls = 0;
    const double start = clock_seconds();
    const uint64_t begin = clock_ticks();
    const attn_status status = c->g ? attn_backward(&c->p, c->g, c->workspace, c->workspace_bytes)
                                    : attn_forward(&c->p, c->workspace, c->workspace_bytes);
    if (status != ATTN_OK)
        return 0;
    const uint64_t ticks = clock_ticks() - begin;
    const double seconds = clock_seconds() - start, tick = ticks ? seconds / (double)ticks : 0;
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
    const double cost = count_cost(), start = clock_seconds();
    for (int i = 0; i < CALLS && (!i || clock_seconds() - start < ENOUGH_SECONDS); i++) {
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
    const attn_kernels copy = counting_copy(set);
    void *const before = malloc(c->result_bytes);
    if (!before)
        return 0;
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
        say("sum/min: of the fastest timed call; exponentials that it computes beside Q K^T are "
            "alone here,\n  so that this may be above 100 %%; merge has the last division; rest: "
            "packing, widening, deciding;\n  clock: what reading the clock took, within the "
            "phases; of gradients Q K^T is S and dP, softmax p and\n  dS, P V what adds to dQ, dK "
            "and dV\n");
}
