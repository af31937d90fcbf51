/* clock.c - time, and how fast the core runs at this moment.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__ || defined __MINGW32__
#define _POSIX_C_SOURCE 200809L
#endif
#include "clock.h"

#include <time.h>

#ifdef CLOCK_MONOTONIC
static double read_clock(clockid_t id)
{
    struct timespec t;
    return clock_gettime(id, &t) ? 0 : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#define MONOTONIC read_clock(CLOCK_MONOTONIC)
#else
#define MONOTONIC ((double)clock() / CLOCKS_PER_SEC)
#endif

#ifdef CLOCK_PROCESS_CPUTIME_ID
#define PROCESS_TIME read_clock(CLOCK_PROCESS_CPUTIME_ID)
#else
#define PROCESS_TIME 0
#endif

#ifdef CLOCK_THREAD_CPUTIME_ID
#define THREAD_TIME read_clock(CLOCK_THREAD_CPUTIME_ID)
#else
#define THREAD_TIME 0
#endif

#if defined __GNUC__ && (defined __x86_64__ || defined __i386__)
uint64_t clock_ticks(void)
{
    return __builtin_ia32_rdtsc();
}
#elif defined __GNUC__ && defined __aarch64__
uint64_t clock_ticks(void)
{
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
}
#else
uint64_t clock_ticks(void)
{
    return (uint64_t)(1e9 * clock_seconds());
}
#endif

double clock_seconds(void)
{
    return MONOTONIC;
}

double clock_cpu_seconds(void)
{
    return PROCESS_TIME;
}

double clock_thread_cpu_seconds(void)
{
    return THREAD_TIME;
}

#ifdef __GNUC__
/* The empty asm makes the compiler keep every single add; a register operand, since newer cores
 * fold adds of a constant away when they rename registers. */
#define ADD                                                                                        \
    __asm__ volatile("" : "+r"(x) : "r"(step));                                                    \
    x += step;
#define ADD4 ADD ADD ADD ADD
#define ADD16 ADD4 ADD4 ADD4 ADD4

enum { CHAIN = 32768, CHAINS = 3 };

static unsigned long chain_sink;

static double time_chain(void)
{
    unsigned long x = chain_sink, step = chain_sink | 1;
    const double start = clock_seconds();
    for (int i = 0; i < CHAIN / 64; i++) {
        ADD16 ADD16 ADD16 ADD16
    }
    __asm__ volatile("" : "+r"(x));
    const double seconds = clock_seconds() - start;
    chain_sink = x;
    return seconds;
}

double clock_hertz(void)
{
    double best = time_chain();
    for (int i = 1; i < CHAINS; i++) { /* the shortest: an interrupt only ever lengthens it */
        const double t = time_chain();
        if (t < best)
            best = t;
    }
    return best > 0 ? CHAIN / best : 0;
}
#else
double clock_hertz(void)
{
    return 0;
}
#endif
