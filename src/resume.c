/* src/resume.c - attention in steps, over keys that come tile by tile.
 * SPDX-License-Identifier: MIT
 *
 * A tile is a call of attn_forward for a part of the keys (p.part) that continues the state of its
 * chunk; chunks merge in the tree of docs/canon.md, kept as a binary counter.
 */
#pragma once

#include "api/resume.h"
#include "forward.c"
#include "merge.c"

#define MOST_TILE_KEYS 128
#define USUAL_TILE_BYTES ((int64_t)1 << 18)

/* A resume_layout holds offsets into the memory, from its first aligned byte on. */
typedef struct resume_layout {
    int64_t tile_keys, entry_rows, rows, slots;
    int64_t q_len, m, l, o, pending, k, v, workspace;
} resume_layout;

static int64_t tile_bytes(const attn_params *p, int64_t keys)
{
    const int64_t row = plus(room_of(p->k.dtype, p->head_dim), room_of(p->v.dtype, p->head_dim_v));
    return times(times(p->num_heads_kv, keys), row);
}

static int64_t place_tile_rows(int64_t *at, int64_t rows, int dtype, int64_t dim)
{
    return place(at, times(rows, room_of(dtype, dim)), 1);
}

/* lay_out needs *p resolved. */
static void lay_out(const attn_params *p, int64_t tile_keys, resume_layout *lay)
{
    int64_t at = 0, rows;
    lay->tile_keys = tile_keys ? tile_keys : MOST_TILE_KEYS;
    while (!tile_keys && lay->tile_keys > ATTN_BLOCK &&
           tile_bytes(p, lay->tile_keys) > USUAL_TILE_BYTES)
        lay->tile_keys /= 2;
    rows = times(p->num_heads_kv, lay->tile_keys);
    lay->entry_rows = times(p->num_heads_q, rows_held(p));
    lay->rows = times(p->batch, lay->entry_rows);
    lay->slots = tree_states(p->seq_len_kv, 1); /* Keys begin inside a chunk. */
    lay->q_len = place(&at, p->batch, sizeof(int32_t));
    lay->m = place(&at, lay->rows, sizeof(float));
    lay->l = place(&at, lay->rows, sizeof(float));
    lay->o = place(&at, times(lay->rows, p->head_dim_v), sizeof(float));
    lay->pending = place(&at, times(times(lay->slots, lay->entry_rows), plus(p->head_dim_v, 2)),
                         sizeof(float));
    lay->k = place_tile_rows(&at, rows, p->k.dtype, p->head_dim);
    lay->v = place_tile_rows(&at, rows, p->v.dtype, p->head_dim_v);
    lay->workspace = at;
}

/* ---- validation */

static attn_status check_request(const attn_params *p, int64_t tile_keys, text *why)
{
    if (tile_keys &&
        (tile_keys < ATTN_BLOCK || tile_keys > ATTN_CHUNK || (tile_keys & (tile_keys - 1))))
        return bad_field(why, ATTN_ERR_ARG, "tile_keys", tile_keys,
                         " must be 0 or a power of two from 16 to 1024");
    if (!p)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    return refuse_fields(p, BY_RESUMABLE, "attn_resume_begin", why);
}

/* Keys of a tile lie head by head, shared by the batch, whose entries take turns. */
static void shape_tile(attn_tensor *x, int64_t keys, int64_t dim)
{
    x->stride_seq = to_stride(dim);
    x->stride_head = to_stride(times(keys, dim));
    x->stride_batch = ATTN_STRIDE_BROADCAST;
}

static void place_tile(attn_params *one, const resume_layout *lay, char *base)
{
    one->k.data = base + lay->k;
    one->v.data = base + lay->v;
    one->state.m = (float *)(void *)(base + lay->m);
    one->state.l = (float *)(void *)(base + lay->l);
    one->state.o = (float *)(void *)(base + lay->o);
}

/* open_tile_call makes *one, which is *p before, the call of a tile that is as long as any; its
 * arrays lie nowhere yet. */
static void open_tile_call(attn_params *one, const attn_params *resolved, const resume_layout *lay)
{
    memset(&one->o, 0, sizeof one->o);
    memset(&one->lse, 0, sizeof one->lse);
    memset(&one->stats, 0, sizeof one->stats);
    one->shared_keys = 0;
    one->partial = one->part.keys = one->part.continued = 1;
    one->part.key_begin = 0;
    one->part.key_count = min64(lay->tile_keys, keys_held(resolved));
}

/* fixed_bytes counts the bytes before the workspace of attn_forward. */
static int64_t fixed_bytes(const resume_layout *lay)
{
    return plus(ALIGNMENT - 1, lay->workspace);
}

static void share_keys(attn_tensor *x)
{
    x->stride_batch = x->stride_head = x->stride_seq = ATTN_STRIDE_BROADCAST;
}

/* prepare fills in *lay, and *one as open_tile_call leaves it. */
OWN_FRAME static attn_status prepare(const attn_params *p, int64_t tile_keys, resume_layout *lay,
                                     attn_params *one, text *why)
{
    problem pr;
    attn_status status = check_request(p, tile_keys, why);
    if (status)
        return status;
    *one = *p;
    share_keys(&one->k); /* All of the keys need not fit into the address space. */
    share_keys(&one->v);
    status = validate(one, &pr, 0, why);
    if (status)
        return status;
    if (p->seq_len_q > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_q", p->seq_len_q,
                         " must be below 2^31 for attn_resume");
    lay_out(&pr.p, tile_keys, lay);
    if (fixed_bytes(lay) >= ADDRESS_LIMIT)
        return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_q", p->seq_len_q,
                         ": the states of all rows exceed the address space");
    shape_tile(&one->k, lay->tile_keys, pr.p.head_dim);
    shape_tile(&one->v, lay->tile_keys, pr.p.head_dim_v);
    open_tile_call(one, &pr.p, lay);
    one->key_base = NULL; /* The longest tile is full, and begins a chunk. */
    one->kv_begin = one->kv_len = NULL;
    return ATTN_OK;
}

/* check_outputs_given checks the caller's outputs, as attn_forward never sees them. */
static attn_status check_outputs_given(const attn_params *p, attn_fetch_fn fetch, text *why)
{
    if (!fetch)
        return bad(why, ATTN_ERR_ARG, "fetch is NULL");
    if (!wants_results(p))
        return bad(why, ATTN_ERR_ARG, "o.data is NULL, and neither lse nor stats is asked for");
    return ATTN_OK;
}

/* check_resume_apart wants what the steps write, which no call of a tile sees, to lie apart. */
OWN_FRAME static attn_status check_resume_apart(const attn_params *p, const area *memory, text *why)
{
    problem pr;
    pr.p = *p;
    share_keys(&pr.p.k);
    share_keys(&pr.p.v);
    validate(&pr.p, &pr, 0, why);
    pr.p.k.data = pr.p.v.data = NULL;
    return check_call_apart(&pr.p, memory, why);
}

static attn_status check_begin(const attn_params *p, int64_t tile_keys, attn_fetch_fn fetch,
                               const void *memory, size_t bytes, resume_layout *lay,
                               attn_params *one, text *why)
{
    char *base = NULL;
    size_t room = memory ? bytes : 0, fixed, need = 0;
    const text begin = *why;
    area a;
    attn_status status = prepare(p, tile_keys, lay, one, why);
    if (!status)
        status = check_outputs_given(p, fetch, why);
    if (status)
        return status;
    fixed = (size_t)fixed_bytes(lay);
    if (room >= fixed) {
        base = align_memory(memory);
        place_tile(one, lay, base);
    }
    if (attn_workspace_size(one, &need))
        return check_call(one, NULL, 0, NULL, why);
    if (room >= fixed)
        status = check_call(one, base + lay->workspace, room - fixed, NULL, why);
    a = area_of_bytes("the memory", memory,
                      room < fixed + need ? (int64_t)room : (int64_t)(fixed + need));
    if (room >= fixed && status != ATTN_ERR_WORKSPACE)
        return status ? status : check_resume_apart(p, &a, why);
    *why = begin; /* The caller knows of no workspace. */
    put_field(why, "memory_bytes", (int64_t)room);
    put(why, " is too small: attn_resume_memory says ");
    put_int(why, (int64_t)(fixed + need));
    return ATTN_ERR_WORKSPACE;
}

/* ---- states */

/* entry_states gives the states of the chunk under way. */
static attn_state entry_states(const attn_resumable *r)
{
    attn_state s = state_at(&r->states, r->entry * r->entry_rows, r->head_dim_v);
    s.num_rows = r->entry_rows;
    return s;
}

static attn_state waiting_states(const attn_resumable *r, float *at)
{
    return packed_states(at, r->entry_rows, r->head_dim_v);
}

/* merge_lower merges the nodes that wait below `level` into the states of the chunk under way. They
 * lie on a stack, as the lower of two levels waits later. */
static void merge_lower(attn_resumable *r, int level)
{
    attn_state now = entry_states(r);
    float *at;
    while ((at = take_lower(r->waiting, level)) != NULL) {
        const attn_state lower = waiting_states(r, at);
        merge_states(&lower, &now, &now);
        r->pending = at;
    }
}

/* end_of_chunk puts the states of chunk i, which is complete, into the tree. */
static void end_of_chunk(attn_resumable *r, int64_t i)
{
    const attn_state now = entry_states(r);
    const int level = level_after(i);
    attn_state node;
    merge_lower(r, level);
    r->waiting[level] = r->pending;
    node = waiting_states(r, r->pending);
    copy_states(&node, &now, r->entry_rows, r->head_dim_v);
    clear_states(&now);
    r->pending += r->entry_rows * (r->head_dim_v + 2);
}

/* ---- tiles */

/* keys_of_entry finds the keys that some row of an entry sees. */
static void keys_of_entry(const attn_params *p, int64_t b, sequence *s, int64_t *from, int64_t *to)
{
    const range_list ranges = ranges_of(p);
    int64_t i, lo, hi;
    *s = sequence_of(p, b);
    *from = *to = 0;
    for (i = s->row_from; i < s->row_to; i++) {
        visible_range(&ranges, p, s, i + s->offset, &lo, &hi);
        if (lo >= hi)
            continue;
        *from = *from < *to ? min64(*from, lo) : lo;
        *to = max64(*to, hi);
    }
}

/* tile_end tells where the tile of key j ends. */
static int64_t tile_end(const attn_resumable *r, const sequence *s, int64_t j)
{
    const int64_t n = s->key_base + j;
    return min64(r->end, (n / r->tile_keys + 1) * r->tile_keys - s->key_base);
}

static int64_t count_tiles(const attn_params *p, int64_t tile_keys)
{
    int64_t b, from, to, tiles = 0;
    sequence s;
    for (b = 0; b < p->batch; b++) {
        keys_of_entry(p, b, &s, &from, &to);
        if (from < to)
            tiles += (s.key_base + to - 1) / tile_keys - (s.key_base + from) / tile_keys + 1;
    }
    return tiles;
}

/* choose_entry gives rows to entry b alone for the call of a tile. */
static void choose_entry(const attn_resumable *r, int64_t b, const sequence *s)
{
    int64_t i;
    for (i = 0; i < r->p.batch; i++)
        r->q_len[i] = i == b ? (int32_t)s->q_len : 0;
}

/* next_entry begins the next entry with keys. */
static void next_entry(attn_resumable *r, sequence *s)
{
    do
        keys_of_entry(&r->p, ++r->entry, s, &r->next, &r->end);
    while (r->next == r->end);
    choose_entry(r, r->entry, s);
}

static int fetch_tile(attn_resumable *r)
{
    attn_fetch want;
    int64_t head;
    want.batch = r->entry;
    want.first = r->tile.part.key_begin;
    want.count = r->tile.part.key_count;
    for (head = 0; head < r->kv_heads; head++) {
        const int64_t row = head * r->tile_keys;
        want.kv_head = head;
        want.k = r->k + bytes_between(r->p.k.dtype, row * r->head_dim);
        want.v = r->v + bytes_between(r->p.v.dtype, row * r->head_dim_v);
        if (r->fetch(r->user, &want))
            return 0;
    }
    r->fetched += want.count * r->kv_heads;
    return 1;
}

/* want_tile fetches the next tile and sets up the call that takes it in, and changes nothing else.
 * It returns 0 if the fetch failed. */
OWN_FRAME static int want_tile(attn_resumable *r)
{
    sequence s;
    int64_t end;
    if (r->next == r->end)
        next_entry(r, &s);
    else
        s = sequence_of(&r->p, r->entry);
    end = tile_end(r, &s, r->next);
    r->tile.part.key_begin = s.column + r->next;
    r->tile.part.key_count = end - r->next;
    return fetch_tile(r);
}

/* take_in_tile puts the tile into the states. */
OWN_FRAME static void take_in_tile(attn_resumable *r)
{
    const sequence s = sequence_of(&r->p, r->entry);
    r->next += r->tile.part.key_count;
    r->done++;
    if ((s.key_base + r->next) % ATTN_CHUNK == 0)
        end_of_chunk(r, (s.key_base + r->next) / ATTN_CHUNK - 1);
    if (r->next == r->end)
        merge_lower(r, MAX_LEVELS); /* Keys that never came are empty. */
}

/* want_tile and take_in_tile have frames of their own, as attn_forward leaves little of 4 KiB of
 * stack. */
static attn_status take_tile(attn_resumable *r)
{
    attn_status status;
    if (!want_tile(r))
        return ATTN_ERR_CALLBACK;
    status = attn_forward(&r->tile, r->workspace, r->workspace_bytes);
    if (status)
        r->status = status;
    else
        take_in_tile(r);
    return status;
}

/* ---- public functions */

ATTN_API attn_status attn_resume_memory(const attn_params *p, int64_t tile_keys, size_t *bytes)
{
    text why = text_in(NULL, 0);
    resume_layout lay;
    attn_params one;
    size_t workspace = 0;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    *bytes = 0;
    status = prepare(p, tile_keys, &lay, &one, &why);
    if (!status)
        status = attn_workspace_size(&one, &workspace);
    if (!status)
        *bytes = (size_t)fixed_bytes(&lay) + workspace;
    return status;
}

ATTN_API const char *attn_resume_check(const attn_params *p, int64_t tile_keys, attn_fetch_fn fetch,
                                       const void *memory, size_t memory_bytes, char *buffer,
                                       size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    resume_layout lay;
    attn_params one;
    const attn_status status =
        check_begin(p, tile_keys, fetch, memory, memory_bytes, &lay, &one, &why);
    return verdict(status, buffer, &why);
}

ATTN_API attn_status attn_resume_begin(attn_resumable *r, const attn_params *p, int64_t tile_keys,
                                       attn_fetch_fn fetch, void *user, void *memory,
                                       size_t memory_bytes)
{
    text why = text_in(NULL, 0);
    resume_layout lay;
    char *base;
    attn_status status;
    if (!r)
        return ATTN_ERR_ARG;
    memset(r, 0, sizeof *r);
    status = check_begin(p, tile_keys, fetch, memory, memory_bytes, &lay, &r->tile, &why);
    r->status = status;
    if (status)
        return status;
    base = align_memory(memory);
    r->p = *p;
    share_keys(&r->p.k); /* As prepare does: attn_resume_end checks the call once more. */
    share_keys(&r->p.v);
    resolve_sizes(&r->p);
    r->tile.key_base = p->key_base;
    r->tile.kv_begin = p->kv_begin;
    r->tile.kv_len = p->kv_len;
    r->tile.q_len = r->q_len = (int32_t *)(void *)(base + lay.q_len);
    r->k = base + lay.k;
    r->v = base + lay.v;
    r->fetch = fetch;
    r->user = user;
    r->tile_keys = lay.tile_keys;
    r->kv_heads = r->p.num_heads_kv;
    r->head_dim = r->p.head_dim;
    r->head_dim_v = r->p.head_dim_v;
    r->entry = -1;
    r->entry_rows = lay.entry_rows;
    r->states = r->tile.state;
    r->states.num_rows = lay.rows;
    r->states.head_dim_v = r->head_dim_v;
    r->pending = (float *)(void *)(base + lay.pending);
    r->workspace = base + lay.workspace;
    r->workspace_bytes = memory_bytes - (size_t)fixed_bytes(&lay);
    clear_states(&r->states);
    r->total = count_tiles(&r->p, r->tile_keys);
    return ATTN_OK;
}

ATTN_API attn_status attn_resume_step(attn_resumable *r, int64_t tiles)
{
    attn_status status = ATTN_OK;
    if (!r || tiles < 0)
        return ATTN_ERR_ARG;
    if (r->status)
        return r->status;
    for (; tiles > 0 && r->done < r->total && !status; tiles--)
        status = take_tile(r);
    return status;
}

ATTN_API attn_status attn_resume_end(attn_resumable *r)
{
    if (!r)
        return ATTN_ERR_ARG;
    if (r->status)
        return r->status;
    if (r->done < r->total)
        return ATTN_ERR_ARG;
    return attn_state_finish(&r->p, &r->states);
}
