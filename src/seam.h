/* src/seam.h - the seam: the table of kernels that every instruction set fills in.
 * SPDX-License-Identifier: MIT
 *
 * Kernels are leaf functions: no masks, no heads, no allocation. A tile has `rows` query rows, one per
 * lane, and n keys. Every matrix of a tile is lane-fastest, so that each lane is one independent row:
 *
 *     qt [d][rows]   packed queries                   s [n][rows]   logits (base 2), then p
 *     o  [dv][rows]  output accumulators              m, l [rows]   running maximum and sum
 *
 *           lanes ->                    All of them computed in the canonical order of
 *       d   q00 q10 q20 ... qR0         docs/canon.md; a kernel may use any tile shape, unrolling
 *       |   q01 q11 q21 ... qR1         and order between elements, but each element's chain of
 *       v   ...                         operations is fixed. K and V rows are f32, contiguous in d.
 *
 * Arrays from the workspace are aligned to 64 bytes; k and v only to their element. Nothing
 * overlaps. n is at least 1; every lane always holds a number (unused lanes: zero queries).
 */
#pragma once

#ifndef ATTN_SEAM_H /* attn.c and attn_simd.h both hold it */
#define ATTN_SEAM_H

#include "api/attn.h"
#include "api/backend.h"

#define ATTN_KERNEL_MAX_ROWS 64 /* a set's rows: a multiple of 4, at most this */
#define ATTN_BLOCK 16           /* canonical block of keys: the maximum is decided once a block */
#define ATTN_CHUNK 1024         /* canonical chunk of keys: a state of its own, for the tree */
#define ATTN_THRESHOLD 16.0f    /* the maximum rises only if exceeded by more than this (log2) */

#define ATTN_ALIVE_BITS 32 /* keys whose visibility to a lane is one uint32_t */

/* Lanes begin..end-1 of a tile; a kernel may compute more of them (whole vectors). */
typedef struct attn_lanes {
    int begin, end;
} attn_lanes;

/* A kernel for few lanes takes them by fours: the first one that it computes, */
static inline int attn_first_lane(attn_lanes lanes)
{
    return lanes.begin / 4 * 4;
}

/* and how many from there on. */
static inline int attn_lane_count(attn_lanes lanes)
{
    return lanes.end - attn_first_lane(lanes);
}

/* Exponentials of a block: s = 2^fl(s - m), l += s in order, as exp_sum does with dead = +0. It covers at
 * least these lanes, and with vectors each group of four that holds one of them. calm: s and m are at
 * most ATTN_CALM in magnitude, so no special case can occur. */
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

/* Memory that the next steps will read: a kernel asks for `lines` cache lines of it, evenly beside
 * its own work, and leaves `lines` at 0. Only a hint: it need not do so. */
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

/* A product of a tile with rows of K or V: Q K^T, or P V added to o. */
typedef struct attn_product {
    float *to;             /* s [n][rows], or o [dim][rows] */
    const float *by;       /* qt [dim][rows], or p [n][rows] */
    const float *kv;       /* f32 rows of K or V, */
    ptrdiff_t stride;      /* floats between rows; */
    const attn_runs *runs; /* as they lie, for the kernels *_runs, which read these instead */
    int n;                 /* keys */
    int64_t dim;           /* head_dim, or head_dim_v */
    float factor;          /* Q K^T: multiplies every sum, once, behind its last step */
    attn_lanes lanes;
    attn_ahead *ahead;   /* NULL = nothing */
    const float *scales; /* [dim / 32][rows], for whole numbers */
    int first;           /* P V of a set that rounds: which key of the panel at kv is the first; */
    float *space;        /* room of such a set, ATTN_SPACE(rows, keys) floats */
} attn_product;

/* A set that rounds (attn_kernels.pack_values) multiplies bf16, with sums in f32. What `pack` gives it
 * is a form of its own, of ATTN_ROUNDED(head_dim) / 2 floats a row, and qk reads p->runs: one run of
 * rows of bf16, of which each has ATTN_ROUNDED(head_dim) numbers, +0 behind the last. Up to 15 rows
 * behind them may be read, too, unless n is a multiple of 16. pv reads a panel of V at p->kv, which
 * pack_values makes for each ATTN_PANEL_KEYS keys. A NaN or an infinity in V at a key of the panel that
 * is not of the product may make o NaN, but pv_select leaves such keys out. Subnormal numbers count as
 * 0. */
#define ATTN_PANEL_KEYS 32
#define ATTN_ROUNDED(dim) (((dim) + 31) / 32 * 32)
#define ATTN_PANEL_FLOATS(dim_v) (((dim_v) + 15) / 16 * 16 * (ATTN_PANEL_KEYS / 2))
#define ATTN_SPACE(rows, keys) ((rows) * (ATTN_ROUNDED((keys) + 31) / 2) + 1024)

/* Rows of a tile, and what each pair of a key and a row stands for. */
typedef struct attn_term {
    const float *x; /* [n][rows] */
    const float *b; /* [rows] attn_outer.b_stride floats apart */
    attn_lanes lanes;
    int begin, end; /* the keys that count; of the others x is ATTN_DEAD, they may be left out */
} attn_term;

/* Rows begin to end - 1 of ATTN_PANEL_KEYS rows of V, f32 or bf16; the others are +0. */
typedef struct attn_pack {
    const char *v; /* row `begin`; the others are `stride` bytes apart behind it */
    ptrdiff_t stride;
    int dtype;
    int begin, end;
    int64_t dim;
} attn_pack;

/* Products over the rows of some tiles, which gradients need. Strides are whole cache lines. */
typedef struct attn_outer {
    float *to; /* [n][columns], begins a cache line; what fills up the last one may be written */
    ptrdiff_t stride;
    int n; /* keys */
    int64_t columns;
    const attn_term *term;
    int count;          /* of terms */
    ptrdiff_t b_stride; /* filled up with numbers */
} attn_outer;

/* What the rows of a tile tell of their probabilities, per lane. */
typedef struct attn_row_stats {
    const float *m, *r; /* p = fl(2^x * r), x = fl(s - m) */
    float most;         /* of x */
    const float *delta; /* sum of p * dp over the row's keys */
} attn_row_stats;

/* Philox4x32-10: two multipliers, and what each round adds to the two words of its key. */
#define ATTN_PHILOX_ROUNDS 10
#define ATTN_PHILOX_A 0xd2511f53u
#define ATTN_PHILOX_B 0xcd9e8d57u
#define ATTN_PHILOX_KEY_0 0x9e3779b9u
#define ATTN_PHILOX_KEY_1 0xbb67ae85u

/* An attn_drop is dropout of a tile. Word 0 of Philox with counter (n, pos, head, batch) decides about
 * a pair. */
typedef struct attn_drop {
    uint32_t round_keys[ATTN_PHILOX_ROUNDS][2];
    uint32_t below;   /* A word below it drops its pair. */
    uint32_t first_n; /* of the first row of p, */
    uint32_t step;    /* and from one row of p to the next */
    uint32_t batch;
    const uint32_t *pos, *head; /* per lane */
    float dead;                 /* p of a dropped pair */
} attn_drop;

/* What running_max says about a block. */
#define ATTN_RAISED 1 /* a lane's maximum that had begun rose: o *= alpha before the block enters */
#define ATTN_IS_CALM 2 /* attn_exp.calm holds; a kernel may always leave it out */

/* What the CPU can do and the operating system saves the registers for; 0 where unknown. */
#define ATTN_CPU_AVX2 2u   /* AVX2, FMA and F16C */
#define ATTN_CPU_AVX512 4u /* AVX-512 F, DQ and BW */
/* Products of bytes besides: AVX-512 VNNI, AVX-VNNI, and DotProd and I8MM of 64-bit ARM. */
#define ATTN_CPU_DOTS_512 8u
#define ATTN_CPU_DOTS_256 16u
#define ATTN_CPU_DOTS_ARM 32u
#define ATTN_CPU_I8MM 128u
#define ATTN_CPU_BF16 256u     /* products of bf16 matrices on 64-bit ARM */
#define ATTN_CPU_BF16_512 512u /* products of pairs of bf16 numbers by AVX-512 */
#define ATTN_CPU_NEON_32 1024u /* NEON and VFPv4 of 32-bit ARM */
#define ATTN_CPU_TILES 64u     /* AMX with products of bf16, and AVX-512 that rounds to it */
#define ATTN_CPU_RVV 2048u     /* the vector extension V 1.0 of 64-bit RISC-V */
ATTN_API unsigned attn_cpu_features(void);

/* Whether this process may use ATTN_CPU_TILES. Linux is asked for it, once, and from then on refuses
 * stacks of signal handlers that are too small for what it saves, 11 KB. */
ATTN_API int attn_cpu_permits_tiles(void);

/* The sets of the attn_simd_*.c files: the table, or NULL where this CPU cannot run it. Compile
 * attn.c with ATTN_SIMD_AVX2, ATTN_SIMD_AVX512, ... for those that are linked, and attn_kernels_get
 * offers them; or pass one in p.kernels and define nothing. */
ATTN_API const attn_kernels *attn_kernels_avx2(void);
ATTN_API const attn_kernels *attn_kernels_avx512(void);
ATTN_API const attn_kernels *attn_kernels_neon(void);   /* 64-bit ARM */
ATTN_API const attn_kernels *attn_kernels_neon32(void); /* 32-bit ARM with NEON and VFPv4 */
ATTN_API const attn_kernels *attn_kernels_rvv(void);    /* 64-bit RISC-V with V 1.0 */
ATTN_API const attn_kernels *attn_kernels_sse2(void);   /* x86 without AVX2 */
ATTN_API const attn_kernels *attn_kernels_wasm(void);   /* WebAssembly with SIMD128 */

/* WebAssembly with relaxed SIMD, in engines whose multiply-add is fused. */
ATTN_API const attn_kernels *attn_kernels_wasm_relaxed(void);

/* Products by vdpbf16ps, and all else as avx512: a set that rounds. */
ATTN_API const attn_kernels *attn_kernels_avx512_bf16(void);

/* Products by tiles of AMX, and all else as avx512: a set that rounds. */
ATTN_API const attn_kernels *attn_kernels_avx512_amx(void);

/* Products by BFMMLA of 64-bit ARM, and all else as neon: a set that rounds. */
ATTN_API const attn_kernels *attn_kernels_neon_bf16(void);

/* The same with fewer rows in a tile, for decoding and other short calls. */
ATTN_API const attn_kernels *attn_kernels_avx2_narrow(void);
ATTN_API const attn_kernels *attn_kernels_avx512_narrow(void);
ATTN_API const attn_kernels *attn_kernels_neon_narrow(void);
ATTN_API const attn_kernels *attn_kernels_neon32_narrow(void);
ATTN_API const attn_kernels *attn_kernels_rvv_narrow(void);
ATTN_API const attn_kernels *attn_kernels_sse2_narrow(void);
ATTN_API const attn_kernels *attn_kernels_wasm_narrow(void);
ATTN_API const attn_kernels *attn_kernels_wasm_relaxed_narrow(void);

/* Every kernel: X(result, name, (parameters), (arguments)). The table, the sets and what stands
 * between a call and a set in tests and bench are expanded from it. */
#define ATTN_KERNELS(X) ATTN_SET_KERNELS(X) ATTN_FEW_KERNELS(X) ATTN_ROUNDED_KERNELS(X)

/* Those that every set has. */
#define ATTN_SET_KERNELS(X)                                                                         \
    /* n numbers of a 16-bit storage type as f32, and back: to nearest even, NaN (always */         \
    /* 7fc00000) as the type's, -0 never written. */                                                \
    X(void, widen_f16, (float *to, const uint16_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_bf16, (float *to, const uint16_t *from, int64_t n), (to, from, n))                \
    /* The same of what only K and V may have: n is whole units of 32 of the last three. */         \
    X(void, widen_e4m3, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_e5m2, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_q8_0, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_q5_0, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_q4_0, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    /* to[d] = fl(from[d] * scale[d * step]). */                                                    \
    X(void, widen_i8,                                                                               \
      (float *to, const int8_t *from, const float *scale, int64_t step, int64_t n),                 \
      (to, from, scale, step, n))                                                                   \
    X(void, narrow_f16, (uint16_t * to, const float *from, int64_t n), (to, from, n))               \
    X(void, narrow_bf16, (uint16_t * to, const float *from, int64_t n), (to, from, n))              \
    /* qt[d][lane] = q[lane][d]. */                                                                 \
    X(void, pack, (float *qt, const float *const *q, int64_t head_dim), (qt, q, head_dim))          \
    /* to[j][lane] = fl(factor * chain), chain over d of fma(by[d][lane], kv[j*stride + d], */      \
    /* chain) from +0, in these lanes. The others get numbers, too: 0 where `by` is 0 and K */      \
    /* and factor are finite. */                                                                    \
    X(void, qk, (const attn_product *p), (p))                                                       \
    /* What qk_units reads of queries that are whole numbers from -127 to 127; `to` has room for */ \
    /* head_dim * rows floats. */                                                                   \
    X(void, pack_units, (float *to, const float *const *q, int64_t head_dim), (to, q, head_dim))    \
    /* The same as qk of whole numbers: a chain over units of fma(sum of 32 products, */            \
    /* fl(scales[unit][lane] * scale of the key's unit), chain). p->by is what pack_units gives, */ \
    /* and p->runs has one run of n rows of units: a scale in f16 and 32 signed bytes. Sums are */  \
    /* exact: below 2^24. The other lanes get numbers, too. */                                      \
    X(void, qk_units, (const attn_product *p), (p))                                                 \
    /* s = fl(cap2 * tanh(fl(s * icap2))). */                                                       \
    X(void, softcap, (float *s, int n, float cap2, float icap2), (s, n, cap2, icap2))               \
    /* s[j][lane] *= scale[j]. */                                                                   \
    X(void, scale_keys, (float *s, const float *scale, int n), (s, scale, n))                       \
    /* s = fma(fl(|from[lane] - j|), factor[lane], s); the difference fits an int. */               \
    X(void, add_distances, (float *s, const int *from, const float *factor, int n),                 \
      (s, from, factor, n))                                                                         \
    /* s = fma(x[lane][j], factor, s); x = -inf gives -inf by selection. */                         \
    X(void, add_rows, (float *s, const float *const *x, float factor, int n), (s, x, factor, n))    \
    /* s = -inf where the key j is not in begin[lane]..end[lane]-1, by selection. */                \
    X(void, clip, (float *s, int n, const int *begin, const int *end), (s, n, begin, end))          \
    /* s = -inf, by selection, where bit k % 32 of alive[k / 32][lane] is 0, k = from + j. */       \
    X(void, hide, (float *s, int n, const uint32_t *alive, int from), (s, n, alive, from))          \
    /* Clears bit k % 32 of alive[k / 32 * apart] where x[k] is 0 or, if invert is 1, where it */   \
    /* is not, for n bytes; bits of the last word behind them may be cleared, too. */               \
    X(void, hide_bytes, (uint32_t * alive, int apart, const uint8_t *x, int n, int invert),         \
      (alive, apart, x, n, invert))                                                                 \
    /* Clears bit k % 32 of alive[k / 32 * apart] where ids[k] is not `own`, as hide_bytes does. */ \
    X(void, hide_others, (uint32_t * alive, int apart, const int32_t *ids, int n, int32_t own),     \
      (alive, apart, ids, n, own))                                                                  \
    /* Decides the running maximum for one block (n is 1..16), whose p it does not compute: m */    \
    /* rises to the block's maximum where it has not begun (is -inf) or is exceeded by more */      \
    /* than ATTN_THRESHOLD. If the latter happens to a lane, ATTN_RAISED: alpha = 2^fl(old m */     \
    /* - m) there, 1 in the others, and l *= alpha. Returns ATTN_RAISED + ATTN_IS_CALM, or 0. */    \
    X(int, running_max, (const float *s, int n, float *m, float *l, float *alpha),                  \
      (s, n, m, l, alpha))                                                                          \
    /* m[lane] = maximum of m[lane] and s[..][lane], NaN ignored. */                                \
    X(void, maximum, (const float *s, int n, float *m), (s, n, m))                                  \
    /* s = 2^fl(s - m), `dead` where s is -inf, l += s in order; m of -inf counts as +0. */         \
    X(void, exp_sum, (float *s, int n, float dead, const float *m, float *l), (s, n, dead, m, l))   \
    /* What attn_exp says. */                                                                       \
    X(void, exp_block, (const attn_exp *e), (e))                                                    \
    /* Whether n numbers are all finite. */                                                         \
    X(int, finite, (const float *x, int64_t n), (x, n))                                             \
    /* p[j][lane] = dead, by selection, where attn_drop says so of first_n + j * step and lane. */  \
    X(void, drop, (float *p, int n, const attn_drop *of), (p, n, of))                               \
    /* x[k][lane] *= alpha[lane] for `count` rows. */                                               \
    X(void, rescale, (float *x, const float *alpha, int64_t count), (x, alpha, count))              \
    /* to[d][lane] = chain over keys of fma(by[j][lane], kv[j*stride + d], to), in these lanes */   \
    /* at least; to the others every key is dead, or they have no query. */                         \
    X(void, pv, (const attn_product *p), (p))                                                       \
    /* The same, but a key whose p is ATTN_DEAD leaves o alone by selection. */                     \
    X(void, pv_select, (const attn_product *p), (p))                                                \
    /* b = a + b, a the lower node, not changed; states as [m[rows], l[rows], */                    \
    /* o[head_dim_v][rows]]. */                                                                     \
    X(void, merge, (float *a, float *b, int64_t head_dim_v), (a, b, head_dim_v))                    \
    /* out[lane][d] = fl(fl(o[d][lane] * r) + 0) with r = fl(fl(1 / l[lane]) * factor), +0 */       \
    /* where l[lane] is 0; NaN as 7fc00000. */                                                      \
    X(void, result,                                                                                 \
      (float *const *out, const float *o, const float *l, float factor, int64_t head_dim_v),        \
      (out, o, l, factor, head_dim_v))                                                              \
    /* ---- gradients */                                                                            \
    /* s becomes p of attn_row_stats, and dp becomes fl(p * fl(dp - delta[lane])); where s is */    \
    /* -inf both become ATTN_DEAD. */                                                               \
    X(void, gradient, (float *s, float *dp, int n, const attn_row_stats *of), (s, dp, n, of))       \
    /* ds = fl(ds * fma(-t, t, 1)), t the tanh of softcap; ATTN_DEAD where p is. */                 \
    X(void, softcap_gradient, (float *ds, const float *t, const float *p, int n), (ds, t, p, n))    \
    /* to[j][d] = chain over the terms, and over the lanes of each, of fma(x[j][lane], */           \
    /* b[lane][d], to[j][d]), for n keys j. */                                                      \
    X(void, outer, (const attn_outer *f), (f))                                                      \
    /* The same, but an x that is ATTN_DEAD leaves `to` alone by selection. */                      \
    X(void, outer_select, (const attn_outer *f), (f))                                               \
    /* to[lane] = chain over d of fma(a[d][lane], b[d][lane], to[lane]) from +0. */                 \
    X(void, dots, (float *to, const float *a, const float *b, int64_t dim), (to, a, b, dim))

/* Those of a set whose `few` is not 0, NULL in the others: qk, qk_units and pv up to `few` lanes, of rows
 * as they lie, in any storage type but the 8-bit floats; qk_units_runs of units alone, the numbers of which
 * are multiplied whole. dim and, of Q K^T, the keys and those of each run are multiples of 16. */
#define ATTN_FEW_KERNELS(X)                                                                        \
    X(void, qk_runs, (const attn_product *p), (p))                                                 \
    X(void, qk_units_runs, (const attn_product *p), (p))                                           \
    X(void, pv_runs, (const attn_product *p), (p))

/* Those of a set that rounds, NULL in the others. */
#define ATTN_ROUNDED_KERNELS(X)                                                                    \
    /* ATTN_PANEL_FLOATS(dim) floats of a panel. */                                                \
    X(void, pack_values, (float *to, const attn_pack *p), (to, p))

#define ATTN_KERNEL_MEMBER(result, name, parameters, arguments) result(*name) parameters;
struct attn_kernels {
    int abi;  /* ATTN_KERNEL_ABI */
    int rows; /* query rows of a tile */
    /* Up to this number of lanes, counted from the last multiple of 4 up to the first one, take another
     * way, which the kernels *_runs are of. 0 = there are no such kernels. */
    int few;
    const char *name;
    ATTN_KERNELS(ATTN_KERNEL_MEMBER)
};

#endif /* ATTN_SEAM_H */
