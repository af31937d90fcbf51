/* laws.h - what the files of the group "laws" share.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_LAWS_H
#define ATTN_TESTS_LAWS_H

#include "test.h"

enum { MAX_BACKGROUND = 16 };

/* Feature `first` (may be NULL) and a random background of others into list[MAX_BACKGROUND];
 * returns how many. with_others: also those that few slices can cut; banned: names or slots left
 * out, NULL at the end (or NULL). */
int pick_background(int *list, const char *first, int with_others, const char *const *banned);
/* A problem with them. */
void make_background(test_problem *t, const char *first, int with_others,
                     const char *const *banned);
/* A copy of a with an output of its own. */
void twin(const test_problem *a, test_problem *b);
/* Runs it; nonzero when it went well, else a failure that names `what`. */
int run_part(const attn_params *p, const char *what);

void law_merge(int round);     /* tests/merge.c */
void law_zero_sign(int round);
void law_lse_merge(int round);
void law_empty_parts(int round);
void law_dropout(int round);   /* tests/dropout.c */
void law_philox(int round);
void law_keep_range(int round);

#endif
