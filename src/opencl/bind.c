/* src/opencl/bind.c - where arrays of a call lie on the device, and how they get there and back.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "session.c"

/* named_buffer finds the caller's buffer that has the array, or gives NULL. */
static const attn_opencl_buffer *named_buffer(const attn_opencl_call *how, const void *data)
{
    int i;
    for (i = 0; how->buffers && i < how->num_buffers; i++) {
        const attn_opencl_buffer *b = &how->buffers[i];
        if ((uintptr_t)data >= (uintptr_t)b->address &&
            (uintptr_t)data - (uintptr_t)b->address < b->bytes)
            return b;
    }
    return NULL;
}

/* memory_of gives the caller's memory. A buffer of SVM has its storage (OpenCL 2.0, clCreateBuffer
 * with CL_MEM_USE_HOST_PTR), but two of the same bytes would be undefined: one serves all its
 * arrays. */
static cl_handle memory_of(session *s, const attn_opencl_buffer *named)
{
    int64_t bytes = 0;
    int i;
    if (!named->svm)
        return named->mem;
    for (i = 0; i < ARRAY_COUNT; i++)
        if (s->array[i].svm == named->mem)
            return s->array[i].memory;
    for (i = 0; i < s->call->num_buffers; i++) {
        const attn_opencl_buffer *b = &s->call->buffers[i];
        if (b->svm && b->mem == named->mem)
            bytes = max64(bytes, (int64_t)(b->offset + b->bytes));
    }
    return new_buffer(s, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, named->mem, "using SVM");
}

/* bytes_into counts the bytes from the caller's address to the array's element 0. */
static int64_t bytes_into(const attn_opencl_buffer *named, const array *a)
{
    return (int64_t)((uintptr_t)a->data - (uintptr_t)named->address);
}

/* fits_named returns whether the array lies where the caller's buffer says, and that is in its
 * memory. */
static int fits_named(session *s, const attn_opencl_buffer *named, const array *a,
                      const array_bytes *all)
{
    const int64_t start = bytes_into(named, a), before = all->offset;
    const int64_t element = a->bits < 8 ? 1 : a->bits / 8, alignment = element & -element;
    size_t room = named->offset + named->bytes;
    const char *fault = NULL;
    if (!named->mem)
        fault = "call.buffers: mem is NULL";
    else if (start - before < 0 || start - before + all->bytes > (int64_t)named->bytes)
        fault = "call.buffers: an array exceeds the bytes of its buffer";
    else if (((int64_t)named->offset + start) % alignment)
        fault = "call.buffers: offset is no multiple of the alignment of an array's elements";
    else if (!named->svm &&
             s->cl->clGetMemObjectInfo(named->mem, CL_MEM_SIZE, sizeof room, &room, NULL))
        fault = "call.buffers: mem is no cl_mem";
    else if (room < named->offset || room - named->offset < named->bytes)
        fault = "call.buffers: offset + bytes exceed the cl_mem";
    return !has_failed(s, fault ? INVALID_VALUE : CL_SUCCESS, fault);
}

/* move_copy brings what the call reads of an array to its copy, or what it has written back. Where
 * an array is used in place, mapping it is enough. */
static void move_copy(session *s, const bound *b, int back)
{
    const cl_flags flags = back ? CL_MAP_READ : CL_MAP_WRITE_INVALIDATE_REGION;
    array_copy c = { &b->host, b->stride, NULL, back };
    if (b->place == WHOLE_COPY) {
        transfer(s, b, back);
        return;
    }
    c.at = (char *)map_buffer(s, b->memory, flags, b->bytes);
    if (c.at && b->place == PACKED_COPY)
        copy_array(s->pr, &c);
    unmap_buffer(s, b->memory, c.at);
}

/* bind_array makes the array an argument of kernels. Its offset becomes numbers[number], and its
 * first strides, which kernels count in single numbers, those behind it. */
static void bind_array(session *s, int which, const array *a, int number, int strides)
{
    const attn_opencl_buffer *named = named_buffer(s->call, a->data);
    const int written = which >= OUT_O;
    const cl_flags flags = written ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY;
    bound *b = &s->array[which];
    array_bytes all;
    int axis;
    if (s->error || !a->data)
        return;
    all = bytes_of_array(a);
    if (all.elements == 0 || (named && !fits_named(s, named, a, &all)))
        return;
    b->host = *a;
    memcpy(b->stride, a->stride, sizeof b->stride);
    if (named) {
        b->place = NAMED;
        b->memory = memory_of(s, named);
        b->svm = named->svm ? named->mem : NULL;
        b->offset = (int64_t)named->offset + bytes_into(named, a);
    } else if (s->gpu->info.shares_memory && (written ? all.between == 0 : all.between <= 0)) {
        b->place = IN_PLACE;
        b->bytes = all.bytes;
        b->memory = new_buffer(s, flags | CL_MEM_USE_HOST_PTR, all.bytes, all.first,
                               "using an array in place");
        b->offset = all.offset;
    } else {
        const int whole = is_whole(s->pr, a);
        b->place = whole ? WHOLE_COPY : PACKED_COPY;
        b->first = all.first;
        b->bytes = whole ? all.bytes : pack_strides(a, b->stride);
        b->offset = whole ? all.offset : 0;
        b->memory = new_memory(s, b->bytes, "memory for an array");
        if (!written)
            move_copy(s, b, 0);
    }
    s->numbers[number] = b->offset;
    for (axis = 0; axis < strides; axis++)
        s->numbers[number + 1 + axis] = b->stride[axis] * a->unit;
}

/* fetch_outputs waits for the device and brings what it has written to the host. */
static void fetch_outputs(session *s)
{
    int out;
    for (out = OUT_O; out < ARRAY_COUNT; out++)
        if (!s->error && s->array[out].memory && s->array[out].place != NAMED)
            move_copy(s, &s->array[out], 1);
}

static void bind_fields(session *s, field_walk w, const asked *all, int gradients)
{
    while (next_field(&w)) {
        const int which = w.row ? array_in_call(w.row->array, &s->pr->p, gradients) : NO_ARRAY;
        array a;
        int strides = 0;
        if (which == NO_ARRAY || !field_data(w.f, w.base))
            continue;
        a = array_of(w.f, w.base, all, w.row->reach);
        while (strides < 4 && w.f->stride[strides])
            strides++;
        bind_array(s, which, &a, w.row->number, strides);
    }
}

/* bind_arrays binds those of attn_forward where g is NULL. */
static void bind_arrays(session *s, const attn_gradient_call *g)
{
    const asked all = asked_of(s->pr);
    bind_fields(s, walk_fields(&s->pr->p), &all, g != NULL);
    if (g) {
        const array bias = sums_array(&g->bias), slopes = sums_array(&g->slopes);
        bind_fields(s, walk_gradient_fields(&g->g), &all, 1);
        bind_array(s, OUT_DBIAS, &bias, N_DBIAS, 4);
        bind_array(s, OUT_DSLOPES, &slopes, N_DSLOPES, 4);
    }
}
