/* src/seam.h - the seam: the table of kernels that every instruction set fills in.
 * SPDX-License-Identifier: MIT
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
#pragma once

#ifndef ATTN_SEAM_H /* attn.c and attn_simd.h both hold it */
#define ATTN_SEAM_H

#include "api/attn.h"
#include "api/backend.h"

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
