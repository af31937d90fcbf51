/* verdicts.c - naive against tiled and CPU against device in words, and what comparable suites
 * expect.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../cases/cases.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* ---- pairs: a row of one kind and one of the other of the same case */

static int is_naive(const bench_result *r)
{
    return !strcmp(r->impl, "naive");
}

/* The same but for the path. */
static int alike(const bench_result *a, const bench_result *b)
{
    return a->threads == b->threads && !strcmp(a->kernels, b->kernels) && report_same_case(a, b);
}

/* The first tiled row of a place; on the CPU the same but for the path. */
static const bench_result *tiled_at(const bench_result *all, int n, const bench_result *like,
                                    int place)
{
    for (int i = 0; i < n; i++)
        if (!all[i].skipped[0] && all[i].place == place && !strcmp(all[i].impl, "tiled") &&
            (place ? report_same_case(&all[i], like) : alike(&all[i], like)))
            return &all[i];
    return NULL;
}

static const bench_result *tiled_on_cpu(const bench_result *all, int n, const bench_result *naive)
{
    const int counts = !naive->place && is_naive(naive) && strcmp(naive->kernels, "scalar");
    return counts ? tiled_at(all, n, naive, PATH_CPU) : NULL;
}

static const bench_result *tiled_on_device(const bench_result *all, int n,
                                           const bench_result *naive)
{
    return naive->place && is_naive(naive) ? tiled_at(all, n, naive, PATH_HOST_ARRAYS) : NULL;
}

/* Whether no other path of the CPU, with whatever threads, was faster. */
static int best_of_cpu(const bench_result *all, int n, const bench_result *r)
{
    if (r->place)
        return 0;
    for (int i = 0; i < n; i++)
        if (!all[i].skipped[0] && !all[i].place && report_same_case(&all[i], r) &&
            (all[i].ms_p50 < r->ms_p50 || (all[i].ms_p50 == r->ms_p50 && &all[i] < r)))
            return 0;
    return 1;
}

static const bench_result *device_copied(const bench_result *all, int n, const bench_result *cpu)
{
    return best_of_cpu(all, n, cpu) ? tiled_at(all, n, cpu, PATH_HOST_ARRAYS) : NULL;
}

static const bench_result *device_resident(const bench_result *all, int n, const bench_result *cpu)
{
    return best_of_cpu(all, n, cpu) ? tiled_at(all, n, cpu, PATH_DEVICE_ARRAYS) : NULL;
}

/* In the order of verdict_kind. */
static const struct {
    const char *title, *ours, *theirs;
    const bench_result *(*partner)(const bench_result *all, int n, const bench_result *theirs);
} kinds[VERDICT_KINDS] = {
    { "naive against tiled", "tiled", "naive", tiled_on_cpu },
    { "naive against tiled, device", "tiled", "naive", tiled_on_device },
    { "CPU against device, copying", "the device", "the CPU", device_copied },
    { "CPU against device, resident", "the device", "the CPU", device_resident },
};

/* The row of ours that is theirs' counterpart; NULL = it has none, or is none of theirs. */
static const bench_result *partner(verdict_kind kind, const bench_result *all, int n,
                                   const bench_result *theirs)
{
    return theirs->skipped[0] ? NULL : kinds[kind].partner(all, n, theirs);
}

/* The same of a row of the scenario of `first` only: rows of others need no search. */
static const bench_result *partner_in(verdict_kind kind, const bench_result *all, int n,
                                      const bench_result *theirs, const bench_result *first)
{
    return report_same_scenario(theirs, first) ? partner(kind, all, n, theirs) : NULL;
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
    { 1.5, "%s is much faster", GREEN },
    { 1.05, "%s is faster", GREEN },
    { 0.95, "about the same speed", PLAIN },
    { -1, "%s is faster", YELLOW },
};

static int threshold_of(double speedup)
{
    int i = 0;
    while (speedup <= thresholds[i].above)
        i++;
    return i;
}

void verdict_text(verdict_kind kind, double speedup, char text[VERDICT_TEXT])
{
    const char *const faster = speedup > 1 ? kinds[kind].ours : kinds[kind].theirs;
    const char *const words = thresholds[threshold_of(speedup)].text;
    const char *const name = strstr(words, "%s");
    snprintf(text, VERDICT_TEXT, "%s%s", name ? faster : "", name ? name + 2 : words);
}

/* The shortest length above every one at which theirs was as fast as ours. */
static int64_t crossover_of(verdict_kind kind, const bench_result *all, int n,
                            const bench_result *first)
{
    int64_t lost = 0, crossover = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const t = partner_in(kind, all, n, &all[i], first);
        if (t && speed_of(&all[i], t) <= 1 && t->seq_kv > lost)
            lost = t->seq_kv;
    }
    for (int i = 0; i < n; i++) {
        const bench_result *const t = partner_in(kind, all, n, &all[i], first);
        if (t && t->seq_kv > lost && (!crossover || t->seq_kv < crossover))
            crossover = t->seq_kv;
    }
    return crossover;
}

/* Of the times of calls on a device. */
static void add_shares(bench_verdict *v, const bench_result *r)
{
    const double sum = r->launch_ms + r->to_device_ms + r->compute_ms + r->to_host_ms;
    if (sum <= 0)
        return;
    v->launch += r->launch_ms / sum;
    v->transfer += (r->to_device_ms + r->to_host_ms) / sum;
    v->compute += r->compute_ms / sum;
}

static bench_verdict verdict_of(verdict_kind kind, const bench_result *all, int n,
                                const bench_result *first)
{
    bench_verdict v = { .preset = first->preset,
                        .scenario = first->scenario,
                        .shortest = INT64_MAX };
    double log_speed = 0, log_memory = 0, theirs = 0, ours = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const t = partner_in(kind, all, n, &all[i], first);
        if (!t)
            continue;
        v.cases++;
        theirs += all[i].ms_mean;
        ours += t->ms_mean;
        v.won += speed_of(&all[i], t) > 1;
        v.noisy += disturbed(&all[i], t);
        log_speed += log(speed_of(&all[i], t));
        log_memory += log(memory_of(&all[i], t));
        add_shares(&v, t);
        if (t->seq_kv < v.shortest)
            v.shortest = t->seq_kv;
        if (t->seq_kv > v.longest)
            v.longest = t->seq_kv;
    }
    v.speedup = report_mean(log_speed, v.cases);
    v.ms_mean = (v.speedup > 1 ? ours : theirs) / (v.cases ? v.cases : 1);
    v.memory_saved = 1 - report_mean(log_memory, v.cases);
    v.crossover = crossover_of(kind, all, n, first);
    verdict_text(kind, v.speedup, v.text);
    return v;
}

int verdicts_of(verdict_kind kind, const bench_result *results, int n, bench_verdict *out, int max)
{
    int count = 0;
    for (int i = 0; i < n && count < max; i++) {
        if (!report_is_first(results, i, report_same_scenario))
            continue;
        out[count] = verdict_of(kind, results, n, &results[i]);
        if (out[count].cases)
            count++;
    }
    return count;
}

/* ---- expectations: published by suites that compare naive with flash or tiled attention, of
 * forward calls. The shapes that they mean are those of presets: a user's own shape is no measure. */

typedef enum figure { FASTER, LESS_MEMORY, TIMES } figure;

#define NO_PAIR "no naive and tiled, forward, beyond "

static const struct {
    const char *claim;
    figure what;
    double least;    /* the lower end of the claim */
    int64_t rows;    /* only cases of more rows of queries than this; 0: of a GPU */
    const char *why; /* it is not measured when no row fits */
} expectations[] = {
    { "15-25 % faster beyond 1K tokens", FASTER, 15, 1024, NO_PAIR "1024 rows" },
    { "50-80 % less memory beyond 1K", LESS_MEMORY, 50, 1024, NO_PAIR "1024 rows" },
    { "2-4 times as fast beyond 4K", TIMES, 2, 4096, NO_PAIR "4096 rows" },
    { "GPU: 2-4 times as fast", TIMES, 2, 0, "no naive and tiled, forward, on a GPU" },
};

static double figure_of(figure what, double speedup, double memory)
{
    const double figures[] = { 100 * (speedup - 1), 100 * (1 - memory), speedup };
    return figures[what];
}

int verdicts_expectation(const bench_result *results, int n, int i, bench_expectation *out)
{
    static const char *const units[] = { "% faster", "% less workspace", "times as fast" };
    double log_speed = 0, log_memory = 0;
    if (i >= LENGTH(expectations))
        return 0;
    const verdict_kind kind = expectations[i].rows ? VERDICT_TILED : VERDICT_TILED_DEVICE;
    memset(out, 0, sizeof *out);
    out->claim = expectations[i].claim;
    out->unit = units[expectations[i].what];
    out->why = expectations[i].why;
    for (int k = 0; k < n; k++) {
        const bench_result *const t = partner(kind, results, n, &results[k]);
        if (!t || t->gemms || t->seq_q <= expectations[i].rows || !strcmp(t->preset, "shape"))
            continue;
        if (kind == VERDICT_TILED_DEVICE && !t->on_gpu)
            continue;
        out->cases++;
        /* noise does not change how much memory there is */
        out->noisy += expectations[i].what != LESS_MEMORY && disturbed(&results[k], t);
        log_speed += log(speed_of(&results[k], t));
        log_memory += log(memory_of(&results[k], t));
    }
    if (!out->cases)
        return 1;
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

/* Of a device: where the time of its calls goes, for there is no workspace to compare. */
static void say_costs(verdict_kind kind, const bench_verdict *v)
{
    char text[24];
    snprintf(text, sizeof text, "%.0f/%.0f/%.0f %%", 100 * v->launch / v->cases,
             100 * v->transfer / v->cases, 100 * v->compute / v->cases);
    if (kind == VERDICT_TILED)
        say(" %+8.0f %%", -100 * v->memory_saved);
    else
        say(" %10s", text);
}

static void say_verdict(verdict_kind kind, const bench_verdict *v)
{
    char title[REPORT_TITLE];
    say("  %-28.38s %3d of %-3d %8.2fx", report_title(v->preset, v->scenario, title), v->won,
        v->cases, v->speedup);
    say_costs(kind, v);
    say_crossover(v);
    report_colour(thresholds[threshold_of(v->speedup)].style);
    say("  %s%s", v->text, mark_of(v->noisy));
    report_colour(PLAIN);
    say(", mean %.3g ms\n", v->ms_mean);
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

/* Nothing where none of them is measured. */
static void say_expectations(const bench_result *results, int n)
{
    bench_expectation e;
    int measured = 0;
    for (int i = 0; verdicts_expectation(results, n, i, &e); i++)
        measured += e.cases;
    if (!measured)
        return;
    report_heading("what comparable suites publish       measured here, geometric mean");
    for (int i = 0; verdicts_expectation(results, n, i, &e); i++)
        say_expectation(&e);
}

static int report_kind(verdict_kind kind, const bench_result *results, int n)
{
    static bench_verdict verdicts[REPORT_MAX_SCENARIOS]; /* 128 KiB: off the stack */
    const int count = verdicts_of(kind, results, n, verdicts, REPORT_MAX_SCENARIOS);
    char heading[120];
    if (!count)
        return 0;
    snprintf(heading, sizeof heading, "%-31s won       speed-up %s   faster from keys     verdict",
             kinds[kind].title, kind == VERDICT_TILED ? " workspace" : " l/t/c    ");
    report_heading(heading);
    for (int i = 0; i < count; i++)
        say_verdict(kind, &verdicts[i]);
    return count;
}

int verdicts_report(const bench_result *results, int n)
{
    int told = 0;
    say_expectations(results, n);
    for (int kind = 0; kind < VERDICT_KINDS; kind++)
        told += report_kind((verdict_kind)kind, results, n);
    return told > 0;
}
