/* src/api/rope.h - rotary position embedding (RoPE: Su et al. 2021, arXiv 2104.09864).
 * SPDX-License-Identifier: MIT
 *
 * Each pair (x1, x2) of a head's elements is turned by position * frequency:
 *
 *     y1 = c x1 - s x2        y2 = s x1 + c x2        c = cos, s = sin of the angle
 *
 * frequency of pair i: base^(-2i/dim), changed by `scaling`. Frequencies are integers in units of
 * 2^-64 turns, and so are angles: reduced to one turn exactly, the same on every machine, without
 * libm. Of cos and sin at random positions up to 2^20 all 76800 measured were the nearest float, up
 * to 2^24 all but 3 of 51200, up to 2^31 all but 138 of 25600: an angle is off by up to 5 * 2^-64
 * turns a position, over freq_factors[i] where that is below 1. (Programs that multiply a float
 * position by a float frequency, as most do, have angles wrong by up to 2^-23 of the angle; to get
 * their bits, give their tables.) The order of operations is in docs/canon.md.
 *
 * Turned elements hold no -0 and one NaN, as all outputs of the library; the others are bit-exact
 * copies if x and y have one type.
 *
 *     attn_rope rope = {0};                     // base 10000, half-split, all of head_dim
 *     attn_rope_rows rows = {0};
 *     rows.batch = 1;  rows.num_heads = 32;  rows.seq_len = n;  rows.head_dim = 128;
 *     rows.x.data = q;  rows.y.data = q;        // in place
 *     rows.first = &position;                   // of row 0
 *     attn_rope_apply(&rope, &rows, why, sizeof why);
 *
 * Memory, threads, strides: as in attn.h; nothing is allocated, every function may run in many
 * threads at once if outputs are distinct. Stack below 4 KiB.
 */
#pragma once

typedef enum attn_rope_scaling {
    ATTN_ROPE_NONE = 0,
    ATTN_ROPE_LINEAR = 1, /* every frequency / factor (Chen et al. 2023, arXiv 2306.15595) */
    ATTN_ROPE_NTK = 2,    /* base * factor^(dim / (dim - 2)) */
    ATTN_ROPE_YARN = 3,   /* Peng et al. 2023, arXiv 2309.00071 */
    ATTN_ROPE_LLAMA3 = 4  /* as in Llama 3.1: low frequencies / factor, high ones kept */
} attn_rope_scaling;

/* Set it to zero, then assign: zero is every field's default. */
typedef struct attn_rope {
    int64_t dim;     /* elements of a head that turn, the first ones; even, at most 2^24; 0 =
                      * head_dim. The others pass through */
    int interleaved; /* 0: pairs (i, i + dim/2), "half-split", NeoX; else (2i, 2i + 1), GPT-J */

    /* ---- angles, computed */
    float base;              /* above 1; 0 = 10000 */
    int scaling;             /* attn_rope_scaling */
    float factor;            /* of scaling, at least 1; 0 = 1. A field that means nothing with this
                              * scaling must be 0 or 1 (original_length: is not looked at) */
    int64_t original_length; /* positions the model was first trained on: needed by YARN, LLAMA3 */
    float beta_fast, beta_slow;              /* YARN, turns over the original length; 0 = 32, 1 */
    float low_freq_factor, high_freq_factor; /* LLAMA3; 0 = 1, 4 */
    float attention_factor;    /* multiplies cos and sin; 0 = 1, for YARN 0.1 ln(factor) + 1 */
    const float *freq_factors; /* [dim/2] frequency i / freq_factors[i], before scaling (as the
                                * factors of LongRoPE, or those stored in GGUF files); NULL = 1. At
                                * least 1e-6; with YARN and LLAMA3 0.16, since they compare
                                * frequencies, which must be below a turn a position */

    /* ---- or given: then nothing of the above but dim and interleaved counts */
    const float *cos, *sin; /* [num_positions, dim/2]; both or neither */
    int64_t num_positions;
    ptrdiff_t table_stride; /* between positions; 0 = dim/2 */
} attn_rope;

/* Rows to turn. Element (b, h, i, d) at data[b*stride_batch + h*stride_head + i*stride_seq + d];
 * strides 0 = packed [batch, num_heads, seq_len, head_dim]; x may be of any storage type, and y of
 * another. y may be x itself (same data, strides and type), and must else not overlap it. */
typedef struct attn_rope_rows {
    int64_t batch, num_heads, seq_len, head_dim;
    attn_tensor x;
    attn_output y;
    const int64_t *positions;   /* [batch, seq_len], from -2^31 to 2^31; NULL = first[b] + i */
    ptrdiff_t positions_stride; /* between batch entries; 0 = packed */
    const int64_t *first;       /* [batch] position of row 0; NULL = 0; not with positions */
} attn_rope_rows;

/* y = x turned. ATTN_ERR_ARG, ATTN_ERR_OVERFLOW with a sentence in why (may be NULL): nothing was
 * written. */
ATTN_API attn_status attn_rope_apply(const attn_rope *rope, const attn_rope_rows *rows, char *why,
                                     size_t why_bytes);

/* cos and sin of positions first .. first+count-1, [count, dim/2] each, as attn_rope_apply would
 * use them: a table for rope.cos and rope.sin, which saves their computation, and changes no bit.
 * head_dim as in attn_rope_rows, used where rope->dim is 0. */
ATTN_API attn_status attn_rope_table(const attn_rope *rope, int64_t head_dim, int64_t first,
                                     int64_t count, float *cos, float *sin, char *why,
                                     size_t why_bytes);
