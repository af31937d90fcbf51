/* peer_openblas.h - unfused attention over a given sgemm, as fast as it gets.
 * SPDX-License-Identifier: MIT */
#ifndef PEER_OPENBLAS_H
#define PEER_OPENBLAS_H

/* [head][token][dim] contiguous; `rows` queries against `seq` keys; causal, with as many queries as
 * keys: key j <= row i. Storage is an attn_dtype, kv_dtype that of K and V; peer_openblas has f32 only.
 * integer: attn rounds queries (p.integer); fast: it may round what it multiplies (p.fast). */
typedef struct peer_shape {
    int heads_q, heads_kv, rows, seq, dim, causal, dtype, kv_dtype, integer, fast;
    const void *visible; /* [rows][seq] bytes for all heads, 0 = hidden; NULL = all are visible */
    const float *bias;   /* [rows][seq] for all heads, added to the logits; NULL = none */
} peer_shape;

/* cblas_sgemm with 32-bit integers, enumerations as int. */
typedef void (*peer_sgemm_fn)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                              const float *a, int lda, const float *b, int ldb, float beta,
                              float *c, int ldc);

typedef struct peer_openblas peer_openblas;

/* S = Q K^T, row softmax, O = P V for `rows` rows at a time; 0 = all rows of a head (full: of all
 * heads that share keys). NULL = no memory. The tensors stay the caller's. */
peer_openblas *peer_openblas_open(const peer_shape *shape, peer_sgemm_fn sgemm, int rows,
                                  const float *q, const float *k, const float *v, float *o);
int peer_openblas_run(peer_openblas *peer); /* 0 = success */
void peer_openblas_close(peer_openblas *peer);

#endif
