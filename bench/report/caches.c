/* caches.c - decoding of preset cache: what it costs where the keys lie.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Percent that pages of 16 may cost. */
#define GOAL 5.0

enum { GOAL_PAGE = 16, MOST_PLACES = 8 };

static int is_decoding(const bench_result *r)
{
    return !r->skipped[0] && !strcmp(r->preset, "cache") && !strcmp(r->scenario, "decode");
}

/* Percent of the time of the first of its group. */
static double cost_of(const bench_result *r)
{
    return 100 / r->speedup - 100;
}

static int same_place(const bench_result *r, const caches_cost *c)
{
    return r->page_size == c->page_size && !strcmp(r->keys, c->keys);
}

static caches_cost *place_of(const bench_result *r, caches_cost *out, int *count, int max)
{
    for (int i = 0; i < *count; i++)
        if (same_place(r, &out[i]))
            return &out[i];
    if (*count == max)
        return NULL;
    caches_cost *const c = &out[(*count)++];
    memset(c, 0, sizeof *c);
    c->keys = r->keys;
    c->page_size = r->page_size;
    c->goal = r->page_size == GOAL_PAGE ? GOAL : 0;
    return c;
}

int caches_costs(const bench_result *results, int n, caches_cost *out, int max)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (!is_decoding(r) || r->speedup <= 0)
            continue;
        caches_cost *const c = place_of(r, out, &count, max);
        if (!c)
            continue;
        if (!c->cases || cost_of(r) > c->worst) {
            c->worst = cost_of(r);
            c->worst_case = r->name;
        }
        c->cases++;
        c->mean += log(1 / r->speedup);
        c->noisy += report_noisy(r);
    }
    for (int i = 0; i < count; i++)
        out[i].mean = 100 * report_mean(out[i].mean, out[i].cases) - 100;
    return count;
}

static void say_cost(const caches_cost *c)
{
    char name[32];
    if (c->page_size)
        snprintf(name, sizeof name, "pages of %lld", (long long)c->page_size);
    else
        snprintf(name, sizeof name, "%s%s", c->keys, strcmp(c->keys, "plain") ? "" : " arrays");
    say("  %-14s %+6.1f %% of the time in %d case%s, at most %+.1f %% (%s)", name, c->mean,
        c->cases, c->cases > 1 ? "s" : "", c->worst, c->worst_case);
    if (c->goal > 0) {
        const int met = c->mean <= c->goal;
        say("; goal at most %.0f %%: ", c->goal);
        report_colour(met ? GREEN : YELLOW);
        say("%s", met ? "met" : "not met");
        report_colour(PLAIN);
    }
    say("%s\n", c->noisy ? " (noisy)" : "");
}

void caches_report(const bench_result *results, int n)
{
    caches_cost costs[MOST_PLACES];
    const int count = caches_costs(results, n, costs, MOST_PLACES);
    if (count)
        report_heading("decoding: where keys lie against a contiguous cache, in turn (geometric "
                       "mean of medians of pairs)");
    for (int i = 0; i < count; i++)
        say_cost(&costs[i]);
}
