/* canon_cost.c - times the tiled path at three score factors. tools/canon_cost.sh builds it with
 * changed constants of the canon and compares the times.
 * SPDX-License-Identifier: MIT
 *
 * usage: canon_cost [seq_len [head_dim]]   prints milliseconds (minimum of 7) at x1, x4, x16
 */
#define _POSIX_C_SOURCE 199309L
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Returns a sum of four uniform numbers, scaled to a standard deviation of one. */
static float normal(uint64_t *state)
{
    float sum = -2.0f;
    int i;
    for (i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        sum += (float)(*state >> 40) / 16777216.0f;
    }
    return sum * 1.7320508f;
}

static double best_ms(const attn_params *p, void *workspace, size_t bytes)
{
    double best = 1e9;
    int r;
    for (r = 0; r < 7; r++) {
        const double start = now();
        if (attn_forward(p, workspace, bytes) != ATTN_OK)
            exit(1);
        best = now() - start < best ? now() - start : best;
    }
    return best * 1e3;
}

int main(int argc, char **argv)
{
    const int64_t s = argc > 1 ? atoi(argv[1]) : 2048, d = argc > 2 ? atoi(argv[2]) : 128;
    const size_t n = (size_t)(s * d);
    float *data = malloc(4 * n * sizeof *data);
    attn_params p = { 0 };
    uint64_t state = 1;
    size_t i, bytes;
    void *workspace;
    int factor;
    if (!data)
        return 1;
    p.batch = p.num_heads_q = 1;
    p.seq_len_q = p.seq_len_kv = s;
    p.head_dim = d;
    p.q.data = data;
    p.k.data = data + n;
    p.v.data = data + 2 * n;
    p.o.data = data + 3 * n;
    if (attn_workspace_size(&p, &bytes) != ATTN_OK || !(workspace = malloc(bytes)))
        return 1;
    for (i = 0; i < 3 * n; i++)
        data[i] = normal(&state);
    for (factor = 1; factor <= 16; factor *= 4) {
        printf("%.2f ", best_ms(&p, workspace, bytes));
        for (i = 0; i < n; i++)
            data[i] *= 4.0f;
    }
    printf("\n");
    free(workspace);
    free(data);
    return 0;
}
