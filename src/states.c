/* src/states.c - raw states (m, l, o) of rows as a caller holds them, and the merge of two.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "numbers.c"
#include "seam.h"

/* A portable tile has this number of query rows: two AVX, four NEON or SSE vectors. Without vectors each
 * lane takes its time, whether a row is there or not. */
#define LANES (HAS_VECTORS ? 16 : 4)

static inline attn_state state_at(const attn_state *s, int64_t row, int64_t head_dim_v)
{
    attn_state one = *s;
    one.m += row;
    one.l += row;
    one.o += row * head_dim_v;
    return one;
}

/* packed_states gives the states of rows as one array has them: every m, every l, then every o. */
static inline attn_state packed_states(float *at, int64_t rows, int64_t head_dim_v)
{
    const attn_state s = { rows, head_dim_v, at, at + rows, at + 2 * rows };
    return s;
}

static inline void copy_states(const attn_state *to, const attn_state *from, int64_t rows,
                               int64_t head_dim_v)
{
    memmove(to->m, from->m, (size_t)rows * sizeof *to->m);
    memmove(to->l, from->l, (size_t)rows * sizeof *to->l);
    memmove(to->o, from->o, (size_t)(rows * head_dim_v) * sizeof *to->o);
}

static inline void clear_states(const attn_state *s)
{
    int64_t row;
    for (row = 0; row < s->num_rows; row++)
        s->m[row] = NEG_INF;
    memset(s->l, 0, (size_t)s->num_rows * sizeof *s->l);
    memset(s->o, 0, (size_t)(s->num_rows * s->head_dim_v) * sizeof *s->o);
}

static inline void add_floats(float *to, const float *from, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++)
        to[i] = to[i] + from[i];
}

static inline int is_state(const attn_state *s)
{
    return s && s->m && s->l && s->o &&
           ((uintptr_t)s->m | (uintptr_t)s->l | (uintptr_t)s->o) % sizeof(float) == 0;
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
