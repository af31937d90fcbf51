/* attn_mpi.c - see attn_mpi.h.
 * SPDX-License-Identifier: MIT (full text at the end of attn.c)
 * attn 0.1.0
 */
#include "attn_mpi.h"

#include <limits.h>
#include <string.h>

enum { MPI_TAG_BLOCKS = 1, MPI_TAG_REST = 2 };

/* One direction: whole blocks, then the rest; either may be nothing. */
static int start_sending(attn_mpi *m, int to)
{
    const size_t blocks = m->send_bytes / ATTN_MPI_BLOCK, rest = m->send_bytes % ATTN_MPI_BLOCK;
    int failed = 0;
    if (blocks)
        failed |=
            MPI_Isend(m->send, (int)blocks, m->block, to, MPI_TAG_BLOCKS, m->comm, &m->requests[0]);
    if (rest)
        failed |= MPI_Isend(m->send + blocks * ATTN_MPI_BLOCK, (int)rest, MPI_BYTE, to,
                            MPI_TAG_REST, m->comm, &m->requests[1]);
    return failed;
}

static int start_receiving(attn_mpi *m, int from)
{
    const size_t blocks = m->receive_bytes / ATTN_MPI_BLOCK;
    const size_t rest = m->receive_bytes % ATTN_MPI_BLOCK;
    int failed = 0;
    if (blocks)
        failed |= MPI_Irecv(m->receive, (int)blocks, m->block, from, MPI_TAG_BLOCKS, m->comm,
                            &m->requests[2]);
    if (rest)
        failed |= MPI_Irecv(m->receive + blocks * ATTN_MPI_BLOCK, (int)rest, MPI_BYTE, from,
                            MPI_TAG_REST, m->comm, &m->requests[3]);
    return failed;
}

/* What was begun starts here: until all ranks have agreed there is nothing to be taken back, and
 * MPI has no reliable way to take back a message. */
static int mpi_agree(void *user, int value)
{
    attn_mpi *m = (attn_mpi *)user;
    const int size = m->transport.size, rank = m->transport.rank;
    int highest = 0;
    if (MPI_Allreduce(&value, &highest, 1, MPI_INT, MPI_MAX, m->comm) != MPI_SUCCESS)
        return -1;
    if (m->waiting && highest == 0) {
        m->failed = start_receiving(m, (rank + size - 1) % size) != 0;
        m->failed |= start_sending(m, (rank + 1) % size) != 0;
    }
    m->waiting = 0;
    return highest;
}

static int mpi_begin(void *user, const void *send, size_t send_bytes, void *receive,
                     size_t receive_bytes)
{
    attn_mpi *m = (attn_mpi *)user;
    m->send = (const char *)send;
    m->send_bytes = send_bytes;
    m->receive = (char *)receive;
    m->receive_bytes = receive_bytes;
    m->waiting = 1;
    return send_bytes / ATTN_MPI_BLOCK > INT_MAX || receive_bytes / ATTN_MPI_BLOCK > INT_MAX;
}

static int mpi_end(void *user)
{
    attn_mpi *m = (attn_mpi *)user;
    MPI_Status statuses[4];
    const int failed = MPI_Waitall(4, m->requests, statuses) != MPI_SUCCESS;
    return failed || m->failed;
}

/* Nothing has started. */
static void mpi_cancel(void *user)
{
    ((attn_mpi *)user)->waiting = 0;
}

static double mpi_seconds(void *user)
{
    (void)user;
    return MPI_Wtime();
}

ATTN_API attn_status attn_mpi_open(attn_mpi *m, MPI_Comm comm)
{
    attn_transport *t;
    int i, failed;
    if (!m)
        return ATTN_ERR_ARG;
    memset(m, 0, sizeof *m);
    t = &m->transport;
    for (i = 0; i < 4; i++)
        m->requests[i] = MPI_REQUEST_NULL;
    if (MPI_Comm_dup(comm, &m->comm) != MPI_SUCCESS)
        return ATTN_ERR_CALLBACK;
    failed = MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    failed |= MPI_Comm_size(m->comm, &t->size);
    failed |= MPI_Comm_rank(m->comm, &t->rank);
    failed |= MPI_Type_contiguous(ATTN_MPI_BLOCK, MPI_BYTE, &m->block);
    failed |= MPI_Type_commit(&m->block);
    t->user = m;
    t->agree = mpi_agree;
    t->begin = mpi_begin;
    t->end = mpi_end;
    t->cancel = mpi_cancel;
    t->seconds = mpi_seconds;
    if (!failed)
        return ATTN_OK;
    MPI_Comm_free(&m->comm);
    return ATTN_ERR_CALLBACK;
}

ATTN_API void attn_mpi_close(attn_mpi *m)
{
    MPI_Type_free(&m->block);
    MPI_Comm_free(&m->comm);
}
