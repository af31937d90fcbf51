/* attn.h - exact attention for CPUs in two files, C99, no dependencies.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * tools/amalgamate.sh makes this file from src/api/: edit there. docs/house.md is the map.
 *
 *     O = softmax(softcap(scale * Q K^T) + bias, masked) V
 *
 * The library computes this by the online softmax, so memory does not grow with the sequence
 * length. To use it, copy attn.h and attn.c into a project and compile them with any C99 compiler;
 * no flags are needed. Every mask and variant is a field of one struct, attn_params, in which zero
 * means "off" or "the usual". The result has the same bits on every CPU, for any number of threads,
 * any batch and any chunking of a prompt (docs/canon.md).
 *
 * CONTENTS
 *
 * Most callers need only the ten lines of the synopsis, the conventions behind it and the fields of
 * attn_params that they set. The parts of this file are, in order:
 *
 *   Version and errors      attn_status says what went wrong.
 *   Arrays                  attn_tensor and attn_output describe q, k, v, o and lse.
 *   Masks                   attn_mask, attn_block_mask and callbacks hide keys from rows.
 *   What changes a logit    attn_bias and a callback change logits before the softmax.
 *   Caches                  attn_rows says where keys lie in ring buffers and pages.
 *   Further outputs         attn_logits and attn_state return more than o and lse.
 *   Parts of a call         attn_part names some of the rows or some of the keys.
 *   How to compute          attn_impl, tuning, workers and logs say how a call runs.
 *   The call                attn_params has a field for each of the above.
 *   Basic call              attn_workspace_size, attn_forward and attn_check run a call.
 *   Helpers                 These functions make slopes, convert types and name kernel sets.
 *
 * The levels follow, and each begins with the name of its source, src/api/NAME.h:
 *
 *   explain                 attn_explain tells how a call would run, and why.
 *   options                 attn_params_from_string reads options of a command line.
 *   merge                   attn_state_merge joins results over different keys.
 *   rope                    attn_rope_apply rotates q and k by their positions.
 *   cache                   attn_cache keeps keys and values while text is generated.
 *   backward                attn_backward computes gradients for training.
 *   resume                  attn_resume_step fetches keys tile by tile, e.g. from a file.
 *   patterns                attn_pattern builds block-sparse masks such as BigBird.
 *   dilated                 attn_dilated_forward is the attention of LongNet.
 *   ring                    attn_ring_forward divides one sequence among many ranks.
 *   backend                 attn_backend lets a device run calls; its authors read this.
 *
 * Including attn.h and linking attn.c gives every part above. attn_opencl.h adds a backend for
 * GPUs, attn_mpi.h adds a transport for rings, and attn_simd.h is for authors of kernels.
 * LEVELS='forward cache' sh tools/amalgamate.sh DIR writes an attn.h and attn.c with fewer levels.
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
 * Memory. The library never allocates. The caller gives one workspace per call, which may have any
 *   alignment and any content; attn_workspace_size tells the size that is best. The stack in use is
 *   2 to 3.8 KiB deep, and below 4 KiB in every build measured (tests/stack.sh), unless a level
 *   says otherwise.
 * Threads. The library starts no threads. If p.parallel_for and p.num_workers are set, that
 *   callback gets independent pieces of work, in up to five lists one after the other; where heads
 *   and row tiles are fewer than workers, as in decoding, the keys are divided, too. Without the
 *   callback the library uses OpenMP if compiled with it, and else runs in the calling thread.
 *   Every function may run in many threads at once if workspaces and outputs are distinct. The
 *   number of threads never changes a bit of the result.
 * Errors. Every function that can fail returns an attn_status. attn_check turns it into a sentence
 *   with the name and value of the field. After an error other than ATTN_ERR_CALLBACK nothing was
 *   written.
 * Strides. A stride counts elements and may be negative. A stride of 0 means packed [batch, head,
 *   seq, dim] in tensors and arrays with an entry per token, and it means broadcast in the bias and
 *   in boolean masks. ATTN_STRIDE_BROADCAST shares any input along an axis. The last dimension is
 *   always contiguous. Data need only be aligned for its element type.
 * Aliasing. o, lse, states and logits must not overlap any input, the workspace or each other.
 * Order. logit = softcap(scale * q.k) + bias + ALiBi comes first, then the score callback changes
 *   the logit, then all masks apply, and then softmax takes the sink in. A key is visible only if
 *   every mask shows it.
 * Positions. Query row i stands at pos(i) = i + offset among the keys j = 0, 1, ... of its
 *   sequence, and p.alignment chooses the offset. Causal, window, chunked, prefix and ALiBi compare
 *   pos(i) with j. The absolute number of a key is n(j) = key_base + j.
 * Empty rows. A row without a visible key gives O = +0 and LSE = -inf, or the sink where there is
 *   one.
 * NaN and Inf. A value that a mask hides or a length leaves out never shows, even if it is NaN or
 *   Inf. A NaN or +inf logit of a visible key makes its row NaN and no other. A bias of -inf
 *   masks its key.
 * Determinism. Equal inputs give equal bits; docs/canon.md states the order of operations and its
 *   limits, which are rounding to nearest and no subnormal intermediate. This holds only if the
 *   caller's callbacks are pure.
 * Limits. Sizes have 64 bits and are checked against overflow of the address space. Finite inputs
 *   give finite results while every partial sum of q.k, scale * log2(e) times it, and
 *   2^16 * kv_len * max|v| stay below 2^127; beyond that IEEE arithmetic decides.
 *
 * MACROS that a user may define before including attn.h and for compiling attn.c are these alone:
 *
 *   ATTN_API         decorates every public function; its default is nothing.
 *   ATTN_STATIC      makes every function static, for projects that #include "attn.c" in one file;
 *                    that file then shares the internal names (put, text, tile, plan, ...).
 *   ATTN_PREFIX      is put before every public function name, e.g. -DATTN_PREFIX=my_.
 *   ATTN_SIMD_AVX2, ATTN_SIMD_NEON, ...   tell attn.c that the attn_simd_*.c file of that name is
 *                    linked as well.
 *   ATTN_ASSERT(x)   checks internal assumptions; its default is nothing.
 */

#ifndef ATTN_H
#define ATTN_H

#include <stddef.h>
#include <stdint.h>

/* ------------------------------------------------------------------------------------------------
 * Version and errors
 * --------------------------------------------------------------------------------------------- */

#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0
#define ATTN_VERSION_STRING "0.1.0"

/* This number changes when the canonical order of operations of docs/canon.md changes. */
#define ATTN_NUMERICS_VERSION 2

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
#define attn_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_workspace_size)
#define attn_forward ATTN_JOIN(ATTN_PREFIX, attn_forward)
#define attn_check ATTN_JOIN(ATTN_PREFIX, attn_check)
#define attn_status_string ATTN_JOIN(ATTN_PREFIX, attn_status_string)
#define attn_version ATTN_JOIN(ATTN_PREFIX, attn_version)
#define attn_params_size ATTN_JOIN(ATTN_PREFIX, attn_params_size)
#define attn_alibi_slopes ATTN_JOIN(ATTN_PREFIX, attn_alibi_slopes)
#define attn_convert ATTN_JOIN(ATTN_PREFIX, attn_convert)
#define attn_dropout_keep ATTN_JOIN(ATTN_PREFIX, attn_dropout_keep)
#define attn_kernels_get ATTN_JOIN(ATTN_PREFIX, attn_kernels_get)
#define attn_kernels_find ATTN_JOIN(ATTN_PREFIX, attn_kernels_find)
#define attn_kernels_name ATTN_JOIN(ATTN_PREFIX, attn_kernels_name)
#define attn_impl_name ATTN_JOIN(ATTN_PREFIX, attn_impl_name)
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

/* Every function that can fail returns one of these; docs/troubleshooting.md has an entry for
 * each. */
typedef enum attn_status {
    ATTN_OK = 0,          /* The call succeeded. */
    ATTN_ERR_ARG,         /* A field or a combination of fields is wrong. */
    ATTN_ERR_OVERFLOW,    /* Sizes or strides exceed the address space. */
    ATTN_ERR_WORKSPACE,   /* The workspace is missing or too small. */
    ATTN_ERR_UNSUPPORTED, /* The request is sensible, but it is not built. */
    ATTN_ERR_CALLBACK,    /* parallel_for or a backend failed, and outputs are undefined. */
    ATTN_ERR_FULL         /* A cache has no room for the keys, and nothing was changed. */
} attn_status;

/* ------------------------------------------------------------------------------------------------
 * Arrays
 * --------------------------------------------------------------------------------------------- */

/* An attn_dtype says how numbers are stored, in the machine's byte order. Arithmetic is in f32 for
 * every one of them. */
typedef enum attn_dtype {
    ATTN_F32 = 0, /* Elements are float. */
    ATTN_F16 = 1, /* Elements are uint16_t with the bits of IEEE binary16. */
    ATTN_BF16 = 2 /* Elements are uint16_t with the bits of bfloat16, the upper half of a float. */
} attn_dtype;

/* This stride makes every index of an axis read the same data; only inputs may have it. */
#define ATTN_STRIDE_BROADCAST PTRDIFF_MIN

/* An attn_tensor is an input whose element (b, h, s, d) lies at
 * data[b*stride_batch + h*stride_head + s*stride_seq + d]. */
typedef struct attn_tensor {
    /* dtype is an attn_dtype; 0 means ATTN_F32. */
    int dtype;
    /* Each stride counts elements; 0 means packed. */
    ptrdiff_t stride_batch, stride_head, stride_seq;
    const void *data;
} attn_tensor;

/* An attn_output is an output that is addressed as an attn_tensor is; no axis of it may be
 * broadcast. */
typedef struct attn_output {
    /* dtype is an attn_dtype; 0 means ATTN_F32. */
    int dtype;
    /* Each stride counts elements; 0 means packed. */
    ptrdiff_t stride_batch, stride_head, stride_seq;
    void *data;
} attn_output;

/* ------------------------------------------------------------------------------------------------
 * Masks
 *
 * Causal, prefix, window, chunked, segments and trees are plain fields of attn_params. The types of
 * this part are for alignment, boolean masks, block masks and callbacks. All masks compose: a key
 * is visible to a row if every mask shows it.
 *
 * Trees. With p.tree_parents, for speculative decoding, the last q_len keys of a sequence (the last
 * seq_len_q without q_len) are nodes of a tree, and node i is query row i. A query sees all earlier
 * keys, its ancestors and itself. pos(i) counts nodes and not depth, so window, chunked and ALiBi
 * take hidden siblings for keys between.
 * --------------------------------------------------------------------------------------------- */

/* An attn_alignment chooses the offset of pos(i) = i + offset. */
typedef enum attn_alignment {
    ATTN_ALIGN_BOTTOM_RIGHT = 0, /* The last row is at the last key: offset = kv_len - q_len. */
    ATTN_ALIGN_TOP_LEFT = 1,     /* Row 0 is at key 0: offset = 0. */
    ATTN_ALIGN_OFFSET = 2        /* The caller gives it: offset = p.q_offset[b]. */
} attn_alignment;

/* p.window takes this value where the window is on. */
#define ATTN_WINDOW 1

/* An attn_mask is a boolean mask [batch, num_heads_q, seq_len_q, seq_len_kv] in which nonzero means
 * visible. Rows and columns are addressed as in attn_bias. */
typedef struct attn_mask {
    /* If invert is nonzero, nonzero elements are hidden instead. */
    int invert;
    /* Strides count bytes in p.bool_mask and bits in p.bit_mask, where bit n is bit n%8 of byte
     * n/8; 0 broadcasts the axis. */
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv;
    /* NULL turns the mask off. */
    const uint8_t *data;
} attn_mask;

/* An attn_block_mask shows or hides whole cells: cell (i / block_q, j / block_k) decides about
 * query row i and key j of a sequence. The caller gives a bitmap or CSR arrays, but not both.
 *
 * Cell (r, c) of a bitmap is bit b*stride_batch + h*stride_head + r*stride_row + c, and 1 means
 * visible; bits are counted as in attn_mask. In the CSR form the visible columns of row r are
 * columns[row_offsets[r]] to columns[row_offsets[r+1] - 1], strictly ascending, where row_offsets
 * is moved by b*csr_stride_batch + h*csr_stride_head.
 *
 * i and j count within the sequence. With cu_seqlens, CSR therefore needs the rows of the longest
 * sequence, and a packed row of the bitmap still has ceil(seq_len_kv / block_k) bits. */
typedef struct attn_block_mask {
    /* A cell covers block_q rows and block_k keys; 0 in both turns the mask off. */
    int64_t block_q, block_k;
    /* These strides of the bitmap count bits; 0 shares it along the axis. */
    ptrdiff_t stride_batch, stride_head;
    /* stride_row counts bits; 0 means packed: ceil(seq_len_kv / block_k). */
    ptrdiff_t stride_row;
    /* bitmap is NULL where the CSR form is given. */
    const uint8_t *bitmap;
    /* These strides count entries of row_offsets; 0 shares the rows along the axis. */
    ptrdiff_t csr_stride_batch, csr_stride_head;
    /* row_offsets has one entry per row of cells and one more; NULL means there is no CSR form. */
    const int32_t *row_offsets;
    /* columns is given exactly where row_offsets is. */
    const int32_t *columns;
} attn_block_mask;

/* An attn_pair is one (query, key) pair as callbacks see it. */
typedef struct attn_pair {
    /* head is the head of the query. */
    int64_t batch, head;
    /* i is the row of this call, and j is the key of the sequence. */
    int64_t i, j;
    /* These positions are absolute: pos = key_base + i + offset and n = key_base + j. */
    int64_t pos, n;
} attn_pair;

/* An attn_rect is a rectangle of pairs: rows i_begin to i_end-1 of heads head_begin to head_end-1
 * against keys j_begin to j_end-1. To get absolute positions, add offset to i and key_base to i and
 * j. */
typedef struct attn_rect {
    int64_t batch, head_begin, head_end, i_begin, i_end, j_begin, j_end, offset, key_base;
} attn_rect;

/* An attn_tile_class is what p.mask_tile returns about a rectangle. */
typedef enum attn_tile_class {
    ATTN_TILE_EMPTY = 0,   /* No pair of the rectangle is visible. */
    ATTN_TILE_PARTIAL = 1, /* p.mask has to be asked about each pair. */
    ATTN_TILE_FULL = 2     /* Every pair is visible. */
} attn_tile_class;

/* A mask callback returns nonzero where the pair is visible. It is called on workers, calls may
 * overlap, and it must not throw or longjmp. */
typedef int (*attn_mask_fn)(void *user, const attn_pair *at);

/* A classifier returns the attn_tile_class of a rectangle, under the rules of attn_mask_fn. */
typedef int (*attn_mask_tile_fn)(void *user, const attn_rect *at);

/* ------------------------------------------------------------------------------------------------
 * What changes a logit
 * --------------------------------------------------------------------------------------------- */

/* An attn_bias is an additive bias [batch, num_heads_q, seq_len_q, seq_len_kv]. It is added to the
 * capped logit and is not scaled. A bias of -inf masks its key, whatever the score is. Columns are
 * the caller's: key j has column kv_begin[b] + j. With cu_seqlens, rows and columns start at 0 in
 * each sequence. */
typedef struct attn_bias {
    /* dtype is ATTN_F32, ATTN_F16 or ATTN_BF16. */
    int dtype;
    /* Each stride counts elements; 0 broadcasts the axis. */
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv;
    /* NULL turns the bias off. */
    const void *data;
} attn_bias;

/* A score callback gets a natural logit and returns the one to use. It is called on workers, calls
 * may overlap, and it must not throw or longjmp. */
typedef float (*attn_score_fn)(void *user, const attn_pair *at, float logit);

/* ------------------------------------------------------------------------------------------------
 * Caches
 *
 * Shared keys (cascade attention). With p.shared_keys = n the caller promises that keys 0 to n-1, K
 * and V, are equal in every batch entry, as those of a system prompt are. The rows of all entries
 * then go over these keys together and read them once, from entry 0; reading keys is the part of
 * decoding that waits for memory. The bits of the result do not change. The keys are shared only if
 * all of this holds:
 *
 *   - impl is tiled, the batch has 2 or more entries, and cu_seqlens is not used;
 *   - an entry has at most 64 rows (q_len * group) per kv head, and all have one key_base;
 *   - whole blocks, which end where n(j) is a multiple of 16, hold at least 64 shared keys, and
 *     every row sees all of these;
 *   - there is no bias, ALiBi, dropout, callback or mask but causal, window and chunked;
 *   - there are row tiles for at least half of the workers.
 *
 * Otherwise nothing changes, and attn_explain says why. Each entry needs its own copy of the shared
 * keys all the same, as any copy may be read. The workspace then also holds the states of all rows,
 * about (head_dim_v + 2) * (3 + log2(shared_keys / 1024)) + head_dim floats for each; if it is
 * smaller, each entry reads its own copy.
 * --------------------------------------------------------------------------------------------- */

/* An attn_rows says where the keys of a sequence lie if they do not follow one another from the
 * first row of the batch entry on. Column c of sequence b is row r = begin[b] + c, or r - ring
 * where that sum reaches ring. Without pages, row r lies in the batch entry, and a ring makes k and
 * v [batch, num_heads_kv, ring, head_dim].
 *
 * With pages, row r is slot r % page_size of page table[b*table_stride + r / page_size]. k and v
 * then are [num_pages, num_heads_kv, page_size, head_dim], stride_batch lies between pages, and all
 * sequences share the pages. attn_rows cannot be used with cu_seqlens_kv. attn_cache_view fills it
 * in. */
typedef struct attn_rows {
    /* ring is the number of rows of a sequence, after which they start over, and is at least
     * kv_begin + kv_len; 0 turns the ring off. */
    int64_t ring;
    /* begin[batch] holds the row of column 0, below ring; it needs a ring, and NULL means 0. */
    const int32_t *begin;
    /* page_size is the number of rows of a page; 0 means that there are no pages. */
    int64_t page_size;
    /* num_pages is the number of pages that k and v hold. */
    int64_t num_pages;
    /* table is [batch, pages of a sequence]; entries that no key in use needs are not read. */
    const int32_t *table;
    /* table_stride lies between batch entries; 0 means packed: ceil(rows / page_size), where rows
     * is ring or, without a ring, seq_len_kv. */
    ptrdiff_t table_stride;
} attn_rows;

/* ------------------------------------------------------------------------------------------------
 * Further outputs
 * --------------------------------------------------------------------------------------------- */

/* An attn_logits_stage is a point at which logits can be asked for. */
typedef enum attn_logits_stage {
    ATTN_LOGITS_RAW = 0,     /* Logits are scale * q.k, unmasked. */
    ATTN_LOGITS_SOFTCAP = 1, /* Logits have passed softcap and are unmasked. */
    ATTN_LOGITS_BIAS = 2,    /* Bias, ALiBi and score callback are in; invisible keys have -inf. */
    ATTN_LOGITS_SOFTMAX = 3  /* These are probabilities before dropout; invisible keys have +0. */
} attn_logits_stage;

/* An attn_logits asks for logits or probabilities of chosen rows: f32, packed [batch, num_heads_q,
 * num_rows, seq_len_kv]. Columns are the caller's (kv_begin[b] + j), and columns outside the
 * sequence hold -inf, or +0 at stage SOFTMAX. A row beyond q_len[b] is left untouched. With
 * cu_seqlens the columns of each sequence start at 0, and rows count within it. */
typedef struct attn_logits {
    /* stage is an attn_logits_stage. */
    int stage;
    /* num_rows is the number of chosen rows; 0 means all seq_len_q rows where rows is NULL. */
    int64_t num_rows;
    /* rows[num_rows] are row numbers i for every batch entry and head; NULL means 0, 1, .... */
    const int32_t *rows;
    /* NULL turns this output off. */
    float *data;
} attn_logits;

/* An attn_state is the raw state of rows, all f32. With x = logit * log2(e) over the keys so far, m
 * is the running maximum of x, l is the sum of 2^(x - m), and o is the sum of 2^(x - m) * v. Rows
 * are numbered as in a packed lse. An empty row holds (-inf, 0, 0). */
typedef struct attn_state {
    /* num_rows is read by attn_state_merge alone; the other functions take the sizes of p. */
    int64_t num_rows;
    /* head_dim_v is read by attn_state_merge alone. */
    int64_t head_dim_v;
    /* m and l are [row], and o is [row, head_dim_v]. */
    float *m, *l, *o;
} attn_state;

/* ------------------------------------------------------------------------------------------------
 * Parts of a call
 * --------------------------------------------------------------------------------------------- */

/* An attn_part makes a call compute some of its rows or use some of its keys. It serves sequences
 * that do not lie in one memory: shards on other machines, or keys that come from a file. All other
 * fields of attn_params describe the whole call: lengths, positions, masks, bias, per-token arrays.
 *
 * Where `rows` is set, q, o, lse and state (and dout, dlse, dq of attn_backward) hold only rows
 * row_begin to row_begin + row_count - 1. Where `keys` is set, k and v (and dk, dv) hold only keys
 * key_begin to key_begin + key_count - 1, in the caller's columns. The first row of these arrays
 * is row row_begin or key key_begin; packed strides and the numbers of states go by these counts.
 *
 * Rows of a part have the bits of the whole call. For a part of the keys the caller asks for the
 * raw state (p.partial) and merges it with the states of the other parts; attn_state_merge says
 * when the merged state is canonical. A part cannot be used with cu_seqlens, kv_rows, logits or
 * impl naive. */
typedef struct attn_part {
    /* Nonzero makes row_begin and row_count, or key_begin and key_count, count; 0 means all rows or
     * all keys. */
    int rows, keys;
    /* Nonzero, with keys and partial, continues p.state: it holds what earlier parts of this chunk
     * of 1024 keys (by n) left, or (-inf, 0, 0) in the beginning. The result is canonical if all
     * parts but the last end where n is a multiple of 16. The keys in use of a sequence with rows
     * must lie in one chunk. */
    int continued;
    /* These are the rows of the part if `rows` is set, and 0 otherwise. */
    int64_t row_begin, row_count;
    /* These are the keys of the part if `keys` is set, and 0 otherwise. */
    int64_t key_begin, key_count;
} attn_part;

/* ------------------------------------------------------------------------------------------------
 * How to compute
 *
 * Tuning texts. p.tuning points to the text of a file that `bench tune` wrote for this machine. Its
 * words are `attn-tuning 1`, then any number of `[SET.]NAME VALUE`, then `end`. # begins a comment,
 * and line ends are white space. SET is the name of a kernel set; lines for sets that do not run
 * are skipped. NAME is tile_keys, item_rows, item_bytes, split_work, ahead or auto_naive_keys
 * (tuning_values of attn.c lists their ranges). The last line about a name counts, but p.tile_keys
 * and p.auto_naive_keys take precedence. A damaged text is ignored, and p.log and attn_explain say
 * why.
 * --------------------------------------------------------------------------------------------- */

/* An attn_impl is a way to compute the result. */
typedef enum attn_impl {
    ATTN_IMPL_DEFAULT = 0, /* This is TILED at every length. */
    ATTN_IMPL_TILED = 1,   /* The online softmax over tiles of keys needs memory for a tile only. */
    ATTN_IMPL_NAIVE = 2,   /* The textbook holds the logits of a head: the readable baseline. */
    ATTN_IMPL_AUTO = 3     /* NAIVE runs up to p.auto_naive_keys keys, else TILED: bits differ. */
} attn_impl;

/* ATTN_IMPL_AUTO takes NAIVE up to this seq_len_kv by default, as it was at most 2 % faster
 * (README.md). */
#define ATTN_AUTO_NAIVE_KEYS 0

/* A task does piece `index` of a list of work, in the scratch memory of `worker`. */
typedef void (*attn_task_fn)(void *arg, int64_t index, int worker);

/* A parallel_for runs task(arg, index, worker) once for each index from 0 to n-1, in any order, and
 * returns when all are done. Workers are numbered from 0 to p.num_workers-1, and no two tasks may
 * run with one number at a time. It returns 0, or nonzero when it failed; attn_forward then returns
 * ATTN_ERR_CALLBACK. */
typedef int (*attn_parallel_for_fn)(void *user, int64_t n, attn_task_fn task, void *arg);

/* An attn_log_level says whether a log sentence only informs or also warns. */
typedef enum attn_log_level { ATTN_LOG_INFO = 0, ATTN_LOG_WARNING = 1 } attn_log_level;

/* A log callback hears sentences about a call; level is an attn_log_level. */
typedef void (*attn_log_fn)(void *user, int level, const char *text);

/* An attn_kernels is a set of kernels for one instruction set; see attn_kernels_get. */
typedef struct attn_kernels attn_kernels;

/* An attn_backend is a device that runs calls; its fields are at the end of this file. */
typedef struct attn_backend attn_backend;

/* ------------------------------------------------------------------------------------------------
 * The call
 * --------------------------------------------------------------------------------------------- */

/* An attn_params is everything about one call. Set it to zero, then assign: zero is the default of
 * every field. Pointers are NULL where a feature is off. */
typedef struct attn_params {
    /* ---- sizes. A batch or seq_len_q of 0 leaves nothing to do, and a seq_len_kv of 0 makes every
     * row empty. */

    /* batch is the number of independent sequences, packed or not. */
    int64_t batch;
    /* num_heads_q is the number of query heads, at least 1. */
    int64_t num_heads_q;
    /* num_heads_kv must divide num_heads_q (GQA; 1 = MQA), and query head h reads kv head
     * h / (num_heads_q / num_heads_kv); 0 means num_heads_q. */
    int64_t num_heads_kv;
    /* seq_len_q is the number of rows of q and o per batch entry, or in all with cu_seqlens_q. */
    int64_t seq_len_q;
    /* seq_len_kv is the number of keys per batch entry, or in all with cu_seqlens_kv. */
    int64_t seq_len_kv;
    /* head_dim is the number of elements of one q and k vector, at least 1. */
    int64_t head_dim;
    /* head_dim_v is the number of elements of one v and o vector; 0 means head_dim. */
    int64_t head_dim_v;
    /* scale is the factor on q.k. scale * log2(e) must be finite; 0 means 1/sqrt(head_dim). */
    float scale;

    /* ---- tensors. With cu_seqlens the packed order of q, k, v and o is [token, head, dim], and
     * stride_batch is not used. */

    /* q is [batch, num_heads_q, seq_len_q, head_dim]. */
    attn_tensor q;
    /* k is [batch, num_heads_kv, seq_len_kv, head_dim], unless kv_rows says otherwise. */
    attn_tensor k;
    /* v is [batch, num_heads_kv, seq_len_kv, head_dim_v], unless kv_rows says otherwise. */
    attn_tensor v;
    /* o is [batch, num_heads_q, seq_len_q, head_dim_v]; its data may be NULL where lse, state or
     * logits are asked for. */
    attn_output o;
    /* lse is f32 [batch, num_heads_q, seq_len_q], or [num_heads_q, token] with cu_seqlens_q, and
     * gets the natural log of the sum of exp(logit) and of the sink; NULL data turns it off. */
    attn_output lse;

    /* ---- lengths of each batch entry. They are counts, and 0 is allowed. */

    /* q_len[batch] counts the rows in use, and others are not read or written; NULL means all. */
    const int32_t *q_len;
    /* kv_len[batch] counts the keys in use from kv_begin on; NULL means all. */
    const int32_t *kv_len;
    /* kv_begin[batch] is the first key in use (left padding): key j is column kv_begin + j of k, v,
     * bias, masks and kv_segments; NULL means 0. */
    const int32_t *kv_begin;
    /* cu_seqlens_q[batch + 1] packs sequences of various lengths: sequence b is rows cu[b] to
     * cu[b+1]-1; NULL means not packed. */
    const int32_t *cu_seqlens_q;
    /* cu_seqlens_kv[batch + 1] packs keys and needs cu_seqlens_q; without it k and v are not
     * packed, and cu_seqlens_q then needs kv_len. */
    const int32_t *cu_seqlens_kv;
    /* key_base[batch] is the position of the first key, 0 to 2^58; NULL means 0. */
    const int64_t *key_base;
    /* kv_rows says where the keys of a cache lie; all 0 means one after the other. */
    attn_rows kv_rows;
    /* shared_keys is the number of first keys that are equal in every batch entry (see "Caches"),
     * at most seq_len_kv; 0 turns sharing off. */
    int64_t shared_keys;

    /* ---- position of the queries */

    /* alignment is an attn_alignment and matters to causal, window, chunked, prefix and ALiBi. */
    int alignment;
    /* q_offset[batch] is given with ATTN_ALIGN_OFFSET alone and may be negative. */
    const int32_t *q_offset;

    /* ---- masks. A key is visible if every one of them shows it. */

    /* Nonzero makes key j visible only if j <= pos(i). */
    int causal;
    /* prefix[batch] makes keys j < prefix[b] visible in spite of causal; NULL means 0. */
    const int32_t *prefix;
    /* ATTN_WINDOW makes key j visible only if pos(i) - window_left <= j <= pos(i) + window_right; 0
     * means off. */
    int window;
    /* window_left counts the keys before one's own position; -1 means unbounded. */
    int64_t window_left;
    /* window_right counts the keys after one's own position; -1 means unbounded. */
    int64_t window_right;
    /* chunk_size shows a row only the keys whose floor((key_base + position) / chunk_size) equals
     * its own (chunked attention); 0 means off. */
    int64_t chunk_size;
    /* q_segments [batch, seq_len_q], or [token] with cu_seqlens, are document ids, and a row sees
     * only the keys of its own id; NULL means off. */
    const int32_t *q_segments;
    /* kv_segments [batch, seq_len_kv], or [token] with cu_seqlens, is given exactly where
     * q_segments is. */
    const int32_t *kv_segments;
    /* q_segments_stride lies between batch entries; 0 means packed. */
    ptrdiff_t q_segments_stride;
    /* kv_segments_stride lies between batch entries; 0 means packed. */
    ptrdiff_t kv_segments_stride;
    /* tree_parents [batch, seq_len_q], or [token] with cu_seqlens, holds the parent of node i (see
     * "Masks"), below i and counted within the sequence, or -1 for a root; NULL means off. */
    const int32_t *tree_parents;
    /* tree_stride lies between batch entries; 0 means packed. */
    ptrdiff_t tree_stride;
    /* bool_mask has one byte per pair, and its strides count bytes. */
    attn_mask bool_mask;
    /* bit_mask has one bit per pair, and its strides count bits. */
    attn_mask bit_mask;
    /* block_mask has one cell per block_q rows and block_k keys. */
    attn_block_mask block_mask;
    /* mask is called about single pairs; NULL means off. */
    attn_mask_fn mask;
    /* mask_tile may decide about tiles for mask; NULL makes every tile partial. */
    attn_mask_tile_fn mask_tile;

    /* ---- what changes a logit, in this order */

    /* A softcap c from 1e-30 to 1e30 makes the logit c * tanh(logit / c); 0 means off. */
    float softcap;
    /* bias is added to the logit. */
    attn_bias bias;
    /* alibi_slopes[num_heads_q] add -slope * |pos(i) - j|; NULL means off. */
    const float *alibi_slopes;
    /* alibi_stride lies between batch entries; 0 means one set of slopes for all of them. */
    ptrdiff_t alibi_stride;
    /* score gets each natural logit and returns another; it is not called for a logit of -inf or a
     * masked pair, and NULL means off. */
    attn_score_fn score;
    /* callback_user is the first argument of score, mask and mask_tile. */
    void *callback_user;

    /* ---- softmax */

    /* sinks[num_heads_q] is one more logit per head, without a value, neither scaled nor capped;
     * -inf means none for this head, and NULL means off. */
    const float *sinks;
    /* Nonzero gives every head a sink of 0 and excludes sinks. */
    int softmax1;
    /* dropout_p is the probability of dropping a key, in [0, 1); 0 means off. */
    float dropout_p;
    /* dropout_seed is the key of attn_dropout_keep. */
    uint64_t dropout_seed;

    /* ---- further outputs */

    /* Nonzero writes the raw state instead of o and lse; no sink enters, and logits of stage
     * SOFTMAX are not supported. */
    int partial;
    /* state is where partial writes. */
    attn_state state;
    /* logits asks for logits of chosen rows. */
    attn_logits logits;

    /* ---- how to compute. Nothing here changes a bit of an explicit impl. */

    /* impl is an attn_impl; 0 means tiled. */
    int impl;
    /* ATTN_IMPL_AUTO is naive up to this seq_len_kv; 0 means what tuning says, or else
     * ATTN_AUTO_NAIVE_KEYS. */
    int64_t auto_naive_keys;
    /* Nonzero makes naive hold the logits of all heads at once. */
    int naive_whole;
    /* tile_keys is the largest number of keys of a tile: 16, 32, ... 1024; 0 leaves the choice to
     * the library. */
    int tile_keys;
    /* tuning is a text as described in "How to compute", ended by a zero byte; NULL means the usual
     * sizes. */
    const char *tuning;
    /* Nonzero always takes the second pass of docs/canon.md, "redo"; it serves tests. */
    int force_redo;
    /* kernels is the set to use; NULL means the best one linked in for this CPU and number of
     * rows. */
    const attn_kernels *kernels;
    /* backend is the device to use; NULL means the CPU. */
    const attn_backend *backend;
    /* num_workers is the number of workers that the workspace is sized for; 0 means 1, or OpenMP's
     * maximum. */
    int num_workers;
    /* parallel_for runs the pieces of work; NULL means OpenMP when compiled with it, and otherwise
     * a plain loop. */
    attn_parallel_for_fn parallel_for;
    /* parallel_user is the first argument of parallel_for. */
    void *parallel_user;
    /* log hears why a backend refused or failed a call and why a tuning text was ignored; NULL
     * means silence. */
    attn_log_fn log;
    /* log_user is the first argument of log. */
    void *log_user;

    /* ---- a part of the call */

    /* part names some of the rows or some of the keys; all 0 means the whole call. */
    attn_part part;
} attn_params;

/* ------------------------------------------------------------------------------------------------
 * Basic call
 * --------------------------------------------------------------------------------------------- */

/* attn_workspace_size() sets *bytes to the size of workspace that is best for attn_forward of *p.
 *
 * A smaller workspace works too, somewhat slower, with smaller tiles or fewer workers, down to what
 * one worker needs. One that was asked for with the largest seq_len_q and the largest seq_len_kv
 * therefore serves every shorter call that differs in nothing else: a prefill and, if seq_len_kv
 * was the final length, its decode steps. As a special case, where impl = AUTO changes to NAIVE the
 * caller must ask for both.
 *
 * Lengths and offsets are read; data of tensors is not, and may be NULL. On an error *bytes is 0.
 * Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW, ATTN_ERR_UNSUPPORTED (among others if a backend must run
 * the call but refuses it) or what a backend's sizing returns. */
ATTN_API attn_status attn_workspace_size(const attn_params *p, size_t *bytes);

/* attn_forward() computes attention as *p describes it.
 *
 * It reads q, k, v and the arrays of *p and writes o, lse, state and logits, those that are asked
 * for. Outputs must not overlap inputs, the workspace or each other. Two calls may run at once if
 * their workspaces and outputs are distinct. The algorithm is the online softmax (Milakov and
 * Gimelshein 2018, arXiv 1805.02867; Dao et al. 2022, arXiv 2205.14135), in the order of
 * docs/canon.md.
 *
 * Returns the errors of attn_workspace_size, ATTN_ERR_WORKSPACE, and ATTN_ERR_CALLBACK if
 * parallel_for or a backend failed. Nothing was written unless it is the last of these. */
ATTN_API attn_status attn_forward(const attn_params *p, void *workspace, size_t workspace_bytes);

/* attn_check() says in one English sentence what is wrong with *p and the workspace, or "ok".
 *
 * It writes at most text_bytes bytes, including the terminator, and returns text. As a special
 * case, it returns a constant string if text is NULL or text_bytes is 0. After ATTN_ERR_CALLBACK,
 * which only a run can show, it says "ok". It computes nothing and may run in any thread. */
ATTN_API const char *attn_check(const attn_params *p, const void *workspace, size_t workspace_bytes,
                                char *text, size_t text_bytes);

/* attn_status_string() returns a short name of a status, e.g. "workspace too small", and never
 * NULL. docs/troubleshooting.md has an entry under each name. */
ATTN_API const char *attn_status_string(attn_status status);

/* attn_version() returns the version of the library in the binary, e.g. "0.1.0". */
ATTN_API const char *attn_version(void);

/* attn_params_size() returns sizeof(attn_params) of the library in the binary. It differs from that
 * of the program if header and library do not match. */
ATTN_API size_t attn_params_size(void);

/* ------------------------------------------------------------------------------------------------
 * Helpers
 * --------------------------------------------------------------------------------------------- */

/* attn_alibi_slopes() writes the standard ALiBi slopes of num_heads heads, 1 to 2^20.
 *
 * They are 2^(-8 (h+1) / num_heads) if num_heads is a power of two; else the slopes of the next
 * lower power of two come first, and every other one of the next higher follows (Press et al. 2021,
 * arXiv 2108.12409). They are correct to 2 ulp and have the same bits everywhere. Returns
 * ATTN_ERR_ARG if slopes is NULL or num_heads is out of range. */
ATTN_API attn_status attn_alibi_slopes(float *slopes, int64_t num_heads);

/* attn_convert() converts n contiguous elements from one attn_dtype to another.
 *
 * It rounds to nearest even and stores every NaN in one canonical form. dst and src must not
 * overlap. Returns ATTN_ERR_ARG if a type is unknown, a pointer is NULL and n is not 0, or n is
 * beyond PTRDIFF_MAX / 4. */
ATTN_API attn_status attn_convert(void *dst, int dst_dtype, const void *src, int src_dtype,
                                  size_t n);

/* attn_dropout_keep() returns 1 if dropout keeps the pair *at, and 0 if it drops it.
 *
 * It compares word 0 of Philox4x32-10 (Salmon et al. 2011), keyed by the seed, with counter (n,
 * pos, head, batch), to floor(dropout_p * 2^32). A dropout_p of 1 or more keeps nothing, and one
 * that is not above 0 keeps everything. */
ATTN_API int attn_dropout_keep(uint64_t seed, float dropout_p, const attn_pair *at);

/* attn_kernels_get() returns kernel sets that this CPU can run. Index 0 is the best for many rows,
 * the last one is always "portable", and beyond it NULL is returned. */
ATTN_API const attn_kernels *attn_kernels_get(int index);

/* attn_kernels_find() returns the kernel set of that name, or NULL if the name is unknown or this
 * CPU cannot run it. */
ATTN_API const attn_kernels *attn_kernels_find(const char *name);

/* attn_kernels_name() returns the name of a kernel set, or "none" for NULL. */
ATTN_API const char *attn_kernels_name(const attn_kernels *kernels);

/* attn_impl_name() returns "default", "tiled", "naive" or "auto" for an attn_impl, as
 * attn_params_from_string takes it, and NULL for any other number. */
ATTN_API const char *attn_impl_name(int impl);

/* src/api/explain.h - how attn_forward would run a call, and why. */

/* An attn_info tells how a call would run. */
typedef struct attn_info {
    /* impl is the attn_impl that runs: TILED or NAIVE. */
    int impl;
    /* impl_name is "tiled" or "naive". */
    const char *impl_name;
    /* kernels_name is the kernel set, e.g. "portable_fma". */
    const char *kernels_name;
    /* backend_name is "cpu" or the name of the backend. */
    const char *backend_name;
    /* One tile has tile_rows query rows and tile_keys keys. */
    int tile_rows, tile_keys;
    /* workers is the number of workers that can run at once. */
    int workers;
    /* items counts the independent pieces of work: those of the longest list, where keys are
     * divided, and those of logits. */
    int64_t items;
    /* key_parts is the number of parts into which the keys of a row tile are divided, so that few
     * rows use all workers; 1 means that they are not divided. */
    int key_parts;
    /* These are the bytes that attn_workspace_size tells, and those of one worker among them. */
    size_t workspace_bytes, workspace_bytes_per_worker;
    /* pairs counts the pairs that lengths, causal, window, chunked and prefix leave visible. */
    double pairs;
    /* flops is 2 * pairs * (head_dim + head_dim_v). */
    double flops;
    /* bytes is the size of q, k, v, o and lse, each touched once. */
    double bytes;
    /* reasons says why this path was taken and not another, one sentence each, "; " between. */
    char reasons[512];
} attn_info;

/* attn_explain() fills in *info with how attn_forward would run *p in a workspace of the best size.
 *
 * Data of tensors is not read and may be NULL. It takes time in proportion to batch * seq_len_q
 * where causal, window or chunked is on. It may run in many threads at once. Returns the errors of
 * attn_workspace_size; after one that *p causes, info->reasons holds the sentence of attn_check. */
ATTN_API attn_status attn_explain(const attn_params *p, attn_info *info);

/* src/api/options.h - how people read and write a call: attn_info as lines, options as words. */

/* attn_info_format() writes *info as readable lines and returns text.
 *
 * It writes at most text_bytes bytes, including the terminator, and truncates what is longer. */
ATTN_API const char *attn_info_format(const attn_info *info, char *text, size_t text_bytes);

/* attn_params_from_string() overrides fields of *p by name.
 *
 * The text is, for example, "impl=naive kernels=portable workers=3 tile_keys=64 redo=1
 * naive_whole=1 auto_naive_keys=256", which are all the names; spaces or commas separate them. It
 * serves command lines and environment variables of the caller, as the library itself reads no
 * environment.
 *
 * Returns ATTN_ERR_ARG if a name or value is wrong or p or text is NULL; *p is then unchanged, and
 * why, which may be NULL, holds a sentence. */
ATTN_API attn_status attn_params_from_string(attn_params *p, const char *text, char *why,
                                             size_t why_bytes);

/* src/api/merge.h - results over parts of the keys become one.
 *
 * A call over a part of the keys gives either a raw state (p.partial) or a finished result with its
 * LSE. Raw states keep the bits of one call; finished results agree within a few ulp. All arrays
 * are f32 and packed. Functions may run in many threads at once if their outputs are distinct.
 */

/* attn_state_merge() sets *out to the states of two parts of the keys together, of which *a has the
 * lower keys.
 *
 * It merges out->num_rows rows of out->head_dim_v values; the sizes in *a and *b are not read. out
 * may be a or b. The merge is canonical, with the bits of one call, if each part covers a node of
 * the tree of docs/canon.md: 1024 * 2^k keys, aligned in n, or the tail. Other merges are
 * deterministic. Returns ATTN_ERR_ARG if a pointer is NULL or a size is negative. */
ATTN_API attn_status attn_state_merge(const attn_state *a, const attn_state *b, attn_state *out);

/* attn_state_finish() writes p->o and p->lse from raw states, and applies the sink and dropout's
 * factor of *p.
 *
 * The rows of *state are numbered as attn_forward with p->partial numbers them. Shapes, strides and
 * types of o and lse are those of *p; either may be off, but not both. Returns the errors of *p and
 * ATTN_ERR_ARG if an array of *state is NULL or no output is given. */
ATTN_API attn_status attn_state_finish(const attn_params *p, const attn_state *state);

/* attn_lse_merge() merges two finished results of num_rows rows over disjoint keys by their LSE.
 *
 * o_a, o_b and o_out are [num_rows, head_dim_v]; lse_a, lse_b and lse_out are [num_rows]. The
 * outputs may be the arrays of one input. At most one of the results may have had a sink. An empty
 * part leaves the other unchanged. The result is within a few ulp of one call and not
 * bit-identical. Returns ATTN_ERR_ARG if a pointer is NULL or a size is negative. */
ATTN_API attn_status attn_lse_merge(int64_t num_rows, int64_t head_dim_v, const float *o_a,
                                    const float *lse_a, const float *o_b, const float *lse_b,
                                    float *o_out, float *lse_out);

/* src/api/rope.h - rotary position embedding (RoPE: Su et al. 2021, arXiv 2104.09864).
 *
 * Each pair (x1, x2) of a head's elements is turned by the angle position * frequency:
 *
 *     y1 = c x1 - s x2        y2 = s x1 + c x2        c = cos, s = sin of the angle
 *
 * The frequency of pair i is base^(-2i/dim), changed by `scaling`.
 *
 *     attn_rope rope = {0};                     // base 10000, half-split, all of head_dim
 *     attn_rope_rows rows = {0};
 *     rows.batch = 1;  rows.num_heads = 32;  rows.seq_len = n;  rows.head_dim = 128;
 *     rows.x.data = q;  rows.y.data = q;        // in place
 *     rows.first = &position;                   // of row 0
 *     attn_rope_apply(&rope, &rows, why, sizeof why);
 *
 * Accuracy. Frequencies and angles are integers in units of 2^-64 turns. They are reduced to one
 *   turn exactly, need no libm and are equal on every machine. An angle is off by up to 5 * 2^-64
 *   turns a position, over freq_factors[i] where that is below 1. At random positions up to 2^20
 *   all 76800 values of cos and sin measured were the nearest float; up to 2^24 all but 3 of 51200
 *   were, and up to 2^31 all but 138 of 25600. Most programs multiply a float position by a float
 *   frequency, and their angles are wrong by up to 2^-23 of the angle; to get their bits, give
 *   their tables. docs/canon.md states the order of operations.
 * Values. Turned elements hold no -0 and only one NaN, as all outputs of the library do. Elements
 *   that are not turned are bit-exact copies if x and y have one type.
 * Memory, threads, strides. The conventions of attn.h hold: nothing is allocated, and every
 *   function may run in many threads at once if outputs are distinct. The stack stays below 4 KiB.
 * Errors. Functions return ATTN_ERR_ARG or ATTN_ERR_OVERFLOW and put a sentence into why, which may
 *   be NULL. Nothing was written then.
 */

/* An attn_rope_scaling stretches the positions of a model beyond its training. */
typedef enum attn_rope_scaling {
    ATTN_ROPE_NONE = 0,   /* Frequencies stay as they are. */
    ATTN_ROPE_LINEAR = 1, /* It divides all frequencies (Chen et al. 2023, arXiv 2306.15595). */
    ATTN_ROPE_NTK = 2,    /* The base becomes base * factor^(dim / (dim - 2)). */
    ATTN_ROPE_YARN = 3,   /* This is the scaling of Peng et al. 2023, arXiv 2309.00071. */
    ATTN_ROPE_LLAMA3 = 4  /* It divides low frequencies and keeps high ones, as Llama 3.1 does. */
} attn_rope_scaling;

/* An attn_rope says how rows turn. Set it to zero, then assign: zero is every field's default. */
typedef struct attn_rope {
    /* The first dim elements of a head turn and the others pass through; dim is even and at most
     * 2^24, and 0 means head_dim. */
    int64_t dim;
    /* Pairs are (i, i + dim/2) if this is 0, as in NeoX ("half-split"), else (2i, 2i + 1), as in
     * GPT-J. */
    int interleaved;

    /* ---- angles that are computed. A field that means nothing with this scaling must be 0 or 1,
     * except original_length, which is then not read. */

    /* base is above 1; 0 means 10000. */
    float base;
    /* scaling is an attn_rope_scaling. */
    int scaling;
    /* factor is that of scaling, by which LINEAR divides frequencies, at least 1; 0 means 1. */
    float factor;
    /* original_length is the number of positions that the model was first trained on; YARN and
     * LLAMA3 need it. */
    int64_t original_length;
    /* With YARN these are turns over the original length; 0 means 32 and 1. */
    float beta_fast, beta_slow;
    /* LLAMA3 takes these factors; 0 means 1 and 4. */
    float low_freq_factor, high_freq_factor;
    /* attention_factor multiplies cos and sin; 0 means 1, or 0.1 ln(factor) + 1 with YARN. */
    float attention_factor;
    /* freq_factors[dim/2] divide the frequencies before scaling, as the factors of LongRoPE or
     * those stored in GGUF files do; each is at least 1e-6, and NULL means 1. With YARN and LLAMA3,
     * which compare frequencies, each is at least 0.16, so that frequencies stay below a turn a
     * position. */
    const float *freq_factors;

    /* ---- or angles that are given. Of the fields above only dim and interleaved then count. */

    /* cos and sin are [num_positions, dim/2]; both are given, or both are NULL. */
    const float *cos, *sin;
    /* num_positions is the number of positions in the tables, from 0 on. */
    int64_t num_positions;
    /* table_stride lies between positions; 0 means dim/2. */
    ptrdiff_t table_stride;
} attn_rope;

/* An attn_rope_rows names the rows to turn. Element (b, h, i, d) lies at
 * data[b*stride_batch + h*stride_head + i*stride_seq + d], and strides of 0 mean packed [batch,
 * num_heads, seq_len, head_dim]. */
typedef struct attn_rope_rows {
    int64_t batch, num_heads, seq_len, head_dim;
    /* x holds the rows, in any storage type. */
    attn_tensor x;
    /* y gets the turned rows, in any storage type; it may be x itself (equal data, strides and
     * type) and must otherwise not overlap it. */
    attn_output y;
    /* positions [batch, seq_len] are from -2^31 to 2^31; NULL means first[b] + i. */
    const int64_t *positions;
    /* positions_stride lies between batch entries; 0 means packed. */
    ptrdiff_t positions_stride;
    /* first[batch] is the position of row 0 and cannot be given with positions; NULL means 0. */
    const int64_t *first;
} attn_rope_rows;

/* attn_rope_apply() writes the turned rows of x to y. */
ATTN_API attn_status attn_rope_apply(const attn_rope *rope, const attn_rope_rows *rows, char *why,
                                     size_t why_bytes);

/* attn_rope_table() writes the cos and sin of positions first to first+count-1, [count, dim/2]
 * each, that attn_rope_apply would use.
 *
 * They serve as rope.cos and rope.sin, which saves their computation and changes no bit. head_dim
 * is that of attn_rope_rows and is used where rope->dim is 0. Positions are from -2^31 to 2^31, and
 * *rope must not have a table itself. */
ATTN_API attn_status attn_rope_table(const attn_rope *rope, int64_t head_dim, int64_t first,
                                     int64_t count, float *cos, float *sin, char *why,
                                     size_t why_bytes);

/* src/api/cache.h - caches of keys and values for generating text: contiguous, ring, paged.
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
 * Numbers. The keys of a sequence have numbers 0, 1, 2, ... from its beginning, and numbers begin
 *   to end-1 are present. After a roll-back new keys get the numbers that became free. Key j of a
 *   view is number begin + j, and its key_base is begin. Positions, masks and bits of a result are
 *   therefore those of an uncut, unpaged, unwrapped sequence (docs/canon.md).
 * Rows. A sequence has `rows` rows, which is capacity or, if paged, capacity rounded up to whole
 *   pages. Number n lies in row n modulo rows. If the cache is contiguous, that is a row of the
 *   sequence's own storage. If it is paged, it is slot row % page_size of page
 *   table[row / page_size]. Appending keys takes pages from a free list, and trimming gives them
 *   back. A page counts the sequences that share it and is copied before one of them writes to it.
 * Ring. With c.ring the oldest keys make room for new ones, and a query may look back at
 *   c.window_left keys. A ring of window_left + n rows can take steps of n keys and can roll back n
 *   keys.
 * Layers. All layers of a model share numbers, lengths and tables. Call attn_cache_extend once a
 *   step, then attn_cache_write and attn_cache_view for each layer. attn_cache_append does both for
 *   a cache of one layer.
 * Memory. Nothing is allocated: attn_cache_size tells what attn_cache_init needs, with any
 *   alignment. Storage may be the caller's own instead, if c.k.data and c.v.data are set before.
 *   All of it stays in place as long as the cache or a view of it is used. The stack stays below 4
 *   KiB.
 * Aliasing. The storage of K, the storage of V, the k and v of a step and the outputs of
 *   attn_cache_read must not overlap.
 * Threads. A function that takes a const attn_cache may run in many threads at once; any other
 *   needs the cache for itself. attn_cache_write needs its layer's rows of its sequences for
 *   itself: writes, reads and attn_forward of other layers or other sequences may run beside it.
 * Errors. A function that fails puts a sentence into why, which may be NULL. Nothing was changed
 *   then, neither in the cache nor elsewhere, unless the function says otherwise.
 */

/* An attn_cache_layout is the order of the axes where strides are packed. */
typedef enum attn_cache_layout {
    ATTN_CACHE_HND = 0, /* Storage is [sequence or page, head, row, dim]. */
    ATTN_CACHE_NHD = 1  /* Storage is [sequence or page, row, head, dim]. */
} attn_cache_layout;

/* An attn_cache is a cache of some sequences. Set it to zero, assign the shape, then call
 * attn_cache_size and attn_cache_init. */
typedef struct attn_cache {
    /* ---- shape. It must not be changed after attn_cache_init. */

    /* num_sequences is the number of sequences that have room, at least 1. */
    int64_t num_sequences;
    /* num_layers is the number of layers; 0 means 1. */
    int64_t num_layers;
    /* num_heads_kv is the number of kv heads, at least 1. */
    int64_t num_heads_kv;
    /* head_dim is the number of elements of one k vector, at least 1. */
    int64_t head_dim;
    /* head_dim_v is the number of elements of one v vector; 0 means head_dim. */
    int64_t head_dim_v;
    /* capacity is the largest number of keys of a sequence, at least 1. */
    int64_t capacity;
    /* page_size is the number of keys of a page; 0 means that the cache is not paged. */
    int64_t page_size;
    /* num_pages is the number of pages of all sequences; 0 means as many as they can need. */
    int64_t num_pages;
    /* Nonzero lets the oldest keys make room for new ones. */
    int ring;
    /* window_left is how many keys before its own a query of a ring may see, below capacity; with 0
     * it sees all that are there, and results depend on what the ring still has. */
    int64_t window_left;
    /* layout is an attn_cache_layout. */
    int layout;
    /* k and v give the storage types in dtype, each its own, and the caller's storage of all layers
     * in data; where data is NULL the storage lies in the memory of attn_cache_init. stride_batch
     * lies between sequences or, if paged, between pages; stride_seq lies between rows; 0 means
     * packed in `layout`. */
    attn_output k, v;
    /* These strides lie between layers; 0 means packed: [layer, ...]. */
    ptrdiff_t k_stride_layer, v_stride_layer;

    /* ---- state. The functions below set it, and callers may read it. */

    /* rows is the number of rows of a sequence. */
    int64_t rows;
    /* pages_per_sequence is the number of entries of a sequence's table. */
    int64_t pages_per_sequence;
    /* In begin[num_sequences] and end[num_sequences], numbers begin to end-1 are present. */
    int64_t *begin, *end;
    /* overwritten_below[num_sequences] says that numbers below it made room in the ring; it leaves
     * out those that the caller had forgotten before. */
    int64_t *overwritten_below;
    /* length[num_sequences] is end - begin. */
    int32_t *length;
    /* first_row[num_sequences] is the row of number begin. */
    int32_t *first_row;
    /* table [num_sequences, pages_per_sequence] holds the pages of a paged cache; -1 means none. */
    int32_t *table;
    /* uses[num_pages] counts the sequences that have this page. */
    int32_t *uses;
    /* free_pages[num_pages] begins with num_free pages that are free, and the last is next. */
    int32_t *free_pages;
    /* num_free is the number of free pages. */
    int64_t num_free;
} attn_cache;

/* An attn_cache_step is a set of new keys and values. Set it to zero, then assign. */
typedef struct attn_cache_step {
    /* batch is the number of sequences that get keys; 0 leaves nothing to do. */
    int64_t batch;
    /* sequences[batch] names them, each at most once; NULL means 0, 1, .... */
    const int32_t *sequences;
    /* seq_len is the number of rows of k and v per batch entry, or in all with cu_seqlens. */
    int64_t seq_len;
    /* len[batch] counts the rows in use, and 0 is allowed; NULL means all. */
    const int32_t *len;
    /* cu_seqlens[batch + 1] packs rows: entry b has rows cu[b] to cu[b+1]-1; NULL means not
     * packed. */
    const int32_t *cu_seqlens;
    /* k is [batch, num_heads_kv, seq_len, head_dim], or [token, head, dim] with cu_seqlens, in f32
     * or the type of the cache. */
    attn_tensor k;
    /* v is [batch, num_heads_kv, seq_len, head_dim_v], or [token, head, dim] with cu_seqlens, in
     * f32 or the type of the cache. */
    attn_tensor v;
    /* rope turns keys to their positions before they are stored; NULL stores them as they are. */
    const attn_rope *rope;
    /* positions [batch, seq_len], or [token] with cu_seqlens, are for rope; NULL means each key's
     * number. */
    const int64_t *positions;
} attn_cache_step;

/* attn_cache_size() sets *bytes to what attn_cache_init needs for the shape in *c.
 *
 * Returns ATTN_ERR_ARG or ATTN_ERR_OVERFLOW. As a special case, a cache that is ready is refused:
 * set *c to zero and assign again. */
ATTN_API attn_status attn_cache_size(const attn_cache *c, size_t *bytes, char *why,
                                     size_t why_bytes);

/* attn_cache_init() makes *c an empty cache of its shape, in memory that stays the caller's.
 *
 * Storage is not cleared. Returns the errors of attn_cache_size, and ATTN_ERR_WORKSPACE if the
 * memory is NULL or too small. */
ATTN_API attn_status attn_cache_init(attn_cache *c, void *memory, size_t bytes, char *why,
                                     size_t why_bytes);

/* attn_cache_extend() makes room for the keys of *s: ends advance, pages are taken, shared pages
 * are copied, and a ring loses its oldest keys.
 *
 * It does not read k, v, rope and positions of *s. A step has at most rows - window_left keys of a
 * sequence of a ring, as otherwise the ring would lose what the step's first query looks at.
 * Returns ATTN_ERR_ARG, and ATTN_ERR_FULL if that limit, the capacity or the pages do not suffice
 * for all keys. */
ATTN_API attn_status attn_cache_extend(attn_cache *c, const attn_cache_step *s, char *why,
                                       size_t why_bytes);

/* attn_cache_write() stores one layer's k and v of the step *s by which the cache was extended
 * last.
 *
 * If it fails, the new numbers are present all the same, with undefined rows; attn_cache_trim takes
 * them back, which a ring always allows. Returns ATTN_ERR_ARG or ATTN_ERR_OVERFLOW. */
ATTN_API attn_status attn_cache_write(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                                      char *why, size_t why_bytes);

/* attn_cache_append() extends and writes a cache of one layer. Returns their errors. */
ATTN_API attn_status attn_cache_append(attn_cache *c, const attn_cache_step *s, char *why,
                                       size_t why_bytes);

/* attn_cache_trim() keeps only numbers begin to end-1 of a sequence, and the next key gets number
 * end.
 *
 * The numbers must be present. A lower end rolls back, a higher begin forgets the oldest keys, and
 * (begin, begin) empties the sequence. As a special case, (0, 0) is always allowed and starts
 * afresh. Pages without a key are given back.
 *
 * A ring cannot roll back to an end whose query would look at keys that were overwritten, and
 * returns ATTN_ERR_ARG. Keys that the caller forgets are not looked at: raising begin forgets all
 * keys below it, overwritten ones included, and so does emptying. */
ATTN_API attn_status attn_cache_trim(attn_cache *c, int64_t sequence, int64_t begin, int64_t end,
                                     char *why, size_t why_bytes);

/* attn_cache_fork() begins the empty sequence `to` as sequence `from` is up to number end-1.
 *
 * It shares pages if the cache is paged, and copies rows otherwise. Returns ATTN_ERR_ARG if `to` is
 * `from` or not empty, if the numbers are not present, or if a ring could not roll back to end. */
ATTN_API attn_status attn_cache_fork(attn_cache *c, int64_t from, int64_t to, int64_t end,
                                     char *why, size_t why_bytes);

/* attn_cache_view_size() sets *bytes to what attn_cache_view needs for `batch` chosen sequences.
 *
 * Returns ATTN_ERR_ARG or ATTN_ERR_OVERFLOW. */
ATTN_API attn_status attn_cache_view_size(const attn_cache *c, int64_t batch, size_t *bytes,
                                          char *why, size_t why_bytes);

/* attn_cache_view() sets those fields of *p that say what is cached in a layer.
 *
 * Entry b of the batch is sequences[b], in any order. NULL means 0, 1, ... and needs no memory;
 * otherwise arrays of the view lie in `memory`, of any alignment. The arrays are those of the cache
 * at this moment: take a new view after every change.
 *
 *   - batch, num_heads_kv, head_dim, head_dim_v, k, v, kv_len, key_base and kv_rows get what the
 *     cache has; kv_begin and cu_seqlens_kv become NULL.
 *   - seq_len_kv, the number of columns, becomes rows, and attn_workspace_size with kv_len = NULL
 *     then tells a size that serves for good. The caller may lower it down to the largest kv_len.
 *   - shared_keys of a paged cache becomes the number of keys in pages with which all entries
 *     begin, and 0 otherwise. The caller may set it afterwards if more keys are equal.
 *   - The window of a ring with a window_left is set if it is off; if it is on, its left side must
 *     not exceed c->window_left. As the window stays in *p, begin each view with *p set to zero.
 *
 * Columns of bias, masks and segments, prefix and q_offset count from the first key that is
 * present. With a ring only the rows of the last step, at most rows - window_left, are sure to find
 * all their keys. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW, or ATTN_ERR_WORKSPACE if the memory is
 * too small. */
ATTN_API attn_status attn_cache_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                                     int64_t batch, attn_params *p, void *memory, size_t bytes,
                                     char *why, size_t why_bytes);

/* attn_cache_read() copies keys and values of numbers first to first+count-1 of a sequence to *k
 * and *v.
 *
 * Both are [num_heads_kv, count, dim], in f32 or as stored, and their stride_batch is not used.
 * Where k or v or its data is NULL, it is not wanted. Returns ATTN_ERR_ARG if the numbers are not
 * present, or ATTN_ERR_OVERFLOW. */
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
 *   2205.14135, algorithm 4), so memory grows with the sequence length and never with its square.
 *   With S = final logits, P = exp(S - LSE), delta = rowsum(dout * o) - dlse:
 *
 *     dV = P^T dout   dP = dout V^T   dS = P * (dP - delta)   dQ = scale dS K   dK = scale dS^T Q
 *
 *   dS passes the derivative of the score callback before dbias and dslopes are taken from it, and
 *   then that of softcap. With dropout, dP and the P of dV take the factor keep / (1 - dropout_p).
 * What may be set in p. Every field may be set but partial and kv_rows: gradients of caches are not
 *   built. A part excludes dbias, and a part of the keys excludes dsinks. Logits are not computed,
 *   though refused where attn_forward refuses them. Where k or v is broadcast along an axis, dk and
 *   dv have that axis all the same, and the caller sums over it.
 * Textbook. p.impl = ATTN_IMPL_NAIVE holds P and dS of a head and reads neither o nor lse, but one
 *   output of the forward call must be set all the same.
 * Backends. p.backend runs the calls that it takes, and the CPU runs the others;
 *   attn_backward_explain says why.
 * What is written. Every element of dq, dk and dv of rows and keys in use (q_len, kv_len, kv_begin)
 *   is written, and so are all of dbias, dsinks and dslopes. Rows and keys that see nothing get +0.
 *   No result is -0.
 * Accuracy. Probabilities inherit the rounding of the LSE, which is f32. A relative error of about
 *   |LSE| 2^-24 therefore enters every gradient, which is 3e-5 at logits of 500.
 * Cost. The backward call takes five matrix products where the forward call takes two. dbias and
 *   dslopes compute S and dP once more each if they are sums.
 * Masked data. A key that a mask hides from a row does not show in that row's dq, and the row does
 *   not show in the key's dk and dv, even if there are NaN or Inf.
 * Determinism. Tiled gradients have the same bits on every CPU, for any number of threads and both
 *   values of g.gemms (docs/canon.md, "Gradients"). Sums over the batch (dbias, dsinks, dslopes) go
 *   in its order.
 * Memory. The caller gives a workspace of any alignment and content. The stack stays below 4 KiB.
 * Threads. p.parallel_for and p.num_workers are used as attn_forward uses them, and otherwise
 *   OpenMP if it is compiled in.
 * Aliasing. No output may overlap an input, another output or the workspace.
 * Errors. attn_backward_check turns a status into a sentence. After an error other than
 *   ATTN_ERR_CALLBACK nothing was written.
 */

/* A score derivative returns the derivative of p.score by the logit, at the logit that p.score was
 * given. It gets p.callback_user and is called on workers; calls may overlap. It must be pure, as
 * it may be asked for one pair several times. */
typedef float (*attn_score_derivative_fn)(void *user, const attn_pair *at, float logit);

/* An attn_bias_gradient is the gradient of the bias, f32 [batch, num_heads_q, seq_len_q,
 * seq_len_kv]. An axis along which p.bias has stride 0 is summed over; it has length 1 here, and
 * its stride is not used. With cu_seqlens, rows and columns start at 0 in each sequence, and these
 * axes have the length of the longest one. */
typedef struct attn_bias_gradient {
    /* Each stride counts elements; 0 means packed. */
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv;
    /* NULL means that the gradient is not wanted. */
    float *data;
} attn_bias_gradient;

/* An attn_gradients holds what goes in beside p, and what comes out. Set it to zero, then
 * assign. */
typedef struct attn_gradients {
    /* gemms is the number of matrix products for a tile: 5 divides the work by batch and kv head, 7
     * divides it by rows and then by keys and computes S and dP twice; 0 means the one that lets
     * the workers end first. */
    int gemms;

    /* ---- in */

    /* dout [batch, num_heads_q, seq_len_q, head_dim_v] is the gradient of the loss by o. */
    attn_tensor dout;
    /* dlse, f32 in the shape and packing of p.lse, is the gradient by lse; NULL data means 0. */
    attn_tensor dlse;
    /* score_derivative belongs to p.score and is given exactly where that is. */
    attn_score_derivative_fn score_derivative;

    /* ---- out. NULL data means that it is not wanted. Outputs have any storage type and are packed
     * as q, k and v are. */

    /* dq is [batch, num_heads_q, seq_len_q, head_dim]. */
    attn_output dq;
    /* dk is [batch, num_heads_kv, seq_len_kv, head_dim], summed over the heads of the group. */
    attn_output dk;
    /* dv is [batch, num_heads_kv, seq_len_kv, head_dim_v], summed over the heads of the group. */
    attn_output dv;
    /* dbias is the gradient of p.bias. */
    attn_bias_gradient dbias;
    /* dsinks[num_heads_q] is the gradient of p.sinks, summed over the batch. */
    float *dsinks;
    /* dslopes is the gradient of p.alibi_slopes, packed: [num_heads_q] summed over the batch, or
     * [batch, num_heads_q] with p.alibi_stride. */
    float *dslopes;
} attn_gradients;

/* attn_backward_workspace_size() sets *bytes to the size of workspace that is best.
 *
 * A smaller workspace works too, with fewer workers, down to what one needs. Lengths and offsets
 * are read; data of tensors is not. On an error *bytes is 0. Returns ATTN_ERR_ARG,
 * ATTN_ERR_OVERFLOW, ATTN_ERR_UNSUPPORTED, or ATTN_ERR_CALLBACK if a backend cannot size its
 * workspace. */
ATTN_API attn_status attn_backward_workspace_size(const attn_params *p, const attn_gradients *g,
                                                  size_t *bytes);

/* attn_backward() computes the gradients that *g asks for.
 *
 * It reads q, k, v, o, lse, dout, dlse and the arrays of *p. Returns the errors of
 * attn_backward_workspace_size, ATTN_ERR_WORKSPACE, and ATTN_ERR_CALLBACK if parallel_for or a
 * backend failed. */
ATTN_API attn_status attn_backward(const attn_params *p, const attn_gradients *g, void *workspace,
                                   size_t workspace_bytes);

/* attn_backward_check() says in one English sentence what is wrong, or "ok". It writes and returns
 * text as attn_check does. */
ATTN_API const char *attn_backward_check(const attn_params *p, const attn_gradients *g,
                                         const void *workspace, size_t workspace_bytes, char *text,
                                         size_t text_bytes);

/* An attn_backward_info tells how attn_backward would run. */
typedef struct attn_backward_info {
    /* impl is the attn_impl that runs: TILED or NAIVE. */
    int impl;
    /* gemms is 5 or 7. */
    int gemms;
    /* kernels_name is the kernel set, e.g. "portable_fma". */
    const char *kernels_name;
    /* backend_name is "cpu" or the name of the backend. */
    const char *backend_name;
    /* One tile has tile_rows query rows and tile_keys keys. */
    int tile_rows, tile_keys;
    /* workers is the number of workers that can run at once. */
    int workers;
    /* These are the bytes of the workspace, and those of one worker among them. */
    size_t workspace_bytes, workspace_bytes_per_worker;
    /* flops counts the five products over visible pairs; it leaves out sums for dbias and dslopes
     * and what 7 products compute twice. */
    double flops;
    /* reasons holds what p.backend says, and "" without one. */
    char reasons[200];
} attn_backward_info;

/* attn_backward_explain() fills in *info with how attn_backward would run. Returns the errors of
 * attn_backward_workspace_size. */
ATTN_API attn_status attn_backward_explain(const attn_params *p, const attn_gradients *g,
                                           attn_backward_info *info);

/* ---- for authors of backends */

/* These are the axes of an attn_sum_axes. */
enum { ATTN_AXIS_BATCH, ATTN_AXIS_HEAD, ATTN_AXIS_ROW, ATTN_AXIS_KEY };

/* An attn_sum_axes is an array of gradients that are summed over axes. Element (b, h, i, column)
 * lies where the strides say, and a summed axis has stride 0. An axis of length 1 is not summed. */
typedef struct attn_sum_axes {
    /* NULL means that the gradient is not wanted. */
    float *data;
    /* count holds the length of each axis before it is summed. */
    int64_t count[4];
    /* stride holds the elements between neighbours along each axis; 0 means summed. */
    ptrdiff_t stride[4];
    /* kept is nonzero for each axis that is not summed. */
    int kept[4];
} attn_sum_axes;

/* An attn_gradient_call holds the gradients that a backend is asked for. */
struct attn_gradient_call {
    /* g is what the caller gave, with its strides resolved. */
    attn_gradients g;
    /* bias and slopes say where dbias and dslopes go. */
    attn_sum_axes bias, slopes;
};

/* src/api/resume.h - attention in steps, over keys that come tile by tile: from a file, flash, a
 * network, a decompressor.
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
 * Memory. The caller's block holds one tile of K and V, the states of the rows and a workspace of
 *   attn_forward. Its size hardly depends on the number of keys: whenever that doubles, each row of
 *   a batch entry needs one more state. A million keys of 8 heads of 64 and one row take under
 *   1 MiB.
 * Bits. The result has the bits of attn_forward with all keys in memory, whatever the sizes of
 *   tiles and steps.
 * Order. Batch entries come one after the other, and the keys of each come in ascending order. A
 *   tile ends where n(j) is a multiple of tile_keys. A tile that lengths, causal, window, chunked
 *   and prefix hide from every row is not fetched.
 * What may be set in p. Every field may be set but partial, logits, cu_seqlens, kv_rows, part.keys
 *   and impl naive; every mask, modifier and callback sees the whole call. k and v give their
 *   storage types, and their data and strides are not used. shared_keys and backend change nothing.
 * Errors. Functions return a status, and attn_resume_check gives a sentence. Nothing is written to
 *   o and lse before attn_resume_end. A fetch that fails ends its step with ATTN_ERR_CALLBACK and
 *   leaves everything as it was before that tile: the next step asks for the tile again, or the
 *   caller gives up. After a failure of parallel_for every later call returns ATTN_ERR_CALLBACK.
 * Threads. p.parallel_for and p.num_workers work within a tile, by heads and rows. fetch is called
 *   by the thread that calls attn_resume_step. Several resumables may be under way at once, each
 *   used by one thread at a time.
 */

/* An attn_fetch asks for `count` keys of one batch entry and kv head, from column `first` on. */
typedef struct attn_fetch {
    int64_t batch, kv_head;
    int64_t first, count;
    /* k is to be filled with count * head_dim elements of p.k.dtype, row after row. */
    void *k;
    /* v is to be filled with count * head_dim_v elements of p.v.dtype, row after row. */
    void *v;
} attn_fetch;

/* A fetch callback fills tile->k and tile->v and returns 0, or returns nonzero if the keys cannot
 * be had. */
typedef int (*attn_fetch_fn)(void *user, const attn_fetch *tile);

/* An attn_resumable is a call under way. Callers read its first fields; the others are internal. */
typedef struct attn_resumable {
    /* These count tiles: those that are done and all of them. A tile is one of a batch entry, with
     * all its kv heads. */
    int64_t done, total;
    /* fetched counts keys times kv heads that fetch has delivered. */
    int64_t fetched;

    /* ---- internal */

    /* p is the call as given; arrays that it points to must last until the end. */
    attn_params p;
    /* tile is the call of one tile. */
    attn_params tile;
    attn_fetch_fn fetch;
    void *user;
    /* status is returned by every later call once it is an error. */
    attn_status status;
    /* q_len counts the rows of the entry under way in the tile's call, and 0 for the others. */
    int32_t *q_len;
    /* k and v hold the keys of the tile. */
    char *k, *v;
    int64_t tile_keys, kv_heads, head_dim, head_dim_v;
    /* entry is the batch entry under way. */
    int64_t entry;
    /* next is the next key of that entry, and end is the one behind its last. */
    int64_t next, end;
    /* entry_rows is the number of states of a batch entry. */
    int64_t entry_rows;
    /* states are those of all rows: of the chunk under way, and of entries that are done. */
    attn_state states;
    /* pending holds nodes of the merge tree of the entry under way. */
    float *pending;
    /* slot_of is 1 + the slot where the node of a level waits; 0 means none. */
    unsigned char slot_of[64];
    void *workspace;
    size_t workspace_bytes;
} attn_resumable;

/* attn_resume_memory() sets *bytes to the size of memory that is best for attn_resume_begin.
 *
 * Less serves too, with a smaller workspace of attn_forward, down to what that needs. A tile has
 * tile_keys keys: 16, 32, ... 1024; 0 means as many, up to 128, as keep K and V within 256 KiB. It
 * does not look at k.data and v.data. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_resume_memory(const attn_params *p, int64_t tile_keys, size_t *bytes);

/* attn_resume_begin() starts a call in `memory`, which may have any alignment and must last until
 * the end.
 *
 * tile_keys is that of attn_resume_memory, and `user` is the first argument of fetch. Returns the
 * errors of attn_resume_memory, and ATTN_ERR_WORKSPACE if the memory is NULL or too small. */
ATTN_API attn_status attn_resume_begin(attn_resumable *r, const attn_params *p, int64_t tile_keys,
                                       attn_fetch_fn fetch, void *user, void *memory,
                                       size_t memory_bytes);

/* attn_resume_step() fetches and takes in up to `tiles` tiles. There are no more once r->done ==
 * r->total. Returns ATTN_ERR_ARG or ATTN_ERR_CALLBACK. */
ATTN_API attn_status attn_resume_step(attn_resumable *r, int64_t tiles);

/* attn_resume_end() writes o and lse. Before the last tile it returns ATTN_ERR_ARG, writes nothing,
 * and the call may go on. */
ATTN_API attn_status attn_resume_end(attn_resumable *r);

/* attn_resume_check() says in one English sentence what is wrong with the arguments of
 * attn_resume_begin, or "ok". It writes and returns text as attn_check does. */
ATTN_API const char *attn_resume_check(const attn_params *p, int64_t tile_keys, attn_fetch_fn fetch,
                                       const void *memory, size_t memory_bytes, char *text,
                                       size_t text_bytes);

/* src/api/patterns.h - block-sparse patterns of cells.
 *
 * A pattern fills p.block_mask, which says which cells of keys a cell of rows sees. It is built
 * once, into memory of the caller's, and serves any number of calls, of attn_backward as well:
 *
 *     attn_pattern t = attn_pattern_bigbird(3, 1, 3, 1234);  // or {0} and fields of your own
 *     t.seq_len_q = t.seq_len_kv = 16384;  t.causal = 1;
 *     attn_pattern_info info;                                // sizes and density
 *     attn_pattern_measure(&t, &info, why, sizeof why);
 *     int32_t *offsets = malloc(info.num_offsets * 4), *columns = malloc(info.num_columns * 4);
 *     attn_pattern_build(&t, offsets, info.num_offsets, columns, info.num_columns, NULL, 0);
 *     attn_pattern_use(&t, offsets, columns, &p);            // and p.causal = 1
 *
 * Memory, threads and errors follow the conventions of attn.h: nothing allocates, and after an
 * error nothing was written but a sentence in why, which may be NULL.
 */

/* An attn_pattern says which cells are visible: the union of the parts below, and none if all are
 * 0. Set it to zero, then assign.
 *
 * Cell (r, c) covers rows from r*block_q and keys from c*block_k on, and the last cells may be
 * shorter. Rows stand at the end of the keys, as ATTN_ALIGN_BOTTOM_RIGHT has them. The diagonal of
 * row r is every column that holds a key at the position of one of its rows. */
typedef struct attn_pattern {
    /* Nonzero leaves columns after the diagonal out of every part; p.causal still has to hide the
     * future within a cell. */
    int causal;
    /* These are the lengths of the calls to come. */
    int64_t seq_len_q, seq_len_kv;
    /* A cell covers block_q rows and block_k keys; 0 means 64. */
    int64_t block_q, block_k;
    /* num_heads gives each query head a pattern, and these differ in `random` alone; 0 means one
     * pattern for all heads. */
    int64_t num_heads;
    /* Nonzero shows the diagonal. */
    int local;
    /* local_before is how many columns before the diagonal are shown if local is set. */
    int64_t local_before;
    /* local_after is how many columns after the diagonal are shown if local is set. */
    int64_t local_after;
    /* global_columns is how many first columns every row sees. */
    int64_t global_columns;
    /* global_rows is how many first rows see every column. */
    int64_t global_rows;
    /* stride shows the diagonal and columns at a multiple of stride from it ("strided" of Child et
     * al. 2019, arXiv 1904.10509); 0 means off. */
    int64_t stride;
    /* fixed shows columns c with c mod fixed = fixed - 1 ("fixed" of Child et al. 2019); 0 means
     * off. */
    int64_t fixed;
    /* random is how many distinct cells each row sees besides, or all there are; they are drawn
     * from those that no other part shows, by a hash of seed, head, row and column that is equal on
     * every machine. */
    int64_t random;
    /* seed changes the hash of random. */
    uint64_t seed;
} attn_pattern;

/* attn_pattern_longformer() returns local and global parts: Longformer (Beltagy et al. 2020, arXiv
 * 2004.05150). */
ATTN_API attn_pattern attn_pattern_longformer(int64_t each_side, int64_t global);

/* attn_pattern_strided() returns local and strided parts, both of `stride` columns: Sparse
 * Transformer (Child et al. 2019, arXiv 1904.10509). */
ATTN_API attn_pattern attn_pattern_strided(int64_t stride);

/* attn_pattern_random() returns the diagonal and `count` random cells of each row. */
ATTN_API attn_pattern attn_pattern_random(int64_t count, uint64_t seed);

/* attn_pattern_bigbird() returns a local part of `window` columns in all, global rows and columns,
 * and a random part: BigBird (Zaheer et al. 2020, arXiv 2007.14062), which takes 3, 2 and 3 cells
 * of 64. */
ATTN_API attn_pattern attn_pattern_bigbird(int64_t window, int64_t global, int64_t random,
                                           uint64_t seed);

/* An attn_pattern_info holds the sizes of a pattern. */
typedef struct attn_pattern_info {
    /* heads is the number of patterns: num_heads, or 1. */
    int heads;
    /* These count rows and columns of cells. */
    int64_t rows, columns;
    /* num_offsets is the number of entries of row_offsets: heads * (rows + 1). */
    int64_t num_offsets;
    /* num_columns is the number of entries of columns: the visible cells of all heads. */
    int64_t num_columns;
    /* density is the share of visible cells among all cells. */
    double density;
} attn_pattern_info;

/* attn_pattern_measure() computes the exact sizes of a pattern.
 *
 * It takes as long as building the pattern, in proportion to the number of cells. Returns
 * ATTN_ERR_ARG, or ATTN_ERR_OVERFLOW if there are more cells than int32_t counts. */
ATTN_API attn_status attn_pattern_measure(const attn_pattern *t, attn_pattern_info *info, char *why,
                                          size_t why_bytes);

/* attn_pattern_build() writes the CSR form that attn_block_mask describes; the offsets of head h
 * begin at h * (rows + 1).
 *
 * num_offsets and num_columns count the entries that fit. Returns the errors of
 * attn_pattern_measure, and ATTN_ERR_WORKSPACE if the room is too small. */
ATTN_API attn_status attn_pattern_build(const attn_pattern *t, int32_t *row_offsets,
                                        int64_t num_offsets, int32_t *columns, int64_t num_columns,
                                        char *why, size_t why_bytes);

/* attn_pattern_use() sets p->block_mask and nothing else, so p.causal stays the caller's.
 *
 * The sizes of *p must be set before. Returns ATTN_ERR_ARG, and sets nothing, if seq_len_q or
 * seq_len_kv is not that of *t, or if *t has a pattern for each head and num_heads_q is not its
 * num_heads. */
ATTN_API attn_status attn_pattern_use(const attn_pattern *t, const int32_t *row_offsets,
                                      const int32_t *columns, attn_params *p);

/* src/api/dilated.h - dilated attention (LongNet, Ding et al. 2023, arXiv 2307.02486).
 *
 * Every branch cuts the sequence into segments and takes every r-th position of each; the results
 * of the branches become one.
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
 * Positions. A sequence has kv_len positions, and each of them is a key. The q_len rows are the
 *   last positions: all of them in training and prefill, a chunk of a prompt, or one token in
 *   decoding. Rows of a chunk have the bits that they have in one call.
 * Branches. Segment s of a branch is positions s*w to s*w + w-1, and the last may be shorter.
 *   Positions s*w + offset and every r-th after it take part, as rows and as keys, and see only
 *   each other. A branch counts them: causal, window and ALiBi compare these numbers, and n(j) of
 *   docs/canon.md is the number of a key in its segment. Bias and bool_mask have the caller's rows
 *   and keys.
 * Merging. ATTN_DILATED_LSE weighs branches by the denominators of their softmax. That is one
 *   softmax over the keys of all branches, in which a key counts once for each branch that shows it
 *   to the row. The bits are those of docs/canon.md: the branches' root states are merged in list
 *   order, then the sink. ATTN_DILATED_MEAN gives each branch its own softmax and takes the mean
 *   over the branches of the head; a branch that leaves the row out gives 0. It has no lse, sinks
 *   and softmax1.
 * Empty rows. A row that no branch takes gives O = +0 and LSE = -inf, or the sink where there is
 *   one.
 * Variants. Strided reads q, k and v where they lie and needs memory for a block of rows. Gathered
 *   copies what takes part and merges finished results by attn_lse_merge; it is the plain variant
 *   and needs memory in proportion to the length. The two agree within a few ulp, and in a mean bit
 *   for bit.
 * What may be set in p. These fields may be set: sizes (any grouping of heads), tensors with any
 *   strides and storage types, o, lse, q_len, kv_len, cu_seqlens, scale, causal, window, softcap,
 *   bias, bool_mask, ALiBi, sinks, softmax1, and how to compute except backend. Every other field
 *   is refused with a sentence.
 * Memory, errors, strides, aliasing. The conventions of attn.h hold: nothing allocates, and after
 *   an error nothing was written. The stack stays below 5 KiB in every build measured
 *   (tests/stack.sh).
 * Threads. A piece of work is a block of rows of the heads that share a kv head.
 */

/* An attn_dilated_merge says how the results of branches become one. */
typedef enum attn_dilated_merge {
    ATTN_DILATED_LSE = 0, /* Branches are weighed by the denominators of their softmax. */
    ATTN_DILATED_MEAN = 1 /* The result is the mean over branches. */
} attn_dilated_merge;

/* An attn_dilated_variant is a way to compute the result. */
typedef enum attn_dilated_variant {
    ATTN_DILATED_STRIDED = 0, /* Keys and values are read in place. */
    ATTN_DILATED_GATHERED = 1 /* Keys and values are copied. */
} attn_dilated_variant;

/* An attn_dilated_branch is one segment length and dilation. Set it to zero, then assign. */
typedef struct attn_dilated_branch {
    /* Nonzero makes query head h begin at position (offset + h) mod dilation of a segment, as
     * LongNet has it; 0 makes every head begin at offset. */
    int rotate;
    /* segment is w, the positions of a segment; 0 means that the whole sequence is one segment. */
    int64_t segment;
    /* dilation is r, and every r-th position takes part; 0 means 1, every position. */
    int64_t dilation;
    /* offset is the first position of a segment that takes part, 0 to dilation - 1. */
    int64_t offset;
    /* head_begin is the first query head that has this branch. */
    int64_t head_begin;
    /* head_count is the number of query heads that have it; 0 means all from head_begin on. */
    int64_t head_count;
} attn_dilated_branch;

/* An attn_dilated is a list of branches and how to join them. Set it to zero, then assign. */
typedef struct attn_dilated {
    /* merge is an attn_dilated_merge. */
    int merge;
    /* variant is the attn_dilated_variant of the forward call. */
    int variant;
    /* num_branches is the number of branches, at least 1. */
    int num_branches;
    /* branches[num_branches] are merged in this order. */
    const attn_dilated_branch *branches;
    /* block_rows is the number of rows of a piece of work of the strided variant; 0 leaves the
     * choice to the library, and no bit depends on it. */
    int64_t block_rows;
    /* index holds the positions that take part in the gathered variant, computed once by
     * attn_dilated_index for many calls with these branches; NULL computes them in each call. */
    const int32_t *index;
    /* index_positions is the seq_len_kv that index was made for, at least that of the call or, with
     * cu_seqlens, of its longest sequence. */
    int64_t index_positions;
} attn_dilated;

/* attn_dilated_workspace_size() sets *bytes to the size of workspace that is best for
 * attn_dilated_forward.
 *
 * A smaller workspace works too, with fewer workers, down to what one needs. One that was asked for
 * with the largest seq_len_q and seq_len_kv serves shorter calls that differ in nothing else. As a
 * special case, where impl = AUTO changes to NAIVE the caller must ask for both. Returns
 * ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_dilated_workspace_size(const attn_params *p, const attn_dilated *d,
                                                 size_t *bytes);

/* attn_dilated_forward() computes dilated attention and writes o and lse. Returns the errors of
 * attn_dilated_workspace_size, ATTN_ERR_WORKSPACE and ATTN_ERR_CALLBACK. */
ATTN_API attn_status attn_dilated_forward(const attn_params *p, const attn_dilated *d,
                                          void *workspace, size_t workspace_bytes);

/* attn_dilated_check() says in one English sentence what is wrong, or "ok". It writes and returns
 * text as attn_check does. */
ATTN_API const char *attn_dilated_check(const attn_params *p, const attn_dilated *d,
                                        const void *workspace, size_t workspace_bytes, char *text,
                                        size_t text_bytes);

/* attn_dilated_index_size() returns the number of entries of d->index for sequences of up to
 * `positions` positions. It returns 0 if *d is wrong, and attn_dilated_check then says why. */
ATTN_API int64_t attn_dilated_index_size(const attn_dilated *d, int64_t positions);

/* attn_dilated_index() writes an index that has room for `entries` entries.
 *
 * For each branch and each first position of its heads, ascending, it lists the positions that take
 * part. Returns ATTN_ERR_ARG if *d is wrong or the room is too small. */
ATTN_API attn_status attn_dilated_index(const attn_dilated *d, int64_t positions, int32_t *index,
                                        int64_t entries);

/* attn_dilated_backward_workspace_size() sets *bytes to the size of workspace that is best for
 * attn_dilated_backward, in proportion to the length. Less works too, with fewer workers, down to
 * what one needs. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_dilated_backward_workspace_size(const attn_params *p,
                                                          const attn_dilated *d,
                                                          const attn_gradients *g, size_t *bytes);

/* attn_dilated_backward() computes gradients, as attn_backward does, of the call that
 * attn_dilated_forward made of *p and *d.
 *
 * *g may ask for dq, dk, dv and dsinks and may give dlse; dbias and dslopes are refused. With
 * ATTN_DILATED_LSE it reads the o and lse of the forward call, which must have had both, and p.impl
 * is tiled. With a mean it reads neither, though p.o must be set all the same, and p.impl may be
 * any. Branches add up in list order in f32, so the result is deterministic for any number of
 * workers. A piece of work is a kv head of a batch entry, read in place whatever d->variant says.
 * Returns the errors of its workspace query, ATTN_ERR_WORKSPACE and ATTN_ERR_CALLBACK. */
ATTN_API attn_status attn_dilated_backward(const attn_params *p, const attn_dilated *d,
                                           const attn_gradients *g, void *workspace,
                                           size_t workspace_bytes);

/* attn_dilated_backward_check() says in one English sentence what is wrong, or "ok". It writes and
 * returns text as attn_check does. */
ATTN_API const char *attn_dilated_backward_check(const attn_params *p, const attn_dilated *d,
                                                 const attn_gradients *g, const void *workspace,
                                                 size_t workspace_bytes, char *text,
                                                 size_t text_bytes);

/* src/api/ring.h - context parallelism: one sequence over many ranks.
 *
 * Each rank (a process, a machine, a thread) holds some positions of a sequence: those rows of q
 * and o, those keys of k and v. Keys and values travel round the ring, from rank r to rank r + 1,
 * while each rank computes with those that it has (Ring Attention: Liu, Zaharia, Abbeel 2023, arXiv
 * 2310.01889). The caller says how ranks talk by four callbacks, e.g. those of attn_mpi.h.
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
 * The call. *p describes the whole problem and is equal on every rank: sizes, lengths, masks, bias,
 *   per-token arrays. Only q, k, v, o, lse (and dout, dlse, dq, dk, dv) hold the rank's own
 *   positions, its ranges one after the other, in any strides; 0 means packed by the rank's length.
 *   Rows and keys are cut alike, so seq_len_q = seq_len_kv. q_segments and kv_segments tell the
 *   documents of one sequence apart. A ring takes no cu_seqlens, kv_rows, partial, part, logits or
 *   impl naive.
 * Bits. A layout that cuts the sequence only where n is a multiple of 1024 is canonical: O and LSE
 *   have the bits of one process, in whatever order keys arrive, as states are merged along the
 *   tree of docs/canon.md. ring.gather gives these bits, too. Other layouts are deterministic for
 *   that layout and number of ranks, within the usual error bounds; info.canonical tells which is
 *   the case. Gradients are deterministic in this way; they do not have the bits of one process.
 * Balance. With causal, rank 0 of a contiguous layout sees least and the last rank most. ZIGZAG
 *   gives each rank a run from the beginning and one from the end, as the training of Llama 3 does.
 *   STRIPED deals shards round robin (Brandon et al. 2023, arXiv 2311.09431). Both need several
 *   shards a rank: where the sequence has fewer than 2 * size * 1024 positions, some ranks have
 *   little or nothing. Make ring.shard smaller there if balance matters more than bits. But each
 *   pair of a range of rows and a range of keys is a call, and numerous short shards cost more than
 *   they balance. Parts that the masks by range (causal, window, chunked, lengths) leave empty are
 *   skipped; stats->pairs counts the rest.
 * Memory. The caller's workspace may have any alignment and content. It holds two shards of keys
 *   and values (in their storage type), raw states of the rank's rows, head_dim_v + 2 floats each,
 *   and what a call needs. With one shard of 1024 * 2^k keys a rank, and R ranks, a row has at most
 *   2 log2(R) states at once; with several shards a rank, shards that wait for their neighbours
 *   need a state each besides. ring.arrival merges in the order of arrival and needs two states,
 *   but is not canonical. ring.gather collects all keys and values first and needs one state, and
 *   memory for the whole of k and v. The backward call needs two shards with their gradients (f32),
 *   a shard of gradients, dq (f32), and the gradients of a part.
 * Overlap. The exchange of the next shard begins before the present one is computed with, and is
 *   waited for after that.
 * Errors. All ranks agree on the status before anything is sent, with every exchange and before the
 *   outputs are written. What fails on one rank (its arguments, workspace, fetch, parallel_for or
 *   transport) is returned by all of them, and o, lse, dq, dk, dv are untouched on all of them.
 *   stats->failed_rank tells whose status it is. If ranks differ in a number, a length, a layout,
 *   sinks, slopes or in which arrays are given, all of them return ATTN_ERR_ARG. Only a rank
 *   without a usable transport returns alone.
 * Threads. Within a rank, workers are used as attn_forward uses them; transports may start threads
 *   of their own.
 * Stack. The stack stays below 6 KiB in every build measured (tests/stack.sh).
 */

/* An attn_transport says how a rank reaches the others. Every callback gets `user` first. All but
 * `seconds` are called in one order on every rank, and none is called from two threads at once. */
typedef struct attn_transport {
    /* size is the number of ranks, 1 to 4096, and rank is this one, from 0 on. */
    int size, rank;
    void *user;
    /* agree returns on every rank the largest `value` of all ranks, which are 0 or more, or below 0
     * if it failed. */
    int (*agree)(void *user, int value);
    /* begin begins to send to rank + 1 and to receive from rank - 1, around the ring; either may be
     * 0 bytes. It may start at once, or wait for the agree that always follows and start only if
     * that gives 0. Nonzero means that it failed and has begun nothing. */
    int (*begin)(void *user, const void *send, size_t send_bytes, void *receive,
                 size_t receive_bytes);
    /* end waits until what was begun has arrived and is sent. Nonzero means that it failed; then,
     * too, the end of the other ranks must return. */
    int (*end)(void *user);
    /* cancel gives up what was begun, instead of end, where agree tells of a failure elsewhere.
     * After it nothing of that exchange is read or written any more, and nothing of it reaches a
     * later exchange. */
    void (*cancel)(void *user);
    /* seconds is a clock for the statistics; NULL means none. */
    double (*seconds)(void *user);
} attn_transport;

/* An attn_ring_layout says which positions each of R ranks holds. */
typedef enum attn_ring_layout {
    ATTN_RING_CONTIGUOUS = 0, /* Rank r has the r-th of R runs of whole shards. */
    ATTN_RING_ZIGZAG = 1,     /* Rank r has runs r and 2 R - 1 - r of 2 R runs. */
    ATTN_RING_STRIPED = 2,    /* Rank r has shards r, r + R, r + 2 R, .... */
    ATTN_RING_CUSTOM = 3      /* ring.ranges says what each rank has. */
} attn_ring_layout;

/* An attn_ring_range is positions begin to begin + count - 1. */
typedef struct attn_ring_range {
    int64_t begin, count;
} attn_ring_range;

/* A fetch callback gives the rank's own keys and values instead of p.k.data and p.v.data, from a
 * file or a decompressor. It fills k and v, packed [batch, num_heads_kv, length, head_dim] and
 * [batch, num_heads_kv, length, head_dim_v], in p.k.dtype and p.v.dtype, and returns 0, or nonzero
 * if it failed. */
typedef int (*attn_ring_fetch_fn)(void *user, void *k, void *v);

/* An attn_ring_stats tells what one call did on this rank. */
typedef struct attn_ring_stats {
    /* failed_rank is the rank whose status is returned; -1 means that none failed, or that
     * parameters differ. */
    int failed_rank;
    /* Nonzero means that the result has the bits of one process. */
    int canonical;
    /* max_pending is the number of states that a row had at once, the newest included. */
    int max_pending;
    /* exchanges counts the exchanges of shards. */
    int64_t exchanges;
    double bytes_sent, bytes_received;
    /* seconds is the time spent in callbacks of the transport, by its clock. */
    double seconds;
    /* pairs counts the pairs of query and key, over all heads, that parts not skipped may see. */
    double pairs;
    /* calls counts parts that were computed, and skipped counts those that masks leave empty. */
    int64_t calls, skipped;
} attn_ring_stats;

/* An attn_ring says how the call is divided. Set it to zero, then assign. It must be equal on every
 * rank, except transport's rank and user, fetch and stats. */
typedef struct attn_ring {
    /* layout is an attn_ring_layout. */
    int layout;
    /* Nonzero brings all keys to every rank first and then makes one call (forward only). */
    int gather;
    /* Nonzero merges states in the order of arrival, which needs fewer and is not canonical. */
    int arrival;
    /* shard is a number of positions, at whose multiples runs are cut, except in CUSTOM layouts; 0
     * means 1024. */
    int64_t shard;
    /* ranges are for CUSTOM: those of rank 0, then those of rank 1, and so on, each rank's
     * ascending; together they hold every position once. */
    const attn_ring_range *ranges;
    /* first_range[size + 1] is for CUSTOM: rank r has ranges[first_range[r]] to
     * ranges[first_range[r + 1] - 1]. */
    const int64_t *first_range;
    const attn_transport *transport;
    /* fetch gives the rank's keys and values; NULL means p.k.data and p.v.data. */
    attn_ring_fetch_fn fetch;
    /* fetch_user is the first argument of fetch. */
    void *fetch_user;
    /* stats gets what the call did; NULL means not wanted. */
    attn_ring_stats *stats;
} attn_ring;

/* An attn_ring_info tells what a rank holds. */
typedef struct attn_ring_info {
    /* Nonzero means that the layout keeps the bits of one process. */
    int canonical;
    /* length is the number of positions of this rank. */
    int64_t length;
    /* ranges is the number of ranges that they form. */
    int64_t ranges;
    /* longest is the largest length of any rank. */
    int64_t longest;
} attn_ring_info;

/* attn_ring_describe() fills in *info with what rank `rank` holds. Of the transport it reads only
 * size, and it talks to nobody. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_ring_describe(const attn_params *p, const attn_ring *ring, int rank,
                                        attn_ring_info *info);

/* attn_ring_ranges() lists the ranges of rank `rank`: ascending, none empty, none adjoining.
 *
 * It writes at most `most` of them to `ranges`, which may be NULL if that is 0, and sets *count to
 * how many there are. Returns the errors of attn_ring_describe. */
ATTN_API attn_status attn_ring_ranges(const attn_params *p, const attn_ring *ring, int rank,
                                      attn_ring_range *ranges, int64_t most, int64_t *count);

/* attn_ring_workspace_size() sets *bytes to what attn_ring_forward needs on this rank.
 *
 * Lengths and offsets are read; data of tensors is not. It talks to nobody. Returns the errors of
 * attn_ring_describe. */
ATTN_API attn_status attn_ring_workspace_size(const attn_params *p, const attn_ring *ring,
                                              size_t *bytes);

/* attn_ring_forward() computes the attention of this rank's rows to the keys of all ranks, and
 * writes o and lse.
 *
 * All ranks must call it. Returns the errors of attn_ring_workspace_size, ATTN_ERR_WORKSPACE and
 * ATTN_ERR_CALLBACK, of this rank or of another. */
ATTN_API attn_status attn_ring_forward(const attn_params *p, const attn_ring *ring, void *workspace,
                                       size_t workspace_bytes);

/* attn_ring_check() says in one English sentence what is wrong on this rank, or "ok". It writes and
 * returns text as attn_check does, and talks to nobody. */
ATTN_API const char *attn_ring_check(const attn_params *p, const attn_ring *ring,
                                     const void *workspace, size_t workspace_bytes, char *text,
                                     size_t text_bytes);

/* attn_ring_backward_workspace_size() sets *bytes to what attn_ring_backward needs on this rank.
 * Returns the errors of attn_ring_describe. */
ATTN_API attn_status attn_ring_backward_workspace_size(const attn_params *p,
                                                       const attn_gradients *g,
                                                       const attn_ring *ring, size_t *bytes);

/* attn_ring_backward() computes the gradients by q, k and v of this rank's positions: sums over the
 * rows of all ranks.
 *
 * It reads o, lse, dout and dlse of the rank's rows. dbias, dsinks, dslopes and ring.gather are not
 * built. All ranks must call it. Returns the errors of attn_ring_forward. */
ATTN_API attn_status attn_ring_backward(const attn_params *p, const attn_gradients *g,
                                        const attn_ring *ring, void *workspace,
                                        size_t workspace_bytes);

/* attn_ring_backward_check() says in one English sentence what is wrong on this rank, or "ok". It
 * writes and returns text as attn_check does, and talks to nobody. */
ATTN_API const char *attn_ring_backward_check(const attn_params *p, const attn_gradients *g,
                                              const attn_ring *ring, const void *workspace,
                                              size_t workspace_bytes, char *text,
                                              size_t text_bytes);

/* src/api/backend.h - a device, or another implementation of attn_forward and attn_backward.
 *
 * attn_forward validates a call once and hands the result, an attn_problem, to p.backend. A backend
 * needs no other knowledge of the library: sizes, strides and numbers are resolved, and
 * attn_sequence_of tells for each sequence of the batch which rows and keys are in use.
 */

/* An attn_problem is a call that validation has passed, with every default resolved. */
typedef struct attn_problem {
    /* p is the call, with counts, strides, scale, kernels and tile_keys filled in. */
    attn_params p;
    /* impl is ATTN_IMPL_TILED or ATTN_IMPL_NAIVE. */
    int impl;
    /* Nonzero means that attn_workspace_size asks, and outputs may still be unknown. */
    int size_query;
    /* group is the number of query heads per kv head. */
    int64_t group;
    /* max_q_len counts the rows of the longest sequence of the batch that the call computes. */
    int64_t max_q_len;
    /* max_kv_len counts the keys of the longest sequence that enter. */
    int64_t max_kv_len;
    /* factor is scale * log2(e), the factor c on q.k; it is finite. */
    float factor;
    /* cap2 is softcap in base 2, and icap2 is its inverse; 0 means off. */
    float cap2, icap2;
    /* keep_factor is 1 / (1 - dropout_p). */
    float keep_factor;
    /* A Philox word below drop_below drops its key. */
    uint32_t drop_below;
    /* batch_kernels are for the rows of all batch entries at once, with shared_keys. */
    const attn_kernels *batch_kernels;
    /* batch_tile_keys is the number of keys of a tile with batch_kernels. */
    int batch_tile_keys;
} attn_problem;

/* An attn_sequence is sequence b of a batch: the rows and keys in use, where they lie, and how they
 * are numbered. */
typedef struct attn_sequence {
    int64_t b;
    /* q_row is the place of row 0 along the seq axis of q, o and lse; q_len counts rows in use. */
    int64_t q_row, q_len;
    /* kv_row is the place of key 0 in k and v, before ring and pages; kv_len counts keys in use. */
    int64_t kv_row, kv_len;
    /* The call computes rows row_from to row_to-1 of those in use, as p.part says. */
    int64_t row_from, row_to;
    /* Keys key_from to key_to-1 of those in use enter, as p.part says. */
    int64_t key_from, key_to;
    /* column is that of key 0 in bias and masks: kv_begin[b]. */
    int64_t column;
    /* offset gives pos(i) = i + offset. */
    int64_t offset;
    /* key_base gives n(j) = key_base + j. */
    int64_t key_base;
    /* prefix is p.prefix[b]. */
    int64_t prefix;
} attn_sequence;

/* attn_problem_of() validates *p as attn_forward does and fills in *problem.
 *
 * Data of tensors is not read and may be NULL. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED, and puts a sentence into why, which may be NULL. */
ATTN_API attn_status attn_problem_of(const attn_params *p, attn_problem *problem, char *why,
                                     size_t why_bytes);

/* attn_sequence_of() returns sequence b, from 0 to batch - 1. */
ATTN_API attn_sequence attn_sequence_of(const attn_problem *problem, int64_t b);

/* An attn_gradient_call holds the gradients that a backend is asked for; the level backward has its
 * fields. */
typedef struct attn_gradient_call attn_gradient_call;

/* An attn_backend is a table of functions. Set it to zero, then assign. A backend without gradients
 * leaves the last three NULL. Functions may be called from many threads at once. */
struct attn_backend {
    /* abi is ATTN_KERNEL_ABI. */
    int abi;
    /* name stands in attn_info and in log sentences. */
    const char *name;
    /* user is the backend's own. */
    void *user;
    /* supports returns above 0 where the backend takes the call. It returns 0, with a sentence in
     * why, where the CPU takes it. It returns below 0, with a sentence in why, where the CPU cannot
     * take it either because arrays are the device's; attn_forward then returns
     * ATTN_ERR_UNSUPPORTED. */
    int (*supports)(const attn_backend *self, const attn_problem *problem, char *why,
                    size_t why_bytes);
    /* workspace_size sets *bytes to what run needs. */
    attn_status (*workspace_size)(const attn_backend *self, const attn_problem *problem,
                                  size_t *bytes);
    /* run computes the call and returns what attn_forward returns. */
    attn_status (*run)(const attn_backend *self, const attn_problem *problem, void *workspace,
                       size_t workspace_bytes);
    /* supports_gradients answers for attn_backward as supports does for attn_forward. */
    int (*supports_gradients)(const attn_backend *self, const attn_problem *problem,
                              const attn_gradient_call *g, char *why, size_t why_bytes);
    /* gradients_size sets *bytes to what run_gradients needs. */
    attn_status (*gradients_size)(const attn_backend *self, const attn_problem *problem,
                                  const attn_gradient_call *g, size_t *bytes);
    /* run_gradients computes the gradients and returns what attn_backward returns. */
    attn_status (*run_gradients)(const attn_backend *self, const attn_problem *problem,
                                 const attn_gradient_call *g, void *workspace,
                                 size_t workspace_bytes);
};

/* This number changes when attn_problem, attn_backend or the kernels' interface changes. */
#define ATTN_KERNEL_ABI 9

#ifdef __cplusplus
}
#endif

#endif /* ATTN_H */
