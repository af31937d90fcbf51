/* files.c - the files that the command line names: read whole, and where results go.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#include <sys/stat.h>
#define MAKE_DIRECTORY(path) mkdir(path, 0777)
#elif defined _WIN32
#include <direct.h>
#define MAKE_DIRECTORY(path) _mkdir(path)
#else
#define MAKE_DIRECTORY(path) 0 /* it must be there: writing tells */
#endif
#include "report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TARGETS = 4 };

typedef struct target {
    char path[FILES_MAX_PATH];
    int (*write)(const char *, const bench_record *);
} target;

static int folder(const char *path)
{
    if (!MAKE_DIRECTORY(path) || errno == EEXIST)
        return 1;
    fprintf(stderr, "bench: cannot make the folder \"%s\": %s\n", path, strerror(errno));
    return 0;
}

static int join(const char *before, const char *between, const char *name, char *path)
{
    const int n = snprintf(path, FILES_MAX_PATH, "%s%s%s", before, between, name);
    if (n >= 0 && n < FILES_MAX_PATH)
        return 1;
    fprintf(stderr, "bench: cannot write %s%s%s: the name is too long\n", before, between, name);
    return 0;
}

int files_inside(const char *outer, const char *name, char *path)
{
    return folder(outer) && join(outer, "/", name, path);
}

/* outer/bench-TIME, the time of the first question, so that no run overwrites an older one. */
static int dated(const char *outer, const char *ending, char *path)
{
    static char date[OUTPUT_DATE];
    char name[OUTPUT_DATE + 16];
    if (!*date)
        output_date("%Y%m%dT%H%M%SZ", date);
    snprintf(name, sizeof name, "bench-%s%s", date, ending);
    return files_inside(outer, name, path);
}

/* All that the command line asks for; how many, -1 = a sentence was printed. */
static int find_targets(const bench_options *o, target *targets)
{
    int n = 0, ok = 1;
    if (o->json)
        ok = join(o->json, "", "", targets[n].path), targets[n++].write = json_write;
    if (ok && o->csv)
        ok = join(o->csv, "", "", targets[n].path), targets[n++].write = csv_write;
    if (ok && o->output_dir)
        ok = dated(o->output_dir, ".json", targets[n].path), targets[n++].write = json_write;
    if (ok && o->output_dir)
        ok = dated(o->output_dir, ".csv", targets[n].path), targets[n++].write = csv_write;
    return ok ? n : -1;
}

int files_possible(const bench_options *o)
{
    target targets[MAX_TARGETS];
    const int n = find_targets(o, targets);
    for (int i = 0; i < n; i++) {
        if (!output_possible(targets[i].path))
            return 0;
        for (int j = 0; j < i; j++) {
            if (!output_same(targets[j].path, targets[i].path))
                continue;
            fprintf(stderr, "bench: JSON and CSV cannot both go to %s\n", targets[i].path);
            return 0;
        }
    }
    return n >= 0;
}

int files_write(const bench_options *o, const bench_context *x, const bench_result *results, int n)
{
    const bench_record record = { o->argc, o->argv,          &x->machine, &x->probe, x->threads,
                                  o->seed, report_console(), results,     n };
    target targets[MAX_TARGETS];
    const int files = find_targets(o, targets);
    int ok = files >= 0;
    for (int i = 0; i < files; i++) {
        const int written = targets[i].write(targets[i].path, &record);
        if (written)
            printf("wrote %s\n", targets[i].path);
        ok &= written;
    }
    return ok;
}
