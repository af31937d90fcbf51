/* stop.c - Ctrl-C: no further call begins, and what was timed is still written.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>
#define TELL(text) (void)!write(2, text, sizeof(text) - 1)
#else
#define TELL(text) (void)(text) /* no other output is allowed inside a handler */
#endif
#include "run.h"

#include <signal.h>

static volatile sig_atomic_t wanted;

static void on_interrupt(int number)
{
    wanted = 1;
    signal(number, SIG_DFL);
    TELL("\nbench: stopping after this call; Ctrl-C again ends at once and writes nothing\n");
}

void stop_on_interrupt(void)
{
    if (signal(SIGINT, on_interrupt) == SIG_IGN)
        signal(SIGINT, SIG_IGN); /* a job in the background of a shell */
}

int stop_wanted(void)
{
    return wanted;
}

void stop_step(const bench_context *x)
{
    if (x->watch)
        x->watch(RUN_STEP, NULL, NULL);
}
