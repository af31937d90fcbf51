/* attn_simd.h - the vector kernels, written once. An ISA file (attn_simd_avx2.c, ...) includes this
 * file, defines the operations below, and includes it again, which gives the table kernels_ISA.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
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
 *   v_max(a, b)    a > b ? a : b, so that a NaN gives b
 *   v_gt v_lt v_eq(a, b)  ordered;  v_nan(x)  unordered with itself
 *   v_select(m, a, b)     m ? a : b;  vm_and(m, n);  vm_any(m);  vm_all(m)
 *   v_pow2(y, t)   the bits of y plus the bits of t shifted left by 23, modulo 2^32
 *   v_dead(b, x, y)       b is -0, by its bits, ? x : y
 *   v_copysign(x, s)      x >= +0 with the sign bit of s
 *   v_larger(a, x)        the larger of a and |x| as bit patterns, a >= +0: a NaN is the largest
 *   v_ints(p) v_bytes(p)  VL int or uint8_t as floats
 *   v_f16(p) v_bf16(p)    VL numbers of a 16-bit type; v_to_f16(p, x) v_to_bf16(p, x) store them,
 *                         to nearest even, NaN is 7fc00000, -0 becomes +0
 *   v_transpose(x) x[0..VL-1] as a square matrix, in place
 * For few rows (FEW, see there), vectors in 128-bit quarters, of which a vector of 4 has one:
 *   v_quarters(p, at)     4 floats each from p[0] + at, p[1] + at, ..., in bytes
 *   v_quarters_f16(p, at) v_quarters_bf16(p, at)   the same of 16-bit types
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

#ifndef ATTN_SIMD_H /* first inclusion: what the operations themselves are written with */
#define ATTN_SIMD_H

#include "attn.h"

/* src/seam.h - the seam: the table of kernels that every instruction set fills in.
 *
 * Kernels are leaf functions: no masks, no heads, no allocation. A tile has `rows` query rows, one per
 * lane, and n keys. Every matrix of a tile is lane-fastest, so that each lane is one independent row:
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
 */

#ifndef ATTN_SEAM_H /* attn.c and attn_simd.h both hold it */
#define ATTN_SEAM_H

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

#endif /* ATTN_SEAM_H */

#include <string.h>
#define SIMD_JOIN_(a, b) a##_##b
#define SIMD_JOIN(a, b) SIMD_JOIN_(a, b)
#define INLINE static inline __attribute__((always_inline))
#define OUTLINE static __attribute__((noinline)) /* its spilled registers use stack once */
#define PRAGMA_(x) _Pragma(#x)
#ifdef __clang__
#define UNROLL PRAGMA_(clang loop unroll(full))
#define TWICE /* it else leaves addresses of AVX2's loops on the stack */
#define ROLLED PRAGMA_(clang loop unroll(disable)) /* it else keeps spilled addresses */
#else
#define ROLLED
/* Two steps a round: beside a busy thread of the same core 8 to 13 % of the products' time. */
#define TWICE PRAGMA_(GCC unroll 2)
#define UNROLL PRAGMA_(GCC unroll 32) /* every loop over accumulators: else they live in memory */
#endif
/* Hides where an integer or pointer comes from: compilers else derive more of them than there are
 * registers. */
#define HIDE(x) __asm__("" : "+r"(x))

/* What a product has beside it: nothing, or exponentials with or without special cases. */
#define EXP_NONE 0
#define EXP_SAFE 1
#define EXP_CALM 2

#elif defined ISA /* further inclusions: the kernels */

#define FN(name) SIMD_JOIN(name, ISA)
#define ROWS (NV * VL)
#define EACH_V UNROLL for (v = 0; v < NV; v++)

/* A bit pattern that is no literal, in every lane. */
INLINE vf FN(bits)(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return v_set1(x);
}

#define NEGATIVE_INFINITY FN(bits)(0xff800000u)

/* 2^x for |x| <= 126: exp2 of docs/canon.md without its special cases. */
INLINE vf FN(exp2_calm)(vf x)
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
INLINE vf FN(exp2)(vf x)
{
    const vf lowest = v_set1(-126.0f);
    vf y = FN(exp2_calm)(v_max(x, lowest)); /* -inf would raise a flag there */
    y = v_select(v_lt(x, lowest), v_zero(), y);
    return v_select(v_nan(x), FN(bits)(0x7fffffffu), y);
}

/* What is subtracted from a row's logits: m, +0 where no logit came yet. */
INLINE vf FN(origin)(vf m)
{
    vf from = v_select(v_eq(m, NEGATIVE_INFINITY), v_zero(), m);
    PIN(from); /* clang else subtracts before it selects: -inf - -inf would raise a flag */
    return from;
}

/* ---- exponentials beside a product */

/* One key of attn_exp. l stays in memory: the accumulators of the product fill the registers. */
INLINE void FN(exp_key)(int calm, float *s, const float *m, float *l)
{
    int v;
    EACH_V {
        vf from = v_load(m + v * VL), p;
        if (!calm)
            from = FN(origin)(from);
        p = v_sub(v_load(s + v * VL), from);
        p = calm ? FN(exp2_calm)(p) : FN(exp2)(p);
        v_store(l + v * VL, v_add(v_load(l + v * VL), p));
        v_store(s + v * VL, p);
    }
}

/* Vectors that hold the lanes; the first of them at *at. */
INLINE int FN(width)(attn_lanes lanes, int *at)
{
    *at = lanes.begin / VL * VL;
    return (lanes.end - *at + VL - 1) / VL;
}

/* Keys from `from` on, alone. */
INLINE void FN(exp_keys)(int calm, const attn_exp *e, int from)
{
    int begin, v, j;
    const int end = FN(width)(e->lanes, &begin) * VL + begin;
    for (v = begin; v < end; v += VL) {
        const vf m = v_load(e->m + v);
        const vf top = calm ? m : FN(origin)(m);
        vf sum = v_load(e->l + v);
        float *s = e->s + from * ROWS + v;
        for (j = from; j < e->n; j++, s += ROWS) {
            const vf x = v_sub(v_load(s), top);
            const vf p = calm ? FN(exp2_calm)(x) : FN(exp2)(x);
            sum = v_add(sum, p);
            v_store(s, p);
        }
        v_store(e->l + v, sum);
    }
}

static void FN(exp_block)(const attn_exp *e)
{
    if (e->calm)
        FN(exp_keys)(1, e, 0);
    else
        FN(exp_keys)(0, e, 0);
}

/* A product asks for what it is told to ahead in `parts` goes: short ones, a burst of 16 lines
 * holds up its own loads (10 % of the time of few rows). */
INLINE void FN(pace)(attn_ahead *a, int64_t parts)
{
    if (a)
        a->each = (a->lines + parts - 1) / parts;
}

INLINE void FN(ask)(attn_ahead *a)
{
    int64_t n;
    if (!a)
        return;
    n = a->each < a->lines ? a->each : a->lines;
    a->lines -= n;
    ROLLED for (; n > 0; n--) {
        __builtin_prefetch(a->row + a->at, 0, 2);
        attn_next_line(a);
    }
}

/* ---- both matrix products */

/* Chains of one register tile that is `width` vectors wide: narrow ones get NARROW_CHAINS where
 * accumulators, loaded vectors and factor fit, so that the latency of the fused multiply-add stays
 * hidden; those that select, which is rare, get fewer, as they need registers for the masks. */
#define NARROW_CHAINS 8
#define MAX_CHAINS (MR > NARROW_CHAINS ? MR : NARROW_CHAINS)
#define MORE_FIT(width) ((width) < NV && (NARROW_CHAINS + 1) * (width) + 1 <= REGISTERS)
#define CHAINS(width, select) ((select) ? MR / 2 : MORE_FIT(width) ? NARROW_CHAINS : MR)
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
#define EACH_WIDE UNROLL for (v = 0; v < width; v++)

/* What is dead in a product that leaves dead pairs out: a lane of b, or x for all lanes. */
#define DEAD_B 1
#define DEAD_X 2

/* One step of `count` chains in `width` vectors: acc[i][lane] = fma(x[i*xi], b[lane],
 * acc[i][lane]), or left alone where what `select` names is dead. */
INLINE void FN(step)(int width, int count, int select, vf (*acc)[NV], const float *x, ptrdiff_t xi,
                     const float *b)
{
    vf y[NV];
    int i, v;
    EACH_WIDE {
        y[v] = v_load(b + v * VL);
        PIN(y[v]);
    }
    UNROLL for (i = 0; i < count; i++) {
        const vf a = v_set1(x[i * xi]);
        EACH_WIDE {
            const vf sum = v_fma(a, y[v], acc[i][v]);
            acc[i][v] = select ? v_dead(select == DEAD_B ? y[v] : a, acc[i][v], sum) : sum;
        }
    }
}

/* `count` chains in `width` vectors of lanes: c[i][lane] = fma(x[i*xi + t*xt], b[t][lane],
 * c[i][lane]) for t = 0..n-1. For Q K^T t runs over head_dim, for P V over keys. width, count,
 * fresh (c starts at +0), select (0 or what may be dead) and mode are constants at every call.
 * Unless EXP_NONE, key first + g of `beside` follows after each part g of the loop. */
INLINE void FN(chains)(int width, int count, int fresh, int select, int mode, float *c,
                       const float *x, ptrdiff_t xi, ptrdiff_t xt, const float *b, int64_t n,
                       const attn_exp *beside, int first)
{
    const int parts = mode == EXP_NONE ? 1 : count, keys = mode == EXP_NONE ? 0 : beside->n - first;
    float *s = mode == EXP_NONE ? NULL : beside->s + first * ROWS; /* not read again in the loop */
    float *l = mode == EXP_NONE ? NULL : beside->l;
    const float *m = mode == EXP_NONE ? NULL : beside->m;
    vf acc[MAX_CHAINS][NV];
    int64_t t = 0;
    int g, i, v;
    UNROLL for (i = 0; i < count; i++)
        EACH_WIDE acc[i][v] = fresh ? v_zero() : v_load(c + i * ROWS + v * VL);
    for (g = 0; g < parts; g++) {
        const int64_t end = n * (g + 1) / parts;
        TWICE for (; t < end; t++, x += xt, b += ROWS)
            FN(step)(width, count, select, acc, x, xi, b);
        if (g < keys)
            FN(exp_key)(mode == EXP_CALM, s + g * ROWS, m, l);
    }
    UNROLL for (i = 0; i < count; i++)
        EACH_WIDE v_store(c + i * ROWS + v * VL, acc[i][v]);
}

/* Any number of chains; `beside` is done when it returns. */
INLINE void FN(all_chains)(int width, int fresh, int select, int mode, float *c, int64_t count,
                           const float *x, ptrdiff_t xi, ptrdiff_t xt, const float *b, int64_t n,
                           const attn_exp *beside, attn_ahead *ahead)
{
    int64_t i;
    for (i = 0; i + CHAINS(width, select) <= count; i += CHAINS(width, select)) {
        FN(pace)(ahead, (count - i) / CHAINS(width, select));
        FN(ask)(ahead);
        FN(chains)(width, CHAINS(width, select), fresh, select, mode, c + i * ROWS, x + i * xi, xi,
                   xt, b, n, beside, (int)i);
    }
    if (mode != EXP_NONE)
        FN(exp_keys)(mode == EXP_CALM, beside, (int)i);
    for (; i + 2 <= count; i += 2)
        FN(chains)(width, 2, fresh, select, EXP_NONE, c + i * ROWS, x + i * xi, xi, xt, b, n,
                   beside, 0);
    if (i < count)
        FN(chains)(width, 1, fresh, select, EXP_NONE, c + i * ROWS, x + i * xi, xi, xt, b, n,
                   beside, 0);
}

/* +0 in the vectors beside `width` of them from lane `at` on. */
INLINE void FN(clear_others)(float *s, int n, int at, int width)
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

/* `width` vectors of lanes from s and qt on; beside: NULL where there are fewer than NV. */
INLINE void FN(qk_wide)(int width, float *s, const float *qt, const float *k, ptrdiff_t k_stride,
                        int n, int64_t head_dim, const attn_exp *beside, attn_ahead *ahead)
{
    if (width < NV || !beside)
        FN(all_chains)(width, 1, 0, EXP_NONE, s, n, k, k_stride, 1, qt, head_dim, NULL, ahead);
    else if (beside->calm)
        FN(all_chains)(NV, 1, 0, EXP_CALM, s, n, k, k_stride, 1, qt, head_dim, beside, ahead);
    else
        FN(all_chains)(NV, 1, 0, EXP_SAFE, s, n, k, k_stride, 1, qt, head_dim, beside, ahead);
}

#define QK_WIDE(w) FN(qk_wide)(w, s, qt, k, k_stride, n, head_dim, beside, ahead)

static void FN(qk)(float *s, const float *qt, const float *k, ptrdiff_t k_stride, int n,
                   int64_t head_dim, attn_lanes lanes, const attn_exp *beside, attn_ahead *ahead)
{
    int at, beside_at;
    const int width = FN(width)(lanes, &at);
    if (beside && (width < NV || FN(width)(beside->lanes, &beside_at) < NV)) {
        FN(exp_block)(beside);
        beside = NULL;
    }
    if (width < NV)
        FN(clear_others)(s, n, at, width);
    s += at;
    qt += at;
    BY_WIDTH(width, QK_WIDE);
}

#define PV_ALONE(w)                                                                                \
    FN(all_chains)(w, 0, select, EXP_NONE, o, head_dim_v, v, 1, v_stride, p, n, NULL, ahead)

INLINE void FN(pv_lanes)(int select, float *o, const float *p, const float *v, ptrdiff_t v_stride,
                         int n, int64_t head_dim_v, attn_lanes lanes, attn_ahead *ahead)
{
    int at;
    const int width = FN(width)(lanes, &at);
    o += at;
    p += at;
    BY_WIDTH(width, PV_ALONE);
}

static void FN(pv)(float *o, const float *p, const float *v, ptrdiff_t v_stride, int n,
                   int64_t head_dim_v, attn_lanes lanes, attn_ahead *ahead)
{
    FN(pv_lanes)(0, o, p, v, v_stride, n, head_dim_v, lanes, ahead);
}

static void FN(pv_select)(float *o, const float *p, const float *v, ptrdiff_t v_stride, int n,
                          int64_t head_dim_v, attn_lanes lanes)
{
    FN(pv_lanes)(DEAD_B, o, p, v, v_stride, n, head_dim_v, lanes, NULL);
}

/* ---- few rows: decoding */

#ifdef FEW
/* With few lanes in use a broadcast element of K or V feeds few multipliers. So up to FEW lanes
 * take another way: keys in the lanes of Q K^T and columns in those of P V, turned 4 x 4 in
 * registers, and VL / 4 keys in a vector of exponentials. The chain of each element is the same.
 * What is left over goes the way of many rows. */

#define QUARTERS (VL / 4)
#define BLOCK_V (ATTN_BLOCK / VL)
#define NEAR 192 /* bytes: 3 lines, in which L2 answers */
/* clang leaves arrays in memory that a loop of one round goes over: these have more, most empty. */
#define EACH_ROW UNROLL for (r = 0; r < 8; r++) if (r < rows)
#define EACH_QUAD UNROLL for (h = 0; h < 2; h++) if (4 * h < rows)
#define EACH_COLUMN UNROLL for (c = 0; c < 8; c++) if (c < vectors)
#define EACH_OF_4 UNROLL for (i = 0; i < 4; i++)
#define EACH_TOGETHER UNROLL for (b = 0; b < together; b++)
#define EACH_GROUP UNROLL for (g = 0; g < BLOCK_V; g++)

/* The first lane that is computed: lanes lie in a tile by fours. */
INLINE int FN(first_of)(attn_lanes lanes)
{
    return lanes.begin / 4 * 4;
}

/* How many are: 1, 2, 4, FEW, or 0 where that is not enough. */
INLINE int FN(rows_of)(attn_lanes lanes)
{
    const int count = lanes.end - FN(first_of)(lanes);
    return count <= 2 ? count : count <= 4 ? 4 : count <= FEW ? FEW : 0;
}

/* Where a table has the function for so many. */
INLINE int FN(way_of)(int rows)
{
    return rows <= 2 ? rows - 1 : rows == 4 ? 2 : 3;
}

/* The logits of a vector of keys, of which 0, 4, ... are at to[0], to[1], ..., the others `apart`
 * floats apart behind them, from sums[lane - at], which has +0 from `rows` on. +0 in the other
 * lanes. */
INLINE void FN(put_logits)(int rows, int at, float *const *to, ptrdiff_t apart, const vf *sums)
{
    static const float fours[16] = { 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3 };
    vf x[FEW / 4][4];
    int h, i, q, v;
    EACH_QUAD {
        EACH_OF_4 x[h][i] = sums[h * 4 + i];
        v_squares(x[h]);
    }
    EACH_V UNROLL for (q = 0; q < QUARTERS; q++)
        EACH_OF_4 {
            vf row = v_zero();
            EACH_QUAD {
                const vm here = v_eq(v_load(fours + v * VL), v_set1((float)(at / 4 + h)));
                row = v_select(here, v_quarter(x[h][i], q), row);
            }
            v_store(to[q] + i * apart + v * VL, row);
        }
}

/* Bytes of an element, 4 elements in each quarter from p[..] + at, a vector from p. */
#define ELEMENT(dtype) ((dtype) == ATTN_F32 ? 4 : 2)
#define QUARTERS_OF(dtype, p, at)                                                                  \
    ((dtype) == ATTN_F32   ? v_quarters(p, at)                                                     \
     : (dtype) == ATTN_F16 ? v_quarters_f16(p, at)                                                 \
                           : v_quarters_bf16(p, at))
#define LOAD_OF(dtype, p)                                                                          \
    ((dtype) == ATTN_F32   ? v_load((const float *)(const void *)(p))                              \
     : (dtype) == ATTN_F16 ? v_f16((const uint16_t *)(const void *)(p))                            \
                           : v_bf16((const uint16_t *)(const void *)(p)))

/* 4 elements of a vector of keys: keys 0, 4, ... at from[0], from[1], ..., `step` bytes between
 * keys, and three times that. */
INLINE void FN(get_keys)(int dtype, vf *x, const char *const *from, ptrdiff_t step, ptrdiff_t third)
{
    x[0] = QUARTERS_OF(dtype, from, 0);
    x[1] = QUARTERS_OF(dtype, from, step);
    x[2] = QUARTERS_OF(dtype, from, 2 * step);
    x[3] = QUARTERS_OF(dtype, from, third);
    v_squares(x);
}

/* What Q K^T goes over: a block of keys, `step` bytes apart. */
typedef struct FN(streams) {
    const char *from[4]; /* the next element of keys 0, 4, 8, 12 */
    ptrdiff_t step, third; /* 3 steps */
} FN(streams);

/* What lies NEAR bytes on comes into L1; it may be beyond the tensor, and so is no pointer. */
INLINE void FN(ask_near)(const char *from)
{
    __builtin_prefetch((const void *)((uintptr_t)from + NEAR), 0, 3);
}

/* 4 elements; keys 4 * part.. are asked for. */
INLINE void FN(qk_step)(int dtype, int rows, vf (*acc)[FEW], FN(streams) *k, const float *q,
                        int part)
{
    /* Vectors of keys that share a factor, as registers allow. */
    const int together = BLOCK_V > 1 && (rows == 1 || VL == 4) ? 2 : 1;
    int b, g, i, r;
    FN(ask_near)(k->from[part]);
    FN(ask_near)(k->from[part] + k->step);
    FN(ask_near)(k->from[part] + 2 * k->step);
    FN(ask_near)(k->from[part] + k->third);
    UNROLL for (g = 0; g < BLOCK_V; g += together) {
        vf x[2][4];
        EACH_TOGETHER
            FN(get_keys)(dtype, x[b], k->from + (g + b) * QUARTERS, k->step, k->third);
        EACH_OF_4 EACH_ROW {
            const vf a = v_set1(q[i * ROWS + r]);
            EACH_TOGETHER acc[g + b][r] = v_fma(a, x[b][i], acc[g + b][r]);
        }
        HIDE(q); /* not kept for the next */
    }
    EACH_OF_4 {
        k->from[i] += 4 * ELEMENT(dtype);
        HIDE(k->from[i]);
    }
}

/* A whole block of keys, of which 0, 4, 8 and 12 are at from[..], the others `step` bytes apart
 * behind them; their logits at to[..], `apart` floats apart; lanes at..at+rows-1, elements
 * 0..whole-1, whole a multiple of 4. */
INLINE void FN(qk_rows)(int dtype, int rows, int at, float *const *to, ptrdiff_t apart,
                        const float *qt,
                        const char *const *from, ptrdiff_t step, int64_t whole, attn_ahead *ahead)
{
    const float *q = qt + at;
    FN(streams) k;
    vf acc[BLOCK_V][FEW];
    int64_t steps = whole / 4;
    int g, i, part, r;
    EACH_OF_4 {
        k.from[i] = from[i];
        HIDE(k.from[i]);
    }
    k.step = step;
    k.third = 3 * step;
    HIDE(k.third);
    EACH_GROUP EACH_ROW acc[g][r] = v_zero();
    FN(pace)(ahead, steps);
    while (steps > 0) /* no loop for what is left: it would spill */
        UNROLL for (part = 0; part < 4; part++) {
            FN(ask)(ahead);
            FN(qk_step)(dtype, rows, acc, &k, q, part);
            q += 4 * ROWS;
            if (--steps == 0)
                break;
        }
    EACH_GROUP {
        vf sums[FEW];
        UNROLL for (r = 0; r < FEW; r++)
            sums[r] = r < rows ? acc[g][r] : v_zero();
        FN(put_logits)(rows, at, to + g * QUARTERS, apart, sums);
    }
}

/* Each a function of its own: its loop has all registers. */
#define QK_ROWS(name, dtype, rows)                                                                 \
    OUTLINE void FN(name)(int at, float *const *to, ptrdiff_t apart, const float *qt,              \
                          const char *const *from, ptrdiff_t step, int64_t whole,                  \
                          attn_ahead *ahead)                                                       \
    {                                                                                              \
        FN(qk_rows)(dtype, rows, at, to, apart, qt, from, step, whole, ahead);                     \
    }
#define QK_TYPE(name, dtype)                                                                       \
    QK_ROWS(name##_1, dtype, 1)                                                                    \
    QK_ROWS(name##_2, dtype, 2)                                                                    \
    QK_ROWS(name##_4, dtype, 4)                                                                    \
    QK_ROWS(name##_most, dtype, FEW)
#define WAYS(name) { FN(name##_1), FN(name##_2), FN(name##_4), FN(name##_most) }
QK_TYPE(qk_f32, ATTN_F32)
QK_TYPE(qk_f16, ATTN_F16)
QK_TYPE(qk_bf16, ATTN_BF16)

/* One block by the function for its type and lanes. */
INLINE void FN(qk_block)(float *const *to, ptrdiff_t apart, const float *qt,
                         const char *const *from, ptrdiff_t step, int dtype, int64_t whole,
                         attn_lanes lanes, attn_ahead *ahead)
{
    static void (*const ways[3][4])(int, float *const *, ptrdiff_t, const float *,
                                    const char *const *, ptrdiff_t, int64_t, attn_ahead *) = {
        WAYS(qk_f32), WAYS(qk_f16), WAYS(qk_bf16)
    };
    ways[dtype][FN(way_of)(FN(rows_of)(lanes))](FN(first_of)(lanes), to, apart, qt, from, step,
                                                whole, ahead);
}

/* `apart` blocks of keys, 16 * apart in all, of which every 4 * apart begin at from[..], `step`
 * bytes apart. A block takes keys that lie `apart` rows from each other, and the next block their
 * neighbours: so each key of a block begins a stream of whole rows, which memory serves faster than
 * one row after the other (K alone, AMD EPYC family 25 model 17, 4 rows of 128 f32: 20 instead of
 * 6 GB/s). turn: the streams of each 4 begin so many rows later than those of the 4 before. `lines`
 * are asked for. */
INLINE void FN(qk_streams)(float *s, const float *qt, const char *const *from, ptrdiff_t step,
                           int dtype, int apart, int turn, int64_t whole, attn_lanes lanes,
                           attn_ahead *ahead, int64_t lines)
{
    const char *at[4];
    float *to[4];
    int b, i;
    for (b = 0; b < apart; b++) {
        EACH_OF_4 {
            const int row = (b + turn * i) % apart;
            at[i] = from[i] + row * step;
            to[i] = s + (4 * apart * i + row) * ROWS;
        }
        if (ahead)
            ahead->lines = lines / apart;
        FN(qk_block)(to, apart * ROWS, qt, at, apart * step, dtype, whole, lanes, ahead);
    }
}

/* The whole blocks among n keys that lie evenly, elements 0..whole-1; returns how many keys that
 * are. */
INLINE int FN(qk_blocks)(float *s, const float *qt, const char *k, ptrdiff_t step, int dtype, int n,
                         int64_t whole, attn_lanes lanes, attn_ahead *ahead)
{
    const int64_t lines = ahead ? ahead->lines : 0;
    const char *from[4];
    int j = 0, i, apart;
    if (!FN(rows_of)(lanes) || !whole)
        return 0;
    for (; j + ATTN_BLOCK <= n; j += ATTN_BLOCK * apart) {
        apart = (n - j) / ATTN_BLOCK;
        apart -= apart % 2 == 0; /* an even number of rows leads to the same sets of the cache */
        EACH_OF_4 from[i] = k + (j + 4 * apart * i) * step;
        FN(qk_streams)(s + j * ROWS, qt, from, step, dtype, apart, 0, whole, lanes, ahead,
                       lines * ATTN_BLOCK * apart / n);
    }
    return j;
}

/* n keys of a calm block, a multiple of QUARTERS, so many in a vector; l key by key all the same.
 * The other lanes keep what they hold. */
INLINE void FN(exp_quarters)(const attn_exp *e, int n)
{
    int at = FN(first_of)(e->lanes), i, j;
    for (; at < e->lanes.end; at += 4) {
        const char *m[4], *l[4], *from[4];
        float *to[4];
        vf top, sum;
        EACH_OF_4 {
            m[i] = (const char *)(e->m + at);
            l[i] = (const char *)(e->l + at); /* the same in every quarter */
            to[i] = e->s + i * ROWS + at;
            from[i] = (const char *)to[i];
        }
        top = v_quarters(m, 0);
        sum = v_quarters(l, 0);
        for (j = 0; j < n; j += QUARTERS) {
            const vf p = FN(exp2_calm)(v_sub(v_quarters(from, j * ROWS * 4), top));
            v_put_quarters(to, j * ROWS, p);
            sum = v_add_quarters(sum, p);
        }
        v_put_first(e->l + at, sum);
    }
}

static void FN(exp_few)(const attn_exp *e)
{
    const int n = e->calm && FN(rows_of)(e->lanes) ? e->n / QUARTERS * QUARTERS : 0;
    if (n > 0)
        FN(exp_quarters)(e, n);
    if (n < e->n && e->calm)
        FN(exp_keys)(1, e, n);
    else if (n < e->n)
        FN(exp_keys)(0, e, n);
}

static void FN(qk_few)(float *s, const float *qt, const float *k, ptrdiff_t k_stride, int n,
                       int64_t head_dim, attn_lanes lanes, const attn_exp *beside,
                       attn_ahead *ahead)
{
    const int64_t whole = head_dim / 4 * 4;
    const int rows = FN(rows_of)(lanes);
    const int keys = FN(qk_blocks)(s, qt, (const char *)k, k_stride * ELEMENT(ATTN_F32), ATTN_F32,
                                   n, whole, lanes, ahead);
    if (keys > 0 && whole < head_dim)
        FN(all_chains)(NV, 0, 0, EXP_NONE, s, keys, k + whole, k_stride, 1, qt + whole * ROWS,
                       head_dim - whole, NULL, NULL);
    if (beside && rows) {
        FN(exp_few)(beside);
        beside = NULL;
    }
    if (keys < n)
        FN(qk)(s + keys * ROWS, qt, k + keys * k_stride, k_stride, n - keys, head_dim, lanes,
               beside, ahead);
}

/* A place in runs of rows. */
typedef struct FN(place) {
    const char *const *run;
    const char *at;
    int64_t left; /* rows of this run */
} FN(place);

/* The place, which moves on by `count` rows, at most those left of its run. */
INLINE const char *FN(take_rows)(FN(place) *p, const attn_runs *k, int64_t count)
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
static void FN(qk_runs)(float *s, const float *qt, const attn_runs *k, int n, int64_t head_dim,
                        attn_lanes lanes, const attn_exp *beside, attn_ahead *ahead)
{
    const int64_t lines = ahead ? ahead->lines : 0;
    FN(place) p = { k->run, *k->run, k->first };
    const char *from[4];
    int j, count, i;
    for (j = 0; j < n && FN(rows_of)(lanes); j += count) {
        count = p.left < n - j ? (int)p.left : n - j;
        if (count < 3 * ATTN_BLOCK && n - j >= 4 * ATTN_BLOCK) {
            EACH_OF_4 from[i] = FN(take_rows)(&p, k, ATTN_BLOCK);
            count = 4 * ATTN_BLOCK;
            FN(qk_streams)(s + j * ROWS, qt, from, k->stride, k->dtype, 4, 1, head_dim, lanes,
                           ahead, lines * count / n);
        } else {
            if (ahead)
                ahead->lines = lines * count / n;
            FN(qk_blocks)(s + j * ROWS, qt, FN(take_rows)(&p, k, count), k->stride, k->dtype,
                          count, head_dim, lanes, ahead);
        }
    }
    if (beside)
        FN(exp_few)(beside);
}

/* Columns 0, 4, 8, 12 of lanes at..at+3. */
INLINE void FN(columns_at)(float **to, float *o, int at)
{
    int i;
    EACH_OF_4 to[i] = o + 4 * i * ROWS + at;
}

/* A vector of columns of each of 4 lanes. */
INLINE void FN(get_columns)(vf *x, float *const *columns)
{
    const char *from[4];
    int i;
    EACH_OF_4 from[i] = (const char *)columns[i];
    EACH_OF_4 x[i] = v_quarters(from, i * ROWS * 4);
    v_squares(x);
}

/* `vectors` of columns, all keys, lanes at..at+rows-1; calls: how many such follow, with this. */
INLINE void FN(pv_rows)(int dtype, int rows, int vectors, int at, float *o, const float *p,
                        const attn_runs *rows_v, int64_t column, int n,
                        attn_ahead *ahead, int64_t calls)
{
    enum { MOST = 8 };
    const char *const *run = rows_v->run;
    const char *v = *run + column;
    const ptrdiff_t step = rows_v->stride;
    int64_t left = rows_v->first;
    vf acc[MOST][FEW], x[MOST];
    float *to[4];
    int c, h, i, r;
    EACH_COLUMN
        EACH_QUAD {
            FN(columns_at)(to, o + c * VL * ROWS, at + 4 * h);
            FN(get_columns)(x, to);
            EACH_OF_4 acc[c][4 * h + i] = x[i];
        }
    FN(pace)(ahead, calls * n);
    for (p += at; n > 0; n--, p += ROWS) {
        FN(ask)(ahead);
        EACH_COLUMN
            x[c] = LOAD_OF(dtype, v + c * VL * ELEMENT(dtype));
        EACH_ROW {
            const vf w = v_set1(p[r]);
            EACH_COLUMN
                acc[c][r] = v_fma(w, x[c], acc[c][r]);
        }
        v += step;
        if (--left == 0) {
            v = *++run + column;
            left = rows_v->each;
        }
    }
    EACH_COLUMN
        EACH_QUAD {
            FN(columns_at)(to, o + c * VL * ROWS, at + 4 * h);
            FN(get_columns)(x, to);
            EACH_OF_4 x[i] = 4 * h + i < rows ? acc[c][4 * h + i] : x[i];
            v_squares(x);
            EACH_OF_4 v_put_quarters(to, i * ROWS, x[i]);
        }
}

/* Each a function of its own, as those of Q K^T; `_last` for columns left over. */
#define PV_ROWS(name, dtype, rows, vectors)                                                        \
    OUTLINE void FN(name)(int at, float *o, const float *p, const attn_runs *v, int64_t column,    \
                          int n, attn_ahead *ahead, int64_t calls)                                 \
    {                                                                                              \
        FN(pv_rows)(dtype, rows, vectors, at, o, p, v, column, n, ahead, calls);                   \
    }
#define PV_BOTH(name, dtype, rows, vectors)                                                        \
    PV_ROWS(name, dtype, rows, vectors)                                                            \
    PV_ROWS(name##_last, dtype, rows, 1)
#define PV_TYPE(name, dtype)                                                                       \
    PV_BOTH(name##_1, dtype, 1, 8)                                                                 \
    PV_BOTH(name##_2, dtype, 2, 4)                                                                 \
    PV_BOTH(name##_4, dtype, 4, FEW == 4 ? 2 : 4)                                                  \
    PV_BOTH(name##_most, dtype, FEW, 2)
#define PV_WAYS(name) WAYS(name), { FN(name##_1_last), FN(name##_2_last),                       \
                                       FN(name##_4_last), FN(name##_most_last) }
PV_TYPE(pv_f32, ATTN_F32)
PV_TYPE(pv_f16, ATTN_F16)
PV_TYPE(pv_bf16, ATTN_BF16)

/* All whole vectors of columns; returns how many columns that are. */
INLINE int64_t FN(pv_columns)(float *o, const float *p, const attn_runs *v, int n,
                              int64_t head_dim_v, attn_lanes lanes, attn_ahead *ahead)
{
    static void (*const ways[6][4])(int, float *, const float *, const attn_runs *, int64_t, int,
                                    attn_ahead *, int64_t) = { PV_WAYS(pv_f32), PV_WAYS(pv_f16),
                                                               PV_WAYS(pv_bf16) };
    static const int widths[4] = { 8 * VL, 4 * VL, (FEW == 4 ? 2 : 4) * VL, 2 * VL };
    const int at = FN(first_of)(lanes), rows = FN(rows_of)(lanes), way = FN(way_of)(rows);
    const int dtype = v->dtype;
    int64_t d = 0;
    if (rows == 0)
        return 0;
    for (; d + widths[way] <= head_dim_v; d += widths[way])
        ways[2 * dtype][way](at, o + d * ROWS, p, v, d * ELEMENT(dtype), n, ahead,
                             (head_dim_v - d) / widths[way]);
    for (; d + VL <= head_dim_v; d += VL)
        ways[2 * dtype + 1][way](at, o + d * ROWS, p, v, d * ELEMENT(dtype), n, ahead,
                                 (head_dim_v - d) / VL);
    return d;
}

static void FN(pv_few)(float *o, const float *p, const float *v, ptrdiff_t v_stride, int n,
                       int64_t head_dim_v, attn_lanes lanes, attn_ahead *ahead)
{
    const char *run[2] = { (const char *)v, (const char *)v };
    const attn_runs rows = { ATTN_F32, v_stride * ELEMENT(ATTN_F32), n, n, run };
    const int64_t d = FN(pv_columns)(o, p, &rows, n, head_dim_v, lanes, ahead);
    if (d < head_dim_v)
        FN(pv)(o + d * ROWS, p, v + d, v_stride, n, head_dim_v - d, lanes, ahead);
}

static void FN(pv_runs)(float *o, const float *p, const attn_runs *v, int n, int64_t head_dim_v,
                        attn_lanes lanes, attn_ahead *ahead)
{
    FN(pv_columns)(o, p, v, n, head_dim_v, lanes, ahead);
}
#define QK qk_few
#define PV pv_few
#define EXP_BLOCK exp_few
#define FEW_ONLY FEW, FN(qk_runs), FN(pv_runs)
#else
#define QK qk
#define PV pv
#define EXP_BLOCK exp_block
#define FEW_ONLY 0, NULL, NULL
#endif

/* ---- softmax */

static void FN(maximum)(const float *s, int n, float *m)
{
    int j, v;
    EACH_V {
        vf top = v_load(m + v * VL);
        const float *row = s + v * VL;
        for (j = 0; j < n; j++, row += ROWS)
            top = v_max(v_load(row), top);
        v_store(m + v * VL, top);
    }
}

static void FN(exp_sum)(float *s, int n, float dead, const float *m, float *l)
{
    int j, v;
    EACH_V {
        const vf from = FN(origin)(v_load(m + v * VL)), hidden = v_set1(dead);
        vf sum = v_load(l + v * VL);
        float *row = s + v * VL;
        for (j = 0; j < n; j++, row += ROWS) {
            const vf x = v_load(row);
            const vf p = FN(exp2)(v_sub(x, from));
            sum = v_add(sum, p);
            v_store(row, v_select(v_eq(x, NEGATIVE_INFINITY), hidden, p));
        }
        v_store(l + v * VL, sum);
    }
}

/* Lanes that have begun and whose block maximum exceeds m by more than the threshold. */
INLINE vm FN(exceeds)(vf high, vf m)
{
    return vm_and(v_gt(m, NEGATIVE_INFINITY), v_gt(high, v_add(m, v_set1(ATTN_THRESHOLD))));
}

/* The rare part of running_max: some lane rises. */
static __attribute__((noinline)) void FN(raise)(const float *bm, float *m, float *l, float *alpha)
{
    int v;
    EACH_V {
        const vf old = v_load(m + v * VL), high = v_load(bm + v * VL);
        const vm up = FN(exceeds)(high, old);
        const vf to = v_select(up, high, v_zero());
        vf from = v_select(up, old, v_zero()), a;
        PIN(from); /* clang else subtracts before it selects: -inf - -inf would raise a flag */
        a = FN(exp2)(v_sub(from, to)); /* exactly 1 where nothing is raised */
        v_store(l + v * VL, v_mul(v_load(l + v * VL), a));
        v_store(alpha + v * VL, a);
    }
}

static int FN(running_max)(const float *s, int n, float *m, float *l, float *alpha)
{
    vf high[NV], large[NV];
    float bm[ROWS];
    int raised = 0, calm = 1, j, v;
    EACH_V {
        high[v] = NEGATIVE_INFINITY;
        large[v] = v_zero();
    }
    for (j = 0; j < n; j++, s += ROWS)
        EACH_V {
            const vf x = v_load(s + v * VL);
            high[v] = v_max(x, high[v]);
            large[v] = v_larger(large[v], x);
        }
    EACH_V {
        v_store(bm + v * VL, high[v]);
        raised |= vm_any(FN(exceeds)(high[v], v_load(m + v * VL)));
    }
    if (raised)
        FN(raise)(bm, m, l, alpha);
    EACH_V {
        const vf old = v_load(m + v * VL), b = v_load(bm + v * VL);
        vf to = v_select(v_gt(old, NEGATIVE_INFINITY), old, b);
        to = v_select(FN(exceeds)(b, old), b, to);
        v_store(m + v * VL, to);
        calm &= vm_all(v_lt(v_larger(large[v], to), v_set1(ATTN_CALM)));
    }
    return (raised ? ATTN_RAISED : 0) | (calm ? ATTN_IS_CALM : 0);
}

static int FN(finite)(const float *x, int64_t n)
{
    const vf infinity = FN(bits)(0x7f800000u);
    vf large = v_zero();
    int64_t i;
    float rest[VL] = { 0 };
    for (i = 0; i + VL <= n; i += VL)
        large = v_larger(large, v_load(x + i));
    memcpy(rest, x + i, (size_t)(n - i) * sizeof *rest);
    large = v_larger(large, v_load(rest));
    return vm_all(v_lt(large, infinity));
}

static void FN(rescale)(float *x, const float *alpha, int64_t count)
{
    int64_t k;
    int v;
    EACH_V {
        const vf a = v_load(alpha + v * VL);
        float *row = x + v * VL;
        for (k = 0; k < count; k++, row += ROWS)
            v_store(row, v_mul(v_load(row), a));
    }
}

/* ---- masks */

static void FN(clip)(float *s, int n, const int *begin, const int *end)
{
    vf key = v_zero();
    int j, v;
    for (j = 0; j < n; j++, s += ROWS, key = v_add(key, v_set1(1.0f)))
        EACH_V {
            const vf x = v_select(v_lt(key, v_ints(begin + v * VL)), NEGATIVE_INFINITY,
                                  v_load(s + v * VL));
            v_store(s + v * VL, v_select(v_lt(key, v_ints(end + v * VL)), x, NEGATIVE_INFINITY));
        }
}

static void FN(hide)(float *s, const uint8_t *alive, int n)
{
    int k;
    for (k = 0; k < n * ROWS; k += VL)
        v_store(s + k, v_select(v_eq(v_bytes(alive + k), v_zero()), NEGATIVE_INFINITY,
                                v_load(s + k)));
}

/* ---- what changes a logit */

/* tanh of docs/canon.md: an odd polynomial below 0.625, 1 - 2 / (e^2|x| + 1) from there. */
INLINE vf FN(tanh)(vf x)
{
    const vf magnitude = v_max(x, v_sub(v_zero(), x)); /* NaN stays NaN */
    const vf c = v_select(v_gt(magnitude, v_set1(10.0f)), v_set1(10.0f), magnitude);
    const vf u = v_mul(c, c);
    vf r = v_fma(v_set1(-0x1.75e1cap-8f), u, v_set1(0x1.52269cp-6f)), small, large;
    r = v_fma(r, u, v_set1(-0x1.b83c5ap-5f));
    r = v_fma(r, u, v_set1(0x1.110726p-3f));
    r = v_fma(r, u, v_set1(-0x1.555532p-2f));
    small = v_fma(v_mul(u, c), r, c);
    large = FN(exp2)(v_mul(c, v_set1(0x1.715476p+1f)));
    large = v_div(v_set1(2.0f), v_add(large, v_set1(1.0f)));
    large = v_sub(v_set1(1.0f), large);
    return v_copysign(v_select(v_lt(c, v_set1(0.625f)), small, large), x);
}

static void FN(softcap)(float *s, int n, float cap2, float icap2)
{
    int k;
    for (k = 0; k < n * ROWS; k += VL)
        v_store(s + k, v_mul(v_set1(cap2), FN(tanh)(v_mul(v_load(s + k), v_set1(icap2)))));
}

static void FN(add_scaled)(float *s, const float *x, const float *factor, int n)
{
    int j, v;
    for (j = 0; j < n; j++, s += ROWS, x += ROWS)
        EACH_V {
            const vf y = v_load(x + v * VL);
            const vf sum = v_fma(y, v_load(factor + v * VL), v_load(s + v * VL));
            v_store(s + v * VL,
                    v_select(v_eq(y, NEGATIVE_INFINITY), NEGATIVE_INFINITY, sum));
        }
}

/* ---- packing, merging, results */

/* Defines FN(name) for n numbers: whole vectors, and a last one by way of a buffer. */
#define CONVERT(name, to_type, from_type, convert)                                                 \
    static void FN(name)(to_type *to, const from_type *from, int64_t n)                            \
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
CONVERT(narrow_f16, uint16_t, float, TO_F16)
CONVERT(narrow_bf16, uint16_t, float, TO_BF16)

static void FN(pack)(float *qt, const float *const *q, int64_t head_dim, float c)
{
    int64_t d;
    int i, v;
    for (v = 0; v < NV; v++) {
        const float *const *from = q + v * VL;
        for (d = 0; d + VL <= head_dim; d += VL) {
            vf square[VL];
            UNROLL for (i = 0; i < VL; i++)
                square[i] = v_mul(v_load(from[i] + d), v_set1(c));
            v_transpose(square);
            UNROLL for (i = 0; i < VL; i++)
                v_store(qt + (d + i) * ROWS + v * VL, square[i]);
        }
        for (; d < head_dim; d++)
            for (i = 0; i < VL; i++)
                qt[d * ROWS + v * VL + i] = from[i][d] * c;
    }
}

static void FN(merge)(float *a, float *b, int64_t head_dim_v)
{
    int64_t d;
    int v;
    EACH_V {
        float *lower = a + v * VL, *upper = b + v * VL;
        const vf ma = v_load(lower), mb = v_load(upper);
        const vf m = v_max(ma, mb);
        const vf from = FN(origin)(m);
        const vf wa = FN(exp2)(v_sub(ma, from)), wb = FN(exp2)(v_sub(mb, from));
        v_store(upper, m);
        for (d = 0; d <= head_dim_v; d++) { /* l, then o */
            lower += ROWS;
            upper += ROWS;
            v_store(upper, v_fma(v_load(upper), wb, v_mul(v_load(lower), wa)));
        }
    }
}

static void FN(result)(float *const *out, const float *o, const float *l, float factor,
                       int64_t head_dim_v)
{
    int64_t d;
    int i, v;
    for (v = 0; v < NV; v++) {
        const vf sum = v_load(l + v * VL), one = v_set1(1.0f), nan = FN(bits)(0x7fc00000u);
        const vm empty = v_eq(sum, v_zero());
        vf r = v_select(empty, one, sum);
        float *const *to = out + v * VL;
        PIN(r); /* clang else divides before it selects: 1 / 0 would raise a flag */
        r = v_mul(v_div(one, r), v_set1(factor));
        for (d = 0; d < head_dim_v; d += VL) {
            const int count = head_dim_v - d < VL ? (int)(head_dim_v - d) : VL;
            vf square[VL];
            float piece[VL];
            UNROLL for (i = 0; i < VL; i++) {
                const float *row = o + (d + (i < count ? i : 0)) * ROWS + v * VL;
                vf x = v_add(v_mul(v_load(row), r), v_zero()); /* -0 becomes +0 */
                x = v_select(v_nan(x), nan, x);
                square[i] = v_select(empty, v_zero(), x);
            }
            v_transpose(square);
            if (count == VL) {
                UNROLL for (i = 0; i < VL; i++)
                    v_store(to[i] + d, square[i]);
            } else {
                UNROLL for (i = 0; i < VL; i++) {
                    v_store(piece, square[i]);
                    memcpy(to[i] + d, piece, (size_t)count * sizeof *piece);
                }
            }
        }
    }
}

/* ---- gradients */

static void FN(gradient)(float *s, float *dp, int n, const float *lse2, const float *delta)
{
    const vf minus = FN(bits)(0x80000000u), most = v_set1(127.0f);
    int j, v;
    EACH_V {
        const vf from = FN(origin)(v_load(lse2 + v * VL)), less = v_load(delta + v * VL);
        float *s_row = s + v * VL, *dp_row = dp + v * VL;
        for (j = 0; j < n; j++, s_row += ROWS, dp_row += ROWS) {
            const vf logit = v_load(s_row), x = v_sub(logit, from);
            const vm dead = v_eq(logit, NEGATIVE_INFINITY);
            const vf p = FN(exp2)(v_select(v_gt(x, most), most, x));
            const vf ds = v_mul(p, v_sub(v_load(dp_row), less));
            v_store(s_row, v_select(dead, minus, p));
            v_store(dp_row, v_select(dead, minus, ds));
        }
    }
}

static void FN(softcap_gradient)(float *ds, const float *t, const float *p, int n)
{
    const vf minus = FN(bits)(0x80000000u), one = v_set1(1.0f);
    int k;
    for (k = 0; k < n * ROWS; k += VL) {
        const vf x = v_load(t + k);
        const vf y = v_mul(v_load(ds + k), v_fma(v_sub(v_zero(), x), x, one));
        v_store(ds + k, v_dead(v_load(p + k), minus, y));
    }
}

/* `count` keys from `key` on and `width` vectors of columns from `column` on: all terms. */
INLINE void FN(outer_tile)(int width, int count, int select, float *c, ptrdiff_t c_stride,
                           const attn_terms *f, int key, int64_t column)
{
    const attn_term *term = f->term;
    vf acc[MAX_CHAINS][NV];
    int i, v, g, t;
    c += key * c_stride + column;
    UNROLL for (i = 0; i < count; i++)
        EACH_WIDE acc[i][v] = v_load(c + i * c_stride + v * VL);
    for (g = 0; g < f->count; g++, term++) {
        const float *x = term->x + key * ROWS + term->lanes.begin;
        const float *b = term->b + term->lanes.begin * f->b_stride + column;
        if (key >= term->end || key + count <= term->begin)
            continue;
        TWICE for (t = term->lanes.begin; t < term->lanes.end; t++, x++, b += f->b_stride)
            FN(step)(width, count, select, acc, x, ROWS, b);
    }
    UNROLL for (i = 0; i < count; i++)
        EACH_WIDE v_store(c + i * c_stride + v * VL, acc[i][v]);
}

/* All keys, `width` vectors of columns. */
INLINE void FN(outer_columns)(int width, int select, float *c, ptrdiff_t c_stride,
                              const attn_terms *f, int n, int64_t column)
{
    int i;
    for (i = 0; i + CHAINS(width, select) <= n; i += CHAINS(width, select))
        FN(outer_tile)(width, CHAINS(width, select), select, c, c_stride, f, i, column);
    for (; i < n; i++)
        FN(outer_tile)(width, 1, select, c, c_stride, f, i, column);
}

#define OUTER_COLUMNS(w) FN(outer_columns)(w, select, c, c_stride, f, n, at)

/* The columns in pieces as equal as possible, each at most NV vectors wide. */
INLINE void FN(outer_pieces)(int select, float *c, ptrdiff_t c_stride, const attn_terms *f, int n,
                             int64_t columns)
{
    int64_t left = (columns + VL - 1) / VL, at = 0, width;
    for (; left > 0; left -= width, at += width * VL) {
        const int64_t pieces = (left + NV - 1) / NV;
        width = (left + pieces - 1) / pieces;
        BY_WIDTH(width, OUTER_COLUMNS);
    }
}

static void FN(outer)(float *c, ptrdiff_t c_stride, const attn_terms *f, int n, int64_t columns)
{
    FN(outer_pieces)(0, c, c_stride, f, n, columns);
}

static void FN(outer_select)(float *c, ptrdiff_t c_stride, const attn_terms *f, int n,
                             int64_t columns)
{
    FN(outer_pieces)(DEAD_X, c, c_stride, f, n, columns);
}

static void FN(dots)(float *to, const float *a, const float *b, int64_t dim)
{
    vf sum[NV];
    int64_t d;
    int v;
    EACH_V sum[v] = v_zero();
    for (d = 0; d < dim; d++, a += ROWS, b += ROWS)
        EACH_V sum[v] = v_fma(v_load(a + v * VL), v_load(b + v * VL), sum[v]);
    EACH_V v_store(to + v * VL, sum[v]);
}

static const attn_kernels FN(kernels) = {
    ATTN_KERNEL_ABI, ROWS,            ISA_NAME,      FN(widen_f16), FN(widen_bf16), FN(narrow_f16),
    FN(narrow_bf16), FN(pack),        FN(QK),        FN(softcap),   FN(add_scaled), FN(clip),
    FN(hide),        FN(running_max), FN(maximum),   FN(exp_sum),   FN(EXP_BLOCK),  FN(finite),
    FN(rescale),     FN(PV),          FN(pv_select), FN(merge),     FN(result),
    FEW_ONLY,
    FN(gradient),    FN(softcap_gradient),           FN(outer),     FN(outer_select), FN(dots)
};
#undef QK
#undef PV
#undef EXP_BLOCK
#undef FEW_ONLY
#undef FEW

#endif
