/* src/ring/sums.c - gradients that are sums over rows: dsinks and dslopes, and dbias with or without rows.
 * SPDX-License-Identifier: MIT
 *
 * Each rank adds up its own parts, in their order. Then the sums over the rows of all ranks go round the
 * ring twice: rank r adds its own to those of ranks 0 to r - 1, and the last rank's are everybody's. So
 * all ranks have one set of bits, and no sum depends on which others are asked for.
 */
#pragma once

#include "agree.c"
#include "parts.c"

static float *sinks_of(const ring_call *c)
{
    return floats_at(c, c->pl.sums);
}

static float *slopes_of(const ring_call *c)
{
    return sinks_of(c) + c->pl.sink_floats;
}

/* bias_of gives dbias of this rank's rows. */
static attn_sum_axes bias_of(const ring_call *c)
{
    attn_sum_axes a = c->pl.bias;
    a.data = a.data ? slopes_of(c) + c->pl.slope_floats : NULL;
    return a;
}

/* add_bias adds columns j0 to j1-1 of an array to those of one that may have more rows, from row `row`
 * on. */
static void add_bias(const attn_sum_axes *to, const attn_sum_axes *from, int64_t row, int64_t j0,
                     int64_t j1)
{
    int64_t b, h, i, j;
    for (b = 0; b < from->count[0]; b++)
        for (h = 0; h < from->count[1]; h++)
            for (i = 0; i < from->count[2]; i++)
                for (j = j0; j < j1; j++) {
                    float *x = to->data + b * to->stride[0] + h * to->stride[1] +
                               (row + i) * to->stride[2] + j * to->stride[3];
                    *x = *x + from->data[b * from->stride[0] + h * from->stride[1] +
                                         i * from->stride[2] + j * from->stride[3]];
                }
}

/* axes_of_part tells where dbias of a part goes: to its place if it sums nothing with another part. */
static attn_sum_axes axes_of_part(const ring_call *c, const ring_walk *rows)
{
    static const ptrdiff_t packed[4] = { 0, 0, 0, 0 };
    attn_sum_axes a = bias_of(c);
    if (a.kept[ATTN_AXIS_ROW])
        a.count[ATTN_AXIS_ROW] = rows->range.count;
    if (!a.data || keeps_pairs(&a)) {
        a.data = a.data ? a.data + rows->at * a.stride[ATTN_AXIS_ROW] : NULL;
        return a;
    }
    a.data = floats_at(c, c->pl.part_bias);
    pack_axes(&a, packed);
    return a;
}

/* set_part_sums sends sums of a part to arrays of its own. */
static void set_part_sums(ring_call *c, const ring_walk *rows)
{
    const attn_sum_axes a = axes_of_part(c, rows);
    const attn_bias_gradient d = { a.stride[0], a.stride[1], a.stride[2], a.stride[3], a.data };
    c->g.dbias = d;
    c->g.dsinks = NULL;
    c->g.dslopes = c->own_g.dslopes ? floats_at(c, c->pl.part_sums) : NULL;
}

static void add_part_sums(ring_call *c, const ring_walk *rows)
{
    const attn_sum_axes to = bias_of(c), from = axes_of_part(c, rows);
    const attn_part *part = &c->p.part;
    const int keys = from.kept[ATTN_AXIS_KEY];
    add_floats(slopes_of(c), floats_at(c, c->pl.part_sums), c->pl.slope_floats);
    if (from.data && !keeps_pairs(&from))
        add_bias(&to, &from, from.kept[ATTN_AXIS_ROW] ? rows->at : 0, keys ? part->key_begin : 0,
                 keys ? part->key_begin + keys_held(&c->p) : 1);
}

/* take_sinks takes dsinks of this rank's rows, from parts of no keys. */
static attn_status take_sinks(ring_call *c)
{
    const ring_shard none = { c->pl.rank, 0, c->base + c->pl.buffer[0] };
    attn_gradients g;
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    memset(&g, 0, sizeof g);
    g.dsinks = c->own_g.dsinks ? floats_at(c, c->pl.part_sums) : NULL;
    g.score_derivative = c->g.score_derivative;
    set_part_keys(c, &none, 0, 0, 0);
    while (!status && g.dsinks && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        set_part_rows(c, &rows);
        g.dout = c->g.dout;
        g.dlse = c->g.dlse;
        status = attn_backward(&c->p, &g, c->base + c->pl.work, (size_t)c->pl.work_bytes);
        add_floats(sinks_of(c), g.dsinks, c->pl.sink_floats);
    }
    return status;
}

/* add_up_sums gives every rank the sums over the rows of all ranks, and returns what the ranks agree on.
 * Message t goes on from rank t mod the number of ranks. */
static attn_status add_up_sums(ring_call *c)
{
    attn_status status = ATTN_OK;
    const int ranks = c->pl.cuts.ranks, rank = c->pl.rank;
    const int64_t floats = c->pl.shared_floats, bytes = floats * (int64_t)sizeof(float);
    float *own = sinks_of(c), *arrived = floats_at(c, c->pl.arrived);
    int t;
    for (t = 0; floats && t < 2 * (ranks - 1); t++) {
        const int receives = rank == (t + 1) % ranks;
        const ring_message m = { (const char *)own, (char *)arrived, rank == t % ranks ? bytes : 0,
                                 receives ? bytes : 0 };
        status = begin_exchange(c->t, c->stats, &m, status);
        if (status)
            return status;
        status = end_exchange(c->t, c->stats, status);
        if (receives && !status && t < ranks - 1)
            add_floats(own, arrived, floats);
        else if (receives && !status)
            memcpy(own, arrived, (size_t)bytes);
    }
    return floats ? agree_on_status(c->t, c->stats, status) : ATTN_OK;
}

/* write_floats makes NaN canonical; to may be from. */
static void write_floats(float *to, const float *from, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++)
        to[i] = is_nan(from[i]) ? float_of(CANONICAL_NAN) : from[i];
}

static void give_sums(const ring_call *c)
{
    static const int64_t begin[4] = { 0, 0, 0, 0 };
    const attn_bias_gradient *d = &c->own_g.dbias;
    const ptrdiff_t given[4] = { d->stride_batch, d->stride_head, d->stride_q, d->stride_kv };
    const attn_sum_axes from = bias_of(c);
    attn_sum_axes to = from;
    write_floats(c->own_g.dsinks, sinks_of(c), c->pl.sink_floats);
    write_floats(c->own_g.dslopes, slopes_of(c), c->pl.slope_floats);
    if (!from.data)
        return;
    to.data = d->data;
    pack_axes(&to, given);
    store_elements(&to, begin, to.count, 1);
    add_bias(&to, &from, 0, 0, to.count[ATTN_AXIS_KEY]);
    store_elements(&to, begin, to.count, 0);
}
