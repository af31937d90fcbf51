/* src/tiled.c - tiled items: the online softmax over tiles of keys.
 * SPDX-License-Identifier: MIT
 *
 * Milakov, Gimelshein 2018 (arXiv 1805.02867), tiled as in Dao et al. 2022 (arXiv 2205.14135), in
 * chunks of 1024 keys that a binary tree merges.
 */
#pragma once

#include "plan.c"
#include "dropout.c"
#include "ahead.c"
#include "state.c"

/* add_products adds p of n keys times V to o. */
static void add_products(tile *t, float *o, const float *probabilities, int64_t j0, int n,
                         attn_lanes lanes, attn_ahead *ahead)
{
    const attn_kernels *kernels = t->pl->kernels;
    attn_runs runs;
    attn_product p = { .to = o,
                       .by = probabilities,
                       .runs = &runs,
                       .n = n,
                       .dim = t->columns,
                       .lanes = lanes,
                       .ahead = ahead };
    if (!is_dead(t->dead) && few_runs(t, VALUES, j0, n, lanes, &runs)) {
        kernels->pv_runs(&p);
        return;
    }
    if (kernels->pack_values)
        value_panel(t, j0, &p);
    else
        p.kv = key_rows(t, VALUES, j0, n, lanes, &p.stride);
    if (is_dead(t->dead))
        kernels->pv_select(&p);
    else
        kernels->pv(&p);
}

/* block_begin tells where the keys of block i begin in the tile. */
static int block_begin(const tile *t, int i)
{
    return i ? t->blocks[i - 1].end : 0;
}

/* joins_others tells whether the logits of a block may be computed with those of its neighbours. */
static int joins_others(const tile *t, int i)
{
    return t->list.at || t->blocks[i].end - block_begin(t, i) == ATTN_BLOCK;
}

/* end_of_step gives the block behind the step that begins with block `first`. The logits of a step
 * are computed together: all whole or listed blocks that follow with the same lanes. One call takes less time
 * than several, and with few lanes the kernel may read K in its own order. */
static int end_of_step(const tile *t, int first)
{
    const attn_lanes lanes = t->blocks[first].lanes;
    const int most = joins_others(t, first) ? t->block_count : first + 1;
    int end = first + 1;
    while (end < most && t->blocks[end].lanes.begin == lanes.begin &&
           t->blocks[end].lanes.end == lanes.end && joins_others(t, end))
        end++;
    return end;
}

/* A key_step is the blocks of one step; all fields are 0 before the first step. */
typedef struct key_step {
    int first, next; /* These are blocks. */
    int begin, end;  /* These are their keys, counted in the tile. */
    attn_lanes lanes;
} key_step;

/* take_step goes to the next step that has lanes, and returns 0 after the last. */
static int take_step(const tile *t, key_step *st)
{
    do {
        if (st->next == t->block_count)
            return 0;
        st->first = st->next;
        st->next = end_of_step(t, st->first);
        st->begin = st->end;
        st->end = t->blocks[st->next - 1].end;
        st->lanes = t->blocks[st->first].lanes;
    } while (st->lanes.begin == st->lanes.end);
    return 1;
}

/* decide_block decides the maximum m for block i, whose logits are computed. It returns the
 * exponentials that come next, with the sum l. */
static attn_exp decide_block(tile *t, int i, float *m, float *l)
{
    const int rows = t->pl->rows, begin = block_begin(t, i);
    block *b = &t->blocks[i];
    attn_exp e = { t->s_tile + begin * rows, b->end - begin, m, l, b->lanes, .calm = 0 };
    const int found = t->pl->kernels->running_max(e.s, e.n, m, l, t->alpha + i * rows);
    b->raised = found & ATTN_RAISED;
    e.calm = found & ATTN_IS_CALM;
    return e;
}

/* weigh_block makes probabilities of logits. */
static void weigh_block(const tile *t, const attn_exp *e)
{
    if (is_dead(t->dead))
        t->pl->kernels->exp_sum(e->s, e->n, t->dead, e->m, e->l);
    else
        t->pl->kernels->exp_block(e);
}

/* enter_block takes block i, whose logits are computed, into the running maximum and sum. */
static void enter_block(tile *t, int i)
{
    const attn_exp e = decide_block(t, i, t->state, state_l(t, t->state));
    weigh_block(t, &e);
}

/* enter_blocks enters block `first` and returns the next one. Listed keys make blocks of one or two
 * keys. Those up to `next` that have together no more keys than a whole block enter at once if no
 * maximum changes: each then sees the operations that it sees alone. */
static int enter_blocks(tile *t, int first, int next)
{
    const int rows = t->pl->rows, begin = block_begin(t, first);
    const size_t bytes = (size_t)rows * sizeof(float);
    float *const m = t->state, *const l = state_l(t, m);
    float *const old_m = t->lane_values, *const old_l = old_m + rows;
    attn_exp e = { t->s_tile + begin * rows, 0, m, l, t->blocks[first].lanes, .calm = 0 };
    int end = first + 1;
    while (end < next && t->blocks[end].end - begin <= ATTN_BLOCK)
        end++;
    if (end > first + 1) {
        e.n = t->blocks[end - 1].end - begin;
        memcpy(old_m, m, bytes);
        memcpy(old_l, l, bytes);
        e.calm =
            t->pl->kernels->running_max(e.s, e.n, m, l, t->alpha + first * rows) & ATTN_IS_CALM;
        if (memcmp(old_m, m, bytes) == 0) {
            weigh_block(t, &e);
            return end;
        }
        memcpy(m, old_m, bytes);
        memcpy(l, old_l, bytes);
    }
    enter_block(t, first);
    return first + 1;
}

/* watch_block does what enter_block does, and takes the block, of keys from j on, into what goes on
 * behind o. */
static void watch_block(tile *t, int i, int64_t j)
{
    const int rows = t->pl->rows, begin = block_begin(t, i);
    const block *b = &t->blocks[i];
    float *const tail = state_tail(t, t->state), *const l = state_l(t, t->state);
    attn_exp e;
    keep_sums(t, t->state, l);
    keep_logits(t, tail, t->s_tile + begin * rows, b->end - begin, b->lanes, j);
    e = decide_block(t, i, t->state, l);
    if (b->raised)
        raise_entropy(t, tail, t->state, t->alpha + i * rows);
    weigh_block(t, &e);
    add_entropy(t, tail, &e);
}

/* leaves_block lets lanes leave block i out, whose logits are computed and whose first key is j, and tells
 * whether all do. */
static int leaves_block(tile *t, int i, int64_t j)
{
    const int begin = block_begin(t, i), n = t->blocks[i].end - begin;
    float *const s = t->s_tile + begin * t->pl->rows;
    if (t->referring) {
        keep_reference(t, s, n, j);
        return 0;
    }
    if (!skip_block(t, s, n, j, state_tail(t, t->state)))
        return 0;
    t->blocks[i].lanes.end = t->blocks[i].lanes.begin;
    return 1;
}

/* take_blocks takes block i of a tile that begins at key j0, and more of those before `next` where they go
 * together. It returns the block behind these. */
static int take_blocks(tile *t, int i, int next, int64_t j0)
{
    const int64_t j = j0 + block_begin(t, i);
    if (t->skip && leaves_block(t, i, j))
        return i + 1;
    if (!t->insight)
        return enter_blocks(t, i, t->skip ? i + 1 : next);
    watch_block(t, i, j);
    return i + 1;
}

/* add_blocks computes the logits, running maximum and sum, and probabilities of the blocks of a
 * tile that begins at key j0. */
static void add_blocks(tile *t, int64_t j0, int class, attn_ahead ahead)
{
    const int keys = t->blocks[t->block_count - 1].end, rows = t->pl->rows;
    const int64_t lines = ahead.lines;
    key_step st = { 0, 0, 0, 0, { 0, 0 } };
    int i;
    while (take_step(t, &st)) {
        ahead.lines = lines * (st.end - st.begin) / keys;
        tile_logits(t, t->s_tile + st.begin * rows, j0 + st.begin, st.end - st.begin, class,
                    ATTN_LOGITS_SOFTMAX, st.lanes, &ahead);
        for (i = st.first; i < st.next;)
            i = take_blocks(t, i, st.next, j0);
    }
}

/* add_values adds the probabilities of a tile times V, block by block. Blocks with one set of lanes
 * and without a rescale between them go in one step. */
static void add_values(tile *t, float *o, int64_t j0, attn_ahead *ahead)
{
    const int rows = t->pl->rows;
    const int64_t lines = ahead->lines;
    int begin = 0, i = 0;
    while (i < t->block_count) {
        const attn_lanes lanes = t->blocks[i].lanes;
        int end = t->blocks[i].end;
        if (t->blocks[i].raised)
            t->pl->kernels->rescale(o, t->alpha + i * rows, t->columns);
        for (i++; i < t->block_count && !t->blocks[i].raised &&
                  t->blocks[i].lanes.begin == lanes.begin && t->blocks[i].lanes.end == lanes.end;
             i++)
            end = t->blocks[i].end;
        ahead->lines = lines * (end - begin) / t->blocks[t->block_count - 1].end;
        if (lanes.begin < lanes.end)
            add_products(t, o, t->s_tile + begin * rows, j0 + begin, end - begin, lanes, ahead);
        begin = end;
    }
}

/* add_keys adds keys j0 to j0+n-1 to the state of the current chunk. Each product asks for what the
 * next steps read: Q K^T for these rows of V, or their bias; P V for the next tile of K, unless a mask
 * may skip that, or for its mask. Memory therefore never rests, and what is asked for fits into L2. Where
 * blocks may be left out, V is not asked for, and Q K^T asks for the next tile of K. */
static void add_keys(tile *t, int64_t j0, int n, int values)
{
    const int class = tile_class(t, j0, n);
    const int64_t next = j0 + n;
    const int64_t end = min64(next + t->pl->keys, min64(t->hi, t->spans[t->version].hi));
    const int leads = t->pl->ahead && t->keys->asked < next;
    if (class == ATTN_TILE_EMPTY)
        return;
    t->keys->asked = max64(t->keys->asked, next);
    if (!t->state)
        t->state = begin_state(t);
    set_blocks(t, j0, n);
    add_blocks(t, j0, class,
               t->skip ? rows_ahead(t, KEYS, next, leads && values ? end : next)
                       : logits_ahead(t, j0, next, leads && values));
    if (values) {
        attn_ahead ahead = values_ahead(t, next, end, leads && !t->pl->by_pair && !t->skip);
        if (t->pr->drop_below)
            drop_keys(t, t->s_tile, j0, n);
        add_values(t, state_o(t, t->state), j0, &ahead);
    }
}

/* narrow_to_version has a version read from now on, and narrows *from..*to-1 to what is seen of it. */
static void narrow_to_version(tile *t, int version, int64_t *from, int64_t *to)
{
    t->version = version;
    *from = max64(*from, t->spans[version].lo);
    *to = min64(*to, t->spans[version].hi);
}

/* add_key_tile adds the tile of keys j0 to end-1 to the states of `count` row tiles: first those pairs
 * that read what is stored, then those that read p.recent. To the other pairs each visit does nothing. */
static void add_key_tile(tile *const *tiles, int count, int64_t j0, int64_t end, int values)
{
    const int versions = versions_of(&tiles[0]->pr->p);
    int version, g;
    for (version = 0; version < versions; version++) {
        open_keys(tiles[0], j0, (int)(end - j0));
        for (g = 0; g < count; g++) {
            int64_t from = j0, to = min64(end, tiles[g]->hi);
            narrow_to_version(tiles[g], version, &from, &to);
            if (from < to)
                add_keys(tiles[g], from, (int)(to - from), values);
        }
    }
}

/* first_key finds the first of keys j to end-1 that a row tile may see, or end. */
static int64_t first_key(tile *const *tiles, int count, int64_t j, int64_t end)
{
    int g, m;
    for (g = 0; g < count && j < end; g++) {
        const tile *t = tiles[g];
        const attn_params *p = &t->pr->p;
        int64_t at = max64(j, t->lo);
        for (m = 0; m < COUNT_OF(mask_rules) && at < min64(end, t->hi); m++)
            if (mask_rules[m].next && is_set(p, mask_rules[m].on))
                at = mask_rules[m].next(p, &t->s, &t->hull, at, min64(end, t->hi));
        if (at < t->hi)
            end = min64(end, at);
    }
    return end;
}

/* next_key looks for that key up to hi, in reaches that double. One reach to hi would search a row
 * without visible cells to its end for each tile of the other rows. */
static int64_t next_key(tile *const *tiles, int count, int64_t j, int64_t hi)
{
    int64_t reach = tiles[0]->pl->keys;
    while (tiles[0]->pl->by_pair && j < hi) {
        const int64_t end = j + min64(reach, hi - j), next = first_key(tiles, count, j, end);
        if (next < end)
            return next;
        j = end;
        reach = min64(2 * reach, INT32_MAX);
    }
    return j;
}

/* find_span makes keys *lo to *hi-1 those from the first to the last that the ranges leave to any of the
 * row tiles. */
static void find_span(tile *const *tiles, int count, int64_t *lo, int64_t *hi)
{
    int g;
    *lo = tiles[0]->lo;
    *hi = tiles[0]->hi;
    for (g = 1; g < count; g++)
        if (tiles[g]->lo < tiles[g]->hi) {
            *lo = *lo < *hi ? min64(*lo, tiles[g]->lo) : tiles[g]->lo;
            *hi = max64(*hi, tiles[g]->hi);
        }
}

/* gathered_end gives the end of the tile of listed keys that begins at place j: whole blocks. */
static int64_t gathered_end(const tile *t, int64_t j, int64_t end)
{
    int64_t at = min64(j + t->pl->keys, end);
    while (at < end && block_end(t, at - 1) > at)
        at--;
    return at;
}

/* enter_listed enters places j to end-1 of the list, of the open tile, chunk by chunk; `first` is the
 * place where the pass began. Chunks without a listed key are empty. */
static void enter_listed(tile *t, int64_t first, int64_t j, int64_t end, int values)
{
    const int64_t base = t->s.key_base;
    int64_t next, current, from, to;
    for (; j < end; j = next) {
        const int64_t chunk = (base + t->list.at[j]) / ATTN_CHUNK;
        current = j > first ? (base + t->list.at[j - 1]) / ATTN_CHUNK : chunk;
        for (; current < chunk; current++)
            end_chunk(t, current);
        next = min64(end, first_listed(t->list, (chunk + 1) * ATTN_CHUNK - base));
        from = j, to = min64(next, t->hi);
        narrow_to_version(t, STORED, &from, &to);
        if (from < to)
            add_keys(t, from, (int)(to - from), values);
    }
}

/* gathered_pass is tiled_pass over places of the row tiles' list. A tile of keys has those of many
 * chunks, so that the states of one row tile stay in the cache meanwhile. */
static void gathered_pass(tile *const *tiles, int count, int64_t from, int64_t to, int values)
{
    int64_t first, hi, j, end;
    int g;
    tiles[0]->keys->asked = 0;
    find_span(tiles, count, &first, &hi);
    first = max64(first, from);
    hi = min64(hi, to);
    for (j = first; j < hi; j = end) {
        end = gathered_end(tiles[0], j, hi);
        open_keys(tiles[0], j, (int)(end - j));
        for (g = 0; g < count; g++)
            enter_listed(tiles[g], first, j, end, values);
    }
}

/* tiled_pass passes once over those keys `from` to `to`-1, in a list those places, that any of the row
 * tiles sees; the row tiles share K and V. Tiles of keys end where n is a multiple of their size. A chunk
 * that is not complete stays in t->state. */
static void tiled_pass(tile *const *tiles, int count, int64_t from, int64_t to, int values)
{
    const int64_t base = tiles[0]->s.key_base, keys = tiles[0]->pl->keys;
    int64_t j, hi, next;
    int g;
    if (tiles[0]->list.at) {
        gathered_pass(tiles, count, from, to, values);
        return;
    }
    tiles[0]->keys->asked = 0;
    find_span(tiles, count, &j, &hi);
    j = max64(j, from);
    hi = min64(hi, to);
    next = next_key(tiles, count, j, hi);
    while (j < hi) {
        const int64_t chunk = (base + j) / ATTN_CHUNK;
        const int64_t chunk_end = min64(hi, (chunk + 1) * ATTN_CHUNK - base);
        while (next < chunk_end) {
            const int64_t end = min64(chunk_end, ((base + next) / keys + 1) * keys - base);
            add_key_tile(tiles, count, next, end, values);
            next = next_key(tiles, count, end, hi);
        }
        j = chunk_end;
        for (g = 0; g < count && (base + j) % ATTN_CHUNK == 0; g++)
            end_chunk(tiles[g], chunk);
    }
}

/* tiled_state gives the root state after tiled_pass, with the second pass where it is needed. */
static float *tiled_state(tile *t, int values)
{
    float *root = take_root(t);
    if (values && needs_redo(t, root)) {
        give_state(t, root);
        t->dead = ATTN_DEAD;
        continue_state(t);
        tiled_pass(&t, 1, 0, INT64_MAX, values);
        root = take_root(t);
    }
    return root;
}

/* tiled_choice tells the sequence and rows of item `index`; heavy causal tiles come first. The rows of a
 * gathered item share a list of keys. */
static row_choice tiled_choice(const problem *pr, const plan *pl, int64_t index, int64_t *b,
                               int64_t *kv_head)
{
    const attn_params *p = &pr->p;
    const int64_t slot = pl->tiles - 1 - index % pl->tiles, unit = item_rows(pl);
    row_choice choice = { .heads = pr->group, .count = INT64_MAX };
    index /= pl->tiles;
    if (p->cu_seqlens_q) {
        /* lo becomes the last b whose first slot, cu[b] * group / unit + b, is not beyond. */
        int64_t lo = 0, hi = p->batch;
        while (hi - lo > 1) {
            const int64_t middle = lo + (hi - lo) / 2;
            if (p->cu_seqlens_q[middle] * pr->group / unit + middle <= slot)
                lo = middle;
            else
                hi = middle;
        }
        *b = lo;
        *kv_head = index;
        choice.first = (slot - (p->cu_seqlens_q[lo] * pr->group / unit + lo)) * unit;
    } else {
        *b = index / p->num_heads_kv;
        *kv_head = index % p->num_heads_kv;
        choice.first = slot * unit;
    }
    if (pl->gathered) {
        const int64_t each = items_of_list(pr, pl), rows = rows_of_list(p), list = slot / each;
        choice.first = list * rows * choice.heads + slot % each * unit;
        choice.count = (list + 1) * rows;
    }
    choice.head0 = *kv_head * pr->group;
    return choice;
}

/* refer_rows computes the reference of a tile's rows: their state after the reference blocks and the sink. */
static void refer_rows(tile *t)
{
    int64_t j, end;
    begin_references(t);
    t->keys->asked = 0;
    t->referring = 1;
    for (j = next_reference(t, t->lo); j < t->hi; j = next_reference(t, end)) {
        end = min64(block_end(t, j), t->hi);
        add_key_tile(&t, 1, j, end, 0);
    }
    t->referring = 0;
    if (!t->state)
        return;
    add_sinks(t, t->state);
    set_limits(t, t->state, state_l(t, t->state));
    give_state(t, t->state);
    t->state = NULL;
}

/* open_rows begins row tile number g of item `index`, with its rows chosen and packed. */
static tile *open_rows(const call *c, char *slot, int64_t index, int g)
{
    tile *t = open_tile(c, slot, g);
    int64_t b;
    row_choice choice = tiled_choice(&c->pr, &c->pl, index, &b, &t->kv_head);
    t->s = sequence_of(&c->pr.p, b);
    if (c->pl.gathered)
        t->list = listed_for(&c->pr.p, b, t->kv_head, choice.first / choice.heads);
    choice.first += t->s.row_from * choice.heads + (int64_t)g * c->pl.rows;
    choice.count = min64(choice.count, t->s.row_to);
    set_rows(t, &choice);
    if (t->skip)
        refer_rows(t);
    return t;
}

/* open_item opens the row tiles of item `index` and returns how many have rows. */
static int open_item(const call *c, char *slot, int64_t index, tile **tiles)
{
    int count = 0, g;
    for (g = 0; g < c->pl.item_tiles; g++) {
        tiles[count] = open_rows(c, slot, index, g);
        count += tiles[count]->used > 0;
    }
    return count;
}

/* finish_item adds the keys from `from` on to the states of row tiles, and writes these. */
static void finish_item(tile *const *tiles, int count, int64_t from)
{
    int g;
    if (count)
        tiled_pass(tiles, count, from, INT64_MAX, wants_values(&tiles[0]->pr->p));
    for (g = 0; g < count; g++)
        write_rows(tiles[g], tiled_state(tiles[g], wants_values(&tiles[g]->pr->p)));
}

static void tiled_item(const call *c, char *slot, int64_t index)
{
    tile *tiles[ITEM_TILES];
    const int count = open_item(c, slot, index, tiles);
    int g;
    for (g = 0; g < count; g++)
        continue_state(tiles[g]);
    finish_item(tiles, count, 0);
}
