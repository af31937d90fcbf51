/* src/cache/shape.c - the shape of a cache: its rules, its memory, its storage.
 * SPDX-License-Identifier: MIT
 *
 * An entry is a sequence's own storage or, paged, a page. Page i of a sequence's table is there if and
 * only if a key that is present lies in it. Functions that change a cache look at everything first:
 * below the comment "from here on nothing can fail" nothing does.
 */
#pragma once

#include "../api/cache.h"
#include "../convert.c"
#include "../overlap.c"

enum { CACHE_K = 0, CACHE_V = 1, CACHE_SIDES = 2 };

static int64_t cache_entries(const attn_cache *c)
{
    return c->page_size ? c->num_pages : c->num_sequences;
}

static int64_t cache_entry_rows(const attn_cache *c)
{
    return c->page_size ? c->page_size : c->rows;
}

/* A cache_side is K or V of a cache; its axes are layers, entries, heads and rows. */
typedef struct cache_side {
    const char *name;
    attn_output storage;
    int64_t count[4], dim;
    ptrdiff_t stride[4];
} cache_side;

static cache_side side_of(const attn_cache *c, int side)
{
    const int is_k = side == CACHE_K;
    const attn_output o = is_k ? c->k : c->v;
    const cache_side s = {
        .name = is_k ? "k" : "v",
        .storage = o,
        .count = { c->num_layers, cache_entries(c), c->num_heads_kv, cache_entry_rows(c) },
        .dim = is_k ? c->head_dim : c->head_dim_v,
        .stride = { is_k ? c->k_stride_layer : c->v_stride_layer, o.stride_batch, o.stride_head,
                    o.stride_seq },
    };
    return s;
}

/* layer_of gives one layer of K or V: [entry, head, row, dim]. */
static attn_output layer_of(const attn_cache *c, int side, int64_t layer)
{
    const cache_side s = side_of(c, side);
    attn_output o = s.storage;
    o.data = (char *)o.data + bytes_between(o.dtype, layer * s.stride[0]);
    return o;
}

/* recent_of gives one layer of the recent rows of K or V: [sequence, head, row, dim]. */
static attn_output recent_of(const attn_cache *c, int side, int64_t layer)
{
    const ptrdiff_t dim = (ptrdiff_t)(side == CACHE_K ? c->head_dim : c->head_dim_v);
    const ptrdiff_t head = (ptrdiff_t)c->recent_rows * dim;
    attn_output o = { c->recent_dtype, (ptrdiff_t)c->num_heads_kv * head, head, dim,
                      side == CACHE_K ? c->recent_k : c->recent_v };
    o.data = (char *)o.data + bytes_between(o.dtype, layer * c->num_sequences * o.stride_batch);
    return o;
}

/* recent_rows_of counts the recent rows of K, or of V, of all layers. */
static int64_t recent_rows_of(const attn_cache *c)
{
    const int64_t heads = times(times(c->num_layers, c->num_sequences), c->num_heads_kv);
    return c->recent ? times(heads, c->recent_rows) : 0;
}

typedef struct cache_place { /* A cache_place is rows row, row + 1, ... of an entry. */
    int64_t entry, row;
} cache_place;

/* BYTES_TO counts the bytes from the first element of a tensor or output to a row. */
#define BYTES_TO(x, at, head)                                                                      \
    bytes_between((x).dtype, (ptrdiff_t)(at).entry *(x).stride_batch +                             \
                                 (ptrdiff_t)(head) * (x).stride_head +                             \
                                 (ptrdiff_t)(at).row * (x).stride_seq)

static const attn_scales *given_scales(const attn_cache *c, int side)
{
    return side == CACHE_K ? &c->k_scales : &c->v_scales;
}

/* scales_of_side gives the scales of K or V of all layers. An axis that is shared has a stride of 0. */
static attn_scales scales_of_side(const attn_cache *c, int side)
{
    attn_scales x = *given_scales(c, side);
    x.stride_batch = stride_or(x.stride_batch, 0);
    x.stride_head = stride_or(x.stride_head, 0);
    x.stride_dim = stride_or(x.stride_dim, 0);
    return x;
}

/* scales_of_layer gives those of one layer: [head, dim]. */
static attn_scales scales_of_layer(const attn_cache *c, int side, int64_t layer)
{
    attn_scales x = scales_of_side(c, side);
    x.data = x.data ? x.data + layer * x.stride_batch : NULL;
    return x;
}

static const attn_scales no_scales = { .data = NULL };

/* copy_heads copies all heads of `count` rows; if both sides have one storage type it keeps every
 * bit, NaN and -0 included. Else i8 takes scales `by`. Rows that lie one after the other on both sides are
 * copied as one, unless they have scales. */
static void copy_heads(const attn_output *to, cache_place at, const attn_tensor *from,
                       cache_place from_at, int64_t heads, int64_t count, int64_t dim,
                       const attn_scales *by)
{
    const int together = to->stride_seq == dim && from->stride_seq == dim && !by->data;
    const int64_t n = together ? dim * count : dim, rows = together ? min64(count, 1) : count;
    int64_t h, i;
    for (h = 0; h < heads; h++) {
        const row_scales scales = { by->data ? by->data + h * by->stride_head : NULL,
                                    by->stride_dim };
        char *y = (char *)to->data + BYTES_TO(*to, at, h);
        const char *x = (const char *)from->data + BYTES_TO(*from, from_at, h);
        for (i = 0; i < rows; i++) {
            if (to->dtype == from->dtype)
                memcpy(y, x, (size_t)bytes_between(to->dtype, n));
            else
                convert_run(y, to->dtype, x, from->dtype, n, scales);
            y += bytes_between(to->dtype, to->stride_seq);
            x += bytes_between(from->dtype, from->stride_seq);
        }
    }
}

/* ---- shape */

#define AT(member) offsetof(attn_cache, member)

/* Numbers of sequences, pages and rows have to fit int32_t. */
static const call_field cache_fields[] = {
    { VALUE(num_sequences, F_INT64, BY_ALL, 1, INT32_MAX) },
    { VALUE(num_layers, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(num_heads_kv, F_INT64, BY_ALL, 1, MOST) },
    { VALUE(head_dim, F_INT64, BY_ALL, 1, MOST) },
    { VALUE(head_dim_v, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(capacity, F_INT64, BY_ALL, 1, INT32_MAX) },
    { VALUE(page_size, F_INT64, BY_ALL, 0, INT32_MAX) },
    { VALUE(num_pages, F_INT64, BY_ALL, 0, INT32_MAX) },
    { VALUE(window_left, F_INT64, BY_ALL, 0, INT32_MAX) },
    { VALUE(recent, F_INT64, BY_ALL, 0, INT32_MAX) },
    { VALUE(recent_rows, F_INT64, BY_ALL, 0, INT32_MAX) },
    { DTYPE(recent_dtype, BY_ALL) },
    { LAYOUT },
    { VALUE(rotated, F_INT, BY_ALL, 0, ATTN_ROTATED_K + ATTN_ROTATED_V),
      .instead = "1 is K, 2 is V, 3 is both" },
    { ANY_DTYPE(k.dtype, BY_ALL) },
    { ANY_DTYPE(v.dtype, BY_ALL) },
    { TENSOR(k, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(v, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM_V, BY_ALL), .output = OUTPUT_RESULT },
};

/* Scales are those of a call whose entries are layers with one key. */
static const call_field scale_fields[] = {
    { SCALES(k_scales, AXIS_DIM, BY_ALL) },
    { SCALES(v_scales, AXIS_DIM_V, BY_ALL) },
};

/* The arrays of the state, in the caller's memory. A view of chosen sequences has its own of the
 * first VIEW_ARRAYS. */
static const call_field state_fields[] = {
    { LIST(begin, F_I64, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(length, F_I32, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(first_row, F_I32, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(table, F_I32, BY_ALL, AXIS_BATCH, AXIS_PAGE) },
    { LIST(recent_begin, F_I64, BY_ALL, AXIS_NONE, AXIS_RECENT) },
    { LIST(recent_entries, F_I32, BY_ALL, AXIS_NONE, AXIS_RECENT) },
    { LIST(end, F_I64, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(overwritten_below, F_I64, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(uses, F_I32, BY_ALL, AXIS_NONE, AXIS_ENTRY) },
    { LIST(free_pages, F_I32, BY_ALL, AXIS_NONE, AXIS_ENTRY) },
    { LIST(desks, F_F32, BY_ALL, AXIS_BATCH, AXIS_ROW) },
    { LIST(recent_k, F_STORED, BY_ALL, AXIS_RECENT_ROW, AXIS_CHOSEN), .dtype = AT(recent_dtype) },
    { LIST(recent_v, F_STORED, BY_ALL, AXIS_RECENT_ROW, AXIS_STATS), .dtype = AT(recent_dtype) },
    { LIST(k.data, F_STORED, BY_ALL, AXIS_NONE, AXIS_DIM), .dtype = AT(k.dtype) },
    { LIST(v.data, F_STORED, BY_ALL, AXIS_NONE, AXIS_DIM_V), .dtype = AT(v.dtype) },
};
#undef AT

enum { VIEW_ARRAYS = 6, STATE_ARRAYS = COUNT_OF(state_fields) };

static int is_rotated(const attn_cache *c, int side)
{
    return c->rotated & (side == CACHE_K ? ATTN_ROTATED_K : ATTN_ROTATED_V);
}

/* is_centered tells whether rows of a side lose a mean. */
static int is_centered(const attn_cache *c, int side)
{
    return side == CACHE_K && c->k_mean;
}

/* desk_floats counts the numbers of a desk, where a row is finished before it is rounded. Each
 * sequence has one in each layer, since writes of different ones may run at once. */
static int64_t desk_floats(const attn_cache *c)
{
    const int k = c->k.dtype > LAST_PLAIN || is_rotated(c, CACHE_K) || is_centered(c, CACHE_K);
    const int64_t v = is_rotated(c, CACHE_V) ? c->head_dim_v : 0;
    return times(c->num_heads_kv, max64(k ? c->head_dim : 0, v));
}

/* desk_of gives a sequence's desk in a layer: [1, num_heads_kv, 1, dim]. */
static attn_output desk_of(const attn_cache *c, int64_t layer, int64_t q, int64_t dim)
{
    const ptrdiff_t floats = (ptrdiff_t)desk_floats(c), row = (ptrdiff_t)dim;
    const attn_output desk = { ATTN_F32, floats, row, row,
                               c->desks + (layer * c->num_sequences + q) * floats };
    return desk;
}

/* check_scales_of wants scales where a side's numbers have some, and keys to share them. */
static attn_status check_scales_of(const attn_cache *c, int side, text *why)
{
    const cache_side s = side_of(c, side);
    const attn_scales *x = given_scales(c, side);
    const attn_status status = check_scales_given(s.name, s.storage.dtype, x, why);
    if (status || !x->stride_seq || x->stride_seq == ATTN_STRIDE_BROADCAST)
        return status;
    put(why, s.name);
    return bad_field(why, ATTN_ERR_ARG, "_scales.stride_seq", x->stride_seq,
                     " must be 0: all keys of a cache share scales");
}

static attn_status check_recent_fields(const attn_cache *c, text *why)
{
    if (!c->recent && (c->recent_rows || c->recent_dtype))
        return bad_field(why, ATTN_ERR_ARG, c->recent_rows ? "recent_rows" : "recent_dtype",
                         c->recent_rows ? c->recent_rows : c->recent_dtype,
                         " is set, but recent is 0");
    if (c->ring && c->recent > c->capacity)
        return bad_numbers(why, ATTN_ERR_ARG, "recent (#) of a ring must be at most capacity (#)",
                           NUMBERS(c->recent, c->capacity));
    return ATTN_OK;
}

static attn_status check_fields(const attn_cache *c, text *why)
{
    const int64_t values[] = { c->window_left, c->capacity };
    attn_status status = check_values(cache_fields, COUNT_OF(cache_fields), c, why);
    if (status)
        return status;
    if (c->window_left && !c->ring)
        return bad_field(why, ATTN_ERR_ARG, "window_left", c->window_left,
                         " is set, but ring is 0: set ring = 1");
    if (c->ring && c->window_left >= c->capacity)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "window_left (#) of a ring must be below capacity (#)", values);
    if (c->num_pages && !c->page_size)
        return bad_field(why, ATTN_ERR_ARG, "num_pages", c->num_pages,
                         " is set, but page_size is 0");
    status = check_recent_fields(c, why);
    status = status ? status : check_scales_of(c, CACHE_K, why);
    status = status ? status : check_scales_of(c, CACHE_V, why);
    status = status ? status : check_output_fields(cache_fields, COUNT_OF(cache_fields), c, why);
    status = status ? status : check_output_stride("k_stride_layer", "", c->k_stride_layer, why);
    return status ? status : check_output_stride("v_stride_layer", "", c->v_stride_layer, why);
}

static ptrdiff_t pack_storage(const attn_cache *c, int64_t dim, attn_output *o, ptrdiff_t layer)
{
    const int by_head = c->layout == ATTN_LAYOUT_BHSD;
    const int64_t entry = times(times(c->num_heads_kv, cache_entry_rows(c)), dim);
    o->stride_batch = stride_or(o->stride_batch, entry);
    o->stride_head = stride_or(o->stride_head, by_head ? times(cache_entry_rows(c), dim) : dim);
    o->stride_seq = stride_or(o->stride_seq, by_head ? dim : times(c->num_heads_kv, dim));
    return stride_or(layer, times(cache_entries(c), entry));
}

/* settle_storage makes the strides of a side those that count. */
static void settle_storage(attn_cache *c, int side)
{
    cache_side s = side_of(c, side);
    attn_output *o = side == CACHE_K ? &c->k : &c->v;
    settle_strides(4, s.count, s.stride);
    *(side == CACHE_K ? &c->k_stride_layer : &c->v_stride_layer) = s.stride[0];
    o->stride_batch = s.stride[1];
    o->stride_head = s.stride[2];
    o->stride_seq = s.stride[3];
}

/* resolve_cache fills in every default. */
static void resolve_cache(attn_cache *c)
{
    c->num_layers = max64(c->num_layers, 1);
    c->head_dim_v = c->head_dim_v ? c->head_dim_v : c->head_dim;
    c->pages_per_sequence = c->page_size ? (c->capacity - 1) / c->page_size + 1 : 0;
    c->rows = c->page_size ? c->pages_per_sequence * c->page_size : c->capacity;
    if (c->page_size && !c->num_pages)
        c->num_pages = times(c->num_sequences, c->pages_per_sequence);
    if (c->recent)
        c->recent_rows = min64(c->recent_rows ? c->recent_rows : c->recent + 255, c->rows);
    c->table = c->uses = c->free_pages = c->recent_entries = NULL;
    c->recent_begin = NULL;
    c->recent_k = c->recent_v = NULL;
    c->desks = NULL;
    c->k_stride_layer = pack_storage(c, c->head_dim, &c->k, c->k_stride_layer);
    c->v_stride_layer = pack_storage(c, c->head_dim_v, &c->v, c->v_stride_layer);
    settle_storage(c, CACHE_K);
    settle_storage(c, CACHE_V);
}

static call_axes axes_of_scales(const attn_cache *c)
{
    const call_axes x = { .count = { [AXIS_ENTRY] = c->num_layers,
                                     [AXIS_HEAD_KV] = c->num_heads_kv,
                                     [AXIS_KEY] = 1,
                                     [AXIS_DIM] = c->head_dim,
                                     [AXIS_DIM_V] = c->head_dim_v } };
    return x;
}

/* span_of counts the elements from the first to the last. */
static int64_t span_of(const cache_side *s)
{
    return plus(extent(s->count, s->stride) - 1, s->dim);
}

static area area_of_storage(const attn_cache *c, int side)
{
    static const char *const names[] = { "the cache's k", "the cache's v" };
    const cache_side s = side_of(c, side);
    const int unit = storages[s.storage.dtype].unit;
    const int64_t count[] = { s.count[0], s.count[1], s.count[2], s.count[3], s.dim / unit };
    const ptrdiff_t stride[] = { s.stride[0] / unit, s.stride[1] / unit, s.stride[2] / unit,
                                 s.stride[3] / unit, 1 };
    return area_of(names[side], s.storage.data, 5, count, stride,
                   (int64_t)bytes_of(s.storage.dtype), 1);
}

static attn_status bad_storage(const attn_cache *c, const cache_side *s, attn_status status,
                               const char *rest, text *why)
{
    put(why, s->name);
    put_numbers(why,
                c->page_size ? ": num_layers (#) x num_pages (#) x num_heads_kv (#) x page_size (#)"
                             : ": num_layers (#) x num_sequences (#) x num_heads_kv (#) x rows (#)",
                s->count);
    return bad(why, status, rest);
}

static attn_status check_whole_storage(const attn_cache *c, const cache_side *s, text *why)
{
    static const char *const of_layer[] = { "k_stride_layer", "v_stride_layer" };
    const int is_v = s->name[0] == 'v';
    const char *const dim = is_v && c->head_dim_v != c->head_dim ? "head_dim_v" : "head_dim";
    const attn_tensor t = as_tensor(&s->storage);
    const attn_status status = check_whole_units(s->name, &t, dim, s->dim, why);
    return status ? status : check_whole("", of_layer[is_v], s->stride[0], s->name, t.dtype, why);
}

/* check_storage needs the strides resolved. */
static attn_status check_storage(const attn_cache *c, int side, text *why)
{
    const cache_side s = side_of(c, side);
    const int64_t bytes_each = (int64_t)bytes_of(s.storage.dtype);
    attn_status status;
    area a;
    int axis;
    for (axis = 0; axis < 4 && !s.storage.data; axis++)
        if (s.stride[axis] < 0) {
            put(why, s.name);
            return bad(why, ATTN_ERR_ARG, ": negative strides need storage of your own, data");
        }
    if (room_of(s.storage.dtype, span_of(&s)) >= ADDRESS_LIMIT)
        return bad_storage(c, &s, ATTN_ERR_OVERFLOW, " with its strides exceeds the address space",
                           why);
    status = check_whole_storage(c, &s, why);
    if (status)
        return status;
    a = area_of_storage(c, side);
    if (meets_itself(&a))
        return bad_storage(c, &s, ATTN_ERR_ARG, ROWS_SHARE, why);
    return check_aligned(s.name, s.storage.data, bytes_each, why);
}

/* place_arrays counts the bytes of the first n arrays of the state, at any address, and puts them
 * into `memory` unless it is NULL. Storage of the caller's own stays where it is. */
static int64_t place_arrays(attn_cache *c, int n, const void *memory)
{
    const cache_side k = side_of(c, CACHE_K), v = side_of(c, CACHE_V);
    const call_axes x = { .count = { [AXIS_NONE] = 1,
                                     [AXIS_BATCH] = c->num_sequences,
                                     [AXIS_PAGE] = c->pages_per_sequence,
                                     [AXIS_ENTRY] = c->num_pages,
                                     [AXIS_ROW] = times(c->num_layers, desk_floats(c)),
                                     [AXIS_RECENT] = c->recent ? c->num_sequences : 0,
                                     [AXIS_RECENT_ROW] = recent_rows_of(c),
                                     [AXIS_CHOSEN] = c->head_dim,
                                     [AXIS_STATS] = c->head_dim_v,
                                     [AXIS_DIM] = c->k.data ? 0 : span_of(&k),
                                     [AXIS_DIM_V] = c->v.data ? 0 : span_of(&v) } };
    int64_t at = 0;
    int i;
    for (i = 0; i < n; i++) {
        const call_field *f = &state_fields[i];
        const int64_t count = times(x.count[f->axis[0]], x.count[f->axis[3]]) / unit_of_field(f, c);
        const int64_t offset = place(&at, count, (size_t)element_bytes(f, c));
        if (memory && count) {
            const char *array = align_memory(memory) + offset;
            memcpy((char *)c + f->offset, &array, sizeof array);
        }
    }
    return plus(at, ALIGNMENT - 1);
}

static int64_t mean_floats(const attn_cache *c)
{
    return c->k_mean ? times(times(c->num_layers, c->num_heads_kv), c->head_dim) : 0;
}

static area area_of_scales(const attn_cache *c, int side)
{
    const attn_scales x = scales_of_side(c, side);
    const int64_t count[] = { c->num_layers, c->num_heads_kv, side_of(c, side).dim };
    const ptrdiff_t stride[] = { x.stride_batch, x.stride_head, x.stride_dim };
    if (!x.data)
        return area_of_bytes("", NULL, 0);
    return area_of(side == CACHE_K ? "k_scales" : "v_scales", x.data, 3, count, stride,
                   sizeof(float), 1);
}

/* The arrays of a cache: storage and state, which it writes, and what it reads. */
enum { CACHE_WRITES = CACHE_SIDES + 1, CACHE_AREAS = CACHE_WRITES + 3 };

static area area_of_cache(const attn_cache *c, int which)
{
    if (which < CACHE_SIDES)
        return area_of_storage(c, which);
    if (which < CACHE_WRITES)
        return area_of_bytes("the state of the cache", c->begin, c->state_bytes);
    if (which < CACHE_WRITES + CACHE_SIDES)
        return area_of_scales(c, which - CACHE_WRITES);
    return area_of_bytes("k_mean", c->k_mean, times(mean_floats(c), sizeof(float)));
}

/* check_memory_apart wants memory to share nothing with the arrays of a cache. */
static attn_status check_memory_apart(const attn_cache *c, const void *memory, int64_t bytes,
                                      text *why)
{
    const area m = area_of_bytes("the memory", memory, bytes);
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < CACHE_AREAS && !status; i++) {
        const area a = area_of_cache(c, i);
        status = check_pair(&a, &m, why);
    }
    return status;
}

/* check_storage_apart wants storage of the caller's own to share nothing with the rest of the cache. */
static attn_status check_storage_apart(const attn_cache *c, text *why)
{
    attn_status status = ATTN_OK;
    int i, j;
    for (i = 0; i < CACHE_AREAS; i++) {
        const area a = area_of_cache(c, i);
        for (j = 0; j < i && j < CACHE_WRITES && !status; j++) {
            const area b = area_of_cache(c, j);
            status = check_pair(&a, &b, why);
        }
    }
    return status;
}

/* check_arrays_apart wants the arrays of a set to share nothing with those of the cache. */
static attn_status check_arrays_apart(const attn_cache *c, const array_set *set, text *why)
{
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < CACHE_AREAS && !status; i++) {
        const area a = area_of_cache(c, i);
        status = check_written(set, 1, &a, why);
    }
    return status;
}

/* check_shape turns *c into *resolved, which needs *bytes of memory, or says what is wrong with
 * it. */
static attn_status check_shape(const attn_cache *c, attn_cache *resolved, int64_t *bytes, text *why)
{
    call_axes scales;
    attn_status status;
    if (!c)
        return bad(why, ATTN_ERR_ARG, "cache is NULL");
    if (c->begin) /* Its k.data and v.data would count as storage of the caller's own. */
        return bad(why, ATTN_ERR_ARG, "cache is ready already: set it to zero first");
    status = check_fields(c, why);
    if (status)
        return status;
    *resolved = *c;
    resolve_cache(resolved);
    if (resolved->rows > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "capacity", c->capacity,
                         " in whole pages must be at most 2147483647");
    if (resolved->num_pages > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "num_pages", resolved->num_pages,
                         ", as many as all sequences can need, must be at most 2147483647");
    if (resolved->recent_rows < min64(resolved->recent, resolved->rows))
        return bad_numbers(why, ATTN_ERR_ARG,
                           c->recent < resolved->rows
                               ? "recent_rows (#) must be at least recent (#)"
                               : "recent_rows (#) must be at least the rows of a sequence (#)",
                           NUMBERS(c->recent_rows, min64(c->recent, resolved->rows)));
    status = check_storage(resolved, CACHE_K, why);
    status = status ? status : check_storage(resolved, CACHE_V, why);
    scales = axes_of_scales(resolved);
    status = status ? status
                    : resolve_arrays(scale_fields, COUNT_OF(scale_fields), resolved, &scales, why);
    name_shared(scale_fields, COUNT_OF(scale_fields), resolved);
    status = status ? status : check_aligned("k_mean", resolved->k_mean, sizeof(float), why);
    status = status ? status : check_storage_apart(resolved, why);
    if (status)
        return status;
    *bytes = place_arrays(resolved, STATE_ARRAYS, NULL);
    if (*bytes >= ADDRESS_LIMIT)
        return bad_field(why, ATTN_ERR_OVERFLOW, "capacity", c->capacity,
                         ": the cache would exceed the address space");
    return ATTN_OK;
}

/* check_memory says whether the caller gave enough; `query` is the function that tells how many
 * bytes that is. */
static attn_status check_memory(const void *memory, size_t bytes, int64_t need, const char *query,
                                text *why)
{
    const size_t have = memory ? bytes : 0;
    const int64_t values[] = { (int64_t)have, need };
    if ((uint64_t)have >= (uint64_t)need)
        return ATTN_OK;
    put_numbers(why, "memory: bytes (#) must be at least #; ", values);
    put(why, query);
    return bad(why, ATTN_ERR_WORKSPACE, " says how many");
}

ATTN_API attn_status attn_cache_size(const attn_cache *c, size_t *bytes, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache resolved;
    int64_t need;
    attn_status status;
    if (!bytes)
        return bad(&why, ATTN_ERR_ARG, "bytes is NULL");
    status = check_shape(c, &resolved, &need, &why);
    if (!status)
        *bytes = (size_t)need;
    return done(status, &why);
}

static void empty_cache(attn_cache *c)
{
    int64_t i;
    for (i = 0; i < c->num_sequences; i++) {
        c->begin[i] = c->end[i] = c->overwritten_below[i] = 0;
        c->length[i] = c->first_row[i] = 0;
    }
    for (i = 0; c->recent && i < c->num_sequences; i++) {
        c->recent_begin[i] = 0;
        c->recent_entries[i] = (int32_t)i;
    }
    for (i = 0; i < c->num_sequences * c->pages_per_sequence; i++)
        c->table[i] = -1;
    c->num_free = c->page_size ? c->num_pages : 0;
    for (i = 0; i < c->num_free; i++) {
        c->uses[i] = 0;
        c->free_pages[i] = (int32_t)(c->num_free - 1 - i); /* Page 0 is taken first. */
    }
}

ATTN_API attn_status attn_cache_init(attn_cache *c, void *memory, size_t bytes, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache resolved;
    int64_t need;
    attn_status status = check_shape(c, &resolved, &need, &why);
    status = status ? status : check_memory(memory, bytes, need, "attn_cache_size", &why);
    status = status ? status : check_memory_apart(&resolved, memory, need, &why);
    if (status)
        return status;
    place_arrays(&resolved, STATE_ARRAYS, memory);
    /* With storage in place, these are the bytes before it. */
    resolved.state_bytes = place_arrays(&resolved, STATE_ARRAYS, NULL) - (ALIGNMENT - 1);
    empty_cache(&resolved);
    *c = resolved;
    return done(ATTN_OK, &why);
}
