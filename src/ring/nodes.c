/* src/ring/nodes.c - the nodes of the merge tree that a range of keys is made of.
 * SPDX-License-Identifier: MIT
 *
 * Nodes before the first key and behind the last one are empty, and complete from the beginning.
 */
#pragma once

#include "layout.c"

/* chunks_of gives chunks *from to *to - 1, which a range fills. */
static void chunks_of(const ring_cut *c, const attn_ring_range *range, int64_t *from, int64_t *to)
{
    const int64_t end = range->begin + range->count;
    *from = range->begin == 0 ? 0 : (range->begin + c->shift) / ATTN_CHUNK;
    *to = end == c->length ? c->chunks : (end + c->shift) / ATTN_CHUNK;
}

/* chunk_begin gives the position where a chunk begins. */
static int64_t chunk_begin(const ring_cut *c, int64_t chunk)
{
    return min64(c->length, max64(0, chunk * ATTN_CHUNK - c->shift));
}

static int64_t nodes_of_range(const ring_cut *c, const attn_ring_range *range)
{
    int64_t from, to;
    chunks_of(c, range, &from, &to);
    return range->count ? count_nodes(from, to) : 0;
}

static int64_t nodes_of_rank(const ring_cut *c, int rank)
{
    ring_walk w = { 0 };
    int64_t count = 0;
    while (next_range(c, rank, &w))
        count += c->along_tree ? nodes_of_range(c, &w.range) : 1;
    return count;
}

/* source_at tells whose keys a rank has after `step` exchanges. */
static int source_at(const ring_cut *c, int rank, int step)
{
    return (rank - step + 2 * c->ranks) % c->ranks;
}

/* waiting_after counts the states that wait when the keys of steps 0 to `step` have come: one for
 * each node that these keys form. */
static int64_t waiting_after(const ring_cut *c, int rank, int step)
{
    int64_t x = 0, run = 0, count = 0;
    attn_ring_range come = { 0, 0 };
    while (x < c->length) {
        const int64_t begin = x;
        const int owner = next_owner(c, &run, &x);
        if (source_at(c, rank, owner) <= step) { /* It comes at step rank - owner. */
            come.count += x - begin;
        } else {
            count += nodes_of_range(c, &come);
            come.begin = x;
            come.count = 0;
        }
    }
    return count + nodes_of_range(c, &come);
}

/* states_at_once makes room for the states that wait and those of the keys that come next. */
static int64_t states_at_once(const ring_cut *c, int rank)
{
    int64_t most = 1, waiting = 0;
    int step;
    if (c->ring->gather)
        return 1;
    if (!c->along_tree)
        return 2;
    for (step = 0; step < c->ranks; step++) {
        most = max64(most, waiting + nodes_of_rank(c, source_at(c, rank, step)));
        waiting = waiting_after(c, rank, step);
    }
    return most;
}
