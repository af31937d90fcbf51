/* explain.c - attn_explain tells what runs; options from text; backends; sizes and versions.
 * SPDX-License-Identifier: MIT
 */
#include "spy.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#ifdef _OPENMP
enum { OPENMP = 1 };
#else
enum { OPENMP = 0 };
#endif

/* ---- a call ---------------------------------------------------------------------------------- */

typedef struct call {
    attn_params p;
    int32_t q_len[3], kv_len[3], q_offset[3], prefix[3];
    int64_t key_base[3];
} call;

static float *numbers(int64_t count)
{
    float *x = test_alloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = rng_normal();
    return x;
}

static void make_call(call *c, int64_t batch, int64_t heads, int64_t kv_heads, int64_t seq_q,
                      int64_t seq_kv, int64_t dim, int64_t dim_v)
{
    attn_params *p = &c->p;
    memset(c, 0, sizeof *c);
    p->batch = batch;
    p->num_heads_q = heads;
    p->num_heads_kv = kv_heads;
    p->seq_len_q = seq_q;
    p->seq_len_kv = seq_kv;
    p->head_dim = dim;
    p->head_dim_v = dim_v;
    p->q.data = numbers(batch * heads * seq_q * dim);
    p->k.data = numbers(batch * kv_heads * seq_kv * dim);
    p->v.data = numbers(batch * kv_heads * seq_kv * dim_v);
    p->o.data = numbers(batch * heads * seq_q * dim_v);
}

static attn_status run_call(const attn_params *p, const attn_info *info)
{
    return attn_forward(p, test_alloc(info->workspace_bytes), info->workspace_bytes);
}

/* ---- what ran, seen by a table that counts --------------------------------------------------- */

static struct {
    int most_keys;
    int64_t items, loops;
} seen;

static void *count_keys(int kernel, void *first)
{
    const attn_product *p = first;
    if (kernel == SPY_pv)
        seen.most_keys = p->n > seen.most_keys ? p->n : seen.most_keys;
    return first;
}

static int count_items(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user;
    seen.loops++;
    seen.items = n > seen.items ? n : seen.items;
    for (int64_t i = 0; i < n; i++)
        task(arg, i, 0);
    return 0;
}

static attn_kernels counting_table(const attn_kernels *real)
{
    attn_kernels table = spy_on(real, count_keys);
    memset(&seen, 0, sizeof seen);
    table.name = "counting";
    return table;
}

static void check_what_ran(int impl, int tile_keys)
{
    call c;
    attn_info info;
    const attn_kernels table = counting_table(attn_kernels_get(0));
    make_call(&c, 2, 4, 2, 37, 210, 16, 8);
    c.p.impl = impl;
    c.p.tile_keys = tile_keys;
    c.p.kernels = &table;
    c.p.parallel_for = count_items;
    c.p.num_workers = 2; /* one worker needs no loop of the caller's */
    CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain failed");
    CHECK(run_call(&c.p, &info) == ATTN_OK, "attn_forward failed");
    CHECK(strcmp(info.kernels_name, "counting") == 0, "kernels_name '%s'", info.kernels_name);
    CHECK(strcmp(info.backend_name, "cpu") == 0, "backend_name '%s'", info.backend_name);
    CHECK(strcmp(info.impl_name, info.impl == ATTN_IMPL_NAIVE ? "naive" : "tiled") == 0,
          "impl_name '%s'", info.impl_name);
    CHECK(info.impl == (impl == ATTN_IMPL_NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED), "impl %d",
          info.impl);
    CHECK(spy.calls[SPY_qk] > 0, "the table given was not used");
    CHECK(info.items == seen.items, "%lld items, %lld ran", (long long)info.items,
          (long long)seen.items);
    CHECK(info.tile_rows == table.rows, "tile_rows %d, the set has %d", info.tile_rows, table.rows);
    if (impl != ATTN_IMPL_NAIVE) {
        CHECK(spy.calls[SPY_running_max] > 0, "tiled without the online softmax");
        CHECK(tile_keys == 0 || info.tile_keys == tile_keys, "tile_keys %d", info.tile_keys);
        CHECK(seen.most_keys <= info.tile_keys && 2 * seen.most_keys > info.tile_keys,
              "tiles of up to %d keys, told %d", seen.most_keys, info.tile_keys);
    } else {
        CHECK(spy.calls[SPY_running_max] == 0, "naive with the online softmax");
        CHECK(spy.calls[SPY_exp_sum] > 0, "naive without its own");
    }
}

static void check_runs(void)
{
    static const int impls[] = { ATTN_IMPL_DEFAULT, ATTN_IMPL_TILED, ATTN_IMPL_NAIVE };
    static const int tiles[] = { 0, 16, 64, 128 };
    for (size_t i = 0; i < sizeof impls / sizeof *impls; i++)
        for (size_t n = 0; n < sizeof tiles / sizeof *tiles; n++)
            if (begin_case("impl %d, tile_keys %d: what ran", impls[i], tiles[n]))
                check_what_ran(impls[i], tiles[n]);
}

/* ---- workspace ------------------------------------------------------------------------------- */

static void check_workspace(int impl, int workers, int64_t seq_kv)
{
    call c;
    attn_info info;
    size_t need = 0;
    make_call(&c, 2, 4, 2, 5, seq_kv, 16, 16);
    c.p.impl = impl;
    c.p.num_workers = workers;
    c.p.parallel_for = count_items;
    CHECK(attn_workspace_size(&c.p, &need) == ATTN_OK, "attn_workspace_size failed");
    CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain failed");
    CHECK(info.workspace_bytes == need, "told %lu, asked %lu", (unsigned long)info.workspace_bytes,
          (unsigned long)need);
    CHECK(info.workers >= 1 && info.workers <= workers, "%d workers of %d", info.workers, workers);
    CHECK(info.workspace_bytes_per_worker > 0 &&
              need >= info.workspace_bytes_per_worker * (size_t)info.workers,
          "%lu bytes for %d workers of %lu", (unsigned long)need, info.workers,
          (unsigned long)info.workspace_bytes_per_worker);
    CHECK(run_call(&c.p, &info) == ATTN_OK, "the size told is not enough");
}

static void check_workspaces(void)
{
    static const int workers[] = { 1, 2, 3, 7 };
    for (int impl = ATTN_IMPL_DEFAULT; impl <= ATTN_IMPL_AUTO; impl++)
        for (size_t n = 0; n < sizeof workers / sizeof *workers; n++)
            for (int64_t seq_kv = 1; seq_kv < 4000; seq_kv = seq_kv * 7 + 1)
                if (begin_case("impl %d, %d workers, %d keys: workspace", impl, workers[n],
                               (int)seq_kv))
                    check_workspace(impl, workers[n], seq_kv);
}

/* The tiled path needs the same for any length, and no pointer to data is needed to ask. */
static void check_constant(void)
{
    attn_params p = { 0 };
    size_t need[2] = { 0, 1 };
    static float there[16];
    if (!begin_case("workspace of the tiled path at 4096 and 1 M keys"))
        return;
    p.batch = p.num_heads_q = 1;
    p.seq_len_q = 64;
    p.head_dim = 64;
    p.num_workers = 1;
    p.q.data = p.k.data = p.v.data = there;
    p.o.data = there;
    for (int i = 0; i < 2; i++) {
        p.seq_len_kv = i ? 1 << 20 : 4096;
        CHECK(attn_workspace_size(&p, &need[i]) == ATTN_OK, "attn_workspace_size failed");
    }
    /* A counter of merged states grows with the logarithm of the length: 8 levels more here. */
    CHECK(need[1] <= need[0] + need[0] / 2 && need[1] <= 1 << 20, "%lu and %lu bytes",
          (unsigned long)need[0], (unsigned long)need[1]);
}

/* ---- what the plan chooses: none of it changes a bit ----------------------------------------- */

enum { MANY = 1536 }; /* rows: a multiple of every tile */

/* One head of MANY rows; K and V of this width and distance between rows. */
static attn_info planned_as(const char *tuning, int dtype, int64_t keys, int64_t dim,
                            ptrdiff_t stride, int workers)
{
    static float there[16];
    attn_params p = { 0 };
    attn_info info;
    p.batch = p.num_heads_q = 1;
    p.seq_len_q = MANY;
    p.seq_len_kv = keys;
    p.head_dim = dim;
    p.num_workers = workers;
    p.parallel_for = count_items;
    p.impl = ATTN_IMPL_TILED;
    p.tuning = tuning;
    p.k.dtype = p.v.dtype = dtype;
    p.k.stride_seq = p.v.stride_seq = stride;
    p.q.data = p.k.data = p.v.data = there;
    p.o.data = there;
    CHECK(attn_explain(&p, &info) == ATTN_OK, "attn_explain: %s", info.reasons);
    return info;
}

static attn_info planned(int dtype, int64_t keys, int64_t dim, ptrdiff_t stride, int workers)
{
    return planned_as(NULL, dtype, keys, dim, stride, workers);
}

/* Whether the workspace for these queries and keys holds every call of fewer. */
static void check_room(int64_t queries, int64_t keys, int dtype, int64_t dim, int64_t dim_v,
                       int workers)
{
    /* Nothing is read or written there. */
    void *const there = (void *)((uintptr_t)1 << 28), *const o = (void *)((uintptr_t)2 << 28);
    void *const workspace = (void *)((uintptr_t)4 << 28);
    static const int64_t lengths[] = { 1, 2, 8, 12, 24, 25, 64, 100, 256, 1024, 2048, 4096 };
    const int count = (int)(sizeof lengths / sizeof *lengths);
    attn_params p = { .batch = 1, .num_heads_q = 8, .num_heads_kv = 2 };
    size_t room = 0;
    char why[200];
    p.head_dim = dim;
    p.head_dim_v = dim_v;
    p.k.dtype = p.v.dtype = dtype;
    p.q.data = p.k.data = p.v.data = there;
    p.o.data = o;
    p.num_workers = workers;
    p.parallel_for = count_items;
    p.seq_len_q = queries;
    p.seq_len_kv = keys;
    CHECK(attn_workspace_size(&p, &room) == ATTN_OK, "attn_workspace_size failed");
    for (int n = 0; n < count && lengths[n] <= keys; n++)
        for (int m = 0; m < count && lengths[m] <= queries; m++) {
            p.seq_len_q = lengths[m];
            p.seq_len_kv = lengths[n];
            CHECK(strcmp(attn_check(&p, workspace, room, why, sizeof why), "ok") == 0,
                  "room for %d queries of %d keys, %d of %d: %s", (int)queries, (int)keys,
                  (int)lengths[m], (int)lengths[n], why);
        }
}

/* A workspace for the longest sequences holds every shorter call. */
static void check_shorter(void)
{
    static const int64_t dims[][2] = { { 128, 128 }, { 256, 8 }, { 8, 256 }, { 64, 40 } };
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (int64_t queries = 1; queries < 5000; queries += 1 + queries / 3)
                for (int n = 0; n < 4; n++)
                    check_room(queries, n / 2 ? 70000 : 1000, dtype, dims[d][0], dims[d][1],
                               n % 2 ? 3 : 1);
}

/* Where a shorter call needs more for a worker, as its row tiles share nothing, it takes smaller
 * tiles before it leaves workers out: a few queries after a long prefill, in tiles of any
 * number of rows. */
static void check_workers_kept(void)
{
    static const int prefills[] = { 17, 22, 27 };
    for (size_t n = 0; n < sizeof prefills / sizeof *prefills; n++) {
        call c;
        attn_info info;
        char *workspace;
        make_call(&c, 1, 32, 8, prefills[n], 300, 64, 64);
        c.p.k.dtype = c.p.v.dtype = ATTN_F16; /* any bits will do */
        c.p.num_workers = 2;
        c.p.parallel_for = count_items;
        CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain: %s", info.reasons);
        workspace = test_alloc(info.workspace_bytes);
        for (; c.p.seq_len_q >= 1; c.p.seq_len_q -= c.p.seq_len_q > 8 ? 8 : 1) {
            seen.items = seen.loops = 0;
            CHECK(attn_forward(&c.p, workspace, info.workspace_bytes) == ATTN_OK,
                  "%d rows: refused", (int)c.p.seq_len_q);
            CHECK(seen.loops > 0, "%d of %d rows: one worker", (int)c.p.seq_len_q, prefills[n]);
        }
    }
}

/* A query with logits before o is known has room for o, too. */
static void check_query(void)
{
    static float there[16];
    for (int whole = 0; whole < 2; whole++) {
        attn_params p = { .batch = 1, .num_heads_q = 4, .num_heads_kv = 4, .head_dim = 64 };
        size_t before = 0, after = 0;
        p.seq_len_q = p.seq_len_kv = 300;
        p.impl = ATTN_IMPL_NAIVE;
        p.naive_whole = whole;
        p.q.data = p.k.data = p.v.data = p.logits.data = there;
        p.logits.num_rows = 1;
        CHECK(attn_workspace_size(&p, &before) == ATTN_OK, "attn_workspace_size failed");
        p.o.data = there;
        CHECK(attn_workspace_size(&p, &after) == ATTN_OK, "attn_workspace_size failed");
        CHECK(before == after, "%lu bytes before o is known, %lu after", (unsigned long)before,
              (unsigned long)after);
    }
}

/* The best set comes first, its narrow form for no more rows than it has. */
static void check_choice(void)
{
    const attn_kernels *wide = attn_kernels_get(0), *narrow = attn_kernels_get(1);
    const int both = narrow != NULL && narrow->rows < wide->rows &&
                     strncmp(narrow->name, wide->name, strlen(wide->name)) == 0;
    for (int64_t rows = 1; rows < 100; rows++) {
        attn_params p = { .batch = 1, .num_heads_q = 1, .seq_len_kv = 8, .head_dim = 8 };
        static float there[16];
        attn_info info;
        const attn_kernels *expected = both && rows <= narrow->rows ? narrow : wide;
        p.seq_len_q = rows;
        p.q.data = p.k.data = p.v.data = p.o.data = there;
        CHECK(attn_explain(&p, &info) == ATTN_OK, "attn_explain: %s", info.reasons);
        CHECK(strcmp(info.kernels_name, expected->name) == 0, "%d rows: %s, not %s", (int)rows,
              info.kernels_name, expected->name);
    }
}

/* 16-bit K and V are copied: row tiles share the copies, but leave four items to each of several
 * workers and stay within 1 MiB. */
static void check_sharing(void)
{
    for (int workers = 1; workers <= 64; workers *= 2)
        for (int64_t dim = 16; dim <= 1024; dim *= 2) {
            const attn_info info = planned(ATTN_F16, 8192, dim, 0, workers);
            const int64_t alone = MANY / info.tile_rows, least = workers > 1 ? 4 * workers : 1;
            CHECK(info.items == alone * info.key_parts ||
                      (info.items >= least && info.workspace_bytes_per_worker <= 1 << 20),
                  "%d workers, width %d: %d items, %lu bytes", workers, (int)dim, (int)info.items,
                  (unsigned long)info.workspace_bytes_per_worker);
            CHECK(workers > 1 || dim > 64 || info.items < alone, "width %d: nothing is shared",
                  (int)dim);
        }
}

/* Decoding with these kv heads and workers. */
static attn_params decoding(int64_t heads, int64_t keys, int64_t dim, int workers)
{
    static float there[16];
    attn_params p = { .batch = 1, .num_heads_q = 4 * heads, .num_heads_kv = heads };
    p.seq_len_q = 1;
    p.seq_len_kv = keys;
    p.head_dim = p.head_dim_v = dim;
    p.num_workers = workers;
    p.parallel_for = count_items;
    p.tuning = "attn-tuning 1 split_work 131072 end";
    p.q.data = p.k.data = p.v.data = p.o.data = there;
    return p;
}

/* Few heads are divided by keys, so that each worker has its share: but not where whole heads make
 * even rounds, nor where there is little to do. Memory stays within 1 MiB a worker. */
static void check_split(void)
{
    static const int64_t lengths[] = { 700, 1024, 1500, 3000, 16384, 65536, 1000000 };
    for (int workers = 1; workers <= 16; workers++)
        for (int64_t heads = 1; heads <= 8; heads++)
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
                const attn_params p = decoding(heads, lengths[k], 128, workers);
                const int even = heads % workers == 0 || heads >= 4 * workers;
                const int few_keys = heads > 3 && lengths[k] <= ATTN_CHUNK; /* too little room */
                const size_t most = (size_t)workers << 20;
                const int fits = fits_memory(&p);
                attn_info info;
                CHECK(attn_explain(&p, &info) == (fits ? ATTN_OK : ATTN_ERR_OVERFLOW),
                      "attn_explain: %s", info.reasons);
                if (!fits)
                    continue;
                CHECK(even ? info.key_parts == 1 : info.key_parts > 1 || few_keys,
                      "%d heads, %d workers, %d keys: %d parts", (int)heads, workers,
                      (int)lengths[k], info.key_parts);
                CHECK(even || info.items >= workers || few_keys,
                      "%d heads, %d workers, %d keys: %d items", (int)heads, workers,
                      (int)lengths[k], (int)info.items);
                CHECK(info.workspace_bytes <= most, "%d workers: %lu bytes", workers,
                      (unsigned long)info.workspace_bytes);
            }
    for (int64_t keys = 16; keys < 512; keys *= 2) {
        const attn_params p = decoding(1, keys, 128, 2);
        attn_info info;
        CHECK(attn_explain(&p, &info) == ATTN_OK && info.key_parts == 1, "%d keys are divided",
              (int)keys);
    }
}

/* MLA as tiles of 48 rows have it: three row tiles, whose states of 48 x 512 numbers are large, are
 * two parts each for two workers, within 1 MiB of shared memory a worker. With tiles of fewer rows
 * there are as many tiles, with states as large. */
static void check_large_states(void)
{
    for (int workers = 2; workers <= 8; workers++) {
        attn_params p = decoding(1, 8192, 576, workers);
        attn_info info;
        p.num_heads_q = 128;
        CHECK(attn_explain(&p, &info) == ATTN_OK, "attn_explain: %s", info.reasons);
        p.num_heads_q = 128 * info.tile_rows / 48;
        p.head_dim_v = 512 * 48 / info.tile_rows;
        CHECK(attn_explain(&p, &info) == ATTN_OK, "attn_explain: %s", info.reasons);
        CHECK(info.key_parts > 1, "%d workers: %d parts", workers, info.key_parts);
        CHECK(info.workspace_bytes <=
                  (size_t)workers * (info.workspace_bytes_per_worker + (1 << 20)) + (1 << 14),
              "%d workers: %lu bytes", workers, (unsigned long)info.workspace_bytes);
    }
}

/* The call takes a workspace of 1 MiB a worker at most, if its arrays can be in memory. */
static void check_megabyte(const attn_params *p, const char *where)
{
    size_t bytes = 0;
    const attn_status status = attn_workspace_size(p, &bytes);
    CHECK(status == (fits_memory(p) ? ATTN_OK : ATTN_ERR_OVERFLOW), "attn_workspace_size: %d",
          (int)status);
    CHECK(bytes <= (size_t)p->num_workers << 20,
          "%s, %s with %d rows: batch %d, heads %d/%d, %d x %d keys, width %d/%d, types %d %d, "
          "distance %d, base %d, part %d, ring %d, %d workers: %lu bytes",
          where, attn_kernels_name(p->kernels), p->kernels->rows, (int)p->batch,
          (int)p->num_heads_q, (int)p->num_heads_kv, (int)p->seq_len_q, (int)p->seq_len_kv,
          (int)p->head_dim, (int)p->head_dim_v, p->k.dtype, p->v.dtype, (int)p->k.stride_seq,
          p->key_base != NULL, p->part.keys, (int)p->kv_rows.ring, p->num_workers,
          (unsigned long)bytes);
}

/* A call that draws what decides about memory: sizes, kernel set, workers, how keys are stored. */
static attn_params random_memory(const attn_kernels *set)
{
    static const int64_t widths[] = { 8, 64, 80, 96, 128, 192, 199, 200, 224, 255, 256 };
    static const int64_t groups[] = { 1, 4, 7, 32, 128 }, entries[] = { 1, 1, 2, 9 };
    static const int64_t lengths[] = { 1, 1000, 1500, 4096, 5000, 9000, 65536, 1000000, 1 << 20 };
    static const int64_t bases[9] = { 1023 };
    const int way = (int)rng_int(0, 3);
    attn_params p = decoding((int64_t)1 << rng_int(0, 3), RNG_PICK(lengths), RNG_PICK(widths),
                             (int)(rng_chance(70) ? rng_int(1, 16) : rng_int(1, 256)));
    p.tuning = NULL;
    p.kernels = set;
    p.batch = RNG_PICK(entries);
    p.num_heads_q = p.num_heads_kv * RNG_PICK(groups);
    p.seq_len_q = rng_chance(50) ? (int64_t)1 << rng_int(0, 12) : rng_int(1, 400);
    p.head_dim_v = rng_chance(60) ? p.head_dim : rng_int(1, 256);
    p.k.dtype = (int)rng_int(0, 2);
    p.v.dtype = rng_chance(50) ? p.k.dtype : (int)rng_int(0, 2);
    p.k.stride_seq = p.v.stride_seq = (ptrdiff_t)(rng_chance(30) ? 8 * 256 : 0);
    p.key_base = rng_chance(50) ? bases : NULL;
    p.part.keys = way == 1;
    p.part.key_count = way == 1 ? p.seq_len_kv : 0;
    p.kv_rows.ring = way == 2 ? p.seq_len_kv : 0;
    return p;
}

/* These calls came closest to 1 MiB, or exceeded it: a large state in each slot, copies, a key that
 * begins inside a chunk, and keys that are divided among workers beside them. */
static void check_known_memory(const attn_kernels *set)
{
    static const struct {
        int64_t heads, group, rows, keys, width;
        int dtype, based, workers;
    } known[] = {
        { 1, 32, 4, 5000, 255, ATTN_F32, 1, 64 },    { 1, 1, 200, 4096, 256, ATTN_F16, 1, 64 },
        { 2, 4, 2, 5000, 256, ATTN_BF16, 1, 256 },   { 2, 7, 40, 9000, 255, ATTN_F32, 1, 254 },
        { 1, 1, 512, 1 << 20, 64, ATTN_F32, 0, 83 }, { 1, 7, 1024, 65536, 192, ATTN_BF16, 1, 163 },
        { 8, 1, 4, 1000000, 256, ATTN_F32, 0, 5 },   { 1, 1, 96, 1500, 224, ATTN_F32, 0, 1 },
        { 1, 1, 512, 1 << 20, 256, ATTN_F16, 1, 1 },
    };
    static const int64_t base = 1023;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        attn_params p = decoding(known[i].heads, known[i].keys, known[i].width, known[i].workers);
        p.tuning = NULL;
        p.kernels = set;
        p.num_heads_q = known[i].heads * known[i].group;
        p.seq_len_q = known[i].rows;
        p.k.dtype = p.v.dtype = known[i].dtype;
        p.key_base = known[i].based ? &base : NULL;
        check_megabyte(&p, "known");
    }
}

static void check_memory_of(const attn_kernels *set)
{
    check_known_memory(set);
    for (int round = 0; round < 5000; round++) {
        const attn_params p = random_memory(set);
        check_megabyte(&p, "random");
    }
}

/* The README promises 1 MiB a worker at most for heads up to 256 wide and up to 2^20 keys, where
 * the library chooses the sizes of tiles. Tiles of most rows come closest, which only AVX-512 has:
 * a set that is never run shows them everywhere. */
static void check_memory(void)
{
    const attn_kernels *set;
    attn_kernels tall = *attn_kernels_get(0);
    tall.rows = ATTN_KERNEL_MAX_ROWS;
    check_memory_of(&tall);
    for (int n = 0; (set = attn_kernels_get(n)) != NULL; n++)
        check_memory_of(set);
}

/* Runs *p in a workspace of `bytes`: all of its pieces of work run one by one, with that many
 * workers as it asks for. */
static void check_all_items(attn_params *p, size_t bytes, const char *where)
{
    attn_info info;
    CHECK(attn_explain(p, &info) == ATTN_OK, "attn_explain: %s", info.reasons);
    info.workspace_bytes = bytes;
    seen.items = 0;
    CHECK(run_call(p, &info) == ATTN_OK, "%s: attn_forward failed", where);
    CHECK(seen.items == info.items && info.items >= p->num_workers,
          "%s: %d workers, %d keys: %d items of %d ran", where, p->num_workers, (int)p->seq_len_kv,
          (int)seen.items, (int)info.items);
}

/* A call with fewer keys, or of one row after a prompt, is divided in the workspace of the longest,
 * too. */
static void check_split_kept(void)
{
    static const int64_t lengths[] = { 600, 1023, 1500, 2048, 3500, 5000 },
                         prompts[] = { 1, 9, 6000 };
    call c;
    make_call(&c, 1, 4, 1, 1, 5000, 128, 128);
    c.p.parallel_for = count_items;
    for (int n = 0; n < 8 * 6 * 3; n++) {
        const int workers = 2 + n / 18;
        const int64_t prompt = prompts[n / 6 % 3], keys = lengths[n % 6];
        const int64_t dim = prompt == 6000 ? 32 : 128; /* little memory for the prompt's tiles */
        size_t bytes = 0, one_row = 0;
        attn_params p = decoding(1, 6000, dim, workers);
        p.tuning = "attn-tuning 1 split_work 1024 end";
        CHECK(attn_workspace_size(&p, &one_row) == ATTN_OK, "attn_workspace_size failed");
        p.seq_len_q = prompt;
        CHECK(attn_workspace_size(&p, &bytes) == ATTN_OK, "attn_workspace_size failed");
        CHECK(bytes >= one_row, "%d workers: %lu bytes for %d rows, %lu for one", workers,
              (unsigned long)bytes, (int)prompt, (unsigned long)one_row);
        c.p.seq_len_kv = keys;
        c.p.head_dim = c.p.head_dim_v = dim;
        c.p.num_workers = workers;
        c.p.tuning = p.tuning;
        check_all_items(&c.p, bytes, "shorter");
    }
}

/* The least workspace does not grow with the rows: they share nothing in it. */
static void check_least(void)
{
    unsigned long least[2] = { 0, 0 };
    for (int many = 0; many < 2; many++) {
        attn_params p = decoding(1, 8192, 64, 1);
        static float there[16];
        char why[200];
        p.k.dtype = p.v.dtype = ATTN_F16; /* copied: many rows would like to share them */
        p.seq_len_q = many ? MANY : 16;   /* of 4 heads: the widest set takes both */
        p.q.data = p.k.data = p.v.data = (void *)((uintptr_t)1 << 28); /* not read */
        p.o.data = (void *)((uintptr_t)2 << 28);
        attn_check(&p, there, 0, why, sizeof why);
        CHECK(sscanf(why, "workspace is NULL or empty and must have at least %lu", &least[many]) ==
                  1,
              "%s", why);
    }
    CHECK(least[0] == least[1], "%lu bytes for few rows, %lu for many", least[0], least[1]);
}

/* Some rows after a prompt, as in speculative decoding, want more room to divide keys than either
 * the prompt or one row: in that of the prompt all workers have their part all the same. */
static void check_some_rows(void)
{
    for (int64_t rows = 2; rows <= 12; rows++) {
        call c;
        size_t bytes = 0;
        attn_params p = decoding(1, 6000, 64, 2);
        p.seq_len_q = 300;
        CHECK(attn_workspace_size(&p, &bytes) == ATTN_OK, "attn_workspace_size failed");
        make_call(&c, 1, 4, 1, rows, 6000, 64, 64);
        c.p.parallel_for = count_items;
        c.p.num_workers = 2;
        c.p.tuning = p.tuning;
        seen.items = 0;
        CHECK(attn_forward(&c.p, test_alloc(bytes), bytes) == ATTN_OK, "attn_forward failed");
        CHECK(seen.items >= 2, "%d rows: %d items in parallel", (int)rows, (int)seen.items);
    }
}

/* Room is there for all workers where a prefix that the query took for shared is none at last. */
static void check_prefix_refused(void)
{
    const int32_t lengths[] = { 900, 4000 };
    for (int workers = 2; workers <= 9; workers++) {
        call c;
        size_t bytes = 0;
        make_call(&c, 2, 4, 1, 1, 4000, 128, 128);
        c.p.kv_len = lengths;
        c.p.shared_keys = 1000;
        c.p.parallel_for = count_items;
        c.p.num_workers = workers;
        c.p.tuning = "attn-tuning 1 split_work 131072 end";
        CHECK(attn_workspace_size(&c.p, &bytes) == ATTN_OK, "attn_workspace_size failed");
        check_all_items(&c.p, bytes, "not shared");
    }
}

/* Without a parallel_for one worker runs, which divides no keys: running_max is called as often. */
static void check_alone(void)
{
    const attn_kernels table = counting_table(attn_kernels_find("portable")); /* small states */
    int64_t calls[2];
    for (int many = 0; many < 2 && !OPENMP; many++) {
        call c;
        attn_info info;
        make_call(&c, 1, 4, 1, 1, 4000, 128, 128);
        c.p.kernels = &table;
        c.p.num_workers = many ? 4 : 1;
        c.p.tuning = "attn-tuning 1 split_work 131072 end";
        CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain: %s", info.reasons);
        CHECK(info.workers == 1 && info.key_parts == 1, "%d workers, %d parts", info.workers,
              info.key_parts);
        CHECK(!many || strstr(info.reasons, "parallel_for is NULL"), "why: %s", info.reasons);
        spy.calls[SPY_running_max] = 0;
        CHECK(run_call(&c.p, &info) == ATTN_OK, "attn_forward failed");
        calls[many] = spy.calls[SPY_running_max];
        CHECK(!many || calls[1] == calls[0], "%lld calls of running_max, %lld with one worker",
              (long long)calls[1], (long long)calls[0]);
    }
}

/* Memory of a worker tells whether f32 rows are copied: those a multiple of 1 KiB apart are, unless
 * they are contiguous. */
static void check_copies(void)
{
    const size_t contiguous = planned(ATTN_F32, 4096, 256, 0, 64).workspace_bytes_per_worker;
    const size_t apart = planned(ATTN_F32, 4096, 256, 272, 64).workspace_bytes_per_worker;
    const size_t aliases = planned(ATTN_F32, 4096, 256, 512, 64).workspace_bytes_per_worker;
    CHECK(contiguous == apart, "%lu bytes for contiguous rows, %lu else", (unsigned long)contiguous,
          (unsigned long)apart);
    CHECK(aliases > apart, "%lu bytes for rows 2 KiB apart, %lu else", (unsigned long)aliases,
          (unsigned long)apart);
}

/* Shared or not, memory does not depend on the length where nothing is copied. */
static void check_shared_length(void)
{
    static const char *const tunings[] = { NULL, "attn-tuning 1 item_rows 256 end" };
    for (int n = 0; n < 2; n++) {
        const attn_info few = planned_as(tunings[n], ATTN_F32, 1024, 64, 0, 1);
        const attn_info many = planned_as(tunings[n], ATTN_F32, 1 << 20, 64, 0, 1);
        CHECK(few.workspace_bytes == many.workspace_bytes, "%lu bytes for 1024 keys, %lu for 2^20",
              (unsigned long)few.workspace_bytes, (unsigned long)many.workspace_bytes);
    }
}

/* Calls of few keys ask for few bytes. The least workspace of a long call has tiles of 16 keys, and a merge
 * tree for the keys that there are. */
static void check_small_workspaces(void)
{
    static const struct {
        int64_t rows, keys, dim;
        size_t most[2]; /* with 16 and with 4 rows in a tile */
        size_t most_64; /* with 4, and addresses of 64 bits */
    } sizes[] = { { 1, 16, 8, { 8400, 4096 }, 5000 }, { 128, 128, 64, { 101000, 9000 }, 10000 } };
    const attn_kernels *const kernels = attn_kernels_find("portable");
    size_t bytes, least;
    call c;
    for (int n = 0; n < 2; n++) {
        const int few = kernels->rows < 16;
        const size_t most = few && sizeof(void *) > 4 ? sizes[n].most_64 : sizes[n].most[few];
        make_call(&c, 1, 1, 1, sizes[n].rows, sizes[n].keys, sizes[n].dim, sizes[n].dim);
        c.p.kernels = kernels;
        c.p.num_workers = 1;
        CHECK(attn_workspace_size(&c.p, &bytes) == ATTN_OK && bytes <= most,
              "%d keys: %lu bytes, more than %lu", (int)sizes[n].keys, (unsigned long)bytes,
              (unsigned long)most);
    }
    make_call(&c, 1, 1, 1, 1, 4096, 64, 64);
    c.p.kernels = kernels;
    least = test_least_workspace(&c.p);
    c.p.tile_keys = 16;
    bytes = test_least_workspace(&c.p);
    CHECK(least == bytes, "least: %lu bytes, %lu with tiles of 16 keys", (unsigned long)least,
          (unsigned long)bytes);
    c.p.seq_len_kv = 1 << 20;
    bytes = test_least_workspace(&c.p);
    CHECK(least < bytes, "least: %lu bytes for 4096 keys, %lu for 2^20", (unsigned long)least,
          (unsigned long)bytes);
}

/* Scales count as often as they are there, and recent keys as often as they are read. */
static void check_bytes_of_scales(void)
{
    enum { B = 2, H = 3, KEYS = 100, D = 8, NEW = 4, RECENT = 10 };
    static float any[B * H * KEYS * D];
    const double rows = B * H * NEW * D * 4, stored = B * H * KEYS * D;
    const double by_channel = H * D * 4, by_key = B * H * KEYS * 4;
    double want = 2 * rows + 2 * stored + by_channel + by_key;
    attn_info info = { 0 };
    attn_params p = { .batch = B, .num_heads_q = H, .seq_len_q = NEW, .head_dim = D };
    p.seq_len_kv = KEYS;
    p.q.data = p.k.data = p.v.data = any;
    p.o.data = any;
    p.k.dtype = p.v.dtype = ATTN_I8;
    p.k_scales.data = p.v_scales.data = any;
    p.k_scales.stride_batch = p.k_scales.stride_seq = ATTN_STRIDE_BROADCAST;
    p.v_scales.stride_dim = ATTN_STRIDE_BROADCAST;
    CHECK(attn_explain(&p, &info) == ATTN_OK && info.bytes == want, "%.0f bytes, not %.0f: %s",
          info.bytes, want, info.reasons);
    p.recent.keys = RECENT;
    p.recent.ring = KEYS;
    p.recent.k.data = p.recent.v.data = any;
    want += 2.0 * B * H * (RECENT + NEW - 1) * D * 4;
    CHECK(attn_explain(&p, &info) == ATTN_OK && info.bytes == want, "%.0f bytes, not %.0f: %s",
          info.bytes, want, info.reasons);
}

/* ---- pairs, flops and bytes against brute force ---------------------------------------------- */

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static int sees(const call *c, int64_t b, int64_t i, int64_t j, int64_t rows, int64_t keys)
{
    const attn_params *p = &c->p;
    const int64_t offset = p->alignment == ATTN_ALIGN_TOP_LEFT ? 0
                           : p->alignment == ATTN_ALIGN_OFFSET ? p->q_offset[b]
                                                               : keys - rows;
    const int64_t pos = i + offset, base = p->key_base != NULL ? p->key_base[b] : 0;
    if (p->causal && j > pos && !(p->prefix != NULL && j < p->prefix[b]))
        return 0;
    if (p->window && p->window_left >= 0 && j < pos - p->window_left)
        return 0;
    if (p->window && p->window_right >= 0 && j > pos + p->window_right)
        return 0;
    return p->chunk_size == 0 ||
           floor_div(base + pos, p->chunk_size) == floor_div(base + j, p->chunk_size);
}

static double count_pairs(const call *c)
{
    const attn_params *p = &c->p;
    double pairs = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t rows = p->q_len != NULL ? p->q_len[b] : p->seq_len_q;
        const int64_t keys = p->kv_len != NULL ? p->kv_len[b] : p->seq_len_kv;
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < keys; j++)
                pairs += sees(c, b, i, j, rows, keys);
    }
    return pairs * (double)p->num_heads_q;
}

static void random_lengths(call *c)
{
    attn_params *p = &c->p;
    for (int64_t b = 0; b < p->batch; b++) {
        c->q_len[b] = (int32_t)rng_int(0, p->seq_len_q);
        c->kv_len[b] = (int32_t)rng_int(0, p->seq_len_kv);
        c->q_offset[b] = (int32_t)rng_int(-10, 30);
        c->prefix[b] = (int32_t)rng_int(0, p->seq_len_kv);
        c->key_base[b] = rng_int(0, 40);
    }
    p->q_len = rng_chance(50) ? c->q_len : NULL;
    p->kv_len = rng_chance(50) ? c->kv_len : NULL;
    p->key_base = rng_chance(50) ? c->key_base : NULL;
    p->alignment = (int)rng_int(ATTN_ALIGN_BOTTOM_RIGHT, ATTN_ALIGN_OFFSET);
    p->q_offset = p->alignment == ATTN_ALIGN_OFFSET ? c->q_offset : NULL;
}

static void random_ranges(call *c)
{
    attn_params *p = &c->p;
    p->causal = rng_chance(50);
    p->prefix = p->causal && rng_chance(40) ? c->prefix : NULL;
    p->window = rng_chance(40) ? ATTN_WINDOW : 0;
    p->window_left = p->window ? rng_int(-1, 12) : 0;
    p->window_right = p->window ? rng_int(-1, 12) : 0;
    p->chunk_size = rng_chance(30) ? rng_int(1, 25) : 0;
}

static void check_counts(void)
{
    call c;
    attn_info info;
    double pairs;
    make_call(&c, rng_int(1, 3), 4, 2, rng_int(1, 30), rng_int(1, 40), 8, 12);
    random_lengths(&c);
    random_ranges(&c);
    pairs = count_pairs(&c);
    CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain failed");
    CHECK(info.pairs == pairs,
          "pairs %.0f, counted %.0f (causal %d, prefix %d, window %d [%d, %d],"
          " chunk %d, alignment %d)",
          info.pairs, pairs, c.p.causal, c.p.prefix != NULL, c.p.window, (int)c.p.window_left,
          (int)c.p.window_right, (int)c.p.chunk_size, c.p.alignment);
    CHECK(info.flops == 2 * info.pairs * (8 + 12), "flops %.0f", info.flops);
}

static void check_bytes(void)
{
    call c;
    attn_info info;
    double want = 4.0 * (2 * 4 * 5 * 8 + 2 * 2 * 9 * 8 + 2 * 2 * 9 * 12 + 2 * 4 * 5 * 12);
    make_call(&c, 2, 4, 2, 5, 9, 8, 12);
    CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain failed");
    CHECK(info.bytes == want, "bytes %.0f, not %.0f", info.bytes, want);
    c.p.lse.data = numbers(2 * 4 * 5);
    want += 4.0 * 2 * 4 * 5;
    CHECK(attn_explain(&c.p, &info) == ATTN_OK && info.bytes == want, "with lse %.0f", info.bytes);
    c.p.stats.data = numbers(2 * 4 * 5 * 2);
    want += 4.0 * 2 * 4 * 5 * 2;
    CHECK(attn_explain(&c.p, &info) == ATTN_OK && info.bytes == want, "and stats %.0f", info.bytes);
    c.p.k.dtype = c.p.v.dtype = ATTN_F16;
    want -= 2.0 * (2 * 2 * 9 * 8 + 2 * 2 * 9 * 12);
    CHECK(attn_explain(&c.p, &info) == ATTN_OK && info.bytes == want, "with f16 %.0f", info.bytes);
}

/* ---- impl=auto ------------------------------------------------------------------------------- */

static void check_auto(void)
{
    static const int64_t limits[] = { 0, 5, 100 };
    for (size_t n = 0; n < sizeof limits / sizeof *limits; n++)
        for (int64_t more = -1; more <= 1; more++) {
            const int64_t limit = limits[n] > 0 ? limits[n] : ATTN_AUTO_NAIVE_KEYS;
            call c;
            attn_info info;
            if (limit + more < 1) /* nothing to do is not a choice */
                continue;
            if (!begin_case("auto at %d keys, limit %d", (int)(limit + more), (int)limits[n]))
                continue;
            make_call(&c, 1, 1, 1, 3, limit + more, 4, 4);
            c.p.impl = ATTN_IMPL_AUTO;
            c.p.auto_naive_keys = limits[n];
            CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain failed");
            CHECK(info.impl == (more <= 0 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED), "%s",
                  info.impl_name);
            CHECK(strstr(info.reasons, "auto") != NULL, "reasons: '%s'", info.reasons);
        }
}

/* ---- backends -------------------------------------------------------------------------------- */

static struct {
    int supports, runs, logs;
    size_t asked;
    char log[600];
    attn_params resolved;
} door;

static int refuse(const attn_backend *self, const attn_problem *problem, char *why,
                  size_t why_bytes)
{
    (void)self, (void)problem;
    door.supports++;
    snprintf(why, why_bytes, "head_dim 16 is beneath this device");
    return 0;
}

static int accept(const attn_backend *self, const attn_problem *problem, char *why,
                  size_t why_bytes)
{
    (void)self, (void)why, (void)why_bytes;
    door.supports++;
    door.resolved = problem->p;
    return 1;
}

static attn_status ask_bytes(const attn_backend *self, const attn_problem *problem, size_t *bytes)
{
    (void)self, (void)problem;
    *bytes = 777;
    return ATTN_OK;
}

static attn_status write_ones(const attn_backend *self, const attn_problem *problem,
                              void *workspace, size_t workspace_bytes)
{
    const attn_params *p = &problem->p;
    float *o = p->o.data;
    const int64_t count = p->batch * p->num_heads_q * p->seq_len_q * p->head_dim_v;
    (void)workspace;
    door.runs++;
    door.asked = workspace_bytes;
    for (int64_t i = 0; i < count; i++)
        o[i] = 1.0f;
    return self->user != NULL ? ATTN_ERR_CALLBACK : ATTN_OK;
}

static void note_log(void *user, int level, const char *text)
{
    (void)user;
    door.logs++;
    CHECK(level == ATTN_LOG_INFO || level == ATTN_LOG_WARNING, "level %d", level);
    snprintf(door.log, sizeof door.log, "%s", text);
}

static attn_backend make_backend(int accepts)
{
    attn_backend b = { 0 };
    memset(&door, 0, sizeof door);
    b.abi = ATTN_KERNEL_ABI;
    b.name = "imaginary";
    b.supports = accepts ? accept : refuse;
    b.workspace_size = ask_bytes;
    b.run = write_ones;
    return b;
}

static void check_refused_backend(void)
{
    const attn_backend backend = make_backend(0);
    call c, plain;
    attn_info info;
    make_call(&c, 1, 2, 1, 3, 20, 16, 16);
    plain = c;
    plain.p.o.data = numbers(2 * 3 * 16);
    c.p.backend = &backend;
    c.p.log = note_log;
    CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain failed");
    CHECK(strcmp(info.backend_name, "cpu") == 0, "backend_name '%s'", info.backend_name);
    CHECK(strstr(info.reasons, "imaginary") != NULL &&
              strstr(info.reasons, "head_dim 16 is beneath this device") != NULL,
          "reasons: '%s'", info.reasons);
    memset(&door.log, 0, sizeof door.log);
    CHECK(run_call(&c.p, &info) == ATTN_OK, "attn_forward failed");
    CHECK(door.logs > 0 && strstr(door.log, "head_dim 16 is beneath this device") != NULL,
          "%d log calls, the last '%s'", door.logs, door.log);
    CHECK(door.runs == 0, "a refusing backend ran");
    CHECK(attn_explain(&plain.p, &info) == ATTN_OK && run_call(&plain.p, &info) == ATTN_OK,
          "attn_forward without a backend failed");
    CHECK(memcmp(c.p.o.data, plain.p.o.data, 2 * 3 * 16 * 4) == 0, "other bits than without it");
}

static void check_accepting_backend(void)
{
    attn_backend backend = make_backend(1);
    call c;
    attn_info info;
    char why[200];
    size_t need = 0;
    const float *o;
    make_call(&c, 1, 2, 1, 3, 20, 16, 16);
    c.p.head_dim_v = 0; /* resolved to head_dim */
    c.p.backend = &backend;
    o = c.p.o.data;
    CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain failed");
    CHECK(strcmp(info.backend_name, "imaginary") == 0, "backend_name '%s'", info.backend_name);
    CHECK(attn_workspace_size(&c.p, &need) == ATTN_OK && need == 777, "workspace %lu",
          (unsigned long)need);
    CHECK(attn_forward(&c.p, test_alloc(777), 776) == ATTN_ERR_WORKSPACE && door.runs == 0,
          "a workspace that is too small was not noticed");
    attn_check(&c.p, test_alloc(777), 776, why, sizeof why);
    CHECK(strstr(why, "workspace_bytes (776) must be at least 777") == why, "it says \"%s\"", why);
    CHECK(attn_forward(&c.p, test_alloc(777), 777) == ATTN_OK, "attn_forward failed");
    CHECK(door.runs == 1 && door.asked >= 1, "%d runs", door.runs);
    CHECK(o[0] == 1.0f && o[2 * 3 * 16 - 1] == 1.0f, "the backend's output is not there");
    CHECK(door.resolved.scale == 0.25f, "scale %g is not resolved", (double)door.resolved.scale);
    CHECK(door.resolved.head_dim_v == 16, "head_dim_v is not resolved");
    CHECK(door.resolved.q.stride_seq == 16 && door.resolved.o.stride_head == 3 * 16,
          "strides are not resolved");
    CHECK(door.resolved.k.stride_head == 0 && door.resolved.o.stride_batch == 0,
          "strides of axes of length 1 are not 0");
    backend.user = &door;
    CHECK(attn_forward(&c.p, test_alloc(777), 777) == ATTN_ERR_CALLBACK, "its failure is lost");
}

static int refuse_gradients(const attn_backend *self, const attn_problem *problem,
                            const attn_gradient_call *g, char *why, size_t why_bytes)
{
    (void)problem, (void)g;
    snprintf(why, why_bytes, "its memory is full");
    return self->user != NULL ? -1 : 0;
}

static attn_status never_run_gradients(const attn_backend *self, const attn_problem *problem,
                                       const attn_gradient_call *g, void *workspace,
                                       size_t workspace_bytes)
{
    (void)self, (void)problem, (void)g, (void)workspace, (void)workspace_bytes;
    door.runs++;
    return ATTN_OK;
}

/* Gradients of a backend that does not take them: the CPU does, unless the backend says that
 * nobody can. */
static void check_refused_gradients(void)
{
    static const struct {
        int built, nobody, batch;
        const char *reason;
    } refusals[] = {
        { 0, 0, 1, "imaginary refused: it has no gradients" },
        { 1, 0, 1, "imaginary refused: its memory is full" },
        { 1, 0, 0, "imaginary refused: nothing to do" },
        { 1, 1, 1, "imaginary refused: its memory is full" },
    };
    static float values[2 * 20 * 16], dq[2 * 3 * 16];
    static unsigned char workspace[1 << 20];
    for (size_t n = 0; n < sizeof refusals / sizeof *refusals; n++) {
        attn_backend backend = make_backend(1);
        const attn_status expected = refusals[n].nobody ? ATTN_ERR_UNSUPPORTED : ATTN_OK;
        attn_gradients g = { 0 };
        attn_backward_info info;
        attn_status status;
        call c;
        make_call(&c, 1, 2, 1, 3, 20, 16, 16);
        c.p.batch = refusals[n].batch;
        c.p.backend = &backend;
        c.p.log = note_log;
        c.p.lse.data = values;
        g.dout.data = values;
        g.dq.data = dq;
        backend.user = refusals[n].nobody ? &door : NULL;
        backend.supports_gradients = refuse_gradients;
        backend.run_gradients = refusals[n].built ? never_run_gradients : NULL;
        status = attn_backward_explain(&c.p, &g, &info);
        CHECK(status == expected && strcmp(info.reasons, refusals[n].reason) == 0, "%d: %s", (int)n,
              info.reasons);
        CHECK(strcmp(info.backend_name, refusals[n].nobody ? "none" : "cpu") == 0, "%d: %s", (int)n,
              info.backend_name);
        status = attn_backward(&c.p, &g, workspace, sizeof workspace);
        CHECK(status == expected && door.runs == 0, "%d: %s", (int)n, attn_status_string(status));
        CHECK(door.logs == !refusals[n].nobody &&
                  (refusals[n].nobody || strcmp(door.log, refusals[n].reason) == 0),
              "%d: %d log calls, '%s'", (int)n, door.logs, door.log);
    }
}

/* ---- options from text ----------------------------------------------------------------------- */

static void check_option_text(void)
{
    char text[200], why[200] = "";
    const char *best = attn_kernels_name(attn_kernels_get(0));
    attn_params p = { 0 }, before;
    snprintf(text, sizeof text,
             "impl=naive,kernels=%s workers=3 tile_keys=64, redo=1 "
             "naive_whole=1,auto_naive_keys=256",
             best);
    CHECK(attn_params_from_string(&p, text, why, sizeof why) == ATTN_OK, "%s", why);
    CHECK(p.impl == ATTN_IMPL_NAIVE, "impl %d", p.impl);
    CHECK(p.kernels == attn_kernels_get(0), "kernels");
    CHECK(p.num_workers == 3, "num_workers %d", p.num_workers);
    CHECK(p.tile_keys == 64, "tile_keys %d", p.tile_keys);
    CHECK(p.force_redo == 1 && p.naive_whole == 1, "redo %d, naive_whole %d", p.force_redo,
          p.naive_whole);
    CHECK(p.auto_naive_keys == 256, "auto_naive_keys %d", (int)p.auto_naive_keys);
    CHECK(attn_params_from_string(&p, "impl=tiled redo=0", NULL, 0) == ATTN_OK, "NULL for why");
    CHECK(p.impl == ATTN_IMPL_TILED && p.force_redo == 0 && p.tile_keys == 64, "one after another");
    CHECK(attn_params_from_string(&p, "kernels=portable", why, sizeof why) == ATTN_OK, "%s", why);
    CHECK(p.kernels == attn_kernels_find("portable"), "kernels=portable");
    CHECK(attn_params_from_string(&p, "impl=auto", why, sizeof why) == ATTN_OK &&
              p.impl == ATTN_IMPL_AUTO,
          "impl=auto");
    before = p;
    CHECK(attn_params_from_string(&p, "", why, sizeof why) == ATTN_OK, "empty text");
    CHECK(attn_params_from_string(&p, "  , ,", why, sizeof why) == ATTN_OK, "separators alone");
    CHECK(memcmp(&p, &before, sizeof p) == 0, "empty text changed something");
}

/* ---- text and sizes -------------------------------------------------------------------------- */

/* A kernel set for another kind of CPU. */
#if defined __x86_64__ || defined __i386__
#define FOREIGN_SET "neon"
#else
#define FOREIGN_SET "avx"
#endif
/* Without SSE2 this compiler makes stubs of the vector kernels. */
#if defined __i386__ && !defined __SSE2__
#define MAKES_STUBS 1
#else
#define MAKES_STUBS 0
#endif

static void check_format(void)
{
    char whole[2000], cut[2000], number[40];
    call c;
    attn_info info;
    make_call(&c, 1, 2, 1, 3, 20, 16, 16);
    CHECK(attn_explain(&c.p, &info) == ATTN_OK, "attn_explain failed");
    CHECK(attn_info_format(&info, whole, sizeof whole) == whole, "another pointer comes back");
    CHECK(strstr(whole, info.impl_name) != NULL && strstr(whole, info.kernels_name) != NULL &&
              strstr(whole, info.backend_name) != NULL,
          "'%s'", whole);
    CHECK(strstr(info.reasons, FOREIGN_SET) == NULL, "of other CPUs: %s", info.reasons);
    CHECK(MAKES_STUBS || strstr(info.reasons, "stubs") == NULL, "no stubs: %s", info.reasons);
    CHECK(strcmp(info.kernels_name, "portable") == 0 || strstr(info.reasons, "FMA in") == NULL,
          "FMA of %s: %s", info.kernels_name, info.reasons);
    CHECK(strcmp(attn_info_format(NULL, cut, sizeof cut), "") == 0 && cut[0] == 0, "of NULL");
    snprintf(number, sizeof number, "%lu", (unsigned long)info.workspace_bytes);
    CHECK(strstr(whole, number) != NULL, "no workspace of %s in '%s'", number, whole);
    for (size_t room = 0; room <= strlen(whole) + 1; room++) {
        memset(cut, '#', sizeof cut);
        attn_info_format(&info, cut, room);
        if (!CHECK(cut[room] == '#' && (room == 0 || (strlen(cut) == room - 1 &&
                                                      strncmp(cut, whole, room - 1) == 0)),
                   "room for %d: '%.60s'", (int)room, cut))
            break;
    }
}

static void check_versions(void)
{
    char text[40];
    snprintf(text, sizeof text, "%d.%d.%d", ATTN_VERSION_MAJOR, ATTN_VERSION_MINOR,
             ATTN_VERSION_PATCH);
    CHECK(strcmp(attn_version(), ATTN_VERSION_STRING) == 0, "attn_version '%s'", attn_version());
    CHECK(strcmp(text, ATTN_VERSION_STRING) == 0, "numbers %s, text %s", text, ATTN_VERSION_STRING);
    CHECK(attn_params_size() == sizeof(attn_params), "attn_params_size %lu",
          (unsigned long)attn_params_size());
}

static void check_sets(void)
{
    const attn_kernels *set, *last = NULL;
    for (int i = 0; (set = attn_kernels_get(i)) != NULL; last = set, i++) {
        const char *name = attn_kernels_name(set);
        CHECK(name != NULL && attn_kernels_find(name) == set, "set %d: '%s'", i, name);
    }
    CHECK(last != NULL && strcmp(attn_kernels_name(last), "portable") == 0, "the last set");
    CHECK(attn_kernels_get(-1) == NULL && attn_kernels_get(1000) == NULL, "sets that do not exist");
}

TEST_GROUP(explain, RUN_ONCE, "attn_explain and the workspace query tell what runs")
{
    static const struct {
        const char *name;
        void (*check)(void);
    } single[] = {
        { "bytes", check_bytes },
        { "a backend that refuses", check_refused_backend },
        { "a backend that accepts", check_accepting_backend },
        { "gradients of a backend that refuses", check_refused_gradients },
        { "options from text", check_option_text },
        { "attn_info_format", check_format },
        { "versions", check_versions },
        { "kernel sets", check_sets },
        { "row tiles that share copies", check_sharing },
        { "keys of few heads divided", check_split },
        { "divided in the workspace of a longer call", check_split_kept },
        { "1 MiB a worker", check_memory },
        { "large states are divided, too", check_large_states },
        { "the least workspace", check_least },
        { "some rows in the workspace of a prompt", check_some_rows },
        { "room without the prefix asked for", check_prefix_refused },
        { "workers without threads", check_alone },
        { "rows that are copied", check_copies },
        { "shorter calls in the same workspace", check_shorter },
        { "workers in the same workspace", check_workers_kept },
        { "a query before o is known", check_query },
        { "kernel set by rows", check_choice },
        { "memory of shared row tiles", check_shared_length },
        { "memory of small calls", check_small_workspaces },
        { "bytes of scales and recent keys", check_bytes_of_scales },
    };
    for (size_t i = 0; i < sizeof single / sizeof *single; i++)
        if (begin_case("%s", single[i].name))
            single[i].check();
    check_runs();
    check_workspaces();
    check_constant();
    check_auto();
    for (int round = 0; round < 400; round++)
        if (begin_case("pairs, round %d", round))
            check_counts();
}
