/* caches.c - the summary of preset cache: storage types, where keys lie, sharing, appending.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GIB 1073741824.0
/* Percent that pages of 16 may cost. */
#define GOAL 5.0

enum { GOAL_PAGE = 16, MOST_PLACES = 8 };

static int is_of(const bench_result *r, const char *scenario)
{
    return !r->skipped[0] && !strcmp(r->preset, "cache") && !strcmp(r->scenario, scenario);
}

/* Percent of the time of the first of its group; the first has none. */
static double cost_of(const bench_result *r)
{
    return r->speedup > 0 ? 100 / r->speedup - 100 : 0;
}

/* ---- storage types */

static void say_storage(const bench_result *r)
{
    say("  %-22s %-4s  %-4s %8lld %11.0f %10.3f %9.1f %10.1f", r->name, r->k_dtype, r->v_dtype,
        (long long)r->kv_token_bytes, GIB / (double)r->kv_token_bytes, r->ms_p50, r->gbytes_per_s,
        r->pct_read_bw);
    if (r->speedup > 0)
        say(" %9.1f %%\n", 100 / r->speedup);
    else
        say(" %11s\n", "-");
}

static void storage_report(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        if (!is_of(&results[i], "storage"))
            continue;
        if (!said++) {
            report_heading("storage of K and V; bytes of a token of one layer = "
                           "heads_kv * (head_dim * bytes of K + head_dim_v * bytes of V)");
            say("  %-22s K     V      bytes  tokens/GiB     P50 ms      GB/s      %%read "
                "of the time\n",
                "case");
        }
        say_storage(&results[i]);
    }
}

/* ---- where keys lie */

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
        if (!is_of(r, "decode") || r->speedup <= 0)
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

static void costs_report(const bench_result *results, int n)
{
    caches_cost costs[MOST_PLACES];
    const int count = caches_costs(results, n, costs, MOST_PLACES);
    if (count)
        report_heading("decoding: where keys lie against a contiguous cache, in turn (geometric "
                       "mean of medians of pairs)");
    for (int i = 0; i < count; i++)
        say_cost(&costs[i]);
}

/* ---- groups whose rows are few enough to be told one by one */

static void relative_report(const bench_result *results, int n, const char *scenario,
                            const char *heading)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (!is_of(r, scenario))
            continue;
        if (!said++) {
            report_heading(heading);
            say("  %-34s     P50 ms  of the time   MiB of K, V  keys told shared\n", "case");
        }
        say("  %-34s %10.3f", r->name, r->ms_p50);
        if (r->speedup > 0)
            say(" %10.1f %%", 100 / r->speedup);
        else
            say(" %12s", "-");
        say(" %13.1f %17lld\n", (double)r->kv_bytes / 1048576, (long long)r->shared_keys);
    }
}

static void append_report(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (!is_of(r, "append"))
            continue;
        if (!said++) {
            report_heading("appending K and V of a token, from f32, one layer");
            say("  %-34s ns/token  GB/s stored  of the time\n", "case");
        }
        say("  %-34s %8.0f %12.2f", r->name, 1e9 / r->tokens_per_s, r->gbytes_per_s);
        if (r->speedup > 0)
            say(" %10.1f %%\n", 100 / r->speedup);
        else
            say(" %12s\n", "-");
    }
}

void caches_report(const bench_result *results, int n)
{
    storage_report(results, n);
    costs_report(results, n);
    relative_report(results, n, "prefill", "a chunk of a prompt after keys that are cached");
    relative_report(results, n, "shared", "one prompt for a whole batch");
    append_report(results, n);
}
