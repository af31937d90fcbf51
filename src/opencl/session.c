/* src/opencl/session.c - a session: one call, in the caller's workspace: buffers, kernels, times, errors.
 * SPDX-License-Identifier: MIT
 *
 * After the first error nothing more is done.
 */
#pragma once

#include "describe.c"
#include "pool.c"

enum { MOST_BUFFERS = ARRAY_COUNT + 8 };

/* A place says where an array lies: in the caller's buffer, in the host's memory, in a copy of its
 * bytes, in a copy of what the call uses of it. */
enum place { NAMED, IN_PLACE, WHOLE_COPY, PACKED_COPY };

/* A bound array is one that the device has for the time of the call. */
typedef struct bound {
    array host;
    cl_handle memory;  /* NULL = it is not there */
    const void *svm;   /* of the caller, which memory stands for */
    char *first;       /* byte of the host's array */
    int64_t bytes;     /* of memory that is ours */
    int64_t offset;    /* bytes to element 0 */
    int64_t stride[4]; /* on the device */
    int place;         /* enum place */
} bound;

/* An owned buffer goes to the pool when the call is over, or is released: bytes is 0. */
typedef struct owned {
    cl_handle memory;
    int64_t bytes;
} owned;

/* A timed span goes from the start of one command to the end of another, or of the same. */
enum spent { TO_DEVICE, COMPUTE, TO_HOST };
typedef struct timed {
    cl_handle first, last;
    int on;
} timed;
enum { MOST_TIMED = 64 };

typedef struct session {
    attn_opencl *gpu;
    const cl_api *cl;
    const attn_opencl_call *call;
    const attn_problem *pr;
    device_plan pl;
    cl_handle queue;
    cl_int error;
    const char *failed; /* what the error happened in */
    int buffer_count;
    owned buffers[MOST_BUFFERS];
    cl_handle numbers_buffer, sequences, tiles;
    bound array[ARRAY_COUNT];
    int64_t numbers[N_COUNT];
    int timed_count;
    timed timed[MOST_TIMED]; /* commands whose times nobody has read yet */
} session;

static int has_failed(session *s, cl_int error, const char *what)
{
    if (error && !s->error) {
        s->error = error;
        s->failed = what;
    }
    return s->error != CL_SUCCESS;
}

/* ---- times, by the events of commands */

static double seconds_at(const session *s, cl_handle event, cl_uint what)
{
    uint64_t nanoseconds = 0;
    if (s->cl->clGetEventProfilingInfo(event, what, sizeof nanoseconds, &nanoseconds, NULL))
        return 0;
    return (double)nanoseconds * 1e-9;
}

/* span_seconds measures a span. NVIDIA's driver says that a mapping which copies nothing began at
 * 0. */
static double span_seconds(const session *s, const timed *t)
{
    double from = seconds_at(s, t->first, CL_PROFILING_COMMAND_START);
    if (from == 0)
        from = seconds_at(s, t->last, CL_PROFILING_COMMAND_START);
    return from > 0 ? seconds_at(s, t->last, CL_PROFILING_COMMAND_END) - from : 0;
}

/* read_times waits for the commands and counts their times. */
static void read_times(session *s)
{
    attn_opencl_times *to = s->call->times;
    if (s->timed_count > 0)
        has_failed(s, s->cl->clFinish(s->queue), "waiting for times");
    while (s->timed_count > 0) {
        const timed *t = &s->timed[--s->timed_count];
        double *const sums[] = { &to->to_device, &to->compute, &to->to_host }; /* by enum spent */
        *sums[t->on] += span_seconds(s, t);
        s->cl->clReleaseEvent(t->first);
        if (t->last != t->first)
            s->cl->clReleaseEvent(t->last);
    }
}

/* begin_span tells where the next command puts its event, which begins a span, or gives NULL where
 * nobody asks for times. */
static cl_handle *begin_span(session *s, int on)
{
    timed *t;
    if (!s->call->times)
        return NULL;
    if (s->timed_count == MOST_TIMED)
        read_times(s);
    t = &s->timed[s->timed_count];
    t->first = t->last = NULL;
    t->on = on;
    return &t->first;
}

/* end_span tells where the command that ends the span puts its event. */
static cl_handle *end_span(session *s)
{
    return s->call->times ? &s->timed[s->timed_count].last : NULL;
}

/* keep_span keeps the span when its commands are enqueued. */
static void keep_span(session *s)
{
    timed *t = &s->timed[s->timed_count];
    if (!s->call->times)
        return;
    if (!t->last)
        t->last = t->first;
    if (t->first)
        s->timed_count++;
}

/* own keeps a buffer until the end of the call. */
static cl_handle own(session *s, cl_handle memory, int64_t pooled)
{
    s->buffers[s->buffer_count].memory = memory;
    s->buffers[s->buffer_count++].bytes = pooled;
    return memory;
}

/* new_buffer makes a buffer of the host's memory for the time of this call, or gives NULL after an
 * error. */
static cl_handle new_buffer(session *s, cl_flags flags, int64_t bytes, void *host, const char *what)
{
    cl_int error = s->error;
    cl_handle memory = NULL;
    if (!error)
        memory = s->cl->clCreateBuffer(s->gpu->context, flags, (size_t)bytes, host, &error);
    return has_failed(s, error, what) ? NULL : own(s, memory, 0);
}

/* new_memory gets memory of the device for the time of this call, or gives NULL after an error. */
static cl_handle new_memory(session *s, int64_t bytes, const char *what)
{
    const int64_t rounded = pooled_bytes(bytes), pooled = is_pooled(s->gpu, rounded) ? rounded : 0;
    cl_handle memory = pooled && !s->error ? take_pooled(s->gpu, pooled, s->queue) : NULL;
    cl_int error = s->error;
    if (!memory && !error)
        memory = s->cl->clCreateBuffer(s->gpu->context, CL_MEM_READ_WRITE,
                                       (size_t)(pooled ? pooled : max64(bytes, 4)), NULL, &error);
    return has_failed(s, error, what) ? NULL : own(s, memory, pooled);
}

/* disown gives up what the call owned. After an error nobody knows what commands still use it. */
static void disown(session *s)
{
    const cl_handle queue = s->call->event ? s->queue : NULL;
    while (s->buffer_count > 0) {
        const owned *b = &s->buffers[--s->buffer_count];
        if (b->bytes && !s->error)
            give_pooled(s->gpu, b->memory, b->bytes, queue);
        else
            s->cl->clReleaseMemObject(b->memory);
    }
}

static void *map_buffer(session *s, cl_handle memory, cl_flags flags, int64_t bytes)
{
    const int on = flags == CL_MAP_READ ? TO_HOST : TO_DEVICE;
    cl_int error = s->error;
    void *at = NULL;
    if (!error)
        at = s->cl->clEnqueueMapBuffer(s->queue, memory, 1, flags, 0, (size_t)bytes, 0, NULL,
                                       begin_span(s, on), &error);
    return has_failed(s, error, "mapping an array") ? NULL : at;
}

static void unmap_buffer(session *s, cl_handle memory, void *at)
{
    if (!at)
        return;
    has_failed(s, s->cl->clEnqueueUnmapMemObject(s->queue, memory, at, 0, NULL, end_span(s)),
               "unmapping an array");
    keep_span(s);
}

/* transfer copies all bytes of an array, which are the caller's again when it returns. */
static void transfer(session *s, const bound *b, int back)
{
    cl_handle *const done = begin_span(s, back ? TO_HOST : TO_DEVICE);
    cl_int error = s->error;
    if (!error && back)
        error = s->cl->clEnqueueReadBuffer(s->queue, b->memory, 1, 0, (size_t)b->bytes, b->first, 0,
                                           NULL, done);
    else if (!error)
        error = s->cl->clEnqueueWriteBuffer(s->queue, b->memory, 1, 0, (size_t)b->bytes, b->first,
                                            0, NULL, done);
    if (!has_failed(s, error, "copying an array"))
        keep_span(s);
}

/* ---- kernels */

/* A launch is a kernel that gets its arguments one after the other. */
typedef struct launch {
    session *s;
    const char *name;
    cl_handle kernel;
    cl_uint arguments;
} launch;

/* The items of a work-group. */
static const size_t one_item[] = { 1, 1 };
static const size_t row_group[] = { CL_ROW_GROUP, 1 };
static const size_t tile_group[] = { CL_TX, CL_TY };
static const size_t few_rows_group[] = { CL_TX, FEW_ROWS };

static const size_t *group_of_tile(const variant *v)
{
    return v->rows == FEW_ROWS ? few_rows_group : tile_group;
}

static int64_t row_groups(int64_t items)
{
    return ceil_div(items, CL_ROW_GROUP);
}

static void add_argument(launch *l, size_t bytes, const void *value)
{
    if (!l->s->error)
        has_failed(l->s, l->s->cl->clSetKernelArg(l->kernel, l->arguments++, bytes, value),
                   "setting an argument");
}

/* A kernel never gets NULL: numbers stand for what it does not read. */
static void add_memory(launch *l, cl_handle memory)
{
    const cl_handle given = memory ? memory : l->s->numbers_buffer;
    add_argument(l, sizeof given, &given);
}

static void add_arrays(launch *l, int first, int last)
{
    for (; first <= last; first++)
        add_memory(l, l->s->array[first].memory);
}

static void add_int(launch *l, int64_t value)
{
    const cl_int given = (cl_int)value;
    add_argument(l, sizeof given, &given);
}

static launch open_launch(session *s, const variant *v, const char *name)
{
    launch l = { s, name, NULL, 0 };
    cl_int error = s->error;
    cl_handle program = NULL;
    if (!error)
        program = find_program(s->gpu, v, &error);
    if (!error)
        l.kernel = s->cl->clCreateKernel(program, name, &error);
    if (has_failed(s, error, name))
        return l;
    add_memory(&l, s->numbers_buffer);
    add_memory(&l, s->sequences);
    add_arrays(&l, IN_Q, IN_SINKS);
    return l;
}

/* close_launch enqueues the kernel with x * y * z work-groups and releases it. */
static void close_launch(launch *l, const size_t group[2], int64_t x, int64_t y, int64_t z)
{
    session *s = l->s;
    const size_t local[3] = { group[0], group[1], 1 };
    const size_t global[3] = { (size_t)x * group[0], (size_t)y * group[1], (size_t)z };
    if (!s->error) {
        has_failed(s,
                   s->cl->clEnqueueNDRangeKernel(s->queue, l->kernel, 3, NULL, global, local, 0,
                                                 NULL, begin_span(s, COMPUTE)),
                   l->name);
        keep_span(s);
        if (s->call->times)
            s->call->times->kernels++;
    }
    release(s->cl->clReleaseKernel, l->kernel);
}
