/* sampled_gradients.c - sampled gradients against a computation in double.
 * SPDX-License-Identifier: MIT
 *
 * A row of dq takes everything from the oracle of tests/oracle.c, which also tells whether o and
 * stats of the forward call, from which the library starts, are right in that row: stats by the LSE
 * that they give. A key of dk and dv needs every row that sees it: these take the stored o and
 * stats, since to compute these anew would take the time of all keys for each sampled one. That is
 * also why tests/oracle_backward.c, which starts from q, k, v and do alone and has all gradients at
 * once, is not used here: at 4096 tokens it would take minutes.
 *
 * Dilated attention merged by LSE is one softmax in which a pair counts once for each branch that
 * shows it. The mean over branches is that of a softmax for each: its rows and keys are sums over
 * these parts, and of each part o and LSE come from the double computation, as nothing stores them.
 *
 * Tolerance. u = 2^-24; in units of u, with e_j of tests/oracle.h:
 *
 *     p      relative: 2 e_j (once for the logit, once as its like for m) + what the subtraction
 *            and the sum of the softmax round: 16 + 2 |logit - LSE| + sqrt(min(n, 1024))
 *     dp     2 sum |do v|
 *     delta  2 sum |do o| + sum |do| (8 + sqrt(min(n, 1024))) max(|o|, mean |v|), and as much as
 *            rounding o to its storage type, which naive does not know, can add
 *     ds     |p| (both errors + |dp| + |delta|) + (relative error of p + 4) |ds|
 *
 * and the sums round (6 + sqrt(min(n, 1024))) sum |terms|. As in oracle.h the tolerance is
 * ORACLE_FACTOR times all that, with likely sizes in place of strict ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampled.h"

/* Pairs with a row or key that is sampled: each takes a microsecond or two at D = 64. */
enum { MOST_SAMPLES = 12, LEAST_SAMPLES = 3, SAMPLED_PAIRS = 1 << 18 };

static const double unit = 1.0 / 16777216.0;

typedef struct check {
    const gradients_job *job;
    const attn_params *p;
    double scale, keep;        /* dropout's factor */
    double *sum[2], *error[2]; /* of up to two vectors: value, absolute error in units of u */
    double *o, *o_tolerance;
    sampled_errors errors;
} check;

/* A row: what it gives to each of its pairs. */
typedef struct row_terms {
    int64_t b, h, i;
    double lse, delta, delta_error; /* the error in units of u */
    double spread;                  /* what sums over its keys round */
    unsigned branches;              /* of the part of the row, where the case is dilated */
    double share;                   /* of the result, of this part */
} row_terms;

typedef struct pair_terms {
    double p, p_error;     /* with dropout's factor */
    double ds, ds_error;   /* by the logit that bias enters */
    double raw, raw_error; /* by scale * q.k */
} pair_terms;

static double spread_of(double n)
{
    return sqrt(n < 1024 ? n : 1024);
}

static int64_t kv_head(const check *c, int64_t h)
{
    return h / (c->p->num_heads_q / c->p->num_heads_kv);
}

static double load(const attn_tensor *t, ptrdiff_t start, int64_t d)
{
    return oracle_load(t->dtype, t->data, start + (ptrdiff_t)d);
}

static attn_tensor tensor_of(const attn_output *out)
{
    const attn_tensor t = { out->dtype, out->stride_batch, out->stride_head, out->stride_seq,
                            out->data };
    return t;
}

static ptrdiff_t row_at(const check *c, const attn_tensor *t, int64_t dim, const row_terms *r)
{
    return oracle_row_offset(c->p, t, dim, r->b, r->h, r->i);
}

/* ---- parts of a row: one, or of a mean one for each branch of its head */

static const bench_case *case_of(const check *c)
{
    return c->job->c;
}

static int is_mean(const check *c)
{
    return dilated_is_mean(case_of(c));
}

/* Whether there is part n of a row of this head; sets its branches and share. */
static int part_of(const check *c, int64_t h, int n, row_terms *r)
{
    unsigned left = is_mean(c) ? dilated_head_branches(case_of(c), h) : 1u;
    int all = 0;
    for (unsigned count = left; count; count &= count - 1)
        all++;
    for (int i = 0; i < n; i++)
        left &= left - 1;
    r->branches = is_mean(c) ? left & ~(left - 1) : ~0u;
    r->share = 1.0 / all;
    return left != 0;
}

/* How often a pair counts in this part. */
static int times_of(const check *c, const row_terms *r, int64_t j)
{
    int times = 0;
    if (!case_of(c)->dilated.branches)
        return 1;
    for (unsigned left = dilated_branches(case_of(c), r->h, r->i, j) & r->branches; left;
         left &= left - 1)
        times++;
    return times;
}

/* ---- one number against another */

static void compare(check *c, int dtype, double got, double want, double tolerance)
{
    const double flushed = ldexp(1, -116); /* what flushing of subnormals may take away */
    sampled_compare(&c->errors, dtype, got, want, ORACLE_FACTOR * tolerance + flushed);
}

/* ---- rows */

static double stored_lse(const check *c, int64_t b, int64_t h, int64_t i)
{
    const attn_params *const p = c->p;
    const int64_t row = p->cu_seqlens_q ? h * p->seq_len_q + p->cu_seqlens_q[b] + i
                                        : (b * p->num_heads_q + h) * p->seq_len_q + i;
    const float *const at = (const float *)p->stats.data + 2 * row; /* m, l */
    return ((double)at[0] + log2((double)at[1])) * log(2);
}

/* Mean of |v| over some of the keys: the size of what o is a weighted mean of. */
static double size_of_v(const check *c, int64_t b, int64_t h)
{
    enum { SOME = 64 };
    const attn_params *const p = c->p;
    const int64_t keys = oracle_keys(p, b), step = keys > SOME ? keys / SOME : 1;
    double sum = 0, n = 0;
    for (int64_t j = 0; j < keys; j += step) {
        const ptrdiff_t v = oracle_key_offset(p, &p->v, p->head_dim_v, b, kv_head(c, h), j);
        for (int64_t d = 0; d < p->head_dim_v; d++, n++)
            sum += fabs(load(&p->v, v, d));
    }
    return n > 0 ? sum / n : 0;
}

/* delta from the o at hand; v: size_of_v. */
static void set_delta(const check *c, const double *o, double v, row_terms *r)
{
    const attn_params *const p = c->p;
    const attn_tensor *const dout = &c->job->g.dout;
    const ptrdiff_t start = row_at(c, dout, p->head_dim_v, r);
    r->delta = r->delta_error = 0;
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        const double x = load(dout, start, d);
        const double o_error = (8 + r->spread) * fmax(fabs(o[d]), v);
        const double stored = p->o.dtype == ATTN_F32 ? 0 : oracle_storage_error(p->o.dtype, o[d]);
        r->delta += x * o[d];
        r->delta_error += fabs(x) * (2 * fabs(o[d]) + o_error + stored / unit);
    }
}

/* From what the forward call stored. */
static row_terms stored_row(const check *c, int64_t b, int64_t h, int64_t i, double v)
{
    row_terms r = { b, h, i, stored_lse(c, b, h, i), 0, 0, 0, ~0u, 1 };
    const attn_params *const p = c->p;
    const attn_output *const out = &p->o;
    const attn_tensor o = tensor_of(out);
    const ptrdiff_t start = row_at(c, &o, p->head_dim_v, &r);
    r.spread = spread_of((double)oracle_keys(p, b));
    for (int64_t d = 0; d < p->head_dim_v; d++)
        c->o[d] = load(&o, start, d);
    set_delta(c, c->o, v, &r);
    return r;
}

static void compare_stored(check *c, const row_terms *r, const oracle_result *want)
{
    const attn_params *const p = c->p;
    const attn_tensor o = tensor_of(&p->o);
    const ptrdiff_t start = row_at(c, &o, p->head_dim_v, r);
    if (want->alive > 0)
        compare(c, ATTN_F32, stored_lse(c, r->b, r->h, r->i), want->lse,
                want->lse_tolerance / ORACLE_FACTOR);
    for (int64_t d = 0; d < p->head_dim_v; d++)
        compare(c, p->o.dtype, load(&o, start, d), want->o[d],
                want->o_tolerance[d] / ORACLE_FACTOR);
}

/* From the oracle, which o and stats of the forward call are compared with. 0 = no memory. */
static int exact_row(check *c, row_terms *r)
{
    oracle_result want = { 0 };
    want.o = c->o;
    want.o_tolerance = c->o_tolerance;
    const int failed = case_of(c)->dilated.branches
                           ? dilated_softmax(case_of(c), c->p, r->b, r->h, r->i, r->branches, &want)
                           : oracle_row_full(c->p, r->b, r->h, r->i, &want);
    if (failed)
        return 0;
    r->lse = want.lse;
    r->spread = spread_of((double)want.alive);
    if (!is_mean(c))
        compare_stored(c, r, &want);
    set_delta(c, c->o, size_of_v(c, r->b, r->h), r);
    return 1;
}

/* ---- pairs */

/* dp = do.v before dropout; *error in units of u. */
static double product_of(const check *c, const row_terms *r, int64_t j, double *error)
{
    const attn_params *const p = c->p;
    const attn_tensor *const dout = &c->job->g.dout;
    const ptrdiff_t row = row_at(c, dout, p->head_dim_v, r);
    const ptrdiff_t v = oracle_key_offset(p, &p->v, p->head_dim_v, r->b, kv_head(c, r->h), j);
    double sum = 0;
    *error = 0;
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        const double x = load(dout, row, d) * load(&p->v, v, d);
        sum += x;
        *error += 2 * fabs(x);
    }
    return sum;
}

/* The factor that the score callback puts on ds. */
static double score_factor(const check *c, const row_terms *r, int64_t j)
{
    attn_params before = *c->p;
    const attn_pair at = oracle_pair(c->p, r->b, r->h, r->i, j);
    if (!before.score)
        return 1;
    before.score = NULL;
    const double logit = oracle_logit(&before, r->b, r->h, r->i, j, ATTN_LOGITS_BIAS, NULL);
    return (double)c->job->g.score_derivative(before.callback_user, &at, (float)logit);
}

/* ds by the logit before softcap. */
static void pass_softcap(const check *c, const row_terms *r, int64_t j, pair_terms *t)
{
    double error;
    t->raw = t->ds;
    t->raw_error = t->ds_error;
    if (c->p->softcap == 0)
        return;
    const double cap = (double)c->p->softcap;
    const double x = oracle_logit(c->p, r->b, r->h, r->i, j, ATTN_LOGITS_RAW, &error) / cap;
    const double tangent = tanh(x), factor = 1 - tangent * tangent;
    t->raw = t->ds * factor;
    t->raw_error =
        t->ds_error * factor + fabs(t->ds) * (2 * fabs(tangent) * (factor * error / cap + 8) + 2);
}

/* What dropout does to dp and p: both vanish, or grow by a factor. */
static double kept_factor(const check *c, const row_terms *r, int64_t j)
{
    if (c->p->dropout_p == 0)
        return 1;
    return oracle_kept(c->p, r->b, r->h, r->i, j) ? c->keep : 0;
}

/* 0 = the pair does not count. */
static int pair_of(const check *c, const row_terms *r, int64_t j, pair_terms *t)
{
    double logit_error, dp_error;
    const int times = times_of(c, r, j);
    if (!times)
        return 0;
    const double logit = oracle_logit(c->p, r->b, r->h, r->i, j, ATTN_LOGITS_BIAS, &logit_error);
    if (logit == -INFINITY)
        return 0;
    const double kept = kept_factor(c, r, j);
    const double weight = times * r->share * exp(logit - r->lse);
    const double relative = 2 * logit_error + 2 * fabs(logit - r->lse) + 16 + r->spread;
    const double dp = kept * product_of(c, r, j, &dp_error);
    const double slope = score_factor(c, r, j);
    t->p = weight * kept;
    t->p_error = t->p * relative;
    t->ds = weight * (dp - r->delta);
    t->ds_error = weight * (kept * dp_error + r->delta_error + 2 * fabs(dp) + 2 * fabs(r->delta)) +
                  fabs(t->ds) * (relative + 4);
    t->ds *= slope;
    t->ds_error *= fabs(slope);
    pass_softcap(c, r, j, t);
    return 1;
}

/* ---- sums */

static void clear(check *c, int which, int64_t dim)
{
    for (int64_t d = 0; d < dim; d++)
        c->sum[which][d] = c->error[which][d] = 0;
}

/* Adds x times a row of t; spread: of the sum's rounding. */
static void add(check *c, int which, double x, double x_error, double spread, const attn_tensor *t,
                ptrdiff_t start, int64_t dim)
{
    for (int64_t d = 0; d < dim; d++) {
        const double y = load(t, start, d);
        c->sum[which][d] += x * y;
        c->error[which][d] += (x_error + (6 + spread) * fabs(x)) * fabs(y);
    }
}

static void compare_row(check *c, int which, const attn_output *out, ptrdiff_t start, int64_t dim,
                        double factor)
{
    const attn_tensor t = tensor_of(out);
    for (int64_t d = 0; d < dim; d++)
        compare(c, out->dtype, load(&t, start, d), factor * c->sum[which][d],
                unit * fabs(factor) * (c->error[which][d] + 4 * fabs(c->sum[which][d])));
}

/* ---- what is sampled: one of dq, one of dk and dv, one of dbias, one of dsinks */

/* Number n of all things of all batch entries, `heads` times count(p, b) each. */
static row_terms place_of(const check *c, int64_t n, int64_t heads,
                          int64_t (*count)(const attn_params *p, int64_t b))
{
    row_terms at = { 0 };
    while (n >= heads * count(c->p, at.b))
        n -= heads * count(c->p, at.b++);
    at.h = n / count(c->p, at.b);
    at.i = n % count(c->p, at.b);
    return at;
}

/* What a part of a row adds to dq. */
static int add_keys(check *c, row_terms *r)
{
    const attn_params *const p = c->p;
    pair_terms t;
    if (!exact_row(c, r))
        return 0;
    for (int64_t j = 0; j < oracle_keys(p, r->b); j++) {
        const ptrdiff_t k = oracle_key_offset(p, &p->k, p->head_dim, r->b, kv_head(c, r->h), j);
        if (pair_of(c, r, j, &t))
            add(c, 0, t.raw, t.raw_error, r->spread, &p->k, k, p->head_dim);
    }
    return 1;
}

static int check_row(check *c, int64_t n)
{
    const attn_params *const p = c->p;
    row_terms r = place_of(c, n, p->num_heads_q, oracle_rows);
    const attn_tensor dq = tensor_of(&c->job->g.dq);
    clear(c, 0, p->head_dim);
    for (int part = 0; part_of(c, r.h, part, &r); part++)
        if (!add_keys(c, &r))
            return 0;
    compare_row(c, 0, &c->job->g.dq, row_at(c, &dq, p->head_dim, &r), p->head_dim, c->scale);
    return 1;
}

/* What the row adds to dk and dv of key j. */
static void add_pair(check *c, const row_terms *r, int64_t j, double spread)
{
    const attn_params *const p = c->p;
    const attn_tensor *const dout = &c->job->g.dout;
    pair_terms t;
    if (!pair_of(c, r, j, &t))
        return;
    add(c, 0, t.raw, t.raw_error, spread, &p->q, row_at(c, &p->q, p->head_dim, r), p->head_dim);
    add(c, 1, t.p, t.p_error, spread, dout, row_at(c, dout, p->head_dim_v, r), p->head_dim_v);
}

/* The parts of a row of a mean that see key j; 0 = no memory. */
static int add_parts(check *c, row_terms *r, int64_t j, double spread)
{
    for (int part = 0; part_of(c, r->h, part, r); part++) {
        if (!times_of(c, r, j) || !oracle_visible(c->p, r->b, r->h, r->i, j))
            continue;
        if (!exact_row(c, r))
            return 0;
        add_pair(c, r, j, spread);
    }
    return 1;
}

/* The rows of one head that see key j; 0 = no memory. */
static int add_rows(check *c, int64_t b, int64_t h, int64_t j)
{
    const int64_t rows = oracle_rows(c->p, b);
    const double v = size_of_v(c, b, h), spread = spread_of((double)rows);
    for (int64_t i = 0; i < rows; i++) {
        row_terms r = { b, h, i, 0, 0, 0, 0, ~0u, 1 };
        if (!times_of(c, &r, j))
            continue;
        if (is_mean(c)) {
            if (!add_parts(c, &r, j, spread))
                return 0;
            continue;
        }
        r = stored_row(c, b, h, i, v);
        add_pair(c, &r, j, spread);
    }
    return 1;
}

static int check_key(check *c, int64_t n)
{
    const attn_params *const p = c->p;
    const gradients_job *const job = c->job;
    const row_terms at = place_of(c, n, p->num_heads_kv, oracle_keys); /* of a kv head and key */
    const int64_t group = p->num_heads_q / p->num_heads_kv;
    const attn_tensor dk = tensor_of(&job->g.dk), dv = tensor_of(&job->g.dv);
    clear(c, 0, p->head_dim);
    clear(c, 1, p->head_dim_v);
    for (int64_t h = at.h * group; h < (at.h + 1) * group; h++)
        if (!add_rows(c, at.b, h, at.i))
            return 0;
    compare_row(c, 0, &job->g.dk, oracle_key_offset(p, &dk, p->head_dim, at.b, at.h, at.i),
                p->head_dim, c->scale);
    compare_row(c, 1, &job->g.dv, oracle_key_offset(p, &dv, p->head_dim_v, at.b, at.h, at.i),
                p->head_dim_v, 1);
    return 1;
}

/* The bench's biases have rows and keys and nothing else. */
static int check_bias(check *c, int64_t n)
{
    const attn_params *const p = c->p;
    const int64_t i = n / p->seq_len_kv, j = n % p->seq_len_kv;
    double sum = 0, error = 0;
    pair_terms t;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++) {
            const row_terms r = stored_row(c, b, h, i, size_of_v(c, b, h));
            if (!pair_of(c, &r, j, &t))
                continue;
            sum += t.ds;
            error += t.ds_error + (double)(p->batch * p->num_heads_q) * fabs(t.ds);
        }
    compare(c, ATTN_F32, (double)c->job->g.dbias.data[n], sum, unit * error);
    return 1;
}

static int check_sink(check *c, int64_t h)
{
    const attn_params *const p = c->p;
    double sum = 0, error = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const double v = size_of_v(c, b, h), spread = spread_of((double)oracle_rows(p, b));
        for (int64_t i = 0; i < oracle_rows(p, b); i++) {
            const row_terms r = stored_row(c, b, h, i, v);
            const double x = (double)p->sinks[h] - r.lse, weight = exp(x);
            sum -= weight * r.delta;
            error +=
                weight * (r.delta_error +
                          (30 + 4 * fabs(x) + 4 * fabs(r.lse) + r.spread + spread) * fabs(r.delta));
        }
    }
    compare(c, ATTN_F32, (double)c->job->g.dsinks[h], sum, unit * error);
    return 1;
}

/* ---- all of it */

/* First and last of `count` and some evenly between; each takes `pairs` pairs. */
static int check_some(check *c, int64_t count, int64_t pairs, int (*one)(check *c, int64_t n))
{
    int64_t samples = SAMPLED_PAIRS / (pairs > 0 ? pairs : 1);
    if (samples > MOST_SAMPLES)
        samples = MOST_SAMPLES;
    if (samples < LEAST_SAMPLES)
        samples = LEAST_SAMPLES;
    for (int64_t s = 0; count > 0 && s < samples; s++)
        if (!one(c, sampled_index(count, samples, s)))
            return 0;
    return 1;
}

static int check_all(check *c)
{
    const attn_params *const p = c->p;
    const int64_t group = p->num_heads_q / p->num_heads_kv;
    int64_t rows = 0, keys = 0, longest = 0, most = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        rows += p->num_heads_q * oracle_rows(p, b);
        keys += p->num_heads_kv * oracle_keys(p, b);
        if (oracle_rows(p, b) > most)
            most = oracle_rows(p, b);
        if (oracle_keys(p, b) > longest)
            longest = oracle_keys(p, b);
    }
    return check_some(c, rows, 2 * longest, check_row) &&
           check_some(c, keys, group * most, check_key) &&
           (!c->job->g.dbias.data ||
            check_some(c, p->seq_len_q * p->seq_len_kv, p->batch * p->num_heads_q, check_bias)) &&
           (!c->job->g.dsinks || check_some(c, p->num_heads_q, p->batch * most, check_sink));
}

int sampled_gradients(const gradients_job *job, const attn_params *p, sampled_errors *errors)
{
    const size_t dim = (size_t)(p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v);
    double *const memory = malloc(6 * dim * sizeof *memory);
    check c = { 0 };
    if (!memory)
        return 0;
    c.job = job;
    c.p = p;
    c.scale = oracle_scale(p);
    c.keep = 1 / (1 - (double)p->dropout_p);
    c.sum[0] = memory;
    c.sum[1] = memory + dim;
    c.error[0] = memory + 2 * dim;
    c.error[1] = memory + 3 * dim;
    c.o = memory + 4 * dim;
    c.o_tolerance = memory + 5 * dim;
    const int done = check_all(&c);
    free(memory);
    *errors = c.errors;
    return done;
}
