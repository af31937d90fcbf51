/* peer_onednn.h - attention and a matrix product by oneDNN's graph API, on its CPU engine.
 * SPDX-License-Identifier: MIT */
#ifndef PEER_ONEDNN_H
#define PEER_ONEDNN_H

#include <stddef.h>

#include "peer_openblas.h"

typedef struct peer_onednn peer_onednn;

/* MatMul, Multiply, Add of a causal mask, SoftMax and MatMul as one partition. Query heads that
 * share keys make the tensors five-dimensional. Logits are f32, all else has shape->dtype. The
 * tensors stay the caller's. Returns NULL with why on failure, which is empty where this oneDNN has
 * no kernels for this graph on this CPU. */
peer_onednn *peer_onednn_open(const peer_shape *shape, const void *q, const void *k, const void *v,
                              void *o, char *why, size_t why_bytes);

/* c = a b of n x n matrices, f32. */
peer_onednn *peer_onednn_product(int n, const float *a, const float *b, float *c, char *why,
                                 size_t why_bytes);

int peer_onednn_run(peer_onednn *peer); /* 0 = success */
void peer_onednn_close(peer_onednn *peer);

void peer_onednn_version(char *text, size_t text_bytes);
const char *peer_onednn_runtime(void); /* how it makes threads */
const char *peer_onednn_isa(void);     /* the instructions that it uses */

#endif
