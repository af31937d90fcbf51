/* memory.c - the memory of a run: how much it may take, its tensors, caches and buffers.
 * SPDX-License-Identifier: MIT */
#include "stages.h"

#include <stdlib.h>
#include <string.h>

#include "../machine/peak.h"

#define GIB 1073741824.0
/* Logits where the memory is not known: 16384 x 16384 of one head. */
#define LOGITS_LIMIT GIB
/* Share of the usable memory that one case may take. */
#define MEMORY_SHARE 0.5

static size_t tensor_bytes(int64_t batch, int64_t heads, int64_t rows, int64_t dim, int dtype)
{
    return (size_t)batch * (size_t)heads * (size_t)rows * case_bytes(dtype, dim);
}

/* Ranks have arrays of their own. */
double run_bytes(const bench_run *run)
{
    return (run_is_divided(run) ? 2 : 1) * run->model.tensor_bytes + keys_cache_bytes(run->c) +
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

int run_within_memory(const bench_context *x, const bench_run *run, bench_result *r)
{
    const double need = run->bytes_before + run_bytes(run);
    const double limit = MEMORY_SHARE * (double)x->machine.memory_usable;
    const double logits = logits_bytes(run, r->threads);
    if (logits > (limit > 0 ? limit : LOGITS_LIMIT))
        return run_skip(r, "logits take %.2f GiB (%.1f GB), the limit is %.2f GiB%s", logits / GIB,
                        logits * 1e-9, (limit > 0 ? limit : LOGITS_LIMIT) / GIB,
                        limit > 0 ? " (half of the usable memory)" : "");
    if (need > (double)(SIZE_MAX / 2))
        return run_skip(r, "needs %.2f GiB, more than an address space of %.2f GiB holds",
                        need / GIB, (double)SIZE_MAX / GIB);
    if (limit > 0 && need > limit)
        return run_skip(r, "needs %.2f GiB, the limit is %.2f GiB (half of the usable memory)",
                        need / GIB, limit / GIB);
    return 1;
}

run_tensor_sizes run_sizes(const bench_run *run)
{
    const bench_case *const c = run->c;
    const attn_params *const p = &run->plain;
    const run_tensor_sizes sizes = {
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
    const size_t bytes = case_bytes(t->dtype, c->keys.shared * dim);
    for (int64_t b = 1; b < c->batch; b++)
        for (int64_t h = 0; h < c->heads_kv; h++) {
            char *const from = (char *)data + case_bytes(t->dtype, h * t->stride_head);
            memcpy(from + case_bytes(t->dtype, b * t->stride_batch), from, bytes);
        }
}

static void *filled(const bench_context *x, const bench_case *c, size_t bytes, int dtype, int which)
{
    void *const data = c->keys.typed ? large_alloc(bytes) : malloc(bytes);
    const int unit = case_unit(dtype);
    if (data)
        data_fill(data, dtype, bytes / case_bytes(dtype, unit) * (size_t)unit, which, c->data,
                  x->seed);
    return data;
}

static void make_keys(const bench_context *x, const run_tensor_sizes *bytes, bench_run *run)
{
    const bench_case *const c = run->c;
    run->k = filled(x, c, bytes->k, run->p.k.dtype, DATA_K);
    run->v = filled(x, c, bytes->v, run->p.v.dtype, DATA_V);
    if (!c->keys.shared || !run->k || !run->v)
        return;
    repeat_shared(c, &run->p.k, run->k, c->head_dim);
    repeat_shared(c, &run->p.v, run->v, c->head_dim_v);
}

/* One array serves K and V. 0 = no memory. */
static int make_scales(bench_run *run)
{
    const bench_case *const c = run->c;
    const size_t rows = (size_t)(c->batch * c->heads_kv * c->seq_kv);
    if (run->p.k.dtype != ATTN_I8 && run->p.v.dtype != ATTN_I8)
        return 1;
    run->scales = malloc(rows * sizeof *run->scales);
    for (size_t i = 0; i < rows && run->scales; i++)
        run->scales[i] = CASE_SCALE;
    run_set_scales(run, run->scales);
    return run->scales != NULL;
}

/* Those of an owner of the same shape, or its own; NULL stays where the system gives no memory. */
static void make_tensors(const bench_context *x, const run_tensor_sizes *bytes, bench_run *run,
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

int run_no_memory(const bench_run *run, bench_result *r)
{
    return run_skip(r, "the system gave no memory: %.2f GiB and a workspace of %.2f GiB",
                    run->model.tensor_bytes / GIB, (double)run->workspace_bytes / GIB);
}

/* And what the forward call writes, which the backward one reads. */
static int make_gradients(const bench_context *x, bench_run *run, bench_result *r)
{
    char why[200];
    if (!gradients_make(&run->p, x->seed, &run->gradients, why, sizeof why))
        return run_skip(r, "%s", why);
    run->plain = run->p;
    return 1;
}

/* Plain arrays, and a cache of them. */
static int make_inputs(const bench_context *x, const bench_run *first, bench_run *run,
                       bench_result *r)
{
    const bench_case *const c = run->c;
    const run_tensor_sizes bytes = run_sizes(run);
    char why[200];
    make_tensors(x, &bytes, run, c->shares && first && first->q ? first : NULL);
    if (!run->q || !run->k || !run->v || !run->o || !make_scales(run))
        return run_no_memory(run, r);
    memset(run->o, 0xff, bytes.o); /* NaN: an element that is not written fails the check */
    run->p.q.data = run->q;
    run->p.k.data = run->k;
    run->p.v.data = run->v;
    run->p.o.data = run->o;
    run->plain = run->p;
    if (c->appends)
        return append_make(c, &run->plain, x->seed, &run->append, why, sizeof why) ||
               run_skip(r, "%s", why);
    if (run_is_dilated(run) && !dilated_make(c, &run->dilated))
        return run_no_memory(run, r);
    if (c->backward)
        return make_gradients(x, run, r);
    if (c->keys.kind == KEYS_PLAIN)
        return 1;
    return (keys_make(c, x->seed, &run->keys, why, sizeof why) &&
            keys_fill(c, &run->plain, &run->keys, why, sizeof why)) ||
           run_skip(r, "%s", why);
}

/* What the call reads: the plain arrays or the cache. */
static int place_keys(bench_context *x, bench_run *run, bench_result *r)
{
    const bench_case *const c = run->c;
    char why[200];
    if (c->keys.kind == KEYS_PLAIN || c->appends)
        return 1;
    if (!run_watched(x, RUN_FILLED, run, r))
        return 0;
    if (!keys_view(c, &run->keys, &run->p, why, sizeof why))
        return run_skip(r, "%s", why);
    return run_size_up(run, r);
}

int run_make_buffers(bench_context *x, const bench_run *first, bench_run *run, bench_result *r)
{
    if (!make_inputs(x, first, run, r) || !place_keys(x, run, r))
        return 0;
    if (run_is_divided(run) && !rings_make(&run->rings, &run->p, run_gradients(run)))
        return run_no_memory(run, r);
    if (!run_watched(x, RUN_DIVIDED, run, r))
        return 0;
    run->workspace = malloc(run_is_divided(run) ? 1 : run->workspace_bytes + 1);
    if (!run->workspace)
        return run_no_memory(run, r);
    const run_tensor_sizes bytes = run_sizes(run);
    const size_t sizes[ON_DEVICE_ARRAYS] = { bytes.q, bytes.k, bytes.v, bytes.o };
    if (run_is_resident(run) && !on_device_place(&run->p, sizes, &run->device))
        return run_skip(r, "the device gave no memory: %.2f GiB", run->model.tensor_bytes / GIB);
    run_set_loops(run, r);
    return 1;
}

void run_release(bench_run *run)
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
    free(run->scales);
    free(run->workspace);
    on_device_free(&run->device);
    keys_free(&run->keys);
    append_free(&run->append);
    gradients_free(&run->gradients);
    dilated_free(&run->dilated);
    rings_free(&run->rings);
    mask_free(&run->mask);
    run->q = run->k = run->v = run->o = run->workspace = NULL;
    run->scales = NULL;
}
