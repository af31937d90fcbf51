/* reports.c - rankings, verdicts and winners tell right, and the JSON says the same.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define SELFCHECK_FILES 1
#include <unistd.h>
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bench/cases/cases.h"
#include "../../bench/commands/commands.h"
#include "../../bench/report/report.h"
#include "selfcheck.h"

/* ---- ranking and verdicts, of rows made by hand */

bench_result row(const char *path, const char *name, int64_t length, double ms, double kib)
{
    bench_result r;
    memset(&r, 0, sizeof r);
    r.preset = "p";
    r.scenario = "s";
    r.path = path;
    r.impl = path_find(path)->impl;
    r.place = (int)path_find(path)->device;
    r.kernels = "k";
    r.dtype = r.k_dtype = r.v_dtype = r.keys = r.mask = r.layout = "";
    r.branch_heads = r.merge = r.variant = r.pattern_cache = r.memory_pool = "";
    r.data = r.pass = r.roof = r.tuning = r.device = "";
    r.threads = 1;
    r.seq_q = r.seq_kv = length;
    r.ms_p50 = r.ms_min = r.ms_mean = ms;
    r.workspace_bytes = (int64_t)(1024 * kib);
    snprintf(r.name, sizeof r.name, "%s", name);
    return r;
}

/* ---- ranking and verdicts */

static void check_ranking(void)
{
    const bench_result rows[] = { row("naive", "a", 1, 8, 1), row("tiled", "a", 1, 2, 1),
                                  row("auto", "a", 1, 4, 1), row("naive", "b", 2, 8, 1),
                                  row("tiled", "b", 2, 4, 1) };
    bench_rank ranks[3];
    expect(ranking_of(rows, 5, ranks, 3) == 3, "three paths are ranked", 0);
    expect(!strcmp(ranks[0].path, "tiled") && ranks[0].share == 1 && ranks[0].won == 2,
           "the fastest one first", ranks[0].share);
    expect(!strcmp(ranks[1].path, "auto") && fabs(ranks[1].share - 0.5) < 1e-12 &&
               ranks[1].cases == 1,
           "then one that was timed once", ranks[1].share);
    expect(fabs(ranks[2].share - sqrt(0.25 * 0.5)) < 1e-12, "geometric mean of a share",
           ranks[2].share);
}

/* Of two that took equally long the later one counts as the faster. */
static void check_ranking_of_equals(void)
{
    const bench_result rows[] = { row("naive", "a", 1, 2, 1), row("tiled", "a", 1, 2, 1) };
    bench_rank ranks[2];
    expect(ranking_of(rows, 2, ranks, 2) == 2 && ranks[0].share == 1 && ranks[1].share == 1,
           "equal paths have equal shares", 0);
    for (int i = 0; i < 2; i++)
        expect(ranks[i].won == !strcmp(ranks[i].path, "tiled"), "the later one won", ranks[i].won);
}

/* Rows of cases among each other, as runs in turn leave them: the same ranks as case by case. */
static void check_ranking_of_many(void)
{
    enum { CASES = PRESETS_MAX_CASES, PATHS = 3 };
    static const char *const paths[PATHS] = { "naive", "tiled", "auto" };
    static const double ms[PATHS] = { 8, 2, 4 };
    static bench_result rows[CASES * PATHS + 1];
    bench_rank ranks[PATHS + 1];
    int n = 0;
    for (int p = 0; p < PATHS; p++)
        for (int c = 0; c < CASES; c++) {
            char name[8];
            snprintf(name, sizeof name, "%d", c);
            rows[n] = row(paths[p], name, 1, ms[p], 1);
            if (p == 2 && c % 2)
                snprintf(rows[n].skipped, sizeof rows[n].skipped, "no memory");
            n++;
        }
    rows[n++] = row("naive_scalar", "alone", 1, 1, 1);
    expect(ranking_of(rows, n, ranks, PATHS + 1) == PATHS, "a path without a rival has no rank", 0);
    for (int i = 0; i < PATHS; i++) {
        const int p = (i + 1) % PATHS; /* tiled, auto, naive */
        const int cases = p == 2 ? CASES / 2 : CASES;
        expect(!strcmp(ranks[i].path, paths[p]), "ranks of many cases are in order", i);
        expect(ranks[i].cases == cases && ranks[i].won == (p == 1 ? CASES : 0),
               "each timed row counts once", ranks[i].cases);
        expect(fabs(ranks[i].share - 2 / ms[p]) < 1e-9, "against the fastest row of its own case",
               ranks[i].share);
    }
}

/* naive is faster at 1000 and 3000 keys; 4000 is the crossover. */
static void check_verdicts(void)
{
    bench_result rows[] = { row("naive", "a", 1000, 1, 10), row("tiled", "a", 1000, 2, 5),
                            row("naive", "b", 2000, 4, 10), row("tiled", "b", 2000, 2, 5),
                            row("naive", "c", 3000, 1, 10), row("tiled", "c", 3000, 2, 5),
                            row("naive", "d", 4000, 8, 10), row("tiled", "d", 4000, 1, 5),
                            row("naive", "e", 5000, 2, 10), row("tiled", "f", 5000, 1, 5) };
    bench_verdict v;
    expect(verdicts_of(VERDICT_TILED, rows, 10, &v, 1) == 1, "one scenario has a verdict", 0);
    expect(v.cases == 4 && v.won == 2, "four pairs, two won by tiled", v.cases);
    expect(v.crossover == 4000, "crossover: faster at every longer length", (double)v.crossover);
    expect(fabs(v.speedup - sqrt(2)) < 1e-12, "geometric mean of four", v.speedup);
    expect(fabs(v.memory_saved - 0.5) < 1e-3, "half of the memory", v.memory_saved);
    expect(v.noisy == 0, "no row is noisy", v.noisy);
    rows[7].ms_p50 = 9;
    verdicts_of(VERDICT_TILED, rows, 10, &v, 1);
    expect(v.crossover == 0, "no crossover when naive wins the longest", (double)v.crossover);
    expect(v.noisy == 1, "a median of nine times the minimum is", v.noisy);
    rows[7].kernels = "other";
    verdicts_of(VERDICT_TILED, rows, 10, &v, 1);
    expect(v.cases == 3, "other kernels are not compared", v.cases);
    rows[5].threads = 2;
    verdicts_of(VERDICT_TILED, rows, 10, &v, 1);
    expect(v.cases == 2, "nor other threads", v.cases);
    rows[0].kernels = rows[1].kernels = "scalar";
    verdicts_of(VERDICT_TILED, rows, 10, &v, 1);
    expect(v.cases == 1, "nor what was compiled without vectors", v.cases);
}

/* As fast as each other at 1000 keys: neither won. */
static void check_even_verdicts(void)
{
    const bench_result rows[] = { row("naive", "a", 1000, 1, 1),  row("tiled", "a", 1000, 1, 1),
                                  row("opencl", "a", 1000, 1, 1), row("naive", "b", 2000, 2, 1),
                                  row("tiled", "b", 2000, 1, 1),  row("opencl", "b", 2000, 2, 1) };
    bench_verdict v;
    verdicts_of(VERDICT_TILED, rows, 6, &v, 1);
    expect(v.won == 1 && v.crossover == 2000, "who is as fast has not won", v.won);
    expect(v.shortest == 1000 && v.longest == 2000, "lengths of a verdict", (double)v.longest);
    verdicts_of(VERDICT_DEVICE, rows, 6, &v, 1);
    expect(v.cases == 2, "of equal paths of the CPU one counts", v.cases);
}

/* Time by the square, pairs and workspace by the length; a case that differs in more, or a third
 * one that is skipped, leaves no exponent. */
static void check_exponents(void)
{
    bench_result rows[] = { row("tiled", "a", 1000, 1, 1), row("naive", "a", 1000, 1, 1),
                            row("tiled", "b", 2000, 4, 2), row("tiled", "c", 4000, 16, 4) };
    bench_scaling s[2];
    for (int i = 0; i < 4; i++)
        rows[i].visible = 1 / (double)rows[i].seq_q;
    expect(scaling_of(rows, 4, s, 2) == 1 && s[0].cases == 3 && s[0].longest == 4000,
           "three lengths by one path have exponents", s[0].cases);
    expect(fabs(s[0].time - 2) < 1e-9 && fabs(s[0].pairs - 1) < 1e-9, "time by the square",
           s[0].time);
    expect(fabs(s[0].workspace - 1) < 1e-3, "workspace by the length", s[0].workspace);
    rows[2].heads_q = 2;
    expect(scaling_of(rows, 4, s, 2) == 0, "other heads: no exponent", 0);
    rows[2].heads_q = 0;
    rows[3].skipped[0] = 'x';
    expect(scaling_of(rows, 4, s, 2) == 0, "two lengths: no exponent", 0);
}

static int words_are(verdict_kind kind, double speedup, const char *want)
{
    char text[VERDICT_TEXT];
    verdict_text(kind, speedup, text);
    return !strcmp(text, want);
}

static void check_words(void)
{
    expect(words_are(VERDICT_TILED, 1.51, "tiled is much faster") &&
               words_are(VERDICT_TILED, 1.5, "tiled is faster") &&
               words_are(VERDICT_TILED, 1.06, "tiled is faster") &&
               words_are(VERDICT_TILED, 1.05, "about the same speed") &&
               words_are(VERDICT_TILED, 0.96, "about the same speed") &&
               words_are(VERDICT_TILED, 0.95, "naive is faster") &&
               words_are(VERDICT_TILED, 0.9, "naive is faster"),
           "words of a speed-up", 0);
    expect(words_are(VERDICT_DEVICE, 1.51, "the device is much faster") &&
               words_are(VERDICT_RESIDENT, 0.9, "the CPU is faster"),
           "of a device, too", 0);
}

/* Of the CPU the fastest path counts; the device is slower at 100 keys, then 2 and 8 times as
 * fast. */
static void check_device_verdicts(void)
{
    bench_result rows[] = {
        row("tiled", "a", 100, 1, 1),       row("tiled_threads", "a", 100, 2, 1),
        row("opencl", "a", 100, 4, 1),      row("opencl_exact", "a", 100, 0.5, 1),
        row("tiled", "b", 200, 8, 1),       row("tiled_threads", "b", 200, 4, 1),
        row("opencl", "b", 200, 2, 1),      row("opencl_resident", "b", 200, 1, 1),
        row("tiled", "c", 300, 8, 1),       row("opencl", "c", 300, 1, 1),
        row("opencl_naive", "c", 300, 3, 1)
    };
    bench_expectation e;
    bench_verdict v;
    rows[9].launch_ms = 0.1, rows[9].to_device_ms = 0.3, rows[9].compute_ms = 0.5;
    rows[9].to_host_ms = 0.1;
    expect(verdicts_of(VERDICT_DEVICE, rows, 11, &v, 1) == 1 && v.cases == 3 && v.won == 2,
           "three of the CPU against the device", v.cases);
    expect(v.crossover == 200 && fabs(log(v.speedup / pow(0.25 * 2 * 8, 1. / 3))) < 1e-12,
           "from 200 keys on it is faster", v.speedup);
    expect(fabs(v.launch - 0.1) < 1e-12 && fabs(v.transfer - 0.4) < 1e-12 &&
               fabs(v.compute - 0.5) < 1e-12,
           "where its time goes", v.transfer);
    expect(verdicts_of(VERDICT_RESIDENT, rows, 11, &v, 1) == 1 && v.cases == 1 && v.speedup == 4,
           "and with arrays on it", v.speedup);
    expect(verdicts_of(VERDICT_TILED_DEVICE, rows, 11, &v, 1) == 1 && fabs(v.speedup - 3) < 1e-12,
           "naive and tiled on the device", v.speedup);
    expect(verdicts_of(VERDICT_TILED, rows, 11, &v, 1) == 0, "none of them on the CPU", 0);
    verdicts_expectation(rows, 11, 3, &e);
    expect(e.cases == 0, "a device that is no GPU meets no expectation of one", e.cases);
    rows[9].on_gpu = rows[10].on_gpu = 1;
    verdicts_expectation(rows, 11, 3, &e);
    expect(e.cases == 1 && e.met && fabs(e.measured - 3) < 1e-12, "a GPU does", e.measured);
}

static void check_expectations(void)
{
    bench_result rows[] = { row("naive", "a", 1025, 1.2, 10), row("tiled", "a", 1025, 1, 6),
                            row("naive", "b", 1024, 9, 10), row("tiled", "b", 1024, 1, 1) };
    bench_expectation e;
    verdicts_expectation(rows, 4, 0, &e);
    expect(e.cases == 1 && fabs(e.measured - 20) < 1e-9 && e.met, "20 % faster meets 15 %",
           e.measured);
    verdicts_expectation(rows, 4, 1, &e);
    expect(fabs(e.measured - 40) < 0.1 && !e.met, "40 % less memory does not meet 50 %",
           e.measured);
    verdicts_expectation(rows, 4, 2, &e);
    expect(e.cases == 0 && !e.met, "no row beyond 4096: not measured", e.cases);
    verdicts_expectation(rows, 4, 3, &e);
    expect(e.cases == 0 && strstr(e.why, "GPU") != NULL, "no GPU: not measured", e.cases);
    expect(!verdicts_expectation(rows, 4, 4, &e), "four expectations", 0);
    rows[0].preset = rows[1].preset = "shape";
    verdicts_expectation(rows, 4, 0, &e);
    expect(e.cases == 0, "a user's own shape is not held against other suites", e.cases);
    rows[0].preset = rows[1].preset = "p";
    verdicts_expectation(rows, 4, 0, &e);
    expect(e.noisy == 0, "an expectation of quiet rows", e.noisy);
    rows[0].ms_min = 0.5;
    rows[2].ms_min = 0.5;
    verdicts_expectation(rows, 4, 0, &e);
    expect(e.noisy == 1, "a noisy row marks the expectation that counts it", e.noisy);
    verdicts_expectation(rows, 4, 1, &e);
    expect(e.noisy == 0, "but not how much memory there is", e.noisy);
}

/* ---- winners */

enum { WINNER_ROWS = 9 };

/* Scenario s: tiled wins two of three cases and is 2 times as fast as naive and sqrt(2) times as
 * auto, which two of them have. A row of another scenario stands among them. */
static void fill_winner_rows(bench_result *rows)
{
    const bench_result made[WINNER_ROWS] = {
        row("naive", "a", 1, 8, 3), row("tiled", "a", 1, 2, 1), row("auto", "a", 1, 2, 1),
        row("naive", "b", 1, 2, 3), row("tiled", "b", 1, 4, 1), row("naive", "b", 1, 100, 1),
        row("naive", "c", 1, 8, 3), row("tiled", "c", 1, 2, 1), row("auto", "c", 1, 4, 1)
    };
    memcpy(rows, made, sizeof made);
    rows[5].scenario = "other";
}

static void check_winners(void)
{
    bench_result rows[WINNER_ROWS];
    bench_winner w[2] = { { 0 } };
    fill_winner_rows(rows);
    expect(report_winners(rows, WINNER_ROWS, w, 2) == 1, "a scenario of one path has no winner", 0);
    expect(!strcmp(w->winner, "tiled") && !strcmp(w->over, "naive"),
           "the one that nobody beats, against the one it beats most", 0);
    expect(w->cases == 3 && w->won == 2, "it won two of three cases", w->won);
    expect(fabs(w->speedup - 2) < 1e-12, "geometric mean of 4, 1/2 and 4", w->speedup);
    expect(fabs(w->ms_mean - 8.0 / 3) < 1e-12, "the mean of its calls of 2, 4 and 2 ms",
           w->ms_mean);
    expect(fabs(w->workspace_ratio - 3073.0 / 1025) < 1e-12, "of three times the workspace",
           w->workspace_ratio);
    snprintf(rows[1].skipped, sizeof rows[1].skipped, "why not");
    report_winners(rows, WINNER_ROWS, w, 2);
    expect(!strcmp(w->over, "auto") && w->cases == 1 && w->won == 1,
           "a skipped row is not compared", w->cases);
    fill_winner_rows(rows);
    snprintf(rows[0].skipped, sizeof rows[0].skipped, "why not");
    rows[3].ms_p50 = 4;
    report_winners(rows, WINNER_ROWS, w, 2);
    expect(!strcmp(w->over, "naive") && w->cases == 2 && w->won == 1,
           "nor one of the other path, and who is as fast has not won", w->won);
}

/* Rows of naive and tiled for every case of the list. */
static int rows_of(const case_list *list, bench_result *rows)
{
    for (int i = 0; i < list->n; i++)
        for (int k = 0; k < 2; k++) {
            bench_result *const r = &rows[2 * i + k];
            *r = row(k ? "tiled" : "naive", list->cases[i].name, 1, 2 - k, 1);
            r->preset = list->cases[i].preset;
            r->scenario = list->cases[i].scenario;
        }
    return 2 * list->n;
}

static int count_scenarios(const bench_result *rows, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int known = 0;
        for (int j = 0; j < i && !known; j++)
            known = report_same_scenario(&rows[i], &rows[j]);
        count += !known;
    }
    return count;
}

/* Each scenario of the list is told by both. */
static void expect_all_told(const case_list *list, int least)
{
    static bench_result rows[2 * PRESETS_MAX_CASES];
    static bench_winner winners[REPORT_MAX_SCENARIOS];
    static bench_verdict verdicts[REPORT_MAX_SCENARIOS];
    const int n = rows_of(list, rows), want = count_scenarios(rows, n);
    const int told = report_winners(rows, n, winners, REPORT_MAX_SCENARIOS);
    const int judged = verdicts_of(VERDICT_TILED, rows, n, verdicts, REPORT_MAX_SCENARIOS);
    expect(want >= least, "so many scenarios", want);
    expect(told == want, "no scenario is without a winner", told);
    expect(judged == want, "nor without a verdict", judged);
}

static void check_no_scenario_lost(void)
{
    static const preset_choice whole = { .threads = 6, .max_seq_len = PRESETS_MAX_SEQ_LEN };
    static case_list list;
    static char names[PRESETS_MAX_CASES][8];
    list.n = list.lost = 0;
    preset_cases("all", &whole, &list);
    expect_all_told(&list, 33); /* that is more than there once was place for */
    list.n = PRESETS_MAX_CASES;
    for (int i = 0; i < list.n; i++) {
        snprintf(names[i], sizeof names[i], "s%d", i);
        list.cases[i].scenario = names[i];
        list.cases[i].preset = "p";
    }
    expect_all_told(&list, PRESETS_MAX_CASES);
}

/* ---- what the JSON says of them */

#ifdef SELFCHECK_FILES
/* The JSON of these rows; NULL = there is no place for a file. */
static char *written(const bench_context *x, const bench_result *rows, int n)
{
    static char text[1 << 16];
    const bench_record record = {
        .machine = &x->machine, .probe = &x->probe, .console = "", .results = rows, .num_results = n
    };
    char path[] = "/tmp/attn-bench-XXXXXX", why[160];
    const int number = mkstemp(path);
    if (number < 0)
        return NULL;
    close(number);
    FILE *const f = json_write(path, &record) ? fopen(path, "r") : NULL;
    const size_t bytes = f ? fread(text, 1, sizeof text, f) : 0;
    if (f)
        fclose(f);
    remove(path);
    char *const d = json_parse(text, bytes, why, sizeof why);
    expect(d != NULL, "the JSON of rows made by hand is read", (double)bytes);
    return d;
}

static void check_written_winners(const bench_context *x)
{
    static const struct {
        const char *key;
        double value;
    } want[] = {
        { "cases", 3 }, { "won", 2 }, { "speedup", 2 }, { "workspace_ratio", 3073.0 / 1025 }
    };
    bench_result rows[WINNER_ROWS];
    fill_winner_rows(rows);
    char *const d = written(x, rows, WINNER_ROWS);
    if (!d)
        return;
    const char *const w = json_first(json_member(d, "winners"));
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const double got = json_number(w, want[i].key);
        expect(fabs(got - want[i].value) < 1e-6, want[i].key, got);
    }
    expect(!strcmp(json_text(w, "winner"), "tiled") && !strcmp(json_text(w, "over"), "naive"),
           "the JSON names winner and loser", 0);
    free(d);
}
#else
static void check_written_winners(const bench_context *x)
{
    (void)x;
}
#endif

void check_reports(bench_context *context)
{
    check_ranking();
    check_ranking_of_equals();
    check_ranking_of_many();
    check_verdicts();
    check_even_verdicts();
    check_exponents();
    check_words();
    check_device_verdicts();
    check_expectations();
    check_winners();
    check_no_scenario_lost();
    check_written_winners(context);
}
