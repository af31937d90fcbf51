/* src/cache/pages.c - rows and pages of a cache: where a number lies; pages taken, shared, given back.
 * SPDX-License-Identifier: MIT
 *
 * Where a key lies is computed in two places: here for writing (next_run, cache_place), from the
 * cache's own state, and in keys.c for attention (key_at, key_place), from the kv_rows of a view,
 * which may be another library's arrays.
 */
#pragma once

#include "shape.c"

static int32_t *table_of(const attn_cache *c, int64_t q)
{
    return c->table + q * c->pages_per_sequence;
}

/* A cache_run is numbers that lie one after the other in an entry; rows = 0 means that it stands
 * before the first of them. */
typedef struct cache_run {
    int64_t number, rows;
    cache_place at;
} cache_run;

/* next_run steps to the next run of a sequence's numbers up to end-1, and returns 0 after the
 * last. */
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

/* next_recent is next_run for recent rows. */
static int next_recent(const attn_cache *c, int64_t q, int64_t end, cache_run *run)
{
    run->number += run->rows;
    if (run->number >= end)
        return 0;
    run->at.entry = q;
    run->at.row = run->number % c->recent_rows;
    run->rows = min64(c->recent_rows - run->at.row, end - run->number);
    return 1;
}

/* A page_range is places of a table, which go on from the last to the first. */
typedef struct page_range {
    int64_t first, count;
} page_range;

/* pages_of gives the places of numbers first to first+count-1; count is at most c->rows. */
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

/* set_numbers makes numbers begin to end-1 present. If there are none, no number before them is
 * missed either. The ring of recent rows keeps the last of those that it had and of new ones. */
static void set_numbers(attn_cache *c, int64_t q, int64_t begin, int64_t end,
                        int64_t overwritten_below)
{
    c->overwritten_below[q] = begin == end ? 0 : overwritten_below;
    c->begin[q] = begin;
    c->end[q] = end;
    c->length[q] = (int32_t)(end - begin);
    c->first_row[q] = (int32_t)(begin % c->rows);
    if (c->recent)
        c->recent_begin[q] = max64(min64(c->recent_begin[q], end), end - c->recent_rows);
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

/* copy_entry copies these rows in all layers. */
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
            copy_heads(&o, target, &t, from, c->num_heads_kv, rows, side_of(c, side).dim,
                       &no_scales);
        }
}

/* drop_pages gives back pages without a key of begin to end-1. */
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
