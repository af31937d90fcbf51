/* prove_fma.c - every form of a * b + c that the library computes without an FMA instruction, next to
 * that instruction.
 * SPDX-License-Identifier: MIT
 *
 * usage: prove_fma [COUNT]       (make prove-fma COUNT=...)
 *
 * COUNT inputs are drawn at random, 10^9 by default. With that many the other sets of inputs, which are
 * built around what rounding twice gets wrong, are complete; with fewer the large ones are thinned out.
 * The last column is a form without the repair: a set that does not show it wrong is too easy, and fails.
 *
 * Where there is no instruction (WebAssembly), the form by integers stands for it: a run with the
 * instruction proves that form for the same inputs. tests/fma.c has a reference of its own.
 */
#define FMA_BY_BINARY64 /* both */
#define FMA_BY_INTEGERS
#include "../src/fma.c"
#include "../attn_simd_sse2.c"
#if defined __wasm_simd128__
#include "../attn_simd_wasm.c"
#endif

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 4096, ALL = 1000000000 };

static struct input {
    float a[BLOCK], b[BLOCK], c[BLOCK];
} in;
static float exact[BLOCK], result[BLOCK];

/* ---- forms: each computes `result` of `in` */

static void by_binary64(void)
{
    for (int i = 0; i < BLOCK; i++)
        result[i] = fma_binary64(in.a[i], in.b[i], in.c[i]);
}

static void by_integers(void)
{
    for (int i = 0; i < BLOCK; i++)
        result[i] = fma_integer(in.a[i], in.b[i], in.c[i]);
}

#if defined __SSE2__
static void by_sse2(void)
{
    for (int i = 0; i < BLOCK; i += 4)
        _mm_storeu_ps(result + i, sse2_fma(0, _mm_loadu_ps(in.a + i), _mm_loadu_ps(in.b + i),
                                           _mm_loadu_ps(in.c + i)));
}

static void by_sse2_sparse(void)
{
    for (int i = 0; i < BLOCK; i += 4)
        _mm_storeu_ps(result + i, sse2_fma(1, _mm_loadu_ps(in.a + i), _mm_loadu_ps(in.b + i),
                                           _mm_loadu_ps(in.c + i)));
}
#endif

#if defined __wasm_simd128__
static void by_wasm(void)
{
    for (int i = 0; i < BLOCK; i += 4)
        v_store(result + i, wasm_fma(0, v_load(in.a + i), v_load(in.b + i), v_load(in.c + i)));
}

static void by_wasm_sparse(void)
{
    for (int i = 0; i < BLOCK; i += 4)
        v_store(result + i, wasm_fma(1, v_load(in.a + i), v_load(in.b + i), v_load(in.c + i)));
}

/* Two lanes of a step of chains at once; a NaN where the sum kept more than binary32 has. */
static v128_t step_of_chains(v128_t a, v128_t b, v128_t c)
{
    v128_t midway = v_zero(), sum = wide_fma(a, b, c, &midway), narrow;
    if (vm_any(midway))
        sum = wide_exact(a, b, c);
    narrow = wasm_f32x4_demote_f64x2_zero(sum);
    return wasm_v128_or(narrow, wasm_i64x2_ne(LOW(narrow), sum));
}

/* The inputs that chains at once take, and `exact` for others. */
static void by_wasm_chains(void)
{
    for (int i = 0; i < BLOCK; i += 4) {
        const v128_t a = v_load(in.a + i), b = v_load(in.b + i), c = v_load(in.c + i);
        const range_wasm none = { INTS(-1), v_zero() };
        v128_t y = v_load(exact + i);
        if (is_moderate(range_with(range_with(none, a), b)) &&
            !vm_any(wasm_u32x4_gt(v_magnitude(c), MOST_BEGUN)))
            y = wasm_i64x2_shuffle(step_of_chains(LOW(a), LOW(b), LOW(c)),
                                   step_of_chains(HIGH(a), HIGH(b), HIGH(c)), 0, 2);
        v_store(result + i, y);
    }
}
#endif

static void twice(void)
{
    for (int i = 0; i < BLOCK; i++) {
        const double product = (double)in.a[i] * (double)in.b[i];
        const double sum = product + (double)in.c[i];
        result[i] = (float)sum;
    }
}

static const struct form {
    const char *name;
    void (*run)(void);
} forms[] = {
    { "binary64", by_binary64 },
    { "integers", by_integers },
#if defined __SSE2__
    { "sse2", by_sse2 },
    { "sse2 sparse", by_sse2_sparse },
#endif
#if defined __wasm_simd128__
    { "wasm", by_wasm },
    { "wasm sparse", by_wasm_sparse },
    { "wasm chains", by_wasm_chains },
#endif
    { "rounded twice", twice }, /* the last one, which must be wrong */
};
enum { FORMS = sizeof forms / sizeof *forms, UNREPAIRED = FORMS - 1 };

/* ---- the reference */

#if FMA_BASE || defined FMA_SECOND_BUILD
FMA_TARGET static void by_instruction(void)
{
    for (int i = 0; i < BLOCK; i++)
        exact[i] = fma_hard(in.a[i], in.b[i], in.c[i]);
}
#else
#define by_instruction() ((void)0)
#endif

static int has_instruction(void)
{
#if defined FMA_SECOND_BUILD
    return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
#else
    return FMA_BASE;
#endif
}

static void compute_exact(void)
{
    if (has_instruction()) {
        by_instruction();
    } else {
        by_integers();
        memcpy(exact, result, sizeof exact);
    }
}

/* ---- inputs: input n of a set is a function of n alone */

static void put(int i, uint32_t a, uint32_t b, uint32_t c)
{
    in.a[i] = float_of(a);
    in.b[i] = float_of(b);
    in.c[i] = float_of(c);
}

/* splitmix64 */
static uint64_t hash(uint64_t n)
{
    uint64_t z = (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The next digit of n in a mixed radix. */
static uint32_t digit(uint64_t *n, uint32_t radix)
{
    const uint32_t d = (uint32_t)(*n % radix);
    *n /= radix;
    return d;
}

static uint32_t signs(uint64_t *n)
{
    return digit(n, 2) << 31;
}

#define SPECIAL 37u
static const uint32_t special_bits[SPECIAL] = {
    0,          1,          2,          3,          0x00400000, 0x007fffff, 0x00800000, 0x00800001,
    0x00ffffff, 0x01000000, 0x0c000000, 0x1fffffff, 0x20000000, 0x20000001, 0x33000000, 0x33800000,
    0x33800001, 0x3f000000, 0x3f7fffff, 0x3f800000, 0x3f800001, 0x3fffffff, 0x40000000, 0x4b000000,
    0x4b7fffff, 0x4b800000, 0x5f000000, 0x5f7fffff, 0x5f800000, 0x73000000, 0x7effffff, 0x7f000000,
    0x7f7ffffe, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fc00000
};

static uint32_t special_of(uint64_t *n)
{
    return special_bits[digit(n, SPECIAL)] | signs(n);
}

static void special(int i, uint64_t n)
{
    const uint32_t a = special_of(&n), b = special_of(&n), c = special_of(&n);
    put(i, a, b, c);
}

/* Every exponent of the product with every exponent of c; a is subnormal or as large as b. */
static void exponents(int i, uint64_t n)
{
    static const uint32_t significands[8] = { 0,        1,        0x000800, 0x001000,
                                              0x400000, 0x3fffff, 0x7ffffe, 0x7fffff };
    const uint32_t a = significands[digit(&n, 8)], b = significands[digit(&n, 8)];
    const uint32_t c = significands[digit(&n, 8)], sign = signs(&n), even = digit(&n, 2);
    const uint32_t ec = digit(&n, 255), sum = digit(&n, 509);
    const uint32_t ea = even ? sum / 2 : sum > 254 ? sum - 254 : 0;
    put(i, ea << 23 | a, (sum - ea) << 23 | b, (ec << 23 | c) ^ sign);
}

/* Every pair of significands whose product is midway between two floats, and c far below it. The zeros at
 * the end of both are 22 together if the product is below 2, else 23. */
#define BELOW ((uint64_t)23 << 22)
#define ABOVE ((uint64_t)22 << 21)
static void midways(int i, uint64_t n)
{
    const uint32_t random = (uint32_t)hash(n), ec = random % 100 << 23, sign = signs(&n);
    const uint32_t above = n >= BELOW;
    const uint64_t pair = above ? n - BELOW : n;
    const uint32_t zeros = above ? 1 + (uint32_t)(pair >> 21) : (uint32_t)(pair >> 22);
    const uint32_t w = (uint32_t)pair & ((1u << (22 - above)) - 1), split = zeros - above;
    const uint32_t a = (2 * (w >> split) + 1) << zeros;
    const uint32_t b = (2 * (w & ((1u << split) - 1)) + 1) << (22 + above - zeros);
    put(i, 127u << 23 | a, 127u << 23 | b, sign | ec | random >> 9);
}

/* Every a, with both b that bring the product next to 1, 3, 5 ... 15 halves of the last place of c, which is
 * normal or not. */
static void halves(int i, uint64_t n)
{
    const uint32_t sign = signs(&n), normal = digit(&n, 2), up = digit(&n, 2);
    const uint64_t h = 2 * digit(&n, 8) + 1;
    const uint32_t a = (uint32_t)n, random = (uint32_t)hash(n);
    uint64_t b = (h << 52) / (0x800000u | a);
    uint32_t k = 52; /* a * b is next to h << k */
    for (; b >= 0x1000000u; b >>= 1)
        k--;
    put(i, (normal ? 127u : 52u) << 23 | a, ((normal ? 126u : 97 - k) << 23) + (uint32_t)b + up,
        sign | (normal ? k + 105 : random & 1) << 23 | random >> 9);
}

/* Every odd a, with b such that the product is up to 2^16 of its last places off a midway, and c that makes up
 * for all of that, or all but next to nothing. */
static void differences(int i, uint64_t n)
{
    const uint32_t sign = signs(&n), minus = signs(&n), off = digit(&n, 3), wide = digit(&n, 2);
    const uint32_t a = 0x800001u + 2 * (uint32_t)n, r = 1 + (uint32_t)(hash(n) & 0xffff);
    uint32_t inverse = a, b;
    for (int step = 0; step < 5; step++)
        inverse *= 2 - a * inverse;
    b = inverse * ((1u << (22 + wide)) + (minus ? 0 - r : r));
    put(i, 150u << 23 | (a & 0x7fffff), sign | 150u << 23 | (b & 0x7fffff),
        (sign ^ minus ^ 0x80000000u) | (bits_of((float)r) + off - 1));
}

/* Sign and significand at random. */
static uint32_t with_exponent(uint64_t random, int e)
{
    e = e < 0 ? 0 : e > 254 ? 254 : e;
    return ((uint32_t)random & 0x807fffffu) | (uint32_t)e << 23;
}

/* Few bits: products and sums land on midways and next to them. */
static uint32_t few_bits(uint64_t random, int e)
{
    const uint32_t m = 0x00800000u >> (random >> 40 & 31), k = 0x00800000u >> (random >> 45 & 31);
    const uint32_t u = (random & 1) != 0 ? m | k : (random & 2) != 0 ? 0u - m : m;
    return with_exponent((u & 0x007fffffu) | (uint32_t)(random >> 8 & 1) << 31, e);
}

/* Many bits or few. */
static uint32_t some_bits(uint64_t random, int e)
{
    return (random >> 62 & 1) != 0 ? few_bits(random, e) : with_exponent(random, e);
}

static void any(int i, uint64_t p, uint64_t q, uint64_t r)
{
    put(i, (uint32_t)p, (uint32_t)q, (uint32_t)r);
}

/* c within 60 binades of the product. */
static void close_by(int i, uint64_t p, uint64_t q, uint64_t r)
{
    const int ea = 1 + (int)(p >> 32 & 255), eb = 1 + (int)(q >> 32 & 255);
    const int ec = ea + eb - 127 + (int)((r >> 32) % 121) - 60;
    put(i, some_bits(p, ea), some_bits(q, eb), some_bits(r, ec));
}

static void cancelling(int i, uint64_t p, uint64_t q, uint64_t r)
{
    const uint32_t a = with_exponent(p, 64 + (int)(p >> 32 & 127));
    const uint32_t b = with_exponent(q, 111 + (int)(q >> 32 & 31));
    const float product = float_of(a) * float_of(b);
    put(i, a, b, (bits_of(product) ^ 0x80000000u) + (uint32_t)(r & 7) - 3u);
}

static void subnormal(int i, uint64_t p, uint64_t q, uint64_t r)
{
    const int ea = 20 + (int)((p >> 32) % 90), eb = 97 - ea + (int)((q >> 32) % 60);
    put(i, some_bits(p, ea), some_bits(q, eb), with_exponent(r, (int)((r >> 32) % 27)));
}

static void overflowing(int i, uint64_t p, uint64_t q, uint64_t r)
{
    const int ea = 127 + (int)((p >> 32) % 120), eb = 379 - ea + (int)((q >> 32) % 5);
    put(i, some_bits(p | 0x7ff000u, ea), with_exponent(q, eb),
        with_exponent(r, 226 + (int)((r >> 32) % 29)));
}

/* A product of half a last place of c, or off it by next to nothing. */
static void half_of_c(int i, uint64_t p, uint64_t q, uint64_t r)
{
    const int ec = 40 + (int)((r >> 32) % 180);
    const uint32_t b = with_exponent(q & 0x80000000u, ec - 24) - (uint32_t)(q & 3);
    put(i, 127u << 23 | (uint32_t)(p & 3), b, with_exponent(r, ec));
}

/* A product of 25 bits, and a tiny c. */
static void tiny_c(int i, uint64_t p, uint64_t q, uint64_t r)
{
    put(i, with_exponent(p | 1u, 1 + (int)(p >> 32 & 255)), 0x3fc00000u ^ (uint32_t)(q >> 63) << 31,
        with_exponent(r & 0x80000003u, (r >> 40 & 1) != 0 ? 0 : (int)(r >> 41 & 255)));
}

/* Factors as chains at once take them. */
static void moderate(int i, uint64_t p, uint64_t q, uint64_t r)
{
    const int ea = 77 + (int)((p >> 32) % 90), eb = 77 + (int)((q >> 32) % 90);
    const int ec = ea + eb - 127 + (int)((r >> 32) % 61) - 30;
    put(i, some_bits(p, ea), some_bits(q, eb), some_bits(r, ec));
}

/* Neighbours are of one kind, since vector forms look at four together. */
static void random_numbers(int i, uint64_t n)
{
    static void (*const kinds[])(int, uint64_t, uint64_t,
                                 uint64_t) = { any,         close_by,  cancelling, subnormal,
                                               overflowing, half_of_c, tiny_c,     moderate };
    kinds[hash(n / 4) % COUNT_OF(kinds)](i, hash(3 * n), hash(3 * n + 1), hash(3 * n + 2));
}

static const struct set {
    const char *name;
    uint64_t size;
    void (*make)(int i, uint64_t n);
} sets[] = { { "special values", (uint64_t)8 * SPECIAL *SPECIAL *SPECIAL, special },
             { "all exponents", (uint64_t)2048 * 255 * 509, exponents },
             { "products midway", 2 * (BELOW + ABOVE), midways },
             { "next to halves", (uint64_t)64 << 23, halves },
             { "differences", (uint64_t)24 << 22, differences },
             { "at random", ALL, random_numbers } };

/* ---- the proof */

static uint64_t wrong[FORMS]; /* of a set */

static int differ(float x, float y)
{
    return bits_of(x) != bits_of(y) && !(is_nan(x) && is_nan(y));
}

static void compare(int form, int count)
{
    for (int i = 0; i < count; i++)
        if (differ(result[i], exact[i]) && wrong[form]++ == 0 && form != UNREPAIRED)
            printf("%s: %a * %a + %a is not %a but %a\n", forms[form].name, (double)in.a[i],
                   (double)in.b[i], (double)in.c[i], (double)result[i], (double)exact[i]);
}

/* One in `step` inputs of a large set, in runs of four neighbours; the number of them. Steps are odd, so that
 * no digit keeps its value. */
static uint64_t try_set(const struct set *s, uint64_t step)
{
    const uint64_t next = s->size < 1000000 ? 1 : 4 * (step | 1) - 3;
    uint64_t count = 0;
    memset(wrong, 0, sizeof wrong);
    for (uint64_t n = 0; n < s->size;) {
        int length = 0;
        for (; length < BLOCK && n < s->size; length++, n += n % 4 == 3 ? next : 1)
            s->make(length, n);
        compute_exact();
        for (int form = 0; form < FORMS; form++) {
            forms[form].run();
            compare(form, length);
        }
        count += (uint64_t)length;
    }
    return count;
}

/* Prints a row; whether every form was right, and the one without the repair was not. */
static int prove(const struct set *s, uint64_t step)
{
    const uint64_t count = try_set(s, step);
    int right = wrong[UNREPAIRED] != 0;
    printf("%-16s%12" PRIu64, s->name, count);
    for (int form = 0; form < FORMS; form++) {
        printf("%14" PRIu64, wrong[form]);
        right &= form == UNREPAIRED || wrong[form] == 0;
    }
    printf("%s\n", right ? "" : "  FAILED");
    fflush(stdout);
    return right;
}

int main(int argc, char **argv)
{
    const int64_t count = argc > 1 ? atoll(argv[1]) : ALL;
    int failed = 0;
    if (argc > 2 || count < 1) {
        fprintf(stderr, "usage: %s [COUNT]\n", argv[0]);
        return 2;
    }
    printf("wrong results, next to %s\n%-16s%12s",
           has_instruction() ? "the FMA instruction" : "the form by integers", "inputs", "number");
    for (int form = 0; form < FORMS; form++)
        printf("%14s", forms[form].name);
    printf("\n");
    for (int i = 0; i < COUNT_OF(sets); i++)
        failed += !prove(&sets[i], (ALL - 1) / (uint64_t)count + 1);
    printf("%d passed, %d failed\n", COUNT_OF(sets) - failed, failed);
    return failed != 0;
}
