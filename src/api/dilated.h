/* src/api/dilated.h - dilated attention (LongNet, Ding et al. 2023, arXiv 2307.02486).
 * SPDX-License-Identifier: MIT
 *
 * Every branch cuts the sequence into segments and takes every r-th position of each; their results
 * become one.
 *
 *     attn_dilated_branch branches[3] = {0};
 *     branches[0].segment = 2048;   branches[0].dilation = 1;
 *     branches[1].segment = 8192;   branches[1].dilation = 4;   branches[1].rotate = 1;
 *     branches[2].segment = 32768;  branches[2].dilation = 16;  branches[2].rotate = 1;
 *     attn_dilated d = {0};
 *     d.num_branches = 3;  d.branches = branches;
 *     size_t need;
 *     attn_dilated_workspace_size(&p, &d, &need);            // p as for attn_forward
 *     attn_dilated_forward(&p, &d, workspace, need);
 *
 * Memory, threads, errors, strides and aliasing are as in the conventions at the top: nothing
 * allocates, and after an error nothing was written. Stack below 5 KiB in every build measured
 * (tests/stack.sh).
 */
#pragma once

#include "backward.h"

/* ---------------------------------------------------------------------------------------------
 * 2  Dilated attention
 *
 * Positions. A sequence has kv_len positions, keys all of them; the q_len rows are the last ones:
 *   all positions in training and prefill, a chunk of a prompt, or one token (decoding). Rows of a
 *   chunk have the bits of those rows in one call.
 * Branches. Segment s of a branch is positions s*w .. s*w + w-1, the last may be shorter; positions
 *   s*w + offset, then every r-th, take part in it, as rows and as keys, and see only each other.
 *   A branch counts them: causal, window and ALiBi compare these numbers, n(j) of docs/canon.md is
 *   the number of a key in its segment. Bias and bool_mask have the caller's rows and keys.
 * Merging. ATTN_DILATED_LSE weighs branches by the denominators of their softmax: one softmax over
 *   the keys of all of them, a key counted once for each branch that shows it to the row. The bits
 *   are those of docs/canon.md: the branches' root states, merged in list order, then the sink.
 *   ATTN_DILATED_MEAN gives each its own softmax and takes the mean over the branches of the head,
 *   of which those that leave the row out give 0. Without lse, sinks and softmax1.
 * Rows that no branch takes are empty: O = +0, LSE = -inf (with a sink: the sink).
 * Variants. Strided reads q, k and v where they lie and needs memory for a block of rows. Gathered,
 *   the plain one, copies what takes part and merges finished results by attn_lse_merge: memory in
 *   proportion to the length; within a few ulp of the other, in a mean bit for bit.
 * What may be set in p. Sizes (any grouping of heads), tensors with any strides and storage types,
 *   o, lse, q_len, kv_len, cu_seqlens, scale, causal, window, softcap, bias, bool_mask, ALiBi,
 *   sinks, softmax1, and how to compute but backend. Everything else is refused with a sentence.
 * Threads. An item is a block of rows of the heads that share a kv head, with one worker.
 * ------------------------------------------------------------------------------------------ */

typedef enum attn_dilated_merge {
    ATTN_DILATED_LSE = 0, /* weights by the denominators of softmax */
    ATTN_DILATED_MEAN = 1 /* the mean over branches */
} attn_dilated_merge;

typedef enum attn_dilated_variant {
    ATTN_DILATED_STRIDED = 0, /* in place */
    ATTN_DILATED_GATHERED = 1 /* on copies */
} attn_dilated_variant;

typedef struct attn_dilated_branch {
    int rotate;         /* nonzero: query head h begins at position (offset + h) mod dilation of a
                         * segment, as LongNet has it; 0: every head at offset */
    int64_t segment;    /* w, positions of a segment; 0 = one segment, the whole sequence */
    int64_t dilation;   /* r; 0 = 1, every position */
    int64_t offset;     /* 0 to dilation - 1 */
    int64_t head_begin; /* query heads that have this branch: head_count from head_begin on; */
    int64_t head_count; /* 0 = all from there on */
} attn_dilated_branch;

/* Set it to zero, then assign. */
typedef struct attn_dilated {
    int merge;        /* attn_dilated_merge */
    int variant;      /* attn_dilated_variant; of the forward call */
    int num_branches; /* at least 1 */
    const attn_dilated_branch *branches;
    int64_t block_rows; /* strided: rows of an item; 0 = chosen. No bit depends on it */
    /* Gathered: positions that take part, from attn_dilated_index, computed once for many calls
     * with the same branches. NULL = computed in each call */
    const int32_t *index;
    int64_t index_positions; /* seq_len_kv it was made for, at least that of the call (with
                              * cu_seqlens: of its longest sequence) */
} attn_dilated;

/* Bytes of workspace that are best; less works, too, with fewer workers, down to what one needs.
 * Asked for with the largest seq_len_q and seq_len_kv it serves shorter calls that differ in
 * nothing else (but where impl = AUTO changes to NAIVE). */
ATTN_API attn_status attn_dilated_workspace_size(const attn_params *p, const attn_dilated *d,
                                                 size_t *bytes);

/* Writes o and lse. */
ATTN_API attn_status attn_dilated_forward(const attn_params *p, const attn_dilated *d,
                                          void *workspace, size_t workspace_bytes);

/* Says in one English sentence what is wrong, or "ok"; otherwise as attn_check. */
ATTN_API const char *attn_dilated_check(const attn_params *p, const attn_dilated *d,
                                        const void *workspace, size_t workspace_bytes, char *text,
                                        size_t text_bytes);

/* Entries of d->index for sequences of up to `positions` positions; 0 if *d is wrong, see
 * attn_dilated_check. */
ATTN_API int64_t attn_dilated_index_size(const attn_dilated *d, int64_t positions);

/* Writes it: for each branch and each first position of its heads, ascending, the positions that
 * take part. */
ATTN_API attn_status attn_dilated_index(const attn_dilated *d, int64_t positions, int32_t *index,
                                        int64_t entries);

/* Gradients: as attn_backward, of the call that attn_dilated_forward made of the same p and d. With
 * ATTN_DILATED_LSE it reads the o and lse of that call, which must have had both; with a mean
 * neither, though p.o must be set all the same. g may ask for dq, dk, dv and dsinks, and give dlse;
 * dbias and dslopes are refused. Branches add up in list order in f32: deterministic for any number
 * of workers. p.impl is tiled, or with a mean any. An item is a kv head of a batch entry, in
 * strides whatever d->variant says; its memory is in proportion to the length. */
ATTN_API attn_status attn_dilated_backward_workspace_size(const attn_params *p,
                                                          const attn_dilated *d,
                                                          const attn_gradients *g, size_t *bytes);

ATTN_API attn_status attn_dilated_backward(const attn_params *p, const attn_dilated *d,
                                           const attn_gradients *g, void *workspace,
                                           size_t workspace_bytes);

ATTN_API const char *attn_dilated_backward_check(const attn_params *p, const attn_dilated *d,
                                                 const attn_gradients *g, const void *workspace,
                                                 size_t workspace_bytes, char *text,
                                                 size_t text_bytes);
