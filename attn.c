/* attn.c - exact attention: every portable level in one file. The manual is attn.h; the order of
 * every operation is docs/canon.md.
 * SPDX-License-Identifier: MIT (full text at the end)
 * attn 0.1.0
 *
 * tools/amalgamate.sh makes this file from the rooms in src/: edit there. docs/house.md is the map.
 */

#include "attn.h"

/* src/config.h - what the compiler is told: rounding as written, FMA, inlining, one word shared by threads. */

#include <string.h>

#undef small /* A macro for char in windows.h, behind which a project may include attn.c. */

/* Equal bits everywhere need every operation rounded as written. gcc can be told here; clang cannot
 * undo -ffast-math, so it is refused; x87 keeps excess precision unless -std=c99. Relaxed SIMD of
 * WebAssembly is refused because clang 22 takes maxima from it that are not the same in every engine if
 * there is a NaN. Loops stay loops with gcc: it else makes a memcpy of those that fill the accumulators
 * of a kernel, writes 16 bytes at a time and waits for them where it loads 32. */
#if defined __clang__
#if defined __FAST_MATH__ || (defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__)
#error "attn: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#ifdef __wasm_relaxed_simd__
#error "attn: take -mrelaxed-simd from the flags of this file; attn_simd_wasm.c alone may have it"
#endif
#pragma clang fp contract(off) reassociate(off)
#elif defined __GNUC__
#pragma GCC optimize("no-fast-math", "fp-contract=off", "no-tree-loop-distribute-patterns")
#elif defined _MSC_VER
#pragma float_control(precise, on)
#pragma fp_contract(off)
#endif

/* Attributes, builtins and assembler as gcc has them. clang in the place of MSVC (clang-cl) has them,
 * too, but does not call itself gcc. */
#if defined __GNUC__ || defined __clang__
#define GNU_C 1
#else
#define GNU_C 0
#endif
#if defined __i386__ && defined __FLT_EVAL_METHOD__ && __FLT_EVAL_METHOD__ == 2 &&                 \
    !defined __STRICT_ANSI__
#error "attn: add -std=c99 (or -msse2 -mfpmath=sse): x87 code keeps excess precision otherwise"
#endif

#if GNU_C
#define KERNEL static inline __attribute__((always_inline)) /* It must inline to be specialised. */
#define OWN_FRAME __attribute__((noinline))                 /* Its stack is gone when it returns. */
#define RESTRICT __restrict
/* It puts sentences together: that code should be small, and out of its callers' way. */
#define COLD __attribute__((noinline, cold, unused))
#elif defined _MSC_VER
#define KERNEL static __forceinline
#define OWN_FRAME __declspec(noinline)
#define RESTRICT __restrict
#define COLD __declspec(noinline)
#else
#define KERNEL static inline
#define OWN_FRAME
#define RESTRICT
#define COLD inline
#endif

/* Where binary32 FMA is one instruction of every CPU of this build, the compiler's builtin is used
 * (FMA_BASE 1). On x86 without -mfma the kernels are built a second time for AVX2, FMA and F16C
 * and chosen at run time (FMA_TARGET). Elsewhere FMA_SOFT serves; libm's is often wrong. */
#if GNU_C &&                                                                                       \
    (defined __FP_FAST_FMAF || defined __FMA__ || defined __aarch64__ ||                           \
     defined __ARM_FEATURE_FMA || defined __s390x__ || defined __riscv_f || defined __powerpc64__)
#define FMA_BASE 1
#define FMA_TARGET
#elif GNU_C && defined __SSE_MATH__ /* x87 code on x86 could not use the instruction. */
#define FMA_BASE 0
#define FMA_TARGET __attribute__((target("avx2,fma,f16c")))
#define FMA_SECOND_BUILD
#else
#define FMA_BASE 0
#endif
#ifdef FMA_SECOND_BUILD
#define SOFT_FMA_WHY "this CPU has no FMA"
#elif defined __wasm__
#define SOFT_FMA_WHY "WebAssembly has no such instruction"
#else
#define SOFT_FMA_WHY "attn.c was compiled without the instruction"
#endif

/* Whether binary32 itself is software. */
#if (defined __arm__ && !defined __ARM_FP) || defined __riscv_float_abi_soft ||                    \
    defined __mips_soft_float || defined _SOFT_FLOAT
#define SOFT_FLOAT
#endif

/* Binary64 that is software takes longer than integers do. */
#if (defined __arm__ && !(defined __ARM_FP && (__ARM_FP & 8))) || defined SOFT_FLOAT
#define FMA_BY_INTEGERS
#define FMA_SOFT fma_integer
#else
#define FMA_BY_BINARY64
#define FMA_SOFT fma_binary64
#endif

/* Whether an instruction can take several floats. The portable kernels compute several lanes at once if so,
 * and otherwise only those with a row. -DATTN_SCALAR says no. Helium has them, but what compilers make of
 * these loops for it takes longer than loops without. NEON of 32-bit ARM takes subnormal numbers for 0, so
 * compilers have no use for it here. */
#if !defined ATTN_SCALAR &&                                                                        \
    (defined __SSE__ || defined _M_X64 || defined _M_IX86 || defined __aarch64__ ||                \
     defined _M_ARM64 || defined __ALTIVEC__ || defined __VX__ || defined __wasm_simd128__ ||      \
     defined __riscv_vector || defined __mips_msa || defined __loongarch_sx)
#define HAS_VECTORS 1
#else
#define HAS_VECTORS 0
#endif

#define COUNT_OF(table) ((int)(sizeof(table) / sizeof(table)[0]))

#ifdef _OPENMP
#include <omp.h>
#define OPENMP_THREADS omp_get_max_threads()
#else
#define OPENMP_THREADS 0
#endif

/* ---- Configuration */

#ifndef ATTN_ASSERT
#define ATTN_ASSERT(x) ((void)0)
#endif

#if GNU_C
#define PREFETCH(p) __builtin_prefetch(p, 0, 2) /* The address will be read; it goes into L2. */
#else
#define PREFETCH(p) ((void)(p))
#endif

/* PREFETCH_RUN asks for the lines of `bytes` bytes. It is no function, because gcc drops calls of one
 * that does nothing else. */
#define PREFETCH_RUN(from, bytes)                                                                  \
    do {                                                                                           \
        const char *const from_ = (from);                                                          \
        int64_t at_;                                                                               \
        for (at_ = 0; at_ < (bytes); at_ += 64)                                                    \
            PREFETCH(from_ + at_);                                                                 \
    } while (0)

/* The word of CPU features may be written by several threads at once, always with one value. MSVC
 * promises that an aligned word is read and written whole. */
#if GNU_C
#define LOAD_WORD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define STORE_WORD(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#else
#define LOAD_WORD(p) (*(volatile unsigned *)(p))
#define STORE_WORD(p, v) (*(volatile unsigned *)(p) = (v))
#endif

/* src/bits.c - the bits of a float, and selections by them. */

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

#define NEG_INF float_of(0xff800000u)

static inline int is_finite(float x)
{
    return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}

/* is_neg_inf looks at bits: under -ffinite-math-only gcc 12 folds x != -inf into x >= -FLT_MAX, in
 * spite of the pragma above, and a NaN would pass for -inf. */
static inline int is_neg_inf(float x)
{
    return bits_of(x) == 0xff800000u;
}

/* is_dead tells whether x is ATTN_DEAD. */
static inline int is_dead(float x)
{
    return bits_of(x) == 0x80000000u;
}

static inline int is_nan(float x)
{
    return (bits_of(x) & 0x7fffffffu) > 0x7f800000u;
}

/* choose gives a or b. It is written with masks because gcc does not vectorise a conditional
 * expression whose operand is computed for it. */
static inline float choose(int yes, float a, float b)
{
    const uint32_t mask = 0u - (uint32_t)(yes != 0);
    return float_of((bits_of(a) & mask) | (bits_of(b) & ~mask));
}

/* src/fma.c - a * b + c rounded once, on every CPU.
 *
 * Where binary32 FMA is no instruction, binary64 hardware or integers give the same bits. Any NaN may
 * stand for another. tests/fma.c and tools/prove_fma.c compare all forms.
 */

/* ---- by binary64 */

#ifdef FMA_BY_BINARY64

/*
 * p + c rounded to odd in binary64 and then to binary32; s is p + c rounded. TwoSum yields the error e
 * of s. An inexact s becomes the neighbour with the odd last bit, and 53 >= 24 + 2 bits make the last
 * rounding right, subnormal results included. With infinities or NaN e is NaN and both compares
 * fail. Excess precision (x87) may pick the other neighbour as s, but e keeps its sign and the odd
 * one is the same.
 */
COLD static float fma_by_odd(double p, double c, double s)
{
    double t, v, e;
    uint64_t u;
    int up, down;
    t = s - p;
    v = s - t;
    v = p - v;
    t = c - t;
    e = v + t;
    memcpy(&u, &s, sizeof u);
    up = e > 0.0;
    down = e < 0.0;
    if ((up || down) && (u & 1) == 0) {
        int negative = (int)(u >> 63);
        u = up != negative ? u + 1 : u - 1;
    }
    memcpy(&s, &u, sizeof s);
    return (float)s;
}

/*
 * Whether rounding s, the sum, to binary32 may be wrong. Midways between two neighbours in binary32 are
 * binary64 numbers, so none lies between a sum and s, its neighbour in binary64: both round alike unless
 * s is a midway itself. The last 29 bits of a midway are 1 and 28 zeros from 2^-126 up, and zeros below.
 * So the first test sees nearly all sums off. The second one counts sums below 2^-126 as midways, but
 * not 0, which is always exact.
 */
static inline int is_midway(uint64_t s)
{
    const uint32_t low = (uint32_t)s, high = (uint32_t)(s >> 32);
    return low << 4 == 0 && (low << 3 != 0 || (high << 1) - 1 < ((1023u - 126u) << 21) - 1);
}

/* The product of two 24-bit significands is exact in binary64. */
static inline float fma_binary64(float a, float b, float c)
{
    const double da = (double)a, db = (double)b, dc = (double)c;
    double p, s;
    uint64_t u;
    p = da * db;
    s = p + dc;
    memcpy(&u, &s, sizeof u);
    return is_midway(u) ? fma_by_odd(p, dc, s) : (float)s;
}
#endif

/* ---- by integers */

#ifdef FMA_BY_INTEGERS

/* The significand of a finite number, with bit 23 set unless it is 0, and its biased exponent, which
 * is below 1 for subnormal numbers. */
static inline uint32_t to_significand(uint32_t u, int *exponent)
{
    uint32_t m = u & 0x7fffffu;
    *exponent = (int)(u >> 23 & 255);
    if (*exponent != 0)
        return m | 0x800000u;
    if (m != 0)
        for (*exponent = 1; m < 0x800000u; --*exponent)
            m <<= 1;
    return m;
}

/* Numbers moved right by n bits. What falls out is kept as a last bit of 1, so that a sum with a number
 * that ends in 0, and the rounding of the sum higher up, are right. */
KERNEL uint32_t moved32(uint32_t x, int n)
{
    return n < 32 ? x >> n | (x << 1 << (31 - n) != 0) : x != 0;
}

static inline uint64_t moved64(uint64_t x, int n)
{
    const uint32_t high = (uint32_t)(x >> 32), low = (uint32_t)x;
    if (n >= 32)
        return moved32(high | (low != 0), n - 32);
    return (uint64_t)(high >> n) << 32 | high << 1 << (31 - n) | moved32(low, n);
}

/* u * 2^(exponent - 157) rounded to nearest even, with 2^30 <= u < 2^31 and exponent from 1 to 254. Bit 23 of a
 * significand adds 1 to the exponent. */
KERNEL float rounded32(uint32_t sign, uint32_t u, int exponent)
{
    const uint32_t rest = u & 127;
    u = (u >> 7) + ((uint32_t)(exponent - 1) << 23);
    u += rest + (u & 1) > 64;
    return float_of(sign | u);
}

/* x * 2^(exponent - 189) rounded so, with 0 < x < 2^63; sign is the first bit. */
static inline float rounded(uint32_t sign, uint64_t x, int exponent)
{
    uint32_t u;
    for (; x >> 62 == 0; x <<= 1)
        exponent--;
    u = (uint32_t)(x >> 32) | ((uint32_t)x != 0);
    if (exponent >= 255)
        return float_of(sign | 0x7f800000u);
    if (exponent < 1) {
        u = moved32(u, 1 - exponent);
        exponent = 1;
    }
    return rounded32(sign, u, exponent);
}

/* An infinity or a NaN among them: no float operation on finite numbers. */
static inline float fma_not_finite(float a, float b, float c)
{
    float x = c;
    if (is_finite(a) && is_finite(b))
        return x;
    x = a * b;
    x = x + c;
    return x;
}

/* Significands begin at bits 60 and, the product, 60 or 61: what bits fall out when the smaller
 * number is moved right does not matter to a difference so small that it moves left again. */
static inline float fma_any(float a, float b, float c)
{
    const uint32_t ua = bits_of(a), ub = bits_of(b), uc = bits_of(c);
    uint32_t sign = (ua ^ ub) & 0x80000000u;
    int ea, eb, ec, apart;
    uint64_t p = (uint64_t)to_significand(ua, &ea) * to_significand(ub, &eb) << 14;
    uint64_t x = (uint64_t)to_significand(uc, &ec) << 37;
    if (ea == 255 || eb == 255 || ec == 255)
        return fma_not_finite(a, b, c);
    if (p == 0)
        return x != 0 ? c : float_of(sign & uc);
    apart = ea + eb - 127 - ec;
    if (apart >= 0) {
        x = moved64(x, apart);
        ec += apart;
    } else {
        p = moved64(p, -apart);
    }
    if (((sign ^ uc) & 0x80000000u) == 0)
        return rounded(sign, p + x, ec + 2);
    if (p == x)
        return 0.0f;
    if (p > x)
        return rounded(sign, p - x, ec + 2);
    return rounded(sign ^ 0x80000000u, x - p, ec + 2);
}

KERNEL int is_normal(uint32_t u)
{
    return (u << 1) + 0x01000000u >= 0x02000000u;
}

/* Frequent sums by words of 32 bits: normal numbers, of which c stays even where it is moved right. Only the
 * product then ends in a bit that stands for others, and the sum does, too. Bit 29 begins c, and bit 28 or 29
 * the product. A difference with few bits left is for fma_any. */
static inline float fma_integer(float a, float b, float c)
{
    const uint32_t ua = bits_of(a), ub = bits_of(b), uc = bits_of(c);
    const uint64_t p = (uint64_t)(ua << 8 | 0x80000000u) * (ub << 8 | 0x80000000u);
    uint32_t x = (uc << 8 | 0x80000000u) >> 2, y = (uint32_t)(p >> 34) | (p << 30 != 0), sign = uc;
    int ec = (int)(uc >> 23 & 255);
    const int apart = (int)(ua >> 23 & 255) + (int)(ub >> 23 & 255) - 126 - ec;
    if (!is_normal(ua) || !is_normal(ub) || !is_normal(uc) || apart > 5)
        return fma_any(a, b, c);
    if (apart > 0) {
        x >>= apart;
        ec += apart;
    } else {
        y = moved32(y, -apart);
    }
    if ((int32_t)(ua ^ ub ^ uc) >= 0) {
        x += y;
    } else if (x >= y) {
        x -= y;
    } else {
        x = y - x;
        sign = ~sign;
    }
    if (x < 1u << 26)
        return fma_any(a, b, c);
    for (ec++; x < 1u << 30; x <<= 1)
        ec--;
    if (ec < 1 || ec > 254)
        return fma_any(a, b, c);
    return rounded32(sign & 0x80000000u, x, ec);
}
#endif

/* ---- by what this CPU has */

/* hw is constant at every call: only the second build of the kernels has the instruction. */
#if FMA_BASE || defined FMA_SECOND_BUILD
FMA_TARGET static inline float fma_hard(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
#else
#define fma_hard FMA_SOFT
#endif

KERNEL float fma32(int hw, float a, float b, float c)
{
    return hw ? fma_hard(a, b, c) : FMA_SOFT(a, b, c);
}

/* src/numbers.c - numbers: exp2, tanh, log2, the inverse square root.
 *
 * No libm: each function is one fixed sequence of binary32 operations, rounded to nearest even, so
 * that every compiler and ISA gives the same bits. One float operation per statement (s390x and x87
 * round at assignments); each multiply that feeds an add is fma32. Selections are ordered compares or
 * integer bits. tools/prove_math.c checks all inputs.
 */

#define LOG2E_HI 0x1.715476p+0f /* log2(e) = HI + LO */
#define LOG2E_LO 0x1.4ae0c0p-26f
#define LN2 0x1.62e430p-1f
#define CANONICAL_NAN 0x7fc00000u

/*
 * 2^x for x in [-126, 128) only: no selections. Adding 1.5 * 2^23 leaves the nearest whole number
 * n in the low bits of t, |f| <= 0.5, and t << 23 is n in the exponent field: the upper bits of t
 * fall out modulo 2^32.
 */
KERNEL float exp2_core(int hw, float x)
{
    const float magic = 12582912.0f;
    float t, w, f, y;
    uint32_t u;
    t = x + magic;
    w = t - magic;
    f = x - w;
    /* 2^f on [-0.5, 0.5], degree 6, minimax in relative error, c0 = 1, rounded to binary32: */
    /* worst 0.7821 ulp over all floats in [-126, 128). */
    y = 0x1.44a6d6p-13f;
    y = fma32(hw, y, f, 0x1.5f8d0cp-10f);
    y = fma32(hw, y, f, 0x1.3b2822p-7f);
    y = fma32(hw, y, f, 0x1.c6adecp-5f);
    y = fma32(hw, y, f, 0x1.ebfbe4p-3f);
    y = fma32(hw, y, f, 0x1.62e432p-1f);
    y = fma32(hw, y, f, 1.0f);
    u = bits_of(y) + (bits_of(t) << 23);
    return float_of(u);
}

/*
 * 2^x for x < 128. Below -126 (-inf too) +0; NaN gives 7fffffff, by bits, since the integer add
 * could turn a NaN into a number and a sign bit means "dead" (chains8). +inf gives NaN (inf - inf);
 * finite x >= 128 gives garbage: callers promise x <= 127. The selections are integers: gcc
 * vectorises them without -fno-trapping-math, which ?: on floats needs on AVX2. As unsigned
 * numbers, the floats below -126 and the negative NaNs are those above the bits of -126; they are
 * clamped first, so that -inf raises no flag.
 */
KERNEL float exp2_with(int hw, float x)
{
    const uint32_t lowest = 0xc2fc0000u; /* -126 */
    uint32_t u = bits_of(x), v, nan;
    float y = exp2_core(hw, float_of(u > lowest ? lowest : u));
    v = bits_of(y);
    nan = 0u - (uint32_t)((u & 0x7fffffffu) > 0x7f800000u);
    v &= 0u - (uint32_t)(u <= lowest);
    v = (v & ~nan) | (nan >> 1);
    return float_of(v);
}

/*
 * tanh x for every x: |result| <= 1, odd bit for bit, tanh(+-0) = +-0, tanh(+-inf) = +-1, NaN
 * gives NaN. Below 0.625 the odd polynomial a + a^3 R(a^2), which is a itself for tiny a. From
 * there 1 - 2 / (e^(2a) + 1), where the fraction is at most 0.45 and its error shrinks with it.
 * (One odd rational a P(a^2) / Q(a^2) for all a was no better than 4 ulp after a search over the
 * coefficients: P, Q and the product each lose up to a whole ulp just below 1.) At the clamp, 10,
 * the fraction is under 2^-27 and the difference is 1 exactly; the first a that gives 1 is
 * 9.0109139. Worst error over all inputs 1.6765 ulp.
 */
KERNEL float tanh_with(int hw, float x)
{
    uint32_t bits = bits_of(x), a = bits & 0x7fffffffu, v;
    float c, u, r, small, e, large;
    c = float_of(a > 0x41200000u ? 0x41200000u : a); /* |x|, at most 10, which NaN becomes, too */
    u = c * c;
    /* R: (tanh a - a) / a^3 in u = a^2 on [0, 0.625^2], degree 4, Remez, weight a^3 / tanh a, */
    /* then rounded to binary32: worst 0.7208 ulp over all floats below 0.625. */
    r = -0x1.75e1cap-8f;
    r = fma32(hw, r, u, 0x1.52269cp-6f);
    r = fma32(hw, r, u, -0x1.b83c5ap-5f);
    r = fma32(hw, r, u, 0x1.110726p-3f);
    r = fma32(hw, r, u, -0x1.555532p-2f);
    u = u * c;
    small = fma32(hw, u, r, c);
    e = c * 0x1.715476p+1f; /* 2 log2(e) a, at most 28.9: inside exp2_core */
    e = exp2_core(hw, e);
    e = e + 1.0f;
    e = 2.0f / e;
    large = 1.0f - e;
    v = 0u - (uint32_t)(a >= 0x3f200000u);
    v = (bits_of(large) & v) | (bits_of(small) & ~v);
    v |= 0u - (uint32_t)(a > 0x7f800000u);
    return float_of(v | (bits & 0x80000000u));
}

/* inverse_sum gives r = fl(1 / l), and +0 for an empty row, whose l is 0. A selection of the divisor
 * would not do: clang 14 divides by 0 first and selects then. */
static inline float inverse_sum(int empty, float l)
{
    const float inverse = 1.0f / (l + (float)empty);
    return empty ? 0.0f : inverse;
}

/* exp2_canon is for scalar code outside the kernels. */
static inline float exp2_canon(float x)
{
    return exp2_with(FMA_BASE, x);
}

/*
 * log2 x: +inf gives +inf, +-0 gives -inf, NaN and x < 0 give NaN; log2(2^n) = n exactly,
 * log2(1) = +0. x = 2^n m, m in [sqrt(1/2), sqrt(2)), f = m - 1 exact:
 * log2 x = n + f L + f^2 Q(f), where f L is kept as a head h and a tail l, so that the relative
 * error holds near 1, too. Subnormals are normalised as integers.
 */
static inline float log2_canon(float x)
{
    const float l_hi = 0x1.715476p+0f, l_lo = 0x1.4ae0cp-26f; /* log2 e */
    uint32_t u = bits_of(x), m;
    int32_t n = 0;
    float f, f2, h, l, q, k, s, r;
    if ((u & 0x7fffffffu) == 0)
        return float_of(0xff800000u);
    if (u > 0x7f800000u)
        return float_of(0x7fc00000u);
    if (u == 0x7f800000u)
        return x;
    if (u < 0x00800000u) {
        f = (float)(int32_t)u; /* exact, below 2^23 */
        u = bits_of(f);
        n = -149;
    }
    /* m: the bits of x moved to [sqrt(1/2), sqrt(2)); 0x3f3504f4 is just above sqrt(1/2) */
    m = u - 0x3f3504f4u;
    n += (int32_t)((m + 0x40000000u) >> 23) - 128;
    m = (m & 0x007fffffu) + 0x3f3504f4u;
    f = float_of(m);
    f = f - 1.0f;
    k = (float)n;
    /* Q: (log2(1 + f) - f L) / f^2 on [sqrt(1/2) - 1, sqrt(2) - 1], degree 8, Remez, weight */
    /* f^2 / log2(1 + f), then rounded to binary32: worst 1.1004 ulp over all positive floats. */
    q = -0x1.c26434p-4f;
    q = fma32(FMA_BASE, q, f, 0x1.7d4786p-3f);
    q = fma32(FMA_BASE, q, f, -0x1.87485cp-3f);
    q = fma32(FMA_BASE, q, f, 0x1.a30596p-3f);
    q = fma32(FMA_BASE, q, f, -0x1.eabd0ep-3f);
    q = fma32(FMA_BASE, q, f, 0x1.277e3cp-2f);
    q = fma32(FMA_BASE, q, f, -0x1.715a72p-2f);
    q = fma32(FMA_BASE, q, f, 0x1.ec7096p-2f);
    q = fma32(FMA_BASE, q, f, -0x1.71547p-1f);
    h = f * l_hi;
    l = fma32(FMA_BASE, f, l_hi, -h); /* exact: what the product lost */
    l = fma32(FMA_BASE, f, l_lo, l);
    f2 = f * f;
    l = fma32(FMA_BASE, f2, q, l);
    s = k + h; /* |k| >= 1 > |h|, or k = 0: r is the exact rounding error of s */
    r = s - k;
    r = h - r;
    l = r + l;
    s = s + l;
    return s;
}

/*
 * The binary32 nearest to 1 / sqrt(n), 1 <= n <= 2^62, integers only. With 4^24 <= 4^j / n < 4^25,
 * root = floor(sqrt(floor(4^j / n))) = floor(2^j / sqrt(n)) has 25 bits, one more than the result.
 * Half up is the nearest: a tie would be an odd root with root^2 n = 4^j, which does not exist.
 */
static inline float inv_sqrt_nearest(uint64_t n)
{
    uint64_t quotient, remainder, root = 0, bit;
    uint32_t j = 24, i;
    float power;
    while (j < 55 && n > (uint64_t)1 << 2 * (j - 24))
        j++;
    i = 2 * j < 63 ? 2 * j : 63;
    quotient = ((uint64_t)1 << i) / n;
    remainder = ((uint64_t)1 << i) % n;
    for (; i < 2 * j; i++) { /* long division of 4^j by n goes on where 64 bits do not hold 4^j */
        const uint64_t digit = 2 * remainder >= n ? 1 : 0;
        quotient = 2 * quotient + digit;
        remainder = 2 * remainder - (digit ? n : 0);
    }
    for (bit = (uint64_t)1 << 24; bit != 0; bit >>= 1)
        if ((root + bit) * (root + bit) <= quotient)
            root += bit;
    power = float_of((127u - (j - 1)) << 23); /* 2^-(j-1) */
    return (float)(int32_t)((root + 1) >> 1) * power;
}

/* src/text.c - sentences: built piece by piece into the caller's buffer; words of a text are compared. */

/* -DATTN_WITHOUT_SENTENCES leaves out every word that tells people of a call. Statuses are left. */
#ifdef ATTN_WITHOUT_SENTENCES
enum { HAS_SENTENCES = 0 };
#else
enum { HAS_SENTENCES = 1 };
#endif

/* NAME is the name of a field or an array for a sentence. */
#define NAME(words) (HAS_SENTENCES ? (words) : NULL)

typedef struct text {
    char *at;
    size_t left; /* left counts bytes that still fit, with the terminator. */
} text;

static inline text text_in(char *buffer, size_t bytes)
{
    text t;
    t.at = buffer;
    t.left = HAS_SENTENCES && buffer ? bytes : 0;
    if (buffer && bytes)
        *buffer = 0;
    return t;
}

COLD static void put(text *t, const char *s)
{
    while (HAS_SENTENCES && *s && t->left > 1) {
        *t->at++ = *s++;
        t->left--;
    }
    if (HAS_SENTENCES && t->left)
        *t->at = 0;
}

COLD static void put_int(text *t, int64_t value)
{
    char digits[24];
    char *d = digits + sizeof digits - 1;
    uint64_t u = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    *d = 0;
    do {
        *--d = (char)('0' + u % 10);
        u /= 10;
    } while (u);
    if (value < 0)
        *--d = '-';
    put(t, d);
}

/* put_float writes six digits, as d.ddddde-xx: enough for a sentence about a wrong value. */
COLD static void put_float(text *t, float value)
{
    char digits[8];
    double rest = value < 0 ? -(double)value : (double)value;
    int64_t millionths;
    int i, exponent = 0;
    if (!is_finite(value)) {
        put(t, is_nan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    for (; rest >= 10; exponent++)
        rest /= 10;
    for (; rest > 0 && rest < 1; exponent--)
        rest *= 10;
    put(t, value < 0 ? "-" : "");
    millionths = (int64_t)(rest * 1e6 + 0.5);
    if (millionths == 10000000) { /* It was rounded up to the next power of ten. */
        millionths = 1000000;
        exponent++;
    }
    put_int(t, millionths / 1000000);
    digits[0] = '.';
    for (i = 6; i >= 1; i--) {
        digits[i] = (char)('0' + millionths % 10);
        millionths /= 10;
    }
    digits[7] = 0;
    put(t, digits);
    if (exponent) {
        put(t, "e");
        put_int(t, exponent);
    }
}

/* put_word puts a word of a text that may hold anything: control characters become '?'. */
COLD static void put_word(text *t, const char *word, size_t length)
{
    char letter[2] = { 0, 0 };
    size_t i;
    for (i = 0; i < length; i++) {
        letter[0] = (unsigned char)word[i] < ' ' || word[i] == 127 ? '?' : word[i];
        put(t, letter);
    }
}

/* put_numbers puts a sentence in which each # stands for the next number. */
COLD static void put_numbers(text *t, const char *sentence, const int64_t *number)
{
    for (; *sentence; sentence++)
        if (*sentence == '#')
            put_int(t, *number++);
        else
            put_word(t, sentence, 1);
}

#define NUMBERS(...) ((const int64_t[]){ __VA_ARGS__ })

/* put_field says "name (value)". */
COLD static void put_field(text *t, const char *name, int64_t value)
{
    put(t, name);
    put_numbers(t, " (#)", &value);
}

/* same_word tells whether the string a is the b_length letters at b. */
static inline int same_word(const char *a, const char *b, size_t b_length)
{
    size_t i;
    for (i = 0; i < b_length; i++)
        if (a[i] != b[i] || !a[i])
            return 0;
    return a[b_length] == 0;
}

static inline int parse_int(const char *s, size_t length, int64_t *value)
{
    size_t i;
    *value = 0;
    for (i = 0; i < length; i++) {
        if (s[i] < '0' || s[i] > '9' || *value > 100000000000000)
            return 0;
        *value = *value * 10 + (s[i] - '0');
    }
    return length > 0;
}

COLD static attn_status bad(text *why, attn_status status, const char *rest)
{
    put(why, rest);
    return status;
}

COLD static attn_status bad_numbers(text *why, attn_status status, const char *sentence,
                                    const int64_t *number)
{
    put_numbers(why, sentence, number);
    return status;
}

/* done says "ok" where nothing was wrong. */
static inline attn_status done(attn_status status, text *why)
{
    if (!status)
        put(why, "ok");
    return status;
}

/* bad_field says "name (value) rest". */
COLD static attn_status bad_field(text *why, attn_status status, const char *name, int64_t value,
                                  const char *rest)
{
    put_field(why, name, value);
    return bad(why, status, rest);
}

/* bad_entry says "name[index] (value) rest". */
COLD static attn_status bad_entry(text *why, const char *name, int64_t index, int64_t value,
                                  const char *rest)
{
    put(why, name);
    put_numbers(why, "[#] (#)", NUMBERS(index, value));
    return bad(why, ATTN_ERR_ARG, rest);
}

/* bad_after says "name[index] (value) rest (the entry before it)". */
COLD static attn_status bad_after(text *why, const char *name, int64_t index, int64_t value,
                                  const char *rest, int64_t before)
{
    bad_entry(why, name, index, value, rest);
    put_numbers(why, " (#)", NUMBERS(before));
    return ATTN_ERR_ARG;
}

COLD static attn_status bad_number(text *why, const char *name, float value, const char *rest)
{
    put(why, name);
    put(why, " (");
    put_float(why, value);
    put(why, ")");
    return bad(why, ATTN_ERR_ARG, rest);
}

/* too_small names the function `query`, which says how large the workspace should be. */
COLD static attn_status too_small(text *why, int64_t have, int64_t least, const char *query)
{
    if (have > 0)
        put_numbers(why, "workspace_bytes (#) must be at least #; ", NUMBERS(have, least));
    else
        put_numbers(why, "workspace is NULL or empty and must have at least # bytes; ", &least);
    put(why, query);
    return bad(why, ATTN_ERR_WORKSPACE, " says what is best");
}

/* verdict is the result of a public check function: its sentence in `buffer`, where *why began, or
 * "ok". Without a buffer it is the name of the status. */
static inline const char *verdict(attn_status status, const char *buffer, text *why)
{
    done(status, why);
    return why->left ? buffer : attn_status_string(status);
}

/* src/seam.h - the seam: the table of kernels that every instruction set fills in.
 *
 * Kernels are leaf functions: no masks, no heads, no allocation. A tile has `rows` query rows, one per
 * lane, and n keys. Every matrix of a tile is lane-fastest, so that each lane is one independent row:
 *
 *     qt [d][rows]   packed queries                   s [n][rows]   logits (base 2), then p
 *     o  [dv][rows]  output accumulators              m, l [rows]   running maximum and sum
 *
 *           lanes ->                    All of them computed in the canonical order of
 *       d   q00 q10 q20 ... qR0         docs/canon.md; a kernel may use any tile shape, unrolling
 *       |   q01 q11 q21 ... qR1         and order between elements, but each element's chain of
 *       v   ...                         operations is fixed. K and V rows are f32, contiguous in d.
 *
 * Arrays from the workspace are aligned to 64 bytes; k and v only to their element. Nothing
 * overlaps. n is at least 1; every lane always holds a number (unused lanes: zero queries).
 */

#ifndef ATTN_SEAM_H /* attn.c and attn_simd.h both hold it */
#define ATTN_SEAM_H

#define ATTN_KERNEL_MAX_ROWS 64 /* a set's rows: a multiple of 4, at most this */
#define ATTN_BLOCK 16           /* canonical block of keys: the maximum is decided once a block */
#define ATTN_CHUNK 1024         /* canonical chunk of keys: a state of its own, for the tree */
#define ATTN_THRESHOLD 16.0f    /* the maximum rises only if exceeded by more than this (log2) */

#define ATTN_ALIVE_BITS 32 /* keys whose visibility to a lane is one uint32_t */

/* Lanes begin..end-1 of a tile; a kernel may compute more of them (whole vectors). */
typedef struct attn_lanes {
    int begin, end;
} attn_lanes;

/* A kernel for few lanes takes them by fours: the first one that it computes, */
static inline int attn_first_lane(attn_lanes lanes)
{
    return lanes.begin / 4 * 4;
}

/* and how many from there on. */
static inline int attn_lane_count(attn_lanes lanes)
{
    return lanes.end - attn_first_lane(lanes);
}

/* Exponentials of a block: s = 2^fl(s - m), l += s in order, as exp_sum does with dead = +0. It covers at
 * least these lanes, and with vectors each group of four that holds one of them. calm: s and m are at
 * most ATTN_CALM in magnitude, so no special case can occur. */
typedef struct attn_exp {
    float *s;
    int n; /* keys, 1..16 */
    const float *m;
    float *l;
    attn_lanes lanes; /* in the others every key is dead, or they have no query */
    int calm;
} attn_exp;

#define ATTN_CALM 60.0f

/* -0: stands for a pair that does not count, where no live number is -0. */
#define ATTN_DEAD (-0.0f)

/* Rows of K or V as they lie in memory, `stride` bytes apart: `first` of them from run[0] on, then
 * `each` from every further run on. */
typedef struct attn_runs {
    int dtype;
    ptrdiff_t stride;
    int64_t first, each;
    const char *const *run; /* one more than there are, as a kernel may read ahead of use */
} attn_runs;

/* Memory that the next steps will read: a kernel asks for `lines` cache lines of it, evenly beside
 * its own work, and leaves `lines` at 0. Only a hint: it need not do so. */
typedef struct attn_ahead {
    const char *const *run; /* where the present run of rows begins, and those behind it */
    const char *row;        /* the present one */
    ptrdiff_t stride;       /* bytes between rows */
    int64_t left, each_run; /* rows of this run still to be asked for; of those behind it */
    int64_t bytes;          /* of a row that are read */
    int64_t at;             /* of this row, asked for already */
    int64_t lines;
    int64_t each; /* the kernel's own: lines asked for in one go */
} attn_ahead;

/* The next line to be asked for is behind this one. */
static inline void attn_next_line(attn_ahead *a)
{
    a->at += 64;
    if (a->at < a->bytes)
        return;
    a->at = 0;
    a->row += a->stride;
    if (--a->left == 0) {
        a->row = *++a->run;
        a->left = a->each_run;
    }
}

/* A product of a tile with rows of K or V: Q K^T, or P V added to o. */
typedef struct attn_product {
    float *to;             /* s [n][rows], or o [dim][rows] */
    const float *by;       /* qt [dim][rows], or p [n][rows] */
    const float *kv;       /* f32 rows of K or V, */
    ptrdiff_t stride;      /* floats between rows; */
    const attn_runs *runs; /* as they lie, for the kernels *_runs, which read these instead */
    int n;                 /* keys */
    int64_t dim;           /* head_dim, or head_dim_v */
    float factor;          /* Q K^T: multiplies every sum, once, behind its last step */
    attn_lanes lanes;
    attn_ahead *ahead;   /* NULL = nothing */
    const float *scales; /* [dim / 32][rows], for whole numbers */
    int first;           /* P V of a set that rounds: which key of the panel at kv is the first; */
    float *space;        /* room of such a set, ATTN_SPACE(rows, keys) floats */
} attn_product;

/* A set that rounds (attn_kernels.pack_values) multiplies bf16, with sums in f32. What `pack` gives it
 * is a form of its own, of ATTN_ROUNDED(head_dim) / 2 floats a row, and qk reads p->runs: one run of
 * rows of bf16, of which each has ATTN_ROUNDED(head_dim) numbers, +0 behind the last. Up to 15 rows
 * behind them may be read, too, unless n is a multiple of 16. pv reads a panel of V at p->kv, which
 * pack_values makes for each ATTN_PANEL_KEYS keys. A NaN or an infinity in V at a key of the panel that
 * is not of the product may make o NaN, but pv_select leaves such keys out. Subnormal numbers count as
 * 0. */
#define ATTN_PANEL_KEYS 32
#define ATTN_ROUNDED(dim) (((dim) + 31) / 32 * 32)
#define ATTN_PANEL_FLOATS(dim_v) (((dim_v) + 15) / 16 * 16 * (ATTN_PANEL_KEYS / 2))
#define ATTN_SPACE(rows, keys) ((rows) * (ATTN_ROUNDED((keys) + 31) / 2) + 1024)

/* Rows of a tile, and what each pair of a key and a row stands for. */
typedef struct attn_term {
    const float *x; /* [n][rows] */
    const float *b; /* [rows] attn_outer.b_stride floats apart */
    attn_lanes lanes;
    int begin, end; /* the keys that count; of the others x is ATTN_DEAD, they may be left out */
} attn_term;

/* Rows begin to end - 1 of ATTN_PANEL_KEYS rows of V, f32 or bf16; the others are +0. */
typedef struct attn_pack {
    const char *v; /* row `begin`; the others are `stride` bytes apart behind it */
    ptrdiff_t stride;
    int dtype;
    int begin, end;
    int64_t dim;
} attn_pack;

/* Products over the rows of some tiles, which gradients need. Strides are whole cache lines. */
typedef struct attn_outer {
    float *to; /* [n][columns], begins a cache line; what fills up the last one may be written */
    ptrdiff_t stride;
    int n; /* keys */
    int64_t columns;
    const attn_term *term;
    int count;          /* of terms */
    ptrdiff_t b_stride; /* filled up with numbers */
} attn_outer;

/* What the rows of a tile tell of their probabilities, per lane. */
typedef struct attn_row_stats {
    const float *m, *r; /* p = fl(2^x * r), x = fl(s - m) */
    float most;         /* of x */
    const float *delta; /* sum of p * dp over the row's keys */
} attn_row_stats;

/* Philox4x32-10: two multipliers, and what each round adds to the two words of its key. */
#define ATTN_PHILOX_ROUNDS 10
#define ATTN_PHILOX_A 0xd2511f53u
#define ATTN_PHILOX_B 0xcd9e8d57u
#define ATTN_PHILOX_KEY_0 0x9e3779b9u
#define ATTN_PHILOX_KEY_1 0xbb67ae85u

/* An attn_drop is dropout of a tile. Word 0 of Philox with counter (n, pos, head, batch) decides about
 * a pair. */
typedef struct attn_drop {
    uint32_t round_keys[ATTN_PHILOX_ROUNDS][2];
    uint32_t below;   /* A word below it drops its pair. */
    uint32_t first_n; /* of the first row of p, */
    uint32_t step;    /* and from one row of p to the next */
    uint32_t batch;
    const uint32_t *pos, *head; /* per lane */
    float dead;                 /* p of a dropped pair */
} attn_drop;

/* What running_max says about a block. */
#define ATTN_RAISED 1 /* a lane's maximum that had begun rose: o *= alpha before the block enters */
#define ATTN_IS_CALM 2 /* attn_exp.calm holds; a kernel may always leave it out */

/* What the CPU can do and the operating system saves the registers for; 0 where unknown. */
#define ATTN_CPU_AVX2 2u   /* AVX2, FMA and F16C */
#define ATTN_CPU_AVX512 4u /* AVX-512 F, DQ and BW */
/* Products of bytes besides: AVX-512 VNNI, AVX-VNNI, and DotProd and I8MM of 64-bit ARM. */
#define ATTN_CPU_DOTS_512 8u
#define ATTN_CPU_DOTS_256 16u
#define ATTN_CPU_DOTS_ARM 32u
#define ATTN_CPU_I8MM 128u
#define ATTN_CPU_BF16 256u     /* products of bf16 matrices on 64-bit ARM */
#define ATTN_CPU_BF16_512 512u /* products of pairs of bf16 numbers by AVX-512 */
#define ATTN_CPU_NEON_32 1024u /* NEON and VFPv4 of 32-bit ARM */
#define ATTN_CPU_TILES 64u     /* AMX with products of bf16, and AVX-512 that rounds to it */
#define ATTN_CPU_RVV 2048u     /* the vector extension V 1.0 of 64-bit RISC-V */
ATTN_API unsigned attn_cpu_features(void);

/* Whether this process may use ATTN_CPU_TILES. Linux is asked for it, once, and from then on refuses
 * stacks of signal handlers that are too small for what it saves, 11 KB. */
ATTN_API int attn_cpu_permits_tiles(void);

/* The sets of the attn_simd_*.c files: the table, or NULL where this CPU cannot run it. Compile
 * attn.c with ATTN_SIMD_AVX2, ATTN_SIMD_AVX512, ... for those that are linked, and attn_kernels_get
 * offers them; or pass one in p.kernels and define nothing. */
ATTN_API const attn_kernels *attn_kernels_avx2(void);
ATTN_API const attn_kernels *attn_kernels_avx512(void);
ATTN_API const attn_kernels *attn_kernels_neon(void);   /* 64-bit ARM */
ATTN_API const attn_kernels *attn_kernels_neon32(void); /* 32-bit ARM with NEON and VFPv4 */
ATTN_API const attn_kernels *attn_kernels_rvv(void);    /* 64-bit RISC-V with V 1.0 */
ATTN_API const attn_kernels *attn_kernels_sse2(void);   /* x86 without AVX2 */
ATTN_API const attn_kernels *attn_kernels_wasm(void);   /* WebAssembly with SIMD128 */

/* WebAssembly with relaxed SIMD, in engines whose multiply-add is fused. */
ATTN_API const attn_kernels *attn_kernels_wasm_relaxed(void);

/* Products by vdpbf16ps, and all else as avx512: a set that rounds. */
ATTN_API const attn_kernels *attn_kernels_avx512_bf16(void);

/* Products by tiles of AMX, and all else as avx512: a set that rounds. */
ATTN_API const attn_kernels *attn_kernels_avx512_amx(void);

/* Products by BFMMLA of 64-bit ARM, and all else as neon: a set that rounds. */
ATTN_API const attn_kernels *attn_kernels_neon_bf16(void);

/* The same with fewer rows in a tile, for decoding and other short calls. */
ATTN_API const attn_kernels *attn_kernels_avx2_narrow(void);
ATTN_API const attn_kernels *attn_kernels_avx512_narrow(void);
ATTN_API const attn_kernels *attn_kernels_neon_narrow(void);
ATTN_API const attn_kernels *attn_kernels_neon32_narrow(void);
ATTN_API const attn_kernels *attn_kernels_rvv_narrow(void);
ATTN_API const attn_kernels *attn_kernels_sse2_narrow(void);
ATTN_API const attn_kernels *attn_kernels_wasm_narrow(void);
ATTN_API const attn_kernels *attn_kernels_wasm_relaxed_narrow(void);

/* Every kernel: X(result, name, (parameters), (arguments)). The table, the sets and what stands
 * between a call and a set in tests and bench are expanded from it. */
#define ATTN_KERNELS(X) ATTN_SET_KERNELS(X) ATTN_FEW_KERNELS(X) ATTN_ROUNDED_KERNELS(X)

/* Those that every set has. */
#define ATTN_SET_KERNELS(X)                                                                         \
    /* n numbers of a 16-bit storage type as f32, and back: to nearest even, NaN (always */         \
    /* 7fc00000) as the type's, -0 never written. */                                                \
    X(void, widen_f16, (float *to, const uint16_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_bf16, (float *to, const uint16_t *from, int64_t n), (to, from, n))                \
    /* The same of what only K and V may have: n is whole units of 32 of the last three. */         \
    X(void, widen_e4m3, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_e5m2, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_q8_0, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_q5_0, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    X(void, widen_q4_0, (float *to, const uint8_t *from, int64_t n), (to, from, n))                 \
    /* to[d] = fl(from[d] * scale[d * step]). */                                                    \
    X(void, widen_i8,                                                                               \
      (float *to, const int8_t *from, const float *scale, int64_t step, int64_t n),                 \
      (to, from, scale, step, n))                                                                   \
    X(void, narrow_f16, (uint16_t * to, const float *from, int64_t n), (to, from, n))               \
    X(void, narrow_bf16, (uint16_t * to, const float *from, int64_t n), (to, from, n))              \
    /* qt[d][lane] = q[lane][d]. */                                                                 \
    X(void, pack, (float *qt, const float *const *q, int64_t head_dim), (qt, q, head_dim))          \
    /* to[j][lane] = fl(factor * chain), chain over d of fma(by[d][lane], kv[j*stride + d], */      \
    /* chain) from +0, in these lanes. The others get numbers, too: 0 where `by` is 0 and K */      \
    /* and factor are finite. */                                                                    \
    X(void, qk, (const attn_product *p), (p))                                                       \
    /* What qk_units reads of queries that are whole numbers from -127 to 127; `to` has room for */ \
    /* head_dim * rows floats. */                                                                   \
    X(void, pack_units, (float *to, const float *const *q, int64_t head_dim), (to, q, head_dim))    \
    /* The same as qk of whole numbers: a chain over units of fma(sum of 32 products, */            \
    /* fl(scales[unit][lane] * scale of the key's unit), chain). p->by is what pack_units gives, */ \
    /* and p->runs has one run of n rows of units: a scale in f16 and 32 signed bytes. Sums are */  \
    /* exact: below 2^24. The other lanes get numbers, too. */                                      \
    X(void, qk_units, (const attn_product *p), (p))                                                 \
    /* s = fl(cap2 * tanh(fl(s * icap2))). */                                                       \
    X(void, softcap, (float *s, int n, float cap2, float icap2), (s, n, cap2, icap2))               \
    /* s[j][lane] *= scale[j]. */                                                                   \
    X(void, scale_keys, (float *s, const float *scale, int n), (s, scale, n))                       \
    /* s = fma(fl(|from[lane] - j|), factor[lane], s); the difference fits an int. */               \
    X(void, add_distances, (float *s, const int *from, const float *factor, int n),                 \
      (s, from, factor, n))                                                                         \
    /* s = fma(x[lane][j], factor, s); x = -inf gives -inf by selection. */                         \
    X(void, add_rows, (float *s, const float *const *x, float factor, int n), (s, x, factor, n))    \
    /* s = -inf where the key j is not in begin[lane]..end[lane]-1, by selection. */                \
    X(void, clip, (float *s, int n, const int *begin, const int *end), (s, n, begin, end))          \
    /* s = -inf, by selection, where bit k % 32 of alive[k / 32][lane] is 0, k = from + j. */       \
    X(void, hide, (float *s, int n, const uint32_t *alive, int from), (s, n, alive, from))          \
    /* Clears bit k % 32 of alive[k / 32 * apart] where x[k] is 0 or, if invert is 1, where it */   \
    /* is not, for n bytes; bits of the last word behind them may be cleared, too. */               \
    X(void, hide_bytes, (uint32_t * alive, int apart, const uint8_t *x, int n, int invert),         \
      (alive, apart, x, n, invert))                                                                 \
    /* Clears bit k % 32 of alive[k / 32 * apart] where ids[k] is not `own`, as hide_bytes does. */ \
    X(void, hide_others, (uint32_t * alive, int apart, const int32_t *ids, int n, int32_t own),     \
      (alive, apart, ids, n, own))                                                                  \
    /* Decides the running maximum for one block (n is 1..16), whose p it does not compute: m */    \
    /* rises to the block's maximum where it has not begun (is -inf) or is exceeded by more */      \
    /* than ATTN_THRESHOLD. If the latter happens to a lane, ATTN_RAISED: alpha = 2^fl(old m */     \
    /* - m) there, 1 in the others, and l *= alpha. Returns ATTN_RAISED + ATTN_IS_CALM, or 0. */    \
    X(int, running_max, (const float *s, int n, float *m, float *l, float *alpha),                  \
      (s, n, m, l, alpha))                                                                          \
    /* m[lane] = maximum of m[lane] and s[..][lane], NaN ignored. */                                \
    X(void, maximum, (const float *s, int n, float *m), (s, n, m))                                  \
    /* s = 2^fl(s - m), `dead` where s is -inf, l += s in order; m of -inf counts as +0. */         \
    X(void, exp_sum, (float *s, int n, float dead, const float *m, float *l), (s, n, dead, m, l))   \
    /* What attn_exp says. */                                                                       \
    X(void, exp_block, (const attn_exp *e), (e))                                                    \
    /* Whether n numbers are all finite. */                                                         \
    X(int, finite, (const float *x, int64_t n), (x, n))                                             \
    /* p[j][lane] = dead, by selection, where attn_drop says so of first_n + j * step and lane. */  \
    X(void, drop, (float *p, int n, const attn_drop *of), (p, n, of))                               \
    /* x[k][lane] *= alpha[lane] for `count` rows. */                                               \
    X(void, rescale, (float *x, const float *alpha, int64_t count), (x, alpha, count))              \
    /* to[d][lane] = chain over keys of fma(by[j][lane], kv[j*stride + d], to), in these lanes */   \
    /* at least; to the others every key is dead, or they have no query. */                         \
    X(void, pv, (const attn_product *p), (p))                                                       \
    /* The same, but a key whose p is ATTN_DEAD leaves o alone by selection. */                     \
    X(void, pv_select, (const attn_product *p), (p))                                                \
    /* b = a + b, a the lower node, not changed; states as [m[rows], l[rows], */                    \
    /* o[head_dim_v][rows]]. */                                                                     \
    X(void, merge, (float *a, float *b, int64_t head_dim_v), (a, b, head_dim_v))                    \
    /* out[lane][d] = fl(fl(o[d][lane] * r) + 0) with r = fl(fl(1 / l[lane]) * factor), +0 */       \
    /* where l[lane] is 0; NaN as 7fc00000. */                                                      \
    X(void, result,                                                                                 \
      (float *const *out, const float *o, const float *l, float factor, int64_t head_dim_v),        \
      (out, o, l, factor, head_dim_v))                                                              \
    /* ---- gradients */                                                                            \
    /* s becomes p of attn_row_stats, and dp becomes fl(p * fl(dp - delta[lane])); where s is */    \
    /* -inf both become ATTN_DEAD. */                                                               \
    X(void, gradient, (float *s, float *dp, int n, const attn_row_stats *of), (s, dp, n, of))       \
    /* ds = fl(ds * fma(-t, t, 1)), t the tanh of softcap; ATTN_DEAD where p is. */                 \
    X(void, softcap_gradient, (float *ds, const float *t, const float *p, int n), (ds, t, p, n))    \
    /* to[j][d] = chain over the terms, and over the lanes of each, of fma(x[j][lane], */           \
    /* b[lane][d], to[j][d]), for n keys j. */                                                      \
    X(void, outer, (const attn_outer *f), (f))                                                      \
    /* The same, but an x that is ATTN_DEAD leaves `to` alone by selection. */                      \
    X(void, outer_select, (const attn_outer *f), (f))                                               \
    /* to[lane] = chain over d of fma(a[d][lane], b[d][lane], to[lane]) from +0. */                 \
    X(void, dots, (float *to, const float *a, const float *b, int64_t dim), (to, a, b, dim))

/* Those of a set whose `few` is not 0, NULL in the others: qk, qk_units and pv up to `few` lanes, of rows
 * as they lie, in any storage type but the 8-bit floats; qk_units_runs of units alone, the numbers of which
 * are multiplied whole. dim and, of Q K^T, the keys and those of each run are multiples of 16. */
#define ATTN_FEW_KERNELS(X)                                                                        \
    X(void, qk_runs, (const attn_product *p), (p))                                                 \
    X(void, qk_units_runs, (const attn_product *p), (p))                                           \
    X(void, pv_runs, (const attn_product *p), (p))

/* Those of a set that rounds, NULL in the others. */
#define ATTN_ROUNDED_KERNELS(X)                                                                    \
    /* ATTN_PANEL_FLOATS(dim) floats of a panel. */                                                \
    X(void, pack_values, (float *to, const attn_pack *p), (to, p))

#define ATTN_KERNEL_MEMBER(result, name, parameters, arguments) result(*name) parameters;
struct attn_kernels {
    int abi;  /* ATTN_KERNEL_ABI */
    int rows; /* query rows of a tile */
    /* Up to this number of lanes, counted from the last multiple of 4 up to the first one, take another
     * way, which the kernels *_runs are of. 0 = there are no such kernels. */
    int few;
    const char *name;
    ATTN_KERNELS(ATTN_KERNEL_MEMBER)
};

#endif /* ATTN_SEAM_H */

/* src/philox.c - Philox4x32-10: a random number for each counter, without a state.
 *
 * Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011.
 */

/* begin_philox sets the key of each round. */
static void begin_philox(attn_drop *d, uint64_t seed)
{
    int i;
    for (i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
        d->round_keys[i][0] = (uint32_t)seed + (uint32_t)i * ATTN_PHILOX_KEY_0;
        d->round_keys[i][1] = (uint32_t)(seed >> 32) + (uint32_t)i * ATTN_PHILOX_KEY_1;
    }
}

/* philox turns `count` counters c0 to c3 into random words; a constant count lets a compiler use
 * vectors. */
KERNEL void philox(const attn_drop *d, int count, uint32_t *c0, uint32_t *c1, uint32_t *c2,
                   uint32_t *c3)
{
    int i, r;
    for (i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
        const uint32_t k0 = d->round_keys[i][0], k1 = d->round_keys[i][1];
        for (r = 0; r < count; r++) {
            const uint64_t a = (uint64_t)ATTN_PHILOX_A * c0[r];
            const uint64_t b = (uint64_t)ATTN_PHILOX_B * c2[r];
            c0[r] = (uint32_t)(b >> 32) ^ c1[r] ^ k0;
            c1[r] = (uint32_t)b;
            c2[r] = (uint32_t)(a >> 32) ^ c3[r] ^ k1;
            c3[r] = (uint32_t)a;
        }
    }
}

/* src/halves.c - the 16-bit storage types: exact to f32; from f32 to nearest even, NaN canonical. */

/* It chooses by masks, so that compilers vectorise loops of it. */
static inline float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu, bias = 112u << 23;
    const uint32_t strange = 0u - (uint32_t)(rest > 0x7bffu); /* infinity or NaN */
    const uint32_t small = 0u - (uint32_t)(rest < 0x0400u);   /* subnormal in f16, normal in f32 */
    const float tiny = (float)(int32_t)rest * 0x1p-24f;
    const uint32_t normal = (rest << 13) + bias + (strange & bias);
    return float_of(sign | (bits_of(tiny) & small) | (normal & ~small));
}

static inline uint16_t f16_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu, half, shift;
    if (a > 0x7f800000u)
        return 0x7e00u;
    if (a >= 0x477ff000u) /* It rounds to 65536 or more. */
        return (uint16_t)(sign | 0x7c00u);
    if (a >= 0x38800000u) { /* The result is normal, 2^-14 and above. */
        a -= 112u << 23;
        a += 0xfffu + (a >> 13 & 1);
        return (uint16_t)(sign | a >> 13);
    }
    if (a <= 0x33000000u) /* It is at most 2^-25, a tie with 0 or below. */
        return (uint16_t)sign;
    /* The shift is 14 to 24 and makes the significand a multiple of 2^-24. */
    shift = 126u - (a >> 23);
    a = (a & 0x7fffffu) | 0x800000u;
    half = 1u << (shift - 1);
    a += half - 1 + (a >> shift & 1);
    return (uint16_t)(sign | a >> shift);
}

static inline float bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static inline uint16_t bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);
    if (is_nan(x))
        return 0x7fc0u;
    u += 0x7fffu + (u >> 16 & 1);
    return (uint16_t)(u >> 16);
}

/* src/eighths.c - the 8-bit floats of the OCP specification, which only K and V may have.
 *
 * OCP 8-bit Floating Point Specification (OFP8), revision 1.0. Exact to f32; from f32 to nearest even.
 * What is too large becomes NaN in E4M3, which has no infinity, and infinity in E5M2.
 */

/* to_eighth rounds the magnitude with the bits a, which is not too large, to a float with `cut` bits
 * less of fraction whose exponents are `less` lower; its least normal number is 2^(1 + less - 127). */
static inline uint32_t to_eighth(uint32_t a, uint32_t cut, uint32_t less)
{
    uint32_t shift, half;
    if (a >= (less + 1) << 23) { /* The result is normal. */
        a -= less << 23;
        shift = cut;
    } else {
        shift = cut + 1 + less - (a >> 23);
        if (shift > 24) /* It is at most half of the least subnormal one, a tie with 0. */
            return 0;
        a = (a & 0x7fffffu) | 0x800000u;
    }
    half = 1u << (shift - 1);
    return (a + half - 1 + (a >> shift & 1)) >> shift;
}

/* It chooses by masks, so that compilers vectorise loops of it. */
static inline float e4m3_to_f32(uint8_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x80u) << 24, rest = h & 0x7fu;
    const uint32_t strange = 0u - (uint32_t)(rest == 0x7fu);
    const uint32_t small = 0u - (uint32_t)(rest < 0x08u); /* subnormal in E4M3, normal in f32 */
    const float tiny = (float)(int32_t)rest * 0x1p-9f;
    const uint32_t normal = (rest << 20) + (120u << 23);
    return float_of(sign | (bits_of(tiny) & small) | (normal & ~(small | strange)) |
                    (CANONICAL_NAN & strange));
}

static inline uint8_t e4m3_from_f32(float x)
{
    const uint32_t u = bits_of(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x43e80000u) /* It is above 464, the tie between 448 and what would be 480, or a NaN. */
        return (uint8_t)(a > 0x7f800000u ? 0x7fu : sign | 0x7fu);
    return (uint8_t)(sign | to_eighth(a, 20, 120));
}

/* E5M2 is the upper half of an f16. */
static inline float e5m2_to_f32(uint8_t h)
{
    return f16_to_f32((uint16_t)(h << 8));
}

static inline uint8_t e5m2_from_f32(float x)
{
    const uint32_t u = bits_of(x), sign = u >> 24 & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return 0x7eu;
    if (a >= 0x47700000u) /* It is 61440, the tie between 57344 and what would be 65536, or more. */
        return (uint8_t)(sign | 0x7cu);
    return (uint8_t)(sign | to_eighth(a, 21, 112));
}

/* src/bytes.c - products of bytes by what this CPU has: a float times a byte, sums of four products. */

/* d * q rounded once, where floating point is software, by one product of integers. */
#ifdef SOFT_FLOAT
static inline float times_byte(float d, int8_t q)
{
    const uint32_t u = bits_of(d), size = (uint32_t)(q < 0 ? -q : q);
    int exponent = (int)(u >> 23 & 255) + 7;
    uint32_t x = ((u & 0x7fffffu) | 0x800000u) * size;
    if (size == 0 || exponent < 14 || exponent > 254)
        return d * (float)q;
    for (; x < 1u << 30; x <<= 1)
        exponent--;
    return rounded32((u & 0x80000000u) ^ (q < 0 ? 0x80000000u : 0u), x, exponent);
}
#else
static inline float times_byte(float d, int8_t q)
{
    return d * (float)q;
}
#endif

/* Sums of products, for where there are no vectors. They are exact in 32 bits, so that both forms have the same
 * bits. Cortex-M4, M7, M33 and 32-bit ARM from ARMv6 on add the products of two pairs of 16 bits by one
 * instruction. */
#if !HAS_VECTORS && defined __ARM_FEATURE_SIMD32
#include <arm_acle.h>

typedef struct four_bytes {
    int16x2_t even, odd;
} four_bytes;

KERNEL four_bytes four_of(const int8_t *x)
{
    int8x4_t word;
    uint32_t turned;
    memcpy(&word, x, sizeof word);
    turned = (uint32_t)word >> 8 | (uint32_t)word << 24;
    return (four_bytes){ __sxtb16(word), __sxtb16((int8x4_t)turned) };
}

KERNEL int32_t add_four(int32_t sum, four_bytes a, four_bytes b)
{
    sum = __smlad(a.even, b.even, sum);
    return __smlad(a.odd, b.odd, sum);
}
#elif !HAS_VECTORS
typedef struct four_bytes {
    int32_t x[4];
} four_bytes;

KERNEL four_bytes four_of(const int8_t *x)
{
    return (four_bytes){ { x[0], x[1], x[2], x[3] } };
}

KERNEL int32_t add_four(int32_t sum, four_bytes a, four_bytes b)
{
    return sum + a.x[0] * b.x[0] + a.x[1] * b.x[1] + a.x[2] * b.x[2] + a.x[3] * b.x[3];
}
#endif

/* src/quantised.c - units of 32 numbers with one scale, as GGUF files hold them.
 *
 * A unit begins with its scale d, an f16 in the machine's byte order. Whole numbers q follow, packed, and
 * stand for d * q, which is exact in f32. Bytes are those of ggml's reference quantisation
 * (github.com/ggml-org/ggml, src/ggml-quants.c), with each operation rounded:
 *
 *     q8_0   34 bytes   q from -127 to 127, a signed byte each
 *     q5_0   22 bytes   q + 16 from 0 to 31: 32 upper bits, lowest first, then the lower four as below
 *     q4_0   18 bytes   q + 8 from 0 to 15: byte i holds number i low and number i + 16 high
 *
 * Where ggml's are undefined: a unit with a number that is not finite has a NaN as its scale, which
 * every number of it becomes, and one of numbers so small that 1 / d is infinite has 0 for every q.
 * A scale that no f16 holds is infinite, as ggml's is.
 */

#define UNIT 32
#define HALF_UNIT (UNIT / 2)

typedef struct q8_unit {
    uint16_t scale;
    int8_t q[UNIT];
} q8_unit;

typedef struct q5_unit {
    uint16_t scale;
    uint8_t upper[UNIT / 8];
    uint8_t lower[HALF_UNIT];
} q5_unit;

typedef struct q4_unit {
    uint16_t scale;
    uint8_t q[HALF_UNIT];
} q4_unit;

static inline void load_q8(float *RESTRICT to, const q8_unit *RESTRICT from)
{
    const float d = f16_to_f32(from->scale);
    int i;
    for (i = 0; i < UNIT; i++)
        to[i] = times_byte(d, from->q[i]);
}

/* unpack_q5 and unpack_q4 make units of 8 bits with the same numbers and scale. */
static inline void unpack_q5(q8_unit *RESTRICT to, const q5_unit *RESTRICT from)
{
    static const int16_t bit[HALF_UNIT] = { 1,       1 << 1,  1 << 2,  1 << 3,    1 << 4,  1 << 5,
                                            1 << 6,  1 << 7,  1 << 8,  1 << 9,    1 << 10, 1 << 11,
                                            1 << 12, 1 << 13, 1 << 14, -32767 - 1 };
    const int16_t first = (int16_t)(from->upper[0] | from->upper[1] << 8);
    const int16_t second = (int16_t)(from->upper[2] | from->upper[3] << 8);
    int i;
    to->scale = from->scale;
    for (i = 0; i < HALF_UNIT; i++) { /* A bit that is not there takes 16 away. */
        to->q[i] = (int8_t)((from->lower[i] & 15) - ((first & bit[i]) == 0) * 16);
        to->q[i + HALF_UNIT] = (int8_t)((from->lower[i] >> 4) - ((second & bit[i]) == 0) * 16);
    }
}

static inline void unpack_q4(q8_unit *RESTRICT to, const q4_unit *RESTRICT from)
{
    int i;
    to->scale = from->scale;
    for (i = 0; i < HALF_UNIT; i++) {
        to->q[i] = (int8_t)((from->q[i] & 15) - 8);
        to->q[i + HALF_UNIT] = (int8_t)((from->q[i] >> 4) - 8);
    }
}

static inline void load_q5(float *RESTRICT to, const q5_unit *RESTRICT from)
{
    static const int32_t bit[HALF_UNIT] = { 1,       1 << 1,  1 << 2,  1 << 3, 1 << 4,  1 << 5,
                                            1 << 6,  1 << 7,  1 << 8,  1 << 9, 1 << 10, 1 << 11,
                                            1 << 12, 1 << 13, 1 << 14, 1 << 15 };
    const float d = f16_to_f32(from->scale);
    const int32_t first = from->upper[0] | from->upper[1] << 8;
    const int32_t second = from->upper[2] | from->upper[3] << 8;
    int i;
    for (i = 0; i < HALF_UNIT; i++) { /* A bit that is not there takes 16 away. */
        to[i] = d * (float)((from->lower[i] & 15) - ((first & bit[i]) == 0) * 16);
        to[i + HALF_UNIT] = d * (float)((from->lower[i] >> 4) - ((second & bit[i]) == 0) * 16);
    }
}

static inline void load_q4(float *RESTRICT to, const q4_unit *RESTRICT from)
{
    const float d = f16_to_f32(from->scale);
    int i;
    for (i = 0; i < HALF_UNIT; i++) {
        to[i] = d * (float)((from->q[i] & 15) - 8);
        to[i + HALF_UNIT] = d * (float)((from->q[i] >> 4) - 8);
    }
}

/* The largest magnitude of n numbers, a NaN or infinity if one is not finite. */
KERNEL float size_of_run(const float *x, int64_t n)
{
    int32_t most = 0;
    int64_t i;
    for (i = 0; i < n; i++) {
        const int32_t bits = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
        most = bits > most ? bits : most;
    }
    return float_of((uint32_t)most);
}

static float size_of_unit(const float *x)
{
    return size_of_run(x, UNIT);
}

/* The number of the largest magnitude, the first of equal ones; a NaN if one is not finite. */
static float largest_of_unit(const float *x)
{
    const float size = size_of_unit(x);
    int i = 0;
    if (!is_finite(size))
        return float_of(CANONICAL_NAN);
    while ((bits_of(x[i]) & 0x7fffffffu) != bits_of(size))
        i++;
    return size > 0 ? x[i] : 0.0f;
}

/* 1 / d, and 0 for what gives no finite number, so that every q is one. */
static float inverse_scale(float d)
{
    const float inverse = 1.0f / (d + (float)(d == 0.0f));
    return d == 0.0f || !is_finite(d) || !is_finite(inverse) ? 0.0f : inverse;
}

/* Ties go away from 0. */
static inline float nearest_away(float x)
{
    const float size = float_of(bits_of(x) & 0x7fffffffu), whole = (float)(int32_t)size;
    const float nearest = whole + (float)(size - whole >= 0.5f);
    return float_of(bits_of(nearest) | (bits_of(x) & 0x80000000u));
}

/* Ties go to the even number; below 2^22. */
static inline float nearest_even(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest whole number. */
    x = x + magic;
    x = x - magic;
    return x;
}

/* round_unit gives the scale of 32 numbers of a query and rounds them to whole numbers from -127 to
 * 127, ties to even. As in store_q8 the scale of a unit that is not finite is a NaN, and numbers
 * are 0 where it has no inverse. */
static float round_unit(float *to, const float *x)
{
    const float size = size_of_unit(x), scale = size / 127.0f, inverse = inverse_scale(scale);
    float rounded[UNIT]; /* `to` may be x */
    int i;
    if (!is_finite(size)) {
        memset(to, 0, UNIT * sizeof *to);
        return float_of(CANONICAL_NAN);
    }
    for (i = 0; i < UNIT; i++) {
        const float y = x[i] * inverse;
        rounded[i] = nearest_even(y);
    }
    memcpy(to, rounded, sizeof rounded);
    return scale;
}

/* store_i8 does so for a row of any length, whose numbers are bytes. */
static float store_i8(int8_t *to, const float *x, int64_t n)
{
    const float size = size_of_run(x, n), scale = size / 127.0f, inverse = inverse_scale(scale);
    int64_t i;
    memset(to, 0, (size_t)n);
    if (!is_finite(size))
        return float_of(CANONICAL_NAN);
    for (i = 0; i < n; i++) {
        const float y = x[i] * inverse;
        to[i] = (int8_t)(int32_t)nearest_even(y);
    }
    return scale;
}

/* store_scaled rounds quotients by given scales, which lie `step` apart, to bytes from -127 to 127, ties to
 * even. A quotient that is a NaN, and one by 0, become 0. */
static void store_scaled(int8_t *to, const float *x, const float *scale, int64_t step, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float by = scale[i * step], y = x[i] / by;
        const float below = y < 127.0f ? y : 127.0f, held = below > -127.0f ? below : -127.0f;
        to[i] = (int8_t)(is_nan(y) || by == 0.0f ? 0 : (int32_t)nearest_even(held));
    }
}

static void store_q8(q8_unit *to, const float *x)
{
    const float size = float_of(bits_of(largest_of_unit(x)) & 0x7fffffffu);
    const float d = size / 127.0f, inverse = inverse_scale(d);
    int32_t q[UNIT];
    int i;
    to->scale = f16_from_f32(d);
    memset(to->q, 0, sizeof to->q);
    if (is_nan(d))
        return;
    for (i = 0; i < UNIT; i++)
        q[i] = (int32_t)nearest_away(x[i] * inverse);
    for (i = 0; i < UNIT; i++)
        to->q[i] = (int8_t)q[i];
}

/* The numbers as q + middle, where the largest magnitude is q = -middle. */
static void shift_unit(int32_t *q, const float *x, float inverse, int middle)
{
    const int32_t most = 2 * middle - 1;
    const float up = (float)middle + 0.5f;
    int i;
    for (i = 0; i < UNIT; i++) {
        const float y = x[i] * inverse;
        const int32_t rounded = (int32_t)(y + up);
        q[i] = rounded < most ? rounded : most;
    }
}

static float shifted_scale(const float *x, int middle)
{
    const float most = largest_of_unit(x);
    return most / (float)-middle;
}

static void store_q5(q5_unit *to, const float *x)
{
    const float d = shifted_scale(x, 16), inverse = inverse_scale(d);
    int32_t q[UNIT];
    int i;
    memset(to, 0, sizeof *to);
    to->scale = f16_from_f32(d);
    if (is_nan(d))
        return;
    shift_unit(q, x, inverse, 16);
    for (i = 0; i < HALF_UNIT; i++)
        to->lower[i] = (uint8_t)((q[i] & 15) | (q[i + HALF_UNIT] & 15) << 4);
    for (i = 0; i < UNIT; i++)
        to->upper[i / 8] |= (uint8_t)(q[i] >> 4 << i % 8);
}

static void store_q4(q4_unit *to, const float *x)
{
    const float d = shifted_scale(x, 8), inverse = inverse_scale(d);
    int32_t q[UNIT];
    int i;
    memset(to, 0, sizeof *to);
    to->scale = f16_from_f32(d);
    if (is_nan(d))
        return;
    shift_unit(q, x, inverse, 8);
    for (i = 0; i < HALF_UNIT; i++)
        to->q[i] = (uint8_t)(q[i] | q[i + HALF_UNIT] << 4);
}

/* src/sizes.c - sizes and strides: sums and products stop at a limit instead of overflowing. */

static inline int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t entry32(const int32_t *array, int64_t index, int64_t otherwise)
{
    return array ? array[index] : otherwise;
}

/* Products and sums of sizes, which are 0 or more, stop at TOO_BIG instead of overflowing; what is
 * in memory is below ADDRESS_LIMIT bytes, and TOO_BIG is not. */
#define TOO_BIG (INT64_MAX / 4)
#define ADDRESS_LIMIT (PTRDIFF_MAX / 4)

static inline int64_t times(int64_t a, int64_t b)
{
    if ((a | b) >> 30 == 0) /* The division takes 32-bit CPUs 150 instructions. */
        return a * b;
    if (a == 0 || b == 0)
        return 0;
    return a >= TOO_BIG / b ? TOO_BIG : a * b;
}

static inline int64_t plus(int64_t a, int64_t b)
{
    return min64(a + b, TOO_BIG);
}

/* A size beyond this cannot be the count of anything in memory. */
#define MOST ((int64_t)(PTRDIFF_MAX / 4 < TOO_BIG / 4 ? PTRDIFF_MAX / 4 : TOO_BIG / 4))

/* extent counts the elements from the first to the last of a strided array, or gives TOO_BIG if
 * that cannot be in memory. */
static inline int64_t extent(const int64_t count[4], const ptrdiff_t stride[4])
{
    int64_t sum = 1;
    int axis;
    for (axis = 0; axis < 4; axis++) {
        const int64_t step = stride[axis] < 0 ? -max64(stride[axis], -TOO_BIG) : stride[axis];
        if (count[axis] == 0)
            return 0;
        sum = plus(sum, times(count[axis] - 1, step));
    }
    return sum;
}

static inline ptrdiff_t to_stride(int64_t elements)
{
    return elements > PTRDIFF_MAX ? PTRDIFF_MAX : (ptrdiff_t)elements;
}

/* Every array in the workspace begins at a multiple of it, a cache line and an AVX-512 vector. */
#define ALIGNMENT 64

static inline int64_t aligned(int64_t bytes)
{
    return plus(bytes, ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* align_memory gives the first aligned byte of a caller's memory. */
static inline char *align_memory(const void *memory)
{
    const uintptr_t at = (uintptr_t)memory;
    return (char *)memory + (ALIGNMENT - at % ALIGNMENT) % ALIGNMENT;
}

/* bytes_given counts the bytes of a caller's workspace that can matter. */
static inline int64_t bytes_given(const void *workspace, size_t bytes)
{
    const int64_t limit = ADDRESS_LIMIT;
    return !workspace ? 0 : bytes < (uint64_t)limit ? (int64_t)bytes : limit;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return a == 0 ? 0 : (a - 1) / b + 1;
}

/* log2_up gives log2 of n, rounded up: the levels of a binary tree above its n leaves. */
static inline int log2_up(int64_t n)
{
    int levels = 0;
    for (; n > 1; n = ceil_div(n, 2))
        levels++;
    return levels;
}

/* place appends `count` elements to a slot that is `*at` bytes long and returns their offset. */
static inline int64_t place(int64_t *at, int64_t count, size_t bytes_each)
{
    const int64_t offset = *at;
    *at = plus(offset, aligned(times(count, (int64_t)bytes_each)));
    return offset;
}

#define LINE (ALIGNMENT / (int64_t)sizeof(float))

/* whole_lines counts the floats of whole cache lines. */
static inline int64_t whole_lines(int64_t floats)
{
    return times(ceil_div(floats, LINE), LINE);
}

/* pitch_of gives an odd number of whole cache lines, so that rows do not compete for one part of
 * the cache. */
static inline int64_t pitch_of(int64_t dim)
{
    return times(ceil_div(dim, LINE) | 1, LINE);
}

/* The largest element is a number of 64 bits, which some machines align to 4 bytes. */
struct aligned_number {
    char before;
    int64_t number;
};

/* alignment_of gives what addresses of elements, or of units, of that size are multiples of. */
static inline int64_t alignment_of(int64_t bytes_each)
{
    return min64(bytes_each & -bytes_each, (int64_t)offsetof(struct aligned_number, number));
}

static inline int is_aligned(const void *data, int64_t bytes_each)
{
    return (uintptr_t)data % (uintptr_t)alignment_of(bytes_each) == 0;
}

/* stride_or gives a stride as it was given, with what 0 and "broadcast" mean. */
static inline ptrdiff_t stride_or(ptrdiff_t stride, int64_t packed)
{
    return stride == ATTN_STRIDE_BROADCAST ? 0 : stride == 0 ? to_stride(packed) : stride;
}

static inline attn_tensor as_tensor(const attn_output *o)
{
    const attn_tensor t = { o->dtype, o->stride_batch, o->stride_head, o->stride_seq, o->data };
    return t;
}

/* src/storage.c - storage types: read as f32 exactly, written from f32 to nearest.
 *
 * A type is a row of one table. A unit is what it stores together: one number, or 32 of them with a
 * scale. Calls read and write runs of numbers by kernels.
 */

#define F16_ONE 0x3c00

static float load_f32(const void *data, int64_t at)
{
    return ((const float *)data)[at];
}

static void store_f32(void *data, int64_t at, float x)
{
    ((float *)data)[at] = is_nan(x) ? float_of(CANONICAL_NAN) : x;
}

static float load_f16(const void *data, int64_t at)
{
    return f16_to_f32(((const uint16_t *)data)[at]);
}

static float load_bf16(const void *data, int64_t at)
{
    return bf16_to_f32(((const uint16_t *)data)[at]);
}

static void read_f16(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_f16(to, from, n);
}

static void read_bf16(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_bf16(to, from, n);
}

static void read_e4m3(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_e4m3(to, from, n);
}

static void read_e5m2(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_e5m2(to, from, n);
}

static void read_q8_0(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_q8_0(to, from, n);
}

static void read_q5_0(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_q5_0(to, from, n);
}

static void read_q4_0(const attn_kernels *kernels, float *to, const void *from, int64_t n)
{
    kernels->widen_q4_0(to, from, n);
}

static void write_f16(const attn_kernels *kernels, void *to, const float *from, int64_t n)
{
    kernels->narrow_f16(to, from, n);
}

static void write_bf16(const attn_kernels *kernels, void *to, const float *from, int64_t n)
{
    kernels->narrow_bf16(to, from, n);
}

static void unpack_q8_0(q8_unit *to, const void *from, int64_t n)
{
    memcpy(to, from, (size_t)(n / UNIT) * sizeof *to);
}

/* The scale of a unit is 1: those of the caller come before or behind its products. */
static void unpack_i8(q8_unit *to, const void *from, int64_t n)
{
    const int8_t *q = (const int8_t *)from;
    for (; n > 0; n -= UNIT, q += UNIT, to++) {
        to->scale = F16_ONE;
        memcpy(to->q, q, sizeof to->q);
    }
}

static void unpack_q5_0(q8_unit *to, const void *from, int64_t n)
{
    const q5_unit *unit = (const q5_unit *)from;
    for (; n > 0; n -= UNIT)
        unpack_q5(to++, unit++);
}

static void unpack_q4_0(q8_unit *to, const void *from, int64_t n)
{
    const q4_unit *unit = (const q4_unit *)from;
    for (; n > 0; n -= UNIT)
        unpack_q4(to++, unit++);
}

typedef struct storage {
    const char *name;
    int unit;     /* numbers that are stored together, */
    size_t bytes; /* in these bytes */
    /* Nonzero means that the products for few lanes, of K or of V, read rows of it as they lie. */
    int in_products[2];
    /* NULL for what only K and V may have. */
    float (*load)(const void *data, int64_t at);
    void (*write)(const attn_kernels *kernels, void *to, const float *from, int64_t n);
    /* NULL for f32, whose runs are copied, as they are in writing, and for i8, which has scales. */
    void (*read)(const attn_kernels *kernels, float *to, const void *from, int64_t n);
    /* NULL where there are no whole numbers. */
    void (*unpack)(q8_unit *to, const void *from, int64_t n);
} storage;

/* The table is in the order of attn_dtype. */
static const storage storages[] = {
    { "f32", 1, 4, { 1, 1 }, load_f32, NULL, NULL, NULL },
    { "f16", 1, 2, { 1, 1 }, load_f16, write_f16, read_f16, NULL },
    { "bf16", 1, 2, { 1, 1 }, load_bf16, write_bf16, read_bf16, NULL },
    { "e4m3", 1, 1, { 1, 1 }, NULL, NULL, read_e4m3, NULL },
    { "e5m2", 1, 1, { 1, 1 }, NULL, NULL, read_e5m2, NULL },
    { "q8_0", UNIT, sizeof(q8_unit), { 1, 1 }, NULL, NULL, read_q8_0, unpack_q8_0 },
    { "q5_0", UNIT, sizeof(q5_unit), { 1, 1 }, NULL, NULL, read_q5_0, unpack_q5_0 },
    { "q4_0", UNIT, sizeof(q4_unit), { 1, 1 }, NULL, NULL, read_q4_0, unpack_q4_0 },
    { "i8", 1, 1, { 0, 0 }, NULL, NULL, NULL, unpack_i8 },
};

#define LAST_DTYPE (COUNT_OF(storages) - 1)
#define LAST_PLAIN ATTN_BF16
#define PLAIN_DTYPES "0 is f32, 1 is f16, 2 is bf16"
#define DTYPES PLAIN_DTYPES ", 3 is e4m3, 4 is e5m2, 5 is q8_0, 6 is q5_0, 7 is q4_0, 8 is i8"

/* has_scales tells whether numbers of a type mean nothing without the caller's scales. */
static inline int has_scales(int dtype)
{
    return dtype == ATTN_I8;
}

/* bytes_of gives the bytes of a unit, which is a number of plain types. */
static inline size_t bytes_of(int dtype)
{
    return storages[dtype].bytes;
}

/* bytes_between gives the bytes between numbers that are n apart, and room_of those of n numbers; n is
 * whole units. */
static inline ptrdiff_t bytes_between(int dtype, int64_t n)
{
    return (ptrdiff_t)(n / storages[dtype].unit) * (ptrdiff_t)bytes_of(dtype);
}

static inline int64_t room_of(int dtype, int64_t n)
{
    return times(n / storages[dtype].unit, (int64_t)bytes_of(dtype));
}

/* load_run loads n numbers from data[at..] as f32, whole units. */
static inline void load_run(const attn_kernels *kernels, int dtype, float *to, const void *data,
                            int64_t at, int64_t n)
{
    const char *from = (const char *)data + bytes_between(dtype, at);
    if (dtype == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else
        storages[dtype].read(kernels, to, from, n);
}

/* run_as_f32 gives n numbers from data[at..] as f32: where they lie, or widened into `space`. */
static inline const float *run_as_f32(const attn_kernels *kernels, int dtype, const void *data,
                                      int64_t at, int64_t n, float *space)
{
    if (dtype == ATTN_F32)
        return (const float *)data + at;
    load_run(kernels, dtype, space, data, at, n);
    return space;
}

/* store_run stores n results of a plain type to data[at..]; their NaN is canonical already, and they
 * hold no -0. */
static inline void store_run(const attn_kernels *kernels, int dtype, void *data, int64_t at,
                             const float *from, int64_t n)
{
    char *to = (char *)data + at * (int64_t)bytes_of(dtype);
    if (dtype == ATTN_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else
        storages[dtype].write(kernels, to, from, n);
}

/* src/states.c - raw states (m, l, o) of rows as a caller holds them, and the merge of two. */

/* A portable tile has this number of query rows: two AVX, four NEON or SSE vectors. Without vectors each
 * lane takes its time, whether a row is there or not. */
#define LANES (HAS_VECTORS ? 16 : 4)

static inline attn_state state_at(const attn_state *s, int64_t row, int64_t head_dim_v)
{
    attn_state one = *s;
    one.m += row;
    one.l += row;
    one.o += row * head_dim_v;
    return one;
}

/* packed_states gives the states of rows as one array has them: every m, every l, then every o. */
static inline attn_state packed_states(float *at, int64_t rows, int64_t head_dim_v)
{
    const attn_state s = { rows, head_dim_v, at, at + rows, at + 2 * rows };
    return s;
}

static inline void copy_states(const attn_state *to, const attn_state *from, int64_t rows,
                               int64_t head_dim_v)
{
    memmove(to->m, from->m, (size_t)rows * sizeof *to->m);
    memmove(to->l, from->l, (size_t)rows * sizeof *to->l);
    memmove(to->o, from->o, (size_t)(rows * head_dim_v) * sizeof *to->o);
}

static inline void clear_states(const attn_state *s)
{
    int64_t row;
    for (row = 0; row < s->num_rows; row++)
        s->m[row] = NEG_INF;
    memset(s->l, 0, (size_t)s->num_rows * sizeof *s->l);
    memset(s->o, 0, (size_t)(s->num_rows * s->head_dim_v) * sizeof *s->o);
}

static inline void add_floats(float *to, const float *from, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++)
        to[i] = to[i] + from[i];
}

static inline int is_state(const attn_state *s)
{
    return s && s->m && s->l && s->o &&
           ((uintptr_t)s->m | (uintptr_t)s->l | (uintptr_t)s->o) % sizeof(float) == 0;
}

/* merge_rows computes out = a + b for up to LANES rows; o is [head_dim_v][rows], and out may be a
 * or b. */
KERNEL void merge_rows(int hw, int rows, const attn_state *a, const attn_state *b,
                       const attn_state *out, int64_t head_dim_v)
{
    float wa[LANES], wb[LANES];
    int64_t k;
    int r;
    for (r = 0; r < rows; r++) {
        const float m = a->m[r] > b->m[r] ? a->m[r] : b->m[r];
        const float from = m == NEG_INF ? 0.0f : m;
        float x = a->m[r] - from;
        wa[r] = exp2_with(hw, x);
        x = b->m[r] - from;
        wb[r] = exp2_with(hw, x);
        x = a->l[r] * wa[r];
        out->l[r] = fma32(hw, b->l[r], wb[r], x);
        out->m[r] = m;
    }
    for (k = 0; k < head_dim_v * rows; k += rows)
        for (r = 0; r < rows; r++) {
            const float x = a->o[k + r] * wa[r];
            out->o[k + r] = fma32(hw, b->o[k + r], wb[r], x);
        }
}

/* src/kernels.c - the portable kernels.
 *
 * Each body is written once, in plain loops over lanes that compilers vectorise, and built by the
 * lists at the end: plain, and on x86 once more for FMA. The seam has the contracts and layouts.
 */

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

/* src/select.c - which kernel sets this CPU can run, and which of them is best. */

#define CPU_KNOWN 1u /* This bit says that the word has been written. */
/* What the operating system answered; neither bit is set before it is asked. */
#define TILES_PERMITTED (1u << 30)
#define TILES_REFUSED (1u << 31)

#if defined __x86_64__ || defined __i386__ || defined _M_X64 || defined _M_IX86
#define ON_X86 1
#else
#define ON_X86 0
#endif
#if defined __aarch64__ || defined _M_ARM64
#define ON_ARM64 1
#else
#define ON_ARM64 0
#endif
#ifdef __arm__
#define ON_ARM32 1
#else
#define ON_ARM32 0
#endif
#if defined __riscv && __riscv_xlen == 64
#define ON_RISCV64 1
#else
#define ON_RISCV64 0
#endif
#ifdef __wasm__
#define ON_WASM 1
#else
#define ON_WASM 0
#endif
#if ON_WASM
#define STUBS_WHY                                                                                  \
    ": their file was compiled without -msimd128, for wasm_relaxed -mrelaxed-simd, too, or this "  \
    "engine rounds a * b + c twice"
#elif ON_RISCV64
#define STUBS_WHY ": stubs, because only clang from 17 on compiles them"
#else
#define STUBS_WHY ": stubs, because only gcc, clang and clang-cl compile them"
#endif

/* cpuid, and the word of xgetbv that says which registers the operating system saves. */
#if ON_X86 && GNU_C
#ifdef __i386__
#define SWAP_EBX "xchgl %%ebx, %k1\n\t"
#else
#define SWAP_EBX "xchgq %%rbx, %q1\n\t"
#endif

/* ebx may hold the GOT pointer of 32-bit position-independent code: it is saved by hand. */
static void cpuid(unsigned leaf, unsigned part, unsigned out[4])
{
    __asm__ volatile(SWAP_EBX "cpuid\n\t" SWAP_EBX
                     : "=a"(out[0]), "=&r"(out[1]), "=c"(out[2]), "=d"(out[3])
                     : "0"(leaf), "2"(part));
}

static unsigned saved_registers(void)
{
    unsigned low, high;
    __asm__ volatile(".byte 0x0f, 0x01, 0xd0" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}
#elif ON_X86 && defined _MSC_VER
#include <intrin.h>

static void cpuid(unsigned leaf, unsigned part, unsigned out[4])
{
    int r[4];
    __cpuidex(r, (int)leaf, (int)part);
    memcpy(out, r, sizeof r);
}

static unsigned saved_registers(void)
{
    return (unsigned)_xgetbv(0);
}
#endif

#if (defined __aarch64__ || defined __arm__ || ON_RISCV64) && defined __linux__
#include <sys/auxv.h>
#endif

#if ON_X86 && (GNU_C || defined _MSC_VER)
/* The CPU has the instructions and the operating system saves the registers: XCR0 bits 1 and 2 for
 * AVX, 5 to 7 for AVX-512, 17 and 18 for AMX. */
static unsigned detect_cpu(void)
{
    /* The bits are FMA, OSXSAVE, AVX and F16C. */
    const unsigned basis = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
    const unsigned avx2 = 1u << 5, avx512 = 1u << 16 | 1u << 17 | 1u << 30;
    const unsigned dots = 1u << 11, avx_dots = 1u << 4;
    const unsigned tiles = 1u << 22 | 1u << 24, rounding = 1u << 5, tile_state = 0x60000;
    unsigned r[4], saved, found = CPU_KNOWN;
    cpuid(0, 0, r);
    if (r[0] < 7)
        return found;
    cpuid(1, 0, r);
    if ((r[2] & basis) != basis)
        return found;
    saved = saved_registers();
    cpuid(7, 0, r);
    if ((saved & 0x06) == 0x06 && (r[1] & avx2))
        found |= ATTN_CPU_AVX2;
    if ((saved & 0xe6) == 0xe6 && (r[1] & avx512) == avx512)
        found |= ATTN_CPU_AVX512 | (r[2] & dots ? ATTN_CPU_DOTS_512 : 0);
    if (found & ATTN_CPU_AVX512 && (saved & tile_state) == tile_state && (r[3] & tiles) == tiles)
        found |= ATTN_CPU_TILES;
    if (found & ATTN_CPU_AVX2 && r[0] >= 1) {
        cpuid(7, 1, r);
        found |= r[0] & avx_dots ? ATTN_CPU_DOTS_256 : 0;
        found |= found & ATTN_CPU_AVX512 && r[0] & rounding ? ATTN_CPU_BF16_512 : 0;
        found &= r[0] & rounding ? ~0u : ~ATTN_CPU_TILES;
    }
    return found;
}
#elif defined __aarch64__ && defined __linux__
/* HWCAP_ASIMDDP is bit 20, HWCAP2_I8MM bit 13, and HWCAP2_BF16 bit 14. */
static unsigned detect_cpu(void)
{
    const unsigned long dots = 1ul << 20, i8mm = 1ul << 13, bf16 = 1ul << 14;
    return CPU_KNOWN | (getauxval(AT_HWCAP) & dots ? ATTN_CPU_DOTS_ARM : 0) |
           (getauxval(AT_HWCAP2) & i8mm ? ATTN_CPU_I8MM : 0) |
           (getauxval(AT_HWCAP2) & bf16 ? ATTN_CPU_BF16 : 0);
}
#elif defined __aarch64__ && defined __APPLE__
#include <sys/sysctl.h>

/* Systems that do not know the name of a feature run on CPUs without it. */
static int has_feature(const char *name)
{
    int yes = 0;
    size_t size = sizeof yes;
    return sysctlbyname(name, &yes, &size, NULL, 0) == 0 && yes;
}

/* Every such CPU has DotProd. */
static unsigned detect_cpu(void)
{
    return CPU_KNOWN | ATTN_CPU_DOTS_ARM |
           (has_feature("hw.optional.arm.FEAT_I8MM") ? ATTN_CPU_I8MM : 0) |
           (has_feature("hw.optional.arm.FEAT_BF16") ? ATTN_CPU_BF16 : 0);
}
#elif defined __arm__ && defined __linux__
/* HWCAP_NEON is bit 12, HWCAP_VFPv4 bit 16. */
static unsigned detect_cpu(void)
{
    const unsigned long both = 1ul << 12 | 1ul << 16;
    return CPU_KNOWN | ((getauxval(AT_HWCAP) & both) == both ? ATTN_CPU_NEON_32 : 0);
}
#elif defined __arm__ && defined __ARM_NEON && defined __ARM_FEATURE_FMA
static unsigned detect_cpu(void)
{
    return CPU_KNOWN | ATTN_CPU_NEON_32;
}
#elif ON_RISCV64 && defined __riscv_v
/* All of the program needs it. */
static unsigned detect_cpu(void)
{
    return CPU_KNOWN | ATTN_CPU_RVV;
}
#elif ON_RISCV64 && GNU_C && defined __linux__
/* Systems of CPUs with V 0.7 say that they have V, too. Bit 7 of a type of vectors, "mask agnostic", came
 * with 1.0: before it, that type is illegal, which the sign of vtype tells. */
static int has_vectors_1_0(void)
{
    long type;
    __asm__ volatile(".4byte 0x0d0072d7\n\t" /* vsetvli t0, zero, e32, m1, ta, ma */
                     "csrr %0, 0xc21"
                     : "=r"(type)
                     :
                     : "t0");
    return type >= 0;
}

static unsigned detect_cpu(void)
{
    const unsigned long vectors = 1ul << ('V' - 'A');
    return CPU_KNOWN | (getauxval(AT_HWCAP) & vectors && has_vectors_1_0() ? ATTN_CPU_RVV : 0);
}
#else
static unsigned detect_cpu(void)
{
    return CPU_KNOWN;
}
#endif

static unsigned cpu_features; /* This is the only writable word of the library. */

ATTN_API unsigned attn_cpu_features(void)
{
    unsigned features = LOAD_WORD(&cpu_features);
    if (!features) {
        features = detect_cpu();
        STORE_WORD(&cpu_features, features);
    }
    return features;
}

#if defined __GNUC__ && defined __x86_64__ && defined __linux__ && !defined __ILP32__
/* arch_prctl(ARCH_REQ_XCOMP_PERM, 18), where 18 is the data of tiles. */
static int ask_for_tiles(void)
{
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(158L), "D"(0x1023L), "S"(18L)
                     : "rcx", "r11", "memory");
    return result == 0;
}
#else
static int ask_for_tiles(void)
{
    return 0;
}
#endif

/* Threads that ask at once get one answer; a thread that only just finds out what the CPU can do may
 * write the word behind them, and then the next call asks again. */
ATTN_API int attn_cpu_permits_tiles(void)
{
    unsigned features = attn_cpu_features();
    if (features & ATTN_CPU_TILES && !(features & (TILES_PERMITTED | TILES_REFUSED))) {
        features |= ask_for_tiles() ? TILES_PERMITTED : TILES_REFUSED;
        STORE_WORD(&cpu_features, features);
    }
    return (features & TILES_PERMITTED) != 0;
}

#ifdef FMA_SECOND_BUILD
static const attn_kernels *get_portable_fma(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX2 ? &kernels_portable_fma : NULL;
}
#endif

static const attn_kernels *get_portable(void)
{
    return &kernels_portable;
}

/* Every 64-bit x86 has SSE2; an older one that has AVX2 has it, too. */
#define NEEDS_SSE2 (sizeof(void *) == 8 ? 0 : ATTN_CPU_AVX2)

/* The best come first; each answers with its table, or NULL if this CPU cannot run it, or if its file
 * was compiled to a stub. */
static const struct kernel_source {
    const char *name;
    const attn_kernels *(*get)(void);
    int narrow; /* Nonzero means that it is the form of the set before it for few rows. */
    int native; /* Zero means that it is for another kind of CPU. */
    int rounds; /* Nonzero means that it is a form of the set before them that p.fast allows; the best
                     * of several comes last. */
    unsigned needs; /* A CPU of its kind with these features runs it. */
} kernel_sources[] = {
#ifdef ATTN_SIMD_AVX512
    { "avx512", attn_kernels_avx512, 0, ON_X86, 0, ATTN_CPU_AVX512 },
    { "avx512_narrow", attn_kernels_avx512_narrow, 1, ON_X86, 0, ATTN_CPU_AVX512 },
    { "avx512_bf16", attn_kernels_avx512_bf16, 0, ON_X86, 1, ATTN_CPU_BF16_512 },
    { "avx512_amx", attn_kernels_avx512_amx, 0, ON_X86, 1, ATTN_CPU_TILES },
#endif
#ifdef ATTN_SIMD_AVX2
    { "avx2", attn_kernels_avx2, 0, ON_X86, 0, ATTN_CPU_AVX2 },
    { "avx2_narrow", attn_kernels_avx2_narrow, 1, ON_X86, 0, ATTN_CPU_AVX2 },
#endif
#ifdef ATTN_SIMD_NEON
    { "neon", attn_kernels_neon, 0, ON_ARM64, 0, 0 },
    { "neon_narrow", attn_kernels_neon_narrow, 1, ON_ARM64, 0, 0 },
    { "neon_bf16", attn_kernels_neon_bf16, 0, ON_ARM64, 1, ATTN_CPU_BF16 },
    { "neon32", attn_kernels_neon32, 0, ON_ARM32, 0, ATTN_CPU_NEON_32 },
    { "neon32_narrow", attn_kernels_neon32_narrow, 1, ON_ARM32, 0, ATTN_CPU_NEON_32 },
#endif
#ifdef ATTN_SIMD_RVV
    { "rvv", attn_kernels_rvv, 0, ON_RISCV64, 0, ATTN_CPU_RVV },
    { "rvv_narrow", attn_kernels_rvv_narrow, 1, ON_RISCV64, 0, ATTN_CPU_RVV },
#endif
#ifdef FMA_SECOND_BUILD
    { "portable_fma", get_portable_fma, 0, 1, 0, ATTN_CPU_AVX2 },
#endif
#ifdef ATTN_SIMD_SSE2
    { "sse2", attn_kernels_sse2, 0, ON_X86, 0, NEEDS_SSE2 },
    { "sse2_narrow", attn_kernels_sse2_narrow, 1, ON_X86, 0, NEEDS_SSE2 },
#endif
#ifdef ATTN_SIMD_WASM
    { "wasm_relaxed", attn_kernels_wasm_relaxed, 0, ON_WASM, 0, 0 },
    { "wasm_relaxed_narrow", attn_kernels_wasm_relaxed_narrow, 1, ON_WASM, 0, 0 },
    { "wasm", attn_kernels_wasm, 0, ON_WASM, 0, 0 },
    { "wasm_narrow", attn_kernels_wasm_narrow, 1, ON_WASM, 0, 0 },
#endif
    { "portable", get_portable, 0, 1, 0, 0 },
};

ATTN_API const attn_kernels *attn_kernels_get(int index)
{
    int i;
    for (i = 0; i < COUNT_OF(kernel_sources) && index >= 0; i++) {
        const attn_kernels *kernels = kernel_sources[i].rounds ? NULL : kernel_sources[i].get();
        if (kernels && index-- == 0)
            return kernels;
    }
    return NULL;
}

/* best_kernels gives the best set for `rows` rows: the first that runs, its narrow form, or where
 * `fast` is set the last of its forms that round. Few rows gain nothing by that. */
static const attn_kernels *best_kernels(int64_t rows, int fast)
{
    const attn_kernels *best = NULL;
    int i;
    for (i = 0; i < COUNT_OF(kernel_sources); i++) {
        const struct kernel_source *source = &kernel_sources[i];
        const attn_kernels *kernels;
        if (source->rounds && !fast) /* Nobody is asked for what is not needed. */
            continue;
        if (best && !source->rounds && !source->narrow)
            break;
        kernels = source->get();
        if (kernels && source->narrow && rows <= kernels->rows)
            return kernels;
        if (kernels && !source->narrow)
            best = kernels;
    }
    return best;
}

/* put_absent names the sets for this kind of CPU that are linked in, but do not answer: those that
 * the CPU could run, or those that it cannot. */
static void put_absent(text *why, int runnable, const char *because)
{
    int i, count = 0;
    for (i = 0; i < COUNT_OF(kernel_sources); i++) {
        const struct kernel_source *source = &kernel_sources[i];
        const int could = (attn_cpu_features() & source->needs) == source->needs;
        if (!source->native || source->rounds || source->get() || could != runnable)
            continue;
        put(why, count++ ? ", " : "; kernels ");
        put(why, source->name);
    }
    if (count)
        put(why, because);
}

static void put_missing_kernels(text *why)
{
    put_absent(why, 0, ": this CPU or its operating system cannot run them");
    put_absent(why, 1, STUBS_WHY);
}

static const attn_kernels *find_kernels(const char *name, size_t length)
{
    int i;
    for (i = 0; i < COUNT_OF(kernel_sources); i++)
        if (same_word(kernel_sources[i].name, name, length))
            return kernel_sources[i].get();
    return NULL;
}

ATTN_API const attn_kernels *attn_kernels_find(const char *name)
{
    return name ? find_kernels(name, strlen(name)) : NULL;
}

ATTN_API const char *attn_kernels_name(const attn_kernels *kernels)
{
    return kernels ? kernels->name : "none";
}

/* src/convert.c - arrays of one storage type become arrays of another. */

/* is_converted tells whether a type is one that needs nothing but its own bytes. */
static int is_converted(int dtype)
{
    return dtype >= 0 && dtype <= LAST_DTYPE && !has_scales(dtype);
}

/* Whole units of every type. */
#define CONVERT_BLOCK (4 * UNIT)

/* The scales of a row, for a type that has some. */
typedef struct row_scales {
    const float *at;
    int64_t step;
} row_scales;

/* load_block loads numbers i to i+n-1 of a row. */
static void load_block(const attn_kernels *kernels, int dtype, float *to, const void *row,
                       int64_t i, int64_t n, row_scales by)
{
    if (has_scales(dtype))
        kernels->widen_i8(to, (const int8_t *)row + i, by.at + i * by.step, by.step, n);
    else
        load_run(kernels, dtype, to, row, i, n);
}

/* Kernels that narrow expect a canonical NaN. */
static void make_canonical(float *x, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++)
        x[i] = is_nan(x[i]) ? float_of(CANONICAL_NAN) : x[i];
}

/* Kernels that narrow make every zero +0. */
static void give_signs(uint16_t *y, const float *x, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++)
        y[i] = (uint16_t)(y[i] | (y[i] ? 0u : bits_of(x[i]) >> 16 & 0x8000u));
}

/* store_block stores whole units as numbers `at` to at+n-1 of a row; no column of `storages`, since clang
 * then leaves it out of programs that convert nothing. */
static void store_block(const attn_kernels *kernels, int dtype, void *row, int64_t at,
                        const float *x, int64_t n, row_scales by)
{
    void *const to = (char *)row + bytes_between(dtype, at);
    int64_t i;
    switch (dtype) {
    case ATTN_F16:
    case ATTN_BF16:
        (dtype == ATTN_F16 ? kernels->narrow_f16 : kernels->narrow_bf16)(to, x, n);
        give_signs(to, x, n);
        break;
    case ATTN_E4M3:
        for (i = 0; i < n; i++)
            ((uint8_t *)to)[i] = e4m3_from_f32(x[i]);
        break;
    case ATTN_E5M2:
        for (i = 0; i < n; i++)
            ((uint8_t *)to)[i] = e5m2_from_f32(x[i]);
        break;
    case ATTN_Q8_0:
        for (i = 0; i < n / UNIT; i++)
            store_q8((q8_unit *)to + i, x + i * UNIT);
        break;
    case ATTN_Q5_0:
        for (i = 0; i < n / UNIT; i++)
            store_q5((q5_unit *)to + i, x + i * UNIT);
        break;
    case ATTN_Q4_0:
        for (i = 0; i < n / UNIT; i++)
            store_q4((q4_unit *)to + i, x + i * UNIT);
        break;
    case ATTN_I8:
        store_scaled(to, x, by.at + at * by.step, by.step, n);
        break;
    default:
        memcpy(to, x, (size_t)n * sizeof *x);
    }
}

static void convert_run(void *dst, int dst_dtype, const void *src, int src_dtype, int64_t n,
                        row_scales by)
{
    const attn_kernels *kernels = attn_kernels_get(0);
    float x[CONVERT_BLOCK];
    int64_t i, count;
    for (i = 0; i < n; i += count) {
        count = min64(n - i, CONVERT_BLOCK);
        load_block(kernels, src_dtype, x, src, i, count, by);
        make_canonical(x, count);
        store_block(kernels, dst_dtype, dst, i, x, count, by);
    }
}

ATTN_API attn_status attn_convert(void *dst, int dst_dtype, const void *src, int src_dtype,
                                  size_t n)
{
    static const row_scales none = { NULL, 0 };
    int64_t each;
    if (!is_converted(dst_dtype) || !is_converted(src_dtype) || n > PTRDIFF_MAX / sizeof(float))
        return ATTN_ERR_ARG;
    if (n && (!dst || !src || !is_aligned(dst, (int64_t)bytes_of(dst_dtype)) ||
              !is_aligned(src, (int64_t)bytes_of(src_dtype))))
        return ATTN_ERR_ARG;
    each = max64(storages[src_dtype].unit, storages[dst_dtype].unit);
    if ((int64_t)n % each)
        return ATTN_ERR_ARG;
    convert_run(dst, dst_dtype, src, src_dtype, (int64_t)n, none);
    return ATTN_OK;
}

ATTN_API attn_status attn_quantise_i8(int8_t *to, float *scales, const float *x, int64_t rows,
                                      int64_t dim)
{
    int64_t r;
    if (rows < 0 || dim < 1 || times(rows, dim) >= ADDRESS_LIMIT)
        return ATTN_ERR_ARG;
    if (rows &&
        (!to || !scales || !x || !is_aligned(scales, sizeof *scales) || !is_aligned(x, sizeof *x)))
        return ATTN_ERR_ARG;
    for (r = 0; r < rows; r++)
        scales[r] = store_i8(to + r * dim, x + r * dim, dim);
    return ATTN_OK;
}

/* src/rules.c - rules about fields as data: ranges of counts and enums, strides, lengths, extents. */

typedef struct size_rule {
    const char *name;
    size_t offset;
    int64_t least, most;
} size_rule;

/* check_range says "name (value) must be at least / at most / the only value". */
static inline attn_status check_range(text *why, const char *name, int64_t least, int64_t most,
                                      int64_t value)
{
    const int low = value < least;
    if (!low && value <= most)
        return ATTN_OK;
    put_field(why, name, value);
    put(why, least == most ? " must be " : low ? " must be at least " : " must be at most ");
    put_int(why, low ? least : most);
    return !low && most == MOST ? ATTN_ERR_OVERFLOW : ATTN_ERR_ARG;
}

/* number_at reads an int or an int64_t, as `bytes` tells. */
static inline int64_t number_at(const void *at, size_t bytes)
{
    int64_t number;
    int as_int;
    if (bytes == sizeof number) {
        memcpy(&number, at, sizeof number);
        return number;
    }
    memcpy(&as_int, at, sizeof as_int);
    return as_int;
}

static inline attn_status check_members(const void *base, const size_rule *rules, int n,
                                        size_t bytes, text *why)
{
    attn_status status = ATTN_OK;
    int r;
    for (r = 0; r < n && !status; r++)
        status = check_range(why, rules[r].name, rules[r].least, rules[r].most,
                             number_at((const char *)base + rules[r].offset, bytes));
    return status;
}

/* Fields lie at their offsets from `base`: int64_t in check_counts, int in check_enums. */
static inline attn_status check_counts(const void *base, const size_rule *rules, int n, text *why)
{
    return check_members(base, rules, n, sizeof(int64_t), why);
}

static inline attn_status check_enums(const void *base, const size_rule *rules, int n, text *why)
{
    return check_members(base, rules, n, sizeof(int), why);
}

static const char *const stride_names[] = { ".stride_batch", ".stride_head", ".stride_seq" };

/* check_output_stride looks at a stride of an output as it was given. */
static inline attn_status check_output_stride(const char *name, const char *stride_name,
                                              ptrdiff_t stride, text *why)
{
    if (stride != ATTN_STRIDE_BROADCAST)
        return ATTN_OK;
    put(why, name);
    put(why, stride_name);
    return bad(why, ATTN_ERR_ARG,
               " (ATTN_STRIDE_BROADCAST) must be 0 (packed) or a stride: no rows share it");
}

/* bad_limit says "name[b] (value) must be from 0 to most". */
COLD static attn_status bad_limit(text *why, const char *name, int64_t b, int64_t value,
                                  int64_t most)
{
    bad_entry(why, name, b, value, " must be from 0 to ");
    if (most > INT32_MAX) /* MOST_KEY_BASE reads better so. */
        put_numbers(why, "2^#", NUMBERS(log2_up(most)));
    else
        put_int(why, most);
    return ATTN_ERR_ARG;
}

static inline attn_status check_cu_seqlens(const char *name, const int32_t *cu, int64_t batch,
                                           int64_t rows, text *why)
{
    int64_t b;
    if (cu && cu[0] < 0)
        return bad_entry(why, name, 0, cu[0], " must be at least 0");
    for (b = 0; cu && b < batch; b++)
        if (cu[b + 1] < cu[b])
            return bad_after(why, name, b + 1, cu[b + 1], " is below the entry before it", cu[b]);
    if (cu && cu[batch] > rows) { /* of the tensor */
        bad_entry(why, name, batch, cu[batch], " exceeds seq_len");
        put_field(why, name + strlen("cu_seqlens"), rows);
        return ATTN_ERR_ARG;
    }
    return ATTN_OK;
}

/* check_bytes wants an array of four axes to lie within the address space. */
static inline attn_status check_bytes(const char *name, int64_t bytes, const int64_t count[4],
                                      text *why)
{
    if (bytes < ADDRESS_LIMIT)
        return ATTN_OK;
    put(why, name);
    return bad_numbers(why, ATTN_ERR_OVERFLOW,
                       ": batch (#) x heads (#) x rows (#) x columns (#) with its strides exceeds "
                       "the address space",
                       count);
}

static inline attn_status check_extent(const char *name, int64_t bytes_each, int64_t batch,
                                       int64_t heads, int64_t rows, int64_t columns,
                                       const ptrdiff_t stride[4], text *why)
{
    const int64_t count[4] = { batch, heads, rows, columns };
    return check_bytes(name, times(extent(count, stride), bytes_each), count, why);
}

/* src/fields.c - the table of fields: what each field of a call is, in one row.
 *
 * A row says where a field lies in attn_params, what it holds, over which axes an array runs, and
 * who takes it. Those axes, from the last to the first, are what packed means. Ranges, default
 * strides, extents, refusals, the hash that ranks compare, and the arrays that a level or a device
 * hands on are loops over the rows: a field that somebody forgets is refused, never ignored.
 */

enum field_type {
    F_INT, /* values */
    F_INT64,
    F_UINT64,
    F_FLOAT,
    F_POINTER,
    F_NOT_PLAIN, /* an attn_dtype, counted as set if only K and V may have it */
    F_STORED,    /* arrays from here on: of the attn_dtype that a member tells, */
    F_F32,       /* or of these elements */
    F_I32,
    F_I64,
    F_F64,
    F_U8,
    F_BITS
};

/* What the axes of arrays count. */
enum field_axis {
    AXIS_NONE,
    AXIS_BATCH,
    AXIS_SEQUENCE, /* the batch, for lengths, positions and masks of sequences */
    AXIS_ENTRY,    /* of k and v: batch entries, or pages */
    AXIS_HEAD,
    AXIS_HEAD_KV,
    AXIS_ROW, /* that are held: p.part */
    AXIS_KEY,
    AXIS_DIM,
    AXIS_DIM_V,
    AXIS_SEQ_Q, /* of the whole call */
    AXIS_SEQ_KV,
    AXIS_LONGEST_Q, /* of any sequence */
    AXIS_LONGEST_KV,
    AXIS_CELL_ROW,
    AXIS_CELL_COLUMN,
    AXIS_CELL_OFFSET,
    AXIS_CELL_LISTED, /* known where the mask has been read: axes_in_use */
    AXIS_LIST,        /* lists of keys of a head, */
    AXIS_LISTED_KEY,  /* and the entries of one */
    AXIS_PAGE,
    AXIS_RECENT,     /* entries of p.recent, */
    AXIS_RECENT_ROW, /* and the rows of one */
    AXIS_CHOSEN,     /* rows of logits */
    AXIS_STATS,      /* m and l of a row */
    AXIS_TOP,        /* the likeliest keys of a row */
    AXIS_MASS,       /* blocks of keys that insight.mass has */
    AXIS_COUNT
};

/* Which outputs a call writes: a result, or the raw states of p.partial. */
enum { OUTPUT_RESULT = 1, OUTPUT_STATE = 2 };

/* Who takes a field; what devices do with it is in src/opencl/fields.c. */
enum taker {
    BY_NOBODY = 0,
    BY_PART = 1,      /* calls of some rows or some keys */
    BY_GRADIENTS = 2, /* attn_backward */
    BY_RESUMABLE = 4, /* attn_resume_begin */
    BY_DILATED = 8,   /* attn_dilated_forward */
    BY_RING = 16,     /* attn_ring_forward */
    BY_FINISH = 32,   /* attn_state_finish */
    BY_INDEX = 64,    /* attn_index */
    BY_DECODE = 128,  /* attn_ring_decode_forward */
    BY_ALL = 255,
    BY_RANKS = 256,    /* every rank of a ring must have the value, */
    BY_RANKS_SET = 512 /* or must have set it or not */
};

typedef struct call_field {
    const char *name;
    uint16_t offset; /* of the value, or of the pointer to an array */
    uint16_t type, takers;
    uint16_t output; /* nonzero: written by the calls that its bits tell, OUTPUT_RESULT, ... */
    uint16_t dtype;  /* F_STORED: offset of the attn_dtype */
    uint16_t axis[4];
    uint16_t stride[4];  /* offsets of ptrdiff_t; 0 = there is none, and the axis is packed */
    int64_t least, most; /* of a number, or of an entry of a sequence; any where most < least */
    const char *instead; /* what helps where the field or its value is refused; NULL = nothing */
} call_field;

#define AT(member) offsetof(attn_params, member)
#define VALUE(member, kind, by, ...)                                                               \
    .name = NAME(#member), .offset = AT(member), .type = kind, .takers = by, RANGE(__VA_ARGS__)
#define RANGE(from, to) .least = from, .most = to
#define ANY 1, 0
#define DTYPE(member, by) VALUE(member, F_INT, by, 0, LAST_PLAIN), .instead = PLAIN_DTYPES
/* K and V may have any type, where all types are taken. */
#define ANY_DTYPE(member, by) VALUE(member, F_INT, by, 0, LAST_DTYPE), .instead = DTYPES
#define NOT_PLAIN(member, by) VALUE(member, F_NOT_PLAIN, by, ANY), .instead = PLAIN_DTYPES
#define LAYOUT VALUE(layout, F_INT, BY_ALL, 0, ATTN_LAYOUT_BSHD), .instead = "0 is BHSD, 1 is BSHD"
#define TENSOR(member, entry, heads, rows, columns, by)                                            \
    .name = NAME(#member), .offset = AT(member.data), .type = F_STORED, .dtype = AT(member.dtype), \
    .takers = by, .axis = { entry, heads, rows, columns },                                         \
    .stride = { AT(member.stride_batch), AT(member.stride_head), AT(member.stride_seq) }
#define PAIRS(member, kind, by)                                                                    \
    .name = NAME(#member), .offset = AT(member.data), .type = kind, .takers = by,                  \
    .axis = { AXIS_BATCH, AXIS_HEAD, AXIS_LONGEST_Q, AXIS_LONGEST_KV },                            \
    .stride = { AT(member.stride_batch), AT(member.stride_head), AT(member.stride_q),              \
                AT(member.stride_kv) }
#define SCALES(member, columns, by)                                                                \
    .name = NAME(#member), .offset = AT(member.data), .type = F_F32, .takers = by,                 \
    .axis = { AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, columns },                                       \
    .stride = { AT(member.stride_batch), AT(member.stride_head), AT(member.stride_seq),            \
                AT(member.stride_dim) }
#define GRID(member, kind, by, outer, heads, rows, columns)                                        \
    .name = NAME(#member), .offset = AT(member), .type = kind, .takers = by,                       \
    .axis = { outer, heads, rows, columns }
#define LIST(member, kind, by, outer, inner)                                                       \
    GRID(member, kind, by, outer, AXIS_NONE, AXIS_NONE, inner)
#define PER_SEQUENCE(member, kind, by, ...)                                                        \
    LIST(member, kind, by, AXIS_NONE, AXIS_SEQUENCE), RANGE(__VA_ARGS__)

/* This limit does not come from memory, and is equal on every machine. */
#define MOST_KEY_BASE ((int64_t)1 << 58)

enum {
    BY_ANY_RING = BY_RING | BY_DECODE,
    RECENT_KEYS = BY_FINISH | BY_INDEX, /* or attn_forward alone */
    /* Whoever reads keys where a cache has them. */
    IN_CACHE = BY_ALL & ~(BY_RESUMABLE | BY_DILATED | BY_RING),
    NO_VARLEN = BY_ALL & ~(BY_PART | BY_RESUMABLE | BY_ANY_RING),
    NO_INDEX = BY_ALL & ~BY_INDEX, /* what scores of keys have no use for */
    /* Outputs that only a call with all keys can give. */
    WHOLE_ROWS = BY_PART | BY_GRADIENTS, /* Gradients do not look at it. */
    ONE_CALL = NO_INDEX & ~(BY_PART | BY_RESUMABLE | BY_DILATED | BY_ANY_RING | BY_FINISH),
    NO_GRADIENTS = BY_ALL & ~BY_GRADIENTS,
    NO_DILATED = BY_ALL & ~BY_DILATED
};

#define A_CACHE "it describes a cache, whose keys attn_cache_read copies into one array"

/* The likeliest keys of a row that a call can give. */
enum { MOST_TOP = 64 };

static const call_field call_fields[] = {
    /* ---- sizes */
    { VALUE(batch, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { VALUE(num_heads_q, F_INT64, BY_ALL | BY_RANKS, 1, MOST) },
    { VALUE(num_heads_kv, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { VALUE(seq_len_q, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(seq_len_kv, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { VALUE(head_dim, F_INT64, BY_ALL | BY_RANKS, 1, MOST) },
    { VALUE(head_dim_v, F_INT64, NO_INDEX | BY_RANKS, 0, MOST) },
    { VALUE(scale, F_FLOAT, BY_ALL | BY_RANKS, ANY) },
    { VALUE(integer, F_INT, NO_GRADIENTS | BY_RANKS, ANY) },
    { VALUE(fast, F_INT, BY_PART | BY_FINISH, ANY),
      .instead = "its bits are of attn_forward alone" },
    { VALUE(rotated, F_INT, NO_GRADIENTS | BY_RANKS, 0, ATTN_ROTATED_K + ATTN_ROTATED_V),
      .instead = "1 is K, 2 is V, 3 is both" },
    { VALUE(k_centered, F_INT, (NO_GRADIENTS & NO_INDEX) | BY_RANKS, ANY) },

    /* ---- tensors */
    { LAYOUT },
    { DTYPE(q.dtype, BY_ALL) },
    { ANY_DTYPE(k.dtype, BY_ALL | BY_RANKS) },
    { NOT_PLAIN(k.dtype, NO_GRADIENTS) },
    { ANY_DTYPE(v.dtype, NO_INDEX | BY_RANKS) },
    { NOT_PLAIN(v.dtype, NO_GRADIENTS) },
    { DTYPE(o.dtype, BY_ALL) },
    { VALUE(lse.dtype, F_INT, BY_ALL, 0, 0), .instead = "f32" },
    { VALUE(stats.dtype, F_INT, BY_ALL, 0, 0), .instead = "f32" },
    { TENSOR(q, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL) },
    { TENSOR(k, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM, BY_ALL) },
    { TENSOR(v, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM_V, NO_INDEX) },
    { SCALES(k_scales, AXIS_DIM, BY_PART | BY_FINISH | BY_INDEX | BY_DECODE) },
    { SCALES(v_scales, AXIS_DIM_V, BY_PART | BY_FINISH | BY_DECODE) },
    { TENSOR(o, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V, NO_INDEX), .output = OUTPUT_RESULT },
    { TENSOR(lse, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE, NO_INDEX), .output = OUTPUT_RESULT },
    { TENSOR(stats, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_STATS, NO_INDEX), .output = OUTPUT_RESULT,
      .instead = "a row takes 2 floats, m and l" },

    /* ---- lengths */
    { PER_SEQUENCE(q_len, F_I32, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(kv_len, F_I32, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(kv_begin, F_I32, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(cu_seqlens_q, F_I32, NO_VARLEN, ANY),
      .instead = "tell documents of one sequence apart by q_segments and kv_segments" },
    { PER_SEQUENCE(cu_seqlens_kv, F_I32, NO_VARLEN, ANY) },
    { PER_SEQUENCE(key_base, F_I64, NO_DILATED | BY_RANKS, 0, MOST_KEY_BASE) },
    { VALUE(kv_rows.ring, F_INT64, IN_CACHE, 0, MOST), .instead = A_CACHE },
    { LIST(kv_rows.begin, F_I32, IN_CACHE, AXIS_NONE, AXIS_BATCH) },
    { VALUE(kv_rows.page_size, F_INT64, IN_CACHE, 0, MOST), .instead = A_CACHE },
    { VALUE(kv_rows.num_pages, F_INT64, IN_CACHE, 0, MOST) },
    { LIST(kv_rows.table, F_I32, IN_CACHE, AXIS_BATCH, AXIS_PAGE),
      .stride = { AT(kv_rows.table_stride) } },
    { VALUE(shared_keys, F_INT64, NO_DILATED, 0, MOST) },
    { VALUE(recent.keys, F_INT64, RECENT_KEYS & ~BY_INDEX, 0, MOST), .instead = A_CACHE },
    { VALUE(recent.ring, F_INT64, RECENT_KEYS, 0, MOST) },
    { PER_SEQUENCE(recent.begin, F_I64, RECENT_KEYS, 0, MOST_KEY_BASE) },
    { LIST(recent.entries, F_I32, RECENT_KEYS, AXIS_NONE, AXIS_BATCH) },
    { VALUE(recent.num_entries, F_INT64, RECENT_KEYS, 0, MOST) },
    { DTYPE(recent.k.dtype, RECENT_KEYS) },
    { DTYPE(recent.v.dtype, RECENT_KEYS) },
    { TENSOR(recent.k, AXIS_RECENT, AXIS_HEAD_KV, AXIS_RECENT_ROW, AXIS_DIM, RECENT_KEYS) },
    { TENSOR(recent.v, AXIS_RECENT, AXIS_HEAD_KV, AXIS_RECENT_ROW, AXIS_DIM_V, RECENT_KEYS) },

    /* ---- position of the queries */
    { VALUE(alignment, F_INT, NO_DILATED | BY_RANKS, 0, ATTN_ALIGN_OFFSET) },
    { PER_SEQUENCE(q_offset, F_I32, NO_DILATED | BY_RANKS, ANY) },

    /* ---- masks */
    { VALUE(causal, F_INT, BY_ALL | BY_RANKS, ANY) },
    { PER_SEQUENCE(prefix, F_I32, BY_ALL | BY_RANKS, 0, INT32_MAX) },
    { VALUE(window, F_INT, BY_ALL | BY_RANKS, 0, ATTN_WINDOW),
      .instead = "it switches window_left and window_right on, which count keys" },
    { VALUE(window_left, F_INT64, BY_ALL | BY_RANKS, ANY) },
    { VALUE(window_right, F_INT64, BY_ALL | BY_RANKS, ANY) },
    { VALUE(chunk_size, F_INT64, BY_ALL | BY_RANKS, 0, MOST) },
    { LIST(q_segments, F_I32, BY_ALL | BY_RANKS_SET, AXIS_BATCH, AXIS_SEQ_Q),
      .stride = { AT(q_segments_stride) } },
    { LIST(kv_segments, F_I32, BY_ALL | BY_RANKS_SET, AXIS_BATCH, AXIS_SEQ_KV),
      .stride = { AT(kv_segments_stride) } },
    { LIST(tree_parents, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_SEQ_Q),
      .stride = { AT(tree_stride) } },
    { VALUE(bool_mask.invert, F_INT, BY_ALL | BY_RANKS, ANY) },
    { PAIRS(bool_mask, F_U8, BY_ALL | BY_RANKS_SET) },
    { VALUE(bit_mask.invert, F_INT, BY_ALL | BY_RANKS, ANY) },
    { PAIRS(bit_mask, F_BITS, BY_ALL | BY_RANKS_SET) },
    { VALUE(block_mask.block_q, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { VALUE(block_mask.block_k, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { GRID(block_mask.bitmap, F_BITS, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_HEAD,
           AXIS_CELL_ROW, AXIS_CELL_COLUMN),
      .stride = { AT(block_mask.stride_batch), AT(block_mask.stride_head),
                  AT(block_mask.stride_row) } },
    { GRID(block_mask.row_offsets, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_HEAD,
           AXIS_NONE, AXIS_CELL_OFFSET),
      .stride = { AT(block_mask.csr_stride_batch), AT(block_mask.csr_stride_head) } },
    { LIST(block_mask.columns, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_NONE, AXIS_CELL_LISTED) },
    { VALUE(key_list.width, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { VALUE(key_list.rows, F_INT64, NO_DILATED | BY_RANKS, 0, MOST) },
    { GRID(key_list.data, F_I32, NO_DILATED | BY_RANKS_SET, AXIS_BATCH, AXIS_HEAD_KV, AXIS_LIST,
           AXIS_LISTED_KEY),
      .stride = { AT(key_list.stride_batch), AT(key_list.stride_head), AT(key_list.stride_seq) } },
    { VALUE(mask, F_POINTER, BY_ALL | BY_RANKS_SET, ANY) },
    { VALUE(mask_tile, F_POINTER, BY_ALL | BY_RANKS_SET, ANY) },

    /* ---- what changes a logit */
    { VALUE(softcap, F_FLOAT, NO_INDEX | BY_RANKS, ANY) },
    { DTYPE(bias.dtype, BY_ALL) },
    { PAIRS(bias, F_STORED, NO_INDEX | BY_RANKS_SET), .dtype = AT(bias.dtype) },
    { LIST(alibi_slopes, F_F32, NO_INDEX | BY_RANKS, AXIS_BATCH, AXIS_HEAD),
      .stride = { AT(alibi_stride) } },
    { VALUE(score, F_POINTER, NO_INDEX | BY_RANKS_SET, ANY) },
    { VALUE(callback_user, F_POINTER, BY_ALL, ANY) },

    /* ---- softmax */
    { LIST(sinks, F_F32, NO_INDEX | BY_RANKS, AXIS_NONE, AXIS_HEAD) },
    { VALUE(softmax1, F_INT, NO_INDEX | BY_RANKS, ANY) },
    { VALUE(dropout_p, F_FLOAT, NO_INDEX | BY_RANKS, ANY) },
    { VALUE(dropout_seed, F_UINT64, BY_ALL | BY_RANKS, ANY) },

    /* ---- further outputs */
    { VALUE(partial, F_INT, (ONE_CALL & ~BY_GRADIENTS) | BY_PART | BY_FINISH, ANY),
      .instead = "it works with finished rows" },
    { GRID(state.m, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_STATE },
    { GRID(state.l, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_STATE },
    { GRID(state.o, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V),
      .output = OUTPUT_STATE },
    { VALUE(logits.stage, F_INT, BY_ALL, 0, ATTN_LOGITS_SOFTMAX),
      .instead = "0 is raw, 1 is softcap, 2 is bias, 3 is softmax" },
    { VALUE(logits.num_rows, F_INT64, BY_ALL, 0, MOST) },
    { LIST(logits.rows, F_I32, BY_ALL, AXIS_NONE, AXIS_CHOSEN) },
    { GRID(logits.data, F_F32, ONE_CALL | BY_PART | BY_RING, AXIS_BATCH, AXIS_HEAD, AXIS_CHOSEN,
           AXIS_SEQ_KV),
      .output = OUTPUT_RESULT | OUTPUT_STATE, .instead = "ask for logits in a call with all keys" },
    { GRID(insight.entropy, F_F32, WHOLE_ROWS, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_RESULT, .instead = "attn_forward keeps it beside the sums of whole rows" },
    { VALUE(insight.top, F_INT, WHOLE_ROWS, 0, MOST_TOP) },
    { GRID(insight.top_key, F_I32, WHOLE_ROWS, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_TOP),
      .output = OUTPUT_RESULT },
    { GRID(insight.top_prob, F_F32, WHOLE_ROWS, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_TOP),
      .output = OUTPUT_RESULT },
    { GRID(insight.mass, F_F64, BY_GRADIENTS, AXIS_BATCH, AXIS_HEAD_KV, AXIS_NONE, AXIS_MASS),
      .output = OUTPUT_RESULT, .instead = "ask for it in a call with all keys" },
    { VALUE(insight.mass_keys, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(insight.mass_rows, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(skip.below, F_FLOAT, BY_NOBODY, ANY),
      .instead = "attn_forward with all keys takes it" },
    { GRID(skip.dropped, F_F32, BY_NOBODY, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE),
      .output = OUTPUT_RESULT },

    /* ---- how to compute */
    { VALUE(impl, F_INT, NO_INDEX, 0, ATTN_IMPL_AUTO),
      .instead = "0 is default, 1 is tiled, 2 is naive, 3 is auto" },
    { VALUE(auto_naive_keys, F_INT64, BY_ALL, 0, INT64_MAX) },
    { VALUE(naive_whole, F_INT, BY_ALL, ANY) },
    { VALUE(tile_keys, F_INT, BY_ALL, ANY) },
    { VALUE(tuning, F_POINTER, BY_ALL, ANY) },
    { VALUE(force_redo, F_INT, BY_ALL, ANY) },
    { VALUE(kernels, F_POINTER, BY_ALL, ANY) },
    { VALUE(backend, F_POINTER, NO_INDEX & ~BY_DILATED, ANY) },
    { VALUE(num_workers, F_INT, BY_ALL, 0, 65536) },
    { VALUE(parallel_for, F_POINTER, BY_ALL, ANY) },
    { VALUE(parallel_user, F_POINTER, BY_ALL, ANY) },
    { VALUE(log, F_POINTER, BY_ALL, ANY) },
    { VALUE(log_user, F_POINTER, BY_ALL, ANY) },
    { VALUE(part.rows, F_INT, NO_INDEX & ~(BY_DILATED | BY_ANY_RING), ANY) },
    { VALUE(part.keys, F_INT, NO_INDEX & ~(BY_RESUMABLE | BY_DILATED | BY_ANY_RING), ANY) },
    { VALUE(part.continued, F_INT, BY_ALL & ~BY_ANY_RING, ANY) },
    { VALUE(part.row_begin, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.row_count, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.key_begin, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.key_count, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(part.key_row, F_INT64, BY_ALL & ~BY_ANY_RING, 0, MOST) },
    { VALUE(view, F_POINTER, BY_GRADIENTS | BY_PART, ANY) },
};
#undef AT

#define IS_ARRAY(f) ((f)->type >= F_STORED)

/* ---- values */

/* A number of a field, 0 or 1 for a pointer. */
static int64_t field_number(const call_field *f, const void *base)
{
    const char *at = (const char *)base + f->offset;
    float as_float;
    void *pointer;
    int64_t number;
    switch (f->type) {
    case F_INT:
        return number_at(at, sizeof(int));
    case F_FLOAT:
        memcpy(&as_float, at, sizeof as_float);
        return as_float == 0.0f ? 0 : (int64_t)bits_of(as_float);
    case F_INT64:
    case F_UINT64:
        return number_at(at, sizeof(int64_t));
    case F_NOT_PLAIN:
        number = number_at(at, sizeof(int));
        return number > LAST_PLAIN && number <= LAST_DTYPE ? number : 0;
    default:
        memcpy(&pointer, at, sizeof pointer);
        return pointer != NULL;
    }
}

static attn_status check_values(const call_field *table, int n, const void *base, text *why)
{
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < n && !status; i++) {
        const call_field *f = &table[i];
        if (f->least <= f->most && !IS_ARRAY(f))
            status = check_range(why, f->name, f->least, f->most, field_number(f, base));
        if (status && f->instead && f->type == F_INT) { /* It names the choices. */
            put(why, ": ");
            put(why, f->instead);
        }
    }
    return status;
}

/* "name (value) is set, but who does not take it: instead" */
static attn_status refuse_field(const call_field *f, int64_t value, const char *who, text *why)
{
    put(why, f->name);
    if (f->type == F_INT || f->type == F_INT64 || f->type == F_NOT_PLAIN)
        put_numbers(why, " (#)", &value);
    put(why, " is set, but ");
    put(why, who);
    put(why, f->instead ? " does not take it: " : " does not take it");
    return bad(why, ATTN_ERR_UNSUPPORTED, f->instead ? f->instead : "");
}

/* refuse_fields refuses, by its name, the first field that is set and that `taker` does not
 * take. */
static attn_status refuse_fields(const attn_params *p, unsigned taker, const char *who, text *why)
{
    int i;
    for (i = 0; i < COUNT_OF(call_fields); i++) {
        const call_field *f = &call_fields[i];
        const int64_t value = f->takers & taker ? 0 : field_number(f, p);
        if (value)
            return refuse_field(f, value, who, why);
    }
    return ATTN_OK;
}

/* A member is a field of attn_params, whose bytes tell whether it is set. */
typedef struct member {
    uint16_t offset, size;
} member;

#define MEMBER(name)                                                                               \
    {                                                                                              \
        offsetof(attn_params, name), sizeof(((attn_params *)NULL)->name)                           \
    }

/* is_set looks at words, since a member may be a struct. */
static int is_set(const attn_params *p, member m)
{
    const char *at = (const char *)p + m.offset, *end = at + m.size;
    uint32_t word = 0;
    for (; at < end && !word; at += sizeof word)
        memcpy(&word, at, sizeof word);
    return word != 0;
}

/* ---- arrays */

/* The axes of a call; packed sequences have no batch stride. */
typedef struct call_axes {
    int64_t count[AXIS_COUNT];
    int packed_q, packed_kv;
    int layout; /* attn_layout */
} call_axes;

static const void *field_data(const call_field *f, const void *base)
{
    const void *data;
    memcpy(&data, (const char *)base + f->offset, sizeof data);
    return data;
}

/* unit_of_field tells how many elements of an array are stored together, and element_bytes their
 * bytes. */
static int64_t unit_of_field(const call_field *f, const void *base)
{
    if (f->type == F_STORED)
        return storages[number_at((const char *)base + f->dtype, sizeof(int))].unit;
    return f->type == F_BITS ? 8 : 1;
}

static int64_t element_bytes(const call_field *f, const void *base)
{
    static const unsigned char bytes[] = { 4, 4, 8, 8, 1, 1 }; /* from F_F32 on; 1 bit for F_BITS */
    if (f->type != F_STORED)
        return bytes[f->type - F_F32];
    return (int64_t)bytes_of((int)number_at((const char *)base + f->dtype, sizeof(int)));
}

static ptrdiff_t stride_given(const call_field *f, const void *base, int axis)
{
    ptrdiff_t stride = 0;
    if (f->stride[axis])
        memcpy(&stride, (const char *)base + f->stride[axis], sizeof stride);
    return stride;
}

static int is_tensor(const call_field *f)
{
    return f->type == F_STORED &&
           (f->axis[2] == AXIS_ROW || f->axis[2] == AXIS_KEY || f->axis[2] == AXIS_RECENT_ROW);
}

static int is_per_sequence(const call_field *f)
{
    return f->axis[3] == AXIS_SEQUENCE;
}

static int is_packed(const call_field *f, const call_axes *x)
{
    return (x->packed_q && f->axis[2] == AXIS_ROW) || (x->packed_kv && f->axis[2] == AXIS_KEY);
}

/* The layout and packed sequences keep the heads of a token together in what has columns of a head.
 * What describes rows keeps the rows of a head together. */
static int keeps_tokens(const call_field *f, const call_axes *x)
{
    return (is_packed(f, x) || x->layout == ATTN_LAYOUT_BSHD) && is_tensor(f) &&
           (f->axis[3] == AXIS_DIM || f->axis[3] == AXIS_DIM_V);
}

/* settle_strides makes strides along which nothing moves 0, so that no product with them
 * overflows. */
static void settle_strides(int axes, const int64_t *count, ptrdiff_t *stride)
{
    int axis, empty = 0;
    for (axis = 0; axis < axes; axis++)
        empty |= count[axis] == 0;
    for (axis = 0; axis < axes; axis++)
        if (count[axis] == 1 || (empty && (stride[axis] > MOST || stride[axis] < -MOST)))
            stride[axis] = 0;
}

/* The strides of an array, with 0 and "broadcast" replaced by what they mean: only axes that
 * are shared or of length 1 have a stride of 0. */
static void resolve_strides_of(const call_field *f, const void *base, const call_axes *x,
                               ptrdiff_t stride[4])
{
    static const char orders[2][4] = { { 3, 2, 1, 0 }, { 3, 1, 2, 0 } };
    int64_t elements = 1, count[4];
    int i;
    for (i = 0; i < 4; i++) {
        const int axis = orders[keeps_tokens(f, x)][i];
        const ptrdiff_t given = stride_given(f, base, axis);
        count[axis] = x->count[f->axis[axis]];
        stride[axis] = stride_or(given, elements);
        if (given != ATTN_STRIDE_BROADCAST) /* A shared axis takes no room. */
            elements = times(elements, max64(count[axis], 1));
    }
    if (is_packed(f, x))
        stride[0] = 0;
    settle_strides(4, count, stride);
}

/* check_aligned wants an array to lie where the machine can read its elements. */
static attn_status check_aligned(const char *name, const void *data, int64_t bytes_each, text *why)
{
    const int64_t alignment = alignment_of(bytes_each);
    if (is_aligned(data, bytes_each))
        return ATTN_OK;
    put(why, name);
    return bad_numbers(why, ATTN_ERR_ARG,
                       ": its address must be a multiple of #, the alignment of its elements",
                       &alignment);
}

static attn_status check_array(const call_field *f, const void *base, const call_axes *x,
                               const ptrdiff_t stride[4], text *why)
{
    const int64_t count[4] = { x->count[f->axis[0]], x->count[f->axis[1]], x->count[f->axis[2]],
                               x->count[f->axis[3]] };
    const int64_t elements = extent(count, stride), each = element_bytes(f, base);
    const int64_t units = elements < TOO_BIG ? ceil_div(elements, unit_of_field(f, base)) : TOO_BIG;
    const attn_status status = check_bytes(f->name, times(units, each), count, why);
    return status ? status : check_aligned(f->name, field_data(f, base), each, why);
}

/* check_whole wants a number of elements of K or V to be whole units of its type. */
COLD static attn_status check_whole(const char *name, const char *part, int64_t value,
                                    const char *of, int dtype, text *why)
{
    const storage *type = &storages[dtype];
    if (value % type->unit == 0)
        return ATTN_OK;
    put(why, name);
    put_field(why, part, value);
    put_numbers(why, " must be a multiple of #: ", NUMBERS(type->unit));
    put(why, of);
    put(why, ".dtype is ");
    return bad(why, ATTN_ERR_ARG, type->name);
}

/* check_whole_units looks at a row of K or V, and at its strides, which are resolved. */
COLD static attn_status check_whole_units(const char *name, const attn_tensor *x,
                                          const char *dim_name, int64_t dim, text *why)
{
    const ptrdiff_t strides[3] = { x->stride_batch, x->stride_head, x->stride_seq };
    attn_status status = check_whole("", dim_name, dim, name, x->dtype, why);
    int axis;
    for (axis = 0; axis < 3 && !status; axis++)
        status = check_whole(name, stride_names[axis], strides[axis], name, x->dtype, why);
    return status;
}

/* check_scales_given wants scales for numbers that have some, and for no others. */
COLD static attn_status check_scales_given(const char *name, int dtype, const attn_scales *x,
                                           text *why)
{
    const int given = x->data != NULL;
    if (has_scales(dtype) == given)
        return ATTN_OK;
    put(why, name);
    put_field(why, ".dtype", dtype);
    put(why, given ? " must be 8 for i8 when " : " is i8, but ");
    put(why, name);
    return bad(why, ATTN_ERR_ARG, given ? "_scales is given" : "_scales.data is NULL");
}

/* Outputs are not broadcast. */
static attn_status check_output_fields(const call_field *table, int n, const void *base, text *why)
{
    const call_field *f;
    attn_status status = ATTN_OK;
    int axis;
    for (f = table; f < table + n; f++)
        for (axis = 0; f->output && axis < 3 && !status; axis++)
            status =
                check_output_stride(f->name, stride_names[axis], stride_given(f, base, axis), why);
    return status;
}

/* Entries of sequences lie in the range of their row. */
static attn_status check_entries(const call_field *f, const void *base, int64_t count, text *why)
{
    const size_t bytes = f->type == F_I64 ? sizeof(int64_t) : sizeof(int32_t);
    const char *data = field_data(f, base);
    int64_t b;
    for (b = 0; b < count; b++) {
        const int64_t value = number_at(data + b * (ptrdiff_t)bytes, bytes);
        if (value < f->least || value > f->most)
            return bad_limit(why, f->name, b, value, f->most);
    }
    return ATTN_OK;
}

/* is_there tells whether a row is an array of this call; tensors are, also in size queries. */
static int is_there(const call_field *f, const void *base)
{
    return IS_ARRAY(f) && (is_tensor(f) || field_data(f, base));
}

/* resolve_arrays gives tensors, and other arrays that are given, their strides, and checks that
 * they fit into memory. */
static attn_status resolve_arrays(const call_field *table, int n, void *base, const call_axes *x,
                                  text *why)
{
    attn_status status = ATTN_OK;
    int i, axis;
    for (i = 0; i < n && !status; i++) {
        const call_field *f = &table[i];
        ptrdiff_t stride[4];
        if (!is_there(f, base))
            continue;
        resolve_strides_of(f, base, x, stride);
        for (axis = 0; axis < 4; axis++)
            if (f->stride[axis])
                memcpy((char *)base + f->stride[axis], &stride[axis], sizeof *stride);
        status = check_array(f, base, x, stride, why);
        if (!status && is_per_sequence(f) && f->least <= f->most)
            status = check_entries(f, base, x->count[AXIS_SEQUENCE], why);
    }
    return status;
}

/* name_shared writes ATTN_STRIDE_BROADCAST for the strides that resolve_arrays made 0, so that a
 * level can hand the fields on to a call, to which 0 means packed. */
static void name_shared(const call_field *table, int n, void *base)
{
    const ptrdiff_t shared = ATTN_STRIDE_BROADCAST;
    int i, axis;
    for (i = 0; i < n; i++)
        for (axis = 0; axis < 4 && is_there(&table[i], base) && !table[i].output; axis++)
            if (table[i].stride[axis] && !stride_given(&table[i], base, axis))
                memcpy((char *)base + table[i].stride[axis], &shared, sizeof shared);
}

/* has_batch_arrays tells whether sequences differ in length, in position or in what they
 * see. */
static int has_batch_arrays(const attn_params *p)
{
    int i = 0;
    while (i < COUNT_OF(call_fields) &&
           !(is_per_sequence(&call_fields[i]) && field_data(&call_fields[i], p)))
        i++;
    return i < COUNT_OF(call_fields);
}

/* kinds_of counts the sequences that stand for all: the whole batch if they differ, else the first. */
static int64_t kinds_of(const attn_params *p)
{
    return has_batch_arrays(p) ? p->batch : min64(p->batch, 1);
}

/* ---- the axes of a call */

/* Rows of a batch entry of q, or keys of one of k, that the arrays hold (p.part). */
static inline int64_t rows_held(const attn_params *p)
{
    return p->part.rows ? p->part.row_count : p->seq_len_q;
}

static inline int64_t keys_held(const attn_params *p)
{
    return p->part.keys ? p->part.key_count : p->seq_len_kv;
}

/* Rows of a batch entry of k and v, or of a page. */
static int64_t rows_of_entry(const attn_params *p)
{
    const attn_rows *rows = &p->kv_rows;
    return rows->page_size ? rows->page_size : rows->ring ? rows->ring : keys_held(p);
}

/* Entries of a sequence's page table. */
static int64_t table_entries(const attn_params *p)
{
    const int64_t held = plus(p->part.key_row, keys_held(p));
    const int64_t rows = p->kv_rows.ring ? p->kv_rows.ring : held;
    return rows ? (rows - 1) / p->kv_rows.page_size + 1 : 0;
}

/* longest counts the rows or keys of the longest sequence that may come. */
static int64_t longest(const int32_t *cu_seqlens, int64_t batch, int64_t seq_len)
{
    int64_t b, most = cu_seqlens ? 0 : seq_len;
    for (b = 0; cu_seqlens && b < batch; b++)
        most = max64(most, (int64_t)cu_seqlens[b + 1] - cu_seqlens[b]);
    return most;
}

/* rows_of_list counts the query rows that share a list of keys. */
static inline int64_t rows_of_list(const attn_params *p)
{
    return max64(p->key_list.rows, 1);
}

/* mass_blocks counts the blocks of keys that insight.mass has for each kv head. */
static int64_t mass_blocks(const attn_params *p)
{
    return p->insight.mass_keys ? ceil_div(p->seq_len_kv, p->insight.mass_keys) : 0;
}

static call_axes axes_of_call(const attn_params *p)
{
    const attn_rows *rows = &p->kv_rows;
    const attn_block_mask *cells = &p->block_mask;
    const int64_t longest_q = longest(p->cu_seqlens_q, p->batch, p->seq_len_q);
    const int64_t longest_kv = longest(p->cu_seqlens_kv, p->batch, p->seq_len_kv);
    const int64_t cell_rows = cells->block_q ? ceil_div(longest_q, cells->block_q) : 0;
    const call_axes x = {
        .layout = p->layout,
        .packed_q = p->cu_seqlens_q != NULL,
        .packed_kv = p->cu_seqlens_kv != NULL,
        .count = {
            [AXIS_NONE] = 1,
            [AXIS_BATCH] = p->batch,
            [AXIS_SEQUENCE] = p->batch,
            [AXIS_ENTRY] = rows->page_size ? rows->num_pages : p->batch,
            [AXIS_HEAD] = p->num_heads_q,
            [AXIS_HEAD_KV] = p->num_heads_kv,
            [AXIS_ROW] = rows_held(p),
            [AXIS_KEY] = rows_of_entry(p),
            [AXIS_DIM] = p->head_dim,
            [AXIS_DIM_V] = p->head_dim_v,
            [AXIS_SEQ_Q] = p->seq_len_q,
            [AXIS_SEQ_KV] = p->seq_len_kv,
            [AXIS_LONGEST_Q] = longest_q,
            [AXIS_LONGEST_KV] = longest_kv,
            [AXIS_CELL_ROW] = cell_rows,
            [AXIS_CELL_COLUMN] = cells->block_k ? ceil_div(longest_kv, cells->block_k) : 0,
            [AXIS_CELL_OFFSET] = cell_rows + 1,
            [AXIS_LIST] = ceil_div(longest_q, rows_of_list(p)),
            [AXIS_LISTED_KEY] = p->key_list.width,
            [AXIS_PAGE] = rows->page_size ? table_entries(p) : 0,
            [AXIS_RECENT] = p->recent.entries ? p->recent.num_entries : p->batch,
            [AXIS_RECENT_ROW] = p->recent.ring,
            [AXIS_CHOSEN] = p->logits.num_rows,
            [AXIS_STATS] = 2,
            [AXIS_TOP] = p->insight.top,
            [AXIS_MASS] = mass_blocks(p),
        },
    };
    return x;
}

/* cells_listed counts the cells that a CSR mask lists whose heads have `rows` rows of cells. */
COLD static int64_t cells_listed(const attn_params *p, int64_t rows)
{
    const attn_block_mask *m = &p->block_mask;
    int64_t b, h, listed = 0;
    for (b = 0; m->row_offsets && rows > 0 && b < p->batch; b++)
        for (h = 0; h < p->num_heads_q; h++) {
            const int64_t at = b * m->csr_stride_batch + h * m->csr_stride_head;
            listed = max64(listed, m->row_offsets[at + rows]);
        }
    return listed;
}

/* axes_in_use is axes_of_call for a call whose mask may be read. */
COLD static call_axes axes_in_use(const attn_params *p)
{
    call_axes x = axes_of_call(p);
    x.count[AXIS_CELL_LISTED] = cells_listed(p, x.count[AXIS_CELL_ROW]);
    return x;
}

/* src/listed.c - the keys that p.key_list names for a row. */

/* A key_numbers is a list of keys, ascending. */
typedef struct key_numbers {
    const int32_t *at; /* NULL means that there is none, and all keys count. */
    int64_t count;
} key_numbers;

/* first_listed gives the place of the first number of a list that is j or more; behind the last it is
 * the count. What fills a list up is unsigned more than any key. */
static int64_t first_listed(key_numbers list, int64_t j)
{
    int64_t lo = 0, hi = list.count;
    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;
        if ((uint32_t)list.at[middle] < j)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

/* whole_list gives the list for row i with what fills it up. */
static key_numbers whole_list(const attn_params *p, int64_t b, int64_t kv_head, int64_t i)
{
    const attn_key_list *x = &p->key_list;
    const key_numbers list = { x->data + b * x->stride_batch + kv_head * x->stride_head +
                                   i / rows_of_list(p) * x->stride_seq,
                               x->width };
    return list;
}

/* listed_for gives the list for row i without what fills it up. */
static key_numbers listed_for(const attn_params *p, int64_t b, int64_t kv_head, int64_t i)
{
    key_numbers list = whole_list(p, b, kv_head, i);
    list.count = first_listed(list, (int64_t)1 << 31);
    return list;
}

/* src/tree.c - the merge tree over chunks of keys: where a complete node waits, and what it merges with.
 *
 * Node (level, index) covers the 2^level chunks from index * 2^level on. It is A + B, its lower half
 * and its upper half, and waits for its sibling once it is complete. What covers no key is empty, and
 * takes no part in a merge. In ascending order at most one node waits on each level, as a one bit
 * does in a binary counter.
 */

#define MAX_LEVELS 64

/* tree_states counts the states that the tree holds at once: that of the current chunk, and a node
 * that waits for each one bit of the number of chunks before it. If the first key lies inside the
 * tree, the node with that key waits, and the bits are those of the number of chunks behind it. */
static inline int tree_states(int64_t keys, int inside)
{
    return inside + log2_up(max64(1, ceil_div(keys, ATTN_CHUNK)) + 1);
}

/* ---- in ascending order */

/* level_after gives the level of the largest node that ends with node i of level 0: trailing one
 * bits of i are the levels at which a lower half waits. If i numbers nodes of a higher level, the
 * result counts from that level. */
static inline int level_after(int64_t i)
{
    int level = 0;
    for (; i & 1; i >>= 1)
        level++;
    return level;
}

/* take_lower takes the lowest node below `level` that waits, NULL if none does. The state of the
 * keys behind it merges with it as B, and then covers all keys from the node on. */
static inline float *take_lower(float **waiting, int level)
{
    float *lower = NULL;
    int k;
    for (k = 0; k < level && !lower; k++) {
        lower = waiting[k];
        waiting[k] = NULL;
    }
    return lower;
}

/* ---- in any order */

typedef struct tree_node {
    int64_t index;
    int level;
} tree_node;

static inline tree_node parent_of(tree_node node)
{
    const tree_node parent = { node.index / 2, node.level + 1 };
    return parent;
}

static inline int are_siblings(tree_node a, tree_node b)
{
    return a.level == b.level && a.index == (b.index ^ 1);
}

/* next_node gives the largest node from chunk *from on that ends at chunk `to` at the latest, and
 * moves *from behind it. */
static inline tree_node next_node(int64_t *from, int64_t to)
{
    tree_node node = { *from, 0 };
    while (node.index % 2 == 0 && *from + ((int64_t)2 << node.level) <= to)
        node = parent_of(node);
    *from += (int64_t)1 << node.level;
    return node;
}

static inline int64_t count_nodes(int64_t from, int64_t to)
{
    int64_t count = 0;
    for (; from < to; count++)
        next_node(&from, to);
    return count;
}

/* src/call.h - one call: its problem, its plan, its tiles.
 *
 * Every path works on these types. Validation makes a problem, the plan says how it is divided, a
 * tile is what one worker computes at a time.
 */

typedef struct tuning {
    int64_t tile_keys, item_rows, item_bytes, split_work, ahead, auto_naive_keys;
} tuning;

/* These are the names that this library uses for what backends get, too. */
typedef attn_problem problem;
typedef attn_sequence sequence;

/* ROW_AT gives the element offset of row i of head h in a tensor. */
#define ROW_AT(tensor, s, h, row)                                                                  \
    ((s)->b * (tensor).stride_batch + (h) * (tensor).stride_head + (row) * (tensor).stride_seq)

/* range_fn narrows [*lo, *hi) to what a mask leaves to a query at pos. */
typedef void (*range_fn)(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi);

/* A range_list is those of the masks that are on; it has room for all that mask_rules has. */
typedef struct range_list {
    int n;
    range_fn at[3];
} range_list;

/* A lane is one row of a tile. */
typedef struct lane {
    int used;        /* Unused lanes hold zero queries, and their results go nowhere. */
    int64_t head, i; /* They are the query head and the row. */
    int64_t choice;  /* choice is the number of the row among those chosen. */
    int64_t pos;     /* pos is i + offset. */
    int64_t lo, hi;  /* The range masks leave keys lo to hi-1, */
    int64_t cut;     /* and from this one on they are read from p.recent. */
} lane;

/* A key has two versions: as p.k and p.v hold it, and as p.recent does. */
enum { STORED, RECENT, VERSIONS };

/* A key_span is what the lanes of a tile see of a version. */
typedef struct key_span {
    int64_t lo, hi;           /* It is the union of the lanes' ranges, */
    int64_t all_from, all_to; /* and their intersection. */
} key_span;

/* A hull is the rectangle around a tile: what a mask needs to know about all of its lanes. */
typedef struct hull {
    int64_t head_begin, head_end, i_begin, i_end;
} hull;

/* A row_choice is rows first, first + 1, ... of `count` flattened rows of `heads` heads. */
typedef struct row_choice {
    int64_t head0, heads, first, count;
    const int32_t *list; /* NULL means that row number c is c. */
} row_choice;

/* A split says how the keys of each row tile are divided among workers (src/split.c). */
typedef struct split {
    /* parts counts nodes of 2^level chunks each; 0 means that the keys are not divided. */
    int parts;
    int level;
    /* The last `inside` parts are single chunks and are divided themselves. */
    int inside;
    int tiles; /* Such a chunk has this number of tiles of keys, of both versions in turn. */
    int64_t columns, slices;     /* Its V has this number of slices, with `columns` columns each. */
    int64_t items;               /* items counts whole parts and tiles of keys, of all row tiles. */
    int64_t states_bytes, bytes; /* These are bytes of shared memory for a row tile. */
    /* These are offsets into the memory of a chunk that is divided. */
    int64_t s, alpha, high, blocks, counts, chunk_bytes;
} split;

typedef struct plan {
    const attn_kernels *kernels;
    tuning tuning;
    int impl;       /* impl is TILED or NAIVE. */
    int rows, keys; /* These are the sizes of a tile. */
    int small; /* 0, or the plan needs little memory, and halves tiles of keys small - 1 times. */
    int gathered;         /* Nonzero means that row tiles read only the keys of their list. */
    int64_t worker_bytes; /* A worker's row tiles may share this number of bytes. */
    /* An item of the first list has this number of row tiles, which share K and V tiles. */
    int item_tiles;
    int state_slots; /* The merge tree may hold this number of (m, l, o) states at once. */
    /* tiles counts items per kv head: per batch entry, or in all with varlen. */
    int64_t tiles;
    int64_t items;                      /* items counts those of the first list: o, lse, states. */
    int64_t logits_tiles, logits_items; /* These count the second list: logits, */
    int64_t mass_items;                 /* and this the third: the mass of keys. */
    split split;
    int64_t matrix_floats; /* The naive path has the logits, m, l and insight of one head here. */
    int64_t state_floats;  /* state_floats is rows * state_rows(p). */
    /* pitch counts the floats between copied rows of K and of V; 0 means not copied. */
    int64_t pitch[2];
    /* Nonzero marks f32 that does not alias, which is copied only where pages part it: [version]. */
    int in_place[VERSIONS][2];
    /* These are offsets into a slot, in bytes. */
    int64_t stage, row_in, row_out, s, x, lane_values, lane_ints, alpha, blocks, alive;
    int64_t copy[2];
    int64_t matrix, operand_runs, ahead_runs, row_tiles;
    /* These are offsets into a row tile; each of the slot's row tiles has row_tile_bytes. */
    int64_t lanes, qt, qt_units, scales, states, skips, row_tile_bytes;
    int64_t slot_bytes, shared_bytes;
    /* All rows of the batch take this number of keys together first; 0 means none. */
    int64_t prefix_keys;
    int64_t prefix_items;
    /* prefix_why says why shared_keys changes nothing; NULL means that it does, or is 0. */
    const char *prefix_why;
    int workers;
    int modified; /* Nonzero means that a modifier of logits is on. */
    int by_pair;  /* Nonzero means that a mask is on that may hide whole tiles between others. */
    range_list ranges; /* ranges are those of the other masks. */
    int ahead;         /* Nonzero means that products ask for the K and V of the next ones. */
    int rows_ahead; /* Nonzero means that rows are asked for before they are packed or written. */
    int bias_ahead, mask_ahead; /* Nonzero means that products ask for theirs. */
} plan;

enum { KEYS, VALUES };

/* A key_tile is the tile of K and V that a worker's row tiles read at the moment, as f32 rows. */
typedef struct key_tile {
    int64_t j0;
    int n;
    /* The first copied_from rows of K and of V are not copied, and those behind them are. */
    int copied_from[2];
    float *copy[2];
    /* The same of the keys as kernels that round take them: rows of K, and the panel of V. */
    int rounded_from[2];
    /* The slot's row tiles hold the rows of this item; -1 means none (split items). */
    int64_t item;
    /* asked is a key: the row tile that comes to it first asks for what comes after. */
    int64_t asked;
} key_tile;

/* A block is a canonical block of keys inside a tile, cut short by the tile's ends. */
typedef struct block {
    int end;
    attn_lanes lanes; /* No other lane sees a key of it. */
    int raised;       /* Nonzero means that o *= alpha comes before it enters. */
} block;

/* The words of `alive` for a lane. */
#define ALIVE_WORDS(keys) ((keys) / ATTN_ALIVE_BITS + 1)

/* A tile is a row tile. The pointers up to `matrix` lead to what the row tiles of a slot share. */
typedef struct tile {
    const problem *pr;
    const plan *pl;
    key_tile *keys;
    /* stage is [rows][head_dim or head_dim_v], row-major: queries come in, results go out. */
    float *stage;
    const float **row_in; /* row_in[rows] points to queries. */
    float **row_out;      /* row_out[rows] points to results. */
    float *s_tile;        /* s_tile [keys][rows] holds logits, then probabilities. */
    float *x_tile; /* x_tile is [rows][keys]: the bias of each row, scales of keys, or logits. */
    float *lane_values;
    int *lane_ints; /* lane_ints [2][rows] holds integers of one step: ends, distances, counters. */
    float *alpha;   /* alpha is [block][rows]. */
    block *blocks;
    /* alive is [ALIVE_WORDS(keys)][rows], as the kernel hide takes it, from key alive_from on. It is
     * valid only where by_pair is set. */
    uint32_t *alive;
    float *matrix;                           /* The naive path has this head's logits here. */
    const char **operand_runs, **ahead_runs; /* They tell where rows of K or V lie. */
    sequence s;
    /* 0 means that the rows are of s; otherwise entry_rows rows of each batch entry follow. */
    int64_t entry_rows;
    int64_t kv_head;
    hull hull;       /* hull is that of the used lanes where pl->by_pair. */
    int used;        /* used counts the used lanes. */
    attn_lanes span; /* span goes from the first of them to the last. */
    int64_t lo, hi;  /* It is the union of the lanes' ranges. */
    key_span spans[VERSIONS];
    int version;      /* version is that which is read at the moment. */
    key_numbers list; /* Keys count within it, where pl->gathered. */
    int64_t alive_from;
    int64_t column, columns; /* These are columns of V: all of them, or those of a slice. */
    /* Nonzero means that rules by pair gave the class of the current tile: `alive` counts. */
    int by_pair;
    int block_count;
    int insight;   /* Nonzero means that states go on behind o. */
    int referring; /* Nonzero means that the rows' reference is computed (src/skip.c). */
    float *skip;   /* skip is [2][rows], limits and maxima, or NULL where no block is left out. */
    int64_t skip_from, skip_to; /* Every lane may leave out blocks that begin at these keys. */
    float dead; /* softmax stores this for a dead key: +0, or ATTN_DEAD in a redo. */
    lane *lanes;
    float *qt;       /* qt is [head_dim][rows]. */
    float *qt_units; /* qt_units is what pack_units gives, for keys read as whole numbers. */
    float *scales;   /* scales is [head_dim / 32][rows] of whole numbers. */
    float *state; /* state is that of the current chunk, and NULL until a key of it is visible. */
    float *free;  /* Each free state begins with the address of the next one. */
    float *pending[MAX_LEVELS]; /* pending has a state for each tree level, or NULL. */
    int levels;                 /* No state waits from this level on; nothing else counts there. */
} tile;

/* A call lies at the start of the workspace; items only read it, except for `failed`. */
typedef struct call {
    problem pr;
    plan pl;
    float *shared;
    char *slots;
    int slot_count;
    int64_t items; /* items counts those of the list that runs. */
    void (*item)(const struct call *c, char *slot, int64_t index);
    unsigned failed;
} call;

/* src/tuning.c - tuning: sizes that a machine may want otherwise, and that change no bit of a tiled result. */

#define TUNING(member) #member, offsetof(tuning, member)
#define FROM_LEAST_TO_MOST " must be from # to #"

/* `usual` values were measured on x86 with 1 MiB of L2 cache. CPUs without vectors have few bytes and often
 * no such cache, so row tiles of f32 share nothing. */
static const struct tuning_value {
    const char *name;
    size_t offset; /* offset is that of an int64_t. */
    int64_t usual, least, most;
    const char *rest; /* Its # are least and most. */
    int powers;       /* Nonzero allows powers of two only. */
} tuning_values[] = {
    { TUNING(tile_keys), 0, 16, 1024, " must be a power of two from # to #", 1 },
    { TUNING(item_rows), HAS_VECTORS ? 128 : 1, 1, 4096, FROM_LEAST_TO_MOST, 0 },
    { TUNING(item_bytes), 1 << 20, 1 << 14, 1 << 30, FROM_LEAST_TO_MOST, 0 },
    { TUNING(split_work), 1 << 19, 1, 1 << 30, FROM_LEAST_TO_MOST, 0 },
    { TUNING(ahead), 1, 0, 1, " must be # or #", 0 },
    { TUNING(auto_naive_keys), ATTN_AUTO_NAIVE_KEYS, 0, 1 << 20, FROM_LEAST_TO_MOST, 0 },
};

static void usual_tuning(tuning *t)
{
    int i;
    for (i = 0; i < COUNT_OF(tuning_values); i++)
        memcpy((char *)t + tuning_values[i].offset, &tuning_values[i].usual, sizeof(int64_t));
}

/* A reader reads the words of a tuning text, without its comments. What is no printing ASCII
 * separates them as a space does, up to 32, or is shown as '?'. */
typedef struct reader {
    const char *at;
    int line;
} reader;

static size_t next_word(reader *r, const char **word)
{
    for (; *r->at == '#' || (*r->at && (unsigned char)*r->at <= ' '); r->at++) {
        r->line += *r->at == '\n';
        if (*r->at == '#') /* Comments are most of a file. */
            while (r->at[1] && r->at[1] != '\n')
                r->at++;
    }
    *word = r->at;
    while ((unsigned char)*r->at > ' ' && *r->at != '#')
        r->at++;
    return (size_t)(r->at - *word);
}

/* put_strange shows a word as it may stand in a sentence, as a damaged text can hold anything. */
static void put_strange(text *t, const char *word, size_t length)
{
    size_t i;
    for (i = 0; i < length && i < 40; i++)
        put_word(t, word[i] > ' ' && word[i] <= '~' ? word + i : "?", 1);
    put(t, i < length ? "..." : "");
}

static void put_damage(text *t, const reader *r)
{
    put_numbers(t, "tuning is ignored: line #: ", NUMBERS(r->line));
}

static void put_unknown(text *t, const reader *r, const char *word, size_t length)
{
    int i;
    put_damage(t, r);
    put(t, "unknown word '");
    put_strange(t, word, length);
    put(t, "': it must be [SET.]NAME VALUE, with NAME ");
    for (i = 0; i < COUNT_OF(tuning_values); i++) {
        put(t, i == 0 ? "" : i + 1 < COUNT_OF(tuning_values) ? ", " : " or ");
        put(t, tuning_values[i].name);
    }
    put(t, ", or 'end'");
}

/* read_value reads "[SET.]NAME VALUE", the word `key` and the one that follows, and enters it in *t
 * if it is meant for `set`. It returns 0 with a sentence if the words are something else. */
static int read_value(reader *r, const char *key, size_t length, const char *set, tuning *t,
                      text *why)
{
    const char *value;
    size_t dot = 0, digits;
    int64_t number;
    int i, meant;
    while (dot < length && key[dot] != '.')
        dot++;
    meant = dot == length || same_word(set, key, dot);
    dot = dot == length ? 0 : dot + 1;
    for (i = 0; i < COUNT_OF(tuning_values); i++) {
        const struct tuning_value *v = &tuning_values[i];
        if (!same_word(v->name, key + dot, length - dot))
            continue;
        digits = next_word(r, &value);
        if (parse_int(value, digits, &number) && number >= v->least && number <= v->most &&
            !(v->powers && (number & (number - 1)))) {
            if (meant)
                memcpy((char *)t + v->offset, &number, sizeof number);
            return 1;
        }
        put_damage(why, r);
        put(why, v->name);
        put(why, " (");
        put_strange(why, value, digits);
        put(why, ")");
        put_numbers(why, v->rest, NUMBERS(v->least, v->most));
        return 0;
    }
    put_unknown(why, r, key, length);
    return 0;
}

/* read_values reads all of a tuning text, which attn.h describes in "How to compute". */
static int read_values(reader *r, const char *set, tuning *t, text *why)
{
    const char *word;
    size_t length = next_word(r, &word);
    int ok = same_word("attn-tuning", word, length);
    length = next_word(r, &word);
    if (!ok || !same_word("1", word, length)) {
        put_damage(why, r);
        put(why, "it must begin with 'attn-tuning 1'");
        return 0;
    }
    while ((length = next_word(r, &word)) > 0 && !same_word("end", word, length))
        if (!read_value(r, word, length, set, t, why))
            return 0;
    if (!length || next_word(r, &word)) {
        put_damage(why, r);
        put(why, "it must end with 'end'");
        return 0;
    }
    return 1;
}

/* read_tuning reads what the text says about a kernel set, and takes the usual values without a
 * text. A damaged text is ignored: it returns 0, and why holds a sentence. */
static int read_tuning(const char *string, const char *set, tuning *t, text *why)
{
    reader r;
    usual_tuning(t);
    r.at = string;
    r.line = 1;
    if (!string || read_values(&r, set, t, why))
        return 1;
    usual_tuning(t);
    return 0;
}

/* tuning_of gives the sizes of a kernel set in a call. */
static tuning tuning_of(const attn_params *p, const attn_kernels *kernels)
{
    tuning t;
    text none = text_in(NULL, 0);
    read_tuning(p->tuning, kernels->name, &t, &none);
    return t;
}

/* put_tuning says what p.tuning has that is not usual, or what is wrong with it. */
static void put_tuning(const problem *pr, const plan *pl, text *why)
{
    tuning t;
    int64_t value;
    int i, found = 0;
    if (!pr->p.tuning)
        return;
    put(why, "; ");
    if (!read_tuning(pr->p.tuning, pl->kernels->name, &t, why))
        return;
    for (i = 0; i < COUNT_OF(tuning_values); i++) {
        memcpy(&value, (const char *)&t + tuning_values[i].offset, sizeof value);
        if (value == tuning_values[i].usual)
            continue;
        put(why, found++ ? " " : "tuning: ");
        put_field(why, tuning_values[i].name, value);
    }
    put(why, found ? "" : "tuning: the usual sizes");
}

/* src/problem.c - the problem: the parameters with every default resolved, and one sequence of the batch. */

/* state_row gives the number of a row among raw states: that of a packed lse. */
static inline int64_t state_row(const attn_params *p, const sequence *s, int64_t head, int64_t i)
{
    const int64_t entry = p->cu_seqlens_q ? 0 : s->b * p->num_heads_q;
    return (entry + head) * rows_held(p) + s->q_row + i;
}

/* all_rows counts the rows of all heads, as state_row numbers them. */
static int64_t all_rows(const attn_params *p)
{
    return times(times(p->cu_seqlens_q ? 1 : p->batch, p->num_heads_q), rows_held(p));
}

static inline float sink_of(const attn_params *p, int64_t head)
{
    if (p->softmax1)
        return 0.0f;
    return p->sinks ? p->sinks[head] : NEG_INF;
}

/* row_seen, key_seen and head_seen give numbers of the call that this one is a view of. */
static inline int64_t row_seen(const sequence *s, int64_t i)
{
    return s->view.row + i * s->view.step;
}

static inline int64_t key_seen(const sequence *s, int64_t j)
{
    return s->view.key + j * s->view.step;
}

static inline int64_t head_seen(const sequence *s, int64_t head)
{
    return s->view.head + head * s->view.head_step;
}

static inline attn_pair pair_of(const sequence *s, const lane *at, int64_t j)
{
    const int64_t row = row_seen(s, at->i), key = key_seen(s, j);
    const attn_pair pair = { s->view.batch,
                             head_seen(s, at->head),
                             row,
                             key,
                             .pos = s->key_base + s->view.before + row,
                             .n = s->key_base + key };
    return pair;
}

/* scales_queries tells whether scales of channels of K, which are whole numbers, go to the queries. */
static inline int scales_queries(const attn_params *p)
{
    return p->integer && has_scales(p->k.dtype) && p->k_scales.stride_dim;
}

/* A tile of many rows has this number of keys, so that logits of 16 KiB stay in L1. Heads of 200
 * and more have half, so that 1 MiB a worker is enough: 1 % slower (with 192, 3 %). */
#define WIDE_TILE_KEYS(dims) ((dims) < 400 ? 64 : 32)
#define NARROW_TILE_KEYS 256

static int64_t q_capacity(const attn_params *p, int64_t b)
{
    return p->cu_seqlens_q ? (int64_t)p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b] : p->seq_len_q;
}

static int64_t kv_capacity(const attn_params *p, int64_t b)
{
    return p->cu_seqlens_kv ? (int64_t)p->cu_seqlens_kv[b + 1] - p->cu_seqlens_kv[b]
                            : p->seq_len_kv;
}

/* take_part_of narrows *from..*to-1 to `count` from `begin` on. */
static void take_part_of(int64_t begin, int64_t count, int64_t *from, int64_t *to)
{
    *from = max64(*from, min64(begin, *to));
    *to = max64(*from, min64(begin + count, *to));
}

/* narrow_columns narrows columns *from to *to-1 to those of the keys that a part holds. */
static void narrow_columns(const attn_part *part, int64_t *from, int64_t *to)
{
    if (part->keys)
        take_part_of(part->key_begin, part->key_count, from, to);
}

/* narrow_to_part narrows a sequence to the rows and keys of a part, which are all that is held. */
static void narrow_to_part(const attn_part *part, sequence *s)
{
    if (part->rows) {
        s->q_row -= part->row_begin;
        take_part_of(part->row_begin, part->row_count, &s->row_from, &s->row_to);
    }
    if (part->keys) {
        s->kv_row += part->key_row - part->key_begin;
        take_part_of(part->key_begin - s->column, part->key_count, &s->key_from, &s->key_to);
    }
}

static int64_t offset_of(const attn_params *p, const sequence *s)
{
    if (p->alignment == ATTN_ALIGN_OFFSET)
        return p->q_offset[s->b];
    return p->alignment == ATTN_ALIGN_BOTTOM_RIGHT ? s->kv_len - s->q_len : 0;
}

static attn_view view_of_entry(const attn_params *p, int64_t b, int64_t offset)
{
    attn_view v = { .batch = b, .head_step = 1, .step = 1, .before = offset };
    if (p->view) {
        v = *p->view;
        v.row += b * v.entry;
        v.key += b * v.entry;
    }
    return v;
}

static sequence sequence_of(const attn_params *p, int64_t b)
{
    const int64_t column = entry32(p->kv_begin, b, 0);
    sequence s = {
        .b = b,
        .q_row = entry32(p->cu_seqlens_q, b, 0),
        .q_len = entry32(p->q_len, b, q_capacity(p, b)),
        .kv_row = entry32(p->cu_seqlens_kv, b, 0) + column + entry32(p->kv_rows.begin, b, 0),
        .kv_len = entry32(p->kv_len, b, kv_capacity(p, b) - column),
        .column = column,
        .key_base = p->key_base ? p->key_base[b] : 0,
        .prefix = entry32(p->prefix, b, 0),
    };
    s.row_to = s.q_len;
    s.key_to = s.kv_len;
    s.offset = offset_of(p, &s);
    s.view = view_of_entry(p, b, s.offset);
    narrow_to_part(&p->part, &s);
    return s;
}

/* LOG2E_LO carries what binary32 loses of log2 e: the factor is right to nearly the last bit. */
static float score_factor(float scale)
{
    float low = scale * LOG2E_LO;
    return fma32(FMA_BASE, scale, LOG2E_HI, low);
}

static void resolve_workers(attn_params *p)
{
    if (p->num_workers == 0 && !p->parallel_for)
        p->num_workers = OPENMP_THREADS;
    if (p->num_workers == 0)
        p->num_workers = 1;
}

static void resolve_sizes(attn_params *p)
{
    if (p->num_heads_kv == 0)
        p->num_heads_kv = p->num_heads_q;
    if (p->head_dim_v == 0)
        p->head_dim_v = p->head_dim;
    if (p->scale == 0.0f && p->head_dim > 0)
        p->scale = inv_sqrt_nearest((uint64_t)p->head_dim);
    if (p->window && p->window_left > TOO_BIG)
        p->window_left = -1;
    if (p->window && p->window_right > TOO_BIG)
        p->window_right = -1;
    resolve_workers(p);
}

/* settle_workers sets the workers that can run at once, rather than those to size for. */
static void settle_workers(attn_params *p)
{
    if (!p->parallel_for && OPENMP_THREADS == 0)
        p->num_workers = 1;
}

/* Every array of the call gets its strides, or *why says which one does not fit into memory. */
static attn_status resolve_layouts(attn_params *p, text *why)
{
    call_axes x;
    if (p->logits.num_rows == 0 && p->logits.rows == NULL)
        p->logits.num_rows = rows_held(p);
    x = axes_of_call(p);
    return resolve_arrays(call_fields, COUNT_OF(call_fields), p, &x, why);
}

/* has_skip tells whether blocks of keys may be left out. */
static int has_skip(const attn_params *p)
{
    return p->skip.below > 0;
}

static int choose_impl(const attn_params *p)
{
    if (p->impl == ATTN_IMPL_AUTO && !p->part.rows && !p->part.keys && !p->recent.keys &&
        !has_skip(p))
        return p->seq_len_kv <= p->auto_naive_keys ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    return p->impl == ATTN_IMPL_NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
}

/* wanted_keys gives the keys of a tile: the caller's wish comes first, then that of tuning. */
static int wanted_keys(const attn_params *p, const attn_kernels *kernels)
{
    const int64_t cell = p->block_mask.block_k;
    const tuning t = tuning_of(p, kernels);
    int keys;
    if (p->tile_keys || t.tile_keys)
        return p->tile_keys ? p->tile_keys : (int)t.tile_keys;
    keys = kernels->rows > 24 ? WIDE_TILE_KEYS(p->head_dim + p->head_dim_v) : NARROW_TILE_KEYS;
    if (kernels->pack_values)
        keys *= 2; /* Sums of P V come and go half as often: 10 to 15 % of the time. */
    if (cell >= 2 * ATTN_BLOCK && keys % cell == 0)
        return (int)cell; /* Whole cells are best, as most tiles are then seen by all or by none. */
    return keys;
}

/* tile_keys_of halves that number as long as all keys that there can be fit. */
static int tile_keys_of(const attn_params *p, const attn_kernels *kernels)
{
    int keys = wanted_keys(p, kernels);
    while (keys >= 2 * ATTN_BLOCK && keys / 2 >= keys_held(p))
        keys /= 2;
    return keys;
}

/* lanes_of_list counts the rows of all heads of a group that share a list of keys. */
static int64_t lanes_of_list(const problem *pr)
{
    return times(min64(rows_of_list(&pr->p), max64(pr->max_q_len, 1)), pr->group);
}

/* resolve_kernels sets the kernel set and the sizes that the caller leaves open. */
static void resolve_kernels(problem *pr)
{
    attn_params *p = &pr->p;
    const int64_t rows = pr->gathered ? lanes_of_list(pr) : times(pr->max_q_len, pr->group);
    pr->batch_kernels = p->kernels ? p->kernels : best_kernels(times(rows, p->batch), 0);
    pr->batch_tile_keys = tile_keys_of(p, pr->batch_kernels);
    if (p->kernels == NULL)
        p->kernels = best_kernels(rows, p->fast);
    p->tile_keys = tile_keys_of(p, p->kernels);
    if (p->auto_naive_keys == 0)
        p->auto_naive_keys = tuning_of(p, p->kernels).auto_naive_keys;
    pr->impl = choose_impl(p);
}

static void resolve_numbers(problem *pr)
{
    attn_params *p = &pr->p;
    float keep = 1.0f - p->dropout_p;
    int64_t b;
    const int64_t kinds = kinds_of(p);
    pr->group = p->num_heads_q / p->num_heads_kv;
    pr->factor = score_factor(p->scale);
    pr->cap2 = p->softcap * LOG2E_HI;
    pr->icap2 = p->softcap > 0 ? 1.0f / pr->cap2 : 0.0f;
    pr->keep_factor = 1.0f / keep;
    pr->drop_below = (uint32_t)((double)p->dropout_p * 4294967296.0);
    pr->max_q_len = pr->max_kv_len = 0;
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        pr->max_q_len = max64(pr->max_q_len, s.row_to - s.row_from);
        pr->max_kv_len = max64(pr->max_kv_len, s.key_to - s.key_from);
    }
    resolve_kernels(pr);
}

/* These tell what has to be computed. */
static int wants_values(const attn_params *p)
{
    return p->partial || p->o.data;
}

static int wants_results(const attn_params *p)
{
    return p->o.data || p->lse.data || p->stats.data;
}

/* has_insight tells whether states hold more than m, l and o. */
static int has_insight(const attn_params *p)
{
    return p->insight.entropy || p->insight.top;
}

static int wants_rows(const attn_params *p)
{
    return p->partial || wants_results(p) || has_insight(p) || has_skip(p);
}

/* wants_pairs tells whether a list of its own computes logits again. */
static int wants_pairs(const attn_params *p)
{
    return p->logits.data || p->insight.mass;
}

static int is_empty(const attn_params *p)
{
    return p->batch == 0 || rows_held(p) == 0;
}

/* begins_inside tells whether the first key may lie inside a chunk or node of the merge tree. */
static int begins_inside(const attn_params *p)
{
    return p->key_base || p->part.keys;
}

/* src/keys.c - where key j of a sequence lies: rings, pages and p.recent are known here alone. */

/* A key_place is where a key of a sequence lies. Only the functions of this file know
 * that. */
typedef struct key_place {
    int64_t in_sequence; /* It is the row before pages. */
    int64_t table_entry; /* It is the entry that names the page. */
    int64_t entry, row;  /* entry is a batch entry or a page of k and v, and row is a row in it. */
    int64_t left;        /* This and the next left - 1 rows lie one after the other. */
    int64_t listed;      /* It is the place of the key in a list of keys. */
} key_place;

/* enter_run goes to row at->in_sequence: with pages, to slot `slot` of the page of
 * at->table_entry. */
static void enter_run(const attn_rows *rows, key_place *at, int64_t slot)
{
    at->left = rows->ring ? rows->ring - at->in_sequence : INT64_MAX;
    at->row = at->in_sequence;
    if (!rows->page_size)
        return;
    at->entry = rows->table[at->table_entry];
    at->row = slot;
    at->left = min64(at->left, rows->page_size - slot);
}

static key_place key_at(const attn_params *p, const attn_sequence *s, int64_t j)
{
    const attn_rows *rows = &p->kv_rows;
    key_place at = { .in_sequence = s->kv_row + j, .entry = s->b };
    int64_t page = 0;
    if (rows->ring && at.in_sequence >= rows->ring)
        at.in_sequence -= rows->ring;
    if (rows->page_size) {
        page = at.in_sequence / rows->page_size;
        at.table_entry = s->b * rows->table_stride + page;
    }
    enter_run(rows, &at, at.in_sequence - page * rows->page_size);
    return at;
}

/* The place behind those that lie one after the other: key_at without a division. */
static void next_place(const attn_params *p, const attn_sequence *s, key_place *at)
{
    const attn_rows *rows = &p->kv_rows;
    at->in_sequence += at->left;
    at->table_entry++;
    if (rows->ring && at->in_sequence == rows->ring) {
        at->in_sequence = 0;
        at->table_entry = s->b * rows->table_stride;
    }
    enter_run(rows, at, 0);
}

/* The next row of those that lie one after the other; behind the last one `left` is 0. */
static inline void next_row(key_place *at)
{
    at->in_sequence++;
    at->row++;
    at->left--;
}

/* listed_at tells where the key at a place of the list lies. */
static key_place listed_at(const attn_params *p, const attn_sequence *s, key_numbers list,
                           int64_t place)
{
    key_place at = key_at(p, s, list.at[place]);
    at.listed = place;
    return at;
}

/* next_listed goes to the next place of the list. It returns how many rows further that key lies, or
 * 0 if it lies elsewhere; within a page it is found without key_at, which divides. */
static inline int64_t next_listed(const attn_params *p, const attn_sequence *s, key_numbers list,
                                  key_place *at)
{
    const int32_t *number = list.at + at->listed + 1;
    const int64_t gap = number[0] - number[-1];
    if (gap >= at->left) {
        *at = listed_at(p, s, list, at->listed + 1);
        return 0;
    }
    at->listed++;
    at->in_sequence += gap;
    at->row += gap;
    at->left -= gap;
    return gap;
}

/* versions_of counts the versions of keys that a call may read. */
static int versions_of(const attn_params *p)
{
    return p->recent.keys ? VERSIONS : 1;
}

/* The row at pos reads keys from recent_from on from p.recent. */
static int64_t recent_from(const attn_params *p, int64_t pos)
{
    return p->recent.keys ? pos - p->recent.keys + 1 : INT64_MAX;
}

/* recent_at tells where key j lies in p.recent. */
static key_place recent_at(const attn_params *p, const attn_sequence *s, int64_t j)
{
    key_place at = { .entry = p->recent.entries ? p->recent.entries[s->b] : s->b };
    at.row = (s->key_base + j) % p->recent.ring;
    at.left = p->recent.ring - at.row;
    return at;
}

/* The place behind those that lie one after the other, in p.recent. */
static void next_recent_place(const attn_params *p, key_place *at)
{
    at->row = 0;
    at->left = p->recent.ring;
}

/* is_scattered tells whether the rows of a sequence may lie in several places. */
static int is_scattered(const attn_params *p)
{
    return p->kv_rows.ring > 0 || p->kv_rows.page_size > 0;
}

/* src/masks.c - masks: which keys a query row sees.
 *
 * Two kinds of rule decide whether query row i sees key j: some leave an interval of keys to a row
 * (`range`), and the loops never step outside it; the others must be asked pair by pair (`row`). A key
 * is visible if all active rules say so.
 */

/* A key_row is a row that is asked about keys j0 to j0+n-1. */
typedef struct key_row {
    const attn_params *p;
    const sequence *s;
    const lane *at;
    const attn_kernels *kernels;
    int64_t j0;
    int n;
    /* Bit k % 32 of alive[k / 32 * apart] tells whether key j0 + k is visible. Bits behind n are 0. */
    uint32_t *alive;
    int apart;
} key_row;

typedef struct mask_rule {
    member on;                      /* The rule is active where this field is set. */
    range_fn range;                 /* NULL means that the rule is no interval. */
    void (*row)(const key_row *of); /* row clears the bits of keys that are hidden. */
    /* tile gives the attn_tile_class of a rectangle quickly; NULL means always PARTIAL. */
    int (*tile)(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n);
    /* No row of the rectangle sees keys from j to before the result; NULL means always j. */
    int64_t (*next)(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                    int64_t end);
} mask_rule;

/* bits_below gives the lowest n bits: none below 0, all of a word from 32 on. */
static uint32_t bits_below(int n)
{
    return n <= 0 ? 0 : n < ATTN_ALIVE_BITS ? (UINT32_C(1) << n) - 1 : UINT32_MAX;
}

static uint32_t bits_between(int from, int to)
{
    return bits_below(to) & ~bits_below(from);
}

/* word_of gives the word with key k of the row. */
static uint32_t *word_of(const key_row *of, int k)
{
    return &of->alive[k / ATTN_ALIVE_BITS * of->apart];
}

/* keep_if hides key k of the row unless it is visible by one more rule. */
static void keep_if(const key_row *of, int k, int visible)
{
    *word_of(of, k) &= ~((uint32_t)!visible << k % ATTN_ALIVE_BITS);
}

/* hide_between hides keys `from` to `to`-1 of the row. */
static void hide_between(const key_row *of, int from, int to)
{
    int k = from / ATTN_ALIVE_BITS * ATTN_ALIVE_BITS;
    for (; k < to; k += ATTN_ALIVE_BITS)
        *word_of(of, k) &= ~bits_between(from - k, to - k);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

static void causal_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi)
{
    (void)p;
    (void)lo;
    *hi = min64(*hi, max64(pos + 1, s->prefix));
}

static void window_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                         int64_t *hi)
{
    (void)s;
    if (p->window_left >= 0)
        *lo = max64(*lo, pos - p->window_left);
    if (p->window_right >= 0)
        *hi = min64(*hi, pos + p->window_right + 1);
}

/* first_from gives the first key of a view that has at least the number `key` in the whole. */
static int64_t first_from(const sequence *s, int64_t key)
{
    return -floor_div(s->view.key - key, s->view.step);
}

static void chunked_range(const attn_params *p, const sequence *s, int64_t pos, int64_t *lo,
                          int64_t *hi)
{
    const int64_t at = s->key_base + key_seen(s, pos);
    const int64_t begin = floor_div(at, p->chunk_size) * p->chunk_size - s->key_base;
    *lo = max64(*lo, first_from(s, begin));
    *hi = min64(*hi, first_from(s, begin + p->chunk_size));
}

/* Ids of rows and of keys are view.step apart. */
static const int32_t *query_ids(const attn_params *p, const sequence *s)
{
    return p->q_segments + s->view.row + (p->cu_seqlens_q ? s->q_row : s->b * p->q_segments_stride);
}

static const int32_t *key_ids(const attn_params *p, const sequence *s)
{
    return p->kv_segments + s->column + s->view.key +
           (p->cu_seqlens_kv ? p->cu_seqlens_kv[s->b] : s->b * p->kv_segments_stride);
}

/* hide_others_apart does what the kernel does, for ids that lie `step` apart. */
static void hide_others_apart(const key_row *of, const int32_t *ids, int64_t step, int32_t own)
{
    int32_t packed[ATTN_ALIVE_BITS];
    int k, i;
    for (k = 0; k < of->n; k += ATTN_ALIVE_BITS) {
        const int n = (int)min64(of->n - k, ATTN_ALIVE_BITS);
        for (i = 0; i < n; i++, ids += step)
            packed[i] = *ids;
        of->kernels->hide_others(word_of(of, k), of->apart, packed, n, own);
    }
}

static void segments_row(const key_row *of)
{
    const int64_t step = of->s->view.step;
    const int32_t own = query_ids(of->p, of->s)[of->at->i * step];
    const int32_t *const kv = key_ids(of->p, of->s) + of->j0 * step;
    if (step == 1)
        of->kernels->hide_others(of->alive, of->apart, kv, of->n, own);
    else
        hide_others_apart(of, kv, step, own);
}

/* An id_span is the ids from the least to the largest of some rows or keys. */
typedef struct id_span {
    int32_t least, most;
} id_span;

OWN_FRAME static id_span ids_between(const int32_t *ids, int64_t step, int64_t from, int64_t to)
{
    id_span found = { ids[from * step], ids[from * step] };
    for (from++; from < to; from++) {
        const int32_t id = ids[from * step];
        found.least = id < found.least ? id : found.least;
        found.most = id > found.most ? id : found.most;
    }
    return found;
}

/* Documents follow each other, so that spans tell most tiles: those outside the document of their
 * rows, and those inside it. */
static int segments_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    const int64_t step = s->view.step;
    const id_span rows = ids_between(query_ids(p, s), step, at->i_begin, at->i_end);
    const id_span keys = ids_between(key_ids(p, s), step, j0, j0 + n);
    if (rows.most < keys.least || keys.most < rows.least)
        return ATTN_TILE_EMPTY;
    return rows.least == rows.most && keys.least == keys.most ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t segments_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                             int64_t end)
{
    const int64_t step = s->view.step;
    const id_span rows = ids_between(query_ids(p, s), step, at->i_begin, at->i_end);
    const int32_t *const kv = key_ids(p, s);
    while (j < end && (kv[j * step] < rows.least || kv[j * step] > rows.most))
        j++;
    return j;
}

/* Parents precede their children, so that one walk up from the query meets its ancestors in
 * descending order, as the keys are visited. */
static void tree_row(const key_row *of)
{
    const attn_params *p = of->p;
    const sequence *s = of->s;
    const int32_t *parents = p->tree_parents + (p->cu_seqlens_q ? s->q_row : s->b * p->tree_stride);
    const int64_t first_node = s->kv_len - s->q_len;
    int64_t ancestor = of->at->i;
    int k;
    for (k = of->n - 1; k >= 0 && of->j0 + k >= first_node; k--) {
        const int64_t node = of->j0 + k - first_node;
        while (ancestor > node)
            ancestor = parents[ancestor];
        keep_if(of, k, ancestor == node);
    }
}

static int tree_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    (void)p;
    (void)at;
    return j0 + n <= s->kv_len - s->q_len ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

/* mask_at tells where a mask has the first key of the row. */
static int64_t mask_at(const attn_mask *m, const key_row *of)
{
    const sequence *s = of->s;
    return s->b * m->stride_batch + of->at->head * m->stride_head + of->at->i * m->stride_q +
           (s->column + of->j0) * m->stride_kv;
}

static void bool_row(const key_row *of)
{
    const attn_mask *m = &of->p->bool_mask;
    const uint8_t *data = m->data + mask_at(m, of);
    const int invert = m->invert != 0;
    int k;
    if (m->stride_kv == 1) {
        of->kernels->hide_bytes(of->alive, of->apart, data, of->n, invert);
        return;
    }
    for (k = 0; k < of->n; k++)
        keep_if(of, k, (data[k * m->stride_kv] != 0) != invert);
}

/* bits_at tells which bit of the bit mask's data that is. */
static int64_t bits_at(const key_row *of)
{
    return mask_at(&of->p->bit_mask, of) + of->s->view.bit;
}

static int bit_of(const uint8_t *bits, int64_t index)
{
    const int64_t byte = floor_div(index, 8);
    return bits[byte] >> (index - byte * 8) & 1;
}

/* some_bits gives `count` bits, at most 32, from bit `shift` of the first byte on, and anything above
 * them. A byte without one of them is not read. */
static uint32_t some_bits(const uint8_t *bits, int shift, int count)
{
    uint32_t word = 0;
    int i;
    if (count == ATTN_ALIVE_BITS) {
        word = bits[0] | (uint32_t)bits[1] << 8 | (uint32_t)bits[2] << 16 | (uint32_t)bits[3] << 24;
        return shift ? word >> shift | (uint32_t)bits[4] << (ATTN_ALIVE_BITS - shift) : word;
    }
    for (i = 0; i < count; i++)
        word |= (uint32_t)bit_of(bits, shift + i) << i;
    return word;
}

static void bits_row(const key_row *of)
{
    const attn_mask *m = &of->p->bit_mask;
    const int64_t first = bits_at(of), byte = floor_div(first, 8);
    const int shift = (int)(first - byte * 8), invert = m->invert != 0, n = of->n;
    const uint32_t flip = invert ? UINT32_MAX : 0;
    int k;
    if (m->stride_kv == 1) {
        for (k = 0; k < n; k += ATTN_ALIVE_BITS)
            *word_of(of, k) &=
                flip ^ some_bits(m->data + byte + k / 8, shift, (int)min64(n - k, ATTN_ALIVE_BITS));
        return;
    }
    for (k = 0; k < n; k++)
        keep_if(of, k, bit_of(m->data, first + k * m->stride_kv) != invert);
}

/* bitmap_first finds the first visible cell of column..end-1, or end; it skips empty bytes. */
static int64_t bitmap_first(const attn_block_mask *m, int64_t b, int64_t head, int64_t row,
                            int64_t column, int64_t end)
{
    const int64_t at = b * m->stride_batch + head * m->stride_head + row * m->stride_row;
    while (column < end && !bit_of(m->bitmap, at + column))
        column += (at + column) % 8 == 0 && !m->bitmap[floor_div(at + column, 8)] ? 8 : 1;
    return min64(column, end);
}

/* csr_first finds it by a binary search in the row's ascending columns. */
static int64_t csr_first(const attn_block_mask *m, int64_t b, int64_t head, int64_t row,
                         int64_t column, int64_t end)
{
    const int32_t *offsets =
        m->row_offsets + b * m->csr_stride_batch + head * m->csr_stride_head + row;
    int64_t lo = offsets[0], hi = offsets[1];
    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;
        if (m->columns[middle] < column)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < offsets[1] ? min64(m->columns[lo], end) : end;
}

static int64_t first_cell(const attn_block_mask *m, int64_t b, int64_t head, int64_t row,
                          int64_t column, int64_t end)
{
    return m->bitmap ? bitmap_first(m, b, head, row, column, end)
                     : csr_first(m, b, head, row, column, end);
}

/* cells_row takes one look-up a cell and not a key. */
static void cells_row(const key_row *of)
{
    const attn_block_mask *m = &of->p->block_mask;
    const int64_t size = m->block_k, row = of->at->i / m->block_q;
    int from = 0, to;
    for (; from < of->n; from = to) {
        const int64_t column = (of->j0 + from) / size;
        to = (int)min64(of->n, (column + 1) * size - of->j0);
        if (first_cell(m, of->s->b, of->at->head, row, column, column + 1) != column)
            hide_between(of, from, to);
    }
}

static int cells_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    const attn_block_mask *m = &p->block_mask;
    int64_t head, row, column, seen = 0, all = 0;
    for (head = at->head_begin; head < at->head_end; head++)
        for (row = at->i_begin / m->block_q; row <= (at->i_end - 1) / m->block_q; row++)
            for (column = j0 / m->block_k; column <= (j0 + n - 1) / m->block_k; column++) {
                seen += first_cell(m, s->b, head, row, column, column + 1) == column;
                all++;
            }
    return seen == 0 ? ATTN_TILE_EMPTY : seen == all ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t cells_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                          int64_t end)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t from = j / m->block_k;
    int64_t column = ceil_div(end, m->block_k), head, row;
    for (head = at->head_begin; head < at->head_end; head++)
        for (row = at->i_begin / m->block_q; row <= (at->i_end - 1) / m->block_q; row++)
            column = first_cell(m, s->b, head, row, from, column);
    return min64(end, max64(j, column * m->block_k));
}

/* kv_head_of gives the head of K and V that a query head reads. */
static int64_t kv_head_of(const attn_params *p, int64_t head)
{
    return head / (p->num_heads_q / p->num_heads_kv);
}

static void listed_row(const key_row *of)
{
    const key_numbers list =
        listed_for(of->p, of->s->b, kv_head_of(of->p, of->at->head), of->at->i);
    int64_t at = first_listed(list, of->j0);
    int k;
    for (k = 0; k < of->n; k += ATTN_ALIVE_BITS) {
        const int64_t from = of->j0 + k;
        uint32_t shown = 0;
        for (; at < list.count && list.at[at] < from + ATTN_ALIVE_BITS; at++)
            shown |= UINT32_C(1) << (list.at[at] - from);
        *word_of(of, k) &= shown;
    }
}

static int listed_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    const int64_t rows = rows_of_list(p), heads_end = kv_head_of(p, at->head_end - 1);
    int64_t head, list, seen = 0, all = 0;
    for (head = kv_head_of(p, at->head_begin); head <= heads_end; head++)
        for (list = at->i_begin / rows; list <= (at->i_end - 1) / rows; list++) {
            const key_numbers keys = listed_for(p, s->b, head, list * rows);
            seen += first_listed(keys, j0 + n) - first_listed(keys, j0);
            all += n;
        }
    return seen == 0 ? ATTN_TILE_EMPTY : seen == all ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
}

static int64_t listed_next(const attn_params *p, const sequence *s, const hull *at, int64_t j,
                           int64_t end)
{
    const int64_t rows = rows_of_list(p), heads_end = kv_head_of(p, at->head_end - 1);
    int64_t head, list;
    for (head = kv_head_of(p, at->head_begin); head <= heads_end; head++)
        for (list = at->i_begin / rows; list <= (at->i_end - 1) / rows; list++) {
            const key_numbers keys = listed_for(p, s->b, head, list * rows);
            const int64_t first = first_listed(keys, j);
            if (first < keys.count)
                end = min64(end, keys.at[first]);
        }
    return end;
}

static void callback_row(const key_row *of)
{
    const attn_params *p = of->p;
    int k;
    for (k = 0; k < of->n; k++) {
        if (*word_of(of, k) >> k % ATTN_ALIVE_BITS & 1) {
            const attn_pair pair = pair_of(of->s, of->at, of->j0 + k);
            keep_if(of, k, p->mask(p->callback_user, &pair) != 0);
        }
    }
}

/* Of a view it asks about the whole rectangle, which only makes the answer more careful. */
static int callback_tile(const attn_params *p, const sequence *s, const hull *at, int64_t j0, int n)
{
    const attn_rect rect = { s->view.batch,
                             head_seen(s, at->head_begin),
                             head_seen(s, at->head_end - 1) + 1,
                             row_seen(s, at->i_begin),
                             row_seen(s, at->i_end - 1) + 1,
                             key_seen(s, j0),
                             key_seen(s, j0 + n - 1) + 1,
                             s->view.before,
                             s->key_base };
    int answer;
    if (!p->mask_tile)
        return ATTN_TILE_PARTIAL;
    answer = p->mask_tile(p->callback_user, &rect);
    return answer == ATTN_TILE_EMPTY || answer == ATTN_TILE_FULL ? answer : ATTN_TILE_PARTIAL;
}

/* Cheap rules come first: no other is asked about a tile that the `tile` of one finds empty. */
static const mask_rule mask_rules[] = {
    { MEMBER(causal), .range = causal_range },
    { MEMBER(window), .range = window_range },
    { MEMBER(chunk_size), .range = chunked_range },
    { MEMBER(block_mask.bitmap), NULL, cells_row, cells_tile, cells_next },
    { MEMBER(block_mask.row_offsets), NULL, cells_row, cells_tile, cells_next },
    { MEMBER(key_list.data), NULL, listed_row, listed_tile, listed_next },
    { MEMBER(tree_parents), NULL, tree_row, tree_tile, NULL },
    { MEMBER(q_segments), NULL, segments_row, segments_tile, segments_next },
    { MEMBER(bool_mask.data), .row = bool_row },
    { MEMBER(bit_mask.data), .row = bits_row },
    { MEMBER(mask), NULL, callback_row, callback_tile, NULL },
};

/* A rule_list is the `row` of each rule that decides about a tile. */
typedef struct rule_list {
    int n;
    void (*at[COUNT_OF(mask_rules)])(const key_row *of);
} rule_list;

/* pair_rules_on counts the rules that are on and no intervals. */
static int pair_rules_on(const attn_params *p)
{
    int m, n = 0;
    for (m = 0; m < COUNT_OF(mask_rules); m++)
        n += mask_rules[m].row && is_set(p, mask_rules[m].on);
    return n;
}

static range_list ranges_of(const attn_params *p)
{
    range_list ranges = { 0, { NULL } };
    int m;
    for (m = 0; m < COUNT_OF(mask_rules); m++)
        if (mask_rules[m].range && is_set(p, mask_rules[m].on)) {
            ATTN_ASSERT(ranges.n < COUNT_OF(ranges.at));
            ranges.at[ranges.n++] = mask_rules[m].range;
        }
    return ranges;
}

/* plan_masks notes which masks are on, so that rows and tiles need not ask. */
static void plan_masks(const attn_params *p, plan *pl)
{
    pl->by_pair = pair_rules_on(p) > 0 && !pl->gathered;
    pl->ranges = ranges_of(p);
}

/* Keys *lo..*hi-1 are what the lengths and all range rules leave to a query at pos. */
static void visible_range(const range_list *ranges, const attn_params *p, const sequence *s,
                          int64_t pos, int64_t *lo, int64_t *hi)
{
    int i;
    *lo = s->key_from;
    *hi = s->key_to;
    for (i = 0; i < ranges->n; i++)
        ranges->at[i](p, s, pos, lo, hi);
    if (*hi < *lo)
        *hi = *lo;
}

/* ---- pairs that are visible */

static double sequence_pairs(const range_list *ranges, const attn_params *p, int64_t b)
{
    const sequence s = sequence_of(p, b);
    double pairs = 0;
    int64_t i, lo, hi;
    if (ranges->n == 0)
        return (double)(s.row_to - s.row_from) * (double)(s.key_to - s.key_from);
    for (i = s.row_from; i < s.row_to; i++) {
        visible_range(ranges, p, &s, i + s.offset, &lo, &hi);
        pairs += (double)(hi - lo);
    }
    return pairs;
}

static double visible_pairs(const attn_params *p)
{
    const range_list ranges = ranges_of(p);
    const int64_t kinds = kinds_of(p);
    double pairs = 0;
    int64_t b;
    for (b = 0; b < kinds; b++)
        pairs += sequence_pairs(&ranges, p, b);
    return pairs * (double)(kinds < p->batch ? p->batch : 1) * (double)p->num_heads_q;
}

/* src/overlap.c - overlap: whether what a call writes shares a byte with anything else of the call.
 *
 * An area is what an array covers: runs of bytes, each at a sum of multiples of the array's steps. So
 * tensors may lie between each other in one buffer, and bytes from the first to the last say little.
 * Two areas share a byte if some sum of multiples of all their steps comes within the length of a run,
 * and one area meets itself if such a sum of differences does.
 */

#define AREA_AXES 5

typedef struct area {
    const char *name;
    uintptr_t at;                              /* at is the lowest byte. */
    int64_t bytes;                             /* bytes goes from it to the highest one. */
    int64_t run;                               /* run counts the bytes of a run. */
    int axes;                                  /* axes counts those along which runs repeat, */
    int64_t count[AREA_AXES], step[AREA_AXES]; /* from the smallest step to the largest. */
} area;

/* add_axis sorts an axis in. One of length 1, and one that inputs broadcast, adds nothing. */
static void add_axis(area *a, int64_t count, int64_t step)
{
    int i = a->axes;
    if (count == 1 || step == 0)
        return;
    for (; i > 0 && a->step[i - 1] > step; i--) {
        a->count[i] = a->count[i - 1];
        a->step[i] = a->step[i - 1];
    }
    a->count[i] = count;
    a->step[i] = step;
    a->axes++;
}

/* join_runs makes runs longer along axes that continue them, and where steps are not whole bytes,
 * of which `per` elements make one; then runs cover what lies between. */
static void join_runs(area *a, int64_t per)
{
    int i, kept = 0;
    for (i = 0; i < a->axes; i++) {
        const int64_t count = a->count[i], step = a->step[i];
        if (step == a->run || step % per) {
            a->run += (count - 1) * step;
            continue;
        }
        a->count[kept] = count;
        a->step[kept++] = step / per;
    }
    a->axes = kept;
}

/* area_of tells what an array covers whose extent has been checked; `per` of its elements have
 * `bytes_each` bytes. */
COLD static area area_of(const char *name, const void *data, int axes, const int64_t *count,
                         const ptrdiff_t *stride, int64_t bytes_each, int64_t per)
{
    area a = { .name = name, .at = (uintptr_t)data, .run = bytes_each };
    int64_t below = 0, whole;
    int i;
    for (i = 0; i < axes; i++) {
        const int64_t step = count[i] > 1 ? stride[i] * bytes_each : 0;
        if (count[i] == 0)
            return a;
        below += step < 0 ? (count[i] - 1) * -step : 0;
        add_axis(&a, count[i], step < 0 ? -step : step);
    }
    join_runs(&a, per);
    whole = ceil_div(below, per);
    a.at -= (uintptr_t)whole;
    a.bytes = a.run = ceil_div(whole * per - below + a.run, per);
    for (i = 0; i < a.axes; i++)
        a.bytes += (a.count[i] - 1) * a.step[i];
    if (!data)
        a.bytes = 0; /* It lies nowhere, but may meet itself. */
    return a;
}

static area area_of_bytes(const char *name, const void *data, int64_t bytes)
{
    const area a = { .name = name, .at = (uintptr_t)data, .bytes = data ? bytes : 0, .run = bytes };
    return a;
}

/* ---- sums of multiples */

/* An addend is an axis of a sum: 0 to `most` times its step. `rest` is the most that the axes behind
 * it add, and all sums of it and of those are multiples of `divisor`. */
typedef struct addend {
    int64_t step, most, rest, divisor;
} addend;

enum { MOST_ADDENDS = 2 * AREA_AXES + 1, SUM_TRIES = 4096 };

/* add_addend sorts an axis in, from the largest step to the smallest; the last one has a step of 0. */
COLD static void add_addend(addend *r, int64_t step, int64_t most)
{
    int i = 0, last = 0;
    while (r[i].step > step)
        i++;
    if (r[i].step == step) {
        r[i].most += most;
        return;
    }
    while (r[last].step)
        last++;
    for (; last >= i; last--)
        r[last + 1] = r[last];
    r[i].step = step;
    r[i].most = most;
}

COLD static void finish_addends(addend *r)
{
    int i = 0;
    while (r[i].step)
        i++;
    for (i--; i >= 0; i--) {
        int64_t a = r[i].step, b = r[i + 1].divisor, left;
        for (; b; b = left) {
            left = a % b;
            a = b;
        }
        r[i].divisor = a;
        r[i].rest = r[i + 1].step * r[i + 1].most + r[i + 1].rest;
    }
}

/* reaches tells whether some sum lies from low to high. Each axis leaves few multiples to try, since
 * the axes behind it reach no further than their sum. Steps that have nothing in common could leave
 * many: what is open after SUM_TRIES of them counts as apart, so that no legal call is refused. */
static int reaches(const addend *r, int64_t low, int64_t high, int *tries)
{
    const int64_t from = max64(low, 0), to = min64(high, r->step * r->most + r->rest);
    int64_t x, last;
    if (from > to || --*tries < 0)
        return 0;
    if (r->step == 0)
        return 1;
    if (to / r->divisor * r->divisor < from)
        return 0;
    last = min64(r->most, to / r->step);
    for (x = from > r->rest ? ceil_div(from - r->rest, r->step) : 0; x <= last && *tries > 0; x++)
        if (reaches(r + 1, low - x * r->step, high - x * r->step, tries))
            return 1;
    return 0;
}

COLD static int sum_within(addend *r, int64_t low, int64_t high)
{
    int tries = SUM_TRIES;
    finish_addends(r);
    return reaches(r, low, high, &tries);
}

/* lattices_meet decides about two areas whose bytes from first to last overlap; b begins `ahead`
 * bytes behind a. Steps of b count from its last run backwards, so that all steps add. */
COLD static int lattices_meet(const area *a, const area *b, int64_t ahead)
{
    addend r[MOST_ADDENDS] = { { 0, 0, 0, 0 } };
    const int64_t end = ahead + b->bytes - b->run;
    int i;
    for (i = 0; i < a->axes; i++)
        add_addend(r, a->step[i], a->count[i] - 1);
    for (i = 0; i < b->axes; i++)
        add_addend(r, b->step[i], b->count[i] - 1);
    return sum_within(r, end - (a->run - 1), end + b->run - 1);
}

COLD static int areas_meet(const area *a, const area *b)
{
    const int behind = b->at >= a->at;
    const uintptr_t ahead = behind ? b->at - a->at : a->at - b->at;
    if (a->bytes == 0 || b->bytes == 0 || ahead >= (uint64_t)(behind ? a->bytes : b->bytes))
        return 0;
    return lattices_meet(a, b, behind ? (int64_t)ahead : -(int64_t)ahead);
}

/* axis_meets tells whether runs meet that are one step or more apart along an axis, and anything
 * apart along the axes before it. */
COLD static int axis_meets(const area *a, int axis)
{
    addend r[MOST_ADDENDS] = { { 0, 0, 0, 0 } };
    int64_t centre = -a->step[axis];
    int i;
    add_addend(r, a->step[axis], a->count[axis] - 2);
    for (i = 0; i < axis; i++) {
        add_addend(r, a->step[i], 2 * (a->count[i] - 1));
        centre += (a->count[i] - 1) * a->step[i];
    }
    return sum_within(r, centre - (a->run - 1), centre + a->run - 1);
}

/* meets_itself tells whether two runs share a byte. Mostly each axis steps over all that the axes
 * before it cover. */
COLD static int meets_itself(const area *a)
{
    int64_t span = a->run;
    int axis;
    for (axis = 0; axis < a->axes; axis++) {
        if (a->step[axis] < span && axis_meets(a, axis))
            return 1;
        span += (a->count[axis] - 1) * a->step[axis];
    }
    return 0;
}

/* ---- the arrays of a call */

/* end_of_use_fn tells where sequence b ends what it uses of an axis that has `count` entries. */
typedef int64_t (*end_of_use_fn)(const attn_params *p, int axis, int64_t count, int64_t b);

/* An array_set is the arrays of one table, with their strides resolved. Outputs that are neither
 * written nor read do not matter. */
typedef struct array_set {
    const call_field *table;
    int n;
    const void *base;
    const call_axes *x;
    unsigned written, read; /* bits of call_field.output */
    const attn_params *p;   /* the call whose sequences may differ in what they use, or NULL */
    end_of_use_fn end_of_use;
} array_set;

typedef struct array_shape {
    const void *data;
    int64_t count[4], bytes_each;
    ptrdiff_t stride[4];
} array_shape;

/* It stands for an array that a level has elsewhere, where it only checks a call. */
static const int64_t not_read = 0;

static int takes_part(const array_set *s, const call_field *f)
{
    const void *data;
    if (!IS_ARRAY(f) || (f->output && !(f->output & (s->written | s->read))))
        return 0;
    data = field_data(f, s->base);
    return data && data != &not_read;
}

static int is_written(const array_set *s, const call_field *f)
{
    return (f->output & s->written) != 0;
}

/* Packed sequences share one list, which has an entry for each token. */
static int lists_tokens(const call_field *f, const call_axes *x)
{
    return f->axis[2] == AXIS_NONE && ((x->packed_q && f->axis[3] == AXIS_SEQ_Q) ||
                                       (x->packed_kv && f->axis[3] == AXIS_SEQ_KV));
}

/* A joint array is one for all sequences. */
static int is_joint(const array_set *s, const call_field *f)
{
    return lists_tokens(f, s->x) || is_packed(f, s->x);
}

static array_shape array_shape_of(const array_set *s, const call_field *f)
{
    array_shape shape = { .data = field_data(f, s->base), .bytes_each = element_bytes(f, s->base) };
    const int joint = is_joint(s, f);
    int64_t packed = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        shape.count[axis] = axis == 0 && joint ? 1 : s->x->count[f->axis[axis]];
        shape.stride[axis] = f->stride[axis] ? stride_given(f, s->base, axis) : (ptrdiff_t)packed;
        packed = times(packed, max64(shape.count[axis], 1));
    }
    if (f->type == F_STORED) { /* Units of a row follow one another. */
        const int unit = (int)unit_of_field(f, s->base);
        shape.count[3] /= unit;
        for (axis = 0; axis < 3; axis++)
            shape.stride[axis] /= unit;
    }
    return shape;
}

static area area_of_shape(const call_field *f, const array_shape *shape)
{
    return area_of(f->name, shape->data, 4, shape->count, shape->stride, shape->bytes_each,
                   f->type == F_BITS ? 8 : 1);
}

/* A span goes from the lowest byte of an array to the highest one. */
typedef struct span {
    uintptr_t at;
    uint64_t bytes;
    int nested; /* Each axis steps over all that the axes after it cover. */
} span;

/* span_of_shape counts an element of bits as a byte. */
static span span_of_shape(const array_shape *shape)
{
    span s = { (uintptr_t)shape->data, (uint64_t)shape->bytes_each, 1 };
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        const int64_t more = shape->count[axis] - 1, step = shape->stride[axis] * shape->bytes_each;
        const uint64_t size = (uint64_t)(step < 0 ? -step : step);
        if (more <= 0)
            continue;
        s.nested &= size >= s.bytes;
        s.bytes += (uint64_t)more * size;
        s.at -= step < 0 ? (uintptr_t)((uint64_t)more * size) : 0;
    }
    return s;
}

static int spans_meet(const span *a, const span *b)
{
    return a->at >= b->at ? a->at - b->at < b->bytes : b->at - a->at < a->bytes;
}

/* An operand is what is compared: an array of a set, or an area where `set` is NULL. Nearly all
 * operands lie apart by their spans alone, and nothing else is computed for those. */
typedef struct operand {
    const array_set *set;
    const call_field *field;
    const area *memory;
    span span;
} operand;

static operand array_operand(const array_set *s, const call_field *f)
{
    const array_shape shape = array_shape_of(s, f);
    const operand x = { s, f, NULL, span_of_shape(&shape) };
    return x;
}

static operand area_operand(const area *a)
{
    const operand x = { NULL, NULL, a, { a->at, (uint64_t)a->bytes, 1 } };
    return x;
}

COLD static area whole_area(const operand *x)
{
    array_shape shape;
    if (!x->set)
        return *x->memory;
    shape = array_shape_of(x->set, x->field);
    return area_of_shape(x->field, &shape);
}

/* ---- what sequences use
 *
 * Rows and keys that a sequence does not use may be memory of somebody else. So arrays that seem to
 * meet are looked at again, sequence by sequence. */

static int sequences_differ(const array_set *s)
{
    return s->p && has_batch_arrays(s->p);
}

/* parts_of counts the parts of an operand that belong to one sequence each; 1 is the operand whole. */
COLD static int64_t parts_of(const operand *x)
{
    const array_set *s = x->set;
    const call_field *f = x->field;
    const int apart = s && sequences_differ(s) && f->type != F_BITS && !is_joint(s, f) &&
                      (f->axis[0] == AXIS_BATCH || f->axis[0] == AXIS_ENTRY);
    return apart ? s->x->count[f->axis[0]] : 1;
}

/* area_in_use is what is used of part number `part` of an array, or of the whole array if that is
 * below 0: as much of each axis as the longest sequence uses. Columns of an output are written
 * whole, and lists of tokens are read whole. */
COLD static area area_in_use(const array_set *s, const call_field *f, int64_t part)
{
    const int differ = sequences_differ(s);
    const int64_t last = part < 0 && differ ? s->p->batch - 1 : max64(part, 0);
    const int axes = f->output || lists_tokens(f, s->x) ? 3 : 4;
    array_shape shape = array_shape_of(s, f);
    int axis;
    if (part >= 0) {
        shape.data = (const char *)shape.data + part * shape.stride[0] * shape.bytes_each;
        shape.count[0] = 1;
    }
    for (axis = 1; axis < axes && differ; axis++) {
        int64_t b, most = 0;
        for (b = max64(part, 0); b <= last; b++)
            most = max64(most, s->end_of_use(s->p, f->axis[axis], shape.count[axis], b));
        shape.count[axis] = min64(most, shape.count[axis]);
    }
    return area_of_shape(f, &shape);
}

/* part_in_use is what is used of part n of an operand that has `parts` parts. */
COLD static area part_in_use(const operand *x, int64_t n, int64_t parts)
{
    return x->set ? area_in_use(x->set, x->field, parts == 1 ? -1 : n) : *x->memory;
}

/* reaches_into tells whether what is used of an operand shares a byte with an area. */
COLD static int reaches_into(const operand *x, const area *a)
{
    const area whole = whole_area(x);
    const int64_t parts = parts_of(x);
    int64_t n;
    if (!areas_meet(&whole, a))
        return 0;
    for (n = 0; n < parts; n++) {
        const area part = part_in_use(x, n, parts);
        if (areas_meet(&part, a))
            return 1;
    }
    return 0;
}

/* operands_meet tells whether what is used of x shares a byte with what is used of y. */
COLD static int operands_meet(const operand *x, const operand *y)
{
    const area whole = whole_area(x);
    const int64_t parts = parts_of(x);
    int64_t n;
    if (!reaches_into(y, &whole))
        return 0;
    for (n = 0; n < parts; n++) {
        const area part = part_in_use(x, n, parts);
        if (reaches_into(y, &part))
            return 1;
    }
    return 0;
}

/* ---- sentences */

COLD static attn_status bad_overlap(const char *a, const char *b, text *why)
{
    put(why, a);
    put(why, " overlaps ");
    put(why, b);
    return bad(why, ATTN_ERR_ARG, ": what a call writes needs memory of its own");
}

static attn_status check_pair(const area *a, const area *b, text *why)
{
    return areas_meet(a, b) ? bad_overlap(a->name, b->name, why) : ATTN_OK;
}

#define ROWS_SHARE ": with its strides rows share elements"

COLD static attn_status check_itself(const area *a, text *why)
{
    if (!meets_itself(a))
        return ATTN_OK;
    put(why, a->name);
    return bad(why, ATTN_ERR_ARG, ROWS_SHARE);
}

/* bad_rows names the strides that count: an axis of length 1 has none. */
COLD static attn_status bad_rows(const operand *x, text *why)
{
    const call_field *f = x->field;
    int axis;
    put(why, f->name);
    put(why, ROWS_SHARE);
    put_numbers(why, " (rows of #", &x->set->x->count[f->axis[3]]);
    for (axis = 0; axis < COUNT_OF(stride_names); axis++) {
        const int64_t stride = stride_given(f, x->set->base, axis);
        if (stride == 0)
            continue;
        put(why, ", ");
        put(why, stride_names[axis] + 1);
        put_numbers(why, " #", &stride);
    }
    put(why, ")");
    put(why, f->instead ? ": " : "");
    return bad(why, ATTN_ERR_ARG, f->instead ? f->instead : "");
}

COLD static const char *operand_name(const operand *x)
{
    return x->set ? x->field->name : x->memory->name;
}

/* check_rows_apart wants the rows of an array to share nothing. An output that a call reads was
 * written by another call, which had to keep to this, too. */
static attn_status check_rows_apart(const operand *x, text *why)
{
    area covered;
    if (x->span.nested)
        return ATTN_OK;
    covered = whole_area(x);
    if (!meets_itself(&covered))
        return ATTN_OK;
    covered = area_in_use(x->set, x->field, -1);
    return meets_itself(&covered) ? bad_rows(x, why) : ATTN_OK;
}

/* The arrays of several sets that a call has. */
typedef struct array_list {
    int n;
    struct {
        unsigned char set, field;
    } at[2 * COUNT_OF(call_fields)];
} array_list;

static void list_arrays(const array_set *sets, int n, array_list *list)
{
    int s, i;
    list->n = 0;
    for (s = 0; s < n; s++)
        for (i = 0; i < sets[s].n; i++)
            if (takes_part(&sets[s], &sets[s].table[i])) {
                ATTN_ASSERT(list->n < COUNT_OF(list->at));
                list->at[list->n].set = (unsigned char)s;
                list->at[list->n++].field = (unsigned char)i;
            }
}

/* What a call writes: `memory` unless there is none, then arrays in their order. */
typedef struct written_list {
    int n;
    operand at[9]; /* All results of attn_forward, and the workspace. */
} written_list;

static void add_written(written_list *written, operand x)
{
    ATTN_ASSERT(written->n < COUNT_OF(written->at));
    written->at[written->n++] = x;
}

/* check_array_apart compares an array with the first `count` operands that the call writes. */
static attn_status check_array_apart(const operand *x, const operand *written, int count, text *why)
{
    attn_status status = x->field->output ? check_rows_apart(x, why) : ATTN_OK;
    int i;
    for (i = 0; i < count && !status; i++)
        if (spans_meet(&written[i].span, &x->span) && operands_meet(&written[i], x))
            status = bad_overlap(operand_name(&written[i]), x->field->name, why);
    return status;
}

/* check_written wants every array that the first set writes, and `memory` unless it is NULL, to share
 * nothing with any other of the sets. Other sets write nothing. */
static attn_status check_written(const array_set *sets, int n, const area *memory, text *why)
{
    array_list list;
    written_list written;
    attn_status status = ATTN_OK;
    int i, own = memory != NULL;
    written.n = 0;
    if (memory)
        add_written(&written, area_operand(memory));
    list_arrays(sets, n, &list);
    for (i = 0; i < list.n && list.at[i].set == 0; i++)
        if (is_written(sets, &sets->table[list.at[i].field]))
            add_written(&written, array_operand(sets, &sets->table[list.at[i].field]));
    for (i = 0; i < list.n && !status; i++) {
        const array_set *s = &sets[list.at[i].set];
        const operand x = array_operand(s, &s->table[list.at[i].field]);
        /* One that the call writes is compared with those before it. */
        status = check_array_apart(&x, written.at, is_written(s, x.field) ? own++ : written.n, why);
    }
    return status;
}

/* src/validate.c - validation: every rule about the parameters and its sentence.
 *
 * Each check returns ATTN_OK or the status whose reason it has put into *why. Behind validation
 * nothing checks arguments.
 */

static attn_status check_sizes(const attn_params *p, text *why)
{
    const attn_status status = check_values(call_fields, COUNT_OF(call_fields), p, why);
    if (status)
        return status;
    if (p->num_heads_kv && p->num_heads_q % p->num_heads_kv)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "num_heads_q (#) must be a multiple of num_heads_kv (#)",
                           NUMBERS(p->num_heads_q, p->num_heads_kv));
    if (p->tile_keys &&
        (p->tile_keys < 16 || p->tile_keys > 1024 || (p->tile_keys & (p->tile_keys - 1))))
        return bad_field(why, ATTN_ERR_ARG, "tile_keys", p->tile_keys,
                         " must be 0 or a power of two from 16 to 1024");
    return ATTN_OK;
}

static attn_status check_numbers(const attn_params *p, text *why)
{
    if (!is_finite(score_factor(p->scale)))
        return bad_number(why, "scale", p->scale, " times log2(e) must be finite");
    if (!is_finite(p->softcap) || p->softcap < 0)
        return bad_number(why, "softcap", p->softcap, " must be finite and at least 0");
    if (p->softcap > 0 && !(p->softcap > 1e-30f && p->softcap < 1e30f))
        return bad_number(why, "softcap", p->softcap, " must be 0 or between 1e-30 and 1e30");
    if (!(p->dropout_p >= 0 && p->dropout_p < 1))
        return bad_number(why, "dropout_p", p->dropout_p, " must be at least 0 and below 1");
    if (!(p->skip.below >= 0 && p->skip.below < 1))
        return bad_number(why, "skip.below", p->skip.below, " must be at least 0 and below 1");
    return ATTN_OK;
}

/* A pair_rule is about a field that must not stand alone, or not together with another one. */
typedef struct pair_rule {
    member field, other;
    /* Nonzero refuses it if the other one is set, and 0 if the other one is not. */
    int with;
    const char *name; /* name is that of the number to be shown; NULL means none. */
    const char *rest;
} pair_rule;

#define ALONE(field, other, rest)                                                                  \
    {                                                                                              \
        MEMBER(field), MEMBER(other), 0, NULL, rest                                                \
    }
#define NUMBER_ALONE(field, other, rest)                                                           \
    {                                                                                              \
        MEMBER(field), MEMBER(other), 0, #field, rest                                              \
    }
#define TOGETHER(field, other, rest)                                                               \
    {                                                                                              \
        MEMBER(field), MEMBER(other), 1, NULL, rest                                                \
    }

#define NEEDS_LOGITS(who)                                                                          \
    "k_centered: logits of a row lack one number, and " who " needs them whole"

/* Fields that mean nothing without another one are refused, not ignored; prefix without causal
 * means something: the keys that it shows are visible anyway. */
static const pair_rule pair_rules[] = {
    ALONE(prefix, causal, "prefix is given, but causal, which it widens, is 0"),
    ALONE(cu_seqlens_kv, cu_seqlens_q, "cu_seqlens_kv is given, but cu_seqlens_q is NULL"),
    ALONE(q_segments, kv_segments, "q_segments and kv_segments: give both or neither"),
    ALONE(kv_segments, q_segments, "q_segments and kv_segments: give both or neither"),
    NUMBER_ALONE(window_left, window, " is set, but window is 0: set window = ATTN_WINDOW"),
    NUMBER_ALONE(window_right, window, " is set, but window is 0: set window = ATTN_WINDOW"),
    ALONE(mask_tile, mask, "mask_tile is given, but mask is NULL"),
    NUMBER_ALONE(key_list.width, key_list.data, " is set, but key_list.data is NULL"),
    NUMBER_ALONE(key_list.rows, key_list.data, " is set, but key_list.data is NULL"),
    ALONE(key_list.data, key_list.width,
          "key_list.width (0) must be at least 1: entries of a list"),
    TOGETHER(block_mask.bitmap, block_mask.row_offsets,
             "block_mask.bitmap and row_offsets: give one of them"),
    ALONE(block_mask.row_offsets, block_mask.columns,
          "block_mask.row_offsets and columns: give both or neither"),
    ALONE(block_mask.columns, block_mask.row_offsets,
          "block_mask.row_offsets and columns: give both or neither"),
    TOGETHER(cu_seqlens_kv, kv_rows, "kv_rows and cu_seqlens_kv: give one of them"),
    ALONE(kv_rows.begin, kv_rows.ring,
          "kv_rows.begin is given, but kv_rows.ring, the rows of a sequence, is 0"),
    ALONE(kv_rows.table, kv_rows.page_size,
          "kv_rows.page_size (0) must be at least 1 when kv_rows.table is given"),
    NUMBER_ALONE(kv_rows.table_stride, kv_rows.page_size, " is set, but kv_rows.page_size is 0"),
    NUMBER_ALONE(kv_rows.num_pages, kv_rows.page_size, " is set, but kv_rows.page_size is 0"),
    TOGETHER(k_centered, softcap, NEEDS_LOGITS("softcap")),
    TOGETHER(k_centered, score, NEEDS_LOGITS("score")),
    TOGETHER(k_centered, sinks, NEEDS_LOGITS("sinks")),
    TOGETHER(k_centered, softmax1, NEEDS_LOGITS("softmax1")),
    TOGETHER(k_centered, logits.data, NEEDS_LOGITS("logits")),
    NUMBER_ALONE(recent.ring, recent.keys, " is set, but recent.keys is 0"),
    ALONE(recent.begin, recent.keys, "recent.begin is given, but recent.keys is 0"),
    ALONE(recent.entries, recent.keys, "recent.entries is given, but recent.keys is 0"),
    NUMBER_ALONE(recent.num_entries, recent.entries, " is set, but recent.entries is NULL"),
    ALONE(recent.k.data, recent.keys, "recent.k.data is given, but recent.keys is 0"),
    ALONE(recent.v.data, recent.keys, "recent.v.data is given, but recent.keys is 0"),
    ALONE(skip.below, skip.dropped,
          "skip.below is set, but skip.dropped, which says how much was left out, is NULL"),
    ALONE(skip.dropped, skip.below, "skip.dropped is given, but skip.below is 0"),
    TOGETHER(skip.below, fast, "skip.below and fast: leave one of them out"),
    TOGETHER(skip.below, partial, "skip.below is set, but raw states (partial) hold no bound"),
    TOGETHER(skip.below, logits.data, "skip.below is set, but logits need every key"),
    TOGETHER(skip.below, insight, "skip.below is set, but insight needs every key"),
    TOGETHER(sinks, softmax1, "softmax1 is a sink of 0 and excludes sinks: set one of them"),
    NUMBER_ALONE(part.row_begin, part.rows, " is set, but part.rows is 0"),
    NUMBER_ALONE(part.row_count, part.rows, " is set, but part.rows is 0"),
    NUMBER_ALONE(part.key_begin, part.keys, " is set, but part.keys is 0"),
    NUMBER_ALONE(part.key_count, part.keys, " is set, but part.keys is 0"),
    NUMBER_ALONE(part.key_row, part.keys, " is set, but part.keys is 0"),
    NUMBER_ALONE(part.key_row, kv_rows,
                 " is set, but kv_rows is not: k and v then begin with key part.key_begin"),
};

static attn_status check_pairs_of_fields(const attn_params *p, text *why)
{
    const pair_rule *rule = pair_rules, *end = pair_rules + COUNT_OF(pair_rules);
    while (rule < end && (!is_set(p, rule->field) || is_set(p, rule->other) != rule->with))
        rule++;
    if (rule == end)
        return ATTN_OK;
    if (rule->name)
        put_field(why, rule->name,
                  number_at((const char *)p + rule->field.offset, rule->field.size));
    return bad(why, ATTN_ERR_ARG, rule->rest);
}

/* check_settings checks what one field asks of the value of another one. */
static attn_status check_settings(const attn_params *p, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    const int by_offset = p->alignment == ATTN_ALIGN_OFFSET,
              has_cells = m->bitmap || m->row_offsets;
    const struct {
        int wrong;
        const char *name;
        int64_t value;
        const char *rest;
    } rules[] = {
        { p->kv_rows.page_size && !p->kv_rows.table && keys_held(p) > 0, "kv_rows.page_size",
          p->kv_rows.page_size, " is set, but kv_rows.table is NULL" },
        { p->recent.keys && !p->recent.ring, "recent.keys", p->recent.keys,
          " is set, but recent.ring, the rows of its k and v, is 0" },
        { p->window_left < -1, "window_left", p->window_left, " must be -1 (unbounded) or more" },
        { p->window_right < -1, "window_right", p->window_right,
          " must be -1 (unbounded) or more" },
        { by_offset && !p->q_offset, "alignment", p->alignment,
          " is ATTN_ALIGN_OFFSET, but q_offset is NULL" },
        { !by_offset && p->q_offset, "alignment", p->alignment,
          " must be ATTN_ALIGN_OFFSET (2) when q_offset is given" },
        { has_cells && !m->block_q, "block_mask.block_q", 0, " must be at least 1" },
        { has_cells && !m->block_k, "block_mask.block_k", 0, " must be at least 1" },
        { m->block_q && !has_cells, "block_mask.block_q", m->block_q,
          " is set, but neither bitmap nor row_offsets is given" },
        { m->block_k && !has_cells, "block_mask.block_k", m->block_k,
          " is set, but neither bitmap nor row_offsets is given" },
        { p->part.continued && !(p->part.keys && p->partial), "part.continued", p->part.continued,
          " needs part.keys and partial" },
        { p->insight.top && !p->insight.top_key && !p->insight.top_prob, "insight.top",
          p->insight.top, " is set, but insight.top_key and insight.top_prob are NULL" },
        { !p->insight.top && (p->insight.top_key || p->insight.top_prob), "insight.top", 0,
          " must be at least 1 when insight.top_key or insight.top_prob is given" },
        { p->insight.top && p->seq_len_kv > INT32_MAX, "seq_len_kv", p->seq_len_kv,
          " exceeds 2^31 - 1, and insight.top_key has 32 bits" },
        { p->insight.mass && !p->insight.mass_keys, "insight.mass_keys", 0,
          " must be at least 1 when insight.mass is given" },
        { p->insight.mass_keys && !p->insight.mass, "insight.mass_keys", p->insight.mass_keys,
          " is set, but insight.mass is NULL" },
        { p->insight.mass_rows && !p->insight.mass, "insight.mass_rows", p->insight.mass_rows,
          " is set, but insight.mass is NULL" },
    };
    int r = 0;
    while (r < COUNT_OF(rules) && !rules[r].wrong)
        r++;
    if (r == COUNT_OF(rules))
        return ATTN_OK;
    return bad_field(why, ATTN_ERR_ARG, rules[r].name, rules[r].value, rules[r].rest);
}

static attn_status check_scales(const attn_params *p, text *why)
{
    const attn_status status = check_scales_given("k", p->k.dtype, &p->k_scales, why);
    return status ? status : check_scales_given("v", p->v.dtype, &p->v_scales, why);
}

/* check_limits checks what one field allows another one to be. */
static attn_status check_limits(const attn_params *p, text *why)
{
    const attn_part *part = &p->part;
    if (p->cu_seqlens_q && !p->cu_seqlens_kv && !p->kv_len)
        return bad(why, ATTN_ERR_ARG,
                   "cu_seqlens_q is given, but neither cu_seqlens_kv (packed keys) nor kv_len");
    if (p->shared_keys > p->seq_len_kv)
        return bad_numbers(why, ATTN_ERR_ARG, "shared_keys (#) must be at most seq_len_kv (#)",
                           NUMBERS(p->shared_keys, p->seq_len_kv));
    if (part->rows && part->row_begin + part->row_count > p->seq_len_q)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "part.row_begin (#) + part.row_count (#) must be at most seq_len_q (#)",
                           NUMBERS(part->row_begin, part->row_count, p->seq_len_q));
    if (part->keys && part->key_begin + part->key_count > p->seq_len_kv)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "part.key_begin (#) + part.key_count (#) must be at most seq_len_kv (#)",
                           NUMBERS(part->key_begin, part->key_count, p->seq_len_kv));
    return ATTN_OK;
}

/* check_support refuses what has a meaning, but is not built. */
static attn_status check_support(const attn_params *p, text *why)
{
    if (p->integer && !storages[p->k.dtype].unpack)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "integer", p->integer,
                         " needs k.dtype 5 for q8_0, 6 for q5_0, 7 for q4_0 or 8 for i8");
    if ((p->partial || p->part.keys) && p->logits.data && p->logits.stage == ATTN_LOGITS_SOFTMAX)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "logits.stage", p->logits.stage,
                         " (probabilities) needs all keys: not possible with partial or part.keys");
    if (p->partial && (has_insight(p) || p->insight.mass))
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "partial", p->partial,
                         " is set: raw states hold no insight");
    if (p->recent.keys && (p->impl == ATTN_IMPL_NAIVE || wants_pairs(p)))
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "recent.keys", p->recent.keys,
                         wants_pairs(p) ? " is set: logits and mass need one version of each key"
                                        : " is set: impl naive reads one version of each key");
    if (has_skip(p) && p->impl == ATTN_IMPL_NAIVE)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " (naive) takes all keys: skip.below must be 0");
    if (!p->part.rows && !p->part.keys)
        return ATTN_OK;
    if (p->impl == ATTN_IMPL_NAIVE)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " (naive) takes no part of a call");
    return refuse_fields(p, BY_PART, "a part of a call", why);
}

/* check_whole_numbers wants scales of whole numbers to go to queries or to logits, not to both. */
static attn_status check_whole_numbers(const attn_params *p, text *why)
{
    const attn_scales *x = &p->k_scales;
    if (!p->integer || !has_scales(p->k.dtype))
        return ATTN_OK;
    if (p->head_dim % UNIT)
        return bad_field(why, ATTN_ERR_ARG, "head_dim", p->head_dim,
                         " must be a multiple of 32 where integer is set");
    if (x->stride_dim && (x->stride_seq || (p->kv_rows.page_size && x->stride_batch)))
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "integer", p->integer,
                         " needs k_scales that all channels or all keys of a head share: set "
                         "stride_dim, or stride_seq (with pages also stride_batch), to "
                         "ATTN_STRIDE_BROADCAST");
    return ATTN_OK;
}

static attn_status check_units(const attn_params *p, text *why)
{
    const char *const own = p->head_dim_v == p->head_dim ? "head_dim" : "head_dim_v";
    attn_status status = check_whole_units("k", &p->k, "head_dim", p->head_dim, why);
    status = status ? status : check_whole_units("v", &p->v, own, p->head_dim_v, why);
    return status ? status : check_whole_numbers(p, why);
}

/* check_continued wants the keys of each sequence with rows to lie in one chunk. */
static attn_status check_continued(const attn_params *p, text *why)
{
    int64_t b;
    for (b = 0; p->part.continued && b < kinds_of(p); b++) {
        const sequence s = sequence_of(p, b);
        const int64_t first = s.key_base + s.key_from, end = s.key_base + s.key_to;
        if (s.row_from == s.row_to || first >= end || first / ATTN_CHUNK == (end - 1) / ATTN_CHUNK)
            continue;
        return bad_numbers(why, ATTN_ERR_ARG,
                           "part.continued: keys n (#) to # of sequence b (#) must lie in one "
                           "chunk, between two multiples of 1024",
                           NUMBERS(first, end - 1, b));
    }
    return ATTN_OK;
}

static attn_status check_lengths_of(const attn_params *p, int64_t b, text *why)
{
    const int64_t keys = kv_capacity(p, b), begin = entry32(p->kv_begin, b, 0);
    const struct {
        const char *name;
        const int32_t *array;
        int64_t most;
    } rules[] = { { "q_len", p->q_len, q_capacity(p, b) },
                  { "kv_begin", p->kv_begin, keys },
                  { "kv_len", p->kv_len, keys - begin } };
    int r;
    for (r = 0; r < COUNT_OF(rules); r++) {
        const int64_t value = entry32(rules[r].array, b, 0);
        if (value < 0 || value > rules[r].most)
            return bad_limit(why, rules[r].name, b, value, rules[r].most);
    }
    return ATTN_OK;
}

static attn_status check_lengths(const attn_params *p, text *why)
{
    const int64_t n = p->batch;
    const int given = p->q_len || p->kv_begin || p->kv_len;
    int64_t b;
    attn_status status = check_cu_seqlens("cu_seqlens_q", p->cu_seqlens_q, n, p->seq_len_q, why);
    if (!status)
        status = check_cu_seqlens("cu_seqlens_kv", p->cu_seqlens_kv, n, p->seq_len_kv, why);
    for (b = 0; given && b < n && !status; b++)
        status = check_lengths_of(p, b, why);
    return status;
}

/* check_table wants the pages that hold the keys in use of one sequence to be there. */
static attn_status check_table(const attn_params *p, const sequence *s, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    key_place at = key_at(p, s, s->key_from);
    int64_t j = s->key_from + at.left;
    while (at.entry >= 0 && at.entry < rows->num_pages && j < s->key_to) {
        next_place(p, s, &at);
        j += at.left;
    }
    if (at.entry >= 0 && at.entry < rows->num_pages)
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "kv_rows.table[#] (#) must be from 0 to num_pages (#) - 1",
                       NUMBERS(at.table_entry, at.entry, rows->num_pages));
}

/* check_sequence_rows wants the rows of one sequence inside the ring and in pages that exist. */
static attn_status check_sequence_rows(const attn_params *p, const sequence *s, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    const int64_t begin = entry32(rows->begin, s->b, 0);
    const int64_t end = s->kv_row - begin + s->key_to; /* of its rows, from that of `begin` on */
    if (begin < 0 || (rows->ring && begin >= rows->ring))
        return bad_entry(why, "kv_rows.begin", s->b, begin,
                         " must be at least 0 and below kv_rows.ring");
    if (s->key_from >= s->key_to)
        return ATTN_OK;
    if (rows->ring && end > rows->ring)
        return bad_numbers(why, ATTN_ERR_ARG,
                           p->part.keys
                               ? "kv_rows.ring (#) is below the rows up to the last key in use of "
                                 "sequence b (#), #"
                               : "kv_rows.ring (#) is below kv_begin + kv_len of sequence b (#), #",
                           NUMBERS(rows->ring, s->b, end));
    return rows->page_size ? check_table(p, s, why) : ATTN_OK;
}

static attn_status check_sequences(const attn_params *p, text *why)
{
    attn_status status = ATTN_OK;
    int64_t b;
    for (b = 0; is_scattered(p) && b < p->batch && !status; b++) {
        const sequence s = sequence_of(p, b);
        status = check_sequence_rows(p, &s, why);
    }
    return status;
}

/* check_tensors wants the tensors that the call reads to be there. */
static attn_status check_tensors(const attn_params *p, text *why)
{
    const int has_keys = keys_held(p) > 0;
    if (!p->q.data)
        return bad(why, ATTN_ERR_ARG, "q.data is NULL");
    if (has_keys && !p->k.data)
        return bad(why, ATTN_ERR_ARG, "k.data is NULL");
    if (has_keys && wants_values(p) && !p->v.data)
        return bad(why, ATTN_ERR_ARG, "v.data is NULL");
    if (has_keys && p->recent.keys && !p->recent.k.data)
        return bad(why, ATTN_ERR_ARG, "recent.k.data is NULL");
    if (has_keys && p->recent.keys && wants_values(p) && !p->recent.v.data)
        return bad(why, ATTN_ERR_ARG, "recent.v.data is NULL");
    return ATTN_OK;
}

/* check_held wants the ring of a sequence to hold what the first row that reads from it, which reads the
 * oldest, needs. */
COLD static attn_status check_held(const attn_params *p, const range_list *ranges,
                                   const sequence *s, text *why)
{
    const int64_t end = s->key_base + s->kv_len, last = end - p->recent.ring;
    const int64_t begin = p->recent.begin ? max64(p->recent.begin[s->b], last) : last;
    int64_t row = s->row_from, lo, hi, first = 0;
    for (; row < s->row_to; row++) {
        visible_range(ranges, p, s, row + s->offset, &lo, &hi);
        first = max64(lo, recent_from(p, row + s->offset));
        if (first < hi)
            break;
    }
    first += s->key_base;
    if (row == s->row_to || begin <= first)
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "recent: the first row of sequence b (#) reads keys n from # on, but the "
                       "ring, of # rows, has those from # on",
                       NUMBERS(s->b, first, p->recent.ring, begin));
}

/* check_recent wants each sequence to have an entry and what it reads of it. */
COLD static attn_status check_recent(const attn_params *p, text *why)
{
    const range_list ranges = ranges_of(p);
    attn_status status = ATTN_OK;
    int64_t b;
    for (b = 0; p->recent.keys && b < p->batch && !status; b++) {
        const int64_t entry = entry32(p->recent.entries, b, b);
        const sequence s = sequence_of(p, b);
        if (p->recent.entries && (entry < 0 || entry >= p->recent.num_entries))
            return bad_limit(why, "recent.entries", b, entry, p->recent.num_entries - 1);
        status = check_held(p, &ranges, &s, why);
    }
    return status;
}

static attn_status check_outputs(const attn_params *p, text *why)
{
    int64_t r;
    if (p->partial && !(p->state.m && p->state.l && p->state.o))
        return bad(why, ATTN_ERR_ARG, "partial is set, but state.m, state.l or state.o is NULL");
    if (!wants_rows(p) && !wants_pairs(p))
        return bad(
            why, ATTN_ERR_ARG,
            "o.data is NULL, and none of lse, stats, insight, partial and logits is asked for");
    for (r = 0; p->logits.data && p->logits.rows && r < p->logits.num_rows; r++)
        if (p->logits.rows[r] < 0 || p->logits.rows[r] >= p->seq_len_q)
            return bad_entry(why, "logits.rows", r, p->logits.rows[r],
                             " must be a row from 0 to seq_len_q - 1");
    if (p->logits.data && !p->logits.rows && p->logits.num_rows > rows_held(p))
        return bad_field(why, ATTN_ERR_ARG, "logits.num_rows", p->logits.num_rows,
                         " exceeds the rows of the call or part, and logits.rows is NULL");
    return ATTN_OK;
}

static attn_status check_tree(const attn_params *p, text *why)
{
    int64_t b, i;
    for (b = 0; p->tree_parents && b < p->batch; b++) {
        const sequence s = sequence_of(p, b);
        const int64_t at = p->cu_seqlens_q ? s.q_row : b * p->tree_stride;
        for (i = 0; i < s.q_len; i++) {
            const int32_t parent = p->tree_parents[at + i];
            if (parent < -1 || parent >= i)
                return bad_entry(why, "tree_parents", at + i, parent,
                                 " must be -1 or an earlier node of its tree");
        }
    }
    return ATTN_OK;
}

/* check_offsets checks the offsets of `rows` rows of cells, of which none has more than `columns`. */
static attn_status check_offsets(const int32_t *offsets, int64_t first, int64_t rows,
                                 int64_t columns, text *why)
{
    int64_t r;
    if (rows > 0 && offsets[first] < 0)
        return bad_entry(why, "block_mask.row_offsets", first, offsets[first],
                         " must be at least 0");
    for (r = first; r < first + rows; r++) {
        const int64_t begin = offsets[r], end = offsets[r + 1];
        if (end < begin)
            return bad_after(why, "block_mask.row_offsets", r + 1, end,
                             " is below the entry before it", begin);
        if (end - begin > columns)
            return bad_entry(why, "block_mask.row_offsets", r + 1, end,
                             " leaves its row more blocks than seq_len_kv has");
    }
    return ATTN_OK;
}

/* check_csr_rows checks a head. No column is read before all offsets are right: their last one says
 * how many columns there are. */
static attn_status check_csr_rows(const attn_params *p, int64_t first, int64_t q_len, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = q_len > 0 ? (q_len - 1) / m->block_q + 1 : 0;
    const int64_t columns = p->seq_len_kv ? (p->seq_len_kv - 1) / m->block_k + 1 : 0;
    const attn_status status = check_offsets(m->row_offsets, first, rows, columns, why);
    int64_t r, c;
    for (r = first; r < first + rows && !status; r++)
        for (c = m->row_offsets[r]; c < m->row_offsets[r + 1]; c++) {
            if (m->columns[c] < 0 || m->columns[c] >= columns)
                return bad_limit(why, "block_mask.columns", c, m->columns[c], columns - 1);
            if (c > m->row_offsets[r] && m->columns[c] <= m->columns[c - 1])
                return bad_after(why, "block_mask.columns", c, m->columns[c],
                                 " must be above the entry before it", m->columns[c - 1]);
        }
    return status;
}

static attn_status check_csr(const attn_params *p, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t entries = !m->row_offsets ? 0 : m->csr_stride_batch ? p->batch : 1;
    const int64_t heads = m->csr_stride_head ? p->num_heads_q : 1;
    attn_status status = ATTN_OK;
    const int64_t rows = longest(p->cu_seqlens_q, p->batch, p->seq_len_q);
    int64_t b, h;
    for (b = 0; b < entries && !status; b++)
        for (h = 0; h < heads && !status; h++)
            status = check_csr_rows(p, b * m->csr_stride_batch + h * m->csr_stride_head, rows, why);
    return status;
}

/* check_list wants the numbers of one list to ascend, and entries below 0 to be its last. */
static attn_status check_list(const attn_params *p, key_numbers list, text *why)
{
    const int64_t first = list.at - p->key_list.data;
    int64_t k;
    for (k = 0; k < list.count; k++) {
        const int64_t value = list.at[k], before = k ? list.at[k - 1] : -1;
        if (value >= p->seq_len_kv)
            return bad_limit(why, "key_list.data", first + k, value, p->seq_len_kv - 1);
        if (k && before < 0 && value >= 0)
            return bad_after(why, "key_list.data", first + k, value,
                             " must be below 0, too, behind the entry before it", before);
        if (k && value >= 0 && value <= before)
            return bad_after(why, "key_list.data", first + k, value,
                             " must be above the entry before it", before);
    }
    return ATTN_OK;
}

/* check_lists looks at the lists of rows in use. */
static attn_status check_lists(const attn_params *p, text *why)
{
    attn_status status = ATTN_OK;
    int64_t b, head, i;
    for (b = 0; p->key_list.data && b < p->batch && !status; b++) {
        const sequence s = sequence_of(p, b);
        for (head = 0; head < p->num_heads_kv && !status; head++)
            for (i = 0; i < s.q_len && !status; i += rows_of_list(p))
                status = check_list(p, whole_list(p, b, head, i), why);
    }
    return status;
}

static attn_status check_interfaces(const attn_params *p, text *why)
{
    if (p->kernels && p->kernels->abi != ATTN_KERNEL_ABI)
        return bad_field(why, ATTN_ERR_ARG, "kernels->abi", p->kernels->abi,
                         " is not that of this library (ATTN_KERNEL_ABI)");
    if (p->kernels &&
        (p->kernels->rows < 4 || p->kernels->rows > ATTN_KERNEL_MAX_ROWS || p->kernels->rows % 4))
        return bad_field(why, ATTN_ERR_ARG, "kernels->rows", p->kernels->rows,
                         " must be a multiple of 4 from 4 to 64");
    if (p->kernels && p->kernels->pack_values && !p->fast)
        return bad(why, ATTN_ERR_ARG,
                   "kernels round what they multiply to bf16, which fast must allow");
    if (p->backend && p->backend->abi != ATTN_KERNEL_ABI)
        return bad_field(why, ATTN_ERR_ARG, "backend->abi", p->backend->abi,
                         " is not that of this library (ATTN_KERNEL_ABI)");
    return ATTN_OK;
}

/* Each of these checks relies on those before it. */
typedef attn_status (*check_fn)(const attn_params *p, text *why);

/* These look at the parameters as they are given, */
static const check_fn checks_of_fields[] = { check_sizes,           check_numbers, check_interfaces,
                                             check_pairs_of_fields, check_limits,  check_settings,
                                             check_scales,          check_support };
/* these at lengths and positions, once sizes and strides are resolved, */
static const check_fn checks_of_lengths[] = { check_units, check_lengths, check_continued };
/* and these at what a run reads and writes, but for the places of keys. */
static const check_fn checks_of_data[] = { check_tensors, check_recent, check_outputs,
                                           check_tree,    check_csr,    check_lists };

/* end_of_use is an end_of_use_fn for calls. Pages and rings count whole. */
static int64_t end_of_use(const attn_params *p, int axis, int64_t count, int64_t b)
{
    sequence s;
    if (axis == AXIS_KEY && is_scattered(p))
        return count;
    s = sequence_of(p, b);
    switch (axis) {
    case AXIS_ROW:
        return s.row_from < s.row_to ? s.q_row + s.row_to : 0;
    case AXIS_KEY:
        return s.key_from < s.key_to ? s.kv_row + s.key_to : 0;
    case AXIS_SEQ_Q:
    case AXIS_LONGEST_Q:
        return s.row_to;
    case AXIS_SEQ_KV:
    case AXIS_LONGEST_KV:
        return s.column + s.key_to;
    default:
        return count;
    }
}

/* leave_out_unused makes a set count only rows and keys that sequences use. */
static void leave_out_unused(const attn_params *p, array_set *s)
{
    s->p = p;
    s->end_of_use = end_of_use;
}

/* check_call_apart wants what a call writes, and `memory` unless it is NULL, to lie apart from
 * everything else. The call writes results, or raw states with p.partial. */
OWN_FRAME static attn_status check_call_apart(const attn_params *p, const area *memory, text *why)
{
    const call_axes x = axes_in_use(p);
    array_set s = { .table = call_fields,
                    .n = COUNT_OF(call_fields),
                    .base = p,
                    .x = &x,
                    .written = p->partial ? OUTPUT_STATE : OUTPUT_RESULT };
    leave_out_unused(p, &s);
    return check_written(&s, 1, memory, why);
}

static attn_status run_checks(const check_fn *checks, int n, const attn_params *p, text *why)
{
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < n && !status; i++)
        status = checks[i](p, why);
    return status;
}

/* check_arrays_given looks at arrays, once the other checks have passed, but not at where a cache has keys:
 * check_sequences does. */
static attn_status check_arrays_given(const attn_params *p, text *why)
{
    return is_empty(p) ? ATTN_OK : run_checks(checks_of_data, COUNT_OF(checks_of_data), p, why);
}

/* validate turns *in into *pr, or says what is wrong. With need_data it looks at arrays, too. */
OWN_FRAME static attn_status validate(const attn_params *in, problem *pr, int need_data, text *why)
{
    attn_params *p = &pr->p;
    attn_status status;
    if (!in)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    *p = *in;
    pr->size_query = pr->gathered = 0;
    status = run_checks(checks_of_fields, COUNT_OF(checks_of_fields), p, why);
    if (!status)
        status = check_output_fields(call_fields, COUNT_OF(call_fields), p, why);
    if (status)
        return status;
    resolve_sizes(p);
    status = resolve_layouts(p, why);
    if (!status)
        status = run_checks(checks_of_lengths, COUNT_OF(checks_of_lengths), p, why);
    if (!status && need_data)
        status = check_arrays_given(p, why);
    if (!status && need_data && !is_empty(p))
        status = check_sequences(p, why);
    if (!status)
        resolve_numbers(pr);
    return status;
}

/* src/insight.c - insight: the entropy of rows and their likeliest keys, kept beside m, l and o.
 *
 * A state with insight goes on behind o with its tail. With an entropy that begins with
 *
 *     t      [rows]        sum of 2^(s - m) * (s - m) over the keys that l holds
 *
 * whose rules are in docs/canon.md; it moves with m as o does, but for l * (old m - new m). Then come
 *
 *     logits [top][rows]   the largest so far, descending, -inf where there are fewer,
 *     keys   [top][rows]   and the keys, as int32_t; of equal logits the lower key comes first.
 *
 * Logits are canonical, so these are the same in whatever order keys come. Loops are portable code:
 * products and sums are rounded one by one, and compilers make vectors of them.
 */

#define EXP2_LEAST (-126.0f) /* exp2 of less is +0. */

/* insight_rows counts the rows of a tail, and state_rows those of a state. */
static int64_t insight_rows(const attn_params *p)
{
    return (p->insight.entropy != NULL) + 2 * (int64_t)p->insight.top;
}

static int64_t state_rows(const attn_params *p)
{
    return plus(p->head_dim_v, 2 + insight_rows(p) + has_skip(p));
}

/* ---- the likeliest keys */

/* A ranking is that of one lane; its entries are `step` apart. */
typedef struct ranking {
    float *logit;
    int32_t *key;
    int step, n;
} ranking;

static ranking ranking_of(const tile *t, float *tail, int r)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows, n = p->insight.top;
    float *const logits = tail + (p->insight.entropy ? rows : 0);
    const ranking of = { logits + r, (int32_t *)(void *)(logits + n * rows) + r, rows, n };
    return of;
}

/* rank_key puts a key into a ranking; one that does not belong to it falls out at the end. */
static void rank_key(const ranking *of, float logit, int32_t key)
{
    int at = of->n * of->step;
    for (; at > 0; at -= of->step) {
        const float other = of->logit[at - of->step];
        const int32_t before = of->key[at - of->step];
        if (other > logit || (other == logit && before < key))
            break;
        if (at < of->n * of->step) {
            of->logit[at] = other;
            of->key[at] = before;
        }
    }
    if (at == of->n * of->step)
        return;
    of->logit[at] = logit;
    of->key[at] = key;
}

static int is_ranked(const ranking *of, int32_t key)
{
    int k = 0;
    while (k < of->n * of->step && (of->key[k] != key || is_neg_inf(of->logit[k])))
        k += of->step;
    return k < of->n * of->step;
}

/* rank_block takes in n logits of each lane, those of keys from j on. Few blocks hold one that a row
 * still ranks: their maxima tell. */
static void rank_block(tile *t, float *tail, const float *s, int n, attn_lanes lanes, int64_t j)
{
    const int rows = t->pl->rows;
    const ranking first = ranking_of(t, tail, 0);
    const float *const least = first.logit + (first.n - 1) * rows;
    float *const high = t->lane_values + 2 * rows;
    int r, k;
    memcpy(high, least, (size_t)rows * sizeof *high);
    t->pl->kernels->maximum(s, n, high);
    for (r = lanes.begin; r < lanes.end; r++) {
        const ranking of = { first.logit + r, first.key + r, rows, first.n };
        for (k = 0; high[r] > least[r] && k < n; k++)
            if (s[k * rows + r] > least[r])
                rank_key(&of, s[k * rows + r], (int32_t)(j + k));
    }
}

/* merge_rankings makes `upper` those of both. */
static void merge_rankings(tile *t, float *lower, float *upper)
{
    int r, k;
    for (r = 0; r < t->pl->rows; r++) {
        const ranking from = ranking_of(t, lower, r), to = ranking_of(t, upper, r);
        for (k = 0; k < from.n * from.step && !is_neg_inf(from.logit[k]); k += from.step)
            if (!is_ranked(&to, from.key[k]))
                rank_key(&to, from.logit[k], from.key[k]);
    }
}

/* ---- entropy */

/* shift_entropy makes t relative to new maxima: t += l * (from - to) for l and t of maxima `from`. It is
 * not for lanes whose maximum stays or whose state is empty. */
static void shift_entropy(float *t, const float *l, const float *from, const float *to, int n)
{
    int r;
    for (r = 0; r < n; r++) {
        const float d = from[r] - to[r], moved = l[r] * d;
        if (d != 0.0f && l[r] != 0.0f)
            t[r] = t[r] + moved;
    }
}

/* keep_sums keeps m and l from what changes them. */
static void keep_sums(tile *t, const float *m, const float *l)
{
    const size_t bytes = (size_t)t->pl->rows * sizeof *m;
    memcpy(t->lane_values, m, bytes);
    memcpy(t->lane_values + t->pl->rows, l, bytes);
}

/* raise_entropy follows maxima that rose to m within a chunk, by alpha, from those that keep_sums has. */
static void raise_entropy(tile *t, float *tail, const float *m, const float *alpha)
{
    const int rows = t->pl->rows;
    int r;
    if (!t->pr->p.insight.entropy)
        return;
    shift_entropy(tail, t->lane_values + rows, t->lane_values, m, rows);
    for (r = 0; r < rows; r++)
        tail[r] = tail[r] * alpha[r];
}

/* weigh_strip adds n keys of `width` lanes, 1, 4 or 8, to t. A key with p = +0, dead or not, adds a zero. */
KERNEL void weigh_strip(int width, float *RESTRICT t, const float *RESTRICT s,
                        const float *RESTRICT p, const float *m, int n, int rows)
{
    float from[8], sum[8];
    int j, r;
    for (r = 0; r < width; r++) {
        from[r] = m[r] == NEG_INF ? 0.0f : m[r];
        sum[r] = t[r];
    }
    for (j = 0; j < n; j++, s += rows, p += rows)
        for (r = 0; r < width; r++) {
            float x = s[r] - from[r];
            x = x > EXP2_LEAST ? x : EXP2_LEAST;
            x = p[r] * x;
            sum[r] = sum[r] + x;
        }
    for (r = 0; r < width; r++)
        t[r] = sum[r];
}

/* The least lanes of a strip, as exp_block weighs whole groups of them. */
#define LEAST_STRIP (HAS_VECTORS ? 4 : 1)

/* weigh_lanes adds a block whose logits are in s and which is weighed. */
KERNEL void weigh_lanes(float *t, const float *s, const attn_exp *e, int rows)
{
    int r = e->lanes.begin / LEAST_STRIP * LEAST_STRIP;
    for (; HAS_VECTORS && r + 4 < e->lanes.end; r += 8)
        weigh_strip(8, t + r, s + r, e->s + r, e->m + r, e->n, rows);
    for (; r < e->lanes.end; r += LEAST_STRIP)
        weigh_strip(LEAST_STRIP, t + r, s + r, e->s + r, e->m + r, e->n, rows);
}

static void weigh_plain(float *t, const float *s, const attn_exp *e, int rows)
{
    weigh_lanes(t, s, e, rows);
}

#ifdef FMA_SECOND_BUILD
FMA_TARGET static void weigh_wide(float *t, const float *s, const attn_exp *e, int rows)
{
    weigh_lanes(t, s, e, rows);
}
#define WEIGH_WIDE (attn_cpu_features() & ATTN_CPU_AVX2 ? weigh_wide : weigh_plain)
#else
#define WEIGH_WIDE weigh_plain
#endif

/* add_entropy adds a block whose logits keep_logits has, and which is weighed. */
static void add_entropy(tile *t, float *tail, const attn_exp *e)
{
    if (t->pr->p.insight.entropy)
        WEIGH_WIDE(tail, t->x_tile, e, t->pl->rows);
}

/* ---- both */

/* begin_insight begins a tail. Where an earlier one is given (else NULL), its ranking goes on, and few
 * keys of later chunks get into it; a key that comes twice counts once. */
static void begin_insight(const tile *t, float *tail, const float *earlier)
{
    const int rows = t->pl->rows, entropy = t->pr->p.insight.entropy != NULL;
    const int count = t->pr->p.insight.top * rows;
    float *const logits = tail + entropy * rows;
    int r;
    for (r = 0; r < entropy * rows; r++)
        tail[r] = 0.0f;
    for (r = 0; r < count && !earlier; r++)
        logits[r] = NEG_INF;
    if (earlier)
        memcpy(logits, earlier + entropy * rows, (size_t)(2 * count) * sizeof *logits);
}

/* keep_logits takes in n logits of each lane, those of keys from j on, before they become
 * probabilities. */
static void keep_logits(tile *t, float *tail, const float *s, int n, attn_lanes lanes, int64_t j)
{
    if (t->pr->p.insight.top)
        rank_block(t, tail, s, n, lanes, j);
    if (t->pr->p.insight.entropy)
        memcpy(t->x_tile, s, (size_t)(n * t->pl->rows) * sizeof *s);
}

/* merge_insight prepares the merge of two states [m][l][o] with these tails, and returns how many rows
 * behind o join it. */
static int merge_insight(tile *t, const float *lower, const float *upper, float *lower_tail,
                         float *upper_tail)
{
    const int rows = t->pl->rows;
    float *const m = t->lane_values;
    int r;
    if (t->pr->p.insight.top)
        merge_rankings(t, lower_tail, upper_tail);
    if (!t->pr->p.insight.entropy)
        return 0;
    for (r = 0; r < rows; r++)
        m[r] = lower[r] < upper[r] ? upper[r] : lower[r];
    shift_entropy(lower_tail, lower + rows, lower, m, rows);
    shift_entropy(upper_tail, upper + rows, upper, m, rows);
    return 1;
}

/* row_entropy gives the entropy of a row in nats. m and l are those of the keys, which have t; the sink
 * has made them m_all and l_all. */
static float row_entropy(float m, float l, float t, float m_all, float l_all)
{
    const float d = m - m_all, inverse = inverse_sum(l_all == 0.0f, l_all);
    float h = log2_canon(l_all), x;
    if (l_all == 0.0f)
        return 0.0f;
    if (d != 0.0f) { /* There is a sink. */
        const float w = exp2_canon(d);
        x = l * d;
        t = t + x;
        t = t * w;
        l = l * w;
    }
    h = l * h;
    h = h - t;
    h = h * inverse;
    h = h * LN2;
    return h < 0.0f ? 0.0f : h + 0.0f;
}

/* write_ranking writes the likeliest keys of a row, row `row` of all. */
static void write_ranking(const tile *t, const ranking *of, int64_t row, float m, float l)
{
    const attn_insight *to = &t->pr->p.insight;
    const float from = is_neg_inf(m) ? 0.0f : m, inverse = inverse_sum(l == 0.0f, l);
    int k;
    for (k = 0; k < of->n; k++) {
        const float x = of->logit[k * of->step] - from, p = exp2_canon(x) * inverse;
        const int none = is_neg_inf(of->logit[k * of->step]);
        if (to->top_key)
            to->top_key[row * of->n + k] =
                none ? -1 : (int32_t)(t->s.column + of->key[k * of->step]);
        if (to->top_prob)
            store_f32(to->top_prob, row * of->n + k, none ? 0.0f : p);
    }
}

/* write_insight writes what finished rows have, by m and l after the sink; keep_sums has those before. */
static void write_insight(const tile *t, const float *m, const float *l, float *tail)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int r;
    for (r = 0; r < rows; r++) {
        const lane *at = &t->lanes[r];
        const int64_t row = at->used ? state_row(p, &t->s, at->head, at->i) : 0;
        const ranking of = ranking_of(t, tail, r);
        if (!at->used)
            continue;
        if (p->insight.entropy)
            store_f32(
                p->insight.entropy, row,
                row_entropy(t->lane_values[r], t->lane_values[rows + r], tail[r], m[r], l[r]));
        write_ranking(t, &of, row, m[r], l[r]);
    }
}

/* src/plan.c - the plan: a pure function of problem and kernel set, shared by the workspace query and the run.
 *
 * A run in too small a workspace takes the small plan, which needs least.
 *
 *     workspace = | alignment | call | shared by the workers | slot 0 | slot 1 | ...
 *
 * Shared are the logits of all heads (naive_whole), parts of the keys (split.c) or the states of a
 * prefix (prefix.c).
 *
 * One slot belongs to one worker. Its size depends on head_dim and tile shape only: the merge tree is
 * given room for 2^20 keys at least, so that memory is constant up to that length. But where row tiles
 * share copies of K and V, memory follows their number and the actual length, within item_bytes of the
 * tuning, 1 MiB.
 */

#define TREE_KEYS ((int64_t)1 << 20)
#define ITEM_TILES 12

/* item_rows counts the rows of one item of the first list. */
static int64_t item_rows(const plan *pl)
{
    return (int64_t)pl->rows * pl->item_tiles;
}

/* items_of_list counts the items with the rows that share a list of keys. */
static int64_t items_of_list(const problem *pr, const plan *pl)
{
    return ceil_div(lanes_of_list(pr), item_rows(pl));
}

static void plan_items(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    const int varlen = p->cu_seqlens_q != NULL;
    const int64_t group = pr->group;
    /* Tile t of sequence b is number floor(cu[b] * group / rows) + b + t, which needs no table. */
    if (varlen)
        pl->tiles = times(p->seq_len_q, group) / item_rows(pl) + p->batch;
    else if (pl->gathered)
        pl->tiles = times(ceil_div(p->seq_len_q, rows_of_list(p)), items_of_list(pr, pl));
    else
        pl->tiles = ceil_div(times(rows_held(p), group), item_rows(pl));
    pl->items = times(times(varlen ? 1 : p->batch, p->num_heads_kv), pl->tiles);
    if (pl->impl == ATTN_IMPL_NAIVE)
        pl->items = times(p->batch, p->num_heads_q);
    if (wants_pairs(p) && !wants_rows(p) && !pr->size_query) /* In a query o may come later. */
        pl->items = 0;
    pl->logits_tiles = ceil_div(times(p->logits.num_rows, group), pl->rows);
    pl->logits_items = 0;
    if (p->logits.data)
        pl->logits_items = times(times(p->batch, p->num_heads_kv), pl->logits_tiles);
    pl->mass_items = p->insight.mass ? times(p->batch, p->num_heads_kv) : 0;
}

/* row_aliases tells whether f32 rows lie a multiple of 1 KiB apart: such rows compete for an eighth
 * or less of an L1 cache, which costs up to 20 % of the speed. */
static int row_aliases(const attn_tensor *x, int64_t dim)
{
    return x->stride_seq && x->stride_seq != dim &&
           x->stride_seq % (1024 / (int)sizeof(float)) == 0;
}

/* plan_copy lets rows that are not f32 be widened once per item. f32 rows are copied, too, if they
 * alias or do not lie one after the other. Rows of the copy are an odd number of cache lines apart. */
static void plan_copy(const attn_params *p, plan *pl, int which, int64_t dim)
{
    const attn_tensor *const x[VERSIONS] = { which == KEYS ? &p->k : &p->v,
                                             which == KEYS ? &p->recent.k : &p->recent.v };
    int version;
    for (version = 0; version < VERSIONS; version++)
        pl->in_place[version][which] =
            x[version]->dtype == ATTN_F32 && !row_aliases(x[version], dim);
    pl->pitch[which] = 0;
    if (is_scattered(p) || p->recent.keys || pl->gathered || !pl->in_place[STORED][which])
        pl->pitch[which] = pitch_of(dim);
}

static int has_copies(const plan *pl)
{
    return pl->pitch[KEYS] || pl->pitch[VALUES] || pl->kernels->pack_values;
}

/* query_floats counts the floats of a packed query. */
static int64_t query_floats(const problem *pr, const plan *pl)
{
    const int64_t dim = pr->p.head_dim;
    if (!pl->kernels->pack_values)
        return dim;
    return pr->p.integer ? max64(dim, ATTN_ROUNDED(dim) / 2) : ATTN_ROUNDED(dim) / 2;
}

/* rounded_pitch counts the floats between rows of K for kernels that round. */
static int64_t rounded_pitch(const problem *pr)
{
    return pitch_of(ATTN_ROUNDED(pr->p.head_dim) / 2);
}

/* Kernels that round have rows of K before pl->copy[KEYS], then the panel of V, whose packs may begin before a
 * tile, and then their room. panel_place and space_place count the floats before the latter two. */
static int64_t panel_place(const problem *pr, const plan *pl)
{
    return times(pl->keys + 15, rounded_pitch(pr));
}

static int64_t space_place(const problem *pr, const plan *pl)
{
    const int64_t packs = ceil_div(pl->keys, ATTN_PANEL_KEYS) + 1;
    return plus(panel_place(pr, pl), times(packs, ATTN_PANEL_FLOATS(pr->p.head_dim_v)));
}

/* rounded_floats counts the floats of all three. */
static int64_t rounded_floats(const problem *pr, const plan *pl)
{
    if (!pl->kernels->pack_values)
        return 0;
    return plus(space_place(pr, pl), ATTN_SPACE(pl->rows, pl->keys));
}

static void plan_row_tile(const problem *pr, plan *pl)
{
    int64_t at = 0;
    pl->state_floats = times(pl->rows, state_rows(&pr->p));
    place(&at, 1, sizeof(tile));
    pl->lanes = place(&at, pl->rows, sizeof(lane));
    pl->qt = pl->qt_units = place(&at, times(pl->rows, query_floats(pr, pl)), sizeof(float));
    if (pr->p.integer && pr->p.recent.keys) /* Without recent keys there is one of them. */
        pl->qt_units = place(&at, times(pl->rows, pr->p.head_dim), sizeof(float));
    pl->scales = place(&at, pr->p.integer ? pl->rows * (pr->p.head_dim / UNIT) : 0, sizeof(float));
    pl->skips = place(&at, has_skip(&pr->p) ? 2 * pl->rows : 0, sizeof(float));
    pl->states = place(&at, times(pl->state_slots, pl->state_floats), sizeof(float));
    pl->row_tile_bytes = at;
}

static void plan_slot(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pl->rows, keys = pl->keys, dim = max64(p->head_dim, p->head_dim_v);
    /* There is one more where a tile begins inside a block. Each listed key may have a block. */
    const int64_t blocks = pl->gathered ? keys : keys / ATTN_BLOCK + 1;
    /* At worst each key is a run, and each row where a mask or a bias is asked for. */
    const int scattered = is_scattered(p) || p->recent.keys || pl->gathered;
    const int64_t run_count = 2 + max64(rows, scattered ? keys : 0);
    const int own_matrix = pl->impl == ATTN_IMPL_NAIVE && !p->naive_whole;
    int64_t at = 0;
    place(&at, 1, sizeof(key_tile));
    pl->stage = place(&at, times(rows, dim), sizeof(float));
    pl->row_in = place(&at, rows, sizeof(const float *));
    pl->row_out = place(&at, rows, sizeof(float *));
    pl->s = place(&at, rows * keys, sizeof(float));
    pl->x = place(&at, p->bias.data || p->k_scales.data || p->insight.entropy ? rows * keys : 0,
                  sizeof(float));
    /* They hold factors, mu, the sums of split items, and what a block changes (insight). */
    pl->lane_values = place(&at, 3 * rows, sizeof(float));
    pl->lane_ints = place(&at, 2 * rows, sizeof(int));
    pl->alpha = place(&at, rows * blocks, sizeof(float));
    pl->blocks = place(&at, blocks, sizeof(block));
    pl->alive = place(&at, rows * ALIVE_WORDS(keys), sizeof(uint32_t));
    pl->operand_runs = place(&at, run_count, sizeof(const char *));
    pl->ahead_runs = place(&at, run_count, sizeof(const char *));
    place(&at, rounded_floats(pr, pl), sizeof(float));
    pl->copy[KEYS] = place(&at, times(keys, pl->pitch[KEYS]), sizeof(float));
    pl->copy[VALUES] = place(&at, times(keys, pl->pitch[VALUES]), sizeof(float));
    pl->matrix = place(&at, own_matrix ? pl->matrix_floats : 0, sizeof(float));
    pl->row_tiles = at;
    pl->slot_bytes = plus(at, times(pl->item_tiles, pl->row_tile_bytes));
}

/* most_item_tiles counts the row tiles of an item, which share each tile of K and V and its copy.
 * 128 rows (item_rows) keep K and V in L2. Tiles of 24 rows (AVX2) gain 2 to 3 % of the peak by it.
 * Two of 64 rows (AVX-512) gain 4 to 6 % where K and V exceed 2 MiB of L2 and L3 is far (Intel family
 * 6 model 167), and nothing on a Zen 4. A copy is worth ITEM_TILES of them. */
static int most_item_tiles(const plan *pl, int64_t rows)
{
    const int64_t tiles = ceil_div(rows, pl->rows), shared = pl->tuning.item_rows / pl->rows;
    const int64_t wanted = has_copies(pl) ? ITEM_TILES : min64(ITEM_TILES, shared);
    return pl->impl == ATTN_IMPL_TILED && !pl->small ? (int)max64(1, min64(tiles, wanted)) : 1;
}

/* tree_keys counts the keys that the merge tree has room for: 2^20 at least, so that memory does
 * not depend on the length up to there, but the actual ones where copies want many row tiles, and below
 * one chunk. */
static int64_t tree_keys(const problem *pr, const plan *pl)
{
    const int actual =
        pl->small || (has_copies(pl) && pl->item_tiles > 1) || keys_held(&pr->p) < ATTN_CHUNK;
    return actual ? pr->max_kv_len : max64(pr->max_kv_len, TREE_KEYS);
}

/* ---- dividing the keys of a row tile */

/* Each worker has this number of bytes of shared memory, at any length. */
#define SPLIT_BYTES ((int64_t)1 << 18)
#define SPLIT_BYTES_LEAST (SPLIT_BYTES / 4) /* It has this number where the slot leaves nothing. */
#define SPLIT_BYTES_MOST (4 * SPLIT_BYTES)  /* It has at most this number for large states. */
/* A state beyond 64 rows of 256 columns is large; up to there 1 MiB a worker is the limit. */
#define LARGE_STATE ((int64_t)80 << 10)
/* A worker has at least this number of items, so that none waits for long, except in divided chunks. */
#define SPLIT_ITEMS 4
/* Workers exchange the logits and probabilities of the pieces of a divided chunk, so there are fewer of
 * these (3000 to 9000 keys, two threads: this saves 4 to 10 % of the time). */
#define INSIDE_ITEMS 2
#define CHUNK_BLOCKS (ATTN_CHUNK / ATTN_BLOCK)

/* wants_split tells whether row tiles alone leave workers idle, with work in each that is worth
 * dividing. Below 2^19 elements of K and V, 2048 keys of 128, two workers with a pool of their own
 * took longer than one (1500 keys: 59 microseconds against 48; with spinning OpenMP threads 43). A
 * region of these threads costs 1 microsecond; the rest of what is lost is the way of logits and
 * probabilities from one core to the other, since a chunk is one chain of sums. */
static int wants_split(const problem *pr, const plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t keys = pl->gathered ? p->key_list.width : pr->max_kv_len;
    const int64_t work = times(keys, plus(p->head_dim, p->head_dim_v));
    return pl->impl == ATTN_IMPL_TILED && !pl->small && !pl->prefix_keys && p->num_workers > 1 &&
           !p->part.continued && pl->items > 0 &&
           pl->items < (int64_t)SPLIT_ITEMS * p->num_workers &&
           !(pl->items % p->num_workers == 0 && pl->tiles == 1 && !has_batch_arrays(p)) &&
           work >= pl->tuning.split_work;
}

/* plan_chunk lays out the memory of a chunk that is divided: its tiles of each version. */
static void plan_chunk(const problem *pr, plan *pl)
{
    split *sp = &pl->split;
    const int64_t versions = versions_of(&pr->p), keys = ATTN_CHUNK * versions;
    const int64_t blocks = CHUNK_BLOCKS * versions;
    int64_t at = 0;
    sp->s = place(&at, keys * pl->rows, sizeof(float));
    sp->alpha = place(&at, blocks * pl->rows, sizeof(float));
    sp->high = place(&at, blocks * pl->rows, sizeof(float));
    sp->blocks = place(&at, blocks, sizeof(block));
    sp->counts = place(&at, blocks, sizeof(int));
    sp->chunk_bytes = at;
}

/* split_rows counts the row tiles in all. */
static int64_t split_rows(const plan *pl)
{
    return pl->items * pl->item_tiles;
}

/* chunks_inside tells how many of the last chunks to divide, so that the others make whole rounds
 * of all workers; the last chunk is among them if it is cut short. It gives 0 where they need more
 * than `bytes` bytes. */
static int chunks_inside(const problem *pr, const plan *pl, int64_t chunks, int64_t bytes)
{
    const int64_t workers = pr->p.num_workers;
    int64_t n = pr->max_kv_len % ATTN_CHUNK != 0;
    while (n < chunks && pl->items * (chunks - n) % workers)
        n++;
    return times(n, pl->split.chunk_bytes) <= bytes ? (int)n : 0;
}

/* plan_inside makes tiles of keys and slices of V smaller, until all workers have enough. */
static void plan_inside(const problem *pr, plan *pl)
{
    split *sp = &pl->split;
    const int64_t wanted = (int64_t)INSIDE_ITEMS * pr->p.num_workers;
    const int64_t chunks = split_rows(pl) * sp->inside, dim = pr->p.head_dim_v;
    const int64_t least = max64(ATTN_BLOCK, storages[pr->p.v.dtype].unit);
    while (pl->keys > 2 * ATTN_BLOCK && chunks * (ATTN_CHUNK / pl->keys) < wanted)
        pl->keys /= 2;
    sp->tiles = ATTN_CHUNK / pl->keys * versions_of(&pr->p);
    sp->columns = ceil_div(ceil_div(dim, ceil_div(wanted, chunks)), least) * least;
    sp->slices = wants_values(&pr->p) ? ceil_div(dim, sp->columns) : 0;
}

/* split_bytes gives the shared memory for each worker, aligned: what its slot leaves of
 * worker_bytes, if it leaves anything. Where states are large, as in MLA (132 KB of 64 rows), row
 * tiles that share nothing have two parts at least (128 heads, 8192 keys of 512, two threads: 1.6
 * times the speed of one without, 1.9 with). */
static int64_t split_bytes(const problem *pr, const plan *pl, int64_t state)
{
    const int64_t left = (pl->worker_bytes - pl->slot_bytes) / ALIGNMENT * ALIGNMENT;
    const int64_t usual = left > 0 ? min64(SPLIT_BYTES, left) : SPLIT_BYTES_LEAST;
    const int64_t pairs = ceil_div(times(2 * split_rows(pl), state), pr->p.num_workers);
    if (pl->item_tiles > 1 || state <= LARGE_STATE)
        return usual;
    return max64(usual, min64(SPLIT_BYTES_MOST, aligned(pairs)));
}

/* plan_split makes parts as small as the memory allows; no parts means nothing to divide. */
static void plan_split(const problem *pr, plan *pl)
{
    split *sp = &pl->split;
    const int moved = begins_inside(&pr->p);
    const int64_t chunks = ceil_div(pr->max_kv_len, ATTN_CHUNK) + moved;
    const int64_t state = aligned(times(pl->state_floats, sizeof(float)));
    const int64_t bytes = pr->p.num_workers * split_bytes(pr, pl, state);
    int64_t parts = chunks, room;
    memset(sp, 0, sizeof *sp);
    pl->shared_bytes = 0;
    if (!wants_split(pr, pl))
        return;
    room = bytes / split_rows(pl);
    while (times(parts, state) > room && parts > 1 + moved)
        parts = ceil_div(chunks, (int64_t)1 << ++sp->level) + moved;
    plan_chunk(pr, pl);
    if (sp->level == 0 && !pl->gathered && !pr->drop_below && !has_insight(&pr->p) &&
        !has_skip(&pr->p) &&
        !pl->kernels->pack_values) /* Dropped keys and logits count in the sums, which come late. */
        sp->inside = chunks_inside(pr, pl, chunks, room - times(parts, state));
    if (times(parts, state) > room || (parts == 1 && !sp->inside))
        return;
    pl->shared_bytes = bytes; /* Shorter calls find it, too. */
    sp->parts = (int)parts;
    sp->states_bytes = times(parts, state);
    sp->bytes = sp->states_bytes + sp->inside * sp->chunk_bytes;
    if (sp->inside)
        plan_inside(pr, pl);
    sp->items = pl->items * (parts - sp->inside) + split_rows(pl) * sp->inside * sp->tiles;
}

/* split_items counts the longest list of a call that divides keys. */
static int64_t split_items(const plan *pl)
{
    const split *sp = &pl->split;
    return max64(sp->items, split_rows(pl) * sp->inside * (sp->slices + 1));
}

/* plan_sharing gives an item as many row tiles as fit into item_bytes, the L2 cache, and leave
 * SPLIT_ITEMS items to each of several workers, if need be by dividing their keys. */
static void plan_sharing(const problem *pr, plan *pl)
{
    const int64_t workers = pr->p.num_workers, least = workers > 1 ? SPLIT_ITEMS * workers : 1;
    pl->item_tiles =
        most_item_tiles(pl, pl->gathered ? lanes_of_list(pr) : times(pr->max_q_len, pr->group));
    for (;; pl->item_tiles--) {
        pl->keys = pl->small ? pr->p.tile_keys >> (pl->small - 1) : pr->p.tile_keys;
        pl->state_slots = tree_states(tree_keys(pr, pl), begins_inside(&pr->p));
        plan_row_tile(pr, pl);
        plan_items(pr, pl);
        plan_slot(pr, pl);
        plan_split(pr, pl);
        if (pl->item_tiles == 1 ||
            (pl->slot_bytes + pl->shared_bytes / workers <= pl->worker_bytes &&
             max64(pl->items, pl->split.items) >= least))
            return;
    }
}

/* pair_bytes counts the bytes of a row of head_dim and of one of head_dim_v. */
static int64_t pair_bytes(const attn_params *p, int dtype, int dtype_v)
{
    return plus(room_of(dtype, p->head_dim), room_of(dtype_v, p->head_dim_v));
}

/* wants_ahead relies on this: asking ahead pays where K and V come from beyond the L2 cache,
 * because they are read once, as in decoding (twice as fast), or are larger than it (1 % at 2048
 * keys of 128, 13 % at 65536 for 48 rows). Otherwise it costs 1 to 2 %. */
static int wants_ahead(const problem *pr, const plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t bytes = times(pr->max_kv_len, pair_bytes(p, p->k.dtype, p->v.dtype));
    return pl->tuning.ahead && (pl->tiles == 1 || bytes > pl->tuning.item_bytes);
}

/* wants_rows_ahead is for rows of Q and O that do not fit into L2: 1 to 3 % with heads of 64 and up to
 * 1024 keys. */
static int wants_rows_ahead(const attn_params *p, const plan *pl)
{
    const int64_t bytes = times(all_rows(p), pair_bytes(p, p->q.dtype, p->o.dtype));
    return bytes > pl->tuning.item_bytes && pl->tuning.ahead;
}

/* wants_pairs_ahead is for an array with `bits` bits for each pair of a head, of which a tile reads
 * short pieces of many rows. Pieces of a bias are longer, so that CPUs ask for much of them themselves:
 * with 4 MB of one asking costs 1 to 3 %, with 8 and more it gains 2 to 8 %. With 4 MB of a boolean mask
 * it gains 10 % (Intel family 6 model 167, heads of 64). */
OWN_FRAME static int wants_pairs_ahead(const problem *pr, const plan *pl, int64_t bits)
{
    const int64_t bytes = times(times(pr->max_q_len, pr->max_kv_len), bits) / 8;
    return pl->tuning.ahead && (bits > 8 ? bytes / 4 : bytes) > pl->tuning.item_bytes;
}

static void plan_ahead(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    const int bias = p->bias.data && p->bias.stride_kv == 1;
    const int bytes = p->bool_mask.data && p->bool_mask.stride_kv == 1;
    const int bits = !p->bool_mask.data && p->bit_mask.data && p->bit_mask.stride_kv == 1;
    pl->ahead = wants_ahead(pr, pl);
    pl->rows_ahead = wants_rows_ahead(p, pl);
    pl->bias_ahead = wants_pairs_ahead(pr, pl, bias * 8 * (int64_t)bytes_of(p->bias.dtype));
    pl->mask_ahead = wants_pairs_ahead(pr, pl, 8 * bytes + bits);
}

/* begin_plan sets what does not depend on how rows and keys are divided. */
static void begin_plan(const problem *pr, plan *pl, int small)
{
    const attn_params *p = &pr->p;
    const int64_t rows = times(ceil_div(pr->max_q_len, p->kernels->rows), p->kernels->rows);
    pl->small = small;
    pl->gathered = pr->gathered && !small;
    pl->kernels = p->kernels;
    pl->tuning = tuning_of(p, p->kernels);
    pl->impl = pr->impl;
    pl->rows = p->kernels->rows;
    pl->prefix_items = pl->prefix_keys = 0;
    pl->prefix_why = NULL;
    plan_copy(p, pl, KEYS, p->head_dim);
    plan_copy(p, pl, VALUES, p->head_dim_v);
    pl->matrix_floats =
        pl->impl == ATTN_IMPL_NAIVE ? times(rows, plus(pr->max_kv_len, 2 + insight_rows(p))) : 0;
}

/* divide_plan sets items, slots, shared memory, workers. With prefix_keys no keys are divided. */
static void divide_plan(const problem *pr, plan *pl)
{
    const attn_params *p = &pr->p;
    int64_t most;
    plan_sharing(pr, pl);
    plan_ahead(pr, pl);
    if (pl->impl == ATTN_IMPL_NAIVE && p->naive_whole)
        pl->shared_bytes = aligned(times(times(pl->matrix_floats, pl->items), sizeof(float)));
    most = max64(max64(pl->items, split_items(pl)), max64(pl->logits_items, pl->mass_items));
    pl->workers = (int)max64(1, min64(p->num_workers, most));
}

/* src/gather.c - whether the rows of a call read only the keys of their list.
 *
 * A list of keys is a mask: masks.c hides all others, beside any other mask. Where nothing else asks
 * about single keys, row tiles instead take the listed keys as if there were no others. What depends on
 * the number of a key, the canonical blocks and chunks, still goes by it, so that no bit changes.
 */

/* may_gather tells whether nothing but its list asks about single keys, and no two lists meet in a
 * row tile. */
static int may_gather(const problem *pr)
{
    const attn_params *p = &pr->p;
    const int asks_more = pair_rules_on(p) > 1 || p->bias.data || p->alibi_slopes || p->score ||
                          p->dropout_p > 0 || p->logits.data || p->recent.keys || has_insight(p) ||
                          p->insight.mass || has_skip(p);
    return p->key_list.data && !asks_more && pr->impl == ATTN_IMPL_TILED && !p->fast &&
           !p->part.rows && !p->part.keys && !p->cu_seqlens_q;
}

/* Of a key that rows pass over each pair takes as long as head_dim + head_dim_v says, and few rows as long
 * as GATHER_LANES. Of a listed key it takes twice as long, since rows are copied, and each may have a
 * block of its own. */
#define GATHER_LANES 16
#define GATHER_BLOCK 10000

/* gather_waits tells how many times the time of a worker the gathered call takes, as it divides no
 * chunk of keys. */
static int64_t gather_waits(const problem *pr, int64_t lists)
{
    const attn_params *p = &pr->p;
    const int64_t tiles = ceil_div(lanes_of_list(pr), ATTN_KERNEL_MAX_ROWS);
    const int64_t chunks = ceil_div(min64(pr->max_kv_len, p->key_list.width), ATTN_CHUNK);
    const int64_t items = times(times(p->batch, p->num_heads_kv), times(lists, tiles));
    return ceil_div(p->num_workers, max64(times(items, chunks), 1));
}

/* is_sparse tells whether a row tile for each list takes less time than tiles full of rows that pass over
 * what they do not see. */
static int is_sparse(const problem *pr)
{
    const attn_params *p = &pr->p;
    const int64_t dims = plus(p->head_dim, p->head_dim_v);
    const int64_t rows = max64(times(pr->max_q_len, pr->group), GATHER_LANES);
    const int64_t lanes = max64(lanes_of_list(pr), GATHER_LANES);
    const int64_t lists = ceil_div(pr->max_q_len, rows_of_list(p));
    const int64_t listed = times(lists, min64(p->key_list.width, pr->max_kv_len));
    const int64_t each = plus(times(times(2, dims), lanes), GATHER_BLOCK);
    return times(times(listed, each), gather_waits(pr, lists)) <
           times(times(pr->max_kv_len, dims), rows);
}

/* settle_gather decides about the call. The kernels are then those for the rows of a list. */
static void settle_gather(const attn_params *asked, problem *pr, int wanted)
{
    if (pr->gathered == wanted)
        return;
    pr->gathered = wanted;
    pr->p.kernels = asked->kernels;
    pr->p.tile_keys = asked->tile_keys;
    resolve_kernels(pr);
}

/* src/dropout.c - dropout: a counter-based random number decides about each pair. */

/* A dropped key stays in l and leaves o alone, like a dead one. Lanes without a row
 * are drawn, too; nothing reads them. */
static void drop_keys(const tile *t, float *probabilities, int64_t j0, int n)
{
    const int rows = t->pl->rows;
    uint32_t *const pos = (uint32_t *)t->lane_ints, *const head = pos + rows;
    attn_drop d = { .below = t->pr->drop_below,
                    .first_n = (uint32_t)(t->s.key_base + key_seen(&t->s, j0)),
                    .step = (uint32_t)t->s.view.step,
                    .batch = (uint32_t)t->s.view.batch,
                    .pos = pos,
                    .head = head,
                    .dead = t->dead };
    int r;
    for (r = 0; r < rows; r++) {
        const lane *l = &t->lanes[r];
        pos[r] = l->used ? (uint32_t)(t->s.key_base + t->s.view.before + row_seen(&t->s, l->i)) : 0;
        head[r] = l->used ? (uint32_t)head_seen(&t->s, l->head) : 0;
    }
    begin_philox(&d, t->pr->p.dropout_seed);
    t->pl->kernels->drop(probabilities, n, &d);
}

ATTN_API int attn_dropout_keep(uint64_t seed, float dropout_p, const attn_pair *at)
{
    uint32_t c0, c1, c2, c3;
    attn_drop d;
    if (!at)
        return 0;
    if (!(dropout_p > 0 && dropout_p < 1))
        return !(dropout_p >= 1);
    c0 = (uint32_t)at->n;
    c1 = (uint32_t)at->pos;
    c2 = (uint32_t)at->head;
    c3 = (uint32_t)at->batch;
    begin_philox(&d, seed);
    philox(&d, 1, &c0, &c1, &c2, &c3);
    return c0 >= (uint32_t)((double)dropout_p * 4294967296.0);
}

/* src/rotate.c - rotation of rows, which spreads outliers before K and V are quantised.
 *
 * A row is multiplied by Hadamard matrices of Sylvester's order over sqrt(n), which are symmetric and
 * their own inverses: the first of the largest power of two that fits, 256 at most, the next of what is
 * left. So q . k stays as it is where both are rotated, and the result of rotated rows of V is rotated
 * back (Ashkboos et al. 2024, arXiv 2404.00456). docs/canon.md has the order of additions.
 */

#define ROTATE_MOST 256

/* rotate_block rotates n numbers, a power of two. */
static void rotate_block(float *x, int n)
{
    static const float root[] = { 1.0f,           0x1.6a09e6p-1f, 0.5f,
                                  0x1.6a09e6p-2f, 0.25f,          0x1.6a09e6p-3f,
                                  0.125f,         0x1.6a09e6p-4f, 0.0625f };
    int half, i, j, log2 = 0;
    for (half = 1; half < n; half *= 2, log2++)
        for (i = 0; i < n; i += 2 * half)
            for (j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    for (i = 0; i < n; i++)
        x[i] = x[i] * root[log2];
}

/* rotate_size gives the size of the first block of a row. */
static int rotate_size(int64_t dim)
{
    int n = ROTATE_MOST;
    while (n > dim)
        n /= 2;
    return n;
}

static void rotate_row(float *x, int64_t dim)
{
    for (; dim > 0; x += rotate_size(dim), dim -= rotate_size(dim))
        rotate_block(x, rotate_size(dim));
}

/* rotate_result leaves no -0 and the one NaN, as results have them. */
static void rotate_result(float *x, int64_t dim)
{
    int64_t d;
    rotate_row(x, dim);
    for (d = 0; d < dim; d++)
        x[d] = is_nan(x[d]) ? float_of(CANONICAL_NAN) : x[d] + 0.0f;
}

ATTN_API attn_status attn_rotate(float *x, int64_t rows, int64_t dim)
{
    int64_t r;
    if (!x || !is_aligned(x, sizeof *x) || rows < 0 || dim < 1)
        return ATTN_ERR_ARG;
    for (r = 0; r < rows; r++)
        rotate_row(x + r * dim, dim);
    return ATTN_OK;
}

/* src/tile.c - a tile: up to `rows` query rows that share one kv head, and the keys that they read.
 *
 * Lane f of a head's flattened rows is query row f / group of head kv_head * group + f % group, so
 * that a GQA group fills the lanes also when there is one query (decode).
 */

/* set_scratch points to what the row tiles of a slot share. */
static void set_scratch(tile *t, char *slot)
{
    const plan *pl = t->pl;
    t->keys = (key_tile *)(void *)slot;
    t->keys->copy[KEYS] = (float *)(void *)(slot + pl->copy[KEYS]);
    t->keys->copy[VALUES] = (float *)(void *)(slot + pl->copy[VALUES]);
    t->stage = (float *)(void *)(slot + pl->stage);
    t->row_in = (const float **)(void *)(slot + pl->row_in);
    t->row_out = (float **)(void *)(slot + pl->row_out);
    t->s_tile = (float *)(void *)(slot + pl->s);
    t->x_tile = (float *)(void *)(slot + pl->x);
    t->lane_values = (float *)(void *)(slot + pl->lane_values);
    t->lane_ints = (int *)(void *)(slot + pl->lane_ints);
    t->alpha = (float *)(void *)(slot + pl->alpha);
    t->blocks = (block *)(void *)(slot + pl->blocks);
    t->alive = (uint32_t *)(void *)(slot + pl->alive);
    t->matrix = (float *)(void *)(slot + pl->matrix);
    t->operand_runs = (const char **)(void *)(slot + pl->operand_runs);
    t->ahead_runs = (const char **)(void *)(slot + pl->ahead_runs);
}

static tile *row_tile(const plan *pl, char *slot, int index)
{
    return (tile *)(void *)(slot + pl->row_tiles + index * pl->row_tile_bytes);
}

static void give_state(tile *t, float *state)
{
    memcpy(state, &t->free, sizeof t->free);
    t->free = state;
}

/* open_tile_at begins a row tile at `own`. */
static tile *open_tile_at(const call *c, char *slot, char *own)
{
    const plan *pl = &c->pl;
    tile *t = (tile *)(void *)own;
    int i;
    memset(t, 0, sizeof *t);
    t->pr = &c->pr;
    t->pl = pl;
    set_scratch(t, slot);
    t->insight = has_insight(&c->pr.p);
    t->lanes = (lane *)(void *)(own + pl->lanes);
    t->qt = (float *)(void *)(own + pl->qt);
    t->qt_units = (float *)(void *)(own + pl->qt_units);
    t->scales = (float *)(void *)(own + pl->scales);
    t->skip = has_skip(&c->pr.p) ? (float *)(void *)(own + pl->skips) : NULL;
    for (i = 0; i < pl->state_slots; i++)
        give_state(t, (float *)(void *)(own + pl->states) + i * pl->state_floats);
    return t;
}

/* open_tile begins row tile number `index` of a slot. */
static tile *open_tile(const call *c, char *slot, int index)
{
    return open_tile_at(c, slot, (char *)row_tile(&c->pl, slot, index));
}

/* set_lane sets the lane of row c and head number `head` of the choice. */
static void set_lane(tile *t, lane *l, const row_choice *choice, int64_t c, int64_t head)
{
    const attn_params *p = &t->pr->p;
    l->used = 0;
    l->lo = l->hi = l->cut = 0;
    if (c < 0 || c >= choice->count) /* A number below 0 is a varlen slot before cu_seqlens_q[0]. */
        return;
    if (t->entry_rows) {
        t->s = sequence_of(p, c / t->entry_rows);
        c %= t->entry_rows;
    }
    l->choice = c;
    l->head = choice->head0 + head;
    l->i = choice->list ? choice->list[c] : c;
    l->used = l->i >= t->s.row_from && l->i < t->s.row_to;
    l->pos = l->i + t->s.offset;
    if (l->used)
        visible_range(&t->pl->ranges, p, &t->s, l->pos, &l->lo, &l->hi);
    if (t->list.at) {
        l->lo = first_listed(t->list, l->lo);
        l->hi = first_listed(t->list, l->hi);
    }
    l->cut = max64(l->lo, min64(recent_from(p, l->pos), l->hi));
}

/* seen_from and seen_to give the keys of a version that the ranges leave to a lane. */
static int64_t seen_from(const lane *l, int version)
{
    return version == STORED ? l->lo : l->cut;
}

static int64_t seen_to(const lane *l, int version)
{
    return version == STORED ? l->cut : l->hi;
}

static void widen_lanes(attn_lanes *lanes, int r)
{
    if (lanes->begin == lanes->end)
        lanes->begin = r;
    lanes->end = r + 1;
}

/* widen_hull makes the hull hold one more lane, `first` if there was none. */
static void widen_hull(hull *h, const lane *l, int first)
{
    const hull one = { l->head, l->head + 1, l->i, l->i + 1 };
    if (first)
        *h = one;
    h->head_begin = min64(h->head_begin, one.head_begin);
    h->head_end = max64(h->head_end, one.head_end);
    h->i_begin = min64(h->i_begin, one.i_begin);
    h->i_end = max64(h->i_end, one.i_end);
}

/* scales_at gives the scales of row `row` of an entry of K or V, from a column on. */
static const float *scales_at(const attn_scales *x, int64_t entry, int64_t kv_head, int64_t row,
                              int64_t column)
{
    return x->data + entry * x->stride_batch + kv_head * x->stride_head + row * x->stride_seq +
           column * x->stride_dim;
}

/* query_row gives query row `at` as f32. Packing goes to a few lines of each of many rows, and would
 * wait for one after the other. */
static const float *query_row(const tile *t, int64_t at, float *space)
{
    const attn_tensor *q = &t->pr->p.q;
    const int64_t dim = t->pr->p.head_dim, bytes_each = (int64_t)bytes_of(q->dtype);
    if (t->pl->rows_ahead)
        PREFETCH_RUN((const char *)q->data + at * bytes_each, dim * bytes_each);
    if (!(t->pr->p.rotated & ATTN_ROTATED_K))
        return run_as_f32(t->pl->kernels, q->dtype, q->data, at, dim, space);
    load_run(t->pl->kernels, q->dtype, space, q->data, at, dim);
    rotate_row(space, dim);
    return space;
}

/* set_lanes sets all lanes to rows of the choice that follow each other, and finds their queries. */
static void set_lanes(tile *t, const row_choice *choice)
{
    const attn_params *p = &t->pr->p;
    int64_t c = choice->first / choice->heads, head = choice->first % choice->heads;
    int r;
    if (head < 0) { /* The division rounded towards 0. */
        c--;
        head += choice->heads;
    }
    for (r = 0; r < t->pl->rows; r++) {
        lane *l = &t->lanes[r];
        set_lane(t, l, choice, c, head);
        t->row_in[r] = !l->used ? NULL
                                : query_row(t, ROW_AT(p->q, &t->s, l->head, t->s.q_row + l->i),
                                            t->stage + r * p->head_dim);
        if (++head == choice->heads) {
            head = 0;
            c++;
        }
    }
}

/* widen_span makes *to hold keys lo to hi-1 of one more lane. */
static void widen_span(key_span *to, int64_t lo, int64_t hi)
{
    to->all_from = max64(to->all_from, lo);
    to->all_to = min64(to->all_to, hi);
    if (lo >= hi)
        return;
    to->lo = to->lo == to->hi ? lo : min64(to->lo, lo);
    to->hi = max64(to->hi, hi);
}

/* survey_lanes notes what the used lanes have together. */
static void survey_lanes(tile *t)
{
    static const key_span none = { 0, 0, 0, INT64_MAX };
    key_span all = none;
    int r, used = 0;
    t->span.begin = t->span.end = 0;
    t->spans[STORED] = t->spans[RECENT] = none;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        if (!l->used)
            continue;
        if (t->pl->by_pair)
            widen_hull(&t->hull, l, used == 0);
        widen_lanes(&t->span, r);
        used++;
        widen_span(&all, l->lo, l->hi);
        widen_span(&t->spans[STORED], l->lo, l->cut);
        widen_span(&t->spans[RECENT], l->cut, l->hi);
    }
    t->used = used;
    t->lo = all.lo, t->hi = all.hi;
}

/* pack_queries packs the queries by one of the kernels; lanes without one share a row of zeros. */
static void pack_queries(const tile *t, float *qt,
                         void (*pack)(float *qt, const float *const *q, int64_t head_dim))
{
    const int64_t dim = t->pr->p.head_dim;
    const float *zeros = NULL;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        if (t->row_in[r])
            continue;
        if (!zeros)
            zeros = memset(t->stage + r * dim, 0, (size_t)dim * sizeof *zeros);
        t->row_in[r] = zeros;
    }
    pack(qt, t->row_in, dim);
}

/* scale_query multiplies a query by the scales of channels of K, which whole numbers have no room for. */
static void scale_query(const tile *t, float *to, const float *row)
{
    const attn_scales *x = &t->pr->p.k_scales;
    const float *scale = scales_at(x, t->s.b, t->kv_head, 0, 0);
    int64_t d;
    for (d = 0; d < t->pr->p.head_dim; d++)
        to[d] = row[d] * scale[d * x->stride_dim];
}

/* round_queries makes the queries whole numbers on the stage, where some lie already. */
static void round_queries(tile *t)
{
    const int rows = t->pl->rows, scaled = scales_queries(&t->pr->p);
    const int64_t dim = t->pr->p.head_dim;
    int64_t d;
    int r;
    for (r = 0; r < rows; r++) {
        float *const to = t->stage + r * dim;
        if (scaled && t->row_in[r]) {
            scale_query(t, to, t->row_in[r]);
            t->row_in[r] = to;
        }
        for (d = 0; d < dim; d += UNIT)
            t->scales[d / UNIT * rows + r] =
                t->row_in[r] ? round_unit(to + d, t->row_in[r] + d) : 0.0f;
        t->row_in[r] = t->row_in[r] ? to : NULL;
    }
}

/* pack_tile packs the queries for each version of the keys. */
static void pack_tile(tile *t)
{
    const attn_kernels *kernels = t->pl->kernels;
    const attn_params *p = &t->pr->p;
    if (!p->integer || p->recent.keys)
        pack_queries(t, t->qt, kernels->pack);
    if (!p->integer)
        return;
    round_queries(t);
    pack_queries(t, t->qt_units, kernels->pack_units);
}

/* set_rows sets the lanes of a tile, packs their queries and returns how many lanes are used. */
static int set_rows(tile *t, const row_choice *choice)
{
    t->dead = 0.0f;
    t->column = 0;
    t->columns = t->pr->p.head_dim_v;
    set_lanes(t, choice);
    survey_lanes(t);
    if (t->used)
        pack_tile(t);
    return t->used;
}

static void open_keys(tile *t, int64_t j0, int n)
{
    t->keys->j0 = j0;
    t->keys->n = n;
    t->keys->copied_from[KEYS] = t->keys->copied_from[VALUES] = n;
    t->keys->rounded_from[KEYS] = t->keys->rounded_from[VALUES] = n;
}

/* are_few tells whether the kernels take another way for these few lanes (attn_kernels.few). */
static int are_few(const attn_kernels *kernels, attn_lanes lanes)
{
    return attn_lane_count(lanes) <= kernels->few;
}

/* key_tensor gives K or V in the version that is read at the moment. */
static const attn_tensor *key_tensor(const tile *t, int which)
{
    const attn_params *p = &t->pr->p;
    if (t->version == RECENT)
        return which == KEYS ? &p->recent.k : &p->recent.v;
    return which == KEYS ? &p->k : &p->v;
}

/* tile_key_at tells where key j lies in that version, and next_tile_place what lies behind. */
OWN_FRAME static key_place tile_key_at(const tile *t, int64_t j)
{
    if (t->list.at)
        return listed_at(&t->pr->p, &t->s, t->list, j);
    return t->version == RECENT ? recent_at(&t->pr->p, &t->s, j) : key_at(&t->pr->p, &t->s, j);
}

OWN_FRAME static void next_tile_place(const tile *t, key_place *at)
{
    if (t->version == RECENT)
        next_recent_place(&t->pr->p, at);
    else
        next_place(&t->pr->p, &t->s, at);
}

/* next_tile_key goes to the place of the next key. It returns how many rows further that key lies, or 0
 * if it lies elsewhere. */
static inline int64_t next_tile_key(const tile *t, key_place *at)
{
    if (t->list.at)
        return next_listed(&t->pr->p, &t->s, t->list, at);
    next_row(at);
    if (at->left)
        return 1;
    next_tile_place(t, at);
    return 0;
}

/* lie_together tells whether n keys from key j on, which lies at that place, lie one after the other. */
static int lie_together(const tile *t, const key_place *at, int64_t j, int64_t n)
{
    const int32_t *const list = t->list.at;
    return at->left >= n && (!list || list[j + n - 1] - list[j] == n - 1);
}

/* in_units tells whether keys are read as whole numbers. */
static int in_units(const tile *t)
{
    return t->pr->p.integer && t->version == STORED;
}

/* row_of gives that row of K or of the columns of V. */
static const char *row_of(const tile *t, int which, const key_place *at)
{
    const attn_tensor *x = key_tensor(t, which);
    const int64_t element = at->entry * x->stride_batch + t->kv_head * x->stride_head +
                            at->row * x->stride_seq + (which == KEYS ? 0 : t->column);
    return (const char *)x->data + bytes_between(x->dtype, element);
}

/* row_behind goes to the place of the next key and gives its row, `row` being that of the key. */
static inline const char *row_behind(const tile *t, int which, const char *row, int64_t stride,
                                     key_place *at)
{
    const int64_t gap = next_tile_key(t, at);
    return gap ? row + gap * stride : row_of(t, which, at);
}

/* scales_of gives the scales of that row. */
static const float *scales_of(const tile *t, int which, const key_place *at)
{
    return scales_at(which == KEYS ? &t->pr->p.k_scales : &t->pr->p.v_scales, at->entry, t->kv_head,
                     at->row, which == KEYS ? 0 : t->column);
}

/* row_dim counts the elements of a row that row_of gives. */
static int64_t row_dim(const tile *t, int which)
{
    return which == KEYS ? t->pr->p.head_dim : t->columns;
}

/* widen_row makes the row at that place one of f32 or, for whole numbers, of units of 8 bits. */
static void widen_row(const tile *t, int which, float *to, const char *row, const key_place *at)
{
    const int dtype = key_tensor(t, which)->dtype;
    const int64_t dim = row_dim(t, which);
    if (which == KEYS && in_units(t))
        storages[dtype].unpack((q8_unit *)(void *)to, row, dim);
    else if (has_scales(dtype))
        t->pl->kernels->widen_i8(
            to, (const int8_t *)row, scales_of(t, which, at),
            which == KEYS ? t->pr->p.k_scales.stride_dim : t->pr->p.v_scales.stride_dim, dim);
    else
        load_run(t->pl->kernels, dtype, to, row, 0, dim);
}

/* copy_rows copies rows from j on of the open tile, up to those that are copied already. */
static void copy_rows(tile *t, int which, int64_t j)
{
    const attn_tensor *x = key_tensor(t, which);
    const int64_t pitch = t->pl->pitch[which];
    const int64_t stride = bytes_between(x->dtype, x->stride_seq);
    key_tile *keys = t->keys;
    const int from = (int)(j - keys->j0), end = keys->copied_from[which];
    key_place at = tile_key_at(t, j);
    const char *row = row_of(t, which, &at);
    int r;
    for (r = from; r < end; r++) {
        if (r > from)
            row = row_behind(t, which, row, stride, &at);
        widen_row(t, which, keys->copy[which] + r * pitch, row, &at);
    }
    keys->copied_from[which] = from < end ? from : end;
}

/* copy_key_tile makes keys j0 to j0+n-1 the open tile, with all of K and V copied. */
static void copy_key_tile(tile *t, int64_t j0, int n)
{
    open_keys(t, j0, n);
    copy_rows(t, KEYS, j0);
    copy_rows(t, VALUES, j0);
}

/* key_rows gives rows j to j+n-1 of K or V, which lie in the open tile, as f32, *stride floats
 * apart: in place if they lie in this way. Few lanes read V row after row, which compete for
 * nothing, so that rows that alias need no copy (16 to 20 % of the time of a step of decoding with
 * interleaved heads). */
static const float *key_rows(tile *t, int which, int64_t j, int n, attn_lanes lanes,
                             ptrdiff_t *stride)
{
    const attn_tensor *x = key_tensor(t, which);
    const int few_values = which == VALUES && are_few(t->pl->kernels, lanes);
    const key_place at = tile_key_at(t, j);
    *stride = x->stride_seq;
    if (x->dtype == ATTN_F32 && lie_together(t, &at, j, n) &&
        (t->pl->in_place[t->version][which] || few_values))
        return (const float *)(const void *)row_of(t, which, &at);
    copy_rows(t, which, j);
    *stride = (ptrdiff_t)t->pl->pitch[which];
    return t->keys->copy[which] + (j - t->keys->j0) * t->pl->pitch[which];
}

/* unit_rows gives rows j to j+n-1 of K as one run of units of 8 bits: in place if they lie in this way. */
static attn_runs unit_rows(tile *t, int64_t j, int n, const char **list)
{
    const attn_tensor *k = &t->pr->p.k;
    const key_place at = tile_key_at(t, j);
    const int64_t pitch = t->pl->pitch[KEYS];
    attn_runs runs = { ATTN_Q8_0, bytes_between(k->dtype, k->stride_seq), n, n, list };
    list[0] = list[1] = row_of(t, KEYS, &at);
    if (k->dtype == ATTN_Q8_0 && lie_together(t, &at, j, n))
        return runs;
    copy_rows(t, KEYS, j);
    runs.stride = (ptrdiff_t)(pitch * (int64_t)sizeof(float));
    list[0] = list[1] = (const char *)(t->keys->copy[KEYS] + (j - t->keys->j0) * pitch);
    return runs;
}

/* list_rows lists where each of rows j to j+n-1 lies, which a list of keys names. */
static void list_rows(const tile *t, int which, int64_t j, int64_t n, attn_runs *runs,
                      const char **list)
{
    const attn_tensor *x = key_tensor(t, which);
    const ptrdiff_t stride = bytes_between(x->dtype, x->stride_seq);
    key_place at = tile_key_at(t, j);
    int64_t i;
    list[0] = row_of(t, which, &at);
    for (i = 1; i < n; i++)
        list[i] = row_behind(t, which, list[i - 1], stride, &at);
    list[n] = list[n - 1];
    *runs = (attn_runs){ x->dtype, stride, 1, 1, list };
}

/* list_runs lists where rows j to j+n-1 of K or V lie. It returns 0 if a run between the first and
 * the last is not a whole page, as the last page of a ring may be short. */
static int list_runs(const tile *t, int which, int64_t j, int64_t n, const char **list,
                     attn_runs *runs)
{
    const attn_params *p = &t->pr->p;
    const attn_tensor *x = key_tensor(t, which);
    key_place at = tile_key_at(t, j);
    int64_t run = min64(n, at.left), left, count = 0;
    const int64_t page = t->version == STORED ? p->kv_rows.page_size : 0;
    int even = 1;
    if (t->list.at && !lie_together(t, &at, j, n)) {
        list_rows(t, which, j, n, runs, list);
        return 1;
    }
    *runs = (attn_runs){ x->dtype, bytes_between(x->dtype, x->stride_seq), run,
                         page ? page : n, /* No run is longer. */
                         list };
    list[count++] = row_of(t, which, &at);
    for (left = n - run; left > 0; left -= run) {
        next_tile_place(t, &at);
        run = min64(left, at.left);
        even &= run == min64(left, runs->each);
        list[count++] = row_of(t, which, &at);
    }
    list[count] = list[count - 1];
    return even;
}

/* few_runs tells whether kernels for few lanes take rows j to j+n-1 of K or V as they lie, which
 * *runs then lists: the rows that key_rows would have to copy. */
static int few_runs(const tile *t, int which, int64_t j, int n, attn_lanes lanes, attn_runs *runs)
{
    const plan *pl = t->pl;
    const int dtype = key_tensor(t, which)->dtype, floats = dtype == ATTN_F32;
    if (!pl->pitch[which] || !are_few(pl->kernels, lanes) || row_dim(t, which) % 16 ||
        !storages[dtype].in_products[which])
        return 0;
    if (which == VALUES)
        return list_runs(t, which, j, n, t->operand_runs, runs);
    if (n % ATTN_BLOCK || (floats && !pl->in_place[t->version][which]))
        return 0;
    return list_runs(t, which, j, n, t->operand_runs, runs) &&
           (runs->first == n || (runs->first % ATTN_BLOCK == 0 && runs->each % ATTN_BLOCK == 0));
}

/* src/visibility.c - which pairs of a tile are visible, and which lanes of its blocks. */

/* all_see tells whether the ranges leave keys j0 to j0+n-1 to every used lane. */
static int all_see(const tile *t, int64_t j0, int n)
{
    const key_span *seen = &t->spans[t->version];
    return seen->all_from <= j0 && seen->all_to >= j0 + n;
}

static int range_class(const tile *t, int64_t j0, int n)
{
    int r, full = 1, any = 0;
    if (all_see(t, j0, n))
        return ATTN_TILE_FULL;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        if (!l->used)
            continue;
        full &= seen_from(l, t->version) <= j0 && seen_to(l, t->version) >= j0 + n;
        any |= seen_from(l, t->version) < j0 + n && seen_to(l, t->version) > j0;
    }
    return full ? ATTN_TILE_FULL : any ? ATTN_TILE_PARTIAL : ATTN_TILE_EMPTY;
}

/* lane_range gives the keys of j0 to j0+n-1 that the ranges leave to lane r, counted from j0; it
 * gives none if the lane is unused. */
static void lane_range(const tile *t, int r, int64_t j0, int n, int *begin, int *end)
{
    const lane *l = &t->lanes[r];
    *begin = l->used ? (int)min64(n, max64(0, seen_from(l, t->version) - j0)) : 0;
    *end = l->used ? (int)min64(n, max64(0, seen_to(l, t->version) - j0)) : 0;
}

/* show_all makes n keys visible to all lanes. */
static void show_all(tile *t, int n)
{
    uint32_t *word = t->alive;
    int r;
    for (; n > 0; n -= ATTN_ALIVE_BITS)
        for (r = 0; r < t->pl->rows; r++)
            *word++ = bits_below(n);
}

static int row_class(const key_row *of)
{
    const uint32_t *word = of->alive;
    uint32_t some = 0, missing = 0;
    int left = of->n;
    for (; left > 0; left -= ATTN_ALIVE_BITS, word += of->apart) {
        some |= *word;
        missing |= *word ^ bits_below(left);
    }
    return !some ? ATTN_TILE_EMPTY : missing ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
}

/* ask_rows sets t->alive to what the ranges and these rules leave, and gives the class. */
static int ask_rows(tile *t, const rule_list *rules, int64_t j0, int n)
{
    const int rows = t->pl->rows;
    key_row row = { &t->pr->p, &t->s, t->lanes, t->pl->kernels, j0, n, t->alive, rows };
    int r, m, begin, end, class, seen = 0, missing = 0;
    t->alive_from = j0;
    show_all(t, n);
    for (r = 0; r < rows; r++, row.at++, row.alive++) {
        lane_range(t, r, j0, n, &begin, &end);
        hide_between(&row, 0, begin);
        hide_between(&row, end, n);
        for (m = 0; m < rules->n && begin < end; m++)
            rules->at[m](&row);
        class = row_class(&row);
        seen |= class != ATTN_TILE_EMPTY;
        missing |= class != ATTN_TILE_FULL && row.at->used;
    }
    return !seen ? ATTN_TILE_EMPTY : missing ? ATTN_TILE_PARTIAL : ATTN_TILE_FULL;
}

/* tile_class gives the class of keys j0 to j0+n-1. Where it fills t->alive it sets t->by_pair. */
static int tile_class(tile *t, int64_t j0, int n)
{
    const int class = range_class(t, j0, n);
    rule_list rules = { 0, { NULL } };
    int m;
    t->by_pair = 0;
    for (m = 0; m < COUNT_OF(mask_rules) && class != ATTN_TILE_EMPTY && !t->list.at; m++) {
        const mask_rule *rule = &mask_rules[m];
        int answer;
        if (!rule->row || !is_set(&t->pr->p, rule->on))
            continue;
        answer = rule->tile ? rule->tile(&t->pr->p, &t->s, &t->hull, j0, n) : ATTN_TILE_PARTIAL;
        if (answer == ATTN_TILE_EMPTY)
            return ATTN_TILE_EMPTY;
        if (answer != ATTN_TILE_FULL)
            rules.at[rules.n++] = rule->row;
    }
    t->by_pair = rules.n > 0;
    return rules.n > 0 ? ask_rows(t, &rules, j0, n) : class;
}

/* lanes_in_range gives the lanes to whom the ranges leave a key of j0 to j0+n-1. */
static attn_lanes lanes_in_range(const tile *t, int64_t j0, int n)
{
    attn_lanes lanes = { 0, 0 };
    int r;
    if (all_see(t, j0, n))
        return t->span;
    for (r = t->span.begin; r < t->span.end; r++) {
        const lane *l = &t->lanes[r];
        if (l->used && seen_from(l, t->version) < j0 + n && seen_to(l, t->version) > j0)
            widen_lanes(&lanes, r);
    }
    return lanes;
}

/* lanes_alive gives the lanes from the first to the last to whom t->alive leaves one of the n keys from
 * `from` on, at most ATTN_BLOCK. */
static attn_lanes lanes_alive(const tile *t, int64_t from, int n)
{
    const int rows = t->pl->rows, first = (int)(from - t->alive_from);
    const uint32_t *const alive = t->alive + first / ATTN_ALIVE_BITS * rows;
    const uint64_t keys = ((UINT64_C(1) << n) - 1) << first % ATTN_ALIVE_BITS;
    const uint32_t low = (uint32_t)keys, high = (uint32_t)(keys >> ATTN_ALIVE_BITS);
    const uint32_t *const next = high ? alive + rows : alive; /* There may be no next word. */
    attn_lanes lanes = t->span;
    ATTN_ASSERT(first >= 0 && n >= 1 && n <= ATTN_BLOCK);
    while (lanes.begin < lanes.end && !((alive[lanes.begin] & low) | (next[lanes.begin] & high)))
        lanes.begin++;
    while (lanes.begin < lanes.end &&
           !((alive[lanes.end - 1] & low) | (next[lanes.end - 1] & high)))
        lanes.end--;
    return lanes;
}

/* key_number gives the number of key j of a tile within the sequence. */
static int64_t key_number(const tile *t, int64_t j)
{
    return t->list.at ? t->list.at[j] : j;
}

/* place_in_list is the other way: the place of key `number` or, in a list without it, of the next. */
static int64_t place_in_list(const tile *t, int64_t number)
{
    return t->list.at ? first_listed(t->list, number) : number;
}

/* block_end gives the end of the canonical block of key j, which is a key of the tile, too. */
static int64_t block_end(const tile *t, int64_t j)
{
    const int64_t number = key_number(t, j);
    const int64_t end = number + ATTN_BLOCK - (t->s.key_base + number) % ATTN_BLOCK;
    if (!t->list.at)
        return end;
    while (j < t->list.count && t->list.at[j] < end)
        j++;
    return j;
}

/* set_blocks cuts keys j0 to j0+n-1 into canonical blocks, after tile_class. */
static void set_blocks(tile *t, int64_t j0, int n)
{
    int begin = 0, end;
    t->block_count = 0;
    for (; begin < n; begin = end) {
        block *b = &t->blocks[t->block_count++];
        end = (int)min64(block_end(t, j0 + begin) - j0, n);
        b->end = end;
        b->raised = 0;
        b->lanes = t->by_pair ? lanes_alive(t, j0 + begin, end - begin)
                              : lanes_in_range(t, j0 + begin, end - begin);
    }
}

/* src/rounded.c - rows of K and panels of V in bf16, for kernels that round (p.fast).
 *
 * They are made from rows of f32, once for all row tiles of an item.
 */

/* Rows of K lie before the copies of f32 rows. */
static float *rounded_of(const tile *t)
{
    const int64_t bytes = aligned(times(rounded_floats(t->pr, t->pl), sizeof(float)));
    return (float *)(void *)((char *)t->keys->copy[KEYS] - bytes);
}

/* Where the panel of V lies, and the kernels' own room. */
static float *panel_of(const tile *t)
{
    return rounded_of(t) + panel_place(t->pr, t->pl);
}

static float *space_of(const tile *t)
{
    return rounded_of(t) + space_place(t->pr, t->pl);
}

/* round_keys makes rows of bf16 of keys j to j+n-1. */
static void round_keys(tile *t, int64_t j, int n)
{
    const attn_lanes all = { 0, t->pl->rows };
    const int64_t dim = t->pr->p.head_dim, from = j - t->keys->j0;
    ptrdiff_t stride;
    const float *row = key_rows(t, KEYS, j, n, all, &stride);
    int r;
    for (r = 0; r < n; r++, row += stride) {
        uint16_t *to = (uint16_t *)(void *)(rounded_of(t) + (from + r) * rounded_pitch(t->pr));
        t->pl->kernels->narrow_bf16(to, row, dim);
        memset(to + dim, 0, (size_t)(ATTN_ROUNDED(dim) - dim) * sizeof *to);
    }
}

/* rounded_keys gives rows j to j+n-1 of K as one run of rows of bf16: in place if they lie in this way. */
static attn_runs rounded_keys(tile *t, int64_t j, int n, const char **list)
{
    const attn_tensor *k = key_tensor(t, KEYS);
    const key_place at = tile_key_at(t, j);
    const int64_t pitch = rounded_pitch(t->pr), dim = t->pr->p.head_dim;
    const int from = (int)(j - t->keys->j0);
    attn_runs runs = { ATTN_BF16, bytes_between(k->dtype, k->stride_seq), n, n, list };
    if (k->dtype == ATTN_BF16 && at.left >= n && dim == ATTN_ROUNDED(dim) && n % 16 == 0) {
        list[0] = list[1] = row_of(t, KEYS, &at);
        return runs;
    }
    if (from < t->keys->rounded_from[KEYS]) {
        round_keys(t, j, t->keys->rounded_from[KEYS] - from);
        t->keys->rounded_from[KEYS] = from;
    }
    runs.stride = (ptrdiff_t)(pitch * (int64_t)sizeof(float));
    list[0] = list[1] = (const char *)(rounded_of(t) + from * pitch);
    return runs;
}

/* panel_phase counts the keys that a panel has room for before the open tile: packs begin where n is a
 * multiple of ATTN_PANEL_KEYS, so that sums do not depend on where a tile begins. */
static int panel_phase(const tile *t)
{
    return (int)((t->s.key_base + t->keys->j0) % ATTN_PANEL_KEYS);
}

/* fill_pack makes the pack of the panel that holds key `at` of the open tile, from there on, and
 * returns the first key behind it. Rows of bf16 that lie one after the other need no copy. */
static int fill_pack(tile *t, int at)
{
    const attn_lanes all = { 0, t->pl->rows };
    const attn_tensor *v = key_tensor(t, VALUES);
    const int64_t dim = t->pr->p.head_dim_v, j = t->keys->j0 + at;
    const int pack = (panel_phase(t) + at) / ATTN_PANEL_KEYS;
    const int first = pack * ATTN_PANEL_KEYS - panel_phase(t);
    const int end = (int)min64(first + ATTN_PANEL_KEYS, t->keys->n);
    const key_place place = tile_key_at(t, j);
    attn_pack rows = { .dtype = v->dtype, .begin = at - first, .end = end - first, .dim = dim };
    ptrdiff_t stride;
    if (v->dtype == ATTN_BF16 && place.left >= end - at) {
        rows.v = row_of(t, VALUES, &place);
        rows.stride = bytes_between(v->dtype, v->stride_seq);
    } else {
        rows.dtype = ATTN_F32;
        rows.v = (const char *)key_rows(t, VALUES, j, end - at, all, &stride);
        rows.stride = stride * (ptrdiff_t)sizeof(float);
    }
    t->pl->kernels->pack_values(panel_of(t) + pack * ATTN_PANEL_FLOATS(dim), &rows);
    return end;
}

/* value_panel makes p read the panel of V of the open tile, in which the keys from j on are filled in.
 * What lies before j in its pack is +0 until somebody asks for it. */
static void value_panel(tile *t, int64_t j, attn_product *p)
{
    key_tile *keys = t->keys;
    const int from = (int)(j - keys->j0), filled = keys->rounded_from[VALUES];
    int at = from;
    while (at < filled)
        at = fill_pack(t, at);
    keys->rounded_from[VALUES] = from < filled ? from : filled;
    p->kv = panel_of(t);
    p->first = panel_phase(t) + from;
    p->space = space_of(t);
}

/* src/modifiers.c - what changes a logit: softcap, bias, ALiBi, masks, the score callback, in this order. */

static void apply_softcap(tile *t, float *s, int64_t j0, int n)
{
    (void)j0;
    t->pl->kernels->softcap(s, n, t->pr->cap2, t->pr->icap2);
}

/* bias_at tells where the bias has key j of a lane. */
static int64_t bias_at(const tile *t, const lane *l, int64_t j)
{
    const attn_bias *bias = &t->pr->p.bias;
    return t->s.b * bias->stride_batch + l->head * bias->stride_head + l->i * bias->stride_q +
           (t->s.column + j) * bias->stride_kv;
}

/* bias_rows points t->row_in to n biases of each lane from key j on: f32 as they lie side by side, and
 * others widened into t->x_tile. */
static void bias_rows(tile *t, int64_t j, int n)
{
    const attn_bias *bias = &t->pr->p.bias;
    float (*load)(const void *, int64_t) = storages[bias->dtype].load;
    int r, i;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        float *space = t->x_tile + r * n;
        int64_t at;
        t->row_in[r] = space;
        if (!l->used) {
            memset(space, 0, (size_t)n * sizeof *space);
            continue;
        }
        at = bias_at(t, l, j);
        if (bias->stride_kv == 1)
            t->row_in[r] = run_as_f32(t->pl->kernels, bias->dtype, bias->data, at, n, space);
        else
            for (i = 0; i < n; i++)
                space[i] = load(bias->data, at + i * bias->stride_kv);
    }
}

static void apply_bias(tile *t, float *s, int64_t j0, int n)
{
    bias_rows(t, j0, n);
    t->pl->kernels->add_rows(s, t->row_in, LOG2E_HI, n);
}

/* is_near tells whether 32 bits hold the distances of a row from a tile of keys. */
static int is_near(int64_t pos, int64_t j0)
{
    return pos - j0 > INT32_MIN / 2 && pos - j0 < INT32_MAX / 2;
}

/* add_far_distances does what add_distances does, for a lane that is too far from its keys for that. */
static void add_far_distances(float *s, int rows, int64_t from, float factor, int n)
{
    int j;
    for (j = 0; j < n; j++, s += rows, from--) {
        const float distance = (float)(from < 0 ? -from : from);
        *s = fma32(FMA_BASE, distance, factor, *s);
    }
}

/* A lane that the kernel must leave alone has a factor of -0, which changes no sum. */
static void apply_alibi(tile *t, float *s, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    const float *slopes = p->alibi_slopes + t->s.b * p->alibi_stride;
    const int rows = t->pl->rows;
    int *const from = t->lane_ints, r;
    for (r = 0; r < rows; r++) {
        const lane *l = &t->lanes[r];
        const float slope2 = l->used ? slopes[l->head] * LOG2E_HI : 0.0f;
        const int reached = l->used && is_near(l->pos, j0);
        if (l->used && !reached)
            add_far_distances(s + r, rows, l->pos - j0, -slope2, n);
        t->lane_values[r] = reached ? -slope2 : -0.0f;
        from[r] = reached ? (int)(l->pos - j0) : 0;
    }
    t->pl->kernels->add_distances(s, from, t->lane_values, n);
}

static void apply_score(tile *t, float *s, int64_t j0, int n)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int j, r;
    for (r = 0; r < rows; r++)
        for (j = 0; j < n && t->lanes[r].used; j++) {
            float *logit = &s[j * rows + r];
            const attn_pair pair = pair_of(&t->s, &t->lanes[r], j0 + j);
            if (!is_neg_inf(*logit)) {
                float natural = *logit * LN2;
                natural = p->score(p->callback_user, &pair, natural);
                *logit = natural * LOG2E_HI;
            }
        }
}

static int softcap_active(const attn_params *p)
{
    return p->softcap > 0;
}

static int bias_active(const attn_params *p)
{
    return p->bias.data != NULL;
}

static int alibi_active(const attn_params *p)
{
    return p->alibi_slopes != NULL;
}

typedef struct modifier {
    int last_stage; /* Logits asked for at an earlier stage do not have this modifier. */
    int (*active)(const attn_params *p);
    void (*apply)(tile *t, float *s, int64_t j0, int n);
} modifier;

static const modifier modifiers[] = {
    { ATTN_LOGITS_SOFTCAP, softcap_active, apply_softcap },
    { ATTN_LOGITS_BIAS, bias_active, apply_bias },
    { ATTN_LOGITS_BIAS, alibi_active, apply_alibi },
};

static int has_modifier(const attn_params *p)
{
    int m, any = 0;
    for (m = 0; m < COUNT_OF(modifiers); m++)
        any |= modifiers[m].active(p);
    return any;
}

/* Dead keys become -inf; unused lanes see none. */
static void hide_dead(tile *t, float *s, int64_t j0, int n, int class)
{
    const int rows = t->pl->rows;
    int *begin = t->lane_ints, *end = begin + rows, r, all = 1;
    if (class == ATTN_TILE_PARTIAL && t->by_pair) {
        t->pl->kernels->hide(s, n, t->alive, (int)(j0 - t->alive_from));
        return;
    }
    if ((class == ATTN_TILE_FULL || all_see(t, j0, n)) && t->used == rows)
        return;
    for (r = 0; r < rows; r++) {
        lane_range(t, r, j0, n, &begin[r], &end[r]);
        all &= begin[r] == 0 && end[r] == n;
    }
    if (!all)
        t->pl->kernels->clip(s, n, begin, end);
}

/* The modifiers up to `stage` change scores of keys j0..j0+n-1. */
static void change_logits(tile *t, float *s, int64_t j0, int n, int stage)
{
    int m;
    for (m = 0; m < COUNT_OF(modifiers) && t->pl->modified; m++)
        if (stage >= modifiers[m].last_stage && modifiers[m].active(&t->pr->p))
            modifiers[m].apply(t, s, j0, n);
}

/* scale_logits multiplies logits of whole numbers by the scales of their keys. */
static void scale_logits(const tile *t, float *s, int64_t j0, int n)
{
    float *scale = t->x_tile;
    key_place at = tile_key_at(t, j0);
    int j;
    for (j = 0; j < n; j++) {
        if (j > 0)
            next_tile_key(t, &at);
        scale[j] = *scales_of(t, KEYS, &at);
    }
    t->pl->kernels->scale_keys(s, scale, n);
}

/* tile_logits gives the base-2 logits of keys j0 to j0+n-1 as they stand after `stage`. `class`
 * comes from tile_class and is needed from stage BIAS on. No lane outside `lanes` sees any of the
 * keys. The callback comes after the masks, because it need not see masked pairs. */
static void tile_logits(tile *t, float *s, int64_t j0, int n, int class, int stage,
                        attn_lanes lanes, attn_ahead *ahead)
{
    const attn_params *p = &t->pr->p;
    const attn_kernels *kernels = t->pl->kernels;
    attn_runs runs;
    attn_product product = { .to = s,
                             .by = in_units(t) ? t->qt_units : t->qt,
                             .runs = &runs,
                             .n = n,
                             .dim = p->head_dim,
                             .factor = t->pr->factor,
                             .ahead = ahead };
    if (stage < ATTN_LOGITS_BIAS || t->pl->modified) { /* They need numbers in every lane. */
        lanes.begin = 0;
        lanes.end = t->pl->rows;
    }
    product.lanes = lanes;
    product.scales = t->scales;
    if (few_runs(t, KEYS, j0, n, lanes, &runs)) {
        (in_units(t) ? kernels->qk_units_runs : kernels->qk_runs)(&product);
    } else if (in_units(t)) {
        runs = unit_rows(t, j0, n, t->operand_runs);
        kernels->qk_units(&product);
        if (has_scales(p->k.dtype) && !scales_queries(p))
            scale_logits(t, s, j0, n);
    } else if (kernels->pack_values) {
        product.space = space_of(t);
        runs = rounded_keys(t, j0, n, t->operand_runs);
        kernels->qk(&product);
    } else {
        product.kv = key_rows(t, KEYS, j0, n, lanes, &product.stride);
        kernels->qk(&product);
    }
    change_logits(t, s, j0, n, stage);
    if (stage < ATTN_LOGITS_BIAS)
        return;
    if (class != ATTN_TILE_FULL) /* Unused lanes, which hold +0 where K is finite, are harmless. */
        hide_dead(t, s, j0, n, class);
    if (p->score)
        apply_score(t, s, j0, n);
}

/* open_logits does that for a tile of keys of its own, in all lanes. */
static void open_logits(tile *t, float *s, int64_t j0, int n, int class, int stage)
{
    const attn_lanes all = { 0, t->pl->rows };
    open_keys(t, j0, n);
    tile_logits(t, s, j0, n, class, stage, all, NULL);
}

ATTN_API attn_status attn_alibi_slopes(float *slopes, int64_t num_heads)
{
    int64_t power = 1, h;
    if (!slopes || num_heads < 1 || num_heads > 1 << 20)
        return ATTN_ERR_ARG;
    while (power * 2 <= num_heads)
        power *= 2;
    for (h = 0; h < num_heads; h++) {
        const int64_t step = h < power ? h + 1 : 2 * (h - power) + 1;
        float x = (float)(-8 * step); /* It is exact, and so is the division by a power of two. */
        x = x / (float)(h < power ? power : 2 * power);
        slopes[h] = exp2_canon(x);
    }
    return ATTN_OK;
}

/* src/ahead.c - what a product asks for beside its own work: what the next steps read. */

/* rows_ahead gives rows j to end-1 of K or V, none where end <= j, to be asked for ahead of use. It
 * is good until the next call for this slot. */
static attn_ahead rows_ahead(const tile *t, int which, int64_t j, int64_t end)
{
    attn_ahead a = { .lines = 0 };
    attn_runs runs;
    if (j >= end || !list_runs(t, which, j, end - j, t->ahead_runs, &runs))
        return a;
    a.run = runs.run;
    a.row = *runs.run;
    a.stride = runs.stride;
    a.left = runs.first;
    a.each_run = runs.each;
    a.bytes = bytes_between(runs.dtype, row_dim(t, which));
    a.lines = (end - j) * ceil_div(a.bytes, ALIGNMENT);
    return a;
}

/* lanes_ahead gives `bytes` bytes of a row for each used lane, from at(t, lane, j) on. Rows that follow
 * each other and are one, as those of the heads of a group may be, count once. */
static attn_ahead lanes_ahead(const tile *t,
                              const char *(*at)(const tile *t, const lane *l, int64_t j), int64_t j,
                              int64_t bytes)
{
    const char **list = t->ahead_runs;
    int64_t count = 0;
    attn_ahead a = { .left = 1, .each_run = 1, .bytes = bytes, .run = list };
    int r;
    for (r = t->span.begin; r < t->span.end; r++) {
        const lane *l = &t->lanes[r];
        const char *row = l->used ? at(t, l, j) : NULL;
        if (row && (count == 0 || row != list[count - 1]))
            list[count++] = row;
    }
    ATTN_ASSERT(count > 0); /* Some lane sees a key of the tile. */
    list[count] = list[count - 1];
    a.row = *list;
    a.bytes += (int64_t)((uintptr_t)a.row % ALIGNMENT); /* A row may end inside one more line. */
    a.lines = count * ceil_div(a.bytes, ALIGNMENT);
    return a;
}

static const char *bias_row(const tile *t, const lane *l, int64_t j)
{
    const attn_bias *bias = &t->pr->p.bias;
    return (const char *)bias->data + bias_at(t, l, j) * (int64_t)bytes_of(bias->dtype);
}

/* logits_ahead is for Q K^T of keys j to end-1: their bias, which a row has for itself, or else V. */
static attn_ahead logits_ahead(const tile *t, int64_t j, int64_t end, int values)
{
    const int64_t bytes = (int64_t)bytes_of(t->pr->p.bias.dtype);
    return t->pl->bias_ahead ? lanes_ahead(t, bias_row, j, (end - j) * bytes)
                             : rows_ahead(t, VALUES, j, values ? end : j);
}

static const char *mask_row(const tile *t, const lane *l, int64_t j)
{
    const attn_params *p = &t->pr->p;
    const key_row of = { .p = p, .s = &t->s, .at = l, .j0 = j };
    return p->bool_mask.data ? (const char *)p->bool_mask.data + mask_at(&p->bool_mask, &of)
                             : (const char *)p->bit_mask.data + floor_div(bits_at(&of), 8);
}

/* values_ahead is for P V before keys j to end-1: their mask, which is read first, or else K. */
static attn_ahead values_ahead(const tile *t, int64_t j, int64_t end, int keys)
{
    const int64_t bytes = t->pr->p.bool_mask.data ? end - j : (end - j) / 8 + 1;
    return t->pl->mask_ahead && j < end ? lanes_ahead(t, mask_row, j, bytes)
                                        : rows_ahead(t, KEYS, j, keys ? end : j);
}

/* src/skip.c - skipping: blocks of keys that hold too little of a row's probability are left out of it.
 *
 * Each row has a reference: its first and its last SKIP_LAST blocks, which it always keeps, and its sink.
 * The reference is computed before the row and sums to l 2^m, which the sum of the whole row is not below.
 * A row of n blocks leaves out a block of 16 keys whose largest logit bm shows that it holds at most
 *
 *     16 2^bm <= below * l 2^m / n
 *
 * so that the row loses at most the share `below`. The row compares bm - m with the logarithm of the rest: a
 * limit m + log2(...) would be rounded to the unit of m, which may be large. What decides is canonical and the
 * row's own; the tile, the worker and the step that take the row do not matter. The rules are in docs/canon.md.
 *
 * A state goes on behind o with d [rows], the sum of 2^(bm - m) over the blocks left out.
 */

#define SKIP_LAST 4
/* 15/16 of 1/16, which leaves roundings a part in 16. */
#define SKIP_SHARE 0x1.ep-5f
/* What is left out counts as at least 2^SKIP_LEAST of the reference, where exp2 might give +0. A row that
 * may not lose as much in a block leaves nothing out. */
#define SKIP_LEAST (-120.0f)
/* Roundings make the share that is written at most 2^-10 of it too small, and it is not below this, unless
 * the caller allows less. */
#define SKIP_MARGIN 0x1.004p+0f
#define SKIP_FLOOR 0x1p-100f

/* ---- the reference

   t->skip holds [rows] limits of bm - m, above which a row keeps a block, and [rows] maxima m. */

static float *reference_m(const tile *t)
{
    return t->skip + t->pl->rows;
}

/* skips_from and skips_to give the first key of a lane's first block that may be left out, and of the first
 * block behind these. */
static int64_t skips_from(const tile *t, const lane *l)
{
    return l->lo + ATTN_BLOCK - (t->s.key_base + l->lo) % ATTN_BLOCK;
}

static int64_t skips_to(const tile *t, const lane *l)
{
    const int64_t last = l->hi - 1;
    return last - (t->s.key_base + last) % ATTN_BLOCK - (SKIP_LAST - 1) * ATTN_BLOCK;
}

/* may_skip tells whether a block that begins at key j is none of a lane's reference. */
static int may_skip(const tile *t, const lane *l, int64_t j)
{
    return l->lo < l->hi && j >= skips_from(t, l) && j < skips_to(t, l);
}

/* begin_references lets no lane leave anything out until set_limits, but for those without a row. */
static void begin_references(tile *t)
{
    int r;
    t->skip_from = 0;
    t->skip_to = INT64_MAX;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        t->skip[r] = l->used ? NEG_INF : -NEG_INF;
        reference_m(t)[r] = 0.0f;
        if (!l->used)
            continue;
        t->skip_from = max64(t->skip_from, skips_from(t, l));
        t->skip_to = min64(t->skip_to, l->lo < l->hi ? skips_to(t, l) : 0);
    }
}

/* next_reference gives the first key from j on that lies in a reference block of some lane and that the
 * ranges leave to it, or more than any key. */
static int64_t next_reference(const tile *t, int64_t j)
{
    int64_t first = INT64_MAX;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        int64_t at;
        if (l->lo >= l->hi)
            continue;
        at = max64(j, j < skips_from(t, l) ? l->lo : skips_to(t, l));
        if (at < l->hi)
            first = min64(first, at);
    }
    return first;
}

/* clip_lanes hides n keys from the lanes that have end[lane] = 0; in the others it is n. */
static void clip_lanes(tile *t, float *s, int n, const int *end)
{
    int *const begin = t->lane_ints;
    memset(begin, 0, (size_t)t->pl->rows * sizeof *begin);
    t->pl->kernels->clip(s, n, begin, end);
}

/* keep_reference hides n keys of a block from those lanes whose reference does not hold it. */
static void keep_reference(tile *t, float *s, int n, int64_t j)
{
    int *const end = t->lane_ints + t->pl->rows;
    int r;
    for (r = 0; r < t->pl->rows; r++)
        end[r] = may_skip(t, &t->lanes[r], j) ? 0 : n;
    clip_lanes(t, s, n, end);
}

/* blocks_of_lane counts the canonical blocks of the keys that the ranges leave to a lane. */
static int64_t blocks_of_lane(const tile *t, const lane *l)
{
    const int64_t base = t->s.key_base;
    return (base + l->hi - 1) / ATTN_BLOCK - (base + l->lo) / ATTN_BLOCK + 1;
}

/* set_limits sets the limits of all lanes from m and l of their reference. */
static void set_limits(tile *t, const float *m, const float *l)
{
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *at = &t->lanes[r];
        float x;
        if (!at->used || l[r] == 0.0f)
            continue;
        x = t->pr->p.skip.below * l[r];
        x = x * SKIP_SHARE;
        x = x / (float)blocks_of_lane(t, at);
        x = log2_canon(x);
        if (is_nan(x))
            continue;
        reference_m(t)[r] = m[r];
        t->skip[r] = x;
    }
}

/* ---- blocks */

/* limits_at gives the limits of a block that begins at key j. With one of -inf a lane can lose nothing but
 * dead keys. */
static const float *limits_at(tile *t, int64_t j)
{
    float *const limits = t->lane_values + t->pl->rows;
    int r;
    if (j >= t->skip_from && j < t->skip_to)
        return t->skip;
    for (r = 0; r < t->pl->rows; r++)
        limits[r] = !t->lanes[r].used || may_skip(t, &t->lanes[r], j) ? t->skip[r] : NEG_INF;
    return limits;
}

/* judge_lanes sets low[lane] to 1 for the lanes that leave out a block, whose largest logits high has, and
 * counts them. high then has what is left out, relative to m: -inf for nothing. */
static int judge_lanes(float *RESTRICT high, int *RESTRICT low, const float *RESTRICT limit,
                       const float *RESTRICT m, int rows)
{
    int r, k, count = 0;
    for (r = 0; r < rows; r += 4)
        for (k = r; k < r + 4; k++) {
            const int dead = is_neg_inf(high[k]);
            float x = high[k] - m[k];
            int is_low;
            x = choose(x > SKIP_LEAST, x, SKIP_LEAST);
            is_low = dead | (x <= limit[k]);
            high[k] = choose(is_low & !dead, x, NEG_INF);
            low[k] = is_low;
            count += is_low;
        }
    return count;
}

static int holds_nan(const float *s, int n, int rows)
{
    int k, any = 0;
    for (k = 0; k < n; k++)
        any |= is_nan(s[k * rows]);
    return any;
}

/* keep_nans takes the lanes with a NaN among n logits out of those that leave them out, and counts those. */
static int keep_nans(const float *s, int n, int rows, float *high, int *low)
{
    int r, count = 0;
    for (r = 0; r < rows; r++)
        if (low[r] && holds_nan(s + r, n, rows)) {
            low[r] = 0;
            high[r] = NEG_INF;
            count++;
        }
    return count;
}

/* skip_block decides about n keys from j on, which one block holds. It returns 1 if all lanes leave them out,
 * and otherwise hides them from those that do. */
static int skip_block(tile *t, float *s, int n, int64_t j, float *d)
{
    const attn_kernels *kernels = t->pl->kernels;
    const int rows = t->pl->rows;
    float *const high = t->lane_values, *const zero = high + 2 * rows;
    int *const low = t->lane_ints + rows;
    int r, count;
    for (r = 0; r < rows; r++) {
        high[r] = NEG_INF;
        zero[r] = 0.0f;
    }
    kernels->maximum(s, n, high);
    count = judge_lanes(high, low, limits_at(t, j), reference_m(t), rows);
    if (count && !kernels->finite(s, (int64_t)n * rows))
        count -= keep_nans(s, n, rows, high, low);
    if (count == 0)
        return 0;
    kernels->exp_sum(high, 1, 0.0f, zero, d);
    if (count == rows)
        return 1;
    for (r = 0; r < rows; r++)
        low[r] = low[r] ? 0 : n;
    clip_lanes(t, s, n, low);
    return 0;
}

/* ---- the result */

/* dropped_share gives a bound on the share that a row left out, which is at most `below`. m and l are those of
 * the keys kept and the sink, and d is relative to m_ref. */
static float dropped_share(float m, float l, float m_ref, float d, float below)
{
    float x = d == 0.0f ? 0.0f : m_ref - m, all; /* Without a reference m may lie anywhere. */
    if (l == 0.0f)
        return 0.0f;
    x = exp2_canon(x);
    x = d * x;
    x = x * (float)ATTN_BLOCK;
    all = l + x;
    x = x / all;
    x = x * SKIP_MARGIN;
    if (d > 0.0f && x < SKIP_FLOOR)
        x = below < SKIP_FLOOR ? below : SKIP_FLOOR;
    return x;
}

/* write_dropped writes the bounds of finished rows, by m and l after the sink. */
static void write_dropped(const tile *t, const float *m, const float *l, const float *d)
{
    const attn_params *p = &t->pr->p;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *at = &t->lanes[r];
        if (at->used)
            store_f32(p->skip.dropped, state_row(p, &t->s, at->head, at->i),
                      dropped_share(m[r], l[r], reference_m(t)[r], d[r], p->skip.below));
    }
}

/* src/state.c - the state (m, l, o) of a tile's rows: how chunks become the root, the sink, and the result.
 *
 * A state is stored as [m rows][l rows][o head_dim_v x rows], and goes on as src/insight.c and src/skip.c say.
 */

static float *state_l(const tile *t, float *state)
{
    return state + t->pl->rows;
}

static float *state_o(const tile *t, float *state)
{
    return state + 2 * t->pl->rows;
}

/* state_tail gives what lies behind o. */
static float *state_tail(const tile *t, float *state)
{
    return state_o(t, state) + t->pr->p.head_dim_v * t->pl->rows;
}

static float *take_state(tile *t)
{
    float *const state = t->free;
    ATTN_ASSERT(state);
    memcpy(&t->free, state, sizeof t->free);
    return state;
}

/* last_tail gives the tail of the node that ends last among those that wait, or NULL. */
static const float *last_tail(const tile *t)
{
    int level = 0;
    while (level < t->levels && !t->pending[level])
        level++;
    return level < t->levels ? state_tail(t, t->pending[level]) : NULL;
}

static float *begin_state(tile *t)
{
    float *state = take_state(t);
    const int64_t rows = t->pl->rows;
    int64_t k;
    memset(state, 0, (size_t)t->pl->state_floats * sizeof *state);
    for (k = 0; k < rows; k++)
        state[k] = NEG_INF;
    if (t->insight)
        begin_insight(t, state_tail(t, state), last_tail(t));
    return state;
}

/* join_states makes `upper` the merge of both; what a state has beside m, l and o goes by its own rules,
 * and t then as one more column of o. */
static void join_states(tile *t, float *lower, float *upper)
{
    int64_t columns = t->pr->p.head_dim_v;
    if (t->insight)
        columns += merge_insight(t, lower, upper, state_tail(t, lower), state_tail(t, upper));
    if (t->skip)
        add_floats(state_tail(t, upper), state_tail(t, lower), t->pl->rows);
    t->pl->kernels->merge(lower, upper, columns);
}

/* take_node takes the current state out of the tile, merged with what waits below `level`. */
static float *take_node(tile *t, int level)
{
    float *state = t->state, *lower;
    t->state = NULL;
    if (level > t->levels)
        level = t->levels;
    while ((lower = take_lower(t->pending, level)) != NULL) {
        if (state) {
            join_states(t, lower, state);
            give_state(t, lower);
        } else {
            state = lower;
        }
    }
    return state;
}

static void put_node(tile *t, int level, float *state)
{
    ATTN_ASSERT(t->pending[level] == NULL);
    t->pending[level] = state;
    t->levels = level < t->levels ? t->levels : level + 1;
}

/* end_chunk puts the state of chunk i, which is complete, into the tree; it is NULL if no key of the
 * chunk was visible. */
static void end_chunk(tile *t, int64_t i)
{
    const int level = level_after(i);
    put_node(t, level, take_node(t, level));
}

/* take_root gives the root: keys and chunks that never came are empty. */
static float *take_root(tile *t)
{
    float *root = take_node(t, MAX_LEVELS);
    return root ? root : begin_state(t);
}

/* rows_finite looks at n numbers of each lane that has a row. In the others, zero queries meet K, and
 * an infinity there gives NaN. */
static int rows_finite(const tile *t, const float *x, int64_t n)
{
    const int rows = t->pl->rows;
    int64_t i;
    for (i = 0; i < n * rows; i++)
        if (t->lanes[i % rows].used && !t->pl->kernels->finite(x + i, 1))
            return 0;
    return 1;
}

/* needs_redo tells whether the tile needs the second pass, because a masked NaN or Inf may have met
 * p = +0. */
static int needs_redo(const tile *t, float *state)
{
    const int64_t values = wants_values(&t->pr->p) ? t->pr->p.head_dim_v : 0;
    const float *const sums = state_l(t, state); /* These are l, then o. */
    return t->pr->p.force_redo || (!t->pl->kernels->finite(sums, (values + 1) * t->pl->rows) &&
                                   !rows_finite(t, sums, values + 1));
}

/* merge_sink merges one row with the state (sink * log2 e, 1, 0) of its sink: it updates m and l
 * and returns the factor on o, which scale_values applies. */
static float merge_sink(float sink, float *m, float *l)
{
    const float sink2 = sink * LOG2E_HI;
    const float top = *m > sink2 ? *m : sink2;
    float w = *m - top, w_sink = sink2 - top;
    w = exp2_canon(w);
    w_sink = exp2_canon(w_sink);
    *m = top;
    *l = *l * w;
    *l = w_sink + *l; /* This is fma(1, w_sink, l). */
    return w;
}

static void scale_values(float *o, int64_t step, int64_t n, float w)
{
    int64_t d;
    for (d = 0; d < n; d++) {
        o[d * step] = o[d * step] * w;
        o[d * step] = o[d * step] + 0.0f; /* This is fma(0, w_sink, o). */
    }
}

/* row_lse gives the LSE of a finished row. `empty` means that no key was alive; the LSE is then the
 * sink. */
static float row_lse(float m, float l, int empty, float sink)
{
    float lse = sink;
    if (!empty) {
        lse = log2_canon(l);
        lse = m + lse;
        lse = lse * LN2;
    }
    return lse + 0.0f;
}

/* write_sums writes LSE and statistics of a row after its sink. Where no key was alive, l is 0, and
 * both are those of the sink, or of nothing. */
static void write_sums(const attn_params *p, const sequence *s, int64_t head, int64_t i, float m,
                       float l)
{
    const float sink = sink_of(p, head), sink2 = sink * LOG2E_HI;
    const int64_t row = s->q_row + i, at = ROW_AT(p->stats, s, head, row);
    const int empty = l == 0.0f;
    if (p->lse.data)
        store_f32(p->lse.data, ROW_AT(p->lse, s, head, row), row_lse(m, l, empty, sink));
    if (!p->stats.data)
        return;
    store_f32(p->stats.data, at, (empty ? sink2 : m) + 0.0f);
    store_f32(p->stats.data, at + 1, empty && !is_neg_inf(sink) ? 1.0f : l);
}

/* add_sinks applies the sink to every used lane that is not empty. */
static void add_sinks(tile *t, float *state)
{
    const int rows = t->pl->rows;
    float *l = state_l(t, state);
    int r;
    for (r = 0; r < rows; r++) {
        const float sink = t->lanes[r].used ? sink_of(&t->pr->p, t->lanes[r].head) : NEG_INF;
        if (!is_neg_inf(sink) && l[r] != 0.0f) {
            const float w = merge_sink(sink, &state[r], &l[r]);
            scale_values(state_o(t, state) + r, rows, t->pr->p.head_dim_v, w);
        }
    }
}

/* continue_state loads the chunk that part.continued goes on with, as write_partial left it. */
static void continue_state(tile *t)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int64_t d;
    int r;
    if (!p->part.continued)
        return;
    t->state = begin_state(t);
    for (r = 0; r < rows; r++) {
        const lane *at = &t->lanes[r];
        const int64_t row = at->used ? state_row(p, &t->s, at->head, at->i) : 0;
        if (!at->used)
            continue;
        t->state[r] = p->state.m[row];
        state_l(t, t->state)[r] = p->state.l[row];
        for (d = 0; d < p->head_dim_v; d++)
            state_o(t, t->state)[d * rows + r] = p->state.o[row * p->head_dim_v + d];
    }
}

static void write_partial(const tile *t, float *state)
{
    const attn_params *p = &t->pr->p;
    const int rows = t->pl->rows;
    int64_t d;
    int r;
    for (r = 0; r < rows; r++) {
        const lane *at = &t->lanes[r];
        const int64_t row = at->used ? state_row(p, &t->s, at->head, at->i) : 0;
        if (!at->used)
            continue;
        p->state.m[row] = state[r] + 0.0f;
        p->state.l[row] = state_l(t, state)[r];
        for (d = 0; d < p->head_dim_v; d++)
            p->state.o[row * p->head_dim_v + d] = state_o(t, state)[d * rows + r] + 0.0f;
    }
}

/* write_lanes divides rows [dim][lane] of a tile by l, multiplies them by the factor and writes
 * them to rows of an output: f32 directly, other types by way of t->stage. */
static void write_lanes(tile *t, const attn_output *to, int64_t dim, const float *x, const float *l,
                        float factor)
{
    const int in_place = to->dtype == ATTN_F32;
    float **out = t->row_out;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *at = &t->lanes[r];
        out[r] = t->stage + r * dim;
        if (!at->used || !in_place)
            continue;
        out[r] = (float *)to->data + ROW_AT(*to, &t->s, at->head, t->s.q_row + at->i);
        if (t->pl->rows_ahead)
            PREFETCH_RUN((const char *)out[r], dim * (int64_t)sizeof(float));
    }
    t->pl->kernels->result(out, x, l, factor, dim);
    for (r = 0; r < t->pl->rows && t->pr->p.rotated & ATTN_ROTATED_V; r++)
        if (t->lanes[r].used)
            rotate_result(out[r], dim);
    for (r = 0; r < t->pl->rows && !in_place; r++) {
        const lane *at = &t->lanes[r];
        if (at->used)
            store_run(t->pl->kernels, to->dtype, to->data,
                      ROW_AT(*to, &t->s, at->head, t->s.q_row + at->i), out[r], dim);
    }
}

/* write_rows writes the root state of a tile to rows of the outputs. */
static void write_rows(tile *t, float *state)
{
    const attn_params *p = &t->pr->p;
    int r;
    if (p->partial) {
        write_partial(t, state);
        return;
    }
    if (t->insight)
        keep_sums(t, state, state_l(t, state));
    add_sinks(t, state);
    if (t->insight)
        write_insight(t, state, state_l(t, state), state_tail(t, state));
    if (t->skip)
        write_dropped(t, state, state_l(t, state), state_tail(t, state));
    if (p->o.data)
        write_lanes(t, &p->o, p->head_dim_v, state_o(t, state), state_l(t, state),
                    t->pr->keep_factor);
    for (r = 0; r < t->pl->rows && (p->lse.data || p->stats.data); r++)
        if (t->lanes[r].used)
            write_sums(p, &t->s, t->lanes[r].head, t->lanes[r].i, state[r], state_l(t, state)[r]);
}

/* src/tiled.c - tiled items: the online softmax over tiles of keys.
 *
 * Milakov, Gimelshein 2018 (arXiv 1805.02867), tiled as in Dao et al. 2022 (arXiv 2205.14135), in
 * chunks of 1024 keys that a binary tree merges.
 */

/* add_products adds p of n keys times V to o. */
static void add_products(tile *t, float *o, const float *probabilities, int64_t j0, int n,
                         attn_lanes lanes, attn_ahead *ahead)
{
    const attn_kernels *kernels = t->pl->kernels;
    attn_runs runs;
    attn_product p = { .to = o,
                       .by = probabilities,
                       .runs = &runs,
                       .n = n,
                       .dim = t->columns,
                       .lanes = lanes,
                       .ahead = ahead };
    if (!is_dead(t->dead) && few_runs(t, VALUES, j0, n, lanes, &runs)) {
        kernels->pv_runs(&p);
        return;
    }
    if (kernels->pack_values)
        value_panel(t, j0, &p);
    else
        p.kv = key_rows(t, VALUES, j0, n, lanes, &p.stride);
    if (is_dead(t->dead))
        kernels->pv_select(&p);
    else
        kernels->pv(&p);
}

/* block_begin tells where the keys of block i begin in the tile. */
static int block_begin(const tile *t, int i)
{
    return i ? t->blocks[i - 1].end : 0;
}

/* joins_others tells whether the logits of a block may be computed with those of its neighbours. */
static int joins_others(const tile *t, int i)
{
    return t->list.at || t->blocks[i].end - block_begin(t, i) == ATTN_BLOCK;
}

/* end_of_step gives the block behind the step that begins with block `first`. The logits of a step
 * are computed together: all whole or listed blocks that follow with the same lanes. One call takes less time
 * than several, and with few lanes the kernel may read K in its own order. */
static int end_of_step(const tile *t, int first)
{
    const attn_lanes lanes = t->blocks[first].lanes;
    const int most = joins_others(t, first) ? t->block_count : first + 1;
    int end = first + 1;
    while (end < most && t->blocks[end].lanes.begin == lanes.begin &&
           t->blocks[end].lanes.end == lanes.end && joins_others(t, end))
        end++;
    return end;
}

/* A key_step is the blocks of one step; all fields are 0 before the first step. */
typedef struct key_step {
    int first, next; /* These are blocks. */
    int begin, end;  /* These are their keys, counted in the tile. */
    attn_lanes lanes;
} key_step;

/* take_step goes to the next step that has lanes, and returns 0 after the last. */
static int take_step(const tile *t, key_step *st)
{
    do {
        if (st->next == t->block_count)
            return 0;
        st->first = st->next;
        st->next = end_of_step(t, st->first);
        st->begin = st->end;
        st->end = t->blocks[st->next - 1].end;
        st->lanes = t->blocks[st->first].lanes;
    } while (st->lanes.begin == st->lanes.end);
    return 1;
}

/* decide_block decides the maximum m for block i, whose logits are computed. It returns the
 * exponentials that come next, with the sum l. */
static attn_exp decide_block(tile *t, int i, float *m, float *l)
{
    const int rows = t->pl->rows, begin = block_begin(t, i);
    block *b = &t->blocks[i];
    attn_exp e = { t->s_tile + begin * rows, b->end - begin, m, l, b->lanes, .calm = 0 };
    const int found = t->pl->kernels->running_max(e.s, e.n, m, l, t->alpha + i * rows);
    b->raised = found & ATTN_RAISED;
    e.calm = found & ATTN_IS_CALM;
    return e;
}

/* weigh_block makes probabilities of logits. */
static void weigh_block(const tile *t, const attn_exp *e)
{
    if (is_dead(t->dead))
        t->pl->kernels->exp_sum(e->s, e->n, t->dead, e->m, e->l);
    else
        t->pl->kernels->exp_block(e);
}

/* enter_block takes block i, whose logits are computed, into the running maximum and sum. */
static void enter_block(tile *t, int i)
{
    const attn_exp e = decide_block(t, i, t->state, state_l(t, t->state));
    weigh_block(t, &e);
}

/* same_floats tells whether n numbers are equal; a NaN is not. */
static int same_floats(const float *RESTRICT x, const float *RESTRICT y, int n)
{
    int r, other = 0;
    for (r = 0; r < n; r++)
        other |= x[r] != y[r];
    return !other;
}

/* enter_blocks enters block `first` and returns the next one. Listed keys make blocks of one or two
 * keys. Those up to `next` that have together no more keys than a whole block enter at once if no
 * maximum changes: each then sees the operations that it sees alone. */
static int enter_blocks(tile *t, int first, int next)
{
    const int rows = t->pl->rows, begin = block_begin(t, first);
    const size_t bytes = (size_t)rows * sizeof(float);
    float *const m = t->state, *const l = state_l(t, m);
    float *const old_m = t->lane_values, *const old_l = old_m + rows;
    attn_exp e = { t->s_tile + begin * rows, 0, m, l, t->blocks[first].lanes, .calm = 0 };
    int end = first + 1;
    while (end < next && t->blocks[end].end - begin <= ATTN_BLOCK)
        end++;
    if (end > first + 1) {
        e.n = t->blocks[end - 1].end - begin;
        memcpy(old_m, m, bytes);
        memcpy(old_l, l, bytes);
        e.calm =
            t->pl->kernels->running_max(e.s, e.n, m, l, t->alpha + first * rows) & ATTN_IS_CALM;
        if (same_floats(old_m, m, rows)) {
            weigh_block(t, &e);
            return end;
        }
        memcpy(m, old_m, bytes);
        memcpy(l, old_l, bytes);
    }
    enter_block(t, first);
    return first + 1;
}

/* watch_block does what enter_block does, and takes the block, of keys from j on, into what goes on
 * behind o. */
static void watch_block(tile *t, int i, int64_t j)
{
    const int rows = t->pl->rows, begin = block_begin(t, i);
    const block *b = &t->blocks[i];
    float *const tail = state_tail(t, t->state), *const l = state_l(t, t->state);
    attn_exp e;
    keep_sums(t, t->state, l);
    keep_logits(t, tail, t->s_tile + begin * rows, b->end - begin, b->lanes, j);
    e = decide_block(t, i, t->state, l);
    if (b->raised)
        raise_entropy(t, tail, t->state, t->alpha + i * rows);
    weigh_block(t, &e);
    add_entropy(t, tail, &e);
}

/* leaves_block lets lanes leave block i out, whose logits are computed and whose first key is j, and tells
 * whether all do. */
static int leaves_block(tile *t, int i, int64_t j)
{
    const int begin = block_begin(t, i), n = t->blocks[i].end - begin;
    float *const s = t->s_tile + begin * t->pl->rows;
    if (t->referring) {
        keep_reference(t, s, n, j);
        return 0;
    }
    if (!skip_block(t, s, n, j, state_tail(t, t->state)))
        return 0;
    t->blocks[i].lanes.end = t->blocks[i].lanes.begin;
    return 1;
}

/* take_blocks takes block i of a tile that begins at key j0, and more of those before `next` where they go
 * together. It returns the block behind these. */
static int take_blocks(tile *t, int i, int next, int64_t j0)
{
    const int64_t j = j0 + block_begin(t, i);
    if (t->skip && leaves_block(t, i, j))
        return i + 1;
    if (!t->insight)
        return enter_blocks(t, i, t->skip ? i + 1 : next);
    watch_block(t, i, j);
    return i + 1;
}

/* add_blocks computes the logits, running maximum and sum, and probabilities of the blocks of a
 * tile that begins at key j0. */
static void add_blocks(tile *t, int64_t j0, int class, attn_ahead ahead)
{
    const int keys = t->blocks[t->block_count - 1].end, rows = t->pl->rows;
    const int64_t lines = ahead.lines;
    key_step st = { 0, 0, 0, 0, { 0, 0 } };
    int i;
    while (take_step(t, &st)) {
        ahead.lines = lines * (st.end - st.begin) / keys;
        tile_logits(t, t->s_tile + st.begin * rows, j0 + st.begin, st.end - st.begin, class,
                    ATTN_LOGITS_SOFTMAX, st.lanes, &ahead);
        for (i = st.first; i < st.next;)
            i = take_blocks(t, i, st.next, j0);
    }
}

/* add_values adds the probabilities of a tile times V, block by block. Blocks with one set of lanes
 * and without a rescale between them go in one step. */
static void add_values(tile *t, float *o, int64_t j0, attn_ahead *ahead)
{
    const int rows = t->pl->rows;
    const int64_t lines = ahead->lines;
    int begin = 0, i = 0;
    while (i < t->block_count) {
        const attn_lanes lanes = t->blocks[i].lanes;
        int end = t->blocks[i].end;
        if (t->blocks[i].raised)
            t->pl->kernels->rescale(o, t->alpha + i * rows, t->columns);
        for (i++; i < t->block_count && !t->blocks[i].raised &&
                  t->blocks[i].lanes.begin == lanes.begin && t->blocks[i].lanes.end == lanes.end;
             i++)
            end = t->blocks[i].end;
        ahead->lines = lines * (end - begin) / t->blocks[t->block_count - 1].end;
        if (lanes.begin < lanes.end)
            add_products(t, o, t->s_tile + begin * rows, j0 + begin, end - begin, lanes, ahead);
        begin = end;
    }
}

/* add_keys adds keys j0 to j0+n-1 to the state of the current chunk. Each product asks for what the
 * next steps read: Q K^T for these rows of V, or their bias; P V for the next tile of K, unless a mask
 * may skip that, or for its mask. Memory therefore never rests, and what is asked for fits into L2. Where
 * blocks may be left out, V is not asked for, and Q K^T asks for the next tile of K. */
static void add_keys(tile *t, int64_t j0, int n, int values)
{
    const int class = tile_class(t, j0, n);
    const int64_t next = j0 + n;
    const int64_t end = min64(next + t->pl->keys, min64(t->hi, t->spans[t->version].hi));
    const int leads = t->pl->ahead && t->keys->asked < next;
    if (class == ATTN_TILE_EMPTY)
        return;
    t->keys->asked = max64(t->keys->asked, next);
    if (!t->state)
        t->state = begin_state(t);
    set_blocks(t, j0, n);
    add_blocks(t, j0, class,
               t->skip ? rows_ahead(t, KEYS, next, leads && values ? end : next)
                       : logits_ahead(t, j0, next, leads && values));
    if (values) {
        attn_ahead ahead = values_ahead(t, next, end, leads && !t->pl->by_pair && !t->skip);
        if (t->pr->drop_below)
            drop_keys(t, t->s_tile, j0, n);
        add_values(t, state_o(t, t->state), j0, &ahead);
    }
}

/* narrow_to_version has a version read from now on, and narrows *from..*to-1 to what is seen of it. */
static void narrow_to_version(tile *t, int version, int64_t *from, int64_t *to)
{
    t->version = version;
    *from = max64(*from, t->spans[version].lo);
    *to = min64(*to, t->spans[version].hi);
}

/* add_key_tile adds the tile of keys j0 to end-1 to the states of `count` row tiles: first those pairs
 * that read what is stored, then those that read p.recent. To the other pairs each visit does nothing. */
static void add_key_tile(tile *const *tiles, int count, int64_t j0, int64_t end, int values)
{
    const int versions = versions_of(&tiles[0]->pr->p);
    int version, g;
    for (version = 0; version < versions; version++) {
        open_keys(tiles[0], j0, (int)(end - j0));
        for (g = 0; g < count; g++) {
            int64_t from = j0, to = min64(end, tiles[g]->hi);
            narrow_to_version(tiles[g], version, &from, &to);
            if (from < to)
                add_keys(tiles[g], from, (int)(to - from), values);
        }
    }
}

/* first_key finds the first of keys j to end-1 that a row tile may see, or end. */
static int64_t first_key(tile *const *tiles, int count, int64_t j, int64_t end)
{
    int g, m;
    for (g = 0; g < count && j < end; g++) {
        const tile *t = tiles[g];
        const attn_params *p = &t->pr->p;
        int64_t at = max64(j, t->lo);
        for (m = 0; m < COUNT_OF(mask_rules) && at < min64(end, t->hi); m++)
            if (mask_rules[m].next && is_set(p, mask_rules[m].on))
                at = mask_rules[m].next(p, &t->s, &t->hull, at, min64(end, t->hi));
        if (at < t->hi)
            end = min64(end, at);
    }
    return end;
}

/* next_key looks for that key up to hi, in reaches that double. One reach to hi would search a row
 * without visible cells to its end for each tile of the other rows. */
static int64_t next_key(tile *const *tiles, int count, int64_t j, int64_t hi)
{
    int64_t reach = tiles[0]->pl->keys;
    while (tiles[0]->pl->by_pair && j < hi) {
        const int64_t end = j + min64(reach, hi - j), next = first_key(tiles, count, j, end);
        if (next < end)
            return next;
        j = end;
        reach = min64(2 * reach, INT32_MAX);
    }
    return j;
}

/* find_span makes keys *lo to *hi-1 those from the first to the last that the ranges leave to any of the
 * row tiles. */
static void find_span(tile *const *tiles, int count, int64_t *lo, int64_t *hi)
{
    int g;
    *lo = tiles[0]->lo;
    *hi = tiles[0]->hi;
    for (g = 1; g < count; g++)
        if (tiles[g]->lo < tiles[g]->hi) {
            *lo = *lo < *hi ? min64(*lo, tiles[g]->lo) : tiles[g]->lo;
            *hi = max64(*hi, tiles[g]->hi);
        }
}

/* gathered_end gives the end of the tile of listed keys that begins at place j: whole blocks. */
static int64_t gathered_end(const tile *t, int64_t j, int64_t end)
{
    int64_t at = min64(j + t->pl->keys, end);
    while (at < end && block_end(t, at - 1) > at)
        at--;
    return at;
}

/* enter_listed enters places j to end-1 of the list, of the open tile, chunk by chunk; `first` is the
 * place where the pass began. Chunks without a listed key are empty. */
static void enter_listed(tile *t, int64_t first, int64_t j, int64_t end, int values)
{
    const int64_t base = t->s.key_base;
    int64_t next, current, from, to;
    for (; j < end; j = next) {
        const int64_t chunk = (base + t->list.at[j]) / ATTN_CHUNK;
        current = j > first ? (base + t->list.at[j - 1]) / ATTN_CHUNK : chunk;
        for (; current < chunk; current++)
            end_chunk(t, current);
        next = min64(end, first_listed(t->list, (chunk + 1) * ATTN_CHUNK - base));
        from = j, to = min64(next, t->hi);
        narrow_to_version(t, STORED, &from, &to);
        if (from < to)
            add_keys(t, from, (int)(to - from), values);
    }
}

/* gathered_pass is tiled_pass over places of the row tiles' list. A tile of keys has those of many
 * chunks, so that the states of one row tile stay in the cache meanwhile. */
static void gathered_pass(tile *const *tiles, int count, int64_t from, int64_t to, int values)
{
    int64_t first, hi, j, end;
    int g;
    tiles[0]->keys->asked = 0;
    find_span(tiles, count, &first, &hi);
    first = max64(first, from);
    hi = min64(hi, to);
    for (j = first; j < hi; j = end) {
        end = gathered_end(tiles[0], j, hi);
        open_keys(tiles[0], j, (int)(end - j));
        for (g = 0; g < count; g++)
            enter_listed(tiles[g], first, j, end, values);
    }
}

/* tiled_pass passes once over those keys `from` to `to`-1, in a list those places, that any of the row
 * tiles sees; the row tiles share K and V. Tiles of keys end where n is a multiple of their size. A chunk
 * that is not complete stays in t->state. */
static void tiled_pass(tile *const *tiles, int count, int64_t from, int64_t to, int values)
{
    const int64_t base = tiles[0]->s.key_base, keys = tiles[0]->pl->keys;
    int64_t j, hi, next;
    int g;
    if (tiles[0]->list.at) {
        gathered_pass(tiles, count, from, to, values);
        return;
    }
    tiles[0]->keys->asked = 0;
    find_span(tiles, count, &j, &hi);
    j = max64(j, from);
    hi = min64(hi, to);
    next = next_key(tiles, count, j, hi);
    while (j < hi) {
        const int64_t chunk = (base + j) / ATTN_CHUNK;
        const int64_t chunk_end = min64(hi, (chunk + 1) * ATTN_CHUNK - base);
        while (next < chunk_end) {
            const int64_t end = min64(chunk_end, ((base + next) / keys + 1) * keys - base);
            add_key_tile(tiles, count, next, end, values);
            next = next_key(tiles, count, end, hi);
        }
        j = chunk_end;
        for (g = 0; g < count && (base + j) % ATTN_CHUNK == 0; g++)
            end_chunk(tiles[g], chunk);
    }
}

/* tiled_state gives the root state after tiled_pass, with the second pass where it is needed. */
static float *tiled_state(tile *t, int values)
{
    float *root = take_root(t);
    if (values && needs_redo(t, root)) {
        give_state(t, root);
        t->dead = ATTN_DEAD;
        continue_state(t);
        tiled_pass(&t, 1, 0, INT64_MAX, values);
        root = take_root(t);
    }
    return root;
}

/* tiled_choice tells the sequence and rows of item `index`; heavy causal tiles come first. The rows of a
 * gathered item share a list of keys. */
static row_choice tiled_choice(const problem *pr, const plan *pl, int64_t index, int64_t *b,
                               int64_t *kv_head)
{
    const attn_params *p = &pr->p;
    const int64_t slot = pl->tiles - 1 - index % pl->tiles, unit = item_rows(pl);
    row_choice choice = { .heads = pr->group, .count = INT64_MAX };
    index /= pl->tiles;
    if (p->cu_seqlens_q) {
        /* lo becomes the last b whose first slot, cu[b] * group / unit + b, is not beyond. */
        int64_t lo = 0, hi = p->batch;
        while (hi - lo > 1) {
            const int64_t middle = lo + (hi - lo) / 2;
            if (p->cu_seqlens_q[middle] * pr->group / unit + middle <= slot)
                lo = middle;
            else
                hi = middle;
        }
        *b = lo;
        *kv_head = index;
        choice.first = (slot - (p->cu_seqlens_q[lo] * pr->group / unit + lo)) * unit;
    } else {
        *b = index / p->num_heads_kv;
        *kv_head = index % p->num_heads_kv;
        choice.first = slot * unit;
    }
    if (pl->gathered) {
        const int64_t each = items_of_list(pr, pl), rows = rows_of_list(p), list = slot / each;
        choice.first = list * rows * choice.heads + slot % each * unit;
        choice.count = (list + 1) * rows;
    }
    choice.head0 = *kv_head * pr->group;
    return choice;
}

/* refer_rows computes the reference of a tile's rows: their state after the reference blocks and the sink. */
static void refer_rows(tile *t)
{
    int64_t j, end;
    begin_references(t);
    t->keys->asked = 0;
    t->referring = 1;
    for (j = next_reference(t, t->lo); j < t->hi; j = next_reference(t, end)) {
        end = min64(block_end(t, j), t->hi);
        add_key_tile(&t, 1, j, end, 0);
    }
    t->referring = 0;
    if (!t->state)
        return;
    add_sinks(t, t->state);
    set_limits(t, t->state, state_l(t, t->state));
    give_state(t, t->state);
    t->state = NULL;
}

/* open_rows begins row tile number g of item `index`, with its rows chosen and packed. */
static tile *open_rows(const call *c, char *slot, int64_t index, int g)
{
    tile *t = open_tile(c, slot, g);
    int64_t b;
    row_choice choice = tiled_choice(&c->pr, &c->pl, index, &b, &t->kv_head);
    t->s = sequence_of(&c->pr.p, b);
    if (c->pl.gathered)
        t->list = listed_for(&c->pr.p, b, t->kv_head, choice.first / choice.heads);
    choice.first += t->s.row_from * choice.heads + (int64_t)g * c->pl.rows;
    choice.count = min64(choice.count, t->s.row_to);
    set_rows(t, &choice);
    if (t->skip)
        refer_rows(t);
    return t;
}

/* open_item opens the row tiles of item `index` and returns how many have rows. */
static int open_item(const call *c, char *slot, int64_t index, tile **tiles)
{
    int count = 0, g;
    for (g = 0; g < c->pl.item_tiles; g++) {
        tiles[count] = open_rows(c, slot, index, g);
        count += tiles[count]->used > 0;
    }
    return count;
}

/* finish_item adds the keys from `from` on to the states of row tiles, and writes these. */
static void finish_item(tile *const *tiles, int count, int64_t from)
{
    int g;
    if (count)
        tiled_pass(tiles, count, from, INT64_MAX, wants_values(&tiles[0]->pr->p));
    for (g = 0; g < count; g++)
        write_rows(tiles[g], tiled_state(tiles[g], wants_values(&tiles[g]->pr->p)));
}

static void tiled_item(const call *c, char *slot, int64_t index)
{
    tile *tiles[ITEM_TILES];
    const int count = open_item(c, slot, index, tiles);
    int g;
    for (g = 0; g < count; g++)
        continue_state(tiles[g]);
    finish_item(tiles, count, 0);
}

/* src/split.c - split items: few row tiles and many workers, so the keys of a row tile are divided, too.
 *
 * Flash-Decoding (Dao, Haziza, Massa, Sizov 2023). A part is a node of the merge tree, computed as a
 * tiled item is. Chunks that would not fill a round of all workers are divided themselves. The lists,
 * one after the other:
 *
 *     scores    whole parts; of divided chunks Q K^T and the maxima of blocks, by tiles of keys
 *     weights   running maximum and exponentials, by tiles of keys
 *     values    P V, by slices of columns, and the sums
 *     combine   the tree of all parts, and the results, by row tiles
 *
 * Every element sees the operations of a tiled item in their order.
 */

/* split_tile gives row tile `row` of all. A slot keeps the row tiles of an item until it is asked
 * for another's. */
static tile *split_tile(const call *c, char *slot, int64_t row)
{
    const int64_t item = row / c->pl.item_tiles;
    key_tile *keys = (key_tile *)(void *)slot;
    tile *t = row_tile(&c->pl, slot, (int)(row % c->pl.item_tiles));
    int g;
    for (g = 0; g < c->pl.item_tiles && keys->item != item; g++)
        open_rows(c, slot, item, g);
    keys->item = item;
    set_scratch(t, slot);
    t->column = 0;
    t->columns = c->pr.p.head_dim_v;
    t->state = NULL;
    return t;
}

/* part_state tells where a part's state lies. */
static float *part_state(const call *c, int64_t row, int part)
{
    const split *sp = &c->pl.split;
    char *share = (char *)c->shared + row * sp->bytes;
    return (float *)(void *)(share + part * (sp->states_bytes / sp->parts));
}

/* part_keys gives a part's node and those of its keys that a row tile sees, by their places in its
 * list if it has one; 0 means none. */
static int part_keys(const tile *t, int part, int64_t *node, int64_t *from, int64_t *to)
{
    const int level = t->pl->split.level;
    const int64_t base = t->s.key_base, keys = (int64_t)ATTN_CHUNK << level;
    *node = (base + t->s.key_from) / keys + part;
    *from = max64(place_in_list(t, *node * keys - base), t->lo);
    *to = min64(place_in_list(t, (*node + 1) * keys - base), t->hi);
    return *from < *to;
}

/* A cut is a tile of keys of a divided chunk. */
typedef struct cut {
    int64_t from, to; /* The row tile sees these of its keys. */
    int *count;       /* count is that of its blocks. */
    float *high;      /* high holds [block][rows] maxima. */
} cut;

/* open_cut opens tile k of divided chunk x, and returns 0 if the row tile sees no key of x. Where there
 * are two versions of keys they take turns. */
static int open_cut(tile *t, const call *c, int64_t row, int x, int k, cut *at)
{
    const plan *pl = &c->pl;
    const split *sp = &pl->split;
    const int versions = versions_of(&c->pr.p);
    const int64_t first = (int64_t)k * pl->keys;
    char *chunk = (char *)c->shared + row * sp->bytes + sp->states_bytes + x * sp->chunk_bytes;
    int64_t node, from, to, j0;
    if (!part_keys(t, sp->parts - sp->inside + x, &node, &from, &to))
        return 0;
    j0 = node * ATTN_CHUNK - t->s.key_base + k / versions * pl->keys;
    at->from = max64(from, j0);
    at->to = min64(to, j0 + pl->keys);
    narrow_to_version(t, k % versions, &at->from, &at->to);
    at->count = (int *)(void *)(chunk + sp->counts) + k;
    at->high = (float *)(void *)(chunk + sp->high) + first / ATTN_BLOCK * pl->rows;
    t->s_tile = (float *)(void *)(chunk + sp->s) + first * pl->rows;
    t->alpha = (float *)(void *)(chunk + sp->alpha) + first / ATTN_BLOCK * pl->rows;
    t->blocks = (block *)(void *)(chunk + sp->blocks) + first / ATTN_BLOCK;
    t->block_count = *at->count;
    return 1;
}

static void score_cut(tile *t, const cut *at)
{
    const attn_kernels *kernels = t->pl->kernels;
    const int n = (int)(at->to - at->from), rows = t->pl->rows;
    key_step st = { 0, 0, 0, 0, { 0, 0 } };
    int class, i, r;
    *at->count = 0;
    if (n <= 0)
        return;
    class = tile_class(t, at->from, n);
    if (class == ATTN_TILE_EMPTY)
        return;
    open_keys(t, at->from, n);
    set_blocks(t, at->from, n);
    *at->count = t->block_count;
    while (take_step(t, &st)) {
        tile_logits(t, t->s_tile + st.begin * rows, at->from + st.begin, st.end - st.begin, class,
                    ATTN_LOGITS_SOFTMAX, st.lanes, NULL);
        for (i = st.first; i < st.next; i++) {
            const int begin = block_begin(t, i);
            float *high = at->high + i * rows;
            for (r = 0; r < rows; r++)
                high[r] = NEG_INF;
            kernels->maximum(t->s_tile + begin * rows, t->blocks[i].end - begin, high);
        }
    }
}

/* list_owner tells which of `owners` index `index` of a list belongs to, if each has `each`, and
 * its number there. A worker stays with an owner as long as it can. Owner 0, which may have fewer
 * rows, comes last. */
static int64_t list_owner(int64_t index, int64_t owners, int64_t each, int *number)
{
    *number = (int)(index % each);
    return (index / each + 1) % owners;
}

/* score_part takes a part of the keys of an item's row tiles. */
static void score_part(const call *c, char *slot, int64_t item, int part)
{
    tile *tiles[ITEM_TILES];
    int64_t rows[ITEM_TILES], node, from, to, lo = INT64_MAX, hi = 0;
    int count = 0, g;
    for (g = 0; g < c->pl.item_tiles; g++) {
        rows[count] = item * c->pl.item_tiles + g;
        tiles[count] = split_tile(c, slot, rows[count]);
        if (!part_keys(tiles[count], part, &node, &from, &to))
            continue;
        count++;
        lo = min64(lo, from);
        hi = max64(hi, to);
    }
    if (count)
        tiled_pass(tiles, count, lo, hi, wants_values(&c->pr.p));
    for (g = 0; g < count; g++) {
        float *root = take_root(tiles[g]);
        memcpy(part_state(c, rows[g], part), root, (size_t)c->pl.state_floats * sizeof *root);
        give_state(tiles[g], root);
    }
}

/* List "scores" begins with whole parts, as they take longer. */
static void score_item(const call *c, char *slot, int64_t index)
{
    const split *sp = &c->pl.split;
    const int whole = sp->parts - sp->inside, cuts = sp->inside * sp->tiles;
    const int64_t first_cut = c->pl.items * whole;
    int number;
    if (index < first_cut) {
        const int64_t item = list_owner(index, c->pl.items, whole, &number);
        score_part(c, slot, item, number);
    } else {
        const int64_t row = list_owner(index - first_cut, split_rows(&c->pl), cuts, &number);
        tile *t = split_tile(c, slot, row);
        cut at;
        if (open_cut(t, c, row, number / sp->tiles, number % sp->tiles, &at))
            score_cut(t, &at);
    }
}

/* decide_blocks decides again about the maximum in an earlier tile of keys, from the maxima of its
 * blocks. m is that of the chunk so far; behind l, which goes nowhere, there is room for alpha. */
static void decide_blocks(tile *t, const cut *at, float *m, float *l)
{
    int i;
    for (i = 0; i < t->block_count; i++) {
        const block *b = &t->blocks[i];
        if (b->lanes.begin < b->lanes.end)
            t->pl->kernels->running_max(at->high + i * t->pl->rows, 1, m, l, l + t->pl->rows);
    }
}

/* weigh_blocks decides about the maximum in the open tile of keys, and computes its exponentials.
 * The sums l go nowhere, as list "values" adds in order. */
static void weigh_blocks(tile *t, float *m, float *l)
{
    int i;
    for (i = 0; i < t->block_count; i++) {
        const block *b = &t->blocks[i];
        if (b->lanes.begin < b->lanes.end) {
            const attn_exp e = decide_block(t, i, m, l);
            t->pl->kernels->exp_block(&e);
        }
    }
}

/* In list "weights" the last tile of a chunk knows its final maximum. */
static void weight_item(const call *c, char *slot, int64_t index)
{
    const split *sp = &c->pl.split;
    int number, i, r;
    const int64_t row =
        list_owner(index, split_rows(&c->pl), (int64_t)sp->inside * sp->tiles, &number);
    const int x = number / sp->tiles, k = number % sp->tiles;
    tile *t = split_tile(c, slot, row);
    float *m = t->lane_values, *l = m + c->pl.rows, *state;
    cut at;
    for (r = 0; r < c->pl.rows; r++) {
        m[r] = NEG_INF;
        l[r] = 0.0f;
    }
    for (i = 0; i < k && open_cut(t, c, row, x, i, &at); i++)
        decide_blocks(t, &at, m, l);
    if (!open_cut(t, c, row, x, k, &at))
        return;
    weigh_blocks(t, m, l);
    if (k < sp->tiles - 1)
        return;
    state = part_state(c, row, sp->parts - sp->inside + x);
    memset(state, 0, (size_t)c->pl.state_floats * sizeof *state);
    memcpy(state, m, (size_t)c->pl.rows * sizeof *state);
}

/* add_sums adds up a tile's probabilities, as P V does with one column of ones. */
static void add_sums(const tile *t, float *l)
{
    static const float one = 1.0f;
    const attn_kernels *kernels = t->pl->kernels;
    const int rows = t->pl->rows;
    int begin = 0, i;
    for (i = 0; i < t->block_count; begin = t->blocks[i++].end) {
        const block *b = &t->blocks[i];
        if (b->raised)
            kernels->rescale(l, t->alpha + i * rows, 1);
        if (b->lanes.begin < b->lanes.end) {
            const attn_product p = { .to = l,
                                     .by = t->s_tile + begin * rows,
                                     .kv = &one,
                                     .n = b->end - begin,
                                     .dim = 1,
                                     .lanes = b->lanes };
            kernels->pv(&p);
        }
    }
}

/* An item of list "values" is a slice of the columns of V, or the sums. */
static void value_item(const call *c, char *slot, int64_t index)
{
    const split *sp = &c->pl.split;
    const int each = (int)sp->slices + 1;
    int number, k;
    const int64_t row = list_owner(index, split_rows(&c->pl), (int64_t)sp->inside * each, &number);
    const int x = number / each, slice = number % each, sums = slice == sp->slices;
    tile *t = split_tile(c, slot, row);
    float *state = part_state(c, row, sp->parts - sp->inside + x), *o = state_o(t, state);
    const int last = c->pl.ahead ? sp->tiles - 1 : 0; /* The last tile asks for no other. */
    cut at;
    if (!sums) {
        t->column = slice * sp->columns;
        t->columns = min64(sp->columns, c->pr.p.head_dim_v - t->column);
    }
    for (k = 0; k < sp->tiles && open_cut(t, c, row, x, k, &at); k++) {
        const int64_t end = k < last ? min64(at.to + c->pl.keys, t->spans[t->version].hi) : 0;
        attn_ahead next;
        if (t->block_count == 0) /* It may lie before key 0. */
            continue;
        next = rows_ahead(t, VALUES, at.to, end);
        open_keys(t, at.from, (int)(at.to - at.from));
        if (sums)
            add_sums(t, state_l(t, state));
        else
            add_values(t, o + t->column * c->pl.rows, at.from, &next);
    }
}

static void combine_item(const call *c, char *slot, int64_t index)
{
    tile *t = split_tile(c, slot, index);
    int64_t node, from, to;
    int part;
    if (!t->used)
        return;
    for (part = 0; part < c->pl.split.parts; part++) {
        if (part_keys(t, part, &node, &from, &to)) {
            t->state = take_state(t);
            memcpy(t->state, part_state(c, index, part),
                   (size_t)c->pl.state_floats * sizeof(float));
        }
        end_chunk(t, node);
    }
    write_rows(t, tiled_state(t, wants_values(&c->pr.p)));
}

/* src/prefix.c - a shared prefix (cascade): keys that all batch entries share are read once for all rows.
 *
 * A first list of items takes the rows of all entries over these keys together, with K and V of entry
 * 0; its row tiles lie in the part of the workspace that the workers share, and stay there. In the
 * second list each row goes on from its state: pending nodes of the merge tree take their places, and
 * a chunk that is not complete is continued. So no bit changes.
 *
 *     shared = | call of the first list | row tile 0 | row tile 1 | ...
 */

/* Fewer keys are not shared: 64 of 600, batch 8, 4 rows each, were 9 % faster. */
#define PREFIX_LEAST 64
/* More rows of an entry and kv head do not: of 4096 keys, batch 4, 48 gained 9 %, 96 0 %. */
#define PREFIX_ROWS 64

/* never_shared tells what a call asks for that keeps its rows from sharing; NULL means nothing. */
static const char *never_shared(const problem *pr)
{
    const attn_params *p = &pr->p;
    /* In a query this is the least number. */
    const int64_t rows = pr->size_query ? 1 : max64(1, pr->max_q_len);
    const struct {
        int holds;
        const char *why;
    } rules[] = {
        { pr->impl == ATTN_IMPL_NAIVE, "naive takes one head of one batch entry at a time" },
        { p->batch < 2, "batch is below 2" },
        { p->kernels->pack_values != NULL, "the kernels round, so that bits would depend on it" },
        { p->cu_seqlens_q != NULL, "cu_seqlens_q is given" },
        { p->part.rows || p->part.keys, "the call is a part" },
        { bias_active(p), "the bias may differ by batch entry" },
        { alibi_active(p), "ALiBi differs by row" },
        { p->score != NULL, "the score callback may differ by batch entry" },
        { pair_rules_on(p) > 0, "a mask other than causal, window or chunked is on" },
        { p->dropout_p > 0, "dropout differs by row" },
        { has_skip(p), "what a row skips depends on its last keys" },
        { wants_pairs(p) && !wants_rows(p) && !pr->size_query, "only logits are asked for" },
        { times(rows, pr->group) > PREFIX_ROWS,
          "one batch entry has rows enough to share K and V" },
    };
    int r = 0;
    while (r < COUNT_OF(rules) && !rules[r].holds)
        r++;
    return r < COUNT_OF(rules) ? rules[r].why : NULL;
}

/* not_seen says why some row of the batch does not see all of these keys; NULL means all do. */
static const char *not_seen(const problem *pr, int64_t keys)
{
    const attn_params *p = &pr->p;
    const sequence first = sequence_of(p, 0);
    const range_list ranges = ranges_of(p);
    const int64_t kinds = kinds_of(p);
    int64_t b, i, lo, hi;
    if (first.kv_len < keys)
        return "kv_len[0] is below it";
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        if (s.q_len > 0 && s.key_base != first.key_base)
            return "key_base differs within the batch";
        for (i = 0; i < s.q_len; i++) {
            visible_range(&ranges, p, &s, i + s.offset, &lo, &hi);
            if (lo > 0 || hi < keys)
                return "a row does not see all of it";
        }
    }
    return NULL;
}

/* stored_keys counts the first keys that every row reads as they are stored, which entries share. */
OWN_FRAME static int64_t stored_keys(const attn_params *p)
{
    const int64_t kinds = kinds_of(p);
    int64_t b, keys = INT64_MAX;
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        keys = s.q_len > 0 ? min64(keys, max64(recent_from(p, s.offset), 0)) : keys;
    }
    return keys;
}

/* prefix_of counts the keys to share, up to a canonical block's end, or gives 0 and why. A size
 * query reserves what any shorter call may want. */
static int64_t prefix_of(const problem *pr, const char **why)
{
    const int64_t asked = pr->p.shared_keys;
    int64_t base, keys;
    *why = asked ? never_shared(pr) : NULL;
    if (*why || !asked || pr->size_query)
        return *why ? 0 : asked;
    base = sequence_of(&pr->p, 0).key_base;
    keys = min64(asked, stored_keys(&pr->p));
    keys -= (base + keys) % ATTN_BLOCK;
    *why = keys < PREFIX_LEAST ? "it has fewer than 64 keys in whole blocks" : not_seen(pr, keys);
    return *why ? 0 : keys;
}

/* entry_rows counts the rows of each batch entry and query head in the first list. */
static int64_t entry_rows(const problem *pr)
{
    const int64_t most = max64(1, PREFIX_ROWS / pr->group);
    return pr->size_query ? min64(pr->p.seq_len_q, most) : pr->max_q_len;
}

/* The row tiles of the first list are shared by as few items as give each worker one. */
static void plan_prefix_list(const problem *pr, const plan *pl, plan *list)
{
    const int64_t rows = times(times(pr->p.batch, entry_rows(pr)), pr->group);
    *list = *pl;
    list->kernels = pr->batch_kernels;
    list->rows = list->kernels->rows;
    list->keys = pr->batch_tile_keys;
    list->state_slots = tree_states(pl->prefix_keys, begins_inside(&pr->p));
    list->tiles = ceil_div(rows, list->rows);
    list->item_tiles = most_item_tiles(list, rows) + 1;
    do {
        list->item_tiles--;
        list->items = times(pr->p.num_heads_kv, ceil_div(list->tiles, list->item_tiles));
    } while (list->item_tiles > 1 && list->items < pr->p.num_workers);
    plan_row_tile(pr, list);
    plan_slot(pr, list);
}

/* plan_prefix adds the first list, or says why not. `items` could run at once without it. */
OWN_FRAME static const char *plan_prefix(const problem *pr, plan *pl, int64_t items)
{
    const int64_t workers = min64(pr->p.num_workers, items);
    int64_t tiles, bytes;
    plan list;
    plan_prefix_list(pr, pl, &list);
    tiles = times(times(pr->p.num_heads_kv, list.tiles), list.row_tile_bytes);
    bytes = plus(aligned((int64_t)sizeof(call)), tiles);
    if (bytes >= ADDRESS_LIMIT / 4)
        return "its states would not fit into memory";
    if (2 * list.items < workers && !pr->size_query)
        return "most workers would have no part in it";
    pl->prefix_items = list.items;
    pl->shared_bytes = bytes;
    pl->slot_bytes = max64(pl->slot_bytes, list.row_tiles);
    return NULL;
}

/* prefix_list gives the first list of a call whose plan has one. */
static call *prefix_list(const call *c)
{
    return (call *)(void *)c->shared;
}

/* prefix_tile gives row tile number `index` of a kv head in the first list. */
static char *prefix_tile(const call *list, int64_t kv_head, int64_t index)
{
    return (char *)list->shared + (kv_head * list->pl.tiles + index) * list->pl.row_tile_bytes;
}

static void prefix_item(const call *list, char *slot, int64_t index)
{
    const plan *pl = &list->pl;
    const int64_t per_head = ceil_div(pl->tiles, pl->item_tiles);
    const int64_t kv_head = index / per_head, first = index % per_head * pl->item_tiles;
    const int64_t end = min64(first + pl->item_tiles, pl->tiles);
    const int64_t group = list->pr.group, rows = entry_rows(&list->pr);
    row_choice choice = { kv_head * group, group, .count = list->pr.p.batch * rows };
    tile *tiles[ITEM_TILES];
    int count = 0;
    for (index = first; index < end; index++) {
        tile *t = tiles[count] = open_tile_at(list, slot, prefix_tile(list, kv_head, index));
        t->kv_head = kv_head;
        t->entry_rows = rows;
        choice.first = index * pl->rows;
        count += set_rows(t, &choice) > 0;
        t->s = sequence_of(&list->pr.p, 0);
        t->hi = pl->prefix_keys;
    }
    if (count)
        tiled_pass(tiles, count, 0, INT64_MAX, wants_values(&list->pr.p));
}

/* copy_lanes makes lanes r to r+n-1 of the state `to` (NULL means that it has to be begun) lanes at
 * to at+n-1 of a state of `rows` lanes; without that state `to` stays. */
static float *copy_lanes(tile *t, float *to, int r, const float *from, int rows, int at, int n)
{
    int64_t k;
    if (!from)
        return to;
    if (!to)
        to = begin_state(t);
    for (k = 0; k < state_rows(&t->pr->p); k++)
        memcpy(to + k * t->pl->rows + r, from + k * rows + at, (size_t)n * sizeof *to);
    return to;
}

/* take_prefix gives a row tile of the second list its rows' states at the end of the prefix. Both
 * lists number the rows of an entry alike, so that lanes next to each other come from lanes next to
 * each other. */
static void take_prefix(const call *c, tile *t)
{
    const call *list = prefix_list(c);
    const lane *l = &t->lanes[0];
    const int64_t row = t->s.b * entry_rows(&c->pr) + l->i, group = c->pr.group;
    const int64_t first = row * group + l->head - t->kv_head * group;
    const int rows = list->pl.rows;
    int r, n, level;
    for (r = 0; r < t->span.end; r += n) {
        const int64_t index = (first + r) / rows;
        const int at = (int)((first + r) % rows);
        const tile *from = (const tile *)(const void *)prefix_tile(list, t->kv_head, index);
        n = (int)min64(rows - at, t->span.end - r);
        t->state = copy_lanes(t, t->state, r, from->state, rows, at, n);
        for (level = 0; level < from->levels; level++)
            t->pending[level] =
                copy_lanes(t, t->pending[level], r, from->pending[level], rows, at, n);
        t->levels = from->levels > t->levels ? from->levels : t->levels;
    }
}

/* suffix_item is an item of the second list. */
static void suffix_item(const call *c, char *slot, int64_t index)
{
    tile *tiles[ITEM_TILES];
    const int count = open_item(c, slot, index, tiles);
    int g;
    for (g = 0; g < count; g++)
        take_prefix(c, tiles[g]);
    finish_item(tiles, count, c->pl.prefix_keys);
}

/* src/naive.c - naive items: the textbook formula on a materialised matrix, in numbered passes.
 *
 * An item is one query head. The kernels are those of tiled items, so that naive is an honest
 * baseline. Matrix layout: for each tile of query rows [kv_len][rows] logits, then m[rows], l[rows], and
 * what src/insight.c adds.
 */

typedef struct naive_tile {
    float *logits, *m, *l, *tail;
} naive_tile;

static naive_tile naive_tile_of(const tile *t, int64_t tile_index)
{
    const int64_t rows = t->pl->rows, keys = t->s.kv_len;
    naive_tile n;
    n.logits = t->matrix + tile_index * rows * (keys + 2 + insight_rows(&t->pr->p));
    n.m = n.logits + rows * keys;
    n.l = n.m + rows;
    n.tail = n.l + rows;
    return n;
}

static int naive_rows(tile *t, int64_t head, int64_t tile_index)
{
    const row_choice choice = { head, 1, tile_index * t->pl->rows, t->s.q_len, .list = NULL };
    return set_rows(t, &choice);
}

/* 1. logits = softcap(scale * Q K^T) + bias, masked */
static void naive_logits(tile *t, const naive_tile *n)
{
    const int64_t rows = t->pl->rows, keys = t->pl->keys;
    int64_t j, k;
    for (j = 0; j < t->s.kv_len; j += keys) {
        const int count = (int)min64(keys, t->s.kv_len - j);
        const int class = tile_class(t, j, count);
        float *s = n->logits + j * rows;
        if (class == ATTN_TILE_EMPTY)
            for (k = 0; k < count * rows; k++)
                s[k] = NEG_INF;
        else
            open_logits(t, s, j, count, class, ATTN_LOGITS_SOFTMAX);
    }
}

/* watch_softmax is step 3 with insight, block by block. */
static void watch_softmax(tile *t, const naive_tile *n)
{
    const attn_lanes all = { 0, t->pl->rows };
    int64_t j;
    begin_insight(t, n->tail, NULL);
    for (j = 0; j < t->s.kv_len; j += ATTN_BLOCK) {
        const int count = (int)min64(ATTN_BLOCK, t->s.kv_len - j);
        const attn_exp e = { n->logits + j * t->pl->rows, count, n->m, n->l, all, .calm = 0 };
        keep_logits(t, n->tail, e.s, count, all, j);
        t->pl->kernels->exp_sum(e.s, count, t->dead, n->m, n->l);
        add_entropy(t, n->tail, &e);
    }
}

/* 2. m = max over keys   3. p = exp(logit - m), l = sum of p */
static void naive_softmax(tile *t, const naive_tile *n)
{
    const int count = (int)t->s.kv_len;
    int64_t r;
    for (r = 0; r < t->pl->rows; r++) {
        n->m[r] = NEG_INF;
        n->l[r] = 0.0f;
    }
    if (count > 0)
        t->pl->kernels->maximum(n->logits, count, n->m);
    if (t->insight)
        watch_softmax(t, n);
    else if (count > 0)
        t->pl->kernels->exp_sum(n->logits, count, t->dead, n->m, n->l);
}

/* 4. o = P V. Tiles end where n(j) is a multiple of their length, as packs of kernels that round do. */
static float *naive_values(tile *t, const naive_tile *n)
{
    const int64_t rows = t->pl->rows, keys = t->pl->keys;
    const attn_lanes all = { 0, t->pl->rows };
    float *state = begin_state(t);
    int64_t j, count;
    memcpy(state, n->m, (size_t)rows * sizeof *state);
    memcpy(state_l(t, state), n->l, (size_t)rows * sizeof *state);
    memcpy(state_tail(t, state), n->tail, (size_t)(rows * insight_rows(&t->pr->p)) * sizeof *state);
    for (j = 0; wants_values(&t->pr->p) && j < t->s.kv_len; j += count) {
        count = min64(keys - (t->s.key_base + j) % keys, t->s.kv_len - j);
        if (t->pr->drop_below)
            drop_keys(t, n->logits + j * rows, j, (int)count);
        open_keys(t, j, (int)count);
        add_products(t, state_o(t, state), n->logits + j * rows, j, (int)count, all, NULL);
    }
    return state;
}

static float *naive_redo(tile *t, const naive_tile *n)
{
    t->dead = ATTN_DEAD;
    naive_logits(t, n);
    naive_softmax(t, n);
    return naive_values(t, n);
}

static void naive_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int64_t head = index % p->num_heads_q;
    tile *t = open_tile(c, slot, 0);
    int64_t tiles, i;
    t->s = sequence_of(p, index / p->num_heads_q);
    t->kv_head = head / c->pr.group;
    if (p->naive_whole)
        t->matrix = c->shared + index * c->pl.matrix_floats;
    tiles = ceil_div(t->s.q_len, c->pl.rows);
    for (i = 0; i < tiles; i++) {
        const naive_tile n = naive_tile_of(t, i);
        naive_rows(t, head, i);
        naive_logits(t, &n);
    }
    for (i = 0; i < tiles; i++) {
        const naive_tile n = naive_tile_of(t, i);
        naive_softmax(t, &n);
    }
    for (i = 0; i < tiles; i++) {
        const naive_tile n = naive_tile_of(t, i);
        float *state;
        naive_rows(t, head, i);
        state = naive_values(t, &n);
        if (needs_redo(t, state)) {
            give_state(t, state);
            state = naive_redo(t, &n);
        }
        write_rows(t, state);
        give_state(t, state);
    }
}

/* src/logits.c - logits items: logits or probabilities of chosen rows, tile by tile, without a matrix. */

/* normaliser gives m and r = fl(1 / l) of each lane, so that p = 2^(s - m) * r; m and l come after
 * the sink. */
static void normaliser(tile *t, float *m, float *inverse)
{
    const float *l;
    float *root;
    int r;
    t->insight = 0; /* Rows of the first list give it. */
    tiled_pass(&t, 1, 0, INT64_MAX, 0);
    root = tiled_state(t, 0);
    add_sinks(t, root);
    l = state_l(t, root);
    for (r = 0; r < t->pl->rows; r++) {
        m[r] = root[r];
        inverse[r] = inverse_sum(l[r] == 0.0f, l[r]);
    }
    give_state(t, root);
}

/* Without a list the first row chosen is the first that is held. */
static int64_t first_choice(const attn_params *p)
{
    return p->logits.rows ? 0 : p->part.row_begin;
}

static float *logits_row(const tile *t, const lane *at)
{
    const attn_params *p = &t->pr->p;
    const int64_t row = (t->s.b * p->num_heads_q + at->head) * p->logits.num_rows;
    return p->logits.data + (row + at->choice - first_choice(p)) * p->seq_len_kv;
}

/* fill_outside fills columns outside the sequence, those of the keys that are held. */
static void fill_outside(const tile *t, const lane *at, float value)
{
    float *row = logits_row(t, at);
    int64_t column = 0, end = t->pr->p.seq_len_kv;
    narrow_columns(&t->pr->p.part, &column, &end);
    for (; column < end; column++)
        if (column < t->s.column || column >= t->s.column + t->s.kv_len)
            row[column] = value;
}

/* weigh_tile makes probabilities of n keys' logits. The sums of exp_sum go nowhere. */
static void weigh_tile(tile *t, float *s, int n, const float *m, const float *inverse)
{
    const int rows = t->pl->rows;
    int j, r;
    t->pl->kernels->exp_sum(s, n, ATTN_DEAD, m, t->lane_values);
    for (j = 0; j < n; j++, s += rows)
        for (r = 0; r < rows; r++) {
            const float p = s[r] * inverse[r];
            s[r] = is_dead(s[r]) ? 0.0f : p;
        }
}

/* stage_tile gives keys j0 to j0+n-1 at the stage asked for, in t->s_tile, as natural logits or
 * probabilities. */
static void stage_tile(tile *t, int stage, int64_t j0, int n, const float *m, const float *inverse)
{
    const int count = n * t->pl->rows;
    const int class = stage < ATTN_LOGITS_BIAS ? ATTN_TILE_FULL : tile_class(t, j0, n);
    float *s = t->s_tile;
    int k;
    if (class != ATTN_TILE_EMPTY)
        open_logits(t, s, j0, n, class, stage);
    for (k = 0; k < count && class == ATTN_TILE_EMPTY; k++)
        s[k] = NEG_INF;
    if (stage == ATTN_LOGITS_SOFTMAX)
        weigh_tile(t, s, n, m, inverse);
    for (k = 0; k < count && stage != ATTN_LOGITS_SOFTMAX; k++)
        s[k] = s[k] * LN2;
}

static void logits_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int softmax = p->logits.stage == ATTN_LOGITS_SOFTMAX;
    const int64_t group = c->pr.group, rows = c->pl.rows, head = index / c->pl.logits_tiles;
    const int64_t first = first_choice(p);
    const row_choice choice = { head % p->num_heads_kv * group, group,
                                first * group + index % c->pl.logits_tiles * rows,
                                first + p->logits.num_rows, p->logits.rows };
    tile *t = open_tile(c, slot, 0);
    float *m = t->lane_values + rows, *inverse = m + rows;
    int64_t j0;
    int j, r;
    t->kv_head = head % p->num_heads_kv;
    t->s = sequence_of(p, head / p->num_heads_kv);
    if (!set_rows(t, &choice))
        return;
    if (softmax)
        normaliser(t, m, inverse);
    for (r = 0; r < rows; r++)
        if (t->lanes[r].used)
            fill_outside(t, &t->lanes[r], softmax ? 0.0f : NEG_INF);
    for (j0 = t->s.key_from; j0 < t->s.key_to; j0 += c->pl.keys) {
        const int n = (int)min64(c->pl.keys, t->s.key_to - j0);
        stage_tile(t, p->logits.stage, j0, n, m, inverse);
        for (r = 0; r < rows; r++)
            for (j = 0; j < n && t->lanes[r].used; j++)
                store_f32(logits_row(t, &t->lanes[r]), t->s.column + j0 + j,
                          t->s_tile[j * rows + r]);
    }
}

/* src/mass.c - mass items: what the rows of a kv head look at, summed by blocks of keys (insight.mass).
 *
 * A sum of whole numbers is exact in any order, so probabilities count as whole numbers of 2^-32. They
 * need m and l of whole rows, and are those of logits at stage SOFTMAX.
 */

#define MASS_UNIT 0x1p-32

/* mass_of counts a probability in units; it is no NaN. */
static int64_t mass_of(float p)
{
    return (int64_t)((double)p / MASS_UNIT + 0.5);
}

/* add_mass adds the probabilities of n keys in t->s_tile, which are those of one block. */
static void add_mass(const tile *t, const float *s, int n, double *sum)
{
    int64_t units = 0;
    int j, r;
    for (j = 0; j < n; j++, s += t->pl->rows)
        for (r = 0; r < t->pl->rows; r++) {
            if (t->lanes[r].used && is_nan(s[r]))
                *sum = (double)float_of(CANONICAL_NAN);
            else if (t->lanes[r].used)
                units += mass_of(s[r]);
        }
    *sum = *sum + (double)units * MASS_UNIT;
}

/* add_row_mass adds the probabilities of the tile's rows, whose m and 1 / l are known. */
static void add_row_mass(tile *t, double *sums, const float *m, const float *inverse)
{
    const int64_t each = t->pr->p.insight.mass_keys;
    int64_t j0;
    for (j0 = t->lo; j0 < t->hi; j0 += t->pl->keys) {
        const int64_t end = min64(j0 + t->pl->keys, t->hi);
        int64_t j = j0, next;
        stage_tile(t, ATTN_LOGITS_SOFTMAX, j0, (int)(end - j0), m, inverse);
        for (; j < end; j = next) {
            const int64_t number = (t->s.column + j) / each;
            next = min64(end, (number + 1) * each - t->s.column);
            add_mass(t, t->s_tile + (j - j0) * t->pl->rows, (int)(next - j), sums + number);
        }
    }
}

static void mass_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int64_t group = c->pr.group, blocks = mass_blocks(p), rows = p->insight.mass_rows;
    const sequence s = sequence_of(p, index / p->num_heads_kv);
    double *const sums = p->insight.mass + index * blocks;
    row_choice choice = { index % p->num_heads_kv * group, group, .count = s.q_len };
    int64_t n;
    for (n = 0; n < blocks; n++)
        sums[n] = 0;
    choice.first = rows ? max64(0, s.q_len - rows) * group : 0;
    for (; choice.first < s.q_len * group; choice.first += c->pl.rows) {
        tile *t = open_tile(c, slot, 0);
        float *const m = t->lane_values + c->pl.rows, *const inverse = m + c->pl.rows;
        t->kv_head = index % p->num_heads_kv;
        t->s = s;
        set_rows(t, &choice);
        normaliser(t, m, inverse);
        add_row_mass(t, sums, m, inverse);
    }
}

/* src/run.c - the run: lists of items over workers, each worker with a slot of its own. */

static void run_one(void *arg, int64_t index, int worker)
{
    call *c = (call *)arg;
    if (worker < 0 || worker >= c->slot_count)
        STORE_WORD(&c->failed, 1u);
    else
        c->item(c, c->slots + worker * c->pl.slot_bytes, index);
}

/* With fewer slots than workers the index is the slot, and takes every slot_count-th item. */
static void run_strided(void *arg, int64_t index, int worker)
{
    call *c = (call *)arg;
    int64_t i;
    (void)worker;
    for (i = index; i < c->items; i += c->slot_count)
        c->item(c, c->slots + index * c->pl.slot_bytes, i);
}

/* Without a callback OpenMP's threads run the list, where it is compiled in, or else this one. */
#ifdef _OPENMP
static void run_here(const attn_params *p, int64_t n, attn_task_fn task, void *arg)
{
    int64_t i;
#pragma omp parallel for schedule(dynamic) num_threads(p->num_workers)
    for (i = 0; i < n; i++)
        task(arg, i, omp_get_thread_num());
}
#else
static void run_here(const attn_params *p, int64_t n, attn_task_fn task, void *arg)
{
    int64_t i;
    (void)p;
    for (i = 0; i < n; i++)
        task(arg, i, 0);
}
#endif

static int run_tasks(const attn_params *p, int64_t n, attn_task_fn task, void *arg)
{
    if (p->parallel_for)
        return p->parallel_for(p->parallel_user, n, task, arg);
    run_here(p, n, task, arg);
    return 0;
}

static attn_status run_items(call *c, int64_t items,
                             void (*item)(const call *c, char *slot, int64_t index))
{
    const attn_params *p = &c->pr.p;
    int failed = 0;
    int64_t i;
    c->items = items;
    c->item = item;
    c->failed = 0;
    if (c->slot_count == 1 || items <= 1)
        for (i = 0; i < items; i++)
            item(c, c->slots, i);
    else if (c->slot_count >= p->num_workers)
        failed = run_tasks(p, items, run_one, c);
    else
        failed = run_tasks(p, min64(items, c->slot_count), run_strided, c);
    return failed || LOAD_WORD(&c->failed) ? ATTN_ERR_CALLBACK : ATTN_OK;
}

/* run_prefix runs the first list, if the plan has one. */
static attn_status run_prefix(const call *c)
{
    call *list = prefix_list(c);
    if (!c->pl.prefix_keys)
        return ATTN_OK;
    *list = *c;
    plan_prefix_list(&c->pr, &c->pl, &list->pl);
    list->pl.slot_bytes = c->pl.slot_bytes;
    list->shared = (float *)(void *)((char *)list + aligned((int64_t)sizeof *list));
    return run_items(list, list->pl.items, prefix_item);
}

/* item_of gives what runs an item of the main list. */
static void (*item_of(const plan *pl))(const call *c, char *slot, int64_t index)
{
    if (pl->impl == ATTN_IMPL_NAIVE)
        return naive_item;
    return pl->prefix_keys ? suffix_item : tiled_item;
}

/* run_lists runs the lists of a call one after the other; empty ones cost nothing. */
static attn_status run_lists(call *c)
{
    const plan *pl = &c->pl;
    const split *sp = &pl->split;
    const int64_t chunks = split_rows(pl) * sp->inside;
    const struct list {
        int64_t items;
        void (*item)(const call *c, char *slot, int64_t index);
    } lists[] = {
        { sp->parts ? 0 : pl->items, item_of(pl) },
        { sp->items, score_item },
        { chunks * sp->tiles, weight_item },
        { chunks * (sp->slices + 1), value_item },
        { sp->parts ? split_rows(pl) : 0, combine_item },
        { pl->logits_items, logits_item },
        { pl->mass_items, mass_item },
    };
    attn_status status = run_prefix(c);
    int i;
    for (i = 0; sp->parts && i < c->slot_count; i++)
        ((key_tile *)(void *)(c->slots + i * pl->slot_bytes))->item = -1;
    for (i = 0; i < COUNT_OF(lists) && !status; i++)
        status = run_items(c, lists[i].items, lists[i].item);
    return status;
}

/* src/short.c - short calls: few keys and no option, from the parameters to the kernels in one go.
 *
 * Rules, a plan and its tiles cost more than the arithmetic of a small call. So calls that set nothing but
 * sizes, scale, f32 tensors, lengths and causal are computed here, with the kernels of the seam in the order
 * of docs/canon.md. All else, and all that is wrong, goes the long way, which has the rules and their
 * sentences: whoever changes what a field means need not look here, as a field that is set is not short.
 */

/* With -DATTN_WITHOUT_LONG_CALLS attn_forward computes only these: 10 KB of a board instead of 100. */
#ifdef ATTN_WITHOUT_LONG_CALLS
enum { HAS_LONG_CALLS = 0, SHORT_KEYS = ATTN_CHUNK };
#else
enum { HAS_LONG_CALLS = 1, SHORT_KEYS = 256 };
#endif

/* Sizes up to these need no care about overflow; a chunk has no merge tree. */
enum { SHORT_TILE = 64, SHORT_DIM = 1024, SHORT_COUNT = 1 << 15 };

/* A short_tensor is a tensor with its strides resolved; one along an axis of length 1 is 0. */
typedef struct short_tensor {
    const float *data;
    ptrdiff_t stride[3]; /* batch, head, seq */
    int64_t count[3];
    int64_t bytes; /* from the first to behind the last */
} short_tensor;

typedef struct short_call {
    const attn_params *p;
    const attn_kernels *kernels;
    short_tensor q, k, v, o;
    int group, dim, dim_v, tile; /* tile: most keys of a tile */
    float factor;
    /* ---- in the workspace */
    float *qt, *s, *m, *l, *acc, *alpha;
    float *spare; /* a row of +0, later of what nobody reads */
    const float **in;
    float **out;
    int *begin, *end; /* of each lane, in the open tile */
    int *seen;        /* keys that each lane sees: those before this number */
} short_call;

#ifdef ATTN_WITHOUT_LONG_CALLS
/* The kernels of short calls, so that no others are linked. */
static const attn_kernels short_set = { .abi = ATTN_KERNEL_ABI,
                                        .rows = LANES,
                                        .name = "portable",
                                        .pack = pack_portable,
                                        .qk = qk_portable,
                                        .clip = clip_portable,
                                        .running_max = running_max_portable,
                                        .exp_sum = exp_sum_portable,
                                        .exp_block = exp_block_portable,
                                        .finite = finite_portable,
                                        .rescale = rescale_portable,
                                        .pv = pv_portable,
                                        .pv_select = pv_select_portable,
                                        .result = result_portable };

static const attn_kernels *kernels_of_short(int64_t rows)
{
    (void)rows;
    return &short_set;
}
#else
static const attn_kernels *kernels_of_short(int64_t rows)
{
    return best_kernels(rows, 0);
}
#endif

/* ---- which calls are short */

#define FIELD_AT(member) offsetof(attn_params, member)
#define BEHIND(member) (FIELD_AT(member) + sizeof(((attn_params *)NULL)->member))
#define BETWEEN(from, to)                                                                          \
    {                                                                                              \
        (uint16_t)(from), (uint16_t)((to) - (from))                                                \
    }

/* What a short call leaves at 0: everything between the fields that it may set. */
static const member unset_in_short[] = {
    BETWEEN(FIELD_AT(integer), FIELD_AT(layout)),
    BETWEEN(BEHIND(v), FIELD_AT(o)),
    BETWEEN(BEHIND(o), FIELD_AT(q_len)),
    BETWEEN(BEHIND(kv_len), FIELD_AT(alignment)),
    BETWEEN(FIELD_AT(q_offset), FIELD_AT(causal)),
    BETWEEN(FIELD_AT(prefix), FIELD_AT(impl)),
    BETWEEN(FIELD_AT(auto_naive_keys), FIELD_AT(kernels)),
    BETWEEN(BEHIND(kernels), FIELD_AT(num_workers)),
    BETWEEN(BEHIND(log_user), sizeof(attn_params)),
};

/* is_unset looks at four words at a time. */
static int is_unset(const attn_params *p, member m)
{
    const char *at = (const char *)p + m.offset, *const end = at + m.size;
    uint32_t four[4], any = 0;
    for (; end - at >= (ptrdiff_t)sizeof four; at += sizeof four) {
        memcpy(four, at, sizeof four);
        any |= four[0] | four[1] | four[2] | four[3];
    }
    for (; at < end; at += sizeof any) {
        memcpy(four, at, sizeof any);
        any |= four[0];
    }
    return any == 0;
}

static int sets_short_fields(const attn_params *p)
{
    int i = 0;
    while (i < COUNT_OF(unset_in_short) && is_unset(p, unset_in_short[i]))
        i++;
    return i == COUNT_OF(unset_in_short) &&
           (p->impl == ATTN_IMPL_DEFAULT || p->impl == ATTN_IMPL_TILED) &&
           !(p->q.dtype | p->k.dtype | p->v.dtype | p->o.dtype);
}

static int is_between(int64_t least, int64_t value, int64_t most)
{
    return value >= least && value <= most;
}

static int has_short_sizes(const attn_params *p)
{
    const int64_t heads_kv = p->num_heads_kv ? p->num_heads_kv : p->num_heads_q;
    return is_between(0, p->batch, SHORT_COUNT) && is_between(1, p->num_heads_q, SHORT_COUNT) &&
           is_between(1, heads_kv, p->num_heads_q) && (int)p->num_heads_q % (int)heads_kv == 0 &&
           is_between(0, p->seq_len_q, SHORT_COUNT) && is_between(0, p->seq_len_kv, SHORT_KEYS) &&
           is_between(1, p->head_dim, SHORT_DIM) && is_between(0, p->head_dim_v, SHORT_DIM);
}

/* is_worth_sharing tells whether OpenMP's threads take less time than one: not below 2^18 multiply-adds,
 * some 5 microseconds. */
static int is_worth_sharing(const attn_params *p)
{
    const int64_t pairs = times(times(p->batch * p->num_heads_q, p->seq_len_q), p->seq_len_kv);
    return HAS_LONG_CALLS && OPENMP_THREADS && p->num_workers != 1 &&
           times(pairs, 2 * max64(p->head_dim, p->head_dim_v)) >= (int64_t)1 << 18;
}

static int has_short_settings(const attn_params *p)
{
    const attn_kernels *kernels = p->kernels;
    return is_between(ATTN_LAYOUT_BHSD, p->layout, ATTN_LAYOUT_BSHD) &&
           is_between(ATTN_ALIGN_BOTTOM_RIGHT, p->alignment, ATTN_ALIGN_TOP_LEFT) &&
           is_between(0, p->num_workers, p->parallel_for ? 1 : SHORT_COUNT) &&
           !is_worth_sharing(p) &&
           (!kernels ||
            (kernels->abi == ATTN_KERNEL_ABI && kernels->rows % 4 == 0 &&
             is_between(4, kernels->rows, ATTN_KERNEL_MAX_ROWS) && !kernels->pack_values));
}

/* set_tensor returns 0 where strides are below 0, broadcast or large. */
static int set_tensor(short_tensor *t, const attn_params *p, const void *data, ptrdiff_t batch,
                      ptrdiff_t head, ptrdiff_t seq, int64_t heads, int64_t rows, int64_t dim)
{
    const int tokens = p->layout == ATTN_LAYOUT_BSHD;
    const int64_t packed[3] = { heads * rows * dim, tokens ? dim : rows * dim,
                                tokens ? heads * dim : dim };
    const ptrdiff_t given[3] = { batch, head, seq };
    int64_t last = dim;
    int axis;
    t->data = (const float *)data;
    t->count[0] = p->batch;
    t->count[1] = heads;
    t->count[2] = rows;
    for (axis = 0; axis < 3; axis++) {
        const int64_t stride = t->count[axis] <= 1 ? 0 : given[axis] ? given[axis] : packed[axis];
        if (given[axis] < 0 || !is_between(0, stride, INT32_MAX))
            return 0;
        t->stride[axis] = (ptrdiff_t)stride;
        last += (t->count[axis] - 1) * stride;
    }
    t->bytes = last * (int64_t)sizeof(float);
    return t->bytes <= INT32_MAX && (uintptr_t)data % sizeof(float) == 0;
}

#define SET_TENSOR(member, heads, rows, dim)                                                       \
    set_tensor(&c->member, p, p->member.data, p->member.stride_batch, p->member.stride_head,       \
               p->member.stride_seq, heads, rows, dim)

/* has_short_tensors sets them. */
static int has_short_tensors(short_call *c)
{
    const attn_params *p = c->p;
    const int heads_kv = (int)p->num_heads_q / c->group;
    return SET_TENSOR(q, p->num_heads_q, p->seq_len_q, c->dim) &&
           SET_TENSOR(k, heads_kv, p->seq_len_kv, c->dim) &&
           SET_TENSOR(v, heads_kv, p->seq_len_kv, c->dim_v) &&
           SET_TENSOR(o, p->num_heads_q, p->seq_len_q, c->dim_v);
}

/* open_short tells whether a call is short as far as its fields say. */
static int open_short(const attn_params *p, short_call *c)
{
    if (!sets_short_fields(p) || !has_short_sizes(p) || !has_short_settings(p))
        return 0;
    c->p = p;
    c->group = p->num_heads_kv ? (int)p->num_heads_q / (int)p->num_heads_kv : 1;
    c->kernels = p->kernels ? p->kernels : kernels_of_short(p->seq_len_q * c->group);
    c->dim = (int)p->head_dim;
    c->dim_v = (int)(p->head_dim_v ? p->head_dim_v : p->head_dim);
    c->tile = (int)min64(p->seq_len_kv, SHORT_TILE);
    c->factor = score_factor(p->scale == 0.0f ? inv_sqrt_nearest((uint64_t)c->dim) : p->scale);
    return is_finite(c->factor) && has_short_tensors(c);
}

/* ---- whether memory is as it should be */

/* nests tells whether no two rows share an element, where axis `inner` lies inside the other one. */
static int nests(const short_tensor *t, int64_t dim, int inner)
{
    const int axes[3] = { inner, 3 - inner, 0 };
    int64_t run = dim;
    int i;
    for (i = 0; i < 3; i++) {
        if (t->count[axes[i]] > 1 && t->stride[axes[i]] < run)
            return 0;
        run += (t->count[axes[i]] - 1) * t->stride[axes[i]];
    }
    return 1;
}

static int lies_apart(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    const uintptr_t from = (uintptr_t)a, other = (uintptr_t)b;
    return from >= other ? from - other >= (uintptr_t)b_bytes : other - from >= (uintptr_t)a_bytes;
}

/* is_written_apart tells whether bytes that are written hold none that are read. */
static int is_written_apart(const short_call *c, const void *written, int64_t bytes)
{
    const attn_params *p = c->p;
    const int64_t lengths = p->batch * (int64_t)sizeof(int32_t);
    return lies_apart(written, bytes, c->q.data, c->q.bytes) &&
           lies_apart(written, bytes, c->k.data, c->k.bytes) &&
           lies_apart(written, bytes, c->v.data, c->v.bytes) &&
           (!p->q_len || lies_apart(written, bytes, p->q_len, lengths)) &&
           (!p->kv_len || lies_apart(written, bytes, p->kv_len, lengths));
}

static int has_short_lengths(const attn_params *p)
{
    int64_t b;
    if ((p->q_len || p->kv_len) && ((uintptr_t)p->q_len | (uintptr_t)p->kv_len) % sizeof(int32_t))
        return 0;
    for (b = 0; b < p->batch; b++)
        if (!is_between(0, entry32(p->q_len, b, 0), p->seq_len_q) ||
            !is_between(0, entry32(p->kv_len, b, 0), p->seq_len_kv))
            return 0;
    return 1;
}

/* has_short_data tells whether the call's arrays are there, apart from each other and from the workspace. */
static int has_short_data(const short_call *c, const void *workspace, int64_t bytes)
{
    return c->q.data && c->o.data && (c->p->seq_len_kv == 0 || (c->k.data && c->v.data)) &&
           has_short_lengths(c->p) && (nests(&c->o, c->dim_v, 2) || nests(&c->o, c->dim_v, 1)) &&
           lies_apart(workspace, bytes, c->o.data, c->o.bytes) &&
           is_written_apart(c, workspace, bytes) && is_written_apart(c, c->o.data, c->o.bytes);
}

/* ---- the workspace */

/* cut_off takes `count` elements off the memory from *at on. */
static void *cut_off(uintptr_t *at, int count, size_t bytes_each)
{
    const uintptr_t taken = *at;
    *at += ((size_t)count * bytes_each + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return (void *)taken;
}

/* lay_out_short divides the memory from `at` on and returns its end. */
static uintptr_t lay_out_short(short_call *c, uintptr_t at)
{
    const int rows = c->kernels->rows;
    at = (at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    c->qt = (float *)cut_off(&at, c->dim * rows, sizeof(float));
    c->s = (float *)cut_off(&at, c->tile * rows, sizeof(float));
    c->m = (float *)cut_off(&at, (2 + c->dim_v) * rows, sizeof(float));
    c->l = c->m + rows;
    c->acc = c->l + rows;
    c->alpha = (float *)cut_off(&at, rows, sizeof(float));
    c->spare = (float *)cut_off(&at, c->dim > c->dim_v ? c->dim : c->dim_v, sizeof(float));
    c->in = (const float **)cut_off(&at, rows, sizeof(float *));
    c->out = (float **)cut_off(&at, rows, sizeof(float *));
    c->begin = (int *)cut_off(&at, 3 * rows, sizeof(int));
    c->end = c->begin + rows;
    c->seen = c->end + rows;
    return at;
}

/* ---- computing */

/* A short_tile is the rows in the lanes at the moment; lanes from `used` on have none. `hi` is the end of
 * the keys that any of them sees, which is what the last one sees. */
typedef struct short_tile {
    const float *k, *v; /* of the head */
    int used, hi;
    float dead; /* what p of a hidden key is: +0, or in the second pass ATTN_DEAD */
} short_tile;

/* Keys whose P V is still to come. */
typedef struct short_run {
    int from; /* counted in the tile */
    attn_lanes lanes;
} short_run;

static attn_lanes lanes_seeing(const short_call *c, const short_tile *t, int j)
{
    attn_lanes lanes = { 0, t->used };
    while (lanes.begin < t->used && c->seen[lanes.begin] <= j)
        lanes.begin++;
    return lanes;
}

/* clip_short hides keys j0 to j0+n-1 from the lanes that do not see them, of which there may be none. */
static void clip_short(const short_call *c, int j0, int n)
{
    int r;
    if (c->seen[0] >= j0 + n) /* The first lane sees least. */
        return;
    for (r = 0; r < c->kernels->rows; r++) {
        const int left = c->seen[r] - j0;
        c->begin[r] = 0;
        c->end[r] = left < 0 ? 0 : left < n ? left : n;
    }
    c->kernels->clip(c->s, n, c->begin, c->end);
}

static void add_run(const short_call *c, const short_tile *t, const short_run *run, int j0, int end)
{
    const ptrdiff_t stride = c->v.stride[2];
    const attn_product p = { .to = c->acc,
                             .by = c->s + run->from * c->kernels->rows,
                             .kv = t->v + (j0 + run->from) * stride,
                             .stride = stride,
                             .n = end - run->from,
                             .dim = c->dim_v,
                             .lanes = run->lanes };
    if (p.n > 0)
        (is_dead(t->dead) ? c->kernels->pv_select : c->kernels->pv)(&p);
}

/* weigh_short makes probabilities of the logits of n keys, and tells whether o must be rescaled before. */
static int weigh_short(const short_call *c, float dead, float *s, int n, attn_lanes lanes)
{
    const int found = c->kernels->running_max(s, n, c->m, c->l, c->alpha);
    const attn_exp e = { s, n, c->m, c->l, lanes, .calm = found & ATTN_IS_CALM };
    if (is_dead(dead))
        c->kernels->exp_sum(s, n, dead, c->m, c->l);
    else
        c->kernels->exp_block(&e);
    return found & ATTN_RAISED;
}

/* add_short_keys adds keys j0 to j0+n-1. P V goes over blocks together that have the same lanes and no
 * rescale between them. */
static void add_short_keys(const short_call *c, const short_tile *t, int j0, int n)
{
    const int rows = c->kernels->rows;
    const ptrdiff_t stride = c->k.stride[2];
    const attn_product p = { .to = c->s,
                             .by = c->qt,
                             .kv = t->k + j0 * stride,
                             .stride = stride,
                             .n = n,
                             .dim = c->dim,
                             .factor = c->factor,
                             .lanes = lanes_seeing(c, t, j0) };
    short_run run = { 0, p.lanes };
    int j;
    c->kernels->qk(&p);
    clip_short(c, j0, n);
    for (j = 0; j < n; j += ATTN_BLOCK) {
        const attn_lanes lanes = lanes_seeing(c, t, j0 + j);
        const int count = n - j < ATTN_BLOCK ? n - j : ATTN_BLOCK;
        const int raised = weigh_short(c, t->dead, c->s + j * rows, count, lanes);
        if (raised || lanes.begin != run.lanes.begin) {
            add_run(c, t, &run, j0, j);
            run.from = j;
            run.lanes = lanes;
        }
        if (raised)
            c->kernels->rescale(c->acc, c->alpha, c->dim_v);
    }
    add_run(c, t, &run, j0, n);
}

/* pass_short computes the state of all lanes from nothing. */
static void pass_short(const short_call *c, const short_tile *t)
{
    const int rows = c->kernels->rows;
    int j, r;
    memset(c->l, 0, (size_t)(1 + c->dim_v) * (size_t)rows * sizeof *c->l);
    for (r = 0; r < rows; r++)
        c->m[r] = NEG_INF;
    for (j = 0; j < t->hi; j += c->tile)
        add_short_keys(c, t, j, t->hi - j < c->tile ? t->hi - j : c->tile);
}

/* open_lanes sets the lanes to rows `first` and behind of a head's, which are counted as in src/tile.c. */
static void open_lanes(const short_call *c, short_tile *t, int b, int head0, int first)
{
    const attn_params *p = c->p;
    const int q_len = (int)entry32(p->q_len, b, p->seq_len_q);
    const int kv_len = (int)entry32(p->kv_len, b, p->seq_len_kv);
    const int offset = p->alignment == ATTN_ALIGN_BOTTOM_RIGHT ? kv_len - q_len : 0;
    int i = first / c->group, head = head0 + first % c->group, r;
    memset(c->spare, 0, (size_t)c->dim * sizeof *c->spare);
    t->used = t->hi = 0;
    for (r = 0; r < c->kernels->rows; r++) {
        c->in[r] = c->out[r] = c->spare;
        c->seen[r] = 0;
        if (i >= q_len)
            continue;
        c->in[r] = c->q.data + b * c->q.stride[0] + head * c->q.stride[1] + i * c->q.stride[2];
        c->out[r] = (float *)(uintptr_t)c->o.data + b * c->o.stride[0] + head * c->o.stride[1] +
                    i * c->o.stride[2];
        c->seen[r] = p->causal ? i + offset + 1 : kv_len;
        c->seen[r] = c->seen[r] < 0 ? 0 : c->seen[r] < kv_len ? c->seen[r] : kv_len;
        t->hi = c->seen[r];
        t->used++;
        if (++head == head0 + c->group) {
            head = head0;
            i++;
        }
    }
}

/* is_sound tells whether all sums of lanes that have a row are finite. In the others zero queries may have
 * met an infinity of K. */
static int is_sound(const short_call *c, const short_tile *t)
{
    const int rows = c->kernels->rows, sums = 1 + c->dim_v;
    int i = 0;
    if (c->kernels->finite(c->l, sums * (int64_t)rows))
        return 1;
    while (i < sums && c->kernels->finite(c->l + i * rows, t->used))
        i++;
    return i == sums;
}

/* add_short_rows computes the rows of one tile. Where a masked NaN or infinity may have met p = +0, the
 * second pass of docs/canon.md leaves hidden keys out by selection. */
static void add_short_rows(const short_call *c, short_tile *t)
{
    const attn_kernels *kernels = c->kernels;
    kernels->pack(c->qt, c->in, c->dim);
    t->dead = 0.0f;
    pass_short(c, t);
    if (!is_sound(c, t)) {
        t->dead = ATTN_DEAD;
        pass_short(c, t);
    }
    kernels->result(c->out, c->acc, c->l, 1.0f, c->dim_v);
}

/* rows_of_head gives NULL where there are no keys. */
static const float *rows_of_head(const short_tensor *x, int b, int head)
{
    return x->data ? x->data + b * x->stride[0] + head * x->stride[1] : NULL;
}

static void run_short(const short_call *c)
{
    const int heads_kv = (int)c->k.count[1];
    int b, head, first;
    for (b = 0; b < c->p->batch; b++)
        for (head = 0; head < heads_kv; head++) {
            const int q_rows = (int)c->p->seq_len_q * c->group;
            short_tile t;
            t.k = rows_of_head(&c->k, b, head);
            t.v = rows_of_head(&c->v, b, head);
            for (first = 0; first < q_rows; first += c->kernels->rows) {
                open_lanes(c, &t, b, head * c->group, first);
                if (t.used)
                    add_short_rows(c, &t);
            }
        }
}

/* size_of_short is attn_workspace_size for short calls. */
static attn_status size_of_short(const attn_params *p, size_t *bytes)
{
    short_call c;
    if (!p || !open_short(p, &c))
        return ATTN_ERR_UNSUPPORTED;
    *bytes = lay_out_short(&c, 0) + ALIGNMENT - 1;
    return ATTN_OK;
}

/* begin_short gives ATTN_ERR_UNSUPPORTED for a call that is not short, and ATTN_OK for one that run_short
 * can run. Rows there may be none. */
static attn_status begin_short(const attn_params *p, const void *workspace, size_t bytes,
                               short_call *c)
{
    const uintptr_t begin = (uintptr_t)workspace;
    size_t need;
    if (!p || !open_short(p, c))
        return ATTN_ERR_UNSUPPORTED;
    if (is_empty(p))
        return has_short_lengths(p) ? ATTN_OK : ATTN_ERR_ARG;
    need = lay_out_short(c, begin) - begin;
    if (!workspace || bytes < need)
        return ATTN_ERR_WORKSPACE;
    return has_short_data(c, workspace, (int64_t)need) ? ATTN_OK : ATTN_ERR_ARG;
}

/* why_not_short is all that attn_check says where there are no long calls. */
static const char *why_not_short(attn_status status)
{
    switch (status) {
    case ATTN_OK:
        return "";
    case ATTN_ERR_UNSUPPORTED:
        return "this build computes short calls only (ATTN_WITHOUT_LONG_CALLS)";
    case ATTN_ERR_WORKSPACE:
        return "workspace is NULL or smaller than attn_workspace_size says";
    default:
        return "an array is NULL or overlaps another one, or a length is out of its range";
    }
}

static attn_status forward_short(const attn_params *p, void *workspace, size_t bytes)
{
    short_call c;
    const attn_status status = begin_short(p, workspace, bytes, &c);
    if (!status && !is_empty(p))
        run_short(&c);
    return status;
}

/* src/forward.c - attn_forward, and what a caller may ask about a call. */

ATTN_API const char *attn_version(void)
{
    return ATTN_VERSION_STRING;
}

ATTN_API size_t attn_params_size(void)
{
    return sizeof(attn_params);
}

ATTN_API const char *attn_impl_name(int impl)
{
    /* The names are in the order of attn_impl. */
    static const char *const names[] = { "default", "tiled", "naive", "auto" };
    return impl >= 0 && impl < COUNT_OF(names) ? names[impl] : NULL;
}

ATTN_API const char *attn_status_string(attn_status status)
{
    static const char *const names[] = { "ok",
                                         "bad argument",
                                         "sizes exceed the address space",
                                         "workspace too small",
                                         "not supported",
                                         "callback failed",
                                         "cache full",
                                         "damaged data" };
    const int s = (int)status;
    return s >= 0 && s < COUNT_OF(names) ? names[s] : "unknown status";
}

#define FIXED_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(call)))

/* workspace_bytes counts the bytes for `workers` workers; 0 where there is nothing to do. */
static int64_t workspace_bytes(const problem *pr, const plan *pl, int workers)
{
    if (is_empty(&pr->p))
        return 0;
    return plus(plus(FIXED_BYTES, pl->shared_bytes), times(workers, pl->slot_bytes));
}

/* plan_call plans a call, with its prefix once for the batch where that is possible. */
static void plan_call(const problem *pr, plan *pl, int small, int64_t worker_bytes)
{
    int64_t items;
    begin_plan(pr, pl, small);
    pl->worker_bytes = min64(worker_bytes, pl->tuning.item_bytes - FIXED_BYTES);
    pl->modified = has_modifier(&pr->p);
    plan_masks(&pr->p, pl);
    divide_plan(pr, pl);
    items = pl->split.parts ? TOO_BIG : pl->items;
    if (!small && !is_empty(&pr->p))
        pl->prefix_keys = prefix_of(pr, &pl->prefix_why);
    if (!pl->prefix_keys)
        return;
    divide_plan(pr, pl);
    pl->prefix_why = plan_prefix(pr, pl, items);
    if (pl->prefix_why) {
        pl->prefix_keys = 0;
        divide_plan(pr, pl);
    }
}

/* workers_within tells how many of the plan's workers fit. */
static int workers_within(const problem *pr, const plan *pl, size_t bytes)
{
    const int64_t one = workspace_bytes(pr, pl, 1), most = workspace_bytes(pr, pl, pl->workers);
    if ((uint64_t)bytes >= (uint64_t)most)
        return pl->workers;
    if ((uint64_t)bytes < (uint64_t)one)
        return 0;
    return (int)(((int64_t)bytes - one) / pl->slot_bytes) + 1;
}

/* plan_within takes the plan that lets most workers run, and returns how many run, or 0 if the
 * workspace is too small. The candidates are the best plan; that plan with what there is for each
 * worker, as a shorter call may want larger slots or memory to divide keys than the call whose
 * workspace it is; and the small plan. Fewer rows, keys, row tiles and tree slots need less each in
 * a small plan, so the workspace of a call holds any shorter one. Where not even that fits, tiles of keys
 * are halved until one worker does: to a block, or to a panel with kernels whose sums follow panels. */
static int plan_within(const problem *pr, plan *pl, size_t bytes)
{
    const int64_t usual = INT64_MAX, limit = ADDRESS_LIMIT;
    const int64_t room = (uint64_t)bytes < (uint64_t)limit ? (int64_t)bytes : limit;
    const int64_t each = room / pr->p.num_workers - FIXED_BYTES;
    const struct {
        int small;
        int64_t worker_bytes;
    } tries[] = { { 0, usual }, { 0, each }, { 1, usual } };
    int best = -1, most = -1, last = -1, least, n, i;
    for (i = 0; i < COUNT_OF(tries); i++) {
        plan_call(pr, pl, tries[i].small, tries[i].worker_bytes);
        last = i;
        n = workers_within(pr, pl, bytes);
        if (n > most) {
            most = n;
            best = i;
        }
        if (i == 0 && n == pl->workers)
            break;
    }
    least = pl->kernels->pack_values ? ATTN_PANEL_KEYS : ATTN_BLOCK;
    for (i = 2; most == 0 && pr->p.tile_keys >> (i - 1) >= least; i++) {
        plan_call(pr, pl, i, usual);
        most = workers_within(pr, pl, bytes);
        last = best;
    }
    if (most > 0 && last != best) /* Otherwise the small plan tells how much is needed. */
        plan_call(pr, pl, tries[best].small, tries[best].worker_bytes);
    return most;
}

/* ask_backend returns above 0 where the backend takes the call, 0 where the CPU does, and below 0
 * where nobody can. *why (may be NULL) then gets the backend's reason. */
static int ask_backend(const problem *pr, text *why)
{
    const attn_backend *backend = pr->p.backend;
    char reason[160];
    int answer;
    if (!backend)
        return 0;
    reason[0] = 0;
    answer = backend->supports(backend, pr, reason, sizeof reason);
    reason[sizeof reason - 1] = 0;
    if (answer <= 0 && why) {
        put(why, backend->name);
        put(why, " refused: ");
        put(why, reason);
    }
    return answer;
}

/* check_workspace_apart is check_call_apart with the bytes of a workspace that a run uses. */
static attn_status check_workspace_apart(const attn_params *p, const void *workspace, int64_t bytes,
                                         text *why)
{
    const area a = area_of_bytes("the workspace", workspace, bytes);
    return check_call_apart(p, &a, why);
}

/* A backend has one size, and there is no plan of the CPU. */
static attn_status check_backend(const problem *pr, const void *workspace, size_t bytes, text *why)
{
    size_t need = 0;
    const attn_status status = pr->p.backend->workspace_size(pr->p.backend, pr, &need);
    if (status)
        return bad(why, status, "the backend cannot size its workspace");
    return bytes < need ? too_small(why, (int64_t)bytes, (int64_t)need, "attn_workspace_size")
                        : check_workspace_apart(&pr->p, workspace, (int64_t)need, why);
}

static attn_status check_size_limit(const problem *pr, const plan *pl, text *why)
{
    const int64_t need = workspace_bytes(pr, pl, pl->workers);
    const int too_long = pl->impl == ATTN_IMPL_NAIVE && pr->max_kv_len > INT32_MAX;
    if (need < ADDRESS_LIMIT && !too_long)
        return ATTN_OK;
    return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_kv", pr->p.seq_len_kv,
                     ": the workspace would exceed the address space (naive needs "
                     "seq_len_q * seq_len_kv floats)");
}

/* plan_cpu plans a call that the CPU takes, within `room` bytes; *workers of it can run. */
static attn_status plan_cpu(problem *pr, plan *pl, int *workers, size_t room, text *why)
{
    attn_status status;
    settle_workers(&pr->p);
    *workers = plan_within(pr, pl, room);
    status = check_size_limit(pr, pl, why);
    if (!status && *workers == 0)
        status = too_small(why, (int64_t)room, workspace_bytes(pr, pl, 1), "attn_workspace_size");
    return status;
}

/* open_forward puts problem and plan where items find them: at the start of the workspace. */
static call *open_forward(const problem *pr, const plan *pl, int workers, void *workspace)
{
    char *base = align_memory(workspace);
    call *c = (call *)(void *)base;
    c->pr = *pr;
    c->pl = *pl;
    c->slot_count = workers;
    base += aligned((int64_t)sizeof *c);
    c->shared = (float *)(void *)base;
    c->slots = base + pl->shared_bytes;
    ATTN_ASSERT((uintptr_t)c->slots % ALIGNMENT == 0);
    ATTN_ASSERT(workers <= pl->workers);
    return c;
}

/* check_call checks everything that can be wrong before a run, in the order in which attn_forward
 * finds it. *opened (NULL means not wanted) becomes the run in the workspace if the CPU has one to
 * do, or else NULL. */
OWN_FRAME static attn_status check_call(const attn_params *p, void *workspace, size_t bytes,
                                        call **opened, text *why)
{
    const size_t room = workspace ? bytes : 0;
    problem pr;
    plan pl;
    int workers, answer;
    attn_status status = validate(p, &pr, 1, why);
    if (opened)
        *opened = NULL;
    if (status)
        return status;
    answer = ask_backend(&pr, NULL);
    if (answer < 0) {
        ask_backend(&pr, why);
        return ATTN_ERR_UNSUPPORTED;
    }
    if (answer && !is_empty(p))
        return check_backend(&pr, workspace, room, why);
    settle_gather(p, &pr, may_gather(&pr) && is_sparse(&pr));
    status = plan_cpu(&pr, &pl, &workers, room, why);
    if (!status && !is_empty(p))
        status = check_workspace_apart(&pr.p, workspace, workspace_bytes(&pr, &pl, workers), why);
    if (!status && opened && !is_empty(p))
        *opened = open_forward(&pr, &pl, workers, workspace);
    return status;
}

ATTN_API const char *attn_check(const attn_params *p, const void *workspace, size_t bytes,
                                char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    short_call c;
    attn_status status = begin_short(p, workspace, bytes, &c);
    if (status && HAS_LONG_CALLS)
        status = check_call(p, (void *)(uintptr_t)workspace, bytes, NULL, &why);
    else
        put(&why, why_not_short(status));
    return verdict(status, buffer, &why);
}

ATTN_API attn_status attn_problem_of(const attn_params *p, attn_problem *pr, char *buffer,
                                     size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    return pr ? validate(p, pr, 0, &why) : bad(&why, ATTN_ERR_ARG, "problem is NULL");
}

ATTN_API attn_sequence attn_sequence_of(const attn_problem *pr, int64_t b)
{
    return sequence_of(&pr->p, b);
}

/* leave_one_row makes the problem one with one query row, which may divide its keys where more rows
 * do not, and take another kernel set, whose tiles have more keys. */
static void leave_one_row(const attn_params *asked, problem *pr)
{
    pr->p.seq_len_q = min64(asked->seq_len_q, 1);
    pr->p.part.row_count = min64(asked->part.row_count, 1);
    pr->max_q_len = min64(pr->max_q_len, 1);
    pr->p.kernels = asked->kernels;
    pr->p.tile_keys = asked->tile_keys;
    resolve_kernels(pr);
}

/* size_of_call gives what attn_workspace_size says of a call without a backend: enough for all
 * workers, whether the prefix will be shared or not, whether keys will be gathered, and for one row. It changes *pr. */
static attn_status size_of_call(const attn_params *asked, problem *pr, text *why, size_t *bytes)
{
    int64_t most = 0;
    int row, n;
    plan pl;
    attn_status status = ATTN_OK;
    pr->size_query = 1;
    for (row = 0; row < 2 && !status; row++) {
        if (row)
            leave_one_row(asked, pr);
        for (n = 0; n < 4 && !status; n++) {
            pr->p.shared_keys = n % 2 ? 0 : asked->shared_keys;
            settle_gather(asked, pr, n / 2 && may_gather(pr));
            plan_call(pr, &pl, 0, INT64_MAX);
            status = check_size_limit(pr, &pl, why);
            most = max64(most, workspace_bytes(pr, &pl, pl.workers));
        }
    }
    *bytes = status ? 0 : (size_t)most;
    return status;
}

OWN_FRAME ATTN_API attn_status attn_workspace_size(const attn_params *p, size_t *bytes)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_status status;
    int answer;
    if (!bytes)
        return ATTN_ERR_ARG;
    *bytes = 0;
    if (!HAS_LONG_CALLS)
        return size_of_short(p, bytes);
    status = validate(p, &pr, 0, &why);
    if (status)
        return status;
    answer = ask_backend(&pr, NULL);
    if (answer < 0)
        return ATTN_ERR_UNSUPPORTED;
    if (answer)
        return pr.p.backend->workspace_size(pr.p.backend, &pr, bytes);
    return size_of_call(p, &pr, &why, bytes);
}

static void tell_log(const attn_params *p, int level, const char *sentence)
{
    if (HAS_SENTENCES && p->log)
        p->log(p->log_user, level, sentence);
}

/* forward_backend runs the call on the backend and returns 1, or logs why not and returns 0. */
OWN_FRAME static int forward_backend(const attn_params *p, void *workspace, size_t bytes,
                                     attn_status *status)
{
    char sentence[256];
    text why = text_in(sentence, sizeof sentence);
    problem pr;
    validate(p, &pr, 1, &why); /* It cannot fail, as check_call has passed. */
    if (ask_backend(&pr, &why) > 0) {
        *status = p->backend->run(p->backend, &pr, workspace, bytes);
        return 1;
    }
    tell_log(p, ATTN_LOG_INFO, sentence);
    return 0;
}

/* forward_cpu runs a call that names no backend. */
static attn_status forward_cpu(const attn_params *p, void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    call *c;
    const attn_status status = check_call(p, workspace, bytes, &c, &why);
    return status || !c ? status : run_lists(c);
}

/* A damaged tuning text only costs speed. */
OWN_FRAME static void warn_of_tuning(const attn_params *p)
{
    char sentence[256];
    text why = text_in(sentence, sizeof sentence);
    tuning t;
    if (p->tuning && p->log && !read_tuning(p->tuning, "", &t, &why))
        tell_log(p, ATTN_LOG_WARNING, sentence);
}

ATTN_API attn_status attn_forward(const attn_params *p, void *workspace, size_t workspace_bytes)
{
    text why = text_in(NULL, 0);
    call *c;
    attn_status status = forward_short(p, workspace, workspace_bytes);
    if (!status || !HAS_LONG_CALLS)
        return status;
    status = check_call(p, workspace, workspace_bytes, &c, &why);
    if (status || is_empty(p))
        return status;
    if (p->backend && forward_backend(p, workspace, workspace_bytes, &status))
        return status;
    warn_of_tuning(p);
    /* NULL means that a backend took the call, and then did not. */
    return c ? run_lists(c) : ATTN_ERR_CALLBACK;
}

/* src/explain.c - what attn_forward would do with a call, and why. */

/* axes_read counts keys, not pages and rings. Of recent keys it counts what the rows of a sequence read. */
static call_axes axes_read(const attn_params *p)
{
    call_axes x = axes_of_call(p);
    x.count[AXIS_ENTRY] = x.count[AXIS_RECENT] = p->batch;
    x.count[AXIS_KEY] = keys_held(p);
    if (p->recent.keys && p->seq_len_q)
        x.count[AXIS_RECENT_ROW] =
            min64(plus(p->recent.keys, p->seq_len_q - 1), min64(p->recent.ring, p->seq_len_kv));
    return x;
}

/* is_scale_field tells whether a row is an array of scales of K or V. */
static int is_scale_field(const call_field *f)
{
    return f->type == F_F32 && f->axis[2] == AXIS_KEY;
}

/* shares_axis tells whether an array has one element for all indices of an axis. */
static int shares_axis(const call_field *f, const attn_params *p, const call_axes *held, int axis)
{
    return held->count[f->axis[axis]] > 1 && f->stride[axis] && !stride_given(f, p, axis);
}

/* Every tensor and every scale once: the inputs, and the outputs that are asked for. */
static double call_bytes(const attn_params *p)
{
    const call_axes held = axes_of_call(p), x = axes_read(p);
    double sum = 0;
    int i, axis;
    for (i = 0; i < COUNT_OF(call_fields); i++) {
        const call_field *f = &call_fields[i];
        double bytes;
        if (!(is_tensor(f) || is_scale_field(f)) ||
            ((f->output || is_scale_field(f)) && !field_data(f, p)))
            continue;
        bytes = (double)element_bytes(f, p) / (double)unit_of_field(f, p);
        for (axis = is_packed(f, &x); axis < 4; axis++)
            bytes *= shares_axis(f, p, &held, axis) ? 1 : (double)x.count[f->axis[axis]];
        sum += bytes;
    }
    return sum;
}

/* ---- reasons */

static void explain_impl(const problem *pr, const plan *pl, text *why)
{
    const attn_params *p = &pr->p;
    put(why, attn_impl_name(pl->impl));
    if (p->impl == ATTN_IMPL_AUTO) {
        put(why, ": seq_len_kv is ");
        put(why, pl->impl == ATTN_IMPL_NAIVE ? "at most " : "above ");
        put_field(why, "auto_naive_keys", p->auto_naive_keys);
    } else {
        put(why, p->impl == ATTN_IMPL_DEFAULT ? ": the default at every length" : ": asked for");
    }
}

static void explain_kernels(const attn_params *asked, const attn_kernels *kernels, text *why)
{
    put(why, "; kernels ");
    put(why, kernels->name);
    put(why, asked->kernels ? ": asked for" : ": the best that are linked in and run here");
    if (kernels == &kernels_portable && !FMA_BASE && !asked->kernels)
        put(why, "; FMA in software: " SOFT_FMA_WHY);
    put_missing_kernels(why);
}

/* key_parts counts the parts of the keys of a row tile that different workers may take. */
static int key_parts(const plan *pl)
{
    const split *sp = &pl->split;
    return sp->parts ? sp->parts - sp->inside + sp->inside * sp->tiles : 1;
}

static void explain_prefix(const plan *pl, text *why)
{
    if (pl->prefix_keys) {
        put_numbers(why, "; prefix of # keys: once for the batch", &pl->prefix_keys);
    } else if (pl->prefix_why) {
        put(why, "; prefix not shared: ");
        put(why, pl->prefix_why);
    }
}

static void explain_lists(const attn_params *p, const plan *pl, text *why)
{
    if (p->key_list.data)
        put(why, pl->gathered ? "; rows read only listed keys"
                              : "; rows pass over keys that are not listed");
}

/* explain_products tells what else than exact products of f32 there is. */
static void explain_products(const attn_params *p, const attn_kernels *kernels, text *why)
{
    if (p->integer)
        put(why, "; integer: scores of whole numbers");
    if (p->fast)
        put(why, kernels->pack_values ? "; fast: products of bf16"
                                      : "; fast: no kernels here round such a call");
}

static void explain_short(const attn_params *asked, text *why)
{
    short_call c;
    if (open_short(asked, &c))
        put(why, "; short: computed directly, without a plan");
}

static void explain_call(const attn_params *asked, const problem *pr, const plan *pl,
                         attn_info *info)
{
    text why = text_in(info->reasons, sizeof info->reasons);
    const attn_params *p = &pr->p;
    int answer;
    explain_impl(pr, pl, &why);
    explain_short(asked, &why);
    explain_prefix(pl, &why);
    explain_lists(p, pl, &why);
    explain_products(p, pl->kernels, &why);
    put_tuning(pr, pl, &why); /* It comes before a list that may not fit. */
    explain_kernels(asked, pl->kernels, &why);
    if (asked->parallel_for && asked->num_workers == 0)
        put(&why, "; one worker: num_workers is 0, parallel_for is not called");
    if (asked->num_workers > p->num_workers)
        put(&why, "; one worker: parallel_for is NULL, OpenMP is not compiled in");
    if (p->backend)
        put(&why, "; backend ");
    answer = ask_backend(pr, &why);
    if (answer > 0)
        put(&why, "takes the call");
    info->impl = pl->impl;
    info->impl_name = attn_impl_name(pl->impl);
    info->kernels_name = pl->kernels->name;
    info->backend_name = answer > 0 ? p->backend->name : answer ? "none" : "cpu";
    info->tile_rows = pl->rows;
    info->tile_keys = pl->keys;
    info->workers = pl->workers;
    info->items = pl->split.parts ? split_items(pl) : plus(pl->items, pl->prefix_items);
    info->items = plus(info->items, pl->logits_items);
    info->key_parts = key_parts(pl);
    info->workspace_bytes_per_worker = (size_t)pl->slot_bytes;
    info->pairs = visible_pairs(p);
    info->flops = 2.0 * info->pairs * (double)(p->head_dim + p->head_dim_v);
    info->bytes = call_bytes(p);
}

/* explain_plan fills in all but workspace_bytes. */
OWN_FRAME static attn_status explain_plan(const attn_params *p, attn_info *info)
{
    text why = text_in(info->reasons, sizeof info->reasons);
    problem pr;
    plan pl;
    attn_status status = validate(p, &pr, 0, &why);
    if (status)
        return status;
    settle_workers(&pr.p);
    settle_gather(p, &pr, may_gather(&pr) && is_sparse(&pr));
    plan_call(&pr, &pl, 0, INT64_MAX);
    status = check_size_limit(&pr, &pl, &why);
    if (!status)
        explain_call(p, &pr, &pl, info);
    return status;
}

ATTN_API attn_status attn_explain(const attn_params *p, attn_info *info)
{
    attn_status status;
    if (!info)
        return ATTN_ERR_ARG;
    memset(info, 0, sizeof *info);
    info->impl_name = info->kernels_name = info->backend_name = "none";
    if (!HAS_LONG_CALLS)
        return ATTN_ERR_UNSUPPORTED;
    status = explain_plan(p, info);
    return status ? status : attn_workspace_size(p, &info->workspace_bytes);
}

/* src/options.c - for people: attn_info as lines, options of a command line. */

static void put_line(text *t, const char *label, const char *value)
{
    put(t, label);
    put(t, value);
    put(t, "\n");
}

static void put_count_line(text *t, const char *label, double value)
{
    put(t, label);
    put_int(t, value < 9e18 ? (int64_t)value : INT64_MAX);
    put(t, "\n");
}

ATTN_API const char *attn_info_format(const attn_info *info, char *buffer, size_t bytes)
{
    text t = text_in(buffer, bytes);
    if (!info)
        return "";
    put_line(&t, "impl              ", info->impl_name);
    put_line(&t, "kernels           ", info->kernels_name);
    put_line(&t, "backend           ", info->backend_name);
    put_count_line(&t, "tile rows         ", info->tile_rows);
    put_count_line(&t, "tile keys         ", info->tile_keys);
    put_count_line(&t, "workers           ", info->workers);
    put_count_line(&t, "items             ", (double)info->items);
    put_count_line(&t, "key parts         ", info->key_parts);
    put_count_line(&t, "workspace bytes   ", (double)info->workspace_bytes);
    put_count_line(&t, "  of each worker  ", (double)info->workspace_bytes_per_worker);
    put_count_line(&t, "visible pairs     ", info->pairs);
    put_count_line(&t, "flops             ", info->flops);
    put_count_line(&t, "tensor bytes      ", info->bytes);
    put_line(&t, "why               ", info->reasons);
    return buffer && bytes ? buffer : "";
}

/* ---- options as text */

static const struct number_option {
    const char *name;
    member field;
    int64_t most;
} number_options[] = {
    { "workers", MEMBER(num_workers), 65536 },
    { "tile_keys", MEMBER(tile_keys), 1024 },
    { "redo", MEMBER(force_redo), 1 },
    { "naive_whole", MEMBER(naive_whole), 1 },
    { "auto_naive_keys", MEMBER(auto_naive_keys), INT64_MAX },
};

static int set_number_option(attn_params *p, const char *key, size_t key_length, const char *value,
                             size_t length)
{
    int64_t number;
    int o, as_int;
    for (o = 0; o < COUNT_OF(number_options); o++) {
        const member field = number_options[o].field;
        if (!same_word(number_options[o].name, key, key_length))
            continue;
        if (!parse_int(value, length, &number) || number > number_options[o].most)
            return 0;
        as_int = (int)number;
        memcpy((char *)p + field.offset, field.size == sizeof number ? (void *)&number : &as_int,
               field.size);
        return 1;
    }
    return 0;
}

static int set_named_option(attn_params *p, const char *key, size_t key_length, const char *value,
                            size_t length)
{
    const int for_kernels = same_word("kernels", key, key_length);
    const attn_kernels *kernels = for_kernels ? find_kernels(value, length) : NULL;
    const char *impl;
    int i;
    for (i = 0; same_word("impl", key, key_length) && (impl = attn_impl_name(i)); i++)
        if (same_word(impl, value, length)) {
            p->impl = i;
            return 1;
        }
    if (kernels)
        p->kernels = kernels;
    return kernels != NULL;
}

/* set_option takes one "key=value" of `length` characters. */
static int set_option(attn_params *p, const char *word, size_t length)
{
    size_t key = 0;
    while (key < length && word[key] != '=')
        key++;
    if (key == length)
        return 0;
    return set_number_option(p, word, key, word + key + 1, length - key - 1) ||
           set_named_option(p, word, key, word + key + 1, length - key - 1);
}

static int is_separator(char c)
{
    return c == ' ' || c == ',' || c == '\t' || c == '\n';
}

ATTN_API attn_status attn_params_from_string(attn_params *p, const char *string, char *why,
                                             size_t why_bytes)
{
    text sentence = text_in(why, why_bytes);
    attn_params changed;
    if (!p || !string)
        return bad(&sentence, ATTN_ERR_ARG, p ? "text is NULL" : "params is NULL");
    changed = *p;
    while (*string) {
        size_t length = 0;
        while (string[length] && !is_separator(string[length]))
            length++;
        if (length && !set_option(&changed, string, length)) {
            put(&sentence, "option '");
            put_word(&sentence, string, length);
            return bad(&sentence, ATTN_ERR_ARG,
                       "': expected impl=default|tiled|naive|auto, kernels=NAME (one that this CPU "
                       "can run), workers=N, tile_keys=N, redo=0|1, naive_whole=0|1, "
                       "auto_naive_keys=N");
        }
        string += length;
        while (is_separator(*string))
            string++;
    }
    *p = changed;
    put(&sentence, "ok");
    return ATTN_OK;
}

/* src/merge.c - results over parts of the keys become one: raw states, or finished results by their LSE. */

/* check_finish_apart is about what is written, read and left alone when states are finished. It leaves in *p
 * only the arrays that this reads. */
OWN_FRAME static attn_status check_finish_apart(attn_params *p, const attn_state *state, text *why)
{
    const call_axes x = axes_of_call(p);
    array_set s = { .table = call_fields,
                    .n = COUNT_OF(call_fields),
                    .base = p,
                    .x = &x,
                    .written = OUTPUT_RESULT,
                    .read = OUTPUT_STATE };
    p->state = *state;
    p->q.data = p->k.data = p->v.data = p->bias.data = NULL;
    leave_out_unused(p, &s);
    return check_written(&s, 1, NULL, why);
}

/* finish_row finishes one row of attn_state_finish, in pieces that fit on the stack and are rotated
 * alone. */
OWN_FRAME static void finish_row(const problem *pr, const sequence *s, int64_t head, int64_t i,
                                 const attn_state *state)
{
    const attn_params *p = &pr->p;
    const attn_state row = state_at(state, state_row(p, s, head, i), p->head_dim_v);
    const float sink = sink_of(p, head);
    float m = *row.m, l = *row.l, w = 1.0f, piece[ROTATE_MOST], *const to = piece;
    const int with_sink = !is_neg_inf(sink) && l != 0.0f;
    int64_t d, n;
    if (with_sink)
        w = merge_sink(sink, &m, &l);
    write_sums(p, s, head, i, m, l);
    for (d = 0; p->o.data && d < p->head_dim_v; d += n) {
        n = rotate_size(p->head_dim_v - d);
        memcpy(piece, row.o + d, (size_t)n * sizeof *piece);
        if (with_sink)
            scale_values(piece, 1, n, w);
        result_rows(1, &to, piece, &l, pr->keep_factor, n);
        if (p->rotated & ATTN_ROTATED_V)
            rotate_result(piece, n);
        store_run(p->kernels, p->o.dtype, p->o.data, ROW_AT(p->o, s, head, s->q_row + i) + d, piece,
                  n);
    }
}

ATTN_API attn_status attn_state_finish(const attn_params *p, const attn_state *state)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_status status;
    int64_t b, head, i;
    if (!p || !is_state(state))
        return ATTN_ERR_ARG;
    status = refuse_fields(p, BY_FINISH, "attn_state_finish", &why);
    if (!status)
        status = validate(p, &pr, 0, &why);
    if (status)
        return status;
    if (!wants_results(&pr.p))
        return ATTN_ERR_ARG;
    status = check_finish_apart(&pr.p, state, &why);
    for (b = 0; b < pr.p.batch && !status; b++) {
        const sequence s = sequence_of(&pr.p, b);
        for (head = 0; head < pr.p.num_heads_q; head++)
            for (i = s.row_from; i < s.row_to; i++)
                finish_row(&pr, &s, head, i, state);
    }
    return status;
}

/* ---- what merges write */

enum { RESULT_ARRAYS = 3 }; /* the values of each row, and a number or two for each row */

static area result_area(const float *const *result, int i, int64_t rows, int64_t head_dim_v)
{
    const int64_t count = times(rows, i == 0 ? head_dim_v : 1);
    return area_of_bytes("", result[i], times(count, (int64_t)sizeof **result));
}

/* results_clash tells whether arrays of two results share bytes. One that is the same array of both
 * does no harm, since a row is read before it is written. */
COLD static int results_clash(const float *const *x, const float *const *y, int64_t rows,
                              int64_t head_dim_v)
{
    int i, j;
    for (i = 0; i < RESULT_ARRAYS; i++)
        for (j = 0; j < RESULT_ARRAYS; j++) {
            const area a = result_area(x, i, rows, head_dim_v);
            const area b = result_area(y, j, rows, head_dim_v);
            if (!(i == j && x[i] == y[j]) && areas_meet(&a, &b))
                return 1;
        }
    return 0;
}

static int can_merge(const float *const *out, const float *const *a, const float *const *b,
                     int64_t rows, int64_t head_dim_v)
{
    return !results_clash(out, a, rows, head_dim_v) && !results_clash(out, b, rows, head_dim_v) &&
           !results_clash(out, out, rows, head_dim_v);
}

/* ---- raw states */

static void merge_states(const attn_state *a, const attn_state *b, const attn_state *out)
{
    int64_t row;
    for (row = 0; row < out->num_rows; row++) {
        const attn_state lower = state_at(a, row, out->head_dim_v);
        const attn_state upper = state_at(b, row, out->head_dim_v);
        const attn_state sum = state_at(out, row, out->head_dim_v);
        if (*lower.l == 0.0f || *upper.l == 0.0f) /* An empty part changes nothing. */
            copy_states(&sum, *lower.l == 0.0f ? &upper : &lower, 1, out->head_dim_v);
        else
            merge_rows(FMA_BASE, 1, &lower, &upper, &sum, out->head_dim_v);
    }
}

static int can_merge_states(const attn_state *a, const attn_state *b, const attn_state *out)
{
    const float *const x[] = { a->o, a->m, a->l }, *const y[] = { b->o, b->m, b->l };
    const float *const to[] = { out->o, out->m, out->l };
    return can_merge(to, x, y, out->num_rows, out->head_dim_v);
}

ATTN_API attn_status attn_state_merge(const attn_state *a, const attn_state *b, attn_state *out)
{
    if (!is_state(a) || !is_state(b) || !is_state(out) || out->num_rows < 0 ||
        out->head_dim_v < 0 || !can_merge_states(a, b, out))
        return ATTN_ERR_ARG;
    merge_states(a, b, out);
    return ATTN_OK;
}

/* ---- finished results */

/* lse_weight gives 2^((x - top) * log2 e), the weight of a part whose LSE is x. */
static float lse_weight(float x, float top)
{
    float w = x - top;
    w = w * LOG2E_HI;
    return exp2_canon(w);
}

static void merge_lse_row(int64_t head_dim_v, const float *o_a, float lse_a, const float *o_b,
                          float lse_b, float *o_out, float *lse_out)
{
    const float top = lse_a > lse_b ? lse_a : lse_b;
    const float wa = lse_weight(lse_a, top), wb = lse_weight(lse_b, top);
    const float sum = wa + wb;
    float lse = log2_canon(sum);
    int64_t d;
    lse = lse * LN2;
    lse = top + lse;
    for (d = 0; d < head_dim_v; d++) {
        float x = o_a[d] * wa;
        x = fma32(FMA_BASE, o_b[d], wb, x);
        x = x / sum;
        o_out[d] = x + 0.0f;
    }
    *lse_out = lse + 0.0f;
}

static void merge_results(int64_t num_rows, int64_t head_dim_v, const float *o_a,
                          const float *lse_a, const float *o_b, const float *lse_b, float *o_out,
                          float *lse_out)
{
    int64_t row;
    for (row = 0; row < num_rows; row++) {
        const int64_t at = row * head_dim_v;
        const int only_a = is_neg_inf(lse_b[row]), only_b = is_neg_inf(lse_a[row]);
        if (only_a || only_b) { /* An empty part changes nothing. */
            memmove(o_out + at, only_a ? o_a + at : o_b + at, (size_t)head_dim_v * sizeof *o_out);
            lse_out[row] = only_a ? lse_a[row] : lse_b[row];
            continue;
        }
        merge_lse_row(head_dim_v, o_a + at, lse_a[row], o_b + at, lse_b[row], o_out + at,
                      &lse_out[row]);
    }
}

ATTN_API attn_status attn_lse_merge(int64_t num_rows, int64_t head_dim_v, const float *o_a,
                                    const float *lse_a, const float *o_b, const float *lse_b,
                                    float *o_out, float *lse_out)
{
    const float *const a[] = { o_a, lse_a, NULL }, *const b[] = { o_b, lse_b, NULL };
    const float *const out[] = { o_out, lse_out, NULL };
    if (num_rows < 0 || head_dim_v < 0 || !o_a || !lse_a || !o_b || !lse_b || !o_out || !lse_out ||
        !can_merge(out, a, b, num_rows, head_dim_v))
        return ATTN_ERR_ARG;
    merge_results(num_rows, head_dim_v, o_a, lse_a, o_b, lse_b, o_out, lse_out);
    return ATTN_OK;
}

/* src/rope/fixed_point.c - fixed-point arithmetic of 64 bits for the angles of RoPE.
 *
 * Integers give the same bits everywhere, and reduce an angle to one turn for nothing: the reduced
 * angle is what a product leaves modulo 2^64.
 */

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

/* The number is whole + part / 2^64. */
typedef struct rope_fixed {
    int64_t whole;
    uint64_t part;
} rope_fixed;

/* fixed_over divides x >= 0 by d, which is from 1 to 2^31, and rounds down. */
static rope_fixed fixed_over(rope_fixed x, int64_t d)
{
    const uint64_t by = (uint64_t)d, whole = (uint64_t)x.whole;
    const uint64_t upper = whole % by << 32 | x.part >> 32;
    const uint64_t lower = upper % by << 32 | (x.part & 0xffffffffu);
    const rope_fixed y = { (int64_t)(whole / by), upper / by << 32 | lower / by };
    return y;
}

/* fixed_times gives n x for n < 2^31 and x >= 0 below 2^32 / n. */
static rope_fixed fixed_times(rope_fixed x, int64_t n)
{
    const uint64_t by = (uint64_t)n, lower = (x.part & 0xffffffffu) * by;
    const uint64_t upper = (x.part >> 32) * by + (lower >> 32);
    const rope_fixed y = { (int64_t)((uint64_t)x.whole * by + (upper >> 32)),
                           upper << 32 | (lower & 0xffffffffu) };
    return y;
}

static rope_fixed fixed_plus(rope_fixed x, rope_fixed y)
{
    x.part += y.part;
    x.whole += y.whole + (x.part < y.part);
    return x;
}

/* mantissa splits x > 0 into the result, which has 24 bits, times 2^*scale. */
static uint64_t mantissa(float x, int *scale)
{
    const uint32_t u = bits_of(x), exponent = u >> 23;
    *scale = (int)(exponent ? exponent : 1) - 150;
    return (u & 0x7fffffu) | (exponent ? 0x800000u : 0);
}

/* log2_of gives log2 of v 2^scale for v > 0. A square has twice the logarithm, so each squaring of
 * a number in [1, 2) gives one more binary digit. An error of a square counts half as much as one
 * of the square before, so all together they stay below 2^-62. */
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

/* alternating evaluates c[0] - x (c[1] - x (c[2] - ...)), where x is in units of 2^-64. */
static uint64_t alternating(const uint64_t *c, int count, uint64_t x)
{
    uint64_t y = c[count - 1];
    int k;
    for (k = count - 2; k >= 0; k--)
        y = c[k] - ROPE_HIGH64(x, y);
    return y;
}

/* power_of_two gives 2^64 2^-x for x in [0, 1) in units of 2^-64. It is 1 - x g(x) with g of degree
 * 12 by Remez, and its worst error is 2^-69. */
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

/* over_float divides x by d > 0: x / d is the result times 2^-n, where n is what it adds to
 * *shift. */
static uint64_t over_float(uint64_t x, float d, int *shift)
{
    int scale;
    uint64_t by = mantissa(d, &scale);
    for (; !(by >> 23); scale--)
        by <<= 1;
    *shift += scale + 23;
    return (x / by << 23) + (x % by << 23) / by;
}

/* shifted gives x 2^-shift to the nearest, modulo 2^64. */
static uint64_t shifted(uint64_t x, int shift)
{
    if (shift <= 0)
        return shift > -64 ? x << -shift : 0;
    if (shift > 64)
        return 0;
    return (x >> (shift - 1) >> 1) + (x >> (shift - 1) & 1);
}

/* src/rope/frequencies.c - the frequencies of the pairs, in units of 2^-64 turns per position, and their cosines and sines.
 *
 * A whole turn more or less per position changes no angle, but YARN and LLAMA3 compare frequencies and
 * take a difference of two: their frequencies are below a turn, see ROPE_LEAST_COMPARED.
 */

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

/* src/rope/turn.c - turning pairs of numbers in f32: built once plainly and once for FMA. */

#define ROPE_PAIRS 16 /* One vector loop turns this number of pairs. */

/* finished gives x, but +0 for -0 and the one NaN for every NaN, as every output of the library has
 * it. */
KERNEL float finished(float x)
{
    uint32_t nan;
    x = x + 0.0f;
    nan = 0u - (uint32_t)((bits_of(x) & 0x7fffffffu) > 0x7f800000u);
    return float_of((bits_of(x) & ~nan) | (CANONICAL_NAN & nan));
}

/* turn_pairs turns ROPE_PAIRS pairs (x[k*step], x[k*step + apart]) into the places of y that x has,
 * with y_apart for apart. */
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

/* turn_split_body turns n pairs (x[k], x[apart + k]); c and s hold zeros up to the next multiple of
 * ROPE_PAIRS. Results first go to an array of their own, so that compilers need not fear that y is
 * x + 1. */
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

/* turn_interleaved_body turns n pairs (x[2k], x[2k + 1]). */
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

/* y may be x. apart lies between the two numbers of a pair; 1 means interleaved. */
typedef void (*rope_turn_fn)(float *y, const float *x, int64_t apart, const float *c,
                             const float *s, int n);

/* Each body is a function of its own, as at -O0 one frame for both would take 1.3 KiB. */
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
#else
#define turn_fused turn_plainly
#endif

static rope_turn_fn best_turn(void)
{
    return attn_cpu_features() & ATTN_CPU_AVX2 ? turn_fused : turn_plainly;
}

/* src/rope/rows.c - the rows that are turned, a block of pairs at a time.
 *
 * A block computes its frequencies once, then for each row its cosines and sines, which serve all
 * heads.
 */

/* A block has 1 KiB of frequencies, cosines and sines, which serve a head of up to 128 at once. */
#define ROPE_BLOCK 64

typedef struct rope_block {
    int64_t first; /* first is a pair. */
    int n;
    uint64_t frequencies[ROPE_BLOCK];
    float c[ROPE_BLOCK], s[ROPE_BLOCK];
} rope_block;

/* A rope_source is where angles come from: they are computed, or taken from the table. */
typedef struct rope_source {
    int64_t pairs;
    rope_ladder angles;
    const float *cos, *sin; /* NULL means that they are computed. */
    int64_t table_stride;
} rope_source;

static rope_source source_of(const attn_rope *r, int64_t dim)
{
    rope_source from = { .pairs = dim / 2,
                         .cos = r->cos,
                         .sin = r->sin,
                         .table_stride = stride_or(r->table_stride, dim / 2) };
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
    attn_rope_rows rows; /* Strides of rows are resolved. */
    int64_t dim;
    const attn_kernels *kernels;
    rope_turn_fn turn;
} rope_job;

/* turn_through turns one head's row of a block through f32, and reads both halves before it writes
 * one. */
static void turn_through(const rope_job *j, const rope_block *k, char *y, const char *x)
{
    const int interleaved = j->rope->interleaved != 0, runs = interleaved ? 1 : 2;
    const int64_t first = interleaved ? 2 * k->first : k->first;
    const int64_t n = interleaved ? 2 * k->n : k->n, half = j->dim / 2;
    float z[2 * ROPE_BLOCK];
    int r;
    for (r = 0; r < runs; r++)
        load_run(j->kernels, j->rows.x.dtype, z + r * ROPE_BLOCK, x, first + r * half, n);
    j->turn(z, z, interleaved ? 1 : ROPE_BLOCK, k->c, k->s, k->n);
    for (r = 0; r < runs; r++)
        store_run(j->kernels, j->rows.y.dtype, y, first + r * half, z + r * ROPE_BLOCK, n);
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

/* pass_head copies the elements that do not turn. */
static void pass_head(const rope_job *j, char *y, const char *x)
{
    const int x_type = j->rows.x.dtype, y_type = j->rows.y.dtype;
    const size_t turned = (size_t)j->dim * bytes_of(x_type);
    float z[2 * ROPE_BLOCK];
    int64_t at = j->dim, n, i;
    if (x_type == y_type) {
        if (x != y)
            memcpy(y + turned, x + turned, (size_t)j->rows.head_dim * bytes_of(x_type) - turned);
        return;
    }
    for (; at < j->rows.head_dim; at += n) {
        n = min64(j->rows.head_dim - at, 2 * ROPE_BLOCK);
        load_run(j->kernels, x_type, z, x, at, n);
        for (i = 0; i < n; i++)
            z[i] = finished(z[i]);
        store_run(j->kernels, y_type, y, at, z, n);
    }
}

/* ---- rows */

static int64_t position_of(const attn_rope_rows *r, int64_t b, int64_t i)
{
    if (r->positions)
        return r->positions[b * r->positions_stride + i];
    return (r->first ? r->first[b] : 0) + i;
}

/* As a special case, k = NULL copies what does not turn. */
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

/* src/rope/rope.c - rotary position embedding: every sentence about bad input, the public functions. */

#define ROPE_MOST_DIM ((int64_t)1 << 24)
#define ROPE_MOST_POSITION ((int64_t)1 << 31)

static int64_t rope_dim(const attn_rope *r, int64_t head_dim)
{
    return r->dim ? r->dim : head_dim;
}

static attn_status check_rope_dim(const attn_rope *r, int64_t head_dim, text *why)
{
    const int64_t dim = rope_dim(r, head_dim), values[] = { r->dim, head_dim };
    if (head_dim < 1)
        return bad_field(why, ATTN_ERR_ARG, "head_dim", head_dim, " must be at least 1");
    if (r->dim < 0)
        return bad_field(why, ATTN_ERR_ARG, "dim", r->dim, " must be 0 (head_dim) or more");
    if (r->dim > head_dim)
        return bad_numbers(why, ATTN_ERR_ARG, "dim (#) must be at most head_dim (#)", values);
    if (dim % 2 != 0)
        return bad_field(why, ATTN_ERR_ARG, r->dim ? "dim" : "head_dim", dim,
                         " must be even, or an even dim given: elements turn in pairs");
    if (dim > ROPE_MOST_DIM)
        return bad_field(why, ATTN_ERR_ARG, r->dim ? "dim" : "head_dim", dim,
                         " must be at most 16777216");
    return ATTN_OK;
}

/* A rope_number_rule says with which scalings a number of attn_rope may be other than 0, and in
 * what range. */
typedef struct rope_number_rule {
    const char *name;
    size_t offset; /* offset is that of a float. */
    /* scalings has a bit for each scaling with which the number means something. */
    unsigned scalings;
    float least;
    int above; /* Nonzero means that least itself is too small. */
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

/* YARN and LLAMA3 compare frequencies, which are up to 1 / (2 pi) turns before freq_factors divide
 * them, so those must keep them below a turn. The other scalings only need a factor that numbers of
 * 64 bits can be divided by. */
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

/* check_rope_order checks what only YARN and LLAMA3 need. */
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
    const ptrdiff_t stride[4] = { 0, 0, stride_or(r->table_stride, pairs), 1 };
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
    return r->cos || r->sin ? check_rope_table(r, rope_dim(r, head_dim) / 2, why)
                            : check_rope_computed(r, rope_dim(r, head_dim) / 2, why);
}

#define AT(member) offsetof(attn_rope_rows, member)

static const call_field rope_fields[] = {
    { VALUE(batch, F_INT64, BY_ALL, 0, INT64_MAX) },
    { VALUE(num_heads, F_INT64, BY_ALL, 0, INT64_MAX) },
    { VALUE(seq_len, F_INT64, BY_ALL, 0, INT64_MAX) },
    { LAYOUT },
    { DTYPE(x.dtype, BY_ALL) },
    { DTYPE(y.dtype, BY_ALL) },
    { TENSOR(x, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL) },
    { TENSOR(y, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { GRID(positions, F_I64, BY_ALL, AXIS_BATCH, AXIS_NONE, AXIS_ROW, AXIS_NONE),
      .stride = { AT(positions_stride) } },
    { GRID(first, F_I64, BY_ALL, AXIS_BATCH, AXIS_NONE, AXIS_NONE, AXIS_NONE) },
};
#undef AT

static attn_status check_rope_pointers(const attn_rope_rows *r, text *why)
{
    if ((!r->x.data || !r->y.data) && r->batch && r->num_heads && r->seq_len)
        return bad(why, ATTN_ERR_ARG, r->x.data ? "y.data is NULL" : "x.data is NULL");
    if (r->positions && r->first)
        return bad(why, ATTN_ERR_ARG, "positions and first: give one of them");
    return ATTN_OK;
}

static call_axes axes_of_turn(const attn_rope_rows *r)
{
    const call_axes x = { .count = { [AXIS_NONE] = 1,
                                     [AXIS_BATCH] = r->batch,
                                     [AXIS_HEAD] = r->num_heads,
                                     [AXIS_ROW] = r->seq_len,
                                     [AXIS_DIM] = r->head_dim },
                          .layout = r->layout };
    return x;
}

/* resolve_rope_rows gives *r its strides, or *why says what is wrong with it. */
static attn_status resolve_rope_rows(attn_rope_rows *r, text *why)
{
    const call_axes x = axes_of_turn(r);
    const int n = COUNT_OF(rope_fields);
    attn_status status = check_values(rope_fields, n, r, why);
    status = status ? status : check_output_fields(rope_fields, n, r, why);
    status = status ? status : check_rope_pointers(r, why);
    return status ? status : resolve_arrays(rope_fields, n, r, &x, why);
}

static attn_status check_rope_position(const attn_rope *r, int64_t b, int64_t i, int64_t position,
                                       text *why)
{
    const int64_t values[] = { b, i, position, r->num_positions };
    if (position < -ROPE_MOST_POSITION || position > ROPE_MOST_POSITION)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "batch #, row #: position (#) must be from -2^31 to 2^31", values);
    if (!r->cos || (position >= 0 && position < r->num_positions))
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "batch #, row #: position (#) must be at least 0 and below "
                       "num_positions (#), the rows of the table",
                       values);
}

/* positioned_entries counts the batch entries that may have positions of their own: one where all
 * share them. */
static int64_t positioned_entries(const attn_rope_rows *r)
{
    const int shared = r->positions ? r->positions_stride == 0 : !r->first;
    return shared ? min64(r->batch, 1) : r->batch;
}

/* check_rope_positions also looks where there are no heads to turn, as nothing but positions bounds
 * batch and seq_len then. Without an array it is enough to look at the first and last row of a
 * batch entry; of 2^32 + 2 rows one has a position that is refused. */
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

/* ---- public functions */

#define AT(member) offsetof(attn_rope, member)

static const call_field angle_fields[] = {
    { GRID(cos, F_F32, BY_ALL, AXIS_NONE, AXIS_NONE, AXIS_ROW, AXIS_DIM),
      .stride = { [2] = AT(table_stride) } },
    { GRID(sin, F_F32, BY_ALL, AXIS_NONE, AXIS_NONE, AXIS_ROW, AXIS_DIM),
      .stride = { [2] = AT(table_stride) } },
    { GRID(freq_factors, F_F32, BY_ALL, AXIS_NONE, AXIS_NONE, AXIS_NONE, AXIS_DIM) },
};
#undef AT

/* angles_of gives the arrays that *r reads; it resolves strides, and drops what a table replaces. */
static array_set angles_of(attn_rope *r, int64_t head_dim, call_axes *x)
{
    const int64_t pairs = rope_dim(r, head_dim) / 2;
    const call_axes axes = {
        .count = { [AXIS_NONE] = 1, [AXIS_ROW] = r->num_positions, [AXIS_DIM] = pairs }
    };
    const array_set s = { .table = angle_fields, .n = COUNT_OF(angle_fields), .base = r, .x = x };
    *x = axes;
    r->table_stride = stride_or(r->table_stride, pairs);
    if (r->cos)
        r->freq_factors = NULL;
    return s;
}

/* check_rope_apart lets rows turn in place: equal data, strides and type. */
static attn_status check_rope_apart(const attn_rope *rope, const attn_rope_rows *resolved,
                                    text *why)
{
    attn_rope angles = *rope;
    attn_rope_rows r = *resolved;
    const call_axes x = axes_of_turn(&r);
    call_axes of_angles;
    const array_set sets[] = {
        { rope_fields, COUNT_OF(rope_fields), &r, &x, .written = OUTPUT_RESULT },
        angles_of(&angles, r.head_dim, &of_angles),
    };
    if (r.x.data == r.y.data && r.x.dtype == r.y.dtype && r.x.stride_batch == r.y.stride_batch &&
        r.x.stride_head == r.y.stride_head && r.x.stride_seq == r.y.stride_seq)
        r.x.data = NULL;
    return check_written(sets, 2, NULL, why);
}

/* apply_rope takes rows with their strides resolved. */
static void apply_rope(const attn_rope *rope, const attn_rope_rows *resolved)
{
    const rope_job j = { rope, *resolved, rope_dim(rope, resolved->head_dim), attn_kernels_get(0),
                         best_turn() };
    if (resolved->batch && resolved->num_heads && resolved->seq_len)
        run_rows(&j);
}

static attn_status check_rope_call(const attn_rope *rope, attn_rope_rows *rows, text *why)
{
    attn_status status = check_rope(rope, rows->head_dim, why);
    status = status ? status : resolve_rope_rows(rows, why);
    status = status ? status : check_rope_apart(rope, rows, why);
    return status ? status : check_rope_positions(rope, rows, why);
}

ATTN_API attn_status attn_rope_apply(const attn_rope *rope, const attn_rope_rows *rows,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_rope_rows resolved;
    attn_status status;
    if (!rows)
        return bad(&why, ATTN_ERR_ARG, "rows is NULL");
    resolved = *rows;
    status = check_rope_call(rope, &resolved, &why);
    if (!status)
        apply_rope(rope, &resolved);
    return done(status, &why);
}

static attn_status check_table_wanted(const attn_rope *rope, int64_t head_dim, int64_t first,
                                      int64_t count, const float *c, const float *s, text *why)
{
    static const ptrdiff_t packed[4] = { 0, 0, 0, 1 };
    const int64_t values[] = { first, count };
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
    if (count > ROPE_MOST_POSITION + 1 - first)
        return bad_numbers(why, ATTN_ERR_ARG, "first (#) + count (#) must be at most 2^31 + 1",
                           values);
    if (count && (!c || !s))
        return bad(why, ATTN_ERR_ARG, c ? "sin is NULL" : "cos is NULL");
    return check_extent("cos", sizeof(float), 1, 1, 1, times(count, rope_dim(rope, head_dim) / 2),
                        packed, why);
}

/* check_table_apart is about the tables that attn_rope_table writes. */
static attn_status check_table_apart(const attn_rope *rope, int64_t head_dim, int64_t count,
                                     const float *c, const float *s, text *why)
{
    const int64_t bytes = count * (rope_dim(rope, head_dim) / 2) * (int64_t)sizeof *c;
    const area a = area_of_bytes("cos", c, bytes), b = area_of_bytes("sin", s, bytes);
    attn_rope angles = *rope;
    call_axes x;
    const array_set set = angles_of(&angles, head_dim, &x);
    attn_status status = check_pair(&a, &b, why);
    status = status ? status : check_written(&set, 1, &a, why);
    return status ? status : check_written(&set, 1, &b, why);
}

ATTN_API attn_status attn_rope_table(const attn_rope *rope, int64_t head_dim, int64_t first,
                                     int64_t count, float *cos, float *sin, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_table_wanted(rope, head_dim, first, count, cos, sin, &why);
    rope_source from;
    rope_block k;
    int64_t pair, i;
    status = status ? status : check_table_apart(rope, head_dim, count, cos, sin, &why);
    if (status)
        return status;
    from = source_of(rope, rope_dim(rope, head_dim));
    for (pair = 0; pair < from.pairs && count; pair += ROPE_BLOCK) {
        begin_block(&k, &from, pair);
        for (i = 0; i < count; i++) {
            set_angles(&k, &from, first + i);
            memcpy(cos + i * from.pairs + pair, k.c, (size_t)k.n * sizeof *cos);
            memcpy(sin + i * from.pairs + pair, k.s, (size_t)k.n * sizeof *sin);
        }
    }
    return done(ATTN_OK, &why);
}

/* src/cache/shape.c - the shape of a cache: its rules, its memory, its storage.
 *
 * An entry is a sequence's own storage or, paged, a page. Page i of a sequence's table is there if and
 * only if a key that is present lies in it. Functions that change a cache look at everything first:
 * below the comment "from here on nothing can fail" nothing does.
 */

enum { CACHE_K = 0, CACHE_V = 1, CACHE_SIDES = 2 };

static int64_t cache_entries(const attn_cache *c)
{
    return c->page_size ? c->num_pages : c->num_sequences;
}

static int64_t cache_entry_rows(const attn_cache *c)
{
    return c->page_size ? c->page_size : c->rows;
}

/* A cache_side is K or V of a cache; its axes are layers, entries, heads and rows. */
typedef struct cache_side {
    const char *name;
    attn_output storage;
    int64_t count[4], dim;
    ptrdiff_t stride[4];
} cache_side;

static cache_side side_of(const attn_cache *c, int side)
{
    const int is_k = side == CACHE_K;
    const attn_output o = is_k ? c->k : c->v;
    const cache_side s = {
        .name = is_k ? "k" : "v",
        .storage = o,
        .count = { c->num_layers, cache_entries(c), c->num_heads_kv, cache_entry_rows(c) },
        .dim = is_k ? c->head_dim : c->head_dim_v,
        .stride = { is_k ? c->k_stride_layer : c->v_stride_layer, o.stride_batch, o.stride_head,
                    o.stride_seq },
    };
    return s;
}

/* layer_of gives one layer of K or V: [entry, head, row, dim]. */
static attn_output layer_of(const attn_cache *c, int side, int64_t layer)
{
    const cache_side s = side_of(c, side);
    attn_output o = s.storage;
    o.data = (char *)o.data + bytes_between(o.dtype, layer * s.stride[0]);
    return o;
}

/* recent_of gives one layer of the recent rows of K or V: [sequence, head, row, dim]. */
static attn_output recent_of(const attn_cache *c, int side, int64_t layer)
{
    const ptrdiff_t dim = (ptrdiff_t)(side == CACHE_K ? c->head_dim : c->head_dim_v);
    const ptrdiff_t head = (ptrdiff_t)c->recent_rows * dim;
    attn_output o = { c->recent_dtype, (ptrdiff_t)c->num_heads_kv * head, head, dim,
                      side == CACHE_K ? c->recent_k : c->recent_v };
    o.data = (char *)o.data + bytes_between(o.dtype, layer * c->num_sequences * o.stride_batch);
    return o;
}

/* recent_rows_of counts the recent rows of K, or of V, of all layers. */
static int64_t recent_rows_of(const attn_cache *c)
{
    const int64_t heads = times(times(c->num_layers, c->num_sequences), c->num_heads_kv);
    return c->recent ? times(heads, c->recent_rows) : 0;
}

typedef struct cache_place { /* A cache_place is rows row, row + 1, ... of an entry. */
    int64_t entry, row;
} cache_place;

/* BYTES_TO counts the bytes from the first element of a tensor or output to a row. */
#define BYTES_TO(x, at, head)                                                                      \
    bytes_between((x).dtype, (ptrdiff_t)(at).entry *(x).stride_batch +                             \
                                 (ptrdiff_t)(head) * (x).stride_head +                             \
                                 (ptrdiff_t)(at).row * (x).stride_seq)

static const attn_scales *given_scales(const attn_cache *c, int side)
{
    return side == CACHE_K ? &c->k_scales : &c->v_scales;
}

/* scales_of_side gives the scales of K or V of all layers. An axis that is shared has a stride of 0. */
static attn_scales scales_of_side(const attn_cache *c, int side)
{
    attn_scales x = *given_scales(c, side);
    x.stride_batch = stride_or(x.stride_batch, 0);
    x.stride_head = stride_or(x.stride_head, 0);
    x.stride_dim = stride_or(x.stride_dim, 0);
    return x;
}

/* scales_of_layer gives those of one layer: [head, dim]. */
static attn_scales scales_of_layer(const attn_cache *c, int side, int64_t layer)
{
    attn_scales x = scales_of_side(c, side);
    x.data = x.data ? x.data + layer * x.stride_batch : NULL;
    return x;
}

static const attn_scales no_scales = { .data = NULL };

/* copy_heads copies all heads of `count` rows; if both sides have one storage type it keeps every
 * bit, NaN and -0 included. Else i8 takes scales `by`. Rows that lie one after the other on both sides are
 * copied as one, unless they have scales. */
static void copy_heads(const attn_output *to, cache_place at, const attn_tensor *from,
                       cache_place from_at, int64_t heads, int64_t count, int64_t dim,
                       const attn_scales *by)
{
    const int together = to->stride_seq == dim && from->stride_seq == dim && !by->data;
    const int64_t n = together ? dim * count : dim, rows = together ? min64(count, 1) : count;
    int64_t h, i;
    for (h = 0; h < heads; h++) {
        const row_scales scales = { by->data ? by->data + h * by->stride_head : NULL,
                                    by->stride_dim };
        char *y = (char *)to->data + BYTES_TO(*to, at, h);
        const char *x = (const char *)from->data + BYTES_TO(*from, from_at, h);
        for (i = 0; i < rows; i++) {
            if (to->dtype == from->dtype)
                memcpy(y, x, (size_t)bytes_between(to->dtype, n));
            else
                convert_run(y, to->dtype, x, from->dtype, n, scales);
            y += bytes_between(to->dtype, to->stride_seq);
            x += bytes_between(from->dtype, from->stride_seq);
        }
    }
}

/* ---- shape */

#define AT(member) offsetof(attn_cache, member)

/* Numbers of sequences, pages and rows have to fit int32_t. */
static const call_field cache_fields[] = {
    { VALUE(num_sequences, F_INT64, BY_ALL, 1, INT32_MAX) },
    { VALUE(num_layers, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(num_heads_kv, F_INT64, BY_ALL, 1, MOST) },
    { VALUE(head_dim, F_INT64, BY_ALL, 1, MOST) },
    { VALUE(head_dim_v, F_INT64, BY_ALL, 0, MOST) },
    { VALUE(capacity, F_INT64, BY_ALL, 1, INT32_MAX) },
    { VALUE(page_size, F_INT64, BY_ALL, 0, INT32_MAX) },
    { VALUE(num_pages, F_INT64, BY_ALL, 0, INT32_MAX) },
    { VALUE(window_left, F_INT64, BY_ALL, 0, INT32_MAX) },
    { VALUE(recent, F_INT64, BY_ALL, 0, INT32_MAX) },
    { VALUE(recent_rows, F_INT64, BY_ALL, 0, INT32_MAX) },
    { DTYPE(recent_dtype, BY_ALL) },
    { LAYOUT },
    { VALUE(rotated, F_INT, BY_ALL, 0, ATTN_ROTATED_K + ATTN_ROTATED_V),
      .instead = "1 is K, 2 is V, 3 is both" },
    { ANY_DTYPE(k.dtype, BY_ALL) },
    { ANY_DTYPE(v.dtype, BY_ALL) },
    { TENSOR(k, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(v, AXIS_ENTRY, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM_V, BY_ALL), .output = OUTPUT_RESULT },
};

/* Scales are those of a call whose entries are layers with one key. */
static const call_field scale_fields[] = {
    { SCALES(k_scales, AXIS_DIM, BY_ALL) },
    { SCALES(v_scales, AXIS_DIM_V, BY_ALL) },
};

/* The arrays of the state, in the caller's memory. A view of chosen sequences has its own of the
 * first VIEW_ARRAYS. */
static const call_field state_fields[] = {
    { LIST(begin, F_I64, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(length, F_I32, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(first_row, F_I32, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(table, F_I32, BY_ALL, AXIS_BATCH, AXIS_PAGE) },
    { LIST(recent_begin, F_I64, BY_ALL, AXIS_NONE, AXIS_RECENT) },
    { LIST(recent_entries, F_I32, BY_ALL, AXIS_NONE, AXIS_RECENT) },
    { LIST(end, F_I64, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(overwritten_below, F_I64, BY_ALL, AXIS_NONE, AXIS_BATCH) },
    { LIST(uses, F_I32, BY_ALL, AXIS_NONE, AXIS_ENTRY) },
    { LIST(free_pages, F_I32, BY_ALL, AXIS_NONE, AXIS_ENTRY) },
    { LIST(desks, F_F32, BY_ALL, AXIS_BATCH, AXIS_ROW) },
    { LIST(recent_k, F_STORED, BY_ALL, AXIS_RECENT_ROW, AXIS_CHOSEN), .dtype = AT(recent_dtype) },
    { LIST(recent_v, F_STORED, BY_ALL, AXIS_RECENT_ROW, AXIS_STATS), .dtype = AT(recent_dtype) },
    { LIST(k.data, F_STORED, BY_ALL, AXIS_NONE, AXIS_DIM), .dtype = AT(k.dtype) },
    { LIST(v.data, F_STORED, BY_ALL, AXIS_NONE, AXIS_DIM_V), .dtype = AT(v.dtype) },
};
#undef AT

enum { VIEW_ARRAYS = 6, STATE_ARRAYS = COUNT_OF(state_fields) };

static int is_rotated(const attn_cache *c, int side)
{
    return c->rotated & (side == CACHE_K ? ATTN_ROTATED_K : ATTN_ROTATED_V);
}

/* is_centered tells whether rows of a side lose a mean. */
static int is_centered(const attn_cache *c, int side)
{
    return side == CACHE_K && c->k_mean;
}

/* desk_floats counts the numbers of a desk, where a row is finished before it is rounded. Each
 * sequence has one in each layer, since writes of different ones may run at once. */
static int64_t desk_floats(const attn_cache *c)
{
    const int k = c->k.dtype > LAST_PLAIN || is_rotated(c, CACHE_K) || is_centered(c, CACHE_K);
    const int64_t v = is_rotated(c, CACHE_V) ? c->head_dim_v : 0;
    return times(c->num_heads_kv, max64(k ? c->head_dim : 0, v));
}

/* desk_of gives a sequence's desk in a layer: [1, num_heads_kv, 1, dim]. */
static attn_output desk_of(const attn_cache *c, int64_t layer, int64_t q, int64_t dim)
{
    const ptrdiff_t floats = (ptrdiff_t)desk_floats(c), row = (ptrdiff_t)dim;
    const attn_output desk = { ATTN_F32, floats, row, row,
                               c->desks + (layer * c->num_sequences + q) * floats };
    return desk;
}

/* check_scales_of wants scales where a side's numbers have some, and keys to share them. */
static attn_status check_scales_of(const attn_cache *c, int side, text *why)
{
    const cache_side s = side_of(c, side);
    const attn_scales *x = given_scales(c, side);
    const attn_status status = check_scales_given(s.name, s.storage.dtype, x, why);
    if (status || !x->stride_seq || x->stride_seq == ATTN_STRIDE_BROADCAST)
        return status;
    put(why, s.name);
    return bad_field(why, ATTN_ERR_ARG, "_scales.stride_seq", x->stride_seq,
                     " must be 0: all keys of a cache share scales");
}

static attn_status check_recent_fields(const attn_cache *c, text *why)
{
    if (!c->recent && (c->recent_rows || c->recent_dtype))
        return bad_field(why, ATTN_ERR_ARG, c->recent_rows ? "recent_rows" : "recent_dtype",
                         c->recent_rows ? c->recent_rows : c->recent_dtype,
                         " is set, but recent is 0");
    if (c->ring && c->recent > c->capacity)
        return bad_numbers(why, ATTN_ERR_ARG, "recent (#) of a ring must be at most capacity (#)",
                           NUMBERS(c->recent, c->capacity));
    return ATTN_OK;
}

static attn_status check_fields(const attn_cache *c, text *why)
{
    const int64_t values[] = { c->window_left, c->capacity };
    attn_status status = check_values(cache_fields, COUNT_OF(cache_fields), c, why);
    if (status)
        return status;
    if (c->window_left && !c->ring)
        return bad_field(why, ATTN_ERR_ARG, "window_left", c->window_left,
                         " is set, but ring is 0: set ring = 1");
    if (c->ring && c->window_left >= c->capacity)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "window_left (#) of a ring must be below capacity (#)", values);
    if (c->num_pages && !c->page_size)
        return bad_field(why, ATTN_ERR_ARG, "num_pages", c->num_pages,
                         " is set, but page_size is 0");
    status = check_recent_fields(c, why);
    status = status ? status : check_scales_of(c, CACHE_K, why);
    status = status ? status : check_scales_of(c, CACHE_V, why);
    status = status ? status : check_output_fields(cache_fields, COUNT_OF(cache_fields), c, why);
    status = status ? status : check_output_stride("k_stride_layer", "", c->k_stride_layer, why);
    return status ? status : check_output_stride("v_stride_layer", "", c->v_stride_layer, why);
}

static ptrdiff_t pack_storage(const attn_cache *c, int64_t dim, attn_output *o, ptrdiff_t layer)
{
    const int by_head = c->layout == ATTN_LAYOUT_BHSD;
    const int64_t entry = times(times(c->num_heads_kv, cache_entry_rows(c)), dim);
    o->stride_batch = stride_or(o->stride_batch, entry);
    o->stride_head = stride_or(o->stride_head, by_head ? times(cache_entry_rows(c), dim) : dim);
    o->stride_seq = stride_or(o->stride_seq, by_head ? dim : times(c->num_heads_kv, dim));
    return stride_or(layer, times(cache_entries(c), entry));
}

/* settle_storage makes the strides of a side those that count. */
static void settle_storage(attn_cache *c, int side)
{
    cache_side s = side_of(c, side);
    attn_output *o = side == CACHE_K ? &c->k : &c->v;
    settle_strides(4, s.count, s.stride);
    *(side == CACHE_K ? &c->k_stride_layer : &c->v_stride_layer) = s.stride[0];
    o->stride_batch = s.stride[1];
    o->stride_head = s.stride[2];
    o->stride_seq = s.stride[3];
}

/* resolve_cache fills in every default. */
static void resolve_cache(attn_cache *c)
{
    c->num_layers = max64(c->num_layers, 1);
    c->head_dim_v = c->head_dim_v ? c->head_dim_v : c->head_dim;
    c->pages_per_sequence = c->page_size ? (c->capacity - 1) / c->page_size + 1 : 0;
    c->rows = c->page_size ? c->pages_per_sequence * c->page_size : c->capacity;
    if (c->page_size && !c->num_pages)
        c->num_pages = times(c->num_sequences, c->pages_per_sequence);
    if (c->recent)
        c->recent_rows = min64(c->recent_rows ? c->recent_rows : c->recent + 255, c->rows);
    c->table = c->uses = c->free_pages = c->recent_entries = NULL;
    c->recent_begin = NULL;
    c->recent_k = c->recent_v = NULL;
    c->desks = NULL;
    c->k_stride_layer = pack_storage(c, c->head_dim, &c->k, c->k_stride_layer);
    c->v_stride_layer = pack_storage(c, c->head_dim_v, &c->v, c->v_stride_layer);
    settle_storage(c, CACHE_K);
    settle_storage(c, CACHE_V);
}

static call_axes axes_of_scales(const attn_cache *c)
{
    const call_axes x = { .count = { [AXIS_ENTRY] = c->num_layers,
                                     [AXIS_HEAD_KV] = c->num_heads_kv,
                                     [AXIS_KEY] = 1,
                                     [AXIS_DIM] = c->head_dim,
                                     [AXIS_DIM_V] = c->head_dim_v } };
    return x;
}

/* span_of counts the elements from the first to the last. */
static int64_t span_of(const cache_side *s)
{
    return plus(extent(s->count, s->stride) - 1, s->dim);
}

static area area_of_storage(const attn_cache *c, int side)
{
    static const char *const names[] = { "the cache's k", "the cache's v" };
    const cache_side s = side_of(c, side);
    const int unit = storages[s.storage.dtype].unit;
    const int64_t count[] = { s.count[0], s.count[1], s.count[2], s.count[3], s.dim / unit };
    const ptrdiff_t stride[] = { s.stride[0] / unit, s.stride[1] / unit, s.stride[2] / unit,
                                 s.stride[3] / unit, 1 };
    return area_of(names[side], s.storage.data, 5, count, stride,
                   (int64_t)bytes_of(s.storage.dtype), 1);
}

static attn_status bad_storage(const attn_cache *c, const cache_side *s, attn_status status,
                               const char *rest, text *why)
{
    put(why, s->name);
    put_numbers(why,
                c->page_size ? ": num_layers (#) x num_pages (#) x num_heads_kv (#) x page_size (#)"
                             : ": num_layers (#) x num_sequences (#) x num_heads_kv (#) x rows (#)",
                s->count);
    return bad(why, status, rest);
}

static attn_status check_whole_storage(const attn_cache *c, const cache_side *s, text *why)
{
    static const char *const of_layer[] = { "k_stride_layer", "v_stride_layer" };
    const int is_v = s->name[0] == 'v';
    const char *const dim = is_v && c->head_dim_v != c->head_dim ? "head_dim_v" : "head_dim";
    const attn_tensor t = as_tensor(&s->storage);
    const attn_status status = check_whole_units(s->name, &t, dim, s->dim, why);
    return status ? status : check_whole("", of_layer[is_v], s->stride[0], s->name, t.dtype, why);
}

/* check_storage needs the strides resolved. */
static attn_status check_storage(const attn_cache *c, int side, text *why)
{
    const cache_side s = side_of(c, side);
    const int64_t bytes_each = (int64_t)bytes_of(s.storage.dtype);
    attn_status status;
    area a;
    int axis;
    for (axis = 0; axis < 4 && !s.storage.data; axis++)
        if (s.stride[axis] < 0) {
            put(why, s.name);
            return bad(why, ATTN_ERR_ARG, ": negative strides need storage of your own, data");
        }
    if (room_of(s.storage.dtype, span_of(&s)) >= ADDRESS_LIMIT)
        return bad_storage(c, &s, ATTN_ERR_OVERFLOW, " with its strides exceeds the address space",
                           why);
    status = check_whole_storage(c, &s, why);
    if (status)
        return status;
    a = area_of_storage(c, side);
    if (meets_itself(&a))
        return bad_storage(c, &s, ATTN_ERR_ARG, ROWS_SHARE, why);
    return check_aligned(s.name, s.storage.data, bytes_each, why);
}

/* place_arrays counts the bytes of the first n arrays of the state, at any address, and puts them
 * into `memory` unless it is NULL. Storage of the caller's own stays where it is. */
static int64_t place_arrays(attn_cache *c, int n, const void *memory)
{
    const cache_side k = side_of(c, CACHE_K), v = side_of(c, CACHE_V);
    const call_axes x = { .count = { [AXIS_NONE] = 1,
                                     [AXIS_BATCH] = c->num_sequences,
                                     [AXIS_PAGE] = c->pages_per_sequence,
                                     [AXIS_ENTRY] = c->num_pages,
                                     [AXIS_ROW] = times(c->num_layers, desk_floats(c)),
                                     [AXIS_RECENT] = c->recent ? c->num_sequences : 0,
                                     [AXIS_RECENT_ROW] = recent_rows_of(c),
                                     [AXIS_CHOSEN] = c->head_dim,
                                     [AXIS_STATS] = c->head_dim_v,
                                     [AXIS_DIM] = c->k.data ? 0 : span_of(&k),
                                     [AXIS_DIM_V] = c->v.data ? 0 : span_of(&v) } };
    int64_t at = 0;
    int i;
    for (i = 0; i < n; i++) {
        const call_field *f = &state_fields[i];
        const int64_t count = times(x.count[f->axis[0]], x.count[f->axis[3]]) / unit_of_field(f, c);
        const int64_t offset = place(&at, count, (size_t)element_bytes(f, c));
        if (memory && count) {
            const char *array = align_memory(memory) + offset;
            memcpy((char *)c + f->offset, &array, sizeof array);
        }
    }
    return plus(at, ALIGNMENT - 1);
}

static int64_t mean_floats(const attn_cache *c)
{
    return c->k_mean ? times(times(c->num_layers, c->num_heads_kv), c->head_dim) : 0;
}

static area area_of_scales(const attn_cache *c, int side)
{
    const attn_scales x = scales_of_side(c, side);
    const int64_t count[] = { c->num_layers, c->num_heads_kv, side_of(c, side).dim };
    const ptrdiff_t stride[] = { x.stride_batch, x.stride_head, x.stride_dim };
    if (!x.data)
        return area_of_bytes("", NULL, 0);
    return area_of(side == CACHE_K ? "k_scales" : "v_scales", x.data, 3, count, stride,
                   sizeof(float), 1);
}

/* The arrays of a cache: storage and state, which it writes, and what it reads. */
enum { CACHE_WRITES = CACHE_SIDES + 1, CACHE_AREAS = CACHE_WRITES + 3 };

static area area_of_cache(const attn_cache *c, int which)
{
    if (which < CACHE_SIDES)
        return area_of_storage(c, which);
    if (which < CACHE_WRITES)
        return area_of_bytes("the state of the cache", c->begin, c->state_bytes);
    if (which < CACHE_WRITES + CACHE_SIDES)
        return area_of_scales(c, which - CACHE_WRITES);
    return area_of_bytes("k_mean", c->k_mean, times(mean_floats(c), sizeof(float)));
}

/* check_memory_apart wants memory to share nothing with the arrays of a cache. */
static attn_status check_memory_apart(const attn_cache *c, const void *memory, int64_t bytes,
                                      text *why)
{
    const area m = area_of_bytes("the memory", memory, bytes);
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < CACHE_AREAS && !status; i++) {
        const area a = area_of_cache(c, i);
        status = check_pair(&a, &m, why);
    }
    return status;
}

/* check_storage_apart wants storage of the caller's own to share nothing with the rest of the cache. */
static attn_status check_storage_apart(const attn_cache *c, text *why)
{
    attn_status status = ATTN_OK;
    int i, j;
    for (i = 0; i < CACHE_AREAS; i++) {
        const area a = area_of_cache(c, i);
        for (j = 0; j < i && j < CACHE_WRITES && !status; j++) {
            const area b = area_of_cache(c, j);
            status = check_pair(&a, &b, why);
        }
    }
    return status;
}

/* check_arrays_apart wants the arrays of a set to share nothing with those of the cache. */
static attn_status check_arrays_apart(const attn_cache *c, const array_set *set, text *why)
{
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < CACHE_AREAS && !status; i++) {
        const area a = area_of_cache(c, i);
        status = check_written(set, 1, &a, why);
    }
    return status;
}

/* check_shape turns *c into *resolved, which needs *bytes of memory, or says what is wrong with
 * it. */
static attn_status check_shape(const attn_cache *c, attn_cache *resolved, int64_t *bytes, text *why)
{
    call_axes scales;
    attn_status status;
    if (!c)
        return bad(why, ATTN_ERR_ARG, "cache is NULL");
    if (c->begin) /* Its k.data and v.data would count as storage of the caller's own. */
        return bad(why, ATTN_ERR_ARG, "cache is ready already: set it to zero first");
    status = check_fields(c, why);
    if (status)
        return status;
    *resolved = *c;
    resolve_cache(resolved);
    if (resolved->rows > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "capacity", c->capacity,
                         " in whole pages must be at most 2147483647");
    if (resolved->num_pages > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "num_pages", resolved->num_pages,
                         ", as many as all sequences can need, must be at most 2147483647");
    if (resolved->recent_rows < min64(resolved->recent, resolved->rows))
        return bad_numbers(why, ATTN_ERR_ARG,
                           c->recent < resolved->rows
                               ? "recent_rows (#) must be at least recent (#)"
                               : "recent_rows (#) must be at least the rows of a sequence (#)",
                           NUMBERS(c->recent_rows, min64(c->recent, resolved->rows)));
    status = check_storage(resolved, CACHE_K, why);
    status = status ? status : check_storage(resolved, CACHE_V, why);
    scales = axes_of_scales(resolved);
    status = status ? status
                    : resolve_arrays(scale_fields, COUNT_OF(scale_fields), resolved, &scales, why);
    name_shared(scale_fields, COUNT_OF(scale_fields), resolved);
    status = status ? status : check_aligned("k_mean", resolved->k_mean, sizeof(float), why);
    status = status ? status : check_storage_apart(resolved, why);
    if (status)
        return status;
    *bytes = place_arrays(resolved, STATE_ARRAYS, NULL);
    if (*bytes >= ADDRESS_LIMIT)
        return bad_field(why, ATTN_ERR_OVERFLOW, "capacity", c->capacity,
                         ": the cache would exceed the address space");
    return ATTN_OK;
}

/* check_memory says whether the caller gave enough; `query` is the function that tells how many
 * bytes that is. */
static attn_status check_memory(const void *memory, size_t bytes, int64_t need, const char *query,
                                text *why)
{
    const size_t have = memory ? bytes : 0;
    const int64_t values[] = { (int64_t)have, need };
    if ((uint64_t)have >= (uint64_t)need)
        return ATTN_OK;
    put_numbers(why, "memory: bytes (#) must be at least #; ", values);
    put(why, query);
    return bad(why, ATTN_ERR_WORKSPACE, " says how many");
}

ATTN_API attn_status attn_cache_size(const attn_cache *c, size_t *bytes, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache resolved;
    int64_t need;
    attn_status status;
    if (!bytes)
        return bad(&why, ATTN_ERR_ARG, "bytes is NULL");
    status = check_shape(c, &resolved, &need, &why);
    if (!status)
        *bytes = (size_t)need;
    return done(status, &why);
}

static void empty_cache(attn_cache *c)
{
    int64_t i;
    for (i = 0; i < c->num_sequences; i++) {
        c->begin[i] = c->end[i] = c->overwritten_below[i] = 0;
        c->length[i] = c->first_row[i] = 0;
    }
    for (i = 0; c->recent && i < c->num_sequences; i++) {
        c->recent_begin[i] = 0;
        c->recent_entries[i] = (int32_t)i;
    }
    for (i = 0; i < c->num_sequences * c->pages_per_sequence; i++)
        c->table[i] = -1;
    c->num_free = c->page_size ? c->num_pages : 0;
    for (i = 0; i < c->num_free; i++) {
        c->uses[i] = 0;
        c->free_pages[i] = (int32_t)(c->num_free - 1 - i); /* Page 0 is taken first. */
    }
}

ATTN_API attn_status attn_cache_init(attn_cache *c, void *memory, size_t bytes, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache resolved;
    int64_t need;
    attn_status status = check_shape(c, &resolved, &need, &why);
    status = status ? status : check_memory(memory, bytes, need, "attn_cache_size", &why);
    status = status ? status : check_memory_apart(&resolved, memory, need, &why);
    if (status)
        return status;
    place_arrays(&resolved, STATE_ARRAYS, memory);
    /* With storage in place, these are the bytes before it. */
    resolved.state_bytes = place_arrays(&resolved, STATE_ARRAYS, NULL) - (ALIGNMENT - 1);
    empty_cache(&resolved);
    *c = resolved;
    return done(ATTN_OK, &why);
}

/* src/cache/pages.c - rows and pages of a cache: where a number lies; pages taken, shared, given back.
 *
 * Where a key lies is computed in two places: here for writing (next_run, cache_place), from the
 * cache's own state, and in keys.c for attention (key_at, key_place), from the kv_rows of a view,
 * which may be another library's arrays.
 */

static int32_t *table_of(const attn_cache *c, int64_t q)
{
    return c->table + q * c->pages_per_sequence;
}

/* A cache_run is numbers that lie one after the other in an entry; rows = 0 means that it stands
 * before the first of them. */
typedef struct cache_run {
    int64_t number, rows;
    cache_place at;
} cache_run;

/* next_run steps to the next run of a sequence's numbers up to end-1, and returns 0 after the
 * last. */
static int next_run(const attn_cache *c, int64_t q, int64_t end, cache_run *run)
{
    int64_t row;
    run->number += run->rows;
    if (run->number == end)
        return 0;
    row = run->number % c->rows;
    run->at.entry = c->page_size ? table_of(c, q)[row / c->page_size] : q;
    run->at.row = c->page_size ? row % c->page_size : row;
    run->rows = min64(cache_entry_rows(c) - run->at.row, end - run->number);
    return 1;
}

/* next_recent is next_run for recent rows. */
static int next_recent(const attn_cache *c, int64_t q, int64_t end, cache_run *run)
{
    run->number += run->rows;
    if (run->number >= end)
        return 0;
    run->at.entry = q;
    run->at.row = run->number % c->recent_rows;
    run->rows = min64(c->recent_rows - run->at.row, end - run->number);
    return 1;
}

/* A page_range is places of a table, which go on from the last to the first. */
typedef struct page_range {
    int64_t first, count;
} page_range;

/* pages_of gives the places of numbers first to first+count-1; count is at most c->rows. */
static page_range pages_of(const attn_cache *c, int64_t first, int64_t count)
{
    const int64_t row = first % c->rows;
    page_range r;
    r.first = row / c->page_size;
    r.count = count ? (row % c->page_size + count - 1) / c->page_size + 1 : 0;
    r.count = min64(r.count, c->pages_per_sequence);
    return r;
}

static int64_t nth_page(const attn_cache *c, const page_range *r, int64_t n)
{
    return (r->first + n) % c->pages_per_sequence;
}

static int has_page(const attn_cache *c, const page_range *r, int64_t place_in_table)
{
    const int64_t n = place_in_table - r->first;
    return (n < 0 ? n + c->pages_per_sequence : n) < r->count;
}

/* set_numbers makes numbers begin to end-1 present. If there are none, no number before them is
 * missed either. The ring of recent rows keeps the last of those that it had and of new ones. */
static void set_numbers(attn_cache *c, int64_t q, int64_t begin, int64_t end,
                        int64_t overwritten_below)
{
    c->overwritten_below[q] = begin == end ? 0 : overwritten_below;
    c->begin[q] = begin;
    c->end[q] = end;
    c->length[q] = (int32_t)(end - begin);
    c->first_row[q] = (int32_t)(begin % c->rows);
    if (c->recent)
        c->recent_begin[q] = max64(min64(c->recent_begin[q], end), end - c->recent_rows);
}

static int32_t take_page(attn_cache *c)
{
    const int32_t page = c->free_pages[--c->num_free];
    c->uses[page] = 1;
    return page;
}

static void leave_page(attn_cache *c, int32_t page)
{
    if (--c->uses[page] == 0)
        c->free_pages[c->num_free++] = page;
}

/* copy_entry copies these rows in all layers. */
static void copy_entry(const attn_cache *c, cache_place from, int64_t to, int64_t rows)
{
    cache_place target = from;
    int64_t layer;
    int side;
    target.entry = to;
    for (layer = 0; layer < c->num_layers; layer++)
        for (side = 0; side < CACHE_SIDES; side++) {
            const attn_output o = layer_of(c, side, layer);
            const attn_tensor t = as_tensor(&o);
            copy_heads(&o, target, &t, from, c->num_heads_kv, rows, side_of(c, side).dim,
                       &no_scales);
        }
}

/* drop_pages gives back pages without a key of begin to end-1. */
static void drop_pages(attn_cache *c, int64_t q)
{
    const page_range kept = pages_of(c, c->begin[q], c->length[q]);
    int32_t *table = table_of(c, q);
    int64_t i;
    for (i = 0; i < c->pages_per_sequence; i++)
        if (table[i] >= 0 && !has_page(c, &kept, i)) {
            leave_page(c, table[i]);
            table[i] = -1;
        }
}

/* src/cache/steps.c - a step of a cache: every rule about new keys and its sentence. */

/* A cache_part is what one batch entry of a step brings. */
typedef struct cache_part {
    int64_t sequence, count;
    cache_place from; /* from is where its rows begin in k and v. */
} cache_part;

/* rows_given counts the rows of k and v that are entry b's, in use or not. */
static int64_t rows_given(const attn_cache_step *s, int64_t b)
{
    return s->cu_seqlens ? (int64_t)s->cu_seqlens[b + 1] - s->cu_seqlens[b] : s->seq_len;
}

static cache_part part_of(const attn_cache_step *s, int64_t b)
{
    cache_part part;
    part.sequence = entry32(s->sequences, b, b);
    part.count = entry32(s->len, b, rows_given(s, b));
    part.from.entry = s->cu_seqlens ? 0 : b;
    part.from.row = entry32(s->cu_seqlens, b, 0);
    return part;
}

/* check_cache wants a cache that is ready, and the scales, which stay the caller's. */
static attn_status check_cache(const attn_cache *c, text *why)
{
    attn_status status;
    if (!c)
        return bad(why, ATTN_ERR_ARG, "cache is NULL");
    if (!c->begin || c->rows < 1)
        return bad(why, ATTN_ERR_ARG, "cache is not ready: call attn_cache_init first");
    status = check_scales_given("k", c->k.dtype, &c->k_scales, why);
    return status ? status : check_scales_given("v", c->v.dtype, &c->v_scales, why);
}

/* check_index says "name (value) must be from 0 to `most`". */
static attn_status check_index(const char *name, int64_t value, int64_t most, text *why)
{
    if (value >= 0 && value <= most)
        return ATTN_OK;
    bad_field(why, ATTN_ERR_ARG, name, value, " must be from 0 to ");
    put_int(why, most);
    return ATTN_ERR_ARG;
}

static attn_status check_layer(const attn_cache *c, int64_t layer, text *why)
{
    return check_index("layer", layer, c->num_layers - 1, why);
}

static attn_status check_sequence(const attn_cache *c, const char *name, int64_t q, text *why)
{
    return check_index(name, q, c->num_sequences - 1, why);
}

/* check_chosen does not read a list that is longer than it can be: `once` tells that a sequence may come
 * only once. */
static attn_status check_chosen(const attn_cache *c, const int32_t *sequences, int64_t batch,
                                int once, text *why)
{
    int64_t b;
    if (batch < 0)
        return bad_field(why, ATTN_ERR_ARG, "batch", batch, " must be at least 0");
    if ((once || !sequences) && batch > c->num_sequences)
        return bad_numbers(why, ATTN_ERR_ARG, "batch (#) must be at most num_sequences (#)",
                           NUMBERS(batch, c->num_sequences));
    for (b = 0; sequences && b < batch; b++) {
        const int64_t values[] = { b, sequences[b], c->num_sequences - 1 };
        if (values[1] < 0 || values[1] > values[2])
            return bad_numbers(why, ATTN_ERR_ARG,
                               "sequences[#] (#) must be from 0 to num_sequences - 1, #", values);
    }
    return ATTN_OK;
}

/* A step is looked through once for each range of this number of sequences: a bit of the stack for
 * each of them. */
#define SEEN_SEQUENCES 4096

/* check_distinct_from refuses a sequence of a range that comes twice, and tells where the next range
 * that has any begins. */
OWN_FRAME static attn_status check_distinct_from(const int32_t *sequences, int64_t batch,
                                                 int64_t *first, text *why)
{
    uint8_t seen[SEEN_SEQUENCES / 8] = { 0 };
    int64_t b, next = INT64_MAX;
    for (b = 0; b < batch; b++) {
        const int64_t at = sequences[b] - *first;
        if (at >= SEEN_SEQUENCES)
            next = min64(next, sequences[b]);
        if (at < 0 || at >= SEEN_SEQUENCES)
            continue;
        if (seen[at / 8] >> at % 8 & 1)
            return bad_entry(why, "sequences", b, sequences[b],
                             " is there twice: each may come once");
        seen[at / 8] = (uint8_t)(seen[at / 8] | 1 << at % 8);
    }
    *first = next;
    return ATTN_OK;
}

/* check_distinct refuses a sequence that comes twice. Where they ascend there is none. */
static attn_status check_distinct(const int32_t *sequences, int64_t batch, text *why)
{
    attn_status status = ATTN_OK;
    int64_t b = 1, first = 0;
    while (sequences && b < batch && sequences[b] > sequences[b - 1])
        b++;
    while (sequences && b < batch && first < INT64_MAX && !status)
        status = check_distinct_from(sequences, batch, &first, why);
    return status;
}

static attn_status check_step(const attn_cache *c, const attn_cache_step *s, text *why)
{
    attn_status status;
    int64_t b;
    if (!s)
        return bad(why, ATTN_ERR_ARG, "step is NULL");
    if (s->seq_len < 0 || s->seq_len > MOST)
        return bad_field(why, ATTN_ERR_ARG, "seq_len", s->seq_len,
                         s->seq_len < 0 ? " must be at least 0" : " is no length in memory");
    status = check_chosen(c, s->sequences, s->batch, 1, why);
    status = status ? status : check_distinct(s->sequences, s->batch, why);
    if (!status && s->batch)
        status = check_cu_seqlens("cu_seqlens", s->cu_seqlens, s->batch, s->seq_len, why);
    for (b = 0; s->len && b < s->batch && !status; b++) {
        const int64_t values[] = { b, s->len[b], rows_given(s, b) };
        if (values[1] < 0 || values[1] > values[2])
            status = bad_numbers(why, ATTN_ERR_ARG, "len[#] (#) must be from 0 to #", values);
    }
    return status;
}

/* bad_keys says "sequence q with n keys and m new ones: rest". */
static attn_status bad_keys(const attn_cache *c, const cache_part *part, attn_status status,
                            const char *rest, text *why)
{
    const int64_t values[] = { part->sequence, c->length[part->sequence], part->count };
    put_numbers(why, "sequence # with # keys and # new ones: ", values);
    return bad(why, status, rest);
}

/* keys_before counts the keys before its own that a row reads from the recent rows. */
static int64_t keys_before(const attn_cache *c)
{
    const int windowed = c->ring && c->window_left;
    if (!c->recent)
        return 0;
    return windowed ? min64(c->recent - 1, c->window_left) : c->recent - 1;
}

/* check_recent_room keeps a step from overwriting recent keys that its first row reads. */
static attn_status check_recent_room(const attn_cache *c, const cache_part *part, text *why)
{
    const int64_t present = c->length[part->sequence];
    const int64_t most = c->recent_rows - min64(keys_before(c), present);
    if (!c->recent || part->count <= most)
        return ATTN_OK;
    bad_keys(c, part, ATTN_ERR_FULL, "", why);
    return bad_numbers(why, ATTN_ERR_FULL,
                       "a ring of recent_rows (#) with recent (#) takes at most # in one step",
                       NUMBERS(c->recent_rows, c->recent, most));
}

static attn_status check_room(const attn_cache *c, const cache_part *part, text *why)
{
    const int64_t present = c->length[part->sequence];
    const int64_t longest = c->rows - min64(c->window_left, present);
    const int64_t values[] = { c->rows, c->window_left, longest };
    if (part->count <= (c->ring ? longest : c->capacity - present))
        return check_recent_room(c, part, why);
    bad_keys(c, part, ATTN_ERR_FULL, "", why);
    if (!c->ring)
        return bad_field(why, ATTN_ERR_FULL, "capacity", c->capacity, " is exceeded");
    return bad_numbers(why, ATTN_ERR_FULL,
                       "a ring of rows (#) with window_left (#) takes at most # in one step",
                       values);
}

/* count_users adds `change` to the users of each page that entry b writes to, and returns how many
 * pages it takes from the free list: one for each place, unless it was the last to use the page. */
static int64_t count_users(attn_cache *c, const attn_cache_step *s, int64_t b, int32_t change)
{
    const cache_part part = part_of(s, b);
    const page_range r = pages_of(c, c->end[part.sequence], part.count);
    int64_t needed = 0, n;
    for (n = 0; n < r.count; n++) {
        const int32_t page = table_of(c, part.sequence)[nth_page(c, &r, n)];
        needed += page < 0 || (c->uses[page] += change) > 0;
    }
    return needed;
}

/* pages_needed counts the pages that a step takes, for new keys and for copies of shared pages. An
 * entry takes a copy and no longer uses the page, which is left to the last of its users. The counts
 * of users say so meanwhile, and are then put back. */
static int64_t pages_needed(attn_cache *c, const attn_cache_step *s)
{
    int64_t needed = 0, b;
    for (b = 0; b < s->batch; b++)
        needed += count_users(c, s, b, -1);
    for (b = 0; b < s->batch; b++)
        count_users(c, s, b, 1);
    return needed;
}

/* check_fits tells whether the whole step fits. */
static attn_status check_fits(attn_cache *c, const attn_cache_step *s, text *why)
{
    attn_status status = ATTN_OK;
    int64_t values[] = { c->num_free, c->num_pages, 0 }, b;
    for (b = 0; b < s->batch && !status; b++) {
        const cache_part part = part_of(s, b);
        status = check_room(c, &part, why);
    }
    if (c->page_size && !status)
        values[2] = pages_needed(c, s);
    if (status || values[2] <= c->num_free)
        return status;
    return bad_numbers(why, ATTN_ERR_FULL,
                       "num_free (#) of num_pages (#) is too few: the step needs # pages", values);
}

/* ---- what a step brings */

#define AT(member) offsetof(attn_cache_step, member)

static const call_field step_fields[] = {
    { LAYOUT },
    { TENSOR(k, AXIS_BATCH, AXIS_HEAD_KV, AXIS_ROW, AXIS_DIM, BY_ALL) },
    { TENSOR(v, AXIS_BATCH, AXIS_HEAD_KV, AXIS_ROW, AXIS_DIM_V, BY_ALL) },
    { GRID(positions, F_I64, BY_ALL, AXIS_BATCH, AXIS_NONE, AXIS_ROW, AXIS_NONE) },
};
#undef AT

static call_axes axes_of_rows(const attn_cache *c, int64_t batch, int64_t rows)
{
    const call_axes x = { .count = { [AXIS_NONE] = 1,
                                     [AXIS_BATCH] = batch,
                                     [AXIS_HEAD_KV] = c->num_heads_kv,
                                     [AXIS_ROW] = rows,
                                     [AXIS_DIM] = c->head_dim,
                                     [AXIS_DIM_V] = c->head_dim_v } };
    return x;
}

/* check_dtype takes plain types and the one that is stored. */
static attn_status check_dtype(const attn_cache *c, int side, int dtype, text *why)
{
    const cache_side s = side_of(c, side);
    const int64_t values[] = { dtype, s.storage.dtype };
    if ((dtype >= 0 && dtype <= LAST_PLAIN) || dtype == s.storage.dtype)
        return ATTN_OK;
    put(why, s.name);
    return bad_numbers(why, ATTN_ERR_ARG,
                       ".dtype (#) must be as stored (#) or one of these: " PLAIN_DTYPES, values);
}

/* check_rows wants rows of K and V, whose strides are resolved, to be whole units of their types. */
static attn_status check_rows(const attn_cache *c, const attn_tensor *k, const attn_tensor *v,
                              text *why)
{
    const attn_status status = check_whole_units("k", k, "head_dim", c->head_dim, why);
    return status ? status : check_whole_units("v", v, "head_dim_v", c->head_dim_v, why);
}

static attn_status check_data(const attn_cache_step *s, text *why)
{
    if ((!s->k.data || !s->v.data) && s->batch && s->seq_len)
        return bad(why, ATTN_ERR_ARG, s->k.data ? "v.data is NULL" : "k.data is NULL");
    return ATTN_OK;
}

/* rows_to_turn gives `count` rows of k from `from` on, with numbers from *first on, as rows to turn. */
static attn_rope_rows rows_to_turn(const attn_cache *c, const attn_cache_step *s, cache_place from,
                                   int64_t count, const int64_t *first)
{
    const int64_t at = from.entry * s->seq_len + from.row;
    const attn_rope_rows rows = {
        .batch = 1,
        .num_heads = c->num_heads_kv,
        .seq_len = count,
        .head_dim = c->head_dim,
        .x = s->k,
        .positions = s->positions ? s->positions + at : NULL,
        .first = s->positions ? NULL : first,
    };
    return rows;
}

static attn_status check_angles_apart(const attn_cache *c, const attn_rope *rope, text *why)
{
    attn_rope angles = *rope;
    call_axes x;
    const array_set set = angles_of(&angles, c->head_dim, &x);
    return check_arrays_apart(c, &set, why);
}

/* check_turning works on a copy of *why, so that a sequence is named only before a complaint. */
static attn_status check_turning(const attn_cache *c, const attn_cache_step *s, int extended,
                                 text *why)
{
    attn_status status = ATTN_OK;
    int64_t b;
    if (!s->rope)
        return s->positions ? bad(why, ATTN_ERR_ARG, "positions are given, but rope is NULL")
                            : ATTN_OK;
    if (s->k.dtype > LAST_PLAIN)
        return bad_field(why, ATTN_ERR_ARG, "k.dtype", s->k.dtype,
                         ": rope turns keys before they are stored: " PLAIN_DTYPES);
    status = check_rope(s->rope, c->head_dim, why);
    status = status ? status : check_angles_apart(c, s->rope, why);
    for (b = 0; b < s->batch && !status; b++) {
        const cache_part part = part_of(s, b);
        const int64_t first = c->end[part.sequence] - (extended ? part.count : 0);
        const attn_rope_rows rows = rows_to_turn(c, s, part.from, part.count, &first);
        text named = *why;
        put_numbers(&named, "keys of sequence #: ", &part.sequence);
        status = check_rope_positions(s->rope, &rows, &named);
    }
    return status;
}

/* resolve_step gives k and v of *s their strides, or *why says what is wrong with its arrays. */
static attn_status resolve_step(const attn_cache *c, attn_cache_step *s, int extended, text *why)
{
    const int packed = s->cu_seqlens != NULL, n = COUNT_OF(step_fields);
    call_axes x = axes_of_rows(c, packed ? 1 : s->batch, s->seq_len);
    const array_set set = { .table = step_fields, .n = n, .base = s, .x = &x };
    attn_status status = check_values(step_fields, n, s, why);
    x.packed_q = packed;
    x.layout = s->layout;
    status = status ? status : check_dtype(c, CACHE_K, s->k.dtype, why);
    status = status ? status : check_dtype(c, CACHE_V, s->v.dtype, why);
    status = status ? status : check_data(s, why);
    status = status ? status : resolve_arrays(step_fields, n, s, &x, why);
    status = status ? status : check_rows(c, &s->k, &s->v, why);
    status = status ? status : check_arrays_apart(c, &set, why);
    return status ? status : check_turning(c, s, extended, why);
}

/* src/cache/write.c - extending a cache and writing keys into it. */

/* own_pages takes a page of its own for each place that new keys go to. */
static void own_pages(attn_cache *c, const cache_part *part)
{
    const page_range r = pages_of(c, c->end[part->sequence], part->count);
    int32_t *table = table_of(c, part->sequence);
    int64_t n;
    for (n = 0; n < r.count; n++) {
        const int64_t i = nth_page(c, &r, n);
        const int32_t shared = table[i];
        const cache_place whole = { shared, 0 };
        if (shared >= 0 && c->uses[shared] == 1)
            continue;
        table[i] = take_page(c);
        if (shared < 0)
            continue;
        copy_entry(c, whole, table[i], c->page_size);
        leave_page(c, shared);
    }
}

/* advance lets numbers below end - rows make room, as their rows are those of the new keys. Only
 * numbers that were present count as overwritten, not what the caller had forgotten before. */
static void advance(attn_cache *c, const cache_part *part)
{
    const int64_t q = part->sequence, end = c->end[q] + part->count;
    const int64_t begin = max64(c->begin[q], end - c->rows);
    set_numbers(c, q, begin, end, begin > c->begin[q] ? begin : c->overwritten_below[q]);
}

static void extend_all(attn_cache *c, const attn_cache_step *s)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const cache_part part = part_of(s, b);
        if (c->page_size)
            own_pages(c, &part);
        advance(c, &part);
    }
}

ATTN_API attn_status attn_cache_extend(attn_cache *c, const attn_cache_step *s, char *why_text,
                                       size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    status = status ? status : check_step(c, s, &why);
    status = status ? status : check_fits(c, s, &why);
    if (!status)
        extend_all(c, s); /* From here on nothing can fail. */
    return done(status, &why);
}

/* row_in_step tells where the rows of a run are in a step, whose part is the last part->count
 * numbers. */
static cache_place row_in_step(const attn_cache *c, const cache_part *part, const cache_run *run)
{
    cache_place from = part->from;
    from.row += run->number - (c->end[part->sequence] - part->count);
    return from;
}

static void turn_run(const attn_cache *c, const attn_cache_step *s, cache_place from,
                     const cache_run *run, const attn_output *to)
{
    attn_rope_rows rows = rows_to_turn(c, s, from, run->rows, &run->number);
    rows.x.data = (const char *)rows.x.data + BYTES_TO(rows.x, from, 0);
    rows.y = *to;
    rows.y.data = (char *)rows.y.data + BYTES_TO(rows.y, run->at, 0);
    apply_rope(s->rope, &rows);
}

static void copy_run(const attn_cache *c, int64_t layer, const attn_cache_step *s, cache_place from,
                     const cache_run *run, int side, const attn_output *to)
{
    const attn_scales by = scales_of_layer(c, side, layer);
    copy_heads(to, run->at, side == CACHE_K ? &s->k : &s->v, from, c->num_heads_kv, run->rows,
               side_of(c, side).dim, &by);
}

/* on_desk tells whether rows of a side go by way of a desk to a type: they are centered or rotated, or
 * turned and then rounded to what apply_rope does not write. */
static int on_desk(const attn_cache *c, const attn_cache_step *s, int side, int dtype)
{
    const int is_k = side == CACHE_K;
    if ((is_k ? s->k.dtype : s->v.dtype) > LAST_PLAIN)
        return 0; /* It is as it is stored. */
    return is_centered(c, side) || is_rotated(c, side) || (is_k && s->rope && dtype > LAST_PLAIN);
}

/* finish_desk centers and rotates the row of all heads on a desk. */
static void finish_desk(const attn_cache *c, int64_t layer, int side, float *desk)
{
    const int64_t dim = side_of(c, side).dim, n = c->num_heads_kv * dim;
    const float *const mean = is_centered(c, side) ? c->k_mean + layer * n : NULL;
    int64_t i;
    for (i = 0; i < n && mean; i++)
        desk[i] = finished(desk[i] - mean[i]);
    for (i = 0; i < n && is_rotated(c, side); i += dim)
        rotate_row(desk + i, dim);
}

/* lay_row lays a row of a step on the desk, turned, centered and rotated. */
static void lay_row(const attn_cache *c, int64_t layer, const attn_cache_step *s, int side,
                    cache_place from, int64_t number, const attn_output *desk)
{
    static const cache_place only = { 0, 0 };
    const int64_t dim = side_of(c, side).dim;
    if (side == CACHE_K && s->rope) {
        attn_rope_rows rows = rows_to_turn(c, s, from, 1, &number);
        rows.x.data = (const char *)rows.x.data + BYTES_TO(rows.x, from, 0);
        rows.y = *desk;
        apply_rope(s->rope, &rows);
    } else {
        copy_heads(desk, only, side == CACHE_K ? &s->k : &s->v, from, c->num_heads_kv, 1, dim,
                   &no_scales);
    }
    finish_desk(c, layer, side, desk->data);
}

static void desk_run(const attn_cache *c, int64_t layer, const attn_cache_step *s, int64_t q,
                     cache_place from, const cache_run *run, int side, const attn_output *to)
{
    static const cache_place only = { 0, 0 };
    const int64_t dim = side_of(c, side).dim;
    const attn_output desk = desk_of(c, layer, q, dim);
    const attn_tensor laid = as_tensor(&desk);
    const attn_scales by = scales_of_layer(c, side, layer);
    int64_t i;
    for (i = 0; i < run->rows; i++) {
        const cache_place x = { from.entry, from.row + i }, y = { run->at.entry, run->at.row + i };
        lay_row(c, layer, s, side, x, run->number + i, &desk);
        copy_heads(to, y, &laid, only, c->num_heads_kv, 1, dim, &by);
    }
}

/* write_run writes a run of one side to where it is stored, or kept as recent. */
static void write_run(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                      const cache_part *part, const cache_run *run, int side, const attn_output *to)
{
    const cache_place from = row_in_step(c, part, run);
    if (on_desk(c, s, side, to->dtype))
        desk_run(c, layer, s, part->sequence, from, run, side, to);
    else if (side == CACHE_K && s->rope)
        turn_run(c, s, from, run, to);
    else
        copy_run(c, layer, s, from, run, side, to);
}

/* write_recent writes those keys of a part that its ring of recent rows keeps. */
static void write_recent(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                         const cache_part *part, int side)
{
    const int64_t end = c->end[part->sequence];
    const attn_output to = recent_of(c, side, layer);
    cache_run run = { .number = end - min64(part->count, c->recent_rows) };
    while (next_recent(c, part->sequence, end, &run))
        write_run(c, layer, s, part, &run, side, &to);
}

static void write_part(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                       const cache_part *part)
{
    const int64_t end = c->end[part->sequence];
    int side;
    for (side = 0; side < CACHE_SIDES; side++) {
        const attn_output to = layer_of(c, side, layer);
        cache_run run = { .number = end - part->count };
        while (next_run(c, part->sequence, end, &run))
            write_run(c, layer, s, part, &run, side, &to);
        if (c->recent)
            write_recent(c, layer, s, part, side);
    }
}

static void write_all(const attn_cache *c, int64_t layer, const attn_cache_step *s)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const cache_part part = part_of(s, b);
        write_part(c, layer, s, &part);
    }
}

/* is_shared tells whether other sequences have pages of a part's last keys, after a fork before the
 * keys were written. */
static int is_shared(const attn_cache *c, const cache_part *part)
{
    page_range r;
    int64_t n;
    if (!c->page_size)
        return 0;
    r = pages_of(c, c->end[part->sequence] - part->count, part->count);
    for (n = 0; n < r.count; n++)
        if (c->uses[table_of(c, part->sequence)[nth_page(c, &r, n)]] > 1)
            return 1;
    return 0;
}

static attn_status check_extended(const attn_cache *c, const attn_cache_step *s, text *why)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const cache_part part = part_of(s, b);
        if (part.count > c->length[part.sequence])
            return bad_keys(c, &part, ATTN_ERR_ARG, "call attn_cache_extend with this step first",
                            why);
        if (is_shared(c, &part))
            return bad_keys(c, &part, ATTN_ERR_ARG,
                            "other sequences share their pages: write all layers "
                            "before attn_cache_fork",
                            why);
    }
    return ATTN_OK;
}

ATTN_API attn_status attn_cache_write(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                                      char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache_step resolved;
    attn_status status = check_cache(c, &why);
    status = status ? status : check_layer(c, layer, &why);
    status = status ? status : check_step(c, s, &why);
    status = status ? status : check_extended(c, s, &why);
    if (status)
        return status;
    resolved = *s;
    status = resolve_step(c, &resolved, 1, &why);
    if (!status)
        write_all(c, layer, &resolved);
    return done(status, &why);
}

ATTN_API attn_status attn_cache_append(attn_cache *c, const attn_cache_step *s, char *why_text,
                                       size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache_step resolved;
    attn_status status = check_cache(c, &why);
    if (!status && c->num_layers != 1)
        return bad_field(&why, ATTN_ERR_ARG, "num_layers", c->num_layers,
                         ": call attn_cache_extend, then attn_cache_write for each layer");
    status = status ? status : check_step(c, s, &why);
    if (status)
        return status;
    resolved = *s;
    status = resolve_step(c, &resolved, 0, &why);
    status = status ? status : check_fits(c, s, &why);
    if (status)
        return status;
    extend_all(c, s); /* From here on nothing can fail. */
    write_all(c, 0, &resolved);
    return done(ATTN_OK, &why);
}

/* src/cache/cache.c - trimming, forking, viewing and reading a cache. */

/* check_present refuses numbers first to end-1 that are not present; first must be present, too,
 * unless it is the end. */
static attn_status check_present(const attn_cache *c, int64_t q, const char *first_name,
                                 int64_t first, const char *end_name, int64_t end, text *why)
{
    const int64_t values[] = { end, c->begin[q], c->end[q], q };
    if (first <= end && first >= c->begin[q] && end <= c->end[q])
        return ATTN_OK;
    bad_field(why, ATTN_ERR_ARG, first_name, first, " and ");
    put(why, end_name);
    return bad_numbers(why, ATTN_ERR_ARG,
                       " (#) must ascend from # to #, the numbers present in sequence #", values);
}

/* check_rollback refuses to go back to `end` in a ring if a query there, which looks at numbers
 * from end - window_left on, would miss some. A begin beyond what the ring has overwritten says
 * that all before it is forgotten. */
static attn_status check_rollback(const attn_cache *c, int64_t q, int64_t begin, int64_t end,
                                  text *why)
{
    const int64_t gone = c->overwritten_below[q];
    const int64_t values[] = { end, gone + c->window_left, c->window_left, gone };
    if (begin == end || begin > gone || gone == 0 || gone <= end - c->window_left)
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "end (#) must be at least #: window_left (#) keys before it are needed, and "
                       "the ring has overwritten those below #",
                       values);
}

/* check_recent_kept refuses an end whose next row would read recent keys that are overwritten. */
static attn_status check_recent_kept(const attn_cache *c, int64_t q, int64_t begin, int64_t end,
                                     text *why)
{
    const int64_t before = keys_before(c), least = before ? c->recent_begin[q] + before : 0;
    if (!before || begin == end || end >= least || begin >= c->recent_begin[q])
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "end (#) must be at least #: # keys before it are read from the ring of "
                       "recent_rows (#), which has overwritten those below #",
                       NUMBERS(end, least, before, c->recent_rows, c->recent_begin[q]));
}

ATTN_API attn_status attn_cache_trim(attn_cache *c, int64_t q, int64_t begin, int64_t end,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    status = status ? status : check_sequence(c, "sequence", q, &why);
    if (begin || end) { /* It is no new start. */
        status = status ? status : check_present(c, q, "begin", begin, "end", end, &why);
        status = status ? status : check_rollback(c, q, begin, end, &why);
        status = status ? status : check_recent_kept(c, q, begin, end, &why);
    }
    if (status)
        return status;
    set_numbers(c, q, begin, end, c->overwritten_below[q]);
    if (c->page_size)
        drop_pages(c, q);
    return done(ATTN_OK, &why);
}

static void share_pages(attn_cache *c, int64_t from, int64_t to)
{
    const page_range r = pages_of(c, c->begin[to], c->length[to]);
    int64_t n;
    for (n = 0; n < r.count; n++) {
        const int64_t i = nth_page(c, &r, n);
        const int32_t page = table_of(c, from)[i];
        table_of(c, to)[i] = page;
        c->uses[page]++;
    }
}

/* Keys of an unpaged cache have the same rows in both sequences. */
static void copy_keys(const attn_cache *c, int64_t from, int64_t to)
{
    cache_run run = { .number = c->begin[to] };
    while (next_run(c, from, c->end[to], &run))
        copy_entry(c, run.at, to, run.rows);
}

/* copy_recent copies the recent rows, which have the same places in both sequences. */
static void copy_recent(const attn_cache *c, int64_t from, int64_t to)
{
    int64_t layer;
    int side;
    for (layer = 0; layer < c->num_layers; layer++)
        for (side = 0; side < CACHE_SIDES; side++) {
            const attn_output o = recent_of(c, side, layer);
            const attn_tensor t = as_tensor(&o);
            cache_run run = { .number = max64(c->recent_begin[to], c->begin[to]) };
            while (next_recent(c, from, c->end[to], &run)) {
                const cache_place target = { to, run.at.row };
                copy_heads(&o, target, &t, run.at, c->num_heads_kv, run.rows, side_of(c, side).dim,
                           &no_scales);
            }
        }
}

ATTN_API attn_status attn_cache_fork(attn_cache *c, int64_t from, int64_t to, int64_t end,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    status = status ? status : check_sequence(c, "from", from, &why);
    status = status ? status : check_sequence(c, "to", to, &why);
    if (!status && from == to)
        return bad_field(&why, ATTN_ERR_ARG, "to", to, " must be another sequence than from");
    if (!status && c->length[to])
        return bad_field(&why, ATTN_ERR_ARG, "to", to,
                         " must be empty: call attn_cache_trim(c, to, 0, 0, ...) first");
    status = status ? status : check_present(c, from, "begin", c->begin[from], "end", end, &why);
    status = status ? status : check_rollback(c, from, c->begin[from], end, &why);
    status = status ? status : check_recent_kept(c, from, c->begin[from], end, &why);
    if (status)
        return status;
    if (c->recent)
        c->recent_begin[to] = c->recent_begin[from];
    set_numbers(c, to, c->begin[from], end, c->overwritten_below[from]);
    if (c->recent)
        copy_recent(c, from, to);
    if (c->page_size)
        share_pages(c, from, to);
    else
        copy_keys(c, from, to);
    return done(ATTN_OK, &why);
}

/* ---- views and reading */

/* chosen_of makes a cache of `batch` sequences without its arrays, in which each sequence of a cache
 * that is not paged is a page of its own. */
static attn_cache chosen_of(const attn_cache *c, int64_t batch)
{
    attn_cache chosen = *c;
    chosen.num_sequences = batch;
    chosen.pages_per_sequence = max64(c->pages_per_sequence, 1);
    chosen.page_size = cache_entry_rows(c);
    chosen.num_pages = cache_entries(c);
    return chosen;
}

static int64_t view_bytes(const attn_cache *c, int64_t batch)
{
    attn_cache chosen = chosen_of(c, batch);
    return place_arrays(&chosen, VIEW_ARRAYS, NULL);
}

static attn_status check_view_size(const attn_cache *c, int64_t batch, text *why)
{
    if (batch < 0)
        return bad_field(why, ATTN_ERR_ARG, "batch", batch, " must be at least 0");
    if (view_bytes(c, batch) >= ADDRESS_LIMIT)
        return bad_field(why, ATTN_ERR_OVERFLOW, "batch", batch,
                         ": the view would exceed the address space");
    return ATTN_OK;
}

ATTN_API attn_status attn_cache_view_size(const attn_cache *c, int64_t batch, size_t *bytes,
                                          char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    if (!status && !bytes)
        return bad(&why, ATTN_ERR_ARG, "bytes is NULL");
    status = status ? status : check_view_size(c, batch, &why);
    if (!status)
        *bytes = (size_t)view_bytes(c, batch);
    return done(status, &why);
}

/* copy_chosen makes a cache of chosen sequences, whose arrays lie in `memory`. */
static attn_cache copy_chosen(const attn_cache *c, const int32_t *sequences, int64_t batch,
                              const void *memory)
{
    attn_cache chosen = chosen_of(c, batch);
    int64_t b;
    place_arrays(&chosen, VIEW_ARRAYS, memory);
    for (b = 0; b < batch; b++) {
        const int32_t q = sequences[b];
        chosen.begin[b] = c->begin[q];
        chosen.length[b] = c->length[q];
        chosen.first_row[b] = c->first_row[q];
        if (c->recent) {
            chosen.recent_begin[b] = c->recent_begin[q];
            chosen.recent_entries[b] = q;
        }
        memcpy(table_of(&chosen, b), c->page_size ? table_of(c, q) : &q,
               (size_t)chosen.pages_per_sequence * sizeof q);
    }
    return chosen;
}

/* view_scales shows a layer's scales, which keys share, as sequences or pages do. */
static attn_scales view_scales(const attn_cache *c, int side, int64_t layer)
{
    attn_scales x = *given_scales(c, side);
    if (!x.data)
        return no_scales;
    x.data = scales_of_layer(c, side, layer).data;
    x.stride_batch = x.stride_seq = ATTN_STRIDE_BROADCAST;
    return x;
}

static void view_storage(const attn_cache *c, int64_t layer, attn_params *p)
{
    const attn_output k = layer_of(c, CACHE_K, layer), v = layer_of(c, CACHE_V, layer);
    p->num_heads_kv = c->num_heads_kv;
    p->seq_len_kv = c->rows;
    p->head_dim = c->head_dim;
    p->head_dim_v = c->head_dim_v;
    p->k = as_tensor(&k);
    p->v = as_tensor(&v);
    p->k_scales = view_scales(c, CACHE_K, layer);
    p->v_scales = view_scales(c, CACHE_V, layer);
    p->rotated = c->rotated;
    p->k_centered = c->k_mean != NULL;
}

/* view_recent shows a layer of recent rows, with the arrays of the chosen sequences. */
static void view_recent(const attn_cache *c, int64_t layer, const attn_cache *shown, attn_params *p)
{
    static const attn_recent none = { .keys = 0 };
    attn_output k, v;
    p->recent = none;
    if (!c->recent)
        return;
    k = recent_of(c, CACHE_K, layer);
    v = recent_of(c, CACHE_V, layer);
    p->recent.keys = c->recent;
    p->recent.ring = c->recent_rows;
    p->recent.begin = shown->recent_begin;
    p->recent.entries = shown->recent_entries;
    p->recent.num_entries = c->num_sequences;
    p->recent.k = as_tensor(&k);
    p->recent.v = as_tensor(&v);
}

static void view_sequences(const attn_cache *c, int64_t batch, attn_params *p)
{
    const attn_rows rows = { .ring = c->rows,
                             .begin = c->first_row,
                             .page_size = c->page_size,
                             .num_pages = c->num_pages,
                             .table = c->table };
    p->batch = batch;
    p->kv_len = c->length;
    p->kv_begin = NULL;
    p->cu_seqlens_kv = NULL;
    p->key_base = c->begin;
    p->kv_rows = rows;
}

/* count_shared counts the first keys of the view that all its sequences have in one set of pages
 * and with one set of numbers. */
static int64_t count_shared(const attn_cache *c, const attn_params *p)
{
    const int64_t pages = c->pages_per_sequence;
    int64_t least = p->batch > 1 ? p->kv_len[0] : 0, keys, b;
    const int64_t first = p->batch > 1 ? p->kv_rows.begin[0] : 0;
    for (b = 1; b < p->batch; b++)
        least = p->key_base[b] == p->key_base[0] ? min64(least, p->kv_len[b]) : 0;
    for (keys = 0; keys < least; keys += c->page_size - (first + keys) % c->page_size) {
        const int64_t i = (first + keys) % c->rows / c->page_size;
        for (b = 1; b < p->batch; b++)
            if (p->kv_rows.table[b * pages + i] != p->kv_rows.table[i])
                return keys;
    }
    return min64(keys, least);
}

static attn_status check_window(const attn_cache *c, const attn_params *p, text *why)
{
    const int64_t values[] = { p->window_left, c->window_left };
    if (!c->ring || !p->window || (p->window_left >= 0 && p->window_left <= c->window_left))
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "p.window_left (#) must be from 0 to #, the window_left of the ring",
                       values);
}

/* view_window leaves a window that is set, but not on, to attn_forward, which refuses it. */
static void view_window(const attn_cache *c, attn_params *p)
{
    if (!c->ring || !c->window_left || p->window || p->window_left || p->window_right)
        return;
    p->window = ATTN_WINDOW;
    p->window_left = c->window_left;
    p->window_right = -1;
}

static attn_status check_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                              int64_t batch, const attn_params *p, text *why)
{
    attn_status status = check_cache(c, why);
    if (!status && !p)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    status = status ? status : check_layer(c, layer, why);
    status = status ? status : check_view_size(c, batch, why);
    status = status ? status : check_chosen(c, sequences, batch, 0, why);
    return status ? status : check_window(c, p, why);
}

ATTN_API attn_status attn_cache_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                                     int64_t batch, attn_params *p, void *memory, size_t bytes,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache shown;
    attn_status status = check_view(c, layer, sequences, batch, p, &why);
    if (!status && sequences) {
        const int64_t need = view_bytes(c, batch);
        status = check_memory(memory, bytes, need, "attn_cache_view_size", &why);
        status = status ? status : check_memory_apart(c, memory, need, &why);
    }
    if (status)
        return status;
    shown = sequences ? copy_chosen(c, sequences, batch, memory) : *c;
    view_storage(c, layer, p);
    view_recent(c, layer, &shown, p);
    view_sequences(&shown, batch, p);
    p->shared_keys = c->page_size ? count_shared(c, p) : 0;
    view_window(c, p);
    return done(ATTN_OK, &why);
}

/* ---- reading */

typedef struct cache_outputs {
    attn_output k, v;
} cache_outputs;

#define AT(member) offsetof(cache_outputs, member)

static const call_field read_fields[] = {
    { TENSOR(k, AXIS_NONE, AXIS_HEAD_KV, AXIS_ROW, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(v, AXIS_NONE, AXIS_HEAD_KV, AXIS_ROW, AXIS_DIM_V, BY_ALL), .output = OUTPUT_RESULT },
};
#undef AT

static attn_status resolve_outputs(const attn_cache *c, int64_t count, cache_outputs *to, text *why)
{
    const call_axes x = axes_of_rows(c, 1, count);
    const int n = COUNT_OF(read_fields);
    const array_set set = { read_fields, n, to, &x, .written = OUTPUT_RESULT };
    attn_tensor k, v;
    attn_status status = check_output_fields(read_fields, n, to, why);
    status = status ? status : check_dtype(c, CACHE_K, to->k.dtype, why);
    status = status ? status : check_dtype(c, CACHE_V, to->v.dtype, why);
    status = status ? status : resolve_arrays(read_fields, n, to, &x, why);
    k = as_tensor(&to->k);
    v = as_tensor(&to->v);
    status = status ? status : check_rows(c, &k, &v, why);
    status = status ? status : check_written(&set, 1, NULL, why);
    return status ? status : check_arrays_apart(c, &set, why);
}

static void read_rows(const attn_cache *c, int side, int64_t layer, int64_t q, int64_t first,
                      int64_t count, const attn_output *to)
{
    const attn_output o = layer_of(c, side, layer);
    const attn_tensor t = as_tensor(&o);
    const attn_scales by = scales_of_layer(c, side, layer);
    cache_run run = { .number = first };
    cache_place at = { 0, 0 };
    while (to->data && next_run(c, q, first + count, &run)) {
        copy_heads(to, at, &t, run.at, c->num_heads_kv, run.rows, side_of(c, side).dim, &by);
        at.row += run.rows;
    }
}

ATTN_API attn_status attn_cache_read(const attn_cache *c, int64_t layer, int64_t q, int64_t first,
                                     int64_t count, const attn_output *k, const attn_output *v,
                                     char *why_text, size_t why_bytes)
{
    static const attn_output unwanted = { 0, 0, 0, 0, NULL };
    text why = text_in(why_text, why_bytes);
    cache_outputs to = { k && k->data ? *k : unwanted, v && v->data ? *v : unwanted };
    attn_status status = check_cache(c, &why);
    status = status ? status : check_layer(c, layer, &why);
    status = status ? status : check_sequence(c, "sequence", q, &why);
    status = status ? status : check_index("count", count, c->length[q], &why);
    if (!status)
        status = check_present(c, q, "first", first, "first + count", min64(first, TOO_BIG) + count,
                               &why);
    status = status ? status : resolve_outputs(c, count, &to, &why);
    if (status)
        return status;
    read_rows(c, CACHE_K, layer, q, first, count, &to.k);
    read_rows(c, CACHE_V, layer, q, first, count, &to.v);
    return done(ATTN_OK, &why);
}

/* src/snapshot/stream.c - the bytes of a snapshot: numbers and rows, in sections that end with a hash.
 *
 * One function passes each thing both ways, so that what is saved and what is loaded cannot differ.
 */

#define STREAM_BYTES 2048 /* whole words of the hash */

typedef struct stream {
    const attn_snapshot *ends; /* the callbacks */
    int loading;
    attn_status status;
    uint64_t hash;
    int64_t left, behind; /* bytes of the section that are not in the chunk, and all before it */
    int at, filled;       /* of the chunk */
    unsigned char chunk[STREAM_BYTES];
} stream;

static uint64_t load_le64(const unsigned char *from)
{
    uint64_t x = 0;
    int i;
    for (i = 7; i >= 0; i--)
        x = x << 8 | from[i];
    return x;
}

static void store_le64(unsigned char *to, uint64_t x)
{
    int i;
    for (i = 0; i < 8; i++)
        to[i] = (unsigned char)(x >> 8 * i);
}

/* hash_word can be inverted in each of its numbers: two words that differ give two hashes. A word is
 * mixed before it meets the hash, so that no simple change of the next one takes its change back. */
static uint64_t hash_word(uint64_t hash, uint64_t word)
{
    word *= UINT64_C(0xbf58476d1ce4e5b9);
    word = (word ^ word >> 32) * UINT64_C(0x94d049bb133111eb);
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

static void hash_chunk(stream *st)
{
    int i;
    memset(st->chunk + st->filled, 0, (size_t)(-st->filled & 7));
    for (i = 0; i < st->filled; i += 8)
        st->hash = hash_word(st->hash, load_le64(st->chunk + i));
}

/* carry gives bytes to the caller, or takes them. */
static void carry(stream *st, unsigned char *bytes, int n)
{
    const attn_snapshot *ends = st->ends;
    if (st->status)
        return;
    if (st->loading ? ends->read(ends->context, bytes, (size_t)n)
                    : ends->write(ends->context, bytes, (size_t)n))
        st->status = ATTN_ERR_CALLBACK;
    else
        st->behind += n;
}

/* next_chunk is done with the chunk and begins another, which is empty at the end of a section. */
static void next_chunk(stream *st)
{
    if (!st->loading && st->filled) {
        hash_chunk(st);
        carry(st, st->chunk, st->filled);
    }
    st->at = 0;
    st->filled = (int)min64(st->left, STREAM_BYTES);
    st->left -= st->filled;
    if (st->loading && st->filled) {
        carry(st, st->chunk, st->filled);
        hash_chunk(st);
    }
}

static void begin_section(stream *st, int64_t bytes)
{
    st->left = bytes;
    st->at = st->filled = 0;
}

static void end_section(stream *st)
{
    unsigned char hash[8];
    next_chunk(st);
    store_le64(hash, st->hash);
    carry(st, hash, 8);
    if (!st->status && load_le64(hash) != st->hash)
        st->status = ATTN_ERR_DATA;
}

/* pass_bytes copies bytes into the chunk or out of it. Behind a failure it does nothing. */
static void pass_bytes(stream *st, void *bytes, int64_t n)
{
    unsigned char *own = bytes;
    while (n > 0 && !st->status) {
        int count;
        if (st->at == st->filled)
            next_chunk(st);
        count = (int)min64(n, st->filled - st->at);
        if (st->loading)
            memcpy(own, st->chunk + st->at, (size_t)count);
        else
            memcpy(st->chunk + st->at, own, (size_t)count);
        st->at += count;
        own += count;
        n -= count;
    }
}

static void pass_number(stream *st, int64_t *x)
{
    unsigned char word[8];
    store_le64(word, (uint64_t)*x);
    pass_bytes(st, word, 8);
    *x = (int64_t)load_le64(word);
}

static int is_little_endian(void)
{
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first;
}

/* reverse_word turns the number round with which a unit begins. */
static void reverse_word(unsigned char *unit, int bytes)
{
    int i;
    for (i = 0; i < bytes / 2; i++) {
        const unsigned char x = unit[i];
        unit[i] = unit[bytes - 1 - i];
        unit[bytes - 1 - i] = x;
    }
}

/* pass_row passes n stored numbers. A unit begins with a number, which is all of it or its scale, and
 * goes on with bytes. */
static void pass_row(stream *st, int dtype, void *row, int64_t n)
{
    const int bytes = (int)bytes_of(dtype), word = storages[dtype].unit > 1 ? 2 : bytes;
    unsigned char *unit = row;
    if (is_little_endian() || word == 1) {
        pass_bytes(st, row, room_of(dtype, n));
        return;
    }
    for (; n > 0; n -= storages[dtype].unit, unit += bytes) {
        unsigned char other[sizeof(q8_unit)];
        memcpy(other, unit, (size_t)bytes);
        reverse_word(other, word);
        pass_bytes(st, other, bytes);
        reverse_word(other, word);
        if (st->loading)
            memcpy(unit, other, (size_t)bytes);
    }
}

/* src/snapshot/snapshot.c - sequences of a cache, saved and loaded. */

#define SNAPSHOT_FORMAT INT64_C(0x31706e736e747461) /* "attnsnp1" */
#define SNAPSHOT_RECENT INT64_C(0x316365726e747461) /* "attnrec1": with recent rows */
#define SNAPSHOT_BLOCK 64                           /* numbers */
#define SNAPSHOT_ANGLES 4096 /* the last position at which ropes are compared */

/* ---- what must agree */

#define AT(member) offsetof(attn_cache, member)

static const call_field agreed_fields[] = {
    { VALUE(num_layers, F_INT64, BY_ALL, ANY) }, { VALUE(num_heads_kv, F_INT64, BY_ALL, ANY) },
    { VALUE(head_dim, F_INT64, BY_ALL, ANY) },   { VALUE(head_dim_v, F_INT64, BY_ALL, ANY) },
    { VALUE(k.dtype, F_INT, BY_ALL, ANY) },      { VALUE(v.dtype, F_INT, BY_ALL, ANY) },
    { VALUE(rotated, F_INT, BY_ALL, ANY) },      { VALUE(window_left, F_INT64, BY_ALL, ANY) },
};

/* These follow where there are recent rows. */
static const call_field recent_fields[] = {
    { VALUE(recent, F_INT64, BY_ALL, ANY) },
    { VALUE(recent_dtype, F_INT, BY_ALL, ANY) },
};
#undef AT

typedef struct snapshot_fact {
    const char *name;
    int64_t number;
} snapshot_fact;

enum {
    OTHER_FACTS = 8,
    FACTS = COUNT_OF(agreed_fields) + OTHER_FACTS,
    RECENT_FACTS = COUNT_OF(recent_fields)
};

/* hash_angles takes positions 1, 2, 4, ..., those of a table that it has. */
OWN_FRAME static int64_t hash_angles(const attn_rope *r, int64_t dim)
{
    const int64_t end = r->cos ? min64(r->num_positions, SNAPSHOT_ANGLES + 1) : SNAPSHOT_ANGLES + 1;
    const rope_source from = source_of(r, dim);
    uint64_t hash = 0;
    rope_block k;
    int64_t pair, position;
    int i;
    for (pair = 0; pair < from.pairs; pair += ROPE_BLOCK) {
        begin_block(&k, &from, pair);
        for (position = 1; position < end; position *= 2) {
            set_angles(&k, &from, position);
            for (i = 0; i < k.n; i++)
                hash = hash_word(hash, (uint64_t)bits_of(k.s[i]) << 32 | bits_of(k.c[i]));
        }
    }
    return (int64_t)hash;
}

static int64_t hash_mean(const attn_cache *c)
{
    const int64_t n = mean_floats(c);
    uint64_t hash = c->k_mean != NULL;
    int64_t i;
    for (i = 0; i < n; i++)
        hash = hash_word(hash, bits_of(c->k_mean[i]));
    return (int64_t)hash;
}

/* hash_scales takes a scale for each number of each layer, so that it does not matter which are shared. */
static int64_t hash_scales(const attn_cache *c, int side)
{
    const int64_t dim = side_of(c, side).dim;
    uint64_t hash = 0;
    int64_t layer, i;
    for (layer = 0; layer < c->num_layers; layer++) {
        const attn_scales x = scales_of_layer(c, side, layer);
        for (i = 0; i < c->num_heads_kv * dim && x.data; i++)
            hash =
                hash_word(hash, bits_of(x.data[i / dim * x.stride_head + i % dim * x.stride_dim]));
    }
    return (int64_t)hash;
}

/* list_fields lists the values of n fields of a cache. */
static void list_fields(const attn_cache *c, const call_field *fields, int n, snapshot_fact *facts)
{
    int i;
    for (i = 0; i < n; i++) {
        facts[i].name = fields[i].name;
        facts[i].number = field_number(&fields[i], c);
    }
}

/* list_facts lists what must agree, and counts it. */
static int list_facts(const attn_cache *c, const attn_snapshot *s, snapshot_fact *facts)
{
    const attn_rope *r = s->rope;
    const int64_t dim = r ? rope_dim(r, c->head_dim) : 0;
    const snapshot_fact others[OTHER_FACTS] = {
        { "numerics version", ATTN_NUMERICS_VERSION },
        { "batch", s->batch },
        { "tag", (int64_t)s->tag },
        { "rows of a ring", c->ring ? c->rows : 0 },
        { "elements turned by rope", dim },
        { "rope.interleaved", r && r->interleaved },
        { "hash of the angles of rope", r ? hash_angles(r, dim) : 0 },
        { "hash of k_mean", hash_mean(c) },
    };
    memcpy(facts, others, sizeof others);
    list_fields(c, agreed_fields, COUNT_OF(agreed_fields), facts + OTHER_FACTS);
    list_fields(c, recent_fields, c->recent ? RECENT_FACTS : 0, facts + FACTS);
    return c->recent ? FACTS + RECENT_FACTS : FACTS;
}

/* ---- what passes */

/* stream_status says what has gone wrong by now. */
static attn_status stream_status(const stream *st, text *why)
{
    if (st->status == ATTN_ERR_CALLBACK)
        return bad_numbers(why, st->status,
                           st->loading ? "snapshot: read failed after # bytes, before its end"
                                       : "snapshot: write failed after # bytes",
                           &st->behind);
    if (st->status == ATTN_ERR_DATA)
        return bad_numbers(why, st->status, "snapshot: damaged in the first # bytes", &st->behind);
    return st->status;
}

static attn_status pass_format(const attn_cache *c, stream *st, text *why)
{
    const int64_t own = c->recent ? SNAPSHOT_RECENT : SNAPSHOT_FORMAT;
    int64_t format = own;
    begin_section(st, 8);
    pass_number(st, &format);
    if (!st->status && format != own && (format == SNAPSHOT_FORMAT || format == SNAPSHOT_RECENT))
        return bad_field(why, ATTN_ERR_ARG, "snapshot: recent of the cache", c->recent,
                         c->recent ? ", but the snapshot has no recent rows"
                                   : ", but the snapshot has recent rows");
    if (!st->status && format != own)
        return bad(why, ATTN_ERR_DATA,
                   "snapshot: the first 8 bytes must be attnsnp1 or attnrec1: it is none, or of "
                   "another version");
    end_section(st);
    return stream_status(st, why);
}

/* pass_facts passes a section of facts and wants them to agree. */
static attn_status pass_facts(stream *st, const snapshot_fact *own, int n, text *why)
{
    int64_t theirs[FACTS + RECENT_FACTS];
    attn_status status;
    int i;
    begin_section(st, n * 8);
    for (i = 0; i < n; i++) {
        theirs[i] = own[i].number;
        pass_number(st, &theirs[i]);
    }
    end_section(st);
    status = stream_status(st, why);
    for (i = 0; i < n && !status; i++)
        if (theirs[i] != own[i].number) {
            put(why, "snapshot: ");
            put(why, own[i].name);
            put_numbers(why, " (#) must be #, as here", NUMBERS(theirs[i], own[i].number));
            status = ATTN_ERR_ARG;
        }
    return status;
}

/* pass_agreed passes what every snapshot says, and then hashes of scales where there are some. */
static attn_status pass_agreed(const attn_cache *c, stream *st, text *why)
{
    snapshot_fact own[FACTS + RECENT_FACTS];
    const int n = list_facts(c, st->ends, own);
    const snapshot_fact scales[] = { { "hash of k_scales", hash_scales(c, CACHE_K) },
                                     { "hash of v_scales", hash_scales(c, CACHE_V) } };
    const attn_status status = pass_facts(st, own, n, why);
    if (status || !(c->k_scales.data || c->v_scales.data))
        return status;
    return pass_facts(st, scales, COUNT_OF(scales), why);
}

/* A kept_rows is the rows of a cache as they are stored, or those that are recent. */
typedef struct kept_rows {
    attn_output (*of)(const attn_cache *c, int side, int64_t layer);
    int (*next)(const attn_cache *c, int64_t q, int64_t end, cache_run *run);
} kept_rows;

static const kept_rows stored_rows = { layer_of, next_run };
static const kept_rows last_rows = { recent_of, next_recent };

/* pass_head_rows passes one head's rows of numbers from..to-1. */
static void pass_head_rows(const attn_cache *c, stream *st, const kept_rows *kept, int side,
                           int64_t layer, int64_t q, int64_t head, int64_t from, int64_t to)
{
    const attn_output o = kept->of(c, side, layer);
    cache_run run = { .number = from };
    while (kept->next(c, q, to, &run)) {
        char *row = (char *)o.data + BYTES_TO(o, run.at, head);
        int64_t i;
        for (i = 0; i < run.rows; i++, row += bytes_between(o.dtype, o.stride_seq))
            pass_row(st, o.dtype, row, side_of(c, side).dim);
    }
}

static void pass_block(const attn_cache *c, stream *st, const kept_rows *kept, int64_t layer,
                       int64_t q, int64_t from, int64_t to)
{
    const int64_t of_row = room_of(kept->of(c, CACHE_K, layer).dtype, c->head_dim) +
                           room_of(kept->of(c, CACHE_V, layer).dtype, c->head_dim_v);
    int64_t head;
    int side;
    begin_section(st, (to - from) * c->num_heads_kv * of_row);
    for (side = 0; side < CACHE_SIDES; side++)
        for (head = 0; head < c->num_heads_kv; head++)
            pass_head_rows(c, st, kept, side, layer, q, head, from, to);
    end_section(st);
}

static attn_status pass_rows(const attn_cache *c, stream *st, const kept_rows *kept, int64_t q,
                             int64_t begin, int64_t end, text *why)
{
    int64_t layer, from, to;
    for (layer = 0; layer < c->num_layers; layer++)
        for (from = begin; from < end && !st->status; from = to) {
            to = min64(end, (from / SNAPSHOT_BLOCK + 1) * SNAPSHOT_BLOCK);
            pass_block(c, st, kept, layer, q, from, to);
        }
    return stream_status(st, why);
}

/* A sequence_numbers is what a snapshot has of a sequence beside its rows. */
typedef struct sequence_numbers {
    int64_t begin, end, overwritten_below;
    int64_t recent_begin; /* only with recent rows */
} sequence_numbers;

static attn_status pass_numbers(const attn_cache *c, stream *st, sequence_numbers *x, text *why)
{
    begin_section(st, (c->recent ? 4 : 3) * 8);
    pass_number(st, &x->begin);
    pass_number(st, &x->end);
    pass_number(st, &x->overwritten_below);
    if (c->recent)
        pass_number(st, &x->recent_begin);
    end_section(st);
    return stream_status(st, why);
}

/* pass_sequence passes the rows of a sequence, stored ones and then recent ones, of which a smaller
 * ring keeps the last. */
static attn_status pass_sequence(const attn_cache *c, stream *st, int64_t q,
                                 const sequence_numbers *x, text *why)
{
    const attn_status status = pass_rows(c, st, &stored_rows, q, x->begin, x->end, why);
    if (status || !c->recent)
        return status;
    return pass_rows(c, st, &last_rows, q, max64(x->begin, x->recent_begin), x->end, why);
}

/* ---- saving */

static attn_status check_snapshot(const attn_cache *c, const attn_snapshot *s, text *why)
{
    attn_status status = check_cache(c, why);
    if (!status && !s)
        return bad(why, ATTN_ERR_ARG, "snapshot is NULL");
    status = status ? status : check_chosen(c, s->sequences, s->batch, 1, why);
    status = status ? status : check_distinct(s->sequences, s->batch, why);
    return status || !s->rope ? status : check_rope(s->rope, c->head_dim, why);
}

OWN_FRAME static attn_status save_all(const attn_cache *c, const attn_snapshot *s, text *why)
{
    stream st = { .ends = s };
    attn_status status = pass_format(c, &st, why);
    int64_t b;
    status = status ? status : pass_agreed(c, &st, why);
    for (b = 0; b < s->batch && !status; b++) {
        const int64_t q = entry32(s->sequences, b, b);
        sequence_numbers x = { c->begin[q], c->end[q], c->overwritten_below[q],
                               c->recent ? c->recent_begin[q] : 0 };
        status = pass_numbers(c, &st, &x, why);
        status = status ? status : pass_sequence(c, &st, q, &x, why);
    }
    return status;
}

ATTN_API attn_status attn_cache_save(const attn_cache *c, const attn_snapshot *s, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_snapshot(c, s, &why);
    if (!status && !s->write)
        return bad(&why, ATTN_ERR_ARG, "write is NULL");
    status = status ? status : save_all(c, s, &why);
    return done(status, &why);
}

/* ---- loading */

static attn_status check_empty(const attn_cache *c, const attn_snapshot *s, text *why)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const int64_t q = entry32(s->sequences, b, b);
        if (c->end[q])
            return bad_entry(why, "sequences", b, q,
                             " must be empty: call attn_cache_trim(c, q, 0, 0, ...) first");
    }
    return ATTN_OK;
}

/* last_recent is the largest recent_begin with which the next row reads what is there. */
static int64_t last_recent(const attn_cache *c, const sequence_numbers *x)
{
    return c->recent ? max64(x->begin, x->end - keys_before(c)) : 0;
}

/* check_loaded trusts nothing that a snapshot says. */
static attn_status check_loaded(const attn_cache *c, const sequence_numbers *x, text *why)
{
    const int64_t most = c->ring ? c->rows : c->capacity;
    const int64_t values[] = { x->begin, x->end, x->overwritten_below };
    if (x->begin < 0 || x->end < x->begin || x->end > MOST_KEY_BASE || x->overwritten_below < 0 ||
        x->overwritten_below > x->begin ||
        (x->overwritten_below && (!c->ring || x->begin == x->end)))
        return bad_numbers(why, ATTN_ERR_DATA,
                           "snapshot: a sequence with begin #, end #, overwritten_below #", values);
    if (x->recent_begin < 0 || x->recent_begin > last_recent(c, x))
        return bad_numbers(why, ATTN_ERR_DATA,
                           "snapshot: a sequence with begin #, end #, recent_begin #",
                           NUMBERS(x->begin, x->end, x->recent_begin));
    if (x->end - x->begin > most)
        return bad_numbers(why, ATTN_ERR_FULL, "snapshot: a sequence has # keys, but capacity is #",
                           NUMBERS(x->end - x->begin, most));
    return ATTN_OK;
}

/* take_pages takes pages for an empty sequence. */
static attn_status take_pages(attn_cache *c, int64_t q, const sequence_numbers *x, text *why)
{
    page_range r;
    int64_t n;
    if (!c->page_size)
        return ATTN_OK;
    r = pages_of(c, x->begin, x->end - x->begin);
    if (r.count > c->num_free)
        return bad_numbers(why, ATTN_ERR_FULL,
                           "num_free (#) of num_pages (#) is too few: a sequence of the snapshot "
                           "needs # pages",
                           NUMBERS(c->num_free, c->num_pages, r.count));
    for (n = 0; n < r.count; n++)
        table_of(c, q)[nth_page(c, &r, n)] = take_page(c);
    return ATTN_OK;
}

static attn_status load_sequence(attn_cache *c, stream *st, int64_t q, text *why)
{
    sequence_numbers x = { 0, 0, 0, 0 };
    attn_status status = pass_numbers(c, st, &x, why);
    status = status ? status : check_loaded(c, &x, why);
    status = status ? status : take_pages(c, q, &x, why);
    status = status ? status : pass_sequence(c, st, q, &x, why);
    if (!status && c->recent)
        c->recent_begin[q] = x.recent_begin;
    if (!status)
        set_numbers(c, q, x.begin, x.end, x.overwritten_below);
    return status;
}

/* take_back makes a sequence empty again. The free list still has what was taken from it. */
static void take_back(attn_cache *c, int64_t q)
{
    int64_t i;
    set_numbers(c, q, 0, 0, 0);
    for (i = 0; i < c->pages_per_sequence; i++) {
        int32_t *page = table_of(c, q) + i;
        if (*page >= 0)
            c->uses[*page] = 0;
        *page = -1;
    }
}

OWN_FRAME static attn_status load_all(attn_cache *c, const attn_snapshot *s, text *why)
{
    const int64_t num_free = c->num_free;
    stream st = { .ends = s, .loading = 1 };
    attn_status status = pass_format(c, &st, why);
    int64_t b;
    status = status ? status : pass_agreed(c, &st, why);
    for (b = 0; b < s->batch && !status; b++)
        status = load_sequence(c, &st, entry32(s->sequences, b, b), why);
    for (b = 0; b < s->batch && status; b++)
        take_back(c, entry32(s->sequences, b, b));
    if (status)
        c->num_free = num_free;
    return status;
}

ATTN_API attn_status attn_cache_load(attn_cache *c, const attn_snapshot *s, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_snapshot(c, s, &why);
    if (!status && !s->read)
        return bad(&why, ATTN_ERR_ARG, "read is NULL");
    status = status ? status : check_empty(c, s, &why);
    status = status ? status : load_all(c, s, &why);
    return done(status, &why);
}

/* src/backward/fields.c - the fields of attn_gradients, and the axes of sums over pairs. */

/* These bits name the gradients, or parts of them, that some work is about. */
enum { WANT_DQ = 1, WANT_DK = 2, WANT_DV = 4, WANT_BIAS = 8, WANT_SLOPES = 16, WANT_SINKS = 32 };
#define WANT_KEYS (WANT_DK | WANT_DV)
#define WANT_SUMS (WANT_BIAS | WANT_SLOPES)

static int wanted(const attn_gradients *g)
{
    return (g->dq.data ? WANT_DQ : 0) | (g->dk.data ? WANT_DK : 0) | (g->dv.data ? WANT_DV : 0) |
           (g->dbias.data ? WANT_BIAS : 0) | (g->dslopes ? WANT_SLOPES : 0) |
           (g->dsinks ? WANT_SINKS : 0);
}

/* pack_axes packs the axes that are kept; a stride that is given counts instead. */
static void pack_axes(attn_sum_axes *a, const ptrdiff_t given[4])
{
    int64_t packed = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        a->stride[axis] = 0;
        if (!a->kept[axis])
            a->count[axis] = 1;
        else
            a->stride[axis] = given[axis] ? given[axis] : to_stride(packed);
        packed = times(packed, a->count[axis]);
    }
    settle_strides(4, a->count, a->stride);
}

/* The bias of a part is that of the whole call; its gradient has the rows that are held. */
static attn_sum_axes bias_axes(const attn_params *p, const attn_bias_gradient *d)
{
    const ptrdiff_t given[4] = { d->stride_batch, d->stride_head, d->stride_q, d->stride_kv };
    const ptrdiff_t of_bias[4] = { p->bias.stride_batch, p->bias.stride_head, p->bias.stride_q,
                                   p->bias.stride_kv };
    attn_sum_axes a = { .data = d->data,
                        .count = { p->batch, p->num_heads_q,
                                   longest(p->cu_seqlens_q, p->batch, rows_held(p)),
                                   longest(p->cu_seqlens_kv, p->batch, p->seq_len_kv) } };
    int axis;
    for (axis = 0; axis < 4; axis++)
        a.kept[axis] = of_bias[axis] != 0 || a.count[axis] == 1;
    pack_axes(&a, given);
    return a;
}

static int keeps_all(const attn_sum_axes *a)
{
    return a->kept[ATTN_AXIS_BATCH] && a->kept[ATTN_AXIS_HEAD] && a->kept[ATTN_AXIS_ROW] &&
           a->kept[ATTN_AXIS_KEY];
}

static attn_sum_axes slope_axes(const attn_params *p, float *data)
{
    const ptrdiff_t given[4] = { 0, 0, 0, 0 };
    attn_sum_axes a = { .data = data,
                        .count = { p->batch, p->num_heads_q, 1, 1 },
                        .kept = { p->alibi_stride != 0, 1, 0, 0 } };
    pack_axes(&a, given);
    return a;
}

#define AT(member) offsetof(attn_gradients, member)

static const call_field gradient_fields[] = {
    { DTYPE(dout.dtype, BY_ALL) },
    { VALUE(dlse.dtype, F_INT, BY_ALL, 0, 0), .instead = "f32" },
    { DTYPE(dq.dtype, BY_ALL) },
    { DTYPE(dk.dtype, BY_ALL) },
    { DTYPE(dv.dtype, BY_ALL) },
    { TENSOR(dout, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM_V, BY_ALL) },
    { TENSOR(dlse, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_NONE, BY_ALL) },
    { TENSOR(dq, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(dk, AXIS_BATCH, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { TENSOR(dv, AXIS_BATCH, AXIS_HEAD_KV, AXIS_KEY, AXIS_DIM_V, BY_ALL), .output = OUTPUT_RESULT },
    { LIST(dsinks, F_F32, BY_ALL, AXIS_NONE, AXIS_HEAD), .output = OUTPUT_RESULT },
};
#undef AT

/* gradient_axes makes the axes of a call those of its gradients: dk and dv have the keys of each sequence,
 * wherever a cache has them, for pages that sequences share would be written by each. */
static call_axes gradient_axes(const attn_params *p, call_axes x)
{
    x.count[AXIS_KEY] = keys_held(p);
    return x;
}

/* resolve_gradients gives every array of gradients its strides, or *why says which one does not fit
 * into memory. */
static attn_status resolve_gradients(const attn_params *p, attn_gradients *g, text *why)
{
    const call_axes x = gradient_axes(p, axes_of_call(p));
    attn_status status = resolve_arrays(gradient_fields, COUNT_OF(gradient_fields), g, &x, why);
    const attn_sum_axes a = bias_axes(p, &g->dbias);
    if (!status && a.data)
        status = check_extent("dbias", sizeof(float), a.count[0], a.count[1], a.count[2],
                              a.count[3], a.stride, why);
    if (!status)
        status = check_aligned("dbias", a.data, sizeof(float), why);
    return status ? status : check_aligned("dslopes", g->dslopes, sizeof(float), why);
}

/* add_axes adds what the gradients that a backend gets have beyond those of the caller. */
OWN_FRAME static void add_axes(const attn_params *p, attn_gradient_call *made)
{
    made->bias = bias_axes(p, &made->g.dbias);
    made->slopes = slope_axes(p, made->g.dslopes);
}

/* src/backward/gradients.c - gradients: their strides, and every sentence about bad input. */

/* check_given names the first array that gradients need and that is not given. */
static attn_status check_given(const attn_params *p, const attn_gradients *g, int naive, text *why)
{
    if (p->batch == 0 || rows_held(p) == 0)
        return ATTN_OK;
    if (!g->dout.data)
        return bad(why, ATTN_ERR_ARG,
                   "dout.data is NULL: the gradient of the loss by o, zeros if "
                   "only dlse has one");
    if (!p->o.data && !naive)
        return bad(why, ATTN_ERR_ARG,
                   "o.data is NULL: attn_backward reads what attn_forward wrote");
    if (!p->stats.data && !p->lse.data && !naive)
        return bad(why, ATTN_ERR_ARG,
                   "stats.data and lse.data are NULL: attn_backward reads what attn_forward wrote");
    if (!wanted(g))
        return bad(why, ATTN_ERR_ARG,
                   "nothing is asked for: dq, dk, dv, dbias, dsinks and dslopes are all NULL");
    return ATTN_OK;
}

static attn_status check_bias_strides(const attn_bias_gradient *d, text *why)
{
    const struct {
        const char *name;
        ptrdiff_t stride;
    } fields[] = {
        { "dbias.stride_batch", d->stride_batch },
        { "dbias.stride_head", d->stride_head },
        { "dbias.stride_q", d->stride_q },
        { "dbias.stride_kv", d->stride_kv },
    };
    int i;
    for (i = 0; i < COUNT_OF(fields); i++) {
        if (fields[i].stride != ATTN_STRIDE_BROADCAST)
            continue;
        put(why, fields[i].name);
        return bad(why, ATTN_ERR_ARG,
                   " (ATTN_STRIDE_BROADCAST) must be 0 (packed) or a stride; "
                   "bias says what is summed");
    }
    return ATTN_OK;
}

/* Fields that mean nothing without another one are refused, not ignored. */
static attn_status check_wishes(const attn_params *p, const attn_gradients *g, text *why)
{
    const attn_bias_gradient *d = &g->dbias;
    if (p->score && !g->score_derivative)
        return bad(why, ATTN_ERR_ARG, "score is given, but score_derivative is NULL");
    if (!p->score && g->score_derivative)
        return bad(why, ATTN_ERR_ARG, "score_derivative is given, but score is NULL");
    if (d->data && !p->bias.data)
        return bad(why, ATTN_ERR_ARG, "dbias is asked for, but bias.data is NULL");
    if (g->dsinks && !p->sinks)
        return bad(why, ATTN_ERR_ARG, "dsinks is asked for, but sinks is NULL");
    if (g->dslopes && !p->alibi_slopes)
        return bad(why, ATTN_ERR_ARG, "dslopes is asked for, but alibi_slopes is NULL");
    return check_bias_strides(d, why);
}

/* check_gradients comes before strides are resolved. With need_data, what the call reads and writes
 * must be there, too. */
static attn_status check_gradients(const attn_params *p, const attn_gradients *g, int naive,
                                   int need_data, text *why)
{
    attn_status status;
    if (g->gemms != 0 && g->gemms != 5 && g->gemms != 7)
        return bad_field(why, ATTN_ERR_ARG, "gemms", g->gemms, " must be 0, 5 or 7");
    status = check_values(gradient_fields, COUNT_OF(gradient_fields), g, why);
    if (!status)
        status = check_wishes(p, g, why);
    if (!status && need_data)
        status = check_given(p, g, naive, why);
    if (!status)
        status = check_output_fields(gradient_fields, COUNT_OF(gradient_fields), g, why);
    return status;
}

/* gradient_row tells where key j of a sequence has its row in dk and dv: sequence_of without what a cache
 * adds. */
static int64_t gradient_row(const attn_params *p, const sequence *s, int64_t j)
{
    return s->kv_row - entry32(p->kv_rows.begin, s->b, 0) - p->part.key_row + j;
}

/* end_of_gradients is an end_of_use_fn for dk and dv, which a cache does not scatter, and for the rest. */
static int64_t end_of_gradients(const attn_params *p, int axis, int64_t count, int64_t b)
{
    sequence s;
    if (axis != AXIS_KEY)
        return end_of_use(p, axis, count, b);
    s = sequence_of(p, b);
    return s.key_from < s.key_to ? gradient_row(p, &s, s.key_to) : 0;
}

/* check_gradients_apart is check_call_apart for gradients, which read what a call has written. */
OWN_FRAME static attn_status check_gradients_apart(const attn_params *p, const attn_gradients *g,
                                                   const area *memory, text *why)
{
    const call_axes x = axes_in_use(p), of_gradients = gradient_axes(p, x);
    array_set sets[] = {
        { gradient_fields, COUNT_OF(gradient_fields), g, &of_gradients, .written = OUTPUT_RESULT },
        { call_fields, COUNT_OF(call_fields), p, &x, .read = OUTPUT_RESULT },
    };
    const attn_sum_axes bias = bias_axes(p, &g->dbias), slopes = slope_axes(p, g->dslopes);
    const area sums[] = {
        area_of("dbias", bias.data, 4, bias.count, bias.stride, sizeof(float), 1),
        area_of("dslopes", slopes.data, 4, slopes.count, slopes.stride, sizeof(float), 1),
    };
    attn_status status;
    int i;
    leave_out_unused(p, &sets[0]);
    sets[0].end_of_use = end_of_gradients;
    leave_out_unused(p, &sets[1]);
    status = check_written(sets, 2, memory, why);
    for (i = 0; i < COUNT_OF(sums) && !status; i++) {
        status = check_itself(&sums[i], why);
        status = status ? status : check_pair(memory, &sums[i], why);
        status = status ? status : check_written(sets, 2, &sums[i], why);
    }
    return status ? status : check_pair(&sums[0], &sums[1], why);
}

/* src/backward/plan.c - the plan of the gradients: items and workspace.
 *
 *     | alignment | backward | m, r, delta, terms of sinks: of all rows | slot 0 | slot 1 | ...
 *
 * Row tiles go with key tiles; `panel` row tiles, up to a chunk of 1024 rows, stay packed while the
 * keys pass by.
 */

/* Keys of a pair tile. A panel of a whole chunk of rows, or of more than PANEL_NEAR bytes, passes by
 * from beyond L2 for each tile of keys: with 32 keys and 64 rows that took 7 % of the time with heads of
 * 64, 22 with 128 and 256 (Intel family 6 model 167). With another panel S and dP together keep to 16
 * to 24 KiB, and fewer pairs beyond a diagonal are computed. */
#define PAIR_KEYS 128
#define PAIR_FLOATS 3072
#define PANEL_NEAR ((int64_t)2 << 20)
/* dK and dV take the rows of some tiles at once: with only 24 rows between the load and the store
 * of their sums, that product takes a fifth longer. */
#define GROUP_ROWS 96
#define MOST_GROUP 8

/* A grad_tile is a tile of rows of one head. */
typedef struct grad_tile {
    tile t;          /* It comes first, as the functions of tiles fill it in. */
    float *dout_t;   /* dout_t is [head_dim_v][rows]. */
    float *q, *dout; /* Both are [rows][pitch]. */
    /* dq is [head_dim][rows] of a chunk of keys, and dq_total has those before. */
    float *dq, *dq_total;
    float *m, *r, *delta;   /* They are [rows], those of attn_row_stats. */
    float *sum, *sum_total; /* Both are [rows], for a sum over keys, and divided as dq is. */
    /* Nonzero means that something has entered dq or sum since they last were +0. */
    int entered;
} grad_tile;

typedef struct layout {
    int want;
    int gemms;           /* gemms is 5 or 7, and 5 on the naive path. */
    int panel;           /* panel counts the row tiles that are packed at once. */
    int group;           /* group counts the row tiles that enter dK and dV at once. */
    int64_t pair_floats; /* pair_floats is the size of a pair tile. */
    /* dq_floats is the size of the sums of a row tile, in whole cache lines. */
    int64_t dq_floats;
    /* An item that takes a part of the rows, or of the keys, takes this number of them. */
    int item_rows, item_keys;
    int64_t max_keys; /* A sweep adds dK and dV for at most this number of keys. */
    /* Nonzero means that dBias is stored beside dQ, as nothing is summed. */
    int bias_beside;
    int64_t row_tile_bytes;
} layout;

/* m, r, delta and terms of sinks. */
enum { ROW_ARRAYS = 4 };

typedef struct backward {
    call c; /* It comes first, as items get a pointer to it. */
    attn_gradient_call grads;
    layout lay;
    float *m, *r, *delta, *sink_terms; /* They are indexed by state_row. */
} backward;

/* A row_group is row tiles that enter dK and dV together. */
typedef struct row_group {
    float *s, *dp; /* Each has a pair tile for each row tile. */
    int count;
    attn_term dk[MOST_GROUP], dv[MOST_GROUP];
} row_group;

/* A desk stands at the start of a worker's slot. */
typedef struct desk {
    const backward *back;
    const attn_gradients *g;
    const problem *pr;
    const plan *pl;
    const layout *lay;
    const attn_kernels *kernels;
    int redo; /* Nonzero leaves dead pairs out of every product by selection. */
    int want;
    float *s, *dp; /* They are those of the pair tile at work. */
    float *tanh, *natural, *x;
    key_tile keys;    /* keys holds K and V of a tile of keys, [keys][pitch]. */
    float *part[2];   /* part is what a chunk of rows adds to dK and dV of these keys. */
    float *total[2];  /* total is dK and dV, before scale, from key total_from on. */
    float *matrix[2]; /* The naive path has P and dS of a head here. */
    int64_t total_from;
    float *ones;
    float *packed_o;
    const attn_sum_axes *axes; /* axes are those of the sum that is wanted. */
    sequence seq;
    /* kv_head is that of the keys, and head that of the rows in the panel. */
    int64_t kv_head, head;
    int finite;     /* Nonzero means that all results so far are finite. */
    int row_tiles;  /* row_tiles counts those in use. */
    char *row_tile; /* The row tiles of the panel begin here. */
    tile blank;     /* blank is a row tile without rows: what all of them share. */
    row_group group;
} desk;

static const backward *backward_of(const call *c)
{
    return (const backward *)(const void *)c;
}

/* ------------------------------------------------------------------------------------------------
 * Memory of a worker
 * --------------------------------------------------------------------------------------------- */

/* A memory_part is an array of a desk or a grad_tile: where its pointer is in there, and its
 * size. */
typedef struct memory_part {
    size_t pointer;
    int64_t count;
    size_t bytes_each;
} memory_part;

#define PART(owner, member, count)                                                                 \
    {                                                                                              \
        offsetof(owner, member), count, sizeof *((owner *)0)->member                               \
    }

/* lay_parts puts the arrays one after the other behind their owner, sets its pointers, and returns
 * the bytes of all. Without an owner it only counts them. */
static int64_t lay_parts(const memory_part *parts, int n, size_t owner_bytes, char *owner)
{
    int64_t at = aligned((int64_t)owner_bytes);
    int i;
    for (i = 0; i < n; i++) {
        const int64_t offset = place(&at, parts[i].count, parts[i].bytes_each);
        char *array = owner ? owner + offset : NULL;
        if (owner)
            memcpy(owner + parts[i].pointer, &array, sizeof array);
    }
    return at;
}

OWN_FRAME static int64_t lay_grad_tile(const problem *pr, const layout *lay, const plan *pl,
                                       grad_tile *row)
{
    const int64_t rows = pl->rows, dim = pr->p.head_dim, dim_v = pr->p.head_dim_v;
    const memory_part parts[] = {
        PART(grad_tile, t.lanes, rows),
        PART(grad_tile, t.qt, times(rows, dim)),
        PART(grad_tile, dout_t, times(rows, dim_v)),
        PART(grad_tile, q, times(rows, pl->pitch[KEYS])),
        PART(grad_tile, dout, times(rows, pl->pitch[VALUES])),
        PART(grad_tile, dq, lay->dq_floats),
        PART(grad_tile, dq_total, lay->dq_floats),
        PART(grad_tile, m, rows),
        PART(grad_tile, r, rows),
        PART(grad_tile, delta, rows),
        PART(grad_tile, sum, rows),
        PART(grad_tile, sum_total, rows),
    };
    return lay_parts(parts, COUNT_OF(parts), sizeof *row, (char *)row);
}

OWN_FRAME static int64_t lay_desk(const problem *pr, const layout *lay, const plan *pl, char *slot)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pl->rows, keys = pl->keys, pairs = lay->pair_floats;
    const int64_t pitch = pl->pitch[KEYS], pitch_v = pl->pitch[VALUES];
    const int64_t tiles = pl->impl == ATTN_IMPL_NAIVE ? ceil_div(pr->max_q_len, rows) : 0;
    const int64_t matrix_floats = times(times(tiles, rows), pr->max_kv_len);
    const memory_part parts[] = {
        PART(desk, group.s, lay->group * pairs),
        PART(desk, group.dp, lay->group * pairs),
        PART(desk, tanh, p->softcap > 0 ? pairs : 0),
        PART(desk, natural, p->score ? pairs : 0),
        PART(desk, x, pairs),
        PART(desk, blank.lane_values, 3 * rows),
        PART(desk, blank.lane_ints, 2 * rows),
        PART(desk, blank.alive, rows * ALIVE_WORDS(keys)),
        PART(desk, keys.copy[KEYS], times(keys, pitch)),
        PART(desk, part[KEYS], times(keys, pitch)),
        PART(desk, total[KEYS], times(lay->max_keys, pitch)),
        PART(desk, matrix[KEYS], matrix_floats),
        PART(desk, keys.copy[VALUES], times(keys, pitch_v)),
        PART(desk, part[VALUES], times(keys, pitch_v)),
        PART(desk, total[VALUES], times(lay->max_keys, pitch_v)),
        PART(desk, matrix[VALUES], matrix_floats),
        PART(desk, blank.stage, times(rows, max64(p->head_dim, p->head_dim_v))),
        PART(desk, blank.row_in, rows),
        PART(desk, blank.row_out, rows),
        PART(desk, ones, rows),
        PART(desk, packed_o, times(rows, p->head_dim_v)),
        PART(desk, row_tile, times(lay->panel, lay->row_tile_bytes)),
    };
    return lay_parts(parts, COUNT_OF(parts), sizeof(desk), slot);
}

/* ------------------------------------------------------------------------------------------------
 * Plan
 * --------------------------------------------------------------------------------------------- */

/* items_by counts the items of a list that takes `count` rows or keys of every (batch entry, head)
 * by `each`. */
static int64_t items_by(const attn_params *p, int64_t heads, int64_t count, int64_t each)
{
    return times(times(p->batch, heads), ceil_div(count, each));
}

/* choose_gemms takes five products if they let the workers end first: the last round of items may
 * not be full, while parts of rows and keys always divide evenly. */
static int choose_gemms(const problem *pr, const attn_gradients *g)
{
    const int64_t workers = pr->p.num_workers;
    const int64_t items = times(pr->p.batch, pr->p.num_heads_kv);
    if (g->gemms)
        return g->gemms;
    return times(5 * ceil_div(items, workers), workers) <= times(7, items) ? 5 : 7;
}

/* divide halves *each, a multiple of `unit`, until there are four items for each worker. */
static void divide(const problem *pr, int64_t heads, int64_t count, int unit, int *each)
{
    const int64_t least = 4 * (int64_t)pr->p.num_workers;
    while (*each > unit && items_by(&pr->p, heads, count, *each) < least)
        *each = (*each / unit + 1) / 2 * unit;
}

/* usual_pair_keys leaves 4 items of keys to each worker, if need be by smaller tiles. */
static int usual_pair_keys(const problem *pr, const layout *lay, const plan *pl)
{
    const attn_params *p = &pr->p;
    const int64_t floats = plus(times(3, p->head_dim), times(2, p->head_dim_v));
    const int64_t panel = times(times(pr->max_q_len, floats), sizeof(float));
    const int64_t least = lay->gemms == 5 ? 0 : 4 * (int64_t)p->num_workers;
    const int in_l2 = pr->max_q_len < ATTN_CHUNK && panel <= PANEL_NEAR;
    int keys = PAIR_KEYS;
    while (keys * pl->rows > PAIR_FLOATS && keys > ATTN_BLOCK &&
           (in_l2 || items_by(p, p->num_heads_kv, pr->max_kv_len, keys) < least))
        keys /= 2;
    return keys;
}

static void plan_sizes(const problem *pr, const attn_gradients *g, const attn_params *asked,
                       layout *lay, plan *pl)
{
    const attn_params *p = &pr->p;
    const int naive = pl->impl == ATTN_IMPL_NAIVE;
    const attn_sum_axes bias = bias_axes(p, &g->dbias);
    int64_t most;
    lay->want = wanted(g);
    lay->gemms = naive ? 5 : choose_gemms(pr, g);
    pl->rows = p->kernels->rows;
    pl->keys = asked->tile_keys ? asked->tile_keys : usual_pair_keys(pr, lay, pl);
    most = min64(naive ? pl->rows : ATTN_CHUNK, max64(pr->max_q_len, 1));
    lay->panel = (int)ceil_div(most, pl->rows);
    lay->group = (int)max64(1, min64(MOST_GROUP, GROUP_ROWS / pl->rows));
    lay->pair_floats = (int64_t)pl->rows * pl->keys;
    lay->dq_floats = whole_lines(times(pl->rows, p->head_dim));
    lay->item_rows = lay->panel * pl->rows;
    lay->item_keys = 4 * pl->keys;
    divide(pr, p->num_heads_q, pr->max_q_len, pl->rows, &lay->item_rows);
    divide(pr, p->num_heads_kv, pr->max_kv_len, pl->keys, &lay->item_keys);
    lay->max_keys =
        lay->gemms == 5 || naive ? pr->max_kv_len : min64(lay->item_keys, pr->max_kv_len);
    lay->bias_beside = (lay->want & WANT_BIAS) && keeps_all(&bias) && pr->max_q_len > 0 &&
                       (lay->want & (lay->gemms == 5 ? WANT_DQ | WANT_KEYS : WANT_DQ));
    pl->pitch[KEYS] = pitch_of(p->head_dim);
    pl->pitch[VALUES] = pitch_of(p->head_dim_v);
}

/* most_items counts the items of the longest list. */
static int64_t most_items(const problem *pr, const layout *lay)
{
    const attn_params *p = &pr->p;
    int64_t most = times(p->batch, p->num_heads_q);
    most = max64(most, items_by(p, p->num_heads_q, pr->max_q_len, lay->item_rows));
    return max64(most, items_by(p, p->num_heads_kv, pr->max_kv_len, lay->item_keys));
}

/* plan_backward fills in *lay and what items and tiles need of a plan. */
static void plan_backward(const problem *pr, const attn_gradients *g, const attn_params *asked,
                          layout *lay, plan *pl)
{
    memset(pl, 0, sizeof *pl);
    memset(lay, 0, sizeof *lay);
    pl->impl = pr->impl;
    pl->kernels = pr->p.kernels;
    pl->modified = has_modifier(&pr->p);
    plan_masks(&pr->p, pl);
    plan_sizes(pr, g, asked, lay, pl);
    lay->row_tile_bytes = lay_grad_tile(pr, lay, pl, NULL);
    pl->slot_bytes = lay_desk(pr, lay, pl, NULL);
    pl->shared_bytes = times(ROW_ARRAYS, aligned(times(all_rows(&pr->p), sizeof(float))));
    pl->workers = (int)max64(1, min64(pr->p.num_workers, most_items(pr, lay)));
}

/* src/backward/pairs.c - a pair tile: p and dS of the rows of a tile and some of the open keys.
 *
 * Pairs that do not count are ATTN_DEAD in both.
 */

static const float *open_rows_of(const desk *w, int which, int64_t j0)
{
    return w->keys.copy[which] + (j0 - w->keys.j0) * w->pl->pitch[which];
}

/* multiply_rows computes s = packed rows of a tile times open rows j0..j0+n-1 of K (the score) or
 * of V. */
static void multiply_rows(const desk *w, int which, float *s, const float *rows, int64_t j0, int n,
                          attn_lanes lanes)
{
    const attn_product p = { .to = s,
                             .by = rows,
                             .kv = open_rows_of(w, which, j0),
                             .stride = (ptrdiff_t)w->pl->pitch[which],
                             .n = n,
                             .dim = which == KEYS ? w->pr->p.head_dim : w->pr->p.head_dim_v,
                             .factor = which == KEYS ? w->pr->factor : 1.0f,
                             .lanes = lanes };
    w->kernels->qk(&p);
}

/* pair_logits computes logits in w->s, and on the way tanh of softcap and what the score callback
 * is given. `visible` comes from tile_class and is not EMPTY. */
static void pair_logits(const desk *w, tile *t, int64_t j0, int n, int visible, attn_lanes lanes)
{
    const attn_params *p = &w->pr->p;
    const size_t bytes = (size_t)(n * w->pl->rows) * sizeof(float);
    multiply_rows(w, KEYS, w->s, t->qt, j0, n, lanes);
    if (p->softcap > 0) {
        memcpy(w->tanh, w->s, bytes);
        w->kernels->softcap(w->tanh, n, 1.0f, w->pr->icap2);
    }
    change_logits(t, w->s, j0, n, ATTN_LOGITS_BIAS);
    hide_dead(t, w->s, j0, n, visible);
    if (p->score) {
        memcpy(w->natural, w->s, bytes);
        apply_score(t, w->s, j0, n);
    }
}

/* mark_kept sets w->x to 1 for pairs that dropout keeps, and to +0 for the others. Without dropout it
 * does nothing. */
static void mark_kept(const desk *w, const grad_tile *row, int64_t j0, int n)
{
    int k;
    if (!w->pr->drop_below)
        return;
    for (k = 0; k < n * w->pl->rows; k++)
        w->x[k] = 1.0f;
    drop_keys(&row->t, w->x, j0, n);
}

/* scale_kept multiplies x of kept pairs by dropout's factor; the others become `dropped`. Without
 * dropout it does nothing. */
static void scale_kept(const desk *w, float *x, int n, float dropped)
{
    const float *const kept = w->x, factor = w->pr->keep_factor;
    const int count = w->pr->drop_below ? n * w->pl->rows : 0;
    int k;
    for (k = 0; k < count; k++) {
        const float scaled = x[k] * factor;
        x[k] = kept[k] > 0 ? scaled : dropped;
    }
}

/* pair_dp computes dP = dout V^T in w->dp; a dropped key has +0. */
static void pair_dp(const desk *w, const grad_tile *row, int64_t j0, int n, attn_lanes lanes)
{
    multiply_rows(w, VALUES, w->dp, row->dout_t, j0, n, lanes);
    mark_kept(w, row, j0, n);
    scale_kept(w, w->dp, n, 0.0f);
}

/* pass_score passes dS through the derivative of the score callback. */
static void pass_score(const desk *w, const tile *t, int64_t j0, int n)
{
    const attn_params *p = &w->pr->p;
    int j, r;
    for (r = 0; r < w->pl->rows; r++)
        for (j = 0; j < n && t->lanes[r].used; j++) {
            const int k = j * w->pl->rows + r;
            const attn_pair pair = pair_of(&t->s, &t->lanes[r], j0 + j);
            const float natural = w->natural[k] * LN2;
            if (!is_dead(w->s[k]))
                w->dp[k] = w->dp[k] * w->g->score_derivative(p->callback_user, &pair, natural);
        }
}

/* The LSE alone tells a probability with the error of its own last place, so that 1 has to be the
 * most; m is at most ATTN_THRESHOLD below a logit, and only numbers that no call wrote exceed 127. */
static float most_exponent(const attn_params *p)
{
    return p->stats.data ? 127.0f : 0.0f;
}

/* pair_gradients returns the lanes that see some of the keys. For these lanes p is then in w->s,
 * and dS, as dbias takes it, in w->dp. */
static attn_lanes pair_gradients(const desk *w, grad_tile *row, int64_t j0, int n)
{
    tile *t = &row->t;
    const int visible = tile_class(t, j0, n);
    const attn_row_stats of = { row->m, row->r, most_exponent(&w->pr->p), row->delta };
    attn_lanes lanes = { 0, 0 }, all;
    if (visible == ATTN_TILE_EMPTY)
        return lanes;
    lanes = lanes_in_range(t, j0, n);
    all.begin = 0;
    all.end = w->pl->rows;
    pair_logits(w, t, j0, n, visible, t->pl->modified ? all : lanes);
    pair_dp(w, row, j0, n, lanes);
    w->kernels->gradient(w->s, w->dp, n, &of);
    if (w->pr->p.score)
        pass_score(w, t, j0, n);
    return lanes;
}

/* A product finds dead pairs by -0, so mark_live makes a live dS of -0 +0. */
static void mark_live(const desk *w, int n)
{
    int k;
    for (k = 0; k < n * w->pl->rows; k++)
        if (is_dead(w->dp[k]) && !is_dead(w->s[k]))
            w->dp[k] = 0.0f;
}

/* finish_pairs takes the last steps before the products. */
static void finish_pairs(const desk *w, int n)
{
    if (w->pr->p.softcap > 0)
        w->kernels->softcap_gradient(w->dp, w->tanh, w->s, n);
    if (w->redo)
        mark_live(w, n);
    scale_kept(w, w->s, n, ATTN_DEAD);
}

/* src/backward/panel.c - the panel: rows of one head, and keys, as the products of a worker read them. */

static desk *open_desk(const call *c, char *slot)
{
    const backward *back = backward_of(c);
    desk *w = (desk *)(void *)slot;
    int r;
    memset(w, 0, sizeof *w);
    lay_desk(&c->pr, &back->lay, &c->pl, slot);
    w->back = back;
    w->g = &back->grads.g;
    w->pr = w->blank.pr = &c->pr;
    w->pl = w->blank.pl = &c->pl;
    w->lay = &back->lay;
    w->kernels = c->pl.kernels;
    w->redo = c->pr.p.force_redo;
    w->s = w->group.s;
    w->dp = w->group.dp;
    w->blank.keys = &w->keys;
    w->blank.x_tile = w->x;
    for (r = 0; r < w->pl->rows; r++)
        w->ones[r] = 1.0f;
    return w;
}

/* grad_tile_at tells where row tile number g of the panel is. */
static grad_tile *grad_tile_at(const desk *w, int g)
{
    return (grad_tile *)(void *)(w->row_tile + g * w->lay->row_tile_bytes);
}

/* open_grad_tile begins a row tile without rows. */
static grad_tile *open_grad_tile(const desk *w, int g)
{
    grad_tile *row = grad_tile_at(w, g);
    row->t = w->blank;
    row->t.s = w->seq;
    row->t.kv_head = w->kv_head;
    row->entered = 0;
    lay_grad_tile(w->pr, w->lay, w->pl, row);
    return row;
}

/* load_rows puts the used lanes' rows of `from`, an output or input of `dim` elements, at `to` as
 * f32, `pitch` floats apart and filled up with +0. The rows of other lanes are +0. */
static void load_rows(const tile *t, const attn_tensor *from, float *to, int64_t pitch, int64_t dim)
{
    int r;
    for (r = 0; r < t->pl->rows; r++, to += pitch) {
        const lane *l = &t->lanes[r];
        int64_t n = 0;
        if (l->used) {
            n = dim;
            load_run(t->pl->kernels, from->dtype, to, from->data,
                     ROW_AT(*from, &t->s, l->head, t->s.q_row + l->i), n);
        }
        memset(to + n, 0, (size_t)(pitch - n) * sizeof *to);
    }
}

/* turn_rows makes to[d][row] from rows `pitch` floats apart. */
static void turn_rows(const tile *t, float *to, const float *from, int64_t pitch, int64_t dim)
{
    int r;
    for (r = 0; r < t->pl->rows; r++)
        t->row_in[r] = from + r * pitch;
    t->pl->kernels->pack(to, t->row_in, dim);
}

/* pack_rows packs the rows of a head from `first` on, at most up to row `end`, as row tile g. */
static grad_tile *pack_rows(const desk *w, int g, int64_t first, int64_t end)
{
    const attn_params *p = &w->pr->p;
    const int64_t pitch = w->pl->pitch[KEYS], pitch_v = w->pl->pitch[VALUES];
    grad_tile *row = open_grad_tile(w, g);
    tile *t = &row->t;
    const row_choice choice = { .head0 = w->head, .heads = 1, .first = first, .count = end };
    int r;
    set_rows(t, &choice);
    for (r = 0; r < t->pl->rows; r++) {
        float *to = row->q + r * pitch;
        memcpy(to, t->row_in[r], (size_t)p->head_dim * sizeof *to);
        memset(to + p->head_dim, 0, (size_t)(pitch - p->head_dim) * sizeof *to);
    }
    load_rows(t, &w->g->dout, row->dout, pitch_v, p->head_dim_v);
    turn_rows(t, row->dout_t, row->dout, pitch_v, p->head_dim_v);
    return row;
}

/* load_statistics loads what the first list left of each row. */
static void load_statistics(const desk *w, grad_tile *row)
{
    const tile *t = &row->t;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        const int64_t at = l->used ? state_row(&w->pr->p, &t->s, l->head, l->i) : 0;
        row->m[r] = l->used ? w->back->m[at] : 0.0f;
        row->r[r] = l->used ? w->back->r[at] : 0.0f;
        row->delta[r] = l->used ? w->back->delta[at] : 0.0f;
    }
}

static void clear(float *x, int64_t n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

/* open_panel packs rows i0 to i1-1 of w->head, at most a panel of them, and sets their sums to
 * +0. */
static void open_panel(desk *w, int64_t i0, int64_t i1)
{
    for (w->row_tiles = 0; i0 < i1; i0 += w->pl->rows) {
        grad_tile *row = pack_rows(w, w->row_tiles++, i0, i1);
        load_statistics(w, row);
        if (w->want & WANT_DQ) {
            clear(row->dq, w->lay->dq_floats);
            clear(row->dq_total, w->lay->dq_floats);
        }
        clear(row->sum, whole_lines(w->pl->rows));
        clear(row->sum_total, whole_lines(w->pl->rows));
    }
}

/* load_keys loads keys j0 to j0+n-1 of K and V as f32 rows; the panel is open. */
static void load_keys(const desk *w, int64_t j0, int n)
{
    copy_key_tile(&grad_tile_at(w, 0)->t, j0, n);
}

/* src/backward/sums.c - dBias and dSlopes: dS, or dS times the distance, added over axes.
 *
 * The sums go over keys in chunks of 1024 by n, over rows in chunks of 1024 by i, then on over heads
 * and batch entries.
 */

static float *element_of(const desk *w, int64_t i, int64_t j)
{
    const attn_sum_axes *a = w->axes;
    return a->data + w->seq.b * a->stride[ATTN_AXIS_BATCH] + w->head * a->stride[ATTN_AXIS_HEAD] +
           (i - w->pr->p.part.row_begin) * a->stride[ATTN_AXIS_ROW] +
           (w->seq.column + j) * a->stride[ATTN_AXIS_KEY];
}

/* d logit / d slope is minus the distance. */
static void take_distances(const desk *w, const tile *t, int64_t j0, int n, attn_lanes lanes)
{
    int j, r;
    for (r = lanes.begin; r < lanes.end; r++)
        for (j = 0; j < n; j++) {
            const int64_t distance = t->lanes[r].pos - (j0 + j);
            const float x = (float)(distance < 0 ? -distance : distance);
            float *ds = &w->dp[j * w->pl->rows + r];
            *ds = is_dead(*ds) ? *ds : -x * *ds;
        }
}

/* add_to_elements adds dS to the elements of its pairs. */
static void add_to_elements(const desk *w, const tile *t, int64_t j0, int n, attn_lanes lanes)
{
    const ptrdiff_t step = w->axes->stride[ATTN_AXIS_KEY];
    int j, r;
    for (r = lanes.begin; r < lanes.end; r++) {
        float *to = element_of(w, t->lanes[r].i, j0);
        for (j = 0; j < n; j++, to += step)
            *to = *to + w->dp[j * w->pl->rows + r];
    }
}

/* add_to_keys adds dS to the sums of its keys, in part[KEYS]. */
static void add_to_keys(const desk *w, int64_t j0, int n, attn_lanes lanes)
{
    float *sums = w->part[KEYS] + (j0 - w->keys.j0);
    int j, r;
    for (j = 0; j < n; j++) {
        float sum = sums[j];
        for (r = lanes.begin; r < lanes.end; r++)
            sum = sum + w->dp[j * w->pl->rows + r];
        sums[j] = sum;
    }
}

/* add_to_rows adds dS to the sums of its rows. */
static void add_to_rows(const desk *w, grad_tile *row, int n, attn_lanes lanes)
{
    const float *ds = w->dp;
    int j, r;
    for (j = 0; j < n; j++, ds += w->pl->rows)
        for (r = lanes.begin; r < lanes.end; r++)
            row->sum[r] = row->sum[r] + ds[r];
}

static void add_to_sums(const desk *w, grad_tile *row, int64_t j0, int n, attn_lanes lanes)
{
    const attn_sum_axes *a = w->axes;
    if (w->want & WANT_SLOPES)
        take_distances(w, &row->t, j0, n, lanes);
    if (!a->kept[ATTN_AXIS_KEY])
        add_to_rows(w, row, n, lanes);
    else if (a->kept[ATTN_AXIS_ROW])
        add_to_elements(w, &row->t, j0, n, lanes);
    else
        add_to_keys(w, j0, n, lanes);
}

/* write_key_sums writes what a chunk of rows adds to keys j0 to j0+n-1. */
static void write_key_sums(const desk *w, int64_t j0, int n)
{
    int j;
    for (j = 0; j < n && w->axes->kept[ATTN_AXIS_KEY] && !w->axes->kept[ATTN_AXIS_ROW]; j++) {
        float *to = element_of(w, 0, j0 + j);
        *to = *to + w->part[KEYS][j];
    }
}

/* write_row_sums writes the rows' sums over all keys. */
static void write_row_sums(const desk *w)
{
    float chunk = 0.0f;
    int g, r;
    if (w->axes->kept[ATTN_AXIS_KEY])
        return;
    for (g = 0; g < w->row_tiles; g++) {
        const grad_tile *row = grad_tile_at(w, g);
        for (r = 0; r < w->pl->rows && row->t.lanes[r].used; r++) {
            float *to = w->axes->kept[ATTN_AXIS_ROW] ? element_of(w, row->t.lanes[r].i, 0) : &chunk;
            *to = *to + row->sum_total[r];
        }
    }
    if (!w->axes->kept[ATTN_AXIS_ROW]) {
        float *to = element_of(w, 0, 0);
        *to = *to + chunk;
    }
}

/* store_elements visits the elements of an item, to set them to +0 and, at the end, to make NaN
 * canonical. */
static void store_elements(const attn_sum_axes *a, const int64_t from[4], const int64_t to[4],
                           int first)
{
    int64_t b, h, i, j;
    for (b = from[0]; b < (a->kept[0] ? to[0] : 1); b++)
        for (h = from[1]; h < (a->kept[1] ? to[1] : 1); h++)
            for (i = from[2]; i < (a->kept[2] ? to[2] : 1); i++)
                for (j = from[3]; j < (a->kept[3] ? to[3] : 1); j++) {
                    float *x = a->data + b * a->stride[0] + h * a->stride[1] + i * a->stride[2] +
                               j * a->stride[3];
                    *x = first ? 0.0f : is_nan(*x) ? float_of(CANONICAL_NAN) : *x;
                }
}

/* src/backward/sweep.c - the sweep: all keys of a range pass by the panel, tile by tile. */

/* add_to_dq adds to dQ of a row tile what the open keys j0 to j0+n-1 have for it. */
static void add_to_dq(const desk *w, float *to, int64_t j0, int n, attn_lanes lanes)
{
    const attn_product dq = { .to = to,
                              .by = w->dp,
                              .kv = open_rows_of(w, KEYS, j0),
                              .stride = (ptrdiff_t)w->pl->pitch[KEYS],
                              .n = n,
                              .dim = w->pr->p.head_dim,
                              .lanes = lanes };
    if (w->redo)
        w->kernels->pv_select(&dq);
    else
        w->kernels->pv(&dq);
}

/* add_pairs adds the pairs of a row tile and keys j0 to j0+n-1 to the row's gradients. It returns
 * the lanes whose p and dS then are in w->s and w->dp. */
static attn_lanes add_pairs(desk *w, grad_tile *row, int64_t j0, int n)
{
    const attn_lanes lanes = pair_gradients(w, row, j0, n);
    if (lanes.begin == lanes.end)
        return lanes;
    row->entered = 1;
    if (w->want & WANT_SUMS)
        add_to_sums(w, row, j0, n, lanes);
    if (!(w->want & (WANT_DQ | WANT_KEYS)))
        return lanes;
    finish_pairs(w, n);
    if (w->want & WANT_DQ)
        add_to_dq(w, row->dq, j0, n, lanes);
    return lanes;
}

/* fill_dead makes pairs of keys outside begin to end-1 of a tile of n dead. */
static void fill_dead(const desk *w, float *x, int begin, int end, int n)
{
    const int rows = w->pl->rows;
    int k;
    for (k = 0; k < begin * rows; k++)
        x[k] = ATTN_DEAD;
    for (k = end * rows; k < n * rows; k++)
        x[k] = ATTN_DEAD;
}

/* add_grad_tile takes a row tile against the n open keys; what it has for dK and dV joins the
 * group. */
static void add_grad_tile(desk *w, grad_tile *row, int n)
{
    row_group *g = &w->group;
    const int64_t j0 = w->keys.j0;
    const int from = (int)min64(n, max64(0, row->t.lo - j0));
    const int to = (int)min64(n, max64(0, row->t.hi - j0));
    const int64_t at = g->count * w->lay->pair_floats;
    float *s = g->s + at, *dp = g->dp + at;
    attn_lanes lanes;
    attn_term term;
    if (from >= to)
        return;
    w->s = s + from * w->pl->rows;
    w->dp = dp + from * w->pl->rows;
    lanes = add_pairs(w, row, j0 + from, to - from);
    if (!(w->want & WANT_KEYS) || lanes.begin == lanes.end)
        return;
    fill_dead(w, s, from, to, n);
    fill_dead(w, dp, from, to, n);
    term.lanes = lanes;
    term.begin = from;
    term.end = to;
    term.x = dp;
    term.b = row->q;
    g->dk[g->count] = term;
    term.x = s;
    term.b = row->dout;
    g->dv[g->count++] = term;
}

/* add_terms adds `count` terms to dK or dV of n keys. */
static void add_terms(const desk *w, int which, float *to, const attn_term *term, int count, int n)
{
    const ptrdiff_t pitch = (ptrdiff_t)w->pl->pitch[which];
    const attn_outer f = { .to = to,
                           .stride = pitch,
                           .n = n,
                           .columns = which == KEYS ? w->pr->p.head_dim : w->pr->p.head_dim_v,
                           .term = term,
                           .count = count,
                           .b_stride = pitch };
    if (w->redo)
        w->kernels->outer_select(&f);
    else
        w->kernels->outer(&f);
}

static void add_group(const desk *w, int n)
{
    const row_group *g = &w->group;
    if (g->count && (w->want & WANT_DK))
        add_terms(w, KEYS, w->part[KEYS], g->dk, g->count, n);
    if (g->count && (w->want & WANT_DV))
        add_terms(w, VALUES, w->part[VALUES], g->dv, g->count, n);
}

/* flush adds x to total and sets it to +0. n is a multiple of 16, so it goes 16 at a time, which
 * compilers vectorise. */
static void flush(float *total, float *x, int64_t n)
{
    float sum[16], more[16];
    int64_t k;
    int i;
    for (k = 0; k < n; k += 16) {
        memcpy(sum, total + k, sizeof sum);
        memcpy(more, x + k, sizeof more);
        for (i = 0; i < 16; i++)
            sum[i] = sum[i] + more[i];
        memcpy(total + k, sum, sizeof sum);
    }
    clear(x, n);
}

/* end_chunk_of_keys ends a chunk of keys. */
static void end_chunk_of_keys(const desk *w)
{
    int g;
    for (g = 0; g < w->row_tiles; g++) {
        grad_tile *row = grad_tile_at(w, g);
        if (row->entered && (w->want & WANT_DQ))
            flush(row->dq_total, row->dq, w->lay->dq_floats);
        if (row->entered)
            flush(row->sum_total, row->sum, whole_lines(w->pl->rows));
        row->entered = 0;
    }
}

/* sweep_keys takes all row tiles of the panel against keys j0 to end-1. */
static void sweep_keys(desk *w, int64_t j0, int64_t end)
{
    const int n = (int)(end - j0);
    int i = 0, last, which;
    load_keys(w, j0, n);
    for (which = KEYS; which <= VALUES && (w->want & (WANT_KEYS | WANT_SUMS)); which++)
        clear(w->part[which], n * w->pl->pitch[which]);
    while (i < w->row_tiles) {
        w->group.count = 0;
        for (last = i + w->lay->group; i < last && i < w->row_tiles; i++)
            add_grad_tile(w, grad_tile_at(w, i), n);
        add_group(w, n);
    }
    for (which = KEYS; which <= VALUES && (w->want & WANT_KEYS); which++)
        flush(w->total[which] + (j0 - w->total_from) * w->pl->pitch[which], w->part[which],
              n * w->pl->pitch[which]);
    if (w->want & WANT_SUMS)
        write_key_sums(w, j0, n);
}

/* write_dq writes dQ of a row tile, scaled. */
static void write_dq(desk *w, grad_tile *row)
{
    const attn_params *p = &w->pr->p;
    w->finite &= w->kernels->finite(row->dq_total, w->pl->rows * p->head_dim);
    write_lanes(&row->t, &w->g->dq, p->head_dim, row->dq_total, w->ones, p->scale);
}

/* sweep_panel takes rows i0 to i1-1 of w->head, all of one chunk of rows, against those of keys
 * `from` to `to`-1 that they see. Tiles of keys end where n is a multiple of their size. */
static void sweep_panel(desk *w, int64_t i0, int64_t i1, int64_t from, int64_t to)
{
    const int64_t base = w->seq.key_base, keys = w->pl->keys;
    int64_t j = to, hi = from, end;
    int g;
    open_panel(w, i0, i1);
    for (g = 0; g < w->row_tiles; g++) {
        const tile *t = &grad_tile_at(w, g)->t;
        if (t->lo < t->hi) {
            j = min64(j, t->lo);
            hi = max64(hi, t->hi);
        }
    }
    hi = min64(hi, to);
    for (j = max64(j, from); j < hi; j = end) {
        end = min64(hi, ((base + j) / keys + 1) * keys - base);
        sweep_keys(w, j, end);
        if ((base + end) % ATTN_CHUNK == 0)
            end_chunk_of_keys(w);
    }
    end_chunk_of_keys(w);
    for (g = 0; g < w->row_tiles && (w->want & WANT_DQ); g++)
        write_dq(w, grad_tile_at(w, g));
    if (w->want & WANT_SUMS)
        write_row_sums(w);
}

/* sweep takes rows i0 to i1-1 of heads head0 to head1-1 against keys `from` to `to`-1. */
static void sweep(desk *w, int64_t head0, int64_t head1, int64_t i0, int64_t i1, int64_t from,
                  int64_t to)
{
    int64_t head, i, end;
    for (head = head0; head < head1; head++) {
        w->head = head;
        w->kv_head = head / w->pr->group;
        for (i = i0; i < i1; i = end) {
            const int64_t chunk_end = (i / ATTN_CHUNK + 1) * ATTN_CHUNK;
            end = min64(min64(i1, chunk_end), i + (int64_t)w->lay->panel * w->pl->rows);
            sweep_panel(w, i, end, from, to);
        }
    }
}

/* src/backward/items.c - items of the gradients: by batch and kv head; by rows; by keys; sums.
 *
 * A result that is not finite is computed again with dead pairs left out by selection: a NaN or
 * infinity that a mask hides may have met a factor of +0.
 */

/* A region is heads, rows and keys of a sequence. */
typedef struct region {
    int64_t head0, head1, i0, i1, from, to;
    int64_t bias_end; /* bias_end lies behind its rows of dBias, which may not all be in use. */
} region;

/* write_row writes a row of dK or dV, fl(total * factor), with no -0 and NaN canonical. */
static void write_row(const desk *w, const attn_output *out, int64_t dim, float *total,
                      float factor, int64_t j)
{
    float x[16];
    int64_t d;
    int i;
    for (d = 0; d < dim; d += 16) { /* The rest of the last line is +0. */
        memcpy(x, total + d, sizeof x);
        for (i = 0; i < 16; i++) {
            x[i] = x[i] * factor;
            x[i] = x[i] + 0.0f;
            x[i] = is_nan(x[i]) ? float_of(CANONICAL_NAN) : x[i];
        }
        memcpy(total + d, x, sizeof x);
    }
    store_run(w->kernels, out->dtype, out->data,
              ROW_AT(*out, &w->seq, w->kv_head, gradient_row(&w->pr->p, &w->seq, j)), total, dim);
}

/* write_keys writes dK and dV of keys `from` to `to`-1. */
static void write_keys(desk *w, int64_t from, int64_t to)
{
    const attn_params *p = &w->pr->p;
    const attn_gradients *g = w->g;
    int which;
    int64_t j;
    for (which = KEYS; which <= VALUES; which++)
        w->finite &= w->kernels->finite(w->total[which], (to - from) * w->pl->pitch[which]);
    for (j = from; j < to; j++) {
        if (w->want & WANT_DK)
            write_row(w, &g->dk, p->head_dim, w->total[KEYS] + (j - from) * w->pl->pitch[KEYS],
                      p->scale, j);
        if (w->want & WANT_DV)
            write_row(w, &g->dv, p->head_dim_v,
                      w->total[VALUES] + (j - from) * w->pl->pitch[VALUES], 1.0f, j);
    }
}

/* store_bias visits dBias of a part, where nothing is summed: it sets +0 first, and makes NaN
 * canonical at the end. */
static void store_bias(const desk *w, const region *a, int first)
{
    const attn_sum_axes *bias = w->axes;
    const attn_part *part = &w->pr->p.part;
    int64_t from[4] = { w->seq.b, a->head0, max64(0, a->i0 - part->row_begin), 0 };
    int64_t to[4] = { w->seq.b + 1, a->head1,
                      min64(a->bias_end - part->row_begin, bias->count[ATTN_AXIS_ROW]),
                      bias->count[ATTN_AXIS_KEY] };
    narrow_columns(part, &from[3], &to[3]);
    store_elements(bias, from, to, first);
}

/* take_part computes the gradients `want` of a part. */
static void take_part(desk *w, int want, const region *a)
{
    int which, again = 1;
    w->want = want;
    w->axes = &w->back->grads.bias;
    w->total_from = a->from;
    while (again) {
        w->finite = 1;
        for (which = KEYS; which <= VALUES && (want & WANT_KEYS); which++)
            clear(w->total[which], (a->to - a->from) * w->pl->pitch[which]);
        if (want & WANT_BIAS)
            store_bias(w, a, 1);
        sweep(w, a->head0, a->head1, a->i0, a->i1, a->from, a->to);
        if (want & WANT_BIAS)
            store_bias(w, a, 0);
        if (want & WANT_KEYS)
            write_keys(w, a->from, a->to);
        again = !w->finite && !w->redo;
        w->redo = 1;
    }
}

static int beside(const layout *lay)
{
    return lay->bias_beside ? WANT_BIAS : 0;
}

/* all_of gives all rows and keys of the open sequence, and these heads. */
static region all_of(const desk *w, int64_t head0, int64_t heads)
{
    const region a = { .head0 = head0,
                       .head1 = head0 + heads,
                       .i0 = w->seq.row_from,
                       .i1 = w->seq.row_to,
                       .from = w->seq.key_from,
                       .to = w->seq.key_to,
                       .bias_end = INT64_MAX };
    return a;
}

/* head_item takes all of a kv head, in five products. */
static void head_item(const call *c, char *slot, int64_t index)
{
    const problem *pr = &c->pr;
    desk *w = open_desk(c, slot);
    region a;
    w->seq = sequence_of(&pr->p, index / pr->p.num_heads_kv);
    a = all_of(w, index % pr->p.num_heads_kv * pr->group, pr->group);
    take_part(w, (w->lay->want & (WANT_DQ | WANT_KEYS)) | beside(w->lay), &a);
}

/* rows_item takes dQ of some rows of a head, in three products. Heavy causal parts come first. */
static void rows_item(const call *c, char *slot, int64_t index)
{
    const problem *pr = &c->pr;
    const layout *lay = &backward_of(c)->lay;
    const int64_t parts = ceil_div(pr->max_q_len, lay->item_rows);
    const int64_t at = parts - 1 - index % parts;
    desk *w = open_desk(c, slot);
    region a;
    index /= parts;
    w->seq = sequence_of(&pr->p, index / pr->p.num_heads_q);
    a = all_of(w, index % pr->p.num_heads_q, 1);
    a.i0 += at * lay->item_rows;
    a.i1 = min64(a.i0 + lay->item_rows, a.i1);
    a.bias_end = at == parts - 1 ? INT64_MAX : a.i0 + lay->item_rows;
    take_part(w, WANT_DQ | beside(lay), &a);
}

/* keys_item takes dK and dV of some keys of a head, in four products. */
static void keys_item(const call *c, char *slot, int64_t index)
{
    const problem *pr = &c->pr;
    const layout *lay = &backward_of(c)->lay;
    const int64_t parts = ceil_div(pr->max_kv_len, lay->item_keys);
    const int64_t at = index % parts;
    desk *w = open_desk(c, slot);
    region a;
    index /= parts;
    w->seq = sequence_of(&pr->p, index / pr->p.num_heads_kv);
    w->kv_head = index % pr->p.num_heads_kv;
    a = all_of(w, w->kv_head * pr->group, pr->group);
    a.from += at * lay->item_keys;
    a.to = min64(a.from + lay->item_keys, a.to);
    if (a.from < a.to)
        take_part(w, lay->want & WANT_KEYS, &a);
}

/* ---- what is known of a row before any key: m, r, delta, and what the sink has of it */

/* load_origin loads m and r of a row, from which p = 2^(s - m) * r is taken: from the LSE where that
 * is all there is. Statistics of (-inf, 0) are those of an empty row. An l of 0 beside another m was
 * not written by a forward call, and the gradients shall not hide it: r is then infinite. */
static void load_origin(const attn_params *p, const sequence *s, int64_t head, int64_t row,
                        float *m, float *r)
{
    const float *stats = (const float *)p->stats.data, *lse = (const float *)p->lse.data;
    const int64_t at = ROW_AT(p->stats, s, head, row);
    const float from = stats ? stats[at] : lse[ROW_AT(p->lse, s, head, row)] * LOG2E_HI;
    const float l = stats ? stats[at + 1] : 1.0f;
    *m = is_neg_inf(from) ? 0.0f : from;
    *r = inverse_sum(is_neg_inf(from) && l == 0.0f, l);
}

/* sink_term computes -p * delta of the sink. */
static float sink_term(const attn_params *p, float sink, float m, float r, float delta)
{
    const float most = most_exponent(p);
    float x = sink * LOG2E_HI;
    if (is_neg_inf(sink))
        return 0.0f;
    x = x - m;
    x = exp2_canon(x > most ? most : x);
    x = x * r;
    return -x * delta;
}

static void row_statistics(const desk *w, grad_tile *row, int r)
{
    const backward *back = w->back;
    const attn_params *p = &w->pr->p;
    const tile *t = &row->t;
    const lane *l = &t->lanes[r];
    const int64_t at = state_row(p, &t->s, l->head, l->i), in_seq = t->s.q_row + l->i;
    const float *dlse = (const float *)back->grads.g.dlse.data;
    load_origin(p, &t->s, l->head, in_seq, &back->m[at], &back->r[at]);
    back->delta[at] = row->delta[r];
    if (dlse)
        back->delta[at] = row->delta[r] - dlse[ROW_AT(back->grads.g.dlse, &t->s, l->head, in_seq)];
    back->sink_terms[at] =
        sink_term(p, sink_of(p, l->head), back->m[at], back->r[at], back->delta[at]);
}

/* statistics_item computes delta = rowsum(dout * o) of all rows of a head. */
static void statistics_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int64_t dim = p->head_dim_v;
    const attn_tensor o = as_tensor(&p->o);
    desk *w = open_desk(c, slot);
    int64_t i;
    int r;
    w->seq = sequence_of(p, index / p->num_heads_q);
    w->head = index % p->num_heads_q;
    w->kv_head = w->head / c->pr.group;
    for (i = w->seq.row_from; i < w->seq.row_to; i += w->pl->rows) {
        grad_tile *row = pack_rows(w, 0, i, w->seq.row_to);
        load_rows(&row->t, &o, row->t.stage, dim, dim);
        turn_rows(&row->t, w->packed_o, row->t.stage, dim, dim);
        w->kernels->dots(row->delta, row->dout_t, w->packed_o, dim);
        for (r = 0; r < w->pl->rows && row->t.lanes[r].used; r++)
            row_statistics(w, row, r);
    }
}

/* ---- sums */

/* sinks_item computes dSink of a head. */
static void sinks_item(const call *c, char *slot, int64_t head)
{
    const backward *back = backward_of(c);
    const attn_params *p = &c->pr.p;
    float total = 0.0f;
    int64_t b, i, end;
    (void)slot;
    for (b = 0; b < p->batch; b++) {
        const sequence s = sequence_of(p, b);
        for (i = s.row_from; i < s.row_to; i = end) {
            float chunk = 0.0f;
            for (end = min64((i / ATTN_CHUNK + 1) * ATTN_CHUNK, s.row_to); i < end; i++)
                chunk = chunk + back->sink_terms[state_row(p, &s, head, i)];
            total = total + chunk;
        }
    }
    back->grads.g.dsinks[head] = is_nan(total) ? float_of(CANONICAL_NAN) : total + 0.0f;
}

/* take_axis tells which indices of an axis item *index takes, *from to *to-1: all if the axis is
 * summed, and up to `each` if it is kept. *index then numbers the parts of the other axes. */
static void take_axis(const attn_sum_axes *a, int axis, int64_t all, int64_t each, int64_t *index,
                      int64_t *from, int64_t *to)
{
    const int64_t parts = ceil_div(a->count[axis], each);
    *from = 0;
    *to = all;
    if (!a->kept[axis])
        return;
    *from = *index % parts * each;
    *to = min64(*from + each, a->count[axis]);
    *index /= parts;
}

static int64_t sum_items(const layout *lay, const attn_sum_axes *a)
{
    const int64_t each[4] = { 1, 1, lay->item_rows, lay->item_keys };
    int64_t items = 1;
    int axis;
    for (axis = 0; axis < 4; axis++)
        if (a->kept[axis])
            items = times(items, ceil_div(a->count[axis], each[axis]));
    return items;
}

/* sum_item takes the elements of item `index` of a sum; heads and batch entries come one after the
 * other. */
static void sum_item(const call *c, char *slot, int64_t index, int want, const attn_sum_axes *a)
{
    const attn_params *p = &c->pr.p;
    desk *w = open_desk(c, slot);
    const int64_t row_begin = a->kept[ATTN_AXIS_ROW] ? p->part.row_begin : 0;
    int64_t from[4], to[4], b;
    take_axis(a, ATTN_AXIS_KEY, INT64_MAX, w->lay->item_keys, &index, &from[3], &to[3]);
    if (a->kept[ATTN_AXIS_KEY])
        narrow_columns(&p->part, &from[3], &to[3]);
    if (from[3] == to[3])
        return;
    take_axis(a, ATTN_AXIS_ROW, INT64_MAX, w->lay->item_rows, &index, &from[2], &to[2]);
    take_axis(a, ATTN_AXIS_HEAD, p->num_heads_q, 1, &index, &from[1], &to[1]);
    take_axis(a, ATTN_AXIS_BATCH, p->batch, 1, &index, &from[0], &to[0]);
    store_elements(a, from, to, 1);
    w->want = want;
    w->axes = a;
    for (b = from[0]; b < to[0]; b++) {
        int64_t j0, j1;
        w->seq = sequence_of(p, b);
        j0 = max64(w->seq.key_from, from[3] - w->seq.column); /* Items take the caller's columns. */
        j1 = min64(to[3] - (a->kept[3] ? w->seq.column : 0), w->seq.key_to);
        sweep(w, from[1], to[1], max64(from[2] + row_begin, w->seq.row_from),
              min64(to[2], w->seq.row_to - row_begin) + row_begin, j0, j1);
    }
    store_elements(a, from, to, 0);
}

static void bias_item(const call *c, char *slot, int64_t index)
{
    sum_item(c, slot, index, WANT_BIAS, &backward_of(c)->grads.bias);
}

static void slopes_item(const call *c, char *slot, int64_t index)
{
    sum_item(c, slot, index, WANT_SLOPES, &backward_of(c)->grads.slopes);
}

/* src/backward/naive.c - naive gradients: the textbook in numbered passes over the matrices P and dS of a head.
 *
 * The matrices are [row tile][key][row]. They take neither o nor stats nor lse from the forward call. Each pass quotes the
 * line of the forward that it repeats or differentiates.
 */

/* A textbook_rows is a tile of rows and where its part of the matrices is. */
typedef struct textbook_rows {
    grad_tile *row;
    float *p, *ds; /* Both are [kv_len][rows]. */
    /* Both are [rows]: the logit of the row's sink in base 2, and its probability. */
    float *sink, *sink_p;
} textbook_rows;

static textbook_rows open_textbook(desk *w, int64_t tile_index)
{
    const int64_t at = tile_index * w->pl->rows * w->seq.kv_len;
    textbook_rows n;
    n.row = pack_rows(w, 0, tile_index * w->pl->rows, w->seq.q_len);
    n.p = w->matrix[KEYS] + at;
    n.ds = w->matrix[VALUES] + at;
    n.sink = n.row->m; /* The textbook reads no statistics, whose room this is. */
    n.sink_p = n.row->r;
    w->row_tiles = 1;
    return n;
}

/* textbook_logits computes s = softcap(scale q.k) + bias + ALiBi, callback and masks of the open
 * keys into w->s. It returns 0 if all of them are dead. */
static int textbook_logits(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_lanes all = { 0, w->pl->rows };
    tile *t = &n->row->t;
    const int visible = tile_class(t, j0, count);
    int k;
    load_keys(w, j0, count);
    if (visible != ATTN_TILE_EMPTY)
        pair_logits(w, t, j0, count, visible, all);
    for (k = 0; k < count * w->pl->rows && visible == ATTN_TILE_EMPTY; k++)
        w->s[k] = NEG_INF;
    return visible != ATTN_TILE_EMPTY;
}

/* each_keys calls `pass` for all keys of a row tile, tile by tile. */
static void each_keys(desk *w, const textbook_rows *n,
                      void (*pass)(desk *w, const textbook_rows *n, int64_t j0, int count))
{
    int64_t j;
    for (j = 0; j < w->seq.kv_len; j += w->pl->keys)
        pass(w, n, j, (int)min64(w->pl->keys, w->seq.kv_len - j));
}

/* Pass 1 computes S, the logits. */
static void textbook_scores(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    textbook_logits(w, n, j0, count);
    memcpy(n->p + j0 * w->pl->rows, w->s, (size_t)(count * w->pl->rows) * sizeof(float));
}

static void textbook_maximum(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    w->kernels->maximum(n->p + j0 * w->pl->rows, count, n->row->sum);
}

static void textbook_exp(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    w->kernels->exp_sum(n->p + j0 * w->pl->rows, count, ATTN_DEAD, n->row->sum, n->row->sum_total);
}

/* Pass 2 computes P = exp(S - max) / sum, where the sum has the sink's exp(sink - max), and marks
 * dead pairs ATTN_DEAD. */
static void textbook_softmax(desk *w, const textbook_rows *n)
{
    const int rows = w->pl->rows;
    const int64_t count = w->seq.kv_len;
    float *m = n->row->sum, *l = n->row->sum_total;
    int64_t j;
    int r;
    for (r = 0; r < rows; r++) {
        const lane *at = &n->row->t.lanes[r];
        n->sink[r] = at->used ? sink_of(&w->pr->p, at->head) * LOG2E_HI : NEG_INF;
        m[r] = n->sink[r];
        l[r] = 0.0f;
    }
    each_keys(w, n, textbook_maximum);
    each_keys(w, n, textbook_exp);
    for (r = 0; r < rows; r++) {
        float sink = m[r] == NEG_INF ? NEG_INF : n->sink[r] - m[r];
        sink = exp2_canon(sink);
        l[r] = l[r] + sink;
        n->sink_p[r] = l[r] == 0.0f ? 0.0f : sink / l[r];
        for (j = 0; j < count; j++) {
            float *p = &n->p[j * rows + r];
            *p = is_dead(*p) ? *p : *p / l[r];
        }
    }
}

/* Pass 3 differentiates O = P V: dP = dout V^T. With dropout that is the gradient by P' V, P' = P
 * keep / (1 - dropout_p). */
static void textbook_dp(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_lanes all = { 0, w->pl->rows };
    load_keys(w, j0, count);
    pair_dp(w, n->row, j0, count, all);
    memcpy(n->ds + j0 * w->pl->rows, w->dp, (size_t)(count * w->pl->rows) * sizeof(float));
}

/* Pass 4 differentiates P = softmax(S): dS = P (dP - sum of P dP over the row), and LSE gives P
 * dlse. */
static void textbook_ds(desk *w, const textbook_rows *n)
{
    const backward *back = w->back;
    const int rows = w->pl->rows;
    const int64_t count = w->seq.kv_len;
    const float *dlse = (const float *)back->grads.g.dlse.data;
    int64_t j;
    int r;
    for (r = 0; r < rows; r++) {
        const tile *t = &n->row->t;
        const lane *at = &t->lanes[r];
        float sum = 0.0f;
        for (j = 0; j < count; j++) {
            const float x = n->p[j * rows + r] * n->ds[j * rows + r];
            sum = is_dead(n->p[j * rows + r]) ? sum : sum + x;
        }
        if (dlse && at->used)
            sum = sum - dlse[ROW_AT(back->grads.g.dlse, &t->s, at->head, t->s.q_row + at->i)];
        n->row->delta[r] = sum;
        for (j = 0; j < count; j++) {
            const float p = n->p[j * rows + r], x = n->ds[j * rows + r] - sum;
            n->ds[j * rows + r] = is_dead(p) ? ATTN_DEAD : p * x;
        }
    }
}

/* Pass 5 differentiates the sink in the softmax: dSink = -P_sink (sum of P dP - dlse). */
static void textbook_sinks(const desk *w, const textbook_rows *n)
{
    int r;
    for (r = 0; r < w->pl->rows && n->row->t.lanes[r].used; r++) {
        float *to = &w->g->dsinks[n->row->t.lanes[r].head];
        const float x = n->sink_p[r] * n->row->delta[r];
        const float sink = sink_of(&w->pr->p, n->row->t.lanes[r].head);
        *to = is_neg_inf(sink) ? *to : *to - x;
    }
}

static void add_elements(desk *w, const tile *t, const attn_sum_axes *a, int64_t j0, int count)
{
    w->axes = a;
    add_to_elements(w, t, j0, count, t->span);
}

/* Pass 6 differentiates S = callback(softcap(scale q.k) + bias - slope distance), from the outside
 * in. */
static void textbook_modifiers(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_params *p = &w->pr->p;
    const size_t bytes = (size_t)(count * w->pl->rows) * sizeof(float);
    const attn_gradient_call *grads = &w->back->grads;
    const tile *t = &n->row->t;
    float *ds = n->ds + j0 * w->pl->rows;
    if ((p->score || p->softcap > 0) && !textbook_logits(w, n, j0, count))
        return;
    memcpy(w->s, n->p + j0 * w->pl->rows, bytes);
    memcpy(w->dp, ds, bytes);
    if (p->score)
        pass_score(w, t, j0, count);
    if (grads->bias.data)
        add_elements(w, t, &grads->bias, j0, count);
    if (grads->slopes.data) {
        memcpy(ds, w->dp, bytes);
        take_distances(w, t, j0, count, t->span);
        add_elements(w, t, &grads->slopes, j0, count);
        memcpy(w->dp, ds, bytes);
    }
    if (p->softcap > 0)
        w->kernels->softcap_gradient(w->dp, w->tanh, w->s, count);
    memcpy(ds, w->dp, bytes);
}

/* Pass 7 differentiates O = P V and S = scale Q K^T: dV += P^T dout, dQ += scale dS K, dK += scale
 * dS^T Q. */
static void textbook_products(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_lanes all = { 0, w->pl->rows };
    const size_t bytes = (size_t)(count * w->pl->rows) * sizeof(float);
    const attn_term dk = { w->dp, n->row->q, all, 0, count };
    const attn_term dv = { w->s, n->row->dout, all, 0, count };
    load_keys(w, j0, count);
    mark_kept(w, n->row, j0, count);
    memcpy(w->s, n->p + j0 * w->pl->rows, bytes);
    memcpy(w->dp, n->ds + j0 * w->pl->rows, bytes);
    mark_live(w, count);
    scale_kept(w, w->s, count, ATTN_DEAD);
    add_to_dq(w, n->row->dq_total, j0, count, all);
    add_terms(w, KEYS, w->total[KEYS] + j0 * w->pl->pitch[KEYS], &dk, 1, count);
    add_terms(w, VALUES, w->total[VALUES] + j0 * w->pl->pitch[VALUES], &dv, 1, count);
}

static void textbook_head(desk *w)
{
    const int64_t tiles = ceil_div(w->seq.q_len, w->pl->rows);
    int64_t i;
    for (i = 0; i < tiles; i++) {
        const textbook_rows n = open_textbook(w, i);
        each_keys(w, &n, textbook_scores);
        textbook_softmax(w, &n);
        each_keys(w, &n, textbook_dp);
        textbook_ds(w, &n);
        if (w->want & WANT_SINKS)
            textbook_sinks(w, &n);
    }
    for (i = 0; i < tiles; i++) {
        const textbook_rows n = open_textbook(w, i);
        each_keys(w, &n, textbook_modifiers);
        clear(n.row->dq_total, w->pl->rows * w->pr->p.head_dim);
        each_keys(w, &n, textbook_products);
        if (w->want & WANT_DQ)
            write_dq(w, n.row);
    }
}

/* textbook_group takes all heads of a kv head of w->seq. */
static void textbook_group(desk *w)
{
    int64_t head;
    int which;
    for (which = KEYS; which <= VALUES; which++)
        clear(w->total[which], w->seq.kv_len * w->pl->pitch[which]);
    for (head = 0; head < w->pr->group; head++) {
        w->head = w->kv_head * w->pr->group + head;
        textbook_head(w);
    }
    write_keys(w, 0, w->seq.kv_len);
}

static void textbook_item(const call *c, char *slot, int64_t index)
{
    desk *w = open_desk(c, slot);
    w->want = w->lay->want;
    w->redo = 1; /* It always selects. */
    w->seq = sequence_of(&c->pr.p, index / c->pr.p.num_heads_kv);
    w->kv_head = index % c->pr.p.num_heads_kv;
    textbook_group(w);
}

static void store_both_sums(const attn_gradient_call *grads, int first)
{
    static const int64_t from[4] = { 0, 0, 0, 0 };
    if (grads->bias.data)
        store_elements(&grads->bias, from, grads->bias.count, first);
    if (grads->slopes.data)
        store_elements(&grads->slopes, from, grads->slopes.count, first);
}

/* textbook_sums_item takes everything in one item, as all heads and batch entries add to one set of
 * sums. */
static void textbook_sums_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const attn_gradient_call *grads = &backward_of(c)->grads;
    store_both_sums(grads, 1);
    if (grads->g.dsinks)
        clear(grads->g.dsinks, p->num_heads_q);
    for (; index < p->batch * p->num_heads_kv; index++)
        textbook_item(c, slot, index);
    store_both_sums(grads, 0);
}

/* src/backward/backward.c - attn_backward: the lists of a call, and the public functions. */

typedef struct grad_list {
    int64_t items;
    void (*item)(const call *c, char *slot, int64_t index);
} grad_list;

/* list_of gives list number i of a call; behind the last one, item is NULL. */
OWN_FRAME static grad_list list_of(const backward *back, int i)
{
    const problem *pr = &back->c.pr;
    const attn_params *p = &pr->p;
    const layout *lay = &back->lay;
    const int naive = back->c.pl.impl == ATTN_IMPL_NAIVE, five = lay->gemms == 5;
    const int want = naive ? 0 : lay->want, bias = (want & WANT_BIAS) && !lay->bias_beside;
    const int by_rows = !five && (want & WANT_DQ), by_keys = !five && (want & WANT_KEYS);
    const int shared = (lay->want & (WANT_SUMS | WANT_SINKS)) != 0;
    const int64_t heads = p->batch * p->num_heads_kv;
    const grad_list lists[] = {
        { naive && !shared ? heads : 0, textbook_item },
        { naive && shared ? 1 : 0, textbook_sums_item },
        { naive ? 0 : p->batch * p->num_heads_q, statistics_item },
        { five && (want & (WANT_DQ | WANT_KEYS)) ? heads : 0, head_item },
        { by_rows ? items_by(p, p->num_heads_q, pr->max_q_len, lay->item_rows) : 0, rows_item },
        { by_keys ? items_by(p, p->num_heads_kv, pr->max_kv_len, lay->item_keys) : 0, keys_item },
        { bias ? sum_items(lay, &back->grads.bias) : 0, bias_item },
        { want & WANT_SLOPES ? sum_items(lay, &back->grads.slopes) : 0, slopes_item },
        { want & WANT_SINKS ? p->num_heads_q : 0, sinks_item },
        { 0, NULL },
    };
    return lists[i];
}

/* run_backward runs the lists one after the other; empty ones cost nothing. */
static attn_status run_backward(backward *back)
{
    attn_status status = ATTN_OK;
    grad_list list = list_of(back, 0);
    int i;
    for (i = 1; list.item && !status; i++) {
        status = run_items(&back->c, list.items, list.item);
        list = list_of(back, i);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * Public functions
 * --------------------------------------------------------------------------------------------- */

#define BACKWARD_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(backward)))

static int64_t backward_bytes(const plan *pl, int workers)
{
    return plus(plus(BACKWARD_BYTES, pl->shared_bytes), times(workers, pl->slot_bytes));
}

/* workers_in tells how many workers fit. */
static int workers_in(const plan *pl, size_t bytes)
{
    const int64_t one = backward_bytes(pl, 1);
    if ((uint64_t)bytes < (uint64_t)one)
        return 0;
    if ((uint64_t)bytes >= (uint64_t)backward_bytes(pl, pl->workers))
        return pl->workers;
    return (int)(((int64_t)bytes - one) / pl->slot_bytes) + 1;
}

/* validate_backward turns *p and *g into *pr and *resolved, or says what is wrong. */
static attn_status validate_backward(const attn_params *p, const attn_gradients *g, int need_data,
                                     problem *pr, attn_gradients *resolved, text *why)
{
    attn_status status;
    if (!g)
        return bad(why, ATTN_ERR_ARG, "gradients is NULL");
    /* If this fails, nothing that is set helps. */
    status = p ? refuse_fields(p, BY_GRADIENTS, "attn_backward", why) : ATTN_OK;
    if (!status)
        status = validate(p, pr, need_data, why);
    if (status)
        return status;
    *resolved = *g;
    status = check_gradients(p, g, pr->impl == ATTN_IMPL_NAIVE, need_data, why);
    if (status)
        return status;
    status = resolve_gradients(&pr->p, resolved, why);
    if (!status)
        settle_workers(&pr->p);
    return status;
}

/* ask_gradients returns above 0 where the backend takes the call, 0 where the CPU does, and below 0
 * where nobody can. Where a backend refuses, *reason says why. */
static int ask_gradients(const problem *pr, const attn_gradient_call *g, text *reason)
{
    const attn_backend *backend = pr->p.backend;
    char why[160];
    int answer = 0;
    if (!backend)
        return 0;
    why[0] = 0;
    put(reason, backend->name);
    put(reason, " refused: ");
    if (!backend->run_gradients)
        put(reason, "it has no gradients");
    else if (pr->p.batch == 0)
        put(reason, "nothing to do");
    else
        answer = backend->supports_gradients(backend, pr, g, why, sizeof why);
    why[sizeof why - 1] = 0;
    put(reason, why);
    return answer;
}

/* A checked_call is a call of attn_backward that has passed its checks, and how it would run. */
typedef struct checked_call {
    problem pr;
    attn_gradient_call grads;
    attn_backward_info info;
} checked_call;

/* describe_backend changes the info if a backend takes the call. */
static attn_status describe_backend(checked_call *c, text *why)
{
    const attn_backend *backend = c->pr.p.backend;
    attn_backward_info *info = &c->info;
    text reason = text_in(info->reasons, sizeof info->reasons);
    const int answer = ask_gradients(&c->pr, &c->grads, &reason);
    info->backend_name = answer > 0 ? backend->name : answer ? "none" : "cpu";
    if (answer < 0)
        return bad(why, ATTN_ERR_UNSUPPORTED, info->reasons);
    if (!answer)
        return ATTN_OK;
    info->reasons[0] = 0;
    info->gemms = 7;
    info->tile_rows = info->tile_keys = 0;
    info->workers = 1;
    info->workspace_bytes_per_worker = 0;
    return backend->gradients_size(backend, &c->pr, &c->grads, &info->workspace_bytes)
               ? bad(why, ATTN_ERR_CALLBACK, "the backend cannot size its workspace")
               : ATTN_OK;
}

/* origin_of tells what probabilities are computed from. A query may come before either is set. */
static const char *origin_of(const attn_params *p, int impl)
{
    if (impl == ATTN_IMPL_NAIVE)
        return "a softmax of its own";
    if (p->stats.data)
        return "stats";
    return p->lse.data
               ? "lse: relative error up to 2e-7 * abs(lse) + 3e-6; stats serve large logits"
               : "nothing yet: attn_backward needs stats, or lse";
}

/* describe says how the CPU would run the call; flops are those of a pair. */
OWN_FRAME static void describe(checked_call *c, const attn_params *asked)
{
    attn_backward_info *info = &c->info;
    layout lay;
    plan pl;
    plan_backward(&c->pr, &c->grads.g, asked, &lay, &pl);
    info->impl = pl.impl;
    info->probabilities = origin_of(asked, pl.impl);
    info->gemms = lay.gemms;
    info->kernels_name = pl.kernels->name;
    info->tile_rows = pl.rows;
    info->tile_keys = pl.keys;
    info->workers = pl.workers;
    info->workspace_bytes = (size_t)backward_bytes(&pl, pl.workers);
    info->workspace_bytes_per_worker = (size_t)pl.slot_bytes;
    info->flops = 2.0 * (double)(3 * c->pr.p.head_dim + 2 * c->pr.p.head_dim_v);
}

/* check_backward_room tells whether the plan is possible and fits into `have` bytes. */
static attn_status check_backward_room(const attn_backward_info *info, int64_t have, text *why)
{
    const int64_t most = (int64_t)info->workspace_bytes;
    int64_t least;
    if (most >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    least = most - (info->workers - 1) * (int64_t)info->workspace_bytes_per_worker;
    return have >= least ? ATTN_OK : too_small(why, have, least, "attn_backward_workspace_size");
}

/* check_backward checks everything that can be wrong before a run in `have` bytes; need_data is 0
 * for a query. */
OWN_FRAME static attn_status check_backward(const attn_params *p, const attn_gradients *g,
                                            int need_data, int64_t have, checked_call *c, text *why)
{
    attn_status status = validate_backward(p, g, need_data, &c->pr, &c->grads.g, why);
    memset(&c->info, 0, sizeof c->info);
    c->info.kernels_name = c->info.backend_name = c->info.probabilities = "none";
    if (status)
        return status;
    add_axes(&c->pr.p, &c->grads);
    describe(c, p);
    status = describe_backend(c, why);
    return status ? status : check_backward_room(&c->info, have, why);
}

static attn_status check_run(const attn_params *p, const attn_gradients *g, const void *workspace,
                             size_t bytes, checked_call *c, text *why)
{
    const int64_t limit = ADDRESS_LIMIT;
    const int64_t have = !workspace ? 0 : bytes < (uint64_t)limit ? (int64_t)bytes : limit;
    const attn_status status = check_backward(p, g, 1, have, c, why);
    const area a =
        area_of_bytes("the workspace", workspace, min64(have, (int64_t)c->info.workspace_bytes));
    return status ? status : check_gradients_apart(&c->pr.p, &c->grads.g, &a, why);
}

OWN_FRAME ATTN_API const char *attn_backward_check(const attn_params *p, const attn_gradients *g,
                                                   const void *workspace, size_t workspace_bytes,
                                                   char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    checked_call c;
    return verdict(check_run(p, g, workspace, workspace_bytes, &c, &why), buffer, &why);
}

/* open_backward sets up the call in its workspace. */
static backward *open_backward(const checked_call *c, const attn_params *asked, void *workspace,
                               size_t bytes)
{
    backward *back = (backward *)(void *)align_memory(workspace);
    char *base = (char *)back + aligned((int64_t)sizeof *back);
    float **const arrays[ROW_ARRAYS] = { &back->m, &back->r, &back->delta, &back->sink_terms };
    int i;
    back->c.pr = c->pr;
    back->grads = c->grads;
    plan_backward(&c->pr, &c->grads.g, asked, &back->lay, &back->c.pl);
    back->c.slot_count = workers_in(&back->c.pl, bytes);
    for (i = 0; i < ROW_ARRAYS; i++, base += back->c.pl.shared_bytes / ROW_ARRAYS)
        *arrays[i] = (float *)(void *)base;
    back->c.slots = base;
    return back;
}

/* start_backward checks a call. Then a backend runs it, or *opened becomes the call in its
 * workspace. */
OWN_FRAME static attn_status start_backward(const attn_params *p, const attn_gradients *g,
                                            void *workspace, size_t bytes, backward **opened)
{
    text why = text_in(NULL, 0);
    checked_call c;
    const attn_status status = check_run(p, g, workspace, bytes, &c, &why);
    *opened = NULL;
    if (status)
        return status;
    if (p->backend && !c.info.reasons[0]) /* It does not refuse. */
        return p->backend->run_gradients(p->backend, &c.pr, &c.grads, workspace, bytes);
    if (p->backend)
        tell_log(p, ATTN_LOG_INFO, c.info.reasons);
    *opened = open_backward(&c, p, workspace, bytes);
    return ATTN_OK;
}

ATTN_API attn_status attn_backward(const attn_params *p, const attn_gradients *g, void *workspace,
                                   size_t workspace_bytes)
{
    backward *back;
    const attn_status status = start_backward(p, g, workspace, workspace_bytes, &back);
    return status || !back ? status : run_backward(back);
}

OWN_FRAME ATTN_API attn_status attn_backward_explain(const attn_params *p, const attn_gradients *g,
                                                     attn_backward_info *info)
{
    text why = text_in(NULL, 0);
    checked_call c;
    attn_status status;
    if (!info)
        return ATTN_ERR_ARG;
    status = check_backward(p, g, 0, ADDRESS_LIMIT, &c, &why);
    *info = c.info;
    info->flops *= status ? 0 : visible_pairs(&c.pr.p);
    return status;
}

OWN_FRAME ATTN_API attn_status attn_backward_workspace_size(const attn_params *p,
                                                            const attn_gradients *g, size_t *bytes)
{
    text why = text_in(NULL, 0);
    checked_call c;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_backward(p, g, 0, ADDRESS_LIMIT, &c, &why);
    *bytes = status ? 0 : c.info.workspace_bytes;
    return status;
}

static int64_t least_bytes(const problem *pr, const attn_gradients *g, const attn_params *asked)
{
    layout lay;
    plan pl;
    plan_backward(pr, g, asked, &lay, &pl);
    return backward_bytes(&pl, 1);
}

/* src/resume.c - attention in steps, over keys that come tile by tile.
 *
 * A tile is a call of attn_forward for a part of the keys (p.part) that continues the state of its
 * chunk; chunks merge in the tree of docs/canon.md, kept as a binary counter.
 */

#define MOST_TILE_KEYS 128
#define USUAL_TILE_BYTES ((int64_t)1 << 18)

/* A resume_layout holds offsets into the memory, from its first aligned byte on. */
typedef struct resume_layout {
    int64_t tile_keys, entry_rows, rows, slots;
    int64_t q_len, m, l, o, pending, k, v, workspace;
} resume_layout;

static int64_t tile_bytes(const attn_params *p, int64_t keys)
{
    const int64_t row = plus(room_of(p->k.dtype, p->head_dim), room_of(p->v.dtype, p->head_dim_v));
    return times(times(p->num_heads_kv, keys), row);
}

static int64_t place_tile_rows(int64_t *at, int64_t rows, int dtype, int64_t dim)
{
    return place(at, times(rows, room_of(dtype, dim)), 1);
}

/* lay_out needs *p resolved. */
static void lay_out(const attn_params *p, int64_t tile_keys, resume_layout *lay)
{
    int64_t at = 0, rows;
    lay->tile_keys = tile_keys ? tile_keys : MOST_TILE_KEYS;
    while (!tile_keys && lay->tile_keys > ATTN_BLOCK &&
           tile_bytes(p, lay->tile_keys) > USUAL_TILE_BYTES)
        lay->tile_keys /= 2;
    rows = times(p->num_heads_kv, lay->tile_keys);
    lay->entry_rows = times(p->num_heads_q, rows_held(p));
    lay->rows = times(p->batch, lay->entry_rows);
    lay->slots = tree_states(p->seq_len_kv, 1); /* Keys begin inside a chunk. */
    lay->q_len = place(&at, p->batch, sizeof(int32_t));
    lay->m = place(&at, lay->rows, sizeof(float));
    lay->l = place(&at, lay->rows, sizeof(float));
    lay->o = place(&at, times(lay->rows, p->head_dim_v), sizeof(float));
    lay->pending = place(&at, times(times(lay->slots, lay->entry_rows), plus(p->head_dim_v, 2)),
                         sizeof(float));
    lay->k = place_tile_rows(&at, rows, p->k.dtype, p->head_dim);
    lay->v = place_tile_rows(&at, rows, p->v.dtype, p->head_dim_v);
    lay->workspace = at;
}

/* ---- validation */

static attn_status check_request(const attn_params *p, int64_t tile_keys, text *why)
{
    if (tile_keys &&
        (tile_keys < ATTN_BLOCK || tile_keys > ATTN_CHUNK || (tile_keys & (tile_keys - 1))))
        return bad_field(why, ATTN_ERR_ARG, "tile_keys", tile_keys,
                         " must be 0 or a power of two from 16 to 1024");
    if (!p)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    return refuse_fields(p, BY_RESUMABLE, "attn_resume_begin", why);
}

/* Keys of a tile lie head by head, shared by the batch, whose entries take turns. */
static void shape_tile(attn_tensor *x, int64_t keys, int64_t dim)
{
    x->stride_seq = to_stride(dim);
    x->stride_head = to_stride(times(keys, dim));
    x->stride_batch = ATTN_STRIDE_BROADCAST;
}

static void place_tile(attn_params *one, const resume_layout *lay, char *base)
{
    one->k.data = base + lay->k;
    one->v.data = base + lay->v;
    one->state.m = (float *)(void *)(base + lay->m);
    one->state.l = (float *)(void *)(base + lay->l);
    one->state.o = (float *)(void *)(base + lay->o);
}

/* open_tile_call makes *one, which is *p before, the call of a tile that is as long as any; its
 * arrays lie nowhere yet. */
static void open_tile_call(attn_params *one, const attn_params *resolved, const resume_layout *lay)
{
    memset(&one->o, 0, sizeof one->o);
    memset(&one->lse, 0, sizeof one->lse);
    memset(&one->stats, 0, sizeof one->stats);
    one->shared_keys = 0;
    one->partial = one->part.keys = one->part.continued = 1;
    one->part.key_begin = 0;
    one->part.key_count = min64(lay->tile_keys, keys_held(resolved));
}

/* fixed_bytes counts the bytes before the workspace of attn_forward. */
static int64_t fixed_bytes(const resume_layout *lay)
{
    return plus(ALIGNMENT - 1, lay->workspace);
}

static void share_keys(attn_tensor *x)
{
    x->stride_batch = x->stride_head = x->stride_seq = ATTN_STRIDE_BROADCAST;
}

/* prepare fills in *lay, and *one as open_tile_call leaves it. */
OWN_FRAME static attn_status prepare(const attn_params *p, int64_t tile_keys, resume_layout *lay,
                                     attn_params *one, text *why)
{
    problem pr;
    attn_status status = check_request(p, tile_keys, why);
    if (status)
        return status;
    *one = *p;
    share_keys(&one->k); /* All of the keys need not fit into the address space. */
    share_keys(&one->v);
    status = validate(one, &pr, 0, why);
    if (status)
        return status;
    if (p->seq_len_q > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_q", p->seq_len_q,
                         " must be below 2^31 for attn_resume");
    lay_out(&pr.p, tile_keys, lay);
    if (fixed_bytes(lay) >= ADDRESS_LIMIT)
        return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_q", p->seq_len_q,
                         ": the states of all rows exceed the address space");
    shape_tile(&one->k, lay->tile_keys, pr.p.head_dim);
    shape_tile(&one->v, lay->tile_keys, pr.p.head_dim_v);
    open_tile_call(one, &pr.p, lay);
    one->key_base = NULL; /* The longest tile is full, and begins a chunk. */
    one->kv_begin = one->kv_len = NULL;
    return ATTN_OK;
}

/* check_outputs_given checks the caller's outputs, as attn_forward never sees them. */
static attn_status check_outputs_given(const attn_params *p, attn_fetch_fn fetch, text *why)
{
    if (!fetch)
        return bad(why, ATTN_ERR_ARG, "fetch is NULL");
    if (!wants_results(p))
        return bad(why, ATTN_ERR_ARG, "o.data is NULL, and neither lse nor stats is asked for");
    return ATTN_OK;
}

/* check_resume_apart wants what the steps write, which no call of a tile sees, to lie apart. */
OWN_FRAME static attn_status check_resume_apart(const attn_params *p, const area *memory, text *why)
{
    problem pr;
    pr.p = *p;
    share_keys(&pr.p.k);
    share_keys(&pr.p.v);
    validate(&pr.p, &pr, 0, why);
    pr.p.k.data = pr.p.v.data = NULL;
    return check_call_apart(&pr.p, memory, why);
}

static attn_status check_begin(const attn_params *p, int64_t tile_keys, attn_fetch_fn fetch,
                               const void *memory, size_t bytes, resume_layout *lay,
                               attn_params *one, text *why)
{
    char *base = NULL;
    size_t room = memory ? bytes : 0, fixed, need = 0;
    const text begin = *why;
    area a;
    attn_status status = prepare(p, tile_keys, lay, one, why);
    if (!status)
        status = check_outputs_given(p, fetch, why);
    if (status)
        return status;
    fixed = (size_t)fixed_bytes(lay);
    if (room >= fixed) {
        base = align_memory(memory);
        place_tile(one, lay, base);
    }
    if (attn_workspace_size(one, &need))
        return check_call(one, NULL, 0, NULL, why);
    if (room >= fixed)
        status = check_call(one, base + lay->workspace, room - fixed, NULL, why);
    a = area_of_bytes("the memory", memory,
                      room < fixed + need ? (int64_t)room : (int64_t)(fixed + need));
    if (room >= fixed && status != ATTN_ERR_WORKSPACE)
        return status ? status : check_resume_apart(p, &a, why);
    *why = begin; /* The caller knows of no workspace. */
    put_field(why, "memory_bytes", (int64_t)room);
    put(why, " is too small: attn_resume_memory says ");
    put_int(why, (int64_t)(fixed + need));
    return ATTN_ERR_WORKSPACE;
}

/* ---- states */

/* entry_states gives the states of the chunk under way. */
static attn_state entry_states(const attn_resumable *r)
{
    attn_state s = state_at(&r->states, r->entry * r->entry_rows, r->head_dim_v);
    s.num_rows = r->entry_rows;
    return s;
}

static attn_state waiting_states(const attn_resumable *r, float *at)
{
    return packed_states(at, r->entry_rows, r->head_dim_v);
}

/* merge_lower merges the nodes that wait below `level` into the states of the chunk under way. They
 * lie on a stack, as the lower of two levels waits later. */
static void merge_lower(attn_resumable *r, int level)
{
    attn_state now = entry_states(r);
    float *at;
    while ((at = take_lower(r->waiting, level)) != NULL) {
        const attn_state lower = waiting_states(r, at);
        merge_states(&lower, &now, &now);
        r->pending = at;
    }
}

/* end_of_chunk puts the states of chunk i, which is complete, into the tree. */
static void end_of_chunk(attn_resumable *r, int64_t i)
{
    const attn_state now = entry_states(r);
    const int level = level_after(i);
    attn_state node;
    merge_lower(r, level);
    r->waiting[level] = r->pending;
    node = waiting_states(r, r->pending);
    copy_states(&node, &now, r->entry_rows, r->head_dim_v);
    clear_states(&now);
    r->pending += r->entry_rows * (r->head_dim_v + 2);
}

/* ---- tiles */

/* keys_of_entry finds the keys that some row of an entry sees. */
static void keys_of_entry(const attn_params *p, int64_t b, sequence *s, int64_t *from, int64_t *to)
{
    const range_list ranges = ranges_of(p);
    int64_t i, lo, hi;
    *s = sequence_of(p, b);
    *from = *to = 0;
    for (i = s->row_from; i < s->row_to; i++) {
        visible_range(&ranges, p, s, i + s->offset, &lo, &hi);
        if (lo >= hi)
            continue;
        *from = *from < *to ? min64(*from, lo) : lo;
        *to = max64(*to, hi);
    }
}

/* tile_end tells where the tile of key j ends. */
static int64_t tile_end(const attn_resumable *r, const sequence *s, int64_t j)
{
    const int64_t n = s->key_base + j;
    return min64(r->end, (n / r->tile_keys + 1) * r->tile_keys - s->key_base);
}

static int64_t count_tiles(const attn_params *p, int64_t tile_keys)
{
    int64_t b, from, to, tiles = 0;
    sequence s;
    for (b = 0; b < p->batch; b++) {
        keys_of_entry(p, b, &s, &from, &to);
        if (from < to)
            tiles += (s.key_base + to - 1) / tile_keys - (s.key_base + from) / tile_keys + 1;
    }
    return tiles;
}

/* choose_entry gives rows to entry b alone for the call of a tile. */
static void choose_entry(const attn_resumable *r, int64_t b, const sequence *s)
{
    int64_t i;
    for (i = 0; i < r->p.batch; i++)
        r->q_len[i] = i == b ? (int32_t)s->q_len : 0;
}

/* next_entry begins the next entry with keys. */
static void next_entry(attn_resumable *r, sequence *s)
{
    do
        keys_of_entry(&r->p, ++r->entry, s, &r->next, &r->end);
    while (r->next == r->end);
    choose_entry(r, r->entry, s);
}

static int fetch_tile(attn_resumable *r)
{
    attn_fetch want;
    int64_t head;
    want.batch = r->entry;
    want.first = r->tile.part.key_begin;
    want.count = r->tile.part.key_count;
    for (head = 0; head < r->kv_heads; head++) {
        const int64_t row = head * r->tile_keys;
        want.kv_head = head;
        want.k = r->k + bytes_between(r->p.k.dtype, row * r->head_dim);
        want.v = r->v + bytes_between(r->p.v.dtype, row * r->head_dim_v);
        if (r->fetch(r->user, &want))
            return 0;
    }
    r->fetched += want.count * r->kv_heads;
    return 1;
}

/* want_tile fetches the next tile and sets up the call that takes it in, and changes nothing else.
 * It returns 0 if the fetch failed. */
OWN_FRAME static int want_tile(attn_resumable *r)
{
    sequence s;
    int64_t end;
    if (r->next == r->end)
        next_entry(r, &s);
    else
        s = sequence_of(&r->p, r->entry);
    end = tile_end(r, &s, r->next);
    r->tile.part.key_begin = s.column + r->next;
    r->tile.part.key_count = end - r->next;
    return fetch_tile(r);
}

/* take_in_tile puts the tile into the states. */
OWN_FRAME static void take_in_tile(attn_resumable *r)
{
    const sequence s = sequence_of(&r->p, r->entry);
    r->next += r->tile.part.key_count;
    r->done++;
    if ((s.key_base + r->next) % ATTN_CHUNK == 0)
        end_of_chunk(r, (s.key_base + r->next) / ATTN_CHUNK - 1);
    if (r->next == r->end)
        merge_lower(r, MAX_LEVELS); /* Keys that never came are empty. */
}

/* want_tile and take_in_tile have frames of their own, as attn_forward leaves little of 4 KiB of
 * stack. */
static attn_status take_tile(attn_resumable *r)
{
    attn_status status;
    if (!want_tile(r))
        return ATTN_ERR_CALLBACK;
    status = attn_forward(&r->tile, r->workspace, r->workspace_bytes);
    if (status)
        r->status = status;
    else
        take_in_tile(r);
    return status;
}

/* ---- public functions */

ATTN_API attn_status attn_resume_memory(const attn_params *p, int64_t tile_keys, size_t *bytes)
{
    text why = text_in(NULL, 0);
    resume_layout lay;
    attn_params one;
    size_t workspace = 0;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    *bytes = 0;
    status = prepare(p, tile_keys, &lay, &one, &why);
    if (!status)
        status = attn_workspace_size(&one, &workspace);
    if (!status)
        *bytes = (size_t)fixed_bytes(&lay) + workspace;
    return status;
}

ATTN_API const char *attn_resume_check(const attn_params *p, int64_t tile_keys, attn_fetch_fn fetch,
                                       const void *memory, size_t memory_bytes, char *buffer,
                                       size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    resume_layout lay;
    attn_params one;
    const attn_status status =
        check_begin(p, tile_keys, fetch, memory, memory_bytes, &lay, &one, &why);
    return verdict(status, buffer, &why);
}

ATTN_API attn_status attn_resume_begin(attn_resumable *r, const attn_params *p, int64_t tile_keys,
                                       attn_fetch_fn fetch, void *user, void *memory,
                                       size_t memory_bytes)
{
    text why = text_in(NULL, 0);
    resume_layout lay;
    char *base;
    attn_status status;
    if (!r)
        return ATTN_ERR_ARG;
    memset(r, 0, sizeof *r);
    status = check_begin(p, tile_keys, fetch, memory, memory_bytes, &lay, &r->tile, &why);
    r->status = status;
    if (status)
        return status;
    base = align_memory(memory);
    r->p = *p;
    share_keys(&r->p.k); /* As prepare does: attn_resume_end checks the call once more. */
    share_keys(&r->p.v);
    resolve_sizes(&r->p);
    r->tile.key_base = p->key_base;
    r->tile.kv_begin = p->kv_begin;
    r->tile.kv_len = p->kv_len;
    r->tile.q_len = r->q_len = (int32_t *)(void *)(base + lay.q_len);
    r->k = base + lay.k;
    r->v = base + lay.v;
    r->fetch = fetch;
    r->user = user;
    r->tile_keys = lay.tile_keys;
    r->kv_heads = r->p.num_heads_kv;
    r->head_dim = r->p.head_dim;
    r->head_dim_v = r->p.head_dim_v;
    r->entry = -1;
    r->entry_rows = lay.entry_rows;
    r->states = r->tile.state;
    r->states.num_rows = lay.rows;
    r->states.head_dim_v = r->head_dim_v;
    r->pending = (float *)(void *)(base + lay.pending);
    r->workspace = base + lay.workspace;
    r->workspace_bytes = memory_bytes - (size_t)fixed_bytes(&lay);
    clear_states(&r->states);
    r->total = count_tiles(&r->p, r->tile_keys);
    return ATTN_OK;
}

ATTN_API attn_status attn_resume_step(attn_resumable *r, int64_t tiles)
{
    attn_status status = ATTN_OK;
    if (!r || tiles < 0)
        return ATTN_ERR_ARG;
    if (r->status)
        return r->status;
    for (; tiles > 0 && r->done < r->total && !status; tiles--)
        status = take_tile(r);
    return status;
}

ATTN_API attn_status attn_resume_end(attn_resumable *r)
{
    if (!r)
        return ATTN_ERR_ARG;
    if (r->status)
        return r->status;
    if (r->done < r->total)
        return ATTN_ERR_ARG;
    return attn_state_finish(&r->p, &r->states);
}

/* src/patterns.c - block-sparse patterns: which cells are visible; measured, built. */

ATTN_API attn_pattern attn_pattern_longformer(int64_t each_side, int64_t global)
{
    const attn_pattern t = { .local = 1,
                             .local_before = each_side,
                             .local_after = each_side,
                             .global_columns = global,
                             .global_rows = global };
    return t;
}

ATTN_API attn_pattern attn_pattern_strided(int64_t stride)
{
    attn_pattern t = attn_pattern_longformer(0, 0);
    t.local_before = stride > 0 ? stride - 1 : -1; /* is refused later */
    t.stride = stride;
    return t;
}

ATTN_API attn_pattern attn_pattern_random(int64_t count, uint64_t seed)
{
    attn_pattern t = attn_pattern_longformer(0, 0);
    t.random = count;
    t.seed = seed;
    return t;
}

ATTN_API attn_pattern attn_pattern_bigbird(int64_t window, int64_t global, int64_t random,
                                           uint64_t seed)
{
    attn_pattern t = attn_pattern_longformer(0, global);
    t.local_before = window / 2;
    t.local_after = window > 0 ? window - 1 - t.local_before : -1;
    t.random = random;
    t.seed = seed;
    return t;
}

/* A cell_grid is a pattern with its sizes in cells. */
typedef struct cell_grid {
    attn_pattern t;
    int64_t rows, columns, heads;
} cell_grid;

#define PATTERN_RULE(field, least, most) #field, offsetof(attn_pattern, field), least, most

static const size_rule pattern_rules[] = {
    { PATTERN_RULE(seq_len_q, 0, MOST) },      { PATTERN_RULE(seq_len_kv, 0, MOST) },
    { PATTERN_RULE(block_q, 0, MOST) },        { PATTERN_RULE(block_k, 0, MOST) },
    { PATTERN_RULE(num_heads, 0, INT32_MAX) }, { PATTERN_RULE(local_before, 0, MOST) },
    { PATTERN_RULE(local_after, 0, MOST) },    { PATTERN_RULE(global_columns, 0, MOST) },
    { PATTERN_RULE(global_rows, 0, MOST) },    { PATTERN_RULE(stride, 0, MOST) },
    { PATTERN_RULE(fixed, 0, MOST) },          { PATTERN_RULE(random, 0, MOST) },
};

static attn_status open_grid(const attn_pattern *t, cell_grid *grid, text *why)
{
    attn_status status;
    if (!t)
        return bad(why, ATTN_ERR_ARG, "pattern is NULL");
    status = check_counts(t, pattern_rules, COUNT_OF(pattern_rules), why);
    if (status)
        return status;
    grid->t = *t;
    grid->t.block_q = t->block_q ? t->block_q : 64;
    grid->t.block_k = t->block_k ? t->block_k : 64;
    grid->rows = ceil_div(t->seq_len_q, grid->t.block_q);
    grid->columns = ceil_div(t->seq_len_kv, grid->t.block_k);
    grid->heads = max64(t->num_heads, 1);
    if (times(grid->heads, grid->rows + 1) > INT32_MAX || grid->columns > INT32_MAX)
        return bad(why, ATTN_ERR_OVERFLOW, "the pattern has more cells than int32_t counts");
    return ATTN_OK;
}

/* A cell_row is a row of cells: its diagonal, and the columns it may see. */
typedef struct cell_row {
    int64_t head, row;
    int64_t first, last; /* These are the columns of the diagonal, which may lie before column 0. */
    int64_t end;         /* The row may see columns below end. */
} cell_row;

/* column_of gives the column of a position, which may be negative. */
static int64_t column_of(const cell_grid *grid, int64_t position)
{
    const int64_t size = grid->t.block_k;
    return position < 0 ? -ceil_div(-position, size) : position / size;
}

static cell_row open_cell_row(const cell_grid *grid, int64_t head, int64_t row)
{
    const attn_pattern *t = &grid->t;
    const int64_t offset = t->seq_len_kv - t->seq_len_q, begin = row * t->block_q;
    const int64_t end = min64(begin + t->block_q, t->seq_len_q);
    const int64_t last = column_of(grid, end - 1 + offset);
    const cell_row at = { head, row, column_of(grid, begin + offset), last,
                          .end = t->causal ? max64(0, min64(last + 1, grid->columns))
                                           : grid->columns };
    return at;
}

/* shows tells whether a part other than `random` shows the cell. */
static int shows(const attn_pattern *t, const cell_row *at, int64_t column)
{
    const int64_t before = at->first - column, after = column - at->last;
    const int64_t away = max64(0, max64(before, after)); /* It is the distance from the diagonal. */
    if (t->local && before <= t->local_before && after <= t->local_after)
        return 1;
    if (column < t->global_columns || at->row < t->global_rows)
        return 1;
    return (t->stride && away % t->stride == 0) || (t->fixed && column % t->fixed == t->fixed - 1);
}

/* cell_hash is splitmix64 (Steele et al. 2014) over each of these numbers. */
static uint32_t cell_hash(uint64_t seed, const cell_row *at, int64_t column)
{
    const uint64_t numbers[4] = { seed, (uint64_t)at->head, (uint64_t)at->row, (uint64_t)column };
    uint64_t x = 0;
    int i;
    for (i = 0; i < 4; i++) {
        x = (x ^ numbers[i]) + 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return (uint32_t)(x >> 32);
}

/* cells_of_row writes the visible columns of a row, ascending, to `columns` unless that is NULL,
 * and returns how many there are. It draws random ones by selection sampling (Knuth, TAOCP 2,
 * algorithm 3.4.2 S): each of `left` candidates is taken with probability wanted / left, so that
 * exactly `wanted` are taken. */
static int64_t cells_of_row(const cell_grid *grid, const cell_row *at, int32_t *columns)
{
    const attn_pattern *t = &grid->t;
    int64_t column, left = 0, wanted = t->random, count = 0;
    for (column = 0; column < at->end && wanted; column++)
        left += !shows(t, at, column);
    wanted = min64(wanted, left);
    for (column = 0; column < at->end; column++) {
        int visible = shows(t, at, column);
        if (!visible && wanted) {
            const uint64_t x = cell_hash(t->seed, at, column);
            visible = (int64_t)((x * (uint64_t)left) >> 32) < wanted;
            wanted -= visible;
            left--;
        }
        if (visible && columns)
            columns[count] = (int32_t)column;
        count += visible;
    }
    return count;
}

/* measure_pattern opens the grid of a pattern and counts its cells. */
static attn_status measure_pattern(const attn_pattern *t, cell_grid *grid, attn_pattern_info *info,
                                   text *why)
{
    const attn_status status = open_grid(t, grid, why);
    int64_t head, row, all;
    memset(info, 0, sizeof *info);
    if (status)
        return status;
    info->heads = (int)grid->heads;
    info->rows = grid->rows;
    info->columns = grid->columns;
    info->num_offsets = grid->heads * (grid->rows + 1);
    for (head = 0; head < grid->heads; head++)
        for (row = 0; row < grid->rows; row++) {
            const cell_row at = open_cell_row(grid, head, row);
            info->num_columns += cells_of_row(grid, &at, NULL);
            if (info->num_columns > INT32_MAX)
                return bad(why, ATTN_ERR_OVERFLOW,
                           "the pattern has more cells than int32_t counts");
        }
    all = times(times(grid->heads, grid->rows), grid->columns);
    info->density = all ? (double)info->num_columns / (double)all : 0.0;
    return ATTN_OK;
}

ATTN_API attn_status attn_pattern_measure(const attn_pattern *t, attn_pattern_info *info, char *why,
                                          size_t why_bytes)
{
    text reason = text_in(why, why_bytes);
    cell_grid grid;
    return info ? measure_pattern(t, &grid, info, &reason)
                : bad(&reason, ATTN_ERR_ARG, "info is NULL");
}

static attn_status check_pattern_room(const attn_pattern_info *info, const int32_t *row_offsets,
                                      int64_t num_offsets, const int32_t *columns,
                                      int64_t num_columns, text *why)
{
    const int64_t each = (int64_t)sizeof *columns;
    const area a = area_of_bytes("row_offsets", row_offsets, info->num_offsets * each);
    const area b = area_of_bytes("columns", columns, info->num_columns * each);
    if (!row_offsets || num_offsets < info->num_offsets)
        return bad_numbers(why, ATTN_ERR_WORKSPACE,
                           "num_offsets (#) must be at least #; attn_pattern_measure says how many",
                           NUMBERS(row_offsets ? num_offsets : 0, info->num_offsets));
    if ((!columns && info->num_columns) || num_columns < info->num_columns)
        return bad_numbers(why, ATTN_ERR_WORKSPACE,
                           "num_columns (#) must be at least #; attn_pattern_measure says how many",
                           NUMBERS(columns ? num_columns : 0, info->num_columns));
    return check_pair(&a, &b, why);
}

ATTN_API attn_status attn_pattern_build(const attn_pattern *t, int32_t *row_offsets,
                                        int64_t num_offsets, int32_t *columns, int64_t num_columns,
                                        char *why, size_t why_bytes)
{
    text reason = text_in(why, why_bytes);
    attn_pattern_info info;
    cell_grid grid;
    int64_t head, row, count = 0;
    attn_status status = measure_pattern(t, &grid, &info, &reason);
    if (!status)
        status = check_pattern_room(&info, row_offsets, num_offsets, columns, num_columns, &reason);
    if (status)
        return status;
    for (head = 0; head < grid.heads; head++) {
        *row_offsets++ = (int32_t)count;
        for (row = 0; row < grid.rows; row++) {
            const cell_row at = open_cell_row(&grid, head, row);
            count += cells_of_row(&grid, &at, columns ? columns + count : NULL);
            *row_offsets++ = (int32_t)count;
        }
    }
    return ATTN_OK;
}

ATTN_API attn_status attn_pattern_use(const attn_pattern *t, const int32_t *row_offsets,
                                      const int32_t *columns, attn_params *p)
{
    text why = text_in(NULL, 0);
    cell_grid grid;
    const attn_status status = open_grid(t, &grid, &why);
    if (status || !row_offsets || !columns || !p)
        return status ? status : ATTN_ERR_ARG;
    if (p->seq_len_q != grid.t.seq_len_q || p->seq_len_kv != grid.t.seq_len_kv ||
        (grid.t.num_heads && p->num_heads_q != grid.t.num_heads))
        return ATTN_ERR_ARG;
    memset(&p->block_mask, 0, sizeof p->block_mask);
    p->block_mask.block_q = grid.t.block_q;
    p->block_mask.block_k = grid.t.block_k;
    p->block_mask.row_offsets = row_offsets;
    p->block_mask.columns = columns;
    p->block_mask.csr_stride_batch = ATTN_STRIDE_BROADCAST;
    p->block_mask.csr_stride_head = grid.t.num_heads ? 0 : ATTN_STRIDE_BROADCAST;
    return ATTN_OK;
}

/* src/index.c - attn_index: scores of keys by small heads, and the best keys of each row.
 *
 *     workspace = | alignment | index_run | lists of parts | slot 0 | slot 1 | ...
 *
 * An item is some query rows of a key head of a batch entry, with all heads that read it: row tiles that
 * share tiles of keys. Each tile of keys adds the terms of all heads to the scores of the rows, and a
 * hidden pair adds -inf. A row keeps candidates in the order of their keys. When they are twice as many
 * as the list holds, the threshold rises to the last score that still belongs to it. So no candidates
 * are sorted, and equal scores leave the lower keys. Where items are few, each is some of the keys of its
 * rows, and a second list of items joins the candidates in the order of the parts.
 */

/* ---- the best keys of a row */

/* A shortlist is the candidates of a row, in ascending order of their keys. */
typedef struct shortlist {
    uint32_t *order; /* [2 * kept], by order_of */
    int32_t *key;    /* [2 * kept] */
    int64_t count, kept;
    float least; /* A candidate has a larger score. */
} shortlist;

/* order_of gives a number that is larger for the larger score, which is no NaN and not -0. */
static uint32_t order_of(float score)
{
    const uint32_t bits = bits_of(score);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float score_of(uint32_t order)
{
    return float_of(order >> 31 ? order & 0x7fffffffu : ~order);
}

/* last_order gives the order of the worst of the `kept` best candidates, byte by byte, and in *equal how
 * many of these have it. */
static uint32_t last_order(const shortlist *of, int64_t *equal)
{
    uint32_t order = 0;
    int64_t k;
    int shift;
    *equal = of->kept;
    for (shift = 24; shift >= 0; shift -= 8) {
        uint32_t count[256] = { 0 }, byte = 255;
        for (k = 0; k < of->count; k++)
            if ((of->order[k] ^ order) >> shift >> 8 == 0)
                count[of->order[k] >> shift & 255]++;
        for (; count[byte] < *equal; byte--)
            *equal -= count[byte];
        order |= byte << shift;
    }
    return order;
}

/* shorten leaves the `kept` best of more candidates. */
static void shorten(shortlist *of)
{
    int64_t equal, n = 0, k;
    const uint32_t last = last_order(of, &equal);
    for (k = 0; k < of->count; k++) {
        if (of->order[k] < last || (of->order[k] == last && equal-- <= 0))
            continue;
        of->order[n] = of->order[k];
        of->key[n++] = of->key[k];
    }
    of->count = n;
    of->least = score_of(last);
}

static void add_candidate(shortlist *to, uint32_t order, int32_t key)
{
    to->order[to->count] = order;
    to->key[to->count++] = key;
    if (to->count == 2 * to->kept)
        shorten(to);
}

/* offer_keys takes in the scores of n keys from j on. */
static void offer_keys(shortlist *to, const float *score, int n, int64_t j)
{
    int k;
    for (k = 0; k < n; k++)
        if (score[k] > to->least) /* It may be NaN. */
            add_candidate(to, order_of(score[k]), (int32_t)(j + k));
}

/* join_lists takes in the candidates of later keys. */
static void join_lists(shortlist *to, const shortlist *later)
{
    int64_t k;
    for (k = 0; k < later->count; k++)
        if (score_of(later->order[k]) > to->least)
            add_candidate(to, later->order[k], later->key[k]);
}

/* ---- validation */

#define AT(member) offsetof(attn_indexer, member)

static const call_field indexer_fields[] = {
    { VALUE(activation, F_INT, BY_ALL, 0, ATTN_INDEX_LINEAR), .instead = "0 is relu, 1 is linear" },
    { VALUE(top_k, F_INT64, BY_ALL, 1, INT32_MAX) },
    { GRID(weights, F_F32, BY_ALL, AXIS_BATCH, AXIS_NONE, AXIS_ROW, AXIS_HEAD),
      .stride = { AT(weights_stride_batch), 0, AT(weights_stride_seq), AT(weights_stride_head) } },
    { GRID(keys, F_I32, BY_ALL, AXIS_BATCH, AXIS_HEAD_KV, AXIS_LONGEST_Q, AXIS_TOP),
      .stride = { AT(stride_batch), AT(stride_head), AT(stride_seq) }, .output = OUTPUT_RESULT },
    { GRID(scores, F_F32, BY_ALL, AXIS_BATCH, AXIS_HEAD_KV, AXIS_LONGEST_Q, AXIS_TOP),
      .stride = { AT(stride_batch), AT(stride_head), AT(stride_seq) }, .output = OUTPUT_RESULT },
};
#undef AT

static attn_status check_indexer(const attn_indexer *x, text *why)
{
    const attn_status status = check_values(indexer_fields, COUNT_OF(indexer_fields), x, why);
    return status ? status : check_output_fields(indexer_fields, COUNT_OF(indexer_fields), x, why);
}

/* validate_index turns *p and *x into *pr and *resolved, or says what is wrong. A call of attn_forward
 * would have to ask for an output: lse stands for that. */
OWN_FRAME static attn_status validate_index(const attn_params *p, const attn_indexer *x,
                                            int need_data, problem *pr, attn_indexer *resolved,
                                            text *why)
{
    call_axes axes;
    attn_status status;
    if (!p || !x)
        return bad(why, ATTN_ERR_ARG, p ? "indexer is NULL" : "params is NULL");
    status = refuse_fields(p, BY_INDEX, "attn_index", why);
    status = status ? status : check_indexer(x, why);
    if (status)
        return status;
    pr->p = *p;
    pr->p.lse.data = (void *)(uintptr_t)&not_read;
    status = validate(&pr->p, pr, need_data, why);
    if (status)
        return status;
    if (p->seq_len_kv > INT32_MAX)
        return bad_field(why, ATTN_ERR_ARG, "seq_len_kv", p->seq_len_kv,
                         " exceeds 2^31 - 1, and numbers of keys have 32 bits");
    if (need_data && !x->keys && !is_empty(p))
        return bad(why, ATTN_ERR_ARG, "indexer.keys is NULL");
    *resolved = *x;
    axes = axes_of_call(&pr->p);
    axes.count[AXIS_TOP] = x->top_k;
    settle_workers(&pr->p);
    return resolve_arrays(indexer_fields, COUNT_OF(indexer_fields), resolved, &axes, why);
}

/* check_index_apart is check_call_apart for an indexer, which alone writes. */
OWN_FRAME static attn_status check_index_apart(const attn_params *p, const attn_indexer *x,
                                               const area *memory, text *why)
{
    call_axes axes = axes_in_use(p);
    array_set sets[] = {
        { indexer_fields, COUNT_OF(indexer_fields), x, &axes, .written = OUTPUT_RESULT },
        { call_fields, COUNT_OF(call_fields), p, &axes, .written = 0 },
    };
    axes.count[AXIS_TOP] = x->top_k;
    leave_out_unused(p, &sets[0]);
    leave_out_unused(p, &sets[1]);
    return check_written(sets, COUNT_OF(sets), memory, why);
}

/* ---- the plan */

typedef struct index_layout {
    int64_t rows;                        /* query rows of an item */
    int64_t blocks;                      /* these counted for a key head */
    int64_t parts;                       /* parts of the keys, each with items of its own */
    int64_t kept;                        /* candidates that stay of a row */
    int64_t tiles, weights, sums, lists; /* These are offsets into a slot, */
    int64_t orders, keys, lists_bytes;   /* and these into the lists of an item. */
} index_layout;

/* An index_run lies at the start of the workspace. */
typedef struct index_run {
    call c;
    attn_indexer x;
    index_layout lay;
} index_run;

#define CANDIDATE_BYTES ((int64_t)(sizeof(uint32_t) + sizeof(int32_t)))
#define INDEX_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(index_run)))

/* rows_at_once gives the rows of an item. They fill a row tile, and more of them as long as candidates stay
 * in the L2 cache and each worker has some items. */
static int64_t rows_at_once(const problem *pr, const plan *pl, int64_t top_k)
{
    const attn_params *p = &pr->p;
    const int64_t all = times(times(p->batch, p->num_heads_kv), pr->max_q_len);
    const int64_t share = ceil_div(all, (int64_t)SPLIT_ITEMS * p->num_workers);
    const int64_t room = pl->tuning.item_bytes / times(2 * top_k, CANDIDATE_BYTES);
    const int64_t most = min64(pl->tuning.item_rows / pr->group, min64(room, share));
    return max64(1, min64(pr->max_q_len, max64(most, pl->rows / pr->group)));
}

/* A part has at least this number of keys, and as many as a list keeps. */
#define PART_KEYS_LEAST 2048

/* most_parts counts the parts that keys allow. */
static int64_t most_parts(const problem *pr, const index_layout *lay)
{
    return max64(1, pr->max_kv_len / max64(PART_KEYS_LEAST, lay->kept));
}

/* plan_parts divides keys where items alone leave workers idle. Shorter calls find the memory, too. */
static void plan_parts(const problem *pr, plan *pl, index_layout *lay)
{
    const int64_t wanted = (int64_t)SPLIT_ITEMS * pr->p.num_workers;
    if (pr->p.num_workers == 1 || pl->items == 0)
        return;
    lay->parts = max64(1, min64(wanted / pl->items, most_parts(pr, lay)));
    if (lay->parts > 1)
        pl->shared_bytes = times(wanted, lay->lists_bytes);
}

static void place_lists(index_layout *lay)
{
    const int64_t entries = times(lay->rows, 2 * lay->kept);
    int64_t at = 0;
    place(&at, lay->rows, sizeof(shortlist));
    lay->orders = place(&at, entries, sizeof(uint32_t));
    lay->keys = place(&at, entries, sizeof(int32_t));
    lay->lists_bytes = at;
}

/* plan_index plans a call; `divides` allows parts of keys. */
static void plan_index(const problem *pr, int64_t top_k, int divides, plan *pl, index_layout *lay)
{
    int64_t at;
    memset(pl, 0, sizeof *pl);
    begin_plan(pr, pl, 0);
    plan_masks(&pr->p, pl);
    pl->pitch[VALUES] = 0;
    pl->keys = pr->p.tile_keys;
    lay->kept = max64(1, min64(top_k, pr->max_kv_len));
    lay->rows = rows_at_once(pr, pl, top_k);
    lay->blocks = ceil_div(pr->max_q_len, lay->rows);
    lay->parts = 1;
    pl->item_tiles = (int)min64(ceil_div(times(lay->rows, pr->group), pl->rows), INT32_MAX);
    pl->items = times(times(pr->p.batch, pr->p.num_heads_kv), lay->blocks);
    plan_row_tile(pr, pl);
    plan_slot(pr, pl);
    place_lists(lay);
    if (divides)
        plan_parts(pr, pl, lay);
    at = aligned(pl->slot_bytes);
    lay->tiles = place(&at, pl->item_tiles, sizeof(tile *));
    lay->weights = place(&at, times(pl->item_tiles, pl->rows), sizeof(float));
    lay->sums = place(&at, times(lay->rows, pl->keys), sizeof(float));
    lay->lists = place(&at, lay->lists_bytes, 1);
    pl->slot_bytes = at;
    pl->workers = (int)max64(1, min64(pr->p.num_workers, times(pl->items, lay->parts)));
}

static int64_t index_bytes(const plan *pl, int64_t workers)
{
    return plus(plus(INDEX_BYTES, pl->shared_bytes), times(workers, pl->slot_bytes));
}

/* plan_within_room divides keys only if the memory is there, and returns how many workers run in it. */
static int plan_within_room(const problem *pr, int64_t top_k, int64_t have, plan *pl,
                            index_layout *lay)
{
    plan_index(pr, top_k, 1, pl, lay);
    if (have < index_bytes(pl, 1))
        plan_index(pr, top_k, 0, pl, lay);
    if (have < index_bytes(pl, 1))
        return 0;
    return (int)min64(pl->workers, (have - index_bytes(pl, 0)) / pl->slot_bytes);
}

/* with_rows makes *pr a problem with this number of rows, which may take another kernel set. */
static void with_rows(const attn_params *asked, problem *pr, int64_t rows)
{
    pr->max_q_len = rows;
    pr->p.kernels = asked->kernels;
    pr->p.tile_keys = asked->tile_keys;
    resolve_kernels(pr);
}

/* size_of_index gives the bytes for all workers of a call and of shorter ones. Those of few rows take
 * other kernel sets, and may have more items. */
OWN_FRAME static int64_t size_of_index(const attn_params *p, int64_t top_k, problem *pr)
{
    const int64_t all = pr->max_q_len, few = min64(all, ATTN_KERNEL_MAX_ROWS / pr->group);
    const int64_t lists = times(times(pr->p.batch, pr->p.num_heads_kv), all);
    int64_t most = 0, rows;
    index_layout lay;
    plan pl;
    for (rows = min64(all, 1); rows <= all; rows = rows < few ? rows + 1 : max64(all, rows + 1)) {
        int64_t workers;
        with_rows(p, pr, rows);
        plan_index(pr, top_k, 1, &pl, &lay);
        workers = min64(pr->p.num_workers, max64(1, times(lists, most_parts(pr, &lay))));
        most = max64(most, index_bytes(&pl, workers));
    }
    return most;
}

/* ---- the run */

/* An index_item is what an item works on. */
typedef struct index_item {
    const index_run *run;
    sequence s;
    int64_t head;        /* It is that of the keys. */
    int64_t first, rows; /* They are the first row, and how many there are. */
    shortlist *lists;    /* lists is [rows]. */
    tile **tiles;
    int count;
    float *weights; /* weights is [count][rows of a tile], */
    float *sums;    /* and sums is [rows][keys of a tile]. */
} index_item;

/* item_at tells what rows part `part` of block `index` of rows is about, and where its lists are: those
 * of parts are shared. */
static index_item item_at(const call *c, char *slot, int64_t index, int64_t part)
{
    const index_run *run = (const index_run *)(const void *)c;
    const int64_t pair = index / run->lay.blocks, heads = c->pr.p.num_heads_kv;
    char *const shared = (char *)c->shared + (index * run->lay.parts + part) * run->lay.lists_bytes;
    index_item it = { run, sequence_of(&c->pr.p, pair / heads), pair % heads, .count = 0 };
    it.first = index % run->lay.blocks * run->lay.rows;
    it.rows = max64(0, min64(run->lay.rows, it.s.q_len - it.first));
    it.lists = (shortlist *)(void *)(run->lay.parts > 1 ? shared : slot + run->lay.lists);
    it.tiles = (tile **)(void *)(slot + run->lay.tiles);
    it.weights = (float *)(void *)(slot + run->lay.weights);
    it.sums = (float *)(void *)(slot + run->lay.sums);
    return it;
}

static void empty_lists(const index_item *it)
{
    const index_run *run = it->run;
    char *const base = (char *)it->lists;
    int64_t row;
    for (row = 0; row < it->rows; row++) {
        const int64_t at = row * 2 * run->lay.kept;
        it->lists[row] = (shortlist){ (uint32_t *)(void *)(base + run->lay.orders) + at,
                                      (int32_t *)(void *)(base + run->lay.keys) + at, 0,
                                      run->lay.kept, NEG_INF };
    }
}

/* set_weights sets the weights of the lanes of row tile g, and 0 for unused ones. */
static void set_weights(const index_item *it, int g)
{
    const attn_indexer *x = &it->run->x;
    const tile *t = it->tiles[g];
    float *const w = it->weights + g * t->pl->rows;
    int r;
    for (r = 0; r < t->pl->rows; r++) {
        const lane *l = &t->lanes[r];
        w[r] = l->used ? 1.0f : 0.0f;
        if (l->used && x->weights)
            w[r] = x->weights[t->s.b * x->weights_stride_batch +
                              (t->s.q_row + l->i) * x->weights_stride_seq +
                              l->head * x->weights_stride_head];
    }
}

/* open_row_tiles opens the row tiles of an item. */
static void open_row_tiles(index_item *it, char *slot)
{
    const call *c = &it->run->c;
    const int64_t group = c->pr.group;
    row_choice choice = { it->head * group, group, .count = it->first + it->rows };
    int g;
    for (g = 0; g < c->pl.item_tiles; g++) {
        tile *t = open_tile(c, slot, g);
        t->s = it->s;
        t->kv_head = it->head;
        choice.first = it->first * group + (int64_t)g * c->pl.rows;
        it->tiles[it->count] = t;
        if (set_rows(t, &choice))
            set_weights(it, it->count++);
    }
}

/* weigh_terms makes terms of the products of n keys: weight * max(product, least). NaN stays. */
static void weigh_terms(float *RESTRICT s, const float *RESTRICT weight, float least, int n,
                        int lanes, int rows)
{
    int j, r, i;
    for (j = 0; j < n; j++, s += rows)
        for (r = 0; r < lanes; r += 4)
            for (i = r; i < r + 4; i++) {
                const float x = s[i] < least ? least : s[i];
                s[i] = weight[i] * x;
            }
}

enum { SUM_KEYS = 8 };

/* sum_lanes adds the terms of lanes `from` to `to`-1, which are heads of one row, to the scores of n
 * keys, in the order of the heads. Chains of several keys go side by side. */
static void sum_lanes(float *RESTRICT sum, const float *RESTRICT s, int n, int from, int to,
                      int rows)
{
    int j, k, r;
    for (j = 0; j + SUM_KEYS <= n; j += SUM_KEYS, s += SUM_KEYS * rows) {
        float chain[SUM_KEYS];
        for (k = 0; k < SUM_KEYS; k++)
            chain[k] = sum[j + k];
        for (r = from; r < to; r++)
            for (k = 0; k < SUM_KEYS; k++)
                chain[k] = chain[k] + s[k * rows + r];
        for (k = 0; k < SUM_KEYS; k++)
            sum[j + k] = chain[k];
    }
    for (; j < n; j++, s += rows)
        for (r = from; r < to; r++)
            sum[j] = sum[j] + s[r];
}

/* add_terms adds the terms of a row tile to the scores of keys j0 to j0+n-1. */
static void add_head_terms(const index_item *it, int g, int64_t j0, int n)
{
    const float least = it->run->x.activation == ATTN_INDEX_RELU ? 0.0f : NEG_INF;
    tile *t = it->tiles[g];
    const int rows = t->pl->rows, class = tile_class(t, j0, n);
    float *const s = t->s_tile;
    int r, to, k;
    if (class != ATTN_TILE_EMPTY) {
        tile_logits(t, s, j0, n, ATTN_TILE_FULL, ATTN_LOGITS_SOFTMAX, t->span, NULL);
        weigh_terms(s, it->weights + g * rows, least, n, t->span.end, rows);
    }
    if (class == ATTN_TILE_PARTIAL)
        hide_dead(t, s, j0, n, class);
    for (k = 0; k < n * rows && class == ATTN_TILE_EMPTY; k++)
        s[k] = NEG_INF;
    for (r = 0; r < t->used; r = to) {
        const int64_t i = t->lanes[r].i;
        for (to = r; to < t->used && t->lanes[to].i == i; to++)
            ;
        sum_lanes(it->sums + (i - it->first) * t->pl->keys, s, n, r, to, rows);
    }
}

/* index_keys scores keys j0 to j0+n-1 for all rows of an item. */
static void index_keys(const index_item *it, int64_t j0, int n)
{
    const int keys = it->tiles[0]->pl->keys;
    int64_t row;
    int g;
    memset(it->sums, 0, (size_t)(it->rows * keys) * sizeof *it->sums);
    open_keys(it->tiles[0], j0, n);
    for (g = 0; g < it->count; g++)
        add_head_terms(it, g, j0, n);
    for (row = 0; row < it->rows; row++)
        offer_keys(&it->lists[row], it->sums + row * keys, n, j0);
}

/* write_list writes what a row has found. */
static void write_list(const index_item *it, int64_t row)
{
    const attn_indexer *x = &it->run->x;
    const int64_t at =
        it->s.b * x->stride_batch + it->head * x->stride_head + (it->first + row) * x->stride_seq;
    shortlist *list = &it->lists[row];
    int64_t k;
    if (list->count > list->kept)
        shorten(list);
    for (k = 0; k < x->top_k; k++) {
        const int found = k < list->count;
        x->keys[at + k] = found ? list->key[k] : -1;
        if (x->scores)
            store_f32(x->scores, at + k, found ? score_of(list->order[k]) : NEG_INF);
    }
}

static void search_item(const call *c, char *slot, int64_t index)
{
    const int64_t parts = ((const index_run *)(const void *)c)->lay.parts, part = index % parts;
    index_item it = item_at(c, slot, index / parts, part);
    int64_t j = 0, hi = 0, end, row, keys;
    empty_lists(&it);
    open_row_tiles(&it, slot);
    if (it.count)
        find_span(it.tiles, it.count, &j, &hi);
    keys = hi - j;
    hi = j + keys * (part + 1) / parts;
    j += keys * part / parts;
    for (; j < hi && (j = next_key(it.tiles, it.count, j, hi)) < hi; j = end) {
        end = min64(hi, (j / c->pl.keys + 1) * c->pl.keys);
        index_keys(&it, j, (int)(end - j));
    }
    for (row = 0; row < it.rows && parts == 1; row++)
        write_list(&it, row);
}

/* join_item joins the lists of the parts of a block of rows. */
static void join_item(const call *c, char *slot, int64_t index)
{
    const index_item it = item_at(c, slot, index, 0);
    int64_t part, row;
    for (part = 1; part < it.run->lay.parts; part++) {
        const index_item later = item_at(c, slot, index, part);
        for (row = 0; row < it.rows; row++)
            join_lists(&it.lists[row], &later.lists[row]);
    }
    for (row = 0; row < it.rows; row++)
        write_list(&it, row);
}

static attn_status run_index(index_run *run)
{
    const int64_t blocks = run->c.pl.items;
    const attn_status status = run_items(&run->c, blocks * run->lay.parts, search_item);
    return status || run->lay.parts == 1 ? status : run_items(&run->c, blocks, join_item);
}

/* ---- public functions */

/* A checked_index is a call that has passed its checks. */
typedef struct checked_index {
    problem pr;
    attn_indexer x;
    int64_t have; /* bytes of the workspace */
} checked_index;

/* check_index_call checks everything that can be wrong before a run. */
OWN_FRAME static attn_status check_index_call(const attn_params *p, const attn_indexer *x,
                                              const void *workspace, size_t bytes, checked_index *c,
                                              text *why)
{
    index_layout lay;
    plan pl;
    int workers;
    area a;
    attn_status status = validate_index(p, x, 1, &c->pr, &c->x, why);
    if (status || is_empty(p))
        return status;
    c->have = bytes_given(workspace, bytes);
    workers = plan_within_room(&c->pr, x->top_k, c->have, &pl, &lay);
    if (index_bytes(&pl, 1) >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    if (!workers)
        return too_small(why, c->have, index_bytes(&pl, 1), "attn_index_workspace_size");
    a = area_of_bytes("the workspace", workspace, index_bytes(&pl, workers));
    return check_index_apart(&c->pr.p, &c->x, &a, why);
}

/* open_index sets up the run in its workspace. */
static index_run *open_index(const checked_index *c, void *workspace)
{
    index_run *run = (index_run *)(void *)align_memory(workspace);
    char *const base = (char *)run + aligned((int64_t)sizeof *run);
    run->x = c->x;
    run->c.slot_count = plan_within_room(&c->pr, c->x.top_k, c->have, &run->c.pl, &run->lay);
    run->c.pr = c->pr;
    run->c.pr.factor = c->pr.p.scale; /* Scores are not logits to base 2. */
    run->c.shared = (float *)(void *)base;
    run->c.slots = base + run->c.pl.shared_bytes;
    return run;
}

/* start_index opens the run, NULL where there is nothing to do. */
OWN_FRAME static attn_status start_index(const attn_params *p, const attn_indexer *x,
                                         void *workspace, size_t bytes, index_run **opened)
{
    text why = text_in(NULL, 0);
    checked_index c;
    const attn_status status = check_index_call(p, x, workspace, bytes, &c, &why);
    *opened = status || is_empty(p) ? NULL : open_index(&c, workspace);
    return status;
}

ATTN_API attn_status attn_index(const attn_params *p, const attn_indexer *x, void *workspace,
                                size_t workspace_bytes)
{
    index_run *run;
    const attn_status status = start_index(p, x, workspace, workspace_bytes, &run);
    return status || !run ? status : run_index(run);
}

OWN_FRAME ATTN_API const char *attn_index_check(const attn_params *p, const attn_indexer *x,
                                                const void *workspace, size_t workspace_bytes,
                                                char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    checked_index c;
    return verdict(check_index_call(p, x, workspace, workspace_bytes, &c, &why), buffer, &why);
}

OWN_FRAME ATTN_API attn_status attn_index_workspace_size(const attn_params *p,
                                                         const attn_indexer *x, size_t *bytes)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_indexer resolved;
    int64_t most;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    *bytes = 0;
    status = validate_index(p, x, 0, &pr, &resolved, &why);
    if (status || is_empty(p))
        return status;
    most = size_of_index(p, x->top_k, &pr);
    if (most >= ADDRESS_LIMIT)
        return ATTN_ERR_OVERFLOW;
    *bytes = (size_t)most;
    return ATTN_OK;
}

/* src/dilated/lattice.c - a lattice: the positions first, first + dilation, ... of every segment of a sequence. */

typedef struct lattice {
    int64_t segment, dilation, first;
} lattice;

/* lattice_of gives the lattice of a branch for the head, in a sequence of `positions` positions. */
static lattice lattice_of(const attn_dilated_branch *branch, int64_t head, int64_t positions)
{
    lattice l;
    l.dilation = max64(branch->dilation, 1);
    l.segment = max64(branch->segment ? min64(branch->segment, positions) : positions, 1);
    l.first = (branch->offset + (branch->rotate ? head % l.dilation : 0)) % l.dilation;
    return l;
}

/* step_of counts the positions from one that takes part to the next of its segment. If there is no
 * next one, it is a number that no stride overflows with. */
static int64_t step_of(const lattice *l)
{
    return min64(l->dilation, l->segment);
}

/* taken counts how many of the first `length` positions of a segment take part. */
static int64_t taken(const lattice *l, int64_t length)
{
    return length > l->first ? (length - l->first - 1) / l->dilation + 1 : 0;
}

/* taken_of_all counts how many of `positions` positions take part. */
static int64_t taken_of_all(const lattice *l, int64_t positions)
{
    return positions / l->segment * taken(l, l->segment) + taken(l, positions % l->segment);
}

/* A segments is segments one after the other, whole ones or a part of one, in which some rows take
 * part. */
typedef struct segments {
    int64_t count;
    int64_t first;      /* first is the position of key 0 of the first one. */
    int64_t keys;       /* keys counts the keys of each. */
    int64_t row0, rows; /* Keys row0 to row0 + rows-1 of each are rows. */
} segments;

/* next_segments gives the segments from position `at` on, where rows are positions below `end` of a
 * sequence of `positions`, and returns the position behind them. */
static int64_t next_segments(const lattice *l, int64_t at, int64_t end, int64_t positions,
                             segments *s)
{
    const int64_t begin = at / l->segment * l->segment;
    const int64_t stop = min64(begin + l->segment, positions), to = min64(end, stop);
    s->count = 1;
    s->first = begin + l->first;
    s->keys = taken(l, stop - begin);
    s->row0 = taken(l, at - begin);
    s->rows = taken(l, to - begin) - s->row0;
    if (to - at < l->segment)
        return to;
    s->count = (end - begin) / l->segment;
    return begin + s->count * l->segment;
}

/* ---- the index: positions of each lattice of each branch, one after the other */

/* taken_before counts how many of `length` positions of a segment lie before `first` modulo the
 * dilation. */
static int64_t taken_before(const lattice *l, int64_t length)
{
    return length / l->dilation * l->first + min64(length % l->dilation, l->first);
}

/* index_of_branch counts the entries of one branch: those of all lattices, or of the one of its
 * offset. */
static int64_t index_of_branch(const attn_dilated_branch *branch, int64_t positions)
{
    const lattice l = lattice_of(branch, 0, positions);
    return branch->rotate ? positions : taken_of_all(&l, positions);
}

/* index_of_lattice tells where the lattice's entries begin among those of its branch. */
static int64_t index_of_lattice(const attn_dilated_branch *branch, const lattice *l,
                                int64_t positions)
{
    if (!branch->rotate)
        return 0;
    return positions / l->segment * taken_before(l, l->segment) +
           taken_before(l, positions % l->segment);
}

/* fill_index writes the lattice's entries and returns how many there are. */
static int64_t fill_index(const lattice *l, int64_t positions, int32_t *index)
{
    int64_t begin, at, count = 0;
    for (begin = 0; begin < positions; begin += l->segment)
        for (at = begin + l->first; at < min64(begin + l->segment, positions); at += l->dilation)
            index[count++] = (int32_t)at;
    return count;
}

/* src/dilated/validate.c - dilated attention: every sentence about bad input. */

/* put_branch says "branches[n].field (value)". */
static void put_branch(text *why, int64_t n, const char *field, int64_t value)
{
    put(why, "branches[");
    put_int(why, n);
    put(why, "].");
    put_field(why, field, value);
}

static attn_status check_branch(const attn_dilated_branch *branch, int n, text *why)
{
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        { "segment", branch->segment },       { "dilation", branch->dilation },
        { "offset", branch->offset },         { "head_begin", branch->head_begin },
        { "head_count", branch->head_count },
    };
    int i;
    for (i = 0; i < COUNT_OF(counts); i++) {
        if (counts[i].value >= 0 && counts[i].value <= MOST)
            continue;
        put_branch(why, n, counts[i].name, counts[i].value);
        return bad(why, ATTN_ERR_ARG, " must be from 0 to the largest size of memory");
    }
    if (branch->offset < max64(branch->dilation, 1))
        return ATTN_OK;
    put_branch(why, n, "offset", branch->offset);
    put(why, " must be below its dilation (");
    put_int(why, max64(branch->dilation, 1));
    return bad(why, ATTN_ERR_ARG, ")");
}

/* check_branches checks what is wrong whatever the call. */
static attn_status check_branches(const attn_dilated *d, text *why)
{
    attn_status status = ATTN_OK;
    int n;
    if (!d)
        return bad(why, ATTN_ERR_ARG, "dilated is NULL");
    if (d->merge != ATTN_DILATED_LSE && d->merge != ATTN_DILATED_MEAN)
        return bad_field(why, ATTN_ERR_ARG, "merge", d->merge, " must be 0 (LSE) or 1 (mean)");
    if (d->variant != ATTN_DILATED_STRIDED && d->variant != ATTN_DILATED_GATHERED)
        return bad_field(why, ATTN_ERR_ARG, "variant", d->variant,
                         " must be 0 (strided) or 1 (gathered)");
    if (d->num_branches < 1)
        return bad_field(why, ATTN_ERR_ARG, "num_branches", d->num_branches, " must be at least 1");
    if (!d->branches)
        return bad(why, ATTN_ERR_ARG, "branches is NULL");
    if (d->block_rows < 0 || d->block_rows > MOST)
        return bad_field(why, ATTN_ERR_ARG, "block_rows", d->block_rows,
                         " must be 0 (chosen) or a number of rows");
    for (n = 0; n < d->num_branches && !status; n++)
        status = check_branch(&d->branches[n], n, why);
    return status;
}

/* check_rows_and_heads refuses rows that are no positions, and branches for heads that do not
 * exist. */
static attn_status check_rows_and_heads(const attn_params *p, const attn_dilated *d, text *why)
{
    const int64_t kinds = kinds_of(p);
    int64_t b;
    int n;
    for (b = 0; b < kinds; b++) {
        const sequence s = sequence_of(p, b);
        if (s.q_len > s.kv_len)
            return bad_entry(why, "q_len", b, s.q_len,
                             " exceeds kv_len: rows are the last positions of the sequence");
    }
    for (n = 0; n < d->num_branches; n++) {
        const int64_t begin = d->branches[n].head_begin, count = d->branches[n].head_count;
        if (begin < p->num_heads_q && plus(begin, count) <= p->num_heads_q)
            continue;
        put_branch(why, n, "head_begin", begin);
        put(why, " and ");
        put_field(why, "head_count", count);
        put(why, " exceed ");
        put_field(why, "num_heads_q", p->num_heads_q);
        return bad(why, ATTN_ERR_ARG, ": a branch is for query heads that there are");
    }
    return ATTN_OK;
}

static attn_status check_mean(const attn_params *p, text *why)
{
    if (p->stats.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "stats.data is set, but a mean of branches is no softmax and has none");
    if (p->lse.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "lse.data is set, but a mean of branches is no softmax and has none");
    if (p->sinks || p->softmax1)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "sinks or softmax1 is set, but a mean of branches is no softmax to hold one");
    return ATTN_OK;
}

static attn_status check_index_length(const attn_dilated *d, int64_t positions, text *why)
{
    if (d->variant != ATTN_DILATED_GATHERED)
        return ATTN_OK;
    if (positions > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "kv_len", positions,
                         " exceeds the positions that the gathered variant can index");
    if (d->index && d->index_positions < positions) {
        put_field(why, "index_positions", d->index_positions);
        put(why, " is below the longest sequence (");
        put_int(why, positions);
        return bad(why, ATTN_ERR_ARG, ")");
    }
    return ATTN_OK;
}

/* An outline is what of a problem sizes depend on. */
typedef struct outline {
    int64_t batch, heads, group, dim, dim_v;
    int64_t rows, positions; /* These are those of the longest sequence. */
    int64_t keys;            /* keys counts those whose gradients a run gives. */
    int64_t workers;
    /* Without kernels that are asked for these are the best for the rows. */
    const attn_kernels *kernels;
    int gathered; /* Nonzero means that calls see copies. */
    int empty;
} outline;

/* validate_dilated turns *p into *pr, or says what is wrong with *p or *d; with need_data tensors
 * must be there. */
static attn_status validate_dilated(const attn_params *p, const attn_dilated *d, int need_data,
                                    problem *pr, text *why)
{
    attn_status status = p ? refuse_fields(p, BY_DILATED, "dilated attention", why) : ATTN_OK;
    if (!status)
        status = validate(p, pr, need_data, why);
    if (!status)
        status = check_branches(d, why);
    if (!status)
        status = check_rows_and_heads(&pr->p, d, why);
    if (!status && d->merge == ATTN_DILATED_MEAN)
        status = check_mean(p, why);
    if (!status)
        status = check_index_length(d, pr->max_kv_len, why);
    if (!status)
        settle_workers(&pr->p);
    return status;
}

static void fill_outline(const problem *pr, outline *out)
{
    out->batch = pr->p.batch;
    out->heads = pr->p.num_heads_kv;
    out->group = pr->group;
    out->dim = pr->p.head_dim;
    out->dim_v = pr->p.head_dim_v;
    out->rows = pr->max_q_len;
    out->positions = out->keys = pr->max_kv_len;
    out->workers = pr->p.num_workers;
    out->kernels = pr->p.kernels;
    out->empty = pr->p.batch == 0 || pr->p.seq_len_q == 0;
}

OWN_FRAME static attn_status outline_of(const attn_params *p, const attn_dilated *d, int need_data,
                                        outline *out, text *why)
{
    problem pr;
    attn_status status = validate_dilated(p, d, need_data, &pr, why);
    memset(out, 0, sizeof *out);
    if (!status && need_data)
        status = check_call_apart(&pr.p, NULL, why);
    if (status)
        return status;
    fill_outline(&pr, out);
    out->gathered = d->variant == ATTN_DILATED_GATHERED;
    return status;
}

/* src/dilated/plan.c - the plan of dilated attention: blocks of rows, and what a worker's slot holds.
 *
 *     workspace = | alignment | dilated_run | slot 0 | slot 1 | ...
 *
 * An item is the query heads of a kv head of a batch entry and, strided, a block of rows: blocks begin
 * where a position is a multiple of their size, so that segments of the usual sizes fall into them
 * whole. Sums are the results of a block so far, a part is what one call adds.
 */

/* A block has at least this number of rows times the dilation of a branch, so that row tiles fill
 * up. */
#define BLOCK_LEAST 256
#define BLOCK_MOST 8192                /* That product counts up to this number of rows. */
#define BLOCK_BYTES ((int64_t)1 << 22) /* The sums of a block take about this number of bytes. */
#define BLOCK_ITEMS 4                  /* A worker gets about this number of items. */

typedef struct dilated_layout {
    int64_t block;  /* block counts the rows of an item; 0 means all. */
    int64_t blocks; /* blocks counts the blocks of a kv head. */
    int64_t items;
    int workers;
    int64_t inner_bytes; /* inner_bytes is the workspace of a call. */
    /* These are offsets into a slot, in bytes. */
    int64_t slopes, zeros, sums, part, index, copies[3], inner, slot_bytes;
    int64_t sum_grads[3], part_grads[3], dout; /* The backward call adds these. */
} dilated_layout;

/* A head_class is the query heads of a kv head that take equal positions of a branch: head, head +
 * step, .... */
typedef struct head_class {
    int64_t head, step, heads;
} head_class;

/* class_of gives class number `class` of a kv head in a branch, and returns 0 after the last. */
static int class_of(const attn_dilated_branch *branch, int64_t group, int64_t kv_head,
                    int64_t class, head_class *of)
{
    const int64_t first = kv_head * group;
    const int64_t last = branch->head_count ? branch->head_begin + branch->head_count : TOO_BIG;
    const int64_t begin = max64(first, branch->head_begin), end = min64(first + group, last);
    of->step = branch->rotate ? max64(branch->dilation, 1) : 1;
    of->head = begin + class;
    if (class >= of->step || of->head >= end)
        return 0;
    of->heads = of->step == 1 ? end - begin : ceil_div(end - of->head, of->step);
    return 1;
}

/* class_heads counts the heads of the largest class of a branch. */
static int64_t class_heads(const attn_dilated_branch *branch, int64_t group)
{
    return branch->rotate ? ceil_div(group, max64(branch->dilation, 1)) : group;
}

static int64_t most_dilation(const attn_dilated *d)
{
    int64_t most = 1;
    int n;
    for (n = 0; n < d->num_branches; n++)
        most = max64(most, d->branches[n].dilation);
    return most;
}

static int64_t choose_block(const attn_dilated *d, const outline *out)
{
    const int64_t row_bytes = times(out->group, out->dim_v + 2) * (int64_t)sizeof(float);
    const int64_t wanted = times(BLOCK_LEAST, most_dilation(d));
    int64_t rows = BLOCK_LEAST;
    if (d->block_rows)
        return d->block_rows;
    while (rows < wanted && rows < BLOCK_MOST && 2 * rows * row_bytes <= BLOCK_BYTES)
        rows *= 2;
    while (rows > BLOCK_LEAST && times(times(out->batch, out->heads), ceil_div(out->rows, rows)) <
                                     BLOCK_ITEMS * out->workers)
        rows /= 2;
    return rows;
}

/* space_rows sets q, k or v as calls of a branch see them, with rows a dilation apart. It serves a
 * size query and sets no data. */
static void space_rows(attn_tensor *t, int by_token, int64_t heads, int64_t dim, int64_t dilation)
{
    const int64_t shared = t->stride_head == ATTN_STRIDE_BROADCAST ? 1 : heads;
    const ptrdiff_t stride = stride_or(t->stride_seq, by_token ? times(shared, dim) : dim);
    t->stride_batch = t->stride_head = ATTN_STRIDE_BROADCAST;
    t->stride_seq =
        stride ? to_stride(times(stride < 0 ? -stride : stride, dilation)) : ATTN_STRIDE_BROADCAST;
}

/* The sizes of a call that goes over one kv head. */
static void set_sizes(attn_params *p, int64_t batch, int64_t heads, int64_t rows, int64_t keys)
{
    p->batch = batch;
    p->num_heads_q = heads;
    p->num_heads_kv = 1;
    p->seq_len_q = rows;
    p->seq_len_kv = keys;
}

/* In a call of a branch all rows and keys are in use. */
static void clear_lengths(attn_params *p)
{
    p->q_len = p->kv_len = p->kv_begin = p->cu_seqlens_q = p->cu_seqlens_kv = NULL;
}

/* *p becomes what the largest call of branch n is, as far as sizes depend on it. most: rows of an
 * item; 0 = all. */
static void largest_call(attn_params *p, const attn_dilated *d, const outline *out, int64_t most,
                         int n)
{
    const attn_dilated_branch *branch = &d->branches[n];
    const lattice l = lattice_of(branch, 0, out->positions);
    const int64_t keys = ceil_div(l.segment, l.dilation);
    const int64_t rows = most ? min64(keys, ceil_div(most, l.dilation)) : keys;
    const int64_t step = out->gathered ? 1 : step_of(&l);
    const int by_token_q = !out->gathered && (p->layout || p->cu_seqlens_q);
    const int by_token_kv = !out->gathered && (p->layout || p->cu_seqlens_kv);
    space_rows(&p->q, by_token_q, p->num_heads_q, out->dim, step);
    space_rows(&p->k, by_token_kv, out->heads, out->dim, step);
    space_rows(&p->v, by_token_kv, out->heads, out->dim_v, step);
    set_sizes(p, 1, class_heads(branch, out->group), min64(rows, out->rows), keys);
    clear_lengths(p);
}

/* SHARE_PAIRS gives an array of pairs the strides of one element, where only sizes matter. */
#define SHARE_PAIRS(x)                                                                             \
    ((x).stride_batch = (x).stride_head = (x).stride_q = (x).stride_kv = ATTN_STRIDE_BROADCAST)

/* strip_call clears what only makes sense in the caller's own call. An item calls within its
 * worker. */
static void strip_call(attn_params *p)
{
    p->layout = ATTN_LAYOUT_BHSD;
    memset(&p->o, 0, sizeof p->o);
    memset(&p->lse, 0, sizeof p->lse);
    memset(&p->stats, 0, sizeof p->stats);
    SHARE_PAIRS(p->bias);
    SHARE_PAIRS(p->bool_mask);
    SHARE_PAIRS(p->bit_mask);
    p->q_segments_stride = p->kv_segments_stride = ATTN_STRIDE_BROADCAST;
    p->prefix = NULL;
    p->alibi_stride = ATTN_STRIDE_BROADCAST;
    p->sinks = NULL;
    p->softmax1 = 0;
    p->num_workers = 1;
    p->parallel_for = NULL;
    p->log = NULL;
}

/* size_forward counts the bytes of workspace for the calls of branch n. */
OWN_FRAME static attn_status size_forward(const attn_params *asked, const attn_dilated *d,
                                          const outline *out, int64_t most, int n, size_t *bytes)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_status status;
    pr.p = *asked;
    largest_call(&pr.p, d, out, most, n);
    strip_call(&pr.p);
    status = validate(&pr.p, &pr, 0, &why);
    return status ? status : size_of_call(asked, &pr, &why, bytes);
}

/* place_rows makes room for the states of `rows` rows, or for o and sums of them, as one array. */
static int64_t place_rows(int64_t *at, int64_t rows, int64_t dim_v)
{
    return place(at, times(rows, plus(dim_v, 2)), sizeof(float));
}

/* plan_rows lays out everything of a slot up to the workspace of its calls. */
static void plan_rows(const attn_dilated *d, const outline *out, size_t slot_head,
                      dilated_layout *lay)
{
    const int gathered = lay->block == 0;
    const int64_t all = gathered ? out->rows : min64(lay->block, out->rows);
    const int64_t rows = times(out->group, all), keys = gathered ? out->positions : 0;
    int64_t at = 0;
    place(&at, 1, slot_head);
    lay->slopes = place(&at, out->group, sizeof(float));
    lay->zeros = place(&at, out->dim_v, sizeof(float));
    lay->sums = place_rows(&at, rows, out->dim_v);
    lay->part = place_rows(&at, rows, out->dim_v);
    lay->index = place(&at, d->index ? 0 : keys, sizeof(int32_t));
    lay->copies[0] = place(&at, gathered ? times(rows, out->dim) : 0, sizeof(float));
    lay->copies[1] = place(&at, times(keys, out->dim), sizeof(float));
    lay->copies[2] = place(&at, times(keys, out->dim_v), sizeof(float));
    lay->inner = at;
}

static attn_status plan_inner(const attn_params *p, const attn_dilated *d, const outline *out,
                              dilated_layout *lay)
{
    int n;
    for (n = 0; n < d->num_branches; n++) {
        size_t bytes = 0;
        const attn_status status = size_forward(p, d, out, lay->block, n, &bytes);
        if (status)
            return status;
        lay->inner_bytes = max64(lay->inner_bytes, (int64_t)bytes);
    }
    lay->slot_bytes = plus(lay->inner, aligned(lay->inner_bytes));
    return ATTN_OK;
}

/* plan_blocks counts the items of the forward call; there is one block more where rows do not begin
 * with one. */
static void plan_blocks(const outline *out, dilated_layout *lay)
{
    lay->blocks = lay->block ? ceil_div(out->rows, lay->block) + (out->rows < out->positions) : 1;
    lay->items = times(times(out->batch, out->heads), lay->blocks);
    lay->workers = (int)max64(1, min64(out->workers, lay->items));
}

/* src/dilated/slot.c - a slot: an item walks over branches, classes of heads and segments; a call sees parts of them. */

typedef struct dilated_slot dilated_slot;

typedef struct dilated_run {
    call c; /* It comes first, as items get a pointer to it. */
    attn_dilated d;
    dilated_layout lay;
    /* These are the kernels asked for, as each call has its own number of rows. */
    const attn_kernels *kernels;
    int tile_keys;
    attn_gradients g; /* The backward call has them here with explicit strides. */
    int calls;        /* Nonzero means that something but dsinks is asked for. */
    /* A rank has positions begin to end - 1 of each sequence, and a call without ranks has all. */
    int64_t begin, end;
    /* open_keys sets K and V of the call under way; `ranks` is its own. */
    void (*open_keys)(dilated_slot *w);
    const void *ranks;
} dilated_run;

static const dilated_run *run_of(const call *c)
{
    return (const dilated_run *)(const void *)c;
}

/* A dilated_slot stands at the start of a worker's slot. */
struct dilated_slot {
    attn_params p; /* p is the call under way. */
    attn_gradients g;
    attn_status status; /* status is that of the calls so far. */
    const dilated_run *run;
    const attn_params *asked; /* asked is the problem's. */
    sequence s;
    int64_t kv_head;
    int64_t from, to; /* The rows of this item are positions from to to-1. */
    int64_t before;   /* before is the position of row 0. */
    /* The fields up to offset belong to the call under way. */
    int n; /* n is the branch. */
    int64_t class;
    head_class of;
    lattice l;
    segments at;
    int32_t offset, prefix;
    attn_view view; /* It tells which rows, keys and heads of the caller's these are. */
    /* The fields from here on lie in the slot. */
    char *base;
    float *slopes;
    const int32_t *index;  /* index has the positions of the keys of a gathered call. */
    attn_state sums, part; /* Finished results have lse or statistics from m on. */
    char *inner;
};

#define SLOT_FLOATS(w, offset) ((float *)(void *)((w)->base + (offset)))

static attn_state rows_in(const dilated_slot *w, int64_t offset, int64_t rows)
{
    return packed_states(SLOT_FLOATS(w, offset), rows, w->asked->head_dim_v);
}

/* open_slot begins kv head number `index` of the batch. */
static dilated_slot *open_slot(const call *c, char *base, int64_t index)
{
    dilated_slot *w = (dilated_slot *)(void *)base;
    const dilated_layout *lay = &run_of(c)->lay;
    w->run = run_of(c);
    w->asked = &c->pr.p;
    w->base = base;
    w->slopes = SLOT_FLOATS(w, lay->slopes);
    w->inner = base + lay->inner;
    w->s = sequence_of(w->asked, index / w->asked->num_heads_kv);
    w->kv_head = index % w->asked->num_heads_kv;
    w->s.q_row -= w->run->begin;
    w->s.kv_row -= w->run->begin;
    w->before = w->s.kv_len - w->s.q_len;
    w->from = max64(w->before, w->run->begin);
    w->to = max64(w->from, min64(w->s.kv_len, w->run->end));
    if (w->asked->causal) /* No row sees what follows. */
        w->s.kv_len = max64(w->to, min64(w->s.kv_len, w->s.prefix));
    return w;
}

static int64_t rows_of_item(const dilated_slot *w)
{
    return w->to - w->from;
}

/* open_class opens class `class` of branch n and returns 0 after the last class. */
static int open_class(dilated_slot *w, int n, int64_t class)
{
    const attn_dilated_branch *branch = &w->run->d.branches[n];
    w->n = n;
    w->class = class;
    if (!class_of(branch, w->run->c.pr.group, w->kv_head, class, &w->of))
        return 0;
    w->l = lattice_of(branch, w->of.head, w->s.kv_len);
    return 1;
}

/* end_of_call gives where the rows of a call from position `at` on end at most: segments differ in what
 * they have of a prefix. */
static int64_t end_of_call(const dilated_slot *w, int64_t at)
{
    const int64_t segment = w->l.segment;
    return w->asked->prefix ? min64(w->to, (at / segment + 1) * segment) : w->to;
}

/* each_call makes all calls of branch n, by classes of heads, then by segments. */
static void each_call(dilated_slot *w, int n, void (*take)(dilated_slot *w))
{
    int64_t class, at;
    for (class = 0; open_class(w, n, class); class ++)
        for (at = w->from; at < w->to;) {
            at = next_segments(&w->l, at, end_of_call(w, at), w->s.kv_len, &w->at);
            if (w->at.rows)
                take(w);
        }
}

/* ---- what a call sees of the caller's arrays */

static ptrdiff_t given_stride(ptrdiff_t stride, int64_t times_this)
{
    const ptrdiff_t step = stride * (ptrdiff_t)times_this;
    return step ? step : ATTN_STRIDE_BROADCAST;
}

/* view_of derives the strides of the call from those of the caller's tensor; segments become batch
 * entries. */
static attn_tensor view_of(const dilated_slot *w, const attn_tensor *t, int64_t head, int64_t row)
{
    attn_tensor view = *t;
    const int64_t at = ROW_AT(*t, &w->s, head, row);
    view.data = t->data ? (const char *)t->data + bytes_between(t->dtype, at) : NULL;
    view.stride_batch = given_stride(t->stride_seq, w->at.count > 1 ? w->l.segment : 0);
    view.stride_head = given_stride(t->stride_head, w->of.step);
    view.stride_seq = given_stride(t->stride_seq, step_of(&w->l));
    return view;
}

/* A tensor of the rows of queries. */
static attn_tensor view_rows(const dilated_slot *w, const attn_tensor *t)
{
    const int64_t position = w->at.first + w->at.row0 * w->l.dilation;
    return view_of(w, t, w->of.head, w->s.q_row + position - w->before);
}

/* A tensor of keys. */
static attn_tensor view_keys(const dilated_slot *w, const attn_tensor *t)
{
    return view_of(w, t, w->kv_head, w->s.kv_row + w->at.first);
}

static void open_own_keys(dilated_slot *w)
{
    w->p.k = view_keys(w, &w->asked->k);
    w->p.v = view_keys(w, &w->asked->v);
}

/* view_of_call tells which rows, keys and heads of the caller's the call has. */
static attn_view view_of_call(const dilated_slot *w)
{
    const attn_view v = { .batch = w->s.b,
                          .head = w->of.head,
                          .head_step = w->of.step,
                          .row = w->at.first + w->at.row0 * w->l.dilation - w->before,
                          .key = w->at.first,
                          .step = step_of(&w->l),
                          .entry = w->at.count > 1 ? w->l.segment : 0,
                          .before = w->before };
    return v;
}

/* An array of pairs: returns where its first pair lies, and makes its strides those of the call. */
static int64_t view_pairs(const dilated_slot *w, ptrdiff_t *batch, ptrdiff_t *head, ptrdiff_t *q,
                          ptrdiff_t *kv)
{
    const attn_view *v = &w->view;
    const int64_t column = w->s.column + v->key;
    const int64_t at = v->batch * *batch + v->head * *head + v->row * *q + column * *kv;
    *batch = given_stride(*q + *kv, v->entry);
    *head = given_stride(*head, w->of.step);
    *q = given_stride(*q, step_of(&w->l));
    *kv = given_stride(*kv, step_of(&w->l));
    return at;
}

/* view_mask moves a mask, `each` pairs of which share a byte, and returns which pair of the first byte
 * comes first. */
static int64_t view_mask(const dilated_slot *w, attn_mask *m, int64_t each)
{
    const int64_t at =
        view_pairs(w, &m->stride_batch, &m->stride_head, &m->stride_q, &m->stride_kv);
    const int64_t byte = floor_div(at, each);
    if (m->data)
        m->data += byte;
    return at - byte * each;
}

/* view_masks narrows the masks to the call. Segments are one array for all of its entries, as w->view
 * finds the numbers of rows and keys in it. */
static void view_masks(dilated_slot *w)
{
    const attn_params *asked = w->asked;
    const int64_t begin = w->at.first - w->l.first; /* of the segment, or of the first one */
    attn_params *p = &w->p;
    p->bool_mask = asked->bool_mask;
    p->bit_mask = asked->bit_mask;
    view_mask(w, &p->bool_mask, 1);
    w->view.bit = view_mask(w, &p->bit_mask, 8);
    if (asked->q_segments) {
        p->q_segments = query_ids(asked, &w->s);
        p->kv_segments = key_ids(asked, &w->s);
    }
    if (asked->prefix) {
        w->prefix = (int32_t)taken(&w->l, max64(0, w->s.prefix - begin));
        p->prefix = &w->prefix;
    }
    p->view = &w->view;
}

static void view_modifiers(dilated_slot *w)
{
    attn_bias bias = w->asked->bias;
    int64_t at, h;
    at = view_pairs(w, &bias.stride_batch, &bias.stride_head, &bias.stride_q, &bias.stride_kv);
    if (bias.data)
        bias.data = (const char *)bias.data + at * (int64_t)bytes_of(bias.dtype);
    w->p.bias = bias;
    for (h = 0; h < w->of.heads && w->asked->alibi_slopes; h++)
        w->slopes[h] =
            w->asked->alibi_slopes[w->s.b * w->asked->alibi_stride + w->of.head + h * w->of.step];
    w->p.alibi_slopes = w->asked->alibi_slopes ? w->slopes : NULL;
}

/* open_pairs makes w->p the call, except for tensors. */
static void open_pairs(dilated_slot *w)
{
    attn_params *p = &w->p;
    *p = *w->asked;
    strip_call(p);
    set_sizes(p, w->at.count, w->of.heads, w->at.rows, w->at.keys);
    clear_lengths(p);
    p->kernels = w->run->kernels;
    p->tile_keys = w->run->tile_keys;
    w->view = view_of_call(w);
    view_masks(w);
    view_modifiers(w);
    if (w->at.rows == w->at.keys)
        return;
    w->offset = (int32_t)w->at.row0; /* There is one segment then. */
    p->alignment = ATTN_ALIGN_OFFSET;
    p->q_offset = &w->offset;
}

/* open_call makes w->p the call, except where results go. */
static void open_call(dilated_slot *w)
{
    open_pairs(w);
    w->p.q = view_rows(w, &w->asked->q);
    w->run->open_keys(w);
}

static void run_call(dilated_slot *w)
{
    if (!w->status)
        w->status = forward_cpu(&w->p, w->inner, (size_t)w->run->lay.inner_bytes);
}

/* ask_results says where a call's finished results go: f32, packed. */
static void ask_results(dilated_slot *w)
{
    memset(&w->p.o, 0, sizeof w->p.o);
    w->p.o.data = w->part.o;
}

/* A call_row is row number `row` of a call. */
typedef struct call_row {
    int64_t head, position; /* head is its query head. */
    int64_t key;            /* It is key number `key` of the keys of all segments. */
    int64_t sum;            /* Its results go to row number `sum` of the sums. */
    int64_t row;
} call_row;

static void each_row(dilated_slot *w, void (*take)(dilated_slot *w, const call_row *at))
{
    const int64_t group = w->run->c.pr.group;
    int64_t e, h, i, row = 0;
    for (e = 0; e < w->at.count; e++)
        for (h = 0; h < w->of.heads; h++)
            for (i = w->at.row0; i < w->at.row0 + w->at.rows; i++) {
                const int64_t head = w->of.head + h * w->of.step, first = w->kv_head * group;
                const int64_t position = w->at.first + e * w->l.segment + i * w->l.dilation;
                const int64_t sum = (head - first) * rows_of_item(w) + position - w->from;
                const call_row at = { head, position, e * w->at.keys + i, sum, row++ };
                take(w, &at);
            }
}

/* src/dilated/results.c - the results of a block of rows, branch by branch. */

/* branches_of_head counts the branches of a mean that query head h has. */
static int branches_of_head(const attn_dilated *d, int64_t h)
{
    int n, count = 0;
    for (n = 0; n < d->num_branches; n++) {
        const attn_dilated_branch *branch = &d->branches[n];
        count += h >= branch->head_begin &&
                 (!branch->head_count || h < branch->head_begin + branch->head_count);
    }
    return count;
}

static void clear_sums(dilated_slot *w)
{
    const int64_t rows = w->run->c.pr.group * rows_of_item(w);
    w->sums = rows_in(w, w->run->lay.sums, rows);
    w->part = rows_in(w, w->run->lay.part, rows);
    clear_states(&w->sums);
}

static void add_mean(dilated_slot *w, const call_row *at)
{
    const int64_t dim = w->asked->head_dim_v;
    add_floats(w->sums.o + at->sum * dim, w->part.o + at->row * dim, dim);
}

/* place_of gives the element offset of a row of the item in an output of the caller's. */
static int64_t place_of(const dilated_slot *w, const attn_output *t, int64_t head, int64_t i)
{
    return ROW_AT(*t, &w->s, head, w->s.q_row + w->from - w->before + i);
}

/* store_results stores n results as outputs have them: NaN is canonical, and -0 does not occur. */
static void store_results(const dilated_slot *w, const attn_output *to, int64_t at, float *from,
                          int64_t n)
{
    int64_t d;
    for (d = 0; d < n; d++)
        from[d] = is_nan(from[d]) ? float_of(CANONICAL_NAN) : from[d] + 0.0f;
    store_run(w->asked->kernels, to->dtype, to->data, at, from, n);
}

/* store_sum stores o of row number `sum` of the sums, and lse. */
static void store_sum(const dilated_slot *w, int64_t head, int64_t i, int64_t sum)
{
    const attn_output *o = &w->asked->o, *lse = &w->asked->lse;
    const int64_t dim = w->asked->head_dim_v;
    if (o->data)
        store_results(w, o, place_of(w, o, head, i), w->sums.o + sum * dim, dim);
    if (lse->data)
        store_results(w, lse, place_of(w, lse, head, i), w->sums.m + sum, 1);
}

/* store_sums calls `finish` for each row of the item, then stores it. */
static void store_sums(dilated_slot *w, void (*finish)(dilated_slot *w, int64_t head, int64_t sum))
{
    const int64_t group = w->run->c.pr.group, rows = rows_of_item(w);
    int64_t h, i;
    for (h = 0; h < group; h++)
        for (i = 0; i < rows; i++) {
            finish(w, w->kv_head * group + h, h * rows + i);
            store_sum(w, w->kv_head * group + h, i, h * rows + i);
        }
}

static void divide_sum(dilated_slot *w, int64_t head, int64_t sum)
{
    const int64_t dim = w->asked->head_dim_v;
    const float count = (float)max64(1, branches_of_head(&w->run->d, head));
    float *o = w->sums.o + sum * dim;
    int64_t d;
    for (d = 0; d < dim; d++)
        o[d] = o[d] / count;
}

/* src/dilated/strided.c - strided branches: attention in place, by strides; states merge. */

static void merge_state(dilated_slot *w, const call_row *at)
{
    attn_state a = state_at(&w->sums, at->sum, w->asked->head_dim_v);
    const attn_state b = state_at(&w->part, at->row, w->asked->head_dim_v);
    a.num_rows = 1;
    merge_states(&a, &b, &a);
}

static void strided_call(dilated_slot *w)
{
    const int mean = w->run->d.merge == ATTN_DILATED_MEAN;
    open_call(w);
    if (mean) {
        ask_results(w);
    } else {
        w->p.partial = 1;
        w->p.state = w->part;
    }
    run_call(w);
    each_row(w, mean ? add_mean : merge_state);
}

/* output_from gives an output of the caller's from the first row of the item and head `head` on. */
static attn_output output_from(const dilated_slot *w, const attn_output *t, int64_t head)
{
    attn_output from = *t;
    from.stride_batch = 0;
    if (t->data)
        from.data = (char *)t->data + place_of(w, t, head, 0) * (int64_t)bytes_of(t->dtype);
    return from;
}

/* The sums of an item are states, which finish_states turns into results with the sink. */
static void finish_states(dilated_slot *w)
{
    const int64_t head = w->kv_head * w->run->c.pr.group;
    attn_params *p = &w->p;
    memset(p, 0, sizeof *p);
    set_sizes(p, 1, w->run->c.pr.group, rows_of_item(w), 0);
    p->head_dim = p->head_dim_v = w->asked->head_dim_v;
    p->o = output_from(w, &w->asked->o, head);
    p->lse = output_from(w, &w->asked->lse, head);
    p->stats = output_from(w, &w->asked->stats, head);
    p->sinks = w->asked->sinks ? w->asked->sinks + head : NULL;
    p->softmax1 = w->asked->softmax1;
    p->dropout_p = w->asked->dropout_p;
    p->rotated = w->asked->rotated;
    p->kernels = w->asked->kernels;
    if (attn_state_finish(p, &w->sums))
        w->status = ATTN_ERR_ARG;
}

static void strided_item(const call *c, char *base, int64_t index)
{
    const dilated_layout *lay = &run_of(c)->lay;
    dilated_slot *w = open_slot(c, base, index / lay->blocks);
    const int64_t begin = (w->from / lay->block + index % lay->blocks) * lay->block;
    int n;
    w->from = max64(w->from, begin);
    w->to = min64(w->to, begin + lay->block);
    if (w->from >= w->to)
        return;
    clear_sums(w);
    for (n = 0; n < w->run->d.num_branches; n++)
        each_call(w, n, strided_call);
    if (w->run->d.merge == ATTN_DILATED_MEAN)
        store_sums(w, divide_sum);
    else
        finish_states(w);
}

/* src/dilated/gathered.c - gathered branches: the plain variant.
 *
 * For every branch the positions that take part are copied from q, k, v, attention runs on the copies,
 * and its results, scattered, merge by their LSE with the results so far.
 */

/* index_in_call points to the lattice's positions, from those of the call's first segment on. */
static const int32_t *index_in_call(const dilated_slot *w)
{
    const attn_dilated *d = &w->run->d;
    const attn_dilated_branch *branch = &d->branches[w->n];
    const lattice whole = lattice_of(branch, w->of.head, d->index_positions);
    int32_t *made = (int32_t *)(void *)(w->base + w->run->lay.index);
    int64_t at = w->at.first / w->l.segment * taken(&w->l, w->l.segment);
    int n;
    if (!d->index) {
        fill_index(&w->l, w->s.kv_len, made);
        return made + at;
    }
    for (n = 0; n < w->n; n++)
        at += index_of_branch(&d->branches[n], d->index_positions);
    return d->index + at + index_of_lattice(branch, &whole, d->index_positions);
}

/* copy_row copies one row of an input, dim elements, to row number `row` of copies. */
static void copy_row(const dilated_slot *w, const attn_tensor *t, int64_t head, int64_t from,
                     int64_t dim, char *copies, int64_t row)
{
    const int64_t bytes = room_of(t->dtype, dim), at = ROW_AT(*t, &w->s, head, from);
    memcpy(copies + row * bytes, (const char *)t->data + bytes_between(t->dtype, at),
           (size_t)bytes);
}

/* packed_copies describes the copies as the call now has them, packed. */
static attn_tensor packed_copies(const attn_tensor *t, const char *copies)
{
    const attn_tensor packed = { .dtype = t->dtype, .data = copies };
    return packed;
}

static void gather_keys(dilated_slot *w)
{
    const attn_params *p = w->asked;
    char *k = w->base + w->run->lay.copies[1], *v = w->base + w->run->lay.copies[2];
    int64_t j;
    for (j = 0; j < w->at.count * w->at.keys; j++) {
        copy_row(w, &p->k, w->kv_head, w->s.kv_row + w->index[j], p->head_dim, k, j);
        copy_row(w, &p->v, w->kv_head, w->s.kv_row + w->index[j], p->head_dim_v, v, j);
    }
    w->p.k = packed_copies(&p->k, k);
    w->p.v = packed_copies(&p->v, v);
}

static void gather_row(dilated_slot *w, const call_row *at)
{
    const int64_t row = w->s.q_row + w->index[at->key] - w->before;
    copy_row(w, &w->asked->q, at->head, row, w->asked->head_dim, w->base + w->run->lay.copies[0],
             at->row);
}

static void merge_result(dilated_slot *w, const call_row *at)
{
    const int64_t dim = w->asked->head_dim_v;
    float *o = w->sums.o + at->sum * dim, *lse = w->sums.m + at->sum;
    merge_results(1, dim, o, lse, w->part.o + at->row * dim, w->part.m + at->row, o, lse);
}

static void gathered_call(dilated_slot *w)
{
    const int mean = w->run->d.merge == ATTN_DILATED_MEAN;
    w->index = index_in_call(w);
    open_call(w);
    gather_keys(w);
    each_row(w, gather_row);
    w->p.q = packed_copies(&w->asked->q, w->base + w->run->lay.copies[0]);
    ask_results(w);
    w->p.lse.data = mean ? NULL : w->part.m;
    run_call(w);
    each_row(w, mean ? add_mean : merge_result);
}

/* A sink merges as a key without a value. */
static void merge_head_sink(dilated_slot *w, int64_t head, int64_t sum)
{
    const int64_t dim = w->asked->head_dim_v;
    const float sink = sink_of(w->asked, head);
    float *o = w->sums.o + sum * dim, *lse = w->sums.m + sum;
    merge_results(1, dim, o, lse, SLOT_FLOATS(w, w->run->lay.zeros), &sink, o, lse);
}

static void gathered_item(const call *c, char *base, int64_t index)
{
    dilated_slot *w = open_slot(c, base, index);
    int n;
    memset(SLOT_FLOATS(w, w->run->lay.zeros), 0, (size_t)w->asked->head_dim_v * sizeof(float));
    clear_sums(w);
    for (n = 0; n < w->run->d.num_branches; n++)
        each_call(w, n, gathered_call);
    store_sums(w, w->run->d.merge == ATTN_DILATED_MEAN ? divide_sum : merge_head_sink);
}

/* src/dilated/forward.c - dilated attention, forward: items and public functions. */

#define RUN_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(dilated_run)))

/* dilated_bytes counts the bytes of workspace, 0 where there is nothing to run. */
static int64_t dilated_bytes(const dilated_layout *lay, int workers)
{
    return lay->slot_bytes ? plus(RUN_BYTES, times(workers, lay->slot_bytes)) : 0;
}

/* check_dilated_room tells whether the plan fits into `have` bytes; `query` is the function that
 * says how many are best. */
static attn_status check_dilated_room(const dilated_layout *lay, int64_t have, const char *query,
                                      text *why)
{
    const int64_t least = dilated_bytes(lay, 1);
    if (dilated_bytes(lay, lay->workers) >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    return have >= least ? ATTN_OK : too_small(why, have, least, query);
}

static attn_status plan_dilated(const attn_params *p, const attn_dilated *d, const outline *out,
                                dilated_layout *lay, text *why)
{
    if (d->variant == ATTN_DILATED_STRIDED)
        lay->block = choose_block(d, out);
    plan_rows(d, out, sizeof(dilated_slot), lay);
    plan_blocks(out, lay);
    if (plan_inner(p, d, out, lay))
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace of a branch exceeds the address space");
    return ATTN_OK;
}

/* Statistics are refused here and not by validate_dilated, as the gradients of a gathered call take
 * them. */
static attn_status check_gathered(const attn_params *p, const attn_dilated *d, text *why)
{
    if (d->variant == ATTN_DILATED_GATHERED && p->stats.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "stats.data is set, but the gathered variant merges by the LSE and has none");
    return ATTN_OK;
}

/* check_dilated checks everything that can be wrong before a run in `have` bytes. */
static attn_status check_dilated(const attn_params *p, const attn_dilated *d, int need_data,
                                 int64_t have, dilated_layout *lay, text *why)
{
    outline out;
    attn_status status = outline_of(p, d, need_data, &out, why);
    memset(lay, 0, sizeof *lay);
    if (!status)
        status = check_gathered(p, d, why);
    if (status || out.empty)
        return status;
    status = plan_dilated(p, d, &out, lay, why);
    return status ? status : check_dilated_room(lay, have, "attn_dilated_workspace_size", why);
}

/* check_dilated_memory wants the workspace to lie apart, in a call that has passed its checks. */
OWN_FRAME static attn_status check_dilated_memory(const attn_params *p, const attn_dilated *d,
                                                  const void *workspace, int64_t bytes, text *why)
{
    problem pr;
    validate_dilated(p, d, 1, &pr, why);
    return check_workspace_apart(&pr.p, workspace, bytes, why);
}

/* check_dilated_run checks everything that can be wrong before a run. */
static attn_status check_dilated_run(const attn_params *p, const attn_dilated *d,
                                     const void *workspace, size_t workspace_bytes,
                                     dilated_layout *lay, text *why)
{
    const int64_t have = bytes_given(workspace, workspace_bytes);
    const attn_status status = check_dilated(p, d, 1, have, lay, why);
    if (status || !lay->slot_bytes)
        return status;
    return check_dilated_memory(p, d, workspace, min64(have, dilated_bytes(lay, lay->workers)),
                                why);
}

ATTN_API const char *attn_dilated_check(const attn_params *p, const attn_dilated *d,
                                        const void *workspace, size_t workspace_bytes, char *buffer,
                                        size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    dilated_layout lay;
    return verdict(check_dilated_run(p, d, workspace, workspace_bytes, &lay, &why), buffer, &why);
}

ATTN_API attn_status attn_dilated_workspace_size(const attn_params *p, const attn_dilated *d,
                                                 size_t *bytes)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_dilated(p, d, 0, ADDRESS_LIMIT, &lay, &why);
    *bytes = status ? 0 : (size_t)dilated_bytes(&lay, lay.workers);
    return status;
}

static dilated_slot *slot_of(const dilated_run *run, int worker)
{
    return (dilated_slot *)(void *)(run->c.slots + worker * run->lay.slot_bytes);
}

/* open_run sets up the run in its workspace, for a call that has passed its checks. */
static dilated_run *open_run(const attn_params *p, const attn_dilated *d, const dilated_layout *lay,
                             void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    char *base = align_memory(workspace);
    dilated_run *run = (dilated_run *)(void *)base;
    const int64_t have = bytes_given(workspace, bytes);
    int i;
    memset(run, 0, sizeof *run);
    validate_dilated(p, d, 1, &run->c.pr, &why);
    run->d = *d;
    run->lay = *lay;
    run->kernels = p->kernels;
    run->tile_keys = p->tile_keys;
    run->end = TOO_BIG;
    run->open_keys = open_own_keys;
    run->c.pl.slot_bytes = lay->slot_bytes;
    run->c.slot_count = (int)min64(lay->workers, (have - RUN_BYTES) / lay->slot_bytes);
    run->c.slots = base + aligned((int64_t)sizeof *run);
    for (i = 0; i < run->c.slot_count; i++)
        slot_of(run, i)->status = ATTN_OK;
    return run;
}

static attn_status run_list(dilated_run *run,
                            void (*item)(const call *c, char *slot, int64_t index))
{
    attn_status status = run_items(&run->c, run->lay.items, item);
    int i;
    for (i = 0; i < run->c.slot_count && !status; i++)
        status = slot_of(run, i)->status;
    return status;
}

/* prepare_forward checks a call and makes *run ready, or NULL if there is nothing to run. */
OWN_FRAME static attn_status prepare_forward(const attn_params *p, const attn_dilated *d,
                                             void *workspace, size_t bytes, dilated_run **run)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    const attn_status status = check_dilated_run(p, d, workspace, bytes, &lay, &why);
    *run = status || !lay.slot_bytes ? NULL : open_run(p, d, &lay, workspace, bytes);
    return status;
}

ATTN_API attn_status attn_dilated_forward(const attn_params *p, const attn_dilated *d,
                                          void *workspace, size_t workspace_bytes)
{
    dilated_run *run;
    const attn_status status = prepare_forward(p, d, workspace, workspace_bytes, &run);
    if (!run)
        return status;
    return run_list(run, d->variant == ATTN_DILATED_STRIDED ? strided_item : gathered_item);
}

ATTN_API int64_t attn_dilated_index_size(const attn_dilated *d, int64_t positions)
{
    text why = text_in(NULL, 0);
    int64_t entries = 0;
    int n;
    if (check_branches(d, &why) || positions < 0 || positions > INT32_MAX)
        return 0;
    for (n = 0; n < d->num_branches; n++)
        entries = plus(entries, index_of_branch(&d->branches[n], positions));
    return entries;
}

ATTN_API attn_status attn_dilated_index(const attn_dilated *d, int64_t positions, int32_t *index,
                                        int64_t entries)
{
    text why = text_in(NULL, 0);
    attn_status status = check_branches(d, &why);
    int n;
    if (!status && (positions < 0 || positions > INT32_MAX))
        status = ATTN_ERR_ARG;
    if (!status && (!index || entries < attn_dilated_index_size(d, positions)))
        status = ATTN_ERR_WORKSPACE;
    for (n = 0; !status && n < d->num_branches; n++) {
        const attn_dilated_branch *branch = &d->branches[n];
        lattice l = lattice_of(branch, 0, positions);
        if (!branch->rotate)
            index += fill_index(&l, positions, index);
        for (l.first = 0; branch->rotate && l.first < min64(l.dilation, l.segment); l.first++)
            index += fill_index(&l, positions, index);
    }
    return status;
}

/* src/dilated/backward.c - dilated attention, backward: the gradients of the branches, added up.
 *
 * The gradients of a branch are those of attn_backward, which computes probabilities from the
 * statistics or the LSE that it is given: here those of all branches. With a mean, branches have an o
 * and statistics of their own, computed again, and the gradient of o divided by their number.
 */

/* dq, dk and dv. */
enum { GRAD_Q, GRAD_K, GRAD_V, GRADS };

static const attn_output *grad_of(const attn_gradients *g, int which)
{
    return which == GRAD_Q ? &g->dq : which == GRAD_K ? &g->dk : &g->dv;
}

static attn_status check_wanted(const attn_params *p, const attn_dilated *d,
                                const attn_gradients *g, text *why)
{
    const int naive = p->impl == ATTN_IMPL_NAIVE || p->impl == ATTN_IMPL_AUTO;
    if (!g)
        return bad(why, ATTN_ERR_ARG, "gradients is NULL");
    if (naive && d->merge == ATTN_DILATED_LSE) /* It would take the sums of each branch. */
        return bad_field(
            why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
            " must be tiled for gradients of merged branches: naive reads neither stats nor lse");
    if (g->dbias.data || g->dslopes)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "dbias or dslopes is asked for, but there are dq, dk, dv and dsinks alone");
    if (d->merge == ATTN_DILATED_MEAN && g->dlse.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "dlse.data is set, but a mean of branches has no lse");
    return ATTN_OK;
}

/* validate_gradients turns *p and *d into *pr and *g into *resolved, or says what is wrong with
 * them. A mean does not need o and stats, just as the textbook does not. */
static attn_status validate_gradients(const attn_params *p, const attn_dilated *d,
                                      const attn_gradients *g, int need_data, problem *pr,
                                      attn_gradients *resolved, text *why)
{
    attn_status status = validate_dilated(p, d, need_data, pr, why);
    if (!status)
        status = check_wanted(p, d, g, why);
    if (status)
        return status;
    pr->p = *p;
    if (d->merge == ATTN_DILATED_MEAN)
        pr->p.impl = ATTN_IMPL_NAIVE;
    status = validate_backward(&pr->p, g, need_data, pr, resolved, why);
    pr->p.impl = p->impl;
    return status;
}

OWN_FRAME static attn_status outline_backward(const attn_params *p, const attn_dilated *d,
                                              const attn_gradients *g, int need_data, outline *out,
                                              text *why)
{
    attn_gradients resolved;
    problem pr;
    const attn_status status = validate_gradients(p, d, g, need_data, &pr, &resolved, why);
    memset(out, 0, sizeof *out);
    if (!status)
        fill_outline(&pr, out);
    return status;
}

/* plan_sum_grads lays out a slot: the sums of dq, dk, dv of a kv head, what a call adds, and with a
 * mean its o, statistics and dout. */
static void plan_sum_grads(const attn_dilated *d, const outline *out, const attn_gradients *g,
                           dilated_layout *lay)
{
    const int64_t rows = times(out->group, out->rows), keys = out->keys;
    const int64_t mean_rows = d->merge == ATTN_DILATED_MEAN ? rows : 0;
    const int64_t floats[3] = { times(rows, out->dim), times(keys, out->dim),
                                times(keys, out->dim_v) };
    int64_t at = 0;
    int which;
    place(&at, 1, sizeof(dilated_slot));
    lay->slopes = place(&at, out->group, sizeof(float));
    for (which = GRAD_Q; which < GRADS; which++) {
        const int64_t count = grad_of(g, which)->data ? floats[which] : 0;
        lay->sum_grads[which] = place(&at, count, sizeof(float));
        lay->part_grads[which] = place(&at, count, sizeof(float));
    }
    lay->part = place_rows(&at, mean_rows, out->dim_v);
    lay->dout = place(&at, times(mean_rows, out->dim_v), sizeof(float));
    lay->inner = at;
}

/* PACK_STRIDES makes a tensor or output packed, where strides do not matter. */
#define PACK_STRIDES(t) ((t).stride_batch = (t).stride_head = (t).stride_seq = 0)

/* part_of_wanted sets what calls of a branch ask for, as far as sizes depend on it. */
static void part_of_wanted(attn_gradients *part, const attn_gradients *g)
{
    *part = *g;
    part->dsinks = NULL;
    PACK_STRIDES(part->dout);
    PACK_STRIDES(part->dlse);
    PACK_STRIDES(part->dq);
    PACK_STRIDES(part->dk);
    PACK_STRIDES(part->dv);
}

/* size_backward counts the bytes of workspace for the calls of branch n. As a special case, n =
 * num_branches means the call of dsinks. */
OWN_FRAME static attn_status size_backward(const attn_params *asked, const attn_dilated *d,
                                           const outline *out, const attn_gradients *g, int n,
                                           size_t *bytes)
{
    text why = text_in(NULL, 0);
    attn_gradients part;
    problem pr;
    attn_status status;
    pr.p = *asked;
    memset(&part, 0, sizeof part);
    part.dsinks = g->dsinks;
    if (n < d->num_branches) {
        part_of_wanted(&part, g);
        largest_call(&pr.p, d, out, 0, n);
        strip_call(&pr.p);
        pr.p.batch =
            max64(1, out->positions / lattice_of(&d->branches[n], 0, out->positions).segment);
        pr.p.kernels = out->kernels;
    }
    pr.p.num_workers = 1;
    pr.p.parallel_for = NULL;
    status = validate(&pr.p, &pr, 0, &why);
    if (!status)
        *bytes = (size_t)least_bytes(&pr, &part, asked);
    return status;
}

static attn_status plan_backward_calls(const attn_params *p, const attn_dilated *d,
                                       const outline *out, const attn_gradients *g,
                                       dilated_layout *lay, text *why)
{
    int n;
    for (n = 0; n <= d->num_branches; n++) {
        size_t bytes = 0, forward = 0;
        attn_status status =
            n < d->num_branches || g->dsinks ? size_backward(p, d, out, g, n, &bytes) : ATTN_OK;
        if (!status && n < d->num_branches && d->merge == ATTN_DILATED_MEAN)
            status = size_forward(p, d, out, 0, n, &forward);
        if (status)
            return bad(why, ATTN_ERR_OVERFLOW,
                       "the workspace of a branch exceeds the address space");
        lay->inner_bytes = max64(lay->inner_bytes, (int64_t)(bytes > forward ? bytes : forward));
    }
    lay->slot_bytes = plus(lay->inner, aligned(lay->inner_bytes));
    plan_blocks(out, lay);
    return ATTN_OK;
}

static attn_status check_dilated_backward(const attn_params *p, const attn_dilated *d,
                                          const attn_gradients *g, int need_data, int64_t have,
                                          dilated_layout *lay, text *why)
{
    outline out;
    attn_status status = outline_backward(p, d, g, need_data, &out, why);
    if (status)
        return status;
    memset(lay, 0, sizeof *lay);
    plan_sum_grads(d, &out, g, lay);
    status = plan_backward_calls(p, d, &out, g, lay, why);
    return status ? status
                  : check_dilated_room(lay, have, "attn_dilated_backward_workspace_size", why);
}

OWN_FRAME static attn_status check_dilated_gradients_memory(const attn_params *p,
                                                            const attn_dilated *d,
                                                            const attn_gradients *g,
                                                            const area *memory, text *why)
{
    attn_gradients resolved;
    problem pr;
    validate_gradients(p, d, g, 1, &pr, &resolved, why);
    return check_gradients_apart(&pr.p, &resolved, memory, why);
}

static attn_status check_dilated_backward_run(const attn_params *p, const attn_dilated *d,
                                              const attn_gradients *g, const void *workspace,
                                              size_t workspace_bytes, dilated_layout *lay,
                                              text *why)
{
    const int64_t have = bytes_given(workspace, workspace_bytes);
    const attn_status status = check_dilated_backward(p, d, g, 1, have, lay, why);
    area a;
    if (status)
        return status;
    a = area_of_bytes("the workspace", workspace, min64(have, dilated_bytes(lay, lay->workers)));
    return check_dilated_gradients_memory(p, d, g, &a, why);
}

/* ---- a call */

static int64_t grad_dim(const dilated_slot *w, int which)
{
    return which == GRAD_V ? w->asked->head_dim_v : w->asked->head_dim;
}

/* view_output gives an output of the caller's that the call only reads. Axes that views broadcast
 * have length 1. */
static attn_output view_output(const dilated_slot *w, const attn_output *t)
{
    const attn_tensor whole = as_tensor(t), view = view_rows(w, &whole);
    attn_output o = *t;
    o.data = t->data ? (char *)t->data + ((const char *)view.data - (const char *)t->data) : NULL;
    o.stride_batch = stride_or(view.stride_batch, 0);
    o.stride_head = stride_or(view.stride_head, 0);
    o.stride_seq = stride_or(view.stride_seq, 0);
    return o;
}

/* share_dout gives a branch its share of a row of dout, which is over the number of branches, as f32. */
static void share_dout(const dilated_slot *w, const call_row *at, float *to)
{
    const attn_tensor *dout = &w->run->g.dout;
    const int64_t dim = w->asked->head_dim_v, row = w->s.q_row + at->position - w->before;
    const float count = (float)branches_of_head(&w->run->d, at->head);
    int64_t d;
    load_run(w->asked->kernels, dout->dtype, to, dout->data, ROW_AT(*dout, &w->s, at->head, row),
             dim);
    for (d = 0; d < dim; d++)
        to[d] = to[d] / count;
}

static void prepare_mean_row(dilated_slot *w, const call_row *at)
{
    share_dout(w, at, SLOT_FLOATS(w, w->run->lay.dout) + at->row * w->asked->head_dim_v);
}

/* prepare_mean gives the call the branch's own o and statistics, and its share of dout. */
static void prepare_mean(dilated_slot *w)
{
    w->part = rows_in(w, w->run->lay.part, w->at.count * w->of.heads * w->at.rows);
    ask_results(w);
    w->p.stats.data = w->part.m; /* The room of m and l is one array. */
    run_call(w);
    each_row(w, prepare_mean_row);
}

/* add_row adds row `row` of the part to row `sum` of the sums. */
static void add_row(dilated_slot *w, int which, int64_t sum, int64_t row)
{
    const dilated_layout *lay = &w->run->lay;
    const int64_t n = grad_dim(w, which);
    add_floats(SLOT_FLOATS(w, lay->sum_grads[which]) + sum * n,
               SLOT_FLOATS(w, lay->part_grads[which]) + row * n, n);
}

static void add_dq(dilated_slot *w, const call_row *at)
{
    add_row(w, GRAD_Q, at->sum, at->row);
}

static void add_keys_of(dilated_slot *w, int which)
{
    const int64_t from = w->at.first - w->run->begin;
    int64_t e, j, row = 0;
    for (e = 0; e < w->at.count; e++)
        for (j = 0; j < w->at.keys; j++)
            add_row(w, which, from + e * w->l.segment + j * w->l.dilation, row++);
}

/* ask_for asks for gradients `first` to `last` of a call, as far as the caller wants them. */
static void ask_for(dilated_slot *w, int first, int last)
{
    attn_output *const to[] = { &w->g.dq, &w->g.dk, &w->g.dv };
    int which;
    memset(&w->g, 0, sizeof w->g);
    w->g.gemms = w->run->g.gemms;
    w->g.score_derivative = w->run->g.score_derivative;
    for (which = first; which <= last; which++)
        if (grad_of(&w->run->g, which)->data)
            to[which]->data = SLOT_FLOATS(w, w->run->lay.part_grads[which]);
    /* All calls take one set, as the largest call then needs most memory. */
    w->p.kernels = w->asked->kernels;
}

/* view_results gives the call what its gradients need of the caller's rows. */
static void view_results(dilated_slot *w)
{
    const attn_gradients *g = &w->run->g;
    if (w->run->d.merge == ATTN_DILATED_MEAN) {
        w->g.dout.data = SLOT_FLOATS(w, w->run->lay.dout);
    } else {
        w->g.dout = view_rows(w, &g->dout);
        w->g.dlse = view_rows(w, &g->dlse);
        w->p.o = view_output(w, &w->asked->o);
        w->p.lse = view_output(w, &w->asked->lse);
        w->p.stats = view_output(w, &w->asked->stats);
    }
}

/* run_gradients runs the call and adds what was asked for. */
static void run_gradients(dilated_slot *w)
{
    int which;
    if (!w->status)
        w->status = attn_backward(&w->p, &w->g, w->inner, (size_t)w->run->lay.inner_bytes);
    if (w->g.dq.data)
        each_row(w, add_dq);
    for (which = GRAD_K; which < GRADS; which++)
        if (grad_of(&w->g, which)->data)
            add_keys_of(w, which);
}

static void backward_call(dilated_slot *w)
{
    open_call(w);
    if (w->run->d.merge == ATTN_DILATED_MEAN)
        prepare_mean(w);
    ask_for(w, GRAD_Q, GRAD_V);
    view_results(w);
    run_gradients(w);
}

/* ---- an item */

/* first_of gives the position of the first row, or key, whose gradients an item gives. */
static int64_t first_of(const dilated_slot *w, int which)
{
    return which == GRAD_Q ? w->from : w->run->begin;
}

static void clear_grad(const dilated_slot *w, int which)
{
    const int64_t heads = which == GRAD_Q ? w->run->c.pr.group : 1;
    const int64_t rows = heads * max64(0, w->to - first_of(w, which));
    if (grad_of(&w->run->g, which)->data)
        memset(SLOT_FLOATS(w, w->run->lay.sum_grads[which]), 0,
               (size_t)(rows * grad_dim(w, which)) * sizeof(float));
}

/* store_grad writes the sums to the caller's output. */
static void store_grad(const dilated_slot *w, int which)
{
    const attn_output *to = grad_of(&w->run->g, which);
    const int by_q = which == GRAD_Q;
    const int64_t heads = by_q ? w->run->c.pr.group : 1, n = grad_dim(w, which);
    const int64_t before = by_q ? w->s.q_row - w->before : w->s.kv_row;
    float *sum = SLOT_FLOATS(w, w->run->lay.sum_grads[which]);
    int64_t h, i;
    for (h = w->kv_head * heads; to->data && h < (w->kv_head + 1) * heads; h++)
        for (i = first_of(w, which); i < w->to; i++, sum += n)
            store_results(w, to, ROW_AT(*to, &w->s, h, before + i), sum, n);
}

static void gradients_item(const call *c, char *base, int64_t index, void (*take)(dilated_slot *w))
{
    dilated_slot *w = open_slot(c, base, index);
    int n, which;
    for (which = GRAD_Q; which < GRADS; which++)
        clear_grad(w, which);
    for (n = 0; n < w->run->d.num_branches && w->run->calls; n++)
        each_call(w, n, take);
    for (which = GRAD_Q; which < GRADS; which++)
        store_grad(w, which);
}

static void backward_item(const call *c, char *base, int64_t index)
{
    gradients_item(c, base, index, backward_call);
}

/* run_sinks computes dsinks, a sum over rows that no key enters, in the slot of the first
 * worker. */
static attn_status run_sinks(dilated_run *run, const attn_params *p, const attn_gradients *g)
{
    dilated_slot *w = (dilated_slot *)(void *)run->c.slots;
    if (!g->dsinks)
        return ATTN_OK;
    w->p = *p;
    w->p.num_workers = 1;
    w->p.parallel_for = NULL;
    memset(&w->g, 0, sizeof w->g);
    w->g.dout = g->dout;
    w->g.dlse = g->dlse;
    w->g.score_derivative = g->score_derivative;
    w->g.dsinks = g->dsinks;
    return attn_backward(&w->p, &w->g, run->c.slots + run->lay.inner, (size_t)run->lay.inner_bytes);
}

OWN_FRAME static attn_status prepare_backward(const attn_params *p, const attn_dilated *d,
                                              const attn_gradients *g, void *workspace,
                                              size_t bytes, dilated_run **run)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    const attn_status status = check_dilated_backward_run(p, d, g, workspace, bytes, &lay, &why);
    if (status)
        return status;
    *run = open_run(p, d, &lay, workspace, bytes);
    (*run)->calls = g->dq.data || g->dk.data || g->dv.data;
    return validate_gradients(p, d, g, 1, &(*run)->c.pr, &(*run)->g, &why);
}

ATTN_API attn_status attn_dilated_backward(const attn_params *p, const attn_dilated *d,
                                           const attn_gradients *g, void *workspace,
                                           size_t workspace_bytes)
{
    dilated_run *run;
    attn_status status = prepare_backward(p, d, g, workspace, workspace_bytes, &run);
    if (!status)
        status = run_list(run, backward_item);
    return status ? status : run_sinks(run, p, g);
}

ATTN_API attn_status attn_dilated_backward_workspace_size(const attn_params *p,
                                                          const attn_dilated *d,
                                                          const attn_gradients *g, size_t *bytes)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_dilated_backward(p, d, g, 0, ADDRESS_LIMIT, &lay, &why);
    *bytes = status ? 0 : (size_t)dilated_bytes(&lay, lay.workers);
    return status;
}

ATTN_API const char *attn_dilated_backward_check(const attn_params *p, const attn_dilated *d,
                                                 const attn_gradients *g, const void *workspace,
                                                 size_t workspace_bytes, char *buffer,
                                                 size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    dilated_layout lay;
    return verdict(check_dilated_backward_run(p, d, g, workspace, workspace_bytes, &lay, &why),
                   buffer, &why);
}

/* src/dilated/dilated.c - dilated attention: forward and backward. */

/* src/ring/layout.c - which rank holds which positions: every layout but CUSTOM deals runs of units to the ranks. */

#define RING_MOST_RANKS 4096
/* Up to this length products of units and ranks fit into 64 bits. */
#define RING_MOST_LENGTH ((int64_t)1 << 45)

typedef struct ring_cut {
    const attn_ring *ring;
    int ranks;
    /* Nonzero means that all cuts are between chunks, and states merge along the tree. */
    int along_tree;
    int64_t length, unit, units, runs;
    int64_t shift;  /* In every sequence n of position x is x + shift. */
    int64_t chunks; /* The root of the tree covers this number of chunks. */
} ring_cut;

static int64_t run_begin(const ring_cut *c, int64_t run)
{
    const int64_t each = c->units / c->runs, rest = c->units % c->runs;
    return min64(c->length, (run * each + run * rest / c->runs) * c->unit);
}

static int owner_of_run(const ring_cut *c, int64_t run)
{
    if (c->ring->layout == ATTN_RING_STRIPED)
        return (int)(run % c->ranks);
    return (int)(run < c->ranks ? run : 2 * (int64_t)c->ranks - 1 - run);
}

/* dealt_range gives range number `at` of a rank as the layout deals them, empty ones included, and
 * returns 0 after the last. */
static int dealt_range(const ring_cut *c, int rank, int64_t at, attn_ring_range *range)
{
    const attn_ring *ring = c->ring;
    int64_t run = rank + at * c->ranks;
    if (ring->layout == ATTN_RING_CUSTOM) {
        if (at >= ring->first_range[rank + 1] - ring->first_range[rank])
            return 0;
        *range = ring->ranges[ring->first_range[rank] + at];
        return 1;
    }
    if (ring->layout == ATTN_RING_ZIGZAG && at == 1)
        run = 2 * (int64_t)c->ranks - 1 - rank;
    if (run >= c->runs)
        return 0;
    range->begin = run_begin(c, run);
    range->count = run_begin(c, run + 1) - range->begin;
    return 1;
}

/* A ring_walk goes over the ranges of a rank. It begins as zero. */
typedef struct ring_walk {
    int64_t at; /* at counts the positions of the rank before this range. */
    int64_t next;
    attn_ring_range range;
} ring_walk;

/* next_range goes to the next range of a rank; it skips empty ranges and joins adjoining ones. It
 * returns 0 after the last. */
static int next_range(const ring_cut *c, int rank, ring_walk *w)
{
    attn_ring_range more, *range = &w->range;
    w->at += range->count;
    do {
        if (!dealt_range(c, rank, w->next++, range))
            return 0;
    } while (range->count == 0);
    for (; dealt_range(c, rank, w->next, &more); w->next++) {
        if (more.count && more.begin != range->begin + range->count)
            break;
        range->count += more.count;
    }
    return 1;
}

/* A ring_share is what a rank holds. */
typedef struct ring_share {
    int64_t length, ranges, longest; /* longest is the length of its longest range. */
} ring_share;

static ring_share share_of(const ring_cut *c, int rank)
{
    ring_share share = { 0, 0, 0 };
    ring_walk w = { 0 };
    for (; next_range(c, rank, &w); share.ranges++) {
        share.length += w.range.count;
        share.longest = max64(share.longest, w.range.count);
    }
    return share;
}

/* custom_end finds the range of a CUSTOM layout that begins at position x, and gives its end and
 * owner, or -1 if none does. The ranges of a rank ascend, and empty ones come before others that
 * begin where they do. */
static int64_t custom_end(const attn_ring *ring, int ranks, int64_t x, int *owner)
{
    for (*owner = 0; *owner < ranks; ++*owner) {
        int64_t from = ring->first_range[*owner], to = ring->first_range[*owner + 1];
        const int64_t first = from;
        while (from < to) { /* Its last range that begins at x or before is the one before `to`. */
            const int64_t middle = from + (to - from) / 2;
            if (ring->ranges[middle].begin > x)
                to = middle;
            else
                from = middle + 1;
        }
        if (to > first && ring->ranges[to - 1].begin == x && ring->ranges[to - 1].count > 0)
            return x + ring->ranges[to - 1].count;
    }
    return -1;
}

/* next_owner walks along the sequence: it tells who holds what lies from position *x on and up to
 * where, and moves *x there. *run and *x begin as 0. */
static int next_owner(const ring_cut *c, int64_t *run, int64_t *x)
{
    int owner = 0;
    if (c->ring->layout == ATTN_RING_CUSTOM) {
        *x = custom_end(c->ring, c->ranks, *x, &owner);
        return owner;
    }
    while (run_begin(c, *run + 1) == *x)
        ++*run;
    owner = owner_of_run(c, *run);
    *x = run_begin(c, ++*run);
    return owner;
}

/* shift_of gives n - position of the keys of a sequence, or -1 for a key_base that attn_forward
 * refuses. */
static int64_t shift_of(const attn_params *p, int64_t b)
{
    const int64_t base = p->key_base ? p->key_base[b] : 0;
    return base < 0 || base > (int64_t)1 << 58 ? -1 : base - entry32(p->kv_begin, b, 0);
}

/* cuts_between_chunks tells whether every cut lies between two chunks of every sequence. */
static int cuts_between_chunks(const ring_cut *c, const attn_params *p)
{
    int64_t b;
    int rank;
    for (b = 0; (p->key_base || p->kv_begin) && b < p->batch; b++)
        if (shift_of(p, b) != shift_of(p, 0) || shift_of(p, b) < 0 || shift_of(p, b) % ATTN_CHUNK)
            return 0;
    for (rank = 0; rank < c->ranks; rank++) {
        ring_walk w = { 0 };
        while (next_range(c, rank, &w))
            if (w.range.begin % ATTN_CHUNK)
                return 0;
    }
    return 1;
}

static ring_cut cut_of(const attn_params *p, const attn_ring *ring, int ranks)
{
    ring_cut c = { .ring = ring,
                   .ranks = ranks,
                   .length = p->seq_len_kv,
                   .unit = ring->shard ? ring->shard : ATTN_CHUNK };
    c.units = ceil_div(c.length, c.unit);
    c.runs = ring->layout == ATTN_RING_ZIGZAG ? 2 * (int64_t)ranks : ranks;
    if (ring->layout == ATTN_RING_STRIPED)
        c.runs = max64(c.units, 1);
    c.along_tree = !ring->arrival && cuts_between_chunks(&c, p);
    c.shift = c.along_tree && p->batch > 0 ? shift_of(p, 0) : 0;
    c.chunks = (int64_t)1 << log2_up(ceil_div(c.length + c.shift, ATTN_CHUNK));
    return c;
}

/* is_canonical tells whether the bits are those of one process, which they also are where one rank
 * holds everything. */
static int is_canonical(const ring_cut *c)
{
    int rank, whole = c->length == 0;
    for (rank = 0; rank < c->ranks && !whole; rank++)
        whole = share_of(c, rank).longest == c->length;
    return c->along_tree || c->ring->gather || whole;
}

/* src/ring/nodes.c - the nodes of the merge tree that a range of keys is made of.
 *
 * Nodes before the first key and behind the last one are empty, and complete from the beginning.
 */

/* chunks_of gives chunks *from to *to - 1, which a range fills. */
static void chunks_of(const ring_cut *c, const attn_ring_range *range, int64_t *from, int64_t *to)
{
    const int64_t end = range->begin + range->count;
    *from = range->begin == 0 ? 0 : (range->begin + c->shift) / ATTN_CHUNK;
    *to = end == c->length ? c->chunks : (end + c->shift) / ATTN_CHUNK;
}

/* chunk_begin gives the position where a chunk begins. */
static int64_t chunk_begin(const ring_cut *c, int64_t chunk)
{
    return min64(c->length, max64(0, chunk * ATTN_CHUNK - c->shift));
}

static int64_t nodes_of_range(const ring_cut *c, const attn_ring_range *range)
{
    int64_t from, to;
    chunks_of(c, range, &from, &to);
    return range->count ? count_nodes(from, to) : 0;
}

static int64_t nodes_of_rank(const ring_cut *c, int rank)
{
    ring_walk w = { 0 };
    int64_t count = 0;
    while (next_range(c, rank, &w))
        count += c->along_tree ? nodes_of_range(c, &w.range) : 1;
    return count;
}

/* source_at tells whose keys a rank has after `step` exchanges. */
static int source_at(const ring_cut *c, int rank, int step)
{
    return (rank - step + 2 * c->ranks) % c->ranks;
}

/* waiting_after counts the states that wait when the keys of steps 0 to `step` have come: one for
 * each node that these keys form. */
static int64_t waiting_after(const ring_cut *c, int rank, int step)
{
    int64_t x = 0, run = 0, count = 0;
    attn_ring_range come = { 0, 0 };
    while (x < c->length) {
        const int64_t begin = x;
        const int owner = next_owner(c, &run, &x);
        if (source_at(c, rank, owner) <= step) { /* It comes at step rank - owner. */
            come.count += x - begin;
        } else {
            count += nodes_of_range(c, &come);
            come.begin = x;
            come.count = 0;
        }
    }
    return count + nodes_of_range(c, &come);
}

/* states_at_once makes room for the states that wait and those of the keys that come next. */
static int64_t states_at_once(const ring_cut *c, int rank)
{
    int64_t most = 1, waiting = 0;
    int step;
    if (c->ring->gather)
        return 1;
    if (!c->along_tree)
        return 2;
    for (step = 0; step < c->ranks; step++) {
        most = max64(most, waiting + nodes_of_rank(c, source_at(c, rank, step)));
        waiting = waiting_after(c, rank, step);
    }
    return most;
}

/* src/ring/validate.c - context parallelism: every sentence about bad input. */

static attn_status check_layout(const attn_ring *ring, text *why)
{
    static const size_rule rules[] = {
        { "ring.layout", offsetof(attn_ring, layout), 0, ATTN_RING_CUSTOM },
    };
    static const size_rule counts[] = {
        { "ring.shard", offsetof(attn_ring, shard), 0, RING_MOST_LENGTH },
    };
    const int custom = ring->layout == ATTN_RING_CUSTOM;
    attn_status status = check_enums(ring, rules, COUNT_OF(rules), why);
    if (!status)
        status = check_counts(ring, counts, COUNT_OF(counts), why);
    if (status)
        return status;
    if (custom && ring->shard)
        return bad_field(why, ATTN_ERR_ARG, "ring.shard", ring->shard,
                         " is set, but ring.layout is ATTN_RING_CUSTOM");
    if (custom && (!ring->ranges || !ring->first_range))
        return bad(why, ATTN_ERR_ARG,
                   "ring.layout is ATTN_RING_CUSTOM, but ring.ranges or first_range is NULL");
    if (!custom && (ring->ranges || ring->first_range))
        return bad_field(why, ATTN_ERR_ARG, "ring.layout", ring->layout,
                         " must be ATTN_RING_CUSTOM (3) when ring.ranges is given");
    return ATTN_OK;
}

static attn_status check_first_ranges(const attn_ring *ring, int ranks, text *why)
{
    int rank;
    if (ring->first_range[0] < 0)
        return bad_entry(why, "ring.first_range", 0, ring->first_range[0], " must be at least 0");
    for (rank = 1; rank <= ranks; rank++)
        if (ring->first_range[rank] < ring->first_range[rank - 1])
            return bad_after(why, "ring.first_range", rank, ring->first_range[rank],
                             " is below the entry before it", ring->first_range[rank - 1]);
    return ATTN_OK;
}

static attn_status check_ranges_of(const attn_ring *ring, int rank, int64_t length, text *why)
{
    int64_t i, end = 0;
    for (i = ring->first_range[rank]; i < ring->first_range[rank + 1]; i++) {
        const attn_ring_range *range = &ring->ranges[i];
        if (range->count < 0 || range->count > length)
            return bad_entry(why, "ring.ranges.count", i, range->count,
                             " must be from 0 to seq_len_kv");
        if (range->begin < end || range->begin > length - range->count)
            return bad_entry(why, "ring.ranges.begin", i, range->begin,
                             " must follow the range before it, and end within seq_len_kv");
        end = range->begin + range->count;
    }
    return ATTN_OK;
}

/* check_custom refuses a CUSTOM layout unless every position is in one range of it. */
static attn_status check_custom(const attn_ring *ring, int ranks, int64_t length, text *why)
{
    attn_status status = check_first_ranges(ring, ranks, why);
    int64_t x = 0, end, i, visited = 0, filled = 0;
    int rank;
    for (rank = 0; rank < ranks && !status; rank++)
        status = check_ranges_of(ring, rank, length, why);
    if (status)
        return status;
    for (i = ring->first_range[0]; i < ring->first_range[ranks]; i++)
        filled += ring->ranges[i].count > 0;
    for (; x < length; x = end, visited++) {
        end = custom_end(ring, ranks, x, &rank);
        if (end < 0)
            return bad_field(why, ATTN_ERR_ARG, "ring.ranges: position", x,
                             " is in no range, or inside one that begins in another");
    }
    if (visited != filled)
        return bad_field(why, ATTN_ERR_ARG, "ring.ranges: number", filled,
                         " of ranges that are not empty: some positions are in two");
    return ATTN_OK;
}

/* check_ring_params refuses what a ring does not take. */
static attn_status check_ring_params(const attn_params *p, text *why)
{
    static const size_rule batch = { "batch", offsetof(attn_params, batch), 0, MOST };
    const attn_status status = check_counts(p, &batch, 1, why);
    if (status)
        return status;
    if (p->seq_len_kv < 0 || p->seq_len_kv > RING_MOST_LENGTH)
        return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_kv", p->seq_len_kv,
                         " must be from 0 to 2^45 for a ring");
    if (p->impl == ATTN_IMPL_NAIVE)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " (naive): a ring is built for ATTN_IMPL_TILED");
    return ATTN_OK;
}

/* check_cut checks parameters and layout for `ranks` ranks, but not the tensors. */
static attn_status check_cut(const attn_params *p, const attn_ring *ring, int ranks, text *why)
{
    attn_status status = ATTN_OK;
    if (!p)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    if (ranks < 1 || ranks > RING_MOST_RANKS)
        return bad_field(why, ATTN_ERR_ARG, "transport.size", ranks, " must be from 1 to 4096");
    status = check_ring_params(p, why);
    if (!status)
        status = check_layout(ring, why);
    if (!status && ring->layout == ATTN_RING_CUSTOM)
        status = check_custom(ring, ranks, p->seq_len_kv, why);
    return status;
}

/* Without this no agreement is possible. */
static attn_status check_transport(const attn_ring *ring, text *why)
{
    const attn_transport *t = ring ? ring->transport : NULL;
    if (!ring)
        return bad(why, ATTN_ERR_ARG, "ring is NULL");
    if (!t)
        return bad(why, ATTN_ERR_ARG, "ring.transport is NULL");
    if (!t->agree || !t->begin || !t->end || !t->cancel)
        return bad(why, ATTN_ERR_ARG, "transport.agree, begin, end or cancel is NULL");
    if (t->size < 1 || t->size > RING_MOST_RANKS)
        return bad_field(why, ATTN_ERR_ARG, "transport.size", t->size, " must be from 1 to 4096");
    if (t->rank < 0 || t->rank >= t->size)
        return bad_field(why, ATTN_ERR_ARG, "transport.rank", t->rank,
                         " must be from 0 to size - 1");
    return ATTN_OK;
}

static attn_status check_ring_gradients(const attn_params *p, const attn_gradients *g, text *why)
{
    if (!g)
        return bad(why, ATTN_ERR_ARG, "gradients is NULL");
    if (!p->o.data)
        return bad(why, ATTN_ERR_ARG, "o.data is NULL: gradients need the o of the forward call");
    return ATTN_OK;
}

/* check_ring_logits wants what the parts of a ring can give. */
static attn_status check_ring_logits(const attn_params *p, const attn_ring *ring, text *why)
{
    if (p->logits.data && p->logits.stage == ATTN_LOGITS_SOFTMAX && !ring->gather)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "logits.stage", p->logits.stage,
                         " (probabilities) needs all keys at once: set ring.gather");
    if (p->logits.data && p->seq_len_kv > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_kv", p->seq_len_kv,
                         " must be below 2^31 where a ring gives logits");
    return ATTN_OK;
}

static attn_status check_rows_cut(const attn_params *p, text *why)
{
    if (p->seq_len_q == p->seq_len_kv)
        return ATTN_OK;
    put_field(why, "seq_len_q", p->seq_len_q);
    put(why, " must be ");
    put_field(why, "seq_len_kv", p->seq_len_kv);
    return bad(why, ATTN_ERR_UNSUPPORTED, ": a ring cuts rows and keys alike");
}

/* check_level checks what every call of a level over ranks depends on; the level is `taker`. */
static attn_status check_level(const attn_params *p, const attn_ring *ring, unsigned taker,
                               const char *level, text *why)
{
    attn_status status = check_transport(ring, why);
    if (!status)
        status = check_cut(p, ring, ring->transport->size, why);
    return status ? status : refuse_fields(p, taker, level, why);
}

/* check_query checks what a size depends on; `gradients` tells which of the two calls it is for. */
static attn_status check_query(const attn_params *p, const attn_gradients *g, int gradients,
                               const attn_ring *ring, text *why)
{
    attn_status status = check_level(p, ring, BY_RING, "a ring of ranks", why);
    if (!status)
        status = check_rows_cut(p, why);
    if (status)
        return status;
    return gradients ? check_ring_gradients(p, g, why) : check_ring_logits(p, ring, why);
}

/* take_local makes the call one of this rank's tensors: a part, packed as they are. */
static void take_local(attn_params *local, const attn_params *p, const attn_ring *ring,
                       int64_t length)
{
    *local = *p;
    local->backend = NULL; /* Only the arguments are checked. */
    local->part.rows = local->part.keys = 1;
    local->part.row_count = local->part.key_count = length;
    if (local->logits.stage == ATTN_LOGITS_SOFTMAX) /* The parts of the call may have all keys. */
        local->logits.stage = ATTN_LOGITS_BIAS;
    if (ring->fetch)
        local->k.data = local->v.data = &not_read;
}

/* check_tensors_held gives the sentence of an attn_forward or attn_backward without a workspace.
 * The call would run if that is all that is missing. Nonzero `computed` means that the level computes
 * statistics itself. */
OWN_FRAME static attn_status check_tensors_held(const attn_params *p, const attn_gradients *g,
                                                const attn_ring *ring, int64_t length, int computed,
                                                text *why)
{
    attn_params local;
    attn_status status;
    take_local(&local, p, ring, length);
    if (computed)
        local.stats.data = (void *)(uintptr_t)&not_read;
    status = g ? attn_backward(&local, g, NULL, 0) : attn_forward(&local, NULL, 0);
    if (status == ATTN_OK || status == ATTN_ERR_WORKSPACE)
        return ATTN_OK;
    if (g && why->left)
        attn_backward_check(&local, g, NULL, 0, why->at, why->left);
    else if (why->left)
        attn_check(&local, NULL, 0, why->at, why->left);
    return status;
}

/* src/ring/plan.c - the plan of a rank: a pure function of parameters, layout and rank.
 *
 *     workspace = | alignment | ring_call | entries | buffer 0 | buffer 1 | ... | work of a part |
 *
 * Sums over rows, that is dsinks, dslopes and dbias, lie one behind the other. The ranks add up what is
 * a sum over all rows, which is the first part of them: a bias with rows comes last, and has a gradient
 * of this rank's rows.
 */

/* A ring_shape holds sizes of one position of a shard. */
typedef struct ring_shape {
    int64_t entries_q, entries_kv; /* Each is batch * heads. */
    int64_t dim, dim_v;
    int64_t k_bytes, v_bytes; /* These are bytes of a position of all entries. */
} ring_shape;

typedef struct ring_plan {
    ring_cut cuts;
    ring_shape shape;
    int rank;
    /* length counts the positions of this rank, and longest those of the rank that has most. */
    int64_t length, longest;
    /* row_range is the longest range of this rank, and key_range that of any rank. */
    int64_t row_range, key_range;
    /* slots counts states, slot_floats is the size of a state of all rows, and rows counts those of
     * all entries. */
    int64_t slots, slot_floats, rows;
    int64_t entries, entry_count, used;
    int64_t buffer[2], states, gathered, logit_rows;
    int64_t gift, dq, part_dq, part_keys; /* The backward call has these. */
    int64_t sink_floats, slope_floats, sum_floats;
    int64_t shared_floats; /* shared_floats counts the sums over the rows of all ranks. */
    attn_sum_axes
        bias; /* bias has the axes of dbias on this rank, and no data if none is wanted. */
    int64_t sums, arrived, part_sums, part_bias;
    int64_t work, work_bytes, bytes;
} ring_plan;

typedef struct ring_entry {
    tree_node node;
    int slot; /* A slot of -1 is an empty state. */
} ring_entry;

/* A ring_call is one call on one rank, and stands at the beginning of its workspace. */
typedef struct ring_call {
    attn_params p; /* p is the part that is computed. */
    attn_gradients g;
    attn_params own; /* own has the rank's tensors with explicit strides. */
    attn_gradients own_g;
    ring_plan pl;
    const attn_transport *t;
    attn_ring_stats *stats;
    char *base; /* The plan's offsets count from base. */
    ring_entry *entries;
    int64_t entry_count;
} ring_call;

static float *floats_at(const ring_call *c, int64_t offset)
{
    return (float *)(void *)(c->base + offset);
}

static float *zeros_at(const ring_call *c, int64_t offset, int64_t count)
{
    return memset(c->base + offset, 0, (size_t)count * sizeof(float));
}

#define RING_HEAD aligned((int64_t)sizeof(ring_call))

static ring_shape shape_of(const attn_params *p)
{
    const int64_t heads_kv = p->num_heads_kv ? p->num_heads_kv : p->num_heads_q;
    ring_shape s;
    s.dim = p->head_dim;
    s.dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    s.entries_q = times(p->batch, p->num_heads_q);
    s.entries_kv = times(p->batch, heads_kv);
    s.k_bytes = times(s.entries_kv, room_of(p->k.dtype, s.dim));
    s.v_bytes = times(s.entries_kv, room_of(p->v.dtype, s.dim_v));
    return s;
}

/* values_at relies on this: in a shard values lie behind keys, and dv lies behind dk. */
static int64_t values_at(const ring_shape *s, int64_t length)
{
    return aligned(times(s->k_bytes, length));
}

static int64_t shard_bytes(const ring_shape *s, int64_t length)
{
    return plus(values_at(s, length), aligned(times(s->v_bytes, length)));
}

static int64_t dv_at(const ring_shape *s, int64_t length)
{
    return times(times(s->entries_kv, s->dim), length);
}

static int64_t gift_floats(const ring_shape *s, int64_t length)
{
    return whole_lines(plus(dv_at(s, length), times(times(s->entries_kv, s->dim_v), length)));
}

static void plan_lengths(ring_plan *pl)
{
    const ring_share own = share_of(&pl->cuts, pl->rank);
    int rank;
    pl->length = own.length;
    pl->row_range = own.longest;
    for (rank = 0; rank < pl->cuts.ranks; rank++) {
        const ring_share share = share_of(&pl->cuts, rank);
        pl->longest = max64(pl->longest, share.length);
        pl->key_range = max64(pl->key_range, share.longest);
        pl->entry_count += nodes_of_rank(&pl->cuts, rank);
    }
}

/* forward_part_bytes sizes the largest part of a forward call, as any shorter one works in its
 * workspace. Without kv_begin the first keys are as many as any others. */
OWN_FRAME static attn_status forward_part_bytes(const attn_params *p, const ring_cut *c, int rank,
                                                size_t *bytes)
{
    attn_params part = *p;
    attn_status status;
    size_t need;
    int r;
    part.part.rows = 1;
    part.part.row_count = share_of(c, rank).longest;
    part.part.keys = !c->ring->gather;
    for (r = 0; part.part.keys && r < c->ranks; r++)
        part.part.key_count = max64(part.part.key_count, share_of(c, r).longest);
    part.partial = 1;
    part.kv_begin = NULL;
    part.logits.data = NULL;
    status = attn_workspace_size(&part, bytes);
    if (status || !p->logits.data)
        return status;
    part.partial = 0;
    part.o.data = part.lse.data = part.stats.data = NULL;
    part.logits = p->logits;
    if (!part.logits.rows)
        part.logits.num_rows = min64(part.logits.num_rows, part.part.row_count);
    status = attn_workspace_size(&part, &need);
    *bytes = need > *bytes ? need : *bytes;
    return status;
}

/* Every part gives dq, dk and dv, in f32. */
static attn_status gradients_bytes(const attn_params *p, const attn_gradients *g, size_t *bytes)
{
    attn_gradients all;
    size_t need;
    attn_status status;
    memset(&all, 0, sizeof all);
    all.gemms = g->gemms;
    all.dlse.data = g->dlse.data;
    all.score_derivative = g->score_derivative;
    all.dbias = g->dbias;
    all.dsinks = g->dsinks;
    all.dslopes = g->dslopes;
    all.dq.data = all.dk.data = all.dv.data = bytes; /* They are not written. */
    status = attn_backward_workspace_size(p, &all, &need);
    *bytes = need > *bytes ? need : *bytes;
    return status;
}

/* next_keys sets the part's keys to the next range of any rank, or once to all where they are gathered. It
 * returns 0 after the last. */
static int next_keys(const ring_cut *c, int *rank, ring_walk *w, attn_part *part)
{
    if (c->ring->gather) {
        part->keys = 0;
        return !(*rank)++;
    }
    for (; *rank < c->ranks; ++*rank, memset(w, 0, sizeof *w))
        if (next_range(c, *rank, w)) {
            part->key_begin = w->range.begin;
            part->key_count = w->range.count;
            return 1;
        }
    return 0;
}

/* backward_part_bytes asks about all parts, as a shorter backward call may need more workspace.
 * Without lengths, parts of equal counts have equal needs. */
OWN_FRAME static attn_status backward_part_bytes(const attn_params *p, const attn_gradients *g,
                                                 const ring_cut *c, int own, size_t *bytes)
{
    const int lengths = p->q_len || p->kv_len || p->kv_begin;
    attn_params part = *p;
    attn_status status;
    ring_walk rows = { 0 };
    int64_t row_count = -1, key_count = -1;
    part.part.rows = part.part.keys = 1;
    part.logits.data = NULL;
    status = gradients_bytes(&part, g, bytes); /* A rank without rows checks the fields, too. */
    while (!status && next_range(c, own, &rows)) {
        ring_walk keys = { 0 };
        int rank = 0;
        part.part.row_begin = rows.range.begin;
        part.part.row_count = rows.range.count;
        part.part.keys = 1;
        part.part.key_begin = part.part.key_count = 0; /* dsinks come from a part of no keys. */
        status = gradients_bytes(&part, g, bytes);
        while (!status && next_keys(c, &rank, &keys, &part.part)) {
            if (!lengths && part.part.row_count == row_count && part.part.key_count == key_count)
                continue;
            status = gradients_bytes(&part, g, bytes);
            row_count = part.part.row_count;
            key_count = part.part.key_count;
        }
    }
    return status;
}

/* place_gathered makes room for all keys and values. */
static int64_t place_gathered(ring_plan *pl)
{
    const int gather = pl->cuts.ring->gather;
    return place(&pl->bytes, gather ? shard_bytes(&pl->shape, pl->cuts.length) : 0, 1);
}

static void plan_ring_forward(const attn_params *p, ring_plan *pl)
{
    const ring_shape *s = &pl->shape;
    const int lists_rows = p->logits.data && !p->logits.rows;
    pl->rows = times(s->entries_q, pl->length);
    pl->slot_floats = whole_lines(times(pl->rows, plus(s->dim_v, 2)));
    pl->slots = states_at_once(&pl->cuts, pl->rank);
    pl->entries = place(&pl->bytes, pl->entry_count, sizeof(ring_entry));
    pl->used = place(&pl->bytes, pl->slots, 1);
    pl->buffer[0] = place(&pl->bytes, shard_bytes(s, pl->longest), 1);
    pl->buffer[1] = place(&pl->bytes, pl->cuts.ranks > 1 ? shard_bytes(s, pl->longest) : 0, 1);
    pl->states = place(&pl->bytes, times(pl->slots, pl->slot_floats), sizeof(float));
    pl->gathered = place_gathered(pl);
    pl->logit_rows = place(&pl->bytes, lists_rows ? pl->length : 0, sizeof(int32_t));
}

/* bias_of_rows gives the packed axes of dbias of `rows` rows. */
static attn_sum_axes bias_of_rows(const attn_params *p, const attn_gradients *g, int64_t rows)
{
    static const ptrdiff_t packed[4] = { 0, 0, 0, 0 };
    const ptrdiff_t of_bias[4] = { p->bias.stride_batch, p->bias.stride_head, p->bias.stride_q,
                                   p->bias.stride_kv };
    attn_sum_axes a = { .data = g->dbias.data,
                        .count = { p->batch, p->num_heads_q, rows, p->seq_len_kv } };
    int axis;
    for (axis = 0; axis < 4; axis++)
        a.kept[axis] = of_bias[axis] != ATTN_STRIDE_BROADCAST;
    pack_axes(&a, packed);
    return a;
}

static int64_t floats_of_bias(const attn_sum_axes *a)
{
    return a->data ? times(times(a->count[0], a->count[1]), times(a->count[2], a->count[3])) : 0;
}

/* keeps_pairs tells whether an element of dbias sums no rows and no keys, so that one part has all of it. */
static int keeps_pairs(const attn_sum_axes *bias)
{
    return bias->kept[ATTN_AXIS_ROW] && bias->kept[ATTN_AXIS_KEY];
}

static void plan_sums(const attn_params *p, const attn_gradients *g, ring_plan *pl)
{
    const int64_t sets = p->alibi_stride == ATTN_STRIDE_BROADCAST ? 1 : p->batch;
    const attn_sum_axes of_part = bias_of_rows(p, g, pl->row_range);
    int64_t floats;
    pl->sink_floats = g->dsinks ? p->num_heads_q : 0;
    pl->slope_floats = g->dslopes ? times(sets, p->num_heads_q) : 0;
    pl->bias = bias_of_rows(p, g, pl->length);
    floats = plus(pl->sink_floats, pl->slope_floats);
    pl->sum_floats = plus(floats, floats_of_bias(&pl->bias));
    pl->shared_floats = pl->bias.kept[ATTN_AXIS_ROW] ? floats : pl->sum_floats;
    pl->sums = place(&pl->bytes, pl->sum_floats, sizeof(float));
    pl->arrived = place(&pl->bytes, pl->shared_floats, sizeof(float));
    pl->part_sums = place(&pl->bytes, max64(pl->sink_floats, pl->slope_floats), sizeof(float));
    pl->part_bias =
        place(&pl->bytes, keeps_pairs(&of_part) ? 0 : floats_of_bias(&of_part), sizeof(float));
}

static void plan_ring_backward(const attn_params *p, const attn_gradients *g, ring_plan *pl)
{
    const ring_shape *s = &pl->shape;
    const int gather = pl->cuts.ring->gather; /* Then gradients travel after the keys. */
    const int64_t shard = shard_bytes(s, pl->longest), gift = gift_floats(s, pl->longest);
    const int64_t gift_room = times(gift, sizeof(float));
    const int64_t message = gather ? max64(shard, gift_room) : plus(shard, gift_room);
    const int64_t keys = gather ? pl->cuts.length : pl->key_range; /* of a part */
    const int64_t row_floats = times(s->entries_q, s->dim);
    pl->buffer[0] = place(&pl->bytes, message, 1);
    pl->buffer[1] = place(&pl->bytes, message, 1);
    pl->gathered = place_gathered(pl);
    pl->gift = place(&pl->bytes, gather ? gift_floats(s, keys) : gift, sizeof(float));
    pl->dq = place(&pl->bytes, times(row_floats, pl->length), sizeof(float));
    pl->part_dq = place(&pl->bytes, times(row_floats, pl->row_range), sizeof(float));
    pl->part_keys = place(&pl->bytes, gift_floats(s, keys), sizeof(float));
    plan_sums(p, g, pl);
}

/* size_of_parts sizes the workspace of the parts. */
static attn_status size_of_parts(const attn_params *p, const attn_gradients *g,
                                 const attn_ring *ring, size_t *bytes)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    *bytes = 0;
    return g ? backward_part_bytes(p, g, &c, ring->transport->rank, bytes)
             : forward_part_bytes(p, &c, ring->transport->rank, bytes);
}

/* plan_ring gives the parts `work` bytes. */
static void plan_ring(const attn_params *p, const attn_gradients *g, const attn_ring *ring,
                      size_t work, ring_plan *pl)
{
    memset(pl, 0, sizeof *pl);
    pl->rank = ring->transport->rank;
    pl->cuts = cut_of(p, ring, ring->transport->size);
    pl->shape = shape_of(p);
    plan_lengths(pl);
    pl->work_bytes = work > (size_t)ADDRESS_LIMIT ? TOO_BIG : (int64_t)work;
    pl->bytes = RING_HEAD;
    if (g)
        plan_ring_backward(p, g, pl);
    else
        plan_ring_forward(p, pl);
    pl->work = place(&pl->bytes, pl->work_bytes, 1);
    pl->bytes = plus(pl->bytes, ALIGNMENT - 1); /* The workspace may begin anywhere. */
}

OWN_FRAME static int64_t planned_bytes(const attn_params *p, const attn_gradients *g,
                                       const attn_ring *ring, size_t work)
{
    ring_plan pl;
    plan_ring(p, g, ring, work, &pl);
    return pl.bytes;
}

/* ring_bytes counts the bytes of workspace that a call needs. */
static attn_status ring_bytes(const attn_params *p, const attn_gradients *g, const attn_ring *ring,
                              int64_t *bytes)
{
    size_t work;
    const attn_status status = size_of_parts(p, g, ring, &work);
    *bytes = status ? 0 : planned_bytes(p, g, ring, work);
    return !status && *bytes >= ADDRESS_LIMIT ? ATTN_ERR_OVERFLOW : status;
}

OWN_FRAME static int64_t own_length(const attn_params *p, const attn_ring *ring)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    return share_of(&c, ring->transport->rank).length;
}

/* check_ring_memory wants the workspace to lie apart, in a call that has passed its checks. */
OWN_FRAME static attn_status check_ring_memory(const attn_params *p, const attn_gradients *g,
                                               const attn_ring *ring, int64_t length,
                                               const area *memory, text *why)
{
    attn_gradients resolved;
    problem pr;
    take_local(&pr.p, p, ring, length);
    validate(&pr.p, &pr, 0, why);
    if (!g)
        return check_call_apart(&pr.p, memory, why);
    resolved = *g;
    resolve_gradients(&pr.p, &resolved, why);
    return check_gradients_apart(&pr.p, &resolved, memory, why);
}

/* check_ring checks everything that can be wrong on one rank. */
OWN_FRAME static attn_status check_ring(const attn_params *p, const attn_gradients *g,
                                        int gradients, const attn_ring *ring, const void *workspace,
                                        size_t bytes, text *why)
{
    const int64_t have = bytes_given(workspace, bytes);
    int64_t need, length;
    area a;
    attn_status status = check_query(p, g, gradients, ring, why);
    if (status)
        return status;
    length = own_length(p, ring);
    status = check_tensors_held(p, g, ring, length, 0, why);
    if (status)
        return status;
    status = ring_bytes(p, g, ring, &need);
    if (status == ATTN_ERR_OVERFLOW)
        return bad_field(why, status, "seq_len_kv", p->seq_len_kv,
                         ": the workspace of a ring would exceed the address space");
    if (!status && have < need)
        status = too_small(why, have, need,
                           g ? "attn_ring_backward_workspace_size" : "attn_ring_workspace_size");
    a = area_of_bytes("the workspace", workspace, status ? 0 : need);
    return status ? status : check_ring_memory(p, g, ring, length, &a, why);
}

/* src/ring/agree.c - agreement of the ranks: before anything is sent, with each exchange, before outputs are written. */

static double ring_seconds(const attn_transport *t)
{
    return t->seconds ? t->seconds(t->user) : 0;
}

/* agree_on_status finds the status of the lowest rank that has one, which gives the largest
 * number. */
static attn_status agree_on_status(const attn_transport *t, attn_ring_stats *stats,
                                   attn_status status)
{
    const double from = ring_seconds(t);
    const int worst = t->agree(t->user, status ? (t->size - t->rank) * 16 + (int)status : 0);
    stats->seconds += ring_seconds(t) - from;
    if (worst > 0) {
        stats->failed_rank = t->size - worst / 16;
        return (attn_status)(worst % 16);
    }
    if (status || worst < 0)
        stats->failed_rank = t->rank;
    return worst < 0 ? ATTN_ERR_CALLBACK : status;
}

static uint32_t mix_in(uint32_t hash, int64_t value)
{
    const uint64_t u = (uint64_t)value * 0x9e3779b97f4a7c15u;
    return (hash ^ (uint32_t)(u >> 32) ^ (uint32_t)u) * 0x01000193u + 1;
}

static uint32_t mix_layout(uint32_t hash, const attn_ring *ring, int ranks)
{
    const int custom = ring->layout == ATTN_RING_CUSTOM;
    int64_t i;
    hash = mix_in(hash, ring->layout);
    hash = mix_in(hash, ring->gather != 0);
    hash = mix_in(hash, ring->arrival != 0);
    hash = mix_in(hash, ring->shard);
    for (i = custom ? ring->first_range[0] : 0; custom && i < ring->first_range[ranks]; i++) {
        hash = mix_in(hash, ring->ranges[i].begin);
        hash = mix_in(hash, ring->ranges[i].count);
    }
    return hash;
}

/* The numbers of an array. */
static uint32_t mix_array(uint32_t hash, const call_field *f, const attn_params *p,
                          const call_axes *x)
{
    const int64_t outer = x->count[f->axis[0]], inner = x->count[f->axis[3]];
    const size_t bytes = (size_t)element_bytes(f, p);
    const char *data = field_data(f, p);
    ptrdiff_t stride[4];
    int64_t i, k;
    resolve_strides_of(f, p, x, stride);
    for (i = 0; i < outer; i++)
        for (k = 0; k < inner; k++) {
            int64_t number = 0;
            memcpy(&number, data + (i * stride[0] + k) * (ptrdiff_t)bytes, bytes);
            hash = mix_in(hash, number);
        }
    return hash;
}

/* What every rank must have set alike, or messages would not fit or results mean nothing. */
OWN_FRAME static uint32_t call_hash(const attn_params *p, int gradients, const attn_ring *ring,
                                    int ranks)
{
    const call_axes x = axes_of_call(p);
    uint32_t hash = mix_in(mix_layout(0x811c9dc5u, ring, ranks), gradients);
    int i;
    for (i = 0; i < COUNT_OF(call_fields); i++) {
        const call_field *f = &call_fields[i];
        if (f->takers & (BY_RANKS | BY_RANKS_SET))
            hash = mix_in(hash, field_number(f, p));
        if (f->takers & BY_RANKS && IS_ARRAY(f) && field_data(f, p))
            hash = mix_array(hash, f, p, &x);
    }
    return hash;
}

/* mix_sums adds which sums over rows a call has, and of what size. */
OWN_FRAME static uint32_t mix_sums(uint32_t hash, const attn_params *p, const attn_gradients *g)
{
    ring_plan pl;
    int axis;
    memset(&pl, 0, sizeof pl);
    if (!g)
        return hash;
    plan_sums(p, g, &pl);
    hash = mix_in(hash, pl.sink_floats);
    hash = mix_in(hash, pl.slope_floats);
    for (axis = 0; axis < 4; axis++)
        hash = mix_in(hash, g->dbias.data ? pl.bias.kept[axis] : -1);
    return hash;
}

/* agree_on_call relies on this: all numbers are equal if the largest and the smallest are. */
static attn_status agree_on_call(const attn_transport *t, attn_ring_stats *stats, uint32_t hash)
{
    const int most = 0x3fffffff, own = (int)(hash & 0x3fffffffu);
    const int high = t->agree(t->user, own), low = t->agree(t->user, most - own);
    const int failed = high < 0 || low < 0;
    stats->failed_rank = failed ? t->rank : -1;
    if (failed)
        return ATTN_ERR_CALLBACK;
    return high == most - low ? ATTN_OK : ATTN_ERR_ARG;
}

/* A ring_message is a message from the beginning of a buffer on. */
typedef struct ring_message {
    const char *send;
    char *receive;
    int64_t send_bytes, receive_bytes;
} ring_message;

/* begin_exchange begins an exchange if no rank has failed, and returns what they agree on. */
static attn_status begin_exchange(const attn_transport *t, attn_ring_stats *stats,
                                  const ring_message *m, attn_status status)
{
    const double from = ring_seconds(t);
    int begun = 0;
    if (!status) {
        begun = t->begin(t->user, m->send, (size_t)m->send_bytes, m->receive,
                         (size_t)m->receive_bytes) == 0;
        status = begun ? ATTN_OK : ATTN_ERR_CALLBACK;
    }
    stats->seconds += ring_seconds(t) - from;
    status = agree_on_status(t, stats, status);
    if (status && begun)
        t->cancel(t->user);
    if (status)
        return status;
    stats->exchanges++;
    stats->bytes_sent += (double)m->send_bytes;
    stats->bytes_received += (double)m->receive_bytes;
    return ATTN_OK;
}

/* end_exchange ends it, whatever this rank's status is. */
static attn_status end_exchange(const attn_transport *t, attn_ring_stats *stats, attn_status status)
{
    const double from = ring_seconds(t);
    const int failed = t->end(t->user);
    stats->seconds += ring_seconds(t) - from;
    return status ? status : failed ? ATTN_ERR_CALLBACK : ATTN_OK;
}

/* src/ring/parts.c - parts: a range of this rank's rows against some keys of a shard. */

/* Strides of the rank's own tensors are those of a range of them, too. */
static call_axes own_axes(const attn_params *p, int64_t length)
{
    call_axes x = axes_of_call(p);
    x.count[AXIS_ROW] = x.count[AXIS_KEY] = length;
    return x;
}

static void resolve_own(attn_params *p, int64_t length)
{
    text none = text_in(NULL, 0);
    call_axes x;
    resolve_sizes(p);
    x = own_axes(p, length);
    resolve_arrays(call_fields, COUNT_OF(call_fields), p, &x, &none);
    name_shared(call_fields, COUNT_OF(call_fields), p);
}

static void resolve_own_gradients(const attn_params *p, attn_gradients *g, int64_t length)
{
    const call_axes x = own_axes(p, length);
    text none = text_in(NULL, 0);
    resolve_arrays(gradient_fields, COUNT_OF(gradient_fields), g, &x, &none);
    name_shared(gradient_fields, COUNT_OF(gradient_fields), g);
}

static const void *input_at(const attn_tensor *t, int64_t at)
{
    const ptrdiff_t step = stride_or(t->stride_seq, 0);
    return t->data ? (const char *)t->data + bytes_between(t->dtype, at * step) : NULL;
}

static void *output_at(const attn_output *t, int64_t at)
{
    return t->data ? (char *)t->data + (ptrdiff_t)at * t->stride_seq * (ptrdiff_t)bytes_of(t->dtype)
                   : NULL;
}

/* set_part_rows makes the part's rows a range of this rank's. */
static void set_part_rows(ring_call *c, const ring_walk *rows)
{
    attn_params *p = &c->p;
    const int64_t at = rows->at;
    p->part.rows = 1;
    p->part.row_begin = rows->range.begin;
    p->part.row_count = rows->range.count;
    p->q.data = input_at(&c->own.q, at);
    p->o.data = output_at(&c->own.o, at);
    p->lse.data = output_at(&c->own.lse, at);
    p->stats.data = output_at(&c->own.stats, at);
    c->g.dout.data = input_at(&c->own_g.dout, at);
    c->g.dlse.data = input_at(&c->own_g.dlse, at);
}

/* set_key_strides is for keys that lie packed among `length` ones. */
static void set_key_strides(attn_tensor *t, int64_t heads, int64_t length, int64_t dim)
{
    t->stride_seq = (ptrdiff_t)dim;
    t->stride_head = (ptrdiff_t)(length * dim);
    t->stride_batch = (ptrdiff_t)(heads * length * dim);
}

/* A ring_shard is the keys and values of rank `source`, which lie at `data`. */
typedef struct ring_shard {
    int source;
    int64_t length;
    const char *data;
} ring_shard;

/* length_at counts the positions of the shard that this rank has at a step. */
static int64_t length_at(const ring_call *c, int step)
{
    return share_of(&c->pl.cuts, source_at(&c->pl.cuts, c->pl.rank, step)).length;
}

static ring_shard shard_at(const ring_call *c, int step)
{
    const ring_shard shard = { source_at(&c->pl.cuts, c->pl.rank, step), length_at(c, step),
                               c->base + c->pl.buffer[step % 2] };
    return shard;
}

/* set_part_keys makes the part's keys positions begin to end - 1, which begin at `at` of a shard. */
static void set_part_keys(ring_call *c, const ring_shard *shard, int64_t at, int64_t begin,
                          int64_t end)
{
    attn_params *p = &c->p;
    const ring_shape *s = &c->pl.shape;
    const int64_t heads = p->batch ? s->entries_kv / p->batch : 0, length = shard->length;
    p->part.keys = 1;
    p->part.key_begin = begin;
    p->part.key_count = end - begin;
    p->k.data = shard->data + bytes_between(p->k.dtype, at * s->dim);
    p->v.data = shard->data + values_at(s, length) + bytes_between(p->v.dtype, at * s->dim_v);
    set_key_strides(&p->k, heads, length, s->dim);
    set_key_strides(&p->v, heads, length, s->dim_v);
}

static void set_all_keys(ring_call *c)
{
    c->p.part.keys = 0;
    c->p.part.key_begin = c->p.part.key_count = 0;
}

/* pack_own packs one tensor of the rank's own keys or values. */
static void pack_own(const ring_call *c, const attn_tensor *t, int64_t dim, char *to)
{
    const int64_t bytes = room_of(t->dtype, dim), length = c->pl.length;
    const int64_t batch = c->own.batch, heads = batch ? c->pl.shape.entries_kv / batch : 0;
    const ptrdiff_t batch_step = stride_or(t->stride_batch, 0);
    const ptrdiff_t head_step = stride_or(t->stride_head, 0);
    int64_t b, h, x;
    for (b = 0; b < batch; b++)
        for (h = 0; h < heads; h++)
            for (x = 0; x < length; x++, to += bytes)
                memcpy(to,
                       (const char *)input_at(t, x) +
                           bytes_between(t->dtype, b * batch_step + h * head_step),
                       (size_t)bytes);
}

/* load_own puts the rank's own shard into the first buffer. */
static attn_status load_own(ring_call *c)
{
    const attn_ring *ring = c->pl.cuts.ring;
    char *k = c->base + c->pl.buffer[0], *v = k + values_at(&c->pl.shape, c->pl.length);
    if (ring->fetch)
        return ring->fetch(ring->fetch_user, k, v) ? ATTN_ERR_CALLBACK : ATTN_OK;
    pack_own(c, &c->own.k, c->pl.shape.dim, k);
    pack_own(c, &c->own.v, c->pl.shape.dim_v, v);
    return ATTN_OK;
}

/* has_pairs tells whether the part has a pair that may be visible, and counts. */
static int has_pairs(ring_call *c)
{
    const double pairs = visible_pairs(&c->p);
    c->stats->pairs += pairs;
    c->stats->calls += pairs > 0;
    c->stats->skipped += !(pairs > 0);
    return pairs > 0;
}

/* src/ring/gather.c - shards go round the ring, and wait at every rank until it has all keys (ring.gather). */

static ring_message shard_message(const ring_call *c, int step)
{
    const ring_message m = { c->base + c->pl.buffer[step % 2],
                             c->base + c->pl.buffer[(step + 1) % 2],
                             shard_bytes(&c->pl.shape, length_at(c, step)),
                             shard_bytes(&c->pl.shape, length_at(c, step + 1)) };
    return m;
}

/* pass_shards sends keys and values round the ring. Each rank takes its own, then those that come. It
 * returns what the ranks agree on. */
static attn_status pass_shards(ring_call *c, attn_status status,
                               attn_status (*take)(ring_call *c, const ring_shard *shard))
{
    const int ranks = c->pl.cuts.ranks;
    int step;
    for (step = 0; step < ranks; step++) {
        const ring_shard shard = shard_at(c, step);
        const int last = step == ranks - 1;
        if (!last) {
            const ring_message m = shard_message(c, step);
            status = begin_exchange(c->t, c->stats, &m, status);
            if (status)
                return status;
        }
        if (!status)
            status = take(c, &shard);
        if (!last)
            status = end_exchange(c->t, c->stats, status);
    }
    return agree_on_status(c->t, c->stats, status);
}

/* scatter_range copies keys or values of a range of a shard to their place in the whole
 * sequence. */
static void scatter_range(char *to, const char *from, int64_t entries, int64_t bytes, int64_t whole,
                          int64_t length, const ring_walk *keys)
{
    int64_t e;
    for (e = 0; e < entries; e++)
        memcpy(to + (e * whole + keys->range.begin) * bytes, from + (e * length + keys->at) * bytes,
               (size_t)(keys->range.count * bytes));
}

static void gather_shard(ring_call *c, const ring_shard *shard)
{
    const ring_shape *s = &c->pl.shape;
    const ring_cut *cuts = &c->pl.cuts;
    const int64_t length = shard->length, whole = cuts->length;
    char *to = c->base + c->pl.gathered;
    ring_walk keys = { 0 };
    while (next_range(cuts, shard->source, &keys)) {
        scatter_range(to, shard->data, s->entries_kv, room_of(c->p.k.dtype, s->dim), whole, length,
                      &keys);
        scatter_range(to + values_at(s, whole), shard->data + values_at(s, length), s->entries_kv,
                      room_of(c->p.v.dtype, s->dim_v), whole, length, &keys);
    }
}

/* is_last tells whether no further shard will come. */
static int is_last(const ring_call *c, const ring_shard *shard)
{
    const ring_cut *cuts = &c->pl.cuts;
    return shard->source == source_at(cuts, c->pl.rank, cuts->ranks - 1);
}

/* set_gathered_keys makes the part's keys those of all ranks. */
static void set_gathered_keys(ring_call *c)
{
    const ring_shard all = { 0, c->pl.cuts.length, c->base + c->pl.gathered };
    set_part_keys(c, &all, 0, 0, all.length);
    set_all_keys(c);
}

/* src/ring/logits.c - logits of this rank's rows, written as keys come.
 *
 * A part of rows and keys writes its own elements of the caller's array (attn_logits).
 */

/* choose_rows names the rows of this rank where the caller lists none. */
static void choose_rows(ring_call *c)
{
    const attn_logits *asked = &c->own.logits;
    int32_t *list = (int32_t *)(void *)(c->base + c->pl.logit_rows);
    ring_walk w = { 0 };
    int64_t i;
    if (!asked->data || asked->rows)
        return;
    c->p.logits.rows = list;
    if (!asked->num_rows)
        c->p.logits.num_rows = c->pl.length;
    while (next_range(&c->pl.cuts, c->pl.rank, &w))
        for (i = 0; i < w.range.count; i++)
            list[w.at + i] = (int32_t)(w.range.begin + i);
}

/* logits_of_part writes those of this rank's rows and the keys of the part, also where masks leave no
 * pair. */
static attn_status logits_of_part(ring_call *c)
{
    attn_params *p = &c->p;
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    p->partial = 0;
    p->logits.data = c->own.logits.data;
    while (p->logits.data && !status && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        set_part_rows(c, &rows);
        p->o.data = p->lse.data = p->stats.data = NULL;
        status = attn_forward(p, c->base + c->pl.work, (size_t)c->pl.work_bytes);
    }
    p->partial = 1;
    p->logits.data = NULL;
    return status;
}

static attn_status logits_of_shard(ring_call *c, const ring_shard *shard)
{
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    while (!status && next_range(&c->pl.cuts, shard->source, &keys)) {
        set_part_keys(c, shard, keys.at, keys.range.begin, keys.range.begin + keys.range.count);
        status = logits_of_part(c);
    }
    return status;
}

/* src/ring/forward.c - the ring, forward: states merge along the tree as keys arrive.
 *
 * A slot is the raw states of all rows of this rank, range by range.
 */

static attn_state slot_states(const ring_call *c, int slot)
{
    float *states = (float *)(void *)(c->base + c->pl.states);
    return packed_states(states + slot * c->pl.slot_floats, c->pl.rows, c->pl.shape.dim_v);
}

/* range_states gives those of a range of this rank's rows. */
static attn_state range_states(const ring_call *c, int slot, const ring_walk *rows)
{
    const attn_state s = slot_states(c, slot);
    return state_at(&s, rows->at * c->pl.shape.entries_q, s.head_dim_v);
}

/* take_slot gives a slot of empty states. */
static int take_slot(ring_call *c)
{
    char *used = c->base + c->pl.used;
    attn_state s;
    int slot = 0, i, count = 0;
    while (used[slot])
        slot++;
    ATTN_ASSERT(slot < c->pl.slots);
    used[slot] = 1;
    for (i = 0; i < c->pl.slots; i++)
        count += used[i];
    if (count > c->stats->max_pending)
        c->stats->max_pending = count;
    s = slot_states(c, slot);
    clear_states(&s);
    return slot;
}

/* merge_slots merges the states of two slots into one of them. */
static int merge_slots(ring_call *c, int lower, int upper)
{
    attn_state a, b;
    if (lower < 0 || upper < 0)
        return lower < 0 ? upper : lower;
    a = slot_states(c, lower);
    b = slot_states(c, upper);
    merge_states(&a, &b, &a);
    c->base[c->pl.used + upper] = 0;
    return lower;
}

/* entry_beside finds what a complete node merges with, NULL if that has not come: its sibling, or
 * everything so far if states do not merge along the tree. */
static ring_entry *entry_beside(const ring_call *c, tree_node node)
{
    int64_t i;
    for (i = 0; i < c->entry_count; i++)
        if (!c->pl.cuts.along_tree || are_siblings(node, c->entries[i].node))
            return &c->entries[i];
    return NULL;
}

/* add_entry adds a complete node, which together with its sibling becomes the node above. */
static void add_entry(ring_call *c, tree_node node, int slot)
{
    ring_entry *beside;
    while ((beside = entry_beside(c, node)) != NULL) {
        slot = node.index % 2 ? merge_slots(c, beside->slot, slot)
                              : merge_slots(c, slot, beside->slot);
        *beside = c->entries[--c->entry_count];
        node = parent_of(node);
    }
    beside = &c->entries[c->entry_count++];
    beside->node = node;
    beside->slot = slot;
}

/* compute_rows computes every range of this rank's rows against the keys of the part, into a new
 * slot in *slot unless the masks leave nothing. */
static attn_status compute_rows(ring_call *c, int *slot)
{
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    while (!status && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        set_part_rows(c, &rows);
        if (!has_pairs(c))
            continue;
        if (*slot < 0)
            *slot = take_slot(c);
        c->p.state = range_states(c, *slot, &rows);
        status = attn_forward(&c->p, c->base + c->pl.work, (size_t)c->pl.work_bytes);
    }
    return status;
}

/* compute_node takes the node of keys begin to end - 1, which begin at `at` of a shard. */
static attn_status compute_node(ring_call *c, tree_node node, const ring_shard *shard, int64_t at,
                                int64_t begin, int64_t end)
{
    attn_status status = ATTN_OK;
    int slot = -1;
    set_part_keys(c, shard, at, begin, end);
    if (begin < end)
        status = compute_rows(c, &slot);
    add_entry(c, node, slot);
    return status;
}

/* compute_range takes the keys of one range of a shard, node by node. */
static attn_status compute_range(ring_call *c, const ring_shard *shard, const ring_walk *keys)
{
    const ring_cut *cuts = &c->pl.cuts;
    const attn_ring_range *range = &keys->range;
    const tree_node upper = { 1, 0 }; /* Everything so far then is the lower half. */
    attn_status status = ATTN_OK;
    int64_t from, to;
    if (!cuts->along_tree)
        return compute_node(c, upper, shard, keys->at, range->begin, range->begin + range->count);
    chunks_of(cuts, range, &from, &to);
    while (from < to && !status) {
        const int64_t begin = chunk_begin(cuts, from), at = keys->at + begin - range->begin;
        const tree_node node = next_node(&from, to);
        status = compute_node(c, node, shard, at, begin, chunk_begin(cuts, from));
    }
    return status;
}

static attn_status compute_shard(ring_call *c, const ring_shard *shard)
{
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    while (!status && next_range(&c->pl.cuts, shard->source, &keys))
        status = compute_range(c, shard, &keys);
    return status ? status : logits_of_shard(c, shard);
}

/* compute_gathered keeps a shard, and computes this rank's rows against all keys when it is the last. */
static attn_status compute_gathered(ring_call *c, const ring_shard *shard)
{
    const tree_node root = { 0, 0 };
    attn_status status;
    int slot = -1;
    gather_shard(c, shard);
    if (!is_last(c, shard))
        return ATTN_OK;
    set_gathered_keys(c);
    status = compute_rows(c, &slot);
    add_entry(c, root, slot);
    return status ? status : logits_of_part(c);
}

static attn_status write_outputs(ring_call *c)
{
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    int slot = c->entry_count ? c->entries[0].slot : -1;
    ATTN_ASSERT(c->entry_count <= 1);
    if (slot < 0)
        slot = take_slot(c);
    c->p.partial = 0;
    set_all_keys(c);
    while (!status && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        const attn_state states = range_states(c, slot, &rows);
        set_part_rows(c, &rows);
        status = attn_state_finish(&c->p, &states);
    }
    return status;
}

OWN_FRAME static attn_status ring_attention(ring_call *c)
{
    attn_status status = load_own(c);
    c->p.partial = 1;
    status = pass_shards(c, status, c->pl.cuts.ring->gather ? compute_gathered : compute_shard);
    return status ? status : write_outputs(c);
}

/* src/ring/sums.c - gradients that are sums over rows: dsinks and dslopes, and dbias with or without rows.
 *
 * Each rank adds up its own parts, in their order. Then the sums over the rows of all ranks go round the
 * ring twice: rank r adds its own to those of ranks 0 to r - 1, and the last rank's are everybody's. So
 * all ranks have one set of bits, and no sum depends on which others are asked for.
 */

static float *sinks_of(const ring_call *c)
{
    return floats_at(c, c->pl.sums);
}

static float *slopes_of(const ring_call *c)
{
    return sinks_of(c) + c->pl.sink_floats;
}

/* bias_of gives dbias of this rank's rows. */
static attn_sum_axes bias_of(const ring_call *c)
{
    attn_sum_axes a = c->pl.bias;
    a.data = a.data ? slopes_of(c) + c->pl.slope_floats : NULL;
    return a;
}

/* add_bias adds columns j0 to j1-1 of an array to those of one that may have more rows, from row `row`
 * on. */
static void add_bias(const attn_sum_axes *to, const attn_sum_axes *from, int64_t row, int64_t j0,
                     int64_t j1)
{
    int64_t b, h, i, j;
    for (b = 0; b < from->count[0]; b++)
        for (h = 0; h < from->count[1]; h++)
            for (i = 0; i < from->count[2]; i++)
                for (j = j0; j < j1; j++) {
                    float *x = to->data + b * to->stride[0] + h * to->stride[1] +
                               (row + i) * to->stride[2] + j * to->stride[3];
                    *x = *x + from->data[b * from->stride[0] + h * from->stride[1] +
                                         i * from->stride[2] + j * from->stride[3]];
                }
}

/* axes_of_part tells where dbias of a part goes: to its place if it sums nothing with another part. */
static attn_sum_axes axes_of_part(const ring_call *c, const ring_walk *rows)
{
    static const ptrdiff_t packed[4] = { 0, 0, 0, 0 };
    attn_sum_axes a = bias_of(c);
    if (a.kept[ATTN_AXIS_ROW])
        a.count[ATTN_AXIS_ROW] = rows->range.count;
    if (!a.data || keeps_pairs(&a)) {
        a.data = a.data ? a.data + rows->at * a.stride[ATTN_AXIS_ROW] : NULL;
        return a;
    }
    a.data = floats_at(c, c->pl.part_bias);
    pack_axes(&a, packed);
    return a;
}

/* set_part_sums sends sums of a part to arrays of its own. */
static void set_part_sums(ring_call *c, const ring_walk *rows)
{
    const attn_sum_axes a = axes_of_part(c, rows);
    const attn_bias_gradient d = { a.stride[0], a.stride[1], a.stride[2], a.stride[3], a.data };
    c->g.dbias = d;
    c->g.dsinks = NULL;
    c->g.dslopes = c->own_g.dslopes ? floats_at(c, c->pl.part_sums) : NULL;
}

static void add_part_sums(ring_call *c, const ring_walk *rows)
{
    const attn_sum_axes to = bias_of(c), from = axes_of_part(c, rows);
    const attn_part *part = &c->p.part;
    const int keys = from.kept[ATTN_AXIS_KEY];
    add_floats(slopes_of(c), floats_at(c, c->pl.part_sums), c->pl.slope_floats);
    if (from.data && !keeps_pairs(&from))
        add_bias(&to, &from, from.kept[ATTN_AXIS_ROW] ? rows->at : 0, keys ? part->key_begin : 0,
                 keys ? part->key_begin + keys_held(&c->p) : 1);
}

/* take_sinks takes dsinks of this rank's rows, from parts of no keys. */
static attn_status take_sinks(ring_call *c)
{
    const ring_shard none = { c->pl.rank, 0, c->base + c->pl.buffer[0] };
    attn_gradients g;
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    memset(&g, 0, sizeof g);
    g.dsinks = c->own_g.dsinks ? floats_at(c, c->pl.part_sums) : NULL;
    g.score_derivative = c->g.score_derivative;
    set_part_keys(c, &none, 0, 0, 0);
    while (!status && g.dsinks && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        set_part_rows(c, &rows);
        g.dout = c->g.dout;
        g.dlse = c->g.dlse;
        status = attn_backward(&c->p, &g, c->base + c->pl.work, (size_t)c->pl.work_bytes);
        add_floats(sinks_of(c), g.dsinks, c->pl.sink_floats);
    }
    return status;
}

/* add_up_sums gives every rank the sums over the rows of all ranks, and returns what the ranks agree on.
 * Message t goes on from rank t mod the number of ranks. */
static attn_status add_up_sums(ring_call *c)
{
    attn_status status = ATTN_OK;
    const int ranks = c->pl.cuts.ranks, rank = c->pl.rank;
    const int64_t floats = c->pl.shared_floats, bytes = floats * (int64_t)sizeof(float);
    float *own = sinks_of(c), *arrived = floats_at(c, c->pl.arrived);
    int t;
    for (t = 0; floats && t < 2 * (ranks - 1); t++) {
        const int receives = rank == (t + 1) % ranks;
        const ring_message m = { (const char *)own, (char *)arrived, rank == t % ranks ? bytes : 0,
                                 receives ? bytes : 0 };
        status = begin_exchange(c->t, c->stats, &m, status);
        if (status)
            return status;
        status = end_exchange(c->t, c->stats, status);
        if (receives && !status && t < ranks - 1)
            add_floats(own, arrived, floats);
        else if (receives && !status)
            memcpy(own, arrived, (size_t)bytes);
    }
    return floats ? agree_on_status(c->t, c->stats, status) : ATTN_OK;
}

/* write_floats makes NaN canonical; to may be from. */
static void write_floats(float *to, const float *from, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++)
        to[i] = is_nan(from[i]) ? float_of(CANONICAL_NAN) : from[i];
}

static void give_sums(const ring_call *c)
{
    static const int64_t begin[4] = { 0, 0, 0, 0 };
    const attn_bias_gradient *d = &c->own_g.dbias;
    const ptrdiff_t given[4] = { d->stride_batch, d->stride_head, d->stride_q, d->stride_kv };
    const attn_sum_axes from = bias_of(c);
    attn_sum_axes to = from;
    write_floats(c->own_g.dsinks, sinks_of(c), c->pl.sink_floats);
    write_floats(c->own_g.dslopes, slopes_of(c), c->pl.slope_floats);
    if (!from.data)
        return;
    to.data = d->data;
    pack_axes(&to, given);
    store_elements(&to, begin, to.count, 1);
    add_bias(&to, &from, 0, 0, to.count[ATTN_AXIS_KEY]);
    store_elements(&to, begin, to.count, 0);
}

/* src/ring/backward.c - the ring, backward: keys and values travel, and their gradients travel behind them.
 *
 * Message t holds the keys and values of step t, up to the last that a rank lacks, and behind them the
 * gradients of the keys of step t - 1, to which each rank has added its rows' share. After message R,
 * where R is the number of ranks, the gradients are home.
 *
 * With ring.gather the keys travel first, each rank computes with all of them, and then their gradients
 * travel alone.
 */

/* gift_at tells where gradients lie in the buffer of message t. */
static int64_t gift_at(const ring_call *c, int t)
{
    return t < c->pl.cuts.ranks ? shard_bytes(&c->pl.shape, length_at(c, t)) : 0;
}

static int64_t gift_bytes(const ring_call *c, int step)
{
    return gift_floats(&c->pl.shape, length_at(c, step)) * (int64_t)sizeof(float);
}

static ring_message backward_message(const ring_call *c, int t)
{
    const int keys = t <= c->pl.cuts.ranks - 2, gifts = t > 0;
    ring_message m;
    m.send = c->base + c->pl.buffer[t % 2] + (keys ? 0 : gift_at(c, t));
    m.receive = c->base + c->pl.buffer[(t + 1) % 2];
    m.send_bytes = (keys ? gift_at(c, t) : 0) + (gifts ? gift_bytes(c, t - 1) : 0);
    m.receive_bytes = (keys ? gift_at(c, t + 1) : 0) + (gifts ? gift_bytes(c, t) : 0);
    return m;
}

/* A gradient_rows is rows from `at` on of an array [entries, length, dim]. */
typedef struct gradient_rows {
    float *data;
    int64_t length, at;
} gradient_rows;

static void add_rows(const gradient_rows *to, const gradient_rows *from, int64_t count,
                     int64_t entries, int64_t dim)
{
    int64_t e;
    for (e = 0; e < entries; e++)
        add_floats(to->data + (e * to->length + to->at) * dim,
                   from->data + (e * from->length + from->at) * dim, count * dim);
}

/* set_part_gradients sends gradients of a part to packed f32 arrays, which are zero where
 * attn_backward writes nothing. */
static void set_part_gradients(ring_call *c)
{
    const ring_shape *s = &c->pl.shape;
    const int64_t rows = c->p.part.row_count, keys = keys_held(&c->p);
    memset(&c->g.dq, 0, sizeof c->g.dq);
    c->g.dk = c->g.dv = c->g.dq;
    c->g.dq.data = zeros_at(c, c->pl.part_dq, s->entries_q * rows * s->dim);
    c->g.dk.data = zeros_at(c, c->pl.part_keys, gift_floats(s, keys));
    c->g.dv.data = floats_at(c, c->pl.part_keys) + dv_at(s, keys);
}

/* add_part_rows adds dq of a part to that of this rank. */
static void add_part_rows(const ring_call *c, const ring_walk *rows)
{
    const gradient_rows to = { floats_at(c, c->pl.dq), c->pl.length, rows->at };
    const gradient_rows from = { floats_at(c, c->pl.part_dq), rows->range.count, 0 };
    add_rows(&to, &from, rows->range.count, c->pl.shape.entries_q, c->pl.shape.dim);
}

/* add_key_rows adds dk and dv of `count` keys to those of others. Where data of either points, dk lies, and
 * behind its length dv. */
static void add_key_rows(const ring_shape *s, const gradient_rows *to, const gradient_rows *from,
                         int64_t count)
{
    gradient_rows dv = *to, from_dv = *from;
    dv.data += dv_at(s, to->length);
    from_dv.data += dv_at(s, from->length);
    add_rows(to, from, count, s->entries_kv, s->dim);
    add_rows(&dv, &from_dv, count, s->entries_kv, s->dim_v);
}

/* add_part_keys adds dk and dv of a part to those of the keys from `at` on of `length`. */
static void add_part_keys(const ring_call *c, int64_t length, int64_t at)
{
    const int64_t keys = keys_held(&c->p);
    const gradient_rows to = { floats_at(c, c->pl.gift), length, at };
    const gradient_rows part = { floats_at(c, c->pl.part_keys), keys, 0 };
    add_key_rows(&c->pl.shape, &to, &part, keys);
}

/* backward_range takes the keys of one range, which begin at `at` of a shard of `length`, against
 * all rows of this rank. */
static attn_status backward_range(ring_call *c, int64_t length, int64_t at)
{
    attn_status status = ATTN_OK;
    ring_walk rows = { 0 };
    while (!status && next_range(&c->pl.cuts, c->pl.rank, &rows)) {
        set_part_rows(c, &rows);
        if (!has_pairs(c))
            continue;
        set_part_gradients(c);
        set_part_sums(c, &rows);
        status = attn_backward(&c->p, &c->g, c->base + c->pl.work, (size_t)c->pl.work_bytes);
        add_part_rows(c, &rows);
        add_part_keys(c, length, at);
        add_part_sums(c, &rows);
    }
    return status;
}

/* backward_shard adds the rows' gradients by the keys of a shard to `gift`, and those by the rows to
 * dq. */
static attn_status backward_shard(ring_call *c, const ring_shard *shard)
{
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    zeros_at(c, c->pl.gift, gift_floats(&c->pl.shape, shard->length));
    while (!status && next_range(&c->pl.cuts, shard->source, &keys)) {
        set_part_keys(c, shard, keys.at, keys.range.begin, keys.range.begin + keys.range.count);
        status = backward_range(c, shard->length, keys.at);
    }
    return status;
}

/* store_gradient stores rows first to end - 1 of one batch entry of an output; `from` is [entries,
 * length, dim], in which it makes NaN canonical. */
static void store_gradient(const ring_call *c, const attn_output *to, int64_t heads, int64_t dim,
                           int64_t b, int64_t first, int64_t end, float *from)
{
    const attn_kernels *kernels = c->own.kernels ? c->own.kernels : best_kernels(dim, 0);
    int64_t h, x;
    for (h = 0; to->data && h < heads; h++)
        for (x = first; x < end; x++) {
            float *row = from + ((b * heads + h) * c->pl.length + x) * dim;
            write_floats(row, row, dim);
            store_run(kernels, to->dtype, to->data,
                      b * to->stride_batch + h * to->stride_head + x * to->stride_seq, row, dim);
        }
}

/* write_gradients writes those of the rows and keys in use; `home` holds dk and dv. */
static void write_gradients(ring_call *c, float *home)
{
    const ring_shape *s = &c->pl.shape;
    const attn_gradients *g = &c->own_g;
    const ring_shard own = shard_at(c, 0);
    ring_walk w = { 0 };
    int64_t b;
    while (next_range(&c->pl.cuts, c->pl.rank, &w)) {
        set_part_rows(c, &w);
        set_part_keys(c, &own, w.at, w.range.begin, w.range.begin + w.range.count);
        for (b = 0; b < c->p.batch; b++) {
            const sequence q = sequence_of(&c->p, b);
            const int64_t row = w.at - w.range.begin, key = row + q.column;
            const int64_t heads_kv = s->entries_kv / c->p.batch;
            store_gradient(c, &g->dq, c->p.num_heads_q, s->dim, b, row + q.row_from, row + q.row_to,
                           floats_at(c, c->pl.dq));
            store_gradient(c, &g->dk, heads_kv, s->dim, b, key + q.key_from, key + q.key_to, home);
            store_gradient(c, &g->dv, heads_kv, s->dim_v, b, key + q.key_from, key + q.key_to,
                           home + dv_at(s, c->pl.length));
        }
    }
}

/* join_gifts adds what came with message t to what this rank gives. */
static void join_gifts(ring_call *c, int t)
{
    float *to = floats_at(c, c->pl.buffer[(t + 1) % 2] + gift_at(c, t + 1));
    const float *own = floats_at(c, c->pl.gift);
    if (t == 0)
        memcpy(to, own, (size_t)gift_bytes(c, t));
    else
        add_floats(to, own, gift_bytes(c, t) / (int64_t)sizeof(float));
}

/* gradients_travel lets keys and their gradients go round, and leaves this rank's dk and dv at *home. */
static attn_status gradients_travel(ring_call *c, attn_status status, float **home)
{
    const int ranks = c->pl.cuts.ranks, exchanges = ranks > 1;
    int t;
    for (t = 0; t < ranks + exchanges; t++) {
        const ring_message m = backward_message(c, t);
        const ring_shard shard = shard_at(c, t);
        if (exchanges)
            status = begin_exchange(c->t, c->stats, &m, status);
        if (exchanges && status)
            return status;
        if (!status && t < ranks)
            status = backward_shard(c, &shard);
        if (exchanges)
            status = end_exchange(c->t, c->stats, status);
        if (!status && t < ranks)
            join_gifts(c, t);
    }
    *home = floats_at(c, c->pl.buffer[t % 2]);
    return agree_on_status(c->t, c->stats, status);
}

/* backward_gathered keeps a shard, and takes this rank's rows against all keys when it is the last. */
static attn_status backward_gathered(ring_call *c, const ring_shard *shard)
{
    const int64_t whole = c->pl.cuts.length;
    gather_shard(c, shard);
    if (!is_last(c, shard))
        return ATTN_OK;
    set_gathered_keys(c);
    zeros_at(c, c->pl.gift, gift_floats(&c->pl.shape, whole));
    return backward_range(c, whole, 0);
}

/* add_gift adds what this rank has for the keys of rank `source` to gradients that lie as its shard. */
static void add_gift(const ring_call *c, int source, float *data)
{
    const ring_cut *cuts = &c->pl.cuts;
    const int64_t length = share_of(cuts, source).length;
    ring_walk keys = { 0 };
    while (next_range(cuts, source, &keys)) {
        const gradient_rows to = { data, length, keys.at };
        const gradient_rows own = { floats_at(c, c->pl.gift), cuts->length, keys.range.begin };
        add_key_rows(&c->pl.shape, &to, &own, keys.range.count);
    }
}

/* gradients_gathered sends a sum for each rank's keys round, to which all ranks add, that rank last. It
 * leaves this rank's dk and dv at *home. */
static attn_status gradients_gathered(ring_call *c, attn_status status, float **home)
{
    const ring_cut *cuts = &c->pl.cuts;
    int t;
    status = pass_shards(c, status, backward_gathered);
    if (status)
        return status;
    *home = zeros_at(c, c->pl.buffer[0], gift_floats(&c->pl.shape, length_at(c, 1)));
    add_gift(c, source_at(cuts, c->pl.rank, 1), *home);
    for (t = 1; t < cuts->ranks; t++) {
        const ring_message m = { (char *)*home, c->base + c->pl.buffer[t % 2], gift_bytes(c, t),
                                 gift_bytes(c, t + 1) };
        status = begin_exchange(c->t, c->stats, &m, status);
        if (status)
            return status;
        status = end_exchange(c->t, c->stats, status);
        *home = floats_at(c, c->pl.buffer[t % 2]);
        add_gift(c, source_at(cuts, c->pl.rank, t + 1), *home);
    }
    return agree_on_status(c->t, c->stats, status);
}

OWN_FRAME static attn_status ring_gradients(ring_call *c)
{
    float *home = NULL;
    attn_status status = load_own(c);
    zeros_at(c, c->pl.dq, c->pl.shape.entries_q * c->pl.shape.dim * c->pl.length);
    zeros_at(c, c->pl.sums, c->pl.sum_floats);
    if (!status)
        status = take_sinks(c);
    status = c->pl.cuts.ring->gather ? gradients_gathered(c, status, &home)
                                     : gradients_travel(c, status, &home);
    if (!status)
        status = add_up_sums(c);
    if (status)
        return status;
    write_gradients(c, home);
    give_sums(c);
    return ATTN_OK;
}

/* src/ring/ring.c - context parallelism: the public functions. */

/* cut_for makes *cuts those of a call about which somebody asks what `rank` holds. */
static attn_status cut_for(const attn_params *p, const attn_ring *ring, int rank, ring_cut *cuts)
{
    text why = text_in(NULL, 0);
    attn_status status;
    if (!ring || !ring->transport || rank < 0 || rank >= ring->transport->size)
        return ATTN_ERR_ARG;
    status = check_cut(p, ring, ring->transport->size, &why);
    if (!status)
        status = refuse_fields(p, BY_ANY_RING, "a ring of ranks", &why);
    if (!status)
        *cuts = cut_of(p, ring, ring->transport->size);
    return status;
}

ATTN_API attn_status attn_ring_ranges(const attn_params *p, const attn_ring *ring, int rank,
                                      attn_ring_range *ranges, int64_t most, int64_t *count)
{
    ring_walk w = { 0 };
    attn_status status;
    ring_cut cuts;
    if (!count || most < 0 || (most > 0 && !ranges))
        return ATTN_ERR_ARG;
    *count = 0;
    status = cut_for(p, ring, rank, &cuts);
    for (; !status && next_range(&cuts, rank, &w); ++*count)
        if (*count < most)
            ranges[*count] = w.range;
    return status;
}

ATTN_API attn_status attn_ring_describe(const attn_params *p, const attn_ring *ring, int rank,
                                        attn_ring_info *info)
{
    attn_status status;
    ring_share share;
    ring_cut cuts;
    int r;
    if (!info)
        return ATTN_ERR_ARG;
    memset(info, 0, sizeof *info);
    status = cut_for(p, ring, rank, &cuts);
    if (status)
        return status;
    share = share_of(&cuts, rank);
    info->canonical = is_canonical(&cuts);
    info->length = share.length;
    info->ranges = share.ranges;
    for (r = 0; r < cuts.ranks; r++)
        info->longest = max64(info->longest, share_of(&cuts, r).length);
    return ATTN_OK;
}

static attn_status ring_size(const attn_params *p, const attn_gradients *g, int gradients,
                             const attn_ring *ring, size_t *bytes)
{
    text why = text_in(NULL, 0);
    int64_t need = 0;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_query(p, g, gradients, ring, &why);
    if (!status)
        status = ring_bytes(p, g, ring, &need);
    *bytes = status ? 0 : (size_t)need;
    return status;
}

ATTN_API attn_status attn_ring_workspace_size(const attn_params *p, const attn_ring *ring,
                                              size_t *bytes)
{
    return ring_size(p, NULL, 0, ring, bytes);
}

ATTN_API attn_status attn_ring_backward_workspace_size(const attn_params *p,
                                                       const attn_gradients *g,
                                                       const attn_ring *ring, size_t *bytes)
{
    return ring_size(p, g, 1, ring, bytes);
}

static const char *ring_sentence(const attn_params *p, const attn_gradients *g, int gradients,
                                 const attn_ring *ring, const void *workspace, size_t bytes,
                                 char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    const attn_status status = check_ring(p, g, gradients, ring, workspace, bytes, &why);
    return verdict(status, buffer, &why);
}

ATTN_API const char *attn_ring_check(const attn_params *p, const attn_ring *ring,
                                     const void *workspace, size_t workspace_bytes, char *buffer,
                                     size_t buffer_bytes)
{
    return ring_sentence(p, NULL, 0, ring, workspace, workspace_bytes, buffer, buffer_bytes);
}

ATTN_API const char *attn_ring_backward_check(const attn_params *p, const attn_gradients *g,
                                              const attn_ring *ring, const void *workspace,
                                              size_t workspace_bytes, char *buffer,
                                              size_t buffer_bytes)
{
    return ring_sentence(p, g, 1, ring, workspace, workspace_bytes, buffer, buffer_bytes);
}

/* open_ring_call makes the call ready in its workspace. */
OWN_FRAME static ring_call *open_ring_call(const attn_params *p, const attn_gradients *g,
                                           const attn_ring *ring, attn_ring_stats *stats,
                                           void *workspace)
{
    char *base = align_memory(workspace);
    ring_call *c = (ring_call *)(void *)base;
    size_t work;
    memset(c, 0, sizeof *c);
    size_of_parts(p, g, ring, &work); /* It cannot fail, as it has passed before. */
    plan_ring(p, g, ring, work, &c->pl);
    c->base = base;
    c->t = ring->transport;
    c->stats = stats;
    c->own = *p;
    resolve_own(&c->own, c->pl.length);
    c->p = c->own;
    c->p.layout = ATTN_LAYOUT_BHSD; /* Only buffers of parts are packed. */
    c->p.logits.data = NULL;        /* Calls of their own give logits. */
    if (g) {
        c->own_g = *g;
        resolve_own_gradients(&c->own, &c->own_g, c->pl.length);
        c->g = c->own_g;
    } else {
        memset(base + c->pl.used, 0, (size_t)c->pl.slots);
        c->entries = (ring_entry *)(void *)(base + c->pl.entries);
        choose_rows(c);
    }
    stats->canonical = !g && is_canonical(&c->pl.cuts);
    return c;
}

static attn_status ring_run(const attn_params *p, const attn_gradients *g, int gradients,
                            const attn_ring *ring, void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_transport(ring, &why);
    attn_ring_stats stats;
    ring_call *c;
    if (status)
        return status;
    memset(&stats, 0, sizeof stats);
    stats.failed_rank = -1;
    status = check_ring(p, g, gradients, ring, workspace, bytes, &why);
    status = agree_on_status(ring->transport, &stats, status);
    if (!status)
        status =
            agree_on_call(ring->transport, &stats,
                          mix_sums(call_hash(p, gradients, ring, ring->transport->size), p, g));
    if (!status) {
        c = open_ring_call(p, g, ring, &stats, workspace);
        status = g ? ring_gradients(c) : ring_attention(c);
    }
    if (ring->stats)
        *ring->stats = stats;
    return status;
}

ATTN_API attn_status attn_ring_forward(const attn_params *p, const attn_ring *ring, void *workspace,
                                       size_t workspace_bytes)
{
    return ring_run(p, NULL, 0, ring, workspace, workspace_bytes);
}

ATTN_API attn_status attn_ring_backward(const attn_params *p, const attn_gradients *g,
                                        const attn_ring *ring, void *workspace,
                                        size_t workspace_bytes)
{
    return ring_run(p, g, 1, ring, workspace, workspace_bytes);
}

/* src/dilated_ring/shared.c - shared segments: those with rows of a rank and keys of others that these rows see.
 *
 * A rank has one range of positions. So at most two segments of a lattice reach beyond it: the one in
 * which it begins, and the one in which it ends. The runs of a rank are its keys in these two. For
 * gradients rows travel, too: then the runs are its rows, and the ranks that need them are those with
 * keys that the rows see.
 */

/* A dilated_cut is a call and how ranks cut it. */
typedef struct dilated_cut {
    const attn_params *p; /* Sizes that are 0 may be unresolved. */
    const attn_dilated *d;
    ring_cut cuts;
    ring_shape shape;
    int rank;
    int by_rows; /* Nonzero means that rows travel to the keys, and 0 that keys travel to the rows. */
    int64_t heads_kv, group;
} dilated_cut;

static dilated_cut dilated_cut_of(const attn_params *p, const attn_dilated *d,
                                  const attn_ring *ring)
{
    dilated_cut c = { .p = p, .d = d, .rank = ring->transport->rank };
    c.cuts = cut_of(p, ring, ring->transport->size);
    c.shape = shape_of(p);
    c.heads_kv = p->num_heads_kv ? p->num_heads_kv : p->num_heads_q;
    c.group = p->num_heads_q / c.heads_kv;
    return c;
}

/* range_of gives the positions of a rank. */
static attn_ring_range range_of(const dilated_cut *c, int rank)
{
    ring_walk w = { 0 };
    next_range(&c->cuts, rank, &w);
    return w.range;
}

/* outer_segments gives where the first and the last of the segments of positions begin to end - 1
 * begin, and returns how many these are. */
static int outer_segments(const lattice *l, int64_t begin, int64_t end, int64_t at[2])
{
    if (begin >= end)
        return 0;
    at[0] = begin / l->segment * l->segment;
    at[1] = (end - 1) / l->segment * l->segment;
    return at[0] == at[1] ? 1 : 2;
}

/* shared_segments gives what a rank needs of the segments that reach beyond it, in a sequence of
 * `positions`, and returns how many there are: the keys that its rows see, or the rows that see its
 * keys. Of rows it needs its own, too, wherever others share the segment. */
static int shared_segments(const dilated_cut *c, int rank, const lattice *l, int64_t positions,
                           attn_ring_range shared[2])
{
    const attn_ring_range own = range_of(c, rank);
    const int64_t end = min64(own.begin + own.count, positions);
    const int64_t seen = c->p->causal && !c->by_rows ? end : positions;
    int64_t at[2];
    const int outer = outer_segments(l, own.begin, end, at);
    int i, count = 0;
    for (i = 0; i < outer; i++) {
        const int64_t stop = min64(at[i] + l->segment, seen);
        if (at[i] >= own.begin && stop <= end)
            continue;
        shared[count].begin = c->p->causal && c->by_rows ? max64(at[i], own.begin) : at[i];
        shared[count].count = stop - shared[count].begin;
        count++;
    }
    return count;
}

/* shared_number finds the shared segment of which a rank needs position x, and what it needs of it. It
 * returns -1 if there is none. */
static int shared_number(const dilated_cut *c, int rank, const lattice *l, int64_t positions,
                         int64_t x, attn_ring_range *needed)
{
    attn_ring_range shared[2];
    int i = shared_segments(c, rank, l, positions, shared);
    while (--i >= 0) {
        *needed = shared[i];
        if (x >= needed->begin && x < needed->begin + needed->count)
            return i;
    }
    return i;
}

/* A shared_run is keys, or rows, of one rank in one segment, of a kv head and a class of its query
 * heads. */
typedef struct shared_run {
    int n;
    int64_t b, kv_head, class;
    head_class of; /* These are the heads of the tensors that travel. */
    int64_t position,
        dilation;       /* position is that of the first key, dilation the step to the next. */
    int64_t key, count; /* The first key has number `key` in the segment. */
    int number;    /* number is that of the segment among those that this rank shares, or -1. */
    int64_t place; /* place counts the keys that this rank has before them in the panel. */
    int hops;      /* hops counts the ranks to the furthest one that needs the keys. */
} shared_run;

/* hops_of returns -1 if no rank needs position x of `source`. */
static int hops_of(const dilated_cut *c, int source, const lattice *l, int64_t positions, int64_t x)
{
    attn_ring_range needed;
    int hops = c->cuts.ranks - 1;
    while (hops >= 0 &&
           shared_number(c, (source + hops) % c->cuts.ranks, l, positions, x, &needed) < 0)
        hops--;
    return hops;
}

typedef void (*take_run)(void *arg, const shared_run *run);

/* runs_of_class takes the runs of a lattice; *run has what they have in common. */
static void runs_of_class(const dilated_cut *c, int source, const lattice *l, shared_run *run,
                          take_run take, void *arg)
{
    const attn_ring_range own = range_of(c, source);
    const int64_t positions = sequence_of(c->p, run->b).kv_len;
    const int64_t end = min64(own.begin + own.count, positions);
    attn_ring_range needed;
    int64_t at[2];
    const int outer = outer_segments(l, own.begin, end, at);
    int i;
    for (i = 0; i < outer; i++) {
        const int64_t from = max64(own.begin, at[i]), to = min64(end, at[i] + l->segment);
        run->key = taken(l, from - at[i]);
        run->count = taken(l, to - at[i]) - run->key;
        run->position = at[i] + l->first + run->key * l->dilation;
        run->dilation = l->dilation;
        run->hops = hops_of(c, source, l, positions, from);
        run->number = shared_number(c, c->rank, l, positions, from, &needed);
        run->place = run->number < 0 ? 0 : run->key - taken(l, needed.begin - at[i]);
        if (run->count && run->hops >= 0)
            take(arg, run);
    }
}

/* each_run takes the runs of rank `source` that any rank needs, in an order that all ranks know. */
static void each_run(const dilated_cut *c, int source, take_run take, void *arg)
{
    shared_run run;
    for (run.b = 0; run.b < c->p->batch; run.b++)
        for (run.kv_head = 0; run.kv_head < c->heads_kv; run.kv_head++)
            for (run.n = 0; run.n < c->d->num_branches; run.n++) {
                const attn_dilated_branch *branch = &c->d->branches[run.n];
                const head_class of_keys = { run.kv_head, 1, 1 };
                head_class of;
                for (run.class = 0; class_of(branch, c->group, run.kv_head, run.class, &of);
                     run.class ++) {
                    const lattice l = lattice_of(branch, of.head, sequence_of(c->p, run.b).kv_len);
                    run.of = c->by_rows ? of : of_keys;
                    runs_of_class(c, source, &l, &run, take, arg);
                }
            }
}

/* src/dilated_ring/plan.c - the plan of a rank of dilated attention, and what can be wrong with the call.
 *
 *     workspace = | alignment | dilated_ring | panels | computed rows | messages, then the run of attn_dilated |
 *
 * A panel is the keys, or values, of one shared segment that take part, for one class of heads of a kv
 * head. Panels lie in the order: branch, batch entry, kv head, class, number of the segment. Gradients
 * have panels of rows, too: those of q, dout and so on, each row with all heads of the class.
 */

/* Keys travel, and for gradients rows do. */
enum { BY_KEYS, BY_ROWS, SIDES };

/* What travels of a key, and of a row. Sums are statistics, or the LSE. */
enum { KEY_K, KEY_V, KEY_ARRAYS };
enum { ROW_Q, ROW_DOUT, ROW_O, ROW_SUMS, ROW_DLSE, MOST_CARRIED };

/* A carried is a tensor of which positions travel. */
typedef struct carried {
    attn_tensor from;
    int64_t dim, bytes; /* bytes are those of dim elements. */
    /* A tensor that the rank computes has `computed` bytes, and one for each branch `branch` each. */
    int64_t computed, branch;
} carried;

/* A dilated_side is what travels, and how ranks share it. */
typedef struct dilated_side {
    dilated_cut c;
    int count;
    carried of[MOST_CARRIED];
} dilated_side;

typedef struct side_plan {
    int hops; /* hops counts the exchanges. */
    int64_t panels[MOST_CARRIED];
} side_plan;

typedef struct dilated_ring_plan {
    dilated_layout lay; /* lay is that of this rank's rows. */
    side_plan side[SIDES];
    int64_t computed[MOST_CARRIED]; /* These are tensors of rows. */
    int64_t sent, received, run, run_bytes, bytes;
} dilated_ring_plan;

/* A dilated_ring is one call on one rank, and stands at the beginning of its workspace. */
typedef struct dilated_ring {
    attn_params own; /* own and own_g have the rank's tensors with explicit strides. */
    attn_gradients own_g;
    dilated_side side[SIDES];
    int sides; /* sides is 1 without gradients. */
    dilated_ring_plan pl;
    const attn_transport *t;
    attn_ring_stats *stats;
    char *base; /* The plan's offsets count from base. */
    const char *in;
    char *out;      /* Runs are read at in and written at out. */
    int under, hop; /* Side `under` is under way. */
} dilated_ring;

#define DILATED_RING_HEAD aligned((int64_t)sizeof(dilated_ring))

/* A panel_shape holds sizes of the panels of a branch on this rank. A shorter sequence shares no other
 * segments than the whole one, and none longer. */
typedef struct panel_shape {
    int64_t segments, classes, rows; /* rows counts those of all heads, or keys. */
} panel_shape;

static panel_shape panel_shape_of(const dilated_cut *c, int n)
{
    const attn_dilated_branch *branch = &c->d->branches[n];
    const lattice l = lattice_of(branch, 0, c->cuts.length);
    attn_ring_range shared[2];
    panel_shape s = { 0, 0, 0 };
    s.segments = shared_segments(c, c->rank, &l, c->cuts.length, shared);
    s.classes = branch->rotate ? min64(l.dilation, c->group) : 1;
    if (s.segments)
        s.rows = times(ceil_div(max64(shared[0].count, shared[s.segments - 1].count), l.dilation),
                       c->by_rows ? class_heads(branch, c->group) : 1);
    return s;
}

/* rows_of_branches counts the rows of the panels of the first n branches. */
static int64_t rows_of_branches(const dilated_cut *c, int n)
{
    int64_t rows = 0;
    while (n-- > 0) {
        const panel_shape s = panel_shape_of(c, n);
        rows = plus(rows, times(c->shape.entries_kv, times(s.segments * s.classes, s.rows)));
    }
    return rows;
}

/* panel_at counts the rows before a panel. */
static int64_t panel_at(const dilated_cut *c, int n, int64_t b, int64_t kv_head, int64_t class,
                        int number)
{
    const panel_shape s = panel_shape_of(c, n);
    const int64_t entry = (b * c->heads_kv + kv_head) * s.classes + class;
    return rows_of_branches(c, n) + (entry * s.segments + number) * s.rows;
}

static void carry_tensor(dilated_side *s, const attn_tensor *t, int64_t dim)
{
    carried *x = &s->of[s->count++];
    x->from = *t;
    x->dim = dim;
    x->bytes = room_of(t->dtype, dim);
}

/* carry_computed carries rows that this rank computes as f32, packed; each of `branches` has its own. */
static void carry_computed(dilated_side *s, int64_t dim, int branches)
{
    const int64_t length = range_of(&s->c, s->c.rank).count, heads = s->c.p->num_heads_q;
    const int64_t row = times(dim, sizeof(float));
    const attn_tensor packed = { .stride_seq = (ptrdiff_t)dim,
                                 .stride_head = to_stride(times(length, dim)),
                                 .stride_batch = to_stride(times(heads, times(length, dim))) };
    carried *x = &s->of[s->count];
    carry_tensor(s, &packed, dim);
    x->branch = times(row, times(s->c.shape.entries_q, length));
    x->computed = times(branches, x->branch);
    if (branches == 1)
        x->branch = 0;
}

/* With a mean each branch has an o and statistics of its own, and all have one share of dout. */
static void carry_rows_of_mean(dilated_side *s)
{
    const attn_dilated *d = s->c.d;
    carry_tensor(s, &s->c.p->q, s->c.shape.dim);
    carry_computed(s, s->c.shape.dim_v, 1);
    carry_computed(s, s->c.shape.dim_v, d->num_branches);
    carry_computed(s, 2, d->num_branches);
}

static void carry_rows(dilated_side *s, const attn_gradients *g)
{
    const attn_params *p = s->c.p;
    const ring_shape *shape = &s->c.shape;
    const attn_tensor o = as_tensor(&p->o);
    const attn_tensor sums = as_tensor(p->stats.data ? &p->stats : &p->lse);
    carry_tensor(s, &p->q, shape->dim);
    carry_tensor(s, &g->dout, shape->dim_v);
    carry_tensor(s, &o, shape->dim_v);
    carry_tensor(s, &sums, p->stats.data ? 2 : 1);
    if (g->dlse.data)
        carry_tensor(s, &g->dlse, 1);
}

/* open_sides tells what travels, and returns the number of sides. */
static int open_sides(const attn_params *p, const attn_dilated *d, const attn_gradients *g,
                      const attn_ring *ring, dilated_side side[SIDES])
{
    memset(side, 0, SIDES * sizeof *side);
    side[BY_KEYS].c = side[BY_ROWS].c = dilated_cut_of(p, d, ring);
    side[BY_ROWS].c.by_rows = 1;
    carry_tensor(&side[BY_KEYS], &p->k, side->c.shape.dim);
    carry_tensor(&side[BY_KEYS], &p->v, side->c.shape.dim_v);
    if (g && d->merge == ATTN_DILATED_MEAN)
        carry_rows_of_mean(&side[BY_ROWS]);
    else if (g)
        carry_rows(&side[BY_ROWS], g);
    return g ? SIDES : 1;
}

/* bytes_carried counts those of a row of all arrays. */
static int64_t bytes_carried(const dilated_side *s)
{
    int64_t bytes = 0;
    int i;
    for (i = 0; i < s->count; i++)
        bytes = plus(bytes, s->of[i].bytes);
    return bytes;
}

/* A message_size counts what goes `hop` ranks far, and the furthest way of all. */
typedef struct message_size {
    int hop, furthest;
    int64_t rows;
} message_size;

static void count_run(void *arg, const shared_run *run)
{
    message_size *m = arg;
    m->furthest = run->hops > m->furthest ? run->hops : m->furthest;
    if (run->hops >= m->hop)
        m->rows = plus(m->rows, times(run->count, run->of.heads));
}

/* message_bytes counts the bytes of what rank `source` has for ranks at least `hop` ranks away. */
static int64_t message_bytes(const dilated_side *s, int source, int hop)
{
    message_size m = { hop, 0, 0 };
    each_run(&s->c, source, count_run, &m);
    return times(m.rows, bytes_carried(s));
}

static int furthest_hop(const dilated_cut *c)
{
    message_size m = { 0, 0, 0 };
    int source;
    for (source = 0; source < c->cuts.ranks; source++)
        each_run(c, source, count_run, &m);
    return m.furthest;
}

/* plan_side places the panels and returns the bytes of the largest message. */
static int64_t plan_side(const dilated_side *s, side_plan *pl, int64_t *at)
{
    const dilated_cut *c = &s->c;
    const int64_t rows = rows_of_branches(c, c->d->num_branches);
    int64_t most = 0;
    int i, hop;
    pl->hops = furthest_hop(c);
    for (i = 0; i < s->count; i++)
        pl->panels[i] = place(at, times(rows, s->of[i].bytes), 1);
    for (hop = 0; hop <= pl->hops; hop++) /* What is passed on is part of what has come. */
        most = max64(most, message_bytes(s, source_at(&c->cuts, c->rank, hop), hop + !hop));
    return most;
}

OWN_FRAME static void plan_dilated_ring(const attn_params *p, const attn_dilated *d,
                                        const attn_gradients *g, const attn_ring *ring,
                                        dilated_ring_plan *pl)
{
    dilated_side side[SIDES];
    const int sides = open_sides(p, d, g, ring, side);
    int64_t most = 0, end;
    int i;
    pl->bytes = DILATED_RING_HEAD;
    for (i = 0; i < sides; i++)
        most = max64(most, plan_side(&side[i], &pl->side[i], &pl->bytes));
    for (i = 0; i < side[BY_ROWS].count; i++)
        pl->computed[i] = place(&pl->bytes, side[BY_ROWS].of[i].computed, 1);
    pl->run = end = pl->bytes;
    pl->sent = place(&end, most, 1);
    pl->received = place(&end, pl->side[BY_KEYS].hops + pl->side[BY_ROWS].hops ? most : 0, 1);
    pl->run_bytes = dilated_bytes(&pl->lay, pl->lay.workers);
    pl->bytes = max64(end, plus(pl->run, pl->run_bytes));
    pl->bytes = plus(pl->bytes, ALIGNMENT - 1); /* The workspace may begin anywhere. */
}

/* ---- what can be wrong */

static attn_status check_one_range(const attn_params *p, const attn_ring *ring, text *why)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    int rank;
    for (rank = 0; rank < c.ranks; rank++)
        if (share_of(&c, rank).ranges > 1)
            return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.layout", ring->layout,
                             " gives a rank several ranges, and dilated attention takes one");
    return ATTN_OK;
}

/* check_ring_of_branches refuses what only a ring of whole attention takes. */
static attn_status check_ring_of_branches(const attn_params *p, const attn_dilated *d,
                                          const attn_gradients *g, const attn_ring *ring, text *why)
{
    if (g && (g->dbias.data || g->dsinks || g->dslopes))
        return bad(
            why, ATTN_ERR_UNSUPPORTED,
            "dbias, dsinks and dslopes are not built for branches over ranks: leave them NULL");
    if (p->kv_begin)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "kv_begin is set, but ranks of dilated attention cut rows and keys alike");
    if (p->prefix)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "prefix is set, but ranks gather only the keys up to their last row");
    if (ring->gather)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.gather", ring->gather,
                         " is set, but dilated attention always gathers what ranks share");
    if (ring->arrival)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.arrival", ring->arrival,
                         " is set, but dilated attention merges branches in their order");
    if (ring->fetch)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "ring.fetch is set, but dilated attention reads k.data and v.data");
    if (d && d->variant == ATTN_DILATED_GATHERED)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "variant", d->variant,
                         " (gathered) is not built for ranks: leave it 0 (strided)");
    return ATTN_OK;
}

static attn_status check_rows_are_keys(const attn_params *p, text *why)
{
    int64_t b;
    for (b = 0; b < kinds_of(p); b++) {
        const sequence s = sequence_of(p, b);
        if (s.q_len != s.kv_len)
            return bad_entry(why, "q_len", b, s.q_len,
                             " must be kv_len: over ranks every position is a row");
    }
    return ATTN_OK;
}

/* outline_of_rank makes *out the outline of this rank's rows. */
OWN_FRAME static attn_status outline_of_rank(const attn_params *p, const attn_dilated *d,
                                             const attn_gradients *g, const attn_ring *ring,
                                             outline *out, text *why)
{
    attn_gradients resolved;
    problem pr;
    attn_status status = g ? validate_gradients(p, d, g, 0, &pr, &resolved, why)
                           : validate_dilated(p, d, 0, &pr, why);
    if (!status)
        status = check_rows_are_keys(&pr.p, why);
    if (status)
        return status;
    fill_outline(&pr, out);
    out->rows = out->keys = own_length(p, ring);
    out->gathered = 0;
    out->empty = p->batch == 0 || out->rows == 0;
    return status;
}

/* plan_own_rows plans the calls of this rank, whose keys lie where the caller has them or in panels. */
static attn_status plan_own_rows(const attn_params *p, const attn_dilated *d, outline *out,
                                 dilated_layout *lay, text *why)
{
    attn_status status = plan_dilated(p, d, out, lay, why);
    out->gathered = 1;
    if (!status)
        status = plan_inner(p, d, out, lay);
    return status;
}

/* plan_own_gradients plans calls of segments that lie in this rank, and then calls of shared ones, which
 * see more rows or keys than the rank has, but are asked for dq alone or for dk and dv. */
static attn_status plan_own_gradients(const attn_params *p, const attn_dilated *d,
                                      const attn_gradients *g, outline *out, dilated_layout *lay,
                                      text *why)
{
    const int64_t positions = out->positions;
    attn_gradients by_parts = *g;
    attn_status status;
    by_parts.gemms = 7;
    plan_sum_grads(d, out, g, lay);
    out->positions = out->rows;
    status = plan_backward_calls(p, d, out, g, lay, why);
    out->positions = out->rows = positions;
    return status ? status : plan_backward_calls(p, d, out, &by_parts, lay, why);
}

/* check_dilated_query checks what a size depends on, and plans. A forward call has no g, and
 * `gradients` tells which of the two calls it is. */
static attn_status check_dilated_query(const attn_params *p, const attn_dilated *d,
                                       const attn_gradients *g, int gradients,
                                       const attn_ring *ring, dilated_ring_plan *pl, text *why)
{
    outline out;
    attn_status status = check_query(p, g, gradients, ring, why);
    memset(pl, 0, sizeof *pl);
    if (!status)
        status = check_one_range(p, ring, why);
    if (!status)
        status = check_ring_of_branches(p, d, g, ring, why);
    if (!status)
        status = outline_of_rank(p, d, g, ring, &out, why);
    if (!status && !out.empty)
        status = g ? plan_own_gradients(p, d, g, &out, &pl->lay, why)
                   : plan_own_rows(p, d, &out, &pl->lay, why);
    if (status)
        return status;
    plan_dilated_ring(p, d, g, ring, pl);
    if (pl->bytes >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    return ATTN_OK;
}

/* check_dilated_ring checks everything that can be wrong on one rank. */
static attn_status check_dilated_ring(const attn_params *p, const attn_dilated *d,
                                      const attn_gradients *g, int gradients, const attn_ring *ring,
                                      const void *workspace, size_t bytes, dilated_ring_plan *pl,
                                      text *why)
{
    const int64_t have = bytes_given(workspace, bytes);
    int64_t length;
    area a;
    attn_status status = check_dilated_query(p, d, g, gradients, ring, pl, why);
    if (status)
        return status;
    length = own_length(p, ring);
    status = check_tensors_held(p, g, ring, length, d->merge == ATTN_DILATED_MEAN, why);
    if (!status && have < pl->bytes)
        status = too_small(why, have, pl->bytes,
                           g ? "attn_dilated_ring_backward_workspace_size"
                             : "attn_dilated_ring_workspace_size");
    a = area_of_bytes("the workspace", workspace, status ? 0 : pl->bytes);
    return status ? status : check_ring_memory(p, g, ring, length, &a, why);
}

/* src/dilated_ring/travel.c - what travels: each rank starts runs, and keeps or passes on those that come.
 *
 * Message `hop` of a rank holds its runs that ranks at least `hop` ranks away need, each as keys and then
 * values, or as the arrays of rows one after the other. A rank keeps in panels what it needs, and passes
 * on what must go further.
 */

/* pack_run copies rows of a run from this rank's own tensor. */
static void pack_run(const dilated_ring *r, const carried *x, const shared_run *run, char *to)
{
    const attn_tensor *t = &x->from;
    const dilated_cut *c = &r->side->c;
    const int64_t first = run->position - range_of(c, c->rank).begin;
    const int64_t step = run->of.step * stride_or(t->stride_head, 0);
    const int64_t entry =
        run->b * stride_or(t->stride_batch, 0) + run->of.head * stride_or(t->stride_head, 0);
    int64_t i, h;
    for (i = 0; i < run->count; i++)
        for (h = 0; h < run->of.heads; h++, to += x->bytes)
            memcpy(to,
                   (const char *)input_at(t, first + i * run->dilation) + run->n * x->branch +
                       bytes_between(t->dtype, entry + h * step),
                   (size_t)x->bytes);
}

/* place_of_run gives where a run begins in the panels of array i of the side under way. */
static char *place_of_run(const dilated_ring *r, int i, const shared_run *run)
{
    const dilated_side *s = &r->side[r->under];
    const int64_t panel = panel_at(&s->c, run->n, run->b, run->kv_head, run->class, run->number);
    return r->base + r->pl.side[r->under].panels[i] +
           (panel + run->place * run->of.heads) * s->of[i].bytes;
}

/* start_run takes a run of this rank's own. */
static void start_run(void *arg, const shared_run *run)
{
    dilated_ring *r = arg;
    const dilated_side *s = &r->side[r->under];
    int i;
    for (i = 0; i < s->count; i++) {
        if (run->number >= 0)
            pack_run(r, &s->of[i], run, place_of_run(r, i, run));
        if (run->hops > 0) {
            pack_run(r, &s->of[i], run, r->out);
            r->out += run->count * run->of.heads * s->of[i].bytes;
        }
    }
}

static void pass_on_rows(dilated_ring *r, int i, const shared_run *run)
{
    const size_t n = (size_t)(run->count * run->of.heads * r->side[r->under].of[i].bytes);
    if (run->number >= 0)
        memcpy(place_of_run(r, i, run), r->in, n);
    if (run->hops > r->hop) {
        memcpy(r->out, r->in, n);
        r->out += n;
    }
    r->in += n;
}

/* pass_on_run takes a run that has come `hop` ranks far. */
static void pass_on_run(void *arg, const shared_run *run)
{
    dilated_ring *r = arg;
    int i;
    for (i = 0; i < r->side[r->under].count && run->hops >= r->hop; i++)
        pass_on_rows(r, i, run);
}

static ring_message message_of_hop(const dilated_ring *r, int hop)
{
    const dilated_side *s = &r->side[r->under];
    const dilated_cut *c = &s->c;
    const ring_message m = { r->base + r->pl.sent, r->base + r->pl.received,
                             message_bytes(s, source_at(&c->cuts, c->rank, hop - 1), hop),
                             message_bytes(s, source_at(&c->cuts, c->rank, hop), hop) };
    return m;
}

/* exchange_side brings this rank what it needs of one side, unless the status so far is that of a
 * failure, and returns what the ranks agree on. */
static attn_status exchange_side(dilated_ring *r, int side, attn_status status)
{
    const dilated_cut *c = &r->side[side].c;
    r->under = side;
    r->out = r->base + r->pl.sent;
    each_run(c, c->rank, start_run, r);
    for (r->hop = 1; r->hop <= r->pl.side[r->under].hops; r->hop++) {
        const ring_message m = message_of_hop(r, r->hop);
        status = begin_exchange(r->t, r->stats, &m, status);
        if (status)
            return status;
        status = end_exchange(r->t, r->stats, status);
        r->in = m.receive;
        r->out = r->base + r->pl.sent;
        if (!status)
            each_run(c, source_at(&c->cuts, c->rank, r->hop), pass_on_run, r);
    }
    return agree_on_status(r->t, r->stats, status);
}

/* panel_view gives a shared segment's rows of array i to a call. */
static attn_output panel_view(const dilated_ring *r, int side, int i, const dilated_slot *w,
                              int number)
{
    const dilated_side *s = &r->side[side];
    const carried *x = &s->of[i];
    const int64_t heads = s->c.by_rows ? w->of.heads : 1;
    const int64_t panel = panel_at(&s->c, w->n, w->s.b, w->kv_head, w->class, number);
    const attn_output packed = { .dtype = x->from.dtype,
                                 .stride_head = (ptrdiff_t)(heads > 1 ? x->dim : 0),
                                 .stride_seq = (ptrdiff_t)(heads * x->dim),
                                 .data = r->base + r->pl.side[side].panels[i] + panel * x->bytes };
    return packed;
}

/* src/dilated_ring/forward.c - dilated attention over ranks, forward: each rank computes its rows. */

/* true_lattice gives the lattice of the call under way, of which the slot may know only the beginning of
 * a segment. */
static lattice true_lattice(const dilated_slot *w, const dilated_cut *c)
{
    return lattice_of(&c->d->branches[w->n], w->of.head, sequence_of(c->p, w->s.b).kv_len);
}

/* open_shared_keys lets a call of a shared segment read its panel. */
static void open_shared_keys(dilated_slot *w)
{
    const dilated_ring *r = w->run->ranks;
    const dilated_cut *c = &r->side[BY_KEYS].c;
    const lattice l = true_lattice(w, c);
    attn_ring_range needed;
    const int number = shared_number(c, c->rank, &l, sequence_of(c->p, w->s.b).kv_len,
                                     w->at.first - w->l.first, &needed);
    attn_output k, v;
    if (number < 0) {
        open_own_keys(w);
        return;
    }
    k = panel_view(r, BY_KEYS, KEY_K, w, number);
    v = panel_view(r, BY_KEYS, KEY_V, w, number);
    w->p.k = as_tensor(&k);
    w->p.v = as_tensor(&v);
}

/* open_own_run opens the run of this rank's rows. */
static dilated_run *open_own_run(dilated_ring *r)
{
    const dilated_cut *c = &r->side->c;
    const attn_ring_range own = range_of(c, c->rank);
    dilated_run *run =
        open_run(&r->own, c->d, &r->pl.lay, r->base + r->pl.run, (size_t)r->pl.run_bytes);
    run->begin = own.begin;
    run->end = own.begin + own.count;
    run->open_keys = open_shared_keys;
    run->ranks = r;
    return run;
}

static void count_call(dilated_slot *w)
{
    const dilated_ring *r = w->run->ranks;
    open_pairs(w);
    r->stats->pairs += visible_pairs(&w->p);
}

/* count_pairs tells ring.stats of the pairs of this rank's rows. */
static void count_pairs(dilated_run *run)
{
    const attn_params *p = &run->c.pr.p;
    int64_t index;
    int n;
    for (index = 0; index < p->batch * p->num_heads_kv; index++) {
        dilated_slot *w = open_slot(&run->c, run->c.slots, index);
        for (n = 0; n < run->d.num_branches; n++)
            each_call(w, n, count_call);
    }
}

static attn_status compute_own_rows(dilated_ring *r)
{
    dilated_run *run = open_own_run(r);
    count_pairs(run);
    return run_list(run, strided_item);
}

/* src/dilated_ring/backward.c - dilated attention over ranks, backward: each rank computes the gradients of its
 * positions.
 *
 * No gradient travels. A segment that several ranks share takes two calls on each of them: its own rows
 * with the keys that they see give dq, and its own keys with the rows that see them give dk and dv. Both
 * are parts of the call that one process makes, and add up in its order.
 */

/* open_rows lets the call read a panel of rows. */
static void open_row_panels(dilated_slot *w, const dilated_ring *r, int number)
{
    attn_output x[MOST_CARRIED];
    const int count = r->side[BY_ROWS].count;
    int i;
    for (i = 0; i < count; i++)
        x[i] = panel_view(r, BY_ROWS, i, w, number);
    w->p.q = as_tensor(&x[ROW_Q]);
    w->p.o = x[ROW_O];
    if (r->side[BY_ROWS].of[ROW_SUMS].dim == 2)
        w->p.stats = x[ROW_SUMS];
    else
        w->p.lse = x[ROW_SUMS];
    w->g.dout = as_tensor(&x[ROW_DOUT]);
    if (count > ROW_DLSE)
        w->g.dlse = as_tensor(&x[ROW_DLSE]);
}

/* narrow_call makes the call, which has all rows and keys of a segment, one of the rows `needed` and of
 * this rank's keys. */
static void narrow_call(dilated_slot *w, int64_t begin, const attn_ring_range *needed)
{
    const int64_t end = needed->begin + needed->count;
    attn_part *part = &w->p.part;
    part->rows = part->keys = 1;
    part->row_begin = taken(&w->l, needed->begin - begin);
    part->row_count = taken(&w->l, end - begin) - part->row_begin;
    part->key_begin = taken(&w->l, w->from - begin);
    part->key_count = taken(&w->l, min64(w->to, end) - begin) - part->key_begin;
    w->at.first += part->key_begin * w->l.dilation;
    w->at.keys = part->key_count;
}

/* keys_call gives dk and dv of this rank's keys of a shared segment at `begin`. */
static void keys_call(dilated_slot *w, const dilated_ring *r, int number,
                      const attn_ring_range *needed)
{
    const int64_t begin = w->at.first - w->l.first;
    w->l = true_lattice(w, &r->side->c);
    w->at.row0 = 0;
    w->at.rows = w->at.keys = taken(&w->l, needed->begin + needed->count - begin);
    open_pairs(w);
    narrow_call(w, begin, needed);
    open_own_keys(w);
    ask_for(w, GRAD_K, GRAD_V);
    open_row_panels(w, r, number);
    w->g.gemms = 7;
    if (w->g.dk.data || w->g.dv.data)
        run_gradients(w);
}

/* computed_rows gives the call rows of this rank that it has computed. */
static attn_output computed_rows(const dilated_slot *w, int i)
{
    const dilated_ring *r = w->run->ranks;
    const carried *x = &r->side[BY_ROWS].of[i];
    attn_output t = { .stride_batch = x->from.stride_batch,
                      .stride_head = x->from.stride_head,
                      .stride_seq = x->from.stride_seq };
    t.data = r->base + r->pl.computed[i] + w->n * x->branch;
    return view_output(w, &t);
}

/* view_own_rows gives the call what gradients of this rank's rows need. */
static void view_own_rows(dilated_slot *w)
{
    attn_output dout;
    if (w->run->d.merge != ATTN_DILATED_MEAN) {
        view_results(w);
        return;
    }
    dout = computed_rows(w, ROW_DOUT);
    w->g.dout = as_tensor(&dout);
    w->p.o = computed_rows(w, ROW_O);
    w->p.stats = computed_rows(w, ROW_SUMS);
}

static void rows_call(dilated_slot *w)
{
    open_call(w);
    ask_for(w, GRAD_Q, GRAD_Q);
    view_own_rows(w);
    w->g.gemms = 7;
    if (w->g.dq.data)
        run_gradients(w);
}

/* shared_of_call finds the shared segment of the call, and the rows that this rank needs of it. It returns
 * -1 if the segment lies in this rank. */
static int shared_of_call(const dilated_slot *w, attn_ring_range *needed)
{
    const dilated_ring *r = w->run->ranks;
    const dilated_cut *c = &r->side[BY_ROWS].c;
    const lattice l = true_lattice(w, c);
    const int64_t first = max64(w->at.first - w->l.first, w->from);
    return shared_number(c, c->rank, &l, sequence_of(c->p, w->s.b).kv_len, first, needed);
}

static void rank_call(dilated_slot *w)
{
    attn_ring_range needed;
    const int number = shared_of_call(w, &needed);
    if (number < 0) {
        backward_call(w);
        return;
    }
    rows_call(w);
    keys_call(w, w->run->ranks, number, &needed);
}

static void rank_item(const call *c, char *base, int64_t index)
{
    gradients_item(c, base, index, rank_call);
}

/* open_own_gradients opens the run of this rank's gradients. */
OWN_FRAME static dilated_run *open_own_gradients(dilated_ring *r)
{
    text why = text_in(NULL, 0);
    dilated_run *run = open_own_run(r);
    run->calls = 1;
    validate_gradients(&r->own, r->side->c.d, &r->own_g, 1, &run->c.pr, &run->g, &why);
    return run;
}

static attn_status compute_own_gradients(dilated_ring *r)
{
    dilated_run *run = open_own_gradients(r);
    count_pairs(run);
    return run_list(run, rank_item);
}

/* ---- rows of a mean, before they travel */

static void keep_share(dilated_slot *w, const call_row *at)
{
    const dilated_ring *r = w->run->ranks;
    const attn_tensor *t = &r->side[BY_ROWS].of[ROW_DOUT].from;
    const int64_t row = w->s.q_row + at->position - w->before;
    float *dout = (float *)(void *)(r->base + r->pl.computed[ROW_DOUT]);
    share_dout(w, at, dout + ROW_AT(*t, &w->s, at->head, row));
}

/* mean_call computes o and statistics of a branch, and its share of dout, where segments are shared. */
static void mean_call(dilated_slot *w)
{
    attn_ring_range needed;
    if (shared_of_call(w, &needed) < 0)
        return;
    open_call(w);
    w->p.o = computed_rows(w, ROW_O);
    w->p.stats = computed_rows(w, ROW_SUMS);
    run_call(w);
    each_row(w, keep_share);
}

static void mean_item(const call *c, char *base, int64_t index)
{
    dilated_slot *w = open_slot(c, base, index);
    int n;
    for (n = 0; n < w->run->d.num_branches; n++)
        each_call(w, n, mean_call);
}

/* exchange_rows brings this rank the rows that it needs, of a mean with what their ranks compute first. */
static attn_status exchange_rows(dilated_ring *r)
{
    attn_status status = ATTN_OK;
    if (r->side->c.d->merge == ATTN_DILATED_MEAN && r->pl.lay.slot_bytes)
        status = run_list(open_own_gradients(r), mean_item);
    return exchange_side(r, BY_ROWS, status);
}

/* src/dilated_ring/dilated_ring.c - dilated attention over ranks: the public functions. */

static uint32_t mix_branches(uint32_t hash, const attn_dilated *d)
{
    int n;
    hash = mix_in(mix_in(hash, d->merge), d->num_branches);
    for (n = 0; n < d->num_branches; n++) {
        const attn_dilated_branch *branch = &d->branches[n];
        hash = mix_in(mix_in(hash, branch->rotate != 0), branch->segment);
        hash = mix_in(mix_in(hash, branch->dilation), branch->offset);
        hash = mix_in(mix_in(hash, branch->head_begin), branch->head_count);
    }
    return hash;
}

/* mix_rows mixes in the arrays of rows that travel. */
static uint32_t mix_rows(uint32_t hash, const attn_params *p, const attn_gradients *g)
{
    hash = mix_in(mix_in(hash, p->o.dtype), g->dout.dtype);
    return mix_in(mix_in(hash, p->stats.data != NULL), g->dlse.data != NULL);
}

static uint32_t dilated_hash(const attn_params *p, const attn_dilated *d, const attn_gradients *g,
                             const attn_ring *ring)
{
    const uint32_t hash = mix_branches(call_hash(p, g != NULL, ring, ring->transport->size), d);
    return g ? mix_rows(hash, p, g) : hash;
}

/* place_computed lets what this rank computes travel from where it lies. */
static void place_computed(dilated_ring *r)
{
    dilated_side *s = &r->side[BY_ROWS];
    int i;
    for (i = 0; i < s->count; i++)
        if (s->of[i].computed)
            s->of[i].from.data = r->base + r->pl.computed[i];
}

static dilated_ring *open_dilated_ring(const attn_params *p, const attn_dilated *d,
                                       const attn_gradients *g, const attn_ring *ring,
                                       const dilated_ring_plan *pl, attn_ring_stats *stats,
                                       void *workspace)
{
    const int64_t length = own_length(p, ring);
    char *base = align_memory(workspace);
    dilated_ring *r = (dilated_ring *)(void *)base;
    memset(r, 0, sizeof *r);
    r->own = *p;
    resolve_own(&r->own, length);
    if (g) {
        r->own_g = *g;
        resolve_own_gradients(&r->own, &r->own_g, length);
    }
    r->sides = open_sides(&r->own, d, g ? &r->own_g : NULL, ring, r->side);
    r->pl = *pl;
    r->base = base;
    place_computed(r);
    r->t = ring->transport;
    r->stats = stats;
    stats->canonical = 1;
    return r;
}

static attn_status compute_own(dilated_ring *r)
{
    if (!r->pl.lay.slot_bytes)
        return ATTN_OK;
    return r->sides == SIDES ? compute_own_gradients(r) : compute_own_rows(r);
}

static attn_status dilated_ring_run(const attn_params *p, const attn_dilated *d,
                                    const attn_gradients *g, int gradients, const attn_ring *ring,
                                    void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_transport(ring, &why);
    attn_ring_stats stats;
    dilated_ring_plan pl;
    if (status)
        return status;
    memset(&stats, 0, sizeof stats);
    stats.failed_rank = -1;
    status = check_dilated_ring(p, d, g, gradients, ring, workspace, bytes, &pl, &why);
    status = agree_on_status(ring->transport, &stats, status);
    if (!status)
        status = agree_on_call(ring->transport, &stats, dilated_hash(p, d, g, ring));
    if (!status) {
        dilated_ring *r = open_dilated_ring(p, d, g, ring, &pl, &stats, workspace);
        status = exchange_side(r, BY_KEYS, ATTN_OK);
        if (!status && g)
            status = exchange_rows(r);
        if (!status)
            status = agree_on_status(ring->transport, &stats, compute_own(r));
    }
    if (ring->stats)
        *ring->stats = stats;
    return status;
}

static attn_status dilated_ring_size(const attn_params *p, const attn_dilated *d,
                                     const attn_gradients *g, int gradients, const attn_ring *ring,
                                     size_t *bytes)
{
    text why = text_in(NULL, 0);
    dilated_ring_plan pl;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_dilated_query(p, d, g, gradients, ring, &pl, &why);
    *bytes = status ? 0 : (size_t)pl.bytes;
    return status;
}

static const char *dilated_ring_sentence(const attn_params *p, const attn_dilated *d,
                                         const attn_gradients *g, int gradients,
                                         const attn_ring *ring, const void *workspace, size_t bytes,
                                         char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    dilated_ring_plan pl;
    return verdict(check_dilated_ring(p, d, g, gradients, ring, workspace, bytes, &pl, &why),
                   buffer, &why);
}

ATTN_API attn_status attn_dilated_ring_forward(const attn_params *p, const attn_dilated *d,
                                               const attn_ring *ring, void *workspace,
                                               size_t workspace_bytes)
{
    return dilated_ring_run(p, d, NULL, 0, ring, workspace, workspace_bytes);
}

ATTN_API attn_status attn_dilated_ring_backward(const attn_params *p, const attn_dilated *d,
                                                const attn_gradients *g, const attn_ring *ring,
                                                void *workspace, size_t workspace_bytes)
{
    return dilated_ring_run(p, d, g, 1, ring, workspace, workspace_bytes);
}

ATTN_API attn_status attn_dilated_ring_workspace_size(const attn_params *p, const attn_dilated *d,
                                                      const attn_ring *ring, size_t *bytes)
{
    return dilated_ring_size(p, d, NULL, 0, ring, bytes);
}

ATTN_API attn_status attn_dilated_ring_backward_workspace_size(const attn_params *p,
                                                               const attn_dilated *d,
                                                               const attn_gradients *g,
                                                               const attn_ring *ring, size_t *bytes)
{
    return dilated_ring_size(p, d, g, 1, ring, bytes);
}

ATTN_API const char *attn_dilated_ring_check(const attn_params *p, const attn_dilated *d,
                                             const attn_ring *ring, const void *workspace,
                                             size_t workspace_bytes, char *buffer,
                                             size_t buffer_bytes)
{
    return dilated_ring_sentence(p, d, NULL, 0, ring, workspace, workspace_bytes, buffer,
                                 buffer_bytes);
}

ATTN_API const char *attn_dilated_ring_backward_check(const attn_params *p, const attn_dilated *d,
                                                      const attn_gradients *g,
                                                      const attn_ring *ring, const void *workspace,
                                                      size_t workspace_bytes, char *buffer,
                                                      size_t buffer_bytes)
{
    return dilated_ring_sentence(p, d, g, 1, ring, workspace, workspace_bytes, buffer,
                                 buffer_bytes);
}

/* src/ring_decode/plan.c - the plan of a rank of decoding over ranks, and what can be wrong with the call.
 *
 *     workspace = | alignment | ring_call | entries | used | states | work of a part |
 *
 * A slot is the raw states of all rows. Slots of rank 0 come first, then those of rank 1, and so on,
 * and at last one to compute in. Every rank has room for all of them, so messages need no buffers.
 */

/* slots_of_rank counts the states that a rank sends. */
static int64_t slots_of_rank(const ring_cut *c, int rank)
{
    return c->along_tree ? nodes_of_rank(c, rank) : share_of(c, rank).length > 0;
}

static int64_t first_slot(const ring_cut *c, int rank)
{
    int64_t slots = 0;
    while (rank-- > 0)
        slots = plus(slots, slots_of_rank(c, rank));
    return slots;
}

static void plan_ring_decode(const attn_params *p, const attn_ring *ring, size_t work,
                             ring_plan *pl)
{
    memset(pl, 0, sizeof *pl);
    pl->rank = ring->transport->rank;
    pl->cuts = cut_of(p, ring, ring->transport->size);
    pl->shape = shape_of(p);
    pl->length = share_of(&pl->cuts, pl->rank).length;
    pl->rows = times(pl->shape.entries_q, p->seq_len_q);
    pl->slot_floats = whole_lines(times(pl->rows, plus(pl->shape.dim_v, 2)));
    pl->slots = plus(first_slot(&pl->cuts, pl->cuts.ranks), 1);
    pl->work_bytes = work > (size_t)ADDRESS_LIMIT ? TOO_BIG : (int64_t)work;
    pl->bytes = RING_HEAD;
    pl->entries = place(&pl->bytes, pl->slots, sizeof(ring_entry));
    pl->used = place(&pl->bytes, pl->slots, 1);
    pl->states = place(&pl->bytes, times(pl->slots, pl->slot_floats), sizeof(float));
    pl->work = place(&pl->bytes, pl->work_bytes, 1);
    pl->bytes = plus(pl->bytes, ALIGNMENT - 1); /* The workspace may begin anywhere. */
}

/* decode_part_bytes sizes the largest part, as any shorter one works in its workspace. */
OWN_FRAME static attn_status decode_part_bytes(const attn_params *p, const attn_ring *ring,
                                               size_t *bytes)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    attn_params part = *p;
    part.part.keys = part.partial = 1;
    part.part.key_count = share_of(&c, ring->transport->rank).longest;
    part.kv_begin = NULL;
    return attn_workspace_size(&part, bytes);
}

OWN_FRAME static attn_status ring_decode_bytes(const attn_params *p, const attn_ring *ring,
                                               int64_t *bytes)
{
    ring_plan pl;
    size_t work;
    const attn_status status = decode_part_bytes(p, ring, &work);
    *bytes = 0;
    if (status)
        return status;
    plan_ring_decode(p, ring, work, &pl);
    *bytes = pl.bytes;
    return pl.bytes >= ADDRESS_LIMIT ? ATTN_ERR_OVERFLOW : ATTN_OK;
}

/* ---- what can be wrong */

/* check_decode_query checks what a size depends on. */
static attn_status check_decode_query(const attn_params *p, const attn_ring *ring, text *why)
{
    const attn_status status = check_level(p, ring, BY_DECODE, "decoding over ranks", why);
    if (status)
        return status;
    if (ring->gather)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.gather", ring->gather,
                         " is set, but keys of decoding over ranks stay where they are");
    if (ring->arrival)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.arrival", ring->arrival,
                         " is set, but decoding over ranks merges states in one order");
    if (ring->fetch)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "ring.fetch is set, but decoding over ranks reads k.data and v.data");
    return ATTN_OK;
}

/* hold_keys makes the call one of all rows and `length` keys, packed as the rank's tensors are. */
static void hold_keys(attn_params *held, int64_t length)
{
    held->part.keys = 1;
    held->part.key_count = length;
}

/* take_range makes the call one of a range of keys, which begins at key `at` of the rank's. Caches are told
 * so, and tensors have to begin there. */
static void take_range(attn_params *held, const attn_ring_range *range, int64_t at)
{
    held->part.key_begin = range->begin;
    held->part.key_count = range->count;
    held->part.key_row = is_scattered(held) ? at : 0;
}

/* check_own_rows wants the rank's cache to have its keys in use, range by range; strides are resolved. */
OWN_FRAME static attn_status check_own_rows(attn_params *held, const attn_ring *ring, text *why)
{
    const ring_cut c = cut_of(held, ring, ring->transport->size);
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    while (!status && is_scattered(held) && next_range(&c, ring->transport->rank, &keys)) {
        take_range(held, &keys.range, keys.at);
        status = check_sequences(held, why);
    }
    return status;
}

/* check_decode_arrays looks at what is there or, once that has passed, whether `memory` lies apart. */
OWN_FRAME static attn_status check_decode_arrays(const attn_params *p, const attn_ring *ring,
                                                 int64_t length, const area *memory, text *why)
{
    problem pr;
    attn_status status;
    pr.p = *p;
    pr.p.backend = NULL; /* Only the arguments are checked. */
    hold_keys(&pr.p, length);
    status = validate(&pr.p, &pr, 0, why);
    if (memory)
        return check_call_apart(&pr.p, memory, why);
    if (!status)
        status = check_arrays_given(&pr.p, why);
    return status || is_empty(&pr.p) ? status : check_own_rows(&pr.p, ring, why);
}

/* check_ring_decode checks everything that can be wrong on one rank. */
OWN_FRAME static attn_status check_ring_decode(const attn_params *p, const attn_ring *ring,
                                               const void *workspace, size_t bytes, text *why)
{
    const int64_t have = bytes_given(workspace, bytes);
    int64_t need, length;
    area a;
    attn_status status = check_decode_query(p, ring, why);
    if (status)
        return status;
    length = own_length(p, ring);
    status = check_decode_arrays(p, ring, length, NULL, why);
    if (status)
        return status;
    status = ring_decode_bytes(p, ring, &need);
    if (status == ATTN_ERR_OVERFLOW)
        return bad_field(why, status, "seq_len_q", p->seq_len_q,
                         ": the workspace of decoding over ranks would exceed the address space");
    if (!status && have < need)
        status = too_small(why, have, need, "attn_ring_decode_workspace_size");
    if (status)
        return status;
    a = area_of_bytes("the workspace", workspace, need);
    return check_decode_arrays(p, ring, length, &a, why);
}

/* src/ring_decode/ring_decode.c - decoding over ranks: each computes states of its keys, and the states travel. */

/* skip_scales goes to scales of the rank's key `at`. */
static const float *skip_scales(const attn_scales *x, int64_t at)
{
    return x->data ? x->data + at * stride_or(x->stride_seq, 0) : NULL;
}

/* place_keys makes tensors begin at key `at` of the rank's. */
static void place_keys(ring_call *c, int64_t at)
{
    attn_params *p = &c->p;
    if (is_scattered(p))
        return;
    p->k.data = input_at(&c->own.k, at);
    p->v.data = input_at(&c->own.v, at);
    p->k_scales.data = skip_scales(&c->own.k_scales, at);
    p->v_scales.data = skip_scales(&c->own.v_scales, at);
}

/* compute_keys puts states of keys begin to end - 1, which begin at `at` of the rank's, into a slot. */
static attn_status compute_keys(ring_call *c, int64_t slot, int64_t at, int64_t begin, int64_t end)
{
    const attn_ring_range range = { begin, end - begin };
    attn_params *p = &c->p;
    p->state = slot_states(c, (int)slot);
    clear_states(&p->state);
    if (begin >= end)
        return ATTN_OK;
    take_range(p, &range, at);
    place_keys(c, at);
    return has_pairs(c) ? attn_forward(p, c->base + c->pl.work, (size_t)c->pl.work_bytes) : ATTN_OK;
}

/* compute_nodes fills a slot for each node of a range, and moves *slot behind them. */
static attn_status compute_nodes(ring_call *c, const ring_walk *keys, int64_t *slot)
{
    const ring_cut *cuts = &c->pl.cuts;
    attn_status status = ATTN_OK;
    int64_t from, to;
    chunks_of(cuts, &keys->range, &from, &to);
    while (from < to && !status) {
        const int64_t begin = chunk_begin(cuts, from);
        next_node(&from, to);
        status = compute_keys(c, (*slot)++, keys->at + begin - keys->range.begin, begin,
                              chunk_begin(cuts, from));
    }
    return status;
}

/* add_range adds the keys of a range to the one slot of this rank, if it is not its first range. */
static attn_status add_range(ring_call *c, const ring_walk *keys, int64_t slot)
{
    const attn_ring_range *range = &keys->range;
    const int64_t to = keys->at ? c->pl.slots - 1 : slot;
    const attn_status status =
        compute_keys(c, to, keys->at, range->begin, range->begin + range->count);
    if (!status && to != slot)
        merge_slots(c, (int)slot, (int)to);
    return status;
}

static attn_status compute_own_keys(ring_call *c)
{
    int64_t slot = first_slot(&c->pl.cuts, c->pl.rank);
    attn_status status = ATTN_OK;
    ring_walk keys = { 0 };
    while (!status && next_range(&c->pl.cuts, c->pl.rank, &keys))
        status = c->pl.cuts.along_tree ? compute_nodes(c, &keys, &slot) : add_range(c, &keys, slot);
    return status;
}

/* states_after gives where the states lie that a rank has after `step` exchanges, and their size. */
static char *states_after(const ring_call *c, int step, int64_t *bytes)
{
    const int source = source_at(&c->pl.cuts, c->pl.rank, step);
    const int64_t slot_bytes = c->pl.slot_floats * (int64_t)sizeof(float);
    *bytes = slots_of_rank(&c->pl.cuts, source) * slot_bytes;
    return c->base + c->pl.states + first_slot(&c->pl.cuts, source) * slot_bytes;
}

static attn_status exchange_states(ring_call *c, attn_status status)
{
    int step;
    for (step = 0; step < c->pl.cuts.ranks - 1; step++) {
        ring_message m;
        m.send = states_after(c, step, &m.send_bytes);
        m.receive = states_after(c, step + 1, &m.receive_bytes);
        status = begin_exchange(c->t, c->stats, &m, status);
        if (status)
            return status;
        status = end_exchange(c->t, c->stats, status);
    }
    return agree_on_status(c->t, c->stats, status);
}

/* add_nodes adds the states of a rank's range, and moves *slot behind them. */
static void add_nodes(ring_call *c, const attn_ring_range *range, int64_t *slot)
{
    int64_t from, to;
    chunks_of(&c->pl.cuts, range, &from, &to);
    while (from < to) {
        const tree_node node = next_node(&from, to);
        add_entry(c, node, (int)(*slot)++);
    }
}

/* merge_all merges the states of all ranks and gives the slot with the result. */
static int merge_all(ring_call *c)
{
    const ring_cut *cuts = &c->pl.cuts;
    const tree_node upper = { 1, 0 }; /* Everything so far then is the lower half. */
    const int spare = (int)c->pl.slots - 1;
    int64_t slot = 0;
    int rank;
    for (rank = 0; rank < cuts->ranks; rank++) {
        ring_walk keys = { 0 };
        while (cuts->along_tree && next_range(cuts, rank, &keys))
            add_nodes(c, &keys.range, &slot);
        if (!cuts->along_tree && slots_of_rank(cuts, rank))
            add_entry(c, upper, (int)slot++);
    }
    ATTN_ASSERT(c->entry_count <= 1);
    return c->entry_count ? c->entries[0].slot : spare;
}

static attn_status write_all_rows(ring_call *c)
{
    const attn_state spare = slot_states(c, (int)c->pl.slots - 1);
    attn_state all;
    clear_states(&spare); /* It is the result of a call without keys. */
    all = slot_states(c, merge_all(c));
    c->p = c->own;
    return attn_state_finish(&c->p, &all);
}

/* ---- public functions */

OWN_FRAME static ring_call *open_ring_decode(const attn_params *p, const attn_ring *ring,
                                             attn_ring_stats *stats, void *workspace)
{
    char *base = align_memory(workspace);
    ring_call *c = (ring_call *)(void *)base;
    text none = text_in(NULL, 0);
    call_axes x;
    size_t work;
    memset(c, 0, sizeof *c);
    decode_part_bytes(p, ring, &work); /* It cannot fail, as it has passed before. */
    plan_ring_decode(p, ring, work, &c->pl);
    c->base = base;
    c->t = ring->transport;
    c->stats = stats;
    c->entries = (ring_entry *)(void *)(base + c->pl.entries);
    c->own = *p;
    hold_keys(&c->own, c->pl.length);
    resolve_sizes(&c->own);
    x = axes_of_call(&c->own);
    resolve_arrays(call_fields, COUNT_OF(call_fields), &c->own, &x, &none);
    name_shared(call_fields, COUNT_OF(call_fields), &c->own);
    c->p = c->own;
    c->p.partial = 1;
    stats->canonical = is_canonical(&c->pl.cuts);
    stats->max_pending = (int)c->pl.slots;
    return c;
}

ATTN_API attn_status attn_ring_decode_forward(const attn_params *p, const attn_ring *ring,
                                              void *workspace, size_t workspace_bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_transport(ring, &why);
    attn_ring_stats stats;
    if (status)
        return status;
    memset(&stats, 0, sizeof stats);
    stats.failed_rank = -1;
    status = check_ring_decode(p, ring, workspace, workspace_bytes, &why);
    status = agree_on_status(ring->transport, &stats, status);
    if (!status)
        status = agree_on_call(ring->transport, &stats,
                               mix_in(call_hash(p, 0, ring, ring->transport->size), p->seq_len_q));
    if (!status) {
        ring_call *c = open_ring_decode(p, ring, &stats, workspace);
        status = exchange_states(c, compute_own_keys(c));
        if (!status)
            status = write_all_rows(c);
    }
    if (ring->stats)
        *ring->stats = stats;
    return status;
}

ATTN_API attn_status attn_ring_decode_workspace_size(const attn_params *p, const attn_ring *ring,
                                                     size_t *bytes)
{
    text why = text_in(NULL, 0);
    int64_t need = 0;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_decode_query(p, ring, &why);
    if (!status)
        status = ring_decode_bytes(p, ring, &need);
    *bytes = status ? 0 : (size_t)need;
    return status;
}

ATTN_API const char *attn_ring_decode_check(const attn_params *p, const attn_ring *ring,
                                            const void *workspace, size_t workspace_bytes,
                                            char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    return verdict(check_ring_decode(p, ring, workspace, workspace_bytes, &why), buffer, &why);
}

/* ------------------------------------------------------------------------------------------------
 * MIT License
 *
 * Copyright (c) 2026 the attn authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 */
