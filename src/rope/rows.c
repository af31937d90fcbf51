/* src/rope/rows.c - the rows that are turned, a block of pairs at a time.
 * SPDX-License-Identifier: MIT
 *
 * A block computes its frequencies once, then for each row its cosines and sines, which serve all
 * heads.
 */
#pragma once

#include "frequencies.c"
#include "turn.c"

/* A block has 1 KiB of frequencies, cosines and sines, which serve a head of up to 128 at once. */
#define ROPE_BLOCK 64

typedef struct rope_block {
    int64_t first; /* first is a pair. */
    int n;
    uint64_t frequencies[ROPE_BLOCK];
    float c[ROPE_BLOCK], s[ROPE_BLOCK];
} rope_block;

/* A rope_source is where angles come from: they are computed, or taken from the table. */
typedef struct rope_source {
    int64_t pairs;
    rope_ladder angles;
    const float *cos, *sin; /* NULL means that they are computed. */
    int64_t table_stride;
} rope_source;

static rope_source source_of(const attn_rope *r, int64_t dim)
{
    rope_source from = { .pairs = dim / 2,
                         .cos = r->cos,
                         .sin = r->sin,
                         .table_stride = stride_or(r->table_stride, dim / 2) };
    if (!r->cos)
        from.angles = ladder_of(r, dim);
    return from;
}

static void begin_block(rope_block *k, const rope_source *from, int64_t first)
{
    int i;
    k->first = first;
    k->n = (int)min64(from->pairs - first, ROPE_BLOCK);
    memset(k->c, 0, sizeof k->c);
    memset(k->s, 0, sizeof k->s);
    for (i = 0; i < k->n && !from->cos; i++)
        k->frequencies[i] = frequency(&from->angles, first + i);
}

static void set_angles(rope_block *k, const rope_source *from, int64_t position)
{
    const float times_both = from->angles.attention;
    int i;
    if (from->cos) {
        const int64_t at = position * from->table_stride + k->first;
        memcpy(k->c, from->cos + at, (size_t)k->n * sizeof *k->c);
        memcpy(k->s, from->sin + at, (size_t)k->n * sizeof *k->s);
        return;
    }
    for (i = 0; i < k->n; i++) {
        cos_sin((uint64_t)position * k->frequencies[i], &k->c[i], &k->s[i]);
        k->c[i] = k->c[i] * times_both;
        k->s[i] = k->s[i] * times_both;
    }
}

/* ---- storage types */

typedef struct rope_job {
    const attn_rope *rope;
    attn_rope_rows rows; /* Strides of rows are resolved. */
    int64_t dim;
    const attn_kernels *kernels;
    rope_turn_fn turn;
} rope_job;

/* turn_through turns one head's row of a block through f32, and reads both halves before it writes
 * one. */
static void turn_through(const rope_job *j, const rope_block *k, char *y, const char *x)
{
    const int interleaved = j->rope->interleaved != 0, runs = interleaved ? 1 : 2;
    const int64_t first = interleaved ? 2 * k->first : k->first;
    const int64_t n = interleaved ? 2 * k->n : k->n, half = j->dim / 2;
    float z[2 * ROPE_BLOCK];
    int r;
    for (r = 0; r < runs; r++)
        load_run(j->kernels, j->rows.x.dtype, z + r * ROPE_BLOCK, x, first + r * half, n);
    j->turn(z, z, interleaved ? 1 : ROPE_BLOCK, k->c, k->s, k->n);
    for (r = 0; r < runs; r++)
        store_run(j->kernels, j->rows.y.dtype, y, first + r * half, z + r * ROPE_BLOCK, n);
}

static void turn_head(const rope_job *j, const rope_block *k, char *y, const char *x)
{
    const int interleaved = j->rope->interleaved != 0;
    const int64_t first = interleaved ? 2 * k->first : k->first;
    if (j->rows.x.dtype == ATTN_F32 && j->rows.y.dtype == ATTN_F32)
        j->turn((float *)(void *)y + first, (const float *)(const void *)x + first,
                interleaved ? 1 : j->dim / 2, k->c, k->s, k->n);
    else
        turn_through(j, k, y, x);
}

/* pass_head copies the elements that do not turn. */
static void pass_head(const rope_job *j, char *y, const char *x)
{
    const int x_type = j->rows.x.dtype, y_type = j->rows.y.dtype;
    const size_t turned = (size_t)j->dim * bytes_of(x_type);
    float z[2 * ROPE_BLOCK];
    int64_t at = j->dim, n, i;
    if (x_type == y_type) {
        if (x != y)
            memcpy(y + turned, x + turned, (size_t)j->rows.head_dim * bytes_of(x_type) - turned);
        return;
    }
    for (; at < j->rows.head_dim; at += n) {
        n = min64(j->rows.head_dim - at, 2 * ROPE_BLOCK);
        load_run(j->kernels, x_type, z, x, at, n);
        for (i = 0; i < n; i++)
            z[i] = finished(z[i]);
        store_run(j->kernels, y_type, y, at, z, n);
    }
}

/* ---- rows */

static int64_t position_of(const attn_rope_rows *r, int64_t b, int64_t i)
{
    if (r->positions)
        return r->positions[b * r->positions_stride + i];
    return (r->first ? r->first[b] : 0) + i;
}

/* As a special case, k = NULL copies what does not turn. */
static void run_row(const rope_job *j, const rope_block *k, int64_t b, int64_t i)
{
    const attn_tensor *from = &j->rows.x;
    const attn_output *to = &j->rows.y;
    const ptrdiff_t x_bytes = (ptrdiff_t)bytes_of(from->dtype);
    const ptrdiff_t y_bytes = (ptrdiff_t)bytes_of(to->dtype);
    const char *x = from->data;
    char *y = to->data;
    int64_t h;
    x += (b * from->stride_batch + i * from->stride_seq) * x_bytes;
    y += (b * to->stride_batch + i * to->stride_seq) * y_bytes;
    for (h = 0; h < j->rows.num_heads; h++) {
        if (k)
            turn_head(j, k, y, x);
        else
            pass_head(j, y, x);
        x += from->stride_head * x_bytes;
        y += to->stride_head * y_bytes;
    }
}

static void run_rows(const rope_job *j)
{
    const rope_source from = source_of(j->rope, j->dim);
    rope_block k;
    int64_t pair, b, i;
    for (pair = 0; pair < from.pairs; pair += ROPE_BLOCK) {
        begin_block(&k, &from, pair);
        for (b = 0; b < j->rows.batch; b++)
            for (i = 0; i < j->rows.seq_len; i++) {
                set_angles(&k, &from, position_of(&j->rows, b, i));
                run_row(j, &k, b, i);
            }
    }
    for (b = 0; b < j->rows.batch && j->dim < j->rows.head_dim; b++)
        for (i = 0; i < j->rows.seq_len; i++)
            run_row(j, NULL, b, i);
}
