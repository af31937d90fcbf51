/* src/ring/agree.c - agreement of the ranks: before anything is sent, with each exchange, before outputs are written.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "plan.c"

static double ring_seconds(const attn_transport *t)
{
    return t->seconds ? t->seconds(t->user) : 0;
}

/* agree_on_status finds the status of the lowest rank that has one, which gives the largest
 * number. */
static attn_status agree_on_status(const attn_transport *t, attn_ring_stats *stats,
                                   attn_status status)
{
    const double from = ring_seconds(t);
    const int worst = t->agree(t->user, status ? (t->size - t->rank) * 16 + (int)status : 0);
    stats->seconds += ring_seconds(t) - from;
    if (worst > 0) {
        stats->failed_rank = t->size - worst / 16;
        return (attn_status)(worst % 16);
    }
    if (status || worst < 0)
        stats->failed_rank = t->rank;
    return worst < 0 ? ATTN_ERR_CALLBACK : status;
}

static uint32_t mix_in(uint32_t hash, int64_t value)
{
    const uint64_t u = (uint64_t)value * 0x9e3779b97f4a7c15u;
    return (hash ^ (uint32_t)(u >> 32) ^ (uint32_t)u) * 0x01000193u + 1;
}

static uint32_t mix_layout(uint32_t hash, const attn_ring *ring, int ranks)
{
    const int custom = ring->layout == ATTN_RING_CUSTOM;
    int64_t i;
    hash = mix_in(hash, ring->layout);
    hash = mix_in(hash, ring->gather != 0);
    hash = mix_in(hash, ring->arrival != 0);
    hash = mix_in(hash, ring->shard);
    for (i = custom ? ring->first_range[0] : 0; custom && i < ring->first_range[ranks]; i++) {
        hash = mix_in(hash, ring->ranges[i].begin);
        hash = mix_in(hash, ring->ranges[i].count);
    }
    return hash;
}

/* The numbers of an array. */
static uint32_t mix_array(uint32_t hash, const call_field *f, const attn_params *p,
                          const call_axes *x)
{
    const int64_t outer = x->count[f->axis[0]], inner = x->count[f->axis[3]];
    const size_t bytes = (size_t)element_bytes(f, p);
    const char *data = field_data(f, p);
    ptrdiff_t stride[4];
    int64_t i, k;
    resolve_strides_of(f, p, x, stride);
    for (i = 0; i < outer; i++)
        for (k = 0; k < inner; k++) {
            int64_t number = 0;
            memcpy(&number, data + (i * stride[0] + k) * (ptrdiff_t)bytes, bytes);
            hash = mix_in(hash, number);
        }
    return hash;
}

/* What every rank must have set alike, or messages would not fit or results mean nothing. */
OWN_FRAME static uint32_t call_hash(const attn_params *p, int gradients, const attn_ring *ring,
                                    int ranks)
{
    const call_axes x = axes_of_call(p);
    uint32_t hash = mix_in(mix_layout(0x811c9dc5u, ring, ranks), gradients);
    int i;
    for (i = 0; i < COUNT_OF(call_fields); i++) {
        const call_field *f = &call_fields[i];
        if (f->takers & (BY_RANKS | BY_RANKS_SET))
            hash = mix_in(hash, field_number(f, p));
        if (f->takers & BY_RANKS && IS_ARRAY(f) && field_data(f, p))
            hash = mix_array(hash, f, p, &x);
    }
    return hash;
}

/* mix_sums adds which sums over rows a call has, and of what size. */
OWN_FRAME static uint32_t mix_sums(uint32_t hash, const attn_params *p, const attn_gradients *g)
{
    ring_plan pl;
    int axis;
    memset(&pl, 0, sizeof pl);
    if (!g)
        return hash;
    plan_sums(p, g, &pl);
    hash = mix_in(hash, pl.sink_floats);
    hash = mix_in(hash, pl.slope_floats);
    for (axis = 0; axis < 4; axis++)
        hash = mix_in(hash, g->dbias.data ? pl.bias.kept[axis] : -1);
    return hash;
}

/* agree_on_call relies on this: all numbers are equal if the largest and the smallest are. */
static attn_status agree_on_call(const attn_transport *t, attn_ring_stats *stats, uint32_t hash)
{
    const int most = 0x3fffffff, own = (int)(hash & 0x3fffffffu);
    const int high = t->agree(t->user, own), low = t->agree(t->user, most - own);
    const int failed = high < 0 || low < 0;
    stats->failed_rank = failed ? t->rank : -1;
    if (failed)
        return ATTN_ERR_CALLBACK;
    return high == most - low ? ATTN_OK : ATTN_ERR_ARG;
}

/* A ring_message is a message from the beginning of a buffer on. */
typedef struct ring_message {
    const char *send;
    char *receive;
    int64_t send_bytes, receive_bytes;
} ring_message;

/* begin_exchange begins an exchange if no rank has failed, and returns what they agree on. */
static attn_status begin_exchange(const attn_transport *t, attn_ring_stats *stats,
                                  const ring_message *m, attn_status status)
{
    const double from = ring_seconds(t);
    int begun = 0;
    if (!status) {
        begun = t->begin(t->user, m->send, (size_t)m->send_bytes, m->receive,
                         (size_t)m->receive_bytes) == 0;
        status = begun ? ATTN_OK : ATTN_ERR_CALLBACK;
    }
    stats->seconds += ring_seconds(t) - from;
    status = agree_on_status(t, stats, status);
    if (status && begun)
        t->cancel(t->user);
    if (status)
        return status;
    stats->exchanges++;
    stats->bytes_sent += (double)m->send_bytes;
    stats->bytes_received += (double)m->receive_bytes;
    return ATTN_OK;
}

/* end_exchange ends it, whatever this rank's status is. */
static attn_status end_exchange(const attn_transport *t, attn_ring_stats *stats, attn_status status)
{
    const double from = ring_seconds(t);
    const int failed = t->end(t->user);
    stats->seconds += ring_seconds(t) - from;
    return status ? status : failed ? ATTN_ERR_CALLBACK : ATTN_OK;
}
