/* src/insight.c - insight: the entropy of rows and their likeliest keys, kept beside m, l and o.
 * SPDX-License-Identifier: MIT
 *
 * A state with insight goes on behind o with its tail. With an entropy that begins with
 *
 *     t      [rows]        sum of 2^(s - m) * (s - m) over the keys that l holds
 *
 * whose rules are in docs/canon.md; it moves with m as o does, but for l * (old m - new m). Then come
 *
 *     logits [top][rows]   the largest so far, descending, -inf where there are fewer,
 *     keys   [top][rows]   and the keys, as int32_t; of equal logits the lower key comes first.
 *
 * Logits are canonical, so these are the same in whatever order keys come. Loops are portable code:
 * products and sums are rounded one by one, and compilers make vectors of them.
 */
#pragma once

#include "problem.c"

#define EXP2_LEAST (-126.0f) /* exp2 of less is +0. */

/* insight_rows counts the rows of a tail, and state_rows those of a state. */
static int64_t insight_rows(const attn_params *p)
{
    return (p->insight.entropy != NULL) + 2 * (int64_t)p->insight.top;
}

static int64_t state_rows(const attn_params *p)
{
    return plus(p->head_dim_v, 2 + insight_rows(p) + has_skip(p));
}

/* ---- the likeliest keys */

/* A ranking is that of one lane; its entries are `step` apart. */
typedef struct ranking {
    float *logit;
    int32_t *key;
    int step, n;
} ranking;

static ranking ranking_of(const tile *t, float *tail, int r)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows, n = p->insight.top;
    float *const logits = tail + (p->insight.entropy ? rows : 0);
    const ranking of = { logits + r, (int32_t *)(void *)(logits + n * rows) + r, rows, n };
    return of;
}

/* rank_key puts a key into a ranking; one that does not belong to it falls out at the end. */
static void rank_key(const ranking *of, float logit, int32_t key)
{
    int at = of->n * of->step;
    for (; at > 0; at -= of->step) {
        const float other = of->logit[at - of->step];
        const int32_t before = of->key[at - of->step];
        if (other > logit || (other == logit && before < key))
            break;
        if (at < of->n * of->step) {
            of->logit[at] = other;
            of->key[at] = before;
        }
    }
    if (at == of->n * of->step)
        return;
    of->logit[at] = logit;
    of->key[at] = key;
}

static int is_ranked(const ranking *of, int32_t key)
{
    int k = 0;
    while (k < of->n * of->step && (of->key[k] != key || is_neg_inf(of->logit[k])))
        k += of->step;
    return k < of->n * of->step;
}

/* rank_block takes in n logits of each lane, those of keys from j on. Few blocks hold one that a row
 * still ranks: their maxima tell. */
static void rank_block(tile *t, float *tail, const float *s, int n, attn_lanes lanes, int64_t j)
{
    const int rows = t->pl->rows;
    const ranking first = ranking_of(t, tail, 0);
    const float *const least = first.logit + (first.n - 1) * rows;
    float *const high = t->lane_values + 2 * rows;
    int r, k;
    memcpy(high, least, (size_t)rows * sizeof *high);
    t->pl->kernels->maximum(s, n, high);
    for (r = lanes.begin; r < lanes.end; r++) {
        const ranking of = { first.logit + r, first.key + r, rows, first.n };
        for (k = 0; high[r] > least[r] && k < n; k++)
            if (s[k * rows + r] > least[r])
                rank_key(&of, s[k * rows + r], (int32_t)(j + k));
    }
}

/* merge_rankings makes `upper` those of both. */
static void merge_rankings(tile *t, float *lower, float *upper)
{
    int r, k;
    for (r = 0; r < t->pl->rows; r++) {
        const ranking from = ranking_of(t, lower, r), to = ranking_of(t, upper, r);
        for (k = 0; k < from.n * from.step && !is_neg_inf(from.logit[k]); k += from.step)
            if (!is_ranked(&to, from.key[k]))
                rank_key(&to, from.logit[k], from.key[k]);
    }
}

/* ---- entropy */

/* shift_entropy makes t relative to new maxima: t += l * (from - to) for l and t of maxima `from`. It is
 * not for lanes whose maximum stays or whose state is empty. */
static void shift_entropy(float *t, const float *l, const float *from, const float *to, int n)
{
    int r;
    for (r = 0; r < n; r++) {
        const float d = from[r] - to[r], moved = l[r] * d;
        if (d != 0.0f && l[r] != 0.0f)
            t[r] = t[r] + moved;
    }
}

/* keep_sums keeps m and l from what changes them. */
static void keep_sums(tile *t, const float *m, const float *l)
{
    const size_t bytes = (size_t)t->pl->rows * sizeof *m;
    memcpy(t->lane_values, m, bytes);
    memcpy(t->lane_values + t->pl->rows, l, bytes);
}

/* raise_entropy follows maxima that rose to m within a chunk, by alpha, from those that keep_sums has. */
static void raise_entropy(tile *t, float *tail, const float *m, const float *alpha)
{
    const int rows = t->pl->rows;
    int r;
    if (!t->pr->p.insight.entropy)
        return;
    shift_entropy(tail, t->lane_values + rows, t->lane_values, m, rows);
    for (r = 0; r < rows; r++)
        tail[r] = tail[r] * alpha[r];
}

/* weigh_strip adds n keys of `width` lanes, 1, 4 or 8, to t. A key with p = +0, dead or not, adds a zero. */
KERNEL void weigh_strip(int width, float *RESTRICT t, const float *RESTRICT s,
                        const float *RESTRICT p, const float *m, int n, int rows)
{
    float from[8], sum[8];
    int j, r;
    for (r = 0; r < width; r++) {
        from[r] = m[r] == NEG_INF ? 0.0f : m[r];
        sum[r] = t[r];
    }
    for (j = 0; j < n; j++, s += rows, p += rows)
        for (r = 0; r < width; r++) {
            float x = s[r] - from[r];
            x = x > EXP2_LEAST ? x : EXP2_LEAST;
            x = p[r] * x;
            sum[r] = sum[r] + x;
        }
    for (r = 0; r < width; r++)
        t[r] = sum[r];
}

/* The least lanes of a strip, as exp_block weighs whole groups of them. */
#define LEAST_STRIP (HAS_VECTORS ? 4 : 1)

/* weigh_lanes adds a block whose logits are in s and which is weighed. */
KERNEL void weigh_lanes(float *t, const float *s, const attn_exp *e, int rows)
{
    int r = e->lanes.begin / LEAST_STRIP * LEAST_STRIP;
    for (; HAS_VECTORS && r + 4 < e->lanes.end; r += 8)
        weigh_strip(8, t + r, s + r, e->s + r, e->m + r, e->n, rows);
    for (; r < e->lanes.end; r += LEAST_STRIP)
        weigh_strip(LEAST_STRIP, t + r, s + r, e->s + r, e->m + r, e->n, rows);
}

static void weigh_plain(float *t, const float *s, const attn_exp *e, int rows)
{
    weigh_lanes(t, s, e, rows);
}

#ifdef FMA_SECOND_BUILD
FMA_TARGET static void weigh_wide(float *t, const float *s, const attn_exp *e, int rows)
{
    weigh_lanes(t, s, e, rows);
}
#define WEIGH_WIDE (attn_cpu_features() & ATTN_CPU_AVX2 ? weigh_wide : weigh_plain)
#else
#define WEIGH_WIDE weigh_plain
#endif

/* add_entropy adds a block whose logits keep_logits has, and which is weighed. */
static void add_entropy(tile *t, float *tail, const attn_exp *e)
{
    if (t->pr->p.insight.entropy)
        WEIGH_WIDE(tail, t->x_tile, e, t->pl->rows);
}

/* ---- both */

/* begin_insight begins a tail. Where an earlier one is given (else NULL), its ranking goes on, and few
 * keys of later chunks get into it; a key that comes twice counts once. */
static void begin_insight(const tile *t, float *tail, const float *earlier)
{
    const int rows = t->pl->rows, entropy = t->pr->p.insight.entropy != NULL;
    const int count = t->pr->p.insight.top * rows;
    float *const logits = tail + entropy * rows;
    int r;
    for (r = 0; r < entropy * rows; r++)
        tail[r] = 0.0f;
    for (r = 0; r < count && !earlier; r++)
        logits[r] = NEG_INF;
    if (earlier)
        memcpy(logits, earlier + entropy * rows, (size_t)(2 * count) * sizeof *logits);
}

/* keep_logits takes in n logits of each lane, those of keys from j on, before they become
 * probabilities. */
static void keep_logits(tile *t, float *tail, const float *s, int n, attn_lanes lanes, int64_t j)
{
    if (t->pr->p.insight.top)
        rank_block(t, tail, s, n, lanes, j);
    if (t->pr->p.insight.entropy)
        memcpy(t->x_tile, s, (size_t)(n * t->pl->rows) * sizeof *s);
}

/* merge_insight prepares the merge of two states [m][l][o] with these tails, and returns how many rows
 * behind o join it. */
static int merge_insight(tile *t, const float *lower, const float *upper, float *lower_tail,
                         float *upper_tail)
{
    const int rows = t->pl->rows;
    float *const m = t->lane_values;
    int r;
    if (t->pr->p.insight.top)
        merge_rankings(t, lower_tail, upper_tail);
    if (!t->pr->p.insight.entropy)
        return 0;
    for (r = 0; r < rows; r++)
        m[r] = lower[r] < upper[r] ? upper[r] : lower[r];
    shift_entropy(lower_tail, lower + rows, lower, m, rows);
    shift_entropy(upper_tail, upper + rows, upper, m, rows);
    return 1;
}

/* row_entropy gives the entropy of a row in nats. m and l are those of the keys, which have t; the sink
 * has made them m_all and l_all. */
static float row_entropy(float m, float l, float t, float m_all, float l_all)
{
    const float d = m - m_all, inverse = inverse_sum(l_all == 0.0f, l_all);
    float h = log2_canon(l_all), x;
    if (l_all == 0.0f)
        return 0.0f;
    if (d != 0.0f) { /* There is a sink. */
        const float w = exp2_canon(d);
        x = l * d;
        t = t + x;
        t = t * w;
        l = l * w;
    }
    h = l * h;
    h = h - t;
    h = h * inverse;
    h = h * LN2;
    return h < 0.0f ? 0.0f : h + 0.0f;
}

/* write_ranking writes the likeliest keys of a row, row `row` of all. */
static void write_ranking(const tile *t, const ranking *of, int64_t row, float m, float l)
{
    const attn_insight *to = &t->pr->p.insight;
    const float from = is_neg_inf(m) ? 0.0f : m, inverse = inverse_sum(l == 0.0f, l);
    int k;
    for (k = 0; k < of->n; k++) {
        const float x = of->logit[k * of->step] - from, p = exp2_canon(x) * inverse;
        const int none = is_neg_inf(of->logit[k * of->step]);
        if (to->top_key)
            to->top_key[row * of->n + k] =
                none ? -1 : (int32_t)(t->s.column + of->key[k * of->step]);
        if (to->top_prob)
            store_f32(to->top_prob, row * of->n + k, none ? 0.0f : p);
    }
}

/* write_insight writes what finished rows have, by m and l after the sink; keep_sums has those before. */
static void write_insight(const tile *t, const float *m, const float *l, float *tail)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int r;
    for (r = 0; r < rows; r++) {
        const lane *at = &t->lanes[r];
        const int64_t row = at->used ? state_row(p, &t->s, at->head, at->i) : 0;
        const ranking of = ranking_of(t, tail, r);
        if (!at->used)
            continue;
        if (p->insight.entropy)
            store_f32(
                p->insight.entropy, row,
                row_entropy(t->lane_values[r], t->lane_values[rows + r], tail[r], m[r], l[r]));
        write_ranking(t, &of, row, m[r], l[r]);
    }
}
