/* on_device.h - a call of attn_forward on the OpenCL device, and where its time goes.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_ON_DEVICE_H
#define BENCH_ON_DEVICE_H

#include "../machine/device.h"
#include "case.h"
#include "paths.h"

enum { ON_DEVICE_ARRAYS = 4 };

typedef struct device_job {
    attn_backend backend;
    attn_opencl_call how;
    attn_opencl_buffer arrays[ON_DEVICE_ARRAYS]; /* q, k, v, o of a path whose arrays are there */
} device_job;

/* Makes p a call of the path's device; the job must stay where it is. 0 with a sentence. */
int on_device(const bench_path *path, attn_params *p, device_job *job, char *why, size_t bytes);

/* Whether the call that was explained runs there; 0 with the reason. */
int on_device_taken(const attn_info *info, char *why, size_t bytes);

/* Copies q, k, v to the device, makes an o there, and has the call use them. bytes: of each of the
 * four. 0 = there is no memory. */
int on_device_place(const attn_params *p, const size_t sizes[ON_DEVICE_ARRAYS], device_job *job);

/* What the device wrote into o, where o is on the device. */
int on_device_fetch(const attn_params *p, device_job *job);

void on_device_free(device_job *job);

/* Fills in r's times of a call, from `calls` further ones that are measured command by command: of
 * these the one whose time is the median, so that its parts add up. call returns 0 if it worked.
 * 0 = a call failed. */
int on_device_split(int (*call)(void *), void *arg, device_job *job, int calls, bench_result *r);

#endif
