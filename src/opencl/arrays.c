/* src/opencl/arrays.c - arrays as the host has them, and as copies of them that a device gets.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../keys.c"
#include "plan.c"

/* An array lies in the host's memory. It has four axes, strides in elements, 0 where it is
 * broadcast, and elements of 1 bit or of whole bytes. An element is a unit of its storage type, in
 * which `unit` numbers are stored together. */
typedef struct array {
    const void *data;
    int bits, unit;
    int reach; /* enum reach: what a call reads or writes of it */
    int64_t count[4], stride[4];
} array;

/* array_bytes tells of the bytes from an array's first element to its last. */
typedef struct array_bytes {
    char *first;
    int64_t bytes;
    int64_t offset;   /* of element 0 */
    int64_t elements; /* 0 = nothing is there */
    int64_t between;  /* further elements that lie there; below 0: elements overlap */
} array_bytes;

/* ---- shapes */

/* asked counts what a device may ask for: elements along the axes of a call, rows and columns of
 * pairs. */
typedef struct asked {
    call_axes axes;
    int64_t rows, columns;
} asked;

static asked asked_of(const attn_problem *pr)
{
    const attn_block_mask *m = &pr->p.block_mask;
    asked all = { axes_of_call(&pr->p), pr->max_q_len, 0 };
    int64_t *count = all.axes.count, b;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        all.columns = max64(all.columns, s.column + s.kv_len);
    }
    count[AXIS_CELL_ROW] = m->block_q ? ceil_div(all.rows, m->block_q) : 0;
    count[AXIS_CELL_COLUMN] = m->block_k ? ceil_div(pr->max_kv_len, m->block_k) : 0;
    count[AXIS_CELL_OFFSET] = count[AXIS_CELL_ROW] + 1;
    count[AXIS_CELL_LISTED] = cells_listed(&pr->p, count[AXIS_CELL_ROW]);
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
    const int is_bits = f->type == F_BITS, unit = is_bits ? 1 : (int)unit_of_field(f, base);
    const int bits = is_bits ? 1 : 8 * (int)element_bytes(f, base);
    array a = { field_data(f, base), bits, unit, reach, { 0 }, { 0 } };
    int64_t packed = 1;
    int axis;
    for (axis = 0; axis < 4; axis++)
        a.count[axis] = all->axes.count[f->axis[axis]];
    if (f->axis[2] == AXIS_LONGEST_Q) {
        a.count[2] = all->rows;
        a.count[3] = all->columns;
    }
    a.count[3] /= unit;
    for (axis = 3; axis >= 0; axis--) {
        a.stride[axis] = f->stride[axis] ? stride_given(f, base, axis) / unit : packed;
        packed = times(packed, a.count[axis]);
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
    case OUT_LSE: /* gradients read it only without statistics */
        return gradients ? (p->stats.data ? NO_ARRAY : IN_LSE) : p->partial ? NO_ARRAY : which;
    case OUT_STATS:
        return gradients ? IN_STATS : p->partial ? NO_ARRAY : which;
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

/* sums_array gives dbias or dslopes. */
static array sums_array(const attn_sum_axes *sum)
{
    array a = { sum->data, 32, 1, REACH_ALL, { 0 }, { 0 } };
    int axis;
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

/* copy_rows copies rows from to to-1 of an entry, of all heads. */
static void copy_rows(const array_copy *c, int64_t entry, int64_t from, int64_t to)
{
    const int64_t heads = held_along(c->host, 1);
    int64_t h, i;
    for (h = 0; h < heads; h++)
        for (i = from; i < to; i++)
            copy_row(c, entry, h, i);
}

static void copy_keys(const attn_params *p, const attn_sequence *s, const array_copy *c)
{
    key_place at;
    int64_t left = s->kv_len;
    if (left == 0)
        return;
    at = key_at(p, s, 0);
    for (; left > at.left; next_place(p, s, &at)) {
        copy_rows(c, at.entry, at.row, at.row + at.left);
        left -= at.left;
    }
    copy_rows(c, at.entry, at.row, at.row + left);
}

/* copy_chosen copies the rows that logits are asked of, if they exist. */
static void copy_chosen(const attn_params *p, const attn_sequence *s, const array_copy *c)
{
    int64_t n;
    for (n = 0; n < c->host->count[2]; n++)
        if (entry32(p->logits.rows, n, n) < s->q_len)
            copy_rows(c, s->b, n, n + 1);
}

/* is_dense returns whether the elements lie one after the other, in any order of the axes. */
static int is_dense(const array *a)
{
    int64_t elements = 1, next = 1;
    int turn, axis;
    for (axis = 0; axis < 4; axis++)
        elements *= held_along(a, axis);
    for (turn = 0; turn < 4; turn++)
        for (axis = 0; axis < 4; axis++)
            if (held_along(a, axis) > 1 && (a->stride[axis] == next || a->stride[axis] == -next))
                next *= held_along(a, axis);
    return next == elements;
}

/* shares_rows returns whether sequences, or rows of one, may be the same rows of the array. */
static int shares_rows(const attn_params *p, const array *a)
{
    return held_along(a, 0) < a->count[0] || held_along(a, 2) < a->count[2] ||
           (a->reach == REACH_KEYS && p->kv_rows.table);
}

/* is_whole returns whether the call reads or writes all that the array holds, and nothing else lies
 * between. */
static int is_whole(const attn_problem *pr, const array *a)
{
    const int64_t rows = held_along(a, 0) * held_along(a, 2);
    int64_t used = 0, b;
    if (!is_dense(a) || a->reach == REACH_ALL)
        return is_dense(a);
    for (b = 0; b < pr->p.batch && !shares_rows(&pr->p, a); b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        used += a->reach == REACH_ROWS ? s.q_len : a->reach == REACH_KEYS ? s.kv_len : 0;
    }
    return used == rows;
}

/* copy_array copies rows and keys in use, wherever they lie: padded ones are neither read nor
 * written. */
static void copy_array(const attn_problem *pr, const array_copy *c)
{
    const array *a = c->host;
    int64_t b;
    for (b = 0; a->reach == REACH_ALL && b < held_along(a, 0); b++)
        copy_rows(c, b, 0, held_along(a, 2));
    for (b = 0; a->reach != REACH_ALL && b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        if (a->reach == REACH_ROWS)
            copy_rows(c, b, s.q_row, s.q_row + s.q_len);
        else if (a->reach == REACH_KEYS)
            copy_keys(&pr->p, &s, c);
        else
            copy_chosen(&pr->p, &s, c);
    }
}
