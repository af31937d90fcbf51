/* src/api/rope.h - rotary position embedding (RoPE: Su et al. 2021, arXiv 2104.09864).
 * SPDX-License-Identifier: MIT
 *
 * Each pair (x1, x2) of a head's elements is turned by the angle position * frequency:
 *
 *     y1 = c x1 - s x2        y2 = s x1 + c x2        c = cos, s = sin of the angle
 *
 * The frequency of pair i is base^(-2i/dim), changed by `scaling`.
 *
 *     attn_rope rope = {0};                     // base 10000, half-split, all of head_dim
 *     attn_rope_rows rows = {0};
 *     rows.batch = 1;  rows.num_heads = 32;  rows.seq_len = n;  rows.head_dim = 128;
 *     rows.x.data = q;  rows.y.data = q;        // in place
 *     rows.first = &position;                   // of row 0
 *     attn_rope_apply(&rope, &rows, why, sizeof why);
 *
 * Accuracy. Frequencies and angles are integers in units of 2^-64 turns. They are reduced to one
 *   turn exactly, need no libm and are equal on every machine. An angle is off by up to 5 * 2^-64
 *   turns per position, divided by freq_factors[i] if that is below 1. At random positions up to
 *   2^20 all 76800 values of cos and sin measured were the nearest float; up to 2^24 all but 3 of
 *   51200 were, and up to 2^31 all but 138 of 25600. Most programs multiply a float position by a
 *   float frequency, and their angles are wrong by up to 2^-23 of the angle; to get their bits,
 *   give their tables. docs/canon.md states the order of operations.
 * Values. Turned elements have no -0 and only the canonical NaN, like all outputs of the library.
 *   Elements that are not turned are bit-exact copies if x and y have one type.
 * Errors. Functions return ATTN_ERR_ARG or ATTN_ERR_OVERFLOW.
 */
#pragma once

/* An attn_rope_scaling stretches the positions of a model beyond its training. */
typedef enum attn_rope_scaling {
    ATTN_ROPE_NONE = 0,   /* Frequencies stay as they are. */
    ATTN_ROPE_LINEAR = 1, /* Factor divides all frequencies (Chen et al. 2023, arXiv 2306.15595). */
    ATTN_ROPE_NTK = 2,    /* The base becomes base * factor^(dim / (dim - 2)). */
    ATTN_ROPE_YARN = 3,   /* This is the scaling of Peng et al. 2023, arXiv 2309.00071. */
    ATTN_ROPE_LLAMA3 = 4  /* Factor divides low frequencies, not high ones, as in Llama 3.1. */
} attn_rope_scaling;

/* An attn_rope says how rows turn. Set it to zero, then assign: zero is every field's default. */
typedef struct attn_rope {
    /* The first dim elements of a head turn and the others pass through; dim is even and at most
     * 2^24, and 0 means head_dim. */
    int64_t dim;
    /* 0 pairs elements i and i + dim/2, as NeoX does ("half-split"); nonzero pairs 2i and 2i + 1,
     * as GPT-J does. */
    int interleaved;

    /* ---- angles that are computed. A field that `scaling` does not use must be 0 or 1, except
     * original_length, which is then not read. */

    float base;                 /* above 1; 0 means 10000 */
    int scaling;                /* attn_rope_scaling */
    float factor;               /* factor of the scaling, at least 1; 0 means 1 */
    int64_t original_length;    /* positions of the model's first training, for YARN and LLAMA3 */
    float beta_fast, beta_slow; /* YARN: turns over the original length; 0 means 32 and 1 */
    float low_freq_factor, high_freq_factor; /* LLAMA3; 0 means 1 and 4 */
    float attention_factor; /* multiplies cos and sin; 0 means 1, or 0.1 ln(factor) + 1 with YARN */
    /* [dim/2], divisors of the frequencies before scaling, as LongRoPE and GGUF files have them;
     * NULL means 1. Each is at least 1e-6. With YARN and LLAMA3, which compare frequencies, each is
     * at least 0.16, so that frequencies stay below one turn per position. */
    const float *freq_factors;

    /* ---- or angles that are given. Of the fields above only dim and interleaved then count. */

    const float *cos, *sin; /* [num_positions, dim/2] each; both or neither */
    int64_t num_positions;  /* positions in the tables, from 0 on */
    ptrdiff_t table_stride; /* elements between positions; 0 means dim/2 */
} attn_rope;

/* An attn_rope_rows names the rows to turn. Element (b, h, i, d) lies at
 * data[b*stride_batch + h*stride_head + i*stride_seq + d], and strides of 0 mean packed in
 * `layout`: [batch, num_heads, seq_len, head_dim], or [batch, seq_len, num_heads, head_dim]. x and
 * y may be f32, f16 or bf16. */
typedef struct attn_rope_rows {
    int64_t batch, num_heads, seq_len, head_dim;
    int layout;    /* attn_layout of x and y; 0 means BHSD */
    attn_tensor x; /* rows to turn */
    attn_output y; /* turned rows: x itself (equal data, strides and type), or no overlap with x */
    const int64_t *positions;   /* [batch, seq_len], -2^31 to 2^31; NULL means first[b] + i */
    ptrdiff_t positions_stride; /* elements between batch entries; 0 means packed */
    const int64_t *first;       /* [batch], position of row 0, without positions; NULL means 0 */
} attn_rope_rows;

/* attn_rope_apply() writes the turned rows of x to y. */
ATTN_API attn_status attn_rope_apply(const attn_rope *rope, const attn_rope_rows *rows, char *why,
                                     size_t why_bytes);

/* attn_rope_table() writes the cos and sin that attn_rope_apply would use for positions first to
 * first+count-1, [count, dim/2] each.
 *
 * They serve as rope.cos and rope.sin, which saves their computation and changes no bit. head_dim
 * is that of attn_rope_rows and is used where rope->dim is 0. Positions are from -2^31 to 2^31, and
 * *rope must not have a table itself. */
ATTN_API attn_status attn_rope_table(const attn_rope *rope, int64_t head_dim, int64_t first,
                                     int64_t count, float *cos, float *sin, char *why,
                                     size_t why_bytes);
