/* prompt_cache.c - a prompt computed once, kept in a file, and loaded by whoever needs it next.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/prompt_cache.c attn.c -o prompt_cache && ./prompt_cache
 *
 * The second cache is paged where the first is not. It must go on with the bits of the first. */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_Q = 8, HEADS_KV = 2, DIM = 64, PROMPT = 200, LENGTH = 220 };

static const attn_rope rope = { 0 };
static const uint64_t model = 42; /* stands for a hash of the weights */
static float q[HEADS_Q * DIM], k[HEADS_KV * LENGTH * DIM], v[HEADS_KV * LENGTH * DIM];
static char workspace[1 << 20], why[200];

static void must(attn_status status)
{
    if (status == ATTN_OK)
        return;
    puts(why);
    exit(1);
}

/* Stands for a model: rows of n tokens from number `at` on, [head, token, dim]. */
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

static attn_cache new_cache(int64_t page_size)
{
    attn_cache c = { 0 };
    size_t need;
    c.num_sequences = 1;
    c.num_heads_kv = HEADS_KV;
    c.head_dim = DIM;
    c.capacity = LENGTH;
    c.page_size = page_size;
    c.k.dtype = c.v.dtype = ATTN_Q8_0;
    must(attn_cache_size(&c, &need, why, sizeof why));
    must(attn_cache_init(&c, malloc(need), need, why, sizeof why));
    return c;
}

static void append(attn_cache *c, int64_t at, int64_t n)
{
    attn_cache_step s = { 0 };
    make(k, HEADS_KV, at, n, 2);
    make(v, HEADS_KV, at, n, 3);
    s.batch = 1;
    s.seq_len = n;
    s.k.data = k;
    s.v.data = v;
    s.rope = &rope;
    must(attn_cache_append(c, &s, why, sizeof why));
}

/* Tokens behind the prompt, one by one. */
static void decode(attn_cache *c, float (*o)[HEADS_Q * DIM])
{
    for (int64_t at = PROMPT; at < LENGTH; at++) {
        attn_rope_rows r = { 0 };
        attn_params p = { 0 };
        append(c, at, 1);
        make(q, HEADS_Q, at, 1, 1);
        r.batch = r.seq_len = 1;
        r.num_heads = HEADS_Q;
        r.head_dim = DIM;
        r.x.data = r.y.data = q;
        r.first = &at;
        must(attn_rope_apply(&rope, &r, why, sizeof why));
        must(attn_cache_view(c, 0, NULL, 1, &p, NULL, 0, why, sizeof why));
        p.num_heads_q = HEADS_Q;
        p.seq_len_q = 1;
        p.q.data = q;
        p.o.data = o[at - PROMPT];
        must(attn_forward(&p, workspace, sizeof workspace));
    }
}

static int put(void *file, const void *bytes, size_t count)
{
    return fwrite(bytes, 1, count, file) != count;
}

static int get(void *file, void *bytes, size_t count)
{
    return fread(bytes, 1, count, file) != count;
}

int main(void)
{
    static float first[LENGTH - PROMPT][HEADS_Q * DIM], second[LENGTH - PROMPT][HEADS_Q * DIM];
    attn_cache c = new_cache(0), other = new_cache(16);
    attn_snapshot s = { 0 };
    FILE *file = tmpfile();
    if (!file) {
        puts("no temporary file");
        return 1;
    }
    s.batch = 1;
    s.rope = &rope;
    s.tag = model;
    s.write = put;
    s.read = get;
    s.context = file;

    append(&c, 0, PROMPT);
    must(attn_cache_save(&c, &s, why, sizeof why));
    printf("%d keys saved in %ld bytes\n", PROMPT, ftell(file));
    decode(&c, first);

    rewind(file);
    must(attn_cache_load(&other, &s, why, sizeof why));
    decode(&other, second);
    printf("decoded behind the loaded prompt with the same bits: %s\n",
           memcmp(first, second, sizeof first) == 0 ? "yes" : "no");

    fseek(file, 5000, SEEK_SET); /* One byte is damaged. */
    fputc('?', file);
    rewind(file);
    must(attn_cache_trim(&other, 0, 0, 0, why, sizeof why));
    if (attn_cache_load(&other, &s, why, sizeof why) == ATTN_OK)
        return 1;
    puts(why);
    fclose(file);
    return memcmp(first, second, sizeof first) != 0;
}
