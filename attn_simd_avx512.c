/* attn_simd_avx512.c - the kernels of attn_simd.h for AVX-512 (F, DQ, BW). Compiles to a stub on
 * other machines; needs no compiler flags.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 */
#define ATTN_KERNEL_FILE
#include "attn_simd.h"

#if (defined __GNUC__ || defined __clang__) && defined __SSE2__ /* any x86 */
#if defined __clang__
#if defined __FAST_MATH__
#error "attn_simd_avx512.c: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#pragma clang fp contract(off) reassociate(off)
#else
#pragma GCC push_options
#pragma GCC optimize("no-fast-math", "fp-contract=off") /* gcc contracts intrinsics, too */
#endif
#include <immintrin.h> /* before the target: gcc else makes all of it need that */
#if defined __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw"))),                 \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw")
#endif

#define REGISTERS 32
#define VL 16
#define vf __m512
#define vm __mmask16
#define v_load(p) _mm512_loadu_ps(p)
#define v_store(p, x) _mm512_storeu_ps(p, x)
#define v_set1(f) _mm512_set1_ps(f)
#define v_zero() _mm512_setzero_ps()
#define v_fma(a, b, c) _mm512_fmadd_ps(a, b, c)
#define v_add(a, b) _mm512_add_ps(a, b)
#define v_sub(a, b) _mm512_sub_ps(a, b)
#define v_mul(a, b) _mm512_mul_ps(a, b)
#define v_div(a, b) _mm512_div_ps(a, b)
#define v_max(a, b) _mm512_max_ps(a, b)
#define v_gt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ)
#define v_lt(a, b) _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ)
#define v_eq(a, b) _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
#define v_nan(x) _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q)
#define v_select(m, a, b) _mm512_mask_blend_ps(m, b, a)
#define vm_and(m, n) ((__mmask16)((m) & (n)))
#define vm_any(m) ((m) != 0)
#define vm_all(m) ((m) == 0xffff)
#define v_int(x) _mm512_castps_si512(x)
#define v_float(x) _mm512_castsi512_ps(x)
#define v_pow2(y, t) v_float(_mm512_add_epi32(v_int(y), _mm512_slli_epi32(v_int(t), 23)))
#define v_minus(b) _mm512_cmpeq_epi32_mask(v_int(b), _mm512_set1_epi32(INT32_MIN)) /* -0 */
#define v_dead(b, x, y) _mm512_mask_blend_ps(v_minus(b), y, x)
#define v_copysign(x, s)                                                                           \
    v_float(_mm512_or_si512(v_int(x),                                                              \
                            _mm512_and_si512(v_int(s), _mm512_set1_epi32((int)0x80000000u))))
#define v_abs(x) _mm512_and_si512(v_int(x), _mm512_set1_epi32(0x7fffffff))
#define v_larger(a, x) v_float(_mm512_max_epi32(v_int(a), v_abs(x)))
#define v_ints(p) _mm512_cvtepi32_ps(_mm512_loadu_si512(p))
#define v_bit(p, i)                                                                                \
    _mm512_test_epi32_mask(_mm512_loadu_si512(p), _mm512_set1_epi32((int)(1u << (i))))
#define v_distance(p, i)                                                                           \
    _mm512_cvtepi32_ps(                                                                            \
        _mm512_abs_epi32(_mm512_sub_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(i))))
#define v_same(p, i) _mm512_cmpeq_epi32_mask(_mm512_loadu_si512(p), _mm512_set1_epi32(i))
#define vm_bits(m) ((uint32_t)(m))
#define b_nonzero(p) nonzero_avx512(p)
#define v_half(p) _mm256_loadu_si256((const void *)(p))
#define v_i8(p) _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(p))))
#ifndef HAS_DOTS
#define HAS_DOTS (attn_cpu_features() & ATTN_CPU_DOTS_512)
#endif
#define vi __m512i
#define i_load(p) _mm512_loadu_si512((const void *)(p))
#define i_set1(p) _mm512_set1_epi32(load_word(p))
#define i_store(p, x) _mm512_storeu_si512((void *)(p), x)
#define i_zero() _mm512_setzero_si512()
#define i_floats(x) _mm512_cvtepi32_ps(x)
#define I_TURNED 0x80808080u
#define i_turn(x) _mm512_xor_si512(x, _mm512_set1_epi32((int)I_TURNED))
#define i_bytes(p) _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(p)))
#define HAS_TABLES 1
#define v_four(x, y) four_avx512(x, y)
#define v_five(x, y) five_avx512(x, y)
#define I_PARTS 2
#define i_sum(sum, k, q) _mm512_add_epi32(sum, _mm512_madd_epi16(k, q))
#define i_part(x, e) _mm512_srai_epi16((e) ? (x) : _mm512_slli_epi16(x, 8), 8)
#define i_dot(sum, k, q) dot_avx512(sum, k, q)
#define v_scale(p) _mm512_cvtph_ps(_mm256_set1_epi16(load_half(p)))
#define v_f16(p) _mm512_cvtph_ps(v_half(p))
#define v_bf16(p) v_float(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v_half(p)), 16))
#define v_e4m3(p) e4m3_avx512(_mm_loadu_si128((const void *)(p)))
#define v_e5m2(p) e5m2_avx512(_mm_loadu_si128((const void *)(p)))
#define v_to_f16(p, x) to_f16_avx512(p, x)
#define v_to_bf16(p, x) to_bf16_avx512(p, x)
#define v_transpose(x) transpose_avx512(x)
#define v_quarters(p, at) quarters_avx512(p, at)
#define v_quarters_f16(p, at) _mm512_cvtph_ps(quarters_16_avx512(p, at))
#define v_quarters_e4m3(p, at) e4m3_avx512(quarters_8_avx512(p, at))
#define v_quarters_e5m2(p, at) e5m2_avx512(quarters_8_avx512(p, at))
#define v_lower_bf16(x) v_float(_mm512_slli_epi32(v_int(x), 16))
#define v_upper_bf16(x) v_float(_mm512_and_si512(v_int(x), _mm512_set1_epi32((int)0xffff0000u)))
#define v_put_quarters(p, at, x) put_quarters_avx512(p, at, x)
#define v_put_first(p, x) _mm_storeu_ps(p, _mm512_castps512_ps128(x))
#define v_add_quarters(a, x) add_quarters_avx512(a, x)
#define v_quarter(x, i) quarter_avx512(x, i)
#define v_squares(x) squares_avx512(x)
#define PIN(x) __asm__("" : "+v"(x))
#define vw words_avx512
#define w_load(p) words_load_avx512(_mm512_loadu_si512(p))
#define w_set1(u) words_set1_avx512(u)
#define w_low(x, u) words_low_avx512(x, u)
#define w_high(x, u) words_high_avx512(x, u)
#define w_xor(a, b, c) words_xor_avx512(a, b, c)
#define w_below(x, u) words_below_avx512(x, u)

#define XOR_3(a, b, c) _mm512_ternarylogic_epi32(a, b, c, 0x96)
#define UPPER(x) _mm512_shuffle_epi32(x, (_MM_PERM_ENUM)0xf5)
WORDS_IN_HALVES(avx512, __m512i, _mm512_set1_epi32, _mm512_mul_epu32, UPPER, XOR_3)

INLINE __mmask16 words_below_avx512(words_avx512 x, uint32_t u)
{
    const __m512i odd = _mm512_slli_epi64(x.odd, 32);
    const __m512i all = _mm512_mask_blend_epi32(0xaaaa, x.even, odd);
    return _mm512_cmplt_epu32_mask(all, _mm512_set1_epi32((int)u));
}

INLINE uint32_t nonzero_avx512(const uint8_t *p)
{
    const __m256i zeros =
        _mm256_cmpeq_epi8(_mm256_loadu_si256((const void *)p), _mm256_setzero_si256());
    return ~(uint32_t)_mm256_movemask_epi8(zeros);
}

/* 16-bit numbers without -0. */
INLINE void store_half_avx512(uint16_t *p, __m256i h)
{
    const __m256i minus = _mm256_cmpeq_epi16(h, _mm256_set1_epi16((short)0x8000));
    _mm256_storeu_si256((void *)p, _mm256_andnot_si256(minus, h));
}

INLINE void to_f16_avx512(uint16_t *p, __m512 x)
{
    store_half_avx512(p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE void to_bf16_avx512(uint16_t *p, __m512 x)
{
    const __m512i u = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff));
    store_half_avx512(p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}

#define W(f, a, b) _mm512_castpd_ps(f(_mm512_castps_pd(a), _mm512_castps_pd(b)))

/* 16 x 16: pairs of rows, quadruples of rows, then the 128-bit quarters in two shuffles. */
INLINE void transpose_avx512(__m512 *x)
{
    __m512 t[16], u[4];
    EACH_STEP(i, 16, 2) {
        t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    EACH_STEP(i, 16, 4) {
        x[i] = W(_mm512_unpacklo_pd, t[i], t[i + 2]);
        x[i + 1] = W(_mm512_unpackhi_pd, t[i], t[i + 2]);
        x[i + 2] = W(_mm512_unpacklo_pd, t[i + 1], t[i + 3]);
        x[i + 3] = W(_mm512_unpackhi_pd, t[i + 1], t[i + 3]);
    }
    EACH(i, 4) {
        u[0] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0x88);
        u[1] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0xdd);
        u[2] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0x88);
        u[3] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0xdd);
        t[i] = _mm512_shuffle_f32x4(u[0], u[2], 0x88);
        t[8 + i] = _mm512_shuffle_f32x4(u[0], u[2], 0xdd);
        t[4 + i] = _mm512_shuffle_f32x4(u[1], u[3], 0x88);
        t[12 + i] = _mm512_shuffle_f32x4(u[1], u[3], 0xdd);
    }
    EACH(i, 16)
        x[i] = t[i];
}

/* From tables, which units share: one shuffle each. */
INLINE __m512 four_avx512(__m512i x, __m512 y)
{
    const __m512 table = _mm512_setr_ps(-8.0f, -7.0f, -6.0f, -5.0f, -4.0f, -3.0f, -2.0f, -1.0f,
                                        0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f);
    return _mm512_permutexvar_ps(x, _mm512_mul_ps(table, y));
}

INLINE __m512 five_avx512(__m512i x, __m512 y)
{
    const __m512 low = _mm512_setr_ps(-16.0f, -15.0f, -14.0f, -13.0f, -12.0f, -11.0f, -10.0f, -9.0f,
                                      -8.0f, -7.0f, -6.0f, -5.0f, -4.0f, -3.0f, -2.0f, -1.0f);
    const __m512 high = _mm512_setr_ps(0.0f, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, 8.0f, 9.0f,
                                       10.0f, 11.0f, 12.0f, 13.0f, 14.0f, 15.0f);
    return _mm512_permutex2var_ps(_mm512_mul_ps(low, y), x, _mm512_mul_ps(high, y));
}

#define LOAD_4(p) _mm_loadu_ps((const float *)(const void *)(p))

/* vpdpbusd. Written as such it needs neither a target nor a compiler that knows one. */
INLINE __m512i dot_avx512(__m512i sum, __m512i k, __m512i q)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(k), "v"(q));
    return sum;
}

/* By halves: three inserts into 512 bits take twice the time. */
INLINE __m512 quarters_avx512(const char *const *p, ptrdiff_t at)
{
    const __m128 a = LOAD_4(p[0] + at), b = LOAD_4(p[1] + at);
    const __m128 c = LOAD_4(p[2] + at), d = LOAD_4(p[3] + at);
    const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(a), b, 1);
    const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(c), d, 1);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

/* 4 numbers of 16 bits from each of two places. */
INLINE __m128i two_pieces_avx512(const char *a, const char *b)
{
    const __m128 low = _mm_castsi128_ps(_mm_loadl_epi64((const void *)a));
    return _mm_castps_si128(_mm_loadh_pi(low, (const void *)b));
}

INLINE __m256i quarters_16_avx512(const char *const *p, ptrdiff_t at)
{
    const __m128i low = two_pieces_avx512(p[0] + at, p[1] + at);
    const __m128i high = two_pieces_avx512(p[2] + at, p[3] + at);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

INLINE __m128i quarters_8_avx512(const char *const *p, ptrdiff_t at)
{
    return _mm_setr_epi32(load_word(p[0] + at), load_word(p[1] + at), load_word(p[2] + at),
                          load_word(p[3] + at));
}

INLINE __m512 e5m2_avx512(__m128i bytes)
{
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8));
}

INLINE __m512 e4m3_avx512(__m128i bytes)
{
    const __m256i upper = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
    const __m256i half =
        _mm256_and_si256(_mm256_srai_epi16(upper, 1), _mm256_set1_epi16((short)0xbf80));
    const __m256i all =
        _mm256_cmpeq_epi16(_mm256_add_epi16(upper, upper), _mm256_set1_epi16((short)0xfe00));
    const __m256i nan = _mm256_and_si256(all, _mm256_set1_epi16(0x7e00));
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, nan)), _mm512_set1_ps(256.0f));
}

INLINE void put_quarters_avx512(float *const *p, ptrdiff_t at, __m512 x)
{
    _mm_storeu_ps(p[0] + at, _mm512_castps512_ps128(x));
    _mm_storeu_ps(p[1] + at, _mm512_extractf32x4_ps(x, 1));
    _mm_storeu_ps(p[2] + at, _mm512_extractf32x4_ps(x, 2));
    _mm_storeu_ps(p[3] + at, _mm512_extractf32x4_ps(x, 3));
}

INLINE __m512 add_quarters_avx512(__m512 a, __m512 x)
{
    __m128 sum = _mm_add_ps(_mm512_castps512_ps128(a), _mm512_castps512_ps128(x));
    sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(x, 1));
    sum = _mm_add_ps(sum, _mm512_extractf32x4_ps(x, 2));
    return _mm512_castps128_ps512(_mm_add_ps(sum, _mm512_extractf32x4_ps(x, 3)));
}

INLINE __m512 quarter_avx512(__m512 x, int i)
{
    return i == 0   ? _mm512_shuffle_f32x4(x, x, 0)
           : i == 1 ? _mm512_shuffle_f32x4(x, x, 0x55)
           : i == 2 ? _mm512_shuffle_f32x4(x, x, 0xaa)
                    : _mm512_shuffle_f32x4(x, x, 0xff);
}

INLINE void squares_avx512(__m512 *x)
{
    const __m512 a = _mm512_unpacklo_ps(x[0], x[1]), b = _mm512_unpackhi_ps(x[0], x[1]);
    const __m512 c = _mm512_unpacklo_ps(x[2], x[3]), d = _mm512_unpackhi_ps(x[2], x[3]);
    x[0] = W(_mm512_unpacklo_pd, a, c);
    x[1] = W(_mm512_unpackhi_pd, a, c);
    x[2] = W(_mm512_unpacklo_pd, b, d);
    x[3] = W(_mm512_unpackhi_pd, b, d);
}

#define ISA avx512
#define ISA_NAME "avx512"
#define NV 4 /* 64 rows, which masks of cells and lengths are often a multiple of */
#define MR 6 /* 4 chains: 5 to 10 % slower on Intel family 6 model 167, 2 % faster on a Zen 4 */
#include "attn_simd.h"
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#define ISA avx512_narrow
#define ISA_NAME "avx512_narrow"
#define NV 1
#define MR 8 /* 16 would need more pointers to key rows than there are registers */
#define FEW 8
#include "attn_simd.h"

/* ---- products of numbers rounded to bf16: what both sets that round share
 *
 * Numbers that are multiplied lie together as pairs in words of 32 bits. Rows of K and columns of V, 32
 * keys of each, are multiplied with pairs of a query's numbers and pairs of p, one query a lane. What is
 * not in a header of older compilers is in asm, which needs neither a target nor that header. */

#if defined __x86_64__ && (defined __clang__ ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HAS_BF16
#endif

#ifdef HAS_BF16
#define SQUARE 256         /* floats of 16 columns of a pack */
#define ROW_BYTES (64 * 4) /* of a matrix of 64 lanes */

/* 16 numbers of each as bf16, to nearest even: those of a in the lower half. */
INLINE __m512 round_two(__m512 a, __m512 b)
{
    __m512 both;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(b), "v"(a));
    return both;
}

/* The halves of x as 16 pairs. */
INLINE __m512 pair_halves(__m512 x)
{
    static const uint32_t turn[16] = { 0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005,
                                       0x160006, 0x170007, 0x180008, 0x190009, 0x1a000a, 0x1b000b,
                                       0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f };
    return v_float(_mm512_permutexvar_epi16(_mm512_loadu_si512(turn), v_int(x)));
}

INLINE __m512 round_pairs(__m512 a, __m512 b)
{
    return pair_halves(round_two(a, b));
}

/* Bits of the first n, at most 16. */
INLINE unsigned first_bits(int64_t n)
{
    return n >= 16 ? 0xffff : n > 0 ? 0xffffu >> (16 - n) : 0;
}

/* The first n of 16 floats, or numbers of 16 bits, and +0 behind them. */
INLINE __m512 load_first(const void *from, int64_t n)
{
    return _mm512_maskz_loadu_ps((__mmask16)first_bits(n), from);
}

INLINE __m512 load_first_16(const void *from, int64_t n)
{
    return v_float(_mm512_maskz_loadu_epi16((__mmask32)first_bits(n), from));
}

/* [ATTN_ROUNDED(head_dim) / 2][64 lanes] of pairs. */
static void pack_pairs(float *qt, const float *const *q, int64_t head_dim)
{
    int64_t d;
    int v;
    for (v = 0; v < 64; v += 16)
        for (d = 0; d < head_dim; d += 32) {
            __m512 square[16];
            EACH(i, 16) {
                const float *const from = q[v + i] + d;
                const int64_t left = head_dim - d;
                square[i] = round_two(load_first(from, left),
                                      load_first(left > 16 ? from + 16 : from, left - 16));
            }
            transpose_avx512(square);
            EACH(i, 16)
                _mm512_storeu_ps(qt + (d / 2 + i) * 64 + v, square[i]);
        }
}

/* The first 16 of `left` numbers of keys 2 i and 2 i + 1 of a pack as pairs, +0 where there is none. */
INLINE __m512 pair_of_keys(const attn_pack *p, int i, int64_t d)
{
    const char *const row = p->v + (2 * i - p->begin) * p->stride;
    const int even = 2 * i >= p->begin && 2 * i < p->end;
    const int odd = 2 * i + 1 >= p->begin && 2 * i + 1 < p->end;
    const int64_t left = p->dim - d;
    if (p->dtype == ATTN_BF16) {
        const __m512 a = load_first_16(even ? row + 2 * d : p->v, even ? left : 0);
        const __m512 b = load_first_16(odd ? row + p->stride + 2 * d : p->v, odd ? left : 0);
        return pair_halves(_mm512_insertf32x8(a, _mm512_castps512_ps256(b), 1));
    }
    return round_pairs(load_first(even ? row + 4 * d : p->v, even ? left : 0),
                       load_first(odd ? row + p->stride + 4 * d : p->v, odd ? left : 0));
}

/* For each 16 columns [column][key]. */
static void pack_value_pairs(float *to, const attn_pack *p)
{
    int64_t d;
    for (d = 0; d < p->dim; d += 16, to += SQUARE) {
        __m512 square[16];
        EACH(i, 16)
            square[i] = pair_of_keys(p, i, d);
        transpose_avx512(square);
        EACH(i, 16)
            _mm512_storeu_ps(to + i * 16, square[i]);
    }
}

/* Whole vectors of lanes. */
INLINE attn_lanes whole_vectors(attn_lanes lanes)
{
    const attn_lanes whole = { lanes.begin / 16 * 16, (lanes.end + 15) / 16 * 16 };
    return whole;
}

/* p of the keys of packs `from` to to - 1 in pairs, behind what else products use of p->space;
 * +0 stands for keys that are not of the product. */
#define PAIRS_AT 1024
INLINE void pack_weights(const attn_product *p, int from, int to, attn_lanes lanes)
{
    int i, at;
    for (i = from * 16; i < to * 16; i++) {
        const int j = 2 * i - p->first;
        const float *const even = p->by + j * 64;
        const int has_even = j >= 0 && j < p->n, has_odd = j + 1 >= 0 && j + 1 < p->n;
        float *const pairs = p->space + PAIRS_AT + (i - from * 16) * 64;
        for (at = lanes.begin; at < lanes.end; at += 16)
            v_store(pairs + at, round_pairs(has_even ? v_load(even + at) : v_zero(),
                                            has_odd ? v_load(even + 64 + at) : v_zero()));
    }
}

/* Bits of the numbers among 16 pairs of bf16 that are not finite. */
INLINE unsigned strange_numbers(__m512 pairs)
{
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512(v_int(pairs), exponent), exponent);
}

/* 16 columns of a pack, of which numbers that are not finite become +0; whether there are any. */
static int scrub_columns(float *to, const float *from)
{
    unsigned any = 0;
    int d;
    for (d = 0; d < 16; d++) {
        const __m512 x = v_load(from + d * 16);
        const unsigned strange = strange_numbers(x);
        any |= strange;
        _mm512_storeu_si512(to + d * 16, _mm512_maskz_mov_epi16(~strange, v_int(x)));
    }
    return any != 0;
}

/* Column d of key k among 16 columns of a pack, in every lane. */
INLINE vf number_of(const float *square, int64_t d, int k)
{
    uint16_t x;
    memcpy(&x, (const uint16_t *)(const void *)square + d * ATTN_PANEL_KEYS + k, sizeof x);
    return v_float(_mm512_set1_epi32((int)((uint32_t)x << 16)));
}

/* What scrub_columns left out of 16 columns, for the keys of a product from `key` on. */
static void add_strange(const attn_product *p, float *o, const float *square, int key,
                        int64_t columns)
{
    int64_t d;
    int k, v;
    for (d = 0; d < columns; d++)
        for (k = 0; k < ATTN_PANEL_KEYS; k++) {
            const int j = key + k - p->first;
            const vf x = number_of(square, d, k);
            if (!(strange_numbers(v_load(square + d * 16)) >> k & 1) || j < 0 || j >= p->n)
                continue;
            for (v = 0; v < 64; v += 16) {
                const vf weight = v_load(p->by + j * 64 + v), sum = v_load(o + d * 64 + v);
                v_store(o + d * 64 + v, v_dead(weight, sum, v_fma(x, weight, sum)));
            }
        }
}

/* Rare: numbers that are not finite come behind the others, one by one, and the others in the order of
 * pv: `add` does so for 16 columns and a pack. */
INLINE void select_by(void (*add)(float *, const float *, const float *, attn_lanes),
                      const attn_product *p)
{
    const attn_lanes lanes = whole_vectors(p->lanes);
    const int from = p->first / ATTN_PANEL_KEYS;
    const int packs = (p->first + p->n + ATTN_PANEL_KEYS - 1) / ATTN_PANEL_KEYS - from;
    const float *const pairs = p->space + PAIRS_AT;
    float *const o = p->space, square[SQUARE];
    int64_t d;
    int i;
    pack_weights(p, from, from + packs, lanes);
    for (d = 0; d < p->dim; d += 16) {
        const int64_t columns = p->dim - d < 16 ? p->dim - d : 16;
        const float *const v = p->kv + from * ATTN_PANEL_FLOATS(p->dim) + d * 16;
        int any = 0;
        memcpy(o, p->to + d * 64, (size_t)columns * ROW_BYTES);
        for (i = 0; i < packs; i++) {
            any |= scrub_columns(square, v + i * ATTN_PANEL_FLOATS(p->dim));
            add(o, square, pairs + i * 16 * 64, lanes);
        }
        for (i = 0; i < packs && any; i++)
            add_strange(p, o, v + i * ATTN_PANEL_FLOATS(p->dim), (from + i) * ATTN_PANEL_KEYS,
                        columns);
        memcpy(p->to + d * 64, o, (size_t)columns * ROW_BYTES);
    }
}

/* ---- by vdpbf16ps
 *
 * vdpbf16ps adds to each lane a sum of f32 two products. So each word of a row is multiplied with up to four
 * vectors of pairs, and a register tile has four rows of four vectors or else eight. */

/* It rounds to nearest even and takes subnormal numbers for 0, whatever the thread's mode is. */
INLINE vf dot_bf16(vf sum, vf pairs, __m512i word)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(pairs), "v"(word));
    return sum;
}

#define MOST_ROWS 8
#define ROWS_BESIDE(width) ((width) == 4 ? 4 : MOST_ROWS)

/* Adds `words` words of rows `step` bytes apart times pairs. */
INLINE void add_dots(int rows, int width, vf sum[MOST_ROWS][4], const char *row, ptrdiff_t step,
                     const float *pairs, int64_t words)
{
    ROLLED
    for (; words > 0; words--, row += 4, pairs += 64) {
        vf x[4];
        EACH(v, width)
            x[v] = v_load(pairs + 16 * v);
        EACH(i, rows) {
            const __m512i word = i_set1(row + i * step);
            EACH(v, width)
                sum[i][v] = dot_bf16(sum[i][v], x[v], word);
        }
    }
}

INLINE void qk_bf16_wide(int width, const attn_product *p, int at)
{
    const int rows = ROWS_BESIDE(width);
    const ptrdiff_t step = p->runs->stride;
    const char *k = *p->runs->run;
    const vf factor = v_set1(p->factor);
    float *s = p->to + at;
    int j;
    pace_avx512(p->ahead, (p->n + rows - 1) / rows);
    for (j = 0; j < p->n; j += rows, k += rows * step, s += rows * 64) {
        vf sum[MOST_ROWS][4];
        EACH(i, rows)
            EACH(v, width)
                sum[i][v] = v_zero();
        ask_avx512(p->ahead);
        add_dots(rows, width, sum, k, step, p->by + at, (p->dim + 1) / 2);
        EACH_OF(i, rows, p->n - j)
            EACH(v, width)
                v_store(s + i * 64 + 16 * v, v_mul(sum[i][v], factor));
    }
}

static void qk_bf16(const attn_product *p)
{
    const attn_lanes lanes = whole_vectors(p->lanes);
    const int width = (lanes.end - lanes.begin) / 16;
    if (width < 4)
        clear_others_avx512(p->to, p->n, lanes.begin, width);
    if (width == 4)
        qk_bf16_wide(4, p, lanes.begin);
    else if (width == 3)
        qk_bf16_wide(3, p, lanes.begin);
    else if (width == 2)
        qk_bf16_wide(2, p, lanes.begin);
    else
        qk_bf16_wide(1, p, lanes.begin);
}

/* `count` columns of o, of which v is the first pack. */
INLINE void pv_bf16_wide(int width, float *o, int64_t count, const float *v, ptrdiff_t pack,
                         int packs, const float *pairs, attn_ahead *ahead)
{
    const int rows = ROWS_BESIDE(width);
    pace_avx512(ahead, (count + rows - 1) / rows);
    for (; count > 0; count -= rows, o += rows * 64, v += rows * 16) {
        vf sum[MOST_ROWS][4];
        int n;
        EACH(i, rows)
            EACH(w, width)
                sum[i][w] = i < count ? v_load(o + i * 64 + 16 * w) : v_zero();
        ask_avx512(ahead);
        for (n = 0; n < packs; n++)
            add_dots(rows, width, sum, (const char *)(v + n * pack), 64, pairs + n * 16 * 64, 16);
        EACH_OF(i, rows, count)
            EACH(w, width)
                v_store(o + i * 64 + 16 * w, sum[i][w]);
    }
}

static void pv_bf16_columns(float *o, int64_t count, const float *v, ptrdiff_t pack, int packs,
                            const float *pairs, attn_lanes lanes, attn_ahead *ahead)
{
    const int width = (lanes.end - lanes.begin) / 16;
    o += lanes.begin;
    pairs += lanes.begin;
    if (width == 4)
        pv_bf16_wide(4, o, count, v, pack, packs, pairs, ahead);
    else if (width == 3)
        pv_bf16_wide(3, o, count, v, pack, packs, pairs, ahead);
    else if (width == 2)
        pv_bf16_wide(2, o, count, v, pack, packs, pairs, ahead);
    else
        pv_bf16_wide(1, o, count, v, pack, packs, pairs, ahead);
}

static void pv_bf16(const attn_product *p)
{
    const attn_lanes lanes = whole_vectors(p->lanes);
    const int from = p->first / ATTN_PANEL_KEYS;
    const int packs = (p->first + p->n + ATTN_PANEL_KEYS - 1) / ATTN_PANEL_KEYS - from;
    const ptrdiff_t pack = ATTN_PANEL_FLOATS(p->dim);
    pack_weights(p, from, from + packs, lanes);
    pv_bf16_columns(p->to, p->dim, p->kv + from * pack, pack, packs, p->space + PAIRS_AT, lanes,
                    p->ahead);
}

static void add_16_bf16(float *o, const float *v, const float *pairs, attn_lanes lanes)
{
    pv_bf16_columns(o, 16, v, 0, 1, pairs, lanes, NULL);
}

static void pv_select_bf16(const attn_product *p)
{
    select_by(add_16_bf16, p);
}

/* ---- by tiles of AMX
 *
 * A tile is 16 rows of 64 bytes. tdpbf16ps adds to 16 x 16 sums of f32 the products of 16 rows of 32
 * numbers with 32 rows of 16, two and two of which lie together as pairs. Four tiles of sums share two of
 * each kind. */

#define TILE 16
#define TILE_LOAD(t, from, step)                                                                   \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t                                               \
                     :                                                                             \
                     : "r"(from), "r"((ptrdiff_t)(step))                                           \
                     : "memory")
#define TILE_STORE(t, to, step)                                                                    \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     :                                                                             \
                     : "r"(to), "r"((ptrdiff_t)(step))                                             \
                     : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero %tmm" #t)
#define TILE_DOT(sum, rows, pairs)                                                                 \
    __asm__ volatile("tdpbf16ps %tmm" #pairs ", %tmm" #rows ", %tmm" #sum)

/* Every kernel says what tiles are, and gives them back: the system saves them for threads that hold
 * some. */
INLINE void open_tiles(void)
{
    static const struct {
        uint8_t palette, row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } all = { 1, 0, { 0 }, { 64, 64, 64, 64, 64, 64, 64, 64 }, { 16, 16, 16, 16, 16, 16, 16, 16 } };
    __asm__ volatile("ldtilecfg %0" : : "m"(all));
}

INLINE void close_tiles(void)
{
    __asm__ volatile("tilerelease");
}

/* Sums of 16 or 32 keys and lanes from `at` on, to p->space as [keys][32]. */
INLINE void qk_tiles(int keys, int lanes, const attn_product *p, const char *k, int at)
{
    const ptrdiff_t step = p->runs->stride;
    const float *q = p->by + at;
    int64_t d;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    for (d = 0; d < p->dim; d += 32, k += 64, q += 16 * 64) {
        TILE_LOAD(4, k, step);
        TILE_LOAD(6, q, ROW_BYTES);
        TILE_DOT(0, 4, 6);
        if (lanes == 32) {
            TILE_LOAD(7, q + 16, ROW_BYTES);
            TILE_DOT(1, 4, 7);
        }
        if (keys == 32) {
            TILE_LOAD(5, k + 16 * step, step);
            TILE_DOT(2, 5, 6);
        }
        if (keys == 32 && lanes == 32)
            TILE_DOT(3, 5, 7);
    }
    TILE_STORE(0, p->space, 128);
    if (lanes == 32)
        TILE_STORE(1, p->space + 16, 128);
    if (keys == 32)
        TILE_STORE(2, p->space + 16 * 32, 128);
    if (keys == 32 && lanes == 32)
        TILE_STORE(3, p->space + 16 * 32 + 16, 128);
}

/* `count` keys from j on. */
INLINE void qk_keys(const attn_product *p, int j, int count, attn_lanes lanes)
{
    const char *const k = *p->runs->run + j * p->runs->stride;
    const vf factor = v_set1(p->factor);
    int at, i, v, width;
    for (at = lanes.begin; at < lanes.end; at += width) {
        float *const s = p->to + j * 64 + at;
        width = lanes.end - at < 32 ? 16 : 32;
        ask_avx512(p->ahead);
        if (count > 16 && width == 32)
            qk_tiles(32, 32, p, k, at);
        else if (count > 16)
            qk_tiles(32, 16, p, k, at);
        else if (width == 32)
            qk_tiles(16, 32, p, k, at);
        else
            qk_tiles(16, 16, p, k, at);
        for (i = 0; i < count; i++)
            for (v = 0; v < width; v += 16)
                v_store(s + i * 64 + v, v_mul(v_load(p->space + i * 32 + v), factor));
    }
}

static void qk_amx(const attn_product *p)
{
    const attn_lanes lanes = whole_vectors(p->lanes);
    const int width = (lanes.end - lanes.begin) / 16;
    int j, count;
    if (width < 4)
        clear_others_avx512(p->to, p->n, lanes.begin, width);
    pace_avx512(p->ahead, (p->n + 31) / 32 * ((width + 1) / 2));
    open_tiles();
    for (j = 0; j < p->n; j += count) {
        count = p->n - j < 32 ? p->n - j : 32;
        count = count > 16 && count < 32 ? 16 : count;
        qk_keys(p, j, count, lanes);
    }
    close_tiles();
}

/* 16 or 32 columns, of which `v` is the first pack, and lanes of o. */
INLINE void pv_tiles(int columns, int lanes, float *o, const float *v, ptrdiff_t pack, int packs,
                     const float *pairs)
{
    float *const lower = o + 16 * 64;
    TILE_LOAD(0, o, ROW_BYTES);
    if (lanes == 32)
        TILE_LOAD(1, o + 16, ROW_BYTES);
    if (columns == 32)
        TILE_LOAD(2, lower, ROW_BYTES);
    if (columns == 32 && lanes == 32)
        TILE_LOAD(3, lower + 16, ROW_BYTES);
    for (; packs > 0; packs--, v += pack, pairs += 16 * 64) {
        TILE_LOAD(4, v, 64);
        TILE_LOAD(6, pairs, ROW_BYTES);
        TILE_DOT(0, 4, 6);
        if (lanes == 32) {
            TILE_LOAD(7, pairs + 16, ROW_BYTES);
            TILE_DOT(1, 4, 7);
        }
        if (columns == 32) {
            TILE_LOAD(5, v + SQUARE, 64);
            TILE_DOT(2, 5, 6);
        }
        if (columns == 32 && lanes == 32)
            TILE_DOT(3, 5, 7);
    }
    TILE_STORE(0, o, ROW_BYTES);
    if (lanes == 32)
        TILE_STORE(1, o + 16, ROW_BYTES);
    if (columns == 32)
        TILE_STORE(2, lower, ROW_BYTES);
    if (columns == 32 && lanes == 32)
        TILE_STORE(3, lower + 16, ROW_BYTES);
}

/* Columns of o, 16 or 32, in all lanes. */
INLINE void pv_columns_amx(int columns, float *o, const float *v, ptrdiff_t pack, int packs,
                           const float *pairs, attn_lanes lanes)
{
    int at = lanes.begin;
    for (; at + 32 <= lanes.end; at += 32)
        pv_tiles(columns, 32, o + at, v, pack, packs, pairs + at);
    if (at < lanes.end)
        pv_tiles(columns, 16, o + at, v, pack, packs, pairs + at);
}

static void pv_amx(const attn_product *p)
{
    const attn_lanes lanes = whole_vectors(p->lanes);
    const int from = p->first / ATTN_PANEL_KEYS;
    const int packs = (p->first + p->n + ATTN_PANEL_KEYS - 1) / ATTN_PANEL_KEYS - from;
    const ptrdiff_t pack = ATTN_PANEL_FLOATS(p->dim);
    const float *const v = p->kv + from * pack, *const pairs = p->space + PAIRS_AT;
    const int64_t whole = p->dim / TILE * TILE, rest = p->dim - whole;
    int64_t d = 0;
    pack_weights(p, from, from + packs, lanes);
    pace_avx512(p->ahead, whole / 32 + 1);
    open_tiles();
    for (; d + 32 <= whole; d += 32) {
        ask_avx512(p->ahead);
        pv_columns_amx(32, p->to + d * 64, v + d * 16, pack, packs, pairs, lanes);
    }
    ask_avx512(p->ahead);
    if (d < whole)
        pv_columns_amx(16, p->to + d * 64, v + d * 16, pack, packs, pairs, lanes);
    if (rest) {
        memcpy(p->space, p->to + whole * 64, (size_t)rest * ROW_BYTES);
        pv_columns_amx(16, p->space, v + whole * 16, pack, packs, pairs, lanes);
        memcpy(p->to + whole * 64, p->space, (size_t)rest * ROW_BYTES);
    }
    close_tiles();
}

static void add_16_amx(float *o, const float *v, const float *pairs, attn_lanes lanes)
{
    open_tiles();
    pv_columns_amx(16, o, v, 0, 1, pairs, lanes);
    close_tiles();
}

static void pv_select_amx(const attn_product *p)
{
    select_by(add_16_amx, p);
}

/* Their own kernels, and those of the set of f32. */
#define OWN_pack 0, pack_pairs
#define SECOND_(first, second, ...) second
#define SECOND(...) SECOND_(__VA_ARGS__, )
#define ROUNDED_ENTRY(result, kernel, parameters, arguments)                                       \
    .kernel = SECOND(OWN_##kernel, kernel##_avx512),

#define OWN_qk 0, qk_bf16
#define OWN_pv 0, pv_bf16
#define OWN_pv_select 0, pv_select_bf16
static const attn_kernels kernels_avx512_bf16 = { .abi = ATTN_KERNEL_ABI,
                                                  .rows = 64,
                                                  .name = "avx512_bf16",
                                                  .pack_values = pack_value_pairs,
                                                  ATTN_SET_KERNELS(ROUNDED_ENTRY) };
#undef OWN_qk
#undef OWN_pv
#undef OWN_pv_select

#define OWN_qk 0, qk_amx
#define OWN_pv 0, pv_amx
#define OWN_pv_select 0, pv_select_amx
static const attn_kernels kernels_avx512_amx = { .abi = ATTN_KERNEL_ABI,
                                                 .rows = 64,
                                                 .name = "avx512_amx",
                                                 .pack_values = pack_value_pairs,
                                                 ATTN_SET_KERNELS(ROUNDED_ENTRY) };
#endif

#if defined __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

ATTN_API const attn_kernels *attn_kernels_avx512(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX512 ? &kernels_avx512 : NULL;
}

ATTN_API const attn_kernels *attn_kernels_avx512_narrow(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX512 ? &kernels_avx512_narrow : NULL;
}

#ifdef HAS_BF16
ATTN_API const attn_kernels *attn_kernels_avx512_bf16(void)
{
    return attn_cpu_features() & ATTN_CPU_BF16_512 ? &kernels_avx512_bf16 : NULL;
}

ATTN_API const attn_kernels *attn_kernels_avx512_amx(void)
{
    return attn_cpu_permits_tiles() ? &kernels_avx512_amx : NULL;
}
#endif
#else
ATTN_API const attn_kernels *attn_kernels_avx512(void)
{
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_avx512_narrow(void)
{
    return NULL;
}
#endif

#ifndef HAS_BF16
ATTN_API const attn_kernels *attn_kernels_avx512_bf16(void)
{
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_avx512_amx(void)
{
    return NULL;
}
#endif
