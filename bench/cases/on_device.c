/* on_device.c - a call of attn_forward on the OpenCL device, and where its time goes.
 * SPDX-License-Identifier: MIT */
#include "jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../measure.h"

enum { MOST_CALLS = 31 };

int on_device(const bench_path *path, attn_params *p, device_job *job, char *why, size_t bytes)
{
    const device_order order = path->device == PATH_EXACT ? DEVICE_EXACT : DEVICE_FREE;
    attn_opencl *const gpu = device_get(order, why, bytes);
    if (!gpu)
        return 0;
    memset(job, 0, sizeof *job);
    job->backend = attn_opencl_backend(gpu, &job->how);
    p->backend = &job->backend;
    return 1;
}

int on_device_taken(const attn_info *info, char *why, size_t bytes)
{
    const char *const reason = strstr(info->reasons, "refused: ");
    if (strcmp(info->backend_name, "cpu"))
        return 1;
    snprintf(why, bytes, "the device refuses this call: %.180s",
             reason ? reason + strlen("refused: ") : "it does not say why");
    return 0;
}

int on_device_place(const attn_params *p, const size_t sizes[ON_DEVICE_ARRAYS], device_job *job)
{
    const void *const hosts[ON_DEVICE_ARRAYS] = { p->q.data, p->k.data, p->v.data, p->o.data };
    for (int i = 0; i < ON_DEVICE_ARRAYS; i++) {
        attn_opencl_buffer *const array = &job->arrays[i];
        array->address = hosts[i];
        array->bytes = sizes[i];
        array->mem = device_new(sizes[i], hosts[i]);
        if (!array->mem)
            return 0;
    }
    job->how.buffers = job->arrays;
    job->how.num_buffers = ON_DEVICE_ARRAYS;
    return 1;
}

int on_device_fetch(const attn_params *p, device_job *job)
{
    const attn_opencl_buffer *const o = &job->arrays[ON_DEVICE_ARRAYS - 1];
    return !o->mem || device_read(o->mem, p->o.data, o->bytes);
}

void on_device_free(device_job *job)
{
    for (int i = 0; i < ON_DEVICE_ARRAYS; i++) {
        device_free(job->arrays[i].mem);
        job->arrays[i].mem = NULL;
    }
}

/* ---- where the time goes */

typedef struct split {
    double seconds;
    attn_opencl_times of;
} split;

static int by_seconds(const void *a, const void *b)
{
    const split *const x = a, *const y = b;
    return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

int on_device_split(int (*call)(void *), void *arg, device_job *job, int calls, bench_result *r)
{
    split splits[MOST_CALLS];
    const int n = calls < 1 ? 1 : calls > MOST_CALLS ? MOST_CALLS : calls;
    int ok = 1;
    for (int i = 0; i < n && ok; i++) {
        job->how.times = &splits[i].of;
        splits[i].seconds = measure_once(call, arg);
        ok = splits[i].seconds >= 0;
    }
    job->how.times = NULL; /* being measured takes time itself */
    if (!ok)
        return 0;
    qsort(splits, (size_t)n, sizeof *splits, by_seconds);
    const split *const s = &splits[n / 2];
    r->to_device_ms = 1e3 * s->of.to_device;
    r->compute_ms = 1e3 * s->of.compute;
    r->to_host_ms = 1e3 * s->of.to_host;
    r->launch_ms = 1e3 * s->seconds - r->to_device_ms - r->compute_ms - r->to_host_ms;
    r->launches = s->of.kernels;
    return 1;
}
