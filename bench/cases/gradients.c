/* gradients.c - cases that compute gradients: what the call needs, and the call.
 * SPDX-License-Identifier: MIT */
#include "jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

double gradients_more_bytes(const bench_case *c)
{
    return c->backward && mask_has_bias(c->mask) ? 4 * (double)c->seq_q * (double)c->seq_kv : 0;
}

/* Strides and storage as of the tensor that it is the gradient of, or has the shape of. */
static attn_output like(int dtype, ptrdiff_t batch, ptrdiff_t head, ptrdiff_t seq, void *data)
{
    const attn_output out = { dtype, batch, head, seq, data };
    return out;
}

#define LIKE(t, data) like((t).dtype, (t).stride_batch, (t).stride_head, (t).stride_seq, data)

void gradients_describe(const bench_case *c, attn_params *p, gradients_job *job, void *any)
{
    attn_gradients *const g = &job->g;
    job->c = c;
    if (!dilated_is_mean(c))
        p->stats.data = any;
    g->gemms = c->gemms;
    g->dout.dtype = p->o.dtype;
    g->dout.stride_batch = p->o.stride_batch;
    g->dout.stride_head = p->o.stride_head;
    g->dout.stride_seq = p->o.stride_seq;
    g->dout.data = any;
    g->dq = LIKE(p->q, any);
    g->dk = LIKE(p->k, any);
    g->dv = LIKE(p->v, any);
    if (p->bias.data)
        g->dbias.data = any; /* of the axes that the bias has: rows and keys */
    if (p->sinks)
        g->dsinks = any;
    if (p->score)
        g->score_derivative = mask_score_derivative;
}

attn_status gradients_explain(gradients_job *job, const attn_params *p, attn_info *info, int *gemms,
                              char *why, size_t why_bytes)
{
    attn_backward_info said;
    attn_params dense = *p;
    dense.stats.data = info->reasons; /* any address */
    attn_status status = attn_backward_explain(&dense, &job->g, &said);
    if (status != ATTN_OK)
        attn_backward_check(&dense, &job->g, NULL, 0, why, why_bytes);
    if (status == ATTN_OK && job->dilated)
        status = dilated_size(job->dilated, p, &job->g, &said.workspace_bytes, why, why_bytes);
    if (status != ATTN_OK)
        return status;
    memset(info, 0, sizeof *info);
    info->impl = said.impl;
    info->kernels_name = said.kernels_name;
    info->backend_name = said.backend_name;
    memcpy(info->reasons, said.reasons, sizeof said.reasons);
    info->workers = said.workers;
    info->key_parts = 1;
    info->workspace_bytes = said.workspace_bytes;
    info->workspace_bytes_per_worker = said.workspace_bytes_per_worker;
    info->flops = said.flops;
    *gemms = said.gemms;
    return ATTN_OK;
}

/* ---- the arrays */

/* All bytes 0xff: NaN in every storage type, so that what is not written fails the check. */
static void *unwritten(gradients_job *job, size_t bytes)
{
    void *const array = malloc(bytes + 1);
    if (array)
        memset(array, 0xff, bytes);
    job->owned[job->num_owned++] = array;
    return array;
}

static size_t elements(int64_t batch, int64_t heads, int64_t rows, int64_t dim)
{
    return (size_t)batch * (size_t)heads * (size_t)rows * (size_t)dim;
}

static int make_arrays(attn_params *p, uint64_t seed, gradients_job *job)
{
    const bench_case *const c = job->c;
    attn_gradients *const g = &job->g;
    const size_t width = case_bytes(c->dtype, 1);
    const size_t rows = elements(c->batch, c->heads_q, c->seq_q, 1);
    const size_t keys = elements(c->batch, c->heads_kv, c->seq_kv, 1);
    void *const dout = unwritten(job, rows * (size_t)c->head_dim_v * width);
    if (p->stats.data)
        p->stats.data = unwritten(job, 2 * rows * sizeof(float));
    g->dout.data = dout;
    g->dq.data = unwritten(job, rows * (size_t)c->head_dim * width);
    g->dk.data = unwritten(job, keys * (size_t)c->head_dim * width);
    g->dv.data = unwritten(job, keys * (size_t)c->head_dim_v * width);
    if (g->dbias.data)
        g->dbias.data = unwritten(job, elements(1, 1, c->seq_q, c->seq_kv) * 4);
    if (g->dsinks)
        g->dsinks = unwritten(job, (size_t)c->heads_q * sizeof(float));
    for (int i = 0; i < job->num_owned; i++)
        if (!job->owned[i])
            return 0;
    data_fill(dout, c->dtype, rows * (size_t)c->head_dim_v, DATA_DOUT, c->data, seed);
    return 1;
}

/* o and stats, which have the same bits by any kernels of the CPU. */
static int run_forward(const gradients_job *job, const attn_params *p, char *why, size_t why_bytes)
{
    attn_params forward = *p;
    size_t bytes;
    forward.impl = ATTN_IMPL_TILED;
    forward.kernels = NULL;
    forward.backend = NULL;
    attn_status status = job->dilated ? dilated_size(job->dilated, &forward, NULL, &bytes, NULL, 0)
                                      : attn_workspace_size(&forward, &bytes);
    void *const workspace = status == ATTN_OK ? malloc(bytes + 1) : NULL;
    if (status == ATTN_OK && !workspace)
        status = ATTN_ERR_WORKSPACE;
    if (status == ATTN_OK)
        status = job->dilated ? dilated_call(job->dilated, &forward, NULL, workspace, bytes)
                              : attn_forward(&forward, workspace, bytes);
    free(workspace);
    if (status == ATTN_OK)
        return 1;
    snprintf(why, why_bytes, "the forward call before it: %s", attn_status_string(status));
    return 0;
}

int gradients_make(attn_params *p, uint64_t seed, gradients_job *job, char *why, size_t why_bytes)
{
    if (make_arrays(p, seed, job))
        return run_forward(job, p, why, why_bytes);
    snprintf(why, why_bytes, "the system gave no memory for the gradients");
    return 0;
}

void gradients_free(gradients_job *job)
{
    while (job->num_owned > 0)
        free(job->owned[--job->num_owned]);
}
