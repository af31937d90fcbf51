/* oracle_backward.c - textbook gradients in double. Everything by definition.
 * SPDX-License-Identifier: MIT
 */
#include "oracle_backward.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double unit = 1.0 / 16777216.0; /* u of binary32 */
static const double flushed = 0x1p-182; /* variance, in u^2, of what a subnormal may take away */

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Length of an axis of dbias: 1 where the bias is broadcast. */
static int64_t bias_axis(ptrdiff_t stride, int64_t length)
{
    return stride == ATTN_STRIDE_BROADCAST ? 1 : length;
}

static int64_t count_of(const oracle_gradient *of)
{
    return of->size[0] * of->size[1] * of->size[2] * of->size[3];
}

static int64_t index_in(const oracle_gradient *of, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return ((a * of->size[1] + b) * of->size[2] + c) * of->size[3] + d;
}

static void set_size(oracle_gradient *of, int64_t a, int64_t b, int64_t c, int64_t d)
{
    of->size[0] = a, of->size[1] = b, of->size[2] = c, of->size[3] = d;
}

static void bias_size(const attn_params *p, oracle_gradient *of)
{
    const attn_bias *bias = &p->bias;
    set_size(of, bias_axis(bias->stride_batch, p->batch),
             bias_axis(bias->stride_head, p->num_heads_q),
             bias_axis(bias->stride_q, oracle_longest(p, p->cu_seqlens_q, p->seq_len_q)),
             bias_axis(bias->stride_kv, oracle_longest(p, p->cu_seqlens_kv, p->seq_len_kv)));
}

void oracle_gradient_sizes(const attn_params *p, oracle_gradient out[ORACLE_GRADIENTS])
{
    memset(out, 0, ORACLE_GRADIENTS * sizeof *out);
    set_size(&out[ORACLE_DQ], p->batch, p->num_heads_q, p->seq_len_q, p->head_dim);
    set_size(&out[ORACLE_DK], p->batch, oracle_heads_kv(p), p->seq_len_kv, p->head_dim);
    set_size(&out[ORACLE_DV], p->batch, oracle_heads_kv(p), p->seq_len_kv, oracle_dim_v(p));
    if (p->bias.data != NULL)
        bias_size(p, &out[ORACLE_DBIAS]);
    if (p->sinks != NULL)
        set_size(&out[ORACLE_DSINKS], 1, p->num_heads_q, 1, 1);
    if (p->alibi_slopes != NULL)
        set_size(&out[ORACLE_DSLOPES], bias_axis(p->alibi_stride, p->batch), p->num_heads_q, 1, 1);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A sum with the variance of its error, in u^2. */
typedef struct quantity {
    double value, variance;
} quantity;

/* The sum is rounded, as every partial sum is. */
static void add(quantity *to, double term, double variance)
{
    to->value += term;
    to->variance += variance + to->value * to->value;
}

/* The same for an element of a gradient, whose variance is kept where its tolerance will be. */
static void add_to(oracle_gradient *to, int64_t index, double term, double variance)
{
    const double sum = to->value[index] + term;
    to->value[index] = sum;
    to->tolerance[index] += variance + sum * sum + flushed;
}

static double square(double x)
{
    return x * x;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* A pair of the row. Errors are deviations in units of u. */
typedef struct pair_of {
    int alive;
    double logit, logit_error;
    double p, p_error; /* the latter relative, without that of the LSE */
    double keep;       /* factor of dropout */
    double dp, dp_error;
    double ds, ds_error; /* without the errors of delta and LSE */
    double weight;       /* of an error of delta in ds */
} pair_of;

typedef struct row_pass {
    const attn_params *p;
    const attn_gradients *g;
    oracle_gradient *out;
    attn_params unscored; /* *p without its callback */
    int64_t b, h, i, kv_head, keys;
    double *k, *v;    /* of the kv head, [keys][dim] */
    double *q, *dout; /* of the row */
    double *partial;  /* [dim or dim_v] sums */
    quantity *sum;    /* of magnitudes */
    pair_of *pairs;   /* [keys] */
    double maximum;   /* of logits and sink */
    double lse;
    double origin;       /* of the exponents of P: the LSE, or with stats the maximum */
    double shared_error; /* relative, of all P of the row: that of the LSE, or of l and 1 / l */
    double sum_variance; /* relative, of the sum of the exponentials */
    double delta, delta_error; /* the dlse taken off */
} row_pass;

static void read_run(double *to, int dtype, const void *data, ptrdiff_t at, int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        to[d] = oracle_load(dtype, data, at + (ptrdiff_t)d);
}

static void read_row(row_pass *r)
{
    const attn_params *p = r->p;
    const attn_tensor *q = &p->q, *dout = &r->g->dout;
    read_run(r->q, q->dtype, q->data, oracle_row_offset(p, q, p->head_dim, r->b, r->h, r->i),
             p->head_dim);
    read_run(r->dout, dout->dtype, dout->data,
             oracle_row_offset(p, dout, oracle_dim_v(p), r->b, r->h, r->i), oracle_dim_v(p));
}

static void read_keys(row_pass *r)
{
    const attn_params *p = r->p;
    const int64_t dv = oracle_dim_v(p);
    for (int64_t j = 0; j < r->keys; j++) {
        read_run(r->k + j * p->head_dim, p->k.dtype, p->k.data,
                 oracle_key_offset(p, &p->k, p->head_dim, r->b, r->kv_head, j), p->head_dim);
        read_run(r->v + j * dv, p->v.dtype, p->v.data,
                 oracle_key_offset(p, &p->v, dv, r->b, r->kv_head, j), dv);
    }
}

static double dlse_of(const row_pass *r)
{
    const attn_tensor *dlse = &r->g->dlse;
    const attn_params *p = r->p;
    ptrdiff_t at;
    if (dlse->data == NULL)
        return 0;
    at = oracle_row_offset(p, dlse, 1, r->b, r->h, r->i);
    if (p->cu_seqlens_q != NULL && dlse->stride_seq == 0 && dlse->stride_head == 0)
        at = (ptrdiff_t)(r->h * p->seq_len_q + p->cu_seqlens_q[r->b] + r->i);
    return oracle_load(ATTN_F32, dlse->data, at);
}

static void find_logits(row_pass *r)
{
    r->maximum = oracle_sink(r->p, r->h);
    for (int64_t j = 0; j < r->keys; j++) {
        pair_of *a = &r->pairs[j];
        memset(a, 0, sizeof *a);
        if (!oracle_visible(r->p, r->b, r->h, r->i, j))
            continue;
        a->logit = oracle_logit(r->p, r->b, r->h, r->i, j, ATTN_LOGITS_BIAS, &a->logit_error);
        a->logit_error /= 3;
        a->alive = a->logit != -INFINITY;
        if (a->alive)
            r->maximum = fmax(r->maximum, a->logit);
    }
}

static int from_stats(const row_pass *r)
{
    return r->p->stats.data != NULL;
}

/* The LSE with the sink, and the probabilities. */
static void find_probabilities(row_pass *r)
{
    const double sink = oracle_sink(r->p, r->h);
    quantity sum = { 0, 0 };
    double errors = 0;
    if (sink != -INFINITY)
        add(&sum, exp(sink - r->maximum), 0);
    errors += square(sum.value * (fabs(sum.value > 0 ? sink : 0) + 1));
    for (int64_t j = 0; j < r->keys; j++) {
        pair_of *a = &r->pairs[j];
        if (!a->alive)
            continue;
        a->p = exp(a->logit - r->maximum);
        add(&sum, a->p, 0);
        a->p_error = a->logit_error + fabs(a->logit - r->maximum) + 2;
        errors += square(a->p * a->p_error);
    }
    r->lse = r->maximum + log(sum.value);
    r->sum_variance = sum.variance / square(sum.value);
    r->origin = from_stats(r) ? r->maximum : r->lse;
    r->shared_error = sqrt(errors / square(sum.value) + r->sum_variance + 4 +
                           (from_stats(r) ? 0 : 3 * square(r->lse) + square(r->maximum)));
    for (int64_t j = 0; j < r->keys; j++)
        r->pairs[j].p /= sum.value;
}

static void find_values(row_pass *r)
{
    const attn_params *p = r->p;
    for (int64_t j = 0; j < r->keys; j++) {
        pair_of *a = &r->pairs[j];
        quantity dp = { 0, 0 };
        if (!a->alive)
            continue;
        a->keep = 1;
        if (p->dropout_p != 0)
            a->keep = oracle_kept(p, r->b, r->h, r->i, j) ? 1 / (1 - (double)p->dropout_p) : 0;
        for (int64_t d = 0; d < oracle_dim_v(p); d++)
            add(&dp, r->dout[d] * r->v[j * oracle_dim_v(p) + d], 0);
        a->dp = a->keep != 0 ? a->keep * dp.value : 0; /* a dropped NaN is no part of it */
        a->dp_error = a->keep != 0 ? a->keep * sqrt(dp.variance + square(dp.value)) : 0;
    }
}

/* The variance of do.o for what O itself is wrong by: its sums over keys, its store; and for the
 * roundings of the product. */
static double o_variance(const row_pass *r)
{
    const attn_params *p = r->p;
    quantity dot = { 0, 0 };
    double variance = 0;
    for (int64_t d = 0; d < oracle_dim_v(p); d++) {
        quantity o = { 0, 0 };
        for (int64_t j = 0; j < r->keys; j++) {
            const pair_of *a = &r->pairs[j];
            if (a->keep != 0)
                add(&o, a->p * a->keep * r->v[j * oracle_dim_v(p) + d], 0);
        }
        o.variance += 4 * square(o.value);
        o.variance += square(oracle_storage_error(p->o.dtype, o.value) / unit);
        variance += square(r->dout[d]) * o.variance;
        add(&dot, r->dout[d] * o.value, 0);
    }
    return variance + dot.variance;
}

/* The naive way adds P dP instead. */
static void find_delta(row_pass *r)
{
    quantity dot = { 0, 0 };
    double variance = 0;
    for (int64_t j = 0; j < r->keys; j++)
        if (r->pairs[j].alive)
            add(&dot, r->pairs[j].p * r->pairs[j].dp, square(r->pairs[j].p * r->pairs[j].dp_error));
    for (int64_t j = 0; j < r->keys; j++)
        if (r->pairs[j].alive)
            variance += square(r->pairs[j].p * (r->pairs[j].dp - dot.value) * r->pairs[j].p_error);
    variance += r->p->impl == ATTN_IMPL_NAIVE ? dot.variance : o_variance(r);
    r->delta = dot.value - dlse_of(r);
    r->delta_error = sqrt(variance + square(dot.value) * (1 + r->sum_variance) + square(r->delta));
}

static void find_ds(row_pass *r)
{
    for (int64_t j = 0; j < r->keys; j++) {
        pair_of *a = &r->pairs[j];
        const double difference = a->dp - r->delta;
        if (!a->alive)
            continue;
        a->p_error = a->logit_error + fabs(a->logit - r->origin) + 2 + from_stats(r);
        a->ds = a->p * difference;
        a->ds_error =
            sqrt(square(a->ds * a->p_error) + square(a->p * a->dp_error) + 2 * square(a->ds));
        a->weight = a->p;
    }
}

static void scale_ds(pair_of *a, double factor, double error)
{
    a->ds_error =
        sqrt(square(a->ds_error * factor) + square(a->ds * error) + square(a->ds * factor));
    a->ds *= factor;
    a->weight *= factor;
}

/* ---- from dS to what is asked for ------------------------------------------------------------ */

/* How much the derivative changes within the error of the logit that it is given. */
static void apply_derivative(row_pass *r, int64_t j)
{
    const attn_pair at = oracle_pair(r->p, r->b, r->h, r->i, j);
    double error, logit, factor, below, above;
    if (r->p->score == NULL)
        return;
    logit = oracle_logit(&r->unscored, r->b, r->h, r->i, j, ATTN_LOGITS_BIAS, &error);
    error *= unit / 3;
    factor = (double)r->g->score_derivative(r->p->callback_user, &at, (float)logit);
    below = (double)r->g->score_derivative(r->p->callback_user, &at, (float)(logit - error));
    above = (double)r->g->score_derivative(r->p->callback_user, &at, (float)(logit + error));
    scale_ds(&r->pairs[j], factor,
             fmax(fabs(below - factor), fabs(above - factor)) / unit + fabs(factor));
}

static void apply_softcap(row_pass *r, int64_t j)
{
    double error, x, t, factor;
    if (r->p->softcap == 0)
        return;
    x = oracle_logit(r->p, r->b, r->h, r->i, j, ATTN_LOGITS_RAW, &error) / (double)r->p->softcap;
    error = error / 3 / (double)r->p->softcap + fabs(x);
    t = tanh(x);
    factor = 1 - t * t;
    scale_ds(&r->pairs[j], factor, 2 * fabs(t) * (factor * error + 2 * fabs(t)));
}

/* Sums of dS over the keys of a row, times a factor of each; where in `to` the row's pairs go. The
 * naive way sums no row first, but adds every pair to the element. */
typedef struct key_sums {
    oracle_gradient *to;
    int64_t row;     /* index of its first element */
    int64_t columns; /* 1: the row is summed */
    quantity sum;
    double weight; /* of an error of delta in the sum */
} key_sums;

static void add_sum(const row_pass *r, key_sums *s, int64_t column)
{
    add_to(s->to, s->row + column, s->sum.value,
           s->sum.variance + square(s->weight * r->delta_error) +
               square(s->sum.value * r->shared_error));
    memset(&s->sum, 0, sizeof s->sum);
    s->weight = 0;
}

static void add_pair(const row_pass *r, key_sums *s, int64_t column, const pair_of *a,
                     double factor)
{
    const double before = r->p->impl == ATTN_IMPL_NAIVE ? s->to->value[s->row] : 0;
    add(&s->sum, a->ds * factor, square(a->ds_error * factor));
    s->sum.variance += square(before);
    s->weight += a->weight * factor;
    if (s->columns > 1)
        add_sum(r, s, column);
}

static void add_bias(row_pass *r)
{
    oracle_gradient *to = &r->out[ORACLE_DBIAS];
    key_sums s = { to, 0, to->size[3], { 0, 0 }, 0 };
    int some = 0;
    if (to->value == NULL)
        return;
    s.row = index_in(to, to->size[0] > 1 ? r->b : 0, to->size[1] > 1 ? r->h : 0,
                     to->size[2] > 1 ? r->i : 0, 0);
    for (int64_t j = 0; j < r->keys; j++)
        if (r->pairs[j].alive) {
            add_pair(r, &s, oracle_first_key(r->p, r->b) + j, &r->pairs[j], 1);
            some = 1;
        }
    if (some && s.columns == 1)
        add_sum(r, &s, 0);
}

static void add_slopes(row_pass *r)
{
    oracle_gradient *to = &r->out[ORACLE_DSLOPES];
    const int64_t pos = r->i + oracle_offset(r->p, r->b);
    key_sums s = { to, 0, 1, { 0, 0 }, 0 };
    int some = 0;
    if (to->value == NULL)
        return;
    s.row = index_in(to, to->size[0] > 1 ? r->b : 0, r->h, 0, 0);
    for (int64_t j = 0; j < r->keys; j++)
        if (r->pairs[j].alive) {
            add_pair(r, &s, 0, &r->pairs[j], -fabs((double)(pos - j)));
            some = 1;
        }
    if (some)
        add_sum(r, &s, 0);
}

static void add_sink(row_pass *r)
{
    oracle_gradient *to = &r->out[ORACLE_DSINKS];
    const double sink = oracle_sink(r->p, r->h), p = exp(sink - r->lse);
    if (to->value == NULL || sink == -INFINITY)
        return;
    add_to(to, r->h, -p * r->delta,
           square(p * r->delta_error) +
               square(p * r->delta) *
                   (square(fabs(sink) + fabs(sink - r->origin) + 2 + from_stats(r)) +
                    square(r->shared_error)));
}

static void add_dq(row_pass *r)
{
    oracle_gradient *to = &r->out[ORACLE_DQ];
    const int64_t dim = r->p->head_dim, row = index_in(to, r->b, r->h, r->i, 0);
    memset(r->sum, 0, (size_t)dim * sizeof *r->sum);
    memset(r->partial, 0, (size_t)dim * sizeof *r->partial);
    for (int64_t j = 0; j < r->keys; j++) {
        const pair_of *a = &r->pairs[j];
        if (!a->alive)
            continue;
        for (int64_t d = 0; d < dim; d++) {
            const double k = r->k[j * dim + d];
            add(&r->sum[d], a->ds * k, square(a->ds_error * k) + flushed);
            r->partial[d] += a->weight * k;
        }
    }
    for (int64_t d = 0; d < dim; d++)
        if (r->sum[d].variance > 0)
            add_to(to, row + d, r->sum[d].value,
                   r->sum[d].variance + square(r->partial[d] * r->delta_error) +
                       square(r->sum[d].value * r->shared_error));
}

static void add_dk_dv(row_pass *r)
{
    oracle_gradient *dk = &r->out[ORACLE_DK], *dv = &r->out[ORACLE_DV];
    for (int64_t j = 0; j < r->keys; j++) {
        const pair_of *a = &r->pairs[j];
        const double kept = a->p * a->keep;
        const double ds_variance = square(a->ds_error) + square(a->weight * r->delta_error) +
                                   square(a->ds * r->shared_error);
        const double p_variance = square(kept) * (square(a->p_error) + square(r->shared_error) + 1);
        if (!a->alive)
            continue;
        for (int64_t d = 0; d < dk->size[3]; d++)
            add_to(dk, index_in(dk, r->b, r->kv_head, j, d), a->ds * r->q[d],
                   ds_variance * square(r->q[d]));
        if (a->keep == 0)
            continue;
        for (int64_t d = 0; d < dv->size[3]; d++)
            add_to(dv, index_in(dv, r->b, r->kv_head, j, d), kept * r->dout[d],
                   p_variance * square(r->dout[d]));
    }
}

static void row_gradients(row_pass *r)
{
    read_row(r);
    find_logits(r);
    if (r->maximum == -INFINITY)
        return;
    find_probabilities(r);
    find_values(r);
    find_delta(r);
    find_ds(r);
    for (int64_t j = 0; j < r->keys; j++)
        if (r->pairs[j].alive)
            apply_derivative(r, j);
    add_bias(r);
    add_slopes(r);
    add_sink(r);
    for (int64_t j = 0; j < r->keys; j++)
        if (r->pairs[j].alive)
            apply_softcap(r, j);
    add_dq(r);
    add_dk_dv(r);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void all_rows(row_pass *r)
{
    const attn_params *p = r->p;
    const int64_t group = p->num_heads_q / oracle_heads_kv(p);
    for (r->b = 0; r->b < p->batch; r->b++) {
        r->keys = oracle_keys(p, r->b);
        for (r->h = 0; r->h < p->num_heads_q; r->h++) {
            r->kv_head = r->h / group;
            if (r->h % group == 0)
                read_keys(r);
            for (r->i = 0; r->i < oracle_rows(p, r->b); r->i++)
                row_gradients(r);
        }
    }
}

/* Variances become tolerances; the factor of dq and dk comes last. */
static void finish(oracle_gradient *of, double factor)
{
    for (int64_t n = 0; n < count_of(of); n++) {
        const double variance = of->tolerance[n] + 2 * square(of->value[n]);
        of->value[n] *= factor;
        of->tolerance[n] = ORACLE_GRADIENT_FACTOR * unit * fabs(factor) *
                           sqrt(of->tolerance[n] > 0 ? variance : 0);
    }
}

static int make_results(oracle_gradient *of)
{
    const size_t bytes = (size_t)count_of(of) * sizeof *of->value;
    if (bytes == 0)
        return 1;
    of->value = calloc(1, bytes);
    of->tolerance = calloc(1, bytes);
    return of->value != NULL && of->tolerance != NULL;
}

static int make_scratch(row_pass *r, double **memory)
{
    const attn_params *p = r->p;
    const size_t dim = (size_t)(p->head_dim > oracle_dim_v(p) ? p->head_dim : oracle_dim_v(p));
    const size_t keys = (size_t)p->seq_len_kv;
    *memory = malloc((2 * keys * dim + 3 * dim) * sizeof **memory);
    r->sum = malloc(dim * sizeof *r->sum);
    r->pairs = malloc((keys + 1) * sizeof *r->pairs);
    if (*memory == NULL || r->sum == NULL || r->pairs == NULL)
        return 0;
    r->k = *memory;
    r->v = r->k + keys * dim;
    r->q = r->v + keys * dim;
    r->dout = r->q + dim;
    r->partial = r->dout + dim;
    return 1;
}

int oracle_backward(const attn_params *p, const attn_gradients *g,
                    oracle_gradient out[ORACLE_GRADIENTS])
{
    row_pass r;
    double *memory = NULL;
    int enough = 1;
    memset(&r, 0, sizeof r);
    r.p = p, r.g = g, r.out = out;
    r.unscored = *p;
    r.unscored.score = NULL;
    oracle_gradient_sizes(p, out);
    for (int n = 0; n < ORACLE_GRADIENTS; n++)
        enough &= make_results(&out[n]);
    enough = enough && make_scratch(&r, &memory);
    if (enough) {
        all_rows(&r);
        for (int n = 0; n < ORACLE_GRADIENTS; n++)
            finish(&out[n], n == ORACLE_DQ || n == ORACLE_DK ? oracle_scale(p) : 1);
    }
    free(memory);
    free(r.sum);
    free(r.pairs);
    if (!enough)
        oracle_backward_free(out);
    return enough ? 0 : 2;
}

void oracle_backward_free(oracle_gradient out[ORACLE_GRADIENTS])
{
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        free(out[n].value);
        free(out[n].tolerance);
        out[n].value = out[n].tolerance = NULL;
    }
}

/* ---- where the library keeps them ------------------------------------------------------------ */

const char *oracle_gradient_name(int which)
{
    static const char *const names[] = { "dq", "dk", "dv", "dbias", "dsinks", "dslopes" };
    return names[which];
}

static attn_tensor addressed_as(const attn_output *o)
{
    attn_tensor t;
    memset(&t, 0, sizeof t);
    t.stride_batch = o->stride_batch;
    t.stride_head = o->stride_head;
    t.stride_seq = o->stride_seq;
    return t;
}

/* Packed over the axes that are not summed; a stride that is given counts instead. */
static ptrdiff_t bias_offset(const attn_params *p, const attn_bias_gradient *to,
                             const int64_t at[4])
{
    const ptrdiff_t given[4] = { to->stride_batch, to->stride_head, to->stride_q, to->stride_kv };
    oracle_gradient of;
    ptrdiff_t packed = 1, offset = 0;
    bias_size(p, &of);
    for (int axis = 3; axis >= 0; axis--) {
        offset += (ptrdiff_t)at[axis] * (given[axis] != 0 ? given[axis] : packed);
        packed *= (ptrdiff_t)of.size[axis];
    }
    return offset;
}

static int row_place(const attn_params *p, const attn_output *dq, const int64_t at[4],
                     oracle_place *place)
{
    const attn_tensor t = addressed_as(dq);
    place->dtype = dq->dtype;
    place->data = dq->data;
    if (at[2] >= oracle_rows(p, at[0]))
        return 0;
    place->offset = oracle_row_offset(p, &t, p->head_dim, at[0], at[1], at[2]);
    place->offset += (ptrdiff_t)at[3];
    return 1;
}

static int key_place(const attn_params *p, const attn_output *to, int64_t dim, const int64_t at[4],
                     oracle_place *place)
{
    const attn_tensor t = addressed_as(to);
    attn_params in_order = *p; /* gradients of keys are not where a cache has them */
    memset(&in_order.kv_rows, 0, sizeof in_order.kv_rows);
    place->dtype = to->dtype;
    place->data = to->data;
    if (at[2] >= oracle_keys(p, at[0]))
        return 0;
    place->offset = oracle_key_offset(&in_order, &t, dim, at[0], at[1], at[2]) + (ptrdiff_t)at[3];
    return 1;
}

int oracle_gradient_place(const attn_params *p, const attn_gradients *g, int which,
                          const int64_t at[4], oracle_place *place)
{
    memset(place, 0, sizeof *place);
    switch (which) {
    case ORACLE_DQ:
        return row_place(p, &g->dq, at, place);
    case ORACLE_DK:
        return key_place(p, &g->dk, p->head_dim, at, place);
    case ORACLE_DV:
        return key_place(p, &g->dv, oracle_dim_v(p), at, place);
    case ORACLE_DBIAS:
        place->data = g->dbias.data;
        place->offset = bias_offset(p, &g->dbias, at);
        return 1;
    case ORACLE_DSINKS:
        place->data = g->dsinks;
        place->offset = (ptrdiff_t)at[1];
        return 1;
    default:
        place->data = g->dslopes;
        place->offset = (ptrdiff_t)(at[0] * p->num_heads_q + at[1]);
        return 1;
    }
}
