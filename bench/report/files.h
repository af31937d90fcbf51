/* files.h - where results go: the files that the command line names.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_FILES_H
#define BENCH_FILES_H

#include "../options.h"
#include "../run.h"

enum { FILES_MAX_PATH = 4000 };

/* folder/name to path[FILES_MAX_PATH]; the folder is there now. These return 0 when it cannot be,
 * and a sentence was printed to stderr. */
int files_inside(const char *folder, const char *name, char *path);

/* Whether --json, --csv and --output-dir can be written, each to a file of its own. */
int files_possible(const bench_options *o);

/* --json, --csv and --output-dir, each said on stdout; 1 = all that were asked for are written. */
int files_write(const bench_options *o, const bench_context *x, const bench_result *results, int n);

#endif
