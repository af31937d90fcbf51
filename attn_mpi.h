/* attn_mpi.h - the transport of attn_ring over MPI. It needs an MPI of version 3.0 or later (tested
 * with OpenMPI and MPICH) with its compiler wrapper, and attn_mpi.c, attn.h and attn.c.
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
 * Messages. They have a communicator of their own, a duplicate of the one given. They are
 *   non-blocking (MPI_Isend, MPI_Irecv) and start when all ranks have agreed that none has failed.
 *   The MPI decides how much of them runs beside the computation. Each goes as whole blocks of
 *   ATTN_MPI_BLOCK bytes and a rest.
 * Threads. Calls come from the thread that calls attn_ring_forward. MPI_Init is enough where that
 *   is the main thread.
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

/* An attn_mpi is a transport over one communicator. It must not move between open and close, as the
 * transport points to it. */
typedef struct attn_mpi {
    attn_transport transport; /* for ring.transport */

    /* ---- internal */

    MPI_Comm comm;
    MPI_Datatype block; /* ATTN_MPI_BLOCK bytes */
    MPI_Request requests[4];
    const char *send;
    char *receive;
    size_t send_bytes, receive_bytes;
    int waiting; /* nonzero: an exchange has begun and starts with the next agreement */
    int failed;  /* nonzero: it failed to start */
} attn_mpi;

/* A message has at most 2^31 blocks of this many bytes: 2^51 bytes. */
#ifndef ATTN_MPI_BLOCK
#define ATTN_MPI_BLOCK (1 << 20)
#endif

/* attn_mpi_open() fills in *m; all ranks of comm must call it together. Returns ATTN_ERR_ARG if m
 * is NULL, or ATTN_ERR_CALLBACK if MPI failed. */
ATTN_API attn_status attn_mpi_open(attn_mpi *m, MPI_Comm comm);

/* attn_mpi_close() gives back what attn_mpi_open took; all ranks must call it together, before
 * MPI_Finalize. */
ATTN_API void attn_mpi_close(attn_mpi *m);

#ifdef __cplusplus
}
#endif

#endif /* ATTN_MPI_H */
