/* src/backward/fields.c - the fields of attn_gradients, and the axes of sums over pairs.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../api/backward.h"
#include "../fields.c"

/* These bits name the gradients, or parts of them, that some work is about. */
enum { WANT_DQ = 1, WANT_DK = 2, WANT_DV = 4, WANT_BIAS = 8, WANT_SLOPES = 16, WANT_SINKS = 32 };
#define WANT_KEYS (WANT_DK | WANT_DV)
#define WANT_SUMS (WANT_BIAS | WANT_SLOPES)

static int wanted(const attn_gradients *g)
{
    return (g->dq.data ? WANT_DQ : 0) | (g->dk.data ? WANT_DK : 0) | (g->dv.data ? WANT_DV : 0) |
           (g->dbias.data ? WANT_BIAS : 0) | (g->dslopes ? WANT_SLOPES : 0) |
           (g->dsinks ? WANT_SINKS : 0);
}

/* pack_axes packs the axes that are kept; a stride that is given counts instead. */
static void pack_axes(attn_sum_axes *a, const ptrdiff_t given[4])
{
    int64_t packed = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        a->stride[axis] = 0;
        if (!a->kept[axis])
            a->count[axis] = 1;
        else
            a->stride[axis] = given[axis] ? given[axis] : to_stride(packed);
        packed = times(packed, a->count[axis]);
    }
    settle_strides(4, a->count, a->stride);
}

/* The bias of a part is that of the whole call; its gradient has the rows that are held. */
static attn_sum_axes bias_axes(const attn_params *p, const attn_bias_gradient *d)
{
    const ptrdiff_t given[4] = { d->stride_batch, d->stride_head, d->stride_q, d->stride_kv };
    const ptrdiff_t of_bias[4] = { p->bias.stride_batch, p->bias.stride_head, p->bias.stride_q,
                                   p->bias.stride_kv };
    attn_sum_axes a = { .data = d->data,
                        .count = { p->batch, p->num_heads_q,
                                   longest(p->cu_seqlens_q, p->batch, rows_held(p)),
                                   longest(p->cu_seqlens_kv, p->batch, p->seq_len_kv) } };
    int axis;
    for (axis = 0; axis < 4; axis++)
        a.kept[axis] = of_bias[axis] != 0 || a.count[axis] == 1;
    pack_axes(&a, given);
    return a;
}

static int keeps_all(const attn_sum_axes *a)
{
    return a->kept[ATTN_AXIS_BATCH] && a->kept[ATTN_AXIS_HEAD] && a->kept[ATTN_AXIS_ROW] &&
           a->kept[ATTN_AXIS_KEY];
}

static attn_sum_axes slope_axes(const attn_params *p, float *data)
{
    const ptrdiff_t given[4] = { 0, 0, 0, 0 };
    attn_sum_axes a = { .data = data,
                        .count = { p->batch, p->num_heads_q, 1, 1 },
                        .kept = { p->alibi_stride != 0, 1, 0, 0 } };
    pack_axes(&a, given);
    return a;
}

#define AT(member) offsetof(attn_gradients, member)

static const call_field gradient_fields[] = {
    { DTYPE(dout.dtype, BY_ALL) },
    { VALUE(dlse.dtype, F_INT, BY_ALL, 0, 0), .instead = "f32" },
    { DTYPE(dq.dtype, BY_ALL) },
    { DTYPE(dk.dtype, BY_ALL) },
    { DTYPE(dv.dtype, BY_ALL) },
    { TENSOR(dout, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V, BY_ALL) },
    { TENSOR(dlse, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE, BY_ALL) },
    { TENSOR(dq, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(dk, AXIS_BATCH, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(dv, AXIS_BATCH, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM_V, BY_ALL), .output = OUTPUT_RESULT },
    { LIST(dsinks, F_F32, BY_ALL, AXIS_NONE, AXIS_HEAD), .output = OUTPUT_RESULT },
};
#undef AT

/* gradient_axes makes the axes of a call those of its gradients: dk and dv have the keys of each sequence,
 * wherever a cache has them, for pages that sequences share would be written by each. */
static call_axes gradient_axes(const attn_params *p, call_axes x)
{
    x.count[AXIS_KEY] = keys_held(p);
    return x;
}

/* resolve_gradients gives every array of gradients its strides, or *why says which one does not fit
 * into memory. */
static attn_status resolve_gradients(const attn_params *p, attn_gradients *g, text *why)
{
    const call_axes x = gradient_axes(p, axes_of_call(p));
    attn_status status = resolve_arrays(gradient_fields, COUNT_OF(gradient_fields), g, &x, why);
    const attn_sum_axes a = bias_axes(p, &g->dbias);
    if (!status && a.data)
        status = check_extent("dbias", sizeof(float), a.count[0], a.count[1], a.count[2],
                              a.count[3], a.stride, why);
    if (!status)
        status = check_aligned("dbias", a.data, sizeof(float), why);
    return status ? status : check_aligned("dslopes", g->dslopes, sizeof(float), why);
}

/* add_axes adds what the gradients that a backend gets have beyond those of the caller. */
OWN_FRAME static void add_axes(const attn_params *p, attn_gradient_call *made)
{
    made->bias = bias_axes(p, &made->g.dbias);
    made->slopes = slope_axes(p, made->g.dslopes);
}
