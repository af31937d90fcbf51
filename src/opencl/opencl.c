/* src/opencl/opencl.c - attention on OpenCL devices: the public functions.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "kept.c"
#include "refusals.c"

ATTN_API size_t attn_opencl_size(void)
{
    return sizeof(attn_opencl);
}

/* begin_object returns where the object's sentence goes. */
static text begin_object(attn_opencl *gpu, const attn_opencl_options *options)
{
    memset(gpu, 0, sizeof *gpu);
    if (options)
        gpu->options = *options;
    return text_in(gpu->why, sizeof gpu->why);
}

ATTN_API attn_status attn_opencl_open(attn_opencl *gpu, const attn_opencl_options *options)
{
    const attn_opencl_options *o;
    attn_status status;
    text why;
    if (!gpu)
        return ATTN_ERR_ARG;
    why = begin_object(gpu, options);
    o = &gpu->options;
    gpu->limits.exact = o->exact != 0;
    gpu->plain.gpu = gpu;
    if (o->build_options && strlen(o->build_options) >= sizeof gpu->build_options)
        return bad(&why, ATTN_ERR_ARG, "build_options has more than 99 letters");
    if (o->build_options)
        memcpy(gpu->build_options, o->build_options, strlen(o->build_options) + 1);
    if (!load_library(gpu, &why))
        return ATTN_ERR_UNSUPPORTED;
    status = open_queue(gpu, &why);
    if (status)
        return status;
    describe_device(gpu);
    if (o->binaries)
        take_programs(gpu, o->binaries, o->binaries_bytes);
    if (gpu->limits.exact)
        check_device(gpu);
    put(&why, "ok");
    return ATTN_OK;
}

ATTN_API int attn_opencl_list(attn_opencl *gpu, const attn_opencl_options *options,
                              attn_opencl_device *devices, int most)
{
    device_walk walk = { .list = devices, .room = most };
    text why;
    if (!gpu || most < 0 || (most > 0 && !devices))
        return 0;
    why = begin_object(gpu, options);
    if (load_library(gpu, &why))
        walk_devices(gpu, &walk, &why);
    if (walk.best)
        put(&why, "ok");
    if (gpu->library)
        CLOSE_LIBRARY(gpu->library);
    gpu->library = NULL;
    return (int)walk.devices;
}

ATTN_API void attn_opencl_close(attn_opencl *gpu)
{
    int i;
    if (!gpu)
        return;
    for (i = 0; i < VARIANTS; i++)
        release(gpu->cl.clReleaseProgram, gpu->programs[i]);
    for (i = 0; i < POOL_SLOTS; i++)
        release_slot(gpu, &gpu->pool[i]);
    release(gpu->cl.clReleaseCommandQueue, gpu->queue);
    release(gpu->cl.clReleaseContext, gpu->context);
    if (gpu->library)
        CLOSE_LIBRARY(gpu->library);
    memset(gpu, 0, sizeof *gpu);
}

ATTN_API const char *attn_opencl_why(const attn_opencl *gpu)
{
    return gpu ? gpu->why : "no memory for the object: gpu is NULL";
}

ATTN_API const char *attn_opencl_build_log(const attn_opencl *gpu)
{
    return gpu ? gpu->build_log : "";
}

ATTN_API attn_status attn_opencl_info_get(const attn_opencl *gpu, attn_opencl_info *info)
{
    int i;
    if (!gpu || !info || !gpu->queue)
        return ATTN_ERR_ARG;
    *info = gpu->info;
    info->built = LOAD(&gpu->built);
    info->taken = LOAD(&gpu->taken);
    info->dropped = 0;
    for (i = 0; i < VARIANTS; i++)
        info->dropped += LOAD(&gpu->verdicts[i]) == DROPPED;
    info->pool_bytes = pool_bytes(gpu);
    return ATTN_OK;
}

ATTN_API size_t attn_opencl_binaries_get(const attn_opencl *gpu, void *to, size_t bytes)
{
    if (!gpu || !gpu->queue)
        return 0;
    return keep_programs(gpu, (unsigned char *)to, to ? bytes : 0);
}

ATTN_API attn_status attn_opencl_binaries_set(attn_opencl *gpu, const void *from, size_t bytes)
{
    if (!gpu || !gpu->queue || !from)
        return ATTN_ERR_ARG;
    return take_programs(gpu, from, bytes);
}

ATTN_API attn_backend attn_opencl_backend(attn_opencl *gpu, attn_opencl_call *how)
{
    static const attn_opencl_call nothing; /* of no object */
    const attn_backend backend = {
        .abi = ATTN_KERNEL_ABI,
        .name = "opencl",
        .user = how   ? how
                : gpu ? &gpu->plain
                      : (void *)(uintptr_t)&nothing,
        .supports = supports_call,
        .workspace_size = call_workspace,
        .run = run_call,
        .supports_gradients = supports_gradients,
        .gradients_size = gradient_workspace,
        .run_gradients = run_gradient_call,
    };
    if (how)
        how->gpu = gpu;
    return backend;
}

static void show_plan(const attn_problem *pr, const device_plan *pl, attn_opencl_plan_info *to)
{
    to->forward = runs(pl, PART_FORWARD);
    to->merge_parts = to->forward && pl->parts > 1;
    to->naive = runs(pl, PART_NAIVE);
    to->logits = pr->p.logits.data != NULL;
    to->rotate_queries = pl->queries_bytes > 0;
    to->rotate_results = pl->results_bytes > 0;
    to->device_bytes = (size_t)(pl->queries_bytes + pl->results_bytes);
    if (to->naive)
        to->device_bytes += (size_t)(matrix_bytes(pr) + 4 * pr->max_q_len);
    if (!to->forward)
        return;
    to->tile_rows = pl->forward.rows;
    to->tile_columns = pl->forward.columns;
    to->tiles = pl->tiles;
    to->slices = pl->slices;
    to->parts = pl->parts;
    to->part_keys = pl->parts > 1 ? pl->part_keys : 0;
    to->items = pl->items;
    to->groups = pl->groups;
    to->local_bytes = (size_t)pl->local_bytes;
    to->device_bytes += (size_t)(pl->pending_bytes + pl->parts_bytes);
}

ATTN_API attn_status attn_opencl_plan(const attn_opencl_info *info, const attn_params *p,
                                      attn_opencl_plan_info *to)
{
    device_limits limits;
    device_plan pl;
    attn_problem pr;
    attn_status status;
    const char *fault;
    text why;
    if (!to)
        return ATTN_ERR_ARG;
    memset(to, 0, sizeof *to);
    why = text_in(to->why, sizeof to->why);
    if (!info || !p)
        return bad(&why, ATTN_ERR_ARG, "info and p must not be NULL");
    if (info->compute_units < 1)
        return bad(&why, ATTN_ERR_ARG, "info.compute_units must be at least 1");
    status = attn_problem_of(p, &pr, to->why, sizeof to->why);
    if (status)
        return status;
    limits = limits_of(info, info->exact);
    pl = plan_device(&pr, &limits, 0);
    if (refuse_unknown(walk_fields(&pr.p), &why))
        return ATTN_OK;
    fault = plan_fault(&pr, &limits, &pl);
    put(&why, fault ? fault : "ok");
    if (fault)
        return ATTN_OK;
    to->runs = 1;
    show_plan(&pr, &pl, to);
    return ATTN_OK;
}
