/* src/backward/backward.c - attn_backward: the lists of a call, and the public functions.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../forward.c"
#include "naive.c"

typedef struct grad_list {
    int active;
    int64_t items;
    void (*item)(const call *c, char *slot, int64_t index);
} grad_list;

/* take_list gives list number i of a call, and returns 0 after the last. */
OWN_FRAME static int take_list(const backward *back, int i, grad_list *list)
{
    const problem *pr = &back->c.pr;
    const attn_params *p = &pr->p;
    const layout *lay = &back->lay;
    const int want = lay->want, naive = back->c.pl.impl == ATTN_IMPL_NAIVE, five = lay->gemms == 5;
    const int64_t heads = p->batch * p->num_heads_kv, one = want & (WANT_SUMS | WANT_SINKS) ? 1 : 0;
    const grad_list lists[] = {
        { naive && !one, heads, textbook_item },
        { naive && one, 1, textbook_sums_item },
        { !naive, p->batch * p->num_heads_q, statistics_item },
        { !naive && five && (want & (WANT_DQ | WANT_KEYS)), heads, head_item },
        { !naive && !five && (want & WANT_DQ),
          items_by(p, p->num_heads_q, pr->max_q_len, lay->item_rows), rows_item },
        { !naive && !five && (want & WANT_KEYS),
          items_by(p, p->num_heads_kv, pr->max_kv_len, lay->item_keys), keys_item },
        { !naive && (want & WANT_BIAS) && !lay->bias_beside, sum_items(lay, &back->bias),
          bias_item },
        { !naive && (want & WANT_SLOPES), sum_items(lay, &back->slopes), slopes_item },
        { !naive && (want & WANT_SINKS), p->num_heads_q, sinks_item },
    };
    if (i == COUNT_OF(lists))
        return 0;
    *list = lists[i];
    return 1;
}

/* run_backward runs the lists one after the other. */
static attn_status run_backward(backward *back)
{
    attn_status status = ATTN_OK;
    grad_list list;
    int i;
    for (i = 0; !status && take_list(back, i, &list); i++)
        if (list.active)
            status = run_items(&back->c, list.items, list.item);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * Public functions
 * --------------------------------------------------------------------------------------------- */

#define BACKWARD_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(backward)))

static int64_t backward_bytes(const plan *pl, int workers)
{
    return plus(plus(BACKWARD_BYTES, pl->shared_bytes), times(workers, pl->slot_bytes));
}

/* workers_in tells how many workers fit. */
static int workers_in(const plan *pl, size_t bytes)
{
    const int64_t one = backward_bytes(pl, 1);
    if ((uint64_t)bytes < (uint64_t)one)
        return 0;
    if ((uint64_t)bytes >= (uint64_t)backward_bytes(pl, pl->workers))
        return pl->workers;
    return (int)(((int64_t)bytes - one) / pl->slot_bytes) + 1;
}

/* validate_backward turns *p and *g into *pr and *resolved, or says what is wrong. */
static attn_status validate_backward(const attn_params *p, const attn_gradients *g, int need_data,
                                     problem *pr, attn_gradients *resolved, text *why)
{
    attn_status status;
    if (!g)
        return bad(why, ATTN_ERR_ARG, "gradients is NULL");
    /* If this fails, nothing that is set helps. */
    status = p ? check_unsupported(p, g, why) : ATTN_OK;
    if (!status)
        status = validate(p, pr, need_data, why);
    if (status)
        return status;
    *resolved = *g;
    status = check_gradients(p, g, pr->impl == ATTN_IMPL_NAIVE, need_data, why);
    if (status)
        return status;
    status = resolve_gradients(&pr->p, resolved, why);
    if (!status)
        settle_workers(&pr->p);
    return status;
}

/* ask_gradients returns above 0 where the backend takes the call, 0 where the CPU does, and below 0
 * where nobody can, and *reason then says why. Without a backend it says nothing. */
static int ask_gradients(const problem *pr, const attn_gradient_call *g, text *reason)
{
    const attn_backend *backend = pr->p.backend;
    char why[160];
    int answer = 0;
    if (!backend)
        return 0;
    why[0] = 0;
    put(reason, backend->name);
    put(reason, " refused: ");
    if (!backend->run_gradients)
        put(reason, "it has no gradients");
    else if (pr->p.batch == 0)
        put(reason, "nothing to do");
    else
        answer = backend->supports_gradients(backend, pr, g, why, sizeof why);
    why[sizeof why - 1] = 0;
    put(reason, why);
    return answer;
}

/* describe_backend changes *info if a backend takes the call. */
OWN_FRAME static attn_status describe_backend(const problem *pr, const attn_gradients *g,
                                              attn_backward_info *info, text *why)
{
    const attn_backend *backend = pr->p.backend;
    const attn_gradient_call made = gradient_call(&pr->p, g);
    text reason = text_in(info->reasons, sizeof info->reasons);
    const int answer = ask_gradients(pr, &made, &reason);
    info->backend_name = answer > 0 ? backend->name : answer ? "none" : "cpu";
    if (answer < 0)
        return bad(why, ATTN_ERR_UNSUPPORTED, info->reasons);
    if (!answer)
        return ATTN_OK;
    info->reasons[0] = 0;
    info->gemms = 7;
    info->tile_rows = info->tile_keys = 0;
    info->workers = 1;
    info->workspace_bytes_per_worker = 0;
    return backend->gradients_size(backend, pr, &made, &info->workspace_bytes)
               ? bad(why, ATTN_ERR_CALLBACK, "the backend cannot size its workspace")
               : ATTN_OK;
}

/* run_backend runs the call on the backend and returns 1, or logs why not and returns 0. */
OWN_FRAME static int run_backend(const attn_params *p, const attn_gradients *g, void *workspace,
                                 size_t bytes, attn_status *status)
{
    char sentence[200];
    text why = text_in(sentence, sizeof sentence);
    attn_gradients resolved;
    attn_gradient_call made;
    problem pr;
    validate_backward(p, g, 1, &pr, &resolved, &why); /* It cannot fail, as it has passed. */
    made = gradient_call(&pr.p, &resolved);
    if (ask_gradients(&pr, &made, &why) > 0) {
        *status = p->backend->run_gradients(p->backend, &pr, &made, workspace, bytes);
        return 1;
    }
    if (p->log)
        p->log(p->log_user, ATTN_LOG_INFO, sentence);
    return 0;
}

/* describe fills in all of *info but flops, of which it has those of a pair. */
OWN_FRAME static void describe(const problem *pr, const attn_gradients *g, const attn_params *asked,
                               attn_backward_info *info)
{
    layout lay;
    plan pl;
    plan_backward(pr, g, asked, &lay, &pl);
    info->impl = pl.impl;
    info->gemms = lay.gemms;
    info->kernels_name = pl.kernels->name;
    info->tile_rows = pl.rows;
    info->tile_keys = pl.keys;
    info->workers = pl.workers;
    info->workspace_bytes = (size_t)backward_bytes(&pl, pl.workers);
    info->workspace_bytes_per_worker = (size_t)pl.slot_bytes;
    info->flops = 2.0 * (double)(3 * pr->p.head_dim + 2 * pr->p.head_dim_v);
}

/* check_backward_room tells whether the plan is possible and fits into `have` bytes. */
static attn_status check_backward_room(const attn_backward_info *info, int64_t have, text *why)
{
    const int64_t most = (int64_t)info->workspace_bytes;
    int64_t least;
    if (most >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    least = most - (info->workers - 1) * (int64_t)info->workspace_bytes_per_worker;
    if (have >= least)
        return ATTN_OK;
    put(why, "workspace_bytes (");
    put_int(why, have);
    put(why, ") must be at least ");
    put_int(why, least);
    return bad(why, ATTN_ERR_WORKSPACE, "; attn_backward_workspace_size says what is best");
}

/* check_backward checks everything that can be wrong before a run in `have` bytes; need_data is 0
 * for a query. */
OWN_FRAME static attn_status check_backward(const attn_params *p, const attn_gradients *g,
                                            int need_data, int64_t have, attn_backward_info *info,
                                            text *why)
{
    attn_gradients resolved;
    problem pr;
    attn_status status = validate_backward(p, g, need_data, &pr, &resolved, why);
    if (status)
        return status;
    describe(&pr, &resolved, p, info);
    status = describe_backend(&pr, &resolved, info, why);
    return status ? status : check_backward_room(info, have, why);
}

static attn_status check_run(const attn_params *p, const attn_gradients *g, const void *workspace,
                             size_t bytes, text *why)
{
    const int64_t limit = ADDRESS_LIMIT;
    const int64_t have = !workspace ? 0 : bytes < (uint64_t)limit ? (int64_t)bytes : limit;
    attn_backward_info info;
    return check_backward(p, g, 1, have, &info, why);
}

ATTN_API const char *attn_backward_check(const attn_params *p, const attn_gradients *g,
                                         const void *workspace, size_t workspace_bytes,
                                         char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    const attn_status status = check_run(p, g, workspace, workspace_bytes, &why);
    if (!status)
        put(&why, "ok");
    return buffer && buffer_bytes ? buffer : attn_status_string(status);
}

/* open_backward sets up a call that has passed its checks, in its workspace. */
OWN_FRAME static backward *open_backward(const attn_params *p, const attn_gradients *g,
                                         void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    char *base = (char *)workspace;
    float **arrays[3];
    backward *back;
    int i;
    base = align_memory(base);
    back = (backward *)(void *)base;
    validate_backward(p, g, 1, &back->c.pr, &back->g, &why); /* It has passed, and does so again. */
    back->bias = bias_axes(&back->c.pr.p, &back->g.dbias);
    back->slopes = slope_axes(&back->c.pr.p, back->g.dslopes);
    plan_backward(&back->c.pr, &back->g, p, &back->lay, &back->c.pl);
    back->c.slot_count = workers_in(&back->c.pl, bytes);
    base += aligned((int64_t)sizeof *back);
    arrays[0] = &back->lse2;
    arrays[1] = &back->delta;
    arrays[2] = &back->sink_terms;
    for (i = 0; i < 3; i++, base += back->c.pl.shared_bytes / 3)
        *arrays[i] = (float *)(void *)base;
    back->c.slots = base;
    return back;
}

static attn_status backward_cpu(const attn_params *p, const attn_gradients *g, void *workspace,
                                size_t bytes)
{
    backward *back = open_backward(p, g, workspace, bytes);
    return back->c.slot_count ? run_backward(back) : ATTN_ERR_WORKSPACE;
}

ATTN_API attn_status attn_backward(const attn_params *p, const attn_gradients *g, void *workspace,
                                   size_t workspace_bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_run(p, g, workspace, workspace_bytes, &why);
    if (status || (p->backend && run_backend(p, g, workspace, workspace_bytes, &status)))
        return status;
    return backward_cpu(p, g, workspace, workspace_bytes);
}

OWN_FRAME static attn_status count_pairs(const attn_params *p, double *pairs)
{
    text none = text_in(NULL, 0);
    problem pr;
    const attn_status status = validate(p, &pr, 0, &none);
    *pairs = status ? 0 : visible_pairs(&pr.p);
    return status;
}

ATTN_API attn_status attn_backward_explain(const attn_params *p, const attn_gradients *g,
                                           attn_backward_info *info)
{
    text why = text_in(NULL, 0);
    double pairs = 0;
    attn_status status;
    if (!info)
        return ATTN_ERR_ARG;
    memset(info, 0, sizeof *info);
    info->kernels_name = info->backend_name = "none";
    status = check_backward(p, g, 0, ADDRESS_LIMIT, info, &why);
    if (!status)
        status = count_pairs(p, &pairs);
    info->flops *= pairs;
    return status;
}

ATTN_API attn_status attn_backward_workspace_size(const attn_params *p, const attn_gradients *g,
                                                  size_t *bytes)
{
    text why = text_in(NULL, 0);
    attn_backward_info info;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_backward(p, g, 0, ADDRESS_LIMIT, &info, &why);
    *bytes = status ? 0 : info.workspace_bytes;
    return status;
}

static int64_t least_bytes(const problem *pr, const attn_gradients *g, const attn_params *asked)
{
    layout lay;
    plan pl;
    plan_backward(pr, g, asked, &lay, &pl);
    return backward_bytes(&pl, 1);
}
