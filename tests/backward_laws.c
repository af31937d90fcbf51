/* backward_laws.c - gradients: what must be equal bit for bit.
 * SPDX-License-Identifier: MIT
 *
 * Every law makes a call with random masks and modifiers and compares its gradients with those of
 * another way to compute, or to say, the same.
 */
#include "backward.h"
#include "features.h"
#include "laws.h"
#include "oracle.h"
#include "pool.h"
#include "slices.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- backgrounds ----------------------------------------------------------------------------- */

/* A call of this shape with feature `first` (NULL = none) and up to four more, the forward call
 * done. */
static int make_shaped(gradients_case *s, test_shape shape, const char *first,
                       const char *const *banned)
{
    int list[5], count = 0;
    if (first != NULL)
        list[count++] = feature_find(first);
    count = gradients_add(list, count, 4, banned);
    gradients_make(s, shape, list, count);
    return gradients_forward(s);
}

static int make_call(gradients_case *s, const char *first, const char *const *banned)
{
    return make_shaped(s, gradients_shape(1), first, banned);
}

/* More than 1024 rows, keys or (once, in a window) both: chunks are added. */
static int make_chunks(gradients_case *s, int round)
{
    static const char *const banned[] = { "long", "dims", "tree", "mask_fn", NULL };
    int list[3];
    test_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.batch = 1;
    shape.heads_q = shape.heads_kv = 1;
    shape.seq_q = round != 2 && round % 2 == 0 ? rng_int(1, 12) : rng_int(1025, 1030);
    shape.seq_kv = round % 2 == 1 ? rng_int(1, 12) : rng_int(1025, 1030);
    if (round > 2 && rng_chance(50))
        *(round % 2 == 0 ? &shape.seq_kv : &shape.seq_q) = rng_int(2000, 3100);
    shape.dim = rng_int(1, 3);
    shape.dim_v = rng_int(1, 3);
    gradients_make(s, shape, list, gradients_add(list, 0, 3, banned));
    if (round == 2) {
        s->t.p.window = ATTN_WINDOW;
        s->t.p.window_left = s->t.p.window_right = rng_int(0, 100);
    }
    return gradients_forward(s);
}

/* Runs both and compares. */
static void same(gradients_case *a, gradients_case *b, const char *what)
{
    if (gradients_run(a) && gradients_run(b))
        gradients_same(a, b, what);
}

/* ---- ways to compute ------------------------------------------------------------------------- */

static void law_ways(int round)
{
    static const int64_t tiles[] = { 16, 32, 64, 128, 256 };
    gradients_case a, b;
    if (!(round % 4 == 0 ? make_chunks(&a, round / 4) : make_call(&a, NULL, NULL)))
        return;
    a.g.gemms = 5;
    if (!gradients_run(&a))
        return;
    for (int n = 0; n < 4; n++) {
        gradients_twin(&a, &b);
        b.g.gemms = n == 1 ? 5 : 7;
        b.t.p.tile_keys = n == 0 ? 0 : (int)RNG_PICK(tiles);
        b.t.p.force_redo = n == 2;
        if (n == 3 ? gradients_run_least(&b) : gradients_run(&b))
            gradients_same(&a, &b,
                           n == 0   ? "gemms 5 and 7"
                           : n == 1 ? "tile_keys"
                           : n == 2 ? "redo forced"
                                    : "the least workspace");
    }
}

/* The set under test, and the portable one. */
static void law_kernels(int round)
{
    gradients_case a, b;
    if (!(round % 5 == 0 ? make_chunks(&a, round / 5) : make_call(&a, NULL, NULL)))
        return;
    random_way(&a);
    gradients_twin(&a, &b);
    b.t.p.kernels = attn_kernels_find("portable");
    same(&a, &b, "portable kernels");
}

static void use_pool(attn_params *p, pool *workers)
{
    p->num_workers = workers->workers;
    p->parallel_for = pool_for;
    p->parallel_user = workers;
}

/* Loops that a pool ran: a single item needs none. */
static int pools_used;

/* Any number of workers in any order; the naive way, too. */
static void law_workers(int round)
{
    static const int counts[] = { 1, 2, 3, 8 };
    gradients_case a, b;
    if (!(round % 4 == 0 ? make_chunks(&a, round / 4) : make_call(&a, NULL, NULL)))
        return;
    a.t.p.impl = round % 5 == 4 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    a.t.p.num_workers = 1;
    if (!gradients_run(&a))
        return;
    for (int n = 0; n < 4; n++) {
        pool workers = pool_of(counts[n], (int)rng_int(0, POOL_ORDERS - 1), n == round % 4);
        const int least = rng_chance(25); /* for one worker */
        gradients_twin(&a, &b);
        if (a.t.p.impl == ATTN_IMPL_TILED) /* sums of the naive way follow its tiles */
            random_way(&b);
        use_pool(&b.t.p, &workers);
        if (least ? gradients_run_least(&b) : gradients_run(&b))
            gradients_same(&a, &b, "workers");
        CHECK(workers.wrong == 0, "an index did not run once");
        pools_used += workers.loops;
    }
}

/* Columns of the bias divided among workers, the last first, with padding on the left. */
static void law_columns(int round)
{
    static const char *const banned[] = { "varlen", "kv_begin", "long", "dims", NULL };
    gradients_case a, b;
    test_shape shape;
    pool workers = pool_of(3, POOL_DESCENDING, 0);
    int32_t begin[2];
    memset(&shape, 0, sizeof shape);
    shape.batch = 2;
    shape.heads_q = shape.heads_kv = 1;
    shape.seq_q = rng_int(1, 9);
    shape.seq_kv = rng_int(100, 300);
    shape.dim = rng_int(1, 4);
    if (!make_shaped(&a, shape, round % 2 == 0 ? "bias_f32" : "bias_f16", banned))
        return;
    for (int n = 0; n < 2; n++)
        begin[n] = (int32_t)rng_int(0, oracle_keys(&a.t.p, n));
    if (a.t.p.kv_len == NULL && a.t.p.prefix == NULL && a.t.p.tree_parents == NULL)
        a.t.p.kv_begin = begin; /* what these arrays hold must stay right */
    if (!gradients_forward(&a))
        return;
    a.g.gemms = 5;
    gradients_twin(&a, &b);
    b.t.p.tile_keys = 16;
    use_pool(&b.t.p, &workers);
    same(&a, &b, "columns of the bias");
}

/* ---- what is asked for ----------------------------------------------------------------------- */

/* Some outputs alone have the bits that they have among all. */
static void law_some_outputs(int round)
{
    gradients_case a, b;
    if (!make_call(&a, round % 2 == 0 ? "bias_f32" : NULL, NULL))
        return;
    random_way(&a);
    a.t.p.impl = round % 4 == 3 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    if (!gradients_run(&a))
        return;
    for (int n = 0; n < 6; n++) {
        gradients_twin(&a, &b);
        b.g.gemms = (int[]){ 0, 5, 7 }[rng_int(0, 2)];
        b.g.dq.data = n == ORACLE_DQ || rng_chance(20) ? b.g.dq.data : NULL;
        b.g.dk.data = n == ORACLE_DK || rng_chance(20) ? b.g.dk.data : NULL;
        b.g.dv.data = n == ORACLE_DV || rng_chance(20) ? b.g.dv.data : NULL;
        b.g.dbias.data = n == ORACLE_DBIAS || rng_chance(20) ? b.g.dbias.data : NULL;
        b.g.dsinks = n == ORACLE_DSINKS || rng_chance(20) ? b.g.dsinks : NULL;
        b.g.dslopes = n == ORACLE_DSLOPES || rng_chance(20) ? b.g.dslopes : NULL;
        if ((b.g.dq.data || b.g.dk.data || b.g.dv.data || b.g.dbias.data || b.g.dsinks ||
             b.g.dslopes) &&
            gradients_run(&b))
            gradients_same(&a, &b, "some outputs alone");
    }
}

/* An output of 16 bits is that of f32, rounded. */
static void law_output_types(int round)
{
    gradients_case a, b;
    oracle_gradient size[ORACLE_GRADIENTS];
    int64_t wrong = 0;
    if (!make_call(&a, NULL, NULL))
        return;
    a.g.dq.dtype = a.g.dk.dtype = a.g.dv.dtype = ATTN_F32;
    gradients_new_outputs(&a, 0);
    gradients_twin(&a, &b);
    b.g.dq.dtype = b.g.dk.dtype = b.g.dv.dtype = round % 2 == 0 ? ATTN_F16 : ATTN_BF16;
    gradients_new_outputs(&b, 0);
    if (!gradients_run(&a) || !gradients_run(&b))
        return;
    oracle_gradient_sizes(&a.t.p, size);
    for (int which = ORACLE_DQ; which <= ORACLE_DV; which++) {
        const int64_t *n = size[which].size;
        for (int64_t k = 0; k < n[0] * n[1] * n[2] * n[3]; k++) {
            const int64_t at[4] = { k / n[3] / n[2] / n[1], k / n[3] / n[2] % n[1], k / n[3] % n[2],
                                    k % n[3] };
            float x, y;
            uint16_t stored;
            if (!gradients_get(&a, which, at, &x) || !gradients_get(&b, which, at, &y))
                continue;
            dtype_store(b.g.dq.dtype, &stored, x);
            x = dtype_load(b.g.dq.dtype, &stored);
            wrong += float_bits(x == 0 ? 0.0f : x) != float_bits(y);
        }
    }
    CHECK(wrong == 0, "%lld elements are not those of f32, rounded", (long long)wrong);
}

/* Logits that the forward call was asked for are none of the backward call's business. */
static void law_logits_ignored(int round)
{
    gradients_case a, b;
    float *data;
    size_t count, dirty = 0;
    if (!make_call(&a, NULL, NULL))
        return;
    a.t.p.impl = round % 2 == 1 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    gradients_twin(&a, &b);
    count = (size_t)(a.t.p.batch * a.t.p.num_heads_q * a.t.p.seq_len_q * a.t.p.seq_len_kv);
    data = test_alloc(count * sizeof *data);
    b.t.p.logits.data = data;
    b.t.p.logits.stage = ATTN_LOGITS_SOFTMAX;
    same(&a, &b, "p.logits");
    for (size_t n = 0; n < count; n++)
        dirty += float_bits(data[n]) != 0xffffffffu;
    CHECK(dirty == 0, "%lu logits were written", (unsigned long)dirty);
}

/* ---- inputs said in another way -------------------------------------------------------------- */

static void as_f32(test_tensor *t, attn_tensor *a)
{
    test_tensor copy;
    tensor_make(&copy, ATTN_F32, (int)rng_int(0, LAYOUT_NEGATIVE), t->batch, t->heads, t->seq,
                t->dim);
    copy_elements(t, &copy, 1);
    *t = copy;
    *a = tensor_input(&copy);
}

/* All that is read as f32 and in other layouts, with the same values. */
static void law_inputs(int round)
{
    static const char *const banned[] = { "rows", "varlen", NULL };
    gradients_case a, b;
    attn_tensor o = { 0 };
    if (!make_call(&a, (const char *const[]){ "f16", "bf16", "mixed", "shared" }[round % 4],
                   banned))
        return;
    random_way(&a);
    gradients_twin(&a, &b);
    as_f32(&b.t.q, &b.t.p.q);
    as_f32(&b.t.k, &b.t.p.k);
    as_f32(&b.t.v, &b.t.p.v);
    as_f32(&b.t.o, &o);
    b.t.p.o = tensor_output(&b.t.o);
    as_f32(&b.dout, &b.g.dout);
    same(&a, &b, "storage types and layouts of inputs");
}

static const uint8_t *shown_pairs;
static const attn_params *shown_params;

static int is_shown(void *user, const attn_pair *at)
{
    const attn_params *p = shown_params;
    const int64_t column = at->j + (p->kv_begin != NULL ? p->kv_begin[at->batch] : 0);
    (void)user;
    return shown_pairs[((at->batch * p->num_heads_q + at->head) * p->seq_len_q + at->i) *
                           p->seq_len_kv +
                       column];
}

static void as_callback(attn_params *p, const uint8_t *shown)
{
    shown_pairs = shown;
    p->mask = is_shown;
}

static void law_masks(int round)
{
    static const char *const masks[] = { "causal", "causal_top", "causal_off", "prefix",
                                         "window", "chunked",    "segments",   "tree",
                                         "bool",   "bool_inv",   "bits",       "bitmap",
                                         "csr",    "mask_fn",    "mask_tile" };
    static const char *const banned[] = { "bias", "kv_begin", NULL };
    static void (*const ways[])(attn_params *, const uint8_t *) = { as_bool, as_bits, as_bias,
                                                                    as_bitmap, as_callback };
    gradients_case a, b;
    const uint8_t *shown;
    if (!make_call(&a, masks[round % (int)(sizeof masks / sizeof *masks)], banned))
        return;
    random_way(&a);
    a.t.p.impl = rng_chance(20) ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    gradients_twin(&a, &b);
    shown = all_pairs(&a.t.p);
    clear_masks(&b.t.p);
    shown_params = &a.t.p;
    ways[(round + round / 15) % 5](&b.t.p, shown);
    same(&a, &b, "a mask said in another way");
}

/* Terms and bounds that change nothing. */
static void law_neutral(int round)
{
    static const char *const banned[] = { "alibi", "sinks", "softmax1", "bias", "window", NULL };
    static float zeros[64], minus_infinity[64];
    gradients_case a, b;
    if (!make_call(&a, NULL, banned))
        return;
    memset(zeros, 0, sizeof zeros);
    for (int h = 0; h < 64; h++)
        minus_infinity[h] = -HUGE_VALF;
    random_way(&a);
    gradients_twin(&a, &b);
    b.t.p.window = ATTN_WINDOW;
    b.t.p.window_left = round % 2 == 0 ? -1 : INT64_MAX / 4;
    b.t.p.window_right = round % 2 == 0 ? -1 : INT64_MAX / 4;
    if (round % 3 == 0)
        b.t.p.alibi_slopes = zeros, b.t.p.alibi_stride = ATTN_STRIDE_BROADCAST;
    if (round % 3 == 1)
        b.t.p.bias = one_element(zeros);
    if (round % 5 < 2)
        b.t.p.sinks = minus_infinity;
    if (a.g.dlse.data == NULL && round % 4 < 2) {
        tensor_fill(&b.dlse, 0.0f);
        b.g.dlse = tensor_input(&b.dlse);
    }
    same(&a, &b, "neutral terms");
}

/* Both stats and lse are there: nobody reads the lse. */
static void law_stats(int round)
{
    gradients_case a, b;
    if (!(round % 4 == 0 ? make_chunks(&a, round / 4) : make_call(&a, NULL, NULL)))
        return;
    a.t.p.stats = tensor_output(&a.t.stats);
    memset(&a.t.p.lse, 0, sizeof a.t.p.lse);
    if (!gradients_forward(&a))
        return;
    random_way(&a);
    a.t.p.impl = round % 5 == 4 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    gradients_twin(&a, &b);
    gradients_own_inputs(&b);
    tensor_fill(&b.t.lse, NAN);
    b.t.p.lse = tensor_output(&b.t.lse);
    same(&a, &b, "an lse beside stats");
}

/* Gives the call statistics (m, 0) in every row. */
static void set_sums_to_zero(gradients_case *s, float m)
{
    tensor_fill(&s->t.stats, 0.0f);
    for (int64_t b = 0; b < s->t.stats.batch; b++)
        for (int64_t h = 0; h < s->t.stats.heads; h++)
            for (int64_t i = 0; i < s->t.stats.seq; i++)
                tensor_set(&s->t.stats, b, h, i, 0, m);
    tensor_remember(&s->t.stats);
    s->t.p.stats = tensor_output(&s->t.stats);
}

/* How many elements of the gradient `which` are wrong. `right` is a case with right gradients. */
typedef struct wrong_count {
    const gradients_case *s, *right;
    int which;
    int64_t wrong;
} wrong_count;

static void count_all(wrong_count *c, void (*count)(void *user, const int64_t at[4]))
{
    oracle_gradient size[ORACLE_GRADIENTS];
    oracle_gradient_sizes(&c->s->t.p, size);
    for (c->which = 0; c->which < ORACLE_GRADIENTS; c->which++)
        gradients_each(&size[c->which], count, c);
}

static void count_nonzero(void *user, const int64_t at[4])
{
    wrong_count *c = user;
    float x = 0;
    c->wrong += gradients_get(c->s, c->which, at, &x) && float_bits(x) != 0;
}

/* Statistics that say no key was alive: r is +0, and so is all that comes of it. */
/* Keys in pages, in a ring or both have the gradients that they have in one array. */
static void law_caches(int round)
{
    static const char *const banned[] = { "rows", "varlen", NULL };
    static const int64_t sizes[] = { 1, 5, 16, 48 };
    gradients_case a, b;
    if (!(round % 4 == 0 ? make_chunks(&a, round / 4) : make_call(&a, NULL, banned)) ||
        a.t.p.cu_seqlens_kv != NULL || a.t.p.kv_rows.ring > 0 || a.t.p.kv_rows.page_size > 0)
        return;
    gradients_twin(&a, &b);
    problem_scatter(&b.t, round % 3 == 0 ? 0 : RNG_PICK(sizes), round % 3 != 1);
    random_way(&b);
    same(&a, &b, "keys in a cache");
}

static void law_empty_stats(int round)
{
    gradients_case s;
    wrong_count c = { &s, NULL, 0, 0 };
    if (!make_call(&s, round % 2 == 0 ? "sinks" : NULL, NULL))
        return;
    set_sums_to_zero(&s, -HUGE_VALF);
    random_way(&s);
    if (!gradients_run(&s))
        return;
    count_all(&c, count_nonzero);
    CHECK(c.wrong == 0, "%lld elements are not +0", (long long)c.wrong);
}

static void count_hidden(void *user, const int64_t at[4])
{
    wrong_count *c = user;
    float x = 0, right = 0;
    c->wrong += gradients_get(c->right, c->which, at, &right) && right != 0 &&
                gradients_get(c->s, c->which, at, &x) && isfinite(x);
}

/* Statistics that no forward call wrote, such as an array of zeros: no gradient may look right. */
static void law_unwritten_stats(int round)
{
    gradients_case a, b;
    wrong_count c = { &b, &a, 0, 0 };
    if (!make_call(&a, round % 2 == 0 ? "sinks" : NULL, NULL) || !gradients_forward(&a))
        return;
    random_way(&a);
    gradients_twin(&a, &b);
    gradients_own_inputs(&b);
    set_sums_to_zero(&b, round % 4 < 2 ? 0.0f : 1.0f);
    if (!gradients_run(&a) || !gradients_run(&b))
        return;
    count_all(&c, count_hidden);
    CHECK(c.wrong == 0, "%lld elements look like gradients", (long long)c.wrong);
}

/* A sequence that starts at a chunk number beyond its own chunks is divided in the same way. */
static void law_key_base(int round)
{
    static const char *const banned[] = { "key_base", "chunked", "mask_fn",
                                          "score_fn", "dropout", NULL };
    gradients_case a, b;
    int64_t *base;
    if (!make_call(&a, round % 2 == 0 ? "long" : NULL, banned))
        return;
    base = test_alloc((size_t)a.t.p.batch * sizeof *base);
    for (int64_t n = 0; n < a.t.p.batch; n++)
        base[n] = 1024 * rng_int(1, 9);
    random_way(&a);
    gradients_twin(&a, &b);
    b.t.p.key_base = base;
    same(&a, &b, "key_base of whole chunks");
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* The part's element, or, of a sum over parts, what those before it make together with it: `sum`
 * holds the sums of the elements of each gradient. */
typedef struct part_comparison {
    const gradients_case *whole, *part;
    oracle_gradient size[ORACLE_GRADIENTS]; /* of the whole */
    float *sum[ORACLE_GRADIENTS];
    int64_t b;
    int which;
    int64_t wrong;
} part_comparison;

static void compare_part(void *user, const int64_t at[4])
{
    part_comparison *c = user;
    const oracle_gradient *size = &c->size[c->which];
    const int64_t in_whole[4] = { size->size[0] > 1 ? c->b : 0, at[1], at[2], at[3] };
    const int64_t n = (at[1] * size->size[2] + at[2]) * size->size[3] + at[3];
    float part, whole;
    if (!gradients_get(c->part, c->which, at, &part) ||
        !gradients_get(c->whole, c->which, in_whole, &whole))
        return;
    if (c->sum[c->which] == NULL || size->size[0] > 1) {
        c->wrong += float_bits(part) != float_bits(whole);
        return;
    }
    c->sum[c->which][n] = c->sum[c->which][n] + part;
    if (c->b + 1 == c->whole->t.p.batch)
        c->wrong += float_bits(c->sum[c->which][n]) != float_bits(whole);
}

/* Sums over the batch go from entry to entry; where one over the heads does, too, its parts are no
 * parts of this one. */
static void open_sums(part_comparison *c)
{
    const attn_bias *bias = &c->whole->t.p.bias;
    oracle_gradient_sizes(&c->whole->t.p, c->size);
    for (int which = ORACLE_DBIAS; which < ORACLE_GRADIENTS; which++) {
        const int64_t *size = c->size[which].size;
        const size_t bytes = (size_t)(size[1] * size[2] * size[3]) * sizeof(float);
        c->sum[which] = test_alloc(bytes);
        memset(c->sum[which], 0, bytes);
    }
    if (bias->stride_head == ATTN_STRIDE_BROADCAST && bias->stride_batch == ATTN_STRIDE_BROADCAST &&
        c->whole->t.p.num_heads_q > 1)
        c->size[ORACLE_DBIAS].size[0] = 0;
}

static const void *moved(const attn_tensor *t, ptrdiff_t elements)
{
    return (const char *)t->data + elements * (ptrdiff_t)dtype_size(t->dtype);
}

/* dout and dlse of entry b. */
static void slice_gradients(gradients_case *part, const gradients_case *whole, int64_t b)
{
    const int32_t *cu = whole->t.p.cu_seqlens_q;
    const test_tensor *dout = &whole->dout, *dlse = &whole->dlse;
    part->g.dout.stride_head = dout->step_head;
    part->g.dout.stride_seq = dout->step_seq;
    part->g.dout.data = moved(&part->g.dout, cu ? cu[b] * dout->step_seq : b * dout->step_batch);
    if (part->g.dlse.data == NULL)
        return;
    part->g.dlse.stride_head = dlse->step_head;
    part->g.dlse.stride_seq = dlse->step_seq;
    part->g.dlse.data = moved(&part->g.dlse, cu ? cu[b] * dlse->step_seq : b * dlse->step_batch);
}

static void law_batch(int round)
{
    static const char *const banned[] = { "rows", "dropout", "mask_fn", "score_fn",
                                          "bits", "bitmap",  "csr",     "key_list",
                                          "tree", "long",    NULL };
    static const char *const first[] = { "varlen", "bias_f32", "alibi", "sinks" };
    gradients_case whole, part;
    part_comparison c;
    test_shape shape = gradients_shape(1);
    shape.batch = 4;
    shape.seq_q = rng_int(1, 20);
    shape.seq_kv = rng_int(1, 40);
    if (!make_shaped(&whole, shape, first[round % 4], banned))
        return;
    random_way(&whole);
    if (!gradients_run(&whole))
        return;
    memset(&c, 0, sizeof c);
    c.whole = &whole, c.part = &part;
    open_sums(&c);
    for (c.b = 0; c.b < whole.t.p.batch; c.b++) {
        part = whole;
        slice_batch(&part.t.p, &whole.t, c.b);
        slice_gradients(&part, &whole, c.b);
        gradients_new_outputs(&part, 0);
        if (!gradients_run(&part))
            return;
        for (c.which = 0; c.which < ORACLE_GRADIENTS; c.which++) {
            oracle_gradient size[ORACLE_GRADIENTS];
            oracle_gradient_sizes(&part.t.p, size);
            if (c.size[c.which].size[0] > 0)
                gradients_each(&size[c.which], compare_part, &c);
        }
    }
    CHECK(c.wrong == 0, "%lld elements of batch entries alone differ", (long long)c.wrong);
}

/* Keys and values repeated for every query head: dk and dv of the group are the sums of theirs from
 * left to right, where the scale is 1 and the rows are one chunk. */
static void law_gqa(int round)
{
    static const char *const banned[] = { "rows",    "varlen",   "layout", "scale",
                                          "storage", "key_list", NULL };
    gradients_case a, b;
    int64_t group, at[4], wrong = 0;
    (void)round;
    if (!make_call(&a, "gqa", banned))
        return;
    a.t.p.scale = 1.0f;
    if (!gradients_forward(&a))
        return;
    a.g.dq.dtype = a.g.dk.dtype = a.g.dv.dtype = ATTN_F32;
    gradients_new_outputs(&a, 0);
    b = a;
    other_layout(&b.t.k, &b.t.p.k, b.t.p.num_heads_q, LAYOUT_PACKED);
    other_layout(&b.t.v, &b.t.p.v, b.t.p.num_heads_q, LAYOUT_BSHD);
    b.t.p.num_heads_kv = 0;
    gradients_new_outputs(&b, 0);
    if (!gradients_run(&a) || !gradients_run(&b))
        return;
    gradients_same(&a, &b, "repeated heads: dq");
    group = a.t.p.num_heads_q / a.t.p.num_heads_kv;
    for (int which = ORACLE_DK; which <= ORACLE_DV; which++)
        for (at[0] = 0; at[0] < a.t.p.batch; at[0]++)
            for (int64_t head = 0; head < a.t.p.num_heads_kv; head++)
                for (at[2] = 0; at[2] < oracle_keys(&a.t.p, at[0]); at[2]++)
                    for (at[3] = 0; at[3] < (which == ORACLE_DK ? a.t.k.dim : a.t.v.dim); at[3]++) {
                        float sum = 0, one, whole;
                        for (at[1] = head * group; at[1] < (head + 1) * group; at[1]++)
                            if (gradients_get(&b, which, at, &one))
                                sum = sum + one;
                        at[1] = head;
                        gradients_get(&a, which, at, &whole);
                        wrong += float_bits(sum) != float_bits(whole);
                    }
    CHECK(wrong == 0, "%lld elements are not the sums over the heads", (long long)wrong);
}

/* ---- chunks ---------------------------------------------------------------------------------- */

static int64_t chunk_base, chunk_number;

static int is_key_in_chunk(void *user, const attn_pair *at)
{
    (void)user;
    return at->n / 1024 == chunk_number;
}

static int is_row_in_chunk(void *user, const attn_pair *at)
{
    (void)user;
    return at->i / 1024 == chunk_number;
}

typedef struct chunk_sums {
    const gradients_case *whole, *part;
    float *sum;
    int64_t index, wrong;
    int which, is_last;
} chunk_sums;

static void add_chunk(void *user, const int64_t at[4])
{
    chunk_sums *c = user;
    float part, whole, *sum = &c->sum[c->index++];
    if (!gradients_get(c->part, c->which, at, &part) ||
        !gradients_get(c->whole, c->which, at, &whole))
        return;
    *sum = *sum + part;
    c->wrong += c->is_last && float_bits(*sum) != float_bits(whole);
}

/* One head with more than a chunk of keys (by n) or of rows (by i). With the o and lse of the whole
 * call and a mask that leaves one chunk, the gradients are what that chunk adds; from left to right
 * they make the whole, where the scale is 1. Sums over rows and keys need all keys in one chunk. */
static void law_chunks(int round)
{
    static const char *const banned[] = { "rows",     "mask_fn", "scale",  "storage", "long",
                                          "dims",     "sinks",   "varlen", "gqa",     "key_base",
                                          "kv_begin", "tree",    NULL };
    const int by_rows = round % 2;
    oracle_gradient size[ORACLE_GRADIENTS];
    gradients_case whole, part;
    test_shape shape;
    float *sums[ORACLE_GRADIENTS];
    memset(&shape, 0, sizeof shape);
    shape.batch = shape.heads_q = shape.heads_kv = 1;
    shape.seq_q = by_rows ? rng_int(1025, 2600) : rng_int(1, 4);
    shape.seq_kv = by_rows ? rng_int(1, 4) : rng_int(1025, 2600);
    shape.dim = rng_int(1, 4);
    if (!make_shaped(&whole, shape, round % 4 < 2 ? "alibi" : "bias_f32", banned))
        return;
    whole.t.p.scale = 1.0f;
    chunk_base = by_rows ? 0 : rng_int(0, 1500);
    whole.t.p.key_base = &chunk_base;
    whole.g.dq.dtype = whole.g.dk.dtype = whole.g.dv.dtype = ATTN_F32;
    gradients_new_outputs(&whole, 0);
    random_way(&whole);
    if (!gradients_forward(&whole) || !gradients_run(&whole))
        return;
    oracle_gradient_sizes(&whole.t.p, size);
    for (int n = 0; n < ORACLE_GRADIENTS; n++) {
        const int64_t *count = size[n].size;
        const size_t bytes = (size_t)(count[0] * count[1] * count[2] * count[3]) * sizeof(float);
        sums[n] = test_alloc(bytes);
        memset(sums[n], 0, bytes);
    }
    for (chunk_number = 0; chunk_number < 5; chunk_number++) {
        gradients_twin(&whole, &part);
        part.t.p.mask = by_rows ? is_row_in_chunk : is_key_in_chunk;
        if (!gradients_run(&part))
            return;
        for (int n = 0; n < ORACLE_GRADIENTS; n++) {
            chunk_sums c = { &whole, &part, sums[n], 0, 0, n, chunk_number == 4 };
            if (n > ORACLE_DV && !by_rows)
                continue;
            gradients_each(&size[n], add_chunk, &c);
            CHECK(c.wrong == 0, "%s: %lld elements are not the sums of their chunks",
                  oracle_gradient_name(n), (long long)c.wrong);
        }
    }
}

/* ---- parts of a call -------------------------------------------------------------------------- */

/* An array of rows of the whole call, of `rows` rows of `dim` elements, becomes one of those from
 * row `begin` on. */
static void move_rows(int dtype, ptrdiff_t *batch, ptrdiff_t *head, ptrdiff_t *seq, void *data,
                      int64_t heads, int64_t rows, int64_t dim, int64_t begin)
{
    char *at;
    memcpy(&at, data, sizeof at);
    *batch = *batch != 0 ? *batch : (ptrdiff_t)(heads * rows * dim);
    *head = *head != 0 ? *head : (ptrdiff_t)(rows * dim);
    *seq = *seq != 0 ? *seq : (ptrdiff_t)dim;
    if (at != NULL && *seq != ATTN_STRIDE_BROADCAST)
        at += (ptrdiff_t)begin * *seq * (ptrdiff_t)dtype_size(dtype);
    memcpy(data, &at, sizeof at);
}

#define MOVE_ROWS(x, heads, rows, dim, begin)                                                      \
    move_rows((x).dtype, &(x).stride_batch, &(x).stride_head, &(x).stride_seq, &(x).data, heads,   \
              rows, dim, begin)

/* dBias of a part goes where that of the whole goes, if all that is summed for an element is in the
 * part: its rows from `begin` on, or its columns. */
static void place_bias(const gradients_case *whole, attn_bias_gradient *d, int by_rows,
                       int64_t begin)
{
    const attn_bias *bias = &whole->t.p.bias;
    ptrdiff_t *const strides[4] = { &d->stride_batch, &d->stride_head, &d->stride_q,
                                    &d->stride_kv };
    if ((by_rows ? bias->stride_q : bias->stride_kv) == ATTN_STRIDE_BROADCAST)
        d->data = NULL;
    for (int axis = 0; axis < 4 && d->data != NULL; axis++) {
        int64_t at[4] = { 0 };
        oracle_place place;
        at[axis] = 1;
        oracle_gradient_place(&whole->t.p, &whole->g, ORACLE_DBIAS, at, &place);
        *strides[axis] = place.offset;
    }
    if (d->data != NULL && by_rows)
        d->data += (ptrdiff_t)begin * d->stride_q;
}

/* dQ of a part of the rows, or dK and dV of a part of the keys, where those of the whole go. */
static int run_gradient_part(const gradients_case *whole, int by_rows, int bias, int64_t begin,
                             int64_t count)
{
    gradients_case part = *whole;
    attn_params *p = &part.t.p;
    attn_gradients *g = &part.g;
    attn_status status;
    char text[300];
    g->dslopes = NULL; /* sums over all pairs are not divided */
    if (!bias)
        g->dbias.data = NULL;
    place_bias(whole, &g->dbias, by_rows, begin);
    if (by_rows) {
        const int64_t heads = p->num_heads_q, rows = p->seq_len_q;
        slice_part_rows(p, &whole->t, begin, count);
        MOVE_ROWS(g->dout, heads, rows, p->head_dim_v, begin);
        MOVE_ROWS(g->dlse, heads, rows, 1, begin);
        MOVE_ROWS(g->dq, heads, rows, p->head_dim, begin);
        g->dk.data = g->dv.data = NULL;
        g->dsinks = NULL;
    } else {
        const int64_t heads = p->num_heads_kv, rows = p->seq_len_kv;
        slice_part_keys(p, &whole->t, begin, count);
        MOVE_ROWS(g->dk, heads, rows, p->head_dim, begin);
        MOVE_ROWS(g->dv, heads, rows, p->head_dim_v, begin);
        g->dq.data = NULL;
    }
    if (g->dq.data == NULL && g->dk.data == NULL && g->dv.data == NULL && g->dbias.data == NULL &&
        g->dsinks == NULL)
        return 1;
    random_way(&part);
    status = backward_run(p, g);
    return CHECK(status == ATTN_OK, "a part of the %s: %s", by_rows ? "rows" : "keys",
                 attn_backward_check(p, g, NULL, 0, text, sizeof text));
}

static void law_parts(int round)
{
    static const char *const banned[] = { "varlen", "logits", NULL };
    gradients_case whole, parts;
    const int bias_by_rows = rng_chance(50);
    int ok = 1;
    if (!(round % 4 == 0 ? make_chunks(&whole, round / 4)
                         : make_call(&whole, round % 4 == 1 ? NULL : "bias_f32", banned)) ||
        whole.t.p.cu_seqlens_q != NULL)
        return;
    whole.t.p.impl = ATTN_IMPL_TILED;
    whole.g.dslopes = NULL;
    memset(&whole.t.p.logits, 0, sizeof whole.t.p.logits);
    if (whole.t.p.num_heads_kv == 0)
        whole.t.p.num_heads_kv = whole.t.p.num_heads_q;
    place_bias(&whole, &whole.g.dbias, bias_by_rows, 0);
    if ((!whole.g.dq.data && !whole.g.dk.data && !whole.g.dv.data && !whole.g.dbias.data &&
         whole.g.dsinks == NULL) ||
        !gradients_run(&whole))
        return;
    gradients_twin(&whole, &parts);
    parts.g.dslopes = NULL;
    if (whole.g.dbias.data == NULL)
        parts.g.dbias.data = NULL;
    for (int by_rows = 0; by_rows < 2; by_rows++) {
        const int64_t all = by_rows ? whole.t.p.seq_len_q : whole.t.p.seq_len_kv;
        for (int64_t i = 0, count; i < all && ok; i += count) {
            count = rng_chance(30) ? all - i : rng_int(1, all - i);
            ok = run_gradient_part(&parts, by_rows, by_rows == bias_by_rows, i, count);
        }
    }
    if (ok)
        gradients_same(&whole, &parts, "parts of the call");
}

/* ---- the group ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(int round);
    int rounds;
} laws[] = {
    { "5 and 7 products, tiles, redo, the least workspace", law_ways, 60 },
    { "kernel sets", law_kernels, 60 },
    { "workers", law_workers, 40 },
    { "columns of the bias divided", law_columns, 24 },
    { "some outputs alone", law_some_outputs, 24 },
    { "storage types of outputs", law_output_types, 24 },
    { "logits are ignored", law_logits_ignored, 8 },
    { "storage types and layouts of inputs", law_inputs, 40 },
    { "a mask said in another way", law_masks, 75 },
    { "neutral terms", law_neutral, 60 },
    { "key_base of whole chunks", law_key_base, 20 },
    { "batch entries one by one", law_batch, 60 },
    { "GQA and repeated heads", law_gqa, 30 },
    { "chunks one by one", law_chunks, 24 },
    { "parts of the call", law_parts, 60 },
    { "keys in a cache", law_caches, 40 },
    { "an lse beside stats", law_stats, 40 },
    { "statistics of empty rows", law_empty_stats, 24 },
    { "statistics that nobody wrote", law_unwritten_stats, 24 },
};

void backward_laws(void)
{
    pools_used = 0;
    for (size_t n = 0; n < sizeof laws / sizeof *laws; n++)
        for (int round = 0; round < laws[n].rounds; round++)
            if (!T.best && T.only_case < 0 && round % 4 != 0)
                pass_over_case();
            else if (begin_case("%s, %d", laws[n].name, round))
                laws[n].run(round);
    CHECK(pools_used > 0 || !all_cases_run(), "no pool was used");
}
