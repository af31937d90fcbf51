/* src/ring/forward.c - the ring, forward: states merge along the tree as keys arrive.
 * SPDX-License-Identifier: MIT
 *
 * A slot is the raw states of all rows of this rank, range by range.
 */
#pragma once

#include "../merge.c"
#include "gather.c"
#include "logits.c"

static attn_state slot_states(const ring_call *c, int slot)
{
    float *states = (float *)(void *)(c->base + c->pl.states);
    return packed_states(states + slot * c->pl.slot_floats, c->pl.rows, c->pl.shape.dim_v);
}

/* range_states gives those of a range of this rank's rows. */
static attn_state range_states(const ring_call *c, int slot, const ring_walk *rows)
{
    const attn_state s = slot_states(c, slot);
    return state_at(&s, rows->at * c->pl.shape.entries_q, s.head_dim_v);
}

/* take_slot gives a slot of empty states. */
static int take_slot(ring_call *c)
{
    char *used = c->base + c->pl.used;
    attn_state s;
    int slot = 0, i, count = 0;
    while (used[slot])
        slot++;
    ATTN_ASSERT(slot < c->pl.slots);
    used[slot] = 1;
    for (i = 0; i < c->pl.slots; i++)
        count += used[i];
    if (count > c->stats->max_pending)
        c->stats->max_pending = count;
    s = slot_states(c, slot);
    clear_states(&s);
    return slot;
}

/* merge_slots merges the states of two slots into one of them. */
static int merge_slots(ring_call *c, int lower, int upper)
{
    attn_state a, b;
    if (lower < 0 || upper < 0)
        return lower < 0 ? upper : lower;
    a = slot_states(c, lower);
    b = slot_states(c, upper);
    merge_states(&a, &b, &a);
    c->base[c->pl.used + upper] = 0;
    return lower;
}

/* entry_beside finds what a complete node merges with, NULL if that has not come: its sibling, or
 * everything so far if states do not merge along the tree. */
static ring_entry *entry_beside(const ring_call *c, tree_node node)
{
    int64_t i;
    for (i = 0; i < c->entry_count; i++)
        if (!c->pl.cuts.along_tree || are_siblings(node, c->entries[i].node))
            return &c->entries[i];
    return NULL;
}

/* add_entry adds a complete node, which together with its sibling becomes the node above. */
static void add_entry(ring_call *c, tree_node node, int slot)
{
    ring_entry *beside;
    while ((beside = entry_beside(c, node)) != NULL) {
        slot = node.index % 2 ? merge_slots(c, beside->slot, slot)
                              : merge_slots(c, slot, beside->slot);
        *beside = c->entries[--c->entry_count];
        node = parent_of(node);
    }
    beside = &c->entries[c->entry_count++];
    beside->node = node;
    beside->slot = slot;
}

/* compute_rows computes every range of this rank's rows against the keys of the part, into a new
 * slot in *slot unless the masks leave nothing. */
static attn_status compute_rows(ring_call *c, int *slot)
{
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    while (!status && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        set_part_rows(c, &rows);
        if (!has_pairs(c))
            continue;
        if (*slot < 0)
            *slot = take_slot(c);
        c->p.state = range_states(c, *slot, &rows);
        status = attn_forward(&c->p, c->base + c->pl.work, (size_t)c->pl.work_bytes);
    }
    return status;
}

/* compute_node takes the node of keys begin to end - 1, which begin at `at` of a shard. */
static attn_status compute_node(ring_call *c, tree_node node, const ring_shard *shard, int64_t at,
                                int64_t begin, int64_t end)
{
    attn_status status = ATTN_OK;
    int slot = -1;
    set_part_keys(c, shard, at, begin, end);
    if (begin < end)
        status = compute_rows(c, &slot);
    add_entry(c, node, slot);
    return status;
}

/* compute_range takes the keys of one range of a shard, node by node. */
static attn_status compute_range(ring_call *c, const ring_shard *shard, const ring_walk *keys)
{
    const ring_cut *cuts = &c->pl.cuts;
    const attn_ring_range *range = &keys->range;
    const tree_node upper = { 1, 0 }; /* Everything so far then is the lower half. */
    attn_status status = ATTN_OK;
    int64_t from, to;
    if (!cuts->along_tree)
        return compute_node(c, upper, shard, keys->at, range->begin, range->begin + range->count);
    chunks_of(cuts, range, &from, &to);
    while (from < to && !status) {
        const int64_t begin = chunk_begin(cuts, from), at = keys->at + begin - range->begin;
        const tree_node node = next_node(&from, to);
        status = compute_node(c, node, shard, at, begin, chunk_begin(cuts, from));
    }
    return status;
}

static attn_status compute_shard(ring_call *c, const ring_shard *shard)
{
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    while (!status && next_range(&c->pl.cuts, shard->source, &keys))
        status = compute_range(c, shard, &keys);
    return status ? status : logits_of_shard(c, shard);
}

/* compute_gathered keeps a shard, and computes this rank's rows against all keys when it is the last. */
static attn_status compute_gathered(ring_call *c, const ring_shard *shard)
{
    const tree_node root = { 0, 0 };
    attn_status status;
    int slot = -1;
    gather_shard(c, shard);
    if (!is_last(c, shard))
        return ATTN_OK;
    set_gathered_keys(c);
    status = compute_rows(c, &slot);
    add_entry(c, root, slot);
    return status ? status : logits_of_part(c);
}

static attn_status write_outputs(ring_call *c)
{
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    int slot = c->entry_count ? c->entries[0].slot : -1;
    ATTN_ASSERT(c->entry_count <= 1);
    if (slot < 0)
        slot = take_slot(c);
    c->p.partial = 0;
    set_all_keys(c);
    while (!status && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        const attn_state states = range_states(c, slot, &rows);
        set_part_rows(c, &rows);
        status = attn_state_finish(&c->p, &states);
    }
    return status;
}

OWN_FRAME static attn_status ring_attention(ring_call *c)
{
    attn_status status = load_own(c);
    c->p.partial = 1;
    status = pass_shards(c, status, c->pl.cuts.ring->gather ? compute_gathered : compute_shard);
    return status ? status : write_outputs(c);
}
