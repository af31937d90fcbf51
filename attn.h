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
#define attn_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_workspace_size)
#define attn_forward ATTN_JOIN(ATTN_PREFIX, attn_forward)
#define attn_check ATTN_JOIN(ATTN_PREFIX, attn_check)
#define attn_status_string ATTN_JOIN(ATTN_PREFIX, attn_status_string)
#define attn_version ATTN_JOIN(ATTN_PREFIX, attn_version)
#define attn_params_size ATTN_JOIN(ATTN_PREFIX, attn_params_size)
#define attn_alibi_slopes ATTN_JOIN(ATTN_PREFIX, attn_alibi_slopes)
#define attn_rotate ATTN_JOIN(ATTN_PREFIX, attn_rotate)
#define attn_convert ATTN_JOIN(ATTN_PREFIX, attn_convert)
#define attn_quantise_i8 ATTN_JOIN(ATTN_PREFIX, attn_quantise_i8)
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
#define attn_dilated_ring_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_dilated_ring_workspace_size)
#define attn_dilated_ring_forward ATTN_JOIN(ATTN_PREFIX, attn_dilated_ring_forward)
#define attn_dilated_ring_check ATTN_JOIN(ATTN_PREFIX, attn_dilated_ring_check)
#define attn_dilated_ring_backward_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_dilated_ring_backward_workspace_size)
#define attn_dilated_ring_backward ATTN_JOIN(ATTN_PREFIX, attn_dilated_ring_backward)
#define attn_dilated_ring_backward_check ATTN_JOIN(ATTN_PREFIX, attn_dilated_ring_backward_check)
#define attn_explain ATTN_JOIN(ATTN_PREFIX, attn_explain)
#define attn_index_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_index_workspace_size)
#define attn_index ATTN_JOIN(ATTN_PREFIX, attn_index)
#define attn_index_check ATTN_JOIN(ATTN_PREFIX, attn_index_check)
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
#define attn_ring_decode_workspace_size ATTN_JOIN(ATTN_PREFIX, attn_ring_decode_workspace_size)
#define attn_ring_decode_forward ATTN_JOIN(ATTN_PREFIX, attn_ring_decode_forward)
#define attn_ring_decode_check ATTN_JOIN(ATTN_PREFIX, attn_ring_decode_check)
#define attn_rope_apply ATTN_JOIN(ATTN_PREFIX, attn_rope_apply)
#define attn_rope_table ATTN_JOIN(ATTN_PREFIX, attn_rope_table)
#define attn_cache_save ATTN_JOIN(ATTN_PREFIX, attn_cache_save)
#define attn_cache_load ATTN_JOIN(ATTN_PREFIX, attn_cache_load)
#define attn_cpu_features ATTN_JOIN(ATTN_PREFIX, attn_cpu_features)
#define attn_cpu_permits_tiles ATTN_JOIN(ATTN_PREFIX, attn_cpu_permits_tiles)
#define attn_kernels_avx2 ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx2)
#define attn_kernels_avx512 ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx512)
#define attn_kernels_neon ATTN_JOIN(ATTN_PREFIX, attn_kernels_neon)
#define attn_kernels_neon32 ATTN_JOIN(ATTN_PREFIX, attn_kernels_neon32)
#define attn_kernels_rvv ATTN_JOIN(ATTN_PREFIX, attn_kernels_rvv)
#define attn_kernels_sse2 ATTN_JOIN(ATTN_PREFIX, attn_kernels_sse2)
#define attn_kernels_wasm ATTN_JOIN(ATTN_PREFIX, attn_kernels_wasm)
#define attn_kernels_wasm_relaxed ATTN_JOIN(ATTN_PREFIX, attn_kernels_wasm_relaxed)
#define attn_kernels_avx512_bf16 ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx512_bf16)
#define attn_kernels_avx512_amx ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx512_amx)
#define attn_kernels_neon_bf16 ATTN_JOIN(ATTN_PREFIX, attn_kernels_neon_bf16)
#define attn_kernels_avx2_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx2_narrow)
#define attn_kernels_avx512_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_avx512_narrow)
#define attn_kernels_neon_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_neon_narrow)
#define attn_kernels_neon32_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_neon32_narrow)
#define attn_kernels_rvv_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_rvv_narrow)
#define attn_kernels_sse2_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_sse2_narrow)
#define attn_kernels_wasm_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_wasm_narrow)
#define attn_kernels_wasm_relaxed_narrow ATTN_JOIN(ATTN_PREFIX, attn_kernels_wasm_relaxed_narrow)
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

/* src/api/explain.h - how attn_forward would run a call, and why. */

/* An attn_info tells how a call would run. */
typedef struct attn_info {
    int impl;                 /* the attn_impl that runs: TILED or NAIVE */
    const char *impl_name;    /* "tiled" or "naive" */
    const char *kernels_name; /* kernel set, e.g. "portable_fma" */
    const char *backend_name; /* "cpu", the name of the backend, or "none" if neither can run it */
    int tile_rows, tile_keys; /* query rows and keys of a tile */
    int workers;              /* largest number of workers that run at once */
    /* Pieces of work, with logits; of divided keys only the longest list counts. A short call (see
     * attn_forward) has none: sizes here are those of the long way, which it takes if its arrays lie among
     * each other. */
    int64_t items;
    int key_parts; /* parts of a row tile's keys, so that few rows use all workers; 1: undivided */
    size_t workspace_bytes;            /* what attn_workspace_size gives */
    size_t workspace_bytes_per_worker; /* of these, what each worker takes */
    double pairs; /* pairs that lengths, causal, window, chunked and prefix leave visible */
    double flops; /* 2 * pairs * (head_dim + head_dim_v) */
    double bytes; /* size of q, k, v, their scales and recent rows, o, lse and stats, each once */
    char reasons[512]; /* why this path is taken and no other: sentences joined by "; " */
} attn_info;

/* attn_explain() fills in *info with how attn_forward would run *p in a workspace of the best size.
 *
 * Data of tensors is not read and may be NULL. If causal, window or chunked is on, the time that it
 * takes grows with batch * seq_len_q. Returns the errors of attn_workspace_size; if *p is at fault,
 * info->reasons holds the sentence of attn_check. */
ATTN_API attn_status attn_explain(const attn_params *p, attn_info *info);

/* src/api/options.h - how people read and write a call: attn_info as lines, options as words. */

/* attn_info_format() writes *info as readable lines and returns text. It writes at most text_bytes
 * bytes, including the terminator, and truncates what is longer. */
ATTN_API const char *attn_info_format(const attn_info *info, char *text, size_t text_bytes);

/* attn_params_from_string() overrides fields of *p by name.
 *
 * This text has all the names: "impl=naive kernels=portable workers=3 tile_keys=64 redo=1
 * naive_whole=1 auto_naive_keys=256". Spaces or commas separate them. The caller may take the text
 * from a command line or an environment variable; the library itself reads no environment. Returns
 * ATTN_ERR_ARG if a name is unknown, a value cannot be read or p or text is NULL; *p is then unchanged.
 * Whether a call takes the value, attn_check says. */
ATTN_API attn_status attn_params_from_string(attn_params *p, const char *text, char *why,
                                             size_t why_bytes);

/* src/api/merge.h - results over parts of the keys become one.
 *
 * A call over a part of the keys gives either a raw state (p.partial) or a finished result with its
 * LSE. Raw states keep the bits of one call; finished results agree within a few ulp. All arrays
 * are f32 and packed, except o, lse and stats of attn_state_finish. Keys that have lost a vector
 * (p.k_centered) must have lost the same one in every part.
 */

/* attn_state_merge() merges the states *a and *b of two parts of the keys into *out; *a has the
 * lower keys.
 *
 * It merges out->num_rows rows of out->head_dim_v values; the sizes in *a and *b are not read. The
 * merge is canonical, with the bits of one call, if each part covers a node of the tree of
 * docs/canon.md: 1024 * 2^k keys, aligned in n, or the tail. Other merges are deterministic.
 *
 * out may be a or b, and each of its arrays may be the same array of either. Returns ATTN_ERR_ARG if
 * it overlaps them otherwise, or itself, or if a pointer is NULL or a size is negative; nothing is
 * written then. */
ATTN_API attn_status attn_state_merge(const attn_state *a, const attn_state *b, attn_state *out);

/* attn_state_finish() writes p->o, p->lse and p->stats from raw states, and applies the sink and
 * dropout's factor of *p.
 *
 * The rows of *state are numbered as attn_forward with p->partial numbers them. Shapes, strides and
 * types of o, lse and stats are those of *p; any may be off, but not all. It takes the *p of the
 * calls that gave the states, but refuses further outputs (logits) with ATTN_ERR_UNSUPPORTED.
 * Returns the errors of attn_problem_of, and ATTN_ERR_ARG if an array of *state is NULL or no
 * output is given. */
ATTN_API attn_status attn_state_finish(const attn_params *p, const attn_state *state);

/* attn_lse_merge() merges two finished results of num_rows rows over disjoint keys by their LSE. It
 * makes no stats: where gradients follow, merge raw states.
 *
 * o_a, o_b and o_out are [num_rows, head_dim_v]; lse_a, lse_b and lse_out are [num_rows]. At most
 * one of the results may have had a sink. An empty part leaves the other unchanged.
 *
 * o_out may be o_a or o_b, and lse_out may be lse_a or lse_b. Returns ATTN_ERR_ARG if an output
 * overlaps an array otherwise, or if a pointer is NULL or a size is negative; nothing is written
 * then. */
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
 *   turns per position, divided by freq_factors[i] if that is below 1. At random positions up to
 *   2^20 all 76800 values of cos and sin measured were the nearest float; up to 2^24 all but 3 of
 *   51200 were, and up to 2^31 all but 138 of 25600. Most programs multiply a float position by a
 *   float frequency, and their angles are wrong by up to 2^-23 of the angle; to get their bits,
 *   give their tables. docs/canon.md states the order of operations.
 * Values. Turned elements have no -0 and only the canonical NaN, like all outputs of the library.
 *   Elements that are not turned are bit-exact copies if x and y have one type.
 * Errors. Functions return ATTN_ERR_ARG or ATTN_ERR_OVERFLOW.
 */

/* An attn_rope_scaling stretches the positions of a model beyond its training. */
typedef enum attn_rope_scaling {
    ATTN_ROPE_NONE = 0,   /* Frequencies stay as they are. */
    ATTN_ROPE_LINEAR = 1, /* Factor divides all frequencies (Chen et al. 2023, arXiv 2306.15595). */
    ATTN_ROPE_NTK = 2,    /* The base becomes base * factor^(dim / (dim - 2)). */
    ATTN_ROPE_YARN = 3,   /* This is the scaling of Peng et al. 2023, arXiv 2309.00071. */
    ATTN_ROPE_LLAMA3 = 4  /* Factor divides low frequencies, not high ones, as in Llama 3.1. */
} attn_rope_scaling;

/* An attn_rope says how rows turn. Set it to zero, then assign: zero is every field's default. */
typedef struct attn_rope {
    /* The first dim elements of a head turn and the others pass through; dim is even and at most
     * 2^24, and 0 means head_dim. */
    int64_t dim;
    /* 0 pairs elements i and i + dim/2, as NeoX does ("half-split"); nonzero pairs 2i and 2i + 1,
     * as GPT-J does. */
    int interleaved;

    /* ---- angles that are computed. A field that `scaling` does not use must be 0 or 1, except
     * original_length, which is then not read. */

    float base;                 /* above 1; 0 means 10000 */
    int scaling;                /* attn_rope_scaling */
    float factor;               /* factor of the scaling, at least 1; 0 means 1 */
    int64_t original_length;    /* positions of the model's first training, for YARN and LLAMA3 */
    float beta_fast, beta_slow; /* YARN: turns over the original length; 0 means 32 and 1 */
    float low_freq_factor, high_freq_factor; /* LLAMA3; 0 means 1 and 4 */
    float attention_factor; /* multiplies cos and sin; 0 means 1, or 0.1 ln(factor) + 1 with YARN */
    /* [dim/2], divisors of the frequencies before scaling, as LongRoPE and GGUF files have them;
     * NULL means 1. Each is at least 1e-6. With YARN and LLAMA3, which compare frequencies, each is
     * at least 0.16, so that frequencies stay below one turn per position. */
    const float *freq_factors;

    /* ---- or angles that are given. Of the fields above only dim and interleaved then count. */

    const float *cos, *sin; /* [num_positions, dim/2] each; both or neither */
    int64_t num_positions;  /* positions in the tables, from 0 on */
    ptrdiff_t table_stride; /* elements between positions; 0 means dim/2 */
} attn_rope;

/* An attn_rope_rows names the rows to turn. Element (b, h, i, d) lies at
 * data[b*stride_batch + h*stride_head + i*stride_seq + d], and strides of 0 mean packed in
 * `layout`: [batch, num_heads, seq_len, head_dim], or [batch, seq_len, num_heads, head_dim]. x and
 * y may be f32, f16 or bf16. */
typedef struct attn_rope_rows {
    int64_t batch, num_heads, seq_len, head_dim;
    int layout;    /* attn_layout of x and y; 0 means BHSD */
    attn_tensor x; /* rows to turn */
    attn_output y; /* turned rows: x itself (equal data, strides and type), or no overlap with x */
    const int64_t *positions;   /* [batch, seq_len], -2^31 to 2^31; NULL means first[b] + i */
    ptrdiff_t positions_stride; /* elements between batch entries; 0 means packed */
    const int64_t *first;       /* [batch], position of row 0, without positions; NULL means 0 */
} attn_rope_rows;

/* attn_rope_apply() writes the turned rows of x to y. */
ATTN_API attn_status attn_rope_apply(const attn_rope *rope, const attn_rope_rows *rows, char *why,
                                     size_t why_bytes);

/* attn_rope_table() writes the cos and sin that attn_rope_apply would use for positions first to
 * first+count-1, [count, dim/2] each.
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
 *   view is number begin + j, and the view's key_base is begin. Positions, masks and bits of a
 *   result are therefore those of an uncut, unpaged, unwrapped sequence (docs/canon.md).
 * Rows. A sequence has `rows` rows, which is capacity or, if paged, capacity rounded up to whole
 *   pages. Number n lies in row n modulo rows. If the cache is contiguous, that is a row of the
 *   sequence's own storage. If it is paged, it is slot row % page_size of page
 *   table[row / page_size]. Appending keys takes pages from a free list, and trimming gives them
 *   back. Each page has a count of the sequences that share it, and a shared page is copied before a
 *   write.
 * Ring. With c.ring the oldest keys make room for new ones, and a query may look back at
 *   c.window_left keys. A ring of window_left + n rows takes steps of up to n keys and can roll
 *   back n keys.
 * Recent keys. With c.recent the last keys of each sequence are kept a second time in full precision, in
 *   a ring of their own whatever the layout is. Appending writes both, trimming and forking refuse an end
 *   whose next row would miss some of them.
 * Layers. All layers of a model share numbers, lengths and tables. In each step, call
 *   attn_cache_extend once, then attn_cache_write and attn_cache_view for each layer.
 *   attn_cache_append does both for a cache of one layer.
 * Memory. attn_cache_size tells what attn_cache_init needs, with any alignment. Storage may be the
 *   caller's own instead, if c.k.data and c.v.data are set before. All this memory must stay in
 *   place as long as the cache or a view of it is used.
 * Aliasing. What is written, which is the storage of K and of V, the state, the outputs of
 *   attn_cache_read and the memory of a view, must not overlap anything else. The k and v of a step
 *   may overlap each other.
 * Threads. A function that takes a const attn_cache may run in many threads at once; any other
 *   needs the cache for itself. attn_cache_write needs its layer's rows of its sequences for
 *   itself: writes, reads and attn_forward of other layers or other sequences may run beside it.
 * Errors. A function that fails changes nothing, neither in the cache nor elsewhere, unless it says
 *   otherwise.
 */

/* An attn_cache is a cache of some sequences. Set it to zero, assign the shape, then call
 * attn_cache_size and attn_cache_init. */
typedef struct attn_cache {
    /* ---- shape. It must not be changed after attn_cache_init. */

    int64_t num_sequences; /* sequences that the cache has room for, at least 1 */
    int64_t num_layers;    /* layers; 0 means 1 */
    int64_t num_heads_kv;  /* kv heads, at least 1 */
    int64_t head_dim;      /* elements of a k vector, at least 1 */
    int64_t head_dim_v;    /* elements of a v vector; 0 means head_dim */
    int64_t capacity;      /* largest number of keys of a sequence, at least 1 */
    int64_t page_size;     /* keys of a page; 0 means that the cache is not paged */
    int64_t num_pages;     /* pages of all sequences; 0 means as many as they can need */
    int ring;              /* nonzero: the oldest keys make room for new ones */
    /* Keys before its own that a query of a ring may see, below capacity. With 0 it sees all that
     * are there, and results depend on what the ring still has. */
    int64_t window_left;
    /* attn_layout. Storage is [sequence or page, head, row, dim], or [sequence or page, row, head,
     * dim]. 0 means BHSD. */
    int layout;
    /* Storage of all layers, each of k and v in its own type; with units of 32, head_dim and all
     * strides are multiples of 32. NULL data puts it into the memory of attn_cache_init. stride_batch
     * lies between sequences or, if paged, between pages; stride_seq lies between rows; 0 means packed
     * in `layout`. */
    attn_output k, v;
    /* Scales of K and V in ATTN_I8, given with that type and only then: f32 [num_layers, num_heads_kv,
     * head_dim] and [num_layers, num_heads_kv, head_dim_v]. They come from a calibration, such as the
     * largest magnitude of each channel over earlier texts, divided by 127, and must stay as they are.
     * stride_batch lies between layers. Any axis may be shared (ATTN_STRIDE_BROADCAST); all keys share
     * scales, so stride_seq must be 0 or that. A number x is stored as x / scale, rounded once to f32 and
     * then to the nearest whole number, ties to even, at most 127 in magnitude. A NaN, and every number
     * with a scale of 0, is stored as 0. Rows given in ATTN_I8 are stored as they are. */
    attn_scales k_scales, v_scales;
    /* Sum of ATTN_ROTATED_K and ATTN_ROTATED_V: rows are rotated after they are turned and before they
     * are rounded, and views say so to attn_forward. Rows given in an 8-bit float type, in units or in
     * ATTN_I8 are stored as they are, and attn_cache_read gives what is stored: see attn_rotate. */
    int rotated;
    /* [num_layers, num_heads_kv, head_dim], which must stay as it is, or NULL. It is subtracted from keys
     * after they are turned and before they are rotated, such as the mean of the keys of earlier texts:
     * what is left needs fewer bits. Logits of a row then lack one number, its q.k_mean, which changes
     * no probability; views say so to attn_forward (p.k_centered). Rows given in an 8-bit float type, in
     * units or in ATTN_I8 are stored as they are. Source: Zhang et al. 2024 (arXiv 2410.02367). */
    const float *k_mean;
    /* How many keys, its own and those before it, a row reads unrounded, though turned, centered and
     * rotated: the last words of a text then lose nothing to quantisation. A row reads number n so if
     * n > its own number - recent, in whatever step it comes (p.recent). 0 means that every key is read
     * as stored. */
    int64_t recent;
    /* Rows of each sequence's ring of recent keys, at least `recent`. A ring of recent + n - 1 rows takes
     * steps of up to n keys and can roll back n keys. 0 means recent + 255; `rows` are enough in any
     * case. */
    int64_t recent_rows;
    int recent_dtype; /* attn_dtype of recent rows: 0 means ATTN_F32; ATTN_F16 or ATTN_BF16 */
    ptrdiff_t k_stride_layer, v_stride_layer; /* elements; 0 means packed: [layer, ...] */

    /* ---- state. The functions below set it, and callers may read it. */

    int64_t rows;               /* rows of a sequence */
    int64_t pages_per_sequence; /* entries of a sequence's table */
    int64_t *begin, *end;       /* [num_sequences], numbers begin to end-1 are present */
    /* [num_sequences], the ring has overwritten numbers below this one; those that the caller had
     * forgotten before do not count. */
    int64_t *overwritten_below;
    int32_t *length;     /* [num_sequences], end - begin */
    int32_t *first_row;  /* [num_sequences], row of number begin */
    int32_t *table;      /* [num_sequences, pages_per_sequence], pages; -1 means none */
    int32_t *uses;       /* [num_pages], sequences that have this page */
    int32_t *free_pages; /* [num_pages], of which the first num_free are free; the last is next */
    int64_t num_free;    /* free pages */
    /* [num_sequences], the ring of recent keys has those of numbers recent_begin to end-1; NULL without
     * `recent`, as the three below. */
    int64_t *recent_begin;
    int32_t *recent_entries; /* [num_sequences], 0, 1, ...: the entries of a view */
    /* [num_layers, num_sequences, num_heads_kv, recent_rows, dim]. */
    void *recent_k, *recent_v;
    /* [num_layers, num_sequences, num_heads_kv, largest dim], scratch where attn_cache_write turns,
     * centers and rotates rows in f32 before it rounds them; NULL if it need not. */
    float *desks;
    int64_t state_bytes; /* of the arrays from `begin` on, all but storage */
} attn_cache;

/* An attn_cache_step is a set of new keys and values. Set it to zero, then assign. With cu_seqlens
 * rows are numbered by token. k and v are in f32, f16, bf16 or the type of the cache; keys that are
 * turned are in f32, f16 or bf16. */
typedef struct attn_cache_step {
    int64_t batch;            /* sequences that get keys; 0 stores nothing, and is no error */
    const int32_t *sequences; /* [batch], each at most once; NULL means 0, 1, ... */
    int64_t seq_len;          /* rows of k and v per batch entry, or in all with cu_seqlens */
    const int32_t *len;       /* [batch], rows in use, 0 is allowed; NULL means all */
    /* [batch + 1], borders of packed rows: entry b has rows cu[b] to cu[b+1]-1. NULL means not
     * packed. */
    const int32_t *cu_seqlens;
    int layout;    /* attn_layout of k and v, unless packed by token; 0 means BHSD */
    attn_tensor k; /* [batch, num_heads_kv, seq_len, head_dim], or [token, head, dim] */
    attn_tensor v; /* [batch, num_heads_kv, seq_len, head_dim_v], or [token, head, dim] */
    /* Turns keys to their positions before they are stored; NULL stores them as they are. */
    const attn_rope *rope;
    /* [batch, seq_len], or [token], positions for rope; NULL means each key's number. */
    const int64_t *positions;
} attn_cache_step;

/* attn_cache_size() sets *bytes to what attn_cache_init needs for the shape in *c. As a special
 * case, it refuses a cache that attn_cache_init has set up: set *c to zero and assign again.
 * Returns ATTN_ERR_ARG or ATTN_ERR_OVERFLOW. */
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
 * It does not read k, v, rope and positions of *s. In a ring, a step has at most rows - window_left
 * keys of a sequence; otherwise the ring would lose keys that the step's first query sees. Returns
 * ATTN_ERR_ARG, and ATTN_ERR_FULL if that limit, the capacity or the pages do not suffice for all
 * keys. With c.recent a step has at most recent_rows - (recent - 1) keys, or as many more as a young
 * sequence lacks, for the same reason. */
ATTN_API attn_status attn_cache_extend(attn_cache *c, const attn_cache_step *s, char *why,
                                       size_t why_bytes);

/* attn_cache_write() stores one layer's k and v of *s, the step by which the cache was last
 * extended.
 *
 * It cannot tell another step from that one unless its rows are more than the sequence has: a longer one
 * writes over older keys. If it fails, the new numbers are still present, with undefined rows; attn_cache_trim takes
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
 * keys below it, overwritten ones included, and so does emptying. With c.recent an end is refused in the
 * same way if the ring of recent keys has lost some of the recent - 1 keys before it. */
ATTN_API attn_status attn_cache_trim(attn_cache *c, int64_t sequence, int64_t begin, int64_t end,
                                     char *why, size_t why_bytes);

/* attn_cache_fork() makes the empty sequence `to` begin with numbers up to end-1 of sequence
 * `from`.
 *
 * It shares pages if the cache is paged, and copies rows otherwise. Returns ATTN_ERR_ARG if `to` is
 * `from` or not empty, if the numbers are not present, or if a ring could not roll back to end. */
ATTN_API attn_status attn_cache_fork(attn_cache *c, int64_t from, int64_t to, int64_t end,
                                     char *why, size_t why_bytes);

/* attn_cache_view_size() sets *bytes to what attn_cache_view needs for `batch` chosen sequences.
 * Returns ATTN_ERR_ARG or ATTN_ERR_OVERFLOW. */
ATTN_API attn_status attn_cache_view_size(const attn_cache *c, int64_t batch, size_t *bytes,
                                          char *why, size_t why_bytes);

/* attn_cache_view() sets those fields of *p that say what is cached in a layer.
 *
 * Entry b of the batch is sequences[b], in any order. NULL means 0, 1, ... and needs no memory;
 * otherwise arrays of the view lie in `memory`, of any alignment. The arrays are those of the cache
 * at this moment: take a new view after every change.
 *
 *   - batch, num_heads_kv, head_dim, head_dim_v, k, v, k_scales, v_scales, recent, kv_len, key_base and
 *     kv_rows get what the cache has, and so do rotated and k_centered; kv_begin and cu_seqlens_kv become NULL. p->layout is left as it is, because k and v
 *     get strides: it says how q and o lie, whatever c->layout is.
 *   - seq_len_kv, the number of columns, becomes rows, and attn_workspace_size with kv_len = NULL
 *     then gives a size that serves every later view. The caller may lower it down to the largest
 *     kv_len.
 *   - shared_keys becomes the number of keys in the pages with which all entries begin, or 0 if the
 *     cache is not paged. The caller may set it afterwards if more keys are equal.
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
 * Both are [num_heads_kv, count, dim] whatever the layout of the cache is, in f32, f16, bf16 or as
 * stored, and their stride_batch is not used. Numbers of ATTN_I8 are read as number * scale,
 * rounded to f32 and then to the type of the array. k or v is not wanted if it or its data is
 * NULL. Returns ATTN_ERR_ARG if the numbers are not present, or ATTN_ERR_OVERFLOW. */
ATTN_API attn_status attn_cache_read(const attn_cache *c, int64_t layer, int64_t sequence,
                                     int64_t first, int64_t count, const attn_output *k,
                                     const attn_output *v, char *why, size_t why_bytes);

/* src/api/snapshot.h - snapshots: sequences of a cache as bytes, to go on later or elsewhere.
 *
 *     static int put(void *file, const void *bytes, size_t count)
 *     {
 *         return fwrite(bytes, 1, count, file) != count;
 *     }
 *
 *     attn_snapshot s = {0};                         // sequence 0, such as a prompt that comes often
 *     s.batch = 1;  s.rope = &rope;  s.tag = model_hash;
 *     s.write = put;  s.context = file;
 *     attn_cache_save(&c, &s, why, sizeof why);
 *     ...
 *     s.read = get;                                  // into another cache, which then goes on
 *     attn_cache_load(&other, &s, why, sizeof why);
 *
 * Same bits. A snapshot holds the stored bytes of K and V, by number. What is computed and appended
 *   after a load has the bits that it would have had without. The other cache may have another layout,
 *   page size, capacity and byte order. A load refuses a snapshot that differs in num_layers,
 *   num_heads_kv, head_dim, head_dim_v, a storage type, `rotated`, k_mean, k_scales, v_scales, recent,
 *   recent_dtype, ring or window_left, in the rows of a ring, in the rope of its keys, in s.batch, in s.tag, or in the numerics version.
 * Format. All numbers are 64-bit integers, least significant byte first. A head says what must agree; behind
 *   it, where K or V is of ATTN_I8, stand hashes of the scales.
 *   Each sequence follows: its begin, end and overwritten_below, with recent keys also recent_begin, then
 *   for each layer its rows in blocks of up to 64 numbers, which end before a multiple of 64: K and then V
 *   as [head, row, dim], and behind them the recent rows. The head, the hashes of scales, the numbers of a
 *   sequence, and each block end with a hash of everything so far. The first eight bytes name the format and its version:
 *   attnsnp1, or attnrec1 with recent keys.
 * Damage. The hash finds every change within one word of eight bytes, and misses about one in 2^64 of
 *   other damages. It is no signature: whoever can write a file can make one that loads. What such a
 *   file says is checked all the same, before anything is done with it.
 * Sharing. Sequences that share pages are saved one by one, and do not share after a load. To keep
 *   pages shared, save one of them, and call attn_cache_fork after the load.
 * Aliasing. The callbacks must not change the cache.
 */

/* An attn_snapshot says what is saved or loaded, and how. Set it to zero, then assign. */
typedef struct attn_snapshot {
    int64_t batch;            /* sequences */
    const int32_t *sequences; /* [batch], each at most once; NULL means 0, 1, ... */
    /* How the keys were turned before they were stored; NULL means that the cache did not turn them.
     * Ropes agree if they turn alike: rope.dim, interleaved, and the angles of positions 1, 2, 4, ...
     * 4096. A table that ends before 4096 is compared at those that it has, and agrees only with tables
     * that have the same ones. */
    const attn_rope *rope;
    /* Any number of the caller's, such as a hash of the model's weights, that a load must repeat. */
    uint64_t tag;
    /* Each takes `count` bytes and returns 0 if all went well. A load reads just the bytes of a
     * snapshot. */
    int (*write)(void *context, const void *bytes, size_t count);
    int (*read)(void *context, void *bytes, size_t count);
    void *context; /* goes to both */
} attn_snapshot;

/* attn_cache_save() writes sequences of *c by s->write.
 *
 * Returns ATTN_ERR_ARG, or ATTN_ERR_CALLBACK if s->write fails. It may run beside other functions that
 * take a const attn_cache. */
ATTN_API attn_status attn_cache_save(const attn_cache *c, const attn_snapshot *s, char *why,
                                     size_t why_bytes);

/* attn_cache_load() makes sequences of *c, which must be as attn_cache_trim(c, q, 0, 0) leaves them,
 * those that s->read gives, in the order in which they were saved.
 *
 * Unless it returns ATTN_OK, the sequences stay empty. Returns ATTN_ERR_ARG if the snapshot does not
 * agree with *c and *s, ATTN_ERR_DATA if it is none or damaged, ATTN_ERR_FULL if *c has too few rows or
 * pages, and ATTN_ERR_CALLBACK if s->read fails, as it does at the end of a file that was cut off. */
ATTN_API attn_status attn_cache_load(attn_cache *c, const attn_snapshot *s, char *why,
                                     size_t why_bytes);

/* src/api/backward.h - gradients of attn_forward, for training.
 *
 * Set p.stats.data before attn_forward, and keep p, o and stats. Then:
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
 * Method. Probabilities are computed again from the stats (m, l) of each row, tile by tile (Dao et
 *   al. 2022, arXiv 2205.14135, algorithm 4), so memory grows with the sequence length and never
 *   with its square. With S = final logits, P = 2^(S log2(e) - m) / l, delta = rowsum(dout * o) -
 *   dlse:
 *
 *     dV = P^T dout   dP = dout V^T   dS = P * (dP - delta)   dQ = scale dS K   dK = scale dS^T Q
 *
 *   dS is multiplied by the derivative of the score callback, then gives dbias and dslopes, and is
 *   then multiplied by the derivative of softcap. With dropout, dP and the P of dV take the factor
 *   keep / (1 - dropout_p).
 * What may be set in p. k and v are f32, f16 or bf16. Refused are partial, recent, rotated, k_centered,
 *   integer, fast and skip (docs/combinations.md). p.logits is checked as attn_forward checks it, but no
 *   logits are written. Where k or v is broadcast along an axis, dk and dv still have that axis, and the
 *   caller sums over it.
 * Caches. With kv_rows, too, dk and dv are [batch, num_heads_kv, seq_len_kv, dim]: row c is column c of the
 *   sequence, wherever its key lies. Sequences that share a page each have gradients of their own by its keys.
 * Parts. The gradients of a part are those of its pairs; dk and dv of a part of the keys have its key_count
 *   keys. Its dbias has the rows that the part holds and all columns, of which a part of the keys writes its
 *   own. A sink belongs to no key: every part of the keys gives the whole dsinks of its rows, so ask one of
 *   them.
 * LSE alone. Code that comes from FlashAttention has kept the LSE and may set p.lse without
 *   p.stats. The LSE is rounded, once by the forward call and again in base 2, and P takes these
 *   errors over: its relative error grows by up to |LSE| * 2e-7 + 3e-6. That is 1e-4 at logits of
 *   500 and 2e-3 at 10,000, which is as coarse as bf16, and at a million hardly one digit is left.
 *   No P exceeds 1, whatever the error. Where both are set, stats are read.
 * Arrays that no forward call filled. Statistics of zeros give NaN or infinity in every gradient.
 *   Other numbers may be somebody's statistics, and zeros may be somebody's LSE: arrays that were
 *   never written may give gradients that look right and are wrong.
 * Textbook. p.impl = ATTN_IMPL_NAIVE holds P and dS of a head. It takes P from a softmax of its own
 *   and reads none of o, stats and lse, but one output of the forward call must still be set.
 * Backends. p.backend runs the calls that it takes, and the CPU runs the others;
 *   attn_backward_explain says why.
 * What is written. Every element of dq, dk and dv of rows and keys in use (q_len, kv_len, kv_begin)
 *   is written, and so are all of dbias, dsinks and dslopes. Rows and keys that see nothing get +0.
 *   No result is -0.
 * Accuracy. P from stats has the error that it has in the forward call, however large logits are,
 *   because S is computed again with the same bits and m is one of these numbers.
 * Cost. The backward call takes five matrix products where the forward call takes two. Each of
 *   dbias and dslopes takes two more, S and dP again, if it is a sum.
 * Masked data. A key that a mask hides from a row does not show in that row's dq, and the row does
 *   not show in the key's dk and dv, even if there are NaN or Inf.
 * Determinism. Tiled gradients have the same bits on every CPU, for any number of threads and both
 *   values of g.gemms (docs/canon.md, "Gradients"). Sums over the batch (dbias, dsinks, dslopes)
 *   add its entries in order.
 */

/* A score derivative returns the derivative of p.score by the logit, at the logit that p.score was
 * given. It gets p.callback_user and must be pure, as it may be asked for one pair several
 * times. */
typedef float (*attn_score_derivative_fn)(void *user, const attn_pair *at, float logit);

/* An attn_bias_gradient is the gradient of the bias, f32 [batch, num_heads_q, seq_len_q,
 * seq_len_kv]. An axis that p.bias shares (ATTN_STRIDE_BROADCAST) is summed over; it has length 1
 * here, and its stride is not used. With cu_seqlens, rows and columns start at 0 in each sequence,
 * and these axes have the length of the longest one. */
typedef struct attn_bias_gradient {
    ptrdiff_t stride_batch, stride_head, stride_q, stride_kv; /* elements; 0 means packed */
    float *data;                                              /* NULL means not wanted */
} attn_bias_gradient;

/* An attn_gradients holds what goes in beside p, and what comes out. Set it to zero, then
 * assign. */
typedef struct attn_gradients {
    /* Matrix products for a tile: 5 divides the work by batch and kv head; 7 divides it by rows and
     * then by keys, and computes S and dP twice. 0 chooses the one with which the workers finish
     * first. */
    int gemms;

    /* ---- in */

    attn_tensor dout; /* [batch, num_heads_q, seq_len_q, head_dim_v], gradient of the loss by o */
    attn_tensor dlse; /* f32, shaped and packed as p.lse, gradient by the LSE; NULL data means 0 */
    attn_score_derivative_fn score_derivative; /* given together with p.score or not at all */

    /* ---- out. NULL data means that it is not wanted. Outputs have any storage type and are packed
     * as q, k and v are, in p.layout, which counts for dout, too. */

    attn_output dq; /* [batch, num_heads_q, seq_len_q, head_dim] */
    attn_output dk; /* [batch, num_heads_kv, seq_len_kv, head_dim], summed over the group's heads */
    /* [batch, num_heads_kv, seq_len_kv, head_dim_v], summed over the group's heads. */
    attn_output dv;
    attn_bias_gradient dbias; /* gradient of p.bias */
    float *dsinks;            /* [num_heads_q], gradient of p.sinks, summed over the batch */
    /* Gradient of p.alibi_slopes, packed: [batch, num_heads_q], or [num_heads_q] summed over the
     * batch where p.alibi_stride is ATTN_STRIDE_BROADCAST. */
    float *dslopes;
} attn_gradients;

/* attn_backward_workspace_size() sets *bytes to the best size of a workspace for attn_backward.
 * Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW, ATTN_ERR_UNSUPPORTED, or ATTN_ERR_CALLBACK if a backend
 * cannot size its workspace. */
ATTN_API attn_status attn_backward_workspace_size(const attn_params *p, const attn_gradients *g,
                                                  size_t *bytes);

/* attn_backward() computes the gradients that *g asks for.
 *
 * It reads q, k, v, o, stats (or lse, where stats.data is NULL), dout, dlse and the arrays of *p.
 * Returns the errors of attn_backward_workspace_size, ATTN_ERR_WORKSPACE, and ATTN_ERR_CALLBACK if
 * parallel_for or a backend failed. */
ATTN_API attn_status attn_backward(const attn_params *p, const attn_gradients *g, void *workspace,
                                   size_t workspace_bytes);

/* attn_backward_check() is attn_check for attn_backward. */
ATTN_API const char *attn_backward_check(const attn_params *p, const attn_gradients *g,
                                         const void *workspace, size_t workspace_bytes, char *text,
                                         size_t text_bytes);

/* An attn_backward_info tells how attn_backward would run. */
typedef struct attn_backward_info {
    int impl;                 /* the attn_impl that runs: TILED or NAIVE */
    int gemms;                /* 5 or 7 */
    const char *kernels_name; /* kernel set, e.g. "portable_fma" */
    const char *backend_name; /* "cpu", the name of the backend, or "none" if neither can run it */
    /* What P is computed from: "stats", "lse" with the error that this adds, or "a softmax of its
     * own" (naive); "nothing yet" and what is missing while neither array is given; "none" if
     * backend_name is "none". */
    const char *probabilities;
    int tile_rows, tile_keys; /* query rows and keys of a tile */
    int workers;              /* largest number of workers that run at once */
    size_t workspace_bytes, workspace_bytes_per_worker; /* all of it, what each worker takes */
    /* Operations of the five products over visible pairs, without sums for dbias and dslopes and
     * without what 7 products compute twice. */
    double flops;
    char reasons[200]; /* why p.backend does not take the call, or "" */
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
    float *data;         /* NULL means not wanted */
    int64_t count[4];    /* length of each axis before it is summed */
    ptrdiff_t stride[4]; /* elements between neighbours along each axis; 0 means summed */
    int kept[4];         /* nonzero for each axis that is not summed */
} attn_sum_axes;

/* An attn_gradient_call holds the gradients that a backend is asked for. */
struct attn_gradient_call {
    attn_gradients g;           /* what the caller gave, with its strides resolved */
    attn_sum_axes bias, slopes; /* where dbias and dslopes go */
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
 *         status = attn_resume_end(&r);                        // writes o, lse, stats
 *
 * Memory. The caller's block holds one tile of K and V, the states of the rows and a workspace of
 *   attn_forward. Its size hardly depends on the number of keys: twice as many keys need one more
 *   state for each row of a batch entry. A million keys of 8 heads of 64 and one row take under
 *   1 MiB.
 * Bits. The result has the bits of attn_forward with all keys in memory, whatever the sizes of
 *   tiles and steps.
 * Order. Batch entries come one after the other, and the keys of each come in ascending order. A
 *   tile ends where n(j) is a multiple of tile_keys. A tile that lengths, causal, window, chunked
 *   and prefix hide from every row is not fetched.
 * What may be set in p. Every field may be set except partial, logits, insight, cu_seqlens,
 *   kv_rows, recent, k_scales, v_scales, fast and part.keys, and impl must not be naive; AUTO runs tiled.
 *   Every mask, modifier and callback sees the whole call. Of k and v only the storage types count, which may be any but ATTN_I8; data and
 *   strides are not used. shared_keys and backend change nothing.
 * Errors. Nothing is written to o, lse and stats before attn_resume_end. A fetch that fails ends
 *   its step with ATTN_ERR_CALLBACK and leaves everything as it was before that tile: the next step
 *   asks for the tile again, or the caller gives up. After a failure of parallel_for every later
 *   call returns ATTN_ERR_CALLBACK.
 * Threads. p.parallel_for and p.num_workers work within a tile, by heads and rows. fetch is called
 *   by the thread that calls attn_resume_step. Several resumables may be under way at once, each
 *   used by one thread at a time.
 */

/* An attn_fetch asks for `count` keys of one batch entry and kv head, from column `first` on. */
typedef struct attn_fetch {
    int64_t batch, kv_head;
    int64_t first, count;
    void *k; /* to fill with count * head_dim elements of p.k.dtype, row after row, in units of 32
              * where the type has them */
    void *v; /* to fill with count * head_dim_v elements of p.v.dtype, row after row */
} attn_fetch;

/* A fetch callback fills tile->k and tile->v and returns 0, or returns nonzero if the keys cannot
 * be had. */
typedef int (*attn_fetch_fn)(void *user, const attn_fetch *tile);

/* An attn_resumable is a call under way. Callers read its first fields; the others are internal. */
typedef struct attn_resumable {
    int64_t done, total; /* tiles done, and all; a tile has all kv heads of one batch entry */
    int64_t fetched;     /* keys times kv heads that fetch has delivered */

    /* ---- internal */

    attn_params p;    /* the call as given; arrays that it points to must last until the end */
    attn_params tile; /* the call of one tile */
    attn_fetch_fn fetch;
    void *user;
    attn_status status; /* an error here is what every later call returns */
    int32_t *q_len;     /* rows in the tile's call: those of the entry under way, 0 for others */
    char *k, *v;        /* keys of the tile */
    int64_t tile_keys, kv_heads, head_dim, head_dim_v;
    int64_t entry;      /* batch entry under way */
    int64_t next, end;  /* its next key, and the one behind its last */
    int64_t entry_rows; /* states of a batch entry */
    attn_state states;  /* states of all rows: of the chunk under way, and of entries done */
    float *waiting[64]; /* nodes of the entry's merge tree, by their level */
    float *pending;     /* where the next node goes */
    void *workspace;
    size_t workspace_bytes;
} attn_resumable;

/* attn_resume_memory() sets *bytes to the best size of memory for attn_resume_begin.
 *
 * Less serves too, with a smaller workspace of attn_forward, down to what one worker needs. A tile
 * has tile_keys keys, a power of two from 16 to 1024; 0 means the most, up to 128, that keep K and
 * V within 256 KiB. k.data and v.data are not read. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
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

/* attn_resume_end() writes o, lse and stats. Before the last tile it returns ATTN_ERR_ARG, writes
 * nothing, and the call may go on. */
ATTN_API attn_status attn_resume_end(attn_resumable *r);

/* attn_resume_check() is attn_check for the arguments of attn_resume_begin. */
ATTN_API const char *attn_resume_check(const attn_params *p, int64_t tile_keys, attn_fetch_fn fetch,
                                       const void *memory, size_t memory_bytes, char *text,
                                       size_t text_bytes);

/* src/api/patterns.h - block-sparse patterns of cells.
 *
 * A pattern fills p.block_mask, which says which cells of keys a cell of rows sees. It is built
 * once, into the caller's memory, and serves any number of calls, forward and backward:
 *
 *     attn_pattern t = attn_pattern_bigbird(3, 1, 3, 1234);  // or {0} and fields of your own
 *     t.seq_len_q = t.seq_len_kv = 16384;  t.causal = 1;
 *     attn_pattern_info info;                                // sizes and density
 *     attn_pattern_measure(&t, &info, why, sizeof why);
 *     int32_t *offsets = malloc(info.num_offsets * 4), *columns = malloc(info.num_columns * 4);
 *     attn_pattern_build(&t, offsets, info.num_offsets, columns, info.num_columns, NULL, 0);
 *     attn_pattern_use(&t, offsets, columns, &p);            // and p.causal = 1
 *
 * An error writes nothing but the sentence in why.
 */

/* An attn_pattern says which cells are visible: the union of the parts below, and none if all are
 * 0. Set it to zero, then assign.
 *
 * Cell (r, c) covers rows from r*block_q and keys from c*block_k on, and the last cells may be
 * shorter. Rows stand at the end of the keys, as ATTN_ALIGN_BOTTOM_RIGHT has them. The diagonal of
 * row r is every column that holds a key at the position of a query row in r. */
typedef struct attn_pattern {
    /* Nonzero leaves columns after the diagonal out of every part; p.causal still has to hide the
     * future within a cell. */
    int causal;
    int64_t seq_len_q, seq_len_kv; /* lengths of the calls to come */
    int64_t block_q, block_k;      /* rows and keys of a cell; 0 means 64 */
    /* Query heads, each with a pattern of its own that differs in `random` alone; 0 means one
     * pattern for all heads. */
    int64_t num_heads;
    int local;              /* nonzero shows the diagonal */
    int64_t local_before;   /* columns shown before the diagonal, if local is set */
    int64_t local_after;    /* columns shown after the diagonal, if local is set */
    int64_t global_columns; /* first columns, which every row sees */
    int64_t global_rows;    /* first rows, which see every column */
    /* Shows the diagonal and columns at a multiple of stride from it ("strided" of Child et al.
     * 2019, arXiv 1904.10509); 0 means off. */
    int64_t stride;
    /* Shows columns c with c mod fixed = fixed - 1 ("fixed" of Child et al. 2019); 0 means off. */
    int64_t fixed;
    /* Distinct further cells that each row sees, or all that are left if these are fewer. A hash of
     * seed, head, row and column, equal on every machine, draws them from the cells that no other
     * part shows. */
    int64_t random;
    uint64_t seed; /* changes the hash of random */
} attn_pattern;

/* attn_pattern_longformer() returns local and global parts: Longformer (Beltagy et al. 2020, arXiv
 * 2004.05150). */
ATTN_API attn_pattern attn_pattern_longformer(int64_t each_side, int64_t global);

/* attn_pattern_strided() returns local and strided parts, both of `stride` columns, at least 1:
 * Sparse Transformer (Child et al. 2019, arXiv 1904.10509). */
ATTN_API attn_pattern attn_pattern_strided(int64_t stride);

/* attn_pattern_random() returns the diagonal and `count` random cells of each row. */
ATTN_API attn_pattern attn_pattern_random(int64_t count, uint64_t seed);

/* attn_pattern_bigbird() returns a local part of `window` columns in all, at least 1, global rows and
 * columns, and a random part: BigBird (Zaheer et al. 2020, arXiv 2007.14062), which takes 3, 2 and 3
 * cells of 64. */
ATTN_API attn_pattern attn_pattern_bigbird(int64_t window, int64_t global, int64_t random,
                                           uint64_t seed);

/* An attn_pattern_info holds the sizes of a pattern. */
typedef struct attn_pattern_info {
    int heads;             /* patterns: num_heads, or 1 */
    int64_t rows, columns; /* rows and columns of cells */
    int64_t num_offsets;   /* entries of row_offsets: heads * (rows + 1) */
    int64_t num_columns;   /* entries of columns: the visible cells of all heads */
    double density;        /* share of visible cells among all cells */
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
 * seq_len_kv differs from that of *t, or if *t has a pattern for each head and its num_heads is not
 * num_heads_q. */
ATTN_API attn_status attn_pattern_use(const attn_pattern *t, const int32_t *row_offsets,
                                      const int32_t *columns, attn_params *p);

/* src/api/index.h - an indexer: the keys that rows should attend to, for attention sparse by token.
 *
 * attn_index scores each key that a row sees by small heads of its own, and names the keys of the largest
 * scores in the lists that p.key_list reads:
 *
 *     score(i, j) = sum over index heads h of weight(i, h) * relu(scale * q(i, h).k(j))
 *
 * This is the lightning indexer of DeepSeek-V3.2, which has 64 heads of 128, one key head and lists of
 * 2048 keys. All kv heads of the attention share a list here:
 *
 *     attn_params s = {0};                               // the index heads and what their rows see
 *     s.batch = 1;  s.num_heads_q = 64;  s.num_heads_kv = 1;
 *     s.seq_len_q = rows;  s.seq_len_kv = keys;  s.head_dim = 128;
 *     s.q.data = index_q;  s.k.data = index_k;  s.causal = 1;
 *     attn_indexer x = {0};
 *     x.weights = weights;  x.top_k = 2048;  x.keys = lists;    // int32_t [rows * 2048]
 *     attn_index_workspace_size(&s, &x, &need);
 *     attn_index(&s, &x, ws, need);
 *     p.key_list.data = lists;  p.key_list.width = 2048;        // and attn_forward(&p, ...)
 *     p.key_list.stride_head = ATTN_STRIDE_BROADCAST;
 */

/* An attn_index_activation is what becomes of scale * q.k before it is weighed. */
typedef enum attn_index_activation {
    ATTN_INDEX_RELU = 0,  /* A number below 0 becomes 0. */
    ATTN_INDEX_LINEAR = 1 /* Nothing. */
} attn_index_activation;

/* An attn_indexer says how keys are scored and where their numbers go. Set it to zero, then assign. */
typedef struct attn_indexer {
    int activation; /* attn_index_activation */
    int64_t top_k;  /* entries of a list, at least 1 */
    /* [batch, seq_len_q, num_heads_q], or [token, num_heads_q] with cu_seqlens_q; NULL means 1. */
    const float *weights;
    /* Elements of weights between batch entries, rows and heads; 0 means packed. */
    ptrdiff_t weights_stride_batch, weights_stride_seq, weights_stride_head;
    /* [batch, num_heads_kv, seq_len_q, top_k]: the lists, as attn_key_list has them with `rows` 0. */
    int32_t *keys;
    float *scores; /* as keys: the score of each key, -inf where a list is filled up; NULL: off */
    /* Elements of keys and of scores between batch entries, key heads and rows; 0 means packed. */
    ptrdiff_t stride_batch, stride_head, stride_seq;
} attn_indexer;

/* attn_index_workspace_size() sets *bytes to the best size of a workspace for attn_index. As with
 * attn_workspace_size, that of the longest call serves shorter ones. Returns the errors of attn_index
 * that need no data. */
ATTN_API attn_status attn_index_workspace_size(const attn_params *p, const attn_indexer *x,
                                               size_t *bytes);

/* attn_index() writes the numbers of the top_k keys with the largest scores of each row, ascending.
 *
 * *p describes the index heads: sizes, q, k, scale, lengths, masks, caches and workers mean what they mean
 * to attn_forward, and every storage type of K serves. The num_heads_q / num_heads_kv heads that read a
 * key head make one score together and one list. A row sees a key if the masks show it to all of these
 * heads. Number j counts within the sequence, from kv_begin on.
 *
 * Of equal scores the lower key comes first. A key whose score is NaN or -inf is in no list. A row with
 * fewer than top_k keys gets all of them, and -1 fills up its list. Rows beyond q_len are left untouched,
 * and rows of a sequence count from 0 with cu_seqlens_q. Scores are canonical (docs/canon.md), so the lists
 * are the same for any number of workers, tiles, pages, batch, chunks of a prompt and kernel set.
 *
 * The time is that of Q K^T. Memory beyond the lists is 16 bytes for each entry of the lists that workers
 * have at hand. Workers divide rows, and keys where rows are few. Each field that changes a softmax or its
 * output is refused by its name: v, o, lse, stats, bias, ALiBi, softcap, score, sinks, dropout, insight and
 * others. Devices and parts of a call are not built. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW,
 * ATTN_ERR_UNSUPPORTED, ATTN_ERR_WORKSPACE, and ATTN_ERR_CALLBACK if parallel_for failed. */
ATTN_API attn_status attn_index(const attn_params *p, const attn_indexer *x, void *workspace,
                                size_t workspace_bytes);

/* attn_index_check() says in one sentence what is wrong with *p, *x and the workspace, or "ok", as
 * attn_check does. */
ATTN_API const char *attn_index_check(const attn_params *p, const attn_indexer *x,
                                      const void *workspace, size_t workspace_bytes, char *text,
                                      size_t text_bytes);

/* src/api/dilated.h - dilated attention (LongNet, Ding et al. 2023, arXiv 2307.02486).
 *
 * Every branch cuts the sequence into segments and takes every r-th position of each; the results
 * of the branches are merged.
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
 * Positions. A sequence has kv_len positions, and each of them is a key (position 0 is the first in
 *   use, column kv_begin). The q_len rows are the
 *   last positions: all of them in training and prefill, a chunk of a prompt, or one token in
 *   decoding. Rows of a chunk have the bits that they have in one call.
 * Branches. Segment s of a branch is positions s*w to s*w + w-1, and the last may be shorter.
 *   Positions s*w + offset and every r-th after it take part, as rows and as keys, and see only
 *   each other. A branch numbers them from 0 on: causal, window and ALiBi compare these numbers,
 *   and n(j) of docs/canon.md is the number of a key in its segment.
 * The caller's numbers. All other fields go by the caller's rows, keys and heads, as in attn_forward:
 *   bias, bool_mask, bit_mask, q_segments and kv_segments, callbacks, and prefix and chunk_size, which
 *   count positions of the sequence. So a prompt, a chunk or a document has the same borders in every
 *   branch, and a window of n keys reaches n times the dilation far.
 * Dropout. The numbers are those of attn_forward, so a pair is dropped by every branch that shows it,
 *   or by none. A dropped key keeps its weight in the denominators by which branches merge.
 * Score. The callback gets the logit of a branch, with the branch's ALiBi, once for each branch that
 *   shows the pair.
 * Merging. ATTN_DILATED_LSE weighs branches by the denominators of their softmax. That is one
 *   softmax over the keys of all branches, in which a key counts once for each branch that shows it
 *   to the row. The bits are those of docs/canon.md: the branches' root states are merged in list
 *   order, and the sink last. ATTN_DILATED_MEAN gives each branch its own softmax and takes the
 *   mean over the branches of the head; a branch that leaves the row out gives 0. It excludes lse,
 *   stats, sinks and softmax1.
 * Empty rows. A row that no branch takes gives O = +0 and LSE = -inf, or the sink where there is
 *   one.
 * Variants. Strided reads q, k and v where they lie and needs memory for a block of rows. Gathered
 *   copies what takes part and merges finished results by attn_lse_merge; it is the plain variant
 *   and needs memory in proportion to the length. It refuses stats, which attn_lse_merge does not
 *   make. The two agree within a few ulp, and bit for bit with ATTN_DILATED_MEAN.
 * What may be set in p. These fields may be set: sizes (any grouping of heads), tensors with any
 *   strides and of any type but ATTN_I8, integer, rotated, k_centered, o, lse, stats, q_len,
 *   kv_len, kv_begin, cu_seqlens, scale, causal, prefix, window, chunk_size, q_segments and kv_segments, bool_mask,
 *   bit_mask, mask and mask_tile, softcap, bias, ALiBi, score, sinks, softmax1, dropout, and how to compute
 *   except backend. Every other field is refused with a sentence. Gradients take f32, f16 and bf16,
 *   and none of integer, rotated and k_centered.
 * Stack. It stays below 6.25 KiB in every build measured (tests/stack.sh).
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
    int64_t segment;    /* w: positions of a segment; 0 makes the whole sequence one segment */
    int64_t dilation;   /* r: every r-th position takes part; 0 means 1, every position */
    int64_t offset;     /* first position of a segment that takes part, 0 to dilation - 1 */
    int64_t head_begin; /* first query head that has this branch */
    int64_t head_count; /* query heads that have it; 0 means all from head_begin on */
} attn_dilated_branch;

/* An attn_dilated is a list of branches and how to join them. Set it to zero, then assign. */
typedef struct attn_dilated {
    int merge;                           /* attn_dilated_merge */
    int variant;                         /* attn_dilated_variant of the forward call */
    int num_branches;                    /* at least 1 */
    const attn_dilated_branch *branches; /* [num_branches], merged in this order */
    /* Rows of a piece of work of the strided variant; 0 leaves the choice to the library. No bit
     * depends on it. */
    int64_t block_rows;
    /* Positions that take part, for the gathered variant: attn_dilated_index computes them once for
     * many calls with these branches. NULL computes them in each call. */
    const int32_t *index;
    /* The seq_len_kv that index was made for: at least that of the call or, with cu_seqlens, of its
     * longest sequence. */
    int64_t index_positions;
} attn_dilated;

/* attn_dilated_workspace_size() is attn_workspace_size for attn_dilated_forward: a workspace for
 * the largest lengths serves shorter calls, too. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_dilated_workspace_size(const attn_params *p, const attn_dilated *d,
                                                 size_t *bytes);

/* attn_dilated_forward() computes dilated attention and writes o, lse and stats. Returns the
 * errors of attn_dilated_workspace_size, ATTN_ERR_WORKSPACE and ATTN_ERR_CALLBACK. */
ATTN_API attn_status attn_dilated_forward(const attn_params *p, const attn_dilated *d,
                                          void *workspace, size_t workspace_bytes);

/* attn_dilated_check() is attn_check for attn_dilated_forward. */
ATTN_API const char *attn_dilated_check(const attn_params *p, const attn_dilated *d,
                                        const void *workspace, size_t workspace_bytes, char *text,
                                        size_t text_bytes);

/* attn_dilated_index_size() returns the number of entries of d->index for sequences of up to
 * `positions` positions. It returns 0 if *d is wrong, and attn_dilated_check then says why. */
ATTN_API int64_t attn_dilated_index_size(const attn_dilated *d, int64_t positions);

/* attn_dilated_index() writes an index that has room for `entries` entries.
 *
 * For each branch and each first position of its heads, ascending, it lists the positions that take
 * part. Returns ATTN_ERR_ARG if *d or positions are wrong, and ATTN_ERR_WORKSPACE if the room is
 * too small. */
ATTN_API attn_status attn_dilated_index(const attn_dilated *d, int64_t positions, int32_t *index,
                                        int64_t entries);

/* attn_dilated_backward_workspace_size() sets *bytes to the best size of a workspace for
 * attn_dilated_backward, which grows with the length. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_dilated_backward_workspace_size(const attn_params *p,
                                                          const attn_dilated *d,
                                                          const attn_gradients *g, size_t *bytes);

/* attn_dilated_backward() computes the gradients of attn_dilated_forward of *p and *d, as
 * attn_backward does those of attn_forward.
 *
 * *g may ask for dq, dk, dv and dsinks and may give dlse; it gives score_derivative together with
 * p.score; dbias and dslopes are refused. With
 * ATTN_DILATED_LSE it reads o and stats of the forward call, which must have written both, and
 * p.impl must be tiled; lse serves in place of stats as for attn_backward, and is all that a
 * gathered forward call can give. With ATTN_DILATED_MEAN it reads none of them, though p.o must be
 * set, and p.impl may have any value. Branches add up in list order in f32, so the result is
 * deterministic for any number of workers. A piece of work is a kv head of a batch entry, read in
 * place whatever d->variant says. Returns the errors of its workspace query, ATTN_ERR_WORKSPACE and
 * ATTN_ERR_CALLBACK. */
ATTN_API attn_status attn_dilated_backward(const attn_params *p, const attn_dilated *d,
                                           const attn_gradients *g, void *workspace,
                                           size_t workspace_bytes);

/* attn_dilated_backward_check() is attn_check for attn_dilated_backward. */
ATTN_API const char *attn_dilated_backward_check(const attn_params *p, const attn_dilated *d,
                                                 const attn_gradients *g, const void *workspace,
                                                 size_t workspace_bytes, char *text,
                                                 size_t text_bytes);

/* src/api/ring.h - context parallelism: one sequence over many ranks.
 *
 * Each rank (a process, a machine, a thread) holds some positions of a sequence: their rows of q
 * and o, their keys of k and v. Keys and values travel round the ring, from rank r to rank r + 1,
 * while each rank computes with the ones that it has (Ring Attention: Liu, Zaharia, Abbeel 2023,
 * arXiv 2310.01889). Ranks talk through four callbacks of the caller, e.g. those of attn_mpi.h.
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
 *   per-token arrays. Only q, k, v, o, lse, stats (and gradients) are the rank's own.
 *   They hold its ranges one after the other, in any strides; 0 means packed by the rank's length.
 *   Ranks may differ in strides and in p.layout.
 *   Rows and keys are cut alike, so seq_len_q = seq_len_kv. q_segments and kv_segments tell the
 *   documents of one sequence apart. A ring takes no cu_seqlens, kv_rows, partial, part,
 *   insight or impl naive; AUTO runs tiled.
 * Logits. p.logits gives a rank the logits of its rows against all keys, with the bits of one process.
 *   p.logits.rows counts rows of the whole sequence; ranks may list different ones, and those of other
 *   ranks are left untouched. Without a list p.logits.data has the rank's rows: [batch, num_heads_q,
 *   length, seq_len_kv]. Probabilities (stage SOFTMAX) need ring.gather. Logits are written as keys come,
 *   so after a failure they hold what had come; gradients do not look at them.
 * Bits. A layout that cuts the sequence only where n is a multiple of 1024 is canonical: O, LSE
 *   and stats have the bits of one process, in whatever order keys arrive, as states are merged
 *   along the tree of docs/canon.md. ring.gather gives these bits, too. Every other layout is
 *   deterministic for one number of ranks, within the usual error bounds. attn_ring_info.canonical
 *   says which a ring is. Gradients are deterministic for one number of ranks. With ring.gather dq has the
 *   bits of one process, if the o and stats (or lse) that the call reads have them.
 * Balance. With causal, rank 0 of a contiguous layout sees least and the last rank most. ZIGZAG
 *   gives each rank a run from the beginning and one from the end, as the training of Llama 3 does.
 *   STRIPED deals shards round robin (Brandon et al. 2023, arXiv 2311.09431). Both need several
 *   shards per rank: if the sequence has fewer than 2 * size * 1024 positions, some ranks have
 *   little or nothing. Make ring.shard smaller there if balance matters more than bits. Very short
 *   shards cost more than they balance, because each range of rows takes a call for each range of
 *   keys. Parts that causal, window, chunked and lengths leave empty are skipped;
 *   ring.stats->pairs counts the rest.
 * Memory. The workspace needs the whole size that the query gives. It holds two shards of keys and
 *   values (in their storage type), raw states of the rank's rows, head_dim_v + 2 floats each, and
 *   the workspace of a call. With R ranks and one shard of 1024 * 2^k keys per rank, a row has at
 *   most 2 log2(R) states at once; with several shards per rank, each shard that waits for its
 *   neighbour needs one more. ring.arrival merges in the order of arrival and needs two states, but
 *   is not canonical. ring.gather collects all keys and values first and needs one state and memory
 *   for all of k and v. The backward call needs two shards with their gradients (f32), a shard of
 *   gradients, dq (f32), the gradients of a part, and dbias of the rank (twice where its rows are shared).
 *   With ring.gather it needs k and v of all ranks, too, and a shard and a part of it have all keys.
 * Storage. K and V may have any type but ATTN_I8, and travel in it, so that q8_0 sends a
 *   quarter of the bytes of f32; p.integer, p.rotated and p.k_centered are taken, too. Gradients take
 *   f32, f16 and bf16, and none of the three.
 * Overlap. The exchange of the next shard begins before the computation with the present one and
 *   ends after it.
 * Errors. All ranks agree on the status before anything is sent, with every exchange and before the
 *   outputs are written. What fails on one rank (its arguments, workspace, fetch, parallel_for or
 *   transport) is returned by all of them, and the outputs but logits are untouched on all of
 *   them.
 *   ring.stats->failed_rank tells whose status it is. If ranks differ in a number, a length, a layout,
 *   sinks, slopes, in which input arrays are given or in which of dbias, dsinks and dslopes they ask
 *   for, all of them return ATTN_ERR_ARG. Only a rank without a usable transport returns alone.
 * Threads. Each rank uses workers as attn_forward does; transports may start threads of their own.
 * Stack. It stays below 7 KiB in every build measured (tests/stack.sh).
 */

/* An attn_transport says how a rank reaches the others. Every callback gets `user` first. All but
 * `seconds` are called in one order on every rank, and none is called from two threads at once. */
typedef struct attn_transport {
    int size, rank; /* number of ranks, 1 to 4096, and this one, from 0 on */
    void *user;
    /* agree returns on every rank the largest `value` of all ranks; values are 0 or more. A result
     * below 0 means that it failed. */
    int (*agree)(void *user, int value);
    /* begin begins to send to rank + 1 and to receive from rank - 1, around the ring; either may be
     * 0 bytes. It may start at once. It may also wait for the agree that always follows, and start
     * only if that gives 0. Nonzero means that it failed and has begun nothing. */
    int (*begin)(void *user, const void *send, size_t send_bytes, void *receive,
                 size_t receive_bytes);
    /* end waits until everything begun is sent and has arrived. Nonzero means that it failed; the
     * other ranks' end must return even then. */
    int (*end)(void *user);
    /* cancel takes the place of end where agree tells of a failure elsewhere. It gives up the
     * exchange: nothing of it is read or written afterwards, or reaches a later exchange. */
    void (*cancel)(void *user);
    double (*seconds)(void *user); /* a clock for the statistics; NULL means none */
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
    int failed_rank;   /* rank whose status is returned; -1: none failed, or parameters differ */
    int canonical;     /* nonzero: the result has the bits of one process */
    int max_pending;   /* most states that a row had at once, the newest included */
    int64_t exchanges; /* exchanges of shards, and of sums over rows */
    double bytes_sent, bytes_received;
    double seconds;         /* time in callbacks of the transport, by its clock */
    double pairs;           /* (query, key) pairs of all heads in parts that were not skipped */
    int64_t calls, skipped; /* parts that were computed, and parts that masks leave empty */
} attn_ring_stats;

/* An attn_ring says how the call is divided. Set it to zero, then assign. It must be equal on every
 * rank, except transport's rank and user, fetch and stats. */
typedef struct attn_ring {
    int layout;  /* attn_ring_layout */
    int gather;  /* nonzero brings all keys to every rank, and only then computes */
    int arrival; /* nonzero merges states in the order of arrival: fewer states, not canonical */
    /* Runs are cut at multiples of this number of positions, except in CUSTOM layouts; 0 means
     * 1024. */
    int64_t shard;
    /* For CUSTOM: the ranges of rank 0, then those of rank 1, and so on, each rank's ascending;
     * together they hold every position once. */
    const attn_ring_range *ranges;
    /* [size + 1], for CUSTOM: rank r has ranges[first_range[r]] to
     * ranges[first_range[r + 1] - 1]. */
    const int64_t *first_range;
    const attn_transport *transport;
    attn_ring_fetch_fn fetch; /* gives the rank's keys and values; NULL: p.k.data and p.v.data */
    void *fetch_user;         /* first argument of fetch */
    attn_ring_stats *stats;   /* gets what the call did; NULL means not wanted */
} attn_ring;

/* An attn_ring_info tells what a rank holds. */
typedef struct attn_ring_info {
    int canonical;   /* nonzero: the layout keeps the bits of one process */
    int64_t length;  /* positions of this rank */
    int64_t ranges;  /* ranges that they form */
    int64_t longest; /* largest length of any rank */
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

/* attn_ring_workspace_size() sets *bytes to what attn_ring_forward needs on this rank. It talks to
 * nobody. Returns the errors of attn_ring_describe. */
ATTN_API attn_status attn_ring_workspace_size(const attn_params *p, const attn_ring *ring,
                                              size_t *bytes);

/* attn_ring_forward() computes the attention of this rank's rows to the keys of all ranks, and
 * writes o, lse and stats.
 *
 * All ranks must call it. Returns the errors of attn_ring_workspace_size, ATTN_ERR_WORKSPACE and
 * ATTN_ERR_CALLBACK, of this rank or of another. */
ATTN_API attn_status attn_ring_forward(const attn_params *p, const attn_ring *ring, void *workspace,
                                       size_t workspace_bytes);

/* attn_ring_check() is attn_check for attn_ring_forward on this rank. It talks to nobody. */
ATTN_API const char *attn_ring_check(const attn_params *p, const attn_ring *ring,
                                     const void *workspace, size_t workspace_bytes, char *text,
                                     size_t text_bytes);

/* attn_ring_backward_workspace_size() sets *bytes to what attn_ring_backward needs on this rank.
 * Returns the errors of attn_ring_describe. */
ATTN_API attn_status attn_ring_backward_workspace_size(const attn_params *p,
                                                       const attn_gradients *g,
                                                       const attn_ring *ring, size_t *bytes);

/* attn_ring_backward() computes the gradients by q, k and v of this rank's positions, and those by
 * bias, sinks and slopes. dk and dv are sums over the rows of all ranks.
 *
 * It reads o, stats (or lse), dout and dlse of the rank's rows. dsinks, dslopes and the dbias of a bias
 * that shares its rows are sums over the rows of all ranks, too: every rank must ask for them, and gets
 * the whole sum with the same bits. Any other dbias has the rank's rows, as dq, and all columns:
 * [batch, num_heads_q, length, seq_len_kv], packed without the axes that p.bias shares. With ring.gather
 * each rank computes with the keys of all ranks, and then sums of dk and dv travel to their ranks; the
 * forward call may have been of either kind. All ranks must call it. Returns the errors of
 * attn_ring_forward. */
ATTN_API attn_status attn_ring_backward(const attn_params *p, const attn_gradients *g,
                                        const attn_ring *ring, void *workspace,
                                        size_t workspace_bytes);

/* attn_ring_backward_check() is attn_check for attn_ring_backward on this rank. It talks to
 * nobody. */
ATTN_API const char *attn_ring_backward_check(const attn_params *p, const attn_gradients *g,
                                              const attn_ring *ring, const void *workspace,
                                              size_t workspace_bytes, char *text,
                                              size_t text_bytes);

/* src/api/dilated_ring.h - dilated attention of one sequence over many ranks.
 *
 * Each rank holds one range of positions, as in a ring, and takes the branches of its rows. Segments
 * that lie inside the range need nothing from others. Of a longer one, only the positions that take
 * part travel, and only as far as a rank that has rows of the segment. So a branch that makes its
 * segments longer and its dilation larger by one factor sends no more.
 *
 *     attn_ring ring = {0};
 *     ring.transport = &transport;                          // attn_mpi.h fills one in
 *     attn_ring_ranges(&p, &ring, rank, &range, 1, &count); // the positions of this rank
 *     p.q.data = q;  p.k.data = k;  p.v.data = v;  p.o.data = o;   // hold those only
 *     attn_dilated_ring_workspace_size(&p, &d, &ring, &need);      // d as for attn_dilated_forward
 *     if (attn_dilated_ring_forward(&p, &d, &ring, workspace, need) != ATTN_OK)   // on every rank
 *         puts(attn_dilated_ring_check(&p, &d, &ring, workspace, need, text, sizeof text));
 *
 * The call. *p and *d are equal on every rank, and *p describes the whole sequence, as for
 *   attn_ring_forward; it takes what both levels take but kv_begin and prefix, since ranks cut rows and
 *   keys alike and gather only the keys up to their last row. Bias, masks and segments have all rows
 *   and keys.
 *   Every position is a row: seq_len_q = seq_len_kv, and q_len, if given, is kv_len. d->variant is
 *   strided.
 * Layout. Each rank has one range, as in ATTN_RING_CONTIGUOUS, or in ATTN_RING_CUSTOM with ranges of
 *   any lengths. ring.gather, ring.arrival and ring.fetch are refused.
 * Bits. O, LSE and stats have the bits of attn_dilated_forward in one process, for any number of
 *   ranks and any cuts: a rank brings the keys of a segment together before it computes. dq, dk and dv
 *   have the bits of attn_dilated_backward: no gradient travels, but the rows that see a rank's keys.
 * Memory. The workspace needs the whole size that the query gives. A rank has at most two segments of
 *   a branch that reach beyond it; for each class of heads it holds their keys that take part. While
 *   these arrive it holds two messages, whose memory then serves the computation. The backward call
 *   holds the rows of these segments that take part, too: q, dout, o, stats (or lse) and dlse. With a mean it
 *   also holds o and statistics of each branch for the rank's rows, and dout of one branch, as f32.
 * Traffic. Keys arrive before the computation begins. They take as many exchanges as the rank that is
 *   furthest from keys that it needs is away: none if no segment reaches beyond a rank, one with causal
 *   if no segment has more than two ranks, at most size - 1. A key travels once for each branch and
 *   class of heads that shares it. Rows travel after keys, for the backward call: with causal to the
 *   ranks before, the long way round the ring.
 * Errors. They are those of attn_ring_forward. But rows are written as they are computed: if
 *   p.parallel_for fails on a rank, all ranks return that and o, lse and stats, or dq, dk and dv, may
 *   be written.
 *   Whatever fails before leaves them untouched.
 * Statistics. ring.stats->pairs counts those of all branches; calls, skipped and max_pending stay 0.
 * Stack. It stays below 8 KiB in every build measured (tests/stack.sh).
 */

/* attn_dilated_ring_workspace_size() sets *bytes to what attn_dilated_ring_forward needs on this rank.
 * It talks to nobody. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_dilated_ring_workspace_size(const attn_params *p, const attn_dilated *d,
                                                      const attn_ring *ring, size_t *bytes);

/* attn_dilated_ring_forward() computes the dilated attention of this rank's rows, and writes o, lse
 * and stats.
 *
 * All ranks must call it. Returns the errors of attn_dilated_ring_workspace_size, ATTN_ERR_WORKSPACE
 * and ATTN_ERR_CALLBACK, of this rank or of another. */
ATTN_API attn_status attn_dilated_ring_forward(const attn_params *p, const attn_dilated *d,
                                               const attn_ring *ring, void *workspace,
                                               size_t workspace_bytes);

/* attn_dilated_ring_check() is attn_check for attn_dilated_ring_forward on this rank. It talks to
 * nobody. */
ATTN_API const char *attn_dilated_ring_check(const attn_params *p, const attn_dilated *d,
                                             const attn_ring *ring, const void *workspace,
                                             size_t workspace_bytes, char *text, size_t text_bytes);

/* attn_dilated_ring_backward_workspace_size() sets *bytes to what attn_dilated_ring_backward needs on
 * this rank. It talks to nobody. Returns the errors of attn_dilated_ring_workspace_size. */
ATTN_API attn_status attn_dilated_ring_backward_workspace_size(const attn_params *p,
                                                               const attn_dilated *d,
                                                               const attn_gradients *g,
                                                               const attn_ring *ring,
                                                               size_t *bytes);

/* attn_dilated_ring_backward() computes the gradients by q, k and v of this rank's positions: sums over
 * the rows of all ranks.
 *
 * *g may ask for any of dq, dk and dv, and may give dlse. dout, dlse and the gradients hold the rank's
 * own positions, as o does. It reads o and stats (or lse) as attn_dilated_backward does, and p.impl must
 * be tiled. With ATTN_DILATED_MEAN it reads neither (o must be given nonetheless) and computes those of each
 * branch. dbias, dsinks and dslopes are not built. Ranks may ask for different
 * gradients; whether dlse and stats are given, and the types of o and dout, must be equal on all. All
 * ranks must call it. Returns the errors of attn_dilated_ring_forward. */
ATTN_API attn_status attn_dilated_ring_backward(const attn_params *p, const attn_dilated *d,
                                                const attn_gradients *g, const attn_ring *ring,
                                                void *workspace, size_t workspace_bytes);

/* attn_dilated_ring_backward_check() is attn_check for attn_dilated_ring_backward on this rank. It
 * talks to nobody. */
ATTN_API const char *attn_dilated_ring_backward_check(const attn_params *p, const attn_dilated *d,
                                                      const attn_gradients *g,
                                                      const attn_ring *ring, const void *workspace,
                                                      size_t workspace_bytes, char *text,
                                                      size_t text_bytes);

/* src/api/ring_decode.h - context-parallel decoding: rows on every rank, keys over many ranks.
 *
 * The keys and values of a long context stay where they are. Every rank has the rows of q, attends
 * them to its own keys, and sends the raw states round the ring: head_dim_v + 2 floats for each row
 * and head, however long the context is. Then every rank has all states, merges them in one order,
 * and writes all rows.
 *
 *     attn_ring ring = {0};
 *     ring.transport = &transport;                                // attn_mpi.h fills one in
 *     ring.layout = ATTN_RING_STRIPED;                            // a growing sequence fills all ranks
 *     attn_ring_ranges(&p, &ring, rank, ranges, most, &count);    // the key positions of this rank
 *     p.k.data = k;  p.v.data = v;                                // hold those only
 *     p.q.data = q;  p.o.data = o;                                // hold all rows
 *     attn_ring_decode_workspace_size(&p, &ring, &need);
 *     if (attn_ring_decode_forward(&p, &ring, workspace, need) != ATTN_OK)        // on every rank
 *         puts(attn_ring_decode_check(&p, &ring, workspace, need, text, sizeof text));
 *
 * The call. *p describes the whole problem and is equal on every rank, as for attn_ring_forward, and
 *   it takes the fields that a ring takes, and kv_rows, k_scales and v_scales. seq_len_q is any number
 *   of rows: a token, a chunk of a prompt, rows of speculation. q, o, lse and stats have all rows on
 *   every rank, and q must have the same values there. k, v and their scales have the rank's ranges one
 *   after the other, in any strides; 0 means packed by the rank's length. They are read where they lie.
 * Caches. With kv_rows they lie in a cache of the rank: key i of its ranges, counted one after the other
 *   from 0, is where attn_rows has column i. So a packed page table has ceil(length / page_size)
 *   entries, and those without a key in use are not read. A ring has key i in row (begin[b] + i) % ring,
 *   and at least as many rows as there are keys of the rank up to the last one in use: it may wrap, but
 *   no key takes the place of an older one, whose position its rank keeps. Each rank has pages, sizes and
 *   strides of its own; one may have a cache, and another plain arrays. attn_cache_view of a rank's
 *   attn_cache gives k, v, scales and kv_rows. Set seq_len_kv, kv_len and key_base afterwards, which are
 *   equal on all ranks, and shared_keys to 0.
 * Growth. seq_len_kv is the capacity, from which the layout is made, and kv_len is the present
 *   length. A new key goes to the rank that holds its position. Ranks may still be without keys; scales of
 *   i8 are given even then.
 * Bits. attn_ring_info.canonical tells, as for a ring, whether O, LSE and stats have the bits of one
 *   process. All ranks write the same bits in every layout. In one that is not canonical, states
 *   of a rank merge in the order of its ranges, then those of ranks in the order of their numbers.
 * Memory. The workspace needs the whole size that the query gives. It holds a raw state of all rows
 *   for each node of the merge tree (docs/canon.md) that lies whole on one rank, or for each rank in
 *   a layout that is not canonical, and the workspace of a call. A contiguous range is few nodes. In
 *   a striped layout each shard is one or more, so larger shards send and hold less.
 * Traffic. It takes size - 1 exchanges, in which every state visits every rank.
 * Refused. logits, ring.gather, ring.arrival and ring.fetch, and what else a ring refuses.
 * Errors. They are those of attn_ring_forward: all ranks return one status, and unless it is ATTN_OK
 *   o, lse and stats are untouched on all of them.
 * Stack. It stays below 7 KiB in every build measured (tests/stack.sh).
 */

/* attn_ring_decode_workspace_size() sets *bytes to what attn_ring_decode_forward needs on this rank.
 * It talks to nobody. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_ring_decode_workspace_size(const attn_params *p, const attn_ring *ring,
                                                     size_t *bytes);

/* attn_ring_decode_forward() computes the attention of all rows to the keys of all ranks, and writes
 * o, lse and stats on every rank.
 *
 * All ranks must call it. Returns the errors of attn_ring_decode_workspace_size,
 * ATTN_ERR_WORKSPACE and ATTN_ERR_CALLBACK, of this rank or of another. */
ATTN_API attn_status attn_ring_decode_forward(const attn_params *p, const attn_ring *ring,
                                              void *workspace, size_t workspace_bytes);

/* attn_ring_decode_check() is attn_check for attn_ring_decode_forward on this rank. It talks to
 * nobody. */
ATTN_API const char *attn_ring_decode_check(const attn_params *p, const attn_ring *ring,
                                            const void *workspace, size_t workspace_bytes,
                                            char *text, size_t text_bytes);

/* src/api/backend.h - what a device, or another implementation, needs to run calls.
 *
 * attn_forward validates a call once and hands the result, an attn_problem, to p.backend. A backend
 * needs no other knowledge of the library: sizes, strides and numbers are resolved, and
 * attn_sequence_of tells for each sequence of the batch which rows and keys are in use.
 */

/* An attn_problem is a call that validation has passed, with every default resolved. */
typedef struct attn_problem {
    /* The call, with counts, strides, scale, kernels and tile_keys filled in. Here a stride of 0
     * means that the axis is shared, and layout counts no more. */
    attn_params p;
    int impl;            /* ATTN_IMPL_TILED or ATTN_IMPL_NAIVE */
    int gathered;        /* nonzero: rows of the CPU read only the keys of their list */
    int size_query;      /* nonzero: attn_workspace_size asks, and outputs may still be unknown */
    int64_t group;       /* query heads per kv head */
    int64_t max_q_len;   /* most rows that the call computes in one sequence */
    int64_t max_kv_len;  /* most keys that enter in one sequence */
    float factor;        /* scale * log2(e), the finite factor c on q.k */
    float cap2, icap2;   /* softcap in base 2, and its inverse; 0 means off */
    float keep_factor;   /* 1 / (1 - dropout_p) */
    uint32_t drop_below; /* a Philox word below it drops its key */
    /* Kernels for the rows of all batch entries at once, with shared_keys. */
    const attn_kernels *batch_kernels;
    int batch_tile_keys; /* keys of a tile with batch_kernels */
} attn_problem;

/* An attn_view says which rows, keys and query heads of a larger call a call has. Dropout, callbacks,
 * segments and chunks go by their numbers there; a call that is no part of another one is its own
 * view. */
struct attn_view {
    int64_t batch;           /* batch entry, of all entries of the view */
    int64_t head, head_step; /* query head h is head + h * head_step */
    int64_t row, key, step;  /* row i is row + i * step, and key j is key + j * step */
    int64_t entry;           /* row and key are this number larger in each further entry */
    int64_t before;          /* row i there is position before + i */
    int64_t bit;             /* bit_mask begins at this bit of its data */
};

/* An attn_sequence is sequence b of a batch: the rows and keys in use, where they lie, and how they
 * are numbered. */
typedef struct attn_sequence {
    int64_t b;
    int64_t q_row, q_len;     /* place of row 0 along the seq axis of q and outputs; rows in use */
    int64_t kv_row, kv_len;   /* place of key 0 in k and v, before ring and pages; keys in use */
    int64_t row_from, row_to; /* rows row_from to row_to-1 of those in use are computed (p.part) */
    int64_t key_from, key_to; /* keys key_from to key_to-1 of those in use enter (p.part) */
    int64_t column;           /* column of key 0 in bias and masks: kv_begin[b] */
    int64_t offset;           /* pos(i) = i + offset */
    int64_t key_base;         /* n(j) = key_base + j */
    int64_t prefix;           /* p.prefix[b] */
    attn_view view;           /* of entry b, so that its `entry` has been added */
} attn_sequence;

/* attn_problem_of() validates *p as attn_forward does and fills in *problem.
 *
 * Data of tensors is not read and may be NULL. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED. */
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
    int abi;          /* ATTN_KERNEL_ABI */
    const char *name; /* as attn_info and log sentences give it */
    void *user;       /* the backend's own */
    /* supports returns a number above 0 if the backend takes the call; otherwise it puts a sentence
     * into why. 0 leaves the call to the CPU. A number below 0 means that the CPU cannot take the
     * call either, because arrays are the device's; attn_forward then returns
     * ATTN_ERR_UNSUPPORTED. It must refuse an attn_dtype that it does not know. */
    int (*supports)(const attn_backend *self, const attn_problem *problem, char *why,
                    size_t why_bytes);
    /* workspace_size sets *bytes to what run needs. */
    attn_status (*workspace_size)(const attn_backend *self, const attn_problem *problem,
                                  size_t *bytes);
    /* run computes the call and returns what attn_forward returns. */
    attn_status (*run)(const attn_backend *self, const attn_problem *problem, void *workspace,
                       size_t workspace_bytes);
    /* supports_gradients answers for attn_backward as supports does for attn_forward. With kv_rows dk and dv
     * do not lie as k and v do: see attn_backward. */
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
#define ATTN_KERNEL_ABI 22

#ifdef __cplusplus
}
#endif

#endif /* ATTN_H */
