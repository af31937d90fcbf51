/* src/ring/nodes.c - the nodes of the merge tree that a range of keys is made of.
 * SPDX-License-Identifier: MIT
 *
 * Node (level, index) covers 2^level chunks from index * 2^level on. Nodes before the first key and
 * behind the last one are empty, and complete from the beginning.
 */
#pragma once

#include "layout.c"

typedef struct ring_node {
    int level;
    int64_t index, begin, end; /* begin and end are positions. */
} ring_node;

/* chunks_of gives chunks *from to *to - 1, which a range fills. */
static void chunks_of(const ring_cut *c, const attn_ring_range *range, int64_t *from, int64_t *to)
{
    const int64_t end = range->begin + range->count;
    *from = range->begin == 0 ? 0 : (range->begin + c->shift) / ATTN_CHUNK;
    *to = end == c->length ? c->chunks : (end + c->shift) / ATTN_CHUNK;
}

/* next_node gives the largest node from chunk *from on that ends at chunk `to` at the latest, and
 * moves *from behind it. */
static ring_node next_node(const ring_cut *c, int64_t *from, int64_t to)
{
    ring_node node;
    int64_t size = 1;
    node.level = 0;
    while (*from % (2 * size) == 0 && *from + 2 * size <= to) {
        size *= 2;
        node.level++;
    }
    node.index = *from / size;
    node.begin = min64(c->length, max64(0, *from * ATTN_CHUNK - c->shift));
    *from += size;
    node.end = min64(c->length, max64(0, *from * ATTN_CHUNK - c->shift));
    return node;
}

static int64_t count_nodes(const ring_cut *c, int64_t from, int64_t to)
{
    int64_t count = 0;
    for (; from < to; count++)
        next_node(c, &from, to);
    return count;
}

static int64_t nodes_of_rank(const ring_cut *c, int rank)
{
    attn_ring_range range;
    int64_t at = 0, from, to, count = 0;
    while (next_range(c, rank, &at, &range)) {
        chunks_of(c, &range, &from, &to);
        count += c->along_tree ? count_nodes(c, from, to) : 1;
    }
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
    int64_t x = 0, run = 0, from, to, count = 0;
    attn_ring_range come = { 0, 0 };
    while (x < c->length) {
        const int64_t begin = x;
        const int owner = next_owner(c, &run, &x);
        if (source_at(c, rank, owner) <= step) { /* It comes at step rank - owner. */
            come.count += x - begin;
        } else {
            chunks_of(c, &come, &from, &to);
            count += come.count ? count_nodes(c, from, to) : 0;
            come.begin = x;
            come.count = 0;
        }
    }
    chunks_of(c, &come, &from, &to);
    return count + (come.count ? count_nodes(c, from, to) : 0);
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
