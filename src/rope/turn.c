/* src/rope/turn.c - turning pairs of numbers in f32: built once plainly and once for FMA.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../select.c"

#define ROPE_PAIRS 16 /* One vector loop turns this number of pairs. */

/* finished gives x, but +0 for -0 and the one NaN for every NaN, as every output of the library has
 * it. */
KERNEL float finished(float x)
{
    uint32_t nan;
    x = x + 0.0f;
    nan = 0u - (uint32_t)((bits_of(x) & 0x7fffffffu) > 0x7f800000u);
    return float_of((bits_of(x) & ~nan) | (CANONICAL_NAN & nan));
}

/* turn_pairs turns ROPE_PAIRS pairs (x[k*step], x[k*step + apart]) into the places of y that x has,
 * with y_apart for apart. */
KERNEL void turn_pairs(int hw, float *y, int64_t y_apart, const float *x, int64_t apart, int step,
                       const float *c, const float *s)
{
    int k;
    for (k = 0; k < ROPE_PAIRS; k++) {
        const float x1 = x[k * step], x2 = x[k * step + apart];
        float t = x2 * s[k], y1, y2;
        y1 = fma32(hw, x1, c[k], -t);
        t = x1 * s[k];
        y2 = fma32(hw, x2, c[k], t);
        y[k * step] = finished(y1);
        y[k * step + y_apart] = finished(y2);
    }
}

/* turn_split_body turns n pairs (x[k], x[apart + k]); c and s hold zeros up to the next multiple of
 * ROPE_PAIRS. Results first go to an array of their own, so that compilers need not fear that y is
 * x + 1. */
KERNEL void turn_split_body(int hw, float *y, const float *x, int64_t apart, const float *c,
                            const float *s, int n)
{
    float z[2 * ROPE_PAIRS], rest[2 * ROPE_PAIRS] = { 0 };
    const size_t bytes = (size_t)(n % ROPE_PAIRS) * sizeof *z;
    int k;
    for (k = 0; k + ROPE_PAIRS <= n; k += ROPE_PAIRS) {
        turn_pairs(hw, z, ROPE_PAIRS, x + k, apart, 1, c + k, s + k);
        memcpy(y + k, z, ROPE_PAIRS * sizeof *z);
        memcpy(y + apart + k, z + ROPE_PAIRS, ROPE_PAIRS * sizeof *z);
    }
    if (k < n) {
        memcpy(rest, x + k, bytes);
        memcpy(rest + ROPE_PAIRS, x + apart + k, bytes);
        turn_pairs(hw, z, ROPE_PAIRS, rest, ROPE_PAIRS, 1, c + k, s + k);
        memcpy(y + k, z, bytes);
        memcpy(y + apart + k, z + ROPE_PAIRS, bytes);
    }
}

/* turn_interleaved_body turns n pairs (x[2k], x[2k + 1]). */
KERNEL void turn_interleaved_body(int hw, float *y, const float *x, const float *c, const float *s,
                                  int n)
{
    float z[2 * ROPE_PAIRS], rest[2 * ROPE_PAIRS] = { 0 };
    const size_t bytes = (size_t)(n % ROPE_PAIRS) * 2 * sizeof *z;
    int k;
    for (k = 0; k + ROPE_PAIRS <= n; k += ROPE_PAIRS) {
        turn_pairs(hw, z, 1, x + 2 * k, 1, 2, c + k, s + k);
        memcpy(y + 2 * k, z, sizeof z);
    }
    if (k < n) {
        memcpy(rest, x + 2 * k, bytes);
        turn_pairs(hw, z, 1, rest, 1, 2, c + k, s + k);
        memcpy(y + 2 * k, z, bytes);
    }
}

/* y may be x. apart lies between the two numbers of a pair; 1 means interleaved. */
typedef void (*rope_turn_fn)(float *y, const float *x, int64_t apart, const float *c,
                             const float *s, int n);

/* Each body is a function of its own, as at -O0 one frame for both would take 1.3 KiB. */
#define ROPE_TURN(NAME, TARGET, HW)                                                                \
    TARGET static void NAME##_interleaved(float *y, const float *x, const float *c,                \
                                          const float *s, int n)                                   \
    {                                                                                              \
        turn_interleaved_body(HW, y, x, c, s, n);                                                  \
    }                                                                                              \
    TARGET static void NAME##_split(float *y, const float *x, int64_t apart, const float *c,       \
                                    const float *s, int n)                                         \
    {                                                                                              \
        turn_split_body(HW, y, x, apart, c, s, n);                                                 \
    }                                                                                              \
    static void NAME(float *y, const float *x, int64_t apart, const float *c, const float *s,      \
                     int n)                                                                        \
    {                                                                                              \
        if (apart == 1)                                                                            \
            NAME##_interleaved(y, x, c, s, n);                                                     \
        else                                                                                       \
            NAME##_split(y, x, apart, c, s, n);                                                    \
    }

ROPE_TURN(turn_plainly, , FMA_BASE)
#ifdef FMA_SECOND_BUILD
ROPE_TURN(turn_fused, FMA_TARGET, 1)
#else
#define turn_fused turn_plainly
#endif

static rope_turn_fn best_turn(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX2 ? turn_fused : turn_plainly;
}
