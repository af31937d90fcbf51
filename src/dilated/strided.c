/* src/dilated/strided.c - strided branches: attention in place, by strides; states merge.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../merge.c"
#include "results.c"

static void merge_state(dilated_slot *w, const call_row *at)
{
    attn_state a = state_at(&w->sums, at->sum, w->asked->head_dim_v);
    const attn_state b = state_at(&w->part, at->row, w->asked->head_dim_v);
    a.num_rows = 1;
    merge_states(&a, &b, &a);
}

static void strided_call(dilated_slot *w)
{
    const int mean = w->run->d.merge == ATTN_DILATED_MEAN;
    open_call(w);
    if (mean) {
        ask_results(w);
    } else {
        w->p.partial = 1;
        w->p.state = w->part;
    }
    run_call(w);
    each_row(w, mean ? add_mean : merge_state);
}

/* output_from gives an output of the caller's from the first row of the item and head `head` on. */
static attn_output output_from(const dilated_slot *w, const attn_output *t, int64_t head)
{
    attn_output from = *t;
    from.stride_batch = 0;
    if (t->data)
        from.data = (char *)t->data + place_of(w, t, head, 0) * (int64_t)bytes_of(t->dtype);
    return from;
}

/* The sums of an item are states, which finish_states turns into results with the sink. */
static void finish_states(dilated_slot *w)
{
    const int64_t head = w->kv_head * w->run->c.pr.group;
    attn_params *p = &w->p;
    memset(p, 0, sizeof *p);
    set_sizes(p, 1, w->run->c.pr.group, rows_of_item(w), 0);
    p->head_dim = p->head_dim_v = w->asked->head_dim_v;
    p->o = output_from(w, &w->asked->o, head);
    p->lse = output_from(w, &w->asked->lse, head);
    p->stats = output_from(w, &w->asked->stats, head);
    p->sinks = w->asked->sinks ? w->asked->sinks + head : NULL;
    p->softmax1 = w->asked->softmax1;
    p->dropout_p = w->asked->dropout_p;
    p->rotated = w->asked->rotated;
    p->kernels = w->asked->kernels;
    if (attn_state_finish(p, &w->sums))
        w->status = ATTN_ERR_ARG;
}

static void strided_item(const call *c, char *base, int64_t index)
{
    const dilated_layout *lay = &run_of(c)->lay;
    dilated_slot *w = open_slot(c, base, index / lay->blocks);
    const int64_t begin = (w->from / lay->block + index % lay->blocks) * lay->block;
    int n;
    w->from = max64(w->from, begin);
    w->to = min64(w->to, begin + lay->block);
    if (w->from >= w->to)
        return;
    clear_sums(w);
    for (n = 0; n < w->run->d.num_branches; n++)
        each_call(w, n, strided_call);
    if (w->run->d.merge == ATTN_DILATED_MEAN)
        store_sums(w, divide_sum);
    else
        finish_states(w);
}
