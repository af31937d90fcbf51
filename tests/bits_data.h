/* The named cases of the bit-identity tests and their inputs, in integers only, so that every
 * platform makes the same data. Shared by tests/canon.c and tests/bits.c, which share no
 * arithmetic.
 * SPDX-License-Identifier: MIT
 *
 * Inputs are n * 2^-e with n from a hash of (case name, stream, index). No v is near zero and the
 * logits of one block differ by less than 100 (base 2), so that no intermediate is subnormal;
 * tests/canon.c asserts that. A factor of x1 almost never rescales a row and alone proves nothing:
 * hence x4, x16 and `outliers`, where lanes of one tile rescale at different keys.
 */
#ifndef BITS_DATA_H
#define BITS_DATA_H

#include <stdint.h>

enum { BITS_F32, BITS_F16, BITS_BF16 };                        /* storage, numbered as attn_dtype */
enum { BITS_BOTTOM_RIGHT, BITS_TOP_LEFT, BITS_OFFSET };        /* as attn_alignment */
enum { BITS_Q = 1, BITS_K, BITS_V, BITS_BIAS, BITS_SINK, BITS_SLOPE };        /* streams */
enum { BITS_BIAS_ON = 1, BITS_BIAS_HOLES = 2, BITS_BIAS_POISON = 3 };         /* bits_case.bias */
enum { BITS_LOGITS_RAW = 1, BITS_LOGITS_SOFTCAP, BITS_LOGITS_BIAS, BITS_LOGITS_SOFTMAX };

typedef struct bits_case {
    const char *name;
    int hq, hkv, sq, skv, d;
    int batch;            /* 0 = 1 */
    int dv;               /* 0 = d */
    int dtype;            /* of q, k, v, o */
    int shift;            /* q is multiplied by 2^shift */
    int outliers;         /* rows i % 4 = 1 and 3 are multiplied by 16 and 4 */
    int ragged;           /* batch entry b has b rows and b * ragged keys less */
    int left;             /* batch entry b begins at column b * left */
    int key_base;         /* of batch entry 0; entry b has key_base + 7 b */
    int causal, alignment, offset; /* BITS_OFFSET: entry b has offset + b */
    int window, window_left, window_right;
    int softcap;          /* 0 = off */
    int bias, bias_dtype; /* [sq][skv], shared by batch and heads */
    int alibi, sink;
    uint32_t dropout;     /* bits of dropout_p */
    int partial;
    int logits;           /* 1 + stage */
    int halfway;          /* scores that binary64 alone rounds wrong; for d = 4 */
} bits_case;

static const bits_case bits_cases[] = {
    /* name, hq, hkv, sq, skv, d: score factors, long enough for several chunks */
    { "x1", 2, 2, 17, 500, 64, .causal = 1 },
    { "x4", 2, 2, 17, 500, 64, .causal = 1, .shift = 2 },
    { "x16", 2, 2, 17, 500, 64, .causal = 1, .shift = 4 },
    { "x1-long", 1, 1, 17, 2309, 64, .causal = 1 },
    { "x4-long", 1, 1, 5, 2309, 64, .shift = 2 },
    { "x16-long", 1, 1, 17, 2309, 64, .causal = 1, .shift = 4 },
    { "outliers", 1, 1, 19, 1025, 64, .causal = 1, .outliers = 1 },
    { "outliers-long", 1, 1, 7, 2309, 40, .outliers = 1 },
    { "outliers-square", 1, 1, 131, 131, 16, .causal = 1, .outliers = 1 },
    /* lengths around blocks, tiles and chunks */
    { "kv-1", 1, 1, 3, 1, 40, .shift = 2 },
    { "kv-15", 1, 1, 3, 15, 40, .shift = 2 },
    { "kv-16", 1, 1, 3, 16, 40, .shift = 2 },
    { "kv-17", 1, 1, 3, 17, 40, .shift = 2 },
    { "kv-500", 1, 1, 3, 500, 40, .shift = 2 },
    { "kv-1023", 1, 1, 3, 1023, 40, .shift = 2 },
    { "kv-1024", 1, 1, 3, 1024, 40, .shift = 2 },
    { "kv-1025", 1, 1, 3, 1025, 40, .shift = 2 },
    { "kv-2309", 1, 1, 3, 2309, 40, .shift = 2 },
    { "kv-6200", 1, 1, 2, 6200, 8, .shift = 4 }, /* seven chunks: a tree of depth 3 */
    /* head dimensions */
    { "d-1", 1, 1, 5, 130, 1, .shift = 4 },
    { "d-3", 1, 1, 5, 130, 3, .shift = 4 },
    { "d-16", 1, 1, 5, 130, 16, .shift = 4 },
    { "d-80", 1, 1, 5, 130, 80, .shift = 4 },
    { "d-96", 1, 1, 5, 130, 96, .shift = 4 },
    { "d-128", 1, 1, 5, 130, 128, .shift = 4 },
    { "d-256", 1, 1, 5, 130, 256, .shift = 4 },
    { "d-40-dv-24", 1, 1, 5, 130, 40, .dv = 24, .shift = 2 },
    { "d-64-dv-1", 1, 1, 5, 130, 64, .dv = 1, .shift = 2 },
    { "d-16-dv-80", 1, 1, 5, 130, 16, .dv = 80, .shift = 2 },
    /* absolute numbers of keys */
    { "base-3", 1, 1, 5, 1100, 40, .key_base = 3, .shift = 4 },
    { "base-1021", 1, 1, 5, 1100, 40, .key_base = 1021, .shift = 4 },
    { "base-1021-causal", 1, 1, 21, 250, 40, .key_base = 1021, .causal = 1, .shift = 4 },
    { "base-far", 1, 1, 5, 1100, 16, .key_base = 1000003, .shift = 4 },
    { "base-ragged", 2, 1, 5, 300, 16, .batch = 4, .key_base = 2000, .ragged = 70, .shift = 4 },
    /* masks */
    { "top-left", 1, 1, 40, 90, 16, .causal = 1, .alignment = BITS_TOP_LEFT, .outliers = 1 },
    { "offset", 1, 1, 33, 90, 16, .batch = 3, .causal = 1, .alignment = BITS_OFFSET, .offset = 20,
      .outliers = 1 },
    { "empty-rows", 2, 2, 33, 20, 16, .causal = 1, .outliers = 1 },
    { "empty-rows-sink", 2, 2, 33, 20, 16, .causal = 1, .sink = 1, .outliers = 1 },
    { "ragged", 2, 2, 9, 200, 40, .batch = 3, .ragged = 61, .outliers = 1 },
    { "ragged-causal-left", 2, 2, 9, 200, 40, .batch = 3, .ragged = 31, .left = 17, .causal = 1,
      .outliers = 1 },
    { "kv-len-0", 1, 1, 4, 60, 8, .batch = 3, .ragged = 30 },
    { "window", 1, 1, 50, 300, 16, .causal = 1, .window = 1, .window_left = 37, .outliers = 1 },
    { "window-both", 1, 1, 50, 300, 16, .window = 1, .window_left = 100, .window_right = 9,
      .outliers = 1 },
    { "window-long", 1, 1, 9, 2309, 16, .causal = 1, .window = 1, .window_left = 1100, .shift = 4 },
    /* heads */
    { "gqa", 6, 2, 9, 130, 40, .causal = 1, .outliers = 1 },
    { "mqa-one-row", 8, 1, 1, 1030, 64, .causal = 1, .shift = 4 },
    /* storage */
    { "f16", 2, 1, 17, 500, 64, .dtype = BITS_F16, .causal = 1, .outliers = 1 },
    { "bf16", 2, 1, 17, 500, 64, .dtype = BITS_BF16, .causal = 1, .outliers = 1 },
    { "f16-one-row", 4, 1, 1, 1030, 80, .dtype = BITS_F16, .shift = 4 },
    { "bf16-one-row", 4, 1, 1, 1030, 80, .dtype = BITS_BF16, .shift = 4 },
    /* what changes a logit */
    { "softcap", 1, 1, 17, 200, 40, .softcap = 7, .shift = 4 },
    { "softcap-small", 1, 1, 17, 200, 40, .softcap = 30 },
    { "bias", 2, 1, 17, 200, 40, .bias = BITS_BIAS_ON, .shift = 2 },
    { "bias-f16", 2, 1, 17, 200, 40, .bias = BITS_BIAS_ON, .bias_dtype = BITS_F16, .shift = 2 },
    { "bias-bf16", 2, 1, 17, 200, 40, .bias = BITS_BIAS_ON, .bias_dtype = BITS_BF16, .shift = 2 },
    { "bias-holes", 2, 1, 17, 200, 40, .bias = BITS_BIAS_HOLES, .outliers = 1 },
    { "bias-poison", 2, 1, 17, 200, 40, .bias = BITS_BIAS_POISON, .outliers = 1 }, /* redo */
    { "alibi", 3, 1, 17, 300, 40, .alibi = 1, .causal = 1, .outliers = 1 },
    { "alibi-long", 1, 1, 5, 2309, 16, .alibi = 1, .causal = 1 },
    { "sink", 3, 3, 17, 200, 40, .sink = 1, .outliers = 1 },
    { "dropout", 2, 1, 9, 200, 40, .dropout = 0x3dcccccd, .causal = 1, .outliers = 1 },
    { "dropout-half", 1, 1, 9, 1100, 16, .batch = 2, .dropout = 0x3f000000, .key_base = 7 },
    /* raw states and logits */
    { "partial", 2, 2, 9, 1100, 40, .partial = 1, .outliers = 1 },
    { "partial-empty", 2, 2, 25, 18, 16, .partial = 1, .causal = 1, .outliers = 1 },
    { "logits-raw", 2, 1, 9, 70, 16, .logits = BITS_LOGITS_RAW, .softcap = 7, .outliers = 1 },
    { "logits-softcap", 2, 1, 9, 70, 16, .logits = BITS_LOGITS_SOFTCAP, .softcap = 7,
      .bias = BITS_BIAS_ON },
    { "logits-bias", 2, 1, 9, 70, 16, .logits = BITS_LOGITS_BIAS, .bias = BITS_BIAS_HOLES,
      .alibi = 1, .causal = 1 },
    { "logits-softmax", 2, 1, 9, 70, 16, .logits = BITS_LOGITS_SOFTMAX, .sink = 1, .causal = 1,
      .bias = BITS_BIAS_HOLES, .dropout = 0x3e99999a },
    { "halfway", 1, 1, 2, 16, 4, .halfway = 1, .logits = BITS_LOGITS_RAW },
    /* everything at once */
    { "all", 4, 2, 11, 330, 40, .dv = 24, .batch = 3, .outliers = 1, .ragged = 41, .left = 5,
      .key_base = 1021, .causal = 1, .window = 1, .window_left = 150, .softcap = 30,
      .bias = BITS_BIAS_HOLES, .bias_dtype = BITS_BF16, .alibi = 1, .sink = 1,
      .dropout = 0x3e4ccccd },
    { "all-f16", 4, 2, 11, 330, 80, .batch = 3, .dtype = BITS_F16, .outliers = 1, .ragged = 41,
      .key_base = 1021, .causal = 1, .alignment = BITS_OFFSET, .offset = 290, .window = 1,
      .window_left = 150, .window_right = 3, .softcap = 30, .bias = BITS_BIAS_POISON, .alibi = 1,
      .sink = 1, .dropout = 0x3e4ccccd },
};

#define BITS_CASES ((int)(sizeof bits_cases / sizeof bits_cases[0]))
#define BITS_SEED UINT64_C(0x0123456789abcdef) /* of the dropout */

static int bits_batch(const bits_case *c)
{
    return c->batch ? c->batch : 1;
}

static int bits_dv(const bits_case *c)
{
    return c->dv ? c->dv : c->d;
}

static int bits_q_len(const bits_case *c, int b)
{
    int n = c->ragged ? c->sq - b : c->sq;
    return n > 0 ? n : 0;
}

static int bits_kv_begin(const bits_case *c, int b)
{
    return c->left * b;
}

static int bits_kv_len(const bits_case *c, int b)
{
    int n = c->skv - bits_kv_begin(c, b) - c->ragged * b;
    return n > 0 ? n : 0;
}

static int bits_key_base(const bits_case *c, int b)
{
    return c->key_base + 7 * b;
}

/* A hash of (name, stream, index): two rounds of multiply and shift over 32 bits. */
static uint32_t bits_random(const bits_case *c, int stream, uint32_t index)
{
    const char *at;
    uint32_t x = (uint32_t)stream * 0x9e3779b9u;
    for (at = c->name; *at; at++)
        x = (x ^ (uint32_t)(unsigned char)*at) * 0x01000193u;
    x += index * 0x85ebca6bu;
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Bits of n * 2^exponent in a storage type; exact by the choice of n (|n| < 2^8, 2^11, 2^24). */
static uint32_t bits_encode(int32_t n, int exponent, int dtype)
{
    static const int mantissa[] = { 23, 10, 7 }, bias[] = { 127, 15, 127 };
    uint32_t sign = n < 0, u = sign ? 0u - (uint32_t)n : (uint32_t)n;
    int m = mantissa[dtype], e = exponent + m + bias[dtype];
    if (u == 0)
        return 0;
    while (u < (uint32_t)1 << m) {
        u <<= 1;
        e--;
    }
    return (sign << (dtype == BITS_F32 ? 31 : 15)) + ((uint32_t)e << m) + (u - ((uint32_t)1 << m));
}

/* +-lo/4 .. +-hi/4 times 2^shift in steps of 2^-20, 2^-9 or 2^-6, exact in the storage type. */
static uint32_t bits_number(uint32_t r, int lo, int hi, int shift, int dtype)
{
    static const int fraction[] = { 20, 9, 6 };
    int e = fraction[dtype];
    uint32_t first = (uint32_t)lo << (e - 2), span = ((uint32_t)(hi - lo) << (e - 2)) + 1;
    int32_t n = (int32_t)(first + (r >> 1) % span);
    return bits_encode(r & 1 ? -n : n, shift - e, dtype);
}

/* With d = 4 and q = 1 the factor is log2(e) / 2, significand M = 0xb8aa3b. The product of element
 * 1 lies t units of its 47th bit below the point between two binary32 numbers, and that of element
 * 0, which comes first, is t (1 + 2^-15) units: the exact sum is above that point by less than
 * binary64 can hold. An fma that forgets this rounds half of the keys the wrong way. */
static uint32_t bits_halfway(int element, int key)
{
    const uint32_t inverse = 0x129ef3; /* of M, modulo 2^23 */
    uint32_t t = (uint32_t)(8 * key + 1), rest;
    while ((rest = (0x400000u - t) * inverse & 0x7fffffu) >= 3200000) /* 47 bits, not 48 */
        t += 2;
    if (element == 0)
        return bits_encode((int32_t)(t * 90854), -63, BITS_F32); /* about t 2^-46 / 1.44 */
    return element == 1 ? bits_encode((int32_t)(0x800000u + rest), -23, BITS_F32) : 0;
}

/* Element `at` of a packed tensor as bits of its storage type. */
static uint32_t bits_q(const bits_case *c, uint32_t at)
{
    int i = (int)(at / (uint32_t)c->d % (uint32_t)c->sq);
    int shift = c->outliers && i % 2 ? (i % 4 == 1 ? 4 : 2) : c->shift;
    if (c->halfway)
        return bits_encode(1, 0, BITS_F32);
    return bits_number(bits_random(c, BITS_Q, at), 0, 6, shift, c->dtype);
}

static uint32_t bits_k(const bits_case *c, uint32_t at)
{
    if (c->halfway)
        return bits_halfway((int)(at % 4), (int)(at / 4));
    return bits_number(bits_random(c, BITS_K, at), 0, 6, 0, c->dtype);
}

static int bits_is_hole(const bits_case *c, int column)
{
    return c->bias >= BITS_BIAS_HOLES && column % 5 == 3;
}

/* v: 1/4 .. 5/4, so that p * v is never subnormal; NaN and Inf where the bias masks, if asked. */
static uint32_t bits_v(const bits_case *c, uint32_t at)
{
    static const uint32_t poison[][2] = { { 0x7f800000u, 0x7fc00000u }, { 0x7c00u, 0x7e00u },
                                          { 0x7f80u, 0x7fc0u } };
    int column = (int)(at / (uint32_t)bits_dv(c) % (uint32_t)c->skv);
    if (c->bias == BITS_BIAS_POISON && bits_is_hole(c, column))
        return poison[c->dtype][column % 2];
    return bits_number(bits_random(c, BITS_V, at), 1, 5, 0, c->dtype);
}

static uint32_t bits_bias(const bits_case *c, uint32_t at)
{
    static const uint32_t minus_inf[] = { 0xff800000u, 0xfc00u, 0xff80u };
    if (bits_is_hole(c, (int)(at % (uint32_t)c->skv)))
        return minus_inf[c->bias_dtype];
    return bits_number(bits_random(c, BITS_BIAS, at), 0, 8, 0, c->bias_dtype);
}

static uint32_t bits_sink(const bits_case *c, uint32_t head)
{
    return bits_number(bits_random(c, BITS_SINK, head), 1, 12, 0, BITS_F32);
}

static uint32_t bits_slope(const bits_case *c, uint32_t head)
{
    return bits_number(bits_random(c, BITS_SLOPE, head), 1, 4, -2, BITS_F32) & 0x7fffffffu;
}

#endif
