/* src/skip.c - skipping: blocks of keys that hold too little of a row's probability are left out of it.
 * SPDX-License-Identifier: MIT
 *
 * Each row has a reference: its first and its last SKIP_LAST blocks, which it always keeps, and its sink.
 * The reference is computed before the row and sums to l 2^m, which the sum of the whole row is not below.
 * A row of n blocks leaves out a block of 16 keys whose largest logit bm shows that it holds at most
 *
 *     16 2^bm <= below * l 2^m / n
 *
 * so that the row loses at most the share `below`. The row compares bm - m with the logarithm of the rest: a
 * limit m + log2(...) would be rounded to the unit of m, which may be large. What decides is canonical and the
 * row's own; the tile, the worker and the step that take the row do not matter. The rules are in docs/canon.md.
 *
 * A state goes on behind o with d [rows], the sum of 2^(bm - m) over the blocks left out.
 */
#pragma once

#include "problem.c"
#include "states.c"

#define SKIP_LAST 4
/* 15/16 of 1/16, which leaves roundings a part in 16. */
#define SKIP_SHARE 0x1.ep-5f
/* What is left out counts as at least 2^SKIP_LEAST of the reference, where exp2 might give +0. A row that
 * may not lose as much in a block leaves nothing out. */
#define SKIP_LEAST (-120.0f)
/* Roundings make the share that is written at most 2^-10 of it too small, and it is not below this, unless
 * the caller allows less. */
#define SKIP_MARGIN 0x1.004p+0f
#define SKIP_FLOOR 0x1p-100f

/* ---- the reference

   t->skip holds [rows] limits of bm - m, above which a row keeps a block, and [rows] maxima m. */

static float *reference_m(const tile *t)
{
    return t->skip + t->pl->rows;
}

/* skips_from and skips_to give the first key of a lane's first block that may be left out, and of the first
 * block behind these. */
static int64_t skips_from(const tile *t, const lane *l)
{
    return l->lo + ATTN_BLOCK - (t->s.key_base + l->lo) % ATTN_BLOCK;
}

static int64_t skips_to(const tile *t, const lane *l)
{
    const int64_t last = l->hi - 1;
    return last - (t->s.key_base + last) % ATTN_BLOCK - (SKIP_LAST - 1) * ATTN_BLOCK;
}

/* may_skip tells whether a block that begins at key j is none of a lane's reference. */
static int may_skip(const tile *t, const lane *l, int64_t j)
{
    return l->lo < l->hi && j >= skips_from(t, l) && j < skips_to(t, l);
}

/* begin_references lets no lane leave anything out until set_limits, but for those without a row. */
static void begin_references(tile *t)
{
    int r;
    t->skip_from = 0;
    t->skip_to = INT64_MAX;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        t->skip[r] = l->used ? NEG_INF : -NEG_INF;
        reference_m(t)[r] = 0.0f;
        if (!l->used)
            continue;
        t->skip_from = max64(t->skip_from, skips_from(t, l));
        t->skip_to = min64(t->skip_to, l->lo < l->hi ? skips_to(t, l) : 0);
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
        int64_t at;
        if (l->lo >= l->hi)
            continue;
        at = max64(j, j < skips_from(t, l) ? l->lo : skips_to(t, l));
        if (at < l->hi)
            first = min64(first, at);
    }
    return first;
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
        end[r] = may_skip(t, &t->lanes[r], j) ? 0 : n;
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
        float x;
        if (!at->used || l[r] == 0.0f)
            continue;
        x = t->pr->p.skip.below * l[r];
        x = x * SKIP_SHARE;
        x = x / (float)blocks_of_lane(t, at);
        x = log2_canon(x);
        if (is_nan(x))
            continue;
        reference_m(t)[r] = m[r];
        t->skip[r] = x;
    }
}

/* ---- blocks */

/* limits_at gives the limits of a block that begins at key j. With one of -inf a lane can lose nothing but
 * dead keys. */
static const float *limits_at(tile *t, int64_t j)
{
    float *const limits = t->lane_values + t->pl->rows;
    int r;
    if (j >= t->skip_from && j < t->skip_to)
        return t->skip;
    for (r = 0; r < t->pl->rows; r++)
        limits[r] = !t->lanes[r].used || may_skip(t, &t->lanes[r], j) ? t->skip[r] : NEG_INF;
    return limits;
}

/* judge_lanes sets low[lane] to 1 for the lanes that leave out a block, whose largest logits high has, and
 * counts them. high then has what is left out, relative to m: -inf for nothing. */
static int judge_lanes(float *RESTRICT high, int *RESTRICT low, const float *RESTRICT limit,
                       const float *RESTRICT m, int rows)
{
    int r, k, count = 0;
    for (r = 0; r < rows; r += 4)
        for (k = r; k < r + 4; k++) {
            const int dead = is_neg_inf(high[k]);
            float x = high[k] - m[k];
            int is_low;
            x = choose(x > SKIP_LEAST, x, SKIP_LEAST);
            is_low = dead | (x <= limit[k]);
            high[k] = choose(is_low & !dead, x, NEG_INF);
            low[k] = is_low;
            count += is_low;
        }
    return count;
}

static int holds_nan(const float *s, int n, int rows)
{
    int k, any = 0;
    for (k = 0; k < n; k++)
        any |= is_nan(s[k * rows]);
    return any;
}

/* keep_nans takes the lanes with a NaN among n logits out of those that leave them out, and counts those. */
static int keep_nans(const float *s, int n, int rows, float *high, int *low)
{
    int r, count = 0;
    for (r = 0; r < rows; r++)
        if (low[r] && holds_nan(s + r, n, rows)) {
            low[r] = 0;
            high[r] = NEG_INF;
            count++;
        }
    return count;
}

/* skip_block decides about n keys from j on, which one block holds. It returns 1 if all lanes leave them out,
 * and otherwise hides them from those that do. */
static int skip_block(tile *t, float *s, int n, int64_t j, float *d)
{
    const attn_kernels *kernels = t->pl->kernels;
    const int rows = t->pl->rows;
    float *const high = t->lane_values, *const zero = high + 2 * rows;
    int *const low = t->lane_ints + rows;
    int r, count;
    for (r = 0; r < rows; r++) {
        high[r] = NEG_INF;
        zero[r] = 0.0f;
    }
    kernels->maximum(s, n, high);
    count = judge_lanes(high, low, limits_at(t, j), reference_m(t), rows);
    if (count && !kernels->finite(s, (int64_t)n * rows))
        count -= keep_nans(s, n, rows, high, low);
    if (count == 0)
        return 0;
    kernels->exp_sum(high, 1, 0.0f, zero, d);
    if (count == rows)
        return 1;
    for (r = 0; r < rows; r++)
        low[r] = low[r] ? 0 : n;
    clip_lanes(t, s, n, low);
    return 0;
}

/* ---- the result */

/* dropped_share gives a bound on the share that a row left out, which is at most `below`. m and l are those of
 * the keys kept and the sink, and d is relative to m_ref. */
static float dropped_share(float m, float l, float m_ref, float d, float below)
{
    float x = d == 0.0f ? 0.0f : m_ref - m, all; /* Without a reference m may lie anywhere. */
    if (l == 0.0f)
        return 0.0f;
    x = exp2_canon(x);
    x = d * x;
    x = x * (float)ATTN_BLOCK;
    all = l + x;
    x = x / all;
    x = x * SKIP_MARGIN;
    if (d > 0.0f && x < SKIP_FLOOR)
        x = below < SKIP_FLOOR ? below : SKIP_FLOOR;
    return x;
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
                      dropped_share(m[r], l[r], reference_m(t)[r], d[r], p->skip.below));
    }
}
