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
/* ATTN_RENAMES: tools/amalgamate.sh puts a line for each public function here. */
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

#include "backend.h"
#include "explain.h"
#include "options.h"
#include "merge.h"
#include "rope.h"
#include "cache.h"
#include "backward.h"
#include "resume.h"
#include "patterns.h"
#include "dilated.h"
#include "ring.h"

#ifdef __cplusplus
}
#endif

#endif /* ATTN_H */
