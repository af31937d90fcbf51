/* src/storage.c - storage types: read as f32 exactly, written from f32 to nearest even.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "halves.c"
#include "seam.h"
#include "sizes.c"

/* load_run loads n numbers from data[at..] as f32. */
static inline void load_run(const attn_kernels *kernels, int dtype, float *to, const void *data,
                            int64_t at, int64_t n)
{
    if (dtype == ATTN_F32)
        memcpy(to, (const float *)data + at, (size_t)n * sizeof *to);
    else
        (dtype == ATTN_F16 ? kernels->widen_f16
                           : kernels->widen_bf16)(to, (const uint16_t *)data + at, n);
}

/* store_run stores n results to data[at..]; their NaN is canonical already, and they hold no -0. */
static inline void store_run(const attn_kernels *kernels, int dtype, void *data, int64_t at,
                             const float *from, int64_t n)
{
    if (dtype == ATTN_F32)
        memcpy((float *)data + at, from, (size_t)n * sizeof *from);
    else
        (dtype == ATTN_F16 ? kernels->narrow_f16 : kernels->narrow_bf16)((uint16_t *)data + at,
                                                                         from, n);
}

static float load_f32(const void *data, int64_t at)
{
    return ((const float *)data)[at];
}

static float load_f16(const void *data, int64_t at)
{
    return f16_to_f32(((const uint16_t *)data)[at]);
}

static float load_bf16(const void *data, int64_t at)
{
    return bf16_to_f32(((const uint16_t *)data)[at]);
}

static void store_f32(void *data, int64_t at, float x)
{
    ((float *)data)[at] = is_nan(x) ? float_of(CANONICAL_NAN) : x;
}

static void store_f16(void *data, int64_t at, float x)
{
    ((uint16_t *)data)[at] = f16_from_f32(x);
}

static void store_bf16(void *data, int64_t at, float x)
{
    ((uint16_t *)data)[at] = bf16_from_f32(x);
}

typedef struct storage {
    float (*load)(const void *data, int64_t at);
    void (*store)(void *data, int64_t at, float x);
} storage;

/* The table is in the order of attn_dtype. */
static const storage storages[] = {
    { load_f32, store_f32 },
    { load_f16, store_f16 },
    { load_bf16, store_bf16 },
};
#define STORAGE_COUNT COUNT_OF(storages)
