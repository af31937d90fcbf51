/* presets.h - named lists of cases.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_PRESETS_H
#define BENCH_PRESETS_H

#include "case.h"

enum { PRESETS_MAX_CASES = 128 };

typedef struct case_list {
    bench_case cases[PRESETS_MAX_CASES];
    int n;
} case_list;

/* Appends the cases of a preset, all or the reduced list of --quick.
 * 1 = done; 0 = no such preset; -1 = it is planned but not available. */
int preset_cases(const char *name, int quick, case_list *list);

/* Appends the case of a text "B,Hq,Hkv,Sq,Skv,D[,Dv]"; 0 = not such a text. */
int shape_case(const char *text, case_list *list);

/* Name and purpose of preset i; 0 beyond the last. */
int preset_describe(int i, const char **name, const char **what, int *available);

#endif
