/* src/api/dilated.h - dilated attention (LongNet, Ding et al. 2023, arXiv 2307.02486).
 * SPDX-License-Identifier: MIT
 *
 * Every branch cuts the sequence into segments and takes every r-th position of each; the results
 * of the branches are merged.
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
 * Positions. A sequence has kv_len positions, and each of them is a key (position 0 is the first in
 *   use, column kv_begin). The q_len rows are the
 *   last positions: all of them in training and prefill, a chunk of a prompt, or one token in
 *   decoding. Rows of a chunk have the bits that they have in one call.
 * Branches. Segment s of a branch is positions s*w to s*w + w-1, and the last may be shorter.
 *   Positions s*w + offset and every r-th after it take part, as rows and as keys, and see only
 *   each other. A branch numbers them from 0 on: causal, window and ALiBi compare these numbers,
 *   and n(j) of docs/canon.md is the number of a key in its segment.
 * The caller's numbers. All other fields go by the caller's rows, keys and heads, as in attn_forward:
 *   bias, bool_mask, bit_mask, q_segments and kv_segments, callbacks, and prefix and chunk_size, which
 *   count positions of the sequence. So a prompt, a chunk or a document has the same borders in every
 *   branch, and a window of n keys reaches n times the dilation far.
 * Dropout. The numbers are those of attn_forward, so a pair is dropped by every branch that shows it,
 *   or by none. A dropped key keeps its weight in the denominators by which branches merge.
 * Score. The callback gets the logit of a branch, with the branch's ALiBi, once for each branch that
 *   shows the pair.
 * Merging. ATTN_DILATED_LSE weighs branches by the denominators of their softmax. That is one
 *   softmax over the keys of all branches, in which a key counts once for each branch that shows it
 *   to the row. The bits are those of docs/canon.md: the branches' root states are merged in list
 *   order, and the sink last. ATTN_DILATED_MEAN gives each branch its own softmax and takes the
 *   mean over the branches of the head; a branch that leaves the row out gives 0. It excludes lse,
 *   stats, sinks and softmax1.
 * Empty rows. A row that no branch takes gives O = +0 and LSE = -inf, or the sink where there is
 *   one.
 * Variants. Strided reads q, k and v where they lie and needs memory for a block of rows. Gathered
 *   copies what takes part and merges finished results by attn_lse_merge; it is the plain variant
 *   and needs memory in proportion to the length. It refuses stats, which attn_lse_merge does not
 *   make. The two agree within a few ulp, and bit for bit with ATTN_DILATED_MEAN.
 * What may be set in p. These fields may be set: sizes (any grouping of heads), tensors with any
 *   strides and of any type but ATTN_I8, integer, rotated, k_centered, o, lse, stats, q_len,
 *   kv_len, kv_begin, cu_seqlens, scale, causal, prefix, window, chunk_size, q_segments and kv_segments, bool_mask,
 *   bit_mask, mask and mask_tile, softcap, bias, ALiBi, score, sinks, softmax1, dropout, and how to compute
 *   except backend. Every other field is refused with a sentence. Gradients take f32, f16 and bf16,
 *   and none of integer, rotated and k_centered.
 * Stack. It stays below 6.25 KiB in every build measured (tests/stack.sh).
 * Threads. A piece of work is a block of rows of the heads that share a kv head.
 */
#pragma once

#include "backward.h"

/* An attn_dilated_merge says how the results of branches become one. */
typedef enum attn_dilated_merge {
    ATTN_DILATED_LSE = 0, /* Branches are weighed by the denominators of their softmax. */
    ATTN_DILATED_MEAN = 1 /* The result is the mean over branches. */
} attn_dilated_merge;

/* An attn_dilated_variant is a way to compute the result. */
typedef enum attn_dilated_variant {
    ATTN_DILATED_STRIDED = 0, /* Keys and values are read in place. */
    ATTN_DILATED_GATHERED = 1 /* Keys and values are copied. */
} attn_dilated_variant;

/* An attn_dilated_branch is one segment length and dilation. Set it to zero, then assign. */
typedef struct attn_dilated_branch {
    /* Nonzero makes query head h begin at position (offset + h) mod dilation of a segment, as
     * LongNet has it; 0 makes every head begin at offset. */
    int rotate;
    int64_t segment;    /* w: positions of a segment; 0 makes the whole sequence one segment */
    int64_t dilation;   /* r: every r-th position takes part; 0 means 1, every position */
    int64_t offset;     /* first position of a segment that takes part, 0 to dilation - 1 */
    int64_t head_begin; /* first query head that has this branch */
    int64_t head_count; /* query heads that have it; 0 means all from head_begin on */
} attn_dilated_branch;

/* An attn_dilated is a list of branches and how to join them. Set it to zero, then assign. */
typedef struct attn_dilated {
    int merge;                           /* attn_dilated_merge */
    int variant;                         /* attn_dilated_variant of the forward call */
    int num_branches;                    /* at least 1 */
    const attn_dilated_branch *branches; /* [num_branches], merged in this order */
    /* Rows of a piece of work of the strided variant; 0 leaves the choice to the library. No bit
     * depends on it. */
    int64_t block_rows;
    /* Positions that take part, for the gathered variant: attn_dilated_index computes them once for
     * many calls with these branches. NULL computes them in each call. */
    const int32_t *index;
    /* The seq_len_kv that index was made for: at least that of the call or, with cu_seqlens, of its
     * longest sequence. */
    int64_t index_positions;
} attn_dilated;

/* attn_dilated_workspace_size() is attn_workspace_size for attn_dilated_forward: a workspace for
 * the largest lengths serves shorter calls, too. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_dilated_workspace_size(const attn_params *p, const attn_dilated *d,
                                                 size_t *bytes);

/* attn_dilated_forward() computes dilated attention and writes o, lse and stats. Returns the
 * errors of attn_dilated_workspace_size, ATTN_ERR_WORKSPACE and ATTN_ERR_CALLBACK. */
ATTN_API attn_status attn_dilated_forward(const attn_params *p, const attn_dilated *d,
                                          void *workspace, size_t workspace_bytes);

/* attn_dilated_check() is attn_check for attn_dilated_forward. */
ATTN_API const char *attn_dilated_check(const attn_params *p, const attn_dilated *d,
                                        const void *workspace, size_t workspace_bytes, char *text,
                                        size_t text_bytes);

/* attn_dilated_index_size() returns the number of entries of d->index for sequences of up to
 * `positions` positions. It returns 0 if *d is wrong, and attn_dilated_check then says why. */
ATTN_API int64_t attn_dilated_index_size(const attn_dilated *d, int64_t positions);

/* attn_dilated_index() writes an index that has room for `entries` entries.
 *
 * For each branch and each first position of its heads, ascending, it lists the positions that take
 * part. Returns ATTN_ERR_ARG if *d or positions are wrong, and ATTN_ERR_WORKSPACE if the room is
 * too small. */
ATTN_API attn_status attn_dilated_index(const attn_dilated *d, int64_t positions, int32_t *index,
                                        int64_t entries);

/* attn_dilated_backward_workspace_size() sets *bytes to the best size of a workspace for
 * attn_dilated_backward, which grows with the length. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_dilated_backward_workspace_size(const attn_params *p,
                                                          const attn_dilated *d,
                                                          const attn_gradients *g, size_t *bytes);

/* attn_dilated_backward() computes the gradients of attn_dilated_forward of *p and *d, as
 * attn_backward does those of attn_forward.
 *
 * *g may ask for dq, dk, dv and dsinks and may give dlse; it gives score_derivative together with
 * p.score; dbias and dslopes are refused. With
 * ATTN_DILATED_LSE it reads o and stats of the forward call, which must have written both, and
 * p.impl must be tiled; lse serves in place of stats as for attn_backward, and is all that a
 * gathered forward call can give. With ATTN_DILATED_MEAN it reads none of them, though p.o must be
 * set, and p.impl may have any value. Branches add up in list order in f32, so the result is
 * deterministic for any number of workers. A piece of work is a kv head of a batch entry, read in
 * place whatever d->variant says. Returns the errors of its workspace query, ATTN_ERR_WORKSPACE and
 * ATTN_ERR_CALLBACK. */
ATTN_API attn_status attn_dilated_backward(const attn_params *p, const attn_dilated *d,
                                           const attn_gradients *g, void *workspace,
                                           size_t workspace_bytes);

/* attn_dilated_backward_check() is attn_check for attn_dilated_backward. */
ATTN_API const char *attn_dilated_backward_check(const attn_params *p, const attn_dilated *d,
                                                 const attn_gradients *g, const void *workspace,
                                                 size_t workspace_bytes, char *text,
                                                 size_t text_bytes);
