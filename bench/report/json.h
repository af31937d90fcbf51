/* json.h - everything as one JSON file, or the rows as CSV.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_JSON_H
#define BENCH_JSON_H

#include "../cases/case.h"
#include "../machine/machine.h"
#include "../machine/probe.h"

#define BENCH_SCHEMA 1

typedef struct bench_record {
    int argc;
    char **argv; /* "options" */
    const machine_info *machine;
    const probe_result *probe;
    int threads; /* of the command line */
    int64_t seed;
    const char *console;
    const bench_result *results;
    int num_results;
} bench_record;

/* 1 = written; 0 = not, and a sentence was printed to stderr. */
int json_write(const char *path, const bench_record *r);
int csv_write(const char *path, const bench_record *r);

#endif
