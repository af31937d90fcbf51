/* tuned_bits.c - whether a text for p.tuning leaves the bits of results as they are.
 * SPDX-License-Identifier: MIT */
#include "tuned_bits.h"

#include <stdlib.h>
#include <string.h>

#include "../attn.h"
#include "../bench/cases/cases.h"

enum { BITS_HEADS = 4, BITS_ROWS = 96, BITS_KEYS = 1200, BITS_DIM = 48 };

typedef struct bits_buffers {
    char *q, *k, *v, *o[2]; /* o: without and with the text; stats behind it */
} bits_buffers;

static int backwards(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user;
    for (int64_t i = n; i-- > 0;)
        task(arg, i, 0);
    return 0;
}

/* One call into o; 0 when it fails. */
static int compute(const bits_buffers *b, int rows, int dtype, int workers, const char *text,
                   char *o)
{
    size_t bytes = 0;
    attn_params p = { 0 };
    p.batch = 1;
    p.num_heads_q = BITS_HEADS;
    p.num_heads_kv = 1;
    p.seq_len_q = rows;
    p.seq_len_kv = BITS_KEYS;
    p.head_dim = BITS_DIM;
    p.causal = 1;
    p.k.dtype = p.v.dtype = dtype;
    p.q.data = b->q;
    p.k.data = b->k;
    p.v.data = b->v;
    p.o.data = o;
    p.stats.data = o + sizeof(float) * BITS_HEADS * (size_t)rows * BITS_DIM;
    p.num_workers = workers;
    p.parallel_for = backwards;
    p.tuning = text;
    void *const workspace = attn_workspace_size(&p, &bytes) == ATTN_OK ? malloc(bytes) : NULL;
    const int ok = workspace && attn_forward(&p, workspace, bytes) == ATTN_OK;
    free(workspace);
    return ok;
}

static int same_bits_of(const bits_buffers *b, int rows, int dtype, int workers, const char *text,
                        int spoil)
{
    const size_t bytes = sizeof(float) * BITS_HEADS * (size_t)rows * BITS_DIM;
    data_fill(b->q, ATTN_F32, bytes / sizeof(float), DATA_Q, DATA_NORMAL, 1);
    data_fill(b->k, dtype, BITS_KEYS * BITS_DIM, DATA_K, DATA_NORMAL, 1);
    data_fill(b->v, dtype, BITS_KEYS * BITS_DIM, DATA_V, DATA_NORMAL, 1);
    if (!compute(b, rows, dtype, workers, NULL, b->o[0]))
        return 0;
    if (!compute(b, rows, dtype, workers, text, b->o[1]))
        return 0;
    if (spoil)
        b->o[1][bytes / 2] ^= 1;
    return !memcmp(b->o[0], b->o[1], bytes + sizeof(float) * BITS_HEADS * (size_t)rows * 2);
}

int tuning_same_bits(const char *text, int spoil)
{
    const size_t rows = sizeof(float) * BITS_HEADS * BITS_ROWS * BITS_DIM;
    const size_t all = rows + sizeof(float) * BITS_HEADS * BITS_ROWS * 2;
    const size_t keys = sizeof(float) * BITS_KEYS * BITS_DIM;
    const bits_buffers b = {
        malloc(rows), malloc(keys), malloc(keys), { malloc(all), malloc(all) }
    };
    int same = b.q && b.k && b.v && b.o[0] && b.o[1];
    for (int decode = 0; decode < 2; decode++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
            for (int workers = 1; workers <= 2; workers++)
                same =
                    same && same_bits_of(&b, decode ? 1 : BITS_ROWS, dtype, workers, text, spoil);
    free(b.q);
    free(b.k);
    free(b.v);
    free(b.o[0]);
    free(b.o[1]);
    return same;
}
