/* attn_rope.c - rotary position embedding. Needs attn.c. The manual is attn_rope.h, the order of
 * every operation docs/canon.md.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * CONTENTS, bottom-up
 *    1  Fixed point          products of 64 bits, logarithm, powers of two, quotients
 *    2  Frequencies          of the pairs, in turns per position; scaling
 *    3  Cosine and sine      of an angle in turns
 *    4  Turning              pairs of numbers in f32, built once plainly and once for FMA
 *    5  Rows                 the pairs of a block for all rows and heads
 *    6  Validation           every sentence about bad input
 *    7  Public functions
 */
#ifndef ATTN_KERNEL_API
#define ATTN_KERNEL_API
#endif
#ifndef ATTN_INTERNAL
#define ATTN_INTERNAL
#endif
#include "attn.h"
#include "attn_rope.h"

/* ------------------------------------------------------------------------------------------------
 * 1  Fixed point. Integers give the same bits everywhere, and reduce an angle to one turn for
 *    nothing: it is what is left of a product modulo 2^64.
 * --------------------------------------------------------------------------------------------- */

/* The upper half of a product of 128 bits. Where the compiler has that type it is one instruction,
 * and a row's angles take 40 % of the time (gcc 12, AMD EPYC: 1.9 us a call instead of 4.9). */
#if defined __SIZEOF_INT128__
__extension__ typedef unsigned __int128 rope_u128;
#define ROPE_HIGH64(a, b) ((uint64_t)((rope_u128)(a) * (b) >> 64))
#else
#define ROPE_HIGH64(a, b) high_of_halves(a, b)
static uint64_t high_of_halves(uint64_t a, uint64_t b)
{
    const uint64_t half = 0xffffffffu;
    const uint64_t low = (a & half) * (b & half), middle = (a >> 32) * (b & half) + (low >> 32);
    const uint64_t other = (a & half) * (b >> 32) + (middle & half);
    return (a >> 32) * (b >> 32) + (middle >> 32) + (other >> 32);
}
#endif

/* whole + part / 2^64 */
typedef struct rope_fixed {
    int64_t whole;
    uint64_t part;
} rope_fixed;

/* x >= 0 divided by d, from 1 to 2^31; rounded down. */
static rope_fixed fixed_over(rope_fixed x, int64_t d)
{
    const uint64_t by = (uint64_t)d, whole = (uint64_t)x.whole;
    const uint64_t upper = whole % by << 32 | x.part >> 32;
    const uint64_t lower = upper % by << 32 | (x.part & 0xffffffffu);
    rope_fixed y;
    y.whole = (int64_t)(whole / by);
    y.part = upper / by << 32 | lower / by;
    return y;
}

/* n x for n < 2^31 and x >= 0 below 2^32 / n */
static rope_fixed fixed_times(rope_fixed x, int64_t n)
{
    const uint64_t by = (uint64_t)n, lower = (x.part & 0xffffffffu) * by;
    const uint64_t upper = (x.part >> 32) * by + (lower >> 32);
    rope_fixed y;
    y.whole = (int64_t)((uint64_t)x.whole * by + (upper >> 32));
    y.part = upper << 32 | (lower & 0xffffffffu);
    return y;
}

static rope_fixed fixed_plus(rope_fixed x, rope_fixed y)
{
    x.part += y.part;
    x.whole += y.whole + (x.part < y.part);
    return x;
}

/* x > 0 is the result, of 24 bits, times 2^*scale. */
static uint64_t mantissa(float x, int *scale)
{
    const uint32_t u = bits_of(x), exponent = u >> 23;
    *scale = (int)(exponent ? exponent : 1) - 150;
    return (u & 0x7fffffu) | (exponent ? 0x800000u : 0);
}

/* log2 of v 2^scale, v > 0: a square has twice the logarithm, so each squaring of a number in
 * [1, 2) gives one more binary digit. An error of a square counts half as much as one of the square
 * before: all together 2^-62. */
static rope_fixed log2_of(uint64_t v, int scale)
{
    rope_fixed y = { 0, 0 };
    int digit;
    for (; !(v >> 63); scale--)
        v <<= 1;
    for (digit = 0; digit < 64; digit++) {
        const uint64_t low = v * v, high = ROPE_HIGH64(v, v), small = ~high >> 63;
        y.part = y.part << 1 | (small ^ 1);
        v = high << small | (low >> 63 & small);
    }
    y.whole = scale + 63;
    return y;
}

static rope_fixed log2_of_float(float x)
{
    int scale;
    const uint64_t v = mantissa(x, &scale);
    return log2_of(v << 40, scale - 40);
}

/* c[0] - x (c[1] - x (c[2] - ...)), where x is in units of 2^-64. */
static uint64_t alternating(const uint64_t *c, int count, uint64_t x)
{
    uint64_t y = c[count - 1];
    int k;
    for (k = count - 2; k >= 0; k--)
        y = c[k] - ROPE_HIGH64(x, y);
    return y;
}

/* 2^64 2^-x for x in [0, 1) in units of 2^-64: 1 - x g(x), g of degree 12, Remez, worst error
 * 2^-69. */
static uint64_t power_of_two(uint64_t x)
{
    static const uint64_t g[] = { UINT64_C(0xb17217f7d1cf79ac), UINT64_C(0x3d7f7bff058b1d48),
                                  UINT64_C(0x0e35846b82505dc2), UINT64_C(0x0276556df749a271),
                                  UINT64_C(0x005761ff9e279e95), UINT64_C(0x000a184897b5c5ed),
                                  UINT64_C(0x0000ffe5fdf084ec), UINT64_C(0x0000162c0173c753),
                                  UINT64_C(0x000001b523da59bd), UINT64_C(0x0000001e4b081197),
                                  UINT64_C(0x00000001e6f9dfaa), UINT64_C(0x000000001b1dd80f),
                                  UINT64_C(0x0000000001180248) };
    const uint64_t y = alternating(g, COUNT_OF(g), x);
    return ~ROPE_HIGH64(x, y);
}

/* x / d for d > 0: the result times 2^-*shift, which is added to. */
static uint64_t over_float(uint64_t x, float d, int *shift)
{
    int scale;
    uint64_t by = mantissa(d, &scale);
    for (; !(by >> 23); scale--)
        by <<= 1;
    *shift += scale + 23;
    return (x / by << 23) + (x % by << 23) / by;
}

/* x 2^-shift to the nearest, modulo 2^64 */
static uint64_t shifted(uint64_t x, int shift)
{
    if (shift <= 0)
        return shift > -64 ? x << -shift : 0;
    if (shift > 64)
        return 0;
    return (x >> (shift - 1) >> 1) + (x >> (shift - 1) & 1);
}

/* ------------------------------------------------------------------------------------------------
 * 2  Frequencies, in units of 2^-64 turns per position. A whole turn more or less per position
 *    changes no angle, but YARN and LLAMA3 compare frequencies and take a difference of two: theirs
 *    are below a turn, see ROPE_LEAST_COMPARED.
 * --------------------------------------------------------------------------------------------- */

#define ROPE_LOG2_TWO_PI INT64_C(2847022290) /* in units of 2^-30 */

/* What attn_rope says about angles, with every default resolved. */
typedef struct rope_ladder {
    rope_fixed step; /* log2 of a frequency over that of the next pair */
    int scaling;
    float factor, attention;
    const float *freq_factors;
    int64_t low, high;   /* YARN: pairs up to low keep their frequency, those from high do not */
    uint64_t slow, fast; /* LLAMA3: the same by frequencies */
    uint64_t per_width;  /* LLAMA3: 2^125 / width, width = (fast - slow) << width_shift */
    int width_shift;
} rope_ladder;

static float or_default(float x, float otherwise)
{
    return x == 0 ? otherwise : x;
}

/* Pair i of base^(-2i/dim), over a factor of its own, over `factor`. */
static uint64_t frequency_over(const rope_ladder *l, int64_t i, float factor)
{
    const rope_fixed x = fixed_times(l->step, i);
    int shift;
    uint64_t y;
    if (x.whole >= 256)
        return 0;
    shift = (int)x.whole + 2;
    y = power_of_two(x.part);
    y = ROPE_HIGH64(y, UINT64_C(0xa2f9836e4e44152a)); /* 2^66 / (2 pi) */
    if (l->freq_factors)
        y = over_float(y, l->freq_factors[i], &shift);
    if (factor != 1.0f)
        y = over_float(y, factor, &shift);
    return shifted(y, shift);
}

/* floor(x n / d) for n <= d <= 2^32 */
static uint64_t fraction_of(uint64_t x, int64_t n, int64_t d)
{
    const uint64_t by = (uint64_t)d, times_n = (uint64_t)n;
    return x / by * times_n + x % by * times_n / by;
}

/* How far pair i is on the way from low to high, of *whole: as transformers has it, a way of no
 * length is one of 0.001. */
static int64_t on_the_way(const rope_ladder *l, int64_t i, int64_t *whole)
{
    const int64_t width = l->high - l->low, sign = width < 0 ? -1 : 1;
    *whole = width ? width * sign : 1;
    return max64(0, min64((i - l->low) * sign, *whole));
}

static uint64_t yarn_frequency(const rope_ladder *l, int64_t i)
{
    const uint64_t kept = frequency_over(l, i, 1.0f), slowed = frequency_over(l, i, l->factor);
    int64_t whole;
    const int64_t part = on_the_way(l, i, &whole);
    return kept - fraction_of(kept - slowed, part, whole);
}

static uint64_t llama3_frequency(const rope_ladder *l, int64_t i)
{
    const uint64_t kept = frequency_over(l, i, 1.0f), slowed = frequency_over(l, i, l->factor);
    uint64_t part;
    if (kept >= l->fast)
        return kept;
    if (kept <= l->slow)
        return slowed;
    part = ROPE_HIGH64((kept - l->slow) << l->width_shift, l->per_width); /* in units of 2^-61 */
    return slowed + ROPE_HIGH64(kept - slowed, part << 3);
}

static uint64_t frequency(const rope_ladder *l, int64_t i)
{
    if (l->scaling == ATTN_ROPE_YARN)
        return yarn_frequency(l, i);
    if (l->scaling == ATTN_ROPE_LLAMA3)
        return llama3_frequency(l, i);
    return frequency_over(l, i, l->scaling == ATTN_ROPE_LINEAR ? l->factor : 1.0f);
}

/* In units of 2^-30. */
static int64_t coarse(rope_fixed x)
{
    return x.whole * (1 << 30) + (int64_t)(x.part >> 34);
}

/* dim log2(length / (2 pi turns)) / (2 log2 base): the pair that turns so often over that length;
 * rounded down, or up. */
static int64_t pair_of_turns(const attn_rope *r, int64_t dim, float turns, int up)
{
    const rope_fixed base = log2_of_float(or_default(r->base, 10000.0f));
    const int64_t ratio = coarse(log2_of((uint64_t)r->original_length, 0)) -
                          coarse(log2_of_float(turns)) - ROPE_LOG2_TWO_PI;
    const int64_t over = dim * ratio, by = 2 * coarse(base);
    int64_t q = over / by;
    if (over % by != 0 && (over < 0) != up)
        q += up ? 1 : -1;
    return q;
}

/* 0.1 ln(factor) + 1 */
static float yarn_attention(float factor)
{
    const uint64_t tenth = UINT64_C(0x46fa6ffcba52fd); /* 0.1 ln 2, in units of 2^-58 */
    const rope_fixed x = log2_of_float(factor);
    const uint64_t y = (uint64_t)x.whole * tenth + ROPE_HIGH64(x.part, tenth) + ((uint64_t)1 << 58);
    return (float)(int64_t)y * 0x1p-58f;
}

static void set_yarn(rope_ladder *l, const attn_rope *r, int64_t dim)
{
    const float fast = or_default(r->beta_fast, 32.0f), slow = or_default(r->beta_slow, 1.0f);
    /* The bounds dim and -1 change no part of a way, but keep it below 2^32: both can be 2^51. */
    l->low = min64(max64(pair_of_turns(r, dim, fast, 0), 0), dim);
    l->high = max64(min64(pair_of_turns(r, dim, slow, 1), dim - 1), -1);
    if (r->attention_factor == 0)
        l->attention = yarn_attention(l->factor);
}

/* turns / length, below a turn */
static uint64_t turns_over(float turns, int64_t length)
{
    int scale;
    const uint64_t v = mantissa(turns, &scale);
    rope_fixed x;
    x.whole = (int64_t)(v >> -scale); /* turns from 1e-6 to 1e6: scale from -43 to -4 */
    x.part = v << (64 + scale);
    x = fixed_over(x, length);
    return x.whole ? UINT64_MAX : x.part;
}

static void set_llama3(rope_ladder *l, const attn_rope *r)
{
    const float low = or_default(r->low_freq_factor, 1.0f);
    const float high = or_default(r->high_freq_factor, 4.0f);
    uint64_t width, rest = (uint64_t)1 << 62;
    int digit;
    l->slow = turns_over(low, r->original_length);
    l->fast = turns_over(high, r->original_length);
    width = l->fast - l->slow;
    for (l->width_shift = 0; width && !(width >> 62); l->width_shift++)
        width <<= 1;
    for (digit = 0; width && digit < 64; digit++) { /* long division */
        const int one = rest >= width;
        l->per_width = l->per_width << 1 | (uint64_t)one;
        rest = (rest - (one ? width : 0)) << 1;
    }
}

static rope_ladder ladder_of(const attn_rope *r, int64_t dim)
{
    rope_ladder l;
    memset(&l, 0, sizeof l);
    l.scaling = r->scaling;
    l.factor = or_default(r->factor, 1.0f);
    l.attention = or_default(r->attention_factor, 1.0f);
    l.freq_factors = r->freq_factors;
    l.step = fixed_over(fixed_times(log2_of_float(or_default(r->base, 10000.0f)), 2), dim);
    if (l.scaling == ATTN_ROPE_NTK && dim > 2)
        l.step = fixed_plus(l.step, fixed_over(fixed_times(log2_of_float(l.factor), 2), dim - 2));
    if (l.scaling == ATTN_ROPE_YARN)
        set_yarn(&l, r, dim);
    if (l.scaling == ATTN_ROPE_LLAMA3)
        set_llama3(&l, r);
    return l;
}

/* ------------------------------------------------------------------------------------------------
 * 3  Cosine and sine
 * --------------------------------------------------------------------------------------------- */

/* x, up to 2^63 in units of 2^-63, as a float: the two bits less that make it a signed number stay
 * in the last one, so that it is rounded once. */
static float signed_float(uint64_t x, int negative)
{
    const int64_t v = (int64_t)(x >> 2 | ((x & 3) != 0));
    return (float)(negative ? -v : v) * 0x1p-61f;
}

/* w = distance to the nearest quarter turn, in quarter turns, at most 1/2; u = w^2;
 * sin = w S(u), cos = 1 - u C(u): Remez in u on [0, 1/4], worst errors of S 2^-57, of u C 2^-52. */
static void cos_sin(uint64_t angle, float *c, float *s)
{
    /* in units of 2^-63, signs alternating */
    static const uint64_t sine[] = { UINT64_C(0xc90fdaa22168c207), UINT64_C(0x52aef39896f90539),
                                     UINT64_C(0x0a335e33bac3feb9), UINT64_C(0x009969667173095a),
                                     UINT64_C(0x000541e0bf69bc71), UINT64_C(0x00001e3007200bee),
                                     UINT64_C(0x00000078fce79395) };
    static const uint64_t cosine[] = { UINT64_C(0x9de9e64df22ed7a4), UINT64_C(0x20783e103696eef0),
                                       UINT64_C(0x02aba78fc20387b9), UINT64_C(0x001e1f50094816ad),
                                       UINT64_C(0x0000d366199501a7), UINT64_C(0x000003e96ab505c8) };
    const uint64_t eighth = (uint64_t)1 << 61, quarter = (angle + eighth) >> 62;
    const uint64_t off = angle - (quarter << 62);
    const int below = (int)(off >> 63);
    const uint64_t w = (below ? 0 - off : off) << 2, u = ROPE_HIGH64(w, w);
    const uint64_t p = alternating(sine, COUNT_OF(sine), u);
    const uint64_t q = alternating(cosine, COUNT_OF(cosine), u);
    const uint64_t sin_w = ROPE_HIGH64(w, p), cos_w = ((uint64_t)1 << 63) - ROPE_HIGH64(u, q);
    const int odd = (int)(quarter & 1), lower = (int)(quarter >> 1);
    *c = odd ? signed_float(sin_w, lower == below) : signed_float(cos_w, lower);
    *s = odd ? signed_float(cos_w, lower) : signed_float(sin_w, lower != below);
}

/* ------------------------------------------------------------------------------------------------
 * 4  Turning
 * --------------------------------------------------------------------------------------------- */

#define ROPE_PAIRS 16 /* turned by one vector loop */

/* x, but +0 for -0 and the one NaN, as in every output of the library. */
KERNEL float finished(float x)
{
    uint32_t nan;
    x = x + 0.0f;
    nan = 0u - (uint32_t)((bits_of(x) & 0x7fffffffu) > 0x7f800000u);
    return float_of((bits_of(x) & ~nan) | (CANONICAL_NAN & nan));
}

/* ROPE_PAIRS pairs (x[k*step], x[k*step + apart]) to the same places of y, with y_apart. */
KERNEL void turn_pairs(int hw, float *y, int64_t y_apart, const float *x, int64_t apart, int step,
                       const float *c, const float *s)
{
    int k;
    for (k = 0; k < ROPE_PAIRS; k++) {
        const float x1 = x[k * step], x2 = x[k * step + apart];
        float t = x2 * s[k], y1, y2;
        y1 = fma32(hw, x1, c[k], -t);
        t = x1 * s[k];
        y2 = fma32(hw, x2, c[k], t);
        y[k * step] = finished(y1);
        y[k * step + y_apart] = finished(y2);
    }
}

/* n pairs (x[k], x[apart + k]); c and s hold zeros up to the next multiple of ROPE_PAIRS. Results
 * are first an array of their own, so that compilers need not fear that y is x + 1. */
KERNEL void turn_split_body(int hw, float *y, const float *x, int64_t apart, const float *c,
                            const float *s, int n)
{
    float z[2 * ROPE_PAIRS], rest[2 * ROPE_PAIRS] = { 0 };
    const size_t bytes = (size_t)(n % ROPE_PAIRS) * sizeof *z;
    int k;
    for (k = 0; k + ROPE_PAIRS <= n; k += ROPE_PAIRS) {
        turn_pairs(hw, z, ROPE_PAIRS, x + k, apart, 1, c + k, s + k);
        memcpy(y + k, z, ROPE_PAIRS * sizeof *z);
        memcpy(y + apart + k, z + ROPE_PAIRS, ROPE_PAIRS * sizeof *z);
    }
    if (k < n) {
        memcpy(rest, x + k, bytes);
        memcpy(rest + ROPE_PAIRS, x + apart + k, bytes);
        turn_pairs(hw, z, ROPE_PAIRS, rest, ROPE_PAIRS, 1, c + k, s + k);
        memcpy(y + k, z, bytes);
        memcpy(y + apart + k, z + ROPE_PAIRS, bytes);
    }
}

/* n pairs (x[2k], x[2k + 1]) */
KERNEL void turn_interleaved_body(int hw, float *y, const float *x, const float *c, const float *s,
                                  int n)
{
    float z[2 * ROPE_PAIRS], rest[2 * ROPE_PAIRS] = { 0 };
    const size_t bytes = (size_t)(n % ROPE_PAIRS) * 2 * sizeof *z;
    int k;
    for (k = 0; k + ROPE_PAIRS <= n; k += ROPE_PAIRS) {
        turn_pairs(hw, z, 1, x + 2 * k, 1, 2, c + k, s + k);
        memcpy(y + 2 * k, z, sizeof z);
    }
    if (k < n) {
        memcpy(rest, x + 2 * k, bytes);
        turn_pairs(hw, z, 1, rest, 1, 2, c + k, s + k);
        memcpy(y + 2 * k, z, bytes);
    }
}

/* y may be x. apart: of the two numbers of a pair; 1 = interleaved. */
typedef void (*rope_turn_fn)(float *y, const float *x, int64_t apart, const float *c,
                             const float *s, int n);

/* Each body in a function of its own: at -O0 one frame for both would take 1.3 KiB. */
#define ROPE_TURN(NAME, TARGET, HW)                                                                \
    TARGET static void NAME##_interleaved(float *y, const float *x, const float *c,                \
                                          const float *s, int n)                                   \
    {                                                                                              \
        turn_interleaved_body(HW, y, x, c, s, n);                                                  \
    }                                                                                              \
    TARGET static void NAME##_split(float *y, const float *x, int64_t apart, const float *c,       \
                                    const float *s, int n)                                         \
    {                                                                                              \
        turn_split_body(HW, y, x, apart, c, s, n);                                                 \
    }                                                                                              \
    static void NAME(float *y, const float *x, int64_t apart, const float *c, const float *s,      \
                     int n)                                                                        \
    {                                                                                              \
        if (apart == 1)                                                                            \
            NAME##_interleaved(y, x, c, s, n);                                                     \
        else                                                                                       \
            NAME##_split(y, x, apart, c, s, n);                                                    \
    }

ROPE_TURN(turn_plainly, , FMA_BASE)
#ifdef FMA_SECOND_BUILD
ROPE_TURN(turn_fused, FMA_TARGET, 1)

static rope_turn_fn best_turn(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX2 ? turn_fused : turn_plainly;
}
#else
static rope_turn_fn best_turn(void)
{
    return turn_plainly;
}
#endif

/* ------------------------------------------------------------------------------------------------
 * 5  Rows. A block of pairs at a time: its frequencies, then for each row its cosines and sines,
 *    which serve all heads.
 * --------------------------------------------------------------------------------------------- */

#define ROPE_BLOCK 64 /* 1 KiB of frequencies, cosines, sines: a head of up to 128 at once */

typedef struct rope_block {
    int64_t first; /* pair */
    int n;
    uint64_t frequencies[ROPE_BLOCK];
    float c[ROPE_BLOCK], s[ROPE_BLOCK];
} rope_block;

/* Where angles come from: computed, or from the table. */
typedef struct rope_source {
    int64_t pairs;
    rope_ladder angles;
    const float *cos, *sin; /* NULL = computed */
    int64_t table_stride;
} rope_source;

static rope_source source_of(const attn_rope *r, int64_t dim)
{
    rope_source from;
    memset(&from, 0, sizeof from);
    from.pairs = dim / 2;
    from.cos = r->cos;
    from.sin = r->sin;
    from.table_stride = stride_or(r->table_stride, from.pairs);
    if (!r->cos)
        from.angles = ladder_of(r, dim);
    return from;
}

static void begin_block(rope_block *k, const rope_source *from, int64_t first)
{
    int i;
    k->first = first;
    k->n = (int)min64(from->pairs - first, ROPE_BLOCK);
    memset(k->c, 0, sizeof k->c);
    memset(k->s, 0, sizeof k->s);
    for (i = 0; i < k->n && !from->cos; i++)
        k->frequencies[i] = frequency(&from->angles, first + i);
}

static void set_angles(rope_block *k, const rope_source *from, int64_t position)
{
    const float times_both = from->angles.attention;
    int i;
    if (from->cos) {
        const int64_t at = position * from->table_stride + k->first;
        memcpy(k->c, from->cos + at, (size_t)k->n * sizeof *k->c);
        memcpy(k->s, from->sin + at, (size_t)k->n * sizeof *k->s);
        return;
    }
    for (i = 0; i < k->n; i++) {
        cos_sin((uint64_t)position * k->frequencies[i], &k->c[i], &k->s[i]);
        k->c[i] = k->c[i] * times_both;
        k->s[i] = k->s[i] * times_both;
    }
}

/* ---- storage types */

typedef struct rope_job {
    const attn_rope *rope;
    attn_rope_rows rows; /* strides resolved */
    int64_t dim;
    const attn_kernels *kernels;
    rope_turn_fn turn;
} rope_job;

static void widen(const rope_job *j, float *to, const char *from, int64_t n)
{
    const int dtype = j->rows.x.dtype;
    if (dtype == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        (dtype == ATTN_F16 ? j->kernels->widen_f16
                           : j->kernels->widen_bf16)(to, (const uint16_t *)(const void *)from, n);
}

static void narrow(const rope_job *j, char *to, const float *from, int64_t n)
{
    const int dtype = j->rows.y.dtype;
    int64_t k;
    for (k = 0; dtype == ATTN_F32 && k < n; k++)
        ((float *)(void *)to)[k] = finished(from[k]);
    if (dtype != ATTN_F32)
        (dtype == ATTN_F16 ? j->kernels->narrow_f16
                           : j->kernels->narrow_bf16)((uint16_t *)(void *)to, from, n);
}

/* One head's row of a block through f32, both halves read before one is written. */
static void turn_through(const rope_job *j, const rope_block *k, char *y, const char *x)
{
    const size_t x_bytes = bytes_of(j->rows.x.dtype), y_bytes = bytes_of(j->rows.y.dtype);
    const int64_t half = j->dim / 2, pair = k->first;
    float z[2 * ROPE_BLOCK];
    if (j->rope->interleaved) {
        widen(j, z, x + (size_t)(2 * pair) * x_bytes, 2 * k->n);
        j->turn(z, z, 1, k->c, k->s, k->n);
        narrow(j, y + (size_t)(2 * pair) * y_bytes, z, 2 * k->n);
    } else {
        widen(j, z, x + (size_t)pair * x_bytes, k->n);
        widen(j, z + ROPE_BLOCK, x + (size_t)(half + pair) * x_bytes, k->n);
        j->turn(z, z, ROPE_BLOCK, k->c, k->s, k->n);
        narrow(j, y + (size_t)pair * y_bytes, z, k->n);
        narrow(j, y + (size_t)(half + pair) * y_bytes, z + ROPE_BLOCK, k->n);
    }
}

static void turn_head(const rope_job *j, const rope_block *k, char *y, const char *x)
{
    const int interleaved = j->rope->interleaved != 0;
    const int64_t first = interleaved ? 2 * k->first : k->first;
    if (j->rows.x.dtype == ATTN_F32 && j->rows.y.dtype == ATTN_F32)
        j->turn((float *)(void *)y + first, (const float *)(const void *)x + first,
                interleaved ? 1 : j->dim / 2, k->c, k->s, k->n);
    else
        turn_through(j, k, y, x);
}

/* The elements that do not turn. */
static void pass_head(const rope_job *j, char *y, const char *x)
{
    const size_t x_bytes = bytes_of(j->rows.x.dtype), y_bytes = bytes_of(j->rows.y.dtype);
    float z[2 * ROPE_BLOCK];
    int64_t at = j->dim, n;
    if (j->rows.x.dtype == j->rows.y.dtype) {
        if (x != y)
            memcpy(y + (size_t)at * y_bytes, x + (size_t)at * x_bytes,
                   (size_t)(j->rows.head_dim - at) * x_bytes);
        return;
    }
    for (; at < j->rows.head_dim; at += n) {
        n = min64(j->rows.head_dim - at, 2 * ROPE_BLOCK);
        widen(j, z, x + (size_t)at * x_bytes, n);
        narrow(j, y + (size_t)at * y_bytes, z, n);
    }
}

/* ---- rows */

static int64_t position_of(const attn_rope_rows *r, int64_t b, int64_t i)
{
    if (r->positions)
        return r->positions[b * r->positions_stride + i];
    return (r->first ? r->first[b] : 0) + i;
}

/* k = NULL: what does not turn. */
static void run_row(const rope_job *j, const rope_block *k, int64_t b, int64_t i)
{
    const attn_tensor *from = &j->rows.x;
    const attn_output *to = &j->rows.y;
    const ptrdiff_t x_bytes = (ptrdiff_t)bytes_of(from->dtype);
    const ptrdiff_t y_bytes = (ptrdiff_t)bytes_of(to->dtype);
    const char *x = from->data;
    char *y = to->data;
    int64_t h;
    x += (b * from->stride_batch + i * from->stride_seq) * x_bytes;
    y += (b * to->stride_batch + i * to->stride_seq) * y_bytes;
    for (h = 0; h < j->rows.num_heads; h++) {
        if (k)
            turn_head(j, k, y, x);
        else
            pass_head(j, y, x);
        x += from->stride_head * x_bytes;
        y += to->stride_head * y_bytes;
    }
}

static void run_rows(const rope_job *j)
{
    const rope_source from = source_of(j->rope, j->dim);
    rope_block k;
    int64_t pair, b, i;
    for (pair = 0; pair < from.pairs; pair += ROPE_BLOCK) {
        begin_block(&k, &from, pair);
        for (b = 0; b < j->rows.batch; b++)
            for (i = 0; i < j->rows.seq_len; i++) {
                set_angles(&k, &from, position_of(&j->rows, b, i));
                run_row(j, &k, b, i);
            }
    }
    for (b = 0; b < j->rows.batch && j->dim < j->rows.head_dim; b++)
        for (i = 0; i < j->rows.seq_len; i++)
            run_row(j, NULL, b, i);
}

/* ------------------------------------------------------------------------------------------------
 * 6  Validation
 * --------------------------------------------------------------------------------------------- */

#define ROPE_MOST_DIM ((int64_t)1 << 24)
#define ROPE_MOST_POSITION ((int64_t)1 << 31)

static attn_status check_rope_dim(const attn_rope *r, int64_t head_dim, text *why)
{
    const int64_t dim = r->dim ? r->dim : head_dim;
    if (head_dim < 1)
        return bad_field(why, ATTN_ERR_ARG, "head_dim", head_dim, " must be at least 1");
    if (r->dim < 0)
        return bad_field(why, ATTN_ERR_ARG, "dim", r->dim, " must be 0 (head_dim) or more");
    if (r->dim > head_dim) {
        put_field(why, "dim", r->dim);
        put(why, " must be at most ");
        put_field(why, "head_dim", head_dim);
        return ATTN_ERR_ARG;
    }
    if (dim % 2 != 0)
        return bad_field(why, ATTN_ERR_ARG, r->dim ? "dim" : "head_dim", dim,
                         " must be even, or an even dim given: elements turn in pairs");
    if (dim > ROPE_MOST_DIM)
        return bad_field(why, ATTN_ERR_ARG, r->dim ? "dim" : "head_dim", dim,
                         " must be at most 16777216");
    return ATTN_OK;
}

/* Numbers of *r: where they are allowed other than 0, and from where to where. */
typedef struct rope_number_rule {
    const char *name;
    size_t offset;     /* of a float */
    unsigned scalings; /* bits: those with which it means something */
    float least;
    int above; /* nonzero: least itself is too small */
    float most;
    const char *rest;
} rope_number_rule;

#define ROPE_WITH(scaling) (1u << (scaling))
#define ROPE_WITH_ANY (~0u)
#define ROPE_LARGEST 0x1.fffffep+127f
#define ROPE_NUMBER(field) #field, offsetof(attn_rope, field)

static const rope_number_rule number_rules[] = {
    { ROPE_NUMBER(base), ROPE_WITH_ANY, 1.0f, 1, ROPE_LARGEST,
      " must be 0 (10000) or above 1 and finite" },
    { ROPE_NUMBER(factor), ROPE_WITH_ANY & ~ROPE_WITH(ATTN_ROPE_NONE), 1.0f, 0, ROPE_LARGEST,
      " must be 0 (1) or at least 1 and finite" },
    { ROPE_NUMBER(beta_fast), ROPE_WITH(ATTN_ROPE_YARN), 1e-6f, 0, 1e6f,
      " must be 0 (32) or from 1e-6 to 1e6" },
    { ROPE_NUMBER(beta_slow), ROPE_WITH(ATTN_ROPE_YARN), 1e-6f, 0, 1e6f,
      " must be 0 (1) or from 1e-6 to 1e6" },
    { ROPE_NUMBER(low_freq_factor), ROPE_WITH(ATTN_ROPE_LLAMA3), 1e-6f, 0, 1e6f,
      " must be 0 (1) or from 1e-6 to 1e6" },
    { ROPE_NUMBER(high_freq_factor), ROPE_WITH(ATTN_ROPE_LLAMA3), 1e-6f, 0, 1e6f,
      " must be 0 (4) or from 1e-6 to 1e6" },
    { ROPE_NUMBER(attention_factor), ROPE_WITH_ANY, 0.0f, 1, ROPE_LARGEST,
      " must be 0 (the usual) or positive and finite" },
};

static attn_status check_rope_number(const attn_rope *r, const rope_number_rule *rule, text *why)
{
    float x;
    memcpy(&x, (const char *)r + rule->offset, sizeof x);
    if (x == 0)
        return ATTN_OK;
    if (!(rule->above ? x > rule->least : x >= rule->least) || !(x <= rule->most))
        return bad_number(why, rule->name, x, rule->rest);
    if (!(rule->scalings & ROPE_WITH(r->scaling)) && x != 1.0f) {
        bad_number(why, rule->name, x, " means nothing with ");
        put_field(why, "scaling", r->scaling);
        return ATTN_ERR_ARG;
    }
    return ATTN_OK;
}

/* freq_factors with which frequencies, up to 1 / (2 pi) turns before, stay below a turn: YARN and
 * LLAMA3 compare them. The others only need a factor that numbers of 64 bits can be divided by. */
#define ROPE_LEAST_COMPARED 0.16f
#define ROPE_LEAST_DIVISOR 1e-6f

static attn_status check_rope_freq_factors(const attn_rope *r, int64_t pairs, text *why)
{
    const int compared = r->scaling == ATTN_ROPE_YARN || r->scaling == ATTN_ROPE_LLAMA3;
    const float least = compared ? ROPE_LEAST_COMPARED : ROPE_LEAST_DIVISOR;
    int64_t i;
    for (i = 0; r->freq_factors && i < pairs; i++)
        if (!(r->freq_factors[i] >= least && r->freq_factors[i] <= ROPE_LARGEST)) {
            put(why, "freq_factors[");
            put_int(why, i);
            return bad_number(why, "]", r->freq_factors[i],
                              compared ? " must be at least 0.16 with this scaling, and finite"
                                       : " must be at least 1e-6 and finite");
        }
    return ATTN_OK;
}

static attn_status bad_order(text *why, const char *low_name, float low, const char *high_name,
                             float high)
{
    bad_number(why, low_name, low, " must be below ");
    return bad_number(why, high_name, high, "");
}

/* What only YARN and LLAMA3 need. */
static attn_status check_rope_order(const attn_rope *r, text *why)
{
    const float low = or_default(r->low_freq_factor, 1.0f);
    const float high = or_default(r->high_freq_factor, 4.0f);
    const float slow = or_default(r->beta_slow, 1.0f), fast = or_default(r->beta_fast, 32.0f);
    if (r->scaling != ATTN_ROPE_YARN && r->scaling != ATTN_ROPE_LLAMA3)
        return ATTN_OK;
    if (r->original_length < 1 || r->original_length > ROPE_MOST_POSITION)
        return bad_field(why, ATTN_ERR_ARG, "original_length", r->original_length,
                         " must be from 1 to 2147483648 with this scaling");
    if (r->scaling == ATTN_ROPE_YARN)
        return slow < fast ? ATTN_OK : bad_order(why, "beta_slow", slow, "beta_fast", fast);
    if (!(low < high))
        return bad_order(why, "low_freq_factor", low, "high_freq_factor", high);
    if (high > (float)r->original_length * 0.5f)
        return bad_number(why, "high_freq_factor", high,
                          " must be at most half of original_length");
    return ATTN_OK;
}

static attn_status check_rope_computed(const attn_rope *r, int64_t pairs, text *why)
{
    attn_status status = ATTN_OK;
    int n;
    if (r->scaling < ATTN_ROPE_NONE || r->scaling > ATTN_ROPE_LLAMA3)
        return bad_field(why, ATTN_ERR_ARG, "scaling", r->scaling,
                         " must be an attn_rope_scaling, 0 to 4");
    for (n = 0; n < COUNT_OF(number_rules) && !status; n++)
        status = check_rope_number(r, &number_rules[n], why);
    if (!status)
        status = check_rope_order(r, why);
    return status ? status : check_rope_freq_factors(r, pairs, why);
}

static attn_status check_rope_table(const attn_rope *r, int64_t pairs, text *why)
{
    ptrdiff_t stride[4] = { 0, 0, 0, 1 };
    stride[2] = stride_or(r->table_stride, pairs);
    if (!r->cos || !r->sin)
        return bad(why, ATTN_ERR_ARG, "cos and sin: give both or neither");
    if (r->num_positions < 0)
        return bad_field(why, ATTN_ERR_ARG, "num_positions", r->num_positions,
                         " must be at least 0");
    return check_extent("cos", sizeof(float), 1, 1, r->num_positions, pairs, stride, why);
}

static attn_status check_rope(const attn_rope *r, int64_t head_dim, text *why)
{
    attn_status status;
    if (!r)
        return bad(why, ATTN_ERR_ARG, "rope is NULL");
    status = check_rope_dim(r, head_dim, why);
    if (status)
        return status;
    head_dim = r->dim ? r->dim : head_dim;
    if (r->cos || r->sin)
        return check_rope_table(r, head_dim / 2, why);
    return check_rope_computed(r, head_dim / 2, why);
}

/* name: "x" or "y". Works on a copy of *why, so that the name stands only before a complaint. */
static attn_status check_rope_side(const char *name, int dtype, const void *data,
                                   const attn_rope_rows *r, const ptrdiff_t stride[4], text why)
{
    put(&why, name);
    if (dtype < ATTN_F32 || dtype > ATTN_BF16)
        return bad_field(&why, ATTN_ERR_ARG, ".dtype", dtype, " must be an attn_dtype, 0 to 2");
    if (!data && r->batch && r->num_heads && r->seq_len)
        return bad(&why, ATTN_ERR_ARG, ".data is NULL");
    return check_extent("", (int64_t)bytes_of(dtype), r->batch, r->num_heads, r->seq_len,
                        r->head_dim, stride, &why);
}

static attn_status check_rope_sizes(const attn_rope_rows *r, text *why)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = { { "batch", r->batch }, { "num_heads", r->num_heads }, { "seq_len", r->seq_len } };
    int n;
    for (n = 0; n < COUNT_OF(sizes); n++)
        if (sizes[n].value < 0)
            return bad_field(why, ATTN_ERR_ARG, sizes[n].name, sizes[n].value,
                             " must be at least 0");
    return ATTN_OK;
}

/* Strides of *r are resolved; y's as given are in *given. */
static attn_status check_rope_rows(const attn_rope_rows *r, const attn_output *given, text *why)
{
    const ptrdiff_t x[4] = { r->x.stride_batch, r->x.stride_head, r->x.stride_seq, 1 };
    const ptrdiff_t y[4] = { r->y.stride_batch, r->y.stride_head, r->y.stride_seq, 1 };
    const ptrdiff_t positions[4] = { r->positions_stride, 0, 1, 1 }, first[4] = { 1, 0, 0, 1 };
    attn_status status = check_rope_side("x", r->x.dtype, r->x.data, r, x, *why);
    if (!status)
        status = check_output_strides("y", given, why);
    if (!status)
        status = check_rope_side("y", r->y.dtype, r->y.data, r, y, *why);
    if (!status && r->positions && r->first)
        status = bad(why, ATTN_ERR_ARG, "positions and first: give one of them");
    if (!status && r->positions)
        status =
            check_extent("positions", sizeof(int64_t), r->batch, 1, r->seq_len, 1, positions, why);
    if (!status && r->first)
        status = check_extent("first", sizeof(int64_t), r->batch, 1, 1, 1, first, why);
    return status;
}

/* "batch b, row i: position (p) rest" */
static attn_status bad_position(text *why, int64_t b, int64_t i, int64_t position, const char *rest)
{
    put(why, "batch ");
    put_int(why, b);
    put(why, ", row ");
    put_int(why, i);
    put(why, ": ");
    return bad_field(why, ATTN_ERR_ARG, "position", position, rest);
}

static attn_status check_rope_position(const attn_rope *r, int64_t b, int64_t i, int64_t position,
                                       text *why)
{
    if (position < -ROPE_MOST_POSITION || position > ROPE_MOST_POSITION)
        return bad_position(why, b, i, position, " must be from -2^31 to 2^31");
    if (!r->cos || (position >= 0 && position < r->num_positions))
        return ATTN_OK;
    bad_position(why, b, i, position, " must be at least 0 and below ");
    put_field(why, "num_positions", r->num_positions);
    return bad(why, ATTN_ERR_ARG, ", the rows of the table");
}

/* Batch entries that may have positions of their own: one where all share them. */
static int64_t positioned_entries(const attn_rope_rows *r)
{
    const int shared = r->positions ? r->positions_stride == 0 : !r->first;
    return shared ? min64(r->batch, 1) : r->batch;
}

/* Also where there are no heads to turn: nothing but positions bounds batch and seq_len then.
 * Without an array, first and last row of a batch entry tell of all, and of 2^32 + 2 rows one has a
 * position that is refused. */
static attn_status check_rope_positions(const attn_rope *rope, const attn_rope_rows *r, text *why)
{
    const int64_t most = r->positions ? INT64_MAX : 2 * ROPE_MOST_POSITION + 1;
    const int64_t last = min64(r->seq_len - 1, most);
    const int64_t step = r->positions ? 1 : max64(last, 1);
    attn_status status = ATTN_OK;
    int64_t b, i;
    for (b = 0; r->seq_len && b < positioned_entries(r) && !status; b++) {
        if (r->first && (r->first[b] < -ROPE_MOST_POSITION || r->first[b] > ROPE_MOST_POSITION))
            return bad_entry(why, "first", b, r->first[b], " must be from -2^31 to 2^31");
        for (i = 0; i <= last && !status; i += step)
            status = check_rope_position(rope, b, i, position_of(r, b, i), why);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 7  Public functions
 * --------------------------------------------------------------------------------------------- */

static attn_status check_job(rope_job *j, const attn_rope *rope, const attn_rope_rows *rows,
                             text *why)
{
    attn_status status;
    if (!rows)
        return bad(why, ATTN_ERR_ARG, "rows is NULL");
    status = check_rope(rope, rows->head_dim, why);
    if (!status)
        status = check_rope_sizes(rows, why); /* before packed strides are products of them */
    if (status)
        return status;
    j->rope = rope;
    j->rows = *rows;
    j->dim = rope->dim ? rope->dim : rows->head_dim;
    RESOLVE_STRIDES(j->rows.x, 0, rows->num_heads, rows->seq_len, rows->head_dim);
    RESOLVE_STRIDES(j->rows.y, 0, rows->num_heads, rows->seq_len, rows->head_dim);
    j->rows.positions_stride = stride_or(rows->positions_stride, rows->seq_len);
    status = check_rope_rows(&j->rows, &rows->y, why);
    return status ? status : check_rope_positions(rope, &j->rows, why);
}

static void put_ok(char *why, size_t why_bytes)
{
    text t = text_in(why, why_bytes);
    put(&t, "ok");
}

ATTN_API attn_status attn_rope_apply(const attn_rope *rope, const attn_rope_rows *rows, char *why,
                                     size_t why_bytes)
{
    text sentence = text_in(why, why_bytes);
    rope_job j;
    const attn_status status = check_job(&j, rope, rows, &sentence);
    if (status)
        return status;
    j.kernels = attn_kernels_get(0);
    j.turn = best_turn();
    if (rows->batch && rows->num_heads && rows->seq_len)
        run_rows(&j);
    put_ok(why, why_bytes);
    return ATTN_OK;
}

static attn_status check_table_wanted(const attn_rope *rope, int64_t head_dim, int64_t first,
                                      int64_t count, const float *c, const float *s, text *why)
{
    static const ptrdiff_t packed[4] = { 0, 0, 0, 1 };
    const attn_status status = check_rope(rope, head_dim, why);
    if (status)
        return status;
    if (rope->cos)
        return bad(why, ATTN_ERR_ARG,
                   "rope has a table: to compute one, set its cos and sin to NULL");
    if (count < 0)
        return bad_field(why, ATTN_ERR_ARG, "count", count, " must be at least 0");
    if (first < -ROPE_MOST_POSITION || first > ROPE_MOST_POSITION)
        return bad_field(why, ATTN_ERR_ARG, "first", first, " must be from -2^31 to 2^31");
    if (count > ROPE_MOST_POSITION + 1 - first) {
        put_field(why, "first", first);
        put(why, " + ");
        return bad_field(why, ATTN_ERR_ARG, "count", count, " must be at most 2^31 + 1");
    }
    if (count && (!c || !s))
        return bad(why, ATTN_ERR_ARG, c ? "sin is NULL" : "cos is NULL");
    return check_extent("cos", sizeof(float), 1, 1, 1,
                        times(count, (rope->dim ? rope->dim : head_dim) / 2), packed, why);
}

ATTN_API attn_status attn_rope_table(const attn_rope *rope, int64_t head_dim, int64_t first,
                                     int64_t count, float *cos, float *sin, char *why,
                                     size_t why_bytes)
{
    text sentence = text_in(why, why_bytes);
    const attn_status status =
        check_table_wanted(rope, head_dim, first, count, cos, sin, &sentence);
    rope_source from;
    rope_block k;
    int64_t pair, i;
    if (status)
        return status;
    from = source_of(rope, rope->dim ? rope->dim : head_dim);
    for (pair = 0; pair < from.pairs && count; pair += ROPE_BLOCK) {
        begin_block(&k, &from, pair);
        for (i = 0; i < count; i++) {
            set_angles(&k, &from, first + i);
            memcpy(cos + i * from.pairs + pair, k.c, (size_t)k.n * sizeof *cos);
            memcpy(sin + i * from.pairs + pair, k.s, (size_t)k.n * sizeof *sin);
        }
    }
    put_ok(why, why_bytes);
    return ATTN_OK;
}
