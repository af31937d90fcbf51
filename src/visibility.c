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

/* fill_row sets t->row to 1 for keys begin to end-1 and to 0 for the others of n. */
static void fill_row(tile *t, int begin, int end, int n)
{
    if (end - begin < n)
        memset(t->row, 0, (size_t)n);
    if (begin < end)
        memset(t->row + begin, 1, (size_t)(end - begin));
}

/* bits_of_bytes gives bit i = byte i of eight bytes that are 0 or 1. The bytes of the factor lie in memory
 * as those of x do, so that the order of bytes in a word does not matter. */
static uint32_t bits_of_bytes(const uint8_t *bytes)
{
    static const uint8_t gather[8] = { 128, 64, 32, 16, 8, 4, 2, 1 };
    uint64_t x, factor;
    memcpy(&x, bytes, sizeof x);
    memcpy(&factor, gather, sizeof factor);
    ATTN_ASSERT((x & ~EVERY_BYTE(1)) == 0);
    return (uint32_t)((x * factor) >> 56);
}

/* pack_row writes the n keys of t->row to t->alive, as lane r, and gives the class of that row. The
 * shift leaves out what a word has beyond n. */
static int pack_row(tile *t, int r, int n)
{
    uint32_t *to = t->alive + r, some = 0, missing = 0;
    int k, i;
    memset(t->row + n, 0, 8);
    for (k = 0; k < n; k += ATTN_ALIVE_BITS, to += t->pl->rows) {
        const int count = n - k < ATTN_ALIVE_BITS ? n - k : ATTN_ALIVE_BITS;
        uint32_t bits = 0;
        for (i = 0; i < count; i += 8)
            bits |= bits_of_bytes(t->row + k + i) << i;
        *to = bits;
        some |= bits;
        missing |= ~bits << (ATTN_ALIVE_BITS - count);
    }
    return !some ? ATTN_TILE_EMPTY : missing ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
}

/* ask_rows sets t->alive to what the ranges and the rules in the set `asked` leave, and gives the
 * class. */
static int ask_rows(tile *t, unsigned asked, int64_t j0, int n)
{
    int r, m, begin, end, class, seen = 0, missing = 0;
    t->alive_from = j0;
    for (r = 0; r < t->pl->rows; r++) {
        lane_range(t, r, j0, n, &begin, &end);
        fill_row(t, begin, end, n);
        for (m = 0; m < COUNT_OF(mask_rules) && begin < end; m++)
            if (asked >> m & 1)
                mask_rules[m].row(&t->pr->p, &t->s, &t->lanes[r], j0 + begin, end - begin,
                                  t->row + begin);
        class = pack_row(t, r, n);
        seen |= class != ATTN_TILE_EMPTY;
        missing |= class != ATTN_TILE_FULL && t->lanes[r].used;
    }
    return !seen ? ATTN_TILE_EMPTY : missing ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
}

/* tile_class gives the class of keys j0 to j0+n-1. Where it fills t->alive it sets t->by_pair. */
static int tile_class(tile *t, int64_t j0, int n)
{
    const int class = range_class(t, j0, n);
    unsigned asked = 0;
    int m;
    t->by_pair = 0;
    for (m = 0; m < COUNT_OF(mask_rules) && class != ATTN_TILE_EMPTY; m++) {
        const mask_rule *rule = &mask_rules[m];
        int answer;
        if (!rule->row || !is_set(&t->pr->p, rule->on))
            continue;
        answer = rule->tile ? rule->tile(&t->pr->p, &t->s, &t->hull, j0, n) : ATTN_TILE_PARTIAL;
        if (answer == ATTN_TILE_EMPTY)
            return ATTN_TILE_EMPTY;
        asked |= (answer != ATTN_TILE_FULL ? 1u : 0u) << m;
    }
    t->by_pair = asked != 0;
    return asked ? ask_rows(t, asked, j0, n) : class;
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

/* lanes_alive gives the lanes to whom t->alive leaves one of the n keys from `from` on, at most
 * ATTN_BLOCK. */
static attn_lanes lanes_alive(const tile *t, int64_t from, int n)
{
    const int rows = t->pl->rows, first = (int)(from - t->alive_from);
    const uint32_t *const alive = t->alive + first / ATTN_ALIVE_BITS * rows;
    const uint64_t keys = ((UINT64_C(1) << n) - 1) << first % ATTN_ALIVE_BITS;
    const uint32_t low = (uint32_t)keys, high = (uint32_t)(keys >> ATTN_ALIVE_BITS);
    attn_lanes lanes = { 0, 0 };
    int r;
    ATTN_ASSERT(first >= 0 && n >= 1 && n <= ATTN_BLOCK);
    for (r = t->span.begin; r < t->span.end; r++)
        if ((alive[r] & low) || (high && alive[rows + r] & high))
            widen_lanes(&lanes, r);
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
