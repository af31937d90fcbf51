/* src/backward/sums.c - dBias and dSlopes: dS, or dS times the distance, added over axes.
 * SPDX-License-Identifier: MIT
 *
 * The sums go over keys in chunks of 1024 by n, over rows in chunks of 1024 by i, then on over heads
 * and batch entries.
 */
#pragma once

#include "panel.c"

static float *element_of(const desk *w, int64_t i, int64_t j)
{
    const attn_sum_axes *a = w->axes;
    return a->data + w->seq.b * a->stride[ATTN_AXIS_BATCH] + w->head * a->stride[ATTN_AXIS_HEAD] +
           (i - w->pr->p.part.row_begin) * a->stride[ATTN_AXIS_ROW] +
           (w->seq.column + j) * a->stride[ATTN_AXIS_KEY];
}

/* d logit / d slope is minus the distance. */
static void take_distances(const desk *w, const tile *t, int64_t j0, int n, attn_lanes lanes)
{
    int j, r;
    for (r = lanes.begin; r < lanes.end; r++)
        for (j = 0; j < n; j++) {
            const int64_t distance = t->lanes[r].pos - (j0 + j);
            const float x = (float)(distance < 0 ? -distance : distance);
            float *ds = &w->dp[j * w->pl->rows + r];
            *ds = is_dead(*ds) ? *ds : -x * *ds;
        }
}

/* add_to_elements adds dS to the elements of its pairs. */
static void add_to_elements(const desk *w, const tile *t, int64_t j0, int n, attn_lanes lanes)
{
    const ptrdiff_t step = w->axes->stride[ATTN_AXIS_KEY];
    int j, r;
    for (r = lanes.begin; r < lanes.end; r++) {
        float *to = element_of(w, t->lanes[r].i, j0);
        for (j = 0; j < n; j++, to += step)
            *to = *to + w->dp[j * w->pl->rows + r];
    }
}

/* add_to_keys adds dS to the sums of its keys, in part[KEYS]. */
static void add_to_keys(const desk *w, int64_t j0, int n, attn_lanes lanes)
{
    float *sums = w->part[KEYS] + (j0 - w->keys.j0);
    int j, r;
    for (j = 0; j < n; j++) {
        float sum = sums[j];
        for (r = lanes.begin; r < lanes.end; r++)
            sum = sum + w->dp[j * w->pl->rows + r];
        sums[j] = sum;
    }
}

/* add_to_rows adds dS to the sums of its rows. */
static void add_to_rows(const desk *w, grad_tile *row, int n, attn_lanes lanes)
{
    const float *ds = w->dp;
    int j, r;
    for (j = 0; j < n; j++, ds += w->pl->rows)
        for (r = lanes.begin; r < lanes.end; r++)
            row->sum[r] = row->sum[r] + ds[r];
}

static void add_to_sums(const desk *w, grad_tile *row, int64_t j0, int n, attn_lanes lanes)
{
    const attn_sum_axes *a = w->axes;
    if (w->want & WANT_SLOPES)
        take_distances(w, &row->t, j0, n, lanes);
    if (!a->kept[ATTN_AXIS_KEY])
        add_to_rows(w, row, n, lanes);
    else if (a->kept[ATTN_AXIS_ROW])
        add_to_elements(w, &row->t, j0, n, lanes);
    else
        add_to_keys(w, j0, n, lanes);
}

/* write_key_sums writes what a chunk of rows adds to keys j0 to j0+n-1. */
static void write_key_sums(const desk *w, int64_t j0, int n)
{
    int j;
    for (j = 0; j < n && w->axes->kept[ATTN_AXIS_KEY] && !w->axes->kept[ATTN_AXIS_ROW]; j++) {
        float *to = element_of(w, 0, j0 + j);
        *to = *to + w->part[KEYS][j];
    }
}

/* write_row_sums writes the rows' sums over all keys. */
static void write_row_sums(const desk *w)
{
    float chunk = 0.0f;
    int g, r;
    if (w->axes->kept[ATTN_AXIS_KEY])
        return;
    for (g = 0; g < w->row_tiles; g++) {
        const grad_tile *row = grad_tile_at(w, g);
        for (r = 0; r < w->pl->rows && row->t.lanes[r].used; r++) {
            float *to = w->axes->kept[ATTN_AXIS_ROW] ? element_of(w, row->t.lanes[r].i, 0) : &chunk;
            *to = *to + row->sum_total[r];
        }
    }
    if (!w->axes->kept[ATTN_AXIS_ROW]) {
        float *to = element_of(w, 0, 0);
        *to = *to + chunk;
    }
}

/* store_elements visits the elements of an item, to set them to +0 and, at the end, to make NaN
 * canonical. */
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
