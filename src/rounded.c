/* src/rounded.c - rows of K and panels of V in bf16, for kernels that round (p.fast).
 * SPDX-License-Identifier: MIT
 *
 * They are made from rows of f32, once for all row tiles of an item.
 */
#pragma once

#include "plan.c"
#include "tile.c"

/* Rows of K lie before the copies of f32 rows. */
static float *rounded_of(const tile *t)
{
    const int64_t bytes = aligned(times(rounded_floats(t->pr, t->pl), sizeof(float)));
    return (float *)(void *)((char *)t->keys->copy[KEYS] - bytes);
}

/* Where the panel of V lies, and the kernels' own room. */
static float *panel_of(const tile *t)
{
    return rounded_of(t) + panel_place(t->pr, t->pl);
}

static float *space_of(const tile *t)
{
    return rounded_of(t) + space_place(t->pr, t->pl);
}

/* round_keys makes rows of bf16 of keys j to j+n-1. */
static void round_keys(tile *t, int64_t j, int n)
{
    const attn_lanes all = { 0, t->pl->rows };
    const int64_t dim = t->pr->p.head_dim, from = j - t->keys->j0;
    ptrdiff_t stride;
    const float *row = key_rows(t, KEYS, j, n, all, &stride);
    int r;
    for (r = 0; r < n; r++, row += stride) {
        uint16_t *to = (uint16_t *)(void *)(rounded_of(t) + (from + r) * rounded_pitch(t->pr));
        t->pl->kernels->narrow_bf16(to, row, dim);
        memset(to + dim, 0, (size_t)(ATTN_ROUNDED(dim) - dim) * sizeof *to);
    }
}

/* rounded_keys gives rows j to j+n-1 of K as one run of rows of bf16: in place if they lie in this way. */
static attn_runs rounded_keys(tile *t, int64_t j, int n, const char **list)
{
    const attn_tensor *k = key_tensor(t, KEYS);
    const key_place at = tile_key_at(t, j);
    const int64_t pitch = rounded_pitch(t->pr), dim = t->pr->p.head_dim;
    const int from = (int)(j - t->keys->j0);
    attn_runs runs = { ATTN_BF16, bytes_between(k->dtype, k->stride_seq), n, n, list };
    if (k->dtype == ATTN_BF16 && at.left >= n && dim == ATTN_ROUNDED(dim) && n % 16 == 0) {
        list[0] = list[1] = row_of(t, KEYS, &at);
        return runs;
    }
    if (from < t->keys->rounded_from[KEYS]) {
        round_keys(t, j, t->keys->rounded_from[KEYS] - from);
        t->keys->rounded_from[KEYS] = from;
    }
    runs.stride = (ptrdiff_t)(pitch * (int64_t)sizeof(float));
    list[0] = list[1] = (const char *)(rounded_of(t) + from * pitch);
    return runs;
}

/* panel_phase counts the keys that a panel has room for before the open tile: packs begin where n is a
 * multiple of ATTN_PANEL_KEYS, so that sums do not depend on where a tile begins. */
static int panel_phase(const tile *t)
{
    return (int)((t->s.key_base + t->keys->j0) % ATTN_PANEL_KEYS);
}

/* fill_pack makes the pack of the panel that holds key `at` of the open tile, from there on, and
 * returns the first key behind it. Rows of bf16 that lie one after the other need no copy. */
static int fill_pack(tile *t, int at)
{
    const attn_lanes all = { 0, t->pl->rows };
    const attn_tensor *v = key_tensor(t, VALUES);
    const int64_t dim = t->pr->p.head_dim_v, j = t->keys->j0 + at;
    const int pack = (panel_phase(t) + at) / ATTN_PANEL_KEYS;
    const int first = pack * ATTN_PANEL_KEYS - panel_phase(t);
    const int end = (int)min64(first + ATTN_PANEL_KEYS, t->keys->n);
    const key_place place = tile_key_at(t, j);
    attn_pack rows = { .dtype = v->dtype, .begin = at - first, .end = end - first, .dim = dim };
    ptrdiff_t stride;
    if (v->dtype == ATTN_BF16 && place.left >= end - at) {
        rows.v = row_of(t, VALUES, &place);
        rows.stride = bytes_between(v->dtype, v->stride_seq);
    } else {
        rows.dtype = ATTN_F32;
        rows.v = (const char *)key_rows(t, VALUES, j, end - at, all, &stride);
        rows.stride = stride * (ptrdiff_t)sizeof(float);
    }
    t->pl->kernels->pack_values(panel_of(t) + pack * ATTN_PANEL_FLOATS(dim), &rows);
    return end;
}

/* value_panel makes p read the panel of V of the open tile, in which the keys from j on are filled in.
 * What lies before j in its pack is +0 until somebody asks for it. */
static void value_panel(tile *t, int64_t j, attn_product *p)
{
    key_tile *keys = t->keys;
    const int from = (int)(j - keys->j0), filled = keys->rounded_from[VALUES];
    int at = from;
    while (at < filled)
        at = fill_pack(t, at);
    keys->rounded_from[VALUES] = from < filled ? from : filled;
    p->kv = panel_of(t);
    p->first = panel_phase(t) + from;
    p->space = space_of(t);
}
