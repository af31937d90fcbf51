/* json_read.h - reads JSON, written for files that may be damaged: every limit is checked.
 * SPDX-License-Identifier: MIT
 *
 *     char *d = json_read(f, why, sizeof why);
 *     for (const char *r = json_first(json_member(d, "results")); r; r = json_next(r))
 *         puts(json_text(r, "case"));
 *     free(d);
 *
 * A value is the place where it begins; its first character tells the kind. */
#ifndef BENCH_JSON_READ_H
#define BENCH_JSON_READ_H

#include <stddef.h>
#include <stdio.h>

enum { JSON_MAX_BYTES = 1 << 24, JSON_MAX_DEPTH = 32 };

/* The one value that a whole file or text holds, to be freed; NULL and a sentence in why when it is
 * not JSON (RFC 8259), exceeds a limit above, or memory is short. A text with \u0000 is refused. */
char *json_read(FILE *f, char *why, size_t why_bytes);
char *json_parse(const char *text, size_t bytes, char *why, size_t why_bytes);

/* Children of a list or an object, whose children are keys; NULL = no more, also for NULL and other
 * kinds. */
const char *json_first(const char *v);
const char *json_next(const char *child);

/* The first member of that name, of any kind; NULL = none. */
const char *json_member(const char *object, const char *key);

/* The text or number of a member; NULL or -1 when there is none of that kind. */
const char *json_text(const char *object, const char *key);
double json_number(const char *object, const char *key);

#endif
