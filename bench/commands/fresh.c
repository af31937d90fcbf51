/* fresh.c - a case in a process of its own.
 * SPDX-License-Identifier: MIT
 *
 * fork without exec: after exec Linux goes on with the peak of the program before it, after fork
 * the peak begins with what is resident. The result comes back through a pipe as it lies in memory;
 * its pointers are to texts that parent and child both have. */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define FRESH_POSIX 1
#endif
#include "commands.h"

#include <stdio.h>

#ifdef FRESH_POSIX
#include <errno.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

int fresh_available(void)
{
    return 1;
}

/* Writes all of it to a pipe, or reads it. */
static int transfer(int pipe_end, void *data, size_t bytes, int out)
{
    char *at = data;
    while (bytes > 0) {
        const ssize_t n = out ? write(pipe_end, at, bytes) : read(pipe_end, at, bytes);
        if (n == 0 || (n < 0 && errno != EINTR))
            return 0;
        if (n > 0)
            at += n, bytes -= (size_t)n;
    }
    return 1;
}

/* The child: never returns. _exit: what the parent has buffered is not printed twice. */
static void run_and_leave(bench_context *x, const bench_case *c, const char *impl, int to)
{
    static bench_result r;
    x->alone = 1;
    run_case(x, c, impl, &r);
    _exit(transfer(to, &r, sizeof r, 1) ? 0 : 1);
}

static void say_why(bench_result *r, const bench_case *c, const char *impl, const char *what,
                    int number)
{
    memset(r, 0, sizeof *r);
    r->preset = c->preset;
    r->impl = impl;
    memcpy(r->name, c->name, sizeof r->name);
    snprintf(r->skipped, sizeof r->skipped, what, number);
}

void fresh_run(bench_context *x, const bench_case *c, const char *impl, bench_result *r)
{
    int ends[2], status = 0;
    if (pipe(ends)) {
        say_why(r, c, impl, "no pipe to a process of its own (errno %d)", errno);
        return;
    }
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0)
        run_and_leave(x, c, impl, ends[1]);
    close(ends[1]);
    const int complete = child > 0 && transfer(ends[0], r, sizeof *r, 0);
    close(ends[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (complete)
        return;
    say_why(r, c, impl,
            child < 0 ? "no process of its own (errno %d)" : "its process ended early (status %d)",
            child < 0 ? errno : status);
}
#else
int fresh_available(void)
{
    return 0;
}

void fresh_run(bench_context *x, const bench_case *c, const char *impl, bench_result *r)
{
    run_case(x, c, impl, r);
}
#endif
