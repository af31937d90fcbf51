/* list.c - what `bench --list` prints.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include <stdio.h>

#include "jobs.h"

void list_presets(void)
{
    const char *name, *what;
    for (int i = 0; preset_describe(i, &name, &what); i++)
        printf("preset %-9s %s\n", name, what);
}

void list_masks(void)
{
    for (int kind = 0; kind < NUM_MASKS; kind++)
        printf("mask   %-15s %s\n", mask_name(kind), mask_what(kind));
}

/* How it is dilated: branches, merging, copies; "" = it is dense. */
static const char *branches_of(const bench_case *c, char *text, size_t text_bytes)
{
    char branches[DILATED_TEXT];
    text[0] = '\0';
    if (c->dilated.branches)
        snprintf(text, text_bytes, "  %s %s %s", dilated_text(c, branches), case_merge_name(c),
                 case_variant_name(c));
    return text;
}

static void list_case(const bench_case *c, int threads)
{
    char shape[160], branches[DILATED_TEXT + 32];
    printf("case   %-9s %-16s %-25s %-15s %-30s %-4s %-6s %3d %s%s\n", c->preset, c->scenario,
           c->name, mask_name(c->mask), case_shape(c, shape, sizeof shape),
           case_dtype_name(c->dtype), case_layout_name(mask_layout(c)),
           c->threads ? c->threads : threads, case_pass_name(c),
           branches_of(c, branches, sizeof branches));
}

void list_cases(const case_list *list, int threads)
{
    printf("       %-9s %-16s %-25s %-15s %-30s %-4s %-6s %s pass\n", "preset", "scenario", "case",
           "mask", "B,Hq,Hkv,Sq,Skv,D,Dv", "type", "layout", "thr");
    for (int i = 0; i < list->n; i++)
        list_case(&list->cases[i], threads);
}
