/* src/logits.c - logits items: logits or probabilities of chosen rows, tile by tile, without a matrix.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "tiled.c"

/* normaliser gives m and r = fl(1 / l) of each lane, so that p = 2^(s - m) * r; m and l come after
 * the sink. */
static void normaliser(tile *t, float *m, float *inverse)
{
    const float *l;
    float *root;
    int r;
    t->insight = 0; /* Rows of the first list give it. */
    tiled_pass(&t, 1, 0, INT64_MAX, 0);
    root = tiled_state(t, 0);
    add_sinks(t, root);
    l = state_l(t, root);
    for (r = 0; r < t->pl->rows; r++) {
        m[r] = root[r];
        inverse[r] = inverse_sum(l[r] == 0.0f, l[r]);
    }
    give_state(t, root);
}

/* Without a list the first row chosen is the first that is held. */
static int64_t first_choice(const attn_params *p)
{
    return p->logits.rows ? 0 : p->part.row_begin;
}

static float *logits_row(const tile *t, const lane *at)
{
    const attn_params *p = &t->pr->p;
    const int64_t row = (t->s.b * p->num_heads_q + at->head) * p->logits.num_rows;
    return p->logits.data + (row + at->choice - first_choice(p)) * p->seq_len_kv;
}

/* fill_outside fills columns outside the sequence, those of the keys that are held. */
static void fill_outside(const tile *t, const lane *at, float value)
{
    float *row = logits_row(t, at);
    int64_t column = 0, end = t->pr->p.seq_len_kv;
    narrow_columns(&t->pr->p.part, &column, &end);
    for (; column < end; column++)
        if (column < t->s.column || column >= t->s.column + t->s.kv_len)
            row[column] = value;
}

/* weigh_tile makes probabilities of n keys' logits. The sums of exp_sum go nowhere. */
static void weigh_tile(tile *t, float *s, int n, const float *m, const float *inverse)
{
    const int rows = t->pl->rows;
    int j, r;
    t->pl->kernels->exp_sum(s, n, ATTN_DEAD, m, t->lane_values);
    for (j = 0; j < n; j++, s += rows)
        for (r = 0; r < rows; r++) {
            const float p = s[r] * inverse[r];
            s[r] = is_dead(s[r]) ? 0.0f : p;
        }
}

/* stage_tile gives keys j0 to j0+n-1 at the stage asked for, in t->s_tile, as natural logits or
 * probabilities. */
static void stage_tile(tile *t, int stage, int64_t j0, int n, const float *m, const float *inverse)
{
    const int count = n * t->pl->rows;
    const int class = stage < ATTN_LOGITS_BIAS ? ATTN_TILE_FULL : tile_class(t, j0, n);
    float *s = t->s_tile;
    int k;
    if (class != ATTN_TILE_EMPTY)
        open_logits(t, s, j0, n, class, stage);
    for (k = 0; k < count && class == ATTN_TILE_EMPTY; k++)
        s[k] = NEG_INF;
    if (stage == ATTN_LOGITS_SOFTMAX)
        weigh_tile(t, s, n, m, inverse);
    for (k = 0; k < count && stage != ATTN_LOGITS_SOFTMAX; k++)
        s[k] = s[k] * LN2;
}

static void logits_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int softmax = p->logits.stage == ATTN_LOGITS_SOFTMAX;
    const int64_t group = c->pr.group, rows = c->pl.rows, head = index / c->pl.logits_tiles;
    const int64_t first = first_choice(p);
    const row_choice choice = { head % p->num_heads_kv * group, group,
                                first * group + index % c->pl.logits_tiles * rows,
                                first + p->logits.num_rows, p->logits.rows };
    tile *t = open_tile(c, slot, 0);
    float *m = t->lane_values + rows, *inverse = m + rows;
    int64_t j0;
    int j, r;
    t->kv_head = head % p->num_heads_kv;
    t->s = sequence_of(p, head / p->num_heads_kv);
    if (!set_rows(t, &choice))
        return;
    if (softmax)
        normaliser(t, m, inverse);
    for (r = 0; r < rows; r++)
        if (t->lanes[r].used)
            fill_outside(t, &t->lanes[r], softmax ? 0.0f : NEG_INF);
    for (j0 = t->s.key_from; j0 < t->s.key_to; j0 += c->pl.keys) {
        const int n = (int)min64(c->pl.keys, t->s.key_to - j0);
        stage_tile(t, p->logits.stage, j0, n, m, inverse);
        for (r = 0; r < rows; r++)
            for (j = 0; j < n && t->lanes[r].used; j++)
                store_f32(logits_row(t, &t->lanes[r]), t->s.column + j0 + j,
                          t->s_tile[j * rows + r]);
    }
}
