/* longnet.c - LongNet's attention module (Ding et al. 2023, arXiv 2307.02486) around
 * attn_dilated_forward: projections with bias, three branches (one for some heads only), layer norm
 * and output projection. Gradients by every input of the core are compared with slopes.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/longnet.c attn.c -o longnet -lm
 *     ./longnet */
#include "../attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTH = 96, HEADS = 4, DIM = 8, WIDTH = HEADS * DIM, SIZE = LENGTH * WIDTH };

/* y = x W^T + b, W [WIDTH][WIDTH]. */
typedef struct linear {
    float w[WIDTH * WIDTH], b[WIDTH];
} linear;

typedef struct module {
    linear q, k, v, out;
    float norm_weight[WIDTH], norm_bias[WIDTH]; /* the layer norm before the last projection */
    attn_dilated_branch branches[3];
    attn_dilated dilated;
} module;

static float x[SIZE], q[SIZE], k[SIZE], v[SIZE], o[SIZE], normed[SIZE], y[SIZE];
static float stats[HEADS * LENGTH * 2];
static float dy[SIZE], dnormed[SIZE], dout[SIZE], dq[SIZE], dk[SIZE], dv[SIZE];
static float mean[LENGTH], inverse[LENGTH];
static module m;

/* Fills x with numbers in [-a, a] that are equal on every machine. */
static void fill(float *to, size_t n, uint32_t seed, float a)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = ((float)(seed >> 16) / 32768.0f - 1.0f) * a;
    }
}

static void make_linear(linear *l, uint32_t seed)
{
    fill(l->w, WIDTH * WIDTH, seed, 0.3f);
    fill(l->b, WIDTH, seed + 1, 0.1f);
}

/* The first branch sees short segments of every position, and the others see longer ones ever more
 * thinly. Heads of a dilated branch begin at different positions, so that together they see all. */
static void make_module(void)
{
    make_linear(&m.q, 1);
    make_linear(&m.k, 3);
    make_linear(&m.v, 5);
    make_linear(&m.out, 7);
    fill(m.norm_weight, WIDTH, 9, 1.0f);
    fill(m.norm_bias, WIDTH, 10, 0.1f);
    m.branches[0].segment = 16;
    m.branches[1].segment = 48;
    m.branches[1].dilation = 2;
    m.branches[1].rotate = 1;
    m.branches[2].dilation = 4; /* its one segment is the whole sequence */
    m.branches[2].rotate = 1;
    m.branches[2].head_begin = 2; /* it is for the upper half of the heads */
    m.dilated.num_branches = 3;
    m.dilated.branches = m.branches;
}

static void apply_linear(const linear *l, const float *from, float *to)
{
    for (int i = 0; i < LENGTH; i++)
        for (int r = 0; r < WIDTH; r++) {
            float sum = l->b[r];
            for (int c = 0; c < WIDTH; c++)
                sum += l->w[r * WIDTH + c] * from[i * WIDTH + c];
            to[i * WIDTH + r] = sum;
        }
}

static void apply_norm(const float *from, float *to)
{
    for (int i = 0; i < LENGTH; i++) {
        float sum = 0, squares = 0;
        for (int c = 0; c < WIDTH; c++)
            sum += from[i * WIDTH + c];
        mean[i] = sum / WIDTH;
        for (int c = 0; c < WIDTH; c++)
            squares += (from[i * WIDTH + c] - mean[i]) * (from[i * WIDTH + c] - mean[i]);
        inverse[i] = 1 / sqrtf(squares / WIDTH + 1e-5f);
        for (int c = 0; c < WIDTH; c++)
            to[i * WIDTH + c] = (from[i * WIDTH + c] - mean[i]) * inverse[i] * m.norm_weight[c] +
                                m.norm_bias[c];
    }
}

/* Rows are [position, head, dim], as the projections leave them. */
static attn_params core_call(void)
{
    attn_params p = {0};
    p.batch = 1;  p.num_heads_q = HEADS;  p.seq_len_q = p.seq_len_kv = LENGTH;  p.head_dim = DIM;
    p.causal = 1;
    p.layout = ATTN_LAYOUT_BSHD;
    p.q.data = q;  p.k.data = k;  p.v.data = v;
    p.o.data = o;
    p.stats.data = stats;
    return p;
}

static void stop(const char *why)
{
    puts(why);
    exit(1);
}

static void core_forward(const attn_params *p)
{
    size_t need = 0;
    char text[200];
    void *ws = attn_dilated_workspace_size(p, &m.dilated, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_dilated_forward(p, &m.dilated, ws, need) != ATTN_OK)
        stop(attn_dilated_check(p, &m.dilated, ws, need, text, sizeof text));
    free(ws);
}

static void core_backward(const attn_params *p)
{
    attn_gradients g = {0};
    size_t need = 0;
    char text[200];
    void *ws;
    g.dout = p->q;
    g.dout.data = dout;
    g.dq = g.dk = g.dv = p->o;
    g.dq.data = dq;  g.dk.data = dk;  g.dv.data = dv;
    ws = attn_dilated_backward_workspace_size(p, &m.dilated, &g, &need) == ATTN_OK ? malloc(need)
                                                                                  : NULL;
    if (attn_dilated_backward(p, &m.dilated, &g, ws, need) != ATTN_OK)
        stop(attn_dilated_backward_check(p, &m.dilated, &g, ws, need, text, sizeof text));
    free(ws);
}

/* Computes the loss from q, k and v. It is the sum of dy * y, so that dy is its gradient by y. */
static double loss_of_core(const attn_params *p)
{
    double loss = 0;
    core_forward(p);
    apply_norm(o, normed);
    apply_linear(&m.out, normed, y);
    for (int i = 0; i < SIZE; i++)
        loss += (double)dy[i] * (double)y[i];
    return loss;
}

static double forward(const attn_params *p)
{
    apply_linear(&m.q, x, q);
    apply_linear(&m.k, x, k);
    apply_linear(&m.v, x, v);
    return loss_of_core(p);
}

/* Computes dout, the gradient by the output of the core, from dy. */
static void backward_to_core(void)
{
    for (int i = 0; i < LENGTH; i++) {
        float sum = 0, product = 0;
        for (int c = 0; c < WIDTH; c++) {
            float d = 0;
            for (int r = 0; r < WIDTH; r++)
                d += m.out.w[r * WIDTH + c] * dy[i * WIDTH + r];
            dnormed[i * WIDTH + c] = d * m.norm_weight[c];
            sum += dnormed[i * WIDTH + c];
            product += dnormed[i * WIDTH + c] * (o[i * WIDTH + c] - mean[i]) * inverse[i];
        }
        for (int c = 0; c < WIDTH; c++)
            dout[i * WIDTH + c] =
                inverse[i] * (dnormed[i * WIDTH + c] - sum / WIDTH -
                              (o[i * WIDTH + c] - mean[i]) * inverse[i] * product / WIDTH);
    }
}

/* Returns the slope of the loss, from *at a little higher and a little lower. */
static void compare(const attn_params *p, const char *name, float *at, float gradient)
{
    const float middle = *at, step = 1.0f / 128;
    double higher, lower;
    *at = middle + step;
    higher = loss_of_core(p);
    *at = middle - step;
    lower = loss_of_core(p);
    *at = middle;
    printf("%s: gradient %7.3f, slope %7.3f\n", name, (double)gradient,
           (higher - lower) / (2 * (double)step));
}

int main(void)
{
    attn_params p = core_call();
    attn_dilated plain;
    double loss;
    make_module();
    fill(x, SIZE, 11, 1.0f);
    fill(dy, SIZE, 12, 1.0f);
    loss = forward(&p);
    printf("loss %.3f; y of the last position: %.4f %.4f %.4f %.4f\n", loss,
           (double)y[SIZE - WIDTH], (double)y[SIZE - WIDTH + 1], (double)y[SIZE - WIDTH + 2],
           (double)y[SIZE - WIDTH + 3]);
    backward_to_core();
    core_backward(&p);
    compare(&p, "dq[700] ", &q[700], dq[700]);
    compare(&p, "dk[700] ", &k[700], dk[700]);
    compare(&p, "dv[700] ", &v[700], dv[700]);
    compare(&p, "dk[1337]", &k[1337], dk[1337]);

    plain = m.dilated;
    plain.variant = ATTN_DILATED_GATHERED;
    m.dilated = plain;
    p.stats.data = NULL; /* it merges finished results, which have none */
    printf("on copies: the loss differs by less than 0.001: %s\n",
           fabs(forward(&p) - loss) < 0.001 ? "yes" : "no");
    return 0;
}
