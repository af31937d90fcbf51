/* mask_callback.c - a custom mask and a custom score, by callbacks.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/mask_callback.c attn.c -o mask_callback && ./mask_callback
 *
 * The mask is the strided pattern of sparse transformers: a query sees its last NEAR tokens and,
 * before them, every STRIDE-th. The classifier decides whole tiles where it can, so that the mask
 * callback runs only where the answer differs within a tile. The score callback fades old tokens by
 * the square of their distance. A second call with a boolean mask must give the same bits. */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 2, LENGTH = 300, DIM = 32, NEAR = 40, STRIDE = 8 };

typedef struct pattern {
    int64_t near, stride;
    float fade; /* natural logit lost per squared 100 tokens */
} pattern;

/* Returns nonzero if the pair is visible. */
static int strided_mask(void *user, const attn_pair *at)
{
    const pattern *const m = user;
    const int64_t distance = at->pos - at->n;
    if (distance < 0) return 0;
    return distance < m->near || at->n % m->stride == 0;
}

/* Classifies a rectangle of pairs, whose distances run from `nearest` to `farthest`. */
static int strided_tile(void *user, const attn_rect *at)
{
    const pattern *const m = user;
    const int64_t nearest = at->i_begin + at->offset - (at->j_end - 1);
    const int64_t farthest = at->i_end - 1 + at->offset - at->j_begin;
    if (farthest < 0) return ATTN_TILE_EMPTY;
    if (nearest >= 0 && farthest < m->near) return ATTN_TILE_FULL;
    return ATTN_TILE_PARTIAL;
}

/* Takes a natural logit and returns one. */
static float fade_score(void *user, const attn_pair *at, float logit)
{
    const pattern *const m = user;
    const float hundreds = (float)(at->pos - at->n) / 100.0f;
    return logit - m->fade * hundreds * hundreds;
}

static int run(attn_params *p, float *o)
{
    size_t bytes = 0;
    p->o.data = o;
    if (attn_workspace_size(p, &bytes) != ATTN_OK) return 0;
    void *const workspace = malloc(bytes);
    const attn_status status = attn_forward(p, workspace, bytes);
    free(workspace);
    return status == ATTN_OK;
}

int main(void)
{
    static float q[HEADS * LENGTH * DIM], k[HEADS * LENGTH * DIM], v[HEADS * LENGTH * DIM];
    static float by_callback[HEADS * LENGTH * DIM], by_table[HEADS * LENGTH * DIM];
    static uint8_t table[LENGTH][LENGTH];
    pattern m = {NEAR, STRIDE, 0.5f};
    attn_params p = {0};
    int visible = 0;
    for (int i = 0; i < HEADS * LENGTH * DIM; i++) {
        q[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
        k[i] = (float)(i * 53 % 103) / 51.0f - 1.0f;
        v[i] = (float)(i * 71 % 107) / 53.0f - 1.0f;
    }
    p.batch = 1;
    p.num_heads_q = HEADS;
    p.seq_len_q = p.seq_len_kv = LENGTH;
    p.head_dim = DIM;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.score = fade_score;
    p.callback_user = &m;

    p.mask = strided_mask;
    p.mask_tile = strided_tile;
    if (!run(&p, by_callback)) return 1;

    for (int64_t i = 0; i < LENGTH; i++) {
        for (int64_t j = 0; j < LENGTH; j++) {
            const attn_pair at = {0, 0, i, j, i, j};
            table[i][j] = (uint8_t)strided_mask(&m, &at);
            visible += table[i][j];
        }
    }
    p.mask = NULL;
    p.mask_tile = NULL;
    p.bool_mask.data = &table[0][0];
    p.bool_mask.stride_batch = p.bool_mask.stride_head = ATTN_STRIDE_BROADCAST;
    if (!run(&p, by_table)) return 1;

    const int same = !memcmp(by_callback, by_table, sizeof by_table);
    printf("%d of %d pairs are visible\n", visible, LENGTH * LENGTH);
    printf("callback and boolean mask give the same bits: %s\n", same ? "yes" : "no");
    printf("row 250 begins with %.6f\n", (double)by_callback[250 * DIM]);
    return same ? 0 : 1;
}
