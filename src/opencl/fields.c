/* src/opencl/fields.c - what a device does with each field of a call, in one row.
 * SPDX-License-Identifier: MIT
 *
 * No API of a device is here, nor in plan.c, arrays.c and describe.c: another one than OpenCL could
 * use these rooms as they are.
 */
#pragma once

#include "../../kernels.cl" /* for its numbers: the kernels are left out */
#include "../backward/fields.c"

/* load1 of kernels.cl knows these storage types of K and V, and of other arrays, by the numbers of
 * attn_dtype: a bit for each. */
#define KEY_TYPES ((1 << TYPE_MIXED) - 1)
#define OTHER_TYPES ((1 << TYPE_E4M3) - 1)

/* KV_TYPE of kernels.cl is the storage type of K and V, or MIXED, which is beyond all types. */
enum { MIXED = TYPE_MIXED, KV_TYPES };
typedef char types_have_numbers_of_dtypes[(int)TYPE_BF16 == (int)ATTN_BF16 &&
                                                  (int)TYPE_E5M2 == (int)ATTN_E5M2 &&
                                                  (int)TYPE_Q4_0 == (int)ATTN_Q4_0 &&
                                                  CL_UNIT == UNIT
                                              ? 1
                                              : -1];

/* A device_array is an array that the device has. */
enum device_array {
    NO_ARRAY,
    IN_Q, /* kernels read these, in the order of their arguments: INPUTS in kernels.cl */
    IN_K,
    IN_V,
    IN_TABLE,
    IN_BIAS,
    IN_BOOL,
    IN_BIT,
    IN_BITMAP,
    IN_OFFSETS,
    IN_COLUMNS,
    IN_Q_SEGMENTS,
    IN_KV_SEGMENTS,
    IN_TREE,
    IN_SLOPES,
    IN_SINKS,
    IN_O, /* only gradients read these */
    IN_LSE,
    IN_STATS,
    IN_DOUT,
    IN_DLSE,
    OUT_O, /* kernels write these */
    OUT_LSE,
    OUT_STATS,
    OUT_M,
    OUT_L,
    OUT_STATE_O,
    OUT_LOGITS,
    OUT_DQ,
    OUT_DK,
    OUT_DV,
    OUT_DSINKS,
    OUT_DBIAS,
    OUT_DSLOPES,
    ARRAY_COUNT
};

/* A reach says which elements of an array a call reads or writes. */
enum reach { REACH_ALL, REACH_ROWS, REACH_KEYS, REACH_CHOSEN };

typedef struct device_field {
    uint16_t offset; /* of the field, as in its call_field */
    uint16_t number; /* N_FLAGS: none; of a value, or of an array's offset and the strides behind */
    uint32_t flag;   /* that it is set */
    uint8_t array;   /* NO_ARRAY: what is there is for the host, which tells kernels what follows */
    uint8_t reach;
    uint8_t shared; /* nonzero: an array that the host reads, too */
} device_field;

#define HOST(member) .offset = AT(member)
#define NUMBER(member, name) .offset = AT(member), .number = name
#define FLAG(member, name) .offset = AT(member), .flag = name
#define ARRAY(member, name, which, elements)                                                       \
    .offset = AT(member), .number = name, .array = which, .reach = elements

/* The rows are in the order of call_fields. A field that has none is refused. */
#define AT(member) offsetof(attn_params, member)
static const device_field device_fields[] = {
    { HOST(batch) },
    { NUMBER(num_heads_q, N_HEADS) },
    { NUMBER(num_heads_kv, N_HEADS_KV) },
    { NUMBER(seq_len_q, N_STATE_ROWS) },
    { NUMBER(seq_len_kv, N_COLUMN_COUNT) },
    { NUMBER(head_dim, N_DIM) },
    { HOST(head_dim_v) },
    { NUMBER(scale, N_SCALE) },
    { FLAG(integer, F_INTEGER) },
    { NUMBER(rotated, N_ROTATED) },
    { HOST(k_centered) },
    { HOST(layout) },
    { NUMBER(q.dtype, N_Q_TYPE) },
    { NUMBER(k.dtype, N_K_TYPE) },
    { HOST(k.dtype) }, /* that it is not plain */
    { NUMBER(v.dtype, N_V_TYPE) },
    { HOST(v.dtype) },
    { NUMBER(o.dtype, N_O_TYPE) },
    { NUMBER(lse.dtype, N_LSE_TYPE) },
    { NUMBER(stats.dtype, N_STATS_TYPE) },
    { ARRAY(q.data, N_Q, IN_Q, REACH_ROWS) },
    { ARRAY(k.data, N_K, IN_K, REACH_KEYS) },
    { ARRAY(v.data, N_V, IN_V, REACH_KEYS) },
    { ARRAY(o.data, N_O, OUT_O, REACH_ROWS), .flag = F_O },
    { ARRAY(lse.data, N_LSE, OUT_LSE, REACH_ROWS), .flag = F_LSE },
    { ARRAY(stats.data, N_STATS, OUT_STATS, REACH_ROWS), .flag = F_STATS },
    { HOST(q_len) },
    { HOST(kv_len) },
    { HOST(kv_begin) },
    { NUMBER(cu_seqlens_q, N_VARLEN) },
    { HOST(cu_seqlens_kv) },
    { HOST(key_base) },
    { NUMBER(kv_rows.ring, N_RING) },
    { HOST(kv_rows.begin) },
    { NUMBER(kv_rows.page_size, N_PAGE_SIZE) },
    { HOST(kv_rows.num_pages) },
    { ARRAY(kv_rows.table, N_TABLE, IN_TABLE, REACH_ALL), .shared = 1 },
    { HOST(shared_keys) },
    { HOST(alignment) },
    { HOST(q_offset) },
    { FLAG(causal, F_CAUSAL) },
    { HOST(prefix) },
    { FLAG(window, F_WINDOW) },
    { NUMBER(window_left, N_WINDOW_LEFT) },
    { NUMBER(window_right, N_WINDOW_RIGHT) },
    { NUMBER(chunk_size, N_CHUNKED), .flag = F_CHUNKED },
    { ARRAY(q_segments, N_Q_SEGMENTS, IN_Q_SEGMENTS, REACH_ALL), .flag = F_SEGMENTS },
    { ARRAY(kv_segments, N_KV_SEGMENTS, IN_KV_SEGMENTS, REACH_ALL), .flag = F_SEGMENTS },
    { ARRAY(tree_parents, N_TREE, IN_TREE, REACH_ALL), .flag = F_TREE, .shared = 1 },
    { HOST(bool_mask.invert) },
    { ARRAY(bool_mask.data, N_BOOL, IN_BOOL, REACH_ALL), .flag = F_BOOL_MASK },
    { HOST(bit_mask.invert) },
    { ARRAY(bit_mask.data, N_BIT, IN_BIT, REACH_ALL), .flag = F_BIT_MASK },
    { NUMBER(block_mask.block_q, N_BLOCK_Q) },
    { NUMBER(block_mask.block_k, N_BLOCK_K) },
    { ARRAY(block_mask.bitmap, N_BITMAP, IN_BITMAP, REACH_ALL), .flag = F_BITMAP, .shared = 1 },
    { ARRAY(block_mask.row_offsets, N_OFFSETS, IN_OFFSETS, REACH_ALL), .flag = F_CSR, .shared = 1 },
    { ARRAY(block_mask.columns, N_COLUMNS, IN_COLUMNS, REACH_ALL), .shared = 1 },
    { FLAG(softcap, F_SOFTCAP) },
    { NUMBER(bias.dtype, N_BIAS_TYPE) },
    { ARRAY(bias.data, N_BIAS, IN_BIAS, REACH_ALL), .flag = F_BIAS },
    { ARRAY(alibi_slopes, N_SLOPES, IN_SLOPES, REACH_ALL), .flag = F_ALIBI, .shared = 1 },
    { HOST(callback_user) },
    { ARRAY(sinks, N_SINKS, IN_SINKS, REACH_ALL), .flag = F_SINKS, .shared = 1 },
    { FLAG(softmax1, F_SOFTMAX1) },
    { FLAG(dropout_p, F_DROPOUT) },
    { HOST(dropout_seed) },
    { FLAG(partial, F_PARTIAL) },
    { ARRAY(state.m, N_STATE_M, OUT_M, REACH_ROWS) },
    { ARRAY(state.l, N_STATE_L, OUT_L, REACH_ROWS) },
    { ARRAY(state.o, N_STATE_O, OUT_STATE_O, REACH_ROWS) },
    { NUMBER(logits.stage, N_STAGE) },
    { HOST(logits.num_rows) },
    { NUMBER(logits.rows, N_CHOSEN_LIST) },
    { ARRAY(logits.data, N_LOGITS, OUT_LOGITS, REACH_CHOSEN) },
    { HOST(impl) },
    { HOST(auto_naive_keys) },
    { HOST(naive_whole) },
    { HOST(tile_keys) },
    { HOST(tuning) },
    { HOST(force_redo) },
    { HOST(kernels) },
    { HOST(backend) },
    { HOST(num_workers) },
    { HOST(parallel_for) },
    { HOST(parallel_user) },
    { HOST(log) },
    { HOST(log_user) },
    { HOST(part.row_begin) },
    { HOST(part.row_count) },
    { HOST(part.key_begin) },
    { HOST(part.key_count) },
    { HOST(part.key_row) },
    { .offset = UINT16_MAX },
};
#undef AT

/* The rows are in the order of gradient_fields. */
#define AT(member) offsetof(attn_gradients, member)
static const device_field device_gradient_fields[] = {
    { NUMBER(dout.dtype, N_DOUT_TYPE) },
    { NUMBER(dlse.dtype, N_DLSE_TYPE) },
    { NUMBER(dq.dtype, N_DQ_TYPE) },
    { NUMBER(dk.dtype, N_DK_TYPE) },
    { NUMBER(dv.dtype, N_DV_TYPE) },
    { ARRAY(dout.data, N_DOUT, IN_DOUT, REACH_ROWS) },
    { ARRAY(dlse.data, N_DLSE, IN_DLSE, REACH_ROWS), .flag = F_DLSE },
    { ARRAY(dq.data, N_DQ, OUT_DQ, REACH_ROWS) },
    { ARRAY(dk.data, N_DK, OUT_DK, REACH_KEYS) },
    { ARRAY(dv.data, N_DV, OUT_DV, REACH_KEYS) },
    { ARRAY(dsinks, N_DSINKS, OUT_DSINKS, REACH_ALL) },
    { .offset = UINT16_MAX },
};
#undef AT

/* A field_walk goes over the fields of a call, or of its gradients, and their rows. */
typedef struct field_walk {
    const call_field *fields, *f; /* all, the present one */
    int count, done;
    const device_field *next, *row; /* row: NULL where the present one has none */
    const void *base;
} field_walk;

static field_walk walk_fields(const attn_params *p)
{
    const field_walk w = { call_fields, NULL, COUNT_OF(call_fields), 0, device_fields, NULL, p };
    return w;
}

static field_walk walk_gradient_fields(const attn_gradients *g)
{
    const field_walk w = {
        gradient_fields, NULL, COUNT_OF(gradient_fields), 0, device_gradient_fields, NULL, g,
    };
    return w;
}

static int next_field(field_walk *w)
{
    if (w->done == w->count)
        return 0;
    w->f = &w->fields[w->done++];
    w->row = w->next->offset == w->f->offset ? w->next++ : NULL;
    return 1;
}

/* flags_of has a flag for each thing that the fields ask for. */
static int64_t flags_of(field_walk w)
{
    int64_t all = 0;
    while (next_field(&w))
        if (w.row && w.row->flag && field_number(w.f, w.base))
            all |= w.row->flag;
    return all;
}

/* copy_numbers copies the numbers that kernels read as they are in the fields. */
static void copy_numbers(field_walk w, int64_t *numbers)
{
    while (next_field(&w))
        if (w.row && w.row->number && !w.row->array)
            numbers[w.row->number] = field_number(w.f, w.base);
}

/* knows_type returns whether devices know the storage type of a field that has a row, if it has a
 * type. */
static int knows_type(const field_walk *w, int *dtype)
{
    const int is_key = w->row && (w->row->array == IN_K || w->row->array == IN_V);
    *dtype = ATTN_F32;
    if (w->f->type == F_STORED)
        memcpy(dtype, (const char *)w->base + w->f->dtype, sizeof *dtype);
    return *dtype >= 0 && *dtype < MIXED && ((is_key ? KEY_TYPES : OTHER_TYPES) >> *dtype & 1);
}

/* refuse_unknown returns whether a field is set, or has a storage type, that devices do not know;
 * *why then says which. */
static int refuse_unknown(field_walk w, text *why)
{
    while (next_field(&w)) {
        const int64_t value = w.row ? 0 : field_number(w.f, w.base);
        int dtype;
        if (value)
            return refuse_field(w.f, value, "a device", why) != ATTN_OK;
        if (!knows_type(&w, &dtype)) {
            put(why, w.f->name);
            return bad_field(why, ATTN_ERR_UNSUPPORTED, ".dtype", dtype,
                             " is a storage type that a device does not know") != ATTN_OK;
        }
    }
    return 0;
}
