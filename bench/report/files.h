/* files.h - where results go: the files that the command line names.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_FILES_H
#define BENCH_FILES_H

#include "../options.h"
#include "../run.h"

/* 1 = the folder is there now; 0 = not, and a sentence was printed to stderr. */
int files_folder(const char *path);

/* --json, --csv and --output-dir, each said on stdout; 1 = all that were asked for are written. */
int files_write(const bench_options *o, const bench_context *x, const bench_result *results, int n);

#endif
