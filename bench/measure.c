/* measure.c - the measuring core: times any call, knows nothing of attention.
 * SPDX-License-Identifier: MIT */
#include "measure.h"

#include <stdlib.h>

#include "clock.h"

#define SAMPLE_SECONDS 20e-6
#define LED_IN_SECONDS 1e-3
enum { MAX_SAMPLES = 1 << 16, MIN_SAMPLES = 3, MAX_CALLS_PER_SAMPLE = 1 << 16 };

typedef struct samples {
    double *seconds, *cycles; /* the three lie in one piece of memory */
    double *busy; /* cycles in which a CPU ran the call: of its CPU time where that is shorter */
    double cpu;   /* seconds of CPU time, all samples together */
    int n, calls; /* calls: of one sample */
    int led_in;   /* an untimed call goes before each sample */
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
        if (last < 0)
            return -1;
        if (plan->max_time > 0 && clock_seconds() - start + last > plan->max_time / 4)
            break;
    }
    return last;
}

/* Adds a sample of the job; its seconds, or -1 when a call fails. */
static double take_sample(const measure_job *job, samples *s)
{
    const double before = clock_hertz();
    if (s->led_in && job->call(job->arg))
        return -1;
    const double cpu = clock_cpu_seconds(), start = clock_seconds();
    for (int i = 0; i < s->calls; i++)
        if (job->call(job->arg))
            return -1;
    const double seconds = clock_seconds() - start, busy = clock_cpu_seconds() - cpu;
    const double rate = 0.5 * (before + clock_hertz()) / s->calls;
    s->cpu += busy;
    s->seconds[s->n] = seconds / s->calls;
    s->cycles[s->n] = seconds * rate;
    s->busy[s->n] = (busy > 0 && busy < seconds ? busy : seconds) * rate;
    s->n++;
    return seconds;
}

/* A sample of each job anew, `rounds` times, fewer when the time is up. Seconds of all, or -1. */
static double take_rounds(const measure_plan *plan, const measure_job *jobs, samples *s, int n,
                          int rounds)
{
    double total = 0;
    for (int j = 0; j < n; j++)
        s[j].n = 0, s[j].cpu = 0;
    for (int i = 0; i < rounds; i++) {
        if (i > 0 && plan->max_time > 0 && total + total / i > plan->max_time)
            break;
        for (int j = 0; j < n; j++) {
            const double seconds = take_sample(&jobs[j], &s[j]);
            if (seconds < 0)
                return -1;
            total += seconds;
        }
    }
    return total;
}

static int take_all(const measure_plan *plan, const measure_job *jobs, samples *s, int n)
{
    if (plan->iterations > 0)
        return take_rounds(plan, jobs, s, n, plan->iterations) >= 0;
    for (int rounds = MIN_SAMPLES;; rounds *= 2) {
        const double total = take_rounds(plan, jobs, s, n, rounds);
        if (total < 0)
            return 0;
        if (total >= plan->min_time || s->n < rounds || rounds > MAX_SAMPLES / 2)
            return 1;
    }
}

/* Memory and warm-up of one of n jobs; 0 when memory is short or a call fails. */
static int begin(const measure_plan *plan, const measure_job *job, int n, samples *s)
{
    const int most = plan->iterations > MAX_SAMPLES ? plan->iterations : MAX_SAMPLES;
    s->seconds = malloc(3 * sizeof(double) * (size_t)most);
    if (!s->seconds)
        return 0;
    s->cycles = s->seconds + most;
    s->busy = s->cycles + most;
    const double last = warm_up(plan, job->call, job->arg);
    s->calls = last > 0 && last < SAMPLE_SECONDS ? (int)(SAMPLE_SECONDS / last) + 1 : 1;
    if (s->calls > MAX_CALLS_PER_SAMPLE)
        s->calls = MAX_CALLS_PER_SAMPLE;
    s->led_in = !job->cold && n > 1 && last > 0 && last < LED_IN_SECONDS;
    return last >= 0;
}

/* Sample by sample: on a machine whose speed jumps, two medians may lie on different sides of a
 * jump. 0 when memory is short. */
static double median_ratio(const samples *s, const samples *other)
{
    double *const ratios = malloc(sizeof(double) * (size_t)s->n);
    bench_stats stats = { 0 };
    if (!ratios)
        return 0;
    for (int i = 0; i < s->n; i++)
        ratios[i] = s->seconds[i] / other->seconds[i];
    bench_stats_of(ratios, s->n, &stats);
    free(ratios);
    return stats.p50;
}

static void describe(samples *s, measure_result *out)
{
    bench_stats cycles, busy;
    bench_stats_of(s->seconds, s->n, &out->seconds);
    bench_stats_of(s->cycles, s->n, &cycles);
    bench_stats_of(s->busy, s->n, &busy);
    out->cycles_p50 = cycles.p50;
    out->cycles_p10 = bench_quantile(s->busy, s->n, 0.1); /* sorted by now */
    out->running = s->cpu / (out->seconds.mean * s->n * s->calls);
    out->calls_per_sample = s->calls;
}

int measure_in_turn(const measure_plan *plan, measure_job *jobs, int n)
{
    samples *const s = calloc((size_t)n, sizeof *s);
    int ok = s != NULL;
    for (int j = 0; ok && j < n; j++)
        ok = begin(plan, &jobs[j], n, &s[j]);
    ok = ok && take_all(plan, jobs, s, n);
    for (int j = 0; ok && j < n; j++) /* first: describe sorts */
        if (jobs[j].against)
            jobs[j].ratio_p50 = median_ratio(&s[j], &s[j - jobs[j].against]);
    for (int j = 0; s && j < n; j++) {
        if (ok)
            describe(&s[j], &jobs[j].result);
        free(s[j].seconds);
    }
    free(s);
    return ok;
}

int measure(const measure_plan *plan, measure_fn call, void *arg, measure_result *out)
{
    measure_job job = { .call = call, .arg = arg };
    const int ok = measure_in_turn(plan, &job, 1);
    if (ok)
        *out = job.result;
    return ok;
}
