/* sampled.c - results of a bench case against double precision: rows of o, and what a cache took.
 * SPDX-License-Identifier: MIT */
#include "sampled.h"

#include <math.h>
#include <stdlib.h>

#define ROPE_BASE 10000.0 /* of attn_rope, where none is said */
/* A turned element is two products and a sum in binary32, of a cos and a sin that are rounded, too:
 * three roundings of each product's size, 2^-24 each. */
#define ROPE_TOLERANCE (3.0 / 16777216)

/* Rows checked: the oracle takes about a microsecond for a key of a row of 64. */
enum { SAMPLED_ROWS = 12, LEAST_SAMPLED_ROWS = 3, SAMPLED_KEYS = 1 << 22 };

void sampled_compare(sampled_errors *errors, int dtype, double got, double want, double tolerance)
{
    const double allowed = tolerance + oracle_storage_error(dtype, want);
    const double error = fabs(got - want);
    if (!(error <= errors->max_err))
        errors->max_err = error == error ? error : INFINITY;
    if (!(error <= errors->err_tolerance * allowed))
        errors->err_tolerance = error == error ? error / allowed : INFINITY;
}

int64_t sampled_index(int64_t count, int64_t samples, int64_t i)
{
    return (count - 1) / (samples - 1) * i + (count - 1) % (samples - 1) * i / (samples - 1);
}

/* ---- rows of o */

/* Of all batch entries, over heads. */
int64_t sampled_rows_in_use(const attn_params *p)
{
    int64_t rows = 0;
    for (int64_t b = 0; b < p->batch; b++)
        rows += p->num_heads_q * oracle_rows(p, b);
    return rows;
}

/* Where the row of o begins. */
static ptrdiff_t row_start(const attn_params *p, int64_t b, int64_t h, int64_t i)
{
    const attn_tensor o = { p->o.dtype, p->o.stride_batch, p->o.stride_head, p->o.stride_seq,
                            NULL };
    return oracle_row_offset(p, &o, p->head_dim_v, b, h, i);
}

/* How far O may be off in row r of all, of which keys are left out: no number of data_fill exceeds 6. */
static double left_out(const attn_params *p, int64_t r)
{
    return p->skip.dropped ? 2 * 6 * (double)p->skip.dropped[r] : 0;
}

/* Row `row` of all rows in use, heads before rows in either layout, against the oracle. */
static int check_row(const bench_case *c, const attn_params *p, int64_t row, double *o,
                     double *tolerance, sampled_errors *errors)
{
    oracle_result want = { 0 };
    int64_t b = 0;
    while (row >= p->num_heads_q * oracle_rows(p, b))
        row -= p->num_heads_q * oracle_rows(p, b++);
    const int64_t h = row / oracle_rows(p, b), i = row % oracle_rows(p, b);
    const double may_differ = left_out(p, (b * p->num_heads_q + h) * p->seq_len_q + i);
    const ptrdiff_t start = row_start(p, b, h, i);
    want.o = o;
    want.o_tolerance = tolerance;
    if (c->dilated.branches ? dilated_row(c, p, b, h, i, &want)
                            : oracle_row_full(p, b, h, i, &want))
        return 0;
    for (int64_t d = 0; d < p->head_dim_v; d++) {
        const double got = oracle_load(p->o.dtype, p->o.data, start + (ptrdiff_t)d);
        sampled_compare(errors, p->o.dtype, got, o[d], tolerance[d] + may_differ);
    }
    return 1;
}

static int samples_of(const bench_case *c)
{
    const int64_t rows = SAMPLED_KEYS / c->seq_kv;
    if (rows < LEAST_SAMPLED_ROWS)
        return LEAST_SAMPLED_ROWS;
    return rows < SAMPLED_ROWS ? (int)rows : SAMPLED_ROWS;
}

/* First and last row and some evenly between, which step through heads and batch entries. */
int sampled_rows(const bench_case *c, const attn_params *p, sampled_errors *errors)
{
    const int samples = samples_of(c);
    const size_t bytes = sizeof(double) * (size_t)c->head_dim_v;
    double *const o = malloc(bytes), *const tolerance = malloc(bytes);
    const int64_t rows = sampled_rows_in_use(p);
    int ok = o && tolerance;
    for (int i = 0; ok && i < samples; i++)
        ok = check_row(c, p, sampled_index(rows, samples, i), o, tolerance, errors);
    free(o);
    free(tolerance);
    return ok;
}

/* ---- appending */

/* A row before it is stored. */
typedef struct wanted_row {
    double *x, *tolerance; /* tolerance: of what was computed before */
} wanted_row;

static void want_plain(const wanted_row *want, const float *from, int64_t n)
{
    for (int64_t d = 0; d < n; d++) {
        want->x[d] = (double)from[d];
        want->tolerance[d] = 0;
    }
}

/* Pairs (i, i + n/2) turned by position * base^(-2i/n). */
static void want_turned(const wanted_row *want, const float *from, int64_t n, double position)
{
    for (int64_t i = 0; i < n / 2; i++) {
        const double angle = position * pow(ROPE_BASE, -2 * (double)i / (double)n);
        const double x = (double)from[i], y = (double)from[i + n / 2];
        const double a = cos(angle), b = sin(angle);
        want->x[i] = a * x - b * y;
        want->x[i + n / 2] = b * x + a * y;
        want->tolerance[i] = want->tolerance[i + n / 2] = ROPE_TOLERANCE * (fabs(x) + fabs(y));
    }
}

/* Numbers of i8 are half a step off, for which all have one scale. */
static double stored_error(int dtype, double most)
{
    return dtype == ATTN_I8 ? (double)CASE_SCALE * 0.500001 : oracle_storage_error(dtype, most);
}

/* What storing may add goes with the largest number of a unit. */
static void compare_stored(sampled_errors *errors, int dtype, const float *got,
                           const wanted_row *want, int64_t n)
{
    const int64_t unit = case_unit(dtype);
    for (int64_t u = 0; u < n; u += unit) {
        double most = 0;
        for (int64_t d = u; d < u + unit; d++)
            most = fmax(most, fabs(want->x[d]));
        for (int64_t d = u; d < u + unit; d++)
            sampled_compare(errors, ATTN_F32, (double)got[d], want->x[d],
                            want->tolerance[d] + stored_error(dtype, most));
    }
}

static const float *row_of(const attn_tensor *t, int64_t b, int64_t h, int64_t i)
{
    return (const float *)t->data + b * t->stride_batch + h * t->stride_head + i * t->stride_seq;
}

/* Rows of sequence b, read back as f32, against the step's. */
static void check_sequence(const append_job *job, sampled_errors *errors, int64_t b, const float *k,
                           const float *v, const wanted_row *want)
{
    const attn_cache *const cache = &job->store.cache;
    const attn_cache_step *const step = &job->step;
    const double first = (double)(cache->end[b] - step->seq_len);
    const int64_t dim = cache->head_dim;
    const int64_t dim_v = cache->head_dim_v;
    for (int64_t h = 0; h < cache->num_heads_kv; h++)
        for (int64_t i = 0; i < step->seq_len; i++, k += dim, v += dim_v) {
            const float *const from = row_of(&step->k, b, h, i);
            if (step->rope)
                want_turned(want, from, dim, first + (double)i);
            else
                want_plain(want, from, dim);
            compare_stored(errors, cache->k.dtype, k, want, dim);
            want_plain(want, row_of(&step->v, b, h, i), dim_v);
            compare_stored(errors, cache->v.dtype, v, want, dim_v);
        }
}

static int check_append(append_job *job, const wanted_row *want, sampled_errors *errors, char *why,
                        size_t why_bytes)
{
    const attn_cache *const cache = &job->store.cache;
    const int64_t n = job->step.seq_len;
    float *const v = job->read_back + cache->num_heads_kv * n * cache->head_dim;
    const attn_output k_out = { ATTN_F32, 0, 0, 0, job->read_back },
                      v_out = { ATTN_F32, 0, 0, 0, v };
    for (int64_t b = 0; b < job->step.batch; b++) {
        if (attn_cache_read(cache, 0, b, cache->end[b] - n, n, &k_out, &v_out, why, why_bytes) !=
            ATTN_OK)
            return 0;
        check_sequence(job, errors, b, job->read_back, v, want);
    }
    return 1;
}

int sampled_append(append_job *job, sampled_errors *errors, char *why, size_t why_bytes)
{
    const attn_cache *const cache = &job->store.cache;
    const int64_t widest =
        cache->head_dim > cache->head_dim_v ? cache->head_dim : cache->head_dim_v;
    double *const row = malloc(2 * sizeof *row * (size_t)widest);
    const wanted_row want = { row, row + widest };
    const int done = row && check_append(job, &want, errors, why, why_bytes);
    free(row);
    return done;
}
