/* ranking.c - the fastest path of each case, and all paths in order.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../cases/cases.h"

/* The fastest of the case of `like` but for `but`, or the slowest; NULL = no other path. */
static const bench_result *extreme(const bench_result *all, int n, const bench_result *like,
                                   const bench_result *but, int slowest)
{
    const bench_result *found = NULL;
    for (int i = 0; i < n; i++) {
        if (all[i].skipped[0] || &all[i] == but || !report_same_case(&all[i], like))
            continue;
        if (!found || (all[i].ms_p50 > found->ms_p50) == slowest)
            found = &all[i];
    }
    return found;
}

static bench_rank *entry_of(const char *path, bench_rank *out, int *count, int max)
{
    const bench_rank none = { path, 0, 0, 0 };
    for (int i = 0; i < *count; i++)
        if (!strcmp(out[i].path, path))
            return &out[i];
    if (*count == max)
        return NULL;
    out[*count] = none;
    return &out[(*count)++];
}

static int by_share(const void *a, const void *b)
{
    const bench_rank *const x = a, *const y = b;
    return (x->share < y->share) - (x->share > y->share);
}

int ranking_of(const bench_result *results, int n, bench_rank *out, int max)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (r->skipped[0] || !extreme(results, n, r, r, 0))
            continue; /* it has no rival */
        bench_rank *const e = entry_of(r->path, out, &count, max);
        if (!e)
            continue;
        const bench_result *const best = extreme(results, n, r, NULL, 0);
        e->cases++;
        e->won += best == r;
        e->share += log(best->ms_p50 / r->ms_p50);
    }
    for (int i = 0; i < count; i++)
        out[i].share = report_mean(out[i].share, out[i].cases);
    qsort(out, (size_t)count, sizeof *out, by_share);
    return count;
}

/* 0 = no two paths were timed. */
static int say_best(const bench_result *results, int n, const bench_result *r)
{
    const bench_result *const best = extreme(results, n, r, NULL, 0);
    const bench_result *const next = best ? extreme(results, n, r, best, 0) : NULL;
    const bench_result *const last = best ? extreme(results, n, r, best, 1) : NULL;
    if (!next)
        return 0;
    say("  %-20s ", r->name);
    report_colour(GREEN);
    say("%-14s", best->path);
    report_colour(PLAIN);
    say(" %9.3f ms  %5.2f x %-14s %6.1f x %s\n", best->ms_p50, next->ms_p50 / best->ms_p50,
        next->path, last->ms_p50 / best->ms_p50, last->path);
    return 1;
}

int ranking_report(const bench_result *results, int n)
{
    bench_rank ranks[PATHS_MAX];
    int cases = 0;
    const int count = ranking_of(results, n, ranks, PATHS_MAX);
    if (count < 3)
        return 0;
    report_heading("fastest path of each case, times as fast as the next one and as the slowest");
    for (int i = 0; i < n; i++) {
        if (report_is_first(results, i, report_same_case))
            cases += say_best(results, n, &results[i]);
    }
    report_heading("ranking by time of the fastest / own time, geometric mean over a path's cases");
    for (int i = 0; i < count; i++)
        say("  %2d  %-14s %5.1f %%   fastest in %d of %d%s\n", i + 1, ranks[i].path,
            100 * ranks[i].share, ranks[i].won, ranks[i].cases,
            ranks[i].cases < cases ? " (not in every case: see skipped)" : "");
    return 1;
}
