/* index.c - attn_index: the lists are those of a full sort of the same scores, for any way to compute them.
 * SPDX-License-Identifier: MIT
 *
 * The scores are computed here once more, in the order of docs/canon.md, and
 * compared bit for bit; those of a double oracle say that they mean the right thing.
 */
#include "laws.h"
#include "oracle.h"
#include "pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- asking ---------------------------------------------------------------------------------- */

/* What a call of attn_index may not have, and what else one with keys of any storage type may not. */
#define NO_LOGITS                                                                                  \
    "partial", "logits", "recent", "softcap", "bias", "alibi", "score_fn", "sinks", "softmax1",    \
        "dropout"
static const char *const banned[] = { NO_LOGITS, NULL };
static const char *const banned_stored[] = { NO_LOGITS, "odd_dims", "mixed",      "varlen",
                                             "paged",   "ring",     "paged_ring", NULL };

/* The heads and masks of a call, for attn_index. */
static attn_params index_params(const attn_params *p)
{
    const attn_tensor no_tensor = { 0, 0, 0, 0, NULL };
    const attn_output no_output = { 0, 0, 0, 0, NULL };
    attn_params s = test_params(p);
    s.impl = ATTN_IMPL_DEFAULT;
    s.backend = NULL;
    s.head_dim_v = 0;
    s.v = no_tensor;
    s.o = s.lse = s.stats = no_output;
    memset(&s.v_scales, 0, sizeof s.v_scales);
    s.rotated &= ATTN_ROTATED_K;
    return s;
}

static size_t lists_of(const attn_params *p)
{
    return (size_t)(p->batch * oracle_heads_kv(p) * p->seq_len_q);
}

/* Arrays of its own for what *x asks for: NaN bytes, which are no key. */
static void new_lists(const attn_params *p, attn_indexer *x)
{
    const size_t lists = lists_of(p), row = (size_t)(x->stride_seq ? x->stride_seq : x->top_k);
    x->keys = test_alloc(lists * row * sizeof *x->keys);
    x->scores = test_alloc(lists * row * sizeof *x->scores);
}

/* Weights of either sign with zeros among them, and gaps; lists with gaps. */
static attn_indexer make_indexer(const attn_params *p, int64_t top_k)
{
    attn_indexer x;
    memset(&x, 0, sizeof x);
    x.activation = (int)rng_int(0, 1);
    x.top_k = top_k;
    if (rng_chance(75)) {
        const int64_t gap = rng_int(0, 2), rows = p->batch * p->seq_len_q;
        float *w = test_alloc((size_t)(rows * (p->num_heads_q + gap)) * sizeof *w);
        for (int64_t n = 0; n < rows * (p->num_heads_q + gap); n++) {
            const int zero = rng_chance(10);
            w[n] = zero ? 0.0f : rng_normal();
        }
        x.weights = w;
        x.weights_stride_seq = gap == 0 ? 0 : (ptrdiff_t)(p->num_heads_q + gap);
        x.weights_stride_batch = gap == 0 ? 0 : p->seq_len_q * x.weights_stride_seq;
        if (rng_chance(20))
            x.weights_stride_head = ATTN_STRIDE_BROADCAST;
        if (x.weights_stride_head != 0 && gap == 0)
            x.weights_stride_seq = x.weights_stride_batch = 0;
    }
    if (rng_chance(50)) {
        x.stride_seq = (ptrdiff_t)(top_k + 3);
        x.stride_head = p->seq_len_q * x.stride_seq;
        x.stride_batch = oracle_heads_kv(p) * x.stride_head;
    }
    new_lists(p, &x);
    return x;
}

/* Runs it in `percent` of the way from the least workspace to the best. Nonzero: it went well. */
static int run_within(const attn_params *p, const attn_indexer *x, int percent)
{
    const int mark = test_mark();
    char text[256];
    size_t best = 0, least = 0, bytes;
    attn_status status = attn_index_workspace_size(p, x, &best);
    char *workspace;
    bytes = best;
    while (percent < 100 && least < bytes) {
        const size_t middle = least + (bytes - least) / 2;
        if (strcmp(attn_index_check(p, x, text, middle, text, sizeof text), "ok") == 0)
            bytes = middle;
        else
            least = middle + 1;
    }
    bytes += (best - bytes) / 100 * (size_t)percent;
    workspace = test_alloc(bytes + 1);
    if (status == ATTN_OK)
        status = attn_index(p, x, workspace + 1, bytes);
    CHECK(status == ATTN_OK, "status %d: %s", (int)status,
          attn_index_check(p, x, workspace + 1, bytes, text, sizeof text));
    test_release_to(mark);
    return status == ATTN_OK;
}

static int run_index(const attn_params *p, const attn_indexer *x)
{
    return run_within(p, x, 100);
}

/* ---- the same scores and lists once more ----------------------------------------------------- */

/* A list of one row, as it should be. */
typedef struct candidate {
    float score;
    int32_t key;
} candidate;

static int by_score(const void *x, const void *y)
{
    const candidate *a = x, *b = y;
    if (a->score != b->score)
        return a->score < b->score ? 1 : -1;
    return a->key < b->key ? -1 : 1;
}

static int by_key(const void *x, const void *y)
{
    const candidate *a = x, *b = y;
    return a->key < b->key ? -1 : 1;
}

typedef struct row_of {
    const attn_params *p;
    const attn_indexer *x;
    int64_t b, head, i, group; /* head: of K */
} row_of;

static float weight_of(const row_of *r, int64_t h)
{
    const attn_indexer *x = r->x;
    const int shared = x->weights_stride_head == ATTN_STRIDE_BROADCAST;
    const int64_t heads = shared ? 1 : r->p->num_heads_q;
    const int64_t row = x->weights_stride_seq != 0 ? x->weights_stride_seq : heads;
    const int64_t entry =
        x->weights_stride_batch != 0 ? x->weights_stride_batch : r->p->seq_len_q * row;
    const int64_t first = r->p->cu_seqlens_q != NULL ? r->p->cu_seqlens_q[r->b] : 0;
    if (x->weights == NULL)
        return 1;
    return x->weights[(r->p->cu_seqlens_q != NULL ? 0 : r->b * entry) + (first + r->i) * row +
                      (shared ? 0 : h)];
}

static float dot_of(const row_of *r, int64_t h, int64_t j)
{
    const attn_params *p = r->p;
    const ptrdiff_t q = oracle_row_offset(p, &p->q, p->head_dim, r->b, h, r->i);
    const ptrdiff_t k = oracle_key_offset(p, &p->k, p->head_dim, r->b, r->head, j);
    float sum = 0;
    for (int64_t d = 0; d < p->head_dim; d++)
        sum = exact_fma((float)oracle_load(p->q.dtype, p->q.data, q + (ptrdiff_t)d),
                        (float)oracle_load(p->k.dtype, p->k.data, k + (ptrdiff_t)d), sum);
    return sum * (p->scale != 0 ? p->scale : (float)oracle_scale(p));
}

/* The score of a key, -inf where a head does not see it; *exact and *error are of a double oracle. */
static float score_of_key(const row_of *r, int64_t j, double *exact, double *error)
{
    float sum = 0;
    *exact = *error = 0;
    for (int64_t h = r->head * r->group; h < (r->head + 1) * r->group; h++) {
        const int relu = r->x->activation == ATTN_INDEX_RELU;
        const float w = weight_of(r, h);
        float x = dot_of(r, h, j), term;
        double e, y = oracle_logit(r->p, r->b, h, r->i, j, ATTN_LOGITS_RAW, &e);
        if (!oracle_visible(r->p, r->b, h, r->i, j))
            return -INFINITY;
        x = relu && x < 0 ? 0 : x;
        y = relu && y < 0 ? 0 : y;
        term = w * x;
        sum = sum + term;
        *exact += (double)w * y;
        *error += fabs((double)w) * (e + (double)r->group * fabs(y) + 1e-30);
    }
    *error *= ORACLE_LOGIT_FACTOR / 16777216.0;
    return sum;
}

/* Where a list begins. */
static int64_t list_at(const row_of *r)
{
    const attn_indexer *x = r->x;
    const int64_t row = x->stride_seq != 0 ? x->stride_seq : x->top_k;
    const int64_t rows = oracle_longest(r->p, r->p->cu_seqlens_q, r->p->seq_len_q);
    const int64_t head = x->stride_head != 0 ? x->stride_head : rows * row;
    const int64_t entry = x->stride_batch != 0 ? x->stride_batch : oracle_heads_kv(r->p) * head;
    return r->b * entry + r->head * head + r->i * row;
}

/* Compares a list with that of a sort, and notes the worst error of its scores. */
static int is_list_right(const row_of *r, candidate *all, double *worst)
{
    const int64_t at = list_at(r);
    int64_t count = 0;
    for (int64_t j = 0; j < oracle_keys(r->p, r->b); j++) {
        double exact, error;
        all[count].score = score_of_key(r, j, &exact, &error);
        all[count].key = (int32_t)j;
        if (!(all[count].score > -INFINITY))
            continue;
        *worst = fmax(*worst, tolerance_units((double)all[count].score, exact, error));
        count++;
    }
    qsort(all, (size_t)count, sizeof *all, by_score);
    count = count < r->x->top_k ? count : r->x->top_k;
    qsort(all, (size_t)count, sizeof *all, by_key);
    for (int64_t k = 0; k < r->x->top_k; k++) {
        const int32_t key = k < count ? all[k].key : -1;
        const float score = k < count ? all[k].score : -INFINITY;
        if (r->x->keys[at + k] != key || float_bits(r->x->scores[at + k]) != float_bits(score))
            return 0;
    }
    return 1;
}

static void compare_lists(const attn_params *p, const attn_indexer *x)
{
    candidate *all = test_alloc((size_t)(p->seq_len_kv + 1) * sizeof *all);
    row_of r = { p, x, 0, 0, 0, p->num_heads_q / oracle_heads_kv(p) };
    double worst = 0;
    int wrong = 0, rows = 0;
    for (r.b = 0; r.b < p->batch; r.b++)
        for (r.head = 0; r.head < oracle_heads_kv(p); r.head++)
            for (r.i = 0; r.i < oracle_rows(p, r.b); r.i++, rows++)
                wrong += !is_list_right(&r, all, &worst);
    CHECK(wrong == 0, "%d of %d lists are not those of a sort", wrong, rows);
    CHECK(worst <= 1, "a score is %g times the tolerance away", worst);
    worst_note(worst);
}

/* Nonzero: both have the same lists, and the same bytes everywhere else. */
static int same_lists(const attn_params *p, const attn_indexer *a, const attn_indexer *b)
{
    const size_t row = (size_t)(a->stride_seq ? a->stride_seq : a->top_k);
    const size_t bytes = lists_of(p) * row * sizeof *a->keys;
    return memcmp(a->keys, b->keys, bytes) == 0 && memcmp(a->scores, b->scores, bytes) == 0;
}

static int64_t random_top(const attn_params *p)
{
    const int64_t tops[] = { 1, 2, 5, p->seq_len_kv / 2 + 1, p->seq_len_kv, p->seq_len_kv + 3 };
    const int64_t top = RNG_PICK(tops);
    return top > 0 ? top : 1;
}

static void check_sort(int round)
{
    test_problem t;
    attn_params p;
    attn_indexer x;
    make_background(&t, round % 3 == 0 ? "gqa" : NULL, 1, banned);
    p = index_params(&t.p);
    x = make_indexer(&p, random_top(&p));
    if (run_index(&p, &x))
        compare_lists(&p, &x);
}

/* Gaps between lists, and lists of rows that are not in use, keep what they held. */
static void check_untouched(int round)
{
    test_problem t;
    attn_params p;
    attn_indexer x;
    int wrong = 0;
    make_background(&t, round % 2 == 0 ? "q_len" : "varlen", 1, banned);
    p = index_params(&t.p);
    x = make_indexer(&p, random_top(&p));
    if (!run_index(&p, &x))
        return;
    for (row_of r = { &p, &x, 0, 0, 0, 1 }; r.b < p.batch; r.b++)
        for (r.head = 0; r.head < oracle_heads_kv(&p); r.head++)
            for (r.i = 0; r.i < oracle_longest(&p, p.cu_seqlens_q, p.seq_len_q); r.i++) {
                const int64_t at = list_at(&r);
                const int used = r.i < oracle_rows(&p, r.b);
                const size_t gap = x.stride_seq != 0 ? 3 : 0;
                wrong += !all_bytes(x.keys + at + x.top_k, gap * sizeof *x.keys, 0xff) ||
                         !all_bytes(x.scores + at + x.top_k, gap * sizeof *x.scores, 0xff) ||
                         (!used && !all_bytes(x.scores + at, (size_t)x.top_k * 4, 0xff));
            }
    CHECK(wrong == 0, "%d lists or gaps were written", wrong);
}

/* ---- bit for bit ----------------------------------------------------------------------------- */

/* The same in other tiles, by other workers, with other kernels. */
static void vary(attn_params *p, pool *workers)
{
    p->tile_keys = 16 << rng_int(0, 6);
    p->num_workers = workers->workers;
    p->parallel_for = pool_for;
    p->parallel_user = workers;
    if (rng_chance(60))
        p->kernels = attn_kernels_find(rng_chance(50) ? "portable" : "sse2_narrow");
}

static void check_ways(int round)
{
    pool workers = pool_of((int)rng_int(2, 9), POOL_SHUFFLED, round % 2);
    const int percent = (int)rng_int(0, 100);
    test_problem t;
    attn_params p, other;
    attn_indexer x, y;
    if (round % 2 == 0)
        make_background(&t, NULL, 1, banned);
    else
        make_stored(&t, banned_stored);
    other = p = index_params(&t.p);
    x = make_indexer(&p, random_top(&p));
    y = x;
    new_lists(&p, &y);
    vary(&other, &workers);
    if (run_index(&p, &x) && run_within(&other, &y, percent))
        CHECK(same_lists(&p, &x, &y), "tiles, workers, kernels, workspace");
    CHECK(workers.wrong == 0, "an item ran twice or never");
}

/* Many keys of which many score the same: whole numbers. */
static test_problem make_tied(int64_t rows, int64_t keys, int64_t heads, int64_t heads_kv)
{
    test_problem t;
    test_shape s = shape_random();
    const int spread = (int)rng_int(1, 3);
    s.batch = 1;
    s.seq_q = rows;
    s.seq_kv = keys;
    s.heads_q = heads;
    s.heads_kv = heads_kv;
    s.dim = s.dim_v = 4;
    problem_make(&t, &s);
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t d = 0; d < 4; d++)
                tensor_set(&t.q, 0, h, i, d, (float)rng_int(-spread, spread));
    for (int64_t h = 0; h < heads_kv; h++)
        for (int64_t j = 0; j < keys; j++)
            for (int64_t d = 0; d < 4; d++)
                tensor_set(&t.k, 0, h, j, d, (float)rng_int(-spread, spread));
    tensor_remember(&t.q);
    tensor_remember(&t.k);
    t.p.scale = 1;
    t.p.causal = 1;
    return t;
}

static void check_ties(int round)
{
    static const int64_t tops[] = { 1, 2, 64, 500, 2048, 5000 };
    const int64_t rows = rng_int(1, 9), keys = rng_int(1000, 5000), heads_kv = rng_int(1, 2);
    const int64_t group = round % 5 == 0 ? 70 : rng_int(1, 9);
    test_problem t = make_tied(rows, keys, heads_kv * group, heads_kv);
    attn_params p = index_params(&t.p), paged;
    attn_indexer x = make_indexer(&p, tops[round % 6]), y;
    if (!run_index(&p, &x))
        return;
    compare_lists(&p, &x);
    problem_scatter(&t, 16 << round % 4, 0);
    paged = index_params(&t.p);
    y = x;
    new_lists(&p, &y);
    if (run_index(&paged, &y))
        CHECK(same_lists(&p, &x, &y), "pages");
}

/* Keys of few rows are divided among workers. */
static int divided;

static void check_divided(int round)
{
    static const int64_t tops[] = { 1, 64, 500, 2048, 3000 };
    pool workers = pool_of((int)rng_int(2, 9), POOL_SHUFFLED, round % 2);
    const int64_t rows = rng_int(1, 3), keys = rng_int(4096, 9000);
    test_problem t = make_tied(rows, keys, 1 + round % 3, 1);
    attn_params p = index_params(&t.p), other = p;
    attn_indexer x = make_indexer(&p, tops[round % 5]), y = x;
    new_lists(&p, &y);
    vary(&other, &workers);
    if (!run_index(&p, &x) || !run_within(&other, &y, round % 4 == 3 ? 0 : 100))
        return;
    divided += workers.loops == 2;
    CHECK(same_lists(&p, &x, &y), "keys divided among workers");
    compare_lists(&p, &x);
}

/* Rows of a prefill are those of steps. */
static void check_steps(int round)
{
    const int64_t rows = 90, top = 7 + round;
    test_problem t = make_tied(rows, rows, 6, 1);
    attn_params p = index_params(&t.p);
    attn_indexer x = make_indexer(&p, top);
    int wrong = 0;
    if (!run_index(&p, &x))
        return;
    for (int64_t i = 0; i < rows; i += 11) {
        attn_params step = p;
        attn_indexer y;
        const row_of r = { &p, &x, 0, 0, i, 6 };
        const int64_t row = x.weights_stride_seq != 0                        ? x.weights_stride_seq
                            : x.weights_stride_head == ATTN_STRIDE_BROADCAST ? 1
                                                                             : 6;
        step.seq_len_q = 1;
        step.seq_len_kv = i + 1;
        step.q.data = (const char *)p.q.data +
                      oracle_row_offset(&p, &p.q, 4, 0, 0, i) * (ptrdiff_t)sizeof(float);
        step.q.stride_head = t.q.step_head;
        step.k.stride_head = t.k.step_head;
        y = x;
        y.weights = x.weights != NULL ? x.weights + i * row : NULL;
        new_lists(&step, &y);
        if (!run_index(&step, &y))
            return;
        wrong += memcmp(y.keys, x.keys + list_at(&r), (size_t)top * sizeof *y.keys) != 0;
    }
    CHECK(wrong == 0, "%d lists of a prefill are not those of steps", wrong);
}

/* The size for a call serves calls with fewer rows and keys. */
static void check_sizes(int round)
{
    pool workers = pool_of((int)rng_int(1, 8), POOL_ASCENDING, 0);
    attn_indexer x;
    attn_params p;
    size_t most = 0, bytes = 0;
    int wrong = 0;
    memset(&x, 0, sizeof x);
    memset(&p, 0, sizeof p);
    p.batch = rng_int(1, 3);
    p.num_heads_kv = rng_int(1, 2);
    p.num_heads_q = p.num_heads_kv * rng_int(1, round % 2 == 0 ? 8 : 80);
    p.head_dim = rng_int(1, 256);
    p.k.dtype = (int)rng_int(ATTN_F32, ATTN_F16);
    p.num_workers = workers.workers;
    p.parallel_for = pool_for;
    p.parallel_user = &workers;
    x.top_k = rng_int(1, round % 4 < 2 ? 3000 : 50000);
    for (int n = 0; n < 200; n++) {
        const int64_t rows = n % 20 == 0 ? (round % 3 == 0 ? 3000 : 70) : p.seq_len_q;
        const int64_t keys = n % 20 == 0 ? 40000 : p.seq_len_kv;
        p.seq_len_q = rng_int(1, rows);
        p.seq_len_kv = rng_int(1, keys);
        CHECK(attn_index_workspace_size(&p, &x, &bytes) == ATTN_OK, "a size");
        wrong += n % 20 != 0 && bytes > most;
        most = bytes;
    }
    CHECK(wrong == 0, "%d shorter calls want a larger workspace", wrong);
}

/* ---- with attention -------------------------------------------------------------------------- */

/* The lists go into p.key_list as they are; a boolean mask of the listed keys gives the same bits. */
static void check_attention(int round)
{
    test_problem t, a, b;
    attn_params p;
    attn_indexer x;
    uint8_t *shown;
    make_background(&t, round % 2 == 0 ? "causal" : "gqa", 0, banned);
    p = index_params(&t.p);
    x = make_indexer(&p, rng_int(1, p.seq_len_kv + 1));
    if (!run_index(&p, &x))
        return;
    memset(&t.p.key_list, 0, sizeof t.p.key_list);
    t.p.key_list.data = x.keys;
    t.p.key_list.width = x.top_k;
    t.p.key_list.stride_batch = x.stride_batch;
    t.p.key_list.stride_head = x.stride_head;
    t.p.key_list.stride_seq = x.stride_seq;
    twin(&t, &a);
    twin(&t, &b);
    shown = all_pairs(&t.p);
    memset(&b.p.key_list, 0, sizeof b.p.key_list);
    clear_masks(&b.p);
    as_bool(&b.p, shown);
    if (problem_run(&a) && problem_run(&b))
        CHECK(problem_same_bits(&a, &b), "lists and the equal boolean mask");
}

/* ---- what is not finite ---------------------------------------------------------------------- */

static void check_nan(int round)
{
    enum { KEYS = 600, HEADS = 3 };
    static const float strange[] = { NAN, INFINITY, -INFINITY };
    test_problem t = make_tied(5, KEYS, HEADS, 1);
    attn_params p;
    attn_indexer x;
    for (int n = 0; n < 40; n++) {
        const int64_t key = rng_int(0, KEYS - 1), d = rng_int(0, 3);
        tensor_set(&t.k, 0, 0, key, d, strange[rng_int(0, 2)]);
    }
    tensor_remember(&t.k);
    p = index_params(&t.p);
    x = make_indexer(&p, round % 2 == 0 ? KEYS : 30);
    if (!run_index(&p, &x))
        return;
    {
        candidate *all = test_alloc((KEYS + 1) * sizeof *all);
        row_of r = { &p, &x, 0, 0, 0, HEADS };
        double worst = 0;
        for (; r.i < 5; r.i++)
            CHECK(is_list_right(&r, all, &worst), "row %d with keys that are not finite", (int)r.i);
    }
}

/* ---- refusals -------------------------------------------------------------------------------- */

enum { HEADS = 4, ROWS = 3, KEYS = 6, DIM = 4, TOP = 2 };

typedef struct right_call {
    attn_params p;
    attn_indexer x;
} right_call;

static float values[2 * HEADS * KEYS * DIM];
static int32_t list_numbers[2 * ROWS * TOP];
static float list_scores[2 * ROWS * TOP];
static int32_t some_ints[16];

static float keep_score(void *user, const attn_pair *at, float logit)
{
    (void)user, (void)at;
    return logit;
}

static void make_right(right_call *c)
{
    memset(c, 0, sizeof *c);
    c->p.batch = 1;
    c->p.num_heads_q = HEADS;
    c->p.num_heads_kv = 2;
    c->p.seq_len_q = ROWS;
    c->p.seq_len_kv = KEYS;
    c->p.head_dim = DIM;
    c->p.q.data = c->p.k.data = values;
    c->x.top_k = TOP;
    c->x.keys = list_numbers;
    c->x.scores = list_scores;
    c->x.weights = values;
}

#define MAKER(name, ...)                                                                           \
    static void name(right_call *c)                                                                \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }

MAKER(dim_v, c->p.head_dim_v = DIM)
MAKER(fast, c->p.fast = 1)
MAKER(centered, c->p.k_centered = 1)
MAKER(v_type, c->p.v.dtype = ATTN_F16)
MAKER(v_data, c->p.v.data = values)
MAKER(o_data, c->p.o.data = values)
MAKER(lse_data, c->p.lse.data = values)
MAKER(stats_data, c->p.stats.data = values)
MAKER(recent, c->p.recent.keys = c->p.recent.ring = 2)
MAKER(softcap, c->p.softcap = 3)
MAKER(bias, c->p.bias.data = values)
MAKER(alibi, c->p.alibi_slopes = values)
MAKER(score, c->p.score = keep_score)
MAKER(sinks, c->p.sinks = values)
MAKER(softmax1, c->p.softmax1 = 1)
MAKER(dropout, c->p.dropout_p = 0.5f)
MAKER(partial, c->p.partial = 1)
MAKER(logits, c->p.logits.data = list_scores)
MAKER(entropy, c->p.insight.entropy = list_scores)
MAKER(mass, c->p.insight.mass = (double *)(void *)values; c->p.insight.mass_keys = 2)
MAKER(skip, c->p.skip.below = 0.5f; c->p.skip.dropped = list_scores)
MAKER(naive, c->p.impl = ATTN_IMPL_NAIVE)
MAKER(part_rows, c->p.part.rows = 1; c->p.part.row_count = 1)
MAKER(part_keys, c->p.part.keys = 1; c->p.part.key_count = 1)
MAKER(activation, c->x.activation = 2)
MAKER(no_top, c->x.top_k = 0)
MAKER(much_top, c->x.top_k = INT64_MAX)
MAKER(no_keys, c->x.keys = NULL)
MAKER(no_q, c->p.q.data = NULL)
MAKER(heads, c->p.num_heads_kv = 3)
MAKER(shared_lists, c->x.stride_head = ATTN_STRIDE_BROADCAST)
MAKER(lists_meet, c->x.stride_seq = 1)
MAKER(over_weights, c->x.scores = values)
MAKER(over_scores, c->x.scores = (float *)(void *)list_numbers)
MAKER(odd_weights, c->x.weights = (const float *)(const void *)((const char *)values + 1))
MAKER(wide_weights, c->x.weights_stride_seq = PTRDIFF_MAX / 4)
MAKER(lengths, c->p.kv_len = some_ints)

#define REFUSED(make, name)                                                                        \
    {                                                                                              \
        make, ATTN_ERR_UNSUPPORTED, name, 0                                                        \
    }
#define NOT_TAKEN " is set, but attn_index does not take it"

static const struct {
    void (*make)(right_call *c);
    attn_status status;
    const char *sentence;
    int late; /* only the run looks at it */
} refusals[] = {
    REFUSED(dim_v, "head_dim_v (4)" NOT_TAKEN),
    REFUSED(fast, "fast (1)" NOT_TAKEN ": its bits are of attn_forward alone"),
    REFUSED(centered, "k_centered (1)" NOT_TAKEN),
    REFUSED(v_type, "v.dtype (1)" NOT_TAKEN),
    REFUSED(v_data, "v" NOT_TAKEN),
    REFUSED(o_data, "o" NOT_TAKEN),
    REFUSED(lse_data, "lse" NOT_TAKEN),
    REFUSED(stats_data, "stats" NOT_TAKEN),
    REFUSED(recent, "recent.keys (2)" NOT_TAKEN),
    REFUSED(softcap, "softcap" NOT_TAKEN),
    REFUSED(bias, "bias" NOT_TAKEN),
    REFUSED(alibi, "alibi_slopes" NOT_TAKEN),
    REFUSED(score, "score" NOT_TAKEN),
    REFUSED(sinks, "sinks" NOT_TAKEN),
    REFUSED(softmax1, "softmax1 (1)" NOT_TAKEN),
    REFUSED(dropout, "dropout_p" NOT_TAKEN),
    REFUSED(partial, "partial (1)" NOT_TAKEN),
    REFUSED(logits, "logits.data" NOT_TAKEN),
    REFUSED(entropy, "insight.entropy" NOT_TAKEN),
    REFUSED(mass, "insight.mass" NOT_TAKEN),
    REFUSED(skip, "skip.below" NOT_TAKEN),
    REFUSED(naive, "impl (2)" NOT_TAKEN),
    REFUSED(part_rows, "part.rows (1)" NOT_TAKEN),
    REFUSED(part_keys, "part.keys (1)" NOT_TAKEN),
    { activation, ATTN_ERR_ARG, "activation (2) must be at most 1: 0 is relu, 1 is linear", 0 },
    { no_top, ATTN_ERR_ARG, "top_k (0) must be at least 1", 0 },
    { much_top, ATTN_ERR_ARG, "top_k (9223372036854775807) must be at most 2147483647", 0 },
    { no_keys, ATTN_ERR_ARG, "indexer.keys is NULL", 1 },
    { no_q, ATTN_ERR_ARG, "q.data is NULL", 1 },
    { heads, ATTN_ERR_ARG, "num_heads_q (4) must be a multiple of num_heads_kv (3)", 0 },
    { shared_lists, ATTN_ERR_ARG,
      "keys.stride_head (ATTN_STRIDE_BROADCAST) must be 0 (packed) or a stride: no rows share it",
      0 },
    { lists_meet, ATTN_ERR_ARG, "keys: with its strides rows share elements", 1 },
    { over_weights, ATTN_ERR_ARG, "scores overlaps weights", 1 },
    { over_scores, ATTN_ERR_ARG, "keys overlaps scores", 1 },
    { odd_weights, ATTN_ERR_ARG, "weights: its address must be a multiple of 4", 0 },
    { wide_weights, ATTN_ERR_OVERFLOW, "weights: batch (1) x heads (1) x rows (3) x columns (4)",
      0 },
    { lengths, ATTN_ERR_ARG, "kv_len[0] (7) must be from 0 to 6", 0 },
};

static void check_refusals(int round)
{
    right_call c;
    static char workspace[1 << 20];
    char text[300];
    size_t bytes = 1;
    const char *sentence = refusals[round].sentence;
    const attn_status query = refusals[round].late ? ATTN_OK : refusals[round].status;
    some_ints[0] = KEYS + 1;
    make_right(&c);
    CHECK(strcmp(attn_index_check(&c.p, &c.x, workspace, sizeof workspace, text, sizeof text),
                 "ok") == 0,
          "the right call: %s", text);
    refusals[round].make(&c);
    memset(list_numbers, 0x5a, sizeof list_numbers);
    memset(list_scores, 0x5a, sizeof list_scores);
    CHECK(attn_index_workspace_size(&c.p, &c.x, &bytes) == query && (query == 0) == (bytes != 0),
          "the query");
    CHECK(attn_index(&c.p, &c.x, workspace, sizeof workspace) == refusals[round].status,
          "the status");
    attn_index_check(&c.p, &c.x, workspace, sizeof workspace, text, sizeof text);
    CHECK(strncmp(text, sentence, strlen(sentence)) == 0, "\"%s\" and not \"%s\"", text, sentence);
    CHECK(all_bytes(list_numbers, sizeof list_numbers, 0x5a) &&
              all_bytes(list_scores, sizeof list_scores, 0x5a),
          "something was written");
}

/* What is wrong with the arguments themselves, and calls without rows or keys. */
static void check_edges(int round)
{
    right_call c;
    char text[300];
    size_t bytes = 0;
    (void)round;
    make_right(&c);
    CHECK(attn_index_workspace_size(&c.p, &c.x, NULL) == ATTN_ERR_ARG, "bytes is NULL");
    CHECK(strcmp(attn_index_check(&c.p, NULL, NULL, 0, text, sizeof text), "indexer is NULL") == 0,
          "%s", text);
    CHECK(strcmp(attn_index_check(NULL, &c.x, NULL, 0, text, sizeof text), "params is NULL") == 0,
          "%s", text);
    attn_index_workspace_size(&c.p, &c.x, &bytes);
    CHECK(attn_index(&c.p, &c.x, text, 20) == ATTN_ERR_WORKSPACE, "20 bytes");
    attn_index_check(&c.p, &c.x, NULL, bytes, text, sizeof text);
    CHECK(strstr(text, "attn_index_workspace_size says what is best") != NULL, "%s", text);
    c.p.seq_len_kv = (int64_t)INT32_MAX + 1;
    attn_index_check(&c.p, &c.x, NULL, 0, text, sizeof text);
    CHECK(sizeof(void *) < 8 || strstr(text, "exceeds 2^31 - 1") != NULL, "%s", text);
    c.p.seq_len_kv = 0;
    c.p.k.data = NULL;
    if (run_index(&c.p, &c.x))
        CHECK(all_bytes(list_numbers, sizeof list_numbers, 0xff), "lists without keys");
    c.p.seq_len_q = 0;
    CHECK(attn_index(&c.p, &c.x, NULL, 0) == ATTN_OK, "no rows");
}

/* A parallel_for that fails. */
static void check_failure(int round)
{
    pool workers = pool_of(2, POOL_ASCENDING, 0);
    right_call c;
    static char workspace[1 << 20];
    (void)round;
    make_right(&c);
    workers.fail_at = 0;
    c.p.num_workers = workers.workers;
    c.p.parallel_for = pool_for;
    c.p.parallel_user = &workers;
    CHECK(attn_index(&c.p, &c.x, workspace, sizeof workspace) == ATTN_ERR_CALLBACK, "a failure");
}

/* ---- the group ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(int round);
    int rounds;
} checks[] = {
    { "sort", check_sort, 128 },
    { "untouched", check_untouched, 20 },
    { "ways", check_ways, 80 },
    { "ties", check_ties, 24 },
    { "divided", check_divided, 15 },
    { "steps", check_steps, 3 },
    { "sizes", check_sizes, 40 },
    { "attention", check_attention, 40 },
    { "NaN", check_nan, 8 },
    { "refusals", check_refusals, sizeof refusals / sizeof *refusals },
    { "edges", check_edges, 1 },
    { "failure", check_failure, 1 },
};

TEST_GROUP(index, RUN_FEWER, "attn_index: lists and scores of keys against a full sort")
{
    for (size_t n = 0; n < sizeof checks / sizeof *checks; n++)
        for (int round = 0; round < checks[n].rounds; round++)
            if (begin_case("%s, %d", checks[n].name, round))
                checks[n].run(round);
    CHECK(divided > 0 || !all_cases_run(), "no keys were divided among workers");
}
