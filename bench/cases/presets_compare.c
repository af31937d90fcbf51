/* presets_compare.c - cases that differ in one thing: masks, factors.
 * SPDX-License-Identifier: MIT */
#include <stdio.h>

#include "../../attn.h"
#include "cases.h"
#include "presets_list.h"

/* ---- masks: a family of masks and none, timed in turn on the same tensors */

static const struct {
    const char *name;
    int first, last; /* a range of mask_kind, at most RUN_MAX_GROUP - 1 of them */
    int rows;        /* 0 = half of the keys, so that the alignments differ */
    case_layout layout;
} families[] = {
    { "position", MASK_CAUSAL, MASK_PREFIX, 0, LAYOUT_BHSD },
    { "lengths", MASK_KV_LENGTHS, MASK_DOCUMENTS, 0, LAYOUT_BSHD }, /* as varlen has it */
    { "arrays", MASK_BOOLEAN, MASK_CALLBACK_TILES, 0, LAYOUT_BHSD },
    { "tree", MASK_TREE, MASK_TREE, 64, LAYOUT_BHSD },
    { "logits", MASK_BIAS, MASK_SCORE, 0, LAYOUT_BHSD },
    { "softmax", MASK_SINKS, MASK_DROPOUT, 0, LAYOUT_BHSD },
};

static void mask_case(case_list *list, int family, int mask, int quick)
{
    bench_case *const c = case_append(list, "masks", families[family].name);
    c->batch = quick ? 1 : 2;
    c->heads_q = quick ? 4 : 8;
    c->heads_kv = 2;
    c->seq_kv = quick ? 1024 : 2048;
    c->seq_q = families[family].rows ? families[family].rows : c->seq_kv / 2;
    c->head_dim = c->head_dim_v = 64;
    c->mask = mask;
    c->layout = families[family].layout;
    c->impl = "tiled";
    c->group = family + 1;
    c->shares = mask == MASK_FULL ? SHARES_NOTHING : SHARES_BUT_MASK;
    c->fixed = FIXED_MASK | FIXED_LAYOUT;
    snprintf(c->name, sizeof c->name, "%s", mask_name(mask));
}

void masks_cases(case_list *list, const preset_choice *want)
{
    for (int f = 0; f < LENGTH(families); f++) {
        mask_case(list, f, MASK_FULL, want->quick);
        for (int mask = families[f].first; mask <= families[f].last; mask++)
            mask_case(list, f, mask, want->quick);
    }
}

/* ---- factors: from a base case one thing at a time */

static void set_length(bench_case *c, int64_t value)
{
    c->seq_q = c->seq_kv = value;
}

static void set_head_dim(bench_case *c, int64_t value)
{
    c->head_dim = c->head_dim_v = value;
}

static void set_heads(bench_case *c, int64_t value)
{
    c->heads_q = c->heads_kv = value;
}

static void set_batch(bench_case *c, int64_t value)
{
    c->batch = value;
}

static void set_ratio(bench_case *c, int64_t value)
{
    c->heads_kv = c->heads_q / value;
}

static void set_dtype(bench_case *c, int64_t value)
{
    c->dtype = (int)value;
}

static void set_threads(bench_case *c, int64_t value)
{
    c->threads = (int)value;
}

static void set_keys(bench_case *c, int64_t value)
{
    c->seq_q = 1;
    c->seq_kv = value;
}

enum { MOST_VALUES = 8 };

static const struct factor {
    const char *name;
    void (*set)(bench_case *c, int64_t value);
    int values[MOST_VALUES];
    int count, quick; /* quick: of these the first ones */
} factors[] = {
    { "length", set_length, { 128, 256, 512, 1024, 2048, 4096, 8192 }, 7, 4 },
    { "head_dim", set_head_dim, { 32, 64, 80, 96, 128, 192, 256, 512 }, 8, 5 },
    { "heads", set_heads, { 1, 2, 4, 8, 16, 32 }, 6, 4 },
    { "batch", set_batch, { 1, 2, 4, 8, 16 }, 5, 3 },
    { "ratio", set_ratio, { 1, 2, 4, 8 }, 4, 4 },
    { "dtype", set_dtype, { ATTN_F32, ATTN_F16, ATTN_BF16 }, 3, 3 },
    { "keys", set_keys, { 1024, 4096, 16384, 65536 }, 4, 3 }, /* of one row */
    { "threads", set_threads, { 0 }, 0, 0 }, /* powers of two up to those there are */
};

static void factor_case(case_list *list, const struct factor *factor, int64_t value, int quick)
{
    bench_case *const c = case_append(list, "factors", factor->name);
    c->batch = 1;
    c->heads_q = c->heads_kv = 8;
    c->seq_q = c->seq_kv = quick ? 512 : 1024;
    c->head_dim = c->head_dim_v = 64;
    c->fixed = factor->set == set_dtype ? FIXED_STORAGE : 0;
    factor->set(c, value);
    if (factor->set == set_dtype)
        snprintf(c->name, sizeof c->name, "dtype %s", case_dtype_name(c->dtype));
    else
        snprintf(c->name, sizeof c->name, "%s %d", factor->name, (int)value);
}

void factors_cases(case_list *list, const preset_choice *want)
{
    for (int f = 0; f < LENGTH(factors); f++) {
        const int n = want->quick ? factors[f].quick : factors[f].count;
        for (int i = 0; i < n; i++)
            factor_case(list, &factors[f], factors[f].values[i], want->quick);
        for (int t = 1; factors[f].set == set_threads && t <= want->threads; t *= 2) {
            factor_case(list, &factors[f], t, want->quick);
            if (t < want->threads && 2 * t > want->threads)
                factor_case(list, &factors[f], want->threads, want->quick);
        }
    }
}
