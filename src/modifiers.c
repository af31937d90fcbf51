/* src/modifiers.c - what changes a logit: softcap, bias, ALiBi, masks, the score callback, in this order.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "visibility.c"
#include "rounded.c"

static void apply_softcap(tile *t, float *s, int64_t j0, int n)
{
    (void)j0;
    t->pl->kernels->softcap(s, n, t->pr->cap2, t->pr->icap2);
}

/* bias_at tells where the bias has key j of a lane. */
static int64_t bias_at(const tile *t, const lane *l, int64_t j)
{
    const attn_bias *bias = &t->pr->p.bias;
    return t->s.b * bias->stride_batch + l->head * bias->stride_head + l->i * bias->stride_q +
           (t->s.column + j) * bias->stride_kv;
}

/* bias_rows points t->row_in to n biases of each lane from key j on: f32 as they lie side by side, and
 * others widened into t->x_tile. */
static void bias_rows(tile *t, int64_t j, int n)
{
    const attn_bias *bias = &t->pr->p.bias;
    float (*load)(const void *, int64_t) = storages[bias->dtype].load;
    int r, i;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        float *space = t->x_tile + r * n;
        int64_t at;
        t->row_in[r] = space;
        if (!l->used) {
            memset(space, 0, (size_t)n * sizeof *space);
            continue;
        }
        at = bias_at(t, l, j);
        if (bias->stride_kv == 1)
            t->row_in[r] = run_as_f32(t->pl->kernels, bias->dtype, bias->data, at, n, space);
        else
            for (i = 0; i < n; i++)
                space[i] = load(bias->data, at + i * bias->stride_kv);
    }
}

static void apply_bias(tile *t, float *s, int64_t j0, int n)
{
    bias_rows(t, j0, n);
    t->pl->kernels->add_rows(s, t->row_in, LOG2E_HI, n);
}

/* is_near tells whether 32 bits hold the distances of a row from a tile of keys. */
static int is_near(int64_t pos, int64_t j0)
{
    return pos - j0 > INT32_MIN / 2 && pos - j0 < INT32_MAX / 2;
}

/* add_far_distances does what add_distances does, for a lane that is too far from its keys for that. */
static void add_far_distances(float *s, int rows, int64_t from, float factor, int n)
{
    int j;
    for (j = 0; j < n; j++, s += rows, from--) {
        const float distance = (float)(from < 0 ? -from : from);
        *s = fma32(FMA_BASE, distance, factor, *s);
    }
}

/* A lane that the kernel must leave alone has a factor of -0, which changes no sum. */
static void apply_alibi(tile *t, float *s, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    const float *slopes = p->alibi_slopes + t->s.b * p->alibi_stride;
    const int rows = t->pl->rows;
    int *const from = t->lane_ints, r;
    for (r = 0; r < rows; r++) {
        const lane *l = &t->lanes[r];
        const float slope2 = l->used ? slopes[l->head] * LOG2E_HI : 0.0f;
        const int reached = l->used && is_near(l->pos, j0);
        if (l->used && !reached)
            add_far_distances(s + r, rows, l->pos - j0, -slope2, n);
        t->lane_values[r] = reached ? -slope2 : -0.0f;
        from[r] = reached ? (int)(l->pos - j0) : 0;
    }
    t->pl->kernels->add_distances(s, from, t->lane_values, n);
}

static void apply_score(tile *t, float *s, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int j, r;
    for (r = 0; r < rows; r++)
        for (j = 0; j < n && t->lanes[r].used; j++) {
            float *logit = &s[j * rows + r];
            const attn_pair pair = pair_of(&t->s, &t->lanes[r], j0 + j);
            if (!is_neg_inf(*logit)) {
                float natural = *logit * LN2;
                natural = p->score(p->callback_user, &pair, natural);
                *logit = natural * LOG2E_HI;
            }
        }
}

static int softcap_active(const attn_params *p)
{
    return p->softcap > 0;
}

static int bias_active(const attn_params *p)
{
    return p->bias.data != NULL;
}

static int alibi_active(const attn_params *p)
{
    return p->alibi_slopes != NULL;
}

typedef struct modifier {
    int last_stage; /* Logits asked for at an earlier stage do not have this modifier. */
    int (*active)(const attn_params *p);
    void (*apply)(tile *t, float *s, int64_t j0, int n);
} modifier;

static const modifier modifiers[] = {
    { ATTN_LOGITS_SOFTCAP, softcap_active, apply_softcap },
    { ATTN_LOGITS_BIAS, bias_active, apply_bias },
    { ATTN_LOGITS_BIAS, alibi_active, apply_alibi },
};

static int has_modifier(const attn_params *p)
{
    int m, any = 0;
    for (m = 0; m < COUNT_OF(modifiers); m++)
        any |= modifiers[m].active(p);
    return any;
}

/* Dead keys become -inf; unused lanes see none. */
static void hide_dead(tile *t, float *s, int64_t j0, int n, int class)
{
    const int rows = t->pl->rows;
    int *begin = t->lane_ints, *end = begin + rows, r, all = 1;
    if (class == ATTN_TILE_PARTIAL && t->by_pair) {
        t->pl->kernels->hide(s, n, t->alive, (int)(j0 - t->alive_from));
        return;
    }
    if ((class == ATTN_TILE_FULL || all_see(t, j0, n)) && t->used == rows)
        return;
    for (r = 0; r < rows; r++) {
        lane_range(t, r, j0, n, &begin[r], &end[r]);
        all &= begin[r] == 0 && end[r] == n;
    }
    if (!all)
        t->pl->kernels->clip(s, n, begin, end);
}

/* The modifiers up to `stage` change scores of keys j0..j0+n-1. */
static void change_logits(tile *t, float *s, int64_t j0, int n, int stage)
{
    int m;
    for (m = 0; m < COUNT_OF(modifiers) && t->pl->modified; m++)
        if (stage >= modifiers[m].last_stage && modifiers[m].active(&t->pr->p))
            modifiers[m].apply(t, s, j0, n);
}

/* scale_logits multiplies logits of whole numbers by the scales of their keys. */
static void scale_logits(const tile *t, float *s, int64_t j0, int n)
{
    float *scale = t->x_tile;
    key_place at = tile_key_at(t, j0);
    int j;
    for (j = 0; j < n; j++) {
        if (j > 0)
            next_tile_key(t, &at);
        scale[j] = *scales_of(t, KEYS, &at);
    }
    t->pl->kernels->scale_keys(s, scale, n);
}

/* tile_logits gives the base-2 logits of keys j0 to j0+n-1 as they stand after `stage`. `class`
 * comes from tile_class and is needed from stage BIAS on. No lane outside `lanes` sees any of the
 * keys. The callback comes after the masks, because it need not see masked pairs. */
static void tile_logits(tile *t, float *s, int64_t j0, int n, int class, int stage,
                        attn_lanes lanes, attn_ahead *ahead)
{
    const attn_params *p = &t->pr->p;
    const attn_kernels *kernels = t->pl->kernels;
    attn_runs runs;
    attn_product product = { .to = s,
                             .by = in_units(t) ? t->qt_units : t->qt,
                             .runs = &runs,
                             .n = n,
                             .dim = p->head_dim,
                             .factor = t->pr->factor,
                             .ahead = ahead };
    if (stage < ATTN_LOGITS_BIAS || t->pl->modified) { /* They need numbers in every lane. */
        lanes.begin = 0;
        lanes.end = t->pl->rows;
    }
    product.lanes = lanes;
    product.scales = t->scales;
    if (few_runs(t, KEYS, j0, n, lanes, &runs)) {
        (in_units(t) ? kernels->qk_units_runs : kernels->qk_runs)(&product);
    } else if (in_units(t)) {
        runs = unit_rows(t, j0, n, t->operand_runs);
        kernels->qk_units(&product);
        if (has_scales(p->k.dtype) && !scales_queries(p))
            scale_logits(t, s, j0, n);
    } else if (kernels->pack_values) {
        product.space = space_of(t);
        runs = rounded_keys(t, j0, n, t->operand_runs);
        kernels->qk(&product);
    } else {
        product.kv = key_rows(t, KEYS, j0, n, lanes, &product.stride);
        kernels->qk(&product);
    }
    change_logits(t, s, j0, n, stage);
    if (stage < ATTN_LOGITS_BIAS)
        return;
    if (class != ATTN_TILE_FULL) /* Unused lanes, which hold +0 where K is finite, are harmless. */
        hide_dead(t, s, j0, n, class);
    if (p->score)
        apply_score(t, s, j0, n);
}

/* open_logits does that for a tile of keys of its own, in all lanes. */
static void open_logits(tile *t, float *s, int64_t j0, int n, int class, int stage)
{
    const attn_lanes all = { 0, t->pl->rows };
    open_keys(t, j0, n);
    tile_logits(t, s, j0, n, class, stage, all, NULL);
}

ATTN_API attn_status attn_alibi_slopes(float *slopes, int64_t num_heads)
{
    int64_t power = 1, h;
    if (!slopes || num_heads < 1 || num_heads > 1 << 20)
        return ATTN_ERR_ARG;
    while (power * 2 <= num_heads)
        power *= 2;
    for (h = 0; h < num_heads; h++) {
        const int64_t step = h < power ? h + 1 : 2 * (h - power) + 1;
        float x = (float)(-8 * step); /* It is exact, and so is the division by a power of two. */
        x = x / (float)(h < power ? power : 2 * power);
        slopes[h] = exp2_canon(x);
    }
    return ATTN_OK;
}
