/* src/dilated/gathered.c - gathered branches: the plain variant.
 * SPDX-License-Identifier: MIT
 *
 * For every branch the positions that take part are copied from q, k, v, attention runs on the copies,
 * and its results, scattered, merge by their LSE with the results so far.
 */
#pragma once

#include "../merge.c"
#include "results.c"

/* index_in_call points to the lattice's positions, from those of the call's first segment on. */
static const int32_t *index_in_call(const dilated_slot *w)
{
    const attn_dilated *d = &w->run->d;
    const attn_dilated_branch *branch = &d->branches[w->n];
    const lattice whole = lattice_of(branch, w->of.head, d->index_positions);
    int32_t *made = (int32_t *)(void *)(w->base + w->run->lay.index);
    int64_t at = w->at.first / w->l.segment * taken(&w->l, w->l.segment);
    int n;
    if (!d->index) {
        fill_index(&w->l, w->s.kv_len, made);
        return made + at;
    }
    for (n = 0; n < w->n; n++)
        at += index_of_branch(&d->branches[n], d->index_positions);
    return d->index + at + index_of_lattice(branch, &whole, d->index_positions);
}

/* copy_row copies one row of an input, dim elements, to row number `row` of copies. */
static void copy_row(const dilated_slot *w, const attn_tensor *t, int64_t head, int64_t from,
                     int64_t dim, char *copies, int64_t row)
{
    const int64_t bytes = room_of(t->dtype, dim), at = ROW_AT(*t, &w->s, head, from);
    memcpy(copies + row * bytes, (const char *)t->data + bytes_between(t->dtype, at),
           (size_t)bytes);
}

/* packed_copies describes the copies as the call now has them, packed. */
static attn_tensor packed_copies(const attn_tensor *t, const char *copies)
{
    const attn_tensor packed = { .dtype = t->dtype, .data = copies };
    return packed;
}

static void gather_keys(dilated_slot *w)
{
    const attn_params *p = w->asked;
    char *k = w->base + w->run->lay.copies[1], *v = w->base + w->run->lay.copies[2];
    int64_t j;
    for (j = 0; j < w->at.count * w->at.keys; j++) {
        copy_row(w, &p->k, w->kv_head, w->s.kv_row + w->index[j], p->head_dim, k, j);
        copy_row(w, &p->v, w->kv_head, w->s.kv_row + w->index[j], p->head_dim_v, v, j);
    }
    w->p.k = packed_copies(&p->k, k);
    w->p.v = packed_copies(&p->v, v);
}

static void gather_row(dilated_slot *w, const call_row *at)
{
    const int64_t row = w->s.q_row + w->index[at->key] - w->before;
    copy_row(w, &w->asked->q, at->head, row, w->asked->head_dim, w->base + w->run->lay.copies[0],
             at->row);
}

static void merge_result(dilated_slot *w, const call_row *at)
{
    const int64_t dim = w->asked->head_dim_v;
    float *o = w->sums.o + at->sum * dim, *lse = w->sums.m + at->sum;
    merge_results(1, dim, o, lse, w->part.o + at->row * dim, w->part.m + at->row, o, lse);
}

static void gathered_call(dilated_slot *w)
{
    const int mean = w->run->d.merge == ATTN_DILATED_MEAN;
    w->index = index_in_call(w);
    open_call(w);
    gather_keys(w);
    each_row(w, gather_row);
    w->p.q = packed_copies(&w->asked->q, w->base + w->run->lay.copies[0]);
    ask_results(w);
    w->p.lse.data = mean ? NULL : w->part.m;
    run_call(w);
    each_row(w, mean ? add_mean : merge_result);
}

/* A sink merges as a key without a value. */
static void merge_head_sink(dilated_slot *w, int64_t head, int64_t sum)
{
    const int64_t dim = w->asked->head_dim_v;
    const float sink = sink_of(w->asked, head);
    float *o = w->sums.o + sum * dim, *lse = w->sums.m + sum;
    merge_results(1, dim, o, lse, SLOT_FLOATS(w, w->run->lay.zeros), &sink, o, lse);
}

static void gathered_item(const call *c, char *base, int64_t index)
{
    dilated_slot *w = open_slot(c, base, index);
    int n;
    memset(SLOT_FLOATS(w, w->run->lay.zeros), 0, (size_t)w->asked->head_dim_v * sizeof(float));
    clear_sums(w);
    for (n = 0; n < w->run->d.num_branches; n++)
        each_call(w, n, gathered_call);
    store_sums(w, w->run->d.merge == ATTN_DILATED_MEAN ? divide_sum : merge_head_sink);
}
