/* presets.h - named lists of cases.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_PRESETS_H
#define BENCH_PRESETS_H

#include "case.h"

enum { PRESETS_MAX_CASES = 1024, PRESETS_MAX_SEQ_LEN = 1048576 };

typedef struct case_list {
    bench_case cases[PRESETS_MAX_CASES + 1]; /* one more, for those that are lost */
    int n;
    int lost; /* cases that found no place: nothing may be measured then */
} case_list;

typedef struct preset_choice {
    int quick;           /* the reduced list */
    const char *kernels; /* NULL, or the only set wanted by presets that compare sets */
    int threads;         /* that presets compare with one thread */
    int64_t max_seq_len; /* of preset extreme */
    /* of preset dilated: */
    const bench_case *shape; /* its sizes are taken; NULL = the preset's */
    case_dilated dilated;    /* its branches are taken; none = the preset's */
    /* 0 = both, 1 = the first, 2 = the second: LSE or mean, strided or gathered, on or off */
    int ranks; /* most ranks of a ring; 0 = the preset's */
    int merge, variant, pattern_cache, memory_pool;
} preset_choice;

/* Appends the cases of a preset, or with "all" those of every one. 0 = no such preset. */
int preset_cases(const char *name, const preset_choice *want, case_list *list);

/* Appends the case of a text "B,Hq,Hkv,Sq,Skv,D[,Dv]"; 0 = not such a text. */
int shape_case(const char *text, case_list *list);

/* Name and purpose of preset i; 0 beyond the last. */
int preset_describe(int i, const char **name, const char **what);

#endif
