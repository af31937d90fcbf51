/* src/dilated_ring/forward.c - dilated attention over ranks, forward: each rank computes its rows.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "travel.c"

/* true_lattice gives the lattice of the call under way, of which the slot may know only the beginning of
 * a segment. */
static lattice true_lattice(const dilated_slot *w, const dilated_cut *c)
{
    return lattice_of(&c->d->branches[w->n], w->of.head, sequence_of(c->p, w->s.b).kv_len);
}

/* open_shared_keys lets a call of a shared segment read its panel. */
static void open_shared_keys(dilated_slot *w)
{
    const dilated_ring *r = w->run->ranks;
    const dilated_cut *c = &r->side[BY_KEYS].c;
    const lattice l = true_lattice(w, c);
    attn_ring_range needed;
    const int number = shared_number(c, c->rank, &l, sequence_of(c->p, w->s.b).kv_len,
                                     w->at.first - w->l.first, &needed);
    attn_output k, v;
    if (number < 0) {
        open_own_keys(w);
        return;
    }
    k = panel_view(r, BY_KEYS, KEY_K, w, number);
    v = panel_view(r, BY_KEYS, KEY_V, w, number);
    w->p.k = as_tensor(&k);
    w->p.v = as_tensor(&v);
}

/* open_own_run opens the run of this rank's rows. */
static dilated_run *open_own_run(dilated_ring *r)
{
    const dilated_cut *c = &r->side->c;
    const attn_ring_range own = range_of(c, c->rank);
    dilated_run *run =
        open_run(&r->own, c->d, &r->pl.lay, r->base + r->pl.run, (size_t)r->pl.run_bytes);
    run->begin = own.begin;
    run->end = own.begin + own.count;
    run->open_keys = open_shared_keys;
    run->ranks = r;
    return run;
}

static void count_call(dilated_slot *w)
{
    const dilated_ring *r = w->run->ranks;
    open_pairs(w);
    r->stats->pairs += visible_pairs(&w->p);
}

/* count_pairs tells ring.stats of the pairs of this rank's rows. */
static void count_pairs(dilated_run *run)
{
    const attn_params *p = &run->c.pr.p;
    int64_t index;
    int n;
    for (index = 0; index < p->batch * p->num_heads_kv; index++) {
        dilated_slot *w = open_slot(&run->c, run->c.slots, index);
        for (n = 0; n < run->d.num_branches; n++)
            each_call(w, n, count_call);
    }
}

static attn_status compute_own_rows(dilated_ring *r)
{
    dilated_run *run = open_own_run(r);
    count_pairs(run);
    return run_list(run, strided_item);
}
