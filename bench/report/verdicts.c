/* verdicts.c - naive against tiled in words, and what comparable suites expect.
 * SPDX-License-Identifier: MIT */
#include "verdicts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- pairs */

/* The tiled row that is the same but for its path; NULL = it has none, or is none of naive. */
static const bench_result *partner(const bench_result *all, int n, const bench_result *naive)
{
    if (naive->skipped[0] || strcmp(naive->impl, "naive") || !strcmp(naive->kernels, "scalar"))
        return NULL;
    for (int i = 0; i < n; i++) {
        const bench_result *const t = &all[i];
        if (!t->skipped[0] && !strcmp(t->impl, "tiled") && t->threads == naive->threads
            && !strcmp(t->kernels, naive->kernels) && report_same_case(t, naive))
            return t;
    }
    return NULL;
}

/* The same of a row of the scenario of `first` only: rows of others need no search. */
static const bench_result *partner_in(const bench_result *all, int n, const bench_result *naive,
                                      const bench_result *first)
{
    return report_same_scenario(naive, first) ? partner(all, n, naive) : NULL;
}

static double speed_of(const bench_result *naive, const bench_result *tiled)
{
    return naive->ms_p50 / tiled->ms_p50;
}

static double memory_of(const bench_result *naive, const bench_result *tiled)
{
    return (double)tiled->workspace_bytes / (double)(naive->workspace_bytes + 1);
}

static int disturbed(const bench_result *naive, const bench_result *tiled)
{
    return report_noisy(naive) || report_noisy(tiled);
}

static const char *mark_of(int noisy)
{
    return noisy ? " (noisy)" : "";
}

/* ---- verdicts */

static const struct {
    double above;
    const char *text;
    report_style style;
} thresholds[] = {
    {1.5, "tiled is much faster", GREEN},
    {1.05, "tiled is faster", GREEN},
    {0.95, "about the same speed", PLAIN},
    {-1, "naive is faster", YELLOW},
};

static int threshold_of(double speedup)
{
    int i = 0;
    while (speedup <= thresholds[i].above) i++;
    return i;
}

const char *verdict_text(double speedup)
{
    return thresholds[threshold_of(speedup)].text;
}

/* The shortest length above every one at which naive was as fast as tiled. */
static int64_t crossover_of(const bench_result *all, int n, const bench_result *first)
{
    int64_t lost = 0, crossover = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const t = partner_in(all, n, &all[i], first);
        if (t && speed_of(&all[i], t) <= 1 && t->seq_kv > lost) lost = t->seq_kv;
    }
    for (int i = 0; i < n; i++) {
        const bench_result *const t = partner_in(all, n, &all[i], first);
        if (t && t->seq_kv > lost && (!crossover || t->seq_kv < crossover)) crossover = t->seq_kv;
    }
    return crossover;
}

static bench_verdict verdict_of(const bench_result *all, int n, const bench_result *first)
{
    bench_verdict v = {first->preset, first->scenario, "", 0, 0, 0, 0, INT64_MAX, 0, 0, 0};
    double log_speed = 0, log_memory = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const t = partner_in(all, n, &all[i], first);
        if (!t) continue;
        v.cases++;
        v.won += speed_of(&all[i], t) > 1;
        v.noisy += disturbed(&all[i], t);
        log_speed += log(speed_of(&all[i], t));
        log_memory += log(memory_of(&all[i], t));
        if (t->seq_kv < v.shortest) v.shortest = t->seq_kv;
        if (t->seq_kv > v.longest) v.longest = t->seq_kv;
    }
    v.speedup = report_mean(log_speed, v.cases);
    v.memory_saved = 1 - report_mean(log_memory, v.cases);
    v.crossover = crossover_of(all, n, first);
    v.text = verdict_text(v.speedup);
    return v;
}

int verdicts_of(const bench_result *results, int n, bench_verdict *out, int max)
{
    int count = 0;
    for (int i = 0; i < n && count < max; i++) {
        if (!report_begins_scenario(results, i)) continue;
        out[count] = verdict_of(results, n, &results[i]);
        if (out[count].cases) count++;
    }
    return count;
}

/* ---- expectations: published by suites that compare naive with flash or tiled attention, of
 * forward calls */

typedef enum figure { FASTER, LESS_MEMORY, TIMES } figure;

#define NO_PAIR "no naive and tiled, forward, beyond "

static const struct {
    const char *claim;
    figure what;
    double least;    /* the lower end of the claim */
    int64_t rows;    /* only cases of more rows of queries than this */
    const char *why; /* it is not measured when no row fits */
} expectations[] = {
    {"15-25 % faster beyond 1K tokens", FASTER, 15, 1024, NO_PAIR "1024 rows"},
    {"50-80 % less memory beyond 1K", LESS_MEMORY, 50, 1024, NO_PAIR "1024 rows"},
    {"2-4 times as fast beyond 4K", TIMES, 2, 4096, NO_PAIR "4096 rows"},
    {"GPU: 2-4 times as fast", TIMES, 2, INT64_MAX, "no GPU backend in this build"},
};

static double figure_of(figure what, double speedup, double memory)
{
    const double figures[] = {100 * (speedup - 1), 100 * (1 - memory), speedup};
    return figures[what];
}

int verdicts_expectation(const bench_result *results, int n, int i, bench_expectation *out)
{
    static const char *const units[] = {"% faster", "% less workspace", "times as fast"};
    double log_speed = 0, log_memory = 0;
    if (i >= LENGTH(expectations)) return 0;
    memset(out, 0, sizeof *out);
    out->claim = expectations[i].claim;
    out->unit = units[expectations[i].what];
    out->why = expectations[i].why;
    for (int k = 0; k < n; k++) {
        const bench_result *const t = partner(results, n, &results[k]);
        if (!t || t->gemms || t->seq_q <= expectations[i].rows) continue;
        out->cases++;
        /* noise does not change how much memory there is */
        out->noisy += expectations[i].what != LESS_MEMORY && disturbed(&results[k], t);
        log_speed += log(speed_of(&results[k], t));
        log_memory += log(memory_of(&results[k], t));
    }
    if (!out->cases) return 1;
    out->measured = figure_of(expectations[i].what, report_mean(log_speed, out->cases),
                              report_mean(log_memory, out->cases));
    out->met = out->measured >= expectations[i].least;
    return 1;
}

/* ---- printing */

static void say_crossover(const bench_verdict *v)
{
    char text[40];
    const char *const about = v->shortest == v->longest ? " (one length)" : " (shortest)";
    if (v->crossover)
        snprintf(text, sizeof text, "%lld%s", (long long)v->crossover,
                 v->crossover == v->shortest ? about : "");
    else
        snprintf(text, sizeof text, "none up to %lld", (long long)v->longest);
    say("  %-19s", text);
}

static void say_verdict(const bench_verdict *v)
{
    char name[40];
    snprintf(name, sizeof name, "%.12s: %.24s", v->preset, v->scenario);
    say("  %-28s %3d of %-3d %8.2fx %+8.0f %%", name, v->won, v->cases, v->speedup,
        -100 * v->memory_saved);
    say_crossover(v);
    report_colour(thresholds[threshold_of(v->speedup)].style);
    say("  %s%s\n", v->text, mark_of(v->noisy));
    report_colour(PLAIN);
}

static void say_expectation(const bench_expectation *e)
{
    if (!e->cases) {
        say("  %-34s not measured: %s\n", e->claim, e->why);
        return;
    }
    say("  %-34s %.*f %s in %d case%s: ", e->claim, e->measured < 10 ? 1 : 0, e->measured, e->unit,
        e->cases, e->cases > 1 ? "s" : "");
    report_colour(e->met ? GREEN : YELLOW);
    say("%s%s\n", e->met ? "met" : "not met", mark_of(e->noisy));
    report_colour(PLAIN);
}

static void say_expectations(const bench_result *results, int n)
{
    bench_expectation e;
    report_heading("what comparable suites publish       measured here, geometric mean");
    for (int i = 0; verdicts_expectation(results, n, i, &e); i++) say_expectation(&e);
}

int verdicts_report(const bench_result *results, int n)
{
    static bench_verdict verdicts[REPORT_MAX_SCENARIOS]; /* 96 KiB: off the stack */
    const int count = verdicts_of(results, n, verdicts, REPORT_MAX_SCENARIOS);
    if (!count) return 0;
    report_heading("naive against tiled             won       speed-up  workspace   "
                   "faster from keys     verdict");
    for (int i = 0; i < count; i++) say_verdict(&verdicts[i]);
    say_expectations(results, n);
    return 1;
}
