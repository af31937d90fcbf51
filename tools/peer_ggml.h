/* peer_ggml.h - attention and a matrix product by ggml's CPU backend.
 * SPDX-License-Identifier: MIT */
#ifndef PEER_GGML_H
#define PEER_GGML_H

#include <stddef.h>

#include "peer_openblas.h"

typedef struct peer_ggml peer_ggml;

/* What llama.cpp computes with: with flash attention, one ggml_flash_attn_ext; without, mul_mat,
 * soft_max_ext and mul_mat, of a V that its cache keeps transposed. q is f32, as ggml demands; k
 * and v are of shape->kv_dtype; in units of 32 with flash attention only. All are copied. NULL = no
 * memory. */
peer_ggml *peer_ggml_open(const peer_shape *shape, int flash, const float *q, const void *k,
                          const void *v);

/* C = B A^T of n x n matrices. */
peer_ggml *peer_ggml_product(int n, const float *a, const float *b);

int peer_ggml_run(peer_ggml *peer); /* 0 = success */

/* Writes the result, [head][token][dim] as f32. */
void peer_ggml_output(const peer_ggml *peer, float *o);
void peer_ggml_close(peer_ggml *peer);

const char *peer_ggml_version(void);

/* Writes which kernels this build of ggml has. */
void peer_ggml_remarks(char *text, size_t text_bytes);

#endif
