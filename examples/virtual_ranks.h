/* virtual_ranks.h - ranks of a ring as POSIX threads of one process: a transport to try things
 * with, and a model for transports of your own.
 * SPDX-License-Identifier: MIT
 *
 *     static void body(void *arg, const attn_transport *transport) { ... }   // one rank
 *
 *     virtual_ranks_run(4, body, arg);         // four threads; 0 when all have ended
 *
 * A message is copied once, by its receiver, in `end`.
 */
#ifndef ATTN_EXAMPLES_VIRTUAL_RANKS_H
#define ATTN_EXAMPLES_VIRTUAL_RANKS_H

#include "../attn.h"

enum { VIRTUAL_RANKS_MAX = 64 };

/* Returns nonzero when threads could not be started or size is not from 1 to VIRTUAL_RANKS_MAX.
 * The body may then have run on some ranks with a transport that fails. Without POSIX threads only
 * size 1 works. */
int virtual_ranks_run(int size, void (*body)(void *arg, const attn_transport *transport),
                      void *arg);

/* Returns the largest size that works here. */
int virtual_ranks_most(void);

#endif
