/* magnitudes_gradients.c - gradients at logits up to 1e6 and scales from 1e-30 to 1e30.
 * SPDX-License-Identifier: MIT
 *
 * The reference is the textbook in double over exact scores, as for O. What an element may be off by
 * follows the errors of p, dP and delta through the products, first order, with every error at its
 * largest.
 */
#include "magnitudes.h"

#include "gradients.h"

#include <math.h>
#include <string.h>

#define U 0x1p-24

int run_with_stats(test_problem *t)
{
    const int64_t rows = t->q.heads * t->q.seq;
    memset(&t->p.stats, 0, sizeof t->p.stats);
    t->p.stats.data = test_alloc((size_t)(2 * rows) * sizeof(float));
    return problem_run(t);
}

/* A sum of products, what it may be off by, and the sum of their sizes, at which it rounds. */
typedef struct sum_terms {
    double value, error, size;
} sum_terms;

static void add_term(sum_terms *s, double factor, double x, double x_error)
{
    s->value += factor * x;
    s->error += fabs(factor) * x_error;
    s->size += fabs(factor * x);
}

/* |value - textbook| in units of its error; each sum has at most `terms` roundings on a way. */
static double sum_units(const sum_terms *s, float value, double factor, int64_t terms)
{
    const double error = s->error + U * (double)(terms + 4) * s->size;
    return tolerance_units((double)value, s->value * factor, error * fabs(factor) + 1e-30);
}

typedef struct gradients_of {
    test_problem *t;
    attn_gradients g;
    float *dout, *dq, *dk, *dv, *dsinks, *dbias; /* packed */
    double worst;
} gradients_of;

static float *floats(int64_t n)
{
    return test_alloc((size_t)n * sizeof(float));
}

static void open_gradients(gradients_of *c, test_problem *t, int integers)
{
    const int64_t rows = t->q.heads * t->q.seq, dims = t->v.dim;
    memset(c, 0, sizeof *c);
    c->t = t;
    c->dout = floats(rows * dims);
    for (int64_t n = 0; n < rows * dims; n++)
        c->dout[n] = integers ? (float)rng_int(-5, 5) : rng_normal();
    c->g.dout.data = c->dout;
    c->g.dq.data = c->dq = floats(rows * t->q.dim);
    c->g.dk.data = c->dk = floats(t->k.seq * t->k.dim);
    c->g.dv.data = c->dv = floats(t->k.seq * dims);
    if (t->p.sinks)
        c->g.dsinks = c->dsinks = floats(t->q.heads);
    if (t->p.bias.data)
        c->g.dbias.data = c->dbias = floats(t->q.seq * t->k.seq);
    memset(c->dv, 0xff, (size_t)(t->k.seq * dims) * sizeof(float));
}

static int run_gradients(gradients_of *c)
{
    attn_params p = c->t->p;
    memset(&p.lse, 0, sizeof p.lse);
    return CHECK(backward_run(&p, &c->g) == ATTN_OK, "gradients from stats");
}

/* ---- against the textbook */

static sum_terms dk[MAX_SEQ][MAX_DIM], dv[MAX_SEQ][MAX_DIM], dsink[64];
static sum_terms dbias[32][MAX_SEQ];

/* dP and delta of a row, and p: what gradients of pairs are made of. */
typedef struct pair_parts {
    textbook b;
    double p_error[MAX_SEQ + 1];
    double delta, delta_error;
} pair_parts;

static void open_parts(const gradients_of *c, int64_t h, int64_t i, const float *dout,
                       pair_parts *r)
{
    double norm = 0, most = 0, sums;
    open_textbook(c->t, h, i, &r->b);
    sums = 40 + (double)(r->b.keys < 1024 ? r->b.keys : 1024);
    for (int64_t j = 0; j <= r->b.keys; j++)
        if (r->b.p[j] > 0) {
            norm += r->b.p[j] * expm1(r->b.error[j]);
            most = fmax(most, r->b.error[j]);
        }
    for (int64_t j = 0; j <= r->b.keys; j++)
        r->p_error[j] = r->b.p[j] * ((expm1(r->b.error[j]) + norm) * exp(most) + U * sums) + 1e-30;
    r->delta = r->delta_error = 0;
    for (int64_t d = 0; d < c->t->v.dim; d++) {
        double error;
        const double o = textbook_value(c->t, &r->b, d, &error);
        r->delta += (double)dout[d] * o;
        r->delta_error += fabs((double)dout[d]) * (error + U * (double)(c->t->v.dim + 1) * fabs(o));
    }
}

/* ds of a pair; j = keys is the sink, whose dP is 0. */
static double pair_gradient(const gradients_of *c, const pair_parts *r, const float *dout,
                            int64_t j, double *error)
{
    double dp = 0, dp_error = 0;
    for (int64_t d = 0; d < c->t->v.dim && j < r->b.keys; d++) {
        const double x = (double)dout[d] * (double)tensor_get(&c->t->v, 0, 0, j, d);
        dp += x;
        dp_error += U * (double)(c->t->v.dim + 1) * fabs(x);
    }
    dp_error += r->delta_error;
    *error = r->p_error[j] * (fabs(dp - r->delta) + dp_error) + r->b.p[j] * dp_error +
             2 * U * r->b.p[j] * fabs(dp - r->delta);
    return r->b.p[j] * (dp - r->delta);
}

static void add_row(gradients_of *c, int64_t h, int64_t i)
{
    static pair_parts r;
    const test_problem *t = c->t;
    const int64_t row = h * t->q.seq + i;
    const float *dout = c->dout + row * t->v.dim;
    sum_terms dq[MAX_DIM] = { { 0 } };
    float q[MAX_DIM];
    double error;
    load_query(t, h, i, q);
    open_parts(c, h, i, dout, &r);
    for (int64_t j = 0; j < r.b.keys; j++) {
        const double ds = pair_gradient(c, &r, dout, j, &error);
        for (int64_t d = 0; d < t->q.dim; d++) {
            add_term(&dq[d], (double)key_rows[j][d], ds, error);
            add_term(&dk[j][d], (double)q[d], ds, error);
        }
        for (int64_t d = 0; d < t->v.dim; d++)
            add_term(&dv[j][d], (double)dout[d], r.b.p[j], r.p_error[j]);
        if (c->dbias)
            add_term(&dbias[i][j], 1, ds, error);
    }
    if (c->dsinks) {
        const double ds = pair_gradient(c, &r, dout, r.b.keys, &error);
        add_term(&dsink[h], 1, ds, error);
    }
    for (int64_t d = 0; d < t->q.dim; d++)
        c->worst = fmax(c->worst,
                        sum_units(&dq[d], c->dq[row * t->q.dim + d], (double)t->p.scale, r.b.keys));
}

static void compare_keys(gradients_of *c)
{
    const test_problem *t = c->t;
    const int64_t rows = t->q.heads * t->q.seq;
    for (int64_t j = 0; j < t->k.seq; j++) {
        for (int64_t d = 0; d < t->k.dim; d++)
            c->worst = fmax(
                c->worst, sum_units(&dk[j][d], c->dk[j * t->k.dim + d], (double)t->p.scale, rows));
        for (int64_t d = 0; d < t->v.dim; d++)
            c->worst = fmax(c->worst, sum_units(&dv[j][d], c->dv[j * t->v.dim + d], 1, rows));
        for (int64_t i = 0; i < t->q.seq && c->dbias; i++)
            c->worst =
                fmax(c->worst, sum_units(&dbias[i][j], c->dbias[i * t->k.seq + j], 1, t->q.heads));
    }
    for (int64_t h = 0; h < t->q.heads && c->dsinks; h++)
        c->worst = fmax(c->worst, sum_units(&dsink[h], c->dsinks[h], 1, t->q.seq));
}

void compare_gradients(test_problem *t)
{
    gradients_of c;
    open_gradients(&c, t, 0);
    if (!run_gradients(&c))
        return;
    memset(dk, 0, sizeof dk);
    memset(dv, 0, sizeof dv);
    memset(dsink, 0, sizeof dsink);
    memset(dbias, 0, sizeof dbias);
    for (int64_t h = 0; h < t->q.heads; h++)
        for (int64_t i = 0; i < t->q.seq; i++)
            add_row(&c, h, i);
    compare_keys(&c);
    worst_note(c.worst);
    CHECK(c.worst <= 1, "%.3g times what gradients of exact scores may be off by", c.worst);
}

/* ---- bit for bit */

static int64_t not_zero(const float *x, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += x[i] != 0;
    return count;
}

void expect_one_hot_gradients(test_problem *t, int64_t hot)
{
    const int64_t rows = t->q.heads * t->q.seq, dims = t->v.dim;
    gradients_of c;
    int64_t wrong = 0;
    open_gradients(&c, t, 1);
    if (!run_gradients(&c))
        return;
    CHECK(not_zero(c.dq, rows * t->q.dim) == 0, "dq of one-hot rows is not 0");
    CHECK(not_zero(c.dk, t->k.seq * t->k.dim) == 0, "dk of one-hot rows is not 0");
    for (int64_t d = 0; d < dims; d++) {
        float total = 0;
        for (int64_t row = 0; row < rows; row++)
            total += c.dout[row * dims + d]; /* of small integers: exact */
        for (int64_t j = 0; j < t->k.seq; j++)
            wrong += c.dv[j * dims + d] != (j == hot ? total : 0);
    }
    CHECK(wrong == 0, "%lld values of dv of one-hot rows are not exact", (long long)wrong);
}

/* ---- sums of probabilities */

/* The sum over keys of dv, where every dout is 1: the sum of all p. */
static double sum_of_p(gradients_of *c)
{
    double total = 0;
    for (int64_t j = 0; j < c->t->k.seq; j++)
        total += (double)c->dv[j * c->t->v.dim];
    return total;
}

/* The logit of a row that is largest in size. */
static double most_logit(const test_problem *t)
{
    static textbook b;
    double most = 0;
    for (int64_t h = 0; h < t->q.heads; h++)
        for (int64_t i = 0; i < t->q.seq; i++) {
            open_textbook(t, h, i, &b);
            for (int64_t j = 0; j < b.keys; j++)
                most = fmax(most, fabs(b.logit[j]));
        }
    return most;
}

/* From the LSE alone, which is stored rounded, p is off by a factor of up to 3.5 u |LSE| (rounding
 * log2, LSE and its product with log2 e), and never more than 1. */
static void check_lse_alone(gradients_of *c, double rows, double bound)
{
    attn_params p = c->t->p;
    const double factor = 3.5 * U * (most_logit(c->t) + 10);
    double sum;
    memset(&p.stats, 0, sizeof p.stats);
    if (!CHECK(backward_run(&p, &c->g) == ATTN_OK, "gradients from the LSE"))
        return;
    sum = sum_of_p(c) / rows;
    CHECK(sum <= exp(factor) + bound && sum >= exp(-factor) - bound,
          "from the LSE alone p add up to %.9g, a factor of %.3g is allowed", sum, exp(factor));
}

void check_sums_of_p(void)
{
    static const float scales[] = { 1e-30f, 1e-3f, 0.3f, 1.0f, 8.0f, 512.0f, 1e10f, 1e30f };
    for (int n = 0; n < 64; n++) {
        static const int storages[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
        test_problem t;
        gradients_of c;
        double rows, bound, sum;
        test_shape s;
        if (!begin_case("probabilities of gradients, scale %g, %d", (double)scales[n % 8], n))
            continue;
        s = magnitudes_shape(storages[n % 3]);
        problem_make(&t, &s);
        fill_integers(&t.q, 30);
        fill_integers(&t.k, 30);
        t.p.scale = scales[n % 8];
        load_key_rows(&t);
        open_gradients(&c, &t, 0);
        rows = (double)(t.q.heads * t.q.seq);
        bound = U * (double)(64 + 2 * (t.k.seq < 1024 ? t.k.seq : 1024));
        for (int64_t i = 0; i < t.q.heads * t.q.seq * t.v.dim; i++)
            c.dout[i] = 1;
        if (!run_with_stats(&t) || !run_gradients(&c))
            continue;
        sum = sum_of_p(&c) / rows;
        worst_note(fabs(sum - 1) / bound);
        CHECK(fabs(sum - 1) <= bound, "p add up to %.9g", sum);
        check_lse_alone(&c, rows, bound);
    }
}
