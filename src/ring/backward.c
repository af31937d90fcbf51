/* src/ring/backward.c - the ring, backward: keys and values travel, and their gradients travel behind them.
 * SPDX-License-Identifier: MIT
 *
 * Message t holds the keys and values of step t, up to the last that a rank lacks, and behind them the
 * gradients of the keys of step t - 1, to which each rank has added its rows' share. After message R,
 * where R is the number of ranks, the gradients are home.
 */
#pragma once

#include "sums.c"

/* gift_at tells where gradients lie in the buffer of message t. */
static int64_t gift_at(const ring_call *c, int t)
{
    return t < c->pl.cuts.ranks ? shard_bytes(&c->pl.shape, length_at(c, t)) : 0;
}

static int64_t gift_bytes(const ring_call *c, int step)
{
    return gift_floats(&c->pl.shape, length_at(c, step)) * (int64_t)sizeof(float);
}

static ring_message backward_message(const ring_call *c, int t)
{
    const int keys = t <= c->pl.cuts.ranks - 2, gifts = t > 0;
    ring_message m;
    m.send = c->base + c->pl.buffer[t % 2] + (keys ? 0 : gift_at(c, t));
    m.receive = c->base + c->pl.buffer[(t + 1) % 2];
    m.send_bytes = (keys ? gift_at(c, t) : 0) + (gifts ? gift_bytes(c, t - 1) : 0);
    m.receive_bytes = (keys ? gift_at(c, t + 1) : 0) + (gifts ? gift_bytes(c, t) : 0);
    return m;
}

/* add_rows adds [entries, count, dim] to the rows from `at` on of [entries, length, dim]. */
static void add_rows(float *to, int64_t length, int64_t at, const float *from, int64_t count,
                     int64_t entries, int64_t dim)
{
    int64_t e;
    for (e = 0; e < entries; e++)
        add_floats(to + (e * length + at) * dim, from + e * count * dim, count * dim);
}

/* set_part_gradients sends gradients of a part to packed f32 arrays, which are zero where
 * attn_backward writes nothing. */
static void set_part_gradients(ring_call *c)
{
    const ring_shape *s = &c->pl.shape;
    const int64_t rows = c->p.part.row_count, keys = c->p.part.key_count;
    memset(&c->g.dq, 0, sizeof c->g.dq);
    c->g.dk = c->g.dv = c->g.dq;
    c->g.dq.data = zeros_at(c, c->pl.part_dq, s->entries_q * rows * s->dim);
    c->g.dk.data = zeros_at(c, c->pl.part_dk, s->entries_kv * keys * s->dim);
    c->g.dv.data = zeros_at(c, c->pl.part_dv, s->entries_kv * keys * s->dim_v);
}

/* backward_range takes the keys of one range, which begin at `at` of a shard of `length`, against
 * all rows of this rank. */
static attn_status backward_range(ring_call *c, int64_t length, int64_t at)
{
    const ring_shape *s = &c->pl.shape;
    float *gift = floats_at(c, c->pl.gift);
    const int64_t keys = c->p.part.key_count;
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    while (!status && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        set_part_rows(c, &rows);
        if (!has_pairs(c))
            continue;
        set_part_gradients(c);
        set_part_sums(c, &rows);
        status = attn_backward(&c->p, &c->g, c->base + c->pl.work, (size_t)c->pl.work_bytes);
        add_rows(floats_at(c, c->pl.dq), c->pl.length, rows.at, floats_at(c, c->pl.part_dq),
                 rows.range.count, s->entries_q, s->dim);
        add_rows(gift, length, at, floats_at(c, c->pl.part_dk), keys, s->entries_kv, s->dim);
        add_rows(gift + dv_at(s, length), length, at, floats_at(c, c->pl.part_dv), keys,
                 s->entries_kv, s->dim_v);
        add_part_sums(c, &rows);
    }
    return status;
}

/* backward_shard adds the rows' gradients by the keys of a shard to `gift`, and those by the rows to
 * dq. */
static attn_status backward_shard(ring_call *c, const ring_shard *shard)
{
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    zeros_at(c, c->pl.gift, gift_floats(&c->pl.shape, shard->length));
    while (!status && next_range(&c->pl.cuts, shard->source, &keys)) {
        set_part_keys(c, shard, keys.at, keys.range.begin, keys.range.begin + keys.range.count);
        status = backward_range(c, shard->length, keys.at);
    }
    return status;
}

/* store_row stores a row of f32 to an output's row `x` of this rank. */
static void store_row(const attn_output *to, int64_t b, int64_t h, int64_t x, const float *from,
                      int64_t dim)
{
    char *at = (char *)output_at(to, x);
    at += (ptrdiff_t)bytes_of(to->dtype) *
          ((ptrdiff_t)b * to->stride_batch + (ptrdiff_t)h * to->stride_head);
    attn_convert(at, to->dtype, from, ATTN_F32, (size_t)dim);
}

/* store_gradient stores rows first to end - 1 of one batch entry of an output; `from` is [entries,
 * length, dim]. */
static void store_gradient(const ring_call *c, const attn_output *to, int64_t heads, int64_t dim,
                           int64_t b, int64_t first, int64_t end, const float *from)
{
    int64_t h, x;
    for (h = 0; to->data && h < heads; h++)
        for (x = first; x < end; x++)
            store_row(to, b, h, x, from + ((b * heads + h) * c->pl.length + x) * dim, dim);
}

/* write_gradients writes those of the rows and keys in use; `home` holds dk and dv. */
static void write_gradients(ring_call *c, const float *home)
{
    const ring_shape *s = &c->pl.shape;
    const attn_gradients *g = &c->own_g;
    const ring_shard own = shard_at(c, 0);
    ring_walk w = { 0 };
    int64_t b;
    while (next_range(&c->pl.cuts, c->pl.rank, &w)) {
        set_part_rows(c, &w);
        set_part_keys(c, &own, w.at, w.range.begin, w.range.begin + w.range.count);
        for (b = 0; b < c->p.batch; b++) {
            const sequence q = sequence_of(&c->p, b);
            const int64_t row = w.at - w.range.begin, key = row + q.column;
            const int64_t heads_kv = s->entries_kv / c->p.batch;
            store_gradient(c, &g->dq, c->p.num_heads_q, s->dim, b, row + q.row_from, row + q.row_to,
                           floats_at(c, c->pl.dq));
            store_gradient(c, &g->dk, heads_kv, s->dim, b, key + q.key_from, key + q.key_to, home);
            store_gradient(c, &g->dv, heads_kv, s->dim_v, b, key + q.key_from, key + q.key_to,
                           home + dv_at(s, c->pl.length));
        }
    }
}

/* join_gifts adds what came with message t to what this rank gives. */
static void join_gifts(ring_call *c, int t)
{
    float *to = floats_at(c, c->pl.buffer[(t + 1) % 2] + gift_at(c, t + 1));
    const float *own = floats_at(c, c->pl.gift);
    if (t == 0)
        memcpy(to, own, (size_t)gift_bytes(c, t));
    else
        add_floats(to, own, gift_bytes(c, t) / (int64_t)sizeof(float));
}

OWN_FRAME static attn_status ring_gradients(ring_call *c)
{
    const ring_cut *cuts = &c->pl.cuts;
    const int exchanges = cuts->ranks > 1;
    attn_status status = load_own(c);
    int t;
    zeros_at(c, c->pl.dq, c->pl.shape.entries_q * c->pl.shape.dim * c->pl.length);
    zeros_at(c, c->pl.sums, c->pl.sum_floats);
    if (!status)
        status = take_sinks(c);
    for (t = 0; t < cuts->ranks + exchanges; t++) {
        const ring_message m = backward_message(c, t);
        const ring_shard shard = shard_at(c, t);
        if (exchanges)
            status = begin_exchange(c->t, c->stats, &m, status);
        if (exchanges && status)
            return status;
        if (!status && t < cuts->ranks)
            status = backward_shard(c, &shard);
        if (exchanges)
            status = end_exchange(c->t, c->stats, status);
        if (!status && t < cuts->ranks)
            join_gifts(c, t);
    }
    status = add_up_sums(c, status);
    if (status)
        return status;
    write_gradients(c, floats_at(c, c->pl.buffer[t % 2]));
    give_sums(c);
    return ATTN_OK;
}
