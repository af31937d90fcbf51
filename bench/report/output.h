/* output.h - a file that is written whole or not at all.
 * SPDX-License-Identifier: MIT
 *
 * It is written to PATH.part, which takes the place of PATH at the end: an older file survives a
 * full disk. Devices, pipes and links are written as they are: renaming would replace them. */
#ifndef BENCH_OUTPUT_H
#define BENCH_OUTPUT_H

#include <stdio.h>

enum { OUTPUT_MAX_PATH = 4096 };

typedef struct output {
    const char *path;
    char part[OUTPUT_MAX_PATH]; /* what is written to; path itself where nothing is renamed */
    FILE *file;
} output;

/* NULL = it cannot be written; all print a sentence to stderr then. path must outlive *out. */
FILE *output_open(output *out, const char *path);

/* 1 = all of it is in its place now. */
int output_close(output *out);

/* 1 = the path can be written: tried without a change to a file that is there. */
int output_possible(const char *path);

/* Whether two paths that are possible name one file. */
int output_same(const char *a, const char *b);

#endif
