/* laws.h - what the files of the group "laws" share.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_LAWS_H
#define ATTN_TESTS_LAWS_H

#include "pool.h"
#include "test.h"

enum { MAX_BACKGROUND = 16 };

/* Feature `first` (may be NULL) and a random background of others into list[MAX_BACKGROUND];
 * returns how many. with_others: also those that few slices can cut; banned: names or slots left
 * out, NULL at the end (or NULL). */
int pick_background(int *list, const char *first, int with_others, const char *const *banned);
/* A problem with them. */
void make_background(test_problem *t, const char *first, int with_others,
                     const char *const *banned);
/* The shape with heads of whole units of every storage type; and K and V of a problem of such a shape in
 * types that only they may have, with p.integer and p.rotated by chance. Strides are not 0. The tensors
 * get the values. */
test_shape whole_units(test_shape s);
void quantise_for_levels(test_problem *t);
/* make_background and both of them, with what a case then may not have among those banned. */
void make_stored(test_problem *t, const char *const *banned);
/* A copy of a with an output of its own. */
void twin(const test_problem *a, test_problem *b);
/* The call in other tiles, by these workers, with other kernels. */
void vary_execution(attn_params *p, pool *workers);
/* Runs it; nonzero when it went well, else a failure that names `what`. */
int run_part(const attn_params *p, const char *what);

/* A mask in other words. clear_masks: none; all_pairs: all masks of *p as one byte per pair,
 * [batch, heads, seq_q, seq_kv], 0 outside the lengths; as_...: that array as the mask of this
 * kind. as_bitmap: cells of one pair each, whose columns count from the first key present, so
 * without kv_begin; as_bias: -inf where hidden, 0 elsewhere. */
void clear_masks(attn_params *p);
uint8_t *all_pairs(const attn_params *p);
void as_bool(attn_params *p, const uint8_t *shown);
void as_bits(attn_params *p, const uint8_t *shown);
void as_bitmap(attn_params *p, const uint8_t *shown);
void as_bias(attn_params *p, const uint8_t *shown);

/* Head h of `to` becomes head h / group of `from`. */
void copy_elements(const test_tensor *from, test_tensor *to, int64_t group);
/* The same numbers in another layout, with `heads` heads: each repeated. */
void other_layout(test_tensor *t, attn_tensor *a, int64_t heads, int layout);

/* Raw states of `rows` rows, NaN everywhere. */
attn_state states_alloc(int64_t rows, int64_t dim_v); /* tests/merge.c */

void law_merge(int round); /* tests/merge.c */
void law_zero_sign(int round);
void law_lse_merge(int round);
void law_empty_parts(int round);
void law_row_parts(int round); /* tests/parts.c */
void law_logits_parts(int round);
void law_key_parts(int round);
void law_key_range(int round);
void law_stored_parts(int round);
void law_dropout(int round); /* tests/dropout.c */
void law_philox(int round);
void law_keep_range(int round);

#endif
