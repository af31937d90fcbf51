/* src/opencl/arrays.c - arrays of the host or the caller's, to the device and back.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "session.c"

static array make_array(const void *data, int bits, int64_t n0, int64_t n1, int64_t n2, int64_t n3,
                        int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    array a;
    a.data = data;
    a.bits = bits;
    a.count[0] = n0;
    a.count[1] = n1;
    a.count[2] = n2;
    a.count[3] = n3;
    a.stride[0] = s0;
    a.stride[1] = s1;
    a.stride[2] = s2;
    a.stride[3] = s3;
    return a;
}

static int type_bits(int dtype)
{
    return dtype == ATTN_F32 ? 32 : 16;
}

/* Elements lo..hi relative to data are in its hull; returns how many elements it has. */
static int64_t hull_of(const array *a, int64_t *lo, int64_t *hi)
{
    int64_t elements = 1;
    int axis;
    *lo = *hi = 0;
    for (axis = 0; axis < 4; axis++) {
        const int64_t reach = (a->count[axis] - 1) * a->stride[axis];
        if (a->count[axis] == 0)
            return 0;
        *lo += min64(reach, 0);
        *hi += max64(reach, 0);
        elements *= a->stride[axis] ? a->count[axis] : 1;
    }
    return elements;
}

/* Row-major without gaps; axes that are broadcast stay so. Rows of bits begin at whole bytes.
 * Returns the bytes needed. */
static int64_t pack_strides(const array *a, int64_t packed[4])
{
    int64_t elements = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        packed[axis] = a->stride[axis] ? elements : 0;
        elements *= a->stride[axis] ? a->count[axis] : 1;
        if (axis == 3 && a->bits == 1)
            elements = round_up(elements, 8);
    }
    return elements * a->bits / 8;
}

static void copy_bits(const array *a, uint8_t *to, int64_t to_at, int64_t from_at)
{
    const uint8_t *from = (const uint8_t *)a->data;
    const int64_t n = a->stride[3] ? a->count[3] : min64(a->count[3], 1);
    int64_t i;
    for (i = 0; i < n; i++, from_at += a->stride[3], to_at++) {
        const int64_t byte = from_at >= 0 ? from_at / 8 : -((7 - from_at) / 8);
        const int bit = from[byte] >> (from_at - 8 * byte) & 1;
        to[to_at / 8] = (uint8_t)((to[to_at / 8] & ~(1 << to_at % 8)) | bit << to_at % 8);
    }
}

/* One row of the last axis, packed. */
static void copy_row(const array *a, char *to, int64_t to_at, int64_t from_at)
{
    const int64_t bytes = a->bits / 8, n = a->stride[3] ? a->count[3] : min64(a->count[3], 1);
    const char *from = (const char *)a->data;
    int64_t i;
    if (a->bits == 1)
        copy_bits(a, (uint8_t *)to, to_at, from_at);
    else if (a->stride[3] == 1 || n <= 1)
        memcpy(to + to_at * bytes, from + from_at * bytes, (size_t)(n * bytes));
    else
        for (i = 0; i < n; i++)
            memcpy(to + (to_at + i) * bytes, from + (from_at + i * a->stride[3]) * bytes,
                   (size_t)bytes);
}

/* Copies what a call needs of an array. */
typedef void (*fill_fn)(const session *s, const array *a, const int64_t packed[4], char *to);

static void fill_all(const session *s, const array *a, const int64_t packed[4], char *to)
{
    int64_t n[3], x, y, z;
    int axis;
    (void)s;
    for (axis = 0; axis < 3; axis++)
        n[axis] = a->stride[axis] ? a->count[axis] : min64(a->count[axis], 1);
    for (x = 0; x < n[0]; x++)
        for (y = 0; y < n[1]; y++)
            for (z = 0; z < n[2]; z++)
                copy_row(a, to, x * packed[0] + y * packed[1] + z * packed[2],
                         x * a->stride[0] + y * a->stride[1] + z * a->stride[2]);
}

/* Queries in use: padded ones are not read. */
static void fill_queries(const session *s, const array *a, const int64_t packed[4], char *to)
{
    const attn_params *p = &s->pr->p;
    int64_t b, h, i;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (h = 0; h < p->num_heads_q; h++)
            for (i = seq.q_row; i < seq.q_row + seq.q_len; i++)
                copy_row(a, to, b * packed[0] + h * packed[1] + i * packed[2],
                         b * a->stride[0] + h * a->stride[1] + i * a->stride[2]);
    }
}

/* Keys in use, wherever they lie. */
static void fill_keys(const session *s, const array *a, const int64_t packed[4], char *to)
{
    const attn_params *p = &s->pr->p;
    const attn_rows *rows = &p->kv_rows;
    int64_t b, h, j;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (j = 0; j < seq.kv_len; j++) {
            int64_t row = seq.kv_row + j, entry = b;
            if (rows->ring && row >= rows->ring)
                row -= rows->ring;
            if (rows->page_size) {
                entry = rows->table[b * rows->table_stride + row / rows->page_size];
                row %= rows->page_size;
            }
            for (h = 0; h < p->num_heads_kv; h++)
                copy_row(a, to, entry * packed[0] + h * packed[1] + row * packed[2],
                         entry * a->stride[0] + h * a->stride[1] + row * a->stride[2]);
        }
    }
}

/* The caller's buffer that has the array, or NULL. */
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

/* The caller's memory. A buffer of SVM has its storage (OpenCL 2.0, clCreateBuffer with
 * CL_MEM_USE_HOST_PTR), but two of the same bytes would be undefined: one serves all its arrays. */
static cl_handle memory_of(session *s, const attn_opencl_buffer *named)
{
    shared_array *found = s->shared;
    size_t bytes = 0;
    int i;
    if (!named->svm)
        return named->mem;
    while (found < s->shared + s->shared_count && found->of != named->mem)
        found++;
    if (found == s->shared + s->shared_count) {
        for (i = 0; i < s->call->num_buffers; i++) {
            const attn_opencl_buffer *b = &s->call->buffers[i];
            if (b->svm && b->mem == named->mem && b->offset + b->bytes > bytes)
                bytes = b->offset + b->bytes;
        }
        found->of = named->mem;
        found->memory = new_buffer(s, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, (int64_t)bytes,
                                   named->mem, "using SVM");
        s->shared_count++;
    }
    return found->memory;
}

/* Bytes from..from+bytes of the hull, and where element 0 is in it. */
static char *hull_bytes(const array *a, int64_t lo, int64_t hi, int64_t *bytes, int64_t *offset)
{
    char *data = (char *)(uintptr_t)a->data;
    const int64_t first = a->bits == 1 ? (lo >= 0 ? lo / 8 : -((7 - lo) / 8)) : lo * (a->bits / 8);
    *bytes = a->bits == 1 ? hi / 8 + 1 - first : (hi - lo + 1) * (a->bits / 8);
    *offset = -first;
    return data + first;
}

/* Whether the array lies where the caller's buffer says, and that is in its memory. */
static int fits_named(session *s, const attn_opencl_buffer *named, const array *a, int64_t lo,
                      int64_t hi)
{
    const int64_t start = (int64_t)((uintptr_t)a->data - (uintptr_t)named->address);
    const int64_t element = a->bits < 8 ? 1 : a->bits / 8;
    size_t room = named->offset + named->bytes;
    int64_t bytes, before;
    const char *fault = NULL;
    hull_bytes(a, lo, hi, &bytes, &before);
    if (!named->mem)
        fault = "call.buffers: mem is NULL";
    else if (start - before < 0 || start - before + bytes > (int64_t)named->bytes)
        fault = "call.buffers: an array exceeds the bytes of its buffer";
    else if (((int64_t)named->offset + start) % element)
        fault = "call.buffers: offset is no multiple of an array's element";
    else if (!named->svm &&
             s->gpu->cl.clGetMemObjectInfo(named->mem, CL_MEM_SIZE, sizeof room, &room, NULL))
        fault = "call.buffers: mem is no cl_mem";
    else if (room < named->offset || room - named->offset < named->bytes)
        fault = "call.buffers: offset + bytes exceed the cl_mem";
    return !has_failed(s, fault ? INVALID_VALUE : CL_SUCCESS, fault);
}

/* The input becomes an argument of kernels. numbers: where its offset goes, and its strides
 * behind, as many as the array has axes there. */
static void bind_input(session *s, int which, int number, int strides, const array *a, fill_fn fill)
{
    const attn_opencl_buffer *named = named_buffer(s->call, a->data);
    int64_t lo, hi, bytes, offset = 0, packed[4];
    const int64_t *stride = a->stride, elements = hull_of(a, &lo, &hi);
    int axis;
    if (s->error || !a->data || elements == 0 || (named && !fits_named(s, named, a, lo, hi)))
        return;
    if (named) {
        s->input[which] = memory_of(s, named);
        offset = (int64_t)named->offset + (int64_t)((uintptr_t)a->data - (uintptr_t)named->address);
    } else if (s->gpu->info.shares_memory && elements >= hi - lo + 1) {
        char *from = hull_bytes(a, lo, hi, &bytes, &offset);
        s->input[which] = new_buffer(s, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, bytes, from,
                                     "using an input in place");
    } else {
        void *to;
        bytes = pack_strides(a, packed);
        stride = packed;
        s->input[which] = new_buffer(s, CL_MEM_READ_ONLY, bytes, NULL, "memory for an input");
        to = map_buffer(s, s->input[which], CL_MAP_WRITE_INVALIDATE_REGION, bytes);
        if (to)
            fill(s, a, packed, (char *)to);
        unmap_buffer(s, s->input[which], to);
    }
    s->numbers[number] = offset;
    for (axis = 0; axis < strides; axis++)
        s->numbers[number + 1 + axis] = stride[axis];
}

/* Row (b, h, i) of an output that was copied. */
static void scatter_row(const written *w, const char *from, int64_t b, int64_t h, int64_t i)
{
    const int64_t bytes = w->host.bits / 8, *to = w->host.stride, *at = w->stride;
    memcpy((char *)(uintptr_t)w->host.data + (b * to[0] + h * to[1] + i * to[2]) * bytes,
           from + (b * at[0] + h * at[1] + i * at[2]) * bytes, (size_t)(w->host.count[3] * bytes));
}

/* Rows in use of an output that was copied. */
static void scatter_rows(const session *s, const written *w, const char *from)
{
    const attn_params *p = &s->pr->p;
    int64_t b, h, i;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (h = 0; h < p->num_heads_q; h++)
            for (i = seq.q_row; i < seq.q_row + seq.q_len; i++)
                scatter_row(w, from, b, h, i);
    }
}

/* Chosen rows that exist. */
static void scatter_logits(const session *s, const written *w, const char *from)
{
    const attn_params *p = &s->pr->p;
    int64_t b, h, c;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (c = 0; c < p->logits.num_rows; c++)
            for (h = 0; h < p->num_heads_q; h++)
                if ((p->logits.rows ? p->logits.rows[c] : c) < seq.q_len)
                    scatter_row(w, from, b, h, c);
    }
}

/* All of an array of floats. */
static void scatter_all(const session *s, const written *w, const char *from)
{
    const int64_t *n = w->host.count, *to = w->host.stride, *at = w->stride;
    char *data = (char *)(uintptr_t)w->host.data;
    int64_t x, y, z, i;
    (void)s;
    for (x = 0; x < n[0]; x++)
        for (y = 0; y < n[1]; y++)
            for (z = 0; z < n[2]; z++)
                for (i = 0; i < n[3]; i++)
                    memcpy(data + 4 * (x * to[0] + y * to[1] + z * to[2] + i * to[3]),
                           from + 4 * (x * at[0] + y * at[1] + z * at[2] + i * at[3]), 4);
}

/* Keys in use likewise. */
static void scatter_keys(const session *s, const written *w, const char *from)
{
    const attn_params *p = &s->pr->p;
    int64_t b, h, j;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (h = 0; h < p->num_heads_kv; h++)
            for (j = seq.kv_row; j < seq.kv_row + seq.kv_len; j++)
                scatter_row(w, from, b, h, j);
    }
}

static void bind_output(session *s, int which, int number, int strides, const array *a,
                        scatter_fn scatter)
{
    const attn_opencl_buffer *named = named_buffer(s->call, a->data);
    written *w = &s->output[which];
    int64_t lo, hi, bytes;
    const int64_t elements = hull_of(a, &lo, &hi);
    int axis;
    if (s->error || !a->data || elements == 0 || (named && !fits_named(s, named, a, lo, hi)))
        return;
    w->host = *a;
    w->scatter = scatter;
    memcpy(w->stride, a->stride, sizeof w->stride);
    if (named) {
        w->how = NAMED;
        w->memory = memory_of(s, named);
        w->offset =
            (int64_t)named->offset + (int64_t)((uintptr_t)a->data - (uintptr_t)named->address);
    } else if (s->gpu->info.shares_memory && elements == hi - lo + 1) {
        char *at = hull_bytes(a, lo, hi, &bytes, &w->offset);
        w->how = IN_PLACE;
        w->memory = new_buffer(s, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, at,
                               "using an output in place");
    } else {
        w->how = COPIED;
        w->memory = new_buffer(s, CL_MEM_READ_WRITE, pack_strides(a, w->stride), NULL,
                               "memory for an output");
    }
    s->numbers[number] = w->offset;
    for (axis = 0; axis < strides; axis++)
        s->numbers[number + 1 + axis] = w->stride[axis];
}

/* Waits for the device and brings the output to the host. */
static void fetch_output(session *s, int which)
{
    const written *w = &s->output[which];
    int64_t lo, hi, bytes, offset, packed[4];
    void *at;
    if (s->error || !w->memory || w->how == NAMED)
        return;
    hull_of(&w->host, &lo, &hi);
    if (w->how == COPIED)
        bytes = pack_strides(&w->host, packed);
    else
        hull_bytes(&w->host, lo, hi, &bytes, &offset);
    at = map_buffer(s, w->memory, CL_MAP_READ, bytes);
    if (at && w->how == COPIED)
        w->scatter(s, w, (const char *)at);
    unmap_buffer(s, w->memory, at);
}

static array tensor_array(const attn_tensor *t, int64_t batch, int64_t heads, int64_t rows,
                          int64_t dim)
{
    return make_array(t->data, type_bits(t->dtype), batch, heads, rows, dim, t->stride_batch,
                      t->stride_head, t->stride_seq, 1);
}

/* K or V: rows of batch entries, a ring, or pages. */
static array keys_array(const attn_params *p, const attn_tensor *t, int64_t dim)
{
    const attn_rows *rows = &p->kv_rows;
    const int64_t entries = rows->page_size ? rows->num_pages : p->cu_seqlens_kv ? 1 : p->batch;
    const int64_t whole = rows->ring ? rows->ring : p->seq_len_kv;
    const int64_t each = rows->page_size ? rows->page_size : whole;
    return tensor_array(t, entries, p->num_heads_kv, each, dim);
}

/* Rows that masks and the bias may be asked for, and columns. */
static int64_t rows_asked(const attn_problem *pr, const attn_sequence *s)
{
    (void)pr;
    return s->q_len;
}

static int64_t columns_asked(const attn_problem *pr, const attn_sequence *s)
{
    (void)pr;
    return s->column + s->kv_len;
}

static void bind_masks(session *s)
{
    const attn_problem *pr = s->pr;
    const attn_params *p = &pr->p;
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = most_of(pr, rows_asked), columns = most_of(pr, columns_asked);
    const int64_t b = p->batch, h = p->num_heads_q;
    const int64_t cell_rows = m->block_q ? round_up(rows, m->block_q) / m->block_q : 0;
    const int64_t cells = m->block_k ? round_up(pr->max_kv_len, m->block_k) / m->block_k : 0;
    const array bias =
        make_array(p->bias.data, type_bits(p->bias.dtype), b, h, rows, columns,
                   p->bias.stride_batch, p->bias.stride_head, p->bias.stride_q, p->bias.stride_kv);
    const array bytes =
        make_array(p->bool_mask.data, 8, b, h, rows, columns, p->bool_mask.stride_batch,
                   p->bool_mask.stride_head, p->bool_mask.stride_q, p->bool_mask.stride_kv);
    const array bits =
        make_array(p->bit_mask.data, 1, b, h, rows, columns, p->bit_mask.stride_batch,
                   p->bit_mask.stride_head, p->bit_mask.stride_q, p->bit_mask.stride_kv);
    const array bitmap = make_array(m->bitmap, 1, b, h, cell_rows, cells, m->stride_batch,
                                    m->stride_head, m->stride_row, 1);
    const array offsets = make_array(m->row_offsets, 32, b, h, cell_rows + 1, 1,
                                     m->csr_stride_batch, m->csr_stride_head, 1, 1);
    bind_input(s, IN_BIAS, N_BIAS, 4, &bias, fill_all);
    bind_input(s, IN_BOOL, N_BOOL, 4, &bytes, fill_all);
    bind_input(s, IN_BIT, N_BIT, 4, &bits, fill_all);
    bind_input(s, IN_BITMAP, N_BITMAP, 3, &bitmap, fill_all);
    bind_input(s, IN_OFFSETS, N_OFFSETS, 2, &offsets, fill_all);
    s->numbers[N_BIAS_TYPE] = p->bias.dtype;
    s->numbers[N_BOOL_TYPE] = p->bool_mask.invert != 0;
    s->numbers[N_BIT_TYPE] = p->bit_mask.invert != 0;
    s->numbers[N_BLOCK_Q] = m->block_q;
    s->numbers[N_BLOCK_K] = m->block_k;
}

/* Columns of a CSR mask: as many as its largest offset says. */
static void bind_columns(session *s)
{
    const attn_params *p = &s->pr->p;
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = most_of(s->pr, rows_asked);
    int64_t b, h, last = 0;
    array columns;
    if (!m->row_offsets || rows == 0)
        return;
    for (b = 0; b < p->batch; b++)
        for (h = 0; h < p->num_heads_q; h++)
            last = max64(last, m->row_offsets[b * m->csr_stride_batch + h * m->csr_stride_head +
                                              (rows - 1) / m->block_q + 1]);
    columns = make_array(m->columns, 32, 1, 1, 1, last, 0, 0, 0, 1);
    bind_input(s, IN_COLUMNS, N_COLUMNS, 0, &columns, fill_all);
}

/* Arrays of one number a token, head or page. */
static void bind_lists(session *s)
{
    const attn_params *p = &s->pr->p;
    const attn_rows *rows = &p->kv_rows;
    const int64_t b = p->batch, h = p->num_heads_q;
    const int64_t q_batch = p->cu_seqlens_q ? 1 : b, kv_batch = p->cu_seqlens_kv ? 1 : b;
    const int64_t in_rows = rows->ring ? rows->ring : p->seq_len_kv;
    const int64_t size = rows->page_size, pages = size ? round_up(in_rows, size) / size : 0;
    const array q_segments =
        make_array(p->q_segments, 32, q_batch, 1, 1, p->seq_len_q, p->q_segments_stride, 0, 0, 1);
    const array kv_segments = make_array(p->kv_segments, 32, kv_batch, 1, 1, p->seq_len_kv,
                                         p->kv_segments_stride, 0, 0, 1);
    const array tree =
        make_array(p->tree_parents, 32, q_batch, 1, 1, p->seq_len_q, p->tree_stride, 0, 0, 1);
    const array slopes = make_array(p->alibi_slopes, 32, b, 1, 1, h, p->alibi_stride, 0, 0, 1);
    const array sinks = make_array(p->sinks, 32, 1, 1, 1, h, 0, 0, 0, 1);
    const array table = make_array(rows->table, 32, b, 1, 1, pages, rows->table_stride, 0, 0, 1);
    bind_input(s, IN_Q_SEGMENTS, N_Q_SEGMENTS, 1, &q_segments, fill_all);
    bind_input(s, IN_KV_SEGMENTS, N_KV_SEGMENTS, 1, &kv_segments, fill_all);
    bind_input(s, IN_TREE, N_TREE, 1, &tree, fill_all);
    bind_input(s, IN_SLOPES, N_SLOPES, 1, &slopes, fill_all);
    bind_input(s, IN_SINKS, N_SINKS, 0, &sinks, fill_all);
    bind_input(s, IN_TABLE, N_TABLE, 1, &table, fill_all);
}
