/* src/overlap.c - overlap: whether what a call writes shares a byte with anything else of the call.
 * SPDX-License-Identifier: MIT
 *
 * An area is what an array covers: runs of bytes, each at a sum of multiples of the array's steps. So
 * tensors may lie between each other in one buffer, and bytes from the first to the last say little.
 * Two areas share a byte if some sum of multiples of all their steps comes within the length of a run,
 * and one area meets itself if such a sum of differences does.
 */
#pragma once

#include "fields.c"

#define AREA_AXES 5

typedef struct area {
    const char *name;
    uintptr_t at;                              /* at is the lowest byte. */
    int64_t bytes;                             /* bytes goes from it to the highest one. */
    int64_t run;                               /* run counts the bytes of a run. */
    int axes;                                  /* axes counts those along which runs repeat, */
    int64_t count[AREA_AXES], step[AREA_AXES]; /* from the smallest step to the largest. */
} area;

/* add_axis sorts an axis in. One of length 1, and one that inputs broadcast, adds nothing. */
static void add_axis(area *a, int64_t count, int64_t step)
{
    int i = a->axes;
    if (count == 1 || step == 0)
        return;
    for (; i > 0 && a->step[i - 1] > step; i--) {
        a->count[i] = a->count[i - 1];
        a->step[i] = a->step[i - 1];
    }
    a->count[i] = count;
    a->step[i] = step;
    a->axes++;
}

/* join_runs makes runs longer along axes that continue them, and where steps are not whole bytes,
 * of which `per` elements make one; then runs cover what lies between. */
static void join_runs(area *a, int64_t per)
{
    int i, kept = 0;
    for (i = 0; i < a->axes; i++) {
        const int64_t count = a->count[i], step = a->step[i];
        if (step == a->run || step % per) {
            a->run += (count - 1) * step;
            continue;
        }
        a->count[kept] = count;
        a->step[kept++] = step / per;
    }
    a->axes = kept;
}

/* area_of tells what an array covers whose extent has been checked; `per` of its elements have
 * `bytes_each` bytes. */
static area area_of(const char *name, const void *data, int axes, const int64_t *count,
                    const ptrdiff_t *stride, int64_t bytes_each, int64_t per)
{
    area a = { .name = name, .at = (uintptr_t)data, .run = bytes_each };
    int64_t below = 0, whole;
    int i;
    for (i = 0; i < axes; i++) {
        const int64_t step = count[i] > 1 ? stride[i] * bytes_each : 0;
        if (count[i] == 0)
            return a;
        below += step < 0 ? (count[i] - 1) * -step : 0;
        add_axis(&a, count[i], step < 0 ? -step : step);
    }
    join_runs(&a, per);
    whole = ceil_div(below, per);
    a.at -= (uintptr_t)whole;
    a.bytes = a.run = ceil_div(whole * per - below + a.run, per);
    for (i = 0; i < a.axes; i++)
        a.bytes += (a.count[i] - 1) * a.step[i];
    if (!data)
        a.bytes = 0; /* It lies nowhere, but may meet itself. */
    return a;
}

static area area_of_bytes(const char *name, const void *data, int64_t bytes)
{
    const area a = { .name = name, .at = (uintptr_t)data, .bytes = data ? bytes : 0, .run = bytes };
    return a;
}

/* ---- sums of multiples */

/* An addend is an axis of a sum: 0 to `most` times its step. `rest` is the most that the axes behind
 * it add, and all sums of it and of those are multiples of `divisor`. */
typedef struct addend {
    int64_t step, most, rest, divisor;
} addend;

enum { MOST_ADDENDS = 2 * AREA_AXES + 1, SUM_TRIES = 4096 };

/* add_addend sorts an axis in, from the largest step to the smallest; the last one has a step of 0. */
static void add_addend(addend *r, int64_t step, int64_t most)
{
    int i = 0, last = 0;
    while (r[i].step > step)
        i++;
    if (r[i].step == step) {
        r[i].most += most;
        return;
    }
    while (r[last].step)
        last++;
    for (; last >= i; last--)
        r[last + 1] = r[last];
    r[i].step = step;
    r[i].most = most;
}

static void finish_addends(addend *r)
{
    int i = 0;
    while (r[i].step)
        i++;
    for (i--; i >= 0; i--) {
        int64_t a = r[i].step, b = r[i + 1].divisor, left;
        for (; b; b = left) {
            left = a % b;
            a = b;
        }
        r[i].divisor = a;
        r[i].rest = r[i + 1].step * r[i + 1].most + r[i + 1].rest;
    }
}

/* reaches tells whether some sum lies from low to high. Each axis leaves few multiples to try, since
 * the axes behind it reach no further than their sum. Steps that have nothing in common could leave
 * many: what is open after SUM_TRIES of them counts as apart, so that no legal call is refused. */
static int reaches(const addend *r, int64_t low, int64_t high, int *tries)
{
    const int64_t from = max64(low, 0), to = min64(high, r->step * r->most + r->rest);
    int64_t x, last;
    if (from > to || --*tries < 0)
        return 0;
    if (r->step == 0)
        return 1;
    if (to / r->divisor * r->divisor < from)
        return 0;
    last = min64(r->most, to / r->step);
    for (x = from > r->rest ? ceil_div(from - r->rest, r->step) : 0; x <= last && *tries > 0; x++)
        if (reaches(r + 1, low - x * r->step, high - x * r->step, tries))
            return 1;
    return 0;
}

static int sum_within(addend *r, int64_t low, int64_t high)
{
    int tries = SUM_TRIES;
    finish_addends(r);
    return reaches(r, low, high, &tries);
}

/* lattices_meet decides about two areas whose bytes from first to last overlap; b begins `ahead`
 * bytes behind a. Steps of b count from its last run backwards, so that all steps add. */
OWN_FRAME static int lattices_meet(const area *a, const area *b, int64_t ahead)
{
    addend r[MOST_ADDENDS] = { { 0, 0, 0, 0 } };
    const int64_t end = ahead + b->bytes - b->run;
    int i;
    for (i = 0; i < a->axes; i++)
        add_addend(r, a->step[i], a->count[i] - 1);
    for (i = 0; i < b->axes; i++)
        add_addend(r, b->step[i], b->count[i] - 1);
    return sum_within(r, end - (a->run - 1), end + b->run - 1);
}

static int areas_meet(const area *a, const area *b)
{
    const int behind = b->at >= a->at;
    const uintptr_t ahead = behind ? b->at - a->at : a->at - b->at;
    if (a->bytes == 0 || b->bytes == 0 || ahead >= (uint64_t)(behind ? a->bytes : b->bytes))
        return 0;
    return lattices_meet(a, b, behind ? (int64_t)ahead : -(int64_t)ahead);
}

/* axis_meets tells whether runs meet that are one step or more apart along an axis, and anything
 * apart along the axes before it. */
OWN_FRAME static int axis_meets(const area *a, int axis)
{
    addend r[MOST_ADDENDS] = { { 0, 0, 0, 0 } };
    int64_t centre = -a->step[axis];
    int i;
    add_addend(r, a->step[axis], a->count[axis] - 2);
    for (i = 0; i < axis; i++) {
        add_addend(r, a->step[i], 2 * (a->count[i] - 1));
        centre += (a->count[i] - 1) * a->step[i];
    }
    return sum_within(r, centre - (a->run - 1), centre + a->run - 1);
}

/* meets_itself tells whether two runs share a byte. Mostly each axis steps over all that the axes
 * before it cover. */
static int meets_itself(const area *a)
{
    int64_t span = a->run;
    int axis;
    for (axis = 0; axis < a->axes; axis++) {
        if (a->step[axis] < span && axis_meets(a, axis))
            return 1;
        span += (a->count[axis] - 1) * a->step[axis];
    }
    return 0;
}

/* ---- sentences */

/* An array_set is the arrays of one table. Outputs that are neither written nor read do not
 * matter. */
typedef struct array_set {
    const call_field *table;
    int n;
    const void *base;
    const call_axes *x;
    unsigned written, read;    /* bits of call_field.output */
    int64_t spare[AXIS_COUNT]; /* at the end of an axis, and in use by no sequence */
} array_set;

/* Packed sequences share one list, which has an entry for each token. */
static int lists_tokens(const call_field *f, const call_axes *x)
{
    return f->axis[2] == AXIS_NONE && ((x->packed_q && f->axis[3] == AXIS_SEQ_Q) ||
                                       (x->packed_kv && f->axis[3] == AXIS_SEQ_KV));
}

static area area_of_field(const array_set *s, const call_field *f)
{
    int64_t count[4];
    ptrdiff_t stride[4];
    int axis;
    for (axis = 0; axis < 4; axis++) /* Columns of an output are written whole. */
        count[axis] =
            s->x->count[f->axis[axis]] - (axis == 3 && f->output ? 0 : s->spare[f->axis[axis]]);
    if (lists_tokens(f, s->x)) {
        count[0] = 1;
        count[3] = s->x->count[f->axis[3]];
    }
    resolve_strides_of(f, s->base, s->x, stride);
    for (axis = 0; axis < 4; axis++)
        if (f->stride[axis]) /* It is resolved already, and 0 means shared. */
            stride[axis] = stride_given(f, s->base, axis);
    return area_of(f->name, field_data(f, s->base), 4, count, stride, element_bytes(f, s->base),
                   f->type == F_BITS ? 8 : 1);
}

static int takes_part(const array_set *s, const call_field *f)
{
    const void *data;
    if (!IS_ARRAY(f) || (f->output && !(f->output & (s->written | s->read))))
        return 0;
    data = field_data(f, s->base);
    return data && data != &not_read;
}

static attn_status check_pair(const area *a, const area *b, text *why)
{
    if (!areas_meet(a, b))
        return ATTN_OK;
    put(why, a->name);
    put(why, " overlaps ");
    put(why, b->name);
    return bad(why, ATTN_ERR_ARG, ": what a call writes needs memory of its own");
}

static attn_status check_itself(const area *a, const char *hint, text *why)
{
    if (!meets_itself(a))
        return ATTN_OK;
    put(why, a->name);
    put(why, ": with its strides rows share elements");
    put(why, hint ? ": " : "");
    return bad(why, ATTN_ERR_ARG, hint ? hint : "");
}

/* check_apart wants an area that a call writes to share nothing with the arrays of the sets from
 * row number `from` of the first set on. Before that only inputs count, as outputs have been
 * compared. */
static attn_status check_apart(const array_set *sets, int n, const area *written, int from,
                               text *why)
{
    attn_status status = ATTN_OK;
    int s, i;
    for (s = 0; s < n; s++)
        for (i = 0; i < sets[s].n && !status; i++) {
            const call_field *f = &sets[s].table[i];
            area other;
            if (!takes_part(&sets[s], f) || (s == 0 && i < from && (f->output & sets[s].written)))
                continue;
            other = area_of_field(&sets[s], f);
            status = check_pair(written, &other, why);
        }
    return status;
}

/* check_written wants every array that the first set writes to share nothing with any other of the
 * sets. Other sets write nothing. */
static attn_status check_written(const array_set *sets, int n, text *why)
{
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < sets->n && !status; i++) {
        const call_field *f = &sets->table[i];
        area a;
        if (!(f->output & sets->written) || !takes_part(sets, f))
            continue;
        a = area_of_field(sets, f);
        status = check_itself(&a, f->instead, why);
        if (!status)
            status = check_apart(sets, n, &a, i + 1, why);
    }
    return status;
}
