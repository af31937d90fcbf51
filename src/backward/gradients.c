/* src/backward/gradients.c - gradients: their strides, and every sentence about bad input.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "fields.c"
#include "../validate.c"

/* check_given names the first array that gradients need and that is not given. */
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
    if (!p->stats.data && !p->lse.data && !naive)
        return bad(why, ATTN_ERR_ARG,
                   "stats.data and lse.data are NULL: attn_backward reads what attn_forward wrote");
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

/* check_gradients comes before strides are resolved. With need_data, what the call reads and writes
 * must be there, too. */
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

/* gradient_row tells where key j of a sequence has its row in dk and dv: sequence_of without what a cache
 * adds. */
static int64_t gradient_row(const attn_params *p, const sequence *s, int64_t j)
{
    return s->kv_row - entry32(p->kv_rows.begin, s->b, 0) - p->part.key_row + j;
}

/* end_of_gradients is an end_of_use_fn for dk and dv, which a cache does not scatter, and for the rest. */
static int64_t end_of_gradients(const attn_params *p, int axis, int64_t count, int64_t b)
{
    sequence s;
    if (axis != AXIS_KEY)
        return end_of_use(p, axis, count, b);
    s = sequence_of(p, b);
    return s.key_from < s.key_to ? gradient_row(p, &s, s.key_to) : 0;
}

/* check_gradients_apart is check_call_apart for gradients, which read what a call has written. */
OWN_FRAME static attn_status check_gradients_apart(const attn_params *p, const attn_gradients *g,
                                                   const area *memory, text *why)
{
    const call_axes x = axes_in_use(p), of_gradients = gradient_axes(p, x);
    array_set sets[] = {
        { gradient_fields, COUNT_OF(gradient_fields), g, &of_gradients, .written = OUTPUT_RESULT },
        { call_fields, COUNT_OF(call_fields), p, &x, .read = OUTPUT_RESULT },
    };
    const attn_sum_axes bias = bias_axes(p, &g->dbias), slopes = slope_axes(p, g->dslopes);
    const area sums[] = {
        area_of("dbias", bias.data, 4, bias.count, bias.stride, sizeof(float), 1),
        area_of("dslopes", slopes.data, 4, slopes.count, slopes.stride, sizeof(float), 1),
    };
    attn_status status;
    int i;
    leave_out_unused(p, &sets[0]);
    sets[0].end_of_use = end_of_gradients;
    leave_out_unused(p, &sets[1]);
    status = check_written(sets, 2, memory, why);
    for (i = 0; i < COUNT_OF(sums) && !status; i++) {
        status = check_itself(&sums[i], why);
        status = status ? status : check_pair(memory, &sums[i], why);
        status = status ? status : check_written(sets, 2, &sums[i], why);
    }
    return status ? status : check_pair(&sums[0], &sums[1], why);
}
