/* append.c - cases that append keys and values to a cache: the call and its check.
 * SPDX-License-Identifier: MIT */
#include "jobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tests/oracle.h"

#define ROPE_BASE 10000.0
/* A turned element is two products and a sum in binary32, of a cos and a sin that are rounded, too:
 * three roundings of each product's size, 2^-24 each. */
#define ROPE_TOLERANCE (3.0 / 16777216)

/* ---- the call */

static int make_rope(const bench_case *c, append_job *job, char *why, size_t why_bytes)
{
    const int64_t pairs = c->head_dim / 2, positions = KEYS_APPEND_CAPACITY;
    if (c->keys.rope == KEYS_UNTURNED)
        return 1;
    job->step.rope = &job->rope;
    if (c->keys.rope == KEYS_ROPE)
        return 1;
    job->table = malloc(sizeof(float) * (size_t)(2 * positions * pairs));
    if (!job->table)
        return snprintf(why, why_bytes, "no memory for a table"), 0;
    float *const sine = job->table + positions * pairs;
    const attn_status status =
        attn_rope_table(&job->rope, c->head_dim, 0, positions, job->table, sine, why, why_bytes);
    job->rope.cos = job->table;
    job->rope.sin = sine;
    job->rope.num_positions = positions;
    return status == ATTN_OK;
}

int append_make(const bench_case *c, const attn_params *p, uint64_t seed, append_job *job,
                char *why, size_t why_bytes)
{
    const int64_t width = c->head_dim + c->head_dim_v;
    memset(job, 0, sizeof *job);
    job->step.batch = c->batch;
    job->step.seq_len = c->seq_kv;
    job->step.k = p->k;
    job->step.v = p->v;
    job->read_back = malloc(sizeof(float) * (size_t)(c->heads_kv * c->seq_kv * width));
    if (!job->read_back)
        return snprintf(why, why_bytes, "no memory for the check"), 0;
    return make_rope(c, job, why, why_bytes) && keys_make(c, seed, &job->store, why, why_bytes);
}

int append_call(void *argument)
{
    append_job *const job = argument;
    attn_cache *const cache = &job->store.cache;
    if (cache->end[0] + job->step.seq_len > cache->capacity)
        for (int64_t b = 0; b < job->step.batch; b++)
            if (attn_cache_trim(cache, b, 0, 0, NULL, 0) != ATTN_OK)
                return 1;
    return attn_cache_append(cache, &job->step, NULL, 0) != ATTN_OK;
}

/* ---- the check */

typedef struct append_check {
    const append_job *job;
    double max_err, err_tolerance;
} append_check;

/* One element as it was read; NaN is infinitely wrong. */
static void compare(append_check *check, int dtype, double got, double want, double tolerance)
{
    const double allowed = tolerance + oracle_storage_error(dtype, want);
    const double error = fabs(got - want);
    if (!(error <= check->max_err))
        check->max_err = error == error ? error : INFINITY;
    if (!(error <= check->err_tolerance * allowed))
        check->err_tolerance = error == error ? error / allowed : INFINITY;
}

static void compare_plain(append_check *check, int dtype, const float *got, const float *want,
                          int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        compare(check, dtype, (double)got[d], (double)want[d], 0);
}

/* Pairs (i, i + n/2) turned by position * base^(-2i/n). */
static void compare_turned(append_check *check, int dtype, const float *got, const float *from,
                           int64_t n, double position)
{
    for (int64_t i = 0; i < n / 2; i++) {
        const double angle = position * pow(ROPE_BASE, -2 * (double)i / (double)n);
        const double x = (double)from[i], y = (double)from[i + n / 2];
        const double a = cos(angle), b = sin(angle);
        const double tolerance = ROPE_TOLERANCE * (fabs(x) + fabs(y));
        compare(check, dtype, (double)got[i], a * x - b * y, tolerance);
        compare(check, dtype, (double)got[i + n / 2], b * x + a * y, tolerance);
    }
}

static const float *row_of(const attn_tensor *t, int64_t b, int64_t h, int64_t i)
{
    return (const float *)t->data + b * t->stride_batch + h * t->stride_head + i * t->stride_seq;
}

/* Rows of sequence b, read back as f32, against the step's. */
static void check_sequence(append_check *check, int64_t b, const float *k, const float *v)
{
    const attn_cache *const cache = &check->job->store.cache;
    const attn_cache_step *const step = &check->job->step;
    const double first = (double)(cache->end[b] - step->seq_len);
    const int64_t dim = cache->head_dim;
    const int64_t dim_v = cache->head_dim_v;
    for (int64_t h = 0; h < cache->num_heads_kv; h++)
        for (int64_t i = 0; i < step->seq_len; i++, k += dim, v += dim_v) {
            const float *const from = row_of(&step->k, b, h, i);
            if (step->rope)
                compare_turned(check, cache->k.dtype, k, from, dim, first + (double)i);
            else
                compare_plain(check, cache->k.dtype, k, from, dim);
            compare_plain(check, cache->v.dtype, v, row_of(&step->v, b, h, i), dim_v);
        }
}

int append_verify(append_job *job, double *max_err, double *err_tolerance, char *why,
                  size_t why_bytes)
{
    const attn_cache *const cache = &job->store.cache;
    const int64_t n = job->step.seq_len;
    float *const v = job->read_back + cache->num_heads_kv * n * cache->head_dim;
    const attn_output k_out = { ATTN_F32, 0, 0, 0, job->read_back },
                      v_out = { ATTN_F32, 0, 0, 0, v };
    append_check check = { job, 0, 0 };
    for (int64_t b = 0; b < job->step.batch; b++) {
        if (attn_cache_read(cache, 0, b, cache->end[b] - n, n, &k_out, &v_out, why, why_bytes) !=
            ATTN_OK)
            return 0;
        check_sequence(&check, b, job->read_back, v);
    }
    *max_err = check.max_err;
    *err_tolerance = check.err_tolerance;
    return 1;
}

void append_free(append_job *job)
{
    free(job->table);
    free(job->read_back);
    keys_free(&job->store);
    job->table = job->read_back = NULL;
}
