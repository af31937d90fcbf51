/* src/api/patterns.h - block-sparse patterns of cells.
 * SPDX-License-Identifier: MIT
 *
 * A pattern fills p.block_mask: which cells of keys a cell of rows sees. It is built once, into
 * memory of the caller's, and serves any number of calls, attn_backward too:
 *
 *     attn_pattern t = attn_pattern_bigbird(3, 1, 3, 1234);  // or {0} and fields of your own
 *     t.seq_len_q = t.seq_len_kv = 16384;  t.causal = 1;
 *     attn_pattern_info info;                                // sizes and density
 *     attn_pattern_measure(&t, &info, why, sizeof why);
 *     int32_t *offsets = malloc(info.num_offsets * 4), *columns = malloc(info.num_columns * 4);
 *     attn_pattern_build(&t, offsets, info.num_offsets, columns, info.num_columns, NULL, 0);
 *     attn_pattern_use(&t, offsets, columns, &p);            // and p.causal = 1
 *
 * Memory, threads and errors are as in the conventions at the top: nothing allocates, and after an
 * error nothing was written.
 */
#pragma once

/* Which cells are visible: the union of the parts below; all 0 = none. Set it to zero, then assign.
 * Cell (r, c) is rows r*block_q .. and keys c*block_k ..; the last ones may be shorter. Rows stand
 * at the end of the keys, as ATTN_ALIGN_BOTTOM_RIGHT has them, and the diagonal of row r is every
 * column that holds a key at the position of one of its rows. */
typedef struct attn_pattern {
    int causal; /* nonzero: columns after the diagonal are left out of every part;
                                  * p.causal hides what is left of the future within a cell */
    int64_t seq_len_q, seq_len_kv;
    int64_t block_q, block_k; /* rows and keys of a cell; 0 = 64 */
    int64_t num_heads;        /* a pattern for each of so many query heads: they differ in
                                  * `random` alone; 0 = one for all */
    int local;                /* nonzero: the diagonal, */
    int64_t local_before;     /* so many columns before it */
    int64_t local_after;      /* and after it */
    int64_t global_columns;   /* the first columns, seen by every row */
    int64_t global_rows;      /* the first rows, which see every column */
    int64_t stride;           /* columns at a multiple of it from the diagonal, and that itself
                                  * ("strided" of Child et al. 2019, arXiv 1904.10509); 0 = off */
    int64_t fixed;            /* columns c with c mod fixed = fixed - 1 ("fixed"); 0 = off */
    int64_t random;           /* so many cells of a row more, distinct, or all there are; drawn
                                  * from those that no other part shows, by a hash of seed, head,
                                  * row and column: the same everywhere */
    uint64_t seed;
} attn_pattern;

/* local + global: Longformer (Beltagy et al. 2020, arXiv 2004.05150). */
ATTN_API attn_pattern attn_pattern_longformer(int64_t each_side, int64_t global);
/* local + strided: Sparse Transformer (Child et al. 2019); both of `stride` columns. */
ATTN_API attn_pattern attn_pattern_strided(int64_t stride);
/* The diagonal and `count` random cells of each row. */
ATTN_API attn_pattern attn_pattern_random(int64_t count, uint64_t seed);
/* local of `window` columns in all, global rows and columns, random: BigBird (Zaheer et al. 2020,
 * arXiv 2007.14062), which takes 3, 2 and 3 cells of 64. */
ATTN_API attn_pattern attn_pattern_bigbird(int64_t window, int64_t global, int64_t random,
                                           uint64_t seed);

typedef struct attn_pattern_info {
    int heads;             /* patterns: num_heads, or 1 */
    int64_t rows, columns; /* of cells */
    int64_t num_offsets;   /* entries of row_offsets: heads * (rows + 1) */
    int64_t num_columns;   /* entries of columns: visible cells of all heads */
    double density;        /* visible cells / all cells */
} attn_pattern_info;

/* The sizes of a pattern, exactly. Time as for building it: in proportion to the number of cells.
 * why (may be NULL): a sentence on error. */
ATTN_API attn_status attn_pattern_measure(const attn_pattern *t, attn_pattern_info *info, char *why,
                                          size_t why_bytes);

/* Writes the CSR form that attn_block_mask describes: head h's offsets begin at h * (rows + 1).
 * num_offsets, num_columns: room; on error nothing is written. */
ATTN_API attn_status attn_pattern_build(const attn_pattern *t, int32_t *row_offsets,
                                        int64_t num_offsets, int32_t *columns, int64_t num_columns,
                                        char *why, size_t why_bytes);

/* Sets p->block_mask, nothing else: p.causal stays the caller's. Set the sizes of *p before:
 * ATTN_ERR_ARG, and nothing is set, where seq_len_q or seq_len_kv is not that of *t, or num_heads_q
 * is not num_heads of a pattern for each head. */
ATTN_API attn_status attn_pattern_use(const attn_pattern *t, const int32_t *row_offsets,
                                      const int32_t *columns, attn_params *p);
