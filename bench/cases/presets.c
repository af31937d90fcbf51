/* presets.c - named lists of cases.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "presets_list.h"

bench_case *case_append(case_list *list, const char *preset, const char *scenario)
{
    static const bench_case none;
    const int full = list->n == PRESETS_MAX_CASES;
    bench_case *const c = &list->cases[list->n];
    list->n += !full;
    list->lost += full;
    *c = none;
    c->preset = preset;
    c->scenario = scenario;
    c->warmup = 2;
    c->data = DATA_NORMAL;
    return c;
}

void case_take_shape(bench_case *c, const bench_case *from)
{
    c->batch = from->batch;
    c->heads_q = from->heads_q;
    c->heads_kv = from->heads_kv;
    c->seq_q = from->seq_q;
    c->seq_kv = from->seq_kv;
    c->head_dim = from->head_dim;
    c->head_dim_v = from->head_dim_v;
}

static const struct {
    const char *name, *what;
    void (*add)(case_list *list, const preset_choice *want);
} presets[] = {
    { "gemma", "32 and 32/8 heads of 256, interleaved: 512 to 8192 tokens, batch 1 to 16",
      gemma_cases },
    { "latency", "short sequences, head_dim 32 and 64, batch 1 and a batch sweep", latency_cases },
    { "llm", "32 and 32/8 heads of 128: prefill to 8192, decode with a cache", llm_cases },
    { "extreme", "65536 to 1048576 tokens: causal, window, cells, dilated, decode (--max-seq-len)",
      extreme_cases },
    { "masks", "each mask and modifier against none, in turn on the same tensors", masks_cases },
    { "factors", "length, head_dim, heads, batch, ratio, dtype, threads, keys: one at a time",
      factors_cases },
    { "prefill",
      "the rows of tools/goals.txt, each native kernel set: lengths, widths, storage, "
      "layout",
      prefill_cases },
    { "decode", "one token against a cache, with the rate at which a plain loop reads it",
      decode_cases },
    { "threads", "1, 2, ... threads on the same tensors: speed-up and efficiency", threads_cases },
    { "rank", "every path on a few cases, and which is the fastest", rank_cases },
    { "device", "the OpenCL device: prefill, decode, exact against free, arrays on it and not",
      device_cases },
    { "cache", "bytes and speed by storage type, pages and rings against contiguous, appending",
      cache_cases },
    { "dilated", "dilated attention, masks of cells and rings against dense, forward and backward",
      dilated_cases },
    { "backward", "gradients: lengths, widths, masks, storage, 5 and 7 products, naive and tiled",
      backward_cases },
};

static void add_all(const preset_choice *want, case_list *list)
{
    for (int i = 0; i < LENGTH(presets); i++)
        presets[i].add(list, want);
}

int preset_cases(const char *name, const preset_choice *want, case_list *list)
{
    if (!strcmp(name, "all"))
        return add_all(want, list), 1;
    for (int i = 0; i < LENGTH(presets); i++) {
        if (strcmp(presets[i].name, name))
            continue;
        presets[i].add(list, want);
        return 1;
    }
    return 0;
}

int preset_describe(int i, const char **name, const char **what)
{
    if (i >= LENGTH(presets))
        return 0;
    *name = presets[i].name;
    *what = presets[i].what;
    return 1;
}

int shape_case(const char *text, case_list *list)
{
    long v[7] = { 0 };
    int n = 0;
    for (const char *at = text; n < 7; at++) {
        char *end = NULL;
        errno = 0;
        v[n++] = strtol(at, &end, 10);
        if (end == at || errno || v[n - 1] < 1 || v[n - 1] > 1 << 28)
            return 0;
        at = end;
        if (!*at)
            break;
        if (*at != ',' || n == 7)
            return 0;
    }
    if (n < 6)
        return 0;
    bench_case *const c = case_append(list, "shape", "shape");
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
