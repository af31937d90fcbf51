/* replace_naive_loop.c - a textbook attention loop, replaced in five steps.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/replace_naive_loop.c attn.c -o replace_naive_loop -lm && ./replace_naive_loop
 *
 * The old code keeps tokens as [token][head][dim], the layout of an interleaved model, and a matrix
 * of LENGTH x LENGTH scores. The steps keep that layout. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../attn.h" /* step 1: copy attn.h and attn.c into the project and include the header */

enum { HEADS = 4, LENGTH = 200, DIM = 64, WIDTH = HEADS * DIM };

static float scores[LENGTH][LENGTH];

/* The loop to be replaced: row i of each head looks at the tokens up to its own. */
static void old_attention(const float *q, const float *k, const float *v, float *o)
{
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < LENGTH; i++) {
            const float *const qi = q + i * WIDTH + h * DIM;
            float *const oi = o + i * WIDTH + h * DIM;
            float largest = -INFINITY, sum = 0;
            for (int j = 0; j <= i; j++) {
                float s = 0;
                for (int d = 0; d < DIM; d++) s += qi[d] * k[j * WIDTH + h * DIM + d];
                scores[i][j] = s / sqrtf((float)DIM);
                largest = fmaxf(largest, scores[i][j]);
            }
            for (int j = 0; j <= i; j++) {
                scores[i][j] = expf(scores[i][j] - largest);
                sum += scores[i][j];
            }
            for (int d = 0; d < DIM; d++) {
                oi[d] = 0;
                for (int j = 0; j <= i; j++)
                    oi[d] += scores[i][j] / sum * v[j * WIDTH + h * DIM + d];
            }
        }
    }
}

static int new_attention(const float *q, const float *k, const float *v, float *o)
{
    /* step 2: the sizes; a field that is not set means "off" or "the usual" */
    attn_params p = {0};
    p.batch = 1;
    p.num_heads_q = HEADS;
    p.seq_len_q = p.seq_len_kv = LENGTH;
    p.head_dim = DIM;

    /* step 3: the tensors where they are, [batch, seq, head, dim], no copies */
    p.layout = ATTN_LAYOUT_BSHD;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;

    /* step 4: the mask of the old loop, `j <= i` */
    p.causal = 1;

    /* step 5: one workspace, kept as long as you like, and the call; the matrix of scores can go */
    size_t bytes = 0;
    if (attn_workspace_size(&p, &bytes) != ATTN_OK) return 0;
    void *const workspace = malloc(bytes);
    const attn_status status = attn_forward(&p, workspace, bytes);
    free(workspace);
    return status == ATTN_OK;
}

int main(void)
{
    static float q[LENGTH * WIDTH], k[LENGTH * WIDTH], v[LENGTH * WIDTH];
    static float before[LENGTH * WIDTH], after[LENGTH * WIDTH];
    float worst = 0;
    for (int i = 0; i < LENGTH * WIDTH; i++) {
        q[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
        k[i] = (float)(i * 53 % 103) / 51.0f - 1.0f;
        v[i] = (float)(i * 71 % 107) / 53.0f - 1.0f;
    }
    old_attention(q, k, v, before);
    if (!new_attention(q, k, v, after)) return 1;
    for (int i = 0; i < LENGTH * WIDTH; i++) {
        const float difference = fabsf(before[i] - after[i]);
        if (!(difference <= worst)) worst = difference;
    }
    printf("%d numbers, old loop and attn agree to 1e-5: %s\n", LENGTH * WIDTH,
           worst <= 1e-5f ? "yes" : "no");
    return worst <= 1e-5f ? 0 : 1;
}
