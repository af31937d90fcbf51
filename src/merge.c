/* src/merge.c - results over parts of the keys become one: raw states, or finished results by their LSE.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "api/merge.h"
#include "validate.c"
#include "state.c"

/* check_finish_apart is about what is written, read and left alone when states are finished. It leaves in *p
 * only the arrays that this reads. */
OWN_FRAME static attn_status check_finish_apart(attn_params *p, const attn_state *state, text *why)
{
    const call_axes x = axes_of_call(p);
    array_set s = { .table = call_fields,
                    .n = COUNT_OF(call_fields),
                    .base = p,
                    .x = &x,
                    .written = OUTPUT_RESULT,
                    .read = OUTPUT_STATE };
    p->state = *state;
    p->q.data = p->k.data = p->v.data = p->bias.data = NULL;
    leave_out_unused(p, &s);
    return check_written(&s, 1, NULL, why);
}

/* finish_row finishes one row of attn_state_finish, in pieces that fit on the stack and are rotated
 * alone. */
OWN_FRAME static void finish_row(const problem *pr, const sequence *s, int64_t head, int64_t i,
                                 const attn_state *state)
{
    const attn_params *p = &pr->p;
    const attn_state row = state_at(state, state_row(p, s, head, i), p->head_dim_v);
    const float sink = sink_of(p, head);
    float m = *row.m, l = *row.l, w = 1.0f, piece[ROTATE_MOST], *const to = piece;
    const int with_sink = !is_neg_inf(sink) && l != 0.0f;
    int64_t d, n;
    if (with_sink)
        w = merge_sink(sink, &m, &l);
    write_sums(p, s, head, i, m, l);
    for (d = 0; p->o.data && d < p->head_dim_v; d += n) {
        n = rotate_size(p->head_dim_v - d);
        memcpy(piece, row.o + d, (size_t)n * sizeof *piece);
        if (with_sink)
            scale_values(piece, 1, n, w);
        result_rows(1, &to, piece, &l, pr->keep_factor, n);
        if (p->rotated & ATTN_ROTATED_V)
            rotate_result(piece, n);
        store_run(p->kernels, p->o.dtype, p->o.data, ROW_AT(p->o, s, head, s->q_row + i) + d, piece,
                  n);
    }
}

ATTN_API attn_status attn_state_finish(const attn_params *p, const attn_state *state)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_status status;
    int64_t b, head, i;
    if (!p || !is_state(state))
        return ATTN_ERR_ARG;
    status = refuse_fields(p, BY_FINISH, "attn_state_finish", &why);
    if (!status)
        status = validate(p, &pr, 0, &why);
    if (status)
        return status;
    if (!wants_results(&pr.p))
        return ATTN_ERR_ARG;
    status = check_finish_apart(&pr.p, state, &why);
    for (b = 0; b < pr.p.batch && !status; b++) {
        const sequence s = sequence_of(&pr.p, b);
        for (head = 0; head < pr.p.num_heads_q; head++)
            for (i = s.row_from; i < s.row_to; i++)
                finish_row(&pr, &s, head, i, state);
    }
    return status;
}

/* ---- what merges write */

enum { RESULT_ARRAYS = 3 }; /* the values of each row, and a number or two for each row */

static area result_area(const float *const *result, int i, int64_t rows, int64_t head_dim_v)
{
    const int64_t count = times(rows, i == 0 ? head_dim_v : 1);
    return area_of_bytes("", result[i], times(count, (int64_t)sizeof **result));
}

/* results_clash tells whether arrays of two results share bytes. One that is the same array of both
 * does no harm, since a row is read before it is written. */
COLD static int results_clash(const float *const *x, const float *const *y, int64_t rows,
                              int64_t head_dim_v)
{
    int i, j;
    for (i = 0; i < RESULT_ARRAYS; i++)
        for (j = 0; j < RESULT_ARRAYS; j++) {
            const area a = result_area(x, i, rows, head_dim_v);
            const area b = result_area(y, j, rows, head_dim_v);
            if (!(i == j && x[i] == y[j]) && areas_meet(&a, &b))
                return 1;
        }
    return 0;
}

static int can_merge(const float *const *out, const float *const *a, const float *const *b,
                     int64_t rows, int64_t head_dim_v)
{
    return !results_clash(out, a, rows, head_dim_v) && !results_clash(out, b, rows, head_dim_v) &&
           !results_clash(out, out, rows, head_dim_v);
}

/* ---- raw states */

static void merge_states(const attn_state *a, const attn_state *b, const attn_state *out)
{
    int64_t row;
    for (row = 0; row < out->num_rows; row++) {
        const attn_state lower = state_at(a, row, out->head_dim_v);
        const attn_state upper = state_at(b, row, out->head_dim_v);
        const attn_state sum = state_at(out, row, out->head_dim_v);
        if (*lower.l == 0.0f || *upper.l == 0.0f) /* An empty part changes nothing. */
            copy_states(&sum, *lower.l == 0.0f ? &upper : &lower, 1, out->head_dim_v);
        else
            merge_rows(FMA_BASE, 1, &lower, &upper, &sum, out->head_dim_v);
    }
}

static int can_merge_states(const attn_state *a, const attn_state *b, const attn_state *out)
{
    const float *const x[] = { a->o, a->m, a->l }, *const y[] = { b->o, b->m, b->l };
    const float *const to[] = { out->o, out->m, out->l };
    return can_merge(to, x, y, out->num_rows, out->head_dim_v);
}

ATTN_API attn_status attn_state_merge(const attn_state *a, const attn_state *b, attn_state *out)
{
    if (!is_state(a) || !is_state(b) || !is_state(out) || out->num_rows < 0 ||
        out->head_dim_v < 0 || !can_merge_states(a, b, out))
        return ATTN_ERR_ARG;
    merge_states(a, b, out);
    return ATTN_OK;
}

/* ---- finished results */

/* lse_weight gives 2^((x - top) * log2 e), the weight of a part whose LSE is x. */
static float lse_weight(float x, float top)
{
    float w = x - top;
    w = w * LOG2E_HI;
    return exp2_canon(w);
}

static void merge_lse_row(int64_t head_dim_v, const float *o_a, float lse_a, const float *o_b,
                          float lse_b, float *o_out, float *lse_out)
{
    const float top = lse_a > lse_b ? lse_a : lse_b;
    const float wa = lse_weight(lse_a, top), wb = lse_weight(lse_b, top);
    const float sum = wa + wb;
    float lse = log2_canon(sum);
    int64_t d;
    lse = lse * LN2;
    lse = top + lse;
    for (d = 0; d < head_dim_v; d++) {
        float x = o_a[d] * wa;
        x = fma32(FMA_BASE, o_b[d], wb, x);
        x = x / sum;
        o_out[d] = x + 0.0f;
    }
    *lse_out = lse + 0.0f;
}

static void merge_results(int64_t num_rows, int64_t head_dim_v, const float *o_a,
                          const float *lse_a, const float *o_b, const float *lse_b, float *o_out,
                          float *lse_out)
{
    int64_t row;
    for (row = 0; row < num_rows; row++) {
        const int64_t at = row * head_dim_v;
        const int only_a = is_neg_inf(lse_b[row]), only_b = is_neg_inf(lse_a[row]);
        if (only_a || only_b) { /* An empty part changes nothing. */
            memmove(o_out + at, only_a ? o_a + at : o_b + at, (size_t)head_dim_v * sizeof *o_out);
            lse_out[row] = only_a ? lse_a[row] : lse_b[row];
            continue;
        }
        merge_lse_row(head_dim_v, o_a + at, lse_a[row], o_b + at, lse_b[row], o_out + at,
                      &lse_out[row]);
    }
}

ATTN_API attn_status attn_lse_merge(int64_t num_rows, int64_t head_dim_v, const float *o_a,
                                    const float *lse_a, const float *o_b, const float *lse_b,
                                    float *o_out, float *lse_out)
{
    const float *const a[] = { o_a, lse_a, NULL }, *const b[] = { o_b, lse_b, NULL };
    const float *const out[] = { o_out, lse_out, NULL };
    if (num_rows < 0 || head_dim_v < 0 || !o_a || !lse_a || !o_b || !lse_b || !o_out || !lse_out ||
        !can_merge(out, a, b, num_rows, head_dim_v))
        return ATTN_ERR_ARG;
    merge_results(num_rows, head_dim_v, o_a, lse_a, o_b, lse_b, o_out, lse_out);
    return ATTN_OK;
}
