/* src/api/patterns.h - block-sparse patterns of cells.
 * SPDX-License-Identifier: MIT
 *
 * A pattern fills p.block_mask, which says which cells of keys a cell of rows sees. It is built
 * once, into the caller's memory, and serves any number of calls, forward and backward:
 *
 *     attn_pattern t = attn_pattern_bigbird(3, 1, 3, 1234);  // or {0} and fields of your own
 *     t.seq_len_q = t.seq_len_kv = 16384;  t.causal = 1;
 *     attn_pattern_info info;                                // sizes and density
 *     attn_pattern_measure(&t, &info, why, sizeof why);
 *     int32_t *offsets = malloc(info.num_offsets * 4), *columns = malloc(info.num_columns * 4);
 *     attn_pattern_build(&t, offsets, info.num_offsets, columns, info.num_columns, NULL, 0);
 *     attn_pattern_use(&t, offsets, columns, &p);            // and p.causal = 1
 *
 * An error writes nothing but the sentence in why.
 */
#pragma once

/* An attn_pattern says which cells are visible: the union of the parts below, and none if all are
 * 0. Set it to zero, then assign.
 *
 * Cell (r, c) covers rows from r*block_q and keys from c*block_k on, and the last cells may be
 * shorter. Rows stand at the end of the keys, as ATTN_ALIGN_BOTTOM_RIGHT has them. The diagonal of
 * row r is every column that holds a key at the position of a query row in r. */
typedef struct attn_pattern {
    /* Nonzero leaves columns after the diagonal out of every part; p.causal still has to hide the
     * future within a cell. */
    int causal;
    int64_t seq_len_q, seq_len_kv; /* lengths of the calls to come */
    int64_t block_q, block_k;      /* rows and keys of a cell; 0 means 64 */
    /* Query heads, each with a pattern of its own that differs in `random` alone; 0 means one
     * pattern for all heads. */
    int64_t num_heads;
    int local;              /* nonzero shows the diagonal */
    int64_t local_before;   /* columns shown before the diagonal, if local is set */
    int64_t local_after;    /* columns shown after the diagonal, if local is set */
    int64_t global_columns; /* first columns, which every row sees */
    int64_t global_rows;    /* first rows, which see every column */
    /* Shows the diagonal and columns at a multiple of stride from it ("strided" of Child et al.
     * 2019, arXiv 1904.10509); 0 means off. */
    int64_t stride;
    /* Shows columns c with c mod fixed = fixed - 1 ("fixed" of Child et al. 2019); 0 means off. */
    int64_t fixed;
    /* Distinct further cells that each row sees, or all that are left if these are fewer. A hash of
     * seed, head, row and column, equal on every machine, draws them from the cells that no other
     * part shows. */
    int64_t random;
    uint64_t seed; /* changes the hash of random */
} attn_pattern;

/* attn_pattern_longformer() returns local and global parts: Longformer (Beltagy et al. 2020, arXiv
 * 2004.05150). */
ATTN_API attn_pattern attn_pattern_longformer(int64_t each_side, int64_t global);

/* attn_pattern_strided() returns local and strided parts, both of `stride` columns, at least 1:
 * Sparse Transformer (Child et al. 2019, arXiv 1904.10509). */
ATTN_API attn_pattern attn_pattern_strided(int64_t stride);

/* attn_pattern_random() returns the diagonal and `count` random cells of each row. */
ATTN_API attn_pattern attn_pattern_random(int64_t count, uint64_t seed);

/* attn_pattern_bigbird() returns a local part of `window` columns in all, at least 1, global rows and
 * columns, and a random part: BigBird (Zaheer et al. 2020, arXiv 2007.14062), which takes 3, 2 and 3
 * cells of 64. */
ATTN_API attn_pattern attn_pattern_bigbird(int64_t window, int64_t global, int64_t random,
                                           uint64_t seed);

/* An attn_pattern_info holds the sizes of a pattern. */
typedef struct attn_pattern_info {
    int heads;             /* patterns: num_heads, or 1 */
    int64_t rows, columns; /* rows and columns of cells */
    int64_t num_offsets;   /* entries of row_offsets: heads * (rows + 1) */
    int64_t num_columns;   /* entries of columns: the visible cells of all heads */
    double density;        /* share of visible cells among all cells */
} attn_pattern_info;

/* attn_pattern_measure() computes the exact sizes of a pattern.
 *
 * It takes as long as building the pattern, in proportion to the number of cells. Returns
 * ATTN_ERR_ARG, or ATTN_ERR_OVERFLOW if there are more cells than int32_t counts. */
ATTN_API attn_status attn_pattern_measure(const attn_pattern *t, attn_pattern_info *info, char *why,
                                          size_t why_bytes);

/* attn_pattern_build() writes the CSR form that attn_block_mask describes; the offsets of head h
 * begin at h * (rows + 1).
 *
 * num_offsets and num_columns count the entries that fit. Returns the errors of
 * attn_pattern_measure, and ATTN_ERR_WORKSPACE if the room is too small. */
ATTN_API attn_status attn_pattern_build(const attn_pattern *t, int32_t *row_offsets,
                                        int64_t num_offsets, int32_t *columns, int64_t num_columns,
                                        char *why, size_t why_bytes);

/* attn_pattern_use() sets p->block_mask and nothing else, so p.causal stays the caller's.
 *
 * The sizes of *p must be set before. Returns ATTN_ERR_ARG, and sets nothing, if seq_len_q or
 * seq_len_kv differs from that of *t, or if *t has a pattern for each head and its num_heads is not
 * num_heads_q. */
ATTN_API attn_status attn_pattern_use(const attn_pattern *t, const int32_t *row_offsets,
                                      const int32_t *columns, attn_params *p);
