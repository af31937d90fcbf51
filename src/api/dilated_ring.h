/* src/api/dilated_ring.h - dilated attention of one sequence over many ranks.
 * SPDX-License-Identifier: MIT
 *
 * Each rank holds one range of positions, as in a ring, and takes the branches of its rows. Segments
 * that lie inside the range need nothing from others. Of a longer one, only the positions that take
 * part travel, and only as far as a rank that has rows of the segment. So a branch that makes its
 * segments longer and its dilation larger by one factor sends no more.
 *
 *     attn_ring ring = {0};
 *     ring.transport = &transport;                          // attn_mpi.h fills one in
 *     attn_ring_ranges(&p, &ring, rank, &range, 1, &count); // the positions of this rank
 *     p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;   // hold those only
 *     attn_dilated_ring_workspace_size(&p, &d, &ring, &need);      // d as for attn_dilated_forward
 *     if (attn_dilated_ring_forward(&p, &d, &ring, workspace, need) != ATTN_OK)   // on every rank
 *         puts(attn_dilated_ring_check(&p, &d, &ring, workspace, need, text, sizeof text));
 *
 * The call. *p and *d are equal on every rank, and *p describes the whole sequence, as for
 *   attn_ring_forward; it takes what both levels take but kv_begin and prefix, since ranks cut rows and
 *   keys alike and gather only the keys up to their last row. Bias, masks and segments have all rows
 *   and keys.
 *   Every position is a row: seq_len_q = seq_len_kv, and q_len, if given, is kv_len. d->variant is
 *   strided.
 * Layout. Each rank has one range, as in ATTN_RING_CONTIGUOUS, or in ATTN_RING_CUSTOM with ranges of
 *   any lengths. ring.gather, ring.arrival and ring.fetch are refused.
 * Bits. O, LSE and stats have the bits of attn_dilated_forward in one process, for any number of
 *   ranks and any cuts: a rank brings the keys of a segment together before it computes. dq, dk and dv
 *   have the bits of attn_dilated_backward: no gradient travels, but the rows that see a rank's keys.
 * Memory. The workspace needs the whole size that the query gives. A rank has at most two segments of
 *   a branch that reach beyond it; for each class of heads it holds their keys that take part. While
 *   these arrive it holds two messages, whose memory then serves the computation. The backward call
 *   holds the rows of these segments that take part, too: q, dout, o, stats (or lse) and dlse. With a mean it
 *   also holds o and statistics of each branch for the rank's rows, and dout of one branch, as f32.
 * Traffic. Keys arrive before the computation begins. They take as many exchanges as the rank that is
 *   furthest from keys that it needs is away: none if no segment reaches beyond a rank, one with causal
 *   if no segment has more than two ranks, at most size - 1. A key travels once for each branch and
 *   class of heads that shares it. Rows travel after keys, for the backward call: with causal to the
 *   ranks before, the long way round the ring.
 * Errors. They are those of attn_ring_forward. But rows are written as they are computed: if
 *   p.parallel_for fails on a rank, all ranks return that and o, lse and stats, or dq, dk and dv, may
 *   be written.
 *   Whatever fails before leaves them untouched.
 * Statistics. ring.stats->pairs counts those of all branches; calls, skipped and max_pending stay 0.
 * Stack. It stays below 8 KiB in every build measured (tests/stack.sh).
 */
#pragma once

#include "dilated.h"
#include "ring.h"

/* attn_dilated_ring_workspace_size() sets *bytes to what attn_dilated_ring_forward needs on this rank.
 * It talks to nobody. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_dilated_ring_workspace_size(const attn_params *p, const attn_dilated *d,
                                                      const attn_ring *ring, size_t *bytes);

/* attn_dilated_ring_forward() computes the dilated attention of this rank's rows, and writes o, lse
 * and stats.
 *
 * All ranks must call it. Returns the errors of attn_dilated_ring_workspace_size, ATTN_ERR_WORKSPACE
 * and ATTN_ERR_CALLBACK, of this rank or of another. */
ATTN_API attn_status attn_dilated_ring_forward(const attn_params *p, const attn_dilated *d,
                                               const attn_ring *ring, void *workspace,
                                               size_t workspace_bytes);

/* attn_dilated_ring_check() is attn_check for attn_dilated_ring_forward on this rank. It talks to
 * nobody. */
ATTN_API const char *attn_dilated_ring_check(const attn_params *p, const attn_dilated *d,
                                             const attn_ring *ring, const void *workspace,
                                             size_t workspace_bytes, char *text, size_t text_bytes);

/* attn_dilated_ring_backward_workspace_size() sets *bytes to what attn_dilated_ring_backward needs on
 * this rank. It talks to nobody. Returns the errors of attn_dilated_ring_workspace_size. */
ATTN_API attn_status attn_dilated_ring_backward_workspace_size(const attn_params *p,
                                                               const attn_dilated *d,
                                                               const attn_gradients *g,
                                                               const attn_ring *ring,
                                                               size_t *bytes);

/* attn_dilated_ring_backward() computes the gradients by q, k and v of this rank's positions: sums over
 * the rows of all ranks.
 *
 * *g may ask for any of dq, dk and dv, and may give dlse. dout, dlse and the gradients hold the rank's
 * own positions, as o does. It reads o and stats (or lse) as attn_dilated_backward does, and p.impl must
 * be tiled. With ATTN_DILATED_MEAN it reads neither (o must be given nonetheless) and computes those of each
 * branch. dbias, dsinks and dslopes are not built. Ranks may ask for different
 * gradients; whether dlse and stats are given, and the types of o and dout, must be equal on all. All
 * ranks must call it. Returns the errors of attn_dilated_ring_forward. */
ATTN_API attn_status attn_dilated_ring_backward(const attn_params *p, const attn_dilated *d,
                                                const attn_gradients *g, const attn_ring *ring,
                                                void *workspace, size_t workspace_bytes);

/* attn_dilated_ring_backward_check() is attn_check for attn_dilated_ring_backward on this rank. It
 * talks to nobody. */
ATTN_API const char *attn_dilated_ring_backward_check(const attn_params *p, const attn_dilated *d,
                                                      const attn_gradients *g,
                                                      const attn_ring *ring, const void *workspace,
                                                      size_t workspace_bytes, char *text,
                                                      size_t text_bytes);
