/* attn.h - exact attention for CPUs in two files, C99, no dependencies.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * tools/amalgamate.sh makes this file from src/api/: edit there. docs/house.md is the map.
 *
 *     O = softmax(softcap(scale * Q K^T) + bias, masked) V
 *
 * The library computes this by the online softmax, so memory does not grow with the sequence
 * length. To use it, copy attn.h and attn.c into a project and compile attn.c with the rest, by any
 * C99 compiler. Right results need no flag, but speed needs -O2. Every mask and variant
 * is a field of one struct, attn_params, in which zero means "off" or "the usual". The result has
 * the same bits on every CPU, for any number of threads, any batch and any chunking of a prompt
 * (docs/canon.md).
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
 * One more line, p.layout = ATTN_LAYOUT_BSHD, takes [batch, seq, head, dim].
 *
 * CONTENTS
 *
 * Most callers need only the ten lines above, the conventions below and the fields of attn_params
 * that they set. The parts of this file are, in order:
 *
 *   Version and errors      attn_status says what went wrong.
 *   Arrays                  attn_tensor and attn_output describe q, k, v, o, lse and stats.
 *   Masks                   attn_mask, attn_block_mask, attn_key_list and callbacks hide keys from rows.
 *   What changes a logit    attn_bias and a callback change logits before the softmax.
 *   Caches                  attn_rows says where keys lie in ring buffers and pages.
 *   Further outputs         attn_logits and attn_state return more than these.
 *   Parts of a call         attn_part names some of the rows or some of the keys.
 *   How to compute          attn_impl, tuning, workers and logs say how a call runs.
 *   The call                attn_params has a field for each of the above.
 *   Basic call              attn_workspace_size, attn_forward and attn_check run a call.
 *   Helpers                 Small functions make slopes, convert types and name kernel sets.
 *
 * The levels follow; a smaller library may leave them out. Each begins with the name of its source,
 * src/api/NAME.h:
 *
 *   explain     attn_explain tells how a call would run, and why.
 *   options     attn_params_from_string reads options of a command line.
 *   merge       attn_state_merge joins results over different keys.
 *   rope        attn_rope_apply rotates q and k by their positions.
 *   cache       attn_cache keeps keys and values while text is generated.
 *   snapshot    attn_cache_save and attn_cache_load carry a cache to a file and back.
 *   backward    attn_backward computes gradients for training.
 *   resume      attn_resume_step fetches keys tile by tile, e.g. from a file.
 *   patterns    attn_pattern builds block-sparse masks such as BigBird.
 *   index       attn_index finds the keys that rows should attend to.
 *   dilated     attn_dilated_forward is the attention of LongNet.
 *   ring        attn_ring_forward divides one sequence among many ranks.
 *   backend     attn_backend lets a device run calls; only authors of backends need it.
 *
 * Including attn.h and linking attn.c gives every part above. attn_opencl.h adds a backend for
 * GPUs, attn_mpi.h adds a transport for rings, and attn_simd.h is for authors of kernels.
 * LEVELS='forward cache' sh tools/amalgamate.sh DIR writes an attn.h and attn.c with fewer levels.
 *
 * CONVENTIONS hold for every function in this file, unless its comment says otherwise.
 *
 * Memory. The library never allocates. The caller gives each call a workspace of any alignment and
 *   content, and a size query such as attn_workspace_size gives the best size. A smaller workspace
 *   works too, more slowly, down to what one worker needs. A query reads lengths and offsets, but
 *   not the data of tensors, which may be NULL. On an error a query for a workspace sets *bytes to
 *   0. A call uses 2 to 4.5 KiB of stack, in every build measured less than 5 KiB;
 *   gradients less than 5.5, dilated attention 6.25, attn_resume_begin 6.5, a ring 7, with branches 8
 *   (tests/stack.sh).
 * Threads. The library starts no threads. If p.parallel_for and p.num_workers are set, that
 *   callback gets independent pieces of work, one list after another: up to six lists in
 *   attn_forward, six in attn_backward. Where row tiles are few and keys many, as in decoding,
 *   attn_forward divides the keys, too. Without the callback the library uses OpenMP if compiled
 *   with it, and otherwise runs in the calling thread. Every function may run in many threads at
 *   once if workspaces and outputs are distinct. The number of threads never changes a bit of the
 *   result.
 * Errors. Every function that can fail returns an attn_status. A check such as attn_check turns it
 *   into a sentence that names the field and its value. A function with an argument `why` puts that
 *   sentence there; why may be NULL. An error other than ATTN_ERR_CALLBACK means that nothing was
 *   written.
 * Strides. A stride counts elements and may be negative. Everywhere, a stride of 0 means packed:
 *   the stride that a contiguous array of the documented shape has. ATTN_STRIDE_BROADCAST shares
 *   an input along an axis: all indices of that axis then read one element, and packed strides
 *   count that axis as one long. A packed stride does not follow from another one that is given:
 *   a tensor with gaps needs every stride outside the gap. Both hold for tensors, bias, masks,
 *   slopes and everything else that has a stride. The last dimension of a tensor is always
 *   contiguous. The stride of an axis of length 1 does not matter, but no output takes
 *   ATTN_STRIDE_BROADCAST. Data need only be aligned for its element type, and a call is refused
 *   if it is not.
 * Layout. p.layout says what packed means for q, k, v and o and their gradients: [batch, head, seq,
 *   dim], or [batch, seq, head, dim] as most layers and other libraries have it. It changes nothing
 *   else: lse, stats, states, logits, bias and masks keep their documented shapes. A stride that is
 *   given counts in both layouts.
 * Aliasing. What a call writes must not share a byte with its inputs, its workspace, another
 *   output or itself, or the call is refused. Elements count, and not all that lies between the
 *   first and the last: rows of q, k, v and o may alternate in one buffer. Outputs that a call
 *   does not write (o with partial) do not count, nor do rows and keys beyond the lengths of
 *   their own batch entry; columns before kv_begin do. Inputs may overlap each other and
 *   themselves. Size queries do not look at this. If 4096 trials cannot decide whether two arrays
 *   with strides overlap, they are taken to be apart. attn_rope_apply and the merges say where an
 *   output may be an input.
 * Callbacks. Callbacks about pairs (mask, mask_tile, score and its derivative) run on workers,
 *   several at once. They must not throw or longjmp.
 * Order. logit = softcap(scale * q.k) + bias + ALiBi comes first, then the score callback changes
 *   the logit, then all masks apply, and last the sink joins the softmax. A key is visible only if
 *   every mask shows it.
 * Positions. Query row i stands at pos(i) = i + offset among the keys j = 0, 1, ... of its
 *   sequence, and p.alignment chooses the offset. Causal, window, chunked, prefix and ALiBi compare
 *   pos(i) with j. The absolute number of a key is n(j) = key_base + j.
 * Empty rows. A row without a visible key gives O = +0 and LSE = -inf, or the sink where there is
 *   one.
 * NaN and Inf. A value that a mask hides or a length leaves out never affects a result, even if it
 *   is NaN or Inf. A NaN or +inf logit of a visible key makes its row NaN, and no other row. A bias
 *   of -inf masks its key.
 * Determinism. Equal inputs give equal bits if the caller's callbacks are pure. docs/canon.md
 *   states the order of operations. It requires rounding to nearest and no subnormal intermediate.
 * Limits. Sizes have 64 bits and are checked against overflow of the address space. Finite inputs
 *   give finite results as long as all of these stay below 2^127: every partial sum of q.k, that
 *   sum times scale * log2(e), every sink times log2(e), and 2^16 * kv_len * max|v|. Beyond that
 *   IEEE arithmetic decides. Sums below 2^-126 lose digits, which no large scale brings back: dQ and
 *   dK are multiplied by scale last.
 *
 * MACROS. A program may define these, and no others, wherever it includes attn.h and compiles
 * attn.c:
 *
 *   ATTN_API         decorates every public function; its default is nothing.
 *   ATTN_STATIC      makes every function static, for projects that #include "attn.c" in one file;
 *                    that file then shares the internal names (put, text, tile, plan, ...).
 *   ATTN_PREFIX      is put before every public function name, e.g. -DATTN_PREFIX=my_.
 *   ATTN_SIMD_AVX2, ATTN_SIMD_NEON, ...   tell attn.c that the attn_simd_*.c file of that name is
 *                    linked as well.
 *   ATTN_ASSERT(x)   checks internal assumptions; its default is nothing.
 *   ATTN_SCALAR      makes the portable kernels compute only lanes with a row, as they do where no
 *                    instruction takes several floats. No bit of a result depends on it.
 *   ATTN_WITHOUT_SENTENCES   leaves out every sentence about a call, for machines that nobody reads: the
 *                    check functions give the name of the status, other texts stay empty, and p.log
 *                    hears nothing.
 *   ATTN_WITHOUT_LONG_CALLS   builds an attn_forward that computes only short calls (see there), of up to
 *                    1024 keys: 10 KB of flash instead of 100 on a Cortex-M4F, if the linker drops unused
 *                    functions (-ffunction-sections -fdata-sections -Wl,--gc-sections). Every other call
 *                    gets ATTN_ERR_UNSUPPORTED, even if a field is wrong, and so does attn_explain. A wrong
 *                    length, a missing array or an overlap gets ATTN_ERR_ARG, and so do rows of o between
 *                    rows of an input. Vector kernels run only through p.kernels.
 *   ATTN_UNOPTIMIZED silences the note by which gcc and clang say that attn.c is compiled without
 *                    optimisation.
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

/* This number changes when the canonical order of operations in docs/canon.md changes. */
#define ATTN_NUMERICS_VERSION 2

#if defined ATTN_STATIC && (defined __GNUC__ || defined __clang__)
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

/* Every function that can fail returns one of these; docs/troubleshooting.md explains each. */
typedef enum attn_status {
    ATTN_OK = 0,          /* The call succeeded. */
    ATTN_ERR_ARG,         /* A field or a combination of fields is wrong. */
    ATTN_ERR_OVERFLOW,    /* Sizes or strides exceed the address space. */
    ATTN_ERR_WORKSPACE,   /* The workspace is missing or too small. */
    ATTN_ERR_UNSUPPORTED, /* The request is sensible, but it is not built. */
    ATTN_ERR_CALLBACK,    /* A callback or a backend failed; outputs of a call are undefined. */
    ATTN_ERR_FULL,        /* A cache has no room for the keys, and nothing was changed. */
    ATTN_ERR_DATA         /* What was read is damaged, or something else. */
} attn_status;

/* ------------------------------------------------------------------------------------------------
 * Arrays
 * --------------------------------------------------------------------------------------------- */

/* An attn_dtype says how numbers are stored, in the machine's byte order. Arithmetic is in f32 for
 * every type, unless attn_params.integer or attn_params.fast is set. */
typedef enum attn_dtype {
    ATTN_F32 = 0,  /* float */
    ATTN_F16 = 1,  /* uint16_t with the bits of IEEE binary16 */
    ATTN_BF16 = 2, /* uint16_t with the bits of bfloat16, the upper half of a float */

    /* Only K and V may have these, in forward calls of every level and in caches; attn_convert converts
     * them. Gradients refuse them. */
    ATTN_E4M3 = 3, /* uint8_t with the bits of an OCP 8-bit float: at most 448, no infinity */
    ATTN_E5M2 = 4, /* uint8_t with the upper half of an f16 */

    /* Units of 32 numbers, as in GGUF files: an f16 scale, and whole numbers that multiply it. head_dim
     * or head_dim_v and the strides, which count numbers, are multiples of 32. */
    ATTN_Q8_0 = 5, /* 34 bytes: of 8 bits, -127 to 127 if attn_convert writes them */
    ATTN_Q5_0 = 6, /* 22 bytes: of 5 bits, from -16 to 15 */
    ATTN_Q4_0 = 7, /* 18 bytes: of 4 bits, from -8 to 7 */

    /* int8_t, -128 to 127, times f32 scales of the caller's own (attn_scales). Only K and V of
     * attn_forward, its parts included, of attn_ring_decode_forward and of caches may have it: the other
     * levels refuse it. */
    ATTN_I8 = 8
} attn_dtype;

/* Which of K and V are stored rotated: see attn_rotate. */
enum { ATTN_ROTATED_K = 1, ATTN_ROTATED_V = 2 };

/* This stride makes all indices of an axis read one element; only inputs may have it. */
#define ATTN_STRIDE_BROADCAST PTRDIFF_MIN

/* An attn_layout is the order of the axes of a tensor whose strides are packed. */
typedef enum attn_layout {
    ATTN_LAYOUT_BHSD = 0, /* [batch, head, seq, dim]: the rows of a head follow one another. */
    ATTN_LAYOUT_BSHD = 1  /* [batch, seq, head, dim]: the heads of a token follow one another. */
} attn_layout;

/* An attn_tensor is an input whose element (b, h, s, d) lies at
 * data[b*stride_batch + h*stride_head + s*stride_seq + d], and in units of 32 in the unit that this
 * number, divided by 32, gives. */
typedef struct attn_tensor {
    int dtype;                                       /* attn_dtype; 0 means ATTN_F32 */
    ptrdiff_t stride_batch, stride_head, stride_seq; /* elements; 0 means packed */
    const void *data;
} attn_tensor;

/* An attn_scales is what multiplies the numbers of K or V in ATTN_I8: element (b, h, s, d) is
 * fl(number * data[b*stride_batch + h*stride_head + s*stride_seq + d*stride_dim]). The array is f32
 * [batch, num_heads_kv, seq_len_kv, dim] in either layout. With pages and rings it is [num_pages,
 * num_heads_kv, page_size, dim] or [batch, num_heads_kv, ring, dim]: a scale lies as its key does. One
 * scale per token and head is an array [batch, num_heads_kv, seq_len_kv]; one per channel and head, as a
 * calibration gives it, is [num_heads_kv, dim]:
 *
 *     p.k_scales.data = k_scales;  p.k_scales.stride_dim = ATTN_STRIDE_BROADCAST;
 *     p.v_scales.data = v_scales;
 *     p.v_scales.stride_batch = p.v_scales.stride_seq = ATTN_STRIDE_BROADCAST;
 *
 * Any other sharing works too, down to one scale for all. Scales may be any numbers; with one that is not
 * finite its products are what IEEE arithmetic says. attn_quantise_i8 makes scales per token; an attn_cache
 * stores rows with those of a calibration. */
typedef struct attn_scales {
    ptrdiff_t stride_batch, stride_head, stride_seq, stride_dim; /* elements; 0 means packed */
    const float *data;                                           /* NULL where there are none */
} attn_scales;

/* An attn_output is an output, addressed as an attn_tensor is. No axis may be broadcast. */
typedef struct attn_output {
    int dtype;                                       /* attn_dtype; 0 means ATTN_F32 */
    ptrdiff_t stride_batch, stride_head, stride_seq; /* elements; 0 means packed */
    void *data;
} attn_output;

/* ------------------------------------------------------------------------------------------------
 * Masks
 *
 * Causal, prefix, window, chunked, segments and trees are plain fields of attn_params. The types of
 * this part are for alignment, boolean masks, block masks and callbacks. All masks compose: a key
 * is visible to a row if every mask shows it.
 *
 * Trees. p.tree_parents is for speculative decoding. The last q_len keys of a sequence (seq_len_q
 * if q_len is NULL) are nodes of a tree, and node i is query row i. A query sees all earlier keys,
 * its ancestors and itself. pos(i) counts nodes and not depth, so window, chunked and ALiBi count
 * hidden siblings as keys in between.
 * --------------------------------------------------------------------------------------------- */

/* An attn_alignment chooses the offset of pos(i) = i + offset. */
typedef enum attn_alignment {
    ATTN_ALIGN_BOTTOM_RIGHT = 0, /* The last row is at the last key: offset = kv_len - q_len. */
    ATTN_ALIGN_TOP_LEFT = 1,     /* Row 0 is at key 0: offset = 0. */
    ATTN_ALIGN_OFFSET = 2        /* The caller gives it: offset = p.q_offset[b]. */
} attn_alignment;

/* This value of p.window turns the window on. */
#define ATTN_WINDOW 1

/* An attn_mask is a boolean mask [batch, num_heads_q, seq_len_q, seq_len_kv] in which nonzero means
 * visible. Rows and columns are addressed, and strides packed, as in attn_bias. Padding as
 * [batch, 1, 1, seq_len_kv], which all heads and rows share, is
 *
 *     p.bool_mask.data = padding;
 *     p.bool_mask.stride_head = p.bool_mask.stride_q = ATTN_STRIDE_BROADCAST; */
typedef struct attn_mask {
    int invert; /* nonzero: nonzero elements are hidden instead */
    /* Strides in bytes for p.bool_mask, and in bits for p.bit_mask, where bit n is bit n%8 of byte
     * n/8; 0 means packed, without gaps between rows of bits. */
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv;
    const uint8_t *data; /* NULL turns the mask off */
} attn_mask;

/* An attn_block_mask shows or hides whole cells: cell (i / block_q, j / block_k) decides about
 * query row i and key j of a sequence. The caller gives a bitmap or CSR arrays, but not both.
 *
 * With rows = ceil(seq_len_q / block_q) and columns = ceil(seq_len_kv / block_k), a bitmap is
 * [batch, num_heads_q, rows, columns] and row_offsets is [batch, num_heads_q, rows + 1]. Heads that
 * have one mask share it by ATTN_STRIDE_BROADCAST. Cell (r, c) of a bitmap is bit b*stride_batch +
 * h*stride_head + r*stride_row + c, and 1 means visible; bits are counted as in attn_mask. In the
 * CSR form the visible columns of row r are columns[row_offsets[r]] to columns[row_offsets[r+1] -
 * 1], strictly ascending. The offsets of batch entry b and head h begin at entry b*csr_stride_batch
 * + h*csr_stride_head.
 *
 * i and j count within the sequence. With cu_seqlens, rows and columns are those of the longest
 * sequence. */
typedef struct attn_block_mask {
    int64_t block_q, block_k; /* rows and keys of a cell; 0 in both turns the mask off */

    ptrdiff_t stride_batch, stride_head, stride_row; /* bits; 0 means packed */
    const uint8_t *bitmap;                           /* NULL with the CSR form */

    ptrdiff_t csr_stride_batch, csr_stride_head; /* entries of row_offsets; 0 means packed */
    const int32_t *row_offsets; /* one entry per row of cells and one more; NULL with the bitmap */
    const int32_t *columns;     /* given together with row_offsets or not at all */
} attn_block_mask;

/* An attn_key_list is attention sparse by token: it names the keys that a row sees, as DeepSeek's
 * sparse attention does; attn_index finds them. Where lists are short and nothing else asks about single
 * keys (another mask than causal, window and chunked, bias, ALiBi, score, dropout, logits, insight, recent,
 * part, cu_seqlens_q, fast), rows read only listed keys, and their time grows with the list and not with
 * seq_len_kv. attn_explain tells. Where rows are few, workers divide the keys of a list by whole chunks of
 * 1024 positions. attn_workspace_size goes by counts: `data` must be set, and no entry is read. Devices take
 * no lists. For whole blocks of keys p.block_mask is faster.
 *
 * `data` is [batch, num_heads_kv, ceil(seq_len_q / rows), width]: query rows i with one value of
 * i / rows, of all heads of a group, share a list. A list is the numbers of keys, from 0 and strictly
 * ascending; entries below 0 fill up what a shorter one leaves. Number j is column kv_begin + j of
 * attn_logits and insight. With cu_seqlens, rows are those of the longest sequence.
 *
 * Results have the bits of p.bool_mask that shows the listed keys. */
typedef struct attn_key_list {
    int64_t width; /* entries of a list */
    int64_t rows;  /* query rows that share a list; 0 means 1 */
    /* Entries between batch entries, kv heads and lists; 0 means packed, ATTN_STRIDE_BROADCAST shared. */
    ptrdiff_t stride_batch, stride_head, stride_seq;
    const int32_t *data; /* NULL means that all keys may be seen */
} attn_key_list;

/* An attn_pair is a (query, key) pair as callbacks see it. */
typedef struct attn_pair {
    int64_t batch, head; /* batch entry, query head */
    int64_t i, j;        /* row of this call, key of the sequence */
    int64_t pos, n;      /* absolute: pos = key_base + i + offset, n = key_base + j */
} attn_pair;

/* An attn_rect is a rectangle of pairs: rows i_begin to i_end-1 of heads head_begin to head_end-1
 * against keys j_begin to j_end-1. Absolute positions are key_base + i + offset and key_base +
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

/* A mask callback returns nonzero where the pair is visible. */
typedef int (*attn_mask_fn)(void *user, const attn_pair *at);

/* A classifier returns the attn_tile_class of a rectangle. */
typedef int (*attn_mask_tile_fn)(void *user, const attn_rect *at);

/* ------------------------------------------------------------------------------------------------
 * What changes a logit
 * --------------------------------------------------------------------------------------------- */

/* An attn_bias is an additive bias [batch, num_heads_q, seq_len_q, seq_len_kv]. It is added to the
 * capped logit and is not scaled. A bias of -inf masks its key, whatever the score is. Columns are
 * the caller's: key j has column kv_begin[b] + j. With cu_seqlens, rows and columns start at 0 in
 * each sequence, and packed rows and columns are those of the longest one.
 *
 * An array with fewer axes says which ones it lacks: [num_heads_q, seq_len_q, seq_len_kv] has
 * stride_batch = ATTN_STRIDE_BROADCAST. A bias [batch, 1, seq_len_q, seq_len_kv], which all heads
 * share, is
 *
 *     p.bias.data = bias;  p.bias.dtype = ATTN_F16;
 *     p.bias.stride_head = ATTN_STRIDE_BROADCAST; */
typedef struct attn_bias {
    int dtype;                                                /* attn_dtype; 0 means ATTN_F32 */
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv; /* elements; 0 means packed */
    const void *data;                                         /* NULL turns the bias off */
} attn_bias;

/* A score callback gets a natural logit and returns the one to use. */
typedef float (*attn_score_fn)(void *user, const attn_pair *at, float logit);

/* ------------------------------------------------------------------------------------------------
 * Caches
 *
 * Shared keys (cascade attention). With p.shared_keys = n the caller promises that K and V of keys
 * 0 to n-1 are equal in every batch entry, as for a system prompt. These keys are then read once,
 * from entry 0, for the rows of all entries. Decoding gains most, since it waits for the keys to
 * come from memory. The bits of the result do not change. The keys are shared only if all of this
 * holds:
 *
 *   - impl is tiled, the batch has 2 or more entries, and neither cu_seqlens nor part is used;
 *   - every entry has at most 64 rows (q_len * group) per kv head, and key_base is equal in all;
 *   - at least 64 shared keys lie in whole blocks, which end where n(j) is a multiple of 16, and
 *     every row sees all of these keys;
 *   - there is no bias, ALiBi, dropout or callback, and no mask except causal, window and chunked;
 *   - at least half of the workers get row tiles.
 *
 * Otherwise each entry reads its own copy, and attn_explain says why. Each entry needs that copy in
 * any case, because any of them may be read. For shared keys the workspace also holds the states of
 * all rows, about (head_dim_v + 2) * (3 + log2(shared_keys / 1024)) + head_dim floats for each; in
 * a smaller workspace each entry reads its own copy.
 * --------------------------------------------------------------------------------------------- */

/* An attn_rows says where the keys of a sequence lie if they do not follow one another from the
 * first row of the batch entry on. Column c of sequence b is row r = (begin[b] + c) % ring, or
 * r = c without a ring. Without pages, row r lies in the batch entry, and a ring makes k and v
 * [batch, num_heads_kv, ring, head_dim], or [batch, ring, num_heads_kv, head_dim] by p.layout.
 *
 * With pages, row r is slot r % page_size of page table[b*table_stride + r / page_size]. k and v
 * then are [num_pages, num_heads_kv, page_size, head_dim], or [num_pages, page_size, num_heads_kv,
 * head_dim] by p.layout. stride_batch lies between pages, and all
 * sequences share the pages. With part.keys, rows count from part.key_row on (attn_part). attn_rows
 * cannot be used with cu_seqlens_kv. attn_cache_view fills it in. */
typedef struct attn_rows {
    /* Rows of a sequence's ring buffer, at least kv_begin + kv_len. 0 turns the ring off. */
    int64_t ring;
    const int32_t *begin; /* [batch], row of column 0, below ring; needs a ring; NULL means 0 */
    int64_t page_size;    /* rows of a page; 0 means no pages */
    int64_t num_pages;    /* pages that k and v hold */
    const int32_t *table; /* [batch, pages of a sequence]; entries that no key needs are not read */
    /* Entries between sequences. 0 means packed: ceil(rows / page_size), where rows is ring or,
     * without a ring, seq_len_kv. */
    ptrdiff_t table_stride;
} attn_rows;

/* An attn_recent keeps the last keys and values of a cache a second time, in full precision, as p.k and
 * p.v may be quantised: the row at pos(i) reads key j from here if j > pos(i) - keys, and otherwise from
 * p.k and p.v. So a row reads the same numbers in whatever step it comes, and a prefill has the bits of
 * decoding. Rotation and a subtracted vector (rotated, k_centered) hold for both.
 *
 * k and v are rings [entries, num_heads_kv, ring, head_dim], or [entries, ring, num_heads_kv, head_dim]
 * by p.layout: key j of sequence b lies in entry entries[b], row n(j) % ring. The ring must hold all
 * keys that the rows of the call read from it: keys + seq_len_q - 1 rows are enough, and so are as many
 * as there are keys. */
typedef struct attn_recent {
    int64_t keys; /* keys up to its own that a row reads from here; 0 means off */
    int64_t ring; /* rows of an entry, at least 1 */
    /* [batch], the ring of the sequence holds keys n(j) from this number on; NULL means the last
     * `ring` keys. */
    const int64_t *begin;
    const int32_t *entries; /* [batch], entry of each sequence; NULL means 0, 1, ... */
    int64_t num_entries; /* entries that k and v hold, with `entries`; they are `batch` without */
    attn_tensor k, v;    /* in f32, f16 or bf16 */
} attn_recent;

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
 * cu_seqlens the columns of each sequence start at 0, and rows count within it. Parts of a call fill one
 * array: p.part leaves rows that it does not hold untouched, and a part of the keys writes its own columns,
 * at every stage but SOFTMAX. */
typedef struct attn_logits {
    int stage; /* attn_logits_stage */
    int64_t
        num_rows; /* chosen rows; 0 means all rows held (seq_len_q without p.part) if rows is NULL */
    /* [num_rows], rows i of every batch entry and head; NULL: 0, 1, ... from the first row held on. */
    const int32_t *rows;
    float *data; /* NULL turns this output off */
} attn_logits;

/* An attn_insight asks what rows look at, in the pass that computes them. All arrays are packed; rows are
 * numbered as in a packed lse. Probabilities are those of ATTN_LOGITS_SOFTMAX: before dropout, and with a
 * sink in the sum, which takes mass and is no key. A pointer that is NULL turns its output off; size
 * queries look at the pointers, too. No output changes the bits of another one, and all have the same
 * bits for any tiles, workers, pages and chunking. Raw states (partial), the levels from resume to ring
 * and devices refuse it; gradients ignore it. */
typedef struct attn_insight {
    /* [batch, num_heads_q, seq_len_q], or [num_heads_q, token] with cu_seqlens_q: minus the sum of p ln p
     * over the keys of a row, in nats, at least 0. An empty row has 0. */
    float *entropy;
    /* The likeliest keys of each row, most likely first, and of equal logits the lower key first. Keys are
     * columns as in attn_logits. What a row lacks of visible keys has key -1 and probability 0, as has a
     * key whose logit is NaN. */
    int top;          /* keys asked for, 1 to 64 (1 gives the largest probability); 0 means none */
    int32_t *top_key; /* [batch, num_heads_q, seq_len_q, top], or [num_heads_q, token, top] */
    float *top_prob;  /* as top_key: the probabilities */
    /* [batch, num_heads_kv, ceil(seq_len_kv / mass_keys)]: the sum of the probabilities that rows give to a
     * block of keys, over the rows chosen and the query heads that read the kv head. Block n has columns
     * n * mass_keys on, as pages of that size have. Each probability is rounded to a multiple of 2^-32,
     * and their sum is exact, for up to 2^20 rows times query heads a kv head. A row that is NaN makes its
     * blocks NaN. It takes two more products Q K^T of the rows chosen. Parts of a call refuse it. */
    double *mass;
    int64_t mass_keys; /* keys of a block, at least 1 with mass */
    int64_t mass_rows; /* the last rows of each sequence count, this number at most; 0 means all */
} attn_insight;

/* An attn_skip lets rows leave out blocks of 16 keys that hold too little of their probability, and tells
 * how much that was at most. Such a block costs its Q K^T, and neither exponentials nor P V; where all rows
 * of a tile leave it out, V is not read.
 *
 * A row sums its first block and its last four, of the keys that lengths, causal, window, chunked and
 * prefix leave to it, and its sink. It keeps these. Another block it leaves out if 16 times its largest
 * probability is at most a part in n of `below` of that sum, where n counts the row's blocks. So a row of up
 * to five blocks leaves out nothing, none loses more than `below`, and a row with a NaN logit in a block keeps
 * that block. Blocks begin where the number of a key, key_base included, is a multiple of 16. With
 *
 *     share = the sum of the probabilities left out, sink included in the sum of all
 *
 * share <= dropped <= below, and |O - O of all keys| <= 2 * share * max|v| (times 1 / (1 - dropout_p) with
 * dropout), roundings besides. O, lse and stats are those of the keys kept: lse falls by at most
 * -ln(1 - dropped), and v of keys left out does not show, even if it is NaN.
 *
 * What a row leaves out does not depend on other rows, tiles, workers, pages or the step of a program that
 * computes it, so that bits do not either. Shared prefixes are not shared and listed keys not gathered
 * then. A row with a NaN in its sums has a NaN here, too. Gradients, parts, raw states (partial), the other
 * levels, logits, insight, impl naive, fast and devices refuse it; AUTO runs tiled. */
typedef struct attn_skip {
    float below; /* the largest share of a row that may be left out, below 1; 0 means none */
    /* [batch, num_heads_q, seq_len_q], packed as insight.entropy: the bound of each row. An empty row
     * has 0. It must be given if below is not 0. */
    float *dropped;
} attn_skip;

/* An attn_state is the raw state of rows, all f32. With x = logit * log2(e) over the keys so far, m
 * is the running maximum of x, l is the sum of 2^(x - m), and o is the sum of 2^(x - m) * v. Rows
 * are numbered as in a packed lse. An empty row holds (-inf, 0, 0). Only attn_state_merge reads the
 * two sizes; other functions take them from p. */
typedef struct attn_state {
    int64_t num_rows;
    int64_t head_dim_v;
    float *m, *l, *o; /* [row], [row], [row, head_dim_v] */
} attn_state;

/* ------------------------------------------------------------------------------------------------
 * Parts of a call
 * --------------------------------------------------------------------------------------------- */

/* An attn_part makes a call compute some of its rows or use some of its keys. It serves sequences
 * that do not lie in one memory: shards on other machines, or keys that come from a file. All other
 * fields of attn_params describe the whole call: lengths, positions, masks, bias, per-token arrays.
 *
 * Where `rows` is set, q, o, lse, stats and state (and dout, dlse, dq of attn_backward) hold only
 * rows row_begin to row_begin + row_count - 1. Where `keys` is set, k and v, their scales (and dk, dv)
 * hold only keys key_begin to key_begin + key_count - 1, in the caller's columns. The first row of these
 * arrays is row row_begin or key key_begin; packed strides and the numbering of states follow the
 * counts.
 *
 * A cache (kv_rows) may hold more than the keys of the part: key key_begin + i is row key_row + i of its
 * sequence, where attn_rows has column c as row c. So key_row = key_begin suits a cache of the whole call,
 * and 0 one of these keys alone. A packed table has ceil((key_row + key_count) / page_size) entries.
 *
 * Rows of a part have the bits of the whole call. For a part of the keys the caller asks for the
 * raw state (p.partial) and merges it with the states of the other parts; attn_state_merge says
 * when the merged state is canonical. A part cannot be used with cu_seqlens or impl naive. */
typedef struct attn_part {
    int rows; /* nonzero: some rows; 0: all rows, and row_begin and row_count must be 0 */
    int keys; /* nonzero: some keys; 0: all keys, and key_begin and key_count must be 0 */
    /* Nonzero continues p.state and needs keys and partial. The state is what earlier parts of the
     * same chunk of 1024 keys (by n) left, or (-inf, 0, 0) at the beginning. The result is
     * canonical if all parts but the last end where n is a multiple of 16. If a sequence has rows,
     * its keys in use must lie in one chunk. */
    int continued;
    int64_t row_begin, row_count;
    int64_t key_begin, key_count;
    int64_t key_row; /* row of a cache (kv_rows) where key key_begin lies; needs keys and kv_rows */
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
    ATTN_IMPL_NAIVE = 2, /* The textbook formula holds the logits of a head. It is the baseline. */
    ATTN_IMPL_AUTO = 3   /* NAIVE runs up to p.auto_naive_keys keys, else TILED: bits differ. */
} attn_impl;

/* ATTN_IMPL_AUTO takes NAIVE up to this seq_len_kv by default. It is 0 because NAIVE was at most
 * 2 % faster with the AVX-512 kernels (README.md); measure where you use attn.c alone. */
#define ATTN_AUTO_NAIVE_KEYS 0

/* A task does piece `index` of a list of work, in the scratch memory of `worker`. */
typedef void (*attn_task_fn)(void *arg, int64_t index, int worker);

/* A parallel_for runs task(arg, index, worker) once for each index from 0 to n-1, in any order, and
 * returns when all are done. Workers are numbered from 0 to p.num_workers-1, and two tasks that run
 * at once have different numbers. It returns 0, or nonzero when it failed; attn_forward then
 * returns ATTN_ERR_CALLBACK. */
typedef int (*attn_parallel_for_fn)(void *user, int64_t n, attn_task_fn task, void *arg);

/* An attn_log_level says whether a log sentence only informs or also warns. */
typedef enum attn_log_level { ATTN_LOG_INFO = 0, ATTN_LOG_WARNING = 1 } attn_log_level;

/* A log callback hears sentences about a call; level is an attn_log_level. */
typedef void (*attn_log_fn)(void *user, int level, const char *text);

/* An attn_kernels is a set of kernels for one instruction set; see attn_kernels_get. */
typedef struct attn_kernels attn_kernels;

/* An attn_backend is a device that runs calls; its fields are at the end of this file. */
typedef struct attn_backend attn_backend;

/* An attn_view tells which part of a larger call a call is; its fields are at the end of this file. */
typedef struct attn_view attn_view;

/* ------------------------------------------------------------------------------------------------
 * The call
 * --------------------------------------------------------------------------------------------- */

/* An attn_params is everything about one call. Set it to zero, then assign: zero is the default of
 * every field, and a feature whose pointer is NULL is off. */
typedef struct attn_params {
    /* ---- sizes. A batch or seq_len_q of 0 leaves nothing to do, and a seq_len_kv of 0 makes every
     * row empty. */

    int64_t batch;       /* independent sequences, packed or not */
    int64_t num_heads_q; /* query heads, at least 1 */
    /* kv heads, a divisor of num_heads_q (GQA; 1 = MQA); 0 means num_heads_q. Query head h reads kv
     * head h / (num_heads_q / num_heads_kv). */
    int64_t num_heads_kv;
    int64_t seq_len_q;  /* rows of q and o per batch entry, or in all with cu_seqlens_q */
    int64_t seq_len_kv; /* keys per batch entry, or in all with cu_seqlens_kv */
    int64_t head_dim;   /* elements of a q or k vector, at least 1 */
    int64_t head_dim_v; /* elements of a v or o vector; 0 means head_dim */
    float scale;        /* factor on q.k, finite even times log2(e); 0 means 1/sqrt(head_dim) */
    /* Nonzero computes q.k in whole numbers: each 32 elements of a query are rounded to whole numbers
     * from -127 to 127, ties to even, times an f32 scale, their largest magnitude / 127, and multiplied
     * with those of K, which must be q8_0, q5_0, q4_0 or i8; with i8, head_dim must be a multiple of 32,
     * and all channels or all keys of a head must share k_scales. Scores lose the accuracy of that
     * rounding; P V is as without. A NaN or infinity among the 32 makes every score of the row NaN. Gradients refuse
     * it. 0 means off. */
    int integer;
    /* Nonzero lets products be of numbers rounded to bf16, q, K, p and V, with sums in f32, where the CPU
     * has units for that: on 64-bit x86, for calls of more than 16 rows a kv head, AMX with Linux or else
     * AVX512_BF16; on 64-bit ARM with Linux or macOS, for more than 8, BFMMLA. All else is computed as
     * without. Results then are not those of other machines (docs/numerics.md). Calls
     * without such a unit are computed as ever; attn_explain tells the kernels. With `integer` only
     * P V is rounded so. Calls over caches and parts take it; gradients, the other levels and devices
     * refuse it. The first call with it asks Linux for AMX, for the whole process. 0 means off. */
    int fast;
    /* Sum of ATTN_ROTATED_K, whereupon rows of q are rotated, too, and ATTN_ROTATED_V, whereupon rows of
     * O are rotated back. States are rotated back by attn_state_finish. Gradients refuse it. 0 means
     * neither. */
    int rotated;
    /* Nonzero says that one vector was subtracted from all keys of a head (attn_cache.k_mean). O stays
     * as it is. LSE, stats and raw states lack scale * q.vector, so all parts of a merge must have lost
     * the same vector. Fields that need whole logits are refused: softcap, score, sinks, softmax1 and
     * logits. Gradients refuse k_centered. */
    int k_centered;

    /* ---- tensors, in the order of BHSD. kv_rows gives k and v another shape. With cu_seqlens the
     * packed order of q, k, v and o is [token, head, dim] in either layout, and stride_batch is not
     * used; without cu_seqlens_kv, k and v then still follow the layout. */

    int layout;           /* attn_layout, what packed means for q, k, v and o; 0 means BHSD */
    attn_tensor q;        /* [batch, num_heads_q, seq_len_q, head_dim] */
    attn_tensor k;        /* [batch, num_heads_kv, seq_len_kv, head_dim] */
    attn_tensor v;        /* [batch, num_heads_kv, seq_len_kv, head_dim_v] */
    attn_scales k_scales; /* given with k.dtype = ATTN_I8, and only then */
    attn_scales v_scales; /* given with v.dtype = ATTN_I8, and only then */
    /* [batch, num_heads_q, seq_len_q, head_dim_v]; data may be NULL where lse, stats, state or
     * logits are asked for. */
    attn_output o;
    /* Natural log of the softmax denominator, the sink included: f32 [batch, num_heads_q,
     * seq_len_q], or [num_heads_q, token] with cu_seqlens_q. NULL data turns it off. */
    attn_output lse;
    /* Statistics (m, l) of each row, from which attn_backward computes probabilities again, however
     * large logits are: a key of logit x has 2^(x log2(e) - m) / l. The sum of these powers over
     * the keys and the sink is l, and m is at most 16 below the largest x log2(e), so that none
     * overflows. The LSE is (m + log2(l)) ln(2). An empty row has (-inf, 0), or with a sink (sink
     * log2(e), 1). f32 [batch, num_heads_q, seq_len_q, 2], or [num_heads_q, token, 2] with
     * cu_seqlens_q. Strides count floats, of which a row takes 2, so those of lse do not serve.
     * NULL data turns it off. */
    attn_output stats;

    /* ---- lengths of each batch entry. They are counts, and 0 is allowed. */

    const int32_t *q_len;  /* [batch], rows in use; no other is read or written; NULL means all */
    const int32_t *kv_len; /* [batch], keys in use from kv_begin on; NULL means all */
    /* [batch], first key in use (left padding): key j is column kv_begin + j of k, v, bias, masks
     * and kv_segments. NULL means 0. */
    const int32_t *kv_begin;
    /* [batch + 1], borders of packed sequences of various lengths: sequence b is rows cu[b] to
     * cu[b+1]-1. Rows before cu[0] and from cu[batch] on are neither read nor written. NULL
     * means not packed. */
    const int32_t *cu_seqlens_q;
    /* [batch + 1], borders of packed keys, only with cu_seqlens_q. NULL means that k and v are not
     * packed; cu_seqlens_q then needs kv_len. */
    const int32_t *cu_seqlens_kv;
    const int64_t *key_base; /* [batch], position of the first key, 0 to 2^58; NULL means 0 */
    attn_rows kv_rows;       /* where the keys of a cache lie; all 0 means one after the other */
    int64_t shared_keys;     /* first keys that all entries share (see "Caches"), 0 to seq_len_kv */
    /* The last keys of each row in full precision; all 0 means that every key is read from k and v. Impl
     * naive, logits, parts, gradients, devices and the levels other than caches refuse it. */
    attn_recent recent;

    /* ---- position of the queries */

    int alignment;           /* attn_alignment, for causal, window, chunked, prefix and ALiBi */
    const int32_t *q_offset; /* [batch], only with ATTN_ALIGN_OFFSET; may be negative */

    /* ---- masks. A key is visible if every one of them shows it. */

    int causal;            /* nonzero: key j is visible only if j <= pos(i) */
    const int32_t *prefix; /* [batch], with causal: keys j < prefix[b], too; NULL means 0 */
    /* ATTN_WINDOW: key j is visible only if pos(i) - window_left <= j <= pos(i) + window_right. 0
     * means off. */
    int window;
    int64_t window_left;  /* keys before the row's position; -1 means unbounded */
    int64_t window_right; /* keys after the row's position; -1 means unbounded */
    /* Chunked attention: a row sees only keys in its own chunk, and the chunk of a position is
     * floor((key_base + position) / chunk_size). 0 means off. */
    int64_t chunk_size;
    /* Document ids [batch, seq_len_q], or [token] with cu_seqlens: a row sees only the keys with
     * its own id. Time grows with the pairs that are visible where documents follow each other. NULL
     * means off. */
    const int32_t *q_segments;
    /* [batch, seq_len_kv], or [token] with cu_seqlens, given together with q_segments or not at
     * all. */
    const int32_t *kv_segments;
    ptrdiff_t q_segments_stride;  /* elements between batch entries; 0 means packed */
    ptrdiff_t kv_segments_stride; /* elements between batch entries; 0 means packed */
    /* Parents of tree nodes (see "Masks"), [batch, seq_len_q], or [token] with cu_seqlens. The
     * parent of node i is a node below i, numbered within the sequence, or -1 if i is a root. NULL
     * means off. */
    const int32_t *tree_parents;
    ptrdiff_t tree_stride;       /* elements between batch entries; 0 means packed */
    attn_mask bool_mask;         /* one byte per pair; its strides count bytes */
    attn_mask bit_mask;          /* one bit per pair; its strides count bits */
    attn_block_mask block_mask;  /* one cell per block_q rows and block_k keys */
    attn_key_list key_list;      /* the keys of each row, by their numbers */
    attn_mask_fn mask;           /* decides about single pairs; NULL means off */
    attn_mask_tile_fn mask_tile; /* may decide about tiles for mask; NULL: all are partial */

    /* ---- what changes a logit, in this order */

    float softcap;  /* c, 1e-30 to 1e30: the logit becomes c * tanh(logit / c); 0 means off */
    attn_bias bias; /* added to the logit */
    /* [batch, num_heads_q], each adds -slope * |pos(i) - j|; NULL means off. */
    const float *alibi_slopes;
    /* Elements between batch entries. 0 means packed, and ATTN_STRIDE_BROADCAST that all entries
     * have one set of slopes, [num_heads_q]. */
    ptrdiff_t alibi_stride;
    /* Gets a natural logit and returns another; not called for a logit of -inf or a masked pair.
     * NULL means off. */
    attn_score_fn score;
    void *callback_user; /* first argument of score, mask and mask_tile */

    /* ---- softmax */

    /* [num_heads_q], one more logit per head, without a value, neither scaled nor capped; -inf
     * means none for this head; +inf or NaN makes every row with a visible key NaN. NULL means
     * off. */
    const float *sinks;
    int softmax1;          /* nonzero gives every head a sink of 0 and excludes sinks */
    float dropout_p;       /* probability of dropping a key, in [0, 1); 0 means off */
    uint64_t dropout_seed; /* key of attn_dropout_keep */

    /* ---- further outputs */

    /* Nonzero writes the raw state instead of o, lse and stats. No sink enters, and logits of stage
     * SOFTMAX are not supported. */
    int partial;
    attn_state state;     /* where partial writes */
    attn_logits logits;   /* asks for logits of chosen rows */
    attn_insight insight; /* asks for entropies, the likeliest keys of rows, and the mass of keys */
    attn_skip skip;       /* lets rows leave out keys of little probability */

    /* ---- how to compute. Nothing here changes a bit of an explicit impl. */

    int impl; /* attn_impl; 0 means tiled */
    /* Largest seq_len_kv at which ATTN_IMPL_AUTO is naive; 0 means what tuning says, or else
     * ATTN_AUTO_NAIVE_KEYS. */
    int64_t auto_naive_keys;
    int naive_whole; /* nonzero makes naive hold the logits of all heads at once */
    int tile_keys; /* most keys of a tile, a power of two from 16 to 1024; 0: the library's choice */
    const char *tuning; /* a text (see "How to compute") ended by a zero byte; NULL: usual sizes */
    int force_redo; /* nonzero always takes the second pass of docs/canon.md, "redo": for tests */
    /* The kernel set. NULL means the best one linked in for this CPU and number of rows. */
    const attn_kernels *kernels;
    const attn_backend *backend; /* the device; NULL means the CPU */
    /* Workers that the workspace is sized for; 0 means 1, or OpenMP's maximum. Without parallel_for
     * and OpenMP one worker runs, whatever this says. */
    int num_workers;
    /* Runs the pieces of work. NULL means OpenMP when compiled with it, and otherwise a plain
     * loop. */
    attn_parallel_for_fn parallel_for;
    void *parallel_user; /* first argument of parallel_for */
    /* Hears why a backend refused or failed a call and why a tuning text was ignored; NULL means
     * silence. */
    attn_log_fn log;
    void *log_user; /* first argument of log */

    attn_part part; /* some of the rows or some of the keys; all 0 means the whole call */
    /* Levels set it in calls that they make, to tell which rows and keys of the caller's these are
     * (backend.h). NULL means that the call is the caller's. */
    const attn_view *view;
} attn_params;

/* ------------------------------------------------------------------------------------------------
 * Basic call
 * --------------------------------------------------------------------------------------------- */

/* attn_workspace_size() sets *bytes to the best size of a workspace for attn_forward of *p.
 *
 * A workspace for the largest seq_len_q and the largest seq_len_kv serves every shorter call that
 * differs in nothing else: a prefill and, if seq_len_kv was the final length, its decode steps. As
 * a special case, impl = AUTO may run the longest call tiled and shorter ones naive: ask for the
 * longest call of each path and take the larger size. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW,
 * ATTN_ERR_UNSUPPORTED (also if a backend must run the call but refuses it), or what a backend's
 * workspace_size returns. */
ATTN_API attn_status attn_workspace_size(const attn_params *p, size_t *bytes);

/* attn_forward() computes attention as *p describes it.
 *
 * It reads q, k, v and the arrays of *p, and writes those of o, lse, stats, state and logits that
 * are asked for. The algorithm is the online softmax (Milakov and Gimelshein 2018, arXiv
 * 1805.02867; Dao et al. 2022, arXiv 2205.14135), in the order of docs/canon.md.
 *
 * A call is short if it sets only sizes, layout, scale, q, k, v and o in f32, q_len, kv_len, alignment
 * (not OFFSET), causal, impl (DEFAULT or TILED), kernels, log, and workers of which one runs; if it has at
 * most 256 keys, head_dim and head_dim_v are at most 1024, and batch, num_heads_q and seq_len_q at most
 * 32768 each; if no stride is negative or broadcast, and no tensor spans 2 GiB; and, with OpenMP, if it is
 * too small to share. It is computed directly, without a plan, in a seventh of the time for the smallest. The
 * bits are the same. It may run in less than attn_workspace_size says, and attn_check then says "ok".
 *
 * Returns the errors of attn_workspace_size, ATTN_ERR_WORKSPACE, and ATTN_ERR_CALLBACK if parallel_for or a backend
 * failed. */
ATTN_API attn_status attn_forward(const attn_params *p, void *workspace, size_t workspace_bytes);

/* attn_check() says in one English sentence what is wrong with *p and the workspace, or "ok".
 *
 * It writes at most text_bytes bytes, including the terminator, and returns text. As a special
 * case, it returns a constant string if text is NULL or text_bytes is 0. It computes nothing, so
 * after ATTN_ERR_CALLBACK, which only a run can show, it says "ok". Levels have checks of their
 * own, such as attn_backward_check. */
ATTN_API const char *attn_check(const attn_params *p, const void *workspace, size_t workspace_bytes,
                                char *text, size_t text_bytes);

/* attn_status_string() returns a short name of a status, e.g. "workspace too small", and never
 * NULL. docs/troubleshooting.md has an entry under each name. */
ATTN_API const char *attn_status_string(attn_status status);

/* attn_version() returns the version of the library in the binary, e.g. "0.1.0". */
ATTN_API const char *attn_version(void);

/* attn_params_size() returns sizeof(attn_params) of the library in the binary. If it differs from
 * the program's sizeof(attn_params), header and library do not match. */
ATTN_API size_t attn_params_size(void);

/* ------------------------------------------------------------------------------------------------
 * Helpers
 * --------------------------------------------------------------------------------------------- */

/* attn_alibi_slopes() writes the standard ALiBi slopes of num_heads heads, 1 to 2^20.
 *
 * They are 2^(-8 (h+1) / num_heads) if num_heads is a power of two. Otherwise the slopes of the
 * next lower power of two come first, and then every other slope of the next higher one (Press et
 * al. 2021, arXiv 2108.12409). They are correct to 2 ulp and have the same bits everywhere. They serve
 * as p.alibi_slopes of a batch if p.alibi_stride is ATTN_STRIDE_BROADCAST; with a stride of 0 a call
 * reads slopes for each batch entry. Returns ATTN_ERR_ARG if slopes is NULL or num_heads is out of
 * range. */
ATTN_API attn_status attn_alibi_slopes(float *slopes, int64_t num_heads);

/* attn_rotate() multiplies rows x[r*dim..] by Hadamard matrices over the root of their size, in place.
 *
 * Blocks have the largest power of two of elements that fits, 256 at most: 128 is one block, 80 is 64 and
 * 16. Rotating twice gives the rows again but for rounding. An outlier then spreads over its block, which
 * makes q5_0 and q4_0 keys far more accurate: rotate K before it is quantised and set
 * attn_params.rotated, or let a cache do so. Source: Ashkboos et al. 2024 (arXiv 2404.00456). Returns
 * ATTN_ERR_ARG if x is NULL or not aligned, rows is below 0 or dim below 1. */
ATTN_API attn_status attn_rotate(float *x, int64_t rows, int64_t dim);

/* attn_convert() converts n contiguous elements from one attn_dtype to another.
 *
 * It rounds to nearest even and stores every NaN in one canonical form. What is too large becomes
 * infinite, and NaN in E4M3, which has no infinity. Units of 32 numbers have rules of their own: they
 * get the bytes of ggml's reference quantisation, one with a number that is not finite becomes NaN,
 * and numbers beyond 127 (Q8_0), 16 (Q5_0) or 8 (Q4_0) times 65504 come back as infinity or NaN.
 * ATTN_I8 needs scales and is refused: see attn_quantise_i8.
 * Arrays have the alignment of their type, units that of uint16_t. Returns ATTN_ERR_ARG if a type is
 * unknown or ATTN_I8, a pointer is NULL or not aligned and n is not 0, n is beyond PTRDIFF_MAX / 4, or n
 * is not a multiple of 32 where a type has units of 32. */
ATTN_API attn_status attn_convert(void *dst, int dst_dtype, const void *src, int src_dtype,
                                  size_t n);

/* attn_quantise_i8() stores rows x[r*dim..] in ATTN_I8, with one scale for each row.
 *
 * The scale of a row is fl(a / 127), where a is its largest magnitude. A number becomes fl(x *
 * fl(1 / scale)) rounded to a whole one, ties to even, from -127 to 127. A row with a number that is not
 * finite has NaN as its scale and 0 as its numbers, so that it is read as NaN. If 1 / scale is not
 * finite, numbers are 0. Returns ATTN_ERR_ARG if a pointer is NULL or not aligned and there are rows,
 * rows is below 0, dim is below 1, or rows * dim exceeds the address space. */
ATTN_API attn_status attn_quantise_i8(int8_t *to, float *scales, const float *x, int64_t rows,
                                      int64_t dim);

/* attn_dropout_keep() returns 1 if dropout keeps the pair *at, and 0 if it drops it.
 *
 * It compares word 0 of Philox4x32-10 (Salmon et al. 2011), keyed by the seed, with counter (n,
 * pos, head, batch), to floor(dropout_p * 2^32). A dropout_p of 1 or more keeps nothing, and one
 * that is not above 0 keeps everything. Without a pair (NULL) it returns 0. */
ATTN_API int attn_dropout_keep(uint64_t seed, float dropout_p, const attn_pair *at);

/* attn_kernels_get() returns one of the kernel sets that this CPU can run. Index 0 is the best for
 * many rows, the last one is always "portable", and an index beyond it gives NULL. */
ATTN_API const attn_kernels *attn_kernels_get(int index);

/* attn_kernels_find() returns the kernel set of that name, or NULL if the name is unknown or this
 * CPU cannot run it. */
ATTN_API const attn_kernels *attn_kernels_find(const char *name);

/* attn_kernels_name() returns the name of a kernel set, or "none" for NULL. */
ATTN_API const char *attn_kernels_name(const attn_kernels *kernels);

/* attn_impl_name() returns the name of an attn_impl that attn_params_from_string takes: "default",
 * "tiled", "naive" or "auto". For any other number it returns NULL. */
ATTN_API const char *attn_impl_name(int impl);

#include "explain.h"
#include "options.h"
#include "merge.h"
#include "rope.h"
#include "cache.h"
#include "snapshot.h"
#include "backward.h"
#include "resume.h"
#include "patterns.h"
#include "index.h"
#include "dilated.h"
#include "ring.h"
#include "dilated_ring.h"
#include "ring_decode.h"
#include "backend.h"

#ifdef __cplusplus
}
#endif

#endif /* ATTN_H */
