/* src/prefix.c - a shared prefix (cascade): keys that all batch entries share are read once for all rows.
 * SPDX-License-Identifier: MIT
 *
 * A first list of items takes the rows of all entries over these keys together, with K and V of entry
 * 0; its row tiles lie in the part of the workspace that the workers share, and stay there. In the
 * second list each row goes on from its state: pending nodes of the merge tree take their places, and
 * a chunk that is not complete is continued. So no bit changes.
 *
 *     shared = | call of the first list | row tile 0 | row tile 1 | ...
 */
#pragma once

#include "tiled.c"

/* Fewer keys are not shared: 64 of 600, batch 8, 4 rows each, were 9 % faster. */
#define PREFIX_LEAST 64
/* More rows of an entry and kv head do not: of 4096 keys, batch 4, 48 gained 9 %, 96 0 %. */
#define PREFIX_ROWS 64

/* never_shared tells what a call asks for that keeps its rows from sharing; NULL means nothing. */
static const char *never_shared(const problem *pr)
{
    const attn_params *p = &pr->p;
    /* In a query this is the least number. */
    const int64_t rows = pr->size_query ? 1 : max64(1, pr->max_q_len);
    const struct {
        int holds;
        const char *why;
    } rules[] = {
        { pr->impl == ATTN_IMPL_NAIVE, "naive takes one head of one batch entry at a time" },
        { p->batch < 2, "batch is below 2" },
        { p->kernels->pack_values != NULL, "the kernels round, so that bits would depend on it" },
        { p->cu_seqlens_q != NULL, "cu_seqlens_q is given" },
        { p->part.rows || p->part.keys, "the call is a part" },
        { bias_active(p), "the bias may differ by batch entry" },
        { alibi_active(p), "ALiBi differs by row" },
        { p->score != NULL, "the score callback may differ by batch entry" },
        { pair_rules_on(p) > 0, "a mask other than causal, window or chunked is on" },
        { p->dropout_p > 0, "dropout differs by row" },
        { has_skip(p), "what a row skips depends on its last keys" },
        { wants_pairs(p) && !wants_rows(p) && !pr->size_query, "only logits are asked for" },
        { times(rows, pr->group) > PREFIX_ROWS,
          "one batch entry has rows enough to share K and V" },
    };
    int r = 0;
    while (r < COUNT_OF(rules) && !rules[r].holds)
        r++;
    return r < COUNT_OF(rules) ? rules[r].why : NULL;
}

/* not_seen says why some row of the batch does not see all of these keys; NULL means all do. */
static const char *not_seen(const problem *pr, int64_t keys)
{
    const attn_params *p = &pr->p;
    const sequence first = sequence_of(p, 0);
    const range_list ranges = ranges_of(p);
    const int64_t kinds = kinds_of(p);
    int64_t b, i, lo, hi;
    if (first.kv_len < keys)
        return "kv_len[0] is below it";
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        if (s.q_len > 0 && s.key_base != first.key_base)
            return "key_base differs within the batch";
        for (i = 0; i < s.q_len; i++) {
            visible_range(&ranges, p, &s, i + s.offset, &lo, &hi);
            if (lo > 0 || hi < keys)
                return "a row does not see all of it";
        }
    }
    return NULL;
}

/* stored_keys counts the first keys that every row reads as they are stored, which entries share. */
OWN_FRAME static int64_t stored_keys(const attn_params *p)
{
    const int64_t kinds = kinds_of(p);
    int64_t b, keys = INT64_MAX;
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        keys = s.q_len > 0 ? min64(keys, max64(recent_from(p, s.offset), 0)) : keys;
    }
    return keys;
}

/* prefix_of counts the keys to share, up to a canonical block's end, or gives 0 and why. A size
 * query reserves what any shorter call may want. */
static int64_t prefix_of(const problem *pr, const char **why)
{
    const int64_t asked = pr->p.shared_keys;
    int64_t base, keys;
    *why = asked ? never_shared(pr) : NULL;
    if (*why || !asked || pr->size_query)
        return *why ? 0 : asked;
    base = sequence_of(&pr->p, 0).key_base;
    keys = min64(asked, stored_keys(&pr->p));
    keys -= (base + keys) % ATTN_BLOCK;
    *why = keys < PREFIX_LEAST ? "it has fewer than 64 keys in whole blocks" : not_seen(pr, keys);
    return *why ? 0 : keys;
}

/* entry_rows counts the rows of each batch entry and query head in the first list. */
static int64_t entry_rows(const problem *pr)
{
    const int64_t most = max64(1, PREFIX_ROWS / pr->group);
    return pr->size_query ? min64(pr->p.seq_len_q, most) : pr->max_q_len;
}

/* The row tiles of the first list are shared by as few items as give each worker one. */
static void plan_prefix_list(const problem *pr, const plan *pl, plan *list)
{
    const int64_t rows = times(times(pr->p.batch, entry_rows(pr)), pr->group);
    *list = *pl;
    list->kernels = pr->batch_kernels;
    list->rows = list->kernels->rows;
    list->keys = pr->batch_tile_keys;
    list->state_slots = tree_states(pl->prefix_keys, begins_inside(&pr->p));
    list->tiles = ceil_div(rows, list->rows);
    list->item_tiles = most_item_tiles(list, rows) + 1;
    do {
        list->item_tiles--;
        list->items = times(pr->p.num_heads_kv, ceil_div(list->tiles, list->item_tiles));
    } while (list->item_tiles > 1 && list->items < pr->p.num_workers);
    plan_row_tile(pr, list);
    plan_slot(pr, list);
}

/* plan_prefix adds the first list, or says why not. `items` could run at once without it. */
OWN_FRAME static const char *plan_prefix(const problem *pr, plan *pl, int64_t items)
{
    const int64_t workers = min64(pr->p.num_workers, items);
    int64_t tiles, bytes;
    plan list;
    plan_prefix_list(pr, pl, &list);
    tiles = times(times(pr->p.num_heads_kv, list.tiles), list.row_tile_bytes);
    bytes = plus(aligned((int64_t)sizeof(call)), tiles);
    if (bytes >= ADDRESS_LIMIT / 4)
        return "its states would not fit into memory";
    if (2 * list.items < workers && !pr->size_query)
        return "most workers would have no part in it";
    pl->prefix_items = list.items;
    pl->shared_bytes = bytes;
    pl->slot_bytes = max64(pl->slot_bytes, list.row_tiles);
    return NULL;
}

/* prefix_list gives the first list of a call whose plan has one. */
static call *prefix_list(const call *c)
{
    return (call *)(void *)c->shared;
}

/* prefix_tile gives row tile number `index` of a kv head in the first list. */
static char *prefix_tile(const call *list, int64_t kv_head, int64_t index)
{
    return (char *)list->shared + (kv_head * list->pl.tiles + index) * list->pl.row_tile_bytes;
}

static void prefix_item(const call *list, char *slot, int64_t index)
{
    const plan *pl = &list->pl;
    const int64_t per_head = ceil_div(pl->tiles, pl->item_tiles);
    const int64_t kv_head = index / per_head, first = index % per_head * pl->item_tiles;
    const int64_t end = min64(first + pl->item_tiles, pl->tiles);
    const int64_t group = list->pr.group, rows = entry_rows(&list->pr);
    row_choice choice = { kv_head * group, group, .count = list->pr.p.batch * rows };
    tile *tiles[ITEM_TILES];
    int count = 0;
    for (index = first; index < end; index++) {
        tile *t = tiles[count] = open_tile_at(list, slot, prefix_tile(list, kv_head, index));
        t->kv_head = kv_head;
        t->entry_rows = rows;
        choice.first = index * pl->rows;
        count += set_rows(t, &choice) > 0;
        t->s = sequence_of(&list->pr.p, 0);
        t->hi = pl->prefix_keys;
    }
    if (count)
        tiled_pass(tiles, count, 0, INT64_MAX, wants_values(&list->pr.p));
}

/* copy_lanes makes lanes r to r+n-1 of the state `to` (NULL means that it has to be begun) lanes at
 * to at+n-1 of a state of `rows` lanes; without that state `to` stays. */
static float *copy_lanes(tile *t, float *to, int r, const float *from, int rows, int at, int n)
{
    int64_t k;
    if (!from)
        return to;
    if (!to)
        to = begin_state(t);
    for (k = 0; k < state_rows(&t->pr->p); k++)
        memcpy(to + k * t->pl->rows + r, from + k * rows + at, (size_t)n * sizeof *to);
    return to;
}

/* take_prefix gives a row tile of the second list its rows' states at the end of the prefix. Both
 * lists number the rows of an entry alike, so that lanes next to each other come from lanes next to
 * each other. */
static void take_prefix(const call *c, tile *t)
{
    const call *list = prefix_list(c);
    const lane *l = &t->lanes[0];
    const int64_t row = t->s.b * entry_rows(&c->pr) + l->i, group = c->pr.group;
    const int64_t first = row * group + l->head - t->kv_head * group;
    const int rows = list->pl.rows;
    int r, n, level;
    for (r = 0; r < t->span.end; r += n) {
        const int64_t index = (first + r) / rows;
        const int at = (int)((first + r) % rows);
        const tile *from = (const tile *)(const void *)prefix_tile(list, t->kv_head, index);
        n = (int)min64(rows - at, t->span.end - r);
        t->state = copy_lanes(t, t->state, r, from->state, rows, at, n);
        for (level = 0; level < from->levels; level++)
            t->pending[level] =
                copy_lanes(t, t->pending[level], r, from->pending[level], rows, at, n);
        t->levels = from->levels > t->levels ? from->levels : t->levels;
    }
}

/* suffix_item is an item of the second list. */
static void suffix_item(const call *c, char *slot, int64_t index)
{
    tile *tiles[ITEM_TILES];
    const int count = open_item(c, slot, index, tiles);
    int g;
    for (g = 0; g < count; g++)
        take_prefix(c, tiles[g]);
    finish_item(tiles, count, c->pl.prefix_keys);
}
