/* presets_dilated.c - preset dilated: dilated attention, masks of cells, rings, against dense.
 * SPDX-License-Identifier: MIT
 *
 * The first case of a group is dense; the others are timed in turn with it, on its tensors. A way to
 * compute the usual branches is a row of its own. */
#include "presets_list.h"

#include <string.h>

/* 2048/1 4096/2 8192/4 of 8192. */
#define USUAL "group=1 branches=4/1+2/2+1/4 "

const case_row dilated_rows[] = {
    { "forward", "dense", "group=1", NULL, NULL },
    { "forward", "strided lse", USUAL, NULL, NULL },
    { "forward", "strided lse, heads turned", USUAL "rotate=1", NULL, NULL },
    { "forward", "strided lse, head groups", USUAL "groups=1", NULL, NULL },
    { "forward", "strided lse, memory anew", USUAL "memory_anew=1", NULL, NULL },
    { "forward", "strided mean", USUAL "mean=1", NULL, NULL },
    { "forward", "gathered lse", USUAL "gathered=1", NULL, NULL },
    { "forward", "gathered lse, index anew", USUAL "gathered=1 pattern_anew=1", NULL, NULL },
    { "forward", "gathered lse, memory anew", USUAL "gathered=1 memory_anew=1", NULL, NULL },
    { "forward", "gathered lse, both anew", USUAL "gathered=1 pattern_anew=1 memory_anew=1", NULL,
      NULL },
    { "forward", "gathered mean", USUAL "gathered=1 mean=1", NULL, NULL },
    { "branches", "dense", "group=1", NULL, NULL },
    { "branches", "{branches}", "group=1 branches=4/1", NULL, NULL },
    { "branches", "{branches}, gathered", "group=1 branches=4/1 gathered=1", NULL, NULL },
    { "branches", "{branches}", "group=1 branches=1/4", NULL, NULL },
    { "branches", "{branches}, gathered", "group=1 branches=1/4 gathered=1", NULL, NULL },
    { "branches", "{branches}", "group=1 branches=1/16", NULL, NULL },
    { "branches", "{branches}, gathered", "group=1 branches=1/16 gathered=1", NULL, NULL },
    { "branches", "{branches}", "group=1 branches=8/1+1/8", NULL, NULL },
    { "branches", "{branches}, gathered", "group=1 branches=8/1+1/8 gathered=1", NULL, NULL },
    { "branches", "{branches}", "group=1 branches=16/1+8/2+4/4+2/8+1/16", NULL, NULL },
    { "branches", "{branches}, gathered", "group=1 branches=16/1+8/2+4/4+2/8+1/16 gathered=1", NULL,
      NULL },
    { "cells", "dense", "group=1", NULL, NULL },
    { "cells", "{mask}", "group=1 mask=local-global", NULL, NULL },
    { "cells", "{mask}, cells anew", "group=1 mask=local-global pattern_anew=1", NULL, NULL },
    { "cells", "{mask}, memory anew", "group=1 mask=local-global memory_anew=1", NULL, NULL },
    { "cells", "{mask}", "group=1 mask=local-strided", NULL, NULL },
    { "cells", "{mask}, cells anew", "group=1 mask=local-strided pattern_anew=1", NULL, NULL },
    { "cells", "{mask}, memory anew", "group=1 mask=local-strided memory_anew=1", NULL, NULL },
    { "cells", "{mask}", "group=1 mask=bigbird", NULL, NULL },
    { "cells", "{mask}, cells anew", "group=1 mask=bigbird pattern_anew=1", NULL, NULL },
    { "cells", "{mask}, memory anew", "group=1 mask=bigbird memory_anew=1", NULL, NULL },
    /* Every tenth cell of the whole square, by the size of the cells. */
    { "tenth of cells", "dense", "group=1 mask=full", "", NULL },
    { "tenth of cells", "cells of {mask_size}", "group=1 mask=blocks-tenth mask_size=64,128,256",
      "", NULL },
    { "backward", "dense", "group=1 backward=1", NULL, NULL },
    { "backward", "strided lse", USUAL "backward=1", NULL, NULL },
    { "backward", "strided lse, heads turned", USUAL "backward=1 rotate=1", NULL, NULL },
    { "backward", "strided lse, head groups", USUAL "backward=1 groups=1", NULL, NULL },
    { "backward", "strided lse, memory anew", USUAL "backward=1 memory_anew=1", NULL, NULL },
    { "backward", "strided mean", USUAL "backward=1 mean=1", NULL, NULL },
    /* Each way to divide the sequence, 1, 2, 4, ... ranks in turn. */
    { "ring", "{ranks}", "group=1 shares=threads ranks=doubled", NULL, "ring" },
    { "ring", "{ranks}", "group=2 shares=threads ranks=doubled", NULL, "ring_zigzag" },
    { "ring", "{ranks}", "group=3 shares=threads ranks=doubled", NULL, "ring_striped" },
    { "ring", "{ranks}", "group=4 shares=threads ranks=doubled", NULL, "all_gather" },
    { "ring, backward", "{ranks}", "backward=1 group=1 shares=threads ranks=doubled", "", "ring" },
    { "ring, backward", "{ranks}", "backward=1 group=2 shares=threads ranks=doubled", NULL,
      "ring_zigzag" },
    { "ring, backward", "{ranks}", "backward=1 group=3 shares=threads ranks=doubled", "",
      "ring_striped" },
    { "ring, backward", "{ranks}", "backward=1 group=4 shares=threads ranks=doubled", NULL,
      "all_gather" },
    { "ring, branches", "{ranks}", USUAL "shares=threads ranks=doubled", NULL, "ring" },
    { "ring, branches, backward", "{ranks}", USUAL "backward=1 shares=threads ranks=doubled", NULL,
      "ring" },
    { 0 },
};

/* What the command line leaves: a choice of 0 = both, 1 = the first, 2 = the second. */
static int left(int choice, int second)
{
    return !choice || choice == 1 + (second != 0);
}

static int is_way(const bench_case *c)
{
    return !strcmp(c->scenario, "forward") || !strcmp(c->scenario, "backward");
}

/* Branches of the command line take the place of the usual ones, and of everything that compares
 * others. */
int dilated_finish(const preset_choice *want, bench_case *c)
{
    const int ring = !strncmp(c->scenario, "ring", 4);
    if (want->dilated.branches && !ring && !is_way(c))
        return 0;
    if (!c->dilated.branches && (ring || c->shares == SHARES_NOTHING))
        return 1;
    if (want->dilated.branches) {
        c->dilated.branches = want->dilated.branches;
        memcpy(c->dilated.segment, want->dilated.segment, sizeof c->dilated.segment);
        memcpy(c->dilated.dilation, want->dilated.dilation, sizeof c->dilated.dilation);
    }
    return (!c->dilated.groups || c->heads_q >= c->dilated.branches) &&
           left(want->merge, c->dilated.mean) && left(want->variant, c->dilated.gathered) &&
           left(want->pattern_cache, c->pattern_anew) && left(want->memory_pool, c->memory_anew);
}
