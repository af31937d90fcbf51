/* memory.c - `bench memory`: how memory grows with the length, one fresh process for each point.
 * SPDX-License-Identifier: MIT
 *
 * A point is one process that allocates and writes q, k, v and o, calls once, and tells by how
 * much that call raised its peak resident size; then it compares the result with the oracle and
 * times one more call. Growth = c * length^e is fitted by least squares of the logarithms.
 *
 * Linux counts pages in batches for each CPU: on two CPUs the same call of the tiled path, which
 * touches 0.27 of its 0.37 MiB of workspace, was seen to grow by 0.12 to 0.39 MiB, and by 0.6 in three
 * processes in a row with other work beside them. So growth up to 1 MiB counts as that, and above it a
 * point is the least of three processes. What the tiled exponent can show is that nothing grows into
 * view: four floats a key too many would be 1 MiB at 64K, an exponent of 0.052. --quick ends at 16K,
 * where a matrix of bits would be 32 MiB.
 *
 * Gradients: beside what grows there is as much again that does not, so that the exponent is that
 * of the increments from one length to the next, 1 of a * length + b whatever b is. A call at 64K
 * takes minutes: beyond 16K the workspace is asked for and nothing is called. */
#include "commands.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../attn.h"
#include "../cases/cases.h"
#include "../report/report.h"
#include "../stats.h"

#define MIB 1048576.0
#define SURE_BYTES MIB
#define SURE_EXPONENT 0.01 /* of the library's own figure */

enum { PROCESSES = 3, MAX_LENGTHS = 8, HEAD_DIM = 64 };

typedef struct memory_curve {
    const char *impl;
    int backward;
    double exponent, tolerance; /* expected: of the bytes, backward of their increments */
    int quick[MAX_LENGTHS], whole[MAX_LENGTHS]; /* end with 0 */
} memory_curve;

static const memory_curve curves[] = {
    { "naive", 0, 2, 0.1, { 1024, 2048, 4096, 8192 }, { 1024, 2048, 4096, 8192, 12288 } },
    { "tiled", 0, 0, 0.05, { 1024, 2048, 4096, 8192, 16384 }, { 1024, 4096, 16384, 65536 } },
    { "naive", 1, 2, 0.1, { 1024, 2048, 4096 }, { 1024, 2048, 4096, 8192 } },
    { "tiled", 1, 1, 0.2, { 1024, 2048, 4096, 8192 }, { 2048, 4096, 8192, 16384 } },
};

enum { NUM_CURVES = sizeof curves / sizeof *curves };

double memory_exponent(const double *lengths, const double *growth, int n)
{
    double bytes[MEMORY_MAX_POINTS];
    for (int i = 0; i < n; i++)
        bytes[i] = growth[i] < SURE_BYTES ? SURE_BYTES : growth[i];
    return bench_exponent(lengths, bytes, n);
}

double memory_growth_exponent(const double *lengths, const double *bytes, int n)
{
    double steps[MEMORY_MAX_POINTS], increments[MEMORY_MAX_POINTS];
    for (int i = 1; i < n; i++) {
        steps[i - 1] = lengths[i] - lengths[i - 1];
        increments[i - 1] = bytes[i] > bytes[i - 1] + 1 ? bytes[i] - bytes[i - 1] : 1;
    }
    return bench_exponent(steps, increments, n - 1);
}

static void describe_case(int length, int backward, case_list *list)
{
    char text[64];
    snprintf(text, sizeof text, "1,1,1,%d,%d,%d", length, length, HEAD_DIM);
    list->n = 0;
    shape_case(text, list);
    list->cases[0].preset = "memory";
    list->cases[0].scenario = backward ? "gradients" : "memory";
    list->cases[0].warmup = 0;
    list->cases[0].iterations = 1;
    list->cases[0].backward = backward;
}

/* The process that grew least; one that was skipped ends it, as one that did not grow in view. */
static void take_point(bench_context *x, const bench_case *c, const char *impl, bench_result *r)
{
    fresh_run(x, c, impl, r);
    for (int i = 1; i < PROCESSES && !r->skipped[0]; i++) {
        bench_result again;
        if ((double)r->rss_growth_bytes <= SURE_BYTES)
            return;
        fresh_run(x, c, impl, &again);
        if (again.skipped[0] || again.rss_growth_bytes < r->rss_growth_bytes)
            *r = again;
    }
}

static void say_head(void)
{
    say("1 head of %d, f32, without a mask, one thread; a process for each point\n"
        "growth: of the peak resident size by the first call, over q, k, v and o, backward over "
        "their\ngradients, too; theory: naive its logits, backward twice, tiled its workspace; "
        "share: workspace /\n(seq^2 * 4); for the exponent of a forward call growth up to %.1f MiB "
        "counts as that: pages are\ncounted in batches\n\n",
        HEAD_DIM, SURE_BYTES / MIB);
    say("%-6s %-8s %9s %12s %12s %12s %12s %8s %9s\n", "impl", "pass", "length", "tensors MiB",
        "work MiB", "theory MiB", "growth MiB", "share", "peak MiB");
}

static void say_point(const bench_result *r)
{
    if (r->skipped[0]) {
        report_row(r);
        return;
    }
    bench_model m;
    model_sizes(r->from, &m);
    say("%-6s %-8s %9d %12.3f %12.3f %12.3f %12.3f %8.2g %9.1f\n", r->impl, r->pass, (int)r->seq_q,
        m.tensor_bytes / MIB, (double)r->workspace_bytes / MIB, (double)r->theory_bytes / MIB,
        (double)r->rss_growth_bytes / MIB, r->matrix_share, (double)r->peak_rss_bytes / MIB);
}

/* 1 = within the tolerance. */
static int judge(const memory_curve *c, const char *what, const double *lengths,
                 const double *bytes, int n)
{
    const char *const pass = c->backward ? "backward" : "forward";
    if (n < 3) {
        say("%s %s %s: fewer than 3 points: no exponent\n", c->impl, pass, what);
        return 0;
    }
    const double e = c->backward ? memory_growth_exponent(lengths, bytes, n)
                                 : memory_exponent(lengths, bytes, n);
    const int met = fabs(e - c->exponent) <= c->tolerance;
    say("%s %-8s %-9s grows as length^%.3f, expected %.1f +- %.2f: %s\n", c->impl, pass, what, e,
        c->exponent, c->tolerance, met ? "met" : "NOT MET");
    return met;
}

static int judge_curve(const memory_curve *c, const bench_result *results, int n)
{
    double lengths[MEMORY_MAX_POINTS], growth[MEMORY_MAX_POINTS], workspace[MEMORY_MAX_POINTS];
    int used = 0;
    for (int i = 0; i < n; i++) {
        const bench_result *const r = &results[i];
        if (r->skipped[0] || strcmp(r->impl, c->impl) || (r->gemms > 0) != c->backward)
            continue;
        lengths[used] = (double)r->seq_q;
        growth[used] = (double)r->rss_growth_bytes;
        workspace[used++] = (double)r->workspace_bytes;
    }
    const int met = judge(c, "growth", lengths, growth, used);
    return judge(c, "workspace", lengths, workspace, used) && met;
}

/* ---- what a backward call would ask for at lengths that take too long here */

static double workspace_of(const bench_context *x, int64_t length, int gemms)
{
    float any; /* pointers to data are not read */
    size_t bytes = 0;
    attn_params p = { 0 };
    attn_gradients g = { 0 };
    p.batch = p.num_heads_q = 1;
    p.seq_len_q = p.seq_len_kv = length;
    p.head_dim = HEAD_DIM;
    p.num_workers = 1;
    p.kernels = x->kernels ? attn_kernels_find(x->kernels) : NULL;
    p.q.data = p.k.data = p.v.data = g.dout.data = &any;
    p.o.data = p.stats.data = g.dq.data = g.dk.data = g.dv.data = &any;
    g.gemms = gemms;
    return attn_backward_workspace_size(&p, &g, &bytes) == ATTN_OK ? (double)bytes : 0;
}

/* Exactly linear from the first length on: 1 = it is. */
static int judge_workspace(const bench_context *x, int gemms)
{
    double lengths[5], bytes[5];
    for (int i = 0; i < 5; i++) {
        lengths[i] = 4096 << i;
        bytes[i] = workspace_of(x, 4096 << i, gemms);
    }
    const double e = memory_growth_exponent(lengths, bytes, 5);
    const int met = fabs(e - 1) <= SURE_EXPONENT;
    say("tiled backward with %d products, workspace of 4096 to 65536 tokens: %.2f, %.2f, %.2f, "
        "%.2f, %.2f MiB\n  grows as length^%.3f, expected 1.0 +- %.2f: %s\n",
        gemms, bytes[0] / MIB, bytes[1] / MIB, bytes[2] / MIB, bytes[3] / MIB, bytes[4] / MIB, e,
        SURE_EXPONENT, met ? "met" : "NOT MET");
    return met;
}

int memory_command(bench_context *x, int quick, bench_result *results, int *n)
{
    static case_list list;
    int met = 1;
    *n = 0;
    say_head();
    for (int c = 0; c < NUM_CURVES; c++) {
        const int *const lengths = quick ? curves[c].quick : curves[c].whole;
        for (int i = 0; i < MAX_LENGTHS && lengths[i] && !stop_wanted(); i++) {
            describe_case(lengths[i], curves[c].backward, &list);
            take_point(x, &list.cases[0], curves[c].impl, &results[*n]);
            say_point(&results[(*n)++]);
            stop_step(x);
        }
    }
    say("\n");
    if (stop_wanted())
        return say("%s: the points above are all\n", stop_cause()), stop_status();
    for (int c = 0; c < NUM_CURVES; c++)
        met &= judge_curve(&curves[c], results, *n);
    for (int gemms = 5; gemms <= 7; gemms += 2)
        met &= judge_workspace(x, gemms);
    return !met;
}
