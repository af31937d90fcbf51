/* files.c - where results go: the files that the command line names.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#include <sys/stat.h>
#define MAKE_DIRECTORY(path) mkdir(path, 0777)
#else
#define MAKE_DIRECTORY(path) (-1)
#endif
#include "files.h"

#include <errno.h>
#include <stdio.h>

#include "json.h"
#include "report.h"

int files_folder(const char *path)
{
    if (!MAKE_DIRECTORY(path) || errno == EEXIST) return 1;
    fprintf(stderr, "bench: cannot make the folder \"%s\"\n", path);
    return 0;
}

static int write_one(int (*write)(const char *, const bench_record *), const char *path,
                     const bench_record *record)
{
    if (!path) return 1;
    if (!write(path, record)) return 0;
    printf("wrote %s\n", path);
    return 1;
}

int files_write(const bench_options *o, const bench_context *x, const bench_result *results, int n)
{
    const bench_record record = {o->argc, o->argv, &x->machine, &x->probe, x->threads,
                                 report_console(), results, n};
    int ok = write_one(json_write, o->json, &record);
    ok &= write_one(csv_write, o->csv, &record);
    if (o->output_dir) {
        char path[1024];
        ok &= files_folder(o->output_dir);
        snprintf(path, sizeof path, "%.1000s/bench.json", o->output_dir);
        ok &= write_one(json_write, path, &record);
        snprintf(path, sizeof path, "%.1000s/bench.csv", o->output_dir);
        ok &= write_one(csv_write, path, &record);
    }
    return ok;
}
