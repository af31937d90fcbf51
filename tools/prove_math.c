/* SPDX-License-Identifier: MIT */
/*
 * Proves the elementary functions of attn.c over all their inputs: 2^x, tanh, log2, the integer
 * 1/sqrt(n), and 1/x of kernels.cl; prove_fma.c proves their multiply-adds. The program stands alone:
 *
 *     cc -std=c99 -O2 -march=native -ffp-contract=off tools/prove_math.c -o prove_math -lm
 *
 * Without -march=native (or -mfma) the same bits come from the software fma, several times slower.
 * With -fopenmp the work is spread over the cores. --quick takes every 1021st input.
 *
 * References are libm's double functions. An error of even 4 ulp in double is 2^-27 ulp here.
 * An error is counted in ulp of the binade that holds the reference; an ulp is at least 2^-149.
 */
#include "../src/numbers.c"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PROVE_BLOCK 4096u

struct proof {
    uint64_t tested;
    double worst; /* ulp */
    uint32_t at;
    uint64_t wrong; /* broken promises other than the ulp bound: classes, exact values, signs */
    uint32_t wrong_at;
};

static uint32_t prove_stride = 1;
static int passed, failed;

static float tanh_canon(float x)
{
    return tanh_with(FMA_BASE, x);
}

static uint32_t prove_word(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float prove_value(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static int is_nan_word(uint32_t u)
{
    return (u & 0x7fffffffu) > 0x7f800000u;
}

/* 1 / ulp of binary32 at the reference, from its exponent field */
static double per_ulp(double reference)
{
    uint64_t u;
    double scale;
    int e;
    memcpy(&u, &reference, sizeof u);
    e = (int)(u >> 52 & 0x7ff) - 1023;
    e = (e < -126 ? -126 : e) - 23;
    u = (uint64_t)(1023 - e) << 52;
    memcpy(&scale, &u, sizeof scale);
    return scale;
}

static void prove_wrong(struct proof *r, uint32_t at)
{
    if (r->wrong == 0)
        r->wrong_at = at;
    r->wrong++;
}

static void prove_measure(struct proof *r, uint32_t at, float result, double reference)
{
    double d = fabs((double)result - reference) * per_ulp(reference);
    if (!(d <= 1e9)) /* a NaN or an infinity in place of a number */
        prove_wrong(r, at);
    else if (d > r->worst) {
        r->worst = d;
        r->at = at;
    }
}

static void prove_join(struct proof *all, const struct proof *r)
{
    all->tested += r->tested;
    if (r->worst > all->worst) {
        all->worst = r->worst;
        all->at = r->at;
    }
    if (r->wrong != 0 && all->wrong == 0)
        all->wrong_at = r->wrong_at;
    all->wrong += r->wrong;
}

static void prove_print(const char *name, const struct proof *r, double bound)
{
    int ok = r->worst <= bound && r->wrong == 0 && r->tested != 0;
    printf("%-14s %12.0f  ", name, (double)r->tested);
    if (bound > 0)
        printf("%8.5f  %-15.8g %5.2f   ", r->worst, (double)prove_value(r->at), bound);
    else
        printf("%8s  %-15s %5s   ", "-", "-", "exact");
    if (ok)
        printf("ok\n");
    else if (r->wrong != 0)
        printf("FAILED, %.0f wrong, first at %08x\n", (double)r->wrong, (unsigned)r->wrong_at);
    else
        printf("FAILED\n");
    fflush(stdout);
    if (ok)
        passed++;
    else
        failed++;
}

static void check_exp2(struct proof *r, uint32_t u, float result)
{
    float x = prove_value(u);
    if (is_nan_word(u)) {
        if (!is_nan_word(prove_word(result)))
            prove_wrong(r, u);
    } else if (x < -126.0f) {
        if (prove_word(result) != 0)
            prove_wrong(r, u);
    } else if (x < 128.0f) {
        prove_measure(r, u, result, exp2((double)x));
        if (x == floorf(x) && (double)result != ldexp(1.0, (int)x))
            prove_wrong(r, u);
    } else if (u == 0x7f800000u) { /* finite x >= 128 is outside the promise */
        if (prove_word(result) != u && !is_nan_word(prove_word(result)))
            prove_wrong(r, u);
    } else {
        r->tested--;
    }
}

static void check_tanh(struct proof *r, uint32_t u, float result)
{
    float x = prove_value(u);
    uint32_t v = prove_word(result);
    if (is_nan_word(u)) {
        if (!is_nan_word(v))
            prove_wrong(r, u);
        return;
    }
    if (((u ^ v) >> 31) != 0 || (v & 0x7fffffffu) > 0x3f800000u)
        prove_wrong(r, u); /* the sign of x, and at most 1 */
    if ((u & 0x7fffffffu) == 0 && v != u)
        prove_wrong(r, u);
    if (u >> 31) { /* odd: measured on the positive side */
        if (v != (prove_word(tanh_canon(-x)) ^ 0x80000000u))
            prove_wrong(r, u);
    } else {
        /* beyond 20 the double is 1, too; below 2^-14, x - x^3 / 3 is off by 2^-58 */
        double d = (double)x;
        double reference = d > 20.0 ? 1.0 : d < 6e-5 ? d - d * d * d / 3.0 : tanh(d);
        prove_measure(r, u, result, reference);
        if (u == 0x7f800000u && v != 0x3f800000u)
            prove_wrong(r, u);
    }
}

static void check_log2(struct proof *r, uint32_t u, float result)
{
    uint32_t v = prove_word(result);
    if (is_nan_word(u) || u > 0x80000000u) {
        if (!is_nan_word(v))
            prove_wrong(r, u);
    } else if ((u & 0x7fffffffu) == 0) {
        if (v != 0xff800000u)
            prove_wrong(r, u);
    } else if (u == 0x7f800000u || u == 0x3f800000u) {
        if (v != (u == 0x7f800000u ? u : 0)) /* log2(1) = +0 */
            prove_wrong(r, u);
    } else {
        double d = (double)prove_value(u);
        int n;
        prove_measure(r, u, result, log2(d));
        if (frexp(d, &n) == 0.5 && result != (float)(n - 1))
            prove_wrong(r, u);
    }
}

/* Tests all 2^32 floats, or every stride-th, in a plain loop that a compiler can vectorise. */
static void sweep(const char *name, void (*f)(const float *x, float *y, uint32_t n),
                  void (*check)(struct proof *, uint32_t, float), double bound)
{
    struct proof all = { 0, 0, 0, 0, 0 };
    uint64_t count = ((uint64_t)1 << 32) / prove_stride;
    int32_t blocks = (int32_t)(count / PROVE_BLOCK), b;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 16)
#endif
    for (b = 0; b <= blocks; b++) {
        struct proof r = { 0, 0, 0, 0, 0 };
        float x[PROVE_BLOCK], y[PROVE_BLOCK];
        uint64_t first = (uint64_t)b * PROVE_BLOCK;
        uint32_t n = first + PROVE_BLOCK <= count ? PROVE_BLOCK : (uint32_t)(count - first), i;
        for (i = 0; i < n; i++)
            x[i] = prove_value((uint32_t)((first + i) * prove_stride));
        f(x, y, n);
        for (i = 0; i < n; i++) {
            r.tested++;
            check(&r, (uint32_t)((first + i) * prove_stride), y[i]);
        }
#ifdef _OPENMP
#pragma omp critical
#endif
        prove_join(&all, &r);
    }
    prove_print(name, &all, bound);
}

static void run_exp2(const float *x, float *y, uint32_t n)
{
    uint32_t i;
    for (i = 0; i < n; i++)
        y[i] = exp2_canon(x[i]);
}

static void run_tanh(const float *x, float *y, uint32_t n)
{
    uint32_t i;
    for (i = 0; i < n; i++)
        y[i] = tanh_canon(x[i]);
}

static void run_log2(const float *x, float *y, uint32_t n)
{
    uint32_t i;
    for (i = 0; i < n; i++)
        y[i] = log2_canon(x[i]);
}

/* The values that a stride may miss: whole numbers, powers of two, edges and specials. */
static void edges(void)
{
    static const uint32_t edge[] = { 0,          1,          2,          0x007fffff, 0x00800000,
                                     0x33000000, 0x39000000, 0x3effffff, 0x3f1fffff, 0x3f200000,
                                     0x3f3504f3, 0x3f3504f4, 0x3f7fffff, 0x3f800000, 0x3f800001,
                                     0x41102cb2, 0x41102cb3, 0x411fffff, 0x41200000, 0x41200001,
                                     0x42fbffff, 0x42fc0000, 0x42fc0001, 0x42fe0000, 0x42feffff,
                                     0x42ffffff, 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7fbfffff,
                                     0x7fc00000, 0x7fc00001, 0x7fffffff };
    struct proof e = { 0, 0, 0, 0, 0 }, t = e, l = e;
    uint32_t i;
    int n;
    for (i = 0; i < 2 * sizeof edge / sizeof *edge; i++) {
        uint32_t u = edge[i / 2] | (i & 1) << 31;
        e.tested++, t.tested++, l.tested++;
        check_exp2(&e, u, exp2_canon(prove_value(u)));
        check_tanh(&t, u, tanh_canon(prove_value(u)));
        check_log2(&l, u, log2_canon(prove_value(u)));
    }
    for (n = -149; n <= 127; n++) {
        uint32_t u = prove_word((float)ldexp(1.0, n));
        e.tested++, t.tested++, l.tested++;
        check_exp2(&e, prove_word((float)n), exp2_canon((float)n));
        check_tanh(&t, u, tanh_canon(prove_value(u)));
        check_log2(&l, u, log2_canon(prove_value(u)));
    }
    prove_print("exp2, edges", &e, 0.79);
    prove_print("tanh, edges", &t, 3.0);
    prove_print("log2, edges", &l, 2.0);
}

/* splitmix64 */
static uint64_t prove_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Returns the sign of a * a * n - 4^m, for a < 2^27 and n < 2^41, in 32-bit limbs. */
static int compare_square(uint64_t a, uint64_t n, int m)
{
    uint64_t s = a * a, s0 = s & 0xffffffffu, s1 = s >> 32;
    uint64_t n0 = n & 0xffffffffu, n1 = n >> 32;
    uint64_t low = s0 * n0;
    uint64_t mid = (low >> 32) + (s1 * n0 & 0xffffffffu) + (s0 * n1 & 0xffffffffu);
    uint64_t high = (mid >> 32) + (s1 * n0 >> 32) + (s0 * n1 >> 32) + s1 * n1;
    uint64_t power_high = 2 * m >= 64 ? (uint64_t)1 << (2 * m - 64) : 0;
    uint64_t power_low = 2 * m >= 64 ? 0 : (uint64_t)1 << 2 * m;
    low = (low & 0xffffffffu) | mid << 32;
    if (high != power_high)
        return high < power_high ? -1 : 1;
    return low < power_low ? -1 : low > power_low;
}

/* With r = S 2^e, 2^23 <= S < 2^24, the midpoints to both neighbours must enclose 1/sqrt(n). */
static void check_inv_sqrt(struct proof *r, uint64_t n)
{
    float y = inv_sqrt_nearest(n);
    uint32_t u = prove_word(y);
    uint64_t s = (u & 0x007fffffu) | 0x00800000u;
    int e = (int)(u >> 23) - 150; /* a quarter of the last place: 2^(e-2) */
    uint64_t below = 4 * s - (s == 0x00800000u ? 1 : 2), above = 4 * s + 2;
    double d = fabs((double)y * sqrt((double)n) - 1.0);
    r->tested++;
    if (u >> 31 || d > 1.2e-7 || compare_square(below, n, 2 - e) > 0 ||
        compare_square(above, n, 2 - e) < 0)
        prove_wrong(r, u);
}

static void prove_inv_sqrt(void)
{
    struct proof r = { 0, 0, 0, 0, 0 };
    uint64_t state = 2, n, i, count = prove_stride == 1 ? 2000000 : 50000;
    uint64_t dense = prove_stride == 1 ? (uint64_t)1 << 20 : (uint64_t)1 << 16;
    for (n = 1; n <= dense; n++)
        check_inv_sqrt(&r, n);
    for (i = 0; i < count; i++) {
        uint64_t p = prove_next(&state);
        check_inv_sqrt(&r, (p >> 33) + 1);
        check_inv_sqrt(&r, (p >> (24 + i % 40)) + 1);
    }
    for (n = 2; n <= (uint64_t)1 << 40; n *= 2) {
        check_inv_sqrt(&r, n - 1);
        check_inv_sqrt(&r, n);
        check_inv_sqrt(&r, n + 1);
    }
    prove_print("1/sqrt(n)", &r, 0);
}

/* The function reciprocal of kernels.cl from a quotient y of a device, for 1 <= x < 2. */
static float refined_reciprocal(float x, float y)
{
    float e, z;
    e = fma32(FMA_BASE, -x, y, 1.0f);
    z = fma32(FMA_BASE, e, y, y);
    e = fma32(FMA_BASE, -x, z, 1.0f);
    z = fma32(FMA_BASE, e, z, z);
    if ((prove_word(x) & 0x7fffffu) == 0x7fffffu)
        z = prove_value(0x7e800001u - (prove_word(x) & 0x7f800000u));
    return z;
}

/* Every significand from every start within 4 ulp, one more than OpenCL allows a quotient; other
 * exponents scale all numbers by powers of two. Quick: the last 4096 and some before. */
static void prove_reciprocal(void)
{
    struct proof r = { 0, 0, 0, 0, 0 };
    uint32_t m;
    int ulp;
    for (m = 0; m < 0x800000u; m += m < 0x7ff000u ? prove_stride : 1) {
        const float x = prove_value(0x3f800000u | m), right = 1.0f / x;
        for (ulp = -4; ulp <= 4; ulp++) {
            const float y = prove_value(prove_word(right) + (uint32_t)ulp);
            r.tested++;
            if (prove_word(refined_reciprocal(x, y)) != prove_word(right))
                prove_wrong(&r, prove_word(x));
        }
    }
    prove_print("1/x of devices", &r, 0);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--quick") == 0) {
        prove_stride = 1021;
    } else if (argc != 1) {
        fprintf(stderr, "usage: %s [--quick]\n", argv[0]);
        return 2;
    }
    printf("function             inputs   worst ulp  at              bound\n");
    prove_inv_sqrt();
    prove_reciprocal();
    edges();
    sweep("exp2", run_exp2, check_exp2, 0.79);
    sweep("tanh", run_tanh, check_tanh, 3.0);
    sweep("log2", run_log2, check_log2, 2.0);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
