/* src/ring_decode/plan.c - the plan of a rank of decoding over ranks, and what can be wrong with the call.
 * SPDX-License-Identifier: MIT
 *
 *     workspace = | alignment | ring_call | entries | used | states | work of a part |
 *
 * A slot is the raw states of all rows. Slots of rank 0 come first, then those of rank 1, and so on,
 * and at last one to compute in. Every rank has room for all of them, so messages need no buffers.
 */
#pragma once

#include "../api/ring_decode.h"
#include "../ring/ring.c"

/* slots_of_rank counts the states that a rank sends. */
static int64_t slots_of_rank(const ring_cut *c, int rank)
{
    return c->along_tree ? nodes_of_rank(c, rank) : share_of(c, rank).length > 0;
}

static int64_t first_slot(const ring_cut *c, int rank)
{
    int64_t slots = 0;
    while (rank-- > 0)
        slots = plus(slots, slots_of_rank(c, rank));
    return slots;
}

static void plan_ring_decode(const attn_params *p, const attn_ring *ring, size_t work,
                             ring_plan *pl)
{
    memset(pl, 0, sizeof *pl);
    pl->rank = ring->transport->rank;
    pl->cuts = cut_of(p, ring, ring->transport->size);
    pl->shape = shape_of(p);
    pl->length = share_of(&pl->cuts, pl->rank).length;
    pl->rows = times(pl->shape.entries_q, p->seq_len_q);
    pl->slot_floats = whole_lines(times(pl->rows, plus(pl->shape.dim_v, 2)));
    pl->slots = plus(first_slot(&pl->cuts, pl->cuts.ranks), 1);
    pl->work_bytes = work > (size_t)ADDRESS_LIMIT ? TOO_BIG : (int64_t)work;
    pl->bytes = RING_HEAD;
    pl->entries = place(&pl->bytes, pl->slots, sizeof(ring_entry));
    pl->used = place(&pl->bytes, pl->slots, 1);
    pl->states = place(&pl->bytes, times(pl->slots, pl->slot_floats), sizeof(float));
    pl->work = place(&pl->bytes, pl->work_bytes, 1);
    pl->bytes = plus(pl->bytes, ALIGNMENT - 1); /* The workspace may begin anywhere. */
}

/* decode_part_bytes sizes the largest part, as any shorter one works in its workspace. */
OWN_FRAME static attn_status decode_part_bytes(const attn_params *p, const attn_ring *ring,
                                               size_t *bytes)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    attn_params part = *p;
    part.part.keys = part.partial = 1;
    part.part.key_count = share_of(&c, ring->transport->rank).longest;
    part.kv_begin = NULL;
    return attn_workspace_size(&part, bytes);
}

OWN_FRAME static attn_status ring_decode_bytes(const attn_params *p, const attn_ring *ring,
                                               int64_t *bytes)
{
    ring_plan pl;
    size_t work;
    const attn_status status = decode_part_bytes(p, ring, &work);
    *bytes = 0;
    if (status)
        return status;
    plan_ring_decode(p, ring, work, &pl);
    *bytes = pl.bytes;
    return pl.bytes >= ADDRESS_LIMIT ? ATTN_ERR_OVERFLOW : ATTN_OK;
}

/* ---- what can be wrong */

/* check_decode_query checks what a size depends on. */
static attn_status check_decode_query(const attn_params *p, const attn_ring *ring, text *why)
{
    const attn_status status = check_level(p, ring, BY_DECODE, "decoding over ranks", why);
    if (status)
        return status;
    if (ring->gather)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.gather", ring->gather,
                         " is set, but keys of decoding over ranks stay where they are");
    if (ring->arrival)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.arrival", ring->arrival,
                         " is set, but decoding over ranks merges states in one order");
    if (ring->fetch)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "ring.fetch is set, but decoding over ranks reads k.data and v.data");
    return ATTN_OK;
}

/* hold_keys makes the call one of all rows and `length` keys, packed as the rank's tensors are. */
static void hold_keys(attn_params *held, int64_t length)
{
    held->part.keys = 1;
    held->part.key_count = length;
}

/* take_range makes the call one of a range of keys, which begins at key `at` of the rank's. Caches are told
 * so, and tensors have to begin there. */
static void take_range(attn_params *held, const attn_ring_range *range, int64_t at)
{
    held->part.key_begin = range->begin;
    held->part.key_count = range->count;
    held->part.key_row = is_scattered(held) ? at : 0;
}

/* check_own_rows wants the rank's cache to have its keys in use, range by range; strides are resolved. */
OWN_FRAME static attn_status check_own_rows(attn_params *held, const attn_ring *ring, text *why)
{
    const ring_cut c = cut_of(held, ring, ring->transport->size);
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    while (!status && is_scattered(held) && next_range(&c, ring->transport->rank, &keys)) {
        take_range(held, &keys.range, keys.at);
        status = check_sequences(held, why);
    }
    return status;
}

/* check_decode_arrays looks at what is there or, once that has passed, whether `memory` lies apart. */
OWN_FRAME static attn_status check_decode_arrays(const attn_params *p, const attn_ring *ring,
                                                 int64_t length, const area *memory, text *why)
{
    problem pr;
    attn_status status;
    pr.p = *p;
    pr.p.backend = NULL; /* Only the arguments are checked. */
    hold_keys(&pr.p, length);
    status = validate(&pr.p, &pr, 0, why);
    if (memory)
        return check_call_apart(&pr.p, memory, why);
    if (!status)
        status = check_arrays_given(&pr.p, why);
    return status || is_empty(&pr.p) ? status : check_own_rows(&pr.p, ring, why);
}

/* check_ring_decode checks everything that can be wrong on one rank. */
OWN_FRAME static attn_status check_ring_decode(const attn_params *p, const attn_ring *ring,
                                               const void *workspace, size_t bytes, text *why)
{
    const int64_t have = bytes_given(workspace, bytes);
    int64_t need, length;
    area a;
    attn_status status = check_decode_query(p, ring, why);
    if (status)
        return status;
    length = own_length(p, ring);
    status = check_decode_arrays(p, ring, length, NULL, why);
    if (status)
        return status;
    status = ring_decode_bytes(p, ring, &need);
    if (status == ATTN_ERR_OVERFLOW)
        return bad_field(why, status, "seq_len_q", p->seq_len_q,
                         ": the workspace of decoding over ranks would exceed the address space");
    if (!status && have < need)
        status = too_small(why, have, need, "attn_ring_decode_workspace_size");
    if (status)
        return status;
    a = area_of_bytes("the workspace", workspace, need);
    return check_decode_arrays(p, ring, length, &a, why);
}
