/* src/tile.c - a tile: up to `rows` query rows that share one kv head, and the keys that they read.
 * SPDX-License-Identifier: MIT
 *
 * Lane f of a head's flattened rows is query row f / group of head kv_head * group + f % group, so
 * that a GQA group fills the lanes also when there is one query (decode).
 */
#pragma once

#include "keys.c"
#include "masks.c"
#include "rotate.c"

/* set_scratch points to what the row tiles of a slot share. */
static void set_scratch(tile *t, char *slot)
{
    const plan *pl = t->pl;
    t->keys = (key_tile *)(void *)slot;
    t->keys->copy[KEYS] = (float *)(void *)(slot + pl->copy[KEYS]);
    t->keys->copy[VALUES] = (float *)(void *)(slot + pl->copy[VALUES]);
    t->stage = (float *)(void *)(slot + pl->stage);
    t->row_in = (const float **)(void *)(slot + pl->row_in);
    t->row_out = (float **)(void *)(slot + pl->row_out);
    t->s_tile = (float *)(void *)(slot + pl->s);
    t->x_tile = (float *)(void *)(slot + pl->x);
    t->lane_values = (float *)(void *)(slot + pl->lane_values);
    t->lane_ints = (int *)(void *)(slot + pl->lane_ints);
    t->alpha = (float *)(void *)(slot + pl->alpha);
    t->blocks = (block *)(void *)(slot + pl->blocks);
    t->alive = (uint32_t *)(void *)(slot + pl->alive);
    t->matrix = (float *)(void *)(slot + pl->matrix);
    t->operand_runs = (const char **)(void *)(slot + pl->operand_runs);
    t->ahead_runs = (const char **)(void *)(slot + pl->ahead_runs);
}

static tile *row_tile(const plan *pl, char *slot, int index)
{
    return (tile *)(void *)(slot + pl->row_tiles + index * pl->row_tile_bytes);
}

static void give_state(tile *t, float *state)
{
    memcpy(state, &t->free, sizeof t->free);
    t->free = state;
}

/* open_tile_at begins a row tile at `own`. */
static tile *open_tile_at(const call *c, char *slot, char *own)
{
    const plan *pl = &c->pl;
    tile *t = (tile *)(void *)own;
    int i;
    memset(t, 0, sizeof *t);
    t->pr = &c->pr;
    t->pl = pl;
    set_scratch(t, slot);
    t->insight = has_insight(&c->pr.p);
    t->lanes = (lane *)(void *)(own + pl->lanes);
    t->qt = (float *)(void *)(own + pl->qt);
    t->qt_units = (float *)(void *)(own + pl->qt_units);
    t->scales = (float *)(void *)(own + pl->scales);
    t->skip = has_skip(&c->pr.p) ? (float *)(void *)(own + pl->skips) : NULL;
    for (i = 0; i < pl->state_slots; i++)
        give_state(t, (float *)(void *)(own + pl->states) + i * pl->state_floats);
    return t;
}

/* open_tile begins row tile number `index` of a slot. */
static tile *open_tile(const call *c, char *slot, int index)
{
    return open_tile_at(c, slot, (char *)row_tile(&c->pl, slot, index));
}

/* set_lane sets the lane of row c and head number `head` of the choice. */
static void set_lane(tile *t, lane *l, const row_choice *choice, int64_t c, int64_t head)
{
    const attn_params *p = &t->pr->p;
    l->used = 0;
    l->lo = l->hi = l->cut = 0;
    if (c < 0 || c >= choice->count) /* A number below 0 is a varlen slot before cu_seqlens_q[0]. */
        return;
    if (t->entry_rows) {
        t->s = sequence_of(p, c / t->entry_rows);
        c %= t->entry_rows;
    }
    l->choice = c;
    l->head = choice->head0 + head;
    l->i = choice->list ? choice->list[c] : c;
    l->used = l->i >= t->s.row_from && l->i < t->s.row_to;
    l->pos = l->i + t->s.offset;
    if (l->used)
        visible_range(&t->pl->ranges, p, &t->s, l->pos, &l->lo, &l->hi);
    if (t->list.at) {
        l->lo = first_listed(t->list, l->lo);
        l->hi = first_listed(t->list, l->hi);
    }
    l->cut = max64(l->lo, min64(recent_from(p, l->pos), l->hi));
}

/* seen_from and seen_to give the keys of a version that the ranges leave to a lane. */
static int64_t seen_from(const lane *l, int version)
{
    return version == STORED ? l->lo : l->cut;
}

static int64_t seen_to(const lane *l, int version)
{
    return version == STORED ? l->cut : l->hi;
}

static void widen_lanes(attn_lanes *lanes, int r)
{
    if (lanes->begin == lanes->end)
        lanes->begin = r;
    lanes->end = r + 1;
}

/* widen_hull makes the hull hold one more lane, `first` if there was none. */
static void widen_hull(hull *h, const lane *l, int first)
{
    const hull one = { l->head, l->head + 1, l->i, l->i + 1 };
    if (first)
        *h = one;
    h->head_begin = min64(h->head_begin, one.head_begin);
    h->head_end = max64(h->head_end, one.head_end);
    h->i_begin = min64(h->i_begin, one.i_begin);
    h->i_end = max64(h->i_end, one.i_end);
}

/* scales_at gives the scales of row `row` of an entry of K or V, from a column on. */
static const float *scales_at(const attn_scales *x, int64_t entry, int64_t kv_head, int64_t row,
                              int64_t column)
{
    return x->data + entry * x->stride_batch + kv_head * x->stride_head + row * x->stride_seq +
           column * x->stride_dim;
}

/* query_row gives query row `at` as f32. Packing goes to a few lines of each of many rows, and would
 * wait for one after the other. */
static const float *query_row(const tile *t, int64_t at, float *space)
{
    const attn_tensor *q = &t->pr->p.q;
    const int64_t dim = t->pr->p.head_dim, bytes_each = (int64_t)bytes_of(q->dtype);
    if (t->pl->rows_ahead)
        PREFETCH_RUN((const char *)q->data + at * bytes_each, dim * bytes_each);
    if (!(t->pr->p.rotated & ATTN_ROTATED_K))
        return run_as_f32(t->pl->kernels, q->dtype, q->data, at, dim, space);
    load_run(t->pl->kernels, q->dtype, space, q->data, at, dim);
    rotate_row(space, dim);
    return space;
}

/* set_lanes sets all lanes to rows of the choice that follow each other, and finds their queries. */
static void set_lanes(tile *t, const row_choice *choice)
{
    const attn_params *p = &t->pr->p;
    int64_t c = choice->first / choice->heads, head = choice->first % choice->heads;
    int r;
    if (head < 0) { /* The division rounded towards 0. */
        c--;
        head += choice->heads;
    }
    for (r = 0; r < t->pl->rows; r++) {
        lane *l = &t->lanes[r];
        set_lane(t, l, choice, c, head);
        t->row_in[r] = !l->used ? NULL
                                : query_row(t, ROW_AT(p->q, &t->s, l->head, t->s.q_row + l->i),
                                            t->stage + r * p->head_dim);
        if (++head == choice->heads) {
            head = 0;
            c++;
        }
    }
}

/* widen_span makes *to hold keys lo to hi-1 of one more lane. */
static void widen_span(key_span *to, int64_t lo, int64_t hi)
{
    to->all_from = max64(to->all_from, lo);
    to->all_to = min64(to->all_to, hi);
    if (lo >= hi)
        return;
    to->lo = to->lo == to->hi ? lo : min64(to->lo, lo);
    to->hi = max64(to->hi, hi);
}

/* survey_lanes notes what the used lanes have together. */
static void survey_lanes(tile *t)
{
    static const key_span none = { 0, 0, 0, INT64_MAX };
    key_span all = none;
    int r, used = 0;
    t->span.begin = t->span.end = 0;
    t->spans[STORED] = t->spans[RECENT] = none;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        if (!l->used)
            continue;
        if (t->pl->by_pair)
            widen_hull(&t->hull, l, used == 0);
        widen_lanes(&t->span, r);
        used++;
        widen_span(&all, l->lo, l->hi);
        widen_span(&t->spans[STORED], l->lo, l->cut);
        widen_span(&t->spans[RECENT], l->cut, l->hi);
    }
    t->used = used;
    t->lo = all.lo, t->hi = all.hi;
}

/* pack_queries packs the queries by one of the kernels; lanes without one share a row of zeros. */
static void pack_queries(const tile *t, float *qt,
                         void (*pack)(float *qt, const float *const *q, int64_t head_dim))
{
    const int64_t dim = t->pr->p.head_dim;
    const float *zeros = NULL;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        if (t->row_in[r])
            continue;
        if (!zeros)
            zeros = memset(t->stage + r * dim, 0, (size_t)dim * sizeof *zeros);
        t->row_in[r] = zeros;
    }
    pack(qt, t->row_in, dim);
}

/* scale_query multiplies a query by the scales of channels of K, which whole numbers have no room for. */
static void scale_query(const tile *t, float *to, const float *row)
{
    const attn_scales *x = &t->pr->p.k_scales;
    const float *scale = scales_at(x, t->s.b, t->kv_head, 0, 0);
    int64_t d;
    for (d = 0; d < t->pr->p.head_dim; d++)
        to[d] = row[d] * scale[d * x->stride_dim];
}

/* round_queries makes the queries whole numbers on the stage, where some lie already. */
static void round_queries(tile *t)
{
    const int rows = t->pl->rows, scaled = scales_queries(&t->pr->p);
    const int64_t dim = t->pr->p.head_dim;
    int64_t d;
    int r;
    for (r = 0; r < rows; r++) {
        float *const to = t->stage + r * dim;
        if (scaled && t->row_in[r]) {
            scale_query(t, to, t->row_in[r]);
            t->row_in[r] = to;
        }
        for (d = 0; d < dim; d += UNIT)
            t->scales[d / UNIT * rows + r] =
                t->row_in[r] ? round_unit(to + d, t->row_in[r] + d) : 0.0f;
        t->row_in[r] = t->row_in[r] ? to : NULL;
    }
}

/* pack_tile packs the queries for each version of the keys. */
static void pack_tile(tile *t)
{
    const attn_kernels *kernels = t->pl->kernels;
    const attn_params *p = &t->pr->p;
    if (!p->integer || p->recent.keys)
        pack_queries(t, t->qt, kernels->pack);
    if (!p->integer)
        return;
    round_queries(t);
    pack_queries(t, t->qt_units, kernels->pack_units);
}

/* set_rows sets the lanes of a tile, packs their queries and returns how many lanes are used. */
static int set_rows(tile *t, const row_choice *choice)
{
    t->dead = 0.0f;
    t->column = 0;
    t->columns = t->pr->p.head_dim_v;
    set_lanes(t, choice);
    survey_lanes(t);
    if (t->used)
        pack_tile(t);
    return t->used;
}

static void open_keys(tile *t, int64_t j0, int n)
{
    t->keys->j0 = j0;
    t->keys->n = n;
    t->keys->copied_from[KEYS] = t->keys->copied_from[VALUES] = n;
    t->keys->rounded_from[KEYS] = t->keys->rounded_from[VALUES] = n;
}

/* are_few tells whether the kernels take another way for these few lanes (attn_kernels.few). */
static int are_few(const attn_kernels *kernels, attn_lanes lanes)
{
    return attn_lane_count(lanes) <= kernels->few;
}

/* key_tensor gives K or V in the version that is read at the moment. */
static const attn_tensor *key_tensor(const tile *t, int which)
{
    const attn_params *p = &t->pr->p;
    if (t->version == RECENT)
        return which == KEYS ? &p->recent.k : &p->recent.v;
    return which == KEYS ? &p->k : &p->v;
}

/* tile_key_at tells where key j lies in that version, and next_tile_place what lies behind. */
OWN_FRAME static key_place tile_key_at(const tile *t, int64_t j)
{
    if (t->list.at)
        return listed_at(&t->pr->p, &t->s, t->list, j);
    return t->version == RECENT ? recent_at(&t->pr->p, &t->s, j) : key_at(&t->pr->p, &t->s, j);
}

OWN_FRAME static void next_tile_place(const tile *t, key_place *at)
{
    if (t->version == RECENT)
        next_recent_place(&t->pr->p, at);
    else
        next_place(&t->pr->p, &t->s, at);
}

/* next_tile_key goes to the place of the next key. It returns how many rows further that key lies, or 0
 * if it lies elsewhere. */
static inline int64_t next_tile_key(const tile *t, key_place *at)
{
    if (t->list.at)
        return next_listed(&t->pr->p, &t->s, t->list, at);
    next_row(at);
    if (at->left)
        return 1;
    next_tile_place(t, at);
    return 0;
}

/* lie_together tells whether n keys from key j on, which lies at that place, lie one after the other. */
static int lie_together(const tile *t, const key_place *at, int64_t j, int64_t n)
{
    const int32_t *const list = t->list.at;
    return at->left >= n && (!list || list[j + n - 1] - list[j] == n - 1);
}

/* in_units tells whether keys are read as whole numbers. */
static int in_units(const tile *t)
{
    return t->pr->p.integer && t->version == STORED;
}

/* row_of gives that row of K or of the columns of V. */
static const char *row_of(const tile *t, int which, const key_place *at)
{
    const attn_tensor *x = key_tensor(t, which);
    const int64_t element = at->entry * x->stride_batch + t->kv_head * x->stride_head +
                            at->row * x->stride_seq + (which == KEYS ? 0 : t->column);
    return (const char *)x->data + bytes_between(x->dtype, element);
}

/* row_behind goes to the place of the next key and gives its row, `row` being that of the key. */
static inline const char *row_behind(const tile *t, int which, const char *row, int64_t stride,
                                     key_place *at)
{
    const int64_t gap = next_tile_key(t, at);
    return gap ? row + gap * stride : row_of(t, which, at);
}

/* scales_of gives the scales of that row. */
static const float *scales_of(const tile *t, int which, const key_place *at)
{
    return scales_at(which == KEYS ? &t->pr->p.k_scales : &t->pr->p.v_scales, at->entry, t->kv_head,
                     at->row, which == KEYS ? 0 : t->column);
}

/* row_dim counts the elements of a row that row_of gives. */
static int64_t row_dim(const tile *t, int which)
{
    return which == KEYS ? t->pr->p.head_dim : t->columns;
}

/* widen_row makes the row at that place one of f32 or, for whole numbers, of units of 8 bits. */
static void widen_row(const tile *t, int which, float *to, const char *row, const key_place *at)
{
    const int dtype = key_tensor(t, which)->dtype;
    const int64_t dim = row_dim(t, which);
    if (which == KEYS && in_units(t))
        storages[dtype].unpack((q8_unit *)(void *)to, row, dim);
    else if (has_scales(dtype))
        t->pl->kernels->widen_i8(
            to, (const int8_t *)row, scales_of(t, which, at),
            which == KEYS ? t->pr->p.k_scales.stride_dim : t->pr->p.v_scales.stride_dim, dim);
    else
        load_run(t->pl->kernels, dtype, to, row, 0, dim);
}

/* copy_rows copies rows from j on of the open tile, up to those that are copied already. */
static void copy_rows(tile *t, int which, int64_t j)
{
    const attn_tensor *x = key_tensor(t, which);
    const int64_t pitch = t->pl->pitch[which];
    const int64_t stride = bytes_between(x->dtype, x->stride_seq);
    key_tile *keys = t->keys;
    const int from = (int)(j - keys->j0), end = keys->copied_from[which];
    key_place at = tile_key_at(t, j);
    const char *row = row_of(t, which, &at);
    int r;
    for (r = from; r < end; r++) {
        if (r > from)
            row = row_behind(t, which, row, stride, &at);
        widen_row(t, which, keys->copy[which] + r * pitch, row, &at);
    }
    keys->copied_from[which] = from < end ? from : end;
}

/* copy_key_tile makes keys j0 to j0+n-1 the open tile, with all of K and V copied. */
static void copy_key_tile(tile *t, int64_t j0, int n)
{
    open_keys(t, j0, n);
    copy_rows(t, KEYS, j0);
    copy_rows(t, VALUES, j0);
}

/* key_rows gives rows j to j+n-1 of K or V, which lie in the open tile, as f32, *stride floats
 * apart: in place if they lie in this way. Few lanes read V row after row, which compete for
 * nothing, so that rows that alias need no copy (16 to 20 % of the time of a step of decoding with
 * interleaved heads). */
static const float *key_rows(tile *t, int which, int64_t j, int n, attn_lanes lanes,
                             ptrdiff_t *stride)
{
    const attn_tensor *x = key_tensor(t, which);
    const int few_values = which == VALUES && are_few(t->pl->kernels, lanes);
    const key_place at = tile_key_at(t, j);
    *stride = x->stride_seq;
    if (x->dtype == ATTN_F32 && lie_together(t, &at, j, n) &&
        (t->pl->in_place[t->version][which] || few_values))
        return (const float *)(const void *)row_of(t, which, &at);
    copy_rows(t, which, j);
    *stride = (ptrdiff_t)t->pl->pitch[which];
    return t->keys->copy[which] + (j - t->keys->j0) * t->pl->pitch[which];
}

/* unit_rows gives rows j to j+n-1 of K as one run of units of 8 bits: in place if they lie in this way. */
static attn_runs unit_rows(tile *t, int64_t j, int n, const char **list)
{
    const attn_tensor *k = &t->pr->p.k;
    const key_place at = tile_key_at(t, j);
    const int64_t pitch = t->pl->pitch[KEYS];
    attn_runs runs = { ATTN_Q8_0, bytes_between(k->dtype, k->stride_seq), n, n, list };
    list[0] = list[1] = row_of(t, KEYS, &at);
    if (k->dtype == ATTN_Q8_0 && lie_together(t, &at, j, n))
        return runs;
    copy_rows(t, KEYS, j);
    runs.stride = (ptrdiff_t)(pitch * (int64_t)sizeof(float));
    list[0] = list[1] = (const char *)(t->keys->copy[KEYS] + (j - t->keys->j0) * pitch);
    return runs;
}

/* list_rows lists where each of rows j to j+n-1 lies, which a list of keys names. */
static void list_rows(const tile *t, int which, int64_t j, int64_t n, attn_runs *runs,
                      const char **list)
{
    const attn_tensor *x = key_tensor(t, which);
    const ptrdiff_t stride = bytes_between(x->dtype, x->stride_seq);
    key_place at = tile_key_at(t, j);
    int64_t i;
    list[0] = row_of(t, which, &at);
    for (i = 1; i < n; i++)
        list[i] = row_behind(t, which, list[i - 1], stride, &at);
    list[n] = list[n - 1];
    *runs = (attn_runs){ x->dtype, stride, 1, 1, list };
}

/* list_runs lists where rows j to j+n-1 of K or V lie. It returns 0 if a run between the first and
 * the last is not a whole page, as the last page of a ring may be short. */
static int list_runs(const tile *t, int which, int64_t j, int64_t n, const char **list,
                     attn_runs *runs)
{
    const attn_params *p = &t->pr->p;
    const attn_tensor *x = key_tensor(t, which);
    key_place at = tile_key_at(t, j);
    int64_t run = min64(n, at.left), left, count = 0;
    const int64_t page = t->version == STORED ? p->kv_rows.page_size : 0;
    int even = 1;
    if (t->list.at && !lie_together(t, &at, j, n)) {
        list_rows(t, which, j, n, runs, list);
        return 1;
    }
    *runs = (attn_runs){ x->dtype, bytes_between(x->dtype, x->stride_seq), run,
                         page ? page : n, /* No run is longer. */
                         list };
    list[count++] = row_of(t, which, &at);
    for (left = n - run; left > 0; left -= run) {
        next_tile_place(t, &at);
        run = min64(left, at.left);
        even &= run == min64(left, runs->each);
        list[count++] = row_of(t, which, &at);
    }
    list[count] = list[count - 1];
    return even;
}

/* few_runs tells whether kernels for few lanes take rows j to j+n-1 of K or V as they lie, which
 * *runs then lists: the rows that key_rows would have to copy. */
static int few_runs(const tile *t, int which, int64_t j, int n, attn_lanes lanes, attn_runs *runs)
{
    const plan *pl = t->pl;
    const int dtype = key_tensor(t, which)->dtype, floats = dtype == ATTN_F32;
    if (!pl->pitch[which] || !are_few(pl->kernels, lanes) || row_dim(t, which) % 16 ||
        !storages[dtype].in_products[which])
        return 0;
    if (which == VALUES)
        return list_runs(t, which, j, n, t->operand_runs, runs);
    if (n % ATTN_BLOCK || (floats && !pl->in_place[t->version][which]))
        return 0;
    return list_runs(t, which, j, n, t->operand_runs, runs) &&
           (runs->first == n || (runs->first % ATTN_BLOCK == 0 && runs->each % ATTN_BLOCK == 0));
}
