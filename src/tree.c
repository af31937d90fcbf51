/* src/tree.c - the merge tree over chunks of keys: where a complete node waits, and what it merges with.
 * SPDX-License-Identifier: MIT
 *
 * Node (level, index) covers the 2^level chunks from index * 2^level on. It is A + B, its lower half
 * and its upper half, and waits for its sibling once it is complete. What covers no key is empty, and
 * takes no part in a merge. In ascending order at most one node waits on each level, as a one bit
 * does in a binary counter.
 */
#pragma once

#include "seam.h"
#include "sizes.c"

#define MAX_LEVELS 64

/* tree_states counts the states that the tree holds at once: that of the current chunk, and a node
 * that waits for each one bit of the number of chunks before it. If the first key lies inside the
 * tree, the node with that key waits, and the bits are those of the number of chunks behind it. */
static inline int tree_states(int64_t keys, int inside)
{
    return inside + log2_up(max64(1, ceil_div(keys, ATTN_CHUNK)) + 1);
}

/* ---- in ascending order */

/* level_after gives the level of the largest node that ends with node i of level 0: trailing one
 * bits of i are the levels at which a lower half waits. If i numbers nodes of a higher level, the
 * result counts from that level. */
static inline int level_after(int64_t i)
{
    int level = 0;
    for (; i & 1; i >>= 1)
        level++;
    return level;
}

/* take_lower takes the lowest node below `level` that waits, NULL if none does. The state of the
 * keys behind it merges with it as B, and then covers all keys from the node on. */
static inline float *take_lower(float **waiting, int level)
{
    float *lower = NULL;
    int k;
    for (k = 0; k < level && !lower; k++) {
        lower = waiting[k];
        waiting[k] = NULL;
    }
    return lower;
}

/* ---- in any order */

typedef struct tree_node {
    int64_t index;
    int level;
} tree_node;

static inline tree_node parent_of(tree_node node)
{
    const tree_node parent = { node.index / 2, node.level + 1 };
    return parent;
}

static inline int are_siblings(tree_node a, tree_node b)
{
    return a.level == b.level && a.index == (b.index ^ 1);
}

/* next_node gives the largest node from chunk *from on that ends at chunk `to` at the latest, and
 * moves *from behind it. */
static inline tree_node next_node(int64_t *from, int64_t to)
{
    tree_node node = { *from, 0 };
    while (node.index % 2 == 0 && *from + ((int64_t)2 << node.level) <= to)
        node = parent_of(node);
    *from += (int64_t)1 << node.level;
    return node;
}

static inline int64_t count_nodes(int64_t from, int64_t to)
{
    int64_t count = 0;
    for (; from < to; count++)
        next_node(&from, to);
    return count;
}
