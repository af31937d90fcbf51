/* src/api/backward.h - gradients of attn_forward, for training.
 * SPDX-License-Identifier: MIT
 *
 * Set p.lse.data before attn_forward and its workspace query, and keep p, o and lse. Then:
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
 * Method. Probabilities are computed again from the LSE, tile by tile (Dao et al. 2022, arXiv
 *   2205.14135, algorithm 4): memory grows with the sequence length, never with its square. With
 *   S = final logits, P = exp(S - LSE), delta = rowsum(dout * o) - dlse:
 *
 *     dV = P^T dout   dP = dout V^T   dS = P * (dP - delta)   dQ = scale dS K   dK = scale dS^T Q
 *
 *   dS passes the derivative of the score callback before dbias and dslopes are taken from it, and
 *   then that of softcap. With dropout, dP and the P of dV take the factor keep / (1 - dropout_p).
 * What may be set in p. Everything but partial and kv_rows, that is caches. logits are not used,
 *   though refused where attn_forward refuses them. p.backend runs what it takes, the CPU the rest:
 *   attn_backward_explain says why. p.impl =
 *   ATTN_IMPL_NAIVE is the textbook, which materialises P and dS of a head and reads neither o nor
 *   lse (one output of the forward call must be set all the same). Where k or v is broadcast along
 *   an axis, dk and dv have that axis all the same: its sum is yours.
 * What is written. Every element of dq, dk, dv of rows and keys in use (q_len, kv_len, kv_begin);
 *   all of dbias, dsinks, dslopes. Rows and keys that see nothing get +0. Never -0.
 * Accuracy. Probabilities inherit the rounding of the LSE, which is f32: a relative error of
 *   about |LSE| 2^-24, 3e-5 at logits of 500, enters every gradient.
 * Cost. Five matrix products where the forward call has two. dbias and dslopes that are sums
 *   compute S and dP once more each.
 * Masked data. A key that a mask hides from a row does not show in that row's dq, nor the row in
 *   the key's dk and dv, NaN and Inf included.
 * Determinism. Tiled, the same bits on every CPU, for any number of threads and both values of
 *   g.gemms: docs/canon.md, "Gradients". Sums over the batch (dbias, dsinks, dslopes) go in its
 *   order.
 * Memory. The caller's workspace, any alignment and content. Stack below 4 KiB.
 * Threads. As attn_forward: p.parallel_for, p.num_workers, else OpenMP if compiled with it.
 * Aliasing. No output may overlap an input, another output or the workspace.
 * Errors. A status and, from attn_backward_check, a sentence. After an error other than
 *   ATTN_ERR_CALLBACK nothing was written.
 */
#pragma once

#include "backend.h"

/* Derivative of p.score by the logit, at the logit that p.score was given. Called on workers, may
 * overlap, must be pure: one pair may be asked for several times. Gets p.callback_user. */
typedef float (*attn_score_derivative_fn)(void *user, const attn_pair *at, float logit);

/* Gradient of the bias, f32. An axis along which p.bias has stride 0 is summed over, and has length
 * 1 here (its stride is not used); the others are those of the bias: batch, num_heads_q, seq_len_q,
 * seq_len_kv; with cu_seqlens, where rows and columns start at 0 in each sequence, those of the
 * longest one. */
typedef struct attn_bias_gradient {
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv; /* 0 = packed */
    float *data;                                              /* NULL = not wanted */
} attn_bias_gradient;

/* What goes in beside p, and what comes out. Set it to zero, then assign. */
typedef struct attn_gradients {
    int gemms; /* matrix products for a tile: 5 (work divided by batch and kv head) or 7 (by rows
                * and by keys, S and dP twice); 0 = what lets the workers end first */

    /* ---- in */
    attn_tensor dout; /* [batch, num_heads_q, seq_len_q, head_dim_v] gradient of the loss by o */
    attn_tensor dlse; /* f32, shape and packing of p.lse: gradient by lse; data NULL = 0 */
    attn_score_derivative_fn score_derivative; /* with p.score */

    /* ---- out; data NULL = not wanted. Any storage type, packed as q, k, v are */
    attn_output dq; /* [batch, num_heads_q,  seq_len_q,  head_dim] */
    attn_output dk; /* [batch, num_heads_kv, seq_len_kv, head_dim], summed over the group's heads */
    attn_output dv; /* [batch, num_heads_kv, seq_len_kv, head_dim_v], likewise */
    attn_bias_gradient dbias;
    float *dsinks;  /* [num_heads_q], with p.sinks: summed over the batch */
    float *dslopes; /* gradient of p.alibi_slopes, packed: [num_heads_q] summed over the batch, or
                     * with p.alibi_stride [batch, num_heads_q] */
} attn_gradients;

/* Bytes of workspace that are best (pointers to data are not read, lengths and offsets are); less
 * works, too, with fewer workers, down to what one needs. */
ATTN_API attn_status attn_backward_workspace_size(const attn_params *p, const attn_gradients *g,
                                                  size_t *bytes);

/* The gradients that g asks for. Reads q, k, v, o, lse, dout, dlse and the arrays of p. */
ATTN_API attn_status attn_backward(const attn_params *p, const attn_gradients *g, void *workspace,
                                   size_t workspace_bytes);

/* Says in one English sentence what is wrong, or "ok"; otherwise as attn_check. */
ATTN_API const char *attn_backward_check(const attn_params *p, const attn_gradients *g,
                                         const void *workspace, size_t workspace_bytes, char *text,
                                         size_t text_bytes);

/* What attn_backward would do. */
typedef struct attn_backward_info {
    int impl;  /* attn_impl that runs: TILED or NAIVE */
    int gemms; /* 5 or 7 */
    const char *kernels_name;
    const char *backend_name; /* "cpu" or the backend's */
    int tile_rows, tile_keys;
    int workers; /* that can run at once */
    size_t workspace_bytes, workspace_bytes_per_worker;
    double flops;      /* of the five products, visible pairs only; sums for dbias and
                                * dslopes, and what 7 computes twice, do not count */
    char reasons[200]; /* what p.backend says; "" without one */
} attn_backward_info;

ATTN_API attn_status attn_backward_explain(const attn_params *p, const attn_gradients *g,
                                           attn_backward_info *info);

/* ---- for authors of backends */

/* The axes of attn_sum_axes. */
enum { ATTN_AXIS_BATCH, ATTN_AXIS_HEAD, ATTN_AXIS_ROW, ATTN_AXIS_KEY };

/* An array of gradients that are summed over axes: element (b, h, i, column) of an array in which a
 * summed axis has stride 0. An axis of length 1 is not summed. */
typedef struct attn_sum_axes {
    float *data;
    int64_t count[4];
    ptrdiff_t stride[4];
    int kept[4];
} attn_sum_axes;

/* The gradients that a backend is asked for. */
struct attn_gradient_call {
    attn_gradients g;           /* strides are resolved */
    attn_sum_axes bias, slopes; /* where dbias and dslopes go */
};
