/* plant.c - faults on purpose, which the bench must notice: a slow kernel, a wrong one.
 * SPDX-License-Identifier: MIT
 *
 * Slow: Q K^T writes its logits anew at each call and reads none, so that it can be repeated
 * without a change of the result; exponentials and memory requests beside it are not repeated. A
 * repeated product finds its keys in the cache and is cheaper than the first, so how many to repeat
 * is measured: a repetition of every second one first, then corrected up to three times. */
#include "plant.h"

#include "../../attn_simd.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../report/report.h"

#define SAMPLES_SECONDS 0.2
#define GOOD_ENOUGH 1.0 /* percent points */
#define FIRST_RATE 0.5  /* about right where arithmetic is the roof */

enum { CORRECTIONS = 3, MAX_KNOWN = 64 };

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

static void wrong_gradient(float *s, float *dp, int n, const float *lse2, const float *delta)
{
    origin->gradient(s, dp, n, lse2, delta);
    dp[0] = 7;
}

const attn_kernels *plant_wrong(const attn_kernels *right, const char *product)
{
    planted = *(origin = right);
    if (!strcmp(product, "qk"))
        planted.qk = wrong_qk;
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

/* ---- slow */

static int repetitions(void)
{
    owed += rate;
    const int whole = (int)owed;
    owed -= whole;
    return whole;
}

/* Without what is beside it. */
static attn_product alone(const attn_product *p)
{
    attn_product again = *p;
    again.beside = NULL;
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

const attn_kernels *plant_slow(const attn_kernels *right)
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

double plant_calibrate(double percent, const char *name, const char *impl, measure_fn call,
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
