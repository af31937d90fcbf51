/* threads.c - any number of workers in any order gives the same bits.
 * SPDX-License-Identifier: MIT
 *
 * The pool of tests/pool.c hands out the indices in ascending, descending and random order to POSIX
 * threads, all at once. Bits are compared with those of a plain loop. `make check` runs this group
 * under ThreadSanitizer. Checks are made by the main thread only.
 */
#include "pool.h"
#include "system.h"
#include "test.h"

#include <string.h>

/* ---- calls ----------------------------------------------------------------------------------- */

typedef struct kind {
    const char *name;
    int64_t batch, heads, kv_heads, seq_q, seq_kv, dim;
    int impl, naive_whole, causal, with_logits, partial;
    int64_t shared; /* keys that are the same in all batch entries, and told so */
} kind;

static const kind kinds[] = {
    { "prefill", 2, 4, 2, 100, 130, 32, ATTN_IMPL_TILED, 0, 0, 0, 0, 0 },
    { "causal with logits", 1, 3, 3, 67, 67, 16, ATTN_IMPL_TILED, 0, 1, 1, 0, 0 },
    { "decode over chunks", 1, 8, 2, 1, 2500, 16, ATTN_IMPL_TILED, 0, 1, 0, 0, 0 },
    { "one head inside a chunk", 1, 4, 1, 1, 1000, 72, ATTN_IMPL_TILED, 0, 0, 0, 0, 0 },
    { "one head by chunks and inside", 1, 3, 1, 2, 3500, 40, ATTN_IMPL_TILED, 0, 1, 0, 0, 0 },
    { "three heads by parts, raw states", 1, 3, 3, 2, 5000, 16, ATTN_IMPL_TILED, 0, 1, 0, 1, 0 },
    { "decode of a batch", 5, 2, 1, 1, 300, 24, ATTN_IMPL_TILED, 0, 0, 0, 0, 0 },
    { "shared prefix", 12, 12, 4, 2, 1200, 8, ATTN_IMPL_TILED, 0, 1, 0, 0, 1070 },
    { "raw states", 2, 2, 1, 40, 1100, 8, ATTN_IMPL_TILED, 0, 0, 0, 1, 0 },
    { "naive", 2, 4, 2, 50, 90, 16, ATTN_IMPL_NAIVE, 0, 1, 1, 0, 0 },
    { "naive, whole", 2, 4, 2, 50, 90, 16, ATTN_IMPL_NAIVE, 1, 1, 0, 0, 0 },
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* All outputs in one block, so that one comparison sees them. */
typedef struct result {
    unsigned char *bytes;
    size_t size;
} result;

static float *numbers(int64_t count)
{
    float *x = test_alloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = 2.0f * rng_normal();
    return x;
}

/* The first k->shared keys of every [batch, head, seq, dim] entry become those of entry 0. */
static float *with_shared_keys(const kind *k, float *x)
{
    const int64_t entry = k->kv_heads * k->seq_kv * k->dim;
    for (int64_t b = 1; b < k->batch; b++)
        for (int64_t h = 0; h < k->kv_heads; h++)
            memcpy(x + b * entry + h * k->seq_kv * k->dim, x + h * k->seq_kv * k->dim,
                   (size_t)(k->shared * k->dim) * sizeof *x);
    return x;
}

static attn_params make_call(const kind *k)
{
    attn_params p = { 0 };
    p.batch = k->batch;
    p.num_heads_q = k->heads;
    p.num_heads_kv = k->kv_heads;
    p.seq_len_q = k->seq_q;
    p.seq_len_kv = k->seq_kv;
    p.head_dim = k->dim;
    p.q.data = numbers(k->batch * k->heads * k->seq_q * k->dim);
    p.k.data = with_shared_keys(k, numbers(k->batch * k->kv_heads * k->seq_kv * k->dim));
    p.v.data = with_shared_keys(k, numbers(k->batch * k->kv_heads * k->seq_kv * k->dim));
    p.shared_keys = k->shared;
    p.impl = k->impl;
    p.naive_whole = k->naive_whole;
    p.causal = k->causal;
    p.partial = k->partial;
    p.tuning = "attn-tuning 1 split_work 1 end"; /* little work is divided, too */
    p.logits.stage = ATTN_LOGITS_SOFTMAX;
    return test_params(&p);
}

static result give_outputs(const kind *k, attn_params *p)
{
    const size_t rows = (size_t)(k->batch * k->heads * k->seq_q), size = sizeof(float);
    const size_t o = rows * (size_t)k->dim * size, lse = rows * size;
    const size_t logits = k->with_logits ? rows * (size_t)k->seq_kv * size : 0;
    result r;
    r.size = o + 3 * lse + logits;
    r.bytes = memset(test_alloc_at(r.size, PLACE_PAGE_AFTER), 0x11, r.size);
    if (k->partial) {
        p->state.o = (float *)(void *)r.bytes;
        p->state.m = (float *)(void *)(r.bytes + o);
        p->state.l = (float *)(void *)(r.bytes + o + lse);
    } else {
        p->o.data = r.bytes;
        p->lse.data = r.bytes + o;
        p->stats.data = r.bytes + o + lse;
    }
    p->logits.data = logits > 0 ? (float *)(void *)(r.bytes + o + 3 * lse) : NULL;
    return r;
}

static attn_status run(const attn_params *p)
{
    size_t need = 0;
    const attn_status status = attn_workspace_size(p, &need);
    return status == ATTN_OK ? attn_forward(p, test_alloc(need), need) : status;
}

static int plain_loop(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++)
        task(arg, i, 0);
    return 0;
}

/* The same call in a plain loop with one worker. */
static result run_serial(const kind *k, attn_params p)
{
    const result r = give_outputs(k, &p);
    p.num_workers = 1;
    p.parallel_for = plain_loop;
    CHECK(run(&p) == ATTN_OK, "%s: the plain loop failed", k->name);
    return r;
}

static void check_same(const char *what, const result *a, const result *b)
{
    size_t i = 0;
    while (i < a->size && a->bytes[i] == b->bytes[i])
        i++;
    CHECK(i == a->size, "%s: byte %lu of the outputs differs", what, (unsigned long)i);
}

/* ---- parallel loops that fail ---------------------------------------------------------------- */

static int fail_at_once(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user, (void)n, (void)task, (void)arg;
    return 1;
}

static int fail_at_the_end(void *user, int64_t n, attn_task_fn task, void *arg)
{
    plain_loop(user, n, task, arg);
    return -7;
}

/* Gives every index to the worker *user. */
static int one_worker(void *user, int64_t n, attn_task_fn task, void *arg)
{
    for (int64_t i = 0; i < n; i++)
        task(arg, i, *(const int *)user);
    return 0;
}

/* Whether more than one of the workers has something to do. */
static int has_items_for(attn_params p, int workers)
{
    attn_info info;
    p.num_workers = workers;
    p.parallel_for = plain_loop;
    p = test_params(&p);
    CHECK(attn_explain(&p, &info) == ATTN_OK, "attn_explain");
    return info.workers > 1;
}

/* A worker number out of range is an error, or, where the library goes by the index, no matter. */
static void check_failures(void)
{
    int refused = 0;
    static const int wrong[] = { 3, 4, 100, 0x7fffffff, -1, -0x7fffffff };
    for (int n = 0; n < KINDS; n++) {
        attn_params p;
        result serial, r;
        if (!begin_case("%s: a parallel loop that fails", kinds[n].name))
            continue;
        p = make_call(&kinds[n]);
        if (T.fast && !has_items_for(p, 3)) /* Kernels that round divide no chunk. */
            continue;
        serial = run_serial(&kinds[n], p);
        r = give_outputs(&kinds[n], &p);
        p.num_workers = 3;
        p.parallel_for = fail_at_once;
        CHECK(run(&p) == ATTN_ERR_CALLBACK, "a loop that ran nothing");
        p.parallel_for = fail_at_the_end;
        CHECK(run(&p) == ATTN_ERR_CALLBACK, "a loop that ran all and failed");
        p.parallel_for = one_worker;
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            int worker = wrong[i];
            attn_status status;
            p.parallel_user = &worker;
            status = run(&p);
            refused += status == ATTN_ERR_CALLBACK;
            if (status != ATTN_OK) {
                CHECK(status == ATTN_ERR_CALLBACK, "worker %d of 3: '%s'", worker,
                      attn_status_string(status));
                continue;
            }
            check_same("a worker that does not exist", &serial, &r);
        }
        CHECK(test_margins() == 0, "written outside");
    }
    CHECK(refused > 0 || !all_cases_run(), "no worker that does not exist was ever refused");
}

/* Indices may all fall to one worker, whichever. */
static void check_one_worker(void)
{
    for (int n = 0; n < KINDS; n++) {
        attn_params p;
        result serial;
        if (!begin_case("%s: all work on one worker of 5", kinds[n].name))
            continue;
        p = make_call(&kinds[n]);
        serial = run_serial(&kinds[n], p);
        p.num_workers = 5;
        p.parallel_for = one_worker;
        for (int worker = 0; worker < 5; worker++) {
            const result r = give_outputs(&kinds[n], &p);
            p.parallel_user = &worker;
            CHECK(run(&p) == ATTN_OK, "worker %d failed", worker);
            check_same("one worker", &serial, &r);
        }
    }
}

#if HAVE_THREADS

/* ---- workers and orders ---------------------------------------------------------------------- */

static void check_orders(const kind *k)
{
    static const int workers[] = { 1, 2, 3, 7 };
    attn_params p = make_call(k);
    const result serial = run_serial(k, p);
    for (size_t w = 0; w < sizeof workers / sizeof *workers; w++)
        for (int order = 0; order < POOL_ORDERS; order++) {
            const result r = give_outputs(k, &p);
            pool threads = pool_of(workers[w], order, 1);
            p.num_workers = workers[w];
            p.parallel_for = pool_for;
            p.parallel_user = &threads;
            CHECK(run(&p) == ATTN_OK, "%s, %d workers failed", k->name, workers[w]);
            CHECK(threads.wrong == 0, "%s: an index did not run once", k->name);
            check_same(k->name, &serial, &r);
        }
}

/* A workspace for fewer workers than the pool has: same bits, nothing beyond it. */
static void check_small_workspace(const kind *k)
{
    attn_params p = make_call(k);
    const result serial = run_serial(k, p);
    attn_info one, all;
    pool threads = pool_of(7, POOL_SHUFFLED, 1);
    p.parallel_for = pool_for;
    p.parallel_user = &threads;
    give_outputs(k, &p);
    p.num_workers = 1;
    CHECK(attn_explain(&p, &one) == ATTN_OK, "attn_explain failed");
    p.num_workers = 7;
    CHECK(attn_explain(&p, &all) == ATTN_OK, "attn_explain failed");
    CHECK(all.workers == 1 || all.workspace_bytes > one.workspace_bytes,
          "%d workers need no more than one", all.workers);
    for (int part = 0; part <= 6; part++) {
        const size_t more = all.workspace_bytes - one.workspace_bytes;
        const size_t bytes = one.workspace_bytes + more * (size_t)part / 6;
        const result r = give_outputs(k, &p);
        CHECK(attn_forward(&p, test_alloc(bytes), bytes) == ATTN_OK, "%s: %lu bytes of %lu..%lu",
              k->name, (unsigned long)bytes, (unsigned long)one.workspace_bytes,
              (unsigned long)all.workspace_bytes);
        CHECK(test_margins() == 0, "%s: written beyond %lu bytes", k->name, (unsigned long)bytes);
        check_same(k->name, &serial, &r);
    }
}

/* ---- calls at the same time ------------------------------------------------------------------ */

enum { CALLERS = 6, REPEATS = 3 };

typedef struct caller {
    attn_params p;
    void *workspace;
    size_t bytes;
    attn_status status;
    pthread_t id;
} caller;

static void *call_often(void *of)
{
    caller *c = of;
    for (int i = 0; i < REPEATS && c->status == ATTN_OK; i++) {
        attn_info info;
        char text[60];
        size_t need = 0;
        c->status = attn_workspace_size(&c->p, &need);
        if (c->status == ATTN_OK)
            c->status = attn_explain(&c->p, &info);
        attn_check(&c->p, c->workspace, c->bytes, text, sizeof text);
        if (c->status == ATTN_OK)
            c->status = attn_forward(&c->p, c->workspace, c->bytes);
    }
    return NULL;
}

/* Inputs shared, outputs and workspaces of their own. */
static void check_concurrent(const kind *k)
{
    caller callers[CALLERS];
    result results[CALLERS];
    attn_params p = make_call(k);
    const result serial = run_serial(k, p);
    int started = 0;
    memset(callers, 0, sizeof callers);
    p.num_workers = 1;
    p.parallel_for = plain_loop;
    for (int i = 0; i < CALLERS; i++) {
        caller *c = &callers[i];
        c->p = p;
        results[i] = give_outputs(k, &c->p);
        CHECK(attn_workspace_size(&c->p, &c->bytes) == ATTN_OK, "attn_workspace_size failed");
        c->workspace = test_alloc(c->bytes);
    }
    while (started < CALLERS &&
           pthread_create(&callers[started].id, NULL, call_often, &callers[started]) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(callers[i].id, NULL);
    CHECK(started == CALLERS, "only %d threads could be started", started);
    for (int i = 0; i < started; i++) {
        CHECK(callers[i].status == ATTN_OK, "caller %d: '%s'", i,
              attn_status_string(callers[i].status));
        check_same(k->name, &serial, &results[i]);
    }
}

static void check_pools(void)
{
    for (int n = 0; n < KINDS; n++) {
        if (begin_case("%s: workers and orders", kinds[n].name))
            check_orders(&kinds[n]);
        if (begin_case("%s: workspaces for fewer workers", kinds[n].name))
            check_small_workspace(&kinds[n]);
        if (begin_case("%s: calls at the same time", kinds[n].name))
            check_concurrent(&kinds[n]);
    }
}

#else

static void check_pools(void)
{
    SKIP("no POSIX threads here");
}

#endif

TEST_GROUP(threads, RUN_ROUNDED_TOO, "any number of workers in any order gives the same bits")
{
    check_pools();
    check_one_worker();
    check_failures();
}
