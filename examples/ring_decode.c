/* ring_decode.c - context-parallel decoding: the keys of one sequence lie over 1, 2, 3 and 5 ranks, which
 * are threads here, and every new token attends them all. Each key is appended by the rank that
 * holds its position. The output has the same bits however many ranks there are.
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
static void append(float *k, float *v, const attn_ring_range *ranges, int64_t count, int64_t length,
                   int64_t from, int64_t to)
{
    int64_t at = 0;
    for (int64_t r = 0; r < count; r++)
        for (int64_t x = ranges[r].begin; x < ranges[r].begin + ranges[r].count; x++, at++)
            for (int h = 0; x >= from && x < to && h < HEADS_KV; h++)
                for (int d = 0; d < DIM; d++) {
                    k[(h * length + at) * DIM + d] = element(1, h, x, d);
                    v[(h * length + at) * DIM + d] = element(2, h, x, d);
                }
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
    float *k, *v;
    void *workspace;
    ring.transport = transport;
    ring.stats = &stats;
    p.kv_len = &kv_len;
    attn_ring_describe(&p, &ring, transport->rank, &info);
    attn_ring_ranges(&p, &ring, transport->rank, ranges, MOST, &count);
    k = calloc((size_t)(HEADS_KV * info.length * DIM + 1), sizeof *k);
    v = calloc((size_t)(HEADS_KV * info.length * DIM + 1), sizeof *v);
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    attn_ring_decode_workspace_size(&p, &ring, &need);
    workspace = malloc(need);
    append(k, v, ranges, count, info.length, 0, PROMPT);
    for (int step = 0; step < STEPS; step++) {
        kv_len++;
        append(k, v, ranges, count, info.length, kv_len - 1, kv_len); /* the token's own key */
        for (int i = 0; i < HEADS_Q * DIM; i++)
            q[i] = element(0, i / DIM, kv_len - 1, i % DIM);
        if (attn_ring_decode_forward(&p, &ring, workspace, need) != ATTN_OK) {
            attn_ring_decode_check(&p, &ring, workspace, need, result->why, sizeof result->why);
            break;
        }
        for (size_t i = 0; i < sizeof o; i++)
            result->checksum = (result->checksum ^ ((const unsigned char *)o)[i]) * 0x01000193u;
        result->bytes = stats.bytes_sent;
    }
    free(workspace);
    free(k);
    free(v);
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
