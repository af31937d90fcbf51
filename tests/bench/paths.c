/* paths.c - the bench shows that paths and phases tell right.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../bench/cases/cases.h"

#include "../kernel_tiles.h"
#include "../../bench/machine/machine.h"
#include "../../bench/measure.h"
#include "../../bench/run.h"
#include "../../bench/report/report.h"
#include "selfcheck.h"

/* ---- lists of paths */

static void check_path_lists(void)
{
    path_list list;
    char wrong[32];
    int usual = 0, all = 0;
    expect(path_list_parse(NULL, &list, wrong, sizeof wrong), "no --impl is a list", 0);
    for (int i = 0; i < list.n; i++) {
        usual += path_wanted(&list, NULL, list.paths[i]) != 0;
        all += path_wanted(&list, "all", list.paths[i]) != 0;
    }
    expect(usual == 2, "naive and tiled unless something else is said", usual);
    expect(path_list_parse("all", &list, wrong, sizeof wrong) && list.n == all && all >= 9,
           "all: nine paths and more", all);
    expect(path_list_parse("tiled,naive,tiled", &list, wrong, sizeof wrong) && list.n == 2 &&
               !strcmp(list.paths[0]->name, "tiled"),
           "a list keeps its order", list.n);
    expect(!path_list_parse("tiled,none", &list, wrong, sizeof wrong) && !strcmp(wrong, "none"),
           "an unknown path is refused", 0);
    expect(!path_list_parse("tiled,,naive", &list, wrong, sizeof wrong), "an empty name, too", 0);
    for (int i = 0; path_get(i); i++)
        expect(path_find(path_get(i)->name) == path_get(i), "each name once", i);
}

/* ---- what each path runs */

static bench_result run_path(bench_context *x, const char *shape, const char *path)
{
    case_list list = { .n = 0 };
    bench_result r;
    shape_case(shape, &list);
    list.cases[0].iterations = 2;
    run_case(x, &list.cases[0], path, &r);
    return r;
}

/* Each path is timed with its own kernels and threads, or has a reason not to be. */
static void check_usable(bench_context *x)
{
    for (int i = 0; path_get(i); i++) {
        const bench_path *const path = path_get(i);
        const bench_result r = run_path(x, "1,4,2,40,64,32", path->name);
        char why[200];
        const int usable = path_usable(path, x->many, why, sizeof why);
        const int set = !path->kernels ||
                        !strncmp(r.kernels, path->kernels, strlen(path->kernels)) ||
                        (path->otherwise && !strcmp(r.kernels, path->otherwise));
        expect(r.absent == !usable && (usable || !strcmp(r.skipped, why)), "a path's absence", i);
        if (r.skipped[0]) {
            expect(!run_was_wrong(&r), "a path is right", i);
            continue;
        }
        expect(set, "a path has its kernels", i);
        expect(!strcmp(r.path, path->name) && !strcmp(r.impl, path->impl), "and its name", i);
        expect(path->threads != PATH_ONE || r.threads == 1, "and its threads", (double)r.threads);
        expect(!r.device[0] == !path->device, "and its device", i);
    }
}

/* A path takes the narrow form of its set where the library would. */
static void check_narrow(bench_context *x)
{
    static const char *const sets[] = { "sse2", "avx2", "avx512", "neon" };
    char path[32], narrow[32];
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        snprintf(path, sizeof path, "tiled_%s", sets[i]);
        snprintf(narrow, sizeof narrow, "%s_narrow", sets[i]);
        const bench_result few = run_path(x, "1,4,2,1,40,32", path);
        const bench_result many = run_path(x, "1,4,2,90,40,32", path);
        if (few.absent)
            continue;
        expect(!strcmp(few.kernels, narrow), "narrow kernels for a row", (double)i);
        expect(!strcmp(many.kernels, sets[i]), "wide ones for many", (double)i);
    }
}

/* What a case or the command line says is not overruled. */
static void check_contradictions(bench_context *x)
{
    const char *const before = x->kernels;
    case_list list = { .n = 0 };
    bench_result r;
    x->kernels = "portable";
    r = run_path(x, "1,1,1,8,8,8", "tiled_scalar");
    expect(strstr(r.skipped, "the command line already says which kernel set") != NULL,
           "--kernels against a path's kernels", 0);
    expect(!run_path(x, "1,1,1,8,8,8", "naive_simd").skipped[0], "a path that leaves them open", 0);
    x->kernels = before;
    shape_case("1,1,1,8,8,8", &list);
    list.cases[0].threads = 1;
    run_case(x, &list.cases[0], "naive_simd", &r);
    expect(strstr(r.skipped, "the case already says how many threads") != NULL,
           "a case's threads against a path's", 0);
}

/* Keys are divided by split_kv alone, and there always. */
static void check_dividing(bench_context *x)
{
    if (x->many < 2)
        return;
    const bench_result split = run_path(x, "1,4,1,1,8192,64", "split_kv");
    const bench_result whole = run_path(x, "1,4,1,1,8192,64", "tiled_threads");
    const bench_result many_rows = run_path(x, "1,4,4,64,64,32", "split_kv");
    expect(!split.skipped[0] && split.threads == 2, "one kv head: keys are divided", 0);
    expect(!whole.skipped[0] && whole.workspace_bytes < split.workspace_bytes,
           "and not by threads that share row tiles", (double)whole.workspace_bytes);
    expect(strstr(many_rows.skipped, "without dividing") != NULL, "four heads: they are not", 0);
    x->many = 1;
    expect(run_path(x, "1,4,4,64,64,32", "tiled_threads").absent, "threads need two CPUs", 0);
    x->many = 2;
}

/* Kernels without vectors give the same bits as those with. */
static void check_scalar(void)
{
    for (int i = 0; i < num_kernel_entries; i++)
        expect(kernel_check(scalar_kernels(), i, 24, 0), "a scalar kernel is right", i);
    expect(!strcmp(scalar_kernels()->name, "scalar"), "and is called so", 0);
}

/* ---- threads: 1, 2, ... */

static int counts_are(int threads, const int *want)
{
    static case_list list;
    const preset_choice choice = { .quick = 1, .threads = threads, .max_seq_len = 1 << 16 };
    int n = 0;
    list.n = 0;
    preset_cases("threads", &choice, &list);
    while (want[n] && list.cases[n].threads == want[n])
        n++;
    return !want[n] && list.cases[n].threads == 1 && n <= RUN_MAX_GROUP;
}

/* Two threads of three are numbered 0 and 1, which the library checks. */
static void check_fewer(bench_context *x)
{
    pool *const before = x->workers;
    case_list list = { .n = 0 };
    bench_result r;
    x->workers = pool_create(3);
    shape_case("1,8,8,100,100,16", &list);
    list.cases[0].iterations = 50;
    list.cases[0].threads = 2;
    run_case(x, &list.cases[0], "tiled", &r);
    expect(!x->workers || (!r.skipped[0] && r.samples == 50), "two threads of a pool of three", 0);
    pool_destroy(x->workers);
    x->workers = NULL;
    run_case(x, &list.cases[0], "tiled", &r);
    expect(strstr(r.skipped, "threads cannot be had") != NULL, "two threads without a pool", 0);
    x->workers = before;
}

static void check_third(bench_context *x)
{
    case_list list = { .n = 0 };
    bench_result r[3];
    for (int i = 0; i < 3; i++) {
        shape_case(i ? "1,2,2,30,40,8" : "1,2,2,300,40,8", &list);
        list.cases[i].iterations = 3;
        list.cases[i].threads = 1;
        list.cases[i].shares = i > 0;
    }
    run_group(x, list.cases, 3, "tiled", r);
    expect(fabs(log(r[2].speedup * r[2].ms_p50 / r[0].ms_p50)) < 1 && r[2].speedup > 2,
           "a third run is compared with the first", r[2].speedup);
}

static void check_thread_counts(bench_context *x)
{
    const int two[] = { 1, 2, 0 }, five[] = { 1, 2, 3, 4, 5, 0 }, twelve[] = { 1, 2, 4, 8, 12, 0 };
    const int most[] = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 0 };
    expect(counts_are(2, two) && counts_are(5, five), "each number of threads to 8", 0);
    expect(counts_are(12, twelve) && counts_are(1024, most), "beyond that powers of two", 0);
    check_third(x);
    check_fewer(x);
}

/* ---- phases */

enum { ROWS = 128, KEYS = 256, DIM = 64, TRIES = 12, MORE = 9 };

static const attn_kernels *right;

/* A clock that moves on by a tick whenever it is read, and by more where a kernel is slow: what it shows
 * depends on no machine. */
static uint64_t moment;

static uint64_t read_moment(void)
{
    return moment++;
}

static double moment_seconds(void)
{
    return 1e-9 * (double)moment;
}

static void slow_qk(const attn_product *p)
{
    moment += MORE;
    right->qk(p);
}

static void slow_exp(const attn_exp *e)
{
    moment += MORE;
    right->exp_block(e);
}

static int slow_max(const float *s, int n, float *m, float *l, float *alpha)
{
    moment += MORE;
    return right->running_max(s, n, m, l, alpha);
}

static void slow_pv(const attn_product *p)
{
    moment += MORE;
    right->pv(p);
}

/* The last division, which counts as merge. */
static void slow_result(float *const *out, const float *o, const float *l, float factor,
                        int64_t head_dim_v)
{
    moment += MORE;
    right->result(out, o, l, factor, head_dim_v);
}

/* Which phases take longer, as letters. */
static void name_slow(const phase_times *plain, const phase_times *slow, char names[8])
{
    const double ratios[] = { slow->qk / plain->qk, slow->softmax / plain->softmax,
                              slow->pv / plain->pv, slow->merge / plain->merge,
                              slow->rest / plain->rest };
    for (int i = 0; i < 5; i++)
        if (ratios[i] > 1.1)
            *names++ = "qspmr"[i];
    *names = '\0';
}

static int forward(void *arg)
{
    const phase_call *const c = arg;
    return attn_forward(&c->p, c->workspace, c->workspace_bytes) != ATTN_OK;
}

/* The least of many calls next to the least sum of phases, in turn. */
static void check_sum(phase_call *c)
{
    double call = 1, sum = 1;
    for (int i = 0; i < TRIES; i++) {
        phase_times t;
        for (int k = 0; k < 5; k++)
            call = fmin(call, measure_once(forward, c));
        if (phases_measure(right, c, &t))
            sum = fmin(sum, phases_sum(&t));
    }
    expect(sum > 0.7 * call && sum < 2 * call, "the sum of the phases is about the call",
           sum / call);
}

static void check_planted(phase_call c)
{
    static const phase_clock clock = { read_moment, moment_seconds };
    attn_kernels sets[] = { *right, *right, *right, *right, *right };
    static const char *const names[] = { "q", "s", "p", "s", "m" };
    sets[0].qk = slow_qk;
    sets[1].running_max = slow_max;
    sets[2].pv = slow_pv;
    sets[3].exp_block = slow_exp;
    sets[4].result = slow_result;
    c.clock = &clock;
    for (int i = 0; i < 5; i++) {
        phase_times plain, slow;
        char found[8] = "";
        expect(phases_measure(right, &c, &plain) && phases_measure(&sets[i], &c, &slow),
               "phases of a slow kernel", i);
        name_slow(&plain, &slow, found);
        expect(!strcmp(found, names[i]), "a slow kernel shows in its phase and no other", i);
    }
}

static void check_phases(void)
{
    static float q[ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM], o[ROWS * DIM];
    static char workspace[1 << 21];
    phase_call c = { .workspace = workspace,
                     .workspace_bytes = sizeof workspace,
                     .result = o,
                     .result_bytes = sizeof o };
    phase_times t;
    for (int i = 0; i < KEYS * DIM; i++)
        k[i] = v[i] = (float)(i * 7 % 31) / 31;
    for (int i = 0; i < ROWS * DIM; i++)
        q[i] = (float)(i * 11 % 37) / 37;
    c.p.batch = c.p.num_heads_q = 1;
    c.p.seq_len_q = ROWS;
    c.p.seq_len_kv = KEYS;
    c.p.head_dim = DIM;
    c.p.q.data = q, c.p.k.data = k, c.p.v.data = v, c.p.o.data = o;
    c.p.num_workers = 1;
    right = c.p.kernels = attn_kernels_get(0);
    expect(!forward(&c), "the call whose phases are measured", 0);
    expect(phases_measure(right, &c, &t), "phases are measured", 0);
    expect(t.qk > 0 && t.softmax > 0 && t.pv > 0 && t.merge > 0 && t.rest >= 0 && t.clock > 0,
           "each phase takes time", t.rest);
    expect(t.clock < 0.3 * phases_sum(&t), "reading the clock takes the least of it",
           t.clock / phases_sum(&t));
    check_planted(c);
    check_sum(&c);
    o[5] += 1;
    expect(!phases_measure(right, &c, &t), "another result is noticed", 0);
}

/* ---- progress */

/* A call of one head at 1 GFLOP/s, which is half of the peak. */
static double expected(const char *shape, const char *path, double max_time)
{
    static bench_context x;
    case_list list = { .n = 0 };
    x.machine.cpus = x.many = x.threads = 1;
    x.machine.memory_usable = INT64_C(1) << 30;
    x.probe.best.gflops = 2;
    x.probe.read_gbs = 100;
    shape_case(shape, &list);
    list.cases[0].iterations = 1;
    list.cases[0].warmup = 0;
    list.cases[0].max_time = max_time;
    return run_expected(&x, &list.cases[0], path);
}

/* One call that is cold and one that is timed, each of 4 * length^2 * head_dim FLOPs. */
static void check_expected(void)
{
    const double call = 4.0 * 1024 * 1024 * 64 * 1e-9;
    expect(fabs(expected("1,1,1,1024,1024,64", "tiled", 0) / (2 * call) - 1) < 1e-9,
           "seconds by FLOPs", expected("1,1,1,1024,1024,64", "tiled", 0));
    expect(fabs(expected("1,1,1,8192,8192,64", "tiled", 0) / (128 * call) - 1) < 1e-9,
           "8 times the length, 64 times the work", expected("1,1,1,8192,8192,64", "tiled", 0));
    expect(expected("1,1,1,8192,8192,64", "tiled", call) == 0, "a call beyond --max-time", 0);
    expect(expected("1,1,1,65536,65536,64", "naive", 0) == 0, "logits beyond the memory", 0);
}

static void check_progress(void)
{
    char text[PROGRESS_TIME];
    expect(progress_left(2, 8, 10, 0) == 30, "6 of 8 left after 10 s", progress_left(2, 8, 10, 0));
    expect(progress_left(2, 8, 10, 5) == 5, "never more than the limit", 0);
    expect(!strcmp(progress_time(119, text), "119 s"), "up to two minutes in seconds", 0);
    expect(!strcmp(progress_time(1200, text), "20 minutes"), "up to two hours in minutes", 0);
    expect(!strcmp(progress_time(25200, text), "7.0 hours"), "then in hours", 0);
    check_expected();
    expect(!progress_due(29, 29) && progress_due(30, 30) && !progress_due(35, 5),
           "a line after 30 s, then every 10", 0);
}

void check_paths(bench_context *x)
{
    check_path_lists();
    pool *const before = x->workers, *const two = pool_create(2);
    const int many = x->many;
    x->workers = two;
    x->many = two ? 2 : 1;
    check_usable(x);
    check_narrow(x);
    check_contradictions(x);
    check_dividing(x);
    x->workers = before;
    x->many = many;
    pool_destroy(two);
    check_scalar();
    check_thread_counts(x);
    check_phases();
    check_progress();
}
