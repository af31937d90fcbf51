/* src/dilated_ring/travel.c - what travels: each rank starts runs, and keeps or passes on those that come.
 * SPDX-License-Identifier: MIT
 *
 * Message `hop` of a rank holds its runs that ranks at least `hop` ranks away need, each as keys and then
 * values, or as the arrays of rows one after the other. A rank keeps in panels what it needs, and passes
 * on what must go further.
 */
#pragma once

#include "plan.c"

/* pack_run copies rows of a run from this rank's own tensor. */
static void pack_run(const dilated_ring *r, const carried *x, const shared_run *run, char *to)
{
    const attn_tensor *t = &x->from;
    const dilated_cut *c = &r->side->c;
    const int64_t first = run->position - range_of(c, c->rank).begin;
    const int64_t step = run->of.step * stride_or(t->stride_head, 0);
    const int64_t entry =
        run->b * stride_or(t->stride_batch, 0) + run->of.head * stride_or(t->stride_head, 0);
    int64_t i, h;
    for (i = 0; i < run->count; i++)
        for (h = 0; h < run->of.heads; h++, to += x->bytes)
            memcpy(to,
                   (const char *)input_at(t, first + i * run->dilation) + run->n * x->branch +
                       bytes_between(t->dtype, entry + h * step),
                   (size_t)x->bytes);
}

/* place_of_run gives where a run begins in the panels of array i of the side under way. */
static char *place_of_run(const dilated_ring *r, int i, const shared_run *run)
{
    const dilated_side *s = &r->side[r->under];
    const int64_t panel = panel_at(&s->c, run->n, run->b, run->kv_head, run->class, run->number);
    return r->base + r->pl.side[r->under].panels[i] +
           (panel + run->place * run->of.heads) * s->of[i].bytes;
}

/* start_run takes a run of this rank's own. */
static void start_run(void *arg, const shared_run *run)
{
    dilated_ring *r = arg;
    const dilated_side *s = &r->side[r->under];
    int i;
    for (i = 0; i < s->count; i++) {
        if (run->number >= 0)
            pack_run(r, &s->of[i], run, place_of_run(r, i, run));
        if (run->hops > 0) {
            pack_run(r, &s->of[i], run, r->out);
            r->out += run->count * run->of.heads * s->of[i].bytes;
        }
    }
}

static void pass_on_rows(dilated_ring *r, int i, const shared_run *run)
{
    const size_t n = (size_t)(run->count * run->of.heads * r->side[r->under].of[i].bytes);
    if (run->number >= 0)
        memcpy(place_of_run(r, i, run), r->in, n);
    if (run->hops > r->hop) {
        memcpy(r->out, r->in, n);
        r->out += n;
    }
    r->in += n;
}

/* pass_on_run takes a run that has come `hop` ranks far. */
static void pass_on_run(void *arg, const shared_run *run)
{
    dilated_ring *r = arg;
    int i;
    for (i = 0; i < r->side[r->under].count && run->hops >= r->hop; i++)
        pass_on_rows(r, i, run);
}

static ring_message message_of_hop(const dilated_ring *r, int hop)
{
    const dilated_side *s = &r->side[r->under];
    const dilated_cut *c = &s->c;
    const ring_message m = { r->base + r->pl.sent, r->base + r->pl.received,
                             message_bytes(s, source_at(&c->cuts, c->rank, hop - 1), hop),
                             message_bytes(s, source_at(&c->cuts, c->rank, hop), hop) };
    return m;
}

/* exchange_side brings this rank what it needs of one side, unless the status so far is that of a
 * failure, and returns what the ranks agree on. */
static attn_status exchange_side(dilated_ring *r, int side, attn_status status)
{
    const dilated_cut *c = &r->side[side].c;
    r->under = side;
    r->out = r->base + r->pl.sent;
    each_run(c, c->rank, start_run, r);
    for (r->hop = 1; r->hop <= r->pl.side[r->under].hops; r->hop++) {
        const ring_message m = message_of_hop(r, r->hop);
        status = begin_exchange(r->t, r->stats, &m, status);
        if (status)
            return status;
        status = end_exchange(r->t, r->stats, status);
        r->in = m.receive;
        r->out = r->base + r->pl.sent;
        if (!status)
            each_run(c, source_at(&c->cuts, c->rank, r->hop), pass_on_run, r);
    }
    return agree_on_status(r->t, r->stats, status);
}

/* panel_view gives a shared segment's rows of array i to a call. */
static attn_output panel_view(const dilated_ring *r, int side, int i, const dilated_slot *w,
                              int number)
{
    const dilated_side *s = &r->side[side];
    const carried *x = &s->of[i];
    const int64_t heads = s->c.by_rows ? w->of.heads : 1;
    const int64_t panel = panel_at(&s->c, w->n, w->s.b, w->kv_head, w->class, number);
    const attn_output packed = { .dtype = x->from.dtype,
                                 .stride_head = (ptrdiff_t)(heads > 1 ? x->dim : 0),
                                 .stride_seq = (ptrdiff_t)(heads * x->dim),
                                 .data = r->base + r->pl.side[side].panels[i] + panel * x->bytes };
    return packed;
}
