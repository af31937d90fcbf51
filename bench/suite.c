/* suite.c - functions registered by pointer: checked, timed in turn, printed.
 * SPDX-License-Identifier: MIT */
#include <string.h>

#include "measure.h"

int measure_add(measure_suite *suite, const measure_entry *entry)
{
    if (suite->n >= MEASURE_MAX_ENTRIES || !entry->name || !entry->call)
        return 0;
    suite->entries[suite->n++] = *entry;
    return 1;
}

/* ---- running */

static const char *first_call(measure_entry *e)
{
    e->cold = measure_once(e->call, e->arg);
    if (e->cold < 0)
        return "its call failed";
    return e->check && e->check(e->arg) ? "its result is wrong" : NULL;
}

static void time_in_turn(const measure_plan *plan, measure_entry *const *ready, int n)
{
    measure_job jobs[MEASURE_MAX_ENTRIES];
    for (int i = 0; i < n; i++) {
        const measure_job job = { .call = ready[i]->call, .arg = ready[i]->arg, .against = i };
        jobs[i] = job;
    }
    const int timed = measure_in_turn(plan, jobs, n);
    for (int i = 0; i < n; i++) {
        if (!timed)
            ready[i]->refused = "a call failed while timed, or memory is short";
        ready[i]->result = jobs[i].result;
        ready[i]->speedup = i == 0 ? 1 : jobs[i].ratio_p50 > 0 ? 1 / jobs[i].ratio_p50 : 0;
    }
}

int measure_run(measure_suite *suite)
{
    measure_entry *ready[MEASURE_MAX_ENTRIES];
    int n = 0;
    for (int i = 0; i < suite->n; i++) {
        measure_entry *const e = &suite->entries[i];
        e->refused = first_call(e);
        if (!e->refused)
            ready[n++] = e;
    }
    if (n)
        time_in_turn(&suite->plan, ready, n);
    return suite->n > 0 && n == suite->n && !ready[0]->refused;
}

/* ---- printing */

static const struct {
    const char *key, *title;
    int width, decimals;
} columns[] = {
    { "samples", "samples", 7, 0 },  { "ms_min", "min ms", 9, 4 },
    { "ms_mean", "mean", 9, 4 },     { "ms_std", "std", 8, 4 },
    { "ms_p50", "P50", 9, 4 },       { "ms_p95", "P95", 9, 4 },
    { "ms_p99", "P99", 9, 4 },       { "cold_ms", "cold", 9, 4 },
    { "gflops", "GFLOP/s", 8, 2 },   { "gbytes_per_s", "GB/s", 7, 2 },
    { "speedup", "speed-up", 8, 2 },
};

enum { COLUMNS = sizeof columns / sizeof *columns };

/* In the order of the columns; negative = there is none. */
static void values_of(const measure_entry *e, double *values)
{
    const bench_stats *const s = &e->result.seconds;
    const double in_order[COLUMNS] = { s->n,
                                       1e3 * s->min,
                                       1e3 * s->mean,
                                       1e3 * s->std,
                                       1e3 * s->p50,
                                       1e3 * s->p95,
                                       1e3 * s->p99,
                                       1e3 * e->cold,
                                       e->flops > 0 ? 1e-9 * e->flops / s->p50 : -1,
                                       e->bytes > 0 ? 1e-9 * e->bytes / s->p50 : -1,
                                       e->speedup > 0 ? e->speedup : -1 };
    memcpy(values, in_order, sizeof in_order);
}

static int name_width(const measure_suite *suite)
{
    size_t width = 4;
    for (int i = 0; i < suite->n; i++)
        if (strlen(suite->entries[i].name) > width)
            width = strlen(suite->entries[i].name);
    return (int)width;
}

static void print_values(const measure_entry *e, FILE *out)
{
    double values[COLUMNS];
    values_of(e, values);
    for (int c = 0; c < COLUMNS; c++) {
        if (values[c] < 0)
            fprintf(out, " %*s", columns[c].width, "-");
        else
            fprintf(out, " %*.*f", columns[c].width, columns[c].decimals, values[c]);
    }
    fputc('\n', out);
}

void measure_print(const measure_suite *suite, FILE *out)
{
    const int width = name_width(suite);
    fprintf(out, "%-*s", width, "name");
    for (int c = 0; c < COLUMNS; c++)
        fprintf(out, " %*s", columns[c].width, columns[c].title);
    fputc('\n', out);
    for (int i = 0; i < suite->n; i++) {
        const measure_entry *const e = &suite->entries[i];
        fprintf(out, "%-*s", width, e->name);
        if (e->refused)
            fprintf(out, " not timed: %s\n", e->refused);
        else
            print_values(e, out);
    }
}

static void csv_name(const char *name, FILE *out)
{
    fputc('"', out);
    for (; *name; name++) {
        if (*name == '"')
            fputc('"', out);
        fputc(*name, out);
    }
    fputc('"', out);
}

void measure_csv(const measure_suite *suite, FILE *out)
{
    fputs("name", out);
    for (int c = 0; c < COLUMNS; c++)
        fprintf(out, ",%s", columns[c].key);
    fputc('\n', out);
    for (int i = 0; i < suite->n; i++) {
        double values[COLUMNS];
        if (suite->entries[i].refused)
            continue;
        values_of(&suite->entries[i], values);
        csv_name(suite->entries[i].name, out);
        for (int c = 0; c < COLUMNS; c++) {
            fputc(',', out);
            if (values[c] >= 0)
                fprintf(out, "%.9g", values[c]);
        }
        fputc('\n', out);
    }
}
