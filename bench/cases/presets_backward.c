/* presets_backward.c - cases of gradients.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "../../attn.h"
#include "cases.h"
#include "presets_list.h"

enum { HEADS = 8, GROUPED_HEADS = 32, GROUPED_KV = 8, SAMPLES = 9 };

static const char *const mask_word[] = { "full", "causal" };

static bench_case *backward_case(case_list *list, const char *scenario, int length, int head_dim,
                                 int causal)
{
    bench_case *const c = case_append(list, "backward", scenario);
    c->backward = 1;
    c->batch = 1;
    c->heads_q = c->heads_kv = HEADS;
    c->seq_q = c->seq_kv = length;
    c->head_dim = c->head_dim_v = head_dim;
    c->mask = causal ? MASK_CAUSAL : MASK_FULL;
    c->impl = "tiled";
    c->fixed = FIXED_ALL;
    snprintf(c->name, sizeof c->name, "%s d%d s%d", mask_word[causal], head_dim, length);
    return c;
}

/* ---- how near the limit, by length and width, for each kernel set: the rows of tools/goals.txt */

static void add_rows(case_list *list, int quick, const char *kernels)
{
    static const int dims[] = { 128, 64, 256 }, lengths[] = { 512, 1024, 2048, 4096 };
    for (int d = 0; d < (quick ? 1 : LENGTH(dims)); d++)
        for (int s = 0; s < (quick ? 2 : LENGTH(lengths)); s++)
            for (int causal = 0; causal < 2; causal++) {
                bench_case *const c = backward_case(list, kernels, lengths[s], dims[d], causal);
                c->kernels = kernels;
                c->iterations = SAMPLES;
                snprintf(c->name, sizeof c->name, "backward %s d%d s%d", mask_word[causal], dims[d],
                         lengths[s]);
            }
}

/* ---- the textbook against the tiles */

static void add_both(case_list *list, int quick)
{
    static const int lengths[] = { 512, 1024, 2048, 4096 };
    for (int s = 0; s < (quick ? 2 : LENGTH(lengths)); s++)
        for (int causal = 0; causal < 2; causal++)
            backward_case(list, "naive and tiled", lengths[s], 64, causal)->impl = NULL;
}

/* ---- many query heads for a kv head: dk and dv are summed over them */

static void add_grouped(case_list *list, int quick)
{
    static const int lengths[] = { 512, 2048 };
    for (int s = 0; s < (quick ? 1 : LENGTH(lengths)); s++)
        for (int causal = 0; causal < 2; causal++) {
            bench_case *const c = backward_case(list, "grouped", lengths[s], 128, causal);
            c->heads_q = GROUPED_HEADS;
            c->heads_kv = GROUPED_KV;
            snprintf(c->name, sizeof c->name, "%s h%d/%d s%d", mask_word[causal], GROUPED_HEADS,
                     GROUPED_KV, lengths[s]);
        }
}

/* ---- storage types, in turn */

static void add_storage(case_list *list, int quick)
{
    for (int causal = 0; causal < (quick ? 1 : 2); causal++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
            bench_case *const c = backward_case(list, "storage", quick ? 512 : 2048, 128, causal);
            c->dtype = dtype;
            c->group = causal + 1;
            snprintf(c->name, sizeof c->name, "%s %s", mask_word[causal], case_dtype_name(dtype));
        }
}

/* ---- what a modifier costs, in turn with none on the same tensors */

static void add_modifiers(case_list *list, int quick)
{
    static const int masks[] = { MASK_FULL, MASK_BIAS, MASK_WINDOW, MASK_SOFTCAP, MASK_DROPOUT };
    for (int m = 0; m < LENGTH(masks); m++) {
        bench_case *const c = backward_case(list, "modifiers", quick ? 512 : 2048, 64, 0);
        c->mask = masks[m];
        c->group = 1;
        c->shares = m ? SHARES_BUT_MASK : SHARES_NOTHING;
        snprintf(c->name, sizeof c->name, "%s",
                 masks[m] == MASK_BIAS ? "bias and dbias" : mask_name(masks[m]));
    }
}

/* ---- five products or seven, and threads, in turn on the same tensors */

static const struct {
    int heads, length, quick; /* one head has few rows and keys for many threads */
} shared_rows[] = { { HEADS, 2048, 512 }, { 1, 4096, 1024 } };

static bench_case *shared_case(case_list *list, const char *scenario, int row, int quick,
                               int threads)
{
    const int length = quick ? shared_rows[row].quick : shared_rows[row].length;
    bench_case *const c = backward_case(list, scenario, length, 128, 1);
    c->heads_q = c->heads_kv = shared_rows[row].heads;
    c->group = row + 1;
    c->threads = threads;
    snprintf(c->name, sizeof c->name, "h%d s%d", shared_rows[row].heads, length);
    return c;
}

static void add_gemms(case_list *list, const preset_choice *want)
{
    for (int row = 0; row < LENGTH(shared_rows); row++)
        for (int all = 0; all < 2; all++)
            for (int gemms = 5; gemms <= 7; gemms += 2) {
                bench_case *const c =
                    shared_case(list, "products", row, want->quick, all ? want->threads : 1);
                c->gemms = gemms;
                snprintf(c->name, sizeof c->name, "h%d s%d %d products", (int)c->heads_q,
                         (int)c->seq_q, gemms);
                c->shares = all || gemms > 5 ? SHARES_BUT_GEMMS : SHARES_NOTHING;
            }
}

static void add_threads(case_list *list, const preset_choice *want)
{
    for (int row = 0; row < LENGTH(shared_rows); row++)
        for (int all = 0; all < 2; all++)
            shared_case(list, "threads", row, want->quick, all ? want->threads : 1)->shares =
                all ? SHARES_BUT_THREADS : SHARES_NOTHING;
}

void backward_cases(case_list *list, const preset_choice *want)
{
    each_native_set(list, want, add_rows);
    add_both(list, want->quick);
    add_grouped(list, want->quick);
    add_storage(list, want->quick);
    add_modifiers(list, want->quick);
    add_gemms(list, want);
    add_threads(list, want);
}
