/* slices.c - one call cut into parts.
 * SPDX-License-Identifier: MIT
 */
#include "slices.h"
#include "oracle.h"

#include <string.h>

static void explicit_input(attn_tensor *a, const test_tensor *t)
{
    a->stride_batch = stride_of(t->step_batch);
    a->stride_head = stride_of(t->step_head);
    a->stride_seq = stride_of(t->step_seq);
}

static void explicit_output(attn_output *a, const test_tensor *t)
{
    a->stride_batch = t->step_batch;
    a->stride_head = t->step_head;
    a->stride_seq = t->step_seq;
}

static void explicit_outputs(attn_params *p, const test_problem *t)
{
    explicit_output(&p->o, &t->o);
    explicit_output(&p->lse, &t->lse);
    explicit_output(&p->stats, &t->stats);
}

void slice_explicit(attn_params *p, const test_problem *t)
{
    explicit_input(&p->q, &t->q);
    explicit_input(&p->k, &t->k);
    explicit_input(&p->v, &t->v);
    explicit_outputs(p, t);
    if (p->q_segments_stride == 0)
        p->q_segments_stride = (ptrdiff_t)p->seq_len_q;
    if (p->kv_segments_stride == 0)
        p->kv_segments_stride = (ptrdiff_t)p->seq_len_kv;
}

static void move_input(attn_tensor *a, ptrdiff_t elements)
{
    a->data = (const char *)a->data + elements / dtype_unit(a->dtype) *
                                          (ptrdiff_t)dtype_bytes(a->dtype, dtype_unit(a->dtype));
}

/* Keys of a type that only they have lie otherwise than in the tensor, with strides that are not 0. */
static void move_keys(attn_tensor *a, const test_tensor *t, int64_t begin)
{
    if (a->dtype == t->dtype)
        explicit_input(a, t);
    move_input(a, (ptrdiff_t)begin * step_of(a->stride_seq));
}

static void move_output(attn_output *a, const test_tensor *t, int64_t b, int64_t h, int64_t i)
{
    const ptrdiff_t elements =
        (ptrdiff_t)b * t->step_batch + (ptrdiff_t)h * t->step_head + (ptrdiff_t)i * t->step_seq;
    if (a->data != NULL)
        a->data = (char *)a->data + elements * (ptrdiff_t)dtype_size(a->dtype);
}

/* What is written of rows begins at row i of head h of batch entry b. */
static void move_outputs(attn_params *p, const test_problem *t, int64_t b, int64_t h, int64_t i)
{
    move_output(&p->o, &t->o, b, h, i);
    move_output(&p->lse, &t->lse, b, h, i);
    move_output(&p->stats, &t->stats, b, h, i);
}

static void move_dense(attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    attn_bias *bias = &p->bias;
    attn_mask *mask = &p->bool_mask;
    if (bias->data != NULL)
        bias->data = (const char *)bias->data + ((ptrdiff_t)b * step_of(bias->stride_batch) +
                                                 (ptrdiff_t)h * step_of(bias->stride_head) +
                                                 (ptrdiff_t)i * step_of(bias->stride_q) +
                                                 (ptrdiff_t)j * step_of(bias->stride_kv)) *
                                                    (ptrdiff_t)dtype_size(bias->dtype);
    if (mask->data != NULL)
        mask->data +=
            (ptrdiff_t)b * step_of(mask->stride_batch) + (ptrdiff_t)h * step_of(mask->stride_head) +
            (ptrdiff_t)i * step_of(mask->stride_q) + (ptrdiff_t)j * step_of(mask->stride_kv);
}

static const int32_t *moved(const int32_t *array, int64_t count)
{
    return array != NULL ? array + count : NULL;
}

int64_t slice_offset(const attn_params *p, int64_t b)
{
    return p->alignment == ATTN_ALIGN_OFFSET     ? p->q_offset[b]
           : p->alignment == ATTN_ALIGN_TOP_LEFT ? 0
                                                 : oracle_keys(p, b) - oracle_rows(p, b);
}

static void move_sequence(attn_params *p, const test_problem *t, int64_t b)
{
    const int64_t q = p->cu_seqlens_q[b], kv = p->cu_seqlens_kv[b];
    move_input(&p->q, (ptrdiff_t)q * t->q.step_seq);
    move_input(&p->k, (ptrdiff_t)kv * t->k.step_seq);
    move_input(&p->v, (ptrdiff_t)kv * t->v.step_seq);
    move_outputs(p, t, 0, 0, q);
    p->q_segments = moved(p->q_segments, q);
    p->kv_segments = moved(p->kv_segments, kv);
    p->seq_len_q = p->cu_seqlens_q[b + 1] - q;
    p->seq_len_kv = p->cu_seqlens_kv[b + 1] - kv;
    p->cu_seqlens_q = p->cu_seqlens_kv = NULL;
}

static void move_entry(attn_params *p, const test_problem *t, int64_t b)
{
    move_input(&p->q, (ptrdiff_t)b * t->q.step_batch);
    move_input(&p->k, (ptrdiff_t)b * t->k.step_batch);
    move_input(&p->v, (ptrdiff_t)b * t->v.step_batch);
    move_outputs(p, t, b, 0, 0);
    p->q_segments = moved(p->q_segments, b * (int64_t)p->q_segments_stride);
    p->kv_segments = moved(p->kv_segments, b * (int64_t)p->kv_segments_stride);
}

void slice_batch(attn_params *p, const test_problem *t, int64_t b)
{
    slice_explicit(p, t);
    if (p->cu_seqlens_q != NULL)
        move_sequence(p, t, b);
    else
        move_entry(p, t, b);
    move_dense(p, b, 0, 0, 0);
    p->batch = 1;
    p->q_len = moved(p->q_len, b);
    p->kv_len = moved(p->kv_len, b);
    p->kv_begin = moved(p->kv_begin, b);
    p->q_offset = moved(p->q_offset, b);
    p->prefix = moved(p->prefix, b);
    p->key_base = p->key_base != NULL ? p->key_base + b : NULL;
    p->alibi_slopes =
        p->alibi_slopes != NULL ? p->alibi_slopes + b * step_of(p->alibi_stride) : NULL;
}

void slice_head(attn_params *p, const test_problem *t, int64_t h)
{
    const int64_t heads_kv = p->num_heads_kv != 0 ? p->num_heads_kv : p->num_heads_q;
    const ptrdiff_t kv_head = (ptrdiff_t)(h / (p->num_heads_q / heads_kv));
    slice_explicit(p, t);
    move_input(&p->q, (ptrdiff_t)h * t->q.step_head);
    move_input(&p->k, kv_head * t->k.step_head);
    move_input(&p->v, kv_head * t->v.step_head);
    move_outputs(p, t, 0, h, 0);
    move_dense(p, 0, h, 0, 0);
    p->num_heads_q = p->num_heads_kv = 1;
    p->alibi_slopes = p->alibi_slopes != NULL ? p->alibi_slopes + h : NULL;
    p->sinks = p->sinks != NULL ? p->sinks + h : NULL;
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

/* Fixes every position as an offset; shift is added to all. */
static void fix_offsets(attn_params *p, int64_t shift)
{
    int32_t *offsets = test_alloc((size_t)p->batch * sizeof *offsets);
    for (int64_t b = 0; b < p->batch; b++)
        offsets[b] = (int32_t)(slice_offset(p, b) + shift);
    p->alignment = ATTN_ALIGN_OFFSET;
    p->q_offset = offsets;
}

void slice_rows(attn_params *p, const test_problem *t, int64_t begin, int64_t count)
{
    int32_t *lengths = test_alloc((size_t)p->batch * sizeof *lengths);
    fix_offsets(p, begin);
    slice_explicit(p, t);
    for (int64_t b = 0; b < p->batch; b++)
        lengths[b] = (int32_t)clamp(oracle_rows(p, b) - begin, 0, count);
    p->q_len = lengths;
    p->seq_len_q = count;
    move_input(&p->q, (ptrdiff_t)begin * t->q.step_seq);
    move_outputs(p, t, 0, 0, begin);
    move_dense(p, 0, 0, begin, 0);
    p->q_segments = moved(p->q_segments, begin);
}

static void move_numbers(attn_params *p, int64_t begin, int64_t count)
{
    int32_t *lengths = test_alloc((size_t)p->batch * sizeof *lengths);
    int32_t *prefix = test_alloc((size_t)p->batch * sizeof *prefix);
    int64_t *base = test_alloc((size_t)p->batch * sizeof *base);
    for (int64_t b = 0; b < p->batch; b++) {
        lengths[b] = (int32_t)clamp(oracle_keys(p, b) - begin, 0, count);
        prefix[b] = (int32_t)clamp(p->prefix != NULL ? p->prefix[b] - begin : 0, 0, lengths[b]);
        base[b] = (p->key_base != NULL ? p->key_base[b] : 0) + begin;
    }
    p->kv_len = lengths;
    p->prefix = p->prefix != NULL ? prefix : NULL;
    p->key_base = base;
}

void slice_keys(attn_params *p, const test_problem *t, int64_t begin, int64_t count)
{
    fix_offsets(p, -begin);
    slice_explicit(p, t);
    move_numbers(p, begin, count);
    p->seq_len_kv = count;
    move_input(&p->k, (ptrdiff_t)begin * t->k.step_seq);
    move_input(&p->v, (ptrdiff_t)begin * t->v.step_seq);
    move_dense(p, 0, 0, 0, begin);
    p->kv_segments = moved(p->kv_segments, begin);
}

/* ---- parts of a call -------------------------------------------------------------------------- */

void slice_part_rows(attn_params *p, const test_problem *t, int64_t begin, int64_t count)
{
    explicit_input(&p->q, &t->q);
    explicit_outputs(p, t);
    move_input(&p->q, (ptrdiff_t)begin * t->q.step_seq);
    move_outputs(p, t, 0, 0, begin);
    p->part.rows = 1;
    p->part.row_begin = begin;
    p->part.row_count = count;
}

static void move_scales(attn_scales *x, int64_t begin)
{
    if (x->data != NULL)
        x->data += (ptrdiff_t)begin * step_of(x->stride_seq);
}

static void move_tensors(attn_params *p, const test_problem *t, int64_t begin)
{
    move_keys(&p->k, &t->k, begin);
    move_keys(&p->v, &t->v, begin);
    move_scales(&p->k_scales, begin);
    move_scales(&p->v_scales, begin);
}

/* The cache stays whole, or pages before the part's are left out of the table. */
static void move_cache(attn_params *p, int64_t begin)
{
    attn_rows *rows = &p->kv_rows;
    p->part.key_row = begin;
    if (rows->ring == 0 && rng_aside(0, 1)) {
        rows->table += begin / rows->page_size;
        p->part.key_row = begin % rows->page_size;
    }
}

void slice_part_keys(attn_params *p, const test_problem *t, int64_t begin, int64_t count)
{
    if (p->kv_rows.ring > 0 || p->kv_rows.page_size > 0)
        move_cache(p, begin);
    else
        move_tensors(p, t, begin);
    p->part.keys = 1;
    p->part.key_begin = begin;
    p->part.key_count = count;
}

/* ---- rows of each entry, copied -------------------------------------------------------------- */

/* The rows of a cut; most: of one entry; room: the same with the row that nobody uses. */
typedef struct cut {
    const attn_params *whole;
    const int64_t *begin, *count;
    int64_t batch, heads, most, room;
} cut;

void *slice_row(const attn_params *p, const test_tensor *t, int64_t b, int64_t h, int64_t i)
{
    const int varlen = p->cu_seqlens_q != NULL;
    const ptrdiff_t at = (varlen ? 0 : (ptrdiff_t)b * t->step_batch) + (ptrdiff_t)h * t->step_head +
                         (ptrdiff_t)(varlen ? p->cu_seqlens_q[b] + i : i) * t->step_seq;
    return (char *)t->data + at * (ptrdiff_t)dtype_size(t->dtype);
}

int64_t slice_row_number(const attn_params *p, int64_t b, int64_t h, int64_t i)
{
    return p->cu_seqlens_q != NULL ? h * p->seq_len_q + p->cu_seqlens_q[b] + i
                                   : (b * p->num_heads_q + h) * p->seq_len_q + i;
}

/* seq_len_q, and lengths or cu_seqlens. */
static void cut_lengths(attn_params *p, const cut *c)
{
    int32_t *lengths = test_alloc((size_t)(c->batch + 1) * sizeof *lengths);
    int uneven = rng_chance(50);
    if (p->cu_seqlens_q != NULL) {
        lengths[0] = 0;
        for (int64_t b = 0; b < c->batch; b++)
            lengths[b + 1] = (int32_t)(lengths[b] + c->count[b]);
        p->cu_seqlens_q = lengths;
        p->seq_len_q = lengths[c->batch];
        p->q_len = NULL;
        return;
    }
    p->seq_len_q = c->room;
    for (int64_t b = 0; b < c->batch; b++) {
        lengths[b] = (int32_t)c->count[b];
        uneven |= c->count[b] != p->seq_len_q;
    }
    p->q_len = uneven ? lengths : NULL;
}

/* The old positions, by the usual alignment where the cut ends with the last row. */
static void cut_positions(attn_params *p, const cut *c)
{
    int32_t *offsets = test_alloc((size_t)c->batch * sizeof *offsets);
    int is_last = c->whole->alignment == ATTN_ALIGN_BOTTOM_RIGHT;
    for (int64_t b = 0; b < c->batch; b++) {
        offsets[b] = (int32_t)(slice_offset(c->whole, b) + c->begin[b]);
        is_last &= c->begin[b] + c->count[b] == oracle_rows(c->whole, b);
    }
    if (is_last && rng_chance(70))
        return;
    p->alignment = ATTN_ALIGN_OFFSET;
    p->q_offset = offsets;
}

static void cut_queries(test_problem *part, const test_problem *whole, const cut *c)
{
    static const int64_t layouts[] = { LAYOUT_BHSD, LAYOUT_BSHD, LAYOUT_PADDED, LAYOUT_QKV,
                                       LAYOUT_NEGATIVE_SEQ };
    const int varlen = part->p.cu_seqlens_q != NULL;
    tensor_make(&part->q, whole->q.dtype, (int)RNG_PICK(layouts), varlen ? 1 : c->batch, c->heads,
                part->p.seq_len_q, whole->q.dim);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads; h++)
            for (int64_t i = 0; i < c->count[b]; i++)
                memcpy(slice_row(&part->p, &part->q, b, h, i),
                       slice_row(c->whole, &whole->q, b, h, c->begin[b] + i),
                       (size_t)whole->q.dim * dtype_size(whole->q.dtype));
    tensor_remember(&part->q);
    part->p.q = tensor_input(&part->q);
}

static void cut_outputs(test_problem *part)
{
    attn_params *p = &part->p;
    part->o.seq = part->lse.seq = part->stats.seq = p->seq_len_q;
    problem_new_output(part);
    if (p->partial) {
        const size_t rows = (size_t)(part->o.batch * p->num_heads_q * p->seq_len_q);
        p->state.m = test_alloc(rows * sizeof(float));
        p->state.l = test_alloc(rows * sizeof(float));
        p->state.o = test_alloc(rows * (size_t)part->o.dim * sizeof(float));
        memset(&p->o, 0, sizeof p->o);
    }
}

/* One number a row of each entry; by_place: numbers are rows, those before the cut become -1. */
static const int32_t *cut_numbers(const cut *c, const attn_params *p, const int32_t *from,
                                  ptrdiff_t stride, int by_place)
{
    const int varlen = p->cu_seqlens_q != NULL;
    int32_t *to;
    if (from == NULL)
        return NULL;
    to = test_alloc((size_t)((varlen ? 1 : c->batch) * p->seq_len_q) * sizeof *to);
    for (int64_t b = 0; b < c->batch; b++) {
        const int64_t first = varlen ? c->whole->cu_seqlens_q[b] : b * (int64_t)stride;
        int32_t *row = to + (varlen ? p->cu_seqlens_q[b] : b * p->seq_len_q);
        for (int64_t i = 0; i < c->count[b]; i++) {
            const int32_t x = from[first + c->begin[b] + i];
            row[i] = !by_place ? x : x < c->begin[b] ? -1 : x - (int32_t)c->begin[b];
        }
    }
    return to;
}

static void copy_cells(unsigned char *to, int64_t at, const unsigned char *from, int64_t from_at,
                       size_t bytes)
{
    if (bytes != 0)
        memcpy(to + at * (int64_t)bytes, from + from_at * (int64_t)bytes, bytes);
    else if ((from[from_at / 8] >> from_at % 8 & 1) != 0)
        to[at / 8] = (unsigned char)(to[at / 8] | 1 << at % 8);
    else
        to[at / 8] = (unsigned char)(to[at / 8] & ~(1 << at % 8));
}

/* A bias or a mask: the rows of the cut, packed; an axis that is shared stays so where it can.
 * bytes: of an element, 0 for bits. */
static const void *cut_dense(const cut *c, const void *from, size_t bytes, ptrdiff_t *batch,
                             ptrdiff_t *head, ptrdiff_t *row, ptrdiff_t *column)
{
    const ptrdiff_t from_batch = step_of(*batch), from_head = step_of(*head);
    const ptrdiff_t from_row = step_of(*row), from_column = step_of(*column);
    const int64_t columns = from_column != 0 ? c->whole->seq_len_kv : 1;
    const int64_t rows = from_row != 0 ? c->most : 1, heads = from_head != 0 ? c->heads : 1;
    const int64_t batches = from_batch != 0 || from_row != 0 ? c->batch : 1;
    unsigned char *to =
        test_alloc((size_t)(batches * heads * rows * columns) * (bytes != 0 ? bytes : 1));
    for (int64_t b = 0; b < batches; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows && (from_row == 0 || i < c->count[b]); i++)
                for (int64_t j = 0; j < columns; j++)
                    copy_cells(to, ((b * heads + h) * rows + i) * columns + j, from,
                               b * from_batch + h * from_head + (c->begin[b] + i) * from_row +
                                   j * from_column,
                               bytes);
    *column = stride_of(from_column != 0);
    *row = stride_of(from_row != 0 ? (ptrdiff_t)columns : 0);
    *head = stride_of(from_head != 0 ? (ptrdiff_t)(columns * rows) : 0);
    *batch = stride_of(batches > 1 ? (ptrdiff_t)(columns * rows * heads) : 0);
    return to;
}

static void cut_mask(const cut *c, attn_mask *m, size_t bytes)
{
    if (m->data != NULL)
        m->data = cut_dense(c, m->data, bytes, &m->stride_batch, &m->stride_head, &m->stride_q,
                            &m->stride_kv);
}

static void cut_bias(const cut *c, attn_bias *x)
{
    if (x->data != NULL)
        x->data = cut_dense(c, x->data, dtype_size(x->dtype), &x->stride_batch, &x->stride_head,
                            &x->stride_q, &x->stride_kv);
}

/* Appends the columns of one row of cells and returns how many are in the list then. */
static int32_t cut_columns(const attn_block_mask *m, const int32_t *row, int32_t *list,
                           int32_t used)
{
    for (int32_t n = row[0]; n < row[1]; n++)
        list[used++] = m->columns[n];
    return used;
}

/* Cells of as many rows as begin at the same remainder: block_q or a divisor of it. */
static void cut_blocks(const cut *c, attn_block_mask *m)
{
    const attn_block_mask from = *m;
    const int64_t columns =
        m->block_k > 0 ? (c->whole->seq_len_kv + m->block_k - 1) / m->block_k : 0;
    const int64_t row_bits = step_of(from.stride_row);
    int64_t rows, cells;
    int32_t *offsets, *list, used = 0;
    uint8_t *bits;
    if (m->block_q == 0)
        return;
    for (int64_t b = 0; b < c->batch; b++)
        m->block_q = common_divisor(m->block_q, c->begin[b]);
    rows = (c->room + m->block_q - 1) / m->block_q;
    cells = c->batch * c->heads * rows * columns;
    bits = test_alloc((size_t)(cells + 7) / 8);
    offsets = test_alloc((size_t)(c->batch * c->heads * (rows + 1)) * sizeof *offsets);
    list = test_alloc((size_t)(from.bitmap == NULL ? cells : 0) * sizeof *list);
    for (int64_t n = 0; n < c->batch * c->heads; n++) {
        const int64_t b = n / c->heads, h = n % c->heads;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t last = (c->count[b] - 1) / m->block_q;
            const int64_t of = (c->begin[b] + (r < last ? r : last) * m->block_q) / from.block_q;
            offsets[n * (rows + 1) + r] = used;
            if (c->count[b] == 0) /* It begins behind the last row of cells. */
                continue;
            if (from.bitmap == NULL)
                used = cut_columns(&from,
                                   from.row_offsets + b * step_of(from.csr_stride_batch) +
                                       h * step_of(from.csr_stride_head) + of,
                                   list, used);
            for (int64_t k = 0; from.bitmap != NULL && k < columns; k++)
                copy_cells(bits, (n * rows + r) * columns + k, from.bitmap,
                           b * step_of(from.stride_batch) + h * step_of(from.stride_head) +
                               of * row_bits + k,
                           0);
        }
        offsets[n * (rows + 1) + rows] = used;
    }
    m->bitmap = from.bitmap != NULL ? bits : NULL;
    m->row_offsets = from.bitmap == NULL ? offsets : NULL;
    m->columns = from.bitmap == NULL ? list : NULL;
    m->stride_row = (ptrdiff_t)columns;
    m->stride_head = (ptrdiff_t)(rows * columns);
    m->stride_batch = (ptrdiff_t)(rows * columns * c->heads);
    m->csr_stride_head = (ptrdiff_t)(rows + 1);
    m->csr_stride_batch = (ptrdiff_t)((rows + 1) * c->heads);
}

/* Lists of as many rows as begin at one remainder. */
static void cut_lists(const cut *c, attn_key_list *x)
{
    const attn_key_list from = *x;
    const int64_t heads = oracle_heads_kv(c->whole), each = from.rows > 0 ? from.rows : 1;
    int64_t lists;
    int32_t *data;
    if (x->data == NULL)
        return;
    x->rows = each;
    for (int64_t b = 0; b < c->batch; b++)
        x->rows = common_divisor(x->rows, c->begin[b]);
    lists = (c->room + x->rows - 1) / x->rows;
    data = test_alloc((size_t)(c->batch * heads * lists * x->width) * sizeof *data);
    for (int64_t n = 0; n < c->batch * heads * lists; n++) {
        const int64_t b = n / lists / heads, h = n / lists % heads, i = n % lists * x->rows;
        const int64_t last = c->count[b] > 0 ? c->count[b] - 1 : 0;
        const int64_t of = (c->begin[b] + (i < last ? i : last)) / each;
        if (c->count[b] > 0)
            memcpy(data + n * x->width,
                   from.data + b * step_of(from.stride_batch) + h * step_of(from.stride_head) +
                       of * step_of(from.stride_seq),
                   (size_t)x->width * sizeof *data);
    }
    x->data = data;
    x->stride_batch = x->stride_head = x->stride_seq = 0;
}

/* ---- callbacks of a cut: they ask those of the whole call, with its row numbers ---- */

static attn_params asked;          /* the whole call */
static const int64_t *asked_begin; /* its row that is row 0 here, by entry */

static attn_pair whole_pair(const attn_pair *at)
{
    attn_pair pair = *at;
    pair.i += asked_begin[at->batch];
    return pair;
}

static float ask_score(void *user, const attn_pair *at, float logit)
{
    const attn_pair pair = whole_pair(at);
    return asked.score(user, &pair, logit);
}

static int ask_mask(void *user, const attn_pair *at)
{
    const attn_pair pair = whole_pair(at);
    return asked.mask(user, &pair);
}

static int ask_mask_tile(void *user, const attn_rect *at)
{
    attn_rect rect = *at;
    rect.i_begin += asked_begin[at->batch];
    rect.i_end += asked_begin[at->batch];
    rect.offset -= asked_begin[at->batch];
    return asked.mask_tile(user, &rect);
}

static void cut_callbacks(const cut *c, attn_params *p)
{
    int64_t *begin = test_alloc((size_t)c->batch * sizeof *begin);
    memcpy(begin, c->begin, (size_t)c->batch * sizeof *begin);
    asked = *c->whole;
    asked_begin = begin;
    p->score = p->score != NULL ? ask_score : NULL;
    p->mask = p->mask != NULL ? ask_mask : NULL;
    p->mask_tile = p->mask_tile != NULL ? ask_mask_tile : NULL;
}

void slice_rows_copied(test_problem *part, const test_problem *whole, const int64_t *begin,
                       const int64_t *count)
{
    attn_params *p = &part->p;
    cut c = { &whole->p, begin, count, whole->p.batch, whole->p.num_heads_q, 0, 0 };
    const ptrdiff_t rows = (ptrdiff_t)whole->p.seq_len_q;
    for (int64_t b = 0; b < c.batch; b++)
        c.most = count[b] > c.most ? count[b] : c.most;
    c.room = c.most + rng_chance(20);
    *part = *whole;
    memset(&p->logits, 0, sizeof p->logits);
    cut_lengths(p, &c);
    cut_positions(p, &c);
    cut_queries(part, whole, &c);
    cut_outputs(part);
    p->q_segments = cut_numbers(&c, p, p->q_segments,
                                p->q_segments_stride != 0 ? p->q_segments_stride : rows, 0);
    p->tree_parents =
        cut_numbers(&c, p, p->tree_parents, p->tree_stride != 0 ? p->tree_stride : rows, 1);
    p->q_segments_stride = p->tree_stride = 0;
    cut_mask(&c, &p->bool_mask, 1);
    cut_mask(&c, &p->bit_mask, 0);
    cut_bias(&c, &p->bias);
    cut_blocks(&c, &p->block_mask);
    cut_lists(&c, &p->key_list);
    cut_callbacks(&c, p);
}
