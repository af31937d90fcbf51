/* fields.h - the fields of a result, as one table for the printed table, CSV and JSON.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_FIELDS_H
#define BENCH_FIELDS_H

#include <stddef.h>
#include <stdio.h>

#include "../cases/case.h"

typedef enum field_kind { FIELD_NAME, FIELD_TEXT, FIELD_INT, FIELD_REAL, FIELD_MAYBE } field_kind;

/* When the table has it: DEVICE, in runs on one. */
typedef enum field_show { SHOW_ALWAYS, SHOW_WIDE, SHOW_DEVICE } field_show;

typedef struct result_field {
    const char *key; /* in CSV and JSON */
    field_kind kind; /* NAME: characters in the result itself; TEXT: a pointer to them; MAYBE: a
                        * REAL of which 0 means that it is not known */
    size_t offset;
    const char *title; /* in the table; NULL = not shown there */
    int width;         /* of the table's column; negative = left-aligned; 0 = as its texts need */
    int decimals;      /* in the table */
    double unit;       /* the table shows the value divided by this */
    field_show show;
} result_field;

extern const result_field result_fields[];
extern const int num_result_fields;

/* Whether it is a text, else a number. */
int field_is_text(const result_field *f);
const char *field_text(const result_field *f, const bench_result *r);
/* A number as CSV and JSON write it: counts in full, others to 9 digits. */
void field_put_number(FILE *f, double x);

double field_number(const result_field *f, const bench_result *r);

#endif
