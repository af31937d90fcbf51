/* case.c - a case in words.
 * SPDX-License-Identifier: MIT */
#include "case.h"

#include <stdio.h>

const char *case_layout_name(case_layout layout)
{
    static const char *const names[] = {"bhsd", "bshd"};
    return names[layout];
}

const char *case_data_name(data_kind data)
{
    return data == DATA_TRIG ? "trig" : "normal";
}

const char *case_dtype_name(int dtype)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    return names[dtype];
}

const char *case_shape(const bench_case *c, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%lld,%lld,%lld,%lld,%lld,%lld,%lld", (long long)c->batch,
             (long long)c->heads_q, (long long)c->heads_kv, (long long)c->seq_q,
             (long long)c->seq_kv, (long long)c->head_dim, (long long)c->head_dim_v);
    return text;
}
