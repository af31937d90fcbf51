/* src/masks.c - masks: which keys a query row sees.
 * SPDX-License-Identifier: MIT
 *
 * Two kinds of rule decide whether query row i sees key j: some leave an interval of keys to a row
 * (`range`), and the loops never step outside it; the others must be asked pair by pair (`row`). A key
 * is visible if all active rules say so.
 */
#pragma once

#include "problem.c"

typedef struct mask_rule {
    const char *name;
    int (*active)(const attn_params *p);
    /* range narrows [*lo, *hi) for a query at pos; NULL means that the rule is no interval. */
    void (*range)(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo, int64_t *hi);
    /* row clears alive[t * step] where key j0 + t is hidden from the lane, t = 0..n-1. */
    void (*row)(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                uint8_t *alive, int step);
    /* tile gives a quick answer for a whole rectangle, an attn_tile_class; NULL means always
     * PARTIAL. */
    int (*tile)(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n);
    /* No row of the rectangle sees a key of j..end-1 that lies before the result of next; NULL
     * means always j. */
    int64_t (*next)(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                    int64_t end);
} mask_rule;

static int64_t floor_div(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

static int causal_active(const attn_params *p)
{
    return p->causal != 0;
}

static void causal_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi)
{
    (void)p;
    (void)lo;
    *hi = min64(*hi, max64(pos + 1, s->prefix));
}

static int window_active(const attn_params *p)
{
    return p->window != 0;
}

static void window_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi)
{
    (void)s;
    if (p->window_left >= 0)
        *lo = max64(*lo, pos - p->window_left);
    if (p->window_right >= 0)
        *hi = min64(*hi, pos + p->window_right + 1);
}

static int chunked_active(const attn_params *p)
{
    return p->chunk_size != 0;
}

static void chunked_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                          int64_t *hi)
{
    const int64_t begin = floor_div(s->key_base + pos, p->chunk_size) * p->chunk_size - s->key_base;
    *lo = max64(*lo, begin);
    *hi = min64(*hi, begin + p->chunk_size);
}

static int segments_active(const attn_params *p)
{
    return p->q_segments != NULL;
}

static void segments_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                         uint8_t *alive, int step)
{
    const int32_t *q = p->q_segments + (p->cu_seqlens_q ? s->q_row : s->b * p->q_segments_stride);
    const int32_t *kv = p->kv_segments + s->column +
                        (p->cu_seqlens_kv ? p->cu_seqlens_kv[s->b] : s->b * p->kv_segments_stride);
    int t;
    for (t = 0; t < n; t++)
        alive[t * step] &= q[at->i] == kv[j0 + t];
}

static int tree_active(const attn_params *p)
{
    return p->tree_parents != NULL;
}

/* Parents precede their children, so that one walk up from the query meets its ancestors in
 * descending order, as the keys are visited. */
static void tree_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                     uint8_t *alive, int step)
{
    const int32_t *parents = p->tree_parents + (p->cu_seqlens_q ? s->q_row : s->b * p->tree_stride);
    const int64_t first_node = s->kv_len - s->q_len;
    int64_t ancestor = at->i;
    int t;
    for (t = n - 1; t >= 0 && j0 + t >= first_node; t--) {
        const int64_t node = j0 + t - first_node;
        while (ancestor > node)
            ancestor = parents[ancestor];
        alive[t * step] &= ancestor == node;
    }
}

static int tree_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    (void)p;
    (void)at;
    return j0 + n <= s->kv_len - s->q_len ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t mask_at(const attn_mask *m, const sequence *s, const lane *at)
{
    return s->b * m->stride_batch + at->head * m->stride_head + at->i * m->stride_q;
}

static int bool_active(const attn_params *p)
{
    return p->bool_mask.data != NULL;
}

static void bool_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                     uint8_t *alive, int step)
{
    const attn_mask *m = &p->bool_mask;
    const uint8_t *data = m->data + mask_at(m, s, at) + (s->column + j0) * m->stride_kv;
    const int invert = m->invert != 0;
    int t;
    for (t = 0; t < n; t++)
        alive[t * step] &= (data[t * m->stride_kv] != 0) != invert;
}

static int bit_of(const uint8_t *bits, int64_t index)
{
    const int64_t byte = floor_div(index, 8);
    return bits[byte] >> (index - byte * 8) & 1;
}

static int bits_active(const attn_params *p)
{
    return p->bit_mask.data != NULL;
}

static void bits_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                     uint8_t *alive, int step)
{
    const attn_mask *m = &p->bit_mask;
    const int64_t first = mask_at(m, s, at) + (s->column + j0) * m->stride_kv;
    const int invert = m->invert != 0;
    int t;
    for (t = 0; t < n; t++)
        alive[t * step] &= bit_of(m->data, first + t * m->stride_kv) != invert;
}

static int bitmap_active(const attn_params *p)
{
    return p->block_mask.bitmap != NULL;
}

/* bitmap_first finds the first visible cell of columns column..end-1, or end, and skips whole empty
 * bytes at once. */
static int64_t bitmap_first(const attn_params *p, int64_t b, int64_t head, int64_t row,
                            int64_t column, int64_t end)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t at = b * m->stride_batch + head * m->stride_head + row * m->stride_row;
    while (column < end && !bit_of(m->bitmap, at + column))
        column += (at + column) % 8 == 0 && !m->bitmap[floor_div(at + column, 8)] ? 8 : 1;
    return min64(column, end);
}

static int csr_active(const attn_params *p)
{
    return p->block_mask.row_offsets != NULL;
}

/* csr_first finds it by a binary search in the row's ascending columns. */
static int64_t csr_first(const attn_params *p, int64_t b, int64_t head, int64_t row, int64_t column,
                         int64_t end)
{
    const attn_block_mask *m = &p->block_mask;
    const int32_t *offsets =
        m->row_offsets + b * m->csr_stride_batch + head * m->csr_stride_head + row;
    int64_t lo = offsets[0], hi = offsets[1];
    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;
        if (m->columns[middle] < column)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < offsets[1] ? min64(m->columns[lo], end) : end;
}

typedef int64_t (*first_fn)(const attn_params *p, int64_t b, int64_t head, int64_t row,
                            int64_t column, int64_t end);

/* cells_row serves both forms of the block-sparse mask, with one look-up a cell and not a key. */
static void cells_row(first_fn first, const attn_params *p, const sequence *s, const lane *at,
                      int64_t j0, int n, uint8_t *alive, int step)
{
    const int64_t size = p->block_mask.block_k, row = at->i / p->block_mask.block_q;
    int t = 0;
    while (t < n) {
        const int64_t column = (j0 + t) / size;
        const int64_t end = min64(n, (column + 1) * size - j0);
        const int visible = first(p, s->b, at->head, row, column, column + 1) == column;
        for (; t < end && !visible; t++)
            alive[t * step] = 0;
        t = (int)end;
    }
}

static int cells_tile(first_fn first, const attn_params *p, const sequence *s, const hull *at,
                      int64_t j0, int n)
{
    const attn_block_mask *m = &p->block_mask;
    int64_t head, row, column, seen = 0, all = 0;
    for (head = at->head_begin; head < at->head_end; head++)
        for (row = at->i_begin / m->block_q; row <= (at->i_end - 1) / m->block_q; row++)
            for (column = j0 / m->block_k; column <= (j0 + n - 1) / m->block_k; column++) {
                seen += first(p, s->b, head, row, column, column + 1) == column;
                all++;
            }
    return seen == 0 ? ATTN_TILE_EMPTY : seen == all ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t cells_next(first_fn first, const attn_params *p, const sequence *s, const hull *at,
                          int64_t j, int64_t end)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t from = j / m->block_k;
    int64_t column = ceil_div(end, m->block_k), head, row;
    for (head = at->head_begin; head < at->head_end; head++)
        for (row = at->i_begin / m->block_q; row <= (at->i_end - 1) / m->block_q; row++)
            column = first(p, s->b, head, row, from, column);
    return min64(end, max64(j, column * m->block_k));
}

static void bitmap_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                       uint8_t *alive, int step)
{
    cells_row(bitmap_first, p, s, at, j0, n, alive, step);
}

static int bitmap_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    return cells_tile(bitmap_first, p, s, at, j0, n);
}

static int64_t bitmap_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                           int64_t end)
{
    return cells_next(bitmap_first, p, s, at, j, end);
}

static void csr_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                    uint8_t *alive, int step)
{
    cells_row(csr_first, p, s, at, j0, n, alive, step);
}

static int csr_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    return cells_tile(csr_first, p, s, at, j0, n);
}

static int64_t csr_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                        int64_t end)
{
    return cells_next(csr_first, p, s, at, j, end);
}

static int callback_active(const attn_params *p)
{
    return p->mask != NULL;
}

static void callback_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                         uint8_t *alive, int step)
{
    int t;
    for (t = 0; t < n; t++) {
        const attn_pair pair = pair_of(s, at, j0 + t);
        if (alive[t * step])
            alive[t * step] = p->mask(p->callback_user, &pair) != 0;
    }
}

static int callback_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    attn_rect rect;
    int answer;
    if (!p->mask_tile)
        return ATTN_TILE_PARTIAL;
    rect.batch = s->b;
    rect.head_begin = at->head_begin;
    rect.head_end = at->head_end;
    rect.i_begin = at->i_begin;
    rect.i_end = at->i_end;
    rect.j_begin = j0;
    rect.j_end = j0 + n;
    rect.offset = s->offset;
    rect.key_base = s->key_base;
    answer = p->mask_tile(p->callback_user, &rect);
    return answer == ATTN_TILE_EMPTY || answer == ATTN_TILE_FULL ? answer : ATTN_TILE_PARTIAL;
}

/* Cheap rules come first: a tile that one of them finds empty is asked no further. */
static const mask_rule mask_rules[] = {
    { "causal", causal_active, causal_range, NULL, NULL, NULL },
    { "window", window_active, window_range, NULL, NULL, NULL },
    { "chunked", chunked_active, chunked_range, NULL, NULL, NULL },
    { "block bitmap", bitmap_active, NULL, bitmap_row, bitmap_tile, bitmap_next },
    { "block csr", csr_active, NULL, csr_row, csr_tile, csr_next },
    { "tree", tree_active, NULL, tree_row, tree_tile, NULL },
    { "segments", segments_active, NULL, segments_row, NULL, NULL },
    { "bool mask", bool_active, NULL, bool_row, NULL, NULL },
    { "bit mask", bits_active, NULL, bits_row, NULL, NULL },
    { "callback", callback_active, NULL, callback_row, callback_tile, NULL },
};

/* Keys *lo..*hi-1 are what the lengths and all range rules leave to a query at pos. */
static void visible_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                          int64_t *hi)
{
    int m;
    *lo = s->key_from;
    *hi = s->key_to;
    for (m = 0; m < COUNT_OF(mask_rules); m++)
        if (mask_rules[m].range && mask_rules[m].active(p))
            mask_rules[m].range(p, s, pos, lo, hi);
    if (*hi < *lo)
        *hi = *lo;
}

/* ---- pairs that are visible */

static int has_range_rule(const attn_params *p)
{
    int m;
    for (m = 0; m < COUNT_OF(mask_rules); m++)
        if (mask_rules[m].range && mask_rules[m].active(p))
            return 1;
    return 0;
}

static double sequence_pairs(const attn_params *p, int64_t b)
{
    const sequence s = sequence_of(p, b);
    double pairs = 0;
    int64_t i, lo, hi;
    if (!has_range_rule(p))
        return (double)(s.row_to - s.row_from) * (double)(s.key_to - s.key_from);
    for (i = s.row_from; i < s.row_to; i++) {
        visible_range(p, &s, i + s.offset, &lo, &hi);
        pairs += (double)(hi - lo);
    }
    return pairs;
}

static double visible_pairs(const attn_params *p)
{
    double pairs = 0;
    int64_t b;
    if (!has_batch_arrays(p) && p->batch > 0)
        pairs = sequence_pairs(p, 0) * (double)p->batch;
    for (b = 0; has_batch_arrays(p) && b < p->batch; b++)
        pairs += sequence_pairs(p, b);
    return pairs * (double)p->num_heads_q;
}
