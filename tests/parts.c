/* parts.c - parts of the rows and keys of a call (p.part) against the whole call.
 * SPDX-License-Identifier: MIT
 */
#include "laws.h"
#include "pool.h"
#include "slices.h"

#include <math.h>
#include <string.h>

/* What takes no part of a call, or writes what a part would write elsewhere. */
static const char *const banned[] = { "varlen", "partial", "logits", NULL };

/* In some rounds a cache holds the keys, if none does yet. */
static void cache_some(test_problem *t, int round)
{
    static const int64_t page_sizes[] = { 0, 1, 5, 16, 48, 256 };
    const int64_t page_size = RNG_PICK(page_sizes);
    const int ring = page_size == 0 || rng_chance(40);
    if (round % 3 == 1 && t->p.kv_rows.ring == 0 && t->p.kv_rows.page_size == 0)
        problem_scatter(t, page_size, ring);
}

static int is_naive(void)
{
    if (T.impl == ATTN_IMPL_NAIVE)
        SKIP("naive takes no part of a call");
    return T.impl == ATTN_IMPL_NAIVE;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int64_t piece_of(int64_t left)
{
    return rng_chance(30) ? left : rng_chance(20) ? 0 : rng_int(1, left);
}

/* Written where the whole call would write them. */
void law_row_parts(int round)
{
    test_problem a, b;
    if (is_naive())
        return;
    make_background(&a, round % 3 == 0 ? "dropout" : round % 3 == 1 ? "tree" : NULL, 1, banned);
    cache_some(&a, round / 3);
    twin(&a, &b);
    if (!problem_run(&a))
        return;
    for (int64_t i = 0, count; i < b.p.seq_len_q; i += count) {
        attn_params part = b.p;
        count = piece_of(b.p.seq_len_q - i);
        slice_part_rows(&part, &b, i, count);
        if (!run_part(&part, "a part of the rows"))
            return;
    }
    CHECK(problem_same_bits(&a, &b), "parts of the rows");
}

/* ---- logits ---------------------------------------------------------------------------------- */

/* Logits alone of a part of rows i.., and of keys j.. unless j is below 0. */
static int run_logits(const test_problem *t, const attn_logits *logits, int64_t i, int64_t rows,
                      int64_t j, int64_t keys)
{
    attn_params part = t->p;
    memset(&part.o, 0, sizeof part.o);
    memset(&part.lse, 0, sizeof part.lse);
    memset(&part.stats, 0, sizeof part.stats);
    memset(&part.insight, 0, sizeof part.insight);
    part.logits = *logits;
    slice_part_rows(&part, t, i, rows);
    part.o.data = part.lse.data = part.stats.data = NULL;
    if (j >= 0)
        slice_part_keys(&part, t, j, keys);
    return run_part(&part, "logits of a part");
}

/* Without a list a part gives the logits of the rows that it has. */
static void own_logits(const test_problem *t, int64_t begin, int64_t rows)
{
    const attn_params *p = &t->p;
    const int64_t n = p->seq_len_kv, heads = p->batch * p->num_heads_q;
    attn_logits logits = { .stage = p->logits.stage };
    int wrong = 0;
    logits.data = test_alloc((size_t)(heads * rows * n) * sizeof(float));
    if (!run_logits(t, &logits, begin, rows, -1, 0))
        return;
    for (int64_t h = 0; h < heads; h++)
        wrong += memcmp(logits.data + h * rows * n, p->logits.data + (h * p->seq_len_q + begin) * n,
                        (size_t)(rows * n) * sizeof(float)) != 0;
    CHECK(wrong == 0, "logits of rows %lld to %lld", (long long)begin, (long long)(begin + rows));
}

/* Parts of rows and keys fill one array of logits, with the bits of the whole call. */
void law_logits_parts(int round)
{
    static const char *const no[] = { "varlen", "partial", NULL };
    test_problem t;
    attn_logits logits;
    int32_t *list;
    size_t bytes;
    int by_keys;
    if (is_naive())
        return;
    make_background(&t, "logits", round % 2, no);
    cache_some(&t, round);
    if (t.p.logits.data == NULL || !problem_run(&t))
        return;
    logits = t.p.logits;
    by_keys = logits.stage != ATTN_LOGITS_SOFTMAX;
    if (logits.rows == NULL) {
        logits.num_rows = t.p.seq_len_q;
        list = test_alloc((size_t)(t.p.seq_len_q + 1) * sizeof *list);
        for (int64_t i = 0; i < t.p.seq_len_q; i++)
            list[i] = (int32_t)i;
        logits.rows = list;
    }
    bytes = (size_t)(t.p.batch * t.p.num_heads_q * logits.num_rows * t.p.seq_len_kv) * 4;
    logits.data = test_alloc(bytes);
    for (int64_t i = 0, rows; i < t.p.seq_len_q; i += rows) {
        rows = piece_of(t.p.seq_len_q - i);
        if (rows > 0 && t.p.logits.rows == NULL && rng_chance(30))
            own_logits(&t, i, rows);
        for (int64_t j = 0, keys; j < (by_keys ? t.p.seq_len_kv : 1); j += keys) {
            keys = by_keys ? piece_of(t.p.seq_len_kv - j) : 1;
            if (!run_logits(&t, &logits, i, rows, by_keys ? j : -1, keys))
                return;
        }
    }
    CHECK(memcmp(logits.data, t.p.logits.data, bytes) == 0, "logits of parts, stage %d",
          logits.stage);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* A call whose keys are cut, rows 0 .. rows-1 of it in states. */
typedef struct key_cut {
    const test_problem *t;
    int64_t shift; /* n of column 0, the same for all entries */
    int64_t row_begin, row_count, rows, dim_v;
    int failed;
} key_cut;

static attn_state empty_state(const key_cut *c)
{
    const attn_state s = states_alloc(c->rows, c->dim_v);
    for (int64_t r = 0; r < c->rows; r++)
        s.m[r] = -HUGE_VALF;
    memset(s.l, 0, (size_t)c->rows * sizeof(float));
    memset(s.o, 0, (size_t)(c->rows * c->dim_v) * sizeof(float));
    return s;
}

/* Workers divide the keys, where they may. */
static void divide(attn_params *p, pool *workers)
{
    p->tuning = "attn-tuning 1 split_work 1 end";
    p->num_workers = workers->workers;
    p->parallel_for = pool_for;
    p->parallel_user = workers;
}

/* Columns begin..end-1 into *state. */
static void run_keys(key_cut *c, int64_t begin, int64_t end, const attn_state *state, int continued)
{
    pool workers = pool_of((int)rng_int(2, 4), (int)rng_int(0, POOL_ORDERS - 1), 0);
    attn_params p = c->t->p;
    slice_part_rows(&p, c->t, c->row_begin, c->row_count);
    slice_part_keys(&p, c->t, begin, end - begin);
    memset(&p.o, 0, sizeof p.o);
    memset(&p.lse, 0, sizeof p.lse);
    p.partial = 1;
    p.state = *state;
    p.part.continued = continued;
    if (rng_chance(40))
        divide(&p, &workers);
    c->failed |= !run_part(&p, continued ? "a chunk continued" : "a part of the keys");
}

/* All columns of a chunk, begin..end-1, in pieces that end at blocks of n. */
static attn_state continued_chunk(key_cut *c, int64_t begin, int64_t end)
{
    const attn_state state = empty_state(c);
    for (int64_t at = begin, next; at < end; at = next) {
        const int64_t n = c->shift + at + rng_int(1, end - at);
        next = (n + ATTN_BLOCK - 1) / ATTN_BLOCK * ATTN_BLOCK - c->shift;
        next = next < end ? next : end;
        run_keys(c, at, next, &state, 1);
    }
    return state;
}

/* Chunk numbers low..high-1, a node or what the sequence has of it. */
static attn_state node_of(key_cut *c, int64_t low, int64_t high)
{
    const int64_t first = low * ATTN_CHUNK - c->shift, last = high * ATTN_CHUNK - c->shift;
    const int64_t begin = first > 0 ? first : 0;
    const int64_t end = last < c->t->p.seq_len_kv ? last : c->t->p.seq_len_kv;
    attn_state a, b;
    if (begin >= end)
        return empty_state(c);
    if (rng_chance(40) || (high - low == 1 && rng_chance(50))) {
        a = empty_state(c);
        run_keys(c, begin, end, &a, 0);
        return a;
    }
    if (high - low == 1)
        return continued_chunk(c, begin, end);
    a = node_of(c, low, (low + high) / 2);
    b = node_of(c, (low + high) / 2, high);
    CHECK(attn_state_merge(&a, &b, &a) == ATTN_OK, "attn_state_merge");
    return a;
}

/* The chunks of all keys, in a tree whose root is chunk 0 on. */
static attn_state root_of(key_cut *c)
{
    const int64_t end = c->shift + c->t->p.seq_len_kv;
    int64_t chunks = 1;
    while (chunks * ATTN_CHUNK < end)
        chunks *= 2;
    return node_of(c, 0, chunks);
}

/* A few rows and thousands of keys. */
static void make_long_shape(test_problem *t, int stored)
{
    test_shape s = { .batch = 1, .heads_kv = 1 };
    s.heads_q = rng_int(1, 3);
    s.seq_q = rng_int(1, 5);
    s.seq_kv = rng_int(1500, 7000);
    s.dim = rng_int(1, 12);
    s.dim_v = rng_int(1, 6);
    s.factor_q = 4;
    if (stored)
        s = whole_units(s);
    problem_make(t, &s);
    t->p.causal = rng_chance(50);
    t->p.softmax1 = rng_chance(30);
}

/* The entries of the call number their columns alike, so that one cut suits all. */
static void number_alike(test_problem *t, key_cut *c)
{
    static const int64_t shifts[] = { 0, 1000, 1021, 2040, 3000, 16, 1 };
    static int64_t base[8];
    memset(c, 0, sizeof *c);
    c->t = t;
    c->shift = RNG_PICK(shifts);
    for (int64_t b = 0; b < t->p.batch; b++)
        base[b] = c->shift + (t->p.kv_begin != NULL ? t->p.kv_begin[b] : 0);
    if (c->shift != 0 || t->p.kv_begin != NULL || rng_chance(30))
        t->p.key_base = base;
    c->dim_v = t->o.dim;
}

static void make_alike(test_problem *t, key_cut *c, int round)
{
    static const char *const none[] = { "varlen", "partial", "logits", "key_base", NULL };
    if (round % 4 == 2)
        make_long_shape(t, 0);
    else
        make_background(t, round % 4 == 0 ? "dropout" : round % 4 == 1 ? "csr" : NULL, 1, none);
    cache_some(t, round);
    number_alike(t, c);
}

/* Merged, finished, for some rows at a time. */
static void compare_key_parts(test_problem *a, key_cut *c)
{
    test_problem b;
    twin(a, &b);
    if (!problem_run(a))
        return;
    for (int64_t i = 0; i < b.p.seq_len_q; i += c->row_count) {
        attn_params part = test_params(&b.p);
        attn_state root;
        attn_status status;
        c->row_begin = i;
        c->row_count = rng_chance(60) ? b.p.seq_len_q - i : rng_int(1, b.p.seq_len_q - i);
        c->rows = b.p.batch * b.p.num_heads_q * c->row_count;
        root = root_of(c);
        slice_part_rows(&part, &b, i, c->row_count);
        status = attn_state_finish(&part, &root);
        CHECK(status == ATTN_OK, "attn_state_finish: %s", attn_status_string(status));
        if (c->failed)
            return;
    }
    CHECK(problem_same_bits(a, &b), "parts of the keys, merged");
}

void law_key_parts(int round)
{
    test_problem a;
    key_cut c;
    if (is_naive())
        return;
    make_alike(&a, &c, round);
    compare_key_parts(&a, &c);
}

/* Keys in types that only K and V have, scores in whole numbers, rotated rows. */
void law_stored_parts(int round)
{
    static const char *const none[] = { "varlen", "paged",    "ring",     "paged_ring", "partial",
                                        "logits", "key_base", "odd_dims", "mixed",      NULL };
    test_problem a;
    key_cut c;
    if (is_naive() || T.backend != NULL)
        return;
    if (round % 4 == 2) {
        make_long_shape(&a, 1);
        quantise_for_levels(&a);
    } else {
        make_stored(&a, none);
    }
    number_alike(&a, &c);
    compare_key_parts(&a, &c);
}

static int same_states(const attn_state *a, const attn_state *b)
{
    const size_t rows = (size_t)a->num_rows, values = rows * (size_t)a->head_dim_v;
    return memcmp(a->m, b->m, rows * sizeof(float)) == 0 &&
           memcmp(a->l, b->l, rows * sizeof(float)) == 0 &&
           memcmp(a->o, b->o, values * sizeof(float)) == 0;
}

/* Any range of many keys: as a part, as a part that workers divide, and as a call with these keys
 * alone. */
void law_key_range(int round)
{
    test_problem t;
    key_cut c;
    attn_state part, divided, alone;
    attn_params p;
    pool workers = pool_of((int)rng_int(2, 4), (int)rng_int(0, POOL_ORDERS - 1), 0);
    int64_t begin, count;
    if (is_naive())
        return;
    make_alike(&t, &c, 2);
    c.row_count = t.p.seq_len_q;
    c.rows = t.p.num_heads_q * c.row_count;
    begin = rng_int(0, t.p.seq_len_kv - 1);
    count = round % 2 == 0 ? t.p.seq_len_kv - begin : rng_int(1, t.p.seq_len_kv - begin);
    part = empty_state(&c);
    divided = empty_state(&c);
    alone = empty_state(&c);
    run_keys(&c, begin, begin + count, &part, 0);
    p = t.p;
    memset(&p.o, 0, sizeof p.o);
    memset(&p.lse, 0, sizeof p.lse);
    p.partial = 1;
    p.state = divided;
    slice_part_keys(&p, &t, begin, count);
    divide(&p, &workers);
    c.failed |= !run_part(&p, "a part of the keys, divided");
    p = t.p;
    slice_keys(&p, &t, begin, count);
    memset(&p.o, 0, sizeof p.o);
    memset(&p.lse, 0, sizeof p.lse);
    p.partial = 1;
    p.state = alone;
    c.failed |= !run_part(&p, "the keys of a part alone");
    if (!c.failed)
        CHECK(same_states(&part, &divided) && same_states(&part, &alone), "a range of keys");
}
