/* stop.c - Ctrl-C or SIGTERM: no further call begins, and what was timed is still written.
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

static volatile sig_atomic_t wanted; /* the signal that asked */

static void on_signal(int number)
{
    wanted = number;
    signal(number, SIG_DFL);
    TELL("\nbench: stopping after this call; the same again ends at once and writes nothing\n");
}

static void listen_to(int number)
{
    if (signal(number, on_signal) == SIG_IGN)
        signal(number, SIG_IGN); /* a job in the background of a shell */
}

void stop_on_signals(void)
{
    listen_to(SIGINT);
    listen_to(SIGTERM);
}

int stop_wanted(void)
{
    return wanted != 0;
}

const char *stop_cause(void)
{
    return wanted == SIGTERM ? "stopped by SIGTERM" : "stopped by Ctrl-C";
}

int stop_status(void)
{
    return 128 + wanted;
}

void stop_step(const bench_context *x)
{
    if (x->watch)
        x->watch(RUN_STEP, NULL, NULL);
}
