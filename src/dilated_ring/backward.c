/* src/dilated_ring/backward.c - dilated attention over ranks, backward: each rank computes the gradients of its
 * positions.
 * SPDX-License-Identifier: MIT
 *
 * No gradient travels. A segment that several ranks share takes two calls on each of them: its own rows
 * with the keys that they see give dq, and its own keys with the rows that see them give dk and dv. Both
 * are parts of the call that one process makes, and add up in its order.
 */
#pragma once

#include "forward.c"

/* open_rows lets the call read a panel of rows. */
static void open_row_panels(dilated_slot *w, const dilated_ring *r, int number)
{
    attn_output x[MOST_CARRIED];
    const int count = r->side[BY_ROWS].count;
    int i;
    for (i = 0; i < count; i++)
        x[i] = panel_view(r, BY_ROWS, i, w, number);
    w->p.q = as_tensor(&x[ROW_Q]);
    w->p.o = x[ROW_O];
    if (r->side[BY_ROWS].of[ROW_SUMS].dim == 2)
        w->p.stats = x[ROW_SUMS];
    else
        w->p.lse = x[ROW_SUMS];
    w->g.dout = as_tensor(&x[ROW_DOUT]);
    if (count > ROW_DLSE)
        w->g.dlse = as_tensor(&x[ROW_DLSE]);
}

/* narrow_call makes the call, which has all rows and keys of a segment, one of the rows `needed` and of
 * this rank's keys. */
static void narrow_call(dilated_slot *w, int64_t begin, const attn_ring_range *needed)
{
    const int64_t end = needed->begin + needed->count;
    attn_part *part = &w->p.part;
    part->rows = part->keys = 1;
    part->row_begin = taken(&w->l, needed->begin - begin);
    part->row_count = taken(&w->l, end - begin) - part->row_begin;
    part->key_begin = taken(&w->l, w->from - begin);
    part->key_count = taken(&w->l, min64(w->to, end) - begin) - part->key_begin;
    w->at.first += part->key_begin * w->l.dilation;
    w->at.keys = part->key_count;
}

/* keys_call gives dk and dv of this rank's keys of a shared segment at `begin`. */
static void keys_call(dilated_slot *w, const dilated_ring *r, int number,
                      const attn_ring_range *needed)
{
    const int64_t begin = w->at.first - w->l.first;
    w->l = true_lattice(w, &r->side->c);
    w->at.row0 = 0;
    w->at.rows = w->at.keys = taken(&w->l, needed->begin + needed->count - begin);
    open_pairs(w);
    narrow_call(w, begin, needed);
    open_own_keys(w);
    ask_for(w, GRAD_K, GRAD_V);
    open_row_panels(w, r, number);
    w->g.gemms = 7;
    if (w->g.dk.data || w->g.dv.data)
        run_gradients(w);
}

/* computed_rows gives the call rows of this rank that it has computed. */
static attn_output computed_rows(const dilated_slot *w, int i)
{
    const dilated_ring *r = w->run->ranks;
    const carried *x = &r->side[BY_ROWS].of[i];
    attn_output t = { .stride_batch = x->from.stride_batch,
                      .stride_head = x->from.stride_head,
                      .stride_seq = x->from.stride_seq };
    t.data = r->base + r->pl.computed[i] + w->n * x->branch;
    return view_output(w, &t);
}

/* view_own_rows gives the call what gradients of this rank's rows need. */
static void view_own_rows(dilated_slot *w)
{
    attn_output dout;
    if (w->run->d.merge != ATTN_DILATED_MEAN) {
        view_results(w);
        return;
    }
    dout = computed_rows(w, ROW_DOUT);
    w->g.dout = as_tensor(&dout);
    w->p.o = computed_rows(w, ROW_O);
    w->p.stats = computed_rows(w, ROW_SUMS);
}

static void rows_call(dilated_slot *w)
{
    open_call(w);
    ask_for(w, GRAD_Q, GRAD_Q);
    view_own_rows(w);
    w->g.gemms = 7;
    if (w->g.dq.data)
        run_gradients(w);
}

/* shared_of_call finds the shared segment of the call, and the rows that this rank needs of it. It returns
 * -1 if the segment lies in this rank. */
static int shared_of_call(const dilated_slot *w, attn_ring_range *needed)
{
    const dilated_ring *r = w->run->ranks;
    const dilated_cut *c = &r->side[BY_ROWS].c;
    const lattice l = true_lattice(w, c);
    const int64_t first = max64(w->at.first - w->l.first, w->from);
    return shared_number(c, c->rank, &l, sequence_of(c->p, w->s.b).kv_len, first, needed);
}

static void rank_call(dilated_slot *w)
{
    attn_ring_range needed;
    const int number = shared_of_call(w, &needed);
    if (number < 0) {
        backward_call(w);
        return;
    }
    rows_call(w);
    keys_call(w, w->run->ranks, number, &needed);
}

static void rank_item(const call *c, char *base, int64_t index)
{
    gradients_item(c, base, index, rank_call);
}

/* open_own_gradients opens the run of this rank's gradients. */
OWN_FRAME static dilated_run *open_own_gradients(dilated_ring *r)
{
    text why = text_in(NULL, 0);
    dilated_run *run = open_own_run(r);
    run->calls = 1;
    validate_gradients(&r->own, r->side->c.d, &r->own_g, 1, &run->c.pr, &run->g, &why);
    return run;
}

static attn_status compute_own_gradients(dilated_ring *r)
{
    dilated_run *run = open_own_gradients(r);
    count_pairs(run);
    return run_list(run, rank_item);
}

/* ---- rows of a mean, before they travel */

static void keep_share(dilated_slot *w, const call_row *at)
{
    const dilated_ring *r = w->run->ranks;
    const attn_tensor *t = &r->side[BY_ROWS].of[ROW_DOUT].from;
    const int64_t row = w->s.q_row + at->position - w->before;
    float *dout = (float *)(void *)(r->base + r->pl.computed[ROW_DOUT]);
    share_dout(w, at, dout + ROW_AT(*t, &w->s, at->head, row));
}

/* mean_call computes o and statistics of a branch, and its share of dout, where segments are shared. */
static void mean_call(dilated_slot *w)
{
    attn_ring_range needed;
    if (shared_of_call(w, &needed) < 0)
        return;
    open_call(w);
    w->p.o = computed_rows(w, ROW_O);
    w->p.stats = computed_rows(w, ROW_SUMS);
    run_call(w);
    each_row(w, keep_share);
}

static void mean_item(const call *c, char *base, int64_t index)
{
    dilated_slot *w = open_slot(c, base, index);
    int n;
    for (n = 0; n < w->run->d.num_branches; n++)
        each_call(w, n, mean_call);
}

/* exchange_rows brings this rank the rows that it needs, of a mean with what their ranks compute first. */
static attn_status exchange_rows(dilated_ring *r)
{
    attn_status status = ATTN_OK;
    if (r->side->c.d->merge == ATTN_DILATED_MEAN && r->pl.lay.slot_bytes)
        status = run_list(open_own_gradients(r), mean_item);
    return exchange_side(r, BY_ROWS, status);
}
