/* src/rope/fixed_point.c - fixed-point arithmetic of 64 bits for the angles of RoPE.
 * SPDX-License-Identifier: MIT
 *
 * Integers give the same bits everywhere, and reduce an angle to one turn for nothing: the reduced
 * angle is what a product leaves modulo 2^64.
 */
#pragma once

#include "../api/rope.h"
#include "../numbers.c"

/* The upper half of a product of 128 bits. Where the compiler has that type it is one instruction,
 * and a row's angles take 40 % of the time (gcc 12, AMD EPYC: 1.9 us a call instead of 4.9). */
#if defined __SIZEOF_INT128__
__extension__ typedef unsigned __int128 rope_u128;
#define ROPE_HIGH64(a, b) ((uint64_t)((rope_u128)(a) * (b) >> 64))
#else
#define ROPE_HIGH64(a, b) high_of_halves(a, b)
static uint64_t high_of_halves(uint64_t a, uint64_t b)
{
    const uint64_t half = 0xffffffffu;
    const uint64_t low = (a & half) * (b & half), middle = (a >> 32) * (b & half) + (low >> 32);
    const uint64_t other = (a & half) * (b >> 32) + (middle & half);
    return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}
#endif

/* The number is whole + part / 2^64. */
typedef struct rope_fixed {
    int64_t whole;
    uint64_t part;
} rope_fixed;

/* fixed_over divides x >= 0 by d, which is from 1 to 2^31, and rounds down. */
static rope_fixed fixed_over(rope_fixed x, int64_t d)
{
    const uint64_t by = (uint64_t)d, whole = (uint64_t)x.whole;
    const uint64_t upper = whole % by << 32 | x.part >> 32;
    const uint64_t lower = upper % by << 32 | (x.part & 0xffffffffu);
    const rope_fixed y = { (int64_t)(whole / by), upper / by << 32 | lower / by };
    return y;
}

/* fixed_times gives n x for n < 2^31 and x >= 0 below 2^32 / n. */
static rope_fixed fixed_times(rope_fixed x, int64_t n)
{
    const uint64_t by = (uint64_t)n, lower = (x.part & 0xffffffffu) * by;
    const uint64_t upper = (x.part >> 32) * by + (lower >> 32);
    const rope_fixed y = { (int64_t)((uint64_t)x.whole * by + (upper >> 32)),
                           upper << 32 | (lower & 0xffffffffu) };
    return y;
}

static rope_fixed fixed_plus(rope_fixed x, rope_fixed y)
{
    x.part += y.part;
    x.whole += y.whole + (x.part < y.part);
    return x;
}

/* mantissa splits x > 0 into the result, which has 24 bits, times 2^*scale. */
static uint64_t mantissa(float x, int *scale)
{
    const uint32_t u = bits_of(x), exponent = u >> 23;
    *scale = (int)(exponent ? exponent : 1) - 150;
    return (u & 0x7fffffu) | (exponent ? 0x800000u : 0);
}

/* log2_of gives log2 of v 2^scale for v > 0. A square has twice the logarithm, so each squaring of
 * a number in [1, 2) gives one more binary digit. An error of a square counts half as much as one
 * of the square before, so all together they stay below 2^-62. */
static rope_fixed log2_of(uint64_t v, int scale)
{
    rope_fixed y = { 0, 0 };
    int digit;
    for (; !(v >> 63); scale--)
        v <<= 1;
    for (digit = 0; digit < 64; digit++) {
        const uint64_t low = v * v, high = ROPE_HIGH64(v, v), small = ~high >> 63;
        y.part = y.part << 1 | (small ^ 1);
        v = high << small | (low >> 63 & small);
    }
    y.whole = scale + 63;
    return y;
}

static rope_fixed log2_of_float(float x)
{
    int scale;
    const uint64_t v = mantissa(x, &scale);
    return log2_of(v << 40, scale - 40);
}

/* alternating evaluates c[0] - x (c[1] - x (c[2] - ...)), where x is in units of 2^-64. */
static uint64_t alternating(const uint64_t *c, int count, uint64_t x)
{
    uint64_t y = c[count - 1];
    int k;
    for (k = count - 2; k >= 0; k--)
        y = c[k] - ROPE_HIGH64(x, y);
    return y;
}

/* power_of_two gives 2^64 2^-x for x in [0, 1) in units of 2^-64. It is 1 - x g(x) with g of degree
 * 12 by Remez, and its worst error is 2^-69. */
static uint64_t power_of_two(uint64_t x)
{
    static const uint64_t g[] = { UINT64_C(0xb17217f7d1cf79ac), UINT64_C(0x3d7f7bff058b1d48),
                                  UINT64_C(0x0e35846b82505dc2), UINT64_C(0x0276556df749a271),
                                  UINT64_C(0x005761ff9e279e95), UINT64_C(0x000a184897b5c5ed),
                                  UINT64_C(0x0000ffe5fdf084ec), UINT64_C(0x0000162c0173c753),
                                  UINT64_C(0x000001b523da59bd), UINT64_C(0x0000001e4b081197),
                                  UINT64_C(0x00000001e6f9dfaa), UINT64_C(0x000000001b1dd80f),
                                  UINT64_C(0x0000000001180248) };
    const uint64_t y = alternating(g, COUNT_OF(g), x);
    return ~ROPE_HIGH64(x, y);
}

/* over_float divides x by d > 0: x / d is the result times 2^-n, where n is what it adds to
 * *shift. */
static uint64_t over_float(uint64_t x, float d, int *shift)
{
    int scale;
    uint64_t by = mantissa(d, &scale);
    for (; !(by >> 23); scale--)
        by <<= 1;
    *shift += scale + 23;
    return (x / by << 23) + (x % by << 23) / by;
}

/* shifted gives x 2^-shift to the nearest, modulo 2^64. */
static uint64_t shifted(uint64_t x, int shift)
{
    if (shift <= 0)
        return shift > -64 ? x << -shift : 0;
    if (shift > 64)
        return 0;
    return (x >> (shift - 1) >> 1) + (x >> (shift - 1) & 1);
}
