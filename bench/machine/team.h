/* team.h - the processes that mpirun started, which share a sequence (--mpi).
 * SPDX-License-Identifier: MIT
 *
 * team_mpi.c is in build/bench_mpi alone, since only that needs an MPI. Every other program has
 * team_none.c: a team of one process. All processes call these functions in one order; those below
 * team_choose only the chosen ones. */
#ifndef BENCH_TEAM_H
#define BENCH_TEAM_H

#include <stddef.h>

#include "../../attn.h"

/* Joins the team; only rank 0 prints from then on. Without MPI it becomes the program beside argv[0]
 * that has it: 0 = there is none, and a sentence was printed to stderr. */
int team_begin(char **argv);

/* Leaves it; returns the status of rank 0. */
int team_end(int status);

int team_size(void);
int team_rank(void);
int team_hosts(void);

/* Whether all of them can. */
int team_all(int can);

/* Waits for all of them without keeping a CPU busy. */
void team_rest(void);

/* The first `ranks` processes share what follows; returns whether this is one of them. */
int team_choose(int ranks);

/* How many of the chosen ones run on this host, at most. */
int team_neighbours(void);

/* Reaches the others around the ring; NULL in a team of one without MPI. */
const attn_transport *team_transport(void);

/* Seconds in which its exchanges were waited for since the last ask: not those of agreements, which
 * wait for slower ranks. */
double team_awaited(void);

double team_most(double value);
double team_sum(double value);

/* The lowest rank for which it is so; -1 = none. */
int team_first(int is);

/* All have the bytes of rank `from` now. */
void team_tell(int from, void *data, size_t bytes);

/* On rank 0 the bytes are those of all ranks, joined by OR. 0 = it failed. */
int team_join(void *data, size_t bytes);

#endif
