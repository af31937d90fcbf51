/* selfcheck.c - the harness shows that it fails: planted overruns, wrong numbers, broken kernels.
 * SPDX-License-Identifier: MIT
 *
 * A mutant is a copy of the best kernel table with one function replaced by a subtly wrong one. The
 * same comparisons that the other groups use must report every mutant, and must be silent about the
 * table itself.
 */
#include "features.h"
#include "laws.h"
#include "oracle.h"
#include "system.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------------------- */

static void check_margins(void)
{
    static const size_t sizes[] = { 0, 1, 63, 64, 4096, 10000 };
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        for (int side = 0; side < 2; side++) {
            unsigned char *at, *data, kept;
            if (!begin_case("one byte %s %lu", side ? "after" : "before", (unsigned long)sizes[n]))
                continue;
            data = test_alloc_at(sizes[n], PLACE_HEAP);
            at = side == 1 ? data + sizes[n] : data - 1;
            CHECK(test_margins() == 0, "margins of a fresh buffer");
            kept = *at;
            *at ^= 1;
            CHECK(test_margins() == 1, "an overrun of one byte is not noticed");
            *at = kept;
        }
}

static void check_pages(void)
{
    if (!begin_case("guard pages"))
        return;
    if (system_page() == 0)
        SKIP("no pages on this platform");
    for (size_t bytes = 1; bytes < 10000 && system_page() > 0; bytes = bytes * 3 + 1) {
        unsigned char *after = test_alloc_at(bytes, PLACE_PAGE_AFTER);
        unsigned char *before = test_alloc_at(bytes, PLACE_PAGE_BEFORE);
        CHECK(system_dies(after + bytes) == 1, "a write beyond %lu bytes passes",
              (unsigned long)bytes);
        CHECK(system_dies(before - 1) == 1, "a write before %lu bytes passes",
              (unsigned long)bytes);
        CHECK(system_dies(after + bytes - 1) == 0 && system_dies(before) == 0,
              "the buffer itself is no use");
    }
}

static void check_tensors(void)
{
    for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
        test_tensor t;
        int noticed = 0, passed = 0, elements;
        if (!begin_case("tensor of layout %d", layout))
            continue;
        tensor_make(&t, ATTN_F32, layout, 2, 3, 4, 5);
        tensor_fill_normal(&t, 1);
        CHECK(tensor_unchanged(&t) && tensor_gaps_unchanged(&t), "a fresh tensor");
        for (size_t n = 0; n < t.bytes; n++) {
            t.memory[n] ^= 1;
            noticed += !tensor_gaps_unchanged(&t);
            passed += tensor_unchanged(&t);
            t.memory[n] ^= 1;
        }
        CHECK(passed == 0, "%d changed bytes pass", passed);
        elements = 2 * 3 * 4 * 5 * 4;
        if (layout == LAYOUT_SHARED_HEADS)
            elements /= 3;
        if (layout == LAYOUT_SHARED_BATCH)
            elements /= 2;
        CHECK(noticed == (int)t.bytes - elements, "%d bytes are gaps, not %d", noticed,
              (int)t.bytes - elements);
    }
}

static void check_random(void)
{
    uint64_t first[8];
    int same = 1;
    if (!begin_case("random numbers"))
        return;
    for (int n = 0; n < 8; n++)
        first[n] = rng_u64();
    rng_seed(42);
    for (int n = 0; n < 8; n++)
        same &= rng_u64() == first[n];
    CHECK(!same, "another seed gives the same numbers");
    for (int n = 0; n < 10000; n++) {
        const int64_t x = rng_int(-3, 4);
        const float u = rng_unit(), z = rng_normal();
        if (x < -3 || x > 4 || !(u >= 0 && u < 1) || !(z >= -6 && z <= 6))
            CHECK(0, "out of range: %lld %g %g", (long long)x, (double)u, (double)z);
    }
}

/* ---- the comparison ------------------------------------------------------------------------- */

/* How many checks fail when element (0, 0, 0, 0) of o, or of lse, is replaced. */
static int64_t failures_with(test_problem *t, test_tensor *which, float value)
{
    const float kept = tensor_get(which, 0, 0, 0, 0);
    uint32_t bits = float_bits(value);
    capture_begin();
    memcpy(which->data, &bits, sizeof bits); /* as is: tensor_set would make NaN canonical */
    compare_with_oracle(&t->p);
    tensor_set(which, 0, 0, 0, 0, kept);
    return capture_end();
}

static float nearby(const test_problem *t, const test_tensor *which, double tolerances)
{
    double o[4], o_tolerance[4];
    oracle_result r;
    memset(&r, 0, sizeof r);
    r.o = o, r.o_tolerance = o_tolerance;
    oracle_row_full(&t->p, 0, 0, 0, &r);
    if (which == &t->o)
        return (float)(o[0] + tolerances * (o_tolerance[0] + oracle_storage_error(ATTN_F32, o[0])));
    return (float)(r.lse + tolerances * r.lse_tolerance);
}

static void check_comparison(void)
{
    test_problem t;
    test_shape s;
    test_tensor *which[2];
    float m;
    if (!begin_case("wrong numbers"))
        return;
    memset(&s, 0, sizeof s);
    s.batch = 1, s.heads_q = 1, s.seq_q = 3, s.seq_kv = 20, s.dim = 4;
    s.stats = STATS_NEVER; /* the lse would have to be theirs to the bit */
    problem_make(&t, &s);
    if (!problem_run(&t))
        return;
    which[0] = &t.o, which[1] = &t.lse;
    for (int n = 0; n < 2; n++) {
        CHECK(failures_with(&t, which[n], nearby(&t, which[n], 0)) == 0, "the right number fails");
        CHECK(failures_with(&t, which[n], nearby(&t, which[n], 3)) == 1, "3 tolerances pass");
        CHECK(failures_with(&t, which[n], nearby(&t, which[n], -3)) == 1, "-3 tolerances pass");
        CHECK(failures_with(&t, which[n], -0.0f) == 1, "-0 passes");
        CHECK(failures_with(&t, which[n], NAN) == 1, "NaN passes");
        CHECK(failures_with(&t, which[n], HUGE_VALF) == 1, "Inf passes");
    }
    t.p.stats = tensor_output(&t.stats);
    if (!problem_run(&t))
        return;
    m = tensor_get(&t.stats, 0, 0, 0, 0);
    CHECK(failures_with(&t, &t.stats, m) == 0, "the right maximum fails");
    CHECK(failures_with(&t, &t.stats, m + 1e-5f) == 1, "m of another lse passes");
    CHECK(failures_with(&t, &t.stats, -0.0f) == 1, "-0 passes for m");
    CHECK(failures_with(&t, &t.stats, NAN) == 1, "NaN passes for m");
    memset(&t.p.stats, 0, sizeof t.p.stats);
    tensor_set(&t.k, 0, 0, 0, 0, NAN); /* now all rows must be NaN, and canonical */
    tensor_remember(&t.k);
    if (!problem_run(&t))
        return;
    CHECK(failures_with(&t, &t.o, float_from_bits(0x7fc00000u)) == 0, "canonical NaN fails");
    CHECK(failures_with(&t, &t.o, float_from_bits(0xffc00000u)) == 1, "negative NaN passes");
    CHECK(failures_with(&t, &t.o, 0.5f) == 1, "a number instead of NaN passes");
}

/* ---- mutants -------------------------------------------------------------------------------- */

static const attn_kernels *real;

static void qk_last_key(const attn_product *p)
{
    real->qk(p);
    for (int lane = 0; lane < real->rows; lane++)
        p->to[(p->n - 1) * real->rows + lane] = 0;
}

static void qk_last_dim(const attn_product *p)
{
    attn_product wrong = *p;
    wrong.dim--;
    real->qk(&wrong);
}

static void qk_key_before(const attn_product *p)
{
    attn_product wrong = *p;
    real->qk(p);
    wrong.to += (p->n - 1) * real->rows;
    wrong.kv += (p->n - 2) * p->stride;
    wrong.n = 1;
    wrong.ahead = NULL;
    if (p->n > 1) /* the address of the last key is off by one key */
        real->qk(&wrong);
}

static void qk_factor(const attn_product *p)
{
    attn_product wrong = *p;
    wrong.factor *= 1.0001f;
    real->qk(&wrong);
}

static void pack_last_dim(float *qt, const float *const *q, int64_t head_dim)
{
    real->pack(qt, q, head_dim);
    for (int lane = 0; lane < real->rows; lane++)
        qt[(head_dim - 1) * real->rows + lane] = 0;
}

static void pack_last_row(float *qt, const float *const *q, int64_t head_dim)
{
    real->pack(qt, q, head_dim);
    for (int64_t d = 0; d < head_dim; d++)
        qt[(d + 1) * real->rows - 1] = 0;
}

static void softcap_none(float *s, int n, float cap2, float icap2)
{
    (void)s, (void)n, (void)cap2, (void)icap2;
}

static void softcap_last(float *s, int n, float cap2, float icap2)
{
    if (n > 1)
        real->softcap(s, n - 1, cap2, icap2);
}

/* The distance of the first key for all. */
static void distances_first(float *s, const int *from, const float *factor, int n)
{
    for (int j = 0; j < n; j++)
        real->add_distances(s + j * real->rows, from, factor, 1);
}

/* -inf by arithmetic only: NaN + -inf stays NaN, +inf too; and a dead key may come alive. */
static void rows_clamped(float *s, const float *const *x, float factor, int n)
{
    for (int j = 0; j < n; j++)
        for (int lane = 0; lane < real->rows; lane++) {
            const float term = x[lane][j] < -1e4f ? -1e4f : x[lane][j];
            s[j * real->rows + lane] += term * factor;
        }
}

static void rows_last(float *s, const float *const *x, float factor, int n)
{
    if (n > 1)
        real->add_rows(s, x, factor, n - 1);
}

static void others_last(uint32_t *alive, int apart, const int32_t *ids, int n, int32_t own)
{
    if (n > 1)
        real->hide_others(alive, apart, ids, n - 1, own);
}

static void clip_end(float *s, int n, const int *begin, const int *end)
{
    int later[ATTN_KERNEL_MAX_ROWS];
    for (int lane = 0; lane < real->rows; lane++)
        later[lane] = end[lane] + 1;
    real->clip(s, n, begin, later);
}

static void clip_begin(float *s, int n, const int *begin, const int *end)
{
    int earlier[ATTN_KERNEL_MAX_ROWS];
    for (int lane = 0; lane < real->rows; lane++)
        earlier[lane] = begin[lane] - 1;
    real->clip(s, n, earlier, end);
}

static void hide_last(float *s, int n, const uint32_t *alive, int from)
{
    if (n > 1)
        real->hide(s, n - 1, alive, from);
}

static void bytes_last(uint32_t *alive, int apart, const uint8_t *x, int n, int invert)
{
    if (n > 1)
        real->hide_bytes(alive, apart, x, n - 1, invert);
}

static int max_no_alpha_l(const float *s, int n, float *m, float *l, float *alpha)
{
    float before[ATTN_KERNEL_MAX_ROWS];
    int found;
    memcpy(before, l, sizeof *l * (size_t)real->rows);
    found = real->running_max(s, n, m, l, alpha);
    memcpy(l, before, sizeof *l * (size_t)real->rows);
    return found;
}

static int max_no_rise(const float *s, int n, float *m, float *l, float *alpha)
{
    return real->running_max(s, n, m, l, alpha) & ~ATTN_RAISED;
}

static int max_old(const float *s, int n, float *m, float *l, float *alpha)
{
    float before[ATTN_KERNEL_MAX_ROWS];
    int found;
    memcpy(before, m, sizeof *m * (size_t)real->rows);
    found = real->running_max(s, n, m, l, alpha);
    for (int lane = 0; lane < real->rows; lane++)
        if (before[lane] > -HUGE_VALF)
            m[lane] = before[lane];
    return found;
}

/* Takes the last key for dead. */
static int max_last_key(const float *s, int n, float *m, float *l, float *alpha)
{
    return n > 1 ? real->running_max(s, n - 1, m, l, alpha) : 0;
}

/* alpha reaches l only. */
static void rescale_none(float *x, const float *alpha, int64_t count)
{
    (void)x, (void)alpha, (void)count;
}

static void pv_last_key(const attn_product *p)
{
    attn_product wrong = *p;
    if (wrong.n-- > 1)
        real->pv(&wrong);
}

static void pv_last_dim(const attn_product *p)
{
    attn_product wrong = *p;
    if (wrong.dim-- > 1)
        real->pv(&wrong);
}

/* In the second pass the last key is left out, too. (A dead key that is not left out shows with NaN
 * only: group poison.) */
static void select_last_key(const attn_product *p)
{
    attn_product wrong = *p;
    if (wrong.n-- > 1)
        real->pv_select(&wrong);
}

static void merge_upper(float *a, float *b, int64_t head_dim_v)
{
    (void)a, (void)b, (void)head_dim_v;
}

static void merge_unweighted(float *a, float *b, int64_t head_dim_v)
{
    const int rows = real->rows;
    for (int64_t e = rows; e < rows * (head_dim_v + 2); e++)
        b[e] += a[e];
}

static void result_last_lane(float *const *out, const float *o, const float *l, float factor,
                             int64_t head_dim_v)
{
    real->result(out, o, l, factor, head_dim_v);
    for (int64_t d = 0; d < head_dim_v; d++)
        out[real->rows - 1][d] = 0;
}

static void result_undivided(float *const *out, const float *o, const float *l, float factor,
                             int64_t head_dim_v)
{
    real->result(out, o, l, factor, head_dim_v);
    for (int64_t d = 0; d < head_dim_v; d++)
        out[0][d] = o[d * real->rows];
}

static void result_minus_zero(float *const *out, const float *o, const float *l, float factor,
                              int64_t head_dim_v)
{
    real->result(out, o, l, factor, head_dim_v);
    for (int lane = 0; lane < real->rows; lane++)
        for (int64_t d = 0; d < head_dim_v; d++)
            out[lane][d] = out[lane][d] == 0 ? -0.0f : out[lane][d];
}

static void exp_sum_first(float *s, int n, float dead, const float *m, float *l)
{
    float before[ATTN_KERNEL_MAX_ROWS];
    memcpy(before, l, sizeof *l * (size_t)real->rows);
    real->exp_sum(s, n, dead, m, l);
    for (int lane = 0; lane < real->rows; lane++)
        if (before[lane] == 0 && s[lane] > 0)
            l[lane] -= s[lane];
}

static void drop_none(float *p, int n, const attn_drop *of)
{
    (void)p, (void)n, (void)of;
}

/* Every row gets the numbers of the one before. */
static void drop_row_before(float *p, int n, const attn_drop *of)
{
    uint32_t pos[ATTN_KERNEL_MAX_ROWS];
    attn_drop wrong = *of;
    for (int lane = 0; lane < real->rows; lane++)
        pos[lane] = of->pos[lane] - 1;
    wrong.pos = pos;
    real->drop(p, n, &wrong);
}

static void drop_last_key(float *p, int n, const attn_drop *of)
{
    if (n > 1)
        real->drop(p, n - 1, of);
}

#define MUTANTS(USE)                                                                               \
    USE(qk, qk_last_key, TILED)                                                                    \
    USE(qk, qk_last_dim, TILED)                                                                    \
    USE(qk, qk_key_before, TILED)                                                                  \
    USE(qk, qk_factor, TILED)                                                                      \
    USE(qk, qk_last_key, NAIVE)                                                                    \
    USE(pack, pack_last_dim, TILED)                                                                \
    USE(pack, pack_last_row, TILED)                                                                \
    USE(softcap, softcap_none, TILED)                                                              \
    USE(softcap, softcap_last, TILED)                                                              \
    USE(add_distances, distances_first, TILED)                                                     \
    USE(add_rows, rows_clamped, TILED)                                                             \
    USE(add_rows, rows_last, TILED)                                                                \
    USE(hide_others, others_last, TILED)                                                           \
    USE(clip, clip_end, TILED)                                                                     \
    USE(clip, clip_begin, TILED)                                                                   \
    USE(hide, hide_last, TILED)                                                                    \
    USE(hide_bytes, bytes_last, TILED)                                                             \
    USE(drop, drop_none, TILED)                                                                    \
    USE(drop, drop_row_before, TILED)                                                              \
    USE(drop, drop_last_key, TILED)                                                                \
    USE(drop, drop_none, NAIVE)                                                                    \
    USE(running_max, max_no_alpha_l, TILED)                                                        \
    USE(running_max, max_no_rise, TILED)                                                           \
    USE(running_max, max_old, TILED)                                                               \
    USE(running_max, max_last_key, TILED)                                                          \
    USE(rescale, rescale_none, TILED)                                                              \
    USE(pv, pv_last_key, TILED)                                                                    \
    USE(pv, pv_last_dim, TILED)                                                                    \
    USE(pv_select, select_last_key, TILED)                                                         \
    USE(merge, merge_upper, TILED)                                                                 \
    USE(merge, merge_unweighted, TILED)                                                            \
    USE(result, result_last_lane, TILED)                                                           \
    USE(result, result_undivided, TILED)                                                           \
    USE(result, result_minus_zero, TILED)                                                          \
    USE(exp_sum, exp_sum_first, NAIVE)                                                             \
    USE(pv, pv_last_key, NAIVE)

#define DEFINE(member, function, path)                                                             \
    static void plant_##path##_##function(attn_kernels *table)                                     \
    {                                                                                              \
        table->member = function;                                                                  \
    }
MUTANTS(DEFINE)

#define ROW(member, function, path) { #function, plant_##path##_##function, ATTN_IMPL_##path },
static const struct {
    const char *name;
    void (*plant)(attn_kernels *table);
    int impl;
} mutants[] = { MUTANTS(ROW) };

/* A handful of problems that touch every kernel; each small. A factor of 30 makes the maximum rise
 * by more than 16 again and again; one key under a bias of -inf makes an empty row. */
static const struct {
    const char *name;
    int64_t keys; /* 0 = random */
    float factor;
} exercises[] = {
    { "causal", 0, 30 },   { "softcap", 0, 1 }, { "bias_f32", 0, 30 }, { "alibi", 0, 1 },
    { "long", 0, 30 },     { "kv_len", 0, 1 },  { "sinks", 0, 30 },    { "bool", 0, 1 },
    { "odd_dims", 0, 30 }, { "gqa", 0, 1 },     { "causal", 0, 1 },    { "window", 0, 30 },
    { "long", 0, 1 },      { "dropout", 0, 1 }, { "bias_f32", 1, 1 },  { "bias_f16", 2, 1 },
    { "segments", 0, 1 },
};

static void exercise(int impl)
{
    for (int n = 0; n < (int)(sizeof exercises / sizeof *exercises); n++) {
        const int mark = test_mark();
        const int one = feature_find(exercises[n].name);
        test_problem t;
        test_shape s = shape_random();
        s.factor_q = exercises[n].factor;
        s.seq_q = rng_int(1, 60);
        s.seq_kv = exercises[n].keys != 0 ? exercises[n].keys : s.seq_kv;
        features_make(&t, s, &one, 1);
        t.p.impl = impl;
        t.p.force_redo = n % 4 == 3 && impl == ATTN_IMPL_TILED;
        problem_check(&t);
        test_release_to(mark);
    }
}

/* How many checks fail with this table; a mutant gets up to six attempts at being noticed. */
static int64_t failures_of(const attn_kernels *table, int impl, int attempts)
{
    const int force_redo = T.force_redo;
    int64_t failed = 0;
    T.table = table;
    T.force_redo = 0; /* a forced second pass would throw away what the mutants of pv do */
    for (int n = 0; n < attempts && failed == 0; n++) {
        capture_begin();
        exercise(impl);
        failed = capture_end();
    }
    T.table = NULL;
    T.force_redo = force_redo;
    return failed;
}

static void check_mutants(void)
{
    attn_kernels table;
    real = attn_kernels_get(0);
    for (int impl = ATTN_IMPL_TILED; impl <= ATTN_IMPL_NAIVE; impl++)
        if (begin_case("no mutant, impl %d", impl)) {
            const int64_t failed = failures_of(real, impl, 2);
            CHECK(failed == 0, "%lld checks fail without a mutant", (long long)failed);
        }
    for (size_t n = 0; n < sizeof mutants / sizeof *mutants; n++) {
        if (!begin_case("mutant %s", mutants[n].name))
            continue;
        table = *real;
        mutants[n].plant(&table);
        CHECK(failures_of(&table, mutants[n].impl, 6) > 0, "the mutant %s survives",
              mutants[n].name);
    }
}

/* One float beyond the tile is seen on buffers of the exact size. */
static void pack_beyond(float *qt, const float *const *q, int64_t head_dim)
{
    real->pack(qt, q, head_dim);
    qt[head_dim * real->rows] = 0;
}

static void check_beyond(void)
{
    for (int place = PLACE_HEAP; place <= PLACE_PAGE_BEFORE; place += 2) {
        const float *q[ATTN_KERNEL_MAX_ROWS];
        float *qt;
        size_t bytes;
        if (!begin_case("a kernel writes one float beyond, place %d", place))
            continue;
        real = attn_kernels_get(0);
        bytes = (size_t)real->rows * 5 * sizeof *qt;
        for (int lane = 0; lane < real->rows; lane++)
            q[lane] = memset(test_alloc_at(5 * sizeof *qt, PLACE_HEAP), 0, 5 * sizeof *qt);
        qt = test_alloc_at(bytes, place);
        real->pack(qt, q, 5);
        CHECK(test_margins() == 0, "the kernel itself writes beyond");
        pack_beyond(qt, q, 5);
        CHECK(test_margins() == 1, "one float beyond is not noticed");
        capture_begin(); /* releasing counts the overrun: it must, and here it is no failure */
        test_release();
        CHECK(capture_end() == 1, "the overrun is not counted");
    }
}

TEST_GROUP(selfcheck, RUN_ONCE, "the harness notices planted bugs: overruns, broken kernels")
{
    check_margins();
    check_pages();
    check_tensors();
    check_random();
    check_comparison();
    check_beyond();
    check_mutants();
}
