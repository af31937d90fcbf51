/* sampled_dilated.c - a row of dilated attention in double.
 * SPDX-License-Identifier: MIT
 *
 * Merged by LSE it is one softmax over the keys that any branch shows, each weighted with the
 * number of branches that do; the mean over branches is that of a softmax for each. Nothing here
 * divides a sequence into segments and merges their results, as the library does.
 *
 * Tolerance: that of tests/oracle.h for each softmax, and 4 roundings for each branch that is
 * merged. */
#include <math.h>
#include <stdlib.h>

#include "sampled.h"

static const double unit = 1.0 / 16777216.0;

enum { MERGE_ROUNDINGS = 4 };

typedef struct seen_key {
    int64_t j;
    unsigned branches;
    double logit, error; /* error: e_j / u of tests/oracle.h without its last term */
} seen_key;

typedef struct seen_keys {
    seen_key *keys;
    int64_t n;
    double maximum;
} seen_keys;

static int count_bits(unsigned bits)
{
    int n = 0;
    for (; bits; bits &= bits - 1)
        n++;
    return n;
}

static void see(const bench_case *c, const attn_params *p, int64_t b, int64_t h, int64_t i,
                seen_keys *seen)
{
    seen->n = 0;
    seen->maximum = -INFINITY;
    for (int64_t j = 0; j < c->seq_kv; j++) {
        seen_key *const k = &seen->keys[seen->n];
        k->branches = dilated_branches(c, h, i, j);
        if (!k->branches || !oracle_visible(p, b, h, i, j))
            continue;
        k->j = j;
        k->logit = oracle_logit(p, b, h, i, j, ATTN_LOGITS_BIAS, &k->error);
        if (k->logit > seen->maximum)
            seen->maximum = k->logit;
        seen->n++;
    }
}

/* One softmax over the keys that some of `branches` show. */
typedef struct softmax {
    unsigned branches;
    double share; /* of the result */
    double sum, mean_error;
    int64_t alive;
} softmax;

static double weight_of(const seen_keys *seen, const seen_key *k, const softmax *s)
{
    return count_bits(k->branches & s->branches) * exp(k->logit - seen->maximum);
}

static double error_of(const seen_keys *seen, const seen_key *k)
{
    return k->error + fabs(k->logit - seen->maximum);
}

static void sum_up(const seen_keys *seen, softmax *s)
{
    s->sum = s->mean_error = 0;
    s->alive = 0;
    for (int64_t n = 0; n < seen->n; n++) {
        const seen_key *const k = &seen->keys[n];
        const double weight = weight_of(seen, k, s);
        s->sum += weight;
        s->mean_error += weight * error_of(seen, k);
        s->alive += (k->branches & s->branches) != 0;
    }
    if (s->sum > 0)
        s->mean_error /= s->sum;
}

static double roundings_of(const bench_case *c, const softmax *s)
{
    return 6 + MERGE_ROUNDINGS * c->dilated.branches +
           sqrt((double)(s->alive < 1024 ? s->alive : 1024));
}

/* Adds its share of o. */
static void add_values(const bench_case *c, const attn_params *p, int64_t b, int64_t h,
                       const seen_keys *seen, const softmax *s, oracle_result *out)
{
    const int64_t head = h / (c->heads_q / c->heads_kv);
    const double roundings = s->mean_error + roundings_of(c, s);
    for (int64_t n = 0; n < seen->n; n++) {
        const seen_key *const k = &seen->keys[n];
        const double weight = weight_of(seen, k, s) / s->sum * s->share;
        const ptrdiff_t at = oracle_key_offset(p, &p->v, p->head_dim_v, b, head, k->j);
        const double error = ORACLE_FACTOR * unit * (error_of(seen, k) + roundings);
        for (int64_t d = 0; weight > 0 && d < c->head_dim_v; d++) {
            const double v = oracle_load(p->v.dtype, p->v.data, at + (ptrdiff_t)d);
            out->o[d] += weight * v;
            out->o_tolerance[d] += weight * fabs(v) * error;
        }
    }
}

/* Adds its o; alive and lse are those of the last one. */
static void add_softmax(const bench_case *c, const attn_params *p, int64_t b, int64_t h,
                        const seen_keys *seen, softmax *s, oracle_result *out)
{
    sum_up(seen, s);
    out->alive = s->alive;
    out->lse = -INFINITY;
    out->lse_tolerance = 0;
    if (s->sum <= 0)
        return;
    out->lse = seen->maximum + log(s->sum);
    out->lse_tolerance =
        ORACLE_FACTOR * unit *
        (s->mean_error + 2 * fabs(out->lse) + 2 * fabs(seen->maximum) + roundings_of(c, s));
    add_values(c, p, b, h, seen, s, out);
}

/* A softmax over the keys of `branches`, or, apart, the mean of one for each of them. */
static int row_of(const bench_case *c, const attn_params *p, int64_t b, int64_t h, int64_t i,
                  unsigned branches, int apart, oracle_result *out)
{
    seen_keys seen = { malloc(sizeof(seen_key) * (size_t)c->seq_kv + 1), 0, 0 };
    if (!seen.keys)
        return 1;
    for (int64_t d = 0; d < c->head_dim_v; d++) {
        out->o[d] = 0;
        out->o_tolerance[d] = ldexp((double)c->seq_kv, -126); /* what flushing may take away */
    }
    see(c, p, b, h, i, &seen);
    const double share = apart ? 1.0 / count_bits(branches) : 1;
    for (unsigned left = branches; left; left &= left - 1) {
        softmax s = { apart ? left & ~(left - 1) : branches, share, 0, 0, 0 };
        add_softmax(c, p, b, h, &seen, &s, out);
        if (!apart)
            break;
    }
    free(seen.keys);
    return 0;
}

int dilated_softmax(const bench_case *c, const attn_params *p, int64_t b, int64_t h, int64_t i,
                    unsigned branches, oracle_result *out)
{
    return row_of(c, p, b, h, i, branches, 0, out);
}

int dilated_row(const bench_case *c, const attn_params *p, int64_t b, int64_t h, int64_t i,
                oracle_result *out)
{
    return row_of(c, p, b, h, i, dilated_head_branches(c, h), c->dilated.mean, out);
}
