/* src/eighths.c - the 8-bit floats of the OCP specification, which only K and V may have.
 * SPDX-License-Identifier: MIT
 *
 * OCP 8-bit Floating Point Specification (OFP8), revision 1.0. Exact to f32; from f32 to nearest even.
 * What is too large becomes NaN in E4M3, which has no infinity, and infinity in E5M2.
 */
#pragma once

#include "halves.c"

/* It chooses by masks, so that compilers vectorise loops of it. */
static inline float e4m3_to_f32(uint8_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x80u) << 24, rest = h & 0x7fu;
    const uint32_t strange = 0u - (uint32_t)(rest == 0x7fu);
    const uint32_t small = 0u - (uint32_t)(rest < 0x08u); /* subnormal in E4M3, normal in f32 */
    const float tiny = (float)(int32_t)rest * 0x1p-9f;
    const uint32_t normal = (rest << 20) + (120u << 23);
    return float_of(sign | (bits_of(tiny) & small) | (normal & ~(small | strange)) |
                    (CANONICAL_NAN & strange));
}

static inline uint8_t e4m3_from_f32(float x)
{
    const uint32_t u = bits_of(x), sign = u >> 24 & 0x80u;
    uint32_t a = u & 0x7fffffffu, half, shift;
    if (a > 0x43e80000u) /* It is above 464, the tie between 448 and what would be 480, or a NaN. */
        return (uint8_t)(a > 0x7f800000u ? 0x7fu : sign | 0x7fu);
    if (a >= 0x3c800000u) { /* The result is normal, 2^-6 and above. */
        a -= 120u << 23;
        a += 0x7ffffu + (a >> 20 & 1);
        return (uint8_t)(sign | a >> 20);
    }
    if (a <= 0x3a800000u) /* It is at most 2^-10, a tie with 0 or below. */
        return (uint8_t)sign;
    /* The shift is 21 to 24 and makes the significand a multiple of 2^-9. */
    shift = 141u - (a >> 23);
    a = (a & 0x7fffffu) | 0x800000u;
    half = 1u << (shift - 1);
    a += half - 1 + (a >> shift & 1);
    return (uint8_t)(sign | a >> shift);
}

/* E5M2 is the upper half of an f16. */
static inline float e5m2_to_f32(uint8_t h)
{
    return f16_to_f32((uint16_t)(h << 8));
}

static inline uint8_t e5m2_from_f32(float x)
{
    const uint32_t u = bits_of(x), sign = u >> 24 & 0x80u;
    uint32_t a = u & 0x7fffffffu, half, shift;
    if (a > 0x7f800000u)
        return 0x7eu;
    if (a >= 0x47700000u) /* It is 61440, the tie between 57344 and what would be 65536, or more. */
        return (uint8_t)(sign | 0x7cu);
    if (a >= 0x38800000u) { /* The result is normal, 2^-14 and above. */
        a -= 112u << 23;
        a += 0xfffffu + (a >> 21 & 1);
        return (uint8_t)(sign | a >> 21);
    }
    if (a <= 0x37000000u) /* It is at most 2^-17, a tie with 0 or below. */
        return (uint8_t)sign;
    /* The shift is 22 to 24 and makes the significand a multiple of 2^-16. */
    shift = 134u - (a >> 23);
    a = (a & 0x7fffffu) | 0x800000u;
    half = 1u << (shift - 1);
    a += half - 1 + (a >> shift & 1);
    return (uint8_t)(sign | a >> shift);
}
