/* dilated.c - part of `bench selfcheck`: dilated attention and rings are counted and measured
 * right, and a wrong result of either is refused.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../bench/cases/jobs.h"
#include "../../bench/cases/cases.h"
#include "../../bench/bench.h"
#include "selfcheck.h"

static case_list list;

static const struct {
    const char *shape;
    case_dilated dilated;
} cases[] = {
    { "1,2,1,40,40,16,8", { .branches = 1, .segment = { 16 }, .dilation = { 1 } } },
    { "2,4,2,50,50,16", { .branches = 1, .segment = { 50 }, .dilation = { 3 } } },
    { "1,4,4,64,64,8", { .branches = 3, .segment = { 16, 32, 64 }, .dilation = { 1, 2, 4 } } },
    { "2,4,2,45,45,16",
      { .branches = 2, .segment = { 10, 45 }, .dilation = { 2, 5 }, .rotate = 1 } },
    { "1,6,3,70,70,8",
      { .branches = 3, .segment = { 7, 20, 90 }, .dilation = { 1, 3, 7 }, .groups = 1 } },
    { "1,2,2,20,60,16",
      { .branches = 2, .segment = { 16, 60 }, .dilation = { 1, 4 }, .rotate = 1 } },
};

enum { CASES = sizeof cases / sizeof *cases };

static bench_case *case_of(int n, int causal)
{
    list.n = 0;
    shape_case(cases[n].shape, &list);
    bench_case *const c = list.cases;
    c->dilated = cases[n].dilated;
    c->mask = causal ? MASK_CAUSAL : MASK_FULL;
    c->iterations = 1;
    return c;
}

/* ---- pairs, one by one */

static double count_pairs(const bench_case *c)
{
    double pairs = 0;
    for (int64_t h = 0; h < c->heads_q; h++)
        for (int64_t i = 0; i < c->seq_q; i++)
            for (int64_t j = 0; j < c->seq_kv; j++)
                if (c->mask != MASK_CAUSAL || j <= i + c->seq_kv - c->seq_q)
                    pairs += dilated_times(c, h, i, j);
    return pairs * (double)c->batch;
}

/* What these counts rest on, by hand: 6 positions, every other of segments of 4. */
static void check_by_hand(void)
{
    bench_case c = { .batch = 1, .heads_q = 2, .heads_kv = 2, .seq_q = 6, .seq_kv = 6 };
    c.dilated.branches = 1;
    c.dilated.segment[0] = 4;
    c.dilated.dilation[0] = 2;
    expect(dilated_times(&c, 0, 0, 2) == 1 && dilated_times(&c, 0, 2, 0) == 1, "0 and 2", 0);
    expect(!dilated_times(&c, 0, 1, 3) && !dilated_times(&c, 0, 2, 4), "1, 3; 2, 4", 0);
    expect(dilated_pairs(&c) == 2 * (4 + 1), "two, then one position of each head",
           dilated_pairs(&c));
    c.dilated.rotate = 1;
    expect(dilated_times(&c, 1, 1, 3) == 1 && !dilated_times(&c, 1, 0, 2), "head 1 begins at 1", 0);
    c.mask = MASK_CAUSAL;
    expect(dilated_pairs(&c) == 2 * (3 + 1), "causal", dilated_pairs(&c));
}

static void check_pairs(void)
{
    for (int n = 0; n < CASES; n++)
        for (int causal = 0; causal < 2; causal++) {
            const bench_case *const c = case_of(n, causal);
            expect(dilated_pairs(c) == count_pairs(c), "pairs of dilated attention",
                   dilated_pairs(c) - count_pairs(c));
        }
}

/* ---- every way is right and noticed where it is wrong */

static int is_right(bench_context *x, const bench_case *c)
{
    bench_result r;
    run_case(x, c, "tiled", &r);
    if (r.skipped[0] && !run_was_wrong(&r))
        expect(0, r.skipped, c->backward);
    return !r.skipped[0];
}

static void check_case(bench_context *x, const bench_case *c)
{
    expect(is_right(x, c), "dilated attention is right", c->backward);
    faults.spoil = 1;
    expect(!is_right(x, c), "a spoilt row of it is refused", c->backward);
    faults.spoil = 0;
}

static void check_ways(bench_context *x)
{
    for (int n = 0; n < CASES; n++)
        for (int way = 0; way < 16; way++) {
            bench_case *const c = case_of(n, way & 1);
            c->dilated.mean = (way & 2) != 0;
            c->dilated.gathered = (way & 12) == 4;
            c->memory_anew = c->pattern_anew = (way & 12) == 8;
            c->backward = (way & 12) == 12;
            check_case(x, c);
        }
}

/* A call that is told something else than the case says. */
static void check_faults(bench_context *x)
{
    bench_result r;
    int wrong = 0;
    for (int fault = DILATED_LENGTH; fault < DILATED_FAULTS; fault++)
        for (int way = 0; way < 4; way++) {
            bench_case *const c = case_of(3, 1);
            c->dilated.gathered = way == 1;
            c->dilated.mean = way == 2;
            c->backward = way == 3;
            faults.branches = (dilated_fault)fault;
            run_case(x, c, "tiled", &r);
            expect(r.skipped[0] != 0, "other branches are refused", 4 * fault + way);
            wrong += run_was_wrong(&r);
        }
    faults.branches = DILATED_RIGHT;
    expect(wrong >= 4 * (DILATED_FAULTS - 1) - 1, "by their results, but for a mean with lse",
           wrong);
}

static void check_memory(bench_context *x)
{
    bench_result r[2];
    for (int gathered = 0; gathered < 2; gathered++) {
        bench_case *const c = case_of(2, 1);
        c->dilated.gathered = gathered;
        run_case(x, c, "tiled", &r[gathered]);
    }
    expect(!strcmp(r[0].variant, "strided") && !strcmp(r[1].variant, "gathered") &&
               !strcmp(r[0].branches, "16/1 32/2 64/4") && !strcmp(r[0].merge, "lse"),
           "a result says what it is of", 0);
    expect(!strcmp(r[0].pattern_cache, "") && !strcmp(r[1].pattern_cache, "on"),
           "an index that is kept", 0);
    expect(r[1].workspace_bytes > 4 * 64 * 4 * 8, "copies are in the workspace",
           (double)r[1].workspace_bytes);
}

/* ---- cells that are built in every call */

static void check_cells(bench_context *x)
{
    for (int anew = 0; anew < 4; anew++) {
        bench_result r;
        bench_case *const c = case_of(2, 1);
        memset(&c->dilated, 0, sizeof c->dilated);
        c->mask = MASK_BIGBIRD;
        c->pattern_anew = anew & 1;
        c->memory_anew = anew >> 1;
        run_case(x, c, "tiled", &r);
        expect(!r.skipped[0] && !strcmp(r.pattern_cache, anew & 1 ? "off" : "on") &&
                   !strcmp(r.memory_pool, anew & 2 ? "off" : "on"),
               "cells built anew", anew);
    }
}

/* ---- rings */

static const char *const rings[] = { "ring", "ring_zigzag", "ring_striped", "all_gather" };

static bench_case *ring_case(int64_t length, int ranks)
{
    char text[64];
    list.n = 0;
    snprintf(text, sizeof text, "2,4,2,%lld,%lld,16,8", (long long)length, (long long)length);
    shape_case(text, &list);
    list.cases->mask = MASK_CAUSAL;
    list.cases->iterations = 1;
    list.cases->threads = ranks;
    return list.cases;
}

/* Segments that ranks share, and such as lie within one. */
static void set_branches(bench_case *c)
{
    const case_dilated d = { .branches = 2, .segment = { 32, 150 }, .dilation = { 1, 3 } };
    c->dilated = d;
}

static void check_ring(bench_context *x, const char *path, int ranks, int backward, int branches)
{
    bench_result r;
    bench_case *const c = ring_case(150, ranks);
    c->backward = backward;
    if (branches)
        set_branches(c);
    for (int fault = 0; fault < 3; fault++) {
        faults.spoil = fault == 1;
        faults.ranks = fault == 2;
        run_case(x, c, path, &r);
        const int wrong = fault == 1 || (fault == 2 && ranks > 1);
        expect(wrong ? run_was_wrong(&r) : !r.skipped[0], r.skipped[0] ? r.skipped : path,
               ranks + 10 * fault);
        if (!fault)
            expect(r.ranks == ranks, "a ring says of how many", (double)r.ranks);
    }
    faults.spoil = faults.ranks = 0;
}

/* Every rank sends what it has to each of the others; of two runs the second has three quarters. */
static void check_ring_figures(bench_context *x)
{
    bench_result r;
    run_case(x, ring_case(64, 2), "ring", &r);
    expect(r.moved_bytes == r.kv_bytes, "two ranks send k and v once", (double)r.moved_bytes);
    expect(fabs(r.rank_balance - 1.5) < 0.05, "causal, in two runs", r.rank_balance);
    run_case(x, ring_case(64, 2), "ring_zigzag", &r);
    expect(fabs(r.rank_balance - 1) < 0.05, "zig-zag is balanced", r.rank_balance);
    run_case(x, ring_case(64, 1), "ring", &r);
    expect(r.moved_bytes == 0 && r.rank_balance == 1, "one rank sends nothing",
           (double)r.moved_bytes);
}

static void check_rings(bench_context *x)
{
    bench_result r;
    pool *const before = x->workers;
    x->workers = pool_create(3); /* of the loops that measure what ranks could read */
    if (!x->workers)
        return;
    for (size_t n = 0; n < sizeof rings / sizeof *rings; n++)
        for (int ranks = 1; ranks <= 3; ranks++)
            for (int backward = 0; backward < 2; backward++)
                check_ring(x, rings[n], ranks, backward, 0);
    for (int ranks = 1; ranks <= 3; ranks++)
        for (int backward = 0; backward < 2; backward++)
            check_ring(x, "ring", ranks, backward, 1);
    check_ring_figures(x);
    pool_destroy(x->workers);
    x->workers = before;
    memset(&case_of(5, 1)->dilated, 0, sizeof(case_dilated));
    run_case(x, list.cases, "ring", &r);
    expect(strstr(r.skipped, "as many of both") != NULL, "fewer rows than keys: no ring", 0);
    for (size_t n = 1; n < sizeof rings / sizeof *rings; n++) {
        bench_case *const c = ring_case(150, 2);
        set_branches(c);
        run_case(x, c, rings[n], &r);
        expect(strstr(r.skipped, "branches are divided in runs") != NULL, rings[n], 0);
    }
}

/* ---- the list, and what the command line leaves of it */

static int count_where(int (*holds)(const bench_case *c))
{
    int n = 0;
    for (int i = 0; i < list.n; i++)
        n += holds(&list.cases[i]) != 0;
    return n;
}

static int is_dilated(const bench_case *c)
{
    return c->dilated.branches > 0;
}

static int is_gathered(const bench_case *c)
{
    return c->dilated.gathered;
}

static int is_anew(const bench_case *c)
{
    return c->pattern_anew || c->memory_anew;
}

static int has_shape(const bench_case *c)
{
    return c->batch == 2 && c->heads_q == 8 && c->heads_kv == 8 && c->seq_q == 8192 &&
           c->seq_kv == 8192 && c->head_dim == 64 && c->head_dim_v == 64;
}

/* In groups that fit, each begins with what the others are compared with: dense attention, or one rank. */
static int groups_fit(void)
{
    int good = 1;
    for (int i = 0, length = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        const int begins = !i || c->group != c[-1].group || strcmp(c->scenario, c[-1].scenario);
        length = begins ? 1 : length + 1;
        good &= length <= RUN_MAX_GROUP && c->group > 0 && begins == !c->shares;
        good &= !begins || !is_dilated(c) || (c->impl && !strcmp(c->impl, "ring"));
    }
    return good;
}

static void take(const preset_choice *want)
{
    list.n = list.lost = 0;
    preset_cases("dilated", want, &list);
}

static void check_list(void)
{
    preset_choice want = { .threads = 2, .max_seq_len = 1 << 20 };
    take(&want);
    expect(list.n > 60 && count_where(has_shape) == list.n, "dilated: 2 x 8 x 8192 x 64", list.n);
    expect(groups_fit(), "dilated: groups fit and begin dense", list.n);
    expect(count_where(dilated_is_mean) > 1 && count_where(is_gathered) > 1 &&
               count_where(is_anew) > 1,
           "dilated: every way", count_where(dilated_is_mean));
    want.merge = want.variant = want.pattern_cache = want.memory_pool = 1;
    take(&want);
    expect(!count_where(dilated_is_mean) && !count_where(is_gathered) && !count_where(is_anew) &&
               count_where(is_dilated) > 1,
           "one way alone", count_where(is_dilated));
    want.variant = 2;
    take(&want);
    expect(count_where(is_gathered) == count_where(is_dilated), "gathered alone", list.n);
}

/* What the command line says: *o has it; NULL = it is understood. */
static const char *chosen(const bench_options *o, preset_choice *want)
{
    const char *about;
    memset(want, 0, sizeof *want);
    want->merge = o->merge;
    return dilation_choose(o, want, &about);
}

static void check_options(void)
{
    preset_choice want;
    bench_options o = { .segments = "16,32", .dilations = "1,4", .merge = 2 };
    bench_case c = { .batch = 1 };
    expect(!chosen(&o, &want) && want.dilated.branches == 2 && want.dilated.segment[1] == 32 &&
               want.dilated.dilation[1] == 4 && want.merge == 2,
           "two branches", 0);
    dilation_apply(&want, &c);
    expect(c.dilated.branches == 2 && c.dilated.mean && !c.dilated.gathered, "of any case", 0);
    o.dilations = NULL;
    expect(!chosen(&o, &want) && want.dilated.dilation[1] == 1, "every position", 0);
    o.dilations = "1";
    expect(chosen(&o, &want) != NULL, "fewer dilations than segments are refused", 0);
    o.dilations = "1,4,";
    expect(chosen(&o, &want) != NULL, "so is an empty number", 0);
    o.dilations = "1,4";
    o.segments = NULL;
    expect(chosen(&o, &want) != NULL, "so are dilations alone", 0);
}

void check_dilated(bench_context *context)
{
    check_by_hand();
    check_pairs();
    check_ways(context);
    check_faults(context);
    check_memory(context);
    check_cells(context);
    check_rings(context);
    check_list();
    check_options();
}
