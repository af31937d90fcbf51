/* src/state.c - the state (m, l, o) of a tile's rows: how chunks become the root, the sink, and the result.
 * SPDX-License-Identifier: MIT
 *
 * A state is stored as [m rows][l rows][o head_dim_v x rows], and goes on as src/insight.c and src/skip.c say.
 */
#pragma once

#include "insight.c"
#include "skip.c"
#include "rotate.c"
#include "tile.c"

static float *state_l(const tile *t, float *state)
{
    return state + t->pl->rows;
}

static float *state_o(const tile *t, float *state)
{
    return state + 2 * t->pl->rows;
}

/* state_tail gives what lies behind o. */
static float *state_tail(const tile *t, float *state)
{
    return state_o(t, state) + t->pr->p.head_dim_v * t->pl->rows;
}

static float *take_state(tile *t)
{
    float *const state = t->free;
    ATTN_ASSERT(state);
    memcpy(&t->free, state, sizeof t->free);
    return state;
}

/* last_tail gives the tail of the node that ends last among those that wait, or NULL. */
static const float *last_tail(const tile *t)
{
    int level = 0;
    while (level < t->levels && !t->pending[level])
        level++;
    return level < t->levels ? state_tail(t, t->pending[level]) : NULL;
}

static float *begin_state(tile *t)
{
    float *state = take_state(t);
    const int64_t rows = t->pl->rows;
    int64_t k;
    memset(state, 0, (size_t)t->pl->state_floats * sizeof *state);
    for (k = 0; k < rows; k++)
        state[k] = NEG_INF;
    if (t->insight)
        begin_insight(t, state_tail(t, state), last_tail(t));
    return state;
}

/* join_states makes `upper` the merge of both; what a state has beside m, l and o goes by its own rules,
 * and t then as one more column of o. */
static void join_states(tile *t, float *lower, float *upper)
{
    int64_t columns = t->pr->p.head_dim_v;
    if (t->insight)
        columns += merge_insight(t, lower, upper, state_tail(t, lower), state_tail(t, upper));
    if (t->skip)
        add_floats(state_tail(t, upper), state_tail(t, lower), t->pl->rows);
    t->pl->kernels->merge(lower, upper, columns);
}

/* take_node takes the current state out of the tile, merged with what waits below `level`. */
static float *take_node(tile *t, int level)
{
    float *state = t->state, *lower;
    t->state = NULL;
    if (level > t->levels)
        level = t->levels;
    while ((lower = take_lower(t->pending, level)) != NULL) {
        if (state) {
            join_states(t, lower, state);
            give_state(t, lower);
        } else {
            state = lower;
        }
    }
    return state;
}

static void put_node(tile *t, int level, float *state)
{
    ATTN_ASSERT(t->pending[level] == NULL);
    t->pending[level] = state;
    t->levels = level < t->levels ? t->levels : level + 1;
}

/* end_chunk puts the state of chunk i, which is complete, into the tree; it is NULL if no key of the
 * chunk was visible. */
static void end_chunk(tile *t, int64_t i)
{
    const int level = level_after(i);
    put_node(t, level, take_node(t, level));
}

/* take_root gives the root: keys and chunks that never came are empty. */
static float *take_root(tile *t)
{
    float *root = take_node(t, MAX_LEVELS);
    return root ? root : begin_state(t);
}

/* rows_finite looks at n numbers of each lane that has a row. In the others, zero queries meet K, and
 * an infinity there gives NaN. */
static int rows_finite(const tile *t, const float *x, int64_t n)
{
    const int rows = t->pl->rows;
    int64_t i;
    for (i = 0; i < n * rows; i++)
        if (t->lanes[i % rows].used && !t->pl->kernels->finite(x + i, 1))
            return 0;
    return 1;
}

/* needs_redo tells whether the tile needs the second pass, because a masked NaN or Inf may have met
 * p = +0. */
static int needs_redo(const tile *t, float *state)
{
    const int64_t values = wants_values(&t->pr->p) ? t->pr->p.head_dim_v : 0;
    const float *const sums = state_l(t, state); /* These are l, then o. */
    return t->pr->p.force_redo || (!t->pl->kernels->finite(sums, (values + 1) * t->pl->rows) &&
                                   !rows_finite(t, sums, values + 1));
}

/* merge_sink merges one row with the state (sink * log2 e, 1, 0) of its sink: it updates m and l
 * and returns the factor on o, which scale_values applies. */
static float merge_sink(float sink, float *m, float *l)
{
    const float sink2 = sink * LOG2E_HI;
    const float top = *m > sink2 ? *m : sink2;
    float w = *m - top, w_sink = sink2 - top;
    w = exp2_canon(w);
    w_sink = exp2_canon(w_sink);
    *m = top;
    *l = *l * w;
    *l = w_sink + *l; /* This is fma(1, w_sink, l). */
    return w;
}

static void scale_values(float *o, int64_t step, int64_t n, float w)
{
    int64_t d;
    for (d = 0; d < n; d++) {
        o[d * step] = o[d * step] * w;
        o[d * step] = o[d * step] + 0.0f; /* This is fma(0, w_sink, o). */
    }
}

/* row_lse gives the LSE of a finished row. `empty` means that no key was alive; the LSE is then the
 * sink. */
static float row_lse(float m, float l, int empty, float sink)
{
    float lse = sink;
    if (!empty) {
        lse = log2_canon(l);
        lse = m + lse;
        lse = lse * LN2;
    }
    return lse + 0.0f;
}

/* write_sums writes LSE and statistics of a row after its sink. Where no key was alive, l is 0, and
 * both are those of the sink, or of nothing. */
static void write_sums(const attn_params *p, const sequence *s, int64_t head, int64_t i, float m,
                       float l)
{
    const float sink = sink_of(p, head), sink2 = sink * LOG2E_HI;
    const int64_t row = s->q_row + i, at = ROW_AT(p->stats, s, head, row);
    const int empty = l == 0.0f;
    if (p->lse.data)
        store_f32(p->lse.data, ROW_AT(p->lse, s, head, row), row_lse(m, l, empty, sink));
    if (!p->stats.data)
        return;
    store_f32(p->stats.data, at, (empty ? sink2 : m) + 0.0f);
    store_f32(p->stats.data, at + 1, empty && !is_neg_inf(sink) ? 1.0f : l);
}

/* add_sinks applies the sink to every used lane that is not empty. */
static void add_sinks(tile *t, float *state)
{
    const int rows = t->pl->rows;
    float *l = state_l(t, state);
    int r;
    for (r = 0; r < rows; r++) {
        const float sink = t->lanes[r].used ? sink_of(&t->pr->p, t->lanes[r].head) : NEG_INF;
        if (!is_neg_inf(sink) && l[r] != 0.0f) {
            const float w = merge_sink(sink, &state[r], &l[r]);
            scale_values(state_o(t, state) + r, rows, t->pr->p.head_dim_v, w);
        }
    }
}

/* continue_state loads the chunk that part.continued goes on with, as write_partial left it. */
static void continue_state(tile *t)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int64_t d;
    int r;
    if (!p->part.continued)
        return;
    t->state = begin_state(t);
    for (r = 0; r < rows; r++) {
        const lane *at = &t->lanes[r];
        const int64_t row = at->used ? state_row(p, &t->s, at->head, at->i) : 0;
        if (!at->used)
            continue;
        t->state[r] = p->state.m[row];
        state_l(t, t->state)[r] = p->state.l[row];
        for (d = 0; d < p->head_dim_v; d++)
            state_o(t, t->state)[d * rows + r] = p->state.o[row * p->head_dim_v + d];
    }
}

static void write_partial(const tile *t, float *state)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int64_t d;
    int r;
    for (r = 0; r < rows; r++) {
        const lane *at = &t->lanes[r];
        const int64_t row = at->used ? state_row(p, &t->s, at->head, at->i) : 0;
        if (!at->used)
            continue;
        p->state.m[row] = state[r] + 0.0f;
        p->state.l[row] = state_l(t, state)[r];
        for (d = 0; d < p->head_dim_v; d++)
            p->state.o[row * p->head_dim_v + d] = state_o(t, state)[d * rows + r] + 0.0f;
    }
}

/* write_lanes divides rows [dim][lane] of a tile by l, multiplies them by the factor and writes
 * them to rows of an output: f32 directly, other types by way of t->stage. */
static void write_lanes(tile *t, const attn_output *to, int64_t dim, const float *x, const float *l,
                        float factor)
{
    const int in_place = to->dtype == ATTN_F32;
    float **out = t->row_out;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *at = &t->lanes[r];
        out[r] = t->stage + r * dim;
        if (!at->used || !in_place)
            continue;
        out[r] = (float *)to->data + ROW_AT(*to, &t->s, at->head, t->s.q_row + at->i);
        if (t->pl->rows_ahead)
            PREFETCH_RUN((const char *)out[r], dim * (int64_t)sizeof(float));
    }
    t->pl->kernels->result(out, x, l, factor, dim);
    for (r = 0; r < t->pl->rows && t->pr->p.rotated & ATTN_ROTATED_V; r++)
        if (t->lanes[r].used)
            rotate_result(out[r], dim);
    for (r = 0; r < t->pl->rows && !in_place; r++) {
        const lane *at = &t->lanes[r];
        if (at->used)
            store_run(t->pl->kernels, to->dtype, to->data,
                      ROW_AT(*to, &t->s, at->head, t->s.q_row + at->i), out[r], dim);
    }
}

/* write_rows writes the root state of a tile to rows of the outputs. */
static void write_rows(tile *t, float *state)
{
    const attn_params *p = &t->pr->p;
    int r;
    if (p->partial) {
        write_partial(t, state);
        return;
    }
    if (t->insight)
        keep_sums(t, state, state_l(t, state));
    add_sinks(t, state);
    if (t->insight)
        write_insight(t, state, state_l(t, state), state_tail(t, state));
    if (t->skip)
        write_dropped(t, state, state_l(t, state), state_tail(t, state));
    if (p->o.data)
        write_lanes(t, &p->o, p->head_dim_v, state_o(t, state), state_l(t, state),
                    t->pr->keep_factor);
    for (r = 0; r < t->pl->rows && (p->lse.data || p->stats.data); r++)
        if (t->lanes[r].used)
            write_sums(p, &t->s, t->lanes[r].head, t->lanes[r].i, state[r], state_l(t, state)[r]);
}
