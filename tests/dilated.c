/* dilated.c - dilated attention against its definition.
 * SPDX-License-Identifier: MIT
 *
 * Two definitions, both in double. One softmax: the oracle with a bias that holds, for every pair,
 * the log of the number of branches that show the key to the row (of the sum of their ALiBi
 * factors), -inf where none does. And the published one: each branch a softmax of its own, merged by its
 * denominators, or their mean. Here a position takes part in a branch if its remainder by segment
 * and dilation says so: nothing of the lattices of src/dilated/.
 */
#include "../attn.h"
#include "dilated.h"
#include "features.h"
#include "laws.h"
#include "oracle.h"
#include "pool.h"
#include "slices.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 1000, LAWS = 300 };

/* ---- random calls ---------------------------------------------------------------------------- */

static const char *const usable[] = {
    "gqa",      "f16",      "bf16",      "mixed",   "bshd",      "qkv",      "negative", "shared",
    "odd_dims", "kv_len",   "causal",    "window",  "bool",      "bool_inv", "scale",    "softcap",
    "bias_f32", "bias_f16", "bias_bf16", "alibi",   "alibi_bh",  "sinks",    "bits",     "segments",
    "dropout",  "prefix",   "chunked",   "mask_fn", "mask_tile", "score_fn", "kv_begin",
};

static int slot_taken(const int *list, int count, int f)
{
    for (int n = 0; n < count; n++)
        if (strcmp(features[list[n]].slot, features[f].slot) == 0)
            return 1;
    return 0;
}

/* Stored: K and V get another type, so that tensors are of f32, and heads of whole units. */
static int fits_stored(const feature *f)
{
    return strcmp(f->slot, "storage") != 0 && strcmp(f->name, "odd_dims") != 0;
}

/* A sink is of one softmax. Ranks do not have the keys of a prefix, and every column is a row. */
static int fits_call(const char *name, int mean, int square)
{
    return !(mean && strcmp(name, "sinks") == 0) &&
           !(square && (strcmp(name, "prefix") == 0 || strcmp(name, "kv_begin") == 0));
}

static int pick_features(int *list, int most, int mean, int stored, int square)
{
    int count = 0;
    for (int n = 0; n < most; n++) {
        const int f = feature_find(usable[rng_int(0, (int)(sizeof usable / sizeof *usable) - 1)]);
        if (!fits_call(features[f].name, mean, square) || (stored && !fits_stored(&features[f])))
            continue;
        if (!slot_taken(list, count, f))
            list[count++] = f;
    }
    for (int a = 1; a < count; a++) /* in the order of the table */
        for (int b = a; b > 0 && list[b] < list[b - 1]; b--) {
            const int f = list[b];
            list[b] = list[b - 1];
            list[b - 1] = f;
        }
    return count;
}

/* Packed sequences: rows are the last positions of each. */
static void cut_sequences(attn_params *p)
{
    int32_t *q = test_alloc((size_t)(p->batch + 1) * sizeof *q);
    q[0] = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t keys = p->cu_seqlens_kv[b + 1] - p->cu_seqlens_kv[b];
        const int64_t most = keys < p->seq_len_q - q[b] ? keys : p->seq_len_q - q[b];
        q[b + 1] = q[b] + (int32_t)(rng_chance(60) ? most : rng_int(0, most));
    }
    p->cu_seqlens_q = q;
}

static void cut_rows(attn_params *p)
{
    int32_t *rows = test_alloc((size_t)p->batch * sizeof *rows);
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t keys = oracle_keys(p, b);
        const int64_t most = oracle_rows(p, b) < keys ? oracle_rows(p, b) : keys;
        rows[b] = (int32_t)(rng_chance(70) ? most : rng_int(0, most));
    }
    p->q_len = rows;
}

static void random_branch(attn_dilated_branch *branch, int64_t positions, int64_t heads)
{
    static const int64_t dilations[] = { 0, 1, 1, 2, 3, 4, 5, 8, 16, 40 };
    memset(branch, 0, sizeof *branch);
    branch->segment = rng_chance(15) ? 0 : rng_int(1, rng_chance(50) ? positions + 5 : 20);
    branch->dilation = RNG_PICK(dilations);
    branch->rotate = rng_chance(50);
    branch->offset = rng_int(0, branch->dilation > 1 ? branch->dilation - 1 : 0);
    if (rng_chance(30))
        branch->head_begin = rng_int(0, heads - 1);
    if (rng_chance(30))
        branch->head_count = rng_int(1, heads - branch->head_begin);
}

void dilated_branches(dilated_case *c)
{
    /* Only of one branch are scores those of one softmax. */
    c->d.num_branches =
        (int)rng_int(1, c->t.p.score != NULL && rng_chance(50) ? 1 : DILATED_BRANCHES);
    c->d.branches = c->branches;
    for (int n = 0; n < c->d.num_branches; n++)
        random_branch(&c->branches[n], c->t.p.seq_len_kv, c->t.p.num_heads_q);
}

/* square: every position is a row. */
static void make_case(dilated_case *c, int most_features, int64_t most_positions, int stored,
                      int square)
{
    int list[16], count;
    test_shape s;
    memset(c, 0, sizeof *c);
    memset(&s, 0, sizeof s);
    c->d.merge = rng_chance(25) ? ATTN_DILATED_MEAN : ATTN_DILATED_LSE;
    s.batch = rng_int(1, 2);
    s.heads_q = s.heads_kv = rng_int(1, 3);
    if (rng_chance(40))
        s.heads_q *= rng_int(2, 5);
    s.seq_kv = rng_int(1, most_positions);
    s.seq_q = square || rng_chance(50) ? s.seq_kv : rng_int(1, s.seq_kv);
    s.dim = rng_int(1, 20);
    s.dim_v = rng_chance(50) ? 0 : rng_int(1, 20);
    s.factor_q = rng_chance(30) ? 4 : 1;
    s.no_lse = c->d.merge == ATTN_DILATED_MEAN || rng_chance(10);
    s.stats = c->d.merge == ATTN_DILATED_MEAN ? STATS_NEVER : STATS_OFTEN;
    if (stored)
        s = whole_units(s);
    count = pick_features(list, most_features, c->d.merge == ATTN_DILATED_MEAN, stored, square);
    if (!square && rng_chance(20)) {
        s.varlen = 1;
        s.batch = rng_int(1, 3);
        s.seq_q = s.seq_kv;
    }
    features_make(&c->t, s, list, count);
    c->t.p.alignment = 0;
    c->t.p.q_offset = NULL;
    if (c->t.p.cu_seqlens_q != NULL)
        cut_sequences(&c->t.p);
    if (square)
        c->t.p.q_len = c->t.p.kv_len;
    else if (c->t.p.kv_len != NULL || c->t.p.kv_begin != NULL || rng_chance(30))
        cut_rows(&c->t.p);
    c->t.p.softmax1 = c->d.merge == ATTN_DILATED_LSE && c->t.p.sinks == NULL && rng_chance(10);
    features_told(&c->t);
    dilated_branches(c);
}

void dilated_make(dilated_case *c, int most_features, int64_t most_positions)
{
    make_case(c, most_features, most_positions, 0, 0);
}

void dilated_make_square(dilated_case *c, int most_features, int64_t most_positions, int stored)
{
    do
        make_case(c, most_features, most_positions, stored, 1);
    while (c->t.p.seq_len_q != c->t.p.seq_len_kv);
}

/* ---- running --------------------------------------------------------------------------------- */

attn_params dilated_params(const attn_params *p)
{
    attn_params with = test_params(p);
    with.backend = NULL;
    return with;
}

int dilated_run(const attn_params *p, const attn_dilated *d)
{
    attn_params with = dilated_params(p);
    char text[300];
    size_t need = 0;
    attn_status status;
    void *workspace;
    test_reword(&with, NULL);
    status = attn_dilated_workspace_size(&with, d, &need);
    workspace = test_alloc(need);
    if (status == ATTN_OK)
        status = attn_dilated_forward(&with, d, workspace, need);
    return CHECK(status == ATTN_OK, "%s: %s", attn_status_string(status),
                 attn_dilated_check(&with, d, workspace, need, text, sizeof text)) &&
           CHECK(test_margins() == 0, "an array was overrun");
}

static int run_case(dilated_case *c)
{
    if (!dilated_run(&c->t.p, &c->d))
        return 0;
    CHECK(features_bad_pairs() == 0, "%d pairs are not numbered as the caller does",
          features_bad_pairs());
    return CHECK(tensor_unchanged(&c->t.q) && tensor_unchanged(&c->t.k) &&
                     tensor_unchanged(&c->t.v),
                 "an input was changed") &&
           CHECK(tensor_gaps_unchanged(&c->t.o) && tensor_gaps_unchanged(&c->t.stats) &&
                     problem_padding_untouched(&c->t),
                 "an output was written outside its rows");
}

/* ---- the definition -------------------------------------------------------------------------- */

/* The number of position x in its segment among those that take part; -1 if it does not. */
static int64_t number_in(const attn_dilated_branch *b, int64_t h, int64_t x, int64_t *segment)
{
    const int64_t r = b->dilation != 0 ? b->dilation : 1;
    const int64_t place = b->segment != 0 ? x % b->segment : x;
    const int64_t first = (b->offset + (b->rotate ? h : 0)) % r;
    *segment = b->segment != 0 ? x / b->segment : 0;
    return place % r == first ? place / r : -1;
}

static int has_branch(const attn_dilated_branch *b, int64_t h)
{
    return h >= b->head_begin && (b->head_count == 0 || h < b->head_begin + b->head_count);
}

/* Whether a branch shows key j to row i of entry b; then *distance is theirs in it. */
static int sees(const dilated_case *c, const attn_dilated_branch *branch, int64_t b, int64_t h,
                int64_t position, int64_t j, int64_t *distance)
{
    const attn_params *p = &c->t.p;
    int64_t segment_i, segment_j;
    const int64_t i = number_in(branch, h, position, &segment_i);
    const int64_t k = number_in(branch, h, j, &segment_j);
    if (!has_branch(branch, h) || i < 0 || k < 0 || segment_i != segment_j)
        return 0;
    *distance = i - k;
    if (p->causal && k > i && !(p->prefix != NULL && j < p->prefix[b]))
        return 0;
    if (p->window && p->window_left >= 0 && i - k > p->window_left)
        return 0;
    return !(p->window && p->window_right >= 0 && k - i > p->window_right);
}

/* The pairs of row i. */
static double count_row(const dilated_case *c, const attn_dilated_branch *branch, int64_t b,
                        int64_t h, int64_t i)
{
    const attn_params *p = &c->t.p;
    double pairs = 0;
    for (int64_t j = 0; j < p->seq_len_kv; j++) {
        int64_t distance;
        pairs += sees(c, branch, b, h, p->seq_len_kv - p->seq_len_q + i, j, &distance);
    }
    return pairs;
}

double dilated_count(const dilated_case *c)
{
    const attn_params *p = &c->t.p;
    double pairs = 0;
    for (int n = 0; n < c->d.num_branches; n++)
        for (int64_t b = 0; b < p->batch; b++)
            for (int64_t h = 0; h < p->num_heads_q; h++)
                for (int64_t i = 0; i < p->seq_len_q; i++)
                    pairs += count_row(c, &c->branches[n], b, h, i);
    return pairs;
}

static double slope_of(const attn_params *p, int64_t b, int64_t h)
{
    return p->alibi_slopes != NULL ? (double)p->alibi_slopes[b * step_of(p->alibi_stride) + h] : 0;
}

static double bias_of(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (p->bias.data == NULL)
        return 0;
    return oracle_load(p->bias.dtype, p->bias.data,
                       oracle_bias_index(p, b, h, i, oracle_first_key(p, b) + j));
}

/* The log of what all branches together say of a pair. */
static double pair_bias(const dilated_case *c, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_params *p = &c->t.p;
    const int64_t position = oracle_keys(p, b) - oracle_rows(p, b) + i;
    double sum = 0;
    for (int n = 0; n < c->d.num_branches; n++) {
        int64_t distance;
        if (sees(c, &c->branches[n], b, h, position, j, &distance))
            sum += exp(-slope_of(p, b, h) * (double)llabs(distance));
    }
    return log(sum) + bias_of(p, b, h, i, j);
}

int dilated_is_one_softmax(const dilated_case *c)
{
    return c->t.p.score == NULL || c->d.num_branches == 1;
}

attn_params dilated_one_softmax(const dilated_case *c)
{
    attn_params p = c->t.p;
    const int64_t rows = p.seq_len_q, keys = p.seq_len_kv, heads = p.num_heads_q;
    float *bias = test_alloc((size_t)(p.batch * heads * rows * keys) * sizeof *bias);
    for (int64_t b = 0; b < p.batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < oracle_rows(&p, b); i++)
                for (int64_t j = 0; j < oracle_keys(&p, b); j++)
                    bias[((b * heads + h) * rows + i) * keys + oracle_first_key(&p, b) + j] =
                        (float)pair_bias(c, b, h, i, j);
    memset(&p.bias, 0, sizeof p.bias);
    p.bias.data = bias;
    p.bias.stride_kv = 1;
    p.bias.stride_q = (ptrdiff_t)keys;
    p.bias.stride_head = (ptrdiff_t)(rows * keys);
    p.bias.stride_batch = (ptrdiff_t)(heads * rows * keys);
    p.causal = p.window = 0;
    p.prefix = NULL;
    p.alibi_slopes = NULL;
    return p;
}

/* One row by the published definition, o [dim_v] in double. */
typedef struct published {
    const dilated_case *c;
    attn_params plain; /* without what branches count for themselves */
    int64_t b, h, i, dim_v;
    double *o, weight, top; /* sums so far, denominators times 2^-top */
    double most_logit, most_value;
} published;

static double value_at(const published *at, int64_t j, int64_t d)
{
    const attn_params *p = &at->c->t.p;
    const int64_t group = p->num_heads_q / oracle_heads_kv(p);
    return oracle_load(p->v.dtype, p->v.data,
                       oracle_key_offset(p, &p->v, at->dim_v, at->b, at->h / group, j) +
                           (ptrdiff_t)d);
}

/* The logit of a key in a branch, of which the score comes last. */
static double branch_logit(const published *at, int64_t j, int64_t distance)
{
    const attn_params *p = &at->c->t.p;
    const double x = oracle_logit(&at->plain, at->b, at->h, at->i, j, ATTN_LOGITS_BIAS, NULL) -
                     slope_of(p, at->b, at->h) * (double)distance;
    const attn_pair pair = oracle_pair(p, at->b, at->h, at->i, j);
    return p->score != NULL && x > -HUGE_VAL ? (double)p->score(p->callback_user, &pair, (float)x)
                                             : x;
}

/* What dropout makes of a value: 0 or its factor. */
static double kept_factor(const published *at, int64_t j)
{
    const attn_params *p = &at->c->t.p;
    if (p->dropout_p == 0)
        return 1;
    return oracle_kept(p, at->b, at->h, at->i, j) ? 1 / (1 - (double)p->dropout_p) : 0;
}

/* The branch's own softmax into mine[dim_v]; returns its denominator times e^-top, *top. */
static double branch_row(published *at, const attn_dilated_branch *branch, double *mine,
                         double *top)
{
    const attn_params *p = &at->c->t.p;
    const int64_t keys = oracle_keys(p, at->b), position = keys - oracle_rows(p, at->b) + at->i;
    double sum = 0;
    *top = -HUGE_VAL;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t j = 0; j < keys; j++) {
            int64_t distance;
            double x, w, kept;
            if (!sees(at->c, branch, at->b, at->h, position, j, &distance) ||
                !oracle_visible(&at->plain, at->b, at->h, at->i, j))
                continue;
            x = branch_logit(at, j, llabs(distance));
            if (pass == 0) {
                *top = fmax(*top, x);
                continue;
            }
            w = x > -HUGE_VAL ? exp(x - *top) : 0;
            sum += w;
            kept = kept_factor(at, j);
            at->most_logit = fmax(at->most_logit, w > 0 ? fabs(x) : 0);
            for (int64_t d = 0; d < at->dim_v; d++) {
                mine[d] += w > 0 && kept > 0 ? w * kept * value_at(at, j, d) : 0;
                at->most_value = fmax(at->most_value, kept * fabs(value_at(at, j, d)));
            }
        }
    for (int64_t d = 0; d < at->dim_v; d++)
        mine[d] = sum > 0 ? mine[d] / sum : 0;
    return sum;
}

/* Adds a part of weight w e^top. */
static void weigh(published *at, const double *mine, double w, double top)
{
    const double most = fmax(at->top, top);
    const double old = at->weight > 0 ? exp(at->top - most) : 0, new = w > 0 ? exp(top - most) : 0;
    for (int64_t d = 0; d < at->dim_v; d++)
        at->o[d] = at->o[d] * old + (mine != NULL ? mine[d] * w * new : 0);
    at->weight = at->weight * old + w * new;
    at->top = most;
}

static void published_row(published *at)
{
    const attn_dilated *d = &at->c->d;
    const int mark = test_mark();
    double *mine = test_alloc_at((size_t)at->dim_v * sizeof *mine, PLACE_HEAP);
    const double sink = oracle_sink(&at->c->t.p, at->h);
    int count = 0;
    memset(at->o, 0, (size_t)at->dim_v * sizeof *at->o);
    at->weight = 0, at->top = -HUGE_VAL, at->most_logit = at->most_value = 0;
    for (int n = 0; n < d->num_branches; n++) {
        double top, sum;
        if (!has_branch(&d->branches[n], at->h))
            continue;
        memset(mine, 0, (size_t)at->dim_v * sizeof *mine);
        sum = branch_row(at, &d->branches[n], mine, &top);
        if (d->merge == ATTN_DILATED_MEAN)
            weigh(at, mine, 1, 0);
        else if (sum > 0)
            weigh(at, mine, sum, top);
        count++;
    }
    if (d->merge == ATTN_DILATED_LSE && sink > -HUGE_VAL)
        weigh(at, NULL, 1, sink);
    for (int64_t x = 0; x < at->dim_v; x++)
        at->o[x] = at->weight > 0 ? at->o[x] / at->weight : 0;
    test_release_to(mark);
}

/* The worst difference of o, in units of what rounding may make of it. */
static double published_units(published *at)
{
    const attn_params *p = &at->c->t.p;
    const attn_tensor o = { p->o.dtype, p->o.stride_batch, p->o.stride_head, p->o.stride_seq,
                            p->o.data };
    const ptrdiff_t place = oracle_row_offset(p, &o, at->dim_v, at->b, at->h, at->i);
    double worst = 0;
    published_row(at);
    for (int64_t d = 0; d < at->dim_v; d++) {
        const double allowed = 1e-6 * (4 + at->most_logit) * at->most_value +
                               oracle_storage_error(o.dtype, fabs(at->o[d]) * 1.01);
        const double value = oracle_load(o.dtype, o.data, place + (ptrdiff_t)d);
        worst = fmax(worst, tolerance_units(value, at->o[d], allowed));
        if (!is_stored_form(o.dtype, o.data, place + (ptrdiff_t)d))
            worst = HUGE_VAL;
    }
    return worst;
}

static void check_published(const dilated_case *c)
{
    published at;
    double worst = 0;
    const int mark = test_mark();
    memset(&at, 0, sizeof at);
    at.c = c;
    at.plain = c->t.p;
    at.plain.causal = at.plain.window = 0;
    at.plain.alibi_slopes = NULL;
    at.plain.score = NULL;
    at.dim_v = oracle_dim_v(&c->t.p);
    at.o = test_alloc_at((size_t)at.dim_v * sizeof *at.o, PLACE_HEAP);
    for (at.b = 0; at.b < c->t.p.batch; at.b++)
        for (at.h = 0; at.h < c->t.p.num_heads_q; at.h++)
            for (at.i = 0; at.i < oracle_rows(&c->t.p, at.b); at.i++)
                worst = fmax(worst, published_units(&at));
    test_release_to(mark);
    CHECK(worst <= 1, "%.3g times what may differ from the published definition", worst);
}

void dilated_check(const dilated_case *c)
{
    if (c->d.merge == ATTN_DILATED_LSE && dilated_is_one_softmax(c)) {
        const attn_params once = dilated_one_softmax(c);
        compare_copies_with_oracle(&once, c->d.num_branches);
    }
    check_published(c);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The way to compute, of which no bit depends. */
static void random_way(dilated_case *c)
{
    static const int64_t tiles[] = { 0, 0, 16, 32, 64, 256 };
    c->t.p.tile_keys = (int)RNG_PICK(tiles);
    c->d.block_rows = rng_chance(30) ? 0 : rng_int(1, 60);
}

/* This variant has no statistics. */
static void gather(dilated_case *c)
{
    c->d.variant = ATTN_DILATED_GATHERED;
    memset(&c->t.p.stats, 0, sizeof c->t.p.stats);
}

static void random_index(dilated_case *c)
{
    const int64_t positions = c->t.p.seq_len_kv + (rng_chance(50) ? rng_int(0, 40) : 0);
    const int64_t entries = attn_dilated_index_size(&c->d, positions);
    int32_t *index = test_alloc((size_t)entries * sizeof *index);
    CHECK(attn_dilated_index(&c->d, positions, index, entries) == ATTN_OK, "attn_dilated_index");
    c->d.index = index;
    c->d.index_positions = positions;
}

static void compare_definitions(int most_features, int64_t most_positions)
{
    dilated_case c, other;
    dilated_make(&c, most_features, most_positions);
    random_way(&c);
    if (!run_case(&c))
        return;
    dilated_check(&c);
    other = c, other.d.branches = other.branches;
    twin(&c.t, &other.t);
    gather(&other);
    if (rng_chance(50))
        random_index(&other);
    if (!run_case(&other))
        return;
    if (c.d.merge == ATTN_DILATED_MEAN)
        CHECK(problem_same_bits(&c.t, &other.t), "a mean, strided and gathered");
    else
        dilated_check(&other);
}

static void run_definitions(void)
{
    for (int n = 0; n < ROUNDS; n++)
        if (begin_case("definition, %d", n))
            compare_definitions(n % 4 == 0 ? 0 : 6, n % 50 == 49 ? 300 : 70);
}

FUZZ_HARNESS(dilated, "dilated attention against two definitions, strided and gathered")
{
    (void)bytes;
    (void)count;
    compare_definitions((int)rng_int(0, 6), 70);
}

/* Branches and segments that are the whole sequence: attn_forward's bits. */
static void run_whole(void)
{
    for (int n = 0; n < LAWS; n++) {
        dilated_case c, once;
        if (!begin_case("one branch of all positions, %d", n))
            continue;
        dilated_make(&c, 6, 200);
        random_way(&c);
        c.d.merge = ATTN_DILATED_LSE;
        c.d.num_branches = 1;
        memset(&c.branches[0], 0, sizeof c.branches[0]);
        once = c, once.d.branches = once.branches;
        twin(&c.t, &once.t);
        if (run_case(&c) && problem_run(&once.t) && T.impl != ATTN_IMPL_NAIVE)
            CHECK(problem_same_bits(&c.t, &once.t), "not the bits of attn_forward");
    }
}

/* The call that writes to `out`, with the keys and values of another. */
static attn_params stored_like(const attn_params *p, const attn_params *out)
{
    attn_params with = *p;
    with.o = out->o;
    with.lse = out->lse;
    with.stats = out->stats;
    return with;
}

/* K and V in types that only they have: the bits of their values in f32. Scores in whole numbers: those of
 * the definitions, and for one branch of all positions the bits of attn_forward. */
static void compare_stored(int round)
{
    dilated_case c, other;
    make_case(&c, 6, 120, 1, 0);
    random_way(&c);
    if (round % 3 == 1) {
        c.d.merge = ATTN_DILATED_LSE;
        c.d.num_branches = 1;
        memset(&c.branches[0], 0, sizeof c.branches[0]);
    }
    if (round % 3 == 2)
        gather(&c);
    other = c, other.d.branches = other.branches;
    twin(&c.t, &other.t);
    quantise_for_levels(&c.t);
    other.t.p.rotated = c.t.p.rotated;
    if (round % 3 == 1)
        other.t.p = stored_like(&c.t.p, &other.t.p);
    else if (c.t.p.integer)
        c.t.p.rotated = 0; /* which the oracle does not know */
    if (!run_case(&c))
        return;
    if (round % 3 != 1 && c.t.p.integer)
        dilated_check(&c);
    else if (round % 3 == 1 ? problem_run(&other.t) : run_case(&other))
        CHECK(problem_same_bits(&c.t, &other.t), "other bits");
}

static void run_stored(void)
{
    if (T.impl == ATTN_IMPL_NAIVE || T.storage != ATTN_F32)
        return;
    for (int n = 0; n < LAWS; n++)
        if (begin_case("K and V in other types, %d", n))
            compare_stored(n);
}

/* ---- the order of docs/canon.md: root states of the branches, merged in list order ----------- */

/* The states of one branch, segment by segment on copies, go where the rows of the sequence are. */
static void branch_states(const test_problem *t, const attn_dilated_branch *branch, attn_state *to)
{
    const int64_t keys = t->p.seq_len_kv, dim = t->p.head_dim;
    const int64_t w = branch->segment != 0 ? branch->segment : keys;
    const int64_t r = branch->dilation != 0 ? branch->dilation : 1;
    float *copies[3], *m = test_alloc((size_t)keys * 4), *l = test_alloc((size_t)keys * 4);
    float *o = test_alloc((size_t)(keys * dim) * 4);
    for (int x = 0; x < 3; x++)
        copies[x] = test_alloc((size_t)(keys * dim) * sizeof(float));
    for (int64_t begin = 0; begin < keys; begin += w) {
        const int64_t end = begin + w < keys ? begin + w : keys;
        attn_params p = t->p;
        int64_t n = 0;
        for (int64_t at = begin + branch->offset; at < end; at += r, n++)
            for (int64_t d = 0; d < dim; d++) {
                copies[0][n * dim + d] = tensor_get(&t->q, 0, 0, at, d);
                copies[1][n * dim + d] = tensor_get(&t->k, 0, 0, at, d);
                copies[2][n * dim + d] = tensor_get(&t->v, 0, 0, at, d);
            }
        p.seq_len_q = p.seq_len_kv = n;
        p.q.dtype = p.k.dtype = p.v.dtype = ATTN_F32; /* what T.storage holds, exactly */
        p.q.data = copies[0], p.k.data = copies[1], p.v.data = copies[2];
        p.o.data = p.lse.data = p.stats.data = NULL;
        p.sinks = NULL;
        p.partial = 1;
        p.state.m = m, p.state.l = l, p.state.o = o;
        CHECK(test_run(&p) == ATTN_OK, "a segment");
        for (int64_t i = 0; i < n; i++) {
            const int64_t row = begin + branch->offset + i * r;
            to->m[row] = m[i], to->l[row] = l[i];
            memcpy(to->o + row * dim, o + i * dim, (size_t)dim * sizeof *o);
        }
    }
}

static attn_state empty_states(int64_t rows, int64_t dim)
{
    attn_state s;
    s.num_rows = rows;
    s.head_dim_v = dim;
    s.m = test_alloc((size_t)rows * sizeof(float));
    s.l = test_alloc((size_t)rows * sizeof(float));
    s.o = test_alloc((size_t)(rows * dim) * sizeof(float));
    memset(s.l, 0, (size_t)rows * sizeof(float));
    memset(s.o, 0, (size_t)(rows * dim) * sizeof(float));
    for (int64_t i = 0; i < rows; i++)
        s.m[i] = -HUGE_VALF;
    return s;
}

static void run_order(void)
{
    for (int n = 0; n < 100 && T.impl != ATTN_IMPL_NAIVE; n++) {
        dilated_case c;
        test_problem once;
        test_shape s;
        attn_state sum;
        float sink = 1;
        if (!begin_case("order, %d", n))
            continue;
        memset(&c, 0, sizeof c);
        memset(&s, 0, sizeof s);
        s.batch = s.heads_q = s.heads_kv = 1;
        s.seq_q = s.seq_kv = rng_int(1, n < 90 ? 150 : 2500);
        s.dim = rng_int(1, 8);
        s.factor_q = 4;
        problem_make(&c.t, &s);
        c.t.p.causal = rng_chance(50);
        c.t.p.sinks = rng_chance(50) ? &sink : NULL;
        twin(&c.t, &once);
        dilated_branches(&c);
        sum = empty_states(s.seq_q, s.dim);
        for (int b = 0; b < c.d.num_branches; b++) {
            attn_state part = empty_states(s.seq_q, s.dim);
            branch_states(&c.t, &c.branches[b], &part);
            attn_state_merge(&sum, &part, &sum);
        }
        CHECK(attn_state_finish(&once.p, &sum) == ATTN_OK, "attn_state_finish");
        if (run_case(&c))
            CHECK(problem_same_bits(&c.t, &once), "not the order of docs/canon.md");
    }
}

/* ---- laws ------------------------------------------------------------------------------------ */

/* Rows of chunks of a prompt, of one token at last, are rows of one call, bit for bit. */
static void run_chunks(void)
{
    for (int n = 0; n < LAWS; n++) {
        dilated_case c, parts;
        int64_t at = 0;
        if (!begin_case("chunks, %d", n))
            continue;
        do
            dilated_make(&c, 5, 120);
        while (c.t.p.cu_seqlens_q != NULL || c.t.p.kv_len != NULL || c.t.p.kv_begin != NULL ||
               c.t.p.q_len != NULL || c.t.p.score != NULL ||
               c.t.p.bit_mask.data != NULL); /* which slices cannot move */
        random_way(&c);
        parts = c, parts.d.branches = parts.branches;
        twin(&c.t, &parts.t);
        if (!run_case(&c))
            continue;
        while (at < c.t.p.seq_len_q) {
            const int64_t left = c.t.p.seq_len_q - at;
            const int64_t count = rng_chance(30) ? 1 : rng_int(1, left);
            attn_params p = parts.t.p;
            int32_t *keys = test_alloc((size_t)p.batch * sizeof *keys);
            /* without a causal mask the rows need all keys: only the last ones can be a call */
            const int prefill = p.causal && p.prefix == NULL;
            const int64_t end = prefill ? at + count : c.t.p.seq_len_q;
            for (int64_t b = 0; b < p.batch; b++)
                keys[b] = (int32_t)(p.seq_len_kv - p.seq_len_q + end);
            slice_rows(&p, &parts.t, at, end - at);
            p.alignment = 0;
            p.q_offset = NULL;
            p.kv_len = keys;
            if (!dilated_run(&p, &c.d))
                break;
            at += count;
        }
        CHECK(problem_same_bits(&c.t, &parts.t), "rows of chunks are not those of one call");
    }
}

static void run_threads(void)
{
    for (int n = 0; n < LAWS; n++) {
        dilated_case c, other;
        pool threads = pool_of((int)rng_int(2, 5), (int)rng_int(0, POOL_ORDERS - 1), n % 4 == 0);
        if (!begin_case("threads, %d", n))
            continue;
        dilated_make(&c, 4, 120);
        random_way(&c);
        other = c, other.d.branches = other.branches;
        twin(&c.t, &other.t);
        other.t.p.num_workers = threads.workers;
        other.t.p.parallel_for = pool_for;
        other.t.p.parallel_user = &threads;
        random_way(&other);
        if (n % 5 == 0)
            gather(&c), gather(&other);
        if (run_case(&c) && run_case(&other))
            CHECK(problem_same_bits(&c.t, &other.t) && threads.wrong == 0, "other bits");
    }
}

/* Less than asked for: fewer workers, to the last byte that one needs. */
static void run_small(void)
{
    for (int n = 0; n < 40; n++) {
        dilated_case c, other;
        pool workers = pool_of(4, POOL_SHUFFLED, 0);
        attn_params p;
        size_t most = 0, least = 0;
        char text[200];
        if (!begin_case("workspace, %d", n))
            continue;
        dilated_make(&c, 3, 120);
        other = c, other.d.branches = other.branches;
        twin(&c.t, &other.t);
        if (n % 2)
            gather(&c), gather(&other);
        p = dilated_params(&other.t.p);
        p.parallel_for = pool_for;
        p.parallel_user = &workers;
        p.num_workers = 4;
        if (!run_case(&c) || attn_dilated_workspace_size(&p, &c.d, &most) != ATTN_OK)
            continue;
        attn_dilated_check(&p, &c.d, text, 0, text, sizeof text);
        if (strncmp(text, "workspace is NULL or empty and must have at least ", 50) == 0)
            least = (size_t)strtoull(text + 50, NULL, 10);
        CHECK(least > 0 && least <= most, "%s", text);
        for (size_t need = least; need <= most; need += (most - least) / 3 + 1)
            CHECK(attn_dilated_forward(&p, &c.d, test_alloc(need), need) == ATTN_OK &&
                      problem_same_bits(&c.t, &other.t),
                  "%zu of %zu bytes", need, most);
        CHECK(attn_dilated_forward(&p, &c.d, test_alloc(least - 1), least - 1) ==
                  ATTN_ERR_WORKSPACE,
              "a byte less than the least");
    }
}

TEST_GROUP(dilated, RUN_ONCE, "dilated attention and its gradients against two definitions")
{
    run_definitions();
    run_whole();
    run_order();
    run_chunks();
    run_threads();
    run_small();
    run_stored();
    dilated_gradients();
    dilated_errors();
}
