/* slices.c - one call cut into parts.
 * SPDX-License-Identifier: MIT
 */
#include "slices.h"
#include "oracle.h"

#include <string.h>

static ptrdiff_t given(ptrdiff_t step)
{
    return step != 0 ? step : ATTN_STRIDE_BROADCAST;
}

static void explicit_input(attn_tensor *a, const test_tensor *t)
{
    a->stride_batch = given(t->step_batch);
    a->stride_head = given(t->step_head);
    a->stride_seq = given(t->step_seq);
}

static void explicit_output(attn_output *a, const test_tensor *t)
{
    a->stride_batch = t->step_batch;
    a->stride_head = t->step_head;
    a->stride_seq = t->step_seq;
}

void slice_explicit(attn_params *p, const test_problem *t)
{
    explicit_input(&p->q, &t->q);
    explicit_input(&p->k, &t->k);
    explicit_input(&p->v, &t->v);
    explicit_output(&p->o, &t->o);
    explicit_output(&p->lse, &t->lse);
    if (p->q_segments_stride == 0)
        p->q_segments_stride = (ptrdiff_t)p->seq_len_q;
    if (p->kv_segments_stride == 0)
        p->kv_segments_stride = (ptrdiff_t)p->seq_len_kv;
}

static void move_input(attn_tensor *a, ptrdiff_t elements)
{
    a->data = (const char *)a->data + elements * (ptrdiff_t)dtype_size(a->dtype);
}

static void move_output(attn_output *a, ptrdiff_t elements)
{
    if (a->data != NULL)
        a->data = (char *)a->data + elements * (ptrdiff_t)dtype_size(a->dtype);
}

static void move_dense(attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    attn_bias *bias = &p->bias;
    attn_mask *mask = &p->bool_mask;
    if (bias->data != NULL)
        bias->data = (const char *)bias->data +
                     ((ptrdiff_t)b * bias->stride_batch + (ptrdiff_t)h * bias->stride_head +
                      (ptrdiff_t)i * bias->stride_q + (ptrdiff_t)j * bias->stride_kv) *
                         (ptrdiff_t)dtype_size(bias->dtype);
    if (mask->data != NULL)
        mask->data += (ptrdiff_t)b * mask->stride_batch + (ptrdiff_t)h * mask->stride_head +
                      (ptrdiff_t)i * mask->stride_q + (ptrdiff_t)j * mask->stride_kv;
}

static const int32_t *moved(const int32_t *array, int64_t count)
{
    return array != NULL ? array + count : NULL;
}

int64_t slice_offset(const attn_params *p, int64_t b)
{
    return p->alignment == ATTN_ALIGN_OFFSET      ? p->q_offset[b]
           : p->alignment == ATTN_ALIGN_TOP_LEFT ? 0
                                                 : oracle_keys(p, b) - oracle_rows(p, b);
}

static void move_sequence(attn_params *p, const test_problem *t, int64_t b)
{
    const int64_t q = p->cu_seqlens_q[b], kv = p->cu_seqlens_kv[b];
    move_input(&p->q, (ptrdiff_t)q * t->q.step_seq);
    move_input(&p->k, (ptrdiff_t)kv * t->k.step_seq);
    move_input(&p->v, (ptrdiff_t)kv * t->v.step_seq);
    move_output(&p->o, (ptrdiff_t)q * t->o.step_seq);
    move_output(&p->lse, (ptrdiff_t)q * t->lse.step_seq);
    p->q_segments = moved(p->q_segments, q);
    p->kv_segments = moved(p->kv_segments, kv);
    p->seq_len_q = p->cu_seqlens_q[b + 1] - q;
    p->seq_len_kv = p->cu_seqlens_kv[b + 1] - kv;
    p->cu_seqlens_q = p->cu_seqlens_kv = NULL;
}

static void move_entry(attn_params *p, const test_problem *t, int64_t b)
{
    move_input(&p->q, (ptrdiff_t)b * t->q.step_batch);
    move_input(&p->k, (ptrdiff_t)b * t->k.step_batch);
    move_input(&p->v, (ptrdiff_t)b * t->v.step_batch);
    move_output(&p->o, (ptrdiff_t)b * t->o.step_batch);
    move_output(&p->lse, (ptrdiff_t)b * t->lse.step_batch);
    p->q_segments = moved(p->q_segments, b * (int64_t)p->q_segments_stride);
    p->kv_segments = moved(p->kv_segments, b * (int64_t)p->kv_segments_stride);
}

void slice_batch(attn_params *p, const test_problem *t, int64_t b)
{
    slice_explicit(p, t);
    if (p->cu_seqlens_q != NULL)
        move_sequence(p, t, b);
    else
        move_entry(p, t, b);
    move_dense(p, b, 0, 0, 0);
    p->batch = 1;
    p->q_len = moved(p->q_len, b);
    p->kv_len = moved(p->kv_len, b);
    p->kv_begin = moved(p->kv_begin, b);
    p->q_offset = moved(p->q_offset, b);
    p->prefix = moved(p->prefix, b);
    p->key_base = p->key_base != NULL ? p->key_base + b : NULL;
    p->alibi_slopes = p->alibi_slopes != NULL ? p->alibi_slopes + b * p->alibi_stride : NULL;
}

void slice_head(attn_params *p, const test_problem *t, int64_t h)
{
    const int64_t heads_kv = p->num_heads_kv != 0 ? p->num_heads_kv : p->num_heads_q;
    const ptrdiff_t kv_head = (ptrdiff_t)(h / (p->num_heads_q / heads_kv));
    slice_explicit(p, t);
    move_input(&p->q, (ptrdiff_t)h * t->q.step_head);
    move_input(&p->k, kv_head * t->k.step_head);
    move_input(&p->v, kv_head * t->v.step_head);
    move_output(&p->o, (ptrdiff_t)h * t->o.step_head);
    move_output(&p->lse, (ptrdiff_t)h * t->lse.step_head);
    move_dense(p, 0, h, 0, 0);
    p->num_heads_q = p->num_heads_kv = 1;
    p->alibi_stride = p->alibi_stride != 0 ? p->alibi_stride : 0;
    p->alibi_slopes = p->alibi_slopes != NULL ? p->alibi_slopes + h : NULL;
    p->sinks = p->sinks != NULL ? p->sinks + h : NULL;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Fixes every position as an offset; shift is added to all. */
static void fix_offsets(attn_params *p, int64_t shift)
{
    int32_t *offsets = test_alloc((size_t)p->batch * sizeof *offsets);
    for (int64_t b = 0; b < p->batch; b++)
        offsets[b] = (int32_t)(slice_offset(p, b) + shift);
    p->alignment = ATTN_ALIGN_OFFSET;
    p->q_offset = offsets;
}

void slice_rows(attn_params *p, const test_problem *t, int64_t begin, int64_t count)
{
    int32_t *lengths = test_alloc((size_t)p->batch * sizeof *lengths);
    fix_offsets(p, begin);
    slice_explicit(p, t);
    for (int64_t b = 0; b < p->batch; b++)
        lengths[b] = (int32_t)clamp(oracle_rows(p, b) - begin, 0, count);
    p->q_len = lengths;
    p->seq_len_q = count;
    move_input(&p->q, (ptrdiff_t)begin * t->q.step_seq);
    move_output(&p->o, (ptrdiff_t)begin * t->o.step_seq);
    move_output(&p->lse, (ptrdiff_t)begin * t->lse.step_seq);
    move_dense(p, 0, 0, begin, 0);
    p->q_segments = moved(p->q_segments, begin);
}

static void move_numbers(attn_params *p, int64_t begin, int64_t count)
{
    int32_t *lengths = test_alloc((size_t)p->batch * sizeof *lengths);
    int32_t *prefix = test_alloc((size_t)p->batch * sizeof *prefix);
    int64_t *base = test_alloc((size_t)p->batch * sizeof *base);
    for (int64_t b = 0; b < p->batch; b++) {
        lengths[b] = (int32_t)clamp(oracle_keys(p, b) - begin, 0, count);
        prefix[b] = (int32_t)clamp(p->prefix != NULL ? p->prefix[b] - begin : 0, 0, lengths[b]);
        base[b] = (p->key_base != NULL ? p->key_base[b] : 0) + begin;
    }
    p->kv_len = lengths;
    p->prefix = p->prefix != NULL ? prefix : NULL;
    p->key_base = base;
}

void slice_keys(attn_params *p, const test_problem *t, int64_t begin, int64_t count)
{
    fix_offsets(p, -begin);
    slice_explicit(p, t);
    move_numbers(p, begin, count);
    p->seq_len_kv = count;
    move_input(&p->k, (ptrdiff_t)begin * t->k.step_seq);
    move_input(&p->v, (ptrdiff_t)begin * t->v.step_seq);
    move_dense(p, 0, 0, 0, begin);
    p->kv_segments = moved(p->kv_segments, begin);
}
