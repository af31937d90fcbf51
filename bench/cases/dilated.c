/* dilated.c - cases of dilated attention: who sees whom, how many pairs, the call.
 * SPDX-License-Identifier: MIT */
#include "jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

/* ---- who takes part */

/* One branch as one head has it. */
typedef struct branch_view {
    int has;                          /* the head has the branch */
    int64_t segment, dilation, begin; /* begin: the first position of a segment that takes part */
} branch_view;

static int64_t first_head(const bench_case *c, int n)
{
    return c->dilated.groups ? c->heads_q * n / c->dilated.branches : 0;
}

static int64_t heads_of(const bench_case *c, int n)
{
    return (c->dilated.groups ? first_head(c, n + 1) : c->heads_q) - first_head(c, n);
}

static branch_view view_of(const bench_case *c, int n, int64_t h)
{
    const case_dilated *const d = &c->dilated;
    const int64_t own = h - first_head(c, n);
    const branch_view v = { own >= 0 && own < heads_of(c, n), d->segment[n], d->dilation[n],
                            d->rotate ? h % d->dilation[n] : 0 };
    return v;
}

static int takes_part(const branch_view *v, int64_t position)
{
    return v->has && position % v->segment % v->dilation == v->begin;
}

/* The last row stands at the last key. */
static int64_t position_of(const bench_case *c, int64_t i)
{
    return i + c->seq_kv - c->seq_q;
}

unsigned dilated_branches(const bench_case *c, int64_t h, int64_t i, int64_t j)
{
    const int64_t at = position_of(c, i);
    unsigned branches = 0;
    for (int n = 0; n < c->dilated.branches; n++) {
        const branch_view v = view_of(c, n, h);
        if (takes_part(&v, at) && takes_part(&v, j) && at / v.segment == j / v.segment)
            branches |= 1u << n;
    }
    return branches;
}

unsigned dilated_head_branches(const bench_case *c, int64_t h)
{
    unsigned branches = 0;
    for (int n = 0; n < c->dilated.branches; n++)
        if (view_of(c, n, h).has)
            branches |= 1u << n;
    return branches;
}

int dilated_times(const bench_case *c, int64_t h, int64_t i, int64_t j)
{
    int times = 0;
    for (unsigned left = dilated_branches(c, h, i, j); left; left &= left - 1)
        times++;
    return times;
}

/* ---- how many */

/* Keys of its segment that a position which takes part sees. */
static int64_t keys_of(const bench_case *c, const branch_view *v, int64_t at)
{
    const int64_t segment = at / v->segment * v->segment;
    const int64_t rest = c->seq_kv - segment, length = rest < v->segment ? rest : v->segment;
    const int64_t last = c->mask == MASK_CAUSAL ? at - segment : length - 1;
    return (last - v->begin) / v->dilation + 1;
}

double dilated_pairs(const bench_case *c)
{
    double pairs = 0;
    for (int n = 0; n < c->dilated.branches; n++)
        for (int64_t h = 0; h < c->heads_q; h++) {
            const branch_view v = view_of(c, n, h);
            for (int64_t i = 0; v.has && i < c->seq_q; i++)
                if (takes_part(&v, position_of(c, i)))
                    pairs += (double)keys_of(c, &v, position_of(c, i));
        }
    return pairs * (double)c->batch;
}

int dilated_is_mean(const bench_case *c)
{
    return c->dilated.branches && c->dilated.mean;
}

int dilated_reads_all(const bench_case *c)
{
    for (int n = 0; n < c->dilated.branches; n++)
        if (c->dilated.dilation[n] == 1 && !c->dilated.groups && c->seq_q == c->seq_kv)
            return 1;
    return 0;
}

const char *dilated_text(const bench_case *c, char text[DILATED_TEXT])
{
    size_t length = 0;
    text[0] = '\0';
    for (int n = 0; n < c->dilated.branches && length < DILATED_TEXT; n++)
        length +=
            (size_t)snprintf(text + length, DILATED_TEXT - length, "%s%lld/%lld", n ? " " : "",
                             (long long)c->dilated.segment[n], (long long)c->dilated.dilation[n]);
    return text;
}

/* ---- the call */

void dilated_describe(const bench_case *c, dilated_job *job)
{
    memset(job, 0, sizeof *job);
    for (int n = 0; n < c->dilated.branches; n++) {
        attn_dilated_branch *const b = &job->branches[n];
        b->segment = c->dilated.segment[n];
        b->dilation = c->dilated.dilation[n];
        b->rotate = c->dilated.rotate;
        b->head_begin = first_head(c, n);
        b->head_count = heads_of(c, n);
    }
    job->d.num_branches = c->dilated.branches;
    job->d.branches = job->branches;
    job->d.merge = c->dilated.mean ? ATTN_DILATED_MEAN : ATTN_DILATED_LSE;
    job->d.variant = c->dilated.gathered ? ATTN_DILATED_GATHERED : ATTN_DILATED_STRIDED;
}

attn_status dilated_size(const dilated_job *job, const attn_params *p, const attn_gradients *g,
                         size_t *bytes, char *why, size_t why_bytes)
{
    const attn_status status = g ? attn_dilated_backward_workspace_size(p, &job->d, g, bytes)
                                 : attn_dilated_workspace_size(p, &job->d, bytes);
    if (status == ATTN_OK)
        return status;
    if (g)
        attn_dilated_backward_check(p, &job->d, g, NULL, 0, why, why_bytes);
    else
        attn_dilated_check(p, &job->d, NULL, 0, why, why_bytes);
    return status;
}

static int keeps_index(const bench_case *c)
{
    return c->dilated.gathered && !c->pattern_anew;
}

double dilated_index_bytes(const bench_case *c, const dilated_job *job)
{
    if (!keeps_index(c))
        return 0;
    return 4 * (double)attn_dilated_index_size(&job->d, c->seq_kv);
}

int dilated_make(const bench_case *c, dilated_job *job)
{
    if (!keeps_index(c))
        return 1;
    const int64_t entries = attn_dilated_index_size(&job->d, c->seq_kv);
    job->index = malloc((size_t)entries * sizeof *job->index + 1);
    if (!job->index || attn_dilated_index(&job->d, c->seq_kv, job->index, entries) != ATTN_OK)
        return 0;
    job->d.index = job->index;
    job->d.index_positions = c->seq_kv;
    return 1;
}

attn_status dilated_call(const dilated_job *job, const attn_params *p, const attn_gradients *g,
                         void *workspace, size_t workspace_bytes)
{
    if (g)
        return attn_dilated_backward(p, &job->d, g, workspace, workspace_bytes);
    return attn_dilated_forward(p, &job->d, workspace, workspace_bytes);
}

void dilated_free(dilated_job *job)
{
    free(job->index);
    job->index = NULL;
    job->d.index = NULL;
}
