/* laws.c - what must be equal bit for bit.
 * SPDX-License-Identifier: MIT
 *
 * Every law makes a call with random masks and modifiers in the background and compares its bits
 * with those of another way to say the same. No tolerance, but for attn_lse_merge.
 */
#include "spy.h"
#include "features.h"
#include "laws.h"
#include "oracle.h"
#include "pool.h"
#include "slices.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- backgrounds ----------------------------------------------------------------------------- */

/* What any slice can carry. */
static const char *const sliceable[] = {
    "gqa",       "mixed",      "shared", "negative", "qkv",      "q_len", "kv_len",   "key_base",
    "causal",    "causal_off", "window", "chunked",  "segments", "bool",  "softcap",  "bias_f32",
    "bias_bf16", "alibi",      "sinks",  "odd_dims", "prefix",   "scale", "alibi_bh", NULL
};
/* What besides only needs the same i, j and numbers. */
static const char *const others[] = { "bits",     "bitmap",  "csr",      "tree",   "mask_tile",
                                      "score_fn", "dropout", "kv_begin", "varlen", NULL };

/* The slot of a feature; bitmap and csr share one here, since the API refuses them together. */
static const char *slot_of(int f)
{
    return strcmp(features[f].slot, "csr") == 0 ? "bitmap" : features[f].slot;
}

static int fits(int f, const int *list, int count, const char *const *banned)
{
    for (int n = 0; n < count; n++)
        if (f == list[n] || strcmp(slot_of(f), slot_of(list[n])) == 0)
            return 0;
    for (int n = 0; banned != NULL && banned[n] != NULL; n++)
        if (strcmp(features[f].name, banned[n]) == 0 || strcmp(features[f].slot, banned[n]) == 0)
            return 0;
    return 1;
}

static int add_some(const char *const *names, int percent, int *list, int count,
                    const char *const *banned)
{
    for (int n = 0; names[n] != NULL; n++) {
        const int f = feature_find(names[n]);
        if (rng_chance(percent) && count < MAX_BACKGROUND && fits(f, list, count, banned))
            list[count++] = f;
    }
    return count;
}

int pick_background(int *list, const char *first, int with_others, const char *const *banned)
{
    int count = 0;
    if (first != NULL)
        list[count++] = feature_find(first);
    count = add_some(sliceable, 12, list, count, banned);
    if (with_others)
        count = add_some(others, 10, list, count, banned);
    return count;
}

void make_background(test_problem *t, const char *first, int with_others, const char *const *banned)
{
    int list[MAX_BACKGROUND];
    const int count = pick_background(list, first, with_others, banned);
    features_make(t, shape_random(), list, count);
}

void make_stored(test_problem *t, const char *const *banned)
{
    int list[MAX_BACKGROUND];
    const int count = pick_background(list, NULL, 1, banned);
    features_make(t, whole_units(shape_random()), list, count);
    quantise_for_levels(t);
}

/* Runs both and compares; b must have an output of its own. */
static void same(test_problem *a, test_problem *b, const char *what)
{
    if (problem_run(a) && problem_run(b))
        CHECK(problem_same_bits(a, b), "%s: %s", what, "bits differ");
}

/* A copy of a with its own output. */
void twin(const test_problem *a, test_problem *b)
{
    *b = *a;
    problem_new_output(b);
}

/* ---- masks said in another way --------------------------------------------------------------- */

void clear_masks(attn_params *p)
{
    p->causal = 0, p->prefix = NULL;
    p->window = 0, p->window_left = p->window_right = 0;
    p->chunk_size = 0;
    p->q_segments = p->kv_segments = NULL;
    p->tree_parents = NULL;
    p->mask = NULL, p->mask_tile = NULL;
    memset(&p->bool_mask, 0, sizeof p->bool_mask);
    memset(&p->bit_mask, 0, sizeof p->bit_mask);
    memset(&p->block_mask, 0, sizeof p->block_mask);
    memset(&p->key_list, 0, sizeof p->key_list);
}

uint8_t *all_pairs(const attn_params *p)
{
    const int64_t count = p->batch * p->num_heads_q * p->seq_len_q * p->seq_len_kv;
    uint8_t *shown = test_alloc((size_t)count);
    memset(shown, 0, (size_t)count);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < oracle_rows(p, b); i++)
                for (int64_t j = 0; j < oracle_keys(p, b); j++)
                    shown[((b * p->num_heads_q + h) * p->seq_len_q + i) * p->seq_len_kv + j +
                          (p->kv_begin != NULL ? p->kv_begin[b] : 0)] =
                        (uint8_t)oracle_visible(p, b, h, i, j);
    return shown;
}

static void set_dense_strides(attn_mask *m, const attn_params *p)
{
    m->stride_kv = 1;
    m->stride_q = (ptrdiff_t)p->seq_len_kv;
    m->stride_head = (ptrdiff_t)(p->seq_len_kv * p->seq_len_q);
    m->stride_batch = (ptrdiff_t)(p->seq_len_kv * p->seq_len_q * p->num_heads_q);
}

void as_bool(attn_params *p, const uint8_t *shown)
{
    p->bool_mask.data = shown;
    set_dense_strides(&p->bool_mask, p);
}

void as_bits(attn_params *p, const uint8_t *shown)
{
    const int64_t count = p->batch * p->num_heads_q * p->seq_len_q * p->seq_len_kv;
    uint8_t *bits = test_alloc_at((size_t)(count + 7) / 8, PLACE_PAGE_AFTER);
    memset(bits, 0, (size_t)(count + 7) / 8);
    for (int64_t n = 0; n < count; n++)
        bits[n / 8] = (uint8_t)(bits[n / 8] | (shown[n] == 0) << (n % 8));
    p->bit_mask.data = bits;
    p->bit_mask.invert = 1;
    set_dense_strides(&p->bit_mask, p);
}

void as_bitmap(attn_params *p, const uint8_t *shown)
{
    attn_mask m;
    as_bits(p, shown);
    m = p->bit_mask;
    memset(&p->bit_mask, 0, sizeof p->bit_mask);
    for (int64_t n = 0; n < (p->batch * p->num_heads_q * p->seq_len_q * p->seq_len_kv + 7) / 8; n++)
        ((uint8_t *)(uintptr_t)m.data)[n] ^= 0xff;
    p->block_mask.block_q = p->block_mask.block_k = 1;
    p->block_mask.bitmap = m.data;
    p->block_mask.stride_row = m.stride_q;
    p->block_mask.stride_head = m.stride_head;
    p->block_mask.stride_batch = m.stride_batch;
}

void as_bias(attn_params *p, const uint8_t *shown)
{
    const int64_t count = p->batch * p->num_heads_q * p->seq_len_q * p->seq_len_kv;
    float *bias = test_alloc((size_t)count * sizeof *bias);
    for (int64_t n = 0; n < count; n++)
        bias[n] = shown[n] != 0 ? 0.0f : -HUGE_VALF;
    p->bias.data = bias;
    p->bias.dtype = ATTN_F32;
    p->bias.stride_kv = 1;
    p->bias.stride_q = (ptrdiff_t)p->seq_len_kv;
    p->bias.stride_head = (ptrdiff_t)(p->seq_len_kv * p->seq_len_q);
    p->bias.stride_batch = (ptrdiff_t)(p->seq_len_kv * p->seq_len_q * p->num_heads_q);
}

static const char *const mask_names[] = { "causal", "causal_top", "causal_off", "prefix",
                                          "window", "chunked",    "segments",   "tree",
                                          "bool",   "bool_inv",   "bits",       "bitmap",
                                          "csr",    "key_list",   "mask_fn",    "mask_tile" };

/* A bitmap's columns count from the first key present, a dense array's from column 0. */
static void law_masks(int round)
{
    static void (*const ways[])(attn_params *, const uint8_t *) = { as_bool, as_bits, as_bias,
                                                                    as_bitmap };
    static const char *const no_bias[] = { "bias", NULL }, *const no_begin[] = { "kv_begin", NULL };
    const int way = (int)rng_int(0, 3);
    const char *name = mask_names[round % (int)(sizeof mask_names / sizeof *mask_names)];
    test_problem a, b;
    const uint8_t *shown;
    make_background(&a, name, 1, way == 2 ? no_bias : way == 3 ? no_begin : NULL);
    twin(&a, &b);
    shown = all_pairs(&a.p);
    clear_masks(&b.p);
    ways[way](&b.p, shown);
    same(&a, &b, name);
}

/* Keys enough for cells that lie chunks apart. */
static void law_far_cells(int round)
{
    int list[MAX_BACKGROUND];
    const int count = pick_background(list, round % 2 ? "csr" : "bitmap", 1, NULL);
    test_shape shape = shape_random();
    test_problem a, b;
    shape.seq_q = rng_int(1, 40);
    shape.seq_kv = rng_int(ATTN_CHUNK, 5 * ATTN_CHUNK);
    features_make(&a, shape, list, count);
    twin(&a, &b);
    clear_masks(&b.p);
    as_bool(&b.p, all_pairs(&a.p));
    same(&a, &b, "cells chunks apart");
}

static int has_reason(const attn_params *p, const char *words)
{
    attn_info info;
    return attn_explain(p, &info) == ATTN_OK && strstr(info.reasons, words) != NULL;
}

/* Listed keys chunks apart, many heads of a group, values that are part of the keys: gathered, and as a
 * boolean mask. */
static int gathered, divided;

/* divide_lists runs the listed call by workers, whose parts of the keys change no bit. */
static void divide_lists(test_problem *a, const test_problem *b)
{
    pool workers = pool_of((int)rng_int(2, 5), POOL_SHUFFLED, 0);
    const int gathers = has_reason(&a->p, "rows read only listed keys");
    attn_info info;
    a->p.num_workers = workers.workers;
    a->p.tuning = "attn-tuning 1 split_work 1 end";
    a->p.parallel_for = pool_for;
    a->p.parallel_user = &workers;
    divided += gathers && attn_explain(&a->p, &info) == ATTN_OK && info.key_parts > 1 &&
               has_reason(&a->p, "rows read only listed keys");
    CHECK(test_run(&a->p) == ATTN_OK && problem_same_bits(a, b), "lists of keys, %d workers",
          workers.workers);
}

/* list_neighbours makes the list, one for all rows, two runs of neighbouring keys. */
static void list_neighbours(attn_params *p)
{
    attn_key_list *x = &p->key_list;
    const int64_t width = x->width, room = p->seq_len_kv - width;
    const int64_t gap = room > 0 ? rng_int(0, room) : 0;
    const int64_t first = room > gap ? rng_int(0, room - gap) : 0;
    int32_t *keys = test_alloc((size_t)width * sizeof *keys);
    for (int64_t n = 0; n < width; n++) {
        const int64_t key = first + n + (n < width / 2 ? 0 : gap);
        keys[n] = key < p->seq_len_kv ? (int32_t)key : -1;
    }
    x->data = keys;
    x->stride_batch = x->stride_head = x->stride_seq = ATTN_STRIDE_BROADCAST;
}

static void law_lists(int round)
{
    static const char *const beside[] = { "causal", "causal_off", "window",  "kv_len",   "key_base",
                                          "gqa",    "f16",        "bf16",    "mixed",    "paged",
                                          "ring",   "paged_ring", "softcap", "sinks",    "partial",
                                          "bshd",   "negative",   "chunked", "kv_begin", NULL };
    int list[MAX_BACKGROUND], count = 0;
    test_shape shape = round % 2 ? whole_units(shape_random()) : shape_random();
    test_problem a, b;
    list[count++] = feature_find("key_list");
    count = add_some(beside, 15, list, count, NULL);
    shape.seq_q = rng_chance(50) ? 1 : rng_int(1, 4);
    shape.seq_kv = rng_int(200, 3 * ATTN_CHUNK);
    shape.factor_q = rng_chance(40) ? 30.0f : 1.0f; /* maxima rise in most blocks */
    if (rng_chance(20)) {
        shape.heads_q = 40 * shape.heads_kv;
        shape.seq_q = 1;
        shape.seq_kv = rng_int(200, 2 * ATTN_CHUNK);
    }
    features_make(&a, shape, list, count);
    if (round % 4 == 3 && !a.p.kv_rows.page_size && !a.p.kv_rows.ring)
        quantise_for_levels(&a);
    if (rng_chance(40))
        list_neighbours(&a.p);
    a.p.tile_keys = rng_chance(50) ? 32 : a.p.tile_keys; /* tiles of keys end between blocks */
    twin(&a, &b);
    clear_masks(&b.p);
    as_bool(&b.p, all_pairs(&a.p));
    gathered += has_reason(&a.p, "rows read only listed keys");
    same(&a, &b, "lists of keys");
    divide_lists(&a, &b);
}

/* A block mask as bitmap and as CSR. */
static void law_csr(int round)
{
    test_problem a, b;
    attn_block_mask *m = &b.p.block_mask;
    int64_t rows, columns;
    uint8_t *bits;
    (void)round;
    make_background(&a, "csr", 1, NULL);
    twin(&a, &b);
    rows = (a.p.seq_len_q + m->block_q - 1) / m->block_q;
    columns = (a.p.seq_len_kv + m->block_k - 1) / m->block_k;
    bits = test_alloc((size_t)(a.p.batch * a.p.num_heads_q * rows * columns + 7) / 8);
    memset(bits, 0, (size_t)(a.p.batch * a.p.num_heads_q * rows * columns + 7) / 8);
    for (int64_t n = 0; n < a.p.batch * a.p.num_heads_q * rows; n++) {
        const int32_t *list = m->row_offsets +
                              n / rows / a.p.num_heads_q * step_of(m->csr_stride_batch) +
                              n / rows % a.p.num_heads_q * step_of(m->csr_stride_head) + n % rows;
        for (int32_t e = list[0]; e < list[1]; e++)
            bits[(n * columns + m->columns[e]) / 8] =
                (uint8_t)(bits[(n * columns + m->columns[e]) / 8] |
                          1 << ((n * columns + m->columns[e]) % 8));
    }
    m->row_offsets = m->columns = NULL;
    m->bitmap = bits;
    m->stride_row = (ptrdiff_t)columns;
    m->stride_head = (ptrdiff_t)(rows * columns);
    m->stride_batch = (ptrdiff_t)(rows * columns * a.p.num_heads_q);
    same(&a, &b, "CSR and bitmap");
}

/* A classifier that knows all spares every call of the mask. */
static int64_t mask_calls;

static int show_all(void *user, const attn_pair *at)
{
    (void)user, (void)at;
    mask_calls++;
    return 1;
}

static int all_full(void *user, const attn_rect *at)
{
    (void)user, (void)at;
    return ATTN_TILE_FULL;
}

static int all_empty(void *user, const attn_rect *at)
{
    (void)user, (void)at;
    return ATTN_TILE_EMPTY;
}

static void law_classifier(int round)
{
    static const char *const no_mask[] = { "mask_fn", "score_fn", NULL };
    test_problem a, b;
    make_background(&a, NULL, 1, no_mask);
    twin(&a, &b);
    b.p.mask = show_all;
    b.p.mask_tile = all_full;
    mask_calls = 0;
    if (round % 2 == 1) {
        b.p.mask_tile = all_empty;
        a.p.mask = show_all; /* and hide everything by another mask */
        a.p.bool_mask.data = test_alloc(1);
        memset((uint8_t *)(uintptr_t)a.p.bool_mask.data, 0, 1);
        a.p.bool_mask.invert = 0;
        a.p.bool_mask.stride_batch = a.p.bool_mask.stride_head = ATTN_STRIDE_BROADCAST;
        a.p.bool_mask.stride_q = a.p.bool_mask.stride_kv = ATTN_STRIDE_BROADCAST;
        a.p.mask = NULL;
    }
    same(&a, &b, "classifier");
    CHECK(mask_calls == 0, "the mask was asked %lld times in tiles already classified",
          (long long)mask_calls);
}

/* ---- strides and bounds said in another way -------------------------------------------------- */

/* The bits lie on both sides of the pointer: strides of either sign, offsets of any remainder. */
static void law_negative_bits(int round)
{
    static const char *const no_masks[] = { "bool", "bits", NULL };
    const int negative = round % 4 == 1 ? 2 : round % 4 == 2 ? 1 : 3; /* 1: kv, 2: q */
    test_problem a, b;
    attn_mask *m = &b.p.bit_mask;
    int64_t count = 1, pairs = 1, middle, size[4], step[4];
    uint8_t *shown, *bits;
    make_background(&a, NULL, 1, no_masks);
    twin(&a, &b);
    size[0] = a.p.seq_len_kv, size[1] = a.p.seq_len_q;
    size[2] = a.p.num_heads_q, size[3] = a.p.batch;
    for (int axis = 0; axis < 4; axis++) {
        step[axis] = (axis < 2 ? negative >> axis & 1 : rng_chance(50)) ? -count : count;
        count = count * size[axis] + rng_int(0, 3);
        pairs *= size[axis];
    }
    middle = count / 8 + 1;
    shown = test_alloc((size_t)pairs);
    bits = test_alloc((size_t)(2 * middle)); /* filled with ones */
    for (int64_t n = 0; n < pairs; n++) {
        int64_t bit = middle * 8, rest = n;
        for (int axis = 0; axis < 4; axis++) {
            bit += rest % size[axis] * step[axis];
            rest /= size[axis];
        }
        shown[n] = (uint8_t)(rng_chance(60) != 0);
        if (!shown[n])
            bits[bit / 8] = (uint8_t)(bits[bit / 8] & ~(1 << bit % 8));
    }
    as_bool(&a.p, shown);
    m->data = bits + middle;
    m->stride_kv = (ptrdiff_t)step[0], m->stride_q = (ptrdiff_t)step[1];
    m->stride_head = (ptrdiff_t)step[2], m->stride_batch = (ptrdiff_t)step[3];
    a.p.bool_mask.invert = m->invert = rng_chance(30);
    same(&a, &b, "bits with negative strides");
}

/* Far beyond all keys is unbounded, at any position. */
static void law_wide_window(int round)
{
    static const int64_t wide[] = { INT64_MAX, INT64_MAX - 1, INT64_MAX / 2, INT64_MAX / 4 + 1,
                                    INT64_MAX / 4 };
    test_problem a, b;
    test_shape s = shape_random();
    int32_t offsets[2];
    s.batch = 2;
    problem_make(&a, &s);
    for (int e = 0; e < 2; e++)
        offsets[e] = (int32_t)rng_int(-s.seq_q - 5, s.seq_kv);
    a.p.alignment = ATTN_ALIGN_OFFSET;
    a.p.q_offset = offsets;
    a.p.impl = round % 2 == 0 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE;
    a.p.window = ATTN_WINDOW;
    a.p.window_left = round % 3 == 0 ? rng_int(0, 20) : -1;
    a.p.window_right = round % 3 == 1 ? rng_int(0, 20) : -1;
    twin(&a, &b);
    if (a.p.window_left < 0)
        b.p.window_left = round < 12 ? INT64_MAX : RNG_PICK(wide);
    if (a.p.window_right < 0)
        b.p.window_right = round < 12 ? INT64_MAX : RNG_PICK(wide);
    same(&a, &b, "a window wider than all");
}

/* An array [batch, head, row, key] in which axis a has one element where bit a of `shared` is set. */
static int64_t count_pairs(const int64_t size[4], int shared)
{
    int64_t count = 1;
    for (int axis = 0; axis < 4; axis++)
        count *= shared >> axis & 1 ? 1 : size[axis];
    return count;
}

/* The array without shared axes. */
static unsigned char *write_out(const int64_t size[4], int shared, const void *from, size_t bytes)
{
    const int64_t count = count_pairs(size, 0);
    unsigned char *to = test_alloc((size_t)count * bytes);
    for (int64_t n = 0; n < count; n++) {
        int64_t rest = n, at = 0, step = 1;
        for (int axis = 3; axis >= 0; rest /= size[axis], axis--)
            if (!(shared >> axis & 1)) {
                at += rest % size[axis] * step;
                step *= size[axis];
            }
        memcpy(to + (size_t)n * bytes, (const char *)from + (size_t)at * bytes, bytes);
    }
    return to;
}

static uint8_t *pack_bits(const uint8_t *bytes, int64_t count)
{
    uint8_t *bits = test_alloc((size_t)(count + 7) / 8);
    memset(bits, 0, (size_t)(count + 7) / 8);
    for (int64_t n = 0; n < count; n++)
        bits[n / 8] = (uint8_t)(bits[n / 8] | (bytes[n] != 0) << n % 8);
    return bits;
}

static void share(ptrdiff_t *stride, int shared, int axis)
{
    *stride = shared >> axis & 1 ? ATTN_STRIDE_BROADCAST : 0;
}

#define SHARE_PAIRS(x, shared)                                                                     \
    (share(&(x).stride_batch, shared, 0), share(&(x).stride_head, shared, 1),                      \
     share(&(x).stride_q, shared, 2), share(&(x).stride_kv, shared, 3))

/* A shared axis is the array that repeats its elements, and strides that are forgotten are those of
 * an array without gaps. */
static void law_broadcast(int round)
{
    static const char *const banned[] = { "bias", "bool", "bits", "alibi", NULL };
    const int axes = (int)rng_int(0, 15);
    test_problem t[2];
    int64_t size[4], count;
    float *bias, *slopes[2];
    uint8_t *shown;
    make_background(&t[0], round % 4 == 1 ? "varlen" : NULL, 1, banned);
    twin(&t[0], &t[1]);
    size[0] = t[0].p.batch, size[1] = t[0].p.num_heads_q;
    size[2] = oracle_longest(&t[0].p, t[0].p.cu_seqlens_q, t[0].p.seq_len_q);
    size[3] = oracle_longest(&t[0].p, t[0].p.cu_seqlens_kv, t[0].p.seq_len_kv);
    count = count_pairs(size, axes);
    bias = test_alloc((size_t)count * sizeof *bias);
    shown = test_alloc((size_t)count);
    for (int64_t n = 0; n < count; n++) {
        bias[n] = rng_normal();
        shown[n] = (uint8_t)rng_int(0, 1);
    }
    for (int n = 0; n < 2; n++)
        slopes[n] = test_alloc((size_t)(size[0] * size[1]) * sizeof *slopes[n]);
    for (int64_t n = 0; n < size[0] * size[1]; n++)
        slopes[0][n] = slopes[1][n] = n < size[1] ? rng_unit() : slopes[0][n - size[1]];
    for (int n = 0; n < 2; n++) {
        attn_params *p = &t[n].p;
        const int shared = n == 0 ? 0 : axes;
        p->bias.data = n == 0 ? write_out(size, axes, bias, sizeof *bias) : (void *)bias;
        SHARE_PAIRS(p->bias, shared);
        p->bool_mask.data = n == 0 ? write_out(size, axes, shown, 1) : shown;
        SHARE_PAIRS(p->bool_mask, shared);
        if (round % 2 == 0) { /* as bits */
            p->bit_mask = p->bool_mask;
            p->bit_mask.data = pack_bits(p->bool_mask.data, count_pairs(size, shared));
            memset(&p->bool_mask, 0, sizeof p->bool_mask);
        }
        p->alibi_slopes = slopes[n];
        p->alibi_stride = n == 0 ? 0 : ATTN_STRIDE_BROADCAST;
    }
    same(&t[0], &t[1], "ATTN_STRIDE_BROADCAST");
}

/* ---- distances that 32 bits do not hold ------------------------------------------------------ */

/* One row sees the first and the last cell of more keys than memory holds, as all pages are one; it
 * stands at the last key or at the first. `alone`: it sees the far cell alone, and its scores are what
 * the distances, rounded to 24 bits, take away, so that every logit is 0. */
static void far_alibi(int round, int alone)
{
    enum { CELL = 16, PAGE_BITS = 20 };
    static const int power[] = { 30, 31, 32 };
    const int64_t far = (int64_t)1 << power[round % 3], page = 1 << PAGE_BITS;
    const int64_t keys = far + (alone ? rng_int(20, 60) : rng_int(1, 100));
    const int64_t last = (keys - 1) / CELL;
    const int ahead = round / 3;
    const int32_t offsets[] = { 0, alone ? 1 : 2 };
    const int32_t columns[] = { alone && ahead ? (int32_t)last : 0, (int32_t)last };
    const float slope = alone ? 1.0f : 1.0f / (float)far;
    float *rows = test_alloc((size_t)page * sizeof *rows), q = alone ? (float)far : 1, o, lse = 0;
    int32_t *table = test_alloc((size_t)(keys / page + 1) * sizeof *table);
    attn_params p = {
        .batch = 1, .num_heads_q = 1, .seq_len_q = 1, .seq_len_kv = keys, .head_dim = 1
    };
    double sum = 0;
    for (int64_t i = 0; i < page; i++)
        rows[i] = alone ? 1.0f : 0.0f;
    memset(table, 0, (size_t)(keys / page + 1) * sizeof *table);
    p.q.data = &q;
    p.k.data = p.v.data = rows;
    p.o.data = &o;
    p.lse.data = &lse;
    p.alignment = ahead ? ATTN_ALIGN_TOP_LEFT : ATTN_ALIGN_BOTTOM_RIGHT;
    p.kv_rows.page_size = page;
    p.kv_rows.num_pages = 1;
    p.kv_rows.table = table;
    p.block_mask.block_q = 1;
    p.block_mask.block_k = CELL;
    p.block_mask.row_offsets = offsets;
    p.block_mask.columns = columns;
    p.alibi_slopes = &slope;
    p.impl = ATTN_IMPL_TILED;
    if (!run_part(&p, "ALiBi of far keys"))
        return;
    for (int64_t j = 0; j < keys && !alone; j += j == CELL - 1 ? last * CELL - j : 1)
        sum += exp(-(double)slope * (double)(ahead ? j : keys - 1 - j));
    if (alone)
        sum = ahead ? (double)(keys - last * CELL) : CELL;
    CHECK(fabs((double)lse - log(sum)) < 1e-6, "%lld keys: lse is %.9g instead of %.9g",
          (long long)keys, (double)lse, log(sum));
}

static void law_far_alibi(int round)
{
    far_alibi(round, 0);
}

static void law_far_alibi_alone(int round)
{
    far_alibi(round, 1);
}

/* ---- terms that are neutral ------------------------------------------------------------------ */

static void law_neutral(int round)
{
    static const char *const no_terms[] = { "alibi", "sinks", "bias", NULL };
    static float zeros[16], minus_infinity[16];
    test_problem a, b;
    make_background(&a, NULL, 1, no_terms);
    twin(&a, &b);
    memset(zeros, 0, sizeof zeros);
    for (int h = 0; h < 16; h++)
        minus_infinity[h] = -HUGE_VALF;
    switch (round % 5) {
    case 0:
        b.p.alibi_slopes = zeros, b.p.alibi_stride = ATTN_STRIDE_BROADCAST;
        break;
    case 1:
        b.p.bias = one_element(zeros);
        break;
    case 2:
        b.p.sinks = minus_infinity;
        break;
    case 3:
        a.p.softmax1 = 1;
        b.p.sinks = zeros;
        break;
    default:
        b.p.scale = a.p.scale != 0 ? a.p.scale
                                   : (float)(1.0 / sqrt((double)a.p.head_dim)); /* the default */
        b.p.num_heads_kv = a.p.num_heads_kv != 0 ? a.p.num_heads_kv : a.p.num_heads_q;
        break;
    }
    same(&a, &b, "neutral term");
}

/* Small integers, or the same with each row turned round. */
static void make_integers(test_tensor *t, const test_tensor *turned)
{
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t s = 0; s < t->seq; s++)
                for (int64_t d = 0; d < t->dim; d++)
                    tensor_set(t, b, h, s, d,
                               turned ? tensor_get(turned, b, h, s, t->dim - 1 - d)
                                      : (float)rng_int(-60, 60));
    tensor_remember(t);
}

/* Where sums of q.k are exact, nothing rounds before the scale: their order changes no bit. */
static void law_exact_sums(int round)
{
    static const char *const no_sharing[] = { "shared", "varlen", "rows", "qkv", NULL };
    test_problem a, b;
    test_tensor q, k;
    (void)round;
    make_background(&a, NULL, 0, no_sharing);
    make_integers(&a.q, NULL);
    make_integers(&a.k, NULL);
    twin(&a, &b);
    tensor_make(&q, a.q.dtype, LAYOUT_PACKED, a.q.batch, a.q.heads, a.q.seq, a.q.dim);
    tensor_make(&k, a.k.dtype, LAYOUT_PACKED, a.k.batch, a.k.heads, a.k.seq, a.k.dim);
    make_integers(&q, &a.q);
    make_integers(&k, &a.k);
    b.q = q, b.k = k;
    b.p.q = tensor_input(&q), b.p.k = tensor_input(&k);
    same(&a, &b, "exact sums in another order");
}

/* ---- layouts --------------------------------------------------------------------------------- */

void copy_elements(const test_tensor *from, test_tensor *to, int64_t group)
{
    for (int64_t b = 0; b < to->batch; b++)
        for (int64_t h = 0; h < to->heads; h++)
            for (int64_t s = 0; s < to->seq; s++)
                for (int64_t d = 0; d < to->dim; d++)
                    tensor_set(to, b, h, s, d, tensor_get(from, b, h / group, s, d));
    tensor_remember(to);
}

void other_layout(test_tensor *t, attn_tensor *a, int64_t heads, int layout)
{
    test_tensor copy;
    tensor_make(&copy, t->dtype, layout, t->batch, heads, t->seq, t->dim);
    copy_elements(t, &copy, heads / t->heads);
    *t = copy;
    *a = tensor_input(t);
}

static void law_layouts(int round)
{
    static const char *const no_varlen[] = { "varlen", NULL };
    test_problem a, b;
    (void)round;
    make_background(&a, NULL, 1, no_varlen);
    twin(&a, &b);
    other_layout(&b.q, &b.p.q, b.q.heads, (int)rng_int(0, LAYOUT_NEGATIVE));
    other_layout(&b.k, &b.p.k, b.k.heads, (int)rng_int(0, LAYOUT_NEGATIVE));
    other_layout(&b.v, &b.p.v, b.v.heads, (int)rng_int(0, LAYOUT_NEGATIVE));
    tensor_make(&b.o, b.o.dtype, (int)rng_int(0, LAYOUT_NEGATIVE), b.o.batch, b.o.heads, b.o.seq,
                b.o.dim);
    tensor_make(&b.lse, ATTN_F32, (int)rng_int(0, LAYOUT_NEGATIVE), b.o.batch, b.o.heads, b.o.seq,
                1);
    tensor_remember(&b.o);
    tensor_remember(&b.lse);
    tensor_make(&b.stats, ATTN_F32, (int)rng_aside(0, LAYOUT_NEGATIVE), b.o.batch, b.o.heads,
                b.o.seq, 2);
    tensor_remember(&b.stats);
    b.p.stats = tensor_output(&b.stats);
    b.p.o = tensor_output(&b.o);
    b.p.lse = tensor_output(&b.lse);
    same(&a, &b, "layouts");
}

/* 0 = none. */
static const int64_t page_sizes[] = { 0, 1, 5, 16, 48, 256 };

/* Pages, a ring or both instead of one row after the other. */
static void law_elsewhere(int round)
{
    static const char *const no_varlen[] = { "varlen", NULL }, *const no_ids[] = { "segments",
                                                                                   NULL };
    const int varlen = round % 3 == 0;
    test_problem a, b;
    make_background(&a, varlen ? "varlen" : NULL, 1,
                    !varlen && round % 2 != 0 ? no_varlen : no_ids);
    twin(&a, &b);
    problem_scatter(&b, page_sizes[round % 6], round / 6 % 2);
    same(&a, &b, "keys elsewhere");
}

/* The same of a few rows, which read keys in place, with one worker and with five. */
static void law_few_elsewhere(int round)
{
    static const int64_t dims[] = { 16, 64, 80, 128 }, bases[] = { 0, 0, 3, 1021 };
    test_shape s = { .batch = rng_int(1, 2), .heads_kv = 2, .dtype_k = round % 3 };
    int64_t *base = test_alloc(2 * sizeof *base);
    pool workers = pool_of(5, POOL_SHUFFLED, 0);
    test_problem a, b;
    s.heads_q = s.heads_kv * rng_int(1, 8);
    s.seq_q = rng_int(1, 4);
    s.seq_kv = rng_int(20, rng_chance(20) ? 3000 : 600);
    s.dim = RNG_PICK(dims);
    s.dim_v = RNG_PICK(dims);
    s.dtype_v = rng_chance(30) ? (int)rng_int(0, 2) : s.dtype_k;
    s.factor_q = rng_chance(50) ? 4.0f : 1.0f;
    base[0] = RNG_PICK(bases);
    base[1] = RNG_PICK(bases);
    problem_make(&a, &s);
    a.p.causal = 1;
    a.p.key_base = rng_chance(50) ? base : NULL;
    twin(&a, &b);
    problem_scatter(&b, page_sizes[round % 6], round / 6 % 2);
    same(&a, &b, "few rows");
    b.p.num_workers = workers.workers;
    b.p.tuning = rng_chance(50) ? "attn-tuning 1 split_work 1 end" : NULL;
    b.p.parallel_for = pool_for;
    b.p.parallel_user = &workers;
    CHECK(test_run(&b.p) == ATTN_OK && problem_same_bits(&a, &b), "few rows, five workers");
}

/* Chunks cut at key 0, divided among workers: no entry of the table before the first is looked
 * at. */
static void law_table_begin(int round)
{
    test_shape s = { .batch = 1,
                     .heads_q = 1,
                     .heads_kv = 1,
                     .seq_q = 1,
                     .seq_kv = 2000,
                     .dim = 256,
                     .dtype_k = round % 2,
                     .dtype_v = round % 2 };
    const size_t bytes = (size_t)(s.seq_kv / 16) * sizeof(int32_t);
    int64_t *base = test_alloc(sizeof *base);
    int32_t *table = test_alloc_at(bytes, PLACE_PAGE_BEFORE);
    pool workers = pool_of(4, POOL_SHUFFLED, 0);
    test_problem a, b;
    *base = 1000;
    problem_make(&a, &s);
    a.p.key_base = base;
    twin(&a, &b);
    problem_scatter(&b, 16, 0);
    memcpy(table, b.p.kv_rows.table, bytes);
    b.p.kv_rows.table = table;
    b.p.num_workers = workers.workers;
    b.p.parallel_for = pool_for;
    b.p.parallel_user = &workers;
    same(&a, &b, "a table behind nothing");
}

/* A tile of keys begins in the first row of the ring; one row, which reads them in place. */
static void law_ring_edge(int round)
{
    test_shape s = { .batch = 1,
                     .heads_q = 2,
                     .heads_kv = 1 + round % 2,
                     .seq_q = 1,
                     .seq_kv = 200,
                     .dim = 16,
                     .dtype_k = round % 3,
                     .dtype_v = round % 3 };
    test_problem a, b;
    problem_make(&a, &s);
    twin(&a, &b);
    problem_ring(&b, round % 4 < 2 ? 0 : 16, 64);
    a.p.tile_keys = b.p.tile_keys = 64;
    same(&a, &b, "a tile at the end of a ring");
}

static void law_gqa(int round)
{
    static const char *const no_varlen[] = { "varlen", "layout", "key_list", NULL };
    test_problem a, b;
    (void)round;
    make_background(&a, "gqa", 1, no_varlen);
    twin(&a, &b);
    other_layout(&b.k, &b.p.k, b.p.num_heads_q, LAYOUT_PACKED);
    other_layout(&b.v, &b.p.v, b.p.num_heads_q, LAYOUT_BSHD);
    b.p.num_heads_kv = 0;
    same(&a, &b, "repeated heads");
}

/* f16 and bf16 inputs against the same values as f32. */
static void law_storage(int round)
{
    test_problem a, b;
    test_tensor *tensors[3];
    attn_tensor *inputs[3];
    make_background(&a, round % 2 == 0 ? "f16" : "bf16", 1,
                    (const char *const[]){ "varlen", NULL });
    a.o.dtype = ATTN_F32;
    twin(&a, &b);
    a.o = b.o;
    a.p.o = b.p.o;
    problem_new_output(&b);
    tensors[0] = &b.q, tensors[1] = &b.k, tensors[2] = &b.v;
    inputs[0] = &b.p.q, inputs[1] = &b.p.k, inputs[2] = &b.p.v;
    for (int n = 0; n < 3; n++) {
        test_tensor copy;
        tensor_make(&copy, ATTN_F32, LAYOUT_PACKED, tensors[n]->batch, tensors[n]->heads,
                    tensors[n]->seq, tensors[n]->dim);
        copy_elements(tensors[n], &copy, 1);
        *tensors[n] = copy;
        *inputs[n] = tensor_input(&copy);
    }
    same(&a, &b, "storage types");
}

/* K or V in a form that is copied tile by tile, with NaN between the rows: 16-bit, or f32 rows that
 * lie 1 KiB apart and compete for few cache lines. */
static attn_tensor copied_form(const test_tensor *from, int dtype)
{
    const ptrdiff_t pitch = 256;
    test_tensor to;
    attn_tensor rows;
    float *x;
    tensor_make(&to, dtype, LAYOUT_PADDED, from->batch, from->heads, from->seq, from->dim);
    copy_elements(from, &to, 1);
    if (dtype != ATTN_F32)
        return tensor_input(&to);
    x = test_alloc((size_t)(from->seq * pitch) * sizeof *x);
    for (int64_t h = 0; h < from->heads; h++)
        for (int64_t j = 0; j < from->seq; j++)
            for (int64_t d = 0; d < from->dim; d++)
                x[j * pitch + h * from->dim + d] = tensor_get(from, 0, h, j, d);
    rows = tensor_input(&to);
    rows.data = x;
    rows.stride_head = (ptrdiff_t)from->dim;
    rows.stride_seq = pitch;
    return rows;
}

/* Row tiles that share copies of K and V against row tiles alone: 64 workers leave nothing to
 * share. Lengths of whole chunks fill the merge tree, and key_base cuts it where it is fullest. */
static void law_copies(int round)
{
    static const int64_t dims[] = { 1, 16, 17, 31, 33 }, chunks[] = { 1, 2, 4 };
    const int dtype = round % 3, shape = round / 3 % 3; /* ATTN_F32, F16, BF16 */
    test_shape s = { .batch = 1, .heads_q = 8, .heads_kv = 2, .dtype_k = dtype, .dtype_v = dtype };
    const int one_more = round / 3 % 2; /* chunks than the keys alone would need */
    test_problem a, b;
    int64_t *base = test_alloc(sizeof *base);
    s.seq_q = rng_int(40, 60);
    s.seq_kv = RNG_PICK(chunks) * 1024 - (one_more || rng_chance(50) ? 0 : rng_int(1, 300));
    s.dim = RNG_PICK(dims);
    s.dim_v = RNG_PICK(dims);
    *base = 1024 * rng_int(0, 5) + (one_more ? rng_int(1, 1023) : rng_int(0, 1) * rng_int(0, 1023));
    problem_make(&b, &s);
    b.p.impl = ATTN_IMPL_TILED;
    b.p.causal = shape == 1;
    b.p.window = shape == 2 ? ATTN_WINDOW : 0;
    b.p.window_left = shape == 2 ? rng_int(0, 200) : 0;
    b.p.key_base = one_more || rng_chance(70) ? base : NULL;
    b.p.alignment = ATTN_ALIGN_BOTTOM_RIGHT;
    twin(&b, &a);
    for (int which = 0; which < 2; which++) {
        test_tensor *from = which ? &a.v : &a.k, packed;
        tensor_make(&packed, ATTN_F32, LAYOUT_PACKED, 1, s.heads_kv, s.seq_kv, from->dim);
        copy_elements(from, &packed, 1);
        *from = packed;
        *(which ? &a.p.v : &a.p.k) = tensor_input(&packed);
        *(which ? &b.p.v : &b.p.k) = copied_form(&packed, dtype);
    }
    a.p.num_workers = 64;
    same(&a, &b, "row tiles alone and with copies");
}

void vary_execution(attn_params *p, pool *workers)
{
    p->tile_keys = 16 << rng_int(0, 6);
    p->num_workers = workers->workers;
    p->parallel_for = pool_for;
    p->parallel_user = workers;
    if (rng_chance(50))
        p->kernels = attn_kernels_find("portable");
    p->force_redo = rng_chance(20);
}

/* ---- calls cut into parts -------------------------------------------------------------------- */

int run_part(const attn_params *p, const char *what)
{
    char text[300];
    const attn_status status = test_run(p);
    return CHECK(status == ATTN_OK, "%s: %s: %s", what, attn_status_string(status),
                 attn_check(p, text, 0, text, sizeof text));
}

static void law_batch(int round)
{
    static const char *const banned[] = { "dropout", "mask_fn", "score_fn", "bits",
                                          "bitmap",  "csr",     "tree",     NULL };
    test_problem a, b;
    make_background(&a, round % 2 == 0 ? "varlen" : NULL, 1, banned);
    twin(&a, &b);
    if (!problem_run(&a))
        return;
    for (int64_t n = b.p.batch; n-- > 0;) {
        attn_params part = b.p;
        slice_batch(&part, &b, n);
        if (!run_part(&part, "one batch entry"))
            return;
    }
    CHECK(problem_same_bits(&a, &b), "batch entries one by one%s",
          round % 2 == 0 ? ", varlen" : "");
}

static void law_heads(int round)
{
    test_problem a, b;
    (void)round;
    make_background(&a, NULL, 0, NULL);
    twin(&a, &b);
    if (!problem_run(&a))
        return;
    for (int64_t h = b.p.num_heads_q; h-- > 0;) {
        attn_params part = b.p;
        slice_head(&part, &b, h);
        if (!run_part(&part, "one head"))
            return;
    }
    CHECK(problem_same_bits(&a, &b), "heads one by one, the last first");
}

/* Rows in pieces of random size, or one by one. */
static void law_rows(int round)
{
    test_problem a, b;
    make_background(&a, round % 3 == 0 ? "dropout" : NULL, 0, NULL);
    twin(&a, &b);
    if (!problem_run(&a))
        return;
    for (int64_t i = 0; i < b.p.seq_len_q;) {
        const int64_t left = b.p.seq_len_q - i;
        const int64_t count = round % 2 == 0 ? 1 : rng_int(1, left);
        attn_params part = b.p;
        slice_rows(&part, &b, i, count);
        if (!run_part(&part, "some rows"))
            return;
        i += count;
    }
    CHECK(problem_same_bits(&a, &b), "rows in pieces%s", round % 2 == 0 ? " of one" : "");
}

/* A prompt as a model feeds it: each piece sees the keys known so far, by kv_len. */
static void law_prompt(int round)
{
    static const char *const banned[] = { "kv_len", "q_len", "causal", "prefix", "long", NULL };
    test_problem a, b;
    int32_t *lengths;
    (void)round;
    make_background(&a, NULL, 0, banned);
    a.p.causal = 1;
    a.p.alignment = ATTN_ALIGN_BOTTOM_RIGHT;
    a.p.q_offset = NULL;
    if (a.p.seq_len_q > a.p.seq_len_kv)
        return;
    twin(&a, &b);
    if (!problem_run(&a))
        return;
    lengths = test_alloc((size_t)a.p.batch * sizeof *lengths);
    for (int64_t i = 0; i < b.p.seq_len_q;) {
        const int64_t count = rng_int(1, b.p.seq_len_q - i);
        attn_params part = b.p;
        slice_rows(&part, &b, i, count);
        for (int64_t n = 0; n < a.p.batch; n++)
            lengths[n] = (int32_t)(b.p.seq_len_kv - b.p.seq_len_q + i + count);
        part.kv_len = lengths;
        part.alignment = ATTN_ALIGN_BOTTOM_RIGHT;
        part.q_offset = NULL;
        if (!run_part(&part, "a piece of the prompt"))
            return;
        i += count;
    }
    CHECK(problem_same_bits(&a, &b), "prompt in pieces");
}

/* kv_begin against pointers moved; key numbers restart at the first key present. */
static void law_begin(int round)
{
    static const char *const banned[] = { "kv_len", "key_base", "kv_begin", NULL };
    test_problem a, b;
    int32_t *begin;
    int64_t first;
    (void)round;
    make_background(&a, NULL, 0, banned);
    first = rng_int(0, a.p.seq_len_kv);
    begin = test_alloc((size_t)a.p.batch * sizeof *begin);
    for (int64_t b0 = 0; b0 < a.p.batch; b0++)
        begin[b0] = (int32_t)first;
    twin(&a, &b);
    a.p.kv_begin = begin;
    slice_keys(&b.p, &b, first, a.p.seq_len_kv - first);
    b.p.key_base = NULL;
    b.p.kv_len = NULL;
    b.p.alignment = a.p.alignment;
    b.p.q_offset = a.p.q_offset;
    b.p.prefix = a.p.prefix;
    if (a.p.prefix != NULL) { /* a prefix longer than the keys left would be refused */
        int32_t *prefix = test_alloc((size_t)a.p.batch * sizeof *prefix);
        for (int64_t b0 = 0; b0 < a.p.batch; b0++)
            prefix[b0] = (int32_t)rng_int(0, a.p.seq_len_kv - first);
        a.p.prefix = b.p.prefix = prefix;
    }
    same(&a, &b, "kv_begin and moved pointers");
}

/* ---- how to compute ------------------------------------------------------------------------- */

static void law_tiles(int round)
{
    static const int tiles[] = { 16, 32, 64, 128, 256, 512, 1024 };
    test_problem a, b;
    make_background(&a, round % 2 == 0 ? "long" : NULL, 1, NULL);
    if (!problem_run(&a))
        return;
    for (int n = 0; n < 3; n++) {
        twin(&a, &b);
        b.p.tile_keys = tiles[rng_int(0, (int64_t)(sizeof tiles / sizeof *tiles) - 1)];
        b.p.force_redo = n == 2;
        if (problem_run(&b))
            CHECK(problem_same_bits(&a, &b), "tile_keys %d%s", b.p.tile_keys,
                  n == 2 ? ", redo forced" : "");
    }
}

static void law_least_workspace(int round)
{
    static const char *const first[] = { "long", "f16", "bf16", NULL };
    test_problem a, b;
    make_background(&a, first[round % 4], 1, NULL);
    twin(&a, &b);
    if (problem_run(&a) && CHECK(test_run_least(&b.p) == ATTN_OK, "refused"))
        CHECK(problem_same_bits(&a, &b), "the least workspace gives other bits");
}

static void law_naive_whole(int round)
{
    test_problem a, b;
    (void)round;
    make_background(&a, NULL, 1, NULL);
    a.p.impl = ATTN_IMPL_NAIVE;
    twin(&a, &b);
    b.p.naive_whole = 1;
    same(&a, &b, "naive head by head and as a whole");
}

/* A sequence that starts at a chunk number beyond its own chunks meets the same tree. */
static void law_key_base(int round)
{
    static const char *const banned[] = { "key_base", "chunked", NULL };
    test_problem a, b;
    int64_t *base;
    make_background(&a, round % 2 == 0 ? "long" : NULL, 0, banned);
    base = test_alloc((size_t)a.p.batch * sizeof *base);
    for (int64_t n = 0; n < a.p.batch; n++)
        base[n] = 4096 * rng_int(0, 5);
    twin(&a, &b);
    b.p.key_base = base;
    same(&a, &b, "key_base of whole chunks");
}

/* ---- work that is not done ----------------------------------------------------------------------
 * A table that counts the keys of all qk calls: tiles without a visible pair must not be among
 * them. And pv_select belongs to the second pass, which only a NaN or an infinity asks for. */

static int64_t keys_seen;

static void *count_keys(int kernel, void *first)
{
    const attn_product *p = first;
    if (kernel == SPY_qk)
        keys_seen += p->n;
    return first;
}

static int is_seen_by(const attn_params *p, int64_t i, int64_t end, int64_t j)
{
    for (; i < end; i++)
        if (oracle_visible(p, 0, 0, i, j))
            return 1;
    return 0;
}

/* For each tile of rows: the runs of keys that some row sees, each widened to whole tiles. */
static int64_t most_keys(const attn_params *p, int64_t rows)
{
    int64_t most = 0;
    for (int64_t i = 0; i < p->seq_len_q; i += rows) {
        const int64_t end = i + rows < p->seq_len_q ? i + rows : p->seq_len_q;
        int before = 0;
        for (int64_t j = 0; j < p->seq_len_kv; j++) {
            const int seen = is_seen_by(p, i, end, j);
            most += seen + (seen && !before ? 2 * p->tile_keys : 0);
            before = seen;
        }
    }
    return most;
}

static void law_work(int round)
{
    static const char *const names[] = { "causal", "causal_off", "window", "chunked",  "bitmap",
                                         "csr",    "segments",   "kv_len", "mask_tile" };
    const int one = feature_find(names[round % (int)(sizeof names / sizeof *names)]);
    attn_kernels table;
    test_problem t;
    test_shape s;
    int64_t most;
    memset(&s, 0, sizeof s);
    s.batch = s.heads_q = 1;
    s.seq_q = rng_int(1, 150);
    s.seq_kv = rng_int(500, 1500);
    s.dim = s.dim_v = 2;
    features_make(&t, s, &one, 1);
    if (T.impl == ATTN_IMPL_NAIVE)
        return;
    t.p.impl = ATTN_IMPL_TILED;
    t.p.tile_keys = round % 2 ? 16 : 128;
    table = spy_on(attn_kernels_find(T.kernels), count_keys);
    keys_seen = 0;
    T.table = &table;
    problem_run(&t);
    T.table = NULL;
    most = most_keys(&t.p, table.rows) * (T.force_redo ? 2 : 1);
    CHECK(keys_seen <= most, "%s: %lld keys were multiplied, %lld may be", features[one].name,
          (long long)keys_seen, (long long)most);
    CHECK(T.force_redo || spy.calls[SPY_pv_select] == 0, "%s: done again for numbers",
          features[one].name);
}

/* Rows before the first sequence belong to none, also where one row's heads fill several tiles; and
 * tiles begin with any head of a group. */
static void law_late_start(int round)
{
    static const int64_t groups[] = { 5, 7, 64, 150 };
    static const int32_t cuts_q[] = { 1, 4, 9 }, cuts_kv[] = { 2, 7, 19 };
    const test_shape s = { .batch = 2,
                           .heads_q = 2 * groups[round % 4],
                           .heads_kv = 2,
                           .seq_q = 9,
                           .seq_kv = 19,
                           .dim = 8,
                           .dim_v = 4,
                           .varlen = 1,
                           .dtype_o = round % 3 };
    test_problem t;
    problem_make(&t, &s);
    t.p.cu_seqlens_q = cuts_q;
    t.p.cu_seqlens_kv = cuts_kv;
    problem_check(&t);
}

/* An infinity that all rows see is no reason to compute them again, also where lanes without a row,
 * whose queries are zero, see it, too. */
static void law_idle_lanes(int round)
{
    enum { DIM = 8, KEYS = 50, MOST_ROWS = 3 };
    const int64_t rows = 1 + round % MOST_ROWS;
    float q[MOST_ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM], o[MOST_ROWS * DIM];
    attn_kernels table = spy_on(attn_kernels_find(T.kernels), NULL);
    attn_params p = { .batch = 1,
                      .num_heads_q = 1,
                      .seq_len_q = rows,
                      .seq_len_kv = KEYS,
                      .head_dim = DIM,
                      .impl = round % 2 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED,
                      .kernels = &table };
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    for (int i = 0; i < MOST_ROWS * DIM; i++)
        q[i] = 0.5f + rng_unit();
    for (int i = 0; i < KEYS * DIM; i++) {
        k[i] = rng_normal();
        v[i] = rng_normal();
    }
    k[(round % KEYS) * DIM + round % DIM] = -INFINITY;
    CHECK(test_run(&p) == ATTN_OK && isfinite(o[0]), "the key is dead, its row is not");
    CHECK(T.force_redo || spy.calls[SPY_pv_select] == 0, "%lld rows are computed again",
          (long long)rows);
}

/* Calls with nothing but sizes, lengths and causal are short; test_run compares them with the long way. One
 * more field makes a call of another kind. */
static int short_calls;

static void make_short(test_problem *t, int one_more)
{
    static const char *const names[] = { "causal",   "kv_len",   "q_len",   "bshd",     "odd_dims",
                                         "scale",    "window",   "chunked", "softcap",  "bool",
                                         "key_base", "kv_begin", "sinks",   "softmax1", "alibi",
                                         "bias_f32", "segments", "dropout", "prefix" };
    static const int64_t groups[] = { 1, 2, 3, 7 };
    enum { SHORT_NAMES = 6, NAMES = sizeof names / sizeof *names };
    int list[NAMES], count = 0;
    test_shape s = shape_random();
    attn_params p;
    for (int n = 0; n < SHORT_NAMES; n++)
        if (rng_chance(40))
            list[count++] = feature_find(names[n]);
    if (one_more)
        list[count++] = feature_find(names[rng_int(SHORT_NAMES, NAMES - 1)]);
    s.seq_kv = rng_int(0, 1) ? rng_int(1, 40) : rng_int(1, 256);
    s.heads_kv = rng_int(1, 2);
    s.heads_q = s.heads_kv * RNG_PICK(groups);
    s.no_lse = 1;
    s.stats = STATS_NEVER;
    features_make(t, s, list, count);
    if (!t->p.q_offset)
        t->p.alignment = (int)rng_int(0, 1);
    p = test_params(&t->p);
    short_calls += test_is_short(&p);
}

static void law_short(int round)
{
    attn_kernels table = spy_on(attn_kernels_find(T.kernels), NULL);
    test_problem t;
    make_short(&t, round % 4 == 3);
    T.table = &table;
    problem_check(&t);
    T.table = NULL;
    CHECK(T.force_redo || spy.calls[SPY_pv_select] == 0, "rows are computed again");
}

/* An infinity or a NaN among the keys may be hidden or not. */
static void law_short_poison(int round)
{
    test_problem t;
    make_short(&t, 0);
    for (int n = 0; n < 1 + round % 3; n++) {
        test_tensor *x = rng_int(0, 1) ? &t.k : &t.v;
        const int64_t head = rng_int(0, x->heads - 1), key = rng_int(0, x->seq - 1);
        tensor_set(x, 0, head, key, rng_int(0, x->dim - 1), n % 2 ? NAN : INFINITY);
    }
    CHECK(test_run(&t.p) == ATTN_OK, "the call failed");
}

/* A short call runs in less than others need, and not in less than it touches. */
static void law_short_memory(int round)
{
    size_t least = 0, enough = 0;
    test_problem t, u;
    attn_params p;
    (void)round;
    if (T.backend != NULL) /* It has one size, and no short calls. */
        return;
    make_short(&t, 0);
    u = t;
    problem_new_output(&u);
    if (!problem_run(&t))
        return;
    p = test_params(&u.p);
    CHECK(attn_workspace_size(&p, &enough) == ATTN_OK, "attn_workspace_size failed");
    while (least < enough) {
        const size_t middle = least + (enough - least) / 2;
        const int mark = test_mark();
        void *const memory = test_alloc(middle);
        const int ok = strcmp(attn_check(&p, memory, middle, NULL, 0), "ok") == 0;
        CHECK((attn_forward(&p, memory, middle) == ATTN_OK) == ok,
              "attn_check says otherwise of a workspace of %lu", (unsigned long)middle);
        if (ok)
            enough = middle;
        else
            least = middle + 1;
        CHECK(test_margins() == 0, "bytes beyond a workspace of %lu were written",
              (unsigned long)middle);
        test_release_to(mark);
    }
    CHECK(problem_same_bits(&t, &u), "other bits in little memory");
}

/* ---- the group ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(int round);
    int rounds;
} laws[] = {
    { "a mask said in another way", law_masks, 150 },
    { "cells chunks apart", law_far_cells, 40 },
    { "lists of keys", law_lists, 80 },
    { "CSR and bitmap", law_csr, 15 },
    { "bits with negative strides", law_negative_bits, 24 },
    { "a window wider than all", law_wide_window, 30 },
    { "axes that are shared", law_broadcast, 40 },
    { "full and empty tiles ask no mask", law_classifier, 20 },
    { "neutral terms", law_neutral, 40 },
    { "exact sums in another order", law_exact_sums, 40 },
    { "layouts", law_layouts, 30 },
    { "keys elsewhere", law_elsewhere, 96 },
    { "keys elsewhere, few rows", law_few_elsewhere, 96 },
    { "a table behind nothing", law_table_begin, 4 },
    { "GQA and repeated heads", law_gqa, 20 },
    { "storage types and f32", law_storage, 20 },
    { "row tiles that share copies", law_copies, 18 },
    { "batch entries one by one", law_batch, 40 },
    { "heads one by one", law_heads, 20 },
    { "rows in pieces", law_rows, 40 },
    { "prompt in pieces", law_prompt, 30 },
    { "kv_begin and moved pointers", law_begin, 30 },
    { "tiles and redo", law_tiles, 50 },
    { "the least workspace", law_least_workspace, 40 },
    { "naive_whole", law_naive_whole, 20 },
    { "key_base of whole chunks", law_key_base, 20 },
    { "empty tiles are not visited", law_work, 36 },
    { "rows before the first sequence", law_late_start, 8 },
    { "lanes without a row", law_idle_lanes, 24 },
    { "short calls", law_short, 120 },
    { "short calls, NaN and infinities", law_short_poison, 60 },
    { "short calls in little memory", law_short_memory, 24 },
    { "partial states merged", law_merge, 24 },
    { "the sign of a zero in a state", law_zero_sign, 4 },
    { "attn_lse_merge", law_lse_merge, 24 },
    { "empty parts merged", law_empty_parts, 12 },
    { "parts of the rows", law_row_parts, 60 },
    { "logits of parts", law_logits_parts, 80 },
    { "parts of the keys", law_key_parts, 100 },
    { "a range of keys", law_key_range, 40 },
    { "parts of quantised keys", law_stored_parts, 40 },
    { "ALiBi of far keys", law_far_alibi, 6 },
    { "dropout as told", law_dropout, 40 },
    { "Philox known answers", law_philox, 1 },
    { "probabilities beyond the range", law_keep_range, 4 },
    { "a ring that ends with a tile", law_ring_edge, 12 },
    { "ALiBi of far keys alone", law_far_alibi_alone, 6 },
};

TEST_GROUP(laws, RUN_EACH_SET, "what must be equal bit for bit: layouts, chunks, tiles, merges")
{
    if (!T.exact) {
        SKIP("what is equal bit for bit is asked of exact devices");
        return;
    }
    for (size_t n = 0; n < sizeof laws / sizeof *laws; n++) {
        const int rounds = T.best ? laws[n].rounds : (laws[n].rounds + 3) / 4;
        for (int round = 0; round < laws[n].rounds; round++)
            if (round >= rounds && T.only_case < 0)
                pass_over_case();
            else if (begin_case("%s, %d", laws[n].name, round))
                laws[n].run(round);
    }
    CHECK(gathered > 0 || !all_cases_run(), "no call read only listed keys");
    CHECK(divided > 0 || !all_cases_run(), "no list of keys was divided among workers");
    CHECK(short_calls > 0 || T.impl == ATTN_IMPL_NAIVE || T.force_redo || T.backend ||
              !all_cases_run(),
          "no call was short");
}
