/* kernels.h - times the single kernels of the sets, each checked against the portable set first.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include <stdint.h>

#include "../../attn.h"
#include "../run.h"

enum { KERNEL_KEYS = 128 };

/* What one kernel of one set did. Values that a kernel does not have are 0. */
typedef struct kernel_result {
    const char *set, *kernel;
    int64_t rows, keys, head_dim;
    double cycles, cycles_per_element, pct_fma_peak, ns_per_exp, cycles_per_exp, bytes_per_cycle;
    int wrong; /* differs from the portable set or wrote nothing: not timed */
} kernel_result;

/* Name of entry i of the kernel table; NULL beyond the last. */
const char *kernel_name(int i);

/* Checks entry i of a set against the portable set, then times it unless x is NULL. spoil flips a
 * bit of one element of the result before the check. 0 = no memory. */
int kernel_measure(const bench_context *x, const attn_kernels *set, int64_t head_dim, int i,
                   int spoil, kernel_result *r);

/* `bench kernels`: every entry of x->kernels, or of each set, for head_dim or 64, 128 and 256 (0),
 * x->kernel_samples samples of each; csv may be NULL. Returns the exit status. */
int kernels_command(bench_context *x, int64_t head_dim, const char *csv);

#endif
