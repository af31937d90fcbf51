/* src/opencl/run.c - the kernels of a call, in order.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "bind.c"

/* Descriptions that lie behind the session in the workspace: sequences, then tiles. */
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

static void describe_call(session *s)
{
    const cl_flags flags = CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR;
    describe_sequences(s->pr, s->numbers, sequences_of(s));
    if (s->pl.tiles)
        describe_tiles(s->pr, &s->pl, tiles_of(s));
    s->numbers_buffer = new_buffer(s, flags, sizeof s->numbers, s->numbers, "memory for numbers");
    s->sequences =
        new_buffer(s, flags, s->pr->p.batch * S_COUNT * 8, sequences_of(s), "memory for sequences");
    if (s->pl.tiles)
        s->tiles =
            new_buffer(s, flags, s->pl.tiles * TILE_COUNT * 4, tiles_of(s), "memory for tiles");
}

/* The programs of rows and of the textbook do not depend on tiles. */
static variant simple_variant(const session *s, int part)
{
    variant v = s->pl.forward;
    v.part = part;
    v.kv_type = MIXED;
    v.rows = v.columns = 64;
    v.pairs = 1;
    return v;
}

/* OUTPUTS in kernels.cl, and the tiles. */
static void add_results(launch *l)
{
    int out;
    for (out = OUT_O; out <= OUT_STATE_O; out++)
        add_memory(l, l->s->array[out].memory);
    add_memory(l, l->s->tiles);
}

static void run_tiled(session *s)
{
    const size_t local[3] = { CL_TX, CL_TY, 1 }, row_local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { (size_t)s->pl.groups * CL_TX, CL_TY, 1 };
    const int64_t rows = s->pl.tiles * s->pr->p.num_heads_kv * s->pl.forward.rows;
    const size_t row_global[3] = { (size_t)rows * CL_ROW_GROUP, 1, 1 };
    const cl_handle pending =
        new_buffer(s, CL_MEM_READ_WRITE, s->pl.pending_bytes, NULL, "memory for states");
    const cl_handle parts =
        new_buffer(s, CL_MEM_READ_WRITE, s->pl.parts_bytes, NULL, "memory for parts");
    const variant merge = simple_variant(s, PART_ROWS);
    launch l;
    l = open_launch(s, &s->pl.forward, "forward");
    add_results(&l);
    add_memory(&l, pending);
    add_memory(&l, parts);
    close_launch(&l, "forward", global, local);
    if (s->pl.parts == 1)
        return;
    l = open_launch(s, &merge, "merge_parts");
    add_results(&l);
    add_memory(&l, parts);
    close_launch(&l, "merge_parts", row_global, row_local);
}

typedef struct naive_head {
    cl_handle matrix, factors;
    int64_t b, head;
    attn_sequence seq;
} naive_head;

static launch open_naive(session *s, const naive_head *at, const char *name)
{
    const variant v = simple_variant(s, PART_NAIVE);
    launch l = open_launch(s, &v, name);
    add_int(&l, at->b);
    add_int(&l, at->head);
    add_int(&l, at->seq.kv_len);
    add_memory(&l, at->matrix);
    if (strcmp(name, "naive_scores") != 0)
        add_memory(&l, at->factors);
    return l;
}

static size_t whole_groups(int64_t items)
{
    return (size_t)round_up(items, CL_ROW_GROUP);
}

static void run_naive_head(session *s, const naive_head *at)
{
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 }, rows = (size_t)at->seq.q_len;
    const size_t pairs[3] = { whole_groups(at->seq.kv_len), rows, 1 };
    const size_t queries[3] = { whole_groups(at->seq.q_len), 1, 1 };
    const size_t values[3] = { whole_groups(s->pr->p.head_dim_v), rows, 1 };
    launch l;
    if (at->seq.kv_len) {
        l = open_naive(s, at, "naive_scores");
        close_launch(&l, "naive_scores", pairs, local);
    }
    l = open_naive(s, at, "naive_softmax");
    add_memory(&l, s->array[OUT_LSE].memory);
    close_launch(&l, "naive_softmax", queries, local);
    if (s->pr->p.o.data) {
        l = open_naive(s, at, "naive_values");
        add_memory(&l, s->array[OUT_O].memory);
        close_launch(&l, "naive_values", values, local);
    }
}

static void run_naive(session *s)
{
    const attn_params *p = &s->pr->p;
    naive_head at;
    at.matrix = new_buffer(s, CL_MEM_READ_WRITE, matrix_bytes(s->pr), NULL, "memory for logits");
    at.factors = new_buffer(s, CL_MEM_READ_WRITE, 4 * s->pr->max_q_len, NULL, "memory for sums");
    for (at.b = 0; at.b < p->batch; at.b++) {
        at.seq = attn_sequence_of(s->pr, at.b);
        for (at.head = 0; at.head < p->num_heads_q && at.seq.q_len > 0; at.head++)
            run_naive_head(s, &at);
    }
}

static void run_logits(session *s)
{
    const attn_params *p = &s->pr->p;
    const variant v = simple_variant(s, PART_ROWS);
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { (size_t)p->logits.num_rows * CL_ROW_GROUP, (size_t)p->num_heads_q,
                               (size_t)p->batch };
    cl_handle list = NULL;
    launch l;
    if (!s->array[OUT_LOGITS].memory)
        return;
    if (p->logits.rows)
        list = new_buffer(s, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, p->logits.num_rows * 4,
                          (void *)(uintptr_t)p->logits.rows, "memory for a list of rows");
    l = open_launch(s, &v, "logits");
    add_memory(&l, list);
    add_memory(&l, s->array[OUT_LOGITS].memory);
    close_launch(&l, "logits", global, local);
}

/* What the call waits for, and what is waited for at its end. */
static void await_inputs(session *s)
{
    if (s->call->num_wait > 0 && !s->call->wait)
        has_failed(s, INVALID_VALUE, "call.wait is NULL");
    if (!s->error && s->call->num_wait > 0)
        has_failed(s,
                   s->gpu->cl.clEnqueueBarrierWithWaitList(s->queue, (cl_uint)s->call->num_wait,
                                                           s->call->wait, NULL),
                   "waiting for the caller's events");
}

static void finish_session(session *s)
{
    int out;
    for (out = OUT_O; out < ARRAY_COUNT && !s->call->event; out++)
        fetch_array(s, &s->array[out]);
    if (!s->error && s->call->event)
        has_failed(s, s->gpu->cl.clEnqueueMarkerWithWaitList(s->queue, 0, NULL, s->call->event),
                   "the event of the end");
    if (!s->error && s->call->event)
        has_failed(s, s->gpu->cl.clFlush(s->queue), "handing over the kernels");
    else
        has_failed(s, s->gpu->cl.clFinish(s->queue), "the end of the kernels");
    if (s->call->times)
        read_times(s);
    while (s->buffer_count > 0)
        s->gpu->cl.clReleaseMemObject(s->buffers[--s->buffer_count]);
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

/* A session at the start of the workspace, or NULL: it is too small. */
static session *open_session(const attn_opencl_call *how, const attn_problem *pr,
                             const device_plan *pl, void *workspace, size_t bytes)
{
    char *base = (char *)workspace;
    session *s;
    if (!workspace || (int64_t)bytes < session_bytes(pr, pl))
        return NULL;
    base = align_memory(base);
    s = (session *)(void *)base;
    memset(s, 0, sizeof *s);
    s->gpu = how->gpu;
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

static attn_status run_within(const device_limits *limits, const attn_opencl_call *how,
                              const attn_problem *pr, void *workspace, size_t bytes)
{
    const device_plan pl = plan_device(pr, limits);
    session *s = open_session(how, pr, &pl, workspace, bytes);
    if (!s)
        return ATTN_ERR_WORKSPACE;
    bind_arrays(s, NULL); /* waiting for the caller's events must not hold copies of the host's */
    describe_call(s);
    await_inputs(s);
    if (runs(&pl, PART_NAIVE))
        run_naive(s);
    if (runs(&pl, PART_FORWARD))
        run_tiled(s);
    run_logits(s);
    finish_session(s);
    return report(s);
}

static attn_status run_call(const attn_backend *self, const attn_problem *pr, void *workspace,
                            size_t bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    return run_within(&limits, how, pr, workspace, bytes);
}

static attn_status call_workspace(const attn_backend *self, const attn_problem *pr, size_t *bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    const device_plan pl = plan_device(pr, &limits);
    *bytes = (size_t)session_bytes(pr, &pl);
    return ATTN_OK;
}
