/* peer_ggml.c - attention and a matrix product by ggml's CPU backend.
 * SPDX-License-Identifier: MIT
 *
 * `make compare-peers GGML=PREFIX` compiles it where PREFIX/include/ggml.h is. */
#include "peer_ggml.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>

enum { TENSORS = 16 }; /* more than any graph here has */

struct peer_ggml {
    peer_shape shape;
    struct ggml_context *context;
    ggml_backend_t backend;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *q, *k, *v, *mask, *result;
    struct ggml_cgraph *graph;
    int tokens_first; /* order of the result */
};

/* By attn_dtype; ggml has no 8-bit floats. */
static const enum ggml_type type_of[] = { GGML_TYPE_F32,   GGML_TYPE_F16,   GGML_TYPE_BF16,
                                          GGML_TYPE_COUNT, GGML_TYPE_COUNT, GGML_TYPE_Q8_0,
                                          GGML_TYPE_Q5_0,  GGML_TYPE_Q4_0 };

static peer_ggml *new_peer(void)
{
    const size_t bytes = TENSORS * ggml_tensor_overhead() + ggml_graph_overhead();
    const struct ggml_init_params params = { bytes, NULL, true };
    peer_ggml *const p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->context = ggml_init(params);
    p->backend = ggml_backend_cpu_init();
    if (p->context && p->backend) {
        ggml_backend_cpu_set_n_threads(p->backend, 1);
        return p;
    }
    peer_ggml_close(p);
    return NULL;
}

/* Makes a graph of the result and gets memory for all tensors. */
static int plan(peer_ggml *p, struct ggml_tensor *result)
{
    p->result = result;
    p->graph = ggml_new_graph(p->context);
    ggml_build_forward_expand(p->graph, result);
    p->buffer = ggml_backend_alloc_ctx_tensors(p->context, p->backend);
    return p->buffer != NULL;
}

static void fill(struct ggml_tensor *t, const void *data)
{
    ggml_backend_tensor_set(t, data, 0, ggml_nbytes(t));
}

static void fill_causal(const peer_ggml *p)
{
    const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY), seen = ggml_fp32_to_fp16(0);
    ggml_fp16_t *const mask = ggml_get_data(p->mask);
    for (int i = 0; i < p->shape.rows; i++)
        for (int j = 0; j < p->shape.seq; j++)
            mask[(size_t)i * (size_t)p->shape.seq + (size_t)j] = j <= i ? seen : hidden;
}

/* [head][token][dim] becomes [head][dim][token]. */
static void fill_transposed(const peer_ggml *p, const char *v)
{
    const size_t size = ggml_element_size(p->v), seq = (size_t)p->shape.seq,
                 dim = (size_t)p->shape.dim, heads = (size_t)p->shape.heads_kv;
    char *const to = ggml_get_data(p->v);
    for (size_t row = 0; row < heads * seq; row++)
        for (size_t d = 0; d < dim; d++)
            memcpy(to + ((row / seq * dim + d) * seq + row % seq) * size,
                   v + (row * dim + d) * size, size);
}

static struct ggml_tensor *flash_graph(peer_ggml *p, float scale)
{
    const peer_shape *const s = &p->shape;
    p->v = ggml_new_tensor_3d(p->context, type_of[s->kv_dtype], s->dim, s->seq, s->heads_kv);
    p->tokens_first = 1;
    return ggml_flash_attn_ext(p->context, p->q, p->k, p->v, p->mask, scale, 0, 0);
}

static struct ggml_tensor *unfused_graph(peer_ggml *p, float scale)
{
    const peer_shape *const s = &p->shape;
    struct ggml_tensor *const logits = ggml_mul_mat(p->context, p->k, p->q);
    p->v = ggml_new_tensor_3d(p->context, type_of[s->kv_dtype], s->seq, s->dim, s->heads_kv);
    return ggml_mul_mat(p->context, p->v,
                        ggml_soft_max_ext_inplace(p->context, logits, p->mask, scale, 0));
}

peer_ggml *peer_ggml_open(const peer_shape *s, int flash, const float *q, const void *k,
                          const void *v)
{
    const float scale = 1 / sqrtf((float)s->dim);
    peer_ggml *const p = new_peer();
    if (!p)
        return NULL;
    p->shape = *s;
    p->q = ggml_new_tensor_3d(p->context, GGML_TYPE_F32, s->dim, s->rows, s->heads_q);
    p->k = ggml_new_tensor_3d(p->context, type_of[s->kv_dtype], s->dim, s->seq, s->heads_kv);
    if (s->causal)
        p->mask = ggml_new_tensor_2d(p->context, GGML_TYPE_F16, s->seq, s->rows);
    if (!plan(p, flash ? flash_graph(p, scale) : unfused_graph(p, scale))) {
        peer_ggml_close(p);
        return NULL;
    }
    fill(p->q, q);
    fill(p->k, k);
    if (flash)
        fill(p->v, v);
    else
        fill_transposed(p, v);
    if (p->mask)
        fill_causal(p);
    return p;
}

peer_ggml *peer_ggml_product(int n, const float *a, const float *b)
{
    peer_ggml *const p = new_peer();
    if (!p)
        return NULL;
    p->q = ggml_new_tensor_2d(p->context, GGML_TYPE_F32, n, n);
    p->k = ggml_new_tensor_2d(p->context, GGML_TYPE_F32, n, n);
    if (!plan(p, ggml_mul_mat(p->context, p->q, p->k))) {
        peer_ggml_close(p);
        return NULL;
    }
    fill(p->q, a);
    fill(p->k, b);
    return p;
}

int peer_ggml_run(peer_ggml *p)
{
    return ggml_backend_graph_compute(p->backend, p->graph) != GGML_STATUS_SUCCESS;
}

void peer_ggml_output(const peer_ggml *p, float *o)
{
    const size_t heads = (size_t)p->shape.heads_q, rows = (size_t)p->shape.rows,
                 dim = (size_t)p->shape.dim;
    const float *const from = ggml_get_data(p->result);
    for (size_t h = 0; h < heads; h++)
        for (size_t i = 0; i < rows; i++)
            memcpy(o + (h * rows + i) * dim,
                   from + (p->tokens_first ? i * heads + h : h * rows + i) * dim, dim * sizeof *o);
}

void peer_ggml_close(peer_ggml *p)
{
    if (!p)
        return;
    ggml_backend_buffer_free(p->buffer);
    if (p->backend)
        ggml_backend_free(p->backend);
    ggml_free(p->context);
    free(p);
}

const char *peer_ggml_version(void)
{
    return ggml_version();
}

void peer_ggml_remarks(char *text, size_t text_bytes)
{
    const char *const unit = ggml_cpu_has_avx512() ? "AVX-512"
                             : ggml_cpu_has_avx2() ? "AVX2"
                             : ggml_cpu_has_neon() ? "NEON"
                                                   : "no AVX2, AVX-512 or NEON";
    snprintf(text, text_bytes, "CPU backend, %s, %s llamafile's products", unit,
             ggml_cpu_has_llamafile() ? "with" : "without");
}
