/* src/api/ring.h - context parallelism: one sequence over many ranks.
 * SPDX-License-Identifier: MIT
 *
 * Each rank (a process, a machine, a thread) holds some positions of a sequence: their rows of q
 * and o, their keys of k and v. Keys and values travel round the ring, from rank r to rank r + 1,
 * while each rank computes with the ones that it has (Ring Attention: Liu, Zaharia, Abbeel 2023,
 * arXiv 2310.01889). Ranks talk through four callbacks of the caller, e.g. those of attn_mpi.h.
 *
 *     attn_ring ring = {0};                       // zero is every field's default
 *     ring.transport = &transport;                // attn_mpi.h fills one in
 *     ring.layout = ATTN_RING_ZIGZAG;             // causal: every rank has the same work
 *     attn_ring_ranges(&p, &ring, rank, ranges, most, &count);    // the positions of this rank
 *     p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;  // hold those only
 *     attn_ring_workspace_size(&p, &ring, &need);
 *     if (attn_ring_forward(&p, &ring, workspace, need) != ATTN_OK)        // on every rank
 *         puts(attn_ring_check(&p, &ring, workspace, need, text, sizeof text));
 *
 * The call. *p describes the whole problem and is equal on every rank: sizes, lengths, masks, bias,
 *   per-token arrays. Only q, k, v, o, lse, stats (and gradients) are the rank's own.
 *   They hold its ranges one after the other, in any strides; 0 means packed by the rank's length.
 *   Ranks may differ in strides and in p.layout.
 *   Rows and keys are cut alike, so seq_len_q = seq_len_kv. q_segments and kv_segments tell the
 *   documents of one sequence apart. A ring takes no cu_seqlens, kv_rows, partial, part,
 *   insight or impl naive; AUTO runs tiled.
 * Logits. p.logits gives a rank the logits of its rows against all keys, with the bits of one process.
 *   p.logits.rows counts rows of the whole sequence; ranks may list different ones, and those of other
 *   ranks are left untouched. Without a list p.logits.data has the rank's rows: [batch, num_heads_q,
 *   length, seq_len_kv]. Probabilities (stage SOFTMAX) need ring.gather. Logits are written as keys come,
 *   so after a failure they hold what had come; gradients do not look at them.
 * Bits. A layout that cuts the sequence only where n is a multiple of 1024 is canonical: O, LSE
 *   and stats have the bits of one process, in whatever order keys arrive, as states are merged
 *   along the tree of docs/canon.md. ring.gather gives these bits, too. Every other layout is
 *   deterministic for one number of ranks, within the usual error bounds. attn_ring_info.canonical
 *   says which a ring is. Gradients are deterministic for one number of ranks. With ring.gather dq has the
 *   bits of one process, if the o and stats (or lse) that the call reads have them.
 * Balance. With causal, rank 0 of a contiguous layout sees least and the last rank most. ZIGZAG
 *   gives each rank a run from the beginning and one from the end, as the training of Llama 3 does.
 *   STRIPED deals shards round robin (Brandon et al. 2023, arXiv 2311.09431). Both need several
 *   shards per rank: if the sequence has fewer than 2 * size * 1024 positions, some ranks have
 *   little or nothing. Make ring.shard smaller there if balance matters more than bits. Very short
 *   shards cost more than they balance, because each range of rows takes a call for each range of
 *   keys. Parts that causal, window, chunked and lengths leave empty are skipped;
 *   ring.stats->pairs counts the rest.
 * Memory. The workspace needs the whole size that the query gives. It holds two shards of keys and
 *   values (in their storage type), raw states of the rank's rows, head_dim_v + 2 floats each, and
 *   the workspace of a call. With R ranks and one shard of 1024 * 2^k keys per rank, a row has at
 *   most 2 log2(R) states at once; with several shards per rank, each shard that waits for its
 *   neighbour needs one more. ring.arrival merges in the order of arrival and needs two states, but
 *   is not canonical. ring.gather collects all keys and values first and needs one state and memory
 *   for all of k and v. The backward call needs two shards with their gradients (f32), a shard of
 *   gradients, dq (f32), the gradients of a part, and dbias of the rank (twice where its rows are shared).
 *   With ring.gather it needs k and v of all ranks, too, and a shard and a part of it have all keys.
 * Storage. K and V may have any type but ATTN_I8, and travel in it, so that q8_0 sends a
 *   quarter of the bytes of f32; p.integer, p.rotated and p.k_centered are taken, too. Gradients take
 *   f32, f16 and bf16, and none of the three.
 * Overlap. The exchange of the next shard begins before the computation with the present one and
 *   ends after it.
 * Errors. All ranks agree on the status before anything is sent, with every exchange and before the
 *   outputs are written. What fails on one rank (its arguments, workspace, fetch, parallel_for or
 *   transport) is returned by all of them, and the outputs but logits are untouched on all of
 *   them.
 *   ring.stats->failed_rank tells whose status it is. If ranks differ in a number, a length, a layout,
 *   sinks, slopes, in which input arrays are given or in which of dbias, dsinks and dslopes they ask
 *   for, all of them return ATTN_ERR_ARG. Only a rank without a usable transport returns alone.
 * Threads. Each rank uses workers as attn_forward does; transports may start threads of their own.
 * Stack. It stays below 7 KiB in every build measured (tests/stack.sh).
 */
#pragma once

#include "backward.h"

/* An attn_transport says how a rank reaches the others. Every callback gets `user` first. All but
 * `seconds` are called in one order on every rank, and none is called from two threads at once. */
typedef struct attn_transport {
    int size, rank; /* number of ranks, 1 to 4096, and this one, from 0 on */
    void *user;
    /* agree returns on every rank the largest `value` of all ranks; values are 0 or more. A result
     * below 0 means that it failed. */
    int (*agree)(void *user, int value);
    /* begin begins to send to rank + 1 and to receive from rank - 1, around the ring; either may be
     * 0 bytes. It may start at once. It may also wait for the agree that always follows, and start
     * only if that gives 0. Nonzero means that it failed and has begun nothing. */
    int (*begin)(void *user, const void *send, size_t send_bytes, void *receive,
                 size_t receive_bytes);
    /* end waits until everything begun is sent and has arrived. Nonzero means that it failed; the
     * other ranks' end must return even then. */
    int (*end)(void *user);
    /* cancel takes the place of end where agree tells of a failure elsewhere. It gives up the
     * exchange: nothing of it is read or written afterwards, or reaches a later exchange. */
    void (*cancel)(void *user);
    double (*seconds)(void *user); /* a clock for the statistics; NULL means none */
} attn_transport;

/* An attn_ring_layout says which positions each of R ranks holds. */
typedef enum attn_ring_layout {
    ATTN_RING_CONTIGUOUS = 0, /* Rank r has the r-th of R runs of whole shards. */
    ATTN_RING_ZIGZAG = 1,     /* Rank r has runs r and 2 R - 1 - r of 2 R runs. */
    ATTN_RING_STRIPED = 2,    /* Rank r has shards r, r + R, r + 2 R, .... */
    ATTN_RING_CUSTOM = 3      /* ring.ranges says what each rank has. */
} attn_ring_layout;

/* An attn_ring_range is positions begin to begin + count - 1. */
typedef struct attn_ring_range {
    int64_t begin, count;
} attn_ring_range;

/* A fetch callback gives the rank's own keys and values instead of p.k.data and p.v.data, from a
 * file or a decompressor. It fills k and v, packed [batch, num_heads_kv, length, head_dim] and
 * [batch, num_heads_kv, length, head_dim_v], in p.k.dtype and p.v.dtype, and returns 0, or nonzero
 * if it failed. */
typedef int (*attn_ring_fetch_fn)(void *user, void *k, void *v);

/* An attn_ring_stats tells what one call did on this rank. */
typedef struct attn_ring_stats {
    int failed_rank;   /* rank whose status is returned; -1: none failed, or parameters differ */
    int canonical;     /* nonzero: the result has the bits of one process */
    int max_pending;   /* most states that a row had at once, the newest included */
    int64_t exchanges; /* exchanges of shards, and of sums over rows */
    double bytes_sent, bytes_received;
    double seconds;         /* time in callbacks of the transport, by its clock */
    double pairs;           /* (query, key) pairs of all heads in parts that were not skipped */
    int64_t calls, skipped; /* parts that were computed, and parts that masks leave empty */
} attn_ring_stats;

/* An attn_ring says how the call is divided. Set it to zero, then assign. It must be equal on every
 * rank, except transport's rank and user, fetch and stats. */
typedef struct attn_ring {
    int layout;  /* attn_ring_layout */
    int gather;  /* nonzero brings all keys to every rank, and only then computes */
    int arrival; /* nonzero merges states in the order of arrival: fewer states, not canonical */
    /* Runs are cut at multiples of this number of positions, except in CUSTOM layouts; 0 means
     * 1024. */
    int64_t shard;
    /* For CUSTOM: the ranges of rank 0, then those of rank 1, and so on, each rank's ascending;
     * together they hold every position once. */
    const attn_ring_range *ranges;
    /* [size + 1], for CUSTOM: rank r has ranges[first_range[r]] to
     * ranges[first_range[r + 1] - 1]. */
    const int64_t *first_range;
    const attn_transport *transport;
    attn_ring_fetch_fn fetch; /* gives the rank's keys and values; NULL: p.k.data and p.v.data */
    void *fetch_user;         /* first argument of fetch */
    attn_ring_stats *stats;   /* gets what the call did; NULL means not wanted */
} attn_ring;

/* An attn_ring_info tells what a rank holds. */
typedef struct attn_ring_info {
    int canonical;   /* nonzero: the layout keeps the bits of one process */
    int64_t length;  /* positions of this rank */
    int64_t ranges;  /* ranges that they form */
    int64_t longest; /* largest length of any rank */
} attn_ring_info;

/* attn_ring_describe() fills in *info with what rank `rank` holds. Of the transport it reads only
 * size, and it talks to nobody. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_ring_describe(const attn_params *p, const attn_ring *ring, int rank,
                                        attn_ring_info *info);

/* attn_ring_ranges() lists the ranges of rank `rank`: ascending, none empty, none adjoining.
 *
 * It writes at most `most` of them to `ranges`, which may be NULL if that is 0, and sets *count to
 * how many there are. Returns the errors of attn_ring_describe. */
ATTN_API attn_status attn_ring_ranges(const attn_params *p, const attn_ring *ring, int rank,
                                      attn_ring_range *ranges, int64_t most, int64_t *count);

/* attn_ring_workspace_size() sets *bytes to what attn_ring_forward needs on this rank. It talks to
 * nobody. Returns the errors of attn_ring_describe. */
ATTN_API attn_status attn_ring_workspace_size(const attn_params *p, const attn_ring *ring,
                                              size_t *bytes);

/* attn_ring_forward() computes the attention of this rank's rows to the keys of all ranks, and
 * writes o, lse and stats.
 *
 * All ranks must call it. Returns the errors of attn_ring_workspace_size, ATTN_ERR_WORKSPACE and
 * ATTN_ERR_CALLBACK, of this rank or of another. */
ATTN_API attn_status attn_ring_forward(const attn_params *p, const attn_ring *ring, void *workspace,
                                       size_t workspace_bytes);

/* attn_ring_check() is attn_check for attn_ring_forward on this rank. It talks to nobody. */
ATTN_API const char *attn_ring_check(const attn_params *p, const attn_ring *ring,
                                     const void *workspace, size_t workspace_bytes, char *text,
                                     size_t text_bytes);

/* attn_ring_backward_workspace_size() sets *bytes to what attn_ring_backward needs on this rank.
 * Returns the errors of attn_ring_describe. */
ATTN_API attn_status attn_ring_backward_workspace_size(const attn_params *p,
                                                       const attn_gradients *g,
                                                       const attn_ring *ring, size_t *bytes);

/* attn_ring_backward() computes the gradients by q, k and v of this rank's positions, and those by
 * bias, sinks and slopes. dk and dv are sums over the rows of all ranks.
 *
 * It reads o, stats (or lse), dout and dlse of the rank's rows. dsinks, dslopes and the dbias of a bias
 * that shares its rows are sums over the rows of all ranks, too: every rank must ask for them, and gets
 * the whole sum with the same bits. Any other dbias has the rank's rows, as dq, and all columns:
 * [batch, num_heads_q, length, seq_len_kv], packed without the axes that p.bias shares. With ring.gather
 * each rank computes with the keys of all ranks, and then sums of dk and dv travel to their ranks; the
 * forward call may have been of either kind. All ranks must call it. Returns the errors of
 * attn_ring_forward. */
ATTN_API attn_status attn_ring_backward(const attn_params *p, const attn_gradients *g,
                                        const attn_ring *ring, void *workspace,
                                        size_t workspace_bytes);

/* attn_ring_backward_check() is attn_check for attn_ring_backward on this rank. It talks to
 * nobody. */
ATTN_API const char *attn_ring_backward_check(const attn_params *p, const attn_gradients *g,
                                              const attn_ring *ring, const void *workspace,
                                              size_t workspace_bytes, char *text,
                                              size_t text_bytes);
