/* src/dilated/plan.c - the plan of dilated attention: blocks of rows, and what a worker's slot holds.
 * SPDX-License-Identifier: MIT
 *
 *     workspace = | alignment | dilated_run | slot 0 | slot 1 | ...
 *
 * An item is the query heads of a kv head of a batch entry and, strided, a block of rows: blocks begin
 * where a position is a multiple of their size, so that segments of the usual sizes fall into them
 * whole. Sums are the results of a block so far, a part is what one call adds.
 */
#pragma once

#include "../forward.c"
#include "lattice.c"
#include "validate.c"

/* A block has at least this number of rows times the dilation of a branch, so that row tiles fill
 * up. */
#define BLOCK_LEAST 256
#define BLOCK_MOST 8192                /* That product counts up to this number of rows. */
#define BLOCK_BYTES ((int64_t)1 << 22) /* The sums of a block take about this number of bytes. */
#define BLOCK_ITEMS 4                  /* A worker gets about this number of items. */

typedef struct dilated_layout {
    int64_t block;  /* block counts the rows of an item; 0 means all. */
    int64_t blocks; /* blocks counts the blocks of a kv head. */
    int64_t items;
    int workers;
    int64_t inner_bytes; /* inner_bytes is the workspace of a call. */
    /* These are offsets into a slot, in bytes. */
    int64_t slopes, zeros, sums, part, index, copies[3], inner, slot_bytes;
    int64_t sum_grads[3], part_grads[3], dout; /* The backward call adds these. */
} dilated_layout;

/* A head_class is the query heads of a kv head that take equal positions of a branch: head, head +
 * step, .... */
typedef struct head_class {
    int64_t head, step, heads;
} head_class;

/* class_of gives class number `class` of a kv head in a branch, and returns 0 after the last. */
static int class_of(const attn_dilated_branch *branch, int64_t group, int64_t kv_head,
                    int64_t class, head_class *of)
{
    const int64_t first = kv_head * group;
    const int64_t last = branch->head_count ? branch->head_begin + branch->head_count : TOO_BIG;
    const int64_t begin = max64(first, branch->head_begin), end = min64(first + group, last);
    of->step = branch->rotate ? max64(branch->dilation, 1) : 1;
    of->head = begin + class;
    if (class >= of->step || of->head >= end)
        return 0;
    of->heads = of->step == 1 ? end - begin : ceil_div(end - of->head, of->step);
    return 1;
}

/* class_heads counts the heads of the largest class of a branch. */
static int64_t class_heads(const attn_dilated_branch *branch, int64_t group)
{
    return branch->rotate ? ceil_div(group, max64(branch->dilation, 1)) : group;
}

static int64_t most_dilation(const attn_dilated *d)
{
    int64_t most = 1;
    int n;
    for (n = 0; n < d->num_branches; n++)
        most = max64(most, d->branches[n].dilation);
    return most;
}

static int64_t choose_block(const attn_dilated *d, const outline *out)
{
    const int64_t row_bytes = times(out->group, out->dim_v + 2) * (int64_t)sizeof(float);
    const int64_t wanted = times(BLOCK_LEAST, most_dilation(d));
    int64_t rows = BLOCK_LEAST;
    if (d->block_rows)
        return d->block_rows;
    while (rows < wanted && rows < BLOCK_MOST && 2 * rows * row_bytes <= BLOCK_BYTES)
        rows *= 2;
    while (rows > BLOCK_LEAST && times(times(out->batch, out->heads), ceil_div(out->rows, rows)) <
                                     BLOCK_ITEMS * out->workers)
        rows /= 2;
    return rows;
}

/* space_rows sets q, k or v as calls of a branch see them, with rows a dilation apart. It serves a
 * size query and sets no data. */
static void space_rows(attn_tensor *t, int by_token, int64_t heads, int64_t dim, int64_t dilation)
{
    const int64_t shared = t->stride_head == ATTN_STRIDE_BROADCAST ? 1 : heads;
    const ptrdiff_t stride = stride_or(t->stride_seq, by_token ? times(shared, dim) : dim);
    t->stride_batch = t->stride_head = ATTN_STRIDE_BROADCAST;
    t->stride_seq =
        stride ? to_stride(times(stride < 0 ? -stride : stride, dilation)) : ATTN_STRIDE_BROADCAST;
}

/* The sizes of a call that goes over one kv head. */
static void set_sizes(attn_params *p, int64_t batch, int64_t heads, int64_t rows, int64_t keys)
{
    p->batch = batch;
    p->num_heads_q = heads;
    p->num_heads_kv = 1;
    p->seq_len_q = rows;
    p->seq_len_kv = keys;
}

/* In a call of a branch all rows and keys are in use. */
static void clear_lengths(attn_params *p)
{
    p->q_len = p->kv_len = p->kv_begin = p->cu_seqlens_q = p->cu_seqlens_kv = NULL;
}

/* *p becomes what the largest call of branch n is, as far as sizes depend on it. most: rows of an
 * item; 0 = all. */
static void largest_call(attn_params *p, const attn_dilated *d, const outline *out, int64_t most,
                         int n)
{
    const attn_dilated_branch *branch = &d->branches[n];
    const lattice l = lattice_of(branch, 0, out->positions);
    const int64_t keys = ceil_div(l.segment, l.dilation);
    const int64_t rows = most ? min64(keys, ceil_div(most, l.dilation)) : keys;
    const int64_t step = out->gathered ? 1 : step_of(&l);
    const int by_token_q = !out->gathered && (p->layout || p->cu_seqlens_q);
    const int by_token_kv = !out->gathered && (p->layout || p->cu_seqlens_kv);
    space_rows(&p->q, by_token_q, p->num_heads_q, out->dim, step);
    space_rows(&p->k, by_token_kv, out->heads, out->dim, step);
    space_rows(&p->v, by_token_kv, out->heads, out->dim_v, step);
    set_sizes(p, 1, class_heads(branch, out->group), min64(rows, out->rows), keys);
    clear_lengths(p);
}

/* SHARE_PAIRS gives an array of pairs the strides of one element, where only sizes matter. */
#define SHARE_PAIRS(x)                                                                             \
    ((x).stride_batch = (x).stride_head = (x).stride_q = (x).stride_kv = ATTN_STRIDE_BROADCAST)

/* strip_call clears what only makes sense in the caller's own call. An item calls within its
 * worker. */
static void strip_call(attn_params *p)
{
    p->layout = ATTN_LAYOUT_BHSD;
    memset(&p->o, 0, sizeof p->o);
    memset(&p->lse, 0, sizeof p->lse);
    memset(&p->stats, 0, sizeof p->stats);
    SHARE_PAIRS(p->bias);
    SHARE_PAIRS(p->bool_mask);
    SHARE_PAIRS(p->bit_mask);
    p->q_segments_stride = p->kv_segments_stride = ATTN_STRIDE_BROADCAST;
    p->prefix = NULL;
    p->alibi_stride = ATTN_STRIDE_BROADCAST;
    p->sinks = NULL;
    p->softmax1 = 0;
    p->num_workers = 1;
    p->parallel_for = NULL;
    p->log = NULL;
}

/* size_forward counts the bytes of workspace for the calls of branch n. */
OWN_FRAME static attn_status size_forward(const attn_params *asked, const attn_dilated *d,
                                          const outline *out, int64_t most, int n, size_t *bytes)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_status status;
    pr.p = *asked;
    largest_call(&pr.p, d, out, most, n);
    strip_call(&pr.p);
    status = validate(&pr.p, &pr, 0, &why);
    return status ? status : size_of_call(asked, &pr, &why, bytes);
}

/* place_rows makes room for the states of `rows` rows, or for o and sums of them, as one array. */
static int64_t place_rows(int64_t *at, int64_t rows, int64_t dim_v)
{
    return place(at, times(rows, plus(dim_v, 2)), sizeof(float));
}

/* plan_rows lays out everything of a slot up to the workspace of its calls. */
static void plan_rows(const attn_dilated *d, const outline *out, size_t slot_head,
                      dilated_layout *lay)
{
    const int gathered = lay->block == 0;
    const int64_t all = gathered ? out->rows : min64(lay->block, out->rows);
    const int64_t rows = times(out->group, all), keys = gathered ? out->positions : 0;
    int64_t at = 0;
    place(&at, 1, slot_head);
    lay->slopes = place(&at, out->group, sizeof(float));
    lay->zeros = place(&at, out->dim_v, sizeof(float));
    lay->sums = place_rows(&at, rows, out->dim_v);
    lay->part = place_rows(&at, rows, out->dim_v);
    lay->index = place(&at, d->index ? 0 : keys, sizeof(int32_t));
    lay->copies[0] = place(&at, gathered ? times(rows, out->dim) : 0, sizeof(float));
    lay->copies[1] = place(&at, times(keys, out->dim), sizeof(float));
    lay->copies[2] = place(&at, times(keys, out->dim_v), sizeof(float));
    lay->inner = at;
}

static attn_status plan_inner(const attn_params *p, const attn_dilated *d, const outline *out,
                              dilated_layout *lay)
{
    int n;
    for (n = 0; n < d->num_branches; n++) {
        size_t bytes = 0;
        const attn_status status = size_forward(p, d, out, lay->block, n, &bytes);
        if (status)
            return status;
        lay->inner_bytes = max64(lay->inner_bytes, (int64_t)bytes);
    }
    lay->slot_bytes = plus(lay->inner, aligned(lay->inner_bytes));
    return ATTN_OK;
}

/* plan_blocks counts the items of the forward call; there is one block more where rows do not begin
 * with one. */
static void plan_blocks(const outline *out, dilated_layout *lay)
{
    lay->blocks = lay->block ? ceil_div(out->rows, lay->block) + (out->rows < out->positions) : 1;
    lay->items = times(times(out->batch, out->heads), lay->blocks);
    lay->workers = (int)max64(1, min64(out->workers, lay->items));
}
