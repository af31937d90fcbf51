/* presets_list.h - what the files of cases share, and who appends cases.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_PRESETS_LIST_H
#define BENCH_PRESETS_LIST_H

#include "cases.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* A row of a preset's table, in words: see rows.c. */
typedef struct case_row {
    const char *scenario; /* NULL = the kernel set: a row for each native one */
    const char *name;     /* {key} stands for the value of a word */
    const char *whole;    /* "" = no cases */
    const char *quick;    /* the short list; NULL = the whole one */
    const char *impl;     /* NULL = the preset's; "" = those of the command line */
} case_row;

typedef struct case_preset {
    const char *name, *what;
    const char *all, *all_quick; /* words before those of every row; all_quick NULL = the same */
    const char *impl;
    int fixed;
    int shaped;           /* takes --shape and single sizes */
    const case_row *rows; /* to the first without a name */
    /* Of each case, when it has its name; 0 = it is not wanted. NULL = nothing. */
    int (*finish)(const preset_choice *want, bench_case *c);
} case_preset;

/* Appends the cases of a table. */
void case_rows(const case_preset *preset, const preset_choice *want, case_list *list);

/* One more case, all zero but warm-up 2 and normal data. Beyond the last place it is counted in
 * list->lost and overwritten by the next. */
bench_case *case_append(case_list *list, const char *preset, const char *scenario);

extern const case_row dilated_rows[];
int dilated_finish(const preset_choice *want, bench_case *c);

#endif
