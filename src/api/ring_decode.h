/* src/api/ring_decode.h - context-parallel decoding: rows on every rank, keys over many ranks.
 * SPDX-License-Identifier: MIT
 *
 * The keys and values of a long context stay where they are. Every rank has the rows of q, attends
 * them to its own keys, and sends the raw states round the ring: head_dim_v + 2 floats for each row
 * and head, however long the context is. Then every rank has all states, merges them in one order,
 * and writes all rows.
 *
 *     attn_ring ring = {0};
 *     ring.transport = &transport;                                // attn_mpi.h fills one in
 *     ring.layout = ATTN_RING_STRIPED;                            // a growing sequence fills all ranks
 *     attn_ring_ranges(&p, &ring, rank, ranges, most, &count);    // the key positions of this rank
 *     p.k.data = k;  p.v.data = v;                                // hold those only
 *     p.q.data = q;  p.o.data = o;                                // hold all rows
 *     attn_ring_decode_workspace_size(&p, &ring, &need);
 *     if (attn_ring_decode_forward(&p, &ring, workspace, need) != ATTN_OK)        // on every rank
 *         puts(attn_ring_decode_check(&p, &ring, workspace, need, text, sizeof text));
 *
 * The call. *p describes the whole problem and is equal on every rank, as for attn_ring_forward, and
 *   it takes the fields that a ring takes, and kv_rows, k_scales and v_scales. seq_len_q is any number
 *   of rows: a token, a chunk of a prompt, rows of speculation. q, o, lse and stats have all rows on
 *   every rank, and q must have the same values there. k, v and their scales have the rank's ranges one
 *   after the other, in any strides; 0 means packed by the rank's length. They are read where they lie.
 * Caches. With kv_rows they lie in a cache of the rank: key i of its ranges, counted one after the other
 *   from 0, is where attn_rows has column i. So a packed page table has ceil(length / page_size)
 *   entries, and those without a key in use are not read. A ring has key i in row (begin[b] + i) % ring,
 *   and at least as many rows as there are keys of the rank up to the last one in use: it may wrap, but
 *   no key takes the place of an older one, whose position its rank keeps. Each rank has pages, sizes and
 *   strides of its own; one may have a cache, and another plain arrays. attn_cache_view of a rank's
 *   attn_cache gives k, v, scales and kv_rows. Set seq_len_kv, kv_len and key_base afterwards, which are
 *   equal on all ranks, and shared_keys to 0.
 * Growth. seq_len_kv is the capacity, from which the layout is made, and kv_len is the present
 *   length. A new key goes to the rank that holds its position. Ranks may still be without keys; scales of
 *   i8 are given even then.
 * Bits. attn_ring_info.canonical tells, as for a ring, whether O, LSE and stats have the bits of one
 *   process. All ranks write the same bits in every layout. In one that is not canonical, states
 *   of a rank merge in the order of its ranges, then those of ranks in the order of their numbers.
 * Memory. The workspace needs the whole size that the query gives. It holds a raw state of all rows
 *   for each node of the merge tree (docs/canon.md) that lies whole on one rank, or for each rank in
 *   a layout that is not canonical, and the workspace of a call. A contiguous range is few nodes. In
 *   a striped layout each shard is one or more, so larger shards send and hold less.
 * Traffic. It takes size - 1 exchanges, in which every state visits every rank.
 * Refused. logits, ring.gather, ring.arrival and ring.fetch, and what else a ring refuses.
 * Errors. They are those of attn_ring_forward: all ranks return one status, and unless it is ATTN_OK
 *   o, lse and stats are untouched on all of them.
 * Stack. It stays below 7 KiB in every build measured (tests/stack.sh).
 */
#pragma once

#include "ring.h"

/* attn_ring_decode_workspace_size() sets *bytes to what attn_ring_decode_forward needs on this rank.
 * It talks to nobody. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_ring_decode_workspace_size(const attn_params *p, const attn_ring *ring,
                                                     size_t *bytes);

/* attn_ring_decode_forward() computes the attention of all rows to the keys of all ranks, and writes
 * o, lse and stats on every rank.
 *
 * All ranks must call it. Returns the errors of attn_ring_decode_workspace_size,
 * ATTN_ERR_WORKSPACE and ATTN_ERR_CALLBACK, of this rank or of another. */
ATTN_API attn_status attn_ring_decode_forward(const attn_params *p, const attn_ring *ring,
                                              void *workspace, size_t workspace_bytes);

/* attn_ring_decode_check() is attn_check for attn_ring_decode_forward on this rank. It talks to
 * nobody. */
ATTN_API const char *attn_ring_decode_check(const attn_params *p, const attn_ring *ring,
                                            const void *workspace, size_t workspace_bytes,
                                            char *text, size_t text_bytes);
