/* oracle_backward.h - textbook gradients of attention in double, for any attn_params.
 * SPDX-License-Identifier: MIT
 *
 * By definition: with P the softmax of oracle.h's logits, keep the factor of dropout (0 or
 * 1 / (1 - p)) and delta[i] the sum over j of P dP,
 *
 *     dV[j] = sum over i of P keep do[i]       dP = keep do[i].v[j]
 *     dS = P (dP - (delta - dlse))             dQ[i] = scale sum over j of dS k[j], dK alike
 *
 * dS is multiplied by the score callback's derivative, then dbias and dslopes are its sums, then by
 * 1 - tanh^2 of softcap. It reads neither o, lse nor stats, only whether stats are given. Masks, logits and dropout are those of
 * oracle.h, and it shares no code with the library, nor with the tests' own helpers, so that
 * bench can link it, too. Needs math.h (-lm). Expects valid parameters.
 *
 * Tolerance. Every rounding of binary32, u = 2^-24, is an error of at most u times the size of what
 * is rounded, and the errors have no common sign: the variance of a result is the sum of their
 * squares, each times the square of its weight in the result. To first order, in units of u:
 *
 *     logit            e / 3, with the e of oracle.h, which is about three deviations
 *     dP, delta, sums  a chain of additions rounds each of its partial sums s: sum of s^2. They are
 *                      added up here in the order of the library, so these sizes are the real ones
 *     O                the sums over keys, |dS| (e / 3 + |logit - max|) of each key, and half an
 *                      ulp of its storage type: delta takes O as stored. (The naive way adds P dP
 *                      instead)
 *     l                P (e / 3 + |logit - max|) of each key, the sum, 4 for what moves the
 *                      maximum and for 1 / l
 *     LSE              those of l, its own roundings, and that of the product with log2 e
 *     P                relative, with p.stats: e / 3 + |logit - max|, 3 for the exponential and
 *                      the product, and the error of l. Without: e / 3 + |logit - LSE|, 2 for the
 *                      exponential, and the error of LSE
 *     dS               P (dP - delta) with the errors of its three parts
 *
 * The errors of delta, l and LSE are the same for all pairs of a row. So they enter dq, and sums of dS
 * over keys, with the sum of their weights, once for each row; dk and dv, and sums over rows, with
 * the sum of squares over rows. The tolerance is ORACLE_GRADIENT_FACTOR times the square root of
 * the variance; the worst element of 150,000 gradients of random calls was wrong by 0.63 of it.
 * Storing as f16 or bf16 adds half an ulp of that type, which the caller adds
 * (oracle_storage_error). What no visible pair enters is +0 exactly, its tolerance 0.
 */
#ifndef ATTN_TESTS_ORACLE_BACKWARD_H
#define ATTN_TESTS_ORACLE_BACKWARD_H

#include "../attn.h"

#define ORACLE_GRADIENT_FACTOR 5.0

enum {
    ORACLE_DQ,
    ORACLE_DK,
    ORACLE_DV,
    ORACLE_DBIAS,
    ORACLE_DSINKS,
    ORACLE_DSLOPES,
    ORACLE_GRADIENTS
};

/* One gradient, packed: size[0] x size[1] x size[2] x size[3] values. */
typedef struct oracle_gradient {
    int64_t size[4]; /* dq: [batch, num_heads_q, seq_len_q, head_dim], by row i of the sequence
                      * dk, dv: [batch, num_heads_kv, seq_len_kv, head_dim or head_dim_v], by key j
                      * dbias: as of p.bias, by row and column, summed axes 1; with cu_seqlens
                      * as long as the longest sequence
                      * dsinks: [1, num_heads_q, 1, 1]; dslopes the same, or with batch */
    double *value, *tolerance; /* NULL = p has no such input */
} oracle_gradient;

/* All gradients of *p that there are, whether *g wants them or not. Of *g are read: dout, dlse,
 * score_derivative. 0 = done, 2 = out of memory. */
int oracle_backward(const attn_params *p, const attn_gradients *g,
                    oracle_gradient out[ORACLE_GRADIENTS]);
void oracle_backward_free(oracle_gradient out[ORACLE_GRADIENTS]);

/* The sizes alone, value and tolerance NULL; all 0 where *p has no such input. */
void oracle_gradient_sizes(const attn_params *p, oracle_gradient out[ORACLE_GRADIENTS]);

/* Where the library keeps an element. */
typedef struct oracle_place {
    int dtype;
    const void *data; /* NULL = not wanted */
    ptrdiff_t offset; /* in elements */
} oracle_place;

/* Element `at` of gradient `which`. Nonzero: it is in use, so the library writes it. */
int oracle_gradient_place(const attn_params *p, const attn_gradients *g, int which,
                          const int64_t at[4], oracle_place *place);

/* "dq", "dk", ... */
const char *oracle_gradient_name(int which);

#endif
