/* presets_list.h - what the files of cases share; for bench/presets*.c only.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_PRESETS_LIST_H
#define BENCH_PRESETS_LIST_H

#include "cases.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* One more case, all zero but warm-up 2 and normal data. Beyond the last place it is counted in
 * list->lost and overwritten by the next. */
bench_case *case_append(case_list *list, const char *preset, const char *scenario);

/* Batch, heads, lengths and widths of another case. */
void case_take_shape(bench_case *c, const bench_case *from);

/* Calls add for the kernel set that is wanted, or for each that is made for this CPU's vector unit,
 * or else for the best there is. */
void each_native_set(case_list *list, const preset_choice *want,
                     void (*add)(case_list *list, int quick, const char *kernels));

void gemma_cases(case_list *list, const preset_choice *want);
void latency_cases(case_list *list, const preset_choice *want);
void llm_cases(case_list *list, const preset_choice *want);
void extreme_cases(case_list *list, const preset_choice *want);
void prefill_cases(case_list *list, const preset_choice *want);
void decode_cases(case_list *list, const preset_choice *want);
void threads_cases(case_list *list, const preset_choice *want);
void dilated_cases(case_list *list, const preset_choice *want);
void backward_cases(case_list *list, const preset_choice *want);
void cache_cases(case_list *list, const preset_choice *want);
void device_cases(case_list *list, const preset_choice *want);
void rank_cases(case_list *list, const preset_choice *want);
void masks_cases(case_list *list, const preset_choice *want);
void factors_cases(case_list *list, const preset_choice *want);

#endif
