/* table.c - the printed table: one row a result, a title before each scenario.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report.h"

/* Columns whose width depends on what is run. */
static struct {
    int name, path, wide, device;
    const bench_result *last;
} table;

static int longer(int width, const char *text)
{
    const int length = (int)strlen(text);
    return length > width ? length : width;
}

static int is_path(const result_field *f)
{
    return f->offset == offsetof(bench_result, path);
}

static int width_of(const result_field *f)
{
    if (f->width)
        return f->width;
    return is_path(f) ? -table.path : -table.name;
}

static void measure_columns(const case_list *cases, const path_list *paths)
{
    table.name = table.path = 4; /* their titles */
    table.last = NULL;
    table.device = 0;
    for (int i = 0; i < cases->n; i++) {
        table.device |= path_list_has_device(paths, cases->cases[i].impl);
        table.name = longer(table.name, cases->cases[i].name);
        for (int j = 0; j < paths->n; j++)
            if (path_wanted(paths, cases->cases[i].impl, paths->paths[j]))
                table.path = longer(table.path, paths->paths[j]->name);
    }
}

static int is_shown(const result_field *f)
{
    const int shown[] = { 1, table.wide, table.device };
    return f->title && shown[f->show];
}

void report_table_head(const case_list *cases, const path_list *paths, int wide)
{
    measure_columns(cases, paths);
    table.wide = wide;
    report_colour(BOLD);
    for (int i = 0; i < num_result_fields; i++) {
        const result_field *const f = &result_fields[i];
        if (is_shown(f))
            say("%s%*s", i > 2 ? " " : "", width_of(f), f->title);
    }
    report_colour(PLAIN);
    say("\n");
}

/* With fewer decimals where the number would not fit. */
static void say_number(const result_field *f, double value)
{
    char text[64];
    int decimals = f->decimals;
    do
        snprintf(text, sizeof text, "%*.*f", f->width, decimals, value);
    while ((int)strlen(text) > f->width && decimals-- > 0);
    say("%s", text);
}

static void say_field(const result_field *f, const bench_result *r)
{
    if (f->kind == FIELD_NAME || f->kind == FIELD_TEXT)
        say("%*s", width_of(f), field_text(f, r));
    else if (f->kind == FIELD_MAYBE && field_number(f, r) == 0)
        say("%*s", f->width, "-");
    else
        say_number(f, field_number(f, r) / f->unit);
}

static void say_title(const bench_result *r)
{
    char title[REPORT_TITLE];
    if (table.last && report_same_scenario(table.last, r))
        return;
    report_colour(FAINT);
    say("%s\n", report_title(r->preset, r->scenario, title));
    report_colour(PLAIN);
}

void report_row(const bench_result *r)
{
    if (r->absent)
        return; /* named below the table, once */
    say_title(r);
    table.last = r;
    if (r->skipped[0]) {
        report_colour(YELLOW);
        say("%*s %*s skipped: %s", -table.name, r->name, -table.path, r->path, r->skipped);
        report_colour(PLAIN);
        say("\n");
        return;
    }
    for (int i = 0; i < num_result_fields; i++) {
        if (!is_shown(&result_fields[i]))
            continue;
        if (i > 2)
            say(" ");
        say_field(&result_fields[i], r);
    }
    say("\n");
}

/* ---- below the table: paths that are not here, what the columns mean */

static int absent_too(const bench_result *r, const bench_result *before)
{
    return before->absent && !strcmp(before->path, r->path);
}

static void say_absent(const bench_result *results, int n)
{
    report_colour(YELLOW);
    for (int i = 0; i < n; i++)
        if (results[i].absent && report_is_first(results, i, absent_too))
            say("%s, all cases: skipped: %s\n", results[i].path, results[i].skipped);
    report_colour(PLAIN);
}

void report_legend(const bench_result *results, int n)
{
    double worst = -1, reads = 0, loops = 0;
    int64_t gemms = 0;
    say_absent(results, n);
    for (int i = 0; i < n; i++) {
        if (results[i].skipped[0])
            continue;
        worst = fmax(worst, results[i].err_tolerance);
        reads = fmax(reads, results[i].pct_read_bw);
        loops = fmax(loops, results[i].pct_kernel_loop);
        if (results[i].gemms > gemms)
            gemms = results[i].gemms;
    }
    report_colour(FAINT);
    say("\nP50, P95: median, 95th percentile of the timed calls; cold: the first call; x 1st: "
        "times as fast as\n  the first row of the case; tokens/s = batch * rows in use / P50; "
        "GFLOP/s = 2 * visible pairs *\n  (head_dim + head_dim_v) / P50; %%peak: of the FMA peak "
        "times threads (no more than CPUs), in cycles;\n  KiB: workspace\n");
    if (gemms > 0)
        say("of gradients GFLOP/s = 2 * visible pairs * (3 head_dim + 2 head_dim_v) / P50: five "
            "products, also\n  where two of them are computed twice\n");
    if (loops > 0)
        say("%%loop: of what a register tile of the kernel set reaches in L1, in turn with the "
            "calls\n");
    if (reads > 0)
        say("%%read: time of a plain loop that reads the same k and v in turn with the calls / the "
            "call's\n");
    say("mean, std, min, P99, GB/s, FLOPs per byte, ...: --wide; all columns: --csv FILE, "
        "--json FILE\n");
    report_colour(PLAIN);
    if (worst >= 0)
        say("checked before timing against double precision: worst error %.2f of its tolerance\n",
            worst);
}
