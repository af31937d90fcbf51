/* report.c - what is printed: table, summary, machine.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define REPORT_POSIX 1
#endif
#include "report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef REPORT_POSIX
#include <unistd.h>
#endif

#include "fields.h"

enum { MAX_WINNERS = 32 };

static struct {
    char *text;
    size_t length, capacity;
    int colour;
} console;

/* ---- text */

static void keep(const char *text)
{
    const size_t n = strlen(text);
    if (console.length + n + 1 > console.capacity) {
        const size_t capacity = 2 * (console.length + n + 1024);
        char *const grown = realloc(console.text, capacity);
        if (!grown) return; /* the copy is incomplete, the printed text is not */
        console.text = grown;
        console.capacity = capacity;
    }
    memcpy(console.text + console.length, text, n + 1);
    console.length += n;
}

void say(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fputs(line, stdout);
    fflush(stdout);
    keep(line);
}

const char *report_console(void)
{
    return console.text ? console.text : "";
}

void report_free(void)
{
    free(console.text);
    memset(&console, 0, sizeof console);
}

void report_use_colour(void)
{
#ifdef REPORT_POSIX
    const char *const none = getenv("NO_COLOR"), *const term = getenv("TERM");
    console.colour = isatty(1) && !(none && *none) && term && strcmp(term, "dumb");
#endif
}

/* Escape codes go to the terminal only, never into the copy. */
static void colour(const char *code)
{
    if (console.colour) fputs(code, stdout);
}

#define BOLD "\033[1m"
#define GREEN "\033[32m"
#define YELLOW "\033[33m"
#define PLAIN "\033[0m"

/* ---- machine */

void report_machine(const machine_info *m, const probe_result *p)
{
    say("machine   %s, %d CPUs, %s\n", m->cpu, m->cpus, m->system);
    say("caches    L1d %.0f KiB, L2 %.0f KiB, L3 %.0f KiB; memory %.1f GiB, usable %.1f GiB\n",
        (double)m->l1d / 1024, (double)m->l2 / 1024, (double)m->l3 / 1024,
        (double)m->memory / 1073741824, (double)m->memory_usable / 1073741824);
    say("isa       %s\n", m->isa);
    say("compiler  %s; flags %s; revision %s\n", m->compiler, m->flags, m->revision);
    say("clock     %.2f GHz now, by a chain of dependent additions\n", p->ghz);
    say("FMA peak  one thread, GFLOP/s (per cycle):");
    for (int i = 0; i < p->num_units; i++)
        say(" %s %.1f (%.1f)%s", p->units[i].name, p->units[i].gflops,
            p->units[i].flops_per_cycle, i + 1 < p->num_units ? "," : "\n");
    say("reading   %.1f GB/s from memory, one thread\n", p->read_gbs);
}

/* ---- table */

void report_formulas(void)
{
    say("tokens/s = batch * seq_q / P50; GFLOP/s = 2 * visible pairs * (head_dim + head_dim_v) / "
        "P50,\n  causal pairs counted exactly; GB/s = bytes of k and v / P50; up to 16 rows "
        "and preset threads:\n  read = GB/s of a plain loop that reads the same k and v with as "
        "many threads, in turn with\n  the calls; %%read = the loop's time / the call's, "
        "median of pairs\n");
    say("%%peak, %%avx2: of the FMA peak of the best unit and of AVX2, in cycles, times threads;\n"
        "  err/tol: worst error of sampled rows against a double oracle in units of its tolerance;"
        "\n  cold: the first call, before any warm-up; %%cpu: share of the time in which the CPU "
        "was ours;\n  F/byte: FLOPs / bytes of q, k, v and o; roof: compute when F/byte * the read "
        "rate from memory\n  exceeds the FMA peak, both of as many threads, else memory\n\n");
}

void report_table_head(void)
{
    colour(BOLD);
    for (int i = 0; i < num_result_fields; i++)
        if (result_fields[i].title) say("%*s ", result_fields[i].width, result_fields[i].title);
    colour(PLAIN);
    say("\n");
}

static void say_field(const result_field *f, const bench_result *r)
{
    if (f->kind == FIELD_NAME || f->kind == FIELD_TEXT)
        say("%*s ", f->width, field_text(f, r));
    else if (f->kind == FIELD_MAYBE && field_number(f, r) == 0)
        say("%*s ", f->width, "-");
    else
        say("%*.*f ", f->width, f->decimals, field_number(f, r) / f->unit);
}

void report_row(const bench_result *r)
{
    if (r->skipped[0]) {
        colour(YELLOW);
        say("%-26s %-6s skipped: %s", r->name, r->impl, r->skipped);
        colour(PLAIN);
        say("\n");
        return;
    }
    for (int i = 0; i < num_result_fields; i++)
        if (result_fields[i].title) say_field(&result_fields[i], r);
    say("\n");
}

/* ---- winners */

static int same(const char *a, const char *b)
{
    return !strcmp(a, b);
}

static int same_case(const bench_result *a, const bench_result *b)
{
    return same(a->preset, b->preset) && same(a->scenario, b->scenario) && same(a->name, b->name);
}

/* Result of the same case by another implementation. */
static const bench_result *find(const bench_result *all, int n, const bench_result *like,
                                const char *impl)
{
    for (int i = 0; i < n; i++)
        if (!all[i].skipped[0] && same_case(&all[i], like) && same(all[i].impl, impl))
            return &all[i];
    return NULL;
}

/* Compares two implementations over one scenario; speedup > 1 when `a` is the faster one. */
static bench_winner compare(const bench_result *all, int n, const bench_result *first,
                            const char *a, const char *b)
{
    bench_winner w = {first->preset, first->scenario, a, b, 0, 0, 0, 0};
    double log_speed = 0, log_space = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const x = &all[i];
        if (x->skipped[0] || !same(x->impl, a) || !same(x->preset, first->preset)
            || !same(x->scenario, first->scenario))
            continue;
        const bench_result *const y = find(all, n, x, b);
        if (!y) continue;
        w.cases++;
        w.won += x->ms_p50 < y->ms_p50;
        log_speed += log(y->ms_p50 / x->ms_p50);
        log_space += log((double)(y->workspace_bytes + 1) / (double)(x->workspace_bytes + 1));
    }
    if (w.cases) {
        w.speedup = exp(log_speed / w.cases);
        w.workspace_ratio = exp(log_space / w.cases);
    }
    return w;
}

static int scenario_done(const bench_winner *done, int n, const bench_result *r)
{
    for (int i = 0; i < n; i++)
        if (same(done[i].preset, r->preset) && same(done[i].scenario, r->scenario)) return 1;
    return 0;
}

/* The implementation that nobody in the scenario beats, against the one it beats most. */
static bench_winner scenario_winner(const bench_result *all, int n, const bench_result *first)
{
    bench_winner best = {0};
    for (int i = 0; i < n; i++) {
        bench_winner widest = {0};
        int beaten = 0;
        for (int j = 0; j < n; j++) {
            if (same(all[i].impl, all[j].impl)) continue;
            const bench_winner w = compare(all, n, first, all[i].impl, all[j].impl);
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
        colour(GREEN);
        say("%s", w->winner);
        colour(PLAIN);
        say(" wins %d of %d, %.2f times as fast as %s", w->won, w->cases, w->speedup, w->over);
    }
    if (w->workspace_ratio >= 1.05) say(", %.1f times less workspace", w->workspace_ratio);
    if (w->workspace_ratio <= 0.95) say(", %.1f times more workspace", 1 / w->workspace_ratio);
    say("\n");
}

/* A median far above the minimum means that something else ran, too. */
#define NOISY 1.25

static void say_noise(const bench_result *results, int n)
{
    int noisy = 0;
    for (int i = 0; i < n; i++)
        noisy += !results[i].skipped[0] && results[i].ms_p50 > NOISY * results[i].ms_min;
    if (noisy)
        say("\nnoisy rows (P50 above %.2f times the minimum): %d; other programs share this "
            "machine:\n  compare the minima, or run again\n", NOISY, noisy);
}

static void say_speedups(const bench_result *results, int n)
{
    int said = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (r->speedup <= 0) continue;
        if (!said++) say("\nthreads against one, on the same tensors, and of the read rate\n");
        say("  %-26s %3d: %5.2f times as fast, %5.1f %%\n", r->name, (int)r->threads, r->speedup,
            r->pct_read_bw);
    }
}

void report_summary(const bench_result *results, int n)
{
    bench_winner winners[MAX_WINNERS];
    const int count = report_winners(results, n, winners, MAX_WINNERS);
    int timed = 0;
    for (int i = 0; i < n; i++) timed += !results[i].skipped[0];
    if (count) say("\nwinners (geometric mean over the cases of a scenario, by P50)\n");
    for (int i = 0; i < count; i++) say_winner(&winners[i]);
    say_speedups(results, n);
    say_noise(results, n);
    say("\n%d timed, %d skipped\n", timed, n - timed);
}
