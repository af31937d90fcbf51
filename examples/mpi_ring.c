/* mpi_ring.c - context parallelism over MPI: one sequence over as many processes as mpirun starts.
 * SPDX-License-Identifier: MIT
 *
 *     mpicc -std=c99 -O2 examples/mpi_ring.c examples/ring_rank.c attn_mpi.c build/libattn.a
 *     mpirun -n 4 ./a.out
 *
 * It prints the checksum of the output, which no number of processes changes.
 */
#include "../attn_mpi.h"
#include "ring_rank.h"

#include <stdio.h>
#include <string.h>

enum { POSITIONS = 20000 };

int main(int argc, char **argv)
{
    attn_mpi mpi;
    ring_rank rank;
    unsigned long long own, sum = 0;
    double seconds, longest = 0;
    int failed = 1, any = 1;
    memset(&rank, 0, sizeof rank);
    MPI_Init(&argc, &argv);
    if (attn_mpi_open(&mpi, MPI_COMM_WORLD) != ATTN_OK)
        MPI_Abort(MPI_COMM_WORLD, 1);
    rank.layout = ATTN_RING_ZIGZAG;
    rank.positions = POSITIONS;
    seconds = MPI_Wtime();
    ring_rank_run(&rank, &mpi.transport);
    seconds = MPI_Wtime() - seconds;
    failed = strcmp(rank.why, "ok") != 0;
    if (failed)
        fprintf(stderr, "mpi_ring: rank %d: %s\n", mpi.transport.rank, rank.why);
    own = rank.checksum;
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&own, &sum, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (mpi.transport.rank == 0 && !any) {
        printf("O of %d positions: %016llx\n", POSITIONS, sum);
        fprintf(stderr, "%d ranks, %.3f s\n", mpi.transport.size, longest);
    }
    attn_mpi_close(&mpi);
    MPI_Finalize();
    return any;
}
