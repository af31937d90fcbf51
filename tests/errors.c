/* errors.c - every field of attn_params wrong in turn.
 * SPDX-License-Identifier: MIT
 *
 * One row of the table below is one wrong call: the field, what else must be on for it to matter,
 * the wrong value and the status. For each row attn_workspace_size, attn_explain and attn_forward
 * must agree on the status, the sentence of attn_check must hold the field's name and its value,
 * and no byte of any output or of the workspace may change.
 */
#include "test.h"

#include "pool.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
    BATCH = 2,
    HEADS_Q = 4,
    HEADS_KV = 2,
    SEQ_Q = 5,
    SEQ_KV = 7,
    DIM = 8,
    DIM_V = 6,
    PAGE_COUNT = 4,
    LISTED = 3,
    WORKSPACE = 1 << 20,
    PAINT = 0x5a
};

/* ---- a right call with everything that a row may break --------------------------------------- */

typedef struct arrays {
    int32_t q_len[BATCH], kv_len[BATCH], kv_begin[BATCH], cu_q[BATCH + 1], cu_kv[BATCH + 1];
    int32_t q_offset[BATCH], prefix[BATCH], q_segments[BATCH * SEQ_Q], kv_segments[BATCH * SEQ_KV];
    int32_t tree[BATCH * SEQ_Q], rows[2], row_offsets[SEQ_Q + 1], columns[SEQ_Q];
    int32_t listed[BATCH * HEADS_KV * SEQ_Q * LISTED];
    int64_t key_base[BATCH];
    int32_t begin[BATCH], table[BATCH * 3];
    uint8_t bitmap[64];
} arrays;

/* Outputs next to each other, so that one look sees them all. */
typedef struct outputs {
    float o[BATCH * HEADS_Q * SEQ_Q * DIM_V], lse[BATCH * HEADS_Q * SEQ_Q];
    float stats[BATCH * HEADS_Q * SEQ_Q * 2];
    float logits[BATCH * HEADS_Q * SEQ_Q * SEQ_KV];
    float m[BATCH * HEADS_Q * SEQ_Q], l[BATCH * HEADS_Q * SEQ_Q];
    float state_o[BATCH * HEADS_Q * SEQ_Q * DIM_V];
} outputs;

static arrays list;
static outputs out;
static unsigned char workspace[WORKSPACE];
static float q[BATCH * HEADS_Q * SEQ_Q * DIM], k[BATCH * HEADS_KV * SEQ_KV * DIM];
static float v[BATCH * HEADS_KV * SEQ_KV * DIM_V];

/* What a row needs beside the plain call. */
enum {
    PLAIN = 0,
    LENGTHS = 1,
    VARLEN = 2,
    WINDOW = 4,
    OFFSET = 8,
    SEGMENTS = 16,
    TREE = 32,
    BITMAP = 64,
    CSR = 128,
    LOGITS = 256,
    PARTIAL = 512,
    ROWS = 1024,
    NO_OUTPUT = 2048,
    BASE = 4096,
    RING = 16384,
    PAGES = 32768,
    PART_ROWS = 65536,
    PART_KEYS = 131072,
    CONTINUED = 262144,
    KEY_LIST = 524288,
    LATE = 8192 /* only attn_forward and attn_check look: data need not be there to ask for sizes */
};

static void fill_arrays(void)
{
    memset(&list, 0, sizeof list);
    for (int b = 0; b < BATCH; b++) {
        list.q_len[b] = SEQ_Q - 1;
        list.kv_len[b] = SEQ_KV - 2;
        list.kv_begin[b] = 1;
        for (int i = 0; i < SEQ_Q; i++)
            list.tree[b * SEQ_Q + i] = i - 1;
    }
    for (int i = 0; i <= SEQ_Q; i++)
        list.row_offsets[i] = i;
    for (int i = 0; i < BATCH * HEADS_KV * SEQ_Q * LISTED; i++)
        list.listed[i] = i % LISTED * 2; /* 0, 2, 4 */
    list.cu_q[1] = 2, list.cu_q[2] = SEQ_Q;
    list.cu_kv[1] = 3, list.cu_kv[2] = SEQ_KV;
    list.rows[1] = SEQ_Q - 1;
    for (int i = 0; i < BATCH * 3; i++)
        list.table[i] = i * PAGE_COUNT / (BATCH * 3);
}

static void add_lengths(attn_params *p, int with)
{
    if (with & LENGTHS) {
        p->q_len = list.q_len;
        p->kv_len = list.kv_len;
        p->kv_begin = list.kv_begin;
    }
    if (with & VARLEN) {
        p->cu_seqlens_q = list.cu_q;
        p->cu_seqlens_kv = list.cu_kv;
    }
    if (with & BASE)
        p->key_base = list.key_base;
    if (with & RING) {
        p->kv_rows.ring = SEQ_KV;
        p->kv_rows.begin = list.begin;
    }
    if (with & PAGES) {
        p->kv_rows.page_size = 3;
        p->kv_rows.num_pages = PAGE_COUNT;
        p->kv_rows.table = list.table;
    }
}

static void add_masks(attn_params *p, int with)
{
    p->window = with & WINDOW ? ATTN_WINDOW : 0;
    if (with & OFFSET) {
        p->alignment = ATTN_ALIGN_OFFSET;
        p->q_offset = list.q_offset;
    }
    if (with & SEGMENTS) {
        p->q_segments = list.q_segments;
        p->kv_segments = list.kv_segments;
    }
    p->tree_parents = with & TREE ? list.tree : NULL;
    if (with & (BITMAP | CSR)) {
        p->block_mask.block_q = p->block_mask.block_k = 1;
        p->block_mask.stride_batch = p->block_mask.stride_head = ATTN_STRIDE_BROADCAST;
        p->block_mask.csr_stride_batch = p->block_mask.csr_stride_head = ATTN_STRIDE_BROADCAST;
    }
    p->block_mask.bitmap = with & BITMAP ? list.bitmap : NULL;
    if (with & CSR) {
        p->block_mask.row_offsets = list.row_offsets;
        p->block_mask.columns = list.columns;
    }
    if (with & KEY_LIST) {
        p->key_list.data = list.listed;
        p->key_list.width = LISTED;
    }
}

static void add_outputs(attn_params *p, int with)
{
    p->o.data = with & NO_OUTPUT ? NULL : out.o;
    p->lse.data = with & NO_OUTPUT ? NULL : out.lse;
    p->stats.data = with & NO_OUTPUT ? NULL : out.stats;
    p->logits.data = with & LOGITS ? out.logits : NULL;
    if (with & ROWS) {
        p->logits.num_rows = 2;
        p->logits.rows = list.rows;
    }
    if (with & PART_ROWS) {
        p->part.rows = 1;
        p->part.row_begin = 1;
        p->part.row_count = SEQ_Q - 1;
    }
    if (with & PART_KEYS) {
        p->part.keys = 1;
        p->part.key_begin = 2;
        p->part.key_count = SEQ_KV - 2;
    }
    p->part.continued = with & CONTINUED ? 1 : 0;
    if (with & PARTIAL) {
        p->partial = 1;
        p->state.m = out.m, p->state.l = out.l, p->state.o = out.state_o;
    }
}

static attn_params right_call(int with)
{
    attn_params p = { 0 };
    fill_arrays();
    p.batch = BATCH;
    p.num_heads_q = HEADS_Q;
    p.num_heads_kv = HEADS_KV;
    p.seq_len_q = SEQ_Q;
    p.seq_len_kv = SEQ_KV;
    p.head_dim = DIM;
    p.head_dim_v = DIM_V;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    add_lengths(&p, with);
    add_masks(&p, with);
    add_outputs(&p, with);
    return p;
}

/* ---- the table ------------------------------------------------------------------------------- */

typedef enum kind { TO_INT, TO_I64, TO_FLOAT, TO_STRIDE, TO_NULL, AT_I32, AT_I64 } kind;

typedef struct row {
    const char *field; /* as the sentence names it */
    size_t at;         /* its place in attn_params */
    kind how;          /* AT_: the field is an array; element `index` becomes the value */
    int index;
    double value;
    int with;
    attn_status status;
    const char *words; /* that the sentence must hold; NULL = field and value */
} row;

#define FIELD(name) #name, offsetof(attn_params, name)
#define ARG ATTN_ERR_ARG
#define OVER ATTN_ERR_OVERFLOW
#define MUCH 4611686018427387904.0 /* 2^62 */
#define NAN_ 1e39                  /* stands for a NaN; 1e40 and -1e40 become infinite */
#define INF_ 1e40

static const row rows[] = {
    { FIELD(batch), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(num_heads_q), TO_I64, 0, 0, PLAIN, ARG, NULL },
    { FIELD(num_heads_q), TO_I64, 0, -4, PLAIN, ARG, NULL },
    { FIELD(num_heads_q), TO_I64, 0, 5, PLAIN, ARG, NULL },
    { FIELD(num_heads_kv), TO_I64, 0, 3, PLAIN, ARG, NULL },
    { FIELD(num_heads_kv), TO_I64, 0, 8, PLAIN, ARG, NULL },
    { FIELD(num_heads_kv), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(seq_len_q), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(seq_len_kv), TO_I64, 0, -7, PLAIN, ARG, NULL },
    { FIELD(head_dim), TO_I64, 0, 0, PLAIN, ARG, NULL },
    { FIELD(head_dim), TO_I64, 0, -8, PLAIN, ARG, NULL },
    { FIELD(head_dim_v), TO_I64, 0, -6, PLAIN, ARG, NULL },
    { FIELD(scale), TO_FLOAT, 0, NAN_, PLAIN, ARG, NULL },
    { FIELD(scale), TO_FLOAT, 0, INF_, PLAIN, ARG, NULL },
    { FIELD(scale), TO_FLOAT, 0, -INF_, PLAIN, ARG, NULL },
    { FIELD(layout), TO_INT, 0, 2, PLAIN, ARG,
      "layout (2) must be at most 1: 0 is BHSD, 1 is BSHD" },
    { FIELD(layout), TO_INT, 0, -1, PLAIN, ARG,
      "layout (-1) must be at least 0: 0 is BHSD, 1 is BSHD" },
    { FIELD(q.dtype), TO_INT, 0, 3, PLAIN, ARG,
      "q.dtype (3) must be at most 2: 0 is f32, 1 is f16, 2 is bf16" },
    { FIELD(k.dtype), TO_INT, 0, -1, PLAIN, ARG, "k.dtype (-1) must be at least 0: 0 is f32" },
    { FIELD(v.dtype), TO_INT, 0, 77, PLAIN, ARG, NULL },
    { FIELD(k.dtype), TO_INT, 0, 8, PLAIN, ARG, "k.dtype (8) is i8, but k_scales.data is NULL" },
    { FIELD(v.dtype), TO_INT, 0, 8, PLAIN, ARG, "v.dtype (8) is i8, but v_scales.data is NULL" },
    { FIELD(o.dtype), TO_INT, 0, 3, PLAIN, ARG, NULL },
    { FIELD(lse.dtype), TO_INT, 0, 1, PLAIN, ARG, NULL },
    { FIELD(stats.dtype), TO_INT, 0, 2, PLAIN, ARG, "stats.dtype (2) must be 0: f32" },
    { FIELD(q.data), TO_NULL, 0, 0, LATE, ARG, "q.data" },
    { FIELD(k.data), TO_NULL, 0, 0, LATE, ARG, "k.data" },
    { FIELD(v.data), TO_NULL, 0, 0, LATE, ARG, "v.data" },
    { FIELD(o.data), TO_NULL, 0, 0, NO_OUTPUT | LATE, ARG, "o.data" },
    { FIELD(o.stride_batch), TO_STRIDE, 0, 0, PLAIN, ARG, "o.stride_batch" },
    { FIELD(o.stride_head), TO_STRIDE, 0, 0, PLAIN, ARG, "o.stride_head" },
    { FIELD(o.stride_seq), TO_STRIDE, 0, 0, PLAIN, ARG, "o.stride_seq" },
    { FIELD(lse.stride_batch), TO_STRIDE, 0, 0, PLAIN, ARG, "lse.stride_batch" },
    { FIELD(lse.stride_head), TO_STRIDE, 0, 0, PLAIN, ARG, "lse.stride_head" },
    { FIELD(lse.stride_seq), TO_STRIDE, 0, 0, PLAIN, ARG, "lse.stride_seq" },
    { FIELD(stats.stride_batch), TO_STRIDE, 0, 0, PLAIN, ARG, "stats.stride_batch" },
    { FIELD(stats.stride_head), TO_STRIDE, 0, 0, PLAIN, ARG, "stats.stride_head" },
    { FIELD(stats.stride_seq), TO_STRIDE, 0, 0, PLAIN, ARG, "stats.stride_seq" },
    { FIELD(q_len), AT_I32, 1, -1, LENGTHS, ARG, NULL },
    { FIELD(q_len), AT_I32, 1, 6, LENGTHS, ARG, NULL },
    { FIELD(kv_len), AT_I32, 1, -1, LENGTHS, ARG, NULL },
    { FIELD(kv_len), AT_I32, 1, 8, LENGTHS, ARG, NULL },
    { FIELD(kv_begin), AT_I32, 1, -1, LENGTHS, ARG, NULL },
    { FIELD(kv_begin), AT_I32, 1, 8, LENGTHS, ARG, NULL },
    { FIELD(cu_seqlens_q), TO_NULL, 0, 0, VARLEN, ARG, "cu_seqlens_q" },
    { FIELD(cu_seqlens_kv), TO_NULL, 0, 0, VARLEN, ARG, "cu_seqlens_kv" },
    { FIELD(part.row_begin), TO_I64, 0, -1, PART_ROWS, ARG, NULL },
    { FIELD(part.row_begin), TO_I64, 0, 2, PART_ROWS, ARG, "seq_len_q" },
    { FIELD(part.row_begin), TO_I64, 0, 1, PLAIN, ARG, "part.rows is 0" },
    { FIELD(part.row_count), TO_I64, 0, -1, PART_ROWS, ARG, NULL },
    { FIELD(part.row_count), TO_I64, 0, SEQ_Q, PART_ROWS, ARG, "seq_len_q" },
    { FIELD(part.row_count), TO_I64, 0, 1, PLAIN, ARG, "part.rows is 0" },
    { FIELD(part.key_begin), TO_I64, 0, -1, PART_KEYS, ARG, NULL },
    { FIELD(part.key_begin), TO_I64, 0, 3, PART_KEYS, ARG, "seq_len_kv" },
    { FIELD(part.key_count), TO_I64, 0, 2, PLAIN, ARG, "part.keys is 0" },
    { FIELD(part.key_count), TO_I64, 0, MUCH, PART_KEYS, OVER, NULL },
    { FIELD(part.continued), TO_INT, 0, 1, PART_KEYS, ARG, NULL },
    { FIELD(part.continued), TO_INT, 0, 1, PARTIAL, ARG, NULL },
    { FIELD(key_base), AT_I64, 1, 1020, BASE | PART_KEYS | PARTIAL | CONTINUED, ARG,
      "n (1022) to 1026 of sequence b (1)" },
    { FIELD(impl), TO_INT, 0, ATTN_IMPL_NAIVE, PART_ROWS, ATTN_ERR_UNSUPPORTED, NULL },
    { FIELD(part.rows), TO_INT, 0, 1, VARLEN, ATTN_ERR_UNSUPPORTED, "cu_seqlens_q" },
    { FIELD(part.key_row), TO_I64, 0, -1, PART_KEYS | PAGES, ARG, NULL },
    { FIELD(part.key_row), TO_I64, 0, 1, PLAIN | PAGES, ARG, "part.keys is 0" },
    { FIELD(part.key_row), TO_I64, 0, 1, PART_KEYS, ARG, "kv_rows is not" },
    { FIELD(part.key_row), TO_I64, 0, MUCH, PART_KEYS | PAGES, OVER, NULL },
    { FIELD(part.key_row), TO_I64, 0, 3, PART_KEYS | RING | LATE, ARG,
      "kv_rows.ring (7) is below the rows up to the last key in use of sequence b (0), 8" },
    { FIELD(kv_rows.table), AT_I32, 1, -1, PART_KEYS | PAGES | LATE, ARG, "kv_rows.table[1] (-1)" },
    { FIELD(kv_rows.ring), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(kv_rows.ring), TO_I64, 0, SEQ_KV - 1, PLAIN | LATE, ARG, "kv_begin + kv_len" },
    { FIELD(kv_rows.ring), TO_I64, 0, SEQ_KV, VARLEN, ARG, "cu_seqlens_kv" },
    { FIELD(kv_rows.begin), AT_I32, 1, -1, RING | LATE, ARG, NULL },
    { FIELD(kv_rows.ring), TO_I64, 0, 0, RING, ARG, "kv_rows.begin is given" },
    { FIELD(kv_rows.begin), AT_I32, 1, SEQ_KV, RING | LATE, ARG, "below kv_rows.ring" },
    { FIELD(kv_rows.page_size), TO_I64, 0, -1, PAGES, ARG, NULL },
    { FIELD(kv_rows.page_size), TO_I64, 0, 0, PAGES, ARG, "kv_rows.page_size (0)" },
    { FIELD(kv_rows.page_size), TO_I64, 0, 3, PLAIN, ARG, "kv_rows.table is NULL" },
    { FIELD(kv_rows.num_pages), TO_I64, 0, -1, PAGES, ARG, NULL },
    { FIELD(kv_rows.num_pages), TO_I64, 0, 1, PLAIN, ARG, "kv_rows.page_size is 0" },
    { FIELD(kv_rows.num_pages), TO_I64, 0, 1, PAGES | LATE, ARG, "kv_rows.table" },
    { FIELD(kv_rows.table), TO_NULL, 0, 0, PAGES, ARG, "kv_rows.table" },
    { FIELD(kv_rows.table_stride), TO_STRIDE, 0, 0, PLAIN, ARG, "kv_rows.page_size is 0" },
    { FIELD(kv_rows.table_stride), TO_STRIDE, 0, 0, VARLEN, ARG, "cu_seqlens_kv" },
    { FIELD(kv_rows.table), AT_I32, 4, -1, PAGES | LATE, ARG, "kv_rows.table[4] (-1)" },
    { FIELD(kv_rows.table), AT_I32, 2, 4, PAGES | LATE, ARG, "num_pages (4) - 1" },
    { FIELD(cu_seqlens_q), AT_I32, 0, -1, VARLEN, ARG, NULL },
    { FIELD(cu_seqlens_q), AT_I32, 1, 6, VARLEN, ARG, "cu_seqlens_q[2] (5)" },
    { FIELD(cu_seqlens_q), AT_I32, 2, 9, VARLEN, ARG, NULL },
    { FIELD(cu_seqlens_kv), AT_I32, 1, -2, VARLEN, ARG, NULL },
    { FIELD(cu_seqlens_kv), AT_I32, 2, 2, VARLEN, ARG, NULL },
    { FIELD(cu_seqlens_kv), AT_I32, 2, 8, VARLEN, ARG, NULL },
    { FIELD(key_base), AT_I64, 1, -1, BASE, ARG, NULL },
    { FIELD(alignment), TO_INT, 0, 3, PLAIN, ARG, NULL },
    { FIELD(alignment), TO_INT, 0, -1, PLAIN, ARG, NULL },
    { FIELD(q_offset), TO_NULL, 0, 0, OFFSET, ARG, "q_offset" },
    { FIELD(window), TO_INT, 0, 2, PLAIN, ARG,
      "window (2) must be at most 1: it switches window_left and window_right on" },
    { FIELD(window), TO_INT, 0, -1, PLAIN, ARG, NULL },
    { FIELD(window_left), TO_I64, 0, -2, WINDOW, ARG, NULL },
    { FIELD(window_right), TO_I64, 0, -3, WINDOW, ARG, NULL },
    { FIELD(chunk_size), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(shared_keys), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(recent.keys), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(recent.keys), TO_I64, 0, 5, PLAIN, ARG, "recent.keys (5)" },
    { FIELD(recent.ring), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(recent.ring), TO_I64, 0, 9, PLAIN, ARG, "recent.keys is 0" },
    { FIELD(recent.num_entries), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(recent.num_entries), TO_I64, 0, 2, PLAIN, ARG, "recent.entries is NULL" },
    { FIELD(recent.k.dtype), TO_INT, 0, 3, PLAIN, ARG, NULL },
    { FIELD(recent.v.dtype), TO_INT, 0, -1, PLAIN, ARG, NULL },
    { FIELD(shared_keys), TO_I64, 0, SEQ_KV + 1, PLAIN, ARG, NULL },
    { FIELD(shared_keys), TO_I64, 0, SEQ_KV + 1, VARLEN, ARG, NULL },
    { FIELD(q_segments), TO_NULL, 0, 0, SEGMENTS, ARG, "q_segments" },
    { FIELD(kv_segments), TO_NULL, 0, 0, SEGMENTS, ARG, "kv_segments" },
    { FIELD(tree_parents), AT_I32, 3, 3, TREE | LATE, ARG, NULL },
    { FIELD(tree_parents), AT_I32, 7, 4, TREE | LATE, ARG, NULL },
    { FIELD(tree_parents), AT_I32, 9, -2, TREE | LATE, ARG, NULL },
    { FIELD(block_mask.block_q), TO_I64, 0, 0, BITMAP, ARG, NULL },
    { FIELD(block_mask.block_q), TO_I64, 0, -16, CSR, ARG, NULL },
    { FIELD(block_mask.block_k), TO_I64, 0, 0, CSR, ARG, NULL },
    { FIELD(block_mask.block_k), TO_I64, 0, -1, BITMAP, ARG, NULL },
    { FIELD(block_mask.bitmap), TO_NULL, 0, 0, BITMAP, ARG, "block_mask" },
    { FIELD(block_mask.row_offsets), TO_NULL, 0, 0, CSR, ARG, "block_mask" },
    { FIELD(block_mask.columns), TO_NULL, 0, 0, CSR, ARG, "block_mask" },
    { FIELD(key_list.width), TO_I64, 0, 0, KEY_LIST, ARG, NULL },
    { FIELD(key_list.width), TO_I64, 0, -3, KEY_LIST, ARG, NULL },
    { FIELD(key_list.width), TO_I64, 0, 3, PLAIN, ARG, NULL },
    { FIELD(key_list.rows), TO_I64, 0, -1, KEY_LIST, ARG, NULL },
    { FIELD(key_list.rows), TO_I64, 0, 2, PLAIN, ARG, NULL },
    { FIELD(key_list.data), AT_I32, 2, SEQ_KV, KEY_LIST | LATE, ARG,
      "key_list.data[2] (7) must be from 0 to 6" },
    { FIELD(key_list.data), AT_I32, 4, 0, KEY_LIST | LATE, ARG,
      "key_list.data[4] (0) must be above the entry before it (0)" },
    { FIELD(key_list.data), AT_I32, 4, -1, KEY_LIST | LATE, ARG,
      "key_list.data[5] (4) must be below 0, too, behind the entry before it (-1)" },
    { FIELD(key_list.data), AT_I32, 59, 2, KEY_LIST | LATE, ARG,
      "key_list.data[59] (2) must be above the entry before it (2)" },
    { FIELD(softcap), TO_FLOAT, 0, -1, PLAIN, ARG, NULL },
    { FIELD(softcap), TO_FLOAT, 0, NAN_, PLAIN, ARG, NULL },
    { FIELD(softcap), TO_FLOAT, 0, INF_, PLAIN, ARG, NULL },
    { FIELD(dropout_p), TO_FLOAT, 0, 1, PLAIN, ARG, NULL },
    { FIELD(dropout_p), TO_FLOAT, 0, -0.5, PLAIN, ARG, NULL },
    { FIELD(dropout_p), TO_FLOAT, 0, NAN_, PLAIN, ARG, NULL },
    { FIELD(state.m), TO_NULL, 0, 0, PARTIAL | LATE, ARG, "state.m" },
    { FIELD(state.l), TO_NULL, 0, 0, PARTIAL | LATE, ARG, "state.l" },
    { FIELD(state.o), TO_NULL, 0, 0, PARTIAL | LATE, ARG, "state.o" },
    { FIELD(logits.stage), TO_INT, 0, 4, LOGITS, ARG,
      "logits.stage (4) must be at most 3: 0 is raw, 1 is softcap, 2 is bias, 3 is softmax" },
    { FIELD(logits.stage), TO_INT, 0, -1, LOGITS, ARG, NULL },
    { FIELD(insight.top), TO_INT, 0, 65, PLAIN, ARG, "insight.top (65) must be at most 64" },
    { FIELD(insight.top), TO_INT, 0, -1, PLAIN, ARG, "insight.top (-1) must be at least 0" },
    { FIELD(insight.top), TO_INT, 0, 2, PLAIN, ARG, "insight.top (2) is set, but" },
    { FIELD(insight.mass_keys), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(insight.mass_rows), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(insight.mass_keys), TO_I64, 0, 4, PLAIN, ARG,
      "insight.mass_keys (4) is set, but insight.mass is NULL" },
    { FIELD(insight.mass_rows), TO_I64, 0, 4, PLAIN, ARG,
      "insight.mass_rows (4) is set, but insight.mass is NULL" },
    { FIELD(logits.num_rows), TO_I64, 0, -1, LOGITS, ARG, NULL },
    { FIELD(logits.num_rows), TO_I64, 0, 6, LOGITS | LATE, ARG, NULL },
    { FIELD(logits.num_rows), TO_I64, 0, SEQ_Q, LOGITS | PART_ROWS | LATE, ARG,
      "logits.num_rows (5) exceeds the rows of the call or part" },
    { FIELD(logits.rows), AT_I32, 1, 5, LOGITS | ROWS | LATE, ARG, NULL },
    { FIELD(logits.rows), AT_I32, 0, -1, LOGITS | ROWS | LATE, ARG, NULL },
    { FIELD(impl), TO_INT, 0, 4, PLAIN, ARG,
      "impl (4) must be at most 3: 0 is default, 1 is tiled, 2 is naive, 3 is auto" },
    { FIELD(impl), TO_INT, 0, -1, PLAIN, ARG, NULL },
    { FIELD(auto_naive_keys), TO_I64, 0, -1, PLAIN, ARG, NULL },
    { FIELD(tile_keys), TO_INT, 0, 8, PLAIN, ARG, NULL },
    { FIELD(tile_keys), TO_INT, 0, 24, PLAIN, ARG, NULL },
    { FIELD(tile_keys), TO_INT, 0, 1040, PLAIN, ARG, NULL },
    { FIELD(tile_keys), TO_INT, 0, -16, PLAIN, ARG, NULL },
    { FIELD(num_workers), TO_INT, 0, -1, PLAIN, ARG, NULL },
    { FIELD(batch), TO_I64, 0, MUCH, PLAIN, OVER, "" },
    { FIELD(num_heads_q), TO_I64, 0, MUCH, PLAIN, OVER, "" },
    { FIELD(seq_len_q), TO_I64, 0, MUCH, PLAIN, OVER, "" },
    { FIELD(seq_len_kv), TO_I64, 0, MUCH, PLAIN, OVER, "" },
    { FIELD(head_dim), TO_I64, 0, MUCH, PLAIN, OVER, "" },
    { FIELD(head_dim_v), TO_I64, 0, MUCH, PLAIN, OVER, "" },
    { FIELD(q.stride_batch), TO_STRIDE, 0, 1, PLAIN, OVER, "" },
    { FIELD(q.stride_seq), TO_STRIDE, 0, -1, PLAIN, OVER, "" },
    { FIELD(k.stride_head), TO_STRIDE, 0, 1, PLAIN, OVER, "" },
    { FIELD(k.stride_seq), TO_STRIDE, 0, 1, PLAIN, OVER, "" },
    { FIELD(v.stride_batch), TO_STRIDE, 0, -1, PLAIN, OVER, "" },
    { FIELD(v.stride_seq), TO_STRIDE, 0, 1, PLAIN, OVER, "" },
    { FIELD(o.stride_head), TO_STRIDE, 0, 1, PLAIN, OVER, "" },
    { FIELD(lse.stride_seq), TO_STRIDE, 0, -1, PLAIN, OVER, "" },
    { FIELD(stats.stride_head), TO_STRIDE, 0, 1, PLAIN, OVER, "" },
    { FIELD(skip.below), TO_FLOAT, 0, -0.5, PLAIN, ARG, NULL },
    { FIELD(skip.below), TO_FLOAT, 0, 1, PLAIN, ARG, NULL },
    { FIELD(skip.below), TO_FLOAT, 0, NAN_, PLAIN, ARG, NULL },
    { FIELD(skip.below), TO_FLOAT, 0, 0.5, PLAIN, ARG, "skip.below is set, but skip.dropped" },
};

/* TO_STRIDE: 0 = broadcast, 1 and -1 = so large that a few steps leave the address space. */
static ptrdiff_t stride_value(double value)
{
    const ptrdiff_t huge = PTRDIFF_MAX / 2;
    return value > 0 ? huge : value < 0 ? -huge : ATTN_STRIDE_BROADCAST;
}

static float float_value(double value)
{
    const float infinity = float_from_bits(0x7f800000u);
    if (value == NAN_)
        return float_from_bits(0x7fc00000u);
    return value == INF_ ? infinity : value == -INF_ ? -infinity : (float)value;
}

static void apply(const row *r, attn_params *p)
{
    unsigned char *at = (unsigned char *)p + r->at;
    const int as_int = r->how == TO_FLOAT || r->value >= MUCH ? 0 : (int)r->value;
    const int64_t as_i64 = r->how == TO_FLOAT ? 0 : (int64_t)r->value;
    const float as_float = float_value(r->value);
    const ptrdiff_t as_stride = stride_value(r->value);
    int32_t *i32;
    int64_t *i64;
    switch (r->how) {
    case TO_INT:
        memcpy(at, &as_int, sizeof as_int);
        break;
    case TO_I64:
        memcpy(at, &as_i64, sizeof as_i64);
        break;
    case TO_FLOAT:
        memcpy(at, &as_float, sizeof as_float);
        break;
    case TO_STRIDE:
        memcpy(at, &as_stride, sizeof as_stride);
        break;
    case TO_NULL:
        memset(at, 0, sizeof(void *));
        break;
    case AT_I32:
        memcpy(&i32, at, sizeof i32);
        i32[r->index] = as_int;
        break;
    case AT_I64:
        memcpy(&i64, at, sizeof i64);
        i64[r->index] = as_i64;
        break;
    }
}

/* ---- checking -------------------------------------------------------------------------------- */

static void paint_outputs(void)
{
    memset(&out, PAINT, sizeof out);
    memset(workspace, PAINT, sizeof workspace);
}

static void check_untouched(void)
{
    CHECK(all_bytes(&out, sizeof out, PAINT), "an output changed");
    CHECK(all_bytes(workspace, sizeof workspace, PAINT), "the workspace changed");
}

/* The sentence does not depend on the room for it, is cut where the room ends, and is never
 * written beyond. */
static void check_truncation(const attn_params *p, size_t bytes, const char *whole)
{
    static const size_t rooms[] = { 0, 1, 2, 10, 40 };
    char small[48];
    const char *answer;
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        memset(small, '#', sizeof small);
        answer = attn_check(p, workspace, bytes, small, rooms[i]);
        CHECK(answer != NULL, "NULL for a room of %lu", (unsigned long)rooms[i]);
        if (rooms[i] > 0)
            CHECK(answer == small && strlen(small) < rooms[i] &&
                      strncmp(small, whole, strlen(small)) == 0 &&
                      (strlen(small) == rooms[i] - 1 || strlen(small) == strlen(whole)),
                  "room %lu: '%.40s' of '%s'", (unsigned long)rooms[i], answer, whole);
        for (size_t n = rooms[i]; n < sizeof small; n++)
            if (!CHECK(small[n] == '#', "written beyond a room of %lu", (unsigned long)rooms[i]))
                break;
    }
    answer = attn_check(p, workspace, bytes, NULL, 100);
    CHECK(answer != NULL && answer[0] != '\0', "nothing without a buffer");
}

static void check_refusal(const attn_params *p, size_t bytes, attn_status status, char *sentence,
                          size_t room)
{
    attn_status got;
    paint_outputs();
    got = attn_forward(p, workspace, bytes);
    CHECK(got == status, "attn_forward says '%s', not '%s'", attn_status_string(got),
          attn_status_string(status));
    check_untouched();
    attn_check(p, workspace, bytes, sentence, room);
    CHECK(strcmp(sentence, "ok") != 0 && strlen(sentence) >= 10, "the sentence is '%s'", sentence);
    check_truncation(p, bytes, sentence);
}

/* The number in the sentence, where it has one and there is one way to write it. */
static void check_words(const row *r, const char *sentence)
{
    char number[40];
    const char *words = r->words != NULL ? r->words : r->field;
    CHECK(strstr(sentence, words) != NULL, "'%s' does not hold '%s'", sentence, words);
    if (r->how == TO_FLOAT || r->words != NULL)
        return;
    snprintf(number, sizeof number, "%.0f", r->value);
    CHECK(strstr(sentence, number) != NULL, "'%s' does not show %s", sentence, number);
}

/* Without these outputs a call may be short, and another function refuses it. */
static void check_short_refusal(const row *r, attn_params p)
{
    attn_status got;
    if (strncmp(r->field, "lse", 3) == 0 || strncmp(r->field, "stats", 5) == 0)
        return;
    p.lse.data = p.stats.data = NULL;
    paint_outputs();
    got = attn_forward(&p, workspace, sizeof workspace);
    CHECK(got == r->status, "without lse attn_forward says '%s'", attn_status_string(got));
    check_untouched();
}

static void check_row(const row *r)
{
    attn_params p = right_call(r->with);
    attn_info info;
    size_t need = 12345;
    attn_status got;
    char sentence[300];
    apply(r, &p);
    check_refusal(&p, sizeof workspace, r->status, sentence, sizeof sentence);
    check_words(r, sentence);
    check_short_refusal(r, p);
    if (r->with & LATE)
        return;
    got = attn_workspace_size(&p, &need);
    CHECK(got == r->status, "attn_workspace_size says '%s'", attn_status_string(got));
    got = attn_explain(&p, &info);
    CHECK(got == r->status, "attn_explain says '%s'", attn_status_string(got));
}

/* Every row's call is right before it is broken; without this the table would prove little. */
static void check_right_calls(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        attn_params p = right_call(rows[i].with & ~NO_OUTPUT);
        char sentence[300];
        if (!begin_case("right call for %s", rows[i].field))
            continue;
        paint_outputs();
        CHECK(attn_forward(&p, workspace, sizeof workspace) == ATTN_OK, "%s",
              attn_check(&p, workspace, sizeof workspace, sentence, sizeof sentence));
        CHECK(strcmp(attn_check(&p, workspace, sizeof workspace, sentence, sizeof sentence),
                     "ok") == 0,
              "'%s'", sentence);
    }
}

static void check_table(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (begin_case("%s = %g in the call %x", rows[i].field, rows[i].value,
                       (unsigned)rows[i].with))
            check_row(&rows[i]);
}

/* ---- what the table cannot say --------------------------------------------------------------- */

static void expect(const char *what, const attn_params *p, attn_status status, const char *word)
{
    char sentence[300];
    if (!begin_case("%s", what))
        return;
    check_refusal(p, sizeof workspace, status, sentence, sizeof sentence);
    CHECK(strstr(sentence, word) != NULL, "'%s' does not name %s", sentence, word);
}

static float no_score(void *user, const attn_pair *at, float logit)
{
    (void)user, (void)at;
    return logit;
}

static int never_called(void *user, const attn_rect *at)
{
    (void)user, (void)at;
    return ATTN_TILE_FULL;
}

static void pack_nothing(float *to, const attn_pack *p)
{
    (void)to, (void)p;
}

static void check_combinations(void)
{
    static const int wrong_rows[] = { -4, 0, 6, 68 };
    static attn_kernels strange_kernels;
    static attn_backend strange_backend;
    attn_params p = right_call(BITMAP | CSR);
    expect("bitmap and CSR", &p, ATTN_ERR_ARG, "block_mask");
    p = right_call(PLAIN);
    p.bias.data = k;
    p.bias.dtype = 3;
    expect("bias of an unknown type", &p, ATTN_ERR_ARG, "bias.dtype (3)");
    p = right_call(PLAIN);
    memset(&strange_kernels, 0, sizeof strange_kernels);
    strange_kernels.abi = ATTN_KERNEL_ABI + 1;
    strange_kernels.rows = 16;
    p.kernels = &strange_kernels;
    expect("kernels of another version", &p, ATTN_ERR_ARG, "kernels->abi (");
    strange_kernels.abi = ATTN_KERNEL_ABI;
    for (size_t i = 0; i < sizeof wrong_rows / sizeof *wrong_rows; i++) {
        char words[80];
        strange_kernels.rows = wrong_rows[i];
        snprintf(words, sizeof words, "kernels->rows (%d) must be a multiple of 4 from 4 to 64",
                 wrong_rows[i]);
        expect(words, &p, ATTN_ERR_ARG, words);
    }
    strange_kernels.rows = 16;
    strange_kernels.pack_values = pack_nothing;
    expect("kernels that round", &p, ATTN_ERR_ARG,
           "kernels round what they multiply to bf16, which fast must allow");
    p = right_call(PLAIN);
    memset(&strange_backend, 0, sizeof strange_backend);
    strange_backend.abi = ATTN_KERNEL_ABI + 1;
    p.backend = &strange_backend;
    expect("a backend of another version", &p, ATTN_ERR_ARG, "backend->abi (");
    p = right_call(LENGTHS);
    list.kv_begin[1] = 3;
    expect("keys in use beyond the last key", &p, ATTN_ERR_ARG, "kv_len[1] (5)");
    p = right_call(PLAIN);
    p.sinks = q;
    p.softmax1 = 1;
    expect("two sinks", &p, ATTN_ERR_ARG, "softmax1");
    for (int way = 0; way < 5; way++) {
        static const char *const who[] = { "softcap", "score", "sinks", "softmax1", "logits" };
        p = right_call(way == 4 ? LOGITS : PLAIN);
        p.k_centered = 1;
        p.softcap = way == 0;
        p.score = way == 1 ? no_score : NULL;
        p.sinks = way == 2 ? q : NULL;
        p.softmax1 = way == 3;
        expect("logits that lack a number", &p, ATTN_ERR_ARG, who[way]);
    }
    p = right_call(PLAIN);
    p.window_left = 3;
    expect("a window that is not on", &p, ATTN_ERR_ARG, "window_left (3)");
    p = right_call(PLAIN);
    p.prefix = list.prefix;
    expect("a prefix of what is seen anyway", &p, ATTN_ERR_ARG, "causal, which it widens, is 0");
    p = right_call(PLAIN);
    p.q_offset = list.q_offset;
    expect("an offset without its alignment", &p, ATTN_ERR_ARG, "q_offset");
    p = right_call(PLAIN);
    p.mask_tile = never_called;
    expect("a classifier without a mask", &p, ATTN_ERR_ARG, "mask_tile");
    p = right_call(PARTIAL | LOGITS);
    p.logits.stage = ATTN_LOGITS_SOFTMAX;
    expect("probabilities of a state", &p, ATTN_ERR_UNSUPPORTED, "logits.stage (3)");
    p = right_call(PART_KEYS | LOGITS);
    p.logits.stage = ATTN_LOGITS_SOFTMAX;
    expect("probabilities of a part", &p, ATTN_ERR_UNSUPPORTED, "logits.stage (3)");
}

/* Products of sizes, each of which is sensible alone, at 2^31, 2^32 and the size of memory. */
static void check_large(void)
{
    static const int64_t sizes[][6] = {
        /* batch, heads, seq_q, seq_kv, dim, dim_v */
        { 1, 1, 1, INT64_MAX, 8, 8 },
        { 1, 1, INT64_MAX, 1, 8, 8 },
        { INT64_MAX, 1, 1, 1, 1, 1 },
        { 1, INT64_MAX, 1, 1, 1, 1 },
        { 1, 1, 1, 1, INT64_MAX, 1 },
        { 1, 1, 1, 1, 1, INT64_MAX },
        { INT64_C(1) << 31, INT64_C(1) << 31, 1, 1, 4, 4 },
        { INT64_C(1) << 32, 1, INT64_C(1) << 32, 1, 1, 1 },
        { 1, 1, INT64_C(1) << 31, INT64_C(1) << 31, INT64_C(1) << 31, 1 },
        { 3, 5, INT64_C(1) << 59, 1, 1, 1 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        attn_params p = right_call(PLAIN);
        p.batch = sizes[i][0];
        p.num_heads_q = sizes[i][1];
        p.num_heads_kv = 0;
        p.seq_len_q = sizes[i][2];
        p.seq_len_kv = sizes[i][3];
        p.head_dim = sizes[i][4];
        p.head_dim_v = sizes[i][5];
        for (int impl = ATTN_IMPL_DEFAULT; impl <= ATTN_IMPL_AUTO; impl++) {
            char sentence[300];
            p.impl = impl;
            if (begin_case("sizes %d, impl %d", (int)i, impl))
                check_refusal(&p, sizeof workspace, ATTN_ERR_OVERFLOW, sentence, sizeof sentence);
        }
    }
}

/* Naive keeps the logits: lengths that the tensors allow may still be too much for it. */
static void check_large_naive(void)
{
    attn_params p = right_call(PLAIN);
    size_t need = 0;
    p.batch = p.num_heads_q = p.head_dim = p.head_dim_v = 1;
    p.num_heads_kv = 0;
    p.impl = ATTN_IMPL_NAIVE;
    p.naive_whole = 1;
    p.seq_len_q = p.seq_len_kv = sizeof(size_t) == 4 ? 1 << 17 : INT64_C(1) << 33;
    if (begin_case("naive: logits beyond the address space"))
        CHECK(attn_workspace_size(&p, &need) == ATTN_ERR_OVERFLOW, "need %lu", (unsigned long)need);
}

static void check_workspace(void)
{
    attn_params p = right_call(PLAIN);
    attn_info info;
    size_t least;
    char sentence[300];
    if (!begin_case("workspace of the wrong size"))
        return;
    p.num_workers = 3;
    CHECK(attn_explain(&p, &info) == ATTN_OK, "attn_explain");
    CHECK(info.workspace_bytes_per_worker > 0 &&
              info.workspace_bytes >= info.workspace_bytes_per_worker,
          "no workspace is needed?");
    paint_outputs();
    CHECK(attn_forward(&p, NULL, sizeof workspace) == ATTN_ERR_WORKSPACE, "NULL accepted");
    check_untouched();
    CHECK(attn_forward(&p, NULL, 0) == ATTN_ERR_WORKSPACE, "nothing accepted");
    attn_check(&p, NULL, sizeof workspace, sentence, sizeof sentence);
    CHECK(strstr(sentence, "workspace") != NULL, "'%s'", sentence);
    p.num_workers = 1;
    CHECK(attn_explain(&p, &info) == ATTN_OK, "attn_explain");
    least = test_least_workspace(&p);
    CHECK(least > 1000 && least <= info.workspace_bytes, "%lu bytes are enough",
          (unsigned long)least);
    check_refusal(&p, least - 1, ATTN_ERR_WORKSPACE, sentence, sizeof sentence);
    CHECK(strstr(sentence, "workspace") != NULL, "'%s'", sentence);
    CHECK(attn_forward(&p, workspace, least) == ATTN_OK, "the least that attn_check takes");
    CHECK(attn_forward(&p, workspace, info.workspace_bytes) == ATTN_OK, "one worker's need");
}

/* Lengths outside their range, in a call that is short else. */
static void check_short_lengths(void)
{
    int32_t right[BATCH], wrong[BATCH];
    for (int n = 0; n < 4; n++) {
        attn_params p = right_call(PLAIN);
        char sentence[300];
        p.lse.data = p.stats.data = NULL;
        for (int b = 0; b < BATCH; b++)
            right[b] = wrong[b] = 1;
        wrong[BATCH - 1] = n % 2 ? -1 : (n < 2 ? SEQ_Q : SEQ_KV) + 1;
        p.q_len = n < 2 ? wrong : right;
        p.kv_len = n < 2 ? right : wrong;
        check_refusal(&p, sizeof workspace, ATTN_ERR_ARG, sentence, sizeof sentence);
        wrong[BATCH - 1] = 1;
        CHECK(test_is_short(&p) && attn_forward(&p, workspace, sizeof workspace) == ATTN_OK,
              "the right call");
    }
}

/* More room than memory has is still room: only what is needed is used. */
static void check_endless_workspace(void)
{
    static const size_t sizes[] = { (size_t)-1, (size_t)-1 / 2, (size_t)-1 / 2 + 1 };
    for (int n = 0; n < 6; n++) {
        attn_params p = right_call(n % 2 == 0 ? PLAIN : LOGITS);
        outputs first;
        void *room;
        size_t need = 0;
        if (!begin_case("workspace_bytes %lu, %d", (unsigned long)sizes[n / 2], n))
            continue;
        p.num_workers = n % 2 == 0 ? 1 : 3;
        paint_outputs();
        CHECK(attn_forward(&p, workspace, sizeof workspace) == ATTN_OK, "the right call");
        first = out;
        CHECK(attn_workspace_size(&p, &need) == ATTN_OK, "attn_workspace_size");
        room = test_alloc(need);
        paint_outputs();
        CHECK(attn_forward(&p, room, sizes[n / 2]) == ATTN_OK, "not accepted");
        CHECK(memcmp(&out, &first, sizeof out) == 0, "not the same results");
        CHECK(!all_bytes(out.o, sizeof out.o, PAINT), "o was not written");
    }
}

/* What one worker needs is in the address space, but not what all of them need. */
static void check_many_workers(void)
{
    const int wide = sizeof(size_t) > 4;
    attn_params p = right_call(PLAIN);
    char sentence[300];
    size_t need = 0;
    if (!begin_case("naive: too much for all workers together"))
        return;
    p.batch = 1;
    p.num_heads_q = wide ? 65536 : 4096;
    p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
    p.seq_len_q = wide ? INT64_C(1) << 22 : 1 << 10;
    p.seq_len_kv = wide ? INT64_C(1) << 24 : 1 << 14;
    p.q.stride_head = ATTN_STRIDE_BROADCAST;
    p.impl = ATTN_IMPL_NAIVE;
    p.num_workers = 1;
    CHECK(attn_workspace_size(&p, &need) == ATTN_OK && need > 0, "one worker");
    p.num_workers = 65536;
    p.parallel_for = pool_for;
    CHECK(attn_workspace_size(&p, &need) == ATTN_ERR_OVERFLOW, "need %lu", (unsigned long)need);
    check_refusal(&p, sizeof workspace, ATTN_ERR_OVERFLOW, sentence, sizeof sentence);
}

/* ---- strides of arrays ----------------------------------------------------------------------- */

typedef struct stride_row {
    const char *words; /* in the sentence */
    size_t stride, data;
    int with;
} stride_row;

#define STRIDE(words, stride, data, with)                                                          \
    {                                                                                              \
        words, offsetof(attn_params, stride), offsetof(attn_params, data), with                    \
    }

static const stride_row stride_rows[] = {
    STRIDE("bias", bias.stride_batch, bias.data, PLAIN),
    STRIDE("bias", bias.stride_head, bias.data, PLAIN),
    STRIDE("bias", bias.stride_q, bias.data, PLAIN),
    STRIDE("bias", bias.stride_kv, bias.data, PLAIN),
    STRIDE("bool_mask", bool_mask.stride_batch, bool_mask.data, PLAIN),
    STRIDE("bool_mask", bool_mask.stride_head, bool_mask.data, PLAIN),
    STRIDE("bool_mask", bool_mask.stride_q, bool_mask.data, PLAIN),
    STRIDE("bool_mask", bool_mask.stride_kv, bool_mask.data, PLAIN),
    STRIDE("bit_mask", bit_mask.stride_batch, bit_mask.data, PLAIN),
    STRIDE("bit_mask", bit_mask.stride_head, bit_mask.data, PLAIN),
    STRIDE("bit_mask", bit_mask.stride_q, bit_mask.data, PLAIN),
    STRIDE("bit_mask", bit_mask.stride_kv, bit_mask.data, PLAIN),
    STRIDE("block_mask.bitmap", block_mask.stride_batch, block_mask.bitmap, BITMAP),
    STRIDE("block_mask.bitmap", block_mask.stride_head, block_mask.bitmap, BITMAP),
    STRIDE("block_mask.bitmap", block_mask.stride_row, block_mask.bitmap, BITMAP),
    STRIDE("block_mask.row_offsets", block_mask.csr_stride_batch, block_mask.row_offsets, CSR),
    STRIDE("block_mask.row_offsets", block_mask.csr_stride_head, block_mask.row_offsets, CSR),
    STRIDE("key_list.data", key_list.stride_batch, key_list.data, KEY_LIST),
    STRIDE("key_list.data", key_list.stride_head, key_list.data, KEY_LIST),
    STRIDE("key_list.data", key_list.stride_seq, key_list.data, KEY_LIST),
    STRIDE("alibi_slopes", alibi_stride, alibi_slopes, PLAIN),
    STRIDE("q_segments", q_segments_stride, q_segments, SEGMENTS),
    STRIDE("kv_segments", kv_segments_stride, kv_segments, SEGMENTS),
    STRIDE("tree_parents", tree_stride, tree_parents, TREE),
};

/* A stride that leaves the address space with its second step. The array is one element; where
 * guard pages are, any step away from it would be seen. Some strides count bits, and 32-bit ones
 * of those lead only 256 MiB away. */
static void check_array_strides(void)
{
    static const ptrdiff_t huge[] = { PTRDIFF_MAX, -PTRDIFF_MAX, PTRDIFF_MAX / 2 };
    for (size_t i = 0; i < sizeof stride_rows / sizeof *stride_rows; i++)
        for (int n = 0; n < 3; n++) {
            const stride_row *r = &stride_rows[i];
            attn_params p = right_call(r->with);
            unsigned char *at = (unsigned char *)&p;
            char sentence[300];
            size_t need;
            void *one;
            if (!begin_case("stride %d, %d of %s", (int)i, n, r->words))
                continue;
            if (sizeof(ptrdiff_t) == 4 && strstr(r->words, "bit") != NULL)
                continue;
            one = test_alloc_at(4, PLACE_PAGE_AFTER);
            memset(one, 0, 4);
            memcpy(at + r->data, &one, sizeof one);
            memcpy(at + r->stride, &huge[n], sizeof huge[n]);
            check_refusal(&p, sizeof workspace, ATTN_ERR_OVERFLOW, sentence, sizeof sentence);
            CHECK(strstr(sentence, r->words) != NULL, "'%s'", sentence);
            CHECK(attn_workspace_size(&p, &need) == ATTN_ERR_OVERFLOW, "attn_workspace_size");
        }
}

/* A stride of an array that is not there means nothing. */
static void check_strides_of_nothing(void)
{
    attn_params p = right_call(PLAIN);
    if (!begin_case("huge strides of arrays that are off"))
        return;
    for (size_t i = 0; i < sizeof stride_rows / sizeof *stride_rows; i++) {
        const ptrdiff_t huge = PTRDIFF_MAX;
        memcpy((unsigned char *)&p + stride_rows[i].stride, &huge, sizeof huge);
    }
    CHECK(attn_forward(&p, workspace, sizeof workspace) == ATTN_OK, "refused");
}

/* ---- block masks, positions, numbers --------------------------------------------------------- */

/* With cu_seqlens CSR has the rows of the longest sequence, not of all tokens. */
static void check_csr_varlen(void)
{
    attn_params p = right_call(VARLEN | CSR);
    char sentence[300];
    int32_t *offsets;
    if (!begin_case("CSR of the longest sequence"))
        return;
    offsets = test_alloc_at((SEQ_Q - 2 + 1) * sizeof *offsets, PLACE_PAGE_AFTER);
    for (int i = 0; i <= SEQ_Q - 2; i++)
        offsets[i] = i;
    p.block_mask.row_offsets = offsets;
    p.block_mask.columns = test_alloc_at((SEQ_Q - 2) * sizeof *offsets, PLACE_PAGE_AFTER);
    memset((void *)(uintptr_t)p.block_mask.columns, 0, (SEQ_Q - 2) * sizeof *offsets);
    CHECK(attn_forward(&p, workspace, sizeof workspace) == ATTN_OK, "%s",
          attn_check(&p, workspace, sizeof workspace, sentence, sizeof sentence));
}

static void check_csr_offsets(void)
{
    attn_params p = right_call(CSR);
    list.row_offsets[0] = -1;
    expect("a first row offset below 0", &p, ATTN_ERR_ARG,
           "block_mask.row_offsets[0] (-1) must be at least 0");
    p = right_call(CSR);
    list.row_offsets[2] = 0;
    expect("row offsets that fall", &p, ATTN_ERR_ARG,
           "block_mask.row_offsets[2] (0) is below the entry before it (1)");
}

/* Offsets are read before columns, of which there are only as many as the last offset says, and no
 * row may have more of them than there are cells. */
static void check_csr_columns_read(void)
{
    static const int32_t wrong[][SEQ_Q + 1] = { { 0, INT32_MAX, 3, 3, 3, 3 },
                                                { 0, 1, 6, 6, 3, 3 },
                                                { 0, 9, 9, 9, 9, 9 } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        attn_params p = right_call(CSR);
        int32_t *columns;
        memcpy(list.row_offsets, wrong[i], sizeof wrong[i]);
        columns = test_alloc_at(3 * sizeof *columns, PLACE_PAGE_AFTER);
        for (int c = 0; c < 3; c++)
            columns[c] = c;
        p.block_mask.columns = columns;
        expect("offsets beyond the columns", &p, ATTN_ERR_ARG, "block_mask.row_offsets[");
    }
}

static void check_csr_duplicate(void)
{
    attn_params p = right_call(CSR);
    list.row_offsets[1] = 2;
    for (int i = 2; i <= SEQ_Q; i++)
        list.row_offsets[i] = 2;
    list.columns[0] = list.columns[1] = 5;
    expect("a column twice in its row", &p, ATTN_ERR_ARG,
           "block_mask.columns[1] (5) must be above the entry before it (5)");
    list.columns[0] = 6;
    expect("a column below the one before it", &p, ATTN_ERR_ARG,
           "block_mask.columns[1] (5) must be above the entry before it (6)");
}

static void check_last_position(void)
{
    attn_params p = right_call(BASE);
    outputs first;
    if (begin_case("key_base 2^58")) {
        p.causal = 1;
        p.chunk_size = 4;
        paint_outputs();
        CHECK(attn_forward(&p, workspace, sizeof workspace) == ATTN_OK, "key_base 0");
        first = out;
        list.key_base[0] = list.key_base[1] = INT64_C(1) << 58;
        paint_outputs();
        CHECK(attn_forward(&p, workspace, sizeof workspace) == ATTN_OK, "refused");
        CHECK(memcmp(&out, &first, sizeof out) == 0, "not the result of key_base 0");
    }
    p = right_call(BASE);
    list.key_base[1] = (INT64_C(1) << 58) + 1;
    expect("key_base 2^58 + 1", &p, ATTN_ERR_ARG, "key_base[1] (288230376151711745)");
}

static void check_small_numbers(void)
{
    static const struct {
        float value;
        const char *word;
    } small[] = { { 1e-31f, "softcap (1.000000e-31)" },
                  { 2.5e-38f, "softcap (2.500000e-38)" },
                  { -1e-40f, "softcap (-" },
                  { 3e30f, "softcap (3.000000e30)" } };
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        attn_params p = right_call(PLAIN);
        char sentence[300];
        p.softcap = small[i].value;
        if (!begin_case("a softcap of %g", (double)small[i].value))
            continue;
        check_refusal(&p, sizeof workspace, ATTN_ERR_ARG, sentence, sizeof sentence);
        CHECK(strstr(sentence, small[i].word) != NULL && strstr(sentence, "(0.000000") == NULL &&
                  strstr(sentence, "-0.000000") == NULL,
              "'%s' does not say '%s'", sentence, small[i].word);
    }
}

static void check_large_scale(void)
{
    attn_params p = right_call(PLAIN);
    if (!begin_case("scale * log2(e) beyond binary32"))
        return;
    p.scale = -2.3e38f;
    CHECK(attn_forward(&p, workspace, sizeof workspace) == ATTN_OK, "the largest scale is refused");
    p.scale = -2.4e38f;
    expect("a scale of -2.4e38", &p, ATTN_ERR_ARG, "scale (-2.400000e38) times log2(e)");
}

static void check_null_pointers(void)
{
    attn_params p = right_call(PLAIN);
    attn_info info;
    char text[100];
    float floats[64];
    void *const odd = (char *)(floats + 16) + 1;
    size_t need;
    if (!begin_case("NULL instead of an argument"))
        return;
    CHECK(attn_forward(NULL, workspace, sizeof workspace) == ATTN_ERR_ARG, "attn_forward");
    CHECK(attn_workspace_size(NULL, &need) == ATTN_ERR_ARG, "attn_workspace_size");
    CHECK(attn_workspace_size(&p, NULL) == ATTN_ERR_ARG, "attn_workspace_size");
    CHECK(attn_explain(NULL, &info) == ATTN_ERR_ARG, "attn_explain");
    CHECK(attn_explain(&p, NULL) == ATTN_ERR_ARG, "attn_explain");
    CHECK(strcmp(attn_check(NULL, NULL, 0, text, sizeof text), "ok") != 0, "attn_check");
    CHECK(attn_params_from_string(NULL, "impl=naive", text, sizeof text) == ATTN_ERR_ARG,
          "attn_params_from_string");
    CHECK(attn_alibi_slopes(NULL, 4) == ATTN_ERR_ARG, "attn_alibi_slopes");
    CHECK(attn_state_finish(NULL, NULL) == ATTN_ERR_ARG, "attn_state_finish");
    CHECK(attn_state_merge(NULL, NULL, NULL) == ATTN_ERR_ARG, "attn_state_merge");
    CHECK(attn_convert(NULL, ATTN_F32, NULL, ATTN_F16, 3) == ATTN_ERR_ARG, "attn_convert");
    CHECK(attn_convert(text, 8, text, ATTN_F16, 1) == ATTN_ERR_ARG, "attn_convert to type 8");
    CHECK(attn_convert(text, ATTN_F16, text, -1, 1) == ATTN_ERR_ARG, "attn_convert from type -1");
    memset(floats, 0, sizeof floats);
    CHECK(attn_convert(odd, ATTN_F16, floats, ATTN_F32, 1) == ATTN_ERR_ARG &&
              attn_convert(floats, ATTN_F32, odd, ATTN_F32, 1) == ATTN_ERR_ARG &&
              attn_convert(odd, ATTN_Q8_0, floats, ATTN_F32, 32) == ATTN_ERR_ARG &&
              attn_convert(odd, ATTN_E4M3, floats, ATTN_F32, 1) == ATTN_OK,
          "attn_convert at an odd address");
    CHECK(attn_rotate((float *)(void *)odd, 1, 1) == ATTN_ERR_ARG &&
              attn_quantise_i8((int8_t *)odd, floats, (float *)(void *)odd, 1, 1) == ATTN_ERR_ARG &&
              attn_quantise_i8((int8_t *)odd, (float *)(void *)odd, floats, 1, 1) == ATTN_ERR_ARG &&
              attn_quantise_i8((int8_t *)odd, floats, floats + 1, 1, 1) == ATTN_OK,
          "rows or scales at an odd address");
}

/* ---- options from text ----------------------------------------------------------------------- */

static void check_option_text(void)
{
    static const struct {
        const char *text, *word;
    } wrong[] = {
        { "impl=fast", "fast" },
        { "imp=naive", "imp" },
        { "kernels=mmx9", "mmx9" },
        { "workers=-1", "workers" },
        { "workers=x", "workers" },
        { "workers=", "workers" },
        { "workers=3x", "workers" },
        { "tile_keys=1.5", "1.5" },
        { "tile_keys=-64x", "-64x" },
        { "redo=2", "redo" },
        { "naive_whole=yes", "naive_whole" },
        { "auto_naive_keys=-5", "auto_naive_keys" },
        { "layout=bshd", "layout" }, /* the caller's arrays decide, not a user */
        { "impl", "impl" },
        { "=naive", "=" },
        { "impl=naive kernels=mmx9", "mmx9" },
        { "workers=99999999999999999999", "workers" },
        { "impl=\033[31m\177", "impl=?[31m?'" }, /* of a terminal, not to be obeyed */
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        attn_params p = right_call(PLAIN), before = p;
        char why[120] = "";
        attn_status status;
        if (!begin_case("options '%s'", wrong[i].text))
            continue;
        status = attn_params_from_string(&p, wrong[i].text, why, sizeof why);
        CHECK(status == ATTN_ERR_ARG || status == ATTN_ERR_UNSUPPORTED, "status '%s'",
              attn_status_string(status));
        CHECK(strstr(why, wrong[i].word) != NULL, "'%s' does not name %s", why, wrong[i].word);
        CHECK(memcmp(&p, &before, sizeof p) == 0, "the parameters changed");
        CHECK(attn_params_from_string(&p, wrong[i].text, NULL, 0) == status, "without a buffer");
        memset(why, '#', sizeof why);
        attn_params_from_string(&p, wrong[i].text, why, 10);
        CHECK(strlen(why) < 10 && why[10] == '#', "written beyond 10 bytes");
    }
}

static void check_status_strings(void)
{
    if (!begin_case("names of states"))
        return;
    for (int a = -2; a < 9; a++) {
        const char *name = attn_status_string((attn_status)a);
        CHECK(name != NULL && name[0] != '\0', "status %d has no name", a);
        for (int b = 0; b < a && name != NULL; b++)
            CHECK(a > ATTN_ERR_CALLBACK || strcmp(name, attn_status_string((attn_status)b)) != 0,
                  "%d and %d have the same name '%s'", a, b, name);
    }
}

TEST_GROUP(errors, RUN_ONCE, "every field wrong in turn: status, sentence, nothing written")
{
    for (int i = 0; i < (int)(sizeof q / sizeof *q); i++)
        q[i] = (float)(i % 7) * 0.25f;
    check_right_calls();
    check_table();
    check_combinations();
    check_large();
    check_large_naive();
    if (begin_case("lengths of short calls"))
        check_short_lengths();
    check_workspace();
    check_endless_workspace();
    check_many_workers();
    check_array_strides();
    check_strides_of_nothing();
    check_csr_varlen();
    check_csr_offsets();
    check_csr_columns_read();
    check_csr_duplicate();
    check_last_position();
    check_small_numbers();
    check_large_scale();
    check_null_pointers();
    check_option_text();
    check_status_strings();
}
