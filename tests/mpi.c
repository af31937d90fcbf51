/* mpi.c - rings of ranks over attn_mpi.h: the cases of tests/ring_cases.h on processes.
 * SPDX-License-Identifier: MIT
 *
 *     mpirun -n 4 build/mpi/test_mpi [SEED]
 *
 * Every rank prints what is wrong with its share; rank 0 prints how many cases there were. The exit
 * status is 0 only when nothing was wrong on any rank.
 */
#include "../attn_mpi.h"
#include "dilated_rank.h"
#include "ring_decode_rank.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct tally {
    const attn_transport *t;
    uint64_t seed;
    int cases, failed, canonical[4], reordered[4], gathered; /* by layout */
    double worst;
} tally;

static void count_outcome(tally *n, const ring_outcome *out)
{
    n->cases++;
    n->failed += out->why[0] != '\0';
    if (out->why[0] != '\0')
        fprintf(stderr, "FAILED mpi: %s\n", out->why);
}

static void count_case(tally *n, const ring_case *c, const ring_outcome *out)
{
    count_outcome(n, out);
    if (out->worst > n->worst)
        n->worst = out->worst;
    if (c->ring.gather)
        n->gathered++;
    else if (out->stats.canonical)
        n->canonical[c->ring.layout]++;
    else
        n->reordered[c->ring.layout]++;
}

/* Sums over the rows of all ranks have the same bits on each. */
static void compare_shared(const tally *n, const ring_case *c, ring_outcome *out)
{
    unsigned own[2] = { out->shared_bits, ~out->shared_bits }, most[2];
    MPI_Allreduce(own, most, 2, MPI_UNSIGNED, MPI_MAX, MPI_COMM_WORLD);
    if (most[0] != ~most[1] && out->why[0] == '\0')
        snprintf(out->why, sizeof out->why, "%s: rank %d: sums have other bits elsewhere", c->name,
                 n->t->rank);
}

static void run_cases(tally *n, int kind, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        ring_case c;
        ring_outcome out;
        if (!ring_case_make(&c, n->seed + (uint64_t)i, n->t->size, kind)) {
            fprintf(stderr, "FAILED mpi: %s\n", c.name);
            n->failed++;
        } else {
            ring_case_run(&c, n->t, NULL, &out);
            compare_shared(n, &c, &out);
            count_case(n, &c, &out);
        }
        ring_case_free(&c);
    }
}

/* Dilated attention, whose messages differ in length from rank to rank, in turns with its gradients. */
static void run_dilated(tally *n, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        const uint64_t seed = n->seed + (uint64_t)i;
        dilated_rank_problem x;
        dilated_rank_outcome out = { "one process failed", { 0 } };
        if (i % 2 ? dilated_rank_make_gradients(&x, seed, n->t->size)
                  : dilated_rank_make(&x, seed, n->t->size))
            dilated_rank_run(&x.c, n->t, &out);
        n->cases++;
        n->failed += out.why[0] != '\0';
        if (out.why[0] != '\0')
            fprintf(stderr, "FAILED mpi: dilated, %d: %s\n", i, out.why);
        free(x.memory);
    }
}

/* Decoding: equal bits on all ranks, each of which compares with one process or the oracle. */
static void run_decode(tally *n, int kind, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        decode_problem x;
        decode_outcome out = { "one process failed", { 0 }, 0, 0 };
        int most, least;
        if (decode_problem_make(&x, n->seed + (uint64_t)i, n->t->size, kind))
            decode_rank_run(&x, n->t, &out);
        most = n->t->agree(n->t->user, (int)(out.sum >> 2));
        least = 0x3fffffff - n->t->agree(n->t->user, 0x3fffffff - (int)(out.sum >> 2));
        if (most != least && out.why[0] == '\0')
            snprintf(out.why, sizeof out.why, "ranks have other bits");
        n->cases++;
        n->failed += out.why[0] != '\0';
        if (out.why[0] != '\0')
            fprintf(stderr, "FAILED mpi: decode, %d: %s\n", i, out.why);
        decode_problem_free(&x);
    }
}

/* One fault on each rank, at each exchange: all ranks return it, and nothing is written. */
static void run_faults(tally *n, int backward)
{
    const int size = n->t->size;
    for (int rank = 0; rank < size; rank++) {
        ring_case c;
        const int made = ring_case_make(&c, 7 + (uint64_t)rank, size, RING_FAULTY);
        for (int kind = RING_FAULT_BEGIN; made && kind < RING_FAULT_KINDS; kind++)
            for (int at = 0; at < ring_fault_places(&c, kind, backward); at++) {
                const ring_fault fault = { kind, rank, at, backward };
                ring_outcome out;
                ring_case_run(&c, n->t, &fault, &out);
                count_outcome(n, &out);
            }
        ring_case_free(&c);
    }
}

/* The failures of all ranks; rank 0 tells. */
static int report(const tally *n)
{
    int failed = 0;
    double worst = 0;
    MPI_Allreduce(&n->failed, &failed, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&n->worst, &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (n->t->rank == 0)
        printf("%d ranks: %d cases, %d failed; the bits of one process: %d contiguous, %d zigzag, "
               "%d striped, %d custom, %d gathered; reordered: %d %d %d %d; worst error %.3f of "
               "its tolerance\n",
               n->t->size, n->cases, failed, n->canonical[0], n->canonical[1], n->canonical[2],
               n->canonical[3], n->gathered, n->reordered[0], n->reordered[1], n->reordered[2],
               n->reordered[3], worst);
    return failed;
}

int main(int argc, char **argv)
{
    static tally n;
    attn_mpi mpi;
    int failed;
    MPI_Init(&argc, &argv);
    if (attn_mpi_open(&mpi, MPI_COMM_WORLD) != ATTN_OK) {
        fprintf(stderr, "FAILED mpi: attn_mpi_open\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    n.t = &mpi.transport;
    n.seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    /* MPICH's ranks wait busily, and take long where there are more of them than CPUs */
    run_cases(&n, RING_ALIGNED, n.t->size == 2 ? 24 : 12);
    run_cases(&n, RING_SMALL, n.t->size < 3 ? 48 : 24);
    run_cases(&n, RING_MIXED, 4);
    run_dilated(&n, 48);
    run_decode(&n, DECODE_SMALL, 48);
    run_decode(&n, DECODE_ALIGNED, 6);
    run_faults(&n, 0);
    if (n.t->size < 4)
        run_faults(&n, 1);
    failed = report(&n);
    attn_mpi_close(&mpi);
    MPI_Finalize();
    return failed != 0;
}
