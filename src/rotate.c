/* src/rotate.c - rotation of rows, which spreads outliers before K and V are quantised.
 * SPDX-License-Identifier: MIT
 *
 * A row is multiplied by Hadamard matrices of Sylvester's order over sqrt(n), which are symmetric and
 * their own inverses: the first of the largest power of two that fits, 256 at most, the next of what is
 * left. So q . k stays as it is where both are rotated, and the result of rotated rows of V is rotated
 * back (Ashkboos et al. 2024, arXiv 2404.00456). docs/canon.md has the order of additions.
 */
#pragma once

#include "numbers.c"
#include "sizes.c"

#define ROTATE_MOST 256

/* rotate_block rotates n numbers, a power of two. */
static void rotate_block(float *x, int n)
{
    static const float root[] = { 1.0f,           0x1.6a09e6p-1f, 0.5f,
                                  0x1.6a09e6p-2f, 0.25f,          0x1.6a09e6p-3f,
                                  0.125f,         0x1.6a09e6p-4f, 0.0625f };
    int half, i, j, log2 = 0;
    for (half = 1; half < n; half *= 2, log2++)
        for (i = 0; i < n; i += 2 * half)
            for (j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    for (i = 0; i < n; i++)
        x[i] = x[i] * root[log2];
}

/* rotate_size gives the size of the first block of a row. */
static int rotate_size(int64_t dim)
{
    int n = ROTATE_MOST;
    while (n > dim)
        n /= 2;
    return n;
}

static void rotate_row(float *x, int64_t dim)
{
    for (; dim > 0; x += rotate_size(dim), dim -= rotate_size(dim))
        rotate_block(x, rotate_size(dim));
}

/* rotate_result leaves no -0 and the one NaN, as results have them. */
static void rotate_result(float *x, int64_t dim)
{
    int64_t d;
    rotate_row(x, dim);
    for (d = 0; d < dim; d++)
        x[d] = is_nan(x[d]) ? float_of(CANONICAL_NAN) : x[d] + 0.0f;
}

ATTN_API attn_status attn_rotate(float *x, int64_t rows, int64_t dim)
{
    int64_t r;
    if (!x || !is_aligned(x, sizeof *x) || rows < 0 || dim < 1)
        return ATTN_ERR_ARG;
    for (r = 0; r < rows; r++)
        rotate_row(x + r * dim, dim);
    return ATTN_OK;
}
