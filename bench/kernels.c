/* kernels.c - times the single kernels of the sets, each checked against the portable set first.
 * SPDX-License-Identifier: MIT
 *
 * A tile holds every array that any kernel reads or writes; a kernel is one line of `entries` and
 * one run function. The value of an element depends on array, index and lane alone, so the portable
 * kernel, whose tiles have other rows, can be run on any lanes of a tile: all arrays are then
 * compared, those that the kernel must leave alone among them.
 *
 * While it is timed a kernel works on its own output of the call before: logits become p and p
 * logits, sums grow. No value becomes subnormal or moves a maximum, so that this is what most tiles
 * of a call cost. The arrays lie in L1 and L2. */
#define ATTN_KERNEL_API
#include "kernels.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "report.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

enum { KEYS = KERNEL_KEYS, MAX_EVENTS = KEYS / ATTN_BLOCK + 2, EVENT_AT = 2 * ATTN_BLOCK };
enum { SAMPLES = 101, WARMUP = 5, LINE = 16, STAGGER = 3 * LINE }; /* LINE: floats */
#define SPREAD 2.0f        /* of the logits: no maximum moves */
#define SPREAD_RAISE 40.0f /* maxima move, and products meet a rescale */
#define START_MAXIMUM 4.0f

typedef enum array_id { Q, QT, S, X, FACTOR, M, L, O, OUT, A, B, RESCALE, NUM_ARRAYS } array_id;
typedef enum fill_kind { SIGNED, POSITIVE, MAXIMUM, ONE } fill_kind;

/* Length of an array per lane = keys * KEYS + dims * head_dim + more. */
static const struct {
    int keys, dims, more;
    int lane_major; /* [lane][index], else [index][lane] */
    fill_kind fill;
} arrays[NUM_ARRAYS] = {
    [Q] = {0, 1, 0, 1, SIGNED},        [QT] = {0, 1, 0, 0, SIGNED},
    [S] = {1, 0, 0, 0, SIGNED},        [X] = {1, 0, 0, 0, SIGNED},
    [FACTOR] = {0, 0, 1, 0, POSITIVE}, [M] = {0, 0, 1, 0, MAXIMUM},
    [L] = {0, 0, 1, 0, POSITIVE},      [O] = {0, 1, 0, 0, SIGNED},
    [OUT] = {0, 1, 0, 1, SIGNED},      [A] = {0, 1, 2, 0, POSITIVE}, /* states: m, l, o */
    [B] = {0, 1, 2, 0, POSITIVE},      [RESCALE] = {1, 0, 0, 0, ONE},
};

typedef struct tile {
    int rows;
    int64_t dim;
    float *array[NUM_ARRAYS];
    float *k, *v; /* [KEYS][dim] */
    attn_events events;
    int at[MAX_EVENTS];
    void *memory;
} tile;

/* ---- the kernels: to add one, add a run function and a line of `entries` */

static void run_pack(const attn_kernels *f, tile *t)
{
    f->pack(t->array[QT], t->array[Q], t->dim, 0.125f);
}

static void run_qk(const attn_kernels *f, tile *t)
{
    f->qk(t->array[S], t->array[QT], t->k, (ptrdiff_t)t->dim, KEYS, t->dim);
}

static void run_softcap(const attn_kernels *f, tile *t)
{
    f->softcap(t->array[S], KEYS, 32.0f, 0.03125f);
}

static void run_add_scaled(const attn_kernels *f, tile *t)
{
    f->add_scaled(t->array[S], t->array[X], t->array[FACTOR], KEYS);
}

static void run_softmax(const attn_kernels *f, tile *t)
{
    f->softmax(t->array[S], KEYS, ATTN_BLOCK, 0.0f, t->array[M], t->array[L], &t->events);
}

static void run_maximum(const attn_kernels *f, tile *t)
{
    f->maximum(t->array[S], KEYS, t->array[M]);
}

static void run_exp_sum(const attn_kernels *f, tile *t)
{
    f->exp_sum(t->array[S], KEYS, 0.0f, t->array[M], t->array[L]);
}

static void run_pv(const attn_kernels *f, tile *t)
{
    f->pv(t->array[O], t->array[S], t->v, (ptrdiff_t)t->dim, KEYS, t->dim, &t->events);
}

static void run_pv_select(const attn_kernels *f, tile *t)
{
    f->pv_select(t->array[O], t->array[S], t->v, (ptrdiff_t)t->dim, KEYS, t->dim, &t->events);
}

static void run_merge(const attn_kernels *f, tile *t)
{
    f->merge(t->array[A], t->array[B], t->dim);
}

static void run_result(const attn_kernels *f, tile *t)
{
    f->result(t->array[OUT], t->array[O], t->array[L], 1.0f, t->dim);
}

/* What one element costs: 2 flops for each of the other dimension, exponentials, bytes moved. */
typedef enum work_kind { PRODUCT, EXPONENTIAL, BYTES } work_kind;

static const struct {
    const char *name;
    void (*run)(const attn_kernels *f, tile *t);
    int per_key; /* its elements are rows * KEYS, else rows * head_dim */
    work_kind work;
    double amount; /* per element; PRODUCT: products of this size */
} entries[] = {
    {"pack", run_pack, 0, BYTES, 8},
    {"qk", run_qk, 1, PRODUCT, 1},
    {"softcap", run_softcap, 1, BYTES, 8},
    {"add_scaled", run_add_scaled, 1, BYTES, 12},
    {"softmax", run_softmax, 1, EXPONENTIAL, 1},
    {"maximum", run_maximum, 1, BYTES, 4},
    {"exp_sum", run_exp_sum, 1, EXPONENTIAL, 1},
    {"pv", run_pv, 0, PRODUCT, 1},
    {"pv_select", run_pv_select, 0, PRODUCT, 1},
    {"merge", run_merge, 0, BYTES, 12},
    {"result", run_result, 0, BYTES, 8},
};

const char *kernel_name(int i)
{
    return i >= 0 && i < LENGTH(entries) ? entries[i].name : NULL;
}

/* ---- tiles */

static int64_t array_length(const tile *t, int id)
{
    return (int64_t)arrays[id].keys * KEYS + arrays[id].dims * t->dim + arrays[id].more;
}

static float *element(const tile *t, int id, int64_t index, int lane)
{
    return t->array[id] + (arrays[id].lane_major ? lane * array_length(t, id) + index
                                                 : index * t->rows + lane);
}

/* In whole lines, and staggered: arrays at the same offset of a page would stand in each other's
 * way. */
static size_t place(int64_t floats)
{
    return (size_t)(floats + LINE - 1) / LINE * LINE + STAGGER;
}

static int make_tile(tile *t, int rows, int64_t dim)
{
    size_t floats = LINE;
    memset(t, 0, sizeof *t);
    t->rows = rows;
    t->dim = dim;
    for (int id = 0; id < NUM_ARRAYS; id++) floats += place(rows * array_length(t, id));
    floats += 2 * place(KEYS * dim) + place(MAX_EVENTS * rows);
    t->memory = malloc(floats * sizeof(float));
    if (!t->memory) return 0;
    float *at = (float *)(void *)((char *)t->memory + (64 - (uintptr_t)t->memory % 64));
    for (int id = 0; id < NUM_ARRAYS; id++) {
        t->array[id] = at;
        at += place(rows * array_length(t, id));
    }
    t->k = at;
    t->v = t->k + place(KEYS * dim);
    t->events.alpha = t->v + place(KEYS * dim);
    t->events.at = t->at;
    return 1;
}

/* In (-1, 1), the same for the same three numbers. */
static float hashed(int id, int64_t index, int lane)
{
    uint64_t z = (uint64_t)index * 0x9e3779b97f4a7c15u + (uint64_t)lane * 0xd1b54a32d192ed03u
                 + (uint64_t)id * 0x8cb92ba72f3d8dd7u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (float)((z ^ (z >> 31)) >> 40) / 8388608.0f - 1.0f; /* 24 bits */
}

static float value(int id, int64_t index, int lane, float spread)
{
    const float x = hashed(id, index, lane);
    switch (arrays[id].fill) {
    case SIGNED: return x * (id == S ? spread : SPREAD);
    case POSITIVE: return x + 1.5f;
    case MAXIMUM: return START_MAXIMUM;
    default: return 1.0f;
    }
}

/* Lane r of the tile gets the numbers of lane (first + r) % of. */
static void fill_tile(tile *t, int first, int of, float spread)
{
    for (int id = 0; id < NUM_ARRAYS; id++)
        for (int64_t i = 0; i < array_length(t, id); i++)
            for (int r = 0; r < t->rows; r++)
                *element(t, id, i, r) = value(id, i, (first + r) % of, spread);
    for (int64_t i = 0; i < KEYS * t->dim; i++) {
        t->k[i] = hashed(NUM_ARRAYS, i, 0);
        t->v[i] = hashed(NUM_ARRAYS, i, 1);
    }
    t->events.count = spread == SPREAD_RAISE;
    t->at[0] = EVENT_AT;
    for (int r = 0; r < t->rows; r++)
        t->events.alpha[r] = hashed(NUM_ARRAYS, (first + r) % of, 2);
}

/* Events are per tile; what lanes can be compared by is the factor of each key. */
static void spread_events(tile *t)
{
    for (int e = 0; e < t->events.count; e++)
        for (int r = 0; r < t->rows; r++)
            *element(t, RESCALE, t->at[e], r) = t->events.alpha[e * t->rows + r];
}

/* ---- the check */

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static int same_number(float a, float b)
{
    return bits_of(a) == bits_of(b) || (a != a && b != b);
}

/* The last element in which the tiles differ; NULL = none. */
static float *last_difference(const tile *t, const tile *before)
{
    float *found = NULL;
    for (int id = 0; id < NUM_ARRAYS; id++)
        for (int64_t i = 0; i < t->rows * array_length(t, id); i++)
            if (!same_number(t->array[id][i], before->array[id][i])) found = t->array[id] + i;
    return found;
}

static void flip_lowest_bit(float *x)
{
    const uint32_t flipped = bits_of(*x) ^ 1u;
    memcpy(x, &flipped, sizeof flipped);
}

/* Lane r of the small tile against lane (first + r) % rows of the large one. */
static int same_lanes(const tile *large, const tile *small, int first)
{
    for (int id = 0; id < NUM_ARRAYS; id++)
        for (int64_t i = 0; i < array_length(large, id); i++)
            for (int r = 0; r < small->rows; r++)
                if (!same_number(*element(large, id, i, (first + r) % large->rows),
                                 *element(small, id, i, r)))
                    return 0;
    return 1;
}

/* Runs entry i of the set and of the portable one on the same numbers. small has the rows of the
 * portable set, before those of the set. */
static int matches(const attn_kernels *set, int i, float spread, int spoil, tile *large,
                   tile *before, tile *small)
{
    const attn_kernels *const portable = attn_kernels_find("portable");
    fill_tile(large, 0, large->rows, spread);
    fill_tile(before, 0, large->rows, spread);
    entries[i].run(set, large);
    float *const changed = last_difference(large, before);
    if (!changed && spread == SPREAD_RAISE) return 0; /* there every kernel has something to do */
    if (changed && spoil) flip_lowest_bit(changed);
    spread_events(large);
    for (int first = 0; first < large->rows; first += small->rows) {
        fill_tile(small, first, large->rows, spread);
        entries[i].run(portable, small);
        spread_events(small);
        if (!same_lanes(large, small, first)) return 0;
    }
    return 1;
}

/* ---- the time */

typedef struct timed_kernel {
    const attn_kernels *set;
    tile *tile;
    int entry;
} timed_kernel;

static int call(void *arg)
{
    const timed_kernel *const k = arg;
    entries[k->entry].run(k->set, k->tile);
    return 0;
}

static void fill_result(const probe_peak *peak, int i, const measure_result *m, kernel_result *r)
{
    const double other = (double)(entries[i].per_key ? r->head_dim : r->keys);
    const double elements = (double)r->rows * (double)(entries[i].per_key ? r->keys : r->head_dim);
    const double amount = entries[i].amount * elements;
    r->cycles = m->cycles_p50;
    r->cycles_per_element = m->cycles_p50 / elements;
    if (entries[i].work == EXPONENTIAL) {
        r->ns_per_exp = 1e9 * m->seconds.p50 / amount;
        r->cycles_per_exp = m->cycles_p50 / amount;
    } else if (entries[i].work == BYTES) {
        r->bytes_per_cycle = m->cycles_p50 > 0 ? amount / m->cycles_p50 : 0;
    } else if (m->cycles_p50 > 0 && peak->flops_per_cycle > 0) {
        r->pct_fma_peak = 100 * 2 * other * amount / m->cycles_p50 / peak->flops_per_cycle;
    } else if (peak->gflops > 0) {
        r->pct_fma_peak = 100 * 2e-9 * other * amount / m->seconds.p50 / peak->gflops;
    }
}

static int time_kernel(const bench_context *x, const attn_kernels *set, int i, tile *t,
                       kernel_result *r)
{
    const measure_plan plan = {WARMUP, SAMPLES, 0, 0};
    timed_kernel k = {set, t, i};
    measure_result m;
    fill_tile(t, 0, t->rows, SPREAD);
    if (!measure(&plan, call, &k, &m)) return 0;
    fill_result(probe_unit_of(&x->probe, r->set), i, &m, r);
    return 1;
}

int kernel_measure(const bench_context *x, const attn_kernels *set, int64_t head_dim, int i,
                   int spoil, kernel_result *r)
{
    tile large, before, small;
    const kernel_result start = {attn_kernels_name(set), entries[i].name, set->rows, KEYS, head_dim,
                                 0, 0, 0, 0, 0, 0, 0};
    int ok = make_tile(&large, set->rows, head_dim);
    ok &= make_tile(&before, set->rows, head_dim);
    ok &= make_tile(&small, attn_kernels_find("portable")->rows, head_dim);
    *r = start;
    if (ok)
        r->wrong = !matches(set, i, SPREAD, spoil, &large, &before, &small)
                   || !matches(set, i, SPREAD_RAISE, spoil, &large, &before, &small);
    if (ok && x && !r->wrong) ok = time_kernel(x, set, i, &large, r);
    free(large.memory);
    free(before.memory);
    free(small.memory);
    return ok;
}

/* ---- the command */

/* The columns of a row, for the table and for CSV. */
static const struct {
    const char *key, *title;
    size_t offset;
    int decimals;
} columns[] = {
    {"cycles", "cycles/call", offsetof(kernel_result, cycles), 0},
    {"cycles_per_element", "cyc/element", offsetof(kernel_result, cycles_per_element), 3},
    {"pct_fma_peak", "%peak", offsetof(kernel_result, pct_fma_peak), 1},
    {"ns_per_exp", "ns/exp", offsetof(kernel_result, ns_per_exp), 3},
    {"cycles_per_exp", "cyc/exp", offsetof(kernel_result, cycles_per_exp), 3},
    {"bytes_per_cycle", "bytes/cyc", offsetof(kernel_result, bytes_per_cycle), 1},
};

static double column_value(const kernel_result *r, int c)
{
    double x;
    memcpy(&x, (const char *)r + columns[c].offset, sizeof x);
    return x;
}

static void say_head(void)
{
    say("medians of %d samples; tiles of %d keys in L1 and L2; element: of the result (rows x keys "
        "or\n  rows x head_dim); %%peak: of the FMA peak of the set's vector unit, in cycles\n\n",
        SAMPLES, KEYS);
    say("%-15s %4s %5s %-11s", "set", "rows", "dim", "kernel");
    for (int c = 0; c < LENGTH(columns); c++) say(" %11s", columns[c].title);
    say("\n");
}

static void say_result(const kernel_result *r)
{
    say("%-15s %4d %5d %-11s", r->set, (int)r->rows, (int)r->head_dim, r->kernel);
    for (int c = 0; c < LENGTH(columns) && !r->wrong; c++) {
        const double x = column_value(r, c);
        if (x > 0) say(" %11.*f", columns[c].decimals, x);
        else say(" %11s", "");
    }
    say("%s\n", r->wrong ? " WRONG: differs from the portable set, not timed" : "");
}

static void write_head(FILE *f)
{
    fputs("set,rows,keys,head_dim,kernel", f);
    for (int c = 0; c < LENGTH(columns); c++) fprintf(f, ",%s", columns[c].key);
    putc('\n', f);
}

static void write_result(FILE *f, const kernel_result *r)
{
    fprintf(f, "\"%s\",%d,%d,%d,\"%s\"", r->set, (int)r->rows, (int)r->keys, (int)r->head_dim,
            r->kernel);
    for (int c = 0; c < LENGTH(columns); c++) fprintf(f, ",%.9g", column_value(r, c));
    putc('\n', f);
}

/* All entries of a set; returns how many were wrong or could not be measured. */
static int run_set(const bench_context *x, const attn_kernels *set, int64_t head_dim, FILE *csv)
{
    int bad = 0;
    for (int i = 0; i < LENGTH(entries); i++) {
        kernel_result r;
        if (!kernel_measure(x, set, head_dim, i, 0, &r)) {
            say("%s: no memory for tiles of head_dim %d\n", attn_kernels_name(set), (int)head_dim);
            return bad + 1;
        }
        bad += r.wrong;
        say_result(&r);
        if (csv && !r.wrong) write_result(csv, &r);
    }
    return bad;
}

static int run_sets(const bench_context *x, int64_t head_dim, FILE *csv)
{
    int bad = 0;
    if (x->kernels) return run_set(x, attn_kernels_find(x->kernels), head_dim, csv);
    for (int i = 0; attn_kernels_get(i); i++)
        bad += run_set(x, attn_kernels_get(i), head_dim, csv);
    return bad;
}

int kernels_command(bench_context *x, int64_t head_dim, const char *csv)
{
    static const int64_t usual[] = {64, 128, 256};
    FILE *const f = csv ? fopen(csv, "w") : NULL;
    int bad = 0;
    if (csv && !f) {
        fprintf(stderr, "bench: cannot write %s: %s\n", csv, strerror(errno));
        return 2;
    }
    probe_machine(&x->probe);
    report_machine(&x->machine, &x->probe);
    say_head();
    if (f) write_head(f);
    for (int d = 0; d < LENGTH(usual) && (d == 0 || head_dim == 0); d++)
        bad += run_sets(x, head_dim ? head_dim : usual[d], f);
    if (f && (ferror(f) | fclose(f))) {
        fprintf(stderr, "bench: cannot write all of %s\n", csv);
        return 1;
    }
    say("\n%d wrong\n", bad);
    return bad != 0;
}
