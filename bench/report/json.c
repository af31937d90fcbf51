/* json.c - everything as one JSON file, or the rows as CSV.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "../../attn.h"
#include "../machine/machine.h"

#define REPLACEMENT "\357\277\275" /* U+FFFD in UTF-8, for each byte that is none */

/* ---- values */

static void put_text(FILE *f, const char *text)
{
    putc('"', f);
    while (*text) {
        const unsigned char c = (unsigned char)*text;
        const int n = utf8_length(text);
        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", f);
        else if (c < 0x20)
            fprintf(f, "\\u%04x", (unsigned)c);
        else if (n > 0)
            fwrite(text, 1, (size_t)n, f);
        else
            fputs(REPLACEMENT, f);
        text += n > 0 ? n : 1;
    }
    putc('"', f);
}

/* JSON has no NaN and no infinity. */
static void put_number(FILE *f, double x)
{
    if (x - x == 0)
        field_put_number(f, x);
    else
        fputs("null", f);
}

static void put_pair(FILE *f, const char *key, const char *value, const char *end)
{
    put_text(f, key);
    fputs(": ", f);
    put_text(f, value);
    fputs(end, f);
}

static void put_pair_number(FILE *f, const char *key, double value, const char *end)
{
    put_text(f, key);
    fputs(": ", f);
    put_number(f, value);
    fputs(end, f);
}

/* ---- parts */

static void put_options(FILE *f, const bench_record *r)
{
    fputs("  \"options\": [", f);
    for (int i = 1; i < r->argc; i++) {
        if (i > 1)
            fputs(", ", f);
        put_text(f, r->argv[i]);
    }
    fputs("],\n", f);
}

/* null = none was needed, or could be opened. */
static void put_devices(FILE *f)
{
    const attn_opencl_info *const d = device_opened();
    if (d)
        put_pair(f, "opencl_device", d->device, ", ");
    if (d)
        put_pair(f, "opencl_driver", d->driver, "},\n");
    if (!d)
        fputs("\"opencl_device\": null, \"opencl_driver\": null},\n", f);
}

static void put_machine(FILE *f, const bench_record *r)
{
    const machine_info *const m = r->machine;
    const probe_result *const p = r->probe;
    fputs("  \"machine\": {", f);
    put_pair(f, "cpu", m->cpu, ", ");
    put_pair(f, "isa", m->isa, ", ");
    put_pair(f, "system", m->system, ", ");
    put_pair(f, "compiler", m->compiler, ", ");
    put_pair(f, "flags", m->flags, ", ");
    put_pair(f, "revision", m->revision, ", ");
    put_pair(f, "attn_version", attn_version(), ", ");
    put_pair_number(f, "numerics_version", ATTN_NUMERICS_VERSION, ", ");
    put_pair_number(f, "cpus", m->cpus, ", ");
    put_pair_number(f, "threads", r->threads, ", ");
    put_pair_number(f, "l1d_bytes", (double)m->l1d, ", ");
    put_pair_number(f, "l2_bytes", (double)m->l2, ", ");
    put_pair_number(f, "l3_bytes", (double)m->l3, ", ");
    put_pair_number(f, "memory_bytes", (double)m->memory, ", ");
    put_pair_number(f, "memory_usable_bytes", (double)m->memory_usable, ", ");
    put_pair_number(f, "ghz", p->ghz, ", ");
    put_pair(f, "fma_peak_unit", p->best.name ? p->best.name : "", ", ");
    put_pair_number(f, "fma_peak_gflops", p->best.gflops, ", ");
    put_pair_number(f, "fma_peak_flops_per_cycle", p->best.flops_per_cycle, ", ");
    put_pair_number(f, "avx2_peak_gflops", p->avx2.gflops, ", ");
    put_pair_number(f, "read_gbytes_per_s", p->read_gbs, ", ");
    put_devices(f);
}

static void put_winners(FILE *f, const bench_record *r)
{
    static bench_winner w[REPORT_MAX_SCENARIOS]; /* 64 KiB: off the stack */
    const int n = report_winners(r->results, r->num_results, w, REPORT_MAX_SCENARIOS);
    fputs("  \"winners\": [", f);
    for (int i = 0; i < n; i++) {
        fputs(i ? ",\n    {" : "\n    {", f);
        put_pair(f, "preset", w[i].preset, ", ");
        put_pair(f, "scenario", w[i].scenario, ", ");
        put_pair(f, "winner", w[i].winner, ", ");
        put_pair(f, "over", w[i].over, ", ");
        put_pair_number(f, "cases", w[i].cases, ", ");
        put_pair_number(f, "won", w[i].won, ", ");
        put_pair_number(f, "speedup", w[i].speedup, ", ");
        put_pair_number(f, "workspace_ratio", w[i].workspace_ratio, "}");
    }
    fputs("],\n", f);
}

static void put_exponents(FILE *f, const bench_record *r)
{
    static bench_scaling s[REPORT_MAX_SCENARIOS];
    const int n = scaling_of(r->results, r->num_results, s, REPORT_MAX_SCENARIOS);
    fputs("  \"exponents\": [", f);
    for (int i = 0; i < n; i++) {
        fputs(i ? ",\n    {" : "\n    {", f);
        put_pair(f, "preset", s[i].preset, ", ");
        put_pair(f, "scenario", s[i].scenario, ", ");
        put_pair(f, "path", s[i].path, ", ");
        put_pair_number(f, "cases", s[i].cases, ", ");
        put_pair_number(f, "shortest", (double)s[i].shortest, ", ");
        put_pair_number(f, "longest", (double)s[i].longest, ", ");
        put_pair_number(f, "pairs", s[i].pairs, ", ");
        put_pair_number(f, "time", s[i].time, ", ");
        put_pair_number(f, "workspace", s[i].workspace, "}");
    }
    fputs("],\n", f);
}

static void put_skipped(FILE *f, const bench_record *r)
{
    int n = 0;
    fputs("  \"skipped\": [", f);
    for (int i = 0; i < r->num_results; i++) {
        const bench_result *const s = &r->results[i];
        if (!s->skipped[0])
            continue;
        fputs(n++ ? ",\n    {" : "\n    {", f);
        put_pair(f, "preset", s->preset, ", ");
        put_pair(f, "case", s->name, ", ");
        put_pair(f, "path", s->path, ", ");
        put_pair(f, "impl", s->impl, ", ");
        put_pair(f, "reason", s->skipped, "}");
    }
    fputs("],\n", f);
}

static void put_result(FILE *f, const bench_result *r)
{
    for (int i = 0; i < num_result_fields; i++) {
        const result_field *const field = &result_fields[i];
        const char *const end = i + 1 < num_result_fields ? ", " : "}";
        if (field_is_text(field))
            put_pair(f, field->key, field_text(field, r), end);
        else
            put_pair_number(f, field->key, field_number(field, r), end);
    }
}

static void put_results(FILE *f, const bench_record *r)
{
    int n = 0;
    fputs("  \"results\": [", f);
    for (int i = 0; i < r->num_results; i++) {
        if (r->results[i].skipped[0])
            continue;
        fputs(n++ ? ",\n    {" : "\n    {", f);
        put_result(f, &r->results[i]);
    }
    fputs("]\n", f);
}

/* ---- files */

int json_write(const char *path, const bench_record *r)
{
    const time_t now = time(NULL);
    const struct tm *const utc = gmtime(&now);
    char text[32] = "unknown";
    output out;
    FILE *const f = output_open(&out, path);
    if (!f)
        return 0;
    if (utc)
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", utc);
    fprintf(f, "{\n  \"schema\": %d,\n  ", BENCH_SCHEMA);
    put_pair(f, "timestamp", text, ",\n");
    put_options(f, r);
    fprintf(f, "  \"seed\": %lld,\n", (long long)r->seed);
    put_machine(f, r);
    fputs("  ", f);
    put_pair(f, "console", r->console, ",\n");
    put_winners(f, r);
    put_exponents(f, r);
    put_skipped(f, r);
    put_results(f, r);
    fputs("}\n", f);
    return output_close(&out);
}

/* Always quoted: the shape's name holds commas. */
static void put_csv_text(FILE *f, const char *text)
{
    putc('"', f);
    while (*text) {
        const int n = utf8_length(text);
        if (*text == '"')
            putc('"', f);
        if (n > 0)
            fwrite(text, 1, (size_t)n, f);
        else
            fputs(REPLACEMENT, f);
        text += n > 0 ? n : 1;
    }
    putc('"', f);
}

static void put_csv_row(FILE *f, const bench_result *r)
{
    for (int i = 0; i < num_result_fields; i++) {
        const result_field *const field = &result_fields[i];
        if (i)
            putc(',', f);
        if (field_is_text(field))
            put_csv_text(f, field_text(field, r));
        else
            field_put_number(f, field_number(field, r));
    }
    putc('\n', f);
}

int csv_write(const char *path, const bench_record *r)
{
    output out;
    FILE *const f = output_open(&out, path);
    if (!f)
        return 0;
    for (int i = 0; i < num_result_fields; i++)
        fprintf(f, "%s%s", i ? "," : "", result_fields[i].key);
    putc('\n', f);
    for (int i = 0; i < r->num_results; i++)
        if (!r->results[i].skipped[0])
            put_csv_row(f, &r->results[i]);
    return output_close(&out);
}
