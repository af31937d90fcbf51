/* src/cache/cache.c - trimming, forking, viewing and reading a cache.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "write.c"

/* check_present refuses numbers first to end-1 that are not present; first must be present, too,
 * unless it is the end. */
static attn_status check_present(const attn_cache *c, int64_t q, const char *first_name,
                                 int64_t first, const char *end_name, int64_t end, text *why)
{
    const int64_t values[] = { end, c->begin[q], c->end[q], q };
    if (first <= end && first >= c->begin[q] && end <= c->end[q])
        return ATTN_OK;
    bad_field(why, ATTN_ERR_ARG, first_name, first, " and ");
    put(why, end_name);
    return bad_numbers(why, ATTN_ERR_ARG,
                       " (#) must ascend from # to #, the numbers present in sequence #", values);
}

/* check_rollback refuses to go back to `end` in a ring if a query there, which looks at numbers
 * from end - window_left on, would miss some. A begin beyond what the ring has overwritten says
 * that all before it is forgotten. */
static attn_status check_rollback(const attn_cache *c, int64_t q, int64_t begin, int64_t end,
                                  text *why)
{
    const int64_t gone = c->overwritten_below[q];
    const int64_t values[] = { end, gone + c->window_left, c->window_left, gone };
    if (begin == end || begin > gone || gone == 0 || gone <= end - c->window_left)
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "end (#) must be at least #: window_left (#) keys before it are needed, and "
                       "the ring has overwritten those below #",
                       values);
}

/* check_recent_kept refuses an end whose next row would read recent keys that are overwritten. */
static attn_status check_recent_kept(const attn_cache *c, int64_t q, int64_t begin, int64_t end,
                                     text *why)
{
    const int64_t before = keys_before(c), least = before ? c->recent_begin[q] + before : 0;
    if (!before || begin == end || end >= least || begin >= c->recent_begin[q])
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "end (#) must be at least #: # keys before it are read from the ring of "
                       "recent_rows (#), which has overwritten those below #",
                       NUMBERS(end, least, before, c->recent_rows, c->recent_begin[q]));
}

ATTN_API attn_status attn_cache_trim(attn_cache *c, int64_t q, int64_t begin, int64_t end,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    status = status ? status : check_sequence(c, "sequence", q, &why);
    if (begin || end) { /* It is no new start. */
        status = status ? status : check_present(c, q, "begin", begin, "end", end, &why);
        status = status ? status : check_rollback(c, q, begin, end, &why);
        status = status ? status : check_recent_kept(c, q, begin, end, &why);
    }
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
    cache_run run = { .number = c->begin[to] };
    while (next_run(c, from, c->end[to], &run))
        copy_entry(c, run.at, to, run.rows);
}

/* copy_recent copies the recent rows, which have the same places in both sequences. */
static void copy_recent(const attn_cache *c, int64_t from, int64_t to)
{
    int64_t layer;
    int side;
    for (layer = 0; layer < c->num_layers; layer++)
        for (side = 0; side < CACHE_SIDES; side++) {
            const attn_output o = recent_of(c, side, layer);
            const attn_tensor t = as_tensor(&o);
            cache_run run = { .number = max64(c->recent_begin[to], c->begin[to]) };
            while (next_recent(c, from, c->end[to], &run)) {
                const cache_place target = { to, run.at.row };
                copy_heads(&o, target, &t, run.at, c->num_heads_kv, run.rows, side_of(c, side).dim,
                           &no_scales);
            }
        }
}

ATTN_API attn_status attn_cache_fork(attn_cache *c, int64_t from, int64_t to, int64_t end,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    status = status ? status : check_sequence(c, "from", from, &why);
    status = status ? status : check_sequence(c, "to", to, &why);
    if (!status && from == to)
        return bad_field(&why, ATTN_ERR_ARG, "to", to, " must be another sequence than from");
    if (!status && c->length[to])
        return bad_field(&why, ATTN_ERR_ARG, "to", to,
                         " must be empty: call attn_cache_trim(c, to, 0, 0, ...) first");
    status = status ? status : check_present(c, from, "begin", c->begin[from], "end", end, &why);
    status = status ? status : check_rollback(c, from, c->begin[from], end, &why);
    status = status ? status : check_recent_kept(c, from, c->begin[from], end, &why);
    if (status)
        return status;
    if (c->recent)
        c->recent_begin[to] = c->recent_begin[from];
    set_numbers(c, to, c->begin[from], end, c->overwritten_below[from]);
    if (c->recent)
        copy_recent(c, from, to);
    if (c->page_size)
        share_pages(c, from, to);
    else
        copy_keys(c, from, to);
    return done(ATTN_OK, &why);
}

/* ---- views and reading */

/* chosen_of makes a cache of `batch` sequences without its arrays, in which each sequence of a cache
 * that is not paged is a page of its own. */
static attn_cache chosen_of(const attn_cache *c, int64_t batch)
{
    attn_cache chosen = *c;
    chosen.num_sequences = batch;
    chosen.pages_per_sequence = max64(c->pages_per_sequence, 1);
    chosen.page_size = cache_entry_rows(c);
    chosen.num_pages = cache_entries(c);
    return chosen;
}

static int64_t view_bytes(const attn_cache *c, int64_t batch)
{
    attn_cache chosen = chosen_of(c, batch);
    return place_arrays(&chosen, VIEW_ARRAYS, NULL);
}

static attn_status check_view_size(const attn_cache *c, int64_t batch, text *why)
{
    if (batch < 0)
        return bad_field(why, ATTN_ERR_ARG, "batch", batch, " must be at least 0");
    if (view_bytes(c, batch) >= ADDRESS_LIMIT)
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
    status = status ? status : check_view_size(c, batch, &why);
    if (!status)
        *bytes = (size_t)view_bytes(c, batch);
    return done(status, &why);
}

/* copy_chosen makes a cache of chosen sequences, whose arrays lie in `memory`. */
static attn_cache copy_chosen(const attn_cache *c, const int32_t *sequences, int64_t batch,
                              const void *memory)
{
    attn_cache chosen = chosen_of(c, batch);
    int64_t b;
    place_arrays(&chosen, VIEW_ARRAYS, memory);
    for (b = 0; b < batch; b++) {
        const int32_t q = sequences[b];
        chosen.begin[b] = c->begin[q];
        chosen.length[b] = c->length[q];
        chosen.first_row[b] = c->first_row[q];
        if (c->recent) {
            chosen.recent_begin[b] = c->recent_begin[q];
            chosen.recent_entries[b] = q;
        }
        memcpy(table_of(&chosen, b), c->page_size ? table_of(c, q) : &q,
               (size_t)chosen.pages_per_sequence * sizeof q);
    }
    return chosen;
}

/* view_scales shows a layer's scales, which keys share, as sequences or pages do. */
static attn_scales view_scales(const attn_cache *c, int side, int64_t layer)
{
    attn_scales x = *given_scales(c, side);
    if (!x.data)
        return no_scales;
    x.data = scales_of_layer(c, side, layer).data;
    x.stride_batch = x.stride_seq = ATTN_STRIDE_BROADCAST;
    return x;
}

static void view_storage(const attn_cache *c, int64_t layer, attn_params *p)
{
    const attn_output k = layer_of(c, CACHE_K, layer), v = layer_of(c, CACHE_V, layer);
    p->num_heads_kv = c->num_heads_kv;
    p->seq_len_kv = c->rows;
    p->head_dim = c->head_dim;
    p->head_dim_v = c->head_dim_v;
    p->k = as_tensor(&k);
    p->v = as_tensor(&v);
    p->k_scales = view_scales(c, CACHE_K, layer);
    p->v_scales = view_scales(c, CACHE_V, layer);
    p->rotated = c->rotated;
    p->k_centered = c->k_mean != NULL;
}

/* view_recent shows a layer of recent rows, with the arrays of the chosen sequences. */
static void view_recent(const attn_cache *c, int64_t layer, const attn_cache *shown, attn_params *p)
{
    static const attn_recent none = { .keys = 0 };
    attn_output k, v;
    p->recent = none;
    if (!c->recent)
        return;
    k = recent_of(c, CACHE_K, layer);
    v = recent_of(c, CACHE_V, layer);
    p->recent.keys = c->recent;
    p->recent.ring = c->recent_rows;
    p->recent.begin = shown->recent_begin;
    p->recent.entries = shown->recent_entries;
    p->recent.num_entries = c->num_sequences;
    p->recent.k = as_tensor(&k);
    p->recent.v = as_tensor(&v);
}

static void view_sequences(const attn_cache *c, int64_t batch, attn_params *p)
{
    const attn_rows rows = { .ring = c->rows,
                             .begin = c->first_row,
                             .page_size = c->page_size,
                             .num_pages = c->num_pages,
                             .table = c->table };
    p->batch = batch;
    p->kv_len = c->length;
    p->kv_begin = NULL;
    p->cu_seqlens_kv = NULL;
    p->key_base = c->begin;
    p->kv_rows = rows;
}

/* count_shared counts the first keys of the view that all its sequences have in one set of pages
 * and with one set of numbers. */
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
    const int64_t values[] = { p->window_left, c->window_left };
    if (!c->ring || !p->window || (p->window_left >= 0 && p->window_left <= c->window_left))
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "p.window_left (#) must be from 0 to #, the window_left of the ring",
                       values);
}

/* view_window leaves a window that is set, but not on, to attn_forward, which refuses it. */
static void view_window(const attn_cache *c, attn_params *p)
{
    if (!c->ring || !c->window_left || p->window || p->window_left || p->window_right)
        return;
    p->window = ATTN_WINDOW;
    p->window_left = c->window_left;
    p->window_right = -1;
}

static attn_status check_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                              int64_t batch, const attn_params *p, text *why)
{
    attn_status status = check_cache(c, why);
    if (!status && !p)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    status = status ? status : check_layer(c, layer, why);
    status = status ? status : check_view_size(c, batch, why);
    status = status ? status : check_chosen(c, sequences, batch, 0, why);
    return status ? status : check_window(c, p, why);
}

ATTN_API attn_status attn_cache_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                                     int64_t batch, attn_params *p, void *memory, size_t bytes,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache shown;
    attn_status status = check_view(c, layer, sequences, batch, p, &why);
    if (!status && sequences) {
        const int64_t need = view_bytes(c, batch);
        status = check_memory(memory, bytes, need, "attn_cache_view_size", &why);
        status = status ? status : check_memory_apart(c, memory, need, &why);
    }
    if (status)
        return status;
    shown = sequences ? copy_chosen(c, sequences, batch, memory) : *c;
    view_storage(c, layer, p);
    view_recent(c, layer, &shown, p);
    view_sequences(&shown, batch, p);
    p->shared_keys = c->page_size ? count_shared(c, p) : 0;
    view_window(c, p);
    return done(ATTN_OK, &why);
}

/* ---- reading */

typedef struct cache_outputs {
    attn_output k, v;
} cache_outputs;

#define AT(member) offsetof(cache_outputs, member)

static const call_field read_fields[] = {
    { TENSOR(k, AXIS_NONE, AXIS_HEAD_KV, AXIS_ROW, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(v, AXIS_NONE, AXIS_HEAD_KV, AXIS_ROW, AXIS_DIM_V, BY_ALL), .output = OUTPUT_RESULT },
};
#undef AT

static attn_status resolve_outputs(const attn_cache *c, int64_t count, cache_outputs *to, text *why)
{
    const call_axes x = axes_of_rows(c, 1, count);
    const int n = COUNT_OF(read_fields);
    const array_set set = { read_fields, n, to, &x, .written = OUTPUT_RESULT };
    attn_tensor k, v;
    attn_status status = check_output_fields(read_fields, n, to, why);
    status = status ? status : check_dtype(c, CACHE_K, to->k.dtype, why);
    status = status ? status : check_dtype(c, CACHE_V, to->v.dtype, why);
    status = status ? status : resolve_arrays(read_fields, n, to, &x, why);
    k = as_tensor(&to->k);
    v = as_tensor(&to->v);
    status = status ? status : check_rows(c, &k, &v, why);
    status = status ? status : check_written(&set, 1, NULL, why);
    return status ? status : check_arrays_apart(c, &set, why);
}

static void read_rows(const attn_cache *c, int side, int64_t layer, int64_t q, int64_t first,
                      int64_t count, const attn_output *to)
{
    const attn_output o = layer_of(c, side, layer);
    const attn_tensor t = as_tensor(&o);
    const attn_scales by = scales_of_layer(c, side, layer);
    cache_run run = { .number = first };
    cache_place at = { 0, 0 };
    while (to->data && next_run(c, q, first + count, &run)) {
        copy_heads(to, at, &t, run.at, c->num_heads_kv, run.rows, side_of(c, side).dim, &by);
        at.row += run.rows;
    }
}

ATTN_API attn_status attn_cache_read(const attn_cache *c, int64_t layer, int64_t q, int64_t first,
                                     int64_t count, const attn_output *k, const attn_output *v,
                                     char *why_text, size_t why_bytes)
{
    static const attn_output unwanted = { 0, 0, 0, 0, NULL };
    text why = text_in(why_text, why_bytes);
    cache_outputs to = { k && k->data ? *k : unwanted, v && v->data ? *v : unwanted };
    attn_status status = check_cache(c, &why);
    status = status ? status : check_layer(c, layer, &why);
    status = status ? status : check_sequence(c, "sequence", q, &why);
    status = status ? status : check_index("count", count, c->length[q], &why);
    if (!status)
        status = check_present(c, q, "first", first, "first + count", min64(first, TOO_BIG) + count,
                               &why);
    status = status ? status : resolve_outputs(c, count, &to, &why);
    if (status)
        return status;
    read_rows(c, CACHE_K, layer, q, first, count, &to.k);
    read_rows(c, CACHE_V, layer, q, first, count, &to.v);
    return done(ATTN_OK, &why);
}
