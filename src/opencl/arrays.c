/* src/opencl/arrays.c - arrays as the host has them, and as copies of them that a device gets.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../keys.c"
#include "plan.c"

/* An array lies in the host's memory. It has four axes, strides in elements, 0 where it is
 * broadcast, and elements of 1, 8, 16 or 32 bits. */
typedef struct array {
    const void *data;
    int bits;
    int reach; /* enum reach: what a call reads or writes of it */
    int64_t count[4], stride[4];
} array;

/* array_bytes tells of the bytes from an array's first element to its last. */
typedef struct array_bytes {
    char *first;
    int64_t bytes;
    int64_t offset;   /* of element 0 */
    int64_t elements; /* 0 = nothing is there */
    int64_t between;  /* so many further ones lie there; below 0: elements overlap */
} array_bytes;

/* ---- shapes */

/* rows_asked and columns_asked count what masks and the bias may be asked for. */
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

/* asked counts what a device may ask for: elements along the axes of a call, rows and columns of
 * pairs. */
typedef struct asked {
    call_axes axes;
    int64_t rows, columns;
} asked;

static asked asked_of(const attn_problem *pr)
{
    const attn_block_mask *m = &pr->p.block_mask;
    int64_t *count;
    asked all;
    all.axes = axes_of_call(&pr->p);
    all.rows = most_of(pr, rows_asked);
    all.columns = most_of(pr, columns_asked);
    count = all.axes.count;
    count[AXIS_CELL_ROW] = m->block_q ? ceil_div(all.rows, m->block_q) : 0;
    count[AXIS_CELL_COLUMN] = m->block_k ? ceil_div(pr->max_kv_len, m->block_k) : 0;
    count[AXIS_CELL_OFFSET] = count[AXIS_CELL_ROW] + 1;
    return all;
}

/* lies_packed returns whether the sequences of the batch lie one after the other along the axis of
 * rows or keys. */
static int lies_packed(const call_field *f, const call_axes *x)
{
    const int axis = f->axis[2] ? f->axis[2] : f->axis[3];
    const int list = f->axis[1] == AXIS_NONE;
    return (x->packed_q && (axis == AXIS_ROW || (list && axis == AXIS_SEQ_Q))) ||
           (x->packed_kv && (axis == AXIS_KEY || (list && axis == AXIS_SEQ_KV)));
}

/* array_of gives the array of a field, whose strides are resolved; axes without one are packed. */
static array array_of(const call_field *f, const void *base, const asked *all, int reach)
{
    int64_t packed = 1;
    array a;
    int axis;
    a.data = field_data(f, base);
    a.bits = f->type == F_BITS ? 1 : 8 * (int)element_bytes(f, base);
    a.reach = reach;
    for (axis = 0; axis < 4; axis++)
        a.count[axis] = all->axes.count[f->axis[axis]];
    if (f->axis[2] == AXIS_SEQ_Q) { /* pairs */
        a.count[2] = all->rows;
        a.count[3] = all->columns;
    }
    for (axis = 3; axis >= 0; axis--) {
        a.stride[axis] = f->stride[axis] ? stride_given(f, base, axis) : packed;
        packed *= a.count[axis];
    }
    if (lies_packed(f, &all->axes)) {
        a.count[0] = 1;
        a.stride[0] = 0;
    }
    return a;
}

/* array_in_call tells which array of the device a field's is in this call, or NO_ARRAY. */
static int array_in_call(int which, const attn_params *p, int gradients)
{
    switch (which) {
    case IN_V:
        return writes_values(p) ? which : NO_ARRAY;
    case OUT_O:
        return gradients ? IN_O : p->partial ? NO_ARRAY : which;
    case OUT_LSE:
        return gradients ? IN_LSE : p->partial ? NO_ARRAY : which;
    case OUT_M:
    case OUT_L:
    case OUT_STATE_O:
        return p->partial && !gradients ? which : NO_ARRAY;
    case OUT_LOGITS:
        return gradients ? NO_ARRAY : which;
    default:
        return which;
    }
}

/* columns_array gives the columns of a CSR mask, as many as its largest offset says. */
static array columns_array(const attn_params *p, const asked *all)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = all->axes.count[AXIS_CELL_ROW];
    array a = { m->columns, 32, REACH_ALL, { 1, 1, 1, 0 }, { 0, 0, 0, 1 } };
    int64_t b, h;
    for (b = 0; m->row_offsets && b < p->batch; b++)
        for (h = 0; rows > 0 && h < p->num_heads_q; h++) {
            const int64_t at = b * m->csr_stride_batch + h * m->csr_stride_head;
            a.count[3] = max64(a.count[3], m->row_offsets[at + rows]);
        }
    return a;
}

/* sums_array gives dbias or dslopes. */
static array sums_array(const attn_sum_axes *sum)
{
    array a;
    int axis;
    a.data = sum->data;
    a.bits = 32;
    a.reach = REACH_ALL;
    for (axis = 0; axis < 4; axis++) {
        a.count[axis] = sum->count[axis];
        a.stride[axis] = sum->stride[axis];
    }
    return a;
}

/* held_along counts the different elements along an axis. */
static int64_t held_along(const array *a, int axis)
{
    return a->stride[axis] ? a->count[axis] : min64(a->count[axis], 1);
}

/* byte_of_bit gives the byte that has bit n, which may be below 0. */
static int64_t byte_of_bit(int64_t n)
{
    return n >= 0 ? n / 8 : -((7 - n) / 8);
}

static array_bytes bytes_of_array(const array *a)
{
    array_bytes all = { NULL, 0, 0, 1, 0 };
    int64_t lo = 0, hi = 0, first;
    int axis;
    for (axis = 0; axis < 4; axis++) {
        const int64_t reach = (a->count[axis] - 1) * a->stride[axis];
        lo += min64(reach, 0);
        hi += max64(reach, 0);
        all.elements *= held_along(a, axis);
    }
    if (all.elements == 0)
        return all;
    all.between = hi - lo + 1 - all.elements;
    first = a->bits == 1 ? byte_of_bit(lo) : lo * (a->bits / 8);
    all.bytes = a->bits == 1 ? hi / 8 + 1 - first : (hi - lo + 1) * (a->bits / 8);
    all.first = (char *)(uintptr_t)a->data + first;
    all.offset = -first;
    return all;
}

/* ---- copies */

/* pack_strides sets the strides of a copy, row-major without gaps; axes that are broadcast stay so,
 * and rows of bits begin at whole bytes. It returns the bytes needed. */
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

/* An array_copy is an array and its copy, and which way elements go. */
typedef struct array_copy {
    const array *host;
    const int64_t *stride; /* of the copy, packed */
    char *at;              /* its element 0 */
    int back;              /* nonzero: from the copy to the host's array */
} array_copy;

static void copy_bits(const array *a, uint8_t *to, int64_t to_at, int64_t from_at)
{
    const uint8_t *from = (const uint8_t *)a->data;
    const int64_t n = held_along(a, 3);
    int64_t i;
    for (i = 0; i < n; i++, from_at += a->stride[3], to_at++) {
        const int64_t byte = byte_of_bit(from_at);
        const int bit = from[byte] >> (from_at - 8 * byte) & 1;
        to[to_at / 8] = (uint8_t)((to[to_at / 8] & ~(1 << to_at % 8)) | bit << to_at % 8);
    }
}

/* copy_elements copies n elements that lie one after the other, from element `host` of the array
 * and element `packed` of its copy on. */
static void copy_elements(const array_copy *c, int64_t host, int64_t packed, int64_t n)
{
    const int64_t bytes = c->host->bits / 8;
    char *const mine = (char *)(uintptr_t)c->host->data + host * bytes;
    char *const there = c->at + packed * bytes;
    memcpy(c->back ? mine : there, c->back ? there : mine, (size_t)(n * bytes));
}

/* copy_row copies row (x, y, z) of the last axis. */
static void copy_row(const array_copy *c, int64_t x, int64_t y, int64_t z)
{
    const array *a = c->host;
    const int64_t n = held_along(a, 3), *step = a->stride;
    const int64_t host = x * step[0] + y * step[1] + z * step[2];
    const int64_t packed = x * c->stride[0] + y * c->stride[1] + z * c->stride[2];
    int64_t i;
    if (a->bits == 1)
        copy_bits(a, (uint8_t *)c->at, packed, host);
    else if (step[3] == 1 || n <= 1)
        copy_elements(c, host, packed, n);
    else
        for (i = 0; i < n; i++)
            copy_elements(c, host + i * step[3], packed + i, 1);
}

static void copy_all(const array_copy *c)
{
    const int64_t n[3] = { held_along(c->host, 0), held_along(c->host, 1), held_along(c->host, 2) };
    int64_t x, y, z;
    for (x = 0; x < n[0]; x++)
        for (y = 0; y < n[1]; y++)
            for (z = 0; z < n[2]; z++)
                copy_row(c, x, y, z);
}

/* copy_rows copies the rows in use: padded ones are neither read nor written. */
static void copy_rows(const attn_sequence *s, const array_copy *c)
{
    int64_t h, i;
    for (h = 0; h < c->host->count[1]; h++)
        for (i = s->q_row; i < s->q_row + s->q_len; i++)
            copy_row(c, s->b, h, i);
}

/* copy_keys copies the keys in use, wherever they lie. */
static void copy_keys(const attn_params *p, const attn_sequence *s, const array_copy *c)
{
    key_place at;
    int64_t j, n, h, r;
    if (s->kv_len == 0)
        return;
    at = key_at(p, s, 0);
    for (j = 0;; next_place(p, s, &at)) {
        n = min64(at.left, s->kv_len - j);
        for (h = 0; h < c->host->count[1]; h++)
            for (r = 0; r < n; r++)
                copy_row(c, at.entry, h, at.row + r);
        j += n;
        if (j == s->kv_len)
            return;
    }
}

/* copy_chosen copies the rows that logits are asked of, if they exist. */
static void copy_chosen(const attn_params *p, const attn_sequence *s, const array_copy *c)
{
    const int32_t *list = p->logits.rows;
    int64_t h, n;
    for (h = 0; h < c->host->count[1]; h++)
        for (n = 0; n < c->host->count[2]; n++)
            if ((list ? list[n] : n) < s->q_len)
                copy_row(c, s->b, h, n);
}

static void copy_array(const attn_problem *pr, const array_copy *c)
{
    int64_t b;
    if (c->host->reach == REACH_ALL)
        copy_all(c);
    for (b = 0; b < pr->p.batch && c->host->reach != REACH_ALL; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        if (c->host->reach == REACH_ROWS)
            copy_rows(&s, c);
        else if (c->host->reach == REACH_KEYS)
            copy_keys(&pr->p, &s, c);
        else
            copy_chosen(&pr->p, &s, c);
    }
}
