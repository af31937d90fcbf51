/* slices.h - the same call cut along batch, heads, rows or keys: what the laws compare with.
 * SPDX-License-Identifier: MIT
 *
 * All of them change a copy of the parameters in place; arrays that must differ are allocated by
 * test_alloc. bit_mask, block_mask, tree and callbacks cannot be cut and must be off, but for the
 * batch, where dropout and callbacks must be off, and for slice_rows_copied.
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
/* The same rows, and columns of keys, by p.part: nothing else is cut, so that every mask, callback
 * and modifier may be on. */
void slice_part_rows(attn_params *p, const test_problem *t, int64_t begin, int64_t count);
void slice_part_keys(attn_params *p, const test_problem *t, int64_t begin, int64_t count);
/* Rows begin[b] .. begin[b] + count[b] - 1 of each batch entry b as a call of its own, in which all
 * that is told by row is a copy: so every mask, callback and modifier can be cut, and each entry at
 * another row. The rows before begin[b] of a tree must be a chain, as they are in a text. Outputs
 * are new, in o, lse and stats or the state, and hold none of the logits of chosen rows. Callbacks that
 * are cut hold for one such call at a time. */
void slice_rows_copied(test_problem *part, const test_problem *whole, const int64_t *begin,
                       const int64_t *count);
/* The first element of row i of batch entry b in t, which is q, o, lse or stats of a call like *p. */
void *slice_row(const attn_params *p, const test_tensor *t, int64_t b, int64_t h, int64_t i);
/* The number of this row in a packed lse or state. */
int64_t slice_row_number(const attn_params *p, int64_t b, int64_t h, int64_t i);
/* The offset of batch entry b: pos(i) - i. */
int64_t slice_offset(const attn_params *p, int64_t b);

#endif
