/* src/bits.c - the bits of a float, and selections by them.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "config.h"

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define NEG_INF float_of(0xff800000u)

static inline int is_finite(float x)
{
    return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

/* is_neg_inf looks at bits: under -ffinite-math-only gcc 12 folds x != -inf into x >= -FLT_MAX, in
 * spite of the pragma above, and a NaN would pass for -inf. */
static inline int is_neg_inf(float x)
{
    return bits_of(x) == 0xff800000u;
}

/* is_dead tells whether x is ATTN_DEAD. */
static inline int is_dead(float x)
{
    return bits_of(x) == 0x80000000u;
}

static inline int is_nan(float x)
{
    return (bits_of(x) & 0x7fffffffu) > 0x7f800000u;
}

/* choose gives a or b. It is written with masks because gcc does not vectorise a conditional
 * expression whose operand is computed for it. */
static inline float choose(int yes, float a, float b)
{
    const uint32_t mask = 0u - (uint32_t)(yes != 0);
    return float_of((bits_of(a) & mask) | (bits_of(b) & ~mask));
}
