/* src/storage.c - storage types: read as f32 exactly, written from f32 to nearest even.
 * SPDX-License-Identifier: MIT
 *
 * A type is a row of one table. Its numbers are read and written one by one, or in runs, for which a
 * kernel set has something faster.
 */
#pragma once

#include "halves.c"
#include "seam.h"
#include "sizes.c"

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

static void read_f16(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_f16(to, from, n);
}

static void read_bf16(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_bf16(to, from, n);
}

static void write_f16(const attn_kernels *kernels, void *to, const float *from, int64_t n)
{
    kernels->narrow_f16(to, from, n);
}

static void write_bf16(const attn_kernels *kernels, void *to, const float *from, int64_t n)
{
    kernels->narrow_bf16(to, from, n);
}

typedef struct storage {
    size_t bytes; /* bytes counts those of one number. */
    /* Nonzero means that the products for few lanes read rows of it as they lie. */
    int in_products;
    float (*load)(const void *data, int64_t at);
    void (*store)(void *data, int64_t at, float x);
    void (*read)(const attn_kernels *kernels, float *to, const void *from, int64_t n);
    void (*write)(const attn_kernels *kernels, void *to, const float *from, int64_t n);
} storage;

/* The table is in the order of attn_dtype. Runs of f32 are copied. */
static const storage storages[] = {
    { 4, 1, load_f32, store_f32, NULL, NULL },
    { 2, 1, load_f16, store_f16, read_f16, write_f16 },
    { 2, 1, load_bf16, store_bf16, read_bf16, write_bf16 },
};

#define LAST_DTYPE (COUNT_OF(storages) - 1)
#define DTYPES "0 is f32, 1 is f16, 2 is bf16"

static inline size_t bytes_of(int dtype)
{
    return storages[dtype].bytes;
}

/* load_run loads n numbers from data[at..] as f32. */
static inline void load_run(const attn_kernels *kernels, int dtype, float *to, const void *data,
                            int64_t at, int64_t n)
{
    const char *from = (const char *)data + at * (int64_t)bytes_of(dtype);
    if (dtype == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        storages[dtype].read(kernels, to, from, n);
}

/* run_as_f32 gives n numbers from data[at..] as f32: where they lie, or widened into `space`. */
static inline const float *run_as_f32(const attn_kernels *kernels, int dtype, const void *data,
                                      int64_t at, int64_t n, float *space)
{
    if (dtype == ATTN_F32)
        return (const float *)data + at;
    load_run(kernels, dtype, space, data, at, n);
    return space;
}

/* store_run stores n results to data[at..]; their NaN is canonical already, and they hold no -0. */
static inline void store_run(const attn_kernels *kernels, int dtype, void *data, int64_t at,
                             const float *from, int64_t n)
{
    char *to = (char *)data + at * (int64_t)bytes_of(dtype);
    if (dtype == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else
        storages[dtype].write(kernels, to, from, n);
}
