/* kernel_tiles.c - each kernel of a set on a tile of numbers, against the portable set.
 * SPDX-License-Identifier: MIT
 *
 * A tile holds every array that any kernel reads or writes; a kernel is one line of `entries` and
 * one run function. The value of an element depends on array, index and lane alone, so the portable
 * kernel, whose tiles have other rows, can be run on any lanes of a tile: all arrays are then
 * compared, those that the kernel must leave alone among them. What sums over lanes goes into C,
 * which the portable kernel, run on one part of the lanes after the other, fills in the same way.
 *
 * Logits, maxima and exponentials go by blocks of 16 keys, as in a call; the last entry, `tile`, is
 * a whole tile of keys as attn.c works it off. */
#include "kernel_tiles.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum { KEYS = KERNEL_KEYS, BLOCKS = KEYS / ATTN_BLOCK };
enum { LINE = 64, STAGGER = 3 * LINE }; /* LINE: bytes */
enum { UNIT = 32, UNIT_BYTES = 34 };    /* of q8_0 */
enum { LINE_FLOATS = LINE / (int)sizeof(float) };
#define START_MAXIMUM 4.0f

/* MILD is what is timed: no maximum moves. WILD: maxima move, some have not begun, keys are dead,
 * logits are too large to be calm; every kernel then changes something. */
typedef enum mood_kind { MILD, WILD } mood_kind;
static const float logit_spread[] = { 2.0f, 100.0f };
static const float key_spread[] = { 1.0f, 20.0f };

/* M, TOP: maxima; E, CALM: logits whose exponentials are taken, those of CALM with TOP calm; DP to
 * CHOSEN: of gradients, X_ALL and X_SOME the factors of rows B_ALL and B_SOME. WHOLE: queries in whole
 * numbers, a unit more than they have; SCALES: [unit][lane], more than there are. */
typedef enum array_id {
    Q,
    QT,
    S,
    E,
    CALM,
    BIAS,
    IDS,
    FACTOR,
    M,
    TOP,
    L,
    ALPHA,
    DECAY,
    O,
    OUT,
    A,
    B,
    F16,
    BF16,
    HALVES,
    ALIVE,
    SEEN,
    MASK,
    BEGIN,
    END,
    DP,
    SUM_M,
    SUM_R,
    DELTA,
    TANH,
    P,
    X_SOME,
    B_ALL,
    B_SOME,
    WHOLE,
    SCALES,
    NUM_ARRAYS
} array_id;

/* Of an array's elements: an attn_dtype or one of these. */
enum { INT = ATTN_BF16 + 1 };
static const size_t type_bytes[] = { sizeof(float), 2, 2, sizeof(int) };

typedef enum fill_kind {
    SIGNED,
    POSITIVE,
    ONE,
    SPREAD,
    MORTAL,
    MAXIMUM,
    BEGUN,
    RATIO,
    BITS,
    FROM,
    UNTIL,
    SUM,
    TANGENT,
    MAYBE_DEAD,
    DEAD_LANES,
    INFINITE_LANES,
    WHOLE_NUMBERS
} fill_kind;

/* Length of an array per lane = keys * KEYS + dims * head_dim + pitches * (head_dim in whole cache
 * lines) + more. */
static const struct {
    int keys, dims, pitches, more;
    int lane_major; /* [lane][index], else [index][lane] */
    int type;
    fill_kind fill;
} arrays[NUM_ARRAYS] = {
    [Q] = { 0, 1, 0, 0, 1, ATTN_F32, SIGNED },
    [QT] = { 0, 1, 0, 0, 0, ATTN_F32, SIGNED },
    [S] = { 1, 0, 0, 0, 0, ATTN_F32, SPREAD },
    [E] = { 1, 0, 0, 0, 0, ATTN_F32, MORTAL },
    [CALM] = { 1, 0, 0, 0, 0, ATTN_F32, SIGNED },
    [BIAS] = { 1, 0, 0, 0, 1, ATTN_F32, MORTAL },
    [IDS] = { 1, 0, 0, 0, 1, INT, FROM },
    [FACTOR] = { 0, 0, 0, 1, 0, ATTN_F32, POSITIVE },
    [M] = { 0, 0, 0, 1, 0, ATTN_F32, BEGUN },
    [TOP] = { 0, 0, 0, 1, 0, ATTN_F32, MAXIMUM },
    [L] = { 0, 0, 0, 1, 0, ATTN_F32, POSITIVE },
    [ALPHA] = { 0, 0, 0, BLOCKS, 0, ATTN_F32, ONE },
    [DECAY] = { 0, 0, 0, 1, 0, ATTN_F32, RATIO },
    [O] = { 0, 1, 0, 0, 0, ATTN_F32, SIGNED },
    [OUT] = { 0, 1, 0, 0, 1, ATTN_F32, SIGNED },
    [A] = { 0, 1, 0, 2, 0, ATTN_F32, POSITIVE }, /* states: m, l, o */
    [B] = { 0, 1, 0, 2, 0, ATTN_F32, POSITIVE },
    [F16] = { 0, 1, 0, 0, 1, ATTN_F16, SIGNED },
    [BF16] = { 0, 1, 0, 0, 1, ATTN_BF16, SIGNED },
    [HALVES] = { 0, 1, 0, 0, 1, ATTN_F16, ONE },
    [ALIVE] = { 0, 0, 0, KEYS / ATTN_ALIVE_BITS, 0, INT, BITS },
    [SEEN] = { 0, 0, 0, KEYS / ATTN_ALIVE_BITS, 0, INT, BITS },
    [MASK] = { 0, 0, 0, KEYS / (int)sizeof(int), 1, INT, BITS }, /* bytes, many of them 0 */
    [BEGIN] = { 0, 0, 0, 1, 0, INT, FROM },
    [END] = { 0, 0, 0, 1, 0, INT, UNTIL },
    [DP] = { 1, 0, 0, 0, 0, ATTN_F32, SIGNED },
    [SUM_M] = { 0, 0, 0, 1, 0, ATTN_F32, SUM },
    [SUM_R] = { 0, 0, 0, 1, 0, ATTN_F32, POSITIVE },
    [DELTA] = { 0, 0, 0, 1, 0, ATTN_F32, SIGNED },
    [TANH] = { 1, 0, 0, 0, 0, ATTN_F32, TANGENT },
    [P] = { 1, 0, 0, 0, 0, ATTN_F32, MAYBE_DEAD },
    [X_SOME] = { 1, 0, 0, 0, 0, ATTN_F32, DEAD_LANES },
    [B_ALL] = { 0, 0, 1, 0, 1, ATTN_F32, SIGNED },
    [B_SOME] = { 0, 0, 1, 0, 1, ATTN_F32, INFINITE_LANES },
    [WHOLE] = { 0, 1, 0, UNIT, 1, ATTN_F32, WHOLE_NUMBERS },
    [SCALES] = { 0, 1, 0, 1, 0, ATTN_F32, POSITIVE },
};

typedef struct kernel_tile {
    int rows, first, of; /* lane r holds the numbers of lane (first + r) % of */
    mood_kind mood;
    int64_t dim;
    attn_lanes lanes; /* that products are asked for */
    void *array[NUM_ARRAYS];
    const float *q[ATTN_KERNEL_MAX_ROWS]; /* rows of Q */
    float *out[ATTN_KERNEL_MAX_ROWS];     /* rows of OUT */
    float *k, *v;                         /* [KEYS][dim] */
    int64_t units;                        /* of a row of dim numbers, at least one */
    unsigned char *key_units;             /* [KEYS][units] of q8_0 */
    float *packed;     /* what pack_units gives, which each set has in its own way */
    float *c;          /* [KEYS][pitch], sums over lanes */
    ptrdiff_t pitch;   /* dim in whole cache lines */
    int found[BLOCKS]; /* what running_max says about a block */
    int group;         /* how often over the rows are summed over, as if they were other tiles */
    void *memory;
} tile;

/* ---- the kernels: to add one, add a run function and a line of `entries` */

static float *numbers(const tile *t, int id)
{
    return t->array[id];
}

/* Block b of an array [KEYS][rows]. */
static float *block(const tile *t, int id, int b)
{
    return numbers(t, id) + (ptrdiff_t)b * ATTN_BLOCK * t->rows;
}

static void run_pack(const attn_kernels *f, tile *t)
{
    f->pack(t->array[QT], t->q, t->dim);
}

static void blocks_qk(const attn_kernels *f, tile *t, int begin, int end)
{
    const attn_product p = { .to = block(t, S, begin),
                             .by = t->array[QT],
                             .kv = t->k + begin * ATTN_BLOCK * t->dim,
                             .stride = (ptrdiff_t)t->dim,
                             .n = (end - begin) * ATTN_BLOCK,
                             .dim = t->dim,
                             .factor = 0.125f,
                             .lanes = t->lanes };
    f->qk(&p);
}

static void run_qk(const attn_kernels *f, tile *t)
{
    blocks_qk(f, t, 0, BLOCKS);
}

static void run_pack_units(const attn_kernels *f, tile *t)
{
    const float *q[ATTN_KERNEL_MAX_ROWS];
    for (int r = 0; r < t->rows; r++)
        q[r] = numbers(t, WHOLE) + r * (t->dim + UNIT);
    f->pack_units(t->packed, q, t->units * UNIT);
}

static void run_qk_units(const attn_kernels *f, tile *t)
{
    const char *const run[2] = { (const char *)t->key_units, (const char *)t->key_units };
    const attn_runs runs = { ATTN_Q8_0, (ptrdiff_t)(t->units * UNIT_BYTES), KEYS, KEYS, run };
    const attn_product p = { .to = t->array[S],
                             .by = t->packed,
                             .runs = &runs,
                             .n = KEYS,
                             .dim = t->units * UNIT,
                             .factor = 0.125f,
                             .lanes = t->lanes,
                             .scales = t->array[SCALES] };
    f->qk_units(&p);
}

/* The exponentials of block b, in all lanes. */
static attn_exp block_exp(const tile *t, int logits, int b, int maximum, int calm)
{
    attn_exp e = { NULL, ATTN_BLOCK, NULL, NULL, { 0, 0 }, 0 };
    e.s = block(t, logits, b);
    e.m = numbers(t, maximum);
    e.l = numbers(t, L);
    e.lanes.end = t->rows;
    e.calm = calm;
    return e;
}

static void run_exp_block(const attn_kernels *f, tile *t)
{
    for (int b = 0; b < BLOCKS; b++) {
        const attn_exp alone = block_exp(t, CALM, b, TOP, 1);
        f->exp_block(&alone);
    }
}

static void run_softcap(const attn_kernels *f, tile *t)
{
    f->softcap(t->array[S], KEYS, 32.0f, 0.03125f);
}

static void run_scale_keys(const attn_kernels *f, tile *t)
{
    float signs[KEYS];
    for (int j = 0; j < KEYS; j++)
        signs[j] = j % 3 ? 1.0f : -1.0f;
    f->scale_keys(t->array[S], signs, KEYS);
}

static void run_add_distances(const attn_kernels *f, tile *t)
{
    f->add_distances(t->array[S], t->array[BEGIN], t->array[FACTOR], KEYS);
}

static void run_add_rows(const attn_kernels *f, tile *t)
{
    const float *rows[ATTN_KERNEL_MAX_ROWS];
    for (int r = 0; r < t->rows; r++)
        rows[r] = numbers(t, BIAS) + r * KEYS;
    f->add_rows(t->array[S], rows, 1.5f, KEYS);
}

static void run_clip(const attn_kernels *f, tile *t)
{
    f->clip(t->array[S], KEYS, t->array[BEGIN], t->array[END]);
}

static void run_hide(const attn_kernels *f, tile *t)
{
    f->hide(t->array[S], KEYS, t->array[ALIVE], 0);
}

static void run_hide_bytes(const attn_kernels *f, tile *t)
{
    for (int r = 0; r < t->rows; r++)
        f->hide_bytes((uint32_t *)t->array[SEEN] + r, t->rows,
                      (const uint8_t *)t->array[MASK] + r * KEYS, KEYS, 0);
}

static void run_hide_others(const attn_kernels *f, tile *t)
{
    for (int r = 0; r < t->rows; r++)
        f->hide_others((uint32_t *)t->array[SEEN] + r, t->rows,
                       (const int32_t *)t->array[IDS] + r * KEYS, KEYS, 8);
}

static void block_max(const attn_kernels *f, tile *t, int b)
{
    t->found[b] = f->running_max(block(t, S, b), ATTN_BLOCK, t->array[M], t->array[L],
                                 numbers(t, ALPHA) + b * t->rows);
}

static void run_running_max(const attn_kernels *f, tile *t)
{
    for (int b = 0; b < BLOCKS; b++)
        block_max(f, t, b);
}

static void run_maximum(const attn_kernels *f, tile *t)
{
    f->maximum(t->array[S], KEYS, t->array[M]);
}

static void run_exp_sum(const attn_kernels *f, tile *t)
{
    f->exp_sum(t->array[E], KEYS, 0.0f, t->array[M], t->array[L]);
}

/* The lanes' integers serve as their counters. */
static void run_drop(const attn_kernels *f, tile *t)
{
    attn_drop d = { .below = 0x40000000u,
                    .first_n = 0xfffffff0u, /* it begins anew on the way */
                    .step = 1,
                    .batch = 3,
                    .pos = t->array[BEGIN],
                    .head = t->array[END],
                    .dead = ATTN_DEAD };
    for (uint32_t i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
        d.round_keys[i][0] = ATTN_PHILOX_KEY_0 * (i + 1);
        d.round_keys[i][1] = ATTN_PHILOX_KEY_1 * (i + 2);
    }
    f->drop(t->array[S], KEYS, &d);
}

static void run_rescale(const attn_kernels *f, tile *t)
{
    f->rescale(t->array[O], t->array[DECAY], t->dim);
}

/* Blocks begin..end-1. */
static attn_product values_of(tile *t, int begin, int end)
{
    const attn_product p = { .to = t->array[O],
                             .by = block(t, S, begin),
                             .kv = t->v + begin * ATTN_BLOCK * t->dim,
                             .stride = (ptrdiff_t)t->dim,
                             .n = (end - begin) * ATTN_BLOCK,
                             .dim = t->dim,
                             .lanes = t->lanes };
    return p;
}

static void blocks_pv(const attn_kernels *f, tile *t, int begin, int end)
{
    const attn_product p = values_of(t, begin, end);
    f->pv(&p);
}

static void run_pv(const attn_kernels *f, tile *t)
{
    blocks_pv(f, t, 0, BLOCKS);
}

static void run_pv_select(const attn_kernels *f, tile *t)
{
    const attn_product p = values_of(t, 0, BLOCKS);
    f->pv_select(&p);
}

static void run_merge(const attn_kernels *f, tile *t)
{
    f->merge(t->array[A], t->array[B], t->dim);
}

static void run_result(const attn_kernels *f, tile *t)
{
    f->result(t->out, t->array[O], t->array[L], 1.0f, t->dim);
}

static void run_gradient(const attn_kernels *f, tile *t)
{
    attn_row_stats of = { t->array[SUM_M], t->array[SUM_R], 127.0f, t->array[DELTA] };
    const int half = KEYS / 2 * t->rows;
    f->gradient(t->array[E], t->array[DP], KEYS / 2, &of);
    of.most = 0.0f; /* as from the LSE alone */
    f->gradient(numbers(t, E) + half, numbers(t, DP) + half, KEYS / 2, &of);
}

static void run_softcap_gradient(const attn_kernels *f, tile *t)
{
    f->softcap_gradient(t->array[DP], t->array[TANH], t->array[P], KEYS);
}

/* Each lane adds to the sums once: a tile's last lanes may be its first again. */
static attn_lanes new_lanes(const tile *t)
{
    attn_lanes lanes = t->lanes;
    if (lanes.end > t->of - t->first)
        lanes.end = t->of - t->first;
    return lanes;
}

static void sum_rows(void (*outer)(const attn_outer *f), const tile *t, int x, int b)
{
    const attn_term one = { t->array[x], t->array[b], new_lanes(t), 0, KEYS };
    attn_term group[KERNEL_MOST_GROUP];
    const attn_outer f = { .to = t->c,
                           .stride = t->pitch,
                           .n = KEYS,
                           .columns = t->dim,
                           .term = group,
                           .count = t->group,
                           .b_stride = t->pitch };
    for (int i = 0; i < t->group; i++)
        group[i] = one;
    outer(&f);
}

static void run_outer(const attn_kernels *f, tile *t)
{
    sum_rows(f->outer, t, DP, B_ALL);
}

static void run_outer_select(const attn_kernels *f, tile *t)
{
    sum_rows(f->outer_select, t, X_SOME, B_SOME);
}

static void run_dots(const attn_kernels *f, tile *t)
{
    f->dots(t->array[DELTA], t->array[QT], t->array[O], t->dim);
}

/* As a call does it: row by row. */
static void widen(void (*kernel)(float *, const uint16_t *, int64_t), tile *t, int from)
{
    for (int r = 0; r < t->rows; r++)
        kernel(t->out[r], (const uint16_t *)t->array[from] + r * t->dim, t->dim);
}

/* The same of rows of 16-bit numbers taken for 8-bit floats, or for whole units of 32 numbers and their
 * scales; of a row of less than one its first numbers. */
static void widen_bytes(void (*kernel)(float *, const uint8_t *, int64_t), tile *t, int unit)
{
    const int64_t whole = t->dim / unit * unit;
    float one[32];
    for (int r = 0; r < t->rows; r++) {
        const uint8_t *const from = (const uint8_t *)t->array[F16] + r * t->dim * 2;
        kernel(whole ? t->out[r] : one, from, whole ? whole : unit);
        if (!whole)
            memcpy(t->out[r], one, (size_t)t->dim * sizeof *one);
    }
}

#define RUN_WIDEN_BYTES(name, unit)                                                                \
    static void run_##name(const attn_kernels *f, tile *t)                                         \
    {                                                                                              \
        widen_bytes(f->name, t, unit);                                                             \
    }
RUN_WIDEN_BYTES(widen_e4m3, 1)
RUN_WIDEN_BYTES(widen_e5m2, 1)
RUN_WIDEN_BYTES(widen_q8_0, 32)
RUN_WIDEN_BYTES(widen_q5_0, 32)
RUN_WIDEN_BYTES(widen_q4_0, 32)

static void run_widen_i8(const attn_kernels *f, tile *t)
{
    for (int r = 0; r < t->rows; r++)
        f->widen_i8(t->out[r], (const int8_t *)t->array[F16] + r * t->dim * 2,
                    (const float *)t->array[FACTOR] + r, 0, t->dim);
}

static void narrow(void (*kernel)(uint16_t *, const float *, int64_t), tile *t)
{
    for (int r = 0; r < t->rows; r++)
        kernel((uint16_t *)t->array[HALVES] + r * t->dim, t->q[r], t->dim);
}

static void run_widen_f16(const attn_kernels *f, tile *t)
{
    widen(f->widen_f16, t, F16);
}

static void run_widen_bf16(const attn_kernels *f, tile *t)
{
    widen(f->widen_bf16, t, BF16);
}

static void run_narrow_f16(const attn_kernels *f, tile *t)
{
    narrow(f->narrow_f16, t);
}

static void run_narrow_bf16(const attn_kernels *f, tile *t)
{
    narrow(f->narrow_bf16, t);
}

/* Logits of all blocks at once, then their maxima and exponentials one by one. */
static void tile_blocks(const attn_kernels *f, tile *t)
{
    blocks_qk(f, t, 0, BLOCKS);
    for (int b = 0; b < BLOCKS; b++) {
        attn_exp e;
        block_max(f, t, b);
        e = block_exp(t, S, b, M, t->found[b] & ATTN_IS_CALM);
        f->exp_block(&e);
    }
}

/* Blocks without a rescale between them in one step. */
static void tile_values(const attn_kernels *f, tile *t)
{
    for (int begin = 0, end; begin < BLOCKS; begin = end) {
        for (end = begin + 1; end < BLOCKS && !(t->found[end] & ATTN_RAISED); end++)
            continue;
        if (t->found[begin] & ATTN_RAISED)
            f->rescale(t->array[O], numbers(t, ALPHA) + begin * t->rows, t->dim);
        blocks_pv(f, t, begin, end);
    }
}

static void run_tile(const attn_kernels *f, tile *t)
{
    tile_blocks(f, t);
    tile_values(f, t);
}

/* No block with a logit above ATTN_CALM may be called calm. */
static int calm_holds(const tile *t)
{
    for (int i = 0; i < KEYS * t->rows; i++) {
        const float s = numbers(t, S)[i];
        if (t->found[i / (ATTN_BLOCK * t->rows)] & ATTN_IS_CALM &&
            !(s >= -ATTN_CALM && s <= ATTN_CALM))
            return 0;
    }
    return 1;
}

const kernel_entry kernel_entries[] = {
    { "pack", run_pack, 0, BYTES, .amount = 8 },
    { "qk", run_qk, 1, PRODUCT, .amount = 1 },
    { "qk_lanes", run_qk, 1, PRODUCT, .amount = 1, .halved = S },
    { "pack_units", run_pack_units, 0, BYTES, .amount = 4, .behind = run_qk_units },
    { "qk_units", run_qk_units, 1, PRODUCT, .amount = 1, .before = run_pack_units },
    { "softcap", run_softcap, 1, BYTES, .amount = 8 },
    { "scale_keys", run_scale_keys, 1, BYTES, .amount = 8 },
    { "add_distances", run_add_distances, 1, BYTES, .amount = 8 },
    { "add_rows", run_add_rows, 1, BYTES, .amount = 12 },
    { "clip", run_clip, 1, BYTES, .amount = 8 },
    { "hide", run_hide, 1, BYTES, .amount = 8 },
    { "hide_bytes", run_hide_bytes, 1, BYTES, .amount = 1 },
    { "hide_others", run_hide_others, 1, BYTES, .amount = 4 },
    { "drop", run_drop, 1, BYTES, .amount = 8 },
    { "running_max", run_running_max, 1, BYTES, .amount = 4, .holds = calm_holds },
    { "maximum", run_maximum, 1, BYTES, .amount = 4 },
    { "exp_sum", run_exp_sum, 1, EXPONENTIAL, .amount = 1 },
    { "exp_block", run_exp_block, 1, EXPONENTIAL, .amount = 1 },
    { "rescale", run_rescale, 0, BYTES, .amount = 8 },
    { "pv", run_pv, 0, PRODUCT, .amount = 1 },
    { "pv_lanes", run_pv, 0, PRODUCT, .amount = 1, .halved = O },
    { "pv_select", run_pv_select, 0, PRODUCT, .amount = 1 },
    { "merge", run_merge, 0, BYTES, .amount = 12 },
    { "result", run_result, 0, BYTES, .amount = 8 },
    { "widen_f16", run_widen_f16, 0, BYTES, .amount = 6 },
    { "widen_bf16", run_widen_bf16, 0, BYTES, .amount = 6 },
    { "widen_e4m3", run_widen_e4m3, 0, BYTES, .amount = 5 },
    { "widen_e5m2", run_widen_e5m2, 0, BYTES, .amount = 5 },
    { "widen_q8_0", run_widen_q8_0, 0, BYTES, .amount = 5 },
    { "widen_q5_0", run_widen_q5_0, 0, BYTES, .amount = 5 },
    { "widen_q4_0", run_widen_q4_0, 0, BYTES, .amount = 5 },
    { "widen_i8", run_widen_i8, 0, BYTES, .amount = 5 },
    { "narrow_f16", run_narrow_f16, 0, BYTES, .amount = 6 },
    { "narrow_bf16", run_narrow_bf16, 0, BYTES, .amount = 6 },
    { "tile", run_tile, 1, PRODUCT, .amount = 2 }, /* Q K^T and P V */
    { "gradient", run_gradient, 1, EXPONENTIAL, .amount = 1 },
    { "softcap_gradient", run_softcap_gradient, 1, BYTES, .amount = 16 },
    { "outer", run_outer, 1, PRODUCTS, .amount = 1 },
    { "outer_select", run_outer_select, 1, PRODUCTS, .amount = 1 },
    { "dots", run_dots, 0, BYTES, .amount = 8 },
};

const int num_kernel_entries = LENGTH(kernel_entries);

/* ---- tiles */

static int64_t array_length(const tile *t, int id)
{
    return (int64_t)arrays[id].keys * KEYS + arrays[id].dims * t->dim +
           arrays[id].pitches * t->pitch + arrays[id].more;
}

static unsigned char *element(const tile *t, int id, int64_t index, int lane)
{
    const int64_t at =
        arrays[id].lane_major ? lane * array_length(t, id) + index : index * t->rows + lane;
    return (unsigned char *)t->array[id] + (size_t)at * type_bytes[arrays[id].type];
}

/* In whole lines, and staggered: arrays at the same offset of a page would stand in each other's
 * way. */
static size_t place(int64_t count, size_t bytes)
{
    return ((size_t)count * bytes + LINE - 1) / LINE * LINE + STAGGER;
}

static size_t array_place(const tile *t, int id)
{
    return place(t->rows * array_length(t, id), type_bytes[arrays[id].type]);
}

static int make_tile(tile *t, int rows, int64_t dim)
{
    size_t bytes = LINE;
    memset(t, 0, sizeof *t);
    t->rows = rows;
    t->group = 1;
    t->dim = dim;
    t->pitch = (ptrdiff_t)((dim + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS);
    t->lanes.end = rows;
    for (int id = 0; id < NUM_ARRAYS; id++)
        bytes += array_place(t, id);
    t->units = dim < UNIT ? 1 : dim / UNIT;
    bytes += 2 * place(KEYS * dim, sizeof(float)) + place(KEYS * t->pitch, sizeof(float)) +
             place(KEYS * t->units, UNIT_BYTES) + place(rows * t->units * UNIT, sizeof(float));
    t->memory = malloc(bytes);
    if (!t->memory)
        return 0;
    unsigned char *at = (unsigned char *)t->memory + (LINE - (uintptr_t)t->memory % LINE);
    for (int id = 0; id < NUM_ARRAYS; id++) {
        t->array[id] = at;
        at += array_place(t, id);
    }
    t->k = (float *)(void *)at;
    t->v = (float *)(void *)(at + place(KEYS * dim, sizeof(float)));
    at += 2 * place(KEYS * dim, sizeof(float));
    t->c = (float *)(void *)at;
    t->key_units = at + place(KEYS * t->pitch, sizeof(float));
    t->packed = (float *)(void *)(t->key_units + place(KEYS * t->units, UNIT_BYTES));
    for (int r = 0; r < rows; r++) {
        t->q[r] = numbers(t, Q) + r * dim;
        t->out[r] = numbers(t, OUT) + r * dim;
    }
    return 1;
}

/* In (-1, 1), the same for the same three numbers. */
static float hashed(int id, int64_t index, int lane)
{
    uint64_t z = (uint64_t)index * 0x9e3779b97f4a7c15u + (uint64_t)lane * 0xd1b54a32d192ed03u +
                 (uint64_t)id * 0x8cb92ba72f3d8dd7u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((z ^ (z >> 31)) >> 40) / 8388608.0f - 1.0f; /* 24 bits */
}

static float negative_infinity(void)
{
    const uint32_t u = 0xff800000u;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* So low that exponents of p reach their limit; so high that p is 0; as usual. */
static float wild_sum(int lane)
{
    return lane % 4 == 1 ? -60.0f : lane % 4 == 3 ? 60.0f : START_MAXIMUM;
}

/* x: in (-1, 1). */
static float value(fill_kind kind, float x, int lane, mood_kind mood)
{
    switch (kind) {
    case SIGNED:
        return 2.0f * x;
    case POSITIVE:
        return x + 1.5f;
    case SPREAD:
        return logit_spread[mood] * x;
    case MORTAL:
        return mood == WILD && x > 0.75f ? negative_infinity() : logit_spread[mood] * x;
    case MAXIMUM:
        return START_MAXIMUM;
    case BEGUN:
        return mood == WILD && lane % 4 == 3 ? negative_infinity() : START_MAXIMUM;
    case RATIO:
        return mood == WILD ? x + 1.5f : 1.0f;
    case BITS:
        return 2147483648.0f * x;
    case FROM:
        return 8.0f + 8.0f * x;
    case UNTIL:
        return (float)KEYS - 8.0f + 8.0f * x;
    case SUM:
        return mood == WILD ? wild_sum(lane) : START_MAXIMUM;
    case TANGENT:
        return mood == WILD ? x : 0.0f;
    case MAYBE_DEAD:
        return mood == WILD && x > 0.75f ? ATTN_DEAD : x + 1.5f;
    case DEAD_LANES:
        return mood == WILD && lane % 4 == 2 ? ATTN_DEAD : 2.0f * x;
    case INFINITE_LANES:
        return mood == WILD && lane % 4 == 2 ? negative_infinity() : 2.0f * x;
    case WHOLE_NUMBERS:
        return (float)(int)(128.0f * x);
    default:
        return 1.0f;
    }
}

static void store(void *to, int type, float x)
{
    const int integer = type >= INT ? (int)x : 0; /* -inf only where floats are */
    if (type == INT)
        memcpy(to, &integer, sizeof integer);
    else if (type == ATTN_F32)
        memcpy(to, &x, sizeof x);
    else
        attn_convert(to, type, &x, ATTN_F32, 1);
}

static void fill_lane(tile *t, int id, int r)
{
    const int lane = (t->first + r) % t->of;
    for (int64_t i = 0; i < array_length(t, id); i++)
        store(element(t, id, i, r), arrays[id].type,
              value(arrays[id].fill, hashed(id, i, lane), lane, t->mood));
}

static void fill_units(tile *t)
{
    float unit[UNIT];
    for (int64_t u = 0; u < KEYS * t->units; u++) {
        for (int i = 0; i < UNIT; i++)
            unit[i] = key_spread[t->mood] * hashed(NUM_ARRAYS, u * UNIT + i, 3);
        attn_convert(t->key_units + u * UNIT_BYTES, ATTN_Q8_0, unit, ATTN_F32, UNIT);
    }
}

static void fill_tile(tile *t, int first, int of, mood_kind mood)
{
    t->first = first;
    t->of = of;
    t->mood = mood;
    memset(t->found, 0, sizeof t->found);
    for (int id = 0; id < NUM_ARRAYS; id++)
        for (int r = 0; r < t->rows; r++)
            fill_lane(t, id, r);
    for (int64_t i = 0; i < KEYS * t->dim; i++) {
        t->k[i] = key_spread[mood] * hashed(NUM_ARRAYS, i, 0);
        t->v[i] = hashed(NUM_ARRAYS, i, 1);
    }
    fill_units(t);
    memset(t->packed, 0xff, (size_t)(t->rows * t->units * UNIT) * sizeof *t->packed); /* NaN */
}

static void fill_sums(tile *t)
{
    for (int64_t i = 0; i < KEYS * t->pitch; i++)
        t->c[i] = hashed(NUM_ARRAYS, i, 2);
}

/* What a kernel may leave as it likes gets one value: lanes that were not asked for, and factors
 * of blocks that raised nothing. */
static void settle(tile *t, int i)
{
    for (int r = 0; r < t->rows && kernel_entries[i].halved; r++)
        if ((t->first + r) % t->of < t->of / 2)
            fill_lane(t, (int)kernel_entries[i].halved, r);
    for (int k = 0; k < BLOCKS * t->rows; k++)
        if (!(t->found[k / t->rows] & ATTN_RAISED))
            numbers(t, ALPHA)[k] = 1.0f;
}

static void run_before(const attn_kernels *set, int i, tile *t)
{
    if (kernel_entries[i].before)
        kernel_entries[i].before(set, t);
}

static void run_entry(const attn_kernels *set, int i, tile *t)
{
    run_before(set, i, t);
    kernel_entries[i].run(set, t);
    if (kernel_entries[i].behind)
        kernel_entries[i].behind(set, t);
    settle(t, i);
}

/* ---- the check */

/* All NaN are one. */
static uint32_t float_bits(const void *at)
{
    uint32_t u;
    memcpy(&u, at, sizeof u);
    return (u & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : u;
}

/* The bits of an element. */
static uint32_t bits_at(const tile *t, int id, int64_t index, int lane)
{
    const unsigned char *const at = element(t, id, index, lane);
    uint32_t u = 0;
    if (arrays[id].type == ATTN_F32)
        return float_bits(at);
    memcpy(&u, at, type_bytes[arrays[id].type]);
    return u;
}

/* The last of the sums in which the tiles differ; NULL = none. What fills up a line may differ. */
static unsigned char *different_sum(const tile *t, const tile *other)
{
    unsigned char *found = NULL;
    for (int64_t i = 0; i < KEYS * t->pitch; i++)
        if (i % t->pitch < t->dim && float_bits(&t->c[i]) != float_bits(&other->c[i]))
            found = (unsigned char *)&t->c[i];
    return found;
}

/* The last element in which the tiles differ; NULL = none. */
static unsigned char *last_difference(const tile *t, const tile *before)
{
    unsigned char *found = different_sum(t, before);
    for (int id = 0; id < NUM_ARRAYS; id++)
        for (int64_t i = 0; i < array_length(t, id); i++)
            for (int r = 0; r < t->rows; r++)
                if (bits_at(t, id, i, r) != bits_at(before, id, i, r))
                    found = element(t, id, i, r);
    return found;
}

/* Each lane of the small tile against the one of the large tile that it was taken from. */
static int same_lanes(const tile *large, const tile *small)
{
    for (int id = 0; id < NUM_ARRAYS; id++)
        for (int64_t i = 0; i < array_length(large, id); i++)
            for (int r = 0; r < small->rows; r++)
                if (bits_at(large, id, i, (small->first + r) % small->of) !=
                    bits_at(small, id, i, r))
                    return 0;
    return 1;
}

/* Runs entry i of the set and of the portable one on the same numbers. small has the rows of the
 * portable set, before those of the set. */
static int matches(const attn_kernels *set, int i, mood_kind mood, int spoil, tile *large,
                   tile *before, tile *small)
{
    const attn_kernels *const portable = attn_kernels_find("portable");
    fill_tile(large, 0, large->rows, mood);
    fill_tile(before, 0, large->rows, mood);
    fill_sums(large);
    fill_sums(before);
    fill_sums(small);
    run_entry(set, i, large);
    unsigned char *const changed = last_difference(large, before);
    if (!changed && mood == WILD)
        return 0;
    if (kernel_entries[i].holds && !kernel_entries[i].holds(large))
        return 0;
    if (changed && spoil)
        *changed ^= 1u;
    for (int first = 0; first < large->rows; first += small->rows) {
        fill_tile(small, first, large->rows, mood);
        run_entry(portable, i, small);
        if (!same_lanes(large, small))
            return 0;
    }
    return !different_sum(large, small);
}

int kernel_check(const attn_kernels *set, int entry, int64_t head_dim, int spoil)
{
    tile large, before, small;
    int ok = make_tile(&large, set->rows, head_dim);
    ok &= make_tile(&before, set->rows, head_dim);
    ok &= make_tile(&small, attn_kernels_find("portable")->rows, head_dim);
    if (kernel_entries[entry].halved)
        large.lanes.begin = set->rows / 2;
    const int right = ok && matches(set, entry, MILD, spoil, &large, &before, &small) &&
                      matches(set, entry, WILD, spoil, &large, &before, &small);
    free(large.memory);
    free(before.memory);
    free(small.memory);
    return ok ? right : -1;
}

/* ---- to be timed */

int kernel_job_make(kernel_job *job, const attn_kernels *set, int entry, int64_t head_dim,
                    int group)
{
    tile *const t = malloc(sizeof *t);
    job->set = set;
    job->entry = entry;
    job->tile = t;
    if (!t || !make_tile(t, set->rows, head_dim)) {
        kernel_job_free(job);
        return 0;
    }
    if (kernel_entries[entry].halved)
        t->lanes.begin = set->rows / 2;
    job->lanes = t->lanes;
    fill_tile(t, 0, t->rows, MILD);
    fill_sums(t);
    run_before(set, entry, t);
    t->group = group;
    return 1;
}

int kernel_job_call(void *arg)
{
    const kernel_job *const job = arg;
    kernel_entries[job->entry].run(job->set, job->tile);
    return 0;
}

void kernel_job_free(kernel_job *job)
{
    if (job->tile)
        free(job->tile->memory);
    free(job->tile);
}
