/* sparse.c - block-sparse attention: the patterns of BigBird and of random cells alone, each built
 * once and compared with a boolean mask of single pairs, which gives the same bits.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/sparse.c attn.c -o sparse && ./sparse */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 2, TOKENS = 600, DIM = 16, CELL = 32, SIZE = HEADS * TOKENS * DIM };

static float q[SIZE], k[SIZE], v[SIZE];

/* Fills x with numbers in [-1, 1] that are equal on every machine. */
static void fill(float *x, uint32_t seed)
{
    for (size_t i = 0; i < SIZE; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 16) / 32768.0f - 1.0f;
    }
}

static void stop(const char *why)
{
    puts(why);
    exit(1);
}

static attn_params call(float *o)
{
    attn_params p = {0};
    p.batch = 1;  p.num_heads_q = HEADS;
    p.seq_len_q = TOKENS;  p.seq_len_kv = TOKENS;  p.head_dim = DIM;
    p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;
    return p;
}

static void run(const attn_params *p)
{
    char text[200];
    size_t need;
    void *ws = attn_workspace_size(p, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_forward(p, ws, need) != ATTN_OK)
        stop(attn_check(p, ws, need, text, sizeof text));
    free(ws);
}

/* Shows the pairs of the cells, one byte a pair. */
static void spread(const attn_pattern_info *info, const int32_t *offsets, const int32_t *columns,
                   uint8_t *pairs)
{
    memset(pairs, 0, (size_t)TOKENS * TOKENS);
    for (int64_t i = 0; i < TOKENS; i++)
        for (int32_t at = offsets[i / CELL]; at < offsets[i / CELL + 1]; at++)
            for (int64_t j = columns[at] * CELL; j < (columns[at] + 1) * CELL && j < TOKENS; j++)
                pairs[i * TOKENS + j] = 1;
    printf("%d of %d cells, ", (int)info->num_columns, (int)(info->rows * info->columns));
}

/* Returns nonzero if the pattern gives other bits than the mask of its pairs. */
static int compare(const char *name, attn_pattern t)
{
    static float by_cells[SIZE], by_pairs[SIZE];
    static uint8_t pairs[TOKENS * TOKENS];
    attn_params cells = call(by_cells), mask = call(by_pairs);
    attn_pattern_info info;
    char why[200];
    int32_t *offsets, *columns;
    int wrong;
    t.seq_len_q = t.seq_len_kv = TOKENS;
    t.block_q = t.block_k = CELL;
    if (attn_pattern_measure(&t, &info, why, sizeof why) != ATTN_OK)
        stop(why);
    offsets = malloc((size_t)info.num_offsets * sizeof *offsets);
    columns = malloc((size_t)info.num_columns * sizeof *columns);
    if (!offsets || !columns)
        stop("no memory");
    if (attn_pattern_build(&t, offsets, info.num_offsets, columns, info.num_columns, why,
                           sizeof why) != ATTN_OK)
        stop(why);
    if (attn_pattern_use(&t, offsets, columns, &cells) != ATTN_OK)
        stop("the pattern is of another length");
    run(&cells);
    printf("%s: ", name);
    spread(&info, offsets, columns, pairs);
    mask.bool_mask.data = pairs;
    mask.bool_mask.stride_batch = mask.bool_mask.stride_head = ATTN_STRIDE_BROADCAST; /* shared */
    run(&mask);
    wrong = memcmp(by_cells, by_pairs, sizeof by_cells) != 0;
    printf("%s\n", wrong ? "other bits than the mask of pairs" : "the bits of the mask of pairs");
    free(columns);
    free(offsets);
    return wrong;
}

int main(void)
{
    fill(q, 1);
    fill(k, 2);
    fill(v, 3);
    int wrong = compare("BigBird: window 3, global 2, random 3",
                        attn_pattern_bigbird(3, 2, 3, 1234));
    wrong |= compare("the diagonal and 4 random cells", attn_pattern_random(4, 1234));
    return wrong;
}
