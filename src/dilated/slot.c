/* src/dilated/slot.c - a slot: an item walks over branches, classes of heads and segments; a call sees parts of them.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "plan.c"

typedef struct dilated_slot dilated_slot;

typedef struct dilated_run {
    call c; /* It comes first, as items get a pointer to it. */
    attn_dilated d;
    dilated_layout lay;
    /* These are the kernels asked for, as each call has its own number of rows. */
    const attn_kernels *kernels;
    int tile_keys;
    attn_gradients g; /* The backward call has them here with explicit strides. */
    int calls;        /* Nonzero means that something but dsinks is asked for. */
    /* A rank has positions begin to end - 1 of each sequence, and a call without ranks has all. */
    int64_t begin, end;
    /* open_keys sets K and V of the call under way; `ranks` is its own. */
    void (*open_keys)(dilated_slot *w);
    const void *ranks;
} dilated_run;

static const dilated_run *run_of(const call *c)
{
    return (const dilated_run *)(const void *)c;
}

/* A dilated_slot stands at the start of a worker's slot. */
struct dilated_slot {
    attn_params p; /* p is the call under way. */
    attn_gradients g;
    attn_status status; /* status is that of the calls so far. */
    const dilated_run *run;
    const attn_params *asked; /* asked is the problem's. */
    sequence s;
    int64_t kv_head;
    int64_t from, to; /* The rows of this item are positions from to to-1. */
    int64_t before;   /* before is the position of row 0. */
    /* The fields up to offset belong to the call under way. */
    int n; /* n is the branch. */
    int64_t class;
    head_class of;
    lattice l;
    segments at;
    int32_t offset, prefix;
    attn_view view; /* It tells which rows, keys and heads of the caller's these are. */
    /* The fields from here on lie in the slot. */
    char *base;
    float *slopes;
    const int32_t *index;  /* index has the positions of the keys of a gathered call. */
    attn_state sums, part; /* Finished results have lse or statistics from m on. */
    char *inner;
};

#define SLOT_FLOATS(w, offset) ((float *)(void *)((w)->base + (offset)))

static attn_state rows_in(const dilated_slot *w, int64_t offset, int64_t rows)
{
    return packed_states(SLOT_FLOATS(w, offset), rows, w->asked->head_dim_v);
}

/* open_slot begins kv head number `index` of the batch. */
static dilated_slot *open_slot(const call *c, char *base, int64_t index)
{
    dilated_slot *w = (dilated_slot *)(void *)base;
    const dilated_layout *lay = &run_of(c)->lay;
    w->run = run_of(c);
    w->asked = &c->pr.p;
    w->base = base;
    w->slopes = SLOT_FLOATS(w, lay->slopes);
    w->inner = base + lay->inner;
    w->s = sequence_of(w->asked, index / w->asked->num_heads_kv);
    w->kv_head = index % w->asked->num_heads_kv;
    w->s.q_row -= w->run->begin;
    w->s.kv_row -= w->run->begin;
    w->before = w->s.kv_len - w->s.q_len;
    w->from = max64(w->before, w->run->begin);
    w->to = max64(w->from, min64(w->s.kv_len, w->run->end));
    if (w->asked->causal) /* No row sees what follows. */
        w->s.kv_len = max64(w->to, min64(w->s.kv_len, w->s.prefix));
    return w;
}

static int64_t rows_of_item(const dilated_slot *w)
{
    return w->to - w->from;
}

/* open_class opens class `class` of branch n and returns 0 after the last class. */
static int open_class(dilated_slot *w, int n, int64_t class)
{
    const attn_dilated_branch *branch = &w->run->d.branches[n];
    w->n = n;
    w->class = class;
    if (!class_of(branch, w->run->c.pr.group, w->kv_head, class, &w->of))
        return 0;
    w->l = lattice_of(branch, w->of.head, w->s.kv_len);
    return 1;
}

/* end_of_call gives where the rows of a call from position `at` on end at most: segments differ in what
 * they have of a prefix. */
static int64_t end_of_call(const dilated_slot *w, int64_t at)
{
    const int64_t segment = w->l.segment;
    return w->asked->prefix ? min64(w->to, (at / segment + 1) * segment) : w->to;
}

/* each_call makes all calls of branch n, by classes of heads, then by segments. */
static void each_call(dilated_slot *w, int n, void (*take)(dilated_slot *w))
{
    int64_t class, at;
    for (class = 0; open_class(w, n, class); class ++)
        for (at = w->from; at < w->to;) {
            at = next_segments(&w->l, at, end_of_call(w, at), w->s.kv_len, &w->at);
            if (w->at.rows)
                take(w);
        }
}

/* ---- what a call sees of the caller's arrays */

static ptrdiff_t given_stride(ptrdiff_t stride, int64_t times_this)
{
    const ptrdiff_t step = stride * (ptrdiff_t)times_this;
    return step ? step : ATTN_STRIDE_BROADCAST;
}

/* view_of derives the strides of the call from those of the caller's tensor; segments become batch
 * entries. */
static attn_tensor view_of(const dilated_slot *w, const attn_tensor *t, int64_t head, int64_t row)
{
    attn_tensor view = *t;
    const int64_t at = ROW_AT(*t, &w->s, head, row);
    view.data = t->data ? (const char *)t->data + bytes_between(t->dtype, at) : NULL;
    view.stride_batch = given_stride(t->stride_seq, w->at.count > 1 ? w->l.segment : 0);
    view.stride_head = given_stride(t->stride_head, w->of.step);
    view.stride_seq = given_stride(t->stride_seq, step_of(&w->l));
    return view;
}

/* A tensor of the rows of queries. */
static attn_tensor view_rows(const dilated_slot *w, const attn_tensor *t)
{
    const int64_t position = w->at.first + w->at.row0 * w->l.dilation;
    return view_of(w, t, w->of.head, w->s.q_row + position - w->before);
}

/* A tensor of keys. */
static attn_tensor view_keys(const dilated_slot *w, const attn_tensor *t)
{
    return view_of(w, t, w->kv_head, w->s.kv_row + w->at.first);
}

static void open_own_keys(dilated_slot *w)
{
    w->p.k = view_keys(w, &w->asked->k);
    w->p.v = view_keys(w, &w->asked->v);
}

/* view_of_call tells which rows, keys and heads of the caller's the call has. */
static attn_view view_of_call(const dilated_slot *w)
{
    const attn_view v = { .batch = w->s.b,
                          .head = w->of.head,
                          .head_step = w->of.step,
                          .row = w->at.first + w->at.row0 * w->l.dilation - w->before,
                          .key = w->at.first,
                          .step = step_of(&w->l),
                          .entry = w->at.count > 1 ? w->l.segment : 0,
                          .before = w->before };
    return v;
}

/* An array of pairs: returns where its first pair lies, and makes its strides those of the call. */
static int64_t view_pairs(const dilated_slot *w, ptrdiff_t *batch, ptrdiff_t *head, ptrdiff_t *q,
                          ptrdiff_t *kv)
{
    const attn_view *v = &w->view;
    const int64_t column = w->s.column + v->key;
    const int64_t at = v->batch * *batch + v->head * *head + v->row * *q + column * *kv;
    *batch = given_stride(*q + *kv, v->entry);
    *head = given_stride(*head, w->of.step);
    *q = given_stride(*q, step_of(&w->l));
    *kv = given_stride(*kv, step_of(&w->l));
    return at;
}

/* view_mask moves a mask, `each` pairs of which share a byte, and returns which pair of the first byte
 * comes first. */
static int64_t view_mask(const dilated_slot *w, attn_mask *m, int64_t each)
{
    const int64_t at =
        view_pairs(w, &m->stride_batch, &m->stride_head, &m->stride_q, &m->stride_kv);
    const int64_t byte = floor_div(at, each);
    if (m->data)
        m->data += byte;
    return at - byte * each;
}

/* view_masks narrows the masks to the call. Segments are one array for all of its entries, as w->view
 * finds the numbers of rows and keys in it. */
static void view_masks(dilated_slot *w)
{
    const attn_params *asked = w->asked;
    const int64_t begin = w->at.first - w->l.first; /* of the segment, or of the first one */
    attn_params *p = &w->p;
    p->bool_mask = asked->bool_mask;
    p->bit_mask = asked->bit_mask;
    view_mask(w, &p->bool_mask, 1);
    w->view.bit = view_mask(w, &p->bit_mask, 8);
    if (asked->q_segments) {
        p->q_segments = query_ids(asked, &w->s);
        p->kv_segments = key_ids(asked, &w->s);
    }
    if (asked->prefix) {
        w->prefix = (int32_t)taken(&w->l, max64(0, w->s.prefix - begin));
        p->prefix = &w->prefix;
    }
    p->view = &w->view;
}

static void view_modifiers(dilated_slot *w)
{
    attn_bias bias = w->asked->bias;
    int64_t at, h;
    at = view_pairs(w, &bias.stride_batch, &bias.stride_head, &bias.stride_q, &bias.stride_kv);
    if (bias.data)
        bias.data = (const char *)bias.data + at * (int64_t)bytes_of(bias.dtype);
    w->p.bias = bias;
    for (h = 0; h < w->of.heads && w->asked->alibi_slopes; h++)
        w->slopes[h] =
            w->asked->alibi_slopes[w->s.b * w->asked->alibi_stride + w->of.head + h * w->of.step];
    w->p.alibi_slopes = w->asked->alibi_slopes ? w->slopes : NULL;
}

/* open_pairs makes w->p the call, except for tensors. */
static void open_pairs(dilated_slot *w)
{
    attn_params *p = &w->p;
    *p = *w->asked;
    strip_call(p);
    set_sizes(p, w->at.count, w->of.heads, w->at.rows, w->at.keys);
    clear_lengths(p);
    p->kernels = w->run->kernels;
    p->tile_keys = w->run->tile_keys;
    w->view = view_of_call(w);
    view_masks(w);
    view_modifiers(w);
    if (w->at.rows == w->at.keys)
        return;
    w->offset = (int32_t)w->at.row0; /* There is one segment then. */
    p->alignment = ATTN_ALIGN_OFFSET;
    p->q_offset = &w->offset;
}

/* open_call makes w->p the call, except where results go. */
static void open_call(dilated_slot *w)
{
    open_pairs(w);
    w->p.q = view_rows(w, &w->asked->q);
    w->run->open_keys(w);
}

static void run_call(dilated_slot *w)
{
    if (!w->status)
        w->status = forward_cpu(&w->p, w->inner, (size_t)w->run->lay.inner_bytes);
}

/* ask_results says where a call's finished results go: f32, packed. */
static void ask_results(dilated_slot *w)
{
    memset(&w->p.o, 0, sizeof w->p.o);
    w->p.o.data = w->part.o;
}

/* A call_row is row number `row` of a call. */
typedef struct call_row {
    int64_t head, position; /* head is its query head. */
    int64_t key;            /* It is key number `key` of the keys of all segments. */
    int64_t sum;            /* Its results go to row number `sum` of the sums. */
    int64_t row;
} call_row;

static void each_row(dilated_slot *w, void (*take)(dilated_slot *w, const call_row *at))
{
    const int64_t group = w->run->c.pr.group;
    int64_t e, h, i, row = 0;
    for (e = 0; e < w->at.count; e++)
        for (h = 0; h < w->of.heads; h++)
            for (i = w->at.row0; i < w->at.row0 + w->at.rows; i++) {
                const int64_t head = w->of.head + h * w->of.step, first = w->kv_head * group;
                const int64_t position = w->at.first + e * w->l.segment + i * w->l.dilation;
                const int64_t sum = (head - first) * rows_of_item(w) + position - w->from;
                const call_row at = { head, position, e * w->at.keys + i, sum, row++ };
                take(w, &at);
            }
}
