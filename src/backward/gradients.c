/* src/backward/gradients.c - gradients: which are asked for, their strides, and every sentence about bad input.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../api/backward.h"
#include "../rules.c"
#include "../problem.c"

/* Which gradients, or parts of them, some work is about. */
enum { WANT_DQ = 1, WANT_DK = 2, WANT_DV = 4, WANT_BIAS = 8, WANT_SLOPES = 16, WANT_SINKS = 32 };
#define WANT_KEYS (WANT_DK | WANT_DV)
#define WANT_SUMS (WANT_BIAS | WANT_SLOPES)

static int wanted(const attn_gradients *g)
{
    return (g->dq.data ? WANT_DQ : 0) | (g->dk.data ? WANT_DK : 0) | (g->dv.data ? WANT_DV : 0) |
           (g->dbias.data ? WANT_BIAS : 0) | (g->dslopes ? WANT_SLOPES : 0) |
           (g->dsinks ? WANT_SINKS : 0);
}

/* Rows and keys of the longest sequence that there may be. */
static void longest(const attn_params *p, int64_t *rows, int64_t *keys)
{
    int64_t b;
    *rows = p->cu_seqlens_q ? 0 : p->seq_len_q;
    *keys = p->cu_seqlens_kv ? 0 : p->seq_len_kv;
    for (b = 0; p->cu_seqlens_q && b < p->batch; b++)
        *rows = max64(*rows, (int64_t)p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b]);
    for (b = 0; p->cu_seqlens_kv && b < p->batch; b++)
        *keys = max64(*keys, (int64_t)p->cu_seqlens_kv[b + 1] - p->cu_seqlens_kv[b]);
}

/* Packed over the axes that are kept; a stride that is given counts instead. */
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
}

static attn_sum_axes bias_axes(const attn_params *p, const attn_bias_gradient *d)
{
    const ptrdiff_t given[4] = { d->stride_batch, d->stride_head, d->stride_q, d->stride_kv };
    attn_sum_axes a;
    a.data = d->data;
    a.count[ATTN_AXIS_BATCH] = p->batch;
    a.count[ATTN_AXIS_HEAD] = p->num_heads_q;
    longest(p, &a.count[ATTN_AXIS_ROW], &a.count[ATTN_AXIS_KEY]);
    a.kept[ATTN_AXIS_BATCH] = p->bias.stride_batch != 0 || p->batch == 1;
    a.kept[ATTN_AXIS_HEAD] = p->bias.stride_head != 0 || p->num_heads_q == 1;
    a.kept[ATTN_AXIS_ROW] = p->bias.stride_q != 0 || a.count[ATTN_AXIS_ROW] == 1;
    a.kept[ATTN_AXIS_KEY] = p->bias.stride_kv != 0 || a.count[ATTN_AXIS_KEY] == 1;
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
    attn_sum_axes a;
    a.data = data;
    a.count[ATTN_AXIS_BATCH] = p->batch;
    a.count[ATTN_AXIS_HEAD] = p->num_heads_q;
    a.count[ATTN_AXIS_ROW] = a.count[ATTN_AXIS_KEY] = 1;
    a.kept[ATTN_AXIS_BATCH] = p->alibi_stride != 0;
    a.kept[ATTN_AXIS_HEAD] = 1;
    a.kept[ATTN_AXIS_ROW] = a.kept[ATTN_AXIS_KEY] = 0;
    pack_axes(&a, given);
    return a;
}

#define AT(member) offsetof(attn_gradients, member)

static const call_field gradient_fields[] = {
    { VALUE(dout.dtype, F_INT, BY_ALL, 0, LAST_DTYPE) },
    { VALUE(dlse.dtype, F_INT, BY_ALL, 0, 0) },
    { VALUE(dq.dtype, F_INT, BY_ALL, 0, LAST_DTYPE) },
    { VALUE(dk.dtype, F_INT, BY_ALL, 0, LAST_DTYPE) },
    { VALUE(dv.dtype, F_INT, BY_ALL, 0, LAST_DTYPE) },
    { TENSOR(dout, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V, BY_ALL) },
    { TENSOR(dlse, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE, BY_ALL) },
    { TENSOR(dq, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL), .output = 1 },
    { TENSOR(dk, AXIS_BATCH, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM, BY_ALL), .output = 1 },
    { TENSOR(dv, AXIS_BATCH, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM_V, BY_ALL), .output = 1 },
};
#undef AT

/* What a gradient needs that is not given. */
static attn_status check_given(const attn_params *p, const attn_gradients *g, int naive, text *why)
{
    if (p->batch == 0 || rows_held(p) == 0)
        return ATTN_OK;
    if (!g->dout.data)
        return bad(why, ATTN_ERR_ARG,
                   "dout.data is NULL: the gradient of the loss by o, zeros if "
                   "only dlse has one");
    if (!p->o.data && !naive)
        return bad(why, ATTN_ERR_ARG,
                   "o.data is NULL: attn_backward reads what attn_forward wrote");
    if (!p->lse.data && !naive)
        return bad(why, ATTN_ERR_ARG,
                   "lse.data is NULL: attn_backward reads what attn_forward wrote");
    if (!wanted(g))
        return bad(why, ATTN_ERR_ARG,
                   "nothing is asked for: dq, dk, dv, dbias, dsinks and dslopes are all NULL");
    return ATTN_OK;
}

static attn_status check_bias_strides(const attn_bias_gradient *d, text *why)
{
    const struct {
        const char *name;
        ptrdiff_t stride;
    } fields[] = {
        { "dbias.stride_batch", d->stride_batch },
        { "dbias.stride_head", d->stride_head },
        { "dbias.stride_q", d->stride_q },
        { "dbias.stride_kv", d->stride_kv },
    };
    int i;
    for (i = 0; i < COUNT_OF(fields); i++) {
        if (fields[i].stride != ATTN_STRIDE_BROADCAST)
            continue;
        put(why, fields[i].name);
        return bad(why, ATTN_ERR_ARG,
                   " (ATTN_STRIDE_BROADCAST) must be 0 (packed) or a stride; "
                   "bias says what is summed");
    }
    return ATTN_OK;
}

/* Fields that mean nothing without another one are refused, not ignored. */
static attn_status check_wishes(const attn_params *p, const attn_gradients *g, text *why)
{
    const attn_bias_gradient *d = &g->dbias;
    if (p->score && !g->score_derivative)
        return bad(why, ATTN_ERR_ARG, "score is given, but score_derivative is NULL");
    if (!p->score && g->score_derivative)
        return bad(why, ATTN_ERR_ARG, "score_derivative is given, but score is NULL");
    if (d->data && !p->bias.data)
        return bad(why, ATTN_ERR_ARG, "dbias is asked for, but bias.data is NULL");
    if (g->dsinks && !p->sinks)
        return bad(why, ATTN_ERR_ARG, "dsinks is asked for, but sinks is NULL");
    if (g->dslopes && !p->alibi_slopes)
        return bad(why, ATTN_ERR_ARG, "dslopes is asked for, but alibi_slopes is NULL");
    return check_bias_strides(d, why);
}

static attn_status check_unsupported(const attn_params *p, const attn_gradients *g, text *why)
{
    if ((p->part.rows || p->part.keys) && g->dbias.data)
        return bad(why, ATTN_ERR_UNSUPPORTED, "part and dbias: give one of them");
    if (p->part.keys && g->dsinks)
        return bad(why, ATTN_ERR_UNSUPPORTED, "part.keys and dsinks: give one of them");
    return refuse_fields(p, BY_GRADIENTS, "attn_backward", why);
}

/* Before strides are resolved. need_data: what the call reads and writes must be there, too. */
static attn_status check_gradients(const attn_params *p, const attn_gradients *g, int naive,
                                   int need_data, text *why)
{
    attn_status status;
    if (g->gemms != 0 && g->gemms != 5 && g->gemms != 7)
        return bad_field(why, ATTN_ERR_ARG, "gemms", g->gemms, " must be 0, 5 or 7");
    status = check_values(gradient_fields, COUNT_OF(gradient_fields), g, why);
    if (!status)
        status = check_wishes(p, g, why);
    if (!status && need_data)
        status = check_given(p, g, naive, why);
    if (!status)
        status = check_output_fields(gradient_fields, COUNT_OF(gradient_fields), g, why);
    return status;
}

/* Every array of gradients gets its strides, or *why says which one does not fit into memory. */
static attn_status resolve_gradients(const attn_params *p, attn_gradients *g, text *why)
{
    const call_axes x = axes_of_call(p);
    attn_status status = resolve_arrays(gradient_fields, COUNT_OF(gradient_fields), g, &x, why);
    const attn_sum_axes a = bias_axes(p, &g->dbias);
    if (!status && a.data)
        status =
            check_extent("dbias", sizeof(float), a.count[ATTN_AXIS_BATCH], a.count[ATTN_AXIS_HEAD],
                         a.count[ATTN_AXIS_ROW], a.count[ATTN_AXIS_KEY], a.stride, why);
    return status;
}
