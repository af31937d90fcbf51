/* machine.h - what the program runs on.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <stdint.h>

typedef struct machine_info {
    char cpu[96];       /* model name, "unknown" where the system does not tell */
    char isa[160];      /* vector extensions found */
    const char *system; /* "linux", ... */
    const char *compiler, *flags, *revision; /* of this binary */
    int cpus;                                /* online */
    int64_t l1d, l2, l3;                     /* bytes; 0 = unknown */
    int64_t memory;                          /* bytes of the machine; 0 = unknown */
    int64_t memory_usable; /* the same or less: address space limit, container limit */
} machine_info;

void machine_describe(machine_info *out);

#endif
