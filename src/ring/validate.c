/* src/ring/validate.c - context parallelism: every sentence about bad input.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../backward/backward.c"
#include "layout.c"

static attn_status check_layout(const attn_ring *ring, text *why)
{
    static const size_rule rules[] = {
        { "ring.layout", offsetof(attn_ring, layout), 0, ATTN_RING_CUSTOM },
    };
    static const size_rule counts[] = {
        { "ring.shard", offsetof(attn_ring, shard), 0, RING_MOST_LENGTH },
    };
    const int custom = ring->layout == ATTN_RING_CUSTOM;
    attn_status status = check_enums(ring, rules, COUNT_OF(rules), why);
    if (!status)
        status = check_counts(ring, counts, COUNT_OF(counts), why);
    if (status)
        return status;
    if (custom && ring->shard)
        return bad_field(why, ATTN_ERR_ARG, "ring.shard", ring->shard,
                         " is set, but ring.layout is ATTN_RING_CUSTOM");
    if (custom && (!ring->ranges || !ring->first_range))
        return bad(why, ATTN_ERR_ARG,
                   "ring.layout is ATTN_RING_CUSTOM, but ring.ranges or first_range is NULL");
    if (!custom && (ring->ranges || ring->first_range))
        return bad_field(why, ATTN_ERR_ARG, "ring.layout", ring->layout,
                         " must be ATTN_RING_CUSTOM (3) when ring.ranges is given");
    return ATTN_OK;
}

static attn_status check_first_ranges(const attn_ring *ring, int ranks, text *why)
{
    int rank;
    if (ring->first_range[0] < 0)
        return bad_entry(why, "ring.first_range", 0, ring->first_range[0], " must be at least 0");
    for (rank = 1; rank <= ranks; rank++)
        if (ring->first_range[rank] < ring->first_range[rank - 1])
            return bad_after(why, "ring.first_range", rank, ring->first_range[rank],
                             " is below the entry before it", ring->first_range[rank - 1]);
    return ATTN_OK;
}

static attn_status check_ranges_of(const attn_ring *ring, int rank, int64_t length, text *why)
{
    int64_t i, end = 0;
    for (i = ring->first_range[rank]; i < ring->first_range[rank + 1]; i++) {
        const attn_ring_range *range = &ring->ranges[i];
        if (range->count < 0 || range->count > length)
            return bad_entry(why, "ring.ranges.count", i, range->count,
                             " must be from 0 to seq_len_kv");
        if (range->begin < end || range->begin > length - range->count)
            return bad_entry(why, "ring.ranges.begin", i, range->begin,
                             " must follow the range before it, and end within seq_len_kv");
        end = range->begin + range->count;
    }
    return ATTN_OK;
}

/* check_custom refuses a CUSTOM layout unless every position is in one range of it. */
static attn_status check_custom(const attn_ring *ring, int ranks, int64_t length, text *why)
{
    attn_status status = check_first_ranges(ring, ranks, why);
    int64_t x = 0, end, i, visited = 0, filled = 0;
    int rank;
    for (rank = 0; rank < ranks && !status; rank++)
        status = check_ranges_of(ring, rank, length, why);
    if (status)
        return status;
    for (i = ring->first_range[0]; i < ring->first_range[ranks]; i++)
        filled += ring->ranges[i].count > 0;
    for (; x < length; x = end, visited++) {
        end = custom_end(ring, ranks, x, &rank);
        if (end < 0)
            return bad_field(why, ATTN_ERR_ARG, "ring.ranges: position", x,
                             " is in no range, or inside one that begins in another");
    }
    if (visited != filled)
        return bad_field(why, ATTN_ERR_ARG, "ring.ranges: number", filled,
                         " of ranges that are not empty: some positions are in two");
    return ATTN_OK;
}

/* check_ring_params refuses what a ring does not take. */
static attn_status check_ring_params(const attn_params *p, text *why)
{
    static const size_rule batch = { "batch", offsetof(attn_params, batch), 0, MOST };
    const attn_status status = check_counts(p, &batch, 1, why);
    if (status)
        return status;
    if (p->seq_len_kv < 0 || p->seq_len_kv > RING_MOST_LENGTH)
        return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_kv", p->seq_len_kv,
                         " must be from 0 to 2^45 for a ring");
    if (p->impl == ATTN_IMPL_NAIVE)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " (naive): a ring is built for ATTN_IMPL_TILED");
    return ATTN_OK;
}

/* check_cut checks parameters and layout for `ranks` ranks, but not the tensors. */
static attn_status check_cut(const attn_params *p, const attn_ring *ring, int ranks, text *why)
{
    attn_status status = ATTN_OK;
    if (!p)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    if (ranks < 1 || ranks > RING_MOST_RANKS)
        return bad_field(why, ATTN_ERR_ARG, "transport.size", ranks, " must be from 1 to 4096");
    status = check_ring_params(p, why);
    if (!status)
        status = check_layout(ring, why);
    if (!status && ring->layout == ATTN_RING_CUSTOM)
        status = check_custom(ring, ranks, p->seq_len_kv, why);
    return status;
}

/* Without this no agreement is possible. */
static attn_status check_transport(const attn_ring *ring, text *why)
{
    const attn_transport *t = ring ? ring->transport : NULL;
    if (!ring)
        return bad(why, ATTN_ERR_ARG, "ring is NULL");
    if (!t)
        return bad(why, ATTN_ERR_ARG, "ring.transport is NULL");
    if (!t->agree || !t->begin || !t->end || !t->cancel)
        return bad(why, ATTN_ERR_ARG, "transport.agree, begin, end or cancel is NULL");
    if (t->size < 1 || t->size > RING_MOST_RANKS)
        return bad_field(why, ATTN_ERR_ARG, "transport.size", t->size, " must be from 1 to 4096");
    if (t->rank < 0 || t->rank >= t->size)
        return bad_field(why, ATTN_ERR_ARG, "transport.rank", t->rank,
                         " must be from 0 to size - 1");
    return ATTN_OK;
}

static attn_status check_ring_gradients(const attn_params *p, const attn_gradients *g, text *why)
{
    if (!g)
        return bad(why, ATTN_ERR_ARG, "gradients is NULL");
    if (!p->o.data)
        return bad(why, ATTN_ERR_ARG, "o.data is NULL: gradients need the o of the forward call");
    return ATTN_OK;
}

/* check_ring_logits wants what the parts of a ring can give. */
static attn_status check_ring_logits(const attn_params *p, const attn_ring *ring, text *why)
{
    if (p->logits.data && p->logits.stage == ATTN_LOGITS_SOFTMAX && !ring->gather)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "logits.stage", p->logits.stage,
                         " (probabilities) needs all keys at once: set ring.gather");
    if (p->logits.data && p->seq_len_kv > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_kv", p->seq_len_kv,
                         " must be below 2^31 where a ring gives logits");
    return ATTN_OK;
}

static attn_status check_rows_cut(const attn_params *p, text *why)
{
    if (p->seq_len_q == p->seq_len_kv)
        return ATTN_OK;
    put_field(why, "seq_len_q", p->seq_len_q);
    put(why, " must be ");
    put_field(why, "seq_len_kv", p->seq_len_kv);
    return bad(why, ATTN_ERR_UNSUPPORTED, ": a ring cuts rows and keys alike");
}

/* check_level checks what every call of a level over ranks depends on; the level is `taker`. */
static attn_status check_level(const attn_params *p, const attn_ring *ring, unsigned taker,
                               const char *level, text *why)
{
    attn_status status = check_transport(ring, why);
    if (!status)
        status = check_cut(p, ring, ring->transport->size, why);
    return status ? status : refuse_fields(p, taker, level, why);
}

/* check_query checks what a size depends on; `gradients` tells which of the two calls it is for. */
static attn_status check_query(const attn_params *p, const attn_gradients *g, int gradients,
                               const attn_ring *ring, text *why)
{
    attn_status status = check_level(p, ring, BY_RING, "a ring of ranks", why);
    if (!status)
        status = check_rows_cut(p, why);
    if (status)
        return status;
    return gradients ? check_ring_gradients(p, g, why) : check_ring_logits(p, ring, why);
}

/* take_local makes the call one of this rank's tensors: a part, packed as they are. */
static void take_local(attn_params *local, const attn_params *p, const attn_ring *ring,
                       int64_t length)
{
    *local = *p;
    local->backend = NULL; /* Only the arguments are checked. */
    local->part.rows = local->part.keys = 1;
    local->part.row_count = local->part.key_count = length;
    if (local->logits.stage == ATTN_LOGITS_SOFTMAX) /* The parts of the call may have all keys. */
        local->logits.stage = ATTN_LOGITS_BIAS;
    if (ring->fetch)
        local->k.data = local->v.data = &not_read;
}

/* check_tensors_held gives the sentence of an attn_forward or attn_backward without a workspace.
 * The call would run if that is all that is missing. Nonzero `computed` means that the level computes
 * statistics itself. */
OWN_FRAME static attn_status check_tensors_held(const attn_params *p, const attn_gradients *g,
                                                const attn_ring *ring, int64_t length, int computed,
                                                text *why)
{
    attn_params local;
    attn_status status;
    take_local(&local, p, ring, length);
    if (computed)
        local.stats.data = (void *)(uintptr_t)&not_read;
    status = g ? attn_backward(&local, g, NULL, 0) : attn_forward(&local, NULL, 0);
    if (status == ATTN_OK || status == ATTN_ERR_WORKSPACE)
        return ATTN_OK;
    if (g && why->left)
        attn_backward_check(&local, g, NULL, 0, why->at, why->left);
    else if (why->left)
        attn_check(&local, NULL, 0, why->at, why->left);
    return status;
}
