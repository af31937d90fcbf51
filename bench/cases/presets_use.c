/* presets_use.c - cases by use: gemma, latency, llm, extreme.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "../../attn.h"
#include "cases.h"
#include "presets_list.h"

/* ---- gemma: head_dim 256, [batch][seq][head][dim], 10 calls after 3 of warm-up. The naive path
 * holds the logits of all heads at once, as the textbook has it. */

static void gemma_case(case_list *list, int heads_kv, int batch, int length)
{
    bench_case *const c = case_append(list, "gemma", heads_kv == 32 ? "heads 32/32" : "heads 32/8");
    c->batch = batch;
    c->heads_q = 32;
    c->heads_kv = heads_kv;
    c->seq_q = c->seq_kv = length;
    c->head_dim = c->head_dim_v = 256;
    c->layout = LAYOUT_BSHD;
    c->fixed = FIXED_LAYOUT;
    c->naive_whole = 1;
    c->warmup = 3;
    c->iterations = 10;
    snprintf(c->name, sizeof c->name, "s%d b%d h32/%d", length, batch, heads_kv);
}

/* The last of the short list fits no machine of 200 GB: it shows what is skipped, and why. */
void gemma_cases(case_list *list, const preset_choice *want)
{
    static const int heads_kv[] = { 32, 8 }, batches[] = { 1, 4, 8, 16 };
    static const int lengths[] = { 512, 1024, 2048, 4096, 8192 };
    for (int h = 0; h < LENGTH(heads_kv); h++) {
        if (want->quick) {
            gemma_case(list, heads_kv[h], 1, 512);
            gemma_case(list, heads_kv[h], 4, 512);
            gemma_case(list, heads_kv[h], 1, 1024);
            gemma_case(list, heads_kv[h], 16, 8192);
            continue;
        }
        for (int s = 0; s < LENGTH(lengths); s++)
            for (int b = 0; b < LENGTH(batches); b++)
                gemma_case(list, heads_kv[h], batches[b], lengths[s]);
    }
}

/* ---- latency: short sequences, few heads, 100 calls after 10 of warm-up, sin/cos/tan data */

static void latency_case(case_list *list, const char *scenario, int batch, int heads, int length,
                         int head_dim)
{
    bench_case *const c = case_append(list, "latency", scenario);
    c->batch = batch;
    c->heads_q = c->heads_kv = heads;
    c->seq_q = c->seq_kv = length;
    c->head_dim = c->head_dim_v = head_dim;
    c->warmup = 10;
    c->iterations = 100;
    c->device_iterations = 50;
    c->data = DATA_TRIG;
    snprintf(c->name, sizeof c->name, "b%d h%d s%d d%d", batch, heads, length, head_dim);
}

void latency_cases(case_list *list, const preset_choice *want)
{
    static const int lengths[] = { 128, 256, 512, 1024 }, dims[] = { 32, 64 },
                     heads[] = { 4, 8, 16 };
    static const int batches[] = { 2, 4, 8, 16 };
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
    bench_case *const c = case_append(list, "llm", decode ? "decode" : "prefill");
    c->batch = batch;
    c->heads_q = heads_q;
    c->heads_kv = heads_kv;
    c->seq_q = decode ? 1 : length;
    c->seq_kv = length;
    c->head_dim = c->head_dim_v = 128;
    c->mask = MASK_CAUSAL;
    snprintf(c->name, sizeof c->name, "%s %d b%d h%d/%d", c->scenario, length, batch, heads_q,
             heads_kv);
}

void llm_cases(case_list *list, const preset_choice *want)
{
    static const int heads_kv[] = { 32, 8 }, prompts[] = { 2048, 4096, 8192 },
                     caches[] = { 2048, 4096 };
    static const int prompt_batches[] = { 1, 4 }, cache_batches[] = { 1, 4, 8 };
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

/* ---- extreme: one batch entry, each length four times the one before */

enum { EXTREME_FIRST = 65536, EXTREME_QUICK_FIRST = 4096, EXTREME_CELL = 128 };
enum { EXTREME_TWICE = 131072 }; /* keys beyond: the cold call and one sample */
#define EXTREME_SECONDS 150.0    /* of one call: a million causal rows take 20 minutes a head */

/* The second number of a pair is that of --quick. What takes longest stands last, where the others
 * have left it their time. */
static const struct {
    const char *scenario, *impl;
    int mask, mask_size[2];
    int heads[2], rows[2]; /* rows 0: as many as keys */
    int dilated;
} extreme_rows[] = {
    { "last rows", "tiled", MASK_CAUSAL, { 0, 0 }, { 8, 1 }, { 1024, 256 }, 0 },
    { "last rows, full", "tiled", MASK_FULL, { 0, 0 }, { 8, 1 }, { 1024, 256 }, 0 },
    { "window", "tiled", MASK_WINDOW, { 4096, 1024 }, { 8, 1 }, { 0, 0 }, 0 },
    { "blocks", "tiled", MASK_BLOCKS, { EXTREME_CELL, EXTREME_CELL }, { 8, 1 }, { 0, 0 }, 0 },
    { "blocks, 90 %",
      "tiled",
      MASK_BLOCKS_TENTH,
      { EXTREME_CELL, EXTREME_CELL },
      { 1, 1 },
      { 0, 0 },
      0 },
    { "dilated", "tiled", MASK_CAUSAL, { 0, 0 }, { 8, 1 }, { 0, 0 }, 1 },
    { "dilated, copies", "tiled", MASK_CAUSAL, { 0, 0 }, { 8, 1 }, { 0, 0 }, 2 },
    { "decode", NULL, MASK_FULL, { 0, 0 }, { 8, 8 }, { 1, 1 }, 0 },
    { "causal", NULL, MASK_CAUSAL, { 0, 0 }, { 1, 1 }, { 0, 0 }, 0 },
};

/* 2048 keys around, every fourth of 8192, every sixteenth of 32768; --quick a quarter of each. */
static void set_dilated(bench_case *c, int how, int quick)
{
    c->dilated.branches = 3;
    c->dilated.rotate = 1;
    c->dilated.gathered = how == 2;
    for (int n = 0; n < 3; n++) {
        c->dilated.segment[n] = (quick ? 512 : 2048) << 2 * n;
        c->dilated.dilation[n] = 1 << 2 * n;
    }
}

static void extreme_case(case_list *list, int row, int64_t length, int quick)
{
    bench_case *const c = case_append(list, "extreme", extreme_rows[row].scenario);
    c->batch = 1;
    c->heads_q = c->heads_kv = extreme_rows[row].heads[quick];
    c->seq_kv = length;
    const int64_t rows = extreme_rows[row].rows[quick];
    c->seq_q = rows && rows < length ? rows : length;
    c->head_dim = c->head_dim_v = 64;
    c->mask = extreme_rows[row].mask;
    c->mask_size = extreme_rows[row].mask_size[quick];
    c->impl = extreme_rows[row].impl;
    if (extreme_rows[row].dilated)
        set_dilated(c, extreme_rows[row].dilated, quick);
    c->fixed = FIXED_MASK;
    c->warmup = length > EXTREME_QUICK_FIRST ? 0 : 1; /* the cold call did */
    c->iterations = length > EXTREME_TWICE;
    c->max_time = EXTREME_SECONDS;
    snprintf(c->name, sizeof c->name, "%s %lld", c->scenario, (long long)length);
}

void extreme_cases(case_list *list, const preset_choice *want)
{
    const int64_t usual = want->quick ? EXTREME_QUICK_FIRST : EXTREME_FIRST;
    const int64_t first = usual < want->max_seq_len ? usual : want->max_seq_len;
    for (int row = 0; row < LENGTH(extreme_rows); row++)
        for (int64_t length = first; length <= want->max_seq_len; length *= 4)
            extreme_case(list, row, length, want->quick);
}
