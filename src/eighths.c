/* src/eighths.c - the 8-bit floats of the OCP specification, which only K and V may have.
 * SPDX-License-Identifier: MIT
 *
 * OCP 8-bit Floating Point Specification (OFP8), revision 1.0. Exact to f32; from f32 to nearest even.
 * What is too large becomes NaN in E4M3, which has no infinity, and infinity in E5M2.
 */
#pragma once

#include "halves.c"

/* to_eighth rounds the magnitude with the bits a, which is not too large, to a float with `cut` bits
 * less of fraction whose exponents are `less` lower; its least normal number is 2^(1 + less - 127). */
static inline uint32_t to_eighth(uint32_t a, uint32_t cut, uint32_t less)
{
    uint32_t shift, half;
    if (a >= (less + 1) << 23) { /* The result is normal. */
        a -= less << 23;
        shift = cut;
    } else {
        shift = cut + 1 + less - (a >> 23);
        if (shift > 24) /* It is at most half of the least subnormal one, a tie with 0. */
            return 0;
        a = (a & 0x7fffffu) | 0x800000u;
    }
    half = 1u << (shift - 1);
    return (a + half - 1 + (a >> shift & 1)) >> shift;
}

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
    const uint32_t u = bits_of(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x43e80000u) /* It is above 464, the tie between 448 and what would be 480, or a NaN. */
        return (uint8_t)(a > 0x7f800000u ? 0x7fu : sign | 0x7fu);
    return (uint8_t)(sign | to_eighth(a, 20, 120));
}

/* E5M2 is the upper half of an f16. */
static inline float e5m2_to_f32(uint8_t h)
{
    return f16_to_f32((uint16_t)(h << 8));
}

static inline uint8_t e5m2_from_f32(float x)
{
    const uint32_t u = bits_of(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return 0x7eu;
    if (a >= 0x47700000u) /* It is 61440, the tie between 57344 and what would be 65536, or more. */
        return (uint8_t)(sign | 0x7cu);
    return (uint8_t)(sign | to_eighth(a, 21, 112));
}
