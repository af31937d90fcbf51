/* reading.c - how fast these very bytes can be read now: the roof of calls bound by memory.
 * SPDX-License-Identifier: MIT
 *
 * No one loop is the fastest everywhere, so that a table of simple ones is tried on the buffers in
 * question. Measured on an AMD EPYC (family 25 model 17, 1 MiB of L2, 32 MiB of L3), GB/s, one
 * thread, medians in turn:
 *
 *                                              0.75 MiB   1.5 MiB   32 MiB   256 MiB
 *     words    one stream                            90        82       37        26
 *     lines    6 streams, one word a line           107        95       42        26
 *     avx2     12 streams, whole lines              105        92       46        29
 *     avx512   16 streams, whole lines              104        88       54        32
 *
 * One stream of whole lines: 24 to 27 from memory; 4: 28; 8: 28; software prefetch at any distance
 * from 512 bytes to 32 KiB, into L1, L2 or past them, with 1 to 4 streams: 20 to 29 from memory and
 * 20 to 40 % less from the caches. Two threads: 33 to 37 from memory. */
#include "machine.h"

#include <stdlib.h>
#include <string.h>

#include "../clock.h"

#if defined __GNUC__ && (defined __x86_64__ || defined __i386__)
#define READING_X86 1
#include <immintrin.h>
#endif

enum { LINE = 64, PAGE = 4096, SKEW = 5 * LINE, WORD = 8, TRIES = 3 };

#define WATCH_SECONDS 0.02 /* some time slices of a system whose CPUs are shared */

#define TIMES6(M) M(0) M(1) M(2) M(3) M(4) M(5)
#define TIMES12(M) TIMES6(M) M(6) M(7) M(8) M(9) M(10) M(11)
#define TIMES16(M) TIMES12(M) M(12) M(13) M(14) M(15)

static volatile uint64_t reading_sink; /* volatile: no loop is left out */

static uint64_t word_at(const char *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* One word of every 16 bytes is enough to bring its line in; the four sums keep the loads, not the
 * additions, the bottleneck with every compiler. */
static uint64_t read_words(const char *from, size_t bytes)
{
    uint64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (size_t i = 0; i + LINE <= bytes; i += LINE) {
        s0 += word_at(from + i);
        s1 += word_at(from + i + 2 * WORD);
        s2 += word_at(from + i + 4 * WORD);
        s3 += word_at(from + i + 6 * WORD);
    }
    return s0 + s1 + s2 + s3;
}

/* Bytes from the start of one stream to the next, whole lines. Not a multiple of a page where that
 * can be: all streams would then share one set of the caches (12 streams over 1.5 MiB: half the
 * rate). */
static size_t distance(size_t bytes, size_t streams)
{
    const size_t pages = bytes / streams / PAGE;
    return pages < 2 ? bytes / streams / LINE * LINE : (pages - 1) * PAGE + SKEW;
}

/* A loop of streams; times is TIMES6 or alike. The macros NAME_DECLARE, NAME_STEP and NAME_USE say
 * what stream n has, reads at `at` and adds to sum in the end. */
#define DEFINE_STREAMS(name, attribute, streams, times)                                            \
    attribute static uint64_t name(const char *from, size_t bytes)                                 \
    {                                                                                              \
        const size_t apart = distance(bytes, streams), all = apart * streams;                      \
        uint64_t sum = 0;                                                                          \
        times(name##_DECLARE);                                                                     \
        for (const char *at = from; at < from + apart; at += LINE) {                               \
            times(name##_STEP);                                                                    \
        }                                                                                          \
        times(name##_USE);                                                                         \
        return sum + read_words(from + all, bytes - all);                                          \
    }

#define read_lines_DECLARE(n) uint64_t x##n = 0;
#define read_lines_STEP(n) x##n += word_at(at + n * apart);
#define read_lines_USE(n) sum += x##n;
DEFINE_STREAMS(read_lines, , 6, TIMES6)

#ifdef READING_X86
#define AVX2_TARGET __attribute__((target("avx2")))
#define LOAD256(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define read_avx2_DECLARE(n) __m256i x##n = _mm256_setzero_si256();
#define read_avx2_STEP(n)                                                                          \
    x##n = _mm256_add_epi64(x##n, LOAD256(at + n * apart));                                        \
    x##n = _mm256_add_epi64(x##n, LOAD256(at + n * apart + LINE / 2));
#define read_avx2_USE(n) sum += sum256(x##n);

AVX2_TARGET static uint64_t sum256(__m256i x)
{
    uint64_t words[4];
    _mm256_storeu_si256((__m256i *)(void *)words, x);
    return words[0] + words[1] + words[2] + words[3];
}

DEFINE_STREAMS(read_avx2, AVX2_TARGET, 12, TIMES12)

#define AVX512_TARGET __attribute__((target("avx512f")))
#define read_avx512_DECLARE(n) __m512i x##n = _mm512_setzero_si512();
#define read_avx512_STEP(n) x##n = _mm512_add_epi64(x##n, _mm512_loadu_si512(at + n * apart));
#define read_avx512_USE(n) sum += sum512(x##n);

AVX512_TARGET static uint64_t sum512(__m512i x)
{
    uint64_t words[8], sum = 0;
    _mm512_storeu_si512(words, x);
    for (int i = 0; i < 8; i++)
        sum += words[i];
    return sum;
}

DEFINE_STREAMS(read_avx512, AVX512_TARGET, 16, TIMES16)
#endif

static const struct {
    const char *name;
    const char *needs; /* see machine_has */
    uint64_t (*run)(const char *from, size_t bytes);
} loops[] = {
    { "words", "", read_words },
    { "lines", "", read_lines },
#ifdef READING_X86
    { "avx2", "avx2", read_avx2 },
    { "avx512", "avx512f", read_avx512 },
#endif
};

enum { LOOPS = sizeof loops / sizeof *loops };

const char *reading_name(int i)
{
    return i < LOOPS ? loops[i].name : NULL;
}

int reading_usable(int i)
{
    return machine_has(loops[i].needs);
}

/* Part `index` of as many equal parts as there are threads, of both buffers. */
uint64_t reading_part(const reading *r, int64_t index)
{
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++) {
        const size_t lines = r->bytes[i] / LINE, threads = (size_t)r->threads;
        const size_t begin = lines * (size_t)index / threads;
        const size_t end = lines * ((size_t)index + 1) / threads;
        sum += loops[r->loop].run((const char *)r->data[i] + begin * LINE, (end - begin) * LINE);
    }
    return sum;
}

static void read_part(void *argument, int64_t index, int worker)
{
    (void)worker;
    reading_sink = reading_part(argument, index);
}

int reading_run(void *argument)
{
    reading *const r = argument;
    if (r->threads > 1)
        return r->parallel_for(r->user, r->threads, read_part, r);
    read_part(r, 0, 0);
    return 0;
}

typedef struct watched {
    const reading *r;
    double *cpu; /* by part, seconds */
} watched;

static void watch_part(void *argument, int64_t index, int worker)
{
    const watched *const w = argument;
    const double start = clock_seconds(), cpu = clock_thread_cpu_seconds();
    (void)worker;
    while (clock_seconds() - start < WATCH_SECONDS)
        reading_sink = reading_part(w->r, index);
    w->cpu[index] = clock_thread_cpu_seconds() - cpu;
}

double reading_running(const reading *r)
{
    watched w = { r, calloc((size_t)r->threads, sizeof(double)) };
    double cpu = 0;
    if (!w.cpu)
        return 0;
    const double start = clock_seconds();
    if (r->threads > 1)
        r->parallel_for(r->user, r->threads, watch_part, &w);
    else
        watch_part(&w, 0, 0);
    const double seconds = clock_seconds() - start;
    for (int i = 0; i < r->threads; i++)
        cpu += w.cpu[i];
    free(w.cpu);
    return cpu / (seconds * r->threads);
}

void reading_choose(reading *r)
{
    double best = -1;
    int fastest = 0;
    for (int i = 0; i < LOOPS; i++) {
        if (!reading_usable(i))
            continue;
        r->loop = i;
        for (int t = 0; t < TRIES; t++) {
            const double start = clock_seconds();
            reading_run(r);
            const double seconds = clock_seconds() - start;
            if (best >= 0 && seconds >= best)
                continue;
            best = seconds;
            fastest = i;
        }
    }
    r->loop = fastest;
}
