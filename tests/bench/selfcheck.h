/* selfcheck.h - the bench shows that it would notice: wrong results, wrong counts, wrong times.
 * SPDX-License-Identifier: MIT */
#ifndef ATTN_TESTS_BENCH_SELFCHECK_H
#define ATTN_TESTS_BENCH_SELFCHECK_H

#include "../../bench/run.h"
#include "plant.h"

/* Prints failures and the closing line; returns how many checks failed. device_only: of the paths
 * of the OpenCL device. */
int selfcheck(bench_context *context, int device_only);

/* ---- for the files of checks */

/* Counts a check, and says what and which value when it did not hold. */
void expect(int held, const char *what, double value);

void check_times(void);                       /* timing.c */
void check_masks(bench_context *context);     /* masks.c */
void check_counts(void);                      /* counts.c */
void check_lists(bench_context *context);     /* presets.c */
void check_runs(bench_context *context);      /* runs.c */
void check_caches(bench_context *context);    /* caches.c */
void check_gradients(bench_context *context); /* gradients.c */
void check_dilated(bench_context *context);   /* dilated.c: and rings */
void check_refusals(bench_context *context);  /* refusals.c */
void check_tunings(bench_context *context);   /* tuning.c */
void check_paths(bench_context *context);     /* paths.c: with phases */
void check_devices(bench_context *context);   /* devices.c */
void check_reports(bench_context *context);   /* reports.c: rankings, verdicts, winners */
void check_printed(void);                     /* printed.c: what the summary says */
void check_files(void);                       /* files.c: costs, exponents, JSON, baseline */

/* A row of preset p, scenario s, timed on one thread (reports.c). */
bench_result row(const char *path, const char *name, int64_t length, double ms, double kib);

#endif
