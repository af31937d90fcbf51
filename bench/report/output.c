/* output.c - a file that is written whole or not at all.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define OUTPUT_POSIX 1
#endif
#include "report.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static int cannot_write(const char *path, const char *why)
{
    fprintf(stderr, "bench: cannot write %s%s%s\n", path, why ? ": " : "", why ? why : "");
    return 0;
}

#ifdef OUTPUT_POSIX
#include <sys/stat.h>
#include <unistd.h>

/* Whether path is a file or nothing yet, not something that renaming would replace. */
static int replaceable(const char *path)
{
    struct stat s;
    return lstat(path, &s) ? errno == ENOENT : S_ISREG(s.st_mode);
}

/* 0 with errno when what is there may not be written. Devices and pipes are not opened for this:
 * a reader would see the end. */
static int writable(const char *path)
{
    struct stat s;
    if (stat(path, &s))
        return errno == ENOENT && replaceable(path);
    if (S_ISDIR(s.st_mode))
        return errno = EISDIR, 0;
    return !access(path, W_OK);
}

static int same_inode(const char *a, const char *b)
{
    struct stat s, t;
    return !stat(a, &s) && !stat(b, &t) && S_ISREG(s.st_mode) && s.st_dev == t.st_dev &&
           s.st_ino == t.st_ino;
}

static int put_in_place(const char *part, const char *path)
{
    return !rename(part, path);
}
#else
static int replaceable(const char *path)
{
    return path != NULL;
}

static int writable(const char *path)
{
    return path != NULL;
}

static int same_inode(const char *a, const char *b)
{
    return a == b;
}

/* Elsewhere than on POSIX nothing may be there. */
static int put_in_place(const char *part, const char *path)
{
    remove(path);
    return !rename(part, path);
}
#endif

/* 0 = the name is too long. */
static int name_part(output *out, const char *path)
{
    const char *const end = replaceable(path) ? ".part" : "";
    const int n = snprintf(out->part, sizeof out->part, "%s%s", path, end);
    out->path = path;
    return n >= 0 && (size_t)n < sizeof out->part;
}

FILE *output_open(output *out, const char *path)
{
    out->file = NULL;
    if (!name_part(out, path))
        return cannot_write(path, "the name is too long"), NULL;
    out->file = fopen(out->part, "w");
    if (!out->file)
        cannot_write(path, strerror(errno));
    return out->file;
}

int output_close(output *out)
{
    const int renamed = strcmp(out->part, out->path) != 0;
    const int bad = ferror(out->file);
    if (fclose(out->file) || bad) {
        if (renamed)
            remove(out->part);
        fprintf(stderr, "bench: cannot write all of %s\n", out->path);
        return 0;
    }
    return !renamed || put_in_place(out->part, out->path) ||
           cannot_write(out->path, strerror(errno));
}

int output_possible(const char *path)
{
    output out;
    if (!writable(path))
        return cannot_write(path, strerror(errno));
    if (!replaceable(path))
        return 1;
    if (!output_open(&out, path))
        return 0;
    fclose(out.file);
    remove(out.part);
    return 1;
}

/* Both parts at a time: a file that is not there yet may have two names. */
int output_same(const char *a, const char *b)
{
    output out;
    if (!strcmp(a, b) || same_inode(a, b))
        return !strcmp(a, b) ? replaceable(a) : 1;
    if (!replaceable(a) || !replaceable(b) || !output_open(&out, a))
        return 0;
    char other[OUTPUT_MAX_PATH];
    snprintf(other, sizeof other, "%s.part", b);
    const int same = same_inode(out.part, other);
    fclose(out.file);
    remove(out.part);
    return same;
}

const char *output_date(const char *format, char to[OUTPUT_DATE])
{
    const time_t now = time(NULL);
    const struct tm *const utc = gmtime(&now);
    if (!utc || !strftime(to, OUTPUT_DATE, format, utc))
        strcpy(to, "unknown");
    return to;
}
