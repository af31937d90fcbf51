/* presets_cache.c - preset cache: what types, pages, rings and sharing cost, and appending.
 * SPDX-License-Identifier: MIT
 *
 * 8 heads of 128 for keys and values, 32 query heads, as in models of 8e9 parameters; q and o are
 * f32. The first case of a group is a contiguous cache, and the others are compared with it. */
#include <stdio.h>

#include "../../attn.h"
#include "cases.h"
#include "presets_list.h"

enum { HEADS_Q = 32, HEADS_KV = 8, HEAD_DIM = 128 };

static const case_keys contiguous = { .kind = KEYS_CONTIGUOUS };
static const case_keys plain = { .kind = KEYS_PLAIN };
static const case_keys ring = { .kind = KEYS_RING };
static const case_keys pages_1 = { .kind = KEYS_PAGED, .page_size = 1 };
static const case_keys pages_16 = { .kind = KEYS_PAGED, .page_size = 16 };
static const case_keys pages_256 = { .kind = KEYS_PAGED, .page_size = 256 };

/* "contiguous", "pages of 16", ... */
static void name_keys(const case_keys *keys, char *text, size_t bytes)
{
    if (keys->kind == KEYS_PAGED)
        snprintf(text, bytes, "pages of %lld", (long long)keys->page_size);
    else
        snprintf(text, bytes, "%s", case_keys_name(keys->kind));
}

/* "f16", or "f32/f16": K, then V. */
static void name_types(const case_keys *keys, char *text, size_t bytes)
{
    const char *const k = case_dtype_name(keys->k_dtype), *const v = case_dtype_name(keys->v_dtype);
    const int same = keys->k_dtype == keys->v_dtype;
    snprintf(text, bytes, "%s%s%s", k, same ? "" : "/", same ? "" : v);
}

static bench_case *cache_case(case_list *list, const char *scenario, const case_keys *keys,
                              int k_dtype, int v_dtype)
{
    bench_case *const c = case_append(list, "cache", scenario);
    c->batch = c->seq_q = 1;
    c->heads_q = HEADS_Q;
    c->heads_kv = HEADS_KV;
    c->head_dim = c->head_dim_v = HEAD_DIM;
    c->keys = *keys;
    c->keys.typed = 1;
    c->keys.k_dtype = k_dtype;
    c->keys.v_dtype = v_dtype;
    c->impl = "tiled";
    c->fixed = FIXED_ALL;
    return c;
}

/* The first of a group shares nothing. */
static void set_group(case_list *list, bench_case *c, int group, case_shares shares)
{
    const int first = c == list->cases || c[-1].group != group || c[-1].scenario != c->scenario;
    c->group = group;
    c->shares = first ? SHARES_NOTHING : shares;
}

/* ---- storage: contiguous caches of every type, and of two */

static void storage_group(case_list *list, int group, int batch, int length, int quick)
{
    static const int types[][2] = { { ATTN_F32, ATTN_F32 },   { ATTN_F16, ATTN_F16 },
                                    { ATTN_BF16, ATTN_BF16 }, { ATTN_F16, ATTN_BF16 },
                                    { ATTN_BF16, ATTN_F16 },  { ATTN_F32, ATTN_F16 },
                                    { ATTN_F32, ATTN_BF16 },  { ATTN_F16, ATTN_F32 } };
    for (int t = 0; t < (quick ? 4 : LENGTH(types)); t++) {
        char name[16];
        bench_case *const c = cache_case(list, "storage", &contiguous, types[t][0], types[t][1]);
        c->batch = batch;
        c->seq_kv = length;
        set_group(list, c, group, SHARES_BUT_STORAGE);
        name_types(&c->keys, name, sizeof name);
        snprintf(c->name, sizeof c->name, "b%d kv%d %s", batch, length, name);
    }
}

/* ---- decode and prefill: where the keys lie */

static void keys_case(case_list *list, const char *scenario, int group, const case_keys *keys,
                      int dtype, int batch, int rows, int length)
{
    char name[16], rows_text[16] = "";
    bench_case *const c = cache_case(list, scenario, keys, dtype, dtype);
    c->batch = batch;
    c->seq_q = rows;
    c->seq_kv = length;
    if (rows > 1)
        c->mask = MASK_CAUSAL;
    set_group(list, c, group, SHARES_BUT_KEYS);
    name_keys(&c->keys, name, sizeof name);
    if (rows > 1)
        snprintf(rows_text, sizeof rows_text, " q%d", rows);
    snprintf(c->name, sizeof c->name, "b%d%s kv%d %s %s", batch, rows_text, length,
             case_dtype_name(dtype), name);
}

static void decode_group(case_list *list, int group, int dtype, int batch, int length, int quick)
{
    const case_keys all[] = { contiguous, plain, pages_16, ring, pages_1, pages_256 };
    for (int k = 0; k < (quick ? 4 : LENGTH(all)); k++)
        keys_case(list, "decode", group, &all[k], dtype, batch, 1, length);
}

static void prefill_group(case_list *list, int group, int dtype, int rows, int length, int quick)
{
    const case_keys all[] = { contiguous, plain, pages_16, pages_1, pages_256 };
    for (int k = 0; k < (quick ? 3 : LENGTH(all)); k++)
        keys_case(list, "prefill", group, &all[k], dtype, 1, rows, length);
}

/* ---- shared: a batch that has one prompt in common, as copies and as shared pages */

static void shared_case(case_list *list, int group, const case_keys *keys, const char *name,
                        int dtype, int batch, int prompt, int own)
{
    bench_case *const c = cache_case(list, "shared", keys, dtype, dtype);
    c->batch = batch;
    c->seq_kv = prompt + own;
    c->keys.shared = prompt;
    set_group(list, c, group, SHARES_BUT_KEYS);
    snprintf(c->name, sizeof c->name, "b%d kv%d+%d %s %s", batch, prompt, own,
             case_dtype_name(dtype), name);
}

static void shared_group(case_list *list, int group, int dtype, int batch, int prompt, int own)
{
    case_keys untold = pages_16;
    untold.untold = 1;
    shared_case(list, group, &contiguous, "own copies", dtype, batch, prompt, own);
    shared_case(list, group, &pages_16, "shared pages", dtype, batch, prompt, own);
    shared_case(list, group, &untold, "shared, untold", dtype, batch, prompt, own);
}

/* ---- append: a prompt and single tokens, with and without RoPE, computed or from a table */

static void append_case(case_list *list, int group, const case_keys *keys, keys_rope rope,
                        int dtype, int batch, int tokens)
{
    static const char *const turned[] = { "", " rope", " table" };
    char name[16];
    bench_case *const c = cache_case(list, "append", keys, dtype, dtype);
    c->batch = batch;
    c->seq_q = c->seq_kv = tokens;
    c->appends = 1;
    c->impl = "append";
    c->keys.rope = rope;
    set_group(list, c, group, SHARES_BUT_KEYS);
    name_keys(&c->keys, name, sizeof name);
    snprintf(c->name, sizeof c->name, "b%d n%d %s %s%s", batch, tokens, case_dtype_name(dtype),
             name, turned[rope]);
}

static void append_group(case_list *list, int group, int dtype, int batch, int tokens)
{
    for (int rope = KEYS_UNTURNED; rope <= KEYS_ROPE_TABLE; rope++)
        append_case(list, group, &contiguous, (keys_rope)rope, dtype, batch, tokens);
    append_case(list, group, &pages_16, KEYS_UNTURNED, dtype, batch, tokens);
    append_case(list, group, &pages_16, KEYS_ROPE_TABLE, dtype, batch, tokens);
}

/* ---- the lists */

static void quick_cases(case_list *list)
{
    int group = 1;
    storage_group(list, group++, 1, 8192, 1);
    decode_group(list, group++, ATTN_F32, 1, 8192, 1);
    decode_group(list, group++, ATTN_F16, 1, 8192, 1);
    prefill_group(list, group++, ATTN_F32, 32, 544, 1); /* small enough for a CPU without FMA */
    shared_group(list, group++, ATTN_F16, 4, 1024, 32);
    append_group(list, group++, ATTN_F32, 1, 512);
    append_group(list, group++, ATTN_F16, 1, 512);
    append_group(list, group++, ATTN_F16, 1, 1);
}

static void whole_cases(case_list *list)
{
    static const int decodes[][2] = { { 1, 4096 }, { 1, 16384 }, { 8, 4096 } }; /* batch, keys */
    static const int appends[][2] = { { 1, 512 }, { 1, 1 }, { 8, 1 } };         /* batch, tokens */
    int group = 1;
    storage_group(list, group++, 1, 4096, 0);
    storage_group(list, group++, 8, 4096, 0);
    for (int d = 0; d < LENGTH(decodes); d++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
            decode_group(list, group++, dtype, decodes[d][0], decodes[d][1], 0);
    for (int dtype = ATTN_F32; dtype <= ATTN_F16; dtype++)
        prefill_group(list, group++, dtype, 512, 4608, 0);
    for (int dtype = ATTN_F32; dtype <= ATTN_F16; dtype++)
        shared_group(list, group++, dtype, 8, 4096, 256);
    for (int a = 0; a < LENGTH(appends); a++)
        for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
            append_group(list, group++, dtype, appends[a][0], appends[a][1]);
}

void cache_cases(case_list *list, const preset_choice *want)
{
    if (want->quick)
        quick_cases(list);
    else
        whole_cases(list);
}
