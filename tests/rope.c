/* rope.c - rotary embedding: angles against libm and against exact values, turning against double,
 * scalings against their formulas, laws, errors, golden hashes.
 * SPDX-License-Identifier: MIT
 */
#include "test.h"

#include "../attn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double pi = 3.14159265358979323846;

static int64_t turning(const attn_rope *rope, int64_t head_dim)
{
    return rope->dim ? rope->dim : head_dim;
}

static int table(const attn_rope *rope, int64_t head_dim, int64_t first, int64_t count, float *c,
                 float *s)
{
    char why[300];
    const attn_status status = attn_rope_table(rope, head_dim, first, count, c, s, why, sizeof why);
    return CHECK(status == ATTN_OK, "attn_rope_table: %s", why);
}

static int apply(const attn_rope *rope, const attn_rope_rows *rows)
{
    char why[300];
    const attn_status status = attn_rope_apply(rope, rows, why, sizeof why);
    return CHECK(status == ATTN_OK, "attn_rope_apply: %s", why);
}

/* ---- scalings, by their formulas in double --------------------------------------------------- */

static double or_else(float x, double otherwise)
{
    return x == 0 ? otherwise : (double)x;
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

static double yarn_pair(const attn_rope *r, double dim, double turns)
{
    return dim * log((double)r->original_length / (turns * 2 * pi)) /
           (2 * log(or_else(r->base, 10000)));
}

static double yarn(const attn_rope *r, double i, double dim, double f)
{
    double low = floor(yarn_pair(r, dim, or_else(r->beta_fast, 32)));
    double high = ceil(yarn_pair(r, dim, or_else(r->beta_slow, 1)));
    double ramp;
    low = low > 0 ? low : 0;
    high = high < dim - 1 ? high : dim - 1;
    if (low == high)
        high += 0.001;
    ramp = clamp((i - low) / (high - low), 0, 1);
    return f / (double)r->factor * ramp + f * (1 - ramp);
}

/* f in radians per position. */
static double llama3(const attn_rope *r, double f)
{
    const double low = or_else(r->low_freq_factor, 1), high = or_else(r->high_freq_factor, 4);
    const double length = (double)r->original_length, wave = 2 * pi / f;
    const double smooth = (length / wave - low) / (high - low);
    if (wave < length / high)
        return f;
    if (wave > length / low)
        return f / (double)r->factor;
    return (1 - smooth) * f / (double)r->factor + smooth * f;
}

/* Radians per position of pair i. */
static double expected_frequency(const attn_rope *r, double i, double dim)
{
    const double factor = or_else(r->factor, 1);
    double base = or_else(r->base, 10000), f;
    if (r->scaling == ATTN_ROPE_NTK && dim > 2)
        base *= pow(factor, dim / (dim - 2));
    f = pow(base, -2 * i / dim);
    if (r->freq_factors)
        f /= (double)r->freq_factors[(int)i];
    if (r->scaling == ATTN_ROPE_LINEAR)
        f /= factor;
    if (r->scaling == ATTN_ROPE_YARN)
        f = yarn(r, i, dim, f);
    if (r->scaling == ATTN_ROPE_LLAMA3)
        f = llama3(r, f);
    return f;
}

static double expected_attention(const attn_rope *r)
{
    const double usual = r->scaling == ATTN_ROPE_YARN ? 0.1 * log(or_else(r->factor, 1)) + 1 : 1;
    return or_else(r->attention_factor, usual);
}

/* The tables of some positions against libm. A double angle is wrong by a few 2^-53 of itself; a
 * rounded result by half a unit of 2^-24, twice with an attention factor. */
static void check_angles(const attn_rope *r, int64_t head_dim, int64_t position)
{
    const int64_t pairs = turning(r, head_dim) / 2;
    float *c = test_alloc((size_t)pairs * sizeof *c), *s = test_alloc((size_t)pairs * sizeof *s);
    const double size = expected_attention(r);
    double worst = 0;
    if (!table(r, head_dim, position, 1, c, s))
        return;
    for (int64_t i = 0; i < pairs; i++) {
        const double angle =
            (double)position * expected_frequency(r, (double)i, (double)(2 * pairs));
        const double bound =
            size * (size == 1 ? 0.51 : 3) * ldexp(1, -24) + size * fabs(angle) * ldexp(1, -49);
        const double off =
            fmax(fabs((double)c[i] - size * cos(angle)), fabs((double)s[i] - size * sin(angle)));
        worst = fmax(worst, off / bound);
    }
    worst_note(worst);
    CHECK(worst <= 1, "position %lld: %.3f of the bound", (long long)position, worst);
}

static void check_positions(const attn_rope *r, int64_t head_dim)
{
    static const int64_t positions[] = { 0, 1, -1, 2, 100, 4096, 8191, 8192, -65536, 1000003 };
    for (size_t p = 0; p < sizeof positions / sizeof *positions; p++)
        check_angles(r, head_dim, positions[p]);
}

static const struct {
    const char *name;
    int64_t head_dim;
    attn_rope rope;
} scalings[] = {
    { "none", 128, { 0 } },
    { "none, base 500000, dim 64 of 96", 96, { .dim = 64, .base = 500000 } },
    { "none, base just above 1", 10, { .base = 1.0000001f } },
    { "none, base 1e30", 256, { .base = 1e30f } },
    { "none, one pair", 2, { 0 } },
    { "none, 600 pairs", 1200, { 0 } },
    { "attention factor", 64, { .attention_factor = 0.7f } },
    { "linear 4", 128, { .scaling = ATTN_ROPE_LINEAR, .factor = 4 } },
    { "linear 2.7", 128, { .scaling = ATTN_ROPE_LINEAR, .factor = 2.7f } },
    { "ntk 8", 128, { .scaling = ATTN_ROPE_NTK, .factor = 8 } },
    { "ntk 8, one pair", 2, { .scaling = ATTN_ROPE_NTK, .factor = 8 } },
    { "yarn 4",
      128,
      { .scaling = ATTN_ROPE_YARN, .base = 1000000, .factor = 4, .original_length = 32768 } },
    { "yarn 16", 128, { .scaling = ATTN_ROPE_YARN, .factor = 16, .original_length = 4096 } },
    { "yarn 40, betas",
      64,
      { .scaling = ATTN_ROPE_YARN,
        .factor = 40,
        .original_length = 4096,
        .beta_fast = 20,
        .beta_slow = 2.5f,
        .attention_factor = 1 } },
    { "yarn 1", 64, { .scaling = ATTN_ROPE_YARN, .original_length = 4096 } },
    { "yarn, low = high",
      4,
      { .scaling = ATTN_ROPE_YARN,
        .factor = 2,
        .original_length = 4,
        .beta_fast = 1000,
        .beta_slow = 0.9f } },
    { "yarn, high below low", 8, { .scaling = ATTN_ROPE_YARN, .factor = 2, .original_length = 3 } },
    { "llama3 8",
      128,
      { .scaling = ATTN_ROPE_LLAMA3, .base = 500000, .factor = 8, .original_length = 8192 } },
    { "llama3 32, factors",
      64,
      { .scaling = ATTN_ROPE_LLAMA3,
        .base = 500000,
        .factor = 32,
        .original_length = 8192,
        .low_freq_factor = 0.3f,
        .high_freq_factor = 40 } },
    { "ntk 3, two pairs", 4, { .scaling = ATTN_ROPE_NTK, .factor = 3 } },
    { "yarn, low beyond the pairs",
      8,
      { .scaling = ATTN_ROPE_YARN, .base = 2, .factor = 2, .original_length = 1000000 } },
    { "yarn, high = -1",
      8,
      { .scaling = ATTN_ROPE_YARN, .base = 7, .factor = 2, .original_length = 3 } },
    { "yarn, base just above 1",
      128, /* low is 4.6e9 before it is compared with dim */
      { .scaling = ATTN_ROPE_YARN, .base = 1.0000001f, .factor = 3, .original_length = 1000000 } },
};

/* These two compare frequencies, which must be below a turn a position. */
static float least_freq_factor(const attn_rope *r)
{
    return r->scaling == ATTN_ROPE_YARN || r->scaling == ATTN_ROPE_LLAMA3 ? 0.16f : 1e-6f;
}

static void check_scalings(void)
{
    static float factors[600];
    for (size_t n = 0; n < sizeof scalings / sizeof *scalings; n++)
        for (int with = 0; with < 2; with++) {
            attn_rope r = scalings[n].rope;
            if (!begin_case("angles, %s%s", scalings[n].name, with ? ", freq_factors" : ""))
                continue;
            for (int i = 0; i < 600; i++)
                factors[i] = rng_chance(50) ? 1.0f : 0.3f + 5 * rng_unit();
            factors[0] = least_freq_factor(&r);
            r.freq_factors = with ? factors : NULL;
            check_positions(&r, scalings[n].head_dim);
        }
}

/* ---- cosines and sines to the last bit ------------------------------------------------------- */

/* The floats nearest to the exact values, from 300 bits. */
static const struct {
    float base;
    int64_t dim, pair, position;
    uint32_t c, s;
} nearest[] = {
    { 10000.0f, 128, 0, 1, 0x3f0a5140, 0x3f576aa4 },
    { 10000.0f, 128, 0, 3, 0xbf7d7026, 0x3e1081c3 },
    { 10000.0f, 128, 1, 1000, 0x3ee141a2, 0xbf65e4aa },
    { 10000.0f, 128, 0, 4095, 0xbd871e6c, 0xbf7f7136 },
    { 10000.0f, 128, 20, 131071, 0x3f6229de, 0x3eefe23c },
    { 10000.0f, 128, 63, -131071, 0xbf573bb6, 0xbf0a9a3c },
    { 500000.0f, 128, 0, 1048575, 0x3f49bd23, 0xbf1d9959 },
    { 500000.0f, 128, 9, 1048575, 0xbf6a182d, 0x3ecf3a33 },
    { 500000.0f, 128, 63, 1000000, 0xbf460413, 0x3f224080 },
    { 1000000.0f, 64, 3, 999983, 0xbf6d4fdf, 0xbec00809 },
    { 10000.0f, 64, 31, 7, 0x3f7ffff9, 0x3a74b3c4 },
    { 1.5f, 6, 1, 12345, 0xbf3d9bf7, 0x3f2c0041 },
    { 1.5f, 6, 2, -54321, 0xbe4fbb43, 0x3f7aad52 },
    { 10000.0f, 2, 0, 355, 0xbf800000, 0xb7fcde82 },
    { 10000.0f, 2, 0, -103993, 0x3f800000, 0x37a077f0 },
    { 10000.0f, 128, 2, 710, 0xbd999756, 0xbf7f4771 },
};

static void check_nearest(void)
{
    float c[64], s[64];
    for (size_t n = 0; n < sizeof nearest / sizeof *nearest; n++) {
        const int64_t pair = nearest[n].pair;
        const attn_rope r = { .base = nearest[n].base };
        if (!begin_case("nearest, base %g, pair %d of %d", (double)r.base, (int)pair,
                        (int)nearest[n].dim) ||
            !table(&r, nearest[n].dim, nearest[n].position, 1, c, s))
            continue;
        CHECK(float_bits(c[pair]) == nearest[n].c && float_bits(s[pair]) == nearest[n].s,
              "position %lld: cos %08x sin %08x, not %08x %08x", (long long)nearest[n].position,
              (unsigned)float_bits(c[pair]), (unsigned)float_bits(s[pair]), (unsigned)nearest[n].c,
              (unsigned)nearest[n].s);
    }
}

/* ---- turning: random problems ---------------------------------------------------------------- */

typedef struct problem {
    attn_rope rope;
    attn_rope_rows rows;
    test_tensor x, y;
    float *c, *s; /* of every position */
    int64_t first_position, num_positions;
} problem;

enum { FIRST_NONE, FIRST_GIVEN, POSITIONS, POSITIONS_SHARED, POSITION_WAYS };

static void choose_positions(problem *t, int way)
{
    attn_rope_rows *r = &t->rows;
    int64_t *first = test_alloc((size_t)r->batch * sizeof *first);
    int64_t *positions = test_alloc((size_t)(r->batch * (r->seq_len + 3)) * sizeof *positions);
    t->first_position = way == FIRST_NONE ? 0 : rng_int(-50, 3000);
    t->num_positions = 40;
    for (int64_t b = 0; b < r->batch; b++)
        first[b] = rng_int(t->first_position, t->first_position + 20);
    for (int64_t n = 0; n < r->batch * (r->seq_len + 3); n++)
        positions[n] = rng_int(t->first_position, t->first_position + 39);
    r->first = way == FIRST_GIVEN ? first : NULL;
    r->positions = way == POSITIONS || way == POSITIONS_SHARED ? positions : NULL;
    r->positions_stride = way == POSITIONS_SHARED ? ATTN_STRIDE_BROADCAST
                          : rng_chance(50)        ? (ptrdiff_t)r->seq_len + 3
                                                  : 0;
}

static int64_t position_at(const problem *t, int64_t b, int64_t i)
{
    const attn_rope_rows *r = &t->rows;
    const int64_t stride = r->positions_stride == ATTN_STRIDE_BROADCAST ? 0
                           : r->positions_stride == 0                   ? r->seq_len
                                                                        : r->positions_stride;
    if (r->positions)
        return r->positions[b * stride + i];
    return (r->first ? r->first[b] : 0) + i;
}

static void make_rows(test_tensor *t, const attn_rope_rows *r, int dtype, int layout)
{
    const int by_token = layout == LAYOUT_PACKED && r->layout == ATTN_LAYOUT_BSHD;
    tensor_make(t, dtype, by_token ? LAYOUT_BSHD : layout, r->batch, r->num_heads, r->seq_len,
                r->head_dim);
    if (by_token)
        t->stride_batch = t->stride_head = t->stride_seq = 0;
}

static void make_problem(problem *t)
{
    static const int64_t dims[] = { 2, 4, 6, 30, 32, 34, 64, 80, 128, 130, 256, 258, 300, 520 };
    attn_rope_rows *r = &t->rows;
    int64_t pairs;
    memset(t, 0, sizeof *t);
    r->batch = rng_int(1, 3);
    r->num_heads = rng_int(1, 4);
    r->seq_len = rng_int(1, 9);
    r->head_dim = RNG_PICK(dims);
    t->rope.dim = rng_chance(50) ? 0 : 2 * rng_int(1, r->head_dim / 2);
    r->head_dim += t->rope.dim ? rng_int(0, 1) : 0; /* an odd one, where not all turn */
    t->rope.interleaved = rng_chance(50);
    t->rope.attention_factor = rng_chance(30) ? 1.25f : 0;
    r->layout = (int)rng_aside(0, 1);
    make_rows(&t->x, r, (int)rng_int(0, 2), (int)rng_int(0, LAYOUT_COUNT - 1));
    make_rows(&t->y, r, (int)rng_int(0, 2), (int)rng_int(0, LAYOUT_SHARED_HEADS - 1));
    tensor_fill_normal(&t->x, 1.0f);
    tensor_remember(&t->x);
    tensor_remember(&t->y);
    r->x = tensor_input(&t->x);
    r->y = tensor_output(&t->y);
    choose_positions(t, (int)rng_int(0, POSITION_WAYS - 1));
    pairs = turning(&t->rope, r->head_dim) / 2;
    t->c = test_alloc((size_t)(t->num_positions * pairs) * sizeof *t->c);
    t->s = test_alloc((size_t)(t->num_positions * pairs) * sizeof *t->s);
    table(&t->rope, r->head_dim, t->first_position, t->num_positions, t->c, t->s);
}

/* Half a unit of a number's storage type. */
static double storage_error(int dtype, double size)
{
    static const int bits[] = { 24, 11, 8 };
    return size * ldexp(1, -bits[dtype]) + (dtype == ATTN_F16 ? ldexp(1, -25) : 0);
}

/* Of one number; `size` are its terms without sign, which are rounded once each. */
static double units_off(const problem *t, double got, double wanted, double size)
{
    const double stored = storage_error(t->y.dtype, fabs(wanted));
    const double bound = 1.01 * (2 * ldexp(1, -24) * size + stored);
    return fabs(got - wanted) / (bound + ldexp(1, -140));
}

/* The worst of a row against double arithmetic on the table's numbers. */
static double row_off(const problem *t, int64_t b, int64_t h, int64_t i)
{
    const int64_t dim = turning(&t->rope, t->rows.head_dim), pairs = dim / 2;
    const float *c = t->c + (position_at(t, b, i) - t->first_position) * pairs;
    const float *s = t->s + (position_at(t, b, i) - t->first_position) * pairs;
    double worst = 0;
    for (int64_t n = 0; n < pairs; n++) {
        const int64_t at = t->rope.interleaved ? 2 * n : n;
        const int64_t other = t->rope.interleaved ? at + 1 : at + pairs;
        const double x1 = (double)tensor_get(&t->x, b, h, i, at);
        const double x2 = (double)tensor_get(&t->x, b, h, i, other);
        const double cn = (double)c[n], sn = (double)s[n];
        worst = fmax(worst, units_off(t, (double)tensor_get(&t->y, b, h, i, at), x1 * cn - x2 * sn,
                                      fabs(x1 * cn) + fabs(x2 * sn)));
        worst = fmax(worst, units_off(t, (double)tensor_get(&t->y, b, h, i, other),
                                      x2 * cn + x1 * sn, fabs(x2 * cn) + fabs(x1 * sn)));
    }
    for (int64_t n = dim; n < t->rows.head_dim; n++) {
        const double x = (double)tensor_get(&t->x, b, h, i, n);
        worst = fmax(worst, units_off(t, (double)tensor_get(&t->y, b, h, i, n), x, 0));
    }
    return worst;
}

/* Bits of each element of y, in order. */
static float *elements(const test_tensor *y)
{
    float *list = test_alloc((size_t)(y->batch * y->heads * y->seq * y->dim) * sizeof *list);
    int64_t n = 0;
    for (int64_t b = 0; b < y->batch; b++)
        for (int64_t h = 0; h < y->heads; h++)
            for (int64_t i = 0; i < y->seq; i++)
                for (int64_t d = 0; d < y->dim; d++)
                    list[n++] = tensor_get(y, b, h, i, d);
    return list;
}

static int same_elements(const test_tensor *a, const test_tensor *b)
{
    const size_t count = (size_t)(a->batch * a->heads * a->seq * a->dim);
    return memcmp(elements(a), elements(b), count * sizeof(float)) == 0;
}

static void check_against_double(problem *t)
{
    double worst = 0;
    if (!apply(&t->rope, &t->rows))
        return;
    for (int64_t b = 0; b < t->rows.batch; b++)
        for (int64_t h = 0; h < t->rows.num_heads; h++)
            for (int64_t i = 0; i < t->rows.seq_len; i++)
                worst = fmax(worst, row_off(t, b, h, i));
    worst_note(worst);
    CHECK(worst <= 1, "%.3f of the bound", worst);
    CHECK(tensor_unchanged(&t->x) && tensor_gaps_unchanged(&t->y), "x or gaps of y were changed");
}

/* The same call to another y, `rope` and rows changed as the caller did. */
static void check_same(const problem *t, const attn_rope *rope, attn_rope_rows rows,
                       const char *what)
{
    test_tensor y;
    make_rows(&y, &rows, t->y.dtype, (int)rng_int(0, LAYOUT_SHARED_HEADS - 1));
    tensor_remember(&y);
    rows.y = tensor_output(&y);
    if (apply(rope, &rows))
        CHECK(same_elements(&y, &t->y) && tensor_gaps_unchanged(&y), "%s: other bits", what);
}

/* The same numbers in another layout. */
static test_tensor copy_of(const test_tensor *x, const attn_rope_rows *r, int layout)
{
    test_tensor copy;
    make_rows(&copy, r, x->dtype, layout);
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t h = 0; h < x->heads; h++)
            for (int64_t i = 0; i < x->seq; i++)
                for (int64_t d = 0; d < x->dim; d++)
                    tensor_set(&copy, b, h, i, d, tensor_get(x, b, h, i, d));
    tensor_remember(&copy);
    return copy;
}

static void check_layouts(const problem *t)
{
    const test_tensor x = copy_of(&t->x, &t->rows, (int)rng_int(0, LAYOUT_SHARED_HEADS - 1));
    attn_rope_rows rows = t->rows;
    rows.x = tensor_input(&x);
    check_same(t, &t->rope, rows, "another layout");
}

static void check_in_place(const problem *t)
{
    const test_tensor x = copy_of(&t->x, &t->rows, (int)rng_int(0, LAYOUT_SHARED_HEADS - 1));
    attn_rope_rows rows = t->rows;
    if (t->x.dtype != t->y.dtype)
        return;
    rows.x = tensor_input(&x);
    rows.y = tensor_output(&x);
    if (apply(&t->rope, &rows))
        CHECK(same_elements(&x, &t->y) && tensor_gaps_unchanged(&x), "in place: other bits");
}

/* The table of all positions from 0, in rows with gaps, instead of angles computed. */
static void check_tables(const problem *t)
{
    const int64_t pairs = turning(&t->rope, t->rows.head_dim) / 2, gap = rng_int(0, 3);
    const int64_t count = t->first_position + t->num_positions;
    attn_rope given = { .dim = t->rope.dim, .interleaved = t->rope.interleaved };
    float *c, *s;
    if (t->first_position < 0)
        return;
    c = test_alloc((size_t)(count * (pairs + gap)) * sizeof *c);
    s = test_alloc((size_t)(count * (pairs + gap)) * sizeof *s);
    for (int64_t p = 0; p < count; p++)
        table(&t->rope, t->rows.head_dim, p, 1, c + p * (pairs + gap), s + p * (pairs + gap));
    given.cos = c;
    given.sin = s;
    given.num_positions = count;
    given.table_stride = (ptrdiff_t)(gap ? pairs + gap : 0);
    given.base = -1; /* counts for nothing */
    check_same(t, &given, t->rows, "a table");
}

/* Each batch entry, head and row alone. */
static void check_one_by_one(const problem *t)
{
    test_tensor y;
    tensor_make(&y, t->y.dtype, LAYOUT_PADDED, t->y.batch, t->y.heads, t->y.seq, t->y.dim);
    for (int64_t b = 0; b < y.batch; b++)
        for (int64_t i = 0; i < y.seq; i++)
            for (int64_t h = 0; h < y.heads; h++) {
                attn_rope_rows one = t->rows;
                const int64_t position = position_at(t, b, i);
                one.batch = one.num_heads = one.seq_len = 1;
                one.positions = NULL;
                one.first = &position;
                one.x.data = (const char *)t->x.data +
                             (b * t->x.step_batch + h * t->x.step_head + i * t->x.step_seq) *
                                 (ptrdiff_t)dtype_size(t->x.dtype);
                one.y = tensor_output(&y);
                one.y.data =
                    (char *)y.data + (b * y.step_batch + h * y.step_head + i * y.step_seq) *
                                         (ptrdiff_t)dtype_size(y.dtype);
                apply(&t->rope, &one);
            }
    CHECK(same_elements(&y, &t->y), "row by row: other bits");
}

static void check_random(void)
{
    const int quick = getenv("ATTN_TEST_QUICK") != NULL;
    for (int n = 0; n < (quick ? 60 : 400); n++) {
        problem t;
        if (!begin_case("random problem %d", n))
            continue;
        make_problem(&t);
        check_against_double(&t);
        check_layouts(&t);
        check_in_place(&t);
        check_tables(&t);
        check_one_by_one(&t);
    }
}

/* ---- special numbers ------------------------------------------------------------------------- */

/* Turned elements hold one NaN and no -0, elements that pass are copied bit for bit. */
static void check_special(int dtype)
{
    static const uint32_t bits[] = { 0x80000000u, 0,           0xff812345u, 0x80000000u,
                                     0x7f800000u, 0x3f800000u, 0xffc00001u, 0x80000000u };
    static const uint32_t turned[] = { 0, 0, 0x7fc00000u, 0x7fc00000u, 0x7f800000u, 0x7f800000u };
    unsigned char x[8 * 4], y[8 * 4];
    const size_t each = dtype_size(dtype);
    attn_rope rope = { .dim = 6, .interleaved = 1 };
    attn_rope_rows rows = { .batch = 1, .num_heads = 1, .seq_len = 1, .head_dim = 8 };
    const int64_t first = 5;
    if (!begin_case("special numbers, %s", dtype_name(dtype)))
        return;
    for (int d = 0; d < 8; d++)
        if (dtype == ATTN_F32)
            memcpy(x + 4 * d, &bits[d], 4);
        else
            dtype_store(dtype, x + each * (size_t)d, float_from_bits(bits[d]));
    x[6 * each] = 0x5a; /* a NaN of its own */
    rows.x.dtype = rows.y.dtype = dtype;
    rows.x.data = x;
    rows.y.data = y;
    rows.first = &first;
    if (!apply(&rope, &rows))
        return;
    for (int d = 0; d < 6; d++) {
        const uint32_t got = float_bits(dtype_load(dtype, y + each * (size_t)d));
        CHECK(got == turned[d], "element %d is %08x", d, (unsigned)got);
    }
    CHECK(memcmp(x + 6 * each, y + 6 * each, 2 * each) == 0, "the others are not copied");
}

/* ---- the law: a product of turned rows depends on their distance ----------------------------- */

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t d = 0; d < n; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

static void turn_one(const attn_rope *rope, int64_t dim, const float *x, float *y, int64_t position)
{
    attn_rope_rows rows = { .batch = 1, .num_heads = 1, .seq_len = 1, .head_dim = dim };
    rows.x.data = x;
    rows.y.data = y;
    rows.first = &position;
    apply(rope, &rows);
}

/* Cosine, sine and the two operations of a turn are wrong by 2^-24 each, of both rows, and angles
 * by nothing that shows: 8 * 2^-24 of the lengths' product is more than enough. */
static void check_distance(void)
{
    for (int n = 0; n < 60; n++) {
        const int64_t dim = 2 * rng_int(1, 100);
        const int64_t distance = rng_int(0, 5000);
        float q[200], k[200], y[2][200];
        double one, other, bound;
        attn_rope rope = { .interleaved = n % 2 };
        if (!begin_case("distance %d", n))
            continue;
        for (int64_t d = 0; d < dim; d++) {
            q[d] = rng_normal();
            k[d] = rng_normal();
        }
        rope.base = rng_chance(50) ? 500000.0f : 0;
        bound = 8 * ldexp(1, -24) * sqrt(dot(q, q, dim) * dot(k, k, dim));
        turn_one(&rope, dim, q, y[0], distance);
        turn_one(&rope, dim, k, y[1], 0);
        one = dot(y[0], y[1], dim);
        for (int m = 0; m < 4; m++) {
            const int64_t at = rng_int(-1000000, 1000000);
            turn_one(&rope, dim, q, y[0], at + distance);
            turn_one(&rope, dim, k, y[1], at);
            other = dot(y[0], y[1], dim);
            worst_note(fabs(one - other) / bound);
            CHECK(fabs(one - other) <= bound, "at %lld: %g, at 0: %g", (long long)at, other, one);
        }
    }
}

/* ---- golden hashes --------------------------------------------------------------------------- */

static uint64_t hash_floats(uint64_t hash, const float *x, int64_t count)
{
    for (int64_t n = 0; n < count; n++)
        for (int shift = 0; shift < 32; shift += 8)
            hash = (hash ^ (float_bits(x[n]) >> shift & 255)) * UINT64_C(0x100000001b3);
    return hash;
}

#define HASH_BEGIN UINT64_C(0xcbf29ce484222325)

/* Of the tables of each scaling above, with freq_factors where the index is odd. */
static uint64_t scaling_hash(int n)
{
    static const int64_t positions[] = { -2147483648ll, -1000003, -1,          0, 1, 7,
                                         8191,          1048577,  2147483648ll };
    static float factors[600], c[600], s[600];
    attn_rope r = scalings[n].rope;
    const int64_t pairs = turning(&r, scalings[n].head_dim) / 2;
    uint64_t hash = HASH_BEGIN;
    for (int i = 0; i < 600; i++)
        factors[i] = 0.5f + (float)(i % 37) * 0.21875f;
    r.freq_factors = n % 2 ? factors : NULL;
    for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
        table(&r, scalings[n].head_dim, positions[p], 1, c, s);
        hash = hash_floats(hash_floats(hash, c, pairs), s, pairs);
    }
    return hash;
}

static const uint64_t scaling_golden[] = {
    UINT64_C(0x735a51f278b73e32), UINT64_C(0xe955ac1e15e26391), UINT64_C(0x6ea9272f34e62166),
    UINT64_C(0xcd7be07d235075b8), UINT64_C(0xf44bc4ed6d155b2d), UINT64_C(0x6bc9dfaccc943258),
    UINT64_C(0xc22201bfe6cc458e), UINT64_C(0xd4681777b8320325), UINT64_C(0xf353d1e7f5498c71),
    UINT64_C(0x3f3e8d8897ffdc99), UINT64_C(0xf44bc4ed6d155b2d), UINT64_C(0x3349f5a101b07433),
    UINT64_C(0x0e7ff808b8f006fd), UINT64_C(0x302066cbd7a5ac8f), UINT64_C(0x0cc8db04b0bc7cc6),
    UINT64_C(0x48ec72fe8ceb71f2), UINT64_C(0x0a6e0f86ba213f1f), UINT64_C(0x2ecb4e0386d3f230),
    UINT64_C(0xf674a1778b79a9b8), UINT64_C(0xa3dec21804fe700e), UINT64_C(0x7ddce110b58ca761),
    UINT64_C(0xd48ffb4f20b6d7ce), UINT64_C(0x93bd065f5778db7a)
};

static void check_scaling_hashes(void)
{
    const size_t count = sizeof scalings / sizeof *scalings;
    if (!begin_case("golden hashes of tables"))
        return;
    if (!CHECK(sizeof scaling_golden / sizeof *scaling_golden == count, "one for each scaling"))
        return;
    for (size_t n = 0; n < count; n++) {
        const uint64_t hash = scaling_hash((int)n);
        CHECK(hash == scaling_golden[n], "%s: %016llx", scalings[n].name, (unsigned long long)hash);
    }
}

/* Rows of 80 of which 74 turn, from one type to another, numbers of all sizes down to subnormal
 * ones in f16. */
static uint64_t turning_hash(int from, int to, int interleaved)
{
    enum { HEADS = 3, ROWS = 5, DIM = 80 };
    const int64_t positions[ROWS] = { 0, 1, 1000, -77, 131071 };
    test_tensor x, y;
    attn_rope rope = { .dim = 74, .interleaved = interleaved, .attention_factor = 1.1f };
    attn_rope_rows rows = { .batch = 1, .num_heads = HEADS, .seq_len = ROWS, .head_dim = DIM };
    uint32_t state = 1;
    tensor_make(&x, from, LAYOUT_PACKED, 1, HEADS, ROWS, DIM);
    tensor_make(&y, to, LAYOUT_BSHD, 1, HEADS, ROWS, DIM);
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t d = 0; d < DIM; d++) {
                state = state * 1664525u + 1013904223u;
                tensor_set(&x, 0, h, i, d,
                           ldexpf((float)(int32_t)(state >> 8) / 8388608.0f - 1,
                                  (int)(state >> 2 & 15) - 12));
            }
    rows.x = tensor_input(&x);
    rows.y = tensor_output(&y);
    rows.positions = positions;
    apply(&rope, &rows);
    return hash_floats(HASH_BEGIN, elements(&y), HEADS * ROWS * DIM);
}

/* from, to, pairing */
static const uint64_t turning_golden[3][3][2] = {
    { { UINT64_C(0x136947ba331b95c5), UINT64_C(0x250b74d36250d3a5) },
      { UINT64_C(0x4c4f530798f29d1a), UINT64_C(0xb98dc4a3b9179526) },
      { UINT64_C(0xe08d754f3f8511d6), UINT64_C(0x2359a1d6970df144) } },
    { { UINT64_C(0x4b27ae0bd4ace4dc), UINT64_C(0x2fc04c146a8c89fd) },
      { UINT64_C(0x0dfb5c388a9147c9), UINT64_C(0xf3c5fcaaa8c666a5) },
      { UINT64_C(0xe744de010436bea6), UINT64_C(0xc215e1870d3521f7) } },
    { { UINT64_C(0x7b3128280123e5be), UINT64_C(0xa97833cc9f3f7dea) },
      { UINT64_C(0x70dd72d5faa69ace), UINT64_C(0x4d2020698ecb82f7) },
      { UINT64_C(0xdb0ba9a11231349d), UINT64_C(0xef723e7c87fb6bcb) } }
};

static void check_turning_hashes(void)
{
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            for (int interleaved = 0; interleaved < 2; interleaved++) {
                uint64_t hash;
                if (!begin_case("golden hash, %s to %s, %s", dtype_name(from), dtype_name(to),
                                interleaved ? "interleaved" : "half-split"))
                    continue;
                hash = turning_hash(from, to, interleaved);
                CHECK(hash == turning_golden[from][to][interleaved], "%016llx",
                      (unsigned long long)hash);
            }
}

/* ---- errors: each field wrong in turn -------------------------------------------------------- */

typedef struct call {
    attn_rope rope;
    attn_rope_rows rows;
} call;

enum { WIDE_INT, PLAIN_INT, NUMBER, LONG_STRIDE, BROADCAST, NOT_NULL, SET_NULL };
enum { YARN = 1, LLAMA3 = 2, LINEAR = 4, TABLE = 8, GIVEN = 16, EACH = 32 };

typedef struct wrong {
    size_t offset; /* in a call */
    int kind;
    double value;
    int needs;
    attn_status status;
    const char *says;
} wrong;

#define ROPE(field) offsetof(call, rope.field)
#define ROWS(field) offsetof(call, rows.field)

static const wrong wrongs[] = {
    { ROPE(dim), WIDE_INT, 7, 0, ATTN_ERR_ARG, "dim (7) must be even" },
    { ROPE(dim), WIDE_INT, -2, 0, ATTN_ERR_ARG, "dim (-2) must be 0 (head_dim) or more" },
    { ROPE(dim), WIDE_INT, 10, 0, ATTN_ERR_ARG, "dim (10) must be at most head_dim (8)" },
    { ROPE(base), NUMBER, 1, 0, ATTN_ERR_ARG, "base (1.000000) must be 0 (10000) or above 1" },
    { ROPE(base), NUMBER, -2, 0, ATTN_ERR_ARG, "base (-2.000000) must be" },
    { ROPE(base), NUMBER, NAN, 0, ATTN_ERR_ARG, "base (nan) must be" },
    { ROPE(base), NUMBER, INFINITY, 0, ATTN_ERR_ARG, "base (inf) must be" },
    { ROPE(scaling), PLAIN_INT, 5, 0, ATTN_ERR_ARG, "scaling (5) must be" },
    { ROPE(scaling), PLAIN_INT, -1, 0, ATTN_ERR_ARG, "scaling (-1) must be" },
    { ROPE(factor), NUMBER, 0.5, LINEAR, ATTN_ERR_ARG, "factor (5.000000e-1) must be 0 (1) or at" },
    { ROPE(factor), NUMBER, NAN, LINEAR, ATTN_ERR_ARG, "factor (nan) must be" },
    { ROPE(factor), NUMBER, 2, 0, ATTN_ERR_ARG,
      "factor (2.000000) means nothing with scaling (0)" },
    { ROPE(original_length), WIDE_INT, 0, YARN, ATTN_ERR_ARG,
      "original_length (0) must be from 1" },
    { ROPE(original_length), WIDE_INT, 2147483649.0, LLAMA3, ATTN_ERR_ARG,
      "original_length (2147483649) must be from 1 to 2147483648" },
    { ROPE(beta_fast), NUMBER, 1, YARN, ATTN_ERR_ARG,
      "beta_slow (1.000000) must be below beta_fast (1.000000)" },
    { ROPE(beta_fast), NUMBER, -1, YARN, ATTN_ERR_ARG, "beta_fast (-1.000000) must be 0 (32) or" },
    { ROPE(beta_slow), NUMBER, 2e6, YARN, ATTN_ERR_ARG, "beta_slow (2.000000e6) must be 0 (1) or" },
    { ROPE(beta_slow), NUMBER, 2, LLAMA3, ATTN_ERR_ARG, "beta_slow (2.000000) means nothing" },
    { ROPE(low_freq_factor), NUMBER, 4, LLAMA3, ATTN_ERR_ARG,
      "low_freq_factor (4.000000) must be below high_freq_factor (4.000000)" },
    { ROPE(low_freq_factor), NUMBER, 2, YARN, ATTN_ERR_ARG, "low_freq_factor (2.000000) means" },
    { ROPE(high_freq_factor), NUMBER, 5000, LLAMA3, ATTN_ERR_ARG,
      "high_freq_factor (5.000000e3) must be at most half of original_length" },
    { ROPE(attention_factor), NUMBER, -1, 0, ATTN_ERR_ARG, "attention_factor (-1.000000) must be" },
    { ROPE(freq_factors), NOT_NULL, 0, 0, ATTN_ERR_ARG, "freq_factors[0] (0.000000) must be at" },
    { ROPE(cos), SET_NULL, 0, TABLE, ATTN_ERR_ARG, "cos and sin: give both or neither" },
    { ROPE(sin), SET_NULL, 0, TABLE, ATTN_ERR_ARG, "cos and sin: give both or neither" },
    { ROPE(num_positions), WIDE_INT, -1, TABLE, ATTN_ERR_ARG,
      "num_positions (-1) must be at least" },
    { ROPE(num_positions), WIDE_INT, 2, TABLE, ATTN_ERR_ARG,
      "batch 0, row 2: position (2) must be at least 0 and below num_positions (2)" },
    { ROPE(table_stride), LONG_STRIDE, 1, TABLE, ATTN_ERR_OVERFLOW, "cos: batch (1)" },
    { ROWS(batch), WIDE_INT, -1, 0, ATTN_ERR_ARG, "batch (-1) must be at least 0" },
    { ROWS(num_heads), WIDE_INT, -1, 0, ATTN_ERR_ARG, "num_heads (-1) must be at least 0" },
    { ROWS(seq_len), WIDE_INT, -3, 0, ATTN_ERR_ARG, "seq_len (-3) must be at least 0" },
    { ROWS(batch), WIDE_INT, -0x1p63, 0, ATTN_ERR_ARG, "batch (-9223372036854775808) must be at" },
    { ROWS(num_heads), WIDE_INT, -0x1p63, 0, ATTN_ERR_ARG,
      "num_heads (-9223372036854775808) must" },
    { ROWS(seq_len), WIDE_INT, -0x1p63, 0, ATTN_ERR_ARG, "seq_len (-9223372036854775808) must be" },
    { ROWS(head_dim), WIDE_INT, -0x1p63, 0, ATTN_ERR_ARG, "head_dim (-9223372036854775808) must" },
    { ROPE(dim), WIDE_INT, -0x1p63, 0, ATTN_ERR_ARG, "dim (-9223372036854775808) must be 0" },
    { ROPE(num_positions), WIDE_INT, -0x1p63, TABLE, ATTN_ERR_ARG,
      "num_positions (-9223372036854775808) must be at least" },
    { ROPE(original_length), WIDE_INT, -0x1p63, YARN, ATTN_ERR_ARG,
      "original_length (-9223372036854775808) must be from 1" },
    { ROWS(batch), WIDE_INT, 4e18, 0, ATTN_ERR_OVERFLOW, "x: batch (4000000000000000000)" },
    { ROWS(head_dim), WIDE_INT, 0, 0, ATTN_ERR_ARG, "head_dim (0) must be at least 1" },
    { ROWS(head_dim), WIDE_INT, 9, 0, ATTN_ERR_ARG, "head_dim (9) must be even, or an even dim" },
    { ROWS(head_dim), WIDE_INT, 1 << 25, 0, ATTN_ERR_ARG, "head_dim (33554432) must be at most" },
    { ROWS(x.data), SET_NULL, 0, 0, ATTN_ERR_ARG, "x.data is NULL" },
    { ROWS(y.data), SET_NULL, 0, 0, ATTN_ERR_ARG, "y.data is NULL" },
    { ROWS(layout), PLAIN_INT, 2, 0, ATTN_ERR_ARG,
      "layout (2) must be at most 1: 0 is BHSD, 1 is BSHD" },
    { ROWS(x.dtype), PLAIN_INT, 3, 0, ATTN_ERR_ARG, "x.dtype (3) must be at most 2" },
    { ROWS(y.dtype), PLAIN_INT, -1, 0, ATTN_ERR_ARG, "y.dtype (-1) must be at least 0" },
    { ROWS(x.stride_seq), LONG_STRIDE, 1, 0, ATTN_ERR_OVERFLOW, "x: batch (2) x heads (1) x rows" },
    { ROWS(y.stride_batch), LONG_STRIDE, -1, 0, ATTN_ERR_OVERFLOW, "y: batch (2)" },
    { ROWS(y.stride_batch), BROADCAST, 0, 0, ATTN_ERR_ARG,
      "y.stride_batch (ATTN_STRIDE_BROADCAST)" },
    { ROWS(y.stride_head), BROADCAST, 0, 0, ATTN_ERR_ARG, "y.stride_head (ATTN_STRIDE_BROADCAST)" },
    { ROWS(y.stride_seq), BROADCAST, 0, 0, ATTN_ERR_ARG, "y.stride_seq (ATTN_STRIDE_BROADCAST)" },
    { ROWS(positions), NOT_NULL, 0, GIVEN, ATTN_ERR_ARG, "positions and first: give one of them" },
    { ROWS(positions_stride), LONG_STRIDE, 1, EACH, ATTN_ERR_OVERFLOW, "positions: batch (2)" },
};

enum { BATCH = 2, SEQ = 3, DIM = 8 };

static const float zeros[BATCH * SEQ * DIM];
static float out[BATCH * SEQ * DIM], cosines[16 * DIM], sines[16 * DIM];
static int64_t places[BATCH * SEQ], starts[BATCH];

static call right_call(int needs)
{
    call a = { .rows = { .batch = BATCH, .num_heads = 1, .seq_len = SEQ, .head_dim = DIM } };
    a.rows.x.data = zeros;
    a.rows.y.data = out;
    if (needs & (YARN | LLAMA3)) {
        a.rope.scaling = needs & YARN ? ATTN_ROPE_YARN : ATTN_ROPE_LLAMA3;
        a.rope.original_length = 4096;
        a.rope.factor = 4;
    }
    if (needs & LINEAR)
        a.rope.scaling = ATTN_ROPE_LINEAR;
    if (needs & TABLE) {
        a.rope.cos = cosines;
        a.rope.sin = sines;
        a.rope.num_positions = 16;
    }
    a.rows.first = needs & GIVEN ? starts : NULL;
    a.rows.positions = needs & EACH ? places : NULL;
    return a;
}

static void break_call(call *a, const wrong *w)
{
    char *at = (char *)a + w->offset;
    const int64_t wide = w->kind == WIDE_INT ? (int64_t)w->value : 0;
    const int plain = w->kind == PLAIN_INT ? (int)w->value : 0;
    const float number = (float)w->value;
    const ptrdiff_t stride =
        w->kind == BROADCAST ? ATTN_STRIDE_BROADCAST : PTRDIFF_MAX / 4 * (w->value < 0 ? -1 : 1);
    const void *pointer = w->kind == NOT_NULL ? zeros : NULL;
    if (w->kind == WIDE_INT)
        memcpy(at, &wide, sizeof wide);
    else if (w->kind == PLAIN_INT)
        memcpy(at, &plain, sizeof plain);
    else if (w->kind == NUMBER)
        memcpy(at, &number, sizeof number);
    else if (w->kind == LONG_STRIDE || w->kind == BROADCAST)
        memcpy(at, &stride, sizeof stride);
    else
        memcpy(at, &pointer, sizeof pointer);
}

static int untouched(void)
{
    for (size_t n = 0; n < sizeof out / sizeof *out; n++)
        if (float_bits(out[n]) != 0x40e00000u)
            return 0;
    return 1;
}

static void refused(const attn_rope *rope, const attn_rope_rows *rows, attn_status status,
                    const char *says)
{
    char why[300] = "", cut[12];
    attn_status got;
    for (size_t n = 0; n < sizeof out / sizeof *out; n++)
        out[n] = 7;
    got = attn_rope_apply(rope, rows, why, sizeof why);
    CHECK(got == status, "%s, not %s", attn_status_string(got), attn_status_string(status));
    CHECK(strncmp(why, says, strlen(says)) == 0, "'%s', not '%s'", why, says);
    CHECK(attn_rope_apply(rope, rows, NULL, 0) == status, "without a buffer");
    CHECK(attn_rope_apply(rope, rows, cut, sizeof cut) == status && strlen(cut) < sizeof cut &&
              strncmp(cut, why, strlen(cut)) == 0,
          "a short buffer");
    CHECK(untouched(), "something was written");
}

static void check_wrongs(void)
{
    for (size_t n = 0; n < sizeof wrongs / sizeof *wrongs; n++) {
        call a = right_call(wrongs[n].needs);
        if (!begin_case("wrong: %s", wrongs[n].says))
            continue;
        apply(&a.rope, &a.rows); /* right before it is broken */
        break_call(&a, &wrongs[n]);
        refused(&a.rope, &a.rows, wrongs[n].status, wrongs[n].says);
    }
}

/* Frequencies of a turn a position and more are refused where they would be compared. */
static void check_wrong_factors(void)
{
    for (int needs = YARN; needs <= LINEAR; needs *= 2) {
        float factors[DIM / 2] = { 1, 1, 0.16f, 1 };
        call a = right_call(needs);
        if (!begin_case("wrong factors, scaling %d", a.rope.scaling))
            continue;
        a.rope.freq_factors = factors;
        apply(&a.rope, &a.rows);
        factors[2] = 0.159f;
        if (needs == LINEAR)
            apply(&a.rope, &a.rows);
        else
            refused(&a.rope, &a.rows, ATTN_ERR_ARG,
                    "freq_factors[2] (1.590000e-1) must be at least 0.16 with this scaling, and ");
        factors[2] = INFINITY;
        refused(&a.rope, &a.rows, ATTN_ERR_ARG, "freq_factors[2] (inf) must be at least ");
    }
}

static void check_wrong_positions(void)
{
    const int64_t far = ((int64_t)1 << 31) + 1;
    call a = right_call(EACH);
    if (!begin_case("wrong positions"))
        return;
    refused(NULL, &a.rows, ATTN_ERR_ARG, "rope is NULL");
    refused(&a.rope, NULL, ATTN_ERR_ARG, "rows is NULL");
    places[4] = far;
    refused(&a.rope, &a.rows, ATTN_ERR_ARG,
            "batch 1, row 1: position (2147483649) must be from -2^31 to 2^31");
    places[4] = -far;
    refused(&a.rope, &a.rows, ATTN_ERR_ARG,
            "batch 1, row 1: position (-2147483649) must be from -2^31 to 2^31");
    places[4] = 0;
    a = right_call(GIVEN);
    starts[1] = far - 2;
    refused(&a.rope, &a.rows, ATTN_ERR_ARG, "batch 1, row 2: position (2147483649) must be from");
    starts[1] = INT64_MAX;
    refused(&a.rope, &a.rows, ATTN_ERR_ARG, "first[1] (9223372036854775807) must be from");
    starts[1] = -1;
    a = right_call(GIVEN | TABLE);
    refused(&a.rope, &a.rows, ATTN_ERR_ARG,
            "batch 1, row 0: position (-1) must be at least 0 and below num_positions (16)");
    starts[1] = 0;
}

static const struct {
    int64_t head_dim, first, count;
    int has_cos, has_sin, given;
    attn_status status;
    const char *says;
} wrong_tables[] = {
    { 7, 0, 1, 1, 1, 0, ATTN_ERR_ARG, "head_dim (7) must be even" },
    { 8, 0, -1, 1, 1, 0, ATTN_ERR_ARG, "count (-1) must be at least 0" },
    { INT64_MIN, 0, 1, 1, 1, 0, ATTN_ERR_ARG, "head_dim (-9223372036854775808) must be at" },
    { 8, 0, INT64_MIN, 1, 1, 0, ATTN_ERR_ARG, "count (-9223372036854775808) must be at least" },
    { 8, INT64_MIN, 1, 1, 1, 0, ATTN_ERR_ARG, "first (-9223372036854775808) must be from -2^31" },
    { 8, 0, INT64_MAX, 1, 1, 0, ATTN_ERR_ARG, "first (0) + count (9223372036854775807) must be" },
    { 8, 2147483649ll, 1, 1, 1, 0, ATTN_ERR_ARG, "first (2147483649) must be from -2^31 to 2^31" },
    { 8, 2147483648ll, 2, 1, 1, 0, ATTN_ERR_ARG, "first (2147483648) + count (2) must be at most" },
    { 8, 0, 1, 0, 1, 0, ATTN_ERR_ARG, "cos is NULL" },
    { 8, 0, 1, 1, 0, 0, ATTN_ERR_ARG, "sin is NULL" },
    { 8, 0, 1, 1, 1, 1, ATTN_ERR_ARG, "rope has a table" },
};

static void check_wrong_tables(void)
{
    for (size_t n = 0; n < sizeof wrong_tables / sizeof *wrong_tables; n++) {
        call a = right_call(wrong_tables[n].given ? TABLE : 0);
        char why[200];
        attn_status got;
        if (!begin_case("wrong table: %s", wrong_tables[n].says))
            continue;
        got = attn_rope_table(&a.rope, wrong_tables[n].head_dim, wrong_tables[n].first,
                              wrong_tables[n].count, wrong_tables[n].has_cos ? cosines : NULL,
                              wrong_tables[n].has_sin ? sines : NULL, why, sizeof why);
        CHECK(got == wrong_tables[n].status &&
                  strncmp(why, wrong_tables[n].says, strlen(wrong_tables[n].says)) == 0,
              "%s: %s", attn_status_string(got), why);
    }
}

/* Without heads there are no numbers, but positions are looked at as ever. */
static void check_no_heads(void)
{
    call a = right_call(0), each = right_call(EACH), given = right_call(GIVEN | TABLE);
    if (!begin_case("no heads"))
        return;
    a.rows.num_heads = each.rows.num_heads = given.rows.num_heads = 0;
    a.rows.x.data = each.rows.x.data = given.rows.x.data = NULL;
    a.rows.y.data = each.rows.y.data = given.rows.y.data = NULL;
    apply(&a.rope, &a.rows);
    apply(&each.rope, &each.rows);
    apply(&given.rope, &given.rows);
    places[4] = INT64_MIN;
    refused(&each.rope, &each.rows, ATTN_ERR_ARG,
            "batch 1, row 1: position (-9223372036854775808) must be from -2^31 to 2^31");
    places[4] = 0;
    starts[1] = 14;
    refused(&given.rope, &given.rows, ATTN_ERR_ARG,
            "batch 1, row 2: position (16) must be at least 0 and below num_positions (16)");
    given.rows.batch = INT64_MAX;
    refused(&given.rope, &given.rows, ATTN_ERR_OVERFLOW, "first: batch (9223372036854775807)");
    starts[1] = 0;
    a.rows.batch = INT64_MAX;
    apply(&a.rope, &a.rows);
    a.rows.seq_len = INT64_MAX;
    refused(&a.rope, &a.rows, ATTN_ERR_ARG,
            "batch 0, row 4294967297: position (4294967297) must be from -2^31 to 2^31");
    a.rope.base = -1;
    refused(&a.rope, &a.rows, ATTN_ERR_ARG, "base (-1.000000) must be");
}

/* Nothing to do is no error, whatever the data. */
static void check_nothing(void)
{
    call a = right_call(0);
    float *none = NULL;
    if (!begin_case("nothing to do"))
        return;
    a.rows.x.data = NULL;
    a.rows.y.data = NULL;
    a.rows.seq_len = 0;
    CHECK(apply(&a.rope, &a.rows), "no rows");
    a.rows.seq_len = INT64_MAX;
    a.rows.batch = 0;
    CHECK(apply(&a.rope, &a.rows), "no batch entries");
    CHECK(table(&a.rope, 8, 0, 0, none, none), "an empty table");
}

TEST_GROUP(rope, RUN_ONCE, "rotary embedding: exact values, formulas, laws, errors, golden hashes")
{
    check_scalings();
    check_nearest();
    check_scaling_hashes();
    check_turning_hashes();
    check_random();
    check_special(ATTN_F32);
    check_special(ATTN_F16);
    check_special(ATTN_BF16);
    check_distance();
    check_wrongs();
    check_wrong_factors();
    check_wrong_positions();
    check_wrong_tables();
    check_no_heads();
    check_nothing();
}
