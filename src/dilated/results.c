/* src/dilated/results.c - the results of a block of rows, branch by branch.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "slot.c"

/* branches_of_head counts the branches of a mean that query head h has. */
static int branches_of_head(const attn_dilated *d, int64_t h)
{
    int n, count = 0;
    for (n = 0; n < d->num_branches; n++) {
        const attn_dilated_branch *branch = &d->branches[n];
        count += h >= branch->head_begin &&
                 (!branch->head_count || h < branch->head_begin + branch->head_count);
    }
    return count;
}

static void clear_sums(dilated_slot *w)
{
    const int64_t rows = w->run->c.pr.group * rows_of_item(w);
    w->sums = rows_in(w, w->run->lay.sums, rows);
    w->part = rows_in(w, w->run->lay.part, rows);
    clear_states(&w->sums);
}

static void add_mean(dilated_slot *w, const call_row *at)
{
    const int64_t dim = w->asked->head_dim_v;
    add_floats(w->sums.o + at->sum * dim, w->part.o + at->row * dim, dim);
}

/* place_of gives the element offset of a row of the item in an output of the caller's. */
static int64_t place_of(const dilated_slot *w, const attn_output *t, int64_t head, int64_t i)
{
    return ROW_AT(*t, &w->s, head, w->s.q_row + w->from - w->before + i);
}

/* store_results stores n results as outputs have them: NaN is canonical, and -0 does not occur. */
static void store_results(const dilated_slot *w, const attn_output *to, int64_t at, float *from,
                          int64_t n)
{
    int64_t d;
    for (d = 0; d < n; d++)
        from[d] = is_nan(from[d]) ? float_of(CANONICAL_NAN) : from[d] + 0.0f;
    store_run(w->asked->kernels, to->dtype, to->data, at, from, n);
}

/* store_sum stores o of row number `sum` of the sums, and lse. */
static void store_sum(const dilated_slot *w, int64_t head, int64_t i, int64_t sum)
{
    const attn_output *o = &w->asked->o, *lse = &w->asked->lse;
    const int64_t dim = w->asked->head_dim_v;
    if (o->data)
        store_results(w, o, place_of(w, o, head, i), w->sums.o + sum * dim, dim);
    if (lse->data)
        store_results(w, lse, place_of(w, lse, head, i), w->sums.m + sum, 1);
}

/* store_sums calls `finish` for each row of the item, then stores it. */
static void store_sums(dilated_slot *w, void (*finish)(dilated_slot *w, int64_t head, int64_t sum))
{
    const int64_t group = w->run->c.pr.group, rows = rows_of_item(w);
    int64_t h, i;
    for (h = 0; h < group; h++)
        for (i = 0; i < rows; i++) {
            finish(w, w->kv_head * group + h, h * rows + i);
            store_sum(w, w->kv_head * group + h, i, h * rows + i);
        }
}

static void divide_sum(dilated_slot *w, int64_t head, int64_t sum)
{
    const int64_t dim = w->asked->head_dim_v;
    const float count = (float)max64(1, branches_of_head(&w->run->d, head));
    float *o = w->sums.o + sum * dim;
    int64_t d;
    for (d = 0; d < dim; d++)
        o[d] = o[d] / count;
}
