/* attn_opencl.c - attn_forward on OpenCL devices: see attn_opencl.h. The arithmetic is in
 * kernels.cl.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * tools/amalgamate.sh makes this file from the rooms in src/opencl/ and from those rooms of src/
 * that a host shares with the CPU: edit there.
 */

#if defined __GNUC__ /* whole rooms are here, some functions of which only attn.c needs */
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#include "attn.h"

/* src/config.h - what the compiler is told: rounding as written, FMA, inlining, one word shared by threads. */

#include <string.h>

/* Equal bits everywhere need every operation rounded as written. gcc can be told here; clang cannot
 * undo -ffast-math, so it is refused; x87 keeps excess precision unless -std=c99. */
#if defined __clang__
#if defined __FAST_MATH__ || (defined __FINITE_MATH_ONLY__ && __FINITE_MATH_ONLY__)
#error "attn: add -fno-fast-math -ffp-contract=off to the flags of this file"
#endif
#pragma clang fp contract(off) reassociate(off)
#elif defined __GNUC__
#pragma GCC optimize("no-fast-math", "fp-contract=off")
#elif defined _MSC_VER
#pragma fp_contract(off)
#endif
#if defined __i386__ && defined __FLT_EVAL_METHOD__ && __FLT_EVAL_METHOD__ == 2 &&                 \
    !defined __STRICT_ANSI__
#error "attn: add -std=c99 (or -msse2 -mfpmath=sse): x87 code keeps excess precision otherwise"
#endif

#if defined __GNUC__
#define KERNEL static inline __attribute__((always_inline)) /* It must inline to be specialised. */
#define OWN_FRAME __attribute__((noinline))                 /* Its stack is gone when it returns. */
#else
#define KERNEL static inline
#define OWN_FRAME
#endif

/* Where binary32 FMA is one instruction of every CPU of this build, the compiler's builtin is used
 * (FMA_BASE 1). On x86 without -mfma the kernels are built a second time for AVX2 and FMA and
 * chosen at run time (FMA_TARGET). Elsewhere fma_soft below serves; libm's is often wrong. */
#if defined __GNUC__ &&                                                                            \
    (defined __FP_FAST_FMAF || defined __FMA__ || defined __aarch64__ ||                           \
     defined __ARM_FEATURE_FMA || defined __s390x__ || defined __riscv_f || defined __powerpc64__)
#define FMA_BASE 1
#define FMA_TARGET
#elif defined __GNUC__ && defined __SSE_MATH__ /* x87 code on x86 could not use the instruction. */
#define FMA_BASE 0
#define FMA_TARGET __attribute__((target("avx2,fma")))
#define FMA_SECOND_BUILD
#else
#define FMA_BASE 0
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

#if defined __GNUC__
#define PREFETCH(p) __builtin_prefetch(p, 0, 2) /* The address will be read; it goes into L2. */
#else
#define PREFETCH(p) ((void)(p))
#endif

/* The word of CPU features may be written by several threads at once, always with one value. */
#if defined __GNUC__
#define LOAD_WORD(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define STORE_WORD(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#else
#define LOAD_WORD(p) (*(volatile unsigned *)(p))
#define STORE_WORD(p, v) (*(volatile unsigned *)(p) = (v))
#endif

/* src/numbers.c - numbers: bits of a float, FMA, exp2, tanh, log2, the inverse square root.
 *
 * No libm: each function is one fixed sequence of binary32 operations, rounded to nearest even, so
 * that every compiler and ISA gives the same bits. One float operation per statement (s390x and x87
 * round at assignments); each multiply that feeds an add is fma32. Selections are ordered compares or
 * integer bits. tools/prove_math.c checks all inputs.
 */

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

/* ---- numbers. No libm: each function is one fixed sequence of binary32 operations, rounded to
 * nearest even, so that every compiler and ISA gives the same bits. One float operation per
 * statement (s390x and x87 round at assignments); each multiply that feeds an add is fma32.
 * Selections are ordered compares or integer bits. tools/prove_math.c checks all inputs. */

#define LOG2E_HI 0x1.715476p+0f /* log2(e) = HI + LO */
#define LOG2E_LO 0x1.4ae0c0p-26f
#define LN2 0x1.62e430p-1f
#define CANONICAL_NAN 0x7fc00000u

/*
 * a * b + c rounded once, for hardware without it. The product of two 24-bit significands is exact
 * in binary64. TwoSum yields the sum s and its error e; s is then rounded to odd (if inexact, the
 * neighbour with the odd last bit), and 53 >= 24 + 2 bits make the last rounding right, subnormal
 * results included. With infinities or NaN e is NaN and both compares fail. Excess precision
 * (x87) may pick the other neighbour as s, but e keeps its sign and the odd one is the same.
 */
static inline float fma_soft(float a, float b, float c)
{
    double da = (double)a, db = (double)b, dc = (double)c;
    double p, s, t, v, e;
    uint64_t u;
    int up, down;
    p = da * db;
    s = p + dc;
    t = s - p;
    v = s - t;
    v = p - v;
    t = dc - t;
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

/* Only the second build of the kernels may reach the instruction, as hw is a constant at every
 * call. */
#if FMA_BASE || defined FMA_SECOND_BUILD
FMA_TARGET static inline float fma_hard(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
#else
#define fma_hard fma_soft
#endif

KERNEL float fma32(int hw, float a, float b, float c)
{
    return hw ? fma_hard(a, b, c) : fma_soft(a, b, c);
}

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
    uint64_t quotient = 0, remainder = 1, root = 0, bit;
    uint32_t j = 24, i;
    float power;
    while (j < 55 && n > (uint64_t)1 << 2 * (j - 24))
        j++;
    for (i = 0; i < 2 * j; i++) { /* long division of 2^(2j) by n; 2^0 is the first digit */
        uint64_t digit = remainder >= n ? 1 : 0;
        quotient = 2 * quotient + digit;
        remainder = 2 * (remainder - (digit ? n : 0));
    }
    quotient = 2 * quotient + (remainder >= n ? 1 : 0);
    for (bit = (uint64_t)1 << 24; bit != 0; bit >>= 1)
        if ((root + bit) * (root + bit) <= quotient)
            root += bit;
    power = float_of((127u - (j - 1)) << 23); /* 2^-(j-1) */
    return (float)(int32_t)((root + 1) >> 1) * power;
}

/* src/text.c - sentences: built piece by piece into the caller's buffer; words of a text are compared. */

typedef struct text {
    char *at;
    size_t left; /* left counts bytes that still fit, with the terminator. */
} text;

static inline text text_in(char *buffer, size_t bytes)
{
    text t;
    t.at = buffer;
    t.left = buffer ? bytes : 0;
    if (t.left)
        *t.at = 0;
    return t;
}

static inline void put(text *t, const char *s)
{
    while (*s && t->left > 1) {
        *t->at++ = *s++;
        t->left--;
    }
    if (t->left)
        *t->at = 0;
}

static inline void put_int(text *t, int64_t value)
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

/* put_float writes six digits, as d.ddddde-xx, which is enough for a sentence about a wrong
 * value. */
static inline void put_float(text *t, float value)
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

/* put_field says "name (value)". */
static inline void put_field(text *t, const char *name, int64_t value)
{
    put(t, name);
    put(t, " (");
    put_int(t, value);
    put(t, ")");
}

static inline void put_word(text *t, const char *word, size_t length)
{
    char letter[2] = { 0, 0 };
    size_t i;
    for (i = 0; i < length; i++) {
        letter[0] = word[i];
        put(t, letter);
    }
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

static inline attn_status bad(text *why, attn_status status, const char *rest)
{
    put(why, rest);
    return status;
}

/* bad_field says "name (value) rest". */
static inline attn_status bad_field(text *why, attn_status status, const char *name, int64_t value,
                                    const char *rest)
{
    put_field(why, name, value);
    return bad(why, status, rest);
}

/* bad_entry says "name[index] (value) rest". */
static inline attn_status bad_entry(text *why, const char *name, int64_t index, int64_t value,
                                    const char *rest)
{
    put(why, name);
    put(why, "[");
    put_int(why, index);
    put(why, "] (");
    put_int(why, value);
    put(why, ")");
    return bad(why, ATTN_ERR_ARG, rest);
}

static inline attn_status bad_number(text *why, const char *name, float value, const char *rest)
{
    put(why, name);
    put(why, " (");
    put_float(why, value);
    put(why, ")");
    return bad(why, ATTN_ERR_ARG, rest);
}
#include "attn_opencl.h"
#include "kernels.cl"

/* src/opencl/loader.c - OpenCL: types, constants and functions of its API (Khronos, OpenCL 1.2), loaded at run time.
 *
 * No header of OpenCL is needed. Every handle is a pointer.
 */

#ifdef _WIN32
#include <windows.h>
#define CL_CALL __stdcall
#else
#include <dlfcn.h>
#define CL_CALL
#endif

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_flags;
typedef void *cl_handle;

enum {
    CL_SUCCESS = 0,
    INVALID_VALUE = -30,
    INVALID_QUEUE = -36,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
    CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F,
    CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
    CL_DEVICE_ENDIAN_LITTLE = 0x1026,
    CL_DEVICE_AVAILABLE = 0x1027,
    CL_DEVICE_COMPILER_AVAILABLE = 0x1028,
    CL_DEVICE_NAME = 0x102B,
    CL_DRIVER_VERSION = 0x102D,
    CL_DEVICE_VERSION = 0x102F,
    CL_DEVICE_PLATFORM = 0x1031,
    CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035,
    CL_PLATFORM_NAME = 0x0902,
    CL_QUEUE_PROPERTIES = 0x1093,
    CL_MEM_SIZE = 0x1102,
    CL_PROGRAM_DEVICES = 0x1163,
    CL_PROGRAM_BINARY_SIZES = 0x1165,
    CL_PROGRAM_BINARIES = 0x1166,
    CL_PROGRAM_BUILD_LOG = 0x1183,
    CL_KERNEL_WORK_GROUP_SIZE = 0x11B0,
    CL_PROFILING_COMMAND_START = 0x1282,
    CL_PROFILING_COMMAND_END = 0x1283
};
#define CL_DEVICE_TYPE_GPU 4u
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu
#define CL_QUEUE_OUT_OF_ORDER 1u
#define CL_QUEUE_PROFILING_ENABLE 2u
#define CL_MEM_READ_WRITE 1u
#define CL_MEM_READ_ONLY 4u
#define CL_MEM_USE_HOST_PTR 8u
#define CL_MEM_ALLOC_HOST_PTR 16u
#define CL_MEM_COPY_HOST_PTR 32u
#define CL_MAP_READ 1u
#define CL_MAP_WRITE 2u
#define CL_MAP_WRITE_INVALIDATE_REGION 4u

#define CL_FUNCTIONS(X)                                                                            \
    X(cl_int, clGetPlatformIDs, (cl_uint, cl_handle *, cl_uint *))                                 \
    X(cl_int, clGetPlatformInfo, (cl_handle, cl_uint, size_t, void *, size_t *))                   \
    X(cl_int, clGetDeviceIDs, (cl_handle, cl_flags, cl_uint, cl_handle *, cl_uint *))              \
    X(cl_int, clGetDeviceInfo, (cl_handle, cl_uint, size_t, void *, size_t *))                     \
    X(cl_handle, clCreateContext,                                                                  \
      (const intptr_t *, cl_uint, const cl_handle *,                                               \
       void(CL_CALL *)(const char *, const void *, size_t, void *), void *, cl_int *))             \
    X(cl_int, clRetainContext, (cl_handle))                                                        \
    X(cl_int, clReleaseContext, (cl_handle))                                                       \
    X(cl_handle, clCreateCommandQueue, (cl_handle, cl_handle, cl_flags, cl_int *))                 \
    X(cl_int, clRetainCommandQueue, (cl_handle))                                                   \
    X(cl_int, clReleaseCommandQueue, (cl_handle))                                                  \
    X(cl_int, clGetCommandQueueInfo, (cl_handle, cl_uint, size_t, void *, size_t *))               \
    X(cl_handle, clCreateBuffer, (cl_handle, cl_flags, size_t, void *, cl_int *))                  \
    X(cl_int, clReleaseMemObject, (cl_handle))                                                     \
    X(cl_int, clGetMemObjectInfo, (cl_handle, cl_uint, size_t, void *, size_t *))                  \
    X(cl_handle, clCreateProgramWithSource,                                                        \
      (cl_handle, cl_uint, const char **, const size_t *, cl_int *))                               \
    X(cl_handle, clCreateProgramWithBinary,                                                        \
      (cl_handle, cl_uint, const cl_handle *, const size_t *, const unsigned char **, cl_int *,    \
       cl_int *))                                                                                  \
    X(cl_int, clGetProgramInfo, (cl_handle, cl_uint, size_t, void *, size_t *))                    \
    X(cl_int, clBuildProgram,                                                                      \
      (cl_handle, cl_uint, const cl_handle *, const char *, void(CL_CALL *)(cl_handle, void *),    \
       void *))                                                                                    \
    X(cl_int, clGetProgramBuildInfo, (cl_handle, cl_handle, cl_uint, size_t, void *, size_t *))    \
    X(cl_int, clReleaseProgram, (cl_handle))                                                       \
    X(cl_handle, clCreateKernel, (cl_handle, const char *, cl_int *))                              \
    X(cl_int, clSetKernelArg, (cl_handle, cl_uint, size_t, const void *))                          \
    X(cl_int, clGetKernelWorkGroupInfo, (cl_handle, cl_handle, cl_uint, size_t, void *, size_t *)) \
    X(cl_int, clReleaseKernel, (cl_handle))                                                        \
    X(cl_int, clEnqueueNDRangeKernel,                                                              \
      (cl_handle, cl_handle, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint,     \
       const cl_handle *, cl_handle *))                                                            \
    X(cl_handle, clEnqueueMapBuffer,                                                               \
      (cl_handle, cl_handle, cl_uint, cl_flags, size_t, size_t, cl_uint, const cl_handle *,        \
       cl_handle *, cl_int *))                                                                     \
    X(cl_int, clEnqueueUnmapMemObject,                                                             \
      (cl_handle, cl_handle, void *, cl_uint, const cl_handle *, cl_handle *))                     \
    X(cl_int, clEnqueueReadBuffer,                                                                 \
      (cl_handle, cl_handle, cl_uint, size_t, size_t, void *, cl_uint, const cl_handle *,          \
       cl_handle *))                                                                               \
    X(cl_int, clEnqueueMarkerWithWaitList, (cl_handle, cl_uint, const cl_handle *, cl_handle *))   \
    X(cl_int, clEnqueueBarrierWithWaitList, (cl_handle, cl_uint, const cl_handle *, cl_handle *))  \
    X(cl_int, clGetEventProfilingInfo, (cl_handle, cl_uint, size_t, void *, size_t *))             \
    X(cl_int, clReleaseEvent, (cl_handle))                                                         \
    X(cl_int, clFlush, (cl_handle))                                                                \
    X(cl_int, clFinish, (cl_handle))

#define CL_MEMBER(type, name, arguments) type(CL_CALL *name) arguments;
typedef struct cl_api {
    CL_FUNCTIONS(CL_MEMBER)
} cl_api;

typedef struct cl_symbol {
    const char *name;
    size_t offset; /* of its pointer in cl_api */
} cl_symbol;

#define CL_SYMBOL(type, name, arguments) { #name, offsetof(cl_api, name) },
static const cl_symbol cl_symbols[] = { CL_FUNCTIONS(CL_SYMBOL) };

#ifdef _WIN32

static const char *const loaders[] = { "OpenCL.dll" };

static void *open_library(const char *file)
{
    return (void *)LoadLibraryA(file);
}

static void close_library(void *library)
{
    FreeLibrary((HMODULE)library);
}

/* to: of a function pointer. */
static int find_symbol(void *library, const char *name, void *to)
{
    const FARPROC symbol = GetProcAddress((HMODULE)library, name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}

#else

static const char *const loaders[] = {
    "libOpenCL.so.1",
    "libOpenCL.so",
    "/vendor/lib64/libOpenCL.so", /* Android */
    "/system/vendor/lib64/libOpenCL.so",
    "/System/Library/Frameworks/OpenCL.framework/OpenCL",
};

static void *open_library(const char *file)
{
    return dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

static void close_library(void *library)
{
    dlclose(library);
}

static int find_symbol(void *library, const char *name, void *to)
{
    void *const symbol = dlsym(library, name);
    memcpy(to, &symbol, sizeof symbol);
    return symbol != NULL;
}

#endif

static const char *cl_error_name(cl_int error)
{
    static const struct {
        cl_int error;
        const char *name;
    } names[] = {
        { -1, "device not found" },         { -3, "compiler not available" },
        { -4, "out of device memory" },     { -5, "out of resources" },
        { -6, "out of host memory" },       { -11, "kernels do not build" },
        { -30, "invalid value" },           { -34, "invalid context" },
        { -36, "invalid command queue" },   { -38, "invalid memory object" },
        { -37, "invalid host pointer" },    { -58, "invalid event" },
        { -42, "invalid binary" },          { -43, "invalid build options" },
        { -46, "no such kernel" },          { -52, "invalid kernel arguments" },
        { -54, "invalid work-group size" }, { -57, "invalid event wait list" },
        { -61, "invalid buffer size" },     { -1001, "no platform" },
    };
    size_t i;
    for (i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error)
            return names[i].name;
    return "see the error codes of OpenCL";
}

/* src/opencl/device.c - the opened device: which one, and what it can do. */

/* A program holds the kernels of one part of kernels.cl, built for one choice of each option. */
enum program_part { PART_FORWARD, PART_ROWS, PART_NAIVE, PART_CHECK, PART_BACKWARD, PART_COUNT };

typedef struct variant {
    int part, exact;
    int kv_type; /* an attn_dtype, or MIXED */
    int rows;    /* of a tile: 16, 32, 64 */
    int columns; /* of V: 64, 128, 256 */
    int pairs;
} variant;

enum { MIXED = 3, TYPES = 4, ROWS_KINDS = 3, COLUMNS_KINDS = 3 };
#define VARIANTS (PART_COUNT * 2 * TYPES * ROWS_KINDS * COLUMNS_KINDS * 2)

typedef struct check_data {
    float in[3 * CL_CHECKS], out[CL_CHECKS];
} check_data;

struct attn_opencl {
    cl_api cl;
    void *library;
    cl_handle device, context, queue;
    attn_opencl_info info;
    attn_opencl_call plain;  /* of a backend without a call of its own */
    char build_options[100]; /* of the caller */
    int exact;               /* asked for */
    double least_flops;
    attn_log_fn log;
    void *log_user;
    char why[256], build_log[8001];
    int volatile log_taken;                /* nonzero: a thread writes build_log */
    check_data check;                      /* of attn_opencl_open */
    cl_handle volatile programs[VARIANTS]; /* NULL = not built yet */
    int volatile verdicts[VARIANTS];       /* enum verdict, of a first use */
    int unchecked;
    int volatile built, taken; /* of them from source, from kept binaries */
};

static void say(const attn_opencl *gpu, int level, const char *sentence)
{
    if (gpu->log)
        gpu->log(gpu->log_user, level, sentence);
}

/* why = "text: error -5 (out of resources)" */
static void explain_error(text *why, const char *what, cl_int error)
{
    put(why, what);
    put(why, ": OpenCL error ");
    put_int(why, error);
    put(why, " (");
    put(why, cl_error_name(error));
    put(why, ")");
}

/* ---- Devices */

enum { MOST_PLATFORMS = 16, MOST_DEVICES = 32 };

static int load_api(attn_opencl *gpu, const char *file)
{
    size_t i;
    if (file) {
        gpu->library = open_library(file);
    } else {
        for (i = 0; i < sizeof loaders / sizeof *loaders && !gpu->library; i++)
            gpu->library = open_library(loaders[i]);
    }
    for (i = 0; gpu->library && i < sizeof cl_symbols / sizeof *cl_symbols; i++)
        if (!find_symbol(gpu->library, cl_symbols[i].name, (char *)&gpu->cl + cl_symbols[i].offset))
            return 0;
    return gpu->library != NULL;
}

static int load_library(attn_opencl *gpu, const char *file, text *why)
{
    if (load_api(gpu, file))
        return 1;
    put(why, gpu->library ? "the OpenCL library lacks a function of OpenCL 1.2: "
                          : "no OpenCL library: ");
    put(why, file ? file : loaders[0]);
    return 0;
}

static uint64_t device_number(const attn_opencl *gpu, cl_handle device, cl_uint what, size_t bytes)
{
    uint64_t wide = 0;
    uint32_t narrow = 0;
    if (bytes == sizeof narrow && gpu->cl.clGetDeviceInfo(device, what, bytes, &narrow, NULL) == 0)
        return narrow;
    if (bytes == sizeof wide && gpu->cl.clGetDeviceInfo(device, what, bytes, &wide, NULL) == 0)
        return wide;
    return 0;
}

#define DEVICE_UINT(device, what) ((uint32_t)device_number(gpu, device, what, 4))
#define DEVICE_ULONG(device, what) device_number(gpu, device, what, 8)
#define DEVICE_SIZE(device, what) device_number(gpu, device, what, sizeof(size_t))

/* Text of a device or, with `platform`, of its platform. */
static void device_text(const attn_opencl *gpu, cl_handle device, int platform, cl_uint what,
                        char *to, size_t bytes)
{
    char words[512];
    cl_handle of = device;
    text out = text_in(to, bytes);
    words[0] = 0;
    if (platform)
        gpu->cl.clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof of, &of, NULL);
    if (platform)
        gpu->cl.clGetPlatformInfo(of, what, sizeof words, words, NULL);
    else
        gpu->cl.clGetDeviceInfo(of, what, sizeof words, words, NULL);
    words[sizeof words - 1] = 0;
    put(&out, words);
}

/* Whether `part` occurs in `whole`, letter for letter. */
static int holds(const char *whole, const char *part)
{
    const size_t length = strlen(part);
    for (; *whole; whole++)
        if (strncmp(whole, part, length) == 0)
            return 1;
    return length == 0;
}

static uint32_t host_is_little(void)
{
    const uint32_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    return first;
}

/* Why the device cannot run the kernels; NULL = it can. */
static const char *device_fault(const attn_opencl *gpu, cl_handle device)
{
    if (!DEVICE_UINT(device, CL_DEVICE_AVAILABLE))
        return "the driver says that it is not available";
    if (!DEVICE_UINT(device, CL_DEVICE_COMPILER_AVAILABLE))
        return "its driver has no compiler";
    if (DEVICE_UINT(device, CL_DEVICE_ENDIAN_LITTLE) != host_is_little())
        return "its byte order is not the host's";
    if (DEVICE_SIZE(device, CL_DEVICE_MAX_WORK_GROUP_SIZE) < CL_TX * CL_TY)
        return "its work-groups have less than 256 items";
    return NULL;
}

static void list_device(const attn_opencl *gpu, cl_handle device, attn_opencl_device *to)
{
    const char *fault = device_fault(gpu, device);
    text why = text_in(to->why, sizeof to->why);
    to->usable = fault == NULL;
    put(&why, fault ? fault : "ok");
    to->gpu = (DEVICE_ULONG(device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_GPU) != 0;
    to->compute_units = (int)DEVICE_UINT(device, CL_DEVICE_MAX_COMPUTE_UNITS);
    to->memory_bytes = (size_t)DEVICE_ULONG(device, CL_DEVICE_GLOBAL_MEM_SIZE);
    device_text(gpu, device, 0, CL_DEVICE_NAME, to->device, sizeof to->device);
    device_text(gpu, device, 0, CL_DEVICE_VERSION, to->version, sizeof to->version);
    device_text(gpu, device, 0, CL_DRIVER_VERSION, to->driver, sizeof to->driver);
    device_text(gpu, device, 1, CL_PLATFORM_NAME, to->platform, sizeof to->platform);
}

/* Rank among others; 0 = it cannot be used, or is not the one that is wanted. */
static double rank_device(const attn_opencl_device *d, const char *wanted)
{
    if (!d->usable || (wanted && !holds(d->device, wanted) && !holds(d->platform, wanted)))
        return 0;
    return (d->gpu ? 1e6 : 1) * (1 + (double)d->compute_units);
}

/* What a walk over the devices of all platforms finds. */
typedef struct device_walk {
    cl_uint platforms, devices;
    const char *wanted;
    cl_handle best; /* NULL = none */
    double best_rank;
    attn_opencl_device *list; /* the first `room` of them */
    int room;
} device_walk;

static void visit_device(const attn_opencl *gpu, cl_handle device, device_walk *walk)
{
    attn_opencl_device found;
    double rank;
    memset(&found, 0, sizeof found);
    list_device(gpu, device, &found);
    rank = rank_device(&found, walk->wanted);
    if ((int)walk->devices < walk->room)
        walk->list[walk->devices] = found;
    walk->devices++;
    if (rank > walk->best_rank) {
        walk->best_rank = rank;
        walk->best = device;
    }
}

static void walk_devices(const attn_opencl *gpu, device_walk *walk, text *why)
{
    cl_handle platforms[MOST_PLATFORMS], devices[MOST_DEVICES];
    cl_uint count, p, d;
    if (gpu->cl.clGetPlatformIDs(MOST_PLATFORMS, platforms, &walk->platforms))
        walk->platforms = 0;
    for (p = 0; p < walk->platforms && p < MOST_PLATFORMS; p++) {
        if (gpu->cl.clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &count))
            continue;
        for (d = 0; d < count && d < MOST_DEVICES; d++)
            visit_device(gpu, devices[d], walk);
    }
    if (walk->platforms == 0) {
        put(why, "no OpenCL platform: the loader is there, but no driver is installed for it");
    } else if (!walk->best) {
        put_int(why, walk->platforms);
        put(why, " OpenCL platforms, ");
        put_int(why, walk->devices);
        put(why, " devices, none ");
        put(why,
            walk->wanted && *walk->wanted && walk->devices ? "named " : "that can run the kernels");
        put(why, walk->wanted && walk->devices ? walk->wanted : "");
    }
}

static void describe_device(attn_opencl *gpu)
{
    attn_opencl_info *info = &gpu->info;
    const cl_handle device = gpu->device;
    attn_opencl_device found;
    list_device(gpu, device, &found);
    info->context = gpu->context;
    info->device_id = device;
    info->queue = gpu->queue;
    info->gpu = found.gpu;
    info->shares_memory = DEVICE_UINT(device, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0;
    info->compute_units = found.compute_units;
    info->memory_bytes = found.memory_bytes;
    info->allocation_bytes = (size_t)DEVICE_ULONG(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    info->local_bytes = (size_t)DEVICE_ULONG(device, CL_DEVICE_LOCAL_MEM_SIZE);
    memcpy(info->device, found.device, sizeof info->device);
    memcpy(info->version, found.version, sizeof info->version);
    memcpy(info->driver, found.driver, sizeof info->driver);
    memcpy(info->platform, found.platform, sizeof info->platform);
}

/* Kernels of a call rely on the order in which they were handed over. */
static int is_in_order(const attn_opencl *gpu, cl_handle queue)
{
    cl_flags properties = 0;
    return gpu->cl.clGetCommandQueueInfo(queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties,
                                         NULL) == CL_SUCCESS &&
           !(properties & CL_QUEUE_OUT_OF_ORDER);
}

/* The caller's context, device and queue, or our own. */
static attn_status open_queue(attn_opencl *gpu, const attn_opencl_options *o, text *why)
{
    const int given = (o->context != NULL) + (o->device_id != NULL) + (o->queue != NULL);
    const cl_flags flags = o->profiling ? CL_QUEUE_PROFILING_ENABLE : 0;
    cl_int error = CL_SUCCESS;
    device_walk walk;
    if (given == 3 && !is_in_order(gpu, o->queue))
        return bad(why, ATTN_ERR_ARG, "options.queue must take its commands in order");
    if (given == 3) {
        gpu->device = o->device_id;
        gpu->context = o->context;
        gpu->queue = o->queue;
        gpu->cl.clRetainContext(gpu->context);
        gpu->cl.clRetainCommandQueue(gpu->queue);
        return ATTN_OK;
    }
    if (given != 0)
        return bad(why, ATTN_ERR_ARG,
                   "context, device_id and queue must be given together or not at all");
    memset(&walk, 0, sizeof walk);
    walk.wanted = o->device;
    walk_devices(gpu, &walk, why);
    gpu->device = walk.best;
    if (!gpu->device)
        return ATTN_ERR_UNSUPPORTED;
    gpu->context = gpu->cl.clCreateContext(NULL, 1, &gpu->device, NULL, NULL, &error);
    if (!error)
        gpu->queue = gpu->cl.clCreateCommandQueue(gpu->context, gpu->device, flags, &error);
    if (error)
        explain_error(why, "the device cannot be opened", error);
    return error ? ATTN_ERR_UNSUPPORTED : ATTN_OK;
}

/* src/opencl/programs.c - programs: kernels are built when they are first needed. */

static const unsigned char kernels_source[] = {
#include "kernels_cl.inc"
};

static int variant_number(const variant *v)
{
    int n = v->part;
    n = n * 2 + v->exact;
    n = n * TYPES + v->kv_type;
    n = n * ROWS_KINDS + (v->rows == 64 ? 2 : v->rows == 32 ? 1 : 0);
    n = n * COLUMNS_KINDS + (v->columns == 256 ? 2 : v->columns == 128 ? 1 : 0);
    return n * 2 + v->pairs;
}

static variant variant_of(int number)
{
    variant v;
    v.pairs = number % 2;
    number /= 2;
    v.columns = 64 << number % COLUMNS_KINDS;
    number /= COLUMNS_KINDS;
    v.rows = 16 << number % ROWS_KINDS;
    number /= ROWS_KINDS;
    v.kv_type = number % TYPES;
    number /= TYPES;
    v.exact = number % 2;
    v.part = number / 2;
    return v;
}

enum { MOST_OPTIONS = 320 }; /* letters of all options of a program */

static void put_option(text *t, const char *name, int value)
{
    put(t, " -D");
    put(t, name);
    put(t, "=");
    put_int(t, value);
}

static void build_options(const attn_opencl *gpu, const variant *v, char *to, size_t bytes)
{
    static const char *const parts[PART_COUNT] = { "PART_FORWARD", "PART_ROWS", "PART_NAIVE",
                                                   "PART_CHECK", "PART_BACKWARD" };
    text t = text_in(to, bytes);
    put(&t, "-cl-std=CL1.2");
    put_option(&t, parts[v->part], 1);
    put_option(&t, "EXACT", v->exact);
    put_option(&t, "KV_TYPE", v->kv_type);
    put_option(&t, "BM", v->rows);
    put_option(&t, "DVB", v->columns);
    put_option(&t, "PAIRS", v->pairs);
    put_option(&t, "INLINE", gpu->info.gpu);
    put(&t, gpu->build_options[0] ? " " : "");
    put(&t, gpu->build_options);
}

/* Several threads may build one program at once, or try it; the first to store it wins. */
#if defined __GNUC__
#define LOAD(at) __atomic_load_n(at, __ATOMIC_ACQUIRE)
#define STORE_FIRST(at, expected, value)                                                           \
    __atomic_compare_exchange_n(at, expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)
#define STORE(at, value) __atomic_store_n(at, value, __ATOMIC_RELEASE)
#define COUNT_ONE(at) __atomic_fetch_add(at, 1, __ATOMIC_RELAXED)
#else
#define LOAD(at) (*(at))
#define STORE_FIRST(at, expected, value) ((void)(expected), *(at) = (value), 1)
#define STORE(at, value) (*(at) = (value))
#define COUNT_ONE(at) (*(at))++
#endif

/* What the compiler said, if anything; one thread of several that build at once is heard. A log is
 * given whole or not at all. */
static void keep_build_log(attn_opencl *gpu, cl_handle program, int failed)
{
    text log = text_in(gpu->build_log, sizeof gpu->build_log);
    size_t bytes = 0;
    int expected = 0;
    gpu->cl.clGetProgramBuildInfo(program, gpu->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    if ((bytes <= 1 && !failed) || !STORE_FIRST(&gpu->log_taken, &expected, 1))
        return;
    if (bytes > sizeof gpu->build_log) {
        put(&log, "the compiler's log is too long to be kept: ");
        put_int(&log, (int64_t)bytes);
        put(&log, " letters");
    } else if (gpu->cl.clGetProgramBuildInfo(program, gpu->device, CL_PROGRAM_BUILD_LOG,
                                             sizeof gpu->build_log, gpu->build_log, NULL) ||
               bytes == 0) {
        put(&log, "the compiler says nothing");
    }
    gpu->build_log[sizeof gpu->build_log - 1] = 0;
    if (failed)
        say(gpu, ATTN_LOG_WARNING, gpu->build_log);
    STORE(&gpu->log_taken, 0);
}

/* Builds the program that was created, or releases it. */
static cl_handle finish_program(attn_opencl *gpu, const variant *v, cl_handle program,
                                cl_int *error)
{
    char options[MOST_OPTIONS];
    build_options(gpu, v, options, sizeof options);
    *error = gpu->cl.clBuildProgram(program, 1, &gpu->device, options, NULL, NULL);
    keep_build_log(gpu, program, *error != CL_SUCCESS);
    if (!*error)
        return program;
    gpu->cl.clReleaseProgram(program);
    return NULL;
}

static cl_handle build_program(attn_opencl *gpu, const variant *v, cl_int *error)
{
    const char *source = (const char *)kernels_source;
    const size_t length = sizeof kernels_source;
    cl_handle program = gpu->cl.clCreateProgramWithSource(gpu->context, 1, &source, &length, error);
    if (*error)
        return NULL;
    COUNT_ONE(&gpu->built);
    return finish_program(gpu, v, program, error);
}

/* The program is in the slot, or another that was there before: which one is returned. */
static cl_handle publish_program(attn_opencl *gpu, int number, cl_handle program)
{
    cl_handle before = NULL;
    if (STORE_FIRST(&gpu->programs[number], &before, program))
        return program;
    gpu->cl.clReleaseProgram(program);
    return before;
}

static cl_handle find_program(attn_opencl *gpu, const variant *v, cl_int *error)
{
    const int number = variant_number(v);
    cl_handle program = LOAD(&gpu->programs[number]);
    *error = CL_SUCCESS;
    if (program)
        return program;
    program = build_program(gpu, v, error);
    return program ? publish_program(gpu, number, program) : NULL;
}

/* src/opencl/kept.c - kept programs: every program built, as bytes of the caller's. */

enum kept_word { KEPT_MARK, KEPT_BYTES, KEPT_SUM, KEPT_KEY, KEPT_PROGRAMS, KEPT_HEAD };
#define KEPT_MARK_1 (((uint64_t)0x61747463 << 32) | 0x6c627631) /* changes with the format */

typedef struct kept_program {
    uint64_t number, bytes;
    const unsigned char *binary;
} kept_program;

static uint64_t whole_words_of(uint64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

/* FNV-1a: another byte anywhere gives another sum. */
static uint64_t add_to_sum(uint64_t sum, const void *bytes, size_t count)
{
    const unsigned char *at = (const unsigned char *)bytes;
    size_t i;
    for (i = 0; i < count; i++)
        sum = (sum ^ at[i]) * (((uint64_t)1 << 40) + 0x1b3);
    return sum;
}

/* Of everything behind KEPT_SUM. */
static uint64_t sum_of_kept(const unsigned char *from, size_t bytes)
{
    const size_t before = (KEPT_SUM + 1) * sizeof(uint64_t);
    return add_to_sum(0, from + before, bytes - before);
}

/* Programs serve one device and driver, one kernels.cl and one way of building it. */
static uint64_t key_of_programs(const attn_opencl *gpu)
{
    const attn_opencl_info *info = &gpu->info;
    uint64_t key = add_to_sum(0, info->platform, strlen(info->platform) + 1);
    char options[MOST_OPTIONS];
    int n;
    key = add_to_sum(key, info->device, strlen(info->device) + 1);
    key = add_to_sum(key, info->version, strlen(info->version) + 1);
    key = add_to_sum(key, info->driver, strlen(info->driver) + 1);
    key = add_to_sum(key, kernels_source, sizeof kernels_source);
    for (n = 0; n < VARIANTS; n++) {
        const variant v = variant_of(n);
        build_options(gpu, &v, options, sizeof options);
        key = add_to_sum(key, options, strlen(options) + 1);
    }
    return key;
}

/* Bytes of the program's binary for our device, which go to `to` unless it is NULL; 0 = none. */
static size_t read_binary(const attn_opencl *gpu, cl_handle program, unsigned char *to)
{
    cl_handle devices[MOST_DEVICES];
    unsigned char *all[MOST_DEVICES]; /* of a caller's context with several devices */
    size_t sizes[MOST_DEVICES], bytes = 0, d = 0;
    memset(all, 0, sizeof all);
    if (gpu->cl.clGetProgramInfo(program, CL_PROGRAM_DEVICES, sizeof devices, devices, &bytes) ||
        gpu->cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof sizes, sizes, NULL))
        return 0;
    while (d < bytes / sizeof *devices && devices[d] != gpu->device)
        d++;
    if (d == bytes / sizeof *devices)
        return 0;
    all[d] = to;
    bytes = bytes / sizeof *devices * sizeof *all;
    if (to && gpu->cl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, bytes, all, NULL))
        return 0;
    return sizes[d];
}

/* Number, bytes, binary of one program to `to`, as far as it has room; returns the bytes needed. */
static size_t keep_program(const attn_opencl *gpu, int number, unsigned char *to, size_t room)
{
    const cl_handle program = LOAD(&gpu->programs[number]);
    const size_t bytes = program ? read_binary(gpu, program, NULL) : 0;
    const size_t need = 2 * sizeof(uint64_t) + (size_t)whole_words_of(bytes);
    uint64_t words[2];
    if (bytes == 0)
        return 0;
    words[0] = (uint64_t)number;
    words[1] = bytes;
    if (need <= room) {
        memset(to, 0, need);
        memcpy(to, words, sizeof words);
        read_binary(gpu, program, to + sizeof words);
    }
    return need;
}

static size_t keep_programs(const attn_opencl *gpu, unsigned char *to, size_t room)
{
    uint64_t head[KEPT_HEAD];
    size_t at = sizeof head;
    int n;
    head[KEPT_MARK] = KEPT_MARK_1;
    head[KEPT_KEY] = key_of_programs(gpu);
    head[KEPT_PROGRAMS] = 0;
    for (n = 0; n < VARIANTS; n++) {
        const size_t need =
            keep_program(gpu, n, at <= room ? to + at : NULL, at <= room ? room - at : 0);
        head[KEPT_PROGRAMS] += need != 0;
        at += need;
    }
    head[KEPT_BYTES] = at;
    head[KEPT_SUM] = 0;
    if (at > room)
        return at;
    memcpy(to, head, sizeof head);
    head[KEPT_SUM] = sum_of_kept(to, at);
    memcpy(to, head, sizeof head);
    return at;
}

/* The program at *at, which moves behind it; 0 = none lies there within the bytes. */
static int next_kept(const unsigned char *from, uint64_t bytes, uint64_t *at, kept_program *k)
{
    uint64_t words[2];
    if (bytes - *at < sizeof words)
        return 0;
    memcpy(words, from + *at, sizeof words);
    *at += sizeof words;
    k->number = words[0];
    k->bytes = words[1];
    k->binary = from + *at;
    if (k->number >= VARIANTS || k->bytes > bytes - *at || whole_words_of(k->bytes) > bytes - *at)
        return 0;
    *at += whole_words_of(k->bytes);
    return 1;
}

/* Whether the programs that the head promises fill the bytes. */
static int fills_kept(const unsigned char *from, uint64_t bytes, uint64_t programs)
{
    uint64_t at = KEPT_HEAD * sizeof(uint64_t);
    kept_program k;
    while (programs > 0 && next_kept(from, bytes, &at, &k))
        programs--;
    return programs == 0 && at == bytes;
}

/* Why the bytes are not kept programs for this device, or NULL. */
static const char *kept_fault(const attn_opencl *gpu, const unsigned char *from, size_t bytes)
{
    uint64_t head[KEPT_HEAD];
    if (bytes < sizeof head)
        return "kept programs: too short";
    memcpy(head, from, sizeof head);
    if (head[KEPT_MARK] != KEPT_MARK_1)
        return "kept programs: of another format, or something else";
    if (head[KEPT_BYTES] != bytes)
        return "kept programs: cut off, or followed by more";
    if (head[KEPT_SUM] != sum_of_kept(from, bytes))
        return "kept programs: damaged";
    if (head[KEPT_KEY] != key_of_programs(gpu))
        return "kept programs: of another device, driver or kernels.cl";
    return fills_kept(from, bytes, head[KEPT_PROGRAMS]) ? NULL : "kept programs: damaged";
}

/* A program that the driver refuses is built from source when it is needed. */
static void take_program(attn_opencl *gpu, const kept_program *k)
{
    const variant v = variant_of((int)k->number);
    const size_t bytes = (size_t)k->bytes;
    const unsigned char *binary = k->binary;
    cl_int error = CL_SUCCESS;
    char sentence[160];
    text t = text_in(sentence, sizeof sentence);
    cl_handle program;
    if (LOAD(&gpu->programs[k->number]))
        return;
    program = gpu->cl.clCreateProgramWithBinary(gpu->context, 1, &gpu->device, &bytes, &binary,
                                                NULL, &error);
    if (!error)
        program = finish_program(gpu, &v, program, &error);
    if (!error) {
        COUNT_ONE(&gpu->taken);
        publish_program(gpu, (int)k->number, program);
    } else {
        explain_error(&t, "the driver refuses a kept program", error);
        say(gpu, ATTN_LOG_WARNING, sentence);
    }
}

static attn_status take_programs(attn_opencl *gpu, const void *bytes, size_t count)
{
    const unsigned char *from = (const unsigned char *)bytes;
    const char *fault = kept_fault(gpu, from, count);
    text why = text_in(gpu->info.binaries_why, sizeof gpu->info.binaries_why);
    uint64_t at = KEPT_HEAD * sizeof(uint64_t);
    kept_program k;
    put(&why, fault ? fault : "ok");
    if (fault)
        say(gpu, ATTN_LOG_INFO, fault);
    while (!fault && next_kept(from, count, &at, &k))
        take_program(gpu, &k);
    return fault ? ATTN_ERR_UNSUPPORTED : ATTN_OK;
}

/* src/halves.c - the 16-bit storage types: exact to f32; from f32 to nearest even, NaN canonical. */

static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    float magnitude;
    if (rest >= 0x7c00u)
        return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u)
        return float_of(sign | ((rest << 13) + (112u << 23)));
    /* The number is subnormal in f16 and normal in f32. */
    magnitude = (float)(int32_t)rest * 0x1p-24f;
    return float_of(sign | bits_of(magnitude));
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

/* src/opencl/check.c - whether the elementary operations of the device give the bits of the CPU.
 *
 * IEEE 754 and OpenCL promise most of them; compilers that fuse or drivers that flush do not keep
 * it.
 */

static uint32_t mixed(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* A number with a random significand, 2^low <= |x| < 2^high; sometimes with all bits set. */
static float check_number(uint32_t seed, int low, int high)
{
    const uint32_t u = mixed(seed), exponent = (uint32_t)(127 + low) + u % (uint32_t)(high - low);
    const uint32_t bits = u % 7 == 0 ? 0x7fffffu : mixed(u) & 0x7fffffu;
    return float_of((u & 0x80000000u) | exponent << 23 | bits);
}

static void fill_checks(check_data *d)
{
    uint32_t i;
    for (i = 0; i < CL_CHECKS; i++) {
        float *x = &d->in[3 * i];
        x[0] = check_number(3 * i, -12, 12);
        x[1] = check_number(3 * i + 1, -4, 4);
        x[2] = check_number(3 * i + 2, -12, 12);
        switch (i % CHECK_KINDS) {
        case CHECK_FMA: /* the product nearly cancels: only one rounding leaves the right rest */
            x[2] = i % 2 ? -(x[0] * x[1]) : x[2];
            break;
        case CHECK_EXP2:
            x[0] = check_number(3 * i, -6, 7);
            x[0] = x[0] > 0 ? -x[0] : x[0];
            break;
        case CHECK_LOG2:
            x[0] = x[0] < 0 ? -x[0] : x[0];
            break;
        case CHECK_TANH:
            x[0] = check_number(3 * i, -12, 5);
            break;
        case CHECK_LOAD_F16:
        case CHECK_LOAD_BF16: /* any pattern but infinities and NaN */
            x[0] = float_of(mixed(i) & 0xbbffu);
            break;
        case CHECK_STORE_F16:
            x[0] = check_number(3 * i, -26, 16);
            break;
        default:
            break;
        }
    }
}

static float product_sum(float x, float y, float z)
{
    float r = x * y;
    r = r + z;
    return r;
}

/* What operation i must give, in bits. */
static uint32_t right_answer(const check_data *d, int i)
{
    const float *x = &d->in[3 * i];
    const uint32_t low = bits_of(x[0]) & 0xffffu;
    uint32_t half;
    switch (i % CHECK_KINDS) {
    case CHECK_PRODUCT_SUM:
        return bits_of(product_sum(x[0], x[1], x[2]));
    case CHECK_FMA:
        return bits_of(fma32(FMA_BASE, x[0], x[1], x[2]));
    case CHECK_RECIPROCAL:
        return bits_of(1.0f / x[0]);
    case CHECK_EXP2:
        return bits_of(exp2_canon(x[0]));
    case CHECK_LOG2:
        return bits_of(log2_canon(x[0]));
    case CHECK_TANH:
        return bits_of(tanh_with(FMA_BASE, x[0]));
    case CHECK_LOAD_F16:
        return bits_of(f16_to_f32((uint16_t)low));
    case CHECK_LOAD_BF16:
        return bits_of(bf16_to_f32((uint16_t)low));
    case CHECK_STORE_F16:
        half = f16_from_f32(x[0]);
        return half == 0x8000u ? 0 : half;
    default:
        return bf16_from_f32(x[0]);
    }
}

static void compare_checks(attn_opencl *gpu, const check_data *d)
{
    static const char *const names[CHECK_KINDS] = { "a product and a sum are fused",
                                                    "fma is not rounded once",
                                                    "1 / x is not correctly rounded",
                                                    "2^x",
                                                    "log2",
                                                    "tanh",
                                                    "f16 is not read exactly",
                                                    "bf16 is not read exactly",
                                                    "f16 is not rounded to nearest even",
                                                    "bf16 is not rounded to nearest even" };
    text why = text_in(gpu->info.exact_why, sizeof gpu->info.exact_why);
    int i;
    gpu->info.exact = 1;
    for (i = 0; i < CL_CHECKS && gpu->info.exact; i++)
        if (bits_of(d->out[i]) != right_answer(d, i)) {
            gpu->info.exact = 0;
            put(&why, "the device's arithmetic differs from the CPU's: ");
            put(&why, names[i % CHECK_KINDS]);
            put(&why, ", at ");
            put_float(&why, d->in[3 * i]);
        }
}

/* Fills in info.exact. */
static void check_device(attn_opencl *gpu)
{
    check_data *d = &gpu->check;
    const variant v = { PART_CHECK, 1, MIXED, 64, 64, 1 };
    const size_t global = CL_CHECKS, local = CL_ROW_GROUP;
    cl_handle program, kernel = NULL, in = NULL, out = NULL, queue = NULL; /* see try_program */
    cl_int error = CL_SUCCESS;
    text why = text_in(gpu->info.exact_why, sizeof gpu->info.exact_why);
    fill_checks(d);
    program = find_program(gpu, &v, &error);
    if (!error)
        queue = gpu->cl.clCreateCommandQueue(gpu->context, gpu->device, 0, &error);
    if (!error)
        kernel = gpu->cl.clCreateKernel(program, "check", &error);
    if (!error)
        in = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR,
                                    sizeof d->in, d->in, &error);
    if (!error)
        out = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_WRITE, sizeof d->out, NULL, &error);
    if (!error)
        error = gpu->cl.clSetKernelArg(kernel, 0, sizeof in, &in);
    if (!error)
        error = gpu->cl.clSetKernelArg(kernel, 1, sizeof out, &out);
    if (!error)
        error =
            gpu->cl.clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, &local, 0, NULL, NULL);
    if (!error)
        error = gpu->cl.clEnqueueReadBuffer(queue, out, 1, 0, sizeof d->out, d->out, 0, NULL, NULL);
    if (error)
        explain_error(&why, "the check of the device's arithmetic did not run", error);
    else
        compare_checks(gpu, d);
    if (queue)
        gpu->cl.clReleaseCommandQueue(queue);
    if (kernel)
        gpu->cl.clReleaseKernel(kernel);
    if (in)
        gpu->cl.clReleaseMemObject(in);
    if (out)
        gpu->cl.clReleaseMemObject(out);
}

/* src/seam.h - the seam: the table of kernels that every instruction set fills in.
 *
 * Kernels are leaf functions: no masks, no heads, no allocation. A tile has `rows` query rows, one per
 * lane, and n keys. Every matrix of a tile is lane-fastest, so that each lane is one independent row:
 *
 *     qt [d][rows]   packed queries, scaled           s [n][rows]   logits (base 2), then p
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

/* Lanes begin..end-1 of a tile; a kernel may compute more of them (whole vectors). */
typedef struct attn_lanes {
    int begin, end;
} attn_lanes;

/* Exponentials of an earlier block that qk computes beside its products: alone they would keep the
 * multipliers idle. s = 2^fl(s - m), l += s in order, in these lanes at least, as exp_sum does with
 * dead = +0. calm: s and m are at most ATTN_CALM in magnitude, so no special case can occur. */
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

/* Memory that the next product will read: a kernel asks for `lines` cache lines of it, evenly
 * beside its own work, and leaves `lines` at 0. Only a hint: it need not do so. */
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

/* Rows of some tiles, and what each pair of a key and a row stands for: the factors of the products
 * over rows, which gradients need. */
typedef struct attn_term {
    const float *x; /* [n][rows] of a tile */
    const float *b; /* [rows] so many floats apart: */
    attn_lanes lanes;
    int begin, end; /* the keys that count; of the others x is ATTN_DEAD, they may be left out */
} attn_term;

typedef struct attn_terms {
    const attn_term *term;
    int count;
    ptrdiff_t b_stride; /* whole cache lines, filled up with numbers */
} attn_terms;

/* What running_max says about a block. */
#define ATTN_RAISED 1 /* a lane's maximum that had begun rose: o *= alpha before the block enters */
#define ATTN_IS_CALM 2 /* attn_exp.calm holds; a kernel may always leave it out */

/* What the CPU can do and the operating system saves the registers for; 0 where unknown. */
#define ATTN_CPU_AVX2 2u   /* AVX2, FMA and F16C */
#define ATTN_CPU_AVX512 4u /* AVX-512 F and DQ */
ATTN_API unsigned attn_cpu_features(void);

/* The sets of the attn_simd_*.c files: the table, or NULL where this CPU cannot run it. Compile
 * attn.c with ATTN_SIMD_AVX2, ATTN_SIMD_AVX512, ... for those that are linked, and attn_kernels_get
 * offers them; or pass one in p.kernels and define nothing. */
ATTN_API const attn_kernels *attn_kernels_avx2(void);
ATTN_API const attn_kernels *attn_kernels_avx512(void);
ATTN_API const attn_kernels *attn_kernels_neon(void); /* 64-bit ARM */
ATTN_API const attn_kernels *attn_kernels_sse2(void); /* x86 without AVX2 */

/* The same with fewer rows in a tile, for decoding and other short calls. */
ATTN_API const attn_kernels *attn_kernels_avx2_narrow(void);
ATTN_API const attn_kernels *attn_kernels_avx512_narrow(void);
ATTN_API const attn_kernels *attn_kernels_neon_narrow(void);
ATTN_API const attn_kernels *attn_kernels_sse2_narrow(void);

struct attn_kernels {
    int abi;  /* ATTN_KERNEL_ABI */
    int rows; /* query rows of a tile */
    const char *name;
    /* n numbers of a 16-bit storage type as f32, and back: to nearest even, NaN (always 7fc00000)
     * as the type's, -0 never written. */
    void (*widen_f16)(float *to, const uint16_t *from, int64_t n);
    void (*widen_bf16)(float *to, const uint16_t *from, int64_t n);
    void (*narrow_f16)(uint16_t *to, const float *from, int64_t n);
    void (*narrow_bf16)(uint16_t *to, const float *from, int64_t n);
    /* qt[d][lane] = fl(q[lane][d] * c). */
    void (*pack)(float *qt, const float *const *q, int64_t head_dim, float c);
    /* s[j][lane] = chain over d of fma(qt[d][lane], k[j*k_stride + d], s) from +0, in these lanes.
     * The others get numbers, too: +0 where qt is 0 and K finite. beside, ahead: NULL = nothing. */
    void (*qk)(float *s, const float *qt, const float *k, ptrdiff_t k_stride, int n,
               int64_t head_dim, attn_lanes lanes, const attn_exp *beside, attn_ahead *ahead);
    /* s = fl(cap2 * tanh(fl(s * icap2))). */
    void (*softcap)(float *s, int n, float cap2, float icap2);
    /* s = fma(x, factor[lane], s); x = -inf gives -inf by selection. */
    void (*add_scaled)(float *s, const float *x, const float *factor, int n);
    /* s = -inf where the key j is not in begin[lane]..end[lane]-1, by selection. */
    void (*clip)(float *s, int n, const int *begin, const int *end);
    /* s = -inf where alive[j][lane] is 0, by selection; else alive is 1. */
    void (*hide)(float *s, const uint8_t *alive, int n);
    /* Decides the running maximum for one block (n is 1..16), whose p it does not compute: m rises
     * to the block's maximum where it has not begun (is -inf) or is exceeded by more than
     * ATTN_THRESHOLD. If the latter happens to a lane, ATTN_RAISED: alpha = 2^fl(old m - m) there,
     * 1 in the other lanes, and l *= alpha. Returns ATTN_RAISED and ATTN_IS_CALM, or 0. */
    int (*running_max)(const float *s, int n, float *m, float *l, float *alpha);
    /* m[lane] = maximum of m[lane] and s[..][lane], NaN ignored. */
    void (*maximum)(const float *s, int n, float *m);
    /* s = 2^fl(s - m), `dead` where s is -inf, l += s in order; m of -inf counts as +0. */
    void (*exp_sum)(float *s, int n, float dead, const float *m, float *l);
    /* The exponentials of a block without a product beside them. */
    void (*exp_block)(const attn_exp *e);
    /* Whether n numbers are all finite. */
    int (*finite)(const float *x, int64_t n);
    /* x[k][lane] *= alpha[lane] for `count` rows. */
    void (*rescale)(float *x, const float *alpha, int64_t count);
    /* o[d][lane] = chain over keys of fma(p[j][lane], v[j*v_stride + d], o), in these lanes at
     * least; to the others every key is dead, or they have no query. ahead: NULL = nothing. */
    void (*pv)(float *o, const float *p, const float *v, ptrdiff_t v_stride, int n,
               int64_t head_dim_v, attn_lanes lanes, attn_ahead *ahead);
    /* The same, but a key whose p is ATTN_DEAD leaves o alone by selection. */
    void (*pv_select)(float *o, const float *p, const float *v, ptrdiff_t v_stride, int n,
                      int64_t head_dim_v, attn_lanes lanes);
    /* b = a + b, a the lower node, not changed; states as [m[rows], l[rows],
     * o[head_dim_v][rows]]. */
    void (*merge)(float *a, float *b, int64_t head_dim_v);
    /* out[lane][d] = fl(fl(o[d][lane] * r) + 0) with r = fl(fl(1 / l[lane]) * factor), +0 where
     * l[lane] is 0; NaN as 7fc00000. */
    void (*result)(float *const *out, const float *o, const float *l, float factor,
                   int64_t head_dim_v);
    /* Up to so many lanes, counted from the last multiple of 4 up to the first one, take another
     * way, which qk_runs and pv_runs are of. 0 = there is none. */
    int few;
    /* qk and pv up to `few` lanes, of rows as they lie, in any storage type: NULL if few is 0.
     * head_dim, head_dim_v and, for qk_runs, the keys and those of each run are multiples of 16. */
    void (*qk_runs)(float *s, const float *qt, const attn_runs *k, int n, int64_t head_dim,
                    attn_lanes lanes, const attn_exp *beside, attn_ahead *ahead);
    void (*pv_runs)(float *o, const float *p, const attn_runs *v, int n, int64_t head_dim_v,
                    attn_lanes lanes, attn_ahead *ahead);

    /* ---- gradients */
    /* s becomes p = 2^x, x = fl(s - lse2[lane]) but at most 127, and dp becomes fl(p * fl(dp -
     * delta[lane])); where s is -inf both become ATTN_DEAD. lse2 of -inf counts as +0. */
    void (*gradient)(float *s, float *dp, int n, const float *lse2, const float *delta);
    /* ds = fl(ds * fma(-t, t, 1)), t the tanh of softcap; ATTN_DEAD where p is. */
    void (*softcap_gradient)(float *ds, const float *t, const float *p, int n);
    /* c[j][d] = chain over the terms, and over the lanes of each, of fma(x[j][lane], b[lane][d],
     * c[j][d]), for n keys j. c begins a cache line and c_stride is whole ones; the columns that
     * fill up the last one of a row may be written, too. */
    void (*outer)(float *c, ptrdiff_t c_stride, const attn_terms *terms, int n, int64_t columns);
    /* The same, but an x that is ATTN_DEAD leaves c alone by selection. */
    void (*outer_select)(float *c, ptrdiff_t c_stride, const attn_terms *terms, int n,
                         int64_t columns);
    /* to[lane] = chain over d of fma(a[d][lane], b[d][lane], to[lane]) from +0. */
    void (*dots)(float *to, const float *a, const float *b, int64_t dim);
};

#endif /* ATTN_SEAM_H */

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

static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return a == 0 ? 0 : (a - 1) / b + 1;
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

/* stride_or gives a stride as it was given, with what 0 and "broadcast" mean. */
static inline ptrdiff_t stride_or(ptrdiff_t stride, int64_t packed)
{
    return stride == ATTN_STRIDE_BROADCAST ? 0 : stride == 0 ? to_stride(packed) : stride;
}

/* resolve_strides fills in the strides of one tensor of `heads` heads, `seq` rows and `dim`
 * elements a row. Packed is [batch, head, seq, dim], or [token, head, dim] with varlen, where the
 * batch axis has no stride. */
static inline void resolve_strides(ptrdiff_t stride[3], int varlen, int64_t heads, int64_t seq,
                                   int64_t dim)
{
    const int64_t packed[2][3] = { { times(times(heads, seq), dim), times(seq, dim), dim },
                                   { 0, dim, times(heads, dim) } };
    int axis;
    for (axis = 0; axis < 3; axis++)
        stride[axis] = varlen && axis == 0 ? 0 : stride_or(stride[axis], packed[varlen][axis]);
}

/* Both tensor types hold the three strides in a row, by name: this is where they become an
 * array. */
#define RESOLVE_STRIDES(tensor, varlen, heads, seq, dim)                                           \
    do {                                                                                           \
        ptrdiff_t stride[3];                                                                       \
        stride[0] = (tensor).stride_batch;                                                         \
        stride[1] = (tensor).stride_head;                                                          \
        stride[2] = (tensor).stride_seq;                                                           \
        resolve_strides(stride, varlen, heads, seq, dim);                                          \
        (tensor).stride_batch = stride[0];                                                         \
        (tensor).stride_head = stride[1];                                                          \
        (tensor).stride_seq = stride[2];                                                           \
    } while (0)

static inline attn_tensor as_tensor(const attn_output *o)
{
    const attn_tensor t = { o->dtype, o->stride_batch, o->stride_head, o->stride_seq, o->data };
    return t;
}

/* bytes_of gives the bytes of one element. */
static inline size_t bytes_of(int dtype)
{
    return dtype == ATTN_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* src/opencl/plan.c - the plan: sizes of a call, a pure function of device and problem. */

#define MOST_KEYS ((int64_t)1 << 30) /* of a sequence: kernels count them in 32 bits */
#define WHOLE ((int64_t)1 << 62)     /* keys of a part that is not divided */
#define GROUPS_PER_UNIT 4            /* work-groups for a compute unit to choose from */

/* What the plan depends on besides the problem. */
typedef struct device_limits {
    int compute_units;
    size_t local_bytes, allocation_bytes;
    int exact;
    int divide; /* keys even where they are few: for a first use */
} device_limits;

typedef struct device_plan {
    variant forward;
    int64_t tiles, parts, slices, items, groups;
    int64_t chunk_keys, part_keys, levels;
    int64_t pending_bytes, parts_bytes; /* of device memory */
    unsigned programs;                  /* that the call runs: bit 1 << part */
} device_plan;

static device_limits limits_of(const attn_opencl_info *info, int exact)
{
    device_limits limits;
    limits.compute_units = info->compute_units;
    limits.local_bytes = info->local_bytes;
    limits.allocation_bytes = info->allocation_bytes;
    limits.exact = exact;
    limits.divide = 0;
    return limits;
}

/* Local memory of a work-group of the kernel forward: see its arrays. */
static int64_t local_bytes_of(int rows, int columns)
{
    const int64_t slices = (int64_t)(rows + CL_BN) * 36;
    const int64_t values = (int64_t)(columns <= 128 ? 32 : 16) * columns;
    const int64_t blocks = CL_BN / CL_BLOCK;
    return 4 * (max64(slices, values) + rows * (CL_BN + 1) + rows * (2 + 2 * blocks + 2) + 6) +
           8 * (rows + 2 * CL_BN);
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static int64_t most_of(const attn_problem *pr,
                       int64_t (*of)(const attn_problem *, const attn_sequence *))
{
    int64_t b, most = 0;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        most = max64(most, of(pr, &s));
    }
    return most;
}

/* Parts of part_keys each, counted from n = 0, that the keys of a sequence touch. */
static int64_t parts_of(const attn_sequence *s, int64_t part_keys)
{
    if (s->kv_len == 0)
        return 0;
    return (s->key_base + s->kv_len - 1) / part_keys - s->key_base / part_keys + 1;
}

/* Chunks likewise. */
static int64_t chunks_of(const attn_problem *pr, const attn_sequence *s)
{
    (void)pr;
    return parts_of(s, ATTN_CHUNK);
}

/* The most of any sequence, at least 1. */
static int64_t count_parts(const attn_problem *pr, int64_t part_keys)
{
    int64_t b, most = 1;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        most = max64(most, parts_of(&s, part_keys));
    }
    return most;
}

static int64_t count_tiles(const attn_problem *pr, int rows)
{
    int64_t b, n = 0;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        n += round_up(s.q_len * pr->group, rows) / rows;
    }
    return n;
}

/* Whether something must be asked pair by pair; callbacks are refused before. */
static int has_pairs(const attn_params *p)
{
    return p->block_mask.bitmap || p->block_mask.row_offsets || p->tree_parents || p->q_segments ||
           p->bool_mask.data || p->bit_mask.data || p->softcap > 0 || p->bias.data ||
           p->alibi_slopes || p->dropout_p > 0;
}

/* Few tiles do not fill the device: their keys are divided. Exact parts are nodes of the tree. */
static void divide_keys(const attn_problem *pr, const device_limits *limits, device_plan *pl)
{
    const int64_t wanted = (int64_t)limits->compute_units * GROUPS_PER_UNIT;
    const int64_t whole = pl->tiles * pr->p.num_heads_kv * pl->slices;
    const int64_t unit = limits->exact ? ATTN_CHUNK : 4 * CL_BN;
    int64_t parts = min64(CL_MAX_PARTS, wanted / max64(1, whole));
    pl->part_keys = WHOLE;
    pl->parts = 1;
    if (parts > 1 && (limits->divide || pr->max_kv_len > unit)) {
        pl->part_keys = unit;
        while (count_parts(pr, pl->part_keys) > parts)
            pl->part_keys *= 2;
        pl->parts = count_parts(pr, pl->part_keys);
        if (pl->parts == 1)
            pl->part_keys = WHOLE;
    }
    pl->chunk_keys = limits->exact ? ATTN_CHUNK : pl->part_keys;
}

/* States of a work-group that wait at once, while so many chunks become one: as many as bits of a
 * counter that begins anywhere, but for those of nodes that ended before the first chunk. */
static int64_t levels_for(int64_t chunks)
{
    int64_t levels = 0;
    for (; chunks > 1; chunks = (chunks + 1) / 2)
        levels++;
    return levels;
}

static int writes_values(const attn_params *p)
{
    return p->partial || p->o.data;
}

static unsigned choose_programs(const attn_problem *pr, const device_plan *pl)
{
    const attn_params *p = &pr->p;
    const int naive = pr->impl == ATTN_IMPL_NAIVE;
    const int tiled =
        !naive && pl->items > 0 && (pr->size_query || writes_values(p) || p->lse.data);
    const int rows = (tiled && pl->parts > 1) || p->logits.data;
    return (tiled ? 1u << PART_FORWARD : 0) | (rows ? 1u << PART_ROWS : 0) |
           (naive ? 1u << PART_NAIVE : 0);
}

static int runs(const device_plan *pl, int part)
{
    return (pl->programs >> part & 1) != 0;
}

static device_plan plan_device(const attn_problem *pr, const device_limits *limits)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pr->max_q_len * pr->group;
    const int64_t columns = writes_values(p) || pr->size_query ? p->head_dim_v : 1;
    device_plan pl;
    memset(&pl, 0, sizeof pl);
    pl.forward.part = PART_FORWARD;
    pl.forward.exact = limits->exact;
    pl.forward.kv_type = p->k.dtype == p->v.dtype ? p->k.dtype : MIXED;
    pl.forward.pairs = has_pairs(p);
    pl.forward.columns = columns <= 64 ? 64 : columns <= 128 ? 128 : 256;
    pl.forward.rows = rows <= 16 ? 16 : pl.forward.columns == 256 ? 32 : 64; /* in registers */
    while (pl.forward.rows > 16 &&
           local_bytes_of(pl.forward.rows, pl.forward.columns) > (int64_t)limits->local_bytes)
        pl.forward.rows /= 2;
    pl.tiles = count_tiles(pr, pl.forward.rows);
    pl.slices = round_up(columns, pl.forward.columns) / pl.forward.columns;
    divide_keys(pr, limits, &pl);
    pl.items = pl.tiles * p->num_heads_kv * pl.parts * pl.slices;
    pl.levels =
        limits->exact ? levels_for(min64(most_of(pr, chunks_of), pl.part_keys / ATTN_CHUNK)) : 0;
    pl.groups =
        pl.levels ? min64(pl.items, (int64_t)limits->compute_units * GROUPS_PER_UNIT) : pl.items;
    pl.pending_bytes = 4 * pl.groups * pl.levels * pl.forward.rows * (pl.forward.columns + 2);
    pl.parts_bytes = pl.parts == 1 ? 0
                                   : 4 * pl.tiles * p->num_heads_kv * pl.forward.rows * pl.parts *
                                         (p->head_dim_v + 2);
    pl.programs = choose_programs(pr, &pl);
    return pl;
}

/* Of the textbook: the logits of a head, and a factor for each row. */
static int64_t matrix_bytes(const attn_problem *pr)
{
    const int countable = pr->max_q_len <= MOST_KEYS && pr->max_kv_len <= MOST_KEYS;
    return countable ? 4 * pr->max_q_len * pr->max_kv_len : INT64_MAX;
}

typedef struct refusal {
    int applies;
    const char *why;
} refusal;

static const char times_or_event[] =
    "times are known when a call has ended: with event it returns before";
static const char too_few_flops[] = "fewer operations than least_flops: too small for the device";
static const char too_many_keys[] = "a sequence has more than 2^30 keys";
static const char too_little_local[] = "its work-groups have too little local memory for a tile";
static const char too_many_rows[] = "a sequence has more than 2^30 rows of a group";

/* Bytes of the largest array that the device has. */
static int64_t most_memory(const device_limits *limits)
{
    return min64((int64_t)limits->allocation_bytes, INT64_MAX / 4);
}

/* The first that applies, or NULL. */
static const char *first_refusal(const refusal *refusals, int count)
{
    int i;
    for (i = 0; i < count; i++)
        if (refusals[i].applies)
            return refusals[i].why;
    return NULL;
}

/* Why no device of these limits can run the call, or NULL. */
static const char *refuse_plan(const attn_problem *pr, const device_limits *limits,
                               const device_plan *pl)
{
    const attn_params *p = &pr->p;
    const int naive = runs(pl, PART_NAIVE);
    const int64_t most = most_memory(limits);
    const refusal refusals[] = {
        { p->part.rows || p->part.keys, "a part of a call" },
        { p->score != NULL, "score is a callback" },
        { p->mask != NULL, "mask is a callback" },
        { naive && p->partial, "naive on a device has no raw states" },
        { naive && matrix_bytes(pr) > most, "the logits of a head exceed an array of the device" },
        { pr->max_kv_len > MOST_KEYS, too_many_keys },
        { pr->max_q_len > MOST_KEYS / pr->group, too_many_rows },
        { !naive &&
              local_bytes_of(pl->forward.rows, pl->forward.columns) > (int64_t)limits->local_bytes,
          too_little_local },
        { pl->pending_bytes > most || pl->parts_bytes > most,
          "partial states exceed an array of the device" },
    };
    return first_refusal(refusals, COUNT_OF(refusals));
}

/* src/opencl/session.c - a session: one call, in the caller's workspace: buffers, kernels, times, errors.
 *
 * After the first error nothing more is done.
 */

/* Arrays that kernels read, in the order of their arguments: INPUTS in kernels.cl. */
enum input {
    IN_Q,
    IN_K,
    IN_V,
    IN_TABLE,
    IN_BIAS,
    IN_BOOL,
    IN_BIT,
    IN_BITMAP,
    IN_OFFSETS,
    IN_COLUMNS,
    IN_Q_SEGMENTS,
    IN_KV_SEGMENTS,
    IN_TREE,
    IN_SLOPES,
    IN_SINKS,
    KERNEL_INPUTS,
    IN_O = KERNEL_INPUTS,
    IN_LSE,
    IN_DOUT,
    IN_DLSE,
    INPUT_COUNT /* of gradients only */
};

/* Arrays that they write. */
enum output {
    OUT_O,
    OUT_LSE,
    OUT_M,
    OUT_L,
    OUT_STATE_O,
    OUT_LOGITS,
    OUT_DQ,
    OUT_DK,
    OUT_DV,
    OUT_DSINKS,
    OUT_DBIAS,
    OUT_DSLOPES,
    OUTPUT_COUNT
};

enum { MOST_BUFFERS = INPUT_COUNT + OUTPUT_COUNT + 8 };

/* An array as it lies in memory, of the host or of a device: four axes, strides in elements, 0 =
 * broadcast. Elements have 1, 8, 16 or 32 bits. */
typedef struct array {
    const void *data;
    int bits;
    int64_t count[4], stride[4];
} array;

typedef struct session session;
typedef struct written written;

/* Brings what a call writes of an output from its copy to the host. */
typedef void (*scatter_fn)(const session *s, const written *w, const char *from);

struct written {
    array host;
    cl_handle memory;
    int64_t offset;    /* bytes to element 0 */
    int64_t stride[4]; /* on the device */
    int how;           /* enum place */
    scatter_fn scatter;
};

enum place { NAMED, IN_PLACE, COPIED }; /* the caller's buffer; the host's memory; a copy */

/* Where time goes: from the start of one command to the end of another, or the same. */
enum spent { TO_DEVICE, COMPUTE, TO_HOST };
typedef struct timed {
    cl_handle first, last;
    int on;
} timed;
enum { MOST_TIMED = 64 };

/* SVM of the caller as a buffer. */
typedef struct shared_array {
    const void *of;
    cl_handle memory;
} shared_array;

struct session {
    attn_opencl *gpu;
    const attn_opencl_call *call;
    const attn_problem *pr;
    device_plan pl;
    cl_handle queue;
    cl_int error;
    const char *failed; /* what the error happened in */
    int buffer_count, shared_count;
    cl_handle buffers[MOST_BUFFERS]; /* ours, to be released */
    shared_array shared[INPUT_COUNT + OUTPUT_COUNT];
    cl_handle numbers_buffer, sequences, tiles;
    cl_handle input[INPUT_COUNT];
    written output[OUTPUT_COUNT];
    int64_t numbers[N_COUNT];
    int timed_count;
    timed timed[MOST_TIMED]; /* commands whose times nobody has read yet */
};

static int has_failed(session *s, cl_int error, const char *what)
{
    if (error && !s->error) {
        s->error = error;
        s->failed = what;
    }
    return s->error != CL_SUCCESS;
}

/* ---- times, by the events of commands */

static double seconds_at(const session *s, cl_handle event, cl_uint what)
{
    uint64_t nanoseconds = 0;
    if (s->gpu->cl.clGetEventProfilingInfo(event, what, sizeof nanoseconds, &nanoseconds, NULL))
        return 0;
    return (double)nanoseconds * 1e-9;
}

/* Waits for the commands and counts their times. */
static void read_times(session *s)
{
    attn_opencl_times *to = s->call->times;
    if (s->timed_count > 0)
        has_failed(s, s->gpu->cl.clFinish(s->queue), "waiting for times");
    while (s->timed_count > 0) {
        const timed *t = &s->timed[--s->timed_count];
        const double took = seconds_at(s, t->last, CL_PROFILING_COMMAND_END) -
                            seconds_at(s, t->first, CL_PROFILING_COMMAND_START);
        *(t->on == TO_DEVICE ? &to->to_device
          : t->on == TO_HOST ? &to->to_host
                             : &to->compute) += took;
        s->gpu->cl.clReleaseEvent(t->first);
        if (t->last != t->first)
            s->gpu->cl.clReleaseEvent(t->last);
    }
}

/* Where the next command puts its event, which begins a span; NULL = nobody asks. */
static cl_handle *begin_span(session *s, int on)
{
    timed *t;
    if (!s->call->times)
        return NULL;
    if (s->timed_count == MOST_TIMED)
        read_times(s);
    t = &s->timed[s->timed_count];
    t->first = t->last = NULL;
    t->on = on;
    return &t->first;
}

/* Where the command that ends the span puts its event. */
static cl_handle *end_span(session *s)
{
    return s->call->times ? &s->timed[s->timed_count].last : NULL;
}

/* The span's commands are enqueued. */
static void keep_span(session *s)
{
    timed *t = &s->timed[s->timed_count];
    if (!s->call->times)
        return;
    if (!t->last)
        t->last = t->first;
    if (t->first)
        s->timed_count++;
}

/* A buffer for the time of this call; NULL after an error. bytes may be 0 without an array of the
 * host. */
static cl_handle new_buffer(session *s, cl_flags flags, int64_t bytes, void *host, const char *what)
{
    cl_int error = CL_SUCCESS;
    cl_handle memory;
    if (s->error)
        return NULL;
    memory = s->gpu->cl.clCreateBuffer(s->gpu->context, flags, (size_t)max64(bytes, host ? 0 : 4),
                                       host, &error);
    if (has_failed(s, error, what))
        return NULL;
    s->buffers[s->buffer_count++] = memory;
    return memory;
}

static void *map_buffer(session *s, cl_handle memory, cl_flags flags, int64_t bytes)
{
    const int on = flags == CL_MAP_READ ? TO_HOST : TO_DEVICE;
    cl_int error = s->error;
    void *at = NULL;
    if (!error)
        at = s->gpu->cl.clEnqueueMapBuffer(s->queue, memory, 1, flags, 0, (size_t)bytes, 0, NULL,
                                           begin_span(s, on), &error);
    return has_failed(s, error, "mapping an array") ? NULL : at;
}

static void unmap_buffer(session *s, cl_handle memory, void *at)
{
    if (!at)
        return;
    has_failed(s, s->gpu->cl.clEnqueueUnmapMemObject(s->queue, memory, at, 0, NULL, end_span(s)),
               "unmapping an array");
    keep_span(s);
}

/* ---- kernels */

typedef struct launch {
    session *s;
    cl_handle kernel;
    cl_uint arguments;
} launch;

static void add_argument(launch *l, size_t bytes, const void *value)
{
    if (!l->s->error)
        has_failed(l->s, l->s->gpu->cl.clSetKernelArg(l->kernel, l->arguments++, bytes, value),
                   "setting an argument");
}

/* A kernel never gets NULL: numbers stand for what it does not read. */
static void add_memory(launch *l, cl_handle memory)
{
    const cl_handle given = memory ? memory : l->s->numbers_buffer;
    add_argument(l, sizeof given, &given);
}

static void add_int(launch *l, int64_t value)
{
    const cl_int given = (cl_int)value;
    add_argument(l, sizeof given, &given);
}

static launch open_launch(session *s, const variant *v, const char *name)
{
    launch l;
    cl_int error = s->error;
    cl_handle program = NULL;
    int i;
    l.s = s;
    l.kernel = NULL;
    l.arguments = 0;
    if (!error)
        program = find_program(s->gpu, v, &error);
    if (!error)
        l.kernel = s->gpu->cl.clCreateKernel(program, name, &error);
    if (has_failed(s, error, name))
        return l;
    add_memory(&l, s->numbers_buffer);
    add_memory(&l, s->sequences);
    for (i = 0; i < KERNEL_INPUTS; i++)
        add_memory(&l, s->input[i]);
    return l;
}

/* Enqueues the kernel and releases it. */
static void close_launch(launch *l, const char *name, const size_t global[3], const size_t local[3])
{
    session *s = l->s;
    if (!s->error) {
        has_failed(s,
                   s->gpu->cl.clEnqueueNDRangeKernel(s->queue, l->kernel, 3, NULL, global, local, 0,
                                                     NULL, begin_span(s, COMPUTE)),
                   name);
        keep_span(s);
        if (s->call->times)
            s->call->times->kernels++;
    }
    if (l->kernel)
        s->gpu->cl.clReleaseKernel(l->kernel);
}

/* src/opencl/arrays.c - arrays of the host or the caller's, to the device and back. */

static array make_array(const void *data, int bits, int64_t n0, int64_t n1, int64_t n2, int64_t n3,
                        int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    array a;
    a.data = data;
    a.bits = bits;
    a.count[0] = n0;
    a.count[1] = n1;
    a.count[2] = n2;
    a.count[3] = n3;
    a.stride[0] = s0;
    a.stride[1] = s1;
    a.stride[2] = s2;
    a.stride[3] = s3;
    return a;
}

static int type_bits(int dtype)
{
    return dtype == ATTN_F32 ? 32 : 16;
}

/* Elements lo..hi relative to data are in its hull; returns how many elements it has. */
static int64_t hull_of(const array *a, int64_t *lo, int64_t *hi)
{
    int64_t elements = 1;
    int axis;
    *lo = *hi = 0;
    for (axis = 0; axis < 4; axis++) {
        const int64_t reach = (a->count[axis] - 1) * a->stride[axis];
        if (a->count[axis] == 0)
            return 0;
        *lo += min64(reach, 0);
        *hi += max64(reach, 0);
        elements *= a->stride[axis] ? a->count[axis] : 1;
    }
    return elements;
}

/* Row-major without gaps; axes that are broadcast stay so. Rows of bits begin at whole bytes.
 * Returns the bytes needed. */
static int64_t pack_strides(const array *a, int64_t packed[4])
{
    int64_t elements = 1;
    int axis;
    for (axis = 3; axis >= 0; axis--) {
        packed[axis] = a->stride[axis] ? elements : 0;
        elements *= a->stride[axis] ? a->count[axis] : 1;
        if (axis == 3 && a->bits == 1)
            elements = round_up(elements, 8);
    }
    return elements * a->bits / 8;
}

static void copy_bits(const array *a, uint8_t *to, int64_t to_at, int64_t from_at)
{
    const uint8_t *from = (const uint8_t *)a->data;
    const int64_t n = a->stride[3] ? a->count[3] : min64(a->count[3], 1);
    int64_t i;
    for (i = 0; i < n; i++, from_at += a->stride[3], to_at++) {
        const int64_t byte = from_at >= 0 ? from_at / 8 : -((7 - from_at) / 8);
        const int bit = from[byte] >> (from_at - 8 * byte) & 1;
        to[to_at / 8] = (uint8_t)((to[to_at / 8] & ~(1 << to_at % 8)) | bit << to_at % 8);
    }
}

/* One row of the last axis, packed. */
static void copy_row(const array *a, char *to, int64_t to_at, int64_t from_at)
{
    const int64_t bytes = a->bits / 8, n = a->stride[3] ? a->count[3] : min64(a->count[3], 1);
    const char *from = (const char *)a->data;
    int64_t i;
    if (a->bits == 1)
        copy_bits(a, (uint8_t *)to, to_at, from_at);
    else if (a->stride[3] == 1 || n <= 1)
        memcpy(to + to_at * bytes, from + from_at * bytes, (size_t)(n * bytes));
    else
        for (i = 0; i < n; i++)
            memcpy(to + (to_at + i) * bytes, from + (from_at + i * a->stride[3]) * bytes,
                   (size_t)bytes);
}

/* Copies what a call needs of an array. */
typedef void (*fill_fn)(const session *s, const array *a, const int64_t packed[4], char *to);

static void fill_all(const session *s, const array *a, const int64_t packed[4], char *to)
{
    int64_t n[3], x, y, z;
    int axis;
    (void)s;
    for (axis = 0; axis < 3; axis++)
        n[axis] = a->stride[axis] ? a->count[axis] : min64(a->count[axis], 1);
    for (x = 0; x < n[0]; x++)
        for (y = 0; y < n[1]; y++)
            for (z = 0; z < n[2]; z++)
                copy_row(a, to, x * packed[0] + y * packed[1] + z * packed[2],
                         x * a->stride[0] + y * a->stride[1] + z * a->stride[2]);
}

/* Queries in use: padded ones are not read. */
static void fill_queries(const session *s, const array *a, const int64_t packed[4], char *to)
{
    const attn_params *p = &s->pr->p;
    int64_t b, h, i;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (h = 0; h < p->num_heads_q; h++)
            for (i = seq.q_row; i < seq.q_row + seq.q_len; i++)
                copy_row(a, to, b * packed[0] + h * packed[1] + i * packed[2],
                         b * a->stride[0] + h * a->stride[1] + i * a->stride[2]);
    }
}

/* Keys in use, wherever they lie. */
static void fill_keys(const session *s, const array *a, const int64_t packed[4], char *to)
{
    const attn_params *p = &s->pr->p;
    const attn_rows *rows = &p->kv_rows;
    int64_t b, h, j;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (j = 0; j < seq.kv_len; j++) {
            int64_t row = seq.kv_row + j, entry = b;
            if (rows->ring && row >= rows->ring)
                row -= rows->ring;
            if (rows->page_size) {
                entry = rows->table[b * rows->table_stride + row / rows->page_size];
                row %= rows->page_size;
            }
            for (h = 0; h < p->num_heads_kv; h++)
                copy_row(a, to, entry * packed[0] + h * packed[1] + row * packed[2],
                         entry * a->stride[0] + h * a->stride[1] + row * a->stride[2]);
        }
    }
}

/* The caller's buffer that has the array, or NULL. */
static const attn_opencl_buffer *named_buffer(const attn_opencl_call *how, const void *data)
{
    int i;
    for (i = 0; how->buffers && i < how->num_buffers; i++) {
        const attn_opencl_buffer *b = &how->buffers[i];
        if ((uintptr_t)data >= (uintptr_t)b->address &&
            (uintptr_t)data - (uintptr_t)b->address < b->bytes)
            return b;
    }
    return NULL;
}

/* The caller's memory. A buffer of SVM has its storage (OpenCL 2.0, clCreateBuffer with
 * CL_MEM_USE_HOST_PTR), but two of the same bytes would be undefined: one serves all its arrays. */
static cl_handle memory_of(session *s, const attn_opencl_buffer *named)
{
    shared_array *found = s->shared;
    size_t bytes = 0;
    int i;
    if (!named->svm)
        return named->mem;
    while (found < s->shared + s->shared_count && found->of != named->mem)
        found++;
    if (found == s->shared + s->shared_count) {
        for (i = 0; i < s->call->num_buffers; i++) {
            const attn_opencl_buffer *b = &s->call->buffers[i];
            if (b->svm && b->mem == named->mem && b->offset + b->bytes > bytes)
                bytes = b->offset + b->bytes;
        }
        found->of = named->mem;
        found->memory = new_buffer(s, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, (int64_t)bytes,
                                   named->mem, "using SVM");
        s->shared_count++;
    }
    return found->memory;
}

/* Bytes from..from+bytes of the hull, and where element 0 is in it. */
static char *hull_bytes(const array *a, int64_t lo, int64_t hi, int64_t *bytes, int64_t *offset)
{
    char *data = (char *)(uintptr_t)a->data;
    const int64_t first = a->bits == 1 ? (lo >= 0 ? lo / 8 : -((7 - lo) / 8)) : lo * (a->bits / 8);
    *bytes = a->bits == 1 ? hi / 8 + 1 - first : (hi - lo + 1) * (a->bits / 8);
    *offset = -first;
    return data + first;
}

/* Whether the array lies where the caller's buffer says, and that is in its memory. */
static int fits_named(session *s, const attn_opencl_buffer *named, const array *a, int64_t lo,
                      int64_t hi)
{
    const int64_t start = (int64_t)((uintptr_t)a->data - (uintptr_t)named->address);
    const int64_t element = a->bits < 8 ? 1 : a->bits / 8;
    size_t room = named->offset + named->bytes;
    int64_t bytes, before;
    const char *fault = NULL;
    hull_bytes(a, lo, hi, &bytes, &before);
    if (!named->mem)
        fault = "call.buffers: mem is NULL";
    else if (start - before < 0 || start - before + bytes > (int64_t)named->bytes)
        fault = "call.buffers: an array exceeds the bytes of its buffer";
    else if (((int64_t)named->offset + start) % element)
        fault = "call.buffers: offset is no multiple of an array's element";
    else if (!named->svm &&
             s->gpu->cl.clGetMemObjectInfo(named->mem, CL_MEM_SIZE, sizeof room, &room, NULL))
        fault = "call.buffers: mem is no cl_mem";
    else if (room < named->offset || room - named->offset < named->bytes)
        fault = "call.buffers: offset + bytes exceed the cl_mem";
    return !has_failed(s, fault ? INVALID_VALUE : CL_SUCCESS, fault);
}

/* The input becomes an argument of kernels. numbers: where its offset goes, and its strides
 * behind, as many as the array has axes there. */
static void bind_input(session *s, int which, int number, int strides, const array *a, fill_fn fill)
{
    const attn_opencl_buffer *named = named_buffer(s->call, a->data);
    int64_t lo, hi, bytes, offset = 0, packed[4];
    const int64_t *stride = a->stride, elements = hull_of(a, &lo, &hi);
    int axis;
    if (s->error || !a->data || elements == 0 || (named && !fits_named(s, named, a, lo, hi)))
        return;
    if (named) {
        s->input[which] = memory_of(s, named);
        offset = (int64_t)named->offset + (int64_t)((uintptr_t)a->data - (uintptr_t)named->address);
    } else if (s->gpu->info.shares_memory && elements >= hi - lo + 1) {
        char *from = hull_bytes(a, lo, hi, &bytes, &offset);
        s->input[which] = new_buffer(s, CL_MEM_READ_ONLY | CL_MEM_USE_HOST_PTR, bytes, from,
                                     "using an input in place");
    } else {
        void *to;
        bytes = pack_strides(a, packed);
        stride = packed;
        s->input[which] = new_buffer(s, CL_MEM_READ_ONLY, bytes, NULL, "memory for an input");
        to = map_buffer(s, s->input[which], CL_MAP_WRITE_INVALIDATE_REGION, bytes);
        if (to)
            fill(s, a, packed, (char *)to);
        unmap_buffer(s, s->input[which], to);
    }
    s->numbers[number] = offset;
    for (axis = 0; axis < strides; axis++)
        s->numbers[number + 1 + axis] = stride[axis];
}

/* Row (b, h, i) of an output that was copied. */
static void scatter_row(const written *w, const char *from, int64_t b, int64_t h, int64_t i)
{
    const int64_t bytes = w->host.bits / 8, *to = w->host.stride, *at = w->stride;
    memcpy((char *)(uintptr_t)w->host.data + (b * to[0] + h * to[1] + i * to[2]) * bytes,
           from + (b * at[0] + h * at[1] + i * at[2]) * bytes, (size_t)(w->host.count[3] * bytes));
}

/* Rows in use of an output that was copied. */
static void scatter_rows(const session *s, const written *w, const char *from)
{
    const attn_params *p = &s->pr->p;
    int64_t b, h, i;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (h = 0; h < p->num_heads_q; h++)
            for (i = seq.q_row; i < seq.q_row + seq.q_len; i++)
                scatter_row(w, from, b, h, i);
    }
}

/* Chosen rows that exist. */
static void scatter_logits(const session *s, const written *w, const char *from)
{
    const attn_params *p = &s->pr->p;
    int64_t b, h, c;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (c = 0; c < p->logits.num_rows; c++)
            for (h = 0; h < p->num_heads_q; h++)
                if ((p->logits.rows ? p->logits.rows[c] : c) < seq.q_len)
                    scatter_row(w, from, b, h, c);
    }
}

/* All of an array of floats. */
static void scatter_all(const session *s, const written *w, const char *from)
{
    const int64_t *n = w->host.count, *to = w->host.stride, *at = w->stride;
    char *data = (char *)(uintptr_t)w->host.data;
    int64_t x, y, z, i;
    (void)s;
    for (x = 0; x < n[0]; x++)
        for (y = 0; y < n[1]; y++)
            for (z = 0; z < n[2]; z++)
                for (i = 0; i < n[3]; i++)
                    memcpy(data + 4 * (x * to[0] + y * to[1] + z * to[2] + i * to[3]),
                           from + 4 * (x * at[0] + y * at[1] + z * at[2] + i * at[3]), 4);
}

/* Keys in use likewise. */
static void scatter_keys(const session *s, const written *w, const char *from)
{
    const attn_params *p = &s->pr->p;
    int64_t b, h, j;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (h = 0; h < p->num_heads_kv; h++)
            for (j = seq.kv_row; j < seq.kv_row + seq.kv_len; j++)
                scatter_row(w, from, b, h, j);
    }
}

static void bind_output(session *s, int which, int number, int strides, const array *a,
                        scatter_fn scatter)
{
    const attn_opencl_buffer *named = named_buffer(s->call, a->data);
    written *w = &s->output[which];
    int64_t lo, hi, bytes;
    const int64_t elements = hull_of(a, &lo, &hi);
    int axis;
    if (s->error || !a->data || elements == 0 || (named && !fits_named(s, named, a, lo, hi)))
        return;
    w->host = *a;
    w->scatter = scatter;
    memcpy(w->stride, a->stride, sizeof w->stride);
    if (named) {
        w->how = NAMED;
        w->memory = memory_of(s, named);
        w->offset =
            (int64_t)named->offset + (int64_t)((uintptr_t)a->data - (uintptr_t)named->address);
    } else if (s->gpu->info.shares_memory && elements == hi - lo + 1) {
        char *at = hull_bytes(a, lo, hi, &bytes, &w->offset);
        w->how = IN_PLACE;
        w->memory = new_buffer(s, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, bytes, at,
                               "using an output in place");
    } else {
        w->how = COPIED;
        w->memory = new_buffer(s, CL_MEM_READ_WRITE, pack_strides(a, w->stride), NULL,
                               "memory for an output");
    }
    s->numbers[number] = w->offset;
    for (axis = 0; axis < strides; axis++)
        s->numbers[number + 1 + axis] = w->stride[axis];
}

/* Waits for the device and brings the output to the host. */
static void fetch_output(session *s, int which)
{
    const written *w = &s->output[which];
    int64_t lo, hi, bytes, offset, packed[4];
    void *at;
    if (s->error || !w->memory || w->how == NAMED)
        return;
    hull_of(&w->host, &lo, &hi);
    if (w->how == COPIED)
        bytes = pack_strides(&w->host, packed);
    else
        hull_bytes(&w->host, lo, hi, &bytes, &offset);
    at = map_buffer(s, w->memory, CL_MAP_READ, bytes);
    if (at && w->how == COPIED)
        w->scatter(s, w, (const char *)at);
    unmap_buffer(s, w->memory, at);
}

static array tensor_array(const attn_tensor *t, int64_t batch, int64_t heads, int64_t rows,
                          int64_t dim)
{
    return make_array(t->data, type_bits(t->dtype), batch, heads, rows, dim, t->stride_batch,
                      t->stride_head, t->stride_seq, 1);
}

/* K or V: rows of batch entries, a ring, or pages. */
static array keys_array(const attn_params *p, const attn_tensor *t, int64_t dim)
{
    const attn_rows *rows = &p->kv_rows;
    const int64_t entries = rows->page_size ? rows->num_pages : p->cu_seqlens_kv ? 1 : p->batch;
    const int64_t whole = rows->ring ? rows->ring : p->seq_len_kv;
    const int64_t each = rows->page_size ? rows->page_size : whole;
    return tensor_array(t, entries, p->num_heads_kv, each, dim);
}

/* Rows that masks and the bias may be asked for, and columns. */
static int64_t rows_asked(const attn_problem *pr, const attn_sequence *s)
{
    (void)pr;
    return s->q_len;
}

static int64_t columns_asked(const attn_problem *pr, const attn_sequence *s)
{
    (void)pr;
    return s->column + s->kv_len;
}

static void bind_masks(session *s)
{
    const attn_problem *pr = s->pr;
    const attn_params *p = &pr->p;
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = most_of(pr, rows_asked), columns = most_of(pr, columns_asked);
    const int64_t b = p->batch, h = p->num_heads_q;
    const int64_t cell_rows = m->block_q ? round_up(rows, m->block_q) / m->block_q : 0;
    const int64_t cells = m->block_k ? round_up(pr->max_kv_len, m->block_k) / m->block_k : 0;
    const array bias =
        make_array(p->bias.data, type_bits(p->bias.dtype), b, h, rows, columns,
                   p->bias.stride_batch, p->bias.stride_head, p->bias.stride_q, p->bias.stride_kv);
    const array bytes =
        make_array(p->bool_mask.data, 8, b, h, rows, columns, p->bool_mask.stride_batch,
                   p->bool_mask.stride_head, p->bool_mask.stride_q, p->bool_mask.stride_kv);
    const array bits =
        make_array(p->bit_mask.data, 1, b, h, rows, columns, p->bit_mask.stride_batch,
                   p->bit_mask.stride_head, p->bit_mask.stride_q, p->bit_mask.stride_kv);
    const array bitmap = make_array(m->bitmap, 1, b, h, cell_rows, cells, m->stride_batch,
                                    m->stride_head, m->stride_row, 1);
    const array offsets = make_array(m->row_offsets, 32, b, h, cell_rows + 1, 1,
                                     m->csr_stride_batch, m->csr_stride_head, 1, 1);
    bind_input(s, IN_BIAS, N_BIAS, 4, &bias, fill_all);
    bind_input(s, IN_BOOL, N_BOOL, 4, &bytes, fill_all);
    bind_input(s, IN_BIT, N_BIT, 4, &bits, fill_all);
    bind_input(s, IN_BITMAP, N_BITMAP, 3, &bitmap, fill_all);
    bind_input(s, IN_OFFSETS, N_OFFSETS, 2, &offsets, fill_all);
    s->numbers[N_BIAS_TYPE] = p->bias.dtype;
    s->numbers[N_BOOL_TYPE] = p->bool_mask.invert != 0;
    s->numbers[N_BIT_TYPE] = p->bit_mask.invert != 0;
    s->numbers[N_BLOCK_Q] = m->block_q;
    s->numbers[N_BLOCK_K] = m->block_k;
}

/* Columns of a CSR mask: as many as its largest offset says. */
static void bind_columns(session *s)
{
    const attn_params *p = &s->pr->p;
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = most_of(s->pr, rows_asked);
    int64_t b, h, last = 0;
    array columns;
    if (!m->row_offsets || rows == 0)
        return;
    for (b = 0; b < p->batch; b++)
        for (h = 0; h < p->num_heads_q; h++)
            last = max64(last, m->row_offsets[b * m->csr_stride_batch + h * m->csr_stride_head +
                                              (rows - 1) / m->block_q + 1]);
    columns = make_array(m->columns, 32, 1, 1, 1, last, 0, 0, 0, 1);
    bind_input(s, IN_COLUMNS, N_COLUMNS, 0, &columns, fill_all);
}

/* Arrays of one number a token, head or page. */
static void bind_lists(session *s)
{
    const attn_params *p = &s->pr->p;
    const attn_rows *rows = &p->kv_rows;
    const int64_t b = p->batch, h = p->num_heads_q;
    const int64_t q_batch = p->cu_seqlens_q ? 1 : b, kv_batch = p->cu_seqlens_kv ? 1 : b;
    const int64_t in_rows = rows->ring ? rows->ring : p->seq_len_kv;
    const int64_t size = rows->page_size, pages = size ? round_up(in_rows, size) / size : 0;
    const array q_segments =
        make_array(p->q_segments, 32, q_batch, 1, 1, p->seq_len_q, p->q_segments_stride, 0, 0, 1);
    const array kv_segments = make_array(p->kv_segments, 32, kv_batch, 1, 1, p->seq_len_kv,
                                         p->kv_segments_stride, 0, 0, 1);
    const array tree =
        make_array(p->tree_parents, 32, q_batch, 1, 1, p->seq_len_q, p->tree_stride, 0, 0, 1);
    const array slopes = make_array(p->alibi_slopes, 32, b, 1, 1, h, p->alibi_stride, 0, 0, 1);
    const array sinks = make_array(p->sinks, 32, 1, 1, 1, h, 0, 0, 0, 1);
    const array table = make_array(rows->table, 32, b, 1, 1, pages, rows->table_stride, 0, 0, 1);
    bind_input(s, IN_Q_SEGMENTS, N_Q_SEGMENTS, 1, &q_segments, fill_all);
    bind_input(s, IN_KV_SEGMENTS, N_KV_SEGMENTS, 1, &kv_segments, fill_all);
    bind_input(s, IN_TREE, N_TREE, 1, &tree, fill_all);
    bind_input(s, IN_SLOPES, N_SLOPES, 1, &slopes, fill_all);
    bind_input(s, IN_SINKS, N_SINKS, 0, &sinks, fill_all);
    bind_input(s, IN_TABLE, N_TABLE, 1, &table, fill_all);
}

/* src/opencl/run.c - the kernels of a call, in order. */

static int64_t float_number(float x)
{
    return (int64_t)bits_of(x);
}

/* What kernels do, by flag: the mask table's column for devices. */
static int64_t flags_of(const attn_params *p)
{
    const struct {
        int on;
        int64_t flag;
    } flags[] = {
        { p->causal != 0, F_CAUSAL },
        { p->window != 0, F_WINDOW },
        { p->chunk_size != 0, F_CHUNKED },
        { p->block_mask.bitmap != NULL, F_BITMAP },
        { p->block_mask.row_offsets != NULL, F_CSR },
        { p->tree_parents != NULL, F_TREE },
        { p->q_segments != NULL, F_SEGMENTS },
        { p->bool_mask.data != NULL, F_BOOL },
        { p->bit_mask.data != NULL, F_BITS },
        { p->softcap > 0, F_SOFTCAP },
        { p->bias.data != NULL, F_BIAS },
        { p->alibi_slopes != NULL, F_ALIBI },
        { p->dropout_p > 0, F_DROPOUT },
        { p->softmax1 != 0, F_SOFTMAX1 },
        { p->sinks != NULL, F_SINKS },
        { p->partial != 0, F_PARTIAL },
        { p->o.data != NULL, F_O },
        { p->lse.data != NULL, F_LSE },
        { p->force_redo != 0, F_REDO },
    };
    int64_t all = 0;
    size_t i;
    for (i = 0; i < sizeof flags / sizeof *flags; i++)
        all |= flags[i].on ? flags[i].flag : 0;
    return all;
}

/* Of all heads, as in state_row. */
static int64_t all_rows(const attn_params *p)
{
    return p->num_heads_q * p->seq_len_q * (p->cu_seqlens_q ? 1 : p->batch);
}

static void fill_numbers(session *s)
{
    const attn_problem *pr = s->pr;
    const attn_params *p = &pr->p;
    int64_t *n = s->numbers;
    n[N_FLAGS] = flags_of(p);
    n[N_ITEMS] = s->pl.items;
    n[N_PARTS] = s->pl.parts;
    n[N_SLICES] = s->pl.slices;
    n[N_TILE_ROWS] = s->pl.forward.rows;
    n[N_HEADS] = p->num_heads_q;
    n[N_HEADS_KV] = p->num_heads_kv;
    n[N_GROUP] = pr->group;
    n[N_DIM] = p->head_dim;
    n[N_DIM_V] = writes_values(p) ? p->head_dim_v : 0;
    n[N_STATE_ROWS] = p->seq_len_q;
    n[N_VARLEN] = p->cu_seqlens_q != NULL;
    n[N_CHUNK_KEYS] = s->pl.chunk_keys;
    n[N_PART_KEYS] = s->pl.part_keys;
    n[N_LEVELS] = s->pl.levels;
    n[N_FACTOR] = float_number(pr->factor);
    n[N_CAP2] = float_number(pr->cap2);
    n[N_ICAP2] = float_number(pr->icap2);
    n[N_KEEP] = float_number(pr->keep_factor);
    n[N_DROP_BELOW] = pr->drop_below;
    n[N_SEED_LOW] = (int64_t)(p->dropout_seed & 0xffffffffu);
    n[N_SEED_HIGH] = (int64_t)(p->dropout_seed >> 32);
    n[N_WINDOW_LEFT] = p->window_left;
    n[N_WINDOW_RIGHT] = p->window_right;
    n[N_CHUNKED] = p->chunk_size;
    n[N_Q_TYPE] = p->q.dtype;
    n[N_K_TYPE] = p->k.dtype;
    n[N_V_TYPE] = p->v.dtype;
    n[N_O_TYPE] = p->o.dtype;
    n[N_RING] = p->kv_rows.ring;
    n[N_PAGE_SIZE] = p->kv_rows.page_size;
    n[N_STAGE] = p->logits.stage;
    n[N_CHOSEN_LIST] = p->logits.rows != NULL;
    n[N_COLUMN_COUNT] = p->seq_len_kv;
    n[N_SCALE] = float_number(p->scale);
    n[N_ALL_ROWS] = all_rows(p);
}

static void bind_inputs(session *s)
{
    const attn_params *p = &s->pr->p;
    const int64_t q_batch = p->cu_seqlens_q ? 1 : p->batch;
    const array q = tensor_array(&p->q, q_batch, p->num_heads_q, p->seq_len_q, p->head_dim);
    const array k = keys_array(p, &p->k, p->head_dim), v = keys_array(p, &p->v, p->head_dim_v);
    bind_input(s, IN_Q, N_Q, 3, &q, fill_queries);
    bind_input(s, IN_K, N_K, 3, &k, fill_keys);
    if (writes_values(p))
        bind_input(s, IN_V, N_V, 3, &v, fill_keys);
    bind_masks(s);
    bind_columns(s);
    bind_lists(s);
}

static void bind_outputs(session *s)
{
    const attn_params *p = &s->pr->p;
    const int64_t q_batch = p->cu_seqlens_q ? 1 : p->batch;
    const int64_t h = p->num_heads_q, rows = p->seq_len_q, dim = p->head_dim_v;
    const int64_t each = p->cu_seqlens_q ? 0 : h * rows; /* raw states: as a packed lse */
    const attn_tensor o_shape = as_tensor(&p->o), lse_shape = as_tensor(&p->lse);
    const int64_t columns = p->seq_len_kv, chosen = p->logits.num_rows;
    const array o = tensor_array(&o_shape, q_batch, h, rows, dim);
    const array lse = tensor_array(&lse_shape, q_batch, h, rows, 1);
    const array m = make_array(p->state.m, 32, q_batch, h, rows, 1, each, rows, 1, 1);
    const array l = make_array(p->state.l, 32, q_batch, h, rows, 1, each, rows, 1, 1);
    const array state_o =
        make_array(p->state.o, 32, q_batch, h, rows, dim, each * dim, rows * dim, dim, 1);
    const array logits = make_array(p->logits.data, 32, p->batch, h, chosen, columns,
                                    h * chosen * columns, chosen * columns, columns, 1);
    if (p->partial) {
        bind_output(s, OUT_M, N_STATE_M, 0, &m, scatter_rows);
        bind_output(s, OUT_L, N_STATE_L, 0, &l, scatter_rows);
        bind_output(s, OUT_STATE_O, N_STATE_O, 0, &state_o, scatter_rows);
    } else {
        bind_output(s, OUT_O, N_O, 3, &o, scatter_rows);
        bind_output(s, OUT_LSE, N_LSE, 3, &lse, scatter_rows);
    }
    bind_output(s, OUT_LOGITS, N_LOGITS, 0, &logits, scatter_logits);
}

/* Descriptions that lie behind the session in the workspace: sequences, then tiles. */
static int64_t *sequences_of(session *s)
{
    return (int64_t *)(void *)((char *)s + round_up((int64_t)sizeof *s, ALIGNMENT));
}

static int32_t *tiles_of(session *s)
{
    return (int32_t *)(void *)(sequences_of(s) + s->pr->p.batch * S_COUNT);
}

static int64_t session_bytes(const attn_problem *pr, const device_plan *pl)
{
    return ALIGNMENT + round_up((int64_t)sizeof(session), ALIGNMENT) +
           pr->p.batch * S_COUNT * (int64_t)sizeof(int64_t) +
           pl->tiles * TILE_COUNT * (int64_t)sizeof(int32_t);
}

static void describe_sequences(session *s)
{
    const attn_params *p = &s->pr->p;
    int64_t *to = sequences_of(s), b;
    for (b = 0; b < p->batch; b++, to += S_COUNT) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        to[S_Q_ROW] = seq.q_row;
        to[S_Q_LEN] = seq.q_len;
        to[S_KV_ROW] = seq.kv_row;
        to[S_KV_LEN] = seq.kv_len;
        to[S_COLUMN] = seq.column;
        to[S_OFFSET] = seq.offset;
        to[S_KEY_BASE] = seq.key_base;
        to[S_PREFIX] = seq.prefix;
        to[S_KV_SEGMENT] = seq.column + (p->cu_seqlens_kv ? p->cu_seqlens_kv[b]
                                                          : b * s->numbers[N_KV_SEGMENTS_BATCH]);
    }
}

/* The last rows of a sequence first: with a causal mask they have most to do. */
static void describe_tiles(session *s)
{
    const attn_params *p = &s->pr->p;
    const int64_t rows = s->pl.forward.rows;
    int32_t *to = tiles_of(s);
    int64_t b, first;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        const int64_t all = seq.q_len * s->pr->group;
        for (first = round_up(all, rows) - rows; first >= 0; first -= rows, to += TILE_COUNT) {
            to[TILE_SEQUENCE] = (int32_t)b;
            to[TILE_FIRST] = (int32_t)first;
        }
    }
}

static void describe_call(session *s)
{
    const cl_flags flags = CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR;
    describe_sequences(s);
    if (s->pl.tiles)
        describe_tiles(s);
    s->numbers_buffer = new_buffer(s, flags, sizeof s->numbers, s->numbers, "memory for numbers");
    s->sequences =
        new_buffer(s, flags, s->pr->p.batch * S_COUNT * 8, sequences_of(s), "memory for sequences");
    if (s->pl.tiles)
        s->tiles =
            new_buffer(s, flags, s->pl.tiles * TILE_COUNT * 4, tiles_of(s), "memory for tiles");
}

/* The programs of rows and of the textbook do not depend on tiles. */
static variant simple_variant(const session *s, int part)
{
    variant v = s->pl.forward;
    v.part = part;
    v.kv_type = MIXED;
    v.rows = v.columns = 64;
    v.pairs = 1;
    return v;
}

/* OUTPUTS in kernels.cl, and the tiles. */
static void add_results(launch *l)
{
    int out;
    for (out = OUT_O; out <= OUT_STATE_O; out++)
        add_memory(l, l->s->output[out].memory);
    add_memory(l, l->s->tiles);
}

static void run_tiled(session *s)
{
    const size_t local[3] = { CL_TX, CL_TY, 1 }, row_local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { (size_t)s->pl.groups * CL_TX, CL_TY, 1 };
    const int64_t rows = s->pl.tiles * s->pr->p.num_heads_kv * s->pl.forward.rows;
    const size_t row_global[3] = { (size_t)rows * CL_ROW_GROUP, 1, 1 };
    const cl_handle pending =
        new_buffer(s, CL_MEM_READ_WRITE, s->pl.pending_bytes, NULL, "memory for states");
    const cl_handle parts =
        new_buffer(s, CL_MEM_READ_WRITE, s->pl.parts_bytes, NULL, "memory for parts");
    const variant merge = simple_variant(s, PART_ROWS);
    launch l;
    l = open_launch(s, &s->pl.forward, "forward");
    add_results(&l);
    add_memory(&l, pending);
    add_memory(&l, parts);
    close_launch(&l, "forward", global, local);
    if (s->pl.parts == 1)
        return;
    l = open_launch(s, &merge, "merge_parts");
    add_results(&l);
    add_memory(&l, parts);
    close_launch(&l, "merge_parts", row_global, row_local);
}

typedef struct naive_head {
    cl_handle matrix, factors;
    int64_t b, head;
    attn_sequence seq;
} naive_head;

static launch open_naive(session *s, const naive_head *at, const char *name)
{
    const variant v = simple_variant(s, PART_NAIVE);
    launch l = open_launch(s, &v, name);
    add_int(&l, at->b);
    add_int(&l, at->head);
    add_int(&l, at->seq.kv_len);
    add_memory(&l, at->matrix);
    if (strcmp(name, "naive_scores") != 0)
        add_memory(&l, at->factors);
    return l;
}

static size_t whole_groups(int64_t items)
{
    return (size_t)round_up(items, CL_ROW_GROUP);
}

static void run_naive_head(session *s, const naive_head *at)
{
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 }, rows = (size_t)at->seq.q_len;
    const size_t pairs[3] = { whole_groups(at->seq.kv_len), rows, 1 };
    const size_t queries[3] = { whole_groups(at->seq.q_len), 1, 1 };
    const size_t values[3] = { whole_groups(s->pr->p.head_dim_v), rows, 1 };
    launch l;
    if (at->seq.kv_len) {
        l = open_naive(s, at, "naive_scores");
        close_launch(&l, "naive_scores", pairs, local);
    }
    l = open_naive(s, at, "naive_softmax");
    add_memory(&l, s->output[OUT_LSE].memory);
    close_launch(&l, "naive_softmax", queries, local);
    if (s->pr->p.o.data) {
        l = open_naive(s, at, "naive_values");
        add_memory(&l, s->output[OUT_O].memory);
        close_launch(&l, "naive_values", values, local);
    }
}

static void run_naive(session *s)
{
    const attn_params *p = &s->pr->p;
    naive_head at;
    at.matrix = new_buffer(s, CL_MEM_READ_WRITE, matrix_bytes(s->pr), NULL, "memory for logits");
    at.factors = new_buffer(s, CL_MEM_READ_WRITE, 4 * s->pr->max_q_len, NULL, "memory for sums");
    for (at.b = 0; at.b < p->batch; at.b++) {
        at.seq = attn_sequence_of(s->pr, at.b);
        for (at.head = 0; at.head < p->num_heads_q && at.seq.q_len > 0; at.head++)
            run_naive_head(s, &at);
    }
}

static void run_logits(session *s)
{
    const attn_params *p = &s->pr->p;
    const variant v = simple_variant(s, PART_ROWS);
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { (size_t)p->logits.num_rows * CL_ROW_GROUP, (size_t)p->num_heads_q,
                               (size_t)p->batch };
    cl_handle list = NULL;
    launch l;
    if (!s->output[OUT_LOGITS].memory)
        return;
    if (p->logits.rows)
        list = new_buffer(s, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, p->logits.num_rows * 4,
                          (void *)(uintptr_t)p->logits.rows, "memory for a list of rows");
    l = open_launch(s, &v, "logits");
    add_memory(&l, list);
    add_memory(&l, s->output[OUT_LOGITS].memory);
    close_launch(&l, "logits", global, local);
}

/* What the call waits for, and what is waited for at its end. */
static void await_inputs(session *s)
{
    if (s->call->num_wait > 0 && !s->call->wait)
        has_failed(s, INVALID_VALUE, "call.wait is NULL");
    if (!s->error && s->call->num_wait > 0)
        has_failed(s,
                   s->gpu->cl.clEnqueueBarrierWithWaitList(s->queue, (cl_uint)s->call->num_wait,
                                                           s->call->wait, NULL),
                   "waiting for the caller's events");
}

static void finish_session(session *s)
{
    int out;
    for (out = 0; out < OUTPUT_COUNT && !s->call->event; out++)
        fetch_output(s, out);
    if (!s->error && s->call->event)
        has_failed(s, s->gpu->cl.clEnqueueMarkerWithWaitList(s->queue, 0, NULL, s->call->event),
                   "the event of the end");
    if (!s->error && s->call->event)
        has_failed(s, s->gpu->cl.clFlush(s->queue), "handing over the kernels");
    else
        has_failed(s, s->gpu->cl.clFinish(s->queue), "the end of the kernels");
    if (s->call->times)
        read_times(s);
    while (s->buffer_count > 0)
        s->gpu->cl.clReleaseMemObject(s->buffers[--s->buffer_count]);
}

typedef struct named_output {
    const char *why;
    const void *data;
} named_output;

/* Why the host would have to fetch one of them, or NULL. */
static const char *first_on_host(const attn_opencl_call *how, const named_output *outputs,
                                 size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        if (outputs[i].data && !named_buffer(how, outputs[i].data))
            return outputs[i].why;
    return NULL;
}

static const char *host_output(const attn_opencl_call *how, const attn_params *p)
{
    const named_output outputs[] = {
        { "o is not in call.buffers", p->partial ? NULL : p->o.data },
        { "lse is not in call.buffers", p->partial ? NULL : p->lse.data },
        { "state.m is not in call.buffers", p->partial ? p->state.m : NULL },
        { "state.l is not in call.buffers", p->partial ? p->state.l : NULL },
        { "state.o is not in call.buffers", p->partial ? p->state.o : NULL },
        { "logits is not in call.buffers", p->logits.data },
    };
    return first_on_host(how, outputs, sizeof outputs / sizeof *outputs);
}

static attn_status report(const session *s)
{
    char sentence[200];
    text t = text_in(sentence, sizeof sentence);
    if (!s->error)
        return ATTN_OK;
    explain_error(&t, s->failed, s->error);
    say(s->gpu, ATTN_LOG_WARNING, sentence);
    if (s->pr->p.log)
        s->pr->p.log(s->pr->p.log_user, ATTN_LOG_WARNING, sentence);
    return ATTN_ERR_CALLBACK;
}

/* A session at the start of the workspace, or NULL: it is too small. */
static session *open_session(const attn_opencl_call *how, const attn_problem *pr,
                             const device_plan *pl, void *workspace, size_t bytes)
{
    char *base = (char *)workspace;
    session *s;
    if (!workspace || (int64_t)bytes < session_bytes(pr, pl))
        return NULL;
    base = align_memory(base);
    s = (session *)(void *)base;
    memset(s, 0, sizeof *s);
    s->gpu = how->gpu;
    s->call = how;
    s->pr = pr;
    s->pl = *pl;
    s->queue = how->queue ? how->queue : how->gpu->queue;
    if (how->times)
        memset(how->times, 0, sizeof *how->times);
    if (how->queue && !is_in_order(s->gpu, s->queue))
        has_failed(s, INVALID_QUEUE, "call.queue must take its commands in order");
    fill_numbers(s);
    return s;
}

static attn_status run_within(const device_limits *limits, const attn_opencl_call *how,
                              const attn_problem *pr, void *workspace, size_t bytes)
{
    const device_plan pl = plan_device(pr, limits);
    session *s = open_session(how, pr, &pl, workspace, bytes);
    if (!s)
        return ATTN_ERR_WORKSPACE;
    bind_inputs(s); /* copies of the host's: waiting for the caller's events must not hold them */
    bind_outputs(s);
    describe_call(s);
    await_inputs(s);
    if (runs(&pl, PART_NAIVE))
        run_naive(s);
    if (runs(&pl, PART_FORWARD))
        run_tiled(s);
    run_logits(s);
    finish_session(s);
    return report(s);
}

static attn_status run_call(const attn_backend *self, const attn_problem *pr, void *workspace,
                            size_t bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    return run_within(&limits, how, pr, workspace, bytes);
}

static attn_status call_workspace(const attn_backend *self, const attn_problem *pr, size_t *bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    const device_plan pl = plan_device(pr, &limits);
    *bytes = (size_t)session_bytes(pr, &pl);
    return ATTN_OK;
}

/* src/opencl/gradients.c - the kernels of attn_backward. */

/* Local memory of a work-group, at most: block_m and alpha are not there, dout_at is. */
static int64_t gradient_local_bytes(const device_plan *pl)
{
    return local_bytes_of(pl->forward.rows, pl->forward.columns) + 8 * pl->forward.rows;
}

/* Only what sessions need of a plan: the kernels of gradients count their tiles themselves. */
static device_plan plan_gradients(const attn_problem *pr, const device_limits *limits)
{
    const int64_t columns = max64(pr->p.head_dim, pr->p.head_dim_v);
    device_plan pl;
    memset(&pl, 0, sizeof pl);
    pl.forward.part = PART_BACKWARD;
    pl.forward.exact = limits->exact;
    pl.forward.kv_type = MIXED;
    pl.forward.pairs = has_pairs(&pr->p);
    pl.forward.columns = columns <= 64 ? 64 : 128;
    pl.forward.rows = 64;
    if (gradient_local_bytes(&pl) > (int64_t)limits->local_bytes)
        pl.forward.rows = 32;
    pl.programs = 1u << PART_BACKWARD;
    pl.slices = ceil_div(pr->p.head_dim, pl.forward.columns);
    return pl;
}

static array output_array(const attn_output *t, int64_t batch, int64_t heads, int64_t rows,
                          int64_t dim)
{
    const attn_tensor shape = as_tensor(t);
    return tensor_array(&shape, batch, heads, rows, dim);
}

static array sums_array(const attn_sum_axes *a)
{
    return make_array(a->data, 32, a->count[0], a->count[1], a->count[2], a->count[3], a->stride[0],
                      a->stride[1], a->stride[2], a->stride[3]);
}

static void bind_gradients(session *s, const attn_gradient_call *c)
{
    const attn_gradients *g = &c->g;
    const attn_params *p = &s->pr->p;
    const int64_t q_batch = p->cu_seqlens_q ? 1 : p->batch, h = p->num_heads_q;
    const int64_t kv_batch = p->cu_seqlens_kv ? 1 : p->batch, h_kv = p->num_heads_kv;
    const int64_t rows = p->seq_len_q, keys = p->seq_len_kv;
    const array o = output_array(&p->o, q_batch, h, rows, p->head_dim_v);
    const array lse = output_array(&p->lse, q_batch, h, rows, 1);
    const array dout = tensor_array(&g->dout, q_batch, h, rows, p->head_dim_v);
    const array dlse = tensor_array(&g->dlse, q_batch, h, rows, 1);
    const array dq = output_array(&g->dq, q_batch, h, rows, p->head_dim);
    const array dk = output_array(&g->dk, kv_batch, h_kv, keys, p->head_dim);
    const array dv = output_array(&g->dv, kv_batch, h_kv, keys, p->head_dim_v);
    const array dsinks = make_array(g->dsinks, 32, 1, 1, 1, h, 0, 0, 0, 1);
    const array dbias = sums_array(&c->bias);
    const array dslopes = sums_array(&c->slopes);
    bind_input(s, IN_O, N_O, 3, &o, fill_queries);
    bind_input(s, IN_LSE, N_LSE, 3, &lse, fill_queries);
    bind_input(s, IN_DOUT, N_DOUT, 3, &dout, fill_queries);
    bind_input(s, IN_DLSE, N_DLSE, 3, &dlse, fill_queries);
    bind_output(s, OUT_DQ, N_DQ, 3, &dq, scatter_rows);
    bind_output(s, OUT_DK, N_DK, 3, &dk, scatter_keys);
    bind_output(s, OUT_DV, N_DV, 3, &dv, scatter_keys);
    bind_output(s, OUT_DSINKS, N_DSINKS, 0, &dsinks, scatter_all);
    bind_output(s, OUT_DBIAS, N_DBIAS, 4, &dbias, scatter_all);
    bind_output(s, OUT_DSLOPES, N_DSLOPES, 4, &dslopes, scatter_all);
}

static void fill_gradient_numbers(session *s, const attn_gradients *g)
{
    const attn_params *p = &s->pr->p;
    const int columns = s->pl.forward.columns;
    int64_t *n = s->numbers;
    n[N_FLAGS] |= g->dlse.data ? F_DLSE : 0;
    n[N_DOUT_TYPE] = g->dout.dtype;
    n[N_DQ_TYPE] = g->dq.dtype;
    n[N_DK_TYPE] = g->dk.dtype;
    n[N_DV_TYPE] = g->dv.dtype;
    n[N_KEY_SLICES] = g->dk.data ? ceil_div(p->head_dim, columns) : 0;
    n[N_VALUE_SLICES] = g->dv.data ? ceil_div(p->head_dim_v, columns) : 0;
}

static void launch_statistics(session *s, cl_handle stats)
{
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { whole_groups(s->pr->max_q_len), (size_t)s->pr->p.num_heads_q,
                               (size_t)s->pr->p.batch };
    launch l = open_launch(s, &s->pl.forward, "statistics");
    int in;
    for (in = IN_O; in <= IN_DLSE; in++)
        add_memory(&l, s->input[in]);
    add_memory(&l, stats);
    close_launch(&l, "statistics", global, local);
}

/* Kernel `name`, a group for each of the tiles and slices, kv heads and sequences. Results go to
 * outputs first..last. */
static void launch_gradients(session *s, const char *name, int64_t tiles, int64_t slices,
                             cl_handle stats, int first, int last)
{
    const size_t local[3] = { CL_TX, CL_TY, 1 };
    const size_t global[3] = { (size_t)(tiles * slices) * CL_TX,
                               (size_t)s->pr->p.num_heads_kv * CL_TY, (size_t)s->pr->p.batch };
    launch l;
    if (tiles * slices == 0)
        return;
    l = open_launch(s, &s->pl.forward, name);
    add_memory(&l, s->input[IN_DOUT]);
    add_memory(&l, stats);
    for (; first <= last; first++)
        add_memory(&l, s->output[first].memory);
    close_launch(&l, name, global, local);
}

static void launch_sinks(session *s, cl_handle stats)
{
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { whole_groups(s->pr->p.num_heads_q), 1, 1 };
    launch l = open_launch(s, &s->pl.forward, "sink_gradients");
    add_memory(&l, stats);
    add_memory(&l, s->output[OUT_DSINKS].memory);
    add_int(&l, s->pr->p.batch);
    close_launch(&l, "sink_gradients", global, local);
}

/* A sum over pairs: dbias or dslopes. */
typedef struct pair_sum {
    const attn_sum_axes *axes;
    int number; /* its first number */
    cl_handle out, stats, row_sums;
} pair_sum;

static void launch_sum_ends(session *s, const pair_sum *sum, int first)
{
    const int64_t *n = sum->axes->count;
    const size_t local[3] = { 1, 1, 1 };
    const size_t global[3] = { (size_t)n[3], (size_t)n[2], (size_t)(n[0] * n[1]) };
    launch l;
    if (n[0] * n[1] * n[2] * n[3] == 0)
        return;
    l = open_launch(s, &s->pl.forward, "sum_ends");
    add_memory(&l, sum->out);
    add_int(&l, sum->number);
    add_int(&l, n[1]);
    add_int(&l, first);
    close_launch(&l, "sum_ends", global, local);
}

/* By tiles of the rows or keys of a head. */
static void launch_tiles_of_sum(session *s, const pair_sum *sum, const char *name, int64_t tiles,
                                int64_t b, int64_t head)
{
    const size_t local[3] = { CL_TX, CL_TY, 1 };
    const size_t global[3] = { (size_t)tiles * CL_TX, CL_TY, 1 };
    launch l = open_launch(s, &s->pl.forward, name);
    add_memory(&l, s->input[IN_DOUT]);
    add_memory(&l, sum->stats);
    add_memory(&l, sum->out);
    add_memory(&l, sum->row_sums);
    add_int(&l, sum->number);
    add_int(&l, b);
    add_int(&l, head);
    add_int(&l, sum->axes->kept[ATTN_AXIS_ROW]);
    add_int(&l, sum->axes->kept[ATTN_AXIS_KEY]);
    close_launch(&l, name, global, local);
}

static void launch_row_sums(session *s, const pair_sum *sum, int64_t b, int64_t head)
{
    const size_t one[3] = { 1, 1, 1 };
    launch l = open_launch(s, &s->pl.forward, "add_row_sums");
    add_memory(&l, sum->row_sums);
    add_memory(&l, sum->out);
    add_int(&l, sum->number);
    add_int(&l, b);
    add_int(&l, head);
    close_launch(&l, "add_row_sums", one, one);
}

/* Heads and sequences one after the other, as docs/canon.md has it. */
static void run_sum(session *s, const pair_sum *sum)
{
    const attn_params *p = &s->pr->p;
    const int keeps_rows = sum->axes->kept[ATTN_AXIS_ROW],
              keeps_keys = sum->axes->kept[ATTN_AXIS_KEY];
    int64_t b, head;
    launch_sum_ends(s, sum, 1);
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (head = 0; head < p->num_heads_q && seq.q_len > 0 && seq.kv_len > 0; head++) {
            if (keeps_keys && !keeps_rows)
                launch_tiles_of_sum(s, sum, "add_columns", ceil_div(seq.kv_len, CL_BN), b, head);
            else
                launch_tiles_of_sum(s, sum, "add_rows", ceil_div(seq.q_len, s->pl.forward.rows), b,
                                    head);
            if (!keeps_rows && !keeps_keys)
                launch_row_sums(s, sum, b, head);
        }
    }
    launch_sum_ends(s, sum, 0);
}

static void run_sums(session *s, const attn_gradient_call *c, cl_handle stats)
{
    const cl_handle row_sums =
        new_buffer(s, CL_MEM_READ_WRITE, 4 * s->pr->max_q_len, NULL, "memory for sums of rows");
    const pair_sum sums[] = {
        { &c->bias, N_DBIAS, s->output[OUT_DBIAS].memory, stats, row_sums },
        { &c->slopes, N_DSLOPES, s->output[OUT_DSLOPES].memory, stats, row_sums },
    };
    size_t i;
    for (i = 0; i < sizeof sums / sizeof *sums; i++)
        if (sums[i].axes->data)
            run_sum(s, &sums[i]);
}

static void run_gradient_kernels(session *s, const attn_gradient_call *c)
{
    const attn_gradients *g = &c->g;
    const attn_problem *pr = s->pr;
    const cl_handle stats =
        new_buffer(s, CL_MEM_READ_WRITE, 12 * all_rows(&pr->p), NULL, "memory for statistics");
    if (pr->max_q_len > 0)
        launch_statistics(s, stats);
    if (g->dq.data)
        launch_gradients(s, "query_gradients",
                         ceil_div(pr->max_q_len * pr->group, s->pl.forward.rows), s->pl.slices,
                         stats, OUT_DQ, OUT_DQ);
    launch_gradients(s, "key_gradients", ceil_div(pr->max_kv_len, CL_BN),
                     s->numbers[N_KEY_SLICES] + s->numbers[N_VALUE_SLICES], stats, OUT_DK, OUT_DV);
    if (g->dsinks)
        launch_sinks(s, stats);
    if (g->dbias.data || g->dslopes)
        run_sums(s, c, stats);
}

static attn_status run_gradients_within(const device_limits *limits, const attn_opencl_call *how,
                                        const attn_problem *pr, const attn_gradient_call *g,
                                        void *workspace, size_t bytes)
{
    const device_plan pl = plan_gradients(pr, limits);
    session *s = open_session(how, pr, &pl, workspace, bytes);
    if (!s)
        return ATTN_ERR_WORKSPACE;
    fill_gradient_numbers(s, &g->g);
    bind_inputs(s);
    bind_gradients(s, g);
    describe_call(s);
    await_inputs(s);
    run_gradient_kernels(s, g);
    finish_session(s);
    return report(s);
}

static attn_status run_gradients(const attn_backend *self, const attn_problem *pr,
                                 const attn_gradient_call *g, void *workspace, size_t bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    return run_gradients_within(&limits, how, pr, g, workspace, bytes);
}

static attn_status gradients_size(const attn_backend *self, const attn_problem *pr,
                                  const attn_gradient_call *g, size_t *bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    const device_plan pl = plan_gradients(pr, &limits);
    (void)g;
    *bytes = (size_t)session_bytes(pr, &pl);
    return ATTN_OK;
}

/* src/opencl/trials.c - first use: before a program's first call a small problem runs on it, and on the CPU.
 *
 * Where the results differ, because of a compiler's or a driver's bug, no call uses the program. The
 * problem and all that it needs lie in memory of the driver: the caller has given none yet.
 */

enum verdict { UNTRIED, TRUSTED, DROPPED };

enum {
    TRIAL_HEADS = 2,
    TRIAL_ROWS = 20,
    TRIAL_FEW_ROWS = 7,
    TRIAL_KEYS = 120,
    TRIAL_DIM = 24,
    TRIAL_COLUMNS = 256,
    TRIAL_LOGITS = 3,
    TRIAL_WORKSPACE = 1 << 20
};
#define TRIAL_BASE 1000   /* number of the first key: chunks and parts end among so few keys */
#define TRIAL_BOUND 1e-4f /* of results up to 1 and logits up to 100, in the device's own order */

typedef struct trial_results {
    float o[TRIAL_HEADS * TRIAL_ROWS * TRIAL_COLUMNS], lse[TRIAL_HEADS * TRIAL_ROWS];
    float logits[TRIAL_HEADS * TRIAL_LOGITS * TRIAL_KEYS];
    float dq[TRIAL_HEADS * TRIAL_ROWS * TRIAL_DIM];
    float dk[TRIAL_KEYS * TRIAL_DIM], dv[TRIAL_KEYS * TRIAL_COLUMNS];
    float dbias[TRIAL_KEYS], dsinks[TRIAL_HEADS], dslopes[TRIAL_HEADS];
} trial_results;

/* What the device has a copy of. */
typedef struct trial_arrays {
    float q[TRIAL_HEADS * TRIAL_ROWS * TRIAL_DIM];
    float k[TRIAL_KEYS * TRIAL_DIM], v[TRIAL_KEYS * TRIAL_COLUMNS];
    float dout[TRIAL_HEADS * TRIAL_ROWS * TRIAL_COLUMNS], bias[TRIAL_KEYS];
    float slopes[TRIAL_HEADS], sinks[TRIAL_HEADS];
    trial_results out;
} trial_arrays;

typedef struct trial {
    attn_opencl_call how;
    attn_opencl_buffer named;
    attn_backend backend;
    device_limits limits;
    attn_params p;
    int gradients; /* nonzero: a trial of attn_backward */
    attn_gradients g;
    int64_t key_base;
    trial_arrays arrays;
    trial_results device;
} trial;

/* n numbers of -most..most, as they are stored. */
static void fill_random(void *to, int dtype, int64_t n, float most, uint32_t seed)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const float x = (float)(int32_t)mixed(seed + (uint32_t)i) * (most / 2147483648.0f);
        if (dtype == ATTN_F32)
            ((float *)to)[i] = x;
        else
            ((uint16_t *)to)[i] = dtype == ATTN_F16 ? f16_from_f32(x) : bf16_from_f32(x);
    }
}

/* A problem whose plan is the variant: sizes are no multiples of its tiles'. */
static void describe_trial(attn_params *p, const variant *v)
{
    p->batch = p->num_heads_kv = p->num_workers = 1;
    p->num_heads_q = TRIAL_HEADS;
    p->seq_len_q = v->rows == 16 ? TRIAL_FEW_ROWS : TRIAL_ROWS;
    p->seq_len_kv = TRIAL_KEYS;
    p->head_dim = TRIAL_DIM;
    p->head_dim_v = v->columns - 4;
    p->k.dtype = v->kv_type == MIXED ? ATTN_F16 : v->kv_type;
    p->v.dtype = v->kv_type == MIXED ? ATTN_F32 : v->kv_type;
    p->causal = 1;
    p->window = ATTN_WINDOW;
    p->window_left = TRIAL_KEYS - 25; /* some rows see all of the first chunk */
    p->window_right = -1;
    if (v->pairs) {
        p->softcap = 5;
        p->dropout_p = 0.25f;
    }
}

static void fill_problem(trial *t, const variant *v, int part)
{
    trial_arrays *a = &t->arrays;
    attn_params *p = &t->p;
    describe_trial(p, v);
    fill_random(a->q, ATTN_F32, COUNT_OF(a->q), 32, 1);
    fill_random(a->k, p->k.dtype, COUNT_OF(a->k) / 2, 1, 2);
    fill_random((char *)a->k + COUNT_OF(a->k) / 2 * bytes_of(p->k.dtype), p->k.dtype,
                COUNT_OF(a->k) / 2, 3, 3); /* so that maxima rise */
    fill_random(a->v, p->v.dtype, COUNT_OF(a->v), 1, 4);
    fill_random(a->slopes, ATTN_F32, TRIAL_HEADS, 1, 5);
    t->key_base = TRIAL_BASE;
    p->key_base = &t->key_base;
    p->q.data = a->q;
    p->k.data = a->k;
    p->v.data = a->v;
    p->o.data = a->out.o;
    p->lse.data = a->out.lse;
    p->alibi_slopes = v->pairs ? a->slopes : NULL;
    p->impl = part == PART_NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    if (part == PART_ROWS) {
        p->logits.stage = ATTN_LOGITS_SOFTMAX;
        p->logits.num_rows = TRIAL_LOGITS;
        p->logits.data = a->out.logits;
    }
    t->limits.divide = part == PART_ROWS;
}

/* Gradients of all that there is a kernel for; so small that sums of them are up to 10. */
static void fill_gradients(trial *t, const variant *v)
{
    trial_arrays *a = &t->arrays;
    attn_params *p = &t->p;
    attn_gradients *g = &t->g;
    fill_random(a->dout, ATTN_F32, COUNT_OF(a->dout), 1.0f / 64, 6);
    fill_random(a->sinks, ATTN_F32, TRIAL_HEADS, 2, 7);
    fill_random(a->bias, ATTN_F32, TRIAL_KEYS, 2, 8);
    p->sinks = a->sinks;
    g->gemms = 7;
    g->dout.data = a->dout;
    g->dq.data = a->out.dq;
    g->dk.data = a->out.dk;
    g->dv.data = a->out.dv;
    g->dsinks = a->out.dsinks;
    if (!v->pairs)
        return;
    p->bias.data = a->bias;
    p->bias.stride_batch = p->bias.stride_head = p->bias.stride_q = ATTN_STRIDE_BROADCAST;
    p->bias.stride_kv = 1;
    g->dbias.data = a->out.dbias;
    g->dslopes = a->out.dslopes;
}

static int trial_supports(const attn_backend *self, const attn_problem *pr, char *why,
                          size_t why_bytes)
{
    (void)self;
    (void)pr;
    (void)why;
    (void)why_bytes;
    return 1;
}

static attn_status trial_workspace(const attn_backend *self, const attn_problem *pr, size_t *bytes)
{
    (void)self;
    (void)pr;
    *bytes = TRIAL_WORKSPACE;
    return ATTN_OK;
}

static attn_status trial_run(const attn_backend *self, const attn_problem *pr, void *workspace,
                             size_t bytes)
{
    const trial *t = (const trial *)self->user;
    return run_within(&t->limits, &t->how, pr, workspace, bytes);
}

static int trial_supports_gradients(const attn_backend *self, const attn_problem *pr,
                                    const attn_gradient_call *g, char *why, size_t why_bytes)
{
    (void)g;
    return trial_supports(self, pr, why, why_bytes);
}

static attn_status trial_gradients_size(const attn_backend *self, const attn_problem *pr,
                                        const attn_gradient_call *g, size_t *bytes)
{
    (void)g;
    return trial_workspace(self, pr, bytes);
}

static attn_status trial_run_gradients(const attn_backend *self, const attn_problem *pr,
                                       const attn_gradient_call *g, void *workspace, size_t bytes)
{
    const trial *t = (const trial *)self->user;
    return run_gradients_within(&t->limits, &t->how, pr, g, workspace, bytes);
}

/* All but the problem. */
static void place_trial(trial *t, attn_opencl *gpu, cl_handle queue)
{
    memset(t, 0, sizeof *t);
    t->how.gpu = gpu;
    t->how.queue = queue;
    t->how.num_buffers = 1;
    t->how.buffers = &t->named;
    t->named.address = &t->arrays;
    t->named.bytes = sizeof t->arrays;
    t->limits = limits_of(&gpu->info, gpu->exact);
    t->backend.abi = ATTN_KERNEL_ABI;
    t->backend.name = "opencl";
    t->backend.user = t;
    t->backend.supports = trial_supports;
    t->backend.workspace_size = trial_workspace;
    t->backend.run = trial_run;
    t->backend.supports_gradients = trial_supports_gradients;
    t->backend.gradients_size = trial_gradients_size;
    t->backend.run_gradients = trial_run_gradients;
}

/* Whether the device's results will do; by how much they are off at most. */
static int is_near(const trial *t, float *off)
{
    const float *right = t->arrays.out.o, *got = t->device.o;
    const int count = (int)(sizeof t->device / sizeof *got);
    int i, near = 1;
    *off = 0;
    for (i = 0; i < count; i++) {
        const float d = right[i] > got[i] ? right[i] - got[i] : got[i] - right[i];
        if (bits_of(right[i]) == bits_of(got[i]))
            continue;
        if (d > *off || is_nan(d))
            *off = d;
        near = near && !t->limits.exact && d <= TRIAL_BOUND;
    }
    return near;
}

static attn_status call_trial(trial *t)
{
    return t->gradients ? attn_backward(&t->p, &t->g, t + 1, TRIAL_WORKSPACE)
                        : attn_forward(&t->p, t + 1, TRIAL_WORKSPACE);
}

/* The problem on the CPU and on the device; why not, if not. */
static int run_trial(trial *t, text *why)
{
    const attn_opencl *gpu = t->how.gpu;
    cl_int error = CL_SUCCESS;
    attn_status status = ATTN_OK;
    float off = 0;
    if (t->gradients)
        status = attn_forward(&t->p, t + 1, TRIAL_WORKSPACE); /* they read o and lse */
    t->named.mem = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                          sizeof t->arrays, &t->arrays, &error);
    if (error) {
        explain_error(why, "its arrays", error);
        return 0;
    }
    if (!status)
        status = call_trial(t);
    t->p.backend = &t->backend;
    if (!status)
        status = call_trial(t);
    if (!status)
        error =
            gpu->cl.clEnqueueReadBuffer(t->how.queue, t->named.mem, 1, offsetof(trial_arrays, out),
                                        sizeof t->device, &t->device, 0, NULL, NULL);
    gpu->cl.clReleaseMemObject(t->named.mem);
    if (status || error) {
        put(why, "it did not run");
        return 0;
    }
    if (is_near(t, &off))
        return 1;
    put(why, "it is off by ");
    put_float(why, off);
    return 0;
}

/* On a queue of its own: the caller's may be waiting for the caller. UNTRIED where there is no
 * memory for it now. */
static int try_program(attn_opencl *gpu, const variant *v, int part, int gradients, text *why)
{
    const size_t bytes = sizeof(trial) + TRIAL_WORKSPACE;
    cl_int error = CL_SUCCESS;
    cl_handle memory = NULL, queue;
    trial *t = NULL;
    int found = UNTRIED;
    queue = gpu->cl.clCreateCommandQueue(gpu->context, gpu->device, 0, &error);
    if (!error)
        memory = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                        bytes, NULL, &error);
    if (!error)
        t = (trial *)gpu->cl.clEnqueueMapBuffer(queue, memory, 1, CL_MAP_READ | CL_MAP_WRITE, 0,
                                                bytes, 0, NULL, NULL, &error);
    if (error) {
        explain_error(why, "memory to try it in", error);
    } else {
        place_trial(t, gpu, queue);
        fill_problem(t, v, part);
        t->gradients = gradients;
        if (gradients)
            fill_gradients(t, v);
        found = run_trial(t, why) ? TRUSTED : DROPPED;
        gpu->cl.clEnqueueUnmapMemObject(queue, memory, t, 0, NULL, NULL);
        gpu->cl.clFinish(queue);
    }
    if (memory)
        gpu->cl.clReleaseMemObject(memory);
    if (queue)
        gpu->cl.clReleaseCommandQueue(queue);
    return found;
}

static const char *const distrusted[PART_COUNT] = {
    "kernel forward failed its first check on this device",
    "kernel merge_parts or logits failed its first check on this device",
    "kernels naive failed their first check on this device",
    NULL,
    "kernels of gradients failed their first check on this device",
};

static const char untried[] = "a kernel could not be checked before its first use";

/* Of the program of this part, and of the kernel forward where it takes part: TRUSTED may be used.
 * gradients: of attn_backward. */
static int verdict_on(attn_opencl *gpu, const variant *forward, int part, int gradients)
{
    char sentence[200 + MOST_OPTIONS], figure[120];
    text t = text_in(sentence, sizeof sentence), why = text_in(figure, sizeof figure);
    int volatile *verdict;
    int before = UNTRIED, now;
    variant v = *forward;
    v.part = part;
    verdict = &gpu->verdicts[variant_number(&v)];
    now = LOAD(verdict);
    if (now != UNTRIED)
        return now;
    now = try_program(gpu, forward, part, gradients, &why);
    if (now != UNTRIED && !STORE_FIRST(verdict, &before, now))
        return before;
    if (now == TRUSTED)
        return now;
    put(&t, now == DROPPED ? distrusted[part] : untried);
    put(&t, ": ");
    put(&t, figure);
    put(&t, "; ");
    build_options(gpu, &v, t.at, t.left);
    say(gpu, ATTN_LOG_WARNING, sentence);
    return now;
}

/* Why the call must not use its programs, or NULL. */
static const char *distrust(attn_opencl *gpu, const device_plan *pl, int gradients)
{
    int part, found;
    for (part = 0; part < PART_COUNT && !gpu->unchecked; part++) {
        found = runs(pl, part) ? verdict_on(gpu, &pl->forward, part, gradients) : TRUSTED;
        if (found != TRUSTED)
            return found == DROPPED ? distrusted[part] : untried;
    }
    return NULL;
}

/* src/opencl/refusals.c - what the device does not do. */

/* As attn_explain counts them; the pairs of a sequence that is masked are all counted, or half of
 * them if it is causal: what a mask hides is not worth a walk over it at every call. */
static double call_flops(const attn_problem *pr)
{
    const attn_params *p = &pr->p;
    double pairs = 0;
    int64_t b;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        pairs += (double)s.q_len * (double)s.kv_len;
    }
    return 2.0 * pairs * (double)p->num_heads_q * (double)(p->head_dim + p->head_dim_v) /
           (p->causal && pr->max_q_len > 1 ? 2 : 1);
}

/* Of a function that says whether a call is supported; fault NULL = it is. bound: to the device,
 * the CPU cannot take it. */
static int answer(const char *fault, int bound, char *why, size_t why_bytes)
{
    text t = text_in(why, why_bytes);
    put(&t, fault ? fault : "");
    if (fault && bound)
        put(&t, "; the CPU cannot take what waits for the device or lies there");
    return !fault ? 1 : bound ? -1 : 0;
}

static const char not_open[] = "no device is open";

static int any_named(const attn_opencl_call *how, const void *const *data, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        if (data[i] && named_buffer(how, data[i]))
            return 1;
    return 0;
}

/* Whether the caller waits for the device's event, or has arrays there. */
static int is_bound(const attn_opencl_call *how, const attn_params *p)
{
    const void *const data[] = { p->q.data,     p->k.data,      p->v.data,         p->o.data,
                                 p->lse.data,   p->bias.data,   p->bool_mask.data, p->bit_mask.data,
                                 p->q_segments, p->kv_segments, p->state.m,        p->state.l,
                                 p->state.o,    p->logits.data };
    return how->event || any_named(how, data, COUNT_OF(data));
}

static int is_gradient_bound(const attn_opencl_call *how, const attn_params *p,
                             const attn_gradients *g)
{
    const void *const data[] = { g->dout.data, g->dlse.data,  g->dq.data, g->dk.data,
                                 g->dv.data,   g->dbias.data, g->dsinks,  g->dslopes };
    return is_bound(how, p) || any_named(how, data, COUNT_OF(data));
}

/* What of the call, the object or its options stands against it, or NULL. */
static const char *refuse_call(const attn_opencl_call *how, const attn_problem *pr,
                               const device_plan *pl)
{
    const attn_opencl *gpu = how->gpu;
    const attn_params *resolved = &pr->p;
    const refusal refusals[] = {
        { gpu->exact && !gpu->info.exact, gpu->info.exact_why },
        { how->event != NULL && host_output(how, resolved), host_output(how, resolved) },
        { how->event != NULL && how->times != NULL, times_or_event },
        { !runs(pl, PART_NAIVE) && call_flops(pr) < gpu->least_flops, too_few_flops },
    };
    return first_refusal(refusals, COUNT_OF(refusals));
}

static int supports_call(const attn_backend *self, const attn_problem *pr, char *why,
                         size_t why_bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    attn_opencl *gpu = how->gpu;
    device_limits limits;
    device_plan pl;
    const char *fault;
    if (!gpu || !gpu->queue)
        return answer(not_open, is_bound(how, &pr->p), why, why_bytes);
    limits = limits_of(&gpu->info, gpu->exact);
    pl = plan_device(pr, &limits);
    fault = refuse_call(how, pr, &pl);
    if (!fault)
        fault = refuse_plan(pr, &limits, &pl);
    if (!fault)
        fault = distrust(gpu, &pl, 0);
    return answer(fault, is_bound(how, &pr->p), why, why_bytes);
}

/* The first gradient that the host would have to fetch, or NULL. */
static const char *host_gradient(const attn_opencl_call *how, const attn_gradients *g)
{
    const named_output outputs[] = {
        { "dq is not in call.buffers", g->dq.data },
        { "dk is not in call.buffers", g->dk.data },
        { "dv is not in call.buffers", g->dv.data },
        { "dsinks is not in call.buffers", g->dsinks },
        { "dbias is not in call.buffers", g->dbias.data },
        { "dslopes is not in call.buffers", g->dslopes },
    };
    return first_on_host(how, outputs, sizeof outputs / sizeof *outputs);
}

/* Likewise of gradients. */
static const char *refuse_gradients(const attn_opencl_call *how, const attn_problem *pr,
                                    const attn_gradients *g, const device_limits *limits,
                                    const device_plan *pl)
{
    const attn_opencl *gpu = how->gpu;
    const attn_params *resolved = &pr->p;
    const int64_t most = most_memory(limits);
    const char *fetched = how->event ? host_gradient(how, g) : NULL;
    const refusal refusals[] = {
        { gpu->exact && !gpu->info.exact, gpu->info.exact_why },
        { fetched != NULL, fetched },
        { how->event != NULL && how->times != NULL, times_or_event },
        { resolved->score != NULL, "score is a callback" },
        { resolved->mask != NULL, "mask is a callback" },
        { pr->impl == ATTN_IMPL_NAIVE, "naive gradients are the CPU's" },
        { 2.5 * call_flops(pr) < gpu->least_flops, too_few_flops },
        { pr->max_kv_len > MOST_KEYS, too_many_keys },
        { pr->max_q_len > MOST_KEYS / pr->group, too_many_rows },
        { 12 * all_rows(resolved) > most, "statistics of rows exceed an array of the device" },
        { gradient_local_bytes(pl) > (int64_t)limits->local_bytes, too_little_local },
    };
    return first_refusal(refusals, COUNT_OF(refusals));
}

static int supports_gradients(const attn_backend *self, const attn_problem *pr,
                              const attn_gradient_call *g, char *why, size_t why_bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    attn_opencl *gpu = how->gpu;
    const int bound = is_gradient_bound(how, &pr->p, &g->g);
    device_limits limits;
    device_plan pl;
    const char *fault;
    if (!gpu || !gpu->queue)
        return answer(not_open, bound, why, why_bytes);
    limits = limits_of(&gpu->info, gpu->exact);
    pl = plan_gradients(pr, &limits);
    fault = refuse_gradients(how, pr, &g->g, &limits, &pl);
    if (!fault)
        fault = distrust(gpu, &pl, 1);
    return answer(fault, bound, why, why_bytes);
}

/* src/opencl/opencl.c - attention on OpenCL devices: the public functions. */

ATTN_API size_t attn_opencl_size(void)
{
    return sizeof(attn_opencl);
}

ATTN_API attn_status attn_opencl_open(attn_opencl *gpu, const attn_opencl_options *options)
{
    static const attn_opencl_options usual;
    const attn_opencl_options *o = options ? options : &usual;
    attn_status status;
    text why;
    if (!gpu)
        return ATTN_ERR_ARG;
    memset(gpu, 0, sizeof *gpu);
    why = text_in(gpu->why, sizeof gpu->why);
    gpu->exact = o->exact != 0;
    gpu->least_flops = o->least_flops;
    gpu->unchecked = o->unchecked;
    gpu->log = o->log;
    gpu->log_user = o->log_user;
    gpu->plain.gpu = gpu;
    if (o->build_options && strlen(o->build_options) >= sizeof gpu->build_options)
        return bad(&why, ATTN_ERR_ARG, "build_options has more than 99 letters");
    if (o->build_options)
        memcpy(gpu->build_options, o->build_options, strlen(o->build_options) + 1);
    if (!load_library(gpu, o->library, &why))
        return ATTN_ERR_UNSUPPORTED;
    status = open_queue(gpu, o, &why);
    if (status)
        return status;
    describe_device(gpu);
    if (o->binaries)
        take_programs(gpu, o->binaries, o->binaries_bytes);
    if (gpu->exact)
        check_device(gpu);
    put(&why, "ok");
    return ATTN_OK;
}

ATTN_API int attn_opencl_list(attn_opencl *gpu, const attn_opencl_options *options,
                              attn_opencl_device *devices, int most)
{
    static const attn_opencl_options usual;
    const attn_opencl_options *o = options ? options : &usual;
    device_walk walk;
    text why;
    if (!gpu || most < 0 || (most > 0 && !devices))
        return 0;
    memset(gpu, 0, sizeof *gpu);
    memset(&walk, 0, sizeof walk);
    why = text_in(gpu->why, sizeof gpu->why);
    walk.list = devices;
    walk.room = most;
    if (load_library(gpu, o->library, &why))
        walk_devices(gpu, &walk, &why);
    if (walk.best)
        put(&why, "ok");
    if (gpu->library)
        close_library(gpu->library);
    gpu->library = NULL;
    return (int)walk.devices;
}

ATTN_API void attn_opencl_close(attn_opencl *gpu)
{
    int i;
    if (!gpu)
        return;
    for (i = 0; i < VARIANTS; i++)
        if (gpu->programs[i])
            gpu->cl.clReleaseProgram(gpu->programs[i]);
    if (gpu->queue)
        gpu->cl.clReleaseCommandQueue(gpu->queue);
    if (gpu->context)
        gpu->cl.clReleaseContext(gpu->context);
    if (gpu->library)
        close_library(gpu->library);
    memset(gpu, 0, sizeof *gpu);
}

ATTN_API const char *attn_opencl_why(const attn_opencl *gpu)
{
    return gpu ? gpu->why : "no memory for the object: gpu is NULL";
}

ATTN_API const char *attn_opencl_build_log(const attn_opencl *gpu)
{
    return gpu ? gpu->build_log : "";
}

ATTN_API attn_status attn_opencl_info_get(const attn_opencl *gpu, attn_opencl_info *info)
{
    int i;
    if (!gpu || !info || !gpu->queue)
        return ATTN_ERR_ARG;
    *info = gpu->info;
    info->built = LOAD(&gpu->built);
    info->taken = LOAD(&gpu->taken);
    info->dropped = 0;
    for (i = 0; i < VARIANTS; i++)
        info->dropped += LOAD(&gpu->verdicts[i]) == DROPPED;
    return ATTN_OK;
}

ATTN_API size_t attn_opencl_binaries_get(const attn_opencl *gpu, void *to, size_t bytes)
{
    if (!gpu || !gpu->queue)
        return 0;
    return keep_programs(gpu, (unsigned char *)to, to ? bytes : 0);
}

ATTN_API attn_status attn_opencl_binaries_set(attn_opencl *gpu, const void *from, size_t bytes)
{
    if (!gpu || !gpu->queue || !from)
        return ATTN_ERR_ARG;
    return take_programs(gpu, from, bytes);
}

ATTN_API attn_backend attn_opencl_backend(attn_opencl *gpu, attn_opencl_call *how)
{
    static const attn_opencl_call nothing; /* of no object */
    attn_backend backend;
    memset(&backend, 0, sizeof backend);
    if (how)
        how->gpu = gpu;
    backend.abi = ATTN_KERNEL_ABI;
    backend.name = "opencl";
    backend.user = how ? how : gpu ? &gpu->plain : (void *)(uintptr_t)&nothing;
    backend.supports = supports_call;
    backend.workspace_size = call_workspace;
    backend.run = run_call;
    backend.supports_gradients = supports_gradients;
    backend.gradients_size = gradients_size;
    backend.run_gradients = run_gradients;
    return backend;
}

static void show_plan(const attn_problem *pr, const device_plan *pl, attn_opencl_plan_info *to)
{
    to->forward = runs(pl, PART_FORWARD);
    to->merge_parts = to->forward && pl->parts > 1;
    to->naive = runs(pl, PART_NAIVE);
    to->logits = pr->p.logits.data != NULL;
    to->device_bytes = to->naive ? (size_t)(matrix_bytes(pr) + 4 * pr->max_q_len) : 0;
    if (!to->forward)
        return;
    to->tile_rows = pl->forward.rows;
    to->tile_columns = pl->forward.columns;
    to->tiles = pl->tiles;
    to->slices = pl->slices;
    to->parts = pl->parts;
    to->part_keys = pl->parts > 1 ? pl->part_keys : 0;
    to->items = pl->items;
    to->groups = pl->groups;
    to->local_bytes = (size_t)local_bytes_of(pl->forward.rows, pl->forward.columns);
    to->device_bytes = (size_t)(pl->pending_bytes + pl->parts_bytes);
}

ATTN_API attn_status attn_opencl_plan(const attn_opencl_info *info, const attn_params *p,
                                      attn_opencl_plan_info *to)
{
    device_limits limits;
    device_plan pl;
    attn_problem pr;
    attn_status status;
    const char *fault;
    text why;
    if (!to)
        return ATTN_ERR_ARG;
    memset(to, 0, sizeof *to);
    why = text_in(to->why, sizeof to->why);
    if (!info || !p)
        return bad(&why, ATTN_ERR_ARG, "info and p must not be NULL");
    if (info->compute_units < 1)
        return bad(&why, ATTN_ERR_ARG, "info.compute_units must be at least 1");
    status = attn_problem_of(p, &pr, to->why, sizeof to->why);
    if (status)
        return status;
    limits = limits_of(info, info->exact);
    pl = plan_device(&pr, &limits);
    fault = refuse_plan(&pr, &limits, &pl);
    put(&why, fault ? fault : "ok");
    to->runs = fault == NULL;
    if (to->runs)
        show_plan(&pr, &pl, to);
    return ATTN_OK;
}
