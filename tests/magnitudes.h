/* magnitudes.h - what the files of the group "magnitudes" share: rows whose scores are exact.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_MAGNITUDES_H
#define ATTN_TESTS_MAGNITUDES_H

#include "laws.h"

enum { MAX_SEQ = 1200, MAX_DIM = 70 };

/* Lengths, dims and storage types at random; one batch entry and one kv head. */
test_shape magnitudes_shape(int dtype);
void fill_integers(test_tensor *t, int most);

/* The keys of the case as floats, once they have been loaded. */
extern float key_rows[MAX_SEQ][MAX_DIM];
void load_key_rows(const test_problem *t);
void load_query(const test_problem *t, int64_t h, int64_t i, float *q);

/* What a row is made of: natural logits, what each may be off by, and probabilities. The last one
 * is the sink; a logit of -inf is none. */
typedef struct textbook {
    int64_t keys;
    double logit[MAX_SEQ + 1], p[MAX_SEQ + 1], error[MAX_SEQ + 1];
} textbook;

void open_textbook(const test_problem *t, int64_t h, int64_t i, textbook *b);
/* Column d of O, and what it may be off by. */
double textbook_value(const test_problem *t, const textbook *b, int64_t d, double *error);

/* ---- tests/magnitudes_gradients.c */

/* Runs attn_forward, which writes stats, too. */
int run_with_stats(test_problem *t);
/* Gradients of the call against the textbook, from stats. */
void compare_gradients(test_problem *t);
/* All weight is on key `hot`: dQ and dK are 0, dV has the sum of dout there and 0 elsewhere, bit for
 * bit. */
void expect_one_hot_gradients(test_problem *t, int64_t hot);
/* The probabilities that gradients take add up to 1 at any size of the logits. */
void check_sums_of_p(void);

#endif
