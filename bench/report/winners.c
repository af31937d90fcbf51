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

int report_begins_scenario(const bench_result *results, int i)
{
    for (int j = i - 1; j >= 0; j--) /* backwards: most neighbours are of one scenario */
        if (report_same_scenario(&results[j], &results[i]))
            return 0;
    return 1;
}

/* ---- one scenario */

/* What sums up over the cases of a scenario that two paths have in common. */
typedef struct duel {
    int cases, won;
    double log_speed, log_space;
} duel;

typedef struct scenario {
    const bench_result *rows; /* from its first row to its last one, others among them */
    int n, num_paths;
    const char *paths[PATHS_MAX];
    duel duels[PATHS_MAX][PATHS_MAX];
} scenario;

/* Index of the row's path, as a new one if need be; -1 = the row does not count. */
static int path_in(scenario *s, const bench_result *r)
{
    int i = 0;
    if (r->skipped[0] || !report_same_scenario(r, s->rows))
        return -1;
    while (i < s->num_paths && !same(s->paths[i], r->path))
        i++;
    if (i == PATHS_MAX)
        return -1;
    if (i == s->num_paths)
        s->paths[s->num_paths++] = r->path;
    return i;
}

static void add_duel(duel *d, const bench_result *x, const bench_result *y)
{
    d->cases++;
    d->won += x->ms_p50 < y->ms_p50;
    d->log_speed += log(y->ms_p50 / x->ms_p50);
    d->log_space += log((double)(y->workspace_bytes + 1) / (double)(x->workspace_bytes + 1));
}

/* Row x, of path a, against the first row of its case by each other path. */
static void add_row(scenario *s, const bench_result *x, int a)
{
    int met[PATHS_MAX] = { 0 };
    for (int i = 0; i < s->n; i++) {
        const int b = report_same_case(x, &s->rows[i]) ? path_in(s, &s->rows[i]) : -1;
        if (b < 0 || b == a || met[b]++)
            continue;
        add_duel(&s->duels[a][b], x, &s->rows[i]);
    }
}

/* rows[0] is the first row of the scenario. */
static void collect(scenario *s, const bench_result *rows, int n)
{
    memset(s, 0, sizeof *s);
    s->rows = rows;
    for (int i = 0; i < n; i++)
        if (report_same_scenario(&rows[i], rows))
            s->n = i + 1;
    for (int i = 0; i < s->n; i++) {
        const int a = path_in(s, &rows[i]);
        if (a >= 0)
            add_row(s, &rows[i], a);
    }
}

/* speedup > 1 when path a is faster than b. */
static bench_winner judge(const scenario *s, int a, int b)
{
    const duel *const d = &s->duels[a][b];
    const bench_winner w = { s->rows->preset,
                             s->rows->scenario,
                             s->paths[a],
                             s->paths[b],
                             d->cases,
                             d->won,
                             report_mean(d->log_speed, d->cases),
                             report_mean(d->log_space, d->cases) };
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
            const bench_winner w = judge(s, a, b);
            if (w.cases && w.speedup < 1)
                beaten = 1;
            if (w.cases && w.speedup > widest.speedup)
                widest = w;
        }
        if (!beaten && widest.cases && widest.speedup > best.speedup)
            best = widest;
    }
    return best;
}

int report_winners(const bench_result *results, int n, bench_winner *out, int max)
{
    scenario s;
    int count = 0;
    for (int i = 0; i < n && count < max; i++) {
        if (!report_begins_scenario(results, i))
            continue;
        collect(&s, &results[i], n - i);
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

void report_summary(const bench_result *results, int n, int told)
{
    int timed = 0;
    for (int i = 0; i < n; i++)
        timed += !results[i].skipped[0];
    if (!told)
        say_winners(results, n);
    report_groups(results, n);
    scaling_report(results, n);
    say_noise(results, n);
    say("\n%d timed, %d skipped\n", timed, n - timed);
}
