/* src/visibility.c - which pairs of a tile are visible, and which lanes of its blocks.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "tile.c"

/* all_see tells whether the ranges leave keys j0 to j0+n-1 to every used lane. */
static int all_see(const tile *t, int64_t j0, int n)
{
    return t->all_from <= j0 && t->all_to >= j0 + n;
}

static int range_class(const tile *t, int64_t j0, int n)
{
    int r, full = 1, any = 0;
    if (all_see(t, j0, n))
        return ATTN_TILE_FULL;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        if (!l->used)
            continue;
        full &= l->lo <= j0 && l->hi >= j0 + n;
        any |= l->lo < j0 + n && l->hi > j0;
    }
    return full ? ATTN_TILE_FULL : any ? ATTN_TILE_PARTIAL : ATTN_TILE_EMPTY;
}

/* lane_range gives the keys of j0 to j0+n-1 that the ranges leave to lane r, counted from j0; it
 * gives none if the lane is unused. */
static void lane_range(const tile *t, int r, int64_t j0, int n, int *begin, int *end)
{
    const lane *l = &t->lanes[r];
    *begin = l->used ? (int)min64(n, max64(0, l->lo - j0)) : 0;
    *end = l->used ? (int)min64(n, max64(0, l->hi - j0)) : 0;
}

/* fill_ranges sets alive[key][lane] from the ranges alone, and 0 for unused lanes. */
static void fill_ranges(tile *t, int64_t j0, int n)
{
    const int rows = t->pl->rows;
    int begin, end, j, r;
    t->alive_from = j0;
    memset(t->alive, 1, (size_t)(n * rows));
    for (r = 0; r < rows && !(all_see(t, j0, n) && t->used == rows); r++) {
        lane_range(t, r, j0, n, &begin, &end);
        for (j = 0; j < n; j++)
            t->alive[j * rows + r] = j >= begin && j < end;
    }
}

/* join_alive tells what `alive`, a part of t->alive, has for lanes r to r+3 of n keys, a byte a
 * lane: *any gets 1 if one of the keys is alive, and *all gets 1 if every one is. Tiles have a
 * multiple of 4 lanes. */
static void join_alive(const tile *t, const uint8_t *alive, int n, int r, uint32_t *any,
                       uint32_t *all)
{
    int j;
    *any = 0;
    *all = 0x01010101u;
    for (j = 0; j < n; j++) {
        uint32_t four;
        memcpy(&four, alive + j * t->pl->rows + r, sizeof four);
        *any |= four;
        *all &= four;
    }
}

static int count_class(const tile *t, int n)
{
    uint32_t any, all, seen = 0, missing = 0;
    int r, i;
    for (r = 0; r < t->pl->rows; r += 4) {
        uint8_t used[4];
        uint32_t wanted;
        for (i = 0; i < 4; i++)
            used[i] = t->lanes[r + i].used != 0;
        memcpy(&wanted, used, sizeof wanted);
        join_alive(t, t->alive, n, r, &any, &all);
        seen |= any;
        missing |= wanted & ~all;
    }
    return !seen ? ATTN_TILE_EMPTY : missing ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
}

static void ask_rows(tile *t, const mask_rule *rule, int64_t j0, int n)
{
    int r;
    for (r = 0; r < t->pl->rows; r++)
        if (t->lanes[r].used)
            rule->row(&t->pr->p, &t->s, &t->lanes[r], j0, n, t->alive + r, t->pl->rows);
}

/* tile_class gives the class of keys j0 to j0+n-1. Where it fills t->alive it sets t->by_pair. */
static int tile_class(tile *t, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    int class_so_far = range_class(t, j0, n), m;
    t->by_pair = 0;
    for (m = 0; m < COUNT_OF(mask_rules) && class_so_far != ATTN_TILE_EMPTY; m++) {
        const mask_rule *rule = &mask_rules[m];
        int answer;
        if (!rule->row || !is_set(p, rule->on))
            continue;
        answer = rule->tile ? rule->tile(p, &t->s, &t->hull, j0, n) : ATTN_TILE_PARTIAL;
        if (answer == ATTN_TILE_EMPTY)
            return ATTN_TILE_EMPTY;
        if (answer == ATTN_TILE_FULL)
            continue;
        if (!t->by_pair)
            fill_ranges(t, j0, n);
        t->by_pair = 1;
        ask_rows(t, rule, j0, n);
    }
    return t->by_pair ? count_class(t, n) : class_so_far;
}

/* lanes_in_range gives the lanes to whom the ranges leave a key of j0 to j0+n-1. */
static attn_lanes lanes_in_range(const tile *t, int64_t j0, int n)
{
    attn_lanes lanes = { 0, 0 };
    int r;
    if (all_see(t, j0, n))
        return t->span;
    for (r = t->span.begin; r < t->span.end; r++)
        if (t->lanes[r].used && t->lanes[r].lo < j0 + n && t->lanes[r].hi > j0)
            widen_lanes(&lanes, r);
    return lanes;
}

/* lanes_alive gives the lanes to whom t->alive leaves one of its keys from to from+n-1. */
static attn_lanes lanes_alive(const tile *t, int64_t from, int n)
{
    const uint8_t *alive = t->alive + (from - t->alive_from) * t->pl->rows;
    attn_lanes lanes = { 0, 0 };
    uint32_t any, all;
    int r, i;
    for (r = 0; r < t->pl->rows; r += 4) {
        uint8_t lane_any[4];
        join_alive(t, alive, n, r, &any, &all);
        memcpy(lane_any, &any, sizeof any);
        for (i = 0; i < 4 && any; i++)
            if (lane_any[i])
                widen_lanes(&lanes, r + i);
    }
    return lanes;
}

/* set_blocks cuts keys j0 to j0+n-1 into canonical blocks, after tile_class. */
static void set_blocks(tile *t, int64_t j0, int n)
{
    int begin = 0, end = ATTN_BLOCK - (int)((t->s.key_base + j0) % ATTN_BLOCK);
    t->block_count = 0;
    for (; begin < n; begin = end, end += ATTN_BLOCK) {
        block *b = &t->blocks[t->block_count++];
        end = end < n ? end : n;
        b->end = end;
        b->raised = 0;
        b->lanes = t->by_pair ? lanes_alive(t, j0 + begin, end - begin)
                              : lanes_in_range(t, j0 + begin, end - begin);
    }
}
