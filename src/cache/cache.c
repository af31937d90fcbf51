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

/* check_rollback refuses to go back to `end` in a ring if a query there, which looks at numbers
 * from end - window_left on, would miss some. A begin beyond what the ring has overwritten says
 * that all before it is forgotten. */
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
 * Views and reading
 * --------------------------------------------------------------------------------------------- */

/* A view_memory holds the offsets of a view's arrays in the caller's memory. */
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

/* view_storage sets what does not depend on which sequences are chosen. */
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

/* view_chosen treats each sequence of a cache that is not paged as a page of its own. */
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
    if (!c->ring || !p->window || (p->window_left >= 0 && p->window_left <= c->window_left))
        return ATTN_OK;
    bad_field(why, ATTN_ERR_ARG, "p.window_left", p->window_left, " must be from 0 to ");
    put_int(why, c->window_left);
    return bad(why, ATTN_ERR_ARG, ", the window_left of the ring");
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

/* check_read checks one of the outputs of attn_cache_read and resolves its strides in *o. */
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
