/* model.c - what a case costs on paper.
 * SPDX-License-Identifier: MIT */
#include "model.h"

#include "../attn.h"

/* Keys that query row i sees: causal masks are aligned to the last key (bottom right). */
static int64_t visible_keys(const bench_case *c, int64_t i)
{
    const int64_t last = i + c->seq_kv - c->seq_q;
    if (!c->causal) return c->seq_kv;
    return last < 0 ? 0 : last + 1;
}

void model_of(const bench_case *c, bench_model *out)
{
    const double q_rows = (double)c->batch * (double)c->heads_q * (double)c->seq_q;
    const double kv_rows = (double)c->batch * (double)c->heads_kv * (double)c->seq_kv;
    const double width = (double)c->head_dim + (double)c->head_dim_v;
    const double element = c->dtype == ATTN_F32 ? 4 : 2;
    double keys = 0;
    for (int64_t i = 0; i < c->seq_q; i++) keys += (double)visible_keys(c, i);
    out->pairs = keys * (double)c->batch * (double)c->heads_q;
    out->flops = 2 * out->pairs * width;
    out->tensor_bytes = (q_rows + kv_rows) * width * element;
    out->kv_bytes = kv_rows * width * element;
    out->logits_bytes = q_rows * (double)c->seq_kv * 4;
}
