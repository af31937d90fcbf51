/* presets.c - part of `bench selfcheck`: the lists of cases are what they promise.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "../../attn.h"
#include "../../bench/cases/cases.h"
#include "../../bench/cases/presets_list.h"
#include "../../bench/machine/peak.h"
#include "selfcheck.h"

static case_list list;

static const preset_choice whole = { .threads = 6, .max_seq_len = PRESETS_MAX_SEQ_LEN },
                           quick = { .quick = 1, .threads = 6, .max_seq_len = 65536 };

static void take(const char *preset, const preset_choice *want)
{
    list.n = list.lost = 0;
    preset_cases(preset, want, &list);
}

/* Every one of the sizes is there, in each combination once: n cases in all. */
typedef struct expected {
    int64_t heads_q, heads_kv, seq_q, seq_kv, head_dim, batch;
} expected;

static int how_often(const expected *e)
{
    int n = 0;
    for (int i = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        n += c->mask != MASK_PREFIX && c->heads_q == e->heads_q && c->heads_kv == e->heads_kv &&
             c->seq_q == e->seq_q && c->seq_kv == e->seq_kv && c->head_dim == e->head_dim &&
             c->head_dim_v == e->head_dim && c->batch == e->batch;
    }
    return n;
}

static void check_gemma(void)
{
    static const int lengths[] = { 512, 1024, 2048, 4096, 8192 }, batches[] = { 1, 4, 8, 16 };
    int once = 0, exact = 0, textbook = 0, cached = 0, prefix = 0, both = 0;
    take("gemma", &whole);
    for (int s = 0; s < 5; s++)
        for (int b = 0; b < 4; b++)
            for (int kv = 8; kv <= 32; kv += 24) {
                const expected e = { 32, kv, lengths[s], lengths[s], 256, batches[b] };
                once += how_often(&e) == 1;
            }
    for (int i = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        exact += c->warmup == 3 && c->iterations == 10 && c->layout == LAYOUT_BSHD &&
                 c->heads_q * c->head_dim == 8192;
        textbook += c->mask == MASK_FULL && c->keys.kind == KEYS_PLAIN;
        cached += c->keys.kind == KEYS_CONTIGUOUS;
        prefix += c->mask == MASK_PREFIX;
        both += c->mask == MASK_PREFIX && c->keys.kind == KEYS_CONTIGUOUS;
    }
    expect(textbook == 40 && once == 40, "gemma: 5 lengths, 4 batches, 2 head counts", once);
    expect(exact == list.n, "gemma: 3 and 10 calls, width 8192, interleaved", exact);
    expect(cached == 20 && prefix == 10 && both == 4, "gemma: caches, prefixes, both", both);
}

static void check_latency(void)
{
    static const int heads[] = { 4, 8, 16 }, batches[] = { 1, 2, 4, 8, 16 };
    int once = 0, exact = 0;
    take("latency", &whole);
    for (int s = 128; s <= 1024; s *= 2) {
        for (int d = 32; d <= 64; d += 32)
            for (int h = 0; h < 3; h++) {
                const expected e = { heads[h], heads[h], s, s, d, 1 };
                once += how_often(&e) == 1;
            }
        for (int b = 1; b < 5; b++) {
            const expected e = { 8, 8, s, s, 64, batches[b] };
            once += how_often(&e) == 1;
        }
    }
    for (int i = 0; i < list.n; i++)
        exact += list.cases[i].warmup == 10 && list.cases[i].iterations == 100 &&
                 list.cases[i].data == DATA_TRIG;
    expect(list.n == 40 && once == 40, "latency: 24 cases and a batch sweep of 16", once);
    expect(exact == 40, "latency: 10 and 100 calls, sin, cos, tan", exact);
}

static void check_llm(void)
{
    static const int prompts[] = { 2048, 4096, 8192 }, batches[] = { 1, 4, 8 };
    int once = 0;
    take("llm", &whole);
    for (int kv = 8; kv <= 32; kv += 24)
        for (int s = 0; s < 3; s++)
            for (int b = 0; b < 3; b++) {
                const expected prompt = { 32, kv, prompts[s], prompts[s], 128, batches[b] };
                const expected step = { 32, kv, 1, prompts[s], 128, batches[b] };
                once += batches[b] < 8 && how_often(&prompt) == 1;
                once += prompts[s] < 8192 && how_often(&step) == 1;
            }
    expect(list.n == 24 && once == 24, "llm: 12 prefills, 12 steps of decoding", once);
    once = 0;
    for (int i = 0; i < list.n; i++)
        once += list.cases[i].warmup == 3 && list.cases[i].iterations == 10;
    expect(once == 24, "llm: 3 and 10 calls", once);
}

static void check_extreme(void)
{
    const preset_choice less = { .threads = 6, .max_seq_len = 300000 },
                        least = { .threads = 6, .max_seq_len = 100 };
    int longest = 0, limited = 0;
    take("extreme", &whole);
    for (int i = 0; i < list.n; i++) {
        longest += list.cases[i].seq_kv == 1048576;
        limited += list.cases[i].max_time > 0;
    }
    expect(list.n == 27 && longest == 9, "extreme: 9 kinds to 1048576 keys", longest);
    expect(limited == list.n, "extreme: no call takes hours", limited);
    take("extreme", &less);
    expect(list.n == 18 && list.cases[1].seq_kv == 262144, "--max-seq-len ends it", list.n);
    take("extreme", &quick);
    expect(list.n == 27 && list.cases[2].seq_kv == 65536, "extreme --quick: to 65536", list.n);
    take("extreme", &least);
    for (int i = 0; i < list.n; i++)
        expect(list.cases[i].seq_q <= 100 && list.cases[i].seq_kv == 100,
               "extreme: no more rows than keys", (double)list.cases[i].seq_q);
}

/* Every kind beside none, in groups that fit and begin with none. */
static void check_mask_list(const preset_choice *want)
{
    int times[NUM_MASKS] = { 0 }, good = 1;
    take("masks", want);
    for (int i = 0, length = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        const int begins = i == 0 || c->group != c[-1].group;
        length = begins ? 1 : length + 1;
        good &= begins == (c->mask == MASK_FULL) && length <= RUN_MAX_GROUP;
        good &= c->shares == (begins ? SHARES_NOTHING : SHARES_BUT_MASK);
        good &= begins || (c->seq_q == c[-1].seq_q && c->layout == c[-1].layout);
        times[c->mask]++;
    }
    for (int kind = MASK_CAUSAL; kind < NUM_MASKS; kind++)
        good &= times[kind] >= 1;
    expect(good, "masks: each, after none", list.n);
}

/* Lengths of each kind, next to the batch that is padded with all of it computed. */
static void check_experts(void)
{
    int times[NUM_MASKS] = { 0 };
    take("experts", &whole);
    for (int i = 0; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        times[c->mask] += c->batch >= 16 && c->seq_kv <= 1024;
        expect(c->shares == (c->mask == MASK_FULL ? SHARES_NOTHING : SHARES_BUT_MASK),
               "experts: padded first", i);
    }
    expect(list.n == 24 && times[MASK_FULL] == 8 && times[MASK_KV_LENGTHS] == 8,
           "experts: prefill and decoding of 4 batches each", list.n);
    expect(times[MASK_VARLEN] == 4 && times[MASK_Q_LENGTHS] == 4, "experts: packed, too", 0);
}

/* What needs a unit for bf16 stands behind the exact call of the same tensors. */
static void check_fast(void)
{
    int fast = 0, after_exact = 0;
    take("prefill", &whole);
    for (int i = 1; i < list.n; i++) {
        const bench_case *const c = &list.cases[i];
        fast += c->fast == FAST_NEEDED;
        after_exact += c->fast == FAST_NEEDED && c[-1].fast == FAST_OFF &&
                       c[-1].group == c->group && c->shares == SHARES_BUT_STORAGE &&
                       c->dtype == c[-1].dtype;
    }
    expect(fast == 8 && after_exact == 8, "prefill: p.fast after the exact call", fast);
}

/* Within a scenario one thing differs, and the threads end with all of them. */
static void check_factors(void)
{
    int scenarios = 0, last = 0;
    take("factors", &whole);
    for (int i = 0; i < list.n; i++) {
        scenarios += i == 0 || strcmp(list.cases[i].scenario, list.cases[i - 1].scenario);
        if (!strcmp(list.cases[i].scenario, "threads"))
            last = list.cases[i].threads;
    }
    expect(scenarios == 8, "factors: eight", scenarios);
    expect(last == 6, "factors: 1, 2, 4 and all 6 threads", last);
}

static void check_all(void)
{
    int total = 0;
    const char *name, *what;
    for (int i = 0; preset_describe(i, &name, &what); i++) {
        take(name, &whole);
        total += list.n;
        expect(list.n > 0, "a preset has cases", list.n);
    }
    take("all", &whole);
    expect(list.n == total && list.lost == 0, "all: every preset, nothing lost", list.n);
    while (list.n < PRESETS_MAX_CASES)
        case_append(&list, "x", "x");
    expect(list.lost == 0, "a full list has lost nothing", list.lost);
    case_append(&list, "x", "x");
    expect(list.lost == 1 && list.n == PRESETS_MAX_CASES, "one case more is noticed", list.lost);
}

/* ---- what does not fit is skipped, with its size or the reason, and takes no memory */

static void expect_skipped(bench_context *x, const bench_case *c, const char *impl,
                           const char *reason)
{
    bench_result r;
    const int64_t before = peak_rss();
    run_case(x, c, impl, &r);
    expect(!strncmp(r.skipped, reason, strlen(reason)), r.skipped, 0);
    expect(peak_rss() - before < 1 << 24, "a skipped case takes no memory",
           (double)(peak_rss() - before));
}

/* What memory binds says nothing of how long calls of many rows take. */
static void check_pace(bench_context *x)
{
    const int tiled = path_index(path_find("tiled"));
    bench_result r;
    list.n = 0;
    shape_case("1,1,1,1,64,16", &list);
    list.cases[0].iterations = 1;
    run_case(x, &list.cases[0], "tiled", &r);
    expect(x->pace[0][tiled] == 1e-9 && x->pace[1][tiled] > 0, "one row has a pace of its own",
           x->pace[1][tiled]);
}

static void check_guards(bench_context *x)
{
    const int64_t usable = x->machine.memory_usable;
    const double deadline = x->deadline;
    take("gemma", &whole);
    const bench_case *const largest = &list.cases[39]; /* the last without a cache or a prefix */
    bench_case biased = *largest;
    biased.batch = biased.heads_q = biased.heads_kv = 1;
    biased.seq_q = biased.seq_kv = 1 << 16;
    biased.mask = MASK_BIAS;
    x->machine.memory_usable = (int64_t)8 << 30;
    expect_skipped(x, largest, "naive", "logits take 128.00 GiB (137.4 GB), the limit is 4.00 GiB");
    expect_skipped(x, largest, "tiled", "needs 10.00 GiB, the limit is 4.00 GiB");
    expect_skipped(x, &biased, "tiled", "needs 16.25 GiB, the limit is 4.00 GiB");
    x->machine.memory_usable = usable;
    take("extreme", &quick);
    x->deadline = 1e-9; /* long ago */
    expect_skipped(x, &list.cases[0], "tiled", "the time is up");
    x->deadline = deadline;
    list.cases[0].max_time = 1e-6;
    x->pace[0][path_index(path_find("tiled"))] = 1e-9;
    expect_skipped(x, &list.cases[0], "tiled", "one call takes about");
    check_pace(x);
}

void check_lists(bench_context *context)
{
    check_gemma();
    check_latency();
    check_llm();
    check_extreme();
    check_mask_list(&whole);
    check_mask_list(&quick);
    check_experts();
    check_fast();
    check_factors();
    check_all();
    check_guards(context);
}
