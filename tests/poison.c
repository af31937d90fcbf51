/* poison.c - NaN and Inf where nothing may look, and where one row only may show them.
 * SPDX-License-Identifier: MIT
 *
 * Each case runs twice: clean, then with poison. An element of the second result must have the bits
 * of the first unless a key that is alive for its row carries poison; then it must be NaN (K, bias,
 * q, NaN in V) or Inf or NaN (Inf in V). What is alive the oracle says, from the clean data.
 */
#include "features.h"
#include "laws.h"
#include "oracle.h"
#include "slices.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const float poisons[] = { NAN, HUGE_VALF, -HUGE_VALF };

static float any_poison(void)
{
    return poisons[rng_int(0, 2)];
}

/* Which elements of the result may differ: one byte per row and column of O; per row for the lse.
 * Bits: 1 = NaN, 2 = +Inf, 4 = -Inf is added to the sum. */
typedef struct expectation {
    test_problem clean, dirty;
    uint8_t *row;    /* [batch, heads, seq_q]: 1 = the row is NaN */
    uint8_t *column; /* [batch, heads, seq_q, dim_v] */
    uint8_t *alive;  /* [batch, heads, seq_q, seq_kv], by j */
} expectation;

static int64_t row_of(const expectation *e, int64_t b, int64_t h, int64_t i)
{
    const attn_params *p = &e->clean.p;
    return (b * p->num_heads_q + h) * p->seq_len_q + i;
}

static int64_t heads_kv(const attn_params *p)
{
    return p->num_heads_kv != 0 ? p->num_heads_kv : p->num_heads_q;
}

static ptrdiff_t key_offset(const attn_params *p, const attn_tensor *t, int64_t dim, int64_t b,
                            int64_t h, int64_t j)
{
    return oracle_key_offset(p, t, dim, b, h / (p->num_heads_q / heads_kv(p)), j);
}

static uint8_t kind(double x)
{
    return x != x ? 1 : x == HUGE_VAL ? 2 : x == -HUGE_VAL ? 4 : 0;
}

static uint8_t kinds_in(int dtype, const void *data, ptrdiff_t at, int64_t count)
{
    uint8_t kinds = 0;
    for (int64_t d = 0; d < count; d++)
        kinds = (uint8_t)(kinds | kind(oracle_load(dtype, data, at + (ptrdiff_t)d)));
    return kinds;
}

/* Calls function for every row in use. */
typedef void (*row_fn)(expectation *e, int64_t b, int64_t h, int64_t i);

static void for_rows(expectation *e, row_fn function)
{
    const attn_params *p = &e->clean.p;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < oracle_rows(p, b); i++)
                function(e, b, h, i);
}

static void find_alive(expectation *e, int64_t b, int64_t h, int64_t i)
{
    const attn_params *p = &e->clean.p;
    for (int64_t j = 0; j < oracle_keys(p, b); j++)
        e->alive[row_of(e, b, h, i) * p->seq_len_kv + j] =
            (uint8_t)(oracle_visible(p, b, h, i, j) &&
                      oracle_logit(p, b, h, i, j, ATTN_LOGITS_BIAS, NULL) > -HUGE_VAL);
}

static void make_expectation(expectation *e, const char *first)
{
    static const char *const banned[] = { "long", NULL };
    const attn_params *p = &e->clean.p;
    size_t rows;
    memset(e, 0, sizeof *e);
    make_background(&e->clean, first, 1, banned);
    rows = (size_t)(p->batch * p->num_heads_q * p->seq_len_q);
    e->row = test_alloc(rows);
    e->column = test_alloc(rows * (size_t)e->clean.o.dim);
    e->alive = test_alloc(rows * (size_t)p->seq_len_kv);
    memset(e->row, 0, rows);
    memset(e->column, 0, rows * (size_t)e->clean.o.dim);
    memset(e->alive, 0, rows * (size_t)p->seq_len_kv);
    for_rows(e, find_alive);
}

/* What the poison in k, v and q of the dirty problem does to one row. */
static void expect_row(expectation *e, int64_t b, int64_t h, int64_t i)
{
    const attn_params *p = &e->dirty.p;
    const int64_t row = row_of(e, b, h, i), dim_v = e->clean.o.dim;
    const ptrdiff_t q = oracle_row_offset(p, &p->q, p->head_dim, b, h, i);
    const uint8_t q_kinds = kinds_in(p->q.dtype, p->q.data, q, p->head_dim);
    for (int64_t j = 0; j < oracle_keys(p, b); j++) {
        ptrdiff_t v;
        if (!e->alive[row * p->seq_len_kv + j])
            continue;
        if (q_kinds != 0 || kinds_in(p->k.dtype, p->k.data,
                                     key_offset(p, &p->k, p->head_dim, b, h, j), p->head_dim) != 0)
            e->row[row] = 1;
        if (p->dropout_p != 0 && !oracle_kept(p, b, h, i, j))
            continue;
        v = key_offset(p, &p->v, dim_v, b, h, j);
        for (int64_t d = 0; d < dim_v; d++)
            e->column[row * dim_v + d] =
                (uint8_t)(e->column[row * dim_v + d] |
                          kind(oracle_load(p->v.dtype, p->v.data, v + (ptrdiff_t)d)));
    }
}

static int is_nan(float x)
{
    return x != x;
}

/* The element must be what `kinds` say; 0 = the clean bits. */
static int is_as_expected(float clean, float dirty, uint8_t kinds)
{
    if (kinds == 0)
        return float_bits(clean) == float_bits(dirty);
    if (is_nan(dirty)) /* canonical in all types, read as f32; Inf times a p of +0 is NaN, too */
        return float_bits(dirty) == 0x7fc00000u;
    return (kinds == 2 && dirty == HUGE_VALF) || (kinds == 4 && dirty == -HUGE_VALF);
}

static int wrong_rows;
static char first_wrong[200];

static void look_at_row(expectation *e, int64_t b, int64_t h, int64_t i)
{
    const attn_params *p = &e->clean.p;
    const int varlen = p->cu_seqlens_q != NULL;
    const int64_t tb = varlen ? 0 : b, s = i + (varlen ? p->cu_seqlens_q[b] : 0);
    const int64_t row = row_of(e, b, h, i);
    int wrong = !is_as_expected(tensor_get(&e->clean.lse, tb, h, s, 0),
                                tensor_get(&e->dirty.lse, tb, h, s, 0), e->row[row]);
    int64_t d = -1;
    if (!wrong && e->row[row] == 0 && e->clean.p.stats.data != NULL)
        wrong = memcmp(slice_row(p, &e->clean.stats, b, h, i),
                       slice_row(p, &e->dirty.stats, b, h, i), 2 * sizeof(float)) != 0;
    while (!wrong && ++d < e->clean.o.dim)
        wrong = !is_as_expected(tensor_get(&e->clean.o, tb, h, s, d),
                                tensor_get(&e->dirty.o, tb, h, s, d),
                                e->row[row] ? 1 : e->column[row * e->clean.o.dim + d]);
    if (wrong && wrong_rows++ == 0)
        snprintf(first_wrong, sizeof first_wrong,
                 "first at b=%lld h=%lld i=%lld d=%lld: clean %g, with poison %g", (long long)b,
                 (long long)h, (long long)i, (long long)d,
                 (double)(d < 0 ? tensor_get(&e->clean.lse, tb, h, s, 0)
                                : tensor_get(&e->clean.o, tb, h, s, d)),
                 (double)(d < 0 ? tensor_get(&e->dirty.lse, tb, h, s, 0)
                                : tensor_get(&e->dirty.o, tb, h, s, d)));
}

static void run_both(expectation *e, const char *what)
{
    wrong_rows = 0;
    if (problem_run(&e->clean) && problem_run(&e->dirty)) {
        for_rows(e, look_at_row);
        CHECK(wrong_rows == 0, "%s: %d rows are wrong, %s", what, wrong_rows, first_wrong);
    }
}

/* ---- places ---------------------------------------------------------------------------------- */

/* The dirty problem gets tensors of its own with the same values. */
static void copy_tensor(test_tensor *t, attn_tensor *a)
{
    test_tensor copy = *t;
    copy.memory = test_alloc(t->bytes);
    copy.before = test_alloc_at(t->bytes, PLACE_HEAP);
    memcpy(copy.memory, t->memory, t->bytes);
    memcpy(copy.before, t->memory, t->bytes);
    copy.data = copy.memory + ((unsigned char *)t->data - t->memory);
    *t = copy;
    a->data = copy.data;
}

static void begin_dirty(expectation *e)
{
    twin(&e->clean, &e->dirty);
    copy_tensor(&e->dirty.q, &e->dirty.p.q);
    copy_tensor(&e->dirty.k, &e->dirty.p.k);
    copy_tensor(&e->dirty.v, &e->dirty.p.v);
}

/* Nonzero: no row of any head that reads this kv head, and no batch entry, has the key alive. With
 * strides of 0 several (b, head) share the key; then all must agree. */
static int is_dead_everywhere(const expectation *e, const test_tensor *t, int64_t tb, int64_t th,
                              int64_t ts)
{
    const attn_params *p = &e->clean.p;
    const ptrdiff_t here =
        (ptrdiff_t)tb * t->step_batch + (ptrdiff_t)th * t->step_head + (ptrdiff_t)ts * t->step_seq;
    const attn_tensor *a = t == &e->dirty.k ? &e->dirty.p.k : &e->dirty.p.v;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t j = 0; j < oracle_keys(p, b); j++) {
                if (key_offset(&e->dirty.p, a, t->dim, b, h, j) != here)
                    continue;
                for (int64_t i = 0; i < oracle_rows(p, b); i++)
                    if (e->alive[row_of(e, b, h, i) * p->seq_len_kv + j])
                        return 0;
            }
    return 1;
}

static void poison_row(test_tensor *t, int64_t b, int64_t h, int64_t s, float value)
{
    for (int64_t d = 0; d < t->dim; d++)
        tensor_set(t, b, h, s, d, value);
}

/* Every key that no row sees, beyond the lengths included; returns how many. */
static int poison_dead(expectation *e, test_tensor *t)
{
    int count = 0;
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t s = 0; s < t->seq; s++)
                if (is_dead_everywhere(e, t, b, h, s)) {
                    poison_row(t, b, h, s, any_poison());
                    count++;
                }
    return count;
}

/* Some keys, whoever sees them. One element of K is enough, some columns of V. */
static void poison_some(test_tensor *t, const float *values, int count)
{
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t s = 0; s < t->seq; s++)
                if (rng_chance(4))
                    tensor_set(t, b, h, s, rng_int(0, t->dim - 1), values[rng_int(0, count - 1)]);
}

static void dead_k(expectation *e)
{
    poison_dead(e, &e->dirty.k);
}

static void dead_v(expectation *e)
{
    poison_dead(e, &e->dirty.v);
}

static void dead_both(expectation *e)
{
    poison_dead(e, &e->dirty.k);
    poison_dead(e, &e->dirty.v);
}

static void some_k(expectation *e)
{
    poison_some(&e->dirty.k, poisons, 1); /* NaN: Inf times q may be a logit of -inf, no poison */
}

static void some_v(expectation *e)
{
    poison_some(&e->dirty.v, poisons, 3);
}

/* Queries: some that are in use, and all that are not. */
static void some_q(expectation *e)
{
    const attn_params *p = &e->dirty.p;
    const int varlen = p->cu_seqlens_q != NULL;
    poison_some(&e->dirty.q, poisons, 1);
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t begin = varlen ? p->cu_seqlens_q[b] : 0;
        const int64_t end = varlen ? p->cu_seqlens_q[b + 1] : p->seq_len_q;
        if (e->dirty.q.step_batch == 0 && !varlen)
            continue; /* another entry may use the row */
        for (int64_t s = begin + oracle_rows(p, b); s < end; s++)
            for (int64_t h = 0; h < p->num_heads_q; h++)
                poison_row(&e->dirty.q, varlen ? 0 : b, h, s, NAN);
    }
}

/* A bias of its own for each pair: 0 where a key is alive, poison where it is not; with `live`,
 * here and there NaN or +Inf where it is alive, too. */
static void poison_bias(expectation *e, int live)
{
    attn_params *p = &e->dirty.p;
    const int64_t rows = p->batch * p->num_heads_q * p->seq_len_q;
    float *bias = test_alloc((size_t)(rows * p->seq_len_kv) * sizeof *bias);
    if (p->bias.data != NULL)
        return;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < oracle_rows(p, b); i++)
                for (int64_t j = 0; j < oracle_keys(p, b); j++) {
                    const int64_t row = row_of(e, b, h, i);
                    const int is_alive = e->alive[row * p->seq_len_kv + j];
                    const int hit = live && is_alive && rng_chance(1);
                    bias[row * p->seq_len_kv + j + (p->kv_begin != NULL ? p->kv_begin[b] : 0)] =
                        hit        ? poisons[rng_int(0, 1)]
                        : is_alive ? 0.0f
                                   : any_poison();
                    e->row[row] = (uint8_t)(e->row[row] | hit);
                }
    p->bias.data = bias;
    p->bias.stride_kv = 1;
    p->bias.stride_q = (ptrdiff_t)p->seq_len_kv;
    p->bias.stride_head = (ptrdiff_t)(p->seq_len_kv * p->seq_len_q);
    p->bias.stride_batch = (ptrdiff_t)(p->seq_len_kv * p->seq_len_q * p->num_heads_q);
}

static void hidden_bias(expectation *e)
{
    if (e->clean.p.score == NULL) /* there a dead key may be one that the callback hides */
        poison_bias(e, 0);
}

static void live_bias(expectation *e)
{
    if (e->clean.p.score == NULL)
        poison_bias(e, 1);
}

/* ---- the group ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*place)(expectation *e);
} places[] = {
    { "K of keys that no row sees", dead_k },
    { "V of keys that no row sees", dead_v },
    { "K and V of keys that no row sees", dead_both },
    { "K of some keys", some_k },
    { "V of some keys", some_v },
    { "queries, used and unused", some_q },
    { "bias of hidden pairs", hidden_bias },
    { "bias of visible pairs", live_bias },
};
enum { PLACE_COUNT = sizeof places / sizeof *places };

static const char *const maskers[] = {
    "causal",    "causal_top", "causal_off", "prefix",   "window", "chunked", "segments",
    "tree",      "bool",       "bool_inv",   "bits",     "bitmap", "csr",     "mask_fn",
    "mask_tile", "bias_f32",   "bias_f16",   "score_fn", "q_len",  "kv_len",  "kv_begin",
    "varlen",    "dropout",    "softcap",    "sinks",    "f16",    "bf16",
};

/* In every masker and place, once with each implementation. */
static void run_places(void)
{
    for (size_t m = 0; m < sizeof maskers / sizeof *maskers; m++)
        for (int n = 0; n < PLACE_COUNT * 2; n++) {
            expectation e;
            if (!T.best && T.only_case < 0 && (n + (int)m) % 4 != 0) {
                pass_over_case();
                continue;
            }
            if (!begin_case("%s: %s%s", maskers[m], places[n / 2].name, n % 2 ? ", naive" : ""))
                continue;
            make_expectation(&e, maskers[m]);
            if (n % 2 == 1)
                e.clean.p.impl = ATTN_IMPL_NAIVE;
            begin_dirty(&e);
            places[n / 2].place(&e);
            tensor_remember(&e.dirty.q);
            tensor_remember(&e.dirty.k);
            tensor_remember(&e.dirty.v);
            for_rows(&e, expect_row);
            run_both(&e, places[n / 2].name);
        }
}

/* More than 1024 keys: poison in one chunk, merged with clean ones; all hidden keys of a row. */
static void run_long(void)
{
    for (int n = 0; n < 6; n++) {
        expectation e;
        test_shape s;
        if (!begin_case("chunks, %d", n))
            continue;
        memset(&s, 0, sizeof s);
        memset(&e, 0, sizeof e);
        s.batch = 1, s.heads_q = 1, s.seq_q = 3, s.seq_kv = 2600, s.dim = 4, s.dim_v = 3;
        problem_make(&e.clean, &s);
        e.clean.p.causal = 1;
        e.clean.p.window = ATTN_WINDOW;
        e.clean.p.window_left = n % 2 == 0 ? 1300 : 100;
        e.row = test_alloc(3);
        e.column = test_alloc(3 * 3);
        e.alive = test_alloc(3 * 2600);
        memset(e.row, 0, 3);
        memset(e.column, 0, 3 * 3);
        memset(e.alive, 0, 3 * 2600);
        for_rows(&e, find_alive);
        begin_dirty(&e);
        places[n % 6].place(&e);
        tensor_remember(&e.dirty.q);
        tensor_remember(&e.dirty.k);
        tensor_remember(&e.dirty.v);
        for_rows(&e, expect_row);
        run_both(&e, places[n % 6].name);
    }
}

TEST_GROUP(poison, RUN_ROUNDED_TOO, "NaN and Inf at every masked position never show")
{
    run_places();
    run_long();
}
