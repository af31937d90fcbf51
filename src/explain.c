/* src/explain.c - what attn_forward would do with a call, and why.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "api/explain.h"
#include "forward.c"

/* axes_read counts keys, not pages and rings. Of recent keys it counts what the rows of a sequence read. */
static call_axes axes_read(const attn_params *p)
{
    call_axes x = axes_of_call(p);
    x.count[AXIS_ENTRY] = x.count[AXIS_RECENT] = p->batch;
    x.count[AXIS_KEY] = keys_held(p);
    if (p->recent.keys && p->seq_len_q)
        x.count[AXIS_RECENT_ROW] =
            min64(plus(p->recent.keys, p->seq_len_q - 1), min64(p->recent.ring, p->seq_len_kv));
    return x;
}

/* is_scale_field tells whether a row is an array of scales of K or V. */
static int is_scale_field(const call_field *f)
{
    return f->type == F_F32 && f->axis[2] == AXIS_KEY;
}

/* shares_axis tells whether an array has one element for all indices of an axis. */
static int shares_axis(const call_field *f, const attn_params *p, const call_axes *held, int axis)
{
    return held->count[f->axis[axis]] > 1 && f->stride[axis] && !stride_given(f, p, axis);
}

/* Every tensor and every scale once: the inputs, and the outputs that are asked for. */
static double call_bytes(const attn_params *p)
{
    const call_axes held = axes_of_call(p), x = axes_read(p);
    double sum = 0;
    int i, axis;
    for (i = 0; i < COUNT_OF(call_fields); i++) {
        const call_field *f = &call_fields[i];
        double bytes;
        if (!(is_tensor(f) || is_scale_field(f)) ||
            ((f->output || is_scale_field(f)) && !field_data(f, p)))
            continue;
        bytes = (double)element_bytes(f, p) / (double)unit_of_field(f, p);
        for (axis = is_packed(f, &x); axis < 4; axis++)
            bytes *= shares_axis(f, p, &held, axis) ? 1 : (double)x.count[f->axis[axis]];
        sum += bytes;
    }
    return sum;
}

/* ---- reasons */

static void explain_impl(const problem *pr, const plan *pl, text *why)
{
    const attn_params *p = &pr->p;
    put(why, attn_impl_name(pl->impl));
    if (p->impl == ATTN_IMPL_AUTO) {
        put(why, ": seq_len_kv is ");
        put(why, pl->impl == ATTN_IMPL_NAIVE ? "at most " : "above ");
        put_field(why, "auto_naive_keys", p->auto_naive_keys);
    } else {
        put(why, p->impl == ATTN_IMPL_DEFAULT ? ": the default at every length" : ": asked for");
    }
}

static void explain_kernels(const attn_params *asked, const attn_kernels *kernels, text *why)
{
    put(why, "; kernels ");
    put(why, kernels->name);
    put(why, asked->kernels ? ": asked for" : ": the best that are linked in and run here");
    if (kernels == &kernels_portable && !FMA_BASE && !asked->kernels)
        put(why, "; FMA in software: " SOFT_FMA_WHY);
    put_missing_kernels(why);
}

/* key_parts counts the parts of the keys of a row tile that different workers may take. */
static int key_parts(const plan *pl)
{
    const split *sp = &pl->split;
    return sp->parts ? sp->parts - sp->inside + sp->inside * sp->tiles : 1;
}

static void explain_prefix(const plan *pl, text *why)
{
    if (pl->prefix_keys) {
        put_numbers(why, "; prefix of # keys: once for the batch", &pl->prefix_keys);
    } else if (pl->prefix_why) {
        put(why, "; prefix not shared: ");
        put(why, pl->prefix_why);
    }
}

static void explain_lists(const attn_params *p, const plan *pl, text *why)
{
    if (p->key_list.data)
        put(why, pl->gathered ? "; rows read only listed keys"
                              : "; rows pass over keys that are not listed");
}

/* explain_products tells what else than exact products of f32 there is. */
static void explain_products(const attn_params *p, const attn_kernels *kernels, text *why)
{
    if (p->integer)
        put(why, "; integer: scores of whole numbers");
    if (p->fast)
        put(why, kernels->pack_values ? "; fast: products of bf16"
                                      : "; fast: no kernels here round such a call");
}

static void explain_short(const attn_params *asked, text *why)
{
    short_call c;
    if (open_short(asked, &c))
        put(why, "; short: computed directly, without a plan");
}

static void explain_call(const attn_params *asked, const problem *pr, const plan *pl,
                         attn_info *info)
{
    text why = text_in(info->reasons, sizeof info->reasons);
    const attn_params *p = &pr->p;
    int answer;
    explain_impl(pr, pl, &why);
    explain_short(asked, &why);
    explain_prefix(pl, &why);
    explain_lists(p, pl, &why);
    explain_products(p, pl->kernels, &why);
    put_tuning(pr, pl, &why); /* It comes before a list that may not fit. */
    explain_kernels(asked, pl->kernels, &why);
    if (asked->parallel_for && asked->num_workers == 0)
        put(&why, "; one worker: num_workers is 0, parallel_for is not called");
    if (asked->num_workers > p->num_workers)
        put(&why, "; one worker: parallel_for is NULL, OpenMP is not compiled in");
    if (p->backend)
        put(&why, "; backend ");
    answer = ask_backend(pr, &why);
    if (answer > 0)
        put(&why, "takes the call");
    info->impl = pl->impl;
    info->impl_name = attn_impl_name(pl->impl);
    info->kernels_name = pl->kernels->name;
    info->backend_name = answer > 0 ? p->backend->name : answer ? "none" : "cpu";
    info->tile_rows = pl->rows;
    info->tile_keys = pl->keys;
    info->workers = pl->workers;
    info->items = pl->split.parts ? split_items(pl) : plus(pl->items, pl->prefix_items);
    info->items = plus(info->items, pl->logits_items);
    info->key_parts = key_parts(pl);
    info->workspace_bytes_per_worker = (size_t)pl->slot_bytes;
    info->pairs = visible_pairs(p);
    info->flops = 2.0 * info->pairs * (double)(p->head_dim + p->head_dim_v);
    info->bytes = call_bytes(p);
}

/* explain_plan fills in all but workspace_bytes. */
OWN_FRAME static attn_status explain_plan(const attn_params *p, attn_info *info)
{
    text why = text_in(info->reasons, sizeof info->reasons);
    problem pr;
    plan pl;
    attn_status status = validate(p, &pr, 0, &why);
    if (status)
        return status;
    settle_workers(&pr.p);
    settle_gather(p, &pr, may_gather(&pr) && is_sparse(&pr));
    plan_call(&pr, &pl, 0, INT64_MAX);
    status = check_size_limit(&pr, &pl, &why);
    if (!status)
        explain_call(p, &pr, &pl, info);
    return status;
}

ATTN_API attn_status attn_explain(const attn_params *p, attn_info *info)
{
    attn_status status;
    if (!info)
        return ATTN_ERR_ARG;
    memset(info, 0, sizeof *info);
    info->impl_name = info->kernels_name = info->backend_name = "none";
    if (!HAS_LONG_CALLS)
        return ATTN_ERR_UNSUPPORTED;
    status = explain_plan(p, info);
    return status ? status : attn_workspace_size(p, &info->workspace_bytes);
}
