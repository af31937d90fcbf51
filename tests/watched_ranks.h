/* watched_ranks.h - virtual ranks that cannot wait for ever.
 * SPDX-License-Identifier: MIT
 *
 * A bug may leave ranks waiting for one another: then the program ends by SIGALRM, where there is
 * one, and counts as failed. To be included first: it chooses feature macros.
 */
#ifndef ATTN_TESTS_WATCHED_RANKS_H
#define ATTN_TESTS_WATCHED_RANKS_H

#if defined __unix__ || defined __APPLE__
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include <unistd.h>
#define WATCH(seconds) ((void)alarm(seconds))
#else
#define WATCH(seconds) ((void)0)
#endif

#include "../examples/virtual_ranks.h"

enum { RANKS_SECONDS = 30 }; /* a call takes milliseconds, under ThreadSanitizer a second */

/* As virtual_ranks_run. */
static inline int watched_ranks_run(int size, void (*body)(void *arg, const attn_transport *),
                                    void *arg)
{
    int failed;
    WATCH(RANKS_SECONDS);
    failed = virtual_ranks_run(size, body, arg);
    WATCH(0);
    return failed;
}

void test_ring_errors(void); /* tests/ring_errors.c: the misuses of the group ring */

#endif
