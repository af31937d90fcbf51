/* src/backward/plan.c - the plan of the gradients: items and workspace.
 * SPDX-License-Identifier: MIT
 *
 *     | alignment | backward | lse2, delta, terms of sinks: of all rows | slot 0 | slot 1 | ...
 *
 * Row tiles go with key tiles; `panel` row tiles, up to a chunk of 1024 rows, stay packed while the
 * keys pass by.
 */
#pragma once

#include "../plan.c"
#include "../modifiers.c"
#include "gradients.c"

/* Pair tiles have 32 keys and 64 rows, or 128 and 24, so that S and dP together are 16 to 24
 * KiB. */
#define PAIR_FLOATS 3072
/* dK and dV take the rows of some tiles at once: with only 24 rows between the load and the store
 * of their sums, that product takes a fifth longer. */
#define GROUP_ROWS 96
#define MOST_GROUP 8

/* A grad_tile is a tile of rows of one head. */
typedef struct grad_tile {
    tile t;          /* It comes first, as the functions of tiles fill it in. */
    float *dout_t;   /* dout_t is [head_dim_v][rows]. */
    float *q, *dout; /* Both are [rows][pitch]. */
    /* dq is [head_dim][rows] of a chunk of keys, and dq_total has those before. */
    float *dq, *dq_total;
    float *lse2, *delta;    /* Both are [rows]. */
    float *sum, *sum_total; /* Both are [rows], for a sum over keys, and divided as dq is. */
    /* Nonzero means that something has entered dq or sum since they last were +0. */
    int entered;
} grad_tile;

typedef struct layout {
    int want;
    int gemms;           /* gemms is 5 or 7, and 5 on the naive path. */
    int keys, rows;      /* These are the sizes of a pair tile. */
    int panel;           /* panel counts the row tiles that are packed at once. */
    int group;           /* group counts the row tiles that enter dK and dV at once. */
    int64_t pair_floats; /* pair_floats is the size of a pair tile. */
    /* dq_floats is the size of the sums of a row tile, in whole cache lines. */
    int64_t dq_floats;
    /* An item that takes a part of the rows, or of the keys, takes this number of them. */
    int item_rows, item_keys;
    int64_t max_keys; /* A sweep adds dK and dV for at most this number of keys. */
    /* Nonzero means that dBias is stored beside dQ, as nothing is summed. */
    int bias_beside;
    /* pitch counts the floats between rows of K, Q and dK, and of V, dout and dV. */
    int64_t pitch[2];
    /* These are offsets into a slot, in bytes. */
    int64_t s, dp, tanh, natural, x, lane_values, lane_keys, alive, copy[2], part[2], total[2];
    int64_t key_tile, stage, row_in, row_out, ones, packed_o, row_tiles;
    /* These are offsets into a row tile. */
    int64_t lanes, qt, dout_t, q, dout, dq, dq_total, lse2, delta, sum, sum_total, row_tile_bytes;
    int64_t matrix[2], matrix_floats; /* The naive path has P and dS of a head here. */
} layout;

typedef struct backward {
    call c; /* It comes first, as items get a pointer to it. */
    attn_gradients g;
    layout lay;
    attn_sum_axes bias, slopes;
    float *lse2, *delta, *sink_terms; /* They are indexed by state_row. */
} backward;

/* A row_group is row tiles that enter dK and dV together. */
typedef struct row_group {
    int count;
    attn_term dk[MOST_GROUP], dv[MOST_GROUP];
} row_group;

/* A desk stands at the start of a worker's slot. */
typedef struct desk {
    const backward *back;
    const problem *pr;
    const layout *lay;
    const attn_kernels *kernels;
    int redo; /* Nonzero leaves dead pairs out of every product by selection. */
    int want;
    float *s, *dp; /* They are those of the pair tile at work. */
    float *tanh, *natural, *x;
    key_tile *keys;  /* keys holds K and V of a tile of keys, [keys][pitch]. */
    float *part[2];  /* part is what a chunk of rows adds to dK and dV of these keys. */
    float *total[2]; /* total is dK and dV, before scale, from key total_from on. */
    int64_t total_from;
    float *ones;
    float *packed_o;
    const attn_sum_axes *axes; /* axes are those of the sum that is wanted. */
    sequence seq;
    /* kv_head is that of the keys, and head that of the rows in the panel. */
    int64_t kv_head, head;
    int finite; /* Nonzero means that all results so far are finite. */
    char *slot;
    int row_tiles; /* row_tiles counts those in use. */
    row_group group;
} desk;

#define FLOATS(slot, offset) ((float *)(void *)((slot) + (offset)))

static const backward *backward_of(const call *c)
{
    return (const backward *)(const void *)c;
}

/* ------------------------------------------------------------------------------------------------
 * Plan
 * --------------------------------------------------------------------------------------------- */

/* items_by counts the items of a list that takes `count` rows or keys of every (batch entry, head)
 * by `each`. */
static int64_t items_by(const attn_params *p, int64_t heads, int64_t count, int64_t each)
{
    return times(times(p->batch, heads), ceil_div(count, each));
}

/* choose_gemms takes five products if they let the workers end first: the last round of items may
 * not be full, while parts of rows and keys always divide evenly. */
static int choose_gemms(const problem *pr, const attn_gradients *g)
{
    const int64_t workers = pr->p.num_workers;
    const int64_t items = times(pr->p.batch, pr->p.num_heads_kv);
    if (g->gemms)
        return g->gemms;
    return times(5 * ceil_div(items, workers), workers) <= times(7, items) ? 5 : 7;
}

/* divide halves *each, a multiple of `unit`, until there are four items for each worker. */
static void divide(const problem *pr, int64_t heads, int64_t count, int unit, int *each)
{
    const int64_t least = 4 * (int64_t)pr->p.num_workers;
    while (*each > unit && items_by(&pr->p, heads, count, *each) < least)
        *each = (*each / unit + 1) / 2 * unit;
}

static void plan_sizes(const problem *pr, const attn_gradients *g, const attn_params *asked,
                       layout *lay)
{
    const attn_params *p = &pr->p;
    const int naive = pr->impl == ATTN_IMPL_NAIVE;
    const attn_sum_axes bias = bias_axes(p, &g->dbias);
    int64_t most;
    lay->want = wanted(g);
    lay->gemms = naive ? 5 : choose_gemms(pr, g);
    lay->rows = p->kernels->rows;
    lay->keys = asked->tile_keys;
    for (lay->keys = lay->keys ? lay->keys : 128;
         !asked->tile_keys && lay->keys * lay->rows > PAIR_FLOATS && lay->keys > ATTN_BLOCK;)
        lay->keys /= 2;
    most = min64(naive ? lay->rows : ATTN_CHUNK, max64(pr->max_q_len, 1));
    lay->panel = (int)ceil_div(most, lay->rows);
    lay->group = (int)max64(1, min64(MOST_GROUP, GROUP_ROWS / lay->rows));
    lay->pair_floats = (int64_t)lay->rows * lay->keys;
    lay->item_rows = lay->panel * lay->rows;
    lay->item_keys = 4 * lay->keys;
    divide(pr, p->num_heads_q, pr->max_q_len, lay->rows, &lay->item_rows);
    divide(pr, p->num_heads_kv, pr->max_kv_len, lay->keys, &lay->item_keys);
    lay->max_keys =
        lay->gemms == 5 || naive ? pr->max_kv_len : min64(lay->item_keys, pr->max_kv_len);
    lay->bias_beside = (lay->want & WANT_BIAS) && keeps_all(&bias) && pr->max_q_len > 0 &&
                       (lay->want & (lay->gemms == 5 ? WANT_DQ | WANT_KEYS : WANT_DQ));
    lay->pitch[KEYS] = pitch_of(p->head_dim);
    lay->pitch[VALUES] = pitch_of(p->head_dim_v);
}

static void plan_grad_tile(const problem *pr, layout *lay)
{
    const int64_t rows = lay->rows, dim = pr->p.head_dim, dim_v = pr->p.head_dim_v;
    int64_t at = 0;
    lay->dq_floats = whole_lines(times(rows, dim));
    place(&at, 1, sizeof(grad_tile));
    lay->lanes = place(&at, rows, sizeof(lane));
    lay->qt = place(&at, times(rows, dim), sizeof(float));
    lay->dout_t = place(&at, times(rows, dim_v), sizeof(float));
    lay->q = place(&at, times(rows, lay->pitch[KEYS]), sizeof(float));
    lay->dout = place(&at, times(rows, lay->pitch[VALUES]), sizeof(float));
    lay->dq = place(&at, lay->dq_floats, sizeof(float));
    lay->dq_total = place(&at, lay->dq_floats, sizeof(float));
    lay->lse2 = place(&at, rows, sizeof(float));
    lay->delta = place(&at, rows, sizeof(float));
    lay->sum = place(&at, rows, sizeof(float));
    lay->sum_total = place(&at, rows, sizeof(float));
    lay->row_tile_bytes = at;
}

/* plan_desk returns the bytes of a slot. */
static int64_t plan_desk(const problem *pr, layout *lay)
{
    const attn_params *p = &pr->p;
    const int64_t rows = lay->rows, pairs = lay->pair_floats;
    const int64_t dim = max64(p->head_dim, p->head_dim_v);
    int64_t at = 0;
    int which;
    place(&at, 1, sizeof(desk));
    lay->s = place(&at, lay->group * pairs, sizeof(float));
    lay->dp = place(&at, lay->group * pairs, sizeof(float));
    lay->tanh = place(&at, p->softcap > 0 ? pairs : 0, sizeof(float));
    lay->natural = place(&at, p->score ? pairs : 0, sizeof(float));
    lay->x = place(&at, pairs, sizeof(float));
    lay->lane_values = place(&at, 3 * rows, sizeof(float));
    lay->lane_keys = place(&at, 2 * rows, sizeof(int));
    lay->alive = place(&at, pairs, sizeof(uint8_t));
    for (which = KEYS; which <= VALUES; which++) {
        lay->copy[which] = place(&at, times(lay->keys, lay->pitch[which]), sizeof(float));
        lay->part[which] = place(&at, times(lay->keys, lay->pitch[which]), sizeof(float));
        lay->total[which] = place(&at, times(lay->max_keys, lay->pitch[which]), sizeof(float));
        lay->matrix[which] = place(&at, lay->matrix_floats, sizeof(float));
    }
    lay->key_tile = place(&at, 1, sizeof(key_tile));
    lay->stage = place(&at, times(rows, dim), sizeof(float));
    lay->row_in = place(&at, rows, sizeof(const float *));
    lay->row_out = place(&at, rows, sizeof(float *));
    lay->ones = place(&at, rows, sizeof(float));
    lay->packed_o = place(&at, times(rows, p->head_dim_v), sizeof(float));
    lay->row_tiles = at;
    return plus(at, times(lay->panel, lay->row_tile_bytes));
}

/* all_rows counts the rows of all heads, as state_row numbers them. */
static int64_t all_rows(const attn_params *p)
{
    return times(times(p->cu_seqlens_q ? 1 : p->batch, p->num_heads_q), rows_held(p));
}

/* most_items counts the items of the longest list. */
static int64_t most_items(const problem *pr, const layout *lay)
{
    const attn_params *p = &pr->p;
    int64_t most = times(p->batch, p->num_heads_q);
    most = max64(most, items_by(p, p->num_heads_q, pr->max_q_len, lay->item_rows));
    return max64(most, items_by(p, p->num_heads_kv, pr->max_kv_len, lay->item_keys));
}

/* plan_backward fills in *lay and what items and tiles need of a plan. */
static void plan_backward(const problem *pr, const attn_gradients *g, const attn_params *asked,
                          layout *lay, plan *pl)
{
    const int64_t rows = pr->p.kernels->rows;
    memset(pl, 0, sizeof *pl);
    memset(lay, 0, sizeof *lay);
    pl->impl = pr->impl;
    if (pl->impl == ATTN_IMPL_NAIVE)
        lay->matrix_floats = times(times(ceil_div(pr->max_q_len, rows), rows), pr->max_kv_len);
    plan_sizes(pr, g, asked, lay);
    plan_grad_tile(pr, lay);
    pl->kernels = pr->p.kernels;
    pl->rows = lay->rows;
    pl->keys = lay->keys;
    pl->modified = has_modifier(&pr->p);
    memcpy(pl->pitch, lay->pitch, sizeof pl->pitch);
    pl->slot_bytes = plan_desk(pr, lay);
    pl->shared_bytes = times(3, aligned(times(all_rows(&pr->p), sizeof(float))));
    pl->workers = (int)max64(1, min64(pr->p.num_workers, most_items(pr, lay)));
}
