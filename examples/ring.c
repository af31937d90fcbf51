/* ring.c - context parallelism: one sequence over 1, 2, 3 and 8 ranks, which are threads here. The
 * output has the same bits however many ranks there are, and however the sequence is cut. The last
 * line merges keys as they arrive, which needs fewer states and gives other bits.
 * SPDX-License-Identifier: MIT
 *
 * mpi_ring.c does this with MPI instead of threads.
 */
#include "ring_rank.h"
#include "virtual_ranks.h"

#include <stdio.h>
#include <string.h>

enum { POSITIONS = 20000, MOST_RANKS = 8 };

static void run_rank(void *arg, const attn_transport *transport)
{
    ring_rank *ranks = arg;
    ring_rank_run(&ranks[transport->rank], transport);
}

/* Makes one call on `size` ranks. Returns 0 if O has the bits of the first call or, with arrival,
 * a row had two states at most. */
static int run(const char *name, int layout, int size, int arrival)
{
    static uint64_t first;
    ring_rank ranks[MOST_RANKS];
    uint64_t checksum = 0;
    double least = 0, most = 0;
    int states = 0;
    memset(ranks, 0, sizeof ranks);
    for (int r = 0; r < size; r++) {
        ranks[r].layout = layout;
        ranks[r].arrival = arrival;
        ranks[r].positions = POSITIONS;
    }
    if (virtual_ranks_run(size, run_rank, ranks) != 0) {
        fprintf(stderr, "ring: threads cannot be started\n");
        return 1;
    }
    for (int r = 0; r < size; r++) {
        const attn_ring_stats *s = &ranks[r].stats;
        if (strcmp(ranks[r].why, "ok") != 0) {
            fprintf(stderr, "ring: rank %d: %s\n", r, ranks[r].why);
            return 1;
        }
        checksum += ranks[r].checksum;
        least = r == 0 || s->pairs < least ? s->pairs : least;
        most = s->pairs > most ? s->pairs : most;
        states = s->max_pending > states ? s->max_pending : states;
    }
    printf("%-10s  %d ranks  O %016llx  work of a rank: %5.1f to %5.1f million pairs  "
           "states of a row: %d\n",
           name, size, (unsigned long long)checksum, least / 1e6, most / 1e6, states);
    if (first == 0)
        first = checksum;
    return arrival ? states > 2 : checksum != first;
}

int main(void)
{
    int failed = run("contiguous", ATTN_RING_CONTIGUOUS, 1, 0);
    for (int size = 2; size <= MOST_RANKS && !failed; size += size == 3 ? 5 : 1) {
        failed = run("contiguous", ATTN_RING_CONTIGUOUS, size, 0);
        failed |= run("zigzag", ATTN_RING_ZIGZAG, size, 0);
        failed |= run("striped", ATTN_RING_STRIPED, size, 0);
    }
    failed = failed || run("arrival", ATTN_RING_ZIGZAG, MOST_RANKS, 1);
    return failed;
}
