/* measure_test.c - the measuring core on its own: statistics against their definition, suites.
 * SPDX-License-Identifier: MIT
 *
 * Linked with measure.c, suite.c, stats.c and clock.c alone: nothing of attention is in them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../bench/clock.h"
#include "../../bench/measure.h"

/* Samples: on a busy machine single waits take several times as long. */
enum { MOST = 200, LINE_BYTES = 512, SAMPLES = 25, MOST_CALLS = 4 * SAMPLES };

static int passed, failed;

static void expect(int held, const char *what, double value)
{
    passed += held != 0;
    failed += held == 0;
    if (!held)
        printf("FAILED: %s (got %g)\n", what, value);
}

/* ---- statistics, without sorting */

/* The value that `rank` others come before, ties by position. */
static double by_rank(const double *x, int n, int rank)
{
    for (int i = 0; i < n; i++) {
        int before = 0;
        for (int j = 0; j < n; j++)
            before += x[j] < x[i] || (x[j] == x[i] && j < i);
        if (before == rank)
            return x[i];
    }
    return NAN;
}

/* Linear between ranks, hundredths of the way: at hundredths * (n - 1) / 100. */
static double percentile(const double *x, int n, int hundredths)
{
    const int whole = hundredths * (n - 1) / 100, part = hundredths * (n - 1) % 100;
    const double low = by_rank(x, n, whole);
    return part ? low + 0.01 * part * (by_rank(x, n, whole + 1) - low) : low;
}

/* From all pairs: the variance is the mean of half the squared differences. */
static double deviation(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            sum += 0.5 * (x[i] - x[j]) * (x[i] - x[j]);
    return n > 1 ? sqrt(sum / n / (n - 1)) : 0;
}

static int close_to(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b));
}

/* Times as they come: many alike, some far out. */
static void draw(double *x, int n, unsigned *state)
{
    for (int i = 0; i < n; i++) {
        *state = *state * 1664525u + 1013904223u;
        const unsigned r = *state >> 16;
        x[i] = 1 + r % 50 / 10.0 + (r % 17 == 0 ? r : 0);
    }
}

static void check_statistics(void)
{
    unsigned state = 1;
    for (int n = 1; n <= MOST; n++) {
        double x[MOST], sorted[MOST], sum = 0;
        bench_stats s;
        draw(x, n, &state);
        memcpy(sorted, x, sizeof *x * (size_t)n);
        bench_stats_of(sorted, n, &s);
        for (int i = 0; i < n; i++)
            sum += x[i];
        expect(s.n == n, "count", s.n);
        expect(s.min == by_rank(x, n, 0), "minimum", s.min);
        expect(close_to(s.mean, sum / n), "mean", s.mean);
        expect(close_to(s.std, deviation(x, n)), "standard deviation", s.std);
        expect(close_to(s.p50, percentile(x, n, 50)), "P50", s.p50);
        expect(close_to(s.p95, percentile(x, n, 95)), "P95", s.p95);
        expect(close_to(s.p99, percentile(x, n, 99)), "P99", s.p99);
    }
}

/* The interval of the median holds it in about 68 of 100 draws, whatever the distribution: here one
 * whose median is 1 and whose mean is 1.44. */
static void check_median_error(void)
{
    enum { DRAWS = 2000, LENGTH = 101 };
    unsigned state = 1;
    int held = 0;
    for (int i = 0; i < DRAWS; i++) {
        double x[LENGTH];
        bench_stats s;
        for (int j = 0; j < LENGTH; j++) {
            state = state * 1664525u + 1013904223u;
            x[j] = -log((state / 65536 + 0.5) / 65536) / log(2);
        }
        bench_stats_of(x, LENGTH, &s);
        held += fabs(s.p50 - 1) <= s.p50_error;
    }
    expect(abs(100 * held / DRAWS - 68) <= 5, "the median's error holds in 68 of 100 draws",
           100.0 * held / DRAWS);
}

/* ---- suites */

typedef struct task {
    double seconds;
    int calls, wrong, fail_at; /* fail_at: number of the call that fails; 0 = none */
    double took[MOST_CALLS];   /* seconds of each call, by its own clock */
} task;

static int run_task(void *arg)
{
    task *const t = arg;
    const double start = clock_seconds();
    t->calls++;
    while (clock_seconds() - start < t->seconds) {
    }
    if (t->calls <= MOST_CALLS)
        t->took[t->calls - 1] = clock_seconds() - start;
    return t->fail_at == t->calls;
}

static int check_task(void *arg)
{
    return ((task *)arg)->wrong;
}

/* Tasks that are right, wrong, failing at once, and half as long, in this order. */
static void fill_suite(measure_suite *suite, task *tasks)
{
    static const char *const names[] = { "right", "wrong \"one\", quoted", "failing", "shorter" };
    const task kinds[] = { { .seconds = 4e-3 },
                           { .seconds = 1e-3, .wrong = 1 },
                           { .seconds = 1e-3, .fail_at = 1 },
                           { .seconds = 2e-3 } };
    memset(suite, 0, sizeof *suite);
    suite->plan.warmup = 1;
    suite->plan.iterations = SAMPLES;
    for (int i = 0; i < 4; i++) {
        const measure_entry e = { .name = names[i],
                                  .call = run_task,
                                  .check = check_task,
                                  .arg = &tasks[i],
                                  .flops = 4e6,
                                  .bytes = i ? 0 : 8e6 };
        tasks[i] = kinds[i];
        expect(measure_add(suite, &e), "an entry is added", i);
    }
}

/* How many times as fast as the first a task was by its own clock, sample by sample: on a busy
 * machine the calls wait longer than they are told to, but both clocks see that. */
static double own_speedup(const task *first, const task *t)
{
    double ratios[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        ratios[i] = t->took[t->calls - SAMPLES + i] / first->took[first->calls - SAMPLES + i];
    return 1 / percentile(ratios, SAMPLES, 50);
}

static void expect_speedups(const measure_suite *suite, const task *tasks)
{
    for (int i = 0; i < suite->n; i++) {
        const measure_entry *const e = &suite->entries[i];
        if (e->refused)
            continue;
        expect(fabs(e->speedup / own_speedup(&tasks[0], &tasks[i]) - 1) < 0.1,
               "times as fast as the first, sample by sample", e->speedup);
    }
}

static void check_suite(void)
{
    static measure_suite suite;
    task tasks[4];
    fill_suite(&suite, tasks);
    const measure_entry *const e = suite.entries;
    expect(!measure_run(&suite), "a suite with wrong entries is not all right", 0);
    expect(!e[0].refused && e[0].result.seconds.n == SAMPLES, "a right one is timed",
           e[0].result.seconds.n);
    expect(e[1].refused && tasks[1].calls == 1, "a wrong one is called once, never timed",
           tasks[1].calls);
    expect(e[2].refused && tasks[2].calls == 1, "nor is one that fails", tasks[2].calls);
    expect(tasks[3].calls == 1 + 1 + SAMPLES, "first call, warm-up, samples", tasks[3].calls);
    expect(e[0].cold >= 4e-3, "the first call is told apart", e[0].cold);
    expect(e[0].speedup == 1, "the first is the measure", e[0].speedup);
    expect_speedups(&suite, tasks);
    tasks[1].wrong = tasks[2].fail_at = 0;
    expect(measure_run(&suite), "the same suite, mended, is all right", 0);
    expect_speedups(&suite, tasks);
    tasks[3].fail_at = tasks[3].calls + 3;
    expect(!measure_run(&suite) && e[0].refused, "a failure while timing is told", 0);
}

static void check_limits(void)
{
    static measure_suite suite;
    const measure_entry none = { .name = "no call" }, unnamed = { .call = run_task };
    const measure_entry good = { .name = "n", .call = run_task };
    expect(!measure_run(&suite), "an empty suite is not all right", 0);
    expect(!measure_add(&suite, &none) && !measure_add(&suite, &unnamed),
           "an entry needs a name and a call", suite.n);
    for (int i = 0; i < MEASURE_MAX_ENTRIES; i++)
        measure_add(&suite, &good);
    expect(!measure_add(&suite, &good) && suite.n == MEASURE_MAX_ENTRIES, "a full suite is full",
           suite.n);
}

/* What `print` prints, line by line; returns how many lines. */
static int printed(void (*print)(const measure_suite *, FILE *), const measure_suite *suite,
                   char lines[][LINE_BYTES], int most)
{
    FILE *const f = tmpfile();
    int n = 0;
    if (!f)
        return 0;
    print(suite, f);
    rewind(f);
    while (n < most && fgets(lines[n], LINE_BYTES, f))
        n++;
    fclose(f);
    return n;
}

static void check_printing(void)
{
    static measure_suite suite;
    task tasks[4];
    char lines[8][LINE_BYTES];
    double p50 = 0, bytes_rate = 0;
    fill_suite(&suite, tasks);
    measure_run(&suite);
    const int rows = printed(measure_print, &suite, lines, 8);
    expect(rows == 5, "a table has a head line and one line an entry", rows);
    expect(strlen(lines[0]) == strlen(lines[1]) && strlen(lines[0]) == strlen(lines[4]),
           "its columns are aligned", (double)strlen(lines[1]));
    expect(strstr(lines[2], "not timed: its result is wrong") != NULL, "it says what is wrong", 0);
    const int csv_rows = printed(measure_csv, &suite, lines, 8);
    expect(csv_rows == 3, "CSV has the timed ones only", csv_rows);
    const int found =
        sscanf(lines[1], "\"right\",25,%*f,%*f,%*f,%lf,%*f,%*f,%*f,%*f,%lf,1", &p50, &bytes_rate);
    expect(found == 2 && fabs(p50 / 1e3 / suite.entries[0].result.seconds.p50 - 1) < 1e-6,
           "P50 in ms", p50);
    expect(fabs(bytes_rate * p50 / 8 - 1) < 1e-6, "bytes / P50 in GB/s", bytes_rate);
    expect(strstr(lines[2], ",,") != NULL, "no bytes, no rate", 0);
    suite.entries[0].name = suite.entries[1].name;
    printed(measure_csv, &suite, lines, 8);
    expect(!strncmp(lines[1], "\"wrong \"\"one\"\", quoted\",25,", 27), "quotes are doubled", 0);
}

int main(void)
{
    check_statistics();
    check_median_error();
    check_suite();
    check_limits();
    check_printing();
    printf("measuring core: %d passed, %d failed\n", passed, failed);
    return failed != 0;
}
