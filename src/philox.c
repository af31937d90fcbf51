/* src/philox.c - Philox4x32-10: a random number for each counter, without a state.
 * SPDX-License-Identifier: MIT
 *
 * Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011.
 */
#pragma once

#include "config.h"
#include "seam.h"

/* begin_philox sets the key of each round. */
static void begin_philox(attn_drop *d, uint64_t seed)
{
    int i;
    for (i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
        d->round_keys[i][0] = (uint32_t)seed + (uint32_t)i * ATTN_PHILOX_KEY_0;
        d->round_keys[i][1] = (uint32_t)(seed >> 32) + (uint32_t)i * ATTN_PHILOX_KEY_1;
    }
}

/* philox turns `count` counters c0 to c3 into random words; a constant count lets a compiler use
 * vectors. */
KERNEL void philox(const attn_drop *d, int count, uint32_t *c0, uint32_t *c1, uint32_t *c2,
                   uint32_t *c3)
{
    int i, r;
    for (i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
        const uint32_t k0 = d->round_keys[i][0], k1 = d->round_keys[i][1];
        for (r = 0; r < count; r++) {
            const uint64_t a = (uint64_t)ATTN_PHILOX_A * c0[r];
            const uint64_t b = (uint64_t)ATTN_PHILOX_B * c2[r];
            c0[r] = (uint32_t)(b >> 32) ^ c1[r] ^ k0;
            c1[r] = (uint32_t)b;
            c2[r] = (uint32_t)(a >> 32) ^ c3[r] ^ k1;
            c3[r] = (uint32_t)a;
        }
    }
}
