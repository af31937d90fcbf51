/* dilation.c - what the command line says of dilated attention, patterns and memory.
 * SPDX-License-Identifier: MIT */
#include "dilation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cases/masks.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* "N,N,..." of 1 to 2^28, up to so many; 0 = it is not such a text. */
static int parse_sizes(const char *text, int64_t sizes[DILATED_MAX_BRANCHES])
{
    int n = 0;
    for (;; text++) {
        char *end = NULL;
        errno = 0;
        const long value = strtol(text, &end, 10);
        if (n == DILATED_MAX_BRANCHES || end == text || errno || value < 1 || value > 1 << 28)
            return 0;
        sizes[n++] = value;
        text = end;
        if (!*text)
            return n;
        if (*text != ',')
            return 0;
    }
}

static const char *choose_branches(const bench_options *o, case_dilated *d, const char **about)
{
    *about = o->dilations;
    if (!o->segments && o->dilations)
        return "--dilations is of --segments, which is missing:";
    if (!o->segments)
        return NULL;
    *about = o->segments;
    d->branches = parse_sizes(o->segments, d->segment);
    if (!d->branches)
        return "--segments is W,W,..., 1 to 8 numbers from 1 to 268435456, not";
    for (int n = 0; n < d->branches; n++)
        d->dilation[n] = 1;
    *about = o->dilations;
    if (o->dilations && parse_sizes(o->dilations, d->dilation) != d->branches)
        return "--dilations is R,R,..., a number from 1 for each segment, not";
    return NULL;
}

/* 0 where nothing is said, 1 or 2 for one of the words, -1 for another word. */
static int choice_of(const char *said, const char *first, const char *second)
{
    if (!said)
        return 0;
    return !strcmp(said, first) ? 1 : !strcmp(said, second) ? 2 : -1;
}

const char *dilation_choose(const bench_options *o, preset_choice *want, const char **about)
{
    const struct {
        const char *said, *first, *second, *wrong;
        int *choice;
    } words[] = {
        { o->merge, "lse", "mean", "--merge is lse or mean, not", &want->merge },
        { o->variant, "strided", "gathered", "--variant is strided or gathered, not",
          &want->variant },
        { o->pattern_cache, "on", "off", "--pattern-cache is on or off, not",
          &want->pattern_cache },
        { o->memory_pool, "on", "off", "--memory-pool is on or off, not", &want->memory_pool },
    };
    for (int i = 0; i < LENGTH(words); i++) {
        *words[i].choice = choice_of(words[i].said, words[i].first, words[i].second);
        *about = words[i].said;
        if (*words[i].choice < 0)
            return words[i].wrong;
    }
    return choose_branches(o, &want->dilated, about);
}

void dilation_apply(const preset_choice *want, bench_case *c)
{
    if (c->fixed & FIXED_PATTERN)
        return;
    if (want->dilated.branches)
        c->dilated = want->dilated;
    if (want->merge)
        c->dilated.mean = want->merge == 2;
    if (want->variant)
        c->dilated.gathered = want->variant == 2;
    if (want->pattern_cache)
        c->pattern_anew = want->pattern_cache == 2;
    if (want->memory_pool)
        c->memory_anew = want->memory_pool == 2;
}

const char *dilation_unused(const preset_choice *want, const case_list *list)
{
    int dilated = 0, patterns = 0;
    for (int i = 0; i < list->n; i++) {
        const bench_case *const c = &list->cases[i];
        dilated |= c->dilated.branches > 0;
        patterns |= c->dilated.branches > 0 || mask_is_pattern(c->mask);
    }
    if (!dilated && (want->merge || want->variant))
        return want->merge ? "--merge" : "--variant";
    return !patterns && want->pattern_cache ? "--pattern-cache" : NULL;
}
