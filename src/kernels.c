/* src/kernels.c - the portable kernels.
 * SPDX-License-Identifier: MIT
 *
 * Each body is written once, in plain loops over lanes that compilers vectorise, and built by the
 * lists at the end: plain, and on x86 once more for FMA. The seam has the contracts and layouts.
 */
#pragma once

#include "philox.c"
#include "storage.c"
#include "states.c"

/* Without optimisation these loops are slower than a textbook's with it. The compiler says so in a
 * note, because a warning would stop a build with -Werror. */
#if GNU_C && !defined __OPTIMIZE__ && !defined ATTN_UNOPTIMIZED
#pragma message "attn: 20 to 200 times slower without -O2; -DATTN_UNOPTIMIZED silences this note"
#endif

/* What is dead in a product that leaves dead pairs out: b of a lane, or x for all lanes. */
#define DEAD_B 1
#define DEAD_X 2

/* All are whole numbers below 2^24, so that a step is exact without an FMA, too. */
#define WHOLE 3

/* One step of a chain: fma(x, b, c), or c itself where what `select` names is dead, that is -0. */
KERNEL float link(int hw, int select, float x, float b, float c)
{
    float y = x * b;
    if (select == WHOLE && !hw)
        return c + y;
    y = fma32(hw, x, b, c);
    if (select == WHOLE)
        return y;
    return select ? choose(is_dead(select == DEAD_X ? x : b), c, y) : y;
}

/* Chains: c[i*ci + lane] = fma(x[i*xi + t*xt], b[t*bt + lane], c[i*ci + lane]), t = 0..n-1. All
 * matrix products are that: for Q K^T t runs over head_dim (xi = stride, xt = 1, b = qt), for P V
 * over keys (xi = 1, xt = stride, b = p), for `outer` over rows (xi = LANES, xt = 1, its lanes are
 * columns of b). Those of Q K^T begin at +0 and are multiplied by the factor behind their last step:
 * `scaled`. */
typedef struct chains {
    float *c;
    ptrdiff_t ci;
    int64_t count; /* i = 0..count-1 */
    const float *x;
    ptrdiff_t xi, xt;
    const float *b;
    ptrdiff_t bt;
    int64_t n;
    float factor;
    attn_ahead *ahead; /* NULL = nothing */
} chains;

/* A strip has eight lanes, or one where there are no vectors, so that no lane without a row is computed.
 * A body computes eight chains in one strip, or four in two: then a step loads six numbers or
 * vectors for eight products and not nine. One lane loop of exactly eight over separate arrays is what
 * gcc 12 and clang 14 both turn into registers at -O2; 16 lanes or an array of arrays fell to 10-45 %
 * of the AVX2 FMA peak in one of them. */
#define STRIP (HAS_VECTORS ? 8 : 1)
KERNEL void chains8(int hw, int select, int scaled, int strips, const chains *s, int64_t i,
                    int64_t at)
{
    float c0[STRIP], c1[STRIP], c2[STRIP], c3[STRIP], c4[STRIP], c5[STRIP], c6[STRIP], c7[STRIP];
    const ptrdiff_t ci = s->ci, xi = s->xi, xt = s->xt, bt = s->bt;
    float *const c = s->c + i * ci + at, *const upper = strips == 2 ? c + STRIP : c + 4 * ci;
    const ptrdiff_t x_upper = strips == 2 ? 0 : 4 * xi, b_upper = strips == 2 ? STRIP : 0;
    const float *x = s->x + i * xi, *b = s->b + at, factor = s->factor;
    int64_t t;
    int r;
    for (r = 0; r < STRIP; r++) {
        c0[r] = scaled ? 0.0f : c[r];
        c1[r] = scaled ? 0.0f : c[r + ci];
        c2[r] = scaled ? 0.0f : c[r + 2 * ci];
        c3[r] = scaled ? 0.0f : c[r + 3 * ci];
        c4[r] = scaled ? 0.0f : upper[r];
        c5[r] = scaled ? 0.0f : upper[r + ci];
        c6[r] = scaled ? 0.0f : upper[r + 2 * ci];
        c7[r] = scaled ? 0.0f : upper[r + 3 * ci];
    }
    for (t = 0; t < s->n; t++, x += xt, b += bt) {
        const float *const y = x + x_upper, *const d = b + b_upper;
        const float x0 = x[0], x1 = x[xi], x2 = x[2 * xi], x3 = x[3 * xi];
        const float x4 = y[0], x5 = y[xi], x6 = y[2 * xi], x7 = y[3 * xi];
        for (r = 0; r < STRIP; r++) {
            c0[r] = link(hw, select, x0, b[r], c0[r]);
            c1[r] = link(hw, select, x1, b[r], c1[r]);
            c2[r] = link(hw, select, x2, b[r], c2[r]);
            c3[r] = link(hw, select, x3, b[r], c3[r]);
            c4[r] = link(hw, select, x4, d[r], c4[r]);
            c5[r] = link(hw, select, x5, d[r], c5[r]);
            c6[r] = link(hw, select, x6, d[r], c6[r]);
            c7[r] = link(hw, select, x7, d[r], c7[r]);
        }
    }
    for (r = 0; r < STRIP; r++) {
        c[r] = scaled ? c0[r] * factor : c0[r];
        c[r + ci] = scaled ? c1[r] * factor : c1[r];
        c[r + 2 * ci] = scaled ? c2[r] * factor : c2[r];
        c[r + 3 * ci] = scaled ? c3[r] * factor : c3[r];
        upper[r] = scaled ? c4[r] * factor : c4[r];
        upper[r + ci] = scaled ? c5[r] * factor : c5[r];
        upper[r + 2 * ci] = scaled ? c6[r] * factor : c6[r];
        upper[r + 3 * ci] = scaled ? c7[r] * factor : c7[r];
    }
}

/* One chain: what is left over. */
KERNEL void chain(int hw, int select, int scaled, const chains *s, int64_t i, int64_t at)
{
    float c0[STRIP], *const c = s->c + i * s->ci + at;
    const float *x = s->x + i * s->xi, *b = s->b + at, factor = s->factor;
    int64_t t;
    int r;
    for (r = 0; r < STRIP; r++)
        c0[r] = scaled ? 0.0f : c[r];
    for (t = 0; t < s->n; t++, x += s->xt, b += s->bt)
        for (r = 0; r < STRIP; r++)
            c0[r] = link(hw, select, x[0], b[r], c0[r]);
    for (r = 0; r < STRIP; r++)
        c[r] = scaled ? c0[r] * factor : c0[r];
}

/* ask_ahead asks for `lines` lines at most. Products do so between groups of chains: if all were asked
 * for at once, the products would wait for them (this saves 13 to 20 % of the time of decoding from memory). */
static void ask_ahead(attn_ahead *a, int64_t lines)
{
    for (; a && lines > 0 && a->lines > 0; lines--, a->lines--) {
        PREFETCH(a->row + a->at);
        attn_next_line(a);
    }
}

/* All of them in lanes begin..end-1. FMA in software is too slow for loads to matter, and large: with it there
 * is one form. */
KERNEL void all_chains(int hw, int select, int scaled, const chains *s, int64_t begin, int64_t end)
{
    const int64_t each = s->ahead ? s->ahead->lines * 4 / s->count + 1 : 0;
    int64_t i, at, strip, next;
    for (at = begin / STRIP * STRIP; at < end; at = next) {
        i = 0;
        next = at + (hw && at + STRIP < end ? 2 * STRIP : STRIP);
        if (hw && next - at == 2 * STRIP)
            for (; i + 4 <= s->count; i += 4) {
                ask_ahead(s->ahead, each);
                chains8(hw, select, scaled, 2, s, i, at);
            }
        else
            for (; i + 8 <= s->count; i += 8) {
                ask_ahead(s->ahead, 2 * each);
                chains8(hw, select, scaled, 1, s, i, at);
            }
        for (; i < s->count; i++)
            for (strip = at; strip < next; strip += STRIP)
                chain(hw, select, scaled, s, i, strip);
    }
    ask_ahead(s->ahead, INT64_MAX);
}

/* gcc vectorises a loop at -O2 only if its count is a constant, and if nothing that it writes can be
 * what it reads. So kernels go by PIECE numbers or by the lanes of a row, and pointers are RESTRICT. */
#define PIECE 32 /* clang takes a loop of 16 apart before it vectorises. */

KERNEL void widen_body(float (*load)(uint16_t), float *to, const uint16_t *from, int64_t n)
{
    int64_t d;
    int i;
    for (d = 0; d + PIECE <= n; d += PIECE)
        for (i = 0; i < PIECE; i++)
            to[d + i] = load(from[d + i]);
    for (; d < n; d++)
        to[d] = load(from[d]);
}

#define WIDEN_FLOATS_OF_8(name)                                                                    \
    KERNEL void widen_##name##_body(int hw, float *RESTRICT to, const uint8_t *RESTRICT from,      \
                                    int64_t n)                                                     \
    {                                                                                              \
        int i;                                                                                     \
        (void)hw;                                                                                  \
        for (; n >= PIECE; n -= PIECE, to += PIECE, from += PIECE)                                 \
            for (i = 0; i < PIECE; i++)                                                            \
                to[i] = name##_to_f32(from[i]);                                                    \
        for (i = 0; i < n; i++)                                                                    \
            to[i] = name##_to_f32(from[i]);                                                        \
    }
WIDEN_FLOATS_OF_8(e4m3)
WIDEN_FLOATS_OF_8(e5m2)

#define WIDEN_UNITS(name)                                                                          \
    KERNEL void widen_##name##_0_body(int hw, float *to, const uint8_t *from, int64_t n)           \
    {                                                                                              \
        const name##_unit *unit = (const name##_unit *)(const void *)from;                         \
        (void)hw;                                                                                  \
        for (; n > 0; n -= UNIT, to += UNIT)                                                       \
            load_##name(to, unit++);                                                               \
    }
WIDEN_UNITS(q8)
WIDEN_UNITS(q5)
WIDEN_UNITS(q4)

KERNEL void widen_i8_body(int hw, float *RESTRICT to, const int8_t *RESTRICT from,
                          const float *RESTRICT scale, int64_t step, int64_t n)
{
    int64_t d;
    (void)hw;
    for (d = 0; d < n; d++)
        to[d] = times_byte(scale[d * step], from[d]);
}

#if defined FMA_SECOND_BUILD || (FMA_BASE && defined __F16C__)
typedef float eight_floats __attribute__((vector_size(32)));
#if defined __clang__ && __clang_major__ >= 18 /* 22 has no such builtin function any more. */
typedef _Float16 eight_halves __attribute__((vector_size(16)));
#define FLOATS_OF(h) __builtin_convertvector(h, eight_floats)
#else
typedef short eight_halves __attribute__((vector_size(16)));
#define FLOATS_OF(h) __builtin_ia32_vcvtph2ps256(h)
#endif

/* By vcvtph2ps, which makes a signalling NaN quiet. */
FMA_TARGET static inline void widen_f16_hard(float *to, const uint16_t *from, int64_t n)
{
    eight_halves h;
    eight_floats x;
    int64_t d;
    for (d = 0; d + 8 <= n; d += 8) {
        memcpy(&h, from + d, sizeof h);
        x = FLOATS_OF(h);
        memcpy(to + d, &x, sizeof x);
    }
    for (; d < n; d++)
        to[d] = f16_to_f32(from[d]);
}
#else
#define widen_f16_hard(to, from, n) widen_body(f16_to_f32, to, from, n)
#endif

/* Rounding may make a new -0, which no output holds. */
KERNEL void narrow_body(uint16_t (*store)(float), uint16_t *to, const float *from, int64_t n)
{
    int64_t d;
    for (d = 0; d < n; d++) {
        to[d] = store(from[d]);
        to[d] = to[d] == 0x8000u ? 0 : to[d];
    }
}

KERNEL void pack_body(int hw, float *qt, const float *const *q, int64_t head_dim)
{
    int64_t d;
    int r;
    (void)hw;
    for (r = 0; r < LANES; r++)
        for (d = 0; d < head_dim; d++)
            qt[d * LANES + r] = q[r][d];
}

KERNEL void softcap_body(int hw, float *s, int n, float cap2, float icap2)
{
    int j, r;
    for (j = 0; j < n; j++, s += LANES) {
        for (r = 0; r < LANES; r++) {
            float x = s[r] * icap2;
            x = tanh_with(hw, x);
            s[r] = cap2 * x;
        }
    }
}

KERNEL void scale_keys_body(int hw, float *RESTRICT s, const float *RESTRICT scale, int n)
{
    int j, r;
    (void)hw;
    for (j = 0; j < n; j++, s += LANES)
        for (r = 0; r < LANES; r++)
            s[r] = s[r] * scale[j];
}

KERNEL void add_distances_body(int hw, float *RESTRICT s, const int *RESTRICT from,
                               const float *RESTRICT factor, int n)
{
    int j, r;
    for (j = 0; j < n; j++, s += LANES)
        for (r = 0; r < LANES; r++) {
            const float distance = (float)(from[r] - j);
            s[r] = fma32(hw, float_of(bits_of(distance) & 0x7fffffffu), factor[r], s[r]);
        }
}

/* A block of x is turned first: gcc otherwise loads the number of each lane alone. */
KERNEL void add_rows_body(int hw, float *RESTRICT s, const float *const *x, float factor, int n)
{
    float turned[ATTN_BLOCK][LANES];
    int j, k, r;
    for (j = 0; j < n; j += ATTN_BLOCK) {
        const int keys = n - j < ATTN_BLOCK ? n - j : ATTN_BLOCK;
        for (r = 0; r < LANES; r++)
            for (k = 0; k < keys; k++)
                turned[k][r] = x[r][j + k];
        for (k = 0; k < keys; k++, s += LANES) {
            for (r = 0; r < LANES; r++) {
                const float b = turned[k][r], y = fma32(hw, b, factor, s[r]);
                s[r] = choose(b == NEG_INF, NEG_INF, y);
            }
        }
    }
}

/* The running maximum is the second operand, so that a NaN in s leaves it alone. */
KERNEL void maximum_body(int hw, const float *s, int n, float *m)
{
    float top[LANES];
    int j, r;
    (void)hw;
    memcpy(top, m, sizeof top);
    for (j = 0; j < n; j++, s += LANES)
        for (r = 0; r < LANES; r++)
            top[r] = s[r] > top[r] ? s[r] : top[r];
    memcpy(m, top, sizeof top);
}

/* Exponentials of one strip. */
KERNEL void exp_strip(int hw, float *RESTRICT s, int n, float dead, const float *RESTRICT m,
                      float *RESTRICT l)
{
    float from[STRIP], sum[STRIP];
    int j, r;
    for (r = 0; r < STRIP; r++) {
        from[r] = m[r] == NEG_INF ? 0.0f : m[r];
        sum[r] = l[r];
    }
    for (j = 0; j < n; j++, s += LANES) {
        for (r = 0; r < STRIP; r++) {
            float p = s[r] - from[r];
            p = exp2_with(hw, p); /* +0 for a dead key */
            sum[r] = sum[r] + p;
            s[r] = s[r] == NEG_INF ? dead : p;
        }
    }
    memcpy(l, sum, sizeof sum);
}

KERNEL void exp_sum_body(int hw, float *s, int n, float dead, const float *m, float *l)
{
    int at;
    for (at = 0; at < LANES; at += STRIP)
        exp_strip(hw, s + at, n, dead, m + at, l + at);
}

KERNEL void exp_block_body(int hw, const attn_exp *e)
{
    int at;
    for (at = e->lanes.begin / STRIP * STRIP; at < e->lanes.end; at += STRIP)
        exp_strip(hw, e->s + at, e->n, 0.0f, e->m + at, e->l + at);
}

KERNEL int finite_body(int hw, const float *x, int64_t n)
{
    uint32_t wrong[PIECE] = { 0 }, any = 0;
    int64_t k;
    int i;
    (void)hw;
    for (k = 0; k + PIECE <= n; k += PIECE)
        for (i = 0; i < PIECE; i++)
            wrong[i] |= 0u - (uint32_t)((bits_of(x[k + i]) & 0x7f800000u) == 0x7f800000u);
    for (; k < n; k++)
        any |= !is_finite(x[k]);
    for (i = 0; i < PIECE; i++)
        any |= wrong[i];
    return !any;
}

KERNEL void qk_body(int hw, const attn_product *p)
{
    const chains s = { .c = p->to,
                       .ci = LANES,
                       .count = p->n,
                       .x = p->kv,
                       .xi = p->stride,
                       .xt = 1,
                       .b = p->by,
                       .bt = LANES,
                       .n = p->dim,
                       .factor = p->factor,
                       .ahead = p->ahead };
    memset(s.c, 0, (size_t)s.count * LANES * sizeof *s.c); /* for the other lanes */
    all_chains(hw, 0, 1, &s, p->lanes.begin, p->lanes.end);
}

KERNEL void add_values_body(int hw, int select, const attn_product *p)
{
    const chains s = { .c = p->to,
                       .ci = LANES,
                       .count = p->dim,
                       .x = p->kv,
                       .xi = 1,
                       .xt = p->stride,
                       .b = p->by,
                       .bt = LANES,
                       .n = p->n,
                       .ahead = p->ahead };
    all_chains(hw, select, 0, &s, p->lanes.begin, p->lanes.end);
}

#if HAS_VECTORS
#define EIGHT_KEYS 8

/* The chains of eight keys go through s. */
KERNEL void add_unit(int hw, const attn_product *p, int64_t unit, int at, const float (*k)[UNIT],
                     const float *scale, float *s)
{
    const float *const q = p->scales + unit * LANES + at;
    float sums[EIGHT_KEYS][STRIP];
    const chains z = { .c = sums[0],
                       .ci = STRIP,
                       .x = k[0],
                       .xi = UNIT,
                       .xt = 1,
                       .b = p->by + unit * UNIT * LANES + at,
                       .bt = LANES,
                       .n = UNIT,
                       .factor = 1.0f };
    int i, r;
    chains8(hw, WHOLE, 1, 1, &z, 0, 0);
    for (i = 0; i < EIGHT_KEYS; i++)
        for (r = 0; r < STRIP; r++) {
            const float by = q[r] * scale[i];
            s[i * LANES + r] = fma32(hw, sums[i][r], by, s[i * LANES + r]);
        }
}

/* Up to eight keys, whose logits without the factor become s. */
KERNEL void add_units(int hw, const attn_product *p, const char *row, int keys, float *s)
{
    float k[EIGHT_KEYS][UNIT] = { { 0 } }, scale[EIGHT_KEYS] = { 0 };
    int64_t unit;
    int i, t, at;
    for (unit = 0; unit < p->dim / UNIT; unit++) {
        for (i = 0; i < keys; i++) {
            const q8_unit *from = (const q8_unit *)(const void *)(row + i * p->runs->stride) + unit;
            scale[i] = f16_to_f32(from->scale);
            for (t = 0; t < UNIT; t++)
                k[i][t] = (float)from->q[t];
        }
        for (at = p->lanes.begin / STRIP * STRIP; at < p->lanes.end; at += STRIP)
            add_unit(hw, p, unit, at, (const float(*)[UNIT])k, scale, s + at);
    }
}

KERNEL void qk_units_body(int hw, const attn_product *p)
{
    const int64_t each = p->ahead ? p->ahead->lines * EIGHT_KEYS / p->n + 1 : 0;
    const char *row = p->runs->run[0];
    int j, i, keys;
    for (j = 0; j < p->n; j += keys, row += keys * p->runs->stride) {
        float s[EIGHT_KEYS * LANES] = { 0 };
        keys = p->n - j < EIGHT_KEYS ? p->n - j : EIGHT_KEYS;
        ask_ahead(p->ahead, each);
        add_units(hw, p, row, keys, s);
        for (i = 0; i < keys * LANES; i++)
            p->to[j * LANES + i] = s[i] * p->factor;
    }
    ask_ahead(p->ahead, INT64_MAX);
}

#define pack_units_body(hw, to, q, dim) pack_body(hw, to, q, dim)
#else
/* Without vectors products are of bytes, which need no floating point: [dim / 4][lane] of the queries. */
KERNEL void pack_units_body(int hw, float *to, const float *const *q, int64_t head_dim)
{
    four_bytes *const fours = (four_bytes *)(void *)to;
    int8_t x[4];
    int64_t d;
    int r, i;
    (void)hw;
    for (r = 0; r < LANES; r++)
        for (d = 0; d < head_dim; d += 4) {
            for (i = 0; i < 4; i++)
                x[i] = (int8_t)(int32_t)q[r][d + i];
            fours[d / 4 * LANES + r] = four_of(x);
        }
}

/* The products of a unit with the queries of one lane, */
KERNEL void sum_unit(int32_t *sums, const four_bytes *q, const int8_t *k)
{
    int32_t sum = 0;
    int t;
    for (t = 0; t < UNIT; t += 4, q += LANES)
        sum = add_four(sum, q[0], four_of(k + t));
    sums[0] = sum;
}

/* and of all four, which read it once. */
KERNEL void sum_unit_lanes(int32_t *sums, const four_bytes *q, const int8_t *k)
{
    int32_t sum0 = 0, sum1 = 0, sum2 = 0, sum3 = 0;
    int t;
    for (t = 0; t < UNIT; t += 4, q += LANES) {
        const four_bytes key = four_of(k + t);
        sum0 = add_four(sum0, q[0], key);
        sum1 = add_four(sum1, q[1], key);
        sum2 = add_four(sum2, q[2], key);
        sum3 = add_four(sum3, q[3], key);
    }
    sums[0] = sum0;
    sums[1] = sum1;
    sums[2] = sum2;
    sums[3] = sum3;
}

KERNEL void add_unit(int hw, const attn_product *p, const q8_unit *k, int64_t unit, float *s)
{
    const four_bytes *const q = (const four_bytes *)(const void *)p->by + unit * (UNIT / 4) * LANES;
    const float *const q_scale = p->scales + unit * LANES, k_scale = f16_to_f32(k->scale);
    const int alone = p->lanes.end - p->lanes.begin == 1;
    const int begin = alone ? p->lanes.begin : 0, end = alone ? p->lanes.end : LANES;
    int32_t sums[LANES];
    int r;
    if (alone)
        sum_unit(sums + begin, q + begin, k->q);
    else
        sum_unit_lanes(sums, q, k->q);
    for (r = begin; r < end; r++) {
        const float by = q_scale[r] * k_scale;
        s[r] = fma32(hw, (float)sums[r], by, s[r]);
    }
}

KERNEL void qk_units_body(int hw, const attn_product *p)
{
    const char *row = p->runs->run[0];
    int64_t unit;
    int j, r;
    for (j = 0; j < p->n; j++, row += p->runs->stride) {
        float *const s = p->to + j * LANES;
        memset(s, 0, LANES * sizeof *s);
        for (unit = 0; unit < p->dim / UNIT; unit++)
            add_unit(hw, p, (const q8_unit *)(const void *)row + unit, unit, s);
        for (r = 0; r < LANES; r++)
            s[r] = s[r] * p->factor;
    }
    ask_ahead(p->ahead, INT64_MAX);
}
#endif

static void add_values_soft(const attn_product *p)
{
    add_values_body(0, 0, p);
}

#if HAS_VECTORS && (FMA_BASE || defined FMA_SECOND_BUILD)
/* P V of few lanes. Columns of V take the place of lanes, so that no part of a vector is idle, and lanes
 * that of chains. A step is short enough to ask for memory between steps. */
#define FEW_LANES 4
#define COLUMNS (2 * STRIP)
#define COLUMN_STEP 32 /* keys */
FMA_TARGET static void add_columns(const attn_product *p)
{
    const int64_t steps = (p->n + COLUMN_STEP - 1) / COLUMN_STEP * p->dim / COLUMNS;
    const int64_t each = p->ahead ? p->ahead->lines / steps + 1 : 0;
    const int at = attn_first_lane(p->lanes);
    float c[FEW_LANES][COLUMNS];
    int64_t d, j;
    int i, r;
    for (d = 0; d < p->dim; d += COLUMNS) {
        float *const o = p->to + d * LANES + at;
        for (i = 0; i < COLUMNS; i++)
            for (r = 0; r < FEW_LANES; r++)
                c[r][i] = o[i * LANES + r];
        for (j = 0; j < p->n; j += COLUMN_STEP) {
            const chains s = { .c = *c,
                               .ci = COLUMNS,
                               .x = p->by + j * LANES + at,
                               .xi = 1,
                               .xt = LANES,
                               .b = p->kv + j * p->stride + d,
                               .bt = p->stride,
                               .n = p->n - j < COLUMN_STEP ? p->n - j : COLUMN_STEP };
            ask_ahead(p->ahead, each);
            chains8(1, 0, 0, 2, &s, 0, 0);
        }
        for (i = 0; i < COLUMNS; i++)
            for (r = 0; r < FEW_LANES; r++)
                o[i * LANES + r] = c[r][i];
    }
    ask_ahead(p->ahead, INT64_MAX);
}

/* All ways are functions, so that a call without -O2 holds the stack of one. */
FMA_TARGET static void add_lanes(const attn_product *p)
{
    add_values_body(1, 0, p);
}

FMA_TARGET static void add_values_hard(const attn_product *p)
{
    if (attn_lane_count(p->lanes) <= FEW_LANES && p->dim % COLUMNS == 0)
        add_columns(p);
    else
        add_lanes(p);
}
#else
#define add_values_hard(p) add_values_body(1, 0, p)
#endif

KERNEL void clip_body(int hw, float *s, int n, const int *begin, const int *end)
{
    int j, r;
    (void)hw;
    for (j = 0; j < n; j++, s += LANES)
        for (r = 0; r < LANES; r++)
            s[r] = j >= begin[r] && j < end[r] ? s[r] : NEG_INF;
}

KERNEL void hide_body(int hw, float *s, int n, const uint32_t *alive, int from)
{
    int j, r;
    (void)hw;
    for (j = from; j < from + n; j++, s += LANES) {
        const uint32_t *const words = alive + j / ATTN_ALIVE_BITS * LANES;
        const uint32_t bit = 1u << j % ATTN_ALIVE_BITS;
        for (r = 0; r < LANES; r++)
            s[r] = choose((words[r] & bit) != 0, s[r], NEG_INF);
    }
}

/* nonzero_bits tells which of eight bytes are not 0. The bytes of the factor lie in memory as those of
 * x do, so that the order of bytes in a word does not matter. */
static uint32_t nonzero_bits(const uint8_t *bytes)
{
    static const uint8_t gather[8] = { 128, 64, 32, 16, 8, 4, 2, 1 };
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t x, factor;
    memcpy(&x, bytes, sizeof x);
    memcpy(&factor, gather, sizeof factor);
    x = (((x & low) + low) | x) >> 7 & UINT64_C(0x0101010101010101);
    return (uint32_t)((x * factor) >> 56);
}

OWN_FRAME static void hide_bytes(uint32_t *alive, int apart, const uint8_t *x, int n, int invert)
{
    const uint32_t flip = invert ? 0 : 0xff;
    uint8_t rest[8] = { 0 };
    int k;
    for (k = 0; k + 8 <= n; k += 8)
        alive[k / ATTN_ALIVE_BITS * apart] &=
            ~((nonzero_bits(x + k) ^ flip) << k % ATTN_ALIVE_BITS);
    if (k == n)
        return;
    memcpy(rest, x + k, (size_t)(n - k));
    alive[k / ATTN_ALIVE_BITS * apart] &= ~((nonzero_bits(rest) ^ flip) << k % ATTN_ALIVE_BITS);
}

/* The last key comes first: clang shifts vectors by multiplying floats, which may raise a flag. */
OWN_FRAME static void hide_others(uint32_t *alive, int apart, const int32_t *ids, int n,
                                  int32_t own)
{
    int k, i;
    for (k = 0; k < n; k += ATTN_ALIVE_BITS, alive += apart) {
        uint32_t same = 0;
        for (i = n - k < ATTN_ALIVE_BITS ? n - 1 : k + ATTN_ALIVE_BITS - 1; i >= k; i--)
            same = same << 1 | (ids[i] == own);
        *alive &= same;
    }
}

KERNEL void drop_body(int hw, float *p, int n, const attn_drop *of)
{
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    int j, r;
    (void)hw;
    for (j = 0; j < n; j++, p += LANES) {
        for (r = 0; r < LANES; r++) {
            c0[r] = of->first_n + (uint32_t)j * of->step;
            c1[r] = of->pos[r];
            c2[r] = of->head[r];
            c3[r] = of->batch;
        }
        philox(of, LANES, c0, c1, c2, c3);
        for (r = 0; r < LANES; r++)
            p[r] = c0[r] < of->below ? of->dead : p[r];
    }
}

/* The threshold keeps p at most 2^16 and rescales rare. The portable set never claims calm. */
KERNEL int running_max_body(int hw, const float *s, int n, float *m, float *l, float *alpha)
{
    float highest[LANES], old[LANES];
    int r, raised = 0;
    for (r = 0; r < LANES; r++)
        highest[r] = NEG_INF;
    maximum_body(hw, s, n, highest);
    memcpy(old, m, sizeof old);
    for (r = 0; r < LANES; r++) {
        const float limit = old[r] + ATTN_THRESHOLD;
        const int begun = old[r] > NEG_INF;
        const int up = begun & (highest[r] > limit);
        raised |= up;
        m[r] = (up | !begun) ? highest[r] : old[r];
    }
    for (r = 0; r < LANES && raised; r++) {
        float a = old[r] > NEG_INF && m[r] > old[r] ? old[r] - m[r] : 0.0f;
        a = exp2_with(hw, a); /* exactly 1 where nothing is raised */
        l[r] = l[r] * a;
        alpha[r] = a;
    }
    return raised ? ATTN_RAISED : 0;
}

KERNEL void rescale_body(int hw, float *RESTRICT x, const float *RESTRICT alpha, int64_t count)
{
    int64_t k;
    int r;
    (void)hw;
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

KERNEL void result_rows(int rows, float *const *out, const float *o, const float *l, float factor,
                        int64_t head_dim_v)
{
    float inverse[LANES], x[LANES];
    int64_t d;
    int r;
    for (r = 0; r < rows; r++) {
        /* A sum, as clang divides before it selects: 1 / 0 would raise a flag. */
        inverse[r] = 1.0f / (l[r] + (float)(l[r] == 0.0f));
        inverse[r] = inverse[r] * factor;
    }
    for (d = 0; d < head_dim_v; d++, o += rows) {
        for (r = 0; r < rows; r++) {
            float y = o[r] * inverse[r];
            y = y + 0.0f; /* -0 becomes +0 */
            y = choose(is_nan(y), float_of(CANONICAL_NAN), y);
            x[r] = choose(l[r] == 0.0f, 0.0f, y);
        }
        for (r = 0; r < rows; r++)
            out[r][d] = x[r];
    }
}

KERNEL void gradient_body(int hw, float *RESTRICT s, float *RESTRICT dp, int n,
                          const attn_row_stats *of)
{
    float m[LANES], factor[LANES], less[LANES];
    const float most = of->most;
    int j, r;
    memcpy(m, of->m, sizeof m);
    memcpy(factor, of->r, sizeof factor);
    memcpy(less, of->delta, sizeof less);
    for (j = 0; j < n; j++, s += LANES, dp += LANES) {
        for (r = 0; r < LANES; r++) {
            const int dead = s[r] == NEG_INF;
            float p = s[r] - m[r], ds = dp[r] - less[r];
            p = p > most ? most : p;
            p = exp2_with(hw, p);
            p = p * factor[r];
            ds = p * ds;
            s[r] = choose(dead, ATTN_DEAD, p);
            dp[r] = choose(dead, ATTN_DEAD, ds);
        }
    }
}

KERNEL void softcap_gradient_body(int hw, float *RESTRICT ds, const float *RESTRICT t,
                                  const float *RESTRICT p, int n)
{
    int j, r;
    for (j = 0; j < n; j++, ds += LANES, t += LANES, p += LANES) {
        for (r = 0; r < LANES; r++) {
            float x = fma32(hw, -t[r], t[r], 1.0f);
            x = ds[r] * x;
            ds[r] = choose(is_dead(p[r]), ATTN_DEAD, x);
        }
    }
}

KERNEL void sum_rows_body(int hw, int select, const attn_outer *f)
{
    int g;
    for (g = 0; g < f->count; g++) {
        const attn_term *term = &f->term[g];
        const int first = term->lanes.begin, end = term->end < f->n ? term->end : f->n;
        const chains s = { .c = f->to + term->begin * f->stride,
                           .ci = f->stride,
                           .count = end - term->begin,
                           .x = term->x + term->begin * LANES + first,
                           .xi = LANES,
                           .xt = 1,
                           .b = term->b + first * f->b_stride,
                           .bt = f->b_stride,
                           .n = term->lanes.end - first };
        all_chains(hw, select, 0, &s, 0, f->columns);
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

KERNEL void merge_body(int hw, float *a, float *b, int64_t head_dim_v)
{
    const attn_state lower = state_view(a, LANES), upper = state_view(b, LANES);
    merge_rows(hw, LANES, &lower, &upper, &upper, head_dim_v);
}

/* ---- the tables */

/* Bodies that several kernels share. */
#define widen_f16_body(hw, to, from, n)                                                            \
    (hw ? widen_f16_hard(to, from, n) : widen_body(f16_to_f32, to, from, n))
#define widen_bf16_body(hw, to, from, n) widen_body(bf16_to_f32, to, from, n)
#define narrow_f16_body(hw, to, from, n) narrow_body(f16_from_f32, to, from, n)
#define narrow_bf16_body(hw, to, from, n) narrow_body(bf16_from_f32, to, from, n)
#define pv_body(hw, p) ((hw) ? add_values_hard(p) : add_values_soft(p))
#define pv_select_body(hw, p) add_values_body(hw, DEAD_B, p)
#define result_body(hw, out, o, l, factor, dim) result_rows(LANES, out, o, l, factor, dim)
#define hide_bytes_body(hw, alive, apart, x, n, invert) hide_bytes(alive, apart, x, n, invert)
#define hide_others_body(hw, alive, apart, ids, n, own) hide_others(alive, apart, ids, n, own)
#define outer_body(hw, f) sum_rows_body(hw, 0, f)
#define outer_select_body(hw, f) sum_rows_body(hw, DEAD_X, f)

/* A kernel of a set is its body with the constant hw: whether it may use fma_hard. */
#define RETURN_void
#define RETURN_int return
#define OPEN(...) __VA_ARGS__
#define CALL(function, ...) function(__VA_ARGS__)
#define PORTABLE_TABLE(title, ENTRY)                                                               \
    {                                                                                              \
        .abi = ATTN_KERNEL_ABI, .rows = LANES, .name = title, ATTN_SET_KERNELS(ENTRY)              \
    }

#define PORTABLE(result, name, parameters, arguments)                                              \
    static result name##_portable parameters                                                       \
    {                                                                                              \
        RETURN_##result CALL(name##_body, FMA_BASE, OPEN arguments);                               \
    }
#define PORTABLE_ENTRY(result, kernel, parameters, arguments) .kernel = kernel##_portable,
ATTN_SET_KERNELS(PORTABLE)
static const attn_kernels kernels_portable = PORTABLE_TABLE("portable", PORTABLE_ENTRY);

#ifdef FMA_SECOND_BUILD
#define PORTABLE_FMA(result, name, parameters, arguments)                                          \
    FMA_TARGET static result name##_portable_fma parameters                                        \
    {                                                                                              \
        RETURN_##result CALL(name##_body, 1, OPEN arguments);                                      \
    }
#define PORTABLE_FMA_ENTRY(result, kernel, parameters, arguments) .kernel = kernel##_portable_fma,
ATTN_SET_KERNELS(PORTABLE_FMA)
static const attn_kernels kernels_portable_fma = PORTABLE_TABLE("portable_fma", PORTABLE_FMA_ENTRY);
#endif
