/* src/keys.c - where key j of a sequence lies: rings, pages and p.recent are known here alone.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "call.h"
#include "sizes.c"

/* A key_place is where a key of a sequence lies. Only the functions of this file know
 * that. */
typedef struct key_place {
    int64_t in_sequence; /* It is the row before pages. */
    int64_t table_entry; /* It is the entry that names the page. */
    int64_t entry, row;  /* entry is a batch entry or a page of k and v, and row is a row in it. */
    int64_t left;        /* This and the next left - 1 rows lie one after the other. */
    int64_t listed;      /* It is the place of the key in a list of keys. */
} key_place;

/* enter_run goes to row at->in_sequence: with pages, to slot `slot` of the page of
 * at->table_entry. */
static void enter_run(const attn_rows *rows, key_place *at, int64_t slot)
{
    at->left = rows->ring ? rows->ring - at->in_sequence : INT64_MAX;
    at->row = at->in_sequence;
    if (!rows->page_size)
        return;
    at->entry = rows->table[at->table_entry];
    at->row = slot;
    at->left = min64(at->left, rows->page_size - slot);
}

static key_place key_at(const attn_params *p, const attn_sequence *s, int64_t j)
{
    const attn_rows *rows = &p->kv_rows;
    key_place at = { .in_sequence = s->kv_row + j, .entry = s->b };
    int64_t page = 0;
    if (rows->ring && at.in_sequence >= rows->ring)
        at.in_sequence -= rows->ring;
    if (rows->page_size) {
        page = at.in_sequence / rows->page_size;
        at.table_entry = s->b * rows->table_stride + page;
    }
    enter_run(rows, &at, at.in_sequence - page * rows->page_size);
    return at;
}

/* The place behind those that lie one after the other: key_at without a division. */
static void next_place(const attn_params *p, const attn_sequence *s, key_place *at)
{
    const attn_rows *rows = &p->kv_rows;
    at->in_sequence += at->left;
    at->table_entry++;
    if (rows->ring && at->in_sequence == rows->ring) {
        at->in_sequence = 0;
        at->table_entry = s->b * rows->table_stride;
    }
    enter_run(rows, at, 0);
}

/* The next row of those that lie one after the other; behind the last one `left` is 0. */
static inline void next_row(key_place *at)
{
    at->in_sequence++;
    at->row++;
    at->left--;
}

/* listed_at tells where the key at a place of the list lies. */
static key_place listed_at(const attn_params *p, const attn_sequence *s, key_numbers list,
                           int64_t place)
{
    key_place at = key_at(p, s, list.at[place]);
    at.listed = place;
    return at;
}

/* next_listed goes to the next place of the list. It returns how many rows further that key lies, or
 * 0 if it lies elsewhere; within a page it is found without key_at, which divides. */
static inline int64_t next_listed(const attn_params *p, const attn_sequence *s, key_numbers list,
                                  key_place *at)
{
    const int32_t *number = list.at + at->listed + 1;
    const int64_t gap = number[0] - number[-1];
    if (gap >= at->left) {
        *at = listed_at(p, s, list, at->listed + 1);
        return 0;
    }
    at->listed++;
    at->in_sequence += gap;
    at->row += gap;
    at->left -= gap;
    return gap;
}

/* versions_of counts the versions of keys that a call may read. */
static int versions_of(const attn_params *p)
{
    return p->recent.keys ? VERSIONS : 1;
}

/* The row at pos reads keys from recent_from on from p.recent. */
static int64_t recent_from(const attn_params *p, int64_t pos)
{
    return p->recent.keys ? pos - p->recent.keys + 1 : INT64_MAX;
}

/* recent_at tells where key j lies in p.recent. */
static key_place recent_at(const attn_params *p, const attn_sequence *s, int64_t j)
{
    key_place at = { .entry = p->recent.entries ? p->recent.entries[s->b] : s->b };
    at.row = (s->key_base + j) % p->recent.ring;
    at.left = p->recent.ring - at.row;
    return at;
}

/* The place behind those that lie one after the other, in p.recent. */
static void next_recent_place(const attn_params *p, key_place *at)
{
    at->row = 0;
    at->left = p->recent.ring;
}

/* is_scattered tells whether the rows of a sequence may lie in several places. */
static int is_scattered(const attn_params *p)
{
    return p->kv_rows.ring > 0 || p->kv_rows.page_size > 0;
}
