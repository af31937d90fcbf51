/* src/dilated_ring/dilated_ring.c - dilated attention over ranks: the public functions.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "backward.c"

static uint32_t mix_branches(uint32_t hash, const attn_dilated *d)
{
    int n;
    hash = mix_in(mix_in(hash, d->merge), d->num_branches);
    for (n = 0; n < d->num_branches; n++) {
        const attn_dilated_branch *branch = &d->branches[n];
        hash = mix_in(mix_in(hash, branch->rotate != 0), branch->segment);
        hash = mix_in(mix_in(hash, branch->dilation), branch->offset);
        hash = mix_in(mix_in(hash, branch->head_begin), branch->head_count);
    }
    return hash;
}

/* mix_rows mixes in the arrays of rows that travel. */
static uint32_t mix_rows(uint32_t hash, const attn_params *p, const attn_gradients *g)
{
    hash = mix_in(mix_in(hash, p->o.dtype), g->dout.dtype);
    return mix_in(mix_in(hash, p->stats.data != NULL), g->dlse.data != NULL);
}

static uint32_t dilated_hash(const attn_params *p, const attn_dilated *d, const attn_gradients *g,
                             const attn_ring *ring)
{
    const uint32_t hash = mix_branches(call_hash(p, g != NULL, ring, ring->transport->size), d);
    return g ? mix_rows(hash, p, g) : hash;
}

/* place_computed lets what this rank computes travel from where it lies. */
static void place_computed(dilated_ring *r)
{
    dilated_side *s = &r->side[BY_ROWS];
    int i;
    for (i = 0; i < s->count; i++)
        if (s->of[i].computed)
            s->of[i].from.data = r->base + r->pl.computed[i];
}

static dilated_ring *open_dilated_ring(const attn_params *p, const attn_dilated *d,
                                       const attn_gradients *g, const attn_ring *ring,
                                       const dilated_ring_plan *pl, attn_ring_stats *stats,
                                       void *workspace)
{
    const int64_t length = own_length(p, ring);
    char *base = align_memory(workspace);
    dilated_ring *r = (dilated_ring *)(void *)base;
    memset(r, 0, sizeof *r);
    r->own = *p;
    resolve_own(&r->own, length);
    if (g) {
        r->own_g = *g;
        resolve_own_gradients(&r->own, &r->own_g, length);
    }
    r->sides = open_sides(&r->own, d, g ? &r->own_g : NULL, ring, r->side);
    r->pl = *pl;
    r->base = base;
    place_computed(r);
    r->t = ring->transport;
    r->stats = stats;
    stats->canonical = 1;
    return r;
}

static attn_status compute_own(dilated_ring *r)
{
    if (!r->pl.lay.slot_bytes)
        return ATTN_OK;
    return r->sides == SIDES ? compute_own_gradients(r) : compute_own_rows(r);
}

static attn_status dilated_ring_run(const attn_params *p, const attn_dilated *d,
                                    const attn_gradients *g, int gradients, const attn_ring *ring,
                                    void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_transport(ring, &why);
    attn_ring_stats stats;
    dilated_ring_plan pl;
    if (status)
        return status;
    memset(&stats, 0, sizeof stats);
    stats.failed_rank = -1;
    status = check_dilated_ring(p, d, g, gradients, ring, workspace, bytes, &pl, &why);
    status = agree_on_status(ring->transport, &stats, status);
    if (!status)
        status = agree_on_call(ring->transport, &stats, dilated_hash(p, d, g, ring));
    if (!status) {
        dilated_ring *r = open_dilated_ring(p, d, g, ring, &pl, &stats, workspace);
        status = exchange_side(r, BY_KEYS, ATTN_OK);
        if (!status && g)
            status = exchange_rows(r);
        if (!status)
            status = agree_on_status(ring->transport, &stats, compute_own(r));
    }
    if (ring->stats)
        *ring->stats = stats;
    return status;
}

static attn_status dilated_ring_size(const attn_params *p, const attn_dilated *d,
                                     const attn_gradients *g, int gradients, const attn_ring *ring,
                                     size_t *bytes)
{
    text why = text_in(NULL, 0);
    dilated_ring_plan pl;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_dilated_query(p, d, g, gradients, ring, &pl, &why);
    *bytes = status ? 0 : (size_t)pl.bytes;
    return status;
}

static const char *dilated_ring_sentence(const attn_params *p, const attn_dilated *d,
                                         const attn_gradients *g, int gradients,
                                         const attn_ring *ring, const void *workspace, size_t bytes,
                                         char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    dilated_ring_plan pl;
    return verdict(check_dilated_ring(p, d, g, gradients, ring, workspace, bytes, &pl, &why),
                   buffer, &why);
}

ATTN_API attn_status attn_dilated_ring_forward(const attn_params *p, const attn_dilated *d,
                                               const attn_ring *ring, void *workspace,
                                               size_t workspace_bytes)
{
    return dilated_ring_run(p, d, NULL, 0, ring, workspace, workspace_bytes);
}

ATTN_API attn_status attn_dilated_ring_backward(const attn_params *p, const attn_dilated *d,
                                                const attn_gradients *g, const attn_ring *ring,
                                                void *workspace, size_t workspace_bytes)
{
    return dilated_ring_run(p, d, g, 1, ring, workspace, workspace_bytes);
}

ATTN_API attn_status attn_dilated_ring_workspace_size(const attn_params *p, const attn_dilated *d,
                                                      const attn_ring *ring, size_t *bytes)
{
    return dilated_ring_size(p, d, NULL, 0, ring, bytes);
}

ATTN_API attn_status attn_dilated_ring_backward_workspace_size(const attn_params *p,
                                                               const attn_dilated *d,
                                                               const attn_gradients *g,
                                                               const attn_ring *ring, size_t *bytes)
{
    return dilated_ring_size(p, d, g, 1, ring, bytes);
}

ATTN_API const char *attn_dilated_ring_check(const attn_params *p, const attn_dilated *d,
                                             const attn_ring *ring, const void *workspace,
                                             size_t workspace_bytes, char *buffer,
                                             size_t buffer_bytes)
{
    return dilated_ring_sentence(p, d, NULL, 0, ring, workspace, workspace_bytes, buffer,
                                 buffer_bytes);
}

ATTN_API const char *attn_dilated_ring_backward_check(const attn_params *p, const attn_dilated *d,
                                                      const attn_gradients *g,
                                                      const attn_ring *ring, const void *workspace,
                                                      size_t workspace_bytes, char *buffer,
                                                      size_t buffer_bytes)
{
    return dilated_ring_sentence(p, d, g, 1, ring, workspace, workspace_bytes, buffer,
                                 buffer_bytes);
}
