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
COLD static area area_of(const char *name, const void *data, int axes, const int64_t *count,
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
COLD static void add_addend(addend *r, int64_t step, int64_t most)
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

COLD static void finish_addends(addend *r)
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

COLD static int sum_within(addend *r, int64_t low, int64_t high)
{
    int tries = SUM_TRIES;
    finish_addends(r);
    return reaches(r, low, high, &tries);
}

/* lattices_meet decides about two areas whose bytes from first to last overlap; b begins `ahead`
 * bytes behind a. Steps of b count from its last run backwards, so that all steps add. */
COLD static int lattices_meet(const area *a, const area *b, int64_t ahead)
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

COLD static int areas_meet(const area *a, const area *b)
{
    const int behind = b->at >= a->at;
    const uintptr_t ahead = behind ? b->at - a->at : a->at - b->at;
    if (a->bytes == 0 || b->bytes == 0 || ahead >= (uint64_t)(behind ? a->bytes : b->bytes))
        return 0;
    return lattices_meet(a, b, behind ? (int64_t)ahead : -(int64_t)ahead);
}

/* axis_meets tells whether runs meet that are one step or more apart along an axis, and anything
 * apart along the axes before it. */
COLD static int axis_meets(const area *a, int axis)
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
COLD static int meets_itself(const area *a)
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

/* ---- the arrays of a call */

/* end_of_use_fn tells where sequence b ends what it uses of an axis that has `count` entries. */
typedef int64_t (*end_of_use_fn)(const attn_params *p, int axis, int64_t count, int64_t b);

/* An array_set is the arrays of one table, with their strides resolved. Outputs that are neither
 * written nor read do not matter. */
typedef struct array_set {
    const call_field *table;
    int n;
    const void *base;
    const call_axes *x;
    unsigned written, read; /* bits of call_field.output */
    const attn_params *p;   /* the call whose sequences may differ in what they use, or NULL */
    end_of_use_fn end_of_use;
} array_set;

typedef struct array_shape {
    const void *data;
    int64_t count[4], bytes_each;
    ptrdiff_t stride[4];
} array_shape;

/* It stands for an array that a level has elsewhere, where it only checks a call. */
static const int64_t not_read = 0;

static int takes_part(const array_set *s, const call_field *f)
{
    const void *data;
    if (!IS_ARRAY(f) || (f->output && !(f->output & (s->written | s->read))))
        return 0;
    data = field_data(f, s->base);
    return data && data != &not_read;
}

static int is_written(const array_set *s, const call_field *f)
{
    return (f->output & s->written) != 0;
}

/* Packed sequences share one list, which has an entry for each token. */
static int lists_tokens(const call_field *f, const call_axes *x)
{
    return f->axis[2] == AXIS_NONE && ((x->packed_q && f->axis[3] == AXIS_SEQ_Q) ||
                                       (x->packed_kv && f->axis[3] == AXIS_SEQ_KV));
}

/* A joint array is one for all sequences. */
static int is_joint(const array_set *s, const call_field *f)
{
    return lists_tokens(f, s->x) || is_packed(f, s->x);
}

static array_shape array_shape_of(const array_set *s, const call_field *f)
{
    array_shape shape = { .data = field_data(f, s->base), .bytes_each = element_bytes(f, s->base) };
    const int joint = is_joint(s, f);
    int64_t packed = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        shape.count[axis] = axis == 0 && joint ? 1 : s->x->count[f->axis[axis]];
        shape.stride[axis] = f->stride[axis] ? stride_given(f, s->base, axis) : (ptrdiff_t)packed;
        packed = times(packed, max64(shape.count[axis], 1));
    }
    if (f->type == F_STORED) { /* Units of a row follow one another. */
        const int unit = (int)unit_of_field(f, s->base);
        shape.count[3] /= unit;
        for (axis = 0; axis < 3; axis++)
            shape.stride[axis] /= unit;
    }
    return shape;
}

static area area_of_shape(const call_field *f, const array_shape *shape)
{
    return area_of(f->name, shape->data, 4, shape->count, shape->stride, shape->bytes_each,
                   f->type == F_BITS ? 8 : 1);
}

/* A span goes from the lowest byte of an array to the highest one. */
typedef struct span {
    uintptr_t at;
    uint64_t bytes;
    int nested; /* Each axis steps over all that the axes after it cover. */
} span;

/* span_of_shape counts an element of bits as a byte. */
static span span_of_shape(const array_shape *shape)
{
    span s = { (uintptr_t)shape->data, (uint64_t)shape->bytes_each, 1 };
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        const int64_t more = shape->count[axis] - 1, step = shape->stride[axis] * shape->bytes_each;
        const uint64_t size = (uint64_t)(step < 0 ? -step : step);
        if (more <= 0)
            continue;
        s.nested &= size >= s.bytes;
        s.bytes += (uint64_t)more * size;
        s.at -= step < 0 ? (uintptr_t)((uint64_t)more * size) : 0;
    }
    return s;
}

static int spans_meet(const span *a, const span *b)
{
    return a->at >= b->at ? a->at - b->at < b->bytes : b->at - a->at < a->bytes;
}

/* An operand is what is compared: an array of a set, or an area where `set` is NULL. Nearly all
 * operands lie apart by their spans alone, and nothing else is computed for those. */
typedef struct operand {
    const array_set *set;
    const call_field *field;
    const area *memory;
    span span;
} operand;

static operand array_operand(const array_set *s, const call_field *f)
{
    const array_shape shape = array_shape_of(s, f);
    const operand x = { s, f, NULL, span_of_shape(&shape) };
    return x;
}

static operand area_operand(const area *a)
{
    const operand x = { NULL, NULL, a, { a->at, (uint64_t)a->bytes, 1 } };
    return x;
}

COLD static area whole_area(const operand *x)
{
    array_shape shape;
    if (!x->set)
        return *x->memory;
    shape = array_shape_of(x->set, x->field);
    return area_of_shape(x->field, &shape);
}

/* ---- what sequences use
 *
 * Rows and keys that a sequence does not use may be memory of somebody else. So arrays that seem to
 * meet are looked at again, sequence by sequence. */

static int sequences_differ(const array_set *s)
{
    return s->p && has_batch_arrays(s->p);
}

/* parts_of counts the parts of an operand that belong to one sequence each; 1 is the operand whole. */
COLD static int64_t parts_of(const operand *x)
{
    const array_set *s = x->set;
    const call_field *f = x->field;
    const int apart = s && sequences_differ(s) && f->type != F_BITS && !is_joint(s, f) &&
                      (f->axis[0] == AXIS_BATCH || f->axis[0] == AXIS_ENTRY);
    return apart ? s->x->count[f->axis[0]] : 1;
}

/* area_in_use is what is used of part number `part` of an array, or of the whole array if that is
 * below 0: as much of each axis as the longest sequence uses. Columns of an output are written
 * whole, and lists of tokens are read whole. */
COLD static area area_in_use(const array_set *s, const call_field *f, int64_t part)
{
    const int differ = sequences_differ(s);
    const int64_t last = part < 0 && differ ? s->p->batch - 1 : max64(part, 0);
    const int axes = f->output || lists_tokens(f, s->x) ? 3 : 4;
    array_shape shape = array_shape_of(s, f);
    int axis;
    if (part >= 0) {
        shape.data = (const char *)shape.data + part * shape.stride[0] * shape.bytes_each;
        shape.count[0] = 1;
    }
    for (axis = 1; axis < axes && differ; axis++) {
        int64_t b, most = 0;
        for (b = max64(part, 0); b <= last; b++)
            most = max64(most, s->end_of_use(s->p, f->axis[axis], shape.count[axis], b));
        shape.count[axis] = min64(most, shape.count[axis]);
    }
    return area_of_shape(f, &shape);
}

/* part_in_use is what is used of part n of an operand that has `parts` parts. */
COLD static area part_in_use(const operand *x, int64_t n, int64_t parts)
{
    return x->set ? area_in_use(x->set, x->field, parts == 1 ? -1 : n) : *x->memory;
}

/* reaches_into tells whether what is used of an operand shares a byte with an area. */
COLD static int reaches_into(const operand *x, const area *a)
{
    const area whole = whole_area(x);
    const int64_t parts = parts_of(x);
    int64_t n;
    if (!areas_meet(&whole, a))
        return 0;
    for (n = 0; n < parts; n++) {
        const area part = part_in_use(x, n, parts);
        if (areas_meet(&part, a))
            return 1;
    }
    return 0;
}

/* operands_meet tells whether what is used of x shares a byte with what is used of y. */
COLD static int operands_meet(const operand *x, const operand *y)
{
    const area whole = whole_area(x);
    const int64_t parts = parts_of(x);
    int64_t n;
    if (!reaches_into(y, &whole))
        return 0;
    for (n = 0; n < parts; n++) {
        const area part = part_in_use(x, n, parts);
        if (reaches_into(y, &part))
            return 1;
    }
    return 0;
}

/* ---- sentences */

COLD static attn_status bad_overlap(const char *a, const char *b, text *why)
{
    put(why, a);
    put(why, " overlaps ");
    put(why, b);
    return bad(why, ATTN_ERR_ARG, ": what a call writes needs memory of its own");
}

static attn_status check_pair(const area *a, const area *b, text *why)
{
    return areas_meet(a, b) ? bad_overlap(a->name, b->name, why) : ATTN_OK;
}

#define ROWS_SHARE ": with its strides rows share elements"

COLD static attn_status check_itself(const area *a, text *why)
{
    if (!meets_itself(a))
        return ATTN_OK;
    put(why, a->name);
    return bad(why, ATTN_ERR_ARG, ROWS_SHARE);
}

/* bad_rows names the strides that count: an axis of length 1 has none. */
COLD static attn_status bad_rows(const operand *x, text *why)
{
    const call_field *f = x->field;
    int axis;
    put(why, f->name);
    put(why, ROWS_SHARE);
    put_numbers(why, " (rows of #", &x->set->x->count[f->axis[3]]);
    for (axis = 0; axis < COUNT_OF(stride_names); axis++) {
        const int64_t stride = stride_given(f, x->set->base, axis);
        if (stride == 0)
            continue;
        put(why, ", ");
        put(why, stride_names[axis] + 1);
        put_numbers(why, " #", &stride);
    }
    put(why, ")");
    put(why, f->instead ? ": " : "");
    return bad(why, ATTN_ERR_ARG, f->instead ? f->instead : "");
}

COLD static const char *operand_name(const operand *x)
{
    return x->set ? x->field->name : x->memory->name;
}

/* check_rows_apart wants the rows of an array to share nothing. An output that a call reads was
 * written by another call, which had to keep to this, too. */
static attn_status check_rows_apart(const operand *x, text *why)
{
    area covered;
    if (x->span.nested)
        return ATTN_OK;
    covered = whole_area(x);
    if (!meets_itself(&covered))
        return ATTN_OK;
    covered = area_in_use(x->set, x->field, -1);
    return meets_itself(&covered) ? bad_rows(x, why) : ATTN_OK;
}

/* The arrays of several sets that a call has. */
typedef struct array_list {
    int n;
    struct {
        unsigned char set, field;
    } at[2 * COUNT_OF(call_fields)];
} array_list;

static void list_arrays(const array_set *sets, int n, array_list *list)
{
    int s, i;
    list->n = 0;
    for (s = 0; s < n; s++)
        for (i = 0; i < sets[s].n; i++)
            if (takes_part(&sets[s], &sets[s].table[i])) {
                ATTN_ASSERT(list->n < COUNT_OF(list->at));
                list->at[list->n].set = (unsigned char)s;
                list->at[list->n++].field = (unsigned char)i;
            }
}

/* What a call writes: `memory` unless there is none, then arrays in their order. */
typedef struct written_list {
    int n;
    operand at[9]; /* All results of attn_forward, and the workspace. */
} written_list;

static void add_written(written_list *written, operand x)
{
    ATTN_ASSERT(written->n < COUNT_OF(written->at));
    written->at[written->n++] = x;
}

/* check_array_apart compares an array with the first `count` operands that the call writes. */
static attn_status check_array_apart(const operand *x, const operand *written, int count, text *why)
{
    attn_status status = x->field->output ? check_rows_apart(x, why) : ATTN_OK;
    int i;
    for (i = 0; i < count && !status; i++)
        if (spans_meet(&written[i].span, &x->span) && operands_meet(&written[i], x))
            status = bad_overlap(operand_name(&written[i]), x->field->name, why);
    return status;
}

/* check_written wants every array that the first set writes, and `memory` unless it is NULL, to share
 * nothing with any other of the sets. Other sets write nothing. */
static attn_status check_written(const array_set *sets, int n, const area *memory, text *why)
{
    array_list list;
    written_list written;
    attn_status status = ATTN_OK;
    int i, own = memory != NULL;
    written.n = 0;
    if (memory)
        add_written(&written, area_operand(memory));
    list_arrays(sets, n, &list);
    for (i = 0; i < list.n && list.at[i].set == 0; i++)
        if (is_written(sets, &sets->table[list.at[i].field]))
            add_written(&written, array_operand(sets, &sets->table[list.at[i].field]));
    for (i = 0; i < list.n && !status; i++) {
        const array_set *s = &sets[list.at[i].set];
        const operand x = array_operand(s, &s->table[list.at[i].field]);
        /* One that the call writes is compared with those before it. */
        status = check_array_apart(&x, written.at, is_written(s, x.field) ? own++ : written.n, why);
    }
    return status;
}
