/* src/ring/gather.c - shards go round the ring, and wait at every rank until it has all keys (ring.gather).
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "agree.c"
#include "parts.c"

static ring_message shard_message(const ring_call *c, int step)
{
    const ring_message m = { c->base + c->pl.buffer[step % 2],
                             c->base + c->pl.buffer[(step + 1) % 2],
                             shard_bytes(&c->pl.shape, length_at(c, step)),
                             shard_bytes(&c->pl.shape, length_at(c, step + 1)) };
    return m;
}

/* pass_shards sends keys and values round the ring. Each rank takes its own, then those that come. It
 * returns what the ranks agree on. */
static attn_status pass_shards(ring_call *c, attn_status status,
                               attn_status (*take)(ring_call *c, const ring_shard *shard))
{
    const int ranks = c->pl.cuts.ranks;
    int step;
    for (step = 0; step < ranks; step++) {
        const ring_shard shard = shard_at(c, step);
        const int last = step == ranks - 1;
        if (!last) {
            const ring_message m = shard_message(c, step);
            status = begin_exchange(c->t, c->stats, &m, status);
            if (status)
                return status;
        }
        if (!status)
            status = take(c, &shard);
        if (!last)
            status = end_exchange(c->t, c->stats, status);
    }
    return agree_on_status(c->t, c->stats, status);
}

/* scatter_range copies keys or values of a range of a shard to their place in the whole
 * sequence. */
static void scatter_range(char *to, const char *from, int64_t entries, int64_t bytes, int64_t whole,
                          int64_t length, const ring_walk *keys)
{
    int64_t e;
    for (e = 0; e < entries; e++)
        memcpy(to + (e * whole + keys->range.begin) * bytes, from + (e * length + keys->at) * bytes,
               (size_t)(keys->range.count * bytes));
}

static void gather_shard(ring_call *c, const ring_shard *shard)
{
    const ring_shape *s = &c->pl.shape;
    const ring_cut *cuts = &c->pl.cuts;
    const int64_t length = shard->length, whole = cuts->length;
    char *to = c->base + c->pl.gathered;
    ring_walk keys = { 0 };
    while (next_range(cuts, shard->source, &keys)) {
        scatter_range(to, shard->data, s->entries_kv, room_of(c->p.k.dtype, s->dim), whole, length,
                      &keys);
        scatter_range(to + values_at(s, whole), shard->data + values_at(s, length), s->entries_kv,
                      room_of(c->p.v.dtype, s->dim_v), whole, length, &keys);
    }
}

/* is_last tells whether no further shard will come. */
static int is_last(const ring_call *c, const ring_shard *shard)
{
    const ring_cut *cuts = &c->pl.cuts;
    return shard->source == source_at(cuts, c->pl.rank, cuts->ranks - 1);
}

/* set_gathered_keys makes the part's keys those of all ranks. */
static void set_gathered_keys(ring_call *c)
{
    const ring_shard all = { 0, c->pl.cuts.length, c->base + c->pl.gathered };
    set_part_keys(c, &all, 0, 0, all.length);
    set_all_keys(c);
}
