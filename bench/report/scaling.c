/* scaling.c - how time and memory grow with the length: exponents of scenarios that differ in it.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <string.h>

#include "../stats.h"

enum { MOST_LENGTHS = 16 };

static int same(const char *a, const char *b)
{
    return !strcmp(a, b);
}

/* Alike but for the length. */
static int alike(const bench_result *a, const bench_result *b)
{
    return report_same_scenario(a, b) && same(a->path, b->path) && same(a->kernels, b->kernels) &&
           same(a->mask, b->mask) && same(a->dtype, b->dtype) && same(a->pass, b->pass) &&
           a->batch == b->batch && a->heads_q == b->heads_q && a->heads_kv == b->heads_kv &&
           a->head_dim == b->head_dim && a->head_dim_v == b->head_dim_v && a->threads == b->threads;
}

/* Whether b was timed, in the scenario and by the path of a. */
static int in_scenario(const bench_result *a, const bench_result *b)
{
    return !b->skipped[0] && report_same_scenario(a, b) && same(a->path, b->path);
}

typedef struct curve {
    int n;
    double keys[MOST_LENGTHS], pairs[MOST_LENGTHS], time[MOST_LENGTHS], workspace[MOST_LENGTHS];
} curve;

static double pairs_of(const bench_result *r)
{
    return r->visible * (double)r->seq_q * (double)r->seq_kv;
}

static void add(curve *c, const bench_result *r)
{
    c->keys[c->n] = (double)r->seq_kv;
    c->pairs[c->n] = pairs_of(r);
    c->time[c->n] = r->ms_p50;
    c->workspace[c->n++] = (double)(r->workspace_bytes + 1);
}

/* The rows of results[0]'s scenario and path; 0 = they differ in more than the length. */
static int collect(const bench_result *results, int n, curve *c)
{
    c->n = 0;
    for (int i = 0; i < n; i++) {
        if (!in_scenario(results, &results[i]))
            continue;
        const int longer = !c->n || (double)results[i].seq_kv > c->keys[c->n - 1];
        if (!alike(results, &results[i]) || !longer || c->n == MOST_LENGTHS)
            return 0;
        add(c, &results[i]);
    }
    return c->n >= SCALING_LEAST && c->pairs[0] > 0;
}

int scaling_of(const bench_result *results, int n, bench_scaling *out, int max)
{
    int count = 0;
    curve c;
    for (int i = 0; i < n && count < max; i++) {
        const bench_result *const r = &results[i];
        if (r->skipped[0] || !report_is_first(results, i, in_scenario) || !collect(r, n - i, &c))
            continue;
        const bench_scaling s = { r->preset,
                                  r->scenario,
                                  r->path,
                                  (int64_t)c.keys[0],
                                  (int64_t)c.keys[c.n - 1],
                                  c.n,
                                  bench_exponent(c.keys, c.pairs, c.n),
                                  bench_exponent(c.keys, c.time, c.n),
                                  bench_exponent(c.keys, c.workspace, c.n) };
        out[count++] = s;
    }
    return count;
}

void scaling_report(const bench_result *results, int n)
{
    static bench_scaling all[REPORT_MAX_SCENARIOS];
    const int count = scaling_of(results, n, all, REPORT_MAX_SCENARIOS);
    if (!count)
        return;
    report_heading("growth over the length: exponents by least squares of the logarithms");
    say("  %-8s %-18s %-14s %19s %8s %8s %8s %10s\n", "preset", "scenario", "path", "keys", "cases",
        "pairs", "time", "workspace");
    for (int i = 0; i < count; i++)
        say("  %-8s %-18s %-14s %8lld .. %7lld %8d %8.2f %8.2f %10.2f\n", all[i].preset,
            all[i].scenario, all[i].path, (long long)all[i].shortest, (long long)all[i].longest,
            all[i].cases, all[i].pairs, all[i].time, all[i].workspace);
}
