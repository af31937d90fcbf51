/* peer_openblas.c - unfused attention over a given sgemm, as fast as it gets.
 * SPDX-License-Identifier: MIT
 *
 * A careful user of a BLAS writes this code. Blocks of rows keep the logits in the cache (the
 * caller tries several sizes) and let causal calls stop at the diagonal. Under a full mask the
 * query heads that share keys become one taller matrix. The scale sits in the exponent and 1/sum
 * in the rows of O, so that the softmax reads the logits twice and writes them once. The Makefile
 * compiles it with -O3 -march=native -ffast-math, with which compilers vectorise all loops
 * below. */
#include "peer_openblas.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 }; /* of cblas.h */

/* Rows of logits start at cache lines and not at multiples of 4 KiB, which share a cache set. */
enum { LINE = 16 };

struct peer_openblas {
    peer_shape shape;
    peer_sgemm_fn sgemm;
    const float *q, *k, *v;
    float *o, *logits, *sums;
    void *memory;
    int rows; /* of one block */
};

/* 2^x for x <= 0: relative error 1e-7, a minimax polynomial of 2^f on [-1/2, 1/2]. */
static inline float exp2_of(float x)
{
    const float clamped = x < -126.0f ? -126.0f : x;
    const float whole = rintf(clamped), f = clamped - whole;
    const int32_t bits = ((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return power * (1.0000001f +
                    f * (0.693146944f +
                         f * (0.240221202f +
                              f * (0.0555071309f + f * (0.00967554189f + f * 0.00132764725f)))));
}

/* s = exp(scale * (s - max)) with c = scale * log2(e). Returns the sum. */
static float exp_row(float *s, int n, float c)
{
    float max = s[0], sum = 0;
    for (int j = 1; j < n; j++)
        max = s[j] > max ? s[j] : max;
    const float shift = max * c;
    for (int j = 0; j < n; j++) {
        s[j] = exp2_of(s[j] * c - shift);
        sum += s[j];
    }
    return sum;
}

/* Computes rows begin .. begin + count - 1 of a matrix of queries against the first `keys` keys. */
static void run_block(const peer_openblas *p, int begin, int count, int keys, const float *q,
                      const float *k, const float *v, float *o)
{
    const int d = p->shape.dim, stride = (keys + LINE - 1) / LINE * LINE + LINE;
    const float c = 1.44269504f / sqrtf((float)d);
    float *const s = p->logits;
    p->sgemm(ROW_MAJOR, PLAIN, TRANSPOSED, count, keys, d, 1, q, d, k, d, 0, s, stride);
    for (int i = 0; i < count; i++) {
        float *const row = s + (size_t)i * (size_t)stride;
        const int visible = p->shape.causal ? begin + i + 1 : keys;
        p->sums[i] = exp_row(row, visible, c);
        for (int j = visible; j < keys; j++)
            row[j] = 0;
    }
    p->sgemm(ROW_MAJOR, PLAIN, PLAIN, count, d, keys, 1, s, stride, v, d, 0, o, d);
    for (int i = 0; i < count; i++) {
        const float inverse = 1 / p->sums[i];
        float *const row = o + (size_t)i * (size_t)d;
        for (int j = 0; j < d; j++)
            row[j] *= inverse;
    }
}

/* Takes all query heads of one kv head as one matrix where no row differs by mask. */
static int rows_of_matrix(const peer_shape *s)
{
    return s->causal ? s->rows : s->rows * (s->heads_q / s->heads_kv);
}

int peer_openblas_run(peer_openblas *p)
{
    const peer_shape *const s = &p->shape;
    const int rows = rows_of_matrix(s), matrices = s->heads_q * s->rows / rows;
    for (int m = 0; m < matrices; m++) {
        const size_t head = (size_t)s->seq * (size_t)s->dim;
        const size_t kv = head * (size_t)(m * s->heads_kv / matrices);
        for (int begin = 0; begin < rows; begin += p->rows) {
            const int count = rows - begin < p->rows ? rows - begin : p->rows;
            const size_t at = ((size_t)m * (size_t)rows + (size_t)begin) * (size_t)s->dim;
            run_block(p, begin, count, s->causal ? begin + count : s->seq, p->q + at, p->k + kv,
                      p->v + kv, p->o + at);
        }
    }
    return 0;
}

peer_openblas *peer_openblas_open(const peer_shape *shape, peer_sgemm_fn sgemm, int rows,
                                  const float *q, const float *k, const float *v, float *o)
{
    const int all = rows_of_matrix(shape);
    const size_t block = (size_t)(rows > 0 && rows < all ? rows : all);
    peer_openblas *const p = malloc(sizeof *p);
    if (!p)
        return NULL;
    p->shape = *shape;
    p->sgemm = sgemm;
    p->q = q;
    p->k = k;
    p->v = v;
    p->o = o;
    p->rows = (int)block;
    p->memory = malloc((block * ((size_t)shape->seq + 2 * LINE + 1) + LINE) * sizeof(float));
    p->logits = (float *)(((uintptr_t)p->memory + 63) & ~(uintptr_t)63);
    p->sums = p->logits + block * ((size_t)shape->seq + 2 * LINE);
    if (p->memory)
        return p;
    free(p);
    return NULL;
}

void peer_openblas_close(peer_openblas *p)
{
    if (p)
        free(p->memory);
    free(p);
}
