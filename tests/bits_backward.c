/* bits_backward.c - test group `bits`: every way to make gradients gives the hashes of golden.h.
 * SPDX-License-Identifier: MIT
 *
 * canon_backward.c made the hashes. Each case runs with five and seven products: whole, with every
 * tile size, with shuffled workers, redone, in flush-to-zero mode, as packed sequences, each
 * gradient alone, dq by some rows at a time, dq, dk and dv by batch entry. Where bits.c is quick: a
 * larger case whole, with one number of products; any other whole, and with small tiles, shuffled
 * workers and redone at the same time.
 */
#include "bits.h"

#include "../attn.h"

#include <string.h>

enum { DQ = 1, DK = 2, DV = 4, REST = 8, ALL = 15 };

static const char *const names[] = { "dq", "dk", "dv", "dbias, dsinks or dslopes" };

/* Everything of one case: what goes in beside the forward's, and what all pieces of a run fill. */
typedef struct backward_fixture {
    fixture f;
    void *dout;
    float *dlse;
    void *dq, *dk, *dv; /* packed, of the storage type */
    float *dbias, *dsinks, *dslopes;
    int bias, sinks, slopes; /* elements */
    int q_rows, kv_rows;     /* of all heads */
} backward_fixture;

/* What a run varies and that must not change a bit. */
typedef struct manner {
    int gemms, tile_keys, redo, workers;
    attn_parallel_for_fn parallel_for;
    int want; /* 0 = all */
} manner;

/* ---- inputs, outputs ---------------------------------------------------------------------- */

static float *floats(int count)
{
    return count > 0 ? test_alloc((size_t)count * sizeof(float)) : NULL;
}

static void make_backward_fixture(backward_fixture *g, const bits_case *c)
{
    fixture *f = &g->f;
    memset(g, 0, sizeof *g);
    make_fixture(f, c);
    g->q_rows = f->batch * c->hq * c->sq;
    g->kv_rows = f->batch * c->hkv * c->skv;
    g->bias = c->bias ? bits_bias_count(c) : 0;
    g->sinks = c->sink ? c->hq : 0;
    g->slopes = c->alibi ? c->hq * (c->alibi == 2 ? f->batch : 1) : 0;
    g->dout = make_input(c, g->q_rows * f->dv, f->size, bits_dout);
    g->dlse = c->dlse ? make_input(c, g->q_rows, 4, bits_dlse) : NULL;
    g->dq = test_alloc((size_t)(g->q_rows * c->d) * f->size);
    g->dk = test_alloc((size_t)(g->kv_rows * c->d) * f->size);
    g->dv = test_alloc((size_t)(g->kv_rows * f->dv) * f->size);
    g->dbias = floats(g->bias);
    g->dsinks = floats(g->sinks);
    g->dslopes = floats(g->slopes);
}

static void spoil(backward_fixture *g)
{
    const fixture *f = &g->f;
    memset(g->dq, 0xff, (size_t)(g->q_rows * f->c->d) * f->size);
    memset(g->dk, 0xff, (size_t)(g->kv_rows * f->c->d) * f->size);
    memset(g->dv, 0xff, (size_t)(g->kv_rows * f->dv) * f->size);
    if (g->dbias != NULL)
        memset(g->dbias, 0xff, (size_t)g->bias * 4);
    if (g->dsinks != NULL)
        memset(g->dsinks, 0xff, (size_t)g->sinks * 4);
    if (g->dslopes != NULL)
        memset(g->dslopes, 0xff, (size_t)g->slopes * 4);
}

/* ---- hashes ------------------------------------------------------------------------------- */

static void feed_array(uint64_t *hash, const void *data, int first, int count, size_t size)
{
    for (int at = first; at < first + count; at++)
        feed(hash, data, (size_t)at, size);
}

static void feed_keys(const backward_fixture *g, int b, int head, golden_gradient *hash)
{
    const bits_case *c = g->f.c;
    const int row = (b * c->hkv + head) * c->skv + bits_kv_begin(c, b);
    const int keys = bits_kv_len(c, b);
    feed_array(&hash->dk, g->dk, row * c->d, keys * c->d, g->f.size);
    feed_array(&hash->dv, g->dv, row * g->f.dv, keys * g->f.dv, g->f.size);
}

static golden_gradient hash_of(const backward_fixture *g)
{
    const bits_case *c = g->f.c;
    golden_gradient hash = { NULL, EMPTY_HASH, EMPTY_HASH, EMPTY_HASH, EMPTY_HASH };
    for (int b = 0; b < g->f.batch; b++) {
        for (int h = 0; h < c->hq; h++)
            feed_array(&hash.dq, g->dq, (b * c->hq + h) * c->sq * c->d, bits_q_len(c, b) * c->d,
                       g->f.size);
        for (int h = 0; h < c->hkv; h++)
            feed_keys(g, b, h, &hash);
    }
    feed_array(&hash.rest, g->dbias, 0, g->bias, 4);
    feed_array(&hash.rest, g->dsinks, 0, g->sinks, 4);
    feed_array(&hash.rest, g->dslopes, 0, g->slopes, 4);
    return hash;
}

/* Whether the rows outside first .. first + count - 1 of every `rows` are as spoil left them. */
static int unwritten(const void *data, int row, int rows, int first, int count, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)data + (size_t)(row * rows) * bytes;
    for (size_t n = 0; n < (size_t)rows * bytes; n++)
        if (at[n] != 0xff && (n < (size_t)first * bytes || n >= (size_t)(first + count) * bytes))
            return 0;
    return 1;
}

static void check_unused(const backward_fixture *g, const char *what)
{
    const bits_case *c = g->f.c;
    const size_t dim = (size_t)c->d * g->f.size, dim_v = (size_t)g->f.dv * g->f.size;
    int held = 1;
    for (int b = 0; b < g->f.batch; b++) {
        const int begin = bits_kv_begin(c, b), keys = bits_kv_len(c, b);
        for (int h = 0; h < c->hq; h++)
            held &= unwritten(g->dq, b * c->hq + h, c->sq, 0, bits_q_len(c, b), dim);
        for (int h = b * c->hkv; h < (b + 1) * c->hkv; h++)
            held &= unwritten(g->dk, h, c->skv, begin, keys, dim) &
                    unwritten(g->dv, h, c->skv, begin, keys, dim_v);
    }
    CHECK(held, "%s: rows or keys that are not in use were written", what);
}

/* Compares the wanted outputs with the expected hashes, then spoils all for the next run. */
static void check_hash(backward_fixture *g, int want, const manner *how, const char *what,
                       int number)
{
    const golden_gradient *expected = &golden_gradients[g->f.c - bits_gradient_cases];
    const golden_gradient hash = hash_of(g);
    const int same = (hash.dq == expected->dq ? DQ : 0) | (hash.dk == expected->dk ? DK : 0) |
                     (hash.dv == expected->dv ? DV : 0) | (hash.rest == expected->rest ? REST : 0);
    for (int n = 0; n < 4; n++)
        if (want & 1 << n)
            CHECK(same & 1 << n, "%s %d, %d products: %s not of golden.h", what, number, how->gemms,
                  names[n]);
    check_unused(g, what);
    spoil(g);
}

/* ---- one call ----------------------------------------------------------------------------- */

static attn_status run_backward(const attn_params *p, const attn_gradients *g)
{
    const int mark = test_mark();
    size_t need = 0;
    attn_status status = attn_backward_workspace_size(p, g, &need);
    if (status == ATTN_OK)
        status = attn_backward(p, g, test_alloc(need), need);
    test_release_to(mark);
    return status;
}

static void set_manner(attn_params *p, attn_gradients *g, const manner *how, int *workers)
{
    const int want = how->want ? how->want : ALL;
    g->gemms = how->gemms;
    p->tile_keys = how->tile_keys;
    p->force_redo = how->redo;
    p->num_workers = *workers = how->workers;
    p->parallel_for = how->parallel_for;
    p->parallel_user = workers;
    g->dq.data = want & DQ ? g->dq.data : NULL;
    g->dk.data = want & DK ? g->dk.data : NULL;
    g->dv.data = want & DV ? g->dv.data : NULL;
    g->dbias.data = want & REST ? g->dbias.data : NULL;
    g->dsinks = want & REST ? g->dsinks : NULL;
    g->dslopes = want & REST ? g->dslopes : NULL;
}

static void set_packed(ptrdiff_t *seq, ptrdiff_t *head, ptrdiff_t *batch, int heads, int rows,
                       int width)
{
    *seq = width;
    *head = (ptrdiff_t)rows * width;
    *batch = (ptrdiff_t)heads * rows * width;
}

/* Elements before row i of batch entry b, with `heads` heads of `rows` rows. */
static size_t before(int b, int i, int heads, int rows, int width)
{
    return (size_t)((b * heads * rows + i) * width);
}

#define PACKED(x, heads, rows, width)                                                              \
    set_packed(&(x).stride_seq, &(x).stride_head, &(x).stride_batch, heads, rows, width)

/* The rows of the piece in the arrays of the whole; keys are those of the batch entry. */
static void set_outputs(const backward_fixture *g, const piece *w, attn_params *p,
                        attn_gradients *out)
{
    const bits_case *c = g->f.c;
    const size_t size = g->f.size;
    const size_t values = before(w->b, w->i, c->hq, c->sq, g->f.dv) * size;
    const size_t row = before(w->b, w->i, c->hq, c->sq, 1);
    memset(out, 0, sizeof *out);
    out->dout.dtype = out->dq.dtype = out->dk.dtype = out->dv.dtype = c->dtype;
    p->o.data = g->f.o + values;
    p->lse.data = g->f.lse + row;
    p->stats.data = c->lse_alone ? NULL : g->f.stats + 2 * row;
    out->dout.data = (const char *)g->dout + values;
    out->dlse.data = g->dlse != NULL ? g->dlse + row : NULL;
    out->dq.data = (char *)g->dq + before(w->b, w->i, c->hq, c->sq, c->d) * size;
    out->dk.data = (char *)g->dk + before(w->b, 0, c->hkv, c->skv, c->d) * size;
    out->dv.data = (char *)g->dv + before(w->b, 0, c->hkv, c->skv, g->f.dv) * size;
    out->dbias.data = g->dbias;
    out->dsinks = g->dsinks;
    out->dslopes = g->dslopes;
    if (!w->whole) {
        PACKED(p->o, c->hq, c->sq, g->f.dv);
        PACKED(p->lse, c->hq, c->sq, 1);
        PACKED(p->stats, c->hq, c->sq, 2);
        PACKED(out->dout, c->hq, c->sq, g->f.dv);
        PACKED(out->dlse, c->hq, c->sq, 1);
        PACKED(out->dq, c->hq, c->sq, c->d);
    }
}

static void run_piece(backward_fixture *g, const piece *w, const manner *how)
{
    int workers;
    arrays a;
    attn_gradients out;
    attn_params p = piece_params(&g->f, w, &a);
    attn_status status;
    set_outputs(g, w, &p, &out);
    set_manner(&p, &out, how, &workers);
    p = test_params(&p);
    test_reword(&p, &out);
    status = run_backward(&p, &out);
    CHECK(status == ATTN_OK, "status %d", (int)status);
}

static piece whole_of(const backward_fixture *g)
{
    const piece w = { 0, g->f.batch, 0, g->f.c->sq, 0, g->f.c->skv, 1 };
    return w;
}

static void run_whole(backward_fixture *g, const manner *how)
{
    const piece w = whole_of(g);
    run_piece(g, &w, how);
}

/* o, and stats or lse, which gradients need; beside stats the lse stays NaN. */
static void run_forward(backward_fixture *g)
{
    const piece w = whole_of(g);
    arrays a;
    attn_params p = piece_params(&g->f, &w, &a);
    p.o.data = g->f.o;
    *(g->f.c->lse_alone ? &p.lse.data : &p.stats.data) = g->f.c->lse_alone ? g->f.lse : g->f.stats;
    CHECK(test_run(&p) == ATTN_OK, "forward");
}

/* ---- packed sequences --------------------------------------------------------------------- */

/* The rows in use of the batch entries: queries or keys. */
typedef struct token_rows {
    int heads, rows, total, first[MAX_BATCH];
    int32_t cu[MAX_BATCH + 1];
} token_rows;

/* An array that goes with them: [batch, head, row] of the case and [token, head], or [head, token],
 * of the call. */
typedef struct token_array {
    const token_rows *rows;
    void *packed, *tokens;
    size_t bytes; /* of a row */
    int by_head;
} token_array;

static token_rows query_tokens(const bits_case *c)
{
    token_rows t = { .heads = c->hq, .rows = c->sq };
    for (int b = 0; b < bits_batch(c); b++)
        t.cu[b + 1] = t.cu[b] + bits_q_len(c, b);
    t.total = t.cu[bits_batch(c)];
    return t;
}

static token_rows key_tokens(const bits_case *c)
{
    token_rows t = { .heads = c->hkv, .rows = c->skv };
    for (int b = 0; b < bits_batch(c); b++) {
        t.first[b] = bits_kv_begin(c, b);
        t.cu[b + 1] = t.cu[b] + bits_kv_len(c, b);
    }
    t.total = t.cu[bits_batch(c)];
    return t;
}

static void move_tokens(const token_array *a, int batch, int to_tokens)
{
    const token_rows *t = a->rows;
    for (int b = 0; b < batch; b++)
        for (int n = t->cu[b]; n < t->cu[b + 1]; n++)
            for (int h = 0; h < t->heads; h++) {
                const int row = (b * t->heads + h) * t->rows + t->first[b] + n - t->cu[b];
                const int token = a->by_head ? h * t->total + n : n * t->heads + h;
                char *packed = (char *)a->packed + (size_t)row * a->bytes;
                char *moved = (char *)a->tokens + (size_t)token * a->bytes;
                memcpy(to_tokens ? moved : packed, to_tokens ? packed : moved, a->bytes);
            }
}

enum {
    TOKENS_Q,
    TOKENS_K,
    TOKENS_V,
    TOKENS_O,
    TOKENS_LSE,
    TOKENS_STATS,
    TOKENS_DOUT,
    TOKENS_DLSE,
    TOKENS_DQ,
    TOKENS_DK,
    TOKENS_DV,
    TOKEN_ARRAYS
};

/* Every array of the call as tokens; the inputs are filled in. */
static void make_tokens(const backward_fixture *g, const token_rows *q, const token_rows *kv,
                        token_array list[TOKEN_ARRAYS])
{
    const fixture *f = &g->f;
    const size_t dim = (size_t)f->c->d * f->size, dim_v = (size_t)f->dv * f->size;
    const token_array all[TOKEN_ARRAYS] = {
        { q, f->q, NULL, dim, 0 },      { kv, f->k, NULL, dim, 0 },    { kv, f->v, NULL, dim_v, 0 },
        { q, f->o, NULL, dim_v, 0 },    { q, f->lse, NULL, 4, 1 },     { q, f->stats, NULL, 8, 1 },
        { q, g->dout, NULL, dim_v, 0 }, { q, g->dlse, NULL, 4, 1 },    { q, g->dq, NULL, dim, 0 },
        { kv, g->dk, NULL, dim, 0 },    { kv, g->dv, NULL, dim_v, 0 },
    };
    for (int n = 0; n < TOKEN_ARRAYS; n++) {
        const size_t rows = (size_t)(all[n].rows->total * all[n].rows->heads);
        list[n] = all[n];
        if (all[n].packed == NULL)
            continue;
        list[n].tokens = test_alloc(rows * all[n].bytes);
        if (n < TOKENS_DQ)
            move_tokens(&list[n], f->batch, 1);
    }
}

/* The whole case as packed sequences. A bias would have other columns. */
static void run_tokens(backward_fixture *g, const manner *how)
{
    const token_rows q = query_tokens(g->f.c), kv = key_tokens(g->f.c);
    const piece w = whole_of(g);
    const int mark = test_mark();
    token_array list[TOKEN_ARRAYS];
    arrays a;
    attn_gradients out;
    attn_params p = piece_params(&g->f, &w, &a);
    int workers;
    make_tokens(g, &q, &kv, list);
    set_outputs(g, &w, &p, &out);
    p.seq_len_q = q.total;
    p.seq_len_kv = kv.total;
    p.cu_seqlens_q = q.cu;
    p.cu_seqlens_kv = kv.cu;
    p.q_len = p.kv_len = p.kv_begin = NULL;
    p.q.data = list[TOKENS_Q].tokens;
    p.k.data = list[TOKENS_K].tokens;
    p.v.data = list[TOKENS_V].tokens;
    p.o.data = list[TOKENS_O].tokens;
    p.lse.data = list[TOKENS_LSE].tokens;
    p.stats.data = g->f.c->lse_alone ? NULL : list[TOKENS_STATS].tokens;
    out.dout.data = list[TOKENS_DOUT].tokens;
    out.dlse.data = list[TOKENS_DLSE].tokens;
    out.dq.data = list[TOKENS_DQ].tokens;
    out.dk.data = list[TOKENS_DK].tokens;
    out.dv.data = list[TOKENS_DV].tokens;
    set_manner(&p, &out, how, &workers);
    p = test_params(&p);
    CHECK(run_backward(&p, &out) == ATTN_OK, "packed sequences");
    for (int n = TOKENS_DQ; n < TOKEN_ARRAYS; n++)
        move_tokens(&list[n], g->f.batch, 0);
    test_release_to(mark);
}

/* ---- manners ------------------------------------------------------------------------------ */

static void check_whole(backward_fixture *g, const manner *how, const char *what, int number)
{
    run_whole(g, how);
    check_hash(g, how->want ? how->want : ALL, how, what, number);
}

static void check_tiles(backward_fixture *g, int gemms)
{
    static const int tiles[] = { 16, 64, 128 };
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++) {
        const manner how = { .gemms = gemms, .tile_keys = tiles[t] };
        check_whole(g, &how, "tile of keys:", tiles[t]);
    }
}

static void check_workers(backward_fixture *g, int gemms)
{
    for (int workers = 1; workers <= 8; workers++) {
        const manner how = { .gemms = gemms, .workers = workers, .parallel_for = shuffled };
        check_whole(g, &how, "shuffled workers:", workers);
    }
}

static void check_redo(backward_fixture *g, int gemms)
{
    for (int tile = 0; tile <= 16; tile += 16) {
        const manner how = { .gemms = gemms, .tile_keys = tile, .redo = 1 };
        check_whole(g, &how, "redo, tile of keys:", tile);
    }
}

static void check_all_at_once(backward_fixture *g, int gemms)
{
    const manner how = {
        .gemms = gemms, .tile_keys = 16, .redo = 1, .workers = 3, .parallel_for = shuffled
    };
    check_whole(g, &how, "redo, small tiles, shuffled workers:", how.workers);
}

static void check_flushed(backward_fixture *g, int gemms)
{
    const manner how = { .gemms = gemms };
    uint64_t mode;
    if (!flush_begin(&mode)) {
        SKIP("no flush-to-zero mode known here");
        return;
    }
    run_whole(g, &how);
    flush_end(mode);
    check_hash(g, ALL, &how, "flush to zero", 0);
}

static void check_alone(backward_fixture *g, int gemms)
{
    for (int want = DQ; want <= DV; want <<= 1) {
        const manner how = { .gemms = gemms, .want = want };
        check_whole(g, &how, "alone", want);
    }
}

static void check_tokens(backward_fixture *g, int gemms)
{
    const manner how = { .gemms = gemms };
    if (g->f.c->bias)
        return;
    run_tokens(g, &how);
    check_hash(g, ALL, &how, "packed sequences", 0);
}

/* The row of dq needs no other row, so that they can come in pieces. */
static void check_rows(backward_fixture *g, int gemms)
{
    const bits_case *c = g->f.c;
    const manner how = { .gemms = gemms, .want = DQ };
    for (int i = 0, rows = 1; i < c->sq; i += rows, rows += 5) {
        const piece w = { 0, g->f.batch, i, between(1, rows, c->sq - i), 0, c->skv, 0 };
        run_piece(g, &w, &how);
    }
    check_hash(g, DQ, &how, "rows at a time:", 5);
}

/* The counter of the dropout names the batch entry, so that a dropped batch cannot be split. */
static void check_batch(backward_fixture *g, int gemms)
{
    const manner how = { .gemms = gemms, .want = DQ | DK | DV };
    if (g->f.batch == 1 || g->f.c->dropout)
        return;
    for (int b = 0; b < g->f.batch; b++) {
        const piece w = { b, 1, 0, g->f.c->sq, 0, g->f.c->skv, 0 };
        run_piece(g, &w, &how);
    }
    check_hash(g, how.want, &how, "batch entries one by one:", g->f.batch);
}

/* ---- all cases ------------------------------------------------------------------------------ */

static void check_quickly(backward_fixture *g, int gemms, int quick)
{
    const manner plain = { .gemms = gemms };
    check_whole(g, &plain, "whole", 0);
    if (!is_large(g->f.c) && quick != ONCE)
        check_all_at_once(g, gemms);
}

static void check_case(backward_fixture *g, int gemms)
{
    const manner plain = { .gemms = gemms };
    check_whole(g, &plain, "whole", 0);
    check_tiles(g, gemms);
    check_workers(g, gemms);
    check_redo(g, gemms);
    check_flushed(g, gemms);
    check_alone(g, gemms);
    check_tokens(g, gemms);
    check_rows(g, gemms);
    check_batch(g, gemms);
}

void check_gradients(int quick)
{
    const int known = (int)(sizeof golden_gradients / sizeof *golden_gradients);
    CHECK(known == BITS_GRADIENT_CASES, "golden.h has gradients of %d cases, bits_data.h %d", known,
          BITS_GRADIENT_CASES);
    for (int n = 0; n < BITS_GRADIENT_CASES && n < known; n++) {
        const char *name = bits_gradient_cases[n].name;
        backward_fixture g;
        if (!begin_case("gradients of %s", name))
            continue;
        if (!CHECK(strcmp(golden_gradients[n].name, name) == 0, "golden: %s",
                   golden_gradients[n].name))
            continue;
        if (quick == ONCE && is_large(&bits_gradient_cases[n]) && !T.best)
            continue;
        make_backward_fixture(&g, &bits_gradient_cases[n]);
        run_forward(&g);
        spoil(&g);
        for (int gemms = 5; gemms <= 7; gemms += 2)
            if (!quick)
                check_case(&g, gemms);
            else if (!(is_large(g.f.c) || quick == ONCE) || gemms == (n % 2 ? 5 : 7))
                check_quickly(&g, gemms, quick);
    }
}
