/* src/states.c - raw states (m, l, o) of rows as a caller holds them, and the merge of two.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "numbers.c"
#include "seam.h"

/* A portable tile has this number of query rows: two AVX, four NEON or SSE vectors. */
#define LANES 16

static inline attn_state state_at(const attn_state *s, int64_t row, int64_t head_dim_v)
{
    attn_state one = *s;
    one.m += row;
    one.l += row;
    one.o += row * head_dim_v;
    return one;
}

static inline int is_state(const attn_state *s)
{
    return s && s->m && s->l && s->o;
}

/* merge_rows computes out = a + b for up to LANES rows; o is [head_dim_v][rows], and out may be a
 * or b. */
KERNEL void merge_rows(int hw, int rows, const attn_state *a, const attn_state *b,
                       const attn_state *out, int64_t head_dim_v)
{
    float wa[LANES], wb[LANES];
    int64_t k;
    int r;
    for (r = 0; r < rows; r++) {
        const float m = a->m[r] > b->m[r] ? a->m[r] : b->m[r];
        const float from = m == NEG_INF ? 0.0f : m;
        float x = a->m[r] - from;
        wa[r] = exp2_with(hw, x);
        x = b->m[r] - from;
        wb[r] = exp2_with(hw, x);
        x = a->l[r] * wa[r];
        out->l[r] = fma32(hw, b->l[r], wb[r], x);
        out->m[r] = m;
    }
    for (k = 0; k < head_dim_v * rows; k += rows)
        for (r = 0; r < rows; r++) {
            const float x = a->o[k + r] * wa[r];
            out->o[k + r] = fma32(hw, b->o[k + r], wb[r], x);
        }
}
