/* src/ring/ring.c - context parallelism: the public functions.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "forward.c"
#include "backward.c"

ATTN_API attn_status attn_ring_ranges(const attn_params *p, const attn_ring *ring, int rank,
                                      attn_ring_range *ranges, int64_t most, int64_t *count)
{
    text why = text_in(NULL, 0);
    attn_ring_range range;
    attn_status status;
    ring_cut cuts;
    int64_t at = 0;
    if (!ring || !ring->transport || !count || most < 0 || (most > 0 && !ranges) || rank < 0 ||
        rank >= ring->transport->size)
        return ATTN_ERR_ARG;
    *count = 0;
    status = check_cut(p, ring, ring->transport->size, &why);
    if (status)
        return status;
    for (cuts = cut_of(p, ring, ring->transport->size); next_range(&cuts, rank, &at, &range);
         ++*count)
        if (*count < most)
            ranges[*count] = range;
    return ATTN_OK;
}

ATTN_API attn_status attn_ring_describe(const attn_params *p, const attn_ring *ring, int rank,
                                        attn_ring_info *info)
{
    text why = text_in(NULL, 0);
    attn_status status;
    ring_cut cuts;
    int r;
    if (!info)
        return ATTN_ERR_ARG;
    memset(info, 0, sizeof *info);
    if (!ring || !ring->transport || rank < 0 || rank >= ring->transport->size)
        return ATTN_ERR_ARG;
    status = check_cut(p, ring, ring->transport->size, &why);
    if (status)
        return status;
    cuts = cut_of(p, ring, ring->transport->size);
    info->canonical = is_canonical(&cuts);
    info->length = held_by(&cuts, rank, &info->ranges, NULL);
    for (r = 0; r < cuts.ranks; r++)
        info->longest = max64(info->longest, held_by(&cuts, r, NULL, NULL));
    return ATTN_OK;
}

static attn_status ring_size(const attn_params *p, const attn_gradients *g, int gradients,
                             const attn_ring *ring, size_t *bytes)
{
    text why = text_in(NULL, 0);
    int64_t need = 0;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    *bytes = 0;
    status = check_transport(ring, &why);
    if (!status)
        status = check_cut(p, ring, ring->transport->size, &why);
    if (!status && gradients && !g)
        status = ATTN_ERR_ARG;
    if (!status && gradients)
        status = check_ring_gradients(p, g, ring, &why);
    if (!status)
        status = ring_bytes(p, g, ring, &need);
    *bytes = status ? 0 : (size_t)need;
    return status;
}

ATTN_API attn_status attn_ring_workspace_size(const attn_params *p, const attn_ring *ring,
                                              size_t *bytes)
{
    return ring_size(p, NULL, 0, ring, bytes);
}

ATTN_API attn_status attn_ring_backward_workspace_size(const attn_params *p,
                                                       const attn_gradients *g,
                                                       const attn_ring *ring, size_t *bytes)
{
    return ring_size(p, g, 1, ring, bytes);
}

static const char *ring_sentence(const attn_params *p, const attn_gradients *g, int gradients,
                                 const attn_ring *ring, const void *workspace, size_t bytes,
                                 char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    const attn_status status = check_ring(p, g, gradients, ring, workspace, bytes, &why);
    if (!status)
        put(&why, "ok");
    return buffer && buffer_bytes ? buffer : attn_status_string(status);
}

ATTN_API const char *attn_ring_check(const attn_params *p, const attn_ring *ring,
                                     const void *workspace, size_t workspace_bytes, char *buffer,
                                     size_t buffer_bytes)
{
    return ring_sentence(p, NULL, 0, ring, workspace, workspace_bytes, buffer, buffer_bytes);
}

ATTN_API const char *attn_ring_backward_check(const attn_params *p, const attn_gradients *g,
                                              const attn_ring *ring, const void *workspace,
                                              size_t workspace_bytes, char *buffer,
                                              size_t buffer_bytes)
{
    return ring_sentence(p, g, 1, ring, workspace, workspace_bytes, buffer, buffer_bytes);
}

/* open_ring_call makes the call ready in its workspace. */
OWN_FRAME static ring_call *open_ring_call(const attn_params *p, const attn_gradients *g,
                                           const attn_ring *ring, attn_ring_stats *stats,
                                           void *workspace)
{
    char *base = (char *)workspace;
    ring_call *c;
    size_t work;
    base = align_memory(base);
    c = (ring_call *)(void *)base;
    memset(c, 0, sizeof *c);
    size_of_parts(p, g, ring, &work); /* It cannot fail, as it has passed before. */
    plan_ring(p, g != NULL, ring, work, &c->pl);
    c->base = base;
    c->t = ring->transport;
    c->stats = stats;
    c->own = *p;
    resolve_own(&c->own, c->pl.length);
    c->p = c->own;
    if (g) {
        c->own_g = *g;
        resolve_own_gradients(&c->own, &c->own_g, c->pl.length);
        c->g = c->own_g;
    } else {
        memset(base + c->pl.used, 0, (size_t)c->pl.slots);
        c->entries = (ring_entry *)(void *)(base + c->pl.entries);
    }
    stats->canonical = !g && is_canonical(&c->pl.cuts);
    return c;
}

static attn_status ring_run(const attn_params *p, const attn_gradients *g, int gradients,
                            const attn_ring *ring, void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_transport(ring, &why);
    attn_ring_stats stats;
    ring_call *c;
    if (status)
        return status;
    memset(&stats, 0, sizeof stats);
    stats.failed_rank = -1;
    status = check_ring(p, g, gradients, ring, workspace, bytes, &why);
    status = agree_on_status(ring->transport, &stats, status);
    if (!status)
        status = agree_on_call(ring->transport, &stats,
                               call_hash(p, gradients, ring, ring->transport->size));
    if (!status) {
        c = open_ring_call(p, g, ring, &stats, workspace);
        status = g ? ring_gradients(c) : ring_attention(c);
    }
    if (ring->stats)
        *ring->stats = stats;
    return status;
}

ATTN_API attn_status attn_ring_forward(const attn_params *p, const attn_ring *ring, void *workspace,
                                       size_t workspace_bytes)
{
    return ring_run(p, NULL, 0, ring, workspace, workspace_bytes);
}

ATTN_API attn_status attn_ring_backward(const attn_params *p, const attn_gradients *g,
                                        const attn_ring *ring, void *workspace,
                                        size_t workspace_bytes)
{
    return ring_run(p, g, 1, ring, workspace, workspace_bytes);
}
