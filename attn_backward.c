/* attn_backward.c - gradients of attn_forward. The manual is attn_backward.h; the order of every
 * operation is docs/canon.md, "Gradients".
 * SPDX-License-Identifier: MIT (full text at the end of attn.c)
 * attn 0.1.0
 *
 * Data flows one way:  params, gradients -> validate -> plan -> items -> kernels
 *
 * CONTENTS
 *    1  Gradients     what is wanted, strides explicit
 *    2  Validation    every sentence about bad input
 *    3  Workspace     what it holds
 *    4  Plan          items, workspace layout
 *    5  Panel         rows of one head, and keys, as the products read them
 *    6  Pair tile     p and dS of some keys and the rows of a tile
 *    7  Sums          dBias, dSlopes: dS added over axes
 *    8  Sweep         rows against keys: what a pair tile gives enters the gradients
 *    9  Items         by batch and kv head; by rows; by keys; sums
 *   10  Naive         the textbook, which materialises P and dS of a head
 *   11  Run           the lists of a call
 *   12  Public functions
 */
#ifndef ATTN_INTERNAL
#define ATTN_INTERNAL
#endif
#include "attn_backward.h"

/* ------------------------------------------------------------------------------------------------
 * 1  Gradients
 * --------------------------------------------------------------------------------------------- */

/* Which gradients, or parts of them, some work is about. */
enum { WANT_DQ = 1, WANT_DK = 2, WANT_DV = 4, WANT_BIAS = 8, WANT_SLOPES = 16, WANT_SINKS = 32 };
#define WANT_KEYS (WANT_DK | WANT_DV)
#define WANT_SUMS (WANT_BIAS | WANT_SLOPES)

static int wanted(const attn_gradients *g)
{
    return (g->dq.data ? WANT_DQ : 0) | (g->dk.data ? WANT_DK : 0) | (g->dv.data ? WANT_DV : 0) |
           (g->dbias.data ? WANT_BIAS : 0) | (g->dslopes ? WANT_SLOPES : 0) |
           (g->dsinks ? WANT_SINKS : 0);
}

/* Rows and keys of the longest sequence that there may be. */
static void longest(const attn_params *p, int64_t *rows, int64_t *keys)
{
    int64_t b;
    *rows = p->cu_seqlens_q ? 0 : p->seq_len_q;
    *keys = p->cu_seqlens_kv ? 0 : p->seq_len_kv;
    for (b = 0; p->cu_seqlens_q && b < p->batch; b++)
        *rows = max64(*rows, (int64_t)p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b]);
    for (b = 0; p->cu_seqlens_kv && b < p->batch; b++)
        *keys = max64(*keys, (int64_t)p->cu_seqlens_kv[b + 1] - p->cu_seqlens_kv[b]);
}

/* Packed over the axes that are kept; a stride that is given counts instead. */
static void pack_axes(attn_sum_axes *a, const ptrdiff_t given[4])
{
    int64_t packed = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        a->stride[axis] = 0;
        if (!a->kept[axis])
            a->count[axis] = 1;
        else
            a->stride[axis] = given[axis] ? given[axis] : to_stride(packed);
        packed = times(packed, a->count[axis]);
    }
}

static attn_sum_axes bias_axes(const attn_params *p, const attn_bias_gradient *d)
{
    const ptrdiff_t given[4] = { d->stride_batch, d->stride_head, d->stride_q, d->stride_kv };
    attn_sum_axes a;
    a.data = d->data;
    a.count[AXIS_BATCH] = p->batch;
    a.count[AXIS_HEAD] = p->num_heads_q;
    longest(p, &a.count[AXIS_ROW], &a.count[AXIS_KEY]);
    a.kept[AXIS_BATCH] = p->bias.stride_batch != 0 || p->batch == 1;
    a.kept[AXIS_HEAD] = p->bias.stride_head != 0 || p->num_heads_q == 1;
    a.kept[AXIS_ROW] = p->bias.stride_q != 0 || a.count[AXIS_ROW] == 1;
    a.kept[AXIS_KEY] = p->bias.stride_kv != 0 || a.count[AXIS_KEY] == 1;
    pack_axes(&a, given);
    return a;
}

static int keeps_all(const attn_sum_axes *a)
{
    return a->kept[AXIS_BATCH] && a->kept[AXIS_HEAD] && a->kept[AXIS_ROW] && a->kept[AXIS_KEY];
}

static attn_sum_axes slope_axes(const attn_params *p, float *data)
{
    const ptrdiff_t given[4] = { 0, 0, 0, 0 };
    attn_sum_axes a;
    a.data = data;
    a.count[AXIS_BATCH] = p->batch;
    a.count[AXIS_HEAD] = p->num_heads_q;
    a.count[AXIS_ROW] = a.count[AXIS_KEY] = 1;
    a.kept[AXIS_BATCH] = p->alibi_stride != 0;
    a.kept[AXIS_HEAD] = 1;
    a.kept[AXIS_ROW] = a.kept[AXIS_KEY] = 0;
    pack_axes(&a, given);
    return a;
}

static void resolve_gradients(const attn_params *p, attn_gradients *g)
{
    const int varlen = p->cu_seqlens_q != NULL, packed = p->cu_seqlens_kv != NULL;
    const int64_t rows = rows_held(p), keys = keys_held(p);
    RESOLVE_STRIDES(g->dout, varlen, p->num_heads_q, rows, p->head_dim_v);
    RESOLVE_STRIDES(g->dlse, 0, p->num_heads_q, rows, 1);
    if (varlen)
        g->dlse.stride_batch = 0;
    RESOLVE_STRIDES(g->dq, varlen, p->num_heads_q, rows, p->head_dim);
    RESOLVE_STRIDES(g->dk, packed, p->num_heads_kv, keys, p->head_dim);
    RESOLVE_STRIDES(g->dv, packed, p->num_heads_kv, keys, p->head_dim_v);
}

/* ------------------------------------------------------------------------------------------------
 * 2  Validation
 * --------------------------------------------------------------------------------------------- */

#define ENUM_RULE(field, least, most) #field, offsetof(attn_gradients, field), least, most

/* int fields */
static const size_rule gradient_rules[] = {
    { ENUM_RULE(dout.dtype, 0, ATTN_BF16) }, ENUM_RULE(dlse.dtype, 0, 0),
    { ENUM_RULE(dq.dtype, 0, ATTN_BF16) },   ENUM_RULE(dk.dtype, 0, ATTN_BF16),
    { ENUM_RULE(dv.dtype, 0, ATTN_BF16) },
};

/* What a gradient needs that is not given. */
static attn_status check_given(const attn_params *p, const attn_gradients *g, int naive, text *why)
{
    if (p->batch == 0 || rows_held(p) == 0)
        return ATTN_OK;
    if (!g->dout.data)
        return bad(why, ATTN_ERR_ARG,
                   "dout.data is NULL: the gradient of the loss by o, zeros if "
                   "only dlse has one");
    if (!p->o.data && !naive)
        return bad(why, ATTN_ERR_ARG,
                   "o.data is NULL: attn_backward reads what attn_forward wrote");
    if (!p->lse.data && !naive)
        return bad(why, ATTN_ERR_ARG,
                   "lse.data is NULL: attn_backward reads what attn_forward wrote");
    if (!wanted(g))
        return bad(why, ATTN_ERR_ARG,
                   "nothing is asked for: dq, dk, dv, dbias, dsinks and dslopes are all NULL");
    return ATTN_OK;
}

static attn_status check_bias_strides(const attn_bias_gradient *d, text *why)
{
    const struct {
        const char *name;
        ptrdiff_t stride;
    } fields[] = {
        { "dbias.stride_batch", d->stride_batch },
        { "dbias.stride_head", d->stride_head },
        { "dbias.stride_q", d->stride_q },
        { "dbias.stride_kv", d->stride_kv },
    };
    int i;
    for (i = 0; i < COUNT_OF(fields); i++) {
        if (fields[i].stride != ATTN_STRIDE_BROADCAST)
            continue;
        put(why, fields[i].name);
        return bad(why, ATTN_ERR_ARG,
                   " (ATTN_STRIDE_BROADCAST) must be 0 (packed) or a stride; "
                   "bias says what is summed");
    }
    return ATTN_OK;
}

/* Fields that mean nothing without another one are refused, not ignored. */
static attn_status check_wishes(const attn_params *p, const attn_gradients *g, text *why)
{
    const attn_bias_gradient *d = &g->dbias;
    if (p->score && !g->score_derivative)
        return bad(why, ATTN_ERR_ARG, "score is given, but score_derivative is NULL");
    if (!p->score && g->score_derivative)
        return bad(why, ATTN_ERR_ARG, "score_derivative is given, but score is NULL");
    if (d->data && !p->bias.data)
        return bad(why, ATTN_ERR_ARG, "dbias is asked for, but bias.data is NULL");
    if (g->dsinks && !p->sinks)
        return bad(why, ATTN_ERR_ARG, "dsinks is asked for, but sinks is NULL");
    if (g->dslopes && !p->alibi_slopes)
        return bad(why, ATTN_ERR_ARG, "dslopes is asked for, but alibi_slopes is NULL");
    return check_bias_strides(d, why);
}

static attn_status check_unsupported(const attn_params *p, const attn_gradients *g, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    if ((p->part.rows || p->part.keys) && g->dbias.data)
        return bad(why, ATTN_ERR_UNSUPPORTED, "part and dbias: give one of them");
    if (p->part.keys && g->dsinks)
        return bad(why, ATTN_ERR_UNSUPPORTED, "part.keys and dsinks: give one of them");
    if (p->partial)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "partial", p->partial,
                         " has no gradients: use o and lse");
    if (rows->ring)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "kv_rows.ring", rows->ring,
                         ": caches have no gradients");
    if (rows->page_size)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "kv_rows.page_size", rows->page_size,
                         ": caches have no gradients");
    return ATTN_OK;
}

/* Before strides are resolved. need_data: what the call reads and writes must be there, too. */
static attn_status check_gradients(const attn_params *p, const attn_gradients *g, int naive,
                                   int need_data, text *why)
{
    attn_status status;
    if (g->gemms != 0 && g->gemms != 5 && g->gemms != 7)
        return bad_field(why, ATTN_ERR_ARG, "gemms", g->gemms, " must be 0, 5 or 7");
    status = check_enums(g, gradient_rules, COUNT_OF(gradient_rules), why);
    if (!status)
        status = check_wishes(p, g, why);
    if (!status && need_data)
        status = check_given(p, g, naive, why);
    if (!status)
        status = check_output_strides("dq", &g->dq, why);
    if (!status)
        status = check_output_strides("dk", &g->dk, why);
    if (!status)
        status = check_output_strides("dv", &g->dv, why);
    return status;
}

/* That the resolved arrays fit into memory. */
OWN_FRAME static attn_status check_gradient_sizes(const attn_params *p, const attn_gradients *g,
                                                  text *why)
{
    const attn_tensor dq = as_tensor(&g->dq), dk = as_tensor(&g->dk), dv = as_tensor(&g->dv);
    const struct {
        const char *name;
        const attn_tensor *tensor;
        int64_t heads, rows, columns;
    } tensors[] = {
        { "dout", &g->dout, p->num_heads_q, rows_held(p), p->head_dim_v },
        { "dlse", &g->dlse, p->num_heads_q, rows_held(p), 1 },
        { "dq", &dq, p->num_heads_q, rows_held(p), p->head_dim },
        { "dk", &dk, p->num_heads_kv, keys_held(p), p->head_dim },
        { "dv", &dv, p->num_heads_kv, keys_held(p), p->head_dim_v },
    };
    const attn_sum_axes a = bias_axes(p, &g->dbias);
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < COUNT_OF(tensors) && !status; i++) {
        const attn_tensor *t = tensors[i].tensor;
        const ptrdiff_t stride[4] = { t->stride_batch, t->stride_head, t->stride_seq, 1 };
        if (t->data)
            status =
                check_extent(tensors[i].name, (int64_t)bytes_of(t->dtype), p->batch,
                             tensors[i].heads, tensors[i].rows, tensors[i].columns, stride, why);
    }
    if (!status && a.data)
        status = check_extent("dbias", sizeof(float), a.count[AXIS_BATCH], a.count[AXIS_HEAD],
                              a.count[AXIS_ROW], a.count[AXIS_KEY], a.stride, why);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 3  What the workspace holds
 *
 *    | alignment | backward | lse2, delta, terms of sinks: of all rows | slot 0 | slot 1 | ...
 *
 *    Row tiles go with key tiles; `panel` row tiles, up to a chunk of 1024 rows, stay packed while
 *    the keys pass by.
 * --------------------------------------------------------------------------------------------- */

/* Pair tiles of 32 keys and 64 rows, or 128 and 24: S and dP together are 16 to 24 KiB. */
#define PAIR_FLOATS 3072
/* dK and dV take the rows of some tiles at once: with only 24 rows between the load and the store
 * of their sums, that product takes a fifth longer. */
#define GROUP_ROWS 96
#define MOST_GROUP 8

/* A tile of rows of one head. */
typedef struct grad_tile {
    tile t;                 /* first: attn.c fills it in */
    float *dout_t;          /* [head_dim_v][rows] */
    float *q, *dout;        /* [rows][pitch] */
    float *dq, *dq_total;   /* [head_dim][rows] of a chunk of keys; of those before */
    float *lse2, *delta;    /* [rows] */
    float *sum, *sum_total; /* [rows] as dq, for a sum over keys */
    int entered;            /* something has entered dq or sum since they last were +0 */
} grad_tile;

typedef struct layout {
    int want;
    int gemms;                /* 5 or 7; of the naive path 5 */
    int keys, rows;           /* of a pair tile */
    int panel;                /* row tiles that are packed at once */
    int group;                /* row tiles that enter dK and dV at once */
    int64_t pair_floats;      /* of a pair tile */
    int64_t dq_floats;        /* of the sums of a row tile, whole cache lines */
    int item_rows, item_keys; /* of an item that takes a part of the rows, of the keys */
    int64_t max_keys;         /* that a sweep adds dK and dV for */
    int bias_beside;          /* dBias is stored beside dQ: nothing is summed */
    int64_t pitch[2];         /* floats between rows of K, Q, dK; of V, dout, dV */
    /* offsets into a slot, in bytes */
    int64_t s, dp, tanh, natural, x, lane_values, lane_keys, alive, copy[2], part[2], total[2];
    int64_t key_tile, stage, row_in, row_out, ones, packed_o, row_tiles;
    /* offsets into a row tile */
    int64_t lanes, qt, dout_t, q, dout, dq, dq_total, lse2, delta, sum, sum_total, row_tile_bytes;
    int64_t matrix[2], matrix_floats; /* naive: P and dS of a head */
} layout;

typedef struct backward {
    call c; /* first: items get a pointer to it */
    attn_gradients g;
    layout lay;
    const attn_core *core;
    attn_sum_axes bias, slopes;
    float *lse2, *delta, *sink_terms; /* by state_row */
} backward;

/* Row tiles that enter dK and dV together. */
typedef struct row_group {
    int count;
    attn_term dk[MOST_GROUP], dv[MOST_GROUP];
} row_group;

/* At the start of a worker's slot. */
typedef struct desk {
    const backward *back;
    const problem *pr;
    const layout *lay;
    const attn_kernels *kernels;
    int redo; /* dead pairs are left out of every product by selection */
    int want;
    float *s, *dp; /* of the pair tile at work */
    float *tanh, *natural, *x;
    key_tile *keys;  /* K and V of a tile of keys, [keys][pitch] */
    float *part[2];  /* what a chunk of rows adds to dK and dV of these keys */
    float *total[2]; /* dK and dV, before scale, from key total_from on */
    int64_t total_from;
    float *ones;
    float *packed_o;
    const attn_sum_axes *axes; /* of the sum that is wanted */
    sequence seq;
    int64_t kv_head, head; /* of keys; of the rows in the panel */
    int finite;            /* all results so far are */
    char *slot;
    int row_tiles; /* in use */
    row_group group;
} desk;

#define FLOATS(slot, offset) ((float *)(void *)((slot) + (offset)))

static const backward *backward_of(const call *c)
{
    return (const backward *)(const void *)c;
}

/* ------------------------------------------------------------------------------------------------
 * 4  Plan
 * --------------------------------------------------------------------------------------------- */

/* Items of a list that takes `count` rows or keys of every (batch entry, head) by `each`. */
static int64_t items_by(const attn_params *p, int64_t heads, int64_t count, int64_t each)
{
    return times(times(p->batch, heads), ceil_div(count, each));
}

/* Whether five products let the workers end first: the last round of items may not be full, while
 * parts of rows and keys always divide evenly. */
static int choose_gemms(const problem *pr, const attn_gradients *g)
{
    const int64_t workers = pr->p.num_workers;
    const int64_t items = times(pr->p.batch, pr->p.num_heads_kv);
    if (g->gemms)
        return g->gemms;
    return times(5 * ceil_div(items, workers), workers) <= times(7, items) ? 5 : 7;
}

/* Halves *each, a multiple of `unit`, until there are four items for each worker. */
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
    const int naive = attn_core_get()->choose_impl(p) == ATTN_IMPL_NAIVE;
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

/* Returns the bytes of a slot. */
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

/* Rows of all heads, as state_row numbers them. */
static int64_t all_rows(const attn_params *p)
{
    return times(times(p->cu_seqlens_q ? 1 : p->batch, p->num_heads_q), rows_held(p));
}

/* Items of the longest list. */
static int64_t most_items(const problem *pr, const layout *lay)
{
    const attn_params *p = &pr->p;
    int64_t most = times(p->batch, p->num_heads_q);
    most = max64(most, items_by(p, p->num_heads_q, pr->max_q_len, lay->item_rows));
    return max64(most, items_by(p, p->num_heads_kv, pr->max_kv_len, lay->item_keys));
}

/* *lay and what items and the functions of attn.c need of a plan. */
static void plan_backward(const problem *pr, const attn_gradients *g, const attn_params *asked,
                          layout *lay, plan *pl)
{
    const attn_core *core = attn_core_get();
    const int64_t rows = pr->p.kernels->rows;
    memset(pl, 0, sizeof *pl);
    memset(lay, 0, sizeof *lay);
    pl->impl = core->choose_impl(&pr->p);
    if (pl->impl == ATTN_IMPL_NAIVE)
        lay->matrix_floats = times(times(ceil_div(pr->max_q_len, rows), rows), pr->max_kv_len);
    plan_sizes(pr, g, asked, lay);
    plan_grad_tile(pr, lay);
    pl->kernels = pr->p.kernels;
    pl->rows = lay->rows;
    pl->keys = lay->keys;
    pl->modified = core->has_modifier(&pr->p);
    memcpy(pl->pitch, lay->pitch, sizeof pl->pitch);
    pl->slot_bytes = plan_desk(pr, lay);
    pl->shared_bytes = times(3, aligned(times(all_rows(&pr->p), sizeof(float))));
    pl->workers = (int)max64(1, min64(pr->p.num_workers, most_items(pr, lay)));
}

/* ------------------------------------------------------------------------------------------------
 * 5  Panel: a worker's desk, rows of one head, and keys, as the products read them
 * --------------------------------------------------------------------------------------------- */

static desk *open_desk(const call *c, char *slot)
{
    const backward *back = backward_of(c);
    const layout *lay = &back->lay;
    desk *w = (desk *)(void *)slot;
    int r, which;
    memset(w, 0, sizeof *w);
    w->back = back;
    w->pr = &c->pr;
    w->lay = lay;
    w->kernels = c->pl.kernels;
    w->redo = c->pr.p.force_redo;
    w->slot = slot;
    w->s = FLOATS(slot, lay->s);
    w->dp = FLOATS(slot, lay->dp);
    w->tanh = FLOATS(slot, lay->tanh);
    w->natural = FLOATS(slot, lay->natural);
    w->x = FLOATS(slot, lay->x);
    w->keys = (key_tile *)(void *)(slot + lay->key_tile);
    for (which = KEYS; which <= VALUES; which++) {
        w->keys->copy[which] = FLOATS(slot, lay->copy[which]);
        w->part[which] = FLOATS(slot, lay->part[which]);
        w->total[which] = FLOATS(slot, lay->total[which]);
    }
    w->packed_o = FLOATS(slot, lay->packed_o);
    w->ones = FLOATS(slot, lay->ones);
    for (r = 0; r < lay->rows; r++)
        w->ones[r] = 1.0f;
    return w;
}

/* Where row tile number g of the panel is. */
static grad_tile *grad_tile_at(const desk *w, int g)
{
    return (grad_tile *)(void *)(w->slot + w->lay->row_tiles + g * w->lay->row_tile_bytes);
}

/* A row tile without rows. */
static grad_tile *open_grad_tile(const desk *w, int g)
{
    const layout *lay = w->lay;
    grad_tile *row = grad_tile_at(w, g);
    char *own = (char *)row, *slot = w->slot;
    tile *t = &row->t;
    memset(row, 0, sizeof *row);
    row->dout_t = FLOATS(own, lay->dout_t);
    row->q = FLOATS(own, lay->q);
    row->dout = FLOATS(own, lay->dout);
    row->dq = FLOATS(own, lay->dq);
    row->dq_total = FLOATS(own, lay->dq_total);
    row->lse2 = FLOATS(own, lay->lse2);
    row->delta = FLOATS(own, lay->delta);
    row->sum = FLOATS(own, lay->sum);
    row->sum_total = FLOATS(own, lay->sum_total);
    t->pr = w->pr;
    t->pl = &w->back->c.pl;
    t->s = w->seq;
    t->kv_head = w->kv_head;
    t->lanes = (lane *)(void *)(own + lay->lanes);
    t->qt = FLOATS(own, lay->qt);
    t->stage = FLOATS(slot, lay->stage);
    t->row_in = (const float **)(void *)(slot + lay->row_in);
    t->row_out = (float **)(void *)(slot + lay->row_out);
    t->keys = w->keys;
    t->x_tile = w->x;
    t->lane_values = FLOATS(slot, lay->lane_values);
    t->lane_keys = (int *)(void *)(slot + lay->lane_keys);
    t->alive = (uint8_t *)(slot + lay->alive);
    return row;
}

/* Rows of `from`, the used lanes' rows of an output or input of `dim` elements, as f32 at `to`,
 * `pitch` floats apart and filled up with +0; the other lanes' are +0. */
static void load_rows(const tile *t, const attn_tensor *from, float *to, int64_t pitch, int64_t dim)
{
    int r;
    for (r = 0; r < t->pl->rows; r++, to += pitch) {
        const lane *l = &t->lanes[r];
        int64_t n = 0;
        if (l->used) {
            n = dim;
            load_run(t->pl->kernels, from->dtype, to, from->data,
                     ROW_AT(*from, &t->s, l->head, t->s.q_row + l->i), n);
        }
        memset(to + n, 0, (size_t)(pitch - n) * sizeof *to);
    }
}

/* to[d][row] from rows `pitch` floats apart. */
static void turn_rows(const tile *t, float *to, const float *from, int64_t pitch, int64_t dim)
{
    int r;
    for (r = 0; r < t->pl->rows; r++)
        t->row_in[r] = from + r * pitch;
    t->pl->kernels->pack(to, t->row_in, dim, 1.0f);
}

/* Rows first.. of a head, at most up to row `end`, packed as row tile g. */
static grad_tile *pack_rows(const desk *w, int g, int64_t first, int64_t end)
{
    const attn_params *p = &w->pr->p;
    const int64_t pitch = w->lay->pitch[KEYS], pitch_v = w->lay->pitch[VALUES];
    grad_tile *row = open_grad_tile(w, g);
    tile *t = &row->t;
    row_choice choice;
    int r;
    choice.head0 = w->head;
    choice.heads = 1;
    choice.first = first;
    choice.count = end;
    choice.list = NULL;
    w->back->core->set_rows(t, &choice);
    for (r = 0; r < t->pl->rows; r++) {
        float *to = row->q + r * pitch;
        memcpy(to, t->row_in[r], (size_t)p->head_dim * sizeof *to);
        memset(to + p->head_dim, 0, (size_t)(pitch - p->head_dim) * sizeof *to);
    }
    load_rows(t, &w->back->g.dout, row->dout, pitch_v, p->head_dim_v);
    turn_rows(t, row->dout_t, row->dout, pitch_v, p->head_dim_v);
    return row;
}

/* What the first list left of each row. */
static void load_statistics(const desk *w, grad_tile *row)
{
    const tile *t = &row->t;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        const int64_t at = l->used ? state_row(&w->pr->p, &t->s, l->head, l->i) : 0;
        row->lse2[r] = l->used ? w->back->lse2[at] : 0.0f;
        row->delta[r] = l->used ? w->back->delta[at] : 0.0f;
    }
}

static void clear(float *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

/* Rows i0..i1-1 of w->head, at most a panel of them, with their sums at +0. */
static void open_panel(desk *w, int64_t i0, int64_t i1)
{
    for (w->row_tiles = 0; i0 < i1; i0 += w->lay->rows) {
        grad_tile *row = pack_rows(w, w->row_tiles++, i0, i1);
        load_statistics(w, row);
        if (w->want & WANT_DQ) {
            clear(row->dq, w->lay->dq_floats);
            clear(row->dq_total, w->lay->dq_floats);
        }
        clear(row->sum, whole_lines(w->lay->rows));
        clear(row->sum_total, whole_lines(w->lay->rows));
    }
}

/* Keys j0..j0+n-1 of K and V as f32 rows; the panel is open. */
static void load_keys(const desk *w, int64_t j0, int n)
{
    w->back->core->copy_key_tile(&grad_tile_at(w, 0)->t, j0, n);
}

/* ------------------------------------------------------------------------------------------------
 * 6  Pair tile: p and dS of the rows of a tile and keys j0..j0+n-1, which are among the open ones.
 *    Pairs that do not count are ATTN_DEAD in both.
 * --------------------------------------------------------------------------------------------- */

static const float *open_rows_of(const desk *w, int which, int64_t j0)
{
    return w->keys->copy[which] + (j0 - w->keys->j0) * w->lay->pitch[which];
}

/* Logits in w->s; on the way tanh of softcap and what the score callback is given. visible: from
 * tile_class, not EMPTY. */
static void pair_logits(const desk *w, tile *t, int64_t j0, int n, int visible, attn_lanes lanes)
{
    const attn_core *core = w->back->core;
    const attn_params *p = &w->pr->p;
    const size_t bytes = (size_t)(n * w->lay->rows) * sizeof(float);
    w->kernels->qk(w->s, t->qt, open_rows_of(w, KEYS, j0), (ptrdiff_t)w->lay->pitch[KEYS], n,
                   p->head_dim, lanes, NULL, NULL);
    if (p->softcap > 0) {
        memcpy(w->tanh, w->s, bytes);
        w->kernels->softcap(w->tanh, n, 1.0f, w->pr->icap2);
    }
    core->change_logits(t, w->s, j0, n, ATTN_LOGITS_BIAS);
    core->hide_dead(t, w->s, j0, n, visible);
    if (p->score) {
        memcpy(w->natural, w->s, bytes);
        core->apply_score(t, w->s, j0, n);
    }
}

/* w->x is 1 for pairs that dropout keeps, +0 for the others. */
static void mark_kept(const desk *w, const grad_tile *row, int64_t j0, int n)
{
    int k;
    for (k = 0; k < n * w->lay->rows; k++)
        w->x[k] = 1.0f;
    w->back->core->drop_keys(&row->t, w->x, j0, n);
}

/* dP = dout V^T in w->dp; a dropped key has +0. */
static void pair_dp(const desk *w, const grad_tile *row, int64_t j0, int n, attn_lanes lanes)
{
    const int count = n * w->lay->rows;
    int k;
    w->kernels->qk(w->dp, row->dout_t, open_rows_of(w, VALUES, j0),
                   (ptrdiff_t)w->lay->pitch[VALUES], n, w->pr->p.head_dim_v, lanes, NULL, NULL);
    if (w->pr->drop_below)
        mark_kept(w, row, j0, n);
    for (k = 0; k < count && w->pr->drop_below; k++) {
        const float scaled = w->dp[k] * w->pr->keep_factor;
        w->dp[k] = w->x[k] > 0 ? scaled : 0.0f;
    }
}

/* dS passes the derivative of the score callback. */
static void pass_score(const desk *w, const tile *t, int64_t j0, int n)
{
    const attn_params *p = &w->pr->p;
    int j, r;
    for (r = 0; r < w->lay->rows; r++)
        for (j = 0; j < n && t->lanes[r].used; j++) {
            const int k = j * w->lay->rows + r;
            const attn_pair pair = pair_of(&t->s, &t->lanes[r], j0 + j);
            const float natural = w->natural[k] * LN2;
            if (!is_dead(w->s[k]))
                w->dp[k] = w->dp[k] * w->back->g.score_derivative(p->callback_user, &pair, natural);
        }
}

/* The lanes that see some of the keys, for whom then p is in w->s and dS, as dbias takes it, in
 * w->dp; none if nobody does. */
static attn_lanes pair_gradients(const desk *w, grad_tile *row, int64_t j0, int n)
{
    const attn_core *core = w->back->core;
    tile *t = &row->t;
    const int visible = core->tile_class(t, j0, n);
    attn_lanes lanes = { 0, 0 }, all;
    if (visible == ATTN_TILE_EMPTY)
        return lanes;
    lanes = core->lanes_in_range(t, j0, n);
    all.begin = 0;
    all.end = w->lay->rows;
    pair_logits(w, t, j0, n, visible, t->pl->modified ? all : lanes);
    pair_dp(w, row, j0, n, lanes);
    w->kernels->gradient(w->s, w->dp, n, row->lse2, row->delta);
    if (w->pr->p.score)
        pass_score(w, t, j0, n);
    return lanes;
}

/* Where a product looks for dead pairs: a live dS of -0 becomes +0. */
static void mark_live(const desk *w, int n)
{
    int k;
    for (k = 0; k < n * w->lay->rows; k++)
        if (is_dead(w->dp[k]) && !is_dead(w->s[k]))
            w->dp[k] = 0.0f;
}

/* p of pairs that are kept takes dropout's factor, the others become dead. */
static void drop_probabilities(const desk *w, int n)
{
    int k;
    for (k = 0; k < n * w->lay->rows && w->pr->drop_below; k++) {
        const float scaled = w->s[k] * w->pr->keep_factor;
        w->s[k] = w->x[k] > 0 ? scaled : ATTN_DEAD;
    }
}

/* The last steps before the products. */
static void finish_pairs(const desk *w, int n)
{
    if (w->pr->p.softcap > 0)
        w->kernels->softcap_gradient(w->dp, w->tanh, w->s, n);
    if (w->redo)
        mark_live(w, n);
    drop_probabilities(w, n);
}

/* ------------------------------------------------------------------------------------------------
 * 7  Sums: dBias and dSlopes are dS, or dS times the distance, added over axes. Over keys in chunks
 *    of 1024 by n, over rows in chunks of 1024 by i, then on over heads and batch entries.
 * --------------------------------------------------------------------------------------------- */

static float *element_of(const desk *w, int64_t i, int64_t j)
{
    const attn_sum_axes *a = w->axes;
    return a->data + w->seq.b * a->stride[AXIS_BATCH] + w->head * a->stride[AXIS_HEAD] +
           i * a->stride[AXIS_ROW] + (w->seq.column + j) * a->stride[AXIS_KEY];
}

/* d logit / d slope is minus the distance. */
static void take_distances(const desk *w, const tile *t, int64_t j0, int n, attn_lanes lanes)
{
    int j, r;
    for (r = lanes.begin; r < lanes.end; r++)
        for (j = 0; j < n; j++) {
            const int64_t distance = t->lanes[r].pos - (j0 + j);
            const float x = (float)(distance < 0 ? -distance : distance);
            float *ds = &w->dp[j * w->lay->rows + r];
            *ds = is_dead(*ds) ? *ds : -x * *ds;
        }
}

/* dS enters the elements of its pairs. */
static void add_to_elements(const desk *w, const tile *t, int64_t j0, int n, attn_lanes lanes)
{
    const ptrdiff_t step = w->axes->stride[AXIS_KEY];
    int j, r;
    for (r = lanes.begin; r < lanes.end; r++) {
        float *to = element_of(w, t->lanes[r].i, j0);
        for (j = 0; j < n; j++, to += step)
            *to = *to + w->dp[j * w->lay->rows + r];
    }
}

/* dS enters the sums of its keys, in part[KEYS]. */
static void add_to_keys(const desk *w, int64_t j0, int n, attn_lanes lanes)
{
    float *sums = w->part[KEYS] + (j0 - w->keys->j0);
    int j, r;
    for (j = 0; j < n; j++) {
        float sum = sums[j];
        for (r = lanes.begin; r < lanes.end; r++)
            sum = sum + w->dp[j * w->lay->rows + r];
        sums[j] = sum;
    }
}

/* dS enters the sums of its rows. */
static void add_to_rows(const desk *w, grad_tile *row, int n, attn_lanes lanes)
{
    const float *ds = w->dp;
    int j, r;
    for (j = 0; j < n; j++, ds += w->lay->rows)
        for (r = lanes.begin; r < lanes.end; r++)
            row->sum[r] = row->sum[r] + ds[r];
}

static void add_to_sums(const desk *w, grad_tile *row, int64_t j0, int n, attn_lanes lanes)
{
    const attn_sum_axes *a = w->axes;
    if (w->want & WANT_SLOPES)
        take_distances(w, &row->t, j0, n, lanes);
    if (!a->kept[AXIS_KEY])
        add_to_rows(w, row, n, lanes);
    else if (a->kept[AXIS_ROW])
        add_to_elements(w, &row->t, j0, n, lanes);
    else
        add_to_keys(w, j0, n, lanes);
}

/* What a chunk of rows adds to keys j0..j0+n-1. */
static void write_key_sums(const desk *w, int64_t j0, int n)
{
    int j;
    for (j = 0; j < n && w->axes->kept[AXIS_KEY] && !w->axes->kept[AXIS_ROW]; j++) {
        float *to = element_of(w, 0, j0 + j);
        *to = *to + w->part[KEYS][j];
    }
}

/* The rows' sums over all keys. */
static void write_row_sums(const desk *w)
{
    float chunk = 0.0f;
    int g, r;
    if (w->axes->kept[AXIS_KEY])
        return;
    for (g = 0; g < w->row_tiles; g++) {
        const grad_tile *row = grad_tile_at(w, g);
        for (r = 0; r < w->lay->rows && row->t.lanes[r].used; r++) {
            float *to = w->axes->kept[AXIS_ROW] ? element_of(w, row->t.lanes[r].i, 0) : &chunk;
            *to = *to + row->sum_total[r];
        }
    }
    if (!w->axes->kept[AXIS_ROW]) {
        float *to = element_of(w, 0, 0);
        *to = *to + chunk;
    }
}

/* Visits the elements of an item, to set them to +0 and, at the end, NaN canonical. */
static void store_elements(const attn_sum_axes *a, const int64_t from[4], const int64_t to[4],
                           int first)
{
    int64_t b, h, i, j;
    for (b = from[0]; b < (a->kept[0] ? to[0] : 1); b++)
        for (h = from[1]; h < (a->kept[1] ? to[1] : 1); h++)
            for (i = from[2]; i < (a->kept[2] ? to[2] : 1); i++)
                for (j = from[3]; j < (a->kept[3] ? to[3] : 1); j++) {
                    float *x = a->data + b * a->stride[0] + h * a->stride[1] + i * a->stride[2] +
                               j * a->stride[3];
                    *x = first ? 0.0f : is_nan(*x) ? float_of(CANONICAL_NAN) : *x;
                }
}

/* ------------------------------------------------------------------------------------------------
 * 8  Sweep: all keys of a range pass by the panel, tile by tile
 * --------------------------------------------------------------------------------------------- */

/* The pairs of a row tile and keys j0..j0+n-1 enter the row's gradients. Returns the lanes whose p
 * and dS then are in w->s and w->dp. */
static attn_lanes add_pairs(desk *w, grad_tile *row, int64_t j0, int n)
{
    const ptrdiff_t pitch = (ptrdiff_t)w->lay->pitch[KEYS];
    const int64_t dim = w->pr->p.head_dim;
    const float *k = open_rows_of(w, KEYS, j0);
    const attn_lanes lanes = pair_gradients(w, row, j0, n);
    if (lanes.begin == lanes.end)
        return lanes;
    row->entered = 1;
    if (w->want & WANT_SUMS)
        add_to_sums(w, row, j0, n, lanes);
    if (!(w->want & (WANT_DQ | WANT_KEYS)))
        return lanes;
    finish_pairs(w, n);
    if ((w->want & WANT_DQ) && w->redo)
        w->kernels->pv_select(row->dq, w->dp, k, pitch, n, dim, lanes);
    else if (w->want & WANT_DQ)
        w->kernels->pv(row->dq, w->dp, k, pitch, n, dim, lanes, NULL);
    return lanes;
}

/* Pairs of keys outside begin..end-1 of a tile of n are dead. */
static void fill_dead(const desk *w, float *x, int begin, int end, int n)
{
    const int rows = w->lay->rows;
    int k;
    for (k = 0; k < begin * rows; k++)
        x[k] = ATTN_DEAD;
    for (k = end * rows; k < n * rows; k++)
        x[k] = ATTN_DEAD;
}

/* A row tile against the open keys, n of them; what it has for dK and dV joins the group. */
static void add_grad_tile(desk *w, grad_tile *row, int n)
{
    row_group *g = &w->group;
    const int64_t j0 = w->keys->j0;
    const int from = (int)min64(n, max64(0, row->t.lo - j0));
    const int to = (int)min64(n, max64(0, row->t.hi - j0));
    const int64_t at = g->count * w->lay->pair_floats;
    float *s = FLOATS(w->slot, w->lay->s) + at, *dp = FLOATS(w->slot, w->lay->dp) + at;
    attn_lanes lanes;
    attn_term term;
    if (from >= to)
        return;
    w->s = s + from * w->lay->rows;
    w->dp = dp + from * w->lay->rows;
    lanes = add_pairs(w, row, j0 + from, to - from);
    if (!(w->want & WANT_KEYS) || lanes.begin == lanes.end)
        return;
    fill_dead(w, s, from, to, n);
    fill_dead(w, dp, from, to, n);
    term.lanes = lanes;
    term.begin = from;
    term.end = to;
    term.x = dp;
    term.b = row->q;
    g->dk[g->count] = term;
    term.x = s;
    term.b = row->dout;
    g->dv[g->count++] = term;
}

/* What the group has enters dK and dV of the open keys. */
static void add_group(const desk *w, int n)
{
    const row_group *g = &w->group;
    const ptrdiff_t pitch = (ptrdiff_t)w->lay->pitch[KEYS];
    const ptrdiff_t pitch_v = (ptrdiff_t)w->lay->pitch[VALUES];
    const attn_terms dk = { g->dk, g->count, pitch }, dv = { g->dv, g->count, pitch_v };
    void (*const outer)(float *, ptrdiff_t, const attn_terms *, int, int64_t) =
        w->redo ? w->kernels->outer_select : w->kernels->outer;
    if (g->count && (w->want & WANT_DK))
        outer(w->part[KEYS], pitch, &dk, n, w->pr->p.head_dim);
    if (g->count && (w->want & WANT_DV))
        outer(w->part[VALUES], pitch_v, &dv, n, w->pr->p.head_dim_v);
}

/* total += x, which is +0 then; n is a multiple of 16: 16 at a time, which compilers vectorise. */
static void flush(float *total, float *x, int64_t n)
{
    float sum[16], more[16];
    int64_t k;
    int i;
    for (k = 0; k < n; k += 16) {
        memcpy(sum, total + k, sizeof sum);
        memcpy(more, x + k, sizeof more);
        for (i = 0; i < 16; i++)
            sum[i] = sum[i] + more[i];
        memcpy(total + k, sum, sizeof sum);
    }
    clear(x, n);
}

/* A chunk of keys is done. */
static void end_chunk_of_keys(const desk *w)
{
    int g;
    for (g = 0; g < w->row_tiles; g++) {
        grad_tile *row = grad_tile_at(w, g);
        if (row->entered && (w->want & WANT_DQ))
            flush(row->dq_total, row->dq, w->lay->dq_floats);
        if (row->entered)
            flush(row->sum_total, row->sum, whole_lines(w->lay->rows));
        row->entered = 0;
    }
}

/* All row tiles of the panel against keys j0..end-1. */
static void sweep_keys(desk *w, int64_t j0, int64_t end)
{
    const int n = (int)(end - j0);
    int i = 0, last, which;
    load_keys(w, j0, n);
    for (which = KEYS; which <= VALUES && (w->want & (WANT_KEYS | WANT_SUMS)); which++)
        clear(w->part[which], n * w->lay->pitch[which]);
    while (i < w->row_tiles) {
        w->group.count = 0;
        for (last = i + w->lay->group; i < last && i < w->row_tiles; i++)
            add_grad_tile(w, grad_tile_at(w, i), n);
        add_group(w, n);
    }
    for (which = KEYS; which <= VALUES && (w->want & WANT_KEYS); which++)
        flush(w->total[which] + (j0 - w->total_from) * w->lay->pitch[which], w->part[which],
              n * w->lay->pitch[which]);
    if (w->want & WANT_SUMS)
        write_key_sums(w, j0, n);
}

/* dQ of a row tile, scaled. */
static void write_dq(desk *w, grad_tile *row)
{
    const attn_params *p = &w->pr->p;
    w->finite &= w->kernels->finite(row->dq_total, w->lay->rows * p->head_dim);
    w->back->core->write_lanes(&row->t, &w->back->g.dq, p->head_dim, row->dq_total, w->ones,
                               p->scale);
}

/* Rows i0..i1-1 of w->head, all of one chunk of rows, against those of the keys from..to-1 that
 * they see. Tiles of keys end where n is a multiple of their size. */
static void sweep_panel(desk *w, int64_t i0, int64_t i1, int64_t from, int64_t to)
{
    const int64_t base = w->seq.key_base, keys = w->lay->keys;
    int64_t j = to, hi = from, end;
    int g;
    open_panel(w, i0, i1);
    for (g = 0; g < w->row_tiles; g++) {
        const tile *t = &grad_tile_at(w, g)->t;
        if (t->lo < t->hi) {
            j = min64(j, t->lo);
            hi = max64(hi, t->hi);
        }
    }
    hi = min64(hi, to);
    for (j = max64(j, from); j < hi; j = end) {
        end = min64(hi, ((base + j) / keys + 1) * keys - base);
        sweep_keys(w, j, end);
        if ((base + end) % ATTN_CHUNK == 0)
            end_chunk_of_keys(w);
    }
    end_chunk_of_keys(w);
    for (g = 0; g < w->row_tiles && (w->want & WANT_DQ); g++)
        write_dq(w, grad_tile_at(w, g));
    if (w->want & WANT_SUMS)
        write_row_sums(w);
}

/* Rows i0..i1-1 of heads head0..head1-1 against keys from..to-1. */
static void sweep(desk *w, int64_t head0, int64_t head1, int64_t i0, int64_t i1, int64_t from,
                  int64_t to)
{
    int64_t head, i, end;
    for (head = head0; head < head1; head++) {
        w->head = head;
        w->kv_head = head / w->pr->group;
        for (i = i0; i < i1; i = end) {
            const int64_t chunk_end = (i / ATTN_CHUNK + 1) * ATTN_CHUNK;
            end = min64(min64(i1, chunk_end), i + (int64_t)w->lay->panel * w->lay->rows);
            sweep_panel(w, i, end, from, to);
        }
    }
}

/* ------------------------------------------------------------------------------------------------
 * 9  Items. A result that is not finite is computed again with dead pairs left out by selection: a
 *    NaN or infinity that a mask hides may have met a factor of +0.
 * --------------------------------------------------------------------------------------------- */

/* Heads, rows and keys of a sequence. */
typedef struct region {
    int64_t head0, head1, i0, i1, from, to;
    int64_t bias_end; /* behind its rows of dBias, which may not all be in use */
} region;

/* A row of dK or dV: fl(total * factor), never -0, NaN canonical. */
static void write_row(const desk *w, const attn_output *out, int64_t dim, float *total,
                      float factor, int64_t j)
{
    float x[16];
    int64_t d;
    int i;
    for (d = 0; d < dim; d += 16) { /* the rest of the last line is +0 */
        memcpy(x, total + d, sizeof x);
        for (i = 0; i < 16; i++) {
            x[i] = x[i] * factor;
            x[i] = x[i] + 0.0f;
            x[i] = is_nan(x[i]) ? float_of(CANONICAL_NAN) : x[i];
        }
        memcpy(total + d, x, sizeof x);
    }
    store_run(w->kernels, out->dtype, out->data,
              ROW_AT(*out, &w->seq, w->kv_head, w->seq.kv_row + j), total, dim);
}

/* dK and dV of keys from..to-1. */
static void write_keys(desk *w, int64_t from, int64_t to)
{
    const attn_params *p = &w->pr->p;
    const attn_gradients *g = &w->back->g;
    int which;
    int64_t j;
    for (which = KEYS; which <= VALUES; which++)
        w->finite &= w->kernels->finite(w->total[which], (to - from) * w->lay->pitch[which]);
    for (j = from; j < to; j++) {
        if (w->want & WANT_DK)
            write_row(w, &g->dk, p->head_dim, w->total[KEYS] + (j - from) * w->lay->pitch[KEYS],
                      p->scale, j);
        if (w->want & WANT_DV)
            write_row(w, &g->dv, p->head_dim_v,
                      w->total[VALUES] + (j - from) * w->lay->pitch[VALUES], 1.0f, j);
    }
}

/* dBias of a part, where nothing is summed: +0, or at the end NaN canonical. */
static void store_bias(const desk *w, const region *a, int first)
{
    const attn_sum_axes *bias = w->axes;
    const int64_t from[4] = { w->seq.b, a->head0, a->i0, 0 };
    const int64_t to[4] = { w->seq.b + 1, a->head1, min64(a->bias_end, bias->count[AXIS_ROW]),
                            bias->count[AXIS_KEY] };
    store_elements(bias, from, to, first);
}

/* The gradients `want` of a part. */
static void take_part(desk *w, int want, const region *a)
{
    int which, again = 1;
    w->want = want;
    w->axes = &w->back->bias;
    w->total_from = a->from;
    while (again) {
        w->finite = 1;
        for (which = KEYS; which <= VALUES && (want & WANT_KEYS); which++)
            clear(w->total[which], (a->to - a->from) * w->lay->pitch[which]);
        if (want & WANT_BIAS)
            store_bias(w, a, 1);
        sweep(w, a->head0, a->head1, a->i0, a->i1, a->from, a->to);
        if (want & WANT_BIAS)
            store_bias(w, a, 0);
        if (want & WANT_KEYS)
            write_keys(w, a->from, a->to);
        again = !w->finite && !w->redo;
        w->redo = 1;
    }
}

static int beside(const layout *lay)
{
    return lay->bias_beside ? WANT_BIAS : 0;
}

/* All of a kv head: five products. */
static void head_item(const call *c, char *slot, int64_t index)
{
    const problem *pr = &c->pr;
    const int64_t kv_head = index % pr->p.num_heads_kv;
    desk *w = open_desk(c, slot);
    region a;
    w->seq = w->back->core->sequence_of(&pr->p, index / pr->p.num_heads_kv);
    a.head0 = kv_head * pr->group;
    a.head1 = a.head0 + pr->group;
    a.i0 = w->seq.row_from;
    a.i1 = w->seq.row_to;
    a.from = w->seq.key_from;
    a.to = w->seq.key_to;
    a.bias_end = INT64_MAX;
    take_part(w, (w->lay->want & (WANT_DQ | WANT_KEYS)) | beside(w->lay), &a);
}

/* dQ of some rows of a head: three products. Heavy causal parts first. */
static void rows_item(const call *c, char *slot, int64_t index)
{
    const problem *pr = &c->pr;
    const layout *lay = &backward_of(c)->lay;
    const int64_t parts = ceil_div(pr->max_q_len, lay->item_rows);
    const int64_t at = parts - 1 - index % parts;
    desk *w = open_desk(c, slot);
    region a;
    index /= parts;
    w->seq = w->back->core->sequence_of(&pr->p, index / pr->p.num_heads_q);
    a.head0 = index % pr->p.num_heads_q;
    a.head1 = a.head0 + 1;
    a.i0 = w->seq.row_from + at * lay->item_rows;
    a.i1 = min64(a.i0 + lay->item_rows, w->seq.row_to);
    a.bias_end = at == parts - 1 ? INT64_MAX : a.i0 + lay->item_rows;
    a.from = w->seq.key_from;
    a.to = w->seq.key_to;
    take_part(w, WANT_DQ | beside(w->lay), &a);
}

/* dK and dV of some keys of a head: four products. */
static void keys_item(const call *c, char *slot, int64_t index)
{
    const problem *pr = &c->pr;
    const layout *lay = &backward_of(c)->lay;
    const int64_t parts = ceil_div(pr->max_kv_len, lay->item_keys);
    const int64_t at = index % parts;
    int64_t kv_head;
    desk *w = open_desk(c, slot);
    region a;
    index /= parts;
    w->seq = w->back->core->sequence_of(&pr->p, index / pr->p.num_heads_kv);
    kv_head = index % pr->p.num_heads_kv;
    a.head0 = kv_head * pr->group;
    a.head1 = a.head0 + pr->group;
    a.i0 = w->seq.row_from;
    a.i1 = w->seq.row_to;
    a.from = w->seq.key_from + at * lay->item_keys;
    a.to = min64(a.from + lay->item_keys, w->seq.key_to);
    w->kv_head = kv_head;
    if (a.from < a.to)
        take_part(w, w->lay->want & WANT_KEYS, &a);
}

/* ---- what is known of a row before any key: lse2, delta, and what the sink has of it */

static void row_statistics(const desk *w, grad_tile *row, int r)
{
    const backward *back = w->back;
    const attn_params *p = &w->pr->p;
    const tile *t = &row->t;
    const lane *l = &t->lanes[r];
    const int64_t at = state_row(p, &t->s, l->head, l->i), in_seq = t->s.q_row + l->i;
    const float *lse = (const float *)p->lse.data, *dlse = (const float *)back->g.dlse.data;
    const float sink = sink_of(p, l->head);
    float x;
    back->lse2[at] = lse[ROW_AT(p->lse, &t->s, l->head, in_seq)] * LOG2E_HI;
    back->delta[at] = row->delta[r];
    if (dlse)
        back->delta[at] = row->delta[r] - dlse[ROW_AT(back->g.dlse, &t->s, l->head, in_seq)];
    x = sink * LOG2E_HI;
    x = x - back->lse2[at];
    x = -exp2_canon(x > 127.0f ? 127.0f : x) * back->delta[at];
    back->sink_terms[at] = is_neg_inf(sink) ? 0.0f : x;
}

/* delta = rowsum(dout * o) of all rows of a head. */
static void statistics_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int64_t dim = p->head_dim_v;
    const attn_tensor o = as_tensor(&p->o);
    desk *w = open_desk(c, slot);
    int64_t i;
    int r;
    w->seq = w->back->core->sequence_of(p, index / p->num_heads_q);
    w->head = index % p->num_heads_q;
    w->kv_head = w->head / c->pr.group;
    for (i = w->seq.row_from; i < w->seq.row_to; i += w->lay->rows) {
        grad_tile *row = pack_rows(w, 0, i, w->seq.row_to);
        load_rows(&row->t, &o, row->t.stage, dim, dim);
        turn_rows(&row->t, w->packed_o, row->t.stage, dim, dim);
        w->kernels->dots(row->delta, row->dout_t, w->packed_o, dim);
        for (r = 0; r < w->lay->rows && row->t.lanes[r].used; r++)
            row_statistics(w, row, r);
    }
}

/* ---- sums */

/* dSink of a head. */
static void sinks_item(const call *c, char *slot, int64_t head)
{
    const backward *back = backward_of(c);
    const attn_params *p = &c->pr.p;
    float total = 0.0f;
    int64_t b, i, end;
    (void)slot;
    for (b = 0; b < p->batch; b++) {
        const sequence s = back->core->sequence_of(p, b);
        for (i = s.row_from; i < s.row_to; i = end) {
            float chunk = 0.0f;
            for (end = min64((i / ATTN_CHUNK + 1) * ATTN_CHUNK, s.row_to); i < end; i++)
                chunk = chunk + back->sink_terms[state_row(p, &s, head, i)];
            total = total + chunk;
        }
    }
    back->g.dsinks[head] = is_nan(total) ? float_of(CANONICAL_NAN) : total + 0.0f;
}

/* First and last index, less one, of an axis that item *index takes: all of one that is summed, of
 * one that is kept so many. *index then counts what is left. */
static void take_axis(const attn_sum_axes *a, int axis, int64_t all, int64_t each, int64_t *index,
                      int64_t *from, int64_t *to)
{
    const int64_t parts = ceil_div(a->count[axis], each);
    *from = 0;
    *to = all;
    if (!a->kept[axis])
        return;
    *from = *index % parts * each;
    *to = min64(*from + each, a->count[axis]);
    *index /= parts;
}

static int64_t sum_items(const layout *lay, const attn_sum_axes *a)
{
    const int64_t each[4] = { 1, 1, lay->item_rows, lay->item_keys };
    int64_t items = 1;
    int axis;
    for (axis = 0; axis < 4; axis++)
        if (a->kept[axis])
            items = times(items, ceil_div(a->count[axis], each[axis]));
    return items;
}

/* Elements number `index` of a sum: heads and batch entries one after the other. */
static void sum_item(const call *c, char *slot, int64_t index, int want, const attn_sum_axes *a)
{
    const attn_params *p = &c->pr.p;
    desk *w = open_desk(c, slot);
    int64_t from[4], to[4], b;
    take_axis(a, AXIS_KEY, INT64_MAX, w->lay->item_keys, &index, &from[3], &to[3]);
    take_axis(a, AXIS_ROW, INT64_MAX, w->lay->item_rows, &index, &from[2], &to[2]);
    take_axis(a, AXIS_HEAD, p->num_heads_q, 1, &index, &from[1], &to[1]);
    take_axis(a, AXIS_BATCH, p->batch, 1, &index, &from[0], &to[0]);
    store_elements(a, from, to, 1);
    w->want = want;
    w->axes = a;
    for (b = from[0]; b < to[0]; b++) {
        int64_t j0, j1;
        w->seq = w->back->core->sequence_of(p, b);
        j0 = max64(w->seq.key_from, from[3] - w->seq.column); /* items take the caller's columns */
        j1 = min64(to[3] - (a->kept[3] ? w->seq.column : 0), w->seq.key_to);
        sweep(w, from[1], to[1], max64(from[2], w->seq.row_from), min64(to[2], w->seq.row_to), j0,
              j1);
    }
    store_elements(a, from, to, 0);
}

static void bias_item(const call *c, char *slot, int64_t index)
{
    sum_item(c, slot, index, WANT_BIAS, &backward_of(c)->bias);
}

static void slopes_item(const call *c, char *slot, int64_t index)
{
    sum_item(c, slot, index, WANT_SLOPES, &backward_of(c)->slopes);
}

/* ------------------------------------------------------------------------------------------------
 * 10  Naive: the textbook in numbered passes over the matrices P and dS of a head, [row tile][key]
 *     [row]. It takes neither o nor lse from the forward call. Each pass quotes the line of the
 *     forward that it repeats or differentiates.
 * --------------------------------------------------------------------------------------------- */

/* A tile of rows and where its part of the matrices is. */
typedef struct textbook_rows {
    grad_tile *row;
    float *p, *ds; /* [kv_len][rows] */
} textbook_rows;

static textbook_rows open_textbook(desk *w, int64_t tile_index)
{
    const int64_t at = tile_index * w->lay->rows * w->seq.kv_len;
    textbook_rows n;
    n.row = pack_rows(w, 0, tile_index * w->lay->rows, w->seq.q_len);
    n.p = FLOATS(w->slot, w->lay->matrix[KEYS]) + at;
    n.ds = FLOATS(w->slot, w->lay->matrix[VALUES]) + at;
    w->row_tiles = 1;
    return n;
}

/* s = softcap(scale q.k) + bias + ALiBi, callback, masks: of the open keys into w->s. 0 = all of
 * them are dead. */
static int textbook_logits(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_lanes all = { 0, w->lay->rows };
    tile *t = &n->row->t;
    const int visible = w->back->core->tile_class(t, j0, count);
    int k;
    load_keys(w, j0, count);
    if (visible != ATTN_TILE_EMPTY)
        pair_logits(w, t, j0, count, visible, all);
    for (k = 0; k < count * w->lay->rows && visible == ATTN_TILE_EMPTY; k++)
        w->s[k] = NEG_INF;
    return visible != ATTN_TILE_EMPTY;
}

/* Calls `pass` for all keys of a row tile, tile by tile. */
static void each_keys(desk *w, const textbook_rows *n,
                      void (*pass)(desk *w, const textbook_rows *n, int64_t j0, int count))
{
    int64_t j;
    for (j = 0; j < w->seq.kv_len; j += w->lay->keys)
        pass(w, n, j, (int)min64(w->lay->keys, w->seq.kv_len - j));
}

/* 1. S = the logits */
static void textbook_scores(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    textbook_logits(w, n, j0, count);
    memcpy(n->p + j0 * w->lay->rows, w->s, (size_t)(count * w->lay->rows) * sizeof(float));
}

static void textbook_maximum(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    w->kernels->maximum(n->p + j0 * w->lay->rows, count, n->row->sum);
}

static void textbook_exp(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    w->kernels->exp_sum(n->p + j0 * w->lay->rows, count, ATTN_DEAD, n->row->sum, n->row->sum_total);
}

/* 2. P = exp(S - max) / sum, the sum with the sink's exp(sink - max); dead pairs ATTN_DEAD */
static void textbook_softmax(desk *w, const textbook_rows *n)
{
    const int rows = w->lay->rows;
    const int64_t count = w->seq.kv_len;
    float *m = n->row->sum, *l = n->row->sum_total;
    int64_t j;
    int r;
    for (r = 0; r < rows; r++) {
        const lane *at = &n->row->t.lanes[r];
        n->row->lse2[r] = at->used ? sink_of(&w->pr->p, at->head) * LOG2E_HI : NEG_INF;
        m[r] = n->row->lse2[r];
        l[r] = 0.0f;
    }
    each_keys(w, n, textbook_maximum);
    each_keys(w, n, textbook_exp);
    for (r = 0; r < rows; r++) {
        float sink = m[r] == NEG_INF ? NEG_INF : n->row->lse2[r] - m[r];
        sink = exp2_canon(sink);
        l[r] = l[r] + sink;
        n->row->lse2[r] = l[r] == 0.0f ? 0.0f : sink / l[r]; /* the sink's probability */
        for (j = 0; j < count; j++) {
            float *p = &n->p[j * rows + r];
            *p = is_dead(*p) ? *p : *p / l[r];
        }
    }
}

/* 3. of O = P V: dP = dout V^T; with dropout that of P' V, P' = P keep / (1 - dropout_p) */
static void textbook_dp(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_lanes all = { 0, w->lay->rows };
    load_keys(w, j0, count);
    pair_dp(w, n->row, j0, count, all);
    memcpy(n->ds + j0 * w->lay->rows, w->dp, (size_t)(count * w->lay->rows) * sizeof(float));
}

/* 4. of P = softmax(S): dS = P (dP - sum of P dP over the row), and LSE gives P dlse */
static void textbook_ds(desk *w, const textbook_rows *n)
{
    const backward *back = w->back;
    const int rows = w->lay->rows;
    const int64_t count = w->seq.kv_len;
    const float *dlse = (const float *)back->g.dlse.data;
    int64_t j;
    int r;
    for (r = 0; r < rows; r++) {
        const tile *t = &n->row->t;
        const lane *at = &t->lanes[r];
        float sum = 0.0f;
        for (j = 0; j < count; j++) {
            const float x = n->p[j * rows + r] * n->ds[j * rows + r];
            sum = is_dead(n->p[j * rows + r]) ? sum : sum + x;
        }
        if (dlse && at->used)
            sum = sum - dlse[ROW_AT(back->g.dlse, &t->s, at->head, t->s.q_row + at->i)];
        n->row->delta[r] = sum;
        for (j = 0; j < count; j++) {
            const float p = n->p[j * rows + r], x = n->ds[j * rows + r] - sum;
            n->ds[j * rows + r] = is_dead(p) ? ATTN_DEAD : p * x;
        }
    }
}

/* 5. of the sink in the softmax: dSink = -P_sink (sum of P dP - dlse) */
static void textbook_sinks(const desk *w, const textbook_rows *n)
{
    int r;
    for (r = 0; r < w->lay->rows && n->row->t.lanes[r].used; r++) {
        float *to = &w->back->g.dsinks[n->row->t.lanes[r].head];
        const float x = n->row->lse2[r] * n->row->delta[r];
        const float sink = sink_of(&w->pr->p, n->row->t.lanes[r].head);
        *to = is_neg_inf(sink) ? *to : *to - x;
    }
}

static void add_elements(desk *w, const textbook_rows *n, int want, const attn_sum_axes *a,
                         int64_t j0, int count)
{
    const int rows = w->lay->rows;
    int j, r;
    w->axes = a;
    for (r = 0; r < rows && n->row->t.lanes[r].used && a->data; r++)
        for (j = 0; j < count; j++) {
            float *to = element_of(w, n->row->t.lanes[r].i, j0 + j);
            const int64_t distance = n->row->t.lanes[r].pos - (j0 + j);
            const float length = (float)(distance < 0 ? -distance : distance);
            const float ds = (want == WANT_BIAS ? 1.0f : -length) * w->dp[j * rows + r];
            *to = is_dead(w->s[j * rows + r]) ? *to : *to + ds;
        }
}

/* 6. of S = callback(softcap(scale q.k) + bias - slope distance), from the outside in */
static void textbook_modifiers(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_params *p = &w->pr->p;
    const size_t bytes = (size_t)(count * w->lay->rows) * sizeof(float);
    float *ds = n->ds + j0 * w->lay->rows;
    if ((p->score || p->softcap > 0) && !textbook_logits(w, n, j0, count))
        return;
    memcpy(w->s, n->p + j0 * w->lay->rows, bytes);
    memcpy(w->dp, ds, bytes);
    if (p->score)
        pass_score(w, &n->row->t, j0, count);
    add_elements(w, n, WANT_BIAS, &w->back->bias, j0, count);
    add_elements(w, n, WANT_SLOPES, &w->back->slopes, j0, count);
    if (p->softcap > 0)
        w->kernels->softcap_gradient(w->dp, w->tanh, w->s, count);
    memcpy(ds, w->dp, bytes);
}

/* 7. of O = P V and S = scale Q K^T: dV += P^T dout, dQ += scale dS K, dK += scale dS^T Q */
static void textbook_products(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_lanes all = { 0, w->lay->rows };
    const attn_params *p = &w->pr->p;
    const size_t bytes = (size_t)(count * w->lay->rows) * sizeof(float);
    const ptrdiff_t pitch = (ptrdiff_t)w->lay->pitch[KEYS];
    const ptrdiff_t pitch_v = (ptrdiff_t)w->lay->pitch[VALUES];
    const attn_term dk = { w->dp, n->row->q, all, 0, count };
    const attn_term dv = { w->s, n->row->dout, all, 0, count };
    const attn_terms dk_terms = { &dk, 1, pitch }, dv_terms = { &dv, 1, pitch_v };
    load_keys(w, j0, count);
    if (w->pr->drop_below)
        mark_kept(w, n->row, j0, count);
    memcpy(w->s, n->p + j0 * w->lay->rows, bytes);
    memcpy(w->dp, n->ds + j0 * w->lay->rows, bytes);
    mark_live(w, count);
    drop_probabilities(w, count);
    w->kernels->pv_select(n->row->dq_total, w->dp, w->keys->copy[KEYS], pitch, count, p->head_dim,
                          all);
    w->kernels->outer_select(w->total[KEYS] + j0 * pitch, pitch, &dk_terms, count, p->head_dim);
    w->kernels->outer_select(w->total[VALUES] + j0 * pitch_v, pitch_v, &dv_terms, count,
                             p->head_dim_v);
}

static void textbook_head(desk *w)
{
    const int64_t tiles = ceil_div(w->seq.q_len, w->lay->rows);
    int64_t i;
    for (i = 0; i < tiles; i++) {
        const textbook_rows n = open_textbook(w, i);
        each_keys(w, &n, textbook_scores);
        textbook_softmax(w, &n);
        each_keys(w, &n, textbook_dp);
        textbook_ds(w, &n);
        if (w->want & WANT_SINKS)
            textbook_sinks(w, &n);
    }
    for (i = 0; i < tiles; i++) {
        const textbook_rows n = open_textbook(w, i);
        each_keys(w, &n, textbook_modifiers);
        clear(n.row->dq_total, w->lay->rows * w->pr->p.head_dim);
        each_keys(w, &n, textbook_products);
        if (w->want & WANT_DQ)
            write_dq(w, n.row);
    }
}

/* All heads of a kv head of w->seq. */
static void textbook_group(desk *w)
{
    int64_t head;
    int which;
    for (which = KEYS; which <= VALUES; which++)
        clear(w->total[which], w->seq.kv_len * w->lay->pitch[which]);
    for (head = 0; head < w->pr->group; head++) {
        w->head = w->kv_head * w->pr->group + head;
        textbook_head(w);
    }
    write_keys(w, 0, w->seq.kv_len);
}

static desk *open_textbook_desk(const call *c, char *slot)
{
    desk *w = open_desk(c, slot);
    w->want = w->lay->want;
    return w;
}

static void textbook_item(const call *c, char *slot, int64_t index)
{
    desk *w = open_textbook_desk(c, slot);
    w->seq = w->back->core->sequence_of(&c->pr.p, index / c->pr.p.num_heads_kv);
    w->kv_head = index % c->pr.p.num_heads_kv;
    textbook_group(w);
}

/* Everything in one item: heads and batch entries add to the same sums. */
static void textbook_sums_item(const call *c, char *slot, int64_t index)
{
    static const int64_t from[4] = { 0, 0, 0, 0 };
    const attn_params *p = &c->pr.p;
    const backward *back = backward_of(c);
    const attn_sum_axes *bias = &back->bias, *slopes = &back->slopes;
    if (bias->data)
        store_elements(bias, from, bias->count, 1);
    if (slopes->data)
        store_elements(slopes, from, slopes->count, 1);
    if (back->g.dsinks)
        clear(back->g.dsinks, p->num_heads_q);
    for (; index < p->batch * p->num_heads_kv; index++)
        textbook_item(c, slot, index);
    if (bias->data)
        store_elements(bias, from, bias->count, 0);
    if (slopes->data)
        store_elements(slopes, from, slopes->count, 0);
}

/* ------------------------------------------------------------------------------------------------
 * 11  Run
 * --------------------------------------------------------------------------------------------- */

typedef struct grad_list {
    int active;
    int64_t items;
    void (*item)(const call *c, char *slot, int64_t index);
} grad_list;

/* List number i of a call; 0 = there are no more. */
OWN_FRAME static int take_list(const backward *back, int i, grad_list *list)
{
    const problem *pr = &back->c.pr;
    const attn_params *p = &pr->p;
    const layout *lay = &back->lay;
    const int want = lay->want, naive = back->c.pl.impl == ATTN_IMPL_NAIVE, five = lay->gemms == 5;
    const int64_t heads = p->batch * p->num_heads_kv, one = want & (WANT_SUMS | WANT_SINKS) ? 1 : 0;
    const grad_list lists[] = {
        { naive && !one, heads, textbook_item },
        { naive && one, 1, textbook_sums_item },
        { !naive, p->batch * p->num_heads_q, statistics_item },
        { !naive && five && (want & (WANT_DQ | WANT_KEYS)), heads, head_item },
        { !naive && !five && (want & WANT_DQ),
          items_by(p, p->num_heads_q, pr->max_q_len, lay->item_rows), rows_item },
        { !naive && !five && (want & WANT_KEYS),
          items_by(p, p->num_heads_kv, pr->max_kv_len, lay->item_keys), keys_item },
        { !naive && (want & WANT_BIAS) && !lay->bias_beside, sum_items(lay, &back->bias),
          bias_item },
        { !naive && (want & WANT_SLOPES), sum_items(lay, &back->slopes), slopes_item },
        { !naive && (want & WANT_SINKS), p->num_heads_q, sinks_item },
    };
    if (i == COUNT_OF(lists))
        return 0;
    *list = lists[i];
    return 1;
}

/* The lists, one after the other. */
static attn_status run_backward(backward *back)
{
    attn_status status = ATTN_OK;
    grad_list list;
    int i;
    for (i = 0; !status && take_list(back, i, &list); i++)
        if (list.active)
            status = back->core->run_items(&back->c, list.items, list.item);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 12  Public functions
 * --------------------------------------------------------------------------------------------- */

#define BACKWARD_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(backward)))

static int64_t backward_bytes(const plan *pl, int workers)
{
    return plus(plus(BACKWARD_BYTES, pl->shared_bytes), times(workers, pl->slot_bytes));
}

/* How many workers fit. */
static int workers_in(const plan *pl, size_t bytes)
{
    const int64_t one = backward_bytes(pl, 1);
    if ((uint64_t)bytes < (uint64_t)one)
        return 0;
    if ((uint64_t)bytes >= (uint64_t)backward_bytes(pl, pl->workers))
        return pl->workers;
    return (int)(((int64_t)bytes - one) / pl->slot_bytes) + 1;
}

/* Turns *p and *g into *pr and *resolved, or says what is wrong. */
static attn_status validate_backward(const attn_params *p, const attn_gradients *g, int need_data,
                                     problem *pr, attn_gradients *resolved, text *why)
{
    const attn_core *core = attn_core_get();
    attn_status status;
    if (!g)
        return bad(why, ATTN_ERR_ARG, "gradients is NULL");
    status = p ? check_unsupported(p, g, why) : ATTN_OK; /* nothing that is set then helps */
    if (!status)
        status = core->validate(p, pr, need_data, why);
    if (status)
        return status;
    *resolved = *g;
    status = check_gradients(p, g, core->choose_impl(&pr->p) == ATTN_IMPL_NAIVE, need_data, why);
    if (status)
        return status;
    resolve_gradients(&pr->p, resolved);
    status = check_gradient_sizes(&pr->p, resolved, why);
    if (!status)
        core->settle_workers(&pr->p);
    return status;
}

/* Above 0: the backend takes the call; 0: the CPU does, below 0: nobody can, and *reason says why;
 * nothing without a backend. */
static int ask_gradients(const attn_params *p, const attn_gradient_call *g, text *reason)
{
    const attn_backend *backend = p->backend;
    char why[160];
    int answer = 0;
    if (!backend)
        return 0;
    why[0] = 0;
    put(reason, backend->name);
    put(reason, " refused: ");
    if (!backend->run_gradients)
        put(reason, "it has no gradients");
    else if (p->batch == 0)
        put(reason, "nothing to do");
    else
        answer = backend->supports_gradients(backend, p, &g->g, why, sizeof why);
    why[sizeof why - 1] = 0;
    put(reason, why);
    return answer;
}

static attn_gradient_call gradient_call(const attn_params *p, const attn_gradients *g)
{
    attn_gradient_call made;
    made.g = *g;
    made.bias = bias_axes(p, &g->dbias);
    made.slopes = slope_axes(p, g->dslopes);
    made.backward = attn_backward;
    return made;
}

/* What changes in *info if a backend takes the call. */
OWN_FRAME static attn_status describe_backend(const problem *pr, const attn_gradients *g,
                                              attn_backward_info *info, text *why)
{
    const attn_backend *backend = pr->p.backend;
    const attn_gradient_call made = gradient_call(&pr->p, g);
    text reason = text_in(info->reasons, sizeof info->reasons);
    const int answer = ask_gradients(&pr->p, &made, &reason);
    info->backend_name = answer > 0 ? backend->name : answer ? "none" : "cpu";
    if (answer < 0)
        return bad(why, ATTN_ERR_UNSUPPORTED, info->reasons);
    if (!answer)
        return ATTN_OK;
    info->reasons[0] = 0;
    info->gemms = 7;
    info->tile_rows = info->tile_keys = 0;
    info->workers = 1;
    info->workspace_bytes_per_worker = 0;
    return backend->gradients_size(backend, &pr->p, &made.g, &info->workspace_bytes)
               ? bad(why, ATTN_ERR_CALLBACK, "the backend cannot size its workspace")
               : ATTN_OK;
}

/* Runs the call on the backend and returns 1, or logs why not and returns 0. */
OWN_FRAME static int run_backend(const attn_params *p, const attn_gradients *g, void *workspace,
                                 size_t bytes, attn_status *status)
{
    char sentence[200];
    text why = text_in(sentence, sizeof sentence);
    attn_gradients resolved;
    attn_gradient_call made;
    problem pr;
    validate_backward(p, g, 1, &pr, &resolved, &why); /* cannot fail: it has passed */
    made = gradient_call(&pr.p, &resolved);
    if (ask_gradients(&pr.p, &made, &why) > 0) {
        *status = p->backend->run_gradients(p->backend, &pr.p, &made.g, workspace, bytes);
        return 1;
    }
    if (p->log)
        p->log(p->log_user, ATTN_LOG_INFO, sentence);
    return 0;
}

/* All of *info but flops, of which it has those of a pair. */
OWN_FRAME static void describe(const problem *pr, const attn_gradients *g, const attn_params *asked,
                               attn_backward_info *info)
{
    layout lay;
    plan pl;
    plan_backward(pr, g, asked, &lay, &pl);
    info->impl = pl.impl;
    info->gemms = lay.gemms;
    info->kernels_name = pl.kernels->name;
    info->tile_rows = lay.rows;
    info->tile_keys = lay.keys;
    info->workers = pl.workers;
    info->workspace_bytes = (size_t)backward_bytes(&pl, pl.workers);
    info->workspace_bytes_per_worker = (size_t)pl.slot_bytes;
    info->flops = 2.0 * (double)(3 * pr->p.head_dim + 2 * pr->p.head_dim_v);
}

/* Whether the plan can be, and fits into `have` bytes. */
static attn_status check_backward_room(const attn_backward_info *info, int64_t have, text *why)
{
    const int64_t most = (int64_t)info->workspace_bytes;
    int64_t least;
    if (most >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    least = most - (info->workers - 1) * (int64_t)info->workspace_bytes_per_worker;
    if (have >= least)
        return ATTN_OK;
    put(why, "workspace_bytes (");
    put_int(why, have);
    put(why, ") must be at least ");
    put_int(why, least);
    return bad(why, ATTN_ERR_WORKSPACE, "; attn_backward_workspace_size says what is best");
}

/* Everything that can be wrong before a run in `have` bytes; need_data: of it, not of a query. */
OWN_FRAME static attn_status check_backward(const attn_params *p, const attn_gradients *g,
                                            int need_data, int64_t have, attn_backward_info *info,
                                            text *why)
{
    attn_gradients resolved;
    problem pr;
    attn_status status = validate_backward(p, g, need_data, &pr, &resolved, why);
    if (status)
        return status;
    describe(&pr, &resolved, p, info);
    status = describe_backend(&pr, &resolved, info, why);
    return status ? status : check_backward_room(info, have, why);
}

static attn_status check_run(const attn_params *p, const attn_gradients *g, const void *workspace,
                             size_t bytes, text *why)
{
    const int64_t limit = ADDRESS_LIMIT;
    const int64_t have = !workspace ? 0 : bytes < (uint64_t)limit ? (int64_t)bytes : limit;
    attn_backward_info info;
    return check_backward(p, g, 1, have, &info, why);
}

ATTN_API const char *attn_backward_check(const attn_params *p, const attn_gradients *g,
                                         const void *workspace, size_t workspace_bytes,
                                         char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    const attn_status status = check_run(p, g, workspace, workspace_bytes, &why);
    if (!status)
        put(&why, "ok");
    return buffer && buffer_bytes ? buffer : attn_status_string(status);
}

/* A call that has passed its checks, in its workspace. */
OWN_FRAME static backward *open_backward(const attn_params *p, const attn_gradients *g,
                                         void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    char *base = (char *)workspace;
    float **arrays[3];
    backward *back;
    int i;
    base = align_memory(base);
    back = (backward *)(void *)base;
    back->core = attn_core_get();
    validate_backward(p, g, 1, &back->c.pr, &back->g, &why); /* passed, and does so again */
    back->bias = bias_axes(&back->c.pr.p, &back->g.dbias);
    back->slopes = slope_axes(&back->c.pr.p, back->g.dslopes);
    plan_backward(&back->c.pr, &back->g, p, &back->lay, &back->c.pl);
    back->c.slot_count = workers_in(&back->c.pl, bytes);
    base += aligned((int64_t)sizeof *back);
    arrays[0] = &back->lse2;
    arrays[1] = &back->delta;
    arrays[2] = &back->sink_terms;
    for (i = 0; i < 3; i++, base += back->c.pl.shared_bytes / 3)
        *arrays[i] = (float *)(void *)base;
    back->c.slots = base;
    return back;
}

static attn_status backward_cpu(const attn_params *p, const attn_gradients *g, void *workspace,
                                size_t bytes)
{
    backward *back = open_backward(p, g, workspace, bytes);
    return back->c.slot_count ? run_backward(back) : ATTN_ERR_WORKSPACE;
}

ATTN_API attn_status attn_backward(const attn_params *p, const attn_gradients *g, void *workspace,
                                   size_t workspace_bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_run(p, g, workspace, workspace_bytes, &why);
    if (status || (p->backend && run_backend(p, g, workspace, workspace_bytes, &status)))
        return status;
    return backward_cpu(p, g, workspace, workspace_bytes);
}

OWN_FRAME static attn_status count_pairs(const attn_params *p, double *pairs)
{
    const attn_core *core = attn_core_get();
    text none = text_in(NULL, 0);
    problem pr;
    const attn_status status = core->validate(p, &pr, 0, &none);
    *pairs = status ? 0 : core->visible_pairs(&pr.p);
    return status;
}

ATTN_API attn_status attn_backward_explain(const attn_params *p, const attn_gradients *g,
                                           attn_backward_info *info)
{
    text why = text_in(NULL, 0);
    double pairs = 0;
    attn_status status;
    if (!info)
        return ATTN_ERR_ARG;
    memset(info, 0, sizeof *info);
    info->kernels_name = info->backend_name = "none";
    status = check_backward(p, g, 0, ADDRESS_LIMIT, info, &why);
    if (!status)
        status = count_pairs(p, &pairs);
    info->flops *= pairs;
    return status;
}

ATTN_API attn_status attn_backward_workspace_size(const attn_params *p, const attn_gradients *g,
                                                  size_t *bytes)
{
    text why = text_in(NULL, 0);
    attn_backward_info info;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_backward(p, g, 0, ADDRESS_LIMIT, &info, &why);
    *bytes = status ? 0 : info.workspace_bytes;
    return status;
}

/* ---- what the files that build on this one borrow */

static int64_t least_bytes(const problem *pr, const attn_gradients *g, const attn_params *asked)
{
    layout lay;
    plan pl;
    plan_backward(pr, g, asked, &lay, &pl);
    return backward_bytes(&pl, 1);
}

ATTN_API const attn_backward_core *attn_backward_core_get(void)
{
    static const attn_backward_core core = { validate_backward, least_bytes, backward_cpu };
    return &core;
}
