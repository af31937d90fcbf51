/* parts.c - a call in parts on one machine: some rows at a time, some keys at a time, and the
 * results of the parts as one. Each way is compared with the whole call.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/parts.c attn.c -o parts && ./parts */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 2, ROWS = 60, KEYS = 3000, DIM = 16, ALL_ROWS = HEADS * ROWS };
enum { CUT = 2048 }; /* a multiple of 1024 * 2^k, so that merged states have the bits of one call */

typedef struct result {
    float o[ALL_ROWS * DIM], lse[ALL_ROWS];
} result;

static float q[ALL_ROWS * DIM], k[HEADS * KEYS * DIM], v[HEADS * KEYS * DIM];

/* Fills x with numbers in [-1, 1] that are equal on every machine. */
static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 16) / 32768.0f - 1.0f;
    }
}

static attn_params call(result *to)
{
    attn_params p = {0};
    p.batch = 1;  p.num_heads_q = HEADS;
    p.seq_len_q = ROWS;  p.seq_len_kv = KEYS;  p.head_dim = DIM;
    p.q.data = q;  p.k.data = k;  p.v.data = v;
    p.o.data = to->o;  p.lse.data = to->lse;
    p.causal = 1;
    return p;
}

static void run(const attn_params *p)
{
    char text[200];
    size_t need;
    void *ws = attn_workspace_size(p, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_forward(p, ws, need) != ATTN_OK) {
        puts(attn_check(p, ws, need, text, sizeof text));
        exit(1);
    }
    free(ws);
}

/* Lets *p see keys begin to end-1. Lengths, positions and masks stay those of the whole call, and
 * the strides say that the heads of k and v lie KEYS rows apart. */
static void take_keys(attn_params *p, int64_t begin, int64_t end)
{
    p->part.keys = 1;
    p->part.key_begin = begin;
    p->part.key_count = end - begin;
    p->k.data = k + begin * DIM;
    p->v.data = v + begin * DIM;
    p->k.stride_head = p->v.stride_head = KEYS * DIM;
}

/* Twenty rows at a time, e.g. because no more of q and o fit into memory. */
static void by_rows(result *to)
{
    for (int64_t row = 0; row < ROWS; row += 20) {
        attn_params p = call(to);
        p.part.rows = 1;
        p.part.row_begin = row;
        p.part.row_count = 20;
        p.q.data = q + row * DIM;
        p.o.data = to->o + row * DIM;
        p.lse.data = to->lse + row;
        p.q.stride_head = p.o.stride_head = ROWS * DIM;
        p.lse.stride_head = ROWS;
        run(&p);
    }
}

/* Two parts of the keys leave raw states, which are merged and then finished. */
static void by_states(result *to)
{
    static float memory[2][ALL_ROWS * (DIM + 2)];
    const attn_params whole = call(to);
    attn_state states[2];
    for (int i = 0; i < 2; i++) {
        attn_params p = whole;
        float *m = memory[i];
        states[i] = (attn_state){ALL_ROWS, DIM, m, m + ALL_ROWS, m + 2 * ALL_ROWS};
        take_keys(&p, i ? CUT : 0, i ? KEYS : CUT);
        p.partial = 1;
        p.state = states[i];
        run(&p);
    }
    if (attn_state_merge(&states[0], &states[1], &states[0]) != ATTN_OK ||
        attn_state_finish(&whole, &states[0]) != ATTN_OK)
        exit(1);
}

/* Two parts of the keys leave finished results, which are merged by their LSE. */
static void by_lse(result *to)
{
    static result other;
    attn_params low = call(to), high = call(&other);
    take_keys(&low, 0, CUT);
    take_keys(&high, CUT, KEYS);
    run(&low);
    run(&high);
    if (attn_lse_merge(ALL_ROWS, DIM, to->o, to->lse, other.o, other.lse, to->o, to->lse) !=
        ATTN_OK)
        exit(1);
}

static float worst(const float *a, const float *b, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = a[i] - b[i] > most ? a[i] - b[i] : b[i] - a[i] > most ? b[i] - a[i] : most;
    return most;
}

int main(void)
{
    static result whole, rows, states, merged;
    const attn_params p = call(&whole);
    int same_rows, same_states, near;
    fill(q, sizeof q / sizeof *q, 1);
    fill(k, sizeof k / sizeof *k, 2);
    fill(v, sizeof v / sizeof *v, 3);
    run(&p);
    by_rows(&rows);
    by_states(&states);
    by_lse(&merged);
    same_rows = memcmp(&rows, &whole, sizeof whole) == 0;
    same_states = memcmp(&states, &whole, sizeof whole) == 0;
    near = worst(merged.o, whole.o, ALL_ROWS * DIM) < 1e-5f &&
           worst(merged.lse, whole.lse, ALL_ROWS) < 1e-5f;
    printf("20 rows at a time: %s\n", same_rows ? "the bits of the whole call" : "other bits");
    printf("states of keys to %d and from there on, merged: %s\n", CUT,
           same_states ? "the bits of the whole call" : "other bits");
    printf("their results, merged by LSE: %s\n", near ? "the whole call, but for 1e-5" : "wrong");
    return !(same_rows && same_states && near);
}
