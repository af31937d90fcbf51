/* progress.c - how far a long run is, on stderr.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>
#define IS_TERMINAL(fd) isatty(fd)
#else
#define IS_TERMINAL(fd) 0
#endif
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../clock.h"

#define LONG_RUN 30.0
#define LINE_EVERY 10.0

static struct {
    int runs, done, terminal;
    double work, work_done; /* of runs that are not skipped */
    double begin, deadline, last;
} progress;

double progress_left(double done, double work, double elapsed, double limit)
{
    const double left = done > 0 ? elapsed / done * (work - done) : limit;
    return limit > 0 && left > limit ? limit : left;
}

const char *progress_time(double seconds, char to[PROGRESS_TIME])
{
    static const struct {
        double from, unit;
        const char *format;
    } units[] = { { 7200, 3600, "%.1f hours" }, { 120, 60, "%.0f minutes" }, { 0, 1, "%.0f s" } };
    int i = 0;
    while (seconds < units[i].from)
        i++;
    snprintf(to, PROGRESS_TIME, units[i].format, seconds / units[i].unit);
    return to;
}

int progress_due(double elapsed, double since_last)
{
    return elapsed >= LONG_RUN && since_last >= LINE_EVERY;
}

void progress_begin(int runs, double work, double deadline)
{
    const char *const term = getenv("TERM");
    progress.runs = runs;
    progress.done = 0;
    progress.work = work;
    progress.work_done = 0;
    progress.deadline = deadline;
    progress.begin = progress.last = clock_seconds();
    progress.terminal = IS_TERMINAL(2) && term && strcmp(term, "dumb");
}

void progress_show(const char *preset, const char *name, const char *path)
{
    const double now = clock_seconds(), elapsed = now - progress.begin;
    const double limit = progress.deadline > 0 ? progress.deadline - now : 0;
    const double left = progress_left(progress.work_done, progress.work, elapsed, limit);
    char text[PROGRESS_TIME];
    if (!progress.terminal && !progress_due(elapsed, now - progress.last))
        return;
    progress.last = now;
    fprintf(stderr, "%s%d of %d: %s, %s, %s",
            progress.terminal ? "\r\033[K" : "bench: ", progress.done + 1, progress.runs, preset,
            name, path);
    if (left > 0)
        fprintf(stderr, "; about %s left", progress_time(left, text));
    if (!progress.terminal)
        putc('\n', stderr);
    fflush(stderr);
}

void progress_step(int runs, double work, int ran)
{
    progress.done += runs;
    progress.work_done += ran ? work : 0;
    progress.work -= ran ? 0 : work;
    if (progress.terminal)
        fputs("\r\033[K", stderr);
}
