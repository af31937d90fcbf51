/* gradients.c - the synopsis of attn_backward as a program: computes dq, dk and dv of a causal call
 * and compares each with the slope of the loss along one element. A second call has dropout and
 * ALiBi, whose slopes have a gradient, too.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/gradients.c attn.c -lm -o gradients && ./gradients */
#include "../attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS_Q = 4, HEADS_KV = 2, LENGTH = 40, DIM = 16, WIDTH = LENGTH * DIM };

static float q[HEADS_Q * WIDTH], k[HEADS_KV * WIDTH], v[HEADS_KV * WIDTH], o[HEADS_Q * WIDTH];
static float stats[HEADS_Q * LENGTH * 2], dout[HEADS_Q * WIDTH];
static float dq[HEADS_Q * WIDTH], dk[HEADS_KV * WIDTH], dv[HEADS_KV * WIDTH];
static float slopes[HEADS_Q], dslopes[HEADS_Q];
static int wrong; /* gradients and rows that are not what they must be */

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

/* Prints a gradient and the slope of the loss, from *x higher and lower by `step`. */
static void compare(const attn_params *p, const char *name, float *x, float gradient, float step)
{
    const float middle = *x;
    double higher, lower, slope;
    *x = middle + step;
    higher = forward(p);
    *x = middle - step;
    lower = forward(p);
    *x = middle;
    slope = (higher - lower) / (2 * (double)step);
    wrong += !(fabs((double)gradient - slope) < 1e-3 * (1 + fabs(slope)));
    printf("%s: gradient %9.5f, slope %9.5f\n", name, (double)gradient, slope);
}

/* Writes dslopes alone. */
static void backward_slopes(const attn_params *p)
{
    attn_gradients g = {0};
    size_t back;
    void *wb;
    g.dout.data = dout;
    g.dslopes = dslopes;
    wb = attn_backward_workspace_size(p, &g, &back) == ATTN_OK ? malloc(back) : NULL;
    if (attn_backward(p, &g, wb, back) != ATTN_OK)
        exit(1);
    free(wb);
}

/* Row 0 of a causal call sees key 0 alone, so that o is v / (1 - dropout_p), or 0 where dropout
 * drops the pair: attn_dropout_keep tells which, for any pair, without a call. */
static void compare_dropped(const attn_params *p)
{
    int dropped = 0;
    for (int head = 0; head < HEADS_Q; head++) {
        const attn_pair pair = {.head = head};
        const int keep = attn_dropout_keep(p->dropout_seed, p->dropout_p, &pair);
        const float value = v[head / (HEADS_Q / HEADS_KV) * WIDTH];
        const float expected = keep ? value / (1 - p->dropout_p) : 0;
        dropped += !keep;
        wrong += !(fabsf(o[head * WIDTH] - expected) < 1e-6f);
    }
    printf("dropout drops key 0 from row 0 in %d of %d heads\n", dropped, HEADS_Q);
}

int main(void)
{
    attn_params p = call();
    fill(q, sizeof q / sizeof *q, 1);
    fill(k, sizeof k / sizeof *k, 2);
    fill(v, sizeof v / sizeof *v, 3);
    fill(dout, sizeof dout / sizeof *dout, 4);
    forward(&p);
    backward(&p);
    compare(&p, "dq[100]", &q[100], dq[100], 1.0f / 64);
    compare(&p, "dk[100]", &k[100], dk[100], 1.0f / 64);
    compare(&p, "dv[100]", &v[100], dv[100], 1.0f / 64);

    attn_alibi_slopes(slopes, HEADS_Q);
    p.alibi_slopes = slopes;
    p.dropout_p = 0.25f;
    p.dropout_seed = 3;                    /* another in every step of training */
    forward(&p);
    compare_dropped(&p);
    backward_slopes(&p);
    compare(&p, "dslopes[1]", &slopes[1], dslopes[1], 1.0f / 512);
    return wrong != 0;
}
