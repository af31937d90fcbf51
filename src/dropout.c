/* src/dropout.c - dropout: a counter-based random number decides about each pair.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "problem.c"

/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011),
 * word 0 of the output. */
static uint32_t philox_word(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    int round;
    for (round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c0;
}

static int keeps(uint64_t seed, uint32_t drop_below, const attn_pair *at)
{
    return philox_word(seed, (uint32_t)at->n, (uint32_t)at->pos, (uint32_t)at->head,
                       (uint32_t)at->batch) >= drop_below;
}

/* A dropped key stays in l and leaves o alone, like a dead one. */
static void drop_keys(const tile *t, float *probabilities, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int j, r;
    for (r = 0; r < rows; r++)
        for (j = 0; j < n && t->lanes[r].used; j++) {
            const attn_pair pair = pair_of(&t->s, &t->lanes[r], j0 + j);
            if (!keeps(p->dropout_seed, t->pr->drop_below, &pair))
                probabilities[j * rows + r] = t->dead;
        }
}

ATTN_API int attn_dropout_keep(uint64_t seed, float dropout_p, const attn_pair *at)
{
    if (!at)
        return 0;
    if (!(dropout_p > 0 && dropout_p < 1))
        return !(dropout_p >= 1);
    return keeps(seed, (uint32_t)((double)dropout_p * 4294967296.0), at);
}
