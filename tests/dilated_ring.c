/* dilated_ring.c - dilated attention over virtual ranks, which are threads: the bits of one process, for
 * any cuts; what travels; faults; every misuse. All of it forward and for gradients.
 * SPDX-License-Identifier: MIT
 *
 * Checks are made by the main thread only. ATTN_TEST_QUICK in the environment leaves most rounds out
 * (ThreadSanitizer).
 */
#include "watched_ranks.h"
#include "dilated.h"
#include "dilated_rank.h"
#include "gradients.h"
#include "laws.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 6 };

static int is_quick(void)
{
    return getenv("ATTN_TEST_QUICK") != NULL;
}

/* ---- one case on all ranks ------------------------------------------------------------------- */

typedef struct job {
    const dilated_rank_case *c;
    dilated_rank_outcome out[MOST_RANKS];
} job;

static void run_one_rank(void *arg, const attn_transport *t)
{
    job *j = arg;
    dilated_rank_run(j->c, t, &j->out[t->rank]);
}

static int run_job(job *j, int ranks)
{
    double balance = 0;
    int well = 1;
    if (!CHECK(watched_ranks_run(ranks, run_one_rank, j) == 0, "threads cannot be started"))
        return 0;
    for (int r = 0; r < ranks; r++) {
        well &= CHECK(j->out[r].why[0] == '\0', "%s", j->out[r].why);
        balance += j->out[r].stats.bytes_sent - j->out[r].stats.bytes_received;
        well &= CHECK(j->out[r].stats.exchanges == j->out[0].stats.exchanges, "%lld exchanges",
                      (long long)j->out[r].stats.exchanges);
    }
    return well & CHECK(balance == 0, "%.0f bytes sent and not received", balance);
}

/* Ranks count each pair once. */
static void check_pairs(const job *j, int ranks, double expected)
{
    double pairs = 0;
    for (int r = 0; r < ranks; r++)
        pairs += j->out[r].stats.pairs;
    CHECK(pairs == expected, "%.0f pairs computed, there are %.0f", pairs, expected);
}

/* ---- random calls ---------------------------------------------------------------------------- */

/* Ranges of any lengths, which ranks hold in any order. */
typedef struct uneven {
    attn_ring_range ranges[MOST_RANKS];
    int64_t first[MOST_RANKS + 1];
} uneven;

static void cut_unevenly(uneven *u, int ranks, int64_t positions, attn_ring *ring)
{
    int order[MOST_RANKS];
    int64_t at = 0;
    for (int r = 0; r < ranks; r++) {
        const int other = (int)rng_int(0, r);
        order[r] = order[other];
        order[other] = r;
        u->first[r] = r;
    }
    u->first[ranks] = ranks;
    for (int i = 0; i < ranks; i++) {
        attn_ring_range *range = &u->ranges[order[i]];
        range->begin = at;
        range->count = i == ranks - 1 ? positions - at : rng_int(0, positions - at);
        at += range->count;
    }
    ring->layout = ATTN_RING_CUSTOM;
    ring->ranges = u->ranges;
    ring->first_range = u->first;
}

static void random_ranks(const dilated_case *c, int ranks, uneven *u, dilated_rank_case *on)
{
    static const int64_t shards[] = { 1, 2, 5, 8, 16, 24, 64, 0 };
    memset(on, 0, sizeof *on);
    on->p = dilated_params(&c->t.p);
    on->d = c->d;
    on->d.block_rows = rng_chance(50) ? 0 : rng_int(1, 60);
    on->spread = (int)rng_int(0, 2);
    if (rng_chance(30))
        cut_unevenly(u, ranks, c->t.p.seq_len_kv, &on->ring);
    else
        on->ring.shard = RNG_PICK(shards);
}

static void compare_ranks(int ranks, int most_features, int64_t most_positions, int stored)
{
    dilated_case c;
    dilated_rank_case on;
    uneven u;
    job j = { &on, { { { 0 }, { 0 } } } };
    dilated_make_square(&c, most_features, most_positions, stored);
    if (stored)
        quantise_for_levels(&c.t);
    if (!dilated_run(&c.t.p, &c.d))
        return;
    if (!stored && most_positions < 500)
        dilated_check(&c);
    random_ranks(&c, ranks, &u, &on);
    if (run_job(&j, ranks) && most_features == 0 && !stored)
        check_pairs(&j, ranks, dilated_count(&c));
}

static void compare_gradients(int ranks, int64_t most_positions)
{
    dilated_case c;
    attn_gradients g;
    dilated_rank_case on;
    uneven u;
    job j = { &on, { { { 0 }, { 0 } } } };
    if (!dilated_gradients_square(&c, &g, most_positions))
        return;
    random_ranks(&c, ranks, &u, &on);
    on.p = gradients_params(&c.t.p);
    on.p.backend = NULL;
    on.g = &g;
    run_job(&j, ranks);
}

static int ranks_of(int round)
{
    return virtual_ranks_most() > 1 ? 1 + round % MOST_RANKS : 1;
}

static void run_random(void)
{
    const int rounds = is_quick() ? 30 : 360;
    for (int n = 0; n < rounds; n++)
        if (begin_case("ranks, %d", n))
            compare_ranks(ranks_of(n), n % 4 == 0 ? 0 : 6, n % 50 == 49 ? 300 : 70, 0);
    for (int n = 0; n < rounds / 6; n++)
        if (begin_case("K and V in other types, %d", n))
            compare_ranks(ranks_of(n), 4, 120, 1);
    for (int n = 0; n < rounds / 60; n++)
        if (begin_case("chunks of 1024 keys, %d", n))
            compare_ranks(ranks_of(n), 2, 4000, 0);
    for (int n = 0; n < rounds; n++)
        if (begin_case("gradients over ranks, %d", n))
            compare_gradients(ranks_of(n), n % 50 == 49 ? 300 : 70);
    for (int n = 0; n < rounds / 120; n++)
        if (begin_case("gradients of chunks of 1024 rows, %d", n))
            compare_gradients(ranks_of(n), 3000);
}

/* ---- what travels ---------------------------------------------------------------------------- */

enum { RANKS = 4, SHARD = 32, LENGTH = RANKS * SHARD, HEADS = 2, DIM = 2, WIDTH = HEADS * DIM };
enum {
    KEY_BYTES = 2 * WIDTH * 4,
    ROW_BYTES = (3 * WIDTH + 2 * HEADS) * 4
}; /* k, v; q, dout, o, stats */

typedef struct known_call {
    dilated_rank_case c;
    attn_dilated_branch branch;
    attn_gradients g;
    float values[4][LENGTH * WIDTH], o[LENGTH * WIDTH], stats[LENGTH * HEADS * 2];
    float grads[3][LENGTH * WIDTH];
} known_call;

static void make_known(known_call *x, int64_t segment, int64_t dilation, int causal, int backward)
{
    attn_params *p = &x->c.p;
    static char workspace[1 << 20];
    memset(x, 0, sizeof *x);
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < LENGTH * WIDTH; i++)
            x->values[t][i] = rng_normal();
    p->batch = 1;
    p->num_heads_q = HEADS;
    p->seq_len_q = p->seq_len_kv = LENGTH;
    p->head_dim = DIM;
    p->causal = causal;
    p->q.data = x->values[0], p->k.data = x->values[1], p->v.data = x->values[2];
    p->o.data = x->o;
    x->branch.segment = segment;
    x->branch.dilation = dilation;
    x->c.d.num_branches = 1;
    x->c.d.branches = &x->branch;
    x->c.ring.shard = SHARD;
    if (backward) {
        p->impl = ATTN_IMPL_TILED;
        p->stats.data = x->stats;
        x->g.dout.data = x->values[3];
        x->g.dq.data = x->grads[0], x->g.dk.data = x->grads[1], x->g.dv.data = x->grads[2];
        x->c.g = &x->g;
    }
    CHECK(attn_dilated_forward(p, &x->c.d, workspace, sizeof workspace) == ATTN_OK, "one process");
    if (backward)
        CHECK(attn_dilated_backward(p, &x->c.d, &x->g, workspace, sizeof workspace) == ATTN_OK,
              "one process, gradients");
}

/* Keys that travel, times the ranks that they travel; for gradients rows do, too. */
static void run_traffic(void)
{
    static const struct {
        int64_t segment, dilation;
        int causal, exchanges, keys, row_exchanges, rows;
    } known[] = {
        { 32, 1, 0, 0, 0, 0, 0 }, /* inside ranks */
        { 16, 4, 1, 0, 0, 0, 0 }, /* too */
        { 64, 1, 1, 1, 2 * 32, 3,
          2 * 3 * 32 }, /* from the first to the second of a pair, and back */
        { 64, 2, 0, 3, 2 * (1 + 3) * 16, 3, 2 * (1 + 3) * 16 }, /* both ways */
        { 0, 4, 1, 3, (3 + 2 + 1) * 8, 3, 3 * 3 * 8 }, /* up to the last rank, and to the first */
        { 0, 4, 0, 3, 4 * 3 * 8, 3, 4 * 3 * 8 },       /* to all */
        { 48, 1, 1, 1, 32 + 16, 3, 3 * (16 + 32) },    /* 0-31 and 48-63 to the next rank */
        { 0, 200, 0, 3, 3, 3, 3 },                     /* one key */
    };
    static known_call x;
    for (size_t i = 0; i < 2 * sizeof known / sizeof *known; i++) {
        const int backward = (int)(i % 2);
        const int exchanges = known[i / 2].exchanges + (backward ? known[i / 2].row_exchanges : 0);
        const int expected =
            known[i / 2].keys * KEY_BYTES + (backward ? known[i / 2].rows * ROW_BYTES : 0);
        job j = { &x.c, { { { 0 }, { 0 } } } };
        double bytes = 0;
        if (!begin_case("what travels, %d", (int)i) || virtual_ranks_most() < RANKS)
            continue;
        make_known(&x, known[i / 2].segment, known[i / 2].dilation, known[i / 2].causal, backward);
        if (!run_job(&j, RANKS))
            continue;
        for (int r = 0; r < RANKS; r++)
            bytes += j.out[r].stats.bytes_sent;
        CHECK(j.out[0].stats.exchanges == exchanges, "%lld exchanges",
              (long long)j.out[0].stats.exchanges);
        CHECK(bytes == (double)expected, "%.0f bytes travel, not %d", bytes, expected);
    }
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void run_faults(int backward)
{
    static const char *const names[] = { "none",    "begin",     "end",     "fetch",
                                         "compute", "workspace", "argument" };
    static known_call x;
    for (int kind = RING_FAULT_BEGIN; kind < RING_FAULT_KINDS; kind++)
        for (int rank = 0; rank < RANKS && kind != RING_FAULT_FETCH; rank++)
            for (int at = 0; at < (kind <= RING_FAULT_END ? (1 + backward) * (RANKS - 1) : 1);
                 at++) {
                const ring_fault fault = { kind, rank, at, 0 };
                job j = { &x.c, { { { 0 }, { 0 } } } };
                if (!begin_case("%s fails on rank %d, number %d%s", names[kind], rank, at,
                                backward ? ", gradients" : "") ||
                    virtual_ranks_most() < RANKS)
                    continue;
                make_known(&x, 0, 3, 0, backward);
                x.c.fault = &fault;
                run_job(&j, RANKS);
            }
    if (begin_case("other branches on the last rank") && virtual_ranks_most() >= RANKS) {
        job j = { &x.c, { { { 0 }, { 0 } } } };
        make_known(&x, 0, 3, 0, backward);
        x.c.other_branches = 1;
        run_job(&j, RANKS);
    }
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static attn_transport lonely;
static int32_t lengths[2] = { LENGTH - 1, LENGTH };
static const attn_ring_range two_ranges[] = { { 0, 10 }, { 20, LENGTH - 20 }, { 10, 10 } };
static const int64_t first_of_two[] = { 0, 2, 3 };

static int agree_alone(void *user, int value)
{
    (void)user;
    return value;
}

static int begin_alone(void *user, const void *send, size_t send_bytes, void *receive,
                       size_t receive_bytes)
{
    (void)user, (void)send, (void)send_bytes, (void)receive, (void)receive_bytes;
    return 1;
}

static int end_alone(void *user)
{
    (void)user;
    return 1;
}

static void cancel_alone(void *user)
{
    (void)user;
}

static int fetch_nothing(void *user, void *k, void *v)
{
    (void)user, (void)k, (void)v;
    return 1;
}

#define MAKER(name, ...)                                                                           \
    static void name(known_call *x)                                                                \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
MAKER(no_transport, x->c.ring.transport = NULL)
MAKER(zigzag, lonely.size = 2; x->c.ring.layout = ATTN_RING_ZIGZAG)
MAKER(ranges, lonely.size = 2; x->c.ring.layout = ATTN_RING_CUSTOM; x->c.ring.shard = 0;
      x->c.ring.ranges = two_ranges; x->c.ring.first_range = first_of_two)
MAKER(gather, x->c.ring.gather = 1)
MAKER(arrival, x->c.ring.arrival = 1)
MAKER(fetch, x->c.ring.fetch = fetch_nothing)
MAKER(gathered, x->c.d.variant = ATTN_DILATED_GATHERED)
MAKER(q_len, x->c.p.q_len = lengths; x->c.p.kv_len = lengths + 1)
MAKER(kv_len, x->c.p.kv_len = lengths)
MAKER(naive, x->c.p.impl = ATTN_IMPL_NAIVE)
MAKER(varlen, x->c.p.cu_seqlens_kv = lengths)
MAKER(tree, x->c.p.tree_parents = lengths)
MAKER(kv_begin, x->c.p.kv_begin = lengths)
MAKER(prefix, x->c.p.causal = 1; x->c.p.prefix = lengths)
MAKER(rows, x->c.p.seq_len_q = LENGTH - 1)
MAKER(offset, x->branch.offset = 9)
MAKER(merge, x->c.d.merge = 2)
MAKER(mean, x->c.d.merge = 1; x->c.p.lse.data = x->o)
MAKER(no_keys, x->c.p.k.data = NULL)
MAKER(on_itself, x->c.p.o.data = x->values[0])
MAKER(no_gradients, x->c.g = NULL)
MAKER(mean_gradients, x->c.d.merge = 1; x->c.p.stats.data = NULL; x->g.dlse.data = x->stats)
MAKER(dsinks, x->g.dsinks = x->stats)
MAKER(no_sums, x->c.p.stats.data = NULL)
MAKER(untiled, x->c.p.impl = ATTN_IMPL_AUTO)
MAKER(dq_on_q, x->g.dq.data = x->values[0])

static void run_misuse(void)
{
    static const struct {
        void (*make)(known_call *x);
        attn_status status;
        const char *sentence;
        int late;     /* only the run looks at it */
        int backward; /* of gradients */
    } table[] = {
        { no_transport, ATTN_ERR_ARG, "ring.transport is NULL", 0, 0 },
        { zigzag, ATTN_ERR_UNSUPPORTED,
          "ring.layout (1) gives a rank several ranges, and dilated attention takes one", 0, 0 },
        { ranges, ATTN_ERR_UNSUPPORTED,
          "ring.layout (3) gives a rank several ranges, and dilated attention takes one", 0, 0 },
        { gather, ATTN_ERR_UNSUPPORTED,
          "ring.gather (1) is set, but dilated attention always gathers what ranks share", 0, 0 },
        { arrival, ATTN_ERR_UNSUPPORTED,
          "ring.arrival (1) is set, but dilated attention merges branches in their order", 0, 0 },
        { fetch, ATTN_ERR_UNSUPPORTED,
          "ring.fetch is set, but dilated attention reads k.data and v.data", 0, 0 },
        { gathered, ATTN_ERR_UNSUPPORTED,
          "variant (1) (gathered) is not built for ranks: leave it 0 (strided)", 0, 0 },
        { q_len, ATTN_ERR_ARG, "q_len[0] (127) must be kv_len: over ranks every position is a row",
          0, 0 },
        { kv_len, ATTN_ERR_ARG,
          "q_len[0] (128) exceeds kv_len: rows are the last positions of the sequence", 0, 0 },
        { naive, ATTN_ERR_UNSUPPORTED, "impl (2) (naive): a ring is built for ATTN_IMPL_TILED", 0,
          0 },
        { varlen, ATTN_ERR_UNSUPPORTED,
          "cu_seqlens_kv is set, but a ring of ranks does not take it", 0, 0 },
        { tree, ATTN_ERR_UNSUPPORTED, "tree_parents is set, but dilated attention does not take it",
          0, 0 },
        { kv_begin, ATTN_ERR_UNSUPPORTED,
          "kv_begin is set, but ranks of dilated attention cut rows and keys alike", 0, 0 },
        { prefix, ATTN_ERR_UNSUPPORTED,
          "prefix is set, but ranks gather only the keys up to their last row", 0, 0 },
        { rows, ATTN_ERR_UNSUPPORTED,
          "seq_len_q (127) must be seq_len_kv (128): a ring cuts rows and keys alike", 0, 0 },
        { offset, ATTN_ERR_ARG, "branches[0].offset (9) must be below its dilation (3)", 0, 0 },
        { merge, ATTN_ERR_ARG, "merge (2) must be 0 (LSE) or 1 (mean)", 0, 0 },
        { mean, ATTN_ERR_UNSUPPORTED,
          "lse.data is set, but a mean of branches is no softmax and has none", 0, 0 },
        { no_keys, ATTN_ERR_ARG, "k.data is NULL", 1, 0 },
        { on_itself, ATTN_ERR_ARG, "o overlaps q: what a call writes needs memory of its own", 1,
          0 },
        { no_gradients, ATTN_ERR_ARG, "gradients is NULL", 0, 1 },
        { mean_gradients, ATTN_ERR_UNSUPPORTED,
          "dlse.data is set, but a mean of branches has no lse", 0, 1 },
        { dsinks, ATTN_ERR_UNSUPPORTED,
          "dbias, dsinks and dslopes are not built for branches over ranks: leave them NULL", 0,
          1 },
        { gather, ATTN_ERR_UNSUPPORTED,
          "ring.gather (1) is set, but dilated attention always gathers what ranks share", 0, 1 },
        { zigzag, ATTN_ERR_UNSUPPORTED,
          "ring.layout (1) gives a rank several ranges, and dilated attention takes one", 0, 1 },
        { untiled, ATTN_ERR_UNSUPPORTED, "impl (3) must be tiled for gradients of merged branches",
          0, 1 },
        { no_sums, ATTN_ERR_ARG, "stats.data and lse.data are NULL", 1, 1 },
        { dq_on_q, ATTN_ERR_ARG, "dq overlaps q", 1, 1 },
    };
    static known_call x;
    static unsigned char memory[1 << 20];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const attn_transport alone = { 1,           0,         NULL,         agree_alone,
                                       begin_alone, end_alone, cancel_alone, NULL };
        const int backward = table[i].backward;
        const attn_gradients *g;
        char text[300] = "";
        size_t bytes = 77;
        attn_status status;
        if (!begin_case("misuse: %s%s", table[i].sentence, backward ? ", gradients" : ""))
            continue;
        lonely = alone;
        make_known(&x, 0, 3, 0, table[i].backward);
        x.c.ring.transport = &lonely;
        table[i].make(&x);
        g = x.c.g;
        memset(memory, 0x5a, sizeof memory);
        if (backward)
            attn_dilated_ring_backward_check(&x.c.p, &x.c.d, g, &x.c.ring, memory, sizeof memory,
                                             text, sizeof text);
        else
            attn_dilated_ring_check(&x.c.p, &x.c.d, &x.c.ring, memory, sizeof memory, text,
                                    sizeof text);
        CHECK(strncmp(text, table[i].sentence, strlen(table[i].sentence)) == 0, "%s", text);
        status = backward ? attn_dilated_ring_backward_workspace_size(&x.c.p, &x.c.d, g, &x.c.ring,
                                                                      &bytes)
                          : attn_dilated_ring_workspace_size(&x.c.p, &x.c.d, &x.c.ring, &bytes);
        CHECK(status == (table[i].late ? ATTN_OK : table[i].status) &&
                  (bytes == 0) == !table[i].late,
              "size query: %s, %zu bytes", attn_status_string(status), bytes);
        status =
            backward
                ? attn_dilated_ring_backward(&x.c.p, &x.c.d, g, &x.c.ring, memory, sizeof memory)
                : attn_dilated_ring_forward(&x.c.p, &x.c.d, &x.c.ring, memory, sizeof memory);
        CHECK(status == table[i].status, "%s", attn_status_string(status));
        CHECK(all_bytes(memory, sizeof memory, 0x5a), "the workspace was written");
    }
}

TEST_GROUP(dilated_ring, RUN_ONCE, "dilated attention over ranks: bits, traffic, faults, misuse")
{
    if (T.impl == ATTN_IMPL_NAIVE)
        return;
    run_random();
    run_traffic();
    run_faults(0);
    run_faults(1);
    run_misuse();
}
