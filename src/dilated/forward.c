/* src/dilated/forward.c - dilated attention, forward: items and public functions.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "strided.c"
#include "gathered.c"

#define RUN_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(dilated_run)))

/* dilated_bytes counts the bytes of workspace, 0 where there is nothing to run. */
static int64_t dilated_bytes(const dilated_layout *lay, int workers)
{
    return lay->slot_bytes ? plus(RUN_BYTES, times(workers, lay->slot_bytes)) : 0;
}

/* check_dilated_room tells whether the plan fits into `have` bytes; `query` is the function that
 * says how many are best. */
static attn_status check_dilated_room(const dilated_layout *lay, int64_t have, const char *query,
                                      text *why)
{
    const int64_t least = dilated_bytes(lay, 1);
    if (dilated_bytes(lay, lay->workers) >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    return have >= least ? ATTN_OK : too_small(why, have, least, query);
}

static attn_status plan_dilated(const attn_params *p, const attn_dilated *d, const outline *out,
                                dilated_layout *lay, text *why)
{
    if (d->variant == ATTN_DILATED_STRIDED)
        lay->block = choose_block(d, out);
    plan_rows(d, out, sizeof(dilated_slot), lay);
    plan_blocks(out, lay);
    if (plan_inner(p, d, out, lay))
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace of a branch exceeds the address space");
    return ATTN_OK;
}

/* Statistics are refused here and not by validate_dilated, as the gradients of a gathered call take
 * them. */
static attn_status check_gathered(const attn_params *p, const attn_dilated *d, text *why)
{
    if (d->variant == ATTN_DILATED_GATHERED && p->stats.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "stats.data is set, but the gathered variant merges by the LSE and has none");
    return ATTN_OK;
}

/* check_dilated checks everything that can be wrong before a run in `have` bytes. */
static attn_status check_dilated(const attn_params *p, const attn_dilated *d, int need_data,
                                 int64_t have, dilated_layout *lay, text *why)
{
    outline out;
    attn_status status = outline_of(p, d, need_data, &out, why);
    memset(lay, 0, sizeof *lay);
    if (!status)
        status = check_gathered(p, d, why);
    if (status || out.empty)
        return status;
    status = plan_dilated(p, d, &out, lay, why);
    return status ? status : check_dilated_room(lay, have, "attn_dilated_workspace_size", why);
}

/* check_dilated_memory wants the workspace to lie apart, in a call that has passed its checks. */
OWN_FRAME static attn_status check_dilated_memory(const attn_params *p, const attn_dilated *d,
                                                  const void *workspace, int64_t bytes, text *why)
{
    problem pr;
    validate_dilated(p, d, 1, &pr, why);
    return check_workspace_apart(&pr.p, workspace, bytes, why);
}

/* check_dilated_run checks everything that can be wrong before a run. */
static attn_status check_dilated_run(const attn_params *p, const attn_dilated *d,
                                     const void *workspace, size_t workspace_bytes,
                                     dilated_layout *lay, text *why)
{
    const int64_t have = bytes_given(workspace, workspace_bytes);
    const attn_status status = check_dilated(p, d, 1, have, lay, why);
    if (status || !lay->slot_bytes)
        return status;
    return check_dilated_memory(p, d, workspace, min64(have, dilated_bytes(lay, lay->workers)),
                                why);
}

ATTN_API const char *attn_dilated_check(const attn_params *p, const attn_dilated *d,
                                        const void *workspace, size_t workspace_bytes, char *buffer,
                                        size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    dilated_layout lay;
    return verdict(check_dilated_run(p, d, workspace, workspace_bytes, &lay, &why), buffer, &why);
}

ATTN_API attn_status attn_dilated_workspace_size(const attn_params *p, const attn_dilated *d,
                                                 size_t *bytes)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_dilated(p, d, 0, ADDRESS_LIMIT, &lay, &why);
    *bytes = status ? 0 : (size_t)dilated_bytes(&lay, lay.workers);
    return status;
}

static dilated_slot *slot_of(const dilated_run *run, int worker)
{
    return (dilated_slot *)(void *)(run->c.slots + worker * run->lay.slot_bytes);
}

/* open_run sets up the run in its workspace, for a call that has passed its checks. */
static dilated_run *open_run(const attn_params *p, const attn_dilated *d, const dilated_layout *lay,
                             void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    char *base = align_memory(workspace);
    dilated_run *run = (dilated_run *)(void *)base;
    const int64_t have = bytes_given(workspace, bytes);
    int i;
    memset(run, 0, sizeof *run);
    validate_dilated(p, d, 1, &run->c.pr, &why);
    run->d = *d;
    run->lay = *lay;
    run->kernels = p->kernels;
    run->tile_keys = p->tile_keys;
    run->end = TOO_BIG;
    run->open_keys = open_own_keys;
    run->c.pl.slot_bytes = lay->slot_bytes;
    run->c.slot_count = (int)min64(lay->workers, (have - RUN_BYTES) / lay->slot_bytes);
    run->c.slots = base + aligned((int64_t)sizeof *run);
    for (i = 0; i < run->c.slot_count; i++)
        slot_of(run, i)->status = ATTN_OK;
    return run;
}

static attn_status run_list(dilated_run *run,
                            void (*item)(const call *c, char *slot, int64_t index))
{
    attn_status status = run_items(&run->c, run->lay.items, item);
    int i;
    for (i = 0; i < run->c.slot_count && !status; i++)
        status = slot_of(run, i)->status;
    return status;
}

/* prepare_forward checks a call and makes *run ready, or NULL if there is nothing to run. */
OWN_FRAME static attn_status prepare_forward(const attn_params *p, const attn_dilated *d,
                                             void *workspace, size_t bytes, dilated_run **run)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    const attn_status status = check_dilated_run(p, d, workspace, bytes, &lay, &why);
    *run = status || !lay.slot_bytes ? NULL : open_run(p, d, &lay, workspace, bytes);
    return status;
}

ATTN_API attn_status attn_dilated_forward(const attn_params *p, const attn_dilated *d,
                                          void *workspace, size_t workspace_bytes)
{
    dilated_run *run;
    const attn_status status = prepare_forward(p, d, workspace, workspace_bytes, &run);
    if (!run)
        return status;
    return run_list(run, d->variant == ATTN_DILATED_STRIDED ? strided_item : gathered_item);
}

ATTN_API int64_t attn_dilated_index_size(const attn_dilated *d, int64_t positions)
{
    text why = text_in(NULL, 0);
    int64_t entries = 0;
    int n;
    if (check_branches(d, &why) || positions < 0 || positions > INT32_MAX)
        return 0;
    for (n = 0; n < d->num_branches; n++)
        entries = plus(entries, index_of_branch(&d->branches[n], positions));
    return entries;
}

ATTN_API attn_status attn_dilated_index(const attn_dilated *d, int64_t positions, int32_t *index,
                                        int64_t entries)
{
    text why = text_in(NULL, 0);
    attn_status status = check_branches(d, &why);
    int n;
    if (!status && (positions < 0 || positions > INT32_MAX))
        status = ATTN_ERR_ARG;
    if (!status && (!index || entries < attn_dilated_index_size(d, positions)))
        status = ATTN_ERR_WORKSPACE;
    for (n = 0; !status && n < d->num_branches; n++) {
        const attn_dilated_branch *branch = &d->branches[n];
        lattice l = lattice_of(branch, 0, positions);
        if (!branch->rotate)
            index += fill_index(&l, positions, index);
        for (l.first = 0; branch->rotate && l.first < min64(l.dilation, l.segment); l.first++)
            index += fill_index(&l, positions, index);
    }
    return status;
}
