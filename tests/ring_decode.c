/* ring_decode.c - decoding over virtual ranks, which are threads: the bits of one process or the bounds of
 * the oracle, equal bits on all ranks, traffic, faults, every misuse. That a step has the bits of prefill
 * follows: one process has them (decode.c).
 * SPDX-License-Identifier: MIT
 *
 * Checks are made by the main thread only. ATTN_TEST_QUICK in the environment leaves most rounds out
 * (ThreadSanitizer).
 */
#include "watched_ranks.h"
#include "ring_decode_rank.h"
#include "laws.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static int is_quick(void)
{
    return getenv("ATTN_TEST_QUICK") != NULL;
}

/* ---- one problem on all ranks ---------------------------------------------------------------- */

typedef struct job {
    const decode_problem *x;
    decode_outcome out[DECODE_MOST_RANKS];
} job;

static void run_one_rank(void *arg, const attn_transport *t)
{
    job *j = arg;
    decode_rank_run(j->x, t, &j->out[t->rank]);
}

static int run_job(job *j, int ranks)
{
    double balance = 0;
    int well = 1;
    if (!CHECK(watched_ranks_run(ranks, run_one_rank, j) == 0, "threads cannot be started"))
        return 0;
    for (int r = 0; r < ranks; r++) {
        well &= CHECK(j->out[r].why[0] == '\0', "%s", j->out[r].why);
        well &= CHECK(j->out[r].sum == j->out[0].sum, "rank %d has other bits than rank 0", r);
        worst_note(j->out[r].worst);
        balance += j->out[r].stats.bytes_sent - j->out[r].stats.bytes_received;
    }
    return well & CHECK(balance == 0, "%.0f bytes sent and not received", balance);
}

static int most_ranks(void)
{
    return virtual_ranks_most() > 1 ? DECODE_MOST_RANKS : 1;
}

static void run_random(const char *what, int kind, int rounds)
{
    for (int i = 0; i < (is_quick() ? rounds / 60 + 1 : rounds); i++) {
        const int ranks = 1 + i % most_ranks();
        decode_problem x;
        job j = { &x, { { { 0 }, { 0 }, 0, 0 } } };
        if (!begin_case("%s, round %d", what, i))
            continue;
        if (CHECK(decode_problem_make(&x, rng_u64(), ranks, kind), "one process failed") &&
            run_job(&j, ranks) && kind == DECODE_ALIGNED)
            CHECK(j.out[0].stats.canonical, "not canonical");
        decode_problem_free(&x);
    }
}

/* ---- traffic --------------------------------------------------------------------------------- */

/* A state of one row and head is head_dim_v + 2 floats, which go in whole lines of 16. */
static void run_traffic(void)
{
    decode_problem x;
    job j = { &x, { { { 0 }, { 0 }, 0, 0 } } };
    if (!begin_case("what travels") || most_ranks() < 4)
        return;
    memset(&x, 0, sizeof x);
    decode_problem_make(&x, 1, 4, DECODE_FAULTY);
    x.ring.layout = ATTN_RING_STRIPED;
    if (run_job(&j, 4)) {
        const attn_params *p = &x.p;
        const int64_t floats = p->batch * p->num_heads_q * p->seq_len_q * (p->head_dim_v + 2);
        CHECK(j.out[0].stats.bytes_sent == 3.0 * 4 * (double)((floats + 15) / 16 * 16),
              "%.0f bytes for states of %lld floats", j.out[0].stats.bytes_sent, (long long)floats);
    }
    decode_problem_free(&x);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static void run_faults(int ranks)
{
    for (int kind = RING_FAULT_BEGIN; kind < RING_FAULT_KINDS; kind++)
        for (int rank = 0; rank < ranks; rank++) {
            const int by_exchange = kind == RING_FAULT_BEGIN || kind == RING_FAULT_END;
            for (int at = 0; at < (by_exchange ? ranks - 1 : 1); at++) {
                const ring_fault fault = { kind, rank, at, 0 };
                decode_problem x;
                job j = { &x, { { { 0 }, { 0 }, 0, 0 } } };
                if (kind == RING_FAULT_FETCH ||
                    !begin_case("fault %d on rank %d of %d, number %d", kind, rank, ranks, at))
                    continue;
                decode_problem_make(&x, 77 + (uint64_t)rank, ranks, DECODE_FAULTY);
                x.fault = &fault;
                run_job(&j, ranks);
                decode_problem_free(&x);
            }
        }
}

static void run_unequal(void)
{
    decode_problem x;
    job j = { &x, { { { 0 }, { 0 }, 0, 0 } } };
    if (!begin_case("ranks with different numbers of rows") || most_ranks() < 3)
        return;
    decode_problem_make(&x, 5, 3, DECODE_FAULTY);
    x.other_rows = 1;
    run_job(&j, 3);
    decode_problem_free(&x);
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static attn_transport lonely;
static int32_t lengths[3] = { 0, 200 };
static int32_t tables[3 * 13], begins[3];

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

/* Pages for the first `keys` keys of each of the three sequences; the other entries name none. */
static void page(decode_problem *x, int keys)
{
    attn_rows *rows = &x->p.kv_rows;
    for (int n = 0; n < 3 * 13; n++)
        tables[n] = n % 13 * 16 < keys ? 38 - n : -1;
    memset(lengths, 0, sizeof lengths);
    rows->page_size = 16;
    rows->num_pages = 39;
    rows->table = tables;
}

#define MAKER(name, ...)                                                                           \
    static void name(decode_problem *x)                                                            \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
MAKER(no_transport, x->ring.transport = NULL)
MAKER(gather, x->ring.gather = 1)
MAKER(arrival, x->ring.arrival = 1)
MAKER(fetch, x->ring.fetch = fetch_nothing)
MAKER(logits, x->p.logits.data = x->p.o.data)
MAKER(naive, x->p.impl = ATTN_IMPL_NAIVE)
MAKER(varlen, x->p.cu_seqlens_kv = lengths)
MAKER(no_table, x->p.kv_rows.page_size = 16)
MAKER(no_pages, x->p.kv_rows.table = tables)
MAKER(few_pages, page(x, 200); x->p.kv_rows.num_pages = 38)
MAKER(wrong_page, page(x, 200); tables[13] = -1)
MAKER(short_table, page(x, 112); lengths[1] = 113; x->p.kv_len = lengths)
MAKER(short_ring, x->p.kv_rows.ring = 199)
MAKER(late_ring, x->p.kv_rows.ring = 200; x->p.kv_rows.begin = begins; begins[1] = 200)
MAKER(begin, x->p.kv_rows.begin = begins)
MAKER(recent, x->p.recent.keys = 4)
MAKER(key_row, x->p.part.key_row = 1)
MAKER(no_scales, x->p.k.dtype = ATTN_I8; x->p.k_scales.data = NULL)
MAKER(shard, x->ring.shard = -1)
MAKER(no_keys, x->p.k.data = NULL)
MAKER(on_itself, x->p.o.data = (void *)(uintptr_t)x->p.q.data)

static void run_misuse(void)
{
    static const struct {
        void (*make)(decode_problem *x);
        attn_status status;
        const char *sentence;
        int late; /* only the run looks at it */
    } table[] = {
        { no_transport, ATTN_ERR_ARG, "ring.transport is NULL", 0 },
        { gather, ATTN_ERR_UNSUPPORTED,
          "ring.gather (1) is set, but keys of decoding over ranks stay where they are", 0 },
        { arrival, ATTN_ERR_UNSUPPORTED,
          "ring.arrival (1) is set, but decoding over ranks merges states in one order", 0 },
        { fetch, ATTN_ERR_UNSUPPORTED,
          "ring.fetch is set, but decoding over ranks reads k.data and v.data", 0 },
        { logits, ATTN_ERR_UNSUPPORTED,
          "logits.data is set, but decoding over ranks does not take it", 0 },
        { naive, ATTN_ERR_UNSUPPORTED, "impl (2) (naive): a ring is built for ATTN_IMPL_TILED", 0 },
        { varlen, ATTN_ERR_UNSUPPORTED,
          "cu_seqlens_kv is set, but decoding over ranks does not take it", 0 },
        { no_table, ATTN_ERR_ARG, "kv_rows.page_size (16) is set, but kv_rows.table is NULL", 0 },
        { no_pages, ATTN_ERR_ARG,
          "kv_rows.page_size (0) must be at least 1 when kv_rows.table is given", 0 },
        { few_pages, ATTN_ERR_ARG, "kv_rows.table[0] (38) must be from 0 to num_pages (38) - 1",
          1 },
        { wrong_page, ATTN_ERR_ARG, "kv_rows.table[13] (-1) must be from 0 to num_pages (39) - 1",
          1 },
        { short_table, ATTN_ERR_ARG, "kv_rows.table[20] (-1) must be from 0 to num_pages (39) - 1",
          1 },
        { short_ring, ATTN_ERR_ARG,
          "kv_rows.ring (199) is below the rows up to the last key in use of sequence b (0), 200",
          1 },
        { late_ring, ATTN_ERR_ARG,
          "kv_rows.begin[1] (200) must be at least 0 and below kv_rows.ring", 1 },
        { begin, ATTN_ERR_ARG, "kv_rows.begin is given, but kv_rows.ring", 0 },
        { recent, ATTN_ERR_UNSUPPORTED,
          "recent.keys (4) is set, but decoding over ranks does not take it", 0 },
        { key_row, ATTN_ERR_UNSUPPORTED,
          "part.key_row (1) is set, but decoding over ranks does not take it", 0 },
        { no_scales, ATTN_ERR_ARG, "k.dtype (8) is i8, but k_scales.data is NULL", 0 },
        { shard, ATTN_ERR_ARG, "ring.shard (-1)", 0 },
        { no_keys, ATTN_ERR_ARG, "k.data is NULL", 1 },
        { on_itself, ATTN_ERR_ARG, "o overlaps q: what a call writes needs memory of its own", 1 },
    };
    static unsigned char memory[1 << 20];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const attn_transport alone = { 1,           0,         NULL,         agree_alone,
                                       begin_alone, end_alone, cancel_alone, NULL };
        decode_problem x;
        char text[300] = "";
        size_t bytes = 77;
        attn_status status;
        if (!begin_case("misuse: %s", table[i].sentence))
            continue;
        lonely = alone;
        decode_problem_make(&x, 3, 1, DECODE_FAULTY);
        x.ring.transport = &lonely;
        table[i].make(&x);
        memset(memory, 0x5a, sizeof memory);
        attn_ring_decode_check(&x.p, &x.ring, memory, sizeof memory, text, sizeof text);
        CHECK(strncmp(text, table[i].sentence, strlen(table[i].sentence)) == 0, "%s", text);
        status = attn_ring_decode_workspace_size(&x.p, &x.ring, &bytes);
        CHECK(status == (table[i].late ? ATTN_OK : table[i].status) &&
                  (bytes == 0) == !table[i].late,
              "size query: %s, %zu bytes", attn_status_string(status), bytes);
        status = attn_ring_decode_forward(&x.p, &x.ring, memory, sizeof memory);
        CHECK(status == table[i].status, "%s", attn_status_string(status));
        CHECK(all_bytes(memory, sizeof memory, 0x5a), "the workspace was written");
        decode_problem_free(&x);
    }
}

TEST_GROUP(ring_decode, RUN_ONCE, "decoding over ranks: bits, bounds, traffic, faults, misuse")
{
    if (T.impl == ATTN_IMPL_NAIVE)
        return;
    run_random("small", DECODE_SMALL, 3000);
    run_random("aligned", DECODE_ALIGNED, 120);
    run_traffic();
    for (int ranks = 1; ranks <= (most_ranks() < 4 ? 1 : 4); ranks++)
        run_faults(ranks);
    run_unequal();
    run_misuse();
}
