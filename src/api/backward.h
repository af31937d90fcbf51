/* src/api/backward.h - gradients of attn_forward, for training.
 * SPDX-License-Identifier: MIT
 *
 * Set p.stats.data before attn_forward, and keep p, o and stats. Then:
 *
 *     attn_gradients g = {0};                                // zero is every field's default
 *     g.dout.data = dout;                                    // like o: gradient of the loss by o
 *     g.dq.data = dq;  g.dk.data = dk;  g.dv.data = dv;      // like q, k, v
 *     size_t back;
 *     void *wb = attn_backward_workspace_size(&p, &g, &back) == ATTN_OK ? malloc(back) : NULL;
 *     if (attn_backward(&p, &g, wb, back) != ATTN_OK)
 *         puts(attn_backward_check(&p, &g, wb, back, text, sizeof text));     // char text[200];
 *     free(wb);
 *
 * Method. Probabilities are computed again from the stats (m, l) of each row, tile by tile (Dao et
 *   al. 2022, arXiv 2205.14135, algorithm 4), so memory grows with the sequence length and never
 *   with its square. With S = final logits, P = 2^(S log2(e) - m) / l, delta = rowsum(dout * o) -
 *   dlse:
 *
 *     dV = P^T dout   dP = dout V^T   dS = P * (dP - delta)   dQ = scale dS K   dK = scale dS^T Q
 *
 *   dS is multiplied by the derivative of the score callback, then gives dbias and dslopes, and is
 *   then multiplied by the derivative of softcap. With dropout, dP and the P of dV take the factor
 *   keep / (1 - dropout_p).
 * What may be set in p. k and v are f32, f16 or bf16. Refused are partial, recent, rotated, k_centered,
 *   integer, fast and skip (docs/combinations.md). p.logits is checked as attn_forward checks it, but no
 *   logits are written. Where k or v is broadcast along an axis, dk and dv still have that axis, and the
 *   caller sums over it.
 * Caches. With kv_rows, too, dk and dv are [batch, num_heads_kv, seq_len_kv, dim]: row c is column c of the
 *   sequence, wherever its key lies. Sequences that share a page each have gradients of their own by its keys.
 * Parts. The gradients of a part are those of its pairs; dk and dv of a part of the keys have its key_count
 *   keys. Its dbias has the rows that the part holds and all columns, of which a part of the keys writes its
 *   own. A sink belongs to no key: every part of the keys gives the whole dsinks of its rows, so ask one of
 *   them.
 * LSE alone. Code that comes from FlashAttention has kept the LSE and may set p.lse without
 *   p.stats. The LSE is rounded, once by the forward call and again in base 2, and P takes these
 *   errors over: its relative error grows by up to |LSE| * 2e-7 + 3e-6. That is 1e-4 at logits of
 *   500 and 2e-3 at 10,000, which is as coarse as bf16, and at a million hardly one digit is left.
 *   No P exceeds 1, whatever the error. Where both are set, stats are read.
 * Arrays that no forward call filled. Statistics of zeros give NaN or infinity in every gradient.
 *   Other numbers may be somebody's statistics, and zeros may be somebody's LSE: arrays that were
 *   never written may give gradients that look right and are wrong.
 * Textbook. p.impl = ATTN_IMPL_NAIVE holds P and dS of a head. It takes P from a softmax of its own
 *   and reads none of o, stats and lse, but one output of the forward call must still be set.
 * Backends. p.backend runs the calls that it takes, and the CPU runs the others;
 *   attn_backward_explain says why.
 * What is written. Every element of dq, dk and dv of rows and keys in use (q_len, kv_len, kv_begin)
 *   is written, and so are all of dbias, dsinks and dslopes. Rows and keys that see nothing get +0.
 *   No result is -0.
 * Accuracy. P from stats has the error that it has in the forward call, however large logits are,
 *   because S is computed again with the same bits and m is one of these numbers.
 * Cost. The backward call takes five matrix products where the forward call takes two. Each of
 *   dbias and dslopes takes two more, S and dP again, if it is a sum.
 * Masked data. A key that a mask hides from a row does not show in that row's dq, and the row does
 *   not show in the key's dk and dv, even if there are NaN or Inf.
 * Determinism. Tiled gradients have the same bits on every CPU, for any number of threads and both
 *   values of g.gemms (docs/canon.md, "Gradients"). Sums over the batch (dbias, dsinks, dslopes)
 *   add its entries in order.
 */
#pragma once

/* A score derivative returns the derivative of p.score by the logit, at the logit that p.score was
 * given. It gets p.callback_user and must be pure, as it may be asked for one pair several
 * times. */
typedef float (*attn_score_derivative_fn)(void *user, const attn_pair *at, float logit);

/* An attn_bias_gradient is the gradient of the bias, f32 [batch, num_heads_q, seq_len_q,
 * seq_len_kv]. An axis that p.bias shares (ATTN_STRIDE_BROADCAST) is summed over; it has length 1
 * here, and its stride is not used. With cu_seqlens, rows and columns start at 0 in each sequence,
 * and these axes have the length of the longest one. */
typedef struct attn_bias_gradient {
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv; /* elements; 0 means packed */
    float *data;                                              /* NULL means not wanted */
} attn_bias_gradient;

/* An attn_gradients holds what goes in beside p, and what comes out. Set it to zero, then
 * assign. */
typedef struct attn_gradients {
    /* Matrix products for a tile: 5 divides the work by batch and kv head; 7 divides it by rows and
     * then by keys, and computes S and dP twice. 0 chooses the one with which the workers finish
     * first. */
    int gemms;

    /* ---- in */

    attn_tensor dout; /* [batch, num_heads_q, seq_len_q, head_dim_v], gradient of the loss by o */
    attn_tensor dlse; /* f32, shaped and packed as p.lse, gradient by the LSE; NULL data means 0 */
    attn_score_derivative_fn score_derivative; /* given together with p.score or not at all */

    /* ---- out. NULL data means that it is not wanted. Outputs have any storage type and are packed
     * as q, k and v are, in p.layout, which counts for dout, too. */

    attn_output dq; /* [batch, num_heads_q, seq_len_q, head_dim] */
    attn_output dk; /* [batch, num_heads_kv, seq_len_kv, head_dim], summed over the group's heads */
    /* [batch, num_heads_kv, seq_len_kv, head_dim_v], summed over the group's heads. */
    attn_output dv;
    attn_bias_gradient dbias; /* gradient of p.bias */
    float *dsinks;            /* [num_heads_q], gradient of p.sinks, summed over the batch */
    /* Gradient of p.alibi_slopes, packed: [batch, num_heads_q], or [num_heads_q] summed over the
     * batch where p.alibi_stride is ATTN_STRIDE_BROADCAST. */
    float *dslopes;
} attn_gradients;

/* attn_backward_workspace_size() sets *bytes to the best size of a workspace for attn_backward.
 * Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW, ATTN_ERR_UNSUPPORTED, or ATTN_ERR_CALLBACK if a backend
 * cannot size its workspace. */
ATTN_API attn_status attn_backward_workspace_size(const attn_params *p, const attn_gradients *g,
                                                  size_t *bytes);

/* attn_backward() computes the gradients that *g asks for.
 *
 * It reads q, k, v, o, stats (or lse, where stats.data is NULL), dout, dlse and the arrays of *p.
 * Returns the errors of attn_backward_workspace_size, ATTN_ERR_WORKSPACE, and ATTN_ERR_CALLBACK if
 * parallel_for or a backend failed. */
ATTN_API attn_status attn_backward(const attn_params *p, const attn_gradients *g, void *workspace,
                                   size_t workspace_bytes);

/* attn_backward_check() is attn_check for attn_backward. */
ATTN_API const char *attn_backward_check(const attn_params *p, const attn_gradients *g,
                                         const void *workspace, size_t workspace_bytes, char *text,
                                         size_t text_bytes);

/* An attn_backward_info tells how attn_backward would run. */
typedef struct attn_backward_info {
    int impl;                 /* the attn_impl that runs: TILED or NAIVE */
    int gemms;                /* 5 or 7 */
    const char *kernels_name; /* kernel set, e.g. "portable_fma" */
    const char *backend_name; /* "cpu", the name of the backend, or "none" if neither can run it */
    /* What P is computed from: "stats", "lse" with the error that this adds, or "a softmax of its
     * own" (naive); "nothing yet" and what is missing while neither array is given; "none" if
     * backend_name is "none". */
    const char *probabilities;
    int tile_rows, tile_keys; /* query rows and keys of a tile */
    int workers;              /* largest number of workers that run at once */
    size_t workspace_bytes, workspace_bytes_per_worker; /* all of it, what each worker takes */
    /* Operations of the five products over visible pairs, without sums for dbias and dslopes and
     * without what 7 products compute twice. */
    double flops;
    char reasons[200]; /* why p.backend does not take the call, or "" */
} attn_backward_info;

/* attn_backward_explain() fills in *info with how attn_backward would run. Returns the errors of
 * attn_backward_workspace_size. */
ATTN_API attn_status attn_backward_explain(const attn_params *p, const attn_gradients *g,
                                           attn_backward_info *info);

/* ---- for authors of backends */

/* These are the axes of an attn_sum_axes. */
enum { ATTN_AXIS_BATCH, ATTN_AXIS_HEAD, ATTN_AXIS_ROW, ATTN_AXIS_KEY };

/* An attn_sum_axes is an array of gradients that are summed over axes. Element (b, h, i, column)
 * lies where the strides say, and a summed axis has stride 0. An axis of length 1 is not summed. */
typedef struct attn_sum_axes {
    float *data;         /* NULL means not wanted */
    int64_t count[4];    /* length of each axis before it is summed */
    ptrdiff_t stride[4]; /* elements between neighbours along each axis; 0 means summed */
    int kept[4];         /* nonzero for each axis that is not summed */
} attn_sum_axes;

/* An attn_gradient_call holds the gradients that a backend is asked for. */
struct attn_gradient_call {
    attn_gradients g;           /* what the caller gave, with its strides resolved */
    attn_sum_axes bias, slopes; /* where dbias and dslopes go */
};
