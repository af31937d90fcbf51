/* attn_simd_rvv.c - the kernels of attn_simd.h for 64-bit RISC-V with the vector extension V 1.0, for any
 * length of its registers. Compiles to a stub on other machines, and by gcc and by clang before 17; needs
 * no compiler flags.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * Its vectors are those of GNU C, 4 floats, which every such register has room for. What is longer stays
 * empty. With -march=rv64gcv_zvl256b for this file they have 8, for CPUs with 256 bits and more alone.
 */
#define ATTN_KERNEL_FILE
#include "attn_simd.h"

#if defined __riscv && __riscv_xlen == 64 && defined __clang_major__ && __clang_major__ >= 17
#if defined __FAST_MATH__
#error "attn_simd_rvv.c: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#pragma clang fp contract(off) reassociate(off)

#if defined __riscv_v_min_vlen && __riscv_v_min_vlen >= 256
#define VL 8
#define IN_ALL(f) f, f, f, f, f, f, f, f
#define EVEN_ONES 0, 8, 2, 10, 4, 12, 6, 14
#define ODD_ONES 1, 9, 3, 11, 5, 13, 7, 15
#define LOW_PAIRS 0, 1, 8, 9, 4, 5, 12, 13
#define HIGH_PAIRS 2, 3, 10, 11, 6, 7, 14, 15
#else
#define VL 4
#define IN_ALL(f) f, f, f, f
#define EVEN_ONES 0, 4, 2, 6
#define ODD_ONES 1, 5, 3, 7
#define LOW_PAIRS 0, 1, 4, 5
#define HIGH_PAIRS 2, 3, 6, 7
#endif
#ifndef __riscv_v
#pragma clang attribute push(__attribute__((target("arch=+v"))), apply_to = function)
#endif

#define VECTOR(bytes) __attribute__((vector_size(bytes)))
#define ALIGNED(bytes) __attribute__((may_alias, aligned(bytes)))
typedef float floats_rvv VECTOR(4 * VL);
typedef int32_t ints_rvv VECTOR(4 * VL);
typedef uint32_t words_rvv VECTOR(4 * VL);
typedef uint64_t longs_rvv VECTOR(8 * VL);
typedef uint16_t halves_rvv VECTOR(2 * VL);
typedef uint8_t bytes_rvv VECTOR(VL);
typedef int8_t signed_bytes_rvv VECTOR(VL);
typedef floats_rvv floats_at ALIGNED(4);
typedef words_rvv words_at ALIGNED(4);
typedef halves_rvv halves_at ALIGNED(2);
typedef bytes_rvv bytes_at ALIGNED(1);
typedef signed_bytes_rvv signed_bytes_at ALIGNED(1);
/* of a quarter */
typedef uint32_t four_words VECTOR(16);
typedef uint16_t four_halves VECTOR(8);
typedef uint8_t four_bytes VECTOR(4);
typedef four_words four_words_at ALIGNED(1);
typedef four_halves four_halves_at ALIGNED(1);
typedef four_bytes four_bytes_at ALIGNED(1);

#define LOAD_AT(type, p) (*(const type *)(const void *)(p))
#define STORE_AT(type, p, x) (void)(*(type *)(void *)(p) = (x))
#define CONVERTED(type, x) __builtin_convertvector(x, type)
#define SHUFFLE __builtin_shufflevector
#define WORDS_AT(p) LOAD_AT(words_at, p)
#define SPLAT(u) ((words_rvv){ IN_ALL((uint32_t)(u)) })
#define SIGN 0x80000000u
#define MASK(m) ((words_rvv)(m)) /* of a comparison: all ones or 0 */

#define REGISTERS 32
#define vf floats_rvv
#define vm ints_rvv
#define v_load(p) LOAD_AT(floats_at, p)
#define v_store(p, x) STORE_AT(floats_at, p, x)
#define v_set1(f) ((floats_rvv){ IN_ALL(f) })
#define v_zero() v_set1(0.0f)
#define v_fma(a, b, c) __builtin_elementwise_fma(a, b, c)
#define v_add(a, b) ((a) + (b))
#define v_sub(a, b) ((a) - (b))
#define v_mul(a, b) ((a) * (b))
#define v_div(a, b) ((a) / (b))
#define v_max(a, b) v_select((a) > (b), a, b)
#define v_gt(a, b) ((a) > (b))
#define v_lt(a, b) ((a) < (b))
#define v_eq(a, b) ((a) == (b))
#define v_nan(x) ((x) != (x))
#define v_select(m, a, b) v_float(select_rvv(MASK(m), v_int(a), v_int(b)))
#define vm_and(m, n) ((m) & (n))
#define vm_any(m) (__builtin_reduce_or(m) != 0)
#define vm_all(m) (__builtin_reduce_and(m) != 0)
#define v_int(x) ((words_rvv)(x))
#define v_float(x) ((floats_rvv)(x))
#define v_pow2(y, t) v_float(v_int(y) + (v_int(t) << 23))
#define v_dead(b, x, y) v_select(v_int(b) == SPLAT(SIGN), x, y) /* -0 */
#define v_magnitude(x) (v_int(x) & ~SIGN)
#define v_copysign(x, s) v_float(v_int(x) | (v_int(s) & SIGN))
#define v_larger(a, x) v_float(__builtin_elementwise_max(v_int(a), v_magnitude(x)))
#define v_ints(p) i_floats(WORDS_AT(p))
#define v_bit(p, i) ((WORDS_AT(p) & (1u << (i))) != 0)
#define v_distance(p, i) v_float(v_magnitude(i_floats(WORDS_AT(p) - (uint32_t)(i))))
#define v_same(p, i) (WORDS_AT(p) == SPLAT(i))
#define vm_bits(m) mask_of_rvv(m)
#define b_nonzero(p) nonzero_rvv(p)
#define v_i8(p) CONVERTED(floats_rvv, LOAD_AT(signed_bytes_at, p))
#define vi words_rvv
#define i_load(p) WORDS_AT(p)
#define i_set1(p) SPLAT(load_word(p))
#define i_store(p, x) STORE_AT(words_at, p, x)
#define i_zero() SPLAT(0)
#define i_floats(x) CONVERTED(floats_rvv, (ints_rvv)(x))
#define i_bytes(p) CONVERTED(words_rvv, LOAD_AT(bytes_at, p))
#define v_four(x, y) (i_floats(((x)&15u) - 8u) * (y))
#define v_five(x, y) (i_floats(((x)&31u) - 16u) * (y))
#define I_PARTS 2
#define i_part(x, e) part_rvv(x, (e) ? 0 : 8)
#define i_sum(sum, k, q) sum_rvv(sum, k, q)
#undef HAS_DOTS
#define HAS_DOTS 0
#define I_TURNED 0u
#define i_turn(x) (x)
#define i_dot(sum, k, q) (sum) /* never called */
#define HALVES_AT(p) CONVERTED(words_rvv, LOAD_AT(halves_at, p))
#define v_scale(p) from_f16_rvv(SPLAT((uint16_t)load_half(p)))
#define v_f16(p) from_f16_rvv(HALVES_AT(p))
#define v_bf16(p) v_float(HALVES_AT(p) << 16)
#define v_e4m3(p) from_e4m3_rvv(i_bytes(p))
#define v_e5m2(p) from_f16_rvv(i_bytes(p) << 8)
#define v_to_f16(p, x) store_half_rvv(p, to_f16_rvv(x))
#define v_to_bf16(p, x) store_half_rvv(p, round_rvv(v_int(x), 16))
#define v_transpose(x) transpose_rvv(x)
#define v_squares(x) squares_rvv(x)
#define v_quarters(p, at) v_float(QUARTERS_AT(four_words_at, p, at))
#define v_quarters_f16(p, at) from_f16_rvv(CONVERTED(words_rvv, QUARTERS_AT(four_halves_at, p, at)))
#define QUARTERS_OF_BYTES(p, at) CONVERTED(words_rvv, QUARTERS_AT(four_bytes_at, p, at))
#define v_quarters_e4m3(p, at) from_e4m3_rvv(QUARTERS_OF_BYTES(p, at))
#define v_quarters_e5m2(p, at) from_f16_rvv(QUARTERS_OF_BYTES(p, at) << 8)
#define v_lower_bf16(x) v_float(v_int(x) << 16)
#define v_upper_bf16(x) v_float(v_int(x) & 0xffff0000u)
#define PIN(x) (void)0 /* clang has no constraint for these vectors. */
#define vw words_rvv
#define w_load(p) WORDS_AT(p)
#define w_set1(u) SPLAT(u)
#define w_low(x, u) ((x) * (u))
#define w_high(x, u) words_high_rvv(x, u)
#define w_xor(a, b, c) ((a) ^ (b) ^ (c))
#define w_below(x, u) ((x) < (u))

INLINE words_rvv select_rvv(words_rvv m, words_rvv a, words_rvv b)
{
    return (m & a) | (~m & b);
}

INLINE uint32_t mask_of_rvv(ints_rvv m)
{
    typedef _Bool bits __attribute__((ext_vector_type(VL)));
    const bits set = CONVERTED(bits, m);
    uint8_t result;
    memcpy(&result, &set, sizeof result);
    return result & ((1u << VL) - 1); /* Bits behind the vector are anything. */
}

INLINE uint32_t nonzero_rvv(const uint8_t *p)
{
    typedef uint8_t many VECTOR(32);
    typedef _Bool bits __attribute__((ext_vector_type(32)));
    many x;
    bits set;
    uint32_t result;
    memcpy(&x, p, sizeof x);
    set = CONVERTED(bits, x != 0);
    memcpy(&result, &set, sizeof result);
    return result;
}

INLINE words_rvv words_high_rvv(words_rvv x, uint32_t u)
{
    return CONVERTED(words_rvv, CONVERTED(longs_rvv, x) * u >> 32);
}

/* Two numbers of 16 bits in each word, from the bytes that lie `up` bits below their upper halves. */
INLINE words_rvv part_rvv(words_rvv x, int up)
{
    typedef int16_t pairs VECTOR(4 * VL);
    return (words_rvv)((pairs)x << up >> 8);
}

INLINE words_rvv sum_rvv(words_rvv sum, words_rvv k, words_rvv q)
{
    const ints_rvv lower = (((ints_rvv)k << 16) >> 16) * (((ints_rvv)q << 16) >> 16);
    return sum + (words_rvv)(((ints_rvv)k >> 16) * ((ints_rvv)q >> 16)) + (words_rvv)lower;
}

/* ---- storage types: as f16_to_f32 and f16_from_f32 of attn.c, a vector at a time */

/* The exponent of f16, in the place of that of f32, is 112 too small. */
INLINE floats_rvv from_f16_rvv(words_rvv h)
{
    const words_rvv rest = h & 0x7fff, sign = (h & 0x8000) << 16;
    const words_rvv number = v_int(v_mul(v_float(rest << 13), v_set1(0x1p112f)));
    const words_rvv strange = MASK(rest > 0x7bff) & 0x7f800000; /* infinity, NaN */
    return v_float(number | strange | sign);
}

/* That of E4M3 is 120 too small. */
INLINE floats_rvv from_e4m3_rvv(words_rvv x)
{
    const words_rvv rest = x & 0x7f, sign = (x & 0x80) << 24;
    const words_rvv number = v_int(v_mul(v_float(rest << 20), v_set1(0x1p120f)));
    const words_rvv nan = MASK(rest == 0x7f) & 0x7fc00000;
    return v_float(number | nan | sign);
}

/* The low halves of h, without -0. */
INLINE void store_half_rvv(uint16_t *p, words_rvv h)
{
    const halves_rvv half = CONVERTED(halves_rvv, h);
    STORE_AT(halves_at, p, half & (halves_rvv)(half != 0x8000));
}

/* u / 2^shift to nearest even. */
INLINE words_rvv round_rvv(words_rvv u, int shift)
{
    return (u + ((1u << (shift - 1)) - 1) + (u >> shift & 1)) >> shift;
}

INLINE words_rvv to_f16_rvv(floats_rvv x)
{
    const words_rvv a = v_magnitude(x), sign = v_int(x) >> 16 & 0x8000;
    const words_rvv is_small = MASK(a < 0x38800000); /* below 2^-14 */
    const floats_rvv half = v_set1(0.5f);            /* the last bit of a sum with it is 2^-24 */
    const words_rvv small = v_int(v_add(v_float(is_small & a), half)) - v_int(half);
    words_rvv h = select_rvv(is_small, small, round_rvv(a - (112u << 23), 13));
    h = select_rvv(MASK(a > 0x477fefff), SPLAT(0x7c00), h);
    return select_rvv(MASK(a > 0x7f800000), SPLAT(0x7e00), h | sign);
}

/* ---- elements in another order */

/* x[0..3] as a square of 4 x 4 in each quarter: pairs of rows, then halves. */
INLINE void squares_rvv(floats_rvv *x)
{
    const floats_rvv a = SHUFFLE(x[0], x[1], EVEN_ONES), b = SHUFFLE(x[0], x[1], ODD_ONES);
    const floats_rvv c = SHUFFLE(x[2], x[3], EVEN_ONES), d = SHUFFLE(x[2], x[3], ODD_ONES);
    x[0] = SHUFFLE(a, c, LOW_PAIRS);
    x[1] = SHUFFLE(b, d, LOW_PAIRS);
    x[2] = SHUFFLE(a, c, HIGH_PAIRS);
    x[3] = SHUFFLE(b, d, HIGH_PAIRS);
}

#if VL == 4 /* A vector is one quarter. */
#define QUARTERS_AT(type, p, at) LOAD_AT(type, (p)[0] + (at))
#define transpose_rvv(x) squares_rvv(x)
#define v_put_quarters(p, at, x) v_store((p)[0] + (at), x)
#define v_put_first(p, x) v_store(p, x)
#define v_add_quarters(a, x) v_add(a, x)
#define v_quarter(x, i) ((void)(i), (x))
#else
#define JOINED(x, y) SHUFFLE(x, y, 0, 1, 2, 3, 4, 5, 6, 7)
#define FIRST_QUARTER(x) SHUFFLE(x, x, 0, 1, 2, 3)
#define LAST_QUARTER(x) SHUFFLE(x, x, 4, 5, 6, 7)
#define QUARTERS_AT(type, p, at) JOINED(LOAD_AT(type, (p)[0] + (at)), LOAD_AT(type, (p)[1] + (at)))
#define v_put_quarters(p, at, x)                                                                   \
    (v_put_first((p)[0] + (at), x), STORE_AT(four_words_at, (p)[1] + (at), LAST_QUARTER(v_int(x))))
#define v_put_first(p, x) STORE_AT(four_words_at, p, FIRST_QUARTER(v_int(x)))
#define v_add_quarters(a, x) add_quarters_rvv(a, x)
#define v_quarter(x, i)                                                                            \
    ((i) ? SHUFFLE(x, x, 4, 5, 6, 7, 4, 5, 6, 7) : JOINED(FIRST_QUARTER(x), FIRST_QUARTER(x)))

INLINE floats_rvv add_quarters_rvv(floats_rvv a, floats_rvv x)
{
    const floats_rvv sum = v_add(a, x);
    return v_add(sum, SHUFFLE(x, x, 4, 5, 6, 7, 4, 5, 6, 7));
}

INLINE void transpose_rvv(floats_rvv *x)
{
    squares_rvv(x);
    squares_rvv(x + 4);
    EACH(i, 4) {
        const floats_rvv a = x[i], b = x[i + 4];
        x[i] = JOINED(FIRST_QUARTER(a), FIRST_QUARTER(b));
        x[i + 4] = JOINED(LAST_QUARTER(a), LAST_QUARTER(b));
    }
}
#endif

#define ISA rvv
#define ISA_NAME "rvv"
#define NV 3
#define MR 8 /* 24 accumulators + 3 loaded of 32 registers; factors are floats of their own */
#include "attn_simd.h"
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#define ISA rvv_narrow
#define ISA_NAME "rvv_narrow"
#define NV 2
#define MR 8
#define FEW 4
#include "attn_simd.h"

#ifndef __riscv_v
#pragma clang attribute pop
#endif

ATTN_API const attn_kernels *attn_kernels_rvv(void)
{
    return attn_cpu_features() & ATTN_CPU_RVV ? &kernels_rvv : NULL;
}

ATTN_API const attn_kernels *attn_kernels_rvv_narrow(void)
{
    return attn_cpu_features() & ATTN_CPU_RVV ? &kernels_rvv_narrow : NULL;
}
#else
ATTN_API const attn_kernels *attn_kernels_rvv(void)
{
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_rvv_narrow(void)
{
    return NULL;
}
#endif
