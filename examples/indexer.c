/* indexer.c - attention sparse by token: an indexer with small heads of its own scores all keys, and
 * attention reads the best 64 of 2048 (DeepSeek-V3.2 reads 2048). Here the index heads know the first
 * half of each key.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/indexer.c attn.c -lm -o indexer && ./indexer */
#include "../attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 2048, ROWS = 4, HEADS = 8, DIM = 32, INDEX_HEADS = 4, INDEX_DIM = 16, TOP = 64 };

static float q[HEADS * ROWS * DIM], k[TOKENS * DIM], v[TOKENS * DIM];
static float o[HEADS * ROWS * DIM], whole[HEADS * ROWS * DIM];
static float index_q[ROWS * INDEX_HEADS * INDEX_DIM], index_k[TOKENS * INDEX_DIM];
static float weights[ROWS * INDEX_HEADS];
static int32_t lists[ROWS * TOP];

/* Fills x with numbers in [-2, 2] that are equal on every machine. */
static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 16) / 16384.0f - 2.0f;
    }
}

static void fail(const char *sentence)
{
    puts(sentence);
    exit(1);
}

static void run(const attn_params *p)
{
    char text[200];
    size_t need;
    void *ws = attn_workspace_size(p, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_forward(p, ws, need) != ATTN_OK)
        fail(attn_check(p, ws, need, text, sizeof text));
    free(ws);
}

static void find_keys(void)
{
    char text[200];
    size_t need;
    void *ws;
    attn_params s = {0};                                 /* the index heads */
    attn_indexer x = {0};
    s.batch = 1;  s.num_heads_q = INDEX_HEADS;  s.num_heads_kv = 1;
    s.seq_len_q = ROWS;  s.seq_len_kv = TOKENS;  s.head_dim = INDEX_DIM;
    s.layout = ATTN_LAYOUT_BSHD;
    s.q.data = index_q;  s.k.data = index_k;
    s.causal = 1;
    x.weights = weights;                                 /* [batch, row, index head] */
    x.top_k = TOP;
    x.keys = lists;
    ws = attn_index_workspace_size(&s, &x, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_index(&s, &x, ws, need) != ATTN_OK)
        fail(attn_index_check(&s, &x, ws, need, text, sizeof text));
    free(ws);
}

/* Row i looks for one key, which all of its heads and index heads know. */
static int wanted(int i)
{
    return 100 + 450 * i;
}

static void make_rows(void)
{
    fill(k, TOKENS * DIM, 1);
    fill(v, TOKENS * DIM, 2);
    for (int j = 0; j < TOKENS; j++)
        for (int d = 0; d < INDEX_DIM; d++)
            index_k[j * INDEX_DIM + d] = k[j * DIM + d];
    for (int i = 0; i < ROWS; i++) {
        for (int h = 0; h < HEADS; h++)
            for (int d = 0; d < DIM; d++)
                q[(h * ROWS + i) * DIM + d] = (2.0f + 0.1f * (float)h) * k[wanted(i) * DIM + d];
        for (int h = 0; h < INDEX_HEADS; h++) {
            weights[i * INDEX_HEADS + h] = 1.0f / (float)(h + 1);
            for (int d = 0; d < INDEX_DIM; d++)
                index_q[(i * INDEX_HEADS + h) * INDEX_DIM + d] = k[wanted(i) * DIM + d];
        }
    }
}

int main(void)
{
    attn_params p = {0};
    double worst = 0, largest = 0;
    int found = 0;
    make_rows();
    p.batch = 1;  p.num_heads_q = HEADS;  p.num_heads_kv = 1;
    p.seq_len_q = ROWS;  p.seq_len_kv = TOKENS;  p.head_dim = DIM;
    p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = whole;
    p.causal = 1;
    run(&p);                                             /* all keys */

    find_keys();
    p.key_list.data = lists;                             /* the lists as they are */
    p.key_list.width = TOP;
    p.o.data = o;
    run(&p);

    for (int i = 0; i < ROWS; i++)
        for (int n = 0; n < TOP; n++)
            found += lists[i * TOP + n] == wanted(i);
    for (int n = 0; n < HEADS * ROWS * DIM; n++) {
        worst = fmax(worst, fabs((double)(o[n] - whole[n])));
        largest = fmax(largest, fabs((double)whole[n]));
    }
    printf("%d of %d keys a row: %d of %d rows have the key that they look for\n", TOP, TOKENS,
           found, ROWS);
    printf("O changes by %.1f %% of its largest number\n", 100 * worst / largest);
    return 0;
}
