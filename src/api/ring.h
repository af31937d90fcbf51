/* src/api/ring.h - context parallelism: one sequence over many ranks.
 * SPDX-License-Identifier: MIT
 *
 * Each rank (a process, a machine, a thread) holds some positions of a sequence: those rows of q
 * and o, those keys of k and v. Keys and values travel round the ring, from rank r to rank r + 1,
 * while each rank computes with those that it has (Ring Attention: Liu, Zaharia, Abbeel 2023, arXiv
 * 2310.01889). How ranks talk is the caller's: four callbacks, e.g. those of attn_mpi.h.
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
 * The call. *p describes the whole problem, the same on every rank: sizes, lengths, masks, bias,
 *   per-token arrays. Only q, k, v, o, lse (and dout, dlse, dq, dk, dv) hold the rank's own
 *   positions, its ranges one after the other, in any strides; 0 = packed by the rank's length.
 *   Rows and keys are cut alike: seq_len_q = seq_len_kv. Documents of one sequence are told apart
 *   by q_segments and kv_segments. Not with cu_seqlens, kv_rows, partial, part, logits, naive.
 * Bits. A layout that cuts the sequence only where n is a multiple of 1024 is canonical: O and LSE
 *   have the bits of one process, in whatever order keys arrive, as states are merged along the
 *   tree of docs/canon.md; so has ring.gather. Other layouts are deterministic for that layout and
 *   number of ranks, within the same error bounds; info.canonical tells. So are gradients: they are
 *   not those of one process bit for bit.
 * Balance. Causal, rank 0 of a contiguous layout sees least and the last rank most. ZIGZAG gives
 *   each rank a run from the beginning and one from the end (as the training of Llama 3 does),
 *   STRIPED deals shards round robin (Brandon et al. 2023, arXiv 2311.09431). Both need several
 *   shards a rank: make ring.shard smaller where the sequence has fewer than 2 * size * 1024
 *   positions (in the others there are ranks with little or nothing) and balance matters more than
 *   bits; but each pair of a range of rows and a range of keys is a call, so that many short shards
 *   cost more than they balance. Parts that the masks by range (causal, window,
 *   chunked, lengths) leave empty are skipped; stats->pairs counts the rest.
 * Memory. The caller's workspace, any alignment and content: two shards of keys and values (in
 *   their storage type), raw states of the rank's rows, head_dim_v + 2 floats each, and what a call
 *   needs. With one shard of 1024 * 2^k keys a rank, and R ranks, a row has at most 2 log2(R)
 *   states at once. Several shards a rank wait for their neighbours: as many states more.
 *   ring.arrival merges in the order of arrival: two states, not canonical. ring.gather collects
 *   all keys and values first: one state, and memory for the whole of k and v. Backward: two shards
 *   with their gradients (f32), a shard of gradients, dq (f32), and those of a part.
 * Overlap. The exchange of the next shard begins before the present one is computed with, and is
 *   waited for after that.
 * Errors. All ranks agree on the status before anything is sent, with every exchange and before the
 *   outputs are written: what fails on one rank, its arguments, workspace, fetch, parallel_for or
 *   transport, is returned by all of them, and o, lse, dq, dk, dv are untouched on all of them.
 *   stats->failed_rank tells whose it is. Where ranks differ in a number, a length, a layout,
 *   sinks, slopes or in which arrays are given, that is ATTN_ERR_ARG on all of them. Only a rank
 *   without a usable transport returns alone.
 * Threads. As attn_forward, within a rank; transports may start their own.
 * Stack. Below 6 KiB in every build measured (tests/stack.sh).
 */
#pragma once

#include "backward.h"

/* How a rank reaches the others. Every callback gets `user` first; but for `seconds` every rank
 * calls them in the same order. None is called from two threads at once. */
typedef struct attn_transport {
    int size, rank; /* ranks, 1 to 4096; this one, from 0 on */
    void *user;
    /* The largest `value` of all ranks, which are 0 or more, on every rank; below 0 = it failed. */
    int (*agree)(void *user, int value);
    /* Begins to send to rank + 1 and to receive from rank - 1, around the ring; either may be 0
     * bytes. It may start at once, or wait for the agree that always follows and only start if that
     * gives 0. Nonzero: it failed and has begun nothing. */
    int (*begin)(void *user, const void *send, size_t send_bytes, void *receive,
                 size_t receive_bytes);
    /* Waits until what was begun is there and sent. Nonzero: it failed; then, too, the other ranks'
     * must return. */
    int (*end)(void *user);
    /* Gives up what was begun, instead of `end`, where agree tells of a failure elsewhere: after it
     * nothing of it is read or written any more, and nothing of it reaches a later exchange. */
    void (*cancel)(void *user);
    double (*seconds)(void *user); /* a clock, for the statistics; NULL = none */
} attn_transport;

typedef enum attn_ring_layout {
    ATTN_RING_CONTIGUOUS = 0, /* rank r: the r-th of R runs of whole shards */
    ATTN_RING_ZIGZAG = 1,     /* 2 R runs; rank r: numbers r and 2 R - 1 - r */
    ATTN_RING_STRIPED = 2,    /* rank r: shards r, r + R, r + 2 R, ... */
    ATTN_RING_CUSTOM = 3      /* ring.ranges */
} attn_ring_layout;

/* Positions begin .. begin + count - 1. */
typedef struct attn_ring_range {
    int64_t begin, count;
} attn_ring_range;

/* Gives the rank's own keys and values instead of p.k.data and p.v.data, packed [batch,
 * num_heads_kv, length, head_dim] and [..., head_dim_v], in p.k.dtype and p.v.dtype: from a file, a
 * decompressor. Nonzero: it failed. */
typedef int (*attn_ring_fetch_fn)(void *user, void *k, void *v);

/* What one call did on this rank. */
typedef struct attn_ring_stats {
    int failed_rank; /* whose status is returned; -1 = none failed, or parameters differ */
    int canonical;   /* the result has the bits of one process */
    int max_pending; /* states that a row had at once, the newest included */
    int64_t exchanges;
    double bytes_sent, bytes_received;
    double seconds;         /* in callbacks of the transport, by its clock */
    double pairs;           /* of query and key, all heads, that parts not skipped may see */
    int64_t calls, skipped; /* parts that were computed; that masks leave empty */
} attn_ring_stats;

/* How the call is divided. Set it to zero, then assign. The same on every rank, but for
 * transport's rank and user, fetch and stats. */
typedef struct attn_ring {
    int layout;    /* attn_ring_layout */
    int gather;    /* nonzero: all keys come to every rank first, then one call (forward only) */
    int arrival;   /* nonzero: states are merged in the order of arrival: fewer, not canonical */
    int64_t shard; /* positions: runs are cut at its multiples; 0 = 1024. Not for CUSTOM */
    const attn_ring_range *ranges; /* CUSTOM: those of rank 0, then those of rank 1, ...; each
                                    * rank's ascending; together every position once */
    const int64_t *first_range;    /* CUSTOM: [size + 1] rank r has ranges[first_range[r]] to
                                    * ranges[first_range[r + 1] - 1] */
    const attn_transport *transport;
    attn_ring_fetch_fn fetch; /* NULL = p.k.data and p.v.data */
    void *fetch_user;
    attn_ring_stats *stats; /* NULL = not wanted */
} attn_ring;

/* What a rank holds. */
typedef struct attn_ring_info {
    int canonical;   /* the layout keeps the bits of one process */
    int64_t length;  /* positions of this rank */
    int64_t ranges;  /* so many ranges */
    int64_t longest; /* the largest length of any rank */
} attn_ring_info;

/* What rank `rank` holds; of the transport only size is read. */
ATTN_API attn_status attn_ring_describe(const attn_params *p, const attn_ring *ring, int rank,
                                        attn_ring_info *info);

/* The ranges of rank `rank`, ascending, none empty, none adjoining: at most `most` of them to
 * `ranges`, which may be NULL if that is 0; how many there are to *count. */
ATTN_API attn_status attn_ring_ranges(const attn_params *p, const attn_ring *ring, int rank,
                                      attn_ring_range *ranges, int64_t most, int64_t *count);

/* Bytes of workspace that attn_ring_forward needs on this rank (pointers to data are not read,
 * lengths and offsets are). */
ATTN_API attn_status attn_ring_workspace_size(const attn_params *p, const attn_ring *ring,
                                              size_t *bytes);

/* Attention of this rank's rows to the keys of all ranks; writes o and lse. All ranks call it. */
ATTN_API attn_status attn_ring_forward(const attn_params *p, const attn_ring *ring, void *workspace,
                                       size_t workspace_bytes);

/* Says in one English sentence what is wrong on this rank, or "ok"; otherwise as attn_check. It
 * talks to nobody. */
ATTN_API const char *attn_ring_check(const attn_params *p, const attn_ring *ring,
                                     const void *workspace, size_t workspace_bytes, char *text,
                                     size_t text_bytes);

/* Gradients by q, k and v of this rank's positions, from o, lse, dout (and dlse) of its rows: sums
 * over the rows of all ranks. dbias, dsinks and dslopes are not built. */
ATTN_API attn_status attn_ring_backward_workspace_size(const attn_params *p,
                                                       const attn_gradients *g,
                                                       const attn_ring *ring, size_t *bytes);

ATTN_API attn_status attn_ring_backward(const attn_params *p, const attn_gradients *g,
                                        const attn_ring *ring, void *workspace,
                                        size_t workspace_bytes);

ATTN_API const char *attn_ring_backward_check(const attn_params *p, const attn_gradients *g,
                                              const attn_ring *ring, const void *workspace,
                                              size_t workspace_bytes, char *text,
                                              size_t text_bytes);
