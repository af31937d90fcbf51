/* decode.c - the last rows of a call as a call of their own have the bits of the whole, whatever
 * the kernel set, tile, number of workers and order of their work.
 * SPDX-License-Identifier: MIT
 *
 * Each case runs a whole call once, in a plain loop, and then some rows of each batch entry, most
 * often the last ones, several times: each time in another manner, of which no bit may depend.
 * Sweeps over shapes and lengths go through fixed lists; masks and modifiers come from the table of
 * tests/features.c, each in turn with a random background of others. A failure prints the shape,
 * the features, the rows and the manner.
 *
 * Two more tables of checks: with the products of every kernel counted, none is left out or done
 * twice by any number of workers; and a parallel_for that fails stops the call at that loop.
 */
#include "spy.h"
#include "features.h"
#include "laws.h"
#include "oracle.h"
#include "pool.h"
#include "slices.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BATCH = 8 };

/* ---- manners --------------------------------------------------------------------------------- */

enum { THREADS, ALONE, LIBRARY, LOOPS }; /* pool_for with threads or without; OpenMP or a loop */

typedef struct manner {
    const attn_kernels *set; /* NULL = the library's choice */
    int tile_keys, redo, workers, loop, order;
    int split;  /* the keys of little work are divided among workers, too */
    int memory; /* of the workspace: percent of the way from the least to the best; -1 = exact */
} manner;

/* Sets without a fused multiply-add are up to 100 times slower: large calls leave them out. */
#define SLOW_FLOPS 1e6

static int is_too_slow(const attn_kernels *set, double flops)
{
    const char *name = attn_kernels_name(set);
    return flops > SLOW_FLOPS && set != attn_kernels_get(0) &&
           (strcmp(name, "portable") == 0 || strncmp(name, "sse2", 4) == 0 ||
            strcmp(name, "wasm") == 0 || strcmp(name, "wasm_narrow") == 0);
}

/* --kernels, else the library's choice or any set. */
static const attn_kernels *any_set(double flops)
{
    int count = 0, n;
    if (T.only != NULL)
        return attn_kernels_find(T.only);
    while (attn_kernels_get(count) != NULL)
        count++;
    n = (int)rng_int(-2, count - 1);
    return n < 0 || is_too_slow(attn_kernels_get(n), flops) ? NULL : attn_kernels_get(n);
}

static manner any_manner(double flops)
{
    static const int64_t tiles[] = { 0, 0, 16, 64, 256 }, memory[] = { -1, -1, 0, 40, 90 };
    static const int64_t workers[] = { 1, 2, 2, 3, 3, 5, 8 };
    static const int64_t loops[] = { THREADS, THREADS, ALONE, ALONE, ALONE, LIBRARY };
    manner m;
    m.set = any_set(flops);
    m.tile_keys = (int)RNG_PICK(tiles);
    m.redo = rng_chance(10);
    m.workers = (int)RNG_PICK(workers);
    m.loop = (int)RNG_PICK(loops);
    m.order = (int)rng_int(0, POOL_ORDERS - 1);
    m.memory = (int)RNG_PICK(memory);
    m.split = rng_chance(60);
    return m;
}

static const char *manner_text(const manner *m)
{
    static const char *const loops[] = { "threads", "one thread", "no parallel_for" };
    static const char *const orders[] = { "ascending", "descending", "shuffled" };
    static char text[200];
    snprintf(text, sizeof text, "kernels %s, tile_keys %d, %d workers, %s %s, workspace %d %%%s%s",
             m->set != NULL ? attn_kernels_name(m->set) : "as chosen", m->tile_keys, m->workers,
             loops[m->loop], orders[m->order], m->memory < 0 ? 100 : m->memory,
             m->split ? ", little work divided" : "", m->redo ? ", redo" : "");
    return text;
}

static void set_manner(attn_params *p, const manner *m, pool *used)
{
    *used = pool_of(m->workers, m->order, m->loop == THREADS);
    p->kernels = m->set;
    p->tile_keys = m->tile_keys;
    p->tuning = m->split ? "attn-tuning 1 split_work 1 end" : NULL;
    p->force_redo = m->redo;
    p->num_workers = m->workers;
    p->parallel_for = m->loop != LIBRARY ? pool_for : NULL;
    p->parallel_user = used;
}

/* ---- subjects: a whole call ------------------------------------------------------------------ */

typedef struct subject {
    test_problem whole;
    char text[500];
} subject;

static void say(subject *s, const char *format, ...) TEST_FORMAT(2, 3);

static void say(subject *s, const char *format, ...)
{
    const size_t at = strlen(s->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->text + at, sizeof s->text - at, format, arguments);
    va_end(arguments);
}

static double flops_of(const attn_params *p)
{
    const int64_t dim_v = p->head_dim_v != 0 ? p->head_dim_v : p->head_dim;
    return 2.0 * (double)(p->cu_seqlens_q != NULL ? 1 : p->batch) * (double)p->num_heads_q *
           (double)p->seq_len_q * (double)p->seq_len_kv * (double)(p->head_dim + dim_v);
}

static void say_shape(subject *s, const test_shape *shape)
{
    say(s, "batch %d, heads %d/%d, %d rows, %d keys, dim %d/%d, %s %s %s %s, layouts %d %d %d %d:",
        (int)shape->batch, (int)shape->heads_q, (int)shape->heads_kv, (int)shape->seq_q,
        (int)shape->seq_kv, (int)shape->dim, (int)shape->dim_v, dtype_name(shape->dtype_q),
        dtype_name(shape->dtype_k), dtype_name(shape->dtype_v), dtype_name(shape->dtype_o),
        shape->layout_q, shape->layout_k, shape->layout_v, shape->layout_o);
}

static void make_subject(subject *s, const test_shape *shape, const int *list, int count)
{
    s->text[0] = '\0';
    say_shape(s, shape);
    for (int n = 0; n < count; n++)
        say(s, " %s", features[list[n]].name);
    features_make(&s->whole, *shape, list, count);
    s->whole.p.impl = ATTN_IMPL_TILED;
}

/* K as the first part of rows that are a multiple of 1 KiB long. */
static void use_aliasing_keys(subject *s)
{
    test_tensor *k = &s->whole.k;
    tensor_make(k, k->dtype, LAYOUT_BHSD, k->batch, k->heads, k->seq, (k->dim / 256 + 1) * 256);
    tensor_fill_normal(k, 1.0f);
    s->whole.p.k = tensor_input(k);
    say(s, " key stride of %d", (int)k->dim);
}

/* V as a view of K, as in MLA. */
static void use_keys_as_values(subject *s)
{
    test_tensor *k = &s->whole.k;
    tensor_make(k, k->dtype, LAYOUT_BSHD, k->batch, k->heads, k->seq, k->dim);
    tensor_fill_normal(k, 1.0f);
    s->whole.p.k = s->whole.p.v = tensor_input(k);
    s->whole.v = *k;
    say(s, " v in k");
}

static int64_t rows_before_tree(const attn_params *p, int64_t b, int64_t rows)
{
    const int64_t all = oracle_rows(p, b);
    return all > rows ? all - rows : 0;
}

/* The last `rows` rows of each entry are a tree, those before it a text. */
static void use_tree(subject *s, int64_t rows)
{
    attn_params *p = &s->whole.p;
    const int varlen = p->cu_seqlens_q != NULL;
    int32_t *parents =
        test_alloc((size_t)((varlen ? 1 : p->batch) * p->seq_len_q) * sizeof *parents);
    for (int64_t b = 0; b < p->batch; b++) {
        int32_t *own = parents + (varlen ? p->cu_seqlens_q[b] : b * p->seq_len_q);
        const int64_t first = rows_before_tree(p, b, rows), all = oracle_rows(p, b);
        for (int64_t i = 0; i < all; i++)
            own[i] = (int32_t)(i < first ? i - 1 : rng_int(first - 1, i - 1));
    }
    p->tree_parents = parents;
    say(s, " tree");
}

/* NaN or infinity in some rows of V, now and then of K: of keys that a mask may hide or not. */
static void use_poison(subject *s)
{
    static const float poisons[] = { NAN, HUGE_VALF, -HUGE_VALF };
    for (int n = (int)rng_int(1, 4); n > 0; n--) {
        test_tensor *t = rng_chance(85) ? &s->whole.v : &s->whole.k;
        const int64_t b = rng_int(0, t->batch - 1), h = rng_int(0, t->heads - 1);
        const int64_t j = rng_int(0, t->seq - 1), d = rng_int(0, t->dim - 1);
        tensor_set(t, b, h, j, d, poisons[rng_int(0, 2)]);
        tensor_remember(t);
    }
    say(s, " poison");
}

static size_t logits_of(const attn_params *p)
{
    return (size_t)(p->batch * p->num_heads_q * p->seq_len_q * p->seq_len_kv);
}

/* Of all rows. */
static void use_logits(subject *s)
{
    attn_params *p = &s->whole.p;
    p->logits.stage = (int)rng_int(0, p->partial ? ATTN_LOGITS_BIAS : ATTN_LOGITS_SOFTMAX);
    p->logits.data = test_alloc(logits_of(p) * sizeof(float));
    say(s, " logits %d", p->logits.stage);
}

/* The whole call in a plain loop; nonzero: it went well. */
static int run_whole(subject *s)
{
    attn_params *p = &s->whole.p;
    const double flops = flops_of(p);
    p->kernels = rng_chance(flops < SLOW_FLOPS ? 40 : 0) ? any_set(flops) : attn_kernels_get(0);
    p->num_workers = 1;
    return problem_run(&s->whole);
}

/* ---- some rows of it ------------------------------------------------------------------------- */

typedef struct part {
    test_problem t;
    int64_t begin[MAX_BATCH], count[MAX_BATCH];
} part;

/* `rows` rows of each entry, or up to that number if uneven; the last ones, or any. */
static void make_part(const subject *s, part *c, int64_t rows, int is_uneven, int is_last)
{
    const attn_params *p = &s->whole.p;
    for (int64_t b = 0; b < p->batch; b++) {
        const int64_t all = oracle_rows(p, b), most = rows < all ? rows : all;
        c->count[b] = is_uneven ? rng_int(0, most) : most;
        c->begin[b] = is_last ? all - c->count[b] : rng_int(0, all - c->count[b]);
    }
    slice_rows_copied(&c->t, &s->whole, c->begin, c->count);
    if (p->logits.data != NULL) {
        c->t.p.logits = p->logits;
        c->t.p.logits.data = test_alloc(logits_of(&c->t.p) * sizeof(float));
    }
}

/* Outputs as they were made. */
static void clear_outputs(test_problem *t)
{
    const attn_params *p = &t->p;
    const size_t rows = (size_t)(t->o.batch * p->num_heads_q * p->seq_len_q);
    memcpy(t->o.memory, t->o.before, t->o.bytes);
    if (p->lse.data != NULL)
        memcpy(t->lse.memory, t->lse.before, t->lse.bytes);
    if (p->stats.data != NULL)
        memcpy(t->stats.memory, t->stats.before, t->stats.bytes);
    if (p->logits.data != NULL)
        memset(p->logits.data, 0xff, logits_of(p) * sizeof(float));
    if (!p->partial)
        return;
    memset(p->state.m, 0xff, rows * sizeof(float));
    memset(p->state.l, 0xff, rows * sizeof(float));
    memset(p->state.o, 0xff, rows * (size_t)t->o.dim * sizeof(float));
}

/* The first number that differs, -1 = none. A NaN equals any other: states and logits hold it as it
 * comes. */
static int64_t first_other(const float *a, const float *b, int64_t count)
{
    for (int64_t n = 0; n < count; n++)
        if (float_bits(a[n]) != float_bits(b[n]) && !(a[n] != a[n] && b[n] != b[n]))
            return n;
    return -1;
}

static const float *state_row(const attn_params *p, const float *x, int64_t dim, int64_t b,
                              int64_t h, int64_t i)
{
    return x + slice_row_number(p, b, h, i) * dim;
}

static const float *logits_row(const attn_params *p, int64_t b, int64_t h, int64_t i)
{
    return p->logits.data + ((b * p->num_heads_q + h) * p->seq_len_q + i) * p->seq_len_kv;
}

/* What differs in row i of the part, which is row j of the whole; NULL = nothing. */
static const char *other_in_row(const test_problem *t, const test_problem *whole, int64_t b,
                                int64_t h, int64_t i, int64_t j)
{
    const attn_params *p = &t->p, *w = &whole->p;
    if (p->logits.data != NULL &&
        first_other(logits_row(p, b, h, i), logits_row(w, b, h, j), p->seq_len_kv) >= 0)
        return "the logits";
    if (p->partial)
        return first_other(state_row(p, p->state.m, 1, b, h, i),
                           state_row(w, w->state.m, 1, b, h, j), 1) >= 0
                   ? "m of the state"
               : first_other(state_row(p, p->state.l, 1, b, h, i),
                             state_row(w, w->state.l, 1, b, h, j), 1) >= 0
                   ? "l of the state"
               : first_other(state_row(p, p->state.o, t->o.dim, b, h, i),
                             state_row(w, w->state.o, t->o.dim, b, h, j), t->o.dim) >= 0
                   ? "o of the state"
                   : NULL;
    if (p->o.data != NULL && memcmp(slice_row(p, &t->o, b, h, i), slice_row(w, &whole->o, b, h, j),
                                    (size_t)t->o.dim * dtype_size(t->o.dtype)) != 0)
        return "o";
    if (p->lse.data != NULL && memcmp(slice_row(p, &t->lse, b, h, i),
                                      slice_row(w, &whole->lse, b, h, j), sizeof(float)) != 0)
        return "lse";
    return p->stats.data != NULL &&
                   memcmp(slice_row(p, &t->stats, b, h, i), slice_row(w, &whole->stats, b, h, j),
                          2 * sizeof(float)) != 0
               ? "stats"
               : NULL;
}

/* Nonzero: every row of the part has the bits of the whole. */
static int check_rows(const subject *s, const part *c, const manner *m)
{
    const attn_params *p = &c->t.p;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < c->count[b]; i++) {
                const char *what = other_in_row(&c->t, &s->whole, b, h, i, c->begin[b] + i);
                if (what != NULL)
                    return CHECK(what == NULL,
                                 "%s differs at b=%lld h=%lld, row %lld of %lld from "
                                 "%lld on; %s; %s",
                                 what, (long long)b, (long long)h, (long long)i,
                                 (long long)c->count[b], (long long)c->begin[b], s->text,
                                 manner_text(m));
            }
    return CHECK(problem_padding_untouched(&c->t), "a row beyond q_len was written; %s; %s",
                 s->text, manner_text(m));
}

static int run_manner(const subject *s, part *c, const manner *m)
{
    pool used;
    int held;
    set_manner(&c->t.p, m, &used);
    clear_outputs(&c->t);
    held = m->memory < 0 ? problem_run(&c->t) : problem_run_small(&c->t, m->memory);
    if (!held)
        return CHECK(held, "rows from %lld on; %s; %s", (long long)c->begin[0], s->text,
                     manner_text(m));
    if (used.wrong != 0)
        return CHECK(used.wrong == 0, "an index did not run exactly once; %s", manner_text(m));
    return check_rows(s, c, m);
}

/* Every set that can be had at this size, one after the other. */
static int run_sets(const subject *s, part *c)
{
    const double flops = flops_of(&c->t.p);
    const attn_kernels *set;
    int held = 1;
    for (int n = 0; held && (set = attn_kernels_get(n)) != NULL; n++) {
        manner m = any_manner(flops);
        if (is_too_slow(set, flops) ||
            (T.only != NULL && strcmp(T.only, attn_kernels_name(set)) != 0))
            continue;
        m.set = set;
        held = run_manner(s, c, &m);
    }
    return held;
}

/* Some outputs are left out now and then. */
static void drop_outputs(attn_params *p)
{
    const int which = (int)rng_int(0, 9);
    if (p->partial || p->lse.data == NULL)
        return;
    if (which == 0)
        memset(&p->lse, 0, sizeof p->lse);
    else if (which <= 2)
        memset(&p->o, 0, sizeof p->o);
    if (rng_aside(0, 9) == 0)
        memset(&p->stats, 0, sizeof p->stats);
    else if (p->stats.data != NULL && rng_aside(0, 9) == 0) /* stats alone */
        p->o.data = p->lse.data = NULL;
}

/* In random manners and, if all_sets, with every set. */
static int check_part(const subject *s, int64_t rows, int is_uneven, int is_last, int manners,
                      int all_sets)
{
    const int mark = test_mark();
    part c;
    int held = 1;
    make_part(s, &c, rows, is_uneven, is_last);
    drop_outputs(&c.t.p);
    for (int n = 0; held && n < manners; n++) {
        const manner m = any_manner(flops_of(&c.t.p));
        held = run_manner(s, &c, &m);
    }
    if (held && all_sets)
        held = run_sets(s, &c);
    test_release_to(mark);
    return held;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static const struct {
    int64_t q, kv;
} head_pairs[] = { { 1, 1 }, { 8, 8 }, { 8, 2 }, { 6, 2 }, { 16, 1 }, { 24, 1 }, { 3, 3 } };
enum { HEAD_PAIRS = sizeof head_pairs / sizeof *head_pairs };

static const struct {
    int64_t dim, dim_v;
} dims[] = { { 1, 1 },     { 8, 8 },     { 16, 16 },   { 24, 24 },   { 64, 64 },
             { 80, 80 },   { 96, 96 },   { 100, 100 }, { 128, 128 }, { 192, 128 },
             { 256, 256 }, { 512, 512 }, { 576, 512 } };
enum { DIMS = sizeof dims / sizeof *dims };

static const int64_t lengths[] = { 1,   15,   16,   17,   33,   100,  255,  300,
                                   777, 1023, 1024, 1025, 1500, 2049, 3000, 5000 };
static const int64_t few_rows[] = { 1, 1, 2, 3, 4, 5, 7, 8, 15, 16 };

static int64_t any_rows(void)
{
    return rng_chance(60) ? RNG_PICK(few_rows) : rng_int(17, 100);
}

static int64_t any_length(void)
{
    return rng_chance(60) ? RNG_PICK(lengths) : rng_int(17, 5000);
}

static void any_storage(test_shape *s)
{
    static const int64_t layouts[] = { LAYOUT_PACKED, LAYOUT_BHSD, LAYOUT_BSHD,    LAYOUT_BSHD,
                                       LAYOUT_PADDED, LAYOUT_QKV,  LAYOUT_NEGATIVE };
    const int is_mixed = rng_chance(45);
    s->dtype_q = is_mixed ? (int)rng_int(0, 2) : ATTN_F32;
    s->dtype_k = is_mixed ? (int)rng_int(0, 2) : ATTN_F32;
    s->dtype_v = is_mixed ? (int)rng_int(0, 2) : ATTN_F32;
    s->dtype_o = is_mixed ? (int)rng_int(0, 2) : ATTN_F32;
    s->layout_q = (int)RNG_PICK(layouts);
    s->layout_k = (int)RNG_PICK(layouts);
    s->layout_v = (int)RNG_PICK(layouts);
    s->layout_o = (int)RNG_PICK(layouts);
}

static test_shape shape_of(int heads, int dim, int64_t rows, int64_t keys)
{
    test_shape s;
    memset(&s, 0, sizeof s);
    s.batch = 1;
    s.heads_q = head_pairs[heads].q, s.heads_kv = head_pairs[heads].kv;
    s.dim = dims[dim].dim, s.dim_v = dims[dim].dim_v;
    s.seq_q = rows, s.seq_kv = keys;
    s.factor_q = rng_chance(40) ? 10.0f : 1.0f; /* logits that lie far apart: maxima rise */
    any_storage(&s);
    return s;
}

static int64_t smaller(int64_t value, double factor, int64_t least)
{
    const int64_t x = factor < 1 ? (int64_t)((double)value * factor) : value;
    return x > least ? x : least;
}

/* Bounds the numbers to be made (16-bit ones take long to make), the pairs and the products: for
 * the first by fewer heads, then keys; for the others by fewer rows of the whole, then keys. */
static void bound_shape(test_shape *s, double elements, double pairs, double flops)
{
    const int wide = s->dtype_k == ATTN_F32 && s->dtype_v == ATTN_F32;
    const double most = wide ? elements : elements / 4;
    const double d = (double)(s->dim + s->dim_v);
    double each;
    if ((double)(s->batch * s->heads_kv * s->seq_kv) * d > most) {
        s->heads_q /= s->heads_kv;
        s->heads_kv = 1;
    }
    s->seq_kv = smaller(s->seq_kv, most / ((double)(s->batch * s->heads_kv * s->seq_kv) * d), 1);
    each = (double)(s->heads_q * s->batch);
    if (pairs > flops / (2 * d))
        pairs = flops / (2 * d);
    s->seq_q = smaller(s->seq_q, pairs / (each * (double)(s->seq_q * s->seq_kv)), 3);
    s->seq_kv = smaller(s->seq_kv, pairs / (each * (double)(s->seq_q * s->seq_kv)), 17);
}

/* ---- sweeps ---------------------------------------------------------------------------------- */

/* Every head_dim with every relation of heads; lengths and storage as they come. */
static void sweep_shapes(void)
{
    for (int n = 0; n < DIMS * HEAD_PAIRS; n++) {
        const int dim = n / HEAD_PAIRS, heads = n % HEAD_PAIRS, causal = feature_find("causal");
        int64_t rows;
        subject s;
        test_shape shape;
        if (!begin_case("head_dim %d/%d, heads %d/%d", (int)dims[dim].dim, (int)dims[dim].dim_v,
                        (int)head_pairs[heads].q, (int)head_pairs[heads].kv))
            continue;
        rows = rng_int(17, 50);
        shape = shape_of(heads, dim, rows, any_length());
        bound_shape(&shape, dims[dim].dim >= 512 ? 1.6e6 : 4e5, 1e9, 1e8);
        make_subject(&s, &shape, &causal, (int)rng_int(0, 1));
        if (dim == DIMS - 1 && shape.heads_kv == 1)
            use_keys_as_values(&s);
        else if (rng_chance(30))
            use_aliasing_keys(&s);
        if (run_whole(&s) && check_part(&s, 1, 0, 1, 5, 1))
            check_part(&s, RNG_PICK(few_rows), 0, 1, 5, 0);
    }
}

/* Enough heads, keys and columns that the parts of a row tile's keys are nodes of several chunks,
 * with and without a first key inside one. */
static void sweep_nodes(void)
{
    static const int64_t bases[] = { 0, 3, 32000 };
    for (int n = 0; n < 3; n++) {
        const test_shape shape = { .batch = 1,
                                   .heads_q = 7,
                                   .heads_kv = 7,
                                   .seq_q = 3,
                                   .seq_kv = 17500,
                                   .dim = 8,
                                   .dim_v = 100 };
        manner m = any_manner(SLOW_FLOPS * 1000);
        int64_t base = bases[n];
        subject s;
        part c;
        if (!begin_case("nodes of several chunks, keys from %d", (int)base))
            continue;
        make_subject(&s, &shape, NULL, 0);
        s.whole.p.key_base = base != 0 ? &base : NULL;
        if (!run_whole(&s))
            continue;
        make_part(&s, &c, 1, 0, 1);
        m.workers = 2;
        m.memory = -1;
        run_manner(&s, &c, &m);
    }
}

/* Every length with every number of rows, one to three kv heads, numbers that begin in a chunk. */
static void sweep_lengths(void)
{
    static const int64_t bases[] = { 0, 3, 1021 };
    static const int heads[] = { 0, 6, 4, 3 }; /* 1/1, 3/3, 16/1, 6/2 */
    for (int n = 0; n < (int)(sizeof lengths / sizeof *lengths) * 3; n++) {
        const int length = n / 3, causal = feature_find("causal");
        int64_t *base, rows;
        subject s;
        test_shape shape;
        if (!begin_case("%d keys from %d", (int)lengths[length], (int)bases[n % 3]))
            continue;
        rows = rng_int(17, 40);
        shape = shape_of(heads[n % 4], (int)rng_int(0, 3), rows, lengths[length]);
        make_subject(&s, &shape, &causal, rng_chance(40));
        base = test_alloc(sizeof *base);
        *base = bases[n % 3];
        s.whole.p.key_base = *base != 0 ? base : NULL;
        if (!run_whole(&s))
            continue;
        for (size_t r = 1; r < sizeof few_rows / sizeof *few_rows; r++)
            if (!check_part(&s, few_rows[r], 0, 1, 5, r == 1))
                break;
    }
}

/* ---- masks and modifiers --------------------------------------------------------------------- */

/* Features, and what this file adds. */
static const char *const firsts[] = {
    "varlen",   "q_len",      "kv_begin",  "kv_len",  "key_base",  "causal",   "causal_top",
    "prefix",   "causal_off", "window",    "chunked", "segments",  "bool",     "bool_inv",
    "bits",     "bitmap",     "csr",       "mask_fn", "mask_tile", "scale",    "softcap",
    "bias_f32", "bias_f16",   "bias_bf16", "alibi",   "alibi_bh",  "score_fn", "sinks",
    "softmax1", "dropout",    "partial",   "tree",    "poison",    "logits"
};
enum { FIRSTS = sizeof firsts / sizeof *firsts };

static int is(const char *name, const char *other)
{
    return strcmp(name, other) == 0;
}

/* What asks for each pair: slow to make or to ask. */
static int is_by_pair(const int *list, int count)
{
    static const char *const slots[] = { "bool", "bits", "bias", "mask_fn", "score_fn", "dropout" };
    for (int n = 0; n < count; n++)
        for (size_t k = 0; k < sizeof slots / sizeof *slots; k++)
            if (is(features[list[n]].slot, slots[k]))
                return 1;
    return 0;
}

/* What may hide poison from the last row, too. */
static const char *const masks[] = { "kv_len",   "kv_begin",  "window",   "chunked",
                                     "segments", "bool",      "bits",     "bitmap",
                                     "csr",      "mask_tile", "bias_f32", "dropout" };
enum { MASKS = sizeof masks / sizeof *masks };

/* Feature `first`, or what may hide poison, or nothing, and a random background. */
static int pick_features(const char *first, int *list)
{
    static const char *const banned[] = { "gqa",  "storage",  "layout", "dims",
                                          "tree", "softmax1", NULL };
    static const char *const no_sinks[] = { "gqa",  "storage", "layout", "dims",
                                            "tree", "sinks",   NULL };
    const char *name = is(first, "poison")                        ? masks[rng_int(0, MASKS - 1)]
                       : is(first, "tree") || is(first, "logits") ? NULL
                                                                  : first;
    int count = pick_background(list, name, 1, is(first, "softmax1") ? no_sinks : banned);
    if (!is(first, "partial") && count < MAX_BACKGROUND && rng_chance(8))
        list[count++] = feature_find("partial");
    return count;
}

static void make_random(subject *s, const char *first, int64_t rows)
{
    int list[MAX_BACKGROUND];
    const int count = pick_features(first, list);
    const int slow = is(first, "logits") || is_by_pair(list, count);
    const int heads = (int)rng_int(0, HEAD_PAIRS - 1);
    const int dim = (int)rng_int(0, rng_chance(70) ? 6 : DIMS - 1);
    const int64_t all = rows + rng_int(0, 50);
    test_shape shape = shape_of(heads, dim, all, any_length());
    shape.batch = rng_chance(60) ? 1 : rng_int(2, 4);
    bound_shape(&shape, 3e5, slow ? 1.5e5 : 1e9, 1e8);
    make_subject(s, &shape, list, count);
    if (s->whole.p.window && rng_chance(50))
        s->whole.p.window_left = rng_int(0, shape.seq_kv);
    if (is(first, "tree") || rng_chance(8))
        use_tree(s, rows);
    if (is(first, "poison") || rng_chance(25))
        use_poison(s);
    if (is(first, "logits"))
        use_logits(s);
}

/* A tree is cut where it begins. */
static void check_random(const char *first)
{
    const int64_t rows = is(first, "tree") ? rng_int(5, 16) : any_rows();
    subject s;
    make_random(&s, first, rows);
    if (run_whole(&s)) {
        const int is_tree = s.whole.p.tree_parents != NULL;
        const int is_uneven = !is_tree && rng_chance(25), is_last = is_tree || rng_chance(80);
        if (check_part(&s, rows, is_uneven, is_last, 4, 1) && !is_tree)
            check_part(&s, any_rows(), !is_uneven, 1, 4, 0);
    }
    CHECK(features_bad_pairs() == 0, "a callback was told a wrong position %d times; %s",
          features_bad_pairs(), s.text);
}

static void check_features(int rounds)
{
    for (int n = 0; n < FIRSTS * rounds; n++)
        if (begin_case("%s, %d", firsts[n % FIRSTS], n / FIRSTS))
            check_random(firsts[n % FIRSTS]);
}

/* ---- work counted ------------------------------------------------------------------------------
 * Without a mask every row meets every key once, however the work is cut. */

static int64_t products_qk, products_pv, products_sum; /* sum: of p and 1, divided chunks */

static void *count_products(int kernel, void *first)
{
    const attn_product *p = first;
    int64_t *products = NULL;
    if (kernel == SPY_qk || kernel == SPY_qk_runs)
        products = &products_qk;
    else if (kernel == SPY_pv || kernel == SPY_pv_runs)
        products = p->dim == 1 && p->stride == 0 && p->kv != NULL ? &products_sum : &products_pv;
    if (products != NULL)
        *products += p->n * p->dim * (p->lanes.end - p->lanes.begin);
    return first;
}

static void check_products(const subject *s, part *c, const manner *m)
{
    const attn_params *p = &c->t.p;
    const int64_t pairs = p->num_heads_q * c->count[0] * p->seq_len_kv;
    const int64_t passes = 1 + T.force_redo;
    products_qk = products_pv = products_sum = 0;
    if (!run_manner(s, c, m))
        return;
    CHECK(products_qk == passes * pairs * p->head_dim, "%lld products of q and k, not %lld; %s; %s",
          (long long)products_qk, (long long)(passes * pairs * p->head_dim), s->text,
          manner_text(m));
    CHECK(products_pv == pairs * c->t.o.dim, "%lld products of p and v, not %lld; %s; %s",
          (long long)products_pv, (long long)(pairs * c->t.o.dim), s->text, manner_text(m));
    CHECK(products_sum <= pairs, "%lld of %lld keys summed up; %s; %s", (long long)products_sum,
          (long long)pairs, s->text, manner_text(m));
}

static void count_work(void)
{
    static const int64_t keys[] = { 17, 100, 777, 1024, 1500, 3000 };
    static const int workers[] = { 1, 2, 3, 8, 16 };
    const attn_kernels *counted;
    attn_kernels table;
    for (int n = 0; (counted = attn_kernels_get(n)) != NULL; n++)
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            int heads;
            test_shape shape;
            subject s;
            part c;
            if (!begin_case("%s, %d keys: products", attn_kernels_name(counted), (int)keys[k]))
                continue;
            if (T.only != NULL && strcmp(T.only, attn_kernels_name(counted)) != 0)
                continue;
            heads = (int)rng_int(0, HEAD_PAIRS - 1);
            shape = shape_of(heads, (int)rng_int(1, 3), 20, keys[k]);
            table = spy_on(counted, count_products);
            make_subject(&s, &shape, NULL, 0);
            if (!run_whole(&s))
                continue;
            make_part(&s, &c, RNG_PICK(few_rows), 0, 1);
            for (size_t w = 0; w < sizeof workers / sizeof *workers; w++) {
                manner m = { 0 };
                m.set = &table;
                m.workers = workers[w];
                m.loop = ALONE;
                m.order = POOL_SHUFFLED;
                m.memory = w % 2 ? 50 : -1;
                check_products(&s, &c, &m);
            }
        }
}

/* ---- loops that fail ------------------------------------------------------------------------- */

/* Each loop of the call in turn returns nonzero, after none, some and all of its work: the call
 * says so and begins no further one. Then the same call runs as ever. */
static void check_failures(const subject *s, part *c, const manner *m, int *loops)
{
    static const int shares[] = { 0, 50, 100 };
    pool used;
    set_manner(&c->t.p, m, &used);
    if (!run_manner(s, c, m))
        return;
    set_manner(&c->t.p, m, &used);
    CHECK(test_run(&c->t.p) == ATTN_OK, "%s", s->text);
    *loops += used.loops;
    for (int at = 0, all = used.loops; at < all; at++)
        for (size_t n = 0; n < sizeof shares / sizeof *shares; n++) {
            attn_status status;
            set_manner(&c->t.p, m, &used);
            used.fail_at = at;
            used.fail_percent = shares[n];
            status = test_run(&c->t.p);
            CHECK(status == ATTN_ERR_CALLBACK, "loop %d of %d failed after %d %%: '%s'; %s; %s", at,
                  all, shares[n], attn_status_string(status), s->text, manner_text(m));
            CHECK(used.loops == at + 1, "%d loops, of which number %d failed; %s; %s", used.loops,
                  at, s->text, manner_text(m));
        }
    run_manner(s, c, m);
}

static void fail_loops(void)
{
    int loops = 0;
    for (int n = 0; n < 24; n++) {
        int dim;
        test_shape shape;
        subject s;
        part c;
        manner m;
        if (!begin_case("loops that fail, %d", n))
            continue;
        dim = (int)rng_int(0, 4);
        shape = shape_of(n % HEAD_PAIRS, dim, 20, any_length());
        bound_shape(&shape, 1e5, 3e5, 1e8);
        make_subject(&s, &shape, NULL, 0);
        if (n % 4 == 3)
            use_logits(&s);
        if (!run_whole(&s))
            continue;
        make_part(&s, &c, RNG_PICK(few_rows), 0, 1);
        m = any_manner(flops_of(&c.t.p));
        m.workers = (int)rng_int(2, 8);
        m.loop = (int)rng_int(THREADS, ALONE);
        m.memory = -1;
        check_failures(&s, &c, &m, &loops);
    }
    CHECK(loops > 0 || !all_cases_run(), "no call took its loops to parallel_for");
}

/* ---- the group ------------------------------------------------------------------------------- */

TEST_GROUP(decode, RUN_ONCE, "the last rows alone are the last rows of the prefill, bit for bit")
{
    const int quick = getenv("ATTN_TEST_QUICK") != NULL;
    if (!T.exact || T.impl == ATTN_IMPL_NAIVE) {
        SKIP("only the tiled implementation is canonical");
        return;
    }
    sweep_shapes();
    sweep_lengths();
    sweep_nodes();
    if (T.backend == NULL) { /* what follows is about workers */
        count_work();
        fail_loops();
    }
    check_features(quick ? 1 : 10);
}
