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
 *   ATTN_KERNEL_API  show the kernel table at the end of this file
 *   ATTN_INTERNAL    show what attn.c and the files that build on it share, after that
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
#define attn_status_string ATTN_JOIN(ATTN_PREFIX, attn_status_string)
#define attn_explain ATTN_JOIN(ATTN_PREFIX, attn_explain)
#define attn_impl_name ATTN_JOIN(ATTN_PREFIX, attn_impl_name)
#define attn_info_format ATTN_JOIN(ATTN_PREFIX, attn_info_format)
#define attn_params_from_string ATTN_JOIN(ATTN_PREFIX, attn_params_from_string)
#define attn_state_merge ATTN_JOIN(ATTN_PREFIX, attn_state_merge)
#define attn_state_finish ATTN_JOIN(ATTN_PREFIX, attn_state_finish)
#define attn_lse_merge ATTN_JOIN(ATTN_PREFIX, attn_lse_merge)
#define attn_alibi_slopes ATTN_JOIN(ATTN_PREFIX, attn_alibi_slopes)
#define attn_convert ATTN_JOIN(ATTN_PREFIX, attn_convert)
#define attn_dropout_keep ATTN_JOIN(ATTN_PREFIX, attn_dropout_keep)
#define attn_kernels_get ATTN_JOIN(ATTN_PREFIX, attn_kernels_get)
#define attn_kernels_find ATTN_JOIN(ATTN_PREFIX, attn_kernels_find)
#define attn_kernels_name ATTN_JOIN(ATTN_PREFIX, attn_kernels_name)
#define attn_kernels_avx2 ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx2)
#define attn_kernels_avx2_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx2_narrow)
#define attn_kernels_avx512 ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx512)
#define attn_kernels_avx512_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx512_narrow)
#define attn_kernels_neon ATTN_JOIN(ATTN_PREFIX, attn_kernels_neon)
#define attn_kernels_neon_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_neon_narrow)
#define attn_kernels_sse2 ATTN_JOIN(ATTN_PREFIX, attn_kernels_sse2)
#define attn_kernels_sse2_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_sse2_narrow)
#define attn_cpu_features ATTN_JOIN(ATTN_PREFIX, attn_cpu_features)
#define attn_core_get ATTN_JOIN(ATTN_PREFIX, attn_core_get)
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

/* Takes time in proportion to batch * seq_len_q where causal, window or chunked is on. In
 * attn_explain.c. */
ATTN_API attn_status attn_explain(const attn_params *p, attn_info *info);

/* *info as readable lines; truncates; returns text. In attn_text.c. */
ATTN_API const char *attn_info_format(const attn_info *info, char *text, size_t text_bytes);

/* Overrides fields by name: "impl=naive kernels=portable workers=3 tile_keys=64 redo=1
 * naive_whole=1 auto_naive_keys=256", separated by spaces or commas. For command lines and
 * environment variables of the caller: the library reads no environment. On error *p is unchanged
 * and why (may be NULL) holds a sentence. In attn_text.c. */
ATTN_API attn_status attn_params_from_string(attn_params *p, const char *text, char *why,
                                             size_t why_bytes);

/* out = a + b for num_rows rows of head_dim_v values, the states of two parts of the keys, a the
 * lower one. out may be a or b. Canonical (same bits as in one call) when each part covers a node
 * of the tree of docs/canon.md: 1024 * 2^k keys, aligned in n, or the tail; else deterministic.
 * Sizes are taken from out. In attn_merge.c. */
ATTN_API attn_status attn_state_merge(const attn_state *a, const attn_state *b, attn_state *out);

/* Writes p->o and p->lse from raw states (numbered as attn_forward with p->partial numbers them),
 * applying the sink and dropout's factor of *p. */
ATTN_API attn_status attn_state_finish(const attn_params *p, const attn_state *state);

/* Merges two finished results of the same rows over disjoint keys by their LSE:
 * f32, o [num_rows, head_dim_v], lse [num_rows]. At most one of them may have had a sink. Out may
 * be one of the inputs. Within a few ulp of one call, not bit-identical. Empty parts are the
 * identity. In attn_merge.c. */
ATTN_API attn_status attn_lse_merge(int64_t num_rows, int64_t head_dim_v, const float *o_a,
                                    const float *lse_a, const float *o_b, const float *lse_b,
                                    float *o_out, float *lse_out);

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

/* The sets of the attn_simd_*.c files: the table, or NULL where this CPU cannot run it. Compile
 * attn.c with ATTN_SIMD_AVX2, ATTN_SIMD_AVX512, ... for those that are linked, and attn_kernels_get
 * offers them; or pass one in p.kernels and define nothing. */
ATTN_API const attn_kernels *attn_kernels_avx2(void);
ATTN_API const attn_kernels *attn_kernels_avx512(void);
ATTN_API const attn_kernels *attn_kernels_neon(void); /* 64-bit ARM */
ATTN_API const attn_kernels *attn_kernels_sse2(void); /* x86 without AVX2 */

/* The same with fewer rows in a tile, for decoding and other short calls. */
ATTN_API const attn_kernels *attn_kernels_avx2_narrow(void);
ATTN_API const attn_kernels *attn_kernels_avx512_narrow(void);
ATTN_API const attn_kernels *attn_kernels_neon_narrow(void);
ATTN_API const attn_kernels *attn_kernels_sse2_narrow(void);

struct attn_gradients; /* attn_backward.h */

/* A device or another implementation of attn_forward, and of attn_backward. It receives the
 * parameters with every default resolved (scale, heads, strides). supports: above 0, or with a
 * sentence in why 0, and the CPU takes the call, or below 0 where the CPU cannot, either, since
 * arrays are the device's: ATTN_ERR_UNSUPPORTED then. Set it to zero, then assign: NULL for the
 * last three = it has no gradients. */
struct attn_backend {
    int abi; /* ATTN_KERNEL_ABI */
    const char *name;
    void *user;
    int (*supports)(const attn_backend *self, const attn_params *resolved, char *why,
                    size_t why_bytes);
    attn_status (*workspace_size)(const attn_backend *self, const attn_params *resolved,
                                  size_t *bytes);
    attn_status (*run)(const attn_backend *self, const attn_params *resolved, void *workspace,
                       size_t workspace_bytes);
    int (*supports_gradients)(const attn_backend *self, const attn_params *resolved,
                              const struct attn_gradients *g, char *why, size_t why_bytes);
    attn_status (*gradients_size)(const attn_backend *self, const attn_params *resolved,
                                  const struct attn_gradients *g, size_t *bytes);
    attn_status (*run_gradients)(const attn_backend *self, const attn_params *resolved,
                                 const struct attn_gradients *g, void *workspace,
                                 size_t workspace_bytes);
};

#define ATTN_KERNEL_ABI 6

#ifdef __cplusplus
}
#endif

#endif /* ATTN_H */

/* ---------------------------------------------------------------------------------------------
 * The kernel table (for kernel authors, tests and benchmarks)
 *
 * Leaf functions: no masks, no heads, no allocation. A tile has `rows` query rows, one per lane,
 * and n keys. Every matrix of a tile is lane-fastest, so that each lane is one independent row:
 *
 *     qt [d][rows]   packed queries, scaled           s [n][rows]   logits (base 2), then p
 *     o  [dv][rows]  output accumulators              m, l [rows]   running maximum and sum
 *
 *           lanes ->                    All of them computed in the canonical order of
 *       d   q00 q10 q20 ... qR0         docs/canon.md; a kernel may use any tile shape, unrolling
 *       |   q01 q11 q21 ... qR1         and order between elements, but each element's chain of
 *       v   ...                         operations is fixed. K and V rows are f32, contiguous in d.
 *
 * Arrays from the workspace are aligned to 64 bytes; k and v only to their element. Nothing
 * overlaps. n is at least 1; every lane always holds a number (unused lanes: zero queries).
 * ------------------------------------------------------------------------------------------ */
#if (defined ATTN_KERNEL_API || defined ATTN_INTERNAL) && !defined ATTN_KERNEL_H
#define ATTN_KERNEL_H

#define ATTN_KERNEL_MAX_ROWS 64 /* a set's rows: a multiple of 4, at most this */
#define ATTN_BLOCK 16           /* canonical block of keys: the maximum is decided once a block */
#define ATTN_CHUNK 1024         /* canonical chunk of keys: a state of its own, for the tree */
#define ATTN_THRESHOLD 16.0f    /* the maximum rises only if exceeded by more than this (log2) */

/* Lanes begin..end-1 of a tile; a kernel may compute more of them (whole vectors). */
typedef struct attn_lanes {
    int begin, end;
} attn_lanes;

/* Exponentials of an earlier block that qk computes beside its products: alone they would keep the
 * multipliers idle. s = 2^fl(s - m), l += s in order, in these lanes at least, as exp_sum does with
 * dead = +0. calm: s and m are at most ATTN_CALM in magnitude, so no special case can occur. */
typedef struct attn_exp {
    float *s;
    int n; /* keys, 1..16 */
    const float *m;
    float *l;
    attn_lanes lanes; /* in the others every key is dead, or they have no query */
    int calm;
} attn_exp;

#define ATTN_CALM 60.0f

/* -0: stands for a pair that does not count, where no live number is -0. */
#define ATTN_DEAD (-0.0f)

/* Rows of K or V as they lie in memory, `stride` bytes apart: `first` of them from run[0] on, then
 * `each` from every further run on. */
typedef struct attn_runs {
    int dtype;
    ptrdiff_t stride;
    int64_t first, each;
    const char *const *run; /* one more than there are, as a kernel may read ahead of use */
} attn_runs;

/* Memory that the next product will read: a kernel asks for `lines` cache lines of it, evenly
 * beside its own work, and leaves `lines` at 0. Only a hint: it need not do so. */
typedef struct attn_ahead {
    const char *const *run; /* where the present run of rows begins, and those behind it */
    const char *row;        /* the present one */
    ptrdiff_t stride;       /* bytes between rows */
    int64_t left, each_run; /* rows of this run still to be asked for; of those behind it */
    int64_t bytes;          /* of a row that are read */
    int64_t at;             /* of this row, asked for already */
    int64_t lines;
    int64_t each; /* the kernel's own: lines asked for in one go */
} attn_ahead;

/* The next line to be asked for is behind this one. */
static inline void attn_next_line(attn_ahead *a)
{
    a->at += 64;
    if (a->at < a->bytes)
        return;
    a->at = 0;
    a->row += a->stride;
    if (--a->left == 0) {
        a->row = *++a->run;
        a->left = a->each_run;
    }
}

/* Rows of some tiles, and what each pair of a key and a row stands for: the factors of the products
 * over rows, which gradients need. */
typedef struct attn_term {
    const float *x; /* [n][rows] of a tile */
    const float *b; /* [rows] so many floats apart: */
    attn_lanes lanes;
    int begin, end; /* the keys that count; of the others x is ATTN_DEAD, they may be left out */
} attn_term;

typedef struct attn_terms {
    const attn_term *term;
    int count;
    ptrdiff_t b_stride; /* whole cache lines, filled up with numbers */
} attn_terms;

/* What running_max says about a block. */
#define ATTN_RAISED 1 /* a lane's maximum that had begun rose: o *= alpha before the block enters */
#define ATTN_IS_CALM 2 /* attn_exp.calm holds; a kernel may always leave it out */

/* What the CPU can do and the operating system saves the registers for; 0 where unknown. */
#define ATTN_CPU_AVX2 2u   /* AVX2, FMA and F16C */
#define ATTN_CPU_AVX512 4u /* AVX-512 F and DQ */
ATTN_API unsigned attn_cpu_features(void);

struct attn_kernels {
    int abi;  /* ATTN_KERNEL_ABI */
    int rows; /* query rows of a tile */
    const char *name;
    /* n numbers of a 16-bit storage type as f32, and back: to nearest even, NaN (always 7fc00000)
     * as the type's, -0 never written. */
    void (*widen_f16)(float *to, const uint16_t *from, int64_t n);
    void (*widen_bf16)(float *to, const uint16_t *from, int64_t n);
    void (*narrow_f16)(uint16_t *to, const float *from, int64_t n);
    void (*narrow_bf16)(uint16_t *to, const float *from, int64_t n);
    /* qt[d][lane] = fl(q[lane][d] * c). */
    void (*pack)(float *qt, const float *const *q, int64_t head_dim, float c);
    /* s[j][lane] = chain over d of fma(qt[d][lane], k[j*k_stride + d], s) from +0, in these lanes.
     * The others get numbers, too: +0 where qt is 0 and K finite. beside, ahead: NULL = nothing. */
    void (*qk)(float *s, const float *qt, const float *k, ptrdiff_t k_stride, int n,
               int64_t head_dim, attn_lanes lanes, const attn_exp *beside, attn_ahead *ahead);
    /* s = fl(cap2 * tanh(fl(s * icap2))). */
    void (*softcap)(float *s, int n, float cap2, float icap2);
    /* s = fma(x, factor[lane], s); x = -inf gives -inf by selection. */
    void (*add_scaled)(float *s, const float *x, const float *factor, int n);
    /* s = -inf where the key j is not in begin[lane]..end[lane]-1, by selection. */
    void (*clip)(float *s, int n, const int *begin, const int *end);
    /* s = -inf where alive[j][lane] is 0, by selection; else alive is 1. */
    void (*hide)(float *s, const uint8_t *alive, int n);
    /* Decides the running maximum for one block (n is 1..16), whose p it does not compute: m rises
     * to the block's maximum where it has not begun (is -inf) or is exceeded by more than
     * ATTN_THRESHOLD. If the latter happens to a lane, ATTN_RAISED: alpha = 2^fl(old m - m) there,
     * 1 in the other lanes, and l *= alpha. Returns ATTN_RAISED and ATTN_IS_CALM, or 0. */
    int (*running_max)(const float *s, int n, float *m, float *l, float *alpha);
    /* m[lane] = maximum of m[lane] and s[..][lane], NaN ignored. */
    void (*maximum)(const float *s, int n, float *m);
    /* s = 2^fl(s - m), `dead` where s is -inf, l += s in order; m of -inf counts as +0. */
    void (*exp_sum)(float *s, int n, float dead, const float *m, float *l);
    /* The exponentials of a block without a product beside them. */
    void (*exp_block)(const attn_exp *e);
    /* Whether n numbers are all finite. */
    int (*finite)(const float *x, int64_t n);
    /* x[k][lane] *= alpha[lane] for `count` rows. */
    void (*rescale)(float *x, const float *alpha, int64_t count);
    /* o[d][lane] = chain over keys of fma(p[j][lane], v[j*v_stride + d], o), in these lanes at
     * least; to the others every key is dead, or they have no query. ahead: NULL = nothing. */
    void (*pv)(float *o, const float *p, const float *v, ptrdiff_t v_stride, int n,
               int64_t head_dim_v, attn_lanes lanes, attn_ahead *ahead);
    /* The same, but a key whose p is ATTN_DEAD leaves o alone by selection. */
    void (*pv_select)(float *o, const float *p, const float *v, ptrdiff_t v_stride, int n,
                      int64_t head_dim_v, attn_lanes lanes);
    /* b = a + b, a the lower node, not changed; states as [m[rows], l[rows],
     * o[head_dim_v][rows]]. */
    void (*merge)(float *a, float *b, int64_t head_dim_v);
    /* out[lane][d] = fl(fl(o[d][lane] * r) + 0) with r = fl(fl(1 / l[lane]) * factor), +0 where
     * l[lane] is 0; NaN as 7fc00000. */
    void (*result)(float *const *out, const float *o, const float *l, float factor,
                   int64_t head_dim_v);
    /* Up to so many lanes, counted from the last multiple of 4 up to the first one, take another
     * way, which qk_runs and pv_runs are of. 0 = there is none. */
    int few;
    /* qk and pv up to `few` lanes, of rows as they lie, in any storage type: NULL if few is 0.
     * head_dim, head_dim_v and, for qk_runs, the keys and those of each run are multiples of 16. */
    void (*qk_runs)(float *s, const float *qt, const attn_runs *k, int n, int64_t head_dim,
                    attn_lanes lanes, const attn_exp *beside, attn_ahead *ahead);
    void (*pv_runs)(float *o, const float *p, const attn_runs *v, int n, int64_t head_dim_v,
                    attn_lanes lanes, attn_ahead *ahead);

    /* ---- gradients */
    /* s becomes p = 2^x, x = fl(s - lse2[lane]) but at most 127, and dp becomes fl(p * fl(dp -
     * delta[lane])); where s is -inf both become ATTN_DEAD. lse2 of -inf counts as +0. */
    void (*gradient)(float *s, float *dp, int n, const float *lse2, const float *delta);
    /* ds = fl(ds * fma(-t, t, 1)), t the tanh of softcap; ATTN_DEAD where p is. */
    void (*softcap_gradient)(float *ds, const float *t, const float *p, int n);
    /* c[j][d] = chain over the terms, and over the lanes of each, of fma(x[j][lane], b[lane][d],
     * c[j][d]), for n keys j. c begins a cache line and c_stride is whole ones; the columns that
     * fill up the last one of a row may be written, too. */
    void (*outer)(float *c, ptrdiff_t c_stride, const attn_terms *terms, int n, int64_t columns);
    /* The same, but an x that is ATTN_DEAD leaves c alone by selection. */
    void (*outer_select)(float *c, ptrdiff_t c_stride, const attn_terms *terms, int n,
                         int64_t columns);
    /* to[lane] = chain over d of fma(a[d][lane], b[d][lane], to[lane]) from +0. */
    void (*dots)(float *to, const float *a, const float *b, int64_t dim);
};

#endif /* ATTN_KERNEL_API */

/* ---------------------------------------------------------------------------------------------
 * Internals (for attn.c and the files that build on it, which define ATTN_INTERNAL; they may change
 * with every version): text, numbers, states
 * ------------------------------------------------------------------------------------------ */
#if defined ATTN_INTERNAL && !defined ATTN_INTERNAL_H
#define ATTN_INTERNAL_H

#include <string.h>

/* The same bits everywhere need every operation rounded as written. gcc can be told here; clang
 * cannot undo -ffast-math, so it is refused; x87 keeps excess precision unless -std=c99. */
#if defined __clang__
#if defined __FAST_MATH__ || (defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__)
#error "attn: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#pragma clang fp contract(off) reassociate(off)
#elif defined __GNUC__
#pragma GCC optimize("no-fast-math", "fp-contract=off")
#elif defined _MSC_VER
#pragma fp_contract(off)
#endif
#if defined __i386__ && defined __FLT_EVAL_METHOD__ && __FLT_EVAL_METHOD__ == 2 &&                 \
    !defined __STRICT_ANSI__
#error "attn: add -std=c99 (or -msse2 -mfpmath=sse): x87 code keeps excess precision otherwise"
#endif

#if defined __GNUC__
#define KERNEL static inline __attribute__((always_inline)) /* must inline to be specialised */
#define OWN_FRAME __attribute__((noinline))                 /* its stack is gone when it returns */
#else
#define KERNEL static inline
#define OWN_FRAME
#endif

/* Where binary32 FMA is one instruction of every CPU of this build, the compiler's builtin is used
 * (FMA_BASE 1). On x86 without -mfma the kernels are built a second time for AVX2 and FMA and
 * chosen at run time (FMA_TARGET). Elsewhere fma_soft below serves; libm's is often wrong. */
#if defined __GNUC__ &&                                                                            \
    (defined __FP_FAST_FMAF || defined __FMA__ || defined __aarch64__ ||                           \
     defined __ARM_FEATURE_FMA || defined __s390x__ || defined __riscv_f || defined __powerpc64__)
#define FMA_BASE 1
#define FMA_TARGET
#elif defined __GNUC__ && defined __SSE_MATH__ /* x86; x87 code could not use the instruction */
#define FMA_BASE 0
#define FMA_TARGET __attribute__((target("avx2,fma")))
#define FMA_SECOND_BUILD
#else
#define FMA_BASE 0
#endif

#define COUNT_OF(table) ((int)(sizeof(table) / sizeof(table)[0]))

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define NEG_INF float_of(0xff800000u)

static inline int is_finite(float x)
{
    return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

/* By bits: under -ffinite-math-only gcc 12 folds x != -inf into x >= -FLT_MAX, in spite of the
 * pragma above, and a NaN would pass for -inf. */
static inline int is_neg_inf(float x)
{
    return bits_of(x) == 0xff800000u;
}

/* ATTN_DEAD. */
static inline int is_dead(float x)
{
    return bits_of(x) == 0x80000000u;
}

static inline int is_nan(float x)
{
    return (bits_of(x) & 0x7fffffffu) > 0x7f800000u;
}

/* ---- sizes and strides */

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t entry32(const int32_t *array, int64_t index, int64_t otherwise)
{
    return array ? array[index] : otherwise;
}

/* Products and sums of sizes, which are 0 or more, stop at TOO_BIG instead of overflowing; what is
 * in memory is below ADDRESS_LIMIT bytes, and TOO_BIG is not. */
#define TOO_BIG (INT64_MAX / 4)
#define ADDRESS_LIMIT (PTRDIFF_MAX / 4)

static inline int64_t times(int64_t a, int64_t b)
{
    if (a == 0 || b == 0)
        return 0;
    return a >= TOO_BIG / b ? TOO_BIG : a * b;
}

static inline int64_t plus(int64_t a, int64_t b)
{
    return min64(a + b, TOO_BIG);
}

/* A size beyond this cannot be the count of anything in memory. */
#define MOST ((int64_t)(PTRDIFF_MAX / 4 < TOO_BIG / 4 ? PTRDIFF_MAX / 4 : TOO_BIG / 4))

/* Elements from the first to the last of a strided array, TOO_BIG if that cannot be in memory. */
static inline int64_t extent(const int64_t count[4], const ptrdiff_t stride[4])
{
    int64_t sum = 1;
    int axis;
    for (axis = 0; axis < 4; axis++) {
        const int64_t step = stride[axis] < 0 ? -max64(stride[axis], -TOO_BIG) : stride[axis];
        if (count[axis] == 0)
            return 0;
        sum = plus(sum, times(count[axis] - 1, step));
    }
    return sum;
}

static inline ptrdiff_t to_stride(int64_t elements)
{
    return elements > PTRDIFF_MAX ? PTRDIFF_MAX : (ptrdiff_t)elements;
}

#define ALIGNMENT 64 /* of every array in the workspace: a cache line, an AVX-512 vector */

static inline int64_t aligned(int64_t bytes)
{
    return plus(bytes, ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* The first aligned byte of a caller's memory. */
static inline char *align_memory(const void *memory)
{
    const uintptr_t at = (uintptr_t)memory;
    return (char *)memory + (ALIGNMENT - at % ALIGNMENT) % ALIGNMENT;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return a == 0 ? 0 : (a - 1) / b + 1;
}

/* Appends `count` elements to a slot that is `*at` bytes long and returns their offset. */
static inline int64_t place(int64_t *at, int64_t count, size_t bytes_each)
{
    const int64_t offset = *at;
    *at = plus(offset, aligned(times(count, (int64_t)bytes_each)));
    return offset;
}

#define LINE (ALIGNMENT / (int64_t)sizeof(float))

/* Floats of whole cache lines. */
static inline int64_t whole_lines(int64_t floats)
{
    return times(ceil_div(floats, LINE), LINE);
}

/* Whole cache lines, an odd number of them, so that rows do not compete for the same cache sets. */
static inline int64_t pitch_of(int64_t dim)
{
    return times(ceil_div(dim, LINE) | 1, LINE);
}

/* A stride as it was given, with what 0 and "broadcast" mean. */
static inline ptrdiff_t stride_or(ptrdiff_t stride, int64_t packed)
{
    return stride == ATTN_STRIDE_BROADCAST ? 0 : stride == 0 ? to_stride(packed) : stride;
}

/* Fills in the strides of one tensor of `heads` heads, `seq` rows and `dim` elements a row. Packed
 * is [batch, head, seq, dim], or [token, head, dim] with varlen, where the batch axis has no
 * stride. */
static inline void resolve_strides(ptrdiff_t stride[3], int varlen, int64_t heads, int64_t seq,
                                   int64_t dim)
{
    const int64_t packed[2][3] = { { times(times(heads, seq), dim), times(seq, dim), dim },
                                   { 0, dim, times(heads, dim) } };
    int axis;
    for (axis = 0; axis < 3; axis++)
        stride[axis] = varlen && axis == 0 ? 0 : stride_or(stride[axis], packed[varlen][axis]);
}

/* Both tensor types hold the three strides in a row, by name: this is where they become an
 * array. */
#define RESOLVE_STRIDES(tensor, varlen, heads, seq, dim)                                           \
    do {                                                                                           \
        ptrdiff_t stride[3];                                                                       \
        stride[0] = (tensor).stride_batch;                                                         \
        stride[1] = (tensor).stride_head;                                                          \
        stride[2] = (tensor).stride_seq;                                                           \
        resolve_strides(stride, varlen, heads, seq, dim);                                          \
        (tensor).stride_batch = stride[0];                                                         \
        (tensor).stride_head = stride[1];                                                          \
        (tensor).stride_seq = stride[2];                                                           \
    } while (0)

static inline attn_tensor as_tensor(const attn_output *o)
{
    const attn_tensor t = { o->dtype, o->stride_batch, o->stride_head, o->stride_seq, o->data };
    return t;
}

/* Of one element. */
static inline size_t bytes_of(int dtype)
{
    return dtype == ATTN_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* ---- text: sentences are built piece by piece into the caller's buffer; words of a text are
 * compared */

typedef struct text {
    char *at;
    size_t left; /* bytes that still fit, with the terminator */
} text;

static inline text text_in(char *buffer, size_t bytes)
{
    text t;
    t.at = buffer;
    t.left = buffer ? bytes : 0;
    if (t.left)
        *t.at = 0;
    return t;
}

static inline void put(text *t, const char *s)
{
    while (*s && t->left > 1) {
        *t->at++ = *s++;
        t->left--;
    }
    if (t->left)
        *t->at = 0;
}

static inline void put_int(text *t, int64_t value)
{
    char digits[24];
    char *d = digits + sizeof digits - 1;
    uint64_t u = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    *d = 0;
    do {
        *--d = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    if (value < 0)
        *--d = '-';
    put(t, d);
}

/* Six digits, as d.ddddde-xx: enough for a sentence about a wrong value. */
static inline void put_float(text *t, float value)
{
    char digits[8];
    double rest = value < 0 ? -(double)value : (double)value;
    int64_t millionths;
    int i, exponent = 0;
    if (!is_finite(value)) {
        put(t, is_nan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    for (; rest >= 10; exponent++)
        rest /= 10;
    for (; rest > 0 && rest < 1; exponent--)
        rest *= 10;
    put(t, value < 0 ? "-" : "");
    millionths = (int64_t)(rest * 1e6 + 0.5);
    if (millionths == 10000000) { /* rounded up to the next power of ten */
        millionths = 1000000;
        exponent++;
    }
    put_int(t, millionths / 1000000);
    digits[0] = '.';
    for (i = 6; i >= 1; i--) {
        digits[i] = (char)('0' + millionths % 10);
        millionths /= 10;
    }
    digits[7] = 0;
    put(t, digits);
    if (exponent) {
        put(t, "e");
        put_int(t, exponent);
    }
}

/* "name (value)" */
static inline void put_field(text *t, const char *name, int64_t value)
{
    put(t, name);
    put(t, " (");
    put_int(t, value);
    put(t, ")");
}

static inline void put_word(text *t, const char *word, size_t length)
{
    char letter[2] = { 0, 0 };
    size_t i;
    for (i = 0; i < length; i++) {
        letter[0] = word[i];
        put(t, letter);
    }
}

/* Whether the string a is the b_length letters at b. */
static inline int same_word(const char *a, const char *b, size_t b_length)
{
    size_t i;
    for (i = 0; i < b_length; i++)
        if (a[i] != b[i] || !a[i])
            return 0;
    return a[b_length] == 0;
}

static inline int parse_int(const char *s, size_t length, int64_t *value)
{
    size_t i;
    *value = 0;
    for (i = 0; i < length; i++) {
        if (s[i] < '0' || s[i] > '9' || *value > 100000000000000)
            return 0;
        *value = *value * 10 + (s[i] - '0');
    }
    return length > 0;
}

static inline attn_status bad(text *why, attn_status status, const char *rest)
{
    put(why, rest);
    return status;
}

/* "name (value) rest" */
static inline attn_status bad_field(text *why, attn_status status, const char *name, int64_t value,
                                    const char *rest)
{
    put_field(why, name, value);
    return bad(why, status, rest);
}

/* "name[index] (value) rest" */
static inline attn_status bad_entry(text *why, const char *name, int64_t index, int64_t value,
                                    const char *rest)
{
    put(why, name);
    put(why, "[");
    put_int(why, index);
    put(why, "] (");
    put_int(why, value);
    put(why, ")");
    return bad(why, ATTN_ERR_ARG, rest);
}

static inline attn_status bad_number(text *why, const char *name, float value, const char *rest)
{
    put(why, name);
    put(why, " (");
    put_float(why, value);
    put(why, ")");
    return bad(why, ATTN_ERR_ARG, rest);
}

/* ---- rules about fields, strides and lengths */

typedef struct size_rule {
    const char *name;
    size_t offset;
    int64_t least, most;
} size_rule;

static inline attn_status bad_range(text *why, const size_rule *rule, int64_t value)
{
    const int low = value < rule->least;
    put_field(why, rule->name, value);
    put(why, rule->least == rule->most ? " must be "
             : low                     ? " must be at least "
                                       : " must be at most ");
    put_int(why, low ? rule->least : rule->most);
    return !low && rule->most == MOST ? ATTN_ERR_OVERFLOW : ATTN_ERR_ARG;
}

/* Fields at their offsets from `base`: int64_t, or int. */
static inline attn_status check_counts(const void *base, const size_rule *rules, int n, text *why)
{
    int r;
    for (r = 0; r < n; r++) {
        int64_t value;
        memcpy(&value, (const char *)base + rules[r].offset, sizeof value);
        if (value < rules[r].least || value > rules[r].most)
            return bad_range(why, &rules[r], value);
    }
    return ATTN_OK;
}

static inline attn_status check_enums(const void *base, const size_rule *rules, int n, text *why)
{
    int r;
    for (r = 0; r < n; r++) {
        int value;
        memcpy(&value, (const char *)base + rules[r].offset, sizeof value);
        if (value < rules[r].least || value > rules[r].most)
            return bad_range(why, &rules[r], value);
    }
    return ATTN_OK;
}

/* name: of an output, field: its stride, as it was given. */
static inline attn_status check_output_stride(const char *name, const char *field, ptrdiff_t stride,
                                              text *why)
{
    if (stride != ATTN_STRIDE_BROADCAST)
        return ATTN_OK;
    put(why, name);
    put(why, field);
    return bad(why, ATTN_ERR_ARG,
               " (ATTN_STRIDE_BROADCAST) of an output must be 0 (packed) or a stride");
}

static inline attn_status check_output_strides(const char *name, const attn_output *o, text *why)
{
    attn_status status = check_output_stride(name, ".stride_batch", o->stride_batch, why);
    if (!status)
        status = check_output_stride(name, ".stride_head", o->stride_head, why);
    if (!status)
        status = check_output_stride(name, ".stride_seq", o->stride_seq, why);
    return status;
}

static inline attn_status check_cu_seqlens(const char *name, const int32_t *cu, int64_t batch,
                                           int64_t rows, text *why)
{
    int64_t b;
    if (cu && cu[0] < 0)
        return bad_entry(why, name, 0, cu[0], " must be at least 0");
    for (b = 0; cu && b < batch; b++)
        if (cu[b + 1] < cu[b])
            return bad_entry(why, name, b + 1, cu[b + 1], " is below the entry before it");
    if (cu && cu[batch] > rows) {
        bad_entry(why, name, batch, cu[batch], " exceeds the rows of the tensor (");
        put_int(why, rows);
        put(why, ")");
        return ATTN_ERR_ARG;
    }
    return ATTN_OK;
}

static inline attn_status check_extent(const char *name, int64_t bytes_each, int64_t batch,
                                       int64_t heads, int64_t rows, int64_t columns,
                                       const ptrdiff_t stride[4], text *why)
{
    int64_t count[4];
    count[0] = batch;
    count[1] = heads;
    count[2] = rows;
    count[3] = columns;
    if (times(extent(count, stride), bytes_each) < ADDRESS_LIMIT)
        return ATTN_OK;
    put(why, name);
    put(why, ": ");
    put_field(why, "batch", batch);
    put(why, " x ");
    put_field(why, "heads", heads);
    put(why, " x ");
    put_field(why, "rows", rows);
    put(why, " x ");
    put_field(why, "columns", columns);
    put(why, " with its strides exceeds the address space");
    return ATTN_ERR_OVERFLOW;
}

/* ---- numbers. No libm: each function is one fixed sequence of binary32 operations, rounded to
 * nearest even, so that every compiler and ISA gives the same bits. One float operation per
 * statement (s390x and x87 round at assignments); each multiply that feeds an add is fma32.
 * Selections are ordered compares or integer bits. tools/prove_math.c checks all inputs. */

#define LOG2E_HI 0x1.715476p+0f /* log2(e) = HI + LO */
#define LOG2E_LO 0x1.4ae0c0p-26f
#define LN2 0x1.62e430p-1f
#define CANONICAL_NAN 0x7fc00000u

/*
 * a * b + c rounded once, for hardware without it. The product of two 24-bit significands is exact
 * in binary64. TwoSum yields the sum s and its error e; s is then rounded to odd (if inexact, the
 * neighbour with the odd last bit), and 53 >= 24 + 2 bits make the last rounding right, subnormal
 * results included. With infinities or NaN e is NaN and both compares fail. Excess precision
 * (x87) may pick the other neighbour as s, but e keeps its sign and the odd one is the same.
 */
static inline float fma_soft(float a, float b, float c)
{
    double da = (double)a, db = (double)b, dc = (double)c;
    double p, s, t, v, e;
    uint64_t u;
    int up, down;
    p = da * db;
    s = p + dc;
    t = s - p;
    v = s - t;
    v = p - v;
    t = dc - t;
    e = v + t;
    memcpy(&u, &s, sizeof u);
    up = e > 0.0;
    down = e < 0.0;
    if ((up || down) && (u & 1) == 0) {
        int negative = (int)(u >> 63);
        u = up != negative ? u + 1 : u - 1;
    }
    memcpy(&s, &u, sizeof s);
    return (float)s;
}

/* Only the second build of the kernels may reach the instruction: hw is a constant at every
 * call. */
#if FMA_BASE || defined FMA_SECOND_BUILD
FMA_TARGET static inline float fma_hard(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
#else
#define fma_hard fma_soft
#endif

KERNEL float fma32(int hw, float a, float b, float c)
{
    return hw ? fma_hard(a, b, c) : fma_soft(a, b, c);
}

/*
 * 2^x for x in [-126, 128) only: no selections. Adding 1.5 * 2^23 leaves the nearest whole number
 * n in the low bits of t, |f| <= 0.5, and t << 23 is n in the exponent field: the upper bits of t
 * fall out modulo 2^32.
 */
KERNEL float exp2_core(int hw, float x)
{
    const float magic = 12582912.0f;
    float t, w, f, y;
    uint32_t u;
    t = x + magic;
    w = t - magic;
    f = x - w;
    /* 2^f on [-0.5, 0.5], degree 6, minimax in relative error, c0 = 1, rounded to binary32: */
    /* worst 0.7821 ulp over all floats in [-126, 128). */
    y = 0x1.44a6d6p-13f;
    y = fma32(hw, y, f, 0x1.5f8d0cp-10f);
    y = fma32(hw, y, f, 0x1.3b2822p-7f);
    y = fma32(hw, y, f, 0x1.c6adecp-5f);
    y = fma32(hw, y, f, 0x1.ebfbe4p-3f);
    y = fma32(hw, y, f, 0x1.62e432p-1f);
    y = fma32(hw, y, f, 1.0f);
    u = bits_of(y) + (bits_of(t) << 23);
    return float_of(u);
}

/*
 * 2^x for x < 128. Below -126 (-inf too) +0; NaN gives 7fffffff, by bits, since the integer add
 * could turn a NaN into a number and a sign bit means "dead" (chains8). +inf gives NaN (inf - inf);
 * finite x >= 128 gives garbage: callers promise x <= 127. The selections are integers: gcc
 * vectorises them without -fno-trapping-math, which ?: on floats needs on AVX2. As unsigned
 * numbers, the floats below -126 and the negative NaNs are those above the bits of -126; they are
 * clamped first, so that -inf raises no flag.
 */
KERNEL float exp2_with(int hw, float x)
{
    const uint32_t lowest = 0xc2fc0000u; /* -126 */
    uint32_t u = bits_of(x), v, nan;
    float y = exp2_core(hw, float_of(u > lowest ? lowest : u));
    v = bits_of(y);
    nan = 0u - (uint32_t)((u & 0x7fffffffu) > 0x7f800000u);
    v &= 0u - (uint32_t)(u <= lowest);
    v = (v & ~nan) | (nan >> 1);
    return float_of(v);
}

/*
 * tanh x for every x: |result| <= 1, odd bit for bit, tanh(+-0) = +-0, tanh(+-inf) = +-1, NaN
 * gives NaN. Below 0.625 the odd polynomial a + a^3 R(a^2), which is a itself for tiny a. From
 * there 1 - 2 / (e^(2a) + 1), where the fraction is at most 0.45 and its error shrinks with it.
 * (One odd rational a P(a^2) / Q(a^2) for all a was no better than 4 ulp after a search over the
 * coefficients: P, Q and the product each lose up to a whole ulp just below 1.) At the clamp, 10,
 * the fraction is under 2^-27 and the difference is 1 exactly; the first a that gives 1 is
 * 9.0109139. Worst error over all inputs 1.6765 ulp.
 */
KERNEL float tanh_with(int hw, float x)
{
    uint32_t bits = bits_of(x), a = bits & 0x7fffffffu, v;
    float c, u, r, small, e, large;
    c = float_of(a > 0x41200000u ? 0x41200000u : a); /* |x|, at most 10, which NaN becomes, too */
    u = c * c;
    /* R: (tanh a - a) / a^3 in u = a^2 on [0, 0.625^2], degree 4, Remez, weight a^3 / tanh a, */
    /* then rounded to binary32: worst 0.7208 ulp over all floats below 0.625. */
    r = -0x1.75e1cap-8f;
    r = fma32(hw, r, u, 0x1.52269cp-6f);
    r = fma32(hw, r, u, -0x1.b83c5ap-5f);
    r = fma32(hw, r, u, 0x1.110726p-3f);
    r = fma32(hw, r, u, -0x1.555532p-2f);
    u = u * c;
    small = fma32(hw, u, r, c);
    e = c * 0x1.715476p+1f; /* 2 log2(e) a, at most 28.9: inside exp2_core */
    e = exp2_core(hw, e);
    e = e + 1.0f;
    e = 2.0f / e;
    large = 1.0f - e;
    v = 0u - (uint32_t)(a >= 0x3f200000u);
    v = (bits_of(large) & v) | (bits_of(small) & ~v);
    v |= 0u - (uint32_t)(a > 0x7f800000u);
    return float_of(v | (bits & 0x80000000u));
}

/* For scalar code outside the kernels. */
static inline float exp2_canon(float x)
{
    return exp2_with(FMA_BASE, x);
}

/*
 * log2 x: +inf gives +inf, +-0 gives -inf, NaN and x < 0 give NaN; log2(2^n) = n exactly,
 * log2(1) = +0. x = 2^n m, m in [sqrt(1/2), sqrt(2)), f = m - 1 exact:
 * log2 x = n + f L + f^2 Q(f), where f L is kept as a head h and a tail l, so that the relative
 * error holds near 1, too. Subnormals are normalised as integers.
 */
static inline float log2_canon(float x)
{
    const float l_hi = 0x1.715476p+0f, l_lo = 0x1.4ae0cp-26f; /* log2 e */
    uint32_t u = bits_of(x), m;
    int32_t n = 0;
    float f, f2, h, l, q, k, s, r;
    if ((u & 0x7fffffffu) == 0)
        return float_of(0xff800000u);
    if (u > 0x7f800000u)
        return float_of(0x7fc00000u);
    if (u == 0x7f800000u)
        return x;
    if (u < 0x00800000u) {
        f = (float)(int32_t)u; /* exact, below 2^23 */
        u = bits_of(f);
        n = -149;
    }
    /* m: the bits of x moved to [sqrt(1/2), sqrt(2)); 0x3f3504f4 is just above sqrt(1/2) */
    m = u - 0x3f3504f4u;
    n += (int32_t)((m + 0x40000000u) >> 23) - 128;
    m = (m & 0x007fffffu) + 0x3f3504f4u;
    f = float_of(m);
    f = f - 1.0f;
    k = (float)n;
    /* Q: (log2(1 + f) - f L) / f^2 on [sqrt(1/2) - 1, sqrt(2) - 1], degree 8, Remez, weight */
    /* f^2 / log2(1 + f), then rounded to binary32: worst 1.1004 ulp over all positive floats. */
    q = -0x1.c26434p-4f;
    q = fma32(FMA_BASE, q, f, 0x1.7d4786p-3f);
    q = fma32(FMA_BASE, q, f, -0x1.87485cp-3f);
    q = fma32(FMA_BASE, q, f, 0x1.a30596p-3f);
    q = fma32(FMA_BASE, q, f, -0x1.eabd0ep-3f);
    q = fma32(FMA_BASE, q, f, 0x1.277e3cp-2f);
    q = fma32(FMA_BASE, q, f, -0x1.715a72p-2f);
    q = fma32(FMA_BASE, q, f, 0x1.ec7096p-2f);
    q = fma32(FMA_BASE, q, f, -0x1.71547p-1f);
    h = f * l_hi;
    l = fma32(FMA_BASE, f, l_hi, -h); /* exact: what the product lost */
    l = fma32(FMA_BASE, f, l_lo, l);
    f2 = f * f;
    l = fma32(FMA_BASE, f2, q, l);
    s = k + h; /* |k| >= 1 > |h|, or k = 0: r is the exact rounding error of s */
    r = s - k;
    r = h - r;
    l = r + l;
    s = s + l;
    return s;
}

/*
 * The binary32 nearest to 1 / sqrt(n), 1 <= n <= 2^62, integers only. With 4^24 <= 4^j / n < 4^25,
 * root = floor(sqrt(floor(4^j / n))) = floor(2^j / sqrt(n)) has 25 bits, one more than the result.
 * Half up is the nearest: a tie would be an odd root with root^2 n = 4^j, which does not exist.
 */
static inline float inv_sqrt_nearest(uint64_t n)
{
    uint64_t quotient = 0, remainder = 1, root = 0, bit;
    uint32_t j = 24, i;
    float power;
    while (j < 55 && n > (uint64_t)1 << 2 * (j - 24))
        j++;
    for (i = 0; i < 2 * j; i++) { /* long division of 2^(2j) by n; 2^0 is the first digit */
        uint64_t digit = remainder >= n ? 1 : 0;
        quotient = 2 * quotient + digit;
        remainder = 2 * (remainder - (digit ? n : 0));
    }
    quotient = 2 * quotient + (remainder >= n ? 1 : 0);
    for (bit = (uint64_t)1 << 24; bit != 0; bit >>= 1)
        if ((root + bit) * (root + bit) <= quotient)
            root += bit;
    power = float_of((127u - (j - 1)) << 23); /* 2^-(j-1) */
    return (float)(int32_t)((root + 1) >> 1) * power;
}

/* ---- storage types: exact to f32; from f32 to nearest even, NaN canonical */

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    float magnitude;
    if (rest >= 0x7c00u)
        return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u)
        return float_of(sign | ((rest << 13) + (112u << 23)));
    magnitude = (float)(int32_t)rest * 0x1p-24f; /* subnormal in f16, normal in f32 */
    return float_of(sign | bits_of(magnitude));
}

static inline uint16_t f16_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu, half, shift;
    if (a > 0x7f800000u)
        return 0x7e00u;
    if (a >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x38800000u) { /* normal: 2^-14 and above */
        a -= 112u << 23;
        a += 0xfffu + (a >> 13 & 1);
        return (uint16_t)(sign | a >> 13);
    }
    if (a <= 0x33000000u) /* at most 2^-25: a tie with 0 or below */
        return (uint16_t)sign;
    shift = 126u - (a >> 23); /* 14..24: the significand becomes a multiple of 2^-24 */
    a = (a & 0x7fffffu) | 0x800000u;
    half = 1u << (shift - 1);
    a += half - 1 + (a >> shift & 1);
    return (uint16_t)(sign | a >> shift);
}

static inline float bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    if (is_nan(x))
        return 0x7fc0u;
    u += 0x7fffu + (u >> 16 & 1);
    return (uint16_t)(u >> 16);
}

/* ---- states (m, l, o) of a part of the keys */

#define LANES 16 /* query rows of a portable tile: two AVX, four NEON or SSE vectors */

static inline attn_state state_at(const attn_state *s, int64_t row, int64_t head_dim_v)
{
    attn_state one = *s;
    one.m += row;
    one.l += row;
    one.o += row * head_dim_v;
    return one;
}

static inline int is_state(const attn_state *s)
{
    return s && s->m && s->l && s->o;
}

/* out = a + b for up to LANES rows; o is [head_dim_v][rows]; out may be a or b. */
KERNEL void merge_body(int hw, int rows, const attn_state *a, const attn_state *b,
                       const attn_state *out, int64_t head_dim_v)
{
    float wa[LANES], wb[LANES];
    int64_t k;
    int r;
    for (r = 0; r < rows; r++) {
        const float m = a->m[r] > b->m[r] ? a->m[r] : b->m[r];
        const float from = m == NEG_INF ? 0.0f : m;
        float x = a->m[r] - from;
        wa[r] = exp2_with(hw, x);
        x = b->m[r] - from;
        wb[r] = exp2_with(hw, x);
        x = a->l[r] * wa[r];
        out->l[r] = fma32(hw, b->l[r], wb[r], x);
        out->m[r] = m;
    }
    for (k = 0; k < head_dim_v * rows; k += rows)
        for (r = 0; r < rows; r++) {
            const float x = a->o[k + r] * wa[r];
            out->o[k + r] = fma32(hw, b->o[k + r], wb[r], x);
        }
}

/* ---- one call: its problem, its plan, its tiles. How they are made and used: attn.c */

typedef struct tuning {
    int64_t tile_keys, item_rows, item_bytes, split_work, ahead, auto_naive_keys;
} tuning;

typedef struct problem {
    attn_params p; /* strides explicit, counts and scale filled in; checked by section 7 */
    tuning tuning;
    int size_query; /* of attn_workspace_size: outputs may still be unknown */
    int64_t group;  /* query heads per kv head */
    int64_t max_q_len, max_kv_len;
    float factor;                       /* c: scale * log2(e), the factor on q */
    float cap2, icap2;                  /* softcap in base 2 */
    float keep_factor;                  /* 1 / (1 - dropout_p) */
    uint32_t drop_below;                /* Philox words below it drop their key */
    const attn_kernels *prefix_kernels; /* for the rows of all batch entries at once: section 13 */
    int prefix_tile_keys;
} problem;

/* Sequence b: rows and keys in use, where they lie, and how they are numbered. */
typedef struct sequence {
    int64_t b;
    int64_t q_row, q_len;     /* of row 0 along the seq axis of q, o, lse; rows in use */
    int64_t kv_row, kv_len;   /* the same for k and v, before ring and pages: see key_at */
    int64_t row_from, row_to; /* those of the rows in use that the call computes; */
    int64_t key_from, key_to; /* those of the keys that enter: p.part */
    int64_t column;           /* of key 0 in bias and masks: kv_begin[b] */
    int64_t offset;           /* pos(i) = i + offset */
    int64_t key_base;         /* n(j) = key_base + j */
    int64_t prefix;
} sequence;

/* Element offset of row i of head h in a tensor. */
#define ROW_AT(tensor, s, h, row)                                                                  \
    ((s)->b * (tensor).stride_batch + (h) * (tensor).stride_head + (row) * (tensor).stride_seq)

/* Rows of a batch entry of q, keys of one of k, that are there. */
static inline int64_t rows_held(const attn_params *p)
{
    return p->part.rows ? p->part.row_count : p->seq_len_q;
}

static inline int64_t keys_held(const attn_params *p)
{
    return p->part.keys ? p->part.key_count : p->seq_len_kv;
}

/* Number of a row among raw states: that of a packed lse. */
static inline int64_t state_row(const attn_params *p, const sequence *s, int64_t head, int64_t i)
{
    const int64_t entry = p->cu_seqlens_q ? 0 : s->b * p->num_heads_q;
    return (entry + head) * rows_held(p) + s->q_row + i;
}

static inline float sink_of(const attn_params *p, int64_t head)
{
    if (p->softmax1)
        return 0.0f;
    return p->sinks ? p->sinks[head] : NEG_INF;
}

/* n numbers from data[at..] as f32. */
static inline void load_run(const attn_kernels *kernels, int dtype, float *to, const void *data,
                            int64_t at, int64_t n)
{
    if (dtype == ATTN_F32)
        memcpy(to, (const float *)data + at, (size_t)n * sizeof *to);
    else
        (dtype == ATTN_F16 ? kernels->widen_f16
                           : kernels->widen_bf16)(to, (const uint16_t *)data + at, n);
}

/* n results, NaN canonical already and without -0, to data[at..]. */
static inline void store_run(const attn_kernels *kernels, int dtype, void *data, int64_t at,
                             const float *from, int64_t n)
{
    if (dtype == ATTN_F32)
        memcpy((float *)data + at, from, (size_t)n * sizeof *from);
    else
        (dtype == ATTN_F16 ? kernels->narrow_f16 : kernels->narrow_bf16)((uint16_t *)data + at,
                                                                         from, n);
}

/* A row of a tile: one lane. */
typedef struct lane {
    int used;        /* unused lanes hold zero queries; their results go nowhere */
    int64_t head, i; /* query head and row */
    int64_t choice;  /* number of the row among those chosen */
    int64_t pos;     /* i + offset */
    int64_t lo, hi;  /* the range masks leave keys lo..hi-1 */
} lane;

static inline attn_pair pair_of(const sequence *s, const lane *at, int64_t j)
{
    attn_pair pair;
    pair.batch = s->b;
    pair.head = at->head;
    pair.i = at->i;
    pair.j = j;
    pair.pos = s->key_base + at->pos;
    pair.n = s->key_base + j;
    return pair;
}

/* The rectangle hull of a tile: what a mask needs to know about all of its lanes. */
typedef struct hull {
    int64_t head_begin, head_end, i_begin, i_end;
} hull;

/* Which flattened rows a tile takes: rows first, first + 1, ... of `count` rows of `heads`
 * heads. */
typedef struct row_choice {
    int64_t head0, heads, first, count;
    const int32_t *list; /* NULL = row number c is c */
} row_choice;

/* How the keys of each row tile are divided among workers: section 12. */
typedef struct split {
    int parts; /* nodes of 2^level chunks each; 0 = not divided */
    int level;
    int inside;              /* so many of the last parts, chunks then, are divided themselves, */
    int tiles;               /* into tiles of keys, */
    int64_t columns, slices; /* and V into slices of so many columns */
    int64_t items;           /* whole parts and tiles of keys, of all row tiles */
    int64_t states_bytes, bytes; /* of shared memory for a row tile */
    /* offsets into the memory of a chunk that is divided */
    int64_t s, alpha, high, blocks, counts, chunk_bytes;
} split;

typedef struct plan {
    const attn_kernels *kernels;
    int impl;             /* TILED or NAIVE */
    int rows, keys;       /* of a tile */
    int small;            /* little memory before speed */
    int64_t worker_bytes; /* that a worker's row tiles may share */
    int item_tiles;       /* row tiles of an item of the first list, which share K and V tiles */
    int state_slots;      /* (m, l, o) states that the merge tree may hold at once */
    int64_t tiles;        /* items per kv head: per batch entry, or in all with varlen */
    int64_t items;        /* first list: o, lse, states */
    int64_t logits_tiles, logits_items; /* second list: logits */
    split split;
    int64_t matrix_floats; /* naive: logits, m and l of one head */
    int64_t state_floats;  /* rows * (head_dim_v + 2) */
    int64_t pitch[2];      /* K, V: floats between rows of the copy of a tile; 0 = not copied */
    int in_place[2];       /* f32 that does not alias: copied only where pages part it */
    /* offsets into a slot, in bytes */
    int64_t stage, row_in, row_out, s, x, lane_values, lane_keys, alpha, blocks, alive, copy[2];
    int64_t matrix, operand_runs, ahead_runs, row_tiles;
    /* offsets into a row tile; each of the slot's row tiles has row_tile_bytes */
    int64_t lanes, qt, states, row_tile_bytes;
    int64_t slot_bytes, shared_bytes;
    int64_t prefix_keys; /* that all rows of the batch take together first; 0 = none */
    int64_t prefix_items;
    const char *prefix_why; /* why shared_keys changes nothing; NULL = it does, or is 0 */
    int workers;
    int modified; /* a modifier of logits is on */
    int by_pair;  /* so is a mask that may hide whole tiles between others */
    int ahead;    /* products ask for what the next ones read */
} plan;

enum { KEYS, VALUES };
#define MAX_LEVELS 64

/* The tile of K and V that a worker's row tiles read at the moment, as f32 rows. */
typedef struct key_tile {
    int64_t j0;
    int n;
    int copied_from[2]; /* so many rows of K and V are not copied, those behind them are */
    float *copy[2];
    int64_t item;  /* whose rows the slot's row tiles hold; -1 = none (split items) */
    int64_t asked; /* the row tile that comes first to a key asks for what comes after */
} key_tile;

/* A canonical block of keys inside a tile, cut short by the tile's ends. */
typedef struct block {
    int end;
    attn_lanes lanes; /* none of the others sees a key of it */
    int raised;       /* o *= alpha before it enters */
} block;

/* A row tile. The pointers up to `matrix` lead to what the row tiles of a slot share. */
typedef struct tile {
    const problem *pr;
    const plan *pl;
    key_tile *keys;
    float *stage;         /* [rows][head_dim or head_dim_v], row-major: queries in, results out */
    const float **row_in; /* [rows] queries */
    float **row_out;      /* [rows] results */
    float *s_tile;        /* [keys][rows] logits, then probabilities */
    float *x_tile;        /* [keys][rows] bias or distances */
    float *lane_values;
    int *lane_keys; /* [2][rows] clip: begin and end */
    float *alpha;   /* [block][rows] */
    block *blocks;
    uint8_t *alive; /* [keys][rows] from key alive_from on, for PARTIAL tiles of rules by pair */
    float *matrix;  /* naive: this head's logits */
    const char **operand_runs, **ahead_runs; /* where rows of K or V lie */
    sequence s;
    int64_t entry_rows; /* 0 = the rows are of s; else so many rows of each batch entry follow */
    int64_t kv_head;
    hull hull;                /* of the used lanes */
    int used;                 /* how many lanes are used */
    attn_lanes span;          /* first to last of them */
    int64_t lo, hi;           /* union of the lanes' ranges */
    int64_t all_from, all_to; /* and their intersection */
    int64_t alive_from;
    int64_t column, columns; /* of V: all of them, or those of a slice */
    int by_pair; /* the class of the current tile came from rules by pair: see `alive` */
    int block_count;
    float dead; /* what softmax stores for a dead key: +0, or ATTN_DEAD in a redo */
    lane *lanes;
    float *qt;    /* [head_dim][rows] */
    float *state; /* of the current chunk; NULL until a key of it is visible */
    float *free_states[MAX_LEVELS];
    int free_count;
    float *pending[MAX_LEVELS]; /* by tree level */
} tile;

/* One call of attn_forward: lies at the start of the workspace, read-only for the items but for
 * `failed`. */
typedef struct call {
    problem pr;
    plan pl;
    float *shared;
    char *slots;
    int slot_count;
    int64_t items; /* of the list that runs */
    void (*item)(const struct call *c, char *slot, int64_t index);
    unsigned failed;
} call;

/* What attn.c lends to the files that build on it; what each does stands there, under its name. */
typedef struct attn_core {
    attn_status (*validate)(const attn_params *in, problem *pr, int need_data, text *why);
    void (*settle_workers)(attn_params *p);
    int (*choose_impl)(const attn_params *p);
    sequence (*sequence_of)(const attn_params *p, int64_t b);
    void (*visible_range)(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                          int64_t *hi);
    attn_status (*check_call)(const attn_params *p, const void *workspace, size_t bytes, text *why);
    int (*has_modifier)(const attn_params *p);
    int (*set_rows)(tile *t, const row_choice *choice);
    int (*tile_class)(tile *t, int64_t j0, int n);
    attn_lanes (*lanes_in_range)(const tile *t, int64_t j0, int n);
    void (*change_logits)(tile *t, float *s, int64_t j0, int n, int stage);
    void (*hide_dead)(tile *t, float *s, int64_t j0, int n, int visible);
    void (*apply_score)(tile *t, float *s, int64_t j0, int n);
    void (*drop_keys)(const tile *t, float *probabilities, int64_t j0, int n);
    void (*copy_key_tile)(tile *t, int64_t j0, int n);
    void (*write_lanes)(tile *t, const attn_output *to, int64_t dim, const float *x, const float *l,
                        float factor);
    attn_status (*run_items)(call *c, int64_t items,
                             void (*item)(const call *c, char *slot, int64_t index));
    attn_status (*size_of_call)(const attn_params *asked, problem *pr, text *why, size_t *bytes);
    attn_status (*forward_cpu)(const attn_params *p, void *workspace, size_t bytes);
    double (*visible_pairs)(const attn_params *p);
    void (*plan_call)(const problem *pr, plan *pl, int small, int64_t worker_bytes);
    attn_status (*check_size_limit)(const problem *pr, const plan *pl, text *why);
    int (*ask_backend)(const attn_params *p, text *why);
    int64_t (*split_items)(const plan *pl);
    void (*put_tuning)(const problem *pr, const plan *pl, text *why);
    void (*put_missing_kernels)(text *why);
} attn_core;

ATTN_API const attn_core *attn_core_get(void);

#endif /* ATTN_INTERNAL */
