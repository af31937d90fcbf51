/* measure.c - the measuring core: times any call, knows nothing of attention.
 * SPDX-License-Identifier: MIT */
#include "measure.h"

#include <stdlib.h>

#include "clock.h"

#define SAMPLE_SECONDS 20e-6
enum { MAX_SAMPLES = 1 << 16, MIN_SAMPLES = 3, MAX_CALLS_PER_SAMPLE = 1 << 16 };

typedef struct samples {
    double *seconds, *cycles;
    int n;
    double total;
} samples;

double measure_once(measure_fn call, void *arg)
{
    const double start = clock_seconds();
    const int status = call(arg);
    const double seconds = clock_seconds() - start;
    return status ? -1 : seconds;
}

/* Warm-up, which also tells about how long one call takes; -1 when a call fails. */
static double warm_up(const measure_plan *plan, measure_fn call, void *arg)
{
    const double start = clock_seconds();
    double last = 0;
    for (int i = 0; i < plan->warmup; i++) {
        last = measure_once(call, arg);
        if (last < 0) return -1;
        if (plan->max_time > 0 && clock_seconds() - start + last > plan->max_time / 4) break;
    }
    return last;
}

static int take_sample(measure_fn call, void *arg, int calls, samples *s)
{
    const double before = clock_hertz();
    const double start = clock_seconds();
    for (int i = 0; i < calls; i++)
        if (call(arg)) return 0;
    const double seconds = clock_seconds() - start;
    s->seconds[s->n] = seconds / calls;
    s->cycles[s->n] = seconds / calls * 0.5 * (before + clock_hertz());
    s->total += seconds;
    s->n++;
    return 1;
}

/* n samples anew, fewer when the time is up. */
static int take_samples(const measure_plan *plan, measure_fn call, void *arg, int calls, int n,
                        samples *s)
{
    s->n = 0;
    s->total = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && plan->max_time > 0 && s->total + s->total / i > plan->max_time) break;
        if (!take_sample(call, arg, calls, s)) return 0;
    }
    return 1;
}

static int take_all(const measure_plan *plan, measure_fn call, void *arg, int calls, samples *s)
{
    if (plan->iterations > 0) return take_samples(plan, call, arg, calls, plan->iterations, s);
    for (int n = MIN_SAMPLES;; n *= 2) {
        if (!take_samples(plan, call, arg, calls, n, s)) return 0;
        if (s->total >= plan->min_time || s->n < n || n > MAX_SAMPLES / 2) return 1;
    }
}

int measure(const measure_plan *plan, measure_fn call, void *arg, measure_result *out)
{
    const size_t bytes = sizeof(double) * (size_t)(plan->iterations > MAX_SAMPLES
                                                       ? plan->iterations : MAX_SAMPLES);
    samples s = {malloc(bytes), malloc(bytes), 0, 0};
    const double last = warm_up(plan, call, arg);
    int calls = 1, ok = s.seconds && s.cycles && last >= 0;
    if (last > 0 && last < SAMPLE_SECONDS) calls = (int)(SAMPLE_SECONDS / last) + 1;
    if (calls > MAX_CALLS_PER_SAMPLE) calls = MAX_CALLS_PER_SAMPLE;
    ok = ok && take_all(plan, call, arg, calls, &s) && s.n > 0;
    if (ok) {
        bench_stats cycles;
        bench_stats_of(s.seconds, s.n, &out->seconds);
        bench_stats_of(s.cycles, s.n, &cycles);
        out->cycles_p50 = cycles.p50;
        out->calls_per_sample = calls;
    }
    free(s.seconds);
    free(s.cycles);
    return ok;
}
