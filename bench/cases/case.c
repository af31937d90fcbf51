/* case.c - a case in words.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include <stdio.h>

#include "../../attn.h"

const char *case_layout_name(case_layout layout)
{
    static const char *const names[] = { "bhsd", "bshd" };
    return names[layout];
}

const char *case_data_name(data_kind data)
{
    return data == DATA_TRIG ? "trig" : "normal";
}

const char *case_dtype_name(int dtype)
{
    static const char *const names[] = { "f32", "f16", "bf16" };
    return names[dtype];
}

const char *case_keys_name(keys_kind kind)
{
    static const char *const names[] = { "plain", "contiguous", "ring", "paged" };
    return names[kind];
}

const char *case_pass_name(const bench_case *c)
{
    return c->appends ? "none" : c->backward ? "backward" : "forward";
}

const char *case_merge_name(const bench_case *c)
{
    return !c->dilated.branches ? "" : c->dilated.mean ? "mean" : "lse";
}

const char *case_variant_name(const bench_case *c)
{
    return !c->dilated.branches ? "" : c->dilated.gathered ? "gathered" : "strided";
}

const char *case_heads_name(const bench_case *c)
{
    const case_dilated *const d = &c->dilated;
    return !d->branches ? "" : d->groups ? "groups" : d->rotate ? "turned" : "same";
}

const char *case_pattern_name(const bench_case *c)
{
    const int has = c->dilated.branches ? c->dilated.gathered : mask_is_pattern(c->mask);
    return !has ? "" : c->pattern_anew ? "off" : "on";
}

const char *case_memory_name(const bench_case *c)
{
    return c->memory_anew ? "off" : "on";
}

int case_k_dtype(const bench_case *c)
{
    return c->keys.typed ? c->keys.k_dtype : c->dtype;
}

int case_v_dtype(const bench_case *c)
{
    return c->keys.typed ? c->keys.v_dtype : c->dtype;
}

int case_width(int dtype)
{
    return dtype == ATTN_F32 ? 4 : 2;
}

int case_forks(const bench_case *c)
{
    return c->keys.kind == KEYS_PAGED && c->keys.shared > 0;
}

double case_stored_keys(const bench_case *c)
{
    const double once = case_forks(c) ? (double)c->keys.shared : 0;
    return once + (double)c->batch * ((double)c->seq_kv - once);
}

const char *case_shape(const bench_case *c, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%lld,%lld,%lld,%lld,%lld,%lld,%lld", (long long)c->batch,
             (long long)c->heads_q, (long long)c->heads_kv, (long long)c->seq_q,
             (long long)c->seq_kv, (long long)c->head_dim, (long long)c->head_dim_v);
    return text;
}
