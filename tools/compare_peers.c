/* compare_peers.c - what tools/compare_peers.py calls: attn by a plain struct, the bench's clock,
 * peak and data, and the difference of two results.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../attn.h"
#include "../bench/machine/machine.h"
#include "../bench/machine/probe.h"
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
    p->q.dtype = p->k.dtype = p->v.dtype = p->o.dtype = s->dtype;
}

compare_attn *compare_attn_open(const peer_shape *shape, const char *options, const void *q,
                                const void *k, const void *v, void *o, char *why,
                                size_t why_bytes)
{
    compare_attn *const a = calloc(1, sizeof *a);
    snprintf(why, why_bytes, "no memory");
    if (!a) return NULL;
    set_params(&a->p, shape);
    a->p.q.data = q;
    a->p.k.data = k;
    a->p.v.data = v;
    a->p.o.data = o;
    if (attn_params_from_string(&a->p, options, why, why_bytes) == ATTN_OK
        && attn_workspace_size(&a->p, &a->workspace_bytes) == ATTN_OK
        && attn_explain(&a->p, &a->info) == ATTN_OK) {
        a->workspace = malloc(a->workspace_bytes + 1);
        if (a->workspace) return a;
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
    if (a) free(a->workspace);
    free(a);
}

reading *compare_reading_open(const void *k, const void *v, size_t bytes_each)
{
    const reading both = {{k, v}, {bytes_each, bytes_each}, 1, NULL, NULL, 0};
    reading *const r = malloc(sizeof *r);
    if (!r) return NULL;
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
        if (!(d <= worst)) worst = d;
        if (isnan(d)) return INFINITY;
    }
    return worst;
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
    snprintf(text, text_bytes, "cpu=%s\nisa=%s\ncpus=%d\ncompiler=%s\nflags=%s\nrevision=%s\n"
             "attn=%s\n", m.cpu, m.isa, m.cpus, m.compiler, m.flags, m.revision, attn_version());
}
