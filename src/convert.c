/* src/convert.c - arrays of one storage type become arrays of another.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "select.c"

static int is_dtype(int dtype)
{
    return dtype >= 0 && dtype <= LAST_DTYPE;
}

/* Whole units of every type. */
#define CONVERT_BLOCK (4 * UNIT)

/* Kernels that narrow expect a canonical NaN. */
static void make_canonical(float *x, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++)
        x[i] = is_nan(x[i]) ? float_of(CANONICAL_NAN) : x[i];
}

static void store_floats(const attn_kernels *kernels, void *to, float *x, int64_t n)
{
    (void)kernels;
    memcpy(to, x, (size_t)n * sizeof *x);
}

/* Kernels that narrow make every zero +0. */
static void give_signs(uint16_t *y, const float *x, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++)
        y[i] = (uint16_t)(y[i] | (y[i] ? 0u : bits_of(x[i]) >> 16 & 0x8000u));
}

#define STORE_HALVES(name)                                                                         \
    static void store_##name(const attn_kernels *kernels, void *to, float *x, int64_t n)           \
    {                                                                                              \
        kernels->narrow_##name(to, x, n);                                                          \
        give_signs(to, x, n);                                                                      \
    }
STORE_HALVES(f16)
STORE_HALVES(bf16)

#define STORE_EIGHTHS(name)                                                                        \
    static void store_##name(const attn_kernels *kernels, void *to, float *x, int64_t n)           \
    {                                                                                              \
        uint8_t *const y = to;                                                                     \
        int64_t i;                                                                                 \
        (void)kernels;                                                                             \
        for (i = 0; i < n; i++)                                                                    \
            y[i] = name##_from_f32(x[i]);                                                          \
    }
STORE_EIGHTHS(e4m3)
STORE_EIGHTHS(e5m2)

#define STORE_UNITS(name)                                                                          \
    static void store_##name##_0(const attn_kernels *kernels, void *to, float *x, int64_t n)       \
    {                                                                                              \
        name##_unit *const y = to;                                                                 \
        int64_t i;                                                                                 \
        (void)kernels;                                                                             \
        for (i = 0; i < n; i += UNIT)                                                              \
            store_##name(y + i / UNIT, x + i);                                                     \
    }
STORE_UNITS(q8)
STORE_UNITS(q5)
STORE_UNITS(q4)

/* Stores of whole units, in the order of attn_dtype. They are no column of `storages`, so that programs
 * which convert nothing are without them. */
static void (*const stores[])(const attn_kernels *kernels, void *to, float *x, int64_t n) = {
    store_floats, store_f16, store_bf16, store_e4m3, store_e5m2, store_q8_0, store_q5_0, store_q4_0,
};
typedef char every_type_has_a_store[COUNT_OF(stores) == COUNT_OF(storages) ? 1 : -1];

static void convert_run(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t n)
{
    const attn_kernels *kernels = attn_kernels_get(0);
    float x[CONVERT_BLOCK];
    int64_t i, count;
    for (i = 0; i < n; i += count) {
        count = min64(n - i, CONVERT_BLOCK);
        load_run(kernels, src_dtype, x, src, i, count);
        make_canonical(x, count);
        stores[dst_dtype](kernels, (char *)dst + bytes_between(dst_dtype, i), x, count);
    }
}

ATTN_API attn_status attn_convert(void *dst, int dst_dtype, const void *src, int src_dtype,
                                  size_t n)
{
    int64_t each;
    if (!is_dtype(dst_dtype) || !is_dtype(src_dtype) || n > PTRDIFF_MAX / sizeof(float))
        return ATTN_ERR_ARG;
    if (n && (!dst || !src))
        return ATTN_ERR_ARG;
    each = max64(storages[src_dtype].unit, storages[dst_dtype].unit);
    if ((int64_t)n % each)
        return ATTN_ERR_ARG;
    convert_run(dst, dst_dtype, src, src_dtype, (int64_t)n);
    return ATTN_OK;
}
