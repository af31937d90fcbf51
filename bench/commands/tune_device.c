/* tune_device.c - from how many operations on the OpenCL device is faster than the CPU.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../attn.h"
#include "../cases/cases.h"
#include "../cases/jobs.h"
#include "../measure.h"
#include "../report/report.h"

enum { HEADS = 8, DIM = 64, SHORTEST = 16, LENGTHS = 9, SAMPLES = 31, MIN_SAMPLES = 5 };

typedef struct side {
    attn_params p;
    void *workspace;
    size_t bytes;
} side;

typedef struct duel {
    tune_subject of;
    side cpu, device;
    device_job job;
} duel;

static int size_side(side *s)
{
    if (attn_workspace_size(&s->p, &s->bytes) != ATTN_OK)
        return 0;
    s->workspace = malloc(s->bytes + 1);
    return s->workspace != NULL;
}

static int call(void *argument)
{
    const side *const s = argument;
    return stop_wanted() || attn_forward(&s->p, s->workspace, s->bytes) != ATTN_OK;
}

static void close_duel(duel *d)
{
    tune_close(&d->of);
    free(d->cpu.workspace);
    free(d->device.workspace);
}

static int open_duel(pool *workers, int threads, int length, duel *d)
{
    const tune_case c = { "", HEADS, HEADS, length, length, DIM, ATTN_F32, 0, threads };
    char why[200];
    memset(d, 0, sizeof *d);
    if (!tune_open(&c, workers, &d->of))
        return 0;
    d->cpu.p = d->device.p = d->of.p;
    return on_device(path_find("opencl"), &d->device.p, &d->job, why, sizeof why) &&
           size_side(&d->cpu) && size_side(&d->device);
}

/* Medians of both, timed in turn; 0 = they take too long for the time there is, or fail. */
static int fight(duel *d, double seconds, double *cpu, double *device)
{
    measure_plan plan = { 1, SAMPLES, 0, seconds };
    measure_job jobs[] = { { .call = call, .arg = &d->cpu }, { .call = call, .arg = &d->device } };
    if (call(&d->cpu) || call(&d->device))
        return 0; /* the first ones build kernels */
    const double once = measure_once(call, &d->cpu) + measure_once(call, &d->device);
    if (once * (MIN_SAMPLES + 1) > seconds || !measure_in_turn(&plan, jobs, 2))
        return 0;
    *cpu = jobs[0].result.seconds.p50;
    *device = jobs[1].result.seconds.p50;
    return 1;
}

int tune_crossover_of(const double *cpu_seconds, const double *device_seconds, int n)
{
    int first = n;
    while (first > 0 && device_seconds[first - 1] < cpu_seconds[first - 1])
        first--;
    return first;
}

static double flops_of(int length)
{
    return 4.0 * HEADS * length * length * DIM;
}

/* How many of the lengths could be timed. */
static int time_lengths(pool *workers, int threads, double seconds, double *cpu, double *device)
{
    int n = 0, ok = 1;
    for (int length = SHORTEST; ok && n < LENGTHS; length *= 2) {
        static duel d;
        ok = open_duel(workers, threads, length, &d) &&
             fight(&d, seconds / LENGTHS, &cpu[n], &device[n]);
        close_duel(&d);
        if (!ok)
            break;
        say("  %-6d %12.0f %9.4f %9.4f  %.2fx\n", length, flops_of(length), 1e3 * cpu[n],
            1e3 * device[n], cpu[n] / device[n]);
        n++;
    }
    return n;
}

static void choose(const double *cpu, const double *device, int n, tune_crossover *out)
{
    const int first = tune_crossover_of(cpu, device, n);
    if (n == 0) {
        say("  nothing said: the calls fail or take too long for the time there is\n");
    } else if (first == n) {
        say("  nothing said: the CPU is faster up to %d keys\n", SHORTEST << (n - 1));
    } else {
        out->keys = SHORTEST << first;
        out->flops = flops_of(out->keys);
        say("  least_flops %.0f: the device is faster from %d keys on\n", out->flops, out->keys);
    }
}

void tune_device(bench_context *x, double seconds, tune_crossover *out)
{
    double cpu[LENGTHS], device[LENGTHS];
    char why[256];
    memset(out, 0, sizeof *out);
    if (!device_get(DEVICE_FREE, why, sizeof why)) {
        say("least_flops of a device\n  skipped: %s\n", why);
        return;
    }
    snprintf(out->device, sizeof out->device, "%s", device_opened()->device);
    pool *const workers = x->many > 1 ? pool_create(x->many) : NULL;
    const int threads = workers ? x->many : 1;
    say("least_flops of %s, %d x %d, ms: keys, FLOPs, CPU (%d threads), device\n", out->device,
        HEADS, DIM, threads);
    choose(cpu, device, time_lengths(workers, threads, seconds, cpu, device), out);
    pool_destroy(workers);
}
