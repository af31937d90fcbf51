/* bits.c - test group `bits`: every way to make a result gives the hashes of golden.h.
 * SPDX-License-Identifier: MIT
 *
 * The cases and their inputs are in bits_data.h; canon.c, which knows nothing of attn.c, made the
 * hashes. Each case runs whole, with every tile size, with shuffled workers, redone, in flush-to-
 * zero mode, a row at a time, in prompt pieces, by batch entry, and as raw states of single chunks
 * merged along the tree. The group runs once for each kernel set. Gradients: bits_backward.c.
 *
 * Larger cases run whole only for the sets that are not the best of this CPU, and for all where
 * ATTN_TEST_QUICK is in the environment (emulators). Where it is "once", all others run whole only,
 * and larger ones with the best set only.
 */
#include "bits.h"

#include <stdlib.h>
#include <string.h>

#if defined __SSE__
#include <xmmintrin.h>
#endif

/* ---- inputs ------------------------------------------------------------------------------- */

static void put_bits(void *data, size_t at, uint32_t bits, size_t size)
{
    const uint16_t half = (uint16_t)bits;
    if (size == 2)
        memcpy((char *)data + 2 * at, &half, 2);
    else
        memcpy((char *)data + 4 * at, &bits, 4);
}

void *make_input(const bits_case *c, int count, size_t size,
                 uint32_t (*element)(const bits_case *, uint32_t))
{
    void *data = test_alloc((size_t)count * size);
    for (int at = 0; at < count; at++)
        put_bits(data, (size_t)at, element(c, (uint32_t)at), size);
    return data;
}

/* One unit as attn.h describes it. */
static void put_unit(unsigned char *to, const bits_case *c, uint32_t unit)
{
    const uint16_t scale = (uint16_t)bits_unit_scale(c, unit);
    const int middle = c->units == BITS_Q8_0 ? 0 : c->units == BITS_Q5_0 ? 16 : 8;
    unsigned char *q = to + 2 + (c->units == BITS_Q5_0 ? 4 : 0);
    memset(to, 0, dtype_bytes(c->units, BITS_UNIT));
    memcpy(to, &scale, sizeof scale);
    for (int i = 0; i < BITS_UNIT; i++) {
        const int x = bits_whole(c, unit * BITS_UNIT + (uint32_t)i) + middle;
        if (c->units == BITS_Q8_0) {
            q[i] = (unsigned char)x;
            continue;
        }
        q[i % 16] = (unsigned char)(q[i % 16] | (x & 15) << (i < 16 ? 0 : 4));
        if (c->units == BITS_Q5_0)
            to[2 + i / 8] = (unsigned char)(to[2 + i / 8] | x >> 4 << i % 8);
    }
}

static void *make_units(const bits_case *c, int count)
{
    const size_t each = dtype_bytes(c->units, BITS_UNIT);
    unsigned char *data = test_alloc((size_t)(count / BITS_UNIT) * each);
    for (int unit = 0; unit < count / BITS_UNIT; unit++)
        put_unit(data + (size_t)unit * each, c, (uint32_t)unit);
    return data;
}

static void *make_bytes(const bits_case *c, int count, int (*element)(const bits_case *, uint32_t))
{
    signed char *data = test_alloc((size_t)count);
    for (int at = 0; at < count; at++)
        data[at] = (signed char)element(c, (uint32_t)at);
    return data;
}

/* A cache whose storage is f->k and f->v; each batch entry is a sequence. */
static attn_cache cache_of(const fixture *f)
{
    const bits_case *c = f->c;
    attn_cache cache = { 0 };
    cache.num_sequences = f->batch;
    cache.num_heads_kv = c->hkv;
    cache.head_dim = c->d;
    cache.head_dim_v = f->dv;
    cache.capacity = c->skv;
    cache.k.dtype = f->k_type;
    cache.v.dtype = f->v_type;
    cache.k.data = f->k;
    cache.v.data = f->v;
    cache.k_scales.data = f->k_scales;
    cache.v_scales.data = f->v_scales;
    cache.rotated = c->rotated;
    cache.k_mean = c->centered ? make_input(c, c->hkv * c->d, 4, bits_mean) : NULL;
    return cache;
}

/* f->k and f->v are what a cache stores of rows in f32. */
static void fill_cache(fixture *f, int keys)
{
    const bits_case *c = f->c;
    char why[200] = "";
    size_t need = 0;
    attn_cache cache = cache_of(f);
    attn_cache_step s = { 0 };
    s.batch = f->batch;
    s.seq_len = c->skv;
    s.k.data = make_input(c, keys * c->d, 4, bits_rows_k);
    s.v.data = make_input(c, keys * f->dv, 4, bits_rows_v);
    CHECK(attn_cache_size(&cache, &need, why, sizeof why) == ATTN_OK, "%s", why);
    CHECK(attn_cache_init(&cache, test_alloc(need), need, why, sizeof why) == ATTN_OK, "%s", why);
    CHECK(attn_cache_append(&cache, &s, why, sizeof why) == ATTN_OK, "%s", why);
}

/* K and V of i8, for `keys` rows. */
static void make_scaled(fixture *f, int keys)
{
    const bits_case *c = f->c;
    const int by_key = c->scaled == BITS_BY_KEY;
    f->k_type = f->v_type = ATTN_I8;
    f->k = make_bytes(c, keys * c->d, bits_whole);
    f->v = make_bytes(c, keys * f->dv, bits_v_whole);
    f->k_scales = make_input(c, by_key ? keys : c->hkv * c->d, 4, bits_k_scale);
    f->v_scales = make_input(c, by_key ? keys : c->hkv * f->dv, 4, bits_v_scale);
    if (c->cached)
        fill_cache(f, keys);
}

/* Those of the keys from row `kv` of all. */
static attn_scales scales_from(const bits_case *c, const float *scales, size_t kv)
{
    attn_scales x = { 0, 0, 0, 0, scales };
    if (c->scaled == BITS_BY_KEY) {
        x.data += kv;
        x.stride_dim = ATTN_STRIDE_BROADCAST;
    } else {
        x.stride_batch = x.stride_seq = ATTN_STRIDE_BROADCAST;
    }
    return x;
}

void make_fixture(fixture *f, const bits_case *c)
{
    const int rows = bits_batch(c) * c->hq * c->sq;
    const int keys = bits_batch(c) * c->hkv * c->skv;
    memset(f, 0, sizeof *f);
    f->c = c;
    f->batch = bits_batch(c);
    f->dv = bits_dv(c);
    f->size = c->dtype == BITS_F32 ? 4 : 2;
    f->q = make_input(c, rows * c->d, f->size, bits_q);
    f->k_type = c->units ? c->units : c->dtype;
    f->v_type = c->dtype;
    if (c->scaled) {
        make_scaled(f, keys);
    } else {
        f->k = c->units ? make_units(c, keys * c->d) : make_input(c, keys * c->d, f->size, bits_k);
        f->v = make_input(c, keys * f->dv, f->size, bits_v);
    }
    f->key = dtype_bytes(f->k_type, c->d);
    f->value = dtype_bytes(f->v_type, f->dv);
    if (c->recent) {
        const int recent = bits_batch(c) * c->hkv * bits_ring(c);
        f->recent_k = make_input(c, recent * c->d, 4, bits_recent_k);
        f->recent_v = make_input(c, recent * f->dv, 4, bits_recent_v);
    }
    if (c->bias)
        f->bias = make_input(c, bits_bias_count(c), c->bias_dtype == BITS_F32 ? 4 : 2, bits_bias);
    f->sinks = c->sink ? make_input(c, c->hq, 4, bits_sink) : NULL;
    f->slopes = c->alibi ? make_input(c, c->hq * bits_batch(c), 4, bits_slope) : NULL;
    f->o = test_alloc((size_t)(rows * f->dv) * f->size);
    f->lse = test_alloc((size_t)rows * 4);
    f->stats = test_alloc((size_t)rows * 8);
    f->m = test_alloc((size_t)rows * 4);
    f->l = test_alloc((size_t)rows * 4);
    f->acc = test_alloc((size_t)(rows * f->dv) * 4);
    f->entropy = test_alloc((size_t)rows * 4);
    f->top_key = test_alloc((size_t)(rows * c->top) * 4);
    f->top_prob = test_alloc((size_t)(rows * c->top) * 4);
    f->dropped = test_alloc((size_t)rows * 4);
    f->logits = c->logits ? test_alloc((size_t)(rows * c->skv) * 4) : NULL;
}

/* ---- hashes ------------------------------------------------------------------------------- */

void feed(uint64_t *hash, const void *data, size_t at, size_t size)
{
    uint32_t x = 0;
    uint16_t half;
    memcpy(&half, (const char *)data + size * at, 2);
    if (size == 4)
        memcpy(&x, (const char *)data + size * at, 4);
    else
        x = half;
    for (; size > 0; size--, x >>= 8)
        *hash = (*hash ^ (x & 255)) * UINT64_C(0x100000001b3);
}

static void feed_row(const fixture *f, int row, golden_hash *hash)
{
    const void *o = f->c->partial ? (const void *)f->acc : f->o;
    const size_t size = f->c->partial ? 4 : f->size;
    for (int d = 0; d < f->dv; d++)
        feed(&hash->o, o, (size_t)(row * f->dv + d), size);
    if (f->c->partial) {
        feed(&hash->rest, f->m, (size_t)row, 4);
        feed(&hash->rest, f->l, (size_t)row, 4);
        return;
    }
    feed(&hash->rest, f->lse, (size_t)row, 4);
    feed(&hash->rest, f->stats, (size_t)(2 * row), 4);
    feed(&hash->rest, f->stats, (size_t)(2 * row + 1), 4);
    for (int j = 0; f->logits != NULL && j < f->c->skv; j++)
        feed(&hash->rest, f->logits, (size_t)(row * f->c->skv + j), 4);
    if (f->c->top)
        feed(&hash->rest, f->entropy, (size_t)row, 4);
    for (int n = row * f->c->top; n < (row + 1) * f->c->top; n++) {
        feed(&hash->rest, f->top_key, (size_t)n, 4);
        feed(&hash->rest, f->top_prob, (size_t)n, 4);
    }
    if (f->c->below)
        feed(&hash->rest, f->dropped, (size_t)row, 4);
}

/* Compares the outputs in *f with the expected hashes, then spoils them for the next run. */
static void check_hash(fixture *f, const char *how, int number)
{
    const golden_hash *want = &golden[f->c - bits_cases];
    const size_t rows = (size_t)(f->batch * f->c->hq * f->c->sq);
    golden_hash hash = { NULL, EMPTY_HASH, EMPTY_HASH };
    for (int b = 0; b < f->batch; b++)
        for (int h = 0; h < f->c->hq; h++)
            for (int i = 0; i < bits_q_len(f->c, b); i++)
                feed_row(f, (b * f->c->hq + h) * f->c->sq + i, &hash);
    CHECK(hash.o == want->o && hash.rest == want->rest, "%s %d: %s%s not of golden.h", how, number,
          hash.o == want->o ? "" : " o",
          hash.rest == want->rest ? "" : " lse, stats, m, l, logits, insight or dropped");
    memset(f->o, 0xff, rows * (size_t)f->dv * f->size);
    memset(f->acc, 0xff, rows * (size_t)f->dv * 4);
    memset(f->lse, 0xff, rows * 4);
    memset(f->stats, 0xff, rows * 8);
    memset(f->m, 0xff, rows * 4);
    memset(f->entropy, 0xff, rows * 4);
    memset(f->dropped, 0xff, rows * 4);
    memset(f->top_key, 0xff, rows * 4 * (size_t)f->c->top);
    memset(f->top_prob, 0xff, rows * 4 * (size_t)f->c->top);
}

/* ---- one call ----------------------------------------------------------------------------- */

static int offset_of(const bits_case *c, int b)
{
    if (c->alignment == BITS_BOTTOM_RIGHT)
        return bits_kv_len(c, b) - bits_q_len(c, b);
    return c->alignment == BITS_OFFSET ? c->offset + b : 0;
}

int between(int low, int x, int high)
{
    return x < low ? low : x > high ? high : x;
}

static void fill_arrays(const bits_case *c, const piece *w, arrays *a)
{
    for (int n = 0; n < w->batch; n++) {
        const int b = w->b + n;
        a->q_len[n] = between(0, bits_q_len(c, b) - w->i, w->rows);
        a->kv_len[n] = between(0, bits_kv_len(c, b) - w->j, w->keys);
        a->kv_begin[n] = bits_kv_begin(c, b) + w->j;
        a->key_base[n] = bits_key_base(c, b) + w->j;
        a->offset[n] = offset_of(c, b) + (w->whole ? 0 : w->i - w->j);
    }
}

static void set_tensors(const fixture *f, const piece *w, attn_params *p)
{
    const bits_case *c = f->c;
    const size_t q = (size_t)((w->b * c->hq * c->sq + w->i) * c->d);
    const size_t kv = (size_t)(w->b * c->hkv * c->skv);
    p->q.dtype = p->o.dtype = c->dtype;
    p->k.dtype = f->k_type;
    p->v.dtype = f->v_type;
    p->integer = c->units != 0;
    p->rotated = c->rotated;
    p->k_centered = c->centered;
    p->q.data = (const char *)f->q + q * f->size;
    p->k.data = (const char *)f->k + kv * f->key;
    p->v.data = (const char *)f->v + kv * f->value;
    if (c->scaled) {
        p->k_scales = scales_from(c, f->k_scales, kv);
        p->v_scales = scales_from(c, f->v_scales, kv);
    }
    if (c->recent) {
        const size_t ring = (size_t)(w->b * c->hkv * bits_ring(c));
        p->recent.keys = c->recent;
        p->recent.ring = bits_ring(c);
        p->recent.k.data = (const char *)f->recent_k + ring * (size_t)c->d * 4;
        p->recent.v.data = (const char *)f->recent_v + ring * (size_t)f->dv * 4;
    }
    if (!w->whole) {
        p->q.stride_seq = c->d;
        p->q.stride_head = (ptrdiff_t)c->sq * c->d;
        p->q.stride_batch = (ptrdiff_t)c->hq * c->sq * c->d;
    }
    if (f->bias != NULL) {
        const size_t bias_size = c->bias_dtype == BITS_F32 ? 4 : 2;
        p->bias.dtype = c->bias_dtype;
        p->bias.stride_batch = stride_of(bits_bias_stride(c, BITS_BATCH));
        p->bias.stride_head = stride_of(bits_bias_stride(c, BITS_HEADS));
        p->bias.stride_q = stride_of(bits_bias_stride(c, BITS_ROWS));
        p->bias.stride_kv = stride_of(bits_bias_stride(c, BITS_KEYS));
        p->bias.data = (const char *)f->bias + bits_bias_at(c, w->b, 0, w->i, 0) * bias_size;
    }
}

attn_params piece_params(const fixture *f, const piece *w, arrays *a)
{
    const bits_case *c = f->c;
    attn_params p;
    memset(&p, 0, sizeof p);
    fill_arrays(c, w, a);
    set_tensors(f, w, &p);
    p.batch = w->batch;
    p.num_heads_q = c->hq;
    p.num_heads_kv = c->hkv;
    p.seq_len_q = w->rows;
    p.seq_len_kv = c->skv;
    p.head_dim = c->d;
    p.head_dim_v = f->dv;
    p.causal = c->causal;
    p.alignment = w->whole ? c->alignment : ATTN_ALIGN_OFFSET;
    p.q_offset = p.alignment == ATTN_ALIGN_OFFSET ? a->offset : NULL;
    p.window = c->window ? ATTN_WINDOW : 0;
    p.window_left = c->window ? c->window_left : 0;
    p.window_right = c->window ? c->window_right : 0;
    if (!w->whole || c->ragged || c->left) {
        p.q_len = a->q_len;
        p.kv_len = a->kv_len;
        p.kv_begin = a->kv_begin;
    }
    if (!w->whole || c->key_base || w->batch > 1)
        p.key_base = a->key_base;
    p.softcap = (float)c->softcap;
    p.alibi_slopes = c->alibi == 2 ? f->slopes + w->b * c->hq : f->slopes;
    p.alibi_stride = stride_of(c->alibi == 2 ? c->hq : 0);
    p.sinks = f->sinks;
    p.dropout_p = float_from_bits(c->dropout);
    p.dropout_seed = BITS_SEED;
    p.impl = ATTN_IMPL_TILED;
    return p;
}

/* Packed outputs of a piece, from test_alloc. */
static void make_outputs(const fixture *f, const piece *w, attn_params *p)
{
    const size_t rows = (size_t)(w->batch * f->c->hq * w->rows);
    p->state.m = test_alloc(rows * 4);
    p->state.l = test_alloc(rows * 4);
    p->state.o = test_alloc(rows * (size_t)f->dv * 4);
    p->state.num_rows = (int64_t)rows;
    p->state.head_dim_v = f->dv;
    p->o.data = test_alloc(rows * (size_t)f->dv * f->size);
    p->lse.data = test_alloc(rows * 4);
    p->stats.data = test_alloc(rows * 8);
    if (f->c->top) {
        p->insight.top = f->c->top;
        p->insight.entropy = test_alloc(rows * 4);
        p->insight.top_key = test_alloc(rows * 4 * (size_t)f->c->top);
        p->insight.top_prob = test_alloc(rows * 4 * (size_t)f->c->top);
    }
    if (f->c->below) {
        p->skip.below = float_from_bits(f->c->below);
        p->skip.dropped = test_alloc(rows * 4);
    }
    if (f->logits != NULL) {
        p->logits.stage = f->c->logits - 1;
        p->logits.data = test_alloc(rows * (size_t)f->c->skv * 4);
    }
}

static void copy_rows(void *to, const void *from, int to_row, int from_row, int rows, size_t bytes)
{
    memcpy((char *)to + (size_t)to_row * bytes, (const char *)from + (size_t)from_row * bytes,
           (size_t)rows * bytes);
}

/* Moves the outputs of a piece to where they belong in the whole. */
static void collect(fixture *f, const piece *w, const attn_params *p)
{
    const bits_case *c = f->c;
    for (int n = 0; n < w->batch * c->hq; n++) {
        const int to = (w->b * c->hq + n) * c->sq + w->i, from = n * w->rows;
        copy_rows(f->o, p->o.data, to, from, w->rows, (size_t)f->dv * f->size);
        copy_rows(f->lse, p->lse.data, to, from, w->rows, 4);
        copy_rows(f->stats, p->stats.data, to, from, w->rows, 8);
        copy_rows(f->m, p->state.m, to, from, w->rows, 4);
        copy_rows(f->l, p->state.l, to, from, w->rows, 4);
        copy_rows(f->acc, p->state.o, to, from, w->rows, (size_t)f->dv * 4);
        if (c->top) {
            const size_t ranks = 4 * (size_t)c->top;
            copy_rows(f->entropy, p->insight.entropy, to, from, w->rows, 4);
            copy_rows(f->top_key, p->insight.top_key, to, from, w->rows, ranks);
            copy_rows(f->top_prob, p->insight.top_prob, to, from, w->rows, ranks);
        }
        if (c->below)
            copy_rows(f->dropped, p->skip.dropped, to, from, w->rows, 4);
        if (f->logits != NULL)
            copy_rows(f->logits, p->logits.data, to, from, w->rows, (size_t)c->skv * 4);
    }
}

/* What a run of the case varies and that must not change a bit. */
typedef struct manner {
    int tile_keys, redo, workers;
    attn_parallel_for_fn parallel_for;
} manner;

static void run_piece(fixture *f, const piece *w, const manner *how)
{
    const int mark = test_mark();
    attn_status status;
    arrays a;
    attn_params p = piece_params(f, w, &a);
    make_outputs(f, w, &p);
    p.partial = f->c->partial;
    p.tile_keys = how->tile_keys;
    p.force_redo = how->redo;
    p.num_workers = how->workers;
    p.parallel_for = how->parallel_for;
    p.parallel_user = &p.num_workers;
    if (p.partial) {
        attn_params q = p;
        q.o.data = NULL;
        q.lse.data = NULL;
        q.stats.data = NULL;
        status = test_run(&q);
    } else {
        status = test_run(&p);
    }
    CHECK(status == ATTN_OK, "status %d", (int)status);
    collect(f, w, &p);
    test_release_to(mark);
}

static void run_whole(fixture *f, const manner *how)
{
    const piece w = { 0, f->batch, 0, f->c->sq, 0, f->c->skv, 1 };
    run_piece(f, &w, how);
}

/* ---- manners ------------------------------------------------------------------------------ */

int shuffled(void *user, int64_t n, attn_task_fn task, void *arg)
{
    const int workers = *(const int *)user;
    int64_t step = n * 3 / 8 + 1;
    while (n > 0 && common_divisor(step, n) != 1)
        step++;
    for (int64_t k = 0; k < n; k++)
        task(arg, (n - 1 + k * step) % n, (int)((k * 5 + 2) % workers));
    return 0;
}

static void check_tiles(fixture *f)
{
    static const int tiles[] = { 16, 32, 64, 128, 256, 512, 1024 };
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        const manner how = { .tile_keys = tiles[t] };
        run_whole(f, &how);
        check_hash(f, "tile of keys:", tiles[t]);
    }
}

static void check_workers(fixture *f)
{
    static const int workers[] = { 1, 2, 3, 7 };
    for (size_t t = 0; t < sizeof workers / sizeof *workers; t++) {
        const manner how = { .workers = workers[t], .parallel_for = shuffled };
        run_whole(f, &how);
        check_hash(f, "shuffled workers:", workers[t]);
    }
}

static void check_redo(fixture *f)
{
    for (int tile = 0; tile <= 16; tile += 16) {
        const manner how = { .tile_keys = tile, .redo = 1 };
        run_whole(f, &how);
        check_hash(f, "redo, tile of keys:", tile);
    }
}

int flush_begin(uint64_t *mode)
{
#if defined __SSE__
    *mode = _mm_getcsr();
    _mm_setcsr((unsigned)*mode | 0x8040u);
    return 1;
#elif defined __GNUC__ && defined __aarch64__
    uint64_t flushing;
    __asm__ volatile("mrs %0, fpcr" : "=r"(*mode));
    flushing = *mode | (uint64_t)1 << 24;
    __asm__ volatile("msr fpcr, %0" : : "r"(flushing));
    return 1;
#else
    *mode = 0;
    return 0;
#endif
}

void flush_end(uint64_t mode)
{
#if defined __SSE__
    _mm_setcsr((unsigned)mode);
#elif defined __GNUC__ && defined __aarch64__
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
    (void)mode;
#endif
}

static void check_flushed(fixture *f)
{
    const manner how = { 0 };
    uint64_t mode;
    if (!flush_begin(&mode)) {
        SKIP("no flush-to-zero mode known here");
        return;
    }
    run_whole(f, &how);
    flush_end(mode);
    check_hash(f, "flush to zero", 0);
}

/* Rows in pieces, one at a time if n = 1, else 1, n, 2n, ... rows; a causal piece gets only the
 * keys that had arrived by then. */
static void check_rows(fixture *f, int n)
{
    const bits_case *c = f->c;
    const manner how = { 0 };
    const int can_cut = c->causal && !c->logits;
    for (int i = 0, rows = 1; i < c->sq; i += rows, rows = n == 1 ? 1 : rows == 1 ? n : rows + n) {
        piece w = { 0, f->batch, i, between(1, rows, c->sq - i), 0, c->skv, 0 };
        int keys = 0;
        for (int b = 0; b < f->batch; b++) {
            const int seen = offset_of(c, b) + i + w.rows;
            keys = seen > keys ? seen : keys;
        }
        if (can_cut && keys < w.keys)
            w.keys = keys;
        run_piece(f, &w, &how);
    }
    check_hash(f, "rows at a time:", n);
}

/* The counter of the dropout names the batch entry, so that a dropped batch cannot be split. */
static int can_split_batch(const fixture *f)
{
    return f->batch == 1 || f->c->dropout == 0;
}

static void check_batch(fixture *f)
{
    const manner how = { 0 };
    for (int b = 0; b < f->batch; b++) {
        const piece w = { b, 1, 0, f->c->sq, 0, f->c->skv, 0 };
        run_piece(f, &w, &how);
    }
    check_hash(f, "batch entries one by one:", f->batch);
}

/* ---- raw states of chunks, merged along the tree -------------------------------------------- */

static int run_chunk(const fixture *f, int b, int first, int last, attn_state *out)
{
    arrays a;
    const piece w = { b, 1, 0, f->c->sq, first > 0 ? first : 0, last - (first > 0 ? first : 0), 0 };
    attn_params p = piece_params(f, &w, &a);
    p.partial = 1;
    p.state = *out;
    CHECK(test_run(&p) == ATTN_OK, "state of keys from %d", first);
    return 1;
}

static attn_state new_state(const fixture *f)
{
    attn_state s = { .num_rows = (int64_t)f->c->hq * f->c->sq, .head_dim_v = f->dv };
    s.m = test_alloc((size_t)s.num_rows * 4);
    s.l = test_alloc((size_t)s.num_rows * 4);
    s.o = test_alloc((size_t)(s.num_rows * s.head_dim_v) * 4);
    memset(s.m, 0, (size_t)s.num_rows * 4); /* rows beyond q_len are merged, too */
    memset(s.l, 0, (size_t)s.num_rows * 4);
    memset(s.o, 0, (size_t)(s.num_rows * s.head_dim_v) * 4);
    return s;
}

/* Node (level, index) of the tree of batch entry b into *out; 0 when no key lies in it. */
static int run_node(const fixture *f, int b, int level, int index, attn_state *out)
{
    const int first = (index << level) * ATTN_CHUNK - bits_key_base(f->c, b);
    const int last = first + (ATTN_CHUNK << level);
    attn_state upper;
    if (last <= 0 || first >= bits_kv_len(f->c, b))
        return 0;
    if (level == 0)
        return run_chunk(f, b, first, last, out);
    if (!run_node(f, b, level - 1, 2 * index, out))
        return run_node(f, b, level - 1, 2 * index + 1, out);
    upper = new_state(f);
    if (run_node(f, b, level - 1, 2 * index + 1, &upper))
        CHECK(attn_state_merge(out, &upper, out) == ATTN_OK, "merge at level %d", level);
    return 1;
}

static void check_merge(fixture *f)
{
    for (int b = 0; b < f->batch; b++) {
        const piece w = { b, 1, 0, f->c->sq, 0, f->c->skv, 0 };
        const int mark = test_mark();
        attn_state root = new_state(f);
        arrays a;
        attn_params p = piece_params(f, &w, &a);
        make_outputs(f, &w, &p);
        if (!run_node(f, b, 11, 0, &root))
            run_chunk(f, b, 0, 0, &root);
        p.state = root;
        if (!f->c->partial)
            CHECK(attn_state_finish(&p, &root) == ATTN_OK, "finish");
        collect(f, &w, &p);
        test_release_to(mark);
    }
    check_hash(f, "chunks merged, base", f->c->key_base);
}

/* ---- the group ---------------------------------------------------------------------------- */

int is_large(const bits_case *c)
{
    return (int64_t)bits_batch(c) * c->hq * c->sq * c->skv * (c->d + bits_dv(c)) > 1000000;
}

/* Soft FMA is 20 to 50 times slower, an emulator 10 times more: hence quick. */
static void check_case(fixture *f, int quick)
{
    const manner plain = { 0 };
    if (quick == ONCE && is_large(f->c) && !T.best)
        return;
    run_whole(f, &plain);
    check_hash(f, "whole", 0);
    if (quick == ONCE || (quick && is_large(f->c)))
        return;
    check_tiles(f);
    check_workers(f);
    check_redo(f);
    check_flushed(f);
    check_rows(f, 5);
    if (!is_large(f->c) || f->c->causal)
        check_rows(f, 1);
    if (can_split_batch(f)) {
        if (f->batch > 1)
            check_batch(f);
        if (!f->c->logits && !f->c->top && !f->c->below)
            check_merge(f);
    }
}

TEST_GROUP(bits, RUN_EACH_SET, "golden hashes of the canonical order")
{
    const char *text = getenv("ATTN_TEST_QUICK");
    const int quick = text != NULL && strcmp(text, "once") == 0 ? ONCE : !T.best || text != NULL;
    const int known = (int)(sizeof golden / sizeof *golden);
    if (!T.exact || T.impl == ATTN_IMPL_NAIVE) {
        SKIP("only the tiled implementation is canonical");
        return;
    }
    CHECK(known == BITS_CASES, "golden.h has %d cases, bits_data.h %d", known, BITS_CASES);
    for (int n = 0; n < BITS_CASES && n < known; n++) {
        fixture f;
        if (!begin_case("%s", bits_cases[n].name))
            continue;
        if (T.backend && (bits_cases[n].scaled || bits_cases[n].recent || bits_cases[n].top)) {
            SKIP("devices take no scales, no recent keys and no insight");
            continue;
        }
        if (!CHECK(strcmp(golden[n].name, bits_cases[n].name) == 0, "golden: %s", golden[n].name))
            continue;
        make_fixture(&f, &bits_cases[n]);
        check_case(&f, quick);
    }
    check_gradients(quick);
    check_index(quick);
}
