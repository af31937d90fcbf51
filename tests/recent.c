/* recent.c - p.recent: the last keys of each row in full precision, all before them as they are stored.
 * SPDX-License-Identifier: MIT
 *
 * Three judges that know nothing of it: an oracle in double precision that chooses K and V by pair; for
 * bits, a call without p.recent over both versions of every block of keys, one behind the other, of
 * which a boolean mask shows each row the right one; and, where rows read nothing else, a plain call
 * over the recent rows. What no row may read is NaN. Caches are in cache.c and cache_bits.c.
 */
#include "pool.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MOST_BATCH = 3,
    HEADS = 4,
    HEADS_KV = 2,
    MOST_ROWS = 20,
    MOST_KEYS = 2200,
    MOST_DIM = 96,
    DOUBLED = 512 /* keys of which both versions lie in one chunk */
};

/* A versioned is keys or values as they were, as stored and as kept, and what each says in f32. */
typedef struct versioned {
    float *given, *stored, *kept; /* [batch][head][key][dim] */
    void *data, *ring;
} versioned;

typedef struct setup {
    attn_params p;
    versioned k, v;
    float *q, *o, *lse; /* [batch][head][row][dim] */
    int32_t kv_len[MOST_BATCH], entries[MOST_BATCH];
    int64_t key_base[MOST_BATCH], begin[MOST_BATCH];
    int64_t keys; /* of the arrays */
} setup;

static int64_t position(const setup *s, int64_t b, int64_t i)
{
    return i + s->kv_len[b] - s->p.seq_len_q;
}

static int is_recent(const setup *s, int64_t b, int64_t i, int64_t j)
{
    return j > position(s, b, i) - s->p.recent.keys;
}

static int is_visible(const setup *s, int64_t b, int64_t i, int64_t j)
{
    const int64_t pos = position(s, b, i);
    return j < s->kv_len[b] && (!s->p.causal || j <= pos) &&
           (!s->p.window || j >= pos - s->p.window_left);
}

/* Both versions of n numbers a row, and what they say; rotated before either is rounded. */
static void make_versions(const setup *s, versioned *x, int64_t dim, int dtype, int kept_dtype,
                          int rotated)
{
    const int64_t rows = s->p.batch * HEADS_KV * s->keys, n = rows * dim;
    void *half = test_alloc(dtype_bytes(kept_dtype, n));
    x->given = test_alloc((size_t)n * sizeof(float));
    x->stored = test_alloc((size_t)n * sizeof(float));
    x->kept = test_alloc((size_t)n * sizeof(float));
    x->data = test_alloc(dtype_bytes(dtype, n));
    for (int64_t i = 0; i < n; i++)
        x->given[i] = rng_normal();
    if (rotated)
        attn_rotate(x->given, rows, dim);
    attn_convert(x->data, dtype, x->given, ATTN_F32, (size_t)n);
    attn_convert(x->stored, ATTN_F32, x->data, dtype, (size_t)n);
    attn_convert(half, kept_dtype, x->given, ATTN_F32, (size_t)n);
    attn_convert(x->kept, ATTN_F32, half, kept_dtype, (size_t)n);
}

/* The ring has what the first row reads from it, and NaN elsewhere. */
static void make_ring(setup *s, versioned *x, int64_t dim, attn_tensor *t)
{
    const int64_t ring = s->p.recent.ring;
    const int64_t entries = s->p.recent.entries ? s->p.recent.num_entries : s->p.batch;
    const size_t row = dtype_bytes(t->dtype, dim);
    unsigned char *data = test_alloc((size_t)(entries * HEADS_KV * ring) * row);
    for (int64_t b = 0; b < s->p.batch; b++)
        for (int64_t h = 0; h < HEADS_KV; h++)
            for (int64_t j = larger64(0, s->begin[b] - s->key_base[b]); j < s->kv_len[b]; j++) {
                const int64_t e = s->p.recent.entries ? s->entries[b] : b;
                const int64_t at = (e * HEADS_KV + h) * ring + (s->key_base[b] + j) % ring;
                attn_convert(data + (size_t)at * row, t->dtype,
                             x->kept + ((b * HEADS_KV + h) * s->keys + j) * dim, ATTN_F32,
                             (size_t)dim);
            }
    t->data = x->ring = data;
}

/* Stored rows that every row of the call reads as recent are NaN in the call's array. */
static void hide_unread(const setup *s, versioned *x, int64_t dim, int dtype)
{
    const size_t row = dtype_bytes(dtype, dim);
    for (int64_t b = 0; b < s->p.batch; b++)
        for (int64_t h = 0; h < HEADS_KV; h++)
            for (int64_t j = 0; j < s->keys; j++)
                if (is_recent(s, b, s->p.seq_len_q - 1, j) || j >= s->kv_len[b])
                    memset((char *)x->data + (size_t)((b * HEADS_KV + h) * s->keys + j) * row, 0xff,
                           row);
}

static void set_lengths(setup *s)
{
    static const int64_t bases[] = { 0, 3, 1021, 70000 };
    attn_params *p = &s->p;
    const int64_t base = RNG_PICK(bases);
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t least = p->seq_len_q < s->keys ? p->seq_len_q : s->keys;
        s->kv_len[b] = (int32_t)(b == 0 ? s->keys : rng_int(least, s->keys));
        s->key_base[b] = base + (b > 0 ? rng_int(0, 40) : 0);
        s->entries[b] = (int32_t)((b + 2) % MOST_BATCH);
        s->begin[b] =
            larger64(s->key_base[b], s->key_base[b] + position(s, b, 0) - p->recent.keys + 1);
    }
    p->kv_len = s->kv_len;
    p->key_base = s->key_base;
}

/* A call with values of its own; `keys` of the longest sequence. */
static void make_setup(setup *s, int64_t keys, int64_t recent, int integer)
{
    static const int64_t dims[] = { 32, 64, 96 };
    attn_params *p = &s->p;
    int64_t rows;
    memset(s, 0, sizeof *s);
    s->keys = keys;
    p->batch = rng_int(1, MOST_BATCH);
    p->num_heads_q = HEADS;
    p->num_heads_kv = HEADS_KV;
    p->seq_len_q = rng_chance(40) ? 1 : rng_int(1, keys < MOST_ROWS ? keys : MOST_ROWS);
    p->seq_len_kv = keys;
    p->head_dim = RNG_PICK(dims);
    p->head_dim_v = RNG_PICK(dims);
    p->causal = rng_chance(70);
    p->integer = integer;
    p->rotated = rng_chance(30) ? (int)rng_int(0, 3) : 0;
    p->k.dtype = integer ? (int)rng_int(ATTN_Q8_0, ATTN_Q4_0) : (int)rng_int(0, ATTN_Q4_0);
    p->v.dtype = (int)rng_int(0, ATTN_Q4_0);
    if (rng_chance(25)) {
        p->window = ATTN_WINDOW;
        p->window_left = rng_int(0, keys);
        p->window_right = -1;
    }
    p->recent.keys = recent;
    p->recent.k.dtype = (int)rng_int(0, 2);
    p->recent.v.dtype = (int)rng_int(0, 2);
    set_lengths(s);
    rows = p->batch * HEADS * p->seq_len_q;
    p->recent.ring = (recent < keys ? recent : keys) + p->seq_len_q - 1 + rng_int(0, 5);
    if (rng_chance(60)) {
        p->recent.entries = s->entries;
        p->recent.num_entries = MOST_BATCH;
    }
    p->recent.begin = rng_chance(50) ? s->begin : NULL;
    s->q = test_alloc((size_t)(rows * p->head_dim) * sizeof(float));
    for (int64_t i = 0; i < rows * p->head_dim; i++)
        s->q[i] = rng_normal() * (rng_chance(10) ? 6.0f : 1.0f);
    make_versions(s, &s->k, p->head_dim, p->k.dtype, p->recent.k.dtype,
                  p->rotated & ATTN_ROTATED_K);
    make_versions(s, &s->v, p->head_dim_v, p->v.dtype, p->recent.v.dtype,
                  p->rotated & ATTN_ROTATED_V);
    make_ring(s, &s->k, p->head_dim, &p->recent.k);
    make_ring(s, &s->v, p->head_dim_v, &p->recent.v);
    hide_unread(s, &s->k, p->head_dim, p->k.dtype);
    hide_unread(s, &s->v, p->head_dim_v, p->v.dtype);
    p->q.data = s->q;
    p->k.data = s->k.data;
    p->v.data = s->v.data;
}

static void new_outputs(setup *s)
{
    const size_t rows = (size_t)(s->p.batch * HEADS * s->p.seq_len_q);
    s->p.o.data = s->o = test_alloc(rows * (size_t)s->p.head_dim_v * sizeof(float));
    s->p.lse.data = s->lse = test_alloc(rows * sizeof(float));
}

static int same_outputs(const setup *a, const setup *b)
{
    const size_t rows = (size_t)(a->p.batch * HEADS * a->p.seq_len_q);
    return memcmp(a->o, b->o, rows * (size_t)a->p.head_dim_v * sizeof(float)) == 0 &&
           memcmp(a->lse, b->lse, rows * sizeof(float)) == 0;
}

static const char *setup_text(const setup *s)
{
    static char text[200];
    snprintf(text, sizeof text,
             "batch %d, rows %d, keys %d, recent %d, ring %d, base %d, dims %d %d, types %s %s",
             (int)s->p.batch, (int)s->p.seq_len_q, (int)s->keys, (int)s->p.recent.keys,
             (int)s->p.recent.ring, (int)s->key_base[0], (int)s->p.head_dim, (int)s->p.head_dim_v,
             dtype_name(s->p.k.dtype), dtype_name(s->p.v.dtype));
    return text;
}

/* ---- the oracle ------------------------------------------------------------------------------ */

/* A query as whole numbers and scales say it. */
static void round_query(float *q, int64_t dim)
{
    for (int64_t d = 0; d < dim; d += 32) {
        float most = 0;
        for (int64_t i = d; i < d + 32; i++)
            most = fmaxf(most, fabsf(q[i]));
        for (int64_t i = d; i < d + 32 && most > 0; i++)
            q[i] = nearbyintf(q[i] / (most / 127)) * (most / 127);
    }
}

/* Row i of head h in double precision; its error in o. */
static double row_error(const setup *s, int64_t b, int64_t h, int64_t i)
{
    static double logit[MOST_KEYS];
    const attn_params *p = &s->p;
    const int64_t dim = p->head_dim, dim_v = p->head_dim_v,
                  row = (b * HEADS + h) * p->seq_len_q + i;
    const int64_t kv = (b * HEADS_KV + h / (HEADS / HEADS_KV)) * s->keys;
    float q[MOST_DIM], whole[MOST_DIM], o[MOST_DIM];
    double sum = 0, most = -HUGE_VAL, error = 0;
    memcpy(q, s->q + row * dim, (size_t)dim * sizeof *q);
    if (p->rotated & ATTN_ROTATED_K)
        attn_rotate(q, 1, dim);
    memcpy(whole, q, sizeof whole);
    if (p->integer)
        round_query(whole, dim);
    for (int64_t j = 0; j < s->kv_len[b]; j++) {
        const int last = is_recent(s, b, i, j);
        const float *k = (last ? s->k.kept : s->k.stored) + (kv + j) * dim;
        logit[j] = 0;
        for (int64_t d = 0; d < dim; d++)
            logit[j] += (double)(last ? q : whole)[d] * (double)k[d];
        logit[j] = is_visible(s, b, i, j) ? logit[j] / sqrt((double)dim) : -HUGE_VAL;
        most = fmax(most, logit[j]);
    }
    for (int64_t j = 0; j < s->kv_len[b]; j++)
        sum += logit[j] > -HUGE_VAL ? exp(logit[j] - most) : 0;
    for (int64_t d = 0; d < dim_v; d++) {
        double x = 0;
        for (int64_t j = 0; j < s->kv_len[b]; j++)
            if (logit[j] > -HUGE_VAL)
                x +=
                    exp(logit[j] - most) / sum *
                    (double)(is_recent(s, b, i, j) ? s->v.kept : s->v.stored)[(kv + j) * dim_v + d];
        o[d] = (float)x;
    }
    if (p->rotated & ATTN_ROTATED_V)
        attn_rotate(o, 1, dim_v);
    for (int64_t d = 0; d < dim_v; d++) {
        const double off = fabs((double)s->o[row * dim_v + d] - (double)o[d]);
        error = off <= error ? error : off; /* and so with NaN */
    }
    return error;
}

static void check_oracle(const setup *s)
{
    double worst = 0;
    for (int64_t b = 0; b < s->p.batch; b++)
        for (int64_t h = 0; h < HEADS; h++)
            for (int64_t i = 0; i < s->p.seq_len_q; i++) {
                const double error = row_error(s, b, h, i);
                worst = error <= worst ? worst : error;
            }
    CHECK(worst < (s->p.integer ? 1e-3 : 2e-5), "off by %g: %s", worst, setup_text(s));
}

/* ---- the same bits in every way ---------------------------------------------------------------- */

static void check_way(const setup *s, const char *name, const attn_params *changed)
{
    setup other = *s;
    other.p = *changed;
    new_outputs(&other);
    CHECK(test_run(&other.p) == ATTN_OK && same_outputs(&other, s), "%s: %s", name, setup_text(s));
}

static void check_ways(const setup *s)
{
    static const int64_t tiles[] = { 16, 32, 128, 1024 };
    pool workers = pool_of((int)rng_int(2, 5), POOL_SHUFFLED, 0);
    attn_params p = s->p;
    int sets = 0;
    p.tile_keys = (int)RNG_PICK(tiles);
    check_way(s, "other tiles", &p);
    p.num_workers = workers.workers;
    p.tuning = "attn-tuning 1 split_work 1 end";
    p.parallel_for = pool_for;
    p.parallel_user = &workers;
    check_way(s, "divided keys", &p);
    p.tile_keys = 0;
    p.force_redo = 1;
    check_way(s, "the redo", &p);
    p = s->p;
    while (attn_kernels_get(sets) != NULL)
        sets++;
    p.kernels = attn_kernels_get((int)rng_int(0, sets - 1));
    check_way(s, p.kernels->name, &p);
}

/* Row i alone, as it comes in decoding: nothing behind it is there yet. */
static void check_decoding(const setup *s)
{
    const int64_t rows = s->p.seq_len_q, i = rng_int(0, rows - 1);
    setup one = *s;
    float *q = test_alloc((size_t)(s->p.batch * HEADS * s->p.head_dim) * sizeof *q);
    int wrong = 0;
    one.q = q;
    one.p.q.data = q;
    one.p.seq_len_q = 1;
    one.p.kv_len = one.kv_len;
    for (int64_t b = 0; b < s->p.batch; b++)
        one.kv_len[b] = (int32_t)(position(s, b, i) + 1);
    for (int64_t n = 0; n < s->p.batch * HEADS; n++)
        memcpy(q + n * s->p.head_dim, s->q + (n * rows + i) * s->p.head_dim,
               (size_t)s->p.head_dim * sizeof *q);
    new_outputs(&one);
    if (!CHECK(test_run(&one.p) == ATTN_OK, "refused: %s", setup_text(s)))
        return;
    for (int64_t n = 0; n < s->p.batch * HEADS; n++)
        wrong |= memcmp(one.o + n * s->p.head_dim_v, s->o + (n * rows + i) * s->p.head_dim_v,
                        (size_t)s->p.head_dim_v * sizeof(float)) != 0 ||
                 float_bits(one.lse[n]) != float_bits(s->lse[n * rows + i]);
    CHECK(!wrong, "row %d alone: %s", (int)i, setup_text(s));
}

static void check_pairs(int round)
{
    static const int64_t lengths[] = { 1, 17, 40, 130, 500, 1100, MOST_KEYS };
    static const int64_t windows[] = { 1, 2, 15, 16, 17, 33, 64, 200, 1024, 5000 };
    setup s;
    int64_t keys = RNG_PICK(lengths);
    make_setup(&s, keys, RNG_PICK(windows), round % 3 == 2);
    new_outputs(&s);
    if (!CHECK(test_run(&s.p) == ATTN_OK, "refused: %s", setup_text(&s)))
        return;
    if (s.keys <= 500)
        check_oracle(&s);
    check_ways(&s);
    if (s.p.causal)
        check_decoding(&s);
}

/* ---- blocks of both versions left out ----------------------------------------------------------- */

static void check_skipping(int round)
{
    const int64_t keys = rng_int(300, MOST_KEYS), recent = rng_int(1, 300);
    setup s;
    float *dropped;
    size_t rows, skip = 0;
    make_setup(&s, keys, recent, round % 3 == 2);
    rows = (size_t)(s.p.batch * HEADS * s.p.seq_len_q);
    dropped = test_alloc(rows * sizeof *dropped);
    s.p.scale = 1.0f;
    s.p.skip.below = 0.9f;
    s.p.skip.dropped = dropped;
    new_outputs(&s);
    if (!CHECK(test_run(&s.p) == ATTN_OK, "refused: %s", setup_text(&s)))
        return;
    for (size_t n = 0; n < rows; n++)
        skip += dropped[n] > 0;
    CHECK(skip > 0, "no row leaves out anything: %s", setup_text(&s));
    check_ways(&s);
    if (s.p.causal)
        check_decoding(&s);
}

/* ---- both versions of each block, one behind the other ------------------------------------------ */

/* Where key j of that version lies. */
static int64_t doubled(int64_t j, int version)
{
    return (2 * (j / 16) + version) * 16 + j % 16;
}

static float *double_rows(const setup *s, const versioned *x, int64_t dim)
{
    float *to = test_alloc((size_t)(s->p.batch * HEADS_KV * 2 * DOUBLED * dim) * sizeof *to);
    for (int64_t n = 0; n < s->p.batch * HEADS_KV; n++)
        for (int64_t j = 0; j < s->keys; j++)
            for (int version = 0; version < 2; version++)
                memcpy(to + (n * 2 * DOUBLED + doubled(j, version)) * dim,
                       (version ? x->kept : x->stored) + (n * s->keys + j) * dim,
                       (size_t)dim * sizeof *to);
    return to;
}

static uint8_t *double_mask(const setup *s)
{
    const int64_t rows = s->p.seq_len_q;
    const size_t bytes = (size_t)(s->p.batch * rows * 2 * DOUBLED);
    uint8_t *mask = memset(test_alloc(bytes), 0, bytes);
    for (int64_t b = 0; b < s->p.batch; b++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < s->kv_len[b]; j++)
                mask[(b * rows + i) * 2 * DOUBLED + doubled(j, is_recent(s, b, i, j))] =
                    (uint8_t)is_visible(s, b, i, j);
    return mask;
}

static void check_doubled(int round)
{
    const int64_t keys = rng_int(1, DOUBLED);
    setup s, plain;
    attn_params *p = &plain.p;
    (void)round;
    make_setup(&s, keys, rng_int(1, 70), 0);
    for (int64_t b = 0; b < s.p.batch; b++) /* Both must begin with a chunk. */
        s.key_base[b] = s.begin[b] = 0;
    s.p.recent.begin = NULL;
    make_ring(&s, &s.k, s.p.head_dim, &s.p.recent.k);
    make_ring(&s, &s.v, s.p.head_dim_v, &s.p.recent.v);
    s.p.softcap = rng_chance(30) ? 3.0f : 0;
    s.p.softmax1 = rng_chance(30);
    plain = s;
    memset(&p->recent, 0, sizeof p->recent);
    p->seq_len_kv = 2 * DOUBLED;
    p->kv_len = NULL;
    p->key_base = NULL;
    p->causal = p->window = 0;
    p->window_left = p->window_right = 0;
    p->k.dtype = p->v.dtype = ATTN_F32;
    p->k.data = double_rows(&s, &s.k, p->head_dim);
    p->v.data = double_rows(&s, &s.v, p->head_dim_v);
    p->bool_mask.data = double_mask(&s);
    p->bool_mask.stride_head = ATTN_STRIDE_BROADCAST;
    new_outputs(&s);
    new_outputs(&plain);
    CHECK(test_run(&s.p) == ATTN_OK && test_run(p) == ATTN_OK, "refused: %s", setup_text(&s));
    CHECK(same_outputs(&s, &plain), "%s", setup_text(&s));
}

/* ---- rows that read nothing but the ring --------------------------------------------------------- */

static void check_all_recent(int round)
{
    const int64_t keys = rng_int(1, 1300);
    setup s, plain;
    make_setup(&s, keys, 1300 + rng_int(0, 9), round % 2);
    plain = s;
    memset(&plain.p.recent, 0, sizeof plain.p.recent);
    plain.p.integer = 0;
    plain.p.k.dtype = plain.p.v.dtype = ATTN_F32;
    plain.p.k.data = s.k.kept;
    plain.p.v.data = s.v.kept;
    new_outputs(&s);
    new_outputs(&plain);
    CHECK(test_run(&s.p) == ATTN_OK && test_run(&plain.p) == ATTN_OK, "refused: %s",
          setup_text(&s));
    CHECK(same_outputs(&s, &plain), "%s", setup_text(&s));
}

/* ---- keys that a batch shares ---------------------------------------------------------------------- */

/* Entries with equal keys up to `shared`; those that are stored are read once, for all. */
static void check_shared(int round)
{
    const int64_t shared = 100 + 40 * round, recent = 1 + 16 * round;
    setup s, once;
    attn_info info;
    int64_t whole;
    do
        make_setup(&s, 400, recent, 0);
    while (s.p.batch < 2 || s.p.window || !s.p.causal);
    for (int64_t b = 0; b < s.p.batch; b++) {
        s.kv_len[b] = (int32_t)(b == 0 ? 400 : 400 - rng_int(0, 90));
        s.key_base[b] = s.begin[b] = 0;
    }
    s.p.recent.begin = NULL;
    make_ring(&s, &s.k, s.p.head_dim, &s.p.recent.k);
    make_ring(&s, &s.v, s.p.head_dim_v, &s.p.recent.v);
    attn_convert((void *)(size_t)s.p.k.data, s.p.k.dtype, s.k.given, ATTN_F32,
                 (size_t)(s.p.batch * HEADS_KV * s.keys * s.p.head_dim));
    attn_convert((void *)(size_t)s.p.v.data, s.p.v.dtype, s.v.given, ATTN_F32,
                 (size_t)(s.p.batch * HEADS_KV * s.keys * s.p.head_dim_v));
    whole = HEADS_KV * s.keys;
    for (int64_t b = 1; b < s.p.batch; b++)
        for (int64_t h = 0; h < HEADS_KV; h++) {
            const size_t k = dtype_bytes(s.p.k.dtype, s.p.head_dim);
            const size_t v = dtype_bytes(s.p.v.dtype, s.p.head_dim_v);
            memcpy((char *)s.k.data + (size_t)(b * whole + h * s.keys) * k,
                   (char *)s.k.data + (size_t)(h * s.keys) * k, (size_t)shared * k);
            memcpy((char *)s.v.data + (size_t)(b * whole + h * s.keys) * v,
                   (char *)s.v.data + (size_t)(h * s.keys) * v, (size_t)shared * v);
        }
    once = s;
    once.p.shared_keys = shared;
    new_outputs(&s);
    new_outputs(&once);
    CHECK(test_run(&s.p) == ATTN_OK && test_run(&once.p) == ATTN_OK, "refused: %s", setup_text(&s));
    CHECK(same_outputs(&s, &once), "%s", setup_text(&s));
    CHECK(attn_explain(&once.p, &info) == ATTN_OK && strstr(info.reasons, "prefix of") != NULL,
          "%s", info.reasons);
}

/* ---- misuse ------------------------------------------------------------------------------------------ */

static void expect(const attn_params *p, attn_status status, const char *sentence)
{
    char why[400];
    const attn_status found = attn_forward(p, NULL, 0);
    attn_check(p, NULL, 0, why, sizeof why);
    CHECK(strcmp(why, sentence) == 0 && found == status, "status %d, \"%s\", expected \"%s\"",
          (int)found, why, sentence);
}

static void check_misuse(int round)
{
    static float numbers[64 * 40], o[64 * 8];
    static const int64_t begin[] = { 30 };
    static const int32_t entries[] = { 2 };
    static const int32_t before[] = { -20 }, across[] = { -2 };
    attn_params good = { .batch = 1,
                         .num_heads_q = 1,
                         .seq_len_q = 4,
                         .seq_len_kv = 40,
                         .head_dim = 64,
                         .causal = 1 },
                p;
    attn_info info;
    (void)round;
    good.q.data = good.k.data = good.v.data = numbers;
    good.o.data = o;
    good.recent.keys = 8;
    good.recent.ring = 11;
    good.recent.k.data = good.recent.v.data = numbers;
    CHECK(test_run(&good) == ATTN_OK, "refused");
    p = good;
    p.recent.ring = 10;
    expect(&p, ATTN_ERR_ARG,
           "recent: the first row of sequence b (0) reads keys n from 29 on, but the ring, of 10 "
           "rows, has those from 30 on");
    p = good;
    p.recent.begin = begin;
    expect(&p, ATTN_ERR_ARG,
           "recent: the first row of sequence b (0) reads keys n from 29 on, but the ring, of 11 "
           "rows, has those from 30 on");
    p.seq_len_q = 3;
    CHECK(test_run(&p) == ATTN_OK, "all that is read is there");
    p.seq_len_q = 4;
    p.window = ATTN_WINDOW;
    p.window_left = 6;
    CHECK(test_run(&p) == ATTN_OK, "a window hides what is not there");
    p = good;
    p.recent.ring = 10;
    p.alignment = ATTN_ALIGN_OFFSET;
    p.q_offset = before;
    CHECK(test_run(&p) == ATTN_OK, "rows before the first key read nothing");
    p.q_offset = across;
    expect(&p, ATTN_ERR_ARG,
           "recent: the first row of sequence b (0) reads keys n from 0 on, but the ring, of 10 "
           "rows, has those from 30 on");
    p = good;
    p.recent.ring = 0;
    expect(&p, ATTN_ERR_ARG,
           "recent.keys (8) is set, but recent.ring, the rows of its k and v, is 0");
    p = good;
    p.recent.keys = 0;
    expect(&p, ATTN_ERR_ARG, "recent.ring (11) is set, but recent.keys is 0");
    p = good;
    p.recent.keys = p.recent.ring = 0;
    p.recent.begin = begin;
    expect(&p, ATTN_ERR_ARG, "recent.begin is given, but recent.keys is 0");
    p.recent.begin = NULL;
    p.recent.entries = entries;
    expect(&p, ATTN_ERR_ARG, "recent.entries is given, but recent.keys is 0");
    p.recent.entries = NULL;
    expect(&p, ATTN_ERR_ARG, "recent.k.data is given, but recent.keys is 0");
    p.recent.k.data = NULL;
    expect(&p, ATTN_ERR_ARG, "recent.v.data is given, but recent.keys is 0");
    p = good;
    p.recent.num_entries = 3;
    expect(&p, ATTN_ERR_ARG, "recent.num_entries (3) is set, but recent.entries is NULL");
    p.recent.entries = entries;
    p.recent.num_entries = 2;
    expect(&p, ATTN_ERR_ARG, "recent.entries[0] (2) must be from 0 to 1");
    p = good;
    p.recent.k.data = NULL;
    expect(&p, ATTN_ERR_ARG, "recent.k.data is NULL");
    p = good;
    p.recent.v.data = NULL;
    expect(&p, ATTN_ERR_ARG, "recent.v.data is NULL");
    p = good;
    p.recent.v.dtype = ATTN_Q8_0;
    expect(&p, ATTN_ERR_ARG, "recent.v.dtype (5) must be at most 2: 0 is f32, 1 is f16, 2 is bf16");
    p = good;
    p.impl = ATTN_IMPL_NAIVE;
    expect(&p, ATTN_ERR_UNSUPPORTED,
           "recent.keys (8) is set: impl naive reads one version of each key");
    p = good;
    p.logits.data = o;
    expect(&p, ATTN_ERR_UNSUPPORTED,
           "recent.keys (8) is set: logits and mass need one version of each key");
    p = good;
    p.part.rows = 1;
    p.part.row_count = 4;
    expect(&p, ATTN_ERR_UNSUPPORTED,
           "recent.keys (8) is set, but a part of a call does not take it: it describes a cache, "
           "whose keys attn_cache_read copies into one array");
    p = good;
    p.impl = ATTN_IMPL_AUTO;
    p.auto_naive_keys = 1000;
    CHECK(test_run(&p) == ATTN_OK && attn_explain(&p, &info) == ATTN_OK &&
              info.impl == ATTN_IMPL_TILED,
          "auto takes the way that can");
}

TEST_GROUP(recent, RUN_FEWER, "the last keys in full precision: oracle, bits, every misuse")
{
    static const struct {
        const char *name;
        void (*run)(int round);
        int rounds, once;
    } checks[] = {
        { "pairs", check_pairs, 90, 0 },           { "doubled", check_doubled, 60, 0 },
        { "all recent", check_all_recent, 20, 0 }, { "shared", check_shared, 6, 0 },
        { "misuse", check_misuse, 1, 1 },          { "skipping", check_skipping, 20, 0 },
    };
    if (!T.exact || T.impl || T.storage || T.backend) {
        SKIP("recent keys are for exact calls of the CPU");
        return;
    }
    for (size_t n = 0; n < sizeof checks / sizeof *checks; n++)
        for (int round = 0; round < checks[n].rounds; round++)
            if (checks[n].once && !T.best && T.only_case < 0)
                pass_over_case();
            else if (begin_case("%s, %d", checks[n].name, round))
                checks[n].run(round);
}
