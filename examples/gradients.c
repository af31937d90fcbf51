/* gradients.c - the synopsis of attn_backward as a program: computes dq, dk and dv of a causal call
 * and compares each with the slope of the loss along one element.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/gradients.c attn.c -o gradients && ./gradients */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>

enum { HEADS_Q = 4, HEADS_KV = 2, LENGTH = 40, DIM = 16, WIDTH = LENGTH * DIM };

static float q[HEADS_Q * WIDTH], k[HEADS_KV * WIDTH], v[HEADS_KV * WIDTH], o[HEADS_Q * WIDTH];
static float stats[HEADS_Q * LENGTH * 2], dout[HEADS_Q * WIDTH];
static float dq[HEADS_Q * WIDTH], dk[HEADS_KV * WIDTH], dv[HEADS_KV * WIDTH];

/* Fills x with numbers in [-1, 1] that are equal on every machine. */
static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 16) / 32768.0f - 1.0f;
    }
}

static attn_params call(void)
{
    attn_params p = {0};
    p.batch = 1;  p.num_heads_q = HEADS_Q;  p.num_heads_kv = HEADS_KV;
    p.seq_len_q = LENGTH;  p.seq_len_kv = LENGTH;  p.head_dim = DIM;
    p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;
    p.stats.data = stats;
    p.causal = 1;
    return p;
}

/* Writes o and stats. The loss is the sum of dout * o, so that dout is its gradient by o. */
static double forward(const attn_params *p)
{
    double loss = 0;
    size_t need;
    void *ws = attn_workspace_size(p, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_forward(p, ws, need) != ATTN_OK)
        exit(1);
    free(ws);
    for (size_t i = 0; i < sizeof o / sizeof *o; i++)
        loss += (double)dout[i] * (double)o[i];
    return loss;
}

static void backward(const attn_params *params)
{
    attn_params p = *params;
    char text[200];
    /* synopsis */
    attn_gradients g = {0};                                // zero is every field's default
    g.dout.data = dout;                                    // like o: gradient of the loss by o
    g.dq.data = dq;  g.dk.data = dk;  g.dv.data = dv;      // like q, k, v
    size_t back;
    void *wb = attn_backward_workspace_size(&p, &g, &back) == ATTN_OK ? malloc(back) : NULL;
    if (attn_backward(&p, &g, wb, back) != ATTN_OK)
        puts(attn_backward_check(&p, &g, wb, back, text, sizeof text));     // char text[200];
    free(wb);
    /* end of synopsis */
}

/* Returns the slope of the loss, from *x a little higher and a little lower. */
static void compare(const attn_params *p, const char *name, float *x, float gradient)
{
    const float middle = *x, step = 1.0f / 64;
    double higher, lower;
    *x = middle + step;
    higher = forward(p);
    *x = middle - step;
    lower = forward(p);
    *x = middle;
    printf("%s: gradient %9.5f, slope %9.5f\n", name, (double)gradient,
           (higher - lower) / (2 * (double)step));
}

int main(void)
{
    const attn_params p = call();
    fill(q, sizeof q / sizeof *q, 1);
    fill(k, sizeof k / sizeof *k, 2);
    fill(v, sizeof v / sizeof *v, 3);
    fill(dout, sizeof dout / sizeof *dout, 4);
    forward(&p);
    backward(&p);
    compare(&p, "dq[100]", &q[100], dq[100]);
    compare(&p, "dk[100]", &k[100], dk[100]);
    compare(&p, "dv[100]", &v[100], dv[100]);
    return 0;
}
