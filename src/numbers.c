/* src/numbers.c - numbers: exp2, tanh, log2, the inverse square root.
 * SPDX-License-Identifier: MIT
 *
 * No libm: each function is one fixed sequence of binary32 operations, rounded to nearest even, so
 * that every compiler and ISA gives the same bits. One float operation per statement (s390x and x87
 * round at assignments); each multiply that feeds an add is fma32. Selections are ordered compares or
 * integer bits. tools/prove_math.c checks all inputs.
 */
#pragma once

#include "fma.c"

#define LOG2E_HI 0x1.715476p+0f /* log2(e) = HI + LO */
#define LOG2E_LO 0x1.4ae0c0p-26f
#define LN2 0x1.62e430p-1f
#define CANONICAL_NAN 0x7fc00000u

/*
 * 2^x for x in [-126, 128) only: no selections. Adding 1.5 * 2^23 leaves the nearest whole number
 * n in the low bits of t, |f| <= 0.5, and t << 23 is n in the exponent field: the upper bits of t
 * fall out modulo 2^32.
 */
KERNEL float exp2_core(int hw, float x)
{
    const float magic = 12582912.0f;
    float t, w, f, y;
    uint32_t u;
    t = x + magic;
    w = t - magic;
    f = x - w;
    /* 2^f on [-0.5, 0.5], degree 6, minimax in relative error, c0 = 1, rounded to binary32: */
    /* worst 0.7821 ulp over all floats in [-126, 128). */
    y = 0x1.44a6d6p-13f;
    y = fma32(hw, y, f, 0x1.5f8d0cp-10f);
    y = fma32(hw, y, f, 0x1.3b2822p-7f);
    y = fma32(hw, y, f, 0x1.c6adecp-5f);
    y = fma32(hw, y, f, 0x1.ebfbe4p-3f);
    y = fma32(hw, y, f, 0x1.62e432p-1f);
    y = fma32(hw, y, f, 1.0f);
    u = bits_of(y) + (bits_of(t) << 23);
    return float_of(u);
}

/*
 * 2^x for x < 128. Below -126 (-inf too) +0; NaN gives 7fffffff, by bits, since the integer add
 * could turn a NaN into a number and a sign bit means "dead" (chains8). +inf gives NaN (inf - inf);
 * finite x >= 128 gives garbage: callers promise x <= 127. The selections are integers: gcc
 * vectorises them without -fno-trapping-math, which ?: on floats needs on AVX2. As unsigned
 * numbers, the floats below -126 and the negative NaNs are those above the bits of -126; they are
 * clamped first, so that -inf raises no flag.
 */
KERNEL float exp2_with(int hw, float x)
{
    const uint32_t lowest = 0xc2fc0000u; /* -126 */
    uint32_t u = bits_of(x), v, nan;
    float y = exp2_core(hw, float_of(u > lowest ? lowest : u));
    v = bits_of(y);
    nan = 0u - (uint32_t)((u & 0x7fffffffu) > 0x7f800000u);
    v &= 0u - (uint32_t)(u <= lowest);
    v = (v & ~nan) | (nan >> 1);
    return float_of(v);
}

/*
 * tanh x for every x: |result| <= 1, odd bit for bit, tanh(+-0) = +-0, tanh(+-inf) = +-1, NaN
 * gives NaN. Below 0.625 the odd polynomial a + a^3 R(a^2), which is a itself for tiny a. From
 * there 1 - 2 / (e^(2a) + 1), where the fraction is at most 0.45 and its error shrinks with it.
 * (One odd rational a P(a^2) / Q(a^2) for all a was no better than 4 ulp after a search over the
 * coefficients: P, Q and the product each lose up to a whole ulp just below 1.) At the clamp, 10,
 * the fraction is under 2^-27 and the difference is 1 exactly; the first a that gives 1 is
 * 9.0109139. Worst error over all inputs 1.6765 ulp.
 */
KERNEL float tanh_with(int hw, float x)
{
    uint32_t bits = bits_of(x), a = bits & 0x7fffffffu, v;
    float c, u, r, small, e, large;
    c = float_of(a > 0x41200000u ? 0x41200000u : a); /* |x|, at most 10, which NaN becomes, too */
    u = c * c;
    /* R: (tanh a - a) / a^3 in u = a^2 on [0, 0.625^2], degree 4, Remez, weight a^3 / tanh a, */
    /* then rounded to binary32: worst 0.7208 ulp over all floats below 0.625. */
    r = -0x1.75e1cap-8f;
    r = fma32(hw, r, u, 0x1.52269cp-6f);
    r = fma32(hw, r, u, -0x1.b83c5ap-5f);
    r = fma32(hw, r, u, 0x1.110726p-3f);
    r = fma32(hw, r, u, -0x1.555532p-2f);
    u = u * c;
    small = fma32(hw, u, r, c);
    e = c * 0x1.715476p+1f; /* 2 log2(e) a, at most 28.9: inside exp2_core */
    e = exp2_core(hw, e);
    e = e + 1.0f;
    e = 2.0f / e;
    large = 1.0f - e;
    v = 0u - (uint32_t)(a >= 0x3f200000u);
    v = (bits_of(large) & v) | (bits_of(small) & ~v);
    v |= 0u - (uint32_t)(a > 0x7f800000u);
    return float_of(v | (bits & 0x80000000u));
}

/* inverse_sum gives r = fl(1 / l), and +0 for an empty row, whose l is 0. A selection of the divisor
 * would not do: clang 14 divides by 0 first and selects then. */
static inline float inverse_sum(int empty, float l)
{
    const float inverse = 1.0f / (l + (float)empty);
    return empty ? 0.0f : inverse;
}

/* exp2_canon is for scalar code outside the kernels. */
static inline float exp2_canon(float x)
{
    return exp2_with(FMA_BASE, x);
}

/*
 * log2 x: +inf gives +inf, +-0 gives -inf, NaN and x < 0 give NaN; log2(2^n) = n exactly,
 * log2(1) = +0. x = 2^n m, m in [sqrt(1/2), sqrt(2)), f = m - 1 exact:
 * log2 x = n + f L + f^2 Q(f), where f L is kept as a head h and a tail l, so that the relative
 * error holds near 1, too. Subnormals are normalised as integers.
 */
static inline float log2_canon(float x)
{
    const float l_hi = 0x1.715476p+0f, l_lo = 0x1.4ae0cp-26f; /* log2 e */
    uint32_t u = bits_of(x), m;
    int32_t n = 0;
    float f, f2, h, l, q, k, s, r;
    if ((u & 0x7fffffffu) == 0)
        return float_of(0xff800000u);
    if (u > 0x7f800000u)
        return float_of(0x7fc00000u);
    if (u == 0x7f800000u)
        return x;
    if (u < 0x00800000u) {
        f = (float)(int32_t)u; /* exact, below 2^23 */
        u = bits_of(f);
        n = -149;
    }
    /* m: the bits of x moved to [sqrt(1/2), sqrt(2)); 0x3f3504f4 is just above sqrt(1/2) */
    m = u - 0x3f3504f4u;
    n += (int32_t)((m + 0x40000000u) >> 23) - 128;
    m = (m & 0x007fffffu) + 0x3f3504f4u;
    f = float_of(m);
    f = f - 1.0f;
    k = (float)n;
    /* Q: (log2(1 + f) - f L) / f^2 on [sqrt(1/2) - 1, sqrt(2) - 1], degree 8, Remez, weight */
    /* f^2 / log2(1 + f), then rounded to binary32: worst 1.1004 ulp over all positive floats. */
    q = -0x1.c26434p-4f;
    q = fma32(FMA_BASE, q, f, 0x1.7d4786p-3f);
    q = fma32(FMA_BASE, q, f, -0x1.87485cp-3f);
    q = fma32(FMA_BASE, q, f, 0x1.a30596p-3f);
    q = fma32(FMA_BASE, q, f, -0x1.eabd0ep-3f);
    q = fma32(FMA_BASE, q, f, 0x1.277e3cp-2f);
    q = fma32(FMA_BASE, q, f, -0x1.715a72p-2f);
    q = fma32(FMA_BASE, q, f, 0x1.ec7096p-2f);
    q = fma32(FMA_BASE, q, f, -0x1.71547p-1f);
    h = f * l_hi;
    l = fma32(FMA_BASE, f, l_hi, -h); /* exact: what the product lost */
    l = fma32(FMA_BASE, f, l_lo, l);
    f2 = f * f;
    l = fma32(FMA_BASE, f2, q, l);
    s = k + h; /* |k| >= 1 > |h|, or k = 0: r is the exact rounding error of s */
    r = s - k;
    r = h - r;
    l = r + l;
    s = s + l;
    return s;
}

/*
 * The binary32 nearest to 1 / sqrt(n), 1 <= n <= 2^62, integers only. With 4^24 <= 4^j / n < 4^25,
 * root = floor(sqrt(floor(4^j / n))) = floor(2^j / sqrt(n)) has 25 bits, one more than the result.
 * Half up is the nearest: a tie would be an odd root with root^2 n = 4^j, which does not exist.
 */
static inline float inv_sqrt_nearest(uint64_t n)
{
    uint64_t quotient, remainder, root = 0, bit;
    uint32_t j = 24, i;
    float power;
    while (j < 55 && n > (uint64_t)1 << 2 * (j - 24))
        j++;
    i = 2 * j < 63 ? 2 * j : 63;
    quotient = ((uint64_t)1 << i) / n;
    remainder = ((uint64_t)1 << i) % n;
    for (; i < 2 * j; i++) { /* long division of 4^j by n goes on where 64 bits do not hold 4^j */
        const uint64_t digit = 2 * remainder >= n ? 1 : 0;
        quotient = 2 * quotient + digit;
        remainder = 2 * remainder - (digit ? n : 0);
    }
    for (bit = (uint64_t)1 << 24; bit != 0; bit >>= 1)
        if ((root + bit) * (root + bit) <= quotient)
            root += bit;
    power = float_of((127u - (j - 1)) << 23); /* 2^-(j-1) */
    return (float)(int32_t)((root + 1) >> 1) * power;
}
