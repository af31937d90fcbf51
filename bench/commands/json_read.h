/* json_read.h - reads JSON, written for files that may be damaged: every limit is checked.
 * SPDX-License-Identifier: MIT
 *
 *     json_document *d = json_read(f, why, sizeof why);
 *     const json_value *rows = json_member(d, json_top(d), "results");
 *     for (const json_value *r = json_first(d, rows); r; r = json_next(d, r))
 *         puts(json_text(d, r, "case"));
 */
#ifndef BENCH_JSON_READ_H
#define BENCH_JSON_READ_H

#include <stddef.h>
#include <stdio.h>

enum { JSON_MAX_BYTES = 1 << 24, JSON_MAX_VALUES = 1 << 20, JSON_MAX_DEPTH = 32 };

typedef enum json_kind {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_TEXT,
    JSON_LIST,
    JSON_OBJECT
} json_kind;

typedef struct json_value {
    json_kind kind;
    const char *key;  /* in its object; NULL elsewhere */
    const char *text; /* of a JSON_TEXT, UTF-8, ended by a zero byte */
    double number;    /* of a JSON_NUMBER */
    int first, next;  /* places of the first child and the next sibling; 0 = none */
} json_value;

typedef struct json_document json_document;

/* The one value that a whole file or text holds; NULL and a sentence in why when it is not JSON
 * (RFC 8259), exceeds a limit above, or memory is short. A text with \u0000 is refused. */
json_document *json_read(FILE *f, char *why, size_t why_bytes);
json_document *json_parse(const char *text, size_t bytes, char *why, size_t why_bytes);
void json_free(json_document *d);

const json_value *json_top(const json_document *d);

/* Children of a list or an object; NULL = no more, also for NULL and other kinds. */
const json_value *json_first(const json_document *d, const json_value *v);
const json_value *json_next(const json_document *d, const json_value *v);

/* The first member of that name, of any kind; NULL = none. */
const json_value *json_member(const json_document *d, const json_value *object, const char *key);

/* The text or number of a member; NULL or -1 when there is none of that kind. */
const char *json_text(const json_document *d, const json_value *object, const char *key);
double json_number(const json_document *d, const json_value *object, const char *key);

#endif
