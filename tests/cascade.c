/* cascade.c - keys that all batch entries share, taken together: the same bits as without.
 * SPDX-License-Identifier: MIT
 *
 * Entries hold equal keys at first, for the bits to compare with. Then the keys and values of every
 * entry but the first become NaN as far as they are shared: only a call that reads them once, from
 * entry 0, still gives these bits.
 */
#include "test.h"

#include <string.h>

enum { BLOCK = ATTN_BLOCK, LEAST = 64, MOST_ROWS = 64, MOST_BEGIN = 20 };

/* ---- problems -------------------------------------------------------------------------------- */

static int64_t begin_of(const attn_params *p, int64_t b)
{
    return p->kv_begin != NULL ? p->kv_begin[b] : 0;
}

static int64_t keys_of(const attn_params *p, int64_t b)
{
    return p->kv_len != NULL ? p->kv_len[b] : p->seq_len_kv - begin_of(p, b);
}

/* Key j of entry b = key j of entry 0, or NaN. */
static void set_key(test_tensor *t, const attn_params *p, int64_t b, int64_t j, int is_nan)
{
    for (int64_t h = 0; h < t->heads; h++)
        for (int64_t d = 0; d < t->dim; d++)
            tensor_set(t, b, h, begin_of(p, b) + j, d,
                       is_nan ? float_from_bits(0x7fc00000u)
                              : tensor_get(t, 0, h, begin_of(p, 0) + j, d));
}

/* Keys 0..count-1 of the entries from 1 on. */
static void set_prefix(test_problem *t, int64_t count, int is_nan)
{
    for (int64_t b = 1; b < t->p.batch; b++)
        for (int64_t j = 0; j < count; j++) {
            set_key(&t->k, &t->p, b, j, is_nan);
            set_key(&t->v, &t->p, b, j, is_nan);
        }
    tensor_remember(&t->k);
    tensor_remember(&t->v);
}

/* What no length leaves to any row is NaN, left padding and the end of every entry. */
static void hide_the_rest(test_problem *t)
{
    for (int64_t b = 0; b < t->p.batch; b++)
        for (int64_t c = 0; c < t->p.seq_len_kv; c++) {
            const int64_t j = c - begin_of(&t->p, b);
            if (j < 0 || j >= keys_of(&t->p, b)) {
                set_key(&t->k, &t->p, b, j, 1);
                set_key(&t->v, &t->p, b, j, 1);
            }
        }
}

/* The keys that can be handed over: up to the last multiple of a block. */
static int64_t whole_keys(const attn_params *p, int64_t shared)
{
    const int64_t base = p->key_base != NULL ? p->key_base[0] : 0;
    return (base + shared) / BLOCK * BLOCK - base;
}

static void set_lengths(attn_params *p, int64_t shared)
{
    const size_t bytes = (size_t)p->batch * sizeof(int32_t);
    const int64_t rows = p->seq_len_q;
    int32_t *begin = test_alloc(bytes), *keys = test_alloc(bytes), *queries = test_alloc(bytes);
    int64_t b;
    for (b = 0; b < p->batch; b++) {
        begin[b] = (int32_t)rng_int(0, MOST_BEGIN);
        queries[b] = (int32_t)rng_int(0, rows);
        keys[b] = (int32_t)rng_int(shared + rows, p->seq_len_kv - MOST_BEGIN);
        if (rng_chance(30)) /* the last row of the shared keys is the first one's own */
            keys[b] = (int32_t)(shared + (p->causal && rows > 0 ? rows - 1 : 0));
    }
    queries[rng_int(0, p->batch - 1)] = (int32_t)rows;
    p->q_len = rng_chance(40) ? queries : NULL;
    p->kv_begin = rng_chance(50) ? begin : NULL;
    p->kv_len = rng_chance(70) ? keys : NULL;
}

static void set_base(attn_params *p, int64_t base)
{
    int64_t *bases = test_alloc((size_t)p->batch * sizeof *bases);
    for (int64_t b = 0; b < p->batch; b++)
        bases[b] = base;
    p->key_base = bases;
}

static void set_softmax(attn_params *p)
{
    float *sinks = test_alloc((size_t)p->num_heads_q * sizeof *sinks);
    for (int64_t h = 0; h < p->num_heads_q; h++)
        sinks[h] = rng_normal();
    p->sinks = rng_chance(30) ? sinks : NULL;
    p->softmax1 = p->sinks == NULL && rng_chance(20);
    p->softcap = rng_chance(25) ? 5.0f : 0;
}

static test_shape random_shape(int64_t shared)
{
    static const int64_t groups[] = { 1, 1, 2, 3, 4, 8 }, rows[] = { 1, 1, 1, 2, 3, 5, 7, 16 };
    static const int64_t layouts[] = { LAYOUT_PACKED, LAYOUT_BSHD, LAYOUT_PADDED,
                                       LAYOUT_NEGATIVE_SEQ };
    test_shape s;
    memset(&s, 0, sizeof s);
    s.batch = rng_int(2, 5);
    s.heads_kv = rng_int(1, 2);
    s.heads_q = s.heads_kv * RNG_PICK(groups);
    s.seq_q = RNG_PICK(rows);
    if (s.seq_q * s.heads_q > 48 || (shared > 600 && s.seq_q * s.heads_q > 12))
        s.seq_q = 1;
    s.seq_kv = shared + MOST_BEGIN + s.seq_q + rng_int(0, 150);
    s.dim = rng_int(1, 18);
    s.dim_v = rng_int(1, 10);
    s.dtype_q = (int)rng_int(0, 2), s.dtype_k = (int)rng_int(0, 2);
    s.dtype_v = (int)rng_int(0, 2), s.dtype_o = (int)rng_int(0, 2);
    s.layout_q = (int)RNG_PICK(layouts), s.layout_k = (int)RNG_PICK(layouts);
    s.layout_v = (int)RNG_PICK(layouts), s.layout_o = (int)RNG_PICK(layouts);
    s.factor_q = rng_chance(50) ? 6.0f : 1.0f;
    return s;
}

/* A batch whose first `shared` keys are the same; p.shared_keys is still 0. */
static void make_shared(test_problem *t, const test_shape *s, int64_t shared)
{
    problem_make(t, s);
    set_prefix(t, shared, 0);
}

static void make_random(test_problem *t, int64_t shared)
{
    static const int64_t bases[] = { 0, 3, 1021, 5000 }, tiles[] = { 0, 0, 16, 32, 256 };
    const test_shape s = random_shape(shared);
    problem_make(t, &s);
    t->p.causal = rng_chance(50);
    set_lengths(&t->p, shared);
    if (rng_chance(60))
        set_base(&t->p, RNG_PICK(bases));
    set_softmax(&t->p);
    if (rng_chance(20)) {
        t->p.window = ATTN_WINDOW;
        t->p.window_left = 100000;
        t->p.window_right = -1;
    }
    t->p.tile_keys = (int)RNG_PICK(tiles);
    hide_the_rest(t);
    set_prefix(t, shared, 0);
}

/* ---- running --------------------------------------------------------------------------------- */

static int64_t indices_run; /* by the loop below, since it was set to 0 */

/* All indices in descending order, each on any worker. */
static int any_worker(void *user, int64_t n, attn_task_fn task, void *arg)
{
    const int workers = *(const int *)user;
    for (int64_t i = n - 1; i >= 0; i--)
        task(arg, i, (int)rng_int(0, workers - 1));
    indices_run += n;
    return 0;
}

static const char *reasons(const attn_params *p)
{
    static attn_info info;
    const attn_params q = test_params(p);
    CHECK(attn_explain(&q, &info) == ATTN_OK, "attn_explain failed");
    return info.reasons;
}

static int is_shared(const attn_params *p)
{
    return strstr(reasons(p), " keys: once for the batch") != NULL;
}

/* NaN may stand where nothing is read: not in a redo, which walks each entry's own keys. */
static int may_poison(const attn_params *p)
{
    return is_shared(p) && !p->force_redo && !T.force_redo;
}

/* a, without sharing, against the call *changed with the output of its own. */
static void check_same(const test_problem *a, const attn_params *changed, const char *what)
{
    test_problem b = *a;
    b.p = *changed;
    problem_new_output(&b);
    if (problem_run(&b))
        CHECK(problem_same_bits(a, &b), "%s: other bits; %s", what, reasons(&b.p));
}

static attn_state new_states(const attn_params *p)
{
    const int64_t rows = p->batch * p->num_heads_q * p->seq_len_q;
    attn_state s;
    memset(&s, 0, sizeof s);
    s.num_rows = rows;
    s.head_dim_v = p->head_dim_v;
    s.m = test_alloc((size_t)rows * sizeof(float));
    s.l = test_alloc((size_t)rows * sizeof(float));
    s.o = test_alloc((size_t)(rows * p->head_dim_v) * sizeof(float));
    return s;
}

/* The raw states of a call. */
static attn_state run_partial(attn_params p)
{
    p.partial = 1;
    p.state = new_states(&p);
    CHECK(test_run(&p) == ATTN_OK, "a call for raw states failed");
    return p.state;
}

/* Rows that are not used hold the NaN of test_alloc in both. */
static void check_states(const attn_state *a, const attn_state *b, const char *what)
{
    const size_t rows = (size_t)a->num_rows, size = sizeof(float);
    CHECK(memcmp(a->m, b->m, rows * size) == 0 && memcmp(a->l, b->l, rows * size) == 0 &&
              memcmp(a->o, b->o, rows * (size_t)a->head_dim_v * size) == 0,
          "%s: other raw states", what);
}

/* In a workspace of `bytes`, which may leave no room for sharing. */
static void check_workspace(const test_problem *a, const attn_params *changed, size_t bytes)
{
    test_problem b = *a;
    attn_params p;
    void *memory = test_alloc(bytes);
    b.p = *changed;
    problem_new_output(&b);
    p = test_params(&b.p);
    CHECK(attn_forward(&p, memory, bytes) == ATTN_OK, "a workspace of %lu bytes",
          (unsigned long)bytes);
    CHECK(test_margins() == 0, "written beyond a workspace of %lu bytes", (unsigned long)bytes);
    CHECK(problem_same_bits(a, &b), "a workspace of %lu bytes: other bits", (unsigned long)bytes);
}

static void check_workspaces(const test_problem *a, const attn_params *p)
{
    const attn_params q = test_params(p);
    const size_t least = test_least_workspace(&q);
    size_t best = 0;
    CHECK(attn_workspace_size(&q, &best) == ATTN_OK, "attn_workspace_size failed");
    if (best > least) /* a backend has one size */
        check_workspace(a, p, best - 1);
    check_workspace(a, p, least + (best - least) / 2);
    check_workspace(a, p, least);
}

static attn_params with_workers(const attn_params *p, int *workers)
{
    attn_params q = *p;
    *workers = (int)rng_int(2, 8);
    q.num_workers = *workers;
    q.parallel_for = any_worker;
    q.parallel_user = workers;
    return q;
}

/* Keys in pages, or in a ring. */
static void check_scattered(const test_problem *a, const attn_params *shared)
{
    static const int64_t sizes[] = { 1, 5, 16, 64 };
    test_problem b = *a;
    const int paged = rng_chance(70);
    b.p = *shared;
    problem_scatter(&b, paged ? RNG_PICK(sizes) : 0, !paged || rng_chance(30));
    check_same(a, &b.p, paged ? "paged" : "ring");
}

/* Everything that may change no bit, with equal keys in all entries. */
static void check_equal_keys(const test_problem *a, const attn_params *shared)
{
    attn_params p = *shared;
    int workers;
    check_scattered(a, shared);
    check_same(a, &p, "shared");
    p.force_redo = 1;
    check_same(a, &p, "redo");
    p = with_workers(shared, &workers);
    check_same(a, &p, "workers");
    check_workspaces(a, &p);
    check_workspaces(a, shared);
}

/* With NaN in all entries but the first. */
static void check_one_entry_read(test_problem *a, const attn_params *shared)
{
    const attn_state states = run_partial(a->p);
    int workers;
    const attn_params p = with_workers(shared, &workers);
    attn_state again;
    if (!may_poison(shared))
        return;
    set_prefix(a, whole_keys(&a->p, shared->shared_keys), 1);
    check_same(a, shared, "only entry 0 has the keys");
    again = run_partial(*shared);
    check_states(&states, &again, "only entry 0 has the keys");
    if (may_poison(&p))
        check_same(a, &p, "only entry 0 has the keys, workers");
}

static void check_prefix(int64_t shared)
{
    test_problem t;
    attn_params p;
    int64_t whole;
    make_random(&t, shared);
    if (!problem_run(&t))
        return;
    p = t.p;
    p.shared_keys = shared;
    whole = whole_keys(&p, shared);
    CHECK(is_shared(&p) == (whole >= LEAST) || T.impl == ATTN_IMPL_NAIVE, "%s", reasons(&p));
    check_equal_keys(&t, &p);
    check_one_entry_read(&t, &p);
}

static void check_prefixes(void)
{
    static const int64_t prefixes[] = { 1,   15,  16,  17,   63,   64,   65,   79,  80,
                                        200, 500, 960, 1023, 1024, 1025, 2048, 3000 };
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        for (int round = 0; round < (prefixes[i] < LEAST ? 1 : prefixes[i] > 900 ? 4 : 6); round++)
            if (begin_case("prefix of %d keys, round %d", (int)prefixes[i], round))
                check_prefix(prefixes[i]);
}

/* ---- against the oracle ---------------------------------------------------------------------- */

static void check_oracle(void)
{
    static const int64_t prefixes[] = { 64, 200, 1025 };
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        test_problem t;
        if (!begin_case("a prefix of %d keys against the oracle", (int)prefixes[i]))
            continue;
        make_random(&t, prefixes[i]);
        t.p.shared_keys = prefixes[i];
        problem_check(&t);
    }
}

/* ---- what keeps a batch from sharing --------------------------------------------------------- */

enum { BATCH = 3, HEADS_Q = 4, HEADS_KV = 2, ROWS = 2, KEYS = 300, SHARED = 200, DIM = 8 };

static float *normals(int64_t count)
{
    float *x = test_alloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = rng_normal();
    return x;
}

static int32_t *ints(int count, int32_t value)
{
    int32_t *x = test_alloc((size_t)count * sizeof *x);
    for (int i = 0; i < count; i++)
        x[i] = value;
    return x;
}

/* A mask of ones and zeros for one row of all keys, per batch entry. */
static uint8_t *ones(int64_t bytes)
{
    uint8_t *x = test_alloc((size_t)bytes);
    for (int64_t i = 0; i < bytes; i++)
        x[i] = (uint8_t)rng_int(0, 255);
    return x;
}

static int show_some(void *user, const attn_pair *at)
{
    (void)user;
    return (at->batch + at->j) % 3 != 0;
}

static float by_entry(void *user, const attn_pair *at, float logit)
{
    (void)user;
    return logit * (float)(at->batch + 1);
}

static void add_bias(attn_params *p)
{
    p->bias.data = normals(BATCH * KEYS);
    p->bias.stride_batch = KEYS;
    p->bias.stride_head = p->bias.stride_q = ATTN_STRIDE_BROADCAST;
    p->bias.stride_kv = 1;
}

static void add_alibi(attn_params *p)
{
    p->alibi_slopes = normals(HEADS_Q * BATCH);
    p->alibi_stride = HEADS_Q;
}

static void add_score(attn_params *p)
{
    p->score = by_entry;
}

static void add_bool_mask(attn_params *p)
{
    p->bool_mask.data = ones(BATCH * KEYS);
    p->bool_mask.stride_batch = KEYS;
    p->bool_mask.stride_head = p->bool_mask.stride_q = ATTN_STRIDE_BROADCAST;
    p->bool_mask.stride_kv = 1;
}

static void add_bit_mask(attn_params *p)
{
    p->bit_mask.data = ones(BATCH * KEYS);
    p->bit_mask.stride_batch = KEYS;
    p->bit_mask.stride_head = p->bit_mask.stride_q = ATTN_STRIDE_BROADCAST;
    p->bit_mask.stride_kv = 1;
}

static void add_blocks(attn_params *p)
{
    p->block_mask.block_q = 2, p->block_mask.block_k = 30;
    p->block_mask.bitmap = ones(10);
    p->block_mask.stride_batch = 10;
    p->block_mask.stride_head = ATTN_STRIDE_BROADCAST;
}

static void add_mask(attn_params *p)
{
    p->mask = show_some;
}

static void add_segments(attn_params *p)
{
    int32_t *q = ints(BATCH * ROWS, 1), *kv = ints(BATCH * KEYS, 1);
    for (int i = 0; i < BATCH * KEYS; i++)
        kv[i] = (int32_t)rng_int(0, 1);
    p->q_segments = q;
    p->kv_segments = kv;
}

static void add_tree(attn_params *p)
{
    p->tree_parents = ints(BATCH * ROWS, -1);
}

static void add_dropout(attn_params *p)
{
    p->dropout_p = 0.5f;
}

static void add_window(attn_params *p)
{
    p->window = ATTN_WINDOW;
    p->window_left = KEYS - ROWS; /* the last row misses key 0 */
}

static void add_chunks(attn_params *p)
{
    p->chunk_size = 128;
}

static void add_causal(attn_params *p)
{
    p->causal = 1;
    p->alignment = ATTN_ALIGN_OFFSET;
    p->q_offset = ints(BATCH, 190); /* rows end inside the 192 keys */
}

static void add_short_entry(attn_params *p)
{
    int32_t *keys = ints(BATCH, KEYS);
    keys[BATCH - 1] = SHARED - 9;
    p->kv_len = keys;
}

static void add_short_first(attn_params *p)
{
    int32_t *keys = ints(BATCH, KEYS), *rows = ints(BATCH, ROWS);
    keys[0] = 50; /* without rows of its own */
    rows[0] = 0;
    p->kv_len = keys;
    p->q_len = rows;
}

static void add_bases(attn_params *p)
{
    int64_t *bases = test_alloc(BATCH * sizeof *bases);
    for (int b = 0; b < BATCH; b++)
        bases[b] = b == 1 ? 16 : 0;
    p->key_base = bases;
}

static void add_few_keys(attn_params *p)
{
    set_base(p, 8);
    p->shared_keys = 71; /* n = 79: 56 keys up to n = 64 */
}

static void add_naive(attn_params *p)
{
    p->impl = ATTN_IMPL_NAIVE;
}

static void add_auto(attn_params *p)
{
    p->impl = ATTN_IMPL_AUTO;
    p->auto_naive_keys = KEYS;
}

/* None of these keeps it from sharing. */

static void add_nothing(attn_params *p)
{
    (void)p;
}

static void add_wide_window(attn_params *p)
{
    p->window = ATTN_WINDOW;
    p->window_left = KEYS - 1;
}

static void add_same_chunk(attn_params *p)
{
    p->chunk_size = 512;
}

static void add_last_row_enough(attn_params *p)
{
    add_causal(p);
    p->q_offset = ints(BATCH, 191);
}

static void add_unused_entry(attn_params *p)
{
    int32_t *keys = ints(BATCH, KEYS), *rows = ints(BATCH, ROWS);
    add_bases(p);
    keys[1] = 50; /* the one whose key_base differs, too */
    rows[1] = 0;
    p->kv_len = keys;
    p->q_len = rows;
}

static void add_least_keys(attn_params *p)
{
    p->shared_keys = LEAST;
}

static const struct circumstance {
    const char *name;
    void (*add)(attn_params *p);
    const char *why; /* in the reasons; NULL = it is shared */
} circumstances[] = {
    { "bias", add_bias, "bias" },
    { "alibi", add_alibi, "ALiBi" },
    { "score callback", add_score, "score callback" },
    { "bool mask", add_bool_mask, "mask other than" },
    { "bit mask", add_bit_mask, "mask other than" },
    { "block mask", add_blocks, "mask other than" },
    { "mask callback", add_mask, "mask other than" },
    { "segments", add_segments, "mask other than" },
    { "tree", add_tree, "mask other than" },
    { "dropout", add_dropout, "dropout" },
    { "narrow window", add_window, "a row does not see all of it" },
    { "chunks", add_chunks, "a row does not see all of it" },
    { "causal inside", add_causal, "a row does not see all of it" },
    { "a short entry", add_short_entry, "a row does not see all of it" },
    { "short entry 0", add_short_first, "kv_len[0] is below it" },
    { "key_base", add_bases, "key_base differs" },
    { "few keys", add_few_keys, "fewer than 64 keys" },
    { "naive", add_naive, "naive" },
    { "auto", add_auto, "naive" },
    { "nothing", add_nothing, NULL },
    { "wide window", add_wide_window, NULL },
    { "one chunk", add_same_chunk, NULL },
    { "causal at the end", add_last_row_enough, NULL },
    { "entry without rows", add_unused_entry, NULL },
    { "least keys", add_least_keys, NULL },
};

static test_shape plain_shape(void)
{
    test_shape s;
    memset(&s, 0, sizeof s);
    s.batch = BATCH;
    s.heads_q = HEADS_Q, s.heads_kv = HEADS_KV;
    s.seq_q = ROWS, s.seq_kv = KEYS;
    s.dim = s.dim_v = DIM;
    return s;
}

/* What attn_explain must say about t with p.shared_keys. */
static void expect(const attn_params *p, const char *why)
{
    const char *text = reasons(p), *at = strstr(text, "prefix not shared: ");
    if (T.impl == ATTN_IMPL_NAIVE)
        return;
    if (why == NULL)
        CHECK(is_shared(p), "not shared: %s", text);
    else
        CHECK(at != NULL && strstr(at, why) != NULL, "not '%s': %s", why, text);
}

/* The same bits whether shared or not; only entry 0 is read if so. */
static void check_both(test_problem *t, const char *why)
{
    attn_params p = t->p;
    t->p.shared_keys = 0;
    if (!problem_run(t))
        return;
    expect(&p, why);
    check_same(t, &p, "shared_keys");
    if (why == NULL && may_poison(&p)) {
        set_prefix(t, whole_keys(&p, p.shared_keys), 1);
        check_same(t, &p, "only entry 0 has the keys");
    }
}

static void check_circumstances(void)
{
    for (size_t i = 0; i < sizeof circumstances / sizeof *circumstances; i++) {
        const struct circumstance *c = &circumstances[i];
        const test_shape s = plain_shape();
        test_problem t;
        if (!begin_case("circumstance %s", c->name))
            continue;
        make_shared(&t, &s, SHARED);
        t.p.shared_keys = SHARED;
        c->add(&t.p);
        check_both(&t, c->why);
    }
}

static const struct form {
    const char *name;
    int64_t batch, heads_q, heads_kv, rows;
    int varlen, workers;
    const char *why;
} forms[] = {
    { "batch of 1", 1, 4, 2, 1, 0, 1, "batch is below 2" },
    { "batch of 2", 2, 4, 2, 1, 0, 1, NULL },
    { "packed sequences", 3, 4, 2, 9, 1, 1, "cu_seqlens_q" },
    { "rows enough", 2, 4, 2, MOST_ROWS / 2 + 1, 0, 1, "rows enough" },
    { "as many rows as share", 2, 4, 2, MOST_ROWS / 2, 0, 1, NULL },
    { "group enough", 2, MOST_ROWS + 1, 1, 1, 0, 1, "rows enough" },
    { "as large a group as shares", 2, MOST_ROWS, 1, 1, 0, 1, NULL },
    { "many entries", 37, 3, 1, 1, 0, 1, NULL },
    { "one row tile, two workers", 2, 1, 1, 1, 0, 2, NULL },
    { "few row tiles, eight workers", 8, 1, 1, 1, 0, 8, "most workers" },
    { "many row tiles, eight workers", 64, 8, 1, 1, 0, 8, NULL },
};

static void check_form(const struct form *f, int64_t dim)
{
    test_shape s = plain_shape();
    test_problem t;
    int workers = f->workers;
    s.batch = f->batch, s.heads_q = f->heads_q, s.heads_kv = f->heads_kv, s.seq_q = f->rows;
    s.varlen = f->varlen;
    s.dim = s.dim_v = dim;
    problem_make(&t, &s);
    if (!f->varlen)
        set_prefix(&t, SHARED, 0);
    t.p.shared_keys = SHARED;
    t.p.num_workers = workers;
    t.p.parallel_for = any_worker;
    t.p.parallel_user = &workers;
    check_both(&t, f->why);
}

static void check_forms(void)
{
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (begin_case("form %s", forms[i].name))
            check_form(&forms[i], DIM);
}

/* Kernels left open: those for the rows of the batch and those for the rows of an entry may be two
 * sets, with tiles of different widths. With one dimension their states are small, and so the
 * slots of the wide set are larger than those of the narrow one. */
static void check_open_kernels(void)
{
    static const struct form wide = { "wide", 8, 8, 1, 1, 0, 1, NULL };
    static const int64_t prefixes[] = { 64, 130, 1025 };
    const char *const kernels = T.kernels;
    T.kernels = T.best ? NULL : T.kernels;
    if (T.best && begin_case("kernels left open, one dimension"))
        check_form(&wide, 1);
    for (int round = 0; round < 18 && T.best; round++) {
        const int64_t prefix = prefixes[round % 3];
        if (begin_case("kernels left open, prefix of %d keys, round %d", (int)prefix, round))
            check_prefix(prefix);
    }
    T.kernels = kernels;
}

/* ---- further outputs, sizes ------------------------------------------------------------------ */

static void check_logits(void)
{
    const test_shape s = plain_shape();
    const size_t bytes = sizeof(float) * BATCH * HEADS_Q * ROWS * KEYS;
    test_problem t;
    attn_params p;
    if (!begin_case("logits are those of each entry"))
        return;
    make_shared(&t, &s, SHARED);
    t.p.logits.stage = ATTN_LOGITS_SOFTMAX;
    t.p.logits.data = test_alloc(bytes);
    if (!problem_run(&t))
        return;
    p = t.p;
    p.shared_keys = SHARED;
    p.logits.data = test_alloc(bytes);
    expect(&p, NULL);
    check_same(&t, &p, "beside logits");
    CHECK(memcmp(p.logits.data, t.p.logits.data, bytes) == 0, "other probabilities");
    p.o.data = p.lse.data = p.stats.data = NULL;
    expect(&p, "only logits are asked for");
    CHECK(test_run(&p) == ATTN_OK, "logits alone");
    CHECK(memcmp(p.logits.data, t.p.logits.data, bytes) == 0, "other probabilities alone");
}

/* The lse, or with 2 numbers the statistics. */
static void check_sums_alone(int numbers)
{
    test_shape s = plain_shape();
    const char *name = numbers == 2 ? "stats" : "lse";
    test_problem t;
    attn_params p;
    float *sums;
    if (!begin_case("%s without o", name))
        return;
    s.stats = STATS_ALWAYS;
    make_shared(&t, &s, SHARED);
    if (!problem_run(&t))
        return;
    p = t.p;
    p.shared_keys = SHARED;
    memset(&p.o, 0, sizeof p.o);
    memset(&p.lse, 0, sizeof p.lse);
    memset(&p.stats, 0, sizeof p.stats);
    sums = test_alloc((size_t)(BATCH * HEADS_Q * ROWS * numbers) * sizeof *sums);
    *(numbers == 2 ? &p.stats.data : &p.lse.data) = sums;
    CHECK(test_run(&p) == ATTN_OK, "%s alone", name);
    for (int64_t i = 0; i < BATCH * HEADS_Q * ROWS * numbers; i++) {
        const int64_t row = i / numbers, head = row / ROWS;
        const test_tensor *whole = numbers == 2 ? &t.stats : &t.lse;
        if (float_bits(sums[i]) != float_bits(tensor_get(whole, head / HEADS_Q, head % HEADS_Q,
                                                         row % ROWS, i % numbers))) {
            CHECK(0, "%s of row %d", name, (int)row);
            break;
        }
    }
}

/* attn_explain counts the pieces of both lists. */
static void check_items(void)
{
    const test_shape s = plain_shape();
    test_problem t;
    attn_params p;
    attn_info info;
    int workers = 2;
    if (!begin_case("pieces of work"))
        return;
    make_shared(&t, &s, SHARED);
    t.p.shared_keys = SHARED;
    t.p.num_workers = workers;
    t.p.parallel_for = any_worker;
    t.p.parallel_user = &workers;
    p = test_params(&t.p);
    indices_run = 0;
    CHECK(attn_explain(&p, &info) == ATTN_OK, "attn_explain failed");
    CHECK(test_run(&p) == ATTN_OK, "attn_forward failed");
    CHECK(info.items == indices_run, "%d pieces, %d ran", (int)info.items, (int)indices_run);
}

/* Decoding in the workspace of the prefill: room for sharing was asked for. Causal rows of the
 * prefill end inside the keys, those decoded see all of them. */
static void check_longer_workspace(void)
{
    static const int64_t rows[] = { 1, 3, 32 }, shared[] = { 64, 250, 1200 };
    for (int round = 0; round < 18; round++) {
        const int64_t keys = shared[round / 3 % 3];
        const int causal = round >= 9;
        test_shape s = plain_shape();
        test_problem t;
        attn_params p, q;
        size_t bytes = 0;
        if (!begin_case("%d rows, %d keys in the workspace of a%s prefill", (int)rows[round % 3],
                        (int)keys, causal ? " causal" : ""))
            continue;
        s.seq_q = rows[round % 3];
        s.seq_kv = keys + 40;
        make_shared(&t, &s, keys);
        t.p.causal = causal;
        if (!problem_run(&t))
            continue;
        p = t.p;
        p.shared_keys = keys;
        q = test_params(&p);
        q.seq_len_q = 500, q.seq_len_kv = 1300, q.shared_keys = 1200;
        CHECK(attn_workspace_size(&q, &bytes) == ATTN_OK, "attn_workspace_size failed");
        expect(&p, NULL);
        if (may_poison(&p))
            set_prefix(&t, whole_keys(&p, keys), 1);
        check_workspace(&t, &p, bytes);
    }
}

/* More states than memory holds: not an error where the call itself is none. */
static void check_beyond_memory(void)
{
    attn_params p;
    attn_info info;
    size_t with = 0, without = 0;
    if (!begin_case("states beyond all memory"))
        return;
    memset(&p, 0, sizeof p);
    p.batch = (int64_t)(PTRDIFF_MAX / 400);
    p.num_heads_q = p.seq_len_q = 1;
    p.seq_len_kv = 4096;
    p.head_dim = p.head_dim_v = 8;
    p.k.stride_batch = p.v.stride_batch = ATTN_STRIDE_BROADCAST;
    CHECK(attn_workspace_size(&p, &without) == ATTN_OK, "without");
    p.shared_keys = 4096;
    CHECK(attn_workspace_size(&p, &with) == ATTN_OK, "with");
    CHECK(with == without, "with: %lu, not %lu bytes", (unsigned long)with, (unsigned long)without);
    CHECK(attn_explain(&p, &info) == ATTN_OK, "attn_explain failed");
    CHECK(strstr(info.reasons, "fit into memory") != NULL, "%s", info.reasons);
}

TEST_GROUP(cascade, RUN_EACH_SET, "keys that a batch shares, read once: the same bits")
{
    check_prefixes();
    check_oracle();
    check_circumstances();
    check_forms();
    check_open_kernels();
    check_logits();
    check_sums_alone(1);
    check_sums_alone(2);
    check_items();
    check_longer_workspace();
    check_beyond_memory();
}
