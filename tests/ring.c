/* ring.c - context parallelism over virtual ranks, which are threads: the bits of one process where
 * they are promised, else the bounds of the oracle; layouts; states that wait; faults.
 * SPDX-License-Identifier: MIT
 *
 * Cases are those of tests/ring_cases.h. Checks are made by the main thread only. ATTN_TEST_QUICK
 * in the environment leaves most rounds out (ThreadSanitizer).
 */
#include "watched_ranks.h"
#include "ring_cases.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8 };

/* ---- one case on all ranks ------------------------------------------------------------------- */

typedef struct job {
    const ring_case *c;
    const ring_fault *fault;
    ring_outcome out[MOST_RANKS];
} job;

static void run_one_rank(void *arg, const attn_transport *t)
{
    job *j = arg;
    ring_case_run(j->c, t, j->fault, &j->out[t->rank]);
}

static int run_job(job *j)
{
    int well = 1;
    if (!CHECK(watched_ranks_run(j->c->ranks, run_one_rank, j) == 0, "threads cannot be started"))
        return 0;
    for (int r = 0; r < j->c->ranks; r++) {
        worst_note(j->out[r].worst);
        well &= CHECK(j->out[r].why[0] == '\0', "%s", j->out[r].why);
        well &= CHECK(j->out[r].shared_bits == j->out[0].shared_bits,
                      "sums of rank %d have other bits than those of rank 0", r);
    }
    return well;
}

/* What all ranks did together: every pair once, as many bytes received as sent. */
static void check_sums(const job *j)
{
    double pairs = 0, balance = 0;
    int most = 0;
    for (int r = 0; r < j->c->ranks; r++) {
        pairs += j->out[r].stats.pairs;
        balance += j->out[r].stats.bytes_sent - j->out[r].stats.bytes_received;
        CHECK(j->out[r].stats.exchanges == j->c->ranks - 1, "%lld exchanges",
              (long long)j->out[r].stats.exchanges);
        most = j->out[r].stats.max_pending > most ? j->out[r].stats.max_pending : most;
    }
    CHECK(pairs == j->c->pairs, "%.0f pairs computed, there are %.0f", pairs, j->c->pairs);
    CHECK(balance == 0, "%.0f bytes sent and not received", balance);
    if (j->c->ring.gather)
        CHECK(most <= 1, "%d states with all keys gathered", most);
}

static int is_quick(void)
{
    return getenv("ATTN_TEST_QUICK") != NULL;
}

static void random_cases(const char *what, int kind, int rounds)
{
    for (int i = 0; i < (is_quick() ? rounds / 20 + 1 : rounds); i++) {
        const int ranks = virtual_ranks_most() > 1 ? 1 + i % MOST_RANKS : 1;
        ring_case c;
        job j = { &c, NULL, { { { 0 }, { 0 }, { 0 }, 0, 0 } } };
        if (!begin_case("%s, round %d", what, i))
            continue;
        if (CHECK(ring_case_make(&c, rng_u64(), ranks, kind), "%s", c.name) && run_job(&j))
            check_sums(&j);
        ring_case_free(&c);
    }
}

/* ---- layouts --------------------------------------------------------------------------------- */

/* A transport of which only the size is used. */
static attn_transport only_size(int size)
{
    attn_transport t;
    memset(&t, 0, sizeof t);
    t.size = size;
    return t;
}

/* Marks what a rank holds; ranges ascend, adjoin nowhere, have positions. */
static int64_t mark_ranges(const attn_params *p, const attn_ring *ring, int rank, uint8_t *held)
{
    attn_ring_range ranges[700];
    attn_ring_info info;
    int64_t count = 0, sum = 0, end = -1;
    if (!CHECK(attn_ring_ranges(p, ring, rank, ranges, 700, &count) == ATTN_OK && count <= 700,
               "rank %d: %lld ranges", rank, (long long)count))
        return 0;
    for (int64_t i = 0; i < count; i++) {
        CHECK(ranges[i].begin > end && ranges[i].count > 0, "rank %d, range %lld", rank,
              (long long)i);
        end = ranges[i].begin + ranges[i].count;
        for (int64_t x = ranges[i].begin; x < end && x < p->seq_len_q; x++)
            held[x]++;
        sum += ranges[i].count;
    }
    CHECK(attn_ring_describe(p, ring, rank, &info) == ATTN_OK && info.length == sum &&
              info.ranges == count && info.longest >= sum,
          "rank %d: described as %lld positions in %lld ranges", rank, (long long)info.length,
          (long long)info.ranges);
    return info.longest;
}

/* Every position of any length is held by one rank; the longest share is told alike to all. */
static void layouts_cover(void)
{
    static const int64_t shards[] = { 0, 1, 2, 7, 16, 1000, 1024, 4096 };
    for (int i = 0; i < (is_quick() ? 100 : 1500); i++) {
        attn_params p = { .batch = 1, .num_heads_q = 1, .head_dim = 1 };
        attn_ring ring = { .layout = (int)rng_int(0, 2) };
        const attn_transport t = only_size((int)rng_int(1, 17));
        uint8_t held[2000] = { 0 };
        int64_t longest = -1;
        int once = 1;
        ring.shard = RNG_PICK(shards);
        ring.transport = &t;
        p.seq_len_q = p.seq_len_kv = ring.shard == 1 ? rng_int(0, 600) : rng_int(0, 2000);
        if (!begin_case("layout %d, %d ranks, shard %lld, %lld positions", ring.layout, t.size,
                        (long long)ring.shard, (long long)p.seq_len_q))
            continue;
        for (int r = 0; r < t.size; r++) {
            const int64_t most = mark_ranges(&p, &ring, r, held);
            CHECK(longest < 0 || most == longest, "rank %d: longest %lld", r, (long long)most);
            longest = most;
        }
        for (int64_t x = 0; x < p.seq_len_q; x++)
            once &= held[x] == 1;
        CHECK(once, "a position is held by no rank, or by two");
    }
}

/* The shares of the layouts, written down. */
static void layouts_known(void)
{
    static const struct {
        int layout, size, rank;
        int64_t length, shard, count;
        attn_ring_range ranges[3];
    } known[] = {
        { ATTN_RING_CONTIGUOUS, 4, 0, 8192, 0, 1, { { 0, 2048 } } },
        { ATTN_RING_CONTIGUOUS, 4, 3, 8000, 0, 1, { { 6144, 1856 } } },
        { ATTN_RING_CONTIGUOUS, 3, 1, 5000, 0, 1, { { 1024, 2048 } } },
        { ATTN_RING_CONTIGUOUS, 2, 0, 700, 0, 0, { { 0, 0 } } },
        { ATTN_RING_CONTIGUOUS, 2, 1, 700, 0, 1, { { 0, 700 } } },
        { ATTN_RING_ZIGZAG, 2, 0, 4096, 0, 2, { { 0, 1024 }, { 3072, 1024 } } },
        { ATTN_RING_ZIGZAG, 2, 1, 4096, 0, 1, { { 1024, 2048 } } },
        { ATTN_RING_ZIGZAG, 2, 0, 80, 10, 2, { { 0, 20 }, { 60, 20 } } },
        { ATTN_RING_ZIGZAG, 1, 0, 80, 10, 1, { { 0, 80 } } },
        { ATTN_RING_STRIPED, 2, 1, 75, 16, 2, { { 16, 16 }, { 48, 16 } } },
        { ATTN_RING_STRIPED, 2, 0, 75, 16, 3, { { 0, 16 }, { 32, 16 }, { 64, 11 } } },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const attn_transport t = only_size(known[i].size);
        attn_params p = { .batch = 1, .num_heads_q = 1, .head_dim = 1 };
        attn_ring ring = { .layout = known[i].layout, .shard = known[i].shard };
        attn_ring_range ranges[3];
        int64_t count = -1;
        ring.transport = &t;
        p.seq_len_q = p.seq_len_kv = known[i].length;
        if (!begin_case("known layout %d", (int)i))
            continue;
        CHECK(attn_ring_ranges(&p, &ring, known[i].rank, ranges, 3, &count) == ATTN_OK &&
                  count == known[i].count,
              "%lld ranges", (long long)count);
        for (int64_t r = 0; r < count && r < known[i].count; r++)
            CHECK(ranges[r].begin == known[i].ranges[r].begin &&
                      ranges[r].count == known[i].ranges[r].count,
                  "range %lld: %lld + %lld", (long long)r, (long long)ranges[r].begin,
                  (long long)ranges[r].count);
    }
}

/* Which layouts promise the bits of one process. */
static void layouts_canonical(void)
{
    static const int64_t bases[][2] = { { 0, 0 }, { 1024, 1024 }, { 5, 5 }, { 0, 1024 } };
    static const struct {
        int layout, size, gather, arrival, base;
        int64_t length, shard;
        int canonical;
    } known[] = {
        { ATTN_RING_CONTIGUOUS, 4, 0, 0, 0, 9000, 0, 1 },
        { ATTN_RING_ZIGZAG, 4, 0, 0, 0, 9000, 0, 1 },
        { ATTN_RING_STRIPED, 4, 0, 0, 0, 9000, 2048, 1 },
        { ATTN_RING_CONTIGUOUS, 4, 0, 0, 1, 9000, 0, 1 },
        { ATTN_RING_CONTIGUOUS, 4, 0, 0, 2, 9000, 0, 0 },
        { ATTN_RING_CONTIGUOUS, 4, 0, 0, 3, 9000, 0, 0 },
        { ATTN_RING_CONTIGUOUS, 4, 1, 0, 3, 9000, 0, 1 },
        { ATTN_RING_CONTIGUOUS, 4, 0, 1, 0, 9000, 0, 0 },
        { ATTN_RING_CONTIGUOUS, 1, 0, 1, 2, 9000, 0, 1 },
        { ATTN_RING_CONTIGUOUS, 4, 0, 0, 0, 9000, 512, 0 },
        { ATTN_RING_STRIPED, 4, 0, 0, 0, 9000, 100, 0 },
        { ATTN_RING_STRIPED, 4, 0, 0, 0, 100, 100, 1 },
        { ATTN_RING_ZIGZAG, 4, 0, 0, 0, 900, 100, 0 },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const attn_transport t = only_size(known[i].size);
        attn_params p = { .batch = 2, .num_heads_q = 1, .head_dim = 1 };
        attn_ring ring = { .layout = known[i].layout, .shard = known[i].shard };
        attn_ring_info info;
        ring.transport = &t;
        ring.gather = known[i].gather;
        ring.arrival = known[i].arrival;
        p.seq_len_q = p.seq_len_kv = known[i].length;
        p.key_base = bases[known[i].base];
        if (!begin_case("canonical %d", (int)i))
            continue;
        CHECK(attn_ring_describe(&p, &ring, 0, &info) == ATTN_OK &&
                  info.canonical == known[i].canonical,
              "canonical: %d", info.canonical);
    }
}

/* ---- what the statistics promise ------------------------------------------------------------- */

typedef struct counting {
    attn_params p;
    attn_ring ring;
    attn_ring_stats stats[VIRTUAL_RANKS_MAX];
    attn_status status[VIRTUAL_RANKS_MAX];
} counting;

static void count_rank(void *arg, const attn_transport *t)
{
    counting *c = arg;
    attn_params p = c->p;
    attn_ring ring = c->ring;
    attn_ring_info info;
    size_t need = 0;
    float *memory;
    void *workspace;
    ring.transport = t;
    ring.stats = &c->stats[t->rank];
    attn_ring_describe(&p, &ring, t->rank, &info);
    memory = calloc((size_t)info.length * 4 + 1, sizeof *memory);
    p.q.data = memory;
    p.k.data = memory + info.length;
    p.v.data = memory + 2 * info.length;
    p.o.data = memory + 3 * info.length;
    attn_ring_workspace_size(&p, &ring, &need);
    workspace = malloc(need + 1);
    c->status[t->rank] = attn_ring_forward(&p, &ring, workspace, need);
    free(workspace);
    free(memory);
}

static int count(counting *c, int ranks, int layout, int64_t length, int causal)
{
    int well;
    memset(c, 0, sizeof *c);
    c->p.batch = c->p.num_heads_q = c->p.head_dim = 1;
    c->p.seq_len_q = c->p.seq_len_kv = length;
    c->p.causal = causal;
    c->ring.layout = layout;
    well = CHECK(watched_ranks_run(ranks, count_rank, c) == 0, "threads cannot be started");
    for (int r = 0; r < ranks; r++)
        well &= CHECK(c->status[r] == ATTN_OK, "%s", attn_status_string(c->status[r]));
    return well;
}

/* One shard of 1024 * 2^k keys a rank: at most 2 log2(R) states of a row at once. */
static void few_states_wait(void)
{
    static counting c;
    for (int log_ranks = 1; log_ranks <= (is_quick() ? 2 : 4); log_ranks++)
        for (int64_t chunks = 1; chunks <= (log_ranks < 3 ? 2 : 1); chunks *= 2) {
            const int ranks = 1 << log_ranks;
            if (!begin_case("%d ranks of %lld chunks", ranks, (long long)chunks) ||
                virtual_ranks_most() < ranks ||
                !count(&c, ranks, ATTN_RING_CONTIGUOUS, ranks * chunks * ATTN_CHUNK, 0))
                continue;
            for (int r = 0; r < ranks; r++)
                CHECK(c.stats[r].max_pending <= 2 * log_ranks, "rank %d: %d states", r,
                      c.stats[r].max_pending);
        }
}

static double imbalance(const counting *c, int ranks)
{
    double least = c->stats[0].pairs, most = least;
    for (int r = 1; r < ranks; r++) {
        least = c->stats[r].pairs < least ? c->stats[r].pairs : least;
        most = c->stats[r].pairs > most ? c->stats[r].pairs : most;
    }
    return most / least;
}

/* Causal: the last rank of a contiguous layout has 2 R - 1 times the pairs of the first; zig-zag,
 * all have the same, and what nobody sees is skipped. */
static void zigzag_balances(void)
{
    static counting c;
    enum { RANKS = 4, LENGTH = 2 * RANKS * ATTN_CHUNK };
    if (!begin_case("balance") || virtual_ranks_most() < RANKS || is_quick())
        return;
    if (count(&c, RANKS, ATTN_RING_CONTIGUOUS, LENGTH, 1)) {
        CHECK(imbalance(&c, RANKS) > 6.9, "contiguous: %.3f", imbalance(&c, RANKS));
        CHECK(c.stats[0].calls == 1 && c.stats[0].skipped == 3, "%lld calls, %lld skipped",
              (long long)c.stats[0].calls, (long long)c.stats[0].skipped);
    }
    if (count(&c, RANKS, ATTN_RING_ZIGZAG, LENGTH, 1))
        CHECK(imbalance(&c, RANKS) == 1, "zigzag: %.3f", imbalance(&c, RANKS));
    if (count(&c, RANKS, ATTN_RING_STRIPED, LENGTH, 1))
        CHECK(imbalance(&c, RANKS) < 2.3, "striped: %.3f", imbalance(&c, RANKS));
}

/* ---- what is not finite ---------------------------------------------------------------------- */

typedef struct nan_job {
    uint32_t dv[2];
    attn_status status[2];
    int gather;
} nan_job;

/* Rank r has position r, and the gradient by its row is inf or -inf. */
static void nan_rank(void *arg, const attn_transport *t)
{
    static const float ones[2] = { 1, 1 }, infinite[2] = { HUGE_VALF, -HUGE_VALF };
    nan_job *j = arg;
    const int r = t->rank;
    float o[2] = { 1, 1 }, stats[4] = { 0, 2, 0, 2 }, dv = 0;
    attn_params p = {
        .batch = 1, .num_heads_q = 1, .head_dim = 1, .seq_len_q = 2, .seq_len_kv = 2
    };
    attn_gradients g = { 0 };
    attn_ring ring = { .shard = 1 };
    size_t need = 0;
    void *workspace;
    p.q.data = ones + r, p.k.data = ones + r, p.v.data = ones + r;
    p.o.data = o + r, p.stats.data = stats + 2 * r;
    g.dout.data = infinite + r, g.dv.data = &dv;
    ring.transport = t;
    ring.gather = j->gather;
    attn_ring_backward_workspace_size(&p, &g, &ring, &need);
    workspace = malloc(need + 1);
    j->status[r] = attn_ring_backward(&p, &g, &ring, workspace, need);
    free(workspace);
    memcpy(&j->dv[r], &dv, sizeof dv);
}

/* inf - inf is another NaN on every CPU; what comes of it is written as one. */
static void nan_of_sums(void)
{
    for (int gather = 0; gather < 2; gather++) {
        nan_job j = { .gather = gather };
        if (!begin_case("inf - inf in a sum of ranks%s", gather ? ", gathered" : "") ||
            virtual_ranks_most() < 2 ||
            !CHECK(watched_ranks_run(2, nan_rank, &j) == 0, "threads cannot be started"))
            continue;
        for (int r = 0; r < 2; r++)
            CHECK(j.status[r] == ATTN_OK && j.dv[r] == 0x7fc00000u, "rank %d: %s, %08x", r,
                  attn_status_string(j.status[r]), (unsigned)j.dv[r]);
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

/* One fault on a rank, at each exchange: all ranks return it, and nothing is written. */
static void faults_of_rank(ring_case *c, int rank, int backward)
{
    static const char *const names[] = { "none",    "begin",     "end",     "fetch",
                                         "compute", "workspace", "argument" };
    for (int kind = RING_FAULT_BEGIN; kind < RING_FAULT_KINDS; kind++)
        for (int at = 0; at < ring_fault_places(c, kind, backward); at++) {
            const ring_fault fault = { kind, rank, at, backward };
            job j = { c, &fault, { { { 0 }, { 0 }, { 0 }, 0, 0 } } };
            if (begin_case("%s fails on rank %d of %d, number %d%s", names[kind], rank, c->ranks,
                           at, backward ? ", backward" : ""))
                run_job(&j);
        }
}

static void faults(int ranks)
{
    for (int rank = 0; rank < ranks; rank++) {
        ring_case c;
        if (CHECK(ring_case_make(&c, 77 + (uint64_t)rank, ranks, RING_FAULTY), "%s", c.name)) {
            faults_of_rank(&c, rank, 0);
            faults_of_rank(&c, rank, 1);
        }
        ring_case_free(&c);
    }
}

/* A rank may fail anywhere, and then all return that and have written nothing. */
FUZZ_HARNESS(ring, "one sequence over up to 4 virtual ranks, callbacks of which may fail")
{
    const int ranks = virtual_ranks_most() > 1 ? (int)rng_int(1, 4) : 1;
    const int first = ranks > 1 ? RING_FAULT_BEGIN : RING_FAULT_FETCH; /* one exchanges nothing */
    const int kind = rng_chance(50) ? (int)rng_int(first, RING_FAULT_KINDS - 1) : RING_FAULT_NONE;
    const int rank = (int)rng_int(0, ranks - 1), backward = rng_chance(50);
    const int fails = kind != RING_FAULT_NONE;
    const uint64_t seed = (uint64_t)rng_int(0, UINT32_MAX);
    ring_fault fault = { kind, rank, 0, backward };
    ring_case c;
    job j = { &c, fails ? &fault : NULL, { { { 0 }, { 0 }, { 0 }, 0, 0 } } };
    (void)bytes;
    (void)count;
    if (CHECK(ring_case_make(&c, seed, ranks, fails ? RING_FAULTY : RING_SMALL), "%s", c.name)) {
        fault.at = (int)rng_int(0, ring_fault_places(&c, kind, backward) - 1);
        if (run_job(&j) && !fails)
            check_sums(&j);
    }
    ring_case_free(&c);
}

/* ---- the group ------------------------------------------------------------------------------- */

TEST_GROUP(ring, RUN_ONCE, "one sequence over ranks: bits, bounds, faults, every misuse")
{
    const int most = virtual_ranks_most() > 1 ? 4 : 1;
    layouts_known();
    layouts_canonical();
    layouts_cover();
    random_cases("aligned", RING_ALIGNED, 56);
    random_cases("small, with gradients", RING_SMALL, 480);
    random_cases("cut anywhere", RING_MIXED, 48);
    few_states_wait();
    zigzag_balances();
    nan_of_sums();
    for (int ranks = 1; ranks <= most; ranks++) {
        if (is_quick() && ranks != 3)
            continue;
        faults(ranks);
    }
    test_ring_errors();
}
