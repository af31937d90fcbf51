/* src/opencl/call.c - one call on the device, from its arrays to its end.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "gradients.c"

/* Sequences and then tiles are described behind the session in the workspace. */
static int64_t *sequences_of(session *s)
{
    return (int64_t *)(void *)((char *)s + round_up((int64_t)sizeof *s, ALIGNMENT));
}

static int32_t *tiles_of(session *s)
{
    return (int32_t *)(void *)(sequences_of(s) + s->pr->p.batch * S_COUNT);
}

static int64_t session_bytes(const attn_problem *pr, const device_plan *pl)
{
    return ALIGNMENT + round_up((int64_t)sizeof(session), ALIGNMENT) +
           pr->p.batch * S_COUNT * (int64_t)sizeof(int64_t) +
           pl->tiles * TILE_COUNT * (int64_t)sizeof(int32_t);
}

/* send_description has the device copy what lies in the workspace, which stays until the end. */
static cl_handle send_description(session *s, const void *from, int64_t bytes, const char *what)
{
    const cl_handle memory = new_memory(s, bytes, what);
    if (memory)
        has_failed(
            s,
            s->cl->clEnqueueWriteBuffer(s->queue, memory, 0, 0, (size_t)bytes, from, 0, NULL, NULL),
            what);
    return memory;
}

static void describe_call(session *s)
{
    describe_sequences(s->pr, s->numbers, sequences_of(s));
    s->numbers_buffer = send_description(s, s->numbers, sizeof s->numbers, "memory for numbers");
    s->sequences =
        send_description(s, sequences_of(s), s->pr->p.batch * S_COUNT * 8, "memory for sequences");
    if (!s->pl.tiles)
        return;
    describe_tiles(s->pr, &s->pl, tiles_of(s));
    s->tiles = send_description(s, tiles_of(s), s->pl.tiles * TILE_COUNT * 4, "memory for tiles");
}

/* await_inputs has the device wait for the caller's events. */
static void await_inputs(session *s)
{
    const int n = s->call->num_wait;
    if (n > 0 && !s->call->wait)
        has_failed(s, INVALID_VALUE, "call.wait is NULL");
    if (!s->error && n > 0)
        has_failed(s,
                   s->cl->clEnqueueBarrierWithWaitList(s->queue, (cl_uint)n, s->call->wait, NULL),
                   "waiting for the caller's events");
}

static void finish_session(session *s)
{
    if (!s->call->event)
        fetch_outputs(s);
    else if (!s->error)
        has_failed(s, s->cl->clEnqueueMarkerWithWaitList(s->queue, 0, NULL, s->call->event),
                   "the event of the end");
    if (!s->error && s->call->event)
        has_failed(s, s->cl->clFlush(s->queue), "handing over the kernels");
    else
        has_failed(s, s->cl->clFinish(s->queue), "the end of the kernels");
    if (s->call->times)
        read_times(s);
    disown(s);
}

static attn_status report(const session *s)
{
    char sentence[200];
    text t = text_in(sentence, sizeof sentence);
    if (!s->error)
        return ATTN_OK;
    explain_error(&t, s->failed, s->error);
    say(s->gpu, ATTN_LOG_WARNING, sentence);
    if (s->pr->p.log)
        s->pr->p.log(s->pr->p.log_user, ATTN_LOG_WARNING, sentence);
    return ATTN_ERR_CALLBACK;
}

/* open_session makes a session at the start of the workspace, or gives NULL: it is too small. */
static session *open_session(const attn_opencl_call *how, const attn_problem *pr,
                             const device_plan *pl, void *workspace, size_t bytes)
{
    session *s;
    if (!workspace || (int64_t)bytes < session_bytes(pr, pl))
        return NULL;
    s = (session *)(void *)align_memory(workspace);
    memset(s, 0, sizeof *s);
    s->gpu = how->gpu;
    s->cl = &how->gpu->cl;
    s->call = how;
    s->pr = pr;
    s->pl = *pl;
    s->queue = how->queue ? how->queue : how->gpu->queue;
    if (how->times)
        memset(how->times, 0, sizeof *how->times);
    if (how->queue && !is_in_order(s->gpu, s->queue))
        has_failed(s, INVALID_QUEUE, "call.queue must take its commands in order");
    fill_numbers(pr, pl, s->numbers);
    return s;
}

/* run_within runs attn_forward where g is NULL, else attn_backward. Arrays are copied before the
 * device waits for the caller's events: those must not hold copies of the host's. */
static attn_status run_within(const device_limits *limits, const attn_opencl_call *how,
                              const attn_problem *pr, const attn_gradient_call *g, void *workspace,
                              size_t bytes)
{
    const device_plan pl = plan_device(pr, limits, g != NULL);
    session *s = open_session(how, pr, &pl, workspace, bytes);
    if (!s)
        return ATTN_ERR_WORKSPACE;
    if (g)
        fill_gradient_numbers(&pr->p, &g->g, &pl, s->numbers);
    bind_arrays(s, g);
    fill_rotation_numbers(&pr->p, &pl, s->numbers);
    describe_call(s);
    await_inputs(s);
    if (g)
        run_gradients(s, g);
    else
        run_forward(s);
    finish_session(s);
    return report(s);
}

static attn_status run_gradient_call(const attn_backend *self, const attn_problem *pr,
                                     const attn_gradient_call *g, void *workspace, size_t bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    return run_within(&how->gpu->limits, how, pr, g, workspace, bytes);
}

static attn_status run_call(const attn_backend *self, const attn_problem *pr, void *workspace,
                            size_t bytes)
{
    return run_gradient_call(self, pr, NULL, workspace, bytes);
}

static attn_status gradient_workspace(const attn_backend *self, const attn_problem *pr,
                                      const attn_gradient_call *g, size_t *bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_plan pl = plan_device(pr, &how->gpu->limits, g != NULL);
    *bytes = (size_t)session_bytes(pr, &pl);
    return ATTN_OK;
}

static attn_status call_workspace(const attn_backend *self, const attn_problem *pr, size_t *bytes)
{
    return gradient_workspace(self, pr, NULL, bytes);
}
