/* skip.c - blocks of keys left out, and the bound on what they held: against the oracle and bit for bit.
 * SPDX-License-Identifier: MIT
 */
#include "features.h"
#include "laws.h"
#include "oracle.h"
#include "pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 16, LAST = 4 };

static const double unit = 1.0 / 16777216.0; /* u of binary32 */

static int64_t rows_seen, rows_that_skip, divided;

static size_t rows_of(const attn_params *p)
{
    return (size_t)(p->batch * p->num_heads_q * p->seq_len_q);
}

/* An array of its own for the bounds. */
static void ask(attn_params *p, float below)
{
    p->skip.below = below;
    p->skip.dropped = test_alloc(rows_of(p) * sizeof *p->skip.dropped);
}

static int same_bounds(const attn_params *a, const attn_params *b)
{
    return memcmp(a->skip.dropped, b->skip.dropped, rows_of(a) * sizeof *a->skip.dropped) == 0;
}

/* ---- against the oracle ---------------------------------------------------------------------- */

/* What a row must leave out, and what it may where binary32 decides: the sums are relative to exp(most). */
typedef struct left_out {
    double mass, bound; /* the probability of the keys; 16 times the largest of each block */
} left_out;

typedef struct row_of {
    const attn_params *p;
    int64_t b, h, i, keys;
    double *logit, *error; /* error: absolute */
    double most, all, limit, worst_error;
    int64_t lo, hi; /* of the keys that the ranges leave */
    left_out sure, maybe;
} row_of;

static int64_t row_index(const row_of *r)
{
    const attn_params *p = r->p;
    const int64_t entry = p->cu_seqlens_q != NULL ? 0 : r->b * p->num_heads_q;
    const int64_t first = p->cu_seqlens_q != NULL ? p->cu_seqlens_q[r->b] : 0;
    return (entry + r->h) * p->seq_len_q + first + r->i;
}

static int64_t block_of(const row_of *r, int64_t j)
{
    return ((r->p->key_base != NULL ? r->p->key_base[r->b] : 0) + j) / BLOCK;
}

/* The keys that lengths and the masks of position leave. */
static void find_span(row_of *r)
{
    attn_params ranges = *r->p;
    clear_masks(&ranges);
    ranges.causal = r->p->causal;
    ranges.prefix = r->p->prefix;
    ranges.window = r->p->window;
    ranges.window_left = r->p->window_left;
    ranges.window_right = r->p->window_right;
    ranges.chunk_size = r->p->chunk_size;
    r->lo = r->hi = 0;
    for (int64_t j = 0; j < r->keys; j++)
        if (oracle_visible(&ranges, r->b, r->h, r->i, j)) {
            r->lo = r->hi == 0 ? j : r->lo;
            r->hi = j + 1;
        }
}

static int is_reference(const row_of *r, int64_t j)
{
    const int64_t block = block_of(r, j);
    return block == block_of(r, r->lo) || block > block_of(r, r->hi - 1) - LAST;
}

static void add_reference(row_of *r)
{
    const double sink = oracle_sink(r->p, r->h);
    const double blocks = (double)(block_of(r, r->hi - 1) - block_of(r, r->lo) + 1);
    double sum = 0, error = 0;
    for (int64_t j = r->lo; j < r->hi; j++)
        if (is_reference(r, j) && r->logit[j] > -HUGE_VAL) {
            sum += exp(r->logit[j] - r->most);
            error = fmax(error, r->error[j]);
        }
    if (sum > 0 && sink > -HUGE_VAL)
        sum += exp(sink - r->most);
    r->limit = r->most + log((double)r->p->skip.below * sum * 15 / 256 / blocks);
    r->worst_error = error;
}

static void add_left_out(left_out *to, double mass, double most)
{
    to->mass += mass;
    to->bound += BLOCK * most;
}

/* Block by block, in the rule of docs/canon.md. */
static void decide_blocks(row_of *r)
{
    for (int64_t j = r->lo, end; j < r->hi; j = end) {
        double mass = 0, most = -HUGE_VAL, error = r->worst_error;
        for (end = j; end < r->hi && block_of(r, end) == block_of(r, j); end++) {
            const double logit = r->logit[end];
            if (!(logit > -HUGE_VAL))
                continue;
            mass += exp(logit - r->most);
            most = fmax(most, logit);
            error = fmax(error, r->error[end]);
        }
        if (is_reference(r, j) || !(most > -HUGE_VAL))
            continue;
        error += 1e-5 * (1 + fabs(most) + fabs(r->limit));
        if (most <= r->limit - error)
            add_left_out(&r->sure, mass, exp(most - r->most));
        if (most <= r->limit + error)
            add_left_out(&r->maybe, mass, exp(most - r->most));
    }
}

static void weigh_row(row_of *r)
{
    const double sink = oracle_sink(r->p, r->h);
    int alive = 0;
    memset(&r->sure, 0, sizeof r->sure);
    memset(&r->maybe, 0, sizeof r->maybe);
    r->most = sink;
    for (int64_t j = 0; j < r->keys; j++) {
        r->logit[j] = oracle_logit(r->p, r->b, r->h, r->i, j, ATTN_LOGITS_BIAS, &r->error[j]);
        r->error[j] *= 2 * unit;
        r->most = r->logit[j] > r->most ? r->logit[j] : r->most;
        alive += r->logit[j] > -HUGE_VAL;
    }
    r->all = alive > 0 && sink > -HUGE_VAL ? exp(sink - r->most) : 0;
    for (int64_t j = 0; j < r->keys; j++)
        if (r->logit[j] > -HUGE_VAL)
            r->all += exp(r->logit[j] - r->most);
    find_span(r);
    if (alive == 0 || r->lo == r->hi)
        return;
    add_reference(r);
    decide_blocks(r);
    for (int64_t j = 0; j < r->keys; j++)
        r->worst_error = fmax(r->worst_error, r->logit[j] > -HUGE_VAL ? r->error[j] : 0);
}

/* What the library is to say of a row that leaves this out. */
static double bound_of(const row_of *r, const left_out *of)
{
    return of->bound / (r->all - of->mass + of->bound);
}

static void compare_bound(const row_of *r, double dropped)
{
    const double relative = 4 * r->worst_error + 2e-4;
    const double share = r->all > 0 ? r->sure.mass / r->all : 0;
    const double low = r->all > 0 ? bound_of(r, &r->sure) : 0;
    const double high = r->maybe.bound > 0 ? fmax(bound_of(r, &r->maybe), ldexp(1, -100)) : 0;
    rows_seen++;
    rows_that_skip += dropped > 0;
    CHECK(share <= dropped * (1 + relative) + 1e-37,
          "row %lld of head %lld: %.9g left out, at most %.9g by the library", (long long)r->i,
          (long long)r->h, share, dropped);
    CHECK(dropped <= (double)r->p->skip.below, "%.9g left out, %.9g allowed", dropped,
          (double)r->p->skip.below);
    CHECK(dropped >= low * (1 - relative) - 1e-37 &&
              dropped <= high * (1 + relative + ldexp(1, -10)) + 1e-37,
          "row %lld of head %lld: bound %.9g, expected %.9g to %.9g", (long long)r->i,
          (long long)r->h, dropped, low, high);
}

static double largest_value(const attn_params *p, const row_of *r)
{
    const int64_t dim = oracle_dim_v(p), head = r->h / (p->num_heads_q / oracle_heads_kv(p));
    double most = 0;
    for (int64_t j = 0; j < r->keys; j++) {
        const ptrdiff_t at = oracle_key_offset(p, &p->v, dim, r->b, head, j);
        for (int64_t d = 0; d < dim; d++)
            most = fmax(most, fabs(oracle_load(p->v.dtype, p->v.data, at + d)));
    }
    return most;
}

/* O of all keys, and O of the keys kept, by what dropped says. */
static void compare_values(const row_of *r, double dropped)
{
    const attn_params *p = r->p;
    const int64_t dim = oracle_dim_v(p);
    double *o = test_alloc((size_t)dim * 2 * sizeof *o), worst = 0;
    const double move = 2 * dropped * largest_value(p, r) / (1 - (double)p->dropout_p);
    const ptrdiff_t at = oracle_row_offset(
        p, &(attn_tensor){ p->o.dtype, p->o.stride_batch, p->o.stride_head, p->o.stride_seq, NULL },
        dim, r->b, r->h, r->i);
    oracle_result of;
    memset(&of, 0, sizeof of);
    of.o = o;
    of.o_tolerance = o + dim;
    if (oracle_row_full(p, r->b, r->h, r->i, &of) != 0)
        return;
    for (int64_t d = 0; d < dim; d++) {
        const double value = oracle_load(p->o.dtype, p->o.data, at + d);
        const double most = move + 2 * of.o_tolerance[d] +
                            2 * oracle_storage_error(p->o.dtype, fabs(o[d]) + move) + 1e-30;
        worst = fmax(worst, fabs(value - o[d]) / most);
    }
    worst_note(worst);
    CHECK(worst <= 1, "row %lld of head %lld: O moved by %g times the bound", (long long)r->i,
          (long long)r->h, worst);
}

static void compare_rows(const attn_params *p)
{
    const size_t keys = (size_t)p->seq_len_kv + 1;
    row_of r;
    memset(&r, 0, sizeof r);
    r.p = p;
    r.logit = test_alloc(keys * sizeof *r.logit);
    r.error = test_alloc(keys * sizeof *r.error);
    for (r.b = 0; r.b < p->batch; r.b++)
        for (r.h = 0; r.h < p->num_heads_q; r.h++)
            for (r.i = 0; r.i < oracle_rows(p, r.b); r.i++) {
                const int mark = test_mark();
                r.keys = oracle_keys(p, r.b);
                weigh_row(&r);
                compare_bound(&r, (double)p->skip.dropped[row_index(&r)]);
                compare_values(&r, (double)p->skip.dropped[row_index(&r)]);
                test_release_to(mark);
            }
}

static const char *const banned[] = { "partial", "logits", NULL };
static const char *const banned_stored[] = { "partial", "logits", "odd_dims", "mixed", NULL };

static float random_below(void)
{
    return ldexpf(rng_chance(30) ? 0.99f : 0.5f, (int)-rng_int(0, 14));
}

/* Queries that look at the first keys and the last, and away from those between, by more or less. */
static void structure(test_problem *t)
{
    const float away = (float)rng_int(0, 4), common = 0.5f + rng_unit();
    for (int64_t b = 0; b < t->q.batch; b++)
        for (int64_t h = 0; h < t->q.heads; h++)
            for (int64_t s = 0; s < t->q.seq; s++)
                tensor_set(&t->q, b, h, s, 0, common + 0.2f * rng_normal());
    for (int64_t b = 0; b < t->k.batch; b++)
        for (int64_t h = 0; h < t->k.heads; h++)
            for (int64_t s = 0; s < t->k.seq; s++)
                tensor_set(&t->k, b, h, s, 0,
                           s % 256 < 3 || s + 48 > t->k.seq ? away : -away * rng_unit());
    tensor_remember(&t->q);
    tensor_remember(&t->k);
}

/* A call of up to `most` keys with random features, and with heads of whole units by request. */
static void make_call(test_problem *t, const char *first, int64_t most, int whole)
{
    int list[MAX_BACKGROUND];
    const int count = pick_background(list, first, 1, whole ? banned_stored : banned);
    test_shape s = shape_random();
    s.seq_kv = rng_int(most / 6, most);
    s.seq_q = rng_int(1, 24);
    s.dim = rng_int(1, 24);
    s.dim_v = rng_int(1, 8);
    s.batch = rng_int(1, 2);
    features_make(t, whole ? whole_units(s) : s, list, count);
    if (t->p.scale == 0.0f)
        t->p.scale = (float)rng_int(1, 24) / 8;
    if (rng_chance(60))
        structure(t);
}

static void check_oracle(int round)
{
    const char *const name = features[round % feature_count].name;
    const int barred = strcmp(name, "partial") == 0 || strcmp(name, "logits") == 0;
    const float below = random_below();
    test_problem t;
    make_call(&t, barred ? NULL : name, 600, 0);
    ask(&t.p, below);
    if (problem_run(&t))
        compare_rows(&t.p);
}

/* ---- bit for bit ----------------------------------------------------------------------------- */

static void check_bits(int round)
{
    pool workers = pool_of((int)rng_int(2, 9), POOL_SHUFFLED, 0);
    const float below = random_below();
    const int stored = round % 2;
    test_problem a, b;
    make_call(&a, NULL, 900, stored);
    if (stored)
        quantise_for_levels(&a);
    ask(&a.p, below);
    twin(&a, &b);
    ask(&b.p, below);
    vary_execution(&b.p, &workers);
    if (problem_run(&a) && problem_run(&b))
        CHECK(problem_same_bits(&a, &b) && same_bounds(&a.p, &b.p), "tiles, workers, kernels");
}

/* A call of few rows over chunks of keys. */
static test_problem make_long(int64_t rows, int64_t dim)
{
    test_problem t;
    test_shape s = shape_random();
    s.batch = 1;
    s.seq_q = rows;
    s.seq_kv = rng_int(1000, 5000);
    s.heads_kv = rng_int(1, 2);
    s.heads_q = s.heads_kv * rng_int(1, 3);
    s.dim = s.dim_v = dim;
    problem_make(&t, &s);
    t.p.causal = 1;
    t.p.softmax1 = rng_chance(30);
    structure(&t);
    t.p.scale = 4.0f;
    return t;
}

static void check_split(int round)
{
    attn_info info;
    pool workers = pool_of((int)rng_int(2, 9), POOL_SHUFFLED, round % 2);
    test_problem a = make_long(rng_int(1, 3), 128), b;
    a.p.scale = 1.0f;
    ask(&a.p, 0.25f);
    twin(&a, &b);
    ask(&b.p, 0.25f);
    vary_execution(&b.p, &workers);
    if (!problem_run(&a) || !problem_run(&b))
        return;
    divided += attn_explain(&b.p, &info) == ATTN_OK && info.key_parts > 1;
    CHECK(problem_same_bits(&a, &b) && same_bounds(&a.p, &b.p), "keys divided among workers");
    compare_rows(&a.p);
}

static void check_pages(int round)
{
    test_problem a = make_long(rng_int(1, 40), 16), b;
    ask(&a.p, 0.01f);
    twin(&a, &b);
    ask(&b.p, 0.01f);
    problem_scatter(&b, 16 << round % 4, 0);
    if (problem_run(&a) && problem_run(&b))
        CHECK(problem_same_bits(&a, &b) && same_bounds(&a.p, &b.p), "pages");
}

/* Entries with equal keys may say so: each row still decides by its own last keys. */
static void check_shared(int round)
{
    enum { ENTRIES = 4, KEYS = 700, SHARED = 600, DIM = 8 };
    float *q = test_alloc(ENTRIES * DIM * sizeof *q), *o = test_alloc(ENTRIES * DIM * sizeof *o);
    float *k = test_alloc((size_t)ENTRIES * KEYS * DIM * sizeof *k);
    attn_params p, alone;
    (void)round;
    memset(&p, 0, sizeof p);
    for (int n = 0; n < ENTRIES * DIM; n++)
        q[n] = rng_normal();
    for (int n = 0; n < ENTRIES * KEYS * DIM; n++)
        k[n] =
            n >= KEYS * DIM && n % (KEYS * DIM) < SHARED * DIM ? k[n % (KEYS * DIM)] : rng_normal();
    p.batch = ENTRIES;
    p.num_heads_q = p.seq_len_q = 1;
    p.seq_len_kv = KEYS;
    p.head_dim = DIM;
    p.q.data = q;
    p.k.data = p.v.data = k;
    p.o.data = o;
    p.scale = 3.0f;
    ask(&p, 0.5f);
    alone = p;
    alone.o.data = test_alloc(ENTRIES * DIM * sizeof *o);
    ask(&alone, 0.5f);
    p.shared_keys = SHARED;
    if (run_part(&p, "shared keys") && run_part(&alone, "each its own"))
        CHECK(memcmp(o, alone.o.data, ENTRIES * DIM * sizeof *o) == 0 && same_bounds(&p, &alone),
              "shared keys");
}

/* Rows of a prefill are those of decoding. */
static void check_steps(int round)
{
    enum { KEYS = 1300, DIM = 16 };
    float o[DIM];
    test_problem t;
    attn_params step;
    test_shape s = shape_random();
    s.batch = s.heads_q = s.heads_kv = 1;
    s.seq_q = s.seq_kv = KEYS;
    s.dim = s.dim_v = DIM;
    problem_make(&t, &s);
    structure(&t);
    t.p.causal = 1;
    t.p.scale = 2.0f;
    if (round % 2) {
        t.p.window = ATTN_WINDOW;
        t.p.window_left = 700;
    }
    ask(&t.p, 0.1f);
    if (!problem_run(&t))
        return;
    for (int64_t i = 3; i < KEYS; i += 101) {
        step = t.p;
        step.seq_len_q = 1;
        step.seq_len_kv = i + 1;
        step.q.data = (const float *)t.p.q.data + i * DIM;
        step.o.data = o;
        memset(&step.lse, 0, sizeof step.lse);
        memset(&step.stats, 0, sizeof step.stats);
        ask(&step, 0.1f);
        if (!run_part(&step, "a step"))
            return;
        CHECK(step.skip.dropped[0] == t.p.skip.dropped[i] &&
                  memcmp(o, (const float *)t.p.o.data + i * DIM, sizeof o) == 0,
              "row %lld of a prefill, and as a step", (long long)i);
    }
}

/* With so little allowed nothing is left out, and bits are those of a plain call. */
static void check_nothing(int round)
{
    test_problem a, b;
    (void)round;
    make_call(&a, NULL, 400, 0);
    a.p.scale = 0.01f;
    a.p.alibi_slopes = NULL;
    a.p.alibi_stride = 0;
    memset(&a.p.bias, 0, sizeof a.p.bias);
    twin(&a, &b);
    ask(&b.p, 1e-30f);
    if (!problem_run(&a) || !problem_run(&b))
        return;
    CHECK(problem_same_bits(&a, &b), "nothing left out");
    for (int64_t i = 0; i < a.p.seq_len_q && a.p.q_len == NULL && a.p.cu_seqlens_q == NULL; i++)
        CHECK(b.p.skip.dropped[i] == 0, "nothing left out, but %g", (double)b.p.skip.dropped[i]);
}

/* Lists of keys are masks: what they hide counts among the blocks of a row, and bits are those of a mask. */
static void check_lists(int round)
{
    enum { KEYS = 6000, LISTED = 160, DIM = 64 };
    int32_t *list = test_alloc(LISTED * sizeof *list);
    uint8_t *shown = test_alloc(KEYS);
    float o[DIM];
    test_problem t;
    test_shape s = shape_random();
    attn_params masked;
    s.batch = s.heads_q = s.heads_kv = s.seq_q = 1;
    s.seq_kv = KEYS;
    s.dim = s.dim_v = DIM;
    problem_make(&t, &s);
    memset(shown, 0, KEYS);
    for (int n = 0; n < LISTED; n++) {
        list[n] = n < LISTED - 20 ? n * 37 + n % 7 + round : KEYS - LISTED + n;
        shown[list[n]] = 1;
    }
    t.p.scale = 1.0f;
    ask(&t.p, 0.5f);
    masked = t.p;
    masked.bool_mask.data = shown;
    masked.o.data = o;
    memset(&masked.lse, 0, sizeof masked.lse);
    memset(&masked.stats, 0, sizeof masked.stats);
    ask(&masked, 0.5f);
    t.p.key_list.data = list;
    t.p.key_list.width = LISTED;
    if (problem_run(&t) && run_part(&masked, "a mask"))
        CHECK(memcmp(o, t.p.o.data, sizeof o) == 0 && same_bounds(&t.p, &masked) &&
                  t.p.skip.dropped[0] > 0,
              "a list, and a mask: %.9g and %.9g", (double)t.p.skip.dropped[0],
              (double)masked.skip.dropped[0]);
}

/* ---- numbers that are not finite ------------------------------------------------------------- */

enum { FEW = 3, MANY = 800, WIDTH = 16 };

/* Rows that see much in key 0 and nothing in keys 16 to MANY-65. */
static void make_plain(attn_params *p)
{
    float *q = test_alloc(FEW * WIDTH * sizeof *q), *k = test_alloc(MANY * WIDTH * sizeof *k);
    float *v = test_alloc(MANY * WIDTH * sizeof *v), *o = test_alloc(FEW * WIDTH * sizeof *o);
    memset(p, 0, sizeof *p);
    for (int n = 0; n < FEW * WIDTH; n++)
        q[n] = n % WIDTH == 0 ? 8.0f : 0.1f * rng_normal();
    for (int n = 0; n < MANY * WIDTH; n++) {
        k[n] = n == 0 ? 20.0f : n % WIDTH == 0 ? -20.0f : rng_normal();
        v[n] = rng_normal();
    }
    p->batch = p->num_heads_q = 1;
    p->seq_len_q = FEW;
    p->seq_len_kv = MANY;
    p->head_dim = WIDTH;
    p->q.data = q;
    p->k.data = k;
    p->v.data = v;
    p->o.data = o;
    ask(p, 0.001f);
}

/* v of keys left out does not show. */
static void check_values_left_out(int round)
{
    static const float values[] = { NAN, INFINITY, -INFINITY };
    attn_params a, b;
    float *v = test_alloc(MANY * WIDTH * sizeof *v);
    make_plain(&a);
    b = a;
    memcpy(v, a.v.data, MANY * WIDTH * sizeof *v);
    for (int j = 16; j < MANY - 64; j += 1 + round % 5)
        v[j * WIDTH + j % WIDTH] = values[j % 3];
    b.v.data = v;
    b.o.data = test_alloc(FEW * WIDTH * sizeof(float));
    ask(&b, 0.001f);
    if (run_part(&a, "finite v") && run_part(&b, "v that is not finite"))
        CHECK(memcmp(a.o.data, b.o.data, FEW * WIDTH * sizeof(float)) == 0 && same_bounds(&a, &b) &&
                  a.skip.dropped[0] > 0,
              "v of keys left out shows");
}

/* A NaN logit shows, in whatever block. */
static void check_nan_logits(int round)
{
    const int j = 16 + 37 * round % (MANY - 80);
    attn_params p;
    make_plain(&p);
    ((float *)(uintptr_t)p.k.data)[j * WIDTH + 3] = NAN;
    if (run_part(&p, "a NaN in K"))
        CHECK(isnan(*(const float *)p.o.data) && isnan(p.skip.dropped[0]),
              "a NaN logit at key %d does not show", j);
}

/* Rows whose reference a mask hides leave nothing out, however low their logits are. */
static void check_hidden_reference(int round)
{
    const size_t bytes = FEW * WIDTH * sizeof(float);
    attn_params a, b;
    uint8_t *shown = test_alloc(MANY);
    make_plain(&a);
    for (int j = 0; j < MANY; j++)
        shown[j] = j >= 16 + 16 * round && j < MANY - 80;
    a.scale = 10.0f;
    a.bool_mask.data = shown;
    a.bool_mask.stride_q = ATTN_STRIDE_BROADCAST;
    b = a;
    memset(&b.skip, 0, sizeof b.skip);
    b.o.data = test_alloc(bytes);
    if (run_part(&a, "no reference") && run_part(&b, "no skipping"))
        CHECK(memcmp(a.o.data, b.o.data, bytes) == 0 && a.skip.dropped[0] == 0 &&
                  a.skip.dropped[FEW - 1] == 0,
              "rows without a reference: %g left out", (double)a.skip.dropped[0]);
}

/* Logits so large that their unit is 16: a limit rounded to it would leave out a block of 16 keys as likely as
 * the only one of the reference. */
static void check_large_logits(int round)
{
    enum { KEYS = 6 * BLOCK };
    const size_t bytes = FEW * WIDTH * sizeof(float);
    attn_params a, b;
    make_plain(&a);
    a.seq_len_kv = KEYS;
    a.scale = 1.0f;
    for (int n = 0; n < FEW * WIDTH; n++)
        ((float *)(uintptr_t)a.q.data)[n] = n % WIDTH == 0 ? 8192.0f : 0.0f;
    for (int j = 0; j < KEYS; j++)
        ((float *)(uintptr_t)a.k.data)[j * WIDTH] =
            j == round || j / BLOCK == 1 ? 16384.0f : -16384.0f;
    b = a;
    a.skip.below = 0.5f;
    memset(&b.skip, 0, sizeof b.skip);
    b.o.data = test_alloc(bytes);
    if (run_part(&a, "large logits") && run_part(&b, "no skipping"))
        CHECK(memcmp(a.o.data, b.o.data, bytes) == 0 && a.skip.dropped[0] == 0,
              "%g of a row left out, 0.5 allowed", (double)a.skip.dropped[0]);
}

/* However little is allowed, the bound is not above it, and 0 only where nothing is left out. */
static void check_least(int round)
{
    static const float few[] = { 1e-25f, 4e-33f, 1e-36f, 1e-44f };
    attn_params p;
    make_plain(&p);
    p.scale = 1.0f;
    p.skip.below = few[round];
    if (run_part(&p, "little allowed"))
        CHECK(p.skip.dropped[0] <= few[round] && (p.skip.dropped[0] > 0) == (few[round] > 1e-34f),
              "%g left out, %g allowed", (double)p.skip.dropped[0], (double)few[round]);
}

/* ---- sentences ------------------------------------------------------------------------------- */

static void check_sentence(const attn_params *p, const char *sentence)
{
    char text[300];
    size_t bytes;
    CHECK(attn_workspace_size(p, &bytes) != ATTN_OK, "taken: %s", sentence);
    CHECK(strcmp(attn_check(p, NULL, 0, text, sizeof text), sentence) == 0,
          "\"%s\", expected \"%s\"", text, sentence);
}

static void check_misuse(int round)
{
    static float room[FEW * MANY];
    static double masses[MANY];
    attn_params p, q;
    (void)round;
    make_plain(&p);
    q = p, q.skip.below = 1;
    check_sentence(&q, "skip.below (1.000000) must be at least 0 and below 1");
    q = p, q.skip.below = -0.5f;
    check_sentence(&q, "skip.below (-5.000000e-1) must be at least 0 and below 1");
    q = p, q.skip.dropped = NULL;
    check_sentence(&q, "skip.below is set, but skip.dropped, which says how much was left out, is "
                       "NULL");
    q = p, q.skip.below = 0;
    check_sentence(&q, "skip.dropped is given, but skip.below is 0");
    q = p, q.fast = 1;
    check_sentence(&q, "skip.below and fast: leave one of them out");
    q = p, q.partial = 1, q.state.m = q.state.l = q.state.o = room;
    check_sentence(&q, "skip.below is set, but raw states (partial) hold no bound");
    q = p, q.logits.data = room;
    check_sentence(&q, "skip.below is set, but logits need every key");
    q = p, q.insight.entropy = room;
    check_sentence(&q, "skip.below is set, but insight needs every key");
    q = p, q.insight.mass = masses, q.insight.mass_keys = 1;
    check_sentence(&q, "skip.below is set, but insight needs every key");
    q = p, q.impl = ATTN_IMPL_NAIVE;
    check_sentence(&q, "impl (2) (naive) takes all keys: skip.below must be 0");
    q = p, q.part.rows = 1, q.part.row_count = 1;
    check_sentence(&q, "skip.below is set, but a part of a call does not take it: attn_forward "
                       "with all keys takes it");
}

/* AUTO runs tiled. */
static void check_auto(int round)
{
    attn_params p;
    attn_info info;
    (void)round;
    make_plain(&p);
    p.impl = ATTN_IMPL_AUTO;
    p.auto_naive_keys = MANY;
    CHECK(attn_explain(&p, &info) == ATTN_OK && info.impl == ATTN_IMPL_TILED, "AUTO is not tiled");
}

/* The bounds alone. */
static void check_alone(int round)
{
    attn_params a, b;
    (void)round;
    make_plain(&a);
    b = a;
    ask(&b, 0.001f);
    b.o.data = NULL;
    if (run_part(&a, "with o") && run_part(&b, "bounds alone"))
        CHECK(same_bounds(&a, &b), "bounds alone");
}

static const struct {
    const char *name;
    int rounds;
    void (*run)(int round);
} checks[] = {
    { "oracle", 220, check_oracle },
    { "bits", 60, check_bits },
    { "split", 12, check_split },
    { "pages", 8, check_pages },
    { "steps", 4, check_steps },
    { "nothing", 20, check_nothing },
    { "values left out", 5, check_values_left_out },
    { "nan logits", 20, check_nan_logits },
    { "hidden reference", 3, check_hidden_reference },
    { "shared", 4, check_shared },
    { "lists", 6, check_lists },
    { "misuse", 1, check_misuse },
    { "auto", 1, check_auto },
    { "alone", 1, check_alone },
    { "large logits", 2, check_large_logits },
    { "least", 4, check_least },
};

TEST_GROUP(skipping, RUN_FEWER, "keys of little probability left out, and the bound on it")
{
    rows_seen = rows_that_skip = divided = 0;
    for (size_t n = 0; n < sizeof checks / sizeof *checks; n++)
        for (int round = 0; round < checks[n].rounds; round++)
            if (begin_case("%s, %d", checks[n].name, round))
                checks[n].run(round);
    CHECK((divided > 0 && rows_that_skip > rows_seen / 10) || !all_cases_run(),
          "%lld calls were divided, %lld of %lld rows left keys out", (long long)divided,
          (long long)rows_that_skip, (long long)rows_seen);
}
