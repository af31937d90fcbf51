/* src/plan.c - the plan: a pure function of problem and kernel set, shared by the workspace query and the run.
 * SPDX-License-Identifier: MIT
 *
 * A run in too small a workspace takes the small plan, which needs least.
 *
 *     workspace = | alignment | call | shared by the workers | slot 0 | slot 1 | ...
 *
 * Shared are the logits of all heads (naive_whole), parts of the keys (split.c) or the states of a
 * prefix (prefix.c).
 *
 * One slot belongs to one worker. Its size depends on head_dim and tile shape only: the merge tree is
 * given room for 2^20 keys at least, so that memory is constant up to that length. But where row tiles
 * share copies of K and V, memory follows their number and the actual length, within item_bytes of the
 * tuning, 1 MiB.
 */
#pragma once

#include "insight.c"
#include "keys.c"

#define TREE_KEYS ((int64_t)1 << 20)
#define ITEM_TILES 12

/* item_rows counts the rows of one item of the first list. */
static int64_t item_rows(const plan *pl)
{
    return (int64_t)pl->rows * pl->item_tiles;
}

/* items_of_list counts the items with the rows that share a list of keys. */
static int64_t items_of_list(const problem *pr, const plan *pl)
{
    return ceil_div(lanes_of_list(pr), item_rows(pl));
}

static void plan_items(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    const int varlen = p->cu_seqlens_q != NULL;
    const int64_t group = pr->group;
    /* Tile t of sequence b is number floor(cu[b] * group / rows) + b + t, which needs no table. */
    if (varlen)
        pl->tiles = times(p->seq_len_q, group) / item_rows(pl) + p->batch;
    else if (pl->gathered)
        pl->tiles = times(ceil_div(p->seq_len_q, rows_of_list(p)), items_of_list(pr, pl));
    else
        pl->tiles = ceil_div(times(rows_held(p), group), item_rows(pl));
    pl->items = times(times(varlen ? 1 : p->batch, p->num_heads_kv), pl->tiles);
    if (pl->impl == ATTN_IMPL_NAIVE)
        pl->items = times(p->batch, p->num_heads_q);
    if (wants_pairs(p) && !wants_rows(p) && !pr->size_query) /* In a query o may come later. */
        pl->items = 0;
    pl->logits_tiles = ceil_div(times(p->logits.num_rows, group), pl->rows);
    pl->logits_items = 0;
    if (p->logits.data)
        pl->logits_items = times(times(p->batch, p->num_heads_kv), pl->logits_tiles);
    pl->mass_items = p->insight.mass ? times(p->batch, p->num_heads_kv) : 0;
}

/* row_aliases tells whether f32 rows lie a multiple of 1 KiB apart: such rows compete for an eighth
 * or less of an L1 cache, which costs up to 20 % of the speed. */
static int row_aliases(const attn_tensor *x, int64_t dim)
{
    return x->stride_seq && x->stride_seq != dim &&
           x->stride_seq % (1024 / (int)sizeof(float)) == 0;
}

/* plan_copy lets rows that are not f32 be widened once per item. f32 rows are copied, too, if they
 * alias or do not lie one after the other. Rows of the copy are an odd number of cache lines apart. */
static void plan_copy(const attn_params *p, plan *pl, int which, int64_t dim)
{
    const attn_tensor *const x[VERSIONS] = { which == KEYS ? &p->k : &p->v,
                                             which == KEYS ? &p->recent.k : &p->recent.v };
    int version;
    for (version = 0; version < VERSIONS; version++)
        pl->in_place[version][which] =
            x[version]->dtype == ATTN_F32 && !row_aliases(x[version], dim);
    pl->pitch[which] = 0;
    if (is_scattered(p) || p->recent.keys || pl->gathered || !pl->in_place[STORED][which])
        pl->pitch[which] = pitch_of(dim);
}

static int has_copies(const plan *pl)
{
    return pl->pitch[KEYS] || pl->pitch[VALUES] || pl->kernels->pack_values;
}

/* query_floats counts the floats of a packed query. */
static int64_t query_floats(const problem *pr, const plan *pl)
{
    const int64_t dim = pr->p.head_dim;
    if (!pl->kernels->pack_values)
        return dim;
    return pr->p.integer ? max64(dim, ATTN_ROUNDED(dim) / 2) : ATTN_ROUNDED(dim) / 2;
}

/* rounded_pitch counts the floats between rows of K for kernels that round. */
static int64_t rounded_pitch(const problem *pr)
{
    return pitch_of(ATTN_ROUNDED(pr->p.head_dim) / 2);
}

/* Kernels that round have rows of K before pl->copy[KEYS], then the panel of V, whose packs may begin before a
 * tile, and then their room. panel_place and space_place count the floats before the latter two. */
static int64_t panel_place(const problem *pr, const plan *pl)
{
    return times(pl->keys + 15, rounded_pitch(pr));
}

static int64_t space_place(const problem *pr, const plan *pl)
{
    const int64_t packs = ceil_div(pl->keys, ATTN_PANEL_KEYS) + 1;
    return plus(panel_place(pr, pl), times(packs, ATTN_PANEL_FLOATS(pr->p.head_dim_v)));
}

/* rounded_floats counts the floats of all three. */
static int64_t rounded_floats(const problem *pr, const plan *pl)
{
    if (!pl->kernels->pack_values)
        return 0;
    return plus(space_place(pr, pl), ATTN_SPACE(pl->rows, pl->keys));
}

static void plan_row_tile(const problem *pr, plan *pl)
{
    int64_t at = 0;
    pl->state_floats = times(pl->rows, state_rows(&pr->p));
    place(&at, 1, sizeof(tile));
    pl->lanes = place(&at, pl->rows, sizeof(lane));
    pl->qt = pl->qt_units = place(&at, times(pl->rows, query_floats(pr, pl)), sizeof(float));
    if (pr->p.integer && pr->p.recent.keys) /* Without recent keys there is one of them. */
        pl->qt_units = place(&at, times(pl->rows, pr->p.head_dim), sizeof(float));
    pl->scales = place(&at, pr->p.integer ? pl->rows * (pr->p.head_dim / UNIT) : 0, sizeof(float));
    pl->skips = place(&at, has_skip(&pr->p) ? 2 * pl->rows : 0, sizeof(float));
    pl->states = place(&at, times(pl->state_slots, pl->state_floats), sizeof(float));
    pl->row_tile_bytes = at;
}

static void plan_slot(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pl->rows, keys = pl->keys, dim = max64(p->head_dim, p->head_dim_v);
    /* There is one more where a tile begins inside a block. Each listed key may have a block. */
    const int64_t blocks = pl->gathered ? keys : keys / ATTN_BLOCK + 1;
    /* At worst each key is a run, and each row where a mask or a bias is asked for. */
    const int scattered = is_scattered(p) || p->recent.keys || pl->gathered;
    const int64_t run_count = 2 + max64(rows, scattered ? keys : 0);
    const int own_matrix = pl->impl == ATTN_IMPL_NAIVE && !p->naive_whole;
    int64_t at = 0;
    place(&at, 1, sizeof(key_tile));
    pl->stage = place(&at, times(rows, dim), sizeof(float));
    pl->row_in = place(&at, rows, sizeof(const float *));
    pl->row_out = place(&at, rows, sizeof(float *));
    pl->s = place(&at, rows * keys, sizeof(float));
    pl->x = place(&at, p->bias.data || p->k_scales.data || p->insight.entropy ? rows * keys : 0,
                  sizeof(float));
    /* They hold factors, mu, the sums of split items, and what a block changes (insight). */
    pl->lane_values = place(&at, 3 * rows, sizeof(float));
    pl->lane_ints = place(&at, 2 * rows, sizeof(int));
    pl->alpha = place(&at, rows * blocks, sizeof(float));
    pl->blocks = place(&at, blocks, sizeof(block));
    pl->alive = place(&at, rows * ALIVE_WORDS(keys), sizeof(uint32_t));
    pl->operand_runs = place(&at, run_count, sizeof(const char *));
    pl->ahead_runs = place(&at, run_count, sizeof(const char *));
    place(&at, rounded_floats(pr, pl), sizeof(float));
    pl->copy[KEYS] = place(&at, times(keys, pl->pitch[KEYS]), sizeof(float));
    pl->copy[VALUES] = place(&at, times(keys, pl->pitch[VALUES]), sizeof(float));
    pl->matrix = place(&at, own_matrix ? pl->matrix_floats : 0, sizeof(float));
    pl->row_tiles = at;
    pl->slot_bytes = plus(at, times(pl->item_tiles, pl->row_tile_bytes));
}

/* most_item_tiles counts the row tiles of an item, which share each tile of K and V and its copy.
 * 128 rows (item_rows) keep K and V in L2. Tiles of 24 rows (AVX2) gain 2 to 3 % of the peak by it.
 * Two of 64 rows (AVX-512) gain 4 to 6 % where K and V exceed 2 MiB of L2 and L3 is far (Intel family
 * 6 model 167), and nothing on a Zen 4. A copy is worth ITEM_TILES of them. */
static int most_item_tiles(const plan *pl, int64_t rows)
{
    const int64_t tiles = ceil_div(rows, pl->rows), shared = pl->tuning.item_rows / pl->rows;
    const int64_t wanted = has_copies(pl) ? ITEM_TILES : min64(ITEM_TILES, shared);
    return pl->impl == ATTN_IMPL_TILED && !pl->small ? (int)max64(1, min64(tiles, wanted)) : 1;
}

/* tree_keys counts the keys that the merge tree has room for: 2^20 at least, so that memory does
 * not depend on the length up to there, but the actual ones where copies want many row tiles, and below
 * one chunk. */
static int64_t tree_keys(const problem *pr, const plan *pl)
{
    const int actual =
        pl->small || (has_copies(pl) && pl->item_tiles > 1) || keys_held(&pr->p) < ATTN_CHUNK;
    return actual ? pr->max_kv_len : max64(pr->max_kv_len, TREE_KEYS);
}

/* ---- dividing the keys of a row tile */

/* Each worker has this number of bytes of shared memory, at any length. */
#define SPLIT_BYTES ((int64_t)1 << 18)
#define SPLIT_BYTES_LEAST (SPLIT_BYTES / 4) /* It has this number where the slot leaves nothing. */
#define SPLIT_BYTES_MOST (4 * SPLIT_BYTES)  /* It has at most this number for large states. */
/* A state beyond 64 rows of 256 columns is large; up to there 1 MiB a worker is the limit. */
#define LARGE_STATE ((int64_t)80 << 10)
/* A worker has at least this number of items, so that none waits for long, except in divided chunks. */
#define SPLIT_ITEMS 4
/* Workers exchange the logits and probabilities of the pieces of a divided chunk, so there are fewer of
 * these (3000 to 9000 keys, two threads: this saves 4 to 10 % of the time). */
#define INSIDE_ITEMS 2
#define CHUNK_BLOCKS (ATTN_CHUNK / ATTN_BLOCK)

/* wants_split tells whether row tiles alone leave workers idle, with work in each that is worth
 * dividing. Below 2^19 elements of K and V, 2048 keys of 128, two workers with a pool of their own
 * took longer than one (1500 keys: 59 microseconds against 48; with spinning OpenMP threads 43). A
 * region of these threads costs 1 microsecond; the rest of what is lost is the way of logits and
 * probabilities from one core to the other, since a chunk is one chain of sums. */
static int wants_split(const problem *pr, const plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t keys = pl->gathered ? p->key_list.width : pr->max_kv_len;
    const int64_t work = times(keys, plus(p->head_dim, p->head_dim_v));
    return pl->impl == ATTN_IMPL_TILED && !pl->small && !pl->prefix_keys && p->num_workers > 1 &&
           !p->part.continued && pl->items > 0 &&
           pl->items < (int64_t)SPLIT_ITEMS * p->num_workers &&
           !(pl->items % p->num_workers == 0 && pl->tiles == 1 && !has_batch_arrays(p)) &&
           work >= pl->tuning.split_work;
}

/* plan_chunk lays out the memory of a chunk that is divided: its tiles of each version. */
static void plan_chunk(const problem *pr, plan *pl)
{
    split *sp = &pl->split;
    const int64_t versions = versions_of(&pr->p), keys = ATTN_CHUNK * versions;
    const int64_t blocks = CHUNK_BLOCKS * versions;
    int64_t at = 0;
    sp->s = place(&at, keys * pl->rows, sizeof(float));
    sp->alpha = place(&at, blocks * pl->rows, sizeof(float));
    sp->high = place(&at, blocks * pl->rows, sizeof(float));
    sp->blocks = place(&at, blocks, sizeof(block));
    sp->counts = place(&at, blocks, sizeof(int));
    sp->chunk_bytes = at;
}

/* split_rows counts the row tiles in all. */
static int64_t split_rows(const plan *pl)
{
    return pl->items * pl->item_tiles;
}

/* chunks_inside tells how many of the last chunks to divide, so that the others make whole rounds
 * of all workers; the last chunk is among them if it is cut short. It gives 0 where they need more
 * than `bytes` bytes. */
static int chunks_inside(const problem *pr, const plan *pl, int64_t chunks, int64_t bytes)
{
    const int64_t workers = pr->p.num_workers;
    int64_t n = pr->max_kv_len % ATTN_CHUNK != 0;
    while (n < chunks && pl->items * (chunks - n) % workers)
        n++;
    return times(n, pl->split.chunk_bytes) <= bytes ? (int)n : 0;
}

/* plan_inside makes tiles of keys and slices of V smaller, until all workers have enough. */
static void plan_inside(const problem *pr, plan *pl)
{
    split *sp = &pl->split;
    const int64_t wanted = (int64_t)INSIDE_ITEMS * pr->p.num_workers;
    const int64_t chunks = split_rows(pl) * sp->inside, dim = pr->p.head_dim_v;
    const int64_t least = max64(ATTN_BLOCK, storages[pr->p.v.dtype].unit);
    while (pl->keys > 2 * ATTN_BLOCK && chunks * (ATTN_CHUNK / pl->keys) < wanted)
        pl->keys /= 2;
    sp->tiles = ATTN_CHUNK / pl->keys * versions_of(&pr->p);
    sp->columns = ceil_div(ceil_div(dim, ceil_div(wanted, chunks)), least) * least;
    sp->slices = wants_values(&pr->p) ? ceil_div(dim, sp->columns) : 0;
}

/* split_bytes gives the shared memory for each worker, aligned: what its slot leaves of
 * worker_bytes, if it leaves anything. Where states are large, as in MLA (132 KB of 64 rows), row
 * tiles that share nothing have two parts at least (128 heads, 8192 keys of 512, two threads: 1.6
 * times the speed of one without, 1.9 with). */
static int64_t split_bytes(const problem *pr, const plan *pl, int64_t state)
{
    const int64_t left = (pl->worker_bytes - pl->slot_bytes) / ALIGNMENT * ALIGNMENT;
    const int64_t usual = left > 0 ? min64(SPLIT_BYTES, left) : SPLIT_BYTES_LEAST;
    const int64_t pairs = ceil_div(times(2 * split_rows(pl), state), pr->p.num_workers);
    if (pl->item_tiles > 1 || state <= LARGE_STATE)
        return usual;
    return max64(usual, min64(SPLIT_BYTES_MOST, aligned(pairs)));
}

/* plan_split makes parts as small as the memory allows; no parts means nothing to divide. */
static void plan_split(const problem *pr, plan *pl)
{
    split *sp = &pl->split;
    const int moved = begins_inside(&pr->p);
    const int64_t chunks = ceil_div(pr->max_kv_len, ATTN_CHUNK) + moved;
    const int64_t state = aligned(times(pl->state_floats, sizeof(float)));
    const int64_t bytes = pr->p.num_workers * split_bytes(pr, pl, state);
    int64_t parts = chunks, room;
    memset(sp, 0, sizeof *sp);
    pl->shared_bytes = 0;
    if (!wants_split(pr, pl))
        return;
    room = bytes / split_rows(pl);
    while (times(parts, state) > room && parts > 1 + moved)
        parts = ceil_div(chunks, (int64_t)1 << ++sp->level) + moved;
    plan_chunk(pr, pl);
    if (sp->level == 0 && !pl->gathered && !pr->drop_below && !has_insight(&pr->p) &&
        !has_skip(&pr->p) &&
        !pl->kernels->pack_values) /* Dropped keys and logits count in the sums, which come late. */
        sp->inside = chunks_inside(pr, pl, chunks, room - times(parts, state));
    if (times(parts, state) > room || (parts == 1 && !sp->inside))
        return;
    pl->shared_bytes = bytes; /* Shorter calls find it, too. */
    sp->parts = (int)parts;
    sp->states_bytes = times(parts, state);
    sp->bytes = sp->states_bytes + sp->inside * sp->chunk_bytes;
    if (sp->inside)
        plan_inside(pr, pl);
    sp->items = pl->items * (parts - sp->inside) + split_rows(pl) * sp->inside * sp->tiles;
}

/* split_items counts the longest list of a call that divides keys. */
static int64_t split_items(const plan *pl)
{
    const split *sp = &pl->split;
    return max64(sp->items, split_rows(pl) * sp->inside * (sp->slices + 1));
}

/* plan_sharing gives an item as many row tiles as fit into item_bytes, the L2 cache, and leave
 * SPLIT_ITEMS items to each of several workers, if need be by dividing their keys. */
static void plan_sharing(const problem *pr, plan *pl)
{
    const int64_t workers = pr->p.num_workers, least = workers > 1 ? SPLIT_ITEMS * workers : 1;
    pl->item_tiles =
        most_item_tiles(pl, pl->gathered ? lanes_of_list(pr) : times(pr->max_q_len, pr->group));
    for (;; pl->item_tiles--) {
        pl->keys = pl->small ? pr->p.tile_keys >> (pl->small - 1) : pr->p.tile_keys;
        pl->state_slots = tree_states(tree_keys(pr, pl), begins_inside(&pr->p));
        plan_row_tile(pr, pl);
        plan_items(pr, pl);
        plan_slot(pr, pl);
        plan_split(pr, pl);
        if (pl->item_tiles == 1 ||
            (pl->slot_bytes + pl->shared_bytes / workers <= pl->worker_bytes &&
             max64(pl->items, pl->split.items) >= least))
            return;
    }
}

/* pair_bytes counts the bytes of a row of head_dim and of one of head_dim_v. */
static int64_t pair_bytes(const attn_params *p, int dtype, int dtype_v)
{
    return plus(room_of(dtype, p->head_dim), room_of(dtype_v, p->head_dim_v));
}

/* wants_ahead relies on this: asking ahead pays where K and V come from beyond the L2 cache,
 * because they are read once, as in decoding (twice as fast), or are larger than it (1 % at 2048
 * keys of 128, 13 % at 65536 for 48 rows). Otherwise it costs 1 to 2 %. */
static int wants_ahead(const problem *pr, const plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t bytes = times(pr->max_kv_len, pair_bytes(p, p->k.dtype, p->v.dtype));
    return pl->tuning.ahead && (pl->tiles == 1 || bytes > pl->tuning.item_bytes);
}

/* wants_rows_ahead is for rows of Q and O that do not fit into L2: 1 to 3 % with heads of 64 and up to
 * 1024 keys. */
static int wants_rows_ahead(const attn_params *p, const plan *pl)
{
    const int64_t bytes = times(all_rows(p), pair_bytes(p, p->q.dtype, p->o.dtype));
    return bytes > pl->tuning.item_bytes && pl->tuning.ahead;
}

/* wants_pairs_ahead is for an array with `bits` bits for each pair of a head, of which a tile reads
 * short pieces of many rows. Pieces of a bias are longer, so that CPUs ask for much of them themselves:
 * with 4 MB of one asking costs 1 to 3 %, with 8 and more it gains 2 to 8 %. With 4 MB of a boolean mask
 * it gains 10 % (Intel family 6 model 167, heads of 64). */
OWN_FRAME static int wants_pairs_ahead(const problem *pr, const plan *pl, int64_t bits)
{
    const int64_t bytes = times(times(pr->max_q_len, pr->max_kv_len), bits) / 8;
    return pl->tuning.ahead && (bits > 8 ? bytes / 4 : bytes) > pl->tuning.item_bytes;
}

static void plan_ahead(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    const int bias = p->bias.data && p->bias.stride_kv == 1;
    const int bytes = p->bool_mask.data && p->bool_mask.stride_kv == 1;
    const int bits = !p->bool_mask.data && p->bit_mask.data && p->bit_mask.stride_kv == 1;
    pl->ahead = wants_ahead(pr, pl);
    pl->rows_ahead = wants_rows_ahead(p, pl);
    pl->bias_ahead = wants_pairs_ahead(pr, pl, bias * 8 * (int64_t)bytes_of(p->bias.dtype));
    pl->mask_ahead = wants_pairs_ahead(pr, pl, 8 * bytes + bits);
}

/* begin_plan sets what does not depend on how rows and keys are divided. */
static void begin_plan(const problem *pr, plan *pl, int small)
{
    const attn_params *p = &pr->p;
    const int64_t rows = times(ceil_div(pr->max_q_len, p->kernels->rows), p->kernels->rows);
    pl->small = small;
    pl->gathered = pr->gathered && !small;
    pl->kernels = p->kernels;
    pl->tuning = tuning_of(p, p->kernels);
    pl->impl = pr->impl;
    pl->rows = p->kernels->rows;
    pl->prefix_items = pl->prefix_keys = 0;
    pl->prefix_why = NULL;
    plan_copy(p, pl, KEYS, p->head_dim);
    plan_copy(p, pl, VALUES, p->head_dim_v);
    pl->matrix_floats =
        pl->impl == ATTN_IMPL_NAIVE ? times(rows, plus(pr->max_kv_len, 2 + insight_rows(p))) : 0;
}

/* divide_plan sets items, slots, shared memory, workers. With prefix_keys no keys are divided. */
static void divide_plan(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    int64_t most;
    plan_sharing(pr, pl);
    plan_ahead(pr, pl);
    if (pl->impl == ATTN_IMPL_NAIVE && p->naive_whole)
        pl->shared_bytes = aligned(times(times(pl->matrix_floats, pl->items), sizeof(float)));
    most = max64(max64(pl->items, split_items(pl)), max64(pl->logits_items, pl->mass_items));
    pl->workers = (int)max64(1, min64(p->num_workers, most));
}
