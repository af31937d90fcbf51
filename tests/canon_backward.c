/* canon_backward.c - section "Gradients" of docs/canon.md, a row at a time, keys ascending.
 * SPDX-License-Identifier: MIT
 *
 * Part of canon.c, which see: the same integers instead of floating-point numbers, nothing shared
 * with the library. There are no tiles here and nothing is stored for later but the sums.
 */
#include <stdlib.h>
#include <string.h>
#include "canon.h"

/* Sums over chunks: `part` is the one of the chunk that is not complete. */
typedef struct sums {
    int count;
    f32 *total, *part;
} sums;

typedef struct gradients {
    const bits_case *c;
    row r;
    f32 delta;            /* of the row */
    f32 m, inverse, most; /* of the row: p = 2^(s - m) * inverse with s - m at most `most` */
    f32 dq[MAX_DIM], part[MAX_DIM];
    sums dk, dv;            /* of one kv head */
    sums bias, sink, slope; /* of all */
    gradient_hashes out;
} gradients;

static gradients the_gradients;

/* What one pair gives. */
typedef struct pair {
    f32 p;      /* probability, dropout's factor included; +0 if dropped */
    f32 ds;     /* gradient by the logit */
    f32 dscore; /* gradient by the score: ds beyond softcap */
} pair;

/* ---- sums ---------------------------------------------------------------------------------- */

static sums new_sums(int count)
{
    sums s;
    s.count = count;
    s.total = calloc((size_t)count + 1, sizeof *s.total);
    s.part = calloc((size_t)count + 1, sizeof *s.part);
    if (s.total == NULL || s.part == NULL)
        exit(2);
    return s;
}

static void free_sums(sums *s)
{
    free(s->total);
    free(s->part);
}

static void clear_sums(sums *s)
{
    memset(s->total, 0, (size_t)s->count * sizeof *s->total);
    memset(s->part, 0, (size_t)s->count * sizeof *s->part);
}

static void end_chunk(f32 *total, f32 *part, int count)
{
    int n;
    for (n = 0; n < count; n++) {
        total[n] = add(total[n], part[n]);
        part[n] = 0;
    }
}

static void accumulate(f32 *part, f32 factor, const f32 *x, int count)
{
    int d;
    for (d = 0; d < count; d++)
        part[d] = fma32(factor, x[d], part[d]);
}

/* ---- rows and pairs ------------------------------------------------------------------------- */

typedef uint32_t element(const bits_case *, uint32_t);

static void load_row(const bits_case *c, element *tensor, uint32_t number, int width, f32 *out)
{
    int d;
    for (d = 0; d < width; d++)
        out[d] = load(tensor(c, number * (uint32_t)width + (uint32_t)d), c->dtype);
}

static f32 dot(const f32 *a, const f32 *b, int width)
{
    f32 x = 0;
    int d;
    for (d = 0; d < width; d++)
        x = fma32(a[d], b[d], x);
    return x;
}

static f32 row_delta(const row *r, const f32 *dout)
{
    const bits_case *c = r->c;
    f32 o[MAX_DIM], delta;
    int d;
    for (d = 0; d < bits_dv(c); d++)
        o[d] = load(r->o[d], c->dtype);
    delta = dot(dout, o, bits_dv(c));
    return c->dlse ? sub(delta, bits_dlse(c, row_number(r))) : delta;
}

/* What turns logits of the row into probabilities. */
static void load_statistics(gradients *g)
{
    const row *r = &g->r;
    g->m = r->root.m;
    g->inverse = g->m == MINUS_INF && r->root.l == 0 ? 0 : divide(ONE, r->root.l);
    g->most = 0x42fe0000; /* 127 */
    if (g->c->lse_alone) {
        g->m = r->lse == MINUS_INF ? MINUS_INF : mul(r->lse, LOG2E);
        g->inverse = ONE;
        g->most = 0;
    }
    if (g->m == MINUS_INF)
        g->m = 0;
}

static f32 probability(const gradients *g, f32 s)
{
    f32 x = sub(s, g->m);
    return mul(exp2_32(less(g->most, x) ? g->most : x), g->inverse);
}

static f32 beyond_softcap(const bits_case *c, f32 ds, f32 raw)
{
    f32 cap2, t;
    if (!c->softcap)
        return ds;
    cap2 = mul(from_integer(c->softcap), LOG2E);
    t = tanh_32(mul(raw, divide(ONE, cap2)));
    return mul(ds, fma32(negate(t), t, ONE));
}

static pair one_pair(const gradients *g, int j, const f32 *dout, const f32 *v)
{
    const row *r = &g->r;
    pair x;
    f32 dp = dot(dout, v, bits_dv(g->c));
    x.p = probability(g, r->s[j]);
    if (g->c->dropout)
        dp = r->keep[j] ? mul(dp, keep_factor(g->c)) : 0;
    x.ds = mul(x.p, sub(dp, g->delta));
    x.dscore = beyond_softcap(g->c, x.ds, r->raw[j]);
    if (g->c->dropout)
        x.p = r->keep[j] ? mul(x.p, keep_factor(g->c)) : 0;
    return x;
}

/* ---- dbias, dsinks, dslopes: plain sums ------------------------------------------------------ */

/* A sum over the keys of a row, ascending, chunk by chunk. */
typedef struct key_sum {
    f32 total, part;
} key_sum;

/* Enters the term x of row r in an element. */
static void enter(sums *s, uint32_t at, int over_rows, f32 x)
{
    f32 *to = over_rows ? s->part : s->total;
    to[at] = add(to[at], x);
}

static void enter_bias(gradients *g, int j, f32 ds, key_sum *all_keys)
{
    const bits_case *c = g->c;
    int column = bits_kv_begin(c, g->r.b) + j;
    if (bits_bias_has(c, BITS_KEYS))
        enter(&g->bias, bits_bias_at(c, g->r.b, g->r.h, g->r.i, column),
              !bits_bias_has(c, BITS_ROWS), ds);
    else
        all_keys->part = add(all_keys->part, ds);
}

/* The sums over the keys of the row enter those over rows. */
static void end_keys(gradients *g, key_sum *bias, key_sum *slope)
{
    const bits_case *c = g->c;
    const row *r = &g->r;
    end_chunk(&bias->total, &bias->part, 1);
    end_chunk(&slope->total, &slope->part, 1);
    if (c->bias && !bits_bias_has(c, BITS_KEYS))
        enter(&g->bias, bits_bias_at(c, r->b, r->h, r->i, 0), !bits_bias_has(c, BITS_ROWS),
              bias->total);
    if (c->alibi)
        enter(&g->slope, (uint32_t)(c->alibi == 2 ? r->b * c->hq + r->h : r->h), 1, slope->total);
}

static void enter_sink(gradients *g)
{
    const row *r = &g->r;
    f32 p = probability(g, mul(bits_sink(g->c, (uint32_t)r->h), LOG2E));
    enter(&g->sink, (uint32_t)r->h, 1, mul(negate(p), g->delta));
}

/* ---- one row --------------------------------------------------------------------------------- */

static void put_dq(gradients *g)
{
    const bits_case *c = g->c;
    f32 scale = inverse_root((uint64_t)c->d);
    int d;
    for (d = 0; d < c->d; d++)
        feed_stored(&g->out.dq, store(add_zero(mul(scale, g->dq[d])), c->dtype), c->dtype);
}

/* An alive key: its part in dq, dk and dv, and in the sums of the bias and the slopes. */
static void one_key(gradients *g, int j, const f32 *q, const f32 *dout, key_sum *bias,
                    key_sum *slope)
{
    const bits_case *c = g->c;
    const uint32_t number = kv_row_number(&g->r, j);
    f32 k[MAX_DIM], v[MAX_DIM];
    pair x;
    load_row(c, bits_k, number, c->d, k);
    load_row(c, bits_v, number, bits_dv(c), v);
    x = one_pair(g, j, dout, v);
    accumulate(g->part, x.dscore, k, c->d);
    accumulate(g->dk.part + j * c->d, x.dscore, q, c->d);
    if (g->r.keep[j])
        accumulate(g->dv.part + j * bits_dv(c), x.p, dout, bits_dv(c));
    if (c->bias)
        enter_bias(g, j, x.ds, bias);
    if (c->alibi)
        slope->part = add(slope->part, negate(mul(from_integer(distance(&g->r, j)), x.ds)));
}

static void one_row(gradients *g, int b, int h, int i)
{
    const bits_case *c = g->c;
    row *r = &g->r;
    key_sum bias = { 0, 0 }, slope = { 0, 0 };
    f32 q[MAX_DIM], dout[MAX_DIM];
    int j;
    forward_row(r, c, b, h, i);
    load_statistics(g);
    memset(g->dq, 0, sizeof g->dq);
    memset(g->part, 0, sizeof g->part);
    if (!r->empty || c->sink) {
        load_row(c, bits_q, row_number(r), c->d, q);
        load_row(c, bits_dout, row_number(r), bits_dv(c), dout);
        g->delta = row_delta(r, dout);
    }
    for (j = 0; j < r->keys; j++) {
        if ((r->base + j) % CHUNK == 0) {
            end_chunk(g->dq, g->part, c->d);
            end_chunk(&bias.total, &bias.part, 1);
            end_chunk(&slope.total, &slope.part, 1);
        }
        if (r->alive[j])
            one_key(g, j, q, dout, &bias, &slope);
    }
    end_chunk(g->dq, g->part, c->d);
    end_keys(g, &bias, &slope);
    if (c->sink)
        enter_sink(g);
    put_dq(g);
}

/* ---- one case -------------------------------------------------------------------------------- */

static void end_rows(gradients *g)
{
    sums *all[5];
    int n;
    all[0] = &g->dk, all[1] = &g->dv, all[2] = &g->bias, all[3] = &g->sink, all[4] = &g->slope;
    for (n = 0; n < 5; n++)
        end_chunk(all[n]->total, all[n]->part, all[n]->count);
}

static void put_keys(gradients *g, int b)
{
    const bits_case *c = g->c;
    f32 scale = inverse_root((uint64_t)c->d);
    int n, keys = bits_kv_len(c, b);
    for (n = 0; n < keys * c->d; n++)
        feed_stored(&g->out.dk, store(add_zero(mul(scale, g->dk.total[n])), c->dtype), c->dtype);
    for (n = 0; n < keys * bits_dv(c); n++)
        feed_stored(&g->out.dv, store(add_zero(g->dv.total[n]), c->dtype), c->dtype);
    clear_sums(&g->dk);
    clear_sums(&g->dv);
}

static void put_sums(gradients *g, const sums *s)
{
    int n;
    for (n = 0; n < s->count; n++)
        feed(&g->out.rest, add_zero(s->total[n]), 4);
}

static void one_head(gradients *g, int b, int h)
{
    int i;
    for (i = 0; i < bits_q_len(g->c, b); i++) {
        if (i % CHUNK == 0)
            end_rows(g);
        one_row(g, b, h, i);
    }
    end_rows(g);
}

gradient_hashes gradients_of_case(const bits_case *c)
{
    gradients *g = &the_gradients;
    int b, h, group = c->hq / c->hkv;
    memset(&g->out, 0, sizeof g->out);
    g->out.dq = g->out.dk = g->out.dv = g->out.rest = EMPTY_HASH;
    g->c = c;
    g->dk = new_sums(c->skv * c->d);
    g->dv = new_sums(c->skv * bits_dv(c));
    g->bias = new_sums(c->bias ? bits_bias_count(c) : 0);
    g->sink = new_sums(c->sink ? c->hq : 0);
    g->slope = new_sums(c->alibi ? c->hq * (c->alibi == 2 ? bits_batch(c) : 1) : 0);
    for (b = 0; b < bits_batch(c); b++)
        for (h = 0; h < c->hq; h++) {
            one_head(g, b, h);
            if ((h + 1) % group == 0)
                put_keys(g, b);
        }
    put_sums(g, &g->bias);
    put_sums(g, &g->sink);
    put_sums(g, &g->slope);
    free_sums(&g->dk);
    free_sums(&g->dv);
    free_sums(&g->bias);
    free_sums(&g->sink);
    free_sums(&g->slope);
    return g->out;
}
