/* src/ring/logits.c - logits of this rank's rows, written as keys come.
 * SPDX-License-Identifier: MIT
 *
 * A part of rows and keys writes its own elements of the caller's array (attn_logits).
 */
#pragma once

#include "parts.c"

/* choose_rows names the rows of this rank where the caller lists none. */
static void choose_rows(ring_call *c)
{
    const attn_logits *asked = &c->own.logits;
    int32_t *list = (int32_t *)(void *)(c->base + c->pl.logit_rows);
    ring_walk w = { 0 };
    int64_t i;
    if (!asked->data || asked->rows)
        return;
    c->p.logits.rows = list;
    if (!asked->num_rows)
        c->p.logits.num_rows = c->pl.length;
    while (next_range(&c->pl.cuts, c->pl.rank, &w))
        for (i = 0; i < w.range.count; i++)
            list[w.at + i] = (int32_t)(w.range.begin + i);
}

/* logits_of_part writes those of this rank's rows and the keys of the part, also where masks leave no
 * pair. */
static attn_status logits_of_part(ring_call *c)
{
    attn_params *p = &c->p;
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    p->partial = 0;
    p->logits.data = c->own.logits.data;
    while (p->logits.data && !status && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        set_part_rows(c, &rows);
        p->o.data = p->lse.data = p->stats.data = NULL;
        status = attn_forward(p, c->base + c->pl.work, (size_t)c->pl.work_bytes);
    }
    p->partial = 1;
    p->logits.data = NULL;
    return status;
}

static attn_status logits_of_shard(ring_call *c, const ring_shard *shard)
{
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    while (!status && next_range(&c->pl.cuts, shard->source, &keys)) {
        set_part_keys(c, shard, keys.at, keys.range.begin, keys.range.begin + keys.range.count);
        status = logits_of_part(c);
    }
    return status;
}
