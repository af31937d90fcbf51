/* runs.c - cases that run: read rates, layouts, inputs, groups, pairs on the same tensors.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../attn.h"
#include "../../bench/cases/cases.h"
#include "../../bench/machine/machine.h"
#include "selfcheck.h"

/* ---- the reading loop */

enum { READ_LINES = 3000, LINE_WORDS = 8 };

/* A plain loop that stands in for a pool. */
static int one_by_one(void *user, int64_t n, attn_task_fn task, void *arg)
{
    for (int64_t i = 0; i < n; i++) {
        task(arg, i, 0);
        ++*(int *)user;
    }
    return 0;
}

/* 0 + 1 + 4 + ... + (n-1)^2 */
static uint64_t squares(int n)
{
    const uint64_t k = (uint64_t)n;
    return k * (k - (k > 0)) * (2 * k - (k > 0)) / 6;
}

static void check_reading_loops(void)
{
    static uint64_t words[READ_LINES * LINE_WORDS];
    int parts = 0;
    for (int i = 0; i < READ_LINES; i++)
        words[i * LINE_WORDS] = squares(i + 1) - squares(i);
    reading r = { { words, words }, { 0, 0 }, 3, one_by_one, &parts, 0 };
    for (int loop = 0; reading_name(loop); loop++) {
        if (!reading_usable(loop))
            continue;
        r.loop = loop;
        for (int lines = READ_LINES; lines; lines /= 7) {
            uint64_t sum = 0;
            r.bytes[0] = 64 * (size_t)lines + 63;
            r.bytes[1] = 64 * (size_t)(lines / 2);
            for (int part = 0; part < 3; part++)
                sum += reading_part(&r, part);
            expect(sum == squares(lines) + squares(lines / 2), "each line is read once",
                   (double)sum);
        }
    }
    r.loop = -1;
    reading_choose(&r);
    expect(r.loop >= 0 && reading_name(r.loop) && reading_usable(r.loop), "a loop is chosen",
           r.loop);
    parts = 0;
    expect(reading_run(&r) == 0 && parts == 3, "each thread has its part", parts);
    const double running = reading_running(&r);
    expect(running < 0.34, "three threads on one CPU have a third of three", running);
}

/* ---- the kernel loop */

static int has_tile(const char *set)
{
#ifdef __aarch64__
    return !strncmp(set, "neon", 4);
#else
    return !strncmp(set, "avx", 3);
#endif
}

static void check_kernel_loops(void)
{
    int parts = 0, runs = 0;
    kernel_loop loop = { 3, one_by_one, &parts, 0, 0 };
    for (int i = 0; attn_kernels_get(i); i++) {
        const char *const set = attn_kernels_name(attn_kernels_get(i));
        const int made = kernel_loop_make(&loop, set, 3e8);
        expect(made == has_tile(set), "sets with a register tile have a loop, whose sums are right",
               i);
        if (!made)
            continue;
        expect(fabs(kernel_loop_flops(&loop) / (3e8 / 8) - 1) < 0.01,
               "an eighth of the call's FLOPs", kernel_loop_flops(&loop));
        expect(kernel_loop_run(&loop) == 0 && parts == 3 * ++runs, "each thread has its part",
               parts);
        expect(kernel_loop_make(&loop, set, 0) && loop.rounds > 0, "short calls have a loop, too",
               (double)loop.rounds);
    }
}

static void check_rates(bench_context *context)
{
    case_list list = { .n = 0 };
    bench_result r[2];
    shape_case("1,4,2,16,3000,32,16", &list);
    shape_case("1,4,2,17,64,32", &list);
    for (int i = 0; i < 2; i++) {
        list.cases[i].iterations = 5;
        run_case(context, &list.cases[i], "tiled", &r[i]);
    }
    const double bytes = 4.0 * 2 * 3000 * (32 + 16), seconds = 1e-3 * r[0].ms_p50;
    expect(fabs(r[0].gbytes_per_s * 1e9 * seconds / bytes - 1) < 1e-9, "GB/s of k and v",
           r[0].gbytes_per_s);
    expect(fabs(log(0.01 * r[0].pct_read_bw * r[0].read_gbytes_per_s / r[0].gbytes_per_s)) < 1,
           "%read is about GB/s over the loop's", r[0].pct_read_bw);
    expect(r[0].pct_read_bw > 0 && r[0].pct_read_bw < 50, "32 rows a head take longer than reading",
           r[0].pct_read_bw);
    expect(r[1].gbytes_per_s > 0 && r[1].read_gbytes_per_s == 0 && r[1].pct_read_bw == 0,
           "17 rows are not compared with it", r[1].pct_read_bw);
    expect(r[0].pct_kernel_loop == 0, "few rows are not compared with products",
           r[0].pct_kernel_loop);
    expect(has_tile(r[1].kernels)
               ? fabs(log(0.01 * r[1].pct_kernel_loop * r[1].kernel_loop_gflops / r[1].gflops)) < 1
               : r[1].pct_kernel_loop == 0,
           "%loop is about GFLOP/s over the loop's", r[1].pct_kernel_loop);
}

/* ---- layouts */

static void check_layouts(bench_context *context)
{
    for (int layout = LAYOUT_BHSD; layout <= LAYOUT_BSHD; layout++) {
        case_list list = { .n = 0 };
        bench_result r;
        shape_case("2,4,2,40,48,32,16", &list);
        list.cases[0].layout = (case_layout)layout;
        list.cases[0].iterations = 1;
        run_case(context, &list.cases[0], "tiled", &r);
        expect(!r.skipped[0], "a result of either layout is right", r.err_tolerance);
        expect(r.row_stride == (layout == LAYOUT_BSHD ? 4 * 32 : 32), "distance of rows",
               (double)r.row_stride);
        faults.spoil = 1;
        run_case(context, &list.cases[0], "tiled", &r);
        faults.spoil = 0;
        expect(run_was_wrong(&r), "a spoilt result of either layout is refused", r.err_tolerance);
    }
}

/* ---- inputs */

static void check_data(void)
{
    enum { LENGTH = 2500000, ROW = 64 };
    static float values[LENGTH];
    int untouched = 0, equal = 0;
    for (int i = 0; i < LENGTH; i++)
        values[i] = 99;
    data_fill(values, ATTN_F32, LENGTH, DATA_K, DATA_NORMAL, 1);
    for (int i = 0; i < LENGTH; i++)
        untouched += !(fabsf(values[i]) < 9);
    for (int i = 1; i < LENGTH / ROW; i++)
        equal += !memcmp(values, values + i * ROW, ROW * sizeof *values);
    expect(untouched == 0, "normal numbers everywhere", untouched);
    expect(equal == 0, "no row is as the first", equal);
}

/* ---- a group: a wrong result does not stop the others */

static void check_group(bench_context *context)
{
    case_list list = { .n = 0 };
    bench_result r[3];
    for (int i = 0; i < 3; i++) {
        shape_case("1,2,2,16,16,8", &list);
        list.cases[i].iterations = 2;
    }
    list.cases[1].kernels = "none";
    run_group(context, list.cases, 3, "tiled", r);
    expect(!r[0].skipped[0] && r[1].skipped[0] && !r[2].skipped[0],
           "of a group those that can be are timed", 0);
    expect(r[0].samples == 2 && r[2].samples == 2, "each with its samples", (double)r[2].samples);
    list.cases[1].kernels = NULL;
    run_group(context, list.cases, 3, "tiled", r);
    expect(r[1].samples == 2 && r[1].speedup == 0, "and no speed-up over its neighbour",
           r[1].speedup);
}

/* ---- a pair on the same tensors */

static void check_pair(bench_context *context)
{
    case_list list = { .n = 0 };
    bench_result r[2];
    for (int i = 0; i < 2; i++) {
        shape_case(i ? "1,2,2,30,40,8" : "1,2,2,300,40,8", &list); /* a part of its tensors */
        list.cases[i].iterations = 3;
        list.cases[i].threads = 1;
        list.cases[i].shares = i ? SHARES_BUT_THREADS : SHARES_NOTHING;
    }
    run_group(context, list.cases, 2, "tiled", r);
    expect(!r[0].skipped[0] && !r[1].skipped[0], "a pair is timed", 0);
    expect(r[0].speedup == 0, "the first of a pair is compared with nothing", r[0].speedup);
    expect(fabs(log(r[1].speedup * r[1].ms_p50 / r[0].ms_p50)) < 1, "speed-up of the second",
           r[1].speedup);
    expect(r[0].pct_read_bw > 0 && r[1].pct_read_bw > 0, "both are compared with reading",
           r[1].pct_read_bw);
    faults.spoil = 1;
    run_group(context, list.cases, 2, "tiled", r);
    faults.spoil = 0;
    expect(run_was_wrong(&r[0]) && run_was_wrong(&r[1]), "a spoilt pair is refused", 0);
    list.cases[0].kernels = "none";
    run_group(context, list.cases, 2, "tiled", r);
    expect(r[0].skipped[0] && !r[1].skipped[0] && r[1].speedup == 0,
           "the second alone has tensors and no speed-up", r[1].speedup);
}

void check_runs(bench_context *context)
{
    check_reading_loops();
    check_kernel_loops();
    check_rates(context);
    check_data();
    check_layouts(context);
    check_group(context);
    check_pair(context);
}
