/* src/sizes.c - sizes and strides: sums and products stop at a limit instead of overflowing.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "config.h"

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t entry32(const int32_t *array, int64_t index, int64_t otherwise)
{
    return array ? array[index] : otherwise;
}

/* Products and sums of sizes, which are 0 or more, stop at TOO_BIG instead of overflowing; what is
 * in memory is below ADDRESS_LIMIT bytes, and TOO_BIG is not. */
#define TOO_BIG (INT64_MAX / 4)
#define ADDRESS_LIMIT (PTRDIFF_MAX / 4)

static inline int64_t times(int64_t a, int64_t b)
{
    if ((a | b) >> 30 == 0) /* The division takes 32-bit CPUs 150 instructions. */
        return a * b;
    if (a == 0 || b == 0)
        return 0;
    return a >= TOO_BIG / b ? TOO_BIG : a * b;
}

static inline int64_t plus(int64_t a, int64_t b)
{
    return min64(a + b, TOO_BIG);
}

/* A size beyond this cannot be the count of anything in memory. */
#define MOST ((int64_t)(PTRDIFF_MAX / 4 < TOO_BIG / 4 ? PTRDIFF_MAX / 4 : TOO_BIG / 4))

/* extent counts the elements from the first to the last of a strided array, or gives TOO_BIG if
 * that cannot be in memory. */
static inline int64_t extent(const int64_t count[4], const ptrdiff_t stride[4])
{
    int64_t sum = 1;
    int axis;
    for (axis = 0; axis < 4; axis++) {
        const int64_t step = stride[axis] < 0 ? -max64(stride[axis], -TOO_BIG) : stride[axis];
        if (count[axis] == 0)
            return 0;
        sum = plus(sum, times(count[axis] - 1, step));
    }
    return sum;
}

static inline ptrdiff_t to_stride(int64_t elements)
{
    return elements > PTRDIFF_MAX ? PTRDIFF_MAX : (ptrdiff_t)elements;
}

/* Every array in the workspace begins at a multiple of it, a cache line and an AVX-512 vector. */
#define ALIGNMENT 64

static inline int64_t aligned(int64_t bytes)
{
    return plus(bytes, ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* align_memory gives the first aligned byte of a caller's memory. */
static inline char *align_memory(const void *memory)
{
    const uintptr_t at = (uintptr_t)memory;
    return (char *)memory + (ALIGNMENT - at % ALIGNMENT) % ALIGNMENT;
}

/* bytes_given counts the bytes of a caller's workspace that can matter. */
static inline int64_t bytes_given(const void *workspace, size_t bytes)
{
    const int64_t limit = ADDRESS_LIMIT;
    return !workspace ? 0 : bytes < (uint64_t)limit ? (int64_t)bytes : limit;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return a == 0 ? 0 : (a - 1) / b + 1;
}

/* log2_up gives log2 of n, rounded up: the levels of a binary tree above its n leaves. */
static inline int log2_up(int64_t n)
{
    int levels = 0;
    for (; n > 1; n = ceil_div(n, 2))
        levels++;
    return levels;
}

/* place appends `count` elements to a slot that is `*at` bytes long and returns their offset. */
static inline int64_t place(int64_t *at, int64_t count, size_t bytes_each)
{
    const int64_t offset = *at;
    *at = plus(offset, aligned(times(count, (int64_t)bytes_each)));
    return offset;
}

#define LINE (ALIGNMENT / (int64_t)sizeof(float))

/* whole_lines counts the floats of whole cache lines. */
static inline int64_t whole_lines(int64_t floats)
{
    return times(ceil_div(floats, LINE), LINE);
}

/* pitch_of gives an odd number of whole cache lines, so that rows do not compete for one part of
 * the cache. */
static inline int64_t pitch_of(int64_t dim)
{
    return times(ceil_div(dim, LINE) | 1, LINE);
}

/* The largest element is a number of 64 bits, which some machines align to 4 bytes. */
struct aligned_number {
    char before;
    int64_t number;
};

/* alignment_of gives what addresses of elements, or of units, of that size are multiples of. */
static inline int64_t alignment_of(int64_t bytes_each)
{
    return min64(bytes_each & -bytes_each, (int64_t)offsetof(struct aligned_number, number));
}

static inline int is_aligned(const void *data, int64_t bytes_each)
{
    return (uintptr_t)data % (uintptr_t)alignment_of(bytes_each) == 0;
}

/* stride_or gives a stride as it was given, with what 0 and "broadcast" mean. */
static inline ptrdiff_t stride_or(ptrdiff_t stride, int64_t packed)
{
    return stride == ATTN_STRIDE_BROADCAST ? 0 : stride == 0 ? to_stride(packed) : stride;
}

static inline attn_tensor as_tensor(const attn_output *o)
{
    const attn_tensor t = { o->dtype, o->stride_batch, o->stride_head, o->stride_seq, o->data };
    return t;
}
