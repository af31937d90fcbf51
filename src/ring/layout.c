/* src/ring/layout.c - which rank holds which positions: every layout but CUSTOM deals runs of units to the ranks.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../api/ring.h"
#include "../tree.c"

#define RING_MOST_RANKS 4096
/* Up to this length products of units and ranks fit into 64 bits. */
#define RING_MOST_LENGTH ((int64_t)1 << 45)

typedef struct ring_cut {
    const attn_ring *ring;
    int ranks;
    /* Nonzero means that all cuts are between chunks, and states merge along the tree. */
    int along_tree;
    int64_t length, unit, units, runs;
    int64_t shift;  /* In every sequence n of position x is x + shift. */
    int64_t chunks; /* The root of the tree covers this number of chunks. */
} ring_cut;

static int64_t run_begin(const ring_cut *c, int64_t run)
{
    const int64_t each = c->units / c->runs, rest = c->units % c->runs;
    return min64(c->length, (run * each + run * rest / c->runs) * c->unit);
}

static int owner_of_run(const ring_cut *c, int64_t run)
{
    if (c->ring->layout == ATTN_RING_STRIPED)
        return (int)(run % c->ranks);
    return (int)(run < c->ranks ? run : 2 * (int64_t)c->ranks - 1 - run);
}

/* dealt_range gives range number `at` of a rank as the layout deals them, empty ones included, and
 * returns 0 after the last. */
static int dealt_range(const ring_cut *c, int rank, int64_t at, attn_ring_range *range)
{
    const attn_ring *ring = c->ring;
    int64_t run = rank + at * c->ranks;
    if (ring->layout == ATTN_RING_CUSTOM) {
        if (at >= ring->first_range[rank + 1] - ring->first_range[rank])
            return 0;
        *range = ring->ranges[ring->first_range[rank] + at];
        return 1;
    }
    if (ring->layout == ATTN_RING_ZIGZAG && at == 1)
        run = 2 * (int64_t)c->ranks - 1 - rank;
    if (run >= c->runs)
        return 0;
    range->begin = run_begin(c, run);
    range->count = run_begin(c, run + 1) - range->begin;
    return 1;
}

/* A ring_walk goes over the ranges of a rank. It begins as zero. */
typedef struct ring_walk {
    int64_t at; /* at counts the positions of the rank before this range. */
    int64_t next;
    attn_ring_range range;
} ring_walk;

/* next_range goes to the next range of a rank; it skips empty ranges and joins adjoining ones. It
 * returns 0 after the last. */
static int next_range(const ring_cut *c, int rank, ring_walk *w)
{
    attn_ring_range more, *range = &w->range;
    w->at += range->count;
    do {
        if (!dealt_range(c, rank, w->next++, range))
            return 0;
    } while (range->count == 0);
    for (; dealt_range(c, rank, w->next, &more); w->next++) {
        if (more.count && more.begin != range->begin + range->count)
            break;
        range->count += more.count;
    }
    return 1;
}

/* A ring_share is what a rank holds. */
typedef struct ring_share {
    int64_t length, ranges, longest; /* longest is the length of its longest range. */
} ring_share;

static ring_share share_of(const ring_cut *c, int rank)
{
    ring_share share = { 0, 0, 0 };
    ring_walk w = { 0 };
    for (; next_range(c, rank, &w); share.ranges++) {
        share.length += w.range.count;
        share.longest = max64(share.longest, w.range.count);
    }
    return share;
}

/* custom_end finds the range of a CUSTOM layout that begins at position x, and gives its end and
 * owner, or -1 if none does. The ranges of a rank ascend, and empty ones come before others that
 * begin where they do. */
static int64_t custom_end(const attn_ring *ring, int ranks, int64_t x, int *owner)
{
    for (*owner = 0; *owner < ranks; ++*owner) {
        int64_t from = ring->first_range[*owner], to = ring->first_range[*owner + 1];
        const int64_t first = from;
        while (from < to) { /* Its last range that begins at x or before is the one before `to`. */
            const int64_t middle = from + (to - from) / 2;
            if (ring->ranges[middle].begin > x)
                to = middle;
            else
                from = middle + 1;
        }
        if (to > first && ring->ranges[to - 1].begin == x && ring->ranges[to - 1].count > 0)
            return x + ring->ranges[to - 1].count;
    }
    return -1;
}

/* next_owner walks along the sequence: it tells who holds what lies from position *x on and up to
 * where, and moves *x there. *run and *x begin as 0. */
static int next_owner(const ring_cut *c, int64_t *run, int64_t *x)
{
    int owner = 0;
    if (c->ring->layout == ATTN_RING_CUSTOM) {
        *x = custom_end(c->ring, c->ranks, *x, &owner);
        return owner;
    }
    while (run_begin(c, *run + 1) == *x)
        ++*run;
    owner = owner_of_run(c, *run);
    *x = run_begin(c, ++*run);
    return owner;
}

/* shift_of gives n - position of the keys of a sequence, or -1 for a key_base that attn_forward
 * refuses. */
static int64_t shift_of(const attn_params *p, int64_t b)
{
    const int64_t base = p->key_base ? p->key_base[b] : 0;
    return base < 0 || base > (int64_t)1 << 58 ? -1 : base - entry32(p->kv_begin, b, 0);
}

/* cuts_between_chunks tells whether every cut lies between two chunks of every sequence. */
static int cuts_between_chunks(const ring_cut *c, const attn_params *p)
{
    int64_t b;
    int rank;
    for (b = 0; (p->key_base || p->kv_begin) && b < p->batch; b++)
        if (shift_of(p, b) != shift_of(p, 0) || shift_of(p, b) < 0 || shift_of(p, b) % ATTN_CHUNK)
            return 0;
    for (rank = 0; rank < c->ranks; rank++) {
        ring_walk w = { 0 };
        while (next_range(c, rank, &w))
            if (w.range.begin % ATTN_CHUNK)
                return 0;
    }
    return 1;
}

static ring_cut cut_of(const attn_params *p, const attn_ring *ring, int ranks)
{
    ring_cut c = { .ring = ring,
                   .ranks = ranks,
                   .length = p->seq_len_kv,
                   .unit = ring->shard ? ring->shard : ATTN_CHUNK };
    c.units = ceil_div(c.length, c.unit);
    c.runs = ring->layout == ATTN_RING_ZIGZAG ? 2 * (int64_t)ranks : ranks;
    if (ring->layout == ATTN_RING_STRIPED)
        c.runs = max64(c.units, 1);
    c.along_tree = !ring->arrival && cuts_between_chunks(&c, p);
    c.shift = c.along_tree && p->batch > 0 ? shift_of(p, 0) : 0;
    c.chunks = (int64_t)1 << log2_up(ceil_div(c.length + c.shift, ATTN_CHUNK));
    return c;
}

/* is_canonical tells whether the bits are those of one process, which they also are where one rank
 * holds everything. */
static int is_canonical(const ring_cut *c)
{
    int rank, whole = c->length == 0;
    for (rank = 0; rank < c->ranks && !whole; rank++)
        whole = share_of(c, rank).longest == c->length;
    return c->along_tree || c->ring->gather || whole;
}
