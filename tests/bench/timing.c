/* timing.c - statistics, times, calls in turn, the pool that shares work.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define SELFCHECK_SLEEPS 1
#endif
#include <math.h>
#include <string.h>
#include <time.h>

#include "../../bench/clock.h"
#include "../../bench/machine/machine.h"
#include "../../bench/measure.h"
#include "selfcheck.h"

/* ---- statistics and timing */

static void check_stats(void)
{
    double values[] = { 5, 1, 4, 2, 3 };
    bench_stats s;
    bench_stats_of(values, 5, &s);
    expect(s.min == 1, "minimum of 1..5", s.min);
    expect(s.mean == 3, "mean of 1..5", s.mean);
    expect(fabs(s.std - sqrt(2.5)) < 1e-12, "standard deviation of 1..5", s.std);
    expect(s.p50 == 3, "median of 1..5", s.p50);
    expect(fabs(s.p95 - 4.8) < 1e-12, "P95 of 1..5", s.p95);
    expect(fabs(s.p99 - 4.96) < 1e-12, "P99 of 1..5", s.p99);
    expect(fabs(s.p50_error - 2 / sqrt(5)) < 1e-12, "error of the median", s.p50_error);
}

typedef struct fake_call {
    double seconds;
    int calls, fail_at; /* fail_at: number of the call that fails; 0 = none */
} fake_call;

static int wait_a_while(void *arg)
{
    fake_call *const f = arg;
    const double start = clock_seconds();
    f->calls++;
    while (clock_seconds() - start < f->seconds) {
    }
    return f->fail_at == f->calls;
}

static void check_timing(void)
{
    const measure_plan counted = { 2, 5, 0, 0 }, doubled = { 1, 0, 0.02, 0 },
                       capped = { 0, 99, 0, 0.01 };
    fake_call f = { 1e-3, 0, 0 };
    measure_result r;
    expect(measure(&counted, wait_a_while, &f, &r), "a plan of 5 calls works", 0);
    expect(f.calls == 7, "2 calls of warm-up and 5 timed ones", f.calls);
    expect(r.seconds.n == 5, "5 samples", r.seconds.n);
    expect(r.seconds.min >= 1e-3, "a call of 1 ms takes at least 1 ms", r.seconds.min);
    expect(measure(&doubled, wait_a_while, &f, &r), "a plan by time works", 0);
    expect(r.seconds.n * r.seconds.mean >= 0.02, "samples last min_time", r.seconds.n);
    expect(measure(&capped, wait_a_while, &f, &r), "a plan with a limit works", 0);
    expect(r.seconds.n <= 10, "max_time ends the samples", r.seconds.n);
    f.seconds = 1e-6;
    expect(measure(&counted, wait_a_while, &f, &r), "short calls work", 0);
    expect(r.calls_per_sample > 1, "short calls are timed together", r.calls_per_sample);
    f.fail_at = f.calls + 4;
    expect(!measure(&counted, wait_a_while, &f, &r), "a failing call fails the measurement", 0);
}

#ifdef SELFCHECK_SLEEPS
static int sleep_a_while(void *arg)
{
    const struct timespec t = { 0, 2000000 };
    (void)arg;
    return nanosleep(&t, NULL);
}

static void check_running(void)
{
    const measure_plan plan = { 0, 5, 0, 0 };
    measure_result r;
    expect(measure(&plan, sleep_a_while, NULL, &r), "a sleeping call works", 0);
    expect(r.running > 0 && r.running < 0.5, "a sleeping call does not have the CPU", r.running);
}
#else
static int sleep_a_while(void *arg)
{
    (void)arg;
    return 0;
}

static void check_running(void)
{
}
#endif

/* ---- calls in turn */

typedef struct turn_call {
    int *last, *broken;
    int index, calls, of;
    double seconds;
} turn_call;

static int take_turn(void *arg)
{
    turn_call *const t = arg;
    const double start = clock_seconds();
    if (t->calls++ && (*t->last + 1) % t->of != t->index)
        ++*t->broken; /* the first is warm-up */
    *t->last = t->index;
    while (clock_seconds() - start < t->seconds) {
    }
    return 0;
}

static void check_turns(void)
{
    const measure_plan plan = { 1, 4, 0, 0 };
    int last = -1, broken = 0;
    turn_call t[3];
    measure_job jobs[3];
    for (int i = 0; i < 3; i++) {
        const turn_call one = { &last, &broken, i, 0, 3, 1.2e-3 };
        const measure_job job = { .call = take_turn, .arg = &t[i] };
        t[i] = one;
        jobs[i] = job;
    }
    expect(measure_in_turn(&plan, jobs, 3), "three calls in turn work", 0);
    expect(broken == 0, "their samples alternate", broken);
    expect(jobs[2].result.seconds.n == 4, "4 samples of each", jobs[2].result.seconds.n);
    expect(t[2].calls == 5, "no call beside the warm-up and the samples", t[2].calls);
    t[2].seconds = 1e-4;
    /* A busy machine may interrupt a call for so long that it counts as none of the short ones. */
    for (int tries = 0; tries < 50 && t[2].calls != 9; tries++) {
        t[2].calls = 0;
        expect(measure_in_turn(&plan, jobs, 3), "a short call among them works", 0);
    }
    expect(t[2].calls == 9, "an untimed call leads in each sample of a short one", t[2].calls);
    t[2].calls = 0;
    jobs[2].cold = 1;
    expect(measure_in_turn(&plan, jobs, 3) && t[2].calls == 5, "but not of a cold one", t[2].calls);
}

/* Ten times as long for the first `of` calls. */
static int jumpy(void *arg)
{
    turn_call *const t = arg;
    const double start = clock_seconds();
    const double seconds = t->calls++ < t->of ? t->seconds * 10 : t->seconds;
    while (clock_seconds() - start < seconds) {
    }
    return 0;
}

/* The machine becomes faster between the two calls of a round: of five samples three of the first
 * are slow and two of the second, so that the medians would make the second the shorter one. */
static void check_ratio(void)
{
    const measure_plan plan = { 1, 5, 0, 0 };
    turn_call t[2] = { { .of = 4, .seconds = 1.2e-3 }, { .of = 3, .seconds = 4.8e-3 } };
    measure_job jobs[2] = { { .call = jumpy, .arg = &t[0] },
                            { .call = jumpy, .arg = &t[1], .against = 1 } };
    expect(measure_in_turn(&plan, jobs, 2), "two calls whose speed jumps work", 0);
    expect(fabs(log(jobs[1].ratio_p50 / 4)) < 1, "they are compared sample by sample",
           jobs[1].ratio_p50);
    t[0].calls = t[1].calls = 0;
    jobs[0].against = -1;
    expect(measure_in_turn(&plan, jobs, 2) && fabs(log(jobs[0].ratio_p50 * 4)) < 1,
           "also with one behind it", jobs[0].ratio_p50);
}

/* ---- the pool: each index once, whether its workers spin or sleep */

enum { POOL_WORKERS = 3, POOL_INDICES = 50, POOL_CALLS = 1000, POOL_PATIENCE = 100 };

typedef struct pool_count {
    int times[POOL_INDICES], wrong;
} pool_count;

static void count_index(void *arg, int64_t index, int worker)
{
    pool_count *const c = arg;
    const double start = clock_seconds();
    while (clock_seconds() - start < 2e-6) { /* a caller that does not wait looks too early */
    }
    c->times[index]++;
    if (worker < 0 || worker >= POOL_WORKERS)
        c->wrong = 1;
}

static void note_worker(void *arg, int64_t index, int worker)
{
    const double start = clock_seconds();
    (void)index;
    while (clock_seconds() - start < 2e-6) { /* time for the others to join */
    }
    ((int *)arg)[worker] = 1;
}

static void check_limit(pool *workers)
{
    static const int limits[] = { 2, 3, 1 };
    for (int i = 0; i < 3; i++) {
        int seen[POOL_WORKERS] = { 0 }, most = 0;
        pool *const some = pool_of(workers, limits[i]);
        const int *const last = &seen[limits[i] - 1]; /* a busy machine may let it wait for long */
        for (int call = 0; call < (*last ? 1 : POOL_PATIENCE) * POOL_CALLS; call++)
            if (some)
                pool_parallel_for(some, POOL_INDICES, note_worker, seen);
        for (int w = 0; w < POOL_WORKERS; w++)
            most = seen[w] ? w + 1 : most;
        expect(most == limits[i], "as many workers as asked for take part", most);
    }
}

static void check_pool(void)
{
    pool *const workers = pool_create(POOL_WORKERS);
    int bad = 0;
    if (!workers)
        return;
    for (int call = 0; call < POOL_CALLS; call++) {
        pool_count c = { { 0 }, 0 };
        const int n = call % (POOL_INDICES + 1);
        if (call % 100 == 99)
            sleep_a_while(NULL);
        pool_parallel_for(workers, n, count_index, &c);
        for (int i = 0; i < POOL_INDICES; i++)
            bad += c.times[i] != (i < n);
        bad += c.wrong;
    }
    expect(bad == 0, "a pool takes each index once", bad);
    check_limit(workers);
    pool_destroy(workers);
}

/* Few rows are compared with the reading loop of their moment, many are not. */

void check_times(void)
{
    check_stats();
    check_timing();
    check_running();
    check_turns();
    check_ratio();
    check_pool();
}
