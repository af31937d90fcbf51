/* selfcheck_files.h - checks of the parts that compute and read: costs, exponents, JSON, verdicts.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_SELFCHECK_FILES_H
#define BENCH_SELFCHECK_FILES_H

/* Prints failures; adds to *held how many checks held, returns how many failed. */
int selfcheck_files(int *held);

#endif
