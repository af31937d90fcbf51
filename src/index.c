/* src/index.c - attn_index: scores of keys by small heads, and the best keys of each row.
 * SPDX-License-Identifier: MIT
 *
 *     workspace = | alignment | index_run | lists of parts | slot 0 | slot 1 | ...
 *
 * An item is some query rows of a key head of a batch entry, with all heads that read it: row tiles that
 * share tiles of keys. Each tile of keys adds the terms of all heads to the scores of the rows, and a
 * hidden pair adds -inf. A row keeps candidates in the order of their keys. When they are twice as many
 * as the list holds, the threshold rises to the last score that still belongs to it. So no candidates
 * are sorted, and equal scores leave the lower keys. Where items are few, each is some of the keys of its
 * rows, and a second list of items joins the candidates in the order of the parts.
 */
#pragma once

#include "api/index.h"
#include "forward.c"

/* ---- the best keys of a row */

/* A shortlist is the candidates of a row, in ascending order of their keys. */
typedef struct shortlist {
    uint32_t *order; /* [2 * kept], by order_of */
    int32_t *key;    /* [2 * kept] */
    int64_t count, kept;
    float least; /* A candidate has a larger score. */
} shortlist;

/* order_of gives a number that is larger for the larger score, which is no NaN and not -0. */
static uint32_t order_of(float score)
{
    const uint32_t bits = bits_of(score);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float score_of(uint32_t order)
{
    return float_of(order >> 31 ? order & 0x7fffffffu : ~order);
}

/* last_order gives the order of the worst of the `kept` best candidates, byte by byte, and in *equal how
 * many of these have it. */
static uint32_t last_order(const shortlist *of, int64_t *equal)
{
    uint32_t order = 0;
    int64_t k;
    int shift;
    *equal = of->kept;
    for (shift = 24; shift >= 0; shift -= 8) {
        uint32_t count[256] = { 0 }, byte = 255;
        for (k = 0; k < of->count; k++)
            if ((of->order[k] ^ order) >> shift >> 8 == 0)
                count[of->order[k] >> shift & 255]++;
        for (; count[byte] < *equal; byte--)
            *equal -= count[byte];
        order |= byte << shift;
    }
    return order;
}

/* shorten leaves the `kept` best of more candidates. */
static void shorten(shortlist *of)
{
    int64_t equal, n = 0, k;
    const uint32_t last = last_order(of, &equal);
    for (k = 0; k < of->count; k++) {
        if (of->order[k] < last || (of->order[k] == last && equal-- <= 0))
            continue;
        of->order[n] = of->order[k];
        of->key[n++] = of->key[k];
    }
    of->count = n;
    of->least = score_of(last);
}

static void add_candidate(shortlist *to, uint32_t order, int32_t key)
{
    to->order[to->count] = order;
    to->key[to->count++] = key;
    if (to->count == 2 * to->kept)
        shorten(to);
}

/* offer_keys takes in the scores of n keys from j on. */
static void offer_keys(shortlist *to, const float *score, int n, int64_t j)
{
    int k;
    for (k = 0; k < n; k++)
        if (score[k] > to->least) /* It may be NaN. */
            add_candidate(to, order_of(score[k]), (int32_t)(j + k));
}

/* join_lists takes in the candidates of later keys. */
static void join_lists(shortlist *to, const shortlist *later)
{
    int64_t k;
    for (k = 0; k < later->count; k++)
        if (score_of(later->order[k]) > to->least)
            add_candidate(to, later->order[k], later->key[k]);
}

/* ---- validation */

#define AT(member) offsetof(attn_indexer, member)

static const call_field indexer_fields[] = {
    { VALUE(activation, F_INT, BY_ALL, 0, ATTN_INDEX_LINEAR), .instead = "0 is relu, 1 is linear" },
    { VALUE(top_k, F_INT64, BY_ALL, 1, INT32_MAX) },
    { GRID(weights, F_F32, BY_ALL, AXIS_BATCH, AXIS_NONE, AXIS_ROW, AXIS_HEAD),
      .stride = { AT(weights_stride_batch), 0, AT(weights_stride_seq), AT(weights_stride_head) } },
    { GRID(keys, F_I32, BY_ALL, AXIS_BATCH, AXIS_HEAD_KV, AXIS_LONGEST_Q, AXIS_TOP),
      .stride = { AT(stride_batch), AT(stride_head), AT(stride_seq) }, .output = OUTPUT_RESULT },
    { GRID(scores, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD_KV, AXIS_LONGEST_Q, AXIS_TOP),
      .stride = { AT(stride_batch), AT(stride_head), AT(stride_seq) }, .output = OUTPUT_RESULT },
};
#undef AT

static attn_status check_indexer(const attn_indexer *x, text *why)
{
    const attn_status status = check_values(indexer_fields, COUNT_OF(indexer_fields), x, why);
    return status ? status : check_output_fields(indexer_fields, COUNT_OF(indexer_fields), x, why);
}

/* validate_index turns *p and *x into *pr and *resolved, or says what is wrong. A call of attn_forward
 * would have to ask for an output: lse stands for that. */
OWN_FRAME static attn_status validate_index(const attn_params *p, const attn_indexer *x,
                                            int need_data, problem *pr, attn_indexer *resolved,
                                            text *why)
{
    call_axes axes;
    attn_status status;
    if (!p || !x)
        return bad(why, ATTN_ERR_ARG, p ? "indexer is NULL" : "params is NULL");
    status = refuse_fields(p, BY_INDEX, "attn_index", why);
    status = status ? status : check_indexer(x, why);
    if (status)
        return status;
    pr->p = *p;
    pr->p.lse.data = (void *)(uintptr_t)&not_read;
    status = validate(&pr->p, pr, need_data, why);
    if (status)
        return status;
    if (p->seq_len_kv > INT32_MAX)
        return bad_field(why, ATTN_ERR_ARG, "seq_len_kv", p->seq_len_kv,
                         " exceeds 2^31 - 1, and numbers of keys have 32 bits");
    if (need_data && !x->keys && !is_empty(p))
        return bad(why, ATTN_ERR_ARG, "indexer.keys is NULL");
    *resolved = *x;
    axes = axes_of_call(&pr->p);
    axes.count[AXIS_TOP] = x->top_k;
    settle_workers(&pr->p);
    return resolve_arrays(indexer_fields, COUNT_OF(indexer_fields), resolved, &axes, why);
}

/* check_index_apart is check_call_apart for an indexer, which alone writes. */
OWN_FRAME static attn_status check_index_apart(const attn_params *p, const attn_indexer *x,
                                               const area *memory, text *why)
{
    call_axes axes = axes_in_use(p);
    array_set sets[] = {
        { indexer_fields, COUNT_OF(indexer_fields), x, &axes, .written = OUTPUT_RESULT },
        { call_fields, COUNT_OF(call_fields), p, &axes, .written = 0 },
    };
    axes.count[AXIS_TOP] = x->top_k;
    leave_out_unused(p, &sets[0]);
    leave_out_unused(p, &sets[1]);
    return check_written(sets, COUNT_OF(sets), memory, why);
}

/* ---- the plan */

typedef struct index_layout {
    int64_t rows;                        /* query rows of an item */
    int64_t blocks;                      /* these counted for a key head */
    int64_t parts;                       /* parts of the keys, each with items of its own */
    int64_t kept;                        /* candidates that stay of a row */
    int64_t tiles, weights, sums, lists; /* These are offsets into a slot, */
    int64_t orders, keys, lists_bytes;   /* and these into the lists of an item. */
} index_layout;

/* An index_run lies at the start of the workspace. */
typedef struct index_run {
    call c;
    attn_indexer x;
    index_layout lay;
} index_run;

#define CANDIDATE_BYTES ((int64_t)(sizeof(uint32_t) + sizeof(int32_t)))
#define INDEX_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(index_run)))

/* rows_at_once gives the rows of an item. They fill a row tile, and more of them as long as candidates stay
 * in the L2 cache and each worker has some items. */
static int64_t rows_at_once(const problem *pr, const plan *pl, int64_t top_k)
{
    const attn_params *p = &pr->p;
    const int64_t all = times(times(p->batch, p->num_heads_kv), pr->max_q_len);
    const int64_t share = ceil_div(all, (int64_t)SPLIT_ITEMS * p->num_workers);
    const int64_t room = pl->tuning.item_bytes / times(2 * top_k, CANDIDATE_BYTES);
    const int64_t most = min64(pl->tuning.item_rows / pr->group, min64(room, share));
    return max64(1, min64(pr->max_q_len, max64(most, pl->rows / pr->group)));
}

/* A part has at least this number of keys, and as many as a list keeps. */
#define PART_KEYS_LEAST 2048

/* most_parts counts the parts that keys allow. */
static int64_t most_parts(const problem *pr, const index_layout *lay)
{
    return max64(1, pr->max_kv_len / max64(PART_KEYS_LEAST, lay->kept));
}

/* plan_parts divides keys where items alone leave workers idle. Shorter calls find the memory, too. */
static void plan_parts(const problem *pr, plan *pl, index_layout *lay)
{
    const int64_t wanted = (int64_t)SPLIT_ITEMS * pr->p.num_workers;
    if (pr->p.num_workers == 1 || pl->items == 0)
        return;
    lay->parts = max64(1, min64(wanted / pl->items, most_parts(pr, lay)));
    if (lay->parts > 1)
        pl->shared_bytes = times(wanted, lay->lists_bytes);
}

static void place_lists(index_layout *lay)
{
    const int64_t entries = times(lay->rows, 2 * lay->kept);
    int64_t at = 0;
    place(&at, lay->rows, sizeof(shortlist));
    lay->orders = place(&at, entries, sizeof(uint32_t));
    lay->keys = place(&at, entries, sizeof(int32_t));
    lay->lists_bytes = at;
}

/* plan_index plans a call; `divides` allows parts of keys. */
static void plan_index(const problem *pr, int64_t top_k, int divides, plan *pl, index_layout *lay)
{
    int64_t at;
    memset(pl, 0, sizeof *pl);
    begin_plan(pr, pl, 0);
    plan_masks(&pr->p, pl);
    pl->pitch[VALUES] = 0;
    pl->keys = pr->p.tile_keys;
    lay->kept = max64(1, min64(top_k, pr->max_kv_len));
    lay->rows = rows_at_once(pr, pl, top_k);
    lay->blocks = ceil_div(pr->max_q_len, lay->rows);
    lay->parts = 1;
    pl->item_tiles = (int)min64(ceil_div(times(lay->rows, pr->group), pl->rows), INT32_MAX);
    pl->items = times(times(pr->p.batch, pr->p.num_heads_kv), lay->blocks);
    plan_row_tile(pr, pl);
    plan_slot(pr, pl);
    place_lists(lay);
    if (divides)
        plan_parts(pr, pl, lay);
    at = aligned(pl->slot_bytes);
    lay->tiles = place(&at, pl->item_tiles, sizeof(tile *));
    lay->weights = place(&at, times(pl->item_tiles, pl->rows), sizeof(float));
    lay->sums = place(&at, times(lay->rows, pl->keys), sizeof(float));
    lay->lists = place(&at, lay->lists_bytes, 1);
    pl->slot_bytes = at;
    pl->workers = (int)max64(1, min64(pr->p.num_workers, times(pl->items, lay->parts)));
}

static int64_t index_bytes(const plan *pl, int64_t workers)
{
    return plus(plus(INDEX_BYTES, pl->shared_bytes), times(workers, pl->slot_bytes));
}

/* plan_within_room divides keys only if the memory is there, and returns how many workers run in it. */
static int plan_within_room(const problem *pr, int64_t top_k, int64_t have, plan *pl,
                            index_layout *lay)
{
    plan_index(pr, top_k, 1, pl, lay);
    if (have < index_bytes(pl, 1))
        plan_index(pr, top_k, 0, pl, lay);
    if (have < index_bytes(pl, 1))
        return 0;
    return (int)min64(pl->workers, (have - index_bytes(pl, 0)) / pl->slot_bytes);
}

/* with_rows makes *pr a problem with this number of rows, which may take another kernel set. */
static void with_rows(const attn_params *asked, problem *pr, int64_t rows)
{
    pr->max_q_len = rows;
    pr->p.kernels = asked->kernels;
    pr->p.tile_keys = asked->tile_keys;
    resolve_kernels(pr);
}

/* size_of_index gives the bytes for all workers of a call and of shorter ones. Those of few rows take
 * other kernel sets, and may have more items. */
OWN_FRAME static int64_t size_of_index(const attn_params *p, int64_t top_k, problem *pr)
{
    const int64_t all = pr->max_q_len, few = min64(all, ATTN_KERNEL_MAX_ROWS / pr->group);
    const int64_t lists = times(times(pr->p.batch, pr->p.num_heads_kv), all);
    int64_t most = 0, rows;
    index_layout lay;
    plan pl;
    for (rows = min64(all, 1); rows <= all; rows = rows < few ? rows + 1 : max64(all, rows + 1)) {
        int64_t workers;
        with_rows(p, pr, rows);
        plan_index(pr, top_k, 1, &pl, &lay);
        workers = min64(pr->p.num_workers, max64(1, times(lists, most_parts(pr, &lay))));
        most = max64(most, index_bytes(&pl, workers));
    }
    return most;
}

/* ---- the run */

/* An index_item is what an item works on. */
typedef struct index_item {
    const index_run *run;
    sequence s;
    int64_t head;        /* It is that of the keys. */
    int64_t first, rows; /* They are the first row, and how many there are. */
    shortlist *lists;    /* lists is [rows]. */
    tile **tiles;
    int count;
    float *weights; /* weights is [count][rows of a tile], */
    float *sums;    /* and sums is [rows][keys of a tile]. */
} index_item;

/* item_at tells what rows part `part` of block `index` of rows is about, and where its lists are: those
 * of parts are shared. */
static index_item item_at(const call *c, char *slot, int64_t index, int64_t part)
{
    const index_run *run = (const index_run *)(const void *)c;
    const int64_t pair = index / run->lay.blocks, heads = c->pr.p.num_heads_kv;
    char *const shared = (char *)c->shared + (index * run->lay.parts + part) * run->lay.lists_bytes;
    index_item it = { run, sequence_of(&c->pr.p, pair / heads), pair % heads, .count = 0 };
    it.first = index % run->lay.blocks * run->lay.rows;
    it.rows = max64(0, min64(run->lay.rows, it.s.q_len - it.first));
    it.lists = (shortlist *)(void *)(run->lay.parts > 1 ? shared : slot + run->lay.lists);
    it.tiles = (tile **)(void *)(slot + run->lay.tiles);
    it.weights = (float *)(void *)(slot + run->lay.weights);
    it.sums = (float *)(void *)(slot + run->lay.sums);
    return it;
}

static void empty_lists(const index_item *it)
{
    const index_run *run = it->run;
    char *const base = (char *)it->lists;
    int64_t row;
    for (row = 0; row < it->rows; row++) {
        const int64_t at = row * 2 * run->lay.kept;
        it->lists[row] = (shortlist){ (uint32_t *)(void *)(base + run->lay.orders) + at,
                                      (int32_t *)(void *)(base + run->lay.keys) + at, 0,
                                      run->lay.kept, NEG_INF };
    }
}

/* set_weights sets the weights of the lanes of row tile g, and 0 for unused ones. */
static void set_weights(const index_item *it, int g)
{
    const attn_indexer *x = &it->run->x;
    const tile *t = it->tiles[g];
    float *const w = it->weights + g * t->pl->rows;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        w[r] = l->used ? 1.0f : 0.0f;
        if (l->used && x->weights)
            w[r] = x->weights[t->s.b * x->weights_stride_batch +
                              (t->s.q_row + l->i) * x->weights_stride_seq +
                              l->head * x->weights_stride_head];
    }
}

/* open_row_tiles opens the row tiles of an item. */
static void open_row_tiles(index_item *it, char *slot)
{
    const call *c = &it->run->c;
    const int64_t group = c->pr.group;
    row_choice choice = { it->head * group, group, .count = it->first + it->rows };
    int g;
    for (g = 0; g < c->pl.item_tiles; g++) {
        tile *t = open_tile(c, slot, g);
        t->s = it->s;
        t->kv_head = it->head;
        choice.first = it->first * group + (int64_t)g * c->pl.rows;
        it->tiles[it->count] = t;
        if (set_rows(t, &choice))
            set_weights(it, it->count++);
    }
}

/* weigh_terms makes terms of the products of n keys: weight * max(product, least). NaN stays. */
static void weigh_terms(float *RESTRICT s, const float *RESTRICT weight, float least, int n,
                        int lanes, int rows)
{
    int j, r, i;
    for (j = 0; j < n; j++, s += rows)
        for (r = 0; r < lanes; r += 4)
            for (i = r; i < r + 4; i++) {
                const float x = s[i] < least ? least : s[i];
                s[i] = weight[i] * x;
            }
}

enum { SUM_KEYS = 8 };

/* sum_lanes adds the terms of lanes `from` to `to`-1, which are heads of one row, to the scores of n
 * keys, in the order of the heads. Chains of several keys go side by side. */
static void sum_lanes(float *RESTRICT sum, const float *RESTRICT s, int n, int from, int to,
                      int rows)
{
    int j, k, r;
    for (j = 0; j + SUM_KEYS <= n; j += SUM_KEYS, s += SUM_KEYS * rows) {
        float chain[SUM_KEYS];
        for (k = 0; k < SUM_KEYS; k++)
            chain[k] = sum[j + k];
        for (r = from; r < to; r++)
            for (k = 0; k < SUM_KEYS; k++)
                chain[k] = chain[k] + s[k * rows + r];
        for (k = 0; k < SUM_KEYS; k++)
            sum[j + k] = chain[k];
    }
    for (; j < n; j++, s += rows)
        for (r = from; r < to; r++)
            sum[j] = sum[j] + s[r];
}

/* add_terms adds the terms of a row tile to the scores of keys j0 to j0+n-1. */
static void add_head_terms(const index_item *it, int g, int64_t j0, int n)
{
    const float least = it->run->x.activation == ATTN_INDEX_RELU ? 0.0f : NEG_INF;
    tile *t = it->tiles[g];
    const int rows = t->pl->rows, class = tile_class(t, j0, n);
    float *const s = t->s_tile;
    int r, to, k;
    if (class != ATTN_TILE_EMPTY) {
        tile_logits(t, s, j0, n, ATTN_TILE_FULL, ATTN_LOGITS_SOFTMAX, t->span, NULL);
        weigh_terms(s, it->weights + g * rows, least, n, t->span.end, rows);
    }
    if (class == ATTN_TILE_PARTIAL)
        hide_dead(t, s, j0, n, class);
    for (k = 0; k < n * rows && class == ATTN_TILE_EMPTY; k++)
        s[k] = NEG_INF;
    for (r = 0; r < t->used; r = to) {
        const int64_t i = t->lanes[r].i;
        for (to = r; to < t->used && t->lanes[to].i == i; to++)
            ;
        sum_lanes(it->sums + (i - it->first) * t->pl->keys, s, n, r, to, rows);
    }
}

/* index_keys scores keys j0 to j0+n-1 for all rows of an item. */
static void index_keys(const index_item *it, int64_t j0, int n)
{
    const int keys = it->tiles[0]->pl->keys;
    int64_t row;
    int g;
    memset(it->sums, 0, (size_t)(it->rows * keys) * sizeof *it->sums);
    open_keys(it->tiles[0], j0, n);
    for (g = 0; g < it->count; g++)
        add_head_terms(it, g, j0, n);
    for (row = 0; row < it->rows; row++)
        offer_keys(&it->lists[row], it->sums + row * keys, n, j0);
}

/* write_list writes what a row has found. */
static void write_list(const index_item *it, int64_t row)
{
    const attn_indexer *x = &it->run->x;
    const int64_t at =
        it->s.b * x->stride_batch + it->head * x->stride_head + (it->first + row) * x->stride_seq;
    shortlist *list = &it->lists[row];
    int64_t k;
    if (list->count > list->kept)
        shorten(list);
    for (k = 0; k < x->top_k; k++) {
        const int found = k < list->count;
        x->keys[at + k] = found ? list->key[k] : -1;
        if (x->scores)
            store_f32(x->scores, at + k, found ? score_of(list->order[k]) : NEG_INF);
    }
}

static void search_item(const call *c, char *slot, int64_t index)
{
    const int64_t parts = ((const index_run *)(const void *)c)->lay.parts, part = index % parts;
    index_item it = item_at(c, slot, index / parts, part);
    int64_t j = 0, hi = 0, end, row, keys;
    empty_lists(&it);
    open_row_tiles(&it, slot);
    if (it.count)
        find_span(it.tiles, it.count, &j, &hi);
    keys = hi - j;
    hi = j + keys * (part + 1) / parts;
    j += keys * part / parts;
    for (; j < hi && (j = next_key(it.tiles, it.count, j, hi)) < hi; j = end) {
        end = min64(hi, (j / c->pl.keys + 1) * c->pl.keys);
        index_keys(&it, j, (int)(end - j));
    }
    for (row = 0; row < it.rows && parts == 1; row++)
        write_list(&it, row);
}

/* join_item joins the lists of the parts of a block of rows. */
static void join_item(const call *c, char *slot, int64_t index)
{
    const index_item it = item_at(c, slot, index, 0);
    int64_t part, row;
    for (part = 1; part < it.run->lay.parts; part++) {
        const index_item later = item_at(c, slot, index, part);
        for (row = 0; row < it.rows; row++)
            join_lists(&it.lists[row], &later.lists[row]);
    }
    for (row = 0; row < it.rows; row++)
        write_list(&it, row);
}

static attn_status run_index(index_run *run)
{
    const int64_t blocks = run->c.pl.items;
    const attn_status status = run_items(&run->c, blocks * run->lay.parts, search_item);
    return status || run->lay.parts == 1 ? status : run_items(&run->c, blocks, join_item);
}

/* ---- public functions */

/* A checked_index is a call that has passed its checks. */
typedef struct checked_index {
    problem pr;
    attn_indexer x;
    int64_t have; /* bytes of the workspace */
} checked_index;

/* check_index_call checks everything that can be wrong before a run. */
OWN_FRAME static attn_status check_index_call(const attn_params *p, const attn_indexer *x,
                                              const void *workspace, size_t bytes, checked_index *c,
                                              text *why)
{
    index_layout lay;
    plan pl;
    int workers;
    area a;
    attn_status status = validate_index(p, x, 1, &c->pr, &c->x, why);
    if (status || is_empty(p))
        return status;
    c->have = bytes_given(workspace, bytes);
    workers = plan_within_room(&c->pr, x->top_k, c->have, &pl, &lay);
    if (index_bytes(&pl, 1) >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    if (!workers)
        return too_small(why, c->have, index_bytes(&pl, 1), "attn_index_workspace_size");
    a = area_of_bytes("the workspace", workspace, index_bytes(&pl, workers));
    return check_index_apart(&c->pr.p, &c->x, &a, why);
}

/* open_index sets up the run in its workspace. */
static index_run *open_index(const checked_index *c, void *workspace)
{
    index_run *run = (index_run *)(void *)align_memory(workspace);
    char *const base = (char *)run + aligned((int64_t)sizeof *run);
    run->x = c->x;
    run->c.slot_count = plan_within_room(&c->pr, c->x.top_k, c->have, &run->c.pl, &run->lay);
    run->c.pr = c->pr;
    run->c.pr.factor = c->pr.p.scale; /* Scores are not logits to base 2. */
    run->c.shared = (float *)(void *)base;
    run->c.slots = base + run->c.pl.shared_bytes;
    return run;
}

/* start_index opens the run, NULL where there is nothing to do. */
OWN_FRAME static attn_status start_index(const attn_params *p, const attn_indexer *x,
                                         void *workspace, size_t bytes, index_run **opened)
{
    text why = text_in(NULL, 0);
    checked_index c;
    const attn_status status = check_index_call(p, x, workspace, bytes, &c, &why);
    *opened = status || is_empty(p) ? NULL : open_index(&c, workspace);
    return status;
}

ATTN_API attn_status attn_index(const attn_params *p, const attn_indexer *x, void *workspace,
                                size_t workspace_bytes)
{
    index_run *run;
    const attn_status status = start_index(p, x, workspace, workspace_bytes, &run);
    return status || !run ? status : run_index(run);
}

OWN_FRAME ATTN_API const char *attn_index_check(const attn_params *p, const attn_indexer *x,
                                                const void *workspace, size_t workspace_bytes,
                                                char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    checked_index c;
    return verdict(check_index_call(p, x, workspace, workspace_bytes, &c, &why), buffer, &why);
}

OWN_FRAME ATTN_API attn_status attn_index_workspace_size(const attn_params *p,
                                                         const attn_indexer *x, size_t *bytes)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_indexer resolved;
    int64_t most;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    *bytes = 0;
    status = validate_index(p, x, 0, &pr, &resolved, &why);
    if (status || is_empty(p))
        return status;
    most = size_of_index(p, x->top_k, &pr);
    if (most >= ADDRESS_LIMIT)
        return ATTN_ERR_OVERFLOW;
    *bytes = (size_t)most;
    return ATTN_OK;
}
