/* src/bytes.c - products of bytes by what this CPU has: a float times a byte, sums of four products.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "fma.c"

/* d * q rounded once, where floating point is software, by one product of integers. */
#ifdef SOFT_FLOAT
static inline float times_byte(float d, int8_t q)
{
    const uint32_t u = bits_of(d), size = (uint32_t)(q < 0 ? -q : q);
    int exponent = (int)(u >> 23 & 255) + 7;
    uint32_t x = ((u & 0x7fffffu) | 0x800000u) * size;
    if (size == 0 || exponent < 14 || exponent > 254)
        return d * (float)q;
    for (; x < 1u << 30; x <<= 1)
        exponent--;
    return rounded32((u & 0x80000000u) ^ (q < 0 ? 0x80000000u : 0u), x, exponent);
}
#else
static inline float times_byte(float d, int8_t q)
{
    return d * (float)q;
}
#endif

/* Sums of products, for where there are no vectors. They are exact in 32 bits, so that both forms have the same
 * bits. Cortex-M4, M7, M33 and 32-bit ARM from ARMv6 on add the products of two pairs of 16 bits by one
 * instruction. */
#if !HAS_VECTORS && defined __ARM_FEATURE_SIMD32
#include <arm_acle.h>

typedef struct four_bytes {
    int16x2_t even, odd;
} four_bytes;

KERNEL four_bytes four_of(const int8_t *x)
{
    int8x4_t word;
    uint32_t turned;
    memcpy(&word, x, sizeof word);
    turned = (uint32_t)word >> 8 | (uint32_t)word << 24;
    return (four_bytes){ __sxtb16(word), __sxtb16((int8x4_t)turned) };
}

KERNEL int32_t add_four(int32_t sum, four_bytes a, four_bytes b)
{
    sum = __smlad(a.even, b.even, sum);
    return __smlad(a.odd, b.odd, sum);
}
#elif !HAS_VECTORS
typedef struct four_bytes {
    int32_t x[4];
} four_bytes;

KERNEL four_bytes four_of(const int8_t *x)
{
    return (four_bytes){ { x[0], x[1], x[2], x[3] } };
}

KERNEL int32_t add_four(int32_t sum, four_bytes a, four_bytes b)
{
    return sum + a.x[0] * b.x[0] + a.x[1] * b.x[1] + a.x[2] * b.x[2] + a.x[3] * b.x[3];
}
#endif
