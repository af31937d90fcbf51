/* attn_simd_wasm.c - the kernels of attn_simd.h for WebAssembly with SIMD128 (-msimd128), which has no
 * fused multiply-add: it is computed exactly instead. Compiles to a stub on other machines, and without
 * the flag, since an engine runs a module with vectors or refuses all of it.
 *
 * Relaxed SIMD (-mrelaxed-simd, too) has a multiply-add that is rounded once or twice, as the engine likes.
 * With that flag there are sets by it, several times as fast, for engines that round once.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 */
#define ATTN_KERNEL_FILE
#include "attn_simd.h"

#if defined __wasm_simd128__
#if defined __FAST_MATH__
#error "attn_simd_wasm.c: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#pragma clang fp contract(off) reassociate(off)
#include <wasm_simd128.h>
#if defined __wasm_relaxed_simd__ && __has_builtin(__builtin_wasm_relaxed_madd_f32x4)
#define HAS_RELAXED /* clang 14 and 15 have the flag, but not the function */
#endif

#define REGISTERS 16
#define VL 4
#define vf v128_t
#define vm v128_t
#define v_load(p) wasm_v128_load(p)
#define v_store(p, x) wasm_v128_store(p, x)
#define v_set1(f) wasm_f32x4_splat(f)
#define v_zero() wasm_i32x4_const_splat(0)
#define v_fma(a, b, c) wasm_fma(SPARSE, a, b, c)
#define v_add(a, b) wasm_f32x4_add(a, b)
#define v_sub(a, b) wasm_f32x4_sub(a, b)
#define v_mul(a, b) wasm_f32x4_mul(a, b)
#define v_div(a, b) wasm_f32x4_div(a, b)
#define v_max(a, b) wasm_f32x4_pmax(b, a) /* b < a ? a : b */
#define v_gt(a, b) wasm_f32x4_gt(a, b)
#define v_lt(a, b) wasm_f32x4_lt(a, b)
#define v_eq(a, b) wasm_f32x4_eq(a, b)
#define v_nan(x) wasm_f32x4_ne(x, x)
#define v_select(m, a, b) wasm_v128_bitselect(a, b, m)
#define vm_and(m, n) wasm_v128_and(m, n)
#define vm_any(m) wasm_v128_any_true(m)
#define vm_all(m) wasm_i32x4_all_true(m)
#define vm_bits(m) ((uint32_t)wasm_i32x4_bitmask(m))
#define INTS(i) wasm_i32x4_splat((int)(i))
#define v_pow2(y, t) wasm_i32x4_add(y, wasm_i32x4_shl(t, 23))
#define v_dead(b, x, y) v_select(wasm_i32x4_eq(b, INTS(INT32_MIN)), x, y)
#define v_magnitude(x) wasm_v128_and(x, INTS(0x7fffffff))
#define v_copysign(x, s) wasm_v128_or(x, wasm_v128_and(s, INTS(INT32_MIN)))
#define v_larger(a, x) wasm_i32x4_max(a, v_magnitude(x))
#define v_ints(p) wasm_f32x4_convert_i32x4(wasm_v128_load(p))
#define v_bit(p, i) /* its sign in all bits */                                                     \
    wasm_i32x4_shr(wasm_i32x4_shl(wasm_v128_load(p), (uint32_t)(31 - (i))), 31)
#define v_distance(p, i)                                                                           \
    v_magnitude(wasm_f32x4_convert_i32x4(wasm_i32x4_sub(wasm_v128_load(p), INTS(i))))
#define v_same(p, i) wasm_i32x4_eq(wasm_v128_load(p), INTS(i))
#define b_nonzero(p) nonzero_wasm(p)
#define v_half(p) wasm_u32x4_load16x4(p)
#define v_i8(p) wasm_f32x4_convert_i32x4(bytes_wasm(p))
#define vi v128_t
#define i_load(p) wasm_v128_load(p)
#define i_set1(p) INTS(load_word(p))
#define i_store(p, x) wasm_v128_store(p, x)
#define i_zero() v_zero()
#define i_floats(x) wasm_f32x4_convert_i32x4(x)
#define I_PARTS 2
#define i_sum(sum, k, q) wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(k, q))
#define i_part(x, e) wasm_i16x8_shr((e) ? (x) : wasm_i16x8_shl(x, 8), 8)
#undef HAS_DOTS
#define HAS_DOTS 0
#define I_TURNED 0u
#define i_turn(x) (x)
#define i_dot(sum, k, q) (sum)
#define v_scale(p) from_f16_wasm(INTS((uint16_t)load_half(p)))
#define v_f16(p) from_f16_wasm(v_half(p))
#define v_bf16(p) wasm_i32x4_shl(v_half(p), 16)
#define v_e4m3(p) e4m3_wasm(upper_halves_wasm(p))
#define v_e5m2(p) from_f16_wasm(upper_halves_wasm(p))
#define v_to_f16(p, x) to_f16_wasm(p, x)
#define v_to_bf16(p, x) to_bf16_wasm(p, x)
#define v_transpose(x) transpose_wasm(x)
#if __clang_major__ >= 21
#define PIN(x) __asm__("" : "+r"(x))
#else
#define PIN(x) (void)0 /* They end where assembly has a vector. */
#endif
#define vw v128_t
#define w_load(p) wasm_v128_load(p)
#define w_set1(u) INTS(u)
#define w_low(x, u) wasm_i32x4_mul(x, INTS(u))
#define w_high(x, u) words_high_wasm(x, INTS(u))
#define w_xor(a, b, c) wasm_v128_xor(wasm_v128_xor(a, b), c)
#define w_below(x, u) wasm_u32x4_lt(x, INTS(u))

INLINE v128_t words_high_wasm(v128_t x, v128_t u)
{
    const v128_t low = wasm_u64x2_extmul_low_u32x4(x, u);
    const v128_t high = wasm_u64x2_extmul_high_u32x4(x, u);
    return wasm_i32x4_shuffle(low, high, 1, 3, 5, 7);
}

/* Four bytes as words. */
INLINE v128_t bytes_wasm(const void *p)
{
    return wasm_i32x4_extend_low_i16x8(wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(p)));
}

INLINE uint32_t zeros_wasm(const uint8_t *p)
{
    return (uint32_t)wasm_i8x16_bitmask(wasm_i8x16_eq(wasm_v128_load(p), v_zero()));
}

INLINE uint32_t nonzero_wasm(const uint8_t *p)
{
    return ~(zeros_wasm(p) | zeros_wasm(p + 16) << 16);
}

INLINE void transpose_wasm(v128_t *x)
{
    const v128_t a = wasm_i32x4_shuffle(x[0], x[1], 0, 4, 1, 5);
    const v128_t b = wasm_i32x4_shuffle(x[2], x[3], 0, 4, 1, 5);
    const v128_t c = wasm_i32x4_shuffle(x[0], x[1], 2, 6, 3, 7);
    const v128_t d = wasm_i32x4_shuffle(x[2], x[3], 2, 6, 3, 7);
    x[0] = wasm_i64x2_shuffle(a, b, 0, 2);
    x[1] = wasm_i64x2_shuffle(a, b, 1, 3);
    x[2] = wasm_i64x2_shuffle(c, d, 0, 2);
    x[3] = wasm_i64x2_shuffle(c, d, 1, 3);
}

/* ---- storage types: as f16_to_f32 and f16_from_f32 of attn.c, four at a time */

INLINE v128_t from_f16_wasm(v128_t h)
{
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(h, INTS(0x8000)), 16);
    const v128_t rest = wasm_v128_and(h, INTS(0x7fff)), bias = INTS(112u << 23);
    const v128_t strange = wasm_i32x4_gt(rest, INTS(0x7bff)); /* infinity, NaN */
    const v128_t normal = wasm_i32x4_add(wasm_i32x4_shl(rest, 13), bias);
    const v128_t small = v_mul(wasm_f32x4_convert_i32x4(rest), v_set1(0x1p-24f));
    const v128_t u = wasm_i32x4_add(normal, wasm_v128_and(strange, bias));
    return wasm_v128_or(v_select(wasm_i32x4_lt(rest, INTS(0x400)), small, u), sign);
}

/* Four 8-bit floats as the upper halves of 16 bits, in words. */
INLINE v128_t upper_halves_wasm(const void *p)
{
    return wasm_v128_and(wasm_i32x4_shl(bytes_wasm(p), 8), INTS(0xff00));
}

INLINE v128_t e4m3_wasm(v128_t upper)
{
    const v128_t sign = wasm_v128_and(upper, INTS(0x8000));
    const v128_t rest = wasm_v128_and(upper, INTS(0x7f00)), half = wasm_u32x4_shr(rest, 1);
    const v128_t nan = wasm_v128_and(wasm_i32x4_eq(rest, INTS(0x7f00)), INTS(0x7e00));
    const v128_t bits = wasm_v128_or(wasm_v128_or(sign, half), nan);
    return v_mul(from_f16_wasm(bits), v_set1(256.0f));
}

/* The low halves of h, without -0. */
INLINE void store_half_wasm(uint16_t *p, v128_t h)
{
    const v128_t wide = wasm_i32x4_shr(wasm_i32x4_shl(h, 16), 16);
    const v128_t half = wasm_i16x8_narrow_i32x4(wide, wide);
    const v128_t minus = wasm_i16x8_eq(half, wasm_i16x8_splat(INT16_MIN));
    wasm_v128_store64_lane(p, wasm_v128_andnot(half, minus), 0);
}

/* u / 2^shift to nearest even. */
INLINE v128_t round_wasm(v128_t u, uint32_t shift)
{
    const v128_t odd = wasm_v128_and(wasm_u32x4_shr(u, shift), INTS(1));
    const v128_t up = wasm_i32x4_add(u, INTS((1u << (shift - 1)) - 1));
    return wasm_u32x4_shr(wasm_i32x4_add(up, odd), shift);
}

INLINE void to_f16_wasm(uint16_t *p, v128_t x)
{
    const v128_t a = v_magnitude(x);
    const v128_t sign = wasm_v128_and(wasm_u32x4_shr(x, 16), INTS(0x8000));
    const v128_t is_small = wasm_i32x4_lt(a, INTS(0x38800000)); /* below 2^-14 */
    const v128_t half = v_set1(0.5f); /* the last bit of a sum with it is 2^-24 */
    const v128_t sum = v_add(wasm_v128_and(is_small, a), half);
    v128_t h = round_wasm(wasm_i32x4_sub(a, INTS(112u << 23)), 13);
    h = v_select(is_small, wasm_i32x4_sub(sum, half), h);
    h = v_select(wasm_i32x4_gt(a, INTS(0x477fefff)), INTS(0x7c00), h);
    h = v_select(wasm_i32x4_gt(a, INTS(0x7f800000)), INTS(0x7e00), wasm_v128_or(h, sign));
    store_half_wasm(p, h);
}

INLINE void to_bf16_wasm(uint16_t *p, v128_t x)
{
    store_half_wasm(p, round_wasm(x, 16));
}

/* ---- a * b + c rounded once: attn_simd_sse2.c tells why each step is right */

#define RARE(x) __builtin_expect(x, 0)
#define LOW(x) wasm_f64x2_promote_low_f32x4(x)
#define HIGH(x) LOW(wasm_i64x2_shuffle(x, x, 1, 1))

/* Two pairs of binary64 numbers, rounded. */
INLINE v128_t narrow_wasm(v128_t s0, v128_t s1)
{
    const v128_t low = wasm_f32x4_demote_f64x2_zero(s0), high = wasm_f32x4_demote_f64x2_zero(s1);
    return wasm_i64x2_shuffle(low, high, 0, 2);
}

/* The lanes whose sum is midway with a normal result, or whose result is subnormal, not 0, or
 * 2^-126, to which the midway below it is rounded; words are the last ones of the sums. */
INLINE v128_t suspects_wasm(v128_t words, v128_t result)
{
    const v128_t midway = wasm_i32x4_eq(wasm_i32x4_shl(words, 3), INTS(INT32_MIN));
    /* without its sign bit and less 1, modulo 2^32, 0 comes last and the subnormals first */
    const v128_t rank = wasm_i32x4_sub(wasm_i32x4_shl(result, 1), INTS(1));
    return wasm_v128_or(midway, wasm_u32x4_lt(rank, INTS(0x01000000))); /* 2^-126: 00ffffff */
}

/* p + c rounded to odd in binary64 where `lanes` is set, elsewhere to nearest. */
INLINE v128_t odd_wasm(v128_t p, v128_t c, v128_t lanes)
{
    const v128_t one = wasm_i64x2_splat(1);
    const v128_t s = wasm_f64x2_add(p, c), t = wasm_f64x2_sub(s, p);
    const v128_t e = wasm_f64x2_add(wasm_f64x2_sub(p, wasm_f64x2_sub(s, t)), wasm_f64x2_sub(c, t));
    const v128_t inexact = wasm_v128_and(lanes, wasm_f64x2_ne(e, wasm_f64x2_splat(0.0)));
    const v128_t even = wasm_i64x2_sub(wasm_v128_and(s, one), one); /* 0 or all ones */
    const v128_t away = wasm_v128_or(wasm_i64x2_shr(wasm_v128_xor(e, s), 63), one);
    const v128_t step = wasm_v128_and(wasm_v128_and(inexact, even), away); /* 0, 1, -1 */
    return wasm_i64x2_add(s, step);
}

/* Any inputs. */
static __attribute__((noinline)) v128_t exact_wasm(v128_t a, v128_t b, v128_t c)
{
    const v128_t p0 = wasm_f64x2_mul(LOW(a), LOW(b)), p1 = wasm_f64x2_mul(HIGH(a), HIGH(b));
    const v128_t c0 = LOW(c), c1 = HIGH(c);
    const v128_t s0 = wasm_f64x2_add(p0, c0), s1 = wasm_f64x2_add(p1, c1);
    const v128_t words = wasm_i32x4_shuffle(s0, s1, 0, 2, 4, 6);
    const v128_t lanes = suspects_wasm(words, narrow_wasm(s0, s1));
    return narrow_wasm(odd_wasm(p0, c0, wasm_i64x2_extend_low_i32x4(lanes)),
                       odd_wasm(p1, c1, wasm_i64x2_extend_high_i32x4(lanes)));
}

/* sparse: as in attn_simd_sse2.c, suspects are found at once, not in two steps. */
INLINE v128_t wasm_fma(int sparse, v128_t a, v128_t b, v128_t c)
{
    const v128_t s0 = wasm_f64x2_add(wasm_f64x2_mul(LOW(a), LOW(b)), LOW(c));
    const v128_t s1 = wasm_f64x2_add(wasm_f64x2_mul(HIGH(a), HIGH(b)), HIGH(c));
    const v128_t words = wasm_i32x4_shuffle(s0, s1, 0, 2, 4, 6);
    const v128_t zeros = wasm_i32x4_eq(wasm_i32x4_shl(words, 4), v_zero());
    const v128_t r = narrow_wasm(s0, s1);
    if ((sparse || RARE(vm_any(zeros))) && RARE(vm_any(suspects_wasm(words, r))))
        return exact_wasm(a, b, c);
    return r;
}

/* ---- chains at once
 *
 * Between two steps a chain is rounded to 24 bits, but stays in binary64: half of the last bit that is kept
 * is added to the bits of the sum, and those below it are cut off. That saves four conversions. It is right
 * unless the sum is midway, where nothing is left to cut off, or its exponent is none of binary32. Factors
 * that are 0 or from 2^-50 to 2^40, and chains that begin below 2^100, exclude the latter: products are then
 * multiples of 2^-146, so that sums are multiples of 2^-149, of which those below 2^-126 have 23 bits. */

#define GROUP 8
#define LEAST INTS(0x26800000 - 1)  /* 2^-50, less 1 as 0 then is the largest */
#define MOST INTS(0x53800000)       /* 2^40 */
#define MOST_BEGUN INTS(0x71800000) /* 2^100 */

/* Magnitudes, as bits: the smallest less 1, and the largest. */
typedef struct range_wasm {
    v128_t least, most;
} range_wasm;

INLINE range_wasm range_with(range_wasm r, v128_t x)
{
    const v128_t magnitude = v_magnitude(x);
    r.least = wasm_u32x4_min(r.least, wasm_i32x4_sub(magnitude, INTS(1)));
    r.most = wasm_u32x4_max(r.most, magnitude);
    return r;
}

/* Of n numbers of each of `rows` rows, n a multiple of 4. */
INLINE range_wasm range_of_wasm(const float *x, int64_t rows, ptrdiff_t stride, int64_t n)
{
    range_wasm r = { INTS(-1), v_zero() };
    int64_t i, j;
    for (i = 0; i < rows; i++, x += stride)
        for (j = 0; j < n; j += VL)
            r = range_with(r, v_load(x + j));
    return r;
}

INLINE int is_moderate(range_wasm r)
{
    return !vm_any(wasm_v128_or(wasm_u32x4_lt(r.least, LEAST), wasm_u32x4_gt(r.most, MOST)));
}

/* a * b + c of two lanes; all ones in *midway where that may be wrong. */
INLINE v128_t wide_fma(v128_t a, v128_t b, v128_t c, v128_t *midway)
{
    const v128_t s = wasm_f64x2_add(wasm_f64x2_mul(a, b), c);
    const v128_t up = wasm_i64x2_add(s, wasm_i64x2_splat(1 << 28));
    const v128_t rounded = wasm_v128_and(up, wasm_i64x2_splat(-(1 << 29)));
    *midway = wasm_v128_or(*midway, wasm_i64x2_eq(up, rounded));
    return rounded;
}

/* Of any sum. */
static __attribute__((noinline)) v128_t wide_exact(v128_t a, v128_t b, v128_t c)
{
    return LOW(wasm_f32x4_demote_f64x2_zero(odd_wasm(wasm_f64x2_mul(a, b), c, INTS(-1))));
}

/* Four numbers, two at a time. */
INLINE void widen_four(v128_t *to, const float *from)
{
    to[0] = LOW(wasm_v128_load64_zero(from));
    to[1] = LOW(wasm_v128_load64_zero(from + 2));
}

/* Whether chains of GROUP rows of x, or else columns, have exponents of binary32 throughout. */
INLINE int are_moderate(int of_rows, int width, int rows, const simd_chains *z, const float *x,
                        const float *c)
{
    const v128_t begun = z->fresh ? v_zero() : range_of_wasm(c, GROUP, rows, width * VL).most;
    return (!of_rows || z->n % VL == 0) && !vm_any(wasm_u32x4_gt(begun, MOST_BEGUN)) &&
           is_moderate(range_of_wasm(z->b, z->n, rows, width * VL)) &&
           is_moderate(of_rows ? range_of_wasm(x, GROUP, z->xi, z->n)
                               : range_of_wasm(x, z->n, z->xt, GROUP));
}

/* GROUP chains of `width` vectors; 0 and nothing done if they are left to v_fma. Midways end chains of rows,
 * which are those of Q K^T. In P V they are frequent, as the largest p of a row is 1, and are repaired. */
INLINE int wide_chains(int of_rows, int width, int rows, const simd_chains *z, int64_t first)
{
    const ptrdiff_t xi = of_rows ? z->xi : 1, xt = of_rows ? 1 : z->xt;
    float *c = z->c + first * rows;
    const float *x = z->x + first * xi, *b = z->b;
    v128_t acc[GROUP][4], all = v_zero();
    int64_t t;
    if (!are_moderate(of_rows, width, rows, z, x, c))
        return 0;
    EACH(i, GROUP)
        EACH(v, width)
            if (z->fresh)
                acc[i][2 * v] = acc[i][2 * v + 1] = v_zero();
            else
                widen_four(acc[i] + 2 * v, c + i * rows + v * VL);
    for (t = 0; t < z->n && !(of_rows && vm_any(all)); t++, x += xt, b += rows) {
        v128_t y[4];
        EACH(v, width)
            widen_four(y + 2 * v, b + v * VL);
        EACH(i, GROUP) {
            const v128_t a = wasm_f64x2_splat((double)x[i * xi]);
            v128_t midway = v_zero(), sums[4];
            EACH(v, 2 * width)
                sums[v] = wide_fma(a, y[v], acc[i][v], &midway);
            if (!of_rows && RARE(vm_any(midway)))
                EACH(v, 2 * width)
                    sums[v] = wide_exact(a, y[v], acc[i][v]);
            EACH(v, 2 * width)
                acc[i][v] = sums[v];
            all = wasm_v128_or(all, midway);
            PIN(all); /* clang else gathers all of them first */
        }
    }
    if (of_rows && vm_any(all))
        return 0;
    EACH(i, GROUP)
        EACH(v, width) {
            const v128_t sum = narrow_wasm(acc[i][2 * v], acc[i][2 * v + 1]);
            v_store(c + i * rows + v * VL, z->scaled ? v_mul(sum, v_set1(z->factor)) : sum);
        }
    return 1;
}

#define v_chains(width, count, rows, chains, first)                                                \
    ((count) == GROUP && ((chains)->xt == 1   ? wide_chains(1, width, rows, chains, first)         \
                          : (chains)->xi == 1 ? wide_chains(0, width, rows, chains, first)         \
                                              : 0))

#define SPARSE 0
#define ISA wasm
#define ISA_NAME "wasm"
#define NV 2
#define MR 8
#include "attn_simd.h"
#undef SPARSE
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#define SPARSE 1
#define ISA wasm_narrow
#define ISA_NAME "wasm_narrow"
#define NV 1
#define MR 8
#include "attn_simd.h"
#undef SPARSE
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#ifdef HAS_RELAXED
#undef v_fma
#undef v_chains
#define FLOATS(x) ((__f32x4)(x))
#define v_fma(a, b, c) ((v128_t)__builtin_wasm_relaxed_madd_f32x4(FLOATS(a), FLOATS(b), FLOATS(c)))
#define ISA wasm_relaxed
#define ISA_NAME "wasm_relaxed"
#define NV 2
#define MR 4 /* V8 takes 1.6 times as long with 6 rows, and wasmtime as long */
#include "attn_simd.h"
#undef ISA
#undef ISA_NAME
#undef NV
#undef MR

#define ISA wasm_relaxed_narrow
#define ISA_NAME "wasm_relaxed_narrow"
#define NV 1
#define MR 8
#include "attn_simd.h"

/* Whether the engine rounds a * b + c once: what it does is fixed for all that it runs. If the product is
 * rounded, lanes 0 and 1 have 0 and lane 3 has half; in lane 2 the sum is midway in binary64. */
static int rounds_once(void)
{
    static const volatile float a[VL] = { 0x1.000002p0f, 0x1.fffffep-1f, 0x1.0002p-12f, 0x1p-75f };
    static const volatile float b[VL] = { 0x1.000002p0f, 0x1.000002p0f, 0x1.fffcp-13f, 0x1p-75f };
    static const volatile float c[VL] = { -0x1.000004p0f, -1.0f, 0x1.000002p0f, 0x1p-149f };
    const v128_t x = wasm_f32x4_make(a[0], a[1], a[2], a[3]);
    const v128_t y = wasm_f32x4_make(b[0], b[1], b[2], b[3]);
    const v128_t z = wasm_f32x4_make(c[0], c[1], c[2], c[3]);
    const v128_t once = wasm_f32x4_make(0x1p-46f, 0x1.fffffcp-25f, 0x1.000002p0f, 0x1p-148f);
    return vm_all(wasm_i32x4_eq(v_fma(x, y, z), once));
}
#endif

ATTN_API const attn_kernels *attn_kernels_wasm(void)
{
    return &kernels_wasm;
}

ATTN_API const attn_kernels *attn_kernels_wasm_narrow(void)
{
    return &kernels_wasm_narrow;
}
#else
ATTN_API const attn_kernels *attn_kernels_wasm(void)
{
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_wasm_narrow(void)
{
    return NULL;
}
#endif

#ifdef HAS_RELAXED
ATTN_API const attn_kernels *attn_kernels_wasm_relaxed(void)
{
    return rounds_once() ? &kernels_wasm_relaxed : NULL;
}

ATTN_API const attn_kernels *attn_kernels_wasm_relaxed_narrow(void)
{
    return rounds_once() ? &kernels_wasm_relaxed_narrow : NULL;
}
#else
ATTN_API const attn_kernels *attn_kernels_wasm_relaxed(void)
{
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_wasm_relaxed_narrow(void)
{
    return NULL;
}
#endif
