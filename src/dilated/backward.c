/* src/dilated/backward.c - dilated attention, backward: the gradients of the branches, added up.
 * SPDX-License-Identifier: MIT
 *
 * The gradients of a branch are those of attn_backward, which computes probabilities from the
 * statistics or the LSE that it is given: here those of all branches. With a mean, branches have an o
 * and statistics of their own, computed again, and the gradient of o divided by their number.
 */
#pragma once

#include "../backward/backward.c"
#include "forward.c"

/* dq, dk and dv. */
enum { GRAD_Q, GRAD_K, GRAD_V, GRADS };

static const attn_output *grad_of(const attn_gradients *g, int which)
{
    return which == GRAD_Q ? &g->dq : which == GRAD_K ? &g->dk : &g->dv;
}

static attn_status check_wanted(const attn_params *p, const attn_dilated *d,
                                const attn_gradients *g, text *why)
{
    const int naive = p->impl == ATTN_IMPL_NAIVE || p->impl == ATTN_IMPL_AUTO;
    if (!g)
        return bad(why, ATTN_ERR_ARG, "gradients is NULL");
    if (naive && d->merge == ATTN_DILATED_LSE) /* It would take the sums of each branch. */
        return bad_field(
            why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
            " must be tiled for gradients of merged branches: naive reads neither stats nor lse");
    if (g->dbias.data || g->dslopes)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "dbias or dslopes is asked for, but there are dq, dk, dv and dsinks alone");
    if (d->merge == ATTN_DILATED_MEAN && g->dlse.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "dlse.data is set, but a mean of branches has no lse");
    return ATTN_OK;
}

/* validate_gradients turns *p and *d into *pr and *g into *resolved, or says what is wrong with
 * them. A mean does not need o and stats, just as the textbook does not. */
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

/* plan_sum_grads lays out a slot: the sums of dq, dk, dv of a kv head, what a call adds, and with a
 * mean its o, statistics and dout. */
static void plan_sum_grads(const attn_dilated *d, const outline *out, const attn_gradients *g,
                           dilated_layout *lay)
{
    const int64_t rows = times(out->group, out->rows), keys = out->keys;
    const int64_t mean_rows = d->merge == ATTN_DILATED_MEAN ? rows : 0;
    const int64_t floats[3] = { times(rows, out->dim), times(keys, out->dim),
                                times(keys, out->dim_v) };
    int64_t at = 0;
    int which;
    place(&at, 1, sizeof(dilated_slot));
    lay->slopes = place(&at, out->group, sizeof(float));
    for (which = GRAD_Q; which < GRADS; which++) {
        const int64_t count = grad_of(g, which)->data ? floats[which] : 0;
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
    plan_blocks(out, lay);
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
    return status ? status
                  : check_dilated_room(lay, have, "attn_dilated_backward_workspace_size", why);
}

OWN_FRAME static attn_status check_dilated_gradients_memory(const attn_params *p,
                                                            const attn_dilated *d,
                                                            const attn_gradients *g,
                                                            const area *memory, text *why)
{
    attn_gradients resolved;
    problem pr;
    validate_gradients(p, d, g, 1, &pr, &resolved, why);
    return check_gradients_apart(&pr.p, &resolved, memory, why);
}

static attn_status check_dilated_backward_run(const attn_params *p, const attn_dilated *d,
                                              const attn_gradients *g, const void *workspace,
                                              size_t workspace_bytes, dilated_layout *lay,
                                              text *why)
{
    const int64_t have = bytes_given(workspace, workspace_bytes);
    const attn_status status = check_dilated_backward(p, d, g, 1, have, lay, why);
    area a;
    if (status)
        return status;
    a = area_of_bytes("the workspace", workspace, min64(have, dilated_bytes(lay, lay->workers)));
    return check_dilated_gradients_memory(p, d, g, &a, why);
}

/* ---- a call */

static int64_t grad_dim(const dilated_slot *w, int which)
{
    return which == GRAD_V ? w->asked->head_dim_v : w->asked->head_dim;
}

/* view_output gives an output of the caller's that the call only reads. Axes that views broadcast
 * have length 1. */
static attn_output view_output(const dilated_slot *w, const attn_output *t)
{
    const attn_tensor whole = as_tensor(t), view = view_rows(w, &whole);
    attn_output o = *t;
    o.data = t->data ? (char *)t->data + ((const char *)view.data - (const char *)t->data) : NULL;
    o.stride_batch = stride_or(view.stride_batch, 0);
    o.stride_head = stride_or(view.stride_head, 0);
    o.stride_seq = stride_or(view.stride_seq, 0);
    return o;
}

/* share_dout gives a branch its share of a row of dout, which is over the number of branches, as f32. */
static void share_dout(const dilated_slot *w, const call_row *at, float *to)
{
    const attn_tensor *dout = &w->run->g.dout;
    const int64_t dim = w->asked->head_dim_v, row = w->s.q_row + at->position - w->before;
    const float count = (float)branches_of_head(&w->run->d, at->head);
    int64_t d;
    load_run(w->asked->kernels, dout->dtype, to, dout->data, ROW_AT(*dout, &w->s, at->head, row),
             dim);
    for (d = 0; d < dim; d++)
        to[d] = to[d] / count;
}

static void prepare_mean_row(dilated_slot *w, const call_row *at)
{
    share_dout(w, at, SLOT_FLOATS(w, w->run->lay.dout) + at->row * w->asked->head_dim_v);
}

/* prepare_mean gives the call the branch's own o and statistics, and its share of dout. */
static void prepare_mean(dilated_slot *w)
{
    w->part = rows_in(w, w->run->lay.part, w->at.count * w->of.heads * w->at.rows);
    ask_results(w);
    w->p.stats.data = w->part.m; /* The room of m and l is one array. */
    run_call(w);
    each_row(w, prepare_mean_row);
}

/* add_row adds row `row` of the part to row `sum` of the sums. */
static void add_row(dilated_slot *w, int which, int64_t sum, int64_t row)
{
    const dilated_layout *lay = &w->run->lay;
    const int64_t n = grad_dim(w, which);
    add_floats(SLOT_FLOATS(w, lay->sum_grads[which]) + sum * n,
               SLOT_FLOATS(w, lay->part_grads[which]) + row * n, n);
}

static void add_dq(dilated_slot *w, const call_row *at)
{
    add_row(w, GRAD_Q, at->sum, at->row);
}

static void add_keys_of(dilated_slot *w, int which)
{
    const int64_t from = w->at.first - w->run->begin;
    int64_t e, j, row = 0;
    for (e = 0; e < w->at.count; e++)
        for (j = 0; j < w->at.keys; j++)
            add_row(w, which, from + e * w->l.segment + j * w->l.dilation, row++);
}

/* ask_for asks for gradients `first` to `last` of a call, as far as the caller wants them. */
static void ask_for(dilated_slot *w, int first, int last)
{
    attn_output *const to[] = { &w->g.dq, &w->g.dk, &w->g.dv };
    int which;
    memset(&w->g, 0, sizeof w->g);
    w->g.gemms = w->run->g.gemms;
    w->g.score_derivative = w->run->g.score_derivative;
    for (which = first; which <= last; which++)
        if (grad_of(&w->run->g, which)->data)
            to[which]->data = SLOT_FLOATS(w, w->run->lay.part_grads[which]);
    /* All calls take one set, as the largest call then needs most memory. */
    w->p.kernels = w->asked->kernels;
}

/* view_results gives the call what its gradients need of the caller's rows. */
static void view_results(dilated_slot *w)
{
    const attn_gradients *g = &w->run->g;
    if (w->run->d.merge == ATTN_DILATED_MEAN) {
        w->g.dout.data = SLOT_FLOATS(w, w->run->lay.dout);
    } else {
        w->g.dout = view_rows(w, &g->dout);
        w->g.dlse = view_rows(w, &g->dlse);
        w->p.o = view_output(w, &w->asked->o);
        w->p.lse = view_output(w, &w->asked->lse);
        w->p.stats = view_output(w, &w->asked->stats);
    }
}

/* run_gradients runs the call and adds what was asked for. */
static void run_gradients(dilated_slot *w)
{
    int which;
    if (!w->status)
        w->status = attn_backward(&w->p, &w->g, w->inner, (size_t)w->run->lay.inner_bytes);
    if (w->g.dq.data)
        each_row(w, add_dq);
    for (which = GRAD_K; which < GRADS; which++)
        if (grad_of(&w->g, which)->data)
            add_keys_of(w, which);
}

static void backward_call(dilated_slot *w)
{
    open_call(w);
    if (w->run->d.merge == ATTN_DILATED_MEAN)
        prepare_mean(w);
    ask_for(w, GRAD_Q, GRAD_V);
    view_results(w);
    run_gradients(w);
}

/* ---- an item */

/* first_of gives the position of the first row, or key, whose gradients an item gives. */
static int64_t first_of(const dilated_slot *w, int which)
{
    return which == GRAD_Q ? w->from : w->run->begin;
}

static void clear_grad(const dilated_slot *w, int which)
{
    const int64_t heads = which == GRAD_Q ? w->run->c.pr.group : 1;
    const int64_t rows = heads * max64(0, w->to - first_of(w, which));
    if (grad_of(&w->run->g, which)->data)
        memset(SLOT_FLOATS(w, w->run->lay.sum_grads[which]), 0,
               (size_t)(rows * grad_dim(w, which)) * sizeof(float));
}

/* store_grad writes the sums to the caller's output. */
static void store_grad(const dilated_slot *w, int which)
{
    const attn_output *to = grad_of(&w->run->g, which);
    const int by_q = which == GRAD_Q;
    const int64_t heads = by_q ? w->run->c.pr.group : 1, n = grad_dim(w, which);
    const int64_t before = by_q ? w->s.q_row - w->before : w->s.kv_row;
    float *sum = SLOT_FLOATS(w, w->run->lay.sum_grads[which]);
    int64_t h, i;
    for (h = w->kv_head * heads; to->data && h < (w->kv_head + 1) * heads; h++)
        for (i = first_of(w, which); i < w->to; i++, sum += n)
            store_results(w, to, ROW_AT(*to, &w->s, h, before + i), sum, n);
}

static void gradients_item(const call *c, char *base, int64_t index, void (*take)(dilated_slot *w))
{
    dilated_slot *w = open_slot(c, base, index);
    int n, which;
    for (which = GRAD_Q; which < GRADS; which++)
        clear_grad(w, which);
    for (n = 0; n < w->run->d.num_branches && w->run->calls; n++)
        each_call(w, n, take);
    for (which = GRAD_Q; which < GRADS; which++)
        store_grad(w, which);
}

static void backward_item(const call *c, char *base, int64_t index)
{
    gradients_item(c, base, index, backward_call);
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
    w->g.score_derivative = g->score_derivative;
    w->g.dsinks = g->dsinks;
    return attn_backward(&w->p, &w->g, run->c.slots + run->lay.inner, (size_t)run->lay.inner_bytes);
}

OWN_FRAME static attn_status prepare_backward(const attn_params *p, const attn_dilated *d,
                                              const attn_gradients *g, void *workspace,
                                              size_t bytes, dilated_run **run)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    const attn_status status = check_dilated_backward_run(p, d, g, workspace, bytes, &lay, &why);
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
    return verdict(check_dilated_backward_run(p, d, g, workspace, workspace_bytes, &lay, &why),
                   buffer, &why);
}
