/* src/dropout.c - dropout: a counter-based random number decides about each pair.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "philox.c"
#include "problem.c"

/* A dropped key stays in l and leaves o alone, like a dead one. Lanes without a row
 * are drawn, too; nothing reads them. */
static void drop_keys(const tile *t, float *probabilities, int64_t j0, int n)
{
    const int rows = t->pl->rows;
    uint32_t *const pos = (uint32_t *)t->lane_ints, *const head = pos + rows;
    attn_drop d = { .below = t->pr->drop_below,
                    .first_n = (uint32_t)(t->s.key_base + key_seen(&t->s, j0)),
                    .step = (uint32_t)t->s.view.step,
                    .batch = (uint32_t)t->s.view.batch,
                    .pos = pos,
                    .head = head,
                    .dead = t->dead };
    int r;
    for (r = 0; r < rows; r++) {
        const lane *l = &t->lanes[r];
        pos[r] = l->used ? (uint32_t)(t->s.key_base + t->s.view.before + row_seen(&t->s, l->i)) : 0;
        head[r] = l->used ? (uint32_t)head_seen(&t->s, l->head) : 0;
    }
    begin_philox(&d, t->pr->p.dropout_seed);
    t->pl->kernels->drop(probabilities, n, &d);
}

ATTN_API int attn_dropout_keep(uint64_t seed, float dropout_p, const attn_pair *at)
{
    uint32_t c0, c1, c2, c3;
    attn_drop d;
    if (!at)
        return 0;
    if (!(dropout_p > 0 && dropout_p < 1))
        return !(dropout_p >= 1);
    c0 = (uint32_t)at->n;
    c1 = (uint32_t)at->pos;
    c2 = (uint32_t)at->head;
    c3 = (uint32_t)at->batch;
    begin_philox(&d, seed);
    philox(&d, 1, &c0, &c1, &c2, &c3);
    return c0 >= (uint32_t)((double)dropout_p * 4294967296.0);
}
