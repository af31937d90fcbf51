/* src/kernels.c - the portable kernels.
 * SPDX-License-Identifier: MIT
 *
 * Each body is written once, in plain loops over 16 lanes that compilers vectorise, and built by
 * PORTABLE_SET below: plain, and on x86 once more for FMA. The seam has the contracts and layouts.
 */
#pragma once

#include "storage.c"
#include "states.c"

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
