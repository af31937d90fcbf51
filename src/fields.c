/* src/fields.c - the table of fields: what each field of a call is, in one row.
 * SPDX-License-Identifier: MIT
 *
 * A row says where a field lies in attn_params, what it holds, over which axes an array runs, and
 * who takes it. Those axes, from the last to the first, are what packed means. Ranges, default
 * strides, extents, refusals, the hash that ranks compare, and the arrays that a level or a device
 * hands on are loops over the rows: a field that somebody forgets is refused, never ignored.
 */
#pragma once

#include "rules.c"
#include "storage.c"

enum field_type {
    F_INT, /* values */
    F_INT64,
    F_UINT64,
    F_FLOAT,
    F_POINTER,
    F_NOT_PLAIN, /* an attn_dtype, counted as set if only K and V may have it */
    F_STORED,    /* arrays from here on: of the attn_dtype that a member tells, */
    F_F32,       /* or of these elements */
    F_I32,
    F_I64,
    F_F64,
    F_U8,
    F_BITS
};

/* What the axes of arrays count. */
enum field_axis {
    AXIS_NONE,
    AXIS_BATCH,
    AXIS_SEQUENCE, /* the batch, for lengths, positions and masks of sequences */
    AXIS_ENTRY,    /* of k and v: batch entries, or pages */
    AXIS_HEAD,
    AXIS_HEAD_KV,
    AXIS_ROW, /* that are held: p.part */
    AXIS_KEY,
    AXIS_DIM,
    AXIS_DIM_V,
    AXIS_SEQ_Q, /* of the whole call */
    AXIS_SEQ_KV,
    AXIS_LONGEST_Q, /* of any sequence */
    AXIS_LONGEST_KV,
    AXIS_CELL_ROW,
    AXIS_CELL_COLUMN,
    AXIS_CELL_OFFSET,
    AXIS_CELL_LISTED, /* known where the mask has been read: axes_in_use */
    AXIS_LIST,        /* lists of keys of a head, */
    AXIS_LISTED_KEY,  /* and the entries of one */
    AXIS_PAGE,
    AXIS_RECENT,     /* entries of p.recent, */
    AXIS_RECENT_ROW, /* and the rows of one */
    AXIS_CHOSEN,     /* rows of logits */
    AXIS_STATS,      /* m and l of a row */
    AXIS_TOP,        /* the likeliest keys of a row */
    AXIS_MASS,       /* blocks of keys that insight.mass has */
    AXIS_COUNT
};

/* Which outputs a call writes: a result, or the raw states of p.partial. */
enum { OUTPUT_RESULT = 1, OUTPUT_STATE = 2 };

/* Who takes a field; what devices do with it is in src/opencl/fields.c. */
enum taker {
    BY_NOBODY = 0,
    BY_PART = 1,      /* calls of some rows or some keys */
    BY_GRADIENTS = 2, /* attn_backward */
    BY_RESUMABLE = 4, /* attn_resume_begin */
    BY_DILATED = 8,   /* attn_dilated_forward */
    BY_RING = 16,     /* attn_ring_forward */
    BY_FINISH = 32,   /* attn_state_finish */
    BY_INDEX = 64,    /* attn_index */
    BY_DECODE = 128,  /* attn_ring_decode_forward */
    BY_ALL = 255,
    BY_RANKS = 256,    /* every rank of a ring must have the value, */
    BY_RANKS_SET = 512 /* or must have set it or not */
};

typedef struct call_field {
    const char *name;
    uint16_t offset; /* of the value, or of the pointer to an array */
    uint16_t type, takers;
    uint16_t output; /* nonzero: written by the calls that its bits tell, OUTPUT_RESULT, ... */
    uint16_t dtype;  /* F_STORED: offset of the attn_dtype */
    uint16_t axis[4];
    uint16_t stride[4];  /* offsets of ptrdiff_t; 0 = there is none, and the axis is packed */
    int64_t least, most; /* of a number, or of an entry of a sequence; any where most < least */
    const char *instead; /* what helps where the field or its value is refused; NULL = nothing */
} call_field;

#define AT(member) offsetof(attn_params, member)
#define VALUE(member, kind, by, ...)                                                               \
    .name = NAME(#member), .offset = AT(member), .type = kind, .takers = by, RANGE(__VA_ARGS__)
#define RANGE(from, to) .least = from, .most = to
#define ANY 1, 0
#define DTYPE(member, by) VALUE(member, F_INT, by, 0, LAST_PLAIN), .instead = PLAIN_DTYPES
/* K and V may have any type, where all types are taken. */
#define ANY_DTYPE(member, by) VALUE(member, F_INT, by, 0, LAST_DTYPE), .instead = DTYPES
#define NOT_PLAIN(member, by) VALUE(member, F_NOT_PLAIN, by, ANY), .instead = PLAIN_DTYPES
#define LAYOUT VALUE(layout, F_INT, BY_ALL, 0, ATTN_LAYOUT_BSHD), .instead = "0 is BHSD, 1 is BSHD"
#define TENSOR(member, entry, heads, rows, columns, by)                                            \
    .name = NAME(#member), .offset = AT(member.data), .type = F_STORED, .dtype = AT(member.dtype), \
    .takers = by, .axis = { entry, heads, rows, columns },                                         \
    .stride = { AT(member.stride_batch), AT(member.stride_head), AT(member.stride_seq) }
#define PAIRS(member, kind, by)                                                                    \
    .name = NAME(#member), .offset = AT(member.data), .type = kind, .takers = by,                  \
    .axis = { AXIS_BATCH, AXIS_HEAD, AXIS_LONGEST_Q, AXIS_LONGEST_KV },                            \
    .stride = { AT(member.stride_batch), AT(member.stride_head), AT(member.stride_q),              \
                AT(member.stride_kv) }
#define SCALES(member, columns, by)                                                                \
    .name = NAME(#member), .offset = AT(member.data), .type = F_F32, .takers = by,                 \
    .axis = { AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, columns },                                       \
    .stride = { AT(member.stride_batch), AT(member.stride_head), AT(member.stride_seq),            \
                AT(member.stride_dim) }
#define GRID(member, kind, by, outer, heads, rows, columns)                                        \
    .name = NAME(#member), .offset = AT(member), .type = kind, .takers = by,                       \
    .axis = { outer, heads, rows, columns }
#define LIST(member, kind, by, outer, inner)                                                       \
    GRID(member, kind, by, outer, AXIS_NONE, AXIS_NONE, inner)
#define PER_SEQUENCE(member, kind, by, ...)                                                        \
    LIST(member, kind, by, AXIS_NONE, AXIS_SEQUENCE), RANGE(__VA_ARGS__)

/* This limit does not come from memory, and is equal on every machine. */
#define MOST_KEY_BASE ((int64_t)1 << 58)

enum {
    BY_ANY_RING = BY_RING | BY_DECODE,
    RECENT_KEYS = BY_FINISH | BY_INDEX, /* or attn_forward alone */
    /* Whoever reads keys where a cache has them. */
    IN_CACHE = BY_ALL & ~(BY_RESUMABLE | BY_DILATED | BY_RING),
    NO_VARLEN = BY_ALL & ~(BY_PART | BY_RESUMABLE | BY_ANY_RING),
    NO_INDEX = BY_ALL & ~BY_INDEX, /* what scores of keys have no use for */
    /* Outputs that only a call with all keys can give. */
    WHOLE_ROWS = BY_PART | BY_GRADIENTS, /* Gradients do not look at it. */
    ONE_CALL = NO_INDEX & ~(BY_PART | BY_RESUMABLE | BY_DILATED | BY_ANY_RING | BY_FINISH),
    NO_GRADIENTS = BY_ALL & ~BY_GRADIENTS,
    NO_DILATED = BY_ALL & ~BY_DILATED
};

#define A_CACHE "it describes a cache, whose keys attn_cache_read copies into one array"

/* The likeliest keys of a row that a call can give. */
enum { MOST_TOP = 64 };

static const call_field call_fields[] = {
    /* ---- sizes */
    { VALUE(batch, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { VALUE(num_heads_q, F_INT64, BY_ALL | BY_RANKS, 1, MOST) },
    { VALUE(num_heads_kv, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { VALUE(seq_len_q, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(seq_len_kv, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { VALUE(head_dim, F_INT64, BY_ALL | BY_RANKS, 1, MOST) },
    { VALUE(head_dim_v, F_INT64, NO_INDEX | BY_RANKS, 0, MOST) },
    { VALUE(scale, F_FLOAT, BY_ALL | BY_RANKS, ANY) },
    { VALUE(integer, F_INT, NO_GRADIENTS | BY_RANKS, ANY) },
    { VALUE(fast, F_INT, BY_PART | BY_FINISH, ANY),
      .instead = "its bits are of attn_forward alone" },
    { VALUE(rotated, F_INT, NO_GRADIENTS | BY_RANKS, 0, ATTN_ROTATED_K + ATTN_ROTATED_V),
      .instead = "1 is K, 2 is V, 3 is both" },
    { VALUE(k_centered, F_INT, (NO_GRADIENTS & NO_INDEX) | BY_RANKS, ANY) },

    /* ---- tensors */
    { LAYOUT },
    { DTYPE(q.dtype, BY_ALL) },
    { ANY_DTYPE(k.dtype, BY_ALL | BY_RANKS) },
    { NOT_PLAIN(k.dtype, NO_GRADIENTS) },
    { ANY_DTYPE(v.dtype, NO_INDEX | BY_RANKS) },
    { NOT_PLAIN(v.dtype, NO_GRADIENTS) },
    { DTYPE(o.dtype, BY_ALL) },
    { VALUE(lse.dtype, F_INT, BY_ALL, 0, 0), .instead = "f32" },
    { VALUE(stats.dtype, F_INT, BY_ALL, 0, 0), .instead = "f32" },
    { TENSOR(q, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL) },
    { TENSOR(k, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM, BY_ALL) },
    { TENSOR(v, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM_V, NO_INDEX) },
    { SCALES(k_scales, AXIS_DIM, BY_PART | BY_FINISH | BY_INDEX | BY_DECODE) },
    { SCALES(v_scales, AXIS_DIM_V, BY_PART | BY_FINISH | BY_DECODE) },
    { TENSOR(o, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V, NO_INDEX), .output = OUTPUT_RESULT },
    { TENSOR(lse, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE, NO_INDEX), .output = OUTPUT_RESULT },
    { TENSOR(stats, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_STATS, NO_INDEX), .output = OUTPUT_RESULT,
      .instead = "a row takes 2 floats, m and l" },

    /* ---- lengths */
    { PER_SEQUENCE(q_len, F_I32, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(kv_len, F_I32, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(kv_begin, F_I32, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(cu_seqlens_q, F_I32, NO_VARLEN, ANY),
      .instead = "tell documents of one sequence apart by q_segments and kv_segments" },
    { PER_SEQUENCE(cu_seqlens_kv, F_I32, NO_VARLEN, ANY) },
    { PER_SEQUENCE(key_base, F_I64, NO_DILATED | BY_RANKS, 0, MOST_KEY_BASE) },
    { VALUE(kv_rows.ring, F_INT64, IN_CACHE, 0, MOST), .instead = A_CACHE },
    { LIST(kv_rows.begin, F_I32, IN_CACHE, AXIS_NONE, AXIS_BATCH) },
    { VALUE(kv_rows.page_size, F_INT64, IN_CACHE, 0, MOST), .instead = A_CACHE },
    { VALUE(kv_rows.num_pages, F_INT64, IN_CACHE, 0, MOST) },
    { LIST(kv_rows.table, F_I32, IN_CACHE, AXIS_BATCH, AXIS_PAGE),
      .stride = { AT(kv_rows.table_stride) } },
    { VALUE(shared_keys, F_INT64, NO_DILATED, 0, MOST) },
    { VALUE(recent.keys, F_INT64, RECENT_KEYS & ~BY_INDEX, 0, MOST), .instead = A_CACHE },
    { VALUE(recent.ring, F_INT64, RECENT_KEYS, 0, MOST) },
    { PER_SEQUENCE(recent.begin, F_I64, RECENT_KEYS, 0, MOST_KEY_BASE) },
    { LIST(recent.entries, F_I32, RECENT_KEYS, AXIS_NONE, AXIS_BATCH) },
    { VALUE(recent.num_entries, F_INT64, RECENT_KEYS, 0, MOST) },
    { DTYPE(recent.k.dtype, RECENT_KEYS) },
    { DTYPE(recent.v.dtype, RECENT_KEYS) },
    { TENSOR(recent.k, AXIS_RECENT, AXIS_HEAD_KV, AXIS_RECENT_ROW, AXIS_DIM, RECENT_KEYS) },
    { TENSOR(recent.v, AXIS_RECENT, AXIS_HEAD_KV, AXIS_RECENT_ROW, AXIS_DIM_V, RECENT_KEYS) },

    /* ---- position of the queries */
    { VALUE(alignment, F_INT, NO_DILATED | BY_RANKS, 0, ATTN_ALIGN_OFFSET) },
    { PER_SEQUENCE(q_offset, F_I32, NO_DILATED | BY_RANKS, ANY) },

    /* ---- masks */
    { VALUE(causal, F_INT, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(prefix, F_I32, BY_ALL | BY_RANKS, 0, INT32_MAX) },
    { VALUE(window, F_INT, BY_ALL | BY_RANKS, 0, ATTN_WINDOW),
      .instead = "it switches window_left and window_right on, which count keys" },
    { VALUE(window_left, F_INT64, BY_ALL | BY_RANKS, ANY) },
    { VALUE(window_right, F_INT64, BY_ALL | BY_RANKS, ANY) },
    { VALUE(chunk_size, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { LIST(q_segments, F_I32, BY_ALL | BY_RANKS_SET, AXIS_BATCH, AXIS_SEQ_Q),
      .stride = { AT(q_segments_stride) } },
    { LIST(kv_segments, F_I32, BY_ALL | BY_RANKS_SET, AXIS_BATCH, AXIS_SEQ_KV),
      .stride = { AT(kv_segments_stride) } },
    { LIST(tree_parents, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_SEQ_Q),
      .stride = { AT(tree_stride) } },
    { VALUE(bool_mask.invert, F_INT, BY_ALL | BY_RANKS, ANY) },
    { PAIRS(bool_mask, F_U8, BY_ALL | BY_RANKS_SET) },
    { VALUE(bit_mask.invert, F_INT, BY_ALL | BY_RANKS, ANY) },
    { PAIRS(bit_mask, F_BITS, BY_ALL | BY_RANKS_SET) },
    { VALUE(block_mask.block_q, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { VALUE(block_mask.block_k, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { GRID(block_mask.bitmap, F_BITS, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_HEAD,
           AXIS_CELL_ROW, AXIS_CELL_COLUMN),
      .stride = { AT(block_mask.stride_batch), AT(block_mask.stride_head),
                  AT(block_mask.stride_row) } },
    { GRID(block_mask.row_offsets, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_HEAD,
           AXIS_NONE, AXIS_CELL_OFFSET),
      .stride = { AT(block_mask.csr_stride_batch), AT(block_mask.csr_stride_head) } },
    { LIST(block_mask.columns, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_NONE, AXIS_CELL_LISTED) },
    { VALUE(key_list.width, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { VALUE(key_list.rows, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { GRID(key_list.data, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_HEAD_KV, AXIS_LIST,
           AXIS_LISTED_KEY),
      .stride = { AT(key_list.stride_batch), AT(key_list.stride_head), AT(key_list.stride_seq) } },
    { VALUE(mask, F_POINTER, BY_ALL | BY_RANKS_SET, ANY) },
    { VALUE(mask_tile, F_POINTER, BY_ALL | BY_RANKS_SET, ANY) },

    /* ---- what changes a logit */
    { VALUE(softcap, F_FLOAT, NO_INDEX | BY_RANKS, ANY) },
    { DTYPE(bias.dtype, BY_ALL) },
    { PAIRS(bias, F_STORED, NO_INDEX | BY_RANKS_SET), .dtype = AT(bias.dtype) },
    { LIST(alibi_slopes, F_F32, NO_INDEX | BY_RANKS, AXIS_BATCH, AXIS_HEAD),
      .stride = { AT(alibi_stride) } },
    { VALUE(score, F_POINTER, NO_INDEX | BY_RANKS_SET, ANY) },
    { VALUE(callback_user, F_POINTER, BY_ALL, ANY) },

    /* ---- softmax */
    { LIST(sinks, F_F32, NO_INDEX | BY_RANKS, AXIS_NONE, AXIS_HEAD) },
    { VALUE(softmax1, F_INT, NO_INDEX | BY_RANKS, ANY) },
    { VALUE(dropout_p, F_FLOAT, NO_INDEX | BY_RANKS, ANY) },
    { VALUE(dropout_seed, F_UINT64, BY_ALL | BY_RANKS, ANY) },

    /* ---- further outputs */
    { VALUE(partial, F_INT, (ONE_CALL & ~BY_GRADIENTS) | BY_PART | BY_FINISH, ANY),
      .instead = "it works with finished rows" },
    { GRID(state.m, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_STATE },
    { GRID(state.l, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_STATE },
    { GRID(state.o, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V),
      .output = OUTPUT_STATE },
    { VALUE(logits.stage, F_INT, BY_ALL, 0, ATTN_LOGITS_SOFTMAX),
      .instead = "0 is raw, 1 is softcap, 2 is bias, 3 is softmax" },
    { VALUE(logits.num_rows, F_INT64, BY_ALL, 0, MOST) },
    { LIST(logits.rows, F_I32, BY_ALL, AXIS_NONE, AXIS_CHOSEN) },
    { GRID(logits.data, F_F32, ONE_CALL | BY_PART | BY_RING, AXIS_BATCH, AXIS_HEAD, AXIS_CHOSEN,
           AXIS_SEQ_KV),
      .output = OUTPUT_RESULT | OUTPUT_STATE, .instead = "ask for logits in a call with all keys" },
    { GRID(insight.entropy, F_F32, WHOLE_ROWS, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_RESULT, .instead = "attn_forward keeps it beside the sums of whole rows" },
    { VALUE(insight.top, F_INT, WHOLE_ROWS, 0, MOST_TOP) },
    { GRID(insight.top_key, F_I32, WHOLE_ROWS, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_TOP),
      .output = OUTPUT_RESULT },
    { GRID(insight.top_prob, F_F32, WHOLE_ROWS, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_TOP),
      .output = OUTPUT_RESULT },
    { GRID(insight.mass, F_F64, BY_GRADIENTS, AXIS_BATCH, AXIS_HEAD_KV, AXIS_NONE, AXIS_MASS),
      .output = OUTPUT_RESULT, .instead = "ask for it in a call with all keys" },
    { VALUE(insight.mass_keys, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(insight.mass_rows, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(skip.below, F_FLOAT, BY_NOBODY, ANY),
      .instead = "attn_forward with all keys takes it" },
    { GRID(skip.dropped, F_F32, BY_NOBODY, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_RESULT },

    /* ---- how to compute */
    { VALUE(impl, F_INT, NO_INDEX, 0, ATTN_IMPL_AUTO),
      .instead = "0 is default, 1 is tiled, 2 is naive, 3 is auto" },
    { VALUE(auto_naive_keys, F_INT64, BY_ALL, 0, INT64_MAX) },
    { VALUE(naive_whole, F_INT, BY_ALL, ANY) },
    { VALUE(tile_keys, F_INT, BY_ALL, ANY) },
    { VALUE(tuning, F_POINTER, BY_ALL, ANY) },
    { VALUE(force_redo, F_INT, BY_ALL, ANY) },
    { VALUE(kernels, F_POINTER, BY_ALL, ANY) },
    { VALUE(backend, F_POINTER, NO_INDEX & ~BY_DILATED, ANY) },
    { VALUE(num_workers, F_INT, BY_ALL, 0, 65536) },
    { VALUE(parallel_for, F_POINTER, BY_ALL, ANY) },
    { VALUE(parallel_user, F_POINTER, BY_ALL, ANY) },
    { VALUE(log, F_POINTER, BY_ALL, ANY) },
    { VALUE(log_user, F_POINTER, BY_ALL, ANY) },
    { VALUE(part.rows, F_INT, NO_INDEX & ~(BY_DILATED | BY_ANY_RING), ANY) },
    { VALUE(part.keys, F_INT, NO_INDEX & ~(BY_RESUMABLE | BY_DILATED | BY_ANY_RING), ANY) },
    { VALUE(part.continued, F_INT, BY_ALL & ~BY_ANY_RING, ANY) },
    { VALUE(part.row_begin, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.row_count, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.key_begin, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.key_count, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.key_row, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(view, F_POINTER, BY_GRADIENTS | BY_PART, ANY) },
};
#undef AT

#define IS_ARRAY(f) ((f)->type >= F_STORED)

/* ---- values */

/* A number of a field, 0 or 1 for a pointer. */
static int64_t field_number(const call_field *f, const void *base)
{
    const char *at = (const char *)base + f->offset;
    float as_float;
    void *pointer;
    int64_t number;
    switch (f->type) {
    case F_INT:
        return number_at(at, sizeof(int));
    case F_FLOAT:
        memcpy(&as_float, at, sizeof as_float);
        return as_float == 0.0f ? 0 : (int64_t)bits_of(as_float);
    case F_INT64:
    case F_UINT64:
        return number_at(at, sizeof(int64_t));
    case F_NOT_PLAIN:
        number = number_at(at, sizeof(int));
        return number > LAST_PLAIN && number <= LAST_DTYPE ? number : 0;
    default:
        memcpy(&pointer, at, sizeof pointer);
        return pointer != NULL;
    }
}

static attn_status check_values(const call_field *table, int n, const void *base, text *why)
{
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < n && !status; i++) {
        const call_field *f = &table[i];
        if (f->least <= f->most && !IS_ARRAY(f))
            status = check_range(why, f->name, f->least, f->most, field_number(f, base));
        if (status && f->instead && f->type == F_INT) { /* It names the choices. */
            put(why, ": ");
            put(why, f->instead);
        }
    }
    return status;
}

/* "name (value) is set, but who does not take it: instead" */
static attn_status refuse_field(const call_field *f, int64_t value, const char *who, text *why)
{
    put(why, f->name);
    if (f->type == F_INT || f->type == F_INT64 || f->type == F_NOT_PLAIN)
        put_numbers(why, " (#)", &value);
    put(why, " is set, but ");
    put(why, who);
    put(why, f->instead ? " does not take it: " : " does not take it");
    return bad(why, ATTN_ERR_UNSUPPORTED, f->instead ? f->instead : "");
}

/* refuse_fields refuses, by its name, the first field that is set and that `taker` does not
 * take. */
static attn_status refuse_fields(const attn_params *p, unsigned taker, const char *who, text *why)
{
    int i;
    for (i = 0; i < COUNT_OF(call_fields); i++) {
        const call_field *f = &call_fields[i];
        const int64_t value = f->takers & taker ? 0 : field_number(f, p);
        if (value)
            return refuse_field(f, value, who, why);
    }
    return ATTN_OK;
}

/* A member is a field of attn_params, whose bytes tell whether it is set. */
typedef struct member {
    uint16_t offset, size;
} member;

#define MEMBER(name)                                                                               \
    {                                                                                              \
        offsetof(attn_params, name), sizeof(((attn_params *)NULL)->name)                           \
    }

/* is_set looks at words, since a member may be a struct. */
static int is_set(const attn_params *p, member m)
{
    const char *at = (const char *)p + m.offset, *end = at + m.size;
    uint32_t word = 0;
    for (; at < end && !word; at += sizeof word)
        memcpy(&word, at, sizeof word);
    return word != 0;
}

/* ---- arrays */

/* The axes of a call; packed sequences have no batch stride. */
typedef struct call_axes {
    int64_t count[AXIS_COUNT];
    int packed_q, packed_kv;
    int layout; /* attn_layout */
} call_axes;

static const void *field_data(const call_field *f, const void *base)
{
    const void *data;
    memcpy(&data, (const char *)base + f->offset, sizeof data);
    return data;
}

/* unit_of_field tells how many elements of an array are stored together, and element_bytes their
 * bytes. */
static int64_t unit_of_field(const call_field *f, const void *base)
{
    if (f->type == F_STORED)
        return storages[number_at((const char *)base + f->dtype, sizeof(int))].unit;
    return f->type == F_BITS ? 8 : 1;
}

static int64_t element_bytes(const call_field *f, const void *base)
{
    static const unsigned char bytes[] = { 4, 4, 8, 8, 1, 1 }; /* from F_F32 on; 1 bit for F_BITS */
    if (f->type != F_STORED)
        return bytes[f->type - F_F32];
    return (int64_t)bytes_of((int)number_at((const char *)base + f->dtype, sizeof(int)));
}

static ptrdiff_t stride_given(const call_field *f, const void *base, int axis)
{
    ptrdiff_t stride = 0;
    if (f->stride[axis])
        memcpy(&stride, (const char *)base + f->stride[axis], sizeof stride);
    return stride;
}

static int is_tensor(const call_field *f)
{
    return f->type == F_STORED &&
           (f->axis[2] == AXIS_ROW || f->axis[2] == AXIS_KEY || f->axis[2] == AXIS_RECENT_ROW);
}

static int is_per_sequence(const call_field *f)
{
    return f->axis[3] == AXIS_SEQUENCE;
}

static int is_packed(const call_field *f, const call_axes *x)
{
    return (x->packed_q && f->axis[2] == AXIS_ROW) || (x->packed_kv && f->axis[2] == AXIS_KEY);
}

/* The layout and packed sequences keep the heads of a token together in what has columns of a head.
 * What describes rows keeps the rows of a head together. */
static int keeps_tokens(const call_field *f, const call_axes *x)
{
    return (is_packed(f, x) || x->layout == ATTN_LAYOUT_BSHD) && is_tensor(f) &&
           (f->axis[3] == AXIS_DIM || f->axis[3] == AXIS_DIM_V);
}

/* settle_strides makes strides along which nothing moves 0, so that no product with them
 * overflows. */
static void settle_strides(int axes, const int64_t *count, ptrdiff_t *stride)
{
    int axis, empty = 0;
    for (axis = 0; axis < axes; axis++)
        empty |= count[axis] == 0;
    for (axis = 0; axis < axes; axis++)
        if (count[axis] == 1 || (empty && (stride[axis] > MOST || stride[axis] < -MOST)))
            stride[axis] = 0;
}

/* The strides of an array, with 0 and "broadcast" replaced by what they mean: only axes that
 * are shared or of length 1 have a stride of 0. */
static void resolve_strides_of(const call_field *f, const void *base, const call_axes *x,
                               ptrdiff_t stride[4])
{
    static const char orders[2][4] = { { 3, 2, 1, 0 }, { 3, 1, 2, 0 } };
    int64_t elements = 1, count[4];
    int i;
    for (i = 0; i < 4; i++) {
        const int axis = orders[keeps_tokens(f, x)][i];
        const ptrdiff_t given = stride_given(f, base, axis);
        count[axis] = x->count[f->axis[axis]];
        stride[axis] = stride_or(given, elements);
        if (given != ATTN_STRIDE_BROADCAST) /* A shared axis takes no room. */
            elements = times(elements, max64(count[axis], 1));
    }
    if (is_packed(f, x))
        stride[0] = 0;
    settle_strides(4, count, stride);
}

/* check_aligned wants an array to lie where the machine can read its elements. */
static attn_status check_aligned(const char *name, const void *data, int64_t bytes_each, text *why)
{
    const int64_t alignment = alignment_of(bytes_each);
    if (is_aligned(data, bytes_each))
        return ATTN_OK;
    put(why, name);
    return bad_numbers(why, ATTN_ERR_ARG,
                       ": its address must be a multiple of #, the alignment of its elements",
                       &alignment);
}

static attn_status check_array(const call_field *f, const void *base, const call_axes *x,
                               const ptrdiff_t stride[4], text *why)
{
    const int64_t count[4] = { x->count[f->axis[0]], x->count[f->axis[1]], x->count[f->axis[2]],
                               x->count[f->axis[3]] };
    const int64_t elements = extent(count, stride), each = element_bytes(f, base);
    const int64_t units = elements < TOO_BIG ? ceil_div(elements, unit_of_field(f, base)) : TOO_BIG;
    const attn_status status = check_bytes(f->name, times(units, each), count, why);
    return status ? status : check_aligned(f->name, field_data(f, base), each, why);
}

/* check_whole wants a number of elements of K or V to be whole units of its type. */
COLD static attn_status check_whole(const char *name, const char *part, int64_t value,
                                    const char *of, int dtype, text *why)
{
    const storage *type = &storages[dtype];
    if (value % type->unit == 0)
        return ATTN_OK;
    put(why, name);
    put_field(why, part, value);
    put_numbers(why, " must be a multiple of #: ", NUMBERS(type->unit));
    put(why, of);
    put(why, ".dtype is ");
    return bad(why, ATTN_ERR_ARG, type->name);
}

/* check_whole_units looks at a row of K or V, and at its strides, which are resolved. */
COLD static attn_status check_whole_units(const char *name, const attn_tensor *x,
                                          const char *dim_name, int64_t dim, text *why)
{
    const ptrdiff_t strides[3] = { x->stride_batch, x->stride_head, x->stride_seq };
    attn_status status = check_whole("", dim_name, dim, name, x->dtype, why);
    int axis;
    for (axis = 0; axis < 3 && !status; axis++)
        status = check_whole(name, stride_names[axis], strides[axis], name, x->dtype, why);
    return status;
}

/* check_scales_given wants scales for numbers that have some, and for no others. */
COLD static attn_status check_scales_given(const char *name, int dtype, const attn_scales *x,
                                           text *why)
{
    const int given = x->data != NULL;
    if (has_scales(dtype) == given)
        return ATTN_OK;
    put(why, name);
    put_field(why, ".dtype", dtype);
    put(why, given ? " must be 8 for i8 when " : " is i8, but ");
    put(why, name);
    return bad(why, ATTN_ERR_ARG, given ? "_scales is given" : "_scales.data is NULL");
}

/* Outputs are not broadcast. */
static attn_status check_output_fields(const call_field *table, int n, const void *base, text *why)
{
    const call_field *f;
    attn_status status = ATTN_OK;
    int axis;
    for (f = table; f < table + n; f++)
        for (axis = 0; f->output && axis < 3 && !status; axis++)
            status =
                check_output_stride(f->name, stride_names[axis], stride_given(f, base, axis), why);
    return status;
}

/* Entries of sequences lie in the range of their row. */
static attn_status check_entries(const call_field *f, const void *base, int64_t count, text *why)
{
    const size_t bytes = f->type == F_I64 ? sizeof(int64_t) : sizeof(int32_t);
    const char *data = field_data(f, base);
    int64_t b;
    for (b = 0; b < count; b++) {
        const int64_t value = number_at(data + b * (ptrdiff_t)bytes, bytes);
        if (value < f->least || value > f->most)
            return bad_limit(why, f->name, b, value, f->most);
    }
    return ATTN_OK;
}

/* is_there tells whether a row is an array of this call; tensors are, also in size queries. */
static int is_there(const call_field *f, const void *base)
{
    return IS_ARRAY(f) && (is_tensor(f) || field_data(f, base));
}

/* resolve_arrays gives tensors, and other arrays that are given, their strides, and checks that
 * they fit into memory. */
static attn_status resolve_arrays(const call_field *table, int n, void *base, const call_axes *x,
                                  text *why)
{
    attn_status status = ATTN_OK;
    int i, axis;
    for (i = 0; i < n && !status; i++) {
        const call_field *f = &table[i];
        ptrdiff_t stride[4];
        if (!is_there(f, base))
            continue;
        resolve_strides_of(f, base, x, stride);
        for (axis = 0; axis < 4; axis++)
            if (f->stride[axis])
                memcpy((char *)base + f->stride[axis], &stride[axis], sizeof *stride);
        status = check_array(f, base, x, stride, why);
        if (!status && is_per_sequence(f) && f->least <= f->most)
            status = check_entries(f, base, x->count[AXIS_SEQUENCE], why);
    }
    return status;
}

/* name_shared writes ATTN_STRIDE_BROADCAST for the strides that resolve_arrays made 0, so that a
 * level can hand the fields on to a call, to which 0 means packed. */
static void name_shared(const call_field *table, int n, void *base)
{
    const ptrdiff_t shared = ATTN_STRIDE_BROADCAST;
    int i, axis;
    for (i = 0; i < n; i++)
        for (axis = 0; axis < 4 && is_there(&table[i], base) && !table[i].output; axis++)
            if (table[i].stride[axis] && !stride_given(&table[i], base, axis))
                memcpy((char *)base + table[i].stride[axis], &shared, sizeof shared);
}

/* has_batch_arrays tells whether sequences differ in length, in position or in what they
 * see. */
static int has_batch_arrays(const attn_params *p)
{
    int i = 0;
    while (i < COUNT_OF(call_fields) &&
           !(is_per_sequence(&call_fields[i]) && field_data(&call_fields[i], p)))
        i++;
    return i < COUNT_OF(call_fields);
}

/* kinds_of counts the sequences that stand for all: the whole batch if they differ, else the first. */
static int64_t kinds_of(const attn_params *p)
{
    return has_batch_arrays(p) ? p->batch : min64(p->batch, 1);
}

/* ---- the axes of a call */

/* Rows of a batch entry of q, or keys of one of k, that the arrays hold (p.part). */
static inline int64_t rows_held(const attn_params *p)
{
    return p->part.rows ? p->part.row_count : p->seq_len_q;
}

static inline int64_t keys_held(const attn_params *p)
{
    return p->part.keys ? p->part.key_count : p->seq_len_kv;
}

/* Rows of a batch entry of k and v, or of a page. */
static int64_t rows_of_entry(const attn_params *p)
{
    const attn_rows *rows = &p->kv_rows;
    return rows->page_size ? rows->page_size : rows->ring ? rows->ring : keys_held(p);
}

/* Entries of a sequence's page table. */
static int64_t table_entries(const attn_params *p)
{
    const int64_t held = plus(p->part.key_row, keys_held(p));
    const int64_t rows = p->kv_rows.ring ? p->kv_rows.ring : held;
    return rows ? (rows - 1) / p->kv_rows.page_size + 1 : 0;
}

/* longest counts the rows or keys of the longest sequence that may come. */
static int64_t longest(const int32_t *cu_seqlens, int64_t batch, int64_t seq_len)
{
    int64_t b, most = cu_seqlens ? 0 : seq_len;
    for (b = 0; cu_seqlens && b < batch; b++)
        most = max64(most, (int64_t)cu_seqlens[b + 1] - cu_seqlens[b]);
    return most;
}

/* rows_of_list counts the query rows that share a list of keys. */
static inline int64_t rows_of_list(const attn_params *p)
{
    return max64(p->key_list.rows, 1);
}

/* mass_blocks counts the blocks of keys that insight.mass has for each kv head. */
static int64_t mass_blocks(const attn_params *p)
{
    return p->insight.mass_keys ? ceil_div(p->seq_len_kv, p->insight.mass_keys) : 0;
}

static call_axes axes_of_call(const attn_params *p)
{
    const attn_rows *rows = &p->kv_rows;
    const attn_block_mask *cells = &p->block_mask;
    const int64_t longest_q = longest(p->cu_seqlens_q, p->batch, p->seq_len_q);
    const int64_t longest_kv = longest(p->cu_seqlens_kv, p->batch, p->seq_len_kv);
    const int64_t cell_rows = cells->block_q ? ceil_div(longest_q, cells->block_q) : 0;
    const call_axes x = {
        .layout = p->layout,
        .packed_q = p->cu_seqlens_q != NULL,
        .packed_kv = p->cu_seqlens_kv != NULL,
        .count = {
            [AXIS_NONE] = 1,
            [AXIS_BATCH] = p->batch,
            [AXIS_SEQUENCE] = p->batch,
            [AXIS_ENTRY] = rows->page_size ? rows->num_pages : p->batch,
            [AXIS_HEAD] = p->num_heads_q,
            [AXIS_HEAD_KV] = p->num_heads_kv,
            [AXIS_ROW] = rows_held(p),
            [AXIS_KEY] = rows_of_entry(p),
            [AXIS_DIM] = p->head_dim,
            [AXIS_DIM_V] = p->head_dim_v,
            [AXIS_SEQ_Q] = p->seq_len_q,
            [AXIS_SEQ_KV] = p->seq_len_kv,
            [AXIS_LONGEST_Q] = longest_q,
            [AXIS_LONGEST_KV] = longest_kv,
            [AXIS_CELL_ROW] = cell_rows,
            [AXIS_CELL_COLUMN] = cells->block_k ? ceil_div(longest_kv, cells->block_k) : 0,
            [AXIS_CELL_OFFSET] = cell_rows + 1,
            [AXIS_LIST] = ceil_div(longest_q, rows_of_list(p)),
            [AXIS_LISTED_KEY] = p->key_list.width,
            [AXIS_PAGE] = rows->page_size ? table_entries(p) : 0,
            [AXIS_RECENT] = p->recent.entries ? p->recent.num_entries : p->batch,
            [AXIS_RECENT_ROW] = p->recent.ring,
            [AXIS_CHOSEN] = p->logits.num_rows,
            [AXIS_STATS] = 2,
            [AXIS_TOP] = p->insight.top,
            [AXIS_MASS] = mass_blocks(p),
        },
    };
    return x;
}

/* cells_listed counts the cells that a CSR mask lists whose heads have `rows` rows of cells. */
COLD static int64_t cells_listed(const attn_params *p, int64_t rows)
{
    const attn_block_mask *m = &p->block_mask;
    int64_t b, h, listed = 0;
    for (b = 0; m->row_offsets && rows > 0 && b < p->batch; b++)
        for (h = 0; h < p->num_heads_q; h++) {
            const int64_t at = b * m->csr_stride_batch + h * m->csr_stride_head;
            listed = max64(listed, m->row_offsets[at + rows]);
        }
    return listed;
}

/* axes_in_use is axes_of_call for a call whose mask may be read. */
COLD static call_axes axes_in_use(const attn_params *p)
{
    call_axes x = axes_of_call(p);
    x.count[AXIS_CELL_LISTED] = cells_listed(p, x.count[AXIS_CELL_ROW]);
    return x;
}
