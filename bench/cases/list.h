/* list.h - what `bench --list` prints.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_LIST_H
#define BENCH_LIST_H

#include "presets.h"

void list_presets(void);
void list_masks(void);

/* threads: of cases that do not say. */
void list_cases(const case_list *list, int threads);

#endif
