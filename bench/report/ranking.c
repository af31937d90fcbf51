/* ranking.c - the fastest path of each case, and all paths in order.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../cases/cases.h"

/* Rows of one case: those that were timed, the fastest first, then the others. */
typedef struct case_rows {
    const bench_result **rows, *first; /* first: of all, in the order of the run */
    int timed;
} case_rows;

/* Of two that took equally long the later one counts as the faster. */
static int by_case(const void *a, const void *b)
{
    const bench_result *const x = *(const bench_result *const *)a;
    const bench_result *const y = *(const bench_result *const *)b;
    int order = strcmp(x->preset, y->preset);
    order = order ? order : strcmp(x->scenario, y->scenario);
    order = order ? order : strcmp(x->name, y->name);
    order = order ? order : !!x->skipped[0] - !!y->skipped[0];
    order = order ? order : (x->ms_p50 > y->ms_p50) - (x->ms_p50 < y->ms_p50);
    return order ? order : (x < y) - (x > y);
}

static int by_first(const void *a, const void *b)
{
    const case_rows *const x = a, *const y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Takes the rows of one case from the front of n sorted ones; returns how many. */
static int take_case(const bench_result **rows, int n, case_rows *c)
{
    const case_rows start = { rows, rows[0], 0 };
    int i;
    *c = start;
    for (i = 0; i < n && report_same_case(rows[i], rows[0]); i++) {
        c->timed += !rows[i]->skipped[0];
        if (rows[i] < c->first)
            c->first = rows[i];
    }
    return i;
}

/* The cases in the order of the run, to be freed; none where memory is short. */
static case_rows *cases_of(const bench_result *results, int n, int *count)
{
    case_rows *const cases = malloc((size_t)n * (sizeof *cases + sizeof results) + 1);
    *count = 0;
    if (!cases)
        return NULL;
    const bench_result **const sorted = (const bench_result **)(cases + n);
    for (int i = 0; i < n; i++)
        sorted[i] = &results[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_case);
    for (int i = 0; i < n; ++*count)
        i += take_case(sorted + i, n - i, &cases[*count]);
    qsort(cases, (size_t)*count, sizeof *cases, by_first);
    return cases;
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

/* What the timed rows of a case say of their paths; nothing where one has no rival. */
static int add_case(const case_rows *c, bench_rank *out, int count, int max)
{
    for (int i = 0; i < c->timed && c->timed > 1; i++) {
        bench_rank *const e = entry_of(c->rows[i]->path, out, &count, max);
        if (!e)
            continue;
        e->cases++;
        e->won += i == 0;
        e->share += log(c->rows[0]->ms_p50 / c->rows[i]->ms_p50);
    }
    return count;
}

static int rank_cases(const case_rows *cases, int n, bench_rank *out, int max)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count = add_case(&cases[i], out, count, max);
    for (int i = 0; i < count; i++)
        out[i].share = report_mean(out[i].share, out[i].cases);
    qsort(out, (size_t)count, sizeof *out, by_share);
    return count;
}

/* 0 = no two paths were timed. */
static int say_best(const case_rows *c)
{
    if (c->timed < 2)
        return 0;
    const bench_result *const best = c->rows[0], *const next = c->rows[1];
    const bench_result *const last = c->rows[c->timed - 1];
    say("  %-20s ", best->name);
    report_colour(GREEN);
    say("%-14s", best->path);
    report_colour(PLAIN);
    say(" %9.3f ms  %5.2f x %-14s %6.1f x %s\n", best->ms_p50, next->ms_p50 / best->ms_p50,
        next->path, last->ms_p50 / best->ms_p50, last->path);
    return 1;
}

static int say_ranking(const case_rows *cases, int n)
{
    bench_rank ranks[PATHS_MAX];
    int compared = 0;
    const int count = rank_cases(cases, n, ranks, PATHS_MAX);
    if (count < 3)
        return 0;
    report_heading("fastest path of each case, times as fast as the next one and as the slowest");
    for (int i = 0; i < n; i++)
        compared += say_best(&cases[i]);
    report_heading("ranking by time of the fastest / own time, geometric mean over a path's cases");
    for (int i = 0; i < count; i++)
        say("  %2d  %-14s %5.1f %%   fastest in %d of %d%s\n", i + 1, ranks[i].path,
            100 * ranks[i].share, ranks[i].won, ranks[i].cases,
            ranks[i].cases < compared ? " (not in every case: see skipped)" : "");
    return 1;
}

int ranking_of(const bench_result *results, int n, bench_rank *out, int max)
{
    int count;
    case_rows *const cases = cases_of(results, n, &count);
    const int ranked = rank_cases(cases, count, out, max);
    free(cases);
    return ranked;
}

int ranking_report(const bench_result *results, int n)
{
    int count;
    case_rows *const cases = cases_of(results, n, &count);
    const int said = say_ranking(cases, count);
    free(cases);
    return said;
}
