/* attn_simd_avx2.c - the kernels of attn_simd.h for AVX2, FMA and F16C. Compiles to a stub on
 * other machines; needs no compiler flags.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 */
#define ATTN_KERNEL_FILE
#include "attn_simd.h"

#if (defined __GNUC__ || defined __clang__) && defined __SSE2__ /* any x86 */
#if defined __clang__
#if defined __FAST_MATH__
#error "attn_simd_avx2.c: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#pragma clang fp contract(off) reassociate(off)
#else
#pragma GCC push_options
#pragma GCC optimize("no-fast-math", "fp-contract=off") /* gcc contracts intrinsics, too */
#endif
#include <immintrin.h> /* before the target: gcc else makes all of it need that */
#if defined __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#define REGISTERS 16
#define VL 8
#define vf __m256
#define vm __m256
#define v_load(p) _mm256_loadu_ps(p)
#define v_store(p, x) _mm256_storeu_ps(p, x)
#define v_set1(f) _mm256_set1_ps(f)
#define v_zero() _mm256_setzero_ps()
#define v_fma(a, b, c) _mm256_fmadd_ps(a, b, c)
#define v_add(a, b) _mm256_add_ps(a, b)
#define v_sub(a, b) _mm256_sub_ps(a, b)
#define v_mul(a, b) _mm256_mul_ps(a, b)
#define v_div(a, b) _mm256_div_ps(a, b)
#define v_max(a, b) _mm256_max_ps(a, b)
#define v_gt(a, b) _mm256_cmp_ps(a, b, _CMP_GT_OQ)
#define v_lt(a, b) _mm256_cmp_ps(a, b, _CMP_LT_OQ)
#define v_eq(a, b) _mm256_cmp_ps(a, b, _CMP_EQ_OQ)
#define v_nan(x) _mm256_cmp_ps(x, x, _CMP_UNORD_Q)
#define v_select(m, a, b) _mm256_blendv_ps(b, a, m)
#define vm_and(m, n) _mm256_and_ps(m, n)
#define vm_any(m) (_mm256_movemask_ps(m) != 0)
#define vm_all(m) (_mm256_movemask_ps(m) == 0xff)
#define v_int(x) _mm256_castps_si256(x)
#define v_float(x) _mm256_castsi256_ps(x)
#define v_pow2(y, t) v_float(_mm256_add_epi32(v_int(y), _mm256_slli_epi32(v_int(t), 23)))
#define v_minus(b) _mm256_cmpeq_epi32(v_int(b), _mm256_set1_epi32(INT32_MIN)) /* -0 */
#define v_dead(b, x, y) _mm256_blendv_ps(y, x, v_float(v_minus(b)))
#define v_copysign(x, s) _mm256_or_ps(x, _mm256_and_ps(s, _mm256_set1_ps(-0.0f)))
#define v_abs(x) _mm256_and_si256(v_int(x), _mm256_set1_epi32(0x7fffffff))
#define v_larger(a, x) v_float(_mm256_max_epi32(v_int(a), v_abs(x)))
#define v_ints(p) _mm256_cvtepi32_ps(_mm256_loadu_si256((const void *)(p)))
#define v_bit(p, i) /* the sign selects */                                                         \
    v_float(_mm256_sll_epi32(_mm256_loadu_si256((const void *)(p)), _mm_cvtsi32_si128(31 - (i))))
#define v_distance(p, i)                                                                           \
    _mm256_cvtepi32_ps(_mm256_abs_epi32(                                                           \
        _mm256_sub_epi32(_mm256_loadu_si256((const void *)(p)), _mm256_set1_epi32(i))))
#define v_same(p, i)                                                                               \
    v_float(_mm256_cmpeq_epi32(_mm256_loadu_si256((const void *)(p)), _mm256_set1_epi32(i)))
#define vm_bits(m) ((uint32_t)_mm256_movemask_ps(m))
#define b_nonzero(p) nonzero_avx2(p)
#define v_half(p) _mm_loadu_si128((const void *)(p))
#define v_i8(p) _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p))))
#define vi __m256i
#define i_load(p) _mm256_loadu_si256((const void *)(p))
#define i_set1(p) v_int(_mm256_broadcast_ss(p))
#define i_store(p, x) _mm256_storeu_si256((void *)(p), x)
#define i_zero() _mm256_setzero_si256()
#define i_floats(x) _mm256_cvtepi32_ps(x)
#define i_bytes(p) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p)))
#define v_four(x, y) _mm256_mul_ps(lower_avx2(x, 15, 8), y)
#define v_five(x, y) _mm256_mul_ps(lower_avx2(x, 31, 16), y)
#define I_PARTS 2
#define i_sum(sum, k, q) _mm256_add_epi32(sum, _mm256_madd_epi16(k, q))
#define i_part(x, e) _mm256_srai_epi16((e) ? (x) : _mm256_slli_epi16(x, 8), 8)
#define I_TURNED 0x80808080u
#define i_turn(x) _mm256_xor_si256(x, _mm256_set1_epi32((int)I_TURNED))
/* Their assemblers know the encoding of AVX-VNNI. */
#if defined __clang__ ? __clang_major__ >= 13 : __GNUC__ >= 12
#define i_dot(sum, k, q) dot_avx2(sum, k, q)
#ifndef HAS_DOTS
#define HAS_DOTS (attn_cpu_features() & ATTN_CPU_DOTS_256)
#endif
#else
#define i_dot(sum, k, q) (sum) /* never called */
#undef HAS_DOTS
#define HAS_DOTS 0
#endif
#define v_scale(p) _mm256_cvtph_ps(_mm_set1_epi16(load_half(p)))
#define v_f16(p) _mm256_cvtph_ps(v_half(p))
#define v_bf16(p) v_float(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v_half(p)), 16))
#define v_e4m3(p) e4m3_avx2(_mm_loadl_epi64((const void *)(p)))
#define v_e5m2(p) e5m2_avx2(_mm_loadl_epi64((const void *)(p)))
#define v_to_f16(p, x) to_f16_avx2(p, x)
#define v_to_bf16(p, x) to_bf16_avx2(p, x)
#define v_transpose(x) transpose_avx2(x)
#define v_quarters(p, at) quarters_avx2(p, at)
#define v_quarters_f16(p, at) _mm256_cvtph_ps(two_pieces_avx2((p)[0] + (at), (p)[1] + (at)))
#define v_quarters_e4m3(p, at) e4m3_avx2(two_words_avx2((p)[0] + (at), (p)[1] + (at)))
#define v_quarters_e5m2(p, at) e5m2_avx2(two_words_avx2((p)[0] + (at), (p)[1] + (at)))
#define v_lower_bf16(x) v_float(_mm256_slli_epi32(v_int(x), 16))
#define v_upper_bf16(x) v_float(_mm256_and_si256(v_int(x), _mm256_set1_epi32((int)0xffff0000u)))
#define v_put_quarters(p, at, x) put_quarters_avx2(p, at, x)
#define v_put_first(p, x) _mm_storeu_ps(p, _mm256_castps256_ps128(x))
#define v_add_quarters(a, x) add_quarters_avx2(a, x)
#define v_quarter(x, i)                                                                            \
    ((i) == 0 ? _mm256_permute2f128_ps(x, x, 0) : _mm256_permute2f128_ps(x, x, 0x11))
#define v_squares(x) squares_avx2(x)
#define PIN(x) __asm__("" : "+x"(x))
#define vw words_avx2
#define w_load(p) words_load_avx2(_mm256_loadu_si256((const void *)(p)))
#define w_set1(u) words_set1_avx2(u)
#define w_low(x, u) words_low_avx2(x, u)
#define w_high(x, u) words_high_avx2(x, u)
#define w_xor(a, b, c) words_xor_avx2(a, b, c)
#define w_below(x, u) words_below_avx2(x, u)

/* Whole numbers of the bits of words that mask has, less `raised`. */
INLINE __m256 lower_avx2(__m256i x, int mask, int raised)
{
    const __m256i number = _mm256_and_si256(x, _mm256_set1_epi32(mask));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(number, _mm256_set1_epi32(raised)));
}

#define XOR_3(a, b, c) _mm256_xor_si256(_mm256_xor_si256(a, b), c)
#define UPPER(x) _mm256_shuffle_epi32(x, 0xf5)
WORDS_IN_HALVES(avx2, __m256i, _mm256_set1_epi32, _mm256_mul_epu32, UPPER, XOR_3)

/* With the sign bit turned, words compare as integers do. */
INLINE __m256 words_below_avx2(words_avx2 x, uint32_t u)
{
    const __m256i sign = _mm256_set1_epi32(INT32_MIN), odd = _mm256_slli_epi64(x.odd, 32);
    const __m256i all = _mm256_blend_epi32(x.even, odd, 0xaa);
    const __m256i limit = _mm256_xor_si256(_mm256_set1_epi32((int)u), sign);
    return v_float(_mm256_cmpgt_epi32(limit, _mm256_xor_si256(all, sign)));
}

#if defined __clang__ ? __clang_major__ >= 13 : __GNUC__ >= 12
INLINE __m256i dot_avx2(__m256i sum, __m256i k, __m256i q)
{
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(k), "x"(q));
    return sum;
}
#endif

INLINE uint32_t nonzero_avx2(const uint8_t *p)
{
    const __m256i zeros =
        _mm256_cmpeq_epi8(_mm256_loadu_si256((const void *)p), _mm256_setzero_si256());
    return ~(uint32_t)_mm256_movemask_epi8(zeros);
}

/* 16-bit numbers without -0. */
INLINE void store_half_avx2(uint16_t *p, __m128i h)
{
    const __m128i minus = _mm_cmpeq_epi16(h, _mm_set1_epi16((short)0x8000));
    _mm_storeu_si128((void *)p, _mm_andnot_si128(minus, h));
}

INLINE void to_f16_avx2(uint16_t *p, __m256 x)
{
    store_half_avx2(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

INLINE void to_bf16_avx2(uint16_t *p, __m256 x)
{
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff));
    up = _mm256_srli_epi32(up, 16);
    store_half_avx2(p,
                    _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1)));
}

/* 8 x 8: pairs of rows, quadruples of rows, then halves. */
INLINE void transpose_avx2(__m256 *x)
{
    __m256 t[8];
    EACH_STEP(i, 8, 2) {
        t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    EACH_STEP(i, 8, 4) {
        x[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    EACH(i, 4) {
        t[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    EACH(i, 8)
        x[i] = t[i];
}

INLINE __m256 quarters_avx2(const char *const *p, ptrdiff_t at)
{
    const __m128 low = _mm_loadu_ps((const float *)(const void *)(p[0] + at));
    const __m128 high = _mm_loadu_ps((const float *)(const void *)(p[1] + at));
    return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
}

/* 4 numbers of 16 bits from each of two places. */
INLINE __m128i two_pieces_avx2(const char *a, const char *b)
{
    const __m128 low = _mm_castsi128_ps(_mm_loadl_epi64((const void *)a));
    return _mm_castps_si128(_mm_loadh_pi(low, (const void *)b));
}

/* 4 bytes from each of two places. */
INLINE __m128i two_words_avx2(const char *a, const char *b)
{
    return _mm_insert_epi32(_mm_cvtsi32_si128(load_word(a)), load_word(b), 1);
}

INLINE __m256 e5m2_avx2(__m128i bytes)
{
    return _mm256_cvtph_ps(_mm_unpacklo_epi8(_mm_setzero_si128(), bytes));
}

INLINE __m256 e4m3_avx2(__m128i bytes)
{
    const __m128i upper = _mm_unpacklo_epi8(_mm_setzero_si128(), bytes);
    const __m128i half = _mm_and_si128(_mm_srai_epi16(upper, 1), _mm_set1_epi16((short)0xbf80));
    const __m128i all = _mm_cmpeq_epi16(_mm_add_epi16(upper, upper), _mm_set1_epi16((short)0xfe00));
    const __m128i nan = _mm_and_si128(all, _mm_set1_epi16(0x7e00));
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, nan)), _mm256_set1_ps(256.0f));
}

INLINE void put_quarters_avx2(float *const *p, ptrdiff_t at, __m256 x)
{
    _mm_storeu_ps(p[0] + at, _mm256_castps256_ps128(x));
    _mm_storeu_ps(p[1] + at, _mm256_extractf128_ps(x, 1));
}

INLINE __m256 add_quarters_avx2(__m256 a, __m256 x)
{
    const __m128 sum = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_castps256_ps128(x));
    return _mm256_castps128_ps256(_mm_add_ps(sum, _mm256_extractf128_ps(x, 1)));
}

INLINE void squares_avx2(__m256 *x)
{
    const __m256 a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpackhi_ps(x[0], x[1]);
    const __m256 c = _mm256_unpacklo_ps(x[2], x[3]), d = _mm256_unpackhi_ps(x[2], x[3]);
    x[0] = _mm256_shuffle_ps(a, c, 0x44);
    x[1] = _mm256_shuffle_ps(a, c, 0xee);
    x[2] = _mm256_shuffle_ps(b, d, 0x44);
    x[3] = _mm256_shuffle_ps(b, d, 0xee);
}

#define ISA avx2
#define ISA_NAME "avx2"
#define NV 3
#define MR 4 /* 12 accumulators + 3 loaded + 1 factor: all 16 registers */
#include "attn_simd.h"
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#define ISA avx2_narrow
#define ISA_NAME "avx2_narrow"
#define NV 1
#define MR 8
#define FEW 4
#include "attn_simd.h"

#if defined __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

ATTN_API const attn_kernels *attn_kernels_avx2(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX2 ? &kernels_avx2 : NULL;
}

ATTN_API const attn_kernels *attn_kernels_avx2_narrow(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX2 ? &kernels_avx2_narrow : NULL;
}
#else
ATTN_API const attn_kernels *attn_kernels_avx2(void)
{
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_avx2_narrow(void)
{
    return NULL;
}
#endif
