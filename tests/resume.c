/* resume.c - attention in steps against one call: bits, order of tiles, failures, misuse.
 * SPDX-License-Identifier: MIT
 */
#include "../attn.h"
#include "laws.h"
#include "oracle.h"
#include "pool.h"
#include "slices.h"

#include <string.h>

/* ---- where the keys come from ---------------------------------------------------------------- */

typedef struct source {
    const test_problem *t;
    int64_t tile_keys;
    int64_t batch, kv_head, first, end; /* of the fetch before */
    int64_t calls, fail_at;             /* number of the call that fails; -1 = none */
    int64_t wrong;                      /* fetches that should not be, or not so */
} source;

/* Row number `row` of a tile. */
static void copy_row(const attn_params *p, const attn_tensor *from, int64_t dim,
                     const attn_fetch *tile, int64_t row, void *to)
{
    const int64_t j = tile->first + row - oracle_first_key(p, tile->batch);
    const ptrdiff_t at = oracle_key_offset(p, from, dim, tile->batch, tile->kv_head, j);
    const size_t bytes = dtype_bytes(from->dtype, dim);
    memcpy((char *)to + (size_t)row * bytes,
           (const char *)from->data +
               at / dtype_unit(from->dtype) *
                   (ptrdiff_t)dtype_bytes(from->dtype, dtype_unit(from->dtype)),
           bytes);
}

static int64_t number_of(const attn_params *p, int64_t b, int64_t column)
{
    return (p->key_base != NULL ? p->key_base[b] : 0) + column -
           (p->kv_begin != NULL ? p->kv_begin[b] : 0);
}

/* Tiles ascend, end at multiples of their size and hold keys in use only. */
static int in_order(const source *s, const attn_fetch *tile)
{
    const attn_params *p = &s->t->p;
    const int64_t begin = p->kv_begin != NULL ? p->kv_begin[tile->batch] : 0;
    const int64_t n = number_of(p, tile->batch, tile->first);
    const int same = tile->batch == s->batch && tile->kv_head > s->kv_head;
    const int next = tile->batch > s->batch || (tile->batch == s->batch && tile->first == s->end);
    return tile->count > 0 && tile->first >= begin &&
           tile->first + tile->count <= begin + oracle_keys(p, tile->batch) &&
           n / s->tile_keys == (n + tile->count - 1) / s->tile_keys &&
           (same ? tile->first == s->first : tile->kv_head == 0 && (s->calls == 1 || next));
}

static int fetch(void *user, const attn_fetch *tile)
{
    source *s = user;
    const test_problem *t = s->t;
    if (s->calls++ == s->fail_at) {
        memset(tile->k, 0xff, dtype_bytes(t->p.k.dtype, tile->count * t->k.dim));
        s->batch = tile->batch; /* the same tile again */
        s->kv_head = -1;
        s->first = tile->first;
        return 1;
    }
    s->wrong += !in_order(s, tile);
    for (int64_t j = 0; j < tile->count; j++) {
        copy_row(&t->p, &t->p.k, t->k.dim, tile, j, tile->k);
        copy_row(&t->p, &t->p.v, t->v.dim, tile, j, tile->v);
    }
    s->batch = tile->batch;
    s->kv_head = tile->kv_head;
    s->first = tile->first;
    s->end = tile->first + tile->count;
    return 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct steps {
    attn_resumable r;
    source from;
    attn_params p;
    int64_t tile_keys;
    char *memory;
    size_t bytes;
} steps;

/* The least memory that is taken. It must be there: pointers into it are made. */
static size_t least_memory(const steps *s)
{
    const int mark = test_mark();
    char *const memory = test_alloc(s->bytes), text[200];
    size_t least = 0, enough = s->bytes;
    while (least < enough) {
        const size_t middle = least + (enough - least) / 2;
        if (strcmp(attn_resume_check(&s->p, s->tile_keys, fetch, memory, middle, text, sizeof text),
                   "ok") == 0)
            enough = middle;
        else
            least = middle + 1;
    }
    test_release_to(mark);
    return least;
}

static int begin_steps(steps *s, const test_problem *t, int least)
{
    static const int64_t sizes[] = { 0, 16, 32, 64, 128, 256, 512, 1024 };
    char text[300];
    attn_status status;
    memset(s, 0, sizeof *s);
    s->p = test_params(&t->p);
    test_reword(&s->p, NULL);
    s->p.k.data = s->p.v.data = NULL;
    s->tile_keys = RNG_PICK(sizes);
    status = attn_resume_memory(&s->p, s->tile_keys, &s->bytes);
    if (!CHECK(status == ATTN_OK, "attn_resume_memory: %s", attn_status_string(status)))
        return 0;
    if (least)
        s->bytes = least_memory(s);
    s->memory = (char *)test_alloc(s->bytes + 1) + 1;
    s->from.t = t;
    s->from.fail_at = -1;
    s->from.batch = s->from.kv_head = -1;
    status = attn_resume_begin(&s->r, &s->p, s->tile_keys, fetch, &s->from, s->memory, s->bytes);
    s->from.tile_keys = s->r.tile_keys;
    return CHECK(
        status == ATTN_OK, "attn_resume_begin: %s: %s", attn_status_string(status),
        attn_resume_check(&s->p, s->tile_keys, fetch, s->memory, s->bytes, text, sizeof text));
}

/* Nonzero: nothing of the outputs has been written. */
static int untouched(const test_problem *t)
{
    return tensor_unchanged(&t->o) && (t->p.lse.data == NULL || tensor_unchanged(&t->lse)) &&
           tensor_unchanged(&t->stats);
}

/* To the last tile, in steps of random size, with failures now and then. */
static int run_steps(steps *s, const test_problem *t)
{
    while (s->r.done < s->r.total) {
        const int64_t before = s->r.done, most = rng_int(1, rng_chance(20) ? 50 : 3);
        const int fails = rng_chance(15);
        attn_status status;
        s->from.fail_at = fails ? s->from.calls + rng_int(0, 2) : -1;
        CHECK(attn_resume_end(&s->r) == ATTN_ERR_ARG, "attn_resume_end before the last tile");
        status = attn_resume_step(&s->r, most);
        if (!CHECK(status == ATTN_OK || (fails && status == ATTN_ERR_CALLBACK), "step: %s",
                   attn_status_string(status)))
            return 0;
        if (!CHECK(s->r.done <= before + most &&
                       (status || s->r.done == before + most || s->r.done == s->r.total),
                   "%lld tiles in a step of %lld", (long long)(s->r.done - before),
                   (long long)most))
            return 0;
    }
    CHECK(untouched(t), "outputs were written before the end");
    CHECK(s->from.wrong == 0, "%lld fetches out of order", (long long)s->from.wrong);
    CHECK(attn_resume_step(&s->r, 5) == ATTN_OK, "a step after the last");
    return CHECK(attn_resume_end(&s->r) == ATTN_OK, "attn_resume_end");
}

/* ---- laws ------------------------------------------------------------------------------------ */

static void remember_outputs(test_problem *t)
{
    tensor_remember(&t->o);
    if (t->p.lse.data != NULL)
        tensor_remember(&t->lse);
    tensor_remember(&t->stats);
}

static void compare_steps(test_problem *a)
{
    test_problem b;
    steps s;
    twin(a, &b);
    remember_outputs(&b);
    if (problem_run(a) && begin_steps(&s, &b, rng_chance(25)) && run_steps(&s, &b))
        CHECK(problem_same_bits(a, &b) && test_margins() == 0, "in steps");
}

static const char *const banned[] = { "varlen",  "paged",  "ring", "paged_ring",
                                      "partial", "logits", NULL };

/* Every feature that a resumable takes. */
static void law_features(int round)
{
    static const char *const first[] = { "dropout",  "tree", "key_base", "kv_begin",
                                         "score_fn", "csr",  "window",   NULL };
    test_problem a;
    make_background(&a, first[round % 8], 1, banned);
    compare_steps(&a);
}

/* Keys in types that only K and V have, scores in whole numbers, rotated rows. */
static void law_stored(int round)
{
    static const char *const none[] = { "varlen", "paged",    "ring",  "paged_ring", "partial",
                                        "logits", "odd_dims", "mixed", NULL };
    test_problem a;
    (void)round;
    if (T.backend != NULL)
        return;
    make_stored(&a, none);
    compare_steps(&a);
}

FUZZ_HARNESS(resume, "keys that come tile by tile, with fetches that fail, against one call")
{
    (void)bytes;
    (void)count;
    law_features((int)rng_int(0, 7));
}

/* Thousands of keys: many chunks, levels of the tree, a key_base inside one. */
static void law_lengths(int round)
{
    test_shape s = { .batch = 1 + round % 2, .heads_kv = 1 + round % 3 / 2 };
    static int64_t base[2];
    test_problem a;
    s.heads_q = s.heads_kv * rng_int(1, 2);
    s.seq_q = rng_int(1, 4);
    s.seq_kv = rng_int(1000, 9000);
    s.dim = rng_int(1, 9);
    s.dim_v = rng_int(1, 9);
    s.factor_q = 4;
    problem_make(&a, &s);
    base[0] = rng_int(0, 3000);
    base[1] = rng_int(0, 3000);
    a.p.key_base = round % 3 == 0 ? base : NULL;
    a.p.causal = rng_chance(40);
    if (rng_chance(30)) {
        a.p.window = ATTN_WINDOW;
        a.p.window_left = rng_int(0, 3000);
    }
    compare_steps(&a);
}

/* Rows of a call, one part after the other, and workers within each tile. */
static void law_row_parts_in_steps(int round)
{
    pool workers = pool_of(1 + round % 4, (int)rng_int(0, POOL_ORDERS - 1), round % 8 == 0);
    test_problem a, b;
    make_background(&a, NULL, 1, banned);
    twin(&a, &b);
    if (!problem_run(&a))
        return;
    for (int64_t i = 0, count; i < b.p.seq_len_q; i += count) {
        test_problem part = b;
        steps s;
        count = rng_int(1, b.p.seq_len_q - i);
        slice_part_rows(&part.p, &b, i, count);
        part.p.num_workers = workers.workers;
        part.p.parallel_for = pool_for;
        part.p.parallel_user = &workers;
        if (!begin_steps(&s, &part, rng_chance(25)))
            return;
        s.from.fail_at = -1;
        if (!CHECK(attn_resume_step(&s.r, INT64_MAX) == ATTN_OK && s.r.done == s.r.total &&
                       attn_resume_end(&s.r) == ATTN_OK,
                   "all tiles in one step"))
            return;
    }
    CHECK(problem_same_bits(&a, &b), "parts of the rows in steps");
}

/* Tiles that no row sees are not fetched: only a window's keys are. */
static void law_window(int round)
{
    const test_shape s = {
        .batch = 1, .heads_q = 1, .heads_kv = 1, .seq_q = 3, .seq_kv = 5000, .dim = 2, .dim_v = 2
    };
    test_problem a;
    steps st;
    problem_make(&a, &s);
    a.p.causal = 1;
    a.p.window = ATTN_WINDOW;
    a.p.window_left = 10 + 100 * round;
    if (!begin_steps(&st, &a, 1) || !CHECK(attn_resume_step(&st.r, INT64_MAX) == ATTN_OK, "step"))
        return;
    CHECK(st.r.fetched == a.p.window_left + 3, "%lld keys fetched, %lld visible",
          (long long)st.r.fetched, (long long)a.p.window_left + 3);
}

/* The largest numbers of a window mean that it has no limit. */
static void check_no_limit(void)
{
    const test_shape s = {
        .batch = 2, .heads_q = 2, .heads_kv = 1, .seq_q = 3, .seq_kv = 100, .dim = 4, .dim_v = 5
    };
    test_problem a;
    problem_make(&a, &s);
    a.p.window = ATTN_WINDOW;
    a.p.window_left = a.p.window_right = INT64_MAX;
    compare_steps(&a);
}

/* The first keys in use lie behind the first tile. */
static void law_late_begin(int round)
{
    const test_shape s = {
        .batch = 2, .heads_q = 2, .heads_kv = 1, .seq_q = 3, .seq_kv = 2500, .dim = 4, .dim_v = 5
    };
    const int32_t begin[] = { (int32_t)rng_int(1024, 1500), (int32_t)rng_int(1024, 1500) };
    const int32_t length[] = { (int32_t)rng_int(1, 1000), (int32_t)rng_int(1, 1000) };
    test_problem a;
    problem_make(&a, &s);
    a.p.kv_begin = begin;
    a.p.kv_len = round % 2 == 0 ? length : NULL;
    compare_steps(&a);
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static int failing_loop(void *user, int64_t n, attn_task_fn task, void *arg)
{
    int *calls = user;
    (void)n;
    (void)task;
    (void)arg;
    return ++*calls > 1;
}

/* No going on after a failure inside a tile. */
static void check_broken(void)
{
    const test_shape s = {
        .batch = 1, .heads_q = 8, .heads_kv = 8, .seq_q = 2, .seq_kv = 600, .dim = 4, .dim_v = 4
    };
    test_problem a;
    steps st;
    int calls = 1;
    problem_make(&a, &s);
    remember_outputs(&a);
    a.p.parallel_for = failing_loop;
    a.p.parallel_user = &calls;
    a.p.num_workers = 4;
    if (!begin_steps(&st, &a, 0))
        return;
    CHECK(attn_resume_step(&st.r, 1) == ATTN_ERR_CALLBACK, "parallel_for failed");
    calls = -100;
    CHECK(attn_resume_step(&st.r, 1) == ATTN_ERR_CALLBACK, "a step after a failure");
    st.r.done = st.r.total;
    CHECK(attn_resume_end(&st.r) == ATTN_ERR_CALLBACK && untouched(&a), "an end after a failure");
}

static const struct misuse {
    const char *words; /* of the sentence */
    attn_status status;
    size_t at;         /* an int of attn_params that becomes 1, */
    int64_t tile_keys; /* or this */
} misuses[] = {
    { "tile_keys (8) must be 0 or a power of two from 16 to 1024", ATTN_ERR_ARG, 0, 8 },
    { "tile_keys (48) must be", ATTN_ERR_ARG, 0, 48 },
    { "tile_keys (2048) must be", ATTN_ERR_ARG, 0, 2048 },
    { "partial (1) is set, but attn_resume_begin does not take it: it works with finished rows",
      ATTN_ERR_UNSUPPORTED, offsetof(attn_params, partial), 0 },
    { "part.keys (1) is set, but attn_resume_begin does not take it", ATTN_ERR_UNSUPPORTED,
      offsetof(attn_params, part.keys), 0 },
};

/* The sentence of a call that must be refused. */
static void refuse(const attn_params *p, int64_t tile_keys, attn_fetch_fn from, void *memory,
                   size_t bytes, attn_status expected, const char *words)
{
    char text[300];
    attn_resumable r;
    const attn_status status = attn_resume_begin(&r, p, tile_keys, from, NULL, memory, bytes);
    attn_resume_check(p, tile_keys, from, memory, bytes, text, sizeof text);
    CHECK(status == expected && strstr(text, words) != NULL, "%s: %s; expected %s",
          attn_status_string(status), text, words);
    CHECK(attn_resume_step(&r, 1) == expected && attn_resume_end(&r) == expected,
          "steps of what did not begin");
}

static void check_misuse(void)
{
    static const int32_t cu[] = { 0, 4 };
    const test_shape s = {
        .batch = 1, .heads_q = 1, .heads_kv = 1, .seq_q = 4, .seq_kv = 40, .dim = 4, .dim_v = 4
    };
    test_problem a;
    attn_params p;
    size_t need = 0, most = 0;
    char *memory;
    problem_make(&a, &s);
    remember_outputs(&a);
    CHECK(attn_resume_memory(&a.p, 0, &need) == ATTN_OK, "attn_resume_memory");
    memory = test_alloc(need);
    for (size_t n = 0; n < sizeof misuses / sizeof *misuses; n++) {
        p = a.p;
        if (misuses[n].at != 0)
            memcpy((char *)&p + misuses[n].at, &(int){ 1 }, sizeof(int));
        refuse(&p, misuses[n].tile_keys, fetch, memory, need, misuses[n].status, misuses[n].words);
    }
    p = a.p;
    p.cu_seqlens_q = p.cu_seqlens_kv = cu;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_UNSUPPORTED,
           "cu_seqlens_q is set, but attn_resume_begin does not take it: tell documents");
    p = a.p;
    p.kv_rows.ring = 40;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_UNSUPPORTED,
           "is set, but attn_resume_begin does not take it");
    p = a.p;
    p.logits.data = (float *)(void *)memory;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_UNSUPPORTED,
           "logits.data is set, but attn_resume_begin does not take it");
    p = a.p;
    p.skip.below = 0.5f;
    p.skip.dropped = (float *)(void *)memory;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_UNSUPPORTED,
           "skip.below is set, but attn_resume_begin does not take it");
    p = a.p;
    p.o.data = p.lse.data = p.stats.data = NULL;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_ARG,
           "o.data is NULL, and neither lse nor stats is asked for");
    p = a.p;
    p.q.data = NULL;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_ARG, "q.data is NULL");
    p = a.p;
    p.head_dim = 0;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_ARG, "head_dim (0)");
    p = a.p;
    p.impl = ATTN_IMPL_NAIVE;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_UNSUPPORTED, "(naive) takes no part");
    p = a.p;
    p.seq_len_q = (int64_t)1 << 31;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_OVERFLOW,
           PTRDIFF_MAX > INT32_MAX ? "must be below 2^31 for attn_resume" : "must be at most");
    p = a.p;
    p.seq_len_q = ((int64_t)1 << 31) - 1;
    p.batch = (int64_t)1 << 30;
    p.q.stride_batch = p.o.stride_batch = p.lse.stride_batch = p.stats.stride_batch = 4;
    p.q.stride_batch = ATTN_STRIDE_BROADCAST;
    refuse(&p, 0, fetch, memory, need, ATTN_ERR_OVERFLOW, "");
    p = a.p; /* keys beyond the address space */
    p.seq_len_kv = INT64_C(1) << 28;
    p.k.stride_head = -3;
    p.k.stride_seq = PTRDIFF_MAX;
    CHECK(attn_resume_memory(&p, 0, &most) == ATTN_OK && most < 2 * need, "strides of k are used");
    refuse(NULL, 0, fetch, memory, need, ATTN_ERR_ARG, "params is NULL");
    refuse(&a.p, 0, NULL, memory, need, ATTN_ERR_ARG, "fetch is NULL");
    refuse(&a.p, 0, fetch, NULL, need, ATTN_ERR_WORKSPACE,
           "memory_bytes (0) is too small: attn_resume_memory says");
    refuse(&a.p, 0, fetch, memory, 100, ATTN_ERR_WORKSPACE, "memory_bytes (100) is too small");
    CHECK(attn_resume_begin(NULL, &a.p, 0, fetch, NULL, memory, need) == ATTN_ERR_ARG &&
              attn_resume_step(NULL, 1) == ATTN_ERR_ARG && attn_resume_end(NULL) == ATTN_ERR_ARG &&
              attn_resume_memory(&a.p, 0, NULL) == ATTN_ERR_ARG,
          "NULL");
    CHECK(untouched(&a), "a refused call wrote");
}

/* ---- the group ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(int round);
    int rounds;
} laws[] = {
    { "every feature", law_features, 160 },
    { "lengths", law_lengths, 40 },
    { "parts of the rows, workers", law_row_parts_in_steps, 40 },
    { "a window", law_window, 8 },
    { "a late first key", law_late_begin, 16 },
    { "quantised keys", law_stored, 60 },
};

TEST_GROUP(resume, RUN_ONCE, "keys that come tile by tile: the bits of one call, every misuse")
{
    if (T.impl == ATTN_IMPL_NAIVE) {
        SKIP("naive takes no part of a call");
        return;
    }
    for (size_t n = 0; n < sizeof laws / sizeof *laws; n++)
        for (int round = 0; round < laws[n].rounds; round++)
            if (begin_case("%s, %d", laws[n].name, round))
                laws[n].run(round);
    if (begin_case("a failure inside a tile"))
        check_broken();
    if (begin_case("misuse"))
        check_misuse();
    if (begin_case("a window without a limit"))
        check_no_limit();
}
