/* src/dilated/validate.c - dilated attention: every sentence about bad input.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../validate.c"

/* put_branch says "branches[n].field (value)". */
static void put_branch(text *why, int64_t n, const char *field, int64_t value)
{
    put(why, "branches[");
    put_int(why, n);
    put(why, "].");
    put_field(why, field, value);
}

static attn_status check_branch(const attn_dilated_branch *branch, int n, text *why)
{
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        { "segment", branch->segment },       { "dilation", branch->dilation },
        { "offset", branch->offset },         { "head_begin", branch->head_begin },
        { "head_count", branch->head_count },
    };
    int i;
    for (i = 0; i < COUNT_OF(counts); i++) {
        if (counts[i].value >= 0 && counts[i].value <= MOST)
            continue;
        put_branch(why, n, counts[i].name, counts[i].value);
        return bad(why, ATTN_ERR_ARG, " must be from 0 to the largest size of memory");
    }
    if (branch->offset < max64(branch->dilation, 1))
        return ATTN_OK;
    put_branch(why, n, "offset", branch->offset);
    put(why, " must be below its dilation (");
    put_int(why, max64(branch->dilation, 1));
    return bad(why, ATTN_ERR_ARG, ")");
}

/* check_branches checks what is wrong whatever the call. */
static attn_status check_branches(const attn_dilated *d, text *why)
{
    attn_status status = ATTN_OK;
    int n;
    if (!d)
        return bad(why, ATTN_ERR_ARG, "dilated is NULL");
    if (d->merge != ATTN_DILATED_LSE && d->merge != ATTN_DILATED_MEAN)
        return bad_field(why, ATTN_ERR_ARG, "merge", d->merge, " must be 0 (LSE) or 1 (mean)");
    if (d->variant != ATTN_DILATED_STRIDED && d->variant != ATTN_DILATED_GATHERED)
        return bad_field(why, ATTN_ERR_ARG, "variant", d->variant,
                         " must be 0 (strided) or 1 (gathered)");
    if (d->num_branches < 1)
        return bad_field(why, ATTN_ERR_ARG, "num_branches", d->num_branches, " must be at least 1");
    if (!d->branches)
        return bad(why, ATTN_ERR_ARG, "branches is NULL");
    if (d->block_rows < 0 || d->block_rows > MOST)
        return bad_field(why, ATTN_ERR_ARG, "block_rows", d->block_rows,
                         " must be 0 (chosen) or a number of rows");
    for (n = 0; n < d->num_branches && !status; n++)
        status = check_branch(&d->branches[n], n, why);
    return status;
}

/* check_rows_and_heads refuses rows that are no positions, and branches for heads that do not
 * exist. */
static attn_status check_rows_and_heads(const attn_params *p, const attn_dilated *d, text *why)
{
    const int64_t kinds = kinds_of(p);
    int64_t b;
    int n;
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        if (s.q_len > s.kv_len)
            return bad_entry(why, "q_len", b, s.q_len,
                             " exceeds kv_len: rows are the last positions of the sequence");
    }
    for (n = 0; n < d->num_branches; n++) {
        const int64_t begin = d->branches[n].head_begin, count = d->branches[n].head_count;
        if (begin < p->num_heads_q && plus(begin, count) <= p->num_heads_q)
            continue;
        put_branch(why, n, "head_begin", begin);
        put(why, " and ");
        put_field(why, "head_count", count);
        put(why, " exceed ");
        put_field(why, "num_heads_q", p->num_heads_q);
        return bad(why, ATTN_ERR_ARG, ": a branch is for query heads that there are");
    }
    return ATTN_OK;
}

static attn_status check_mean(const attn_params *p, text *why)
{
    if (p->stats.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "stats.data is set, but a mean of branches is no softmax and has none");
    if (p->lse.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "lse.data is set, but a mean of branches is no softmax and has none");
    if (p->sinks || p->softmax1)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "sinks or softmax1 is set, but a mean of branches is no softmax to hold one");
    return ATTN_OK;
}

static attn_status check_index_length(const attn_dilated *d, int64_t positions, text *why)
{
    if (d->variant != ATTN_DILATED_GATHERED)
        return ATTN_OK;
    if (positions > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "kv_len", positions,
                         " exceeds the positions that the gathered variant can index");
    if (d->index && d->index_positions < positions) {
        put_field(why, "index_positions", d->index_positions);
        put(why, " is below the longest sequence (");
        put_int(why, positions);
        return bad(why, ATTN_ERR_ARG, ")");
    }
    return ATTN_OK;
}

/* An outline is what of a problem sizes depend on. */
typedef struct outline {
    int64_t batch, heads, group, dim, dim_v;
    int64_t rows, positions; /* These are those of the longest sequence. */
    int64_t keys;            /* keys counts those whose gradients a run gives. */
    int64_t workers;
    /* Without kernels that are asked for these are the best for the rows. */
    const attn_kernels *kernels;
    int gathered; /* Nonzero means that calls see copies. */
    int empty;
} outline;

/* validate_dilated turns *p into *pr, or says what is wrong with *p or *d; with need_data tensors
 * must be there. */
static attn_status validate_dilated(const attn_params *p, const attn_dilated *d, int need_data,
                                    problem *pr, text *why)
{
    attn_status status = p ? refuse_fields(p, BY_DILATED, "dilated attention", why) : ATTN_OK;
    if (!status)
        status = validate(p, pr, need_data, why);
    if (!status)
        status = check_branches(d, why);
    if (!status)
        status = check_rows_and_heads(&pr->p, d, why);
    if (!status && d->merge == ATTN_DILATED_MEAN)
        status = check_mean(p, why);
    if (!status)
        status = check_index_length(d, pr->max_kv_len, why);
    if (!status)
        settle_workers(&pr->p);
    return status;
}

static void fill_outline(const problem *pr, outline *out)
{
    out->batch = pr->p.batch;
    out->heads = pr->p.num_heads_kv;
    out->group = pr->group;
    out->dim = pr->p.head_dim;
    out->dim_v = pr->p.head_dim_v;
    out->rows = pr->max_q_len;
    out->positions = out->keys = pr->max_kv_len;
    out->workers = pr->p.num_workers;
    out->kernels = pr->p.kernels;
    out->empty = pr->p.batch == 0 || pr->p.seq_len_q == 0;
}

OWN_FRAME static attn_status outline_of(const attn_params *p, const attn_dilated *d, int need_data,
                                        outline *out, text *why)
{
    problem pr;
    attn_status status = validate_dilated(p, d, need_data, &pr, why);
    memset(out, 0, sizeof *out);
    if (!status && need_data)
        status = check_call_apart(&pr.p, NULL, why);
    if (status)
        return status;
    fill_outline(&pr, out);
    out->gathered = d->variant == ATTN_DILATED_GATHERED;
    return status;
}
