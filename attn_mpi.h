/* attn_mpi.h - the transport of attn.h over MPI. Optional: needs an MPI (3.0 or later; tested
 * with OpenMPI and MPICH) and its compiler wrapper, attn_mpi.c and what attn.h needs.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 *     attn_mpi mpi;
 *     MPI_Init(&argc, &argv);
 *     if (attn_mpi_open(&mpi, MPI_COMM_WORLD) == ATTN_OK) {      // all ranks together
 *         ring.transport = &mpi.transport;
 *         ...                                                    // attn_ring_forward
 *         attn_mpi_close(&mpi);                                  // all ranks together
 *     }
 *     MPI_Finalize();
 *
 * Messages have a communicator of their own, a duplicate of the one given. They are non-blocking
 *   (MPI_Isend, MPI_Irecv) and start when all ranks have agreed that none has failed; how much of
 *   them runs beside the computation is up to the MPI. More than INT_MAX bytes go as blocks.
 * Threads. Calls come from the thread that calls attn_ring_forward: MPI_Init is enough where that
 *   is the main one.
 * Errors. What MPI returns becomes ATTN_ERR_CALLBACK on every rank, as far as MPI still works.
 */
#ifndef ATTN_MPI_H
#define ATTN_MPI_H

#include "attn.h"

#include <mpi.h>

#ifdef ATTN_PREFIX
#define attn_mpi_open ATTN_JOIN(ATTN_PREFIX, attn_mpi_open)
#define attn_mpi_close ATTN_JOIN(ATTN_PREFIX, attn_mpi_close)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Lies where it is from open to close, as the transport points to it. */
typedef struct attn_mpi {
    attn_transport transport;
    /* ---- its own */
    MPI_Comm comm;
    MPI_Datatype block; /* ATTN_MPI_BLOCK bytes */
    MPI_Request requests[4];
    const char *send;
    char *receive;
    size_t send_bytes, receive_bytes;
    int waiting; /* begun, to start with the next agreement */
    int failed;  /* to start */
} attn_mpi;

#ifndef ATTN_MPI_BLOCK
#define ATTN_MPI_BLOCK (1 << 20) /* a message is whole blocks and a rest: up to 2^51 bytes */
#endif

/* Fills in *m; all ranks of comm together. ATTN_ERR_ARG: m is NULL; ATTN_ERR_CALLBACK: MPI
 * failed. */
ATTN_API attn_status attn_mpi_open(attn_mpi *m, MPI_Comm comm);

/* Gives back what open took; all ranks together, before MPI_Finalize. */
ATTN_API void attn_mpi_close(attn_mpi *m);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_MPI_H */
