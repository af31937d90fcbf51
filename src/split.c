/* src/split.c - split items: few row tiles and many workers, so the keys of a row tile are divided, too.
 * SPDX-License-Identifier: MIT
 *
 * Flash-Decoding (Dao, Haziza, Massa, Sizov 2023). A part is a node of the merge tree, computed as a
 * tiled item is. Chunks that would not fill a round of all workers are divided themselves. The lists,
 * one after the other:
 *
 *     scores    whole parts; of divided chunks Q K^T and the maxima of blocks, by tiles of keys
 *     weights   running maximum and exponentials, by tiles of keys
 *     values    P V, by slices of columns, and the sums
 *     combine   the tree of all parts, and the results, by row tiles
 *
 * Every element sees the operations of a tiled item in their order.
 */
#pragma once

#include "tiled.c"

/* split_tile gives row tile `row` of all. A slot keeps the row tiles of an item until it is asked
 * for another's. */
static tile *split_tile(const call *c, char *slot, int64_t row)
{
    const int64_t item = row / c->pl.item_tiles;
    key_tile *keys = (key_tile *)(void *)slot;
    tile *t = row_tile(&c->pl, slot, (int)(row % c->pl.item_tiles));
    int g;
    for (g = 0; g < c->pl.item_tiles && keys->item != item; g++)
        open_rows(c, slot, item, g);
    keys->item = item;
    set_scratch(t, slot);
    t->column = 0;
    t->columns = c->pr.p.head_dim_v;
    t->state = NULL;
    return t;
}

/* part_state tells where a part's state lies. */
static float *part_state(const call *c, int64_t row, int part)
{
    const split *sp = &c->pl.split;
    char *share = (char *)c->shared + row * sp->bytes;
    return (float *)(void *)(share + part * (sp->states_bytes / sp->parts));
}

/* part_keys gives a part's node and those of its keys that a row tile sees, by their places in its
 * list if it has one; 0 means none. */
static int part_keys(const tile *t, int part, int64_t *node, int64_t *from, int64_t *to)
{
    const int level = t->pl->split.level;
    const int64_t base = t->s.key_base, keys = (int64_t)ATTN_CHUNK << level;
    *node = (base + t->s.key_from) / keys + part;
    *from = max64(place_in_list(t, *node * keys - base), t->lo);
    *to = min64(place_in_list(t, (*node + 1) * keys - base), t->hi);
    return *from < *to;
}

/* A cut is a tile of keys of a divided chunk. */
typedef struct cut {
    int64_t from, to; /* The row tile sees these of its keys. */
    int *count;       /* count is that of its blocks. */
    float *high;      /* high holds [block][rows] maxima. */
} cut;

/* open_cut opens tile k of divided chunk x, and returns 0 if the row tile sees no key of x. Where there
 * are two versions of keys they take turns. */
static int open_cut(tile *t, const call *c, int64_t row, int x, int k, cut *at)
{
    const plan *pl = &c->pl;
    const split *sp = &pl->split;
    const int versions = versions_of(&c->pr.p);
    const int64_t first = (int64_t)k * pl->keys;
    char *chunk = (char *)c->shared + row * sp->bytes + sp->states_bytes + x * sp->chunk_bytes;
    int64_t node, from, to, j0;
    if (!part_keys(t, sp->parts - sp->inside + x, &node, &from, &to))
        return 0;
    j0 = node * ATTN_CHUNK - t->s.key_base + k / versions * pl->keys;
    at->from = max64(from, j0);
    at->to = min64(to, j0 + pl->keys);
    narrow_to_version(t, k % versions, &at->from, &at->to);
    at->count = (int *)(void *)(chunk + sp->counts) + k;
    at->high = (float *)(void *)(chunk + sp->high) + first / ATTN_BLOCK * pl->rows;
    t->s_tile = (float *)(void *)(chunk + sp->s) + first * pl->rows;
    t->alpha = (float *)(void *)(chunk + sp->alpha) + first / ATTN_BLOCK * pl->rows;
    t->blocks = (block *)(void *)(chunk + sp->blocks) + first / ATTN_BLOCK;
    t->block_count = *at->count;
    return 1;
}

static void score_cut(tile *t, const cut *at)
{
    const attn_kernels *kernels = t->pl->kernels;
    const int n = (int)(at->to - at->from), rows = t->pl->rows;
    key_step st = { 0, 0, 0, 0, { 0, 0 } };
    int class, i, r;
    *at->count = 0;
    if (n <= 0)
        return;
    class = tile_class(t, at->from, n);
    if (class == ATTN_TILE_EMPTY)
        return;
    open_keys(t, at->from, n);
    set_blocks(t, at->from, n);
    *at->count = t->block_count;
    while (take_step(t, &st)) {
        tile_logits(t, t->s_tile + st.begin * rows, at->from + st.begin, st.end - st.begin, class,
                    ATTN_LOGITS_SOFTMAX, st.lanes, NULL);
        for (i = st.first; i < st.next; i++) {
            const int begin = block_begin(t, i);
            float *high = at->high + i * rows;
            for (r = 0; r < rows; r++)
                high[r] = NEG_INF;
            kernels->maximum(t->s_tile + begin * rows, t->blocks[i].end - begin, high);
        }
    }
}

/* list_owner tells which of `owners` index `index` of a list belongs to, if each has `each`, and
 * its number there. A worker stays with an owner as long as it can. Owner 0, which may have fewer
 * rows, comes last. */
static int64_t list_owner(int64_t index, int64_t owners, int64_t each, int *number)
{
    *number = (int)(index % each);
    return (index / each + 1) % owners;
}

/* score_part takes a part of the keys of an item's row tiles. */
static void score_part(const call *c, char *slot, int64_t item, int part)
{
    tile *tiles[ITEM_TILES];
    int64_t rows[ITEM_TILES], node, from, to, lo = INT64_MAX, hi = 0;
    int count = 0, g;
    for (g = 0; g < c->pl.item_tiles; g++) {
        rows[count] = item * c->pl.item_tiles + g;
        tiles[count] = split_tile(c, slot, rows[count]);
        if (!part_keys(tiles[count], part, &node, &from, &to))
            continue;
        count++;
        lo = min64(lo, from);
        hi = max64(hi, to);
    }
    if (count)
        tiled_pass(tiles, count, lo, hi, wants_values(&c->pr.p));
    for (g = 0; g < count; g++) {
        float *root = take_root(tiles[g]);
        memcpy(part_state(c, rows[g], part), root, (size_t)c->pl.state_floats * sizeof *root);
        give_state(tiles[g], root);
    }
}

/* List "scores" begins with whole parts, as they take longer. */
static void score_item(const call *c, char *slot, int64_t index)
{
    const split *sp = &c->pl.split;
    const int whole = sp->parts - sp->inside, cuts = sp->inside * sp->tiles;
    const int64_t first_cut = c->pl.items * whole;
    int number;
    if (index < first_cut) {
        const int64_t item = list_owner(index, c->pl.items, whole, &number);
        score_part(c, slot, item, number);
    } else {
        const int64_t row = list_owner(index - first_cut, split_rows(&c->pl), cuts, &number);
        tile *t = split_tile(c, slot, row);
        cut at;
        if (open_cut(t, c, row, number / sp->tiles, number % sp->tiles, &at))
            score_cut(t, &at);
    }
}

/* decide_blocks decides again about the maximum in an earlier tile of keys, from the maxima of its
 * blocks. m is that of the chunk so far; behind l, which goes nowhere, there is room for alpha. */
static void decide_blocks(tile *t, const cut *at, float *m, float *l)
{
    int i;
    for (i = 0; i < t->block_count; i++) {
        const block *b = &t->blocks[i];
        if (b->lanes.begin < b->lanes.end)
            t->pl->kernels->running_max(at->high + i * t->pl->rows, 1, m, l, l + t->pl->rows);
    }
}

/* weigh_blocks decides about the maximum in the open tile of keys, and computes its exponentials.
 * The sums l go nowhere, as list "values" adds in order. */
static void weigh_blocks(tile *t, float *m, float *l)
{
    int i;
    for (i = 0; i < t->block_count; i++) {
        const block *b = &t->blocks[i];
        if (b->lanes.begin < b->lanes.end) {
            const attn_exp e = decide_block(t, i, m, l);
            t->pl->kernels->exp_block(&e);
        }
    }
}

/* In list "weights" the last tile of a chunk knows its final maximum. */
static void weight_item(const call *c, char *slot, int64_t index)
{
    const split *sp = &c->pl.split;
    int number, i, r;
    const int64_t row =
        list_owner(index, split_rows(&c->pl), (int64_t)sp->inside * sp->tiles, &number);
    const int x = number / sp->tiles, k = number % sp->tiles;
    tile *t = split_tile(c, slot, row);
    float *m = t->lane_values, *l = m + c->pl.rows, *state;
    cut at;
    for (r = 0; r < c->pl.rows; r++) {
        m[r] = NEG_INF;
        l[r] = 0.0f;
    }
    for (i = 0; i < k && open_cut(t, c, row, x, i, &at); i++)
        decide_blocks(t, &at, m, l);
    if (!open_cut(t, c, row, x, k, &at))
        return;
    weigh_blocks(t, m, l);
    if (k < sp->tiles - 1)
        return;
    state = part_state(c, row, sp->parts - sp->inside + x);
    memset(state, 0, (size_t)c->pl.state_floats * sizeof *state);
    memcpy(state, m, (size_t)c->pl.rows * sizeof *state);
}

/* add_sums adds up a tile's probabilities, as P V does with one column of ones. */
static void add_sums(const tile *t, float *l)
{
    static const float one = 1.0f;
    const attn_kernels *kernels = t->pl->kernels;
    const int rows = t->pl->rows;
    int begin = 0, i;
    for (i = 0; i < t->block_count; begin = t->blocks[i++].end) {
        const block *b = &t->blocks[i];
        if (b->raised)
            kernels->rescale(l, t->alpha + i * rows, 1);
        if (b->lanes.begin < b->lanes.end) {
            const attn_product p = { .to = l,
                                     .by = t->s_tile + begin * rows,
                                     .kv = &one,
                                     .n = b->end - begin,
                                     .dim = 1,
                                     .lanes = b->lanes };
            kernels->pv(&p);
        }
    }
}

/* An item of list "values" is a slice of the columns of V, or the sums. */
static void value_item(const call *c, char *slot, int64_t index)
{
    const split *sp = &c->pl.split;
    const int each = (int)sp->slices + 1;
    int number, k;
    const int64_t row = list_owner(index, split_rows(&c->pl), (int64_t)sp->inside * each, &number);
    const int x = number / each, slice = number % each, sums = slice == sp->slices;
    tile *t = split_tile(c, slot, row);
    float *state = part_state(c, row, sp->parts - sp->inside + x), *o = state_o(t, state);
    const int last = c->pl.ahead ? sp->tiles - 1 : 0; /* The last tile asks for no other. */
    cut at;
    if (!sums) {
        t->column = slice * sp->columns;
        t->columns = min64(sp->columns, c->pr.p.head_dim_v - t->column);
    }
    for (k = 0; k < sp->tiles && open_cut(t, c, row, x, k, &at); k++) {
        const int64_t end = k < last ? min64(at.to + c->pl.keys, t->spans[t->version].hi) : 0;
        attn_ahead next;
        if (t->block_count == 0) /* It may lie before key 0. */
            continue;
        next = rows_ahead(t, VALUES, at.to, end);
        open_keys(t, at.from, (int)(at.to - at.from));
        if (sums)
            add_sums(t, state_l(t, state));
        else
            add_values(t, o + t->column * c->pl.rows, at.from, &next);
    }
}

static void combine_item(const call *c, char *slot, int64_t index)
{
    tile *t = split_tile(c, slot, index);
    int64_t node, from, to;
    int part;
    if (!t->used)
        return;
    for (part = 0; part < c->pl.split.parts; part++) {
        if (part_keys(t, part, &node, &from, &to)) {
            t->state = take_state(t);
            memcpy(t->state, part_state(c, index, part),
                   (size_t)c->pl.state_floats * sizeof(float));
        }
        end_chunk(t, node);
    }
    write_rows(t, tiled_state(t, wants_values(&c->pr.p)));
}
