/* src/visibility.c - which pairs of a tile are visible, and which lanes of its blocks.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "tile.c"

/* all_see tells whether the ranges leave keys j0 to j0+n-1 to every used lane. */
static int all_see(const tile *t, int64_t j0, int n)
{
    const key_span *seen = &t->spans[t->version];
    return seen->all_from <= j0 && seen->all_to >= j0 + n;
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
        full &= seen_from(l, t->version) <= j0 && seen_to(l, t->version) >= j0 + n;
        any |= seen_from(l, t->version) < j0 + n && seen_to(l, t->version) > j0;
    }
    return full ? ATTN_TILE_FULL : any ? ATTN_TILE_PARTIAL : ATTN_TILE_EMPTY;
}

/* lane_range gives the keys of j0 to j0+n-1 that the ranges leave to lane r, counted from j0; it
 * gives none if the lane is unused. */
static void lane_range(const tile *t, int r, int64_t j0, int n, int *begin, int *end)
{
    const lane *l = &t->lanes[r];
    *begin = l->used ? (int)min64(n, max64(0, seen_from(l, t->version) - j0)) : 0;
    *end = l->used ? (int)min64(n, max64(0, seen_to(l, t->version) - j0)) : 0;
}

/* show_all makes n keys visible to all lanes. */
static void show_all(tile *t, int n)
{
    uint32_t *word = t->alive;
    int r;
    for (; n > 0; n -= ATTN_ALIVE_BITS)
        for (r = 0; r < t->pl->rows; r++)
            *word++ = bits_below(n);
}

static int row_class(const key_row *of)
{
    const uint32_t *word = of->alive;
    uint32_t some = 0, missing = 0;
    int left = of->n;
    for (; left > 0; left -= ATTN_ALIVE_BITS, word += of->apart) {
        some |= *word;
        missing |= *word ^ bits_below(left);
    }
    return !some ? ATTN_TILE_EMPTY : missing ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
}

/* ask_rows sets t->alive to what the ranges and these rules leave, and gives the class. */
static int ask_rows(tile *t, const rule_list *rules, int64_t j0, int n)
{
    const int rows = t->pl->rows;
    key_row row = { &t->pr->p, &t->s, t->lanes, t->pl->kernels, j0, n, t->alive, rows };
    int r, m, begin, end, class, seen = 0, missing = 0;
    t->alive_from = j0;
    show_all(t, n);
    for (r = 0; r < rows; r++, row.at++, row.alive++) {
        lane_range(t, r, j0, n, &begin, &end);
        hide_between(&row, 0, begin);
        hide_between(&row, end, n);
        for (m = 0; m < rules->n && begin < end; m++)
            rules->at[m](&row);
        class = row_class(&row);
        seen |= class != ATTN_TILE_EMPTY;
        missing |= class != ATTN_TILE_FULL && row.at->used;
    }
    return !seen ? ATTN_TILE_EMPTY : missing ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
}

/* tile_class gives the class of keys j0 to j0+n-1. Where it fills t->alive it sets t->by_pair. */
static int tile_class(tile *t, int64_t j0, int n)
{
    const int class = range_class(t, j0, n);
    rule_list rules = { 0, { NULL } };
    int m;
    t->by_pair = 0;
    for (m = 0; m < COUNT_OF(mask_rules) && class != ATTN_TILE_EMPTY && !t->list.at; m++) {
        const mask_rule *rule = &mask_rules[m];
        int answer;
        if (!rule->row || !is_set(&t->pr->p, rule->on))
            continue;
        answer = rule->tile ? rule->tile(&t->pr->p, &t->s, &t->hull, j0, n) : ATTN_TILE_PARTIAL;
        if (answer == ATTN_TILE_EMPTY)
            return ATTN_TILE_EMPTY;
        if (answer != ATTN_TILE_FULL)
            rules.at[rules.n++] = rule->row;
    }
    t->by_pair = rules.n > 0;
    return rules.n > 0 ? ask_rows(t, &rules, j0, n) : class;
}

/* lanes_in_range gives the lanes to whom the ranges leave a key of j0 to j0+n-1. */
static attn_lanes lanes_in_range(const tile *t, int64_t j0, int n)
{
    attn_lanes lanes = { 0, 0 };
    int r;
    if (all_see(t, j0, n))
        return t->span;
    for (r = t->span.begin; r < t->span.end; r++) {
        const lane *l = &t->lanes[r];
        if (l->used && seen_from(l, t->version) < j0 + n && seen_to(l, t->version) > j0)
            widen_lanes(&lanes, r);
    }
    return lanes;
}

/* lanes_alive gives the lanes from the first to the last to whom t->alive leaves one of the n keys from
 * `from` on, at most ATTN_BLOCK. */
static attn_lanes lanes_alive(const tile *t, int64_t from, int n)
{
    const int rows = t->pl->rows, first = (int)(from - t->alive_from);
    const uint32_t *const alive = t->alive + first / ATTN_ALIVE_BITS * rows;
    const uint64_t keys = ((UINT64_C(1) << n) - 1) << first % ATTN_ALIVE_BITS;
    const uint32_t low = (uint32_t)keys, high = (uint32_t)(keys >> ATTN_ALIVE_BITS);
    const uint32_t *const next = high ? alive + rows : alive; /* There may be no next word. */
    attn_lanes lanes = t->span;
    ATTN_ASSERT(first >= 0 && n >= 1 && n <= ATTN_BLOCK);
    while (lanes.begin < lanes.end && !((alive[lanes.begin] & low) | (next[lanes.begin] & high)))
        lanes.begin++;
    while (lanes.begin < lanes.end &&
           !((alive[lanes.end - 1] & low) | (next[lanes.end - 1] & high)))
        lanes.end--;
    return lanes;
}

/* key_number gives the number of key j of a tile within the sequence. */
static int64_t key_number(const tile *t, int64_t j)
{
    return t->list.at ? t->list.at[j] : j;
}

/* place_in_list is the other way: the place of key `number` or, in a list without it, of the next. */
static int64_t place_in_list(const tile *t, int64_t number)
{
    return t->list.at ? first_listed(t->list, number) : number;
}

/* block_end gives the end of the canonical block of key j, which is a key of the tile, too. */
static int64_t block_end(const tile *t, int64_t j)
{
    const int64_t number = key_number(t, j);
    const int64_t end = number + ATTN_BLOCK - (t->s.key_base + number) % ATTN_BLOCK;
    if (!t->list.at)
        return end;
    while (j < t->list.count && t->list.at[j] < end)
        j++;
    return j;
}

/* set_blocks cuts keys j0 to j0+n-1 into canonical blocks, after tile_class. */
static void set_blocks(tile *t, int64_t j0, int n)
{
    int begin = 0, end;
    t->block_count = 0;
    for (; begin < n; begin = end) {
        block *b = &t->blocks[t->block_count++];
        end = (int)min64(block_end(t, j0 + begin) - j0, n);
        b->end = end;
        b->raised = 0;
        b->lanes = t->by_pair ? lanes_alive(t, j0 + begin, end - begin)
                              : lanes_in_range(t, j0 + begin, end - begin);
    }
}
