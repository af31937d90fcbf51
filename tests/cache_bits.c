/* cache_bits.c - attention over a cache has the bits of one call over plain arrays: every kind of
 * cache, filled in chunks, rolled back, forked, saved and loaded, with and without RoPE.
 * SPDX-License-Identifier: MIT
 */
#include "caches.h"

#include <math.h>
#include <string.h>

enum {
    BATCH = 8,
    LONGEST = 150,
    BASE_MOST = 1021,
    LONG = BASE_MOST + LONGEST + 8,
    GROUP_HEADS = 2,
    QUERY_HEADS = 4,
    BIT_DIM = 64,
    BIT_DIM_V = 32,
    GARBAGE = 3
};

static const struct route {
    const char *name;
    int64_t page_size;
    int ring;
} routes[] = { { "contiguous", 0, 0 },        { "ring", 0, 1 },
               { "pages of 1", 1, 0 },        { "pages of 5", 5, 0 },
               { "pages of 16", 16, 0 },      { "pages of 256", 256, 0 },
               { "ring, pages of 1", 1, 1 },  { "ring, pages of 5", 5, 1 },
               { "ring, pages of 16", 16, 1 } };

typedef struct passage { /* one way through a cache */
    const struct route *route;
    int64_t batch, chunk, base, prefix, window; /* window -1: none */
    int64_t len[BATCH], shift[BATCH]; /* of the positions of an entry's keys from their numbers */
    int32_t order[BATCH];             /* of the sequences in the cache */
    int rollback, turned, positions, packed, stored, whole;
    int64_t recent;
    int moved; /* saved halfway, and loaded into a cache of another shape */
    attn_rope rope;
    const attn_kernels *kernels;
} passage;

static float keys[BATCH][GROUP_HEADS][LONG][BIT_DIM], vals[BATCH][GROUP_HEADS][LONG][BIT_DIM_V];
static float queries[BATCH][QUERY_HEADS][LONGEST][BIT_DIM];
static float mean[GROUP_HEADS][BIT_DIM];
static float scales_k[GROUP_HEADS * BIT_DIM], scales_v[GROUP_HEADS * BIT_DIM_V];
static unsigned char plain_k[sizeof keys], plain_v[sizeof vals];
static unsigned char kept_k[sizeof keys], kept_v[sizeof vals]; /* as recent rows */
typedef struct results {
    float o[BATCH][QUERY_HEADS][LONGEST][BIT_DIM_V], lse[BATCH][QUERY_HEADS][LONGEST];
    float stats[BATCH][QUERY_HEADS][LONGEST][2];
} results;
static results plain, got;

static void fill_normal(float *x, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof *x; i++)
        x[i] = rng_normal();
}

/* All entries begin as entry 0 does. */
static void share_prefix(const passage *w)
{
    for (int64_t b = 1; b < w->batch; b++)
        for (int h = 0; h < GROUP_HEADS; h++) {
            const size_t rows = (size_t)(w->base + w->prefix);
            memcpy(keys[b][h], keys[0][h], rows * sizeof keys[0][0][0]);
            memcpy(vals[b][h], vals[0][h], rows * sizeof vals[0][0][0]);
        }
}

static attn_tensor strided(const void *data, int64_t heads, int64_t rows, int64_t dim)
{
    attn_tensor t = { 0 };
    t.data = data;
    t.stride_batch = (ptrdiff_t)(heads * rows * dim);
    t.stride_head = (ptrdiff_t)(rows * dim);
    t.stride_seq = (ptrdiff_t)dim;
    return t;
}

static void center(float (*rows)[BIT_DIM], const float *by)
{
    for (int i = 0; i < LONG; i++)
        for (int d = 0; d < BIT_DIM; d++)
            rows[i][d] -= by[d];
}

/* Scales of channels; those of V are one for each head where the cache says so. */
static float scale_of(int side, int64_t at)
{
    const int64_t dim = side == 0 ? BIT_DIM : BIT_DIM_V, h = at / (LONG * dim) % GROUP_HEADS;
    if (side == 0)
        return scales_k[h * BIT_DIM + at % dim];
    return cache.v_scales.stride_dim == ATTN_STRIDE_BROADCAST ? scales_v[h]
                                                              : scales_v[h * BIT_DIM_V + at % dim];
}

/* All rows of K or V from f32 to the type of the cache, and back. */
static void store_all(int side, void *to, const float *from, int64_t n)
{
    const int dtype = side == 0 ? cache.k.dtype : cache.v.dtype;
    if (dtype != ATTN_I8)
        attn_convert(to, dtype, from, ATTN_F32, (size_t)n);
    for (int64_t i = 0; i < n && dtype == ATTN_I8; i++)
        ((int8_t *)to)[i] = scaled_store(from[i], scale_of(side, i));
}

static void load_all(int side, float *to, const void *from, int64_t n)
{
    const int dtype = side == 0 ? cache.k.dtype : cache.v.dtype;
    if (dtype != ATTN_I8)
        attn_convert(to, ATTN_F32, from, dtype, (size_t)n);
    for (int64_t i = 0; i < n && dtype == ATTN_I8; i++)
        to[i] = scaled_load(((const int8_t *)from)[i], scale_of(side, i));
}

/* Whether keys and values come in the types of the cache. */
static int comes_stored(const passage *w)
{
    return w->stored && !w->packed && !cache.rotated && !cache.k_mean;
}

/* Recent rows of all numbers: what is rounded elsewhere, or what came rounded. */
static void keep_recent(const passage *w, float (*turned)[GROUP_HEADS][LONG][BIT_DIM],
                        float (*values)[GROUP_HEADS][LONG][BIT_DIM_V])
{
    const size_t n = sizeof keys / sizeof(float), n_v = sizeof vals / sizeof(float);
    if (comes_stored(w)) {
        load_all(0, turned[0][0][0], plain_k, (int64_t)n);
        load_all(1, values[0][0][0], plain_v, (int64_t)n_v);
    }
    attn_convert(kept_k, cache.recent_dtype, turned, ATTN_F32, n);
    attn_convert(kept_v, cache.recent_dtype, values, ATTN_F32, n_v);
}

/* Keys of all numbers as a cache should store them: turned by one call, values converted. What is
 * centered or rotated or has fewer than 16 bits is made of turned keys in f32. */
static void make_plain(const passage *w)
{
    static float turned[BATCH][GROUP_HEADS][LONG][BIT_DIM],
        values[BATCH][GROUP_HEADS][LONG][BIT_DIM_V];
    const int k_rotated = (cache.rotated & ATTN_ROTATED_K) != 0;
    const int in_f32 = cache.k.dtype > ATTN_BF16 || k_rotated || cache.k_mean || cache.recent;
    attn_rope_rows rows = { 0 };
    rows.batch = BATCH;
    rows.num_heads = GROUP_HEADS;
    rows.seq_len = LONG;
    rows.head_dim = BIT_DIM;
    rows.x.data = keys;
    rows.y.data = in_f32 ? (void *)turned : plain_k;
    rows.y.dtype = in_f32 ? ATTN_F32 : cache.k.dtype;
    rows.first = w->shift;
    if (w->turned)
        CHECK(attn_rope_apply(&w->rope, &rows, why, WHY) == ATTN_OK, "%s", why);
    else
        memcpy(turned, keys, sizeof keys);
    for (int i = 0; i < BATCH * GROUP_HEADS && cache.k_mean; i++)
        center(turned[i / GROUP_HEADS][i % GROUP_HEADS], mean[i % GROUP_HEADS]);
    if (k_rotated)
        attn_rotate(turned[0][0][0], BATCH * GROUP_HEADS * LONG, BIT_DIM);
    if (in_f32 || !w->turned)
        store_all(0, plain_k, turned[0][0][0], sizeof keys / sizeof(float));
    memcpy(values, vals, sizeof vals);
    if (cache.rotated & ATTN_ROTATED_V)
        attn_rotate(values[0][0][0], BATCH * GROUP_HEADS * LONG, BIT_DIM_V);
    store_all(1, plain_v, values[0][0][0], sizeof vals / sizeof(float));
    keep_recent(w, turned, values);
}

/* What both calls have in common: `rows` query rows from row t on. */
static attn_params bit_params(const passage *w, results *to, int64_t t, int64_t rows)
{
    attn_params p = { 0 };
    attn_tensor o = strided(&to->o[0][0][t][0], QUERY_HEADS, LONGEST, BIT_DIM_V);
    p.batch = w->batch;
    p.num_heads_q = QUERY_HEADS;
    p.num_heads_kv = GROUP_HEADS;
    p.seq_len_q = rows;
    p.head_dim = BIT_DIM;
    p.head_dim_v = BIT_DIM_V;
    p.causal = 1;
    p.integer = w->whole && cache.k.dtype >= ATTN_Q8_0;
    p.window = w->window >= 0 ? ATTN_WINDOW : 0;
    p.window_left = w->window >= 0 ? w->window : 0;
    p.q = strided(&queries[0][0][t][0], QUERY_HEADS, LONGEST, BIT_DIM);
    p.o.data = &to->o[0][0][t][0];
    p.o.stride_batch = o.stride_batch;
    p.o.stride_head = o.stride_head;
    p.o.stride_seq = o.stride_seq;
    p.lse.data = &to->lse[0][0][t];
    p.lse.stride_batch = QUERY_HEADS * LONGEST;
    p.lse.stride_head = LONGEST;
    p.lse.stride_seq = 1;
    p.stats.data = &to->stats[0][0][t][0];
    p.stats.stride_batch = QUERY_HEADS * LONGEST * 2;
    p.stats.stride_head = LONGEST * 2;
    p.stats.stride_seq = 2;
    return p;
}

static void run_plain(const passage *w)
{
    int64_t key_base[BATCH];
    int32_t q_len[BATCH];
    attn_params p = bit_params(w, &plain, 0, LONGEST);
    for (int b = 0; b < BATCH; b++) {
        key_base[b] = w->base;
        q_len[b] = (int32_t)w->len[b];
    }
    p.seq_len_kv = LONGEST;
    p.key_base = key_base;
    p.q_len = p.kv_len = q_len;
    p.k = strided(plain_k + dtype_bytes(cache.k.dtype, w->base * BIT_DIM), GROUP_HEADS, LONG,
                  BIT_DIM);
    p.v = strided(plain_v + dtype_bytes(cache.v.dtype, w->base * BIT_DIM_V), GROUP_HEADS, LONG,
                  BIT_DIM_V);
    p.k.dtype = cache.k.dtype;
    p.v.dtype = cache.v.dtype;
    if (p.k.dtype == ATTN_I8) {
        p.k_scales.data = scales_k;
        p.k_scales.stride_batch = p.k_scales.stride_seq = ATTN_STRIDE_BROADCAST;
    }
    if (p.v.dtype == ATTN_I8) {
        p.v_scales.data = scales_v;
        p.v_scales.stride_batch = p.v_scales.stride_seq = ATTN_STRIDE_BROADCAST;
        p.v_scales.stride_dim = cache.v_scales.stride_dim;
    }
    p.rotated = cache.rotated;
    p.k_centered = cache.k_mean != NULL;
    if (cache.recent > 0) { /* Number n lies in row n. */
        p.recent.keys = cache.recent;
        p.recent.ring = LONG;
        p.recent.k = strided(kept_k, GROUP_HEADS, LONG, BIT_DIM);
        p.recent.v = strided(kept_v, GROUP_HEADS, LONG, BIT_DIM_V);
        p.recent.k.dtype = p.recent.v.dtype = cache.recent_dtype;
    }
    CHECK(test_run(&p) == ATTN_OK, "plain");
}

/* Rows of all entries one after the other. */
static void pack_step(const passage *w, attn_cache_step *s, int64_t first, int32_t cu[BATCH + 1],
                      int64_t *positions)
{
    static float k[BATCH * LONG * GROUP_HEADS * BIT_DIM], v[BATCH * LONG * GROUP_HEADS * BIT_DIM_V];
    int32_t tokens = 0;
    for (int64_t b = 0; b < s->batch; b++) {
        cu[b] = tokens;
        for (int64_t i = 0; i < s->len[b]; i++, tokens++)
            for (int h = 0; h < GROUP_HEADS; h++) {
                memcpy(k + (tokens * GROUP_HEADS + h) * BIT_DIM, keys[b][h][first + i],
                       sizeof keys[b][h][0]);
                memcpy(v + (tokens * GROUP_HEADS + h) * BIT_DIM_V, vals[b][h][first + i],
                       sizeof vals[b][h][0]);
                positions[tokens] = w->shift[b] + first + i;
            }
    }
    cu[s->batch] = tokens;
    memset(&s->k, 0, sizeof s->k);
    memset(&s->v, 0, sizeof s->v);
    s->k.data = k;
    s->v.data = v;
    s->len = NULL;
    s->cu_seqlens = cu;
    s->seq_len = tokens;
}

/* What is there already in the types of the cache. */
static void take_stored(attn_cache_step *s, int64_t first)
{
    s->k.data = plain_k + dtype_bytes(cache.k.dtype, first * BIT_DIM);
    s->k.dtype = cache.k.dtype;
    s->v.data = plain_v + dtype_bytes(cache.v.dtype, first * BIT_DIM_V);
    s->v.dtype = cache.v.dtype;
}

/* Keys from `first` on of each entry, len[b] of them, as numbers from there on. */
static void append_rows(const passage *w, int64_t batch, int64_t first, const int32_t *len)
{
    static int64_t positions[BATCH * LONG];
    int32_t cu[BATCH + 1];
    attn_cache_step s = { 0 };
    s.batch = batch;
    s.sequences = w->order;
    s.len = len;
    for (int64_t b = 0; b < batch; b++)
        s.seq_len = len[b] > s.seq_len ? len[b] : s.seq_len;
    s.k = strided(&keys[0][0][first][0], GROUP_HEADS, LONG, BIT_DIM);
    s.v = strided(&vals[0][0][first][0], GROUP_HEADS, LONG, BIT_DIM_V);
    for (int64_t at = 0; at < batch * s.seq_len; at++)
        positions[at] = w->shift[at / s.seq_len] + first + at % s.seq_len;
    if (w->packed)
        pack_step(w, &s, first, cu, positions);
    else if (comes_stored(w))
        take_stored(&s, first);
    s.rope = w->turned ? &w->rope : NULL;
    s.positions = w->turned && w->positions ? positions : NULL;
    CHECK(attn_cache_append(&cache, &s, why, WHY) == ATTN_OK, "%s: %s", w->route->name, why);
}

/* Other keys, and back. */
static void append_garbage(const passage *w, int64_t first, const int32_t *len)
{
    int32_t more[BATCH];
    int64_t end[BATCH];
    for (int64_t b = 0; b < w->batch; b++) {
        more[b] = len[b] + GARBAGE;
        end[b] = cache.end[w->order[b]];
    }
    append_rows(w, w->batch, first - 1, more);
    for (int64_t b = 0; b < w->batch; b++)
        CHECK(attn_cache_trim(&cache, w->order[b], cache.begin[w->order[b]], end[b], why, WHY) ==
                  ATTN_OK,
              "%s: %s", w->route->name, why);
}

/* Numbers that only count, then the prefix of all entries. */
static void begin_passage(const passage *w)
{
    int32_t len[BATCH];
    for (int64_t n = 0; n < w->base; n += len[0]) {
        for (int b = 0; b < BATCH; b++)
            len[b] = (int32_t)(w->base - n < GARBAGE ? w->base - n : GARBAGE);
        append_rows(w, w->batch, n, len);
        for (int64_t b = 0; b < w->batch && !cache.ring; b++)
            attn_cache_trim(&cache, w->order[b], n + len[0], n + len[0], why, WHY);
    }
    for (int64_t b = 0; b < w->batch; b++) {
        const int64_t at = b > 0 && w->prefix > 0 ? 0 : w->base; /* to fork to, it must be empty */
        CHECK(attn_cache_trim(&cache, w->order[b], at, at, why, WHY) == ATTN_OK, "%s", why);
    }
    if (w->prefix == 0)
        return;
    len[0] = (int32_t)w->prefix;
    append_rows(w, 1, w->base, len);
    for (int64_t b = 1; b < w->batch; b++)
        CHECK(attn_cache_fork(&cache, w->order[0], w->order[b], w->base + w->prefix, why, WHY) ==
                  ATTN_OK,
              "%s", why);
}

static void run_chunk(const passage *w, int64_t t)
{
    static unsigned char room[1 << 14];
    int32_t len[BATCH];
    size_t need = 0;
    attn_params p = bit_params(w, &got, t, w->chunk);
    for (int64_t b = 0; b < w->batch; b++) {
        const int64_t left = w->len[b] > t ? w->len[b] - t : 0;
        len[b] = (int32_t)(left < w->chunk ? left : w->chunk);
    }
    if (w->rollback && w->base + t > 0)
        append_garbage(w, w->base + t, len);
    append_rows(w, w->batch, w->base + t, len);
    p.q_len = len;
    p.kernels = w->kernels;
    CHECK(attn_cache_view_size(&cache, w->batch, &need, why, WHY) == ATTN_OK, "%s", why);
    CHECK(attn_cache_view(&cache, 0, w->order, w->batch, &p, room, need, why, WHY) == ATTN_OK, "%s",
          why);
    CHECK(p.rotated == cache.rotated && p.k_centered == (cache.k_mean != NULL), "the view");
    CHECK(test_run(&p) == ATTN_OK, "%s, row %d", w->route->name, (int)t);
}

static void compare_passage(const passage *w)
{
    for (int64_t b = 0; b < w->batch; b++)
        for (int h = 0; h < QUERY_HEADS; h++) {
            const size_t rows = (size_t)(w->len[b] - w->prefix);
            CHECK(memcmp(plain.o[b][h][w->prefix], got.o[b][h][w->prefix],
                         rows * sizeof plain.o[0][0][0]) == 0 &&
                      memcmp(plain.lse[b][h] + w->prefix, got.lse[b][h] + w->prefix,
                             rows * sizeof(float)) == 0 &&
                      memcmp(plain.stats[b][h][w->prefix], got.stats[b][h][w->prefix],
                             rows * 2 * sizeof(float)) == 0,
                  "%s, entry %d of %d, head %d, base %d, prefix %d, chunks of %d, window %d, "
                  "rollback %d, moved %d, rope %d, rotated %d, mean %d, recent %d in %d, types %s "
                  "%s, whole %d, kernels %s",
                  w->route->name, (int)b, (int)w->batch, h, (int)w->base, (int)w->prefix,
                  (int)w->chunk, (int)w->window, w->rollback, w->moved, w->turned, cache.rotated,
                  cache.k_mean != NULL, (int)cache.recent, (int)cache.recent_rows,
                  dtype_name(cache.k.dtype), dtype_name(cache.v.dtype), w->whole,
                  attn_kernels_name(w->kernels));
        }
}

/* All that is present of an entry, as it is stored: the bytes that plain arrays have. */
static void compare_stored(const passage *w, int64_t b)
{
    static unsigned char room[2][GROUP_HEADS * LONG * BIT_DIM * sizeof(float)];
    const int64_t q = w->order[b], first = cache.begin[q], count = cache.length[q];
    const attn_output k = { .dtype = cache.k.dtype, .data = room[0] };
    const attn_output v = { .dtype = cache.v.dtype, .data = room[1] };
    CHECK(attn_cache_read(&cache, 0, q, first, count, &k, &v, why, WHY) == ATTN_OK, "%s", why);
    for (int h = 0; h < GROUP_HEADS; h++) {
        const int64_t row = (b * GROUP_HEADS + h) * LONG + first;
        const size_t k_bytes = dtype_bytes(cache.k.dtype, count * BIT_DIM);
        const size_t v_bytes = dtype_bytes(cache.v.dtype, count * BIT_DIM_V);
        CHECK(memcmp(room[0] + (size_t)h * k_bytes,
                     plain_k + dtype_bytes(cache.k.dtype, row * BIT_DIM), k_bytes) == 0 &&
                  memcmp(room[1] + (size_t)h * v_bytes,
                         plain_v + dtype_bytes(cache.v.dtype, row * BIT_DIM_V), v_bytes) == 0,
              "%s: entry %d, head %d is stored as other bytes, types %s %s", w->route->name, (int)b,
              h, dtype_name(cache.k.dtype), dtype_name(cache.v.dtype));
    }
}

static passage random_passage(const struct route *route, int64_t chunk, int64_t base)
{
    passage w = { 0 };
    int sets = 0;
    w.route = route;
    w.chunk = chunk;
    w.base = base;
    w.batch = rng_chance(50) ? 1 : BATCH;
    w.prefix = w.batch > 1 && rng_chance(40) ? rng_int(1, 100) : 0;
    w.window = route->ring || rng_chance(30) ? rng_int(0, 60) : -1;
    for (int b = 0; b < BATCH; b++) {
        w.len[b] = b == 0 ? LONGEST : rng_int(w.prefix, LONGEST);
        w.order[b] = (b * 3 + 5) % BATCH;
    }
    w.rollback = rng_chance(50);
    w.turned = rng_chance(50);
    w.positions = rng_chance(50);
    w.packed = rng_chance(30);
    w.moved = rng_chance(50);
    w.stored = !w.turned && rng_chance(50);
    w.whole = rng_chance(40);
    w.recent = rng_chance(50) ? rng_int(1, 70) : 0;
    w.rope.interleaved = rng_chance(50);
    for (int b = 0; b < BATCH && w.positions && w.prefix == 0; b++)
        w.shift[b] = rng_int(-9, 9);
    while (attn_kernels_get(sets) != NULL)
        sets++;
    w.kernels = attn_kernels_get((int)rng_int(0, sets - 1));
    return w;
}

/* Room for steps of `longest` keys. */
static void set_recent(const passage *w, attn_cache *c, int64_t longest)
{
    c->recent = c->ring && w->recent > c->capacity ? c->capacity : w->recent;
    c->recent_rows = rng_chance(30) ? 0 : c->recent + longest - 1 + rng_int(0, 9);
    c->recent_dtype = (int)rng_int(0, 2);
}

/* A type that K and V may have, i8 most often. */
static int random_stored(void)
{
    return rng_chance(30) ? ATTN_I8 : (int)rng_int(0, ATTN_Q4_0);
}

/* Scales of K by channel, one of them 0, and of V by channel or by head. */
static void set_cache_scales(attn_cache *c, int by_head)
{
    const attn_scales none = { 0, 0, 0, 0, NULL };
    c->k_scales = c->v_scales = none;
    if (c->k.dtype == ATTN_I8)
        c->k_scales.data = scales_k;
    if (c->v.dtype == ATTN_I8)
        c->v_scales.data = scales_v;
    c->v_scales.stride_dim = c->v.dtype == ATTN_I8 && by_head ? ATTN_STRIDE_BROADCAST : 0;
}

static void fill_cache_scales(void)
{
    for (int i = 0; i < GROUP_HEADS * BIT_DIM; i++)
        scales_k[i] = 0.01f + rng_unit() / 30;
    for (int i = 0; i < GROUP_HEADS * BIT_DIM_V; i++)
        scales_v[i] = 0.01f + rng_unit() / 30;
    scales_k[BIT_DIM + 5] = 0;
}

static int make_passage_cache(const passage *w)
{
    const int64_t longest = (w->prefix > w->chunk ? w->prefix : w->chunk) + GARBAGE;
    memset(&cache, 0, sizeof cache);
    cache.num_sequences = BATCH;
    cache.num_heads_kv = GROUP_HEADS;
    cache.head_dim = BIT_DIM;
    cache.head_dim_v = BIT_DIM_V;
    cache.page_size = w->route->page_size;
    cache.ring = w->route->ring;
    cache.window_left = cache.ring ? w->window : 0;
    cache.capacity = cache.ring ? w->window + longest : LONGEST + GARBAGE;
    cache.layout = (int)rng_int(0, 1);
    cache.k.dtype = random_stored();
    cache.v.dtype = random_stored();
    fill_cache_scales();
    set_cache_scales(&cache, rng_chance(50));
    cache.rotated = rng_chance(50) ? (int)rng_int(0, 3) : 0;
    cache.k_mean = rng_chance(40) ? mean[0] : NULL;
    if (w->recent > 0)
        set_recent(w, &cache, longest);
    return cache_start();
}

/* Another cache with what this one has. A ring stays one of its rows. */
static void move_cache(const passage *w)
{
    static const int64_t page_sizes[] = { 0, 1, 5, 16, 256 };
    attn_cache other = { 0 };
    const attn_snapshot s = file_snapshot(w->batch, w->order, w->turned ? &w->rope : NULL);
    CHECK(file_save(&s) == ATTN_OK, "%s", why);
    other.num_sequences = BATCH;
    other.num_heads_kv = GROUP_HEADS;
    other.head_dim = BIT_DIM;
    other.head_dim_v = BIT_DIM_V;
    other.page_size = cache.ring ? cache.page_size : RNG_PICK(page_sizes);
    other.ring = cache.ring;
    other.window_left = cache.window_left;
    other.capacity = cache.ring ? cache.capacity : LONGEST + GARBAGE + rng_int(0, 40);
    other.layout = (int)rng_int(0, 1);
    other.k.dtype = cache.k.dtype;
    other.v.dtype = cache.v.dtype;
    set_cache_scales(&other, cache.v_scales.stride_dim == ATTN_STRIDE_BROADCAST);
    other.rotated = cache.rotated;
    other.k_mean = cache.k_mean;
    if (cache.recent > 0) { /* The ring may be of another size. */
        set_recent(w, &other, (w->prefix > w->chunk ? w->prefix : w->chunk) + GARBAGE);
        other.recent = cache.recent;
        other.recent_dtype = cache.recent_dtype;
    }
    cache = other;
    if (cache_start())
        CHECK(file_load(&s) == ATTN_OK, "%s", why);
}

static void one_passage(const struct route *route, int64_t chunk, int64_t base)
{
    const passage w = random_passage(route, chunk, base);
    fill_normal(&keys[0][0][0][0], sizeof keys);
    fill_normal(&vals[0][0][0][0], sizeof vals);
    fill_normal(&queries[0][0][0][0], sizeof queries);
    fill_normal(mean[0], sizeof mean);
    if (w.prefix > 0)
        share_prefix(&w);
    if (!make_passage_cache(&w))
        return;
    make_plain(&w);
    run_plain(&w);
    begin_passage(&w);
    for (int64_t t = w.prefix; t < LONGEST; t += chunk) {
        if (w.moved && t <= LONGEST / 2 && t + chunk > LONGEST / 2)
            move_cache(&w);
        run_chunk(&w, t);
    }
    compare_passage(&w);
    for (int64_t b = 0; b < w.batch; b++)
        compare_stored(&w, b);
}

static void check_means_apart(float *means)
{
    const attn_output over = { .data = means };
    attn_cache c = cache;
    size_t need;
    CHECK(attn_cache_read(&cache, 0, 0, 0, 1, &over, NULL, why, WHY) == ATTN_ERR_ARG &&
              strstr(why, "k_mean overlaps k") != NULL,
          "%s", why);
    c.begin = NULL;
    c.k.data = c.v.data = NULL;
    c.k_mean = (const float *)(const void *)((const char *)means + 2);
    CHECK(attn_cache_size(&c, &need, why, WHY) == ATTN_ERR_ARG &&
              strstr(why, "k_mean: its address must be a multiple of 4") != NULL,
          "%s", why);
}

/* Each layer has a mean of its own. */
static void test_means(void)
{
    enum { LAYERS = 3, ROWS = 5 };
    static float means[LAYERS][GROUP_HEADS][BIT_DIM], read[GROUP_HEADS][ROWS][BIT_DIM];
    static const uint32_t nan = 0xffc00001u;
    const attn_output k = { .data = read };
    attn_cache_step s = { 0 };
    memset(&cache, 0, sizeof cache);
    cache.num_sequences = 1;
    cache.num_layers = LAYERS;
    cache.num_heads_kv = GROUP_HEADS;
    cache.head_dim = BIT_DIM;
    cache.capacity = ROWS;
    cache.k_mean = means[0][0];
    fill_normal(means[0][0], sizeof means);
    fill_normal(keys[0][0][0], sizeof keys[0]);
    memcpy(&keys[0][1][2][3], &nan, sizeof nan);
    if (!begin_case("means of layers") || !cache_start())
        return;
    s.batch = 1;
    s.seq_len = ROWS;
    s.k = s.v = strided(keys, GROUP_HEADS, LONG, BIT_DIM);
    CHECK(attn_cache_extend(&cache, &s, why, WHY) == ATTN_OK, "%s", why);
    check_means_apart(means[0][0]);
    for (int64_t layer = 0; layer < LAYERS; layer++) {
        CHECK(attn_cache_write(&cache, layer, &s, why, WHY) == ATTN_OK, "%s", why);
        CHECK(attn_cache_read(&cache, layer, 0, 0, ROWS, &k, NULL, why, WHY) == ATTN_OK, "%s", why);
        for (int h = 0; h < GROUP_HEADS; h++)
            for (int i = 0; i < ROWS; i++)
                for (int d = 0; d < BIT_DIM; d++) {
                    const float x = keys[0][h][i][d] - means[layer][h][d];
                    CHECK(float_bits(read[h][i][d]) == (isnan(x) ? 0x7fc00000u : float_bits(x)),
                          "layer %d, head %d, row %d, %d", (int)layer, h, i, d);
                }
    }
}

void test_cache_bits(void)
{
    static const int64_t chunks[] = { 1, 7, 64, LONGEST }, bases[] = { 0, 3, BASE_MOST };
    for (size_t r = 0; r < sizeof routes / sizeof *routes; r++)
        for (int c = 0; c < 4; c++)
            for (int b = 0; b < 3; b++)
                if (begin_case("%s, chunks of %d, key_base %d", routes[r].name, (int)chunks[c],
                               (int)bases[b]))
                    one_passage(&routes[r], chunks[c], bases[b]);
    test_means();
}
