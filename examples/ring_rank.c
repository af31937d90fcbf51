/* ring_rank.c - see ring_rank.h.
 * SPDX-License-Identifier: MIT
 */
#include "ring_rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_Q = 2, HEADS_KV = 1, DIM = 16, MOST_RANGES = 64 };

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Returns an element of tensor 0 (q), 1 (k) or 2 (v), which does not depend on the rank. */
static float element(int tensor, int64_t head, int64_t position, int64_t d)
{
    const uint64_t at = (uint64_t)(((position * 3 + tensor) * HEADS_Q + head) * DIM + d);
    return (float)(mix(at + 1) >> 40) / 8388608.0f - 1.0f;
}

/* Makes [head, position, dim] for the positions that the ranges name. */
static float *make_tensor(int tensor, int64_t heads, int64_t length,
                          const attn_ring_range *ranges, int64_t count)
{
    float *data = malloc((size_t)(heads * length * DIM + 1) * sizeof *data), *to = data;
    for (int64_t h = 0; data != NULL && h < heads; h++)
        for (int64_t r = 0; r < count; r++)
            for (int64_t x = 0; x < ranges[r].count; x++)
                for (int64_t d = 0; d < DIM; d++)
                    *to++ = element(tensor, h, ranges[r].begin + x, d);
    return data;
}

static uint64_t checksum_of(const float *o, const attn_ring_range *ranges, int64_t count)
{
    uint64_t sum = 0;
    for (int64_t h = 0; h < HEADS_Q; h++)
        for (int64_t r = 0; r < count; r++)
            for (int64_t x = 0; x < ranges[r].count; x++)
                for (int64_t d = 0; d < DIM; d++, o++) {
                    uint32_t bits;
                    memcpy(&bits, o, sizeof bits);
                    sum += mix(mix((uint64_t)(((ranges[r].begin + x) * HEADS_Q + h) * DIM + d)) +
                               bits);
                }
    return sum;
}

void ring_rank_run(ring_rank *r, const attn_transport *transport)
{
    attn_params p = {0};
    attn_ring ring = {0};
    attn_ring_range ranges[MOST_RANGES];
    int64_t count = 0;
    size_t need = 0;
    float *q, *k, *v, *o;
    void *workspace;

    p.batch = 1;
    p.num_heads_q = HEADS_Q;
    p.num_heads_kv = HEADS_KV;
    p.seq_len_q = p.seq_len_kv = r->positions; /* lengths are those of the whole sequence */
    p.head_dim = DIM;
    p.causal = 1;
    ring.layout = r->layout;
    ring.arrival = r->arrival;
    ring.transport = transport;
    ring.stats = &r->stats;

    attn_ring_ranges(&p, &ring, transport->rank, ranges, MOST_RANGES, &count);
    r->length = 0;
    for (int64_t i = 0; i < count && i < MOST_RANGES; i++)
        r->length += ranges[i].count;
    q = make_tensor(0, HEADS_Q, r->length, ranges, count);
    k = make_tensor(1, HEADS_KV, r->length, ranges, count);
    v = make_tensor(2, HEADS_KV, r->length, ranges, count);
    o = malloc((size_t)(HEADS_Q * r->length * DIM + 1) * sizeof *o);
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;

    attn_ring_workspace_size(&p, &ring, &need);
    workspace = malloc(need);
    attn_ring_check(&p, &ring, workspace, need, r->why, sizeof r->why);
    if (attn_ring_forward(&p, &ring, workspace, need) == ATTN_OK)
        r->checksum = checksum_of(o, ranges, count);
    else if (strcmp(r->why, "ok") == 0)
        snprintf(r->why, sizeof r->why, "rank %d failed", r->stats.failed_rank);
    free(workspace);
    free(q);
    free(k);
    free(v);
    free(o);
}
