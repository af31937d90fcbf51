/* info.h - what this machine can do: measured peaks, kernel sets, paths and why not, two plans.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_INFO_H
#define BENCH_INFO_H

#include "../options.h"
#include "../run.h"

/* Prints it, and writes the files that are asked for; returns the exit status. */
int info_command(const bench_options *o, bench_context *x);

#endif
