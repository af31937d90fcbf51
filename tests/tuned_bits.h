/* tuned_bits.h - whether a text for p.tuning leaves the bits of results as they are.
 * SPDX-License-Identifier: MIT */
#ifndef ATTN_TESTS_TUNED_BITS_H
#define ATTN_TESTS_TUNED_BITS_H

/* 1 = small calls of several kinds have the same bits with the text and without. spoil changes one
 * bit of a result: must be noticed. */
int tuning_same_bits(const char *text, int spoil);

#endif
