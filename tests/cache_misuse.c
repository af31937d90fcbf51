/* cache_misuse.c - every misuse of a cache: status, sentence, and nothing is changed.
 * SPDX-License-Identifier: MIT
 *
 * Each line of the table breaks one argument, or a field of one, of a call that is right.
 */
#include "caches.h"

#include <string.h>

typedef struct misuse_call { /* all arguments of all functions */
    attn_cache shape;        /* for size and init; the others get the cache that is ready */
    attn_cache *c;
    attn_cache_step s;
    attn_cache_step *step;
    attn_rope rope;
    attn_params p;
    attn_params *params;
    attn_output k, v;
    const int32_t *sequences;
    void *memory;
    size_t bytes, *need;
    int64_t layer, sequence, begin, end, from, to, first, count, batch;
} misuse_call;

static attn_status call_size(misuse_call *a)
{
    return attn_cache_size(a->c ? &a->shape : NULL, a->need, why, WHY);
}

static attn_status call_init(misuse_call *a)
{
    return attn_cache_init(a->c ? &a->shape : NULL, a->memory, a->bytes, why, WHY);
}

static attn_status call_extend(misuse_call *a)
{
    return attn_cache_extend(a->c, a->step, why, WHY);
}

static attn_status call_write(misuse_call *a)
{
    return attn_cache_write(a->c, a->layer, a->step, why, WHY);
}

static attn_status call_append(misuse_call *a)
{
    return attn_cache_append(a->c, a->step, why, WHY);
}

static attn_status call_trim(misuse_call *a)
{
    return attn_cache_trim(a->c, a->sequence, a->begin, a->end, why, WHY);
}

static attn_status call_fork(misuse_call *a)
{
    return attn_cache_fork(a->c, a->from, a->to, a->end, why, WHY);
}

static attn_status call_view_size(misuse_call *a)
{
    return attn_cache_view_size(a->c, a->batch, a->need, why, WHY);
}

static attn_status call_view(misuse_call *a)
{
    return attn_cache_view(a->c, a->layer, a->sequences, a->batch, a->params, a->memory, a->bytes,
                           why, WHY);
}

static attn_status call_read(misuse_call *a)
{
    return attn_cache_read(a->c, a->layer, a->sequence, a->first, a->count, &a->k, &a->v, why, WHY);
}

/* The caches that are ready: three sequences with 7, 2 and no keys; in a ring that went over its
 * end 17, 12 and none. WITH_TABLE: steps have a rope with a table. SAME_ROWS: all rows of k and of
 * v are one. */
enum {
    PLAIN,
    RINGED,
    FEW_PAGES,
    ALL_PAGES,
    TWO_LAYERS,
    WITH_TABLE,
    SAME_ROWS,
    UNITS,
    TWO_OF_UNITS,
    SCALED,
    READY_KINDS
};

/* Of K and V of the kind SCALED. */
static float fixed_scales[2 * 8];

static const attn_cache not_ready;
/* That of the kind SCALED, without the scales of K or of V. */
static attn_cache no_scales[2];
static float new_keys[2 * 2 * 2 * 32], turns[64 * 4];
static const int32_t lists[][2] = { { 0, 1 }, { 1, 1 }, { -1, 0 }, { 0, 3 },
                                    { 7, 2 }, { 5, 5 }, { -1, 5 } };
static const int32_t borders[][3] = { { 0, 3, 5 }, { 0, 3, 2 }, { -1, 2, 3 } };
static const int64_t near_positions[24] = { 0, 0, 1, 5 }, far[] = { 0, 0, (int64_t)1 << 32, 0 };

static attn_cache ready_shape(int kind)
{
    const int in_units = kind == UNITS || kind == TWO_OF_UNITS;
    attn_cache c = { 0 };
    c.num_sequences = 3;
    c.num_heads_kv = 2;
    c.head_dim = in_units ? 32 : 8;
    c.capacity = 12;
    c.num_layers = kind == TWO_LAYERS || kind == TWO_OF_UNITS ? 2 : 1;
    c.k.dtype = in_units ? ATTN_Q8_0 : ATTN_F16;
    c.v.dtype = in_units ? ATTN_Q4_0 : ATTN_F32;
    if (kind == SCALED) {
        c.k.dtype = c.v.dtype = ATTN_I8;
        c.k_scales.data = c.v_scales.data = fixed_scales;
    }
    c.ring = kind == RINGED;
    c.window_left = kind == RINGED ? 6 : 0;
    c.page_size = kind == FEW_PAGES || kind == ALL_PAGES ? 4 : 0;
    c.num_pages = kind == FEW_PAGES ? 4 : 0;
    return c;
}

static void make_ready(int kind)
{
    attn_cache_step s = { 0 };
    cache = ready_shape(kind);
    cache_start();
    s.batch = 2;
    s.seq_len = 7;
    s.len = lists[4];
    CHECK(attn_cache_extend(&cache, &s, why, WHY) == ATTN_OK, "%s", why);
    s.len = lists[5];
    for (int i = 0; i < 2 && kind == RINGED; i++)
        CHECK(attn_cache_extend(&cache, &s, why, WHY) == ATTN_OK, "%s", why);
    no_scales[0] = no_scales[1] = cache;
    no_scales[0].k_scales.data = no_scales[1].v_scales.data = NULL;
}

/* One argument, or a field of one, that is wrong. */
typedef struct misuse {
    attn_status (*call)(misuse_call *a);
    int kind;
    size_t offset;
    enum { AS_INT64, AS_INT, AS_STRIDE, AS_SIZE, AS_POINTER } type;
    int64_t number;
    const void *pointer;
    attn_status status;
    const char *piece; /* of the sentence */
} misuse;

#define MISUSE(call, kind, field, type, number, pointer, status, piece)                            \
    {                                                                                              \
        call_##call, kind, offsetof(misuse_call, field), type, number, pointer, ATTN_ERR_##status, \
            piece                                                                                  \
    }
#define N64(call, kind, field, number, status, piece)                                              \
    MISUSE(call, kind, field, AS_INT64, number, NULL, status, piece)
#define INT(call, kind, field, number, status, piece)                                              \
    MISUSE(call, kind, field, AS_INT, number, NULL, status, piece)
#define STRIDE(call, kind, field, number, status, piece)                                           \
    MISUSE(call, kind, field, AS_STRIDE, number, NULL, status, piece)
#define SIZE(call, kind, field, number, status, piece)                                             \
    MISUSE(call, kind, field, AS_SIZE, number, NULL, status, piece)
#define PTR(call, kind, field, pointer, status, piece)                                             \
    MISUSE(call, kind, field, AS_POINTER, 0, pointer, status, piece)

#define HUGE_SIZE ((int64_t)1 << 62)

static struct misuse_room {
    unsigned char memory[16384], k[2048], v[2048];
} misuse_room, misuse_room_before;

static const misuse misuses[] = {
    /* shape */
    PTR(size, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(size, PLAIN, need, NULL, ARG, "bytes is NULL"),
    PTR(init, PLAIN, c, NULL, ARG, "cache is NULL"),
    N64(size, PLAIN, shape.num_sequences, 0, ARG, "num_sequences (0) must be at least 1"),
    N64(size, PLAIN, shape.num_sequences, HUGE_SIZE, ARG, "num_sequences (46"),
    N64(size, PLAIN, shape.num_layers, -1, ARG, "num_layers (-1) must be at least 0"),
    N64(size, PLAIN, shape.num_layers, HUGE_SIZE, OVERFLOW, "num_layers (46"),
    N64(size, PLAIN, shape.num_heads_kv, 0, ARG, "num_heads_kv (0) must be at least 1"),
    N64(size, PLAIN, shape.num_heads_kv, PTRDIFF_MAX / 64, OVERFLOW, "exceeds the address space"),
    N64(size, PLAIN, shape.head_dim, -8, ARG, "head_dim (-8) must be at least 1"),
    N64(size, PLAIN, shape.head_dim, PTRDIFF_MAX / 64, OVERFLOW, "exceeds the address space"),
    N64(size, PLAIN, shape.head_dim_v, -1, ARG, "head_dim_v (-1) must be at least 0"),
    N64(init, PLAIN, shape.capacity, 0, ARG, "capacity (0) must be at least 1"),
    N64(init, PLAIN, shape.capacity, -4, ARG, "capacity (-4) must be at least 1"),
    N64(size, PLAIN, shape.capacity, (int64_t)1 << 31, ARG, "capacity (2147483648) must be"),
    N64(size, PLAIN, shape.page_size, -1, ARG, "page_size (-1) must be at least 0"),
    N64(size, FEW_PAGES, shape.capacity, INT32_MAX, OVERFLOW,
        "capacity (2147483647) in whole pages must be at most 2147483647"),
    N64(size, ALL_PAGES, shape.num_sequences, INT32_MAX, OVERFLOW,
        "num_pages (6442450941), as many as all sequences can need, must be at most 2147483647"),
    N64(size, FEW_PAGES, shape.num_pages, -1, ARG, "num_pages (-1) must be at least 0"),
    N64(size, PLAIN, shape.num_pages, 2, ARG, "num_pages (2) is set, but page_size is 0"),
    N64(size, PLAIN, shape.window_left, 3, ARG, "window_left (3) is set, but ring is 0"),
    N64(size, RINGED, shape.window_left, 12, ARG,
        "window_left (12) of a ring must be below capacity (12)"),
    N64(size, RINGED, shape.window_left, -1, ARG, "window_left (-1) must be at least 0"),
    INT(size, PLAIN, shape.layout, 2, ARG, "layout (2) must be at most 1: 0 is BHSD, 1 is BSHD"),
    INT(size, PLAIN, shape.rotated, 4, ARG,
        "rotated (4) must be at most 3: 1 is K, 2 is V, 3 is both"),
    N64(size, PLAIN, shape.recent, -1, ARG, "recent (-1) must be at least 0"),
    N64(size, PLAIN, shape.recent_rows, 5, ARG, "recent_rows (5) is set, but recent is 0"),
    INT(size, PLAIN, shape.recent_dtype, 1, ARG, "recent_dtype (1) is set, but recent is 0"),
    INT(size, PLAIN, shape.recent_dtype, ATTN_Q8_0, ARG, "recent_dtype (5) must be at most 2"),
    N64(init, RINGED, shape.recent, 13, ARG, "recent (13) of a ring must be at most capacity (12)"),
    PTR(init, PLAIN, shape.k_mean, misuse_room.memory, ARG, "k_mean overlaps the memory"),
    INT(size, PLAIN, shape.k.dtype, 9, ARG, "k.dtype (9) must be at most 8: 0 is f32, 1 is f16"),
    INT(size, PLAIN, shape.k.dtype, 8, ARG, "k.dtype (8) is i8, but k_scales.data is NULL"),
    INT(init, PLAIN, shape.v.dtype, 8, ARG, "v.dtype (8) is i8, but v_scales.data is NULL"),
    PTR(size, SCALED, shape.v_scales.data, NULL, ARG,
        "v.dtype (8) is i8, but v_scales.data is NULL"),
    PTR(size, PLAIN, shape.k_scales.data, fixed_scales, ARG,
        "k.dtype (1) must be 8 for i8 when k_scales is given"),
    PTR(size, PLAIN, shape.v_scales.data, fixed_scales, ARG,
        "v.dtype (0) must be 8 for i8 when v_scales is given"),
    STRIDE(size, SCALED, shape.k_scales.stride_seq, 16, ARG,
           "k_scales.stride_seq (16) must be 0: all keys of a cache share scales"),
    STRIDE(size, SCALED, shape.v_scales.stride_seq, -1, ARG,
           "v_scales.stride_seq (-1) must be 0: all keys of a cache share scales"),
    STRIDE(size, SCALED, shape.v_scales.stride_head, PTRDIFF_MAX / 4, OVERFLOW,
           "v_scales: batch (1) x heads (2) x rows (1) x columns (8) with its strides exceeds"),
    PTR(init, SCALED, shape.k_scales.data, misuse_room.memory + 64, ARG,
        "k_scales overlaps the memory"),
    PTR(init, SCALED, shape.v_scales.data, misuse_room.memory + 64, ARG,
        "v_scales overlaps the memory"),
    PTR(size, SCALED, shape.k_scales.data, misuse_room.memory + 2, ARG,
        "k_scales: its address must be a multiple of 4"),
    PTR(read, SCALED, k.data, fixed_scales, ARG, "k_scales overlaps k"),
    INT(size, PLAIN, shape.k.dtype, ATTN_Q5_0, ARG,
        "head_dim (8) must be a multiple of 32: k.dtype is q5_0"),
    N64(size, UNITS, shape.head_dim_v, 16, ARG,
        "head_dim_v (16) must be a multiple of 32: v.dtype is q4_0"),
    STRIDE(size, UNITS, shape.k.stride_head, 1000, ARG,
           "k.stride_head (1000) must be a multiple of 32: k.dtype is q8_0"),
    STRIDE(init, UNITS, shape.v.stride_seq, 33, ARG,
           "v.stride_seq (33) must be a multiple of 32: v.dtype is q4_0"),
    STRIDE(size, TWO_OF_UNITS, shape.v_stride_layer, 5000, ARG,
           "v_stride_layer (5000) must be a multiple of 32: v.dtype is q4_0"),
    STRIDE(size, UNITS, shape.k.stride_seq, 32 * 12, ARG, "with its strides rows share elements"),
    INT(init, PLAIN, shape.v.dtype, -1, ARG, "v.dtype (-1) must be at least 0"),
    STRIDE(size, PLAIN, shape.k.stride_head, PTRDIFF_MIN, ARG,
           "k.stride_head (ATTN_STRIDE_BROADCAST) must be 0 (packed) or a stride"),
    STRIDE(size, PLAIN, shape.v.stride_batch, PTRDIFF_MIN, ARG, "v.stride_batch (ATTN_STRIDE"),
    STRIDE(init, PLAIN, shape.v.stride_seq, PTRDIFF_MIN, ARG, "v.stride_seq (ATTN_STRIDE"),
    STRIDE(size, PLAIN, shape.k_stride_layer, PTRDIFF_MIN, ARG, "k_stride_layer (ATTN_STRIDE"),
    STRIDE(size, PLAIN, shape.k.stride_seq, -16, ARG, "k: negative strides need storage"),
    STRIDE(size, PLAIN, shape.k.stride_seq, 7, ARG, "k: num_layers (1) x num_sequences (3)"),
    STRIDE(size, FEW_PAGES, shape.v.stride_head, 8, ARG, "page_size (4): with its strides rows"),
    STRIDE(size, TWO_LAYERS, shape.v_stride_layer, 8, ARG, "with its strides rows share elements"),
    STRIDE(size, PLAIN, shape.v.stride_batch, PTRDIFF_MAX / 4, OVERFLOW, "v: num_layers (1) x"),
    PTR(size, PLAIN, shape.begin, borders, ARG, "cache is ready already: set it to zero first"),
    PTR(init, PLAIN, shape.begin, borders, ARG, "cache is ready already: set it to zero first"),
    PTR(init, PLAIN, memory, NULL, WORKSPACE, "memory: bytes (0) must be at least "),
    SIZE(init, PLAIN, bytes, 100, WORKSPACE, "memory: bytes (100) must be at least "),
    /* steps */
    PTR(extend, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(extend, PLAIN, step, NULL, ARG, "step is NULL"),
    PTR(append, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(append, PLAIN, c, &not_ready, ARG, "cache is not ready: call attn_cache_init first"),
    PTR(append, PLAIN, step, NULL, ARG, "step is NULL"),
    PTR(append, SCALED, c, &no_scales[0], ARG, "k.dtype (8) is i8, but k_scales.data is NULL"),
    PTR(write, SCALED, c, &no_scales[1], ARG, "v.dtype (8) is i8, but v_scales.data is NULL"),
    N64(extend, PLAIN, s.batch, -1, ARG, "batch (-1) must be at least 0"),
    N64(extend, PLAIN, s.batch, 4, ARG, "batch (4) must be at most num_sequences (3)"),
    N64(append, PLAIN, s.seq_len, -2, ARG, "seq_len (-2) must be at least 0"),
    N64(extend, PLAIN, s.seq_len, HUGE_SIZE, ARG, "seq_len (46"),
    N64(extend, PLAIN, s.seq_len, 11, FULL,
        "sequence 0 with 7 keys and 11 new ones: capacity (12) is exceeded"),
    N64(append, PLAIN, s.seq_len, 6, FULL, "sequence 0 with 7 keys and 6 new ones: capacity (12)"),
    N64(extend, RINGED, s.seq_len, 7, FULL,
        "sequence 0 with 12 keys and 7 new ones: a ring of rows (12) with window_left (6) takes at "
        "most 6 in one step"),
    N64(extend, FEW_PAGES, s.seq_len, 5, FULL,
        "num_free (1) of num_pages (4) is too few: the step needs 2 pages"),
    PTR(extend, PLAIN, s.sequences, lists[1], ARG,
        "sequences[1] (1) is there twice: each may come once"),
    PTR(append, PLAIN, s.sequences, lists[2], ARG, "sequences[0] (-1) must be from 0 to "),
    PTR(write, PLAIN, s.sequences, lists[3], ARG,
        "sequences[1] (3) must be from 0 to num_sequences - 1, 2"),
    PTR(extend, PLAIN, s.len, lists[6], ARG, "len[0] (-1) must be from 0 to 2"),
    PTR(append, PLAIN, s.len, lists[3], ARG, "len[1] (3) must be from 0 to 2"),
    PTR(append, PLAIN, s.cu_seqlens, borders[0], ARG, "cu_seqlens[2] (5) exceeds seq_len (2)"),
    PTR(append, PLAIN, s.cu_seqlens, borders[1], ARG, "cu_seqlens[2] (2) is below the entry"),
    PTR(append, PLAIN, s.cu_seqlens, borders[2], ARG, "cu_seqlens[0] (-1) must be at least 0"),
    PTR(append, PLAIN, s.k.data, NULL, ARG, "k.data is NULL"),
    PTR(write, PLAIN, s.v.data, NULL, ARG, "v.data is NULL"),
    INT(append, PLAIN, s.layout, 2, ARG, "layout (2) must be at most 1: 0 is BHSD, 1 is BSHD"),
    INT(append, PLAIN, s.k.dtype, ATTN_Q8_0, ARG,
        "k.dtype (5) must be as stored (1) or one of these: 0 is f32, 1 is f16, 2 is bf16"),
    INT(append, PLAIN, s.v.dtype, ATTN_E4M3, ARG,
        "v.dtype (3) must be as stored (0) or one of these: 0 is f32, 1 is f16, 2 is bf16"),
    INT(write, PLAIN, s.v.dtype, -1, ARG,
        "v.dtype (-1) must be as stored (0) or one of these: 0 is f32, 1 is f16, 2 is bf16"),
    INT(append, UNITS, s.k.dtype, ATTN_Q8_0, ARG,
        "k.dtype (5): rope turns keys before they are stored: 0 is f32, 1 is f16, 2 is bf16"),
    INT(append, UNITS, s.v.dtype, ATTN_Q8_0, ARG, "v.dtype (5) must be as stored (7) or one of"),
    STRIDE(append, PLAIN, s.k.stride_head, PTRDIFF_MAX / 4, OVERFLOW, "k: batch (2) x heads (2)"),
    INT(append, PLAIN, rope.scaling, 9, ARG, "scaling (9)"),
    N64(append, PLAIN, rope.dim, 3, ARG, "dim (3)"),
    N64(append, PLAIN, rope.dim, 10, ARG, "dim (10)"),
    PTR(append, WITH_TABLE, rope.cos, NULL, ARG, "cos"),
    N64(append, WITH_TABLE, rope.num_positions, 8, ARG,
        "keys of sequence 0: batch 0, row 1: position (8) must be at least 0 and below "
        "num_positions (8), the rows of the table"),
    N64(write, WITH_TABLE, rope.num_positions, 6, ARG,
        "keys of sequence 0: batch 0, row 1: position (6) must be at least 0 and below "),
    PTR(append, PLAIN, s.positions, far, ARG,
        "keys of sequence 1: batch 0, row 0: position (4294967296) must be from -2^31 to 2^31"),
    N64(append, SAME_ROWS, s.seq_len, PTRDIFF_MAX / 16, OVERFLOW,
        "positions: batch (2) x heads (1) x rows ("),
    PTR(append, PLAIN, s.rope, NULL, ARG, "positions are given, but rope is NULL"),
    N64(append, TWO_LAYERS, sequence, 0, ARG,
        "num_layers (2): call attn_cache_extend, then attn_cache_write for each layer"),
    N64(write, PLAIN, layer, 1, ARG, "layer (1) must be from 0 to 0"),
    N64(write, TWO_LAYERS, layer, -1, ARG, "layer (-1) must be from 0 to 1"),
    N64(write, PLAIN, s.seq_len, 3, ARG,
        "sequence 1 with 2 keys and 3 new ones: call attn_cache_extend with this step first"),
    /* trim and fork */
    PTR(trim, PLAIN, c, NULL, ARG, "cache is NULL"),
    N64(trim, PLAIN, sequence, 3, ARG, "sequence (3) must be from 0 to 2"),
    N64(trim, PLAIN, sequence, -1, ARG, "sequence (-1) must be from 0 to 2"),
    N64(trim, PLAIN, begin, -1, ARG, "begin (-1) and end (5) must ascend from 0 to 7"),
    N64(trim, PLAIN, begin, 6, ARG, "begin (6) and end (5) must ascend"),
    N64(trim, PLAIN, end, 8, ARG,
        "end (8) must ascend from 0 to 7, the numbers present in sequence 0"),
    N64(trim, PLAIN, end, -5, ARG, "end (-5)"),
    N64(trim, RINGED, begin, 4, ARG, "begin (4) and end (11) must ascend from 5 to 17"),
    N64(trim, RINGED, end, 10, ARG,
        "end (10) must be at least 11: window_left (6) keys before it are needed, and the ring has "
        "overwritten those below 5"),
    PTR(fork, PLAIN, c, NULL, ARG, "cache is NULL"),
    N64(fork, PLAIN, from, 3, ARG, "from (3) must be from 0 to 2"),
    N64(fork, PLAIN, to, -1, ARG, "to (-1) must be from 0 to 2"),
    N64(fork, PLAIN, to, 0, ARG, "to (0) must be another sequence than from"),
    N64(fork, PLAIN, to, 1, ARG, "to (1) must be empty: call attn_cache_trim(c, to, 0, 0, ...)"),
    N64(fork, PLAIN, end, 8, ARG, "begin (0) and end (8) must ascend from 0 to 7"),
    N64(fork, RINGED, end, 10, ARG,
        "end (10) must be at least 11: window_left (6) keys before it are needed, and the ring has "
        "overwritten those below 5"),
    /* views and reading */
    PTR(view_size, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(view_size, PLAIN, need, NULL, ARG, "bytes is NULL"),
    N64(view_size, PLAIN, batch, -1, ARG, "batch (-1) must be at least 0"),
    N64(view_size, PLAIN, batch, HUGE_SIZE, OVERFLOW, "the view would exceed the address space"),
    PTR(view, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(view, SCALED, c, &no_scales[0], ARG, "k.dtype (8) is i8, but k_scales.data is NULL"),
    PTR(view, PLAIN, params, NULL, ARG, "params is NULL"),
    N64(view, PLAIN, layer, 1, ARG, "layer (1) must be from 0 to 0"),
    N64(view, PLAIN, batch, -1, ARG, "batch (-1) must be at least 0"),
    PTR(view, PLAIN, sequences, lists[3], ARG, "sequences[1] (3) must be from 0 to num_sequences"),
    PTR(view, PLAIN, memory, NULL, WORKSPACE, "memory: bytes (0) must be at least "),
    SIZE(view, PLAIN, bytes, 60, WORKSPACE, "memory: bytes (60) must be at least "),
    N64(view, RINGED, p.window_left, 7, ARG,
        "p.window_left (7) must be from 0 to 6, the window_left of the ring"),
    N64(view, RINGED, p.window_left, -1, ARG, "p.window_left (-1) must be from 0 to 6"),
    PTR(read, PLAIN, c, NULL, ARG, "cache is NULL"),
    PTR(read, SCALED, c, &no_scales[1], ARG, "v.dtype (8) is i8, but v_scales.data is NULL"),
    N64(read, PLAIN, layer, -1, ARG, "layer (-1) must be from 0 to 0"),
    N64(read, PLAIN, sequence, 3, ARG, "sequence (3) must be from 0 to 2"),
    N64(read, PLAIN, count, -1, ARG, "count (-1) must be from 0 to 7"),
    N64(read, PLAIN, count, 8, ARG, "count (8) must be from 0 to 7"),
    N64(read, PLAIN, count, 7, ARG, "first (1) and first + count (8) must ascend from 0 to 7"),
    N64(read, PLAIN, first, INT64_MAX, ARG, "first (9223372036854775807)"),
    N64(read, PLAIN, first, -1, ARG, "first (-1)"),
    INT(read, PLAIN, k.dtype, ATTN_Q8_0, ARG,
        "k.dtype (5) must be as stored (1) or one of these: 0 is f32, 1 is f16, 2 is bf16"),
    INT(read, PLAIN, v.dtype, 8, ARG,
        "v.dtype (8) must be as stored (0) or one of these: 0 is f32, 1 is f16, 2 is bf16"),
    STRIDE(read, PLAIN, v.stride_seq, PTRDIFF_MIN, ARG, "v.stride_seq (ATTN_STRIDE_BROADCAST)"),
    STRIDE(read, PLAIN, k.stride_head, PTRDIFF_MAX / 2, OVERFLOW, "k: batch (1) x heads (2)"),
};

/* What the calls of both kinds write to. */

static void good_step(misuse_call *a, int kind)
{
    a->s.batch = 2;
    a->s.seq_len = 2;
    a->s.k.data = a->s.v.data = new_keys;
    a->s.rope = &a->rope;
    a->s.positions = kind == WITH_TABLE ? NULL : near_positions;
    if (kind == WITH_TABLE) {
        a->rope.cos = a->rope.sin = turns;
        a->rope.num_positions = 64;
    }
    if (kind == SAME_ROWS) {
        a->s.len = lists[1];
        a->s.k.stride_batch = a->s.k.stride_seq = ATTN_STRIDE_BROADCAST;
        a->s.k.stride_head = 8;
        a->s.v = a->s.k;
    }
}

/* All arguments are right, for every function. */
static void good_call(misuse_call *a, int kind)
{
    memset(a, 0, sizeof *a);
    a->c = &cache;
    a->shape = ready_shape(kind);
    a->step = &a->s;
    a->params = &a->p;
    a->need = &a->bytes;
    a->memory = misuse_room.memory;
    a->bytes = sizeof misuse_room.memory;
    a->begin = kind == RINGED ? 5 : 1;
    a->end = kind == RINGED ? 11 : 5;
    a->first = kind == RINGED ? 5 : 1;
    a->to = 2;
    a->batch = 2;
    a->count = 3;
    a->k.data = misuse_room.k;
    a->v.data = misuse_room.v;
    a->sequences = lists[0];
    a->p.window = kind == RINGED ? ATTN_WINDOW : 0;
    good_step(a, kind);
}

static void break_call(misuse_call *a, const misuse *m)
{
    unsigned char *at = (unsigned char *)a + m->offset;
    const int as_int = (int)m->number;
    const ptrdiff_t as_stride = (ptrdiff_t)m->number;
    const size_t as_size = (size_t)m->number;
    if (m->type == AS_INT64)
        memcpy(at, &m->number, sizeof m->number);
    else if (m->type == AS_INT)
        memcpy(at, &as_int, sizeof as_int);
    else if (m->type == AS_STRIDE)
        memcpy(at, &as_stride, sizeof as_stride);
    else if (m->type == AS_SIZE)
        memcpy(at, &as_size, sizeof as_size);
    else
        memcpy(at, &m->pointer, sizeof m->pointer);
}

static void check_misuse(const misuse *m)
{
    static misuse_call call, before;
    attn_status status;
    good_call(&call, m->kind);
    break_call(&call, m);
    memcpy(&before, &call, sizeof call);
    misuse_room_before = misuse_room;
    cache_remember();
    status = m->call(&call);
    CHECK(status == m->status, "status %d, not %d: %s", (int)status, (int)m->status, why);
    CHECK(strstr(why, m->piece) != NULL, "'%s' without '%s'", why, m->piece);
    CHECK(cache_is_unchanged() && memcmp(&before, &call, sizeof call) == 0 &&
              memcmp(&misuse_room, &misuse_room_before, sizeof misuse_room) == 0,
          "something changed: %s", why);
}

static void test_misuses(void)
{
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++)
        if (begin_case("misuse %d: %s", (int)i, misuses[i].piece)) {
            make_ready(misuses[i].kind);
            check_misuse(&misuses[i]);
        }
}

/* The calls that the table breaks are right. */
static void test_good_calls(void)
{
    static attn_status (*const calls[])(
        misuse_call * a) = { call_size, call_init, call_extend,    call_write, call_append,
                             call_trim, call_fork, call_view_size, call_view,  call_read };
    for (int kind = 0; kind < READY_KINDS; kind++)
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            static misuse_call call;
            if (!begin_case("right call %d of kind %d", (int)i, kind))
                continue;
            make_ready(kind);
            good_call(&call, kind);
            if (calls[i] == call_append && (kind == TWO_LAYERS || kind == TWO_OF_UNITS))
                continue;
            CHECK(calls[i](&call) == ATTN_OK && strcmp(why, "ok") == 0, "%s", why);
        }
}

/* A fork between extending and writing: what is written would show in both sequences. */
static void test_shared_write(void)
{
    static float x[2 * 3 * 4];
    attn_cache_step s = { .batch = 1, .seq_len = 2 };
    memset(&cache, 0, sizeof cache);
    cache.num_sequences = 2;
    cache.num_heads_kv = 3;
    cache.head_dim = cache.page_size = 4;
    cache.capacity = 12;
    if (!begin_case("write of a shared page") || !cache_start())
        return;
    s.k.data = s.v.data = x;
    CHECK(attn_cache_extend(&cache, &s, why, WHY) == ATTN_OK &&
              attn_cache_fork(&cache, 0, 1, 2, why, WHY) == ATTN_OK,
          "%s", why);
    cache_remember();
    CHECK(attn_cache_write(&cache, 0, &s, why, WHY) == ATTN_ERR_ARG &&
              strstr(why, "other sequences share their pages") != NULL,
          "'%s'", why);
    CHECK(cache_is_unchanged(), "something changed");
}

static attn_status extend_by(int64_t count)
{
    attn_cache_step s = { 0 };
    s.batch = 1;
    s.seq_len = count;
    return attn_cache_extend(&cache, &s, why, WHY);
}

/* Steps and roll-backs that the ring of recent rows cannot follow, with and without a window. */
static void test_recent(void)
{
    for (int ring = 0; ring < 2; ring++) {
        size_t need;
        if (!begin_case("recent rows, ring %d", ring))
            continue;
        memset(&cache, 0, sizeof cache);
        cache.num_sequences = 2;
        cache.num_heads_kv = cache.head_dim = 1;
        cache.capacity = 64;
        cache.ring = ring;
        cache.window_left = ring ? 5 : 0;
        cache.recent = 8;
        cache.recent_rows = 7;
        CHECK(attn_cache_size(&cache, &need, why, WHY) == ATTN_ERR_ARG &&
                  strcmp(why, "recent_rows (7) must be at least recent (8)") == 0,
              "%s", why);
        cache.recent_rows = 12;
        if (!cache_start())
            continue;
        CHECK(extend_by(13) == ATTN_ERR_FULL && extend_by(12) == ATTN_OK, "%s", why);
        cache_remember();
        CHECK(extend_by(ring ? 8 : 6) == ATTN_ERR_FULL &&
                  strcmp(why, ring
                                  ? "sequence 0 with 12 keys and 8 new ones: a ring of recent_rows "
                                    "(12) with recent (8) takes at most 7 in one step"
                                  : "sequence 0 with 12 keys and 6 new ones: a ring of recent_rows "
                                    "(12) with recent (8) takes at most 5 in one step") == 0,
              "%s", why);
        CHECK(cache_is_unchanged(), "something changed");
        CHECK(extend_by(5) == ATTN_OK, "%s", why);
        cache_remember(); /* Numbers 5 .. 16 have recent rows. */
        CHECK(attn_cache_trim(&cache, 0, 0, ring ? 9 : 11, why, WHY) == ATTN_ERR_ARG &&
                  strcmp(why, ring ? "end (9) must be at least 10: 5 keys before it are read from "
                                     "the ring of recent_rows (12), which has overwritten those "
                                     "below 5"
                                   : "end (11) must be at least 12: 7 keys before it are read from "
                                     "the ring of recent_rows (12), which has overwritten those "
                                     "below 5") == 0,
              "%s", why);
        CHECK(attn_cache_fork(&cache, 0, 1, 9, why, WHY) == ATTN_ERR_ARG && cache_is_unchanged(),
              "%s", why);
        CHECK(attn_cache_fork(&cache, 0, 1, 12, why, WHY) == ATTN_OK && cache.recent_begin[1] == 5,
              "%s", why);
        CHECK(attn_cache_trim(&cache, 0, 0, 12, why, WHY) == ATTN_OK && extend_by(5) == ATTN_OK,
              "%s", why);
        CHECK(attn_cache_trim(&cache, 0, 6, 7, why, WHY) == ATTN_OK, "forgotten keys: %s", why);
    }
}

/* What is not wanted has no type and no strides. */
static void test_unwanted(void)
{
    static const attn_output unwanted = { .dtype = 99, .stride_seq = ATTN_STRIDE_BROADCAST };
    static misuse_call call;
    if (!begin_case("a read without k"))
        return;
    make_ready(PLAIN);
    good_call(&call, PLAIN);
    call.k = unwanted;
    CHECK(call_read(&call) == ATTN_OK && strcmp(why, "ok") == 0, "%s", why);
}

/* The state of a cache may not be written through other arguments. */
static void check_state_apart(const char *name, attn_status (*call)(misuse_call *), misuse_call *a)
{
    cache_remember();
    CHECK(call(a) == ATTN_ERR_ARG && strstr(why, name) != NULL, "'%s' without '%s'", why, name);
    CHECK(cache_is_unchanged(), "something changed: %s", why);
}

static void test_state_apart(void)
{
    const char *const storage = "k overlaps the memory", *const state = "the state of the cache";
    static misuse_call a;
    if (!begin_case("arguments inside the state of a cache"))
        return;
    make_ready(PLAIN);
    good_call(&a, PLAIN);
    a.k.data = cache.begin;
    check_state_apart(state, call_read, &a);
    good_call(&a, PLAIN);
    a.memory = cache.k.data;
    check_state_apart(storage, call_view, &a);
    a.memory = cache.length;
    check_state_apart("overlaps the memory", call_view, &a);
    good_call(&a, PLAIN);
    a.s.rope = NULL;
    a.s.v.data = cache.begin;
    check_state_apart(state, call_append, &a);
    CHECK((char *)cache.k.data - (char *)cache.begin >= cache.state_bytes, "storage is state");
}

/* A list that is longer than it may be is not read: behind this one no list goes on. */
static void test_long_list(void)
{
    const int32_t three[3] = { 0, 1, 2 };
    static misuse_call a;
    if (!begin_case("a list of more sequences than there are"))
        return;
    make_ready(PLAIN);
    good_call(&a, PLAIN);
    a.s.sequences = three;
    a.s.batch = 9;
    check_state_apart("batch (9) must be at most num_sequences (3)", call_append, &a);
}

/* What one cache has of scales another one may take over, shared axes included. */
static void test_scales_taken_over(void)
{
    static attn_cache first, second;
    size_t bytes = 0;
    int side;
    if (!begin_case("scales that are taken over from a ready cache"))
        return;
    first = ready_shape(SCALED);
    for (side = 0; side < 2; side++) {
        attn_scales *const x = side ? &first.v_scales : &first.k_scales;
        x->stride_batch = x->stride_head = ATTN_STRIDE_BROADCAST;
        x->stride_seq = x->stride_dim = ATTN_STRIDE_BROADCAST;
    }
    second = first;
    CHECK(attn_cache_init(&first, misuse_room.memory, sizeof misuse_room.memory, why, WHY) ==
              ATTN_OK,
          "%s", why);
    CHECK(memcmp(&first.k_scales, &second.k_scales, sizeof first.k_scales) == 0 &&
              memcmp(&first.v_scales, &second.v_scales, sizeof first.v_scales) == 0,
          "shared axes are packed ones for the next cache");
    second.k_scales = first.k_scales;
    CHECK(attn_cache_size(&second, &bytes, why, WHY) == ATTN_OK && bytes > 0, "%s", why);
}

void test_cache_misuse(void)
{
    test_state_apart();
    test_long_list();
    test_scales_taken_over();
    test_recent();
    test_unwanted();
    test_good_calls();
    test_misuses();
    test_shared_write();
}
