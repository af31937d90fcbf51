/* data.h - reproducible inputs.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_DATA_H
#define BENCH_DATA_H

#include <stddef.h>
#include <stdint.h>

enum { DATA_Q, DATA_K, DATA_V, DATA_DOUT }; /* of q, k, v; of the gradient by o */

typedef enum data_kind {
    DATA_TRIG,  /* q = sin, k = cos, v = tan of the running index, kept off the poles of tan; dout
                 * = cos */
    DATA_NORMAL /* standard normal numbers from a seed; a million of them, again and again */
} data_kind;

/* Fills n elements of storage type dtype (an attn_dtype) for tensor `which`. */
void data_fill(void *out, int dtype, size_t n, int which, data_kind kind, uint64_t seed);

#endif
