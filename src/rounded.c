/* src/rounded.c - rows of K and panels of V in bf16, for kernels that round (p.fast).
 * SPDX-License-Identifier: MIT
 *
 * They are made from rows of f32, once for all row tiles of an item.
 */
#pragma once

#include "tile.c"

/* round_keys makes rows of bf16 of keys j to j+n-1. */
static void round_keys(tile *t, int64_t j, int n)
{
    const attn_lanes all = { 0, t->pl->rows };
    const int64_t dim = t->pr->p.head_dim, from = j - t->keys->j0;
    ptrdiff_t stride;
    const float *row = key_rows(t, KEYS, j, n, all, &stride);
    int r;
    for (r = 0; r < n; r++, row += stride) {
        uint16_t *to = (uint16_t *)(void *)(t->keys->rounded[KEYS] + (from + r) * t->pl->rounded_pitch);
        t->pl->kernels->narrow_bf16(to, row, dim);
        memset(to + dim, 0, (size_t)(ATTN_ROUNDED(dim) - dim) * sizeof *to);
    }
}

/* rounded_keys gives rows j to j+n-1 of K as one run of rows of bf16: in place if they lie in this way. */
static attn_runs rounded_keys(tile *t, int64_t j, int n, const char **list)
{
    const attn_tensor *k = &t->pr->p.k;
    const key_place at = key_at(&t->pr->p, &t->s, j);
    const int64_t pitch = t->pl->rounded_pitch, dim = t->pr->p.head_dim;
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
    list[0] = list[1] = (const char *)(t->keys->rounded[KEYS] + from * pitch);
    return runs;
}

/* value_panel gives the panel of V of the open tile, in which the keys from j on are filled in. What
 * lies before j among the keys of one pack is +0 until somebody asks for it. */
static const float *value_panel(tile *t, int64_t j)
{
    const attn_lanes all = { 0, t->pl->rows };
    const int64_t dim = t->pr->p.head_dim_v;
    key_tile *keys = t->keys;
    const int from = (int)(j - keys->j0), end = keys->rounded_from[VALUES];
    ptrdiff_t stride;
    int at = from;
    while (at < end) {
        const int pack = at / ATTN_PANEL_KEYS, first = pack * ATTN_PANEL_KEYS;
        const int to = (int)min64(first + ATTN_PANEL_KEYS, keys->n);
        const float *v = key_rows(t, VALUES, keys->j0 + at, to - at, all, &stride);
        t->pl->kernels->pack_values(keys->rounded[VALUES] + pack * ATTN_PANEL_FLOATS(dim), v, stride,
                                    at - first, to - first, dim);
        at = to;
    }
    keys->rounded_from[VALUES] = from < end ? from : end;
    return keys->rounded[VALUES];
}
