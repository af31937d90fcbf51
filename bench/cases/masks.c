/* masks.c - the masks that a case can have, and how many pairs each of them shows.
 * SPDX-License-Identifier: MIT
 *
 * For each kind two small functions: what it sets, and how many keys row i of batch entry b sees.
 * The patterns are fixed and uneven, so that batch entries, rows and tiles differ. */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

enum { DOCUMENTS = 5, EVERY_THIRD = 3, CELL = 64, CELL_COLUMNS = 6, TENTH = 10 };

/* ---- patterns */

static int64_t within(int64_t x, int64_t most)
{
    return x < 0 ? 0 : x > most ? most : x;
}

/* The last row stands at the last key. */
static int64_t position(const bench_case *c, int64_t i)
{
    return i + c->seq_kv - c->seq_q;
}

/* Of windows, chunks and what else has one size. */
static int64_t width_of(const bench_case *c)
{
    if (c->mask_size)
        return c->mask_size;
    return c->seq_kv < 8 ? 1 : c->seq_kv / 8;
}

static int64_t cell_of(const bench_case *c)
{
    return c->mask_size ? c->mask_size : width_of(c) < CELL ? width_of(c) : CELL;
}

/* Entry b goes without (b + 1) / (2 batch) of its length: from all but a sliver to one half. */
static int64_t left_out(const bench_case *c, int64_t b, int64_t length)
{
    return length * (b + 1) / (2 * c->batch);
}

static int64_t offset_of(const bench_case *c, int64_t b)
{
    return c->seq_kv / 4 + b;
}

static int64_t prefix_of(const bench_case *c, int64_t b)
{
    return within(c->seq_kv / 4 + b, c->seq_kv);
}

/* Documents grow: 1, 3, 5, 7 and 9 parts of 25. */
static int64_t document_begin(int64_t length, int64_t d)
{
    return length * d * d / (DOCUMENTS * DOCUMENTS);
}

static int64_t document_at(int64_t length, int64_t at)
{
    int64_t d = DOCUMENTS - 1;
    while (d > 0 && document_begin(length, d) > at)
        d--;
    return d;
}

static int64_t cells(const bench_case *c, int64_t length)
{
    return (length + cell_of(c) - 1) / cell_of(c);
}

/* The column of the cell that row `row` of cells stands in. */
static int64_t own_column(const bench_case *c, int64_t row)
{
    return within(position(c, row * cell_of(c)), c->seq_kv - 1) / cell_of(c);
}

/* The first of every tenth column that row `row` of cells sees. */
static int64_t first_tenth(int64_t row)
{
    return (TENTH - 3 * row % TENTH) % TENTH;
}

/* Columns of a row of cells, ascending: the first, the three around its own, two far ones. */
static int cell_columns(const bench_case *c, int64_t row, int64_t *columns)
{
    const int64_t count = cells(c, c->seq_kv), own = own_column(c, row);
    const int64_t wanted[CELL_COLUMNS] = {
        0, own - 1, own, own + 1, (5 * own + 3) % count, (11 * own + 7) % count
    };
    int n = 0;
    for (int w = 0; w < CELL_COLUMNS; w++) {
        int at = n;
        if (wanted[w] < 0 || wanted[w] >= count)
            continue;
        while (at > 0 && columns[at - 1] >= wanted[w])
            at--;
        if (at < n && columns[at] == wanted[w])
            continue;
        memmove(&columns[at + 1], &columns[at], sizeof *columns * (size_t)(n++ - at));
        columns[at] = wanted[w];
    }
    return n;
}

/* ---- keys that row i of batch entry b sees */

static int64_t all_keys(const bench_case *c, int64_t b, int64_t i)
{
    (void)b, (void)i;
    return c->seq_kv;
}

static int64_t causal_keys(const bench_case *c, int64_t b, int64_t i)
{
    (void)b;
    return within(position(c, i) + 1, c->seq_kv);
}

static int64_t top_left_keys(const bench_case *c, int64_t b, int64_t i)
{
    (void)b;
    return within(i + 1, c->seq_kv);
}

static int64_t offset_keys(const bench_case *c, int64_t b, int64_t i)
{
    return within(i + offset_of(c, b) + 1, c->seq_kv);
}

static int64_t window_keys(const bench_case *c, int64_t b, int64_t i)
{
    const int64_t end = position(c, i) + 1;
    (void)b;
    return within(end, c->seq_kv) - within(end - width_of(c), c->seq_kv);
}

static int64_t window_both_keys(const bench_case *c, int64_t b, int64_t i)
{
    const int64_t at = position(c, i), half = width_of(c) / 2;
    (void)b;
    return within(at + half + 1, c->seq_kv) - within(at - half, c->seq_kv);
}

static int64_t chunked_keys(const bench_case *c, int64_t b, int64_t i)
{
    const int64_t at = position(c, i);
    (void)b;
    return at < 0 ? 0 : at % width_of(c) + 1;
}

static int64_t prefix_keys(const bench_case *c, int64_t b, int64_t i)
{
    const int64_t before = causal_keys(c, b, i), prefix = prefix_of(c, b);
    return before > prefix ? before : prefix;
}

static int64_t short_keys(const bench_case *c, int64_t b, int64_t i)
{
    (void)i;
    return c->seq_kv - left_out(c, b, c->seq_kv);
}

static int64_t short_rows(const bench_case *c, int64_t b, int64_t i)
{
    return i < c->seq_q - left_out(c, b, c->seq_q) ? c->seq_kv : 0;
}

static int64_t varlen_keys(const bench_case *c, int64_t b, int64_t i)
{
    const int64_t d = document_at(c->seq_q, i);
    (void)b;
    return document_begin(c->seq_kv, d + 1) - document_begin(c->seq_kv, d);
}

static int64_t document_keys(const bench_case *c, int64_t b, int64_t i)
{
    const int64_t at = position(c, i);
    (void)b;
    return at < 0 ? 0 : at + 1 - document_begin(c->seq_kv, document_at(c->seq_kv, at));
}

/* Hidden are keys j with (i + j) % 3 == 0. */
static int64_t third_keys(const bench_case *c, int64_t b, int64_t i)
{
    const int64_t first = (EVERY_THIRD - i % EVERY_THIRD) % EVERY_THIRD;
    (void)b;
    return c->seq_kv - (c->seq_kv - first + EVERY_THIRD - 1) / EVERY_THIRD;
}

static int64_t block_keys(const bench_case *c, int64_t b, int64_t i)
{
    const int64_t cell = cell_of(c);
    int64_t columns[CELL_COLUMNS], keys = 0;
    (void)b;
    for (int n = cell_columns(c, i / cell, columns); n-- > 0;)
        keys += within(c->seq_kv - columns[n] * cell, cell);
    return keys;
}

/* All but the last column have a whole cell of keys. */
static int64_t tenth_keys(const bench_case *c, int64_t b, int64_t i)
{
    const int64_t cell = cell_of(c), count = cells(c, c->seq_kv), first = first_tenth(i / cell);
    const int64_t columns = first < count ? (count - first + TENTH - 1) / TENTH : 0;
    (void)b;
    return columns * cell - ((count - 1) % TENTH == first ? count * cell - c->seq_kv : 0);
}

static int64_t cell_keys(const bench_case *c, int64_t b, int64_t i)
{
    (void)b;
    return pattern_keys(c, cell_of(c), i);
}

/* Keys before the nodes, itself and its ancestors; with more rows than keys the first nodes have
 * no key. */
static int64_t tree_keys(const bench_case *c, int64_t b, int64_t i)
{
    int64_t keys = c->seq_kv > c->seq_q ? c->seq_kv - c->seq_q : 0;
    (void)b;
    for (; i >= 0 && position(c, i) >= 0; i = i ? (i - 1) / 2 : -1)
        keys++;
    return keys;
}

/* ---- what they set */

static void *own(mask_arrays *arrays, int64_t bytes)
{
    void *const array = malloc((size_t)bytes + 1);
    arrays->owned[arrays->n++] = array;
    return array;
}

static int set_none(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    (void)c, (void)p, (void)arrays;
    return 1;
}

static int set_causal(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    (void)c, (void)arrays;
    return p->causal = 1;
}

static int set_top_left(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    p->alignment = ATTN_ALIGN_TOP_LEFT;
    return set_causal(c, p, arrays);
}

/* One number per batch entry; NULL without memory. */
static int32_t *per_entry(const bench_case *c, mask_arrays *arrays,
                          int64_t (*value)(const bench_case *c, int64_t b))
{
    int32_t *const list = own(arrays, 4 * c->batch);
    for (int64_t b = 0; list && b < c->batch; b++)
        list[b] = (int32_t)value(c, b);
    return list;
}

static int set_offset(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    p->causal = 1;
    p->alignment = ATTN_ALIGN_OFFSET;
    return (p->q_offset = per_entry(c, arrays, offset_of)) != NULL;
}

static int set_window(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    (void)arrays;
    p->window = ATTN_WINDOW;
    p->window_left = width_of(c) - 1;
    return 1;
}

static int set_window_both(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    (void)arrays;
    p->window = ATTN_WINDOW;
    p->window_left = p->window_right = width_of(c) / 2;
    return 1;
}

static int set_chunked(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    p->chunk_size = width_of(c);
    return set_causal(c, p, arrays);
}

static int set_prefix(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    p->causal = 1;
    return (p->prefix = per_entry(c, arrays, prefix_of)) != NULL;
}

static int64_t keys_in_use(const bench_case *c, int64_t b)
{
    return c->seq_kv - left_out(c, b, c->seq_kv);
}

static int64_t rows_in_use(const bench_case *c, int64_t b)
{
    return c->seq_q - left_out(c, b, c->seq_q);
}

static int64_t padding_of(const bench_case *c, int64_t b)
{
    return left_out(c, b, c->seq_kv);
}

static int set_kv_lengths(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    return (p->kv_len = per_entry(c, arrays, keys_in_use)) != NULL;
}

static int set_q_lengths(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    return (p->q_len = per_entry(c, arrays, rows_in_use)) != NULL;
}

static int set_left_padding(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    return (p->kv_begin = per_entry(c, arrays, padding_of)) != NULL;
}

static int32_t *borders(const bench_case *c, mask_arrays *arrays, int64_t length)
{
    int32_t *const list = own(arrays, 4 * (DOCUMENTS * c->batch + 1));
    for (int64_t s = 0; list && s <= DOCUMENTS * c->batch; s++)
        list[s] = (int32_t)(s / DOCUMENTS * length + document_begin(length, s % DOCUMENTS));
    return list;
}

/* Each batch entry becomes five sequences. */
static int set_varlen(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    p->batch = DOCUMENTS * c->batch;
    p->seq_len_q = c->batch * c->seq_q;
    p->seq_len_kv = c->batch * c->seq_kv;
    p->cu_seqlens_q = borders(c, arrays, c->seq_q);
    p->cu_seqlens_kv = borders(c, arrays, c->seq_kv);
    return p->cu_seqlens_q && p->cu_seqlens_kv;
}

/* Document of each of `length` tokens, the first of which stands at `first`; of every entry. */
static int32_t *segments(const bench_case *c, mask_arrays *arrays, int64_t length, int64_t first)
{
    int32_t *const list = own(arrays, 4 * c->batch * length);
    for (int64_t i = 0; list && i < c->batch * length; i++)
        list[i] = (int32_t)document_at(c->seq_kv, first + i % length);
    return list;
}

static int set_documents(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    p->causal = 1;
    p->q_segments = segments(c, arrays, c->seq_q, position(c, 0));
    p->kv_segments = segments(c, arrays, c->seq_kv, 0);
    return p->q_segments && p->kv_segments;
}

static int third_shows(int64_t i, int64_t j)
{
    return (i + j) % EVERY_THIRD != 0;
}

/* Shared by batch entries and heads, as the bits and the bias below. */
static int set_boolean(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    uint8_t *const bytes = own(arrays, c->seq_q * c->seq_kv);
    for (int64_t i = 0; bytes && i < c->seq_q; i++)
        for (int64_t j = 0; j < c->seq_kv; j++)
            bytes[i * c->seq_kv + j] = (uint8_t)third_shows(i, j);
    p->bool_mask.data = bytes;
    p->bool_mask.stride_q = (ptrdiff_t)c->seq_kv;
    p->bool_mask.stride_kv = 1;
    return bytes != NULL;
}

static int set_bits(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    const int64_t row = (c->seq_kv + 7) / 8;
    uint8_t *const bits = own(arrays, c->seq_q * row);
    if (!bits)
        return 0;
    memset(bits, 0, (size_t)(c->seq_q * row));
    for (int64_t i = 0; i < c->seq_q; i++)
        for (int64_t j = 0; j < c->seq_kv; j++)
            if (third_shows(i, j))
                bits[i * row + j / 8] |= (uint8_t)(1 << j % 8);
    p->bit_mask.data = bits;
    p->bit_mask.stride_q = (ptrdiff_t)(8 * row);
    p->bit_mask.stride_kv = 1;
    return 1;
}

static void show_cell(uint8_t *row, int64_t column)
{
    row[column / 8] |= (uint8_t)(1 << column % 8);
}

static void show_uneven(const bench_case *c, int64_t r, uint8_t *row)
{
    int64_t columns[CELL_COLUMNS];
    for (int n = cell_columns(c, r, columns); n-- > 0;)
        show_cell(row, columns[n]);
}

static void show_tenth(const bench_case *c, int64_t r, uint8_t *row)
{
    for (int64_t n = first_tenth(r); n < cells(c, c->seq_kv); n += TENTH)
        show_cell(row, n);
}

static int set_bitmap(const bench_case *c, attn_params *p, mask_arrays *arrays,
                      void (*show)(const bench_case *c, int64_t r, uint8_t *row))
{
    const int64_t rows = cells(c, c->seq_q), across = (cells(c, c->seq_kv) + 7) / 8;
    uint8_t *const bits = own(arrays, rows * across);
    if (!bits)
        return 0;
    memset(bits, 0, (size_t)(rows * across));
    for (int64_t r = 0; r < rows; r++)
        show(c, r, bits + r * across);
    p->block_mask.block_q = p->block_mask.block_k = cell_of(c);
    p->block_mask.stride_row = (ptrdiff_t)(8 * across);
    p->block_mask.bitmap = bits;
    return 1;
}

static int set_blocks(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    return set_bitmap(c, p, arrays, show_uneven);
}

static int set_blocks_tenth(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    return set_bitmap(c, p, arrays, show_tenth);
}

static int set_pattern(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    return pattern_set(c, cell_of(c), p, arrays);
}

static int set_blocks_csr(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    const int64_t cell = cell_of(c), rows = cells(c, c->seq_q);
    int32_t *const offsets = own(arrays, 4 * (rows + 1));
    int32_t *const list = own(arrays, 4 * rows * CELL_COLUMNS);
    int64_t columns[CELL_COLUMNS];
    if (!offsets || !list)
        return 0;
    offsets[0] = 0;
    for (int64_t r = 0; r < rows; r++) {
        const int n = cell_columns(c, r, columns);
        for (int e = 0; e < n; e++)
            list[offsets[r] + e] = (int32_t)columns[e];
        offsets[r + 1] = offsets[r] + n;
    }
    p->block_mask.block_q = p->block_mask.block_k = cell;
    p->block_mask.row_offsets = offsets;
    p->block_mask.columns = list;
    return 1;
}

static int ask_third(void *user, const attn_pair *at)
{
    (void)user;
    return third_shows(at->i, at->j);
}

static int set_callback(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    (void)c, (void)arrays;
    p->mask = ask_third;
    return 1;
}

/* The window once more, by callbacks: *user is its width. */
static int ask_window(void *user, const attn_pair *at)
{
    const int64_t distance = at->pos - at->n;
    return distance >= 0 && distance < *(const int64_t *)user;
}

static int ask_window_tile(void *user, const attn_rect *at)
{
    const int64_t nearest = at->i_begin + at->offset - (at->j_end - 1);
    const int64_t farthest = at->i_end - 1 + at->offset - at->j_begin;
    const int64_t width = *(const int64_t *)user;
    if (farthest < 0 || nearest >= width)
        return ATTN_TILE_EMPTY;
    return nearest >= 0 && farthest < width ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int set_callback_tiles(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    int64_t *const width = own(arrays, (int64_t)sizeof *width);
    if (!width)
        return 0;
    *width = width_of(c);
    p->mask = ask_window;
    p->mask_tile = ask_window_tile;
    p->callback_user = width;
    return 1;
}

/* The nodes of a binary heap: 0 is the root, the children of i are 2 i + 1 and 2 i + 2. */
static int set_tree(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    int32_t *const parents = own(arrays, 4 * c->batch * c->seq_q);
    for (int64_t i = 0; parents && i < c->batch * c->seq_q; i++)
        parents[i] = i % c->seq_q ? (int32_t)((i % c->seq_q - 1) / 2) : -1;
    return (p->tree_parents = parents) != NULL;
}

static int set_bias_of(const bench_case *c, attn_params *p, mask_arrays *arrays, int dtype)
{
    const int64_t element = dtype == ATTN_F32 ? 4 : 2;
    char *const to = own(arrays, c->seq_q * c->seq_kv * element);
    for (int64_t at = 0; to && at < c->seq_q * c->seq_kv; at++) {
        const float value = 0.125f * (float)(at % 11 - 5);
        attn_convert(to + at * element, dtype, &value, ATTN_F32, 1);
    }
    p->bias.dtype = dtype;
    p->bias.data = to;
    p->bias.stride_q = (ptrdiff_t)c->seq_kv;
    p->bias.stride_kv = 1;
    return to != NULL;
}

static int set_bias(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    return set_bias_of(c, p, arrays, ATTN_F32);
}

static int set_bias_f16(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    return set_bias_of(c, p, arrays, ATTN_F16);
}

static int set_bias_bf16(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    return set_bias_of(c, p, arrays, ATTN_BF16);
}

static int set_alibi(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    float *const slopes = own(arrays, 4 * c->heads_q);
    p->alibi_slopes = slopes;
    return slopes && attn_alibi_slopes(slopes, c->heads_q) == ATTN_OK;
}

static int set_softcap(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    (void)c, (void)arrays;
    p->softcap = 5;
    return 1;
}

static float half_score(void *user, const attn_pair *at, float logit)
{
    (void)user, (void)at;
    return 0.5f * logit;
}

float mask_score_derivative(void *user, const attn_pair *at, float logit)
{
    (void)user, (void)at, (void)logit;
    return 0.5f;
}

static int set_score(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    (void)c, (void)arrays;
    p->score = half_score;
    return 1;
}

static int set_sinks(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    float *const sinks = own(arrays, 4 * c->heads_q);
    for (int64_t h = 0; sinks && h < c->heads_q; h++)
        sinks[h] = (float)(h % 8);
    return (p->sinks = sinks) != NULL;
}

static int set_softmax1(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    (void)c, (void)arrays;
    return p->softmax1 = 1;
}

static int set_dropout(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    (void)c, (void)arrays;
    p->dropout_p = 0.125f;
    p->dropout_seed = 1;
    return 1;
}

/* ---- the table */

static const struct {
    const char *name, *what;
    int explained;
    double bytes_per_pair; /* of arrays with a number for each pair of row and key */
    int (*set)(const bench_case *c, attn_params *p, mask_arrays *arrays);
    int64_t (*keys)(const bench_case *c, int64_t b, int64_t i);
} masks[NUM_MASKS] = {
    [MASK_FULL] = { "full", "none: every row sees every key", 1, 0, set_none, all_keys },
    [MASK_CAUSAL] = { "causal", "up to one's own position, the last row at the last key", 1, 0,
                      set_causal, causal_keys },
    [MASK_CAUSAL_TOP_LEFT] = { "causal-top-left", "the same, row 0 at key 0", 1, 0, set_top_left,
                               top_left_keys },
    [MASK_CAUSAL_OFFSET] = { "causal-offset", "the same, row 0 at key seq_kv / 4 + entry", 1, 0,
                             set_offset, offset_keys },
    [MASK_WINDOW] = { "window", "one's own key and those before it, seq_kv / 8 in all", 1, 0,
                      set_window, window_keys },
    [MASK_WINDOW_BOTH] = { "window-both", "seq_kv / 16 keys on either side", 1, 0, set_window_both,
                           window_both_keys },
    [MASK_CHUNKED] = { "chunked", "causal within chunks of seq_kv / 8 keys", 1, 0, set_chunked,
                       chunked_keys },
    [MASK_PREFIX] = { "prefix", "causal, and the first seq_kv / 4 + entry keys", 1, 0, set_prefix,
                      prefix_keys },
    [MASK_KV_LENGTHS] = { "kv-lengths", "keys in use by entry, down to half", 1, 0, set_kv_lengths,
                          short_keys },
    [MASK_Q_LENGTHS] = { "q-lengths", "rows in use by entry, down to half", 1, 0, set_q_lengths,
                         short_rows },
    [MASK_LEFT_PADDING] = { "left-padding", "first key in use by entry, up to half", 1, 0,
                            set_left_padding, short_keys },
    [MASK_VARLEN] = { "varlen", "each entry packs 5 sequences of 1, 3, 5, 7, 9 parts of 25", 1, 0,
                      set_varlen, varlen_keys },
    [MASK_DOCUMENTS] = { "documents", "segment ids of 5 such documents, causal", 0, 0,
                         set_documents, document_keys },
    [MASK_BOOLEAN] = { "boolean", "a byte a pair: 2 of 3", 0, 1, set_boolean, third_keys },
    [MASK_BITS] = { "bits", "a bit a pair: 2 of 3", 0, 0.125, set_bits, third_keys },
    [MASK_BLOCKS] = { "blocks", "bitmap of cells of 64 x 64: the first, 3 near, 2 far", 0, 0,
                      set_blocks, block_keys },
    [MASK_BLOCKS_CSR] = { "blocks-csr", "the same cells as CSR", 0, 0, set_blocks_csr, block_keys },
    [MASK_BLOCKS_TENTH] = { "blocks-tenth", "bitmap of such cells: every tenth of a row", 0, 0,
                            set_blocks_tenth, tenth_keys },
    [MASK_LOCAL_GLOBAL] = { "local-global", "causal cells: one's own, 4 before it, the first 2", 0,
                            0, set_pattern, cell_keys },
    [MASK_LOCAL_STRIDED] = { "local-strided", "the last 8 of them, every eighth before", 0, 0,
                             set_pattern, cell_keys },
    [MASK_BIGBIRD] = { "bigbird", "one's own, the one before, the first 2, 3 random ones", 0, 0,
                       set_pattern, cell_keys },
    [MASK_CALLBACK] = { "callback", "a function asked for each pair: 2 of 3", 0, 0, set_callback,
                        third_keys },
    [MASK_CALLBACK_TILES] = { "callback-tiles", "the window by a function with a tile classifier",
                              0, 0, set_callback_tiles, window_keys },
    [MASK_TREE] = { "tree", "rows are the nodes of a binary tree after the other keys", 0, 0,
                    set_tree, tree_keys },
    [MASK_BIAS] = { "bias", "f32 added for each pair", 1, 4, set_bias, all_keys },
    [MASK_BIAS_F16] = { "bias-f16", "the same in f16", 1, 2, set_bias_f16, all_keys },
    [MASK_BIAS_BF16] = { "bias-bf16", "the same in bf16", 1, 2, set_bias_bf16, all_keys },
    [MASK_ALIBI] = { "alibi", "a slope per head times the distance", 1, 0, set_alibi, all_keys },
    [MASK_SOFTCAP] = { "softcap", "5 tanh(logit / 5)", 1, 0, set_softcap, all_keys },
    [MASK_SCORE] = { "score", "a function asked for each logit", 1, 0, set_score, all_keys },
    [MASK_SINKS] = { "sinks", "one more logit per head", 1, 0, set_sinks, all_keys },
    [MASK_SOFTMAX1] = { "softmax1", "a sink of 0", 1, 0, set_softmax1, all_keys },
    [MASK_DROPOUT] = { "dropout", "an eighth of the pairs, by a counter", 1, 0, set_dropout,
                       all_keys },
};

const char *mask_name(int kind)
{
    return masks[kind].name;
}

const char *mask_what(int kind)
{
    return masks[kind].what;
}

int mask_find(const char *name)
{
    for (int kind = 0; kind < NUM_MASKS; kind++)
        if (!strcmp(masks[kind].name, name))
            return kind;
    return -1;
}

double mask_pairs(const bench_case *c)
{
    double keys = 0;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < c->seq_q; i++)
            keys += (double)masks[c->mask].keys(c, b, i);
    return keys * (double)c->heads_q;
}

int mask_explained(int kind)
{
    return masks[kind].explained;
}

int mask_reads_all(int kind)
{
    return masks[kind].keys == all_keys || kind == MASK_CAUSAL || kind == MASK_PREFIX;
}

int mask_is_pattern(int kind)
{
    return masks[kind].set == set_pattern;
}

int mask_has_bias(int kind)
{
    return kind >= MASK_BIAS && kind <= MASK_BIAS_BF16;
}

case_layout mask_layout(const bench_case *c)
{
    return c->mask == MASK_VARLEN ? LAYOUT_BSHD : c->layout;
}

double mask_bytes(const bench_case *c)
{
    return masks[c->mask].bytes_per_pair * (double)c->seq_q * (double)c->seq_kv;
}

int mask_set(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    arrays->n = 0;
    return masks[c->mask].set(c, p, arrays);
}

int mask_again(const bench_case *c, mask_arrays *arrays)
{
    return !mask_is_pattern(c->mask) || pattern_again(c, cell_of(c), arrays);
}

void mask_free(mask_arrays *arrays)
{
    while (arrays->n > 0)
        free(arrays->owned[--arrays->n]);
}
