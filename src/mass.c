/* src/mass.c - mass items: what the rows of a kv head look at, summed by blocks of keys (insight.mass).
 * SPDX-License-Identifier: MIT
 *
 * A sum of whole numbers is exact in any order, so probabilities count as whole numbers of 2^-32. They
 * need m and l of whole rows, and are those of logits at stage SOFTMAX.
 */
#pragma once

#include "logits.c"

#define MASS_UNIT 0x1p-32

/* mass_of counts a probability in units; it is no NaN. */
static int64_t mass_of(float p)
{
    return (int64_t)((double)p / MASS_UNIT + 0.5);
}

/* add_mass adds the probabilities of n keys in t->s_tile, which are those of one block. */
static void add_mass(const tile *t, const float *s, int n, double *sum)
{
    int64_t units = 0;
    int j, r;
    for (j = 0; j < n; j++, s += t->pl->rows)
        for (r = 0; r < t->pl->rows; r++) {
            if (t->lanes[r].used && is_nan(s[r]))
                *sum = (double)float_of(CANONICAL_NAN);
            else if (t->lanes[r].used)
                units += mass_of(s[r]);
        }
    *sum = *sum + (double)units * MASS_UNIT;
}

/* add_row_mass adds the probabilities of the tile's rows, whose m and 1 / l are known. */
static void add_row_mass(tile *t, double *sums, const float *m, const float *inverse)
{
    const int64_t each = t->pr->p.insight.mass_keys;
    int64_t j0;
    for (j0 = t->lo; j0 < t->hi; j0 += t->pl->keys) {
        const int64_t end = min64(j0 + t->pl->keys, t->hi);
        int64_t j = j0, next;
        stage_tile(t, ATTN_LOGITS_SOFTMAX, j0, (int)(end - j0), m, inverse);
        for (; j < end; j = next) {
            const int64_t number = (t->s.column + j) / each;
            next = min64(end, (number + 1) * each - t->s.column);
            add_mass(t, t->s_tile + (j - j0) * t->pl->rows, (int)(next - j), sums + number);
        }
    }
}

static void mass_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int64_t group = c->pr.group, blocks = mass_blocks(p), rows = p->insight.mass_rows;
    const sequence s = sequence_of(p, index / p->num_heads_kv);
    double *const sums = p->insight.mass + index * blocks;
    row_choice choice = { index % p->num_heads_kv * group, group, .count = s.q_len };
    int64_t n;
    for (n = 0; n < blocks; n++)
        sums[n] = 0;
    choice.first = rows ? max64(0, s.q_len - rows) * group : 0;
    for (; choice.first < s.q_len * group; choice.first += c->pl.rows) {
        tile *t = open_tile(c, slot, 0);
        float *const m = t->lane_values + c->pl.rows, *const inverse = m + c->pl.rows;
        t->kv_head = index % p->num_heads_kv;
        t->s = s;
        set_rows(t, &choice);
        normaliser(t, m, inverse);
        add_row_mass(t, sums, m, inverse);
    }
}
