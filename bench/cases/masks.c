/* masks.c - the masks that a case can have, and how many pairs each of them shows.
 * SPDX-License-Identifier: MIT
 *
 * For each kind small functions: what it sets, and how many keys a row sees.
 * The patterns are fixed and uneven, so that batch entries, rows and tiles differ. */
#include "cases.h"

#include <stdlib.h>
#include <string.h>

enum { DOCUMENTS = 5, EVERY_THIRD = 3, CELL = 64, CELL_COLUMNS = 6, TENTH = 10, SPARSE = 16 };

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

/* The next column after `after` that row `row` of cells sees; beyond the last there is none. */
typedef int64_t next_column_fn(const bench_case *c, int64_t row, int64_t after);

/* The first, the three around the row's own, two far ones. */
static int64_t next_uneven(const bench_case *c, int64_t row, int64_t after)
{
    const int64_t count = cells(c, c->seq_kv);
    const int64_t own = within(position(c, row * cell_of(c)), c->seq_kv - 1) / cell_of(c);
    const int64_t wanted[CELL_COLUMNS] = {
        0, own - 1, own, own + 1, (5 * own + 3) % count, (11 * own + 7) % count
    };
    int64_t next = count;
    for (int w = 0; w < CELL_COLUMNS; w++)
        if (wanted[w] > after && wanted[w] < next)
            next = wanted[w];
    return next;
}

static int64_t next_tenth(const bench_case *c, int64_t row, int64_t after)
{
    (void)c;
    return after < 0 ? (TENTH - 3 * row % TENTH) % TENTH : after + TENTH;
}

/* ---- keys that a row sees */

typedef struct mask_row {
    const bench_case *c;
    int64_t b, i, at, keys; /* batch entry, row and its position; keys there are */
} mask_row;

static int64_t all_keys(const mask_row *r)
{
    return r->keys;
}

static int64_t causal_keys(const mask_row *r)
{
    return within(r->at + 1, r->keys);
}

static int64_t top_left_keys(const mask_row *r)
{
    return within(r->i + 1, r->keys);
}

static int64_t offset_keys(const mask_row *r)
{
    return within(r->i + offset_of(r->c, r->b) + 1, r->keys);
}

static int64_t window_keys(const mask_row *r)
{
    return within(r->at + 1, r->keys) - within(r->at + 1 - width_of(r->c), r->keys);
}

static int64_t window_both_keys(const mask_row *r)
{
    const int64_t half = width_of(r->c) / 2;
    return within(r->at + half + 1, r->keys) - within(r->at - half, r->keys);
}

static int64_t chunked_keys(const mask_row *r)
{
    return r->at < 0 ? 0 : r->at % width_of(r->c) + 1;
}

static int64_t prefix_keys(const mask_row *r)
{
    const int64_t before = causal_keys(r), prefix = prefix_of(r->c, r->b);
    return before > prefix ? before : prefix;
}

static int64_t short_keys(const mask_row *r)
{
    return r->keys - left_out(r->c, r->b, r->keys);
}

static int64_t short_rows(const mask_row *r)
{
    return r->i < r->c->seq_q - left_out(r->c, r->b, r->c->seq_q) ? r->keys : 0;
}

static int64_t varlen_keys(const mask_row *r)
{
    const int64_t d = document_at(r->c->seq_q, r->i);
    return document_begin(r->keys, d + 1) - document_begin(r->keys, d);
}

static int64_t document_keys(const mask_row *r)
{
    return r->at < 0 ? 0 : r->at + 1 - document_begin(r->keys, document_at(r->keys, r->at));
}

/* Hidden are keys j with (i + j) % 3 == 0. */
static int64_t third_keys(const mask_row *r)
{
    const int64_t first = (EVERY_THIRD - r->i % EVERY_THIRD) % EVERY_THIRD;
    return r->keys - (r->keys - first + EVERY_THIRD - 1) / EVERY_THIRD;
}

/* Of the keys of a list one stands for this number of them. */
static int64_t listed_step(const bench_case *c)
{
    return c->mask_size ? c->mask_size : SPARSE;
}

static int64_t listed_keys(const mask_row *r)
{
    const int64_t step = listed_step(r->c), first = r->i % step;
    return first < r->keys ? (r->keys - first + step - 1) / step : 0;
}

/* The rows of a cell see the same: mask_pairs asks for the first of them only. */
static int64_t shown_keys(const mask_row *r, next_column_fn *next)
{
    const int64_t cell = cell_of(r->c), count = cells(r->c, r->keys), row = r->i / cell;
    int64_t keys = 0;
    for (int64_t n = next(r->c, row, -1); n < count; n = next(r->c, row, n))
        keys += within(r->keys - n * cell, cell);
    return keys;
}

static int64_t block_keys(const mask_row *r)
{
    return shown_keys(r, next_uneven);
}

static int64_t tenth_keys(const mask_row *r)
{
    return shown_keys(r, next_tenth);
}

static int64_t cell_keys(const mask_row *r)
{
    return pattern_keys(r->c, cell_of(r->c), r->i);
}

/* Keys before the nodes, itself and its ancestors; with more rows than keys the first nodes have
 * no key. */
static int64_t tree_keys(const mask_row *r)
{
    int64_t keys = r->keys > r->c->seq_q ? r->keys - r->c->seq_q : 0;
    for (int64_t i = r->i; i >= 0 && position(r->c, i) >= 0; i = i ? (i - 1) / 2 : -1)
        keys++;
    return keys;
}

/* ---- what they set */

/* A call, its case, and the arrays that its mask has. */
typedef struct making {
    const bench_case *c;
    attn_params *p;
    mask_arrays *arrays;
} making;

static void *own(mask_arrays *arrays, int64_t bytes)
{
    void *const array = malloc((size_t)bytes + 1);
    arrays->owned[arrays->n++] = array;
    return array;
}

static int set_alignment(const making *m)
{
    m->p->alignment = m->c->mask == MASK_CAUSAL_OFFSET ? ATTN_ALIGN_OFFSET : ATTN_ALIGN_TOP_LEFT;
    return 1;
}

static int set_window(const making *m)
{
    const int both = m->c->mask == MASK_WINDOW_BOTH;
    m->p->window = ATTN_WINDOW;
    m->p->window_left = both ? width_of(m->c) / 2 : width_of(m->c) - 1;
    m->p->window_right = both ? width_of(m->c) / 2 : 0;
    return 1;
}

static int set_chunked(const making *m)
{
    m->p->chunk_size = width_of(m->c);
    return 1;
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

static int32_t *borders(const bench_case *c, mask_arrays *arrays, int64_t length)
{
    int32_t *const list = own(arrays, 4 * (DOCUMENTS * c->batch + 1));
    for (int64_t s = 0; list && s <= DOCUMENTS * c->batch; s++)
        list[s] = (int32_t)(s / DOCUMENTS * length + document_begin(length, s % DOCUMENTS));
    return list;
}

/* Each batch entry becomes five sequences. */
static int set_varlen(const making *m)
{
    m->p->batch = DOCUMENTS * m->c->batch;
    m->p->seq_len_q = m->c->batch * m->c->seq_q;
    m->p->seq_len_kv = m->c->batch * m->c->seq_kv;
    m->p->cu_seqlens_q = borders(m->c, m->arrays, m->c->seq_q);
    m->p->cu_seqlens_kv = borders(m->c, m->arrays, m->c->seq_kv);
    return m->p->cu_seqlens_q && m->p->cu_seqlens_kv;
}

/* Document of each of `length` tokens, the first of which stands at `first`; of every entry. */
static int32_t *segments(const bench_case *c, mask_arrays *arrays, int64_t length, int64_t first)
{
    int32_t *const list = own(arrays, 4 * c->batch * length);
    for (int64_t i = 0; list && i < c->batch * length; i++)
        list[i] = (int32_t)document_at(c->seq_kv, first + i % length);
    return list;
}

static int set_documents(const making *m)
{
    m->p->q_segments = segments(m->c, m->arrays, m->c->seq_q, position(m->c, 0));
    m->p->kv_segments = segments(m->c, m->arrays, m->c->seq_kv, 0);
    return m->p->q_segments && m->p->kv_segments;
}

static int third_shows(int64_t i, int64_t j)
{
    return (i + j) % EVERY_THIRD != 0;
}

/* Batch entries and heads share all arrays of pairs. */
#define SHARE(x) ((x).stride_batch = (x).stride_head = ATTN_STRIDE_BROADCAST)

static int set_boolean(const making *m)
{
    uint8_t *const bytes = own(m->arrays, m->c->seq_q * m->c->seq_kv);
    for (int64_t i = 0; bytes && i < m->c->seq_q; i++)
        for (int64_t j = 0; j < m->c->seq_kv; j++)
            bytes[i * m->c->seq_kv + j] = (uint8_t)third_shows(i, j);
    m->p->bool_mask.data = bytes;
    SHARE(m->p->bool_mask);
    return bytes != NULL;
}

static int set_bits(const making *m)
{
    const int64_t row = (m->c->seq_kv + 7) / 8;
    uint8_t *const bits = own(m->arrays, m->c->seq_q * row);
    if (!bits)
        return 0;
    memset(bits, 0, (size_t)(m->c->seq_q * row));
    for (int64_t i = 0; i < m->c->seq_q; i++)
        for (int64_t j = 0; j < m->c->seq_kv; j++)
            if (third_shows(i, j))
                bits[i * row + j / 8] |= (uint8_t)(1 << j % 8);
    m->p->bit_mask.data = bits;
    m->p->bit_mask.stride_q = (ptrdiff_t)(8 * row);
    SHARE(m->p->bit_mask);
    return 1;
}

static int set_bitmap(const making *m, next_column_fn *next)
{
    const int64_t rows = cells(m->c, m->c->seq_q), count = cells(m->c, m->c->seq_kv);
    const int64_t across = (count + 7) / 8;
    uint8_t *const bits = own(m->arrays, rows * across);
    if (!bits)
        return 0;
    memset(bits, 0, (size_t)(rows * across));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = next(m->c, r, -1); n < count; n = next(m->c, r, n))
            bits[r * across + n / 8] |= (uint8_t)(1 << n % 8);
    m->p->block_mask.block_q = m->p->block_mask.block_k = cell_of(m->c);
    m->p->block_mask.stride_row = (ptrdiff_t)(8 * across);
    SHARE(m->p->block_mask);
    m->p->block_mask.bitmap = bits;
    return 1;
}

static int set_blocks(const making *m)
{
    return set_bitmap(m, next_uneven);
}

static int set_blocks_tenth(const making *m)
{
    return set_bitmap(m, next_tenth);
}

static int set_pattern(const making *m)
{
    return pattern_set(m->c, cell_of(m->c), m->p, m->arrays);
}

static int set_blocks_csr(const making *m)
{
    const int64_t rows = cells(m->c, m->c->seq_q), count = cells(m->c, m->c->seq_kv);
    int32_t *const offsets = own(m->arrays, 4 * (rows + 1));
    int32_t *const list = own(m->arrays, 4 * rows * CELL_COLUMNS);
    int32_t entries = 0;
    if (!offsets || !list)
        return 0;
    for (int64_t r = 0; r < rows; r++) {
        offsets[r] = entries;
        for (int64_t n = next_uneven(m->c, r, -1); n < count; n = next_uneven(m->c, r, n))
            list[entries++] = (int32_t)n;
    }
    offsets[rows] = entries;
    m->p->block_mask.block_q = m->p->block_mask.block_k = cell_of(m->c);
    m->p->block_mask.csr_stride_batch = m->p->block_mask.csr_stride_head = ATTN_STRIDE_BROADCAST;
    m->p->block_mask.row_offsets = offsets;
    m->p->block_mask.columns = list;
    return 1;
}

/* Every sixteenth key, or another one, by its number. */
static int set_listed(const making *m)
{
    const int64_t step = listed_step(m->c), width = (m->c->seq_kv + step - 1) / step;
    int32_t *const list = own(m->arrays, 4 * m->c->seq_q * width);
    if (!list)
        return 0;
    for (int64_t i = 0; i < m->c->seq_q; i++)
        for (int64_t n = 0; n < width; n++) {
            const int64_t key = n * step + i % step;
            list[i * width + n] = key < m->c->seq_kv ? (int32_t)key : -1;
        }
    m->p->key_list.width = width;
    m->p->key_list.stride_batch = m->p->key_list.stride_head = ATTN_STRIDE_BROADCAST;
    m->p->key_list.data = list;
    return 1;
}

static int ask_third(void *user, const attn_pair *at)
{
    (void)user;
    return third_shows(at->i, at->j);
}

static int set_callback(const making *m)
{
    m->p->mask = ask_third;
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

static int set_callback_tiles(const making *m)
{
    int64_t *const width = own(m->arrays, (int64_t)sizeof *width);
    if (!width)
        return 0;
    *width = width_of(m->c);
    m->p->mask = ask_window;
    m->p->mask_tile = ask_window_tile;
    m->p->callback_user = width;
    return 1;
}

/* The nodes of a binary heap: 0 is the root, the children of i are 2 i + 1 and 2 i + 2. */
static int set_tree(const making *m)
{
    int32_t *const parents = own(m->arrays, 4 * m->c->batch * m->c->seq_q);
    for (int64_t i = 0; parents && i < m->c->batch * m->c->seq_q; i++)
        parents[i] = i % m->c->seq_q ? (int32_t)((i % m->c->seq_q - 1) / 2) : -1;
    return (m->p->tree_parents = parents) != NULL;
}

static int set_bias(const making *m)
{
    const int dtype = ATTN_F32 + m->c->mask - MASK_BIAS;
    const int64_t element = dtype == ATTN_F32 ? 4 : 2;
    char *const to = own(m->arrays, m->c->seq_q * m->c->seq_kv * element);
    for (int64_t at = 0; to && at < m->c->seq_q * m->c->seq_kv; at++) {
        const float value = 0.125f * (float)(at % 11 - 5);
        attn_convert(to + at * element, dtype, &value, ATTN_F32, 1);
    }
    m->p->bias.dtype = dtype;
    m->p->bias.data = to;
    SHARE(m->p->bias);
    return to != NULL;
}

static int set_alibi(const making *m)
{
    float *const slopes = own(m->arrays, 4 * m->c->heads_q);
    m->p->alibi_slopes = slopes;
    m->p->alibi_stride = ATTN_STRIDE_BROADCAST;
    return slopes && attn_alibi_slopes(slopes, m->c->heads_q) == ATTN_OK;
}

/* Rows may lose a thousandth: with ALiBi that is keys far away. */
static int set_alibi_skip(const making *m)
{
    m->p->skip.below = 1.0f / 1024;
    m->p->skip.dropped = own(m->arrays, 4 * m->c->batch * m->c->heads_q * m->c->seq_q);
    return set_alibi(m) && m->p->skip.dropped;
}

static int set_softcap(const making *m)
{
    m->p->softcap = 5;
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

static int set_score(const making *m)
{
    m->p->score = half_score;
    return 1;
}

static int set_sinks(const making *m)
{
    float *const sinks = own(m->arrays, 4 * m->c->heads_q);
    for (int64_t h = 0; sinks && h < m->c->heads_q; h++)
        sinks[h] = (float)(h % 8);
    return (m->p->sinks = sinks) != NULL;
}

static int set_softmax1(const making *m)
{
    return m->p->softmax1 = 1;
}

static int set_dropout(const making *m)
{
    m->p->dropout_p = 0.125f;
    m->p->dropout_seed = 1;
    return 1;
}

/* The largest probability, or the eight largest. */
static int set_top(const making *m)
{
    const int64_t rows = m->c->batch * m->c->heads_q * m->c->seq_q;
    attn_insight *const in = &m->p->insight;
    in->top = m->c->mask == MASK_TOP8 ? 8 : 1;
    in->top_key = own(m->arrays, 4 * rows * in->top);
    in->top_prob = own(m->arrays, 4 * rows * in->top);
    return in->top_key && in->top_prob;
}

static int set_insight(const making *m)
{
    m->p->insight.entropy = own(m->arrays, 4 * m->c->batch * m->c->heads_q * m->c->seq_q);
    return set_top(m) && m->p->insight.entropy;
}

static int set_mass(const making *m)
{
    m->p->insight.mass_keys = CELL;
    m->p->insight.mass_rows = CELL;
    m->p->insight.mass =
        own(m->arrays, 8 * m->c->batch * m->c->heads_kv * cells(m->c, m->c->seq_kv));
    return m->p->insight.mass != NULL;
}

/* ---- the table */

#define LIST(field, entry) offsetof(attn_params, field), entry
#define NO_LIST 0, NULL

static const struct {
    const char *name, *what;
    int explained, causal;
    double bytes_per_pair;       /* of arrays with a number for each pair of row and key */
    int (*set)(const making *m); /* what else it sets; NULL = nothing, 0 = no memory */
    int64_t (*keys)(const mask_row *r);
    size_t list; /* a field of attn_params for one number per batch entry; 0 = none */
    int64_t (*entry)(const bench_case *c, int64_t b);
} masks[NUM_MASKS] = {
    [MASK_FULL] = { "full", "none: every row sees every key", 1, 0, 0, NULL, all_keys, NO_LIST },
    [MASK_CAUSAL] = { "causal", "up to one's own position, the last row at the last key", 1, 1, 0,
                      NULL, causal_keys, NO_LIST },
    [MASK_CAUSAL_TOP_LEFT] = { "causal-top-left", "the same, row 0 at key 0", 1, 1, 0,
                               set_alignment, top_left_keys, NO_LIST },
    [MASK_CAUSAL_OFFSET] = { "causal-offset", "the same, row 0 at key seq_kv / 4 + entry", 1, 1, 0,
                             set_alignment, offset_keys, LIST(q_offset, offset_of) },
    [MASK_WINDOW] = { "window", "one's own key and those before it, seq_kv / 8 in all", 1, 0, 0,
                      set_window, window_keys, NO_LIST },
    [MASK_WINDOW_BOTH] = { "window-both", "seq_kv / 16 keys on either side", 1, 0, 0, set_window,
                           window_both_keys, NO_LIST },
    [MASK_CHUNKED] = { "chunked", "causal within chunks of seq_kv / 8 keys", 1, 1, 0, set_chunked,
                       chunked_keys, NO_LIST },
    [MASK_PREFIX] = { "prefix", "causal, and the first seq_kv / 4 + entry keys", 1, 1, 0, NULL,
                      prefix_keys, LIST(prefix, prefix_of) },
    [MASK_KV_LENGTHS] = { "kv-lengths", "keys in use by entry, down to half", 1, 0, 0, NULL,
                          short_keys, LIST(kv_len, keys_in_use) },
    [MASK_Q_LENGTHS] = { "q-lengths", "rows in use by entry, down to half", 1, 0, 0, NULL,
                         short_rows, LIST(q_len, rows_in_use) },
    [MASK_LEFT_PADDING] = { "left-padding", "first key in use by entry, up to half", 1, 0, 0, NULL,
                            short_keys, LIST(kv_begin, padding_of) },
    [MASK_VARLEN] = { "varlen", "each entry packs 5 sequences of 1, 3, 5, 7, 9 parts of 25", 1, 0,
                      0, set_varlen, varlen_keys, NO_LIST },
    [MASK_DOCUMENTS] = { "documents", "segment ids of 5 such documents, causal", 0, 1, 0,
                         set_documents, document_keys, NO_LIST },
    [MASK_BOOLEAN] = { "boolean", "a byte a pair: 2 of 3", 0, 0, 1, set_boolean, third_keys,
                       NO_LIST },
    [MASK_BITS] = { "bits", "a bit a pair: 2 of 3", 0, 0, 0.125, set_bits, third_keys, NO_LIST },
    [MASK_BLOCKS] = { "blocks", "bitmap of cells of 64 x 64: the first, 3 near, 2 far", 0, 0, 0,
                      set_blocks, block_keys, NO_LIST },
    [MASK_BLOCKS_CSR] = { "blocks-csr", "the same cells as CSR", 0, 0, 0, set_blocks_csr,
                          block_keys, NO_LIST },
    [MASK_BLOCKS_TENTH] = { "blocks-tenth", "bitmap of cells: every tenth cell of a row", 0, 0, 0,
                            set_blocks_tenth, tenth_keys, NO_LIST },
    [MASK_LOCAL_GLOBAL] = { "local-global", "causal cells: one's own, 4 before it, the first 2", 0,
                            0, 0, set_pattern, cell_keys, NO_LIST },
    [MASK_LOCAL_STRIDED] = { "local-strided", "the last 8 of them, every eighth before", 0, 0, 0,
                             set_pattern, cell_keys, NO_LIST },
    [MASK_BIGBIRD] = { "bigbird", "one's own, the one before, the first 2, 3 random ones", 0, 0, 0,
                       set_pattern, cell_keys, NO_LIST },
    [MASK_LISTED] = { "listed", "every sixteenth key of a row, by its number", 0, 0, 0, set_listed,
                      listed_keys, NO_LIST },
    [MASK_CALLBACK] = { "callback", "a function asked for each pair: 2 of 3", 0, 0, 0, set_callback,
                        third_keys, NO_LIST },
    [MASK_CALLBACK_TILES] = { "callback-tiles", "the window by a function with a tile classifier",
                              0, 0, 0, set_callback_tiles, window_keys, NO_LIST },
    [MASK_TREE] = { "tree", "rows are the nodes of a binary tree after the other keys", 0, 0, 0,
                    set_tree, tree_keys, NO_LIST },
    [MASK_BIAS] = { "bias", "f32 added for each pair", 1, 0, 4, set_bias, all_keys, NO_LIST },
    [MASK_BIAS_F16] = { "bias-f16", "the same in f16", 1, 0, 2, set_bias, all_keys, NO_LIST },
    [MASK_BIAS_BF16] = { "bias-bf16", "the same in bf16", 1, 0, 2, set_bias, all_keys, NO_LIST },
    [MASK_ALIBI] = { "alibi", "a slope per head times the distance", 1, 0, 0, set_alibi, all_keys,
                     NO_LIST },
    [MASK_SOFTCAP] = { "softcap", "5 tanh(logit / 5)", 1, 0, 0, set_softcap, all_keys, NO_LIST },
    [MASK_SCORE] = { "score", "a function asked for each logit", 1, 0, 0, set_score, all_keys,
                     NO_LIST },
    [MASK_SINKS] = { "sinks", "one more logit per head", 1, 0, 0, set_sinks, all_keys, NO_LIST },
    [MASK_SOFTMAX1] = { "softmax1", "a sink of 0", 1, 0, 0, set_softmax1, all_keys, NO_LIST },
    [MASK_DROPOUT] = { "dropout", "an eighth of the pairs, by a counter", 1, 0, 0, set_dropout,
                       all_keys, NO_LIST },
    [MASK_INSIGHT] = { "insight", "entropy and the likeliest key of each row", 1, 0, 0, set_insight,
                       all_keys, NO_LIST },
    [MASK_TOP8] = { "top8", "the eight likeliest keys of each row", 1, 0, 0, set_top, all_keys,
                    NO_LIST },
    [MASK_MASS] = { "mass", "the mass of 64 keys each, over the last 64 rows", 1, 0, 0, set_mass,
                    all_keys, NO_LIST },
    [MASK_ALIBI_SKIP] = { "alibi-skip", "alibi, and rows leave out a thousandth at most", 1, 0, 0,
                          set_alibi_skip, all_keys, NO_LIST },
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
    int64_t (*const keys_of)(const mask_row *r) = masks[c->mask].keys;
    const int by_cells = keys_of == block_keys || keys_of == tenth_keys;
    double pairs = 0, keys = 0;
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t i = 0; i < c->seq_q; i++) {
            const mask_row r = { c, b, i, position(c, i), c->seq_kv };
            if (!by_cells || i % cell_of(c) == 0)
                keys = (double)keys_of(&r);
            pairs += keys;
        }
    return pairs * (double)c->heads_q;
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

/* One number per batch entry. */
static int set_list(const making *m)
{
    int32_t *const list = own(m->arrays, 4 * m->c->batch);
    for (int64_t b = 0; list && b < m->c->batch; b++)
        list[b] = (int32_t)masks[m->c->mask].entry(m->c, b);
    memcpy((char *)m->p + masks[m->c->mask].list, &list, sizeof list);
    return list != NULL;
}

int mask_set(const bench_case *c, attn_params *p, mask_arrays *arrays)
{
    const making m = { c, p, arrays };
    arrays->n = 0;
    p->causal = masks[c->mask].causal;
    return (!masks[c->mask].set || masks[c->mask].set(&m)) &&
           (!masks[c->mask].entry || set_list(&m));
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
