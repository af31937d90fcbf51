/* strides.h - the strides of a call said in other words.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_STRIDES_H
#define ATTN_TESTS_STRIDES_H

#include "../attn.h"

/* Leaves every stride 0 that is packed in this layout, and says all others; *p and *g mean what
 * they meant. g may be NULL. rows, keys: of the tensors in memory. */
void strides_forget(attn_params *p, attn_gradients *g, int layout, int64_t rows, int64_t keys);

#endif
