/* src/ring/backward.c - the ring, backward: keys and values travel, and their gradients travel behind them.
 * SPDX-License-Identifier: MIT
 *
 * Message t holds the keys and values of step t, up to the last that a rank lacks, and behind them the
 * gradients of the keys of step t - 1, to which each rank has added its rows' share. After message R,
 * where R is the number of ranks, the gradients are home.
 *
 * With ring.gather the keys travel first, each rank computes with all of them, and then their gradients
 * travel alone.
 */
#pragma once

#include "gather.c"
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

/* A gradient_rows is rows from `at` on of an array [entries, length, dim]. */
typedef struct gradient_rows {
    float *data;
    int64_t length, at;
} gradient_rows;

static void add_rows(const gradient_rows *to, const gradient_rows *from, int64_t count,
                     int64_t entries, int64_t dim)
{
    int64_t e;
    for (e = 0; e < entries; e++)
        add_floats(to->data + (e * to->length + to->at) * dim,
                   from->data + (e * from->length + from->at) * dim, count * dim);
}

/* set_part_gradients sends gradients of a part to packed f32 arrays, which are zero where
 * attn_backward writes nothing. */
static void set_part_gradients(ring_call *c)
{
    const ring_shape *s = &c->pl.shape;
    const int64_t rows = c->p.part.row_count, keys = keys_held(&c->p);
    memset(&c->g.dq, 0, sizeof c->g.dq);
    c->g.dk = c->g.dv = c->g.dq;
    c->g.dq.data = zeros_at(c, c->pl.part_dq, s->entries_q * rows * s->dim);
    c->g.dk.data = zeros_at(c, c->pl.part_keys, gift_floats(s, keys));
    c->g.dv.data = floats_at(c, c->pl.part_keys) + dv_at(s, keys);
}

/* add_part_rows adds dq of a part to that of this rank. */
static void add_part_rows(const ring_call *c, const ring_walk *rows)
{
    const gradient_rows to = { floats_at(c, c->pl.dq), c->pl.length, rows->at };
    const gradient_rows from = { floats_at(c, c->pl.part_dq), rows->range.count, 0 };
    add_rows(&to, &from, rows->range.count, c->pl.shape.entries_q, c->pl.shape.dim);
}

/* add_key_rows adds dk and dv of `count` keys to those of others. Where data of either points, dk lies, and
 * behind its length dv. */
static void add_key_rows(const ring_shape *s, const gradient_rows *to, const gradient_rows *from,
                         int64_t count)
{
    gradient_rows dv = *to, from_dv = *from;
    dv.data += dv_at(s, to->length);
    from_dv.data += dv_at(s, from->length);
    add_rows(to, from, count, s->entries_kv, s->dim);
    add_rows(&dv, &from_dv, count, s->entries_kv, s->dim_v);
}

/* add_part_keys adds dk and dv of a part to those of the keys from `at` on of `length`. */
static void add_part_keys(const ring_call *c, int64_t length, int64_t at)
{
    const int64_t keys = keys_held(&c->p);
    const gradient_rows to = { floats_at(c, c->pl.gift), length, at };
    const gradient_rows part = { floats_at(c, c->pl.part_keys), keys, 0 };
    add_key_rows(&c->pl.shape, &to, &part, keys);
}

/* backward_range takes the keys of one range, which begin at `at` of a shard of `length`, against
 * all rows of this rank. */
static attn_status backward_range(ring_call *c, int64_t length, int64_t at)
{
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    while (!status && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        set_part_rows(c, &rows);
        if (!has_pairs(c))
            continue;
        set_part_gradients(c);
        set_part_sums(c, &rows);
        status = attn_backward(&c->p, &c->g, c->base + c->pl.work, (size_t)c->pl.work_bytes);
        add_part_rows(c, &rows);
        add_part_keys(c, length, at);
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

/* store_gradient stores rows first to end - 1 of one batch entry of an output; `from` is [entries,
 * length, dim], in which it makes NaN canonical. */
static void store_gradient(const ring_call *c, const attn_output *to, int64_t heads, int64_t dim,
                           int64_t b, int64_t first, int64_t end, float *from)
{
    const attn_kernels *kernels = c->own.kernels ? c->own.kernels : best_kernels(dim, 0);
    int64_t h, x;
    for (h = 0; to->data && h < heads; h++)
        for (x = first; x < end; x++) {
            float *row = from + ((b * heads + h) * c->pl.length + x) * dim;
            write_floats(row, row, dim);
            store_run(kernels, to->dtype, to->data,
                      b * to->stride_batch + h * to->stride_head + x * to->stride_seq, row, dim);
        }
}

/* write_gradients writes those of the rows and keys in use; `home` holds dk and dv. */
static void write_gradients(ring_call *c, float *home)
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

/* gradients_travel lets keys and their gradients go round, and leaves this rank's dk and dv at *home. */
static attn_status gradients_travel(ring_call *c, attn_status status, float **home)
{
    const int ranks = c->pl.cuts.ranks, exchanges = ranks > 1;
    int t;
    for (t = 0; t < ranks + exchanges; t++) {
        const ring_message m = backward_message(c, t);
        const ring_shard shard = shard_at(c, t);
        if (exchanges)
            status = begin_exchange(c->t, c->stats, &m, status);
        if (exchanges && status)
            return status;
        if (!status && t < ranks)
            status = backward_shard(c, &shard);
        if (exchanges)
            status = end_exchange(c->t, c->stats, status);
        if (!status && t < ranks)
            join_gifts(c, t);
    }
    *home = floats_at(c, c->pl.buffer[t % 2]);
    return agree_on_status(c->t, c->stats, status);
}

/* backward_gathered keeps a shard, and takes this rank's rows against all keys when it is the last. */
static attn_status backward_gathered(ring_call *c, const ring_shard *shard)
{
    const int64_t whole = c->pl.cuts.length;
    gather_shard(c, shard);
    if (!is_last(c, shard))
        return ATTN_OK;
    set_gathered_keys(c);
    zeros_at(c, c->pl.gift, gift_floats(&c->pl.shape, whole));
    return backward_range(c, whole, 0);
}

/* add_gift adds what this rank has for the keys of rank `source` to gradients that lie as its shard. */
static void add_gift(const ring_call *c, int source, float *data)
{
    const ring_cut *cuts = &c->pl.cuts;
    const int64_t length = share_of(cuts, source).length;
    ring_walk keys = { 0 };
    while (next_range(cuts, source, &keys)) {
        const gradient_rows to = { data, length, keys.at };
        const gradient_rows own = { floats_at(c, c->pl.gift), cuts->length, keys.range.begin };
        add_key_rows(&c->pl.shape, &to, &own, keys.range.count);
    }
}

/* gradients_gathered sends a sum for each rank's keys round, to which all ranks add, that rank last. It
 * leaves this rank's dk and dv at *home. */
static attn_status gradients_gathered(ring_call *c, attn_status status, float **home)
{
    const ring_cut *cuts = &c->pl.cuts;
    int t;
    status = pass_shards(c, status, backward_gathered);
    if (status)
        return status;
    *home = zeros_at(c, c->pl.buffer[0], gift_floats(&c->pl.shape, length_at(c, 1)));
    add_gift(c, source_at(cuts, c->pl.rank, 1), *home);
    for (t = 1; t < cuts->ranks; t++) {
        const ring_message m = { (char *)*home, c->base + c->pl.buffer[t % 2], gift_bytes(c, t),
                                 gift_bytes(c, t + 1) };
        status = begin_exchange(c->t, c->stats, &m, status);
        if (status)
            return status;
        status = end_exchange(c->t, c->stats, status);
        *home = floats_at(c, c->pl.buffer[t % 2]);
        add_gift(c, source_at(cuts, c->pl.rank, t + 1), *home);
    }
    return agree_on_status(c->t, c->stats, status);
}

OWN_FRAME static attn_status ring_gradients(ring_call *c)
{
    float *home = NULL;
    attn_status status = load_own(c);
    zeros_at(c, c->pl.dq, c->pl.shape.entries_q * c->pl.shape.dim * c->pl.length);
    zeros_at(c, c->pl.sums, c->pl.sum_floats);
    if (!status)
        status = take_sinks(c);
    status = c->pl.cuts.ring->gather ? gradients_gathered(c, status, &home)
                                     : gradients_travel(c, status, &home);
    if (!status)
        status = add_up_sums(c);
    if (status)
        return status;
    write_gradients(c, home);
    give_sums(c);
    return ATTN_OK;
}
