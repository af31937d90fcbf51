/* src/quantised.c - units of 32 numbers with one scale, as GGUF files hold them.
 * SPDX-License-Identifier: MIT
 *
 * A unit begins with its scale d, an f16 in the machine's byte order. Whole numbers q follow, packed, and
 * stand for d * q, which is exact in f32. Bytes are those of ggml's reference quantisation
 * (github.com/ggml-org/ggml, src/ggml-quants.c), with each operation rounded:
 *
 *     q8_0   34 bytes   q from -127 to 127, a signed byte each
 *     q5_0   22 bytes   q + 16 from 0 to 31: 32 upper bits, lowest first, then the lower four as below
 *     q4_0   18 bytes   q + 8 from 0 to 15: byte i holds number i low and number i + 16 high
 *
 * Where ggml's are undefined: a unit with a number that is not finite has a NaN as its scale, which
 * every number of it becomes, and one of numbers so small that 1 / d is infinite has 0 for every q.
 * A scale that no f16 holds is infinite, as ggml's is.
 */
#pragma once

#include "bytes.c"
#include "halves.c"

#define UNIT 32
#define HALF_UNIT (UNIT / 2)

typedef struct q8_unit {
    uint16_t scale;
    int8_t q[UNIT];
} q8_unit;

typedef struct q5_unit {
    uint16_t scale;
    uint8_t upper[UNIT / 8];
    uint8_t lower[HALF_UNIT];
} q5_unit;

typedef struct q4_unit {
    uint16_t scale;
    uint8_t q[HALF_UNIT];
} q4_unit;

static inline void load_q8(float *RESTRICT to, const q8_unit *RESTRICT from)
{
    const float d = f16_to_f32(from->scale);
    int i;
    for (i = 0; i < UNIT; i++)
        to[i] = times_byte(d, from->q[i]);
}

/* unpack_q5 and unpack_q4 make units of 8 bits with the same numbers and scale. */
static inline void unpack_q5(q8_unit *RESTRICT to, const q5_unit *RESTRICT from)
{
    static const int16_t bit[HALF_UNIT] = { 1,       1 << 1,  1 << 2,  1 << 3,    1 << 4,  1 << 5,
                                            1 << 6,  1 << 7,  1 << 8,  1 << 9,    1 << 10, 1 << 11,
                                            1 << 12, 1 << 13, 1 << 14, -32767 - 1 };
    const int16_t first = (int16_t)(from->upper[0] | from->upper[1] << 8);
    const int16_t second = (int16_t)(from->upper[2] | from->upper[3] << 8);
    int i;
    to->scale = from->scale;
    for (i = 0; i < HALF_UNIT; i++) { /* A bit that is not there takes 16 away. */
        to->q[i] = (int8_t)((from->lower[i] & 15) - ((first & bit[i]) == 0) * 16);
        to->q[i + HALF_UNIT] = (int8_t)((from->lower[i] >> 4) - ((second & bit[i]) == 0) * 16);
    }
}

static inline void unpack_q4(q8_unit *RESTRICT to, const q4_unit *RESTRICT from)
{
    int i;
    to->scale = from->scale;
    for (i = 0; i < HALF_UNIT; i++) {
        to->q[i] = (int8_t)((from->q[i] & 15) - 8);
        to->q[i + HALF_UNIT] = (int8_t)((from->q[i] >> 4) - 8);
    }
}

static inline void load_q5(float *RESTRICT to, const q5_unit *RESTRICT from)
{
    static const int32_t bit[HALF_UNIT] = { 1,       1 << 1,  1 << 2,  1 << 3, 1 << 4,  1 << 5,
                                            1 << 6,  1 << 7,  1 << 8,  1 << 9, 1 << 10, 1 << 11,
                                            1 << 12, 1 << 13, 1 << 14, 1 << 15 };
    const float d = f16_to_f32(from->scale);
    const int32_t first = from->upper[0] | from->upper[1] << 8;
    const int32_t second = from->upper[2] | from->upper[3] << 8;
    int i;
    for (i = 0; i < HALF_UNIT; i++) { /* A bit that is not there takes 16 away. */
        to[i] = d * (float)((from->lower[i] & 15) - ((first & bit[i]) == 0) * 16);
        to[i + HALF_UNIT] = d * (float)((from->lower[i] >> 4) - ((second & bit[i]) == 0) * 16);
    }
}

static inline void load_q4(float *RESTRICT to, const q4_unit *RESTRICT from)
{
    const float d = f16_to_f32(from->scale);
    int i;
    for (i = 0; i < HALF_UNIT; i++) {
        to[i] = d * (float)((from->q[i] & 15) - 8);
        to[i + HALF_UNIT] = d * (float)((from->q[i] >> 4) - 8);
    }
}

/* The largest magnitude of n numbers, a NaN or infinity if one is not finite. */
KERNEL float size_of_run(const float *x, int64_t n)
{
    int32_t most = 0;
    int64_t i;
    for (i = 0; i < n; i++) {
        const int32_t bits = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
        most = bits > most ? bits : most;
    }
    return float_of((uint32_t)most);
}

static float size_of_unit(const float *x)
{
    return size_of_run(x, UNIT);
}

/* The number of the largest magnitude, the first of equal ones; a NaN if one is not finite. */
static float largest_of_unit(const float *x)
{
    const float size = size_of_unit(x);
    int i = 0;
    if (!is_finite(size))
        return float_of(CANONICAL_NAN);
    while ((bits_of(x[i]) & 0x7fffffffu) != bits_of(size))
        i++;
    return size > 0 ? x[i] : 0.0f;
}

/* 1 / d, and 0 for what gives no finite number, so that every q is one. */
static float inverse_scale(float d)
{
    const float inverse = 1.0f / (d + (float)(d == 0.0f));
    return d == 0.0f || !is_finite(d) || !is_finite(inverse) ? 0.0f : inverse;
}

/* Ties go away from 0. */
static inline float nearest_away(float x)
{
    const float size = float_of(bits_of(x) & 0x7fffffffu), whole = (float)(int32_t)size;
    const float nearest = whole + (float)(size - whole >= 0.5f);
    return float_of(bits_of(nearest) | (bits_of(x) & 0x80000000u));
}

/* Ties go to the even number; below 2^22. */
static inline float nearest_even(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest whole number. */
    x = x + magic;
    x = x - magic;
    return x;
}

/* round_unit gives the scale of 32 numbers of a query and rounds them to whole numbers from -127 to
 * 127, ties to even. As in store_q8 the scale of a unit that is not finite is a NaN, and numbers
 * are 0 where it has no inverse. */
static float round_unit(float *to, const float *x)
{
    const float size = size_of_unit(x), scale = size / 127.0f, inverse = inverse_scale(scale);
    float rounded[UNIT]; /* `to` may be x */
    int i;
    if (!is_finite(size)) {
        memset(to, 0, UNIT * sizeof *to);
        return float_of(CANONICAL_NAN);
    }
    for (i = 0; i < UNIT; i++) {
        const float y = x[i] * inverse;
        rounded[i] = nearest_even(y);
    }
    memcpy(to, rounded, sizeof rounded);
    return scale;
}

/* store_i8 does so for a row of any length, whose numbers are bytes. */
static float store_i8(int8_t *to, const float *x, int64_t n)
{
    const float size = size_of_run(x, n), scale = size / 127.0f, inverse = inverse_scale(scale);
    int64_t i;
    memset(to, 0, (size_t)n);
    if (!is_finite(size))
        return float_of(CANONICAL_NAN);
    for (i = 0; i < n; i++) {
        const float y = x[i] * inverse;
        to[i] = (int8_t)(int32_t)nearest_even(y);
    }
    return scale;
}

/* store_scaled rounds quotients by given scales, which lie `step` apart, to bytes from -127 to 127, ties to
 * even. A quotient that is a NaN, and one by 0, become 0. */
static void store_scaled(int8_t *to, const float *x, const float *scale, int64_t step, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float by = scale[i * step], y = x[i] / by;
        const float below = y < 127.0f ? y : 127.0f, held = below > -127.0f ? below : -127.0f;
        to[i] = (int8_t)(is_nan(y) || by == 0.0f ? 0 : (int32_t)nearest_even(held));
    }
}

static void store_q8(q8_unit *to, const float *x)
{
    const float size = float_of(bits_of(largest_of_unit(x)) & 0x7fffffffu);
    const float d = size / 127.0f, inverse = inverse_scale(d);
    int32_t q[UNIT];
    int i;
    to->scale = f16_from_f32(d);
    memset(to->q, 0, sizeof to->q);
    if (is_nan(d))
        return;
    for (i = 0; i < UNIT; i++)
        q[i] = (int32_t)nearest_away(x[i] * inverse);
    for (i = 0; i < UNIT; i++)
        to->q[i] = (int8_t)q[i];
}

/* The numbers as q + middle, where the largest magnitude is q = -middle. */
static void shift_unit(int32_t *q, const float *x, float inverse, int middle)
{
    const int32_t most = 2 * middle - 1;
    const float up = (float)middle + 0.5f;
    int i;
    for (i = 0; i < UNIT; i++) {
        const float y = x[i] * inverse;
        const int32_t rounded = (int32_t)(y + up);
        q[i] = rounded < most ? rounded : most;
    }
}

static float shifted_scale(const float *x, int middle)
{
    const float most = largest_of_unit(x);
    return most / (float)-middle;
}

static void store_q5(q5_unit *to, const float *x)
{
    const float d = shifted_scale(x, 16), inverse = inverse_scale(d);
    int32_t q[UNIT];
    int i;
    memset(to, 0, sizeof *to);
    to->scale = f16_from_f32(d);
    if (is_nan(d))
        return;
    shift_unit(q, x, inverse, 16);
    for (i = 0; i < HALF_UNIT; i++)
        to->lower[i] = (uint8_t)((q[i] & 15) | (q[i + HALF_UNIT] & 15) << 4);
    for (i = 0; i < UNIT; i++)
        to->upper[i / 8] |= (uint8_t)(q[i] >> 4 << i % 8);
}

static void store_q4(q4_unit *to, const float *x)
{
    const float d = shifted_scale(x, 8), inverse = inverse_scale(d);
    int32_t q[UNIT];
    int i;
    memset(to, 0, sizeof *to);
    to->scale = f16_from_f32(d);
    if (is_nan(d))
        return;
    shift_unit(q, x, inverse, 8);
    for (i = 0; i < HALF_UNIT; i++)
        to->q[i] = (uint8_t)(q[i] | q[i + HALF_UNIT] << 4);
}
