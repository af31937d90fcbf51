/* src/halves.c - the 16-bit storage types: exact to f32; from f32 to nearest even, NaN canonical.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "numbers.c"

/* It chooses by masks, so that compilers vectorise loops of it. */
static inline float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu, bias = 112u << 23;
    const uint32_t strange = 0u - (uint32_t)(rest > 0x7bffu); /* infinity or NaN */
    const uint32_t small = 0u - (uint32_t)(rest < 0x0400u);   /* subnormal in f16, normal in f32 */
    const float tiny = (float)(int32_t)rest * 0x1p-24f;
    const uint32_t normal = (rest << 13) + bias + (strange & bias);
    return float_of(sign | (bits_of(tiny) & small) | (normal & ~small));
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
