/* insight.c - entropies, the likeliest keys and the mass of keys, against the oracle and bit for bit.
 * SPDX-License-Identifier: MIT
 */
#include "features.h"
#include "laws.h"
#include "oracle.h"
#include "pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double unit = 1.0 / 16777216.0; /* u of binary32 */

/* ---- asking ---------------------------------------------------------------------------------- */

static size_t rows_of(const attn_params *p)
{
    return (size_t)(p->batch * p->num_heads_q * p->seq_len_q);
}

static size_t blocks_of(const attn_params *p)
{
    const attn_insight *in = &p->insight;
    return in->mass_keys == 0 ? 0 : (size_t)((p->seq_len_kv + in->mass_keys - 1) / in->mass_keys);
}

static size_t masses_of(const attn_params *p)
{
    return (size_t)(p->batch * oracle_heads_kv(p)) * blocks_of(p);
}

/* Arrays of its own for what *p asks for: `top` keys, and mass unless mass_keys is 0. */
static void ask(attn_params *p, int top, int64_t mass_keys, int64_t mass_rows)
{
    attn_insight *in = &p->insight;
    const size_t rows = rows_of(p), entries = rows * (size_t)top;
    memset(in, 0, sizeof *in);
    in->entropy = test_alloc(rows * sizeof *in->entropy);
    in->top = top;
    in->mass_keys = mass_keys;
    in->mass_rows = mass_rows;
    if (top > 0) {
        in->top_key = test_alloc(entries * sizeof *in->top_key);
        in->top_prob = test_alloc(entries * sizeof *in->top_prob);
    }
    if (mass_keys > 0)
        in->mass = test_alloc(masses_of(p) * sizeof *in->mass);
}

/* Arrays for the same once more. */
static void ask_again(attn_params *p)
{
    const attn_insight in = p->insight;
    ask(p, in.top, in.mass != NULL ? in.mass_keys : 0, in.mass_rows);
}

static int same_insight(const attn_params *a, const attn_params *b)
{
    const attn_insight *x = &a->insight, *y = &b->insight;
    const size_t rows = rows_of(a), entries = rows * (size_t)x->top;
    return memcmp(x->entropy, y->entropy, rows * sizeof *x->entropy) == 0 &&
           (entries == 0 ||
            (memcmp(x->top_key, y->top_key, entries * sizeof *x->top_key) == 0 &&
             memcmp(x->top_prob, y->top_prob, entries * sizeof *x->top_prob) == 0)) &&
           (x->mass == NULL || memcmp(x->mass, y->mass, masses_of(a) * sizeof *x->mass) == 0);
}

/* ---- against the oracle ---------------------------------------------------------------------- */

typedef struct row_of {
    const attn_params *p;
    int64_t b, h, i, keys, begin;
    double *logit, *p_of, *error; /* error: relative, of p_of */
    double entropy, entropy_error;
    int alive;
} row_of;

static int64_t row_index(const row_of *r)
{
    const attn_params *p = r->p;
    const int64_t entry = p->cu_seqlens_q != NULL ? 0 : r->b * p->num_heads_q;
    const int64_t first = p->cu_seqlens_q != NULL ? p->cu_seqlens_q[r->b] : 0;
    return (entry + r->h) * p->seq_len_q + first + r->i;
}

static void weigh_row(row_of *r)
{
    double most = oracle_sink(r->p, r->h), sum = 0;
    r->alive = 0;
    for (int64_t j = 0; j < r->keys; j++) {
        r->logit[j] = oracle_logit(r->p, r->b, r->h, r->i, j, ATTN_LOGITS_BIAS, &r->error[j]);
        most = r->logit[j] > most ? r->logit[j] : most;
        r->alive += r->logit[j] > -HUGE_VAL;
    }
    if (r->alive > 0 && oracle_sink(r->p, r->h) > -HUGE_VAL)
        sum = exp(oracle_sink(r->p, r->h) - most);
    for (int64_t j = 0; j < r->keys; j++)
        sum += r->logit[j] > -HUGE_VAL ? exp(r->logit[j] - most) : 0;
    r->entropy = r->entropy_error = 0;
    for (int64_t j = 0; j < r->keys; j++) {
        const int is_alive = r->logit[j] > -HUGE_VAL;
        r->p_of[j] = is_alive ? exp(r->logit[j] - most) / sum : 0;
        r->error[j] = is_alive ? (2 * r->error[j] + fabs(r->logit[j] - most) + 8) * unit : 0;
        if (r->p_of[j] > 0)
            r->entropy -= r->p_of[j] * log(r->p_of[j]);
    }
    for (int64_t j = 0; j < r->keys; j++)
        if (r->p_of[j] > 0)
            r->entropy_error += 2 * r->p_of[j] * (fabs(log(r->p_of[j])) + r->entropy) * r->error[j];
    r->entropy_error += 60 * unit; /* m may lie 16 below the largest logit, in base 2 */
}

/* Whether entry n of the ranking is a key that may stand there: none is likelier but those before it. */
static int is_rank_right(const row_of *r, int n)
{
    const attn_insight *in = &r->p->insight;
    const int64_t at = row_index(r) * in->top + n;
    const int64_t j = in->top_key[at] - r->begin;
    const double value = (double)in->top_prob[at];
    int before = 0;
    if (n >= r->alive)
        return in->top_key[at] == -1 && value == 0;
    if (in->top_key[at] < r->begin || j >= r->keys || !(r->logit[j] > -HUGE_VAL))
        return 0;
    for (int m = 0; m < n; m++)
        if (in->top_key[at - n + m] == in->top_key[at])
            return 0;
    for (int64_t k = 0; k < r->keys; k++)
        before +=
            r->p_of[k] * (1 - 4 * r->error[k] - 1e-5) > r->p_of[j] * (1 + 4 * r->error[j] + 1e-5);
    return before <= n && fabs(value - r->p_of[j]) <= r->p_of[j] * (4 * r->error[j] + 1e-5) + 1e-37;
}

static void compare_row(const row_of *r)
{
    const attn_insight *in = &r->p->insight;
    const double value = (double)in->entropy[row_index(r)];
    const double units = fabs(value - r->entropy) / r->entropy_error;
    int wrong = 0;
    for (int n = 0; n < in->top; n++)
        wrong += !is_rank_right(r, n);
    worst_note(units);
    CHECK(units <= 1,
          "entropy of b=%lld h=%lld i=%lld: %.9g, expected %.9g, %g times the tolerance",
          (long long)r->b, (long long)r->h, (long long)r->i, value, r->entropy, units);
    CHECK(wrong == 0, "%d of %d likeliest keys of b=%lld h=%lld i=%lld are wrong", wrong, in->top,
          (long long)r->b, (long long)r->h, (long long)r->i);
}

/* The mass of each block, from the oracle's probabilities: `mass` gets those of a row. */
static void add_mass(const row_of *r, double *mass)
{
    const attn_params *p = r->p;
    const int64_t kv_head = r->h / (p->num_heads_q / oracle_heads_kv(p));
    double *to = mass + (r->b * oracle_heads_kv(p) + kv_head) * (int64_t)blocks_of(p);
    if (p->insight.mass_rows != 0 && r->i < oracle_rows(p, r->b) - p->insight.mass_rows)
        return;
    for (int64_t j = 0; j < r->keys; j++)
        to[(r->begin + j) / p->insight.mass_keys] += r->p_of[j];
}

static void compare_insight(const attn_params *p)
{
    const size_t keys = (size_t)p->seq_len_kv + 1, masses = masses_of(p);
    double *mass = test_alloc((masses + 1) * sizeof *mass), worst = 0;
    row_of r;
    memset(&r, 0, sizeof r);
    r.p = p;
    r.logit = test_alloc(keys * sizeof *r.logit);
    r.p_of = test_alloc(keys * sizeof *r.p_of);
    r.error = test_alloc(keys * sizeof *r.error);
    for (size_t n = 0; n < masses; n++)
        mass[n] = 0;
    for (r.b = 0; r.b < p->batch; r.b++)
        for (r.h = 0; r.h < p->num_heads_q; r.h++)
            for (r.i = 0; r.i < oracle_rows(p, r.b); r.i++) {
                r.keys = oracle_keys(p, r.b);
                r.begin = p->kv_begin != NULL ? p->kv_begin[r.b] : 0;
                weigh_row(&r);
                compare_row(&r);
                if (p->insight.mass != NULL)
                    add_mass(&r, mass);
            }
    for (size_t n = 0; n < masses && p->insight.mass != NULL; n++)
        worst = fmax(worst, fabs(mass[n] - p->insight.mass[n]) / (1e-4 * (1 + mass[n])));
    CHECK(worst <= 1, "mass: %g times the tolerance", worst);
}

static const char *const banned[] = { "partial", "logits", "recent", NULL };

/* A feature that may stand here; softmax1 does not go with sinks of the background. */
static const char *feature_of(int round)
{
    const char *const name = features[round % feature_count].name;
    return strcmp(name, "partial") != 0 && strcmp(name, "logits") != 0 &&
                   strcmp(name, "softmax1") != 0
               ? name
               : NULL;
}

static int impl_of(int round)
{
    return round % 3 == 2 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
}

static void check_oracle(int round)
{
    const int64_t mass_keys = round % 2 == 0 ? 0 : rng_int(1, 40);
    const int top = (int)(round % 4 == 0 ? 0 : rng_int(1, 20));
    test_problem t;
    make_background(&t, feature_of(round), 1, banned);
    t.p.impl = impl_of(round);
    ask(&t.p, top, mass_keys, round % 4 == 1 ? rng_int(1, 9) : 0);
    if (problem_run(&t))
        compare_insight(&t.p);
}

/* ---- bit for bit ----------------------------------------------------------------------------- */

static void check_bits(int round)
{
    pool workers = pool_of((int)rng_int(2, 9), POOL_SHUFFLED, 0);
    test_problem a, b;
    make_background(&a, NULL, 1, banned);
    a.p.impl = impl_of(round);
    ask(&a.p, (int)rng_int(0, 9), round % 2 == 0 ? 0 : rng_int(1, 40), 0);
    twin(&a, &b);
    ask_again(&b.p);
    vary_execution(&b.p, &workers);
    if (problem_run(&a) && problem_run(&b))
        CHECK(problem_same_bits(&a, &b) && same_insight(&a.p, &b.p), "tiles, workers, kernels");
}

/* A call of few rows over chunks of keys, large logits among them, which workers share. */
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
    t.p.scale = rng_chance(50) ? 8.0f : 0.0f;
    t.p.softmax1 = rng_chance(30);
    return t;
}

static int divided;

static void check_split(int round)
{
    attn_info info;
    pool workers = pool_of((int)rng_int(2, 9), POOL_SHUFFLED, round % 2);
    test_problem a = make_long(rng_int(1, 3), 128), b;
    ask(&a.p, (int)rng_int(0, 9), rng_int(1, 400), 0);
    twin(&a, &b);
    ask_again(&b.p);
    vary_execution(&b.p, &workers);
    if (!problem_run(&a) || !problem_run(&b))
        return;
    divided += attn_explain(&b.p, &info) == ATTN_OK && info.key_parts > 1;
    CHECK(problem_same_bits(&a, &b) && same_insight(&a.p, &b.p), "keys divided among workers");
    compare_insight(&a.p);
}

static void check_pages(int round)
{
    test_problem a = make_long(rng_int(1, 40), 16), b;
    ask(&a.p, 5, 64, 0);
    twin(&a, &b);
    ask_again(&b.p);
    problem_scatter(&b, 16 << round % 4, 0);
    if (problem_run(&a) && problem_run(&b))
        CHECK(problem_same_bits(&a, &b) && same_insight(&a.p, &b.p), "pages");
}

/* No output depends on insight, and its outputs not on each other; top_key and top_prob stand alone. */
static void check_alone(int round)
{
    test_problem a, b;
    make_background(&a, NULL, 1, banned);
    a.p.impl = impl_of(round);
    twin(&a, &b);
    ask(&b.p, 7, 10, 3);
    if (!problem_run(&a) || !problem_run(&b))
        return;
    CHECK(problem_same_bits(&a, &b), "o and lse with insight and without");
    a.p.insight = b.p.insight;
    ask_again(&a.p);
    memset(&a.p.o, 0, sizeof a.p.o);
    memset(&a.p.lse, 0, sizeof a.p.lse);
    memset(&a.p.stats, 0, sizeof a.p.stats);
    if (run_part(&a.p, "insight alone"))
        CHECK(same_insight(&a.p, &b.p), "insight alone");
}

/* Rows of a prefill are those of decoding: shorter calls, or parts. */
static void check_steps(int round)
{
    test_problem t = make_long(0, 16);
    attn_params whole, step;
    const size_t dim = 16;
    (void)round;
    t.p.seq_len_q = 0;
    whole = t.p;
    whole.num_heads_q = whole.num_heads_kv = 1;
    whole.seq_len_q = whole.seq_len_kv = 1300;
    whole.head_dim = whole.head_dim_v = (int64_t)dim;
    memset(&whole.lse, 0, sizeof whole.lse);
    memset(&whole.stats, 0, sizeof whole.stats);
    memset(&whole.o, 0, sizeof whole.o);
    {
        float *q = test_alloc(1300 * dim * sizeof *q), *k = test_alloc(1300 * dim * sizeof *k);
        const attn_tensor none = { 0, 0, 0, 0, NULL };
        for (size_t n = 0; n < 1300 * dim; n++) {
            q[n] = rng_normal();
            k[n] = rng_normal();
        }
        whole.q = whole.k = whole.v = none;
        whole.q.data = q;
        whole.k.data = whole.v.data = k;
        ask(&whole, 6, 0, 0);
        if (!run_part(&whole, "a prefill"))
            return;
        for (int64_t i = 3; i < 1300; i += 101) {
            step = whole;
            step.seq_len_q = 1;
            step.seq_len_kv = i + 1;
            step.q.data = q + i * (int64_t)dim;
            ask_again(&step);
            if (!run_part(&step, "a step"))
                return;
            CHECK(step.insight.entropy[0] == whole.insight.entropy[i] &&
                      memcmp(step.insight.top_key, whole.insight.top_key + i * 6, 6 * 4) == 0 &&
                      memcmp(step.insight.top_prob, whole.insight.top_prob + i * 6, 6 * 4) == 0,
                  "row %lld of a prefill, and as a step", (long long)i);
        }
    }
    step = whole;
    step.part.rows = 1;
    step.part.row_begin = 700;
    step.part.row_count = 90;
    step.q.data = (const float *)whole.q.data + 700 * dim;
    ask_again(&step);
    if (run_part(&step, "a part"))
        CHECK(memcmp(step.insight.entropy, whole.insight.entropy + 700, 90 * 4) == 0 &&
                  memcmp(step.insight.top_key, whole.insight.top_key + 700 * 6, 90 * 6 * 4) == 0,
              "rows of a part");
}

/* Rows of all batch entries that share keys. */
static void check_shared(int round)
{
    enum { ENTRIES = 6, KEYS = 1200, DIM = 8 };
    float *q = test_alloc(ENTRIES * DIM * sizeof *q);
    float *k = test_alloc((size_t)ENTRIES * KEYS * DIM * sizeof *k);
    attn_params p, alone;
    memset(&p, 0, sizeof p);
    for (int n = 0; n < ENTRIES * DIM; n++)
        q[n] = rng_normal();
    for (int n = 0; n < ENTRIES * KEYS * DIM; n++)
        k[n] =
            n >= KEYS * DIM && n % (KEYS * DIM) < 1100 * DIM ? k[n % (KEYS * DIM)] : rng_normal();
    p.batch = ENTRIES;
    p.num_heads_q = 1;
    p.seq_len_q = 1;
    p.seq_len_kv = KEYS;
    p.head_dim = DIM;
    p.q.data = q;
    p.k.data = p.v.data = k;
    p.scale = round % 2 == 0 ? 3.0f : 0.0f;
    ask(&p, 5, 0, 0);
    alone = p;
    ask_again(&alone);
    p.shared_keys = 1100;
    if (run_part(&p, "shared keys") && run_part(&alone, "each its own"))
        CHECK(same_insight(&p, &alone), "shared keys");
}

/* ---- ties, against a sort -------------------------------------------------------------------- */

typedef struct candidate {
    int score;
    int32_t key;
} candidate;

static int by_score(const void *x, const void *y)
{
    const candidate *a = x, *b = y;
    return a->score != b->score ? (a->score < b->score) - (a->score > b->score)
                                : (a->key > b->key) - (a->key < b->key);
}

static void check_ties(int round)
{
    enum { KEYS = 2600, DIM = 4, ROWS = 30 };
    static const int tops[] = { 1, 2, 7, 64 };
    const int top = tops[round % 4], spread = (int)rng_int(1, 4);
    float *q = test_alloc(ROWS * DIM * sizeof *q), *k = test_alloc(KEYS * DIM * sizeof *k);
    candidate *all = test_alloc(KEYS * sizeof *all);
    int wrong = 0;
    attn_params p;
    memset(&p, 0, sizeof p);
    for (int n = 0; n < ROWS * DIM; n++)
        q[n] = (float)rng_int(-spread, spread);
    for (int n = 0; n < KEYS * DIM; n++)
        k[n] = (float)rng_int(-spread, spread);
    p.batch = p.num_heads_q = 1;
    p.seq_len_q = ROWS;
    p.seq_len_kv = KEYS;
    p.head_dim = DIM;
    p.scale = 1.0f;
    p.causal = round % 3 == 0;
    p.impl = impl_of(round);
    p.q.data = q;
    p.k.data = p.v.data = k;
    ask(&p, top, 0, 0);
    if (!run_part(&p, "ties"))
        return;
    for (int i = 0; i < ROWS; i++) {
        const int keys = p.causal ? KEYS - ROWS + i + 1 : KEYS;
        for (int j = 0; j < keys; j++) {
            all[j].key = (int32_t)j;
            all[j].score = 0;
            for (int d = 0; d < DIM; d++)
                all[j].score += (int)(q[i * DIM + d] * k[j * DIM + d]);
        }
        qsort(all, (size_t)keys, sizeof *all, by_score);
        for (int n = 0; n < top; n++)
            wrong += p.insight.top_key[i * top + n] != all[n].key;
    }
    CHECK(wrong == 0, "%d of %d keys are not those of a sort", wrong, ROWS * top);
}

/* ---- probabilities and mass are those of logits ---------------------------------------------- */

static void check_probabilities(int round)
{
    test_problem t;
    const float *row;
    double *mass;
    int64_t group;
    int wrong = 0;
    make_background(&t, round % 2 == 0 ? "sinks" : "kv_begin", 0, banned);
    if (t.p.cu_seqlens_q != NULL)
        return;
    ask(&t.p, (int)rng_int(1, 5), rng_int(1, 40), 0);
    t.p.logits.stage = ATTN_LOGITS_SOFTMAX;
    t.p.logits.data = test_alloc(rows_of(&t.p) * (size_t)t.p.seq_len_kv * sizeof(float));
    if (!problem_run(&t))
        return;
    group = t.p.num_heads_q / oracle_heads_kv(&t.p);
    mass = test_alloc((masses_of(&t.p) + 1) * sizeof *mass);
    for (size_t n = 0; n < masses_of(&t.p); n++)
        mass[n] = 0;
    for (int64_t b = 0; b < t.p.batch; b++)
        for (int64_t h = 0; h < t.p.num_heads_q; h++)
            for (int64_t i = 0; i < oracle_rows(&t.p, b); i++) {
                const int64_t at = (b * t.p.num_heads_q + h) * t.p.seq_len_q + i;
                double *to =
                    mass + (b * oracle_heads_kv(&t.p) + h / group) * (int64_t)blocks_of(&t.p);
                row = t.p.logits.data + at * t.p.seq_len_kv;
                for (int n = 0; n < t.p.insight.top; n++) {
                    const int32_t key = t.p.insight.top_key[at * t.p.insight.top + n];
                    wrong +=
                        key >= 0 && float_bits(row[key]) !=
                                        float_bits(t.p.insight.top_prob[at * t.p.insight.top + n]);
                }
                for (int64_t c = 0; c < t.p.seq_len_kv; c++)
                    to[c / t.p.insight.mass_keys] += floor(ldexp((double)row[c], 32) + 0.5);
            }
    CHECK(wrong == 0, "%d probabilities are not those of logits", wrong);
    wrong = 0;
    for (size_t n = 0; n < masses_of(&t.p); n++)
        wrong += ldexp(mass[n], -32) != t.p.insight.mass[n];
    CHECK(wrong == 0, "%d masses are not the exact sums", wrong);
}

/* ---- what is not finite ---------------------------------------------------------------------- */

static void check_nan(int round)
{
    enum { KEYS = 1100, DIM = 4 };
    float *q = test_alloc(2 * DIM * sizeof *q), *k = test_alloc(KEYS * DIM * sizeof *k);
    const int at = (int)rng_int(0, KEYS - 1);
    uint8_t *shown = test_alloc(2 * KEYS);
    uint64_t bits;
    attn_params p;
    memset(&p, 0, sizeof p);
    memset(shown, 1, 2 * KEYS);
    for (int n = 0; n < 2 * DIM; n++)
        q[n] = rng_normal();
    for (int n = 0; n < KEYS * DIM; n++)
        k[n] = n / DIM == at ? -NAN : rng_normal();
    shown[at] = 0; /* Row 1 sees the NaN. */
    p.batch = p.num_heads_q = 1;
    p.seq_len_q = 2;
    p.seq_len_kv = KEYS;
    p.head_dim = DIM;
    p.impl = impl_of(round);
    p.q.data = q;
    p.k.data = p.v.data = k;
    p.bool_mask.data = shown;
    ask(&p, 3, 100, 0);
    if (!run_part(&p, "a NaN"))
        return;
    CHECK(p.insight.entropy[0] > 0 && p.insight.top_prob[2] > 0, "a hidden NaN shows");
    CHECK(float_bits(p.insight.entropy[1]) == 0x7fc00000u, "entropy of a row that is NaN");
    for (int n = 0; n < 3; n++)
        CHECK(p.insight.top_key[3 + n] >= 0 && p.insight.top_key[3 + n] != at &&
                  float_bits(p.insight.top_prob[3 + n]) == 0x7fc00000u,
              "likeliest keys of a row that is NaN");
    memcpy(&bits, p.insight.mass, sizeof bits);
    CHECK(bits == 0x7ff8000000000000u, "mass of a row that is NaN");
}

/* ---- the group ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(int round);
    int rounds;
} checks[] = {
    { "oracle", check_oracle, 160 },
    { "bits", check_bits, 60 },
    { "split", check_split, 16 },
    { "pages", check_pages, 8 },
    { "alone", check_alone, 24 },
    { "steps", check_steps, 2 },
    { "shared keys", check_shared, 4 },
    { "ties", check_ties, 24 },
    { "probabilities", check_probabilities, 30 },
    { "NaN", check_nan, 6 },
};

TEST_GROUP(insight, RUN_FEWER, "entropies, the likeliest keys and the mass of keys")
{
    for (size_t n = 0; n < sizeof checks / sizeof *checks; n++)
        for (int round = 0; round < checks[n].rounds; round++)
            if (begin_case("%s, %d", checks[n].name, round))
                checks[n].run(round);
    CHECK(divided > 0 || !all_cases_run(), "no keys were divided among workers");
}
