/* attn.h - exact attention for CPUs in two files, C99, no dependencies.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 *     O = softmax(softcap(scale * Q K^T) + bias, masked) V
 *
 * by the online softmax: memory does not grow with the sequence length. Copy attn.h and attn.c into
 * a project and compile them with any C99 compiler; no flags are needed. Every mask and variant is
 * a field of one struct whose zero value means "off" or "the usual". The result has the same bits
 * on every CPU, for any number of threads, any batch and any chunking of a prompt (docs/canon.md).
 *
 * SYNOPSIS (compiled and run by the tests as examples/minimal.c)
 *
 *     attn_params p = {0};                      // zero is every field's default
 *     p.batch = 1;  p.num_heads_q = 32;  p.num_heads_kv = 8;
 *     p.seq_len_q = 512;  p.seq_len_kv = 512;  p.head_dim = 128;
 *     p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;     // [batch, head, seq, dim]
 *     p.causal = 1;
 *     size_t need;
 *     void *ws = attn_workspace_size(&p, &need) == ATTN_OK ? malloc(need) : NULL;
 *     if (attn_forward(&p, ws, need) != ATTN_OK)
 *         puts(attn_check(&p, ws, need, text, sizeof text));     // char text[200];
 *     free(ws);
 *
 * CONVENTIONS
 *
 * Memory. The library never allocates. The caller gives one workspace per call, best as large as
 *   attn_workspace_size says for the longest sequences; it may have any alignment and any content.
 *   Stack use is 2 to 3.8 KiB, below 4 KiB in every build measured (tests/stack.sh).
 * Threads. The library starts none. With p.parallel_for and p.num_workers set it hands out
 *   independent pieces of work, in up to five lists one after the other; where there are fewer
 *   heads and row tiles than workers (decoding) it divides the keys, too. Compiled with OpenMP and
 *   without the callback it uses OpenMP; else it runs in the calling thread. Every function may run
 *   in many threads at once if workspace and outputs are distinct. The number of threads never
 *   changes a bit of the result.
 * Errors. Every function that can fail returns an attn_status. attn_check gives the sentence, with
 *   the field's name and values. After an error other than ATTN_ERR_CALLBACK nothing was written.
 * Strides. In elements, may be negative; 0 means packed [batch, head, seq, dim] for tensors and
 *   per-token arrays, and "broadcast" for bias and boolean masks; ATTN_STRIDE_BROADCAST shares an
 *   input along an axis anywhere. The last dimension is always contiguous. Data need only be
 *   aligned for its element type.
 * Aliasing. o, lse, states and logits must not overlap any input, the workspace or each other.
 * Order. logit = softcap(scale * q.k) + bias + ALiBi, then the score callback, then all masks (a
 *   key is visible only if every mask says so), then softmax with the sink.
 * Positions. Query row i stands at pos(i) = i + offset among the keys j = 0, 1, ... of its
 *   sequence; p.alignment chooses the offset. Causal, window, chunked, prefix and ALiBi compare
 *   pos(i) with j. n(j) = key_base + j is the absolute number of a key.
 * Empty rows. A row without a visible key gives O = +0 and LSE = -inf (with a sink: the sink).
 * NaN and Inf. What a mask hides or a length leaves out never shows, NaN and Inf included. A NaN or
 *   +inf logit of a visible key makes that row NaN and no other. -inf in the bias masks its key.
 * Determinism. Same inputs, same bits: see docs/canon.md for the order of operations and its limits
 *   (rounding to nearest; no subnormal intermediate). User callbacks must be pure for this to hold.
 * Limits. Sizes are 64-bit and checked against overflow of the address space. Finite inputs give
 *   finite results while every partial sum of scale * log2(e) * q.k and 2^16 * kv_len * max|v| stay
 *   below 2^127; beyond that IEEE arithmetic decides.
 *
 * Macros that a user may define before including attn.h or for compiling attn.c, all of them:
 *   ATTN_API         decoration of every public function (default: nothing)
 *   ATTN_STATIC      every function static: for projects that #include "attn.c" in one file, which
 *                    then shares its internal names (put, text, tile, plan, ...) with that file
 *   ATTN_PREFIX      put before every public function name, e.g. -DATTN_PREFIX=my_
 *   ATTN_SIMD_AVX2, ATTN_SIMD_NEON, ...   the attn_simd_*.c file of that name is linked, too
 *   ATTN_ASSERT(x)   internal checks (default: nothing)
 */

#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0
#define ATTN_VERSION_STRING "0.1.0"
#define ATTN_NUMERICS_VERSION 1 /* of the canonical order of operations, docs/canon.md */

#if defined ATTN_STATIC && defined __GNUC__
#define ATTN_API static __attribute__((unused))
#elif defined ATTN_STATIC
#define ATTN_API static
#elif !defined ATTN_API
#define ATTN_API
#endif

#ifdef ATTN_PREFIX
#define ATTN_JOIN_(a, b) a##b
#define ATTN_JOIN(a, b) ATTN_JOIN_(a, b)
#define attn_version ATTN_JOIN(ATTN_PREFIX, attn_version)
#define attn_params_size ATTN_JOIN(ATTN_PREFIX, attn_params_size)
#define attn_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_workspace_size)
#define attn_forward ATTN_JOIN(ATTN_PREFIX, attn_forward)
#define attn_check ATTN_JOIN(ATTN_PREFIX, attn_check)
#define attn_impl_name ATTN_JOIN(ATTN_PREFIX, attn_impl_name)
#define attn_status_string ATTN_JOIN(ATTN_PREFIX, attn_status_string)
#define attn_alibi_slopes ATTN_JOIN(ATTN_PREFIX, attn_alibi_slopes)
#define attn_convert ATTN_JOIN(ATTN_PREFIX, attn_convert)
#define attn_dropout_keep ATTN_JOIN(ATTN_PREFIX, attn_dropout_keep)
#define attn_kernels_get ATTN_JOIN(ATTN_PREFIX, attn_kernels_get)
#define attn_kernels_find ATTN_JOIN(ATTN_PREFIX, attn_kernels_find)
#define attn_kernels_name ATTN_JOIN(ATTN_PREFIX, attn_kernels_name)
#define attn_problem_of ATTN_JOIN(ATTN_PREFIX, attn_problem_of)
#define attn_sequence_of ATTN_JOIN(ATTN_PREFIX, attn_sequence_of)
#define attn_backward_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_backward_workspace_size)
#define attn_backward ATTN_JOIN(ATTN_PREFIX, attn_backward)
#define attn_backward_check ATTN_JOIN(ATTN_PREFIX, attn_backward_check)
#define attn_backward_explain ATTN_JOIN(ATTN_PREFIX, attn_backward_explain)
#define attn_cache_size ATTN_JOIN(ATTN_PREFIX, attn_cache_size)
#define attn_cache_init ATTN_JOIN(ATTN_PREFIX, attn_cache_init)
#define attn_cache_extend ATTN_JOIN(ATTN_PREFIX, attn_cache_extend)
#define attn_cache_write ATTN_JOIN(ATTN_PREFIX, attn_cache_write)
#define attn_cache_append ATTN_JOIN(ATTN_PREFIX, attn_cache_append)
#define attn_cache_trim ATTN_JOIN(ATTN_PREFIX, attn_cache_trim)
#define attn_cache_fork ATTN_JOIN(ATTN_PREFIX, attn_cache_fork)
#define attn_cache_view_size ATTN_JOIN(ATTN_PREFIX, attn_cache_view_size)
#define attn_cache_view ATTN_JOIN(ATTN_PREFIX, attn_cache_view)
#define attn_cache_read ATTN_JOIN(ATTN_PREFIX, attn_cache_read)
#define attn_dilated_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_dilated_workspace_size)
#define attn_dilated_forward ATTN_JOIN(ATTN_PREFIX, attn_dilated_forward)
#define attn_dilated_check ATTN_JOIN(ATTN_PREFIX, attn_dilated_check)
#define attn_dilated_index_size ATTN_JOIN(ATTN_PREFIX, attn_dilated_index_size)
#define attn_dilated_index ATTN_JOIN(ATTN_PREFIX, attn_dilated_index)
#define attn_dilated_backward_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_dilated_backward_workspace_size)
#define attn_dilated_backward ATTN_JOIN(ATTN_PREFIX, attn_dilated_backward)
#define attn_dilated_backward_check ATTN_JOIN(ATTN_PREFIX, attn_dilated_backward_check)
#define attn_explain ATTN_JOIN(ATTN_PREFIX, attn_explain)
#define attn_state_merge ATTN_JOIN(ATTN_PREFIX, attn_state_merge)
#define attn_state_finish ATTN_JOIN(ATTN_PREFIX, attn_state_finish)
#define attn_lse_merge ATTN_JOIN(ATTN_PREFIX, attn_lse_merge)
#define attn_info_format ATTN_JOIN(ATTN_PREFIX, attn_info_format)
#define attn_params_from_string ATTN_JOIN(ATTN_PREFIX, attn_params_from_string)
#define attn_pattern_longformer ATTN_JOIN(ATTN_PREFIX, attn_pattern_longformer)
#define attn_pattern_strided ATTN_JOIN(ATTN_PREFIX, attn_pattern_strided)
#define attn_pattern_random ATTN_JOIN(ATTN_PREFIX, attn_pattern_random)
#define attn_pattern_bigbird ATTN_JOIN(ATTN_PREFIX, attn_pattern_bigbird)
#define attn_pattern_measure ATTN_JOIN(ATTN_PREFIX, attn_pattern_measure)
#define attn_pattern_build ATTN_JOIN(ATTN_PREFIX, attn_pattern_build)
#define attn_pattern_use ATTN_JOIN(ATTN_PREFIX, attn_pattern_use)
#define attn_resume_memory ATTN_JOIN(ATTN_PREFIX, attn_resume_memory)
#define attn_resume_begin ATTN_JOIN(ATTN_PREFIX, attn_resume_begin)
#define attn_resume_step ATTN_JOIN(ATTN_PREFIX, attn_resume_step)
#define attn_resume_end ATTN_JOIN(ATTN_PREFIX, attn_resume_end)
#define attn_resume_check ATTN_JOIN(ATTN_PREFIX, attn_resume_check)
#define attn_ring_describe ATTN_JOIN(ATTN_PREFIX, attn_ring_describe)
#define attn_ring_ranges ATTN_JOIN(ATTN_PREFIX, attn_ring_ranges)
#define attn_ring_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_ring_workspace_size)
#define attn_ring_forward ATTN_JOIN(ATTN_PREFIX, attn_ring_forward)
#define attn_ring_check ATTN_JOIN(ATTN_PREFIX, attn_ring_check)
#define attn_ring_backward_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_ring_backward_workspace_size)
#define attn_ring_backward ATTN_JOIN(ATTN_PREFIX, attn_ring_backward)
#define attn_ring_backward_check ATTN_JOIN(ATTN_PREFIX, attn_ring_backward_check)
#define attn_rope_apply ATTN_JOIN(ATTN_PREFIX, attn_rope_apply)
#define attn_rope_table ATTN_JOIN(ATTN_PREFIX, attn_rope_table)
#define attn_cpu_features ATTN_JOIN(ATTN_PREFIX, attn_cpu_features)
#define attn_kernels_avx2 ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx2)
#define attn_kernels_avx512 ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx512)
#define attn_kernels_neon ATTN_JOIN(ATTN_PREFIX, attn_kernels_neon)
#define attn_kernels_sse2 ATTN_JOIN(ATTN_PREFIX, attn_kernels_sse2)
#define attn_kernels_avx2_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx2_narrow)
#define attn_kernels_avx512_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx512_narrow)
#define attn_kernels_neon_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_neon_narrow)
#define attn_kernels_sse2_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_sse2_narrow)
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum attn_status {
    ATTN_OK = 0,
    ATTN_ERR_ARG,         /* a field or a combination of fields is wrong */
    ATTN_ERR_OVERFLOW,    /* sizes or strides exceed the address space */
    ATTN_ERR_WORKSPACE,   /* the workspace is missing or too small */
    ATTN_ERR_UNSUPPORTED, /* the request is sensible but not built */
    ATTN_ERR_CALLBACK,    /* parallel_for or a backend failed; outputs are undefined */
    ATTN_ERR_FULL         /* attn_cache.h: no room for the keys; nothing was changed */
} attn_status;

/* How numbers are stored: float, or uint16_t with the bits of IEEE binary16 or of bfloat16 (the
 * upper half of a float), in the machine's byte order. Arithmetic is in f32. */
typedef enum attn_dtype { ATTN_F32 = 0, ATTN_F16 = 1, ATTN_BF16 = 2 } attn_dtype;

typedef enum attn_impl {
    ATTN_IMPL_DEFAULT = 0, /* tiled, at every length */
    ATTN_IMPL_TILED = 1,   /* online softmax over tiles of keys; memory independent of length */
    ATTN_IMPL_NAIVE = 2,   /* textbook: materialises the logits of a head; the readable baseline */
    ATTN_IMPL_AUTO = 3     /* naive up to p.auto_naive_keys keys, else tiled; outside "same bits" */
} attn_impl;

typedef enum attn_alignment {
    ATTN_ALIGN_BOTTOM_RIGHT = 0, /* offset = kv length - q length: last row at last key */
    ATTN_ALIGN_TOP_LEFT = 1,     /* offset = 0: query 0 stands at key 0 */
    ATTN_ALIGN_OFFSET = 2        /* offset = p.q_offset[b] */
} attn_alignment;

#define ATTN_WINDOW 1                     /* p.window: the window is on */
#define ATTN_STRIDE_BROADCAST PTRDIFF_MIN /* a stride: every index reads the same data */
#define ATTN_AUTO_NAIVE_KEYS 0 /* ATTN_IMPL_AUTO: naive was at most 2 % faster, README.md */

/* An input: element (b, h, s, d) is at data[b*stride_batch + h*stride_head + s*stride_seq + d]. */
typedef struct attn_tensor {
    int dtype;                                       /* attn_dtype; 0 = ATTN_F32 */
    ptrdiff_t stride_batch, stride_head, stride_seq; /* 0 = packed */
    const void *data;
} attn_tensor;

/* An output, addressed in the same way; no axis may be broadcast. */
typedef struct attn_output {
    int dtype;
    ptrdiff_t stride_batch, stride_head, stride_seq;
    void *data;
} attn_output;

/* Additive bias [batch, num_heads_q, seq_len_q, seq_len_kv]; a stride of 0 broadcasts that axis. It
 * is not scaled. -inf masks its key, whatever its score is. Columns are the caller's: column
 * kv_begin[b] + j; with cu_seqlens they start at 0 in each sequence, as rows do. */
typedef struct attn_bias {
    int dtype; /* ATTN_F32, ATTN_F16 or ATTN_BF16 */
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv;
    const void *data; /* NULL = off */
} attn_bias;

/* Boolean mask [batch, num_heads_q, seq_len_q, seq_len_kv]: nonzero = visible. Strides as for the
 * bias, in bytes for p.bool_mask, in bits for p.bit_mask (bit n is bit n%8 of byte n/8). */
typedef struct attn_mask {
    int invert; /* nonzero: nonzero elements are hidden instead */
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv;
    const uint8_t *data; /* NULL = off */
} attn_mask;

/* Block-sparse mask: cell (i / block_q, j / block_k) of query row i and key j of the sequence is
 * visible or not. Give either a bitmap (cell (r, c) is bit b*stride_batch + h*stride_head +
 * r*stride_row + c, 1 = visible) or CSR (row r's visible columns are columns[row_offsets[r] ..
 * row_offsets[r+1]-1], strictly ascending, row_offsets moved by b*csr_stride_batch +
 * h*csr_stride_head). Strides over batch and head: 0 = shared. i and j
 * count within the sequence: with cu_seqlens CSR needs the rows of the longest one, and a packed
 * row of the bitmap is still ceil(seq_len_kv / block_k) bits. */
typedef struct attn_block_mask {
    int64_t block_q, block_k; /* size of a cell; 0 = the mask is off */
    ptrdiff_t stride_batch, stride_head;
    ptrdiff_t stride_row; /* bits; 0 = packed: ceil(seq_len_kv / block_k) */
    const uint8_t *bitmap;
    ptrdiff_t csr_stride_batch, csr_stride_head;
    const int32_t *row_offsets;
    const int32_t *columns;
} attn_block_mask;

/* Where the keys of a sequence lie, if not one after the other from the first row of its batch
 * entry on: column c of sequence b is row r = begin[b] + c, less ring if that is beyond it. Row r
 * lies in the batch entry; or, paged, is slot r % page_size of page table[b*table_stride +
 * r / page_size], and k and v are [num_pages, num_heads_kv, page_size, head_dim], stride_batch
 * between pages, shared by all sequences. Not with cu_seqlens_kv. attn_cache.h fills this in. */
typedef struct attn_rows {
    int64_t ring;           /* ring buffer: so many rows of a sequence, then they start over; at
                             * least kv_begin + kv_len; 0 = off. k and v, if not paged, are then
                             * [batch, num_heads_kv, ring, head_dim] */
    const int32_t *begin;   /* [batch] row of column 0, below ring, only with it; NULL = 0 */
    int64_t page_size;      /* rows of a page; 0 = not paged */
    int64_t num_pages;      /* that k and v hold */
    const int32_t *table;   /* [batch, pages of a sequence]; entries that no key in use needs are
                             * not read */
    ptrdiff_t table_stride; /* between batch entries; 0 = packed: ceil(rows / page_size), where rows
                             * is ring or, without one, seq_len_kv */
} attn_rows;

/* One (query, key) pair, as callbacks see it. */
typedef struct attn_pair {
    int64_t batch, head; /* head: of the query */
    int64_t i, j;        /* row of this call; key of the sequence */
    int64_t pos, n;      /* key_base + i + offset; key_base + j: absolute positions */
} attn_pair;

/* A rectangle of pairs: rows i_begin..i_end-1 of heads head_begin..head_end-1 against keys
 * j_begin..j_end-1; add offset to i and key_base to both for absolute positions. */
typedef struct attn_rect {
    int64_t batch, head_begin, head_end, i_begin, i_end, j_begin, j_end, offset, key_base;
} attn_rect;

typedef enum attn_tile_class {
    ATTN_TILE_EMPTY = 0,   /* no pair of the rectangle is visible */
    ATTN_TILE_PARTIAL = 1, /* ask for each pair */
    ATTN_TILE_FULL = 2     /* every pair is visible */
} attn_tile_class;

/* Called on workers, may overlap, must not throw or longjmp. */
typedef float (*attn_score_fn)(void *user, const attn_pair *at, float logit);
typedef int (*attn_mask_fn)(void *user, const attn_pair *at);      /* nonzero = visible */
typedef int (*attn_mask_tile_fn)(void *user, const attn_rect *at); /* an attn_tile_class */

/* Runs task(arg, index, worker) once for each index 0..n-1, in any order, on workers numbered from
 * 0 to p.num_workers-1, no two of the same number at a time; returns when all are done: 0, or
 * nonzero when it failed (attn_forward then returns ATTN_ERR_CALLBACK). */
typedef void (*attn_task_fn)(void *arg, int64_t index, int worker);
typedef int (*attn_parallel_for_fn)(void *user, int64_t n, attn_task_fn task, void *arg);

typedef enum attn_log_level { ATTN_LOG_INFO = 0, ATTN_LOG_WARNING = 1 } attn_log_level;
typedef void (*attn_log_fn)(void *user, int level, const char *text);

/* Stages at which logits can be asked for. RAW and SOFTCAP are unmasked; BIAS includes ALiBi and
 * the score callback and holds -inf for keys that are not visible; SOFTMAX holds probabilities
 * (before dropout), +0 for keys that are not visible. */
typedef enum attn_logits_stage {
    ATTN_LOGITS_RAW = 0,
    ATTN_LOGITS_SOFTCAP = 1,
    ATTN_LOGITS_BIAS = 2,
    ATTN_LOGITS_SOFTMAX = 3
} attn_logits_stage;

/* Logits or probabilities of chosen rows, f32, packed [batch, num_heads_q, num_rows, seq_len_kv].
 * Columns are the caller's (kv_begin[b] + j); columns outside the sequence hold -inf (+0 at stage
 * SOFTMAX). A row beyond q_len[b] is left untouched. With cu_seqlens the columns of each sequence
 * start at 0 and rows count within it. */
typedef struct attn_logits {
    int stage;           /* attn_logits_stage */
    int64_t num_rows;    /* 0 with rows == NULL: all seq_len_q rows */
    const int32_t *rows; /* [num_rows] row numbers i, the same for every batch entry and head;
                          * NULL = 0, 1, ... */
    float *data;         /* NULL = off */
} attn_logits;

/* The raw state of a row: m = running maximum of the logits times log2(e), l = sum of 2^(logit -
 * m), o = sum of 2^(logit - m) * v. All f32. Rows are numbered as in a packed lse; o is
 * [row, head_dim_v]. An empty row holds (-inf, 0, 0). */
typedef struct attn_state {
    int64_t num_rows;   /* for attn_state_merge; the other functions take the sizes of p */
    int64_t head_dim_v; /* likewise */
    float *m, *l, *o;
} attn_state;

/* A part of a call, for sequences that do not lie in one memory: shards on other machines, keys
 * that come from a file. Everything else in attn_params describes the whole call: lengths,
 * positions, masks, bias, per-token arrays. But q, o, lse, state (and dout, dlse, dq of
 * attn_backward.h) hold only rows row_begin .. row_begin + row_count - 1 where `rows` is set, k and
 * v (dk, dv) only keys key_begin .. key_begin + key_count - 1, in the caller's columns, where
 * `keys` is: their first row is that row or key, and packed strides and the numbers of states go by
 * these counts. Rows have the bits of the whole call. Of a part of the keys the raw state is wanted
 * (p.partial), to be merged with those of the others: attn_state_merge says when that is canonical.
 * Not with cu_seqlens, kv_rows, logits, impl naive. */
typedef struct attn_part {
    int rows, keys; /* nonzero: the two fields below count; 0 = all rows, all keys */
    int continued;  /* nonzero, with keys and partial: p.state holds what earlier parts of the same
                     * chunk of 1024 keys (by n) left, in the beginning (-inf, 0, 0), and this part
                     * goes on from there. Canonical if all but the last end where n is a multiple
                     * of 16. The keys in use of a sequence with rows must lie in one
                     * chunk */
    int64_t row_begin, row_count;
    int64_t key_begin, key_count;
} attn_part;

typedef struct attn_kernels attn_kernels; /* a set of kernels for one instruction set */
typedef struct attn_backend attn_backend; /* a device; see the end of this file */

/* Everything about one call. Set it to zero, then assign. */
typedef struct attn_params {
    /* ---- sizes. 0 is empty: batch, seq_len_q: nothing to do; seq_len_kv: every row is empty */
    int64_t batch;        /* independent sequences; with cu_seqlens: how many are packed */
    int64_t num_heads_q;  /* > 0 */
    int64_t num_heads_kv; /* 0 = num_heads_q; must divide num_heads_q (GQA; 1 = MQA). Query head h
                           * reads kv head h / (num_heads_q / num_heads_kv) */
    int64_t seq_len_q;    /* rows of q and o per batch entry; with cu_seqlens_q: rows in all */
    int64_t seq_len_kv;   /* keys per batch entry; with cu_seqlens_kv: keys in all */
    int64_t head_dim;     /* > 0: elements of one q and k vector */
    int64_t head_dim_v;   /* elements of one v and o vector; 0 = head_dim */
    float scale;          /* factor on q.k; finite; 0 = 1/sqrt(head_dim) */

    /* ---- tensors. o may be off (data NULL) when lse, state or logits are asked for */
    attn_tensor q;   /* [batch, num_heads_q,  seq_len_q,  head_dim]    */
    attn_tensor k;   /* [batch, num_heads_kv, seq_len_kv, head_dim]; kv_rows may say otherwise */
    attn_tensor v;   /* [batch, num_heads_kv, seq_len_kv, head_dim_v]; likewise */
    attn_output o;   /* [batch, num_heads_q,  seq_len_q,  head_dim_v]; with cu_seqlens the packed
                    * order of q, k, v, o is [token, head, dim] and stride_batch is not used */
    attn_output lse; /* f32 [batch, num_heads_q, seq_len_q], with cu_seqlens_q [num_heads_q, token]:
                      * natural log of the sum of exp(logit) and of the sink; NULL = off */

    /* ---- lengths, per batch entry; NULL = all. Counts, 0 allowed */
    const int32_t *q_len;         /* [batch] rows in use; others are not read or written */
    const int32_t *kv_len;        /* [batch] keys in use, counted from kv_begin */
    const int32_t *kv_begin;      /* [batch] left padding: first key in use; key j is column
                                   * kv_begin + j of k, v, bias, masks and kv_segments */
    const int32_t *cu_seqlens_q;  /* [batch + 1] varlen: sequence b is rows cu[b] .. cu[b+1]-1 */
    const int32_t *cu_seqlens_kv; /* [batch + 1], with cu_seqlens_q; without it k and v are not
                                   * packed, and kv_len must be given */
    const int64_t *key_base;      /* [batch] position of the first key, 0 to 2^58; NULL = 0 */
    attn_rows kv_rows;            /* caches: where the keys lie; all 0 = one after the other */
    int64_t shared_keys;          /* cascade: the caller promises that keys 0 .. shared_keys-1 (K
                                   * and V) are the same in every batch entry, as those of a
                                   * system prompt are; at most seq_len_kv; 0 = off. The rows of
                                   * all entries then go over these keys together and read them
                                   * once, from entry 0: the part of decoding that waits for
                                   * memory. The bits stay the same. Works with impl tiled, a
                                   * batch of 2 or more without cu_seqlens, at most 64 rows
                                   * (q_len * group) per entry and kv head, one key_base, at least
                                   * 64 keys in whole blocks (n a multiple of 16), all of which
                                   * every row sees, no bias, ALiBi, dropout, callback or mask
                                   * but causal, window and chunked, and row tiles for half of
                                   * the workers at least. Otherwise nothing changes, and
                                   * attn_explain says why. Each entry's own copy must be there
                                   * all the same: any may be read. The workspace then holds the
                                   * states of all rows too, some (head_dim_v + 2) *
                                   * (3 + log2(shared_keys / 1024)) + head_dim floats each; in a
                                   * smaller one each entry reads its own copy */

    /* ---- position of the queries */
    int alignment;           /* attn_alignment; used by causal, window, chunked, prefix and ALiBi */
    const int32_t *q_offset; /* [batch] for ATTN_ALIGN_OFFSET; may be negative */

    /* ---- masks; all compose: a key is visible if every one of them shows it */
    int causal;            /* nonzero: key j is visible iff j <= pos(i) */
    const int32_t *prefix; /* [batch] with causal: keys j < prefix[b] are visible, too; NULL = 0 */
    int window;            /* ATTN_WINDOW = on: pos(i) - left <= j <= pos(i) + right */
    int64_t window_left;   /* extra keys before one's own position; -1 = unbounded */
    int64_t window_right;  /* extra keys after it; -1 = unbounded */
    int64_t chunk_size;    /* chunked attention: same floor((key_base + position) / chunk_size);
                             * 0 = off */
    const int32_t *q_segments;    /* [batch, seq_len_q] document ids; visible iff ids are equal */
    const int32_t *kv_segments;   /* [batch, seq_len_kv]; both or neither; with varlen: [token] */
    ptrdiff_t q_segments_stride;  /* between batch entries; 0 = packed */
    ptrdiff_t kv_segments_stride; /* between batch entries; 0 = packed */
    const int32_t *tree_parents;  /* [batch, seq_len_q] speculative decoding: the last seq_len_q
                                   * (q_len) keys are nodes, node i is query i; parent < i, or
                                   * -1 = root. A query
                                   * sees all earlier keys, its ancestors and itself; with
                                   * cu_seqlens: [token], node numbers within the sequence.
                                   * pos(i) counts nodes, not depth: window, chunked and ALiBi
                                   * take hidden siblings for keys between */
    ptrdiff_t tree_stride;        /* between batch entries; 0 = packed */
    attn_mask bool_mask;          /* one byte per pair */
    attn_mask bit_mask;           /* one bit per pair */
    attn_block_mask block_mask;
    attn_mask_fn mask;           /* callback; NULL = off */
    attn_mask_tile_fn mask_tile; /* its optional classifier; NULL = every tile is partial */

    /* ---- what changes a logit, in this order */
    float softcap; /* c > 0: logit = c * tanh(logit / c); 0 = off */
    attn_bias bias;
    const float *alibi_slopes; /* [num_heads_q]: adds -slope * |pos(i) - j|; NULL = off */
    ptrdiff_t alibi_stride;    /* between batch entries; 0 = the same slopes for all */
    attn_score_fn score;       /* callback: natural logit in, logit out; not called for a logit of
                                  * -inf or a masked pair; NULL = off */
    void *callback_user;       /* first argument of score, mask, mask_tile */

    /* ---- softmax */
    const float *sinks; /* [num_heads_q] one more logit per head without a value, not scaled, not
                           * capped; -inf = none; NULL = off */
    int softmax1;       /* nonzero: a sink of 0 for every head */
    float dropout_p;    /* probability of dropping a key, in [0, 1); 0 = off */
    uint64_t dropout_seed;

    /* ---- further outputs */
    int partial;      /* nonzero: write the raw state instead of o and lse; no sink enters, and
                          * logits of stage SOFTMAX are not supported */
    attn_state state; /* destination for partial */
    attn_logits logits;

    /* ---- how to compute; nothing here changes a bit of an explicit impl */
    int impl;                /* attn_impl */
    int64_t auto_naive_keys; /* ATTN_IMPL_AUTO: naive up to this seq_len_kv; 0 = what tuning
                                 * says, else ATTN_AUTO_NAIVE_KEYS */
    int naive_whole;         /* nonzero: naive materialises the logits of all heads at once */
    int tile_keys;           /* keys per tile, at most: 16, 32, ... 1024; 0 = chosen */
    const char *tuning;      /* text of a file that `bench tune` wrote for this machine, ended by
                                 * a zero byte; NULL = usual sizes. Words: attn-tuning 1, then any
                                 * number of [SET.]NAME VALUE, then end; # begins a comment, line
                                 * ends are white space. SET is a kernel set, others than the one
                                 * that runs do not matter; NAME is tile_keys, item_rows,
                                 * item_bytes, split_work, ahead or auto_naive_keys (attn.c,
                                 * section 6); the last of several counts, tile_keys and
                                 * auto_naive_keys above before all. A damaged text counts as
                                 * none: p.log and attn_explain say why */
    int force_redo;          /* testing: always take the second pass of docs/canon.md, "redo" */
    const attn_kernels *kernels; /* NULL = the best linked in for this CPU and so many rows */
    const attn_backend *backend; /* NULL = CPU */
    int num_workers;             /* workers to size the workspace for; 0 = 1, or OpenMP's maximum */
    attn_parallel_for_fn parallel_for; /* NULL = OpenMP when compiled with it, else a plain loop */
    void *parallel_user;
    attn_log_fn log; /* NULL = silent */
    void *log_user;

    /* ---- a part of the call: some of its rows, some of its keys */
    attn_part part;
} attn_params;

/* ---------------------------------------------------------------------------------------------
 * Functions
 * ------------------------------------------------------------------------------------------ */

/* Version of the library in the binary, e.g. "0.1.0". */
ATTN_API const char *attn_version(void);

/* sizeof(attn_params) of the library in the binary: differs when header and library do not
 * match. */
ATTN_API size_t attn_params_size(void);

/* Bytes of workspace that are best for attn_forward of *p (pointers to data are not read, lengths
 * and offsets are). Less works too, somewhat slower, with smaller tiles or fewer workers, down to
 * what one worker needs. So a workspace asked for with the largest seq_len_q and the largest
 * seq_len_kv serves every shorter call that differs in nothing else: a prefill and, if seq_len_kv
 * was the final length, its decode steps. (Where impl = AUTO changes to NAIVE, ask for both.) */
ATTN_API attn_status attn_workspace_size(const attn_params *p, size_t *bytes);

/* Attention as described by *p. Reads q, k, v and the arrays; writes o, lse, state, logits. */
ATTN_API attn_status attn_forward(const attn_params *p, void *workspace, size_t workspace_bytes);

/* Says what is wrong with *p and the workspace in one English sentence, or "ok" (also after
 * ATTN_ERR_CALLBACK, which only a run can show). Writes at most
 * text_bytes bytes including the terminator and returns text (or a constant string when text is
 * NULL or text_bytes is 0). */
ATTN_API const char *attn_check(const attn_params *p, const void *workspace, size_t workspace_bytes,
                                char *text, size_t text_bytes);

/* "default", "tiled", "naive", "auto": an attn_impl as attn_params_from_string takes it; NULL for
 * any other number. */
ATTN_API const char *attn_impl_name(int impl);

/* A short name of a status, e.g. "workspace too small". Never NULL. docs/troubleshooting.md has an
 * entry under each name. */
ATTN_API const char *attn_status_string(attn_status status);

/* The standard ALiBi slopes of Press et al. 2021 (arXiv 2108.12409): 2^(-8 (h+1) / H) for H a power
 * of two, else the slopes of the next lower power of two followed by every other one of the next
 * higher. Correct to 2 ulp, the same bits everywhere. num_heads is
 * from 1 to 2^20. */
ATTN_API attn_status attn_alibi_slopes(float *slopes, int64_t num_heads);

/* Converts n elements between storage types, round to nearest even, NaN stored canonically. */
ATTN_API attn_status attn_convert(void *dst, int dst_dtype, const void *src, int src_dtype,
                                  size_t n);

/* Whether dropout keeps a pair: Philox4x32-10 (Salmon et al. 2011) keyed by the seed, counter
 * (n, pos, head, batch), word 0 compared with floor(dropout_p * 2^32). 1 = kept. A dropout_p of
 * 1 or more keeps nothing, one that is not above 0 everything. */
ATTN_API int attn_dropout_keep(uint64_t seed, float dropout_p, const attn_pair *at);

/* Kernel sets that this CPU can run: index 0 is the best for many rows, the last is always
 * "portable"; NULL beyond. p.kernels = NULL takes the best for the number of rows. By name:
 * NULL if unknown or if this CPU cannot run it. */
ATTN_API const attn_kernels *attn_kernels_get(int index);
ATTN_API const attn_kernels *attn_kernels_find(const char *name);
ATTN_API const char *attn_kernels_name(const attn_kernels *kernels);

/* src/api/backend.h - a device, or another implementation of attn_forward and attn_backward.
 *
 * attn_forward validates a call once and hands the result, an attn_problem, to p.backend. A backend
 * needs no other knowledge of the library: sizes, strides and numbers are resolved, and
 * attn_sequence_of tells for each sequence of the batch which rows and keys are in use.
 */

/* A call that validation has passed, with every default resolved. */
typedef struct attn_problem {
    attn_params p;       /* counts, strides, scale, kernels and tile_keys are filled in */
    int impl;            /* ATTN_IMPL_TILED or ATTN_IMPL_NAIVE */
    int size_query;      /* nonzero: attn_workspace_size asks, and outputs may still be unknown */
    int64_t group;       /* query heads per kv head */
    int64_t max_q_len;   /* rows of the longest sequence of the batch that the call computes */
    int64_t max_kv_len;  /* keys of the longest sequence that enter */
    float factor;        /* c = scale * log2(e), the factor on q */
    float cap2, icap2;   /* softcap in base 2, and its inverse; 0 = off */
    float keep_factor;   /* 1 / (1 - dropout_p) */
    uint32_t drop_below; /* a Philox word below it drops its key */
    const attn_kernels *batch_kernels; /* for the rows of all batch entries at once: shared_keys */
    int batch_tile_keys;               /* keys of a tile with them */
} attn_problem;

/* Sequence b of a batch: the rows and keys in use, where they lie, and how they are numbered. */
typedef struct attn_sequence {
    int64_t b;
    int64_t q_row, q_len;     /* place of row 0 along the seq axis of q, o, lse; rows in use */
    int64_t kv_row, kv_len;   /* place of key 0 in k and v, before ring and pages; keys in use */
    int64_t row_from, row_to; /* the rows in use that the call computes: p.part */
    int64_t key_from, key_to; /* the keys in use that enter: p.part */
    int64_t column;           /* of key 0 in bias and masks: kv_begin[b] */
    int64_t offset;           /* pos(i) = i + offset */
    int64_t key_base;         /* n(j) = key_base + j */
    int64_t prefix;           /* p.prefix[b] */
} attn_sequence;

/* Validates *p as attn_forward does and fills in *problem, or puts a sentence into why (may be
 * NULL). Pointers to tensors are not read and may be NULL. */
ATTN_API attn_status attn_problem_of(const attn_params *p, attn_problem *problem, char *why,
                                     size_t why_bytes);

/* Sequence b, from 0 to batch - 1. */
ATTN_API attn_sequence attn_sequence_of(const attn_problem *problem, int64_t b);

/* The gradients that a backend is asked for: see attn_backward. */
typedef struct attn_gradient_call attn_gradient_call;

/* Set it to zero, then assign. supports answers above 0 where the backend takes the call; 0, with a
 * sentence in why, where the CPU takes it; below 0, with a sentence, where the CPU cannot take it
 * either because arrays are the device's: the call then returns ATTN_ERR_UNSUPPORTED. A backend
 * without gradients leaves the last three NULL. */
struct attn_backend {
    int abi; /* ATTN_KERNEL_ABI */
    const char *name;
    void *user;
    int (*supports)(const attn_backend *self, const attn_problem *problem, char *why,
                    size_t why_bytes);
    attn_status (*workspace_size)(const attn_backend *self, const attn_problem *problem,
                                  size_t *bytes);
    attn_status (*run)(const attn_backend *self, const attn_problem *problem, void *workspace,
                       size_t workspace_bytes);
    int (*supports_gradients)(const attn_backend *self, const attn_problem *problem,
                              const attn_gradient_call *g, char *why, size_t why_bytes);
    attn_status (*gradients_size)(const attn_backend *self, const attn_problem *problem,
                                  const attn_gradient_call *g, size_t *bytes);
    attn_status (*run_gradients)(const attn_backend *self, const attn_problem *problem,
                                 const attn_gradient_call *g, void *workspace,
                                 size_t workspace_bytes);
};

#define ATTN_KERNEL_ABI 8

/* src/api/explain.h - what attn_forward would do with a call, and why. */

/* What attn_forward would do with *p in a workspace of workspace_bytes, and why. */
typedef struct attn_info {
    int impl;                 /* attn_impl that runs: TILED or NAIVE */
    const char *impl_name;    /* "tiled", "naive" */
    const char *kernels_name; /* kernel set, e.g. "portable_fma" */
    const char *backend_name; /* "cpu" or the backend's */
    int tile_rows, tile_keys; /* query rows and keys of one tile */
    int workers;              /* that can run at once */
    int64_t items;            /* independent pieces of work: of the longest list where keys are
                                * divided, and those of logits */
    int key_parts;            /* into which the keys of a row tile are divided, so that few rows
                                * use all workers; 1 = not divided */
    size_t workspace_bytes, workspace_bytes_per_worker;
    double pairs;      /* visible by lengths, causal, window, chunked and prefix */
    double flops;      /* 2 * pairs * (head_dim + head_dim_v) */
    double bytes;      /* of q, k, v, o, lse, each touched once */
    char reasons[512]; /* why this path and not another, one sentence each, "; " between */
} attn_info;

/* Takes time in proportion to batch * seq_len_q where causal, window or chunked is on. */
ATTN_API attn_status attn_explain(const attn_params *p, attn_info *info);

/* src/api/options.h - for people: attn_info as lines, options of a command line. */

/* *info as readable lines; truncates; returns text. */
ATTN_API const char *attn_info_format(const attn_info *info, char *text, size_t text_bytes);

/* Overrides fields by name: "impl=naive kernels=portable workers=3 tile_keys=64 redo=1
 * naive_whole=1 auto_naive_keys=256", separated by spaces or commas. For command lines and
 * environment variables of the caller: the library reads no environment. On error *p is unchanged
 * and why (may be NULL) holds a sentence. */
ATTN_API attn_status attn_params_from_string(attn_params *p, const char *text, char *why,
                                             size_t why_bytes);

/* src/api/merge.h - results over parts of the keys become one. */

/* out = a + b for num_rows rows of head_dim_v values, the states of two parts of the keys, a the
 * lower one. out may be a or b. Canonical (same bits as in one call) when each part covers a node
 * of the tree of docs/canon.md: 1024 * 2^k keys, aligned in n, or the tail; else deterministic.
 * Sizes are taken from out. */
ATTN_API attn_status attn_state_merge(const attn_state *a, const attn_state *b, attn_state *out);

/* Writes p->o and p->lse from raw states (numbered as attn_forward with p->partial numbers them),
 * applying the sink and dropout's factor of *p. */
ATTN_API attn_status attn_state_finish(const attn_params *p, const attn_state *state);

/* Merges two finished results of the same rows over disjoint keys by their LSE:
 * f32, o [num_rows, head_dim_v], lse [num_rows]. At most one of them may have had a sink. Out may
 * be one of the inputs. Within a few ulp of one call, not bit-identical. Empty parts are the
 * identity. */
ATTN_API attn_status attn_lse_merge(int64_t num_rows, int64_t head_dim_v, const float *o_a,
                                    const float *lse_a, const float *o_b, const float *lse_b,
                                    float *o_out, float *lse_out);

/* src/api/rope.h - rotary position embedding (RoPE: Su et al. 2021, arXiv 2104.09864).
 *
 * Each pair (x1, x2) of a head's elements is turned by position * frequency:
 *
 *     y1 = c x1 - s x2        y2 = s x1 + c x2        c = cos, s = sin of the angle
 *
 * frequency of pair i: base^(-2i/dim), changed by `scaling`. Frequencies are integers in units of
 * 2^-64 turns, and so are angles: reduced to one turn exactly, the same on every machine, without
 * libm. Of cos and sin at random positions up to 2^20 all 76800 measured were the nearest float, up
 * to 2^24 all but 3 of 51200, up to 2^31 all but 138 of 25600: an angle is off by up to 5 * 2^-64
 * turns a position, over freq_factors[i] where that is below 1. (Programs that multiply a float
 * position by a float frequency, as most do, have angles wrong by up to 2^-23 of the angle; to get
 * their bits, give their tables.) The order of operations is in docs/canon.md.
 *
 * Turned elements hold no -0 and one NaN, as all outputs of the library; the others are bit-exact
 * copies if x and y have one type.
 *
 *     attn_rope rope = {0};                     // base 10000, half-split, all of head_dim
 *     attn_rope_rows rows = {0};
 *     rows.batch = 1;  rows.num_heads = 32;  rows.seq_len = n;  rows.head_dim = 128;
 *     rows.x.data = q;  rows.y.data = q;        // in place
 *     rows.first = &position;                   // of row 0
 *     attn_rope_apply(&rope, &rows, why, sizeof why);
 *
 * Memory, threads, strides: as in attn.h; nothing is allocated, every function may run in many
 * threads at once if outputs are distinct. Stack below 4 KiB.
 */

typedef enum attn_rope_scaling {
    ATTN_ROPE_NONE = 0,
    ATTN_ROPE_LINEAR = 1, /* every frequency / factor (Chen et al. 2023, arXiv 2306.15595) */
    ATTN_ROPE_NTK = 2,    /* base * factor^(dim / (dim - 2)) */
    ATTN_ROPE_YARN = 3,   /* Peng et al. 2023, arXiv 2309.00071 */
    ATTN_ROPE_LLAMA3 = 4  /* as in Llama 3.1: low frequencies / factor, high ones kept */
} attn_rope_scaling;

/* Set it to zero, then assign: zero is every field's default. */
typedef struct attn_rope {
    int64_t dim;     /* elements of a head that turn, the first ones; even, at most 2^24; 0 =
                      * head_dim. The others pass through */
    int interleaved; /* 0: pairs (i, i + dim/2), "half-split", NeoX; else (2i, 2i + 1), GPT-J */

    /* ---- angles, computed */
    float base;              /* above 1; 0 = 10000 */
    int scaling;             /* attn_rope_scaling */
    float factor;            /* of scaling, at least 1; 0 = 1. A field that means nothing with this
                              * scaling must be 0 or 1 (original_length: is not looked at) */
    int64_t original_length; /* positions the model was first trained on: needed by YARN, LLAMA3 */
    float beta_fast, beta_slow;              /* YARN, turns over the original length; 0 = 32, 1 */
    float low_freq_factor, high_freq_factor; /* LLAMA3; 0 = 1, 4 */
    float attention_factor;    /* multiplies cos and sin; 0 = 1, for YARN 0.1 ln(factor) + 1 */
    const float *freq_factors; /* [dim/2] frequency i / freq_factors[i], before scaling (as the
                                * factors of LongRoPE, or those stored in GGUF files); NULL = 1. At
                                * least 1e-6; with YARN and LLAMA3 0.16, since they compare
                                * frequencies, which must be below a turn a position */

    /* ---- or given: then nothing of the above but dim and interleaved counts */
    const float *cos, *sin; /* [num_positions, dim/2]; both or neither */
    int64_t num_positions;
    ptrdiff_t table_stride; /* between positions; 0 = dim/2 */
} attn_rope;

/* Rows to turn. Element (b, h, i, d) at data[b*stride_batch + h*stride_head + i*stride_seq + d];
 * strides 0 = packed [batch, num_heads, seq_len, head_dim]; x may be of any storage type, and y of
 * another. y may be x itself (same data, strides and type), and must else not overlap it. */
typedef struct attn_rope_rows {
    int64_t batch, num_heads, seq_len, head_dim;
    attn_tensor x;
    attn_output y;
    const int64_t *positions;   /* [batch, seq_len], from -2^31 to 2^31; NULL = first[b] + i */
    ptrdiff_t positions_stride; /* between batch entries; 0 = packed */
    const int64_t *first;       /* [batch] position of row 0; NULL = 0; not with positions */
} attn_rope_rows;

/* y = x turned. ATTN_ERR_ARG, ATTN_ERR_OVERFLOW with a sentence in why (may be NULL): nothing was
 * written. */
ATTN_API attn_status attn_rope_apply(const attn_rope *rope, const attn_rope_rows *rows, char *why,
                                     size_t why_bytes);

/* cos and sin of positions first .. first+count-1, [count, dim/2] each, as attn_rope_apply would
 * use them: a table for rope.cos and rope.sin, which saves their computation, and changes no bit.
 * head_dim as in attn_rope_rows, used where rope->dim is 0. */
ATTN_API attn_status attn_rope_table(const attn_rope *rope, int64_t head_dim, int64_t first,
                                     int64_t count, float *cos, float *sin, char *why,
                                     size_t why_bytes);

/* src/api/cache.h - caches of keys and values for generating text: contiguous, ring,
 * paged.
 *
 *     attn_cache c = {0};
 *     c.num_sequences = 1;  c.num_heads_kv = 8;  c.head_dim = 128;  c.capacity = 4096;
 *     size_t need;
 *     attn_cache_size(&c, &need, why, sizeof why);
 *     attn_cache_init(&c, malloc(need), need, why, sizeof why);
 *
 *     attn_cache_step s = {0};                       // new keys and values, a prompt or one token
 *     s.batch = 1;  s.seq_len = n;  s.k.data = k;  s.v.data = v;  s.rope = &rope;
 *     attn_cache_append(&c, &s, why, sizeof why);
 *
 *     attn_params p = {0};                           // attention over all that is cached
 *     attn_cache_view(&c, 0, NULL, 1, &p, NULL, 0, why, sizeof why);
 *     p.num_heads_q = 32;  p.seq_len_q = n;  p.causal = 1;  p.q.data = q;  p.o.data = o;
 *     attn_forward(&p, workspace, workspace_bytes);
 *
 * Numbers. Key number n of a sequence is its n-th since the sequence began, 0, 1, 2, ...; numbers
 *   begin .. end-1 are present. Rolling back and appending again gives the same numbers again. A
 *   view's key j is number begin + j, key_base is begin: so positions, masks and bits of a result
 *   are those of an uncut, unpaged, unwrapped sequence (docs/canon.md).
 * Rows. Number n lies in row n modulo `rows` of its sequence, rows = capacity (paged: rounded up to
 *   whole pages). Contiguous: rows of the sequence's own storage. Paged: slot row % page_size of
 *   page table[row / page_size]; pages are taken from a free list when keys are appended, given
 *   back by trim, counted when sequences share them, copied before a shared one is written.
 * Ring. With c.ring the oldest keys make room for new ones, and a query may look back at
 *   c.window_left keys. window_left + n rows take steps of n keys, and can roll back n.
 * Layers. All layers of a model share numbers, lengths and tables: attn_cache_extend once a step,
 *   then attn_cache_write and attn_cache_view for each layer. attn_cache_append is both for one.
 * Memory. None is allocated: attn_cache_size tells what attn_cache_init needs, with any alignment.
 *   Storage may be the caller's own instead: c.k.data and c.v.data set before. All of it stays in
 *   place as long as the cache or a view of it is used. Storage of K and of V, and what is written
 *   from (a step's k, v) and read to (attn_cache_read's), must not overlap. Stack below 4 KiB.
 * Threads. A function that takes a const attn_cache may run in many threads at once, one that does
 *   not needs the cache for itself. attn_cache_write needs its layer's rows of its sequences for
 *   itself: beside it may run writes, reads and attn_forward of other layers or other sequences.
 * Errors. A sentence in why (may be NULL), and nothing was changed, in the cache or anywhere.
 */

typedef enum attn_cache_layout {
    ATTN_CACHE_HND = 0, /* [sequence or page, head, row, dim] */
    ATTN_CACHE_NHD = 1  /* [sequence or page, row, head, dim] */
} attn_cache_layout;

/* Set it to zero, then assign the first part, then attn_cache_size and attn_cache_init. */
typedef struct attn_cache {
    /* ---- shape; not to be changed after attn_cache_init */
    int64_t num_sequences; /* > 0: that there is room for */
    int64_t num_layers;    /* 0 = 1 */
    int64_t num_heads_kv;  /* > 0 */
    int64_t head_dim;      /* > 0 */
    int64_t head_dim_v;    /* 0 = head_dim */
    int64_t capacity;      /* > 0: keys of a sequence, at most */
    int64_t page_size;     /* keys of a page, any number; 0 = not paged */
    int64_t num_pages;     /* paged: of all sequences; 0 = as many as they can need */
    int ring;              /* nonzero: the oldest keys make room for new ones */
    int64_t window_left;   /* ring: keys before its own that a query may see, below capacity; 0 =
                            * whatever is there: then results depend on what the ring still has */
    int layout;            /* attn_cache_layout, where strides are packed */
    attn_output k, v;      /* dtype: how keys and values are stored, chosen separately. data NULL:
                            * in the memory given to attn_cache_init; else the caller's storage of
                            * all layers. stride_batch: between sequences, paged: between pages.
                            * stride_seq: between rows. 0 = packed in `layout` */
    ptrdiff_t k_stride_layer, v_stride_layer; /* 0 = packed: [layer, ...] */

    /* ---- state, set by the functions below, to be read only */
    int64_t rows;               /* of a sequence */
    int64_t pages_per_sequence; /* entries of a sequence's table */
    int64_t *begin, *end;       /* [num_sequences] numbers present: begin .. end-1 */
    int64_t *overwritten_below; /* [num_sequences] numbers below it made room in the ring; those
                                 * that the caller had forgotten before do not count */
    int32_t *length;            /* [num_sequences] end - begin */
    int32_t *first_row;         /* [num_sequences] row of number begin */
    int32_t *table;             /* paged: [num_sequences, pages_per_sequence], -1 = none */
    int32_t *uses;              /* paged: [num_pages] sequences that have this page */
    int32_t *free_pages;        /* paged: [num_pages] the first num_free are free, last one next */
    int64_t num_free;
} attn_cache;

/* New keys and values. Set it to zero, then assign. */
typedef struct attn_cache_step {
    int64_t batch;             /* sequences that get some; 0 = nothing to do */
    const int32_t *sequences;  /* [batch] which, each at most once; NULL = 0, 1, ... */
    int64_t seq_len;           /* rows of k and v per batch entry; with cu_seqlens: rows in all */
    const int32_t *len;        /* [batch] rows in use, 0 allowed; NULL = all */
    const int32_t *cu_seqlens; /* [batch + 1] packed rows: entry b has rows cu[b] .. cu[b+1]-1 */
    attn_tensor k; /* [batch, num_heads_kv, seq_len, head_dim], with cu_seqlens [token, head, dim];
                    * f32, or as the cache stores them */
    attn_tensor v; /* [batch, num_heads_kv, seq_len, head_dim_v], likewise */
    const attn_rope *rope;    /* keys are stored turned to their position; NULL = as they are */
    const int64_t *positions; /* [batch, seq_len], with cu_seqlens [token]: for rope; NULL = each
                                * key's number */
} attn_cache_step;

/* Bytes that attn_cache_init needs for the shape in *c. */
ATTN_API attn_status attn_cache_size(const attn_cache *c, size_t *bytes, char *why,
                                     size_t why_bytes);

/* An empty cache of that shape, in memory that stays the caller's. Storage is not cleared. Refused,
 * as attn_cache_size is, for a cache that is ready: set *c to zero and assign again. */
ATTN_API attn_status attn_cache_init(attn_cache *c, void *memory, size_t bytes, char *why,
                                     size_t why_bytes);

/* Makes room for the keys of *s (k, v, rope, positions are not looked at): ends advance, pages are
 * taken and shared ones copied, a ring loses its oldest. ATTN_ERR_FULL if capacity or pages do not
 * suffice for all of them, or if a ring would lose what the step's first query looks at: a step has
 * at most rows - window_left keys of a sequence. */
ATTN_API attn_status attn_cache_extend(attn_cache *c, const attn_cache_step *s, char *why,
                                       size_t why_bytes);

/* Stores one layer's k and v of the same *s that the cache was extended by last. If it fails, the
 * new numbers are there all the same, with anything in their rows: attn_cache_trim takes them back,
 * which a ring always allows. */
ATTN_API attn_status attn_cache_write(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                                      char *why, size_t why_bytes);

/* Both, for a cache of one layer. */
ATTN_API attn_status attn_cache_append(attn_cache *c, const attn_cache_step *s, char *why,
                                       size_t why_bytes);

/* Keeps of a sequence only numbers begin .. end-1, which must be present: the next key gets number
 * end. Rolls back (end), forgets the oldest (begin), and empties, (begin, begin); (0, 0) is always
 * allowed and starts afresh. A ring refuses to go back where a query at `end` would look at keys
 * that were overwritten. Not at keys that were forgotten: a begin above the one that there was
 * forgets all below it, those overwritten included, and so does emptying. Pages without a key are
 * given back. */
ATTN_API attn_status attn_cache_trim(attn_cache *c, int64_t sequence, int64_t begin, int64_t end,
                                     char *why, size_t why_bytes);

/* The empty sequence `to` begins as sequence `from` up to number end-1: paged, by sharing its
 * pages; else by a copy of its rows. */
ATTN_API attn_status attn_cache_fork(attn_cache *c, int64_t from, int64_t to, int64_t end,
                                     char *why, size_t why_bytes);

/* Bytes that attn_cache_view needs for `batch` chosen sequences. */
ATTN_API attn_status attn_cache_view_size(const attn_cache *c, int64_t batch, size_t *bytes,
                                          char *why, size_t why_bytes);

/* Sets those fields of *p that say what is cached: batch, num_heads_kv, seq_len_kv (= rows: with
 * kv_len = NULL attn_workspace_size then tells what serves for good), head_dim, head_dim_v, k, v,
 * kv_len, key_base, kv_rows, kv_begin and cu_seqlens_kv (NULL); shared_keys (of a paged cache the
 * keys in pages with which all entries begin, else 0: set it afterwards if you know of more); of a
 * ring the window, if off, and else its left side must not exceed c->window_left. Entry b is
 * sequences[b], in any order, NULL = 0, 1, ..., which needs no memory; else the arrays lie in
 * memory, of any alignment. They are those of the cache at this moment: take a new view after
 * every change. Begin each view with *p set to zero: a ring's window stays in it. Columns of bias,
 * masks and segments, prefix and q_offset count from the first key that is present; p->seq_len_kv,
 * the number of columns, may be lowered, not below the largest kv_len. With a ring only the rows
 * of the last step, at most rows - window_left, are sure to find all their keys. */
ATTN_API attn_status attn_cache_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                                     int64_t batch, attn_params *p, void *memory, size_t bytes,
                                     char *why, size_t why_bytes);

/* Copies keys and values of numbers first .. first+count-1 of a sequence, [num_heads_kv, count,
 * dim], to k and v (stride_batch is not used), as f32 or as stored. k or v NULL, or its data: not
 * wanted. */
ATTN_API attn_status attn_cache_read(const attn_cache *c, int64_t layer, int64_t sequence,
                                     int64_t first, int64_t count, const attn_output *k,
                                     const attn_output *v, char *why, size_t why_bytes);

/* src/api/backward.h - gradients of attn_forward, for training.
 *
 * Set p.lse.data before attn_forward and its workspace query, and keep p, o and lse. Then:
 *
 *     attn_gradients g = {0};                                // zero is every field's default
 *     g.dout.data = dout;                                    // like o: gradient of the loss by o
 *     g.dq.data = dq;  g.dk.data = dk;  g.dv.data = dv;      // like q, k, v
 *     size_t back;
 *     void *wb = attn_backward_workspace_size(&p, &g, &back) == ATTN_OK ? malloc(back) : NULL;
 *     if (attn_backward(&p, &g, wb, back) != ATTN_OK)
 *         puts(attn_backward_check(&p, &g, wb, back, text, sizeof text));     // char text[200];
 *     free(wb);
 *
 * Method. Probabilities are computed again from the LSE, tile by tile (Dao et al. 2022, arXiv
 *   2205.14135, algorithm 4): memory grows with the sequence length, never with its square. With
 *   S = final logits, P = exp(S - LSE), delta = rowsum(dout * o) - dlse:
 *
 *     dV = P^T dout   dP = dout V^T   dS = P * (dP - delta)   dQ = scale dS K   dK = scale dS^T Q
 *
 *   dS passes the derivative of the score callback before dbias and dslopes are taken from it, and
 *   then that of softcap. With dropout, dP and the P of dV take the factor keep / (1 - dropout_p).
 * What may be set in p. Everything but partial and kv_rows, that is caches. logits are not used,
 *   though refused where attn_forward refuses them. p.backend runs what it takes, the CPU the rest:
 *   attn_backward_explain says why. p.impl =
 *   ATTN_IMPL_NAIVE is the textbook, which materialises P and dS of a head and reads neither o nor
 *   lse (one output of the forward call must be set all the same). Where k or v is broadcast along
 *   an axis, dk and dv have that axis all the same: its sum is yours.
 * What is written. Every element of dq, dk, dv of rows and keys in use (q_len, kv_len, kv_begin);
 *   all of dbias, dsinks, dslopes. Rows and keys that see nothing get +0. Never -0.
 * Accuracy. Probabilities inherit the rounding of the LSE, which is f32: a relative error of
 *   about |LSE| 2^-24, 3e-5 at logits of 500, enters every gradient.
 * Cost. Five matrix products where the forward call has two. dbias and dslopes that are sums
 *   compute S and dP once more each.
 * Masked data. A key that a mask hides from a row does not show in that row's dq, nor the row in
 *   the key's dk and dv, NaN and Inf included.
 * Determinism. Tiled, the same bits on every CPU, for any number of threads and both values of
 *   g.gemms: docs/canon.md, "Gradients". Sums over the batch (dbias, dsinks, dslopes) go in its
 *   order.
 * Memory. The caller's workspace, any alignment and content. Stack below 4 KiB.
 * Threads. As attn_forward: p.parallel_for, p.num_workers, else OpenMP if compiled with it.
 * Aliasing. No output may overlap an input, another output or the workspace.
 * Errors. A status and, from attn_backward_check, a sentence. After an error other than
 *   ATTN_ERR_CALLBACK nothing was written.
 */

/* Derivative of p.score by the logit, at the logit that p.score was given. Called on workers, may
 * overlap, must be pure: one pair may be asked for several times. Gets p.callback_user. */
typedef float (*attn_score_derivative_fn)(void *user, const attn_pair *at, float logit);

/* Gradient of the bias, f32. An axis along which p.bias has stride 0 is summed over, and has length
 * 1 here (its stride is not used); the others are those of the bias: batch, num_heads_q, seq_len_q,
 * seq_len_kv; with cu_seqlens, where rows and columns start at 0 in each sequence, those of the
 * longest one. */
typedef struct attn_bias_gradient {
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv; /* 0 = packed */
    float *data;                                              /* NULL = not wanted */
} attn_bias_gradient;

/* What goes in beside p, and what comes out. Set it to zero, then assign. */
typedef struct attn_gradients {
    int gemms; /* matrix products for a tile: 5 (work divided by batch and kv head) or 7 (by rows
                * and by keys, S and dP twice); 0 = what lets the workers end first */

    /* ---- in */
    attn_tensor dout; /* [batch, num_heads_q, seq_len_q, head_dim_v] gradient of the loss by o */
    attn_tensor dlse; /* f32, shape and packing of p.lse: gradient by lse; data NULL = 0 */
    attn_score_derivative_fn score_derivative; /* with p.score */

    /* ---- out; data NULL = not wanted. Any storage type, packed as q, k, v are */
    attn_output dq; /* [batch, num_heads_q,  seq_len_q,  head_dim] */
    attn_output dk; /* [batch, num_heads_kv, seq_len_kv, head_dim], summed over the group's heads */
    attn_output dv; /* [batch, num_heads_kv, seq_len_kv, head_dim_v], likewise */
    attn_bias_gradient dbias;
    float *dsinks;  /* [num_heads_q], with p.sinks: summed over the batch */
    float *dslopes; /* gradient of p.alibi_slopes, packed: [num_heads_q] summed over the batch, or
                     * with p.alibi_stride [batch, num_heads_q] */
} attn_gradients;

/* Bytes of workspace that are best (pointers to data are not read, lengths and offsets are); less
 * works, too, with fewer workers, down to what one needs. */
ATTN_API attn_status attn_backward_workspace_size(const attn_params *p, const attn_gradients *g,
                                                  size_t *bytes);

/* The gradients that g asks for. Reads q, k, v, o, lse, dout, dlse and the arrays of p. */
ATTN_API attn_status attn_backward(const attn_params *p, const attn_gradients *g, void *workspace,
                                   size_t workspace_bytes);

/* Says in one English sentence what is wrong, or "ok"; otherwise as attn_check. */
ATTN_API const char *attn_backward_check(const attn_params *p, const attn_gradients *g,
                                         const void *workspace, size_t workspace_bytes, char *text,
                                         size_t text_bytes);

/* What attn_backward would do. */
typedef struct attn_backward_info {
    int impl;  /* attn_impl that runs: TILED or NAIVE */
    int gemms; /* 5 or 7 */
    const char *kernels_name;
    const char *backend_name; /* "cpu" or the backend's */
    int tile_rows, tile_keys;
    int workers; /* that can run at once */
    size_t workspace_bytes, workspace_bytes_per_worker;
    double flops;      /* of the five products, visible pairs only; sums for dbias and
                                * dslopes, and what 7 computes twice, do not count */
    char reasons[200]; /* what p.backend says; "" without one */
} attn_backward_info;

ATTN_API attn_status attn_backward_explain(const attn_params *p, const attn_gradients *g,
                                           attn_backward_info *info);

/* ---- for authors of backends */

/* The axes of attn_sum_axes. */
enum { ATTN_AXIS_BATCH, ATTN_AXIS_HEAD, ATTN_AXIS_ROW, ATTN_AXIS_KEY };

/* An array of gradients that are summed over axes: element (b, h, i, column) of an array in which a
 * summed axis has stride 0. An axis of length 1 is not summed. */
typedef struct attn_sum_axes {
    float *data;
    int64_t count[4];
    ptrdiff_t stride[4];
    int kept[4];
} attn_sum_axes;

/* The gradients that a backend is asked for. */
struct attn_gradient_call {
    attn_gradients g;           /* strides are resolved */
    attn_sum_axes bias, slopes; /* where dbias and dslopes go */
};

/* src/api/resume.h - attention in steps, over keys that come tile by tile: from a file,
 * flash, a network, a decompressor.
 *
 *     int fetch(void *user, const attn_fetch *tile) { ... }    // fills tile->k and tile->v
 *
 *     attn_resumable r;
 *     size_t need;
 *     attn_resume_memory(&p, 0, &need);                        // p as for attn_forward, k and v
 *                                                              // without data
 *     attn_status status = attn_resume_begin(&r, &p, 0, fetch, file, malloc(need), need);
 *     while (status == ATTN_OK && r.done < r.total)
 *         status = attn_resume_step(&r, 16);                   // 16 tiles, then something else
 *     if (status == ATTN_OK)
 *         status = attn_resume_end(&r);                        // writes o and lse
 *
 * Memory. One tile of K and V, the states of the rows and a workspace of attn_forward, all in the
 *   caller's block: it does not depend on the number of keys but for one state of each row of a
 *   batch entry more whenever that doubles. A million keys of 8 heads of 64 and one row: under
 *   1 MiB.
 * Bits. Those of attn_forward with all keys in memory, whatever the sizes of tiles and steps.
 * Order. Batch entries one after the other, of each its keys in ascending order, tiles that end
 *   where n(j) is a multiple of tile_keys. Tiles that lengths, causal, window, chunked and prefix
 *   hide from every row are not fetched.
 * What may be set in p. Everything but partial, logits, cu_seqlens, kv_rows, part.keys and impl
 *   naive; every mask, modifier and callback sees the whole call. k and v give their storage types;
 *   their data and strides are not used. shared_keys and backend change nothing.
 * Errors. A status, and a sentence from attn_resume_check. Nothing is written to o and lse before
 *   attn_resume_end. A fetch that fails ends its step with ATTN_ERR_CALLBACK and leaves everything
 *   as it was before that tile: the next step asks for the same tile again, or give up. After a
 *   failure of parallel_for there is no going on: every later call returns ATTN_ERR_CALLBACK.
 * Threads. p.parallel_for and p.num_workers work within a tile, by heads and rows; fetch is called
 *   by the thread that calls attn_resume_step. Several resumables may be under way at once.
 */

/* Keys that are wanted: `count` of one batch entry and kv head, from column `first` on. */
typedef struct attn_fetch {
    int64_t batch, kv_head;
    int64_t first, count;
    void *k; /* to be filled: count * head_dim elements of p.k.dtype, row after row */
    void *v; /* likewise with head_dim_v, of p.v.dtype */
} attn_fetch;

/* Returns 0, or nonzero when the keys cannot be had. */
typedef int (*attn_fetch_fn)(void *user, const attn_fetch *tile);

/* A call under way. Of its fields only the first three are the caller's business. */
typedef struct attn_resumable {
    int64_t done, total; /* tiles: of one batch entry and all its kv heads */
    int64_t fetched;     /* keys times kv heads that fetch has delivered */

    attn_params p;    /* as given: arrays that it points to must last until the end */
    attn_params tile; /* the call of one tile */
    attn_fetch_fn fetch;
    void *user;
    attn_status status; /* that every later call returns: there is no going on */
    int32_t *q_len;     /* of the tile's call: rows of the entry under way, else 0 */
    char *k, *v;        /* its keys */
    int64_t tile_keys, kv_heads, head_dim, head_dim_v;
    int64_t entry;      /* batch entry under way, */
    int64_t next, end;  /* its next key and the one behind its last */
    int64_t entry_rows; /* states of a batch entry */
    attn_state states;  /* of all rows: of the chunk under way, and of entries that are done */
    float *pending;     /* nodes of the merge tree of the entry under way */
    unsigned char slot_of[64]; /* 1 + the slot where the node of this level waits; 0 = none */
    void *workspace;
    size_t workspace_bytes;
} attn_resumable;

/* Bytes of memory that are best; less serves, too, with a smaller workspace of attn_forward, down
 * to what it needs. tile_keys: 16, 32, ... 1024 keys a tile; 0 = as many, up to 128, as keep K and
 * V within 256 KiB. p: k.data and v.data are not looked at. */
ATTN_API attn_status attn_resume_memory(const attn_params *p, int64_t tile_keys, size_t *bytes);

/* Starts a call in `memory`, which must last until the end and may have any alignment. */
ATTN_API attn_status attn_resume_begin(attn_resumable *r, const attn_params *p, int64_t tile_keys,
                                       attn_fetch_fn fetch, void *user, void *memory,
                                       size_t memory_bytes);

/* Fetches and takes in up to `tiles` tiles. r->done == r->total: there are no more. */
ATTN_API attn_status attn_resume_step(attn_resumable *r, int64_t tiles);

/* Writes o and lse. ATTN_ERR_ARG before the last tile: nothing is written, go on. */
ATTN_API attn_status attn_resume_end(attn_resumable *r);

/* What is wrong with the arguments of attn_resume_begin, in one English sentence, or "ok". Writes
 * at most text_bytes bytes including the terminator and returns text (or a constant string when
 * text is NULL or text_bytes is 0). */
ATTN_API const char *attn_resume_check(const attn_params *p, int64_t tile_keys, attn_fetch_fn fetch,
                                       const void *memory, size_t memory_bytes, char *text,
                                       size_t text_bytes);

/* src/api/patterns.h - block-sparse patterns of cells.
 *
 * A pattern fills p.block_mask: which cells of keys a cell of rows sees. It is built once, into
 * memory of the caller's, and serves any number of calls, attn_backward too:
 *
 *     attn_pattern t = attn_pattern_bigbird(3, 1, 3, 1234);  // or {0} and fields of your own
 *     t.seq_len_q = t.seq_len_kv = 16384;  t.causal = 1;
 *     attn_pattern_info info;                                // sizes and density
 *     attn_pattern_measure(&t, &info, why, sizeof why);
 *     int32_t *offsets = malloc(info.num_offsets * 4), *columns = malloc(info.num_columns * 4);
 *     attn_pattern_build(&t, offsets, info.num_offsets, columns, info.num_columns, NULL, 0);
 *     attn_pattern_use(&t, offsets, columns, &p);            // and p.causal = 1
 *
 * Memory, threads and errors are as in the conventions at the top: nothing allocates, and after an
 * error nothing was written.
 */

/* Which cells are visible: the union of the parts below; all 0 = none. Set it to zero, then assign.
 * Cell (r, c) is rows r*block_q .. and keys c*block_k ..; the last ones may be shorter. Rows stand
 * at the end of the keys, as ATTN_ALIGN_BOTTOM_RIGHT has them, and the diagonal of row r is every
 * column that holds a key at the position of one of its rows. */
typedef struct attn_pattern {
    int causal; /* nonzero: columns after the diagonal are left out of every part;
                                  * p.causal hides what is left of the future within a cell */
    int64_t seq_len_q, seq_len_kv;
    int64_t block_q, block_k; /* rows and keys of a cell; 0 = 64 */
    int64_t num_heads;        /* a pattern for each of so many query heads: they differ in
                                  * `random` alone; 0 = one for all */
    int local;                /* nonzero: the diagonal, */
    int64_t local_before;     /* so many columns before it */
    int64_t local_after;      /* and after it */
    int64_t global_columns;   /* the first columns, seen by every row */
    int64_t global_rows;      /* the first rows, which see every column */
    int64_t stride;           /* columns at a multiple of it from the diagonal, and that itself
                                  * ("strided" of Child et al. 2019, arXiv 1904.10509); 0 = off */
    int64_t fixed;            /* columns c with c mod fixed = fixed - 1 ("fixed"); 0 = off */
    int64_t random;           /* so many cells of a row more, distinct, or all there are; drawn
                                  * from those that no other part shows, by a hash of seed, head,
                                  * row and column: the same everywhere */
    uint64_t seed;
} attn_pattern;

/* local + global: Longformer (Beltagy et al. 2020, arXiv 2004.05150). */
ATTN_API attn_pattern attn_pattern_longformer(int64_t each_side, int64_t global);
/* local + strided: Sparse Transformer (Child et al. 2019); both of `stride` columns. */
ATTN_API attn_pattern attn_pattern_strided(int64_t stride);
/* The diagonal and `count` random cells of each row. */
ATTN_API attn_pattern attn_pattern_random(int64_t count, uint64_t seed);
/* local of `window` columns in all, global rows and columns, random: BigBird (Zaheer et al. 2020,
 * arXiv 2007.14062), which takes 3, 2 and 3 cells of 64. */
ATTN_API attn_pattern attn_pattern_bigbird(int64_t window, int64_t global, int64_t random,
                                           uint64_t seed);

typedef struct attn_pattern_info {
    int heads;             /* patterns: num_heads, or 1 */
    int64_t rows, columns; /* of cells */
    int64_t num_offsets;   /* entries of row_offsets: heads * (rows + 1) */
    int64_t num_columns;   /* entries of columns: visible cells of all heads */
    double density;        /* visible cells / all cells */
} attn_pattern_info;

/* The sizes of a pattern, exactly. Time as for building it: in proportion to the number of cells.
 * why (may be NULL): a sentence on error. */
ATTN_API attn_status attn_pattern_measure(const attn_pattern *t, attn_pattern_info *info, char *why,
                                          size_t why_bytes);

/* Writes the CSR form that attn_block_mask describes: head h's offsets begin at h * (rows + 1).
 * num_offsets, num_columns: room; on error nothing is written. */
ATTN_API attn_status attn_pattern_build(const attn_pattern *t, int32_t *row_offsets,
                                        int64_t num_offsets, int32_t *columns, int64_t num_columns,
                                        char *why, size_t why_bytes);

/* Sets p->block_mask, nothing else: p.causal stays the caller's. Set the sizes of *p before:
 * ATTN_ERR_ARG, and nothing is set, where seq_len_q or seq_len_kv is not that of *t, or num_heads_q
 * is not num_heads of a pattern for each head. */
ATTN_API attn_status attn_pattern_use(const attn_pattern *t, const int32_t *row_offsets,
                                      const int32_t *columns, attn_params *p);

/* src/api/dilated.h - dilated attention (LongNet, Ding et al. 2023, arXiv 2307.02486).
 *
 * Every branch cuts the sequence into segments and takes every r-th position of each; their results
 * become one.
 *
 *     attn_dilated_branch branches[3] = {0};
 *     branches[0].segment = 2048;   branches[0].dilation = 1;
 *     branches[1].segment = 8192;   branches[1].dilation = 4;   branches[1].rotate = 1;
 *     branches[2].segment = 32768;  branches[2].dilation = 16;  branches[2].rotate = 1;
 *     attn_dilated d = {0};
 *     d.num_branches = 3;  d.branches = branches;
 *     size_t need;
 *     attn_dilated_workspace_size(&p, &d, &need);            // p as for attn_forward
 *     attn_dilated_forward(&p, &d, workspace, need);
 *
 * Memory, threads, errors, strides and aliasing are as in the conventions at the top: nothing
 * allocates, and after an error nothing was written. Stack below 5 KiB in every build measured
 * (tests/stack.sh).
 */

/* ---------------------------------------------------------------------------------------------
 * 2  Dilated attention
 *
 * Positions. A sequence has kv_len positions, keys all of them; the q_len rows are the last ones:
 *   all positions in training and prefill, a chunk of a prompt, or one token (decoding). Rows of a
 *   chunk have the bits of those rows in one call.
 * Branches. Segment s of a branch is positions s*w .. s*w + w-1, the last may be shorter; positions
 *   s*w + offset, then every r-th, take part in it, as rows and as keys, and see only each other.
 *   A branch counts them: causal, window and ALiBi compare these numbers, n(j) of docs/canon.md is
 *   the number of a key in its segment. Bias and bool_mask have the caller's rows and keys.
 * Merging. ATTN_DILATED_LSE weighs branches by the denominators of their softmax: one softmax over
 *   the keys of all of them, a key counted once for each branch that shows it to the row. The bits
 *   are those of docs/canon.md: the branches' root states, merged in list order, then the sink.
 *   ATTN_DILATED_MEAN gives each its own softmax and takes the mean over the branches of the head,
 *   of which those that leave the row out give 0. Without lse, sinks and softmax1.
 * Rows that no branch takes are empty: O = +0, LSE = -inf (with a sink: the sink).
 * Variants. Strided reads q, k and v where they lie and needs memory for a block of rows. Gathered,
 *   the plain one, copies what takes part and merges finished results by attn_lse_merge: memory in
 *   proportion to the length; within a few ulp of the other, in a mean bit for bit.
 * What may be set in p. Sizes (any grouping of heads), tensors with any strides and storage types,
 *   o, lse, q_len, kv_len, cu_seqlens, scale, causal, window, softcap, bias, bool_mask, ALiBi,
 *   sinks, softmax1, and how to compute but backend. Everything else is refused with a sentence.
 * Threads. An item is a block of rows of the heads that share a kv head, with one worker.
 * ------------------------------------------------------------------------------------------ */

typedef enum attn_dilated_merge {
    ATTN_DILATED_LSE = 0, /* weights by the denominators of softmax */
    ATTN_DILATED_MEAN = 1 /* the mean over branches */
} attn_dilated_merge;

typedef enum attn_dilated_variant {
    ATTN_DILATED_STRIDED = 0, /* in place */
    ATTN_DILATED_GATHERED = 1 /* on copies */
} attn_dilated_variant;

typedef struct attn_dilated_branch {
    int rotate;         /* nonzero: query head h begins at position (offset + h) mod dilation of a
                         * segment, as LongNet has it; 0: every head at offset */
    int64_t segment;    /* w, positions of a segment; 0 = one segment, the whole sequence */
    int64_t dilation;   /* r; 0 = 1, every position */
    int64_t offset;     /* 0 to dilation - 1 */
    int64_t head_begin; /* query heads that have this branch: head_count from head_begin on; */
    int64_t head_count; /* 0 = all from there on */
} attn_dilated_branch;

/* Set it to zero, then assign. */
typedef struct attn_dilated {
    int merge;        /* attn_dilated_merge */
    int variant;      /* attn_dilated_variant; of the forward call */
    int num_branches; /* at least 1 */
    const attn_dilated_branch *branches;
    int64_t block_rows; /* strided: rows of an item; 0 = chosen. No bit depends on it */
    /* Gathered: positions that take part, from attn_dilated_index, computed once for many calls
     * with the same branches. NULL = computed in each call */
    const int32_t *index;
    int64_t index_positions; /* seq_len_kv it was made for, at least that of the call (with
                              * cu_seqlens: of its longest sequence) */
} attn_dilated;

/* Bytes of workspace that are best; less works, too, with fewer workers, down to what one needs.
 * Asked for with the largest seq_len_q and seq_len_kv it serves shorter calls that differ in
 * nothing else (but where impl = AUTO changes to NAIVE). */
ATTN_API attn_status attn_dilated_workspace_size(const attn_params *p, const attn_dilated *d,
                                                 size_t *bytes);

/* Writes o and lse. */
ATTN_API attn_status attn_dilated_forward(const attn_params *p, const attn_dilated *d,
                                          void *workspace, size_t workspace_bytes);

/* Says in one English sentence what is wrong, or "ok"; otherwise as attn_check. */
ATTN_API const char *attn_dilated_check(const attn_params *p, const attn_dilated *d,
                                        const void *workspace, size_t workspace_bytes, char *text,
                                        size_t text_bytes);

/* Entries of d->index for sequences of up to `positions` positions; 0 if *d is wrong, see
 * attn_dilated_check. */
ATTN_API int64_t attn_dilated_index_size(const attn_dilated *d, int64_t positions);

/* Writes it: for each branch and each first position of its heads, ascending, the positions that
 * take part. */
ATTN_API attn_status attn_dilated_index(const attn_dilated *d, int64_t positions, int32_t *index,
                                        int64_t entries);

/* Gradients: as attn_backward, of the call that attn_dilated_forward made of the same p and d. With
 * ATTN_DILATED_LSE it reads the o and lse of that call, which must have had both; with a mean
 * neither, though p.o must be set all the same. g may ask for dq, dk, dv and dsinks, and give dlse;
 * dbias and dslopes are refused. Branches add up in list order in f32: deterministic for any number
 * of workers. p.impl is tiled, or with a mean any. An item is a kv head of a batch entry, in
 * strides whatever d->variant says; its memory is in proportion to the length. */
ATTN_API attn_status attn_dilated_backward_workspace_size(const attn_params *p,
                                                          const attn_dilated *d,
                                                          const attn_gradients *g, size_t *bytes);

ATTN_API attn_status attn_dilated_backward(const attn_params *p, const attn_dilated *d,
                                           const attn_gradients *g, void *workspace,
                                           size_t workspace_bytes);

ATTN_API const char *attn_dilated_backward_check(const attn_params *p, const attn_dilated *d,
                                                 const attn_gradients *g, const void *workspace,
                                                 size_t workspace_bytes, char *text,
                                                 size_t text_bytes);

/* src/api/ring.h - context parallelism: one sequence over many ranks.
 *
 * Each rank (a process, a machine, a thread) holds some positions of a sequence: those rows of q
 * and o, those keys of k and v. Keys and values travel round the ring, from rank r to rank r + 1,
 * while each rank computes with those that it has (Ring Attention: Liu, Zaharia, Abbeel 2023, arXiv
 * 2310.01889). How ranks talk is the caller's: four callbacks, e.g. those of attn_mpi.h.
 *
 *     attn_ring ring = {0};                       // zero is every field's default
 *     ring.transport = &transport;                // attn_mpi.h fills one in
 *     ring.layout = ATTN_RING_ZIGZAG;             // causal: every rank has the same work
 *     attn_ring_ranges(&p, &ring, rank, ranges, most, &count);    // the positions of this rank
 *     p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;  // hold those only
 *     attn_ring_workspace_size(&p, &ring, &need);
 *     if (attn_ring_forward(&p, &ring, workspace, need) != ATTN_OK)        // on every rank
 *         puts(attn_ring_check(&p, &ring, workspace, need, text, sizeof text));
 *
 * The call. *p describes the whole problem, the same on every rank: sizes, lengths, masks, bias,
 *   per-token arrays. Only q, k, v, o, lse (and dout, dlse, dq, dk, dv) hold the rank's own
 *   positions, its ranges one after the other, in any strides; 0 = packed by the rank's length.
 *   Rows and keys are cut alike: seq_len_q = seq_len_kv. Documents of one sequence are told apart
 *   by q_segments and kv_segments. Not with cu_seqlens, kv_rows, partial, part, logits, naive.
 * Bits. A layout that cuts the sequence only where n is a multiple of 1024 is canonical: O and LSE
 *   have the bits of one process, in whatever order keys arrive, as states are merged along the
 *   tree of docs/canon.md; so has ring.gather. Other layouts are deterministic for that layout and
 *   number of ranks, within the same error bounds; info.canonical tells. So are gradients: they are
 *   not those of one process bit for bit.
 * Balance. Causal, rank 0 of a contiguous layout sees least and the last rank most. ZIGZAG gives
 *   each rank a run from the beginning and one from the end (as the training of Llama 3 does),
 *   STRIPED deals shards round robin (Brandon et al. 2023, arXiv 2311.09431). Both need several
 *   shards a rank: make ring.shard smaller where the sequence has fewer than 2 * size * 1024
 *   positions (in the others there are ranks with little or nothing) and balance matters more than
 *   bits; but each pair of a range of rows and a range of keys is a call, so that many short shards
 *   cost more than they balance. Parts that the masks by range (causal, window,
 *   chunked, lengths) leave empty are skipped; stats->pairs counts the rest.
 * Memory. The caller's workspace, any alignment and content: two shards of keys and values (in
 *   their storage type), raw states of the rank's rows, head_dim_v + 2 floats each, and what a call
 *   needs. With one shard of 1024 * 2^k keys a rank, and R ranks, a row has at most 2 log2(R)
 *   states at once. Several shards a rank wait for their neighbours: as many states more.
 *   ring.arrival merges in the order of arrival: two states, not canonical. ring.gather collects
 *   all keys and values first: one state, and memory for the whole of k and v. Backward: two shards
 *   with their gradients (f32), a shard of gradients, dq (f32), and those of a part.
 * Overlap. The exchange of the next shard begins before the present one is computed with, and is
 *   waited for after that.
 * Errors. All ranks agree on the status before anything is sent, with every exchange and before the
 *   outputs are written: what fails on one rank, its arguments, workspace, fetch, parallel_for or
 *   transport, is returned by all of them, and o, lse, dq, dk, dv are untouched on all of them.
 *   stats->failed_rank tells whose it is. Where ranks differ in a number, a length, a layout,
 *   sinks, slopes or in which arrays are given, that is ATTN_ERR_ARG on all of them. Only a rank
 *   without a usable transport returns alone.
 * Threads. As attn_forward, within a rank; transports may start their own.
 * Stack. Below 6 KiB in every build measured (tests/stack.sh).
 */

/* How a rank reaches the others. Every callback gets `user` first; but for `seconds` every rank
 * calls them in the same order. None is called from two threads at once. */
typedef struct attn_transport {
    int size, rank; /* ranks, 1 to 4096; this one, from 0 on */
    void *user;
    /* The largest `value` of all ranks, which are 0 or more, on every rank; below 0 = it failed. */
    int (*agree)(void *user, int value);
    /* Begins to send to rank + 1 and to receive from rank - 1, around the ring; either may be 0
     * bytes. It may start at once, or wait for the agree that always follows and only start if that
     * gives 0. Nonzero: it failed and has begun nothing. */
    int (*begin)(void *user, const void *send, size_t send_bytes, void *receive,
                 size_t receive_bytes);
    /* Waits until what was begun is there and sent. Nonzero: it failed; then, too, the other ranks'
     * must return. */
    int (*end)(void *user);
    /* Gives up what was begun, instead of `end`, where agree tells of a failure elsewhere: after it
     * nothing of it is read or written any more, and nothing of it reaches a later exchange. */
    void (*cancel)(void *user);
    double (*seconds)(void *user); /* a clock, for the statistics; NULL = none */
} attn_transport;

typedef enum attn_ring_layout {
    ATTN_RING_CONTIGUOUS = 0, /* rank r: the r-th of R runs of whole shards */
    ATTN_RING_ZIGZAG = 1,     /* 2 R runs; rank r: numbers r and 2 R - 1 - r */
    ATTN_RING_STRIPED = 2,    /* rank r: shards r, r + R, r + 2 R, ... */
    ATTN_RING_CUSTOM = 3      /* ring.ranges */
} attn_ring_layout;

/* Positions begin .. begin + count - 1. */
typedef struct attn_ring_range {
    int64_t begin, count;
} attn_ring_range;

/* Gives the rank's own keys and values instead of p.k.data and p.v.data, packed [batch,
 * num_heads_kv, length, head_dim] and [..., head_dim_v], in p.k.dtype and p.v.dtype: from a file, a
 * decompressor. Nonzero: it failed. */
typedef int (*attn_ring_fetch_fn)(void *user, void *k, void *v);

/* What one call did on this rank. */
typedef struct attn_ring_stats {
    int failed_rank; /* whose status is returned; -1 = none failed, or parameters differ */
    int canonical;   /* the result has the bits of one process */
    int max_pending; /* states that a row had at once, the newest included */
    int64_t exchanges;
    double bytes_sent, bytes_received;
    double seconds;         /* in callbacks of the transport, by its clock */
    double pairs;           /* of query and key, all heads, that parts not skipped may see */
    int64_t calls, skipped; /* parts that were computed; that masks leave empty */
} attn_ring_stats;

/* How the call is divided. Set it to zero, then assign. The same on every rank, but for
 * transport's rank and user, fetch and stats. */
typedef struct attn_ring {
    int layout;    /* attn_ring_layout */
    int gather;    /* nonzero: all keys come to every rank first, then one call (forward only) */
    int arrival;   /* nonzero: states are merged in the order of arrival: fewer, not canonical */
    int64_t shard; /* positions: runs are cut at its multiples; 0 = 1024. Not for CUSTOM */
    const attn_ring_range *ranges; /* CUSTOM: those of rank 0, then those of rank 1, ...; each
                                    * rank's ascending; together every position once */
    const int64_t *first_range;    /* CUSTOM: [size + 1] rank r has ranges[first_range[r]] to
                                    * ranges[first_range[r + 1] - 1] */
    const attn_transport *transport;
    attn_ring_fetch_fn fetch; /* NULL = p.k.data and p.v.data */
    void *fetch_user;
    attn_ring_stats *stats; /* NULL = not wanted */
} attn_ring;

/* What a rank holds. */
typedef struct attn_ring_info {
    int canonical;   /* the layout keeps the bits of one process */
    int64_t length;  /* positions of this rank */
    int64_t ranges;  /* so many ranges */
    int64_t longest; /* the largest length of any rank */
} attn_ring_info;

/* What rank `rank` holds; of the transport only size is read. */
ATTN_API attn_status attn_ring_describe(const attn_params *p, const attn_ring *ring, int rank,
                                        attn_ring_info *info);

/* The ranges of rank `rank`, ascending, none empty, none adjoining: at most `most` of them to
 * `ranges`, which may be NULL if that is 0; how many there are to *count. */
ATTN_API attn_status attn_ring_ranges(const attn_params *p, const attn_ring *ring, int rank,
                                      attn_ring_range *ranges, int64_t most, int64_t *count);

/* Bytes of workspace that attn_ring_forward needs on this rank (pointers to data are not read,
 * lengths and offsets are). */
ATTN_API attn_status attn_ring_workspace_size(const attn_params *p, const attn_ring *ring,
                                              size_t *bytes);

/* Attention of this rank's rows to the keys of all ranks; writes o and lse. All ranks call it. */
ATTN_API attn_status attn_ring_forward(const attn_params *p, const attn_ring *ring, void *workspace,
                                       size_t workspace_bytes);

/* Says in one English sentence what is wrong on this rank, or "ok"; otherwise as attn_check. It
 * talks to nobody. */
ATTN_API const char *attn_ring_check(const attn_params *p, const attn_ring *ring,
                                     const void *workspace, size_t workspace_bytes, char *text,
                                     size_t text_bytes);

/* Gradients by q, k and v of this rank's positions, from o, lse, dout (and dlse) of its rows: sums
 * over the rows of all ranks. dbias, dsinks and dslopes are not built. */
ATTN_API attn_status attn_ring_backward_workspace_size(const attn_params *p,
                                                       const attn_gradients *g,
                                                       const attn_ring *ring, size_t *bytes);

ATTN_API attn_status attn_ring_backward(const attn_params *p, const attn_gradients *g,
                                        const attn_ring *ring, void *workspace,
                                        size_t workspace_bytes);

ATTN_API const char *attn_ring_backward_check(const attn_params *p, const attn_gradients *g,
                                              const attn_ring *ring, const void *workspace,
                                              size_t workspace_bytes, char *text,
                                              size_t text_bytes);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_H */
