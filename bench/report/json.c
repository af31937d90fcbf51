/* json.c - everything as one JSON file, or the rows as CSV.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <stdio.h>

#include "../../attn.h"
#include "../machine/machine.h"

#define REPLACEMENT "\357\277\275" /* U+FFFD in UTF-8, for each byte that is none */

/* ---- values */

/* In quotes: special(f, c) writes a byte that stands for itself only there, else returns 0. */
static void put_quoted(FILE *f, const char *text, int (*special)(FILE *f, unsigned char c))
{
    putc('"', f);
    while (*text) {
        const int n = utf8_length(text);
        if (special(f, (unsigned char)*text))
            ;
        else if (n > 0)
            fwrite(text, 1, (size_t)n, f);
        else
            fputs(REPLACEMENT, f);
        text += n > 0 ? n : 1;
    }
    putc('"', f);
}

static int put_escape(FILE *f, unsigned char c)
{
    if (c == '"' || c == '\\')
        return fprintf(f, "\\%c", c);
    if (c == '\n')
        return fprintf(f, "\\n");
    return c < 0x20 ? fprintf(f, "\\u%04x", (unsigned)c) : 0;
}

static int put_double_quote(FILE *f, unsigned char c)
{
    return c == '"' ? fprintf(f, "\"\"") : 0;
}

/* Where the next member goes, and what stands before it. */
typedef struct writer {
    FILE *f;
    const char *before, *between;
} writer;

static void put_key(writer *w, const char *key)
{
    fputs(w->before, w->f);
    w->before = w->between;
    put_quoted(w->f, key, put_escape);
    fputs(": ", w->f);
}

/* NULL becomes null. */
static void put_text(writer *w, const char *key, const char *value)
{
    put_key(w, key);
    if (value)
        put_quoted(w->f, value, put_escape);
    else
        fputs("null", w->f);
}

/* JSON has no NaN and no infinity. */
static void put_number(writer *w, const char *key, double value)
{
    put_key(w, key);
    if (value - value == 0)
        field_put_number(w->f, value);
    else
        fputs("null", w->f);
}

/* ---- parts */

static void put_options(writer *w, const bench_record *r)
{
    put_key(w, "options");
    putc('[', w->f);
    for (int i = 1; i < r->argc; i++) {
        fputs(i > 1 ? ", " : "", w->f);
        put_quoted(w->f, r->argv[i], put_escape);
    }
    putc(']', w->f);
}

static void put_machine(writer *top, const bench_record *r)
{
    const machine_info *const m = r->machine;
    const probe_result *const p = r->probe;
    const attn_opencl_info *const d =
        device_opened(); /* NULL = none was needed, or could be opened */
    writer one = { top->f, "{", ", " }, *const w = &one;
    put_key(top, "machine");
    put_text(w, "cpu", m->cpu);
    put_text(w, "isa", m->isa);
    put_text(w, "system", m->system);
    put_text(w, "compiler", m->compiler);
    put_text(w, "flags", m->flags);
    put_text(w, "revision", m->revision);
    put_text(w, "attn_version", attn_version());
    put_number(w, "numerics_version", ATTN_NUMERICS_VERSION);
    put_number(w, "cpus", m->cpus);
    put_number(w, "threads", r->threads);
    put_number(w, "l1d_bytes", (double)m->l1d);
    put_number(w, "l2_bytes", (double)m->l2);
    put_number(w, "l3_bytes", (double)m->l3);
    put_number(w, "memory_bytes", (double)m->memory);
    put_number(w, "memory_usable_bytes", (double)m->memory_usable);
    put_number(w, "ghz", p->ghz);
    put_text(w, "fma_peak_unit", p->best.name ? p->best.name : "");
    put_number(w, "fma_peak_gflops", p->best.gflops);
    put_number(w, "fma_peak_flops_per_cycle", p->best.flops_per_cycle);
    put_number(w, "avx2_peak_gflops", p->avx2.gflops);
    put_number(w, "read_gbytes_per_s", p->read_gbs);
    put_text(w, "opencl_device", d ? d->device : NULL);
    put_text(w, "opencl_driver", d ? d->driver : NULL);
    putc('}', w->f);
}

/* A list of objects, a line each: put(w, r, i) writes the members of the i-th of n; 0 = it is none of
 * the list. */
static void put_list(writer *top, const char *key, const bench_record *r, int n,
                     int (*put)(writer *w, const bench_record *r, int i))
{
    const char *open = "\n    {";
    put_key(top, key);
    putc('[', top->f);
    for (int i = 0; i < n; i++) {
        writer w = { top->f, open, ", " };
        if (!put(&w, r, i))
            continue;
        putc('}', top->f);
        open = ",\n    {";
    }
    putc(']', top->f);
}

static bench_winner winners[REPORT_MAX_SCENARIOS]; /* 64 KiB each: off the stack */
static bench_scaling exponents[REPORT_MAX_SCENARIOS];

static int put_winner(writer *w, const bench_record *r, int i)
{
    (void)r;
    put_text(w, "preset", winners[i].preset);
    put_text(w, "scenario", winners[i].scenario);
    put_text(w, "winner", winners[i].winner);
    put_text(w, "over", winners[i].over);
    put_number(w, "cases", winners[i].cases);
    put_number(w, "won", winners[i].won);
    put_number(w, "speedup", winners[i].speedup);
    put_number(w, "workspace_ratio", winners[i].workspace_ratio);
    put_number(w, "ms_mean", winners[i].ms_mean);
    return 1;
}

static int put_exponent(writer *w, const bench_record *r, int i)
{
    (void)r;
    put_text(w, "preset", exponents[i].preset);
    put_text(w, "scenario", exponents[i].scenario);
    put_text(w, "path", exponents[i].path);
    put_number(w, "cases", exponents[i].cases);
    put_number(w, "shortest", (double)exponents[i].shortest);
    put_number(w, "longest", (double)exponents[i].longest);
    put_number(w, "pairs", exponents[i].pairs);
    put_number(w, "time", exponents[i].time);
    put_number(w, "workspace", exponents[i].workspace);
    return 1;
}

static int put_skipped(writer *w, const bench_record *r, int i)
{
    const bench_result *const s = &r->results[i];
    if (!s->skipped[0])
        return 0;
    put_text(w, "preset", s->preset);
    put_text(w, "case", s->name);
    put_text(w, "path", s->path);
    put_text(w, "impl", s->impl);
    put_text(w, "reason", s->skipped);
    return 1;
}

static int put_result(writer *w, const bench_record *r, int i)
{
    const bench_result *const s = &r->results[i];
    for (int c = 0; c < num_result_fields && !s->skipped[0]; c++) {
        const result_field *const field = &result_fields[c];
        if (field_is_text(field))
            put_text(w, field->key, field_text(field, s));
        else
            put_number(w, field->key, field_number(field, s));
    }
    return !s->skipped[0];
}

/* ---- files */

int json_write(const char *path, const bench_record *r)
{
    char date[OUTPUT_DATE];
    output out;
    FILE *const f = output_open(&out, path);
    if (!f)
        return 0;
    writer w = { f, "{\n  ", ",\n  " };
    put_number(&w, "schema", BENCH_SCHEMA);
    put_text(&w, "timestamp", output_date(OUTPUT_ISO_8601, date));
    put_options(&w, r);
    put_number(&w, "seed", (double)r->seed);
    put_machine(&w, r);
    put_text(&w, "console", r->console);
    put_list(&w, "winners", r,
             report_winners(r->results, r->num_results, winners, REPORT_MAX_SCENARIOS), put_winner);
    put_list(&w, "exponents", r,
             scaling_of(r->results, r->num_results, exponents, REPORT_MAX_SCENARIOS), put_exponent);
    put_list(&w, "skipped", r, r->num_results, put_skipped);
    put_list(&w, "results", r, r->num_results, put_result);
    fputs("\n}\n", f);
    return output_close(&out);
}

static void put_csv_row(FILE *f, const bench_result *r)
{
    for (int i = 0; i < num_result_fields; i++) {
        const result_field *const field = &result_fields[i];
        if (i)
            putc(',', f);
        if (field_is_text(field))
            put_quoted(f, field_text(field, r),
                       put_double_quote); /* the shape's name holds commas */
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
