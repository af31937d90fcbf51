/* src/ring_decode/ring_decode.c - decoding over ranks: each computes states of its keys, and the states travel.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "plan.c"

/* skip_scales goes to scales of the rank's key `at`. */
static const float *skip_scales(const attn_scales *x, int64_t at)
{
    return x->data ? x->data + at * stride_or(x->stride_seq, 0) : NULL;
}

/* place_keys makes tensors begin at key `at` of the rank's. */
static void place_keys(ring_call *c, int64_t at)
{
    attn_params *p = &c->p;
    if (is_scattered(p))
        return;
    p->k.data = input_at(&c->own.k, at);
    p->v.data = input_at(&c->own.v, at);
    p->k_scales.data = skip_scales(&c->own.k_scales, at);
    p->v_scales.data = skip_scales(&c->own.v_scales, at);
}

/* compute_keys puts states of keys begin to end - 1, which begin at `at` of the rank's, into a slot. */
static attn_status compute_keys(ring_call *c, int64_t slot, int64_t at, int64_t begin, int64_t end)
{
    const attn_ring_range range = { begin, end - begin };
    attn_params *p = &c->p;
    p->state = slot_states(c, (int)slot);
    clear_states(&p->state);
    if (begin >= end)
        return ATTN_OK;
    take_range(p, &range, at);
    place_keys(c, at);
    return has_pairs(c) ? attn_forward(p, c->base + c->pl.work, (size_t)c->pl.work_bytes) : ATTN_OK;
}

/* compute_nodes fills a slot for each node of a range, and moves *slot behind them. */
static attn_status compute_nodes(ring_call *c, const ring_walk *keys, int64_t *slot)
{
    const ring_cut *cuts = &c->pl.cuts;
    attn_status status = ATTN_OK;
    int64_t from, to;
    chunks_of(cuts, &keys->range, &from, &to);
    while (from < to && !status) {
        const int64_t begin = chunk_begin(cuts, from);
        next_node(&from, to);
        status = compute_keys(c, (*slot)++, keys->at + begin - keys->range.begin, begin,
                              chunk_begin(cuts, from));
    }
    return status;
}

/* add_range adds the keys of a range to the one slot of this rank, if it is not its first range. */
static attn_status add_range(ring_call *c, const ring_walk *keys, int64_t slot)
{
    const attn_ring_range *range = &keys->range;
    const int64_t to = keys->at ? c->pl.slots - 1 : slot;
    const attn_status status =
        compute_keys(c, to, keys->at, range->begin, range->begin + range->count);
    if (!status && to != slot)
        merge_slots(c, (int)slot, (int)to);
    return status;
}

static attn_status compute_own_keys(ring_call *c)
{
    int64_t slot = first_slot(&c->pl.cuts, c->pl.rank);
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    while (!status && next_range(&c->pl.cuts, c->pl.rank, &keys))
        status = c->pl.cuts.along_tree ? compute_nodes(c, &keys, &slot) : add_range(c, &keys, slot);
    return status;
}

/* states_after gives where the states lie that a rank has after `step` exchanges, and their size. */
static char *states_after(const ring_call *c, int step, int64_t *bytes)
{
    const int source = source_at(&c->pl.cuts, c->pl.rank, step);
    const int64_t slot_bytes = c->pl.slot_floats * (int64_t)sizeof(float);
    *bytes = slots_of_rank(&c->pl.cuts, source) * slot_bytes;
    return c->base + c->pl.states + first_slot(&c->pl.cuts, source) * slot_bytes;
}

static attn_status exchange_states(ring_call *c, attn_status status)
{
    int step;
    for (step = 0; step < c->pl.cuts.ranks - 1; step++) {
        ring_message m;
        m.send = states_after(c, step, &m.send_bytes);
        m.receive = states_after(c, step + 1, &m.receive_bytes);
        status = begin_exchange(c->t, c->stats, &m, status);
        if (status)
            return status;
        status = end_exchange(c->t, c->stats, status);
    }
    return agree_on_status(c->t, c->stats, status);
}

/* add_nodes adds the states of a rank's range, and moves *slot behind them. */
static void add_nodes(ring_call *c, const attn_ring_range *range, int64_t *slot)
{
    int64_t from, to;
    chunks_of(&c->pl.cuts, range, &from, &to);
    while (from < to) {
        const tree_node node = next_node(&from, to);
        add_entry(c, node, (int)(*slot)++);
    }
}

/* merge_all merges the states of all ranks and gives the slot with the result. */
static int merge_all(ring_call *c)
{
    const ring_cut *cuts = &c->pl.cuts;
    const tree_node upper = { 1, 0 }; /* Everything so far then is the lower half. */
    const int spare = (int)c->pl.slots - 1;
    int64_t slot = 0;
    int rank;
    for (rank = 0; rank < cuts->ranks; rank++) {
        ring_walk keys = { 0 };
        while (cuts->along_tree && next_range(cuts, rank, &keys))
            add_nodes(c, &keys.range, &slot);
        if (!cuts->along_tree && slots_of_rank(cuts, rank))
            add_entry(c, upper, (int)slot++);
    }
    ATTN_ASSERT(c->entry_count <= 1);
    return c->entry_count ? c->entries[0].slot : spare;
}

static attn_status write_all_rows(ring_call *c)
{
    const attn_state spare = slot_states(c, (int)c->pl.slots - 1);
    attn_state all;
    clear_states(&spare); /* It is the result of a call without keys. */
    all = slot_states(c, merge_all(c));
    c->p = c->own;
    return attn_state_finish(&c->p, &all);
}

/* ---- public functions */

OWN_FRAME static ring_call *open_ring_decode(const attn_params *p, const attn_ring *ring,
                                             attn_ring_stats *stats, void *workspace)
{
    char *base = align_memory(workspace);
    ring_call *c = (ring_call *)(void *)base;
    text none = text_in(NULL, 0);
    call_axes x;
    size_t work;
    memset(c, 0, sizeof *c);
    decode_part_bytes(p, ring, &work); /* It cannot fail, as it has passed before. */
    plan_ring_decode(p, ring, work, &c->pl);
    c->base = base;
    c->t = ring->transport;
    c->stats = stats;
    c->entries = (ring_entry *)(void *)(base + c->pl.entries);
    c->own = *p;
    hold_keys(&c->own, c->pl.length);
    resolve_sizes(&c->own);
    x = axes_of_call(&c->own);
    resolve_arrays(call_fields, COUNT_OF(call_fields), &c->own, &x, &none);
    name_shared(call_fields, COUNT_OF(call_fields), &c->own);
    c->p = c->own;
    c->p.partial = 1;
    stats->canonical = is_canonical(&c->pl.cuts);
    stats->max_pending = (int)c->pl.slots;
    return c;
}

ATTN_API attn_status attn_ring_decode_forward(const attn_params *p, const attn_ring *ring,
                                              void *workspace, size_t workspace_bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_transport(ring, &why);
    attn_ring_stats stats;
    if (status)
        return status;
    memset(&stats, 0, sizeof stats);
    stats.failed_rank = -1;
    status = check_ring_decode(p, ring, workspace, workspace_bytes, &why);
    status = agree_on_status(ring->transport, &stats, status);
    if (!status)
        status = agree_on_call(ring->transport, &stats,
                               mix_in(call_hash(p, 0, ring, ring->transport->size), p->seq_len_q));
    if (!status) {
        ring_call *c = open_ring_decode(p, ring, &stats, workspace);
        status = exchange_states(c, compute_own_keys(c));
        if (!status)
            status = write_all_rows(c);
    }
    if (ring->stats)
        *ring->stats = stats;
    return status;
}

ATTN_API attn_status attn_ring_decode_workspace_size(const attn_params *p, const attn_ring *ring,
                                                     size_t *bytes)
{
    text why = text_in(NULL, 0);
    int64_t need = 0;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_decode_query(p, ring, &why);
    if (!status)
        status = ring_decode_bytes(p, ring, &need);
    *bytes = status ? 0 : (size_t)need;
    return status;
}

ATTN_API const char *attn_ring_decode_check(const attn_params *p, const attn_ring *ring,
                                            const void *workspace, size_t workspace_bytes,
                                            char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    return verdict(check_ring_decode(p, ring, workspace, workspace_bytes, &why), buffer, &why);
}
