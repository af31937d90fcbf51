/* decode.c - serving with a KV cache: a prompt at once, then token by token.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/decode.c attn.c -o decode && ./decode
 *
 * Every row that comes out must have the bits of its row in one call over the whole text. */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_Q = 8, HEADS_KV = 2, DIM = 64, PROMPT = 100, LENGTH = 120 };

static float q[HEADS_Q * LENGTH * DIM], k[HEADS_KV * LENGTH * DIM], v[HEADS_KV * LENGTH * DIM];
static float o[HEADS_Q * LENGTH * DIM];                             /* one step */
static float decoded[LENGTH][HEADS_Q][DIM], whole[LENGTH][HEADS_Q][DIM]; /* the whole text */
static char why[200];

static void make(float *x, int heads, int64_t at, int64_t n, uint32_t seed)
{
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t d = 0; d < DIM; d++) {
                uint32_t u = seed + (uint32_t)(((at + i) * heads + h) * DIM + d) * 2654435761u;
                u = (u ^ u >> 15) * 2246822519u;
                x[(h * n + i) * DIM + d] = (float)(u >> 16) / 32768.0f - 1.0f;
            }
}

/* Stands for a model: makes q, k and v of the n tokens from number `at` on, [head, token, dim]. */
static void project(int64_t at, int64_t n)
{
    make(q, HEADS_Q, at, n, 1);
    make(k, HEADS_KV, at, n, 2);
    make(v, HEADS_KV, at, n, 3);
}

/* Stands for the rest of a model: keeps the output of attention. */
static float (*kept)[HEADS_Q][DIM] = decoded;
static void use(int64_t at, int64_t n, const float *out)
{
    for (int64_t h = 0; h < HEADS_Q; h++)
        for (int64_t i = 0; i < n; i++)
            memcpy(kept[at + i][h], out + (h * n + i) * DIM, sizeof kept[0][0]);
}

static void stop(const char *sentence)
{
    puts(sentence);
    exit(1);
}

static void must(attn_status status)
{
    if (status != ATTN_OK)
        stop(why);
}

static void serve(void *ws, size_t bytes)
{
    /* serving */
    attn_rope rope = {0};                     // half-split, base 10000: Llama 2
    attn_cache c = {0};
    c.num_sequences = 1;  c.num_heads_kv = HEADS_KV;  c.head_dim = DIM;  c.capacity = LENGTH;
    size_t need;
    must(attn_cache_size(&c, &need, why, sizeof why));     // char why[200];
    void *memory = malloc(need);
    must(attn_cache_init(&c, memory, need, why, sizeof why));

    for (int64_t at = 0, n = PROMPT; at < LENGTH; at += n, n = 1) {
        project(at, n);                       // your model: q, k, v of n tokens, [head, token, dim]

        attn_cache_step s = {0};              // keys are stored turned to their position
        s.batch = 1;  s.seq_len = n;  s.k.data = k;  s.v.data = v;  s.rope = &rope;
        must(attn_cache_append(&c, &s, why, sizeof why));

        attn_rope_rows r = {0};               // queries are turned in place
        r.batch = 1;  r.num_heads = HEADS_Q;  r.seq_len = n;  r.head_dim = DIM;
        r.x.data = q;  r.y.data = q;  r.first = &at;
        must(attn_rope_apply(&rope, &r, why, sizeof why));

        attn_params p = {0};                  // attention over all that is cached
        must(attn_cache_view(&c, 0, NULL, 1, &p, NULL, 0, why, sizeof why));
        p.num_heads_q = HEADS_Q;  p.seq_len_q = n;  p.causal = 1;
        p.q.data = q;  p.o.data = o;
        if (attn_forward(&p, ws, bytes) != ATTN_OK)
            stop(attn_check(&p, ws, bytes, why, sizeof why));

        use(at, n, o);                        // the rest of your model
    }
    free(memory);
    /* end of serving */
}

/* Computes the same text in one call, without a cache. */
static attn_params whole_text(void)
{
    attn_params p = {0};
    p.batch = 1;  p.num_heads_q = HEADS_Q;  p.num_heads_kv = HEADS_KV;
    p.seq_len_q = LENGTH;  p.seq_len_kv = LENGTH;  p.head_dim = DIM;  p.causal = 1;
    p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;
    return p;
}

static void turn(float *x, int heads)
{
    attn_rope rope = {0};
    attn_rope_rows r = {0}; /* positions 0, 1, ... */
    r.batch = 1;  r.num_heads = heads;  r.seq_len = LENGTH;  r.head_dim = DIM;
    r.x.data = x;  r.y.data = x;
    must(attn_rope_apply(&rope, &r, why, sizeof why));
}

int main(void)
{
    const attn_params p = whole_text(); /* its workspace also serves shorter calls */
    size_t bytes;
    void *ws;
    int same = 0;
    if (attn_workspace_size(&p, &bytes) != ATTN_OK)
        stop(attn_check(&p, NULL, 0, why, sizeof why));
    ws = malloc(bytes);
    serve(ws, bytes);

    project(0, LENGTH);
    turn(q, HEADS_Q);
    turn(k, HEADS_KV);
    if (attn_forward(&p, ws, bytes) != ATTN_OK)
        stop(attn_check(&p, ws, bytes, why, sizeof why));
    kept = whole;
    use(0, LENGTH, o);
    free(ws);

    for (int i = 0; i < LENGTH; i++) same += memcmp(decoded[i], whole[i], sizeof whole[i]) == 0;
    printf("last token of the prompt: %.7f %.7f\n", (double)decoded[PROMPT - 1][0][0],
           (double)decoded[PROMPT - 1][0][1]);
    printf("last token decoded:       %.7f %.7f\n", (double)decoded[LENGTH - 1][0][0],
           (double)decoded[LENGTH - 1][0][1]);
    printf("%d of %d rows have the bits of one call over the whole text\n", same, LENGTH);
    return same == LENGTH ? 0 : 1;
}
