/* src/backward/pairs.c - a pair tile: p and dS of the rows of a tile and some of the open keys.
 * SPDX-License-Identifier: MIT
 *
 * Pairs that do not count are ATTN_DEAD in both.
 */
#pragma once

#include "../dropout.c"
#include "plan.c"

static const float *open_rows_of(const desk *w, int which, int64_t j0)
{
    return w->keys.copy[which] + (j0 - w->keys.j0) * w->pl->pitch[which];
}

/* multiply_rows computes s = packed rows of a tile times open rows j0..j0+n-1 of K (the score) or
 * of V. */
static void multiply_rows(const desk *w, int which, float *s, const float *rows, int64_t j0, int n,
                          attn_lanes lanes)
{
    const attn_product p = { .to = s,
                             .by = rows,
                             .kv = open_rows_of(w, which, j0),
                             .stride = (ptrdiff_t)w->pl->pitch[which],
                             .n = n,
                             .dim = which == KEYS ? w->pr->p.head_dim : w->pr->p.head_dim_v,
                             .factor = which == KEYS ? w->pr->factor : 1.0f,
                             .lanes = lanes };
    w->kernels->qk(&p);
}

/* pair_logits computes logits in w->s, and on the way tanh of softcap and what the score callback
 * is given. `visible` comes from tile_class and is not EMPTY. */
static void pair_logits(const desk *w, tile *t, int64_t j0, int n, int visible, attn_lanes lanes)
{
    const attn_params *p = &w->pr->p;
    const size_t bytes = (size_t)(n * w->pl->rows) * sizeof(float);
    multiply_rows(w, KEYS, w->s, t->qt, j0, n, lanes);
    if (p->softcap > 0) {
        memcpy(w->tanh, w->s, bytes);
        w->kernels->softcap(w->tanh, n, 1.0f, w->pr->icap2);
    }
    change_logits(t, w->s, j0, n, ATTN_LOGITS_BIAS);
    hide_dead(t, w->s, j0, n, visible);
    if (p->score) {
        memcpy(w->natural, w->s, bytes);
        apply_score(t, w->s, j0, n);
    }
}

/* mark_kept sets w->x to 1 for pairs that dropout keeps, and to +0 for the others. Without dropout it
 * does nothing. */
static void mark_kept(const desk *w, const grad_tile *row, int64_t j0, int n)
{
    int k;
    if (!w->pr->drop_below)
        return;
    for (k = 0; k < n * w->pl->rows; k++)
        w->x[k] = 1.0f;
    drop_keys(&row->t, w->x, j0, n);
}

/* scale_kept multiplies x of kept pairs by dropout's factor; the others become `dropped`. Without
 * dropout it does nothing. */
static void scale_kept(const desk *w, float *x, int n, float dropped)
{
    const float *const kept = w->x, factor = w->pr->keep_factor;
    const int count = w->pr->drop_below ? n * w->pl->rows : 0;
    int k;
    for (k = 0; k < count; k++) {
        const float scaled = x[k] * factor;
        x[k] = kept[k] > 0 ? scaled : dropped;
    }
}

/* pair_dp computes dP = dout V^T in w->dp; a dropped key has +0. */
static void pair_dp(const desk *w, const grad_tile *row, int64_t j0, int n, attn_lanes lanes)
{
    multiply_rows(w, VALUES, w->dp, row->dout_t, j0, n, lanes);
    mark_kept(w, row, j0, n);
    scale_kept(w, w->dp, n, 0.0f);
}

/* pass_score passes dS through the derivative of the score callback. */
static void pass_score(const desk *w, const tile *t, int64_t j0, int n)
{
    const attn_params *p = &w->pr->p;
    int j, r;
    for (r = 0; r < w->pl->rows; r++)
        for (j = 0; j < n && t->lanes[r].used; j++) {
            const int k = j * w->pl->rows + r;
            const attn_pair pair = pair_of(&t->s, &t->lanes[r], j0 + j);
            const float natural = w->natural[k] * LN2;
            if (!is_dead(w->s[k]))
                w->dp[k] = w->dp[k] * w->g->score_derivative(p->callback_user, &pair, natural);
        }
}

/* The LSE alone tells a probability with the error of its own last place, so that 1 has to be the
 * most; m is at most ATTN_THRESHOLD below a logit, and only numbers that no call wrote exceed 127. */
static float most_exponent(const attn_params *p)
{
    return p->stats.data ? 127.0f : 0.0f;
}

/* pair_gradients returns the lanes that see some of the keys. For these lanes p is then in w->s,
 * and dS, as dbias takes it, in w->dp. */
static attn_lanes pair_gradients(const desk *w, grad_tile *row, int64_t j0, int n)
{
    tile *t = &row->t;
    const int visible = tile_class(t, j0, n);
    const attn_row_stats of = { row->m, row->r, most_exponent(&w->pr->p), row->delta };
    attn_lanes lanes = { 0, 0 }, all;
    if (visible == ATTN_TILE_EMPTY)
        return lanes;
    lanes = lanes_in_range(t, j0, n);
    all.begin = 0;
    all.end = w->pl->rows;
    pair_logits(w, t, j0, n, visible, t->pl->modified ? all : lanes);
    pair_dp(w, row, j0, n, lanes);
    w->kernels->gradient(w->s, w->dp, n, &of);
    if (w->pr->p.score)
        pass_score(w, t, j0, n);
    return lanes;
}

/* A product finds dead pairs by -0, so mark_live makes a live dS of -0 +0. */
static void mark_live(const desk *w, int n)
{
    int k;
    for (k = 0; k < n * w->pl->rows; k++)
        if (is_dead(w->dp[k]) && !is_dead(w->s[k]))
            w->dp[k] = 0.0f;
}

/* finish_pairs takes the last steps before the products. */
static void finish_pairs(const desk *w, int n)
{
    if (w->pr->p.softcap > 0)
        w->kernels->softcap_gradient(w->dp, w->tanh, w->s, n);
    if (w->redo)
        mark_live(w, n);
    scale_kept(w, w->s, n, ATTN_DEAD);
}
