/* probe.c - what this machine can do at most: FMA peak and read bandwidth, both measured.
 * SPDX-License-Identifier: MIT
 *
 * The peak loops are independent chains of x = x*a + b on registers: 12 keep two FMA units of
 * latency 5 busy and fit into 16 registers; 64-bit ARM has 32 and up to four units of latency 4,
 * which take 24. Each vector unit is a row of a table; target attributes let one file hold them all
 * without compiler flags. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

#include "../clock.h"
#include "../stats.h"

#if defined __GNUC__ && (defined __x86_64__ || defined __i386__)
#define PROBE_X86 1
#include <immintrin.h>
#elif defined __ARM_NEON && defined __ARM_FEATURE_FMA
#define PROBE_NEON 1
#include <arm_neon.h>
#endif

#define FACTOR 0.999f /* the chains converge to OFFSET / (1 - FACTOR) = 1: always normal numbers */
#define OFFSET 0.001f
#define TIMES12(M) M(0) M(1) M(2) M(3) M(4) M(5) M(6) M(7) M(8) M(9) M(10) M(11)

enum { STEPS = 20000, REPEATS = 15 };

static volatile float probe_sink, probe_start; /* volatile: a compiler folds chains it knows */

/* One peak loop; times is TIMES12 or alike, set1 broadcasts. The macros NAME_DECLARE, NAME_STEP
 * and NAME_USE say what chain n is, does and ends as. */
#define DEFINE_PEAK(name, attribute, times, vector, set1)                                          \
    attribute static void name(void)                                                               \
    {                                                                                              \
        const vector a = set1(FACTOR), b = set1(OFFSET), start = set1(probe_start);                \
        times(name##_DECLARE);                                                                     \
        for (int i = 0; i < STEPS; i++) {                                                          \
            times(name##_STEP);                                                                    \
        }                                                                                          \
        times(name##_USE);                                                                         \
    }

#define SCALAR_SET1(x) (x)
#define peak_scalar_DECLARE(n) float x##n = start + (float)n;
#define peak_scalar_STEP(n)                                                                        \
    x##n = x##n * a;                                                                               \
    x##n = x##n + b;
#define peak_scalar_USE(n) probe_sink = x##n;
DEFINE_PEAK(peak_scalar, , TIMES12, float, SCALAR_SET1)

#ifdef PROBE_X86
#define SSE_TARGET __attribute__((target("sse2")))
#define peak_sse_DECLARE(n) __m128 x##n = _mm_add_ps(start, _mm_set1_ps((float)n));
#define peak_sse_STEP(n) x##n = _mm_add_ps(_mm_mul_ps(x##n, a), b);
#define peak_sse_USE(n) probe_sink = _mm_cvtss_f32(x##n);
DEFINE_PEAK(peak_sse, SSE_TARGET, TIMES12, __m128, _mm_set1_ps)

#define AVX2_TARGET __attribute__((target("avx2,fma")))
#define peak_avx2_DECLARE(n) __m256 x##n = _mm256_add_ps(start, _mm256_set1_ps((float)n));
#define peak_avx2_STEP(n) x##n = _mm256_fmadd_ps(x##n, a, b);
#define peak_avx2_USE(n) probe_sink = _mm_cvtss_f32(_mm256_castps256_ps128(x##n));
DEFINE_PEAK(peak_avx2, AVX2_TARGET, TIMES12, __m256, _mm256_set1_ps)

#define AVX512_TARGET __attribute__((target("avx512f")))
#define peak_avx512_DECLARE(n) __m512 x##n = _mm512_add_ps(start, _mm512_set1_ps((float)n));
#define peak_avx512_STEP(n) x##n = _mm512_fmadd_ps(x##n, a, b);
#define peak_avx512_USE(n) probe_sink = _mm_cvtss_f32(_mm512_castps512_ps128(x##n));
DEFINE_PEAK(peak_avx512, AVX512_TARGET, TIMES12, __m512, _mm512_set1_ps)
#endif

#ifdef PROBE_NEON
#ifdef __aarch64__
#define NEON_TIMES(M)                                                                              \
    TIMES12(M) M(12) M(13) M(14) M(15) M(16) M(17) M(18) M(19) M(20) M(21) M(22) M(23)
#define NEON_CHAINS 24
#else
#define NEON_TIMES TIMES12
#define NEON_CHAINS 12
#endif
#define peak_neon_DECLARE(n) float32x4_t x##n = vaddq_f32(start, vdupq_n_f32((float)n));
#define peak_neon_STEP(n) x##n = vfmaq_f32(b, x##n, a);
#define peak_neon_USE(n) probe_sink = vgetq_lane_f32(x##n, 0);
DEFINE_PEAK(peak_neon, , NEON_TIMES, float32x4_t, vdupq_n_f32)
#endif

static const struct {
    const char *name;
    int lanes, chains;
    const char *needs; /* see machine_has */
    void (*run)(void);
} units[PROBE_MAX_UNITS] = {
    { "scalar", 1, 12, "", peak_scalar },
#ifdef PROBE_X86
    { "sse", 4, 12, "sse2", peak_sse },           { "avx2", 8, 12, "avx2 fma", peak_avx2 },
    { "avx512", 16, 12, "avx512f", peak_avx512 },
#endif
#ifdef PROBE_NEON
    { "neon", 4, NEON_CHAINS, "", peak_neon },
#endif
};

/* REPEATS runs, each against the clock of its own moment: the best time, and the median per
 * cycle, since a disturbed clock estimate would flatter the best. */
static probe_peak measure_peak(const char *name, double flops, void (*run)(void))
{
    probe_peak peak = { name, 0, 0 };
    double per_cycle[REPEATS];
    bench_stats stats;
    for (int i = 0; i < REPEATS; i++) {
        run(); /* wide units take some microseconds to power up */
        const double before = clock_hertz(), start = clock_seconds();
        run();
        const double seconds = clock_seconds() - start;
        const double hertz = 0.5 * (before + clock_hertz());
        if (flops / seconds > peak.gflops * 1e9)
            peak.gflops = flops / seconds * 1e-9;
        per_cycle[i] = hertz > 0 ? flops / (seconds * hertz) : 0;
    }
    bench_stats_of(per_cycle, REPEATS, &stats);
    peak.flops_per_cycle = stats.p50;
    return peak;
}

double probe_reading(int threads, attn_parallel_for_fn parallel_for, void *user)
{
    const size_t bytes = (size_t)128 << 20; /* several times the last-level cache of one core */
    void *const memory = malloc(bytes);
    reading r = { { memory, memory }, { bytes, 0 }, threads, parallel_for, user, 0 };
    double best = 0;
    if (!memory)
        return 0;
    memset(memory, 1, bytes);
    reading_choose(&r);
    for (int i = 0; i < 4; i++) {
        const double start = clock_seconds();
        reading_run(&r);
        const double rate = (double)bytes / (clock_seconds() - start) * 1e-9;
        if (rate > best)
            best = rate;
    }
    free(memory);
    return best;
}

const probe_peak *probe_unit_of(const probe_result *p, const char *set)
{
    for (int i = 0; i < p->num_units; i++)
        if (!strncmp(p->units[i].name, set, strlen(p->units[i].name)))
            return &p->units[i];
    return &p->best;
}

void probe_machine(probe_result *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < PROBE_MAX_UNITS && units[i].name; i++) {
        if (!machine_has(units[i].needs))
            continue;
        const double flops = 2.0 * STEPS * units[i].chains * units[i].lanes;
        const probe_peak p = measure_peak(units[i].name, flops, units[i].run);
        out->units[out->num_units++] = p;
        if (!strcmp(p.name, "avx2"))
            out->avx2 = p;
        if (p.gflops > out->best.gflops)
            out->best = p;
    }
    out->ghz = clock_hertz() * 1e-9;
    out->read_gbs = probe_reading(1, NULL, NULL);
}
