/* tuning.h - texts for p.tuning: composed, read from a file, shown to the library.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_TUNING_H
#define BENCH_TUNING_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { TUNING_BYTES = 1024, TUNING_MAX_SETTINGS = 12, TUNING_MAX_FILE = 1 << 20 };

typedef struct tuning_setting {
    const char *set, *name; /* a kernel set and a word of attn.h, p.tuning */
    int64_t value;
    double gain, noise; /* measured; for the comment */
} tuning_setting;

typedef struct tuning_list {
    tuning_setting settings[TUNING_MAX_SETTINGS];
    int n;
} tuning_list;

void tuning_add(tuning_list *list, const char *set, const char *name, int64_t value, double gain,
                double noise);

/* A text of these settings and, unless value is negative, of one more. */
void tuning_compose(char text[TUNING_BYTES], const tuning_list *list, const char *set,
                    const char *name, int64_t value);

/* What is left of a file, ended by a zero byte, to be freed; NULL = it cannot be read or is
 * larger than TUNING_MAX_FILE. */
char *tuning_load(FILE *f);

/* The same of a path; prints a sentence to stderr where it cannot be read. */
char *tuning_read(const char *path);

/* 1 = the library takes the text; 0 = it ignores it, and why holds its sentence. */
int tuning_taken(const char *text, char *why, size_t why_bytes);

/* 1 = small calls of several kinds have the same bits with the text and without. spoil changes one
 * bit of a result: must be noticed. */
int tuning_same_bits(const char *text, int spoil);

#endif
