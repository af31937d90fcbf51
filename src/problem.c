/* src/problem.c - the problem: the parameters with every default resolved, and one sequence of the batch.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "fields.c"
#include "select.c"
#include "tuning.c"

/* state_row gives the number of a row among raw states: that of a packed lse. */
static inline int64_t state_row(const attn_params *p, const sequence *s, int64_t head, int64_t i)
{
    const int64_t entry = p->cu_seqlens_q ? 0 : s->b * p->num_heads_q;
    return (entry + head) * rows_held(p) + s->q_row + i;
}

/* all_rows counts the rows of all heads, as state_row numbers them. */
static int64_t all_rows(const attn_params *p)
{
    return times(times(p->cu_seqlens_q ? 1 : p->batch, p->num_heads_q), rows_held(p));
}

static inline float sink_of(const attn_params *p, int64_t head)
{
    if (p->softmax1)
        return 0.0f;
    return p->sinks ? p->sinks[head] : NEG_INF;
}

/* row_seen, key_seen and head_seen give numbers of the call that this one is a view of. */
static inline int64_t row_seen(const sequence *s, int64_t i)
{
    return s->view.row + i * s->view.step;
}

static inline int64_t key_seen(const sequence *s, int64_t j)
{
    return s->view.key + j * s->view.step;
}

static inline int64_t head_seen(const sequence *s, int64_t head)
{
    return s->view.head + head * s->view.head_step;
}

static inline attn_pair pair_of(const sequence *s, const lane *at, int64_t j)
{
    const int64_t row = row_seen(s, at->i), key = key_seen(s, j);
    const attn_pair pair = { s->view.batch,
                             head_seen(s, at->head),
                             row,
                             key,
                             .pos = s->key_base + s->view.before + row,
                             .n = s->key_base + key };
    return pair;
}

/* scales_queries tells whether scales of channels of K, which are whole numbers, go to the queries. */
static inline int scales_queries(const attn_params *p)
{
    return p->integer && has_scales(p->k.dtype) && p->k_scales.stride_dim;
}

/* A tile of many rows has this number of keys, so that logits of 16 KiB stay in L1. Heads of 200
 * and more have half, so that 1 MiB a worker is enough: 1 % slower (with 192, 3 %). */
#define WIDE_TILE_KEYS(dims) ((dims) < 400 ? 64 : 32)
#define NARROW_TILE_KEYS 256

static int64_t q_capacity(const attn_params *p, int64_t b)
{
    return p->cu_seqlens_q ? (int64_t)p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b] : p->seq_len_q;
}

static int64_t kv_capacity(const attn_params *p, int64_t b)
{
    return p->cu_seqlens_kv ? (int64_t)p->cu_seqlens_kv[b + 1] - p->cu_seqlens_kv[b]
                            : p->seq_len_kv;
}

/* take_part_of narrows *from..*to-1 to `count` from `begin` on. */
static void take_part_of(int64_t begin, int64_t count, int64_t *from, int64_t *to)
{
    *from = max64(*from, min64(begin, *to));
    *to = max64(*from, min64(begin + count, *to));
}

/* narrow_columns narrows columns *from to *to-1 to those of the keys that a part holds. */
static void narrow_columns(const attn_part *part, int64_t *from, int64_t *to)
{
    if (part->keys)
        take_part_of(part->key_begin, part->key_count, from, to);
}

/* narrow_to_part narrows a sequence to the rows and keys of a part, which are all that is held. */
static void narrow_to_part(const attn_part *part, sequence *s)
{
    if (part->rows) {
        s->q_row -= part->row_begin;
        take_part_of(part->row_begin, part->row_count, &s->row_from, &s->row_to);
    }
    if (part->keys) {
        s->kv_row += part->key_row - part->key_begin;
        take_part_of(part->key_begin - s->column, part->key_count, &s->key_from, &s->key_to);
    }
}

static int64_t offset_of(const attn_params *p, const sequence *s)
{
    if (p->alignment == ATTN_ALIGN_OFFSET)
        return p->q_offset[s->b];
    return p->alignment == ATTN_ALIGN_BOTTOM_RIGHT ? s->kv_len - s->q_len : 0;
}

static attn_view view_of_entry(const attn_params *p, int64_t b, int64_t offset)
{
    attn_view v = { .batch = b, .head_step = 1, .step = 1, .before = offset };
    if (p->view) {
        v = *p->view;
        v.row += b * v.entry;
        v.key += b * v.entry;
    }
    return v;
}

static sequence sequence_of(const attn_params *p, int64_t b)
{
    const int64_t column = entry32(p->kv_begin, b, 0);
    sequence s = {
        .b = b,
        .q_row = entry32(p->cu_seqlens_q, b, 0),
        .q_len = entry32(p->q_len, b, q_capacity(p, b)),
        .kv_row = entry32(p->cu_seqlens_kv, b, 0) + column + entry32(p->kv_rows.begin, b, 0),
        .kv_len = entry32(p->kv_len, b, kv_capacity(p, b) - column),
        .column = column,
        .key_base = p->key_base ? p->key_base[b] : 0,
        .prefix = entry32(p->prefix, b, 0),
    };
    s.row_to = s.q_len;
    s.key_to = s.kv_len;
    s.offset = offset_of(p, &s);
    s.view = view_of_entry(p, b, s.offset);
    narrow_to_part(&p->part, &s);
    return s;
}

/* LOG2E_LO carries what binary32 loses of log2 e: the factor is right to nearly the last bit. */
static float score_factor(float scale)
{
    float low = scale * LOG2E_LO;
    return fma32(FMA_BASE, scale, LOG2E_HI, low);
}

static void resolve_workers(attn_params *p)
{
    if (p->num_workers == 0 && !p->parallel_for)
        p->num_workers = OPENMP_THREADS;
    if (p->num_workers == 0)
        p->num_workers = 1;
}

static void resolve_sizes(attn_params *p)
{
    if (p->num_heads_kv == 0)
        p->num_heads_kv = p->num_heads_q;
    if (p->head_dim_v == 0)
        p->head_dim_v = p->head_dim;
    if (p->scale == 0.0f && p->head_dim > 0)
        p->scale = inv_sqrt_nearest((uint64_t)p->head_dim);
    if (p->window && p->window_left > TOO_BIG)
        p->window_left = -1;
    if (p->window && p->window_right > TOO_BIG)
        p->window_right = -1;
    resolve_workers(p);
}

/* settle_workers sets the workers that can run at once, rather than those to size for. */
static void settle_workers(attn_params *p)
{
    if (!p->parallel_for && OPENMP_THREADS == 0)
        p->num_workers = 1;
}

/* Every array of the call gets its strides, or *why says which one does not fit into memory. */
static attn_status resolve_layouts(attn_params *p, text *why)
{
    call_axes x;
    if (p->logits.num_rows == 0 && p->logits.rows == NULL)
        p->logits.num_rows = rows_held(p);
    x = axes_of_call(p);
    return resolve_arrays(call_fields, COUNT_OF(call_fields), p, &x, why);
}

/* has_skip tells whether blocks of keys may be left out. */
static int has_skip(const attn_params *p)
{
    return p->skip.below > 0;
}

static int choose_impl(const attn_params *p)
{
    if (p->impl == ATTN_IMPL_AUTO && !p->part.rows && !p->part.keys && !p->recent.keys &&
        !has_skip(p))
        return p->seq_len_kv <= p->auto_naive_keys ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    return p->impl == ATTN_IMPL_NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
}

/* wanted_keys gives the keys of a tile: the caller's wish comes first, then that of tuning. */
static int wanted_keys(const attn_params *p, const attn_kernels *kernels)
{
    const int64_t cell = p->block_mask.block_k;
    const tuning t = tuning_of(p, kernels);
    int keys;
    if (p->tile_keys || t.tile_keys)
        return p->tile_keys ? p->tile_keys : (int)t.tile_keys;
    keys = kernels->rows > 24 ? WIDE_TILE_KEYS(p->head_dim + p->head_dim_v) : NARROW_TILE_KEYS;
    if (kernels->pack_values)
        keys *= 2; /* Sums of P V come and go half as often: 10 to 15 % of the time. */
    if (cell >= 2 * ATTN_BLOCK && keys % cell == 0)
        return (int)cell; /* Whole cells are best, as most tiles are then seen by all or by none. */
    return keys;
}

/* tile_keys_of halves that number as long as all keys that there can be fit. */
static int tile_keys_of(const attn_params *p, const attn_kernels *kernels)
{
    int keys = wanted_keys(p, kernels);
    while (keys >= 2 * ATTN_BLOCK && keys / 2 >= keys_held(p))
        keys /= 2;
    return keys;
}

/* lanes_of_list counts the rows of all heads of a group that share a list of keys. */
static int64_t lanes_of_list(const problem *pr)
{
    return times(min64(rows_of_list(&pr->p), max64(pr->max_q_len, 1)), pr->group);
}

/* resolve_kernels sets the kernel set and the sizes that the caller leaves open. */
static void resolve_kernels(problem *pr)
{
    attn_params *p = &pr->p;
    const int64_t rows = pr->gathered ? lanes_of_list(pr) : times(pr->max_q_len, pr->group);
    pr->batch_kernels = p->kernels ? p->kernels : best_kernels(times(rows, p->batch), 0);
    pr->batch_tile_keys = tile_keys_of(p, pr->batch_kernels);
    if (p->kernels == NULL)
        p->kernels = best_kernels(rows, p->fast);
    p->tile_keys = tile_keys_of(p, p->kernels);
    if (p->auto_naive_keys == 0)
        p->auto_naive_keys = tuning_of(p, p->kernels).auto_naive_keys;
    pr->impl = choose_impl(p);
}

static void resolve_numbers(problem *pr)
{
    attn_params *p = &pr->p;
    float keep = 1.0f - p->dropout_p;
    int64_t b;
    const int64_t kinds = kinds_of(p);
    pr->group = p->num_heads_q / p->num_heads_kv;
    pr->factor = score_factor(p->scale);
    pr->cap2 = p->softcap * LOG2E_HI;
    pr->icap2 = p->softcap > 0 ? 1.0f / pr->cap2 : 0.0f;
    pr->keep_factor = 1.0f / keep;
    pr->drop_below = (uint32_t)((double)p->dropout_p * 4294967296.0);
    pr->max_q_len = pr->max_kv_len = 0;
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        pr->max_q_len = max64(pr->max_q_len, s.row_to - s.row_from);
        pr->max_kv_len = max64(pr->max_kv_len, s.key_to - s.key_from);
    }
    resolve_kernels(pr);
}

/* These tell what has to be computed. */
static int wants_values(const attn_params *p)
{
    return p->partial || p->o.data;
}

static int wants_results(const attn_params *p)
{
    return p->o.data || p->lse.data || p->stats.data;
}

/* has_insight tells whether states hold more than m, l and o. */
static int has_insight(const attn_params *p)
{
    return p->insight.entropy || p->insight.top;
}

static int wants_rows(const attn_params *p)
{
    return p->partial || wants_results(p) || has_insight(p) || has_skip(p);
}

/* wants_pairs tells whether a list of its own computes logits again. */
static int wants_pairs(const attn_params *p)
{
    return p->logits.data || p->insight.mass;
}

static int is_empty(const attn_params *p)
{
    return p->batch == 0 || rows_held(p) == 0;
}

/* begins_inside tells whether the first key may lie inside a chunk or node of the merge tree. */
static int begins_inside(const attn_params *p)
{
    return p->key_base || p->part.keys;
}
