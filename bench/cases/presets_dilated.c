/* presets_dilated.c - preset dilated: dilated attention, masks of cells, rings, against dense.
 * SPDX-License-Identifier: MIT
 *
 * The first case of a group is dense; the others are timed in turn with it, on its tensors. */
#include <stdio.h>

#include "../../attn.h"
#include "jobs.h"
#include "cases.h"
#include "presets_list.h"

enum { BATCH = 2, HEADS = 8, HEAD_DIM = 64, TOKENS = 8192, QUICK_TOKENS = 2048, MOST_RANKS = 8 };

/* Of a preset's own branches: parts of the length, and every so many positions of them. */
typedef struct branch_set {
    int branches;
    int part[DILATED_MAX_BRANCHES], dilation[DILATED_MAX_BRANCHES];
} branch_set;

static const branch_set usual = { 3, { 4, 2, 1 }, { 1, 2, 4 } }; /* 2048/1 4096/2 8192/4 of 8192 */

static const branch_set others[] = {
    { 1, { 4 }, { 1 } },
    { 1, { 1 }, { 4 } },
    { 1, { 1 }, { 16 } },
    { 2, { 8, 1 }, { 1, 8 } },
    { 5, { 16, 8, 4, 2, 1 }, { 1, 2, 4, 8, 16 } },
};

static void set_branches(const branch_set *set, bench_case *c)
{
    c->dilated.branches = set->branches;
    for (int n = 0; n < set->branches; n++) {
        const int64_t segment = c->seq_kv / set->part[n];
        c->dilated.segment[n] = segment > 0 ? segment : 1;
        c->dilated.dilation[n] = set->dilation[n];
    }
}

/* Those of the command line, or the usual ones. */
static void set_wanted(const preset_choice *want, bench_case *c)
{
    if (want->dilated.branches)
        c->dilated = want->dilated;
    else
        set_branches(&usual, c);
}

static void take_shape(bench_case *c, const bench_case *from)
{
    c->batch = from->batch;
    c->heads_q = from->heads_q;
    c->heads_kv = from->heads_kv;
    c->seq_q = from->seq_q;
    c->seq_kv = from->seq_kv;
    c->head_dim = from->head_dim;
    c->head_dim_v = from->head_dim_v;
}

static bench_case *long_case(case_list *list, const preset_choice *want, const char *scenario,
                             int group)
{
    bench_case *const c = case_append(list, "dilated", scenario);
    const int first = list->n < 2 || c[-1].group != group || c[-1].scenario != c->scenario;
    c->batch = BATCH;
    c->heads_q = c->heads_kv = HEADS;
    c->seq_q = c->seq_kv = want->quick ? QUICK_TOKENS : TOKENS;
    c->head_dim = c->head_dim_v = HEAD_DIM;
    if (want->shape)
        take_shape(c, want->shape);
    c->mask = MASK_CAUSAL;
    c->impl = "tiled";
    c->group = group;
    c->shares = first ? SHARES_NOTHING : SHARES_BUT_PATTERN;
    c->fixed = FIXED_PATTERN;
    snprintf(c->name, sizeof c->name, "dense");
    return c;
}

/* ---- what the command line leaves: a choice of 0 = both, 1 = the first, 2 = the second */

static int left(int choice, int second)
{
    return !choice || choice == 1 + (second != 0);
}

static int wanted(const preset_choice *want, const bench_case *c)
{
    return left(want->merge, c->dilated.mean) && left(want->variant, c->dilated.gathered) &&
           left(want->pattern_cache, c->pattern_anew) && left(want->memory_pool, c->memory_anew);
}

/* Takes the case that was appended last off the list again where it is not wanted. */
static void keep_wanted(case_list *list, const preset_choice *want, const bench_case *c)
{
    const int possible = !c->dilated.groups || c->heads_q >= c->dilated.branches;
    list->n -= !wanted(want, c) || !possible;
}

/* ---- forward and backward: every way to compute the same branches */

static const struct {
    const char *name;
    int gathered, mean, rotate, groups, pattern_anew, memory_anew, backward;
} ways[] = {
    { "strided lse", 0, 0, 0, 0, 0, 0, 1 },
    { "strided lse, heads turned", 0, 0, 1, 0, 0, 0, 1 },
    { "strided lse, head groups", 0, 0, 0, 1, 0, 0, 1 },
    { "strided lse, memory anew", 0, 0, 0, 0, 0, 1, 1 },
    { "strided mean", 0, 1, 0, 0, 0, 0, 1 },
    { "gathered lse", 1, 0, 0, 0, 0, 0, 0 },
    { "gathered lse, index anew", 1, 0, 0, 0, 1, 0, 0 },
    { "gathered lse, memory anew", 1, 0, 0, 0, 0, 1, 0 },
    { "gathered lse, both anew", 1, 0, 0, 0, 1, 1, 0 },
    { "gathered mean", 1, 1, 0, 0, 0, 0, 0 },
};

static void add_way(case_list *list, const preset_choice *want, int way, int backward)
{
    bench_case *const c = long_case(list, want, backward ? "backward" : "forward", 1);
    set_wanted(want, c);
    c->dilated.gathered = ways[way].gathered;
    c->dilated.mean = ways[way].mean;
    c->dilated.rotate = ways[way].rotate;
    c->dilated.groups = ways[way].groups;
    c->pattern_anew = ways[way].pattern_anew;
    c->memory_anew = ways[way].memory_anew;
    c->backward = backward;
    snprintf(c->name, sizeof c->name, "%s", ways[way].name);
    keep_wanted(list, want, c);
}

static void add_ways(case_list *list, const preset_choice *want, int backward)
{
    long_case(list, want, backward ? "backward" : "forward", 1)->backward = backward;
    for (int way = 0; way < LENGTH(ways); way++)
        if (!backward || ways[way].backward)
            add_way(list, want, way, backward);
}

/* ---- other branches */

static void add_others(case_list *list, const preset_choice *want)
{
    long_case(list, want, "branches", 1);
    for (int set = 0; set < LENGTH(others); set++)
        for (int gathered = 0; gathered < 2; gathered++) {
            char text[DILATED_TEXT];
            bench_case *const c = long_case(list, want, "branches", 1);
            set_branches(&others[set], c);
            c->dilated.gathered = gathered;
            dilated_text(c, text);
            if (others[set].branches > 2)
                snprintf(text, sizeof text, "%d branches", others[set].branches);
            snprintf(c->name, sizeof c->name, "%.32s%s", text, gathered ? ", gathered" : "");
            keep_wanted(list, want, c);
        }
}

/* ---- masks of cells: not dilated, but for the same use */

static void add_cells(case_list *list, const preset_choice *want)
{
    static const int masks[] = { MASK_LOCAL_GLOBAL, MASK_LOCAL_STRIDED, MASK_BIGBIRD };
    static const char *const how[] = { "", ", cells anew", ", memory anew" };
    long_case(list, want, "cells", 1);
    for (int m = 0; m < LENGTH(masks); m++)
        for (int h = 0; h < LENGTH(how); h++) {
            bench_case *const c = long_case(list, want, "cells", 1);
            c->mask = masks[m];
            c->pattern_anew = h == 1;
            c->memory_anew = h == 2;
            snprintf(c->name, sizeof c->name, "%s%s", mask_name(c->mask), how[h]);
            keep_wanted(list, want, c);
        }
}

/* Every tenth cell of the whole square, by the size of the cells. */
static void add_tenths(case_list *list, const preset_choice *want)
{
    static const int sizes[] = { 64, 128, 256 };
    long_case(list, want, "tenth of cells", 1)->mask = MASK_FULL;
    for (int i = 0; i < LENGTH(sizes); i++) {
        bench_case *const c = long_case(list, want, "tenth of cells", 1);
        c->mask = MASK_BLOCKS_TENTH;
        c->mask_size = sizes[i];
        snprintf(c->name, sizeof c->name, "cells of %d", sizes[i]);
        keep_wanted(list, want, c);
    }
}

/* ---- rings: each way to divide the sequence, 1, 2, 4, ... ranks in turn on the same tensors */

static void add_rank_case(case_list *list, const preset_choice *want, int way, int ranks,
                          int backward)
{
    static const char *const paths[] = { "ring", "ring_zigzag", "ring_striped", "all_gather" };
    bench_case *const c = long_case(list, want, backward ? "ring, backward" : "ring", way + 1);
    c->impl = paths[way];
    c->threads = ranks;
    c->shares = ranks > 1 ? SHARES_BUT_THREADS : SHARES_NOTHING;
    c->backward = backward;
    snprintf(c->name, sizeof c->name, "%d rank%s", ranks, ranks > 1 ? "s" : "");
}

static void add_ranks(case_list *list, const preset_choice *want, int backward)
{
    const int most = want->ranks > 0 ? want->ranks : MOST_RANKS;
    const int first = backward && want->quick;            /* zig-zag alone */
    const int end = backward ? (want->quick ? 2 : 3) : 4; /* a gathering ring has no gradients */
    for (int way = first; way < end; way++)
        for (int ranks = 1; ranks <= most; ranks *= 2)
            add_rank_case(list, want, way, ranks, backward);
}

void dilated_cases(case_list *list, const preset_choice *want)
{
    add_ways(list, want, 0);
    if (!want->dilated.branches)
        add_others(list, want);
    if (!want->dilated.branches)
        add_cells(list, want);
    if (!want->dilated.branches && !want->quick)
        add_tenths(list, want);
    add_ways(list, want, 1);
    add_ranks(list, want, 0);
    add_ranks(list, want, 1);
}
