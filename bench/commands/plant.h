/* plant.h - faults on purpose, which the bench must notice: a slow kernel, a wrong one.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_PLANT_H
#define BENCH_PLANT_H

#include "../../attn.h"
#include "../measure.h"

/* A copy of a kernel set, with its name, whose kernel of that name ("qk", "pv", of gradients
 * "outer" and "gradient", too) makes the first number of its result 7; NULL = no such kernel. The
 * next call of either function changes the copy. */
const attn_kernels *plant_wrong(const attn_kernels *right, const char *product);

/* A copy of a kernel set that repeats some of its products Q K^T; none yet: plant_calibrate
 * measures how many slow down a call as wanted. For one thread. */
const attn_kernels *plant_slow(const attn_kernels *right);

/* call must use the set of plant_slow. Returns the percent of clock cycles that it takes more
 * now, measured in turn with the same call without a fault, and says so; negative = it failed. A
 * case that was calibrated before, by its name and implementation, is not again. */
double plant_calibrate(double percent, const char *name, const char *impl, measure_fn call,
                       void *arg);

#endif
