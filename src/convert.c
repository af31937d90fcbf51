/* src/convert.c - arrays of one storage type become arrays of another.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "select.c"

/* is_converted tells whether a type is one that needs nothing but its own bytes. */
static int is_converted(int dtype)
{
    return dtype >= 0 && dtype <= LAST_DTYPE && !has_scales(dtype);
}

/* Whole units of every type. */
#define CONVERT_BLOCK (4 * UNIT)

/* The scales of a row, for a type that has some. */
typedef struct row_scales {
    const float *at;
    int64_t step;
} row_scales;

/* load_block loads numbers i to i+n-1 of a row. */
static void load_block(const attn_kernels *kernels, int dtype, float *to, const void *row,
                       int64_t i, int64_t n, row_scales by)
{
    if (has_scales(dtype))
        kernels->widen_i8(to, (const int8_t *)row + i, by.at + i * by.step, by.step, n);
    else
        load_run(kernels, dtype, to, row, i, n);
}

/* Kernels that narrow expect a canonical NaN. */
static void make_canonical(float *x, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++)
        x[i] = is_nan(x[i]) ? float_of(CANONICAL_NAN) : x[i];
}

/* Kernels that narrow make every zero +0. */
static void give_signs(uint16_t *y, const float *x, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++)
        y[i] = (uint16_t)(y[i] | (y[i] ? 0u : bits_of(x[i]) >> 16 & 0x8000u));
}

/* store_block stores whole units as numbers `at` to at+n-1 of a row; no column of `storages`, since clang
 * then leaves it out of programs that convert nothing. */
static void store_block(const attn_kernels *kernels, int dtype, void *row, int64_t at,
                        const float *x, int64_t n, row_scales by)
{
    void *const to = (char *)row + bytes_between(dtype, at);
    int64_t i;
    switch (dtype) {
    case ATTN_F16:
    case ATTN_BF16:
        (dtype == ATTN_F16 ? kernels->narrow_f16 : kernels->narrow_bf16)(to, x, n);
        give_signs(to, x, n);
        break;
    case ATTN_E4M3:
        for (i = 0; i < n; i++)
            ((uint8_t *)to)[i] = e4m3_from_f32(x[i]);
        break;
    case ATTN_E5M2:
        for (i = 0; i < n; i++)
            ((uint8_t *)to)[i] = e5m2_from_f32(x[i]);
        break;
    case ATTN_Q8_0:
        for (i = 0; i < n / UNIT; i++)
            store_q8((q8_unit *)to + i, x + i * UNIT);
        break;
    case ATTN_Q5_0:
        for (i = 0; i < n / UNIT; i++)
            store_q5((q5_unit *)to + i, x + i * UNIT);
        break;
    case ATTN_Q4_0:
        for (i = 0; i < n / UNIT; i++)
            store_q4((q4_unit *)to + i, x + i * UNIT);
        break;
    case ATTN_I8:
        store_scaled(to, x, by.at + at * by.step, by.step, n);
        break;
    default:
        memcpy(to, x, (size_t)n * sizeof *x);
    }
}

static void convert_run(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t n,
                        row_scales by)
{
    const attn_kernels *kernels = attn_kernels_get(0);
    float x[CONVERT_BLOCK];
    int64_t i, count;
    for (i = 0; i < n; i += count) {
        count = min64(n - i, CONVERT_BLOCK);
        load_block(kernels, src_dtype, x, src, i, count, by);
        make_canonical(x, count);
        store_block(kernels, dst_dtype, dst, i, x, count, by);
    }
}

ATTN_API attn_status attn_convert(void *dst, int dst_dtype, const void *src, int src_dtype,
                                  size_t n)
{
    static const row_scales none = { NULL, 0 };
    int64_t each;
    if (!is_converted(dst_dtype) || !is_converted(src_dtype) || n > PTRDIFF_MAX / sizeof(float))
        return ATTN_ERR_ARG;
    if (n && (!dst || !src || !is_aligned(dst, (int64_t)bytes_of(dst_dtype)) ||
              !is_aligned(src, (int64_t)bytes_of(src_dtype))))
        return ATTN_ERR_ARG;
    each = max64(storages[src_dtype].unit, storages[dst_dtype].unit);
    if ((int64_t)n % each)
        return ATTN_ERR_ARG;
    convert_run(dst, dst_dtype, src, src_dtype, (int64_t)n, none);
    return ATTN_OK;
}

ATTN_API attn_status attn_quantise_i8(int8_t *to, float *scales, const float *x, int64_t rows,
                                      int64_t dim)
{
    int64_t r;
    if (rows < 0 || dim < 1 || times(rows, dim) >= ADDRESS_LIMIT)
        return ATTN_ERR_ARG;
    if (rows &&
        (!to || !scales || !x || !is_aligned(scales, sizeof *scales) || !is_aligned(x, sizeof *x)))
        return ATTN_ERR_ARG;
    for (r = 0; r < rows; r++)
        scales[r] = store_i8(to + r * dim, x + r * dim, dim);
    return ATTN_OK;
}
