/* src/dilated_ring/shared.c - shared segments: those with rows of a rank and keys of others that these rows see.
 * SPDX-License-Identifier: MIT
 *
 * A rank has one range of positions. So at most two segments of a lattice reach beyond it: the one in
 * which it begins, and the one in which it ends. The runs of a rank are its keys in these two. For
 * gradients rows travel, too: then the runs are its rows, and the ranks that need them are those with
 * keys that the rows see.
 */
#pragma once

#include "../api/dilated_ring.h"
#include "../dilated/dilated.c"
#include "../ring/ring.c"

/* A dilated_cut is a call and how ranks cut it. */
typedef struct dilated_cut {
    const attn_params *p; /* Sizes that are 0 may be unresolved. */
    const attn_dilated *d;
    ring_cut cuts;
    ring_shape shape;
    int rank;
    int by_rows; /* Nonzero means that rows travel to the keys, and 0 that keys travel to the rows. */
    int64_t heads_kv, group;
} dilated_cut;

static dilated_cut dilated_cut_of(const attn_params *p, const attn_dilated *d,
                                  const attn_ring *ring)
{
    dilated_cut c = { .p = p, .d = d, .rank = ring->transport->rank };
    c.cuts = cut_of(p, ring, ring->transport->size);
    c.shape = shape_of(p);
    c.heads_kv = p->num_heads_kv ? p->num_heads_kv : p->num_heads_q;
    c.group = p->num_heads_q / c.heads_kv;
    return c;
}

/* range_of gives the positions of a rank. */
static attn_ring_range range_of(const dilated_cut *c, int rank)
{
    ring_walk w = { 0 };
    next_range(&c->cuts, rank, &w);
    return w.range;
}

/* outer_segments gives where the first and the last of the segments of positions begin to end - 1
 * begin, and returns how many these are. */
static int outer_segments(const lattice *l, int64_t begin, int64_t end, int64_t at[2])
{
    if (begin >= end)
        return 0;
    at[0] = begin / l->segment * l->segment;
    at[1] = (end - 1) / l->segment * l->segment;
    return at[0] == at[1] ? 1 : 2;
}

/* shared_segments gives what a rank needs of the segments that reach beyond it, in a sequence of
 * `positions`, and returns how many there are: the keys that its rows see, or the rows that see its
 * keys. Of rows it needs its own, too, wherever others share the segment. */
static int shared_segments(const dilated_cut *c, int rank, const lattice *l, int64_t positions,
                           attn_ring_range shared[2])
{
    const attn_ring_range own = range_of(c, rank);
    const int64_t end = min64(own.begin + own.count, positions);
    const int64_t seen = c->p->causal && !c->by_rows ? end : positions;
    int64_t at[2];
    const int outer = outer_segments(l, own.begin, end, at);
    int i, count = 0;
    for (i = 0; i < outer; i++) {
        const int64_t stop = min64(at[i] + l->segment, seen);
        if (at[i] >= own.begin && stop <= end)
            continue;
        shared[count].begin = c->p->causal && c->by_rows ? max64(at[i], own.begin) : at[i];
        shared[count].count = stop - shared[count].begin;
        count++;
    }
    return count;
}

/* shared_number finds the shared segment of which a rank needs position x, and what it needs of it. It
 * returns -1 if there is none. */
static int shared_number(const dilated_cut *c, int rank, const lattice *l, int64_t positions,
                         int64_t x, attn_ring_range *needed)
{
    attn_ring_range shared[2];
    int i = shared_segments(c, rank, l, positions, shared);
    while (--i >= 0) {
        *needed = shared[i];
        if (x >= needed->begin && x < needed->begin + needed->count)
            return i;
    }
    return i;
}

/* A shared_run is keys, or rows, of one rank in one segment, of a kv head and a class of its query
 * heads. */
typedef struct shared_run {
    int n;
    int64_t b, kv_head, class;
    head_class of; /* These are the heads of the tensors that travel. */
    int64_t position,
        dilation;       /* position is that of the first key, dilation the step to the next. */
    int64_t key, count; /* The first key has number `key` in the segment. */
    int number;    /* number is that of the segment among those that this rank shares, or -1. */
    int64_t place; /* place counts the keys that this rank has before them in the panel. */
    int hops;      /* hops counts the ranks to the furthest one that needs the keys. */
} shared_run;

/* hops_of returns -1 if no rank needs position x of `source`. */
static int hops_of(const dilated_cut *c, int source, const lattice *l, int64_t positions, int64_t x)
{
    attn_ring_range needed;
    int hops = c->cuts.ranks - 1;
    while (hops >= 0 &&
           shared_number(c, (source + hops) % c->cuts.ranks, l, positions, x, &needed) < 0)
        hops--;
    return hops;
}

typedef void (*take_run)(void *arg, const shared_run *run);

/* runs_of_class takes the runs of a lattice; *run has what they have in common. */
static void runs_of_class(const dilated_cut *c, int source, const lattice *l, shared_run *run,
                          take_run take, void *arg)
{
    const attn_ring_range own = range_of(c, source);
    const int64_t positions = sequence_of(c->p, run->b).kv_len;
    const int64_t end = min64(own.begin + own.count, positions);
    attn_ring_range needed;
    int64_t at[2];
    const int outer = outer_segments(l, own.begin, end, at);
    int i;
    for (i = 0; i < outer; i++) {
        const int64_t from = max64(own.begin, at[i]), to = min64(end, at[i] + l->segment);
        run->key = taken(l, from - at[i]);
        run->count = taken(l, to - at[i]) - run->key;
        run->position = at[i] + l->first + run->key * l->dilation;
        run->dilation = l->dilation;
        run->hops = hops_of(c, source, l, positions, from);
        run->number = shared_number(c, c->rank, l, positions, from, &needed);
        run->place = run->number < 0 ? 0 : run->key - taken(l, needed.begin - at[i]);
        if (run->count && run->hops >= 0)
            take(arg, run);
    }
}

/* each_run takes the runs of rank `source` that any rank needs, in an order that all ranks know. */
static void each_run(const dilated_cut *c, int source, take_run take, void *arg)
{
    shared_run run;
    for (run.b = 0; run.b < c->p->batch; run.b++)
        for (run.kv_head = 0; run.kv_head < c->heads_kv; run.kv_head++)
            for (run.n = 0; run.n < c->d->num_branches; run.n++) {
                const attn_dilated_branch *branch = &c->d->branches[run.n];
                const head_class of_keys = { run.kv_head, 1, 1 };
                head_class of;
                for (run.class = 0; class_of(branch, c->group, run.kv_head, run.class, &of);
                     run.class ++) {
                    const lattice l = lattice_of(branch, of.head, sequence_of(c->p, run.b).kv_len);
                    run.of = c->by_rows ? of : of_keys;
                    runs_of_class(c, source, &l, &run, take, arg);
                }
            }
}
