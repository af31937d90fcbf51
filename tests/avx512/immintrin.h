/* immintrin.h - AVX-512 for CPUs with AVX2, by SIMDe: what attn_simd_avx512.c includes in tests/avx512.sh.
 * SPDX-License-Identifier: MIT
 *
 * Beside SIMDe's operations here are those that its version 0.7.4 lacks, and those that the file has in
 * assembly, by what Intel publishes of them.
 */
#ifndef EMULATED_IMMINTRIN_H
#define EMULATED_IMMINTRIN_H
#include_next <immintrin.h>
#include <float.h>
#include <stdlib.h>

#define SIMDE_X86_AVX512F_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512BW_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512DQ_ENABLE_NATIVE_ALIASES
#define SIMDE_X86_AVX512VNNI_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

#define attn_cpu_features()                                                                        \
    (ATTN_CPU_AVX512 | ATTN_CPU_BF16_512 | (getenv("NO_DOTS") ? 0 : ATTN_CPU_DOTS_512))
#define attn_cpu_permits_tiles() (getenv("NO_TILES") == NULL)

typedef union wide {
    __m512 floats;
    __m512i ints;
    __m256 half_floats[2];
    __m256i half[2];
    __m128 quarter[4];
    uint32_t word[16];
    uint16_t short_word[32];
} wide;

static inline wide wide_of(__m512i x)
{
    wide w;
    w.ints = x;
    return w;
}

static inline wide wide_of_floats(__m512 x)
{
    wide w;
    w.floats = x;
    return w;
}

/* A result of two halves. */
static inline __m512i two_halves(__m256i low, __m256i high)
{
    wide w;
    w.half[0] = low;
    w.half[1] = high;
    return w.ints;
}

static inline __m512 two_float_halves(__m256 low, __m256 high)
{
    wide w;
    w.half_floats[0] = low;
    w.half_floats[1] = high;
    return w.floats;
}

static inline __m128i upper_half(__m256i x)
{
    return _mm256_extracti128_si256(x, 1);
}

#undef _mm512_shuffle_epi32
#define _mm512_shuffle_epi32(x, how)                                                               \
    two_halves(_mm256_shuffle_epi32(wide_of(x).half[0], how),                                      \
               _mm256_shuffle_epi32(wide_of(x).half[1], how))

#undef _mm512_madd_epi16 /* whose alias in 0.7.4 asks for a mask */
#define _mm512_madd_epi16(a, b)                                                                    \
    two_halves(_mm256_madd_epi16(wide_of(a).half[0], wide_of(b).half[0]),                          \
               _mm256_madd_epi16(wide_of(a).half[1], wide_of(b).half[1]))

#define _mm512_cvtepi32_ps(x)                                                                      \
    two_float_halves(_mm256_cvtepi32_ps(wide_of(x).half[0]), _mm256_cvtepi32_ps(wide_of(x).half[1]))

#define _mm512_cvtepi8_epi32(x)                                                                    \
    two_halves(_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))

#define _mm512_cvtepu8_epi32(x)                                                                    \
    two_halves(_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))

#define _mm512_cvtepu16_epi32(x)                                                                   \
    two_halves(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)),                                   \
               _mm256_cvtepu16_epi32(upper_half(x)))

#define _mm512_cvtph_ps(x)                                                                         \
    two_float_halves(_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(upper_half(x)))

#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(x, how)                                                                    \
    _mm256_setr_m128i(_mm256_cvtps_ph(wide_of_floats(x).half_floats[0], (how)&7),                  \
                      _mm256_cvtps_ph(wide_of_floats(x).half_floats[1], (how)&7))

#undef _mm512_shuffle_f32x4
#define _mm512_shuffle_f32x4 emulated_shuffle_f32x4
static inline __m512 emulated_shuffle_f32x4(__m512 a, __m512 b, int how)
{
    wide w;
    for (int i = 0; i < 4; i++)
        w.quarter[i] = wide_of_floats(i < 2 ? a : b).quarter[how >> 2 * i & 3];
    return w.floats;
}

#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
static inline __m256i emulated_cvtepi32_epi16(__m512i x)
{
    wide w;
    for (int i = 0; i < 16; i++)
        w.short_word[i] = (uint16_t)wide_of(x).word[i];
    return w.half[0];
}

#undef _mm512_cmplt_epu32_mask
#define _mm512_cmplt_epu32_mask emulated_cmplt_epu32_mask
static inline __mmask16 emulated_cmplt_epu32_mask(__m512i a, __m512i b)
{
    unsigned mask = 0;
    for (int i = 0; i < 16; i++)
        mask |= (unsigned)(wide_of(a).word[i] < wide_of(b).word[i]) << i;
    return (__mmask16)mask;
}

#undef _mm512_cmpeq_epi16_mask
#define _mm512_cmpeq_epi16_mask emulated_cmpeq_epi16_mask
static inline __mmask32 emulated_cmpeq_epi16_mask(__m512i a, __m512i b)
{
    uint32_t mask = 0;
    for (int i = 0; i < 32; i++)
        mask |= (uint32_t)(wide_of(a).short_word[i] == wide_of(b).short_word[i]) << i;
    return mask;
}

/* What a mask leaves out is not read. */
#define _mm512_maskz_loadu_ps emulated_maskz_loadu_ps
static inline __m512 emulated_maskz_loadu_ps(__mmask16 mask, const void *from)
{
    wide w;
    for (int i = 0; i < 16; i++) {
        w.word[i] = 0;
        if (mask >> i & 1)
            memcpy(&w.word[i], (const char *)from + 4 * i, 4);
    }
    return w.floats;
}

#define _mm512_maskz_loadu_epi16 emulated_maskz_loadu_epi16
static inline __m512i emulated_maskz_loadu_epi16(__mmask32 mask, const void *from)
{
    wide w;
    for (int i = 0; i < 32; i++) {
        w.short_word[i] = 0;
        if (mask >> i & 1)
            memcpy(&w.short_word[i], (const char *)from + 2 * i, 2);
    }
    return w.ints;
}

/* To nearest even, a subnormal number to 0 with its sign, a NaN to a quiet one. */
static inline uint32_t emulated_bf16(uint32_t x)
{
    if ((x & 0x7fffffff) > 0x7f800000)
        return x >> 16 | 0x40;
    if ((x & 0x7f800000) == 0)
        return x >> 16 & 0x8000;
    return (x + 0x7fff + (x >> 16 & 1)) >> 16;
}

static inline __m512 emulated_cvtne2ps_pbh(__m512 upper, __m512 lower)
{
    wide w;
    for (int i = 0; i < 16; i++) {
        w.short_word[i] = (uint16_t)emulated_bf16(wide_of_floats(lower).word[i]);
        w.short_word[16 + i] = (uint16_t)emulated_bf16(wide_of_floats(upper).word[i]);
    }
    return w.floats;
}

/* Subnormal numbers become 0. */
static inline __m256 flushed(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    const __m256 tiny =
        _mm256_cmp_ps(_mm256_andnot_ps(sign, x), _mm256_set1_ps(FLT_MIN), _CMP_LT_OQ);
    return _mm256_andnot_ps(_mm256_andnot_ps(sign, tiny), x);
}

static inline __m256 add_product(__m256 sum, __m256i a, __m256i b)
{
    return flushed(_mm256_fmadd_ps(flushed(_mm256_castsi256_ps(a)), flushed(_mm256_castsi256_ps(b)),
                                   flushed(sum)));
}

/* Of pairs: the upper product first. */
static inline __m256 add_pairs(__m256 sum, __m256i a, __m256i b)
{
    const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
    sum = add_product(sum, _mm256_and_si256(a, upper), _mm256_and_si256(b, upper));
    return add_product(sum, _mm256_slli_epi32(a, 16), _mm256_slli_epi32(b, 16));
}

static inline __m512 emulated_dpbf16_ps(__m512 sum, __m512 a, __m512i b)
{
    const wide s = wide_of_floats(sum), x = wide_of_floats(a), y = wide_of(b);
    return two_float_halves(add_pairs(s.half_floats[0], x.half[0], y.half[0]),
                            add_pairs(s.half_floats[1], x.half[1], y.half[1]));
}

/* Tiles of AMX. */
static __thread union {
    uint32_t word[16];
    __m256i half[2];
    __m256 half_floats[2];
} tile[8][16];

static inline void TILE_LOAD(int t, const void *from, ptrdiff_t step)
{
    for (int i = 0; i < 16; i++)
        memcpy(&tile[t][i], (const char *)from + i * step, 64);
}

static inline void TILE_STORE(int t, void *to, ptrdiff_t step)
{
    for (int i = 0; i < 16; i++)
        memcpy((char *)to + i * step, &tile[t][i], 64);
}

static inline void TILE_ZERO(int t)
{
    memset(tile[t], 0, sizeof tile[t]);
}

static inline void TILE_DOT(int sum, int rows, int pairs)
{
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            for (int h = 0; h < 2; h++)
                tile[sum][i].half_floats[h] = add_pairs(
                    tile[sum][i].half_floats[h], _mm256_set1_epi32((int)tile[rows][i].word[k]),
                    tile[pairs][k].half[h]);
}
#endif
