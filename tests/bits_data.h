/* The named cases of the bit-identity tests and their inputs, in integers only, so that every
 * platform makes the same data. Shared by tests/canon*.c and tests/bits*.c, which share no
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

enum { BITS_F32, BITS_F16, BITS_BF16 }; /* storage, numbered as attn_dtype */
enum { BITS_Q8_0 = 5, BITS_Q5_0, BITS_Q4_0, BITS_I8, BITS_UNIT = 32 };
enum { BITS_BY_KEY = 1, BITS_BY_CHANNEL };              /* .scaled */
enum { BITS_BOTTOM_RIGHT, BITS_TOP_LEFT, BITS_OFFSET }; /* as attn_alignment */
enum {
    BITS_Q = 1,
    BITS_K,
    BITS_V,
    BITS_BIAS,
    BITS_SINK,
    BITS_SLOPE,
    BITS_DOUT,
    BITS_DLSE,
    BITS_SCALE,
    BITS_K_SCALE,
    BITS_V_SCALE,
    BITS_RECENT_K,
    BITS_RECENT_V,
    BITS_ROWS_K,
    BITS_ROWS_V,
    BITS_MEAN,
    BITS_WEIGHT
};
enum { BITS_BIAS_ON = 1, BITS_BIAS_HOLES, BITS_BIAS_POISON, BITS_BIAS_POISON_KV }; /* .bias */
enum { BITS_BATCH = 1, BITS_HEADS = 2, BITS_ROWS = 4, BITS_KEYS = 8 }; /* axes of the bias */
enum { BITS_LOGITS_RAW = 1, BITS_LOGITS_SOFTCAP, BITS_LOGITS_BIAS, BITS_LOGITS_SOFTMAX };

typedef struct bits_case {
    const char *name;
    int hq, hkv, sq, skv, d;
    int batch;                     /* 0 = 1 */
    int dv;                        /* 0 = d */
    int dtype;                     /* of q, k, v, o */
    int shift;                     /* q is multiplied by 2^shift */
    int outliers;                  /* rows i % 4 = 1 and 3 are multiplied by 16 and 4 */
    int ragged;                    /* batch entry b has b rows and b * ragged keys less */
    int left;                      /* batch entry b begins at column b * left */
    int key_base;                  /* of batch entry 0; entry b has key_base + 7 b */
    int causal, alignment, offset; /* BITS_OFFSET: entry b has offset + b */
    int window, window_left, window_right;
    int softcap; /* 0 = off */
    int bias, bias_dtype;
    int bias_axes;    /* 1 + sum of those along which the bias differs; 0 = rows and keys */
    int alibi, sink;  /* alibi 2: other slopes for each batch entry */
    uint32_t dropout; /* bits of dropout_p */
    int partial;
    int logits;      /* 1 + stage */
    int halfway;     /* scores that binary64 alone rounds wrong; for d = 4 */
    int dlse;        /* the loss depends on lse, too */
    int lse_alone;   /* gradients take the row from lse, without its statistics */
    int rotated;     /* p.rotated */
    int recent;      /* p.recent.keys; recent rows are f32 */
    int units;       /* k has units of this attn_dtype, of whole numbers; 0 = it has c->dtype */
    int scaled;      /* k and v are of i8 with scales by key or by channel; .units may be BITS_I8 */
    int cached;      /* k and v, scaled by channel, are what a cache makes of rows in f32 */
    int centered;    /* the cache takes c.k_mean from them */
    int top;         /* p.insight.top, and the entropy; 0 = neither; of attn_index its top_k */
    int linear;      /* ATTN_INDEX_LINEAR */
    uint32_t below;  /* bits of p.skip.below */
    int poison_rows; /* the first rows of q and dout are NaN or Inf; they see no key,
                           * for which a bias of rows and keys cares */
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
    /* whole numbers */
    { "q8_0", 2, 1, 17, 500, 64, .units = BITS_Q8_0, .causal = 1, .outliers = 1 },
    { "q5_0", 2, 1, 17, 500, 64, .units = BITS_Q5_0, .causal = 1, .outliers = 1 },
    { "q4_0", 2, 1, 17, 500, 64, .units = BITS_Q4_0, .causal = 1, .shift = 2 },
    { "q8_0-one-row", 4, 1, 1, 1030, 128, .units = BITS_Q8_0, .shift = 2 },
    { "q8_0-f16", 3, 1, 5, 200, 96, .units = BITS_Q8_0, .dtype = BITS_F16, .shift = 2 },
    { "q4_0-long", 1, 1, 5, 2309, 32, .units = BITS_Q4_0, .dv = 40, .key_base = 1021, .shift = 2 },
    { "q8_0-logits", 2, 1, 9, 70, 32, .units = BITS_Q8_0, .logits = BITS_LOGITS_RAW },
    { "rotated", 2, 1, 9, 200, 128, .rotated = 3, .causal = 1, .outliers = 1 },
    { "rotated-80", 2, 1, 9, 200, 80, .dv = 33, .rotated = 3, .dtype = BITS_F16, .shift = 2 },
    { "rotated-q8_0", 2, 1, 9, 200, 288, .dv = 24, .rotated = 1, .units = BITS_Q8_0 },
    /* recent keys: both versions in a block, in a chunk, in all */
    { "recent", 2, 1, 17, 500, 64, .recent = 40, .causal = 1, .outliers = 1 },
    { "recent-q4_0", 4, 2, 9, 200, 64, .recent = 64, .units = BITS_Q4_0, .causal = 1, .shift = 2 },
    { "recent-q8_0-long", 1, 1, 5, 2309, 32, .recent = 1100, .units = BITS_Q8_0, .key_base = 1021,
      .causal = 1, .shift = 2 },
    { "recent-rotated", 2, 1, 9, 200, 128, .recent = 33, .rotated = 3, .units = BITS_Q5_0,
      .causal = 1 },
    { "recent-window", 2, 1, 21, 330, 40, .batch = 3, .recent = 30, .dtype = BITS_F16, .left = 5,
      .ragged = 41, .key_base = 1021, .causal = 1, .window = 1, .window_left = 100, .softcap = 30,
      .sink = 1, .outliers = 1 },
    { "recent-all", 1, 1, 9, 100, 32, .recent = 500, .units = BITS_Q8_0, .shift = 2 },
    { "recent-partial", 2, 2, 9, 300, 40, .recent = 100, .partial = 1, .outliers = 1 },
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
    { "all",
      4,
      2,
      11,
      330,
      40,
      .dv = 24,
      .batch = 3,
      .outliers = 1,
      .ragged = 41,
      .left = 5,
      .key_base = 1021,
      .causal = 1,
      .window = 1,
      .window_left = 150,
      .softcap = 30,
      .bias = BITS_BIAS_HOLES,
      .bias_dtype = BITS_BF16,
      .alibi = 1,
      .sink = 1,
      .dropout = 0x3e4ccccd },
    { "all-f16",
      4,
      2,
      11,
      330,
      80,
      .batch = 3,
      .dtype = BITS_F16,
      .outliers = 1,
      .ragged = 41,
      .key_base = 1021,
      .causal = 1,
      .alignment = BITS_OFFSET,
      .offset = 290,
      .window = 1,
      .window_left = 150,
      .window_right = 3,
      .softcap = 30,
      .bias = BITS_BIAS_POISON,
      .alibi = 1,
      .sink = 1,
      .dropout = 0x3e4ccccd },
    /* 8 bits with scales of the caller's */
    { "i8", 4, 2, 17, 500, 64, .dv = 40, .scaled = BITS_BY_KEY, .causal = 1, .outliers = 1 },
    { "i8-channels", 4, 2, 9, 300, 40, .batch = 2, .scaled = BITS_BY_CHANNEL, .shift = 2 },
    { "i8-whole", 4, 2, 17, 500, 64, .scaled = BITS_BY_KEY, .units = BITS_I8, .causal = 1,
      .outliers = 1 },
    { "i8-whole-ragged", 2, 1, 5, 1100, 96, .batch = 2, .scaled = BITS_BY_KEY, .units = BITS_I8,
      .ragged = 41, .left = 5, .key_base = 1021, .shift = 2 },
    { "i8-whole-channels", 4, 2, 9, 200, 128, .batch = 2, .dv = 24, .scaled = BITS_BY_CHANNEL,
      .units = BITS_I8, .rotated = 1, .shift = 2 },
    { "i8-whole-logits", 2, 1, 9, 70, 32, .scaled = BITS_BY_KEY, .units = BITS_I8,
      .logits = BITS_LOGITS_RAW },
    { "i8-whole-recent", 2, 1, 9, 200, 64, .scaled = BITS_BY_CHANNEL, .units = BITS_I8,
      .recent = 70, .causal = 1, .shift = 2 },
    /* 8 bits that a cache made of rows in f32 */
    { "cache-i8", 4, 2, 9, 300, 40, .batch = 2, .dv = 24, .scaled = BITS_BY_CHANNEL, .cached = 1 },
    { "cache-i8-whole", 4, 2, 9, 200, 64, .scaled = BITS_BY_CHANNEL, .units = BITS_I8, .cached = 1,
      .causal = 1 },
    { "cache-i8-rotated", 2, 1, 9, 200, 160, .scaled = BITS_BY_CHANNEL, .cached = 1, .centered = 1,
      .rotated = 3 },
    /* insight */
    { "insight", 2, 1, 17, 500, 64, .causal = 1, .shift = 2, .top = 3 },
    { "insight-long", 1, 1, 5, 2309, 40, .shift = 2, .top = 8 },
    { "insight-outliers", 1, 1, 19, 1025, 64, .causal = 1, .outliers = 1, .top = 1 },
    { "insight-few", 1, 1, 9, 9, 16, .causal = 1, .alignment = BITS_OFFSET, .offset = -3,
      .top = 5 },
    { "insight-sinks", 4, 2, 5, 1100, 40, .batch = 2, .ragged = 41, .left = 5, .key_base = 1021,
      .sink = 1, .top = 4 },
    { "insight-all",
      4,
      2,
      11,
      330,
      40,
      .dv = 24,
      .batch = 3,
      .dtype = BITS_F16,
      .ragged = 41,
      .left = 5,
      .key_base = 1021,
      .causal = 1,
      .window = 1,
      .window_left = 150,
      .softcap = 30,
      .bias = BITS_BIAS_HOLES,
      .alibi = 1,
      .sink = 1,
      .dropout = 0x3e4ccccd,
      .top = 6 },
    { "insight-recent", 2, 1, 9, 200, 64, .recent = 70, .causal = 1, .top = 4 },
    /* skipping */
    { "skip", 2, 1, 17, 500, 64, .causal = 1, .shift = 4, .below = 0x3dcccccd },
    { "skip-long", 1, 1, 5, 2309, 40, .key_base = 1021, .shift = 4, .below = 0x3f000000 },
    { "skip-outliers", 1, 1, 19, 1025, 64, .causal = 1, .outliers = 1, .below = 0x3f7d70a4 },
    { "skip-one-row", 8, 1, 1, 1030, 64, .causal = 1, .shift = 4, .sink = 1, .below = 0x3f000000 },
    { "skip-poison", 2, 1, 17, 200, 40, .bias = BITS_BIAS_POISON, .outliers = 1,
      .below = 0x3f000000 }, /* redo */
    { "skip-recent", 2, 1, 9, 300, 64, .recent = 100, .units = BITS_Q8_0, .causal = 1, .shift = 4,
      .below = 0x3f000000 },
    { "skip-little", 1, 1, 5, 2309, 16, .alibi = 1, .causal = 1, .below = 0x09800000 },
    { "skip-all",
      4,
      2,
      11,
      330,
      40,
      .dv = 24,
      .batch = 3,
      .outliers = 1,
      .ragged = 41,
      .left = 5,
      .key_base = 1021,
      .causal = 1,
      .window = 1,
      .window_left = 250,
      .softcap = 30,
      .bias = BITS_BIAS_HOLES,
      .bias_dtype = BITS_BF16,
      .alibi = 1,
      .sink = 1,
      .dropout = 0x3e4ccccd,
      .below = 0x3f000000 },
};

/* Cases of attn_backward. Keys and rows are few where the factor is large: a probability of 2^-126
 * is exact, but its products with small numbers are subnormal. */
static const bits_case bits_gradient_cases[] = {
    /* name, hq, hkv, sq, skv, d: score factors */
    { "x1", 2, 2, 37, 200, 64, .causal = 1, .dlse = 1 },
    { "x4", 2, 2, 37, 200, 64, .causal = 1, .shift = 2, .dlse = 1 },
    { "x16", 2, 2, 37, 60, 64, .causal = 1, .shift = 4, .dlse = 1 },
    { "outliers", 1, 1, 35, 70, 64, .causal = 1, .outliers = 1 },
    { "full", 2, 2, 49, 130, 64, .shift = 2 },
    /* lengths around blocks, tiles and chunks */
    { "kv-1", 1, 1, 3, 1, 40, .shift = 2 },
    { "kv-17", 1, 1, 3, 17, 40, .shift = 2 },
    { "one-row", 4, 1, 1, 300, 40, .shift = 2 },
    { "keys-1025", 1, 1, 3, 1025, 40, .shift = 2 },
    { "keys-2309", 1, 1, 3, 2309, 16, .shift = 2 },
    { "rows-1025", 1, 1, 1025, 17, 16, .shift = 2 },
    { "rows-2100", 2, 1, 2100, 9, 16, .dlse = 1 },
    { "square-1100", 1, 1, 1100, 1100, 16, .causal = 1, .window = 1, .window_left = 80,
      .shift = 2 },
    /* head dimensions */
    { "d-1", 1, 1, 5, 130, 1, .shift = 2 },
    { "d-33", 1, 1, 21, 70, 33, .shift = 2 },
    { "d-80", 1, 1, 21, 70, 80, .shift = 2 },
    { "d-128", 1, 1, 21, 70, 128, .shift = 2 },
    { "d-256", 1, 1, 9, 40, 256, .shift = 2 },
    { "d-40-dv-24", 1, 1, 21, 70, 40, .dv = 24, .shift = 2 },
    { "d-64-dv-1", 1, 1, 21, 70, 64, .dv = 1, .shift = 2 },
    { "d-33-dv-128", 1, 1, 21, 70, 33, .dv = 128, .causal = 1, .shift = 2 },
    /* absolute numbers of keys */
    { "base-3", 1, 1, 5, 1100, 40, .key_base = 3, .shift = 2 },
    { "base-1021", 2, 1, 20, 1100, 16, .key_base = 1021, .shift = 2 },
    { "base-1021-causal", 1, 1, 65, 250, 40, .key_base = 1021, .causal = 1, .shift = 2 },
    { "base-far", 1, 1, 5, 1100, 16, .key_base = 1000003, .shift = 2 },
    { "base-ragged", 2, 1, 5, 300, 16, .batch = 4, .key_base = 2000, .ragged = 70, .shift = 2 },
    /* masks */
    { "top-left", 1, 1, 40, 90, 16, .causal = 1, .alignment = BITS_TOP_LEFT, .outliers = 1 },
    { "offset", 1, 1, 33, 90, 16, .batch = 3, .causal = 1, .alignment = BITS_OFFSET, .offset = 20,
      .shift = 2 },
    { "empty-rows", 2, 2, 33, 20, 16, .causal = 1, .shift = 2, .dlse = 1 },
    { "empty-rows-sink", 2, 2, 33, 20, 16, .causal = 1, .sink = 1, .shift = 2, .dlse = 1 },
    { "empty-rows-nan", 2, 1, 33, 20, 16, .causal = 1, .shift = 2, .poison_rows = 13 }, /* redo */
    { "ragged", 2, 2, 9, 200, 40, .batch = 3, .ragged = 61, .shift = 2, .dlse = 1 },
    { "ragged-causal", 4, 2, 50, 110, 24, .batch = 3, .ragged = 21, .causal = 1, .shift = 2,
      .dlse = 1 },
    { "ragged-causal-left", 2, 2, 9, 200, 40, .batch = 3, .ragged = 31, .left = 17, .causal = 1,
      .shift = 2 },
    { "kv-len-0", 1, 1, 4, 60, 8, .batch = 3, .ragged = 30 },
    { "q-len-0", 1, 1, 2, 60, 8, .batch = 4, .ragged = 10 },
    { "window", 1, 1, 50, 300, 16, .causal = 1, .window = 1, .window_left = 37, .shift = 2 },
    { "window-both", 1, 1, 50, 300, 16, .window = 1, .window_left = 100, .window_right = 9,
      .shift = 2 },
    { "window-long", 1, 1, 9, 2309, 16, .causal = 1, .window = 1, .window_left = 1100, .shift = 2 },
    /* heads */
    { "gqa", 6, 2, 33, 130, 40, .causal = 1, .shift = 2, .dlse = 1 },
    { "mqa", 8, 1, 5, 200, 64, .shift = 2 },
    { "gqa-rows-1100", 3, 1, 1100, 9, 8, .shift = 2 },
    /* storage */
    { "f16", 2, 1, 33, 130, 64, .dtype = BITS_F16, .causal = 1, .shift = 2, .dlse = 1 },
    { "bf16", 2, 1, 33, 130, 64, .dtype = BITS_BF16, .causal = 1, .shift = 2, .dlse = 1 },
    { "f16-one-row", 4, 1, 1, 300, 80, .dtype = BITS_F16, .shift = 2 },
    /* what changes a logit */
    { "softcap", 1, 1, 33, 100, 40, .softcap = 7, .shift = 4 },
    { "softcap-small", 2, 1, 33, 100, 40, .softcap = 30, .dlse = 1 },
    /* a bias of every kind of broadcast: along the axes not named it is the same */
    { "bias", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2 },
    { "bias-one", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .bias_axes = 1, .shift = 2 },
    { "bias-b", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_BATCH },
    { "bias-h", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_HEADS },
    { "bias-bh", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_BATCH + BITS_HEADS },
    { "bias-i", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_ROWS },
    { "bias-bi", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_BATCH + BITS_ROWS },
    { "bias-hi", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_HEADS + BITS_ROWS },
    { "bias-bhi", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_BATCH + BITS_HEADS + BITS_ROWS },
    { "bias-j", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_KEYS },
    { "bias-bj", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_BATCH + BITS_KEYS },
    { "bias-hj", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_HEADS + BITS_KEYS },
    { "bias-bhj", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_BATCH + BITS_HEADS + BITS_KEYS },
    { "bias-bij", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_BATCH + BITS_ROWS + BITS_KEYS },
    { "bias-hij", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_HEADS + BITS_ROWS + BITS_KEYS },
    { "bias-bhij", 4, 2, 20, 70, 16, .batch = 2, .bias = BITS_BIAS_ON, .shift = 2,
      .bias_axes = 1 + BITS_BATCH + BITS_HEADS + BITS_ROWS + BITS_KEYS },
    { "bias-f16", 2, 1, 17, 130, 40, .bias = BITS_BIAS_HOLES, .bias_dtype = BITS_F16, .shift = 2 },
    { "bias-bf16", 2, 1, 17, 130, 40, .bias = BITS_BIAS_HOLES, .bias_dtype = BITS_BF16,
      .shift = 2 },
    { "bias-poison", 2, 1, 17, 130, 40, .bias = BITS_BIAS_POISON, .shift = 2 },       /* redo */
    { "bias-poison-kv", 2, 1, 17, 130, 40, .bias = BITS_BIAS_POISON_KV, .shift = 2 }, /* redo */
    { "bias-poison-rows", 2, 1, 33, 130, 40, .bias = BITS_BIAS_POISON_KV, .poison_rows = 5,
      .bias_axes = 1 + BITS_HEADS + BITS_ROWS + BITS_KEYS, .shift = 2 }, /* redo */
    { "bias-rows-1100", 2, 1, 1100, 12, 16, .bias = BITS_BIAS_ON, .bias_axes = 1 + BITS_KEYS },
    { "bias-keys-1100", 2, 1, 5, 1100, 16, .key_base = 1021, .bias = BITS_BIAS_ON,
      .bias_axes = 1 + BITS_ROWS },
    { "bias-square-1100", 1, 1, 1100, 1100, 16, .causal = 1, .window = 1, .window_left = 50,
      .key_base = 1021, .bias = BITS_BIAS_ON, .bias_axes = 1 },
    { "bias-ragged", 4, 2, 33, 100, 16, .batch = 3, .ragged = 11, .left = 5, .causal = 1,
      .bias = BITS_BIAS_HOLES, .bias_axes = 1 + BITS_HEADS + BITS_KEYS, .shift = 2 },
    { "bias-ragged-bhij", 2, 1, 50, 70, 16, .batch = 4, .ragged = 20, .left = 3,
      .bias = BITS_BIAS_ON, .bias_axes = 1 + BITS_BATCH + BITS_HEADS + BITS_ROWS + BITS_KEYS,
      .shift = 2 },
    { "alibi", 3, 1, 33, 100, 24, .batch = 2, .alibi = 1, .causal = 1, .dlse = 1 },
    { "alibi-batch", 3, 1, 33, 70, 24, .batch = 2, .alibi = 2 },
    { "alibi-square-1100", 1, 1, 1100, 1100, 16, .causal = 1, .window = 1, .window_left = 50,
      .key_base = 1021, .alibi = 1 },
    { "sink", 3, 3, 33, 70, 40, .batch = 2, .sink = 1, .shift = 2 },
    { "sink-rows-1100", 2, 1, 1100, 12, 16, .sink = 1, .dlse = 1 },
    { "dropout", 2, 1, 33, 100, 40, .dropout = 0x3dcccccd, .causal = 1, .dlse = 1 },
    { "dropout-half", 2, 1, 9, 1100, 16, .batch = 2, .dropout = 0x3f000000, .key_base = 7 },
    /* everything at once */
    { "all",
      4,
      2,
      50,
      200,
      40,
      .dv = 24,
      .batch = 2,
      .ragged = 21,
      .left = 5,
      .key_base = 900,
      .causal = 1,
      .window = 1,
      .window_left = 60,
      .softcap = 30,
      .bias = BITS_BIAS_HOLES,
      .bias_dtype = BITS_BF16,
      .bias_axes = 1 + BITS_HEADS + BITS_KEYS,
      .alibi = 1,
      .sink = 1,
      .dropout = 0x3e4ccccd,
      .shift = 2,
      .dlse = 1 },
    { "all-f16",
      4,
      2,
      50,
      200,
      80,
      .batch = 2,
      .dtype = BITS_F16,
      .ragged = 11,
      .key_base = 900,
      .causal = 1,
      .alignment = BITS_OFFSET,
      .offset = 140,
      .window = 1,
      .window_left = 40,
      .window_right = 3,
      .softcap = 30,
      .bias = BITS_BIAS_POISON_KV,
      .bias_axes = 1 + BITS_BATCH + BITS_KEYS,
      .alibi = 2,
      .sink = 1,
      .dropout = 0x3e4ccccd,
      .shift = 2,
      .dlse = 1 },
    /* from lse alone; in the first, logits lie above the rounded lse */
    { "lse-alone", 6, 2, 45, 60, 40, .causal = 1, .alignment = BITS_TOP_LEFT, .shift = 4,
      .lse_alone = 1 },
    { "lse-alone-sink", 4, 2, 33, 20, 16, .causal = 1, .sink = 1, .shift = 2, .dlse = 1,
      .lse_alone = 1 },
    { "lse-alone-bf16", 2, 1, 33, 100, 40, .dtype = BITS_BF16, .softcap = 7,
      .bias = BITS_BIAS_HOLES, .bias_dtype = BITS_BF16, .causal = 1, .shift = 4, .lse_alone = 1 },
};

/* attn_index, whose heads all have weights. */
static const bits_case bits_index_cases[] = {
    { "relu", 4, 1, 9, 300, 64, .top = 32, .causal = 1, .outliers = 1 },
    { "linear", 6, 2, 9, 300, 40, .top = 5, .linear = 1, .batch = 2, .shift = 2 },
    { "f16", 4, 2, 7, 200, 80, .top = 16, .dtype = BITS_F16, .causal = 1 },
    { "q8_0", 4, 1, 9, 300, 64, .top = 24, .units = BITS_Q8_0, .causal = 1, .outliers = 1 },
    { "q4_0-rotated", 4, 1, 5, 200, 128, .top = 24, .units = BITS_Q4_0, .rotated = 1 },
    { "few-keys", 3, 1, 20, 40, 24, .top = 30, .causal = 1 },
    { "window-left", 4, 2, 9, 200, 33, .top = 12, .batch = 3, .ragged = 41, .left = 7, .causal = 1,
      .window = 1, .window_left = 60, .key_base = 1021 },
    { "long", 8, 1, 3, 2309, 32, .top = 256, .causal = 1, .shift = 2 },
};

#define BITS_INDEX_CASES ((int)(sizeof bits_index_cases / sizeof bits_index_cases[0]))
#define BITS_CASES ((int)(sizeof bits_cases / sizeof bits_cases[0]))
#define BITS_GRADIENT_CASES ((int)(sizeof bits_gradient_cases / sizeof bits_gradient_cases[0]))
#define BITS_SEED UINT64_C(0x0123456789abcdef) /* of the dropout */

static inline int bits_batch(const bits_case *c)
{
    return c->batch ? c->batch : 1;
}

static inline int bits_dv(const bits_case *c)
{
    return c->dv ? c->dv : c->d;
}

static inline int bits_q_len(const bits_case *c, int b)
{
    int n = c->ragged ? c->sq - b : c->sq;
    return n > 0 ? n : 0;
}

static inline int bits_kv_begin(const bits_case *c, int b)
{
    return c->left * b;
}

static inline int bits_kv_len(const bits_case *c, int b)
{
    int n = c->skv - bits_kv_begin(c, b) - c->ragged * b;
    return n > 0 ? n : 0;
}

static inline int bits_key_base(const bits_case *c, int b)
{
    return c->key_base + 7 * b;
}

/* A hash of (name, stream, index): two rounds of multiply and shift over 32 bits. */
static inline uint32_t bits_random(const bits_case *c, int stream, uint32_t index)
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
static inline uint32_t bits_encode(int32_t n, int exponent, int dtype)
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
static inline uint32_t bits_number(uint32_t r, int lo, int hi, int shift, int dtype)
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
static inline uint32_t bits_halfway(int element, int key)
{
    const uint32_t inverse = 0x129ef3; /* of M, modulo 2^23 */
    uint32_t t = (uint32_t)(8 * key + 1), rest;
    while ((rest = (0x400000u - t) * inverse & 0x7fffffu) >= 3200000) /* 47 bits, not 48 */
        t += 2;
    if (element == 0)
        return bits_encode((int32_t)(t * 90854), -63, BITS_F32); /* about t 2^-46 / 1.44 */
    return element == 1 ? bits_encode((int32_t)(0x800000u + rest), -23, BITS_F32) : 0;
}

/* +Inf or, for odd n, a NaN. */
static inline uint32_t bits_poison(const bits_case *c, int n)
{
    static const uint32_t poison[][2] = { { 0x7f800000u, 0x7fc00000u },
                                          { 0x7c00u, 0x7e00u },
                                          { 0x7f80u, 0x7fc0u } };
    return poison[c->dtype][n % 2];
}

/* Element `at` of a packed tensor as bits of its storage type. */
static inline uint32_t bits_q(const bits_case *c, uint32_t at)
{
    int i = (int)(at / (uint32_t)c->d % (uint32_t)c->sq);
    int shift = c->outliers && i % 2 ? (i % 4 == 1 ? 4 : 2) : c->shift;
    if (c->halfway)
        return bits_encode(1, 0, BITS_F32);
    if (i < c->poison_rows)
        return bits_poison(c, i);
    return bits_number(bits_random(c, BITS_Q, at), 0, 6, shift, c->dtype);
}

static inline int bits_is_hole(const bits_case *c, int column)
{
    return c->bias >= BITS_BIAS_HOLES && column % 5 == 3;
}

static inline uint32_t bits_k(const bits_case *c, uint32_t at)
{
    int column = (int)(at / (uint32_t)c->d % (uint32_t)c->skv);
    if (c->halfway)
        return bits_halfway((int)(at % 4), (int)(at / 4));
    if (c->bias == BITS_BIAS_POISON_KV && bits_is_hole(c, column))
        return bits_poison(c, column);
    return bits_number(bits_random(c, BITS_K, at), 0, 6, 0, c->dtype);
}

/* Recent rows lie in rings [batch, hkv, bits_ring, d or dv] of f32, by n. */
static inline int bits_ring(const bits_case *c)
{
    return c->skv + 3;
}

static inline uint32_t bits_recent_k(const bits_case *c, uint32_t at)
{
    return bits_number(bits_random(c, BITS_RECENT_K, at), 0, 6, 0, BITS_F32);
}

static inline uint32_t bits_recent_v(const bits_case *c, uint32_t at)
{
    return bits_number(bits_random(c, BITS_RECENT_V, at), 0, 6, 0, BITS_F32);
}

/* Of k in units: a scale, 2^-7 .. 2^-6 as an f16, and whole numbers in all of their range. */
static inline uint32_t bits_unit_scale(const bits_case *c, uint32_t unit)
{
    const int less = c->units == BITS_Q8_0 ? 17 : c->units == BITS_Q5_0 ? 14 : 13;
    return bits_encode(1024 + (int32_t)(bits_random(c, BITS_SCALE, unit) >> 22), -less, BITS_F16);
}

static inline int bits_whole(const bits_case *c, uint32_t at)
{
    const uint32_t r = bits_random(c, BITS_K, at);
    if (c->scaled)
        return (int)(r % 256) - 128;
    if (c->units == BITS_Q8_0)
        return (int)(r % 255) - 127;
    return c->units == BITS_Q5_0 ? (int)(r % 32) - 16 : (int)(r % 16) - 8;
}

/* v: 1/4 .. 5/4, so that p * v is never subnormal; NaN and Inf where the bias masks, if asked. */
static inline uint32_t bits_v(const bits_case *c, uint32_t at)
{
    int column = (int)(at / (uint32_t)bits_dv(c) % (uint32_t)c->skv);
    if (c->bias >= BITS_BIAS_POISON && bits_is_hole(c, column))
        return bits_poison(c, column);
    return bits_number(bits_random(c, BITS_V, at), 1, 5, 0, c->dtype);
}

/* Of v in i8: 40 to 127, for the same reason. */
static inline int bits_v_whole(const bits_case *c, uint32_t at)
{
    const uint32_t r = bits_random(c, BITS_V, at);
    const int size = 40 + (int)((r >> 1) % 88);
    return r & 1 ? -size : size;
}

/* The scale of element `at` of k or v, whose rows have `width` elements, is that of this number: 2^-7 ..
 * 2^-6. */
static inline uint32_t bits_scale_at(const bits_case *c, uint32_t at, int width)
{
    const uint32_t row = at / (uint32_t)width, head = row / (uint32_t)c->skv % (uint32_t)c->hkv;
    return c->scaled == BITS_BY_KEY ? row : head * (uint32_t)width + at % (uint32_t)width;
}

/* For caches m * 2^-13 with m = 64 .. 127, so that half a scale times a whole number is exact; one
 * channel of K in 16 has the scale 0. */
static inline int32_t bits_cache_scale(const bits_case *c, int stream, uint32_t number)
{
    if (stream == BITS_K_SCALE && number % 16 == 5)
        return 0;
    return 64 + (int32_t)(bits_random(c, stream, number) >> 26);
}

static inline uint32_t bits_scale(const bits_case *c, int stream, uint32_t number)
{
    if (c->cached)
        return bits_encode(bits_cache_scale(c, stream, number), -13, BITS_F32);
    return bits_encode(0x800000 + (int32_t)(bits_random(c, stream, number) >> 9), -30, BITS_F32);
}

static inline uint32_t bits_k_scale(const bits_case *c, uint32_t number)
{
    return bits_scale(c, BITS_K_SCALE, number);
}

static inline uint32_t bits_v_scale(const bits_case *c, uint32_t number)
{
    return bits_scale(c, BITS_V_SCALE, number);
}

/* Of rows that come to a cache: -150 .. 150 times the scale of its channel, in steps of a half, and in
 * two thirds of them 2^-16 more or less. So quotients lie halfway, beside that and beyond 127. NaN,
 * infinities and -0 are among them, unless the cache computes with them. */
static inline uint32_t bits_row(const bits_case *c, uint32_t at, int stream, int scales, int width)
{
    static const uint32_t special[] = { 0x7fc00000u, 0x7f800000u, 0xff800000u, 0x80000000u };
    const uint32_t r = bits_random(c, stream, at);
    const int32_t m = bits_cache_scale(c, scales, bits_scale_at(c, at, width));
    if (at % 97 < 4 && !c->rotated && !c->centered)
        return special[at % 97];
    return bits_encode(((int32_t)(r % 601) - 300) * (m ? m : 64) * 4 + (int32_t)(r >> 20) % 3 - 1,
                       -16, BITS_F32);
}

static inline uint32_t bits_rows_k(const bits_case *c, uint32_t at)
{
    return bits_row(c, at, BITS_ROWS_K, BITS_K_SCALE, c->d);
}

static inline uint32_t bits_rows_v(const bits_case *c, uint32_t at)
{
    return bits_row(c, at, BITS_ROWS_V, BITS_V_SCALE, bits_dv(c));
}

/* Of c.k_mean, [hkv, d]. */
static inline uint32_t bits_mean(const bits_case *c, uint32_t at)
{
    return bits_number(bits_random(c, BITS_MEAN, at), 0, 4, 0, BITS_F32);
}

/* As v, for the same reason. */
static inline uint32_t bits_dout(const bits_case *c, uint32_t at)
{
    int i = (int)(at / (uint32_t)bits_dv(c) % (uint32_t)c->sq);
    if (i < c->poison_rows)
        return bits_poison(c, i);
    return bits_number(bits_random(c, BITS_DOUT, at), 1, 5, 0, c->dtype);
}

static inline uint32_t bits_dlse(const bits_case *c, uint32_t row)
{
    return bits_number(bits_random(c, BITS_DLSE, row), 1, 5, 0, BITS_F32);
}

/* The bias is packed, with length 1 along the axes that it is the same along. */
static inline int bits_bias_has(const bits_case *c, int axis)
{
    return ((c->bias_axes ? c->bias_axes - 1 : BITS_ROWS + BITS_KEYS) & axis) != 0;
}

static inline int bits_bias_stride(const bits_case *c, int axis)
{
    int stride = 1;
    if (!bits_bias_has(c, axis))
        return 0;
    if (axis < BITS_KEYS && bits_bias_has(c, BITS_KEYS))
        stride *= c->skv;
    if (axis < BITS_ROWS && bits_bias_has(c, BITS_ROWS))
        stride *= c->sq;
    if (axis < BITS_HEADS && bits_bias_has(c, BITS_HEADS))
        stride *= c->hq;
    return stride;
}

static inline uint32_t bits_bias_at(const bits_case *c, int b, int h, int i, int column)
{
    return (uint32_t)(b * bits_bias_stride(c, BITS_BATCH) + h * bits_bias_stride(c, BITS_HEADS) +
                      i * bits_bias_stride(c, BITS_ROWS) + column * bits_bias_stride(c, BITS_KEYS));
}

static inline int bits_bias_count(const bits_case *c)
{
    return 1 + (int)bits_bias_at(c, bits_batch(c) - 1, c->hq - 1, c->sq - 1, c->skv - 1);
}

static inline uint32_t bits_bias(const bits_case *c, uint32_t at)
{
    static const uint32_t minus_inf[] = { 0xff800000u, 0xfc00u, 0xff80u };
    if (bits_bias_has(c, BITS_KEYS) && bits_is_hole(c, (int)(at % (uint32_t)c->skv)))
        return minus_inf[c->bias_dtype];
    if (at / (uint32_t)c->skv % (uint32_t)c->sq < (uint32_t)c->poison_rows)
        return minus_inf[c->bias_dtype];
    return bits_number(bits_random(c, BITS_BIAS, at), 0, 8, 0, c->bias_dtype);
}

static inline uint32_t bits_sink(const bits_case *c, uint32_t head)
{
    return bits_number(bits_random(c, BITS_SINK, head), 1, 12, 0, BITS_F32);
}

static inline uint32_t bits_slope(const bits_case *c, uint32_t head)
{
    return bits_number(bits_random(c, BITS_SLOPE, head), 1, 4, -2, BITS_F32) & 0x7fffffffu;
}

/* Of attn_index: row (b, i) and head h have number (b * sq + i) * hq + h. */
static inline uint32_t bits_weight(const bits_case *c, uint32_t at)
{
    return bits_number(bits_random(c, BITS_WEIGHT, at), 1, 8, 0, BITS_F32);
}

#endif
