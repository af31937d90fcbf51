/* src/storage.c - storage types: read as f32 exactly, written from f32 to nearest.
 * SPDX-License-Identifier: MIT
 *
 * A type is a row of one table. A unit is what it stores together: one number, or 32 of them with a
 * scale. Calls read and write runs of numbers by kernels.
 */
#pragma once

#include "eighths.c"
#include "quantised.c"
#include "seam.h"
#include "sizes.c"

#define F16_ONE 0x3c00

static float load_f32(const void *data, int64_t at)
{
    return ((const float *)data)[at];
}

static void store_f32(void *data, int64_t at, float x)
{
    ((float *)data)[at] = is_nan(x) ? float_of(CANONICAL_NAN) : x;
}

static float load_f16(const void *data, int64_t at)
{
    return f16_to_f32(((const uint16_t *)data)[at]);
}

static float load_bf16(const void *data, int64_t at)
{
    return bf16_to_f32(((const uint16_t *)data)[at]);
}

static void read_f16(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_f16(to, from, n);
}

static void read_bf16(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_bf16(to, from, n);
}

static void read_e4m3(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_e4m3(to, from, n);
}

static void read_e5m2(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_e5m2(to, from, n);
}

static void read_q8_0(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_q8_0(to, from, n);
}

static void read_q5_0(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_q5_0(to, from, n);
}

static void read_q4_0(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_q4_0(to, from, n);
}

static void write_f16(const attn_kernels *kernels, void *to, const float *from, int64_t n)
{
    kernels->narrow_f16(to, from, n);
}

static void write_bf16(const attn_kernels *kernels, void *to, const float *from, int64_t n)
{
    kernels->narrow_bf16(to, from, n);
}

static void unpack_q8_0(q8_unit *to, const void *from, int64_t n)
{
    memcpy(to, from, (size_t)(n / UNIT) * sizeof *to);
}

/* The scale of a unit is 1: those of the caller come before or behind its products. */
static void unpack_i8(q8_unit *to, const void *from, int64_t n)
{
    const int8_t *q = (const int8_t *)from;
    for (; n > 0; n -= UNIT, q += UNIT, to++) {
        to->scale = F16_ONE;
        memcpy(to->q, q, sizeof to->q);
    }
}

static void unpack_q5_0(q8_unit *to, const void *from, int64_t n)
{
    const q5_unit *unit = (const q5_unit *)from;
    for (; n > 0; n -= UNIT)
        unpack_q5(to++, unit++);
}

static void unpack_q4_0(q8_unit *to, const void *from, int64_t n)
{
    const q4_unit *unit = (const q4_unit *)from;
    for (; n > 0; n -= UNIT)
        unpack_q4(to++, unit++);
}

typedef struct storage {
    const char *name;
    int unit;     /* numbers that are stored together, */
    size_t bytes; /* in these bytes */
    /* Nonzero means that the products for few lanes, of K or of V, read rows of it as they lie. */
    int in_products[2];
    /* NULL for what only K and V may have. */
    float (*load)(const void *data, int64_t at);
    void (*write)(const attn_kernels *kernels, void *to, const float *from, int64_t n);
    /* NULL for f32, whose runs are copied, as they are in writing, and for i8, which has scales. */
    void (*read)(const attn_kernels *kernels, float *to, const void *from, int64_t n);
    /* NULL where there are no whole numbers. */
    void (*unpack)(q8_unit *to, const void *from, int64_t n);
} storage;

/* The table is in the order of attn_dtype. */
static const storage storages[] = {
    { "f32", 1, 4, { 1, 1 }, load_f32, NULL, NULL, NULL },
    { "f16", 1, 2, { 1, 1 }, load_f16, write_f16, read_f16, NULL },
    { "bf16", 1, 2, { 1, 1 }, load_bf16, write_bf16, read_bf16, NULL },
    { "e4m3", 1, 1, { 1, 1 }, NULL, NULL, read_e4m3, NULL },
    { "e5m2", 1, 1, { 1, 1 }, NULL, NULL, read_e5m2, NULL },
    { "q8_0", UNIT, sizeof(q8_unit), { 1, 1 }, NULL, NULL, read_q8_0, unpack_q8_0 },
    { "q5_0", UNIT, sizeof(q5_unit), { 1, 1 }, NULL, NULL, read_q5_0, unpack_q5_0 },
    { "q4_0", UNIT, sizeof(q4_unit), { 1, 1 }, NULL, NULL, read_q4_0, unpack_q4_0 },
    { "i8", 1, 1, { 0, 0 }, NULL, NULL, NULL, unpack_i8 },
};

#define LAST_DTYPE (COUNT_OF(storages) - 1)
#define LAST_PLAIN ATTN_BF16
#define PLAIN_DTYPES "0 is f32, 1 is f16, 2 is bf16"
#define DTYPES PLAIN_DTYPES ", 3 is e4m3, 4 is e5m2, 5 is q8_0, 6 is q5_0, 7 is q4_0, 8 is i8"

/* has_scales tells whether numbers of a type mean nothing without the caller's scales. */
static inline int has_scales(int dtype)
{
    return dtype == ATTN_I8;
}

/* bytes_of gives the bytes of a unit, which is a number of plain types. */
static inline size_t bytes_of(int dtype)
{
    return storages[dtype].bytes;
}

/* bytes_between gives the bytes between numbers that are n apart, and room_of those of n numbers; n is
 * whole units. */
static inline ptrdiff_t bytes_between(int dtype, int64_t n)
{
    return (ptrdiff_t)(n / storages[dtype].unit) * (ptrdiff_t)bytes_of(dtype);
}

static inline int64_t room_of(int dtype, int64_t n)
{
    return times(n / storages[dtype].unit, (int64_t)bytes_of(dtype));
}

/* load_run loads n numbers from data[at..] as f32, whole units. */
static inline void load_run(const attn_kernels *kernels, int dtype, float *to, const void *data,
                            int64_t at, int64_t n)
{
    const char *from = (const char *)data + bytes_between(dtype, at);
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

/* store_run stores n results of a plain type to data[at..]; their NaN is canonical already, and they
 * hold no -0. */
static inline void store_run(const attn_kernels *kernels, int dtype, void *data, int64_t at,
                             const float *from, int64_t n)
{
    char *to = (char *)data + at * (int64_t)bytes_of(dtype);
    if (dtype == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else
        storages[dtype].write(kernels, to, from, n);
}
