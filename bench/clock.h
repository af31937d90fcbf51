/* clock.h - time, and how fast the core runs at this moment.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_CLOCK_H
#define BENCH_CLOCK_H

#include <stdint.h>

/* Seconds since some fixed moment, monotonic. */
double clock_seconds(void);

/* Seconds for which CPUs ran this process, all its threads together; 0 = unknown. */
double clock_cpu_seconds(void);

/* The same of the calling thread alone; of its own time a thread is told to the nanosecond, of that
 * of others, which run on, only what the last tick knew. */
double clock_thread_cpu_seconds(void);

/* The cheapest counter that the machine has, in ticks of its own: the time stamp counter of x86,
 * the virtual counter of AArch64, else nanoseconds. What a tick is worth tells clock_seconds over
 * the same stretch. */
uint64_t clock_ticks(void);

/* Clock rate in Hz measured now, in about 30 microseconds, by a chain of dependent integer adds
 * (one cycle each on every core of the last decades); 0 when the compiler offers no way to keep the
 * chain. Cores of shared machines wander by 8 % within minutes: a percentage of peak needs the
 * clock of the same moment. */
double clock_hertz(void);

#endif
