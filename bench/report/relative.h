/* relative.h - the summary of cases that were timed in turn with another on the same tensors.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_RELATIVE_H
#define BENCH_RELATIVE_H

#include "../cases/case.h"

/* Speed-up and efficiency of several threads; prints nothing where there are none. */
void relative_threads(const bench_result *results, int n);

/* Time of each mask over that of none, and the share of pairs that it shows; prints nothing where
 * there is none. */
void relative_masks(const bench_result *results, int n);

/* Time of each number of products and threads over that of five products on one thread, and what
 * memory it takes; prints nothing where there is none. */
void relative_products(const bench_result *results, int n);

/* Time of dilated attention and of masks of cells over that of a dense call, and what memory they
 * take; prints nothing where there is none. */
void relative_patterns(const bench_result *results, int n);

/* Ranks against one: speed-up, efficiency, what is moved, balance; likewise. */
void relative_ranks(const bench_result *results, int n);

#endif
