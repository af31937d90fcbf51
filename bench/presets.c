/* presets.c - named lists of cases.
 * SPDX-License-Identifier: MIT */
#include "presets.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../attn.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

static const char *const storage_suffix[] = {"", " f16", " bf16"};

static bench_case *append(case_list *list, const char *preset, const char *scenario)
{
    static const bench_case none;
    if (list->n == PRESETS_MAX_CASES) list->n--; /* the lists below are shorter */
    bench_case *const c = &list->cases[list->n++];
    *c = none;
    c->preset = preset;
    c->scenario = scenario;
    c->warmup = 2;
    c->data = DATA_NORMAL;
    return c;
}

/* ---- latency: short sequences, few heads, 100 calls after 10 of warm-up, sin/cos/tan data */

static void latency_case(case_list *list, const char *scenario, int batch, int heads, int length,
                         int head_dim)
{
    bench_case *const c = append(list, "latency", scenario);
    c->batch = batch;
    c->heads_q = c->heads_kv = heads;
    c->seq_q = c->seq_kv = length;
    c->head_dim = c->head_dim_v = head_dim;
    c->warmup = 10;
    c->iterations = 100;
    c->data = DATA_TRIG;
    snprintf(c->name, sizeof c->name, "b%d h%d s%d d%d", batch, heads, length, head_dim);
}

static void latency_cases(case_list *list, const preset_choice *want)
{
    static const int lengths[] = {128, 256, 512, 1024}, dims[] = {32, 64}, heads[] = {4, 8, 16};
    static const int batches[] = {2, 4, 8, 16};
    if (want->quick) {
        latency_case(list, "latency", 1, 8, 128, 64);
        latency_case(list, "latency", 1, 8, 512, 64);
        latency_case(list, "latency, batched", 4, 8, 256, 64);
        return;
    }
    for (int s = 0; s < LENGTH(lengths); s++)
        for (int d = 0; d < LENGTH(dims); d++)
            for (int h = 0; h < LENGTH(heads); h++)
                latency_case(list, "latency", 1, heads[h], lengths[s], dims[d]);
    for (int b = 0; b < LENGTH(batches); b++)
        for (int s = 0; s < LENGTH(lengths); s++)
            latency_case(list, "latency, batched", batches[b], 8, lengths[s], 64);
}

/* ---- llm: prefill of a prompt (causal) and decoding of one token against a cache */

static void llm_case(case_list *list, int decode, int batch, int heads_q, int heads_kv, int length)
{
    bench_case *const c = append(list, "llm", decode ? "decode" : "prefill");
    c->batch = batch;
    c->heads_q = heads_q;
    c->heads_kv = heads_kv;
    c->seq_q = decode ? 1 : length;
    c->seq_kv = length;
    c->head_dim = c->head_dim_v = 128;
    c->causal = 1;
    snprintf(c->name, sizeof c->name, "%s %d b%d h%d/%d", c->scenario, length, batch, heads_q,
             heads_kv);
}

static void llm_cases(case_list *list, const preset_choice *want)
{
    static const int heads_kv[] = {32, 8}, prompts[] = {2048, 4096, 8192}, caches[] = {2048, 4096};
    static const int prompt_batches[] = {1, 4}, cache_batches[] = {1, 4, 8};
    if (want->quick) {
        llm_case(list, 0, 1, 8, 2, 256); /* small enough for a CPU without FMA */
        llm_case(list, 0, 1, 8, 2, 2048);
        llm_case(list, 1, 1, 32, 8, 2048);
        llm_case(list, 1, 4, 32, 8, 2048);
        return;
    }
    for (int h = 0; h < LENGTH(heads_kv); h++) {
        for (int s = 0; s < LENGTH(prompts); s++)
            for (int b = 0; b < LENGTH(prompt_batches); b++)
                llm_case(list, 0, prompt_batches[b], 32, heads_kv[h], prompts[s]);
        for (int s = 0; s < LENGTH(caches); s++)
            for (int b = 0; b < LENGTH(cache_batches); b++)
                llm_case(list, 1, cache_batches[b], 32, heads_kv[h], caches[s]);
    }
}

/* ---- prefill: full and causal by length, width, storage type and layout, for each kernel set that
 * is made for this CPU's vector unit. Rows of one group are compared with one another by the goals
 * and so timed in turn. */

typedef struct prefill_row {
    int group; /* + 1 when causal; 0 = alone */
    int head_dim, seq;
    int dtype;
    case_layout layout;
} prefill_row;

static const prefill_row prefill_rows[] = {
    {0, 128, 512, ATTN_F32, LAYOUT_BHSD},   {0, 128, 1024, ATTN_F32, LAYOUT_BHSD},
    {2, 128, 2048, ATTN_F32, LAYOUT_BHSD},  {2, 128, 2048, ATTN_F16, LAYOUT_BHSD},
    {2, 128, 2048, ATTN_BF16, LAYOUT_BHSD}, {2, 128, 2048, ATTN_F32, LAYOUT_BSHD},
    {2, 80, 2048, ATTN_F32, LAYOUT_BHSD},   {2, 96, 2048, ATTN_F32, LAYOUT_BHSD},
    {2, 112, 2048, ATTN_F32, LAYOUT_BHSD},  {0, 128, 4096, ATTN_F32, LAYOUT_BHSD},
    {0, 128, 8192, ATTN_F32, LAYOUT_BHSD},  {0, 64, 512, ATTN_F32, LAYOUT_BHSD},
    {4, 64, 2048, ATTN_F32, LAYOUT_BHSD},   {4, 64, 2048, ATTN_F16, LAYOUT_BHSD},
    {4, 64, 2048, ATTN_BF16, LAYOUT_BHSD},  {4, 64, 2048, ATTN_F32, LAYOUT_BSHD},
    {0, 64, 4096, ATTN_F32, LAYOUT_BHSD},   {0, 256, 2048, ATTN_F32, LAYOUT_BHSD},
    {0, 256, 4096, ATTN_F32, LAYOUT_BHSD},
};
static const prefill_row prefill_quick[] = {{0, 128, 2048, ATTN_F32, LAYOUT_BHSD}};

enum { PREFILL_SAMPLES = 21, PREFILL_GROUP_HEADS = 8 };
#define PREFILL_FLOPS 5e9 /* of one call at least: 40 ms and more on one core of 2023 */

/* 8 in groups, where row strides of [seq][head][dim] are then multiples of 1 KiB; else a power of
 * two that makes the call long enough. */
static int prefill_heads(const prefill_row *row)
{
    const double flops = 4.0 * row->seq * row->seq * row->head_dim;
    int heads = 1;
    while (heads * flops < PREFILL_FLOPS) heads *= 2;
    return row->group ? PREFILL_GROUP_HEADS : heads;
}

static void prefill_case(case_list *list, const prefill_row *row, int causal, const char *kernels)
{
    static const char *const layouts[] = {"", " strided"};
    bench_case *const c = append(list, "prefill", kernels);
    c->batch = 1;
    c->heads_q = c->heads_kv = prefill_heads(row);
    c->seq_q = c->seq_kv = row->seq;
    c->head_dim = c->head_dim_v = row->head_dim;
    c->causal = causal;
    c->dtype = row->dtype;
    c->layout = row->layout;
    c->kernels = kernels;
    c->impl = "tiled";
    c->group = row->group ? row->group + causal : 0;
    c->fixed = 1;
    c->iterations = PREFILL_SAMPLES;
    snprintf(c->name, sizeof c->name, "%s d%d s%d%s%s", causal ? "causal" : "full", row->head_dim,
             row->seq, storage_suffix[row->dtype], layouts[row->layout]);
}

static void prefill_set(case_list *list, int quick, const char *kernels)
{
    const prefill_row *const rows = quick ? prefill_quick : prefill_rows;
    const int n = quick ? LENGTH(prefill_quick) : LENGTH(prefill_rows);
    int end;
    for (int begin = 0; begin < n; begin = end) {
        for (end = begin + 1; end < n && rows[end].group && rows[end].group == rows[begin].group;)
            end++;
        for (int causal = 0; causal < 2; causal++)
            for (int i = begin; i < end; i++) prefill_case(list, &rows[i], causal, kernels);
    }
}

/* Not a narrow set, whose tiles are for few rows, nor a portable one, nor sse2: that computes the
 * fused multiply-add step by step, at 2 % of the peak, and one call takes seconds. */
static int native(const char *kernels)
{
    static const char *const others[] = {"_narrow", "portable", "sse2"};
    for (int i = 0; i < LENGTH(others); i++)
        if (strstr(kernels, others[i])) return 0;
    return 1;
}

static void prefill_cases(case_list *list, const preset_choice *want)
{
    const int before = list->n;
    if (want->kernels) {
        prefill_set(list, want->quick, want->kernels);
        return;
    }
    for (int i = 0; attn_kernels_get(i); i++) {
        const char *const name = attn_kernels_name(attn_kernels_get(i));
        if (native(name)) prefill_set(list, want->quick, name);
    }
    if (list->n == before)
        prefill_set(list, want->quick, attn_kernels_name(attn_kernels_get(0)));
}

/* ---- decode: one token against a cache, by heads, width, length and storage; and MLA, where all
 * query heads share one latent cache, so that arithmetic is the bound */

static bench_case *decode_case(case_list *list, int heads_q, int heads_kv, int length, int dtype)
{
    bench_case *const c = append(list, "decode", "decode");
    c->batch = c->seq_q = 1;
    c->heads_q = heads_q;
    c->heads_kv = heads_kv;
    c->seq_kv = length;
    c->dtype = dtype;
    c->impl = "tiled";
    c->fixed = 1;
    return c;
}

static void grouped_case(case_list *list, int heads_kv, int head_dim, int length, int dtype)
{
    bench_case *const c = decode_case(list, 32, heads_kv, length, dtype);
    c->head_dim = c->head_dim_v = head_dim;
    snprintf(c->name, sizeof c->name, "h32/%d d%d kv%d%s", heads_kv, head_dim, length,
             storage_suffix[dtype]);
}

static void mla_case(case_list *list, int length, int dtype)
{
    bench_case *const c = decode_case(list, 128, 1, length, dtype);
    c->head_dim = 576;
    c->head_dim_v = 512;
    snprintf(c->name, sizeof c->name, "mla kv%d%s", length, storage_suffix[dtype]);
}

static void decode_cases(case_list *list, const preset_choice *want)
{
    static const int heads_kv[] = {32, 8}, dims[] = {64, 128, 256}, lengths[] = {4096, 16384};
    if (want->quick) {
        grouped_case(list, 8, 128, 4096, ATTN_F32);
        grouped_case(list, 8, 128, 4096, ATTN_F16);
        mla_case(list, 4096, ATTN_F32);
        return;
    }
    for (int h = 0; h < LENGTH(heads_kv); h++)
        for (int d = 0; d < LENGTH(dims); d++)
            for (int s = 0; s < LENGTH(lengths); s++)
                for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
                    grouped_case(list, heads_kv[h], dims[d], lengths[s], dtype);
    for (int s = 0; s < LENGTH(lengths); s++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
            mla_case(list, lengths[s], dtype);
}

/* ---- threads: each case with one thread and with several, in turn on the same tensors */

enum { WHOLE = 1, QUICK = 2 }; /* lists that have the row */

static const struct {
    const char *name;
    int lists, heads_q, heads_kv, seq_q, seq_kv, causal;
} thread_rows[] = {
    {"prefill h8 s512", QUICK, 8, 8, 512, 512, 1},
    {"prefill h8 s2048", WHOLE, 8, 8, 2048, 2048, 1},
    {"h1 rows64 kv65536", WHOLE, 1, 1, 64, 65536, 0},
    {"decode g4 kv1500", WHOLE | QUICK, 4, 1, 1, 1500, 0},
    {"decode g4 kv65536", WHOLE, 4, 1, 1, 65536, 0},
};

static void threads_case(case_list *list, int row, int threads, int shares)
{
    bench_case *const c = append(list, "threads", "threads");
    c->batch = 1;
    c->heads_q = thread_rows[row].heads_q;
    c->heads_kv = thread_rows[row].heads_kv;
    c->seq_q = thread_rows[row].seq_q;
    c->seq_kv = thread_rows[row].seq_kv;
    c->head_dim = c->head_dim_v = 128;
    c->causal = thread_rows[row].causal;
    c->impl = "tiled";
    c->group = row + 1;
    c->threads = threads;
    c->shares = shares;
    c->fixed = 1;
    snprintf(c->name, sizeof c->name, "%s", thread_rows[row].name);
}

/* 1, 2, ... to 8 threads, beyond that powers of two and the most. */
static int next_threads(int threads, int most)
{
    const int next = most <= 8 ? threads + 1 : 2 * threads;
    return threads < most && next > most ? most : next;
}

static void threads_cases(case_list *list, const preset_choice *want)
{
    for (int row = 0; row < LENGTH(thread_rows); row++) {
        if (!(thread_rows[row].lists & (want->quick ? QUICK : WHOLE))) continue;
        for (int t = 1; t <= want->threads; t = next_threads(t, want->threads))
            threads_case(list, row, t, t > 1);
    }
}

/* ---- rank: every path on a few cases, small enough for kernels without vectors */

static const struct {
    const char *scenario, *name;
    int lists, batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, causal;
} rank_rows[] = {
    {"prefill, short", "s128 h4 d64", WHOLE | QUICK, 1, 4, 4, 128, 128, 64, 0},
    {"prefill, short", "b4 s256 h8 d64", WHOLE, 4, 8, 8, 256, 256, 64, 0},
    {"prefill, long", "s1024 h2 d64", QUICK, 1, 2, 2, 1024, 1024, 64, 1},
    {"prefill, long", "s2048 h4 d128", WHOLE, 1, 4, 4, 2048, 2048, 128, 1},
    {"prefill, long", "s6144 h1 d64", WHOLE, 1, 1, 1, 6144, 6144, 64, 1},
    {"prefill, GQA", "s512 h8/2 d64", WHOLE | QUICK, 1, 8, 2, 512, 512, 64, 1},
    {"prefill, GQA", "s2048 h16/4 d64", WHOLE, 1, 16, 4, 2048, 2048, 64, 1},
    {"decode", "kv2048 h8/2 d128", WHOLE | QUICK, 1, 8, 2, 1, 2048, 128, 1},
    {"decode", "b4 kv4096 h32/8", WHOLE, 4, 32, 8, 1, 4096, 128, 1},
    {"decode, one kv head", "kv8192 h4/1 d128", WHOLE | QUICK, 1, 4, 1, 1, 8192, 128, 1},
    {"decode, one kv head", "kv65536 h4/1 d128", WHOLE, 1, 4, 1, 1, 65536, 128, 1},
};

static void rank_case(case_list *list, int row)
{
    bench_case *const c = append(list, "rank", rank_rows[row].scenario);
    c->batch = rank_rows[row].batch;
    c->heads_q = rank_rows[row].heads_q;
    c->heads_kv = rank_rows[row].heads_kv;
    c->seq_q = rank_rows[row].seq_q;
    c->seq_kv = rank_rows[row].seq_kv;
    c->head_dim = c->head_dim_v = rank_rows[row].head_dim;
    c->causal = rank_rows[row].causal;
    c->impl = "all";
    snprintf(c->name, sizeof c->name, "%s", rank_rows[row].name);
}

static void rank_cases(case_list *list, const preset_choice *want)
{
    for (int row = 0; row < LENGTH(rank_rows); row++)
        if (rank_rows[row].lists & (want->quick ? QUICK : WHOLE)) rank_case(list, row);
}

static const struct {
    const char *name, *what;
    void (*add)(case_list *list, const preset_choice *want); /* NULL = not available */
} presets[] = {
    {"latency", "short sequences, head_dim 32 and 64, batch 1 and a batch sweep", latency_cases},
    {"llm", "32 and 32/8 heads of 128: prefill to 8192, decode with a cache", llm_cases},
    {"prefill", "the rows of tools/goals.txt, each native kernel set: lengths, widths, storage, "
                "layout", prefill_cases},
    {"decode", "one token against a cache, with the rate at which a plain loop reads it",
     decode_cases},
    {"threads", "1, 2, ... threads on the same tensors: speed-up and efficiency", threads_cases},
    {"rank", "every path on the same cases: the fastest of each, a ranking", rank_cases},
    {"gemma", "head_dim 256, interleaved heads", NULL},
    {"dilated", "dilated attention", NULL},
    {"extreme", "up to 1048576 tokens", NULL},
    {"masks", "each mask against none", NULL},
    {"backward", "gradients", NULL},
    {"cache", "storage types of the KV cache", NULL},
    {"factors", "one factor at a time", NULL},
};

int preset_cases(const char *name, const preset_choice *want, case_list *list)
{
    for (int i = 0; i < LENGTH(presets); i++) {
        if (strcmp(presets[i].name, name)) continue;
        if (!presets[i].add) return -1;
        presets[i].add(list, want);
        return 1;
    }
    return 0;
}

int preset_describe(int i, const char **name, const char **what, int *available)
{
    if (i >= LENGTH(presets)) return 0;
    *name = presets[i].name;
    *what = presets[i].what;
    *available = presets[i].add != NULL;
    return 1;
}

int shape_case(const char *text, case_list *list)
{
    long v[7] = {0};
    int n = 0;
    for (const char *at = text; n < 7; at++) {
        char *end = NULL;
        errno = 0;
        v[n++] = strtol(at, &end, 10);
        if (end == at || errno || v[n - 1] < 1 || v[n - 1] > 1 << 28) return 0;
        at = end;
        if (!*at) break;
        if (*at != ',' || n == 7) return 0;
    }
    if (n < 6) return 0;
    bench_case *const c = append(list, "shape", "shape");
    c->batch = v[0];
    c->heads_q = v[1];
    c->heads_kv = v[2];
    c->seq_q = v[3];
    c->seq_kv = v[4];
    c->head_dim = v[5];
    c->head_dim_v = n == 7 ? v[6] : v[5];
    snprintf(c->name, sizeof c->name, "%.47s", text);
    return 1;
}
