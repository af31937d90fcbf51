/* src/backward/plan.c - the plan of the gradients: items and workspace.
 * SPDX-License-Identifier: MIT
 *
 *     | alignment | backward | m, r, delta, terms of sinks: of all rows | slot 0 | slot 1 | ...
 *
 * Row tiles go with key tiles; `panel` row tiles, up to a chunk of 1024 rows, stay packed while the
 * keys pass by.
 */
#pragma once

#include "../plan.c"
#include "../modifiers.c"
#include "gradients.c"

/* Keys of a pair tile. A panel of a whole chunk of rows, or of more than PANEL_NEAR bytes, passes by
 * from beyond L2 for each tile of keys: with 32 keys and 64 rows that took 7 % of the time with heads of
 * 64, 22 with 128 and 256 (Intel family 6 model 167). With another panel S and dP together keep to 16
 * to 24 KiB, and fewer pairs beyond a diagonal are computed. */
#define PAIR_KEYS 128
#define PAIR_FLOATS 3072
#define PANEL_NEAR ((int64_t)2 << 20)
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
    float *m, *r, *delta;   /* They are [rows], those of attn_row_stats. */
    float *sum, *sum_total; /* Both are [rows], for a sum over keys, and divided as dq is. */
    /* Nonzero means that something has entered dq or sum since they last were +0. */
    int entered;
} grad_tile;

typedef struct layout {
    int want;
    int gemms;           /* gemms is 5 or 7, and 5 on the naive path. */
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
    int64_t row_tile_bytes;
} layout;

/* m, r, delta and terms of sinks. */
enum { ROW_ARRAYS = 4 };

typedef struct backward {
    call c; /* It comes first, as items get a pointer to it. */
    attn_gradient_call grads;
    layout lay;
    float *m, *r, *delta, *sink_terms; /* They are indexed by state_row. */
} backward;

/* A row_group is row tiles that enter dK and dV together. */
typedef struct row_group {
    float *s, *dp; /* Each has a pair tile for each row tile. */
    int count;
    attn_term dk[MOST_GROUP], dv[MOST_GROUP];
} row_group;

/* A desk stands at the start of a worker's slot. */
typedef struct desk {
    const backward *back;
    const attn_gradients *g;
    const problem *pr;
    const plan *pl;
    const layout *lay;
    const attn_kernels *kernels;
    int redo; /* Nonzero leaves dead pairs out of every product by selection. */
    int want;
    float *s, *dp; /* They are those of the pair tile at work. */
    float *tanh, *natural, *x;
    key_tile keys;    /* keys holds K and V of a tile of keys, [keys][pitch]. */
    float *part[2];   /* part is what a chunk of rows adds to dK and dV of these keys. */
    float *total[2];  /* total is dK and dV, before scale, from key total_from on. */
    float *matrix[2]; /* The naive path has P and dS of a head here. */
    int64_t total_from;
    float *ones;
    float *packed_o;
    const attn_sum_axes *axes; /* axes are those of the sum that is wanted. */
    sequence seq;
    /* kv_head is that of the keys, and head that of the rows in the panel. */
    int64_t kv_head, head;
    int finite;     /* Nonzero means that all results so far are finite. */
    int row_tiles;  /* row_tiles counts those in use. */
    char *row_tile; /* The row tiles of the panel begin here. */
    tile blank;     /* blank is a row tile without rows: what all of them share. */
    row_group group;
} desk;

static const backward *backward_of(const call *c)
{
    return (const backward *)(const void *)c;
}

/* ------------------------------------------------------------------------------------------------
 * Memory of a worker
 * --------------------------------------------------------------------------------------------- */

/* A memory_part is an array of a desk or a grad_tile: where its pointer is in there, and its
 * size. */
typedef struct memory_part {
    size_t pointer;
    int64_t count;
    size_t bytes_each;
} memory_part;

#define PART(owner, member, count)                                                                 \
    {                                                                                              \
        offsetof(owner, member), count, sizeof *((owner *)0)->member                               \
    }

/* lay_parts puts the arrays one after the other behind their owner, sets its pointers, and returns
 * the bytes of all. Without an owner it only counts them. */
static int64_t lay_parts(const memory_part *parts, int n, size_t owner_bytes, char *owner)
{
    int64_t at = aligned((int64_t)owner_bytes);
    int i;
    for (i = 0; i < n; i++) {
        const int64_t offset = place(&at, parts[i].count, parts[i].bytes_each);
        char *array = owner ? owner + offset : NULL;
        if (owner)
            memcpy(owner + parts[i].pointer, &array, sizeof array);
    }
    return at;
}

OWN_FRAME static int64_t lay_grad_tile(const problem *pr, const layout *lay, const plan *pl,
                                       grad_tile *row)
{
    const int64_t rows = pl->rows, dim = pr->p.head_dim, dim_v = pr->p.head_dim_v;
    const memory_part parts[] = {
        PART(grad_tile, t.lanes, rows),
        PART(grad_tile, t.qt, times(rows, dim)),
        PART(grad_tile, dout_t, times(rows, dim_v)),
        PART(grad_tile, q, times(rows, pl->pitch[KEYS])),
        PART(grad_tile, dout, times(rows, pl->pitch[VALUES])),
        PART(grad_tile, dq, lay->dq_floats),
        PART(grad_tile, dq_total, lay->dq_floats),
        PART(grad_tile, m, rows),
        PART(grad_tile, r, rows),
        PART(grad_tile, delta, rows),
        PART(grad_tile, sum, rows),
        PART(grad_tile, sum_total, rows),
    };
    return lay_parts(parts, COUNT_OF(parts), sizeof *row, (char *)row);
}

OWN_FRAME static int64_t lay_desk(const problem *pr, const layout *lay, const plan *pl, char *slot)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pl->rows, keys = pl->keys, pairs = lay->pair_floats;
    const int64_t pitch = pl->pitch[KEYS], pitch_v = pl->pitch[VALUES];
    const int64_t tiles = pl->impl == ATTN_IMPL_NAIVE ? ceil_div(pr->max_q_len, rows) : 0;
    const int64_t matrix_floats = times(times(tiles, rows), pr->max_kv_len);
    const memory_part parts[] = {
        PART(desk, group.s, lay->group * pairs),
        PART(desk, group.dp, lay->group * pairs),
        PART(desk, tanh, p->softcap > 0 ? pairs : 0),
        PART(desk, natural, p->score ? pairs : 0),
        PART(desk, x, pairs),
        PART(desk, blank.lane_values, 3 * rows),
        PART(desk, blank.lane_ints, 2 * rows),
        PART(desk, blank.alive, rows * ALIVE_WORDS(keys)),
        PART(desk, keys.copy[KEYS], times(keys, pitch)),
        PART(desk, part[KEYS], times(keys, pitch)),
        PART(desk, total[KEYS], times(lay->max_keys, pitch)),
        PART(desk, matrix[KEYS], matrix_floats),
        PART(desk, keys.copy[VALUES], times(keys, pitch_v)),
        PART(desk, part[VALUES], times(keys, pitch_v)),
        PART(desk, total[VALUES], times(lay->max_keys, pitch_v)),
        PART(desk, matrix[VALUES], matrix_floats),
        PART(desk, blank.stage, times(rows, max64(p->head_dim, p->head_dim_v))),
        PART(desk, blank.row_in, rows),
        PART(desk, blank.row_out, rows),
        PART(desk, ones, rows),
        PART(desk, packed_o, times(rows, p->head_dim_v)),
        PART(desk, row_tile, times(lay->panel, lay->row_tile_bytes)),
    };
    return lay_parts(parts, COUNT_OF(parts), sizeof(desk), slot);
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

/* usual_pair_keys leaves 4 items of keys to each worker, if need be by smaller tiles. */
static int usual_pair_keys(const problem *pr, const layout *lay, const plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t floats = plus(times(3, p->head_dim), times(2, p->head_dim_v));
    const int64_t panel = times(times(pr->max_q_len, floats), sizeof(float));
    const int64_t least = lay->gemms == 5 ? 0 : 4 * (int64_t)p->num_workers;
    const int in_l2 = pr->max_q_len < ATTN_CHUNK && panel <= PANEL_NEAR;
    int keys = PAIR_KEYS;
    while (keys * pl->rows > PAIR_FLOATS && keys > ATTN_BLOCK &&
           (in_l2 || items_by(p, p->num_heads_kv, pr->max_kv_len, keys) < least))
        keys /= 2;
    return keys;
}

static void plan_sizes(const problem *pr, const attn_gradients *g, const attn_params *asked,
                       layout *lay, plan *pl)
{
    const attn_params *p = &pr->p;
    const int naive = pl->impl == ATTN_IMPL_NAIVE;
    const attn_sum_axes bias = bias_axes(p, &g->dbias);
    int64_t most;
    lay->want = wanted(g);
    lay->gemms = naive ? 5 : choose_gemms(pr, g);
    pl->rows = p->kernels->rows;
    pl->keys = asked->tile_keys ? asked->tile_keys : usual_pair_keys(pr, lay, pl);
    most = min64(naive ? pl->rows : ATTN_CHUNK, max64(pr->max_q_len, 1));
    lay->panel = (int)ceil_div(most, pl->rows);
    lay->group = (int)max64(1, min64(MOST_GROUP, GROUP_ROWS / pl->rows));
    lay->pair_floats = (int64_t)pl->rows * pl->keys;
    lay->dq_floats = whole_lines(times(pl->rows, p->head_dim));
    lay->item_rows = lay->panel * pl->rows;
    lay->item_keys = 4 * pl->keys;
    divide(pr, p->num_heads_q, pr->max_q_len, pl->rows, &lay->item_rows);
    divide(pr, p->num_heads_kv, pr->max_kv_len, pl->keys, &lay->item_keys);
    lay->max_keys =
        lay->gemms == 5 || naive ? pr->max_kv_len : min64(lay->item_keys, pr->max_kv_len);
    lay->bias_beside = (lay->want & WANT_BIAS) && keeps_all(&bias) && pr->max_q_len > 0 &&
                       (lay->want & (lay->gemms == 5 ? WANT_DQ | WANT_KEYS : WANT_DQ));
    pl->pitch[KEYS] = pitch_of(p->head_dim);
    pl->pitch[VALUES] = pitch_of(p->head_dim_v);
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
    memset(pl, 0, sizeof *pl);
    memset(lay, 0, sizeof *lay);
    pl->impl = pr->impl;
    pl->kernels = pr->p.kernels;
    pl->modified = has_modifier(&pr->p);
    plan_masks(&pr->p, pl);
    plan_sizes(pr, g, asked, lay, pl);
    lay->row_tile_bytes = lay_grad_tile(pr, lay, pl, NULL);
    pl->slot_bytes = lay_desk(pr, lay, pl, NULL);
    pl->shared_bytes = times(ROW_ARRAYS, aligned(times(all_rows(&pr->p), sizeof(float))));
    pl->workers = (int)max64(1, min64(pr->p.num_workers, most_items(pr, lay)));
}
