/* minimal.c - the synopsis of attn.h as a program: grouped-query causal attention on 512 tokens.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/minimal.c attn.c -o minimal && ./minimal */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>

enum { HEADS_Q = 32, HEADS_KV = 8, LENGTH = 512, DIM = 128 };

/* Fills x with numbers in [-1, 1] that are equal on every machine. */
static float *make_tensor(size_t n, uint32_t seed)
{
    float *const x = malloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 16) / 32768.0f - 1.0f;
    }
    return x;
}

static int run(const float *q, const float *k, const float *v, float *o)
{
    char text[200];
    /* synopsis */
    attn_params p = {0};                      // zero is every field's default
    p.batch = 1;  p.num_heads_q = 32;  p.num_heads_kv = 8;
    p.seq_len_q = 512;  p.seq_len_kv = 512;  p.head_dim = 128;
    p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;     // [batch, head, seq, dim]
    p.causal = 1;
    size_t need;
    void *ws = attn_workspace_size(&p, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_forward(&p, ws, need) != ATTN_OK)
        puts(attn_check(&p, ws, need, text, sizeof text));     // char text[200];
    free(ws);
    /* end of synopsis */
    printf("workspace of less than 1 MiB: %s\n", need < 1 << 20 ? "yes" : "no");
    return ws != NULL;
}

int main(void)
{
    const size_t n = (size_t)LENGTH * DIM;
    float *const q = make_tensor(n * HEADS_Q, 1), *const k = make_tensor(n * HEADS_KV, 2);
    float *const v = make_tensor(n * HEADS_KV, 3), *const o = make_tensor(n * HEADS_Q, 4);
    const int ok = q && k && v && o && run(q, k, v, o);
    if (ok) {
        /* Row 0 sees only key 0: its output is that key's value. The last row sees all of them. */
        const float *const last = o + (size_t)(HEADS_Q * LENGTH - 1) * DIM;
        printf("first row, o - v: %.7f %.7f\n", (double)(o[0] - v[0]), (double)(o[1] - v[1]));
        printf("last row, o:      %.7f %.7f\n", (double)last[0], (double)last[1]);
    }
    free(q);
    free(k);
    free(v);
    free(o);
    return ok ? 0 : 1;
}
