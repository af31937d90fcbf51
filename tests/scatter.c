/* scatter.c - the keys of a problem moved to where caches keep them: pages, a ring, both.
 * SPDX-License-Identifier: MIT
 *
 * What no key in use needs holds NaN or other numbers, and pages without one are -1 in the table.
 */
#include "oracle.h"
#include "test.h"

#include <string.h>

/* 0..count-1 in random order. */
static int32_t *shuffled(int64_t count)
{
    int32_t *list = test_alloc((size_t)count * sizeof *list);
    for (int64_t n = 0; n < count; n++) {
        const int64_t at = rng_int(0, n);
        list[n] = list[at];
        list[at] = (int32_t)n;
    }
    return list;
}

static int64_t first_column(const attn_params *p, int64_t b)
{
    return p->kv_begin != NULL ? p->kv_begin[b] : 0;
}

/* Row of key j of sequence b, before pages. */
static int64_t row_of(const attn_params *p, int64_t b, int64_t j)
{
    const attn_rows *rows = &p->kv_rows;
    const int64_t row = first_column(p, b) + j + (rows->begin != NULL ? rows->begin[b] : 0);
    return rows->ring > 0 ? row % rows->ring : row;
}

enum { ANYWHERE = -1 };

/* Some so that a block of keys begins at the end of the ring, or all so that key `before` does. */
static void choose_begin(attn_rows *rows, int64_t batch, int64_t most, int64_t before)
{
    int32_t *begin = test_alloc((size_t)batch * sizeof *begin);
    for (int64_t b = 0; b < batch; b++) {
        const int64_t block = 16 * rng_int(1, 8);
        const int64_t at = before != ANYWHERE ? before : block;
        const int wanted = before != ANYWHERE || rng_chance(40);
        begin[b] = (int32_t)(wanted && at <= most + 1 ? most + 1 - at : rng_int(0, most));
    }
    rows->begin = begin;
}

/* A table with other pages between, and -1 where no key in use lies; `rows` of each sequence. */
static void choose_pages(attn_params *p, int64_t page_size, int64_t count)
{
    attn_rows *rows = &p->kv_rows;
    const int64_t each = count > 0 ? (count - 1) / page_size + 1 : 0, gap = rng_int(0, 2);
    const int64_t pages = p->batch * each;
    const int32_t *order = shuffled(pages + 3);
    int32_t *table = test_alloc((size_t)(p->batch * (each + gap)) * sizeof *table);
    for (int64_t n = 0; n < p->batch * (each + gap); n++)
        table[n] = -1;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t j = 0; j < oracle_keys(p, b); j++) {
            const int64_t page = row_of(p, b, j) / page_size;
            table[b * (each + gap) + page] = order[b * each + page];
        }
    rows->page_size = page_size;
    rows->num_pages = pages + 3;
    rows->table = table;
    rows->table_stride = gap > 0 || rows->ring == 0 ? (ptrdiff_t)(each + gap) : 0;
}

/* Entry and row of k and v that key j of sequence b has; `rows` of each sequence. */
static void find_key(const attn_params *p, int64_t rows, int64_t b, int64_t j, int64_t *entry,
                     int64_t *row)
{
    const attn_rows *place = &p->kv_rows;
    const int64_t size = place->page_size;
    int64_t each = place->table_stride;
    *entry = b;
    *row = row_of(p, b, j);
    if (size == 0)
        return;
    each = each != 0 ? each : (rows - 1) / size + 1;
    *entry = place->table[b * each + *row / size];
    *row %= size;
}

/* Copies the keys in use to a tensor of their own, which becomes *t. */
static void move_keys(const attn_params *from, const attn_params *to, test_tensor *t, int64_t rows)
{
    static const int64_t layouts[] = { LAYOUT_PACKED,  LAYOUT_BHSD, LAYOUT_BSHD,
                                       LAYOUT_PADDED,  LAYOUT_QKV,  LAYOUT_NEGATIVE_SEQ,
                                       LAYOUT_NEGATIVE };
    const attn_rows *place = &to->kv_rows;
    const int paged = place->page_size > 0, packed = from->cu_seqlens_kv != NULL;
    const test_tensor old = *t;
    tensor_make(t, old.dtype, (int)RNG_PICK(layouts), paged ? place->num_pages : to->batch,
                old.heads, paged ? place->page_size : rows, old.dim);
    if (rng_chance(50))
        tensor_fill_normal(t, 30);
    for (int64_t b = 0; b < to->batch; b++)
        for (int64_t j = 0; j < oracle_keys(to, b); j++) {
            const int64_t begin = packed ? from->cu_seqlens_kv[b] : 0;
            const int64_t old_row = begin + first_column(to, b) + j;
            int64_t entry, row;
            find_key(to, rows, b, j, &entry, &row);
            for (int64_t h = 0; h < old.heads; h++)
                for (int64_t d = 0; d < old.dim; d++)
                    tensor_set(t, entry, h, row, d,
                               tensor_get(&old, packed ? 0 : b, h, old_row, d));
        }
    tensor_remember(t);
}

static void scatter(test_problem *t, int64_t page_size, int ring, int64_t before)
{
    const attn_params from = t->p;
    attn_params *p = &t->p;
    int64_t rows = p->seq_len_kv + rng_int(0, 20);
    if (p->cu_seqlens_kv != NULL) {
        int32_t *length = test_alloc((size_t)p->batch * sizeof *length);
        for (int64_t b = 0; b < p->batch; b++)
            length[b] = (int32_t)oracle_keys(&from, b);
        p->kv_len = length;
        p->cu_seqlens_kv = NULL;
    }
    memset(&p->kv_rows, 0, sizeof p->kv_rows);
    if (ring) {
        p->kv_rows.ring = rows > 0 ? rows : 1;
        choose_begin(&p->kv_rows, p->batch, p->kv_rows.ring - 1, before);
    }
    if (page_size > 0)
        choose_pages(p, page_size, rows);
    else if (!ring)
        rows = p->seq_len_kv;
    move_keys(&from, p, &t->k, rows);
    move_keys(&from, p, &t->v, rows);
    p->k = tensor_input(&t->k);
    p->v = tensor_input(&t->v);
}

void problem_scatter(test_problem *t, int64_t page_size, int ring)
{
    scatter(t, page_size, ring, ANYWHERE);
}

void problem_ring(test_problem *t, int64_t page_size, int64_t before)
{
    scatter(t, page_size, 1, before);
}
