/* src/fma.c - a * b + c rounded once, on every CPU.
 * SPDX-License-Identifier: MIT
 *
 * Where binary32 FMA is no instruction, binary64 hardware or integers give the same bits. Any NaN may
 * stand for another. tests/fma.c and tools/prove_fma.c compare all forms.
 */
#pragma once

#include "bits.c"

/* ---- by binary64 */

#ifdef FMA_BY_BINARY64

/*
 * p + c rounded to odd in binary64 and then to binary32; s is p + c rounded. TwoSum yields the error e
 * of s. An inexact s becomes the neighbour with the odd last bit, and 53 >= 24 + 2 bits make the last
 * rounding right, subnormal results included. With infinities or NaN e is NaN and both compares
 * fail. Excess precision (x87) may pick the other neighbour as s, but e keeps its sign and the odd
 * one is the same.
 */
COLD static float fma_by_odd(double p, double c, double s)
{
    double t, v, e;
    uint64_t u;
    int up, down;
    t = s - p;
    v = s - t;
    v = p - v;
    t = c - t;
    e = v + t;
    memcpy(&u, &s, sizeof u);
    up = e > 0.0;
    down = e < 0.0;
    if ((up || down) && (u & 1) == 0) {
        int negative = (int)(u >> 63);
        u = up != negative ? u + 1 : u - 1;
    }
    memcpy(&s, &u, sizeof s);
    return (float)s;
}

/*
 * Whether rounding s, the sum, to binary32 may be wrong. Midways between two neighbours in binary32 are
 * binary64 numbers, so none lies between a sum and s, its neighbour in binary64: both round alike unless
 * s is a midway itself. The last 29 bits of a midway are 1 and 28 zeros from 2^-126 up, and zeros below.
 * So the first test sees nearly all sums off. The second one counts sums below 2^-126 as midways, but
 * not 0, which is always exact.
 */
static inline int is_midway(uint64_t s)
{
    const uint32_t low = (uint32_t)s, high = (uint32_t)(s >> 32);
    return low << 4 == 0 && (low << 3 != 0 || (high << 1) - 1 < ((1023u - 126u) << 21) - 1);
}

/* The product of two 24-bit significands is exact in binary64. */
static inline float fma_binary64(float a, float b, float c)
{
    const double da = (double)a, db = (double)b, dc = (double)c;
    double p, s;
    uint64_t u;
    p = da * db;
    s = p + dc;
    memcpy(&u, &s, sizeof u);
    return is_midway(u) ? fma_by_odd(p, dc, s) : (float)s;
}
#endif

/* ---- by integers */

#ifdef FMA_BY_INTEGERS

/* The significand of a finite number, with bit 23 set unless it is 0, and its biased exponent, which
 * is below 1 for subnormal numbers. */
static inline uint32_t to_significand(uint32_t u, int *exponent)
{
    uint32_t m = u & 0x7fffffu;
    *exponent = (int)(u >> 23 & 255);
    if (*exponent != 0)
        return m | 0x800000u;
    if (m != 0)
        for (*exponent = 1; m < 0x800000u; --*exponent)
            m <<= 1;
    return m;
}

/* Numbers moved right by n bits. What falls out is kept as a last bit of 1, so that a sum with a number
 * that ends in 0, and the rounding of the sum higher up, are right. */
KERNEL uint32_t moved32(uint32_t x, int n)
{
    return n < 32 ? x >> n | (x << 1 << (31 - n) != 0) : x != 0;
}

static inline uint64_t moved64(uint64_t x, int n)
{
    const uint32_t high = (uint32_t)(x >> 32), low = (uint32_t)x;
    if (n >= 32)
        return moved32(high | (low != 0), n - 32);
    return (uint64_t)(high >> n) << 32 | high << 1 << (31 - n) | moved32(low, n);
}

/* u * 2^(exponent - 157) rounded to nearest even, with 2^30 <= u < 2^31 and exponent from 1 to 254. Bit 23 of a
 * significand adds 1 to the exponent. */
KERNEL float rounded32(uint32_t sign, uint32_t u, int exponent)
{
    const uint32_t rest = u & 127;
    u = (u >> 7) + ((uint32_t)(exponent - 1) << 23);
    u += rest + (u & 1) > 64;
    return float_of(sign | u);
}

/* x * 2^(exponent - 189) rounded so, with 0 < x < 2^63; sign is the first bit. */
static inline float rounded(uint32_t sign, uint64_t x, int exponent)
{
    uint32_t u;
    for (; x >> 62 == 0; x <<= 1)
        exponent--;
    u = (uint32_t)(x >> 32) | ((uint32_t)x != 0);
    if (exponent >= 255)
        return float_of(sign | 0x7f800000u);
    if (exponent < 1) {
        u = moved32(u, 1 - exponent);
        exponent = 1;
    }
    return rounded32(sign, u, exponent);
}

/* An infinity or a NaN among them: no float operation on finite numbers. */
static inline float fma_not_finite(float a, float b, float c)
{
    float x = c;
    if (is_finite(a) && is_finite(b))
        return x;
    x = a * b;
    x = x + c;
    return x;
}

/* Significands begin at bits 60 and, the product, 60 or 61: what bits fall out when the smaller
 * number is moved right does not matter to a difference so small that it moves left again. */
static inline float fma_any(float a, float b, float c)
{
    const uint32_t ua = bits_of(a), ub = bits_of(b), uc = bits_of(c);
    uint32_t sign = (ua ^ ub) & 0x80000000u;
    int ea, eb, ec, apart;
    uint64_t p = (uint64_t)to_significand(ua, &ea) * to_significand(ub, &eb) << 14;
    uint64_t x = (uint64_t)to_significand(uc, &ec) << 37;
    if (ea == 255 || eb == 255 || ec == 255)
        return fma_not_finite(a, b, c);
    if (p == 0)
        return x != 0 ? c : float_of(sign & uc);
    apart = ea + eb - 127 - ec;
    if (apart >= 0) {
        x = moved64(x, apart);
        ec += apart;
    } else {
        p = moved64(p, -apart);
    }
    if (((sign ^ uc) & 0x80000000u) == 0)
        return rounded(sign, p + x, ec + 2);
    if (p == x)
        return 0.0f;
    if (p > x)
        return rounded(sign, p - x, ec + 2);
    return rounded(sign ^ 0x80000000u, x - p, ec + 2);
}

KERNEL int is_normal(uint32_t u)
{
    return (u << 1) + 0x01000000u >= 0x02000000u;
}

/* Frequent sums by words of 32 bits: normal numbers, of which c stays even where it is moved right. Only the
 * product then ends in a bit that stands for others, and the sum does, too. Bit 29 begins c, and bit 28 or 29
 * the product. A difference with few bits left is for fma_any. */
static inline float fma_integer(float a, float b, float c)
{
    const uint32_t ua = bits_of(a), ub = bits_of(b), uc = bits_of(c);
    const uint64_t p = (uint64_t)(ua << 8 | 0x80000000u) * (ub << 8 | 0x80000000u);
    uint32_t x = (uc << 8 | 0x80000000u) >> 2, y = (uint32_t)(p >> 34) | (p << 30 != 0), sign = uc;
    int ec = (int)(uc >> 23 & 255);
    const int apart = (int)(ua >> 23 & 255) + (int)(ub >> 23 & 255) - 126 - ec;
    if (!is_normal(ua) || !is_normal(ub) || !is_normal(uc) || apart > 5)
        return fma_any(a, b, c);
    if (apart > 0) {
        x >>= apart;
        ec += apart;
    } else {
        y = moved32(y, -apart);
    }
    if ((int32_t)(ua ^ ub ^ uc) >= 0) {
        x += y;
    } else if (x >= y) {
        x -= y;
    } else {
        x = y - x;
        sign = ~sign;
    }
    if (x < 1u << 26)
        return fma_any(a, b, c);
    for (ec++; x < 1u << 30; x <<= 1)
        ec--;
    if (ec < 1 || ec > 254)
        return fma_any(a, b, c);
    return rounded32(sign & 0x80000000u, x, ec);
}
#endif

/* ---- by what this CPU has */

/* hw is constant at every call: only the second build of the kernels has the instruction. */
#if FMA_BASE || defined FMA_SECOND_BUILD
FMA_TARGET static inline float fma_hard(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
#else
#define fma_hard FMA_SOFT
#endif

KERNEL float fma32(int hw, float a, float b, float c)
{
    return hw ? fma_hard(a, b, c) : FMA_SOFT(a, b, c);
}
