/* attn_simd_neon.c - the kernels of attn_simd.h for NEON: of 64-bit ARM, where it is part of every CPU,
 * and of 32-bit ARM with VFPv4. Compiles to a stub on other machines. It needs no compiler flags but for
 * 32-bit ARM with clang, whose intrinsics wait for -mfpu=neon-vfpv4.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 */
#define ATTN_KERNEL_FILE
#include "attn_simd.h"

#if (defined __GNUC__ || defined __clang__) && defined __aarch64__
#define NEON_64
#elif !defined __arm__ || !defined __ARM_FP || defined __ARMEB__
#elif defined __clang__ && defined __ARM_NEON && defined __ARM_FEATURE_FMA
#define NEON_32
#elif !defined __clang__ && __GNUC__ >= 8 && __ARM_ARCH >= 7 && __ARM_ARCH_PROFILE == 'A'
#define NEON_32
#endif

#if defined NEON_64 || defined NEON_32
#if defined __clang__
#if defined __FAST_MATH__
#error "attn_simd_neon.c: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#pragma clang fp contract(off) reassociate(off)
#else
#pragma GCC push_options
#pragma GCC optimize("no-fast-math", "fp-contract=off") /* gcc contracts intrinsics, too */
#pragma GCC optimize("no-schedule-insns") /* all factors loaded first: accumulators spill */
#if defined NEON_32
#pragma GCC target("fpu=neon-vfpv4")
#endif
#endif
#include <arm_neon.h>

#define VL 4
#define vf float32x4_t
#define vm uint32x4_t
#define v_load(p) vld1q_f32(p)
#define v_store(p, x) vst1q_f32(p, x)
#define v_set1(f) vdupq_n_f32(f)
#define v_zero() vdupq_n_f32(0.0f)
#define v_fma(a, b, c) vfmaq_f32(c, a, b) /* never vmlaq, which may round twice */
#define v_add(a, b) vaddq_f32(a, b)
#define v_sub(a, b) vsubq_f32(a, b)
#define v_mul(a, b) vmulq_f32(a, b)
#define v_div(a, b) divide_neon(a, b)
#define v_select(m, a, b) vbslq_f32(m, a, b)
#define vm_and(m, n) vandq_u32(m, n)
#define vm_any(m) any_neon(m)
#define vm_all(m) all_neon(m)
#define v_int(x) vreinterpretq_u32_f32(x)
#define v_float(x) vreinterpretq_f32_u32(x)
#define v_pow2(y, t) v_float(vaddq_u32(v_int(y), vshlq_n_u32(v_int(t), 23)))
#define v_dead(b, x, y) vbslq_f32(vceqq_u32(v_int(b), vdupq_n_u32(0x80000000u)), x, y) /* -0 */
#define v_copysign(x, s) vbslq_f32(vdupq_n_u32(0x80000000u), s, x)
#define v_larger(a, x) v_float(vmaxq_u32(v_int(a), v_int(vabsq_f32(x))))
#define v_ints(p) vcvtq_f32_s32(vld1q_s32(p))
#define v_bit(p, i) vtstq_u32(vld1q_u32(p), vdupq_n_u32(1u << (i)))
#define v_distance(p, i) vcvtq_f32_s32(vabsq_s32(vsubq_s32(vld1q_s32(p), vdupq_n_s32(i))))
#define v_same(p, i) vceqq_s32(vld1q_s32(p), vdupq_n_s32(i))
#define vm_bits(m) mask_of_neon(m)
#define b_nonzero(p) nonzero_neon(p)
#define v_i8(p) i8_neon(p)
/* Code that is not inlined stays behind, and is for any CPU; gcc 7 knows no DotProd. */
#if defined NEON_64 && defined __OPTIMIZE__ && (defined __clang__ || __GNUC__ >= 8)
#define DOT_PRODUCTS 1
#else
#define DOT_PRODUCTS 0
#endif
#if !DOT_PRODUCTS
#undef HAS_DOTS
#define HAS_DOTS 0
#define i_dot(sum, k, q) (sum)
#else
#ifndef HAS_DOTS
#define HAS_DOTS (attn_cpu_features() & ATTN_CPU_DOTS_ARM)
#endif
#define i_dot(sum, k, q) dot_neon(sum, k, q)
#if defined __ARM_FEATURE_DOTPROD
#define TARGET_1
#elif defined __clang__
#define TARGET_1 __attribute__((target("dotprod")))
#else
#define TARGET_1 __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#endif
/* gcc 9 knows no I8MM, and older assemblers may not, either. */
#if DOT_PRODUCTS && (defined __clang__ ? __clang_major__ >= 13 : __GNUC__ >= 10)
#ifndef HAS_MATRICES
#define HAS_MATRICES (attn_cpu_features() & ATTN_CPU_I8MM)
#endif
#define i_matrices(width, nv, q, rows, unit, sums) matrices_neon(width, nv, q, rows, unit, sums)
#if defined __ARM_FEATURE_MATMUL_INT8
#define TARGET_2
#elif defined __clang__
#define TARGET_2 __attribute__((target("i8mm")))
#else
#define TARGET_2 __attribute__((target("arch=armv8.2-a+i8mm")))
#endif
#else
#undef HAS_MATRICES
#endif
#define vi uint32x4_t
#define i_load(p) v_int(v_load(p))
#define i_set1(p) v_int(vld1q_dup_f32(p))
#define i_store(p, x) v_store(p, v_float(x))
#define i_zero() vdupq_n_u32(0)
#define i_floats(x) vcvtq_f32_s32(vreinterpretq_s32_u32(x))
#define I_TURNED 0u
#define i_turn(x) (x)
#define i_bytes(p) bytes_neon(p)
#define v_four(x, y) vmulq_f32(lower_neon(x, 15, 8), y)
#define v_five(x, y) vmulq_f32(lower_neon(x, 31, 16), y)
#define I_PARTS 1
#define i_part(x, e) ((void)(e), (x))
#define i_sum(sum, k, q) sum_neon(sum, vreinterpretq_s8_u32(k), vreinterpretq_s8_u32(q))
#define v_scale(p) from_f16_neon(vreinterpret_u16_s16(vdup_n_s16(load_half(p))))
#define v_f16(p) from_f16_neon(vld1_u16(p))
#define v_bf16(p) v_float(vshll_n_u16(vld1_u16(p), 16))
#define v_e4m3(p) e4m3_neon(load_word(p))
#define v_e5m2(p) e5m2_neon(load_word(p))
#define v_to_f16(p, x) to_f16_neon(p, x)
#define v_to_bf16(p, x) to_bf16_neon(p, x)
#define v_transpose(x) transpose_neon(x)
#define v_quarters(p, at) /* a vector is one quarter */                                            \
    vreinterpretq_f32_u8(vld1q_u8((const uint8_t *)(p)[0] + (at)))
#define v_piece(p, at) vld1_u8((const uint8_t *)(p)[0] + (at))
#define v_quarters_f16(p, at) from_f16_neon(vreinterpret_u16_u8(v_piece(p, at)))
#define v_quarters_e4m3(p, at) e4m3_neon(load_word((p)[0] + (at)))
#define v_quarters_e5m2(p, at) e5m2_neon(load_word((p)[0] + (at)))
#define v_lower_bf16(x) v_float(vshlq_n_u32(v_int(x), 16))
#define v_upper_bf16(x) v_float(vandq_u32(v_int(x), vdupq_n_u32(0xffff0000u)))
#define v_put_quarters(p, at, x) vst1q_f32((p)[0] + (at), x)
#define v_put_first(p, x) vst1q_f32(p, x)
#define v_add_quarters(a, x) vaddq_f32(a, x)
#define v_quarter(x, i) ((void)(i), (x))
#define v_squares(x) transpose_neon(x)
#define PIN(x) __asm__("" : "+w"(x))
#define vw uint32x4_t
#define w_load(p) vld1q_u32(p)
#define w_set1(u) vdupq_n_u32(u)
#define w_low(x, u) vmulq_n_u32(x, u)
#define w_high(x, u) words_high_neon(x, vdupq_n_u32(u))
#define w_xor(a, b, c) veorq_u32(veorq_u32(a, b), c)
#define w_below(x, u) vcltq_u32(x, vdupq_n_u32(u))

/* ---- what 64-bit and 32-bit ARM say in other words */

#ifdef NEON_64
#define REGISTERS 32
#define v_max(a, b) vbslq_f32(vcgtq_f32(a, b), a, b) /* vmaxq would pass a NaN on */
#define v_gt(a, b) vcgtq_f32(a, b)
#define v_lt(a, b) vcltq_f32(a, b)
#define v_eq(a, b) vceqq_f32(a, b)
#define v_nan(x) vmvnq_u32(vceqq_f32(x, x))

INLINE float32x4_t divide_neon(float32x4_t a, float32x4_t b)
{
    return vdivq_f32(a, b);
}

INLINE int any_neon(uint32x4_t m)
{
    return vmaxvq_u32(m) != 0;
}

INLINE int all_neon(uint32x4_t m)
{
    return vminvq_u32(m) != 0;
}

INLINE float32x4_t from_f16_neon(uint16x4_t h)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}

INLINE uint16x4_t as_f16_neon(float32x4_t x)
{
    return vreinterpret_u16_f16(vcvt_f16_f32(x));
}

INLINE uint32x4_t words_high_neon(uint32x4_t x, uint32x4_t factor)
{
    const uint64x2_t low = vmull_u32(vget_low_u32(x), vget_low_u32(factor));
    const uint64x2_t high = vmull_high_u32(x, factor);
    return vuzp2q_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high));
}

#if DOT_PRODUCTS
/* An assembler takes it in functions for such a CPU only. */
INLINE uint32x4_t dot_neon(uint32x4_t sum, uint32x4_t k, uint32x4_t q)
{
    __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(k), "w"(q));
    return sum;
}
#endif

#ifdef HAS_MATRICES
/* The sums of two keys and two lanes, row by row: 8 bytes each of 2 keys times 8 bytes each of 2 lanes. */
INLINE uint32x4_t smmla_neon(uint32x4_t sum, uint64x2_t k, uint32x4_t q)
{
    __asm__("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(k), "w"(q));
    return sum;
}

/* 8 bytes of two lanes are two words of each. Those of a key's lanes come together again at the end. */
INLINE void matrices_neon(int width, int nv, const float *q, int rows, const char *const *unit,
                          float32x4_t *sums)
{
    uint32x4_t sum[2][4][2]; /* pairs of keys, vectors, pairs of lanes */
    int at;
    EACH(i, 2)
        EACH(v, width)
            EACH(h, 2)
                sum[i][v][h] = vdupq_n_u32(0);
    ROLLED
    for (at = 2; at < 34; at += 16, q += 4 * rows) {
        uint64x2_t key[4];
        EACH(i, 4)
            key[i] = vreinterpretq_u64_u8(vld1q_u8((const uint8_t *)unit[i] + at));
        EACH(t, 2)
            EACH(v, width) {
                const float *const words = q + 2 * t * rows + 4 * v;
                const uint32x4_t even = v_int(v_load(words)), odd = v_int(v_load(words + rows));
                EACH(h, 2) {
                    const uint32x4_t lanes = h ? vzip2q_u32(even, odd) : vzip1q_u32(even, odd);
                    EACH(i, 2) {
                        const uint64x2_t a = key[2 * i], b = key[2 * i + 1];
                        const uint64x2_t keys = t ? vzip2q_u64(a, b) : vzip1q_u64(a, b);
                        sum[i][v][h] = smmla_neon(sum[i][v][h], keys, lanes);
                    }
                }
            }
    }
    EACH(i, 4)
        EACH(v, width) {
            const uint64x2_t low = vreinterpretq_u64_u32(sum[i / 2][v][0]);
            const uint64x2_t high = vreinterpretq_u64_u32(sum[i / 2][v][1]);
            const uint64x2_t row = i % 2 ? vzip2q_u64(low, high) : vzip1q_u64(low, high);
            sums[i * nv + v] = vcvtq_f32_s32(vreinterpretq_s32_u64(row));
        }
}
#endif

/* Sums of two products fit 16 bits: 2 x 128 x 127 = 32512. */
INLINE uint32x4_t sum_neon(uint32x4_t sum, int8x16_t k, int8x16_t q)
{
    const int16x8_t low = vmull_s8(vget_low_s8(k), vget_low_s8(q)), high = vmull_high_s8(k, q);
    return vreinterpretq_u32_s32(vpadalq_s16(vreinterpretq_s32_u32(sum), vpaddq_s16(low, high)));
}

INLINE uint32_t mask_of_neon(uint32x4_t m)
{
    static const uint32_t place[4] = { 1, 2, 4, 8 };
    return vaddvq_u32(vandq_u32(m, vld1q_u32(place)));
}

/* A byte of each eight gathers their bits in three sums of neighbours. */
INLINE uint32_t nonzero_neon(const uint8_t *p)
{
    const uint8x16_t place = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    const uint8x16_t low = vld1q_u8(p), high = vld1q_u8(p + 16);
    uint8x16_t sum =
        vpaddq_u8(vandq_u8(vtstq_u8(low, low), place), vandq_u8(vtstq_u8(high, high), place));
    sum = vpaddq_u8(sum, sum);
    sum = vpaddq_u8(sum, sum);
    return vgetq_lane_u32(vreinterpretq_u32_u8(sum), 0);
}

/* 4 x 4: pairs of rows, then halves. */
INLINE void transpose_neon(float32x4_t *x)
{
    const float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(x[0], x[1]));
    const float64x2_t b = vreinterpretq_f64_f32(vtrn2q_f32(x[0], x[1]));
    const float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(x[2], x[3]));
    const float64x2_t d = vreinterpretq_f64_f32(vtrn2q_f32(x[2], x[3]));
    x[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    x[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    x[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    x[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}
INLINE uint32x4_t bytes_neon(const char *p)
{
    return vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8((uint32_t)load_word(p)))));
}

/* Whole numbers of the bits of words that mask has, less `raised`. */
INLINE float32x4_t lower_neon(uint32x4_t x, uint32_t mask, int32_t raised)
{
    const int32x4_t number = vreinterpretq_s32_u32(vandq_u32(x, vdupq_n_u32(mask)));
    return vcvtq_f32_s32(vsubq_s32(number, vdupq_n_s32(raised)));
}
#else
#define REGISTERS 16
#define v_max(a, b) vbslq_f32(greater_neon(a, b), a, b)
#define v_gt(a, b) greater_neon(a, b)
#define v_lt(a, b) greater_neon(b, a)
#define v_eq(a, b) equal_neon(a, b)
#define v_nan(x) vmvnq_u32(equal_neon(x, x))

/* gcc makes four compares of the intrinsics of these two. */
INLINE uint32x4_t greater_neon(float32x4_t a, float32x4_t b)
{
    uint32x4_t m;
    __asm__("vcgt.f32 %q0, %q1, %q2" : "=w"(m) : "w"(a), "w"(b));
    return m;
}

INLINE uint32x4_t equal_neon(float32x4_t a, float32x4_t b)
{
    uint32x4_t m;
    __asm__("vceq.f32 %q0, %q1, %q2" : "=w"(m) : "w"(a), "w"(b));
    return m;
}

/* There is no such vector instruction. */
INLINE float32x4_t divide_neon(float32x4_t a, float32x4_t b)
{
    float x[4], y[4];
    v_store(x, a);
    v_store(y, b);
    EACH(i, 4)
        x[i] /= y[i];
    return v_load(x);
}

INLINE int any_neon(uint32x4_t m)
{
    const uint32x2_t half = vorr_u32(vget_low_u32(m), vget_high_u32(m));
    return vget_lane_u32(vpmax_u32(half, half), 0) != 0;
}

INLINE int all_neon(uint32x4_t m)
{
    const uint32x2_t half = vand_u32(vget_low_u32(m), vget_high_u32(m));
    return vget_lane_u32(vpmin_u32(half, half), 0) != 0;
}

/* gcc has these two as functions with -mfp16-format=ieee only. */
INLINE float32x4_t from_f16_neon(uint16x4_t h)
{
    float32x4_t x;
    __asm__("vcvt.f32.f16 %q0, %P1" : "=w"(x) : "w"(h));
    return x;
}

INLINE uint16x4_t as_f16_neon(float32x4_t x)
{
    uint16x4_t h;
    __asm__("vcvt.f16.f32 %P0, %q1" : "=w"(h) : "w"(x));
    return h;
}

INLINE uint32x4_t words_high_neon(uint32x4_t x, uint32x4_t factor)
{
    const uint64x2_t low = vmull_u32(vget_low_u32(x), vget_low_u32(factor));
    const uint64x2_t high = vmull_u32(vget_high_u32(x), vget_high_u32(factor));
    return vuzpq_u32(vreinterpretq_u32_u64(low), vreinterpretq_u32_u64(high)).val[1];
}

INLINE int16x4_t pairs_neon(int16x8_t x)
{
    return vpadd_s16(vget_low_s16(x), vget_high_s16(x));
}

/* As above. */
INLINE uint32x4_t sum_neon(uint32x4_t sum, int8x16_t k, int8x16_t q)
{
    const int16x4_t low = pairs_neon(vmull_s8(vget_low_s8(k), vget_low_s8(q)));
    const int16x4_t high = pairs_neon(vmull_s8(vget_high_s8(k), vget_high_s8(q)));
    const int32x4_t all = vpadalq_s16(vreinterpretq_s32_u32(sum), vcombine_s16(low, high));
    return vreinterpretq_u32_s32(all);
}

INLINE uint32_t mask_of_neon(uint32x4_t m)
{
    static const uint32_t place[4] = { 1, 2, 4, 8 };
    const uint32x4_t bits = vandq_u32(m, vld1q_u32(place));
    const uint32x2_t half = vorr_u32(vget_low_u32(bits), vget_high_u32(bits));
    return vget_lane_u32(vpadd_u32(half, half), 0);
}

INLINE uint8x8_t pairs_of_bits_neon(uint8x16_t x)
{
    const uint8x16_t place = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
    const uint8x16_t bits = vandq_u8(vtstq_u8(x, x), place);
    return vpadd_u8(vget_low_u8(bits), vget_high_u8(bits));
}

INLINE uint32_t nonzero_neon(const uint8_t *p)
{
    uint8x8_t sum = vpadd_u8(pairs_of_bits_neon(vld1q_u8(p)), pairs_of_bits_neon(vld1q_u8(p + 16)));
    sum = vpadd_u8(sum, sum);
    return vget_lane_u32(vreinterpret_u32_u8(sum), 0);
}

INLINE void transpose_neon(float32x4_t *x)
{
    const float32x4x2_t a = vtrnq_f32(x[0], x[1]), b = vtrnq_f32(x[2], x[3]);
    EACH(i, 2) {
        x[i] = vcombine_f32(vget_low_f32(a.val[i]), vget_low_f32(b.val[i]));
        x[i + 2] = vcombine_f32(vget_high_f32(a.val[i]), vget_high_f32(b.val[i]));
    }
}
#endif

/* ---- what they share */

/* Four 8-bit floats as the upper halves of 16 bits. */
INLINE uint16x4_t upper_halves_neon(int32_t four)
{
    return vshl_n_u16(vget_low_u16(vmovl_u8(vcreate_u8((uint32_t)four))), 8);
}

INLINE float32x4_t e5m2_neon(int32_t four)
{
    return from_f16_neon(upper_halves_neon(four));
}

INLINE float32x4_t e4m3_neon(int32_t four)
{
    const uint16x4_t upper = upper_halves_neon(four);
    const uint16x4_t moved = vreinterpret_u16_s16(vshr_n_s16(vreinterpret_s16_u16(upper), 1));
    const uint16x4_t half = vand_u16(moved, vdup_n_u16(0xbf80));
    const uint16x4_t all = vceq_u16(vadd_u16(upper, upper), vdup_n_u16(0xfe00));
    const uint16x4_t nan = vand_u16(all, vdup_n_u16(0x7e00));
    return vmulq_n_f32(from_f16_neon(vorr_u16(half, nan)), 256.0f);
}

INLINE float32x4_t i8_neon(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}

/* 16-bit numbers without -0. */
INLINE void store_half_neon(uint16_t *p, uint16x4_t h)
{
    vst1_u16(p, vbic_u16(h, vceq_u16(h, vdup_n_u16(0x8000u))));
}

INLINE void to_f16_neon(uint16_t *p, float32x4_t x)
{
    store_half_neon(p, as_f16_neon(x));
}

INLINE void to_bf16_neon(uint16_t *p, float32x4_t x)
{
    const uint32x4_t u = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    store_half_neon(p, vaddhn_u32(vaddq_u32(u, odd), vdupq_n_u32(0x7fffu)));
}

#ifdef NEON_64
#define ISA neon
#define ISA_NAME "neon"
#define NV 3
#define MR 8 /* 24 accumulators + 3 loaded + 1 factor of 32 registers */
#include "attn_simd.h"
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#define ISA neon_narrow
#define ISA_NAME "neon_narrow"
#define NV 2
#define MR 8
#define FEW 4
#include "attn_simd.h"

/* ---- products by BFMMLA: a set that rounds
 *
 * bfmmla adds to 2 x 2 sums of f32 the products of 2 rows of 4 numbers with 2 rows of 4. So logits are two
 * keys times two lanes, and o is two columns of V times two lanes, 4 keys at a time. */

#if defined __OPTIMIZE__ && (defined __clang__ ? __clang_major__ >= 13 : __GNUC__ >= 10)
#define HAS_BF16
#endif

#ifdef HAS_BF16
#if defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define TARGET_BF16
#elif defined __clang__
#define TARGET_BF16 __attribute__((target("bf16")))
#else
#define TARGET_BF16 __attribute__((target("arch=armv8.2-a+bf16")))
#endif
#define LANES 12
#define PAIRS 6          /* of lanes */
#define COLUMN_FLOATS 16 /* of the ATTN_PANEL_KEYS keys of a column of a panel */
#define EIGHT 8          /* keys, or columns, of a register tile: 24 sums, 4 loaded and 1 more */

INLINE float32x4_t bfmmla(float32x4_t sum, uint16x8_t rows, float32x4_t lanes)
{
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(rows), "w"(lanes));
    return sum;
}

/* 4 numbers as bf16, to nearest even. */
INLINE uint16x4_t round_four(float32x4_t x)
{
    uint16x4_t y;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(y) : "w"(x));
    return y;
}

INLINE float32x4_t round_two_rows(float32x4_t a, float32x4_t b)
{
    return vreinterpretq_f32_u16(vcombine_u16(round_four(a), round_four(b)));
}

/* 4 numbers of bf16 of each of two rows. */
INLINE uint16x8_t load_two_rows(const char *a, const char *b)
{
    return vreinterpretq_u16_u8(
        vcombine_u8(vld1_u8((const uint8_t *)a), vld1_u8((const uint8_t *)b)));
}

/* Row i of two squares that lie side by side; of two rows square i of them. */
INLINE float32x4_t half_of_each(float32x4_t a, float32x4_t b, int i)
{
    const uint64x2_t x = vreinterpretq_u64_f32(a), y = vreinterpretq_u64_f32(b);
    return vreinterpretq_f32_u64(i ? vzip2q_u64(x, y) : vzip1q_u64(x, y));
}

/* The first n of 4 floats or bf16 numbers, and +0 behind them. */
INLINE float32x4_t load_first(int dtype, const void *from, int64_t n)
{
    float piece[4] = { 0 };
    uint16_t half[4] = { 0 };
    if (n >= 4)
        return dtype == ATTN_BF16 ? v_bf16(from) : v_load(from);
    if (n > 0 && dtype == ATTN_BF16)
        memcpy(half, from, (size_t)n * sizeof *half);
    else if (n > 0)
        memcpy(piece, from, (size_t)n * sizeof *piece);
    return dtype == ATTN_BF16 ? v_bf16(half) : v_load(piece);
}

/* [ATTN_ROUNDED(head_dim) / 4][pairs of lanes][2 lanes][4]. */
TARGET_BF16 static void pack_bf16(float *qt, const float *const *q, int64_t head_dim)
{
    int64_t d;
    int i;
    for (d = 0; d < head_dim; d += 4)
        for (i = 0; i < LANES; i += 2, qt += 4)
            v_store(qt, round_two_rows(load_first(ATTN_F32, q[i] + d, head_dim - d),
                                       load_first(ATTN_F32, q[i + 1] + d, head_dim - d)));
}

/* Columns [dim filled up to 16][ATTN_PANEL_KEYS]. */
TARGET_BF16 static void pack_values_bf16(float *to, const attn_pack *p)
{
    const ptrdiff_t size = p->dtype == ATTN_BF16 ? 2 : 4;
    int64_t d;
    int k;
    for (d = 0; d < (p->dim + 15) / 16 * 16; d += 4, to += 4 * COLUMN_FLOATS)
        for (k = 0; k < ATTN_PANEL_KEYS; k += 4) {
            float32x4_t x[4];
            EACH(i, 4) {
                const int there = k + i >= p->begin && k + i < p->end && d < p->dim;
                const char *const row = p->v + (k + i - p->begin) * p->stride + d * size;
                x[i] = load_first(p->dtype, there ? row : p->v, there ? p->dim - d : 0);
            }
            transpose_neon(x);
            EACH(i, 4)
                vst1_u16((uint16_t *)(void *)(to + i * COLUMN_FLOATS) + k, round_four(x[i]));
        }
}

/* `count` of eight keys from k on. */
INLINE void qk_eight(const attn_product *p, const char *k, float *s, int count)
{
    const ptrdiff_t step = p->runs->stride;
    const float32x4_t factor = v_set1(p->factor);
    const float *q = p->by;
    float32x4_t sum[4][PAIRS];
    int64_t d;
    EACH(i, 4)
        EACH(r, PAIRS)
            sum[i][r] = v_zero();
    ROLLED
    for (d = 0; d < p->dim; d += 4, k += 8, q += 4 * PAIRS) {
        uint16x8_t keys[4];
        EACH(i, 4)
            keys[i] = load_two_rows(k + 2 * i * step, k + (2 * i + 1) * step);
        EACH(r, PAIRS)
            EACH(i, 4)
                sum[i][r] = bfmmla(sum[i][r], keys[i], v_load(q + 4 * r));
    }
    EACH_OF(i, EIGHT, count)
        EACH(v, 3) {
            const float32x4_t row = half_of_each(sum[i / 2][2 * v], sum[i / 2][2 * v + 1], i % 2);
            v_store(s + i * LANES + 4 * v, v_mul(row, factor));
        }
}

TARGET_BF16 static void qk_bf16(const attn_product *p)
{
    const char *k = *p->runs->run;
    int j;
    pace_neon(p->ahead, (p->n + EIGHT - 1) / EIGHT);
    for (j = 0; j < p->n; j += EIGHT, k += EIGHT * p->runs->stride) {
        ask_neon(p->ahead);
        qk_eight(p, k, p->to + j * LANES, p->n - j);
    }
}

/* p of the keys of packs from `from` on, as queries are packed; +0 stands for keys that are not of the
 * product. */
INLINE void pack_weights(const attn_product *p, int from, int packs, float *to)
{
    int at;
    for (at = 0; at < packs * ATTN_PANEL_KEYS; at += 4) {
        const int j = from * ATTN_PANEL_KEYS + at - p->first;
        EACH(v, 3) {
            float32x4_t x[4];
            EACH(i, 4)
                x[i] =
                    j + i >= 0 && j + i < p->n ? v_load(p->by + (j + i) * LANES + 4 * v) : v_zero();
            transpose_neon(x);
            v_store(to, round_two_rows(x[0], x[1]));
            v_store(to + 4, round_two_rows(x[2], x[3]));
            to += 8;
        }
    }
}

/* `count` of eight columns of o. */
INLINE void pv_eight(float *o, int64_t count, const float *v, ptrdiff_t pack, int packs,
                     const float *weights)
{
    float32x4_t sum[4][PAIRS];
    int k;
    EACH(i, 4)
        EACH(r, PAIRS) {
            const float *const at = o + 2 * i * LANES + r / 2 * 4;
            const float32x4_t a = 2 * i < count ? v_load(at) : v_zero();
            const float32x4_t b = 2 * i + 1 < count ? v_load(at + LANES) : v_zero();
            sum[i][r] = half_of_each(a, b, r % 2);
        }
    for (; packs > 0; packs--, v += pack) {
        const char *from = (const char *)v;
        ROLLED
        for (k = 0; k < ATTN_PANEL_KEYS; k += 4, from += 8, weights += 4 * PAIRS) {
            uint16x8_t columns[4];
            EACH(i, 4)
                columns[i] =
                    load_two_rows(from + 8 * i * COLUMN_FLOATS, from + (8 * i + 4) * COLUMN_FLOATS);
            EACH(r, PAIRS)
                EACH(i, 4)
                    sum[i][r] = bfmmla(sum[i][r], columns[i], v_load(weights + 4 * r));
        }
    }
    EACH_OF(i, EIGHT, count)
        EACH(w, 3)
            v_store(o + i * LANES + 4 * w,
                    half_of_each(sum[i / 2][2 * w], sum[i / 2][2 * w + 1], i % 2));
}

TARGET_BF16 static void pv_bf16(const attn_product *p)
{
    const int from = p->first / ATTN_PANEL_KEYS;
    const int packs = (p->first + p->n + ATTN_PANEL_KEYS - 1) / ATTN_PANEL_KEYS - from;
    const ptrdiff_t pack = ATTN_PANEL_FLOATS(p->dim);
    const float *const v = p->kv + from * pack;
    int64_t d;
    pack_weights(p, from, packs, p->space);
    pace_neon(p->ahead, (int)((p->dim + EIGHT - 1) / EIGHT));
    for (d = 0; d < p->dim; d += EIGHT) {
        ask_neon(p->ahead);
        pv_eight(p->to + d * LANES, p->dim - d, v + d * COLUMN_FLOATS, pack, packs, p->space);
    }
}

INLINE int is_strange(uint16_t x)
{
    return (x & 0x7f80) == 0x7f80;
}

/* Eight columns of the panel, of which numbers that are not finite become +0; whether there are any. */
static int scrub_columns(uint16_t *to, const float *from)
{
    int any = 0, i;
    memcpy(to, from, EIGHT * COLUMN_FLOATS * sizeof *from);
    for (i = 0; i < EIGHT * ATTN_PANEL_KEYS; i++)
        if (is_strange(to[i])) {
            to[i] = 0;
            any = 1;
        }
    return any;
}

/* What scrub_columns left out, for the keys of a product from `key` on. */
static void add_strange_bf16(const attn_product *p, float *o, const float *columns, int key,
                             int64_t count)
{
    int64_t d;
    int k;
    for (d = 0; d < count; d++)
        for (k = 0; k < ATTN_PANEL_KEYS; k++) {
            const int j = key + k - p->first;
            uint16_t half;
            memcpy(&half, (const char *)(columns + d * COLUMN_FLOATS) + 2 * k, sizeof half);
            if (!is_strange(half) || j < 0 || j >= p->n)
                continue;
            EACH(v, 3) {
                const float32x4_t x = v_float(vdupq_n_u32((uint32_t)half << 16));
                const float32x4_t weight = v_load(p->by + j * LANES + 4 * v);
                float *const at = o + d * LANES + 4 * v;
                const float32x4_t sum = v_load(at);
                v_store(at, v_dead(weight, sum, v_fma(x, weight, sum)));
            }
        }
}

/* Rare: numbers that are not finite come behind the others, one by one, and the others in the order of
 * pv. */
TARGET_BF16 static void pv_select_bf16(const attn_product *p)
{
    const int from = p->first / ATTN_PANEL_KEYS;
    const int packs = (p->first + p->n + ATTN_PANEL_KEYS - 1) / ATTN_PANEL_KEYS - from;
    const ptrdiff_t pack = ATTN_PANEL_FLOATS(p->dim);
    float square[EIGHT * COLUMN_FLOATS];
    int64_t d;
    int i;
    pack_weights(p, from, packs, p->space);
    for (d = 0; d < p->dim; d += EIGHT) {
        const float *const v = p->kv + from * pack + d * COLUMN_FLOATS;
        const int64_t count = p->dim - d < EIGHT ? p->dim - d : EIGHT;
        float *const o = p->to + d * LANES;
        int any = 0;
        for (i = 0; i < packs; i++) {
            any |= scrub_columns((uint16_t *)(void *)square, v + i * pack);
            pv_eight(o, count, square, 0, 1, p->space + i * ATTN_PANEL_KEYS * PAIRS);
        }
        for (i = 0; i < packs && any; i++)
            add_strange_bf16(p, o, v + i * pack, (from + i) * ATTN_PANEL_KEYS, count);
    }
}

/* Its own kernels, and those of the set of f32. */
#define OWN_pack 0, pack_bf16
#define OWN_qk 0, qk_bf16
#define OWN_pv 0, pv_bf16
#define OWN_pv_select 0, pv_select_bf16
#define SECOND_(first, second, ...) second
#define SECOND(...) SECOND_(__VA_ARGS__, )
#define ROUNDED_ENTRY(result, kernel, parameters, arguments)                                       \
    .kernel = SECOND(OWN_##kernel, kernel##_neon),
static const attn_kernels kernels_neon_bf16 = { .abi = ATTN_KERNEL_ABI,
                                                .rows = LANES,
                                                .name = "neon_bf16",
                                                .pack_values = pack_values_bf16,
                                                ATTN_SET_KERNELS(ROUNDED_ENTRY) };
#endif
#else
/* ---- 32-bit ARM
 *
 * NEON takes subnormal numbers for 0 there, inputs and results, whatever mode the thread has set, and VFP
 * does not. The CPU tells in FPSCR that it did so, lane by lane of every vector instruction. So each set
 * has two: the fast one computes by NEON; where it met such a number, all that it wrote is put back, and
 * the exact one computes the same by VFP. A kernel is
 *
 *   fast      where no subnormal number can change what it writes: it moves, converts to f32, compares
 *             whole numbers or only tells numbers from infinities
 *   exact     where it is rare, and the former content of what it changes would take too much memory
 *   written   what has no former content
 *   changed   all others: piece by piece, of each of which that is kept
 */

#define EXACT(name)                                                                                \
    OUTLINE float32x4_t exact_##name(float32x4_t a, float32x4_t b)                                 \
    {                                                                                              \
        float x[4], y[4];                                                                          \
        v_store(x, a);                                                                             \
        v_store(y, b);                                                                             \
        EACH(i, 4)                                                                                 \
            __asm__("v" #name ".f32 %0, %0, %1" : "+t"(x[i]) : "t"(y[i]));                         \
        return v_load(x);                                                                          \
    }
EXACT(add)
EXACT(sub)
EXACT(mul)

OUTLINE float32x4_t exact_fma(float32x4_t a, float32x4_t b, float32x4_t c)
{
    float x[4], y[4], z[4];
    v_store(x, a);
    v_store(y, b);
    v_store(z, c);
    EACH(i, 4)
        __asm__("vfma.f32 %0, %1, %2" : "+t"(z[i]) : "t"(x[i]), "t"(y[i]));
    return v_load(z);
}

/* Numbers in their order as integers, both zeros 0. */
INLINE int32x4_t rank_neon(float32x4_t x)
{
    const int32x4_t bits = vreinterpretq_s32_f32(x), sign = vshrq_n_s32(bits, 31);
    const int32x4_t magnitude = vandq_s32(bits, vdupq_n_s32(0x7fffffff));
    return vsubq_s32(veorq_s32(magnitude, sign), sign);
}

INLINE uint32x4_t exact_nan(float32x4_t x)
{
    return vcgtq_u32(vshlq_n_u32(v_int(x), 1), vdupq_n_u32(0xff000000u));
}

OUTLINE uint32x4_t exact_gt(float32x4_t a, float32x4_t b)
{
    const uint32x4_t nan = vorrq_u32(exact_nan(a), exact_nan(b));
    return vbicq_u32(vcgtq_s32(rank_neon(a), rank_neon(b)), nan);
}

OUTLINE uint32x4_t exact_eq(float32x4_t a, float32x4_t b)
{
    return vbicq_u32(vceqq_s32(rank_neon(a), rank_neon(b)), exact_nan(a));
}

#define ISA neon32_fast
#define ISA_NAME "neon32_fast"
#define NV 3
#define MR 4 /* 12 accumulators + 3 loaded + 1 factor: all 16 registers */
#include "attn_simd.h"
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#define ISA neon32_narrow_fast
#define ISA_NAME "neon32_narrow_fast"
#define NV 1
#define MR 8
#include "attn_simd.h"
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#undef v_fma
#undef v_add
#undef v_sub
#undef v_mul
#undef v_max
#undef v_gt
#undef v_lt
#undef v_eq
#undef v_nan
#define v_fma(a, b, c) exact_fma(a, b, c)
#define v_add(a, b) exact_add(a, b)
#define v_sub(a, b) exact_sub(a, b)
#define v_mul(a, b) exact_mul(a, b)
#define v_max(a, b) vbslq_f32(exact_gt(a, b), a, b)
#define v_gt(a, b) exact_gt(a, b)
#define v_lt(a, b) exact_gt(b, a)
#define v_eq(a, b) exact_eq(a, b)
#define v_nan(x) exact_nan(x)

#define ISA neon32_exact
#define ISA_NAME "neon32_exact"
#define NV 3
#define MR 4
#include "attn_simd.h"
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#define ISA neon32_narrow_exact
#define ISA_NAME "neon32_narrow_exact"
#define NV 1
#define MR 8
#include "attn_simd.h"

/* ---- what FPSCR tells */

#define FLUSHED 0x88u /* IDC and UFC: an input was taken for 0, a result was */

INLINE uint32_t read_flushed(void)
{
    uint32_t word;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(word) : : "memory");
    return word & FLUSHED;
}

/* In one go: compares leave their results in the same word. */
INLINE void write_flushed(uint32_t flags)
{
    uint32_t word;
    __asm__ volatile("vmrs %0, fpscr\n\tbic %0, %0, #0x88\n\torr %0, %0, %1\n\tvmsr fpscr, %0"
                     : "=&r"(word)
                     : "r"(flags)
                     : "memory");
}

/* The flags are clear from here on; returns what they were. */
INLINE uint32_t begin_watch(void)
{
    const uint32_t before = read_flushed();
    if (before)
        write_flushed(0);
    return before;
}

/* Whether NEON took something for 0; the flags are again as they were. */
INLINE int end_watch(uint32_t before)
{
    const uint32_t now = read_flushed();
    if (now | before)
        write_flushed(before);
    return now != 0;
}

/* ---- a kernel by NEON and, where that will not do, by VFP */

#define PIECE_KEYS 24 /* at a time of what is changed in place, */
#define PIECE_COLUMNS 48
#define PIECE_TERMS 8
#define KEPT (48 * 12) /* which is kept here */

typedef struct two_sets {
    const attn_kernels *fast, *exact;
} two_sets;

/* What a kernel changes in place: `rows` rows of `count` floats. */
typedef struct changed_floats {
    float *at;
    int64_t count, rows;
    ptrdiff_t apart;
} changed_floats;

typedef struct attempt {
    changed_floats regions[2];
    uint32_t before;
    float kept[KEPT];
} attempt;

/* Copies regions to `kept`, or back. */
INLINE void copy_regions(attempt *a, int back)
{
    float *kept = a->kept;
    int64_t row;
    int i;
    for (i = 0; i < 2; i++)
        for (row = 0; row < a->regions[i].rows; row++, kept += a->regions[i].count) {
            float *const at = a->regions[i].at + row * a->regions[i].apart;
            memcpy(back ? at : kept, back ? kept : at, (size_t)a->regions[i].count * sizeof *at);
        }
}

INLINE void begin_attempt(attempt *a)
{
    copy_regions(a, 0);
    a->before = begin_watch();
}

/* Whether it has to be done again: all is as it was. */
INLINE int must_repeat(attempt *a)
{
    if (!end_watch(a->before))
        return 0;
    copy_regions(a, 1);
    return 1;
}

#define NOTHING ((changed_floats){ 0 })
#define FLOATS(at, count) ((changed_floats){ at, count, 1, 0 })

/* CALL uses `set`, of which the compiler does not know which it is: so nothing of a kernel leaves it. */
#define TRY(sets, first, second, CALL)                                                             \
    do {                                                                                           \
        const attn_kernels *set = (sets)->fast;                                                    \
        attempt tried;                                                                             \
        tried.regions[0] = first;                                                                  \
        tried.regions[1] = second;                                                                 \
        begin_attempt(&tried);                                                                     \
        HIDE(set);                                                                                 \
        CALL;                                                                                      \
        if (must_repeat(&tried)) {                                                                 \
            set = (sets)->exact;                                                                   \
            CALL;                                                                                  \
        }                                                                                          \
    } while (0)

/* The next piece of n of which `at` are done. */
INLINE int64_t piece_of(int64_t at, int64_t n, int64_t most)
{
    return n - at < most ? n - at : most;
}

/* `keys` at a time from j on, and s with them. */
#define EACH_KEYS(sets, j, keys, n)                                                                \
    for (int j = 0, keys = (int)piece_of(0, n, PIECE_KEYS); keys > 0;                              \
         s += keys * (sets)->fast->rows, j += keys, keys = (int)piece_of(j, n, PIECE_KEYS))
#define ROWS_OF(s) FLOATS(s, keys * z->fast->rows)
#define LANES_OF(m) FLOATS(m, z->fast->rows)

INLINE void softcap_tried(const two_sets *z, float *s, int n, float cap2, float icap2)
{
    EACH_KEYS(z, j, keys, n)
    TRY(z, ROWS_OF(s), NOTHING, set->softcap(s, keys, cap2, icap2));
}

INLINE void scale_keys_tried(const two_sets *z, float *s, const float *scale, int n)
{
    EACH_KEYS(z, j, keys, n)
    TRY(z, ROWS_OF(s), NOTHING, set->scale_keys(s, scale + j, keys));
}

INLINE void add_distances_tried(const two_sets *z, float *s, const int *from, const float *factor,
                                int n)
{
    int here[ATTN_KERNEL_MAX_ROWS], r;
    EACH_KEYS(z, j, keys, n)
    {
        for (r = 0; r < z->fast->rows; r++)
            here[r] = from[r] - j;
        TRY(z, ROWS_OF(s), NOTHING, set->add_distances(s, here, factor, keys));
    }
}

INLINE void add_rows_tried(const two_sets *z, float *s, const float *const *x, float factor, int n)
{
    const float *here[ATTN_KERNEL_MAX_ROWS];
    int r;
    EACH_KEYS(z, j, keys, n)
    {
        for (r = 0; r < z->fast->rows; r++)
            here[r] = x[r] + j;
        TRY(z, ROWS_OF(s), NOTHING, set->add_rows(s, here, factor, keys));
    }
}

INLINE int running_max_tried(const two_sets *z, const float *s, int n, float *m, float *l,
                             float *alpha)
{
    int said;
    TRY(z, LANES_OF(m), LANES_OF(l), said = set->running_max(s, n, m, l, alpha));
    return said;
}

INLINE void maximum_tried(const two_sets *z, const float *s, int n, float *m)
{
    TRY(z, LANES_OF(m), NOTHING, set->maximum(s, n, m));
}

INLINE void exp_sum_tried(const two_sets *z, float *s, int n, float dead, const float *m, float *l)
{
    EACH_KEYS(z, j, keys, n)
    TRY(z, ROWS_OF(s), LANES_OF(l), set->exp_sum(s, keys, dead, m, l));
}

INLINE void exp_block_tried(const two_sets *z, const attn_exp *e)
{
    TRY(z, FLOATS(e->s, e->n * z->fast->rows), LANES_OF(e->l), set->exp_block(e));
}

INLINE void rescale_tried(const two_sets *z, float *x, const float *alpha, int64_t count)
{
    for (int64_t at = 0, n; (n = piece_of(at, count, PIECE_COLUMNS)) > 0; at += n) {
        float *const from = x + at * z->fast->rows;
        TRY(z, FLOATS(from, n * z->fast->rows), NOTHING, set->rescale(from, alpha, n));
    }
}

INLINE void pv_tried(const two_sets *z, const attn_product *p)
{
    attn_product q = *p;
    for (int64_t d = 0; (q.dim = piece_of(d, p->dim, PIECE_COLUMNS)) > 0; d += q.dim) {
        q.to = p->to + d * z->fast->rows;
        q.kv = p->kv + d;
        TRY(z, FLOATS(q.to, q.dim * z->fast->rows), NOTHING, set->pv(&q));
    }
}

INLINE void gradient_tried(const two_sets *z, float *s, float *dp, int n, const attn_row_stats *of)
{
    EACH_KEYS(z, j, keys, n)
    {
        float *const dp_keys = dp + j * z->fast->rows;
        TRY(z, ROWS_OF(s), ROWS_OF(dp_keys), set->gradient(s, dp_keys, keys, of));
    }
}

INLINE void softcap_gradient_tried(const two_sets *z, float *s, const float *t, const float *p,
                                   int n)
{
    EACH_KEYS(z, j, keys, n)
    {
        const int at = j * z->fast->rows;
        TRY(z, ROWS_OF(s), NOTHING, set->softcap_gradient(s, t + at, p + at, keys));
    }
}

/* Terms from `from` on, seen from this key and column: as many as fit. */
INLINE int take_terms(attn_term *to, const attn_outer *f, int from, int rows, int key,
                      int64_t column)
{
    const int count = (int)piece_of(from, f->count, PIECE_TERMS);
    int i;
    for (i = 0; i < count; i++) {
        to[i] = f->term[from + i];
        to[i].x += key * rows;
        to[i].b += column;
        to[i].begin -= key;
        to[i].end -= key;
    }
    return count;
}

/* Keys and columns from here on, as many as a piece has: all terms. */
INLINE void outer_piece(const two_sets *z, const attn_outer *f, int key, int64_t column)
{
    attn_term terms[PIECE_TERMS];
    attn_outer q = *f;
    int from;
    q.to = f->to + key * f->stride + column;
    q.n = (int)piece_of(key, f->n, PIECE_KEYS);
    q.columns = piece_of(column, f->columns, KEPT / PIECE_KEYS);
    q.term = terms;
    for (from = 0; from < f->count; from += q.count) {
        const int64_t written = (q.columns + VL - 1) / VL * VL;
        q.count = take_terms(terms, f, from, z->fast->rows, key, column);
        TRY(z, ((changed_floats){ q.to, written, q.n, f->stride }), NOTHING, set->outer(&q));
    }
}

INLINE void outer_tried(const two_sets *z, const attn_outer *f)
{
    int key;
    int64_t column;
    for (key = 0; key < f->n; key += PIECE_KEYS)
        for (column = 0; column < f->columns; column += KEPT / PIECE_KEYS)
            outer_piece(z, f, key, column);
}

/* ---- the tables */

#define WAY_widen_f16 fast
#define WAY_widen_bf16 fast
#define WAY_widen_e4m3 fast
#define WAY_widen_e5m2 fast
#define WAY_widen_q8_0 fast
#define WAY_widen_q5_0 fast
#define WAY_widen_q4_0 fast
#define WAY_widen_i8 written
#define WAY_narrow_f16 fast
#define WAY_narrow_bf16 fast
#define WAY_pack fast
#define WAY_qk written
#define WAY_pack_units fast
#define WAY_qk_units written
#define WAY_softcap changed
#define WAY_scale_keys changed
#define WAY_add_distances changed
#define WAY_add_rows changed
#define WAY_clip fast
#define WAY_hide fast
#define WAY_hide_bytes fast
#define WAY_hide_others fast
#define WAY_running_max changed
#define WAY_maximum changed
#define WAY_exp_sum changed
#define WAY_exp_block changed
#define WAY_finite fast
#define WAY_drop fast
#define WAY_rescale changed
#define WAY_pv changed
#define WAY_pv_select exact
#define WAY_merge exact
#define WAY_result written
#define WAY_gradient changed
#define WAY_softcap_gradient changed
#define WAY_outer changed
#define WAY_outer_select exact
#define WAY_dots written

#define RETURN_void
#define RETURN_int return
#define OPEN(...) __VA_ARGS__
#define CALL(function, ...) function(__VA_ARGS__)
#define OWN(name) SIMD_JOIN(name, SHAPE)
#define MAKE_fast(result, name, parameters, arguments)
#define MAKE_exact(result, name, parameters, arguments)
#define MAKE_written(result, name, parameters, arguments)                                          \
    static result SIMD_JOIN(OWN(name), written) parameters                                         \
    {                                                                                              \
        TRY(&OWN(sets), NOTHING, NOTHING, set->name arguments);                                    \
    }
#define MAKE_changed(result, name, parameters, arguments)                                          \
    static result SIMD_JOIN(OWN(name), changed) parameters                                         \
    {                                                                                              \
        RETURN_##result CALL(name##_tried, &OWN(sets), OPEN arguments);                            \
    }
#define MAKE_BY(way, ...) SIMD_JOIN(MAKE, way)(__VA_ARGS__)
#define MAKE(result, name, parameters, arguments)                                                  \
    MAKE_BY(WAY_##name, result, name, parameters, arguments)
#define ENTRY_OF(result, kernel, parameters, arguments)                                            \
    .kernel = SIMD_JOIN(OWN(kernel), WAY_##kernel),

#define SHAPE neon32
static const two_sets OWN(sets) = { &kernels_neon32_fast, &kernels_neon32_exact };
ATTN_SET_KERNELS(MAKE)
static const attn_kernels kernels_neon32 = {
    .abi = ATTN_KERNEL_ABI, .rows = 12, .name = "neon32", ATTN_SET_KERNELS(ENTRY_OF)
};
#undef SHAPE
#define SHAPE neon32_narrow
static const two_sets OWN(sets) = { &kernels_neon32_narrow_fast, &kernels_neon32_narrow_exact };
ATTN_SET_KERNELS(MAKE)
static const attn_kernels kernels_neon32_narrow = {
    .abi = ATTN_KERNEL_ABI, .rows = 4, .name = "neon32_narrow", ATTN_SET_KERNELS(ENTRY_OF)
};

#define HOLD(x) __asm__ volatile("" : "+w"(x)) /* It is computed between those before and behind. */
#define TELLS(operation)                                                                           \
    do {                                                                                           \
        HOLD(x);                                                                                   \
        HOLD(least);                                                                               \
        HOLD(half);                                                                                \
        result = operation;                                                                        \
        HOLD(result);                                                                              \
        told &= end_watch(0);                                                                      \
    } while (0)

/* Whether FPSCR tells of each kind of instruction what the sets wait for: of inputs, then of results. */
OUTLINE int tells_of_flushes(void)
{
    const uint32_t before = begin_watch();
    float32x4_t x = v_float(vdupq_n_u32(1)), least = v_float(vdupq_n_u32(0x00800000u));
    float32x4_t half = v_set1(0.5f), result;
    int told = 1;
    TELLS(vaddq_f32(x, half));
    TELLS(vsubq_f32(half, x));
    TELLS(vmulq_f32(x, half));
    TELLS(vfmaq_f32(half, x, half));
    TELLS(vfmaq_f32(x, half, half));
    TELLS(v_float(greater_neon(half, x)));
    TELLS(v_float(equal_neon(half, x)));
    TELLS(vsubq_f32(v_float(vdupq_n_u32(0x00800001u)), least));
    TELLS(vmulq_f32(least, half));
    TELLS(vfmaq_f32(v_zero(), least, half));
    (void)end_watch(before);
    return told;
}

static int runs_here(void)
{
    return attn_cpu_features() & ATTN_CPU_NEON_32 && tells_of_flushes();
}
#endif

#if !defined __clang__
#pragma GCC pop_options
#endif
#endif

#ifdef NEON_64
ATTN_API const attn_kernels *attn_kernels_neon(void)
{
    return &kernels_neon;
}

ATTN_API const attn_kernels *attn_kernels_neon_narrow(void)
{
    return &kernels_neon_narrow;
}
#else
ATTN_API const attn_kernels *attn_kernels_neon(void)
{
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_neon_narrow(void)
{
    return NULL;
}
#endif

#ifdef HAS_BF16
ATTN_API const attn_kernels *attn_kernels_neon_bf16(void)
{
    return attn_cpu_features() & ATTN_CPU_BF16 ? &kernels_neon_bf16 : NULL;
}
#else
ATTN_API const attn_kernels *attn_kernels_neon_bf16(void)
{
    return NULL;
}
#endif

#ifdef NEON_32
ATTN_API const attn_kernels *attn_kernels_neon32(void)
{
    return runs_here() ? &kernels_neon32 : NULL;
}

ATTN_API const attn_kernels *attn_kernels_neon32_narrow(void)
{
    return runs_here() ? &kernels_neon32_narrow : NULL;
}
#else
ATTN_API const attn_kernels *attn_kernels_neon32(void)
{
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_neon32_narrow(void)
{
    return NULL;
}
#endif
