/* src/convert.c - arrays of one storage type become arrays of another.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "kernels.c"

static int is_dtype(int dtype)
{
    return dtype >= 0 && dtype <= LAST_DTYPE;
}

#define STORE_NUMBER(name, type)                                                                   \
    static void store_##name(void *data, int64_t at, const float *x)                               \
    {                                                                                              \
        ((type *)data)[at] = name##_from_f32(*x);                                                  \
    }
STORE_NUMBER(f16, uint16_t)
STORE_NUMBER(bf16, uint16_t)
STORE_NUMBER(e4m3, uint8_t)
STORE_NUMBER(e5m2, uint8_t)

static void store_number_f32(void *data, int64_t at, const float *x)
{
    store_f32(data, at, *x);
}

#define STORE_UNIT(name, type)                                                                     \
    static void store_##name##_0(void *data, int64_t at, const float *x)                           \
    {                                                                                              \
        store_##name((type *)data + at / UNIT, x);                                                 \
    }
STORE_UNIT(q8, q8_unit)
STORE_UNIT(q5, q5_unit)
STORE_UNIT(q4, q4_unit)

/* Stores of a unit, in the order of attn_dtype. They are no column of `storages`, so that programs which
 * convert nothing are without them. */
static void (*const stores[])(void *data, int64_t at, const float *x) = {
    store_number_f32, store_f16,  store_bf16, store_e4m3,
    store_e5m2,       store_q8_0, store_q5_0, store_q4_0,
};
typedef char every_type_has_a_store[COUNT_OF(stores) == COUNT_OF(storages) ? 1 : -1];

ATTN_API attn_status attn_convert(void *dst, int dst_dtype, const void *src, int src_dtype,
                                  size_t n)
{
    float x[UNIT];
    const storage *from, *to;
    int64_t i, each, left = (int64_t)n;
    int d;
    if (!is_dtype(dst_dtype) || !is_dtype(src_dtype) || n > PTRDIFF_MAX / sizeof(float))
        return ATTN_ERR_ARG;
    if (n && (!dst || !src))
        return ATTN_ERR_ARG;
    from = &storages[src_dtype];
    to = &storages[dst_dtype];
    each = max64(from->unit, to->unit);
    if (left % each)
        return ATTN_ERR_ARG;
    for (i = 0; i < left; i += each) {
        if (from->load)
            for (d = 0; d < each; d++)
                x[d] = from->load(src, i + d);
        else
            from->read(&kernels_portable, x, (const char *)src + bytes_between(src_dtype, i), each);
        for (d = 0; d < each; d += to->unit)
            stores[dst_dtype](dst, i + d, x + d);
    }
    return ATTN_OK;
}
