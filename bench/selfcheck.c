/* selfcheck.c - the bench shows that it would notice: wrong results, wrong counts, wrong times.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define SELFCHECK_SLEEPS 1
#endif
#define ATTN_KERNEL_API
#include "selfcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../attn.h"
#include "clock.h"
#include "kernels.h"
#include "masks.h"
#include "measure.h"
#include "model.h"
#include "pool.h"
#include "presets.h"
#include "reading.h"
#include "tune.h"

static int passed, failed;

void expect(int held, const char *what, double value)
{
    passed += held != 0;
    failed += held == 0;
    if (!held) printf("FAILED: %s (got %g)\n", what, value);
}

/* ---- a wrong element must be refused, a right result must not */

static void check_refusal(bench_context *context)
{
    static const char *const impls[] = {"naive", "tiled"};
    for (int i = 0; i < 2; i++) {
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
            for (int spoil = 0; spoil < 2; spoil++) {
                case_list list = {.n = 0};
                bench_result r;
                shape_case("1,4,2,40,40,32", &list);
                list.cases[0].dtype = dtype;
                list.cases[0].iterations = 1;
                context->spoil = spoil;
                run_case(context, &list.cases[0], impls[i], &r);
                expect(spoil ? run_was_wrong(&r) : !r.skipped[0],
                       spoil ? "a spoilt result is refused" : "a right result is timed",
                       r.err_tolerance);
            }
        }
    }
    context->spoil = 0;
}

/* ---- so must a wrong kernel */

enum { CHECKED_DIM = 24 };

static int kernel_refused(const attn_kernels *set, int entry, int spoil)
{
    kernel_result r;
    return kernel_measure(NULL, set, CHECKED_DIM, entry, spoil, &r) && r.wrong;
}

/* Wrong kernels, most of them right ones of this set with something missing. */
static const attn_kernels *right;

static void idle_softcap(float *s, int n, float cap2, float icap2)
{
    (void)s, (void)n, (void)cap2, (void)icap2;
}

static void idle_hide(float *s, const uint8_t *alive, int n)
{
    (void)s, (void)alive, (void)n;
}

static void idle_rescale(float *x, const float *alpha, int64_t count)
{
    (void)x, (void)alpha, (void)count;
}

static void clip_end_only(float *s, int n, const int *begin, const int *end)
{
    static const int none[ATTN_KERNEL_MAX_ROWS];
    (void)begin;
    right->clip(s, n, none, end);
}

static void narrow_down(uint16_t *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &from[i], sizeof u);
        to[i] = (uint16_t)(u >> 16);
    }
}

static void qk_alone(float *s, const float *qt, const float *k, ptrdiff_t k_stride, int n,
                     int64_t head_dim, attn_lanes lanes, const attn_exp *beside,
                     attn_ahead *ahead)
{
    (void)beside;
    right->qk(s, qt, k, k_stride, n, head_dim, lanes, NULL, ahead);
}

static void qk_lane_lost(float *s, const float *qt, const float *k, ptrdiff_t k_stride, int n,
                         int64_t head_dim, attn_lanes lanes, const attn_exp *beside,
                     attn_ahead *ahead)
{
    right->qk(s, qt, k, k_stride, n, head_dim, lanes, beside, ahead);
    s[0] = 7;
}

static void pv_lane_lost(float *o, const float *p, const float *v, ptrdiff_t v_stride, int n,
                         int64_t head_dim_v, attn_lanes lanes, attn_ahead *ahead)
{
    right->pv(o, p, v, v_stride, n, head_dim_v, lanes, ahead);
    o[0] = 7;
}

static int silent_max(const float *s, int n, float *m, float *l, float *alpha)
{
    return right->running_max(s, n, m, l, alpha) & ~ATTN_RAISED;
}

static int always_calm(const float *s, int n, float *m, float *l, float *alpha)
{
    return right->running_max(s, n, m, l, alpha) | ATTN_IS_CALM;
}

static void refused_names(const attn_kernels *set, char *names, size_t bytes)
{
    size_t n = 0;
    names[0] = '\0';
    for (int i = 0; kernel_name(i); i++)
        if (kernel_refused(set, i, 0) && n < bytes)
            n += (size_t)snprintf(names + n, bytes - n, "%s ", kernel_name(i));
}

/* Exactly the entries that use the kernel are refused. */
#define PLANT(kernel, wrong, expected)                                                             \
    do {                                                                                           \
        attn_kernels planted = *right;                                                             \
        char names[256];                                                                           \
        planted.kernel = wrong;                                                                    \
        refused_names(&planted, names, sizeof names);                                              \
        expect(!strcmp(names, expected), #wrong " is refused in " expected "alone", 0);            \
    } while (0)

static void check_wrong_kernels(void)
{
    right = attn_kernels_get(0);
    PLANT(softcap, idle_softcap, "softcap ");
    PLANT(clip, clip_end_only, "clip ");
    PLANT(hide, idle_hide, "hide ");
    PLANT(narrow_bf16, narrow_down, "narrow_bf16 ");
    PLANT(rescale, idle_rescale, "rescale tile ");
    PLANT(qk, qk_alone, "qk_exp qk_exp_calm tile ");
    PLANT(qk, qk_lane_lost, "qk qk_exp qk_exp_calm tile ");
    PLANT(pv, pv_lane_lost, "pv tile ");
    PLANT(running_max, silent_max, "running_max tile ");
    PLANT(running_max, always_calm, "running_max ");
}

static void check_kernels(void)
{
    for (int k = 0; attn_kernels_get(k); k++) {
        for (int i = 0; kernel_name(i); i++) {
            const attn_kernels *const set = attn_kernels_get(k);
            expect(!kernel_refused(set, i, 0), "a right kernel is timed", i);
            expect(kernel_refused(set, i, 1), "a kernel that is off by one bit is refused", i);
        }
    }
    check_wrong_kernels();
}

/* ---- statistics and timing */

static void check_stats(void)
{
    double values[] = {5, 1, 4, 2, 3};
    bench_stats s;
    bench_stats_of(values, 5, &s);
    expect(s.min == 1, "minimum of 1..5", s.min);
    expect(s.mean == 3, "mean of 1..5", s.mean);
    expect(fabs(s.std - sqrt(2.5)) < 1e-12, "standard deviation of 1..5", s.std);
    expect(s.p50 == 3, "median of 1..5", s.p50);
    expect(fabs(s.p95 - 4.8) < 1e-12, "P95 of 1..5", s.p95);
    expect(fabs(s.p99 - 4.96) < 1e-12, "P99 of 1..5", s.p99);
    expect(fabs(s.p50_error - 2 / sqrt(5)) < 1e-12, "error of the median", s.p50_error);
}

typedef struct fake_call {
    double seconds;
    int calls, fail_at; /* fail_at: number of the call that fails; 0 = none */
} fake_call;

static int wait_a_while(void *arg)
{
    fake_call *const f = arg;
    const double start = clock_seconds();
    f->calls++;
    while (clock_seconds() - start < f->seconds) {
    }
    return f->fail_at == f->calls;
}

static void check_timing(void)
{
    const measure_plan counted = {2, 5, 0, 0}, doubled = {1, 0, 0.02, 0}, capped = {0, 99, 0, 0.01};
    fake_call f = {1e-3, 0, 0};
    measure_result r;
    expect(measure(&counted, wait_a_while, &f, &r), "a plan of 5 calls works", 0);
    expect(f.calls == 7, "2 calls of warm-up and 5 timed ones", f.calls);
    expect(r.seconds.n == 5, "5 samples", r.seconds.n);
    expect(r.seconds.min >= 1e-3, "a call of 1 ms takes at least 1 ms", r.seconds.min);
    expect(measure(&doubled, wait_a_while, &f, &r), "a plan by time works", 0);
    expect(r.seconds.n * r.seconds.mean >= 0.02, "samples last min_time", r.seconds.n);
    expect(measure(&capped, wait_a_while, &f, &r), "a plan with a limit works", 0);
    expect(r.seconds.n <= 10, "max_time ends the samples", r.seconds.n);
    f.seconds = 1e-6;
    expect(measure(&counted, wait_a_while, &f, &r), "short calls work", 0);
    expect(r.calls_per_sample > 1, "short calls are timed together", r.calls_per_sample);
    f.fail_at = f.calls + 4;
    expect(!measure(&counted, wait_a_while, &f, &r), "a failing call fails the measurement", 0);
}

#ifdef SELFCHECK_SLEEPS
static int sleep_a_while(void *arg)
{
    const struct timespec t = {0, 2000000};
    (void)arg;
    return nanosleep(&t, NULL);
}

static void check_running(void)
{
    const measure_plan plan = {0, 5, 0, 0};
    measure_result r;
    expect(measure(&plan, sleep_a_while, NULL, &r), "a sleeping call works", 0);
    expect(r.running > 0 && r.running < 0.5, "a sleeping call does not have the CPU", r.running);
}
#else
static int sleep_a_while(void *arg)
{
    (void)arg;
    return 0;
}

static void check_running(void)
{
}
#endif

/* ---- calls in turn */

typedef struct turn_call {
    int *last, *broken;
    int index, calls, of;
    double seconds;
} turn_call;

static int take_turn(void *arg)
{
    turn_call *const t = arg;
    const double start = clock_seconds();
    if (t->calls++ && (*t->last + 1) % t->of != t->index) ++*t->broken; /* the first is warm-up */
    *t->last = t->index;
    while (clock_seconds() - start < t->seconds) {
    }
    return 0;
}

static void check_turns(void)
{
    const measure_plan plan = {1, 4, 0, 0};
    int last = -1, broken = 0;
    turn_call t[3];
    measure_job jobs[3];
    for (int i = 0; i < 3; i++) {
        const turn_call one = {&last, &broken, i, 0, 3, 1.2e-3};
        const measure_job job = {.call = take_turn, .arg = &t[i]};
        t[i] = one;
        jobs[i] = job;
    }
    expect(measure_in_turn(&plan, jobs, 3), "three calls in turn work", 0);
    expect(broken == 0, "their samples alternate", broken);
    expect(jobs[2].result.seconds.n == 4, "4 samples of each", jobs[2].result.seconds.n);
    expect(t[2].calls == 5, "no call beside the warm-up and the samples", t[2].calls);
    t[2].calls = 0;
    t[2].seconds = 1e-4;
    expect(measure_in_turn(&plan, jobs, 3), "a short call among them works", 0);
    expect(t[2].calls == 9, "an untimed call leads in each sample of a short one", t[2].calls);
}

/* Ten times as long for the first `of` calls. */
static int jumpy(void *arg)
{
    turn_call *const t = arg;
    const double start = clock_seconds();
    const double seconds = t->calls++ < t->of ? t->seconds * 10 : t->seconds;
    while (clock_seconds() - start < seconds) {
    }
    return 0;
}

/* The machine becomes faster between the two calls of a round: of five samples three of the first
 * are slow and two of the second, so that the medians would make the second the shorter one. */
static void check_ratio(void)
{
    const measure_plan plan = {1, 5, 0, 0};
    turn_call t[2] = {{.of = 4, .seconds = 1.2e-3}, {.of = 3, .seconds = 4.8e-3}};
    measure_job jobs[2] = {{.call = jumpy, .arg = &t[0]},
                           {.call = jumpy, .arg = &t[1], .against = 1}};
    expect(measure_in_turn(&plan, jobs, 2), "two calls whose speed jumps work", 0);
    expect(fabs(log(jobs[1].ratio_p50 / 4)) < 1, "they are compared sample by sample",
           jobs[1].ratio_p50);
}

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
    for (int i = 0; i < READ_LINES; i++) words[i * LINE_WORDS] = squares(i + 1) - squares(i);
    reading r = {{words, words}, {0, 0}, 3, one_by_one, &parts, 0};
    for (int loop = 0; reading_name(loop); loop++) {
        if (!reading_usable(loop)) continue;
        r.loop = loop;
        for (int lines = READ_LINES; lines; lines /= 7) {
            uint64_t sum = 0;
            r.bytes[0] = 64 * (size_t)lines + 63;
            r.bytes[1] = 64 * (size_t)(lines / 2);
            for (int part = 0; part < 3; part++) sum += reading_part(&r, part);
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

/* ---- the pool: each index once, whether its workers spin or sleep */

enum { POOL_WORKERS = 3, POOL_INDICES = 50, POOL_CALLS = 1000 };

typedef struct pool_count {
    int times[POOL_INDICES], wrong;
} pool_count;

static void count_index(void *arg, int64_t index, int worker)
{
    pool_count *const c = arg;
    const double start = clock_seconds();
    while (clock_seconds() - start < 2e-6) { /* a caller that does not wait looks too early */
    }
    c->times[index]++;
    if (worker < 0 || worker >= POOL_WORKERS) c->wrong = 1;
}

static void note_worker(void *arg, int64_t index, int worker)
{
    const double start = clock_seconds();
    (void)index;
    while (clock_seconds() - start < 2e-6) { /* time for the others to join */
    }
    ((int *)arg)[worker] = 1;
}

static void check_limit(pool *workers)
{
    static const int limits[] = {2, 3, 1};
    for (int i = 0; i < 3; i++) {
        int seen[POOL_WORKERS] = {0}, most = 0;
        pool *const some = pool_of(workers, limits[i]);
        for (int call = 0; call < POOL_CALLS; call++)
            if (some) pool_parallel_for(some, POOL_INDICES, note_worker, seen);
        for (int w = 0; w < POOL_WORKERS; w++) most = seen[w] ? w + 1 : most;
        expect(most == limits[i], "as many workers as asked for take part", most);
    }
}

static void check_pool(void)
{
    pool *const workers = pool_create(POOL_WORKERS);
    int bad = 0;
    if (!workers) return;
    for (int call = 0; call < POOL_CALLS; call++) {
        pool_count c = {{0}, 0};
        const int n = call % (POOL_INDICES + 1);
        if (call % 100 == 99) sleep_a_while(NULL);
        pool_parallel_for(workers, n, count_index, &c);
        for (int i = 0; i < POOL_INDICES; i++) bad += c.times[i] != (i < n);
        bad += c.wrong;
    }
    expect(bad == 0, "a pool takes each index once", bad);
    check_limit(workers);
    pool_destroy(workers);
}

/* Few rows are compared with the reading loop of their moment, many are not. */
static void check_rates(bench_context *context)
{
    case_list list = {.n = 0};
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
}

/* ---- layouts */

static void check_layouts(bench_context *context)
{
    for (int layout = LAYOUT_BHSD; layout <= LAYOUT_BSHD; layout++) {
        case_list list = {.n = 0};
        bench_result r;
        shape_case("2,4,2,40,48,32,16", &list);
        list.cases[0].layout = (case_layout)layout;
        list.cases[0].iterations = 1;
        run_case(context, &list.cases[0], "tiled", &r);
        expect(!r.skipped[0], "a result of either layout is right", r.err_tolerance);
        expect(r.row_stride == (layout == LAYOUT_BSHD ? 4 * 32 : 32), "distance of rows",
               (double)r.row_stride);
        context->spoil = 1;
        run_case(context, &list.cases[0], "tiled", &r);
        context->spoil = 0;
        expect(run_was_wrong(&r), "a spoilt result of either layout is refused", r.err_tolerance);
    }
}

/* ---- inputs */

static void check_data(void)
{
    enum { LENGTH = 2500000, ROW = 64 };
    static float values[LENGTH];
    int untouched = 0, equal = 0;
    for (int i = 0; i < LENGTH; i++) values[i] = 99;
    data_fill(values, ATTN_F32, LENGTH, DATA_K, DATA_NORMAL, 1);
    for (int i = 0; i < LENGTH; i++) untouched += !(fabsf(values[i]) < 9);
    for (int i = 1; i < LENGTH / ROW; i++)
        equal += !memcmp(values, values + i * ROW, ROW * sizeof *values);
    expect(untouched == 0, "normal numbers everywhere", untouched);
    expect(equal == 0, "no row is as the first", equal);
}

/* ---- a group: a wrong result does not stop the others */

static void check_group(bench_context *context)
{
    case_list list = {.n = 0};
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
    case_list list = {.n = 0};
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
    context->spoil = 1;
    run_group(context, list.cases, 2, "tiled", r);
    context->spoil = 0;
    expect(run_was_wrong(&r[0]) && run_was_wrong(&r[1]), "a spoilt pair is refused", 0);
    list.cases[0].kernels = "none";
    run_group(context, list.cases, 2, "tiled", r);
    expect(r[0].skipped[0] && !r[1].skipped[0] && r[1].speedup == 0,
           "the second alone has tensors and no speed-up", r[1].speedup);
}

/* ---- counts on paper */

static void check_model(void)
{
    bench_case c = {0};
    bench_model m;
    c.batch = 2;
    c.heads_q = 4;
    c.heads_kv = 2;
    c.seq_q = 3;
    c.seq_kv = 5;
    c.head_dim = 16;
    c.head_dim_v = 8;
    model_of(&c, &m);
    expect(m.pairs == 2 * 4 * 15, "pairs without a mask", m.pairs);
    expect(m.flops == 2 * 120 * 24, "FLOPs without a mask", m.flops);
    expect(m.kv_bytes == 4 * 20 * 24, "bytes of k and v", m.kv_bytes);
    expect(m.tensor_bytes == 4 * (24 * 24 + 20 * 24), "bytes of tensors", m.tensor_bytes);
    c.mask = MASK_CAUSAL; /* the rows see 3, 4 and 5 keys */
    model_of(&c, &m);
    expect(m.pairs == 2 * 4 * 12, "causal pairs", m.pairs);
    c.seq_q = 5;
    c.seq_kv = 3; /* 0, 0, 1, 2 and 3 keys */
    model_of(&c, &m);
    expect(m.pairs == 2 * 4 * 6, "causal pairs of rows without keys", m.pairs);
}

static const preset_choice whole = {0, NULL, 2, PRESETS_MAX_SEQ_LEN};

/* How many cases of a preset have this length and batch; 0 = any. */
static int count_cases(const char *preset, int64_t seq_q, int64_t seq_kv, int64_t batch)
{
    static case_list list;
    int n = 0;
    list.n = 0;
    preset_cases(preset, &whole, &list);
    for (int i = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        n += (!seq_q || c->seq_q == seq_q) && (!seq_kv || c->seq_kv == seq_kv)
             && (!batch || c->batch == batch);
    }
    return n;
}

/* For one set: every row full and causal; groups stay together and fit. */
static void check_prefill(void)
{
    static case_list list;
    const preset_choice one = {0, "portable", 2, PRESETS_MAX_SEQ_LEN};
    int longest = 0, strided = 0;
    list.n = 0;
    preset_cases("prefill", &one, &list);
    for (int i = 0, length = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        length = i && c->group && c->group == c[-1].group ? length + 1 : 1;
        if (length > longest) longest = length;
        strided += c->layout == LAYOUT_BSHD;
    }
    expect(list.n == 38, "prefill: 19 rows, full and causal", list.n);
    expect(strided == 4, "prefill: strided, two widths", strided);
    expect(longest == 7 && longest <= RUN_MAX_GROUP, "prefill: groups fit", longest);
    list.n = 0;
    preset_cases("prefill", &whole, &list);
    const char *const best = attn_kernels_name(attn_kernels_get(0));
    int slow = 0;
    for (int i = 0; i < list.n; i++)
        slow += !strcmp(list.cases[i].kernels, "sse2") && strcmp(best, "sse2");
    expect(list.n >= 38 && slow == 0, "prefill: sse2 only where it is the best set", slow);
}

/* Whether the cases of preset threads are pairs that differ by threads alone. */
static int pairs_match(const case_list *list)
{
    int good = 1;
    for (int i = 0; i + 1 < list->n; i += 2) {
        const bench_case *const one = &list->cases[i], *const two = one + 1;
        good &= one->threads == 1 && !one->shares && two->threads == 2 && two->shares;
        good &= one->group > 0 && one->group == two->group;
        good &= i == 0 || one->group != one[-1].group;
        good &= !strcmp(one->name, two->name) && one->mask == two->mask;
        good &= one->heads_q == two->heads_q && one->heads_kv == two->heads_kv;
        good &= one->seq_q == two->seq_q && one->seq_kv == two->seq_kv;
    }
    return good;
}

static void check_threads(void)
{
    static case_list list;
    list.n = 0;
    preset_cases("threads", &whole, &list);
    expect(list.n == 8, "threads: 4 rows, one thread and several", list.n);
    expect(pairs_match(&list), "threads: pairs differ by threads alone", 0);
}

static void check_presets(void)
{
    case_list list = {.n = 0};
    expect(count_cases("decode", 1, 0, 1) == 42, "decode: 36 grouped, 6 of MLA",
           count_cases("decode", 1, 0, 1));
    expect(count_cases("decode", 0, 16384, 0) == 21, "decode: half of them long",
           count_cases("decode", 0, 16384, 0));
    expect(preset_cases("dilated", &whole, &list) == -1, "a planned preset is not available", 0);
    expect(preset_cases("none", &whole, &list) == 0, "an unknown preset is none", 0);
    expect(!shape_case("1,2,3", &list), "a short shape is refused", 0);
    expect(!shape_case("1,2,3,4,5,6,7,8", &list), "a long shape is refused", 0);
    expect(!shape_case("1,2,2,0,5,6", &list), "a size of 0 is refused", 0);
}

/* ---- tuning */

/* What is chosen when the usual value takes 100 and then `again`, and another value `other`, in a
 * first case, and in a second one 100, 100 and `second`. */
static int chosen(double again, double other, double second, double error)
{
    double gain, noise;
    const tune_trial trials[] = {{1, {100, 100}, {error, 0}},
                                 {2, {102, 102}, {0, 0}},
                                 {3, {other, second}, {0, 0}},
                                 {1, {again, 100}, {0, 0}}};
    return tune_choose(trials, 4, 2, &gain, &noise);
}

static void check_choice(void)
{
    expect(chosen(100, 90, 90, 0) == 2, "the faster value is chosen", chosen(100, 90, 90, 0));
    expect(chosen(100, 99, 99, 0) == 0, "1 % are not enough", chosen(100, 99, 99, 0));
    expect(chosen(100, 103, 103, 0) == 0, "a slower value is not chosen", 0);
    expect(chosen(120, 90, 90, 0) == 0, "a gain below the noise is not enough", 0);
    expect(chosen(95, 90, 100, 0) == 0, "the better median of the usual value counts", 0);
    expect(chosen(100, 90, 90, 0.2) == 0, "a gain below the medians' error is not enough", 0);
    expect(chosen(100, 80, 101, 0) == 0, "one case does not pay for another", 0);
    expect(chosen(100, 90, 100, 0) == 2, "one case alone may gain", 0);
}

/* The library takes every candidate and calls the usual ones usual. */
static void check_candidates(void)
{
    const char *name;
    int64_t value;
    int n = 0, refused = 0, unusual = 0;
    for (int f = 0; tune_candidate(f, 0, &name, &value); f++)
        for (int i = 0; tune_candidate(f, i, &name, &value); i++, n++) {
            const tuning_list none = {.n = 0};
            char text[TUNING_BYTES], why[300];
            float one = 1;
            attn_params p = {0};
            attn_info info;
            tuning_compose(text, &none, attn_kernels_name(attn_kernels_get(0)), name, value);
            refused += !tuning_taken(text, why, sizeof why);
            p.batch = p.num_heads_q = p.seq_len_kv = p.head_dim = 1;
            p.seq_len_q = 100;
            p.q.data = p.k.data = p.v.data = p.o.data = &one;
            p.tuning = text;
            attn_explain(&p, &info);
            unusual += i == 0 && !strstr(info.reasons, "tuning: the usual sizes");
        }
    expect(n > 20 && refused == 0, "the library takes every candidate", refused);
    expect(unusual == 0, "the usual values are those of the library", unusual);
}

static void check_tuning(void)
{
    static tuning_list list;
    char text[TUNING_BYTES], why[300];
    tuning_add(&list, "none", "tile_keys", 64, 0, 0);
    tuning_compose(text, &list, "none", "ahead", 0);
    expect(!strcmp(text, "attn-tuning 1\nnone.tile_keys 64\nnone.ahead 0\nend\n"),
           "a text is composed", (double)strlen(text));
    expect(tuning_taken(text, why, sizeof why), "the library takes it", 0);
    expect(!tuning_taken("attn-tuning 1\ntile_keys 65\nend", why, sizeof why)
               && strstr(why, "tile_keys (65) must be"), "a damaged text is noticed", 0);
    expect(tuning_same_bits("attn-tuning 1 tile_keys 32 split_work 1 end", 0),
           "the same bits with a text", 0);
    expect(!tuning_same_bits(text, 1), "one other bit is noticed", 0);
    FILE *const f = tmpfile();
    if (!f) return;
    for (int i = 0; i < 3000; i++) fputs("# long\n", f);
    rewind(f);
    char *const back = tuning_load(f);
    expect(back && strlen(back) == 21000, "a long file is read whole", back ? 1 : 0);
    free(back);
    fclose(f);
}

/* A case with a text is measured and says so; its result is the same as without. */
static void check_tuned_run(bench_context *context)
{
    case_list list = {.n = 0};
    bench_result r;
    char text[] = "attn-tuning 1 tile_keys 16 end";
    int64_t bytes = 0;
    shape_case("1,2,2,100,300,32", &list);
    list.cases[0].iterations = 1;
    for (int tuned = 0; tuned < 2; tuned++) {
        context->tuning = tuned ? text : NULL;
        context->tuning_file = tuned ? "file" : "";
        run_case(context, &list.cases[0], "tiled", &r);
        expect(!r.skipped[0] && !strcmp(r.tuning, tuned ? "file" : ""), "a tuned case", tuned);
        expect(!tuned || r.workspace_bytes < bytes, "its text has an effect",
               (double)r.workspace_bytes);
        bytes = r.workspace_bytes;
    }
    context->tuning = NULL;
    context->tuning_file = "";
}

int selfcheck(bench_context *context)
{
    passed = failed = 0;
    check_stats();
    check_timing();
    check_running();
    check_turns();
    check_ratio();
    check_reading_loops();
    check_rates(context);
    check_model();
    check_masks(context);
    check_presets();
    check_lists(context);
    check_prefill();
    check_threads();
    check_data();
    check_layouts(context);
    check_group(context);
    check_pair(context);
    check_pool();
    check_refusal(context);
    check_kernels();
    check_choice();
    check_candidates();
    check_tuning();
    check_tuned_run(context);
    check_paths(context);
    check_files();
    printf("%d passed, %d failed\n", passed, failed);
    return failed;
}
