/* model.h - what a case costs on paper.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H

#include "case.h"

typedef struct bench_model {
    double pairs;        /* visible (query, key) pairs over batch and heads, counted exactly */
    double flops;        /* 2 * pairs * (head_dim + head_dim_v) */
    double kv_bytes;     /* k and v */
    double tensor_bytes; /* q, k, v and o */
    double logits_bytes; /* of the whole batch * heads * seq_q * seq_kv matrix, f32 */
} bench_model;

void model_of(const bench_case *c, bench_model *out);

#endif
