/* masks.c - part of `bench selfcheck`: every mask counted pair by pair, every mask measured.
 * SPDX-License-Identifier: MIT
 *
 * The predicate is the oracle's, which reads the fields and arrays that the mask has set and shares
 * no code with the library or with the counts. */
#include <stdio.h>
#include <string.h>

#include "../oracle.h"
#include "../../bench/cases/cases.h"
#include "selfcheck.h"

static const struct {
    int batch, heads_q, heads_kv, seq_q, seq_kv;
} shapes[] = {
    { 1, 2, 1, 12, 20 },  { 2, 4, 2, 40, 48 },
    { 3, 1, 1, 7, 7 },    { 2, 2, 1, 33, 10 }, /* more rows */
    { 1, 2, 2, 70, 600 },                      /* cells of 64 */
    { 2, 2, 1, 1, 31 },   { 1, 1, 1, 1, 1 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static bench_case case_of(int shape, int kind)
{
    bench_case c = { .preset = "selfcheck", .scenario = "masks", .iterations = 1, .mask = kind };
    c.batch = shapes[shape].batch;
    c.heads_q = shapes[shape].heads_q;
    c.heads_kv = shapes[shape].heads_kv;
    c.seq_q = shapes[shape].seq_q;
    c.seq_kv = shapes[shape].seq_kv;
    c.head_dim = 16;
    c.head_dim_v = 8;
    c.data = DATA_NORMAL;
    return c;
}

/* The sizes alone: nothing here looks at q, k or v. */
static attn_params params_of(const bench_case *c)
{
    attn_params p = { 0 };
    p.batch = c->batch;
    p.num_heads_q = c->heads_q;
    p.num_heads_kv = c->heads_kv;
    p.seq_len_q = c->seq_q;
    p.seq_len_kv = c->seq_kv;
    p.head_dim = c->head_dim;
    return p;
}

static double count_pairs(const attn_params *p)
{
    double pairs = 0;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < oracle_rows(p, b); i++)
                for (int64_t j = 0; j < oracle_keys(p, b); j++)
                    pairs += oracle_visible(p, b, h, i, j) != 0;
    return pairs;
}

static void check_count(int shape, int kind)
{
    const bench_case c = case_of(shape, kind);
    attn_params p = params_of(&c);
    mask_arrays arrays;
    char what[96];
    snprintf(what, sizeof what, "pairs of mask %s, shape %d: %.0f", mask_name(kind), shape,
             mask_pairs(&c));
    expect(mask_set(&c, &p, &arrays), "a mask has memory", kind);
    const double counted = count_pairs(&p);
    expect(mask_pairs(&c) == counted, what, counted);
    mask_free(&arrays);
}

/* A pair shown too few is noticed: one byte of the boolean mask, one cell of the block mask. */
static void check_noticed(void)
{
    const bench_case boolean = case_of(1, MASK_BOOLEAN), blocks = case_of(4, MASK_BLOCKS);
    attn_params p = params_of(&boolean);
    mask_arrays arrays;
    if (!mask_set(&boolean, &p, &arrays))
        return;
    ((uint8_t *)arrays.owned[0])[1] = 0;
    expect(mask_pairs(&boolean) - count_pairs(&p) == 8, "a byte less hides 2 x 4 pairs",
           count_pairs(&p));
    mask_free(&arrays);
    p = params_of(&blocks);
    if (!mask_set(&blocks, &p, &arrays))
        return;
    ((uint8_t *)arrays.owned[0])[0] &= 0xfe;
    expect(mask_pairs(&blocks) - count_pairs(&p) == 2 * 64 * 64, "so does a cell less",
           count_pairs(&p));
    mask_free(&arrays);
}

/* Every mask with either path is right, and a spoilt result is refused; naive leaves no keys out. */
static void check_measured(bench_context *context, int shape, int kind)
{
    static const char *const impls[] = { "naive", "tiled" };
    const bench_case c = case_of(shape, kind);
    for (int n = kind == MASK_ALIBI_SKIP ? 2 : 0; n < 4; n++) {
        bench_result r;
        faults.spoil = n & 1;
        run_case(context, &c, impls[n / 2], &r);
        expect(faults.spoil ? run_was_wrong(&r) : !r.skipped[0], r.skipped[0] ? r.skipped : r.mask,
               kind);
        expect(!strcmp(r.mask, mask_name(kind)), "a result names its mask", kind);
    }
    faults.spoil = 0;
}

/* A group shares the tensors of its first case and is compared with that one. */
static void check_group_of_masks(bench_context *context)
{
    bench_case cases[3];
    bench_result r[3];
    for (int i = 0; i < 3; i++) {
        cases[i] = case_of(4, i == 2 ? MASK_WINDOW : MASK_FULL);
        cases[i].shares = i ? SHARES_BUT_MASK : SHARES_NOTHING;
        cases[i].iterations = 21;
    }
    run_group(context, cases, 3, "tiled", r);
    expect(r[0].speedup == 0, "the first of a group is compared with nothing", r[0].speedup);
    expect(r[1].speedup > 0.5 && r[1].speedup < 2, "the same mask takes the same time",
           r[1].speedup);
    expect(r[2].speedup > 1.2, "a window of an eighth takes less", r[2].speedup);
    expect(r[1].visible == 1 && r[2].visible > 0.1 && r[2].visible < 0.15, "share of pairs",
           r[2].visible);
    context->phases = 1;
    run_group(context, cases, 3, "tiled", r);
    context->phases = 0;
    expect(!r[0].skipped[0] && !r[1].skipped[0] && !r[2].skipped[0],
           "each has its phases, though all write to the same o", 0);
}

void check_masks(bench_context *context)
{
    for (int kind = 0; kind < NUM_MASKS; kind++) {
        expect(mask_find(mask_name(kind)) == kind, "a mask is found by its name", kind);
        for (int shape = 0; shape < SHAPES; shape++)
            check_count(shape, kind);
        check_measured(context, 1, kind);
        check_measured(context, 4, kind);
    }
    expect(mask_find("none") == -1, "an unknown mask is none", mask_find("none"));
    check_noticed();
    check_group_of_masks(context);
}
