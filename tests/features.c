/* features.c - the table of masks and modifiers that the groups switch on.
 * SPDX-License-Identifier: MIT
 *
 * Values are random but chosen to bite: masks leave rows empty now and then, edges fall inside
 * tiles and blocks of 16 keys, lengths may be 0, strides broadcast.
 */
#include "features.h"
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- positions ------------------------------------------------------------------------------- */

static int32_t *new_ints(int64_t count)
{
    return test_alloc((size_t)count * sizeof(int32_t));
}

static void use_offsets(test_problem *t)
{
    int32_t *offsets = new_ints(t->p.batch);
    for (int64_t b = 0; b < t->p.batch; b++)
        offsets[b] = (int32_t)rng_int(-5, t->p.seq_len_kv + 3);
    t->p.alignment = ATTN_ALIGN_OFFSET;
    t->p.q_offset = offsets;
}

/* For what compares positions without being causal. */
static void random_alignment(test_problem *t)
{
    if (t->p.causal || t->p.alignment != 0 || t->p.window || t->p.chunk_size != 0)
        return;
    if (rng_chance(33))
        use_offsets(t);
    else if (rng_chance(50))
        t->p.alignment = ATTN_ALIGN_TOP_LEFT;
}

static void set_causal(test_problem *t)
{
    t->p.causal = 1;
}

static void set_causal_top(test_problem *t)
{
    t->p.causal = 1;
    t->p.alignment = ATTN_ALIGN_TOP_LEFT;
}

static void set_causal_offset(test_problem *t)
{
    t->p.causal = 1;
    use_offsets(t);
}

static void set_window(test_problem *t)
{
    static const int64_t sizes[] = { -1, 0, 1, 7, 15, 16, 17, 40, 100 };
    random_alignment(t);
    t->p.window = ATTN_WINDOW;
    t->p.window_left = RNG_PICK(sizes);
    t->p.window_right = RNG_PICK(sizes);
}

static void set_chunked(test_problem *t)
{
    static const int64_t sizes[] = { 1, 5, 16, 24, 64, 100 };
    random_alignment(t);
    t->p.chunk_size = RNG_PICK(sizes);
}

static void set_prefix(test_problem *t)
{
    int32_t *prefix = new_ints(t->p.batch);
    for (int64_t b = 0; b < t->p.batch; b++)
        prefix[b] = (int32_t)rng_int(0, oracle_keys(&t->p, b));
    t->p.causal = 1;
    t->p.prefix = prefix;
}

static void set_key_base(test_problem *t)
{
    static const int64_t bases[] = { 1, 3, 15, 16, 1000, 1021, 2048, 5000000000 };
    int64_t *base = test_alloc((size_t)t->p.batch * sizeof *base);
    for (int64_t b = 0; b < t->p.batch; b++)
        base[b] = RNG_PICK(bases);
    t->p.key_base = base;
}

/* ---- lengths --------------------------------------------------------------------------------- */

static void shape_varlen(test_shape *s)
{
    s->varlen = 1;
    s->batch = rng_int(1, 4);
}

static int64_t columns_of(const attn_params *p, int64_t b)
{
    return p->cu_seqlens_kv != NULL ? p->cu_seqlens_kv[b + 1] - p->cu_seqlens_kv[b] : p->seq_len_kv;
}

/* 0, all, or anything between. */
static int32_t random_count(int64_t most)
{
    return (int32_t)(rng_chance(10) ? 0 : rng_chance(15) ? most : rng_int(0, most));
}

static void set_q_len(test_problem *t)
{
    int32_t *length = new_ints(t->p.batch);
    for (int64_t b = 0; b < t->p.batch; b++)
        length[b] = random_count(oracle_rows(&t->p, b));
    t->p.q_len = length;
}

static void set_kv_begin(test_problem *t)
{
    int32_t *begin = new_ints(t->p.batch);
    for (int64_t b = 0; b < t->p.batch; b++)
        begin[b] = random_count(columns_of(&t->p, b));
    t->p.kv_begin = begin;
}

static void set_kv_len(test_problem *t)
{
    int32_t *length = new_ints(t->p.batch);
    for (int64_t b = 0; b < t->p.batch; b++)
        length[b] = random_count(oracle_keys(&t->p, b));
    t->p.kv_len = length;
}

/* ---- where the keys lie ---------------------------------------------------------------------- */

static const int64_t page_sizes[] = { 1, 5, 16, 16, 32, 48, 256 };

static void set_paged(test_problem *t)
{
    problem_scatter(t, RNG_PICK(page_sizes), 0);
}

static void set_ring(test_problem *t)
{
    problem_scatter(t, 0, 1);
}

static void set_paged_ring(test_problem *t)
{
    problem_scatter(t, RNG_PICK(page_sizes), 1);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Document ids: runs of random length, so that edges fall anywhere. */
static void random_runs(int32_t *ids, int64_t count)
{
    int32_t id = (int32_t)rng_int(0, 2);
    for (int64_t i = 0; i < count; i++) {
        if (rng_chance(5))
            id = (int32_t)rng_int(0, 3);
        ids[i] = id;
    }
}

static void set_segments(test_problem *t)
{
    const int gap = t->p.cu_seqlens_q == NULL && rng_chance(50) ? 3 : 0;
    const int64_t stride_q = t->p.seq_len_q + gap, stride_kv = t->p.seq_len_kv + gap;
    const int64_t count_q = (t->p.cu_seqlens_q != NULL ? 1 : t->p.batch) * stride_q;
    const int64_t count_kv = (t->p.cu_seqlens_kv != NULL ? 1 : t->p.batch) * stride_kv;
    int32_t *q = new_ints(count_q), *kv = new_ints(count_kv);
    random_runs(q, count_q);
    random_runs(kv, count_kv);
    t->p.q_segments = q;
    t->p.kv_segments = kv;
    t->p.q_segments_stride = gap != 0 ? (ptrdiff_t)stride_q : 0;
    t->p.kv_segments_stride = gap != 0 ? (ptrdiff_t)stride_kv : 0;
}

static void shape_tree(test_shape *s)
{
    s->seq_q = rng_int(1, s->seq_kv < 40 ? s->seq_kv : 40);
}

static void set_tree(test_problem *t)
{
    const int varlen = t->p.cu_seqlens_q != NULL;
    int32_t *parents = new_ints((varlen ? 1 : t->p.batch) * t->p.seq_len_q);
    for (int64_t b = 0; b < t->p.batch; b++) {
        const int64_t first = varlen ? t->p.cu_seqlens_q[b] : b * t->p.seq_len_q;
        const int64_t rows = varlen ? t->p.cu_seqlens_q[b + 1] - first : t->p.seq_len_q;
        for (int64_t i = 0; i < rows; i++)
            parents[first + i] = (int32_t)rng_int(i > 4 && rng_chance(70) ? i - 3 : -1, i - 1);
    }
    t->p.tree_parents = parents;
}

/* Strides over [batch, heads, rows, columns] in elements, some axes broadcast, and the number of
 * elements that they span. */
typedef struct dense {
    ptrdiff_t batch, head, row, column;
    int64_t count;
} dense;

static dense random_dense(const attn_params *p, int64_t gap)
{
    dense s;
    s.column = rng_chance(5) ? ATTN_STRIDE_BROADCAST : 1;
    s.row = rng_chance(25) ? ATTN_STRIDE_BROADCAST : (ptrdiff_t)(p->seq_len_kv + gap);
    s.head =
        rng_chance(30) ? ATTN_STRIDE_BROADCAST : (ptrdiff_t)((p->seq_len_kv + gap) * p->seq_len_q);
    s.batch = rng_chance(30) ? ATTN_STRIDE_BROADCAST
                             : (ptrdiff_t)((p->seq_len_kv + gap) * p->seq_len_q * p->num_heads_q);
    s.count = (p->seq_len_kv + gap) * p->seq_len_q * p->num_heads_q * p->batch;
    return s;
}

static void set_bias(test_problem *t, int dtype)
{
    const dense s = random_dense(&t->p, rng_int(0, 2));
    const int hidden = (int)rng_int(0, 40);
    unsigned char *data = test_alloc((size_t)s.count * dtype_size(dtype));
    for (int64_t n = 0; n < s.count; n++)
        dtype_store(dtype, data + (size_t)n * dtype_size(dtype),
                    rng_chance(hidden) ? -HUGE_VALF : 2.0f * rng_normal());
    t->p.bias.dtype = dtype;
    t->p.bias.data = data;
    t->p.bias.stride_batch = s.batch;
    t->p.bias.stride_head = s.head;
    t->p.bias.stride_q = s.row;
    t->p.bias.stride_kv = s.column;
}

static void set_bias_f32(test_problem *t)
{
    set_bias(t, ATTN_F32);
}

static void set_bias_f16(test_problem *t)
{
    set_bias(t, ATTN_F16);
}

static void set_bias_bf16(test_problem *t)
{
    set_bias(t, ATTN_BF16);
}

static void set_mask_strides(attn_mask *mask, const dense *s)
{
    mask->stride_batch = s->batch;
    mask->stride_head = s->head;
    mask->stride_q = s->row;
    mask->stride_kv = s->column;
}

static void set_bool(test_problem *t)
{
    static const int64_t densities[] = { 3, 50, 50, 90, 99 };
    static const uint8_t yes[] = { 1, 2, 0x80, 0xff };
    const dense s = random_dense(&t->p, rng_int(0, 3));
    const int density = (int)RNG_PICK(densities);
    uint8_t *data = test_alloc((size_t)s.count);
    for (int64_t n = 0; n < s.count; n++)
        data[n] = (uint8_t)(rng_chance(density) ? yes[rng_int(0, 3)] : 0);
    t->p.bool_mask.data = data;
    set_mask_strides(&t->p.bool_mask, &s);
}

static void set_bool_inverted(test_problem *t)
{
    set_bool(t);
    t->p.bool_mask.invert = 1;
}

static void set_bits(test_problem *t)
{
    const dense s = random_dense(&t->p, rng_int(0, 11));
    uint8_t *data = test_alloc((size_t)(s.count + 7) / 8);
    const int keep = rng_chance(50);
    for (int64_t n = 0; n < (s.count + 7) / 8; n++)
        data[n] = (uint8_t)(rng_u64() >> 32 | (keep ? rng_u64() >> 32 : 0));
    t->p.bit_mask.data = data;
    t->p.bit_mask.invert = rng_chance(30);
    set_mask_strides(&t->p.bit_mask, &s);
}

/* ---- block-sparse ---------------------------------------------------------------------------- */

typedef struct cells {
    int64_t rows, columns;
    int percent; /* of them are visible */
} cells;

static cells random_cells(test_problem *t)
{
    static const int64_t sizes_q[] = { 1, 3, 8, 16, 32, 64 }, sizes_k[] = { 1, 5, 16, 32, 64, 100 };
    static const int64_t percents[] = { 50, 50, 2 };
    attn_block_mask *m = &t->p.block_mask;
    cells c;
    m->block_q = RNG_PICK(sizes_q);
    m->block_k = RNG_PICK(sizes_k);
    c.percent = (int)RNG_PICK(percents);
    c.rows = (t->p.seq_len_q + m->block_q - 1) / m->block_q;
    c.columns = (t->p.seq_len_kv + m->block_k - 1) / m->block_k;
    return c;
}

static void set_bitmap(test_problem *t)
{
    attn_block_mask *m = &t->p.block_mask;
    const cells c = random_cells(t);
    const int64_t row = rng_chance(50) ? c.columns : c.columns + 5;
    const int64_t bytes = (row * c.rows * t->p.num_heads_q * t->p.batch + 7) / 8;
    uint8_t *data = test_alloc((size_t)bytes);
    memset(data, 0, (size_t)bytes);
    for (int64_t n = 0; n < 8 * bytes; n++)
        data[n / 8] = (uint8_t)(data[n / 8] | rng_chance(c.percent) << (n % 8));
    m->bitmap = data;
    m->stride_row = (ptrdiff_t)row;
    m->stride_head = rng_chance(50) ? ATTN_STRIDE_BROADCAST : (ptrdiff_t)(row * c.rows);
    m->stride_batch =
        rng_chance(50) ? ATTN_STRIDE_BROADCAST : (ptrdiff_t)(row * c.rows * t->p.num_heads_q);
}

static int32_t random_columns(int32_t *columns, int32_t used, const cells *from)
{
    for (int32_t c = 0; c < from->columns; c++)
        if (rng_chance(from->percent))
            columns[used++] = c;
    return used;
}

static void set_csr(test_problem *t)
{
    attn_block_mask *m = &t->p.block_mask;
    const cells c = random_cells(t);
    const int64_t lists = t->p.batch * t->p.num_heads_q;
    int32_t *offsets = new_ints(lists * (c.rows + 1));
    int32_t *columns = new_ints(lists * c.rows * c.columns);
    int32_t used = 0;
    for (int64_t n = 0; n < lists; n++) {
        for (int64_t r = 0; r < c.rows; r++) {
            offsets[n * (c.rows + 1) + r] = used;
            used = random_columns(columns, used, &c);
        }
        offsets[n * (c.rows + 1) + c.rows] = used;
    }
    m->row_offsets = offsets;
    m->columns = columns;
    m->csr_stride_head = rng_chance(50) ? ATTN_STRIDE_BROADCAST : (ptrdiff_t)(c.rows + 1);
    m->csr_stride_batch =
        rng_chance(50) ? ATTN_STRIDE_BROADCAST : (ptrdiff_t)((c.rows + 1) * t->p.num_heads_q);
}

/* ---- lists of keys --------------------------------------------------------------------------- */

static void fill_list(int32_t *list, int64_t width, int64_t keys, int percent)
{
    int64_t n = 0;
    for (int64_t j = 0; j < keys && n < width; j++)
        if (rng_chance(percent))
            list[n++] = (int32_t)j;
    for (; n < width; n++)
        list[n] = (int32_t)-rng_int(1, 3);
}

/* Few keys of many, so that they are gathered; or most of them. */
static void set_key_list(test_problem *t)
{
    static const int64_t rows[] = { 0, 1, 2, 3, 16, 1000 };
    static const int64_t percents[] = { 2, 10, 60, 100 };
    attn_key_list *x = &t->p.key_list;
    const int percent = (int)RNG_PICK(percents);
    const int64_t each = RNG_PICK(rows), keys = t->p.seq_len_kv;
    const int64_t lists = (t->p.seq_len_q + (each != 0 ? each : 1) - 1) / (each != 0 ? each : 1);
    const int64_t width = rng_int(1, keys * percent / 100 + 2), row = width + rng_int(0, 3);
    const int64_t all = t->p.batch * t->p.num_heads_kv * lists;
    int32_t *data = new_ints(all * row);
    memset(data, 0x7f, (size_t)(all * row) * sizeof *data);
    for (int64_t n = 0; n < all; n++)
        fill_list(data + n * row, width, keys, percent);
    x->width = width;
    x->rows = each;
    x->stride_seq = (ptrdiff_t)row;
    x->stride_head = rng_chance(30) ? ATTN_STRIDE_BROADCAST : (ptrdiff_t)(lists * row);
    x->stride_batch =
        rng_chance(30) ? ATTN_STRIDE_BROADCAST : (ptrdiff_t)(t->p.num_heads_kv * lists * row);
    x->data = data;
}

/* ---- callbacks --------------------------------------------------------------------------------
 * They check what they are told: the problem's lengths and positions, written down here. */

static attn_params callback_params;
static int bad_pairs;

int features_bad_pairs(void)
{
    return bad_pairs;
}

static int64_t offset_of(const attn_params *p, int64_t b)
{
    return p->alignment == ATTN_ALIGN_OFFSET     ? p->q_offset[b]
           : p->alignment == ATTN_ALIGN_TOP_LEFT ? 0
                                                 : oracle_keys(p, b) - oracle_rows(p, b);
}

static void check_pair(const void *user, const attn_pair *at)
{
    const attn_params *p = &callback_params;
    const int64_t base = p->key_base != NULL ? p->key_base[at->batch] : 0;
    if (user != (const void *)&callback_params || at->head >= p->num_heads_q || at->i < 0 ||
        at->i >= oracle_rows(p, at->batch) || at->j < 0 || at->j >= oracle_keys(p, at->batch) ||
        at->n != base + at->j || at->pos != base + at->i + offset_of(p, at->batch))
        bad_pairs++; /* written only then: workers may be here at the same time */
}

/* x/2 + c x / (1 + x^2), of which each pair has its own c, and a constant. */
static float pair_curve(const attn_pair *at)
{
    return 0.03125f * (float)((at->i + at->j * 5 + at->head) % 7);
}

static float score_callback(void *user, const attn_pair *at, float logit)
{
    check_pair(user, at);
    if ((at->n + at->i) % 13 == 5)
        return -HUGE_VALF;
    return 0.5f * logit + pair_curve(at) * logit / (1.0f + logit * logit) +
           0.125f * (float)((at->i * 3 + at->j * 7 + at->head + at->batch) % 11);
}

float features_score_derivative(void *user, const attn_pair *at, float logit)
{
    const float square = logit * logit;
    check_pair(user, at);
    return 0.5f + pair_curve(at) * (1.0f - square) / ((1.0f + square) * (1.0f + square));
}

static int is_cell_shown(int64_t pos, int64_t n, int64_t head)
{
    return ((pos & 0xfffff) / 8 + (n & 0xfffff) / 24 + head) % 3 != 0;
}

static int mask_callback(void *user, const attn_pair *at)
{
    check_pair(user, at);
    return is_cell_shown(at->pos, at->n, at->head) ? 1 + (int)(at->n & 2) : 0;
}

/* By counting; where all are visible it may say "partial" all the same. */
static int mask_tile_callback(void *user, const attn_rect *at)
{
    int64_t shown = 0, all = 0;
    if (user != (const void *)&callback_params ||
        at->offset != offset_of(&callback_params, at->batch))
        bad_pairs++;
    for (int64_t h = at->head_begin; h < at->head_end; h++)
        for (int64_t i = at->i_begin; i < at->i_end; i++)
            for (int64_t j = at->j_begin; j < at->j_end; j++) {
                shown += is_cell_shown(at->key_base + i + at->offset, at->key_base + j, h);
                all++;
            }
    return shown == 0 ? ATTN_TILE_EMPTY : shown == all ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static void set_score(test_problem *t)
{
    t->p.score = score_callback;
    t->p.callback_user = &callback_params;
}

static void set_mask(test_problem *t)
{
    t->p.mask = mask_callback;
    t->p.callback_user = &callback_params;
}

static void set_mask_tile(test_problem *t)
{
    set_mask(t);
    t->p.mask_tile = mask_tile_callback;
}

/* ---- logits and softmax ---------------------------------------------------------------------- */

static void set_alibi(test_problem *t)
{
    float *slopes = test_alloc((size_t)t->p.num_heads_q * sizeof *slopes);
    random_alignment(t);
    for (int64_t h = 0; h < t->p.num_heads_q; h++)
        slopes[h] = rng_unit() * (rng_chance(20) ? -0.1f : 0.5f);
    t->p.alibi_slopes = slopes;
    t->p.alibi_stride = ATTN_STRIDE_BROADCAST;
}

static void set_alibi_batch(test_problem *t)
{
    const int64_t stride = t->p.num_heads_q + rng_aside(0, 2), count = stride * t->p.batch;
    float *slopes = test_alloc((size_t)count * sizeof *slopes);
    random_alignment(t);
    for (int64_t n = 0; n < count; n++)
        slopes[n] = rng_unit() * 0.5f;
    t->p.alibi_slopes = slopes;
    t->p.alibi_stride = (ptrdiff_t)stride;
}

static void set_softcap(test_problem *t)
{
    t->p.softcap = rng_chance(50) ? 0.5f + 3.0f * rng_unit() : 50.0f;
}

static void set_sinks(test_problem *t)
{
    float *sinks = test_alloc((size_t)t->p.num_heads_q * sizeof *sinks);
    for (int64_t h = 0; h < t->p.num_heads_q; h++)
        sinks[h] = rng_chance(15) ? -HUGE_VALF : 3.0f * rng_normal();
    t->p.sinks = sinks;
}

static void set_softmax1(test_problem *t)
{
    t->p.softmax1 = 1;
}

static void set_dropout(test_problem *t)
{
    t->p.dropout_p = 0.05f + 0.9f * rng_unit();
    t->p.dropout_seed = rng_u64();
}

static void set_scale(test_problem *t)
{
    t->p.scale = rng_chance(30) ? -0.3f : 0.02f + 0.5f * rng_unit();
}

/* ---- storage, shapes, layouts ---------------------------------------------------------------- */

static void set_dtypes(test_shape *s, int q, int k, int v, int o)
{
    s->dtype_q = q, s->dtype_k = k, s->dtype_v = v, s->dtype_o = o;
}

static void shape_f16(test_shape *s)
{
    set_dtypes(s, ATTN_F16, ATTN_F16, ATTN_F16, ATTN_F16);
}

static void shape_bf16(test_shape *s)
{
    set_dtypes(s, ATTN_BF16, ATTN_BF16, ATTN_BF16, ATTN_BF16);
}

static void shape_mixed(test_shape *s)
{
    set_dtypes(s, (int)rng_int(0, 2), (int)rng_int(0, 2), (int)rng_int(0, 2), (int)rng_int(0, 2));
}

static void shape_gqa(test_shape *s)
{
    s->heads_q = s->heads_kv * rng_int(2, 4);
}

static void set_layouts(test_shape *s, int q, int k, int v, int o)
{
    s->layout_q = q, s->layout_k = k, s->layout_v = v, s->layout_o = o;
}

static void shape_bshd(test_shape *s)
{
    set_layouts(s, LAYOUT_BSHD, LAYOUT_BSHD, LAYOUT_BSHD, LAYOUT_BSHD);
}

static void shape_qkv(test_shape *s)
{
    set_layouts(s, LAYOUT_QKV, LAYOUT_QKV, LAYOUT_QKV, LAYOUT_PADDED);
}

static void shape_negative(test_shape *s)
{
    set_layouts(s, LAYOUT_NEGATIVE, LAYOUT_NEGATIVE_SEQ, LAYOUT_NEGATIVE, LAYOUT_NEGATIVE);
}

static void shape_shared(test_shape *s)
{
    static const int64_t layouts[] = { LAYOUT_SHARED_HEADS, LAYOUT_SHARED_BATCH, LAYOUT_PADDED };
    set_layouts(s, (int)RNG_PICK(layouts), (int)RNG_PICK(layouts), (int)RNG_PICK(layouts),
                LAYOUT_BHSD);
}

static void shape_odd(test_shape *s)
{
    static const int64_t dims[] = { 1, 3, 7, 20, 40, 72, 80, 112, 160, 257 };
    s->dim = RNG_PICK(dims);
    s->dim_v = RNG_PICK(dims);
    if (s->seq_q > 20)
        s->seq_q = rng_int(1, 20);
}

/* More than 1024 keys: chunks are merged. Few rows and small heads keep the oracle quick. */
static void shape_long(test_shape *s)
{
    static const int64_t lengths[] = { 1023, 1025, 1500, 2049, 3100 };
    s->batch = s->varlen ? s->batch : 1;
    s->heads_q = s->heads_q / s->heads_kv;
    s->heads_kv = 1;
    s->seq_q = rng_int(1, 4);
    s->seq_kv = RNG_PICK(lengths);
    s->dim = rng_int(1, 9);
    s->dim_v = rng_int(1, 5);
}

/* ---- outputs --------------------------------------------------------------------------------- */

static void set_partial(test_problem *t)
{
    const size_t rows = (size_t)(t->p.seq_len_q * t->p.num_heads_q) *
                        (t->p.cu_seqlens_q != NULL ? 1 : (size_t)t->p.batch);
    const size_t dim_v = (size_t)(t->p.head_dim_v != 0 ? t->p.head_dim_v : t->p.head_dim);
    t->p.partial = 1;
    t->p.state.m = test_alloc(rows * sizeof(float));
    t->p.state.l = test_alloc(rows * sizeof(float));
    t->p.state.o = test_alloc(rows * dim_v * sizeof(float));
    memset(&t->p.o, 0, sizeof t->p.o);
    memset(&t->p.lse, 0, sizeof t->p.lse);
    if (rng_aside(0, 1)) /* where it stays, it must not be written */
        memset(&t->p.stats, 0, sizeof t->p.stats);
}

static void set_logits(test_problem *t)
{
    const int64_t rows = rng_chance(30) ? 0 : rng_int(1, 5);
    const int64_t stored = rows != 0 ? rows : t->p.seq_len_q;
    int32_t *list = rows != 0 ? new_ints(rows) : NULL;
    for (int64_t r = 0; r < rows; r++)
        list[r] = (int32_t)rng_int(0, t->p.seq_len_q - 1);
    /* probabilities need all keys: with partial they are refused */
    t->p.logits.stage = (int)rng_int(0, t->p.partial ? 2 : 3);
    t->p.logits.num_rows = rows;
    t->p.logits.rows = list;
    t->p.logits.data = test_alloc(
        (size_t)(t->p.batch * t->p.num_heads_q * stored * t->p.seq_len_kv) * sizeof(float));
}

/* ---- the table ------------------------------------------------------------------------------- */

const feature features[] = {
    { "varlen", "varlen", shape_varlen, NULL },
    { "gqa", "gqa", shape_gqa, NULL },
    { "f16", "storage", shape_f16, NULL },
    { "bf16", "storage", shape_bf16, NULL },
    { "mixed", "storage", shape_mixed, NULL },
    { "bshd", "layout", shape_bshd, NULL },
    { "qkv", "layout", shape_qkv, NULL },
    { "negative", "layout", shape_negative, NULL },
    { "shared", "layout", shape_shared, NULL },
    { "long", "long", shape_long, NULL },
    { "odd_dims", "dims", shape_odd, NULL },
    { "q_len", "q_len", NULL, set_q_len },
    { "kv_begin", "kv_begin", NULL, set_kv_begin },
    { "kv_len", "kv_len", NULL, set_kv_len },
    { "key_base", "key_base", NULL, set_key_base },
    { "paged", "rows", NULL, set_paged },
    { "ring", "rows", NULL, set_ring },
    { "paged_ring", "rows", NULL, set_paged_ring },
    { "causal", "causal", NULL, set_causal },
    { "causal_top", "causal", NULL, set_causal_top },
    { "causal_off", "causal", NULL, set_causal_offset },
    { "prefix", "prefix", NULL, set_prefix },
    { "window", "window", NULL, set_window },
    { "chunked", "chunked", NULL, set_chunked },
    { "segments", "segments", NULL, set_segments },
    { "tree", "tree", shape_tree, set_tree },
    { "bool", "bool", NULL, set_bool },
    { "bool_inv", "bool", NULL, set_bool_inverted },
    { "bits", "bits", NULL, set_bits },
    { "bitmap", "bitmap", NULL, set_bitmap },
    { "csr", "csr", NULL, set_csr },
    { "key_list", "key_list", NULL, set_key_list },
    { "mask_fn", "mask_fn", NULL, set_mask },
    { "mask_tile", "mask_fn", NULL, set_mask_tile },
    { "scale", "scale", NULL, set_scale },
    { "softcap", "softcap", NULL, set_softcap },
    { "bias_f32", "bias", NULL, set_bias_f32 },
    { "bias_f16", "bias", NULL, set_bias_f16 },
    { "bias_bf16", "bias", NULL, set_bias_bf16 },
    { "alibi", "alibi", NULL, set_alibi },
    { "alibi_bh", "alibi", NULL, set_alibi_batch },
    { "score_fn", "score_fn", NULL, set_score },
    { "sinks", "sinks", NULL, set_sinks },
    { "softmax1", "softmax1", NULL, set_softmax1 },
    { "dropout", "dropout", NULL, set_dropout },
    { "partial", "partial", NULL, set_partial },
    { "logits", "logits", NULL, set_logits },
};
const int feature_count = sizeof features / sizeof *features;

int feature_find(const char *name)
{
    for (int f = 0; f < feature_count; f++)
        if (strcmp(features[f].name, name) == 0)
            return f;
    fprintf(stderr, "test: no feature '%s'\n", name);
    exit(3);
}

static int is_listed(int f, const int *list, int count)
{
    for (int n = 0; n < count; n++)
        if (list[n] == f)
            return 1;
    return 0;
}

void features_make(test_problem *t, test_shape shape, const int *list, int count)
{
    for (int f = 0; f < feature_count; f++)
        if (is_listed(f, list, count) && features[f].shape != NULL)
            features[f].shape(&shape);
    problem_make(t, &shape);
    for (int f = 0; f < feature_count; f++)
        if (is_listed(f, list, count) && features[f].setup != NULL)
            features[f].setup(t);
    features_told(t);
}

void features_told(const test_problem *t)
{
    callback_params = t->p;
    bad_pairs = 0;
}
