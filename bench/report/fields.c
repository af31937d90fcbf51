/* fields.c - the fields of a result, as one table for the printed table, CSV and JSON.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include <math.h>

#define HIDDEN NULL, 0, 0, 1, SHOW_ALWAYS
#define SHOWN(title, width, decimals, unit) title, width, decimals, unit, SHOW_ALWAYS
#define WIDE(title, width, decimals, unit) title, width, decimals, unit, SHOW_WIDE
#define ON_DEVICE(title, width, decimals) title, width, decimals, 1, SHOW_DEVICE
#define TEXT(key, ...) { #key, FIELD_TEXT, offsetof(bench_result, key), __VA_ARGS__ },
#define NAME(key, member, bytes, ...)                                                              \
    { key, FIELD_NAME, offsetof(bench_result, member), __VA_ARGS__ },
#define INT(key, ...) { #key, FIELD_INT, offsetof(bench_result, key), __VA_ARGS__ },
#define REAL(key, ...) { #key, FIELD_REAL, offsetof(bench_result, key), __VA_ARGS__ },
#define MAYBE(key, ...) { #key, FIELD_MAYBE, offsetof(bench_result, key), __VA_ARGS__ },

const result_field result_fields[] = { RESULT_COLUMNS(TEXT, NAME, INT, REAL, MAYBE) };

const int num_result_fields = (int)(sizeof result_fields / sizeof *result_fields);

int field_is_text(const result_field *f)
{
    return f->kind == FIELD_NAME || f->kind == FIELD_TEXT;
}

const char *field_text(const result_field *f, const bench_result *r)
{
    const char *const at = (const char *)r + f->offset;
    return f->kind == FIELD_NAME ? at : *(const char *const *)(const void *)at;
}

void field_put_number(FILE *f, double x)
{
    const int whole = x == floor(x) && fabs(x) < 1e15;
    fprintf(f, whole ? "%.0f" : "%.9g", x);
}

double field_number(const result_field *f, const bench_result *r)
{
    const void *const at = (const char *)r + f->offset;
    return f->kind == FIELD_INT ? (double)*(const int64_t *)at : *(const double *)at;
}
