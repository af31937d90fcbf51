/* src/masks.c - masks: which keys a query row sees.
 * SPDX-License-Identifier: MIT
 *
 * Two kinds of rule decide whether query row i sees key j: some leave an interval of keys to a row
 * (`range`), and the loops never step outside it; the others must be asked pair by pair (`row`). A key
 * is visible if all active rules say so.
 */
#pragma once

#include "problem.c"
#include "listed.c"

/* A key_row is a row that is asked about keys j0 to j0+n-1. */
typedef struct key_row {
    const attn_params *p;
    const sequence *s;
    const lane *at;
    const attn_kernels *kernels;
    int64_t j0;
    int n;
    /* Bit k % 32 of alive[k / 32 * apart] tells whether key j0 + k is visible. Bits behind n are 0. */
    uint32_t *alive;
    int apart;
} key_row;

typedef struct mask_rule {
    member on;                      /* The rule is active where this field is set. */
    range_fn range;                 /* NULL means that the rule is no interval. */
    void (*row)(const key_row *of); /* row clears the bits of keys that are hidden. */
    /* tile gives the attn_tile_class of a rectangle quickly; NULL means always PARTIAL. */
    int (*tile)(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n);
    /* No row of the rectangle sees keys from j to before the result; NULL means always j. */
    int64_t (*next)(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                    int64_t end);
} mask_rule;

/* bits_below gives the lowest n bits: none below 0, all of a word from 32 on. */
static uint32_t bits_below(int n)
{
    return n <= 0 ? 0 : n < ATTN_ALIVE_BITS ? (UINT32_C(1) << n) - 1 : UINT32_MAX;
}

static uint32_t bits_between(int from, int to)
{
    return bits_below(to) & ~bits_below(from);
}

/* word_of gives the word with key k of the row. */
static uint32_t *word_of(const key_row *of, int k)
{
    return &of->alive[k / ATTN_ALIVE_BITS * of->apart];
}

/* keep_if hides key k of the row unless it is visible by one more rule. */
static void keep_if(const key_row *of, int k, int visible)
{
    *word_of(of, k) &= ~((uint32_t)!visible << k % ATTN_ALIVE_BITS);
}

/* hide_between hides keys `from` to `to`-1 of the row. */
static void hide_between(const key_row *of, int from, int to)
{
    int k = from / ATTN_ALIVE_BITS * ATTN_ALIVE_BITS;
    for (; k < to; k += ATTN_ALIVE_BITS)
        *word_of(of, k) &= ~bits_between(from - k, to - k);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

static void causal_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi)
{
    (void)p;
    (void)lo;
    *hi = min64(*hi, max64(pos + 1, s->prefix));
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

/* first_from gives the first key of a view that has at least the number `key` in the whole. */
static int64_t first_from(const sequence *s, int64_t key)
{
    return -floor_div(s->view.key - key, s->view.step);
}

static void chunked_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                          int64_t *hi)
{
    const int64_t at = s->key_base + key_seen(s, pos);
    const int64_t begin = floor_div(at, p->chunk_size) * p->chunk_size - s->key_base;
    *lo = max64(*lo, first_from(s, begin));
    *hi = min64(*hi, first_from(s, begin + p->chunk_size));
}

/* Ids of rows and of keys are view.step apart. */
static const int32_t *query_ids(const attn_params *p, const sequence *s)
{
    return p->q_segments + s->view.row + (p->cu_seqlens_q ? s->q_row : s->b * p->q_segments_stride);
}

static const int32_t *key_ids(const attn_params *p, const sequence *s)
{
    return p->kv_segments + s->column + s->view.key +
           (p->cu_seqlens_kv ? p->cu_seqlens_kv[s->b] : s->b * p->kv_segments_stride);
}

/* hide_others_apart does what the kernel does, for ids that lie `step` apart. */
static void hide_others_apart(const key_row *of, const int32_t *ids, int64_t step, int32_t own)
{
    int32_t packed[ATTN_ALIVE_BITS];
    int k, i;
    for (k = 0; k < of->n; k += ATTN_ALIVE_BITS) {
        const int n = (int)min64(of->n - k, ATTN_ALIVE_BITS);
        for (i = 0; i < n; i++, ids += step)
            packed[i] = *ids;
        of->kernels->hide_others(word_of(of, k), of->apart, packed, n, own);
    }
}

static void segments_row(const key_row *of)
{
    const int64_t step = of->s->view.step;
    const int32_t own = query_ids(of->p, of->s)[of->at->i * step];
    const int32_t *const kv = key_ids(of->p, of->s) + of->j0 * step;
    if (step == 1)
        of->kernels->hide_others(of->alive, of->apart, kv, of->n, own);
    else
        hide_others_apart(of, kv, step, own);
}

/* An id_span is the ids from the least to the largest of some rows or keys. */
typedef struct id_span {
    int32_t least, most;
} id_span;

OWN_FRAME static id_span ids_between(const int32_t *ids, int64_t step, int64_t from, int64_t to)
{
    id_span found = { ids[from * step], ids[from * step] };
    for (from++; from < to; from++) {
        const int32_t id = ids[from * step];
        found.least = id < found.least ? id : found.least;
        found.most = id > found.most ? id : found.most;
    }
    return found;
}

/* Documents follow each other, so that spans tell most tiles: those outside the document of their
 * rows, and those inside it. */
static int segments_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    const int64_t step = s->view.step;
    const id_span rows = ids_between(query_ids(p, s), step, at->i_begin, at->i_end);
    const id_span keys = ids_between(key_ids(p, s), step, j0, j0 + n);
    if (rows.most < keys.least || keys.most < rows.least)
        return ATTN_TILE_EMPTY;
    return rows.least == rows.most && keys.least == keys.most ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t segments_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                             int64_t end)
{
    const int64_t step = s->view.step;
    const id_span rows = ids_between(query_ids(p, s), step, at->i_begin, at->i_end);
    const int32_t *const kv = key_ids(p, s);
    while (j < end && (kv[j * step] < rows.least || kv[j * step] > rows.most))
        j++;
    return j;
}

/* Parents precede their children, so that one walk up from the query meets its ancestors in
 * descending order, as the keys are visited. */
static void tree_row(const key_row *of)
{
    const attn_params *p = of->p;
    const sequence *s = of->s;
    const int32_t *parents = p->tree_parents + (p->cu_seqlens_q ? s->q_row : s->b * p->tree_stride);
    const int64_t first_node = s->kv_len - s->q_len;
    int64_t ancestor = of->at->i;
    int k;
    for (k = of->n - 1; k >= 0 && of->j0 + k >= first_node; k--) {
        const int64_t node = of->j0 + k - first_node;
        while (ancestor > node)
            ancestor = parents[ancestor];
        keep_if(of, k, ancestor == node);
    }
}

static int tree_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    (void)p;
    (void)at;
    return j0 + n <= s->kv_len - s->q_len ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

/* mask_at tells where a mask has the first key of the row. */
static int64_t mask_at(const attn_mask *m, const key_row *of)
{
    const sequence *s = of->s;
    return s->b * m->stride_batch + of->at->head * m->stride_head + of->at->i * m->stride_q +
           (s->column + of->j0) * m->stride_kv;
}

static void bool_row(const key_row *of)
{
    const attn_mask *m = &of->p->bool_mask;
    const uint8_t *data = m->data + mask_at(m, of);
    const int invert = m->invert != 0;
    int k;
    if (m->stride_kv == 1) {
        of->kernels->hide_bytes(of->alive, of->apart, data, of->n, invert);
        return;
    }
    for (k = 0; k < of->n; k++)
        keep_if(of, k, (data[k * m->stride_kv] != 0) != invert);
}

/* bits_at tells which bit of the bit mask's data that is. */
static int64_t bits_at(const key_row *of)
{
    return mask_at(&of->p->bit_mask, of) + of->s->view.bit;
}

static int bit_of(const uint8_t *bits, int64_t index)
{
    const int64_t byte = floor_div(index, 8);
    return bits[byte] >> (index - byte * 8) & 1;
}

/* some_bits gives `count` bits, at most 32, from bit `shift` of the first byte on, and anything above
 * them. A byte without one of them is not read. */
static uint32_t some_bits(const uint8_t *bits, int shift, int count)
{
    uint32_t word = 0;
    int i;
    if (count == ATTN_ALIVE_BITS) {
        word = bits[0] | (uint32_t)bits[1] << 8 | (uint32_t)bits[2] << 16 | (uint32_t)bits[3] << 24;
        return shift ? word >> shift | (uint32_t)bits[4] << (ATTN_ALIVE_BITS - shift) : word;
    }
    for (i = 0; i < count; i++)
        word |= (uint32_t)bit_of(bits, shift + i) << i;
    return word;
}

static void bits_row(const key_row *of)
{
    const attn_mask *m = &of->p->bit_mask;
    const int64_t first = bits_at(of), byte = floor_div(first, 8);
    const int shift = (int)(first - byte * 8), invert = m->invert != 0, n = of->n;
    const uint32_t flip = invert ? UINT32_MAX : 0;
    int k;
    if (m->stride_kv == 1) {
        for (k = 0; k < n; k += ATTN_ALIVE_BITS)
            *word_of(of, k) &=
                flip ^ some_bits(m->data + byte + k / 8, shift, (int)min64(n - k, ATTN_ALIVE_BITS));
        return;
    }
    for (k = 0; k < n; k++)
        keep_if(of, k, bit_of(m->data, first + k * m->stride_kv) != invert);
}

/* bitmap_first finds the first visible cell of column..end-1, or end; it skips empty bytes. */
static int64_t bitmap_first(const attn_block_mask *m, int64_t b, int64_t head, int64_t row,
                            int64_t column, int64_t end)
{
    const int64_t at = b * m->stride_batch + head * m->stride_head + row * m->stride_row;
    while (column < end && !bit_of(m->bitmap, at + column))
        column += (at + column) % 8 == 0 && !m->bitmap[floor_div(at + column, 8)] ? 8 : 1;
    return min64(column, end);
}

/* csr_first finds it by a binary search in the row's ascending columns. */
static int64_t csr_first(const attn_block_mask *m, int64_t b, int64_t head, int64_t row,
                         int64_t column, int64_t end)
{
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

static int64_t first_cell(const attn_block_mask *m, int64_t b, int64_t head, int64_t row,
                          int64_t column, int64_t end)
{
    return m->bitmap ? bitmap_first(m, b, head, row, column, end)
                     : csr_first(m, b, head, row, column, end);
}

/* cells_row takes one look-up a cell and not a key. */
static void cells_row(const key_row *of)
{
    const attn_block_mask *m = &of->p->block_mask;
    const int64_t size = m->block_k, row = of->at->i / m->block_q;
    int from = 0, to;
    for (; from < of->n; from = to) {
        const int64_t column = (of->j0 + from) / size;
        to = (int)min64(of->n, (column + 1) * size - of->j0);
        if (first_cell(m, of->s->b, of->at->head, row, column, column + 1) != column)
            hide_between(of, from, to);
    }
}

static int cells_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    const attn_block_mask *m = &p->block_mask;
    int64_t head, row, column, seen = 0, all = 0;
    for (head = at->head_begin; head < at->head_end; head++)
        for (row = at->i_begin / m->block_q; row <= (at->i_end - 1) / m->block_q; row++)
            for (column = j0 / m->block_k; column <= (j0 + n - 1) / m->block_k; column++) {
                seen += first_cell(m, s->b, head, row, column, column + 1) == column;
                all++;
            }
    return seen == 0 ? ATTN_TILE_EMPTY : seen == all ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t cells_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                          int64_t end)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t from = j / m->block_k;
    int64_t column = ceil_div(end, m->block_k), head, row;
    for (head = at->head_begin; head < at->head_end; head++)
        for (row = at->i_begin / m->block_q; row <= (at->i_end - 1) / m->block_q; row++)
            column = first_cell(m, s->b, head, row, from, column);
    return min64(end, max64(j, column * m->block_k));
}

/* kv_head_of gives the head of K and V that a query head reads. */
static int64_t kv_head_of(const attn_params *p, int64_t head)
{
    return head / (p->num_heads_q / p->num_heads_kv);
}

static void listed_row(const key_row *of)
{
    const key_numbers list =
        listed_for(of->p, of->s->b, kv_head_of(of->p, of->at->head), of->at->i);
    int64_t at = first_listed(list, of->j0);
    int k;
    for (k = 0; k < of->n; k += ATTN_ALIVE_BITS) {
        const int64_t from = of->j0 + k;
        uint32_t shown = 0;
        for (; at < list.count && list.at[at] < from + ATTN_ALIVE_BITS; at++)
            shown |= UINT32_C(1) << (list.at[at] - from);
        *word_of(of, k) &= shown;
    }
}

static int listed_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    const int64_t rows = rows_of_list(p), heads_end = kv_head_of(p, at->head_end - 1);
    int64_t head, list, seen = 0, all = 0;
    for (head = kv_head_of(p, at->head_begin); head <= heads_end; head++)
        for (list = at->i_begin / rows; list <= (at->i_end - 1) / rows; list++) {
            const key_numbers keys = listed_for(p, s->b, head, list * rows);
            seen += first_listed(keys, j0 + n) - first_listed(keys, j0);
            all += n;
        }
    return seen == 0 ? ATTN_TILE_EMPTY : seen == all ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t listed_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                           int64_t end)
{
    const int64_t rows = rows_of_list(p), heads_end = kv_head_of(p, at->head_end - 1);
    int64_t head, list;
    for (head = kv_head_of(p, at->head_begin); head <= heads_end; head++)
        for (list = at->i_begin / rows; list <= (at->i_end - 1) / rows; list++) {
            const key_numbers keys = listed_for(p, s->b, head, list * rows);
            const int64_t first = first_listed(keys, j);
            if (first < keys.count)
                end = min64(end, keys.at[first]);
        }
    return end;
}

static void callback_row(const key_row *of)
{
    const attn_params *p = of->p;
    int k;
    for (k = 0; k < of->n; k++) {
        if (*word_of(of, k) >> k % ATTN_ALIVE_BITS & 1) {
            const attn_pair pair = pair_of(of->s, of->at, of->j0 + k);
            keep_if(of, k, p->mask(p->callback_user, &pair) != 0);
        }
    }
}

/* Of a view it asks about the whole rectangle, which only makes the answer more careful. */
static int callback_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    const attn_rect rect = { s->view.batch,
                             head_seen(s, at->head_begin),
                             head_seen(s, at->head_end - 1) + 1,
                             row_seen(s, at->i_begin),
                             row_seen(s, at->i_end - 1) + 1,
                             key_seen(s, j0),
                             key_seen(s, j0 + n - 1) + 1,
                             s->view.before,
                             s->key_base };
    int answer;
    if (!p->mask_tile)
        return ATTN_TILE_PARTIAL;
    answer = p->mask_tile(p->callback_user, &rect);
    return answer == ATTN_TILE_EMPTY || answer == ATTN_TILE_FULL ? answer : ATTN_TILE_PARTIAL;
}

/* Cheap rules come first: no other is asked about a tile that the `tile` of one finds empty. */
static const mask_rule mask_rules[] = {
    { MEMBER(causal), .range = causal_range },
    { MEMBER(window), .range = window_range },
    { MEMBER(chunk_size), .range = chunked_range },
    { MEMBER(block_mask.bitmap), NULL, cells_row, cells_tile, cells_next },
    { MEMBER(block_mask.row_offsets), NULL, cells_row, cells_tile, cells_next },
    { MEMBER(key_list.data), NULL, listed_row, listed_tile, listed_next },
    { MEMBER(tree_parents), NULL, tree_row, tree_tile, NULL },
    { MEMBER(q_segments), NULL, segments_row, segments_tile, segments_next },
    { MEMBER(bool_mask.data), .row = bool_row },
    { MEMBER(bit_mask.data), .row = bits_row },
    { MEMBER(mask), NULL, callback_row, callback_tile, NULL },
};

/* A rule_list is the `row` of each rule that decides about a tile. */
typedef struct rule_list {
    int n;
    void (*at[COUNT_OF(mask_rules)])(const key_row *of);
} rule_list;

/* pair_rules_on counts the rules that are on and no intervals. */
static int pair_rules_on(const attn_params *p)
{
    int m, n = 0;
    for (m = 0; m < COUNT_OF(mask_rules); m++)
        n += mask_rules[m].row && is_set(p, mask_rules[m].on);
    return n;
}

static range_list ranges_of(const attn_params *p)
{
    range_list ranges = { 0, { NULL } };
    int m;
    for (m = 0; m < COUNT_OF(mask_rules); m++)
        if (mask_rules[m].range && is_set(p, mask_rules[m].on)) {
            ATTN_ASSERT(ranges.n < COUNT_OF(ranges.at));
            ranges.at[ranges.n++] = mask_rules[m].range;
        }
    return ranges;
}

/* plan_masks notes which masks are on, so that rows and tiles need not ask. */
static void plan_masks(const attn_params *p, plan *pl)
{
    pl->by_pair = pair_rules_on(p) > 0 && !pl->gathered;
    pl->ranges = ranges_of(p);
}

/* Keys *lo..*hi-1 are what the lengths and all range rules leave to a query at pos. */
static void visible_range(const range_list *ranges, const attn_params *p, const sequence *s,
                          int64_t pos, int64_t *lo, int64_t *hi)
{
    int i;
    *lo = s->key_from;
    *hi = s->key_to;
    for (i = 0; i < ranges->n; i++)
        ranges->at[i](p, s, pos, lo, hi);
    if (*hi < *lo)
        *hi = *lo;
}

/* ---- pairs that are visible */

static double sequence_pairs(const range_list *ranges, const attn_params *p, int64_t b)
{
    const sequence s = sequence_of(p, b);
    double pairs = 0;
    int64_t i, lo, hi;
    if (ranges->n == 0)
        return (double)(s.row_to - s.row_from) * (double)(s.key_to - s.key_from);
    for (i = s.row_from; i < s.row_to; i++) {
        visible_range(ranges, p, &s, i + s.offset, &lo, &hi);
        pairs += (double)(hi - lo);
    }
    return pairs;
}

static double visible_pairs(const attn_params *p)
{
    const range_list ranges = ranges_of(p);
    const int64_t kinds = kinds_of(p);
    double pairs = 0;
    int64_t b;
    for (b = 0; b < kinds; b++)
        pairs += sequence_pairs(&ranges, p, b);
    return pairs * (double)(kinds < p->batch ? p->batch : 1) * (double)p->num_heads_q;
}
