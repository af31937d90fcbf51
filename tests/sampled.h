/* sampled.h - samples of a bench case's results against double precision.
 * SPDX-License-Identifier: MIT
 *
 * Everything comes from oracle.h and from definitions, nothing from the library. */
#ifndef ATTN_TESTS_SAMPLED_H
#define ATTN_TESTS_SAMPLED_H

#include "../bench/cases/jobs.h"
#include "oracle.h"

/* The worst error, and the worst in units of its tolerance. */
typedef struct sampled_errors {
    double max_err, err_tolerance;
} sampled_errors;

/* One number of a storage type; that of the type is added to the tolerance. NaN is infinitely
 * wrong. */
void sampled_compare(sampled_errors *errors, int dtype, double got, double want, double tolerance);

/* Sample i of all among `count` things: the first, the last and some evenly between. */
int64_t sampled_index(int64_t count, int64_t samples, int64_t i);

/* Rows that are computed, of all batch entries and heads. */
int64_t sampled_rows_in_use(const attn_params *p);

/* Rows of o; 0 = no memory. */
int sampled_rows(const bench_case *c, const attn_params *p, sampled_errors *errors);

/* Rows of dq, keys of dk and dv, elements of dbias and heads of dsinks; 0 = no memory. */
int sampled_gradients(const gradients_job *job, const attn_params *p, sampled_errors *errors);

/* What the last call of append_call stored; 0 with a sentence: it cannot be read. */
int sampled_append(append_job *job, sampled_errors *errors, char *why, size_t why_bytes);

/* Row i of head h of entry b of dilated attention: o and o_tolerance. 0 = done, 1 = no memory. */
int dilated_row(const bench_case *c, const attn_params *p, int64_t b, int64_t h, int64_t i,
                oracle_result *out);

/* The same of one softmax over the keys that these branches show, of which alive, lse and
 * lse_tolerance are written, too. */
int dilated_softmax(const bench_case *c, const attn_params *p, int64_t b, int64_t h, int64_t i,
                    unsigned branches, oracle_result *out);

#endif
