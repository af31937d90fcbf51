/* src/backward/items.c - items of the gradients: by batch and kv head; by rows; by keys; sums.
 * SPDX-License-Identifier: MIT
 *
 * A result that is not finite is computed again with dead pairs left out by selection: a NaN or
 * infinity that a mask hides may have met a factor of +0.
 */
#pragma once

#include "sweep.c"

/* A region is heads, rows and keys of a sequence. */
typedef struct region {
    int64_t head0, head1, i0, i1, from, to;
    int64_t bias_end; /* bias_end lies behind its rows of dBias, which may not all be in use. */
} region;

/* write_row writes a row of dK or dV, fl(total * factor), with no -0 and NaN canonical. */
static void write_row(const desk *w, const attn_output *out, int64_t dim, float *total,
                      float factor, int64_t j)
{
    float x[16];
    int64_t d;
    int i;
    for (d = 0; d < dim; d += 16) { /* The rest of the last line is +0. */
        memcpy(x, total + d, sizeof x);
        for (i = 0; i < 16; i++) {
            x[i] = x[i] * factor;
            x[i] = x[i] + 0.0f;
            x[i] = is_nan(x[i]) ? float_of(CANONICAL_NAN) : x[i];
        }
        memcpy(total + d, x, sizeof x);
    }
    store_run(w->kernels, out->dtype, out->data,
              ROW_AT(*out, &w->seq, w->kv_head, gradient_row(&w->pr->p, &w->seq, j)), total, dim);
}

/* write_keys writes dK and dV of keys `from` to `to`-1. */
static void write_keys(desk *w, int64_t from, int64_t to)
{
    const attn_params *p = &w->pr->p;
    const attn_gradients *g = w->g;
    int which;
    int64_t j;
    for (which = KEYS; which <= VALUES; which++)
        w->finite &= w->kernels->finite(w->total[which], (to - from) * w->pl->pitch[which]);
    for (j = from; j < to; j++) {
        if (w->want & WANT_DK)
            write_row(w, &g->dk, p->head_dim, w->total[KEYS] + (j - from) * w->pl->pitch[KEYS],
                      p->scale, j);
        if (w->want & WANT_DV)
            write_row(w, &g->dv, p->head_dim_v,
                      w->total[VALUES] + (j - from) * w->pl->pitch[VALUES], 1.0f, j);
    }
}

/* store_bias visits dBias of a part, where nothing is summed: it sets +0 first, and makes NaN
 * canonical at the end. */
static void store_bias(const desk *w, const region *a, int first)
{
    const attn_sum_axes *bias = w->axes;
    const attn_part *part = &w->pr->p.part;
    int64_t from[4] = { w->seq.b, a->head0, max64(0, a->i0 - part->row_begin), 0 };
    int64_t to[4] = { w->seq.b + 1, a->head1,
                      min64(a->bias_end - part->row_begin, bias->count[ATTN_AXIS_ROW]),
                      bias->count[ATTN_AXIS_KEY] };
    narrow_columns(part, &from[3], &to[3]);
    store_elements(bias, from, to, first);
}

/* take_part computes the gradients `want` of a part. */
static void take_part(desk *w, int want, const region *a)
{
    int which, again = 1;
    w->want = want;
    w->axes = &w->back->grads.bias;
    w->total_from = a->from;
    while (again) {
        w->finite = 1;
        for (which = KEYS; which <= VALUES && (want & WANT_KEYS); which++)
            clear(w->total[which], (a->to - a->from) * w->pl->pitch[which]);
        if (want & WANT_BIAS)
            store_bias(w, a, 1);
        sweep(w, a->head0, a->head1, a->i0, a->i1, a->from, a->to);
        if (want & WANT_BIAS)
            store_bias(w, a, 0);
        if (want & WANT_KEYS)
            write_keys(w, a->from, a->to);
        again = !w->finite && !w->redo;
        w->redo = 1;
    }
}

static int beside(const layout *lay)
{
    return lay->bias_beside ? WANT_BIAS : 0;
}

/* all_of gives all rows and keys of the open sequence, and these heads. */
static region all_of(const desk *w, int64_t head0, int64_t heads)
{
    const region a = { .head0 = head0,
                       .head1 = head0 + heads,
                       .i0 = w->seq.row_from,
                       .i1 = w->seq.row_to,
                       .from = w->seq.key_from,
                       .to = w->seq.key_to,
                       .bias_end = INT64_MAX };
    return a;
}

/* head_item takes all of a kv head, in five products. */
static void head_item(const call *c, char *slot, int64_t index)
{
    const problem *pr = &c->pr;
    desk *w = open_desk(c, slot);
    region a;
    w->seq = sequence_of(&pr->p, index / pr->p.num_heads_kv);
    a = all_of(w, index % pr->p.num_heads_kv * pr->group, pr->group);
    take_part(w, (w->lay->want & (WANT_DQ | WANT_KEYS)) | beside(w->lay), &a);
}

/* rows_item takes dQ of some rows of a head, in three products. Heavy causal parts come first. */
static void rows_item(const call *c, char *slot, int64_t index)
{
    const problem *pr = &c->pr;
    const layout *lay = &backward_of(c)->lay;
    const int64_t parts = ceil_div(pr->max_q_len, lay->item_rows);
    const int64_t at = parts - 1 - index % parts;
    desk *w = open_desk(c, slot);
    region a;
    index /= parts;
    w->seq = sequence_of(&pr->p, index / pr->p.num_heads_q);
    a = all_of(w, index % pr->p.num_heads_q, 1);
    a.i0 += at * lay->item_rows;
    a.i1 = min64(a.i0 + lay->item_rows, a.i1);
    a.bias_end = at == parts - 1 ? INT64_MAX : a.i0 + lay->item_rows;
    take_part(w, WANT_DQ | beside(lay), &a);
}

/* keys_item takes dK and dV of some keys of a head, in four products. */
static void keys_item(const call *c, char *slot, int64_t index)
{
    const problem *pr = &c->pr;
    const layout *lay = &backward_of(c)->lay;
    const int64_t parts = ceil_div(pr->max_kv_len, lay->item_keys);
    const int64_t at = index % parts;
    desk *w = open_desk(c, slot);
    region a;
    index /= parts;
    w->seq = sequence_of(&pr->p, index / pr->p.num_heads_kv);
    w->kv_head = index % pr->p.num_heads_kv;
    a = all_of(w, w->kv_head * pr->group, pr->group);
    a.from += at * lay->item_keys;
    a.to = min64(a.from + lay->item_keys, a.to);
    if (a.from < a.to)
        take_part(w, lay->want & WANT_KEYS, &a);
}

/* ---- what is known of a row before any key: m, r, delta, and what the sink has of it */

/* load_origin loads m and r of a row, from which p = 2^(s - m) * r is taken: from the LSE where that
 * is all there is. Statistics of (-inf, 0) are those of an empty row. An l of 0 beside another m was
 * not written by a forward call, and the gradients shall not hide it: r is then infinite. */
static void load_origin(const attn_params *p, const sequence *s, int64_t head, int64_t row,
                        float *m, float *r)
{
    const float *stats = (const float *)p->stats.data, *lse = (const float *)p->lse.data;
    const int64_t at = ROW_AT(p->stats, s, head, row);
    const float from = stats ? stats[at] : lse[ROW_AT(p->lse, s, head, row)] * LOG2E_HI;
    const float l = stats ? stats[at + 1] : 1.0f;
    *m = is_neg_inf(from) ? 0.0f : from;
    *r = inverse_sum(is_neg_inf(from) && l == 0.0f, l);
}

/* sink_term computes -p * delta of the sink. */
static float sink_term(const attn_params *p, float sink, float m, float r, float delta)
{
    const float most = most_exponent(p);
    float x = sink * LOG2E_HI;
    if (is_neg_inf(sink))
        return 0.0f;
    x = x - m;
    x = exp2_canon(x > most ? most : x);
    x = x * r;
    return -x * delta;
}

static void row_statistics(const desk *w, grad_tile *row, int r)
{
    const backward *back = w->back;
    const attn_params *p = &w->pr->p;
    const tile *t = &row->t;
    const lane *l = &t->lanes[r];
    const int64_t at = state_row(p, &t->s, l->head, l->i), in_seq = t->s.q_row + l->i;
    const float *dlse = (const float *)back->grads.g.dlse.data;
    load_origin(p, &t->s, l->head, in_seq, &back->m[at], &back->r[at]);
    back->delta[at] = row->delta[r];
    if (dlse)
        back->delta[at] = row->delta[r] - dlse[ROW_AT(back->grads.g.dlse, &t->s, l->head, in_seq)];
    back->sink_terms[at] =
        sink_term(p, sink_of(p, l->head), back->m[at], back->r[at], back->delta[at]);
}

/* statistics_item computes delta = rowsum(dout * o) of all rows of a head. */
static void statistics_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int64_t dim = p->head_dim_v;
    const attn_tensor o = as_tensor(&p->o);
    desk *w = open_desk(c, slot);
    int64_t i;
    int r;
    w->seq = sequence_of(p, index / p->num_heads_q);
    w->head = index % p->num_heads_q;
    w->kv_head = w->head / c->pr.group;
    for (i = w->seq.row_from; i < w->seq.row_to; i += w->pl->rows) {
        grad_tile *row = pack_rows(w, 0, i, w->seq.row_to);
        load_rows(&row->t, &o, row->t.stage, dim, dim);
        turn_rows(&row->t, w->packed_o, row->t.stage, dim, dim);
        w->kernels->dots(row->delta, row->dout_t, w->packed_o, dim);
        for (r = 0; r < w->pl->rows && row->t.lanes[r].used; r++)
            row_statistics(w, row, r);
    }
}

/* ---- sums */

/* sinks_item computes dSink of a head. */
static void sinks_item(const call *c, char *slot, int64_t head)
{
    const backward *back = backward_of(c);
    const attn_params *p = &c->pr.p;
    float total = 0.0f;
    int64_t b, i, end;
    (void)slot;
    for (b = 0; b < p->batch; b++) {
        const sequence s = sequence_of(p, b);
        for (i = s.row_from; i < s.row_to; i = end) {
            float chunk = 0.0f;
            for (end = min64((i / ATTN_CHUNK + 1) * ATTN_CHUNK, s.row_to); i < end; i++)
                chunk = chunk + back->sink_terms[state_row(p, &s, head, i)];
            total = total + chunk;
        }
    }
    back->grads.g.dsinks[head] = is_nan(total) ? float_of(CANONICAL_NAN) : total + 0.0f;
}

/* take_axis tells which indices of an axis item *index takes, *from to *to-1: all if the axis is
 * summed, and up to `each` if it is kept. *index then numbers the parts of the other axes. */
static void take_axis(const attn_sum_axes *a, int axis, int64_t all, int64_t each, int64_t *index,
                      int64_t *from, int64_t *to)
{
    const int64_t parts = ceil_div(a->count[axis], each);
    *from = 0;
    *to = all;
    if (!a->kept[axis])
        return;
    *from = *index % parts * each;
    *to = min64(*from + each, a->count[axis]);
    *index /= parts;
}

static int64_t sum_items(const layout *lay, const attn_sum_axes *a)
{
    const int64_t each[4] = { 1, 1, lay->item_rows, lay->item_keys };
    int64_t items = 1;
    int axis;
    for (axis = 0; axis < 4; axis++)
        if (a->kept[axis])
            items = times(items, ceil_div(a->count[axis], each[axis]));
    return items;
}

/* sum_item takes the elements of item `index` of a sum; heads and batch entries come one after the
 * other. */
static void sum_item(const call *c, char *slot, int64_t index, int want, const attn_sum_axes *a)
{
    const attn_params *p = &c->pr.p;
    desk *w = open_desk(c, slot);
    const int64_t row_begin = a->kept[ATTN_AXIS_ROW] ? p->part.row_begin : 0;
    int64_t from[4], to[4], b;
    take_axis(a, ATTN_AXIS_KEY, INT64_MAX, w->lay->item_keys, &index, &from[3], &to[3]);
    if (a->kept[ATTN_AXIS_KEY])
        narrow_columns(&p->part, &from[3], &to[3]);
    if (from[3] == to[3])
        return;
    take_axis(a, ATTN_AXIS_ROW, INT64_MAX, w->lay->item_rows, &index, &from[2], &to[2]);
    take_axis(a, ATTN_AXIS_HEAD, p->num_heads_q, 1, &index, &from[1], &to[1]);
    take_axis(a, ATTN_AXIS_BATCH, p->batch, 1, &index, &from[0], &to[0]);
    store_elements(a, from, to, 1);
    w->want = want;
    w->axes = a;
    for (b = from[0]; b < to[0]; b++) {
        int64_t j0, j1;
        w->seq = sequence_of(p, b);
        j0 = max64(w->seq.key_from, from[3] - w->seq.column); /* Items take the caller's columns. */
        j1 = min64(to[3] - (a->kept[3] ? w->seq.column : 0), w->seq.key_to);
        sweep(w, from[1], to[1], max64(from[2] + row_begin, w->seq.row_from),
              min64(to[2], w->seq.row_to - row_begin) + row_begin, j0, j1);
    }
    store_elements(a, from, to, 0);
}

static void bias_item(const call *c, char *slot, int64_t index)
{
    sum_item(c, slot, index, WANT_BIAS, &backward_of(c)->grads.bias);
}

static void slopes_item(const call *c, char *slot, int64_t index)
{
    sum_item(c, slot, index, WANT_SLOPES, &backward_of(c)->grads.slopes);
}
