/* src/run.c - the run: lists of items over workers, each worker with a slot of its own.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "split.c"
#include "prefix.c"
#include "naive.c"
#include "logits.c"
#include "mass.c"

static void run_one(void *arg, int64_t index, int worker)
{
    call *c = (call *)arg;
    if (worker < 0 || worker >= c->slot_count)
        STORE_WORD(&c->failed, 1u);
    else
        c->item(c, c->slots + worker * c->pl.slot_bytes, index);
}

/* With fewer slots than workers the index is the slot, and takes every slot_count-th item. */
static void run_strided(void *arg, int64_t index, int worker)
{
    call *c = (call *)arg;
    int64_t i;
    (void)worker;
    for (i = index; i < c->items; i += c->slot_count)
        c->item(c, c->slots + index * c->pl.slot_bytes, i);
}

/* Without a callback OpenMP's threads run the list, where it is compiled in, or else this one. */
#ifdef _OPENMP
static void run_here(const attn_params *p, int64_t n, attn_task_fn task, void *arg)
{
    int64_t i;
#pragma omp parallel for schedule(dynamic) num_threads(p->num_workers)
    for (i = 0; i < n; i++)
        task(arg, i, omp_get_thread_num());
}
#else
static void run_here(const attn_params *p, int64_t n, attn_task_fn task, void *arg)
{
    int64_t i;
    (void)p;
    for (i = 0; i < n; i++)
        task(arg, i, 0);
}
#endif

static int run_tasks(const attn_params *p, int64_t n, attn_task_fn task, void *arg)
{
    if (p->parallel_for)
        return p->parallel_for(p->parallel_user, n, task, arg);
    run_here(p, n, task, arg);
    return 0;
}

static attn_status run_items(call *c, int64_t items,
                             void (*item)(const call *c, char *slot, int64_t index))
{
    const attn_params *p = &c->pr.p;
    int failed = 0;
    int64_t i;
    c->items = items;
    c->item = item;
    c->failed = 0;
    if (c->slot_count == 1 || items <= 1)
        for (i = 0; i < items; i++)
            item(c, c->slots, i);
    else if (c->slot_count >= p->num_workers)
        failed = run_tasks(p, items, run_one, c);
    else
        failed = run_tasks(p, min64(items, c->slot_count), run_strided, c);
    return failed || LOAD_WORD(&c->failed) ? ATTN_ERR_CALLBACK : ATTN_OK;
}

/* run_prefix runs the first list, if the plan has one. */
static attn_status run_prefix(const call *c)
{
    call *list = prefix_list(c);
    if (!c->pl.prefix_keys)
        return ATTN_OK;
    *list = *c;
    plan_prefix_list(&c->pr, &c->pl, &list->pl);
    list->pl.slot_bytes = c->pl.slot_bytes;
    list->shared = (float *)(void *)((char *)list + aligned((int64_t)sizeof *list));
    return run_items(list, list->pl.items, prefix_item);
}

/* item_of gives what runs an item of the main list. */
static void (*item_of(const plan *pl))(const call *c, char *slot, int64_t index)
{
    if (pl->impl == ATTN_IMPL_NAIVE)
        return naive_item;
    return pl->prefix_keys ? suffix_item : tiled_item;
}

/* run_lists runs the lists of a call one after the other; empty ones cost nothing. */
static attn_status run_lists(call *c)
{
    const plan *pl = &c->pl;
    const split *sp = &pl->split;
    const int64_t chunks = split_rows(pl) * sp->inside;
    const struct list {
        int64_t items;
        void (*item)(const call *c, char *slot, int64_t index);
    } lists[] = {
        { sp->parts ? 0 : pl->items, item_of(pl) },
        { sp->items, score_item },
        { chunks * sp->tiles, weight_item },
        { chunks * (sp->slices + 1), value_item },
        { sp->parts ? split_rows(pl) : 0, combine_item },
        { pl->logits_items, logits_item },
        { pl->mass_items, mass_item },
    };
    attn_status status = run_prefix(c);
    int i;
    for (i = 0; sp->parts && i < c->slot_count; i++)
        ((key_tile *)(void *)(c->slots + i * pl->slot_bytes))->item = -1;
    for (i = 0; i < COUNT_OF(lists) && !status; i++)
        status = run_items(c, lists[i].items, lists[i].item);
    return status;
}
