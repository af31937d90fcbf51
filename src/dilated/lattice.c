/* src/dilated/lattice.c - a lattice: the positions first, first + dilation, ... of every segment of a sequence.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../api/dilated.h"
#include "../sizes.c"

typedef struct lattice {
    int64_t segment, dilation, first;
} lattice;

/* lattice_of gives the lattice of a branch for the head, in a sequence of `positions` positions. */
static lattice lattice_of(const attn_dilated_branch *branch, int64_t head, int64_t positions)
{
    lattice l;
    l.dilation = max64(branch->dilation, 1);
    l.segment = max64(branch->segment ? min64(branch->segment, positions) : positions, 1);
    l.first = (branch->offset + (branch->rotate ? head % l.dilation : 0)) % l.dilation;
    return l;
}

/* step_of counts the positions from one that takes part to the next of its segment. If there is no
 * next one, it is a number that no stride overflows with. */
static int64_t step_of(const lattice *l)
{
    return min64(l->dilation, l->segment);
}

/* taken counts how many of the first `length` positions of a segment take part. */
static int64_t taken(const lattice *l, int64_t length)
{
    return length > l->first ? (length - l->first - 1) / l->dilation + 1 : 0;
}

/* taken_of_all counts how many of `positions` positions take part. */
static int64_t taken_of_all(const lattice *l, int64_t positions)
{
    return positions / l->segment * taken(l, l->segment) + taken(l, positions % l->segment);
}

/* A segments is segments one after the other, whole ones or a part of one, in which some rows take
 * part. */
typedef struct segments {
    int64_t count;
    int64_t first;      /* first is the position of key 0 of the first one. */
    int64_t keys;       /* keys counts the keys of each. */
    int64_t row0, rows; /* Keys row0 to row0 + rows-1 of each are rows. */
} segments;

/* next_segments gives the segments from position `at` on, where rows are positions below `end` of a
 * sequence of `positions`, and returns the position behind them. */
static int64_t next_segments(const lattice *l, int64_t at, int64_t end, int64_t positions,
                             segments *s)
{
    const int64_t begin = at / l->segment * l->segment;
    const int64_t stop = min64(begin + l->segment, positions), to = min64(end, stop);
    s->count = 1;
    s->first = begin + l->first;
    s->keys = taken(l, stop - begin);
    s->row0 = taken(l, at - begin);
    s->rows = taken(l, to - begin) - s->row0;
    if (to - at < l->segment)
        return to;
    s->count = (end - begin) / l->segment;
    return begin + s->count * l->segment;
}

/* ---- the index: positions of each lattice of each branch, one after the other */

/* taken_before counts how many of `length` positions of a segment lie before `first` modulo the
 * dilation. */
static int64_t taken_before(const lattice *l, int64_t length)
{
    return length / l->dilation * l->first + min64(length % l->dilation, l->first);
}

/* index_of_branch counts the entries of one branch: those of all lattices, or of the one of its
 * offset. */
static int64_t index_of_branch(const attn_dilated_branch *branch, int64_t positions)
{
    const lattice l = lattice_of(branch, 0, positions);
    return branch->rotate ? positions : taken_of_all(&l, positions);
}

/* index_of_lattice tells where the lattice's entries begin among those of its branch. */
static int64_t index_of_lattice(const attn_dilated_branch *branch, const lattice *l,
                                int64_t positions)
{
    if (!branch->rotate)
        return 0;
    return positions / l->segment * taken_before(l, l->segment) +
           taken_before(l, positions % l->segment);
}

/* fill_index writes the lattice's entries and returns how many there are. */
static int64_t fill_index(const lattice *l, int64_t positions, int32_t *index)
{
    int64_t begin, at, count = 0;
    for (begin = 0; begin < positions; begin += l->segment)
        for (at = begin + l->first; at < min64(begin + l->segment, positions); at += l->dilation)
            index[count++] = (int32_t)at;
    return count;
}
