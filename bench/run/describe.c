/* describe.c - what a run is: its row, its call, how it is computed and what it costs on paper.
 * SPDX-License-Identifier: MIT */
#include "stages.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static int threads_of(const bench_context *x, const bench_case *c, const bench_path *path)
{
    const int given = c->threads ? c->threads : x->threads;
    return path->threads == PATH_GIVEN ? given : path->threads == PATH_MANY ? x->many : 1;
}

void run_describe(const bench_context *x, const bench_case *c, const bench_path *path,
                  bench_result *r)
{
    memset(r, 0, sizeof *r);
    r->from = c;
    r->path = path->name;
    r->preset = c->preset;
    r->scenario = c->scenario;
    memcpy(r->name, c->name, sizeof r->name);
    r->impl = path->impl;
    r->place = (int)path->device;
    r->kernels = r->roof = r->device = "";
    r->dtype = case_dtype_name(c->dtype);
    r->mask = c->appends ? "none" : mask_name(c->mask);
    r->pass = case_pass_name(c);
    dilated_text(c, r->branches);
    r->merge = case_merge_name(c);
    r->variant = case_variant_name(c);
    r->branch_heads = case_heads_name(c);
    r->pattern_cache = case_pattern_name(c);
    r->memory_pool = case_memory_name(c);
    r->keys = case_keys_name(c->keys.kind);
    r->k_dtype = case_dtype_name(case_k_dtype(c));
    r->v_dtype = case_dtype_name(case_v_dtype(c));
    r->integer = c->integer;
    r->fast = c->fast != FAST_OFF;
    r->page_size = c->keys.page_size;
    r->shares = c->shares;
    r->layout = case_layout_name(mask_layout(c));
    r->data = case_data_name(c->data);
    r->batch = c->batch;
    r->heads_q = c->heads_q;
    r->heads_kv = c->heads_kv;
    r->seq_q = c->seq_q;
    r->seq_kv = c->seq_kv;
    r->head_dim = c->head_dim;
    r->head_dim_v = c->head_dim_v;
    r->threads = threads_of(x, c, path);
    r->tuning = x->tuning_file;
}

/* Packed strides of either layout; attn_tensor and attn_output name them alike. */
#define SET_STRIDES(t, heads, rows, dim, layout)                                                   \
    do {                                                                                           \
        (t)->stride_batch = (ptrdiff_t)((heads) * (rows) * (dim));                                 \
        (t)->stride_head = (ptrdiff_t)((layout) == LAYOUT_BSHD ? (dim) : (rows) * (dim));          \
        (t)->stride_seq = (ptrdiff_t)((layout) == LAYOUT_BSHD ? (heads) * (dim) : (dim));          \
    } while (0)

static void set_strides(const bench_case *c, attn_params *p)
{
    const case_layout layout = mask_layout(c);
    SET_STRIDES(&p->q, c->heads_q, c->seq_q, c->head_dim, layout);
    SET_STRIDES(&p->k, c->heads_kv, c->seq_kv, c->head_dim, layout);
    SET_STRIDES(&p->v, c->heads_kv, c->seq_kv, c->head_dim_v, layout);
    SET_STRIDES(&p->o, c->heads_q, c->seq_q, c->head_dim_v, layout);
}

/* Whether the case or the command line says what the path says, too. */
static int contradicts(const bench_context *x, const bench_run *run, bench_result *r)
{
    const bench_case *const c = run->c;
    if (c->appends != path_appends(run->path))
        return !run_skip(r, c->appends ? "this case appends to a cache: path append"
                                       : "this case appends nothing to a cache");
    if (run_is_divided(run) && !rings_possible(&run->rings, r->skipped, sizeof r->skipped))
        return 1;
    if (run_is_dilated(run) && c->mask != MASK_FULL && c->mask != MASK_CAUSAL)
        return !run_skip(r, "a dilated case is full or causal here");
    const int kernels = run->path->kernels && (c->kernels || x->kernels);
    const int threads = run->path->threads != PATH_GIVEN && c->threads;
    if (!kernels && !threads)
        return 0;
    return !run_skip(r, "%s already says %s",
                     kernels && !c->kernels ? "the command line" : "the case",
                     kernels ? "which kernel set" : "how many threads");
}

/* The call on the path's device, what it was opened as. */
static int set_device(bench_run *run, bench_result *r)
{
    const bench_case *const c = run->c;
    if (!run->path->device)
        return 1;
    if (run_is_resident(run) && (c->backward || c->keys.kind != KEYS_PLAIN))
        return run_skip(r, "the bench has caches and gradients in arrays of the host only");
    if (!on_device(run->path, &run->p, &run->device, r->skipped, sizeof r->skipped))
        return 0;
    r->device = device_opened()->device;
    r->on_gpu = device_opened()->gpu;
    return 1;
}

/* How the call is computed; 0 with a sentence when there is no such way. */
static int set_path(const bench_context *x, bench_run *run, bench_result *r)
{
    attn_params *const p = &run->p;
    const bench_case *const c = run->c;
    const char *const kernels = c->kernels ? c->kernels : x->kernels;
    char text[96];
    p->num_workers = (int)r->threads;
    p->tuning = x->tuning ? x->tuning : path_tuning(run->path);
    r->absent = !path_usable(run->path, x->many, r->skipped, sizeof r->skipped);
    if (r->absent || contradicts(x, run, r))
        return 0;
    if (p->num_workers > 1)
        p->parallel_for = pool_parallel_for;
    p->parallel_user = pool_of(x->workers, p->num_workers);
    if (p->parallel_for && !p->parallel_user)
        return run_skip(r, "threads cannot be had here");
    if (c->appends)
        return 1;
    p->kernels = path_kernels(run->path, c->seq_q * (c->heads_q / c->heads_kv));
    snprintf(text, sizeof text, "impl=%.40s%s%.40s", run->path->impl, kernels ? " kernels=" : "",
             kernels ? kernels : "");
    return attn_params_from_string(p, text, r->skipped, sizeof r->skipped) == ATTN_OK &&
           set_device(run, r);
}

void run_set_scales(bench_run *run, const float *scales)
{
    const attn_scales none = { 0, 0, 0, 0, NULL };
    const attn_scales by_row = { 0, 0, 0, ATTN_STRIDE_BROADCAST, scales };
    run->p.k_scales = run->p.k.dtype == ATTN_I8 ? by_row : none;
    run->p.v_scales = run->p.v.dtype == ATTN_I8 ? by_row : none;
}

int run_set_params(bench_context *x, bench_run *run, bench_result *r)
{
    attn_params *const p = &run->p;
    const bench_case *const c = run->c;
    p->batch = c->batch;
    p->num_heads_q = c->heads_q;
    p->num_heads_kv = c->heads_kv;
    p->seq_len_q = c->seq_q;
    p->seq_len_kv = c->seq_kv;
    p->head_dim = c->head_dim;
    p->head_dim_v = c->head_dim_v;
    p->naive_whole = c->naive_whole;
    p->integer = c->integer;
    p->fast = c->fast != FAST_OFF;
    p->q.dtype = p->o.dtype = c->dtype;
    p->k.dtype = c->appends ? c->dtype : case_k_dtype(c); /* what is appended is yet to be stored */
    p->v.dtype = c->appends ? c->dtype : case_v_dtype(c);
    set_strides(c, p);
    /* attn_explain looks at the tensors' pointers as attn_forward would: any address serves. */
    p->q.data = p->k.data = p->v.data = p->o.data = run->info.reasons;
    run_set_scales(run, p->q.data);
    r->row_stride = (int64_t)p->q.stride_seq;
    if (!mask_set(c, p, &run->mask))
        return run_skip(r, "no memory for the mask");
    dilated_describe(c, &run->dilated);
    rings_describe(c, run->path, c->ranks ? c->ranks : (int)r->threads, &run->dilated, &run->rings);
    r->ranks = run->rings.num_ranks;
    r->processes = c->ranks;
    if (!run_watched(x, RUN_DESCRIBED, run, r))
        return 0;
    run->gradients.dilated = run_is_dilated(run) ? &run->dilated : NULL;
    if (c->backward)
        gradients_describe(c, p, &run->gradients, run->info.reasons);
    return set_path(x, run, r);
}

int run_reads_all(const bench_run *run)
{
    return run_is_dilated(run) ? dilated_reads_all(run->c) : mask_reads_all(run->c->mask);
}

/* What the case costs on paper, next to the peaks. */
static void describe_cost(const bench_run *run, bench_result *r)
{
    const double bytes = (double)run->workspace_bytes;
    const int naive = run->info.impl == ATTN_IMPL_NAIVE;
    r->theory_bytes = (int64_t)model_theory_bytes(run->c, naive, (int)r->threads, bytes);
    r->matrix_share = model_matrix_share(&run->model, bytes);
    r->shared_keys = run->p.shared_keys;
    if (!run_reads_all(run))
        return; /* how much of k and v is read is not known */
    r->intensity = model_intensity(&run->model);
    r->roof = model_roof(r->intensity, r->fma_peak_gflops, r->read_peak_gbytes_per_s);
}

/* Of a call in one process, dense. */
static attn_status explain_plain(bench_run *run, bench_result *r, char *why, size_t why_bytes)
{
    int gemms = 0;
    attn_status status;
    if (run->c->backward) {
        status = gradients_explain(&run->gradients, &run->p, &run->info, &gemms, why, why_bytes);
        r->gemms = gemms;
        return status;
    }
    status = attn_explain(&run->p, &run->info);
    if (status != ATTN_OK)
        attn_check(&run->p, run->info.reasons, (size_t)-1, why, why_bytes);
    return status;
}

const attn_gradients *run_gradients(const bench_run *run)
{
    return run->c->backward ? &run->gradients.g : NULL;
}

attn_status run_explain(bench_run *run, bench_result *r, char *why, size_t why_bytes)
{
    const attn_status status = explain_plain(run, r, why, why_bytes);
    size_t *const bytes = &run->info.workspace_bytes;
    if (status != ATTN_OK)
        return status;
    if (run_is_divided(run))
        return rings_size(&run->rings, &run->p, run_gradients(run), bytes, why, why_bytes);
    if (run_is_dilated(run) && !run->c->backward)
        return dilated_size(&run->dilated, &run->p, NULL, bytes, why, why_bytes);
    return status;
}

/* Whether the kernel set of this name multiplies numbers that are rounded: none that
 * attn_kernels_get lists does. */
static int rounds(const char *name)
{
    const attn_kernels *set;
    for (int i = 0; (set = attn_kernels_get(i)) != NULL; i++)
        if (!strcmp(attn_kernels_name(set), name))
            return 0;
    return 1;
}

int run_size_up(bench_run *run, bench_result *r)
{
    char text[160];
    if (run->c->appends)
        return describe_cost(run, r), 1;
    const attn_status status = run_explain(run, r, text, sizeof text);
    if (status != ATTN_OK)
        return run_skip(r, "%s: %s", attn_status_string(status), text);
    r->kernels = run->path->device ? run->info.backend_name : run->info.kernels_name;
    if (run->path->device && !on_device_taken(&run->info, text, sizeof text))
        return run_skip(r, "%s", text);
    if (run->c->fast == FAST_NEEDED && !rounds(r->kernels))
        return run_skip(r, "no unit for products of bf16 (p.fast) here: kernels %s are exact",
                        r->kernels);
    if (!path_fits(run->path, run->info.key_parts, (int)r->threads, r->skipped, sizeof r->skipped))
        return 0;
    run->workspace_bytes = run->info.workspace_bytes;
    r->workspace_bytes = (int64_t)run->workspace_bytes;
    describe_cost(run, r);
    if (run_is_dilated(run) || !mask_explained(run->c->mask) ||
        fabs(run->model.flops - run->info.flops) <= 1e-9 * run->model.flops)
        return 1;
    return run_skip(r, "the library counts %.0f FLOPs, the bench %.0f", run->info.flops,
                    run->model.flops);
}
