/* case_storage.c - the call of a case again, with K and V in another storage type.
 * SPDX-License-Identifier: MIT
 *
 * Each number must lie within half a step of what is stored of it. The call must have the bits of the
 * call on f32 with the values that are stored, from arrays, from a cache and from a cache in pages, which
 * keep no i8: that has a scale for each token and head. And
 * its O must lie within the bound of docs/numerics.md ("What quantised K and V cost") of the output of
 * the case. Heads get zeros up to a whole unit, which change no score.
 */
#include "cases.h"
#include "oracle.h"

#include <math.h>
#include <string.h>

enum { UNIT = 32 };

/* K or V, [batch, head, key, dim]. */
typedef struct side {
    int64_t dim, count;
    float *plain, *values; /* as the case has it, and as it is stored */
    unsigned char *data;   /* in T.storage */
    float *scales;         /* of i8, one for each row */
    double *step;          /* how far values may be from plain */
} side;

typedef struct stored_call {
    case_call a;   /* with wide heads, in f32 */
    attn_params p; /* on arrays; K and V are missing */
    int64_t width; /* of a row of V in the case */
    side k, v;
} stored_call;

typedef struct outputs {
    float *o, *lse, *stats;
    size_t rows, width;
} outputs;

static int leave_out(test_case *c, const char *reason)
{
    snprintf(c->left_out, sizeof c->left_out, "%s: %s", dtype_name(T.storage), reason);
    return 1;
}

/* ---- the case with wide heads ---------------------------------------------------------------- */

static int64_t whole_units(int64_t dim)
{
    const int64_t unit = dtype_unit(T.storage);
    return (dim + unit - 1) / unit * unit;
}

static case_view widen(const case_view *v)
{
    case_view wide = *v;
    float *to;
    wide.type = F32;
    wide.dim = whole_units(v->dim);
    wide.stride_seq = (ptrdiff_t)wide.dim;
    wide.stride_head = (ptrdiff_t)(wide.dim * v->seq);
    wide.stride_batch = (ptrdiff_t)(wide.dim * v->seq * v->heads);
    wide.data = to = test_alloc((size_t)(v->batch * wide.stride_batch) * sizeof *to);
    for (int64_t b = 0; b < v->batch; b++)
        for (int64_t h = 0; h < v->heads; h++)
            for (int64_t s = 0; s < v->seq; s++)
                for (int64_t d = 0; d < wide.dim; d++)
                    *to++ = d >= v->dim ? 0
                                        : case_view_at(v, b * v->stride_batch + h * v->stride_head +
                                                              s * v->stride_seq + d);
    return wide;
}

/* The queries of the call may be others than those of the case: turned. */
static attn_tensor widen_queries(const attn_params *p)
{
    const int64_t dim = whole_units(p->head_dim), rows = p->seq_len_q;
    attn_tensor q = { 0 };
    float *to = test_alloc((size_t)(p->batch * p->num_heads_q * rows * dim) * sizeof *to);
    q.data = to;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < rows; i++) {
                const ptrdiff_t at = oracle_row_offset(p, &p->q, p->head_dim, b, h, i);
                for (int64_t d = 0; d < dim; d++)
                    *to++ = d >= p->head_dim
                                ? 0
                                : (float)oracle_load(p->q.dtype, p->q.data, at + (ptrdiff_t)d);
            }
    return q;
}

static void widen_call(const case_call *a, stored_call *s)
{
    case_call *wide = &s->a;
    *wide = *a;
    s->width = a->v.dim;
    wide->k = widen(&a->k);
    wide->v = widen(&a->v);
    wide->past_k = widen(&a->past_k);
    wide->past_v = widen(&a->past_v);
    wide->present_rows = 0;
    wide->p.layout = ATTN_LAYOUT_BHSD;
    wide->p.q = widen_queries(&a->p);
    wide->p.scale = (float)oracle_scale(&a->p);
    wide->p.head_dim = wide->k.dim;
    wide->p.head_dim_v = wide->v.dim;
}

/* Fills a cache and reads it back: its keys in order, turned where they turn. */
static int gather(test_case *c, stored_call *s)
{
    const case_call *a = &s->a;
    side *const sides[] = { &s->k, &s->v };
    case_results r = { .present_k = NULL };
    attn_cache cache;
    s->k.dim = a->k.dim;
    s->v.dim = a->v.dim;
    for (int n = 0; n < 2; n++) {
        side *x = sides[n];
        x->count = a->k.batch * a->k.heads * a->keys * x->dim;
        x->plain = test_alloc((size_t)x->count * sizeof *x->plain);
        for (int64_t i = 0; i < x->count; i++)
            x->plain[i] = 0;
    }
    s->p = a->p;
    r.present_k = s->k.plain;
    r.present_v = s->v.plain;
    if (!case_fill_cache(c, a, 0, &cache, &s->p) || !case_read_cache(c, a, &cache, &r))
        return 0;
    memset(&s->p.kv_rows, 0, sizeof s->p.kv_rows);
    memset(&s->p.k, 0, sizeof s->p.k);
    memset(&s->p.v, 0, sizeof s->p.v);
    s->p.key_base = NULL;
    return 1;
}

/* ---- what is stored of it -------------------------------------------------------------------- */

/* The number of the largest magnitude, the first of equal ones. */
static double largest_of(const float *unit)
{
    double most = 0;
    for (int i = 0; i < UNIT; i++)
        most = fabs((double)unit[i]) > fabs(most) ? (double)unit[i] : most;
    return most;
}

/* Half a step around x, one of 32 numbers with `most` as the largest. It lies `levels` steps from 0, where
 * the scale, an f16, may be off by 2^-11 of itself, or 2^-25. Types whose levels are not the same on both
 * sides have one less on the other side of 0. */
static double half_step(double x, double most, int levels, int one_less)
{
    const double step = fabs(most) / levels, size = fabs(x);
    const double beyond = one_less && x * most < 0 ? size - (levels - 1) * step : 0;
    const double off = fmax(step / 2, beyond);
    return off + (size + off) * (0x1p-11 + 0x1p-20) + levels * 0x1p-25;
}

/* The same of i8, where a row has one scale, an f32; if its inverse is infinite, numbers are 0. */
static double half_step_of_row(const float *row, int64_t dim, double x)
{
    double most = 0;
    for (int64_t d = 0; d < dim; d++)
        most = fmax(most, fabs((double)row[d]));
    if (most / 127 < 0x1p-126)
        return fabs(x);
    return (most / 127 + fabs(x) * 0x1p-20) / 2;
}

static double step_at(const side *s, int64_t i)
{
    const float *const x = s->plain;
    static const struct {
        int dtype, levels, one_less;
    } units[] = { { ATTN_Q8_0, 127, 0 }, { ATTN_Q5_0, 16, 1 }, { ATTN_Q4_0, 8, 1 } };
    for (size_t n = 0; n < sizeof units / sizeof *units; n++)
        if (units[n].dtype == T.storage)
            return half_step((double)x[i], largest_of(x + i / UNIT * UNIT), units[n].levels,
                             units[n].one_less);
    if (T.storage == ATTN_I8)
        return half_step_of_row(x + i / s->dim * s->dim, s->dim, (double)x[i]);
    return oracle_storage_error(T.storage, (double)x[i]);
}

/* Bytes of the type, and f32 that the library makes of them. */
static int convert_side(side *x)
{
    const size_t n = (size_t)x->count;
    if (T.storage != ATTN_I8)
        return attn_convert(x->data, T.storage, x->plain, ATTN_F32, n) == ATTN_OK &&
               attn_convert(x->values, ATTN_F32, x->data, T.storage, n) == ATTN_OK;
    x->scales = test_alloc(n / (size_t)x->dim * sizeof *x->scales);
    if (attn_quantise_i8((int8_t *)x->data, x->scales, x->plain, x->count / x->dim, x->dim) !=
        ATTN_OK)
        return 0;
    for (int64_t i = 0; i < x->count; i++)
        x->values[i] = (float)((const signed char *)x->data)[i] * x->scales[i / x->dim];
    return 1;
}

/* 0: a number that the type cannot hold. */
static int store_side(test_case *c, side *x, const char *name)
{
    const size_t n = (size_t)x->count;
    x->data = test_alloc(dtype_bytes(T.storage, x->count));
    x->values = test_alloc(n * sizeof *x->values);
    x->step = test_alloc(n * sizeof *x->step);
    if (!convert_side(x))
        return case_fail(c, "%s is not converted", name);
    for (int64_t i = 0; i < x->count; i++) {
        const double value = x->scales != NULL ? (double)x->values[i]
                                               : oracle_load(T.storage, x->data, (ptrdiff_t)i);
        x->step[i] = step_at(x, i);
        if (!isfinite(value))
            return 0;
        if (value != (double)x->values[i])
            return case_fail(c, "%s of %s is read as %.9g, not %.9g", name, dtype_name(T.storage),
                             (double)x->values[i], value);
        if (!(fabs(value - (double)x->plain[i]) <= x->step[i]))
            return case_fail(c, "%s: %.9g is stored as %.9g, more than %.3g from it", name,
                             (double)x->plain[i], value, x->step[i]);
    }
    return 1;
}

/* ---- the same bits --------------------------------------------------------------------------- */

static int run_call(test_case *c, attn_params *p, outputs *to, const char *what)
{
    to->rows = (size_t)(p->batch * p->num_heads_q * p->seq_len_q);
    to->width = (size_t)p->head_dim_v;
    to->o = test_alloc(to->rows * to->width * sizeof *to->o);
    to->lse = test_alloc(to->rows * sizeof *to->lse);
    to->stats = test_alloc(to->rows * 2 * sizeof *to->stats);
    memset(&p->o, 0, sizeof p->o);
    memset(&p->lse, 0, sizeof p->lse);
    memset(&p->stats, 0, sizeof p->stats);
    p->o.data = to->o;
    p->lse.data = to->lse;
    p->stats.data = to->stats;
    return case_status(c, test_run(p), what);
}

static int same_bits(const outputs *a, const outputs *b)
{
    return memcmp(a->o, b->o, a->rows * a->width * sizeof *a->o) == 0 &&
           memcmp(a->lse, b->lse, a->rows * sizeof *a->lse) == 0 &&
           memcmp(a->stats, b->stats, a->rows * 2 * sizeof *a->stats) == 0;
}

static attn_params on_arrays(const stored_call *s, int dtype, const void *k, const void *v)
{
    attn_params p = s->p;
    p.k.dtype = p.v.dtype = dtype;
    p.k.data = k;
    p.v.data = v;
    if (dtype == ATTN_I8) {
        p.k_scales.data = s->k.scales;
        p.v_scales.data = s->v.scales;
        p.k_scales.stride_dim = p.v_scales.stride_dim = ATTN_STRIDE_BROADCAST;
    }
    return p;
}

static int check_bits(test_case *c, stored_call *s, outputs *want)
{
    static const struct {
        const char *what;
        int64_t page_size;
    } caches[] = { { "a cache", 0 }, { "a cache in pages", CASE_PAGE } };
    attn_params values = on_arrays(s, ATTN_F32, s->k.values, s->v.values);
    attn_params stored = on_arrays(s, T.storage, s->k.data, s->v.data);
    attn_cache cache;
    outputs got;
    if (!run_call(c, &values, want, "f32") || !run_call(c, &stored, &got, "stored"))
        return 0;
    if (!same_bits(want, &got))
        return case_fail(c, "%s has other bits than its values in f32", dtype_name(T.storage));
    s->a.storage = T.storage;
    for (size_t n = 0; n < sizeof caches / sizeof *caches && T.storage != ATTN_I8; n++) {
        attn_params p = s->a.p;
        if (!case_fill_cache(c, &s->a, caches[n].page_size, &cache, &p) ||
            !run_call(c, &p, &got, caches[n].what))
            return 0;
        if (!same_bits(want, &got))
            return case_fail(c, "%s in %s has other bits than in arrays", dtype_name(T.storage),
                             caches[n].what);
    }
    return 1;
}

/* ---- the bound ------------------------------------------------------------------------------- */

/* A row of O: probabilities of its keys, and by how much their logits may move. The last key is the
 * sink, whose logit and value do not move. */
typedef struct row_weights {
    double *weight, *moved;
    double least; /* sum of p after every logit has moved down */
    int64_t keys;
} row_weights;

static ptrdiff_t key_at(const stored_call *s, const side *x, int64_t b, int64_t h, int64_t j)
{
    const int64_t group = s->p.num_heads_q / s->p.num_heads_kv;
    return (ptrdiff_t)(((b * s->p.num_heads_kv + h / group) * s->a.keys + j) * x->dim);
}

static double moved_logit(const stored_call *s, const attn_params *p, int64_t b, int64_t h,
                          int64_t i, int64_t j)
{
    const ptrdiff_t q = oracle_row_offset(p, &p->q, p->head_dim, b, h, i);
    const double *step = s->k.step + key_at(s, &s->k, b, h, j);
    double sum = 0;
    for (int64_t d = 0; d < p->head_dim; d++)
        sum += fabs(oracle_load(p->q.dtype, p->q.data, q + (ptrdiff_t)d)) * step[d];
    return sum * fabs(oracle_scale(p));
}

static void weigh(const stored_call *s, const attn_params *p, int64_t b, int64_t h, int64_t i,
                  row_weights *w)
{
    double most, sum = 0;
    w->keys = oracle_keys(p, b);
    w->weight = test_alloc((size_t)(w->keys + 1) * sizeof *w->weight);
    w->moved = test_alloc((size_t)(w->keys + 1) * sizeof *w->moved);
    most = w->weight[w->keys] = oracle_sink(p, h);
    w->moved[w->keys] = 0;
    for (int64_t j = 0; j < w->keys; j++) {
        w->weight[j] = oracle_logit(p, b, h, i, j, ATTN_LOGITS_BIAS, NULL);
        w->moved[j] = moved_logit(s, p, b, h, i, j);
        most = fmax(most, w->weight[j]);
    }
    for (int64_t j = 0; j <= w->keys; j++) {
        w->weight[j] = most == -INFINITY ? 0 : exp(w->weight[j] - most);
        sum += w->weight[j];
    }
    w->least = 0;
    for (int64_t j = 0; j <= w->keys; j++) {
        w->weight[j] /= sum > 0 ? sum : 1;
        w->least += w->weight[j] * exp(-w->moved[j]);
    }
}

/* How far O[d] may be from that of the case. O is a mean of values, so it is no further away than the value
 * that is farthest. */
static double bound_of(const stored_call *s, const row_weights *w, int64_t b, int64_t h, int64_t d)
{
    double o = 0, sum = 0, farthest = 0;
    for (int64_t j = 0; j < w->keys; j++)
        o += w->weight[j] * (double)s->v.plain[key_at(s, &s->v, b, h, j) + (ptrdiff_t)d];
    for (int64_t j = 0; j <= w->keys; j++) {
        const ptrdiff_t at = key_at(s, &s->v, b, h, j) + (ptrdiff_t)d;
        const double step = j < w->keys ? s->v.step[at] : 0;
        const double away = fabs((j < w->keys ? (double)s->v.plain[at] : 0) - o);
        if (w->weight[j] == 0)
            continue;
        sum += w->weight[j] * (expm1(w->moved[j]) * away + exp(w->moved[j]) * step);
        farthest = fmax(farthest, away + step);
    }
    return w->least > 0 ? fmin(sum / w->least, farthest) : farthest;
}

/* The output that the case has for element (b, h, i, d), and what it may be off. NaN = none. */
static double wanted_at(const test_case *c, const stored_call *s, int64_t b, int64_t h, int64_t i,
                        int64_t d, double *tolerance)
{
    const case_tensor *y = s->a.y;
    const int64_t heads = s->p.num_heads_q, rows = s->p.seq_len_q;
    const int64_t row = y->rank == 3 ? (b * rows + i) * heads + h : (b * heads + h) * rows + i;
    double w = case_element(y->type, y->data, row * s->width + d);
    if (isnan(w) && y->zero_rows != NULL)
        w = case_element(y->zero_rows->type, y->zero_rows->data, row * s->width + d);
    *tolerance = case_tolerance(c, y, w);
    return w;
}

static int check_row(test_case *c, const stored_call *s, const attn_params *p, const float *o,
                     int64_t b, int64_t h, int64_t i)
{
    const int mark = test_mark();
    row_weights w;
    weigh(s, p, b, h, i, &w);
    for (int64_t d = 0; d < s->width; d++) {
        double tolerance;
        const double want = wanted_at(c, s, b, h, i, d, &tolerance);
        const double got = s->a.factor * (double)o[d];
        const double allowed = tolerance + fabs(s->a.factor) * bound_of(s, &w, b, h, d);
        const double units = fabs(got - want) / allowed;
        if (isnan(want))
            continue;
        c->worst_stored = fmax(c->worst_stored, units);
        if (!(units <= 1))
            return case_fail(
                c, "%s: row %lld of head %lld: %.9g, stored is %.9g, beyond the bound %.3g",
                dtype_name(T.storage), (long long)i, (long long)h, got, want, allowed);
    }
    test_release_to(mark);
    return 1;
}

static int check_bound(test_case *c, const stored_call *s, const outputs *got)
{
    const attn_params p = on_arrays(s, ATTN_F32, s->k.plain, s->v.plain);
    for (int64_t b = 0; b < p.batch && s->a.y != NULL; b++)
        for (int64_t h = 0; h < p.num_heads_q; h++)
            for (int64_t i = 0; i < oracle_rows(&p, b); i++) {
                const size_t row = (size_t)((b * p.num_heads_q + h) * p.seq_len_q + i);
                if (!check_row(c, s, &p, got->o + row * got->width, b, h, i))
                    return 0;
            }
    return 1;
}

int case_check_stored(test_case *c, const case_call *a)
{
    stored_call s;
    outputs got;
    char text[80];
    if (T.backend != NULL)
        return leave_out(c, "devices take f32, f16 and bf16");
    memset(&s, 0, sizeof s);
    widen_call(a, &s);
    if (!gather(c, &s))
        return 0;
    if (!store_side(c, &s.k, "K") || !store_side(c, &s.v, "V"))
        return c->why[0] == '\0' && leave_out(c, "K or V has a number that it cannot hold");
    if (!check_bits(c, &s, &got) || !check_bound(c, &s, &got))
        return 0;
    c->stored++;
    snprintf(text, sizeof text, "%s: the bits of its values, %.3f of its bound",
             dtype_name(T.storage), c->worst_stored);
    case_note(c, text);
    return 1;
}
