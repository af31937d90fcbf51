/* src/ring/ring.c - context parallelism: the public functions.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "forward.c"
#include "backward.c"

/* cut_for makes *cuts those of a call about which somebody asks what `rank` holds. */
static attn_status cut_for(const attn_params *p, const attn_ring *ring, int rank, ring_cut *cuts)
{
    text why = text_in(NULL, 0);
    attn_status status;
    if (!ring || !ring->transport || rank < 0 || rank >= ring->transport->size)
        return ATTN_ERR_ARG;
    status = check_cut(p, ring, ring->transport->size, &why);
    if (!status)
        status = refuse_fields(p, BY_ANY_RING, "a ring of ranks", &why);
    if (!status)
        *cuts = cut_of(p, ring, ring->transport->size);
    return status;
}

ATTN_API attn_status attn_ring_ranges(const attn_params *p, const attn_ring *ring, int rank,
                                      attn_ring_range *ranges, int64_t most, int64_t *count)
{
    ring_walk w = { 0 };
    attn_status status;
    ring_cut cuts;
    if (!count || most < 0 || (most > 0 && !ranges))
        return ATTN_ERR_ARG;
    *count = 0;
    status = cut_for(p, ring, rank, &cuts);
    for (; !status && next_range(&cuts, rank, &w); ++*count)
        if (*count < most)
            ranges[*count] = w.range;
    return status;
}

ATTN_API attn_status attn_ring_describe(const attn_params *p, const attn_ring *ring, int rank,
                                        attn_ring_info *info)
{
    attn_status status;
    ring_share share;
    ring_cut cuts;
    int r;
    if (!info)
        return ATTN_ERR_ARG;
    memset(info, 0, sizeof *info);
    status = cut_for(p, ring, rank, &cuts);
    if (status)
        return status;
    share = share_of(&cuts, rank);
    info->canonical = is_canonical(&cuts);
    info->length = share.length;
    info->ranges = share.ranges;
    for (r = 0; r < cuts.ranks; r++)
        info->longest = max64(info->longest, share_of(&cuts, r).length);
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
    status = check_query(p, g, gradients, ring, &why);
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
    return verdict(status, buffer, &why);
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
    char *base = align_memory(workspace);
    ring_call *c = (ring_call *)(void *)base;
    size_t work;
    memset(c, 0, sizeof *c);
    size_of_parts(p, g, ring, &work); /* It cannot fail, as it has passed before. */
    plan_ring(p, g, ring, work, &c->pl);
    c->base = base;
    c->t = ring->transport;
    c->stats = stats;
    c->own = *p;
    resolve_own(&c->own, c->pl.length);
    c->p = c->own;
    c->p.layout = ATTN_LAYOUT_BHSD; /* Only buffers of parts are packed. */
    c->p.logits.data = NULL;        /* Calls of their own give logits. */
    if (g) {
        c->own_g = *g;
        resolve_own_gradients(&c->own, &c->own_g, c->pl.length);
        c->g = c->own_g;
    } else {
        memset(base + c->pl.used, 0, (size_t)c->pl.slots);
        c->entries = (ring_entry *)(void *)(base + c->pl.entries);
        choose_rows(c);
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
        status =
            agree_on_call(ring->transport, &stats,
                          mix_sums(call_hash(p, gradients, ring, ring->transport->size), p, g));
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
