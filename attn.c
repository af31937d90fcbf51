/* attn.c - exact attention in two files. The manual is attn.h; the order of every operation is
 * docs/canon.md.
 * SPDX-License-Identifier: MIT (full text at the end)
 * attn 0.1.0
 *
 * Data flows one way:  params -> validate -> problem -> plan -> items -> kernels
 *
 * CONTENTS, bottom-up (no forward declarations), on the text and numbers at the end of attn.h
 *    1  Configuration        compiler, sizes
 *    2  Storage types        f32, f16, bf16: loaded, stored
 *    3  Kernels              the portable kernel table, built once plain and once for FMA
 *    4  Kernel selection     CPU features; best, by index, by name
 *    5  Problem              tuning; defaults resolved; one sequence of the batch
 *    6  Masks                one table: range of a row, visibility of pairs
 *    7  Validation           every sentence about bad input
 *    8  Plan                 tiles, items, workspace layout: a pure function
 *    9  Tile                 lanes, key rows as f32, logits
 *   10  Softmax state        chunks, the merge tree, sink, result
 *   11  Tiled items          online softmax
 *   12  Split items          the keys of few row tiles divided among many workers
 *   13  Shared prefix        keys that all batch entries share, once for all rows
 *   14  Naive items          the textbook in numbered passes
 *   15  Logits items         logits and probabilities of chosen rows
 *   16  Run                  items over workers, in lists
 *   17  Public functions
 */
#ifndef ATTN_KERNEL_API
#define ATTN_KERNEL_API
#endif
#ifndef ATTN_INTERNAL
#define ATTN_INTERNAL
#endif
#include "attn.h"

#ifdef _OPENMP
#include <omp.h>
#define OPENMP_THREADS omp_get_max_threads()
#else
#define OPENMP_THREADS 0
#endif

/* ------------------------------------------------------------------------------------------------
 * 1  Configuration
 * --------------------------------------------------------------------------------------------- */

#ifndef ATTN_ASSERT
#define ATTN_ASSERT(x) ((void)0)
#endif

#if defined __GNUC__
#define PREFETCH(p) __builtin_prefetch(p, 0, 2) /* to be read; into L2 */
#else
#define PREFETCH(p) ((void)(p))
#endif

/* The word of CPU features may be written by several threads at once, always with the same
 * value. */
#if defined __GNUC__
#define LOAD_WORD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define STORE_WORD(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#else
#define LOAD_WORD(p) (*(volatile unsigned *)(p))
#define STORE_WORD(p, v) (*(volatile unsigned *)(p) = (v))
#endif

/* Of a tile of many rows: logits of 16 KiB stay in L1. Half for heads of 256 and more, so that
 * 1 MiB a worker is enough: 1 % slower (with 192, 3 %). */
#define WIDE_TILE_KEYS(dims) ((dims) < 512 ? 64 : 32)
#define NARROW_TILE_KEYS 256

/* ------------------------------------------------------------------------------------------------
 * 2  Storage types: exact to f32; from f32 to nearest even, NaN canonical
 * --------------------------------------------------------------------------------------------- */

static float load_f32(const void *data, int64_t at)
{
    return ((const float *)data)[at];
}

static float load_f16(const void *data, int64_t at)
{
    return f16_to_f32(((const uint16_t *)data)[at]);
}

static float load_bf16(const void *data, int64_t at)
{
    return bf16_to_f32(((const uint16_t *)data)[at]);
}

static void store_f32(void *data, int64_t at, float x)
{
    ((float *)data)[at] = is_nan(x) ? float_of(CANONICAL_NAN) : x;
}

static void store_f16(void *data, int64_t at, float x)
{
    ((uint16_t *)data)[at] = f16_from_f32(x);
}

static void store_bf16(void *data, int64_t at, float x)
{
    ((uint16_t *)data)[at] = bf16_from_f32(x);
}

typedef struct storage {
    float (*load)(const void *data, int64_t at);
    void (*store)(void *data, int64_t at, float x);
} storage;

/* by attn_dtype */
static const storage storages[] = {
    { load_f32, store_f32 },
    { load_f16, store_f16 },
    { load_bf16, store_bf16 },
};
#define STORAGE_COUNT COUNT_OF(storages)

/* ------------------------------------------------------------------------------------------------
 * 3  Kernels: the portable table. Each body is written once, in plain loops over 16 lanes that
 *    compilers vectorise, and built by PORTABLE_SET below: plain, and on x86 once more for FMA.
 *    Contracts and layouts: the end of attn.h.
 * --------------------------------------------------------------------------------------------- */

/* What is dead in a product that leaves dead pairs out: b of a lane, or x for all lanes. */
#define DEAD_B 1
#define DEAD_X 2

/* One step of a chain: fma(x, b, c), or c itself where what `select` names is dead, that is -0. By
 * integers: gcc does not vectorise the float compare. */
KERNEL float link(int hw, int select, float x, float b, float c)
{
    const float y = fma32(hw, x, b, c);
    const uint32_t dead = 0u - (uint32_t)is_dead(select == DEAD_X ? x : b);
    return select ? float_of((bits_of(c) & dead) | (bits_of(y) & ~dead)) : y;
}

/* Eight chains in eight lanes: c[i*ci + lane] = fma(x[i*xi + t*xt], b[t*bt + lane], c[i*ci +
 * lane]), t = 0..n-1. All matrix products are this loop: for Q K^T t runs over head_dim (xi =
 * k_stride, xt = 1, b = qt), for P V over keys (xi = 1, xt = v_stride, b = p), for `outer` over
 * rows (xi = LANES, xt = 1, its lanes are columns of b).
 * One lane loop of exactly eight over separate arrays is what gcc 12 and clang 14 both turn into
 * registers at -O2: 70 % and 85 % of the AVX2 FMA peak; 16 lanes or an array of arrays fell to
 * 10-45 % in one of them. */
#define STRIP 8
KERNEL void chains8(int hw, int select, float *c, ptrdiff_t ci, const float *x, ptrdiff_t xi,
                    ptrdiff_t xt, const float *b, ptrdiff_t bt, int64_t n)
{
    float c0[STRIP], c1[STRIP], c2[STRIP], c3[STRIP], c4[STRIP], c5[STRIP], c6[STRIP], c7[STRIP];
    int64_t t;
    int r;
    for (r = 0; r < STRIP; r++) {
        c0[r] = c[r];
        c1[r] = c[r + ci];
        c2[r] = c[r + 2 * ci];
        c3[r] = c[r + 3 * ci];
        c4[r] = c[r + 4 * ci];
        c5[r] = c[r + 5 * ci];
        c6[r] = c[r + 6 * ci];
        c7[r] = c[r + 7 * ci];
    }
    for (t = 0; t < n; t++, x += xt, b += bt) {
        const float x0 = x[0], x1 = x[xi], x2 = x[2 * xi], x3 = x[3 * xi];
        const float x4 = x[4 * xi], x5 = x[5 * xi], x6 = x[6 * xi], x7 = x[7 * xi];
        for (r = 0; r < STRIP; r++) {
            c0[r] = link(hw, select, x0, b[r], c0[r]);
            c1[r] = link(hw, select, x1, b[r], c1[r]);
            c2[r] = link(hw, select, x2, b[r], c2[r]);
            c3[r] = link(hw, select, x3, b[r], c3[r]);
            c4[r] = link(hw, select, x4, b[r], c4[r]);
            c5[r] = link(hw, select, x5, b[r], c5[r]);
            c6[r] = link(hw, select, x6, b[r], c6[r]);
            c7[r] = link(hw, select, x7, b[r], c7[r]);
        }
    }
    for (r = 0; r < STRIP; r++) {
        c[r] = c0[r];
        c[r + ci] = c1[r];
        c[r + 2 * ci] = c2[r];
        c[r + 3 * ci] = c3[r];
        c[r + 4 * ci] = c4[r];
        c[r + 5 * ci] = c5[r];
        c[r + 6 * ci] = c6[r];
        c[r + 7 * ci] = c7[r];
    }
}

/* One chain: what is left over when the count is not a multiple of eight. */
KERNEL void chain(int hw, int select, float *c, const float *x, ptrdiff_t xt, const float *b,
                  ptrdiff_t bt, int64_t n)
{
    float c0[STRIP];
    int64_t t;
    int r;
    for (r = 0; r < STRIP; r++)
        c0[r] = c[r];
    for (t = 0; t < n; t++, x += xt, b += bt)
        for (r = 0; r < STRIP; r++)
            c0[r] = link(hw, select, x[0], b[r], c0[r]);
    for (r = 0; r < STRIP; r++)
        c[r] = c0[r];
}

/* `count` chains in lanes begin..end-1, chain i in row c + i*ci, its factors from x + i*xi. */
KERNEL void chains(int hw, int select, float *c, ptrdiff_t ci, int64_t count, const float *x,
                   ptrdiff_t xi, ptrdiff_t xt, const float *b, ptrdiff_t bt, int64_t n,
                   int64_t begin, int64_t end)
{
    int64_t i, at;
    for (at = begin / STRIP * STRIP; at < end; at += STRIP) {
        for (i = 0; i + 8 <= count; i += 8)
            chains8(hw, select, c + i * ci + at, ci, x + i * xi, xi, xt, b + at, bt, n);
        for (; i < count; i++)
            chain(hw, select, c + i * ci + at, x + i * xi, xt, b + at, bt, n);
    }
}

KERNEL void widen_body(float (*load)(uint16_t), float *to, const uint16_t *from, int64_t n)
{
    int64_t d;
    for (d = 0; d < n; d++)
        to[d] = load(from[d]);
}

/* Rounding may make a new -0, which no output holds. */
KERNEL void narrow_body(uint16_t (*store)(float), uint16_t *to, const float *from, int64_t n)
{
    int64_t d;
    for (d = 0; d < n; d++) {
        to[d] = store(from[d]);
        to[d] = to[d] == 0x8000u ? 0 : to[d];
    }
}

KERNEL void pack_body(float *qt, const float *const *q, int64_t head_dim, float c)
{
    int64_t d;
    int r;
    for (r = 0; r < LANES; r++)
        for (d = 0; d < head_dim; d++)
            qt[d * LANES + r] = q[r][d] * c;
}

KERNEL void softcap_body(int hw, float *s, int n, float cap2, float icap2)
{
    int k;
    for (k = 0; k < n * LANES; k++) {
        float x = s[k] * icap2;
        x = tanh_with(hw, x);
        s[k] = cap2 * x;
    }
}

KERNEL void add_scaled_body(int hw, float *s, const float *x, const float *factor, int n)
{
    int j, r;
    for (j = 0; j < n; j++, s += LANES, x += LANES) {
        for (r = 0; r < LANES; r++) {
            const float y = fma32(hw, x[r], factor[r], s[r]);
            s[r] = x[r] == NEG_INF ? NEG_INF : y;
        }
    }
}

/* The running maximum is the second operand, so that a NaN in s leaves it alone. */
KERNEL void maximum_body(const float *s, int n, float *m)
{
    float top[LANES];
    int j, r;
    memcpy(top, m, sizeof top);
    for (j = 0; j < n; j++, s += LANES)
        for (r = 0; r < LANES; r++)
            top[r] = s[r] > top[r] ? s[r] : top[r];
    memcpy(m, top, sizeof top);
}

KERNEL void exp_sum_body(int hw, float *s, int n, float dead, const float *m, float *l)
{
    float from[LANES], sum[LANES];
    int j, r;
    for (r = 0; r < LANES; r++) {
        from[r] = m[r] == NEG_INF ? 0.0f : m[r];
        sum[r] = l[r];
    }
    for (j = 0; j < n; j++, s += LANES) {
        for (r = 0; r < LANES; r++) {
            float p = s[r] - from[r];
            p = exp2_with(hw, p); /* +0 for a dead key */
            sum[r] = sum[r] + p;
            s[r] = s[r] == NEG_INF ? dead : p;
        }
    }
    memcpy(l, sum, sizeof sum);
}

KERNEL void exp_block_body(int hw, const attn_exp *e)
{
    exp_sum_body(hw, e->s, e->n, 0.0f, e->m, e->l);
}

/* 16 at a time, which compilers vectorise. */
KERNEL int finite_body(const float *x, int64_t n)
{
    uint32_t wrong[16] = { 0 }, any = 0;
    int64_t k;
    int i;
    for (k = 0; k + 16 <= n; k += 16)
        for (i = 0; i < 16; i++)
            wrong[i] |= 0u - (uint32_t)((bits_of(x[k + i]) & 0x7f800000u) == 0x7f800000u);
    for (; k < n; k++)
        any |= !is_finite(x[k]);
    for (i = 0; i < 16; i++)
        any |= wrong[i];
    return !any;
}

/* All at once: beside plain loops the rhythm does not matter. */
static void ask_ahead(attn_ahead *a)
{
    for (; a && a->lines > 0; a->lines--) {
        PREFETCH(a->row + a->at);
        attn_next_line(a);
    }
}

KERNEL void qk_body(int hw, float *s, const float *qt, const float *k, ptrdiff_t k_stride, int n,
                    int64_t head_dim, attn_lanes lanes, const attn_exp *beside)
{
    if (beside) /* only vector kernels gain from doing both at once */
        exp_block_body(hw, beside);
    memset(s, 0, (size_t)n * LANES * sizeof *s);
    chains(hw, 0, s, LANES, n, k, k_stride, 1, qt, LANES, head_dim, lanes.begin, lanes.end);
}

KERNEL void clip_body(float *s, int n, const int *begin, const int *end)
{
    int j, r;
    for (j = 0; j < n; j++, s += LANES)
        for (r = 0; r < LANES; r++)
            s[r] = j >= begin[r] && j < end[r] ? s[r] : NEG_INF;
}

KERNEL void hide_body(float *s, const uint8_t *alive, int n)
{
    int k;
    for (k = 0; k < n * LANES; k++)
        s[k] = alive[k] ? s[k] : NEG_INF;
}

/* The threshold keeps p at most 2^16 and rescales rare. The portable set never claims calm. */
KERNEL int running_max_body(int hw, const float *s, int n, float *m, float *l, float *alpha)
{
    float highest[LANES];
    int r, raised = 0;
    for (r = 0; r < LANES; r++)
        highest[r] = NEG_INF;
    maximum_body(s, n, highest);
    for (r = 0; r < LANES; r++) {
        const float limit = m[r] + ATTN_THRESHOLD;
        const int begun = m[r] > NEG_INF;
        const int up = begun && highest[r] > limit;
        float a = up ? m[r] - highest[r] : 0.0f;
        a = exp2_with(hw, a); /* exactly 1 where nothing is raised */
        m[r] = up || !begun ? highest[r] : m[r];
        l[r] = l[r] * a;
        alpha[r] = a;
        raised |= up;
    }
    return raised ? ATTN_RAISED : 0;
}

KERNEL void rescale_body(float *x, const float *alpha, int64_t count)
{
    int64_t k;
    int r;
    for (k = 0; k < count; k++, x += LANES)
        for (r = 0; r < LANES; r++)
            x[r] = x[r] * alpha[r];
}

/* A tile's state, [m rows][l rows][o], seen as an attn_state. */
static attn_state state_view(float *state, int rows)
{
    attn_state view;
    view.num_rows = rows;
    view.head_dim_v = 0;
    view.m = state;
    view.l = state + rows;
    view.o = state + 2 * rows;
    return view;
}

KERNEL void result_body(int rows, float *const *out, const float *o, const float *l, float factor,
                        int64_t head_dim_v)
{
    int64_t d;
    int r;
    for (r = 0; r < rows; r++) {
        const int empty = l[r] == 0.0f;
        float inverse = 1.0f / (empty ? 1.0f : l[r]);
        inverse = inverse * factor;
        for (d = 0; d < head_dim_v; d++) {
            float x = o[d * rows + r] * inverse;
            x = x + 0.0f; /* -0 becomes +0 */
            x = is_nan(x) ? float_of(CANONICAL_NAN) : x;
            out[r][d] = empty ? 0.0f : x;
        }
    }
}

KERNEL void gradient_body(int hw, float *s, float *dp, int n, const float *lse2, const float *delta)
{
    float from[LANES], less[LANES];
    int j, r;
    memcpy(less, delta, sizeof less);
    for (r = 0; r < LANES; r++)
        from[r] = lse2[r] == NEG_INF ? 0.0f : lse2[r];
    for (j = 0; j < n; j++, s += LANES, dp += LANES) {
        for (r = 0; r < LANES; r++) {
            const int dead = s[r] == NEG_INF;
            float p = s[r] - from[r], ds = dp[r] - less[r];
            p = p > 127.0f ? 127.0f : p;
            p = exp2_with(hw, p);
            ds = p * ds;
            s[r] = dead ? ATTN_DEAD : p;
            dp[r] = dead ? ATTN_DEAD : ds;
        }
    }
}

KERNEL void softcap_gradient_body(int hw, float *ds, const float *t, const float *p, int n)
{
    int k;
    for (k = 0; k < n * LANES; k++) {
        float x = fma32(hw, -t[k], t[k], 1.0f);
        x = ds[k] * x;
        ds[k] = is_dead(p[k]) ? ATTN_DEAD : x;
    }
}

KERNEL void outer_body(int hw, int select, float *c, ptrdiff_t c_stride, const attn_terms *terms,
                       int n, int64_t columns)
{
    int g;
    for (g = 0; g < terms->count; g++) {
        const attn_term *f = &terms->term[g];
        const int first = f->lanes.begin, end = f->end < n ? f->end : n;
        chains(hw, select, c + f->begin * c_stride, c_stride, end - f->begin,
               f->x + f->begin * LANES + first, LANES, 1, f->b + first * terms->b_stride,
               terms->b_stride, f->lanes.end - first, 0, columns);
    }
}

KERNEL void dots_body(int hw, float *to, const float *a, const float *b, int64_t dim)
{
    float sum[LANES] = { 0 };
    int64_t d;
    int r;
    for (d = 0; d < dim; d++, a += LANES, b += LANES)
        for (r = 0; r < LANES; r++)
            sum[r] = fma32(hw, a[r], b[r], sum[r]);
    memcpy(to, sum, sizeof sum);
}

/* Defines the table kernels_SET from the bodies. TARGET: function attribute; HW: may use
 * fma_hard. */
#define PORTABLE_SET(SET, NAME, TARGET, HW)                                                        \
    TARGET static void widen_f16_##SET(float *to, const uint16_t *from, int64_t n)                 \
    {                                                                                              \
        widen_body(f16_to_f32, to, from, n);                                                       \
    }                                                                                              \
    TARGET static void widen_bf16_##SET(float *to, const uint16_t *from, int64_t n)                \
    {                                                                                              \
        widen_body(bf16_to_f32, to, from, n);                                                      \
    }                                                                                              \
    TARGET static void narrow_f16_##SET(uint16_t *to, const float *from, int64_t n)                \
    {                                                                                              \
        narrow_body(f16_from_f32, to, from, n);                                                    \
    }                                                                                              \
    TARGET static void narrow_bf16_##SET(uint16_t *to, const float *from, int64_t n)               \
    {                                                                                              \
        narrow_body(bf16_from_f32, to, from, n);                                                   \
    }                                                                                              \
    TARGET static void pack_##SET(float *qt, const float *const *q, int64_t head_dim, float c)     \
    {                                                                                              \
        pack_body(qt, q, head_dim, c);                                                             \
    }                                                                                              \
    TARGET static void qk_##SET(float *s, const float *qt, const float *k, ptrdiff_t k_stride,     \
                                int n, int64_t head_dim, attn_lanes lanes, const attn_exp *beside, \
                                attn_ahead *ahead)                                                 \
    {                                                                                              \
        ask_ahead(ahead);                                                                          \
        qk_body(HW, s, qt, k, k_stride, n, head_dim, lanes, beside);                               \
    }                                                                                              \
    TARGET static void softcap_##SET(float *s, int n, float cap2, float icap2)                     \
    {                                                                                              \
        softcap_body(HW, s, n, cap2, icap2);                                                       \
    }                                                                                              \
    TARGET static void add_scaled_##SET(float *s, const float *x, const float *factor, int n)      \
    {                                                                                              \
        add_scaled_body(HW, s, x, factor, n);                                                      \
    }                                                                                              \
    TARGET static void clip_##SET(float *s, int n, const int *begin, const int *end)               \
    {                                                                                              \
        clip_body(s, n, begin, end);                                                               \
    }                                                                                              \
    TARGET static void hide_##SET(float *s, const uint8_t *alive, int n)                           \
    {                                                                                              \
        hide_body(s, alive, n);                                                                    \
    }                                                                                              \
    TARGET static int running_max_##SET(const float *s, int n, float *m, float *l, float *alpha)   \
    {                                                                                              \
        return running_max_body(HW, s, n, m, l, alpha);                                            \
    }                                                                                              \
    TARGET static void maximum_##SET(const float *s, int n, float *m)                              \
    {                                                                                              \
        maximum_body(s, n, m);                                                                     \
    }                                                                                              \
    TARGET static void exp_sum_##SET(float *s, int n, float dead, const float *m, float *l)        \
    {                                                                                              \
        exp_sum_body(HW, s, n, dead, m, l);                                                        \
    }                                                                                              \
    TARGET static void exp_block_##SET(const attn_exp *e)                                          \
    {                                                                                              \
        exp_block_body(HW, e);                                                                     \
    }                                                                                              \
    TARGET static int finite_##SET(const float *x, int64_t n)                                      \
    {                                                                                              \
        return finite_body(x, n);                                                                  \
    }                                                                                              \
    TARGET static void rescale_##SET(float *x, const float *alpha, int64_t count)                  \
    {                                                                                              \
        rescale_body(x, alpha, count);                                                             \
    }                                                                                              \
    TARGET static void pv_##SET(float *o, const float *p, const float *v, ptrdiff_t v_stride,      \
                                int n, int64_t head_dim_v, attn_lanes lanes, attn_ahead *ahead)    \
    {                                                                                              \
        ask_ahead(ahead);                                                                          \
        chains(HW, 0, o, LANES, head_dim_v, v, 1, v_stride, p, LANES, n, lanes.begin, lanes.end);  \
    }                                                                                              \
    TARGET static void pv_select_##SET(float *o, const float *p, const float *v,                   \
                                       ptrdiff_t v_stride, int n, int64_t head_dim_v,              \
                                       attn_lanes lanes)                                           \
    {                                                                                              \
        chains(HW, DEAD_B, o, LANES, head_dim_v, v, 1, v_stride, p, LANES, n, lanes.begin,         \
               lanes.end);                                                                         \
    }                                                                                              \
    TARGET static void merge_##SET(float *a, float *b, int64_t head_dim_v)                         \
    {                                                                                              \
        const attn_state lower = state_view(a, LANES), upper = state_view(b, LANES);               \
        merge_body(HW, LANES, &lower, &upper, &upper, head_dim_v);                                 \
    }                                                                                              \
    TARGET static void result_##SET(float *const *out, const float *o, const float *l,             \
                                    float factor, int64_t head_dim_v)                              \
    {                                                                                              \
        result_body(LANES, out, o, l, factor, head_dim_v);                                         \
    }                                                                                              \
    TARGET static void gradient_##SET(float *s, float *dp, int n, const float *lse2,               \
                                      const float *delta)                                          \
    {                                                                                              \
        gradient_body(HW, s, dp, n, lse2, delta);                                                  \
    }                                                                                              \
    TARGET static void softcap_gradient_##SET(float *ds, const float *t, const float *p, int n)    \
    {                                                                                              \
        softcap_gradient_body(HW, ds, t, p, n);                                                    \
    }                                                                                              \
    TARGET static void outer_##SET(float *c, ptrdiff_t c_stride, const attn_terms *terms, int n,   \
                                   int64_t columns)                                                \
    {                                                                                              \
        outer_body(HW, 0, c, c_stride, terms, n, columns);                                         \
    }                                                                                              \
    TARGET static void outer_select_##SET(float *c, ptrdiff_t c_stride, const attn_terms *terms,   \
                                          int n, int64_t columns)                                  \
    {                                                                                              \
        outer_body(HW, DEAD_X, c, c_stride, terms, n, columns);                                    \
    }                                                                                              \
    TARGET static void dots_##SET(float *to, const float *a, const float *b, int64_t dim)          \
    {                                                                                              \
        dots_body(HW, to, a, b, dim);                                                              \
    }                                                                                              \
    static const attn_kernels kernels_##SET = { ATTN_KERNEL_ABI,                                   \
                                                LANES,                                             \
                                                NAME,                                              \
                                                widen_f16_##SET,                                   \
                                                widen_bf16_##SET,                                  \
                                                narrow_f16_##SET,                                  \
                                                narrow_bf16_##SET,                                 \
                                                pack_##SET,                                        \
                                                qk_##SET,                                          \
                                                softcap_##SET,                                     \
                                                add_scaled_##SET,                                  \
                                                clip_##SET,                                        \
                                                hide_##SET,                                        \
                                                running_max_##SET,                                 \
                                                maximum_##SET,                                     \
                                                exp_sum_##SET,                                     \
                                                exp_block_##SET,                                   \
                                                finite_##SET,                                      \
                                                rescale_##SET,                                     \
                                                pv_##SET,                                          \
                                                pv_select_##SET,                                   \
                                                merge_##SET,                                       \
                                                result_##SET,                                      \
                                                0,                                                 \
                                                NULL,                                              \
                                                NULL,                                              \
                                                gradient_##SET,                                    \
                                                softcap_gradient_##SET,                            \
                                                outer_##SET,                                       \
                                                outer_select_##SET,                                \
                                                dots_##SET };

PORTABLE_SET(portable, "portable", , FMA_BASE)
#ifdef FMA_SECOND_BUILD
PORTABLE_SET(portable_fma, "portable_fma", FMA_TARGET, 1)
#endif

/* ------------------------------------------------------------------------------------------------
 * 4  Kernel selection
 * --------------------------------------------------------------------------------------------- */

#define CPU_KNOWN 1u /* the word has been written */

#if defined __GNUC__ && (defined __x86_64__ || defined __i386__)
#ifdef __i386__
#define SWAP_EBX "xchgl %%ebx, %k1\n\t"
#else
#define SWAP_EBX "xchgq %%rbx, %q1\n\t"
#endif

/* ebx may hold the GOT pointer of 32-bit position-independent code: it is saved by hand. */
static void cpuid(unsigned leaf, unsigned out[4])
{
    __asm__ volatile(SWAP_EBX "cpuid\n\t" SWAP_EBX
                     : "=a"(out[0]), "=&r"(out[1]), "=c"(out[2]), "=d"(out[3])
                     : "0"(leaf), "2"(0));
}

/* The CPU has the instructions and the operating system saves the registers: XCR0 bits 1 and 2 for
 * AVX, 5 to 7 for AVX-512. */
static unsigned detect_cpu(void)
{
    const unsigned basis = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; /* FMA OSXSAVE AVX F16C */
    const unsigned avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17;
    unsigned r[4], low, high, found = CPU_KNOWN;
    cpuid(0, r);
    if (r[0] < 7)
        return found;
    cpuid(1, r);
    if ((r[2] & basis) != basis)
        return found;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0)); /* xgetbv */
    cpuid(7, r);
    if ((low & 0x06) == 0x06 && (r[1] & avx2))
        found |= ATTN_CPU_AVX2;
    if ((low & 0xe6) == 0xe6 && (r[1] & avx512) == avx512)
        found |= ATTN_CPU_AVX512;
    return found;
}
#else
static unsigned detect_cpu(void)
{
    return CPU_KNOWN;
}
#endif

static unsigned cpu_features; /* the only writable word of the library */

ATTN_API unsigned attn_cpu_features(void)
{
    unsigned features = LOAD_WORD(&cpu_features);
    if (!features) {
        features = detect_cpu();
        STORE_WORD(&cpu_features, features);
    }
    return features;
}

#ifdef FMA_SECOND_BUILD
static const attn_kernels *get_portable_fma(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX2 ? &kernels_portable_fma : NULL;
}
#endif

static const attn_kernels *get_portable(void)
{
    return &kernels_portable;
}

/* Best first; each answers with its table, or NULL if this CPU cannot run it. */
static const struct kernel_source {
    const char *name;
    const attn_kernels *(*get)(void);
    int narrow; /* of the set before it, for few rows */
} kernel_sources[] = {
#ifdef ATTN_SIMD_AVX512
    { "avx512", attn_kernels_avx512, 0 },    { "avx512_narrow", attn_kernels_avx512_narrow, 1 },
#endif
#ifdef ATTN_SIMD_AVX2
    { "avx2", attn_kernels_avx2, 0 },        { "avx2_narrow", attn_kernels_avx2_narrow, 1 },
#endif
#ifdef ATTN_SIMD_NEON
    { "neon", attn_kernels_neon, 0 },        { "neon_narrow", attn_kernels_neon_narrow, 1 },
#endif
#ifdef FMA_SECOND_BUILD
    { "portable_fma", get_portable_fma, 0 },
#endif
#ifdef ATTN_SIMD_SSE2
    { "sse2", attn_kernels_sse2, 0 },        { "sse2_narrow", attn_kernels_sse2_narrow, 1 },
#endif
    { "portable", get_portable, 0 },
};

ATTN_API const attn_kernels *attn_kernels_get(int index)
{
    int i;
    for (i = 0; i < COUNT_OF(kernel_sources) && index >= 0; i++) {
        const attn_kernels *kernels = kernel_sources[i].get();
        if (kernels && index-- == 0)
            return kernels;
    }
    return NULL;
}

/* The best set for tiles of so many rows: the first that runs, or its narrow form. */
static const attn_kernels *best_kernels(int64_t rows)
{
    const attn_kernels *best = NULL;
    int i;
    for (i = 0; i < COUNT_OF(kernel_sources); i++) {
        const attn_kernels *kernels = kernel_sources[i].get();
        if (!kernels)
            continue;
        if (!best)
            best = kernels;
        else if (kernel_sources[i].narrow && rows <= kernels->rows)
            return kernels;
        else
            break;
    }
    return best;
}

/* Sets that are linked in, but cannot run here. */
static void put_missing_kernels(text *why)
{
    int i;
    for (i = 0; i < COUNT_OF(kernel_sources); i++)
        if (!kernel_sources[i].get()) {
            put(why, "; kernels ");
            put(why, kernel_sources[i].name);
            put(why, ": this CPU or its operating system cannot run them");
        }
}

ATTN_API const attn_kernels *attn_kernels_find(const char *name)
{
    int i;
    const attn_kernels *kernels;
    for (i = 0; name && (kernels = attn_kernels_get(i)) != NULL; i++)
        if (same_word(kernels->name, name, strlen(name)))
            return kernels;
    return NULL;
}

ATTN_API const char *attn_kernels_name(const attn_kernels *kernels)
{
    return kernels ? kernels->name : "none";
}

/* ------------------------------------------------------------------------------------------------
 * 5  Problem: the parameters with every default resolved, and one sequence of the batch
 * --------------------------------------------------------------------------------------------- */

/* ---- tuning: sizes that a machine may want otherwise, and that change no bit of a tiled result */

/* `usual` values were measured on x86 with 1 MiB of L2 cache. */
static const struct tuning_value {
    const char *name;
    size_t offset; /* of an int64_t */
    int64_t usual, least, most;
    int powers; /* of two only */
    const char *rest;
} tuning_values[] = {
    { "tile_keys", offsetof(tuning, tile_keys), 0, 16, 1024, 1,
      " must be a power of two from 16 to 1024" },
    { "item_rows", offsetof(tuning, item_rows), 96, 1, 4096, 0, " must be from 1 to 4096" },
    { "item_bytes", offsetof(tuning, item_bytes), 1 << 20, 1 << 14, 1 << 30, 0,
      " must be from 16384 to 1073741824" },
    { "split_work", offsetof(tuning, split_work), 1 << 19, 1, 1 << 30, 0,
      " must be from 1 to 1073741824" },
    { "ahead", offsetof(tuning, ahead), 1, 0, 1, 0, " must be 0 or 1" },
    { "auto_naive_keys", offsetof(tuning, auto_naive_keys), ATTN_AUTO_NAIVE_KEYS, 0, 1 << 20, 0,
      " must be from 0 to 1048576" },
};

static void usual_tuning(tuning *t)
{
    int i;
    for (i = 0; i < COUNT_OF(tuning_values); i++)
        memcpy((char *)t + tuning_values[i].offset, &tuning_values[i].usual, sizeof(int64_t));
}

/* The words of a tuning text, without its comments; what is no printing ASCII separates them as a
 * space does, up to 32, or is shown as '?'. */
typedef struct reader {
    const char *at;
    int line;
} reader;

static size_t next_word(reader *r, const char **word)
{
    for (; *r->at == '#' || (*r->at && (unsigned char)*r->at <= ' '); r->at++) {
        r->line += *r->at == '\n';
        if (*r->at == '#') /* comments are most of a file */
            while (r->at[1] && r->at[1] != '\n')
                r->at++;
    }
    *word = r->at;
    while ((unsigned char)*r->at > ' ' && *r->at != '#')
        r->at++;
    return (size_t)(r->at - *word);
}

/* A word as it may stand in a sentence: a damaged text can hold anything. */
static void put_strange(text *t, const char *word, size_t length)
{
    size_t i;
    for (i = 0; i < length && i < 40; i++)
        put_word(t, word[i] > ' ' && word[i] <= '~' ? word + i : "?", 1);
    put(t, i < length ? "..." : "");
}

static void put_damage(text *t, const reader *r)
{
    put(t, "tuning is ignored: line ");
    put_int(t, r->line);
    put(t, ": ");
}

static void put_unknown(text *t, const reader *r, const char *word, size_t length)
{
    int i;
    put_damage(t, r);
    put(t, "unknown word '");
    put_strange(t, word, length);
    put(t, "': it must be [SET.]NAME VALUE, with NAME ");
    for (i = 0; i < COUNT_OF(tuning_values); i++) {
        put(t, i == 0 ? "" : i + 1 < COUNT_OF(tuning_values) ? ", " : " or ");
        put(t, tuning_values[i].name);
    }
    put(t, ", or 'end'");
}

/* "[SET.]NAME VALUE", the word `key` and the one that follows: enters *t if it is meant for `set`.
 * Returns 0 with a sentence if it is not such. */
static int read_value(reader *r, const char *key, size_t length, const char *set, tuning *t,
                      text *why)
{
    const char *value;
    size_t dot = 0, digits;
    int64_t number;
    int i, meant;
    while (dot < length && key[dot] != '.')
        dot++;
    meant = dot == length || same_word(set, key, dot);
    dot = dot == length ? 0 : dot + 1;
    for (i = 0; i < COUNT_OF(tuning_values); i++) {
        const struct tuning_value *v = &tuning_values[i];
        if (!same_word(v->name, key + dot, length - dot))
            continue;
        digits = next_word(r, &value);
        if (parse_int(value, digits, &number) && number >= v->least && number <= v->most &&
            !(v->powers && (number & (number - 1)))) {
            if (meant)
                memcpy((char *)t + v->offset, &number, sizeof number);
            return 1;
        }
        put_damage(why, r);
        put(why, v->name);
        put(why, " (");
        put_strange(why, value, digits);
        put(why, ")");
        put(why, v->rest);
        return 0;
    }
    put_unknown(why, r, key, length);
    return 0;
}

/* All of a tuning text; see attn.h, p.tuning. */
static int read_values(reader *r, const char *set, tuning *t, text *why)
{
    const char *word;
    size_t length = next_word(r, &word);
    int ok = same_word("attn-tuning", word, length);
    length = next_word(r, &word);
    if (!ok || !same_word("1", word, length)) {
        put_damage(why, r);
        put(why, "it must begin with 'attn-tuning 1'");
        return 0;
    }
    while ((length = next_word(r, &word)) > 0 && !same_word("end", word, length))
        if (!read_value(r, word, length, set, t, why))
            return 0;
    if (!length || next_word(r, &word)) {
        put_damage(why, r);
        put(why, "it must end with 'end'");
        return 0;
    }
    return 1;
}

/* What the text says about a kernel set; the usual values without a text. A damaged one counts as
 * none: then returns 0, and why holds a sentence. */
static int read_tuning(const char *string, const char *set, tuning *t, text *why)
{
    reader r;
    usual_tuning(t);
    r.at = string;
    r.line = 1;
    if (!string || read_values(&r, set, t, why))
        return 1;
    usual_tuning(t);
    return 0;
}

/* What p.tuning says that is not usual, or what is wrong with it. */
static void put_tuning(const problem *pr, const plan *pl, text *why)
{
    tuning t;
    int64_t value;
    int i, found = 0;
    if (!pr->p.tuning)
        return;
    put(why, "; ");
    if (!read_tuning(pr->p.tuning, pl->kernels->name, &t, why))
        return;
    for (i = 0; i < COUNT_OF(tuning_values); i++) {
        memcpy(&value, (const char *)&t + tuning_values[i].offset, sizeof value);
        if (value == tuning_values[i].usual)
            continue;
        put(why, found++ ? " " : "tuning: ");
        put_field(why, tuning_values[i].name, value);
    }
    put(why, found ? "" : "tuning: the usual sizes");
}

static int64_t q_capacity(const attn_params *p, int64_t b)
{
    return p->cu_seqlens_q ? (int64_t)p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b] : p->seq_len_q;
}

static int64_t kv_capacity(const attn_params *p, int64_t b)
{
    return p->cu_seqlens_kv ? (int64_t)p->cu_seqlens_kv[b + 1] - p->cu_seqlens_kv[b]
                            : p->seq_len_kv;
}

/* Narrows *from..*to-1 to `count` from `begin` on. */
static void take_part_of(int64_t begin, int64_t count, int64_t *from, int64_t *to)
{
    *from = max64(*from, min64(begin, *to));
    *to = max64(*from, min64(begin + count, *to));
}

static sequence sequence_of(const attn_params *p, int64_t b)
{
    sequence s;
    s.b = b;
    s.column = entry32(p->kv_begin, b, 0);
    s.q_row = entry32(p->cu_seqlens_q, b, 0);
    s.kv_row = entry32(p->cu_seqlens_kv, b, 0) + s.column + entry32(p->kv_rows.begin, b, 0);
    s.q_len = entry32(p->q_len, b, q_capacity(p, b));
    s.kv_len = entry32(p->kv_len, b, kv_capacity(p, b) - s.column);
    s.row_from = 0;
    s.row_to = s.q_len;
    s.key_from = 0;
    s.key_to = s.kv_len;
    if (p->part.rows) {
        s.q_row -= p->part.row_begin;
        take_part_of(p->part.row_begin, p->part.row_count, &s.row_from, &s.row_to);
    }
    if (p->part.keys) {
        s.kv_row -= p->part.key_begin;
        take_part_of(p->part.key_begin - s.column, p->part.key_count, &s.key_from, &s.key_to);
    }
    s.key_base = p->key_base ? p->key_base[b] : 0;
    s.prefix = entry32(p->prefix, b, 0);
    s.offset = 0;
    if (p->alignment == ATTN_ALIGN_BOTTOM_RIGHT)
        s.offset = s.kv_len - s.q_len;
    if (p->alignment == ATTN_ALIGN_OFFSET)
        s.offset = p->q_offset[b];
    return s;
}

/* fl(scale * log2 e) to nearly the last bit: LOG2E_LO carries what binary32 loses of log2 e. */
static float score_factor(float scale)
{
    float low = scale * LOG2E_LO;
    return fma32(FMA_BASE, scale, LOG2E_HI, low);
}

static void resolve_sizes(attn_params *p)
{
    if (p->num_heads_kv == 0)
        p->num_heads_kv = p->num_heads_q;
    if (p->head_dim_v == 0)
        p->head_dim_v = p->head_dim;
    if (p->scale == 0.0f && p->head_dim > 0)
        p->scale = inv_sqrt_nearest((uint64_t)p->head_dim);
    if (p->window && p->window_left > TOO_BIG)
        p->window_left = -1;
    if (p->window && p->window_right > TOO_BIG)
        p->window_right = -1;
    if (p->num_workers == 0 && !p->parallel_for)
        p->num_workers = OPENMP_THREADS;
    if (p->num_workers == 0)
        p->num_workers = 1;
}

/* Workers that can run at once in a call of attn_forward, rather than those to size for. */
static void settle_workers(attn_params *p)
{
    if (!p->parallel_for && OPENMP_THREADS == 0)
        p->num_workers = 1;
}

/* Where 0 means broadcast, its long name does, too. */
static void resolve_broadcast(ptrdiff_t *stride)
{
    if (*stride == ATTN_STRIDE_BROADCAST)
        *stride = 0;
}

static void resolve_mask_strides(attn_mask *m)
{
    resolve_broadcast(&m->stride_batch);
    resolve_broadcast(&m->stride_head);
    resolve_broadcast(&m->stride_q);
    resolve_broadcast(&m->stride_kv);
}

/* Rows of a batch entry of k and v, or of a page. */
static int64_t rows_of_entry(const attn_params *p)
{
    const attn_rows *rows = &p->kv_rows;
    return rows->page_size ? rows->page_size : rows->ring ? rows->ring : keys_held(p);
}

/* Entries of a sequence's page table. */
static int64_t table_entries(const attn_params *p)
{
    const int64_t rows = p->kv_rows.ring ? p->kv_rows.ring : p->seq_len_kv;
    return rows ? (rows - 1) / p->kv_rows.page_size + 1 : 0;
}

static void resolve_rows(attn_params *p)
{
    attn_rows *rows = &p->kv_rows;
    if (rows->page_size)
        rows->table_stride = stride_or(rows->table_stride, table_entries(p));
}

static void resolve_layouts(attn_params *p)
{
    const int varlen = p->cu_seqlens_q != NULL, packed = p->cu_seqlens_kv != NULL;
    const attn_block_mask *blocks = &p->block_mask;
    resolve_rows(p);
    RESOLVE_STRIDES(p->q, varlen, p->num_heads_q, rows_held(p), p->head_dim);
    RESOLVE_STRIDES(p->k, packed, p->num_heads_kv, rows_of_entry(p), p->head_dim);
    RESOLVE_STRIDES(p->v, packed, p->num_heads_kv, rows_of_entry(p), p->head_dim_v);
    RESOLVE_STRIDES(p->o, varlen, p->num_heads_q, rows_held(p), p->head_dim_v);
    RESOLVE_STRIDES(p->lse, 0, p->num_heads_q, rows_held(p), 1);
    if (varlen)
        p->lse.stride_batch = 0;
    resolve_broadcast(&p->bias.stride_batch);
    resolve_broadcast(&p->bias.stride_head);
    resolve_broadcast(&p->bias.stride_q);
    resolve_broadcast(&p->bias.stride_kv);
    resolve_mask_strides(&p->bool_mask);
    resolve_mask_strides(&p->bit_mask);
    resolve_broadcast(&p->block_mask.stride_batch);
    resolve_broadcast(&p->block_mask.stride_head);
    resolve_broadcast(&p->block_mask.csr_stride_batch);
    resolve_broadcast(&p->block_mask.csr_stride_head);
    resolve_broadcast(&p->alibi_stride);
    if (p->q_segments_stride == 0)
        p->q_segments_stride = to_stride(p->seq_len_q);
    if (p->kv_segments_stride == 0)
        p->kv_segments_stride = to_stride(p->seq_len_kv);
    if (p->tree_stride == 0)
        p->tree_stride = to_stride(p->seq_len_q);
    resolve_broadcast(&p->q_segments_stride);
    resolve_broadcast(&p->kv_segments_stride);
    resolve_broadcast(&p->tree_stride);
    if (blocks->block_k > 0 && blocks->stride_row == 0)
        p->block_mask.stride_row = to_stride((p->seq_len_kv - 1) / blocks->block_k + 1);
    if (p->logits.num_rows == 0 && p->logits.rows == NULL)
        p->logits.num_rows = p->seq_len_q;
}

/* Whether sequences differ in length or position; else the first stands for all. */
static int has_batch_arrays(const attn_params *p)
{
    return p->q_len || p->kv_len || p->kv_begin || p->cu_seqlens_q || p->key_base || p->q_offset ||
           p->prefix;
}

/* Keys of a tile of a kernel set: what the caller asks for comes first, then what tuning says. */
static int tile_keys_of(const attn_params *p, const attn_kernels *kernels, tuning *t)
{
    const int64_t cell = p->block_mask.block_k;
    text none = text_in(NULL, 0);
    int keys;
    read_tuning(p->tuning, kernels->name, t, &none);
    if (p->tile_keys || t->tile_keys)
        return p->tile_keys ? p->tile_keys : (int)t->tile_keys;
    keys = kernels->rows > 24 ? WIDE_TILE_KEYS(p->head_dim + p->head_dim_v) : NARROW_TILE_KEYS;
    if (cell >= 2 * ATTN_BLOCK && keys % cell == 0)
        return (int)cell; /* whole cells: most tiles are seen by all or by none */
    return keys;
}

/* The kernel set and the sizes that the caller leaves open. */
static void resolve_kernels(problem *pr)
{
    attn_params *p = &pr->p;
    const int64_t rows = times(pr->max_q_len, pr->group);
    pr->prefix_kernels = p->kernels ? p->kernels : best_kernels(times(rows, p->batch));
    if (p->kernels == NULL)
        p->kernels = best_kernels(rows);
    pr->prefix_tile_keys = tile_keys_of(p, pr->prefix_kernels, &pr->tuning);
    p->tile_keys = tile_keys_of(p, p->kernels, &pr->tuning);
    if (p->auto_naive_keys == 0)
        p->auto_naive_keys = pr->tuning.auto_naive_keys;
}

static void resolve_numbers(problem *pr)
{
    attn_params *p = &pr->p;
    float keep = 1.0f - p->dropout_p;
    int64_t b;
    const int64_t kinds = has_batch_arrays(p) ? p->batch : min64(p->batch, 1);
    pr->group = p->num_heads_q / p->num_heads_kv;
    pr->factor = score_factor(p->scale);
    pr->cap2 = p->softcap * LOG2E_HI;
    pr->icap2 = p->softcap > 0 ? 1.0f / pr->cap2 : 0.0f;
    pr->keep_factor = 1.0f / keep;
    pr->drop_below = (uint32_t)((double)p->dropout_p * 4294967296.0);
    pr->max_q_len = pr->max_kv_len = 0;
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        pr->max_q_len = max64(pr->max_q_len, s.row_to - s.row_from);
        pr->max_kv_len = max64(pr->max_kv_len, s.key_to - s.key_from);
    }
    resolve_kernels(pr);
}

/* What has to be computed. */
static int wants_values(const attn_params *p)
{
    return p->partial || p->o.data;
}

static int wants_rows(const attn_params *p)
{
    return wants_values(p) || p->lse.data;
}

static int is_empty(const attn_params *p)
{
    return p->batch == 0 || rows_held(p) == 0;
}

/* Whether the first key that enters may lie inside a chunk, or inside a node of the merge tree. */
static int begins_inside(const attn_params *p)
{
    return p->key_base || p->part.keys;
}

/* Where a key of a sequence lies: this and the three functions below are all in this file that
 * knows. */
typedef struct key_place {
    int64_t in_sequence; /* row, before pages */
    int64_t table_entry; /* that names the page */
    int64_t entry, row;  /* of k and v; entry: a batch entry or a page */
    int64_t left;        /* so many rows, this one included, lie one after the other */
} key_place;

/* Slot `slot` of the page of at->table_entry, of row at->in_sequence. */
static void enter_page(const attn_rows *rows, key_place *at, int64_t slot)
{
    at->entry = rows->table[at->table_entry];
    at->row = slot;
    at->left = min64(at->left, rows->page_size - slot);
}

static key_place key_at(const attn_params *p, const sequence *s, int64_t j)
{
    const attn_rows *rows = &p->kv_rows;
    key_place at;
    at.in_sequence = s->kv_row + j;
    if (rows->ring && at.in_sequence >= rows->ring)
        at.in_sequence -= rows->ring;
    at.left = rows->ring ? rows->ring - at.in_sequence : INT64_MAX;
    at.table_entry = 0;
    at.entry = s->b;
    at.row = at.in_sequence;
    if (rows->page_size) {
        const int64_t page = at.row / rows->page_size;
        at.table_entry = s->b * rows->table_stride + page;
        enter_page(rows, &at, at.row - page * rows->page_size);
    }
    return at;
}

/* The place behind those that lie one after the other: key_at without a division. */
static void next_place(const attn_params *p, const sequence *s, key_place *at)
{
    const attn_rows *rows = &p->kv_rows;
    at->in_sequence += at->left;
    at->table_entry++;
    if (rows->ring && at->in_sequence == rows->ring) {
        at->in_sequence = 0;
        at->table_entry = s->b * rows->table_stride;
    }
    at->left = rows->ring ? rows->ring - at->in_sequence : INT64_MAX;
    at->row = at->in_sequence;
    if (rows->page_size)
        enter_page(rows, at, 0);
}

/* Whether the rows of a sequence may lie in several places. */
static int is_scattered(const attn_params *p)
{
    return p->kv_rows.ring > 0 || p->kv_rows.page_size > 0;
}

/* ------------------------------------------------------------------------------------------------
 * 6  Masks. Two kinds of rule decide whether query row i sees key j: those that leave an interval
 *    of keys to a row (`range`), which the loops never step outside of, and those that must be
 *    asked pair by pair (`row`). A key is visible if all active rules say so.
 * --------------------------------------------------------------------------------------------- */

typedef struct mask_rule {
    const char *name;
    int (*active)(const attn_params *p);
    /* Narrows [*lo, *hi) for a query at pos; NULL if not an interval. */
    void (*range)(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo, int64_t *hi);
    /* Clears alive[t * step] where key j0 + t is hidden from the lane, t = 0..n-1. */
    void (*row)(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                uint8_t *alive, int step);
    /* Quick answer for a whole rectangle, an attn_tile_class; NULL = always PARTIAL. */
    int (*tile)(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n);
    /* No row of the rectangle sees a key of j..end-1 that lies before this one; NULL = always j. */
    int64_t (*next)(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                    int64_t end);
} mask_rule;

static int64_t floor_div(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

static int causal_active(const attn_params *p)
{
    return p->causal != 0;
}

static void causal_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi)
{
    (void)p;
    (void)lo;
    *hi = min64(*hi, max64(pos + 1, s->prefix));
}

static int window_active(const attn_params *p)
{
    return p->window != 0;
}

static void window_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi)
{
    (void)s;
    if (p->window_left >= 0)
        *lo = max64(*lo, pos - p->window_left);
    if (p->window_right >= 0)
        *hi = min64(*hi, pos + p->window_right + 1);
}

static int chunked_active(const attn_params *p)
{
    return p->chunk_size != 0;
}

static void chunked_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                          int64_t *hi)
{
    const int64_t begin = floor_div(s->key_base + pos, p->chunk_size) * p->chunk_size - s->key_base;
    *lo = max64(*lo, begin);
    *hi = min64(*hi, begin + p->chunk_size);
}

static int segments_active(const attn_params *p)
{
    return p->q_segments != NULL;
}

static void segments_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                         uint8_t *alive, int step)
{
    const int32_t *q = p->q_segments + (p->cu_seqlens_q ? s->q_row : s->b * p->q_segments_stride);
    const int32_t *kv = p->kv_segments + s->column +
                        (p->cu_seqlens_kv ? p->cu_seqlens_kv[s->b] : s->b * p->kv_segments_stride);
    int t;
    for (t = 0; t < n; t++)
        alive[t * step] &= q[at->i] == kv[j0 + t];
}

static int tree_active(const attn_params *p)
{
    return p->tree_parents != NULL;
}

/* Parents precede their children, so that one walk up from the query meets its ancestors in
 * descending order, as the keys are visited. */
static void tree_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                     uint8_t *alive, int step)
{
    const int32_t *parents = p->tree_parents + (p->cu_seqlens_q ? s->q_row : s->b * p->tree_stride);
    const int64_t first_node = s->kv_len - s->q_len;
    int64_t ancestor = at->i;
    int t;
    for (t = n - 1; t >= 0 && j0 + t >= first_node; t--) {
        const int64_t node = j0 + t - first_node;
        while (ancestor > node)
            ancestor = parents[ancestor];
        alive[t * step] &= ancestor == node;
    }
}

static int tree_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    (void)p;
    (void)at;
    return j0 + n <= s->kv_len - s->q_len ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t mask_at(const attn_mask *m, const sequence *s, const lane *at)
{
    return s->b * m->stride_batch + at->head * m->stride_head + at->i * m->stride_q;
}

static int bool_active(const attn_params *p)
{
    return p->bool_mask.data != NULL;
}

static void bool_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                     uint8_t *alive, int step)
{
    const attn_mask *m = &p->bool_mask;
    const uint8_t *data = m->data + mask_at(m, s, at) + (s->column + j0) * m->stride_kv;
    const int invert = m->invert != 0;
    int t;
    for (t = 0; t < n; t++)
        alive[t * step] &= (data[t * m->stride_kv] != 0) != invert;
}

static int bit_of(const uint8_t *bits, int64_t index)
{
    const int64_t byte = floor_div(index, 8);
    return bits[byte] >> (index - byte * 8) & 1;
}

static int bits_active(const attn_params *p)
{
    return p->bit_mask.data != NULL;
}

static void bits_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                     uint8_t *alive, int step)
{
    const attn_mask *m = &p->bit_mask;
    const int64_t first = mask_at(m, s, at) + (s->column + j0) * m->stride_kv;
    const int invert = m->invert != 0;
    int t;
    for (t = 0; t < n; t++)
        alive[t * step] &= bit_of(m->data, first + t * m->stride_kv) != invert;
}

static int bitmap_active(const attn_params *p)
{
    return p->block_mask.bitmap != NULL;
}

/* The first visible cell of columns column..end-1, or end: whole empty bytes at once. */
static int64_t bitmap_first(const attn_params *p, int64_t b, int64_t head, int64_t row,
                            int64_t column, int64_t end)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t at = b * m->stride_batch + head * m->stride_head + row * m->stride_row;
    while (column < end && !bit_of(m->bitmap, at + column))
        column += (at + column) % 8 == 0 && !m->bitmap[floor_div(at + column, 8)] ? 8 : 1;
    return min64(column, end);
}

static int csr_active(const attn_params *p)
{
    return p->block_mask.row_offsets != NULL;
}

/* The same by a binary search in the row's ascending columns. */
static int64_t csr_first(const attn_params *p, int64_t b, int64_t head, int64_t row, int64_t column,
                         int64_t end)
{
    const attn_block_mask *m = &p->block_mask;
    const int32_t *offsets =
        m->row_offsets + b * m->csr_stride_batch + head * m->csr_stride_head + row;
    int64_t lo = offsets[0], hi = offsets[1];
    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;
        if (m->columns[middle] < column)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < offsets[1] ? min64(m->columns[lo], end) : end;
}

typedef int64_t (*first_fn)(const attn_params *p, int64_t b, int64_t head, int64_t row,
                            int64_t column, int64_t end);

/* Both forms of the block-sparse mask: one look-up a cell, not a key. */
static void cells_row(first_fn first, const attn_params *p, const sequence *s, const lane *at,
                      int64_t j0, int n, uint8_t *alive, int step)
{
    const int64_t size = p->block_mask.block_k, row = at->i / p->block_mask.block_q;
    int t = 0;
    while (t < n) {
        const int64_t column = (j0 + t) / size;
        const int64_t end = min64(n, (column + 1) * size - j0);
        const int visible = first(p, s->b, at->head, row, column, column + 1) == column;
        for (; t < end && !visible; t++)
            alive[t * step] = 0;
        t = (int)end;
    }
}

static int cells_tile(first_fn first, const attn_params *p, const sequence *s, const hull *at,
                      int64_t j0, int n)
{
    const attn_block_mask *m = &p->block_mask;
    int64_t head, row, column, seen = 0, all = 0;
    for (head = at->head_begin; head < at->head_end; head++)
        for (row = at->i_begin / m->block_q; row <= (at->i_end - 1) / m->block_q; row++)
            for (column = j0 / m->block_k; column <= (j0 + n - 1) / m->block_k; column++) {
                seen += first(p, s->b, head, row, column, column + 1) == column;
                all++;
            }
    return seen == 0 ? ATTN_TILE_EMPTY : seen == all ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t cells_next(first_fn first, const attn_params *p, const sequence *s, const hull *at,
                          int64_t j, int64_t end)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t from = j / m->block_k;
    int64_t column = ceil_div(end, m->block_k), head, row;
    for (head = at->head_begin; head < at->head_end; head++)
        for (row = at->i_begin / m->block_q; row <= (at->i_end - 1) / m->block_q; row++)
            column = first(p, s->b, head, row, from, column);
    return min64(end, max64(j, column * m->block_k));
}

static void bitmap_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                       uint8_t *alive, int step)
{
    cells_row(bitmap_first, p, s, at, j0, n, alive, step);
}

static int bitmap_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    return cells_tile(bitmap_first, p, s, at, j0, n);
}

static int64_t bitmap_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                           int64_t end)
{
    return cells_next(bitmap_first, p, s, at, j, end);
}

static void csr_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                    uint8_t *alive, int step)
{
    cells_row(csr_first, p, s, at, j0, n, alive, step);
}

static int csr_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    return cells_tile(csr_first, p, s, at, j0, n);
}

static int64_t csr_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                        int64_t end)
{
    return cells_next(csr_first, p, s, at, j, end);
}

static int callback_active(const attn_params *p)
{
    return p->mask != NULL;
}

static void callback_row(const attn_params *p, const sequence *s, const lane *at, int64_t j0, int n,
                         uint8_t *alive, int step)
{
    int t;
    for (t = 0; t < n; t++) {
        const attn_pair pair = pair_of(s, at, j0 + t);
        if (alive[t * step])
            alive[t * step] = p->mask(p->callback_user, &pair) != 0;
    }
}

static int callback_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    attn_rect rect;
    int answer;
    if (!p->mask_tile)
        return ATTN_TILE_PARTIAL;
    rect.batch = s->b;
    rect.head_begin = at->head_begin;
    rect.head_end = at->head_end;
    rect.i_begin = at->i_begin;
    rect.i_end = at->i_end;
    rect.j_begin = j0;
    rect.j_end = j0 + n;
    rect.offset = s->offset;
    rect.key_base = s->key_base;
    answer = p->mask_tile(p->callback_user, &rect);
    return answer == ATTN_TILE_EMPTY || answer == ATTN_TILE_FULL ? answer : ATTN_TILE_PARTIAL;
}

/* Cheap rules first: a tile that one of them finds empty is asked no further. */
static const mask_rule mask_rules[] = {
    { "causal", causal_active, causal_range, NULL, NULL, NULL },
    { "window", window_active, window_range, NULL, NULL, NULL },
    { "chunked", chunked_active, chunked_range, NULL, NULL, NULL },
    { "block bitmap", bitmap_active, NULL, bitmap_row, bitmap_tile, bitmap_next },
    { "block csr", csr_active, NULL, csr_row, csr_tile, csr_next },
    { "tree", tree_active, NULL, tree_row, tree_tile, NULL },
    { "segments", segments_active, NULL, segments_row, NULL, NULL },
    { "bool mask", bool_active, NULL, bool_row, NULL, NULL },
    { "bit mask", bits_active, NULL, bits_row, NULL, NULL },
    { "callback", callback_active, NULL, callback_row, callback_tile, NULL },
};

/* Keys *lo..*hi-1 are what the lengths and all range rules leave to a query at pos. */
static void visible_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                          int64_t *hi)
{
    int m;
    *lo = s->key_from;
    *hi = s->key_to;
    for (m = 0; m < COUNT_OF(mask_rules); m++)
        if (mask_rules[m].range && mask_rules[m].active(p))
            mask_rules[m].range(p, s, pos, lo, hi);
    if (*hi < *lo)
        *hi = *lo;
}

/* ------------------------------------------------------------------------------------------------
 * 7  Validation: every rule about the parameters and its sentence. Each check returns ATTN_OK or
 *    the status whose reason it has put into *why. Below this section nothing checks arguments.
 * --------------------------------------------------------------------------------------------- */

#define MOST_KEY_BASE ((int64_t)1 << 58) /* not memory: the same on every machine */
#define SIZE_RULE(field, least, most) #field, offsetof(attn_params, field), least, most

/* int64_t fields */
static const size_rule size_rules[] = {
    { SIZE_RULE(batch, 0, MOST) },
    { SIZE_RULE(num_heads_q, 1, MOST) },
    { SIZE_RULE(num_heads_kv, 0, MOST) },
    { SIZE_RULE(seq_len_q, 0, MOST) },
    { SIZE_RULE(seq_len_kv, 0, MOST) },
    { SIZE_RULE(head_dim, 1, MOST) },
    { SIZE_RULE(head_dim_v, 0, MOST) },
    { SIZE_RULE(shared_keys, 0, MOST) },
    { SIZE_RULE(chunk_size, 0, MOST) },
    { SIZE_RULE(block_mask.block_q, 0, MOST) },
    { SIZE_RULE(block_mask.block_k, 0, MOST) },
    { SIZE_RULE(logits.num_rows, 0, MOST) },
    { SIZE_RULE(kv_rows.ring, 0, MOST) },
    { SIZE_RULE(kv_rows.page_size, 0, MOST) },
    { SIZE_RULE(kv_rows.num_pages, 0, MOST) },
    { SIZE_RULE(part.row_begin, 0, MOST) },
    { SIZE_RULE(part.row_count, 0, MOST) },
    { SIZE_RULE(part.key_begin, 0, MOST) },
    { SIZE_RULE(part.key_count, 0, MOST) },
    { SIZE_RULE(auto_naive_keys, 0, INT64_MAX) },
};

/* int fields */
static const size_rule enum_rules[] = {
    { SIZE_RULE(q.dtype, 0, STORAGE_COUNT - 1) },
    { SIZE_RULE(k.dtype, 0, STORAGE_COUNT - 1) },
    { SIZE_RULE(v.dtype, 0, STORAGE_COUNT - 1) },
    { SIZE_RULE(o.dtype, 0, STORAGE_COUNT - 1) },
    { SIZE_RULE(lse.dtype, 0, 0) },
    { SIZE_RULE(bias.dtype, 0, STORAGE_COUNT - 1) },
    { SIZE_RULE(alignment, 0, ATTN_ALIGN_OFFSET) },
    { SIZE_RULE(window, 0, ATTN_WINDOW) },
    { SIZE_RULE(logits.stage, 0, ATTN_LOGITS_SOFTMAX) },
    { SIZE_RULE(impl, 0, ATTN_IMPL_AUTO) },
    { SIZE_RULE(num_workers, 0, 65536) },
};

static attn_status check_sizes(const attn_params *p, text *why)
{
    attn_status status = check_counts(p, size_rules, COUNT_OF(size_rules), why);
    if (!status)
        status = check_enums(p, enum_rules, COUNT_OF(enum_rules), why);
    if (status)
        return status;
    if (p->num_heads_kv && p->num_heads_q % p->num_heads_kv) {
        put_field(why, "num_heads_q", p->num_heads_q);
        put(why, " must be a multiple of ");
        put_field(why, "num_heads_kv", p->num_heads_kv);
        return ATTN_ERR_ARG;
    }
    if (p->tile_keys &&
        (p->tile_keys < 16 || p->tile_keys > 1024 || (p->tile_keys & (p->tile_keys - 1))))
        return bad_field(why, ATTN_ERR_ARG, "tile_keys", p->tile_keys,
                         " must be 0 or a power of two from 16 to 1024");
    return ATTN_OK;
}

static attn_status check_numbers(const attn_params *p, text *why)
{
    if (!is_finite(p->scale))
        return bad_number(why, "scale", p->scale, " must be finite");
    if (!is_finite(p->softcap) || p->softcap < 0)
        return bad_number(why, "softcap", p->softcap, " must be finite and at least 0");
    if (p->softcap > 0 && !(p->softcap > 1e-30f && p->softcap < 1e30f))
        return bad_number(why, "softcap", p->softcap, " must be 0 or between 1e-30 and 1e30");
    if (!(p->dropout_p >= 0 && p->dropout_p < 1))
        return bad_number(why, "dropout_p", p->dropout_p, " must be at least 0 and below 1");
    if (p->sinks && p->softmax1)
        return bad_field(why, ATTN_ERR_ARG, "softmax1", p->softmax1,
                         " is a sink of 0 and excludes sinks: set one of them");
    return ATTN_OK;
}

/* Fields that mean nothing without another one are refused, not ignored; prefix without causal
 * means something: what it shows is visible anyway. */
static attn_status check_pairs_of_fields(const attn_params *p, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    if (p->cu_seqlens_kv && !p->cu_seqlens_q)
        return bad(why, ATTN_ERR_ARG, "cu_seqlens_kv is given, but cu_seqlens_q is NULL");
    if (p->cu_seqlens_q && !p->cu_seqlens_kv && !p->kv_len)
        return bad(why, ATTN_ERR_ARG,
                   "cu_seqlens_q is given, but neither cu_seqlens_kv (packed keys) nor kv_len");
    if (!p->q_segments != !p->kv_segments)
        return bad(why, ATTN_ERR_ARG, "q_segments and kv_segments: give both or neither");
    if (p->shared_keys > p->seq_len_kv) {
        put_field(why, "shared_keys", p->shared_keys);
        put(why, " must be at most ");
        put_field(why, "seq_len_kv", p->seq_len_kv);
        return ATTN_ERR_ARG;
    }
    if (p->alignment == ATTN_ALIGN_OFFSET && !p->q_offset)
        return bad_field(why, ATTN_ERR_ARG, "alignment", p->alignment,
                         " is ATTN_ALIGN_OFFSET, but q_offset is NULL");
    if (p->alignment != ATTN_ALIGN_OFFSET && p->q_offset)
        return bad_field(why, ATTN_ERR_ARG, "alignment", p->alignment,
                         " must be ATTN_ALIGN_OFFSET (2) when q_offset is given");
    if (!p->window && p->window_left)
        return bad_field(why, ATTN_ERR_ARG, "window_left", p->window_left,
                         " is set, but window is 0: set window = ATTN_WINDOW");
    if (!p->window && p->window_right)
        return bad_field(why, ATTN_ERR_ARG, "window_right", p->window_right,
                         " is set, but window is 0: set window = ATTN_WINDOW");
    if (p->window_left < -1)
        return bad_field(why, ATTN_ERR_ARG, "window_left", p->window_left,
                         " must be -1 (unbounded) or more");
    if (p->window_right < -1)
        return bad_field(why, ATTN_ERR_ARG, "window_right", p->window_right,
                         " must be -1 (unbounded) or more");
    if (p->mask_tile && !p->mask)
        return bad(why, ATTN_ERR_ARG, "mask_tile is given, but mask is NULL");
    if (m->bitmap && m->row_offsets)
        return bad(why, ATTN_ERR_ARG, "block_mask.bitmap and row_offsets: give one of them");
    if (!m->row_offsets != !m->columns)
        return bad(why, ATTN_ERR_ARG, "block_mask.row_offsets and columns: give both or neither");
    if ((m->bitmap || m->row_offsets) && m->block_q == 0)
        return bad_field(why, ATTN_ERR_ARG, "block_mask.block_q", 0, " must be at least 1");
    if ((m->bitmap || m->row_offsets) && m->block_k == 0)
        return bad_field(why, ATTN_ERR_ARG, "block_mask.block_k", 0, " must be at least 1");
    if ((m->block_q || m->block_k) && !m->bitmap && !m->row_offsets)
        return bad_field(why, ATTN_ERR_ARG, "block_mask.block_q", m->block_q,
                         " is set, but neither bitmap nor row_offsets is given");
    if (p->partial && p->logits.data && p->logits.stage == ATTN_LOGITS_SOFTMAX)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "logits.stage", p->logits.stage,
                         " (probabilities) needs all keys: not possible with partial");
    return ATTN_OK;
}

static attn_status check_rows(const attn_params *p, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    if (p->cu_seqlens_kv &&
        (rows->ring || rows->begin || rows->page_size || rows->table || rows->table_stride))
        return bad(why, ATTN_ERR_ARG, "kv_rows and cu_seqlens_kv: give one of them");
    if (rows->begin && !rows->ring)
        return bad(why, ATTN_ERR_ARG,
                   "kv_rows.begin is given, but kv_rows.ring, the rows of a sequence, is 0");
    if (rows->page_size && !rows->table && p->seq_len_kv > 0)
        return bad_field(why, ATTN_ERR_ARG, "kv_rows.page_size", rows->page_size,
                         " is set, but kv_rows.table is NULL");
    if (!rows->page_size && rows->table)
        return bad_field(why, ATTN_ERR_ARG, "kv_rows.page_size", 0,
                         " must be at least 1 when kv_rows.table is given");
    if (!rows->page_size && rows->table_stride)
        return bad_field(why, ATTN_ERR_ARG, "kv_rows.table_stride", rows->table_stride,
                         " is set, but kv_rows.page_size is 0");
    if (!rows->page_size && rows->num_pages)
        return bad_field(why, ATTN_ERR_ARG, "kv_rows.num_pages", rows->num_pages,
                         " is set, but kv_rows.page_size is 0");
    return ATTN_OK;
}

/* Rows or keys of a part: its three fields and the one that bounds them. */
typedef struct part_rule {
    const char *flag, *begin_name, *count_name, *whole_name;
    int on;
    int64_t begin, count, whole;
} part_rule;

static attn_status check_part_rule(const part_rule *rule, text *why)
{
    if (!rule->on && (rule->begin || rule->count)) {
        put_field(why, rule->begin ? rule->begin_name : rule->count_name,
                  rule->begin ? rule->begin : rule->count);
        put(why, " is set, but ");
        put(why, rule->flag);
        return bad(why, ATTN_ERR_ARG, " is 0");
    }
    if (!rule->on || rule->begin + rule->count <= rule->whole)
        return ATTN_OK;
    put_field(why, rule->begin_name, rule->begin);
    put(why, " + ");
    put_field(why, rule->count_name, rule->count);
    put(why, " must be at most ");
    put_field(why, rule->whole_name, rule->whole);
    return ATTN_ERR_ARG;
}

static attn_status check_part(const attn_params *p, text *why)
{
    const attn_part *part = &p->part;
    const part_rule rows = { "part.rows", "part.row_begin", "part.row_count", "seq_len_q",
                             part->rows,  part->row_begin,  part->row_count,  p->seq_len_q };
    const part_rule keys = { "part.keys", "part.key_begin", "part.key_count", "seq_len_kv",
                             part->keys,  part->key_begin,  part->key_count,  p->seq_len_kv };
    attn_status status = check_part_rule(&rows, why);
    if (!status)
        status = check_part_rule(&keys, why);
    if (!status && part->continued && !(part->keys && p->partial))
        return bad_field(why, ATTN_ERR_ARG, "part.continued", part->continued,
                         " needs part.keys and partial");
    if (status || (!part->rows && !part->keys))
        return status;
    if (p->cu_seqlens_q)
        return bad(why, ATTN_ERR_UNSUPPORTED, "part and cu_seqlens_q: give one of them");
    if (p->kv_rows.ring || p->kv_rows.page_size)
        return bad(why, ATTN_ERR_UNSUPPORTED, "part and kv_rows: give one of them");
    if (p->logits.data)
        return bad(why, ATTN_ERR_UNSUPPORTED, "part and logits: give one of them");
    if (p->impl == ATTN_IMPL_NAIVE)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " (naive) takes no part of a call");
    return ATTN_OK;
}

/* The keys of a part that is continued lie in one chunk, of sequences with rows. */
static attn_status check_continued(const attn_params *p, text *why)
{
    int64_t b;
    for (b = 0; p->part.continued && b < p->batch; b++) {
        const sequence s = sequence_of(p, b);
        const int64_t first = s.key_base + s.key_from, end = s.key_base + s.key_to;
        if (s.row_from == s.row_to || first >= end || first / ATTN_CHUNK == (end - 1) / ATTN_CHUNK)
            continue;
        put(why, "part.continued: keys ");
        put_field(why, "n", first);
        put(why, " to ");
        put_int(why, end - 1);
        put(why, " of sequence ");
        put_field(why, "b", b);
        return bad(why, ATTN_ERR_ARG, " must lie in one chunk, between two multiples of 1024");
    }
    return ATTN_OK;
}

typedef struct entry_rule {
    const char *name;
    const int32_t *array;
    int64_t most;
} entry_rule;

static attn_status check_entry(const entry_rule *rule, int64_t b, text *why)
{
    const int64_t value = entry32(rule->array, b, 0);
    if (value >= 0 && value <= rule->most)
        return ATTN_OK;
    bad_entry(why, rule->name, b, value, " must be from 0 to ");
    put_int(why, rule->most);
    return ATTN_ERR_ARG;
}

static attn_status check_lengths(const attn_params *p, text *why)
{
    attn_status status;
    int64_t b;
    int r;
    status = check_cu_seqlens("cu_seqlens_q", p->cu_seqlens_q, p->batch, p->seq_len_q, why);
    if (!status)
        status = check_cu_seqlens("cu_seqlens_kv", p->cu_seqlens_kv, p->batch, p->seq_len_kv, why);
    for (b = 0; has_batch_arrays(p) && b < p->batch && !status; b++) {
        const int64_t keys = kv_capacity(p, b), begin = entry32(p->kv_begin, b, 0);
        const entry_rule rules[] = { { "q_len", p->q_len, q_capacity(p, b) },
                                     { "kv_begin", p->kv_begin, keys },
                                     { "kv_len", p->kv_len, keys - begin },
                                     { "prefix", p->prefix, INT32_MAX } };
        for (r = 0; r < COUNT_OF(rules) && !status; r++)
            status = check_entry(&rules[r], b, why);
        if (!status && p->key_base && (p->key_base[b] < 0 || p->key_base[b] > MOST_KEY_BASE))
            status = bad_entry(why, "key_base", b, p->key_base[b], " must be from 0 to 2^58");
    }
    return status;
}

/* The pages that hold the keys in use of one sequence are there. */
static attn_status check_table(const attn_params *p, const sequence *s, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    key_place at = key_at(p, s, 0);
    int64_t j = at.left;
    while (at.entry >= 0 && at.entry < rows->num_pages && j < s->kv_len) {
        next_place(p, s, &at);
        j += at.left;
    }
    if (at.entry >= 0 && at.entry < rows->num_pages)
        return ATTN_OK;
    bad_entry(why, "kv_rows.table", at.table_entry, at.entry, " must be from 0 to ");
    put_field(why, "num_pages", rows->num_pages);
    put(why, " - 1");
    return ATTN_ERR_ARG;
}

/* The rows of one sequence lie inside the ring and in pages that exist. */
static attn_status check_sequence_rows(const attn_params *p, const sequence *s, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    const int64_t begin = entry32(rows->begin, s->b, 0);
    if (begin < 0 || (rows->ring && begin >= rows->ring))
        return bad_entry(why, "kv_rows.begin", s->b, begin,
                         " must be at least 0 and below kv_rows.ring");
    if (rows->ring && s->column + s->kv_len > rows->ring) {
        put_field(why, "kv_rows.ring", rows->ring);
        put(why, " is below kv_begin + kv_len of sequence ");
        put_field(why, "b", s->b);
        put(why, ", ");
        put_int(why, s->column + s->kv_len);
        return ATTN_ERR_ARG;
    }
    return rows->page_size && s->kv_len > 0 ? check_table(p, s, why) : ATTN_OK;
}

static attn_status check_sequences(const attn_params *p, text *why)
{
    attn_status status = ATTN_OK;
    int64_t b;
    for (b = 0; is_scattered(p) && b < p->batch && !status; b++) {
        const sequence s = sequence_of(p, b);
        status = check_sequence_rows(p, &s, why);
    }
    return status;
}

static attn_status check_tensor(const char *name, const attn_tensor *t, int64_t batch,
                                int64_t heads, int64_t rows, int64_t columns, int needed, text *why)
{
    const ptrdiff_t stride[4] = { t->stride_batch, t->stride_head, t->stride_seq, 1 };
    if (needed && !t->data) {
        put(why, name);
        return bad(why, ATTN_ERR_ARG, ".data is NULL");
    }
    return check_extent(name, (int64_t)bytes_of(t->dtype), batch, heads, rows, columns, stride,
                        why);
}

/* The resolved tensors fit into memory and are there. */
static attn_status check_tensors(const attn_params *p, int need_data, text *why)
{
    const attn_tensor o = as_tensor(&p->o), lse = as_tensor(&p->lse);
    const int64_t n = p->batch, hq = p->num_heads_q, hkv = p->num_heads_kv;
    const int64_t rows = rows_held(p), keys = rows_of_entry(p);
    const int64_t entries = p->kv_rows.page_size ? p->kv_rows.num_pages : n;
    const int need_keys = need_data && keys_held(p) > 0;
    const int need_values = need_keys && wants_values(p);
    attn_status status;
    status = check_tensor("q", &p->q, n, hq, rows, p->head_dim, need_data, why);
    if (!status)
        status = check_tensor("k", &p->k, entries, hkv, keys, p->head_dim, need_keys, why);
    if (!status)
        status = check_tensor("v", &p->v, entries, hkv, keys, p->head_dim_v, need_values, why);
    if (!status)
        status = check_tensor("o", &o, n, hq, rows, p->head_dim_v, 0, why);
    if (!status)
        status = check_tensor("lse", &lse, n, hq, rows, 1, 0, why);
    return status;
}

/* An optional array over (batch, head, row, column), of `bytes` each; rows and columns 1 where it
 * has no such axis. */
static attn_status check_array(const char *name, const void *data, int64_t bytes,
                               const attn_params *p, int64_t rows, int64_t columns,
                               ptrdiff_t stride_batch, ptrdiff_t stride_head, ptrdiff_t stride_row,
                               ptrdiff_t stride_column, text *why)
{
    ptrdiff_t stride[4];
    stride[0] = stride_batch;
    stride[1] = stride_head;
    stride[2] = stride_row;
    stride[3] = stride_column;
    if (!data)
        return ATTN_OK;
    return check_extent(name, bytes, p->batch, p->num_heads_q, rows, columns, stride, why);
}

static attn_status check_mask(const char *name, const attn_mask *m, const attn_params *p, text *why)
{
    return check_array(name, m->data, 1, p, p->seq_len_q, p->seq_len_kv, m->stride_batch,
                       m->stride_head, m->stride_q, m->stride_kv, why);
}

static attn_status check_block_mask(const attn_params *p, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    attn_status status;
    if (!m->block_q || !m->block_k)
        return ATTN_OK;
    status = check_array("block_mask.bitmap", m->bitmap, 1, p, p->seq_len_q / m->block_q + 1,
                         p->seq_len_kv / m->block_k + 1, m->stride_batch, m->stride_head,
                         m->stride_row, 1, why);
    if (!status)
        status = check_array("block_mask.row_offsets", m->row_offsets, 4, p,
                             p->seq_len_q / m->block_q + 2, 1, m->csr_stride_batch,
                             m->csr_stride_head, 1, 0, why);
    return status;
}

/* Every strided array but the tensors. */
static attn_status check_arrays(const attn_params *p, text *why)
{
    const attn_bias *bias = &p->bias;
    attn_status status = check_array("bias", bias->data, (int64_t)bytes_of(bias->dtype), p,
                                     p->seq_len_q, p->seq_len_kv, bias->stride_batch,
                                     bias->stride_head, bias->stride_q, bias->stride_kv, why);
    if (!status)
        status = check_mask("bool_mask", &p->bool_mask, p, why);
    if (!status)
        status = check_mask("bit_mask", &p->bit_mask, p, why);
    if (!status)
        status = check_block_mask(p, why);
    if (!status)
        status =
            check_array("alibi_slopes", p->alibi_slopes, 4, p, 1, 1, p->alibi_stride, 1, 0, 0, why);
    if (!status)
        status = check_array("q_segments", p->q_segments, 4, p, p->seq_len_q, 1,
                             p->q_segments_stride, 0, 1, 0, why);
    if (!status)
        status = check_array("kv_segments", p->kv_segments, 4, p, p->seq_len_kv, 1,
                             p->kv_segments_stride, 0, 1, 0, why);
    if (!status)
        status = check_array("tree_parents", p->tree_parents, 4, p, p->seq_len_q, 1, p->tree_stride,
                             0, 1, 0, why);
    if (!status && p->kv_rows.page_size)
        status = check_array("kv_rows.table", p->kv_rows.table, 4, p, 1, table_entries(p),
                             p->kv_rows.table_stride, 0, 0, 1, why);
    return status;
}

static attn_status check_output_sizes(const attn_params *p, text *why)
{
    static const ptrdiff_t none[4] = { 0, 0, 0, 1 };
    const int64_t rows = times(times(p->batch, p->num_heads_q), rows_held(p));
    const int64_t logits = times(times(p->batch, p->num_heads_q), p->logits.num_rows);
    attn_status status = ATTN_OK;
    if (p->partial)
        status = check_extent("state.o", 4, 1, 1, 1, times(rows, p->head_dim_v), none, why);
    if (!status && p->logits.data)
        status = check_extent("logits.data", 4, 1, 1, 1, times(logits, p->seq_len_kv), none, why);
    return status;
}

static attn_status check_outputs(const attn_params *p, text *why)
{
    int64_t r;
    if (p->partial && !(p->state.m && p->state.l && p->state.o))
        return bad(why, ATTN_ERR_ARG, "partial is set, but state.m, state.l or state.o is NULL");
    if (!wants_rows(p) && !p->logits.data)
        return bad(why, ATTN_ERR_ARG,
                   "o.data is NULL, and neither lse, partial nor logits is asked for");
    for (r = 0; p->logits.data && p->logits.rows && r < p->logits.num_rows; r++)
        if (p->logits.rows[r] < 0 || p->logits.rows[r] >= p->seq_len_q)
            return bad_entry(why, "logits.rows", r, p->logits.rows[r],
                             " must be a row from 0 to seq_len_q - 1");
    if (p->logits.data && !p->logits.rows && p->logits.num_rows > p->seq_len_q)
        return bad_field(why, ATTN_ERR_ARG, "logits.num_rows", p->logits.num_rows,
                         " exceeds seq_len_q, and logits.rows is NULL");
    return ATTN_OK;
}

static attn_status check_tree(const attn_params *p, text *why)
{
    int64_t b, i;
    for (b = 0; p->tree_parents && b < p->batch; b++) {
        const sequence s = sequence_of(p, b);
        const int64_t at = p->cu_seqlens_q ? s.q_row : b * p->tree_stride;
        for (i = 0; i < s.q_len; i++) {
            const int32_t parent = p->tree_parents[at + i];
            if (parent < -1 || parent >= i)
                return bad_entry(why, "tree_parents", at + i, parent,
                                 " must be -1 or an earlier node of its tree");
        }
    }
    return ATTN_OK;
}

static attn_status check_csr_rows(const attn_params *p, int64_t first, int64_t q_len, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = q_len > 0 ? (q_len - 1) / m->block_q + 1 : 0;
    const int64_t columns = p->seq_len_kv ? (p->seq_len_kv - 1) / m->block_k + 1 : 0;
    int64_t r, c;
    for (r = first; r < first + rows; r++) {
        const int64_t begin = m->row_offsets[r], end = m->row_offsets[r + 1];
        if (begin < 0 || end < begin)
            return bad_entry(why, "block_mask.row_offsets", r + 1, end,
                             " must not be below the entry before it");
        for (c = begin; c < end; c++) {
            if (m->columns[c] < 0 || m->columns[c] >= columns)
                return bad_entry(why, "block_mask.columns", c, m->columns[c],
                                 " is no block of seq_len_kv");
            if (c > begin && m->columns[c] <= m->columns[c - 1])
                return bad_entry(why, "block_mask.columns", c, m->columns[c],
                                 " must be above the entry before it");
        }
    }
    return ATTN_OK;
}

static attn_status check_csr(const attn_params *p, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    attn_status status = ATTN_OK;
    int64_t b, h, longest = 0;
    for (b = 0; b < (p->cu_seqlens_q ? p->batch : 1); b++) /* rows count within a sequence */
        longest = max64(longest, q_capacity(p, b));
    for (b = 0; b < (m->csr_stride_batch ? p->batch : 1) && !status; b++)
        for (h = 0; h < (m->csr_stride_head ? p->num_heads_q : 1) && !status; h++)
            status =
                check_csr_rows(p, b * m->csr_stride_batch + h * m->csr_stride_head, longest, why);
    return status;
}

static attn_status check_interfaces(const attn_params *p, text *why)
{
    if (p->kernels && p->kernels->abi != ATTN_KERNEL_ABI)
        return bad_field(why, ATTN_ERR_ARG, "kernels->abi", p->kernels->abi,
                         " is not that of this library (ATTN_KERNEL_ABI)");
    if (p->kernels &&
        (p->kernels->rows < 4 || p->kernels->rows > ATTN_KERNEL_MAX_ROWS || p->kernels->rows % 4))
        return bad_field(why, ATTN_ERR_ARG, "kernels->rows", p->kernels->rows,
                         " must be a multiple of 4 from 4 to 64");
    if (p->backend && p->backend->abi != ATTN_KERNEL_ABI)
        return bad_field(why, ATTN_ERR_ARG, "backend->abi", p->backend->abi,
                         " is not that of this library (ATTN_KERNEL_ABI)");
    return ATTN_OK;
}

/* Turns *in into *pr, or says in *why what is wrong. need_data: tensors must be there, too. */
OWN_FRAME static attn_status validate(const attn_params *in, problem *pr, int need_data, text *why)
{
    attn_status status;
    if (!in)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    pr->p = *in;
    pr->size_query = 0;
    status = check_sizes(&pr->p, why);
    if (!status)
        status = check_numbers(&pr->p, why);
    if (!status)
        status = check_interfaces(&pr->p, why);
    if (!status)
        status = check_pairs_of_fields(&pr->p, why);
    if (!status)
        status = check_rows(&pr->p, why);
    if (!status)
        status = check_part(&pr->p, why);
    if (!status)
        status = check_output_strides("o", &pr->p.o, why);
    if (!status)
        status = check_output_strides("lse", &pr->p.lse, why);
    if (status)
        return status;
    resolve_sizes(&pr->p);
    resolve_layouts(&pr->p);
    need_data = need_data && !is_empty(&pr->p);
    status = check_tensors(&pr->p, need_data, why);
    if (!status)
        status = check_arrays(&pr->p, why);
    if (!status)
        status = check_output_sizes(&pr->p, why);
    if (!status)
        status = check_lengths(&pr->p, why);
    if (!status)
        status = check_continued(&pr->p, why);
    if (!status && need_data)
        status = check_sequences(&pr->p, why);
    if (!status && need_data)
        status = check_outputs(&pr->p, why);
    if (!status && need_data)
        status = check_tree(&pr->p, why);
    if (!status && need_data && pr->p.block_mask.row_offsets)
        status = check_csr(&pr->p, why);
    if (!status)
        resolve_numbers(pr);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 8  Plan: a pure function of problem and kernel set. The workspace query and the run share it.
 *    A run in too small a workspace takes the small plan, which needs least.
 *
 *    workspace = | alignment | call | shared by the workers | slot 0 | slot 1 | ...
 *
 *    Shared are the logits of all heads (naive_whole), parts of the keys (section 12) or the states
 *    of a prefix (section 13).
 *
 *    One slot belongs to one worker. Its size depends on head_dim and tile shape only: the merge
 *    tree is given room for 2^20 keys at least, so that memory is constant up to that length. But
 *    where row tiles share copies of K and V, memory follows their number and the actual length,
 *    within item_bytes of the tuning, 1 MiB.
 * --------------------------------------------------------------------------------------------- */

#define TREE_KEYS ((int64_t)1 << 20)
#define ITEM_TILES 12

/* States that the tree holds at once: the one of the current chunk, and the maximal nodes to its
 * left, of which there is one a level at most; log2 of the number of chunks, one more where the
 * first key lies inside the tree. */
static int tree_slots(const problem *pr, int64_t keys)
{
    const int inside = begins_inside(&pr->p);
    int64_t chunks = ceil_div(keys, ATTN_CHUNK) + inside;
    int slots = 1 + inside;
    for (; chunks > 1; chunks = ceil_div(chunks, 2))
        slots++;
    return slots;
}

static int choose_impl(const attn_params *p)
{
    if (p->impl == ATTN_IMPL_AUTO && !p->part.rows && !p->part.keys)
        return p->seq_len_kv <= p->auto_naive_keys ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    return p->impl == ATTN_IMPL_NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
}

/* Rows of one item of the first list. */
static int64_t item_rows(const plan *pl)
{
    return (int64_t)pl->rows * pl->item_tiles;
}

static void plan_items(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    const int varlen = p->cu_seqlens_q != NULL;
    const int64_t group = pr->group;
    if (varlen) /* tile t of sequence b is number floor(cu[b] * group / rows) + b + t: no table */
        pl->tiles = times(p->seq_len_q, group) / item_rows(pl) + p->batch;
    else
        pl->tiles = ceil_div(times(rows_held(p), group), item_rows(pl));
    pl->items = times(times(varlen ? 1 : p->batch, p->num_heads_kv), pl->tiles);
    if (pl->impl == ATTN_IMPL_NAIVE)
        pl->items = times(p->batch, p->num_heads_q);
    if (p->logits.data && !wants_rows(p) && !pr->size_query) /* in a query o may come later */
        pl->items = 0;
    pl->logits_tiles = ceil_div(times(p->logits.num_rows, group), pl->rows);
    pl->logits_items = 0;
    if (p->logits.data)
        pl->logits_items = times(times(p->batch, p->num_heads_kv), pl->logits_tiles);
}

static void plan_matrix(const problem *pr, plan *pl)
{
    const int64_t rows = times(ceil_div(pr->max_q_len, pl->rows), pl->rows);
    pl->matrix_floats = 0;
    if (pl->impl == ATTN_IMPL_NAIVE)
        pl->matrix_floats = times(rows, plus(pr->max_kv_len, 2));
}

/* Whether f32 rows lie a multiple of 1 KiB apart: such rows compete for an eighth or less of an L1
 * cache, which costs up to 20 % of the speed. */
static int row_aliases(const attn_tensor *x, int64_t dim)
{
    return x->stride_seq != dim && x->stride_seq % (1024 / (int)sizeof(float)) == 0;
}

/* 16-bit rows are widened once per item. So are f32 rows copied that alias, or do not lie one after
 * the other. Rows of the copy are an odd number of cache lines apart. */
static void plan_copy(const attn_params *p, plan *pl, int which, const attn_tensor *x, int64_t dim)
{
    pl->in_place[which] = x->dtype == ATTN_F32 && !row_aliases(x, dim);
    pl->pitch[which] = is_scattered(p) || !pl->in_place[which] ? pitch_of(dim) : 0;
}

static void plan_copies(const problem *pr, plan *pl)
{
    plan_copy(&pr->p, pl, KEYS, &pr->p.k, pr->p.head_dim);
    plan_copy(&pr->p, pl, VALUES, &pr->p.v, pr->p.head_dim_v);
}

static int has_copies(const plan *pl)
{
    return pl->pitch[KEYS] || pl->pitch[VALUES];
}

static void plan_row_tile(const problem *pr, plan *pl)
{
    int64_t at = 0;
    pl->state_floats = times(pl->rows, plus(pr->p.head_dim_v, 2));
    place(&at, 1, sizeof(tile));
    pl->lanes = place(&at, pl->rows, sizeof(lane));
    pl->qt = place(&at, times(pl->rows, pr->p.head_dim), sizeof(float));
    pl->states = place(&at, times(pl->state_slots, pl->state_floats), sizeof(float));
    pl->row_tile_bytes = at;
}

static void plan_slot(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pl->rows, keys = pl->keys, dim = max64(p->head_dim, p->head_dim_v);
    const int64_t blocks = keys / ATTN_BLOCK + 1; /* one more where a tile begins inside a block */
    const int64_t run_count = 2 + (is_scattered(p) ? keys : 0); /* each key a run, at worst */
    const int own_matrix = pl->impl == ATTN_IMPL_NAIVE && !p->naive_whole;
    int64_t at = 0;
    place(&at, 1, sizeof(key_tile));
    pl->stage = place(&at, times(rows, dim), sizeof(float));
    pl->row_in = place(&at, rows, sizeof(const float *));
    pl->row_out = place(&at, rows, sizeof(float *));
    pl->s = place(&at, rows * keys, sizeof(float));
    pl->x = place(&at, rows * keys, sizeof(float));
    pl->lane_values = place(&at, 3 * rows, sizeof(float)); /* factors; mu and sums of section 15 */
    pl->lane_keys = place(&at, 2 * rows, sizeof(int));
    pl->alpha = place(&at, rows * blocks, sizeof(float));
    pl->blocks = place(&at, blocks, sizeof(block));
    pl->alive = place(&at, rows * keys, sizeof(uint8_t));
    pl->operand_runs = place(&at, run_count, sizeof(const char *));
    pl->ahead_runs = place(&at, run_count, sizeof(const char *));
    pl->copy[KEYS] = place(&at, times(keys, pl->pitch[KEYS]), sizeof(float));
    pl->copy[VALUES] = place(&at, times(keys, pl->pitch[VALUES]), sizeof(float));
    pl->matrix = place(&at, own_matrix ? pl->matrix_floats : 0, sizeof(float));
    pl->row_tiles = at;
    pl->slot_bytes = plus(at, times(pl->item_tiles, pl->row_tile_bytes));
}

/* Row tiles of an item: they share each tile of K and V, and its copy. 96 rows (item_rows) keep K
 * and V in L2 (tiles of 24 rows, AVX2, gain 2 to 3 % of the peak by it, wider nothing); a copy is
 * worth ITEM_TILES of them. */
static int most_item_tiles(const problem *pr, const plan *pl, int64_t rows)
{
    const int64_t tiles = ceil_div(rows, pl->rows), shared = pr->tuning.item_rows / pl->rows;
    const int64_t wanted = has_copies(pl) ? ITEM_TILES : min64(ITEM_TILES, shared);
    return pl->impl == ATTN_IMPL_TILED && !pl->small ? (int)max64(1, min64(tiles, wanted)) : 1;
}

/* Keys that the merge tree has room for. So many that memory does not depend on the length up to
 * 2^20 keys; but where copies want many row tiles, the actual ones. */
static int64_t tree_keys(const problem *pr, const plan *pl)
{
    const int actual = pl->small || (has_copies(pl) && pl->item_tiles > 1);
    return actual ? pr->max_kv_len : max64(pr->max_kv_len, TREE_KEYS);
}

/* ---- dividing the keys of a row tile */

#define SPLIT_BYTES ((int64_t)1 << 18)      /* of shared memory for each worker, at any length; */
#define SPLIT_BYTES_LEAST (SPLIT_BYTES / 4) /* beside large slots; */
#define SPLIT_BYTES_MOST (4 * SPLIT_BYTES)  /* for large states */
#define LARGE_STATE ((int64_t)80 << 10) /* beyond 64 rows of 256 columns: bound to 1 MiB a worker */
#define SPLIT_ITEMS 4                   /* of a worker, at least, so that none waits for long */
#define CHUNK_BLOCKS (ATTN_CHUNK / ATTN_BLOCK)

/* Whether row tiles alone leave workers idle, with work in each that is worth dividing: below 2^19
 * elements of K and V, 2048 keys of 128, two workers with a pool of their own took longer than one
 * (1500 keys: 59 microseconds against 48; with spinning OpenMP threads 43). */
static int wants_split(const problem *pr, const plan *pl)
{
    const attn_params *p = &pr->p;
    const int alike = pl->tiles == 1 && !has_batch_arrays(p);
    const int64_t work = times(pr->max_kv_len, plus(p->head_dim, p->head_dim_v));
    return pl->impl == ATTN_IMPL_TILED && !pl->small && !pl->prefix_keys && p->num_workers > 1 &&
           !p->part.continued && pl->items > 0 &&
           pl->items < (int64_t)SPLIT_ITEMS * p->num_workers &&
           !(alike && pl->items % p->num_workers == 0) && work >= pr->tuning.split_work;
}

/* The memory of a chunk that is divided. */
static void plan_chunk(plan *pl)
{
    split *sp = &pl->split;
    int64_t at = 0;
    sp->s = place(&at, (int64_t)ATTN_CHUNK * pl->rows, sizeof(float));
    sp->alpha = place(&at, (int64_t)CHUNK_BLOCKS * pl->rows, sizeof(float));
    sp->high = place(&at, (int64_t)CHUNK_BLOCKS * pl->rows, sizeof(float));
    sp->blocks = place(&at, CHUNK_BLOCKS, sizeof(block));
    sp->counts = place(&at, CHUNK_BLOCKS, sizeof(int));
    sp->chunk_bytes = at;
}

/* Row tiles in all. */
static int64_t split_rows(const plan *pl)
{
    return pl->items * pl->item_tiles;
}

/* How many of the last chunks to divide, so that the others make whole rounds of all workers: with
 * the last one if it is cut short. 0 where they need more than so many bytes. */
static int chunks_inside(const problem *pr, const plan *pl, int64_t chunks, int64_t bytes)
{
    const int64_t workers = pr->p.num_workers;
    int64_t n = pr->max_kv_len % ATTN_CHUNK != 0;
    while (n < chunks && pl->items * (chunks - n) % workers)
        n++;
    return times(n, pl->split.chunk_bytes) <= bytes ? (int)n : 0;
}

/* Smaller tiles of keys and slices of V, until there are enough for all workers. */
static void plan_inside(const problem *pr, plan *pl)
{
    split *sp = &pl->split;
    const int64_t wanted = (int64_t)SPLIT_ITEMS * pr->p.num_workers;
    const int64_t chunks = split_rows(pl) * sp->inside, dim = pr->p.head_dim_v;
    while (pl->keys > 2 * ATTN_BLOCK && chunks * (ATTN_CHUNK / pl->keys) < wanted)
        pl->keys /= 2;
    sp->tiles = ATTN_CHUNK / pl->keys;
    sp->columns = ceil_div(ceil_div(dim, ceil_div(wanted, chunks)), ATTN_BLOCK) * ATTN_BLOCK;
    sp->slices = wants_values(&pr->p) ? ceil_div(dim, sp->columns) : 0;
}

/* Shared memory for each worker, aligned: what its slot leaves of worker_bytes. Where states are
 * large, as in MLA (132 KB of 64 rows), row tiles that share nothing have two parts at least (128
 * heads, 8192 keys of 512, two threads: 1.6 times the speed of one without, 1.9 with). */
static int64_t split_bytes(const problem *pr, const plan *pl, int64_t state)
{
    const int64_t left = (pl->worker_bytes - pl->slot_bytes) / ALIGNMENT * ALIGNMENT;
    const int64_t usual = max64(SPLIT_BYTES_LEAST, min64(SPLIT_BYTES, left));
    const int64_t pairs = ceil_div(times(2 * split_rows(pl), state), pr->p.num_workers);
    if (pl->item_tiles > 1 || state <= LARGE_STATE)
        return usual;
    return max64(usual, min64(SPLIT_BYTES_MOST, aligned(pairs)));
}

/* Parts as small as the memory allows; pl->split.parts stays 0 where there is nothing to divide. */
static void plan_split(const problem *pr, plan *pl)
{
    split *sp = &pl->split;
    const int moved = begins_inside(&pr->p);
    const int64_t chunks = ceil_div(pr->max_kv_len, ATTN_CHUNK) + moved;
    const int64_t state = aligned(times(pl->state_floats, sizeof(float)));
    const int64_t bytes = pr->p.num_workers * split_bytes(pr, pl, state);
    int64_t parts = chunks, room;
    memset(sp, 0, sizeof *sp);
    pl->shared_bytes = 0;
    if (!wants_split(pr, pl))
        return;
    room = bytes / split_rows(pl);
    while (times(parts, state) > room && parts > 1 + moved)
        parts = ceil_div(chunks, (int64_t)1 << ++sp->level) + moved;
    plan_chunk(pl);
    if (sp->level == 0 && !pr->drop_below) /* dropped keys count in the sums, which come late */
        sp->inside = chunks_inside(pr, pl, chunks, room - times(parts, state));
    if (times(parts, state) > room || (parts == 1 && !sp->inside))
        return;
    pl->shared_bytes = bytes; /* so that shorter calls find it, too */
    sp->parts = (int)parts;
    sp->states_bytes = times(parts, state);
    sp->bytes = sp->states_bytes + sp->inside * sp->chunk_bytes;
    if (sp->inside)
        plan_inside(pr, pl);
    sp->items = pl->items * (parts - sp->inside) + split_rows(pl) * sp->inside * sp->tiles;
}

/* Of the longest list of a call that divides keys. */
static int64_t split_items(const plan *pl)
{
    const split *sp = &pl->split;
    return max64(sp->items, split_rows(pl) * sp->inside * (sp->slices + 1));
}

/* As many row tiles an item as fit into item_bytes, the L2 cache, and leave SPLIT_ITEMS items to
 * each of several workers, if need be by dividing their keys. */
static void plan_sharing(const problem *pr, plan *pl)
{
    const int64_t workers = pr->p.num_workers, least = workers > 1 ? SPLIT_ITEMS * workers : 1;
    pl->item_tiles = most_item_tiles(pr, pl, times(pr->max_q_len, pr->group));
    for (;; pl->item_tiles--) {
        pl->keys = pr->p.tile_keys;
        pl->state_slots = tree_slots(pr, tree_keys(pr, pl));
        plan_row_tile(pr, pl);
        plan_items(pr, pl);
        plan_slot(pr, pl);
        plan_split(pr, pl);
        if (pl->item_tiles == 1 ||
            (pl->slot_bytes + pl->shared_bytes / workers <= pl->worker_bytes &&
             max64(pl->items, pl->split.items) >= least))
            return;
    }
}

/* Asking ahead pays where K and V come from beyond the L2 cache: if they are read once, as in
 * decoding (twice as fast), or are larger than it (1 % at 2048 keys of 128, 13 % at 65536 for 48
 * rows). Else it costs 1 to 2 %. */
static int wants_ahead(const problem *pr, const plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t bytes = plus(times(p->head_dim, (int64_t)bytes_of(p->k.dtype)),
                               times(p->head_dim_v, (int64_t)bytes_of(p->v.dtype)));
    return pr->tuning.ahead &&
           (pl->tiles == 1 || times(pr->max_kv_len, bytes) > pr->tuning.item_bytes);
}

/* What does not depend on how rows and keys are divided. */
static void begin_plan(const problem *pr, plan *pl, int small)
{
    const attn_params *p = &pr->p;
    pl->small = small;
    pl->kernels = p->kernels;
    pl->impl = choose_impl(p);
    pl->rows = p->kernels->rows;
    pl->prefix_items = pl->prefix_keys = 0;
    pl->prefix_why = NULL;
    plan_copies(pr, pl);
    plan_matrix(pr, pl);
}

/* Items, slots, shared memory, workers; a prefix of prefix_keys goes without division of keys. */
static void divide_plan(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    int64_t most;
    plan_sharing(pr, pl);
    pl->ahead = wants_ahead(pr, pl);
    if (pl->impl == ATTN_IMPL_NAIVE && p->naive_whole)
        pl->shared_bytes = aligned(times(times(pl->matrix_floats, pl->items), sizeof(float)));
    most = max64(max64(pl->items, split_items(pl)), pl->logits_items);
    pl->workers = (int)max64(1, min64(p->num_workers, most));
}

/* ------------------------------------------------------------------------------------------------
 * 9  Tile: up to `rows` query rows that share one kv head, and their logits against some keys.
 *     Lane f of a head's flattened rows is query row f / group of head kv_head * group + f % group,
 *     so that a GQA group fills the lanes also when there is one query (decode).
 * --------------------------------------------------------------------------------------------- */

/* What the row tiles of a slot share. */
static void set_scratch(tile *t, char *slot)
{
    const plan *pl = t->pl;
    t->keys = (key_tile *)(void *)slot;
    t->keys->copy[KEYS] = (float *)(void *)(slot + pl->copy[KEYS]);
    t->keys->copy[VALUES] = (float *)(void *)(slot + pl->copy[VALUES]);
    t->stage = (float *)(void *)(slot + pl->stage);
    t->row_in = (const float **)(void *)(slot + pl->row_in);
    t->row_out = (float **)(void *)(slot + pl->row_out);
    t->s_tile = (float *)(void *)(slot + pl->s);
    t->x_tile = (float *)(void *)(slot + pl->x);
    t->lane_values = (float *)(void *)(slot + pl->lane_values);
    t->lane_keys = (int *)(void *)(slot + pl->lane_keys);
    t->alpha = (float *)(void *)(slot + pl->alpha);
    t->blocks = (block *)(void *)(slot + pl->blocks);
    t->alive = (uint8_t *)(slot + pl->alive);
    t->matrix = (float *)(void *)(slot + pl->matrix);
    t->operand_runs = (const char **)(void *)(slot + pl->operand_runs);
    t->ahead_runs = (const char **)(void *)(slot + pl->ahead_runs);
}

static tile *row_tile(const plan *pl, char *slot, int index)
{
    return (tile *)(void *)(slot + pl->row_tiles + index * pl->row_tile_bytes);
}

/* A row tile at `own`. */
static tile *open_tile_at(const call *c, char *slot, char *own)
{
    const plan *pl = &c->pl;
    tile *t = (tile *)(void *)own;
    int i;
    memset(t, 0, sizeof *t);
    t->pr = &c->pr;
    t->pl = pl;
    set_scratch(t, slot);
    t->lanes = (lane *)(void *)(own + pl->lanes);
    t->qt = (float *)(void *)(own + pl->qt);
    for (i = 0; i < pl->state_slots; i++)
        t->free_states[t->free_count++] =
            (float *)(void *)(own + pl->states) + i * pl->state_floats;
    return t;
}

/* Row tile number `index` of a slot. */
static tile *open_tile(const call *c, char *slot, int index)
{
    return open_tile_at(c, slot, (char *)row_tile(&c->pl, slot, index));
}

/* The lane of row c and head number `head` of the choice. */
static void set_lane(tile *t, lane *l, const row_choice *choice, int64_t c, int64_t head)
{
    const attn_params *p = &t->pr->p;
    l->used = 0;
    l->lo = l->hi = 0;
    if (c < 0 || c >= choice->count) /* below 0: varlen slots before cu_seqlens_q[0] */
        return;
    if (t->entry_rows) {
        t->s = sequence_of(p, c / t->entry_rows);
        c %= t->entry_rows;
    }
    l->choice = c;
    l->head = choice->head0 + head;
    l->i = choice->list ? choice->list[c] : c;
    l->used = l->i < t->s.q_len;
    l->pos = l->i + t->s.offset;
    if (l->used)
        visible_range(p, &t->s, l->pos, &l->lo, &l->hi);
}

static void widen_lanes(attn_lanes *lanes, int r)
{
    if (lanes->begin == lanes->end)
        lanes->begin = r;
    lanes->end = r + 1;
}

static void widen_hull(tile *t, const lane *l)
{
    const hull one = { l->head, l->head + 1, l->i, l->i + 1 };
    hull *h = &t->hull;
    if (t->used++ == 0)
        *h = one;
    h->head_begin = min64(h->head_begin, one.head_begin);
    h->head_end = max64(h->head_end, one.head_end);
    h->i_begin = min64(h->i_begin, one.i_begin);
    h->i_end = max64(h->i_end, one.i_end);
    t->all_from = max64(t->all_from, l->lo);
    t->all_to = min64(t->all_to, l->hi);
    if (l->lo < l->hi && t->lo == t->hi) {
        t->lo = l->lo;
        t->hi = l->hi;
    } else if (l->lo < l->hi) {
        t->lo = min64(t->lo, l->lo);
        t->hi = max64(t->hi, l->hi);
    }
}

/* Query row `at` as f32: where it lies, or widened into `space`. */
static const float *query_row(const tile *t, int64_t at, float *space)
{
    const attn_tensor *q = &t->pr->p.q;
    if (q->dtype == ATTN_F32)
        return (const float *)q->data + at;
    load_run(t->pl->kernels, q->dtype, space, q->data, at, t->pr->p.head_dim);
    return space;
}

/* Sets the lanes of a tile and packs their queries; returns how many lanes are used. */
static int set_rows(tile *t, const row_choice *choice)
{
    const problem *pr = t->pr;
    const attn_params *p = &pr->p;
    const float **q = t->row_in;
    int64_t c = choice->first / choice->heads, head = choice->first % choice->heads;
    int r;
    if (head < 0) { /* rounded towards 0 */
        c--;
        head += choice->heads;
    }
    t->used = 0;
    t->span.begin = t->span.end = 0;
    t->lo = t->hi = t->all_from = 0;
    t->all_to = INT64_MAX;
    t->dead = 0.0f;
    t->column = 0;
    t->columns = p->head_dim_v;
    for (r = 0; r < t->pl->rows; r++) {
        lane *l = &t->lanes[r];
        float *space = t->stage + r * p->head_dim;
        set_lane(t, l, choice, c, head);
        if (++head == choice->heads) {
            head = 0;
            c++;
        }
        if (l->used) {
            widen_hull(t, l);
            widen_lanes(&t->span, r);
            q[r] = query_row(t, ROW_AT(p->q, &t->s, l->head, t->s.q_row + l->i), space);
        } else {
            q[r] = memset(space, 0, (size_t)p->head_dim * sizeof(float));
        }
    }
    if (t->used)
        t->pl->kernels->pack(t->qt, q, p->head_dim, pr->factor);
    return t->used;
}

static void open_keys(tile *t, int64_t j0, int n)
{
    t->keys->j0 = j0;
    t->keys->n = n;
    t->keys->copied_from[KEYS] = t->keys->copied_from[VALUES] = n;
}

/* Whether the kernels take another way for so few lanes: see attn_kernels.few. */
static int are_few(const attn_kernels *kernels, attn_lanes lanes)
{
    return lanes.end - lanes.begin / 4 * 4 <= kernels->few;
}

static const attn_tensor *key_tensor(const tile *t, int which)
{
    return which == KEYS ? &t->pr->p.k : &t->pr->p.v;
}

/* That row of K or of the columns of V. */
static const char *row_of(const tile *t, int which, const key_place *at)
{
    const attn_tensor *x = key_tensor(t, which);
    const int64_t element = at->entry * x->stride_batch + t->kv_head * x->stride_head +
                            at->row * x->stride_seq + (which == KEYS ? 0 : t->column);
    return (const char *)x->data + element * (int64_t)bytes_of(x->dtype);
}

/* Elements of such a row. */
static int64_t row_dim(const tile *t, int which)
{
    return which == KEYS ? t->pr->p.head_dim : t->columns;
}

/* Rows j.. of the open tile become f32 rows, up to those that are so already. */
static void copy_rows(tile *t, int which, int64_t j)
{
    const attn_tensor *x = key_tensor(t, which);
    const int64_t pitch = t->pl->pitch[which], dim = row_dim(t, which);
    const int64_t stride = x->stride_seq * (int64_t)bytes_of(x->dtype);
    key_tile *keys = t->keys;
    const int from = (int)(j - keys->j0), end = keys->copied_from[which];
    key_place at = key_at(&t->pr->p, &t->s, j);
    const char *row = row_of(t, which, &at);
    int64_t left = at.left;
    int r;
    for (r = from; r < end; r++, row += stride, left--) {
        if (left == 0) {
            next_place(&t->pr->p, &t->s, &at);
            row = row_of(t, which, &at);
            left = at.left;
        }
        load_run(t->pl->kernels, x->dtype, keys->copy[which] + r * pitch, row, 0, dim);
    }
    keys->copied_from[which] = from < end ? from : end;
}

/* Keys j0..j0+n-1 become the open tile, all of K and V copied. */
static void copy_key_tile(tile *t, int64_t j0, int n)
{
    open_keys(t, j0, n);
    copy_rows(t, KEYS, j0);
    copy_rows(t, VALUES, j0);
}

/* Rows j..j+n-1 of K or V, which lie in the open tile, as f32, *stride floats apart: in place if
 * they lie so. Few lanes read V row after row, which compete for nothing, so that rows that alias
 * need no copy (16 to 20 % of the time of a step of decoding with interleaved heads). */
static const float *key_rows(tile *t, int which, int64_t j, int n, attn_lanes lanes,
                             ptrdiff_t *stride)
{
    const attn_tensor *x = key_tensor(t, which);
    const int few_values = which == VALUES && are_few(t->pl->kernels, lanes);
    const key_place at = key_at(&t->pr->p, &t->s, j);
    *stride = x->stride_seq;
    if (at.left >= n && x->dtype == ATTN_F32 && (t->pl->in_place[which] || few_values))
        return (const float *)(const void *)row_of(t, which, &at);
    copy_rows(t, which, j);
    *stride = (ptrdiff_t)t->pl->pitch[which];
    return t->keys->copy[which] + (j - t->keys->j0) * t->pl->pitch[which];
}

/* Lists where rows j..j+n-1 of K or V lie. 0 if a run between the first and the last is not a whole
 * page: the last page of a ring may be short. */
static int list_runs(const tile *t, int which, int64_t j, int64_t n, const char **list,
                     attn_runs *runs)
{
    const attn_params *p = &t->pr->p;
    const attn_tensor *x = key_tensor(t, which);
    key_place at = key_at(p, &t->s, j);
    int64_t run = min64(n, at.left), left, count = 0;
    int even = 1;
    runs->dtype = x->dtype;
    runs->stride = x->stride_seq * (ptrdiff_t)bytes_of(x->dtype);
    runs->run = list;
    runs->first = run;
    runs->each = p->kv_rows.page_size ? p->kv_rows.page_size : n; /* no run is longer */
    list[count++] = row_of(t, which, &at);
    for (left = n - run; left > 0; left -= run) {
        next_place(p, &t->s, &at);
        run = min64(left, at.left);
        even &= run == min64(left, runs->each);
        list[count++] = row_of(t, which, &at);
    }
    list[count] = list[count - 1];
    return even;
}

/* Whether kernels for few lanes take rows j..j+n-1 of K or V as they lie, which *runs then lists:
 * those that key_rows would have to copy. */
static int few_runs(const tile *t, int which, int64_t j, int n, attn_lanes lanes, attn_runs *runs)
{
    const plan *pl = t->pl;
    const int floats = key_tensor(t, which)->dtype == ATTN_F32;
    if (!pl->pitch[which] || !are_few(pl->kernels, lanes) || row_dim(t, which) % 16)
        return 0;
    if (which == VALUES)
        return list_runs(t, which, j, n, t->operand_runs, runs);
    if (n % ATTN_BLOCK || (floats && !pl->in_place[which]))
        return 0;
    return list_runs(t, which, j, n, t->operand_runs, runs) &&
           (runs->first == n || (runs->first % ATTN_BLOCK == 0 && runs->each % ATTN_BLOCK == 0));
}

/* Rows j..end-1 of K or V, none where end <= j, to be asked for ahead of use. Good until the next
 * call for this slot. */
static attn_ahead rows_ahead(const tile *t, int which, int64_t j, int64_t end)
{
    attn_ahead a;
    attn_runs runs;
    memset(&a, 0, sizeof a);
    if (j >= end || !list_runs(t, which, j, end - j, t->ahead_runs, &runs))
        return a;
    a.run = runs.run;
    a.row = *runs.run;
    a.stride = runs.stride;
    a.left = runs.first;
    a.each_run = runs.each;
    a.bytes = row_dim(t, which) * (int64_t)bytes_of(runs.dtype);
    a.lines = (end - j) * ceil_div(a.bytes, ALIGNMENT);
    return a;
}

/* ---- visibility of a tile */

/* Whether the ranges leave keys j0..j0+n-1 to every used lane. */
static int all_see(const tile *t, int64_t j0, int n)
{
    return t->all_from <= j0 && t->all_to >= j0 + n;
}

static int range_class(const tile *t, int64_t j0, int n)
{
    int r, full = 1, any = 0;
    if (all_see(t, j0, n))
        return ATTN_TILE_FULL;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        if (!l->used)
            continue;
        full &= l->lo <= j0 && l->hi >= j0 + n;
        any |= l->lo < j0 + n && l->hi > j0;
    }
    return full ? ATTN_TILE_FULL : any ? ATTN_TILE_PARTIAL : ATTN_TILE_EMPTY;
}

/* The keys of j0..j0+n-1 that the ranges leave to lane r, counted from j0; none if it is unused. */
static void lane_range(const tile *t, int r, int64_t j0, int n, int *begin, int *end)
{
    const lane *l = &t->lanes[r];
    *begin = l->used ? (int)min64(n, max64(0, l->lo - j0)) : 0;
    *end = l->used ? (int)min64(n, max64(0, l->hi - j0)) : 0;
}

/* alive[key][lane] from the ranges alone; of unused lanes 0. */
static void fill_ranges(tile *t, int64_t j0, int n)
{
    const int rows = t->pl->rows;
    int begin, end, j, r;
    t->alive_from = j0;
    memset(t->alive, 1, (size_t)(n * rows));
    for (r = 0; r < rows && !(all_see(t, j0, n) && t->used == rows); r++) {
        lane_range(t, r, j0, n, &begin, &end);
        for (j = 0; j < n; j++)
            t->alive[j * rows + r] = j >= begin && j < end;
    }
}

/* What `alive`, a part of t->alive, has for lanes r..r+3 of n keys, a byte a lane: in *any 1 if one
 * of the keys is alive, in *all if every one is. Tiles have a multiple of 4 lanes. */
static void join_alive(const tile *t, const uint8_t *alive, int n, int r, uint32_t *any,
                       uint32_t *all)
{
    int j;
    *any = 0;
    *all = 0x01010101u;
    for (j = 0; j < n; j++) {
        uint32_t four;
        memcpy(&four, alive + j * t->pl->rows + r, sizeof four);
        *any |= four;
        *all &= four;
    }
}

static int count_class(const tile *t, int n)
{
    uint32_t any, all, seen = 0, missing = 0;
    int r, i;
    for (r = 0; r < t->pl->rows; r += 4) {
        uint8_t used[4];
        uint32_t wanted;
        for (i = 0; i < 4; i++)
            used[i] = t->lanes[r + i].used != 0;
        memcpy(&wanted, used, sizeof wanted);
        join_alive(t, t->alive, n, r, &any, &all);
        seen |= any;
        missing |= wanted & ~all;
    }
    return !seen ? ATTN_TILE_EMPTY : missing ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
}

static void ask_rows(tile *t, const mask_rule *rule, int64_t j0, int n)
{
    int r;
    for (r = 0; r < t->pl->rows; r++)
        if (t->lanes[r].used)
            rule->row(&t->pr->p, &t->s, &t->lanes[r], j0, n, t->alive + r, t->pl->rows);
}

static int has_pair_rule(const attn_params *p)
{
    int m, any = 0;
    for (m = 0; m < COUNT_OF(mask_rules); m++)
        any |= mask_rules[m].row && mask_rules[m].active(p);
    return any;
}

/* Class of keys j0..j0+n-1 for this tile; sets t->by_pair and then fills t->alive. */
static int tile_class(tile *t, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    int class_so_far = range_class(t, j0, n), m;
    t->by_pair = 0;
    for (m = 0; m < COUNT_OF(mask_rules) && class_so_far != ATTN_TILE_EMPTY; m++) {
        const mask_rule *rule = &mask_rules[m];
        int answer;
        if (!rule->row || !rule->active(p))
            continue;
        answer = rule->tile ? rule->tile(p, &t->s, &t->hull, j0, n) : ATTN_TILE_PARTIAL;
        if (answer == ATTN_TILE_EMPTY)
            return ATTN_TILE_EMPTY;
        if (answer == ATTN_TILE_FULL)
            continue;
        if (!t->by_pair)
            fill_ranges(t, j0, n);
        t->by_pair = 1;
        ask_rows(t, rule, j0, n);
    }
    return t->by_pair ? count_class(t, n) : class_so_far;
}

/* The lanes to whom the ranges leave a key of j0..j0+n-1. */
static attn_lanes lanes_in_range(const tile *t, int64_t j0, int n)
{
    attn_lanes lanes = { 0, 0 };
    int r;
    if (all_see(t, j0, n))
        return t->span;
    for (r = t->span.begin; r < t->span.end; r++)
        if (t->lanes[r].used && t->lanes[r].lo < j0 + n && t->lanes[r].hi > j0)
            widen_lanes(&lanes, r);
    return lanes;
}

/* The lanes to whom t->alive leaves one of its keys from..from+n-1. */
static attn_lanes lanes_alive(const tile *t, int64_t from, int n)
{
    const uint8_t *alive = t->alive + (from - t->alive_from) * t->pl->rows;
    attn_lanes lanes = { 0, 0 };
    uint32_t any, all;
    int r, i;
    for (r = 0; r < t->pl->rows; r += 4) {
        uint8_t lane_any[4];
        join_alive(t, alive, n, r, &any, &all);
        memcpy(lane_any, &any, sizeof any);
        for (i = 0; i < 4 && any; i++)
            if (lane_any[i])
                widen_lanes(&lanes, r + i);
    }
    return lanes;
}

/* Cuts the tile of keys j0..j0+n-1, of which tile_class has told, into its canonical blocks. */
static void set_blocks(tile *t, int64_t j0, int n)
{
    int begin = 0, end = ATTN_BLOCK - (int)((t->s.key_base + j0) % ATTN_BLOCK);
    t->block_count = 0;
    for (; begin < n; begin = end, end += ATTN_BLOCK) {
        block *b = &t->blocks[t->block_count++];
        end = end < n ? end : n;
        b->end = end;
        b->raised = 0;
        b->lanes = t->by_pair ? lanes_alive(t, j0 + begin, end - begin)
                              : lanes_in_range(t, j0 + begin, end - begin);
    }
}

/* ---- what changes a logit, in order */

static void apply_softcap(tile *t, float *s, int64_t j0, int n)
{
    (void)j0;
    t->pl->kernels->softcap(s, n, t->pr->cap2, t->pr->icap2);
}

static void apply_bias(tile *t, float *s, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    const attn_bias *bias = &p->bias;
    float (*load)(const void *, int64_t) = storages[bias->dtype].load;
    const int rows = t->pl->rows;
    int j, r;
    for (r = 0; r < rows; r++) {
        const lane *l = &t->lanes[r];
        int64_t at = 0;
        t->lane_values[r] = LOG2E_HI;
        if (l->used)
            at = t->s.b * bias->stride_batch + l->head * bias->stride_head + l->i * bias->stride_q +
                 (t->s.column + j0) * bias->stride_kv;
        for (j = 0; j < n; j++)
            t->x_tile[j * rows + r] = l->used ? load(bias->data, at + j * bias->stride_kv) : 0.0f;
    }
    t->pl->kernels->add_scaled(s, t->x_tile, t->lane_values, n);
}

static void apply_alibi(tile *t, float *s, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    const float *slopes = p->alibi_slopes + t->s.b * p->alibi_stride;
    const int rows = t->pl->rows;
    int j, r;
    for (r = 0; r < rows; r++) {
        const lane *l = &t->lanes[r];
        const float slope2 = l->used ? slopes[l->head] * LOG2E_HI : 0.0f;
        t->lane_values[r] = -slope2;
        for (j = 0; j < n; j++) {
            const int64_t distance = l->used ? l->pos - (j0 + j) : 0;
            t->x_tile[j * rows + r] = (float)(distance < 0 ? -distance : distance);
        }
    }
    t->pl->kernels->add_scaled(s, t->x_tile, t->lane_values, n);
}

static void apply_score(tile *t, float *s, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int j, r;
    for (r = 0; r < rows; r++)
        for (j = 0; j < n && t->lanes[r].used; j++) {
            float *logit = &s[j * rows + r];
            const attn_pair pair = pair_of(&t->s, &t->lanes[r], j0 + j);
            if (!is_neg_inf(*logit)) {
                float natural = *logit * LN2;
                natural = p->score(p->callback_user, &pair, natural);
                *logit = natural * LOG2E_HI;
            }
        }
}

static int softcap_active(const attn_params *p)
{
    return p->softcap > 0;
}

static int bias_active(const attn_params *p)
{
    return p->bias.data != NULL;
}

static int alibi_active(const attn_params *p)
{
    return p->alibi_slopes != NULL;
}

typedef struct modifier {
    const char *name;
    int last_stage; /* logits asked for at an earlier stage do not have it */
    int (*active)(const attn_params *p);
    void (*apply)(tile *t, float *s, int64_t j0, int n);
} modifier;

static const modifier modifiers[] = {
    { "softcap", ATTN_LOGITS_SOFTCAP, softcap_active, apply_softcap },
    { "bias", ATTN_LOGITS_BIAS, bias_active, apply_bias },
    { "alibi", ATTN_LOGITS_BIAS, alibi_active, apply_alibi },
};

static int has_modifier(const attn_params *p)
{
    int m, any = 0;
    for (m = 0; m < COUNT_OF(modifiers); m++)
        any |= modifiers[m].active(p);
    return any;
}

/* Dead keys become -inf; unused lanes see none. */
static void hide_dead(tile *t, float *s, int64_t j0, int n, int class)
{
    const int rows = t->pl->rows;
    int *begin = t->lane_keys, *end = begin + rows, r, all = 1;
    if (class == ATTN_TILE_PARTIAL && t->by_pair) {
        t->pl->kernels->hide(s, t->alive + (j0 - t->alive_from) * rows, n);
        return;
    }
    if ((class == ATTN_TILE_FULL || all_see(t, j0, n)) && t->used == rows)
        return;
    for (r = 0; r < rows; r++) {
        lane_range(t, r, j0, n, &begin[r], &end[r]);
        all &= begin[r] == 0 && end[r] == n;
    }
    if (!all)
        t->pl->kernels->clip(s, n, begin, end);
}

/* The modifiers up to `stage` change scores of keys j0..j0+n-1. */
static void change_logits(tile *t, float *s, int64_t j0, int n, int stage)
{
    int m;
    for (m = 0; m < COUNT_OF(modifiers) && t->pl->modified; m++)
        if (stage >= modifiers[m].last_stage && modifiers[m].active(&t->pr->p))
            modifiers[m].apply(t, s, j0, n);
}

/* Base-2 logits of keys j0..j0+n-1 as they stand after `stage`. class: from tile_class, needed from
 * stage BIAS on. lanes: no other one sees any of the keys. beside: see the kernel qk. The callback
 * comes after the masks, because it need not see masked pairs. */
static void tile_logits(tile *t, float *s, int64_t j0, int n, int class, int stage,
                        attn_lanes lanes, const attn_exp *beside, attn_ahead *ahead)
{
    const attn_params *p = &t->pr->p;
    const attn_kernels *kernels = t->pl->kernels;
    attn_runs runs;
    const float *k;
    ptrdiff_t stride;
    if (stage < ATTN_LOGITS_BIAS || t->pl->modified) { /* they need numbers in every lane */
        lanes.begin = 0;
        lanes.end = t->pl->rows;
    }
    if (few_runs(t, KEYS, j0, n, lanes, &runs)) {
        kernels->qk_runs(s, t->qt, &runs, n, p->head_dim, lanes, beside, ahead);
    } else {
        k = key_rows(t, KEYS, j0, n, lanes, &stride);
        kernels->qk(s, t->qt, k, stride, n, p->head_dim, lanes, beside, ahead);
    }
    change_logits(t, s, j0, n, stage);
    if (stage < ATTN_LOGITS_BIAS)
        return;
    if (class != ATTN_TILE_FULL) /* unused lanes, +0 where K is finite, are harmless */
        hide_dead(t, s, j0, n, class);
    if (p->score)
        apply_score(t, s, j0, n);
}

/* The same of a tile of keys of its own, in all lanes. */
static void open_logits(tile *t, float *s, int64_t j0, int n, int class, int stage)
{
    const attn_lanes all = { 0, t->pl->rows };
    open_keys(t, j0, n);
    tile_logits(t, s, j0, n, class, stage, all, NULL, NULL);
}

/* ---- dropout */

/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011),
 * word 0 of the output. */
static uint32_t philox_word(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    int round;
    for (round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c0;
}

static int keeps(uint64_t seed, uint32_t drop_below, const attn_pair *at)
{
    return philox_word(seed, (uint32_t)at->n, (uint32_t)at->pos, (uint32_t)at->head,
                       (uint32_t)at->batch) >= drop_below;
}

/* A dropped key stays in l and leaves o alone, like a dead one. */
static void drop_keys(const tile *t, float *probabilities, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int j, r;
    for (r = 0; r < rows; r++)
        for (j = 0; j < n && t->lanes[r].used; j++) {
            const attn_pair pair = pair_of(&t->s, &t->lanes[r], j0 + j);
            if (!keeps(p->dropout_seed, t->pr->drop_below, &pair))
                probabilities[j * rows + r] = t->dead;
        }
}

/* ------------------------------------------------------------------------------------------------
 * 10  Softmax state: (m, l, o) of a tile as [m rows][l rows][o head_dim_v x rows]
 * --------------------------------------------------------------------------------------------- */

static float *state_l(const tile *t, float *state)
{
    return state + t->pl->rows;
}

static float *state_o(const tile *t, float *state)
{
    return state + 2 * t->pl->rows;
}

static float *take_state(tile *t)
{
    ATTN_ASSERT(t->free_count > 0);
    return t->free_states[--t->free_count];
}

static void give_state(tile *t, float *state)
{
    t->free_states[t->free_count++] = state;
}

static float *begin_state(tile *t)
{
    float *state = take_state(t);
    const int64_t rows = t->pl->rows;
    int64_t k;
    memset(state, 0, (size_t)t->pl->state_floats * sizeof *state);
    for (k = 0; k < rows; k++)
        state[k] = NEG_INF;
    return state;
}

/* The merge tree as a binary counter: chunk i is complete; its state is NULL if no key of it was
 * visible. Trailing one bits of i are the levels at which a lower half waits. (Or all i are nodes
 * of one higher level, and what is left is the tree above.) */
static void end_chunk(tile *t, int64_t i)
{
    float *state = t->state;
    int level = 0;
    t->state = NULL;
    for (; i & 1; i >>= 1, level++) {
        float *lower = t->pending[level];
        t->pending[level] = NULL;
        if (lower && state) {
            t->pl->kernels->merge(lower, state, t->pr->p.head_dim_v);
            give_state(t, lower);
        } else if (lower) {
            state = lower;
        }
    }
    ATTN_ASSERT(t->pending[level] == NULL);
    t->pending[level] = state;
}

/* The root: keys and chunks that never came are empty, so the state of the current chunk and the
 * pending ones fold upwards. */
static float *take_root(tile *t)
{
    float *root = t->state;
    int level;
    t->state = NULL;
    for (level = 0; level < MAX_LEVELS; level++) {
        float *lower = t->pending[level];
        t->pending[level] = NULL;
        if (lower && root) {
            t->pl->kernels->merge(lower, root, t->pr->p.head_dim_v);
            give_state(t, lower);
        } else if (lower) {
            root = lower;
        }
    }
    return root ? root : begin_state(t);
}

/* Whether the tile needs the second pass: a masked NaN or Inf may have met p = +0. */
static int needs_redo(const tile *t, float *state)
{
    const int64_t values = wants_values(&t->pr->p) ? t->pr->p.head_dim_v : 0;
    return t->pr->p.force_redo ||
           !t->pl->kernels->finite(state_l(t, state), (values + 1) * t->pl->rows); /* l, then o */
}

/* One row's merge with the state (sink * log2 e, 1, 0) of its sink: updates m and l and returns the
 * factor on o, which scale_values applies. */
static float merge_sink(float sink, float *m, float *l)
{
    const float sink2 = sink * LOG2E_HI;
    const float top = *m > sink2 ? *m : sink2;
    float w = *m - top, w_sink = sink2 - top;
    w = exp2_canon(w);
    w_sink = exp2_canon(w_sink);
    *m = top;
    *l = *l * w;
    *l = w_sink + *l; /* fma(1, w_sink, l) */
    return w;
}

static void scale_values(float *o, int64_t step, int64_t n, float w)
{
    int64_t d;
    for (d = 0; d < n; d++) {
        o[d * step] = o[d * step] * w;
        o[d * step] = o[d * step] + 0.0f; /* fma(0, w_sink, o) */
    }
}

/* LSE of a finished row; empty: no key was alive, so that only the sink is left, copied. */
static float row_lse(float m, float l, int empty, float sink)
{
    float lse = sink;
    if (!empty) {
        lse = log2_canon(l);
        lse = m + lse;
        lse = lse * LN2;
    }
    return lse + 0.0f;
}

/* Applies the sink to every used lane; lse[lane] (NULL = not wanted) gets the finished LSE. */
static void finish_lanes(tile *t, float *state, float *lse)
{
    const int rows = t->pl->rows;
    float *l = state_l(t, state);
    int r;
    for (r = 0; r < rows; r++) {
        const float sink = t->lanes[r].used ? sink_of(&t->pr->p, t->lanes[r].head) : NEG_INF;
        const int empty = l[r] == 0.0f;
        if (!is_neg_inf(sink) && !empty) {
            const float w = merge_sink(sink, &state[r], &l[r]);
            scale_values(state_o(t, state) + r, rows, t->pr->p.head_dim_v, w);
        }
        if (lse)
            lse[r] = row_lse(state[r], l[r], empty, sink);
    }
}

/* The chunk that part.continued goes on with, as write_partial left it. */
static void continue_state(tile *t)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int64_t d;
    int r;
    if (!p->part.continued)
        return;
    t->state = begin_state(t);
    for (r = 0; r < rows; r++) {
        const lane *at = &t->lanes[r];
        const int64_t row = at->used ? state_row(p, &t->s, at->head, at->i) : 0;
        if (!at->used)
            continue;
        t->state[r] = p->state.m[row];
        state_l(t, t->state)[r] = p->state.l[row];
        for (d = 0; d < p->head_dim_v; d++)
            state_o(t, t->state)[d * rows + r] = p->state.o[row * p->head_dim_v + d];
    }
}

static void write_partial(const tile *t, float *state)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int64_t d;
    int r;
    for (r = 0; r < rows; r++) {
        const lane *at = &t->lanes[r];
        const int64_t row = at->used ? state_row(p, &t->s, at->head, at->i) : 0;
        if (!at->used)
            continue;
        p->state.m[row] = state[r] + 0.0f;
        p->state.l[row] = state_l(t, state)[r];
        for (d = 0; d < p->head_dim_v; d++)
            p->state.o[row * p->head_dim_v + d] = state_o(t, state)[d * rows + r] + 0.0f;
    }
}

/* Rows [dim][lane] of a tile, divided by l and times the factor, become rows of an output: f32 at
 * once where they belong, others by way of t->stage. */
static void write_lanes(tile *t, const attn_output *to, int64_t dim, const float *x, const float *l,
                        float factor)
{
    const int in_place = to->dtype == ATTN_F32;
    float **out = t->row_out;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *at = &t->lanes[r];
        out[r] = t->stage + r * dim;
        if (at->used && in_place)
            out[r] = (float *)to->data + ROW_AT(*to, &t->s, at->head, t->s.q_row + at->i);
    }
    t->pl->kernels->result(out, x, l, factor, dim);
    for (r = 0; r < t->pl->rows && !in_place; r++) {
        const lane *at = &t->lanes[r];
        if (at->used)
            store_run(t->pl->kernels, to->dtype, to->data,
                      ROW_AT(*to, &t->s, at->head, t->s.q_row + at->i), out[r], dim);
    }
}

/* The root state of a tile becomes rows of the outputs. */
static void write_rows(tile *t, float *state)
{
    const attn_params *p = &t->pr->p;
    int r;
    if (p->partial) {
        write_partial(t, state);
        return;
    }
    finish_lanes(t, state, p->lse.data ? t->lane_values : NULL);
    if (p->o.data)
        write_lanes(t, &p->o, p->head_dim_v, state_o(t, state), state_l(t, state),
                    t->pr->keep_factor);
    for (r = 0; r < t->pl->rows; r++) {
        const lane *at = &t->lanes[r];
        if (at->used && p->lse.data)
            store_f32(p->lse.data, ROW_AT(p->lse, &t->s, at->head, t->s.q_row + at->i),
                      t->lane_values[r]);
    }
}

/* ------------------------------------------------------------------------------------------------
 * 11  Tiled items: the online softmax (Milakov, Gimelshein 2018, arXiv 1805.02867; tiled as in Dao
 *     et al. 2022, arXiv 2205.14135), in chunks of 1024 keys that a binary tree merges
 * --------------------------------------------------------------------------------------------- */

/* p of n keys times V into o. */
static void add_products(tile *t, float *o, const float *probabilities, int64_t j0, int n,
                         attn_lanes lanes, attn_ahead *ahead)
{
    const attn_kernels *kernels = t->pl->kernels;
    const int64_t dim = t->columns;
    attn_runs runs;
    const float *v;
    ptrdiff_t stride;
    if (!is_dead(t->dead) && few_runs(t, VALUES, j0, n, lanes, &runs)) {
        kernels->pv_runs(o, probabilities, &runs, n, dim, lanes, ahead);
        return;
    }
    v = key_rows(t, VALUES, j0, n, lanes, &stride);
    if (is_dead(t->dead))
        kernels->pv_select(o, probabilities, v, stride, n, dim, lanes);
    else
        kernels->pv(o, probabilities, v, stride, n, dim, lanes, ahead);
}

/* Where the keys of block i begin in the tile. */
static int block_begin(const tile *t, int i)
{
    return i ? t->blocks[i - 1].end : 0;
}

static int is_whole(const tile *t, int i)
{
    return t->blocks[i].end - block_begin(t, i) == ATTN_BLOCK;
}

/* The block behind those whose logits come in one step, from `first` on: with few lanes all whole
 * ones that have the same ones, so that the kernel may read K in its own order. */
static int end_of_step(const tile *t, int first)
{
    const attn_lanes lanes = t->blocks[first].lanes;
    const int more = are_few(t->pl->kernels, lanes) && is_whole(t, first);
    const int most = more ? t->block_count : first + 1;
    int end = first + 1;
    while (end < most && t->blocks[end].lanes.begin == lanes.begin &&
           t->blocks[end].lanes.end == lanes.end && is_whole(t, end))
        end++;
    return end;
}

/* Blocks of a tile whose logits come in one step; all 0 before the first. */
typedef struct key_step {
    int first, next; /* blocks */
    int begin, end;  /* their keys, counted in the tile */
    attn_lanes lanes;
} key_step;

/* The next step that has lanes; 0 = there is none. */
static int take_step(const tile *t, key_step *st)
{
    do {
        if (st->next == t->block_count)
            return 0;
        st->first = st->next;
        st->next = end_of_step(t, st->first);
        st->begin = st->end;
        st->end = t->blocks[st->next - 1].end;
        st->lanes = t->blocks[st->first].lanes;
    } while (st->lanes.begin == st->lanes.end);
    return 1;
}

/* Decides the maximum m for block i, whose logits are there. Returns the exponentials that are then
 * to be computed, with the sum l. */
static attn_exp decide_block(tile *t, int i, float *m, float *l)
{
    const int rows = t->pl->rows, begin = block_begin(t, i);
    block *b = &t->blocks[i];
    attn_exp e;
    int found;
    e.s = t->s_tile + begin * rows;
    e.n = b->end - begin;
    found = t->pl->kernels->running_max(e.s, e.n, m, l, t->alpha + i * rows);
    b->raised = found & ATTN_RAISED;
    e.m = m;
    e.l = l;
    e.lanes = b->lanes;
    e.calm = found & ATTN_IS_CALM;
    return e;
}

/* Running maximum and sum of block i, whose logits are there. *ready, whose block is done, becomes
 * this one: its exponentials are to be computed. */
static void enter_block(tile *t, int i, attn_exp *ready)
{
    *ready = decide_block(t, i, t->state, state_l(t, t->state));
    if (is_dead(t->dead)) {
        t->pl->kernels->exp_sum(ready->s, ready->n, t->dead, ready->m, ready->l);
        ready->n = 0;
    }
}

/* The exponentials that *ready is about, if any. */
static void finish_ready(const attn_kernels *kernels, attn_exp *ready)
{
    if (ready->n)
        kernels->exp_block(ready);
    ready->n = 0;
}

/* Logits of the blocks of a tile that begins at key j0, running maximum and sum, probabilities. The
 * exponentials of the last block of a step run beside the logits of the next step. */
static void add_blocks(tile *t, int64_t j0, int class, attn_ahead *ahead)
{
    const attn_kernels *kernels = t->pl->kernels;
    attn_exp ready = { NULL, 0, NULL, NULL, { 0, 0 }, 0 };
    const int64_t lines = ahead->lines;
    const int rows = t->pl->rows, keys = t->blocks[t->block_count - 1].end;
    key_step st = { 0, 0, 0, 0, { 0, 0 } };
    int i;
    while (take_step(t, &st)) {
        ahead->lines = lines * (st.end - st.begin) / keys;
        tile_logits(t, t->s_tile + st.begin * rows, j0 + st.begin, st.end - st.begin, class,
                    ATTN_LOGITS_SOFTMAX, st.lanes, ready.n ? &ready : NULL, ahead);
        ready.n = 0;
        for (i = st.first; i < st.next; i++) {
            finish_ready(kernels, &ready);
            enter_block(t, i, &ready);
        }
    }
    finish_ready(kernels, &ready);
}

/* The probabilities of a tile times V, block by block; blocks of the same lanes without a rescale
 * between them in one step. */
static void add_values(tile *t, float *o, int64_t j0, attn_ahead *ahead)
{
    const int rows = t->pl->rows;
    const int64_t lines = ahead->lines;
    int begin = 0, i = 0;
    while (i < t->block_count) {
        const attn_lanes lanes = t->blocks[i].lanes;
        int end = t->blocks[i].end;
        if (t->blocks[i].raised)
            t->pl->kernels->rescale(o, t->alpha + i * rows, t->columns);
        for (i++; i < t->block_count && !t->blocks[i].raised &&
                  t->blocks[i].lanes.begin == lanes.begin && t->blocks[i].lanes.end == lanes.end;
             i++)
            end = t->blocks[i].end;
        ahead->lines = lines * (end - begin) / t->blocks[t->block_count - 1].end;
        if (lanes.begin < lanes.end)
            add_products(t, o, t->s_tile + begin * rows, j0 + begin, end - begin, lanes, ahead);
        begin = end;
    }
}

/* Keys j0..j0+n-1 enter the state of the current chunk. Each product asks for what the next one
 * reads: Q K^T for these rows of V, P V for the next tile of K, unless a mask may skip that. So
 * memory never rests, and what is asked for fits into L2. */
static void add_keys(tile *t, int64_t j0, int n, int values)
{
    const int class = tile_class(t, j0, n);
    const int leads = t->pl->ahead && t->keys->asked < j0 + n;
    const int64_t next = j0 + n;
    const int64_t end = leads && !t->pl->by_pair ? min64(next + t->pl->keys, t->hi) : next;
    attn_ahead ahead;
    if (class == ATTN_TILE_EMPTY)
        return;
    t->keys->asked = max64(t->keys->asked, next);
    if (!t->state)
        t->state = begin_state(t);
    set_blocks(t, j0, n);
    ahead = rows_ahead(t, VALUES, j0, leads && values ? next : j0);
    add_blocks(t, j0, class, &ahead);
    if (!values)
        return;
    if (t->pr->drop_below)
        drop_keys(t, t->s_tile, j0, n);
    ahead = rows_ahead(t, KEYS, next, end);
    add_values(t, state_o(t, t->state), j0, &ahead);
}

/* The tile of keys j0..end-1 enters the states of `count` row tiles. */
static void add_key_tile(tile *const *tiles, int count, int64_t j0, int64_t end, int values)
{
    int g;
    open_keys(tiles[0], j0, (int)(end - j0));
    for (g = 0; g < count; g++) {
        const int64_t from = max64(j0, tiles[g]->lo), to = min64(end, tiles[g]->hi);
        if (from < to)
            add_keys(tiles[g], from, (int)(to - from), values);
    }
}

/* The first of keys j..end-1 that a row tile may see, or end. */
static int64_t first_key(tile *const *tiles, int count, int64_t j, int64_t end)
{
    int g, m;
    for (g = 0; g < count && j < end; g++) {
        const tile *t = tiles[g];
        const attn_params *p = &t->pr->p;
        int64_t at = max64(j, t->lo);
        for (m = 0; m < COUNT_OF(mask_rules) && at < min64(end, t->hi); m++)
            if (mask_rules[m].next && mask_rules[m].active(p))
                at = mask_rules[m].next(p, &t->s, &t->hull, at, min64(end, t->hi));
        if (at < t->hi)
            end = min64(end, at);
    }
    return end;
}

/* The same up to hi, in reaches that double: a row without a visible cell is not looked through to
 * its end for each tile of the others. */
static int64_t next_key(tile *const *tiles, int count, int64_t j, int64_t hi)
{
    int64_t reach = tiles[0]->pl->keys;
    while (tiles[0]->pl->by_pair && j < hi) {
        const int64_t end = j + min64(reach, hi - j), next = first_key(tiles, count, j, end);
        if (next < end)
            return next;
        j = end;
        reach = min64(2 * reach, INT32_MAX);
    }
    return j;
}

/* One pass over those of the keys from..to-1 that the row tiles see, which share K and V; tiles end
 * where n is a multiple of the tile size. A chunk that is not complete stays in t->state. */
static void tiled_pass(tile *const *tiles, int count, int64_t from, int64_t to, int values)
{
    const int64_t base = tiles[0]->s.key_base, keys = tiles[0]->pl->keys;
    int64_t j = tiles[0]->lo, hi = tiles[0]->hi, next;
    int g;
    tiles[0]->keys->asked = 0;
    for (g = 1; g < count; g++)
        if (tiles[g]->lo < tiles[g]->hi) {
            j = j < hi ? min64(j, tiles[g]->lo) : tiles[g]->lo;
            hi = max64(hi, tiles[g]->hi);
        }
    j = max64(j, from);
    hi = min64(hi, to);
    next = next_key(tiles, count, j, hi);
    while (j < hi) {
        const int64_t chunk = (base + j) / ATTN_CHUNK;
        const int64_t chunk_end = min64(hi, (chunk + 1) * ATTN_CHUNK - base);
        while (next < chunk_end) {
            const int64_t end = min64(chunk_end, ((base + next) / keys + 1) * keys - base);
            add_key_tile(tiles, count, next, end, values);
            next = next_key(tiles, count, end, hi);
        }
        j = chunk_end;
        for (g = 0; g < count && (base + j) % ATTN_CHUNK == 0; g++)
            end_chunk(tiles[g], chunk);
    }
}

/* The root state of a tile's rows after tiled_pass, with the second pass where it is needed. */
static float *tiled_state(tile *t, int values)
{
    float *root = take_root(t);
    if (values && needs_redo(t, root)) {
        give_state(t, root);
        t->dead = ATTN_DEAD;
        continue_state(t);
        tiled_pass(&t, 1, 0, INT64_MAX, values);
        root = take_root(t);
    }
    return root;
}

/* Which sequence and rows item `index` of the tiled list is: heavy causal tiles first. */
static row_choice tiled_choice(const problem *pr, const plan *pl, int64_t index, int64_t *b,
                               int64_t *kv_head)
{
    const attn_params *p = &pr->p;
    const int64_t slot = pl->tiles - 1 - index % pl->tiles, unit = item_rows(pl);
    row_choice choice;
    choice.list = NULL;
    choice.heads = pr->group;
    index /= pl->tiles;
    if (p->cu_seqlens_q) {
        /* the last b whose first slot, floor(cu[b] * group / rows) + b, is not beyond */
        int64_t lo = 0, hi = p->batch;
        while (hi - lo > 1) {
            const int64_t middle = lo + (hi - lo) / 2;
            if (p->cu_seqlens_q[middle] * pr->group / unit + middle <= slot)
                lo = middle;
            else
                hi = middle;
        }
        *b = lo;
        *kv_head = index;
        choice.first = (slot - (p->cu_seqlens_q[lo] * pr->group / unit + lo)) * unit;
    } else {
        *b = index / p->num_heads_kv;
        *kv_head = index % p->num_heads_kv;
        choice.first = slot * unit;
    }
    choice.head0 = *kv_head * pr->group;
    choice.count = 0;
    return choice;
}

/* Row tile number g of item `index`, its rows chosen and packed. */
static tile *open_rows(const call *c, char *slot, int64_t index, int g)
{
    tile *t = open_tile(c, slot, g);
    int64_t b;
    row_choice choice = tiled_choice(&c->pr, &c->pl, index, &b, &t->kv_head);
    t->s = sequence_of(&c->pr.p, b);
    choice.first += t->s.row_from * choice.heads + (int64_t)g * c->pl.rows;
    choice.count = t->s.row_to;
    set_rows(t, &choice);
    return t;
}

/* Opens the row tiles of item `index` and returns how many have rows. */
static int open_item(const call *c, char *slot, int64_t index, tile **tiles)
{
    int count = 0, g;
    for (g = 0; g < c->pl.item_tiles; g++) {
        tiles[count] = open_rows(c, slot, index, g);
        count += tiles[count]->used > 0;
    }
    return count;
}

/* The keys from key `from` on enter the states of an item's row tiles, which are then written. */
static void finish_item(tile *const *tiles, int count, int64_t from)
{
    int g;
    if (count)
        tiled_pass(tiles, count, from, INT64_MAX, wants_values(&tiles[0]->pr->p));
    for (g = 0; g < count; g++)
        write_rows(tiles[g], tiled_state(tiles[g], wants_values(&tiles[g]->pr->p)));
}

static void tiled_item(const call *c, char *slot, int64_t index)
{
    tile *tiles[ITEM_TILES];
    const int count = open_item(c, slot, index, tiles);
    int g;
    for (g = 0; g < count; g++)
        continue_state(tiles[g]);
    finish_item(tiles, count, 0);
}

/* ------------------------------------------------------------------------------------------------
 * 12  Split items: few row tiles and many workers, so the keys of a row tile are divided, too
 *     (Flash-Decoding: Dao, Haziza, Massa, Sizov 2023). A part is a node of the merge tree, done as
 *     in section 11. Chunks that would not fill a round of all workers are divided themselves. The
 *     lists, one after the other:
 *
 *         scores    whole parts; of divided chunks Q K^T and the maxima of blocks, by tiles of keys
 *         weights   running maximum and exponentials, by tiles of keys
 *         values    P V, by slices of columns, and the sums
 *         combine   the tree of all parts, and the results, by row tiles
 *
 *     Every element sees the same operations in the same order as in section 11.
 * --------------------------------------------------------------------------------------------- */

/* Row tile `row` of all. A slot keeps the row tiles of an item until it is asked for another's. */
static tile *split_tile(const call *c, char *slot, int64_t row)
{
    const int64_t item = row / c->pl.item_tiles;
    key_tile *keys = (key_tile *)(void *)slot;
    tile *t = row_tile(&c->pl, slot, (int)(row % c->pl.item_tiles));
    int g;
    for (g = 0; g < c->pl.item_tiles && keys->item != item; g++)
        open_rows(c, slot, item, g);
    keys->item = item;
    set_scratch(t, slot);
    t->column = 0;
    t->columns = c->pr.p.head_dim_v;
    t->state = NULL;
    return t;
}

/* Where a part's state lies. */
static float *part_state(const call *c, int64_t row, int part)
{
    const split *sp = &c->pl.split;
    char *share = (char *)c->shared + row * sp->bytes;
    return (float *)(void *)(share + part * (sp->states_bytes / sp->parts));
}

/* The node that a part is, and those of its keys that a row tile sees; 0 if it sees none. */
static int part_keys(const tile *t, int part, int64_t *node, int64_t *from, int64_t *to)
{
    const int level = t->pl->split.level;
    const int64_t base = t->s.key_base, keys = (int64_t)ATTN_CHUNK << level;
    *node = (base + t->s.key_from) / keys + part;
    *from = max64(*node * keys - base, t->lo);
    *to = min64((*node + 1) * keys - base, t->hi);
    return *from < *to;
}

/* A tile of keys of a divided chunk. */
typedef struct cut {
    int64_t from, to; /* those of its keys that the row tile sees */
    int *count;       /* of its blocks */
    float *high;      /* [block][rows] maxima */
} cut;

/* Lets a row tile work on tile k of divided chunk x; 0 if it sees nothing of the chunk. */
static int open_cut(tile *t, const call *c, int64_t row, int x, int k, cut *at)
{
    const plan *pl = &c->pl;
    const split *sp = &pl->split;
    const int64_t first = (int64_t)k * pl->keys;
    char *chunk = (char *)c->shared + row * sp->bytes + sp->states_bytes + x * sp->chunk_bytes;
    int64_t node, from, to, j0;
    if (!part_keys(t, sp->parts - sp->inside + x, &node, &from, &to))
        return 0;
    j0 = node * ATTN_CHUNK - t->s.key_base + first;
    at->from = max64(from, j0);
    at->to = min64(to, j0 + pl->keys);
    at->count = (int *)(void *)(chunk + sp->counts) + k;
    at->high = (float *)(void *)(chunk + sp->high) + first / ATTN_BLOCK * pl->rows;
    t->s_tile = (float *)(void *)(chunk + sp->s) + first * pl->rows;
    t->alpha = (float *)(void *)(chunk + sp->alpha) + first / ATTN_BLOCK * pl->rows;
    t->blocks = (block *)(void *)(chunk + sp->blocks) + first / ATTN_BLOCK;
    t->block_count = *at->count;
    return 1;
}

static void score_cut(tile *t, const cut *at)
{
    const attn_kernels *kernels = t->pl->kernels;
    const int n = (int)(at->to - at->from), rows = t->pl->rows;
    key_step st = { 0, 0, 0, 0, { 0, 0 } };
    int class, i, r;
    *at->count = 0;
    if (n <= 0)
        return;
    class = tile_class(t, at->from, n);
    if (class == ATTN_TILE_EMPTY)
        return;
    open_keys(t, at->from, n);
    set_blocks(t, at->from, n);
    *at->count = t->block_count;
    while (take_step(t, &st)) {
        tile_logits(t, t->s_tile + st.begin * rows, at->from + st.begin, st.end - st.begin, class,
                    ATTN_LOGITS_SOFTMAX, st.lanes, NULL, NULL);
        for (i = st.first; i < st.next; i++) {
            const int begin = block_begin(t, i);
            float *high = at->high + i * rows;
            for (r = 0; r < rows; r++)
                high[r] = NEG_INF;
            kernels->maximum(t->s_tile + begin * rows, t->blocks[i].end - begin, high);
        }
    }
}

/* Which of `owners` index `index` of a list belongs to, so many to each, and its number there. A
 * worker stays with an owner as long as it can. Owner 0, which may have fewer rows, comes last. */
static int64_t list_owner(int64_t index, int64_t owners, int64_t each, int *number)
{
    *number = (int)(index % each);
    return (index / each + 1) % owners;
}

/* A part of the keys of an item's row tiles. */
static void score_part(const call *c, char *slot, int64_t item, int part)
{
    tile *tiles[ITEM_TILES];
    int64_t rows[ITEM_TILES], node, from, to, lo = INT64_MAX, hi = 0;
    int count = 0, g;
    for (g = 0; g < c->pl.item_tiles; g++) {
        rows[count] = item * c->pl.item_tiles + g;
        tiles[count] = split_tile(c, slot, rows[count]);
        if (!part_keys(tiles[count], part, &node, &from, &to))
            continue;
        count++;
        lo = min64(lo, from);
        hi = max64(hi, to);
    }
    if (count)
        tiled_pass(tiles, count, lo, hi, wants_values(&c->pr.p));
    for (g = 0; g < count; g++) {
        float *root = take_root(tiles[g]);
        memcpy(part_state(c, rows[g], part), root, (size_t)c->pl.state_floats * sizeof *root);
        give_state(tiles[g], root);
    }
}

/* List "scores": whole parts first, as they take longer. */
static void score_item(const call *c, char *slot, int64_t index)
{
    const split *sp = &c->pl.split;
    const int whole = sp->parts - sp->inside, cuts = sp->inside * sp->tiles;
    const int64_t first_cut = c->pl.items * whole;
    int number;
    if (index < first_cut) {
        const int64_t item = list_owner(index, c->pl.items, whole, &number);
        score_part(c, slot, item, number);
    } else {
        const int64_t row = list_owner(index - first_cut, split_rows(&c->pl), cuts, &number);
        tile *t = split_tile(c, slot, row);
        cut at;
        if (open_cut(t, c, row, number / sp->tiles, number % sp->tiles, &at))
            score_cut(t, &at);
    }
}

/* The decisions about the maximum in an earlier tile of keys again, from the maxima of its blocks:
 * m is that of the chunk so far; behind l, which goes nowhere, there is room for alpha. */
static void decide_blocks(tile *t, const cut *at, float *m, float *l)
{
    int i;
    for (i = 0; i < t->block_count; i++) {
        const block *b = &t->blocks[i];
        if (b->lanes.begin < b->lanes.end)
            t->pl->kernels->running_max(at->high + i * t->pl->rows, 1, m, l, l + t->pl->rows);
    }
}

/* The decisions in the open tile of keys, and its exponentials. The sums l go nowhere: list
 * "values" adds in order. */
static void weigh_blocks(tile *t, float *m, float *l)
{
    int i;
    for (i = 0; i < t->block_count; i++) {
        const block *b = &t->blocks[i];
        if (b->lanes.begin < b->lanes.end) {
            const attn_exp e = decide_block(t, i, m, l);
            t->pl->kernels->exp_block(&e);
        }
    }
}

/* List "weights". The last tile of a chunk knows its final maximum. */
static void weight_item(const call *c, char *slot, int64_t index)
{
    const split *sp = &c->pl.split;
    int number, i, r;
    const int64_t row =
        list_owner(index, split_rows(&c->pl), (int64_t)sp->inside * sp->tiles, &number);
    const int x = number / sp->tiles, k = number % sp->tiles;
    tile *t = split_tile(c, slot, row);
    float *m = t->lane_values, *l = m + c->pl.rows, *state;
    cut at;
    for (r = 0; r < c->pl.rows; r++) {
        m[r] = NEG_INF;
        l[r] = 0.0f;
    }
    for (i = 0; i < k && open_cut(t, c, row, x, i, &at); i++)
        decide_blocks(t, &at, m, l);
    if (!open_cut(t, c, row, x, k, &at))
        return;
    weigh_blocks(t, m, l);
    if (k < sp->tiles - 1)
        return;
    state = part_state(c, row, sp->parts - sp->inside + x);
    memset(state, 0, (size_t)c->pl.state_floats * sizeof *state);
    memcpy(state, m, (size_t)c->pl.rows * sizeof *state);
}

/* The sums of a tile's probabilities: as P V with one column of ones. */
static void add_sums(const tile *t, float *l)
{
    static const float one = 1.0f;
    const attn_kernels *kernels = t->pl->kernels;
    const int rows = t->pl->rows;
    int begin = 0, i;
    for (i = 0; i < t->block_count; begin = t->blocks[i++].end) {
        const block *b = &t->blocks[i];
        if (b->raised)
            kernels->rescale(l, t->alpha + i * rows, 1);
        if (b->lanes.begin < b->lanes.end)
            kernels->pv(l, t->s_tile + begin * rows, &one, 0, b->end - begin, 1, b->lanes, NULL);
    }
}

/* List "values": a slice of the columns of V, or the sums. */
static void value_item(const call *c, char *slot, int64_t index)
{
    const split *sp = &c->pl.split;
    const int each = (int)sp->slices + 1;
    int number, k;
    const int64_t row = list_owner(index, split_rows(&c->pl), (int64_t)sp->inside * each, &number);
    const int x = number / each, slice = number % each, sums = slice == sp->slices;
    tile *t = split_tile(c, slot, row);
    float *state = part_state(c, row, sp->parts - sp->inside + x), *o = state_o(t, state);
    const int last = c->pl.ahead ? sp->tiles - 1 : 0; /* that asks for no other */
    cut at;
    if (!sums) {
        t->column = slice * sp->columns;
        t->columns = min64(sp->columns, c->pr.p.head_dim_v - t->column);
    }
    for (k = 0; k < sp->tiles && open_cut(t, c, row, x, k, &at); k++) {
        const int64_t end = k < last ? min64(at.to + c->pl.keys, t->hi) : 0;
        attn_ahead next;
        if (t->block_count == 0) /* it may lie before key 0 */
            continue;
        next = rows_ahead(t, VALUES, at.to, end);
        open_keys(t, at.from, (int)(at.to - at.from));
        if (sums)
            add_sums(t, state_l(t, state));
        else
            add_values(t, o + t->column * c->pl.rows, at.from, &next);
    }
}

static void combine_item(const call *c, char *slot, int64_t index)
{
    tile *t = split_tile(c, slot, index);
    int64_t node, from, to;
    int part;
    if (!t->used)
        return;
    for (part = 0; part < c->pl.split.parts; part++) {
        if (part_keys(t, part, &node, &from, &to)) {
            t->state = take_state(t);
            memcpy(t->state, part_state(c, index, part),
                   (size_t)c->pl.state_floats * sizeof(float));
        }
        end_chunk(t, node);
    }
    write_rows(t, tiled_state(t, wants_values(&c->pr.p)));
}

/* ------------------------------------------------------------------------------------------------
 * 13  Shared prefix: keys that are the same in all batch entries (cascade). A first list of items
 *     takes the rows of all entries over these keys together, with K and V of entry 0; its row
 *     tiles lie in the part of the workspace that the workers share, and stay there. In the second
 *     list each row goes on from its state: pending nodes of the merge tree take their places, and
 *     a chunk that is not complete is continued. So no bit changes.
 *
 *     shared = | call of the first list | row tile 0 | row tile 1 | ...
 * --------------------------------------------------------------------------------------------- */

#define PREFIX_LEAST 64 /* keys; 64 of 600, batch 8, 4 rows each: 9 % faster */
#define PREFIX_ROWS 64  /* of an entry and kv head; batch 4, 4096 keys: 48 rows 9 % faster, 96 0 */

/* What a call asks for that keeps its rows from sharing; NULL = nothing. */
static const char *never_shared(const problem *pr)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pr->size_query ? 1 : max64(1, pr->max_q_len); /* at least, in a query */
    const struct {
        int holds;
        const char *why;
    } rules[] = {
        { choose_impl(p) == ATTN_IMPL_NAIVE, "naive takes one head of one batch entry at a time" },
        { p->batch < 2, "batch is below 2" },
        { p->cu_seqlens_q != NULL, "cu_seqlens_q is given" },
        { p->part.rows || p->part.keys, "the call is a part" },
        { bias_active(p), "the bias may differ by batch entry" },
        { alibi_active(p), "ALiBi differs by row" },
        { p->score != NULL, "the score callback may differ by batch entry" },
        { has_pair_rule(p), "a mask other than causal, window or chunked is on" },
        { p->dropout_p > 0, "dropout differs by row" },
        { p->logits.data && !wants_rows(p) && !pr->size_query, "only logits are asked for" },
        { times(rows, pr->group) > PREFIX_ROWS,
          "one batch entry has rows enough to share K and V" },
    };
    int r = 0;
    while (r < COUNT_OF(rules) && !rules[r].holds)
        r++;
    return r < COUNT_OF(rules) ? rules[r].why : NULL;
}

/* Whether entry 0 has these keys and every row of the batch sees all of them; else why not. */
static const char *not_seen(const problem *pr, int64_t keys)
{
    const attn_params *p = &pr->p;
    const sequence first = sequence_of(p, 0);
    const int64_t kinds = has_batch_arrays(p) ? p->batch : 1;
    int64_t b, i, lo, hi;
    if (first.kv_len < keys)
        return "kv_len[0] is below it";
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        if (s.q_len > 0 && s.key_base != first.key_base)
            return "key_base differs within the batch";
        for (i = 0; i < s.q_len; i++) {
            visible_range(p, &s, i + s.offset, &lo, &hi);
            if (lo > 0 || hi < keys)
                return "a row does not see all of it";
        }
    }
    return NULL;
}

/* The keys to share, up to a canonical block's end, or 0 and why. A size query reserves what any
 * shorter call may want. */
static int64_t prefix_of(const problem *pr, const char **why)
{
    const int64_t asked = pr->p.shared_keys;
    int64_t base, keys = asked;
    *why = asked ? never_shared(pr) : NULL;
    if (*why || !asked || pr->size_query)
        return *why ? 0 : asked;
    base = sequence_of(&pr->p, 0).key_base;
    keys -= (base + keys) % ATTN_BLOCK;
    *why = keys < PREFIX_LEAST ? "it has fewer than 64 keys in whole blocks" : not_seen(pr, keys);
    return *why ? 0 : keys;
}

/* Rows of each batch entry and query head in the first list. */
static int64_t entry_rows(const problem *pr)
{
    const int64_t most = max64(1, PREFIX_ROWS / pr->group);
    return pr->size_query ? min64(pr->p.seq_len_q, most) : pr->max_q_len;
}

/* The plan of the first list. Its row tiles are shared by as few items as give each worker one. */
static void plan_prefix_list(const problem *pr, const plan *pl, plan *list)
{
    const int64_t rows = times(times(pr->p.batch, entry_rows(pr)), pr->group);
    *list = *pl;
    list->kernels = pr->prefix_kernels;
    list->rows = list->kernels->rows;
    list->keys = pr->prefix_tile_keys;
    list->state_slots = tree_slots(pr, pl->prefix_keys);
    list->tiles = ceil_div(rows, list->rows);
    list->item_tiles = most_item_tiles(pr, list, rows) + 1;
    do {
        list->item_tiles--;
        list->items = times(pr->p.num_heads_kv, ceil_div(list->tiles, list->item_tiles));
    } while (list->item_tiles > 1 && list->items < pr->p.num_workers);
    plan_row_tile(pr, list);
    plan_slot(pr, list);
}

/* Adds the first list to a plan with prefix_keys, or returns why not. `items` could run at once
 * without it. */
OWN_FRAME static const char *plan_prefix(const problem *pr, plan *pl, int64_t items)
{
    const int64_t workers = min64(pr->p.num_workers, items);
    int64_t tiles, bytes;
    plan list;
    plan_prefix_list(pr, pl, &list);
    tiles = times(times(pr->p.num_heads_kv, list.tiles), list.row_tile_bytes);
    bytes = plus(aligned((int64_t)sizeof(call)), tiles);
    if (bytes >= ADDRESS_LIMIT / 4)
        return "its states would not fit into memory";
    if (2 * list.items < workers && !pr->size_query)
        return "most workers would have no part in it";
    pl->prefix_items = list.items;
    pl->shared_bytes = bytes;
    pl->slot_bytes = max64(pl->slot_bytes, list.row_tiles);
    return NULL;
}

/* The first list of a call whose plan has one. */
static call *prefix_list(const call *c)
{
    return (call *)(void *)c->shared;
}

/* Row tile number `index` of a kv head in the first list. */
static char *prefix_tile(const call *list, int64_t kv_head, int64_t index)
{
    return (char *)list->shared + (kv_head * list->pl.tiles + index) * list->pl.row_tile_bytes;
}

static void prefix_item(const call *list, char *slot, int64_t index)
{
    const plan *pl = &list->pl;
    const int64_t per_head = ceil_div(pl->tiles, pl->item_tiles);
    const int64_t kv_head = index / per_head, first = index % per_head * pl->item_tiles;
    const int64_t end = min64(first + pl->item_tiles, pl->tiles);
    tile *tiles[ITEM_TILES];
    row_choice choice;
    int count = 0;
    choice.list = NULL;
    choice.heads = list->pr.group;
    choice.head0 = kv_head * choice.heads;
    choice.count = list->pr.p.batch * entry_rows(&list->pr);
    for (index = first; index < end; index++) {
        tile *t = tiles[count] = open_tile_at(list, slot, prefix_tile(list, kv_head, index));
        t->kv_head = kv_head;
        t->entry_rows = entry_rows(&list->pr);
        choice.first = index * pl->rows;
        count += set_rows(t, &choice) > 0;
        t->s = sequence_of(&list->pr.p, 0);
        t->hi = pl->prefix_keys;
    }
    if (count)
        tiled_pass(tiles, count, 0, INT64_MAX, wants_values(&list->pr.p));
}

/* Lanes r..r+n-1 of the state `to` (NULL = to be begun) become lanes at..at+n-1 of a state of
 * `rows` lanes; without that, `to` stays. */
static float *copy_lanes(tile *t, float *to, int r, const float *from, int rows, int at, int n)
{
    int64_t k;
    if (!from)
        return to;
    if (!to)
        to = begin_state(t);
    for (k = 0; k < t->pr->p.head_dim_v + 2; k++) /* m, l and the rows of o */
        memcpy(to + k * t->pl->rows + r, from + k * rows + at, (size_t)n * sizeof *to);
    return to;
}

/* A row tile of the second list gets its rows' states at the end of the prefix. Both lists number
 * the rows of an entry alike, so that lanes next to each other come from lanes next to each
 * other. */
static void take_prefix(const call *c, tile *t)
{
    const call *list = prefix_list(c);
    const lane *l = &t->lanes[0];
    const int64_t row = t->s.b * entry_rows(&c->pr) + l->i, group = c->pr.group;
    const int64_t first = row * group + l->head - t->kv_head * group;
    const int rows = list->pl.rows;
    int r, n, level;
    for (r = 0; r < t->span.end; r += n) {
        const int64_t index = (first + r) / rows;
        const int at = (int)((first + r) % rows);
        const tile *from = (const tile *)(const void *)prefix_tile(list, t->kv_head, index);
        n = (int)min64(rows - at, t->span.end - r);
        t->state = copy_lanes(t, t->state, r, from->state, rows, at, n);
        for (level = 0; level < MAX_LEVELS; level++)
            t->pending[level] =
                copy_lanes(t, t->pending[level], r, from->pending[level], rows, at, n);
    }
}

/* An item of the second list. */
static void suffix_item(const call *c, char *slot, int64_t index)
{
    tile *tiles[ITEM_TILES];
    const int count = open_item(c, slot, index, tiles);
    int g;
    for (g = 0; g < count; g++)
        take_prefix(c, tiles[g]);
    finish_item(tiles, count, c->pl.prefix_keys);
}

/* ------------------------------------------------------------------------------------------------
 * 14  Naive items: one query head each. The textbook formula on a materialised matrix, in numbered
 *     passes; the same kernels, so that it is an honest baseline. Matrix layout: for each tile of
 *     query rows [kv_len][rows] logits, then m[rows], l[rows].
 * --------------------------------------------------------------------------------------------- */

typedef struct naive_tile {
    float *logits, *m, *l;
} naive_tile;

static naive_tile naive_tile_of(const tile *t, int64_t tile_index)
{
    const int64_t rows = t->pl->rows, keys = t->s.kv_len;
    naive_tile n;
    n.logits = t->matrix + tile_index * rows * (keys + 2);
    n.m = n.logits + rows * keys;
    n.l = n.m + rows;
    return n;
}

static int naive_rows(tile *t, int64_t head, int64_t tile_index)
{
    row_choice choice;
    choice.list = NULL;
    choice.head0 = head;
    choice.heads = 1;
    choice.first = tile_index * t->pl->rows;
    choice.count = t->s.q_len;
    return set_rows(t, &choice);
}

/* 1. logits = softcap(scale * Q K^T) + bias, masked */
static void naive_logits(tile *t, const naive_tile *n)
{
    const int64_t rows = t->pl->rows, keys = t->pl->keys;
    int64_t j, k;
    for (j = 0; j < t->s.kv_len; j += keys) {
        const int count = (int)min64(keys, t->s.kv_len - j);
        const int class = tile_class(t, j, count);
        float *s = n->logits + j * rows;
        if (class == ATTN_TILE_EMPTY)
            for (k = 0; k < count * rows; k++)
                s[k] = NEG_INF;
        else
            open_logits(t, s, j, count, class, ATTN_LOGITS_SOFTMAX);
    }
}

/* 2. m = max over keys   3. p = exp(logit - m), l = sum of p */
static void naive_softmax(tile *t, const naive_tile *n)
{
    const int count = (int)t->s.kv_len;
    int64_t r;
    for (r = 0; r < t->pl->rows; r++) {
        n->m[r] = NEG_INF;
        n->l[r] = 0.0f;
    }
    if (count == 0)
        return;
    t->pl->kernels->maximum(n->logits, count, n->m);
    t->pl->kernels->exp_sum(n->logits, count, t->dead, n->m, n->l);
}

/* 4. o = P V */
static float *naive_values(tile *t, const naive_tile *n)
{
    const int64_t rows = t->pl->rows, keys = t->pl->keys;
    const attn_lanes all = { 0, t->pl->rows };
    float *state = begin_state(t);
    int64_t j;
    memcpy(state, n->m, (size_t)rows * sizeof *state);
    memcpy(state_l(t, state), n->l, (size_t)rows * sizeof *state);
    for (j = 0; wants_values(&t->pr->p) && j < t->s.kv_len; j += keys) {
        const int count = (int)min64(keys, t->s.kv_len - j);
        if (t->pr->drop_below)
            drop_keys(t, n->logits + j * rows, j, count);
        open_keys(t, j, count);
        add_products(t, state_o(t, state), n->logits + j * rows, j, count, all, NULL);
    }
    return state;
}

static float *naive_redo(tile *t, const naive_tile *n)
{
    t->dead = ATTN_DEAD;
    naive_logits(t, n);
    naive_softmax(t, n);
    return naive_values(t, n);
}

static void naive_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int64_t head = index % p->num_heads_q;
    tile *t = open_tile(c, slot, 0);
    int64_t tiles, i;
    t->s = sequence_of(p, index / p->num_heads_q);
    t->kv_head = head / c->pr.group;
    if (p->naive_whole)
        t->matrix = c->shared + index * c->pl.matrix_floats;
    tiles = ceil_div(t->s.q_len, c->pl.rows);
    for (i = 0; i < tiles; i++) {
        const naive_tile n = naive_tile_of(t, i);
        naive_rows(t, head, i);
        naive_logits(t, &n);
    }
    for (i = 0; i < tiles; i++) {
        const naive_tile n = naive_tile_of(t, i);
        naive_softmax(t, &n);
    }
    for (i = 0; i < tiles; i++) {
        const naive_tile n = naive_tile_of(t, i);
        float *state;
        naive_rows(t, head, i);
        state = naive_values(t, &n);
        if (needs_redo(t, state)) {
            give_state(t, state);
            state = naive_redo(t, &n);
        }
        write_rows(t, state);
        give_state(t, state);
    }
}

/* ------------------------------------------------------------------------------------------------
 * 15  Logits items: logits or probabilities of chosen rows, tile by tile, without a matrix
 * --------------------------------------------------------------------------------------------- */

/* mu[lane] = fl(m + log2 l), so that p = 2^(s - mu); m and l after the sink. */
static void normaliser(tile *t, float *mu)
{
    float *root;
    int r;
    tiled_pass(&t, 1, 0, INT64_MAX, 0);
    root = tiled_state(t, 0);
    finish_lanes(t, root, NULL);
    for (r = 0; r < t->pl->rows; r++) {
        const float l = state_l(t, root)[r];
        mu[r] = l == 0.0f ? 0.0f : log2_canon(l);
        mu[r] = root[r] == NEG_INF ? mu[r] : root[r] + mu[r];
    }
    give_state(t, root);
}

static float *logits_row(const tile *t, const lane *at)
{
    const attn_params *p = &t->pr->p;
    const int64_t row = (t->s.b * p->num_heads_q + at->head) * p->logits.num_rows + at->choice;
    return p->logits.data + row * p->seq_len_kv;
}

/* Columns outside the sequence. */
static void fill_outside(const tile *t, const lane *at, float value)
{
    float *row = logits_row(t, at);
    int64_t column;
    for (column = 0; column < t->pr->p.seq_len_kv; column++)
        if (column < t->s.column || column >= t->s.column + t->s.kv_len)
            row[column] = value;
}

/* Keys j0..j0+n-1 at the stage asked for, in t->s_tile: natural logits or probabilities. */
static void stage_tile(tile *t, int64_t j0, int n, const float *mu, float *sums)
{
    const int stage = t->pr->p.logits.stage, count = n * t->pl->rows;
    const int class = stage < ATTN_LOGITS_BIAS ? ATTN_TILE_FULL : tile_class(t, j0, n);
    float *s = t->s_tile;
    int k;
    if (class != ATTN_TILE_EMPTY)
        open_logits(t, s, j0, n, class, stage);
    for (k = 0; k < count && class == ATTN_TILE_EMPTY; k++)
        s[k] = NEG_INF;
    if (stage == ATTN_LOGITS_SOFTMAX)
        t->pl->kernels->exp_sum(s, n, 0.0f, mu, sums);
    for (k = 0; k < count && stage != ATTN_LOGITS_SOFTMAX; k++)
        s[k] = s[k] * LN2;
}

static void logits_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int softmax = p->logits.stage == ATTN_LOGITS_SOFTMAX;
    tile *t = open_tile(c, slot, 0);
    row_choice choice;
    int64_t j0;
    int j, r;
    choice.list = p->logits.rows;
    choice.count = p->logits.num_rows;
    choice.heads = c->pr.group;
    choice.first = index % c->pl.logits_tiles * c->pl.rows;
    index /= c->pl.logits_tiles;
    t->kv_head = index % p->num_heads_kv;
    t->s = sequence_of(p, index / p->num_heads_kv);
    choice.head0 = t->kv_head * c->pr.group;
    if (!set_rows(t, &choice))
        return;
    if (softmax)
        normaliser(t, t->lane_values + c->pl.rows);
    for (r = 0; r < c->pl.rows; r++)
        if (t->lanes[r].used)
            fill_outside(t, &t->lanes[r], softmax ? 0.0f : NEG_INF);
    for (j0 = 0; j0 < t->s.kv_len; j0 += c->pl.keys) {
        const int n = (int)min64(c->pl.keys, t->s.kv_len - j0);
        stage_tile(t, j0, n, t->lane_values + c->pl.rows, t->lane_values + 2 * c->pl.rows);
        for (r = 0; r < c->pl.rows; r++)
            for (j = 0; j < n && t->lanes[r].used; j++)
                store_f32(logits_row(t, &t->lanes[r]), t->s.column + j0 + j,
                          t->s_tile[j * c->pl.rows + r]);
    }
}

/* ------------------------------------------------------------------------------------------------
 * 16  Run: items over workers, each worker with a slot of its own
 * --------------------------------------------------------------------------------------------- */

static void run_one(void *arg, int64_t index, int worker)
{
    call *c = (call *)arg;
    if (worker < 0 || worker >= c->slot_count)
        STORE_WORD(&c->failed, 1u);
    else
        c->item(c, c->slots + worker * c->pl.slot_bytes, index);
}

/* With fewer slots than workers the index is the slot, and takes every slot_count-th item. */
static void run_strided(void *arg, int64_t index, int worker)
{
    call *c = (call *)arg;
    int64_t i;
    (void)worker;
    for (i = index; i < c->items; i += c->slot_count)
        c->item(c, c->slots + index * c->pl.slot_bytes, i);
}

/* Without a callback of the caller's: OpenMP's threads where it is compiled in, else this one. */
#ifdef _OPENMP
static void run_here(const attn_params *p, int64_t n, attn_task_fn task, void *arg)
{
    int64_t i;
#pragma omp parallel for schedule(dynamic) num_threads(p->num_workers)
    for (i = 0; i < n; i++)
        task(arg, i, omp_get_thread_num());
}
#else
static void run_here(const attn_params *p, int64_t n, attn_task_fn task, void *arg)
{
    int64_t i;
    (void)p;
    for (i = 0; i < n; i++)
        task(arg, i, 0);
}
#endif

static int run_tasks(const attn_params *p, int64_t n, attn_task_fn task, void *arg)
{
    if (p->parallel_for)
        return p->parallel_for(p->parallel_user, n, task, arg);
    run_here(p, n, task, arg);
    return 0;
}

static attn_status run_items(call *c, int64_t items,
                             void (*item)(const call *c, char *slot, int64_t index))
{
    const attn_params *p = &c->pr.p;
    int failed = 0;
    int64_t i;
    c->items = items;
    c->item = item;
    c->failed = 0;
    if (c->slot_count == 1 || items <= 1)
        for (i = 0; i < items; i++)
            item(c, c->slots, i);
    else if (c->slot_count >= p->num_workers)
        failed = run_tasks(p, items, run_one, c);
    else
        failed = run_tasks(p, min64(items, c->slot_count), run_strided, c);
    return failed || LOAD_WORD(&c->failed) ? ATTN_ERR_CALLBACK : ATTN_OK;
}

/* Runs the first list, if the plan has one. */
static attn_status run_prefix(const call *c)
{
    call *list = prefix_list(c);
    if (!c->pl.prefix_keys)
        return ATTN_OK;
    *list = *c;
    plan_prefix_list(&c->pr, &c->pl, &list->pl);
    list->pl.slot_bytes = c->pl.slot_bytes;
    list->shared = (float *)(void *)((char *)list + aligned((int64_t)sizeof *list));
    return run_items(list, list->pl.items, prefix_item);
}

/* What runs an item of the main list. */
static void (*item_of(const plan *pl))(const call *c, char *slot, int64_t index)
{
    if (pl->impl == ATTN_IMPL_NAIVE)
        return naive_item;
    return pl->prefix_keys ? suffix_item : tiled_item;
}

/* The lists of a call, one after the other; empty ones cost nothing. */
static attn_status run_lists(call *c)
{
    const plan *pl = &c->pl;
    const split *sp = &pl->split;
    const int64_t chunks = split_rows(pl) * sp->inside;
    const struct list {
        int64_t items;
        void (*item)(const call *c, char *slot, int64_t index);
    } lists[] = {
        { sp->parts ? 0 : pl->items, item_of(pl) },
        { sp->items, score_item },
        { chunks * sp->tiles, weight_item },
        { chunks * (sp->slices + 1), value_item },
        { sp->parts ? split_rows(pl) : 0, combine_item },
        { pl->logits_items, logits_item },
    };
    attn_status status = run_prefix(c);
    int i;
    for (i = 0; sp->parts && i < c->slot_count; i++)
        ((key_tile *)(void *)(c->slots + i * pl->slot_bytes))->item = -1;
    for (i = 0; i < COUNT_OF(lists) && !status; i++)
        status = run_items(c, lists[i].items, lists[i].item);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 17  Public functions
 * --------------------------------------------------------------------------------------------- */

ATTN_API const char *attn_version(void)
{
    return ATTN_VERSION_STRING;
}

ATTN_API size_t attn_params_size(void)
{
    return sizeof(attn_params);
}

ATTN_API const char *attn_impl_name(int impl)
{
    static const char *const names[] = { "default", "tiled", "naive", "auto" }; /* by attn_impl */
    return impl >= 0 && impl < COUNT_OF(names) ? names[impl] : NULL;
}

ATTN_API const char *attn_status_string(attn_status status)
{
    static const char *const names[] = { "ok",
                                         "bad argument",
                                         "sizes exceed the address space",
                                         "workspace too small",
                                         "not supported",
                                         "callback failed",
                                         "cache full" };
    const int s = (int)status;
    return s >= 0 && s < COUNT_OF(names) ? names[s] : "unknown status";
}

#define FIXED_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(call)))

/* Bytes for so many workers; 0 when there is nothing to do. */
static int64_t workspace_bytes(const problem *pr, const plan *pl, int workers)
{
    if (is_empty(&pr->p))
        return 0;
    return plus(plus(FIXED_BYTES, pl->shared_bytes), times(workers, pl->slot_bytes));
}

/* The plan of a call: with the prefix once for the batch if that is asked for and can be. */
static void plan_call(const problem *pr, plan *pl, int small, int64_t worker_bytes)
{
    int64_t items;
    begin_plan(pr, pl, small);
    pl->worker_bytes = worker_bytes;
    pl->modified = has_modifier(&pr->p);
    pl->by_pair = has_pair_rule(&pr->p);
    divide_plan(pr, pl);
    items = pl->split.parts ? TOO_BIG : pl->items;
    if (!small && !is_empty(&pr->p))
        pl->prefix_keys = prefix_of(pr, &pl->prefix_why);
    if (!pl->prefix_keys)
        return;
    divide_plan(pr, pl);
    pl->prefix_why = plan_prefix(pr, pl, items);
    if (pl->prefix_why) {
        pl->prefix_keys = 0;
        divide_plan(pr, pl);
    }
}

/* How many of the plan's workers fit. */
static int workers_within(const problem *pr, const plan *pl, size_t bytes)
{
    const int64_t one = workspace_bytes(pr, pl, 1), most = workspace_bytes(pr, pl, pl->workers);
    if ((uint64_t)bytes >= (uint64_t)most)
        return pl->workers;
    if ((uint64_t)bytes < (uint64_t)one)
        return 0;
    return (int)(((int64_t)bytes - one) / pl->slot_bytes) + 1;
}

/* The plan that lets most workers run: the best one; the same with what there is for each worker,
 * as a shorter call may want larger slots or memory to divide keys than the call whose workspace it
 * is; or the small one. Fewer rows, keys, row tiles and tree slots need less each in a small plan:
 * so the workspace of a call holds any shorter one. Returns how many workers run, 0 = it is too
 * small. */
static int plan_within(const problem *pr, plan *pl, size_t bytes)
{
    const int64_t usual = pr->tuning.item_bytes;
    const int64_t limit = ADDRESS_LIMIT;
    const int64_t room = (uint64_t)bytes < (uint64_t)limit ? (int64_t)bytes : limit;
    const int64_t each = min64(usual, room / pr->p.num_workers - FIXED_BYTES);
    const struct {
        int small;
        int64_t worker_bytes;
    } tries[] = { { 0, usual }, { 0, each }, { 1, usual } };
    int best = -1, most = -1, last = -1, n, i;
    for (i = 0; i < COUNT_OF(tries); i++) {
        plan_call(pr, pl, tries[i].small, tries[i].worker_bytes);
        last = i;
        n = workers_within(pr, pl, bytes);
        if (n > most) {
            most = n;
            best = i;
        }
        if (i == 0 && n == pl->workers)
            break;
    }
    if (most > 0 && last != best) /* else the small plan tells how much is needed */
        plan_call(pr, pl, tries[best].small, tries[best].worker_bytes);
    return most;
}

/* Above 0: the backend takes the call; 0: the CPU does, below 0: nobody can, and *why (may be NULL)
 * gets the backend's reason. */
static int ask_backend(const attn_params *p, text *why)
{
    char reason[160];
    int answer;
    if (!p->backend)
        return 0;
    reason[0] = 0;
    answer = p->backend->supports(p->backend, p, reason, sizeof reason);
    reason[sizeof reason - 1] = 0;
    if (answer <= 0 && why) {
        put(why, p->backend->name);
        put(why, " refused: ");
        put(why, reason);
    }
    return answer;
}

static attn_status too_small(int64_t least, size_t bytes, text *why)
{
    put(why, "workspace_bytes (");
    put_int(why, (int64_t)bytes);
    put(why, ") must be at least ");
    put_int(why, least);
    put(why, "; attn_workspace_size says what is best");
    return ATTN_ERR_WORKSPACE;
}

/* A backend has one size, and no plan of the CPU. */
static attn_status check_backend(const attn_backend *backend, const attn_params *p, size_t bytes,
                                 text *why)
{
    size_t need = 0;
    const attn_status status = backend->workspace_size(backend, p, &need);
    if (status)
        return bad(why, status, "the backend cannot size its workspace");
    return bytes < need ? too_small((int64_t)need, bytes, why) : ATTN_OK;
}

static attn_status check_size_limit(const problem *pr, const plan *pl, text *why)
{
    const int64_t need = workspace_bytes(pr, pl, pl->workers);
    const int too_long = pl->impl == ATTN_IMPL_NAIVE && pr->max_kv_len > INT32_MAX;
    if (need < ADDRESS_LIMIT && !too_long)
        return ATTN_OK;
    return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_kv", pr->p.seq_len_kv,
                     ": the workspace would exceed the address space (naive needs "
                     "seq_len_q * seq_len_kv floats)");
}

/* Everything that can be wrong before a run, in the order in which attn_forward finds it. */
OWN_FRAME static attn_status check_call(const attn_params *p, const void *workspace, size_t bytes,
                                        text *why)
{
    const size_t room = workspace ? bytes : 0;
    problem pr;
    plan pl;
    int workers, answer;
    attn_status status = validate(p, &pr, 1, why);
    if (status)
        return status;
    answer = ask_backend(&pr.p, NULL);
    if (answer < 0) {
        ask_backend(&pr.p, why);
        return ATTN_ERR_UNSUPPORTED;
    }
    if (answer && !is_empty(p))
        return check_backend(p->backend, &pr.p, room, why);
    settle_workers(&pr.p);
    workers = plan_within(&pr, &pl, room);
    status = check_size_limit(&pr, &pl, why);
    if (!status && workers == 0)
        status = too_small(workspace_bytes(&pr, &pl, 1), room, why);
    return status;
}

ATTN_API const char *attn_check(const attn_params *p, const void *workspace, size_t bytes,
                                char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    const attn_status status = check_call(p, workspace, bytes, &why);
    if (!status)
        put(&why, "ok");
    return buffer && buffer_bytes ? buffer : attn_status_string(status);
}

/* The problem with one query row, which may divide its keys where more rows do not, and take
 * another kernel set, whose tiles have more keys. */
static void leave_one_row(const attn_params *asked, problem *pr)
{
    pr->p.seq_len_q = min64(asked->seq_len_q, 1);
    pr->p.part.row_count = min64(asked->part.row_count, 1);
    pr->max_q_len = min64(pr->max_q_len, 1);
    pr->p.kernels = asked->kernels;
    pr->p.tile_keys = asked->tile_keys;
    resolve_kernels(pr);
}

/* What attn_workspace_size says of a call without a backend: enough for all workers, whether the
 * prefix will be shared or not, and for one row. *pr becomes another. */
static attn_status size_of_call(const attn_params *asked, problem *pr, text *why, size_t *bytes)
{
    int64_t most = 0;
    int row, n;
    plan pl;
    attn_status status = ATTN_OK;
    pr->size_query = 1;
    for (row = 0; row < 2 && !status; row++) {
        if (row)
            leave_one_row(asked, pr);
        for (n = 0; n < 2 && !status; n++) {
            pr->p.shared_keys = n ? 0 : asked->shared_keys;
            plan_call(pr, &pl, 0, pr->tuning.item_bytes);
            status = check_size_limit(pr, &pl, why);
            most = max64(most, workspace_bytes(pr, &pl, pl.workers));
        }
    }
    *bytes = status ? 0 : (size_t)most;
    return status;
}

ATTN_API attn_status attn_workspace_size(const attn_params *p, size_t *bytes)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_status status;
    int answer;
    if (!bytes)
        return ATTN_ERR_ARG;
    *bytes = 0;
    status = validate(p, &pr, 0, &why);
    if (status)
        return status;
    answer = ask_backend(&pr.p, NULL);
    if (answer < 0)
        return ATTN_ERR_UNSUPPORTED;
    if (answer)
        return pr.p.backend->workspace_size(pr.p.backend, &pr.p, bytes);
    return size_of_call(p, &pr, &why, bytes);
}

/* Runs the call on the backend and returns 1, or logs why not and returns 0. */
OWN_FRAME static int forward_backend(const attn_params *p, void *workspace, size_t bytes,
                                     attn_status *status)
{
    char sentence[256];
    text why = text_in(sentence, sizeof sentence);
    problem pr;
    validate(p, &pr, 1, &why); /* cannot fail: check_call has passed */
    if (ask_backend(&pr.p, &why) > 0) {
        *status = p->backend->run(p->backend, &pr.p, workspace, bytes);
        return 1;
    }
    if (p->log)
        p->log(p->log_user, ATTN_LOG_INFO, sentence);
    return 0;
}

OWN_FRAME static attn_status forward_cpu(const attn_params *p, void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    char *base = (char *)workspace;
    call *c;
    attn_status status;
    base = align_memory(base);
    c = (call *)(void *)base;
    status = validate(p, &c->pr, 1, &why);
    if (status)
        return status;
    settle_workers(&c->pr.p);
    c->slot_count = plan_within(&c->pr, &c->pl, bytes);
    if (c->slot_count < 1)
        return ATTN_ERR_WORKSPACE;
    base += aligned((int64_t)sizeof *c);
    c->shared = (float *)(void *)base;
    c->slots = base + c->pl.shared_bytes;
    ATTN_ASSERT((uintptr_t)c->slots % ALIGNMENT == 0);
    ATTN_ASSERT(c->slot_count <= c->pl.workers);
    return run_lists(c);
}

/* A damaged tuning text only costs speed. */
OWN_FRAME static void warn_of_tuning(const attn_params *p)
{
    char sentence[256];
    text why = text_in(sentence, sizeof sentence);
    tuning t;
    if (p->tuning && p->log && !read_tuning(p->tuning, "", &t, &why))
        p->log(p->log_user, ATTN_LOG_WARNING, sentence);
}

ATTN_API attn_status attn_forward(const attn_params *p, void *workspace, size_t workspace_bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_call(p, workspace, workspace_bytes, &why);
    if (status || is_empty(p))
        return status;
    if (p->backend && forward_backend(p, workspace, workspace_bytes, &status))
        return status;
    warn_of_tuning(p);
    return forward_cpu(p, workspace, workspace_bytes);
}

/* ---- pairs that are visible */

static int has_range_rule(const attn_params *p)
{
    int m;
    for (m = 0; m < COUNT_OF(mask_rules); m++)
        if (mask_rules[m].range && mask_rules[m].active(p))
            return 1;
    return 0;
}

static double sequence_pairs(const attn_params *p, int64_t b)
{
    const sequence s = sequence_of(p, b);
    double pairs = 0;
    int64_t i, lo, hi;
    if (!has_range_rule(p))
        return (double)(s.row_to - s.row_from) * (double)(s.key_to - s.key_from);
    for (i = s.row_from; i < s.row_to; i++) {
        visible_range(p, &s, i + s.offset, &lo, &hi);
        pairs += (double)(hi - lo);
    }
    return pairs;
}

static double visible_pairs(const attn_params *p)
{
    double pairs = 0;
    int64_t b;
    if (!has_batch_arrays(p) && p->batch > 0)
        pairs = sequence_pairs(p, 0) * (double)p->batch;
    for (b = 0; has_batch_arrays(p) && b < p->batch; b++)
        pairs += sequence_pairs(p, b);
    return pairs * (double)p->num_heads_q;
}

/* ---- states and partial results */

/* One row of attn_state_finish, in pieces that fit on the stack. */
static void finish_row(const problem *pr, const sequence *s, int64_t head, int64_t i,
                       const attn_state *state)
{
    const attn_params *p = &pr->p;
    const attn_state row = state_at(state, state_row(p, s, head, i), p->head_dim_v);
    const float sink = sink_of(p, head);
    float m = *row.m, l = *row.l, w = 1.0f, piece[32], *const to = piece;
    const int empty = l == 0.0f, with_sink = !is_neg_inf(sink) && !empty;
    int64_t d, n;
    if (with_sink)
        w = merge_sink(sink, &m, &l);
    if (p->lse.data)
        store_f32(p->lse.data, ROW_AT(p->lse, s, head, s->q_row + i), row_lse(m, l, empty, sink));
    for (d = 0; p->o.data && d < p->head_dim_v; d += n) {
        n = min64(COUNT_OF(piece), p->head_dim_v - d);
        memcpy(piece, row.o + d, (size_t)n * sizeof *piece);
        if (with_sink)
            scale_values(piece, 1, n, w);
        result_body(1, &to, piece, &l, pr->keep_factor, n);
        store_run(p->kernels, p->o.dtype, p->o.data, ROW_AT(p->o, s, head, s->q_row + i) + d, piece,
                  n);
    }
}

ATTN_API attn_status attn_state_finish(const attn_params *p, const attn_state *state)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_status status;
    int64_t b, head, i;
    if (!is_state(state))
        return ATTN_ERR_ARG;
    status = validate(p, &pr, 0, &why);
    if (status)
        return status;
    if (!pr.p.o.data && !pr.p.lse.data)
        return ATTN_ERR_ARG;
    for (b = 0; b < pr.p.batch; b++) {
        const sequence s = sequence_of(&pr.p, b);
        for (head = 0; head < pr.p.num_heads_q; head++)
            for (i = s.row_from; i < s.row_to; i++)
                finish_row(&pr, &s, head, i, state);
    }
    return status;
}

/* ---- helpers for callers */

ATTN_API attn_status attn_alibi_slopes(float *slopes, int64_t num_heads)
{
    int64_t power = 1, h;
    if (!slopes || num_heads < 1 || num_heads > 1 << 20)
        return ATTN_ERR_ARG;
    while (power * 2 <= num_heads)
        power *= 2;
    for (h = 0; h < num_heads; h++) {
        const int64_t step = h < power ? h + 1 : 2 * (h - power) + 1;
        float x = (float)(-8 * step); /* exact, and so is the division by a power of two */
        x = x / (float)(h < power ? power : 2 * power);
        slopes[h] = exp2_canon(x);
    }
    return ATTN_OK;
}

static int is_dtype(int dtype)
{
    return dtype >= 0 && dtype < STORAGE_COUNT;
}

ATTN_API attn_status attn_convert(void *dst, int dst_dtype, const void *src, int src_dtype,
                                  size_t n)
{
    size_t i;
    if (!is_dtype(dst_dtype) || !is_dtype(src_dtype) || n > PTRDIFF_MAX / sizeof(float))
        return ATTN_ERR_ARG;
    if (n && (!dst || !src))
        return ATTN_ERR_ARG;
    for (i = 0; i < n; i++)
        storages[dst_dtype].store(dst, (int64_t)i, storages[src_dtype].load(src, (int64_t)i));
    return ATTN_OK;
}

ATTN_API int attn_dropout_keep(uint64_t seed, float dropout_p, const attn_pair *at)
{
    if (!(dropout_p > 0 && dropout_p < 1))
        return !(dropout_p >= 1);
    return keeps(seed, (uint32_t)((double)dropout_p * 4294967296.0), at);
}

/* ---- what the files that build on this one borrow */

ATTN_API const attn_core *attn_core_get(void)
{
    static const attn_core core = { validate,      settle_workers,     choose_impl,   sequence_of,
                                    visible_range, check_call,         has_modifier,  set_rows,
                                    tile_class,    lanes_in_range,     change_logits, hide_dead,
                                    apply_score,   drop_keys,          copy_key_tile, write_lanes,
                                    run_items,     size_of_call,       forward_cpu,   visible_pairs,
                                    plan_call,     check_size_limit,   ask_backend,   split_items,
                                    put_tuning,    put_missing_kernels };
    return &core;
}

/* ------------------------------------------------------------------------------------------------
 * MIT License
 *
 * Copyright (c) 2026 the attn authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
