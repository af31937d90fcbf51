/* attn_simd_sse2.c - the kernels of attn_simd.h for x86 without AVX2: SSE2, which every 64-bit x86
 * has, and no fused multiply-add, which is computed exactly instead. Compiles to a stub on other
 * machines; needs no compiler flags.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 */
#define ATTN_KERNEL_FILE
#include "attn_simd.h"

/* 32-bit code may be for a CPU without SSE2: there the functions ask for it, and the getters ask
 * the CPU. */
#if (defined __GNUC__ || defined __clang__) && (defined __SSE2__ || defined __i386__)
#if defined __clang__
#if defined __FAST_MATH__
#error "attn_simd_sse2.c: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#pragma clang fp contract(off) reassociate(off)
#else
#pragma GCC push_options
#pragma GCC optimize("no-fast-math", "fp-contract=off") /* gcc contracts intrinsics, too */
#endif
#include <cpuid.h>
#include <emmintrin.h> /* before the target: gcc else makes all of it need that */
#if defined __clang__
#pragma clang attribute push(__attribute__((target("sse2"))), apply_to = function)
#else
#pragma GCC target("sse2")
#endif

#define REGISTERS 16
#define VL 4
#define vf __m128
#define vm __m128
#define v_load(p) _mm_loadu_ps(p)
#define v_store(p, x) _mm_storeu_ps(p, x)
#define v_set1(f) _mm_set1_ps(f)
#define v_zero() _mm_setzero_ps()
#define v_fma(a, b, c) sse2_fma(SPARSE, a, b, c)
#define v_add(a, b) _mm_add_ps(a, b)
#define v_sub(a, b) _mm_sub_ps(a, b)
#define v_mul(a, b) _mm_mul_ps(a, b)
#define v_div(a, b) _mm_div_ps(a, b)
#define v_max(a, b) _mm_max_ps(a, b)
#define v_gt(a, b) _mm_cmplt_ps(b, a)
#define v_lt(a, b) _mm_cmplt_ps(a, b)
#define v_eq(a, b) _mm_cmpeq_ps(a, b)
#define v_nan(x) _mm_cmpunord_ps(x, x)
#define v_select(m, a, b) _mm_or_ps(_mm_and_ps(m, a), _mm_andnot_ps(m, b))
#define vm_and(m, n) _mm_and_ps(m, n)
#define vm_any(m) (_mm_movemask_ps(m) != 0)
#define vm_all(m) (_mm_movemask_ps(m) == 0xf)
#define v_int(x) _mm_castps_si128(x)
#define v_float(x) _mm_castsi128_ps(x)
#define v_pow2(y, t) v_float(_mm_add_epi32(v_int(y), _mm_slli_epi32(v_int(t), 23)))
#define v_minus(b) _mm_cmpeq_epi32(v_int(b), _mm_set1_epi32(INT32_MIN)) /* -0 */
#define v_dead(b, x, y) v_select(v_float(v_minus(b)), x, y)
#define v_copysign(x, s) _mm_or_ps(x, _mm_and_ps(s, _mm_set1_ps(-0.0f)))
#define v_larger(a, x) sse2_larger(v_int(a), v_int(x))
#define v_ints(p) _mm_cvtepi32_ps(_mm_loadu_si128((const void *)(p)))
#define v_bit(p, i) /* its sign in all bits */                                                     \
    v_float(_mm_srai_epi32(                                                                        \
        _mm_sll_epi32(_mm_loadu_si128((const void *)(p)), _mm_cvtsi32_si128(31 - (i))), 31))
#define v_difference(p, i) _mm_sub_epi32(_mm_loadu_si128((const void *)(p)), _mm_set1_epi32(i))
#define v_distance(p, i)                                                                           \
    v_float(_mm_and_si128(v_int(_mm_cvtepi32_ps(v_difference(p, i))), _mm_set1_epi32(0x7fffffff)))
#define v_same(p, i) v_float(_mm_cmpeq_epi32(_mm_loadu_si128((const void *)(p)), _mm_set1_epi32(i)))
#define vm_bits(m) ((uint32_t)_mm_movemask_ps(m))
#define b_nonzero(p) nonzero_sse2(p)
#define v_half(p) _mm_unpacklo_epi16(_mm_loadl_epi64((const void *)(p)), _mm_setzero_si128())
#define v_i8(p) i8_sse2(p)
#define vi __m128i
#define i_load(p) _mm_loadu_si128((const void *)(p))
#define i_set1(p) _mm_set1_epi32(load_word(p))
#define i_store(p, x) _mm_storeu_si128((void *)(p), x)
#define i_zero() _mm_setzero_si128()
#define i_floats(x) _mm_cvtepi32_ps(x)
#define I_PARTS 2
#define i_sum(sum, k, q) _mm_add_epi32(sum, _mm_madd_epi16(k, q))
#define i_part(x, e) _mm_srai_epi16((e) ? (x) : _mm_slli_epi16(x, 8), 8)
#undef HAS_DOTS
#define HAS_DOTS 0
#define I_TURNED 0u
#define i_turn(x) (x)
#define i_dot(sum, k, q) (sum)
#define v_scale(p) sse2_from_f16(_mm_set1_epi32((uint16_t)load_half(p)))
#define v_f16(p) sse2_from_f16(v_half(p))
#define v_bf16(p) v_float(_mm_slli_epi32(v_half(p), 16))
#define v_e4m3(p) e4m3_sse2(upper_halves_sse2(load_word(p)))
#define v_e5m2(p) sse2_from_f16(upper_halves_sse2(load_word(p)))
#define v_to_f16(p, x) sse2_to_f16(p, x)
#define v_to_bf16(p, x) sse2_to_bf16(p, x)
#define v_transpose(x) transpose_sse2(x)
#define PIN(x) __asm__("" : "+x"(x))
#define vw words_sse2
#define w_load(p) words_load_sse2(_mm_loadu_si128((const void *)(p)))
#define w_set1(u) words_set1_sse2(u)
#define w_low(x, u) words_low_sse2(x, u)
#define w_high(x, u) words_high_sse2(x, u)
#define w_xor(a, b, c) words_xor_sse2(a, b, c)
#define w_below(x, u) words_below_sse2(x, u)

#define XOR_3(a, b, c) _mm_xor_si128(_mm_xor_si128(a, b), c)
#define UPPER(x) _mm_shuffle_epi32(x, 0xf5)
WORDS_IN_HALVES(sse2, __m128i, _mm_set1_epi32, _mm_mul_epu32, UPPER, XOR_3)

/* With the sign bit turned, words compare as integers do. */
INLINE __m128 words_below_sse2(words_sse2 x, uint32_t u)
{
    const __m128i sign = _mm_set1_epi32(INT32_MIN), lower = _mm_set_epi32(0, -1, 0, -1);
    const __m128i odd = _mm_slli_epi64(x.odd, 32);
    const __m128i all = _mm_or_si128(_mm_and_si128(x.even, lower), odd);
    const __m128i limit = _mm_xor_si128(_mm_set1_epi32((int)u), sign);
    return v_float(_mm_cmplt_epi32(_mm_xor_si128(all, sign), limit));
}

INLINE __m128 i8_sse2(const int8_t *p)
{
    int32_t four;
    __m128i x;
    memcpy(&four, p, sizeof four);
    x = _mm_cvtsi32_si128(four);
    x = _mm_unpacklo_epi8(x, x);
    x = _mm_unpacklo_epi16(x, x);
    return _mm_cvtepi32_ps(_mm_srai_epi32(x, 24));
}

INLINE uint32_t zeros_sse2(const uint8_t *p)
{
    const __m128i x = _mm_loadu_si128((const void *)p);
    return (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_setzero_si128()));
}

INLINE uint32_t nonzero_sse2(const uint8_t *p)
{
    return ~(zeros_sse2(p) | zeros_sse2(p + 16) << 16);
}

INLINE void transpose_sse2(__m128 *x)
{
    _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]);
}

#define INTS(i) _mm_set1_epi32((int)(i))

INLINE __m128i sse2_choose(__m128i mask, __m128i a, __m128i b)
{
    return _mm_or_si128(_mm_and_si128(mask, a), _mm_andnot_si128(mask, b));
}

INLINE __m128 sse2_larger(__m128i a, __m128i x)
{
    const __m128i magnitude = _mm_and_si128(x, INTS(0x7fffffff));
    return v_float(sse2_choose(_mm_cmpgt_epi32(a, magnitude), a, magnitude));
}

/* ---- storage types: as f16_to_f32 and f16_from_f32 of attn.c, four at a time */

INLINE __m128 sse2_from_f16(__m128i h)
{
    const __m128i sign = _mm_slli_epi32(_mm_and_si128(h, INTS(0x8000)), 16);
    const __m128i rest = _mm_and_si128(h, INTS(0x7fff)), bias = INTS(112u << 23);
    const __m128i strange = _mm_cmpgt_epi32(rest, INTS(0x7bff)); /* infinity, NaN */
    const __m128i normal = _mm_add_epi32(_mm_slli_epi32(rest, 13), bias);
    const __m128 small = _mm_mul_ps(_mm_cvtepi32_ps(rest), _mm_set1_ps(0x1p-24f));
    __m128i u = _mm_add_epi32(normal, _mm_and_si128(strange, bias));
    u = sse2_choose(_mm_cmpgt_epi32(INTS(0x400), rest), v_int(small), u);
    return v_float(_mm_or_si128(u, sign));
}

/* Four 8-bit floats as the upper halves of 16 bits, in words. */
INLINE __m128i upper_halves_sse2(int32_t four)
{
    const __m128i halves = _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_cvtsi32_si128(four));
    return _mm_unpacklo_epi16(halves, _mm_setzero_si128());
}

INLINE __m128 e4m3_sse2(__m128i upper)
{
    const __m128i sign = _mm_and_si128(upper, INTS(0x8000));
    const __m128i rest = _mm_and_si128(upper, INTS(0x7f00)), half = _mm_srli_epi32(rest, 1);
    const __m128i nan = _mm_and_si128(_mm_cmpeq_epi32(rest, INTS(0x7f00)), INTS(0x7e00));
    const __m128i bits = _mm_or_si128(_mm_or_si128(sign, half), nan);
    return _mm_mul_ps(sse2_from_f16(bits), _mm_set1_ps(256.0f));
}

/* The low halves of h, without -0. */
INLINE void sse2_store_half(uint16_t *p, __m128i h)
{
    const __m128i wide = _mm_srai_epi32(_mm_slli_epi32(h, 16), 16);
    const __m128i half = _mm_packs_epi32(wide, wide);
    const __m128i minus = _mm_cmpeq_epi16(half, _mm_set1_epi16((short)0x8000));
    _mm_storel_epi64((void *)p, _mm_andnot_si128(minus, half));
}

/* u / 2^shift to nearest even. */
INLINE __m128i sse2_round(__m128i u, int shift)
{
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(u, shift), INTS(1));
    const __m128i up = _mm_add_epi32(u, INTS((1 << (shift - 1)) - 1));
    return _mm_srli_epi32(_mm_add_epi32(up, odd), shift);
}

INLINE void sse2_to_f16(uint16_t *p, __m128 x)
{
    const __m128i a = _mm_and_si128(v_int(x), INTS(0x7fffffff));
    const __m128i sign = _mm_and_si128(_mm_srli_epi32(v_int(x), 16), INTS(0x8000));
    const __m128i is_small = _mm_cmpgt_epi32(INTS(0x38800000), a); /* below 2^-14 */
    const __m128 half = _mm_set1_ps(0.5f); /* the last bit of a sum with it is 2^-24 */
    const __m128 sum = _mm_add_ps(v_float(_mm_and_si128(is_small, a)), half);
    __m128i h = sse2_round(_mm_sub_epi32(a, INTS(112u << 23)), 13);
    h = sse2_choose(is_small, _mm_sub_epi32(v_int(sum), v_int(half)), h);
    h = sse2_choose(_mm_cmpgt_epi32(a, INTS(0x477fefff)), INTS(0x7c00), h);
    h = sse2_choose(_mm_cmpgt_epi32(a, INTS(0x7f800000)), INTS(0x7e00), _mm_or_si128(h, sign));
    sse2_store_half(p, h);
}

INLINE void sse2_to_bf16(uint16_t *p, __m128 x)
{
    sse2_store_half(p, sse2_round(v_int(x), 16));
}

/* ---- a * b + c rounded once
 *
 * The product p of two binary32 numbers is exact in binary64. s = fl64(p + c), and fl32(s) is right
 * unless s lies midway between two neighbours in binary32 and is itself inexact: rounding is
 * monotone, and midways are binary64 numbers. The last 29 bits of a midway are 1 and 28 zeros, from
 * 2^-126 up, and zeros below. So the last 28 bits are zero in all cases to correct, but also in
 * each sum that is a binary32 number, e.g. in the zeros of unused lanes. A result of 0 is always
 * right: an inexact s midway between 0 and 2^-149 would need a p of 54 bits or more, for c is a
 * multiple of 2^-149, and p has 48. */

#define RARE(x) __builtin_expect(x, 0)
#define LOW(x) _mm_cvtps_pd(x)
#ifdef __clang__ /* shuffles that the compiler sees through: both halves of v_set1 are one */
#define HIGH(x) _mm_cvtps_pd(__builtin_shufflevector(x, x, 2, 3, 2, 3))
#else
#define HIGH(x) _mm_cvtps_pd((__m128)__builtin_shuffle(x, (__v4si){ 2, 3, 2, 3 }))
#endif

/* The last words of four binary64 numbers. */
INLINE __m128i sse2_words(__m128d s0, __m128d s1)
{
    const __m128 x = _mm_castpd_ps(s0), y = _mm_castpd_ps(s1);
    return _mm_castps_si128(_mm_shuffle_ps(x, y, _MM_SHUFFLE(2, 0, 2, 0)));
}

/* The lanes whose sum is midway with a normal result, or whose result is subnormal, not 0, or
 * 2^-126, to which the midway below it is rounded. */
INLINE __m128i sse2_suspects(__m128i words, __m128 result)
{
    const __m128i sign = _mm_set1_epi32((int)0x80000000u);
    const __m128i midway = _mm_cmpeq_epi32(_mm_slli_epi32(words, 3), sign);
    /* without its sign bit and less 1, modulo 2^32, 0 comes last and the subnormals first; with the
     * first bit flipped also as signed numbers */
    const __m128i magnitude = _mm_slli_epi32(_mm_castps_si128(result), 1);
    const __m128i rank = _mm_add_epi32(magnitude, _mm_set1_epi32(0x7fffffff));
    const __m128i limit = _mm_set1_epi32((int)0x81000000u); /* 2^-126: 80ffffff */
    return _mm_or_si128(midway, _mm_cmplt_epi32(rank, limit));
}

/* p + c rounded to odd in binary64 where `lanes` is set: if inexact (e, by TwoSum, is not 0), the
 * neighbour with the odd last bit. 53 >= 24 + 2 bits then make the rounding to binary32 right.
 * Elsewhere fl(p + c), with no operation on it, as infinities would raise exceptions. */
INLINE __m128d sse2_odd(__m128d p, __m128d c, __m128i lanes)
{
    const __m128i one = _mm_set_epi32(0, 1, 0, 1);
    const __m128d all = _mm_add_pd(p, c), mask = _mm_castsi128_pd(lanes);
    const __m128d s = _mm_and_pd(all, mask), q = _mm_and_pd(p, mask), d = _mm_and_pd(c, mask);
    const __m128d t = _mm_sub_pd(s, q);
    const __m128d e = _mm_add_pd(_mm_sub_pd(q, _mm_sub_pd(s, t)), _mm_sub_pd(d, t));
    const __m128i bits = _mm_castpd_si128(all);
    const __m128i inexact = _mm_castpd_si128(_mm_cmpneq_pd(e, _mm_setzero_pd()));
    const __m128i even = _mm_sub_epi64(_mm_and_si128(bits, one), one); /* 0 or all ones */
    const __m128i signs = _mm_srai_epi32(_mm_castpd_si128(_mm_xor_pd(e, s)), 31);
    const __m128i away = _mm_or_si128(_mm_shuffle_epi32(signs, _MM_SHUFFLE(3, 3, 1, 1)), one);
    const __m128i step = _mm_and_si128(_mm_and_si128(inexact, even), away); /* 0, 1, -1 */
    return _mm_castsi128_pd(_mm_add_epi64(bits, step));
}

/* Any inputs. */
static __attribute__((noinline)) __m128 sse2_fma_exact(__m128 a, __m128 b, __m128 c)
{
    const __m128d p0 = _mm_mul_pd(LOW(a), LOW(b)), p1 = _mm_mul_pd(HIGH(a), HIGH(b));
    const __m128d c0 = LOW(c), c1 = HIGH(c);
    const __m128d s0 = _mm_add_pd(p0, c0), s1 = _mm_add_pd(p1, c1);
    const __m128 r = _mm_movelh_ps(_mm_cvtpd_ps(s0), _mm_cvtpd_ps(s1));
    const __m128i lanes = sse2_suspects(sse2_words(s0, s1), r);
    const __m128d odd0 = sse2_odd(p0, c0, _mm_unpacklo_epi32(lanes, lanes));
    const __m128d odd1 = sse2_odd(p1, c1, _mm_unpackhi_epi32(lanes, lanes));
    return _mm_movelh_ps(_mm_cvtpd_ps(odd0), _mm_cvtpd_ps(odd1));
}

/* Suspects are found in two steps, as the first costs half of both and sees the other lanes off.
 * sparse: at once, for tiles whose lanes are mostly unused, where the first step finds zeros in
 * every vector (decoding then takes 0.5 to 0.75 of the time, a full tile 1.2). */
INLINE __m128 sse2_fma(int sparse, __m128 a, __m128 b, __m128 c)
{
    const __m128d s0 = _mm_add_pd(_mm_mul_pd(LOW(a), LOW(b)), LOW(c));
    const __m128d s1 = _mm_add_pd(_mm_mul_pd(HIGH(a), HIGH(b)), HIGH(c));
    const __m128i words = sse2_words(s0, s1);
    const __m128i zeros = _mm_cmpeq_epi32(_mm_slli_epi32(words, 4), _mm_setzero_si128());
    const __m128 r = _mm_movelh_ps(_mm_cvtpd_ps(s0), _mm_cvtpd_ps(s1));
    if ((sparse || RARE(_mm_movemask_epi8(zeros))) &&
        RARE(_mm_movemask_epi8(sse2_suspects(words, r))))
        return sse2_fma_exact(a, b, c);
    return r;
}

#define SPARSE 0
#define ISA sse2
#define ISA_NAME "sse2"
#define NV 2 /* with 8 rows few lanes are unused; other shapes gain 1 % at most */
#define MR 8
#include "attn_simd.h"
#undef SPARSE
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#define SPARSE 1
#define ISA sse2_narrow
#define ISA_NAME "sse2_narrow"
#define NV 1
#define MR 8
#include "attn_simd.h"

#if defined __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* Not a question for 64-bit code, nor for code that uses SSE2 anyway. */
static int has_sse2(void)
{
#ifdef __SSE2__
    return 1;
#else
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (d & bit_SSE2) != 0;
#endif
}

ATTN_API const attn_kernels *attn_kernels_sse2(void)
{
    return has_sse2() ? &kernels_sse2 : NULL;
}

ATTN_API const attn_kernels *attn_kernels_sse2_narrow(void)
{
    return has_sse2() ? &kernels_sse2_narrow : NULL;
}
#else
ATTN_API const attn_kernels *attn_kernels_sse2(void)
{
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_sse2_narrow(void)
{
    return NULL;
}
#endif
