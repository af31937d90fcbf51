/* winners.c - who is the fastest in each scenario; noise.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "report.h"

static int same(const char *a, const char *b)
{
    return !strcmp(a, b);
}

int report_same_scenario(const bench_result *a, const bench_result *b)
{
    return same(a->preset, b->preset) && same(a->scenario, b->scenario);
}

int report_same_case(const bench_result *a, const bench_result *b)
{
    return report_same_scenario(a, b) && same(a->name, b->name);
}

double report_mean(double log_sum, int n)
{
    return n ? exp(log_sum / n) : 0;
}

int report_is_first(const bench_result *results, int i,
                    int (*like)(const bench_result *a, const bench_result *b))
{
    for (int j = i - 1; j >= 0; j--) /* backwards: most neighbours are of one scenario */
        if (like(&results[i], &results[j]))
            return 0;
    return 1;
}

/* ---- one scenario */

/* Its rows, from the first to the last one, others among them, and its paths. */
typedef struct scenario {
    const bench_result *rows;
    int n, num_paths;
    const char *paths[PATHS_MAX];
} scenario;

static int counts(const scenario *s, const bench_result *r)
{
    return !r->skipped[0] && report_same_scenario(r, s->rows);
}

static void add_path(scenario *s, const char *path)
{
    int i = 0;
    while (i < s->num_paths && !same(s->paths[i], path))
        i++;
    if (i == s->num_paths && i < PATHS_MAX)
        s->paths[s->num_paths++] = path;
}

/* rows[0] is the first row of the scenario. */
static scenario scenario_of(const bench_result *rows, int n)
{
    scenario s = { .rows = rows };
    for (int i = 0; i < n; i++) {
        if (!report_same_scenario(&rows[i], rows))
            continue;
        s.n = i + 1;
        if (!rows[i].skipped[0])
            add_path(&s, rows[i].path);
    }
    return s;
}

/* The first row of x's case by a path; NULL = none was timed. */
static const bench_result *row_by(const scenario *s, const bench_result *x, const char *path)
{
    for (int i = 0; i < s->n; i++)
        if (!s->rows[i].skipped[0] && same(s->rows[i].path, path) &&
            report_same_case(x, &s->rows[i]))
            return &s->rows[i];
    return NULL;
}

/* Path a against b over the cases that both have; speedup > 1 when a is faster. */
static bench_winner judge(const scenario *s, const char *a, const char *b)
{
    bench_winner w = { s->rows->preset, s->rows->scenario, a, b, 0, 0, 0, 0, 0 };
    double log_speed = 0, log_space = 0;
    for (int i = 0; i < s->n; i++) {
        const bench_result *const x = &s->rows[i];
        if (!counts(s, x) || !same(x->path, a))
            continue;
        const bench_result *const y = row_by(s, x, b);
        if (!y)
            continue;
        w.cases++;
        w.won += x->ms_p50 < y->ms_p50;
        w.ms_mean += x->ms_mean;
        log_speed += log(y->ms_p50 / x->ms_p50);
        log_space += log((double)(y->workspace_bytes + 1) / (double)(x->workspace_bytes + 1));
    }
    w.ms_mean /= w.cases ? w.cases : 1;
    w.speedup = report_mean(log_speed, w.cases);
    w.workspace_ratio = report_mean(log_space, w.cases);
    return w;
}

/* The path that nobody in the scenario beats, against the one it beats most. */
static bench_winner winner_of(const scenario *s)
{
    bench_winner best = { 0 };
    for (int a = 0; a < s->num_paths; a++) {
        bench_winner widest = { 0 };
        int beaten = 0;
        for (int b = 0; b < s->num_paths; b++) {
            const bench_winner w = judge(s, s->paths[a], s->paths[b]);
            if (a == b || !w.cases)
                continue;
            if (w.speedup < 1)
                beaten = 1;
            if (w.speedup > widest.speedup)
                widest = w;
        }
        if (!beaten && widest.cases && widest.speedup > best.speedup)
            best = widest;
    }
    return best;
}

int report_winners(const bench_result *results, int n, bench_winner *out, int max)
{
    int count = 0;
    for (int i = 0; i < n && count < max; i++) {
        if (!report_is_first(results, i, report_same_scenario))
            continue;
        const scenario s = scenario_of(&results[i], n - i);
        out[count] = winner_of(&s);
        if (out[count].cases)
            count++;
    }
    return count;
}

/* ---- printing */

/* Below 3 % a machine that others share may call either one the winner. */
#define EVEN 1.03

static void say_winner(const bench_winner *w)
{
    say("  %-8s %-18s ", w->preset, w->scenario);
    if (w->speedup < EVEN) {
        say("even: %s %.2f times as fast as %s", w->winner, w->speedup, w->over);
    } else {
        report_colour(GREEN);
        say("%s", w->winner);
        report_colour(PLAIN);
        say(" wins %d of %d, %.2f times as fast as %s", w->won, w->cases, w->speedup, w->over);
    }
    say(", mean %.3g ms", w->ms_mean);
    if (w->workspace_ratio >= 1.05)
        say(", %.1f times less workspace", w->workspace_ratio);
    if (w->workspace_ratio <= 0.95)
        say(", %.1f times more workspace", 1 / w->workspace_ratio);
    say("\n");
}

static void say_winners(const bench_result *results, int n)
{
    static bench_winner winners[REPORT_MAX_SCENARIOS]; /* 64 KiB: off the stack */
    const int count = report_winners(results, n, winners, REPORT_MAX_SCENARIOS);
    if (count)
        report_heading("winners, geometric mean over the cases of a scenario, by P50");
    for (int i = 0; i < count; i++)
        say_winner(&winners[i]);
}

/* A median far above the minimum means that something else ran, too. */
#define NOISY 1.25

int report_noisy(const bench_result *r)
{
    return !r->skipped[0] && r->ms_p50 > NOISY * r->ms_min;
}

static void say_noise(const bench_result *results, int n)
{
    int noisy = 0;
    for (int i = 0; i < n; i++)
        noisy += report_noisy(&results[i]);
    if (noisy)
        say("\nnoisy rows (P50 above %.2f times the minimum): %d; other programs share this "
            "machine:\n  compare the minima (ms_min of --csv), or run again\n",
            NOISY, noisy);
}

void report_summary(const bench_result *results, int n)
{
    int timed = 0;
    for (int i = 0; i < n; i++)
        timed += !results[i].skipped[0];
    report_legend(results, n);
    phases_report(results, n);
    report_groups(results, n);
    scaling_report(results, n);
    say_noise(results, n);
    say("\n%d timed, %d skipped\n", timed, n - timed);
    const int ranked = ranking_report(results, n), judged = verdicts_report(results, n);
    if (!ranked && !judged)
        say_winners(results, n);
}
