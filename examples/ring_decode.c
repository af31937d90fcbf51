/* ring_decode.c - context-parallel decoding: the keys of one sequence lie over 1, 2, 3 and 5 ranks, which
 * are threads here, and every new token attends them all. Each rank has a paged cache, and the rank that
 * holds the position of a key appends it. The output has the same bits however many ranks there are.
 * SPDX-License-Identifier: MIT
 */
#include "virtual_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_Q = 4, HEADS_KV = 2, DIM = 16, CAPACITY = 8192, PROMPT = 3000, STEPS = 3, MOST = 8 };

typedef struct rank_result {
    uint32_t checksum; /* of the output of all steps, equal on all ranks */
    double bytes;      /* that this rank sent for one step */
    char why[200];
} rank_result;

/* Returns an element of q, k or v, which does not depend on the rank. */
static float element(int tensor, int head, int64_t position, int d)
{
    const uint32_t at = (uint32_t)(((position * 3 + tensor) * HEADS_Q + head) * DIM + d);
    return (float)((at * 2654435761u) >> 8) / 8388608.0f - 1.0f;
}

/* Appends keys and values of positions from .. to - 1 that this rank holds. */
static attn_status append(attn_cache *cache, const attn_ring_range *ranges, int64_t count,
                          int64_t from, int64_t to, rank_result *result)
{
    attn_status status = ATTN_OK;
    for (int64_t r = 0; r < count; r++)
        for (int64_t x = ranges[r].begin; x < ranges[r].begin + ranges[r].count; x++) {
            float k[HEADS_KV * DIM], v[HEADS_KV * DIM];
            attn_cache_step step = { .batch = 1, .seq_len = 1 };
            for (int i = 0; i < HEADS_KV * DIM; i++) {
                k[i] = element(1, i / DIM, x, i % DIM);
                v[i] = element(2, i / DIM, x, i % DIM);
            }
            step.k.data = k;
            step.v.data = v;
            if (x >= from && x < to && status == ATTN_OK)
                status = attn_cache_append(cache, &step, result->why, sizeof result->why);
        }
    return status;
}

/* Makes *p read the keys of this rank's cache, and leaves what all ranks must have alike as it was. */
static attn_status read_cache(attn_params *p, const attn_cache *cache, rank_result *result)
{
    const int32_t *kv_len = p->kv_len;
    const attn_status status =
        attn_cache_view(cache, 0, NULL, 1, p, NULL, 0, result->why, sizeof result->why);
    p->seq_len_kv = CAPACITY;
    p->kv_len = kv_len;
    p->key_base = NULL;
    p->shared_keys = 0;
    return status;
}

static void run_rank(void *arg, const attn_transport *transport)
{
    rank_result *result = (rank_result *)arg + transport->rank;
    float q[HEADS_Q * DIM], o[HEADS_Q * DIM];
    int32_t kv_len = PROMPT;
    attn_params p = { .batch = 1,
                      .num_heads_q = HEADS_Q,
                      .num_heads_kv = HEADS_KV,
                      .seq_len_q = 1,
                      .seq_len_kv = CAPACITY,
                      .head_dim = DIM,
                      .causal = 1 };
    attn_ring ring = { .layout = ATTN_RING_STRIPED };
    attn_ring_range ranges[MOST];
    attn_ring_info info;
    attn_ring_stats stats;
    int64_t count;
    size_t need;
    attn_cache cache = {
        .num_sequences = 1, .num_heads_kv = HEADS_KV, .head_dim = DIM, .page_size = 64
    };
    void *workspace, *memory;
    attn_status status;
    ring.transport = transport;
    ring.stats = &stats;
    p.kv_len = &kv_len;
    attn_ring_describe(&p, &ring, transport->rank, &info);
    attn_ring_ranges(&p, &ring, transport->rank, ranges, MOST, &count);
    cache.capacity = info.length > 0 ? info.length : 1;
    attn_cache_size(&cache, &need, result->why, sizeof result->why);
    memory = malloc(need);
    attn_cache_init(&cache, memory, need, result->why, sizeof result->why);
    p.q.data = q;
    p.o.data = o;
    read_cache(&p, &cache, result);
    attn_ring_decode_workspace_size(&p, &ring, &need);
    workspace = malloc(need);
    status = append(&cache, ranges, count, 0, PROMPT, result);
    for (int step = 0; step < STEPS && status == ATTN_OK; step++) {
        kv_len++;
        status =
            append(&cache, ranges, count, kv_len - 1, kv_len, result); /* the token's own key */
        if (status == ATTN_OK)
            status = read_cache(&p, &cache, result);
        if (status != ATTN_OK)
            break;
        for (int i = 0; i < HEADS_Q * DIM; i++)
            q[i] = element(0, i / DIM, kv_len - 1, i % DIM);
        status = attn_ring_decode_forward(&p, &ring, workspace, need);
        if (status != ATTN_OK) {
            attn_ring_decode_check(&p, &ring, workspace, need, result->why, sizeof result->why);
            break;
        }
        for (size_t i = 0; i < sizeof o; i++)
            result->checksum = (result->checksum ^ ((const unsigned char *)o)[i]) * 0x01000193u;
        result->bytes = stats.bytes_sent;
    }
    if (status == ATTN_OK)
        result->why[0] = '\0'; /* It was "ok". */
    free(workspace);
    free(memory);
}

int main(void)
{
    static const int sizes[] = { 1, 2, 3, 5 };
    uint32_t first = 0;
    for (int i = 0; i < 4; i++) {
        rank_result results[MOST];
        memset(results, 0, sizeof results);
        if (virtual_ranks_run(sizes[i], run_rank, results) != 0) {
            fprintf(stderr, "ring_decode: threads cannot be started\n");
            return 1;
        }
        first = i == 0 ? results[0].checksum : first;
        for (int r = 0; r < sizes[i]; r++)
            if (results[r].why[0] != '\0' || results[r].checksum != first) {
                fprintf(stderr, "ring_decode: rank %d: %s\n", r,
                        results[r].why[0] != '\0' ? results[r].why : "other bits");
                return 1;
            }
        printf("%d ranks  O %08x  rank 0 sends %.0f bytes a token\n", sizes[i],
               (unsigned)results[0].checksum, results[0].bytes);
    }
    return 0;
}
