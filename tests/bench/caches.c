/* caches.c - the bench measures caches as it says, and notices what is wrong in them.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../attn.h"
#include "../../bench/cases/jobs.h"
#include "../../bench/cases/cases.h"
#include "../../bench/report/report.h"
#include "../sampled.h"
#include "selfcheck.h"

static case_list list;

/* ---- the lists */

static void take(int quick)
{
    const preset_choice want = { .quick = quick, .threads = 2, .max_seq_len = 65536 };
    list.n = list.lost = 0;
    preset_cases("cache", &want, &list);
}

static int count(const char *scenario, const case_keys *keys, int64_t batch, int64_t length)
{
    int n = 0;
    for (int i = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        n += !strcmp(c->scenario, scenario) && c->batch == batch && c->seq_kv == length &&
             c->keys.kind == keys->kind && c->keys.page_size == keys->page_size &&
             c->keys.rope == keys->rope && c->keys.k_dtype == keys->k_dtype &&
             c->keys.v_dtype == keys->v_dtype;
    }
    return n;
}

/* Every place of keys, in every type, at each of three sizes once. */
static void check_decodes(void)
{
    static const int sizes[][2] = { { 1, 4096 }, { 1, 16384 }, { 8, 4096 } };
    static const case_keys places[] = { { .kind = KEYS_PLAIN },
                                        { .kind = KEYS_CONTIGUOUS },
                                        { .kind = KEYS_RING },
                                        { .kind = KEYS_PAGED, .page_size = 1 },
                                        { .kind = KEYS_PAGED, .page_size = 16 },
                                        { .kind = KEYS_PAGED, .page_size = 256 } };
    static const int types[] = { ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_Q8_0 };
    int once = 0;
    for (int s = 0; s < 3; s++)
        for (int p = 0; p < 6; p++)
            for (int t = 0; t < 4; t++) {
                case_keys keys = places[p];
                keys.k_dtype = keys.v_dtype = types[t];
                once += count("decode", &keys, sizes[s][0], sizes[s][1]) == 1;
            }
    expect(once == 3 * 6 * 4, "cache: decoding from 6 places, 4 types, 3 sizes", once);
}

/* Recent keys behind a cache without, in decoding and in a prefill. */
static void check_recent(void)
{
    int with = 0, without = 0;
    for (int i = 0; i < list.n; i++) {
        const case_keys *const keys = &list.cases[i].keys;
        with += keys->recent == 64 && !strcmp(list.cases[i].scenario, "recent");
        without += keys->recent == 0 && !strcmp(list.cases[i].scenario, "recent");
    }
    expect(with == 5 && without == 5, "cache: recent keys against none", with);
}

/* Every type but i8 exactly, and in whole numbers, too, where keys are such. All are appended. */
static void check_types(void)
{
    static const int64_t lengths[] = { 4096, 16384, 4608 };
    int good = 0, appended = 0, whole = 0;
    for (int dtype = ATTN_F32; dtype <= ATTN_I8; dtype++) {
        const case_keys keys = { .kind = KEYS_CONTIGUOUS, .k_dtype = dtype, .v_dtype = dtype };
        const int read = dtype == ATTN_I8 ? 0 : dtype >= ATTN_Q8_0 ? 2 : 1;
        for (int i = 0; i < 3; i++)
            good += count("quantised", &keys, 1, lengths[i]) == read;
        appended += count("append", &keys, 1, 1) == 1 && count("append", &keys, 1, 512) == 1 &&
                    count("append", &keys, 8, 1) == 1;
    }
    for (int i = 0; i < list.n; i++)
        whole += list.cases[i].integer;
    expect(good == 3 * 9, "cache: 8 types of K and V, and not i8", good);
    expect(whole == 3 * 3, "cache: 3 types in whole numbers", whole);
    expect(appended == 9, "cache: 9 types are appended", appended);
}

static void check_storages(void)
{
    int pairs = 0;
    for (int k = ATTN_F32; k <= ATTN_BF16; k++)
        for (int v = ATTN_F32; v <= ATTN_BF16; v++) {
            const case_keys keys = { .kind = KEYS_CONTIGUOUS, .k_dtype = k, .v_dtype = v };
            pairs += count("storage", &keys, 1, 4096) == 1 && count("storage", &keys, 8, 4096) == 1;
        }
    expect(pairs == 8, "cache: 8 pairs of types for K and V", pairs);
}

static int named_before(int at)
{
    for (int i = 0; i < at; i++)
        if (!strcmp(list.cases[i].scenario, list.cases[at].scenario) &&
            !strcmp(list.cases[i].name, list.cases[at].name))
            return 1;
    return 0;
}

/* Groups fit, begin with a contiguous cache and are of one shape; no name is cut off or twice. */
static void check_groups(int quick)
{
    int good = 1, length = 0;
    take(quick);
    for (int i = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        const int begins = i == 0 || c->group != c[-1].group;
        length = begins ? 1 : length + 1;
        good &= length <= RUN_MAX_GROUP && (c->shares == SHARES_NOTHING) == begins;
        good &= !begins || c->keys.kind == KEYS_CONTIGUOUS;
        good &= begins || (c->seq_q == c[-1].seq_q && c->seq_kv == c[-1].seq_kv &&
                           c->batch == c[-1].batch && c->scenario == c[-1].scenario);
        good &= strlen(c->name) + 1 < sizeof c->name && !named_before(i);
        good &= c->keys.page_size == 0 || c->seq_kv % c->keys.page_size == 0 || c->appends;
        if (!good)
            break;
    }
    expect(good && list.n > 30, "cache: groups of one shape after a contiguous cache", list.n);
}

/* ---- bytes */

static double bytes_of(int k_dtype, int v_dtype, int64_t shared, keys_kind kind)
{
    bench_case c = { .batch = 8,
                     .heads_q = 32,
                     .heads_kv = 8,
                     .seq_q = 1,
                     .seq_kv = 1000,
                     .head_dim = 128,
                     .head_dim_v = 64 };
    bench_model m;
    c.keys.kind = kind;
    c.keys.page_size = kind == KEYS_PAGED ? 10 : 0;
    c.keys.shared = shared;
    c.keys.typed = 1;
    c.keys.k_dtype = k_dtype;
    c.keys.v_dtype = v_dtype;
    model_sizes(&c, &m);
    return shared ? m.kv_bytes : m.kv_token_bytes;
}

static void check_bytes(void)
{
    static const struct {
        int k, v;
        double bytes;
    } want[] = { { ATTN_F32, ATTN_F32, 6144 },
                 { ATTN_F16, ATTN_F16, 3072 },
                 { ATTN_F32, ATTN_BF16, 5120 },
                 { ATTN_BF16, ATTN_F32, 4096 },
                 { ATTN_Q8_0, ATTN_Q4_0, 8 * (4 * 34 + 2 * 18) },
                 { ATTN_Q5_0, ATTN_E4M3, 8 * (4 * 22 + 64) },
                 { ATTN_I8, ATTN_I8, 8 * (128 + 64) } };
    for (int i = 0; i < 7; i++) {
        const double got = bytes_of(want[i].k, want[i].v, 0, KEYS_CONTIGUOUS);
        expect(got == want[i].bytes, "bytes of a token", got);
    }
    const double by_row = bytes_of(ATTN_I8, ATTN_I8, 0, KEYS_PLAIN);
    const double forked = bytes_of(ATTN_F16, ATTN_F16, 600, KEYS_PAGED);
    const double copied = bytes_of(ATTN_F16, ATTN_F16, 600, KEYS_CONTIGUOUS);
    expect(by_row == 8 * (128 + 4 + 64 + 4), "rows of plain arrays have scales", by_row);
    expect(forked == (600 + 8 * 400) * 3072, "shared pages count once", forked);
    expect(copied == 8 * 1000 * 3072, "copies each", copied);
}

/* ---- caches that are right, and wrong pages */

static bench_case case_of(keys_kind kind, int64_t page_size, int64_t shared)
{
    bench_case c = { .preset = "selfcheck",
                     .scenario = "caches",
                     .batch = 2,
                     .heads_q = 4,
                     .heads_kv = 2,
                     .seq_q = 1,
                     .seq_kv = 60,
                     .head_dim = 16,
                     .head_dim_v = 8,
                     .iterations = 3,
                     .data = DATA_NORMAL };
    c.keys.kind = kind;
    c.keys.page_size = page_size;
    c.keys.shared = shared;
    c.keys.typed = 1;
    c.keys.k_dtype = ATTN_F16;
    c.keys.v_dtype = ATTN_BF16;
    return c;
}

/* Each place, alone and in a group behind a contiguous cache. */
static void check_places(bench_context *x)
{
    bench_case cases[] = { case_of(KEYS_CONTIGUOUS, 0, 0), case_of(KEYS_PLAIN, 0, 0),
                           case_of(KEYS_RING, 0, 0),       case_of(KEYS_PAGED, 1, 0),
                           case_of(KEYS_PAGED, 4, 0),      case_of(KEYS_PAGED, 20, 0),
                           case_of(KEYS_PAGED, 4, 40) };
    enum { CASES = sizeof cases / sizeof *cases };
    bench_result r[CASES];
    for (int i = 1; i < CASES; i++)
        cases[i].shares = SHARES_BUT_KEYS;
    cases[CASES - 1].shares = SHARES_NOTHING; /* other keys */
    run_group(x, cases, CASES, "tiled", r);
    for (int i = 0; i < CASES; i++) {
        expect(!r[i].skipped[0] && r[i].samples == 3, r[i].skipped[0] ? r[i].skipped : r[i].keys,
               (double)r[i].page_size);
        expect((r[i].speedup > 0) == (cases[i].shares == SHARES_BUT_KEYS),
               "compared with the first", r[i].speedup);
        expect(r[i].pct_read_bw > 0, "and each with a loop that reads its keys", r[i].pct_read_bw);
    }
    expect(r[6].kv_bytes == (40 + 2 * 20) * 2 * 48, "bytes in shared pages", (double)r[6].kv_bytes);
    expect(r[0].shared_keys == 0 && r[4].shared_keys == 0, "keys that no sequence shares", 0);
}

/* The pages of a fault are found before anything is timed: another order by its bits alone. */
static void check_wrong_pages(bench_context *x)
{
    static const struct {
        keys_fault fault;
        const char *sentence;
    } places[] = { { KEYS_REPEATED, "times the tolerance" }, { KEYS_SWAPPED, "other bits" } };
    for (int i = 0; i < 2; i++)
        for (int64_t page = 1; page <= 20; page += 19) {
            const bench_case c = case_of(KEYS_PAGED, page, 0);
            bench_result r;
            faults.pages = places[i].fault;
            run_case(x, &c, "tiled", &r);
            faults.pages = KEYS_RIGHT;
            expect(run_was_wrong(&r) && r.samples == 0 && r.ms_p50 == 0, "a wrong page is refused",
                   r.err_tolerance);
            expect(strstr(r.skipped, places[i].sentence) != NULL, r.skipped, (double)page);
        }
}

/* ---- types */

/* Two heads of 64 whose keys are appended, or lie in arrays. */
static bench_case typed_of(keys_kind kind, int dtype, int integer)
{
    bench_case c = case_of(kind, kind == KEYS_PAGED ? 4 : 0, 0);
    c.head_dim = c.head_dim_v = 64;
    c.keys.k_dtype = c.keys.v_dtype = dtype;
    c.integer = integer;
    return c;
}

/* Each type in arrays, in a cache and in pages is right; one wrong number is refused. */
static void check_typed(bench_context *x)
{
    for (int dtype = ATTN_F32; dtype <= ATTN_I8; dtype++)
        for (int kind = KEYS_PLAIN; kind <= KEYS_PAGED; kind++)
            for (int integer = 0; integer <= (dtype >= ATTN_Q8_0); integer++) {
                const bench_case c = typed_of((keys_kind)kind, dtype, integer);
                bench_result r;
                run_case(x, &c, "tiled", &r);
                expect(!r.skipped[0] && r.samples == 3, r.skipped[0] ? r.skipped : r.k_dtype, kind);
                expect(r.integer == integer, "scores as the case says", (double)r.integer);
                faults.spoil = 3;
                run_case(x, &c, "tiled", &r);
                faults.spoil = 0;
                expect(run_was_wrong(&r), "a spoilt row is refused", dtype);
            }
}

/* Queries that were not rounded, and a wrong product of whole numbers, are found. */
static void check_whole_faults(bench_context *x)
{
    for (int dtype = ATTN_Q8_0; dtype <= ATTN_I8; dtype++) {
        const bench_case c = typed_of(KEYS_PLAIN, dtype, 1), exact = typed_of(KEYS_PLAIN, dtype, 0);
        bench_result r;
        faults.scores = 1;
        run_case(x, &c, "tiled", &r);
        faults.scores = 0;
        expect(run_was_wrong(&r) && r.err_tolerance > 100, "queries that were not rounded",
               r.err_tolerance);
        faults.wrong = "qk_units";
        run_case(x, &c, "tiled", &r);
        expect(run_was_wrong(&r), "a wrong product of whole numbers", r.err_tolerance);
        run_case(x, &exact, "tiled", &r);
        expect(!r.skipped[0], "which exact scores do not use", r.err_tolerance);
        faults.wrong = NULL;
    }
}

/* ---- appending */

static bench_case append_of(int dtype, keys_rope rope, int64_t page_size, int64_t tokens)
{
    bench_case c = case_of(page_size ? KEYS_PAGED : KEYS_CONTIGUOUS, page_size, 0);
    c.seq_q = c.seq_kv = tokens;
    c.appends = 1;
    c.head_dim = c.head_dim_v = case_unit(dtype) == 1 ? c.head_dim : 64;
    c.keys.k_dtype = dtype;
    c.keys.v_dtype = case_unit(dtype) == 1 ? ATTN_BF16 : ATTN_Q4_0;
    c.keys.rope = rope;
    return c;
}

static void check_appends(bench_context *x)
{
    for (int rope = KEYS_UNTURNED; rope <= KEYS_ROPE_TABLE; rope++)
        for (int dtype = ATTN_F32; dtype <= ATTN_I8; dtype++)
            for (int64_t page = 0; page <= 16; page += 16) {
                const bench_case c = append_of(dtype, (keys_rope)rope, page, 30);
                bench_result r;
                run_case(x, &c, "append", &r);
                expect(!r.skipped[0] && r.samples == 3, r.skipped[0] ? r.skipped : "appended",
                       rope);
                expect(r.gflops == 0 && fabs(r.tokens_per_s * r.ms_p50 / 60e3 - 1) < 1e-9,
                       "60 tokens a call", r.tokens_per_s);
                faults.spoil = !page; /* the first row that is stored */
                if (faults.spoil)
                    run_case(x, &c, "append", &r);
                faults.spoil = 0;
                expect(page || run_was_wrong(&r), "a spoilt key is refused", r.err_tolerance);
            }
}

/* The worst error of the last call in units of its tolerance; negative = it cannot be read. */
static double append_error(append_job *job)
{
    sampled_errors errors = { 0, 0 };
    char why[200];
    return sampled_append(job, &errors, why, sizeof why) ? errors.err_tolerance : -1;
}

/* A key at another position, and a value that is another's, are noticed in the last of many
 * calls. */
static void check_append_faults(void)
{
    static float k[2 * 2 * 30 * 16], v[2 * 2 * 30 * 8];
    const bench_case c = append_of(ATTN_F16, KEYS_ROPE_TABLE, 16, 30);
    const attn_params p = { .k = { ATTN_F32, 960, 480, 16, k }, .v = { ATTN_F32, 480, 240, 8, v } };
    append_job job;
    char why[200];
    data_fill(k, ATTN_F32, 2 * 2 * 30 * 16, DATA_K, DATA_NORMAL, 1);
    data_fill(v, ATTN_F32, 2 * 2 * 30 * 8, DATA_V, DATA_NORMAL, 1);
    int ok = append_make(&c, &p, 1, &job, why, sizeof why);
    for (int i = 0; ok && i < 250; i++)
        ok = !append_call(&job);
    double share = append_error(&job);
    expect(ok && share >= 0 && share <= 1 && job.store.cache.end[1] > 2000,
           "many calls, the last one right", share);
    v[17] += 1;
    share = append_error(&job);
    expect(share > 1, "a value that is another's", share);
    v[17] -= 1;
    job.rope.cos += 8; /* the next position's */
    ok = !append_call(&job);
    share = append_error(&job);
    expect(ok && share > 1, "a key that is turned to another position", share);
    append_free(&job);
}

static void check_append_paths(bench_context *x)
{
    const bench_case keys = append_of(ATTN_F32, KEYS_UNTURNED, 0, 3);
    const bench_case attention = case_of(KEYS_PLAIN, 0, 0);
    bench_result r;
    run_case(x, &keys, "tiled", &r);
    expect(strstr(r.skipped, "path append") != NULL, "a case that appends is no attention", 0);
    run_case(x, &attention, "append", &r);
    expect(strstr(r.skipped, "appends nothing") != NULL, "nor the other way round", 0);
}

/* ---- what is said of them */

static bench_result row_of(const char *keys, int64_t page_size, const char *name, double speedup)
{
    bench_result r;
    memset(&r, 0, sizeof r);
    r.preset = "cache";
    r.scenario = "decode";
    r.keys = keys;
    r.page_size = page_size;
    r.speedup = speedup;
    r.ms_p50 = r.ms_min = 1;
    snprintf(r.name, sizeof r.name, "%s", name);
    return r;
}

static void check_costs(void)
{
    bench_result rows[] = { row_of("contiguous", 0, "a", 0), row_of("paged", 16, "b", 1 / 1.02),
                            row_of("paged", 1, "c", 0.5), row_of("paged", 16, "d", 1 / 1.08),
                            row_of("paged", 16, "e", 0.1) };
    caches_cost costs[3];
    snprintf(rows[4].skipped, sizeof rows[4].skipped, "why not");
    expect(caches_costs(rows, 5, costs, 3) == 2, "two sizes of pages have a cost", 0);
    expect(costs[0].cases == 2 && costs[0].page_size == 16 && costs[0].goal == 5, "pages of 16",
           costs[0].cases);
    expect(fabs(costs[0].mean - (100 * sqrt(1.02 * 1.08) - 100)) < 1e-9, "geometric mean of both",
           costs[0].mean);
    expect(fabs(costs[0].worst - 8) < 1e-9 && !strcmp(costs[0].worst_case, "d"), "and the worst",
           costs[0].worst);
    expect(fabs(costs[1].mean - 100) < 1e-9 && costs[1].goal == 0, "pages of 1 have no goal",
           costs[1].mean);
    rows[3].ms_min = 0.5;
    caches_costs(rows, 5, costs, 3);
    expect(costs[0].noisy == 1 && costs[1].noisy == 0, "a noisy row is said to be", costs[0].noisy);
}

void check_caches(bench_context *context)
{
    check_groups(1);
    check_groups(0);
    check_decodes();
    check_recent();
    check_storages();
    check_types();
    check_bytes();
    check_places(context);
    check_wrong_pages(context);
    check_typed(context);
    check_whole_faults(context);
    check_appends(context);
    check_append_faults();
    check_append_paths(context);
    check_costs();
}
