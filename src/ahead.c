/* src/ahead.c - what a product asks for beside its own work: what the next steps read.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "modifiers.c"

/* rows_ahead gives rows j to end-1 of K or V, none where end <= j, to be asked for ahead of use. It
 * is good until the next call for this slot. */
static attn_ahead rows_ahead(const tile *t, int which, int64_t j, int64_t end)
{
    attn_ahead a = { .lines = 0 };
    attn_runs runs;
    if (j >= end || !list_runs(t, which, j, end - j, t->ahead_runs, &runs))
        return a;
    a.run = runs.run;
    a.row = *runs.run;
    a.stride = runs.stride;
    a.left = runs.first;
    a.each_run = runs.each;
    a.bytes = bytes_between(runs.dtype, row_dim(t, which));
    a.lines = (end - j) * ceil_div(a.bytes, ALIGNMENT);
    return a;
}

/* lanes_ahead gives `bytes` bytes of a row for each used lane, from at(t, lane, j) on. Rows that follow
 * each other and are one, as those of the heads of a group may be, count once. */
static attn_ahead lanes_ahead(const tile *t,
                              const char *(*at)(const tile *t, const lane *l, int64_t j), int64_t j,
                              int64_t bytes)
{
    const char **list = t->ahead_runs;
    int64_t count = 0;
    attn_ahead a = { .left = 1, .each_run = 1, .bytes = bytes, .run = list };
    int r;
    for (r = t->span.begin; r < t->span.end; r++) {
        const lane *l = &t->lanes[r];
        const char *row = l->used ? at(t, l, j) : NULL;
        if (row && (count == 0 || row != list[count - 1]))
            list[count++] = row;
    }
    ATTN_ASSERT(count > 0); /* Some lane sees a key of the tile. */
    list[count] = list[count - 1];
    a.row = *list;
    a.bytes += (int64_t)((uintptr_t)a.row % ALIGNMENT); /* A row may end inside one more line. */
    a.lines = count * ceil_div(a.bytes, ALIGNMENT);
    return a;
}

static const char *bias_row(const tile *t, const lane *l, int64_t j)
{
    const attn_bias *bias = &t->pr->p.bias;
    return (const char *)bias->data + bias_at(t, l, j) * (int64_t)bytes_of(bias->dtype);
}

/* logits_ahead is for Q K^T of keys j to end-1: their bias, which a row has for itself, or else V. */
static attn_ahead logits_ahead(const tile *t, int64_t j, int64_t end, int values)
{
    const int64_t bytes = (int64_t)bytes_of(t->pr->p.bias.dtype);
    return t->pl->bias_ahead ? lanes_ahead(t, bias_row, j, (end - j) * bytes)
                             : rows_ahead(t, VALUES, j, values ? end : j);
}

static const char *mask_row(const tile *t, const lane *l, int64_t j)
{
    const attn_params *p = &t->pr->p;
    const key_row of = { .p = p, .s = &t->s, .at = l, .j0 = j };
    return p->bool_mask.data ? (const char *)p->bool_mask.data + mask_at(&p->bool_mask, &of)
                             : (const char *)p->bit_mask.data + floor_div(bits_at(&of), 8);
}

/* values_ahead is for P V before keys j to end-1: their mask, which is read first, or else K. */
static attn_ahead values_ahead(const tile *t, int64_t j, int64_t end, int keys)
{
    const int64_t bytes = t->pr->p.bool_mask.data ? end - j : (end - j) / 8 + 1;
    return t->pl->mask_ahead && j < end ? lanes_ahead(t, mask_row, j, bytes)
                                        : rows_ahead(t, KEYS, j, keys ? end : j);
}
