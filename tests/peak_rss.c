/* peak_rss.c - runs one attention and prints by how much it raised the peak memory of the process.
 * SPDX-License-Identifier: MIT
 *
 *     peak_rss tiled|naive KEYS ROWS       prints: KEYS, BYTES of growth, BYTES of workspace
 *
 * One call per process, because a peak never falls. The inputs, the outputs and the workspace are
 * allocated first and the inputs written; what the workspace takes counts when the call touches it,
 * so the growth is what the call used, not what the caller asked for.
 */
#include "../attn.h"
#include "../bench/machine/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 16 };

/* Memory whose pages are present. */
static float *numbers(int64_t rows)
{
    const size_t count = (size_t)rows * DIM;
    float *x = malloc(count * sizeof *x);
    if (x == NULL)
        exit(3);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(i * 2654435761u % 1024) / 512.0f - 1.0f;
    return x;
}

int main(int argc, char **argv)
{
    attn_params p = { 0 };
    size_t need;
    int64_t before;
    void *workspace;
    if (argc != 4)
        return 2;
    p.impl = strcmp(argv[1], "naive") == 0 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    p.batch = p.num_heads_q = 1;
    p.seq_len_kv = strtoll(argv[2], NULL, 10);
    p.seq_len_q = strtoll(argv[3], NULL, 10);
    p.head_dim = DIM;
    p.naive_whole = 1;
    p.num_workers = 1;
    p.q.data = numbers(p.seq_len_q);
    p.k.data = numbers(p.seq_len_kv);
    p.v.data = numbers(p.seq_len_kv);
    p.o.data = numbers(p.seq_len_q);
    if (attn_workspace_size(&p, &need) != ATTN_OK || (workspace = malloc(need)) == NULL)
        return 3;
    before = peak_rss();
    if (attn_forward(&p, workspace, need) != ATTN_OK)
        return 4;
    printf("%lld %lld %lu\n", (long long)p.seq_len_kv, (long long)(peak_rss() - before),
           (unsigned long)need);
    return 0;
}
