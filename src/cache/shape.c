/* src/cache/shape.c - the shape of a cache: its rules, its memory, its storage.
 * SPDX-License-Identifier: MIT
 *
 * An entry is a sequence's own storage or, paged, a page. Page i of a sequence's table is there if and
 * only if a key that is present lies in it. Functions that change a cache look at everything first:
 * below the comment "from here on nothing can fail" nothing does.
 */
#pragma once

#include "../api/cache.h"
#include "../storage.c"
#include "../rules.c"

enum { CACHE_K = 0, CACHE_V = 1, CACHE_SIDES = 2 };

static const char *const side_names[CACHE_SIDES] = { "k", "v" };

static int64_t dim_of(const attn_cache *c, int side)
{
    return side == CACHE_K ? c->head_dim : c->head_dim_v;
}

static const attn_output *storage_of(const attn_cache *c, int side)
{
    return side == CACHE_K ? &c->k : &c->v;
}

static ptrdiff_t layer_stride(const attn_cache *c, int side)
{
    return side == CACHE_K ? c->k_stride_layer : c->v_stride_layer;
}

static int64_t cache_entries(const attn_cache *c)
{
    return c->page_size ? c->num_pages : c->num_sequences;
}

static int64_t cache_entry_rows(const attn_cache *c)
{
    return c->page_size ? c->page_size : c->rows;
}

/* layer_of gives one layer of K or V: [entry, head, row, dim]. */
static attn_output layer_of(const attn_cache *c, int side, int64_t layer)
{
    attn_output o = *storage_of(c, side);
    o.data =
        (char *)o.data + (ptrdiff_t)layer * layer_stride(c, side) * (ptrdiff_t)bytes_of(o.dtype);
    return o;
}

typedef struct cache_place { /* A cache_place is rows row, row + 1, ... of an entry. */
    int64_t entry, row;
} cache_place;

/* BYTES_TO counts the bytes from the first element of a tensor or output to a row. */
#define BYTES_TO(x, at, head)                                                                      \
    (((ptrdiff_t)(at).entry * (x).stride_batch + (ptrdiff_t)(head) * (x).stride_head +             \
      (ptrdiff_t)(at).row * (x).stride_seq) *                                                      \
     (ptrdiff_t)bytes_of((x).dtype))

/* copy_row_run copies `count` rows that lie one after the other; if both sides have one storage
 * type it keeps every bit, NaN and -0 included. */
static void copy_row_run(char *to, int to_dtype, ptrdiff_t to_step, const char *from,
                         int from_dtype, ptrdiff_t from_step, int64_t count, int64_t dim)
{
    const size_t bytes = (size_t)dim * bytes_of(to_dtype);
    int64_t i;
    if (to_dtype == from_dtype && to_step == (ptrdiff_t)bytes && from_step == to_step) {
        memcpy(to, from, bytes * (size_t)count);
        return;
    }
    for (i = 0; i < count; i++, to += to_step, from += from_step) {
        if (to_dtype == from_dtype)
            memcpy(to, from, bytes);
        else
            attn_convert(to, to_dtype, from, from_dtype, (size_t)dim);
    }
}

/* copy_heads copies all heads of `count` rows. */
static void copy_heads(const attn_output *to, cache_place at, const attn_tensor *from,
                       cache_place from_at, int64_t heads, int64_t count, int64_t dim)
{
    const ptrdiff_t to_step = to->stride_seq * (ptrdiff_t)bytes_of(to->dtype);
    const ptrdiff_t from_step = from->stride_seq * (ptrdiff_t)bytes_of(from->dtype);
    int64_t h;
    for (h = 0; h < heads; h++)
        copy_row_run((char *)to->data + BYTES_TO(*to, at, h), to->dtype, to_step,
                     (const char *)from->data + BYTES_TO(*from, from_at, h), from->dtype, from_step,
                     count, dim);
}

/* ------------------------------------------------------------------------------------------------
 * Shape
 * --------------------------------------------------------------------------------------------- */

#define CACHE_RULE(field, least, most) #field, offsetof(attn_cache, field), least, most

/* Numbers of sequences, pages and rows have to fit int32_t. */
static const size_rule cache_counts[] = {
    { CACHE_RULE(num_sequences, 1, INT32_MAX) }, { CACHE_RULE(num_layers, 0, MOST) },
    { CACHE_RULE(num_heads_kv, 1, MOST) },       { CACHE_RULE(head_dim, 1, MOST) },
    { CACHE_RULE(head_dim_v, 0, MOST) },         { CACHE_RULE(capacity, 1, INT32_MAX) },
    { CACHE_RULE(page_size, 0, INT32_MAX) },     { CACHE_RULE(num_pages, 0, INT32_MAX) },
    { CACHE_RULE(window_left, 0, INT32_MAX) },
};

static const size_rule cache_enums[] = {
    { CACHE_RULE(layout, 0, ATTN_CACHE_NHD) },
    { CACHE_RULE(k.dtype, 0, LAST_DTYPE) },
    { CACHE_RULE(v.dtype, 0, LAST_DTYPE) },
};

/* check_given_strides looks at strides as given: rows of storage that is written must not share
 * elements. */
static attn_status check_given_strides(const attn_cache *c, text *why)
{
    attn_status status = check_output_strides("k", &c->k, why);
    if (!status)
        status = check_output_strides("v", &c->v, why);
    if (!status)
        status = check_output_stride("k", "_stride_layer", c->k_stride_layer, why);
    if (!status)
        status = check_output_stride("v", "_stride_layer", c->v_stride_layer, why);
    return status;
}

static attn_status check_fields(const attn_cache *c, text *why)
{
    attn_status status = check_counts(c, cache_counts, COUNT_OF(cache_counts), why);
    if (!status)
        status = check_enums(c, cache_enums, COUNT_OF(cache_enums), why);
    if (status)
        return status;
    if (c->window_left && !c->ring)
        return bad_field(why, ATTN_ERR_ARG, "window_left", c->window_left,
                         " is set, but ring is 0: set ring = 1");
    if (c->ring && c->window_left >= c->capacity) {
        bad_field(why, ATTN_ERR_ARG, "window_left", c->window_left,
                  " of a ring must be below capacity");
        put_field(why, "", c->capacity);
        return ATTN_ERR_ARG;
    }
    if (c->num_pages && !c->page_size)
        return bad_field(why, ATTN_ERR_ARG, "num_pages", c->num_pages,
                         " is set, but page_size is 0");
    return check_given_strides(c, why);
}

static ptrdiff_t pack_storage(const attn_cache *c, int64_t dim, attn_output *o, ptrdiff_t layer)
{
    const int by_head = c->layout == ATTN_CACHE_HND;
    const int64_t entry = times(times(c->num_heads_kv, cache_entry_rows(c)), dim);
    o->stride_batch = stride_or(o->stride_batch, entry);
    o->stride_head = stride_or(o->stride_head, by_head ? times(cache_entry_rows(c), dim) : dim);
    o->stride_seq = stride_or(o->stride_seq, by_head ? dim : times(c->num_heads_kv, dim));
    return stride_or(layer, times(cache_entries(c), entry));
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
    c->k_stride_layer = pack_storage(c, c->head_dim, &c->k, c->k_stride_layer);
    c->v_stride_layer = pack_storage(c, c->head_dim_v, &c->v, c->v_stride_layer);
}

typedef struct storage_axes { /* The axes are layers, entries, heads and rows. */
    int64_t count[4];
    ptrdiff_t stride[4];
    int64_t dim;
} storage_axes;

static storage_axes axes_of(const attn_cache *c, int side)
{
    const attn_output *o = storage_of(c, side);
    storage_axes a;
    a.count[0] = c->num_layers;
    a.count[1] = cache_entries(c);
    a.count[2] = c->num_heads_kv;
    a.count[3] = cache_entry_rows(c);
    a.stride[0] = layer_stride(c, side);
    a.stride[1] = o->stride_batch;
    a.stride[2] = o->stride_head;
    a.stride[3] = o->stride_seq;
    a.dim = dim_of(c, side);
    return a;
}

static int64_t distance(ptrdiff_t stride)
{
    return stride < 0 ? -max64(stride, -TOO_BIG) : stride;
}

/* span_of counts the elements from the first to the last, or gives 0 if two rows share some: each
 * axis, from the smallest stride to the largest, has to step over all that the axes before it
 * cover. */
static int64_t span_of(const storage_axes *a)
{
    int64_t span = a->dim;
    int n, axis, used = 0;
    for (n = 0; n < 4; n++) {
        int next = -1;
        for (axis = 0; axis < 4; axis++)
            if (!(used >> axis & 1) &&
                (next < 0 || distance(a->stride[axis]) < distance(a->stride[next])))
                next = axis;
        used |= 1 << next;
        if (a->count[next] == 1)
            continue;
        if (distance(a->stride[next]) < span)
            return 0;
        span = plus(span, times(a->count[next] - 1, distance(a->stride[next])));
    }
    return span;
}

static void put_storage(const attn_cache *c, int side, text *why)
{
    const storage_axes a = axes_of(c, side);
    const char *const names[] = { "num_layers", c->page_size ? "num_pages" : "num_sequences",
                                  "num_heads_kv", c->page_size ? "page_size" : "rows" };
    int axis;
    put(why, side_names[side]);
    put(why, ": ");
    for (axis = 0; axis < 4; axis++) {
        put_field(why, names[axis], a.count[axis]);
        put(why, axis < 3 ? " x " : "");
    }
}

/* check_storage needs the strides resolved. */
static attn_status check_storage(const attn_cache *c, int side, text *why)
{
    const attn_output *o = storage_of(c, side);
    const storage_axes a = axes_of(c, side);
    const int64_t span = span_of(&a);
    int axis;
    for (axis = 0; axis < 4 && !o->data; axis++)
        if (a.stride[axis] < 0) {
            put(why, side_names[side]);
            return bad(why, ATTN_ERR_ARG, ": negative strides need storage of your own, data");
        }
    if (!span) {
        put_storage(c, side, why);
        return bad(why, ATTN_ERR_ARG, ": with its strides rows share elements");
    }
    if (times(span, (int64_t)bytes_of(o->dtype)) < ADDRESS_LIMIT)
        return ATTN_OK;
    put_storage(c, side, why);
    return bad(why, ATTN_ERR_OVERFLOW, " with its strides exceeds the address space");
}

/* A cache_memory holds the offsets of the arrays in the caller's memory, from an aligned address
 * on. */
typedef struct cache_memory {
    int64_t begin, end, overwritten_below, length, first_row, table, uses, free_pages, k, v;
    int64_t bytes; /* bytes is enough for all, at any address. */
} cache_memory;

static cache_memory place_cache(const attn_cache *c)
{
    const storage_axes k = axes_of(c, CACHE_K), v = axes_of(c, CACHE_V);
    const int64_t n = c->num_sequences;
    cache_memory m;
    int64_t at = 0;
    m.begin = place(&at, n, sizeof *c->begin);
    m.end = place(&at, n, sizeof *c->end);
    m.overwritten_below = place(&at, n, sizeof *c->overwritten_below);
    m.length = place(&at, n, sizeof *c->length);
    m.first_row = place(&at, n, sizeof *c->first_row);
    m.table = place(&at, times(n, c->pages_per_sequence), sizeof *c->table);
    m.uses = place(&at, c->num_pages, sizeof *c->uses);
    m.free_pages = place(&at, c->num_pages, sizeof *c->free_pages);
    m.k = place(&at, c->k.data ? 0 : span_of(&k), bytes_of(c->k.dtype));
    m.v = place(&at, c->v.data ? 0 : span_of(&v), bytes_of(c->v.dtype));
    m.bytes = plus(at, ALIGNMENT - 1);
    return m;
}

/* check_shape turns *c into *resolved with its memory *m, or says what is wrong with it. */
static attn_status check_shape(const attn_cache *c, attn_cache *resolved, cache_memory *m,
                               text *why)
{
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
    status = check_storage(resolved, CACHE_K, why);
    if (!status)
        status = check_storage(resolved, CACHE_V, why);
    if (status)
        return status;
    *m = place_cache(resolved);
    if (m->bytes >= ADDRESS_LIMIT)
        return bad_field(why, ATTN_ERR_OVERFLOW, "capacity", c->capacity,
                         ": the cache would exceed the address space");
    return ATTN_OK;
}

static attn_status done(attn_status status, text *why)
{
    if (!status)
        put(why, "ok");
    return status;
}

static attn_status too_small_memory(size_t bytes, int64_t need, const char *rest, text *why)
{
    put_field(why, "memory: bytes", (int64_t)bytes);
    put(why, " must be at least ");
    put_int(why, need);
    put(why, rest);
    return ATTN_ERR_WORKSPACE;
}

ATTN_API attn_status attn_cache_size(const attn_cache *c, size_t *bytes, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache resolved;
    cache_memory m;
    attn_status status;
    if (!bytes)
        return bad(&why, ATTN_ERR_ARG, "bytes is NULL");
    status = check_shape(c, &resolved, &m, &why);
    if (!status)
        *bytes = (size_t)m.bytes;
    return done(status, &why);
}

static void point_arrays(attn_cache *c, const cache_memory *m, char *at)
{
    c->begin = (int64_t *)(void *)(at + m->begin);
    c->end = (int64_t *)(void *)(at + m->end);
    c->overwritten_below = (int64_t *)(void *)(at + m->overwritten_below);
    c->length = (int32_t *)(void *)(at + m->length);
    c->first_row = (int32_t *)(void *)(at + m->first_row);
    c->table = c->page_size ? (int32_t *)(void *)(at + m->table) : NULL;
    c->uses = c->page_size ? (int32_t *)(void *)(at + m->uses) : NULL;
    c->free_pages = c->page_size ? (int32_t *)(void *)(at + m->free_pages) : NULL;
    c->k.data = c->k.data ? c->k.data : at + m->k;
    c->v.data = c->v.data ? c->v.data : at + m->v;
}

static void empty_cache(attn_cache *c)
{
    int64_t i;
    for (i = 0; i < c->num_sequences; i++) {
        c->begin[i] = c->end[i] = c->overwritten_below[i] = 0;
        c->length[i] = c->first_row[i] = 0;
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
    const size_t room = memory ? bytes : 0;
    attn_cache resolved;
    cache_memory m;
    const attn_status status = check_shape(c, &resolved, &m, &why);
    if (status)
        return status;
    if ((uint64_t)room < (uint64_t)m.bytes)
        return too_small_memory(room, m.bytes, "; attn_cache_size says how many", &why);
    point_arrays(&resolved, &m, align_memory(memory));
    empty_cache(&resolved);
    *c = resolved;
    return done(ATTN_OK, &why);
}
