/* logits.c - looks at chosen rows of a call: the logits before and after the masks, and the
 * probabilities, from which a program can show what a token attends to. Only these rows are
 * computed twice, so the matrix of all rows is never there.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/logits.c attn.c -lm -o logits && ./logits */
#include "../attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 48, DIM = 8, CHOSEN = 2 };

static const int32_t chosen[CHOSEN] = {10, 47};
static float q[TOKENS * DIM], k[TOKENS * DIM], v[TOKENS * DIM], o[TOKENS * DIM];

/* Fills x with numbers in [-2, 2] that are equal on every machine. */
static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 16) / 16384.0f - 2.0f;
    }
}

/* Writes o, and what the chosen rows have at this stage. */
static void look(int stage, float (*seen)[TOKENS])
{
    attn_params p = {0};
    char text[200];
    size_t need;
    void *ws;
    p.batch = 1;  p.num_heads_q = 1;
    p.seq_len_q = TOKENS;  p.seq_len_kv = TOKENS;  p.head_dim = DIM;
    p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;
    p.causal = 1;
    p.logits.stage = stage;
    p.logits.num_rows = CHOSEN;
    p.logits.rows = chosen;
    p.logits.data = seen[0];               /* [batch, head, chosen row, key] */
    ws = attn_workspace_size(&p, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_forward(&p, ws, need) != ATTN_OK) {
        puts(attn_check(&p, ws, need, text, sizeof text));
        exit(1);
    }
    free(ws);
}

/* Returns by how much the probabilities of a row differ from the softmax of its logits, their sum
 * from 1, and their sum of v from the row of o. */
static double error_of(int row, const float *logits, const float *probabilities)
{
    double sum = 0, total = 0, worst = 0;
    for (int j = 0; j < TOKENS; j++) {
        sum += exp((double)logits[j]);
        total += (double)probabilities[j];
    }
    worst = fabs(total - 1);
    for (int j = 0; j < TOKENS; j++)
        worst = fmax(worst, fabs(exp((double)logits[j]) / sum - (double)probabilities[j]));
    for (int d = 0; d < DIM; d++) {
        double value = 0;
        for (int j = 0; j < TOKENS; j++)
            value += (double)probabilities[j] * (double)v[j * DIM + d];
        worst = fmax(worst, fabs(value - (double)o[row * DIM + d]));
    }
    return worst;
}

int main(void)
{
    static float raw[CHOSEN][TOKENS], masked[CHOSEN][TOKENS], probabilities[CHOSEN][TOKENS];
    int wrong = 0;
    fill(q, sizeof q / sizeof *q, 1);
    fill(k, sizeof k / sizeof *k, 2);
    fill(v, sizeof v / sizeof *v, 3);
    look(ATTN_LOGITS_RAW, raw);                  /* scale * q.k */
    look(ATTN_LOGITS_BIAS, masked);              /* hidden keys have -inf */
    look(ATTN_LOGITS_SOFTMAX, probabilities);
    for (int c = 0; c < CHOSEN; c++) {
        int best = 0, hidden = 0;
        for (int j = 0; j < TOKENS; j++) {
            best = probabilities[c][j] > probabilities[c][best] ? j : best;
            hidden += masked[c][j] == -INFINITY;
            wrong += masked[c][j] != (j > chosen[c] ? -INFINITY : raw[c][j]);
        }
        wrong += error_of(chosen[c], masked[c], probabilities[c]) > 1e-5;
        printf("row %d: %d keys are hidden, and it attends most to key %d: logit %.4f, "
               "probability %.4f\n", chosen[c], hidden, best, (double)raw[c][best],
               (double)probabilities[c][best]);
    }
    puts(wrong ? "wrong" : "the probabilities are the softmax of the logits and give o");
    return wrong != 0;
}
