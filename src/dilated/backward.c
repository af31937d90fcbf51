/* src/dilated/backward.c - dilated attention, backward: the gradients of the branches, added up.
 * SPDX-License-Identifier: MIT
 *
 * The gradients of a branch are those of attn_backward, which computes probabilities from the LSE that
 * it is given: here the LSE of all branches. With a mean, branches have an o and lse of their own,
 * computed again, and the gradient of o divided by their number.
 */
#pragma once

#include "../backward/backward.c"
#include "forward.c"

enum { GRAD_Q, GRAD_K, GRAD_V };

static attn_status check_wanted(const attn_params *p, const attn_dilated *d,
                                const attn_gradients *g, text *why)
{
    const int naive = p->impl == ATTN_IMPL_NAIVE || p->impl == ATTN_IMPL_AUTO;
    if (!g)
        return bad(why, ATTN_ERR_ARG, "gradients is NULL");
    if (naive && d->merge == ATTN_DILATED_LSE) /* It would take the lse of each branch. */
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " must be tiled for gradients of merged branches: naive reads no lse");
    if (g->dbias.data || g->dslopes)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "dbias or dslopes is asked for, but there are dq, dk, dv and dsinks alone");
    if (d->merge == ATTN_DILATED_MEAN && g->dlse.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "dlse.data is set, but a mean of branches has no lse");
    return ATTN_OK;
}

/* validate_gradients turns *p and *d into *pr and *g into *resolved, or says what is wrong with
 * them. A mean does not need o and lse, just as the textbook does not. */
static attn_status validate_gradients(const attn_params *p, const attn_dilated *d,
                                      const attn_gradients *g, int need_data, problem *pr,
                                      attn_gradients *resolved, text *why)
{
    attn_status status = validate_dilated(p, d, need_data, pr, why);
    if (!status)
        status = check_wanted(p, d, g, why);
    if (status)
        return status;
    pr->p = *p;
    if (d->merge == ATTN_DILATED_MEAN)
        pr->p.impl = ATTN_IMPL_NAIVE;
    status = validate_backward(&pr->p, g, need_data, pr, resolved, why);
    pr->p.impl = p->impl;
    return status;
}

OWN_FRAME static attn_status outline_backward(const attn_params *p, const attn_dilated *d,
                                              const attn_gradients *g, int need_data, outline *out,
                                              text *why)
{
    attn_gradients resolved;
    problem pr;
    const attn_status status = validate_gradients(p, d, g, need_data, &pr, &resolved, why);
    memset(out, 0, sizeof *out);
    if (!status)
        fill_outline(&pr, out);
    return status;
}

static int grad_wanted(const attn_gradients *g, int which)
{
    return (which == GRAD_Q ? g->dq.data : which == GRAD_K ? g->dk.data : g->dv.data) != NULL;
}

/* plan_sum_grads lays out a slot: the sums of dq, dk, dv of a kv head, what a call adds, and with a
 * mean its o, lse and dout. */
static void plan_sum_grads(const attn_dilated *d, const outline *out, const attn_gradients *g,
                           dilated_layout *lay)
{
    const int64_t rows = times(out->group, out->rows), keys = out->positions;
    const int64_t mean_rows = d->merge == ATTN_DILATED_MEAN ? rows : 0;
    const int64_t floats[3] = { times(rows, out->dim), times(keys, out->dim),
                                times(keys, out->dim_v) };
    int64_t at = 0;
    int which;
    place(&at, 1, sizeof(dilated_slot));
    lay->slopes = place(&at, out->group, sizeof(float));
    for (which = GRAD_Q; which <= GRAD_V; which++) {
        const int64_t count = grad_wanted(g, which) ? floats[which] : 0;
        lay->sum_grads[which] = place(&at, count, sizeof(float));
        lay->part_grads[which] = place(&at, count, sizeof(float));
    }
    lay->part = place_rows(&at, mean_rows, out->dim_v);
    lay->dout = place(&at, times(mean_rows, out->dim_v), sizeof(float));
    lay->inner = at;
}

/* PACK_STRIDES makes a tensor or output packed, where strides do not matter. */
#define PACK_STRIDES(t) ((t).stride_batch = (t).stride_head = (t).stride_seq = 0)

/* part_of_wanted sets what calls of a branch ask for, as far as sizes depend on it. */
static void part_of_wanted(attn_gradients *part, const attn_gradients *g)
{
    *part = *g;
    part->dsinks = NULL;
    PACK_STRIDES(part->dout);
    PACK_STRIDES(part->dlse);
    PACK_STRIDES(part->dq);
    PACK_STRIDES(part->dk);
    PACK_STRIDES(part->dv);
}

/* size_backward counts the bytes of workspace for the calls of branch n. As a special case, n =
 * num_branches means the call of dsinks. */
OWN_FRAME static attn_status size_backward(const attn_params *asked, const attn_dilated *d,
                                           const outline *out, const attn_gradients *g, int n,
                                           size_t *bytes)
{
    text why = text_in(NULL, 0);
    attn_gradients part;
    problem pr;
    attn_status status;
    pr.p = *asked;
    memset(&part, 0, sizeof part);
    part.dsinks = g->dsinks;
    if (n < d->num_branches) {
        part_of_wanted(&part, g);
        largest_call(&pr.p, d, out, 0, n);
        strip_call(&pr.p);
        pr.p.batch =
            max64(1, out->positions / lattice_of(&d->branches[n], 0, out->positions).segment);
        pr.p.kernels = out->kernels;
    }
    pr.p.num_workers = 1;
    pr.p.parallel_for = NULL;
    status = validate(&pr.p, &pr, 0, &why);
    if (!status)
        *bytes = (size_t)least_bytes(&pr, &part, asked);
    return status;
}

static attn_status plan_backward_calls(const attn_params *p, const attn_dilated *d,
                                       const outline *out, const attn_gradients *g,
                                       dilated_layout *lay, text *why)
{
    int n;
    for (n = 0; n <= d->num_branches; n++) {
        size_t bytes = 0, forward = 0;
        attn_status status =
            n < d->num_branches || g->dsinks ? size_backward(p, d, out, g, n, &bytes) : ATTN_OK;
        if (!status && n < d->num_branches && d->merge == ATTN_DILATED_MEAN)
            status = size_forward(p, d, out, 0, n, &forward);
        if (status)
            return bad(why, ATTN_ERR_OVERFLOW,
                       "the workspace of a branch exceeds the address space");
        lay->inner_bytes = max64(lay->inner_bytes, (int64_t)(bytes > forward ? bytes : forward));
    }
    lay->slot_bytes = plus(lay->inner, aligned(lay->inner_bytes));
    lay->blocks = 1;
    lay->items = times(out->batch, out->heads);
    lay->workers = (int)max64(1, min64(out->workers, lay->items));
    return ATTN_OK;
}

static attn_status check_dilated_backward(const attn_params *p, const attn_dilated *d,
                                          const attn_gradients *g, int need_data, int64_t have,
                                          dilated_layout *lay, text *why)
{
    outline out;
    attn_status status = outline_backward(p, d, g, need_data, &out, why);
    if (status)
        return status;
    memset(lay, 0, sizeof *lay);
    plan_sum_grads(d, &out, g, lay);
    status = plan_backward_calls(p, d, &out, g, lay, why);
    return status ? status : check_dilated_room(lay, have, why);
}

/* ---- a call */

static void run_backward_call(dilated_slot *w)
{
    const attn_status status =
        attn_backward(&w->p, &w->g, w->inner, (size_t)w->run->lay.inner_bytes);
    w->status = w->status ? w->status : status;
}

/* view_output gives an output of the caller's that the call only reads. */
static attn_output view_output(const dilated_slot *w, const attn_output *t)
{
    const attn_tensor whole = as_tensor(t), view = view_rows(w, &whole);
    attn_output o = *t;
    o.data = t->data ? (char *)t->data + ((const char *)view.data - (const char *)t->data) : NULL;
    o.stride_batch = w->at.count > 1 ? view.stride_batch : 0;
    o.stride_head = w->heads > 1 ? view.stride_head : 0;
    o.stride_seq = view.stride_seq;
    return o;
}

/* prepare_mean_row gives the call the branch's own o and lse, and dout over the number of branches,
 * all packed and f32. */
static void prepare_mean_row(dilated_slot *w, int64_t e, int64_t h, int64_t i, int64_t row)
{
    const attn_tensor *dout = &w->run->g.dout;
    const int64_t head = w->head + h * w->step, dim = w->asked->head_dim_v;
    const int64_t position = w->at.first + e * w->l.segment + (w->at.row0 + i) * w->l.dilation;
    const int64_t at = ROW_AT(*dout, &w->s, head, w->s.q_row + position - w->before);
    const float count = (float)branches_of_head(&w->run->d, head);
    float *to = SLOT_FLOATS(w, w->run->lay.dout) + row * dim;
    int64_t d;
    load_run(w->asked->kernels, dout->dtype, to, dout->data, at, dim);
    for (d = 0; d < dim; d++)
        to[d] = to[d] / count;
}

static void prepare_mean(dilated_slot *w)
{
    int64_t e, h, i, row = 0;
    w->part = rows_in(w, w->run->lay.part, w->at.count * w->heads * w->at.rows);
    ask_results(w, 1);
    run_call(w);
    for (e = 0; e < w->at.count; e++)
        for (h = 0; h < w->heads; h++)
            for (i = 0; i < w->at.rows; i++)
                prepare_mean_row(w, e, h, i, row++);
}

/* add_row adds n floats of row `row` of the part to row `sum` of the sums. */
static void add_row(dilated_slot *w, int which, int64_t sum, int64_t row, int64_t n)
{
    const dilated_layout *lay = &w->run->lay;
    float *to = SLOT_FLOATS(w, lay->sum_grads[which]) + sum * n;
    const float *from = SLOT_FLOATS(w, lay->part_grads[which]) + row * n;
    int64_t d;
    for (d = 0; d < n; d++)
        to[d] = to[d] + from[d];
}

static void add_dq(dilated_slot *w, int64_t sum, int64_t row)
{
    add_row(w, GRAD_Q, sum, row, w->asked->head_dim);
}

static void add_keys_of(dilated_slot *w, int which, int64_t n)
{
    int64_t e, j, row = 0;
    for (e = 0; e < w->at.count; e++)
        for (j = 0; j < w->at.keys; j++)
            add_row(w, which, w->at.first + e * w->l.segment + j * w->l.dilation, row++, n);
}

/* ask_gradients_of asks for the gradients of a call whose o and lse are there. */
OWN_FRAME static void ask_gradients_of(dilated_slot *w)
{
    const dilated_layout *lay = &w->run->lay;
    const attn_gradients *g = &w->run->g;
    memset(&w->g, 0, sizeof w->g);
    w->g.gemms = g->gemms;
    if (w->run->d.merge == ATTN_DILATED_MEAN) {
        w->g.dout.data = SLOT_FLOATS(w, lay->dout);
    } else {
        w->g.dout = view_rows(w, &g->dout);
        w->g.dlse = view_rows(w, &g->dlse);
        w->p.o = view_output(w, &w->asked->o);
        w->p.lse = view_output(w, &w->asked->lse);
    }
    if (g->dq.data)
        w->g.dq.data = SLOT_FLOATS(w, lay->part_grads[GRAD_Q]);
    if (g->dk.data)
        w->g.dk.data = SLOT_FLOATS(w, lay->part_grads[GRAD_K]);
    if (g->dv.data)
        w->g.dv.data = SLOT_FLOATS(w, lay->part_grads[GRAD_V]);
    /* All calls take one set, as the largest call then needs most memory. */
    w->p.kernels = w->asked->kernels;
}

static void backward_call(dilated_slot *w)
{
    const attn_gradients *g = &w->run->g;
    open_call(w);
    if (w->run->d.merge == ATTN_DILATED_MEAN)
        prepare_mean(w);
    ask_gradients_of(w);
    run_backward_call(w);
    if (g->dq.data)
        each_row(w, add_dq);
    if (g->dk.data)
        add_keys_of(w, GRAD_K, w->asked->head_dim);
    if (g->dv.data)
        add_keys_of(w, GRAD_V, w->asked->head_dim_v);
}

/* ---- an item */

/* store_grads writes rows of a head, n floats each, from the sums to an output of the caller's. */
static void store_grads(const dilated_slot *w, int which, const attn_output *to, int64_t head,
                        int64_t first_row, int64_t from, int64_t rows, int64_t n)
{
    float *sums = SLOT_FLOATS(w, w->run->lay.sum_grads[which]) + from * n;
    int64_t i;
    for (i = 0; i < rows; i++)
        store_results(w, to, ROW_AT(*to, &w->s, head, first_row + i), sums + i * n, n);
}

static void clear_grads(const dilated_slot *w, int which, int64_t rows, int64_t n)
{
    if (grad_wanted(&w->run->g, which))
        memset(SLOT_FLOATS(w, w->run->lay.sum_grads[which]), 0, (size_t)(rows * n) * sizeof(float));
}

static void clear_item(const dilated_slot *w)
{
    const attn_params *p = w->asked;
    clear_grads(w, GRAD_Q, w->run->c.pr.group * w->s.q_len, p->head_dim);
    clear_grads(w, GRAD_K, w->s.kv_len, p->head_dim);
    clear_grads(w, GRAD_V, w->s.kv_len, p->head_dim_v);
}

static void store_item(const dilated_slot *w)
{
    const attn_params *p = w->asked;
    const attn_gradients *g = &w->run->g;
    const int64_t group = w->run->c.pr.group, rows = w->s.q_len, keys = w->s.kv_len;
    int64_t h;
    for (h = 0; h < group && g->dq.data; h++)
        store_grads(w, GRAD_Q, &g->dq, w->kv_head * group + h, w->s.q_row, h * rows, rows,
                    p->head_dim);
    if (g->dk.data)
        store_grads(w, GRAD_K, &g->dk, w->kv_head, w->s.kv_row, 0, keys, p->head_dim);
    if (g->dv.data)
        store_grads(w, GRAD_V, &g->dv, w->kv_head, w->s.kv_row, 0, keys, p->head_dim_v);
}

static void backward_item(const call *c, char *base, int64_t index)
{
    dilated_slot *w =
        open_slot(c, base, index / c->pr.p.num_heads_kv, index % c->pr.p.num_heads_kv);
    int n;
    clear_item(w);
    for (n = 0; n < w->run->d.num_branches && w->run->calls; n++)
        each_call(w, n, backward_call);
    store_item(w);
}

/* run_sinks computes dsinks, a sum over rows that no key enters, in the slot of the first
 * worker. */
static attn_status run_sinks(dilated_run *run, const attn_params *p, const attn_gradients *g)
{
    dilated_slot *w = (dilated_slot *)(void *)run->c.slots;
    if (!g->dsinks)
        return ATTN_OK;
    w->p = *p;
    w->p.num_workers = 1;
    w->p.parallel_for = NULL;
    memset(&w->g, 0, sizeof w->g);
    w->g.dout = g->dout;
    w->g.dlse = g->dlse;
    w->g.dsinks = g->dsinks;
    return attn_backward(&w->p, &w->g, run->c.slots + run->lay.inner, (size_t)run->lay.inner_bytes);
}

OWN_FRAME static attn_status prepare_backward(const attn_params *p, const attn_dilated *d,
                                              const attn_gradients *g, void *workspace,
                                              size_t bytes, dilated_run **run)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    const attn_status status =
        check_dilated_backward(p, d, g, 1, bytes_given(workspace, bytes), &lay, &why);
    if (status)
        return status;
    *run = open_run(p, d, &lay, workspace, bytes);
    (*run)->calls = g->dq.data || g->dk.data || g->dv.data;
    return validate_gradients(p, d, g, 1, &(*run)->c.pr, &(*run)->g, &why);
}

ATTN_API attn_status attn_dilated_backward(const attn_params *p, const attn_dilated *d,
                                           const attn_gradients *g, void *workspace,
                                           size_t workspace_bytes)
{
    dilated_run *run;
    attn_status status = prepare_backward(p, d, g, workspace, workspace_bytes, &run);
    if (!status)
        status = run_list(run, backward_item);
    return status ? status : run_sinks(run, p, g);
}

ATTN_API attn_status attn_dilated_backward_workspace_size(const attn_params *p,
                                                          const attn_dilated *d,
                                                          const attn_gradients *g, size_t *bytes)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_dilated_backward(p, d, g, 0, ADDRESS_LIMIT, &lay, &why);
    *bytes = status ? 0 : (size_t)dilated_bytes(&lay, lay.workers);
    return status;
}

ATTN_API const char *attn_dilated_backward_check(const attn_params *p, const attn_dilated *d,
                                                 const attn_gradients *g, const void *workspace,
                                                 size_t workspace_bytes, char *buffer,
                                                 size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    dilated_layout lay;
    const attn_status status =
        check_dilated_backward(p, d, g, 1, bytes_given(workspace, workspace_bytes), &lay, &why);
    if (!status)
        put(&why, "ok");
    return buffer && buffer_bytes ? buffer : attn_status_string(status);
}
