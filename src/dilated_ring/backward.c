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
    if (w->asked->stats.data)
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

static void rows_call(dilated_slot *w)
{
    open_call(w);
    ask_for(w, GRAD_Q, GRAD_Q);
    view_results(w);
    w->g.gemms = 7;
    if (w->g.dq.data)
        run_gradients(w);
}

static void rank_call(dilated_slot *w)
{
    const dilated_ring *r = w->run->ranks;
    const dilated_cut *c = &r->side[BY_ROWS].c;
    const lattice l = true_lattice(w, c);
    const int64_t first = max64(w->at.first - w->l.first, w->from);
    attn_ring_range needed;
    const int number =
        shared_number(c, c->rank, &l, sequence_of(c->p, w->s.b).kv_len, first, &needed);
    if (number < 0) {
        backward_call(w);
        return;
    }
    rows_call(w);
    keys_call(w, r, number, &needed);
}

static void rank_item(const call *c, char *base, int64_t index)
{
    gradients_item(c, base, index, rank_call);
}

OWN_FRAME static attn_status compute_own_gradients(dilated_ring *r)
{
    text why = text_in(NULL, 0);
    dilated_run *run = open_own_run(r);
    const attn_gradients *g = &r->own_g;
    run->calls = 1;
    validate_gradients(&r->own, r->side->c.d, g, 1, &run->c.pr, &run->g, &why);
    count_pairs(run);
    return run_list(run, rank_item);
}
