/* team_mpi.c - the team over MPI, in build/bench_mpi.
 * SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "team.h"

#include <limits.h>
#include <stdio.h>
#include <time.h>

#include "../../attn_mpi.h"

enum { JOINED_BYTES = 1 << 24 }; /* of one message, whose count is an int */

static struct {
    int size, rank, hosts, local; /* local: processes of this host */
    int ranks;                    /* chosen */
    MPI_Comm chosen;              /* MPI_COMM_NULL = this is none of them, or nobody chose yet */
    attn_mpi ring;
    attn_transport transport; /* that of the ring, its waits measured */
    double awaited;
} team = { .size = 1, .hosts = 1, .local = 1, .chosen = MPI_COMM_NULL };

/* How many processes this host has, and how many hosts there are. */
static void count_hosts(void)
{
    MPI_Comm host;
    int place = 0, first;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &team.local);
    MPI_Comm_rank(host, &place);
    MPI_Comm_free(&host);
    first = place == 0;
    MPI_Allreduce(&first, &team.hosts, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

int team_begin(char **argv)
{
    (void)argv;
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS) {
        fprintf(stderr, "bench: MPI_Init failed\n");
        return 0;
    }
    MPI_Comm_size(MPI_COMM_WORLD, &team.size);
    MPI_Comm_rank(MPI_COMM_WORLD, &team.rank);
    count_hosts();
    if (team.rank > 0 && (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)))
        MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
}

static void forget_chosen(void)
{
    if (team.chosen == MPI_COMM_NULL)
        return;
    attn_mpi_close(&team.ring);
    MPI_Comm_free(&team.chosen);
}

int team_end(int status)
{
    forget_chosen();
    MPI_Bcast(&status, 1, MPI_INT, 0, MPI_COMM_WORLD);
    MPI_Finalize();
    return status;
}

int team_size(void)
{
    return team.size;
}

int team_rank(void)
{
    return team.rank;
}

int team_hosts(void)
{
    return team.hosts;
}

int team_all(int can)
{
    const int own = can != 0;
    int all = 0;
    MPI_Allreduce(&own, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

void team_rest(void)
{
    const struct timespec nap = { 0, 1000000 };
    MPI_Request all;
    int done = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &all);
    for (MPI_Test(&all, &done, MPI_STATUS_IGNORE); !done; MPI_Test(&all, &done, MPI_STATUS_IGNORE))
        nanosleep(&nap, NULL);
}

static int measured_end(void *user)
{
    const double begin = MPI_Wtime();
    const int failed = team.ring.transport.end(user);
    team.awaited += MPI_Wtime() - begin;
    return failed;
}

int team_choose(int ranks)
{
    const int mine = team.rank < ranks;
    if (ranks == team.ranks)
        return mine;
    forget_chosen();
    team.ranks = ranks;
    MPI_Comm_split(MPI_COMM_WORLD, mine ? 0 : MPI_UNDEFINED, team.rank, &team.chosen);
    if (mine && attn_mpi_open(&team.ring, team.chosen) != ATTN_OK)
        MPI_Abort(MPI_COMM_WORLD, 1);
    team.transport = team.ring.transport;
    team.transport.end = measured_end;
    return mine;
}

int team_neighbours(void)
{
    return team.local < team.ranks ? team.local : team.ranks;
}

const attn_transport *team_transport(void)
{
    return &team.transport;
}

double team_awaited(void)
{
    const double seconds = team.awaited;
    team.awaited = 0;
    return seconds;
}

static double reduced(double value, MPI_Op op)
{
    double all = value;
    MPI_Allreduce(&value, &all, 1, MPI_DOUBLE, op, team.chosen);
    return all;
}

double team_most(double value)
{
    return reduced(value, MPI_MAX);
}

double team_sum(double value)
{
    return reduced(value, MPI_SUM);
}

int team_first(int is)
{
    const int own = is ? team.rank : INT_MAX;
    int first = own;
    MPI_Allreduce(&own, &first, 1, MPI_INT, MPI_MIN, team.chosen);
    return first == INT_MAX ? -1 : first;
}

void team_tell(int from, void *data, size_t bytes)
{
    MPI_Bcast(data, (int)bytes, MPI_BYTE, from, team.chosen);
}

int team_join(void *data, size_t bytes)
{
    int failed = 0;
    for (size_t at = 0; at < bytes; at += JOINED_BYTES) {
        const int n = (int)(bytes - at < JOINED_BYTES ? bytes - at : JOINED_BYTES);
        char *const part = (char *)data + at;
        failed |= team.rank ? MPI_Reduce(part, NULL, n, MPI_BYTE, MPI_BOR, 0, team.chosen)
                            : MPI_Reduce(MPI_IN_PLACE, part, n, MPI_BYTE, MPI_BOR, 0, team.chosen);
    }
    return !failed;
}
