/* src/backward/backward.c - attn_backward: the lists of a call, and the public functions.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../forward.c"
#include "naive.c"

typedef struct grad_list {
    int64_t items;
    void (*item)(const call *c, char *slot, int64_t index);
} grad_list;

/* list_of gives list number i of a call; behind the last one, item is NULL. */
OWN_FRAME static grad_list list_of(const backward *back, int i)
{
    const problem *pr = &back->c.pr;
    const attn_params *p = &pr->p;
    const layout *lay = &back->lay;
    const int naive = back->c.pl.impl == ATTN_IMPL_NAIVE, five = lay->gemms == 5;
    const int want = naive ? 0 : lay->want, bias = (want & WANT_BIAS) && !lay->bias_beside;
    const int by_rows = !five && (want & WANT_DQ), by_keys = !five && (want & WANT_KEYS);
    const int shared = (lay->want & (WANT_SUMS | WANT_SINKS)) != 0;
    const int64_t heads = p->batch * p->num_heads_kv;
    const grad_list lists[] = {
        { naive && !shared ? heads : 0, textbook_item },
        { naive && shared ? 1 : 0, textbook_sums_item },
        { naive ? 0 : p->batch * p->num_heads_q, statistics_item },
        { five && (want & (WANT_DQ | WANT_KEYS)) ? heads : 0, head_item },
        { by_rows ? items_by(p, p->num_heads_q, pr->max_q_len, lay->item_rows) : 0, rows_item },
        { by_keys ? items_by(p, p->num_heads_kv, pr->max_kv_len, lay->item_keys) : 0, keys_item },
        { bias ? sum_items(lay, &back->grads.bias) : 0, bias_item },
        { want & WANT_SLOPES ? sum_items(lay, &back->grads.slopes) : 0, slopes_item },
        { want & WANT_SINKS ? p->num_heads_q : 0, sinks_item },
        { 0, NULL },
    };
    return lists[i];
}

/* run_backward runs the lists one after the other; empty ones cost nothing. */
static attn_status run_backward(backward *back)
{
    attn_status status = ATTN_OK;
    grad_list list = list_of(back, 0);
    int i;
    for (i = 1; list.item && !status; i++) {
        status = run_items(&back->c, list.items, list.item);
        list = list_of(back, i);
    }
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
    status = p ? refuse_fields(p, BY_GRADIENTS, "attn_backward", why) : ATTN_OK;
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
 * where nobody can. Where a backend refuses, *reason says why. */
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

/* A checked_call is a call of attn_backward that has passed its checks, and how it would run. */
typedef struct checked_call {
    problem pr;
    attn_gradient_call grads;
    attn_backward_info info;
} checked_call;

/* describe_backend changes the info if a backend takes the call. */
static attn_status describe_backend(checked_call *c, text *why)
{
    const attn_backend *backend = c->pr.p.backend;
    attn_backward_info *info = &c->info;
    text reason = text_in(info->reasons, sizeof info->reasons);
    const int answer = ask_gradients(&c->pr, &c->grads, &reason);
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
    return backend->gradients_size(backend, &c->pr, &c->grads, &info->workspace_bytes)
               ? bad(why, ATTN_ERR_CALLBACK, "the backend cannot size its workspace")
               : ATTN_OK;
}

/* origin_of tells what probabilities are computed from. A query may come before either is set. */
static const char *origin_of(const attn_params *p, int impl)
{
    if (impl == ATTN_IMPL_NAIVE)
        return "a softmax of its own";
    if (p->stats.data)
        return "stats";
    return p->lse.data
               ? "lse: relative error up to 2e-7 * abs(lse) + 3e-6; stats serve large logits"
               : "nothing yet: attn_backward needs stats, or lse";
}

/* describe says how the CPU would run the call; flops are those of a pair. */
OWN_FRAME static void describe(checked_call *c, const attn_params *asked)
{
    attn_backward_info *info = &c->info;
    layout lay;
    plan pl;
    plan_backward(&c->pr, &c->grads.g, asked, &lay, &pl);
    info->impl = pl.impl;
    info->probabilities = origin_of(asked, pl.impl);
    info->gemms = lay.gemms;
    info->kernels_name = pl.kernels->name;
    info->tile_rows = pl.rows;
    info->tile_keys = pl.keys;
    info->workers = pl.workers;
    info->workspace_bytes = (size_t)backward_bytes(&pl, pl.workers);
    info->workspace_bytes_per_worker = (size_t)pl.slot_bytes;
    info->flops = 2.0 * (double)(3 * c->pr.p.head_dim + 2 * c->pr.p.head_dim_v);
}

/* check_backward_room tells whether the plan is possible and fits into `have` bytes. */
static attn_status check_backward_room(const attn_backward_info *info, int64_t have, text *why)
{
    const int64_t most = (int64_t)info->workspace_bytes;
    int64_t least;
    if (most >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    least = most - (info->workers - 1) * (int64_t)info->workspace_bytes_per_worker;
    return have >= least ? ATTN_OK : too_small(why, have, least, "attn_backward_workspace_size");
}

/* check_backward checks everything that can be wrong before a run in `have` bytes; need_data is 0
 * for a query. */
OWN_FRAME static attn_status check_backward(const attn_params *p, const attn_gradients *g,
                                            int need_data, int64_t have, checked_call *c, text *why)
{
    attn_status status = validate_backward(p, g, need_data, &c->pr, &c->grads.g, why);
    memset(&c->info, 0, sizeof c->info);
    c->info.kernels_name = c->info.backend_name = c->info.probabilities = "none";
    if (status)
        return status;
    add_axes(&c->pr.p, &c->grads);
    describe(c, p);
    status = describe_backend(c, why);
    return status ? status : check_backward_room(&c->info, have, why);
}

static attn_status check_run(const attn_params *p, const attn_gradients *g, const void *workspace,
                             size_t bytes, checked_call *c, text *why)
{
    const int64_t limit = ADDRESS_LIMIT;
    const int64_t have = !workspace ? 0 : bytes < (uint64_t)limit ? (int64_t)bytes : limit;
    const attn_status status = check_backward(p, g, 1, have, c, why);
    const area a =
        area_of_bytes("the workspace", workspace, min64(have, (int64_t)c->info.workspace_bytes));
    return status ? status : check_gradients_apart(&c->pr.p, &c->grads.g, &a, why);
}

OWN_FRAME ATTN_API const char *attn_backward_check(const attn_params *p, const attn_gradients *g,
                                                   const void *workspace, size_t workspace_bytes,
                                                   char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    checked_call c;
    return verdict(check_run(p, g, workspace, workspace_bytes, &c, &why), buffer, &why);
}

/* open_backward sets up the call in its workspace. */
static backward *open_backward(const checked_call *c, const attn_params *asked, void *workspace,
                               size_t bytes)
{
    backward *back = (backward *)(void *)align_memory(workspace);
    char *base = (char *)back + aligned((int64_t)sizeof *back);
    float **const arrays[ROW_ARRAYS] = { &back->m, &back->r, &back->delta, &back->sink_terms };
    int i;
    back->c.pr = c->pr;
    back->grads = c->grads;
    plan_backward(&c->pr, &c->grads.g, asked, &back->lay, &back->c.pl);
    back->c.slot_count = workers_in(&back->c.pl, bytes);
    for (i = 0; i < ROW_ARRAYS; i++, base += back->c.pl.shared_bytes / ROW_ARRAYS)
        *arrays[i] = (float *)(void *)base;
    back->c.slots = base;
    return back;
}

/* start_backward checks a call. Then a backend runs it, or *opened becomes the call in its
 * workspace. */
OWN_FRAME static attn_status start_backward(const attn_params *p, const attn_gradients *g,
                                            void *workspace, size_t bytes, backward **opened)
{
    text why = text_in(NULL, 0);
    checked_call c;
    const attn_status status = check_run(p, g, workspace, bytes, &c, &why);
    *opened = NULL;
    if (status)
        return status;
    if (p->backend && !c.info.reasons[0]) /* It does not refuse. */
        return p->backend->run_gradients(p->backend, &c.pr, &c.grads, workspace, bytes);
    if (p->backend)
        tell_log(p, ATTN_LOG_INFO, c.info.reasons);
    *opened = open_backward(&c, p, workspace, bytes);
    return ATTN_OK;
}

ATTN_API attn_status attn_backward(const attn_params *p, const attn_gradients *g, void *workspace,
                                   size_t workspace_bytes)
{
    backward *back;
    const attn_status status = start_backward(p, g, workspace, workspace_bytes, &back);
    return status || !back ? status : run_backward(back);
}

OWN_FRAME ATTN_API attn_status attn_backward_explain(const attn_params *p, const attn_gradients *g,
                                                     attn_backward_info *info)
{
    text why = text_in(NULL, 0);
    checked_call c;
    attn_status status;
    if (!info)
        return ATTN_ERR_ARG;
    status = check_backward(p, g, 0, ADDRESS_LIMIT, &c, &why);
    *info = c.info;
    info->flops *= status ? 0 : visible_pairs(&c.pr.p);
    return status;
}

OWN_FRAME ATTN_API attn_status attn_backward_workspace_size(const attn_params *p,
                                                            const attn_gradients *g, size_t *bytes)
{
    text why = text_in(NULL, 0);
    checked_call c;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_backward(p, g, 0, ADDRESS_LIMIT, &c, &why);
    *bytes = status ? 0 : c.info.workspace_bytes;
    return status;
}

static int64_t least_bytes(const problem *pr, const attn_gradients *g, const attn_params *asked)
{
    layout lay;
    plan pl;
    plan_backward(pr, g, asked, &lay, &pl);
    return backward_bytes(&pl, 1);
}
