/* model.c - what a case costs on paper.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include "../../attn.h"
#include "jobs.h"

void model_sizes(const bench_case *c, bench_model *out)
{
    const double q_rows = (double)c->batch * (double)c->heads_q * (double)c->seq_q;
    const double width = (double)c->head_dim + (double)c->head_dim_v;
    const double row = width * case_width(c->dtype);
    const double key = (double)c->head_dim * case_width(case_k_dtype(c)) +
                       (double)c->head_dim_v * case_width(case_v_dtype(c));
    out->pairs = out->flops = 0;
    out->kv_token_bytes = (double)c->heads_kv * key;
    out->kv_bytes = case_stored_keys(c) * out->kv_token_bytes;
    out->tensor_bytes = (c->appends ? 0 : q_rows * row) + out->kv_bytes;
    if (c->backward)
        out->tensor_bytes = 2 * out->tensor_bytes + 4 * q_rows;
    out->logits_bytes = q_rows * (double)c->seq_kv * 4;
}

/* Lengths of the products of a pair: q.k and p v; backward q.k, do.v and what makes dq, dk, dv. */
static double products_of(const bench_case *c)
{
    const double dim = (double)c->head_dim, dim_v = (double)c->head_dim_v;
    return c->backward ? 3 * dim + 2 * dim_v : dim + dim_v;
}

void model_of(const bench_case *c, bench_model *out)
{
    model_sizes(c, out);
    out->pairs = c->appends ? 0 : c->dilated.branches ? dilated_pairs(c) : mask_pairs(c);
    out->flops = 2 * out->pairs * products_of(c);
}

double model_intensity(const bench_model *m)
{
    return m->flops / m->tensor_bytes;
}

const char *model_roof(double intensity, double gflops, double gbytes_per_s)
{
    if (gflops <= 0 || gbytes_per_s <= 0)
        return "";
    return intensity * gbytes_per_s < gflops ? "memory" : "compute";
}

double model_theory_bytes(const bench_case *c, int naive, int threads, double workspace_bytes)
{
    const double heads = (double)c->batch * (double)(c->backward ? c->heads_kv : c->heads_q);
    const double at_once = threads < heads ? threads : heads;
    const double matrix = 4 * (double)c->seq_q * (double)c->seq_kv;
    return naive ? (c->backward ? 2 : 1) * at_once * matrix : workspace_bytes;
}

double model_matrix_share(const bench_model *m, double workspace_bytes)
{
    return workspace_bytes / m->logits_bytes;
}
