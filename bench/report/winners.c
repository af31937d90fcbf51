/* winners.c - who is the fastest in each scenario; noise.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <string.h>

#include "relative.h"
#include "report.h"

enum { MAX_WINNERS = 32 };

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

/* Result of the same case by another path. */
static const bench_result *find(const bench_result *all, int n, const bench_result *like,
                                const char *path)
{
    for (int i = 0; i < n; i++)
        if (!all[i].skipped[0] && report_same_case(&all[i], like) && same(all[i].path, path))
            return &all[i];
    return NULL;
}

/* Compares two paths over one scenario; speedup > 1 when `a` is the faster one. */
static bench_winner compare(const bench_result *all, int n, const bench_result *first,
                            const char *a, const char *b)
{
    bench_winner w = {first->preset, first->scenario, a, b, 0, 0, 0, 0};
    double log_speed = 0, log_space = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const x = &all[i];
        if (x->skipped[0] || !same(x->path, a) || !report_same_scenario(x, first)) continue;
        const bench_result *const y = find(all, n, x, b);
        if (!y) continue;
        w.cases++;
        w.won += x->ms_p50 < y->ms_p50;
        log_speed += log(y->ms_p50 / x->ms_p50);
        log_space += log((double)(y->workspace_bytes + 1) / (double)(x->workspace_bytes + 1));
    }
    w.speedup = report_mean(log_speed, w.cases);
    w.workspace_ratio = report_mean(log_space, w.cases);
    return w;
}

static int scenario_done(const bench_winner *done, int n, const bench_result *r)
{
    for (int i = 0; i < n; i++)
        if (same(done[i].preset, r->preset) && same(done[i].scenario, r->scenario)) return 1;
    return 0;
}

/* The path that nobody in the scenario beats, against the one it beats most. */
static bench_winner scenario_winner(const bench_result *all, int n, const bench_result *first)
{
    bench_winner best = {0};
    for (int i = 0; i < n; i++) {
        bench_winner widest = {0};
        int beaten = 0;
        for (int j = 0; j < n; j++) {
            if (same(all[i].path, all[j].path)) continue;
            const bench_winner w = compare(all, n, first, all[i].path, all[j].path);
            if (w.cases && w.speedup < 1) beaten = 1;
            if (w.cases && w.speedup > widest.speedup) widest = w;
        }
        if (!beaten && widest.cases && widest.speedup > best.speedup) best = widest;
    }
    return best;
}

int report_winners(const bench_result *results, int n, bench_winner *out, int max)
{
    int count = 0;
    for (int i = 0; i < n && count < max; i++) {
        if (results[i].skipped[0] || scenario_done(out, count, &results[i])) continue;
        out[count] = scenario_winner(results, n, &results[i]);
        if (out[count].cases) count++;
    }
    return count;
}

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
    if (w->workspace_ratio >= 1.05) say(", %.1f times less workspace", w->workspace_ratio);
    if (w->workspace_ratio <= 0.95) say(", %.1f times more workspace", 1 / w->workspace_ratio);
    say("\n");
}

static void say_winners(const bench_result *results, int n)
{
    bench_winner winners[MAX_WINNERS];
    const int count = report_winners(results, n, winners, MAX_WINNERS);
    if (count) report_heading("winners, geometric mean over the cases of a scenario, by P50");
    for (int i = 0; i < count; i++) say_winner(&winners[i]);
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
    for (int i = 0; i < n; i++) noisy += report_noisy(&results[i]);
    if (noisy)
        say("\nnoisy rows (P50 above %.2f times the minimum): %d; other programs share this "
            "machine:\n  compare the minima (ms_min of --csv), or run again\n", NOISY, noisy);
}

void report_summary(const bench_result *results, int n, int told)
{
    int timed = 0;
    for (int i = 0; i < n; i++) timed += !results[i].skipped[0];
    if (!told) say_winners(results, n);
    relative_threads(results, n);
    relative_masks(results, n);
    say_noise(results, n);
    say("\n%d timed, %d skipped\n", timed, n - timed);
}
