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

/* alive_row gives the keys of lane r in t->alive, from key j on. */
static uint8_t *alive_row(const tile *t, int r, int64_t j)
{
    return t->alive + (int64_t)r * t->pl->keys + (j - t->alive_from);
}

/* fill_ranges sets t->alive from the ranges alone, and 0 for unused lanes. */
static void fill_ranges(tile *t, int64_t j0, int n)
{
    const int rows = t->pl->rows;
    int begin, end, r;
    t->alive_from = j0;
    memset(t->alive, 1, (size_t)rows * (size_t)t->pl->keys);
    for (r = 0; r < rows && !(all_see(t, j0, n) && t->used == rows); r++) {
        uint8_t *row = alive_row(t, r, j0);
        lane_range(t, r, j0, n, &begin, &end);
        end = begin < end ? end : begin;
        memset(row, 0, (size_t)begin);
        memset(row + end, 0, (size_t)(n - end));
    }
}

/* join_row tells whether any and whether all of n keys of a row of t->alive are alive. */
static void join_row(const uint8_t *row, int n, int *any, int *all)
{
    uint64_t eight, some = 0, every = EVERY_BYTE(1);
    int k;
    for (k = 0; k + 8 <= n; k += 8) {
        memcpy(&eight, row + k, sizeof eight);
        some |= eight;
        every &= eight;
    }
    for (; k < n; k++) {
        some |= row[k];
        every &= EVERY_BYTE(row[k]);
    }
    *any = some != 0;
    *all = every == EVERY_BYTE(1);
}

static int count_class(const tile *t, int64_t j0, int n)
{
    int r, any, all, seen = 0, missing = 0;
    for (r = t->span.begin; r < t->span.end; r++) {
        join_row(alive_row(t, r, j0), n, &any, &all);
        seen |= any;
        missing |= t->lanes[r].used && !all;
    }
    return !seen ? ATTN_TILE_EMPTY : missing ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
}

static void ask_rows(tile *t, const mask_rule *rule, int64_t j0, int n)
{
    int r;
    for (r = 0; r < t->pl->rows; r++)
        if (t->lanes[r].used)
            rule->row(&t->pr->p, &t->s, &t->lanes[r], j0, n, alive_row(t, r, j0));
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
    return t->by_pair ? count_class(t, j0, n) : class_so_far;
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
    attn_lanes lanes = { 0, 0 };
    int r, any, all;
    for (r = t->span.begin; r < t->span.end; r++) {
        join_row(alive_row(t, r, from), n, &any, &all);
        if (any)
            widen_lanes(&lanes, r);
    }
    return lanes;
}

/* swap_parts exchanges the bits of a above `bits` that `low` has there with those that it has in b. */
static inline void swap_parts(uint64_t *a, uint64_t *b, int bits, uint64_t low)
{
    const uint64_t x = ((*a >> bits) ^ *b) & low;
    *b ^= x;
    *a ^= x << bits;
}

/* turn_bytes makes byte j of word i byte i of word j, counted from the lowest: halves, then pairs, then
 * bytes change places. */
static void turn_bytes(uint64_t w[8])
{
    int i;
    for (i = 0; i < 4; i++)
        swap_parts(&w[i], &w[i + 4], 32, UINT64_C(0x00000000ffffffff));
    for (i = 0; i < 8; i += 4) {
        swap_parts(&w[i], &w[i + 2], 16, UINT64_C(0x0000ffff0000ffff));
        swap_parts(&w[i + 1], &w[i + 3], 16, UINT64_C(0x0000ffff0000ffff));
    }
    for (i = 0; i < 8; i += 2)
        swap_parts(&w[i], &w[i + 1], 8, UINT64_C(0x00ff00ff00ff00ff));
}

/* turn_eight turns what t->alive has of 8 keys from key j on: t->eight is [8][rows]. The first byte of a
 * word is its lowest, or else its highest, and all goes backwards. */
static void turn_eight(tile *t, int64_t j)
{
    const int rows = t->pl->rows;
    const uint16_t one = 1;
    uint8_t lowest;
    int i, r, back;
    memcpy(&lowest, &one, sizeof lowest);
    back = lowest ? 0 : 7;
    for (r = 0; r < rows; r += 8) {
        const int count = rows - r < 8 ? rows - r : 8;
        uint64_t w[8] = { 0 };
        for (i = 0; i < count; i++)
            memcpy(&w[i ^ back], alive_row(t, r + i, j), sizeof *w);
        turn_bytes(w);
        for (i = 0; i < 8; i++)
            memcpy(t->eight + i * rows + r, &w[i ^ back], (size_t)count);
    }
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
