/* slices.h - the same call cut along batch, heads, rows or keys: what the laws compare with.
 * SPDX-License-Identifier: MIT
 *
 * All of them change a copy of the parameters in place; arrays that must differ are allocated by
 * test_alloc. bit_mask, block_mask, tree and callbacks cannot be cut and must be off, but for the
 * batch: there dropout and callbacks must be off.
 */
#ifndef ATTN_TESTS_SLICES_H
#define ATTN_TESTS_SLICES_H

#include "test.h"

/* Replaces strides left at 0 by what they mean, so that sizes may change. */
void slice_explicit(attn_params *p, const test_problem *t);
/* Only batch entry b. With cu_seqlens: sequence b as a call without them. */
void slice_batch(attn_params *p, const test_problem *t, int64_t b);
/* Only query head h and the kv head that it reads. */
void slice_head(attn_params *p, const test_problem *t, int64_t h);
/* Only rows begin .. begin + count - 1, at their old positions. */
void slice_rows(attn_params *p, const test_problem *t, int64_t begin, int64_t count);
/* Only keys begin .. begin + count - 1 of the caller's columns, at their old numbers. */
void slice_keys(attn_params *p, const test_problem *t, int64_t begin, int64_t count);
/* The offset of batch entry b: pos(i) - i. */
int64_t slice_offset(const attn_params *p, int64_t b);

#endif
