/* out_of_core.c - attention over keys that lie in a file, with 1 MiB of memory, in steps.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/out_of_core.c attn.c -o out_of_core
 *     ./out_of_core [keys, default 20000] [tiles a step, default 64] [steps]
 *
 * Eight query heads read one kv head of 64. The keys go to a temporary file, 512 bytes each. Then
 * the answer is computed from the file alone, a step of some tiles at a time, with one read that
 * fails on the way. At the end it is compared bit for bit with a call that has all keys in memory.
 * The word `steps` leaves this comparison out, so that the program stays small. */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 8, DIM = 64, MEMORY = 1 << 20 };

typedef struct key_file {
    FILE *file;
    int64_t keys;
    int64_t reads, fails_at;
} key_file;

/* Returns the next of a sequence of numbers in [-1, 1). */
static float next_number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 16) / 32768.0f - 1.0f;
}

/* Writes all of K, then all of V. */
static int write_keys(key_file *f)
{
    uint32_t state = 1;
    float row[DIM];
    f->file = tmpfile();
    for (int64_t r = 0; f->file && r < 2 * f->keys; r++) {
        for (int d = 0; d < DIM; d++)
            row[d] = next_number(&state);
        if (fwrite(row, sizeof row, 1, f->file) != 1)
            return 0;
    }
    return f->file && fflush(f->file) == 0;
}

static int read_rows(const key_file *f, int64_t first, int64_t count, void *to)
{
    return fseek(f->file, (long)(first * DIM * (int64_t)sizeof(float)), SEEK_SET) == 0 &&
           fread(to, DIM * sizeof(float), (size_t)count, f->file) == (size_t)count;
}

/* attn_resume_step calls this function for keys. */
static int fetch(void *user, const attn_fetch *tile)
{
    key_file *const f = user;
    if (f->reads++ == f->fails_at)
        return 1;
    return !read_rows(f, tile->first, tile->count, tile->k) ||
           !read_rows(f, f->keys + tile->first, tile->count, tile->v);
}

static attn_params decode_call(const float *q, int64_t keys, float *o)
{
    attn_params p = {0};
    p.batch = 1;
    p.num_heads_q = HEADS;
    p.num_heads_kv = 1;
    p.seq_len_q = 1;
    p.seq_len_kv = keys;
    p.head_dim = DIM;
    p.q.data = q;
    p.o.data = o;
    return p;
}

/* Steps to the end and asks again whenever a read has failed. */
static int run_steps(const attn_params *p, key_file *f, int64_t tiles)
{
    static char memory[MEMORY];
    char text[200];
    attn_resumable r;
    int failures = 0;
    if (attn_resume_begin(&r, p, 0, fetch, f, memory, sizeof memory) != ATTN_OK) {
        puts(attn_resume_check(p, 0, fetch, memory, sizeof memory, text, sizeof text));
        return 0;
    }
    while (r.done < r.total) {
        const attn_status status = attn_resume_step(&r, tiles);
        if (status == ATTN_ERR_CALLBACK && failures++ == 0)
            printf("a read failed after %lld of %lld tiles: going on there\n", (long long)r.done,
                   (long long)r.total);
        else if (status != ATTN_OK)
            return 0;
        /* here an event loop would do something else */
    }
    printf("%lld keys read in tiles of %lld, memory %d bytes\n", (long long)r.fetched,
           (long long)r.tile_keys, MEMORY);
    return attn_resume_end(&r) == ATTN_OK;
}

/* Computes the answer with all keys in memory. */
static int run_in_core(attn_params p, const key_file *f)
{
    const size_t bytes = (size_t)f->keys * DIM * sizeof(float);
    float *const k = malloc(bytes), *const v = malloc(bytes);
    size_t need = 0;
    void *workspace = NULL;
    int ok = k && v && read_rows(f, 0, f->keys, k) && read_rows(f, f->keys, f->keys, v);
    p.k.data = k;
    p.v.data = v;
    if (ok && attn_workspace_size(&p, &need) == ATTN_OK)
        workspace = malloc(need);
    ok = ok && attn_forward(&p, workspace, need) == ATTN_OK;
    free(workspace);
    free(k);
    free(v);
    return ok;
}

int main(int argc, char **argv)
{
    static float q[HEADS * DIM], o[HEADS * DIM], whole[HEADS * DIM];
    const int alone = argc == 4 && strcmp(argv[3], "steps") == 0;
    const int64_t tiles = argc > 2 ? atoll(argv[2]) : 64;
    key_file f = {NULL, argc > 1 ? atoll(argv[1]) : 20000, 0, 100};
    uint32_t state = 7;
    if (f.keys < 1 || tiles < 1 || argc > 4 || (argc == 4 && !alone)) {
        fputs("out_of_core [keys, from 1] [tiles a step, from 1] [steps]\n", stderr);
        return 2;
    }
    for (int i = 0; i < HEADS * DIM; i++)
        q[i] = 4.0f * next_number(&state);
    const attn_params p = decode_call(q, f.keys, o), in_core = decode_call(q, f.keys, whole);
    int ok = write_keys(&f) && run_steps(&p, &f, tiles);
    if (ok && !alone) {
        ok = run_in_core(in_core, &f) && memcmp(o, whole, sizeof o) == 0;
        printf("all keys in memory: %s\n", ok ? "the same bits" : "other bits");
    }
    if (f.file)
        fclose(f.file);
    return ok ? 0 : 1;
}
