/* dilation.h - what the command line says of dilated attention, patterns and memory.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_DILATION_H
#define BENCH_DILATION_H

#include "cases/presets.h"
#include "options.h"

/* Fills in what want has of it. NULL = understood; else what is wrong, and *about: with what. */
const char *dilation_choose(const bench_options *o, preset_choice *want, const char **about);

/* Makes a case what was chosen, unless its preset's list has heeded it. */
void dilation_apply(const preset_choice *want, bench_case *c);

/* An option that no case of the list has a use for; NULL = none. */
const char *dilation_unused(const preset_choice *want, const case_list *list);

#endif
