/* team_none.c - a team of one process, in programs without MPI.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _POSIX_C_SOURCE 200809L
#define TEAM_EXEC 1
#include <unistd.h>
#endif
#include "team.h"

#include <stdio.h>

/* The program with MPI takes the place of this one; returns where there is none. */
#ifdef TEAM_EXEC
static void become(const char *path, char **argv)
{
    execvp(path, argv);
}
#else
static void become(const char *path, char **argv)
{
    (void)path, (void)argv;
}
#endif

int team_begin(char **argv)
{
    char path[4096];
    if (snprintf(path, sizeof path, "%s_mpi", argv[0]) < (int)sizeof path)
        become(path, argv);
    fprintf(stderr,
            "bench: --mpi needs a bench with MPI, and there is no %s: `make build/bench_mpi` "
            "builds it\n",
            path);
    return 0;
}

int team_end(int status)
{
    return status;
}

int team_size(void)
{
    return 1;
}

int team_rank(void)
{
    return 0;
}

int team_hosts(void)
{
    return 1;
}

int team_all(int can)
{
    return can;
}

void team_rest(void)
{
}

int team_choose(int ranks)
{
    return ranks == 1;
}

int team_neighbours(void)
{
    return 1;
}

const attn_transport *team_transport(void)
{
    return NULL;
}

double team_awaited(void)
{
    return 0;
}

double team_most(double value)
{
    return value;
}

double team_sum(double value)
{
    return value;
}

int team_first(int is)
{
    return is ? 0 : -1;
}

void team_tell(int from, void *data, size_t bytes)
{
    (void)from, (void)data, (void)bytes;
}

int team_join(void *data, size_t bytes)
{
    (void)data, (void)bytes;
    return 1;
}
