/* src/backward/panel.c - the panel: rows of one head, and keys, as the products of a worker read them.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "plan.c"

static desk *open_desk(const call *c, char *slot)
{
    const backward *back = backward_of(c);
    desk *w = (desk *)(void *)slot;
    int r;
    memset(w, 0, sizeof *w);
    lay_desk(&c->pr, &back->lay, &c->pl, slot);
    w->back = back;
    w->g = &back->grads.g;
    w->pr = w->blank.pr = &c->pr;
    w->pl = w->blank.pl = &c->pl;
    w->lay = &back->lay;
    w->kernels = c->pl.kernels;
    w->redo = c->pr.p.force_redo;
    w->s = w->group.s;
    w->dp = w->group.dp;
    w->blank.keys = &w->keys;
    w->blank.x_tile = w->x;
    for (r = 0; r < w->pl->rows; r++)
        w->ones[r] = 1.0f;
    return w;
}

/* grad_tile_at tells where row tile number g of the panel is. */
static grad_tile *grad_tile_at(const desk *w, int g)
{
    return (grad_tile *)(void *)(w->row_tile + g * w->lay->row_tile_bytes);
}

/* open_grad_tile begins a row tile without rows. */
static grad_tile *open_grad_tile(const desk *w, int g)
{
    grad_tile *row = grad_tile_at(w, g);
    row->t = w->blank;
    row->t.s = w->seq;
    row->t.kv_head = w->kv_head;
    row->entered = 0;
    lay_grad_tile(w->pr, w->lay, w->pl, row);
    return row;
}

/* load_rows puts the used lanes' rows of `from`, an output or input of `dim` elements, at `to` as
 * f32, `pitch` floats apart and filled up with +0. The rows of other lanes are +0. */
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

/* turn_rows makes to[d][row] from rows `pitch` floats apart. */
static void turn_rows(const tile *t, float *to, const float *from, int64_t pitch, int64_t dim)
{
    int r;
    for (r = 0; r < t->pl->rows; r++)
        t->row_in[r] = from + r * pitch;
    t->pl->kernels->pack(to, t->row_in, dim);
}

/* pack_rows packs the rows of a head from `first` on, at most up to row `end`, as row tile g. */
static grad_tile *pack_rows(const desk *w, int g, int64_t first, int64_t end)
{
    const attn_params *p = &w->pr->p;
    const int64_t pitch = w->pl->pitch[KEYS], pitch_v = w->pl->pitch[VALUES];
    grad_tile *row = open_grad_tile(w, g);
    tile *t = &row->t;
    const row_choice choice = { .head0 = w->head, .heads = 1, .first = first, .count = end };
    int r;
    set_rows(t, &choice);
    for (r = 0; r < t->pl->rows; r++) {
        float *to = row->q + r * pitch;
        memcpy(to, t->row_in[r], (size_t)p->head_dim * sizeof *to);
        memset(to + p->head_dim, 0, (size_t)(pitch - p->head_dim) * sizeof *to);
    }
    load_rows(t, &w->g->dout, row->dout, pitch_v, p->head_dim_v);
    turn_rows(t, row->dout_t, row->dout, pitch_v, p->head_dim_v);
    return row;
}

/* load_statistics loads what the first list left of each row. */
static void load_statistics(const desk *w, grad_tile *row)
{
    const tile *t = &row->t;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        const int64_t at = l->used ? state_row(&w->pr->p, &t->s, l->head, l->i) : 0;
        row->m[r] = l->used ? w->back->m[at] : 0.0f;
        row->r[r] = l->used ? w->back->r[at] : 0.0f;
        row->delta[r] = l->used ? w->back->delta[at] : 0.0f;
    }
}

static void clear(float *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

/* open_panel packs rows i0 to i1-1 of w->head, at most a panel of them, and sets their sums to
 * +0. */
static void open_panel(desk *w, int64_t i0, int64_t i1)
{
    for (w->row_tiles = 0; i0 < i1; i0 += w->pl->rows) {
        grad_tile *row = pack_rows(w, w->row_tiles++, i0, i1);
        load_statistics(w, row);
        if (w->want & WANT_DQ) {
            clear(row->dq, w->lay->dq_floats);
            clear(row->dq_total, w->lay->dq_floats);
        }
        clear(row->sum, whole_lines(w->pl->rows));
        clear(row->sum_total, whole_lines(w->pl->rows));
    }
}

/* load_keys loads keys j0 to j0+n-1 of K and V as f32 rows; the panel is open. */
static void load_keys(const desk *w, int64_t j0, int n)
{
    copy_key_tile(&grad_tile_at(w, 0)->t, j0, n);
}
