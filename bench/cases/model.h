/* model.h - what a case costs on paper.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_MODEL_H
#define BENCH_MODEL_H

#include "case.h"

typedef struct bench_model {
    double pairs;          /* visible (query, key) pairs over batch and heads, counted exactly; a
                          * dilated case's once for each branch that shows them */
    double flops;          /* 2 * pairs * (head_dim + head_dim_v); of a backward call 2 * pairs *
                          * (3 head_dim + 2 head_dim_v), its five products */
    double kv_token_bytes; /* k and v of one key, all heads */
    double kv_bytes;       /* k and v as they are stored */
    double tensor_bytes;   /* q, k, v and o; those that only append have no q and o; backward twice,
                          * for the gradients, and lse */
    double logits_bytes;   /* of the whole batch * heads * seq_q * seq_kv matrix, f32 */
} bench_model;

/* The bytes alone, at once; model_of also counts pairs, in proportion to batch * seq_q. */
void model_sizes(const bench_case *c, bench_model *out);
void model_of(const bench_case *c, bench_model *out);

/* FLOPs for each byte of tensor_bytes, each read or written once: what a call needs at least. */
double model_intensity(const bench_model *m);

/* Which limit binds a call of that intensity: "compute" or "memory"; "" = a peak is unknown. */
const char *model_roof(double intensity, double gflops, double gbytes_per_s);

/* What the formula asks for beside the tensors: naive the logits of one head for each thread that
 * has a head, backward the probabilities and their gradients for each that has a kv head; tiled its
 * workspace, which does not depend on the length, backward not on its square (the library's own
 * figure). */
double model_theory_bytes(const bench_case *c, int naive, int threads, double workspace_bytes);

/* Workspace as a share of the whole batch * heads * seq_q * seq_kv matrix in f32. */
double model_matrix_share(const bench_model *m, double workspace_bytes);

#endif
