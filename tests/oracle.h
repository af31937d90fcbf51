/* oracle.h - textbook attention in double, one row at a time, for any attn_params.
 * SPDX-License-Identifier: MIT
 *
 * It shares no code with attn.c and none with the tests' own helpers, so that bench can link it,
 * too. Needs the C library's math.h (-lm). Expects valid parameters.
 *
 * Tolerance. The library works in binary32, u = 2^-24. To first order an absolute error e_j in
 * logit j moves O[d] by at most sum_j p_j |v_j| e_j + (sum_j p_j e_j) (sum_j p_j |v_j|). With
 *
 *     e_j = u (2 scale sum_d |q_d k_d| + 3 |logit_j| + 2 (the terms added) + |logit_j - max|)
 *
 * (the chain over d rounds at the size of its partial sums, each later step at the size of what it
 * handles, and 2^x turns the rounding of x into a relative error of p), and the sums over keys
 * rounding u (6 + sqrt(min(n, 1024))) sum_j p_j |v_j| - chains end at 1024 keys and their errors
 * have no common sign; naive, whose chains do not end, gets (n - 1024) / 8 more - the tolerance is
 * ORACLE_FACTOR times the sum of both, and that of a single logit ORACLE_LOGIT_FACTOR e_j. Strict
 * bounds put head_dim and n in place of the square roots; the tests use the likely size, about twice
 * the worst seen, because a tolerance that never can be reached sees no bug. Storing O as f16 or bf16
 * adds half an ulp of that type.
 *
 * For the strict bound (docs/numerics.md) the oracle gives what depends on the keys, for calls
 * whose logits are plain scores:
 *
 *     E_j = (head_dim + 3) scale sum_d |q_d k_d| + 1.25 |logit_j - max|
 */
#ifndef ATTN_TESTS_ORACLE_H
#define ATTN_TESTS_ORACLE_H

#include "../attn.h"

#define ORACLE_FACTOR 1.5
#define ORACLE_LOGIT_FACTOR 2.0

/* What oracle_row_full writes. o, o_abs, o_tolerance: head_dim_v values each, or NULL. */
typedef struct oracle_result {
    double *o;           /* the row of O, before rounding to its storage type */
    double *o_abs;       /* sum of p |v| */
    double *o_tolerance; /* binary32 error allowed, without that of the storage type */
    double lse, lse_tolerance;
    double maximum;   /* largest logit of the row, without the sink; -inf when empty */
    double *o_strict; /* sum of p E |v|; NULL leaves out the next three, too */
    double strict_mean, strict_most; /* sum of p E; largest E */
    double logit_most;               /* largest |logit| */
    int64_t alive;                   /* keys that count: visible and not -inf */
} oracle_result;

/* Rows and keys in use by batch entry b, and pos(i) - i. */
int64_t oracle_rows(const attn_params *p, int64_t b);
int64_t oracle_keys(const attn_params *p, int64_t b);
int64_t oracle_offset(const attn_params *p, int64_t b);
/* Row of k and v where the keys of batch entry b begin; heads and head_dim of k and v. */
int64_t oracle_first_key(const attn_params *p, int64_t b);
int64_t oracle_heads_kv(const attn_params *p);
int64_t oracle_dim_v(const attn_params *p);

/* A pair as callbacks are told it. */
attn_pair oracle_pair(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j);

/* Rows or keys of the longest sequence, which begin at 0 in each with cu_seqlens (cuts). */
int64_t oracle_longest(const attn_params *p, const int32_t *cuts, int64_t length);
/* Where the bias of a pair lies, in elements; column counts as the caller's do. */
ptrdiff_t oracle_bias_index(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t column);

/* The factor on q.k, and the sink of a head, -inf = none. */
double oracle_scale(const attn_params *p);
double oracle_sink(const attn_params *p, int64_t h);

/* Row i of query head h of batch entry b. p->partial leaves the sink out and normalises all the
 * same. 0 = done, 1 = no such row in use, 2 = out of memory. */
int oracle_row_full(const attn_params *p, int64_t b, int64_t h, int64_t i, oracle_result *out);

/* The same with what is most often wanted; every pointer may be NULL. */
int oracle_row(const attn_params *p, int64_t b, int64_t h, int64_t i, double *o, double *o_abs,
               double *lse);

/* Nonzero: key j may be seen by row i, by lengths and all masks (a bias of -inf not among them). */
int oracle_visible(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j);

/* Nonzero: dropout keeps the pair. 1 without dropout. */
int oracle_kept(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j);

/* The logit of row i and key j at a stage (an attn_logits_stage below SOFTMAX), natural. *error, if
 * not NULL, becomes e_j / u of above without its last term. */
double oracle_logit(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j, int stage,
                    double *error);

/* Offset of row i of head h in a tensor like q or o, in elements. */
ptrdiff_t oracle_row_offset(const attn_params *p, const attn_tensor *t, int64_t dim, int64_t b,
                            int64_t h, int64_t i);
/* The same of key j in a tensor like k or v, kv_rows included. */
ptrdiff_t oracle_key_offset(const attn_params *p, const attn_tensor *t, int64_t dim, int64_t b,
                            int64_t kv_head, int64_t j);

/* One element of a storage type. */
double oracle_load(int dtype, const void *data, ptrdiff_t index);

/* What rounding value to a float type may add: half an ulp; for f32 half an ulp, too. */
double oracle_storage_error(int dtype, double value);

#endif
