/* case.c - a case in words.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include <stdio.h>
#include <string.h>

#include "../../attn.h"
#include "jobs.h"

const char *case_layout_name(case_layout layout)
{
    static const char *const names[] = { "bhsd", "bshd" };
    return names[layout];
}

const char *case_data_name(data_kind data)
{
    return data == DATA_TRIG ? "trig" : "normal";
}

static const char *const dtype_names[] = { "f32",  "f16",  "bf16", "e4m3", "e5m2",
                                           "q8_0", "q5_0", "q4_0", "i8" };

enum { NUM_DTYPES = sizeof dtype_names / sizeof *dtype_names };

const char *case_dtype_name(int dtype)
{
    return dtype_names[dtype];
}

/* NUM_DTYPES = there is none of that name. */
static int dtype_of(const char *name, size_t length)
{
    int i = 0;
    while (i < NUM_DTYPES &&
           (strlen(dtype_names[i]) != length || memcmp(dtype_names[i], name, length)))
        i++;
    return i;
}

int case_set_types(bench_case *c, const char *text)
{
    const size_t length = strcspn(text, "/");
    const char *const v = text[length] ? text + length + 1 : text;
    c->keys.typed = 1;
    c->keys.k_dtype = dtype_of(text, length);
    c->keys.v_dtype = dtype_of(v, strlen(v));
    return c->keys.k_dtype < NUM_DTYPES && c->keys.v_dtype < NUM_DTYPES;
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

double case_key_bytes(const bench_case *c)
{
    if (c->keys.kind != KEYS_PLAIN) /* A cache has no scales of rows. */
        return (double)(case_bytes(case_k_dtype(c), c->head_dim) +
                        case_bytes(case_v_dtype(c), c->head_dim_v));
    return (double)(case_row_bytes(case_k_dtype(c), c->head_dim) +
                    case_row_bytes(case_v_dtype(c), c->head_dim_v));
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

/* ---- what a case costs on paper */

void model_sizes(const bench_case *c, bench_model *out)
{
    const double q_rows = (double)c->batch * (double)c->heads_q * (double)c->seq_q;
    const double width = (double)c->head_dim + (double)c->head_dim_v;
    const double row = width * (double)case_bytes(c->dtype, 1);
    const double key = case_key_bytes(c);
    out->pairs = out->flops = 0;
    out->kv_token_bytes = (double)c->heads_kv * key;
    out->kv_bytes = case_stored_keys(c) * out->kv_token_bytes;
    out->tensor_bytes = (c->appends ? 0 : q_rows * row) + out->kv_bytes;
    if (c->backward)
        out->tensor_bytes = 2 * out->tensor_bytes + 8 * q_rows;
    out->logits_bytes = q_rows * (double)c->seq_kv * 4;
}

/* Lengths of the products of a pair: q.k and p v; backward q.k, do.v and what makes dq, dk, dv. */
static double products_of(const bench_case *c)
{
    const double dim = (double)c->head_dim, dim_v = (double)c->head_dim_v;
    return c->backward ? 3 * dim + 2 * dim_v : dim + dim_v;
}

void model_of(const bench_case *c, bench_model *out)
{
    model_sizes(c, out);
    out->pairs = c->appends ? 0 : c->dilated.branches ? dilated_pairs(c) : mask_pairs(c);
    out->flops = 2 * out->pairs * products_of(c);
}

double model_intensity(const bench_model *m)
{
    return m->flops / m->tensor_bytes;
}

const char *model_roof(double intensity, double gflops, double gbytes_per_s)
{
    if (gflops <= 0 || gbytes_per_s <= 0)
        return "";
    return intensity * gbytes_per_s < gflops ? "memory" : "compute";
}

double model_theory_bytes(const bench_case *c, int naive, int threads, double workspace_bytes)
{
    const double heads = (double)c->batch * (double)(c->backward ? c->heads_kv : c->heads_q);
    const double at_once = threads < heads ? threads : heads;
    const double matrix = 4 * (double)c->seq_q * (double)c->seq_kv;
    return naive ? (c->backward ? 2 : 1) * at_once * matrix : workspace_bytes;
}

double model_matrix_share(const bench_model *m, double workspace_bytes)
{
    return workspace_bytes / m->logits_bytes;
}

/* ---- what `bench --list` prints */

void list_presets(void)
{
    const char *name, *what;
    for (int i = 0; preset_describe(i, &name, &what); i++)
        printf("preset %-9s %s\n", name, what);
}

void list_masks(void)
{
    for (int kind = 0; kind < NUM_MASKS; kind++)
        printf("mask   %-15s %s\n", mask_name(kind), mask_what(kind));
}

/* How it is dilated: branches, merging, copies; "" = it is dense. */
static const char *branches_of(const bench_case *c, char *text, size_t text_bytes)
{
    char branches[DILATED_TEXT];
    text[0] = '\0';
    if (c->dilated.branches)
        snprintf(text, text_bytes, "  %s %s %s", dilated_text(c, branches), case_merge_name(c),
                 case_variant_name(c));
    return text;
}

/* "B,Hq,Hkv,Sq,Skv,D,Dv", as --shape takes it; returns text. */
static const char *case_shape(const bench_case *c, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%lld,%lld,%lld,%lld,%lld,%lld,%lld", (long long)c->batch,
             (long long)c->heads_q, (long long)c->heads_kv, (long long)c->seq_q,
             (long long)c->seq_kv, (long long)c->head_dim, (long long)c->head_dim_v);
    return text;
}

static void list_case(const bench_case *c, int threads)
{
    char shape[160], branches[DILATED_TEXT + 32];
    printf("case   %-9s %-16s %-25s %-15s %-30s %-4s %-6s %3d %s%s\n", c->preset, c->scenario,
           c->name, mask_name(c->mask), case_shape(c, shape, sizeof shape),
           case_dtype_name(c->dtype), case_layout_name(mask_layout(c)),
           c->threads ? c->threads : threads, case_pass_name(c),
           branches_of(c, branches, sizeof branches));
}

void list_cases(const case_list *list, int threads)
{
    printf("       %-9s %-16s %-25s %-15s %-30s %-4s %-6s %s pass\n", "preset", "scenario", "case",
           "mask", "B,Hq,Hkv,Sq,Skv,D,Dv", "type", "layout", "thr");
    for (int i = 0; i < list->n; i++)
        list_case(&list->cases[i], threads);
}
