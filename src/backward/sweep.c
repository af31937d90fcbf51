/* src/backward/sweep.c - the sweep: all keys of a range pass by the panel, tile by tile.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../state.c"
#include "pairs.c"
#include "sums.c"

/* add_to_dq adds to dQ of a row tile what the open keys j0 to j0+n-1 have for it. */
static void add_to_dq(const desk *w, float *to, int64_t j0, int n, attn_lanes lanes)
{
    const attn_product dq = { .to = to,
                              .by = w->dp,
                              .kv = open_rows_of(w, KEYS, j0),
                              .stride = (ptrdiff_t)w->pl->pitch[KEYS],
                              .n = n,
                              .dim = w->pr->p.head_dim,
                              .lanes = lanes };
    if (w->redo)
        w->kernels->pv_select(&dq);
    else
        w->kernels->pv(&dq);
}

/* add_pairs adds the pairs of a row tile and keys j0 to j0+n-1 to the row's gradients. It returns
 * the lanes whose p and dS then are in w->s and w->dp. */
static attn_lanes add_pairs(desk *w, grad_tile *row, int64_t j0, int n)
{
    const attn_lanes lanes = pair_gradients(w, row, j0, n);
    if (lanes.begin == lanes.end)
        return lanes;
    row->entered = 1;
    if (w->want & WANT_SUMS)
        add_to_sums(w, row, j0, n, lanes);
    if (!(w->want & (WANT_DQ | WANT_KEYS)))
        return lanes;
    finish_pairs(w, n);
    if (w->want & WANT_DQ)
        add_to_dq(w, row->dq, j0, n, lanes);
    return lanes;
}

/* fill_dead makes pairs of keys outside begin to end-1 of a tile of n dead. */
static void fill_dead(const desk *w, float *x, int begin, int end, int n)
{
    const int rows = w->pl->rows;
    int k;
    for (k = 0; k < begin * rows; k++)
        x[k] = ATTN_DEAD;
    for (k = end * rows; k < n * rows; k++)
        x[k] = ATTN_DEAD;
}

/* add_grad_tile takes a row tile against the n open keys; what it has for dK and dV joins the
 * group. */
static void add_grad_tile(desk *w, grad_tile *row, int n)
{
    row_group *g = &w->group;
    const int64_t j0 = w->keys.j0;
    const int from = (int)min64(n, max64(0, row->t.lo - j0));
    const int to = (int)min64(n, max64(0, row->t.hi - j0));
    const int64_t at = g->count * w->lay->pair_floats;
    float *s = g->s + at, *dp = g->dp + at;
    attn_lanes lanes;
    attn_term term;
    if (from >= to)
        return;
    w->s = s + from * w->pl->rows;
    w->dp = dp + from * w->pl->rows;
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

/* add_terms adds `count` terms to dK or dV of n keys. */
static void add_terms(const desk *w, int which, float *to, const attn_term *term, int count, int n)
{
    const ptrdiff_t pitch = (ptrdiff_t)w->pl->pitch[which];
    const attn_outer f = { .to = to,
                           .stride = pitch,
                           .n = n,
                           .columns = which == KEYS ? w->pr->p.head_dim : w->pr->p.head_dim_v,
                           .term = term,
                           .count = count,
                           .b_stride = pitch };
    if (w->redo)
        w->kernels->outer_select(&f);
    else
        w->kernels->outer(&f);
}

static void add_group(const desk *w, int n)
{
    const row_group *g = &w->group;
    if (g->count && (w->want & WANT_DK))
        add_terms(w, KEYS, w->part[KEYS], g->dk, g->count, n);
    if (g->count && (w->want & WANT_DV))
        add_terms(w, VALUES, w->part[VALUES], g->dv, g->count, n);
}

/* flush adds x to total and sets it to +0. n is a multiple of 16, so it goes 16 at a time, which
 * compilers vectorise. */
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

/* end_chunk_of_keys ends a chunk of keys. */
static void end_chunk_of_keys(const desk *w)
{
    int g;
    for (g = 0; g < w->row_tiles; g++) {
        grad_tile *row = grad_tile_at(w, g);
        if (row->entered && (w->want & WANT_DQ))
            flush(row->dq_total, row->dq, w->lay->dq_floats);
        if (row->entered)
            flush(row->sum_total, row->sum, whole_lines(w->pl->rows));
        row->entered = 0;
    }
}

/* sweep_keys takes all row tiles of the panel against keys j0 to end-1. */
static void sweep_keys(desk *w, int64_t j0, int64_t end)
{
    const int n = (int)(end - j0);
    int i = 0, last, which;
    load_keys(w, j0, n);
    for (which = KEYS; which <= VALUES && (w->want & (WANT_KEYS | WANT_SUMS)); which++)
        clear(w->part[which], n * w->pl->pitch[which]);
    while (i < w->row_tiles) {
        w->group.count = 0;
        for (last = i + w->lay->group; i < last && i < w->row_tiles; i++)
            add_grad_tile(w, grad_tile_at(w, i), n);
        add_group(w, n);
    }
    for (which = KEYS; which <= VALUES && (w->want & WANT_KEYS); which++)
        flush(w->total[which] + (j0 - w->total_from) * w->pl->pitch[which], w->part[which],
              n * w->pl->pitch[which]);
    if (w->want & WANT_SUMS)
        write_key_sums(w, j0, n);
}

/* write_dq writes dQ of a row tile, scaled. */
static void write_dq(desk *w, grad_tile *row)
{
    const attn_params *p = &w->pr->p;
    w->finite &= w->kernels->finite(row->dq_total, w->pl->rows * p->head_dim);
    write_lanes(&row->t, &w->g->dq, p->head_dim, row->dq_total, w->ones, p->scale);
}

/* sweep_panel takes rows i0 to i1-1 of w->head, all of one chunk of rows, against those of keys
 * `from` to `to`-1 that they see. Tiles of keys end where n is a multiple of their size. */
static void sweep_panel(desk *w, int64_t i0, int64_t i1, int64_t from, int64_t to)
{
    const int64_t base = w->seq.key_base, keys = w->pl->keys;
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

/* sweep takes rows i0 to i1-1 of heads head0 to head1-1 against keys `from` to `to`-1. */
static void sweep(desk *w, int64_t head0, int64_t head1, int64_t i0, int64_t i1, int64_t from,
                  int64_t to)
{
    int64_t head, i, end;
    for (head = head0; head < head1; head++) {
        w->head = head;
        w->kv_head = head / w->pr->group;
        for (i = i0; i < i1; i = end) {
            const int64_t chunk_end = (i / ATTN_CHUNK + 1) * ATTN_CHUNK;
            end = min64(min64(i1, chunk_end), i + (int64_t)w->lay->panel * w->pl->rows);
            sweep_panel(w, i, end, from, to);
        }
    }
}
