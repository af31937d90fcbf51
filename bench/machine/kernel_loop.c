/* kernel_loop.c - how fast a register tile of products runs from L1 now: the roof of calls bound by
 * arithmetic.
 * SPDX-License-Identifier: MIT
 *
 * The FMA peak needs no loads, but a matrix product does, and what a core gives to loads beside FMA
 * wanders with its neighbour on a shared machine. So this loop has the register tile of a kernel set
 * and all that it reads in L1: `chains` times `vectors` accumulators, and for each element a load of
 * every vector and a broadcast for every chain. It knows nothing of attention, and the kernels of the
 * library have no part in it. Accumulators are variables, PIN keeps values in registers and in
 * this order, and memory counts as changed before each round, so that compilers neither spill, load
 * again nor leave rounds out. */
#include "machine.h"

#include <math.h>
#include <string.h>

#if defined __GNUC__ && (defined __x86_64__ || defined __i386__)
#define LOOP_X86 1
#include <immintrin.h>
#elif defined __aarch64__ && defined __ARM_NEON
#define LOOP_NEON 1
#include <arm_neon.h>
#endif

#ifdef __GNUC__
#define ALIGNED __attribute__((aligned(64))) /* no load crosses a line */
#else
#define ALIGNED
#endif

enum { DEPTH = 64, MOST_CHAINS = 8, MOST_LANES = 64 };

/* Small whole numbers: every order of adding them gives one sum. */
static ALIGNED float columns[DEPTH * MOST_LANES], factors[MOST_CHAINS * DEPTH];
static volatile float loop_sink;

#define EACH3(M, unit, i) M(unit, i, 0) M(unit, i, 1) M(unit, i, 2)
#define EACH4(M, unit, i) EACH3(M, unit, i) M(unit, i, 3)
#define CHAINS4(M, unit) M(unit, 0) M(unit, 1) M(unit, 2) M(unit, 3)
#define CHAINS8(M, unit) CHAINS4(M, unit) M(unit, 4) M(unit, 5) M(unit, 6) M(unit, 7)

/* What a unit has: VECTOR, LANES, LOAD(p), SET1(f), FMA(a, b, c), STORE(p, x), PIN(x), and
 * EACH(M, unit, i) and CHAINS(M, unit), which repeat M for its vectors and chains. */
#define ZERO_ONE(unit, i, j) unit##_VECTOR c##i##j = unit##_SET1(0.0f);
#define ZERO_CHAIN(unit, i) unit##_EACH(ZERO_ONE, unit, i)
#define LOAD_ONE(unit, i, j)                                                                       \
    unit##_VECTOR b##j = unit##_LOAD(at + j * unit##_LANES);                                       \
    unit##_PIN(b##j);
#define FMA_ONE(unit, i, j)                                                                        \
    c##i##j = unit##_FMA(x##i, b##j, c##i##j);                                                     \
    unit##_PIN(c##i##j);
#define FMA_CHAIN(unit, i)                                                                         \
    unit##_VECTOR x##i = unit##_SET1(factors[i * DEPTH + t]);                                      \
    unit##_PIN(x##i);                                                                              \
    unit##_EACH(FMA_ONE, unit, i)
#define STORE_ONE(unit, i, j) unit##_STORE(out + i * MOST_LANES + j * unit##_LANES, c##i##j);
#define STORE_CHAIN(unit, i) unit##_EACH(STORE_ONE, unit, i)

/* out[i][lane] = sum over t of factors[i][t] * columns[t][lane], `rounds` times. */
#define DEFINE_LOOP(unit, attribute)                                                               \
    attribute static void loop_##unit(int64_t rounds, float *out)                                  \
    {                                                                                              \
        for (; rounds > 0; rounds--) {                                                             \
            const float *at = columns;                                                             \
            __asm__ volatile("" ::: "memory");                                                     \
            unit##_CHAINS(ZERO_CHAIN, unit);                                                       \
            for (int t = 0; t < DEPTH; t++, at += MOST_LANES) {                                    \
                unit##_EACH(LOAD_ONE, unit, 0);                                                    \
                unit##_CHAINS(FMA_CHAIN, unit);                                                    \
            }                                                                                      \
            unit##_CHAINS(STORE_CHAIN, unit);                                                      \
        }                                                                                          \
    }

#ifdef LOOP_X86
#define avx2_VECTOR __m256
#define avx2_LANES 8
#define avx2_LOAD _mm256_loadu_ps
#define avx2_SET1 _mm256_set1_ps
#define avx2_FMA _mm256_fmadd_ps
#define avx2_STORE _mm256_storeu_ps
#define avx2_PIN(x) __asm__ volatile("" : "+x"(x))
#define avx2_EACH EACH3
#define avx2_CHAINS CHAINS4
DEFINE_LOOP(avx2, __attribute__((target("avx2,fma"))))

#define avx512_VECTOR __m512
#define avx512_LANES 16
#define avx512_LOAD _mm512_loadu_ps
#define avx512_SET1 _mm512_set1_ps
#define avx512_FMA _mm512_fmadd_ps
#define avx512_STORE _mm512_storeu_ps
#define avx512_PIN(x) __asm__ volatile("" : "+v"(x))
#define avx512_EACH EACH4
#define avx512_CHAINS CHAINS4
DEFINE_LOOP(avx512, __attribute__((target("avx512f"))))
#endif

#ifdef LOOP_NEON
#define neon_VECTOR float32x4_t
#define neon_LANES 4
#define neon_LOAD vld1q_f32
#define neon_SET1 vdupq_n_f32
#define neon_FMA(a, b, c) vfmaq_f32(c, a, b)
#define neon_STORE vst1q_f32
#define neon_PIN(x) __asm__ volatile("" : "+w"(x))
#define neon_EACH EACH3
#define neon_CHAINS CHAINS8
DEFINE_LOOP(neon, )
#endif

static const struct {
    const char *unit;  /* with which the names of its kernel sets begin */
    const char *needs; /* see machine_has */
    int lanes, chains; /* of the tile */
    void (*run)(int64_t rounds, float *out);
} loops[] = {
#ifdef LOOP_X86
    { "avx2", "avx2 fma", 24, 4, loop_avx2 },
    { "avx512", "avx512f", 64, 4, loop_avx512 },
#endif
#ifdef LOOP_NEON
    { "neon", "", 12, 8, loop_neon },
#endif
    { NULL, "", 0, 0, NULL },
};

/* What a thread computes in a run: a part of the call's FLOPs, so that long calls take little longer
 * to measure, and what else has the CPU for a moment finds the loop as it finds the call. */
#define SHARE_OF_CALL 0.125
#define LEAST_FLOPS 4e6

static double flops_of_round(int tile)
{
    return 2.0 * DEPTH * loops[tile].lanes * loops[tile].chains;
}

static void fill(void)
{
    for (int t = 0; t < DEPTH; t++) {
        for (int lane = 0; lane < MOST_LANES; lane++)
            columns[t * MOST_LANES + lane] = (float)((t + 3 * lane) % 7 - 3);
        for (int i = 0; i < MOST_CHAINS; i++)
            factors[i * DEPTH + t] = (float)((5 * t + i) % 9 - 4);
    }
}

/* Whether a round's sums are right. */
static int is_right(int tile)
{
    float out[MOST_CHAINS * MOST_LANES];
    memset(out, 0xff, sizeof out);
    loops[tile].run(1, out);
    for (int i = 0; i < loops[tile].chains; i++)
        for (int lane = 0; lane < loops[tile].lanes; lane++) {
            float sum = 0;
            for (int t = 0; t < DEPTH; t++)
                sum += factors[i * DEPTH + t] * columns[t * MOST_LANES + lane];
            if (out[i * MOST_LANES + lane] != sum)
                return 0;
        }
    return 1;
}

int kernel_loop_make(kernel_loop *loop, const char *set, double flops)
{
    const double each = fmax(SHARE_OF_CALL * flops / loop->threads, LEAST_FLOPS);
    int tile = 0;
    while (loops[tile].unit && strncmp(loops[tile].unit, set, strlen(loops[tile].unit)) != 0)
        tile++;
    if (!loops[tile].unit || !machine_has(loops[tile].needs))
        return 0;
    fill();
    if (!is_right(tile))
        return 0;
    loop->tile = tile;
    loop->rounds = (int64_t)(each / flops_of_round(tile));
    return 1;
}

double kernel_loop_flops(const kernel_loop *loop)
{
    return flops_of_round(loop->tile) * (double)loop->rounds * loop->threads;
}

static void run_part(void *argument, int64_t index, int worker)
{
    const kernel_loop *const loop = argument;
    float out[MOST_CHAINS * MOST_LANES];
    (void)index;
    (void)worker;
    loops[loop->tile].run(loop->rounds, out);
    loop_sink = out[0];
}

int kernel_loop_run(void *argument)
{
    kernel_loop *const loop = argument;
    if (loop->threads > 1)
        return loop->parallel_for(loop->user, loop->threads, run_part, loop);
    run_part(loop, 0, 0);
    return 0;
}
