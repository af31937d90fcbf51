/* src/skip.c - skipping: blocks of keys that hold too little of a row's probability are left out of it.
 * SPDX-License-Identifier: MIT
 *
 * Each row has a reference: its first and its last SKIP_LAST blocks, which it always keeps, and its sink.
 * The reference is computed before the row and sums to l 2^m, which the sum of the whole row is not below.
 * A row of n blocks leaves out a block of 16 keys whose largest logit bm shows that it holds at most
 *
 *     16 2^bm <= below * l 2^m / n
 *
 * so that the row loses at most the share `below`. What decides is canonical and the row's own; the tile,
 * the worker and the step that take the row do not matter. The rules are in docs/canon.md.
 *
 * A state goes on behind o with d [rows], the sum of 2^(bm - m) over the blocks left out.
 */
#pragma once

#include "problem.c"
#include "states.c"

#define SKIP_LAST 4
/* 15/16 of 1/16, which leaves roundings a part in 16. */
#define SKIP_SHARE 0x1.ep-5f
/* What is left out counts as at least 2^SKIP_LEAST of the reference, where exp2 might give +0. */
#define SKIP_LEAST (-120.0f)
/* Roundings make the share that is written at most 2^-10 of it too small, and it is not below this. */
#define SKIP_MARGIN 0x1.004p+0f
#define SKIP_FLOOR 0x1p-100f

/* ---- the reference */

/* begin_references sets which blocks each lane may leave out; none is until set_limits. */
static void begin_references(tile *t)
{
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        const int64_t base = t->s.key_base, last = l->hi - 1;
        skip_row *to = &t->skip[r];
        to->from = l->lo + ATTN_BLOCK - (base + l->lo) % ATTN_BLOCK;
        to->to = last - (base + last) % ATTN_BLOCK - (SKIP_LAST - 1) * ATTN_BLOCK;
        to->limit = NEG_INF;
        to->m = 0.0f;
    }
}

/* next_reference gives the first key from j on that lies in a reference block of some lane and that the
 * ranges leave to it, or more than any key. */
static int64_t next_reference(const tile *t, int64_t j)
{
    int64_t first = INT64_MAX;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        const skip_row *of = &t->skip[r];
        const int64_t at = max64(j, j < of->from ? l->lo : of->to);
        if (at < l->hi)
            first = min64(first, at);
    }
    return first;
}

static int may_skip(const skip_row *of, int64_t j)
{
    return j >= of->from && j < of->to;
}

/* clip_lanes hides n keys from the lanes that have end[lane] = 0; in the others it is n. */
static void clip_lanes(tile *t, float *s, int n, const int *end)
{
    int *const begin = t->lane_ints;
    memset(begin, 0, (size_t)t->pl->rows * sizeof *begin);
    t->pl->kernels->clip(s, n, begin, end);
}

/* keep_reference hides n keys of a block from those lanes whose reference does not hold it. */
static void keep_reference(tile *t, float *s, int n, int64_t j)
{
    int *const end = t->lane_ints + t->pl->rows;
    int r;
    for (r = 0; r < t->pl->rows; r++)
        end[r] = may_skip(&t->skip[r], j) ? 0 : n;
    clip_lanes(t, s, n, end);
}

/* blocks_of_lane counts the canonical blocks of the keys that the ranges leave to a lane. */
static int64_t blocks_of_lane(const tile *t, const lane *l)
{
    const int64_t base = t->s.key_base;
    return (base + l->hi - 1) / ATTN_BLOCK - (base + l->lo) / ATTN_BLOCK + 1;
}

/* set_limits sets the limits of all lanes from m and l of their reference. */
static void set_limits(tile *t, const float *m, const float *l)
{
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *at = &t->lanes[r];
        skip_row *to = &t->skip[r];
        float x;
        if (!at->used || l[r] == 0.0f)
            continue;
        x = t->pr->p.skip.below * l[r];
        x = x * SKIP_SHARE;
        x = x / (float)blocks_of_lane(t, at);
        x = log2_canon(x);
        x = m[r] + x;
        to->m = m[r];
        to->limit = is_nan(x) ? NEG_INF : x;
    }
}

/* ---- blocks */

static int holds_nan(const float *s, int n, int rows)
{
    int k, any = 0;
    for (k = 0; k < n; k++)
        any |= is_nan(s[k * rows]);
    return any;
}

/* judge_block sets end[lane] to 0 for the lanes that leave the block out, to n for the others, and counts
 * the former. high has the largest logits, which do not tell of NaNs. */
static int judge_block(const tile *t, const float *high, const float *s, int n, attn_lanes lanes,
                       int64_t j, int *end)
{
    const int rows = t->pl->rows;
    int r, count = 0, finite;
    for (r = 0; r < rows; r++)
        end[r] = n;
    for (r = lanes.begin; r < lanes.end; r++) {
        const int out = may_skip(&t->skip[r], j) && high[r] <= t->skip[r].limit;
        end[r] = out ? 0 : n;
        count += out;
    }
    finite = count == 0 || t->pl->kernels->finite(s, (int64_t)n * rows);
    for (r = lanes.begin; r < lanes.end && !finite; r++)
        if (end[r] == 0 && holds_nan(s + r, n, rows)) {
            end[r] = n;
            count--;
        }
    return count;
}

/* add_skipped adds 2^(high - m) to d where end[lane] is 0. A block without an alive key adds nothing. */
static void add_skipped(tile *t, float *high, const int *end, float *d)
{
    const int rows = t->pl->rows;
    float *const zero = high + rows;
    int r;
    for (r = 0; r < rows; r++) {
        const float x = high[r] - t->skip[r].m;
        const int none = end[r] != 0 || is_neg_inf(high[r]);
        high[r] = none ? NEG_INF : x > SKIP_LEAST ? x : SKIP_LEAST;
        zero[r] = 0.0f;
    }
    t->pl->kernels->exp_sum(high, 1, 0.0f, zero, d);
}

/* skip_block decides about n keys from j on, which one block holds and `lanes` see. It returns 1 if all of
 * these leave them out, and otherwise hides them from those that do. */
static int skip_block(tile *t, float *s, int n, attn_lanes lanes, int64_t j, float *d)
{
    const int rows = t->pl->rows;
    float *const high = t->lane_values;
    int *const end = t->lane_ints + rows;
    int r, count;
    for (r = 0; r < rows; r++)
        high[r] = NEG_INF;
    t->pl->kernels->maximum(s, n, high);
    count = judge_block(t, high, s, n, lanes, j, end);
    if (count == 0)
        return 0;
    add_skipped(t, high, end, d);
    if (count == lanes.end - lanes.begin)
        return 1;
    clip_lanes(t, s, n, end);
    return 0;
}

/* ---- the result */

/* dropped_share gives a bound on the share that a row left out. m and l are those of the keys kept and the
 * sink, and d is relative to m_ref. */
static float dropped_share(float m, float l, float m_ref, float d)
{
    float x = m_ref - m, all;
    if (l == 0.0f)
        return 0.0f;
    x = exp2_canon(x);
    x = d * x;
    x = x * (float)ATTN_BLOCK;
    all = l + x;
    x = x / all;
    x = x * SKIP_MARGIN;
    return d > 0.0f && x < SKIP_FLOOR ? SKIP_FLOOR : x;
}

/* write_dropped writes the bounds of finished rows, by m and l after the sink. */
static void write_dropped(const tile *t, const float *m, const float *l, const float *d)
{
    const attn_params *p = &t->pr->p;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *at = &t->lanes[r];
        if (at->used)
            store_f32(p->skip.dropped, state_row(p, &t->s, at->head, at->i),
                      dropped_share(m[r], l[r], t->skip[r].m, d[r]));
    }
}
