/* presets_paths.c - cases by path: prefill, decode, threads, device, rank.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <string.h>

#include "../../attn.h"
#include "cases.h"
#include "presets_list.h"

static const char *const storage_suffix[] = { "", " f16", " bf16" };

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
    { 0, 128, 512, ATTN_F32, LAYOUT_BHSD },   { 0, 128, 1024, ATTN_F32, LAYOUT_BHSD },
    { 2, 128, 2048, ATTN_F32, LAYOUT_BHSD },  { 2, 128, 2048, ATTN_F16, LAYOUT_BHSD },
    { 2, 128, 2048, ATTN_BF16, LAYOUT_BHSD }, { 2, 128, 2048, ATTN_F32, LAYOUT_BSHD },
    { 2, 80, 2048, ATTN_F32, LAYOUT_BHSD },   { 2, 96, 2048, ATTN_F32, LAYOUT_BHSD },
    { 2, 112, 2048, ATTN_F32, LAYOUT_BHSD },  { 0, 128, 4096, ATTN_F32, LAYOUT_BHSD },
    { 0, 128, 8192, ATTN_F32, LAYOUT_BHSD },  { 0, 64, 512, ATTN_F32, LAYOUT_BHSD },
    { 4, 64, 2048, ATTN_F32, LAYOUT_BHSD },   { 4, 64, 2048, ATTN_F16, LAYOUT_BHSD },
    { 4, 64, 2048, ATTN_BF16, LAYOUT_BHSD },  { 4, 64, 2048, ATTN_F32, LAYOUT_BSHD },
    { 0, 64, 4096, ATTN_F32, LAYOUT_BHSD },   { 0, 256, 2048, ATTN_F32, LAYOUT_BHSD },
    { 0, 256, 4096, ATTN_F32, LAYOUT_BHSD },
};
static const prefill_row prefill_quick[] = { { 0, 128, 2048, ATTN_F32, LAYOUT_BHSD } };

enum { PREFILL_SAMPLES = 21, PREFILL_GROUP_HEADS = 8 };
#define PREFILL_FLOPS 5e9 /* of one call at least: 40 ms and more on one core of 2023 */

/* 8 in groups, where row strides of [seq][head][dim] are then multiples of 1 KiB; else a power of
 * two that makes the call long enough. */
static int prefill_heads(const prefill_row *row)
{
    const double flops = 4.0 * row->seq * row->seq * row->head_dim;
    int heads = 1;
    while (heads * flops < PREFILL_FLOPS)
        heads *= 2;
    return row->group ? PREFILL_GROUP_HEADS : heads;
}

static void prefill_case(case_list *list, const prefill_row *row, int causal, const char *kernels)
{
    static const char *const layouts[] = { "", " strided" };
    bench_case *const c = case_append(list, "prefill", kernels);
    c->batch = 1;
    c->heads_q = c->heads_kv = prefill_heads(row);
    c->seq_q = c->seq_kv = row->seq;
    c->head_dim = c->head_dim_v = row->head_dim;
    c->mask = causal ? MASK_CAUSAL : MASK_FULL;
    c->dtype = row->dtype;
    c->layout = row->layout;
    c->kernels = kernels;
    c->impl = "tiled";
    c->group = row->group ? row->group + causal : 0;
    c->fixed = FIXED_ALL;
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
            for (int i = begin; i < end; i++)
                prefill_case(list, &rows[i], causal, kernels);
    }
}

/* Not a narrow set, whose tiles are for few rows, nor a portable one, nor sse2: that computes the
 * fused multiply-add step by step, at 2 % of the peak, and one call takes seconds. */
static int native(const char *kernels)
{
    static const char *const others[] = { "_narrow", "portable", "sse2" };
    for (int i = 0; i < LENGTH(others); i++)
        if (strstr(kernels, others[i]))
            return 0;
    return 1;
}

void each_native_set(case_list *list, const preset_choice *want,
                     void (*add)(case_list *list, int quick, const char *kernels))
{
    const int before = list->n;
    if (want->kernels) {
        add(list, want->quick, want->kernels);
        return;
    }
    for (int i = 0; attn_kernels_get(i); i++) {
        const char *const name = attn_kernels_name(attn_kernels_get(i));
        if (native(name))
            add(list, want->quick, name);
    }
    if (list->n == before)
        add(list, want->quick, attn_kernels_name(attn_kernels_get(0)));
}

void prefill_cases(case_list *list, const preset_choice *want)
{
    each_native_set(list, want, prefill_set);
}

/* ---- decode: one token against a cache, by heads, width, length and storage; and MLA, where all
 * query heads share one latent cache, so that arithmetic is the bound */

static bench_case *decode_case(case_list *list, int heads_q, int heads_kv, int length, int dtype)
{
    bench_case *const c = case_append(list, "decode", "decode");
    c->batch = c->seq_q = 1;
    c->heads_q = heads_q;
    c->heads_kv = heads_kv;
    c->seq_kv = length;
    c->dtype = dtype;
    c->impl = "tiled";
    c->fixed = FIXED_ALL;
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

void decode_cases(case_list *list, const preset_choice *want)
{
    static const int heads_kv[] = { 32, 8 }, dims[] = { 64, 128, 256 }, lengths[] = { 4096, 16384 };
    if (want->quick) {
        grouped_case(list, 8, 128, 4096, ATTN_F32);
        grouped_case(list, 8, 128, 4096, ATTN_F16);
        grouped_case(list, 8, 128, 4096, ATTN_BF16);
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
    int lists, heads_q, heads_kv, seq_q, seq_kv, mask;
} thread_rows[] = {
    { "prefill h8 s512", QUICK, 8, 8, 512, 512, MASK_CAUSAL },
    { "prefill h8 s2048", WHOLE, 8, 8, 2048, 2048, MASK_CAUSAL },
    { "h1 rows64 kv65536", WHOLE, 1, 1, 64, 65536, MASK_FULL },
    { "decode g4 kv1500", WHOLE | QUICK, 4, 1, 1, 1500, MASK_FULL },
    { "decode g4 kv65536", WHOLE, 4, 1, 1, 65536, MASK_FULL },
};

static void threads_case(case_list *list, int row, int threads, case_shares shares)
{
    bench_case *const c = case_append(list, "threads", "threads");
    c->batch = 1;
    c->heads_q = thread_rows[row].heads_q;
    c->heads_kv = thread_rows[row].heads_kv;
    c->seq_q = thread_rows[row].seq_q;
    c->seq_kv = thread_rows[row].seq_kv;
    c->head_dim = c->head_dim_v = 128;
    c->mask = thread_rows[row].mask;
    c->impl = "tiled";
    c->group = row + 1;
    c->threads = threads;
    c->shares = shares;
    c->fixed = FIXED_ALL;
    snprintf(c->name, sizeof c->name, "%s", thread_rows[row].name);
}

/* 1, 2, ... to 8 threads, beyond that powers of two and the most. */
static int next_threads(int threads, int most)
{
    const int next = most <= 8 ? threads + 1 : 2 * threads;
    return threads < most && next > most ? most : next;
}

void threads_cases(case_list *list, const preset_choice *want)
{
    for (int row = 0; row < LENGTH(thread_rows); row++) {
        if (!(thread_rows[row].lists & (want->quick ? QUICK : WHOLE)))
            continue;
        for (int t = 1; t <= want->threads; t = next_threads(t, want->threads))
            threads_case(list, row, t, t > 1 ? SHARES_BUT_THREADS : SHARES_NOTHING);
    }
}

/* ---- device: one call large enough for a GPU, by each path of a device */

enum { DEVICE_HEADS = 16, DEVICE_KV_HEADS = 8, DEVICE_QUERY_HEADS = 32 };
enum { DEVICE_MOST_KEYS = 16 * 16384 }; /* of a batch: 2 GB in f32 */

static bench_case *device_case(case_list *list, const char *scenario, int rows, int keys,
                               int head_dim, int dtype)
{
    bench_case *const c = case_append(list, "device", scenario);
    c->batch = 1;
    c->seq_q = rows;
    c->seq_kv = keys;
    c->head_dim = c->head_dim_v = head_dim;
    c->dtype = dtype;
    c->impl = "devices";
    c->fixed = FIXED_ALL;
    return c;
}

static void device_prefill(case_list *list, int length, int head_dim, int dtype, int causal)
{
    bench_case *const c = device_case(list, causal ? "prefill, causal" : "prefill, full", length,
                                      length, head_dim, dtype);
    c->heads_q = c->heads_kv = DEVICE_HEADS;
    c->mask = causal ? MASK_CAUSAL : MASK_FULL;
    snprintf(c->name, sizeof c->name, "%s d%d s%d%s", causal ? "causal" : "full", head_dim, length,
             storage_suffix[dtype]);
}

static void device_decode(case_list *list, int batch, int keys, int dtype)
{
    bench_case *const c = device_case(list, "decode", 1, keys, 128, dtype);
    c->batch = batch;
    c->heads_q = DEVICE_QUERY_HEADS;
    c->heads_kv = DEVICE_KV_HEADS;
    snprintf(c->name, sizeof c->name, "b%d kv%d%s", batch, keys, storage_suffix[dtype]);
}

void device_cases(case_list *list, const preset_choice *want)
{
    static const int dims[] = { 64, 128 };
    const int most = want->quick ? 1024 : 16384;
    for (int causal = 0; causal < 2; causal++)
        for (int d = 0; d < LENGTH(dims); d++)
            for (int dtype = ATTN_F32; dtype <= ATTN_F16; dtype++)
                for (int length = 1024; length <= most; length *= 4)
                    device_prefill(list, length, dims[d], dtype, causal);
    for (int dtype = ATTN_F32; dtype <= ATTN_F16; dtype++)
        for (int keys = 4096; keys <= 4 * most; keys *= 4)
            for (int batch = 1; batch * keys <= DEVICE_MOST_KEYS; batch *= 16)
                device_decode(list, batch, keys, dtype);
}

/* ---- rank: every path on a few cases, small enough for kernels without vectors */

static const struct {
    const char *scenario, *name;
    int lists, batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, causal;
} rank_rows[] = {
    { "prefill, short", "s128 h4 d64", WHOLE | QUICK, 1, 4, 4, 128, 128, 64, 0 },
    { "prefill, short", "b4 s256 h8 d64", WHOLE, 4, 8, 8, 256, 256, 64, 0 },
    { "prefill, long", "s1024 h2 d64", QUICK, 1, 2, 2, 1024, 1024, 64, 1 },
    { "prefill, long", "s2048 h4 d128", WHOLE, 1, 4, 4, 2048, 2048, 128, 1 },
    { "prefill, long", "s6144 h1 d64", WHOLE, 1, 1, 1, 6144, 6144, 64, 1 },
    { "prefill, GQA", "s512 h8/2 d64", WHOLE | QUICK, 1, 8, 2, 512, 512, 64, 1 },
    { "prefill, GQA", "s2048 h16/4 d64", WHOLE, 1, 16, 4, 2048, 2048, 64, 1 },
    { "decode", "kv2048 h8/2 d128", WHOLE | QUICK, 1, 8, 2, 1, 2048, 128, 1 },
    { "decode", "b4 kv4096 h32/8", WHOLE, 4, 32, 8, 1, 4096, 128, 1 },
    { "decode, one kv head", "kv8192 h4/1 d128", WHOLE | QUICK, 1, 4, 1, 1, 8192, 128, 1 },
    { "decode, one kv head", "kv65536 h4/1 d128", WHOLE, 1, 4, 1, 1, 65536, 128, 1 },
};

static void rank_case(case_list *list, int row)
{
    bench_case *const c = case_append(list, "rank", rank_rows[row].scenario);
    c->batch = rank_rows[row].batch;
    c->heads_q = rank_rows[row].heads_q;
    c->heads_kv = rank_rows[row].heads_kv;
    c->seq_q = rank_rows[row].seq_q;
    c->seq_kv = rank_rows[row].seq_kv;
    c->head_dim = c->head_dim_v = rank_rows[row].head_dim;
    c->mask = rank_rows[row].causal ? MASK_CAUSAL : MASK_FULL;
    c->impl = "all";
    snprintf(c->name, sizeof c->name, "%s", rank_rows[row].name);
}

void rank_cases(case_list *list, const preset_choice *want)
{
    for (int row = 0; row < LENGTH(rank_rows); row++)
        if (rank_rows[row].lists & (want->quick ? QUICK : WHOLE))
            rank_case(list, row);
}
