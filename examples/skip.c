/* skip.c - long context with p.skip: rows leave out the blocks of keys that hold too little of their
 * probability, and tell how much that was at most. The keys look like those of a language model: all
 * rows look at the first keys (the sink) and at their neighbours, and each looks for one key between.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/skip.c attn.c -lm -o skip && ./skip [KEYS ROWS HEAD_DIM]
 *
 * With sizes it also tells times: of the fastest of five calls each, taken in turn. */
#include "../attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SINK = 4, NEIGHBOURS = 256, REGION = 4096, LOUD = 64 };

static const float below = 1.0f / 1024;          /* the largest share that a row may lose */

/* Numbers in [-1, 1) that are equal on every machine. */
static float number(void)
{
    static uint32_t seed = 1;
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 16) / 32768.0f - 1.0f;
}

static void *room(size_t bytes)
{
    void *memory = calloc(bytes, 1);
    if (!memory)
        exit(1);
    return memory;
}

/* Queries and keys have their first number in common: it makes the logits of a key high or low. */
static void fill(float *q, float *k, float *v, int64_t rows, int64_t keys, int64_t dim)
{
    const float root = sqrtf((float)dim);
    for (int64_t n = 0; n < rows * dim; n++)
        q[n] = n % dim == 0 ? root : number();
    for (int64_t j = 0; j < keys; j++) {
        const int loud = j % REGION < LOUD && j >= REGION;
        const int near = j >= keys - rows - NEIGHBOURS;
        for (int64_t d = 0; d < dim; d++) {
            k[j * dim + d] = 1.5f * number();
            v[j * dim + d] = number();
        }
        k[j * dim] = j < SINK ? 20.0f : near ? 12.0f : loud ? 8.0f + 4.0f * number() : number();
    }
}

static double run(const attn_params *p, void *workspace, size_t bytes)
{
    char text[200];
    const clock_t begin = clock();
    if (attn_forward(p, workspace, bytes) != ATTN_OK) {
        puts(attn_check(p, workspace, bytes, text, sizeof text));
        exit(1);
    }
    return (double)(clock() - begin) / CLOCKS_PER_SEC;
}

int main(int argc, char **argv)
{
    const int64_t keys = argc > 3 ? atol(argv[1]) : 8192, rows = argc > 3 ? atol(argv[2]) : 24;
    const int64_t dim = argc > 3 ? atol(argv[3]) : 32;
    const size_t row = (size_t)dim * sizeof(float);
    float *q = room((size_t)rows * row), *k = room((size_t)keys * row), *v = room((size_t)keys * row);
    float *all = room((size_t)rows * row), *kept = room((size_t)rows * row);
    float *dropped = room((size_t)rows * sizeof *dropped);
    double most = 0, off = 0, share = 0, largest = 0, fast[2] = {1e9, 1e9};
    float *lse[2];
    size_t bytes, more;
    void *workspace;
    attn_params p = {0}, s;
    fill(q, k, v, rows, keys, dim);
    p.batch = 1;  p.num_heads_q = 1;
    p.seq_len_q = rows;  p.seq_len_kv = keys;  p.head_dim = dim;
    p.q.data = q;  p.k.data = k;  p.v.data = v;
    p.causal = 1;
    s = p;
    p.o.data = all;  s.o.data = kept;
    p.lse.data = lse[0] = room((size_t)rows * sizeof(float));
    s.lse.data = lse[1] = room((size_t)rows * sizeof(float));
    s.skip.below = below;
    s.skip.dropped = dropped;
    if (attn_workspace_size(&p, &bytes) != ATTN_OK || attn_workspace_size(&s, &more) != ATTN_OK)
        return 1;
    bytes = bytes > more ? bytes : more;
    workspace = room(bytes);
    for (int n = 0; n < (argc > 3 ? 5 : 1); n++) {
        fast[0] = fmin(fast[0], run(&p, workspace, bytes));
        fast[1] = fmin(fast[1], run(&s, workspace, bytes));
    }
    for (int64_t n = 0; n < keys * dim; n++)
        largest = fmax(largest, fabs((double)v[n]));
    for (int64_t i = 0; i < rows; i++) {
        most = fmax(most, (double)dropped[i]);
        share = fmax(share, 1 - exp((double)(lse[1][i] - lse[0][i])));
    }
    for (int64_t n = 0; n < rows * dim; n++)
        off = fmax(off, fabs((double)(all[n] - kept[n])));
    printf("%.6f of a row may be left out\n", (double)below);
    printf("bound of the row that lost most: %.6f; by its log-sum-exp it lost %.5f\n", most, share);
    printf("O is off by %.6f at most, %.6f by the bound\n", off, 2 * most * largest);
    if (argc > 3)
        printf("all keys %.2f ms, with skipping %.2f ms: %.2f times as fast\n", 1e3 * fast[0],
               1e3 * fast[1], fast[0] / fast[1]);
    return 0;
}
