/* kernels.c - times the single kernels of the sets, each checked against the portable set first.
 * SPDX-License-Identifier: MIT */
#include "commands.h"

#include <stdio.h>
#include <string.h>

#include "../../tests/kernel_tiles.h"
#include "../measure.h"
#include "../report/report.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum { WARMUP = 5, GROUP_ROWS = 96 };

/* What one kernel of one set did. Values that a kernel does not have are 0. */
typedef struct kernel_result {
    const char *set, *kernel;
    int64_t rows, keys, head_dim;
    double cycles, cycles_per_element, pct_fma_peak, ns_per_exp, cycles_per_exp, bytes_per_cycle;
    int wrong; /* differs from the portable set or wrote nothing: not timed */
} kernel_result;

/* Tiles that a call sums over at once. */
static int group_of(int rows)
{
    const int group = GROUP_ROWS / rows;
    return group < 1 ? 1 : group > KERNEL_MOST_GROUP ? KERNEL_MOST_GROUP : group;
}

/* Of the lanes that were asked for. */
static void fill_result(const probe_peak *peak, int i, attn_lanes lanes, const measure_result *m,
                        kernel_result *r)
{
    const double other = (double)(kernel_entries[i].per_key ? r->head_dim : r->keys);
    const double tiles = kernel_entries[i].work == PRODUCTS ? group_of((int)r->rows) : 1;
    const double elements = tiles * (double)(lanes.end - lanes.begin) *
                            (double)(kernel_entries[i].per_key ? r->keys : r->head_dim);
    const double amount = kernel_entries[i].amount * elements;
    r->cycles = m->cycles_p50;
    r->cycles_per_element = m->cycles_p50 / elements;
    if (kernel_entries[i].work == EXPONENTIAL) {
        r->ns_per_exp = 1e9 * m->seconds.p50 / amount;
        r->cycles_per_exp = m->cycles_p50 / amount;
    } else if (kernel_entries[i].work == BYTES) {
        r->bytes_per_cycle = m->cycles_p50 > 0 ? amount / m->cycles_p50 : 0;
    } else if (m->cycles_p50 > 0 && peak->flops_per_cycle > 0) {
        r->pct_fma_peak = 100 * 2 * other * amount / m->cycles_p50 / peak->flops_per_cycle;
    } else if (peak->gflops > 0) {
        r->pct_fma_peak = 100 * 2e-9 * other * amount / m->seconds.p50 / peak->gflops;
    }
}

static int time_kernel(const bench_context *x, const attn_kernels *set, int i, kernel_result *r)
{
    const measure_plan plan = { WARMUP, x->kernel_samples, 0, 0 };
    const int group = kernel_entries[i].work == PRODUCTS ? group_of(set->rows) : 1;
    kernel_job job;
    measure_result m;
    if (!kernel_job_make(&job, set, i, r->head_dim, group))
        return 0;
    const int timed = measure(&plan, kernel_job_call, &job, &m);
    if (timed)
        fill_result(probe_unit_of(&x->probe, r->set), i, job.lanes, &m, r);
    kernel_job_free(&job);
    return timed;
}

/* Checks entry i of a set, then times it; 0 = no memory. */
static int measure_kernel(const bench_context *x, const attn_kernels *set, int64_t head_dim, int i,
                          kernel_result *r)
{
    const int right = kernel_check(set, i, head_dim, 0);
    const kernel_result start = { .set = attn_kernels_name(set),
                                  .kernel = kernel_entries[i].name,
                                  .rows = set->rows,
                                  .keys = KERNEL_KEYS,
                                  .head_dim = head_dim,
                                  .wrong = right == 0 };
    *r = start;
    return right == 0 || (right == 1 && time_kernel(x, set, i, r));
}

/* ---- the command */

/* The columns of a row, for the table and for CSV. */
static const struct {
    const char *key, *title;
    size_t offset;
    int decimals;
} columns[] = {
    { "cycles", "cycles/call", offsetof(kernel_result, cycles), 0 },
    { "cycles_per_element", "cyc/element", offsetof(kernel_result, cycles_per_element), 3 },
    { "pct_fma_peak", "%peak", offsetof(kernel_result, pct_fma_peak), 1 },
    { "ns_per_exp", "ns/exp", offsetof(kernel_result, ns_per_exp), 3 },
    { "cycles_per_exp", "cyc/exp", offsetof(kernel_result, cycles_per_exp), 3 },
    { "bytes_per_cycle", "bytes/cyc", offsetof(kernel_result, bytes_per_cycle), 1 },
};

static double column_value(const kernel_result *r, int c)
{
    double x;
    memcpy(&x, (const char *)r + columns[c].offset, sizeof x);
    return x;
}

static void say_head(int samples)
{
    say("medians of %d samples; tiles of %d keys in L1 and L2; element: of the result (rows x keys "
        "or\n  rows x head_dim); %%peak: of the FMA peak of the set's vector unit, in cycles\n"
        "_lanes: the upper half of the lanes; _units: of queries and keys in whole numbers\n"
        "tile: logits, maxima, exponentials and values of all keys, %%peak of its products; the "
        "last\n  five are of gradients: outer sums over the rows of as many tiles as a call "
        "does, its elements\n  are those of x\n\n",
        samples, KERNEL_KEYS);
    say("%-15s %4s %5s %-16s", "set", "rows", "dim", "kernel");
    for (int c = 0; c < LENGTH(columns); c++)
        say(" %11s", columns[c].title);
    say("\n");
}

static void say_result(const kernel_result *r)
{
    say("%-15s %4d %5d %-16s", r->set, (int)r->rows, (int)r->head_dim, r->kernel);
    for (int c = 0; c < LENGTH(columns) && !r->wrong; c++) {
        const double x = column_value(r, c);
        if (x > 0)
            say(" %11.*f", columns[c].decimals, x);
        else
            say(" %11s", "");
    }
    say("%s\n", r->wrong ? " WRONG: differs from the portable set, not timed" : "");
}

static void write_head(FILE *f)
{
    fputs("set,rows,keys,head_dim,kernel", f);
    for (int c = 0; c < LENGTH(columns); c++)
        fprintf(f, ",%s", columns[c].key);
    putc('\n', f);
}

static void write_result(FILE *f, const kernel_result *r)
{
    fprintf(f, "\"%s\",%d,%d,%d,\"%s\"", r->set, (int)r->rows, (int)r->keys, (int)r->head_dim,
            r->kernel);
    for (int c = 0; c < LENGTH(columns); c++)
        fprintf(f, ",%.9g", column_value(r, c));
    putc('\n', f);
}

/* All entries of a set; returns how many were wrong or could not be measured. */
static int run_set(const bench_context *x, const attn_kernels *set, int64_t head_dim, FILE *csv)
{
    int bad = 0;
    for (int i = 0; i < num_kernel_entries && !stop_wanted(); i++) {
        kernel_result r;
        if (!measure_kernel(x, set, head_dim, i, &r)) {
            say("%s: no memory for tiles of head_dim %d\n", attn_kernels_name(set), (int)head_dim);
            return bad + 1;
        }
        bad += r.wrong;
        say_result(&r);
        if (csv && !r.wrong)
            write_result(csv, &r);
        stop_step(x);
    }
    return bad;
}

static int run_sets(const bench_context *x, int64_t head_dim, FILE *csv)
{
    int bad = 0;
    if (x->kernels)
        return run_set(x, attn_kernels_find(x->kernels), head_dim, csv);
    for (int i = 0; attn_kernels_get(i); i++)
        bad += run_set(x, attn_kernels_get(i), head_dim, csv);
    return bad;
}

int kernels_command(bench_context *x, int64_t head_dim, const char *csv)
{
    static const int64_t usual[] = { 64, 128, 256 };
    output out;
    if (csv && (!output_possible(csv) || !output_open(&out, csv)))
        return 2;
    FILE *const f = csv ? out.file : NULL;
    int bad = 0;
    stop_on_signals();
    probe_machine(&x->probe);
    report_machine(&x->machine, &x->probe);
    say_head(x->kernel_samples);
    if (f)
        write_head(f);
    for (int d = 0; d < LENGTH(usual) && (d == 0 || head_dim == 0); d++)
        bad += run_sets(x, head_dim ? head_dim : usual[d], f);
    if (f && !output_close(&out))
        return 1;
    if (stop_wanted())
        say("\n%s: the kernels above are all", stop_cause());
    say("\n%d wrong\n", bad);
    return bad ? 1 : stop_wanted() ? stop_status() : 0;
}
