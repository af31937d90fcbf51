/* gradients.c - the bench measures gradients as it says, and notices what is wrong in them.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../attn.h"
#include "../../bench/cases/cases.h"
#include "selfcheck.h"

static case_list list;

static const char *const impls[] = { "naive", "tiled" };

/* ---- the list */

static void take(int quick)
{
    const preset_choice want = {
        .quick = quick, .kernels = "portable", .threads = 3, .max_seq_len = 65536
    };
    list.n = list.lost = 0;
    preset_cases("backward", &want, &list);
}

static int count(const char *scenario)
{
    int n = 0;
    for (int i = 0; i < list.n; i++)
        n += !strcmp(list.cases[i].scenario, scenario);
    return n;
}

static int named_before(int at)
{
    for (int i = 0; i < at; i++)
        if (!strcmp(list.cases[i].scenario, list.cases[at].scenario) &&
            !strcmp(list.cases[i].name, list.cases[at].name) &&
            list.cases[i].threads == list.cases[at].threads)
            return 1;
    return 0;
}

/* Neighbours of a group have one shape, and the first of them shares with none. */
static void check_groups(void)
{
    int good = 1;
    for (int i = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        const int begins =
            i == 0 || c->group == 0 || c->group != c[-1].group || c->scenario != c[-1].scenario;
        good &= c->backward && !named_before(i);
        good &= !begins || c->shares == SHARES_NOTHING;
        good &= begins || (c->seq_q == c[-1].seq_q && c->heads_q == c[-1].heads_q);
    }
    expect(good && list.lost == 0, "backward: groups of one shape, names that differ", list.n);
}

static void check_list(void)
{
    take(0);
    expect(count("portable") == 24, "backward: 3 widths, 4 lengths, full and causal",
           count("portable"));
    expect(count("naive and tiled") == 8 && count("grouped") == 4 && count("storage") == 6,
           "backward: naive, groups, storage", list.n);
    expect(count("modifiers") == 5 && count("products") == 8 && count("threads") == 4,
           "backward: modifiers, products, threads", list.n);
    check_groups();
    take(1);
    expect(list.n > 20, "backward --quick: each scenario", list.n);
    check_groups();
}

/* ---- costs on paper: those of check_model, which are 120 pairs */

static void check_model(void)
{
    bench_case c = { .batch = 2,
                     .heads_q = 4,
                     .heads_kv = 2,
                     .seq_q = 3,
                     .seq_kv = 5,
                     .head_dim = 16,
                     .head_dim_v = 8,
                     .backward = 1 };
    bench_model m;
    model_of(&c, &m);
    expect(m.flops == 2 * 120 * (3 * 16 + 2 * 8), "FLOPs of five products", m.flops);
    expect(m.kv_bytes == 4 * 20 * 24, "bytes of k and v alone", m.kv_bytes);
    expect(m.tensor_bytes == 2 * 4224 + 8 * 24, "tensors, their gradients and stats",
           m.tensor_bytes);
    expect(model_theory_bytes(&c, 1, 3, 7) == 360, "naive: probabilities and their gradients", 0);
    expect(model_theory_bytes(&c, 1, 9, 7) == 480, "of each of four kv heads at most", 0);
}

/* ---- right gradients are timed, wrong ones are not */

static bench_case case_of(int kind)
{
    const bench_case c = { .preset = "selfcheck",
                           .scenario = "gradients",
                           .batch = 2,
                           .heads_q = 4,
                           .heads_kv = 2,
                           .seq_q = 21,
                           .seq_kv = 26,
                           .head_dim = 16,
                           .head_dim_v = 8,
                           .iterations = 1,
                           .data = DATA_NORMAL,
                           .mask = kind,
                           .backward = 1 };
    return c;
}

static void expect_refused(bench_context *x, const bench_case *c, const char *impl, int row)
{
    bench_result r;
    faults.spoil = row;
    run_case(x, c, impl, &r);
    faults.spoil = 0;
    expect(run_was_wrong(&r), "a spoilt gradient is refused", row);
}

/* Every mask with either path, but for keys left out, which have no gradients. */
static void check_masks_backward(bench_context *x)
{
    for (int kind = 0; kind < MASK_ALIBI_SKIP; kind++)
        for (int i = 0; i < 2; i++) {
            const bench_case c = case_of(kind);
            bench_result r;
            run_case(x, &c, impls[i], &r);
            expect(!r.skipped[0], r.skipped[0] ? r.skipped : mask_name(kind), kind);
            expect(!strcmp(r.pass, "backward") && (r.gemms == 5 || r.gemms == 7),
                   "a result names its pass", (double)r.gemms);
            expect_refused(x, &c, impls[i], 1);
        }
}

/* Storage and layout, with a spoilt element in each of the outputs: the first of it, which is
 * always sampled. */
static void check_outputs(bench_context *x)
{
    const int rows = 2 * 4 * 21, keys = 2 * 2 * 26;
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
        for (int layout = LAYOUT_BHSD; layout <= LAYOUT_BSHD; layout++) {
            bench_case c = case_of(MASK_BIAS);
            bench_result r;
            c.dtype = dtype;
            c.layout = (case_layout)layout;
            run_case(x, &c, "tiled", &r);
            expect(!r.skipped[0], r.skipped, r.err_tolerance);
            expect_refused(x, &c, "tiled", 1);
            expect_refused(x, &c, "tiled", rows + 1);
            expect_refused(x, &c, "tiled", rows + keys + 1);
            expect_refused(x, &c, "tiled", rows + 2 * keys + 1);
            c.mask = MASK_SINKS;
            expect_refused(x, &c, "tiled", rows + 2 * keys + 1);
        }
}

/* Few enough that each row and each key is sampled, whichever head and batch entry it is of. */
static void check_places(bench_context *x)
{
    bench_case c = case_of(MASK_FULL);
    c.seq_q = 1;
    c.seq_kv = 2;
    for (int row = 1; row <= 8 + 2 * 8; row++)
        expect_refused(x, &c, "tiled", row);
}

/* Five products and seven, alone and beside others on the same q, k and v, with their phases. */
static void check_group(bench_context *x)
{
    bench_case cases[4];
    bench_result r[4];
    int timed = 0, phases = 0;
    for (int i = 0; i < 4; i++) {
        cases[i] = case_of(i == 3 ? MASK_WINDOW : MASK_FULL);
        cases[i].gemms = i % 2 ? 7 : 5;
        cases[i].shares = i == 3 ? SHARES_BUT_MASK : i ? SHARES_BUT_GEMMS : SHARES_NOTHING;
        cases[i].iterations = 3;
    }
    x->phases = 1;
    run_group(x, cases, 4, "tiled", r);
    x->phases = 0;
    for (int i = 0; i < 4; i++) {
        timed += !r[i].skipped[0] && r[i].gemms == (i % 2 ? 7 : 5);
        phases += r[i].phase_qk_ms > 0 && r[i].phase_softmax_ms > 0 && r[i].phase_pv_ms > 0;
    }
    expect(timed == 4, "5 and 7 products, and a window beside them", timed);
    expect(phases == 4, "each with its phases", phases);
    expect(r[0].speedup == 0 && r[1].speedup > 0 && r[3].speedup > 0, "compared with the first",
           r[1].speedup);
}

void check_gradients(bench_context *context)
{
    check_list();
    check_model();
    check_masks_backward(context);
    check_outputs(context);
    check_places(context);
    check_group(context);
}
