/* src/ring/parts.c - parts: a range of this rank's rows against some keys of a shard.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "plan.c"

/* Strides of the rank's own tensors are those of a range of them, too. */
static call_axes own_axes(const attn_params *p, int64_t length)
{
    call_axes x = axes_of_call(p);
    x.count[AXIS_ROW] = x.count[AXIS_KEY] = length;
    return x;
}

static void resolve_own(attn_params *p, int64_t length)
{
    text none = text_in(NULL, 0);
    call_axes x;
    resolve_sizes(p);
    x = own_axes(p, length);
    resolve_arrays(call_fields, COUNT_OF(call_fields), p, &x, &none);
    name_shared(call_fields, COUNT_OF(call_fields), p);
}

static void resolve_own_gradients(const attn_params *p, attn_gradients *g, int64_t length)
{
    const call_axes x = own_axes(p, length);
    text none = text_in(NULL, 0);
    resolve_arrays(gradient_fields, COUNT_OF(gradient_fields), g, &x, &none);
    name_shared(gradient_fields, COUNT_OF(gradient_fields), g);
}

static const void *input_at(const attn_tensor *t, int64_t at)
{
    const ptrdiff_t step = stride_or(t->stride_seq, 0);
    return t->data ? (const char *)t->data + bytes_between(t->dtype, at * step) : NULL;
}

static void *output_at(const attn_output *t, int64_t at)
{
    return t->data ? (char *)t->data + (ptrdiff_t)at * t->stride_seq * (ptrdiff_t)bytes_of(t->dtype)
                   : NULL;
}

/* set_part_rows makes the part's rows a range of this rank's. */
static void set_part_rows(ring_call *c, const ring_walk *rows)
{
    attn_params *p = &c->p;
    const int64_t at = rows->at;
    p->part.rows = 1;
    p->part.row_begin = rows->range.begin;
    p->part.row_count = rows->range.count;
    p->q.data = input_at(&c->own.q, at);
    p->o.data = output_at(&c->own.o, at);
    p->lse.data = output_at(&c->own.lse, at);
    p->stats.data = output_at(&c->own.stats, at);
    c->g.dout.data = input_at(&c->own_g.dout, at);
    c->g.dlse.data = input_at(&c->own_g.dlse, at);
}

/* set_key_strides is for keys that lie packed among `length` ones. */
static void set_key_strides(attn_tensor *t, int64_t heads, int64_t length, int64_t dim)
{
    t->stride_seq = (ptrdiff_t)dim;
    t->stride_head = (ptrdiff_t)(length * dim);
    t->stride_batch = (ptrdiff_t)(heads * length * dim);
}

/* A ring_shard is the keys and values of rank `source`, which lie at `data`. */
typedef struct ring_shard {
    int source;
    int64_t length;
    const char *data;
} ring_shard;

/* length_at counts the positions of the shard that this rank has at a step. */
static int64_t length_at(const ring_call *c, int step)
{
    return share_of(&c->pl.cuts, source_at(&c->pl.cuts, c->pl.rank, step)).length;
}

static ring_shard shard_at(const ring_call *c, int step)
{
    const ring_shard shard = { source_at(&c->pl.cuts, c->pl.rank, step), length_at(c, step),
                               c->base + c->pl.buffer[step % 2] };
    return shard;
}

/* set_part_keys makes the part's keys positions begin to end - 1, which begin at `at` of a shard. */
static void set_part_keys(ring_call *c, const ring_shard *shard, int64_t at, int64_t begin,
                          int64_t end)
{
    attn_params *p = &c->p;
    const ring_shape *s = &c->pl.shape;
    const int64_t heads = p->batch ? s->entries_kv / p->batch : 0, length = shard->length;
    p->part.keys = 1;
    p->part.key_begin = begin;
    p->part.key_count = end - begin;
    p->k.data = shard->data + bytes_between(p->k.dtype, at * s->dim);
    p->v.data = shard->data + values_at(s, length) + bytes_between(p->v.dtype, at * s->dim_v);
    set_key_strides(&p->k, heads, length, s->dim);
    set_key_strides(&p->v, heads, length, s->dim_v);
}

static void set_all_keys(ring_call *c)
{
    c->p.part.keys = 0;
    c->p.part.key_begin = c->p.part.key_count = 0;
}

/* pack_own packs one tensor of the rank's own keys or values. */
static void pack_own(const ring_call *c, const attn_tensor *t, int64_t dim, char *to)
{
    const int64_t bytes = room_of(t->dtype, dim), length = c->pl.length;
    const int64_t batch = c->own.batch, heads = batch ? c->pl.shape.entries_kv / batch : 0;
    const ptrdiff_t batch_step = stride_or(t->stride_batch, 0);
    const ptrdiff_t head_step = stride_or(t->stride_head, 0);
    int64_t b, h, x;
    for (b = 0; b < batch; b++)
        for (h = 0; h < heads; h++)
            for (x = 0; x < length; x++, to += bytes)
                memcpy(to,
                       (const char *)input_at(t, x) +
                           bytes_between(t->dtype, b * batch_step + h * head_step),
                       (size_t)bytes);
}

/* load_own puts the rank's own shard into the first buffer. */
static attn_status load_own(ring_call *c)
{
    const attn_ring *ring = c->pl.cuts.ring;
    char *k = c->base + c->pl.buffer[0], *v = k + values_at(&c->pl.shape, c->pl.length);
    if (ring->fetch)
        return ring->fetch(ring->fetch_user, k, v) ? ATTN_ERR_CALLBACK : ATTN_OK;
    pack_own(c, &c->own.k, c->pl.shape.dim, k);
    pack_own(c, &c->own.v, c->pl.shape.dim_v, v);
    return ATTN_OK;
}

/* has_pairs tells whether the part has a pair that may be visible, and counts. */
static int has_pairs(ring_call *c)
{
    const double pairs = visible_pairs(&c->p);
    c->stats->pairs += pairs;
    c->stats->calls += pairs > 0;
    c->stats->skipped += !(pairs > 0);
    return pairs > 0;
}
