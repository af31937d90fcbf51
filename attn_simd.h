/* attn_simd.h - the seam, which is the table of kernels, and the vector kernels, written once.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * A plain inclusion gives the seam alone. An ISA file (attn_simd_avx2.c, ...) defines ATTN_KERNEL_FILE,
 * includes this file, defines the operations below, and includes it again, which gives the table
 * kernels_ISA.
 *
 * Parameters of this template
 *   ISA            suffix of every name, e.g. avx2; ISA_NAME the same as a string
 *   REGISTERS      vector registers of the CPU
 *   VL             floats of a vector
 *   NV             vectors of a tile: it has ROWS = NV * VL query rows, one per lane
 *   MR             chains (keys, or elements of a value) of one register tile: MR * NV
 *                  accumulators, NV loaded vectors and one broadcast factor must fit into the
 *                  registers
 *   vf, vm         a vector of floats, a mask of lanes
 *   v_load(p) v_store(p, x) v_set1(f) v_zero()
 *   v_fma(a, b, c) a * b + c rounded once;  v_add v_sub v_mul v_div
 *   v_chains(width, count, rows, chains, first)  not defined, or a way of the set's own to compute chains at
 *                  once: 0 if it leaves them to v_fma
 *   v_max(a, b)    a > b ? a : b, so that a NaN gives b
 *   v_gt v_lt v_eq(a, b)  ordered;  v_nan(x)  unordered with itself
 *   v_select(m, a, b)     m ? a : b;  vm_and(m, n);  vm_any(m);  vm_all(m)
 *   v_pow2(y, t)   the bits of y plus the bits of t shifted left by 23, modulo 2^32
 *   v_dead(b, x, y)       b is -0, by its bits, ? x : y
 *   v_copysign(x, s)      x >= +0 with the sign bit of s
 *   v_larger(a, x)        the larger of a and |x| as bit patterns, a >= +0: a NaN is the largest
 *   v_ints(p)      VL int as floats
 *   v_bit(p, i)    the lanes of VL words of 32 bits that have bit i, for v_select
 *   v_distance(p, i)   |VL int - i|, as floats
 *   v_same(p, i)   the lanes of VL int32_t that are i;  vm_bits(m)  a mask as bits, lane 0 the lowest
 *   b_nonzero(p)   bit i tells whether byte i of 32 is not 0
 *   v_i8(p)        VL int8_t as floats;  v_scale(p)  the f16 at p in every lane
 *   v_f16(p) v_bf16(p)    VL numbers of a 16-bit type; v_to_f16(p, x) v_to_bf16(p, x) store them,
 *                         to nearest even, NaN is 7fc00000, -0 becomes +0
 *   v_e4m3(p) v_e5m2(p)   VL numbers of an 8-bit type, each of which is the upper half of an f16, that of
 *                         E4M3 after one shift and with another bias
 *   v_transpose(x) x[0..VL-1] as a square matrix, in place
 *   vw             VL words of 32 bits, in a form of the set's own
 *   w_load(p) w_set1(u)    VL words, and one in every lane;  w_xor(a, b, c)  of three
 *   w_low(x, u) w_high(x, u)   the lower and the upper words of the products of x and u
 *   w_below(x, u)  the lanes whose word is below u, without signs
 *   vi             VL words;  i_load(p) i_set1(p) i_store(p, x);  i_zero();  i_floats(x)  signed, as floats
 *   HAS_DOTS       whether this CPU multiplies bytes (-DHAS_DOTS=0: a test of the way without):
 *   i_dot(sum, k, q)  sum + the products of 4 signed bytes, where the bits I_TURNED of each word of k are
 *                  the other way round
 *   i_turn(x)      turns them
 *   TARGET_1       what functions with i_dot are declared with, nothing if not defined
 *   HAS_MATRICES   whether this CPU multiplies matrices of bytes; 0, without what follows, if not defined:
 *   i_matrices(width, nv, q, rows, unit, sums)   all sums of a unit of four keys, sums[i * nv + v] of key i
 *                  and vector v of `width`; q has 8 words of `rows` lanes.  TARGET_2  as TARGET_1
 *   i_sum(sum, k, q)  on every CPU: sum + the products of parts of k and q
 *   i_bytes(p)     VL bytes, without signs, as words: for few rows
 *   v_four(x, y)   the numbers of the lower 4 bits of words, less 8, times y;  v_five(x, y)  of the lower 5
 *                  bits, less 16: for few rows;  HAS_TABLES  whether each is one look-up, 0 if not defined
 *   i_part(x, e)   part e of I_PARTS, 1 or 2: of 2 the numbers of bytes 0 and 2 of each word, in 16 bits, or
 *                  of bytes 1 and 3; of 1 the bytes themselves
 * For few rows (FEW, see there), vectors in 128-bit quarters, of which a vector of 4 has one:
 *   v_quarters(p, at)     4 floats each from p[0] + at, p[1] + at, ..., in bytes
 *   v_quarters_f16(p, at)  4 f16;  v_quarters_e4m3(p, at) v_quarters_e5m2(p, at)  4 numbers of 8 bits
 *   v_lower_bf16(x) v_upper_bf16(x)   the halves of the lanes of x, as floats
 *   v_put_quarters(p, at, x)   stores them, `at` in floats
 *   v_put_first(p, x)     stores the first one
 *   v_quarter(x, i)       quarter i in every quarter
 *   v_add_quarters(a, x)  the first quarter of a, plus those of x one by one, in the first quarter
 *   v_squares(x)   x[0..3] as a square matrix of 4 x 4 in each quarter, in place
 *   PIN(x)         keeps a loaded vector in its register: gcc else reloads it for every use
 *
 * Every kernel follows docs/canon.md element by element, as the portable kernels of attn.c do; the
 * order between elements is free. The seam, below, has the contracts.
 *
 * tools/amalgamate.sh makes this file from src/simd.h and src/seam.h: edit there.
 */

#include "attn.h"

/* src/seam.h - the seam: the table of kernels that every instruction set fills in.
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

#ifndef ATTN_SEAM_H /* attn.c and attn_simd.h both hold it */
#define ATTN_SEAM_H

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

#if !defined ATTN_KERNEL_FILE            /* the seam alone */
#elif !defined ISA && !defined SIMD_JOIN /* what the operations themselves are written with */

#if defined _MSC_VER && !defined __clang__
#pragma message("attn: MSVC makes a stub of this file: compile vector kernels by clang-cl")
#endif

#include <string.h>
#undef small /* windows.h: see config.h */
#define SIMD_JOIN_(a, b) a##_##b
#define SIMD_JOIN(a, b) SIMD_JOIN_(a, b)
#define INLINE static inline __attribute__((always_inline))
#define OUTLINE static __attribute__((noinline)) /* its spilled registers use stack once */
#define PRAGMA_(x) _Pragma(#x)
#ifdef __clang__
#define UNROLL PRAGMA_(clang loop unroll(full))
#define TWICE /* it else leaves addresses of AVX2's loops on the stack */
#define ROLLED PRAGMA_(clang loop unroll(disable)) /* it else keeps spilled addresses */
#define FITS_TIGHTLY 0 /* it loads factors early, and spills where all 16 registers are in use */
#else
#define ROLLED
#define FITS_TIGHTLY 1
/* Two steps a round: beside a busy thread of the same core 8 to 13 % of the products' time. */
#define TWICE PRAGMA_(GCC unroll 2)
#define UNROLL PRAGMA_(GCC unroll 32) /* every loop over accumulators: else they live in memory */
#endif
#define EACH(i, count) UNROLL for (int i = 0; i < (count); i++)
#define EACH_STEP(i, count, step) UNROLL for (int i = 0; i < (count); i += (step))
/* clang leaves arrays in memory that a loop of one round goes over: this has `most`, mostly empty. */
#define EACH_OF(i, most, count)                                                                    \
    EACH(i, most)                                                                                  \
        if (i < (count))
/* Hides where an integer or pointer comes from: compilers else derive more of them than there are
 * registers. */
#define HIDE(x) __asm__("" : "+r"(x))
/* What is in memory stays there: the compiler cannot keep it in registers, too. */
#define BARRIER __asm__ volatile("" : : : "memory")

/* Words of 32 bits for a set that multiplies the lower halves of 64-bit lanes to 64 bits: those of even
 * lanes and those of odd lanes, each in the lower half of 64 bits. The upper half is anything. upper(x)
 * has the upper halves of x as lower ones: by a shuffle, as shifts wait for the unit that multiplies. */
#define WORDS_IN_HALVES(isa, vi, set1, multiply, upper, xor_3)                                     \
    typedef struct words_##isa {                                                                   \
        vi even, odd;                                                                              \
    } words_##isa;                                                                                 \
    INLINE words_##isa words_load_##isa(vi x)                                                      \
    {                                                                                              \
        return (words_##isa){ x, upper(x) };                                                       \
    }                                                                                              \
    INLINE words_##isa words_set1_##isa(uint32_t u)                                                \
    {                                                                                              \
        return (words_##isa){ set1((int)u), set1((int)u) };                                        \
    }                                                                                              \
    INLINE words_##isa words_low_##isa(words_##isa x, uint32_t u)                                  \
    {                                                                                              \
        return (words_##isa){ multiply(x.even, set1((int)u)), multiply(x.odd, set1((int)u)) };     \
    }                                                                                              \
    INLINE words_##isa words_high_##isa(words_##isa x, uint32_t u)                                 \
    {                                                                                              \
        x = words_low_##isa(x, u);                                                                 \
        return (words_##isa){ upper(x.even), upper(x.odd) };                                       \
    }                                                                                              \
    INLINE words_##isa words_xor_##isa(words_##isa a, words_##isa b, words_##isa c)                \
    {                                                                                              \
        return (words_##isa){ xor_3(a.even, b.even, c.even), xor_3(a.odd, b.odd, c.odd) };         \
    }

INLINE int32_t load_word(const void *p)
{
    int32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* The 32 bytes of a unit of keys as words for its products, as queries have them: of 4 bytes, with the
 * bits `turned` the other way round, or of 2 numbers of 16 bits. */
INLINE void put_words(int bytes, uint32_t turned, float *to, const void *from)
{
    typedef int16_t pairs __attribute__((vector_size(32)));
    typedef uint32_t words __attribute__((vector_size(32)));
    pairs x;
    memcpy(&x, from, sizeof x);
    if (bytes)
        x = (pairs)((words)x ^ turned);
    else {
        const pairs even = x << 8 >> 8, odd = x >> 8;
        memcpy(to + 8, &odd, sizeof odd);
        x = even;
    }
    memcpy(to, &x, sizeof x);
}

/* 16 bits from any address. */
INLINE int16_t load_half(const void *p)
{
    int16_t half;
    memcpy(&half, p, sizeof half);
    return half;
}

/* What is dead in a product that leaves dead pairs out: a lane of b, or x for all lanes. */
#define DEAD_B 1
#define DEAD_X 2

/* How chains are computed, constants at every call. */
typedef struct simd_way {
    int width;  /* vectors of lanes */
    int select; /* 0 or what may be dead */
} simd_way;

/* c[i][lane] = fma(x[i*xi + t*xt], b[t][lane], c[i][lane]) for t = 0..n-1 and i = 0..count-1. For
 * Q K^T t runs over head_dim, for P V over keys. */
typedef struct simd_chains {
    float *c;
    int64_t count;
    const float *x;
    ptrdiff_t xi, xt;
    const float *b;
    int64_t n;
    int fresh, scaled; /* Nonzero: c begins at +0; it ends, and is multiplied by the factor. */
    float factor;
    attn_ahead *ahead;
} simd_chains;

/* Q K^T of few lanes: elements 0..whole-1, a multiple of 4 and, of bf16, of 8, of keys `step` bytes
 * apart. The factor is 1 where elements are left over, as it multiplies behind the last one. */
typedef struct simd_keys {
    const float *qt;
    ptrdiff_t step;
    int dtype;
    int64_t whole;
    float factor;
    attn_lanes lanes;
    attn_ahead *ahead;
} simd_keys;

/* A whole block of its keys. */
typedef struct simd_block {
    float *to[4];        /* logits of keys 0, 4, 8 and 12, */
    ptrdiff_t apart;     /* floats between them and those behind them */
    const char *from[4]; /* the keys, the others `step` bytes apart behind them */
    ptrdiff_t step;
    const float *qt;
    int64_t whole;
    float factor;
    int at; /* the first lane */
    attn_ahead *ahead;
} simd_block;

/* What the loop over its elements goes over. */
typedef struct simd_streams {
    const char *from[4];   /* the next element of keys 0, 4, 8, 12 */
    ptrdiff_t step, third; /* 3 steps */
} simd_streams;

/* A place in runs of rows. */
typedef struct simd_place {
    const char *const *run;
    const char *at;
    int64_t left; /* rows of this run */
} simd_place;

/* P V of few lanes: some columns, all keys. */
typedef struct simd_columns {
    float *o;
    const float *p;
    const attn_runs *v;
    int64_t column;
    int n;
    int at; /* the first lane */
    attn_ahead *ahead;
    int64_t calls; /* how many such follow, with this */
} simd_columns;

#elif defined ISA /* the kernels */

#define isa(name) SIMD_JOIN(name, ISA)
#define ROWS (NV * VL)

/* A bit pattern that is no literal, in every lane. */
INLINE vf isa(bits)(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return v_set1(x);
}

#define NEGATIVE_INFINITY isa(bits)(0xff800000u)

/* 2^x for |x| <= 126: exp2 of docs/canon.md without its special cases. */
INLINE vf isa(exp2_calm)(vf x)
{
    const vf magic = v_set1(12582912.0f); /* 1.5 * 2^23 */
    const vf t = v_add(x, magic);
    const vf f = v_sub(x, v_sub(t, magic));
    vf y = v_fma(v_set1(0x1.44a6d6p-13f), f, v_set1(0x1.5f8d0cp-10f));
    y = v_fma(y, f, v_set1(0x1.3b2822p-7f));
    y = v_fma(y, f, v_set1(0x1.c6adecp-5f));
    y = v_fma(y, f, v_set1(0x1.ebfbe4p-3f));
    y = v_fma(y, f, v_set1(0x1.62e432p-1f));
    y = v_fma(y, f, v_set1(1.0f));
    return v_pow2(y, t);
}

/* 2^x, +0 below -126, NaN (7fffffff) for NaN: exp2 of docs/canon.md. */
INLINE vf isa(exp2)(vf x)
{
    const vf lowest = v_set1(-126.0f);
    vf y = isa(exp2_calm)(v_max(x, lowest)); /* -inf would raise a flag there */
    y = v_select(v_lt(x, lowest), v_zero(), y);
    return v_select(v_nan(x), isa(bits)(0x7fffffffu), y);
}

/* What is subtracted from a row's logits: m, +0 where no logit came yet. */
INLINE vf isa(origin)(vf m)
{
    vf from = v_select(v_eq(m, NEGATIVE_INFINITY), v_zero(), m);
    PIN(from); /* clang else subtracts before it selects: -inf - -inf would raise a flag */
    return from;
}

/* ---- exponentials of a block */

/* Vectors that hold the lanes; the first of them at *at. */
INLINE int isa(width)(attn_lanes lanes, int *at)
{
    *at = lanes.begin / VL * VL;
    return (lanes.end - *at + VL - 1) / VL;
}

/* Keys from `from` on. */
INLINE void isa(exp_keys)(int calm, const attn_exp *e, int from)
{
    int begin, v, j;
    const int end = isa(width)(e->lanes, &begin) * VL + begin;
    for (v = begin; v < end; v += VL) {
        const vf m = v_load(e->m + v);
        const vf top = calm ? m : isa(origin)(m);
        vf sum = v_load(e->l + v);
        float *s = e->s + from * ROWS + v;
        for (j = from; j < e->n; j++, s += ROWS) {
            const vf x = v_sub(v_load(s), top);
            const vf p = calm ? isa(exp2_calm)(x) : isa(exp2)(x);
            sum = v_add(sum, p);
            v_store(s, p);
        }
        v_store(e->l + v, sum);
    }
}

/* Keys from `from` on, without special cases where the block is calm. */
INLINE void isa(exp_many)(const attn_exp *e, int from)
{
    if (e->calm)
        isa(exp_keys)(1, e, from);
    else
        isa(exp_keys)(0, e, from);
}

/* A product asks for what it is told to ahead in `parts` goes: short ones, a burst of 16 lines
 * holds up its own loads (10 % of the time of few rows). */
INLINE void isa(pace)(attn_ahead *a, int64_t parts)
{
    if (a)
        a->each = (a->lines + parts - 1) / parts;
}

INLINE void isa(ask)(attn_ahead *a)
{
    int64_t n;
    if (!a)
        return;
    n = a->each < a->lines ? a->each : a->lines;
    a->lines -= n;
    ROLLED
    for (; n > 0; n--) {
        __builtin_prefetch(a->row + a->at, 0, 2);
        attn_next_line(a);
    }
}

/* A unit of K or V: a scale in f16 and 32 whole numbers. Those of q8_0 are signed bytes. The others have
 * their lower four bits behind the upper ones, if there are any: RAISED higher, so that they have no sign. */
#define UNIT_NUMBERS 32
#define UNIT_HALF 16
#define IN_UNITS(dtype) ((dtype) >= ATTN_Q8_0)
#define UNIT_BYTES(dtype) ((dtype) == ATTN_Q8_0 ? 34 : (dtype) == ATTN_Q5_0 ? 22 : 18)
#define LOWER(dtype) ((dtype) == ATTN_Q5_0 ? 6 : 2) /* byte with the first ones */
#define RAISED(dtype) ((dtype) == ATTN_Q5_0 ? 16 : 8)
#define ALL_BYTES(x) ((x)*0x01010101u)

/* Words that operators of C take. */
typedef uint32_t isa(wholes) __attribute__((vector_size(4 * VL)));
typedef int8_t isa(octets) __attribute__((vector_size(4 * VL)));
typedef int32_t isa(integers) __attribute__((vector_size(4 * VL)));

/* ---- both matrix products */

/* Chains of one register tile that is `width` vectors wide: narrow ones get NARROW_CHAINS where
 * accumulators, loaded vectors and factor fit, so that the latency of the fused multiply-add stays
 * hidden; those that select, which is rare, get fewer, as they need registers for the masks. */
#define NARROW_CHAINS 8
#define MAX_CHAINS (MR > NARROW_CHAINS ? MR : NARROW_CHAINS)
#define MORE_FIT(width) ((width) < NV && (NARROW_CHAINS + 1) * (width) + 1 <= REGISTERS)
#define CHAINS(way) ((way).select ? MR / 2 : MORE_FIT((way).width) ? NARROW_CHAINS : MR)
/* CALL(w) with the constant w that `width` is, 1 to NV; code of larger w is not reached. */
#define WIDE(width) ((width) < NV ? (width) : NV)
#define BY_WIDTH(width, CALL)                                                                      \
    do {                                                                                           \
        if (NV > 1 && (width) == 1)                                                                \
            CALL(1);                                                                               \
        else if (NV > 2 && (width) == 2)                                                           \
            CALL(WIDE(2));                                                                         \
        else if (NV > 3 && (width) == 3)                                                           \
            CALL(WIDE(3));                                                                         \
        else                                                                                       \
            CALL(NV);                                                                              \
    } while (0)

/* One step of `count` chains: acc[i][lane] = fma(x[i*xi], b[lane], acc[i][lane]), or left alone
 * where what w.select names is dead. */
INLINE void isa(step)(simd_way w, int count, vf (*acc)[NV], const float *x, ptrdiff_t xi,
                      const float *b)
{
    vf y[NV];
    EACH(v, w.width) {
        y[v] = v_load(b + v * VL);
        PIN(y[v]);
    }
    EACH(i, count) {
        const vf a = v_set1(x[i * xi]);
        EACH(v, w.width) {
            const vf sum = v_fma(a, y[v], acc[i][v]);
            acc[i][v] = w.select ? v_dead(w.select == DEAD_B ? y[v] : a, acc[i][v], sum) : sum;
        }
    }
}

#ifndef v_chains
#define v_chains(width, count, rows, chains, first) 0
#endif

/* `count` chains, a constant, from `first` on. */
INLINE void isa(chains)(simd_way w, int count, const simd_chains *z, int64_t first)
{
    float *c = z->c + first * ROWS;
    const float *x = z->x + first * z->xi, *b = z->b;
    const ptrdiff_t xi = z->xi, xt = z->xt;
    const int64_t n = z->n;
    vf acc[MAX_CHAINS][NV];
    int64_t t;
    if (!w.select && v_chains(w.width, count, ROWS, z, first))
        return;
    if (z->fresh)
        EACH(i, count)
            EACH(v, w.width)
                acc[i][v] = v_zero();
    else
        EACH(i, count)
            EACH(v, w.width)
                acc[i][v] = v_load(c + i * ROWS + v * VL);
    TWICE
    for (t = 0; t < n; t++, x += xt, b += ROWS)
        isa(step)(w, count, acc, x, xi, b);
    if (z->scaled)
        EACH(i, count)
            EACH(v, w.width)
                acc[i][v] = v_mul(acc[i][v], v_set1(z->factor));
    EACH(i, count)
        EACH(v, w.width)
            v_store(c + i * ROWS + v * VL, acc[i][v]);
}

/* All of them. */
INLINE void isa(all_chains)(simd_way w, const simd_chains *z)
{
    int64_t i;
    for (i = 0; i + CHAINS(w) <= z->count; i += CHAINS(w)) {
        isa(pace)(z->ahead, (z->count - i) / CHAINS(w));
        isa(ask)(z->ahead);
        isa(chains)(w, CHAINS(w), z, i);
    }
    for (; i + 2 <= z->count; i += 2)
        isa(chains)(w, 2, z, i);
    if (i < z->count)
        isa(chains)(w, 1, z, i);
}

/* +0 in the vectors beside `width` of them from lane `at` on. */
INLINE void isa(clear_others)(float *s, int n, int at, int width)
{
    const vf zero = v_zero();
    int j, v;
    for (j = 0; j < n; j++, s += ROWS) {
        for (v = 0; v < at; v += VL)
            v_store(s + v, zero);
        for (v = at + width * VL; v < ROWS; v += VL)
            v_store(s + v, zero);
    }
}

#define QK_WIDE(w) isa(all_chains)((simd_way){ .width = (w) }, &rows)

/* A function of its own: its loops have all registers. */
OUTLINE void isa(qk_wide)(int width, const simd_chains *z)
{
    simd_chains rows = *z;
    rows.xt = 1; /* a constant: one register more */
    BY_WIDTH(width, QK_WIDE);
}

/* Elements of Q that fill 32 KB, which L1 keeps while the keys pass. With 256 elements of 64 rows at
 * once a call took 5 % longer than in two parts (AVX-512, 48 KB of L1, Intel family 6 model 167). */
#define DEPTH (8192 / ROWS / 16 * 16)

/* Wide heads are computed in parts. Each continues from what the one before stored. */
static void isa(qk_many)(const attn_product *p)
{
    int at;
    const int width = isa(width)(p->lanes, &at);
    const int64_t lines = p->ahead ? p->ahead->lines : 0;
    int64_t d;
    simd_chains z = { .c = p->to + at,
                      .count = p->n,
                      .x = p->kv,
                      .xi = p->stride,
                      .b = p->by + at,
                      .n = DEPTH,
                      .fresh = 1,
                      .factor = p->factor,
                      .ahead = p->ahead };
    if (width < NV)
        isa(clear_others)(p->to, p->n, at, width);
    for (d = 0; d < p->dim; d += DEPTH, z.x += DEPTH, z.b += DEPTH * ROWS, z.fresh = 0) {
        z.scaled = p->dim - d <= DEPTH;
        z.n = z.scaled ? p->dim - d : DEPTH;
        if (p->ahead)
            p->ahead->lines = lines * z.n / p->dim;
        isa(qk_wide)(width, &z);
    }
}

#define PV_WIDE(w) isa(all_chains)((simd_way){ .width = (w), .select = select }, &z)

INLINE void isa(pv_lanes)(int select, const attn_product *p)
{
    int at;
    const int width = isa(width)(p->lanes, &at);
    const simd_chains z = { .c = p->to + at,
                            .count = p->dim,
                            .x = p->kv,
                            .xi = 1,
                            .xt = p->stride,
                            .b = p->by + at,
                            .n = p->n,
                            .ahead = p->ahead };
    BY_WIDTH(width, PV_WIDE);
}

static void isa(pv_many)(const attn_product *p)
{
    isa(pv_lanes)(0, p);
}

static void isa(pv_select)(const attn_product *p)
{
    isa(pv_lanes)(DEAD_B, p);
}

/* ---- few rows: decoding */

#ifdef FEW
/* With few lanes in use a broadcast element of K or V feeds few multipliers. So up to FEW lanes
 * take another way: keys in the lanes of Q K^T and columns in those of P V, turned 4 x 4 in
 * registers, and VL / 4 keys in a vector of exponentials. The chain of each element is the same.
 * What is left over goes the way of many rows. */

#define QUARTERS (VL / 4)
#define BLOCK_V (ATTN_BLOCK / VL)
#define NEARBY 192 /* bytes: 3 lines, in which L2 answers */
#define QUADS(rows) (((rows) + 3) / 4)

/* How many are: 1, 2, 4, FEW, or 0 where that is not enough. */
INLINE int isa(rows_of)(attn_lanes lanes)
{
    const int count = attn_lane_count(lanes);
    return count <= 2 ? count : count <= 4 ? 4 : count <= FEW ? FEW : 0;
}

/* What is for FEW rows alone: no second copy of what 4 have. */
#if FEW > 4
#define OF_MOST(code) code
#else
#define OF_MOST(code)
#endif

/* Where a table has the function for this number of rows. */
INLINE int isa(way_of)(int rows)
{
    return rows <= 2 ? rows - 1 : rows == 4 ? 2 : 3;
}

/* The logits of a vector of keys, of which 0, 4, ... are at to[0], to[1], ..., the others `apart`
 * floats apart behind them, from sums[lane - at], which has +0 from `rows` on. +0 in the other
 * lanes. */
INLINE void isa(put_logits)(int rows, int at, float *const *to, ptrdiff_t apart, const vf *sums)
{
    static const float fours[16] = { 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3 };
    vf x[FEW / 4][4];
    EACH_OF(h, 2, QUADS(rows)) {
        EACH(i, 4)
            x[h][i] = sums[h * 4 + i];
        v_squares(x[h]);
    }
    EACH(v, NV)
        EACH(q, QUARTERS)
            EACH(i, 4) {
                vf row = v_zero();
                EACH_OF(h, 2, QUADS(rows)) {
                    const vm here = v_eq(v_load(fours + v * VL), v_set1((float)(at / 4 + h)));
                    row = v_select(here, v_quarter(x[h][i], q), row);
                }
                v_store(to[q] + i * apart + v * VL, row);
            }
}

/* Bytes of an element, a vector of them from p, and 4 numbers in each quarter from p[..] + at: two
 * elements of bf16 are one number here, as they come apart for less behind the turn of 4 x 4. */
#define ELEMENT(dtype) ((dtype) == ATTN_F32 ? 4 : (dtype) <= ATTN_BF16 ? 2 : 1)
#define IN_NUMBER(dtype) ((dtype) == ATTN_BF16 ? 2 : 1)
#define LOAD_OF(dtype, p)                                                                          \
    ((dtype) == ATTN_F32    ? v_load((const float *)(const void *)(p))                             \
     : (dtype) == ATTN_F16  ? v_f16((const uint16_t *)(const void *)(p))                           \
     : (dtype) == ATTN_BF16 ? v_bf16((const uint16_t *)(const void *)(p))                          \
     : (dtype) == ATTN_E4M3 ? v_e4m3((const uint8_t *)(p))                                         \
                            : v_e5m2((const uint8_t *)(p)))

/* Bytes from a row of V to its element d: of units, to a scale, and `within` more to a number. */
#define BYTES_TO(dtype, d)                                                                         \
    (IN_UNITS(dtype) ? (d) / UNIT_NUMBERS * UNIT_BYTES(dtype) : (d)*ELEMENT(dtype))
#define WITHIN(dtype, d) (IN_UNITS(dtype) ? (d) % UNIT_NUMBERS : 0)
#define QUARTERS_OF(dtype, p, at)                                                                  \
    ((dtype) == ATTN_F16    ? v_quarters_f16(p, at)                                                \
     : (dtype) == ATTN_E4M3 ? v_quarters_e4m3(p, at)                                               \
     : (dtype) == ATTN_E5M2 ? v_quarters_e5m2(p, at)                                               \
                            : v_quarters(p, at))

/* 4 numbers of a vector of keys: keys 0, 4, ... at from[0], from[1], ..., `step` bytes between
 * keys, and three times that. */
INLINE void isa(get_keys)(int dtype, vf *x, const char *const *from, ptrdiff_t step,
                          ptrdiff_t third)
{
    x[0] = QUARTERS_OF(dtype, from, 0);
    x[1] = QUARTERS_OF(dtype, from, step);
    x[2] = QUARTERS_OF(dtype, from, 2 * step);
    x[3] = QUARTERS_OF(dtype, from, third);
    v_squares(x);
}

/* Element e of a number. */
#define APART(dtype, x, e) ((dtype) != ATTN_BF16 ? (x) : (e) ? v_upper_bf16(x) : v_lower_bf16(x))

/* What lies NEARBY bytes on comes into L1; it may be beyond the tensor, and so is no pointer. */
INLINE void isa(ask_near)(const char *from)
{
    __builtin_prefetch((const void *)((uintptr_t)from + NEARBY), 0, 3);
}

/* Two vectors of keys that share a factor halve its loads. With 4 rows of AVX2 registers do not hold
 * both beside the sums: the second one waits in L1. */
#define IS_PARKED(rows) (FITS_TIGHTLY && VL == 8 && (rows) == 4)
#define TOGETHER(rows)                                                                             \
    (BLOCK_V > 1 && ((rows) <= 1 + FITS_TIGHTLY || VL == 4 || IS_PARKED(rows)) ? 2 : 1)

/* 4 numbers; keys 4 * part.. are asked for. */
INLINE void isa(qk_step)(int dtype, int rows, vf (*acc)[FEW], simd_streams *k, const float *q,
                         int part)
{
    const int together = TOGETHER(rows);
    float parked[4 * VL];
    isa(ask_near)(k->from[part]);
    isa(ask_near)(k->from[part] + k->step);
    isa(ask_near)(k->from[part] + 2 * k->step);
    isa(ask_near)(k->from[part] + k->third);
    EACH_STEP(g, BLOCK_V, together) {
        vf x[2][4];
        if (together == 2)
            isa(get_keys)(dtype, x[1], k->from + (g + 1) * QUARTERS, k->step, k->third);
        if (IS_PARKED(rows)) {
            EACH(i, 4)
                v_store(parked + i * VL, x[1][i]);
            BARRIER;
        }
        isa(get_keys)(dtype, x[0], k->from + g * QUARTERS, k->step, k->third);
        EACH(i, 4) {
            if (IS_PARKED(rows))
                x[1][i] = v_load(parked + i * VL);
            EACH_OF(e, 2, IN_NUMBER(dtype))
                EACH_OF(r, 8, rows) {
                    const vf a = v_set1(q[(i * IN_NUMBER(dtype) + e) * ROWS + r]);
                    EACH(b, together)
                        acc[g + b][r] = v_fma(a, APART(dtype, x[b][i], e), acc[g + b][r]);
                }
        }
        HIDE(q); /* not kept for the next */
    }
    EACH(i, 4) {
        k->from[i] += 4 * IN_NUMBER(dtype) * ELEMENT(dtype);
        HIDE(k->from[i]);
    }
}

/* Lanes b->at..b->at+rows-1 of a block. */
INLINE void isa(qk_rows)(int dtype, int rows, const simd_block *b)
{
    const float *q = b->qt + b->at;
    attn_ahead *ahead = b->ahead;
    simd_streams k;
    vf acc[BLOCK_V][FEW];
    int64_t steps = b->whole / (4 * IN_NUMBER(dtype));
    EACH(i, 4) {
        k.from[i] = b->from[i];
        HIDE(k.from[i]);
    }
    k.step = b->step;
    k.third = 3 * b->step;
    HIDE(k.third);
    EACH(g, BLOCK_V)
        EACH_OF(r, 8, rows)
            acc[g][r] = v_zero();
    isa(pace)(ahead, steps);
    while (steps > 0) /* no loop for what is left: it would spill */
        EACH(part, 4) {
            isa(ask)(ahead);
            isa(qk_step)(dtype, rows, acc, &k, q, part);
            q += 4 * IN_NUMBER(dtype) * ROWS;
            if (--steps == 0)
                break;
        }
    EACH(g, BLOCK_V) {
        vf sums[FEW];
        EACH(r, FEW)
            sums[r] = r < rows ? v_mul(acc[g][r], v_set1(b->factor)) : v_zero();
        isa(put_logits)(rows, b->at, b->to + g * QUARTERS, b->apart, sums);
    }
}

/* Each a function of its own: its loop has all registers. */
#define QK_ROWS(name, dtype, rows)                                                                 \
    OUTLINE void isa(name)(const simd_block *b)                                                    \
    {                                                                                              \
        isa(qk_rows)(dtype, rows, b);                                                              \
    }
#define QK_TYPE(name, dtype)                                                                       \
    QK_ROWS(name##_1, dtype, 1)                                                                    \
    QK_ROWS(name##_2, dtype, 2)                                                                    \
    QK_ROWS(name##_4, dtype, 4)                                                                    \
    OF_MOST(QK_ROWS(name##_most, dtype, FEW))
#define WAYS(name)                                                                                 \
    {                                                                                              \
        isa(name##_1), isa(name##_2), isa(name##_4), OF_MOST(isa(name##_most))                     \
    }
QK_TYPE(qk_f32, ATTN_F32)
QK_TYPE(qk_f16, ATTN_F16)
QK_TYPE(qk_bf16, ATTN_BF16)
QK_TYPE(qk_e4m3, ATTN_E4M3)
QK_TYPE(qk_e5m2, ATTN_E5M2)

/* `apart` blocks of keys, 16 * apart in all, of which every 4 * apart begin at from[..], into s. A
 * block takes keys that lie `apart` rows from each other, and the next block their neighbours: so
 * each key of a block begins a stream of whole rows, which memory serves faster than one row after
 * the other (K alone, AMD EPYC family 25 model 17, 4 rows of 128 f32: 20 instead of 6 GB/s). turn:
 * the streams of each 4 begin as many rows later than the 4 before. `lines` are asked
 * for. */
INLINE void isa(qk_streams)(const simd_keys *k, float *s, const char *const *from, int apart,
                            int turn, int64_t lines)
{
    static void (*const ways[5][4])(const simd_block *) = { WAYS(qk_f32), WAYS(qk_f16),
                                                            WAYS(qk_bf16), WAYS(qk_e4m3),
                                                            WAYS(qk_e5m2) };
    const int way = isa(way_of)(isa(rows_of)(k->lanes));
    simd_block one = { .apart = apart * ROWS,
                       .step = apart * k->step,
                       .qt = k->qt,
                       .whole = k->whole,
                       .factor = k->factor,
                       .at = attn_first_lane(k->lanes),
                       .ahead = k->ahead };
    int b;
    for (b = 0; b < apart; b++) {
        EACH(i, 4) {
            const int row = (b + turn * i) % apart;
            one.from[i] = from[i] + row * k->step;
            one.to[i] = s + (4 * apart * i + row) * ROWS;
        }
        if (k->ahead)
            k->ahead->lines = lines / apart;
        ways[k->dtype][way](&one);
    }
}

/* The whole blocks among n keys that lie evenly from `at` on, into s; returns how many keys that
 * are. */
INLINE int isa(qk_blocks)(const simd_keys *k, float *s, const char *at, int n)
{
    const int64_t lines = k->ahead ? k->ahead->lines : 0;
    const char *from[4];
    int j = 0, apart;
    if (!isa(rows_of)(k->lanes) || !k->whole)
        return 0;
    for (; j + ATTN_BLOCK <= n; j += ATTN_BLOCK * apart) {
        apart = (n - j) / ATTN_BLOCK;
        apart -= apart % 2 == 0; /* an even number of rows leads to the same sets of the cache */
        EACH(i, 4)
            from[i] = at + (j + 4 * apart * i) * k->step;
        isa(qk_streams)(k, s + j * ROWS, from, apart, 0, lines * ATTN_BLOCK * apart / n);
    }
    return j;
}

/* n keys of a calm block, a multiple of QUARTERS, which share a vector; l key by key all the same.
 * The other lanes keep what they hold. */
INLINE void isa(exp_quarters)(const attn_exp *e, int n)
{
    int at = attn_first_lane(e->lanes), j;
    for (; at < e->lanes.end; at += 4) {
        const char *m[4], *l[4], *from[4];
        float *to[4];
        vf top, sum;
        EACH(i, 4) {
            m[i] = (const char *)(e->m + at);
            l[i] = (const char *)(e->l + at); /* the same in every quarter */
            to[i] = e->s + i * ROWS + at;
            from[i] = (const char *)to[i];
        }
        top = v_quarters(m, 0);
        sum = v_quarters(l, 0);
        for (j = 0; j < n; j += QUARTERS) {
            const vf p = isa(exp2_calm)(v_sub(v_quarters(from, j * ROWS * 4), top));
            v_put_quarters(to, j * ROWS, p);
            sum = v_add_quarters(sum, p);
        }
        v_put_first(e->l + at, sum);
    }
}

static void isa(exp_block)(const attn_exp *e)
{
    const int n = e->calm && isa(rows_of)(e->lanes) ? e->n / QUARTERS * QUARTERS : 0;
    if (n > 0)
        isa(exp_quarters)(e, n);
    if (n < e->n)
        isa(exp_many)(e, n);
}

static void isa(qk)(const attn_product *p)
{
    const simd_keys k = { .qt = p->by,
                          .step = p->stride * ELEMENT(ATTN_F32),
                          .dtype = ATTN_F32,
                          .whole = p->dim / 4 * 4,
                          .factor = p->dim % 4 ? 1.0f : p->factor,
                          .lanes = p->lanes,
                          .ahead = p->ahead };
    const int keys = isa(qk_blocks)(&k, p->to, (const char *)p->kv, p->n);
    if (keys > 0 && k.whole < p->dim) {
        const simd_chains z = { .c = p->to,
                                .count = keys,
                                .x = p->kv + k.whole,
                                .xi = p->stride,
                                .xt = 1,
                                .b = p->by + k.whole * ROWS,
                                .n = p->dim - k.whole,
                                .scaled = 1,
                                .factor = p->factor };
        isa(all_chains)((simd_way){ .width = NV }, &z);
    }
    if (keys < p->n) {
        attn_product rest = *p;
        rest.to += keys * ROWS;
        rest.kv += keys * p->stride;
        rest.n -= keys;
        isa(qk_many)(&rest);
    }
}

/* The place, which moves on by `count` rows, at most those left of its run. */
INLINE const char *isa(take_rows)(simd_place *p, const attn_runs *k, int64_t count)
{
    const char *from = p->at;
    p->at += count * k->stride;
    p->left -= count;
    if (p->left == 0) {
        p->at = *++p->run;
        p->left = k->each;
    }
    return from;
}

/* Runs of 48 keys and more one by one; of shorter ones four blocks together, each of which then has
 * 4 streams of 4 rows (pages of 16 keys in order in memory, AMD EPYC family 25 model 17, f32: 9 %
 * slower than one run, 24 % where each page is a block of its own). */
static void isa(qk_number_runs)(const attn_product *p)
{
    const attn_runs *runs = p->runs;
    const simd_keys k = { .qt = p->by,
                          .step = runs->stride,
                          .dtype = runs->dtype,
                          .whole = p->dim,
                          .factor = p->factor,
                          .lanes = p->lanes,
                          .ahead = p->ahead };
    const int64_t lines = k.ahead ? k.ahead->lines : 0;
    const int n = p->n;
    simd_place place = { runs->run, *runs->run, runs->first };
    const char *from[4];
    int j, count;
    for (j = 0; j < n && isa(rows_of)(k.lanes); j += count) {
        float *s = p->to + j * ROWS;
        count = place.left < n - j ? (int)place.left : n - j;
        if (count < 3 * ATTN_BLOCK && n - j >= 4 * ATTN_BLOCK) {
            EACH(i, 4)
                from[i] = isa(take_rows)(&place, runs, ATTN_BLOCK);
            count = 4 * ATTN_BLOCK;
            isa(qk_streams)(&k, s, from, 4, 1, lines * count / n);
        } else {
            if (k.ahead)
                k.ahead->lines = lines * count / n;
            isa(qk_blocks)(&k, s, isa(take_rows)(&place, runs, count), count);
        }
    }
}

/* Columns 0, 4, 8, 12 of lanes at..at+3. */
INLINE void isa(columns_at)(float **to, float *o, int at)
{
    EACH(i, 4)
        to[i] = o + 4 * i * ROWS + at;
}

/* A vector of columns of each of 4 lanes. */
INLINE void isa(get_columns)(vf *x, float *const *columns)
{
    const char *from[4];
    EACH(i, 4)
        from[i] = (const char *)columns[i];
    EACH(i, 4)
        x[i] = v_quarters(from, i * ROWS * 4);
    v_squares(x);
}

/* A vector of numbers of a unit, from this one on. */
INLINE vf isa(of_unit)(int dtype, const char *unit, int64_t number)
{
    static const uint32_t lanes[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    const int64_t half = number / UNIT_HALF, at = number % UNIT_HALF;
    const vf by = v_scale(unit);
    isa(wholes) x, shift;
    uint32_t upper;
    if (dtype == ATTN_Q8_0)
        return v_mul(v_i8((const int8_t *)unit + 2 + number), by);
    x = (isa(wholes))i_bytes(unit + LOWER(dtype) + at) >> (uint32_t)(4 * half);
    if (dtype == ATTN_Q4_0)
        return v_four((vi)x, by);
    memcpy(&shift, lanes, sizeof shift);
    upper = (uint32_t)(uint16_t)load_half(unit + 2 + 2 * half) << 4 >> at;
    x = (x & 15) | (upper >> shift & 16);
    return v_five((vi)x, by);
}

/* `vectors` of columns, lanes q->at..q->at+rows-1. */
INLINE void isa(pv_rows)(int dtype, int rows, int vectors, const simd_columns *q)
{
    enum { MOST = 8 };
    const attn_runs *runs = q->v;
    const char *const *run = runs->run;
    const int64_t column = BYTES_TO(dtype, q->column);
    const int64_t within = vectors * VL % UNIT_NUMBERS ? WITHIN(dtype, q->column) : 0;
    const char *from = *run + column;
    const ptrdiff_t step = runs->stride;
    const float *p = q->p + q->at;
    attn_ahead *ahead = q->ahead;
    int64_t left = runs->first;
    vf acc[MOST][FEW], x[MOST];
    float *to[4];
    int n = q->n;
    EACH_OF(c, MOST, vectors)
        EACH_OF(h, 2, QUADS(rows)) {
            isa(columns_at)(to, q->o + c * VL * ROWS, q->at + 4 * h);
            isa(get_columns)(x, to);
            EACH(i, 4)
                acc[c][4 * h + i] = x[i];
        }
    isa(pace)(ahead, q->calls * n);
    do {
        isa(ask)(ahead);
        EACH_OF(c, MOST, vectors) {
            const char *const at = from + BYTES_TO(dtype, c * VL);
            x[c] = IN_UNITS(dtype) ? isa(of_unit)(dtype, at, within + WITHIN(dtype, c * VL))
                                   : LOAD_OF(dtype, at);
        }
        EACH_OF(r, 8, rows) {
            const vf w = v_set1(p[r]);
            EACH_OF(c, MOST, vectors)
                acc[c][r] = v_fma(w, x[c], acc[c][r]);
        }
        from += step;
        if (--left == 0) {
            from = *++run + column;
            left = runs->each;
        }
        p += ROWS;
    } while (--n > 0);
    EACH_OF(c, MOST, vectors)
        EACH_OF(h, 2, QUADS(rows)) {
            isa(columns_at)(to, q->o + c * VL * ROWS, q->at + 4 * h);
            isa(get_columns)(x, to);
            EACH(i, 4)
                x[i] = 4 * h + i < rows ? acc[c][4 * h + i] : x[i];
            v_squares(x);
            EACH(i, 4)
                v_put_quarters(to, i * ROWS, x[i]);
        }
}

/* Vectors of columns that go together with 4 rows, as registers allow: eight chains just cover the
 * latency of the multiply-adds, and twelve do so with a margin. Of f32 two are a line of memory,
 * which pays more where V comes from there. */
#define VECTORS_OF_4(dtype)                                                                        \
    (FEW > 4                                                                           ? 4         \
     : ((dtype) == ATTN_F16 || (dtype) == ATTN_BF16) && REGISTERS < 32 && FITS_TIGHTLY ? 3         \
                                                                                       : 2)

/* Each a function of its own, as those of Q K^T; `_pair` and `_last` for columns left over. */
#define PV_ROWS(name, dtype, rows, vectors)                                                        \
    OUTLINE void isa(name)(const simd_columns *q)                                                  \
    {                                                                                              \
        isa(pv_rows)(dtype, rows, vectors, q);                                                     \
    }
#define WIDEST(dtype)                                                                              \
    {                                                                                              \
        8, 4, VECTORS_OF_4(dtype), 2                                                               \
    }
#define PV_SIZES(name, dtype, rows, vectors)                                                       \
    PV_ROWS(name, dtype, rows, vectors)                                                            \
    PV_ROWS(name##_pair, dtype, rows, 2)                                                           \
    PV_ROWS(name##_last, dtype, rows, 1)
#define PV_TYPE(name, dtype)                                                                       \
    PV_SIZES(name##_1, dtype, 1, 8)                                                                \
    PV_SIZES(name##_2, dtype, 2, 4)                                                                \
    PV_SIZES(name##_4, dtype, 4, VECTORS_OF_4(dtype))                                              \
    OF_MOST(PV_SIZES(name##_most, dtype, FEW, 2))
#define WAYS_OF_SIZE(name, size)                                                                   \
    {                                                                                              \
        isa(name##_1##size), isa(name##_2##size), isa(name##_4##size),                             \
            OF_MOST(isa(name##_most##size))                                                        \
    }
#define PV_WAYS(size)                                                                              \
    {                                                                                              \
        WAYS_OF_SIZE(pv_f32, size), WAYS_OF_SIZE(pv_f16, size), WAYS_OF_SIZE(pv_bf16, size),       \
            WAYS_OF_SIZE(pv_e4m3, size), WAYS_OF_SIZE(pv_e5m2, size), WAYS_OF_SIZE(pv_q8_0, size), \
            WAYS_OF_SIZE(pv_q5_0, size), WAYS_OF_SIZE(pv_q4_0, size)                               \
    }
PV_TYPE(pv_f32, ATTN_F32)
PV_TYPE(pv_f16, ATTN_F16)
PV_TYPE(pv_bf16, ATTN_BF16)
PV_TYPE(pv_e4m3, ATTN_E4M3)
PV_TYPE(pv_e5m2, ATTN_E5M2)
PV_TYPE(pv_q8_0, ATTN_Q8_0)
PV_TYPE(pv_q5_0, ATTN_Q5_0)
PV_TYPE(pv_q4_0, ATTN_Q4_0)

/* All whole vectors of columns of V as it lies; returns how many columns that are. */
INLINE int64_t isa(pv_columns)(const attn_product *p, const attn_runs *v)
{
    static void (*const ways[3][8][4])(const simd_columns *) = { PV_WAYS(), PV_WAYS(_pair),
                                                                 PV_WAYS(_last) };
    static const int most[8][4] = { WIDEST(ATTN_F32),  WIDEST(ATTN_F16),  WIDEST(ATTN_BF16),
                                    WIDEST(ATTN_E4M3), WIDEST(ATTN_E5M2), WIDEST(ATTN_Q8_0),
                                    WIDEST(ATTN_Q5_0), WIDEST(ATTN_Q4_0) };
    const int rows = isa(rows_of)(p->lanes), way = isa(way_of)(rows);
    const int dtype = v->dtype;
    simd_columns q = {
        .p = p->by, .v = v, .n = p->n, .at = attn_first_lane(p->lanes), .ahead = p->ahead
    };
    int64_t d = 0;
    int size;
    for (size = 0; size < 3 && rows; size++) {
        const int width = (size == 0 ? most[dtype][way] : size == 1 ? 2 : 1) * VL;
        for (; d + width <= p->dim; d += width) {
            q.o = p->to + d * ROWS;
            q.column = d;
            q.calls = (p->dim - d) / width;
            ways[size][dtype][way](&q);
        }
    }
    return d;
}

static void isa(pv)(const attn_product *p)
{
    const char *run[2] = { (const char *)p->kv, (const char *)p->kv };
    const attn_runs runs = { ATTN_F32, p->stride * ELEMENT(ATTN_F32), p->n, p->n, run };
    const int64_t d = isa(pv_columns)(p, &runs);
    if (d < p->dim) {
        attn_product rest = *p;
        rest.to += d * ROWS;
        rest.kv += d;
        rest.dim -= d;
        isa(pv_many)(&rest);
    }
}

static void isa(pv_runs)(const attn_product *p)
{
    isa(pv_columns)(p, p->runs);
}
#else
static void isa(exp_block)(const attn_exp *e)
{
    isa(exp_many)(e, 0);
}

static void isa(qk)(const attn_product *p)
{
    isa(qk_many)(p);
}

static void isa(pv)(const attn_product *p)
{
    isa(pv_many)(p);
}
#endif

/* ---- softmax */

static void isa(maximum)(const float *s, int n, float *m)
{
    int j;
    EACH(v, NV) {
        vf top = v_load(m + v * VL);
        const float *row = s + v * VL;
        for (j = 0; j < n; j++, row += ROWS)
            top = v_max(v_load(row), top);
        v_store(m + v * VL, top);
    }
}

static void isa(exp_sum)(float *s, int n, float dead, const float *m, float *l)
{
    int j;
    EACH(v, NV) {
        const vf from = isa(origin)(v_load(m + v * VL)), hidden = v_set1(dead);
        vf sum = v_load(l + v * VL);
        float *row = s + v * VL;
        for (j = 0; j < n; j++, row += ROWS) {
            const vf x = v_load(row);
            const vf p = isa(exp2)(v_sub(x, from));
            sum = v_add(sum, p);
            v_store(row, v_select(v_eq(x, NEGATIVE_INFINITY), hidden, p));
        }
        v_store(l + v * VL, sum);
    }
}

/* Lanes that have begun and whose block maximum exceeds m by more than the threshold. */
INLINE vm isa(exceeds)(vf high, vf m)
{
    return vm_and(v_gt(m, NEGATIVE_INFINITY), v_gt(high, v_add(m, v_set1(ATTN_THRESHOLD))));
}

/* The rare part of running_max: some lane rises. */
static __attribute__((noinline)) void isa(raise)(const float *bm, float *m, float *l, float *alpha)
{
    EACH(v, NV) {
        const vf old = v_load(m + v * VL), high = v_load(bm + v * VL);
        const vm up = isa(exceeds)(high, old);
        const vf to = v_select(up, high, v_zero());
        vf from = v_select(up, old, v_zero()), a;
        PIN(from); /* clang else subtracts before it selects: -inf - -inf would raise a flag */
        a = isa(exp2)(v_sub(from, to)); /* exactly 1 where nothing is raised */
        v_store(l + v * VL, v_mul(v_load(l + v * VL), a));
        v_store(alpha + v * VL, a);
    }
}

static int isa(running_max)(const float *s, int n, float *m, float *l, float *alpha)
{
    vf high[NV], large[NV];
    float bm[ROWS];
    int raised = 0, calm = 1, j;
    EACH(v, NV) {
        high[v] = NEGATIVE_INFINITY;
        large[v] = v_zero();
    }
    for (j = 0; j < n; j++, s += ROWS)
        EACH(v, NV) {
            const vf x = v_load(s + v * VL);
            high[v] = v_max(x, high[v]);
            large[v] = v_larger(large[v], x);
        }
    EACH(v, NV) {
        v_store(bm + v * VL, high[v]);
        raised |= vm_any(isa(exceeds)(high[v], v_load(m + v * VL)));
    }
    if (raised)
        isa(raise)(bm, m, l, alpha);
    EACH(v, NV) {
        const vf old = v_load(m + v * VL), b = v_load(bm + v * VL);
        vf to = v_select(v_gt(old, NEGATIVE_INFINITY), old, b);
        to = v_select(isa(exceeds)(b, old), b, to);
        v_store(m + v * VL, to);
        calm &= vm_all(v_lt(v_larger(large[v], to), v_set1(ATTN_CALM)));
    }
    return (raised ? ATTN_RAISED : 0) | (calm ? ATTN_IS_CALM : 0);
}

static int isa(finite)(const float *x, int64_t n)
{
    const vf infinity = isa(bits)(0x7f800000u);
    vf large = v_zero();
    int64_t i;
    float rest[VL] = { 0 };
    for (i = 0; i + VL <= n; i += VL)
        large = v_larger(large, v_load(x + i));
    memcpy(rest, x + i, (size_t)(n - i) * sizeof *rest);
    large = v_larger(large, v_load(rest));
    return vm_all(v_lt(large, infinity));
}

static void isa(rescale)(float *x, const float *alpha, int64_t count)
{
    int64_t k;
    EACH(v, NV) {
        const vf a = v_load(alpha + v * VL);
        float *row = x + v * VL;
        for (k = 0; k < count; k++, row += ROWS)
            v_store(row, v_mul(v_load(row), a));
    }
}

static void isa(scale_keys)(float *s, const float *scale, int n)
{
    int j;
    for (j = 0; j < n; j++, s += ROWS) {
        const vf by = v_set1(scale[j]);
        EACH(v, NV)
            v_store(s + v * VL, v_mul(v_load(s + v * VL), by));
    }
}

/* ---- masks */

static void isa(clip)(float *s, int n, const int *begin, const int *end)
{
    vf key = v_zero();
    int j;
    for (j = 0; j < n; j++, s += ROWS, key = v_add(key, v_set1(1.0f)))
        EACH(v, NV) {
            const vf x =
                v_select(v_lt(key, v_ints(begin + v * VL)), NEGATIVE_INFINITY, v_load(s + v * VL));
            v_store(s + v * VL, v_select(v_lt(key, v_ints(end + v * VL)), x, NEGATIVE_INFINITY));
        }
}

static void isa(hide)(float *s, int n, const uint32_t *alive, int from)
{
    int j;
    for (j = from; j < from + n; j++, s += ROWS) {
        const uint32_t *const words = alive + j / ATTN_ALIVE_BITS * ROWS;
        EACH(v, NV)
            v_store(s + v * VL, v_select(v_bit(words + v * VL, j % ATTN_ALIVE_BITS),
                                         v_load(s + v * VL), NEGATIVE_INFINITY));
    }
}

static void isa(hide_bytes)(uint32_t *alive, int apart, const uint8_t *x, int n, int invert)
{
    const uint32_t flip = invert ? UINT32_MAX : 0;
    uint8_t rest[ATTN_ALIVE_BITS];
    for (; n >= ATTN_ALIVE_BITS; n -= ATTN_ALIVE_BITS, x += ATTN_ALIVE_BITS, alive += apart)
        *alive &= b_nonzero(x) ^ flip;
    if (n > 0) {
        memset(rest, 0, sizeof rest);
        memcpy(rest, x, (size_t)n);
        *alive &= b_nonzero(rest) ^ flip;
    }
}

static void isa(hide_others)(uint32_t *alive, int apart, const int32_t *ids, int n, int32_t own)
{
    int32_t rest[VL];
    uint32_t same;
    int k, i;
    for (k = 0; k < n; k += ATTN_ALIVE_BITS, alive += apart) {
        same = 0;
        for (i = k; i < k + ATTN_ALIVE_BITS && i + VL <= n; i += VL)
            same |= vm_bits(v_same(ids + i, own)) << (i - k);
        if (i < k + ATTN_ALIVE_BITS && i < n) {
            memset(rest, 0, sizeof rest);
            memcpy(rest, ids + i, (size_t)(n - i) * sizeof *rest);
            same |= vm_bits(v_same(rest, own)) << (i - k);
        }
        *alive &= same;
    }
}

/* ---- dropout */

/* The first two rounds multiply nothing that depends on the key and on the row: a drop_lanes has what
 * they make of the rows, and the products of the key are numbers. */
typedef struct isa(drop_lanes)
{
    vw low_b, high_a, low_a;
}
isa(drop_lanes);

INLINE isa(drop_lanes) isa(drop_rows)(const attn_drop *of, int at)
{
    const vw pos = w_load(of->pos + at), head = w_load(of->head + at);
    const vw high_b = w_high(head, ATTN_PHILOX_B);
    const vw c0 = w_xor(high_b, pos, w_set1(of->round_keys[0][0]));
    return (isa(drop_lanes)){ w_low(head, ATTN_PHILOX_B), w_high(c0, ATTN_PHILOX_A),
                              w_low(c0, ATTN_PHILOX_A) };
}

/* Word 0 of the random numbers of key n, as src/philox.c has it. */
INLINE vw isa(philox)(const attn_drop *of, isa(drop_lanes) rows, uint32_t n)
{
    const uint64_t a = (uint64_t)ATTN_PHILOX_A * n;
    const uint32_t after = (uint32_t)(a >> 32) ^ of->batch ^ of->round_keys[0][1];
    const uint64_t b = (uint64_t)ATTN_PHILOX_B * after;
    vw c0 = w_xor(rows.low_b, w_set1((uint32_t)(b >> 32)), w_set1(of->round_keys[1][0]));
    vw c1 = w_set1((uint32_t)b);
    vw c2 = w_xor(rows.high_a, w_set1((uint32_t)a), w_set1(of->round_keys[1][1]));
    vw c3 = rows.low_a;
    EACH(i, ATTN_PHILOX_ROUNDS - 2) {
        const vw low_a = w_low(c0, ATTN_PHILOX_A), high_a = w_high(c0, ATTN_PHILOX_A);
        const vw low_b = w_low(c2, ATTN_PHILOX_B), high_b = w_high(c2, ATTN_PHILOX_B);
        c0 = w_xor(high_b, c1, w_set1(of->round_keys[i + 2][0]));
        c1 = low_b;
        c2 = w_xor(high_a, c3, w_set1(of->round_keys[i + 2][1]));
        c3 = low_a;
    }
    return c0;
}

static void isa(drop)(float *p, int n, const attn_drop *of)
{
    const vf dead = v_set1(of->dead);
    int v, j;
    for (v = 0; v < ROWS; v += VL) {
        const isa(drop_lanes) rows = isa(drop_rows)(of, v);
        const attn_drop *d = of;
        float *row = p + v;
        for (j = 0; j < n; j++, row += ROWS) {
            vw word;
            HIDE(d); /* Otherwise compilers keep 20 vectors of keys on the stack. */
            word = isa(philox)(d, rows, of->first_n + (uint32_t)j * of->step);
            v_store(row, v_select(w_below(word, of->below), dead, v_load(row)));
        }
    }
}

/* ---- what changes a logit */

/* tanh of docs/canon.md: an odd polynomial below 0.625, 1 - 2 / (e^2|x| + 1) from there. */
INLINE vf isa(tanh)(vf x)
{
    const vf magnitude = v_max(x, v_sub(v_zero(), x)); /* NaN stays NaN */
    const vf c = v_select(v_gt(magnitude, v_set1(10.0f)), v_set1(10.0f), magnitude);
    const vf u = v_mul(c, c);
    vf r = v_fma(v_set1(-0x1.75e1cap-8f), u, v_set1(0x1.52269cp-6f)), small, large;
    r = v_fma(r, u, v_set1(-0x1.b83c5ap-5f));
    r = v_fma(r, u, v_set1(0x1.110726p-3f));
    r = v_fma(r, u, v_set1(-0x1.555532p-2f));
    small = v_fma(v_mul(u, c), r, c);
    large = isa(exp2)(v_mul(c, v_set1(0x1.715476p+1f)));
    large = v_div(v_set1(2.0f), v_add(large, v_set1(1.0f)));
    large = v_sub(v_set1(1.0f), large);
    return v_copysign(v_select(v_lt(c, v_set1(0.625f)), small, large), x);
}

static void isa(softcap)(float *s, int n, float cap2, float icap2)
{
    int k;
    for (k = 0; k < n * ROWS; k += VL)
        v_store(s + k, v_mul(v_set1(cap2), isa(tanh)(v_mul(v_load(s + k), v_set1(icap2)))));
}

static void isa(add_distances)(float *s, const int *from, const float *factor, int n)
{
    int j;
    for (j = 0; j < n; j++, s += ROWS)
        EACH(v, NV) {
            const vf distance = v_distance(from + v * VL, j);
            v_store(s + v * VL, v_fma(distance, v_load(factor + v * VL), v_load(s + v * VL)));
        }
}

static void isa(add_rows)(float *s, const float *const *x, float factor, int n)
{
    const vf scale = v_set1(factor);
    float rest[VL * VL];
    int v, j, i;
    for (v = 0; v < ROWS; v += VL)
        for (j = 0; j < n; j += VL) {
            const int count = n - j < VL ? n - j : VL;
            float *row = s + j * ROWS + v;
            vf y[VL];
            for (i = 0; i < VL && count < VL; i++)
                memcpy(rest + i * VL, x[v + i] + j, (size_t)count * sizeof *rest);
            EACH(l, VL)
                y[l] = v_load(count < VL ? rest + l * VL : x[v + l] + j);
            v_transpose(y);
            EACH(l, VL) {
                if (l < count) {
                    const vf sum = v_fma(y[l], scale, v_load(row + l * ROWS));
                    v_store(row + l * ROWS,
                            v_select(v_eq(y[l], NEGATIVE_INFINITY), NEGATIVE_INFINITY, sum));
                }
            }
        }
}

/* ---- packing, merging, results */

/* Defines isa(name) for n numbers: whole vectors, and a last one by way of a buffer. */
#define CONVERT(name, to_type, from_type, convert)                                                 \
    static void isa(name)(to_type * to, const from_type *from, int64_t n)                          \
    {                                                                                              \
        to_type out[VL];                                                                           \
        from_type in[VL] = { 0 };                                                                  \
        for (; n >= VL; n -= VL, to += VL, from += VL)                                             \
            convert(to, from);                                                                     \
        if (n) {                                                                                   \
            memcpy(in, from, (size_t)n * sizeof *in);                                              \
            convert(out, in);                                                                      \
            memcpy(to, out, (size_t)n * sizeof *out);                                              \
        }                                                                                          \
    }
#define FROM_F16(to, from) v_store(to, v_f16(from))
#define FROM_BF16(to, from) v_store(to, v_bf16(from))
#define TO_F16(to, from) v_to_f16(to, v_load(from))
#define TO_BF16(to, from) v_to_bf16(to, v_load(from))
CONVERT(widen_f16, float, uint16_t, FROM_F16)
CONVERT(widen_bf16, float, uint16_t, FROM_BF16)

#define FROM_E4M3(to, from) v_store(to, v_e4m3(from))
#define FROM_E5M2(to, from) v_store(to, v_e5m2(from))
CONVERT(widen_e4m3, float, uint8_t, FROM_E4M3)
CONVERT(widen_e5m2, float, uint8_t, FROM_E5M2)

/* A unit of 32 numbers: whole ones, times the scale with which it begins. */
INLINE void isa(scale_unit)(float *to, const int8_t *q, const uint8_t *unit)
{
    uint16_t scale, all[VL];
    vf d;
    int i;
    memcpy(&scale, unit, sizeof scale);
    EACH(l, VL)
        all[l] = scale;
    d = v_f16(all);
    for (i = 0; i < UNIT_NUMBERS; i += VL)
        v_store(to + i, v_mul(d, v_i8(q + i)));
}

static void isa(widen_q8_0)(float *to, const uint8_t *from, int64_t n)
{
    for (; n > 0; n -= UNIT_NUMBERS, to += UNIT_NUMBERS, from += 34)
        isa(scale_unit)(to, (const int8_t *)from + 2, from);
}

/* 16 in byte i where bit i of x is set. The bytes of the mask lie in memory as those of the result do. */
INLINE void isa(spread_bits)(uint8_t *to, uint8_t x)
{
    static const uint8_t bit[8] = { 1, 2, 4, 8, 16, 32, 64, 128 };
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t mask;
    memcpy(&mask, bit, sizeof mask);
    mask &= x * UINT64_C(0x0101010101010101);
    mask = (((mask & low) + low) | mask) >> 3 & UINT64_C(0x1010101010101010);
    memcpy(to, &mask, sizeof mask);
}

static void isa(widen_q5_0)(float *to, const uint8_t *from, int64_t n)
{
    uint8_t upper[UNIT_NUMBERS];
    int8_t q[UNIT_NUMBERS];
    int i;
    for (; n > 0; n -= UNIT_NUMBERS, to += UNIT_NUMBERS, from += 22) {
        EACH(k, 4)
            isa(spread_bits)(upper + 8 * k, from[2 + k]);
        for (i = 0; i < UNIT_NUMBERS / 2; i++) {
            q[i] = (int8_t)((from[6 + i] & 15) + upper[i] - 16);
            q[i + 16] = (int8_t)((from[6 + i] >> 4) + upper[i + 16] - 16);
        }
        isa(scale_unit)(to, q, from);
    }
}

static void isa(widen_q4_0)(float *to, const uint8_t *from, int64_t n)
{
    int8_t q[UNIT_NUMBERS];
    int i;
    for (; n > 0; n -= UNIT_NUMBERS, to += UNIT_NUMBERS, from += 18) {
        for (i = 0; i < UNIT_NUMBERS / 2; i++) {
            q[i] = (int8_t)((from[2 + i] & 15) - 8);
            q[i + 16] = (int8_t)((from[2 + i] >> 4) - 8);
        }
        isa(scale_unit)(to, q, from);
    }
}

/* Scales that do not lie one after the other, nor are one, have no vectors. */
static void isa(widen_i8)(float *to, const int8_t *from, const float *scale, int64_t step,
                          int64_t n)
{
    const vf one = v_set1(*scale);
    int64_t d = 0;
    for (; step == 0 && d + VL <= n; d += VL)
        v_store(to + d, v_mul(v_i8(from + d), one));
    for (; step == 1 && d + VL <= n; d += VL)
        v_store(to + d, v_mul(v_i8(from + d), v_load(scale + d)));
    for (; d < n; d++)
        to[d] = (float)from[d] * scale[d * step];
}
CONVERT(narrow_f16, uint16_t, float, TO_F16)
CONVERT(narrow_bf16, uint16_t, float, TO_BF16)

static void isa(pack)(float *qt, const float *const *q, int64_t head_dim)
{
    int64_t d;
    int r, v;
    for (v = 0; v < NV; v++) {
        const float *const *from = q + v * VL;
        for (d = 0; d + VL <= head_dim; d += VL) {
            vf square[VL];
            EACH(i, VL)
                square[i] = v_load(from[i] + d);
            v_transpose(square);
            EACH(i, VL)
                v_store(qt + (d + i) * ROWS + v * VL, square[i]);
        }
        for (; d < head_dim; d++)
            for (r = 0; r < VL; r++)
                memcpy(qt + d * ROWS + v * VL + r, from[r] + d, sizeof *qt); /* It may be bytes. */
    }
}

/* ---- Q K^T of whole numbers */

/* Queries are packed as words, [words][rows], of 4 bytes or, where CPUs multiply none, of 2 numbers of
 * 16 bits: of a unit eight words of bytes 0 and 2 of four, then those of bytes 1 and 3. Behind the half
 * of head_dim lies for each unit and row what a sum begins with where keys are 128 higher, since i_dot may
 * take their bytes for unsigned ones. An eighth of it is for keys that are RAISED by 16. */
#define UNIT_KEYS 4
#define WORDS(dots) ((dots) ? 8 : 8 * I_PARTS)
#define TURNS(dots) ((dots) && I_TURNED != 0)
#define I_DOT(dots, sum, k, q) ((dots) ? i_dot(sum, k, q) : i_sum(sum, k, q))
#ifndef HAS_MATRICES
#define HAS_MATRICES 0
#define i_matrices(width, nv, q, rows, unit, sums) ((void)(sums)) /* never called */
#endif

/* [head_dim / 4][rows] of bytes become twice as many words. The last come first, as they move up. */
static void isa(split_words)(float *x, int64_t head_dim)
{
    int64_t d;
    for (d = head_dim / 4 - 8; d >= 0; d -= 8)
        EACH(v, NV) {
            float *const from = x + d * ROWS + v * VL, *const to = from + d * ROWS;
            vi word[8];
            EACH(i, 8)
                word[i] = i_load(from + i * ROWS);
            EACH(i, 8)
                EACH(e, 2)
                    i_store(to + (8 * e + i) * ROWS, i_part(word[i], e));
        }
}

/* to[unit][lane] = what a sum begins with for keys that are 128 higher. */
static void isa(begin_sums)(float *to, const float *words, int64_t head_dim)
{
    const vi turned = (vi)((isa(wholes))i_zero() + ALL_BYTES(0x80)); /* -128 as signed bytes */
    int64_t t;
    EACH(v, NV) {
        vi sum = i_zero();
        for (t = 0; t < head_dim / 4; t++) {
            const vi x = i_load(words + t * ROWS + v * VL);
            EACH(e, I_PARTS)
                sum = i_sum(sum, i_part(turned, e), i_part(x, e));
            if (t % WORDS(1) < WORDS(1) - 1)
                continue;
            i_store(to + t / WORDS(1) * ROWS + v * VL, sum);
            sum = i_zero();
        }
    }
}

/* Rows of bytes first lie behind the half of `to`. Four bytes then move as one float does. */
static void isa(pack_units)(float *to, const float *const *q, int64_t head_dim)
{
    float *const half = to + head_dim / 2 * ROWS;
    const float *rows[ROWS];
    int64_t d;
    int r;
    for (r = 0; r < ROWS; r++) {
        int8_t *const row = (int8_t *)(void *)half + r * head_dim;
        for (d = 0; d < head_dim; d += VL)
            EACH(i, VL)
                row[d + i] = (int8_t)(int)q[r][d + i];
        rows[r] = (const float *)(const void *)row;
    }
    isa(pack)(to, rows, head_dim / 4);
    isa(begin_sums)(half, to, head_dim);
    if (!HAS_DOTS && I_PARTS == 2)
        isa(split_words)(to, head_dim);
}

/* A simd_units is a unit of the queries, from a lane on. */
typedef struct isa(units)
{
    const float *words, *begin; /* as bits */
    const float *scales;
}
isa(units);

INLINE isa(units) isa(units_of)(int dots, const attn_product *p, int64_t u, int first)
{
    const float *const begin = p->by + p->dim / 2 * ROWS;
    const isa(units) q = {
        p->by + u * WORDS(dots) * ROWS + first,
        begin + u * ROWS + first,
        p->scales + u * ROWS + first,
    };
    return q;
}

/* sums[i][v] of four keys and `width` vectors of lanes. */
INLINE void isa(unit_sums)(int dots, int width, const isa(units) * q, const char *const *unit,
                           vf (*sums)[NV])
{
    float k[UNIT_KEYS][WORDS(0)];
    vi sum[UNIT_KEYS][NV];
    int t;
    EACH(i, UNIT_KEYS) {
        put_words(WORDS(dots) == 8, I_TURNED, k[i], unit[i] + 2);
        EACH(v, width)
            sum[i][v] = TURNS(dots) ? i_load(q->begin + v * VL) : i_zero();
    }
    ROLLED
    for (t = 0; t < WORDS(dots); t++) {
        EACH(i, UNIT_KEYS) {
            const vi a = i_set1(k[i] + t);
            EACH(v, width) {
                sum[i][v] = I_DOT(dots, sum[i][v], a, i_load(q->words + t * ROWS + v * VL));
                PIN(sum[i][v]);
                if (!dots)
                    BARRIER;
            }
        }
    }
    EACH(i, UNIT_KEYS)
        EACH(v, width)
            sums[i][v] = i_floats(sum[i][v]);
}

/* How units are multiplied: by parts of words, by words, or as matrices. */
#define BY_MATRICES 2

/* The logits of four keys in `width` vectors of lanes. */
INLINE void isa(unit_rows)(int way, int width, const attn_product *p, const char *const *row,
                           int first, float *s)
{
    vf chain[UNIT_KEYS][NV], sums[UNIT_KEYS][NV];
    const char *unit[UNIT_KEYS];
    int64_t u;
    EACH(i, UNIT_KEYS) {
        unit[i] = row[i];
        EACH(v, width)
            chain[i][v] = v_zero();
    }
    for (u = 0; u < p->dim / UNIT_NUMBERS; u++) {
        const isa(units) q = isa(units_of)(way, p, u, first);
        if (way == BY_MATRICES)
            i_matrices(width, NV, q.words, ROWS, unit, *sums);
        else
            isa(unit_sums)(way, width, &q, unit, sums);
        EACH(i, UNIT_KEYS) {
            const vf scale = v_scale(unit[i]);
            EACH(v, width)
                chain[i][v] =
                    v_fma(sums[i][v], v_mul(v_load(q.scales + v * VL), scale), chain[i][v]);
            unit[i] += UNIT_BYTES(ATTN_Q8_0);
        }
    }
    EACH(i, UNIT_KEYS)
        EACH(v, width)
            v_store(s + i * ROWS + first + v * VL, v_mul(chain[i][v], v_set1(p->factor)));
}

/* Each a function of its own: its loop has all registers. */
#define TARGET_OF(way) SIMD_JOIN(TARGET, way)
#define TARGET_0
#ifndef TARGET_1
#define TARGET_1
#endif
#ifndef TARGET_2
#define TARGET_2
#endif
#define UNIT_ROWS(name, way, width)                                                                \
    TARGET_OF(way)                                                                                 \
    OUTLINE void isa(name)(const attn_product *p, const char *const *row, int first, float *s)     \
    {                                                                                              \
        isa(unit_rows)(way, width, p, row, first, s);                                              \
    }
UNIT_ROWS(any_one, 0, 1)
UNIT_ROWS(any_all, 0, NV)
UNIT_ROWS(dots_one, 1, 1)
UNIT_ROWS(dots_all, 1, NV)
UNIT_ROWS(matrices_one, 2, 1)
UNIT_ROWS(matrices_all, 2, NV)
#define UNIT_ROWS_BY(name) (whole ? isa(name##_all) : isa(name##_one))

/* Behind the last key comes the first of the four again, and its logits go nowhere. */
INLINE void isa(units_many)(const attn_product *p, const char *row, float *to, int n)
{
    const int whole = p->lanes.begin < VL && p->lanes.end > ROWS - VL, step = whole ? ROWS : VL;
    void (*const one)(const attn_product *, const char *const *, int, float *) =
        HAS_MATRICES ? UNIT_ROWS_BY(matrices)
        : HAS_DOTS   ? UNIT_ROWS_BY(dots)
                     : UNIT_ROWS_BY(any);
    int j, first;
    for (j = 0; j < n; j += UNIT_KEYS) {
        float rest[UNIT_KEYS * ROWS];
        const char *rows[UNIT_KEYS];
        const int keys = n - j < UNIT_KEYS ? n - j : UNIT_KEYS;
        float *const s = keys < UNIT_KEYS ? rest : to + j * ROWS;
        EACH(i, UNIT_KEYS)
            rows[i] = row + (j + (i < keys ? i : 0)) * p->runs->stride;
        if (!whole) /* 70 cycles where that is a string instruction */
            memset(s, 0, UNIT_KEYS * ROWS * sizeof *s); /* for the other lanes */
        isa(ask)(p->ahead);
        for (first = whole ? 0 : p->lanes.begin / VL * VL; first < p->lanes.end; first += step)
            one(p, rows, first, s);
        if (keys < UNIT_KEYS)
            memcpy(to + j * ROWS, rest, (size_t)(keys * ROWS) * sizeof *rest);
    }
}

#ifdef FEW
#ifndef HAS_TABLES
#define HAS_TABLES 0
#endif
/* 16 bytes of a unit of each of a vector of keys, turned: x[i] has word i of every key. */
typedef struct isa(turned)
{
    vf x[4];
    isa(wholes) upper; /* of q5_0 the upper bits of the unit */
}
isa(turned);

/* The bytes of half h of a unit. Keys 0, 4, ... are at from[0], from[1], ... Numbers of four bits come with
 * the first half. */
INLINE void isa(turn_half)(int dtype, int h, const char *const *from, ptrdiff_t step,
                           isa(turned) * t)
{
    const int at = LOWER(dtype) + (dtype == ATTN_Q8_0 ? UNIT_HALF * h : 0);
    if (h && dtype != ATTN_Q8_0)
        return;
    if (dtype == ATTN_Q5_0) {
        EACH(i, 4)
            t->x[i] = v_quarters(from, i * step + 2);
        v_squares(t->x);
        t->upper = (isa(wholes))v_int(t->x[0]);
    }
    EACH(i, 4)
        t->x[i] = v_quarters(from, i * step + at);
    v_squares(t->x);
}

/* The numbers 16 h + 4 i and the next three of each key as bytes: signed ones of q8_0, else RAISED. */
INLINE isa(wholes) isa(word_of)(int dtype, int h, int i, const isa(turned) * t)
{
    isa(wholes) x = (isa(wholes))v_int(t->x[i]), bits;
    if (dtype == ATTN_Q8_0)
        return x;
    x = x >> 4 * h & ALL_BYTES(15u);
    if (dtype == ATTN_Q4_0)
        return x;
    bits = (i || h ? t->upper >> (UNIT_HALF * h + 4 * i - 4) : t->upper << 4) & 0xf0;
    bits |= bits << 14; /* Bit 4 + b goes to byte b: */
    bits |= bits << 7;
    return x | (bits & ALL_BYTES(16u));
}

/* Sums of a vector of keys for each of few lanes. */
INLINE void isa(few_sums)(int dots, int dtype, int rows, const isa(units) * q,
                          const char *const *from, ptrdiff_t step, vf *sums)
{
    const int turns = TURNS(dots) && dtype == ATTN_Q8_0;
    isa(turned) t;
    vi sum[FEW];
    EACH_OF(r, 8, rows) {
        const isa(integers) begin = (isa(integers))i_set1(q->begin + r); /* for 128 higher */
        sum[r] = dtype == ATTN_Q5_0   ? (vi)(begin >> 3)
                 : dtype == ATTN_Q4_0 ? (vi)(begin >> 4)
                 : turns              ? (vi)begin
                                      : i_zero();
    }
    EACH(h, 2) {
        isa(turn_half)(dtype, h, from, step, &t);
        EACH(i, 4) {
            const vi word = (vi)isa(word_of)(dtype, h, i, &t);
            EACH_OF(e, 2, WORDS(dots) / 8) {
                const vi k = !dots ? i_part(word, e) : turns ? i_turn(word) : word;
                const float *const words = q->words + (8 * e + 4 * h + i) * ROWS;
                EACH_OF(r, 8, rows) {
                    sum[r] = I_DOT(dots, sum[r], k, i_set1(words + r));
                    PIN(sum[r]);
                }
            }
        }
    }
    EACH_OF(r, 8, rows)
        sums[r] = i_floats(sum[r]);
}

/* 2^24 times number 16 h + 4 i + e of each key: what its byte is as the upper one of a word, where its sign
 * is in place. */
INLINE vf isa(raised_number)(int dtype, int h, int i, int e, const isa(turned) * t)
{
    const isa(wholes) word = isa(word_of)(dtype, h, i, t), none = { 0 };
    const isa(octets) raised = (isa(octets))(none + ALL_BYTES((uint32_t)RAISED(dtype)));
    const isa(wholes) bytes = dtype == ATTN_Q8_0 ? word : (isa(wholes))((isa(octets))word - raised);
    const vf times = v_set1(0x1p24f);
    if (HAS_TABLES && dtype == ATTN_Q5_0)
        return v_five((vi)(word >> 8 * e), times);
    if (HAS_TABLES && dtype == ATTN_Q4_0)
        return v_four((vi)(word >> 8 * e), times);
    return i_floats((vi)(bytes << (24 - 8 * e) & 0xff000000u));
}

/* The chains of few lanes go on over a unit of `vectors` of keys, the numbers of which become f32. */
INLINE void isa(few_floats)(int dtype, int rows, int vectors, const float *q,
                            const char *const *from, ptrdiff_t step, const vf *scales,
                            vf (*chain)[FEW])
{
    isa(turned) t[2];
    vf by[2], k[2];
    EACH_OF(g, 2, vectors)
        by[g] = v_mul(scales[g], v_set1(0x1p-24f));
    EACH(h, 2) {
        EACH_OF(g, 2, vectors)
            isa(turn_half)(dtype, h, from + g * QUARTERS, step, &t[g]);
        EACH(i, 4)
            EACH(e, 4) {
                EACH_OF(g, 2, vectors)
                    k[g] = v_mul(isa(raised_number)(dtype, h, i, e, &t[g]), by[g]);
                EACH_OF(r, 8, rows) {
                    const vf a = v_set1(q[r]);
                    EACH_OF(g, 2, vectors)
                        chain[g][r] = v_fma(a, k[g], chain[g][r]);
                }
                q += ROWS;
            }
    }
}

/* How few lanes multiply keys: in whole numbers, by 8 or 16 bits, or in f32. */
#define IN_FLOATS 2

/* Scales of units that are read in one go. Through memory they take a load and a store each: a vector of
 * them in registers would take several shuffles, of which products have enough. */
#define SCALES 4

/* to[u][l] is the scale of unit u of row l, of up to SCALES units; behind the last one it again. */
INLINE void isa(get_scales)(int dtype, int vectors, uint16_t (*to)[2 * VL], const char *row,
                            ptrdiff_t step, int64_t units)
{
    ptrdiff_t at[SCALES];
    int l;
    EACH(u, SCALES)
        at[u] = (ptrdiff_t)((u < units ? u : units - 1) * UNIT_BYTES(dtype));
    ROLLED
    for (l = 0; l < vectors * VL; l++, row += step)
        EACH(u, SCALES)
            memcpy(&to[u][l], row + at[u], sizeof to[u][l]);
}

/* Vectors of keys that go together: the chains of one do not cover the latency of their multiply-adds. */
#define VECTORS_OF(way) ((way) == IN_FLOATS && BLOCK_V > 1 ? 2 : 1)

/* These vectors of keys, lanes at..at+rows-1. */
INLINE void isa(few_units)(int way, int dtype, int rows, const attn_product *p, const char *row,
                           float *s)
{
    const ptrdiff_t step = p->runs->stride;
    const int64_t units = p->dim / UNIT_NUMBERS;
    const int at = attn_first_lane(p->lanes), vectors = VECTORS_OF(way);
    const char *from[4];
    float *to[4];
    vf chain[2][FEW], sums[FEW];
    uint16_t half[SCALES][2 * VL];
    int64_t u;
    EACH(i, 4) {
        from[i] = row + 4 * (i % (vectors * QUARTERS)) * step;
        to[i] = s + 4 * i * ROWS;
    }
    EACH_OF(g, 2, vectors)
        EACH_OF(r, 8, rows)
            chain[g][r] = v_zero();
    for (u = 0; u < units; u++) {
        vf scales[2];
        if (u % SCALES == 0)
            isa(get_scales)(dtype, vectors, half, row + u * UNIT_BYTES(dtype), step, units - u);
        EACH_OF(g, 2, vectors)
            scales[g] = v_f16(half[u % SCALES] + g * VL);
        if (way == IN_FLOATS)
            isa(few_floats)(dtype, rows, vectors, p->by + u * UNIT_NUMBERS * ROWS + at, from, step,
                            scales, chain);
        else {
            const isa(units) q = isa(units_of)(way, p, u, at);
            isa(few_sums)(way, dtype, rows, &q, from, step, sums);
            EACH_OF(r, 8, rows)
                chain[0][r] = v_fma(sums[r], v_mul(v_set1(q.scales[r]), *scales), chain[0][r]);
        }
        EACH(i, 4)
            from[i] += UNIT_BYTES(dtype);
    }
    EACH_OF(g, 2, vectors) {
        EACH(r, FEW)
            sums[r] = r < rows ? v_mul(chain[g][r], v_set1(p->factor)) : v_zero();
        isa(put_logits)(rows, at, to + g * QUARTERS, ROWS, sums);
    }
}

#define FEW_UNITS(name, target, way, dtype, rows)                                                  \
    target OUTLINE void isa(name)(const attn_product *p, const char *row, float *s)                \
    {                                                                                              \
        isa(few_units)(way, dtype, rows, p, row, s);                                               \
    }
#define FEW_UNITS_OF(name, target, way, dtype)                                                     \
    FEW_UNITS(name##_1, target, way, dtype, 1)                                                     \
    FEW_UNITS(name##_2, target, way, dtype, 2)                                                     \
    FEW_UNITS(name##_4, target, way, dtype, 4)                                                     \
    OF_MOST(FEW_UNITS(name##_most, target, way, dtype, FEW))
#define FEW_UNITS_IN(name, target, way)                                                            \
    FEW_UNITS_OF(name##_q8_0, target, way, ATTN_Q8_0)                                              \
    FEW_UNITS_OF(name##_q5_0, target, way, ATTN_Q5_0)                                              \
    FEW_UNITS_OF(name##_q4_0, target, way, ATTN_Q4_0)
#define WAYS_IN(name)                                                                              \
    {                                                                                              \
        WAYS(name##_q8_0), WAYS(name##_q5_0), WAYS(name##_q4_0)                                    \
    }
FEW_UNITS_IN(few_any, TARGET_0, 0)
FEW_UNITS_IN(few_dots, TARGET_1, 1)
FEW_UNITS_IN(few_floats, TARGET_0, IN_FLOATS)

/* The whole vectors among n keys that lie evenly from `row` on, into s; returns how many keys that are. */
INLINE int isa(units_few)(int way, const attn_product *p, const char *row, float *s, int n)
{
    static void (*const ways[3][3][4])(const attn_product *, const char *,
                                       float *) = { WAYS_IN(few_any), WAYS_IN(few_dots),
                                                    WAYS_IN(few_floats) };
    const int rows = isa(rows_of)(p->lanes), keys = VECTORS_OF(way) * VL;
    int j;
    for (j = 0; j + keys <= n && rows; j += keys) {
        isa(ask)(p->ahead);
        ways[way][p->runs->dtype - ATTN_Q8_0][isa(way_of)(rows)](p, row + j * p->runs->stride,
                                                                 s + j * ROWS);
    }
    return j;
}

/* Units as they lie, run by run. */
INLINE void isa(few_unit_runs)(int way, const attn_product *p)
{
    simd_place place = { p->runs->run, *p->runs->run, p->runs->first };
    int j, count;
    isa(pace)(p->ahead, p->n / (VECTORS_OF(way) * VL));
    for (j = 0; j < p->n; j += count) {
        count = place.left < p->n - j ? (int)place.left : p->n - j;
        isa(units_few)(way, p, isa(take_rows)(&place, p->runs, count), p->to + j * ROWS, count);
    }
    isa(pace)(p->ahead, 1);
    isa(ask)(p->ahead);
}

static void isa(qk_runs)(const attn_product *p)
{
    if (IN_UNITS(p->runs->dtype))
        isa(few_unit_runs)(IN_FLOATS, p);
    else
        isa(qk_number_runs)(p);
}

static void isa(qk_units_runs)(const attn_product *p)
{
    isa(few_unit_runs)(HAS_DOTS != 0, p);
}
#else
INLINE int isa(units_few)(int way, const attn_product *p, const char *row, float *s, int n)
{
    (void)way, (void)p, (void)row, (void)s, (void)n;
    return 0;
}
#endif

static void isa(qk_units)(const attn_product *p)
{
    const char *row = *p->runs->run;
    int keys;
    isa(pace)(p->ahead, (p->n + UNIT_KEYS - 1) / UNIT_KEYS);
    keys = isa(units_few)(HAS_DOTS != 0, p, row, p->to, p->n);
    isa(units_many)(p, row + keys * p->runs->stride, p->to + keys * ROWS, p->n - keys);
    isa(pace)(p->ahead, 1);
    isa(ask)(p->ahead);
}

static void isa(merge)(float *a, float *b, int64_t head_dim_v)
{
    int64_t d;
    EACH(v, NV) {
        float *lower = a + v * VL, *upper = b + v * VL;
        const vf ma = v_load(lower), mb = v_load(upper);
        const vf m = v_max(ma, mb);
        const vf from = isa(origin)(m);
        const vf wa = isa(exp2)(v_sub(ma, from)), wb = isa(exp2)(v_sub(mb, from));
        v_store(upper, m);
        for (d = 0; d <= head_dim_v; d++) { /* l, then o */
            lower += ROWS;
            upper += ROWS;
            v_store(upper, v_fma(v_load(upper), wb, v_mul(v_load(lower), wa)));
        }
    }
}

static void isa(result)(float *const *out, const float *o, const float *l, float factor,
                        int64_t head_dim_v)
{
    int64_t d;
    int v;
    for (v = 0; v < NV; v++) {
        const vf sum = v_load(l + v * VL), one = v_set1(1.0f), nan = isa(bits)(0x7fc00000u);
        const vm empty = v_eq(sum, v_zero());
        vf r = v_select(empty, one, sum);
        float *const *to = out + v * VL;
        PIN(r); /* clang else divides before it selects: 1 / 0 would raise a flag */
        r = v_mul(v_div(one, r), v_set1(factor));
        for (d = 0; d < head_dim_v; d += VL) {
            const int count = head_dim_v - d < VL ? (int)(head_dim_v - d) : VL;
            vf square[VL];
            float piece[VL];
            EACH(i, VL) {
                const float *row = o + (d + (i < count ? i : 0)) * ROWS + v * VL;
                vf x = v_add(v_mul(v_load(row), r), v_zero()); /* -0 becomes +0 */
                x = v_select(v_nan(x), nan, x);
                square[i] = v_select(empty, v_zero(), x);
            }
            v_transpose(square);
            if (count == VL) {
                EACH(i, VL)
                    v_store(to[i] + d, square[i]);
            } else {
                EACH(i, VL) {
                    v_store(piece, square[i]);
                    memcpy(to[i] + d, piece, (size_t)count * sizeof *piece);
                }
            }
        }
    }
}

/* ---- gradients */

static void isa(gradient)(float *s, float *dp, int n, const attn_row_stats *of)
{
    const vf minus = isa(bits)(0x80000000u), most = v_set1(of->most);
    int j;
    EACH(v, NV) {
        const vf m = v_load(of->m + v * VL), less = v_load(of->delta + v * VL);
        const float *const r = of->r + v * VL; /* 16 registers are full without r. */
        float *s_row = s + v * VL, *dp_row = dp + v * VL;
        for (j = 0; j < n; j++, s_row += ROWS, dp_row += ROWS) {
            const vf logit = v_load(s_row), x = v_sub(logit, m);
            const vm dead = v_eq(logit, NEGATIVE_INFINITY);
            const vf p = v_mul(isa(exp2)(v_select(v_gt(x, most), most, x)), v_load(r));
            const vf ds = v_mul(p, v_sub(v_load(dp_row), less));
            v_store(s_row, v_select(dead, minus, p));
            v_store(dp_row, v_select(dead, minus, ds));
        }
    }
}

static void isa(softcap_gradient)(float *ds, const float *t, const float *p, int n)
{
    const vf minus = isa(bits)(0x80000000u), one = v_set1(1.0f);
    int k;
    for (k = 0; k < n * ROWS; k += VL) {
        const vf x = v_load(t + k);
        const vf y = v_mul(v_load(ds + k), v_fma(v_sub(v_zero(), x), x, one));
        v_store(ds + k, v_dead(v_load(p + k), minus, y));
    }
}

/* `count` keys from `key` on and w.width vectors of columns from `column` on: all terms. */
INLINE void isa(outer_tile)(simd_way w, int count, const attn_outer *f, int key, int64_t column)
{
    const attn_term *term = f->term;
    const ptrdiff_t stride = f->stride, b_stride = f->b_stride;
    float *c = f->to + key * stride + column;
    vf acc[MAX_CHAINS][NV];
    int g, t;
    EACH(i, count)
        EACH(v, w.width)
            acc[i][v] = v_load(c + i * stride + v * VL);
    for (g = 0; g < f->count; g++, term++) {
        const float *x = term->x + key * ROWS + term->lanes.begin;
        const float *b = term->b + term->lanes.begin * b_stride + column;
        if (key >= term->end || key + count <= term->begin)
            continue;
        TWICE
        for (t = term->lanes.begin; t < term->lanes.end; t++, x++, b += b_stride)
            isa(step)(w, count, acc, x, ROWS, b);
    }
    EACH(i, count)
        EACH(v, w.width)
            v_store(c + i * stride + v * VL, acc[i][v]);
}

/* All keys, w.width vectors of columns. */
INLINE void isa(outer_columns)(simd_way w, const attn_outer *f, int64_t column)
{
    int i;
    for (i = 0; i + CHAINS(w) <= f->n; i += CHAINS(w))
        isa(outer_tile)(w, CHAINS(w), f, i, column);
    for (; i < f->n; i++)
        isa(outer_tile)(w, 1, f, i, column);
}

#define OUTER_COLUMNS(w) isa(outer_columns)((simd_way){ .width = (w), .select = select }, f, at)

/* The columns in pieces as equal as possible, each at most NV vectors wide. */
INLINE void isa(outer_pieces)(int select, const attn_outer *f)
{
    int64_t left = (f->columns + VL - 1) / VL, at = 0, width;
    for (; left > 0; left -= width, at += width * VL) {
        const int64_t pieces = (left + NV - 1) / NV;
        width = (left + pieces - 1) / pieces;
        BY_WIDTH(width, OUTER_COLUMNS);
    }
}

static void isa(outer)(const attn_outer *f)
{
    isa(outer_pieces)(0, f);
}

static void isa(outer_select)(const attn_outer *f)
{
    isa(outer_pieces)(DEAD_X, f);
}

static void isa(dots)(float *to, const float *a, const float *b, int64_t dim)
{
    vf sum[NV];
    int64_t d;
    EACH(v, NV)
        sum[v] = v_zero();
    for (d = 0; d < dim; d++, a += ROWS, b += ROWS)
        EACH(v, NV)
            sum[v] = v_fma(v_load(a + v * VL), v_load(b + v * VL), sum[v]);
    EACH(v, NV)
        v_store(to + v * VL, sum[v]);
}

#define ENTRY(result, kernel, parameters, arguments) .kernel = isa(kernel),
static const attn_kernels isa(kernels) = { .abi = ATTN_KERNEL_ABI,
                                           .rows = ROWS,
                                           .name = ISA_NAME,
                                           ATTN_SET_KERNELS(ENTRY)
#ifdef FEW
                                               .few = FEW,
                                           ATTN_FEW_KERNELS(ENTRY)
#endif
};
#undef FEW
#undef OF_MOST

#endif
