/* plant.c - faults on purpose, which the bench must notice: a slow kernel, a wrong one, wrong keys,
 * branches and results.
 * SPDX-License-Identifier: MIT
 *
 * Slow: Q K^T writes its logits anew at each call and reads none, so that it can be repeated
 * without a change of the result; memory requests beside it are not repeated. A repeated product
 * finds its keys in the cache and is cheaper than the first, so how many to repeat is measured: a
 * repetition of every second one first, then corrected up to three times. */
#include "plant.h"

#include "../../attn_simd.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "../../bench/measure.h"
#include "../../bench/report/report.h"

#define SAMPLES_SECONDS 0.2
#define GOOD_ENOUGH 1.0 /* percent points */
#define FIRST_RATE 0.5  /* about right where arithmetic is the roof */

enum { CORRECTIONS = 3, MAX_KNOWN = 64 };

plant_faults faults;

static attn_kernels planted;
static const attn_kernels *origin;
static double rate, owed; /* repetitions of each product; of those before that are still to come */

static struct {
    char name[64];
    double rate, slower;
} known[MAX_KNOWN];

static int num_known;

/* ---- wrong */

static void wrong_qk(const attn_product *p)
{
    origin->qk(p);
    p->to[p->lanes.begin] = 7;
}

static void wrong_qk_units(const attn_product *p)
{
    origin->qk_units(p);
    p->to[p->lanes.begin] = 7;
}

static void wrong_pv(const attn_product *p)
{
    origin->pv(p);
    p->to[p->lanes.begin] = 7;
}

static void wrong_outer(const attn_outer *f)
{
    origin->outer(f);
    f->to[0] = 7;
}

static void wrong_gradient(float *s, float *dp, int n, const attn_row_stats *of)
{
    origin->gradient(s, dp, n, of);
    dp[0] = 7;
}

/* A copy of a kernel set whose kernel of that name makes the first number of its result 7; NULL = no
 * such kernel. */
static const attn_kernels *plant_wrong(const attn_kernels *right, const char *product)
{
    planted = *(origin = right);
    if (!strcmp(product, "qk"))
        planted.qk = wrong_qk;
    else if (!strcmp(product, "qk_units"))
        planted.qk_units = wrong_qk_units;
    else if (!strcmp(product, "pv"))
        planted.pv = wrong_pv;
    else if (!strcmp(product, "outer"))
        planted.outer = wrong_outer;
    else if (!strcmp(product, "gradient"))
        planted.gradient = wrong_gradient;
    else
        return NULL;
    return &planted;
}

int plant_knows(const char *product)
{
    return plant_wrong(attn_kernels_get(0), product) != NULL;
}

/* ---- slow */

static int repetitions(void)
{
    owed += rate;
    const int whole = (int)owed;
    owed -= whole;
    return whole;
}

/* Without asking ahead again. */
static attn_product alone(const attn_product *p)
{
    attn_product again = *p;
    again.ahead = NULL;
    return again;
}

static void slow_qk(const attn_product *p)
{
    origin->qk(p);
    const attn_product again = alone(p);
    for (int i = repetitions(); i > 0; i--)
        origin->qk(&again);
}

static void slow_qk_runs(const attn_product *p)
{
    origin->qk_runs(p);
    const attn_product again = alone(p);
    for (int i = repetitions(); i > 0; i--)
        origin->qk_runs(&again);
}

/* A copy of a kernel set that repeats some of its products Q K^T; none yet. For one thread. */
static const attn_kernels *plant_slow(const attn_kernels *right)
{
    planted = *(origin = right);
    planted.qk = slow_qk;
    if (planted.qk_runs)
        planted.qk_runs = slow_qk_runs;
    rate = owed = 0;
    return &planted;
}

typedef struct trial {
    measure_fn call;
    void *arg;
    double rate;
} trial;

static int call_at_rate(void *arg)
{
    const trial *const t = arg;
    rate = t->rate;
    return t->call(t->arg);
}

/* Percent by which calls with that many repetitions take more cycles than those with none, measured
 * in turn; as in baseline.c the 10 % quantile. Below 0 when there is no clock or a call failed. */
static double slower_at(double repeated, measure_fn call, void *arg)
{
    const measure_plan plan = { 1, 0, SAMPLES_SECONDS, 0 };
    trial plain = { call, arg, 0 }, slow = { call, arg, repeated };
    measure_job jobs[] = { { .call = call_at_rate, .arg = &plain },
                           { .call = call_at_rate, .arg = &slow } };
    if (!measure_in_turn(&plan, jobs, 2) || jobs[0].result.cycles_p10 <= 0)
        return -1;
    const double slower = jobs[1].result.cycles_p10 / jobs[0].result.cycles_p10 - 1;
    return slower > 0 ? 100 * slower : 0;
}

static int find_known(const char *name)
{
    int i = 0;
    while (i < num_known && strcmp(known[i].name, name))
        i++;
    return i;
}

/* Returns the percent of clock cycles that the call takes more now, and says so; negative = it
 * failed. A case that was calibrated before, by its name and implementation, is not again. */
static double plant_calibrate(double percent, const char *name, const char *impl, measure_fn call,
                              void *arg)
{
    char key[64];
    snprintf(key, sizeof key, "%.47s %.14s", name, impl);
    const int i = find_known(key);
    double tried = FIRST_RATE, slower = -1;
    if (i < num_known) {
        rate = known[i].rate;
        return known[i].slower;
    }
    for (int c = 0; c <= CORRECTIONS && fabs(slower - percent) > GOOD_ENOUGH; c++) {
        if (slower > 1)
            tried *= percent / slower;
        slower = slower_at(tried, call, arg);
    }
    rate = tried;
    say("planted: %s takes %.1f %% longer, measured in turn\n", key, slower);
    if (i == MAX_KNOWN)
        return slower;
    memcpy(known[i].name, key, sizeof key);
    known[i].rate = rate;
    known[i].slower = slower;
    num_known++;
    return slower;
}

/* ---- elsewhere than in a kernel */

static void plant_branches(dilated_job *job)
{
    job->branches[0].segment += faults.branches == DILATED_LENGTH;
    job->branches[0].dilation += faults.branches == DILATED_STEP;
    job->branches[0].rotate ^= faults.branches == DILATED_HEADS;
    job->d.merge ^= faults.branches == DILATED_MERGE;
}

static void plant_pages(keys_store *s)
{
    int32_t *const table = s->cache.table;
    if (!table || faults.pages == KEYS_RIGHT)
        return;
    const int64_t last = s->cache.capacity / s->cache.page_size - 1;
    const int32_t moved = table[last];
    table[last] = table[0];
    if (faults.pages == KEYS_SWAPPED)
        table[0] = moved;
}

/* The first rank has the keys of the last one; of processes the last one has other keys. */
static void plant_ranks(const rings_job *job)
{
    size_t own, other;
    if (job->transport) {
        void *const keys = rings_keys(job, job->transport->rank, &own);
        memset(keys, 0, job->transport->rank == job->num_ranks - 1 ? own : 0);
        return;
    }
    void *const first = rings_keys(job, 0, &own);
    void *const last = rings_keys(job, job->num_ranks - 1, &other);
    memmove(first, last, own < other ? own : other);
}

/* Adds 1 to a number, the first of its unit: far beyond any tolerance. A byte of i8, which
 * attn_convert does not take, moves towards 0 or across it, so that it stays a byte. */
static void add_one(char *place, int dtype)
{
    float x[32];
    const size_t unit = (size_t)case_unit(dtype);
    const int steps = (int)(1 / CASE_SCALE + 0.5f);
    if (dtype == ATTN_I8) {
        *(int8_t *)place = (int8_t)(*(int8_t *)place + (*(int8_t *)place > 0 ? -steps : steps));
        return;
    }
    attn_convert(x, ATTN_F32, place, dtype, unit);
    x[0] += 1;
    attn_convert(place, dtype, x, ATTN_F32, unit);
}

/* A row of dq, dk, dv, or a number of dbias or dsinks, counted from 1 as they lie in memory, one
 * array after the other. */
static void spoil_gradient(const gradients_job *job, const attn_params *p, int64_t row)
{
    const bench_case *const c = job->c;
    const attn_gradients *const g = &job->g;
    const int64_t rows = c->batch * c->heads_q * c->seq_q;
    const int64_t keys = c->batch * c->heads_kv * c->seq_kv;
    const struct {
        char *data;
        int64_t rows, dim;
        int dtype;
    } outputs[] = { { g->dq.data, rows, p->head_dim, c->dtype },
                    { g->dk.data, keys, p->head_dim, c->dtype },
                    { g->dv.data, keys, p->head_dim_v, c->dtype },
                    { (char *)g->dbias.data, g->dbias.data ? c->seq_q * c->seq_kv : 0, 1,
                      ATTN_F32 },
                    { (char *)g->dsinks, c->heads_q, 1, ATTN_F32 } };
    int i = 0;
    for (row--; row >= outputs[i].rows; i++)
        row -= outputs[i].rows;
    add_one(outputs[i].data + row * outputs[i].dim * (int64_t)case_bytes(outputs[i].dtype, 1),
            outputs[i].dtype);
}

static void spoil(bench_run *run)
{
    const int appends = run->c->appends;
    if (faults.spoil < 0) {
        *(unsigned char *)run->o ^= 1; /* little-endian; else a bit that counts more */
        return;
    }
    if (run->c->backward) {
        spoil_gradient(&run->gradients, &run->p, faults.spoil);
        return;
    }
    const int dtype = appends ? run->append.store.cache.k.dtype : run->c->dtype;
    const int64_t dim = appends ? run->c->head_dim : run->c->head_dim_v;
    char *const data = appends ? run->append.store.cache.k.data : run->o;
    add_one(data + (faults.spoil - 1) * (int64_t)case_bytes(dtype, dim), dtype);
}

/* ---- when */

static int in_kernels(const bench_run *run)
{
    return !run->c->appends && !run->path->device;
}

static void plant_kernels(bench_run *run)
{
    const attn_kernels *const right = attn_kernels_find(run->info.kernels_name);
    if (faults.wrong)
        run->p.kernels = plant_wrong(right, faults.wrong);
    else if (faults.slowdown > 0)
        run->p.kernels = plant_slow(right);
}

int plant_watch(run_stage stage, bench_run *run, bench_result *r)
{
    if ((stage == RUN_CALLED || stage == RUN_STEP) && faults.interrupt && !--faults.interrupt)
        for (int n = 0; n <= faults.again; n++)
            raise(faults.signal);
    if (stage == RUN_STEP)
        return 1;
    if (stage == RUN_DESCRIBED)
        plant_branches(&run->dilated);
    if (faults.slowdown > 0 && (run->c->group || r->threads > 1))
        return 0; /* it is measured for a call that is timed alone, on one thread */
    if (stage == RUN_SIZED && in_kernels(run))
        plant_kernels(run);
    if (stage == RUN_FILLED)
        plant_pages(&run->keys);
    if (stage == RUN_DIVIDED && faults.scores)
        run->p.integer = 0;
    if (stage == RUN_DIVIDED && run->rings.num_ranks && faults.ranks)
        plant_ranks(&run->rings);
    if (stage == RUN_CALLED && faults.slowdown > 0 && !run->path->device &&
        plant_calibrate(faults.slowdown, r->name, r->impl, run_call, run) < 0)
        return 0;
    if (stage == RUN_CALLED && faults.spoil)
        spoil(run);
    return 1;
}
