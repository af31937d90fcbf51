/* attn_cache.c - caches of keys and values: contiguous, ring, paged. The manual is attn_cache.h.
 * Needs attn.c and attn_rope.c.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * CONTENTS, bottom-up
 *    1  Storage        strides, rows that are copied and converted
 *    2  Shape          every rule about the fields that a user sets, memory
 *    3  Rows and pages where a number lies; pages taken, shared, given back
 *    4  Steps          every rule about new keys
 *    5  Extending, writing
 *    6  Trim and fork
 *    7  Views and reading
 *
 * An entry is a sequence's own storage or, paged, a page. Page i of a sequence's table is there if
 * and only if a key that is present lies in it. Functions that change a cache look at everything
 * first: below the comment "from here on nothing can fail" nothing does.
 *
 * Where a key lies is computed in two places: here for writing (next_run, cache_place), from the
 * cache's own state, and in attn.c for attention (key_at, key_place), from the kv_rows of a view,
 * which may be another library's arrays.
 */
#ifndef ATTN_INTERNAL
#define ATTN_INTERNAL
#endif
#include "attn_cache.h"

/* ------------------------------------------------------------------------------------------------
 * 1  Storage
 * --------------------------------------------------------------------------------------------- */

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

/* One layer of K or V: [entry, head, row, dim]. */
static attn_output layer_of(const attn_cache *c, int side, int64_t layer)
{
    attn_output o = *storage_of(c, side);
    o.data =
        (char *)o.data + (ptrdiff_t)layer * layer_stride(c, side) * (ptrdiff_t)bytes_of(o.dtype);
    return o;
}

typedef struct cache_place { /* rows row, row + 1, ... of an entry */
    int64_t entry, row;
} cache_place;

/* Bytes from the first element of a tensor or output to a row. */
#define BYTES_TO(x, at, head)                                                                      \
    (((ptrdiff_t)(at).entry * (x).stride_batch + (ptrdiff_t)(head) * (x).stride_head +             \
      (ptrdiff_t)(at).row * (x).stride_seq) *                                                      \
     (ptrdiff_t)bytes_of((x).dtype))

/* `count` rows one after the other: the same storage type keeps every bit, NaN and -0 included. */
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

/* All heads of `count` rows. */
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
 * 2  Shape
 * --------------------------------------------------------------------------------------------- */

#define CACHE_RULE(field, least, most) #field, offsetof(attn_cache, field), least, most

/* numbers of sequences, pages and rows are int32_t */
static const size_rule cache_counts[] = {
    { CACHE_RULE(num_sequences, 1, INT32_MAX) }, { CACHE_RULE(num_layers, 0, MOST) },
    { CACHE_RULE(num_heads_kv, 1, MOST) },       { CACHE_RULE(head_dim, 1, MOST) },
    { CACHE_RULE(head_dim_v, 0, MOST) },         { CACHE_RULE(capacity, 1, INT32_MAX) },
    { CACHE_RULE(page_size, 0, INT32_MAX) },     { CACHE_RULE(num_pages, 0, INT32_MAX) },
    { CACHE_RULE(window_left, 0, INT32_MAX) },
};

static const size_rule cache_enums[] = {
    { CACHE_RULE(layout, 0, ATTN_CACHE_NHD) },
    { CACHE_RULE(k.dtype, 0, ATTN_BF16) },
    { CACHE_RULE(v.dtype, 0, ATTN_BF16) },
};

/* As given: rows of storage that is written must not share elements. */
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

/* Fills in every default. */
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

typedef struct storage_axes { /* layers, entries, heads, rows */
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

/* Elements from the first to the last; 0 if two rows share some: each axis, from the smallest
 * stride to the largest, has to step over all that the ones before it cover. */
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

/* Strides are resolved. */
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

/* Offsets of the arrays in the caller's memory, from an aligned address on. */
typedef struct cache_memory {
    int64_t begin, end, overwritten_below, length, first_row, table, uses, free_pages, k, v;
    int64_t bytes; /* of all, at any address */
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

/* Turns *c into *resolved with its memory *m, or says what is wrong with it. */
static attn_status check_shape(const attn_cache *c, attn_cache *resolved, cache_memory *m,
                               text *why)
{
    attn_status status;
    if (!c)
        return bad(why, ATTN_ERR_ARG, "cache is NULL");
    if (c->begin) /* its k.data and v.data would count as storage of the caller's own */
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
        c->free_pages[i] = (int32_t)(c->num_free - 1 - i); /* page 0 is taken first */
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

/* ------------------------------------------------------------------------------------------------
 * 3  Rows and pages
 * --------------------------------------------------------------------------------------------- */

static int32_t *table_of(const attn_cache *c, int64_t q)
{
    return c->table + q * c->pages_per_sequence;
}

/* Numbers that lie one after the other in an entry; rows 0: before the first of them. */
typedef struct cache_run {
    int64_t number, rows;
    cache_place at;
} cache_run;

static cache_run run_before(int64_t number)
{
    cache_run run;
    memset(&run, 0, sizeof run);
    run.number = number;
    return run;
}

/* The next run of a sequence's numbers up to end-1; 0 = there is none. */
static int next_run(const attn_cache *c, int64_t q, int64_t end, cache_run *run)
{
    int64_t row;
    run->number += run->rows;
    if (run->number == end)
        return 0;
    row = run->number % c->rows;
    run->at.entry = c->page_size ? table_of(c, q)[row / c->page_size] : q;
    run->at.row = c->page_size ? row % c->page_size : row;
    run->rows = min64(cache_entry_rows(c) - run->at.row, end - run->number);
    return 1;
}

/* Places of a table, which go on from the last to the first. */
typedef struct page_range {
    int64_t first, count;
} page_range;

/* Those of numbers first .. first+count-1, count at most c->rows. */
static page_range pages_of(const attn_cache *c, int64_t first, int64_t count)
{
    const int64_t row = first % c->rows;
    page_range r;
    r.first = row / c->page_size;
    r.count = count ? (row % c->page_size + count - 1) / c->page_size + 1 : 0;
    r.count = min64(r.count, c->pages_per_sequence);
    return r;
}

static int64_t nth_page(const attn_cache *c, const page_range *r, int64_t n)
{
    return (r->first + n) % c->pages_per_sequence;
}

static int has_page(const attn_cache *c, const page_range *r, int64_t place_in_table)
{
    const int64_t n = place_in_table - r->first;
    return (n < 0 ? n + c->pages_per_sequence : n) < r->count;
}

/* Sets numbers begin .. end-1 as present; without any, nothing before them is missed either. */
static void set_numbers(attn_cache *c, int64_t q, int64_t begin, int64_t end,
                        int64_t overwritten_below)
{
    c->overwritten_below[q] = begin == end ? 0 : overwritten_below;
    c->begin[q] = begin;
    c->end[q] = end;
    c->length[q] = (int32_t)(end - begin);
    c->first_row[q] = (int32_t)(begin % c->rows);
}

static int32_t take_page(attn_cache *c)
{
    const int32_t page = c->free_pages[--c->num_free];
    c->uses[page] = 1;
    return page;
}

static void leave_page(attn_cache *c, int32_t page)
{
    if (--c->uses[page] == 0)
        c->free_pages[c->num_free++] = page;
}

/* These rows of all layers. */
static void copy_entry(const attn_cache *c, cache_place from, int64_t to, int64_t rows)
{
    cache_place target = from;
    int64_t layer;
    int side;
    target.entry = to;
    for (layer = 0; layer < c->num_layers; layer++)
        for (side = 0; side < CACHE_SIDES; side++) {
            const attn_output o = layer_of(c, side, layer);
            const attn_tensor t = as_tensor(&o);
            copy_heads(&o, target, &t, from, c->num_heads_kv, rows, dim_of(c, side));
        }
}

/* Pages without a key of begin .. end-1 are given back. */
static void drop_pages(attn_cache *c, int64_t q)
{
    const page_range kept = pages_of(c, c->begin[q], c->length[q]);
    int32_t *table = table_of(c, q);
    int64_t i;
    for (i = 0; i < c->pages_per_sequence; i++)
        if (table[i] >= 0 && !has_page(c, &kept, i)) {
            leave_page(c, table[i]);
            table[i] = -1;
        }
}

/* ------------------------------------------------------------------------------------------------
 * 4  Steps
 * --------------------------------------------------------------------------------------------- */

/* What one batch entry of a step brings. */
typedef struct cache_part {
    int64_t sequence, count;
    cache_place from; /* of k and v, where its rows begin */
} cache_part;

/* Rows of k and v that are entry b's, in use or not. */
static int64_t rows_given(const attn_cache_step *s, int64_t b)
{
    return s->cu_seqlens ? (int64_t)s->cu_seqlens[b + 1] - s->cu_seqlens[b] : s->seq_len;
}

static cache_part part_of(const attn_cache_step *s, int64_t b)
{
    cache_part part;
    part.sequence = entry32(s->sequences, b, b);
    part.count = entry32(s->len, b, rows_given(s, b));
    part.from.entry = s->cu_seqlens ? 0 : b;
    part.from.row = entry32(s->cu_seqlens, b, 0);
    return part;
}

static attn_status check_cache(const attn_cache *c, text *why)
{
    if (!c)
        return bad(why, ATTN_ERR_ARG, "cache is NULL");
    if (!c->begin || c->rows < 1)
        return bad(why, ATTN_ERR_ARG, "cache is not ready: call attn_cache_init first");
    return ATTN_OK;
}

/* "name (value) must be from 0 to `most`" */
static attn_status check_index(const char *name, int64_t value, int64_t most, text *why)
{
    if (value >= 0 && value <= most)
        return ATTN_OK;
    bad_field(why, ATTN_ERR_ARG, name, value, " must be from 0 to ");
    put_int(why, most);
    return ATTN_ERR_ARG;
}

static attn_status check_layer(const attn_cache *c, int64_t layer, text *why)
{
    return check_index("layer", layer, c->num_layers - 1, why);
}

static attn_status check_sequence(const attn_cache *c, const char *name, int64_t q, text *why)
{
    return check_index(name, q, c->num_sequences - 1, why);
}

static attn_status check_chosen(const attn_cache *c, const int32_t *sequences, int64_t batch,
                                text *why)
{
    int64_t b;
    if (batch < 0)
        return bad_field(why, ATTN_ERR_ARG, "batch", batch, " must be at least 0");
    if (!sequences && batch > c->num_sequences) {
        bad_field(why, ATTN_ERR_ARG, "batch", batch, " must be at most num_sequences");
        put_field(why, "", c->num_sequences);
        return ATTN_ERR_ARG;
    }
    for (b = 0; sequences && b < batch; b++)
        if (sequences[b] < 0 || sequences[b] >= c->num_sequences) {
            bad_entry(why, "sequences", b, sequences[b], " must be from 0 to num_sequences - 1, ");
            put_int(why, c->num_sequences - 1);
            return ATTN_ERR_ARG;
        }
    return ATTN_OK;
}

/* Each sequence at most once. As long as they ascend there is nothing to compare. */
static attn_status check_distinct(const int32_t *sequences, int64_t batch, text *why)
{
    int64_t b, i, top = -1;
    for (b = 0; sequences && b < batch; b++) {
        for (i = 0; sequences[b] <= top && i < b; i++)
            if (sequences[i] == sequences[b])
                return bad_entry(why, "sequences", b, sequences[b],
                                 " is there twice: a step has each sequence once");
        top = max64(top, sequences[b]);
    }
    return ATTN_OK;
}

static attn_status check_step(const attn_cache *c, const attn_cache_step *s, text *why)
{
    attn_status status;
    int64_t b;
    if (!s)
        return bad(why, ATTN_ERR_ARG, "step is NULL");
    if (s->seq_len < 0 || s->seq_len > MOST)
        return bad_field(why, ATTN_ERR_ARG, "seq_len", s->seq_len,
                         s->seq_len < 0 ? " must be at least 0" : " is no length in memory");
    status = check_chosen(c, s->sequences, s->batch, why);
    if (!status)
        status = check_distinct(s->sequences, s->batch, why);
    if (!status && s->batch)
        status = check_cu_seqlens("cu_seqlens", s->cu_seqlens, s->batch, s->seq_len, why);
    for (b = 0; s->len && b < s->batch && !status; b++)
        if (s->len[b] < 0 || s->len[b] > rows_given(s, b)) {
            status = bad_entry(why, "len", b, s->len[b], " must be from 0 to ");
            put_int(why, rows_given(s, b));
        }
    return status;
}

static void put_new_keys(const attn_cache *c, const cache_part *part, text *why)
{
    put(why, "sequence ");
    put_int(why, part->sequence);
    put(why, " with ");
    put_int(why, c->length[part->sequence]);
    put(why, " keys and ");
    put_int(why, part->count);
    put(why, " new ones: ");
}

static attn_status check_room(const attn_cache *c, const cache_part *part, text *why)
{
    const int64_t present = c->length[part->sequence];
    const int64_t longest = c->rows - min64(c->window_left, present);
    if (part->count <= (c->ring ? longest : c->capacity - present))
        return ATTN_OK;
    put_new_keys(c, part, why);
    if (!c->ring)
        return bad_field(why, ATTN_ERR_FULL, "capacity", c->capacity, " is exceeded");
    put_field(why, "a ring of rows", c->rows);
    put(why, " with ");
    put_field(why, "window_left", c->window_left);
    put(why, " takes at most ");
    put_int(why, longest);
    return bad(why, ATTN_ERR_FULL, " in one step");
}

/* Whether all other sequences that have this page are earlier entries of the step and write to it,
 * too: then they will have taken copies, and the page is left to entry b. */
static int is_last_user(const attn_cache *c, const attn_cache_step *s, int64_t b, int64_t i,
                        int32_t page)
{
    int64_t others = c->uses[page] - 1, e;
    for (e = 0; e < b && others > 0; e++) {
        const cache_part part = part_of(s, e);
        const page_range r = pages_of(c, c->end[part.sequence], part.count);
        others -= table_of(c, part.sequence)[i] == page && has_page(c, &r, i);
    }
    return others == 0;
}

/* Pages that entry b takes from the free list: for new keys, and for copies of shared pages. */
static int64_t pages_needed(const attn_cache *c, const attn_cache_step *s, int64_t b)
{
    const cache_part part = part_of(s, b);
    const page_range r = pages_of(c, c->end[part.sequence], part.count);
    int64_t needed = 0, n;
    for (n = 0; n < r.count; n++) {
        const int64_t i = nth_page(c, &r, n);
        const int32_t page = table_of(c, part.sequence)[i];
        needed += page < 0 || !is_last_user(c, s, b, i, page);
    }
    return needed;
}

/* Whether the step fits, all of it. */
static attn_status check_fits(const attn_cache *c, const attn_cache_step *s, text *why)
{
    attn_status status = ATTN_OK;
    int64_t b, needed = 0;
    for (b = 0; b < s->batch && !status; b++) {
        const cache_part part = part_of(s, b);
        status = check_room(c, &part, why);
    }
    for (b = 0; c->page_size && b < s->batch && !status; b++)
        needed += pages_needed(c, s, b);
    if (status || needed <= c->num_free)
        return status;
    put_field(why, "num_free", c->num_free);
    put(why, " of ");
    put_field(why, "num_pages", c->num_pages);
    put(why, " is too few: the step needs ");
    put_int(why, needed);
    return bad(why, ATTN_ERR_FULL, " pages");
}

/* k or v of a step with its strides resolved. */
static attn_tensor input_of(const attn_cache *c, const attn_cache_step *s, int side)
{
    attn_tensor t = side == CACHE_K ? s->k : s->v;
    RESOLVE_STRIDES(t, s->cu_seqlens != NULL, c->num_heads_kv, s->seq_len, dim_of(c, side));
    return t;
}

/* "k.dtype (2) must be f32 (0) or as stored (1)" */
static attn_status check_dtype(const char *name, int dtype, int stored, text *why)
{
    if (dtype == ATTN_F32 || dtype == stored)
        return ATTN_OK;
    put(why, name);
    bad_field(why, ATTN_ERR_ARG, ".dtype", dtype, " must be f32 (0) or as stored ");
    put(why, "(");
    put_int(why, stored);
    put(why, ")");
    return ATTN_ERR_ARG;
}

static attn_status check_input(const attn_cache *c, const attn_cache_step *s, int side, text *why)
{
    const attn_tensor t = input_of(c, s, side);
    const ptrdiff_t stride[4] = { t.stride_batch, t.stride_head, t.stride_seq, 1 };
    const int64_t batch = s->cu_seqlens ? 1 : s->batch;
    attn_status status = check_dtype(side_names[side], t.dtype, storage_of(c, side)->dtype, why);
    if (status)
        return status;
    if (!t.data && s->batch && s->seq_len) {
        put(why, side_names[side]);
        return bad(why, ATTN_ERR_ARG, ".data is NULL");
    }
    return check_extent(side_names[side], (int64_t)bytes_of(t.dtype), batch, c->num_heads_kv,
                        s->seq_len, dim_of(c, side), stride, why);
}

/* First of a part's positions; NULL = its keys' numbers. */
static const int64_t *positions_of(const attn_cache_step *s, cache_place from)
{
    return s->positions ? s->positions + from.entry * s->seq_len + from.row : NULL;
}

static attn_status check_positions_given(const attn_cache_step *s, text *why)
{
    const ptrdiff_t stride[4] = { (ptrdiff_t)s->seq_len, 0, 1, 1 };
    if (!s->positions)
        return ATTN_OK;
    if (!s->rope)
        return bad(why, ATTN_ERR_ARG, "positions are given, but rope is NULL");
    return check_extent("positions", sizeof(int64_t), s->cu_seqlens ? 1 : s->batch, 1, s->seq_len,
                        1, stride, why);
}

/* Rows without a head: attn_rope_apply looks at the rope and at positions, and turns nothing. */
static attn_rope_rows no_heads(const attn_cache *c, const attn_cache_step *s)
{
    attn_rope_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.batch = 1;
    rows.head_dim = c->head_dim;
    rows.x.dtype = s->k.dtype;
    rows.y.dtype = c->k.dtype;
    return rows;
}

/* Keys of the part have numbers from `first` on. Works on a copy of *why, so that the sequence is
 * named only before a complaint. */
static attn_status check_turning_part(const attn_cache *c, const attn_cache_step *s,
                                      const cache_part *part, int64_t first, text why)
{
    attn_rope_rows rows = no_heads(c, s);
    rows.seq_len = part->count;
    rows.positions = positions_of(s, part->from);
    rows.first = rows.positions ? NULL : &first;
    put(&why, "keys of sequence ");
    put_int(&why, part->sequence);
    put(&why, ": ");
    return attn_rope_apply(s->rope, &rows, why.at, why.left);
}

static attn_status check_turning(const attn_cache *c, const attn_cache_step *s, int extended,
                                 text *why)
{
    attn_status status = check_positions_given(s, why);
    int64_t b;
    if (!status && s->rope) {
        const attn_rope_rows none = no_heads(c, s);
        status = attn_rope_apply(s->rope, &none, why->at, why->left);
    }
    for (b = 0; s->rope && b < s->batch && !status; b++) {
        const cache_part part = part_of(s, b);
        const int64_t end = c->end[part.sequence];
        status = check_turning_part(c, s, &part, extended ? end - part.count : end, *why);
    }
    return status;
}

static attn_status check_inputs(const attn_cache *c, const attn_cache_step *s, int extended,
                                text *why)
{
    attn_status status = check_input(c, s, CACHE_K, why);
    if (!status)
        status = check_input(c, s, CACHE_V, why);
    if (!status)
        status = check_turning(c, s, extended, why);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 5  Extending, writing
 * --------------------------------------------------------------------------------------------- */

/* A page of its own for each place that new keys go to. */
static void own_pages(attn_cache *c, const cache_part *part)
{
    const page_range r = pages_of(c, c->end[part->sequence], part->count);
    int32_t *table = table_of(c, part->sequence);
    int64_t n;
    for (n = 0; n < r.count; n++) {
        const int64_t i = nth_page(c, &r, n);
        const int32_t shared = table[i];
        const cache_place whole = { shared, 0 };
        if (shared >= 0 && c->uses[shared] == 1)
            continue;
        table[i] = take_page(c);
        if (shared < 0)
            continue;
        copy_entry(c, whole, table[i], c->page_size);
        leave_page(c, shared);
    }
}

/* Numbers below end - rows make room: their rows are those of the new keys. Only those of
 * them that were present are overwritten, not what the caller had forgotten before. */
static void advance(attn_cache *c, const cache_part *part)
{
    const int64_t q = part->sequence, end = c->end[q] + part->count;
    const int64_t begin = max64(c->begin[q], end - c->rows);
    set_numbers(c, q, begin, end, begin > c->begin[q] ? begin : c->overwritten_below[q]);
}

static void extend_all(attn_cache *c, const attn_cache_step *s)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const cache_part part = part_of(s, b);
        if (c->page_size)
            own_pages(c, &part);
        advance(c, &part);
    }
}

ATTN_API attn_status attn_cache_extend(attn_cache *c, const attn_cache_step *s, char *why_text,
                                       size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    if (!status)
        status = check_step(c, s, &why);
    if (!status)
        status = check_fits(c, s, &why);
    if (status)
        return status;
    extend_all(c, s); /* from here on nothing can fail */
    return done(ATTN_OK, &why);
}

/* Where the rows of a run are in a step: its part is the last part->count numbers. */
static cache_place row_in_step(const attn_cache *c, const cache_part *part, const cache_run *run)
{
    cache_place from = part->from;
    from.row += run->number - (c->end[part->sequence] - part->count);
    return from;
}

/* A stride of 0 that was asked for reads the same row again; in a field it would mean packed. */
static ptrdiff_t as_field(ptrdiff_t stride)
{
    return stride ? stride : ATTN_STRIDE_BROADCAST;
}

static void turn_run(const attn_cache *c, int64_t layer, const attn_cache_step *s, cache_place from,
                     const cache_run *run)
{
    attn_rope_rows rows = no_heads(c, s);
    rows.num_heads = c->num_heads_kv;
    rows.seq_len = run->rows;
    rows.x = input_of(c, s, CACHE_K);
    rows.x.data = (const char *)rows.x.data + BYTES_TO(rows.x, from, 0);
    rows.x.stride_head = as_field(rows.x.stride_head);
    rows.x.stride_seq = as_field(rows.x.stride_seq);
    rows.y = layer_of(c, CACHE_K, layer);
    rows.y.data = (char *)rows.y.data + BYTES_TO(rows.y, run->at, 0);
    rows.positions = positions_of(s, from);
    rows.first = rows.positions ? NULL : &run->number;
    attn_rope_apply(s->rope, &rows, NULL, 0); /* its arguments have been looked at */
}

static void copy_run(const attn_cache *c, int64_t layer, const attn_cache_step *s, cache_place from,
                     const cache_run *run, int side)
{
    const attn_output o = layer_of(c, side, layer);
    const attn_tensor t = input_of(c, s, side);
    copy_heads(&o, run->at, &t, from, c->num_heads_kv, run->rows, dim_of(c, side));
}

static void write_part(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                       const cache_part *part)
{
    const int64_t end = c->end[part->sequence];
    cache_run run = run_before(end - part->count);
    while (next_run(c, part->sequence, end, &run)) {
        const cache_place from = row_in_step(c, part, &run);
        if (s->rope)
            turn_run(c, layer, s, from, &run);
        else
            copy_run(c, layer, s, from, &run, CACHE_K);
        copy_run(c, layer, s, from, &run, CACHE_V);
    }
}

static void write_all(const attn_cache *c, int64_t layer, const attn_cache_step *s)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const cache_part part = part_of(s, b);
        write_part(c, layer, s, &part);
    }
}

/* Whether other sequences have pages of a part's last keys: a fork before they were written. */
static int is_shared(const attn_cache *c, const cache_part *part)
{
    page_range r;
    int64_t n;
    if (!c->page_size)
        return 0;
    r = pages_of(c, c->end[part->sequence] - part->count, part->count);
    for (n = 0; n < r.count; n++)
        if (c->uses[table_of(c, part->sequence)[nth_page(c, &r, n)]] > 1)
            return 1;
    return 0;
}

static attn_status check_extended(const attn_cache *c, const attn_cache_step *s, text *why)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const cache_part part = part_of(s, b);
        if (part.count > c->length[part.sequence]) {
            put_new_keys(c, &part, why);
            return bad(why, ATTN_ERR_ARG, "call attn_cache_extend with this step first");
        }
        if (is_shared(c, &part)) {
            put_new_keys(c, &part, why);
            return bad(why, ATTN_ERR_ARG,
                       "other sequences share their pages: write all layers "
                       "before attn_cache_fork");
        }
    }
    return ATTN_OK;
}

ATTN_API attn_status attn_cache_write(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                                      char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    if (!status)
        status = check_layer(c, layer, &why);
    if (!status)
        status = check_step(c, s, &why);
    if (!status)
        status = check_extended(c, s, &why);
    if (!status)
        status = check_inputs(c, s, 1, &why);
    if (status)
        return status;
    write_all(c, layer, s);
    return done(ATTN_OK, &why);
}

ATTN_API attn_status attn_cache_append(attn_cache *c, const attn_cache_step *s, char *why_text,
                                       size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    if (!status && c->num_layers != 1)
        return bad_field(&why, ATTN_ERR_ARG, "num_layers", c->num_layers,
                         ": call attn_cache_extend, then attn_cache_write for each layer");
    if (!status)
        status = check_step(c, s, &why);
    if (!status)
        status = check_inputs(c, s, 0, &why);
    if (!status)
        status = check_fits(c, s, &why);
    if (status)
        return status;
    extend_all(c, s); /* from here on nothing can fail */
    write_all(c, 0, s);
    return done(ATTN_OK, &why);
}

/* ------------------------------------------------------------------------------------------------
 * 6  Trim and fork
 * --------------------------------------------------------------------------------------------- */

/* first .. end-1, if there is one, must be present; so must first, unless it is the end. */
static attn_status check_present(const attn_cache *c, int64_t q, const char *first_name,
                                 int64_t first, const char *end_name, int64_t end, text *why)
{
    if (first <= end && first >= c->begin[q] && end <= c->end[q])
        return ATTN_OK;
    put_field(why, first_name, first);
    put(why, " and ");
    put_field(why, end_name, end);
    put(why, " must ascend from ");
    put_int(why, c->begin[q]);
    put(why, " to ");
    put_int(why, c->end[q]);
    put(why, ", the numbers present in sequence ");
    put_int(why, q);
    return ATTN_ERR_ARG;
}

/* Going back to `end` in a ring: a query there would look at numbers from end - window_left on. A
 * begin beyond what it has overwritten says that all before it is forgotten. */
static attn_status check_rollback(const attn_cache *c, int64_t q, int64_t begin, int64_t end,
                                  text *why)
{
    const int64_t gone = c->overwritten_below[q];
    if (begin == end || begin > gone || gone == 0 || gone <= end - c->window_left)
        return ATTN_OK;
    put_field(why, "end", end);
    put(why, " must be at least ");
    put_int(why, gone + c->window_left);
    put(why, ": ");
    put_field(why, "window_left", c->window_left);
    put(why, " keys before it are needed, and the ring has overwritten those below ");
    put_int(why, gone);
    return ATTN_ERR_ARG;
}

ATTN_API attn_status attn_cache_trim(attn_cache *c, int64_t q, int64_t begin, int64_t end,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    const int restart = begin == 0 && end == 0;
    attn_status status = check_cache(c, &why);
    if (!status)
        status = check_sequence(c, "sequence", q, &why);
    if (!status && !restart)
        status = check_present(c, q, "begin", begin, "end", end, &why);
    if (!status && !restart)
        status = check_rollback(c, q, begin, end, &why);
    if (status)
        return status;
    set_numbers(c, q, begin, end, c->overwritten_below[q]);
    if (c->page_size)
        drop_pages(c, q);
    return done(ATTN_OK, &why);
}

static void share_pages(attn_cache *c, int64_t from, int64_t to)
{
    const page_range r = pages_of(c, c->begin[to], c->length[to]);
    int64_t n;
    for (n = 0; n < r.count; n++) {
        const int64_t i = nth_page(c, &r, n);
        const int32_t page = table_of(c, from)[i];
        table_of(c, to)[i] = page;
        c->uses[page]++;
    }
}

/* Keys of an unpaged cache have the same rows in both sequences. */
static void copy_keys(const attn_cache *c, int64_t from, int64_t to)
{
    cache_run run = run_before(c->begin[to]);
    while (next_run(c, from, c->end[to], &run))
        copy_entry(c, run.at, to, run.rows);
}

ATTN_API attn_status attn_cache_fork(attn_cache *c, int64_t from, int64_t to, int64_t end,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    if (!status)
        status = check_sequence(c, "from", from, &why);
    if (!status)
        status = check_sequence(c, "to", to, &why);
    if (!status && from == to)
        return bad_field(&why, ATTN_ERR_ARG, "to", to, " must be another sequence than from");
    if (!status && c->length[to])
        return bad_field(&why, ATTN_ERR_ARG, "to", to,
                         " must be empty: call attn_cache_trim(c, to, 0, 0, ...) first");
    if (!status)
        status = check_present(c, from, "begin", c->begin[from], "end", end, &why);
    if (!status)
        status = check_rollback(c, from, c->begin[from], end, &why);
    if (status)
        return status;
    set_numbers(c, to, c->begin[from], end, c->overwritten_below[from]);
    if (c->page_size)
        share_pages(c, from, to);
    else
        copy_keys(c, from, to);
    return done(ATTN_OK, &why);
}

/* ------------------------------------------------------------------------------------------------
 * 7  Views and reading
 * --------------------------------------------------------------------------------------------- */

/* Offsets of a view's arrays in the caller's memory. */
typedef struct view_memory {
    int64_t key_base, kv_len, begin, table, bytes;
} view_memory;

static int64_t view_pages(const attn_cache *c)
{
    return c->page_size ? c->pages_per_sequence : 1;
}

static view_memory place_view(const attn_cache *c, int64_t batch)
{
    view_memory m;
    int64_t at = 0;
    m.key_base = place(&at, batch, sizeof(int64_t));
    m.kv_len = place(&at, batch, sizeof(int32_t));
    m.begin = place(&at, batch, sizeof(int32_t));
    m.table = place(&at, times(batch, view_pages(c)), sizeof(int32_t));
    m.bytes = plus(at, ALIGNMENT - 1);
    return m;
}

static attn_status check_view_size(const attn_cache *c, int64_t batch, text *why)
{
    if (batch < 0)
        return bad_field(why, ATTN_ERR_ARG, "batch", batch, " must be at least 0");
    if (batch > MOST || place_view(c, batch).bytes >= ADDRESS_LIMIT)
        return bad_field(why, ATTN_ERR_OVERFLOW, "batch", batch,
                         ": the view would exceed the address space");
    return ATTN_OK;
}

ATTN_API attn_status attn_cache_view_size(const attn_cache *c, int64_t batch, size_t *bytes,
                                          char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    if (!status && !bytes)
        return bad(&why, ATTN_ERR_ARG, "bytes is NULL");
    if (!status)
        status = check_view_size(c, batch, &why);
    if (!status)
        *bytes = (size_t)place_view(c, batch).bytes;
    return done(status, &why);
}

/* What does not depend on which sequences are chosen. */
static void view_storage(const attn_cache *c, int64_t layer, attn_params *p)
{
    const attn_output k = layer_of(c, CACHE_K, layer), v = layer_of(c, CACHE_V, layer);
    p->num_heads_kv = c->num_heads_kv;
    p->seq_len_kv = c->rows;
    p->head_dim = c->head_dim;
    p->head_dim_v = c->head_dim_v;
    p->k = as_tensor(&k);
    p->v = as_tensor(&v);
    p->kv_begin = NULL;
    p->cu_seqlens_kv = NULL;
    memset(&p->kv_rows, 0, sizeof p->kv_rows);
    p->kv_rows.ring = c->rows;
}

static void view_all(const attn_cache *c, attn_params *p)
{
    p->kv_len = c->length;
    p->key_base = c->begin;
    p->kv_rows.begin = c->first_row;
    p->kv_rows.table = c->table;
    p->kv_rows.page_size = c->page_size;
    p->kv_rows.num_pages = c->num_pages;
}

/* Of a cache that is not paged, each sequence is a page of its own. */
static void view_chosen(const attn_cache *c, const int32_t *sequences, int64_t batch,
                        attn_params *p, char *at)
{
    const view_memory m = place_view(c, batch);
    int64_t *key_base = (int64_t *)(void *)(at + m.key_base);
    int32_t *kv_len = (int32_t *)(void *)(at + m.kv_len);
    int32_t *begin = (int32_t *)(void *)(at + m.begin);
    int32_t *table = (int32_t *)(void *)(at + m.table);
    const int64_t pages = view_pages(c);
    int64_t b;
    for (b = 0; b < batch; b++) {
        const int32_t q = sequences[b];
        key_base[b] = c->begin[q];
        kv_len[b] = c->length[q];
        begin[b] = c->first_row[q];
        memcpy(table + b * pages, c->page_size ? table_of(c, q) : &q,
               (size_t)pages * sizeof *table);
    }
    p->kv_len = kv_len;
    p->key_base = key_base;
    p->kv_rows.begin = begin;
    p->kv_rows.table = table;
    p->kv_rows.page_size = cache_entry_rows(c);
    p->kv_rows.num_pages = cache_entries(c);
}

/* Keys that all sequences of the view have in the same pages from the same number on. */
static int64_t count_shared(const attn_cache *c, const attn_params *p)
{
    const int64_t pages = c->pages_per_sequence;
    int64_t least = p->batch > 1 ? p->kv_len[0] : 0, keys, b;
    const int64_t first = p->batch > 1 ? p->kv_rows.begin[0] : 0;
    for (b = 1; b < p->batch; b++)
        least = p->key_base[b] == p->key_base[0] ? min64(least, p->kv_len[b]) : 0;
    for (keys = 0; keys < least; keys += c->page_size - (first + keys) % c->page_size) {
        const int64_t i = (first + keys) % c->rows / c->page_size;
        for (b = 1; b < p->batch; b++)
            if (p->kv_rows.table[b * pages + i] != p->kv_rows.table[i])
                return keys;
    }
    return min64(keys, least);
}

static attn_status check_window(const attn_cache *c, const attn_params *p, text *why)
{
    if (!c->ring || !p->window || (p->window_left >= 0 && p->window_left <= c->window_left))
        return ATTN_OK;
    bad_field(why, ATTN_ERR_ARG, "p.window_left", p->window_left, " must be from 0 to ");
    put_int(why, c->window_left);
    return bad(why, ATTN_ERR_ARG, ", the window_left of the ring");
}

/* A window that is set, but not on, is left to attn_forward, which refuses it. */
static void view_window(const attn_cache *c, attn_params *p)
{
    if (!c->ring || !c->window_left || p->window || p->window_left || p->window_right)
        return;
    p->window = ATTN_WINDOW;
    p->window_left = c->window_left;
    p->window_right = -1;
}

static attn_status check_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                              int64_t batch, const attn_params *p, size_t room, text *why)
{
    attn_status status = check_cache(c, why);
    if (!status && !p)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    if (!status)
        status = check_layer(c, layer, why);
    if (!status)
        status = check_view_size(c, batch, why);
    if (!status)
        status = check_chosen(c, sequences, batch, why);
    if (!status)
        status = check_window(c, p, why);
    if (!status && sequences && room < (size_t)place_view(c, batch).bytes)
        return too_small_memory(room, place_view(c, batch).bytes,
                                "; attn_cache_view_size says how many", why);
    return status;
}

ATTN_API attn_status attn_cache_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                                     int64_t batch, attn_params *p, void *memory, size_t bytes,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    const size_t room = memory ? bytes : 0;
    const attn_status status = check_view(c, layer, sequences, batch, p, room, &why);
    if (status)
        return status;
    p->batch = batch;
    view_storage(c, layer, p);
    if (sequences)
        view_chosen(c, sequences, batch, p, align_memory(memory));
    else
        view_all(c, p);
    p->shared_keys = c->page_size ? count_shared(c, p) : 0;
    view_window(c, p);
    return done(ATTN_OK, &why);
}

/* One of the outputs of attn_cache_read, its strides resolved in *o. */
static attn_status check_read(const attn_cache *c, int side, int64_t count, attn_output *o,
                              text *why)
{
    ptrdiff_t axes[4] = { 0, 0, 0, 1 };
    attn_status status = check_output_strides(side_names[side], o, why);
    if (!status)
        status = check_dtype(side_names[side], o->dtype, storage_of(c, side)->dtype, why);
    if (status)
        return status;
    RESOLVE_STRIDES(*o, 0, c->num_heads_kv, count, dim_of(c, side));
    axes[1] = o->stride_head;
    axes[2] = o->stride_seq;
    return check_extent(side_names[side], (int64_t)bytes_of(o->dtype), 1, c->num_heads_kv, count,
                        dim_of(c, side), axes, why);
}

static void read_rows(const attn_cache *c, int side, int64_t layer, int64_t q, int64_t first,
                      int64_t count, const attn_output *to)
{
    const attn_output o = layer_of(c, side, layer);
    const attn_tensor t = as_tensor(&o);
    cache_run run = run_before(first);
    cache_place at = { 0, 0 };
    while (to->data && next_run(c, q, first + count, &run)) {
        copy_heads(to, at, &t, run.at, c->num_heads_kv, run.rows, dim_of(c, side));
        at.row += run.rows;
    }
}

ATTN_API attn_status attn_cache_read(const attn_cache *c, int64_t layer, int64_t q, int64_t first,
                                     int64_t count, const attn_output *k, const attn_output *v,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_output to[CACHE_SIDES];
    attn_status status = check_cache(c, &why);
    int side;
    memset(to, 0, sizeof to);
    to[CACHE_K] = k ? *k : to[CACHE_K];
    to[CACHE_V] = v ? *v : to[CACHE_V];
    if (!status)
        status = check_layer(c, layer, &why);
    if (!status)
        status = check_sequence(c, "sequence", q, &why);
    if (!status)
        status = check_index("count", count, c->length[q], &why);
    if (!status)
        status = check_present(c, q, "first", first, "first + count", min64(first, TOO_BIG) + count,
                               &why);
    for (side = 0; side < CACHE_SIDES && !status; side++)
        status = check_read(c, side, count, &to[side], &why);
    for (side = 0; side < CACHE_SIDES && !status; side++)
        read_rows(c, side, layer, q, first, count, &to[side]);
    return done(status, &why);
}
