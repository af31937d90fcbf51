/* custom_bench.c - measures a custom function next to attn_forward.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/custom_bench.c bench/suite.c bench/measure.c bench/clock.c bench/stats.c \
 *         attn.c -lm -o custom_bench && ./custom_bench [result.csv]
 *
 * bench/measure.h is the only part of the bench that it uses: register functions by pointer, run,
 * print. Nothing is timed before its check has passed; the last entry fails its check on
 * purpose. */
#include "../attn.h"
#include "../bench/measure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HEADS = 4, LENGTH = 256, DIM = 64, SIZE = HEADS * LENGTH * DIM };

static float q[SIZE], k[SIZE], v[SIZE], expected[SIZE];

/* Each entry has its own output and, in this example, its own way of going wrong. */
typedef struct work {
    attn_params p;
    float scale;
    float o[SIZE];
    float memory[1 << 18]; /* 1 MiB: the workspace of attn_forward */
} work;

static work by_attn, by_loop, by_wrong_loop;

/* ---- the implementation to measure: one query row of one head */

static void own_row(const float *query, const float *keys, const float *values, float scale,
                    float *o)
{
    float weight[LENGTH], largest = -INFINITY, sum = 0;
    for (int j = 0; j < LENGTH; j++) {
        float dot = 0;
        for (int d = 0; d < DIM; d++) dot += query[d] * keys[j * DIM + d];
        weight[j] = scale * dot;
        if (weight[j] > largest) largest = weight[j];
    }
    for (int j = 0; j < LENGTH; j++) sum += weight[j] = expf(weight[j] - largest);
    memset(o, 0, DIM * sizeof *o);
    for (int j = 0; j < LENGTH; j++)
        for (int d = 0; d < DIM; d++) o[d] += weight[j] / sum * values[j * DIM + d];
}

/* Returns 0 on success, as every measured function does. */
static int call_own(void *arg)
{
    work *const w = arg;
    for (int row = 0; row < HEADS * LENGTH; row++) {
        const int head = row / LENGTH * LENGTH * DIM;
        own_row(q + row * DIM, k + head, v + head, w->scale, w->o + row * DIM);
    }
    return 0;
}

/* ---- what it is compared with */

static int call_attn(void *arg)
{
    work *const w = arg;
    return attn_forward(&w->p, w->memory, sizeof w->memory) != ATTN_OK;
}

static void prepare(work *w)
{
    w->p.batch = 1;
    w->p.num_heads_q = w->p.num_heads_kv = HEADS;
    w->p.seq_len_q = w->p.seq_len_kv = LENGTH;
    w->p.head_dim = DIM;
    w->p.q.data = q, w->p.k.data = k, w->p.v.data = v, w->p.o.data = w->o;
}

/* ---- checks */

/* Computes the reference in double precision. */
static void expect_row(const float *query, const float *keys, const float *values, float *o)
{
    double weight[LENGTH], out[DIM] = {0}, sum = 0;
    for (int j = 0; j < LENGTH; j++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++) dot += (double)query[d] * (double)keys[j * DIM + d];
        sum += weight[j] = exp(dot / sqrt(DIM));
        for (int d = 0; d < DIM; d++) out[d] += weight[j] * (double)values[j * DIM + d];
    }
    for (int d = 0; d < DIM; d++) o[d] = (float)(out[d] / sum);
}

/* Returns 0 if the output is right. A NaN counts as wrong because it fails every comparison. */
static int check(void *arg)
{
    const work *const w = arg;
    int right = 0;
    for (int i = 0; i < SIZE; i++) right += fabsf(w->o[i] - expected[i]) < 1e-5f;
    return right != SIZE;
}

/* ---- the suite */

static void fill(float *x, double step)
{
    for (int i = 0; i < SIZE; i++) x[i] = (float)sin(step * i);
}

static void prepare_all(void)
{
    fill(q, 0.37), fill(k, 0.73), fill(v, 1.91);
    for (int row = 0; row < HEADS * LENGTH; row++) {
        const int head = row / LENGTH * LENGTH * DIM;
        expect_row(q + row * DIM, k + head, v + head, expected + row * DIM);
    }
    prepare(&by_attn);
    by_loop.scale = 0.125f; /* 1 / sqrt(64) */
    by_wrong_loop.scale = 1;
}

static int save(const measure_suite *suite, const char *path)
{
    FILE *const file = fopen(path, "w");
    if (!file) return 0;
    measure_csv(suite, file);
    return fclose(file) == 0;
}

int main(int argc, char **argv)
{
    const double flops = 4.0 * HEADS * LENGTH * LENGTH * DIM;
    const double bytes = 4.0 * 4 * SIZE; /* q, k, v and o are moved once each */
    measure_suite suite = {.plan = {2, 20, 0, 0}}; /* 2 calls to warm up, 20 timed ones */
    const measure_entry entries[] = {
        {.name = "own loop", .call = call_own, .check = check, .arg = &by_loop, .flops = flops,
         .bytes = bytes},
        {.name = "attn_forward", .call = call_attn, .check = check, .arg = &by_attn,
         .flops = flops, .bytes = bytes},
        {.name = "own loop, scale forgotten", .call = call_own, .check = check,
         .arg = &by_wrong_loop},
    };
    prepare_all();
    for (int i = 0; i < 3; i++) measure_add(&suite, &entries[i]);
    measure_run(&suite);
    measure_print(&suite, stdout);
    if (argc > 1 && !save(&suite, argv[1])) return 1;
    return suite.entries[0].refused || suite.entries[1].refused;
}
