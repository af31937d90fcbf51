/* src/ring/forward.c - the ring, forward: states merge along the tree as keys arrive.
 * SPDX-License-Identifier: MIT
 *
 * A slot is the raw states of all rows of this rank, range by range.
 */
#pragma once

#include "../merge.c"
#include "agree.c"
#include "parts.c"

static attn_state slot_state(const ring_call *c, int slot)
{
    const int64_t rows = c->pl.rows;
    attn_state s;
    s.m = (float *)(void *)(c->base + c->pl.states) + slot * c->pl.slot_floats;
    s.l = s.m + rows;
    s.o = s.l + rows;
    s.num_rows = rows;
    s.head_dim_v = c->pl.shape.dim_v;
    return s;
}

/* take_slot gives a slot of empty states. */
static int take_slot(ring_call *c)
{
    char *used = c->base + c->pl.used;
    attn_state s;
    int slot = 0, i, count = 0;
    int64_t r;
    while (used[slot])
        slot++;
    ATTN_ASSERT(slot < c->pl.slots);
    used[slot] = 1;
    for (i = 0; i < c->pl.slots; i++)
        count += used[i];
    if (count > c->stats->max_pending)
        c->stats->max_pending = count;
    s = slot_state(c, slot);
    for (r = 0; r < s.num_rows; r++)
        s.m[r] = NEG_INF;
    memset(s.l, 0, (size_t)(s.num_rows * (1 + s.head_dim_v)) * sizeof *s.l);
    return slot;
}

/* merge_slots merges the states of two slots into one of them. */
static int merge_slots(ring_call *c, int lower, int upper)
{
    attn_state a, b;
    if (lower < 0 || upper < 0)
        return lower < 0 ? upper : lower;
    a = slot_state(c, lower);
    b = slot_state(c, upper);
    attn_state_merge(&a, &b, &a);
    c->base[c->pl.used + upper] = 0;
    return lower;
}

/* take_entry takes the entry of a node out of the list and returns its slot, or -2. If states do
 * not merge along the tree, it takes what has come so far. */
static int take_entry(ring_call *c, int level, int64_t index)
{
    int64_t i;
    for (i = 0; i < c->entry_count; i++) {
        const ring_entry entry = c->entries[i];
        if (entry.level != level || entry.index != index)
            continue;
        c->entries[i] = c->entries[--c->entry_count];
        return entry.slot;
    }
    return -2;
}

/* add_entry adds a complete node, which together with its sibling becomes the node above. */
static void add_entry(ring_call *c, int level, int64_t index, int slot)
{
    const int along_tree = c->pl.cuts.along_tree;
    ring_entry *entry;
    int other;
    while ((other = take_entry(c, level, along_tree ? index ^ 1 : 0)) > -2) {
        slot = along_tree && index % 2 == 0 ? merge_slots(c, slot, other)
                                            : merge_slots(c, other, slot);
        level += along_tree;
        index /= 2;
    }
    entry = &c->entries[c->entry_count++];
    entry->level = level;
    entry->index = index;
    entry->slot = slot;
}

/* compute_rows computes every range of this rank's rows against the keys of the part, into a new
 * slot in *slot unless the masks leave nothing. */
static attn_status compute_rows(ring_call *c, int *slot)
{
    attn_ring_range range;
    attn_status status = ATTN_OK;
    int64_t cursor = 0, at = 0;
    for (; !status && next_range(&c->pl.cuts, c->pl.rank, &cursor, &range); at += range.count) {
        set_part_rows(c, &range, at);
        if (!has_pairs(c))
            continue;
        if (*slot < 0)
            *slot = take_slot(c);
        c->p.state = slot_state(c, *slot);
        c->p.state.m += at * c->pl.shape.entries_q;
        c->p.state.l += at * c->pl.shape.entries_q;
        c->p.state.o += at * c->pl.shape.entries_q * c->pl.shape.dim_v;
        status = attn_forward(&c->p, c->base + c->pl.work, (size_t)c->pl.work_bytes);
    }
    return status;
}

/* compute_range takes the keys of one range, which begin at `at` of a shard of `length`, node by
 * node. */
static attn_status compute_range(ring_call *c, const char *shard, int64_t length, int64_t at,
                                 const attn_ring_range *range)
{
    const ring_cut *cuts = &c->pl.cuts;
    attn_status status = ATTN_OK;
    ring_node node = { 0, 0, 0, 0 };
    int64_t from = 0, to = 1;
    int slot;
    if (cuts->along_tree)
        chunks_of(cuts, range, &from, &to);
    while (from < to && !status) {
        if (cuts->along_tree) {
            node = next_node(cuts, &from, to);
        } else {
            node.begin = range->begin;
            node.end = range->begin + range->count;
            from = to;
        }
        slot = -1;
        set_part_keys(c, shard, length, at + node.begin - range->begin, node.begin, node.end);
        if (node.begin < node.end)
            status = compute_rows(c, &slot);
        add_entry(c, node.level, node.index, slot);
    }
    return status;
}

/* compute_shard takes the keys of rank `source`. */
static attn_status compute_shard(ring_call *c, int source, const char *shard)
{
    const int64_t length = held_by(&c->pl.cuts, source, NULL, NULL);
    attn_ring_range range;
    attn_status status = ATTN_OK;
    int64_t cursor = 0, at = 0;
    for (; !status && next_range(&c->pl.cuts, source, &cursor, &range); at += range.count)
        status = compute_range(c, shard, length, at, &range);
    return status;
}

/* scatter_range copies keys or values of a range of a shard to their place in the whole
 * sequence. */
static void scatter_range(char *to, const char *shard, int64_t entries, int64_t bytes,
                          int64_t whole, int64_t length, int64_t at, const attn_ring_range *range)
{
    int64_t e;
    for (e = 0; e < entries; e++)
        memcpy(to + (e * whole + range->begin) * bytes, shard + (e * length + at) * bytes,
               (size_t)(range->count * bytes));
}

static void gather_shard(ring_call *c, int source, const char *shard)
{
    const ring_shape *s = &c->pl.shape;
    const int64_t length = held_by(&c->pl.cuts, source, NULL, NULL), whole = c->pl.cuts.length;
    char *to = c->base + c->pl.gathered;
    attn_ring_range range;
    int64_t cursor = 0, at = 0;
    for (; next_range(&c->pl.cuts, source, &cursor, &range); at += range.count) {
        scatter_range(to, shard, s->entries_kv, s->dim * (int64_t)bytes_of(c->p.k.dtype), whole,
                      length, at, &range);
        scatter_range(to + values_at(s, whole), shard + values_at(s, length), s->entries_kv,
                      s->dim_v * (int64_t)bytes_of(c->p.v.dtype), whole, length, at, &range);
    }
}

/* compute_gathered computes this rank's rows against all keys at once. */
static attn_status compute_gathered(ring_call *c)
{
    attn_status status;
    int slot = -1;
    set_part_keys(c, c->base + c->pl.gathered, c->pl.cuts.length, 0, 0, c->pl.cuts.length);
    c->p.part.keys = 0; /* All keys count. */
    c->p.part.key_begin = c->p.part.key_count = 0;
    status = compute_rows(c, &slot);
    add_entry(c, 0, 0, slot);
    return status;
}

static ring_message forward_message(const ring_call *c, int step)
{
    const ring_cut *cuts = &c->pl.cuts;
    const int source = source_at(cuts, c->pl.rank, step);
    const int next = source_at(cuts, c->pl.rank, step + 1);
    ring_message m;
    m.send = c->base + c->pl.buffer[step % 2];
    m.receive = c->base + c->pl.buffer[(step + 1) % 2];
    m.send_bytes = shard_bytes(&c->pl.shape, held_by(cuts, source, NULL, NULL));
    m.receive_bytes = shard_bytes(&c->pl.shape, held_by(cuts, next, NULL, NULL));
    return m;
}

static attn_status write_outputs(ring_call *c)
{
    attn_ring_range range;
    attn_status status = ATTN_OK;
    int64_t cursor = 0, at = 0;
    int slot = c->entry_count ? c->entries[0].slot : -1;
    ATTN_ASSERT(c->entry_count <= 1);
    if (slot < 0)
        slot = take_slot(c);
    c->p.partial = 0;
    c->p.part.keys = 0;
    c->p.part.key_begin = c->p.part.key_count = 0;
    for (; !status && next_range(&c->pl.cuts, c->pl.rank, &cursor, &range); at += range.count) {
        attn_state state = slot_state(c, slot);
        set_part_rows(c, &range, at);
        state.m += at * c->pl.shape.entries_q;
        state.l += at * c->pl.shape.entries_q;
        state.o += at * c->pl.shape.entries_q * state.head_dim_v;
        status = attn_state_finish(&c->p, &state);
    }
    return status;
}

static attn_status ring_attention(ring_call *c)
{
    const ring_cut *cuts = &c->pl.cuts;
    attn_status status = load_own(c);
    int step;
    c->p.partial = 1;
    for (step = 0; step < cuts->ranks; step++) {
        const int source = source_at(cuts, c->pl.rank, step), last = step == cuts->ranks - 1;
        const char *shard = c->base + c->pl.buffer[step % 2];
        if (!last) {
            const ring_message m = forward_message(c, step);
            status = begin_exchange(c, &m, status);
            if (status)
                return status;
        }
        if (!status && cuts->ring->gather)
            gather_shard(c, source, shard);
        else if (!status)
            status = compute_shard(c, source, shard);
        if (!last)
            status = end_exchange(c, status);
    }
    if (!status && cuts->ring->gather)
        status = compute_gathered(c);
    status = agree_on_status(c->t, c->stats, status);
    return status ? status : write_outputs(c);
}
