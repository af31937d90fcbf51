/* run.c - measures one case by one path: data, call, check, timing.
 * SPDX-License-Identifier: MIT
 *
 * Order: make the buffers, fill them, one cold call, compare sampled rows with the double oracle,
 * only then warm-up and timing; of a group all but the timing first. Calls of few rows are bound by
 * memory: a plain loop that reads their K and V is timed in turn with them. What a cache holds was
 * appended from plain arrays, and the oracle reads these: it would notice a wrong page. */
#include "run.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../attn.h"
#include "../tests/sampled.h"
#include "cases/jobs.h"
#include "cases/cases.h"
#include "clock.h"
#include "machine/machine.h"
#include "machine/peak.h"
#include "measure.h"

#define WRONG "wrong result"
#define GIB 1073741824.0
/* Logits where the memory is not known: 16384 x 16384 of one head. */
#define LOGITS_LIMIT GIB
/* Share of the usable memory that one case may take. */
#define MEMORY_SHARE 0.5

enum { FEW_ROWS = 16 };
/* Samples that are doubled until they last a time take up to four times as long in all. */
#define DOUBLING 4

static int skip(bench_result *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(r->skipped, sizeof r->skipped, format, args);
    va_end(args);
    return 0;
}

/* What checks of the bench do to the run at this stage. */
static int watched(bench_context *x, run_stage stage, bench_run *run, bench_result *r)
{
    return !x->watch || x->watch(stage, run, r) || skip(r, "a call with a planted fault failed");
}

static int threads_of(const bench_context *x, const bench_case *c, const bench_path *path)
{
    const int given = c->threads ? c->threads : x->threads;
    return path->threads == PATH_GIVEN ? given : path->threads == PATH_MANY ? x->many : 1;
}

/* What is known before anything runs. */
static void describe(const bench_context *x, const bench_case *c, const bench_path *path,
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

static int is_dilated(const bench_run *run)
{
    return run->c->dilated.branches > 0;
}

/* Among ranks. */
static int is_divided(const bench_run *run)
{
    return run->rings.num_ranks > 0;
}

/* Whether the case or the command line says what the path says, too. */
static int contradicts(const bench_context *x, const bench_run *run, bench_result *r)
{
    const bench_case *const c = run->c;
    if (c->appends != path_appends(run->path))
        return !skip(r, c->appends ? "this case appends to a cache: path append"
                                   : "this case appends nothing to a cache");
    if (is_divided(run) && !rings_possible(&run->rings, r->skipped, sizeof r->skipped))
        return 1;
    if (is_dilated(run) && c->mask != MASK_FULL && c->mask != MASK_CAUSAL)
        return !skip(r, "a dilated case is full or causal here");
    const int kernels = run->path->kernels && (c->kernels || x->kernels);
    const int threads = run->path->threads != PATH_GIVEN && c->threads;
    if (!kernels && !threads)
        return 0;
    return !skip(r, "%s already says %s", kernels && !c->kernels ? "the command line" : "the case",
                 kernels ? "which kernel set" : "how many threads");
}

static int is_resident(const bench_run *run)
{
    return run->path->device == PATH_DEVICE_ARRAYS;
}

/* The call on the path's device, what it was opened as. */
static int set_device(bench_run *run, bench_result *r)
{
    const bench_case *const c = run->c;
    if (!run->path->device)
        return 1;
    if (is_resident(run) && (c->backward || c->keys.kind != KEYS_PLAIN))
        return skip(r, "the bench has caches and gradients in arrays of the host only");
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
        return skip(r, "threads cannot be had here");
    if (c->appends)
        return 1;
    p->kernels = path_kernels(run->path, c->seq_q * (c->heads_q / c->heads_kv));
    snprintf(text, sizeof text, "impl=%.40s%s%.40s", run->path->impl, kernels ? " kernels=" : "",
             kernels ? kernels : "");
    return attn_params_from_string(p, text, r->skipped, sizeof r->skipped) == ATTN_OK &&
           set_device(run, r);
}

/* Every field of the call but the pointers; 0 with a sentence when the library has no such way. */
static int set_params(bench_context *x, bench_run *run, bench_result *r)
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
    p->q.dtype = p->o.dtype = c->dtype;
    p->k.dtype = c->appends ? c->dtype : case_k_dtype(c); /* what is appended is yet to be stored */
    p->v.dtype = c->appends ? c->dtype : case_v_dtype(c);
    set_strides(c, p);
    /* attn_explain looks at the tensors' pointers as attn_forward would: any address serves. */
    p->q.data = p->k.data = p->v.data = p->o.data = run->info.reasons;
    r->row_stride = (int64_t)p->q.stride_seq;
    if (!mask_set(c, p, &run->mask))
        return skip(r, "no memory for the mask");
    dilated_describe(c, &run->dilated);
    rings_describe(c, run->path, (int)r->threads, &run->rings);
    r->ranks = run->rings.num_ranks;
    if (!watched(x, RUN_DESCRIBED, run, r))
        return 0;
    run->gradients.dilated = is_dilated(run) ? &run->dilated : NULL;
    if (c->backward)
        gradients_describe(c, p, &run->gradients, run->info.reasons);
    return set_path(x, run, r);
}

static size_t tensor_bytes(int64_t batch, int64_t heads, int64_t rows, int64_t dim, int dtype)
{
    return (size_t)batch * (size_t)heads * (size_t)rows * (size_t)dim * (size_t)case_width(dtype);
}

/* Ranks have arrays of their own. */
static double run_bytes(const bench_run *run)
{
    return (is_divided(run) ? 2 : 1) * run->model.tensor_bytes + keys_cache_bytes(run->c) +
           mask_bytes(run->c) + gradients_more_bytes(run->c) +
           dilated_index_bytes(run->c, &run->dilated) + (double)run->workspace_bytes;
}

/* Those of the naive path: of all heads, which gradients never take at once, or of a head for each
 * worker. */
static double logits_bytes(const bench_run *run, int64_t threads)
{
    const int naive = run->info.impl == ATTN_IMPL_NAIVE || !strcmp(run->path->impl, "naive");
    if (!naive || run->path->device)
        return 0; /* a device has them in its own memory */
    if (run->c->naive_whole && !run->c->backward)
        return run->model.logits_bytes;
    return model_theory_bytes(run->c, 1, (int)threads, 0);
}

/* 0 when the case needs more memory than it may take, as far as this is known. */
static int within_memory(const bench_context *x, const bench_run *run, bench_result *r)
{
    const double need = run->bytes_before + run_bytes(run);
    const double limit = MEMORY_SHARE * (double)x->machine.memory_usable;
    const double logits = logits_bytes(run, r->threads);
    if (logits > (limit > 0 ? limit : LOGITS_LIMIT))
        return skip(r, "logits take %.2f GiB (%.1f GB), the limit is %.2f GiB%s", logits / GIB,
                    logits * 1e-9, (limit > 0 ? limit : LOGITS_LIMIT) / GIB,
                    limit > 0 ? " (half of the usable memory)" : "");
    if (need > (double)(SIZE_MAX / 2))
        return skip(r, "needs %.2f GiB, more than an address space of %.2f GiB holds", need / GIB,
                    (double)SIZE_MAX / GIB);
    if (limit > 0 && need > limit)
        return skip(r, "needs %.2f GiB, the limit is %.2f GiB (half of the usable memory)",
                    need / GIB, limit / GIB);
    return 1;
}

/* Whether all of k and v is read, as far as is known. */
static int reads_all(const bench_run *run)
{
    return is_dilated(run) ? dilated_reads_all(run->c) : mask_reads_all(run->c->mask);
}

/* What the case costs on paper, next to the peaks. */
static void describe_cost(const bench_run *run, bench_result *r)
{
    const double bytes = (double)run->workspace_bytes;
    const int naive = run->info.impl == ATTN_IMPL_NAIVE;
    r->theory_bytes = (int64_t)model_theory_bytes(run->c, naive, (int)r->threads, bytes);
    r->matrix_share = model_matrix_share(&run->model, bytes);
    r->shared_keys = run->p.shared_keys;
    if (!reads_all(run))
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

static const attn_gradients *gradients_of(const bench_run *run)
{
    return run->c->backward ? &run->gradients.g : NULL;
}

static attn_status explain(bench_run *run, bench_result *r, char *why, size_t why_bytes)
{
    const attn_status status = explain_plain(run, r, why, why_bytes);
    size_t *const bytes = &run->info.workspace_bytes;
    if (status != ATTN_OK)
        return status;
    if (is_divided(run))
        return rings_size(&run->rings, &run->p, gradients_of(run), bytes, why, why_bytes);
    if (is_dilated(run) && !run->c->backward)
        return dilated_size(&run->dilated, &run->p, NULL, bytes, why, why_bytes);
    return status;
}

static int size_up(bench_run *run, bench_result *r)
{
    char text[160];
    if (run->c->appends)
        return describe_cost(run, r), 1;
    const attn_status status = explain(run, r, text, sizeof text);
    if (status != ATTN_OK)
        return skip(r, "%s: %s", attn_status_string(status), text);
    r->kernels = run->path->device ? run->info.backend_name : run->info.kernels_name;
    if (run->path->device && !on_device_taken(&run->info, text, sizeof text))
        return skip(r, "%s", text);
    if (!path_fits(run->path, run->info.key_parts, (int)r->threads, r->skipped, sizeof r->skipped))
        return 0;
    run->workspace_bytes = run->info.workspace_bytes;
    r->workspace_bytes = (int64_t)run->workspace_bytes;
    describe_cost(run, r);
    if (is_dilated(run) || !mask_explained(run->c->mask) ||
        fabs(run->model.flops - run->info.flops) <= 1e-9 * run->model.flops)
        return 1;
    return skip(r, "the library counts %.0f FLOPs, the bench %.0f", run->info.flops,
                run->model.flops);
}

typedef struct tensor_sizes {
    size_t q, k, v, o;
} tensor_sizes;

static tensor_sizes sizes_of(const bench_run *run)
{
    const bench_case *const c = run->c;
    const attn_params *const p = &run->plain;
    const tensor_sizes sizes = {
        tensor_bytes(c->batch, c->heads_q, c->seq_q, c->head_dim, c->dtype),
        tensor_bytes(c->batch, c->heads_kv, c->seq_kv, c->head_dim, p->k.dtype),
        tensor_bytes(c->batch, c->heads_kv, c->seq_kv, c->head_dim_v, p->v.dtype),
        tensor_bytes(c->batch, c->heads_q, c->seq_q, c->head_dim_v, c->dtype)
    };
    return sizes;
}

/* The first keys of every batch entry become those of entry 0. */
static void repeat_shared(const bench_case *c, const attn_tensor *t, void *data, int64_t dim)
{
    const size_t width = (size_t)case_width(t->dtype);
    const size_t bytes = (size_t)(c->keys.shared * dim) * width;
    for (int64_t b = 1; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads_kv; h++) {
            char *const from = (char *)data + (size_t)(h * t->stride_head) * width;
            memcpy(from + (size_t)(b * t->stride_batch) * width, from, bytes);
        }
}

static void *filled(const bench_context *x, const bench_case *c, size_t bytes, int dtype, int which)
{
    void *const data = c->keys.typed ? large_alloc(bytes) : malloc(bytes);
    if (data)
        data_fill(data, dtype, bytes / (size_t)case_width(dtype), which, c->data, x->seed);
    return data;
}

static void make_keys(const bench_context *x, const tensor_sizes *bytes, bench_run *run)
{
    const bench_case *const c = run->c;
    run->k = filled(x, c, bytes->k, run->p.k.dtype, DATA_K);
    run->v = filled(x, c, bytes->v, run->p.v.dtype, DATA_V);
    if (!c->keys.shared || !run->k || !run->v)
        return;
    repeat_shared(c, &run->p.k, run->k, c->head_dim);
    repeat_shared(c, &run->p.v, run->v, c->head_dim_v);
}

/* Those of an owner of the same shape, or its own; NULL stays where the system gives no memory. */
static void make_tensors(const bench_context *x, const tensor_sizes *bytes, bench_run *run,
                         const bench_run *owner)
{
    run->owner = owner;
    run->q = owner ? owner->q : filled(x, run->c, bytes->q, run->c->dtype, DATA_Q);
    run->o = owner && !run->c->backward ? owner->o : malloc(bytes->o); /* backward reads it */
    run->k = owner ? owner->k : NULL;
    run->v = owner ? owner->v : NULL;
    if (!owner || run->c->shares == SHARES_BUT_STORAGE)
        make_keys(x, bytes, run);
}

static int no_memory(const bench_run *run, bench_result *r)
{
    return skip(r, "the system gave no memory: %.2f GiB and a workspace of %.2f GiB",
                run->model.tensor_bytes / GIB, (double)run->workspace_bytes / GIB);
}

/* And what the forward call writes, which the backward one reads. */
static int make_gradients(const bench_context *x, bench_run *run, bench_result *r)
{
    char why[200];
    if (!gradients_make(&run->p, x->seed, &run->gradients, why, sizeof why))
        return skip(r, "%s", why);
    run->plain = run->p;
    return 1;
}

/* Plain arrays, and a cache of them. */
static int make_inputs(const bench_context *x, const bench_run *first, bench_run *run,
                       bench_result *r)
{
    const bench_case *const c = run->c;
    const tensor_sizes bytes = sizes_of(run);
    char why[200];
    make_tensors(x, &bytes, run, c->shares && first && first->q ? first : NULL);
    if (!run->q || !run->k || !run->v || !run->o)
        return no_memory(run, r);
    memset(run->o, 0xff, bytes.o); /* NaN: an element that is not written fails the check */
    run->p.q.data = run->q;
    run->p.k.data = run->k;
    run->p.v.data = run->v;
    run->p.o.data = run->o;
    run->plain = run->p;
    if (c->appends)
        return append_make(c, &run->plain, x->seed, &run->append, why, sizeof why) ||
               skip(r, "%s", why);
    if (is_dilated(run) && !dilated_make(c, &run->dilated))
        return no_memory(run, r);
    if (c->backward)
        return make_gradients(x, run, r);
    if (c->keys.kind == KEYS_PLAIN)
        return 1;
    return (keys_make(c, x->seed, &run->keys, why, sizeof why) &&
            keys_fill(c, &run->plain, &run->keys, why, sizeof why)) ||
           skip(r, "%s", why);
}

/* What the call reads: the plain arrays or the cache. */
static int place_keys(bench_context *x, bench_run *run, bench_result *r)
{
    const bench_case *const c = run->c;
    char why[200];
    if (c->keys.kind == KEYS_PLAIN || c->appends)
        return 1;
    if (!watched(x, RUN_FILLED, run, r))
        return 0;
    if (!keys_view(c, &run->keys, &run->p, why, sizeof why))
        return skip(r, "%s", why);
    return size_up(run, r);
}

static void set_roof(bench_run *run, const bench_result *r)
{
    const bench_case *const c = run->c;
    const double key = (double)(c->head_dim * case_width(run->p.k.dtype));
    const double value = (double)(c->head_dim_v * case_width(run->p.v.dtype));
    const double rows = case_stored_keys(c) * (double)c->heads_kv;
    const reading roof = { { run->p.k.data, run->p.v.data },
                           { (size_t)(rows * key), (size_t)(rows * value) },
                           (int)r->threads,
                           run->p.parallel_for,
                           run->p.parallel_user,
                           0 };
    if (c->appends || run->path->device || !reads_all(run))
        return;
    if (c->seq_q <= FEW_ROWS || (c->threads && !is_divided(run)))
        run->roof = roof;
}

static void set_tile(bench_run *run, const bench_result *r)
{
    kernel_loop loop = { (int)r->threads, run->p.parallel_for, run->p.parallel_user, 0, 0 };
    if (run->path->device || run->c->seq_q <= FEW_ROWS || is_divided(run))
        return;
    if (kernel_loop_make(&loop, r->kernels, run->model.flops))
        run->tile = loop;
}

static int make_buffers(bench_context *x, const bench_run *first, bench_run *run, bench_result *r)
{
    if (!make_inputs(x, first, run, r) || !place_keys(x, run, r))
        return 0;
    if (is_divided(run) && !rings_make(&run->rings, &run->p, gradients_of(run)))
        return no_memory(run, r);
    if (!watched(x, RUN_DIVIDED, run, r))
        return 0;
    run->workspace = malloc(is_divided(run) ? 1 : run->workspace_bytes + 1);
    if (!run->workspace)
        return no_memory(run, r);
    const tensor_sizes bytes = sizes_of(run);
    const size_t sizes[ON_DEVICE_ARRAYS] = { bytes.q, bytes.k, bytes.v, bytes.o };
    if (is_resident(run) && !on_device_place(&run->p, sizes, &run->device))
        return skip(r, "the device gave no memory: %.2f GiB", run->model.tensor_bytes / GIB);
    set_roof(run, r);
    set_tile(run, r);
    return 1;
}

static attn_status attend(bench_run *run, void *workspace)
{
    const attn_gradients *const g = gradients_of(run);
    const size_t bytes = run->workspace_bytes;
    if (is_divided(run))
        return rings_call(&run->rings);
    if (is_dilated(run))
        return dilated_call(&run->dilated, &run->p, g, workspace, bytes);
    if (run->c->pattern_anew && !mask_again(run->c, &run->mask))
        return ATTN_ERR_ARG;
    return g ? attn_backward(&run->p, g, workspace, bytes)
             : attn_forward(&run->p, workspace, bytes);
}

/* As a program without a pool of memory does it. */
static int call_anew(bench_run *run)
{
    void *const workspace = malloc(run->workspace_bytes + 1);
    const int failed = !workspace || attend(run, workspace) != ATTN_OK;
    free(workspace);
    return failed;
}

int run_call(void *argument)
{
    bench_run *const run = argument;
    if (run->c->appends)
        return append_call(&run->append);
    if (run->c->memory_anew && !is_divided(run))
        return call_anew(run);
    return attend(run, run->workspace) != ATTN_OK;
}

/* A call that is timed: the next one after Ctrl-C fails. */
static int timed_call(void *run)
{
    return stop_wanted() || run_call(run);
}

static int stopped(bench_result *r)
{
    return skip(r, "stopped by Ctrl-C");
}

/* ---- verification */

/* One call with plain arrays, on the CPU where the path has its bits. */
static int call_plain(bench_run *run)
{
    attn_params p = run->plain;
    size_t need = run->workspace_bytes;
    p.key_base = run->p.key_base;
    if (run->path->device == PATH_EXACT)
        p.backend = NULL;
    if (attn_workspace_size(&p, &need) != ATTN_OK)
        return 0;
    void *const workspace = malloc(need);
    const int done = workspace && attn_forward(&p, workspace, need) == ATTN_OK;
    free(workspace);
    return done;
}

/* Where the keys lie changes no bit: keys in another order would be within the tolerance. Nor does
 * a device in exact mode, or a ring that is canonical. */
static int verify_bits(bench_run *run, bench_result *r)
{
    const size_t bytes = sizes_of(run).o;
    void *const before = malloc(bytes);
    const char *const where = run->path->device == PATH_EXACT ? "on the CPU"
                              : is_divided(run)               ? "in one process"
                                                              : "with plain arrays";
    if (!before)
        return no_memory(run, r);
    memcpy(before, run->o, bytes);
    memset(run->o, 0xff, bytes); /* as before the first call, in rows that none is to write */
    const int done = call_plain(run), same = done && !memcmp(before, run->o, bytes);
    free(before);
    if (!done)
        return skip(r, "the call %s failed", where);
    return same || skip(r, WRONG ": other bits than %s; not timed", where);
}

static int verify(bench_run *run, bench_result *r)
{
    const bench_case *const c = run->c;
    sampled_errors errors = { 0, 0 };
    char why[200] = "no memory for the double oracle";
    if (!(c->appends    ? sampled_append(&run->append, &errors, why, sizeof why)
          : c->backward ? sampled_gradients(&run->gradients, &run->plain, &errors)
                        : sampled_rows(c, &run->plain, &errors)))
        return skip(r, "%s", why);
    r->max_err = errors.max_err;
    r->err_tolerance = errors.err_tolerance;
    const int exact = (run->path->device == PATH_EXACT || run->rings.canonical) && !c->backward;
    const int bits = c->keys.kind != KEYS_PLAIN || exact;
    if (r->err_tolerance <= 1 && bits && !c->appends)
        return verify_bits(run, r);
    if (r->err_tolerance <= 1)
        return 1;
    return skip(r, WRONG ": off by %.3g, %.3g times the tolerance; not timed", r->max_err,
                r->err_tolerance);
}

int run_was_wrong(const bench_result *r)
{
    return !strncmp(r->skipped, WRONG, strlen(WRONG));
}

/* ---- timing */

/* The call's rate and its loops' of the same moment. */
static void fill_rates(const bench_run *run, const measure_job *jobs, bench_result *r)
{
    const measure_job *const timed = &jobs[run->job], *const loop = &jobs[run->roof_job];
    const measure_job *const tile = &jobs[run->tile_job];
    if (reads_all(run))
        r->gbytes_per_s = run->model.kv_bytes / timed->result.seconds.p50 * 1e-9;
    if (timed->against)
        r->speedup = 1 / timed->ratio_p50;
    if (run->tile.threads) {
        const double flops = kernel_loop_flops(&run->tile);
        r->kernel_loop_gflops = flops / tile->result.seconds.p50 * 1e-9;
        r->pct_kernel_loop = 100 * tile->ratio_p50 * run->model.flops / flops;
    }
    if (!run->roof.threads)
        return;
    r->read_gbytes_per_s = run->model.kv_bytes / loop->result.seconds.p50 * 1e-9;
    r->pct_read_bw = 100 * loop->ratio_p50;
}

static void fill_ring(const bench_run *run, bench_result *r)
{
    const rings_figures f = rings_told(&run->rings);
    r->moved_bytes = (int64_t)f.moved_bytes;
    r->exchange_ms = 1e3 * f.exchange_seconds;
    r->rank_balance = f.balance;
}

/* A call on several threads leaves some idle: whether others had their CPUs is told by the reading
 * loop, which keeps all of them busy, before and after the measurement. */
static double running_of(const bench_run *run, const measure_result *m)
{
    if (run->roof.threads < 2)
        return m->running;
    const double after = reading_running(&run->roof);
    return run->roof.threads * (after < run->running_before ? after : run->running_before);
}

/* Percent of a peak; 0 = there is none. In cycles where there is a clock estimate: both sides then
 * mean the same clock rate. */
static double share_of(const probe_peak *peak, double gflops, double per_cycle, double threads)
{
    if (!peak->name)
        return 0;
    const double share = per_cycle > 0 && peak->flops_per_cycle > 0
                             ? per_cycle / peak->flops_per_cycle
                             : gflops / peak->gflops;
    return 100 * share / threads;
}

static void fill_result(const bench_context *x, const bench_run *run, const measure_job *jobs,
                        bench_result *r)
{
    const measure_result *const m = &jobs[run->job].result;
    const double threads = roof_cpus(x, (int)r->threads); /* that can run at once */
    const double seconds = m->seconds.p50, gflops = run->model.flops / seconds * 1e-9;
    const double per_cycle = m->cycles_p50 > 0 ? run->model.flops / m->cycles_p50 : 0;
    r->samples = m->seconds.n;
    r->ms_min = 1e3 * m->seconds.min;
    r->ms_mean = 1e3 * m->seconds.mean;
    r->ms_std = 1e3 * m->seconds.std;
    r->ms_p50 = 1e3 * seconds;
    r->ms_p95 = 1e3 * m->seconds.p95;
    r->ms_p99 = 1e3 * m->seconds.p99;
    if (!run->path->device)
        r->pct_running = 100 * running_of(run, m) / threads;
    r->tokens_per_s = (double)(sampled_rows_in_use(&run->plain) / run->p.num_heads_q) / seconds;
    r->gflops = gflops;
    fill_rates(run, jobs, r);
    if (is_divided(run))
        fill_ring(run, r);
    r->peak_rss_bytes = peak_rss();
    if (run->path->device)
        return; /* the CPU's cycles and peaks are not its own */
    const probe_peak *const unit = probe_unit_of(&x->probe, r->kernels);
    r->pct_fma_peak = share_of(&x->probe.best, gflops, per_cycle, threads);
    r->pct_set_peak = share_of(unit, gflops, per_cycle, threads);
    r->pct_avx2_peak = share_of(&x->probe.avx2, gflops, per_cycle, threads);
    r->cycles_p10 = m->cycles_p10;
    r->cycles_p50 = m->cycles_p50;
}

/* This run's share of the time left, or what its case may take if that is less; 0 = there is no
 * limit, negative = the deadline has passed. */
static double time_share(const bench_context *x, const bench_case *c)
{
    if (x->deadline <= 0)
        return c->max_time;
    const double left = x->deadline - clock_seconds();
    const double share = left > 0 ? left / (x->runs_left > 0 ? x->runs_left : 1) : -1;
    return c->max_time > 0 && c->max_time < share ? c->max_time : share;
}

/* A step of decoding finds nothing of a layer's keys in the caches, since those of all other layers
 * came between. Groups of caches are timed so: near 1 ms some would be led in, and others not. */
static int reads_memory(const bench_run *run)
{
    const bench_case *const c = run->c;
    return c->group && c->seq_q <= FEW_ROWS && !c->appends && c->keys.typed;
}

/* A run that borrows tensors is compared with the call of their owner. */
static measure_job call_job(bench_run *run)
{
    const measure_job job = { .call = timed_call,
                              .arg = run,
                              .cold = reads_memory(run),
                              .against = run->owner ? run->job - run->owner->job : 0 };
    return job;
}

static measure_job loop_job(bench_run *run)
{
    const measure_job job = { .call = reading_run,
                              .arg = &run->roof,
                              .cold = reads_memory(run),
                              .against = run->roof_job - run->job };
    reading_choose(&run->roof);
    if (run->roof.threads > 1)
        run->running_before = reading_running(&run->roof);
    return job;
}

static measure_job tile_job(bench_run *run)
{
    const measure_job job = { .call = kernel_loop_run,
                              .arg = &run->tile,
                              .against = run->tile_job - run->job };
    return job;
}

/* Calls and loops in turn, where there are loops. After a call come its kernel loop and the reading
 * loop of the run half of the group away: right after its own call that would find in the last cache
 * what the call had to fetch from memory, and several in a row would slow down the call behind
 * them. */
static int add_jobs(bench_run **runs, int n, measure_job *jobs)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        bench_run *const other = runs[(i + n / 2) % n];
        runs[i]->job = count++;
        if (runs[i]->tile.threads)
            runs[i]->tile_job = count++;
        if (other->roof.threads)
            other->roof_job = count++;
    }
    for (int i = 0; i < n; i++) {
        jobs[runs[i]->job] = call_job(runs[i]);
        if (runs[i]->roof.threads)
            jobs[runs[i]->roof_job] = loop_job(runs[i]);
        if (runs[i]->tile.threads)
            jobs[runs[i]->tile_job] = tile_job(runs[i]);
    }
    return count;
}

static int iterations_of(const bench_run *run)
{
    const bench_case *const c = run->c;
    return run->path->device && c->device_iterations ? c->device_iterations : c->iterations;
}

/* Times the runs whose result has no reason to skip them. */
static void time_them(const bench_context *x, bench_run *runs, int n, bench_result *results)
{
    measure_job jobs[3 * RUN_MAX_GROUP];
    measure_plan plan = { runs->c->warmup, iterations_of(runs), x->min_time, 0 };
    double longest = 0;
    bench_run *timed_runs[RUN_MAX_GROUP];
    int ready = 0;
    for (int i = 0; i < n; i++) {
        if (results[i].skipped[0])
            continue;
        timed_runs[ready++] = &runs[i];
        if (runs[i].path->device)
            continue; /* most of the first call is building kernels */
        if (1e-3 * results[i].cold_ms > longest)
            longest = 1e-3 * results[i].cold_ms;
    }
    if (!ready)
        return;
    const int num_jobs = add_jobs(timed_runs, ready, jobs);
    const double share = time_share(x, runs->c);
    if (share > 0 && plan.min_time > share / DOUBLING)
        plan.min_time = share / DOUBLING;
    plan.min_time *= ready;
    plan.max_time = share * ready;
    if (plan.max_time > 0 && longest * ready > plan.max_time / 4)
        plan.warmup = 0;
    const int timed = plan.max_time >= 0 && measure_in_turn(&plan, jobs, num_jobs);
    for (int i = 0; i < n; i++) {
        bench_result *const r = &results[i];
        if (r->skipped[0])
            continue;
        if (timed)
            fill_result(x, &runs[i], jobs, r);
        else if (plan.max_time < 0)
            skip(r, "the time is up after one call of %.3g ms", r->cold_ms);
        else if (stop_wanted())
            stopped(r);
        else
            skip(r, "a timed call failed");
    }
}

static double *pace_of(bench_context *x, const bench_run *run)
{
    return &x->pace[run->c->seq_q <= FEW_ROWS][path_index(run->path)];
}

static int cold_call(bench_context *x, bench_run *run, bench_result *r)
{
    const int64_t before = peak_rss(); /* inputs and output are written, the workspace is not */
    const double seconds = measure_once(timed_call, run);
    r->cold_ms = 1e3 * seconds;
    if (x->alone)
        r->rss_growth_bytes = peak_rss() - before;
    if (run->model.flops > 0 && !run->path->device) /* there it builds kernels, too */
        *pace_of(x, run) = seconds / run->model.flops;
    if (seconds < 0)
        return stop_wanted() ? stopped(r) : skip(r, "the first call failed");
    if (is_divided(run))
        rings_collect(&run->rings);
    return on_device_fetch(&run->p, &run->device) || skip(r, "reading from the device failed");
}

/* 0 when one call would take more than this run's share of the time, going by the last one. */
static int within_time(bench_context *x, const bench_run *run, bench_result *r)
{
    const double share = time_share(x, run->c), pace = *pace_of(x, run);
    const double expected = pace * run->model.flops;
    if (share < 0)
        return skip(r, "the time is up");
    if (share == 0 || expected <= share)
        return 1;
    if (share == run->c->max_time)
        return skip(r, "one call takes about %.3g s, more than %.3g s (--max-time)", expected,
                    share);
    return skip(r, "the time is up: one call takes about %.3g s, its share is %.3g s", expected,
                share);
}

/* All but the timing; what stands in the way is said in r->skipped. */
static int prepare(bench_context *x, const bench_run *first, bench_run *run, bench_result *r)
{
    model_sizes(run->c, &run->model);
    if (stop_wanted())
        return stopped(r);
    if (!within_memory(x, run, r))
        return 0; /* before anything takes time or memory */
    model_of(run->c, &run->model);
    r->visible = run->model.pairs * 4 / run->model.logits_bytes;
    r->kv_token_bytes = (int64_t)run->model.kv_token_bytes;
    r->kv_bytes = (int64_t)run->model.kv_bytes;
    if (!set_params(x, run, r))
        return 0;
    run->plain = run->p;
    if (!size_up(run, r))
        return 0;
    if (!within_memory(x, run, r) || !within_time(x, run, r))
        return 0;
    return watched(x, RUN_SIZED, run, r) && make_buffers(x, first, run, r) &&
           cold_call(x, run, r) && watched(x, RUN_CALLED, run, r) && verify(run, r);
}

/* Those that borrow tensors before their owner. */
static void release(bench_run *run)
{
    const bench_run *const owner = run->owner;
    if (!owner)
        free(run->q);
    if (!owner || run->o != owner->o)
        free(run->o);
    if (!owner || run->k != owner->k)
        free(run->k);
    if (!owner || run->v != owner->v)
        free(run->v);
    free(run->workspace);
    on_device_free(&run->device);
    keys_free(&run->keys);
    append_free(&run->append);
    gradients_free(&run->gradients);
    dilated_free(&run->dilated);
    rings_free(&run->rings);
    mask_free(&run->mask);
    run->q = run->k = run->v = run->o = run->workspace = NULL;
}

/* Whether phases.h knows the call. */
static int has_phases(const bench_run *run)
{
    return !run->c->appends && !is_dilated(run) && !is_divided(run);
}

/* After the timed calls, so that these are as without. In o there may be what a neighbour in the
 * group wrote: one more call, for the bits to compare with. */
static void add_phases(bench_run *run, bench_result *r)
{
    phase_times t;
    const tensor_sizes bytes = sizes_of(run);
    const int backward = run->c->backward;
    const attn_gradients *const g = &run->gradients.g;
    const phase_call c = { run->p,
                           backward ? g : NULL,
                           run->workspace,
                           run->workspace_bytes,
                           backward ? g->dq.data : run->o,
                           backward ? bytes.q : bytes.o };
    const attn_kernels *const set = run->p.kernels ? run->p.kernels : attn_kernels_find(r->kernels);
    if (run_call(run) || !phases_measure(set, &c, &t)) {
        skip(r, WRONG " or failed call while phases were counted");
        return;
    }
    r->phase_qk_ms = 1e3 * t.qk;
    r->phase_softmax_ms = 1e3 * t.softmax;
    r->phase_pv_ms = 1e3 * t.pv;
    r->phase_merge_ms = 1e3 * t.merge;
    r->phase_rest_ms = 1e3 * t.rest;
    r->phase_clock_ms = 1e3 * t.clock;
}

/* After the timed calls. What the device's own memory can do stands for the reading loop
 * of the CPU. */
static int add_device(bench_context *x, bench_run *run, bench_result *r)
{
    const double share = x->min_time > 0 ? x->min_time : 1;
    if (!on_device_split(run_call, run, &run->device, (int)(1e3 * share / r->ms_p50), r))
        return skip(r, "a call on the device failed");
    if (r->compute_ms > 0)
        r->compute_gflops = 1e-6 * run->model.flops / r->compute_ms;
    r->read_peak_gbytes_per_s = device_copy_rate();
    if (run->c->seq_q <= FEW_ROWS && mask_reads_all(run->c->mask) && r->compute_ms > 0 &&
        r->read_peak_gbytes_per_s > 0)
        r->pct_read_bw =
            100 * run->model.kv_bytes / (1e6 * r->compute_ms) / r->read_peak_gbytes_per_s;
    *pace_of(x, run) = 1e-3 * r->ms_p50 / run->model.flops;
    return 1;
}

void run_group(bench_context *context, const bench_case *cases, int n, const char *path,
               bench_result *results)
{
    bench_run runs[RUN_MAX_GROUP];
    double bytes = 0;
    memset(runs, 0, sizeof runs);
    for (int i = 0; i < n; i++) {
        runs[i].c = &cases[i];
        runs[i].path = path_find(path);
        runs[i].bytes_before = bytes;
        describe(context, &cases[i], runs[i].path, &results[i]);
        if (!runs[i].path->device)
            roof_peaks(context, &results[i]);
        const bench_run *const first = i ? &runs[0] : NULL;
        if (prepare(context, first, &runs[i], &results[i]))
            bytes += run_bytes(&runs[i]);
        else
            release(&runs[i]);
    }
    time_them(context, runs, n, results);
    for (int i = 0; i < n; i++) {
        if (results[i].skipped[0] || stop_wanted())
            continue;
        if (runs[i].path->device)
            add_device(context, &runs[i], &results[i]);
        else if (context->phases && has_phases(&runs[i]))
            add_phases(&runs[i], &results[i]);
    }
    for (int i = n; i-- > 0;)
        release(&runs[i]);
    context->runs_left -= n;
}

/* ---- before anything runs */

#define SHARE_OF_PEAK 0.5
#define SAMPLED 3.0 /* samples that double until they last a time take two to four times as long */
enum { LEAST_SAMPLES = 3 };

static void begin(const bench_context *x, const bench_case *c, const char *path, bench_run *run,
                  bench_result *r)
{
    memset(run, 0, sizeof *run);
    run->c = c;
    run->path = path_find(path);
    describe(x, c, run->path, r);
    model_sizes(c, &run->model);
}

static double call_expected(const bench_context *x, const bench_run *run, int threads)
{
    const char *const own = run->path->kernels ? run->path->kernels : run->c->kernels;
    const char *const set = own ? own : x->kernels ? x->kernels : "";
    const double peak = 1e9 * SHARE_OF_PEAK * probe_unit_of(&x->probe, set)->gflops;
    const double rate = 1e9 * x->probe.read_gbs;
    if (run->path->device || peak <= 0 || rate <= 0)
        return 0;
    return fmax(run->model.flops / (peak * roof_cpus(x, threads)), run->model.kv_bytes / rate);
}

double run_expected(const bench_context *x, const bench_case *c, const char *path)
{
    bench_run run;
    bench_result r;
    begin(x, c, path, &run, &r);
    if (!within_memory(x, &run, &r) || !path_usable(run.path, x->many, r.skipped, sizeof r.skipped))
        return 0;
    model_of(c, &run.model);
    const double call = call_expected(x, &run, (int)r.threads);
    const int samples = iterations_of(&run);
    const double least = fmax(SAMPLED * x->min_time, LEAST_SAMPLES * call);
    const double timed = samples > 0 ? (c->warmup + samples) * call : c->warmup * call + least;
    const double most = c->max_time > 0 ? c->max_time : HUGE_VAL;
    return call > most ? 0 : call + fmin(timed, most);
}

int run_refused(bench_context *x, const bench_case *c, const char *path, char *why, size_t bytes)
{
    bench_run run;
    bench_result r;
    begin(x, c, path, &run, &r);
    const int asked = !run.path->device && within_memory(x, &run, &r) && set_params(x, &run, &r);
    const int refused = asked && explain(&run, &r, why, bytes) != ATTN_OK;
    release(&run);
    return refused;
}

void run_case(bench_context *context, const bench_case *c, const char *path, bench_result *r)
{
    run_group(context, c, 1, path, r);
}
