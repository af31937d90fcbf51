/* fma.c - a * b + c rounded once: both forms without the instruction, and what each kernel set
 * has; products with bytes.
 * SPDX-License-Identifier: MIT
 *
 * The reference adds whole numbers of 576 bits. Inputs are built around what rounding twice would get
 * wrong: ties, sums next to ties, cancellation, subnormal results, the border of overflow.
 * `build/test fma -- 1000000000` draws as many at random, besides.
 */
#define FMA_BY_BINARY64 /* both */
#define FMA_BY_INTEGERS
#define SOFT_FLOAT /* times_byte by integers, too */
#include "../src/bytes.c"
#include "test.h"

#include <stdlib.h>
#include <string.h>

/* ---- the reference: bit n of a number stands for 2^(n - 298) */

enum { LIMBS = 18, SMALLEST = 149 };

typedef struct wide {
    uint32_t limb[LIMBS];
} wide;

static uint32_t bit_of(const wide *x, int n)
{
    return n < 0 ? 0 : x->limb[n / 32] >> n % 32 & 1;
}

static wide wide_of(uint64_t m, int shift)
{
    wide x = { { 0 } };
    for (int n = shift; m != 0; n++, m >>= 1)
        x.limb[n / 32] |= (uint32_t)(m & 1) << n % 32;
    return x;
}

/* x + y, or x - y modulo 2^576. */
static wide sum_of(const wide *x, const wide *y, int minus)
{
    wide sum;
    uint64_t carry = minus != 0;
    for (int k = 0; k < LIMBS; k++) {
        carry += (uint64_t)x->limb[k] + (minus ? ~y->limb[k] : y->limb[k]);
        sum.limb[k] = (uint32_t)carry;
        carry >>= 32;
    }
    return sum;
}

static uint32_t magnitude_of(const wide *x)
{
    int top = 32 * LIMBS - 1, last, n;
    uint32_t m = 0, below = 0;
    while (top >= 0 && !bit_of(x, top))
        top--;
    last = top - 23 > SMALLEST ? top - 23 : SMALLEST;
    for (n = top; n >= last; n--)
        m = 2 * m + bit_of(x, n);
    for (n = last - 2; n >= 0; n--)
        below |= bit_of(x, n);
    m += bit_of(x, last - 1) & (below | m);
    m += (uint32_t)(last - SMALLEST) << 23;
    return m < 0x7f800000u ? m : 0x7f800000u;
}

static uint64_t significand_of(uint32_t u, int *exponent)
{
    *exponent = (u >> 23 & 255) != 0 ? (int)(u >> 23 & 255) : 1;
    return (u & 0x7fffff) | (uint32_t)((u >> 23 & 255) != 0) << 23;
}

/* The bits of the result for finite numbers. */
static uint32_t reference(uint32_t a, uint32_t b, uint32_t c)
{
    int ea, eb, ec;
    const uint64_t ma = significand_of(a, &ea), mb = significand_of(b, &eb);
    const uint64_t mc = significand_of(c, &ec);
    const wide p = wide_of(ma * mb, ea + eb - 2), x = wide_of(mc, ec + SMALLEST - 1);
    const uint32_t sign = (a ^ b) >> 31, differ = sign ^ c >> 31;
    const wide nothing = { { 0 } };
    wide sum = sum_of(&p, &x, (int)differ);
    const uint32_t below = differ && bit_of(&sum, 32 * LIMBS - 1);
    if (differ && memcmp(&sum, &nothing, sizeof sum) == 0)
        return 0;
    if (below)
        sum = sum_of(&x, &p, 1);
    return magnitude_of(&sum) | (sign ^ below) << 31;
}

static int is_right(float y, float a, float b, float c)
{
    const float product = a * b, plain = product + c;
    if (!is_finite(a) || !is_finite(b))
        return is_nan(plain) ? is_nan(y) : bits_of(y) == bits_of(plain);
    if (!is_finite(c))
        return is_nan(c) ? is_nan(y) : bits_of(y) == bits_of(c);
    return bits_of(y) == reference(bits_of(a), bits_of(b), bits_of(c));
}

/* ---- what is tested */

static float by_binary64(float a, float b, float c)
{
    return fma_binary64(a, b, c);
}

static float by_integers(float a, float b, float c)
{
    return fma_integer(a, b, c);
}

static const attn_kernels *kernels(void)
{
    return T.table != NULL ? T.table : attn_kernels_find(T.kernels);
}

/* By the kernel `dots`, whose first step makes c of its +0. */
static float by_kernel(float a, float b, float c)
{
    const attn_kernels *const k = kernels();
    float x[2 * ATTN_KERNEL_MAX_ROWS], y[2 * ATTN_KERNEL_MAX_ROWS], sum[ATTN_KERNEL_MAX_ROWS];
    for (int r = 0; r < k->rows; r++) {
        x[r] = c, y[r] = 1.0f;
        x[k->rows + r] = r % 2 ? a : b, y[k->rows + r] = r % 2 ? b : a;
    }
    k->dots(sum, x, y, 2);
    for (int r = 1; r < k->rows; r++)
        if (bits_of(sum[r]) != bits_of(sum[0]) && !(is_nan(sum[r]) && is_nan(sum[0])))
            return float_of(~bits_of(sum[0]));
    return sum[0];
}

typedef float ternary(float a, float b, float c);
static const struct form {
    const char *name;
    ternary *run;
    int positive_zero; /* for c = -0 */
} forms[] = { { "binary64", by_binary64, 0 },
              { "integers", by_integers, 0 },
              { "kernel", by_kernel, 1 } };

static void check(const struct form *f, uint32_t a, uint32_t b, uint32_t c)
{
    const float x = float_of(a), y = float_of(b);
    const float z = float_of(f->positive_zero && c == 0x80000000u ? 0 : c);
    const float result = f->run(x, y, z);
    CHECK(is_right(result, x, y, z), "%a * %a + %a is not %a", (double)x, (double)y, (double)z,
          (double)result);
}

/* ---- inputs */

static const uint32_t significands[] = { 0,        1,        0x000800, 0x001000,
                                         0x400000, 0x3fffff, 0x7ffffe, 0x7fffff };

static const uint32_t special[] = { 0,          1,          2,          0x007fffff,
                                    0x00800000, 0x00800001, 0x0c000000, 0x20000000,
                                    0x33800000, 0x3f7fffff, 0x3f800000, 0x3f800001,
                                    0x5f800000, 0x7f7fffff, 0x7f800000, 0x7fc00000 };

/* Every distance between product and c that matters, the product near `exponent`, biased. */
static void check_distances(const struct form *f, int exponent)
{
    const int ea = exponent < 1 ? 1 : exponent > 254 ? 254 : exponent, eb = 127 + exponent - ea;
    for (int d = -52; d <= 52; d++)
        for (int n = 0; n < 1024; n++) {
            const int ec = exponent + d;
            const uint32_t a = (uint32_t)ea << 23 | significands[n & 7];
            const uint32_t b = (uint32_t)eb << 23 | significands[n >> 3 & 7];
            const uint32_t c = (uint32_t)ec << 23 | significands[n >> 6 & 7];
            if (ec >= 0 && ec <= 254)
                check(f, a, b, c ^ (uint32_t)(n >> 9) << 31);
        }
}

static void check_special(const struct form *f)
{
    for (int n = 0; n < 32 * 32 * 32; n++)
        check(f, special[n & 15] | (uint32_t)(n >> 4 & 1) << 31,
              special[n >> 5 & 15] | (uint32_t)(n >> 9 & 1) << 31,
              special[n >> 10 & 15] | (uint32_t)(n >> 14) << 31);
}

/* Few bits, many bits or any; exponents in the middle half of the time. */
static uint32_t any_bits(void)
{
    const uint64_t x = rng_u64();
    const uint32_t middle = 112 + (uint32_t)(x >> 32 & 31),
                   e = x >> 63 ? middle : (uint32_t)(x >> 32 & 255);
    uint32_t m = (uint32_t)x & 0x7fffff;
    if (x >> 62 & 1)
        m = (x >> 61 & 1) ? m & ~((1u << (x >> 48) % 23) - 1) : significands[x >> 48 & 7];
    return m | e << 23 | (uint32_t)(x >> 40 & 1) << 31;
}

/* A third of c are next to minus the product, another third within 40 binades of it. */
static void check_random(const struct form *f, int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        const uint32_t a = any_bits(), b = any_bits();
        const float product = float_of(a) * float_of(b);
        const uint32_t near = bits_of(product) ^ 0x80000000u, draw = (uint32_t)(rng_u64() >> 32);
        uint32_t c = any_bits();
        if (n % 3 == 0)
            c = near + draw % 7 - 3;
        if (n % 3 == 1)
            c = (c & 0x807fffff) | ((near + ((draw % 81 - 40) << 23)) & 0x7f800000);
        check(f, a, b, c);
    }
}

/* Products with every byte. */
static void check_bytes(int64_t count)
{
    for (int64_t n = 0; n < count; n++) {
        const float d = float_of(any_bits());
        for (int q = -128; q < 128; q++) {
            const float right = d * (float)q, y = times_byte(d, (int8_t)q);
            CHECK(bits_of(y) == bits_of(right) || (is_nan(y) && is_nan(right)), "%a * %d is not %a",
                  (double)d, q, (double)y);
        }
    }
}

TEST_GROUP(fma, RUN_EACH_SET, "multiply-adds round once, with and without the instruction")
{
    const int64_t count = T.argc > 0 ? atoll(T.argv[0]) : 60000;
    for (int i = 0; i < COUNT_OF(forms); i++) {
        const struct form *const f = &forms[i];
        if (f->run != by_kernel && strcmp(kernels()->name, "portable") != 0)
            continue; /* One set is enough for what no set has a part in. */
        for (int exponent = -24; exponent <= 254; exponent += exponent < 8 ? 1 : 41)
            if (begin_case("%s, product near 2^%d", f->name, exponent - 127))
                check_distances(f, exponent);
        if (begin_case("%s, special values", f->name))
            check_special(f);
        if (begin_case("%s, %lld at random", f->name, (long long)count))
            check_random(f, count);
    }
    if (strcmp(kernels()->name, "portable") == 0 &&
        begin_case("bytes, %lld at random", (long long)count / 64))
        check_bytes(count / 64);
}
