/* data.c - reproducible inputs.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include <math.h>
#include <string.h>

#include "../../attn.h"

enum { BATCH = 1024 }; /* elements converted at a time */

/* Normal numbers repeat after this count, since a GiB of them takes 10 seconds: a prime, so that no
 * two rows of a tensor are the same before that many rows. */
enum { PERIOD = 1048573 };

static float trig(int which, size_t i)
{
    const double x = 0.1 * (double)i;
    if (which == DATA_Q)
        return (float)sin(x);
    if (which == DATA_K)
        return (float)cos(1.1 * x);
    if (which == DATA_DOUT)
        return (float)cos(0.9 * x);
    return (float)tan(1.2 * sin(0.7 * x)); /* |argument| <= 1.2: |tan| <= 2.6 */
}

/* SplitMix64: each number is a hash of its index. */
static double uniform(uint64_t seed, uint64_t index)
{
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return ((double)(z >> 11) + 0.5) / 9007199254740992.0; /* 2^53: in (0, 1) */
}

static float normal(int which, size_t i, uint64_t seed)
{
    const uint64_t stream = seed * 4 + (uint64_t)which;
    const double radius = sqrt(-2 * log(uniform(stream, 2 * (uint64_t)i)));
    return (float)(radius * cos(6.283185307179586 * uniform(stream, 2 * (uint64_t)i + 1)));
}

int case_unit(int dtype)
{
    return dtype >= ATTN_Q8_0 && dtype <= ATTN_Q4_0 ? 32 : 1;
}

size_t case_bytes(int dtype, int64_t n)
{
    static const unsigned char of_unit[] = { 4, 2, 2, 1, 1, 34, 22, 18, 1 };
    return (size_t)(n / case_unit(dtype)) * of_unit[dtype];
}

size_t case_row_bytes(int dtype, int64_t n)
{
    return case_bytes(dtype, n) + (dtype == ATTN_I8 ? sizeof(float) : 0);
}

/* From where the unit with number `begin` lies. */
static void convert(void *out, int dtype, size_t begin, const float *values, size_t count)
{
    if (dtype == ATTN_I8)
        for (size_t i = 0; i < count; i++)
            ((int8_t *)out)[begin + i] = (int8_t)rint((double)(values[i] / CASE_SCALE));
    else
        attn_convert((char *)out + case_bytes(dtype, (int64_t)begin), dtype, values, ATTN_F32,
                     count);
}

void data_fill(void *out, int dtype, size_t n, int which, data_kind kind, uint64_t seed)
{
    const size_t unit = (size_t)case_unit(dtype), period = PERIOD / unit * unit;
    const size_t computed = kind == DATA_NORMAL && n > period ? period : n;
    float values[BATCH];
    for (size_t begin = 0; begin < computed; begin += BATCH) {
        const size_t count = computed - begin < BATCH ? computed - begin : BATCH;
        for (size_t i = 0; i < count; i++)
            values[i] = kind == DATA_TRIG ? trig(which, begin + i) : normal(which, begin + i, seed);
        convert(out, dtype, begin, values, count);
    }
    for (size_t begin = computed; begin < n; begin += computed) {
        const size_t count = n - begin < computed ? n - begin : computed;
        memcpy((char *)out + case_bytes(dtype, (int64_t)begin), out,
               case_bytes(dtype, (int64_t)count));
    }
}
