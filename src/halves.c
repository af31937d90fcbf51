/* src/halves.c - the 16-bit storage types: exact to f32; from f32 to nearest even, NaN canonical.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "numbers.c"

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    float magnitude;
    if (rest >= 0x7c00u)
        return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u)
        return float_of(sign | ((rest << 13) + (112u << 23)));
    /* The number is subnormal in f16 and normal in f32. */
    magnitude = (float)(int32_t)rest * 0x1p-24f;
    return float_of(sign | bits_of(magnitude));
}

static inline uint16_t f16_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu, half, shift;
    if (a > 0x7f800000u)
        return 0x7e00u;
    if (a >= 0x477ff000u) /* It rounds to 65536 or more. */
        return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x38800000u) { /* The result is normal, 2^-14 and above. */
        a -= 112u << 23;
        a += 0xfffu + (a >> 13 & 1);
        return (uint16_t)(sign | a >> 13);
    }
    if (a <= 0x33000000u) /* It is at most 2^-25, a tie with 0 or below. */
        return (uint16_t)sign;
    /* The shift is 14 to 24 and makes the significand a multiple of 2^-24. */
    shift = 126u - (a >> 23);
    a = (a & 0x7fffffu) | 0x800000u;
    half = 1u << (shift - 1);
    a += half - 1 + (a >> shift & 1);
    return (uint16_t)(sign | a >> shift);
}

static inline float bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    if (is_nan(x))
        return 0x7fc0u;
    u += 0x7fffu + (u >> 16 & 1);
    return (uint16_t)(u >> 16);
}
