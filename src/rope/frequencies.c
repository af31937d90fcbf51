/* src/rope/frequencies.c - the frequencies of the pairs, in units of 2^-64 turns per position, and their cosines and sines.
 * SPDX-License-Identifier: MIT
 *
 * A whole turn more or less per position changes no angle, but YARN and LLAMA3 compare frequencies and
 * take a difference of two: their frequencies are below a turn, see ROPE_LEAST_COMPARED.
 */
#pragma once

#include "../sizes.c"
#include "fixed_point.c"

#define ROPE_LOG2_TWO_PI INT64_C(2847022290) /* It is in units of 2^-30. */

/* A rope_ladder is what attn_rope says about angles, with every default resolved. */
typedef struct rope_ladder {
    rope_fixed step; /* step is log2 of a frequency over that of the next pair. */
    int scaling;
    float factor, attention;
    const float *freq_factors;
    /* With YARN, pairs up to low keep their frequency, and those from high do not. */
    int64_t low, high;
    /* With LLAMA3, frequencies up to slow are scaled, and those from fast are not. */
    uint64_t slow, fast;
    /* With LLAMA3 it is 2^125 / width, where width = (fast - slow) << width_shift. */
    uint64_t per_width;
    int width_shift;
} rope_ladder;

static float or_default(float x, float otherwise)
{
    return x == 0 ? otherwise : x;
}

/* frequency_over gives the frequency of pair i, base^(-2i/dim), over the pair's own factor, over
 * `factor`. */
static uint64_t frequency_over(const rope_ladder *l, int64_t i, float factor)
{
    const rope_fixed x = fixed_times(l->step, i);
    int shift;
    uint64_t y;
    if (x.whole >= 256)
        return 0;
    shift = (int)x.whole + 2;
    y = power_of_two(x.part);
    y = ROPE_HIGH64(y, UINT64_C(0xa2f9836e4e44152a)); /* The constant is 2^66 / (2 pi). */
    if (l->freq_factors)
        y = over_float(y, l->freq_factors[i], &shift);
    if (factor != 1.0f)
        y = over_float(y, factor, &shift);
    return shifted(y, shift);
}

/* fraction_of gives floor(x n / d) for n <= d <= 2^32. */
static uint64_t fraction_of(uint64_t x, int64_t n, int64_t d)
{
    const uint64_t by = (uint64_t)d, times_n = (uint64_t)n;
    return x / by * times_n + x % by * times_n / by;
}

/* on_the_way tells how far pair i has come from low to high, as a part of *whole. As in
 * transformers, a way of no length counts as one of 0.001. */
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
    /* The result is in units of 2^-61. */
    part = ROPE_HIGH64((kept - l->slow) << l->width_shift, l->per_width);
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

/* coarse gives x in units of 2^-30. */
static int64_t coarse(rope_fixed x)
{
    return x.whole * (1 << 30) + (int64_t)(x.part >> 34);
}

/* pair_of_turns gives the pair that makes `turns` turns over that length, dim log2(length / (2 pi
 * turns)) / (2 log2 base), rounded down or up. */
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

/* yarn_attention gives 0.1 ln(factor) + 1. */
static float yarn_attention(float factor)
{
    const uint64_t tenth = UINT64_C(0x46fa6ffcba52fd); /* This is 0.1 ln 2 in units of 2^-58. */
    const rope_fixed x = log2_of_float(factor);
    const uint64_t y = (uint64_t)x.whole * tenth + ROPE_HIGH64(x.part, tenth) + ((uint64_t)1 << 58);
    return (float)(int64_t)y * 0x1p-58f;
}

static void set_yarn(rope_ladder *l, const attn_rope *r, int64_t dim)
{
    const float fast = or_default(r->beta_fast, 32.0f), slow = or_default(r->beta_slow, 1.0f);
    /* Both numbers can be 2^51. The bounds dim and -1 change no part of a way but keep it below
     * 2^32. */
    l->low = min64(max64(pair_of_turns(r, dim, fast, 0), 0), dim);
    l->high = max64(min64(pair_of_turns(r, dim, slow, 1), dim - 1), -1);
    if (r->attention_factor == 0)
        l->attention = yarn_attention(l->factor);
}

/* turns_over gives turns / length, which is below a turn. */
static uint64_t turns_over(float turns, int64_t length)
{
    int scale; /* As turns are from 1e-6 to 1e6, it is from -43 to -4. */
    const uint64_t v = mantissa(turns, &scale);
    const rope_fixed x = { (int64_t)(v >> -scale), v << (64 + scale) }, y = fixed_over(x, length);
    return y.whole ? UINT64_MAX : y.part;
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
    for (digit = 0; width && digit < 64; digit++) { /* This is long division. */
        const int one = rest >= width;
        l->per_width = l->per_width << 1 | (uint64_t)one;
        rest = (rest - (one ? width : 0)) << 1;
    }
}

static rope_ladder ladder_of(const attn_rope *r, int64_t dim)
{
    rope_ladder l = {
        .step = fixed_over(fixed_times(log2_of_float(or_default(r->base, 10000.0f)), 2), dim),
        .scaling = r->scaling,
        .factor = or_default(r->factor, 1.0f),
        .attention = or_default(r->attention_factor, 1.0f),
        .freq_factors = r->freq_factors,
    };
    if (l.scaling == ATTN_ROPE_NTK && dim > 2)
        l.step = fixed_plus(l.step, fixed_over(fixed_times(log2_of_float(l.factor), 2), dim - 2));
    if (l.scaling == ATTN_ROPE_YARN)
        set_yarn(&l, r, dim);
    if (l.scaling == ATTN_ROPE_LLAMA3)
        set_llama3(&l, r);
    return l;
}

/* ---- Cosine and sine */

/* signed_float gives x, up to 2^63 in units of 2^-63, as a float. A signed number has two bits
 * less; they stay in the last bit, so that x is rounded once. */
static float signed_float(uint64_t x, int negative)
{
    const int64_t v = (int64_t)(x >> 2 | ((x & 3) != 0));
    return (float)(negative ? -v : v) * 0x1p-61f;
}

/* cos_sin takes w, the distance to the nearest quarter turn in quarter turns, which is at most 1/2,
 * and u = w^2. Then sin = w S(u) and cos = 1 - u C(u), with S and C by Remez in u on [0, 1/4]. The
 * worst error of S is 2^-57, and that of u C is 2^-52. */
static void cos_sin(uint64_t angle, float *c, float *s)
{
    /* Both arrays are in units of 2^-63, with alternating signs. */
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
