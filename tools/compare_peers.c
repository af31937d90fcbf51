/* compare_peers.c - functions for tools/peers/: attn by a plain struct, the bench's clock, peak and
 * data, and the difference of two results.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../attn.h"
#include "../bench/machine/machine.h"
#include "compare_peers.h"

struct compare_attn {
    attn_params p;
    attn_info info;
    void *workspace;
    size_t workspace_bytes;
};

static void set_params(attn_params *p, const peer_shape *s)
{
    p->batch = 1;
    p->num_heads_q = s->heads_q;
    p->num_heads_kv = s->heads_kv;
    p->seq_len_q = s->rows;
    p->seq_len_kv = s->seq;
    p->head_dim = s->dim;
    p->causal = s->causal;
    p->num_workers = 1;
    if (s->visible)
        p->bool_mask = (attn_mask){ .data = s->visible,
                                    .stride_batch = ATTN_STRIDE_BROADCAST,
                                    .stride_head = ATTN_STRIDE_BROADCAST };
    if (s->bias)
        p->bias = (attn_bias){ .data = s->bias,
                               .stride_batch = ATTN_STRIDE_BROADCAST,
                               .stride_head = ATTN_STRIDE_BROADCAST };
    p->q.dtype = p->o.dtype = s->dtype;
    p->k.dtype = p->v.dtype = s->kv_dtype;
    p->integer = s->integer;
    p->fast = s->fast;
}

compare_attn *compare_attn_open(const peer_shape *shape, const char *options, const void *q,
                                const void *k, const void *v, void *o, char *why, size_t why_bytes)
{
    compare_attn *const a = calloc(1, sizeof *a);
    snprintf(why, why_bytes, "no memory");
    if (!a)
        return NULL;
    set_params(&a->p, shape);
    a->p.q.data = q;
    a->p.k.data = k;
    a->p.v.data = v;
    a->p.o.data = o;
    if (attn_params_from_string(&a->p, options, why, why_bytes) == ATTN_OK &&
        attn_workspace_size(&a->p, &a->workspace_bytes) == ATTN_OK &&
        attn_explain(&a->p, &a->info) == ATTN_OK) {
        a->workspace = malloc(a->workspace_bytes + 1);
        if (a->workspace)
            return a;
    }
    compare_attn_close(a);
    return NULL;
}

int compare_attn_run(compare_attn *a)
{
    return attn_forward(&a->p, a->workspace, a->workspace_bytes) != ATTN_OK;
}

const char *compare_attn_kernels(const compare_attn *a)
{
    return a->info.kernels_name;
}

double compare_attn_flops(const compare_attn *a)
{
    return a->info.flops;
}

void compare_attn_close(compare_attn *a)
{
    if (a)
        free(a->workspace);
    free(a);
}

/* ---- gradients */

struct compare_backward {
    compare_attn *forward;
    attn_gradients g;
    attn_backward_info info;
    void *o, *workspace;
    float *stats;
};

static attn_status plan_backward(compare_backward *b, const peer_shape *s, const void *dout,
                                 void *dq, void *dk, void *dv)
{
    b->g.dout.data = dout;
    b->g.dq.data = dq;
    b->g.dk.data = dk;
    b->g.dv.data = dv;
    b->g.dout.dtype = b->g.dq.dtype = b->g.dk.dtype = b->g.dv.dtype = s->dtype;
    return attn_backward_explain(&b->forward->p, &b->g, &b->info);
}

compare_backward *compare_backward_open(const peer_shape *shape, const char *options, const void *q,
                                        const void *k, const void *v, const void *dout, void *dq,
                                        void *dk, void *dv, char *why, size_t why_bytes)
{
    compare_backward *const b = calloc(1, sizeof *b);
    const size_t rows = (size_t)shape->heads_q * (size_t)shape->rows;
    snprintf(why, why_bytes, "no memory");
    if (!b)
        return NULL;
    b->o = malloc(rows * (size_t)shape->dim * sizeof(float));
    b->stats = malloc(2 * rows * sizeof(float));
    if (b->o && b->stats)
        b->forward = compare_attn_open(shape, options, q, k, v, b->o, why, why_bytes);
    if (b->forward) {
        b->forward->p.stats.data = b->stats;
        if (!compare_attn_run(b->forward) && plan_backward(b, shape, dout, dq, dk, dv) == ATTN_OK)
            b->workspace = malloc(b->info.workspace_bytes + 1);
    }
    if (b->workspace)
        return b;
    compare_backward_close(b);
    return NULL;
}

int compare_backward_run(compare_backward *b)
{
    return attn_backward(&b->forward->p, &b->g, b->workspace, b->info.workspace_bytes) != ATTN_OK;
}

const char *compare_backward_kernels(const compare_backward *b)
{
    return b->info.kernels_name;
}

double compare_backward_flops(const compare_backward *b)
{
    return b->info.flops;
}

void compare_backward_close(compare_backward *b)
{
    if (!b)
        return;
    compare_attn_close(b->forward);
    free(b->o);
    free(b->stats);
    free(b->workspace);
    free(b);
}

/* ---- beside attention */

reading *compare_reading_open(const void *k, const void *v, size_t bytes_each)
{
    const reading both = { { k, v }, { bytes_each, bytes_each }, 1, NULL, NULL, 0 };
    reading *const r = malloc(sizeof *r);
    if (!r)
        return NULL;
    *r = both;
    reading_choose(r);
    return r;
}

void compare_reading_close(reading *r)
{
    free(r);
}

double compare_difference(const float *a, const float *b, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= worst))
            worst = d;
        if (isnan(d))
            return INFINITY;
    }
    return worst;
}

void compare_above(unsigned char *to, const float *from, float limit, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = from[i] > limit;
}

double compare_flops_per_cycle(char *unit, size_t unit_bytes)
{
    probe_result r;
    probe_machine(&r);
    snprintf(unit, unit_bytes, "%s", r.best.name ? r.best.name : "none");
    return r.best.flops_per_cycle;
}

void compare_machine(char *text, size_t text_bytes)
{
    machine_info m;
    machine_describe(&m);
    snprintf(text, text_bytes,
             "cpu=%s\nisa=%s\ncpus=%d\ncompiler=%s\nflags=%s\nrevision=%s\n"
             "attn=%s\n",
             m.cpu, m.isa, m.cpus, m.compiler, m.flags, m.revision, attn_version());
}
