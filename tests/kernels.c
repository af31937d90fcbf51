/* kernels.c - each kernel of a set against the portable set, and which tiles the kernels see.
 * SPDX-License-Identifier: MIT
 *
 * Sets differ in how many rows a tile has, and lanes are independent. So the portable kernel runs
 * several times, each time on as many lanes of the tile as it has rows, starting at a random lane:
 * every lane must give the same bits wherever it stands. Matrices end where an inaccessible page
 * begins; K and V are exactly as long as their strides say.
 */
#include "spy.h"
#include "test.h"

#include <math.h>
#include <string.h>

enum { MAX_ROWS = ATTN_KERNEL_MAX_ROWS, ROUNDS = 120, SMALL_ROUNDS = 40 };

static const attn_kernels *tested, *portable;

static const attn_kernels *set_under_test(void)
{
    return T.table != NULL ? T.table : attn_kernels_find(T.kernels);
}

/* ---- random matrices ------------------------------------------------------------------------- */

static float *align_up(float *p)
{
    return p + (64 - (uintptr_t)p % 64) % 64 / sizeof(float);
}

/* `count` floats aligned to 64 bytes as in the workspace, an inaccessible page right behind when
 * count is a multiple of 16. */
static float *matrix(int64_t count)
{
    const size_t bytes = ((size_t)count * sizeof(float) + 63) / 64 * 64;
    float *p = test_alloc_at(bytes, PLACE_PAGE_AFTER);
    return (uintptr_t)p % 64 == 0 ? p : align_up(test_alloc(bytes + 64));
}

static int small_round; /* Whether matrices may hold subnormal numbers, or make them. */

static float size_of_numbers(void)
{
    static const int exponents[] = { 0, -63, -100, -125, -130, -146 };
    return small_round ? ldexpf(1, exponents[rng_int(0, 5)]) : 1;
}

static float *normal_matrix(int64_t count, float factor)
{
    float *p = matrix(count);
    factor *= size_of_numbers();
    for (int64_t i = 0; i < count; i++)
        p[i] = factor * rng_normal();
    return p;
}

static float infinity(void)
{
    return float_from_bits(0x7f800000u);
}

/* Logits: normal, with some dead keys, and rarely a NaN or +inf. */
static float *logit_matrix(int64_t count)
{
    static const int64_t factors[] = { 1, 8, 30, 200 };
    const float factor = (float)RNG_PICK(factors);
    const int dead = rng_chance(50) ? 30 : 0, strange = rng_chance(20);
    float *p = normal_matrix(count, factor);
    for (int64_t i = 0; i < count; i++) {
        if (rng_chance(dead))
            p[i] = -infinity();
        else if (strange && rng_chance(2))
            p[i] = rng_chance(50) ? infinity() : float_from_bits(0x7fc00000u);
    }
    return p;
}

/* Lane r of the small matrix is lane (first + r) % rows of the large one. */
static float *take_lanes(const float *from, int64_t n, int rows, int first)
{
    float *to = matrix(n * portable->rows);
    for (int64_t i = 0; i < n; i++)
        for (int r = 0; r < portable->rows; r++)
            to[i * portable->rows + r] = from[i * rows + (first + r) % rows];
    return to;
}

/* Same bits, or both NaN: which NaN an operation makes is left to the CPU; stores canonise it. */
static int same_number(float a, float b)
{
    return float_bits(a) == float_bits(b) || (a != a && b != b);
}

static void check_lanes(const char *what, const float *large, const float *small, int64_t n,
                        int first)
{
    const int rows = tested->rows;
    for (int64_t i = 0; i < n; i++)
        for (int r = 0; r < portable->rows; r++) {
            const float a = large[i * rows + (first + r) % rows];
            const float b = small[i * portable->rows + r];
            if (!same_number(a, b)) {
                CHECK(0, "%s[%d][lane %d] is %08x, portable %08x", what, (int)i, (first + r) % rows,
                      (unsigned)float_bits(a), (unsigned)float_bits(b));
                return;
            }
        }
    CHECK(1, "%s", what);
}

/* ---- one function each. first: the lane of the tile at which the portable kernel begins ------ */

typedef struct sizes {
    int n, first; /* keys; lane */
    int64_t dim;
    ptrdiff_t stride; /* of K and V rows */
    float dead, factor;
} sizes;

static sizes random_sizes(void)
{
    static const int64_t keys[] = { 1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 100, 128, 200 };
    static const int64_t dims[] = { 1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 33, 64, 80, 96, 128, 130 };
    sizes z;
    z.n = (int)(rng_chance(50) ? RNG_PICK(keys) : rng_int(1, 130));
    z.first = (int)rng_int(0, tested->rows - 1);
    z.dim = RNG_PICK(dims);
    z.stride = (ptrdiff_t)(z.dim + (rng_chance(50) ? 0 : rng_int(1, 9)));
    z.dead = rng_chance(50) ? 0.0f : ATTN_DEAD;
    z.factor = rng_normal();
    return z;
}

/* Rows of K or V, in memory that ends with the last element of the last row. */
static float *key_rows(const sizes *z)
{
    const int64_t count = (int64_t)z->stride * (z->n - 1) + z->dim;
    float *p = test_alloc_at((size_t)count * sizeof *p, PLACE_PAGE_AFTER);
    const float size = size_of_numbers();
    for (int64_t i = 0; i < count; i++)
        p[i] = i % z->stride < z->dim ? size * rng_normal() : float_from_bits(0x7fc00000u);
    return p;
}

/* n numbers that end where an inaccessible page begins. */
static float *vector(int64_t n)
{
    float *p = test_alloc_at((size_t)n * sizeof *p, PLACE_PAGE_AFTER);
    const float size = size_of_numbers();
    for (int64_t i = 0; i < n; i++)
        p[i] = size * rng_normal();
    return p;
}

/* Units and 8-bit floats of any bytes widened. */
static void check_quantised(const sizes *z)
{
    static const struct {
        int numbers, bytes; /* of a unit */
    } types[] = { { 1, 1 }, { 1, 1 }, { 32, 34 }, { 32, 22 }, { 32, 18 } };
    for (int type = 0; type < 5; type++) {
        void (*const kernels[5][2])(float *, const uint8_t *, int64_t) = {
            { tested->widen_e4m3, portable->widen_e4m3 },
            { tested->widen_e5m2, portable->widen_e5m2 },
            { tested->widen_q8_0, portable->widen_q8_0 },
            { tested->widen_q5_0, portable->widen_q5_0 },
            { tested->widen_q4_0, portable->widen_q4_0 },
        };
        const int64_t units = 1 + z->dim % (types[type].numbers == 1 ? 300 : 9);
        const int64_t n = units * types[type].numbers;
        const size_t bytes = (size_t)(units * types[type].bytes);
        uint8_t *from = test_alloc_at(bytes, PLACE_PAGE_AFTER);
        float *a = vector(n), *b = test_alloc((size_t)n * sizeof *b);
        for (size_t i = 0; i < bytes; i++)
            from[i] = (uint8_t)rng_int(0, 255);
        kernels[type][0](a, from, n);
        kernels[type][1](b, from, n);
        for (int64_t d = 0; d < n; d++)
            if (!same_number(a[d], b[d])) {
                CHECK(0, "type %d: number %d widened is %08x, not %08x", type, (int)d,
                      (unsigned)float_bits(a[d]), (unsigned)float_bits(b[d]));
                return;
            }
    }
}

static void check_scale_keys(const sizes *z)
{
    const int rows = tested->rows, n = z->n;
    float *s = vector((int64_t)n * rows), *b = test_alloc((size_t)(n * rows) * sizeof *b);
    float *scale = vector(n);
    for (int i = 0; i < n * rows; i++)
        b[i] = s[i] * scale[i / rows];
    tested->scale_keys(s, scale, n);
    CHECK(memcmp(s, b, (size_t)(n * rows) * sizeof *b) == 0, "scale_keys");
}

/* Every byte times scales that are one, lie one after the other, or apart. */
static void check_scaled(const sizes *z)
{
    const int64_t n = 1 + z->dim % 300, step = z->dim % 5;
    int8_t *from = test_alloc_at((size_t)n, PLACE_PAGE_AFTER);
    float *scale = vector((n - 1) * step + 1), *a = vector(n);
    for (int64_t d = 0; d < n; d++)
        from[d] = (int8_t)((d + 256 - n % 256) % 256 - 128);
    if (n > 2)
        scale[step] = float_from_bits(0x7fc00000u);
    check_scale_keys(z);
    tested->widen_i8(a, from, scale, step, n);
    for (int64_t d = 0; d < n; d++) {
        const float b = (float)from[d] * scale[d * step];
        if (!same_number(a[d], b)) {
            CHECK(0, "step %d: number %d widened is %08x, not %08x", (int)step, (int)d,
                  (unsigned)float_bits(a[d]), (unsigned)float_bits(b));
            return;
        }
    }
}

/* Every 16-bit number widened; and numbers around every rounding step narrowed. */
static void check_storage(const sizes *z)
{
    const int64_t n = 1 + z->dim % 97;
    uint16_t *half = test_alloc_at((size_t)n * sizeof *half, PLACE_PAGE_AFTER);
    uint16_t *h = test_alloc((size_t)n * sizeof *h);
    float *a = vector(n), *b = test_alloc((size_t)n * sizeof *b);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        for (int i = 0; i < 65536; i += (int)n) {
            for (int64_t d = 0; d < n; d++)
                half[d] = (uint16_t)(i + d);
            (bf16 ? tested->widen_bf16 : tested->widen_f16)(a, half, n);
            (bf16 ? portable->widen_bf16 : portable->widen_f16)(b, half, n);
            for (int64_t d = 0; d < n; d++)
                if (!same_number(a[d], b[d])) {
                    CHECK(0, "%04x widened is %08x", (unsigned)half[d], (unsigned)float_bits(a[d]));
                    return;
                }
            for (int64_t d = 0; d < n; d++) { /* ties, their neighbours, anything between */
                const uint32_t low = bf16 ? 0x8000u : 0x1000u;
                uint32_t u = float_bits(a[d]) + low + (uint32_t)rng_int(-2, 2);
                u = rng_chance(20) ? u + (uint32_t)rng_int(0, 0xffff) : u;
                a[d] = a[d] != a[d] ? float_from_bits(0x7fc00000u) : float_from_bits(u);
                a[d] = a[d] != a[d] ? float_from_bits(0x7fc00000u) : a[d];
            }
            (bf16 ? tested->narrow_bf16 : tested->narrow_f16)(half, a, n);
            (bf16 ? portable->narrow_bf16 : portable->narrow_f16)(h, a, n);
            for (int64_t d = 0; d < n; d++)
                if (half[d] != h[d] || half[d] == 0x8000u) {
                    CHECK(0, "%08x narrowed is %04x, not %04x", (unsigned)float_bits(a[d]),
                          (unsigned)half[d], (unsigned)h[d]);
                    return;
                }
        }
        CHECK(1, "storage");
    }
}

static void check_pack(const sizes *z)
{
    const int rows = tested->rows, few = portable->rows;
    const float *q[MAX_ROWS], *some[MAX_ROWS];
    float *a = matrix(rows * z->dim), *b = matrix(few * z->dim);
    for (int r = 0; r < rows; r++)
        q[r] = vector(z->dim);
    for (int r = 0; r < few; r++)
        some[r] = q[(z->first + r) % rows];
    tested->pack(a, q, z->dim);
    portable->pack(b, some, z->dim);
    check_lanes("pack", a, b, z->dim, z->first);
}

/* A range of lanes of the tested set, often all of them, and whether a lane is in it. */
static attn_lanes random_lanes(void)
{
    attn_lanes lanes = { 0, tested->rows };
    if (rng_chance(60)) {
        lanes.begin = (int)rng_int(0, tested->rows - 1);
        lanes.end = (int)rng_int(lanes.begin + 1, tested->rows);
    }
    return lanes;
}

/* Both matrices get a number where the lane (of the large one) is outside, so that only the others
 * are compared. */
static void forget_lanes(float *large, float *small, int64_t n, int first, attn_lanes lanes)
{
    const int rows = tested->rows;
    for (int64_t i = 0; i < n; i++)
        for (int r = 0; r < portable->rows; r++) {
            const int lane = (first + r) % rows;
            if (lane < lanes.begin || lane >= lanes.end)
                large[i * rows + lane] = small[i * portable->rows + r] = 7;
        }
}

static attn_product product_of(const sizes *z, float *to, const float *by, const float *kv,
                               attn_lanes lanes)
{
    const attn_product p = { .to = to,
                             .by = by,
                             .kv = kv,
                             .stride = z->stride,
                             .n = z->n,
                             .dim = z->dim,
                             .factor = z->factor,
                             .lanes = lanes };
    return p;
}

static void check_qk(const sizes *z)
{
    const int rows = tested->rows;
    const attn_lanes lanes = random_lanes(), all = { 0, portable->rows };
    float *qt = normal_matrix(z->dim * rows, 1), *k = key_rows(z);
    float *some = take_lanes(qt, z->dim, rows, z->first);
    float *a = matrix((int64_t)z->n * rows), *b = matrix((int64_t)z->n * portable->rows);
    const attn_product p = product_of(z, a, qt, k, lanes), q = product_of(z, b, some, k, all);
    tested->qk(&p);
    portable->qk(&q);
    forget_lanes(a, b, z->n, z->first, lanes);
    check_lanes("qk", a, b, z->n, z->first);
}

enum { UNIT = 32 };

static int64_t unit_bytes(int dtype)
{
    return dtype == ATTN_Q8_0 ? 34 : dtype == ATTN_Q5_0 ? 22 : 18;
}

/* The whole number d of a unit, by the layout that src/quantised.c describes. */
static int unit_number(int dtype, const unsigned char *unit, int d)
{
    const unsigned char *lower = unit + (dtype == ATTN_Q5_0 ? 6 : 2);
    const int four = lower[d % 16] >> (d < 16 ? 0 : 4) & 15;
    if (dtype == ATTN_Q8_0)
        return (unit[2 + d] ^ 128) - 128;
    return dtype == ATTN_Q5_0 ? four + (unit[2 + d / 8] >> d % 8 & 1) * 16 - 16 : four - 8;
}

/* `count` rows of `bytes` each, `stride` apart, moved to runs of `first`, then `each` rows, every
 * run with memory of its own that ends with its last row. */
static attn_runs scatter_rows(const void *rows, int dtype, int count, int64_t stride, int64_t bytes,
                              int64_t first, int64_t each)
{
    const char **run = test_alloc((size_t)(count + 2) * sizeof *run);
    attn_runs runs = { 0 };
    int64_t done = 0, length = first, n;
    int made = 0;
    for (; done < count; done += n, length = each) {
        char *to;
        n = length < count - done ? length : count - done;
        to = test_alloc_at((size_t)((n - 1) * stride + bytes), PLACE_PAGE_AFTER);
        memcpy(to, (const char *)rows + done * stride, (size_t)((n - 1) * stride + bytes));
        run[made++] = to;
    }
    run[made] = run[made - 1];
    runs.dtype = dtype;
    runs.stride = (ptrdiff_t)stride;
    runs.first = first, runs.each = each;
    runs.run = run;
    return runs;
}

/* Rows of units of a type, in one run or, for few lanes, in several. */
typedef struct unit_keys {
    int dtype, n;
    int64_t units, stride;
    unsigned char *bytes; /* some scales are not finite, and there is -128 */
    attn_runs runs;
} unit_keys;

static unit_keys random_units(int dtype, int n, int64_t units, int scattered)
{
    const int64_t row = unit_bytes(dtype) * units;
    const int64_t stride = row + unit_bytes(dtype) * rng_int(0, 2);
    const size_t count = (size_t)((n - 1) * stride + row);
    unit_keys k = { .dtype = dtype, .n = n, .units = units, .stride = stride };
    k.bytes = test_alloc(count);
    for (size_t i = 0; i < count; i++)
        k.bytes[i] = (unsigned char)(rng_chance(20) ? 0x80 : rng_int(0, 255));
    for (size_t i = 0; i + 1 < count; i += (size_t)unit_bytes(dtype))
        if (!rng_chance(1)) /* else a sum over keys is hardly ever a number */
            k.bytes[i + 1] &= 0xbf;
    k.runs = scatter_rows(k.bytes, dtype, n, stride, row, scattered ? 16 * rng_int(1, 3) : n,
                          scattered ? 16 * rng_int(1, 3) : n);
    return k;
}

/* Whole numbers times the keys, by `kernel`, against the sums written down. */
static void check_unit_sums(const char *name, void (*kernel)(const attn_product *p),
                            const unit_keys *k, attn_lanes lanes, float factor)
{
    const int rows = tested->rows, n = k->n;
    const int64_t units = k->units, dim = UNIT * units;
    const float *q[MAX_ROWS];
    float *qt = vector(dim * rows), *scales = normal_matrix(units * rows, 1);
    float *s = vector((int64_t)n * rows);
    const attn_product p = { .to = s,
                             .by = qt,
                             .runs = &k->runs,
                             .n = n,
                             .dim = dim,
                             .factor = factor,
                             .lanes = lanes,
                             .scales = scales };
    int64_t wrong = 0;
    for (int r = 0; r < rows; r++) {
        float *x = vector(dim);
        for (int64_t d = 0; d < dim; d++)
            x[d] = rng_chance(20) ? 127.0f : (float)rng_int(-127, 127);
        q[r] = x;
    }
    tested->pack_units(qt, q, dim);
    kernel(&p);
    for (int j = 0; j < n; j++)
        for (int r = lanes.begin; r < lanes.end; r++) {
            float chain = 0;
            for (int64_t u = 0; u < units; u++) {
                const unsigned char *unit = k->bytes + j * k->stride + u * unit_bytes(k->dtype);
                const float by = scales[u * rows + r] * dtype_load(ATTN_F16, unit);
                int sum = 0;
                for (int d = 0; d < UNIT; d++)
                    sum += (int)q[r][u * UNIT + d] * unit_number(k->dtype, unit, d);
                chain = exact_fma((float)sum, by, chain);
            }
            wrong += !same_number(s[j * rows + r], chain * factor);
        }
    CHECK(wrong == 0, "%s: %d of %d logits of %d units of type %d are wrong", name, (int)wrong,
          n * rows, (int)units, k->dtype);
}

static void check_units(const sizes *z)
{
    const unit_keys k = random_units(ATTN_Q8_0, z->n, 1 + z->dim % 5, 0);
    check_unit_sums("qk_units", tested->qk_units, &k, random_lanes(), z->factor);
}

static void check_softcap(const sizes *z)
{
    const float cap2 = 1.0f + 40.0f * rng_unit(), icap2 = 1.0f / cap2;
    float *a = logit_matrix((int64_t)z->n * tested->rows);
    float *b = take_lanes(a, z->n, tested->rows, z->first);
    tested->softcap(a, z->n, cap2, icap2);
    portable->softcap(b, z->n, cap2, icap2);
    check_lanes("softcap", a, b, z->n, z->first);
}

/* Adds x, of which each row is an array of its own, up to a page without access. */
static void compare_add_rows(const char *what, float *a, const float *x, float factor,
                             const sizes *z)
{
    const int rows = tested->rows, few = portable->rows, n = z->n;
    float *b = take_lanes(a, n, rows, z->first);
    const float *row[MAX_ROWS], *row_few[MAX_ROWS];
    for (int r = 0; r < rows; r++) {
        float *own = test_alloc_at((size_t)n * sizeof *own, PLACE_PAGE_AFTER);
        for (int j = 0; j < n; j++)
            own[j] = x[j * rows + r];
        row[r] = own;
    }
    for (int r = 0; r < few; r++)
        row_few[r] = row[(z->first + r) % rows];
    tested->add_rows(a, row, factor, n);
    portable->add_rows(b, row_few, factor, n);
    check_lanes(what, a, b, n, z->first);
}

static void check_add_rows(const sizes *z)
{
    float *a = logit_matrix((int64_t)z->n * tested->rows);
    float *x = logit_matrix((int64_t)z->n * tested->rows);
    const float factor =
        rng_chance(20) ? 0.0f : *normal_matrix(1, 1); /* 0 * -inf must still mask */
    compare_add_rows("add_rows", a, x, factor, z);
}

/* Near and far, before and behind: distances that binary32 rounds among them. */
static void check_add_distances(const sizes *z)
{
    const int rows = tested->rows, few = portable->rows;
    float *a = logit_matrix((int64_t)z->n * rows), *b = take_lanes(a, z->n, rows, z->first);
    float *factor = normal_matrix(rows, 1);
    int from[MAX_ROWS], from_few[MAX_ROWS];
    for (int r = 0; r < rows; r++) {
        const int64_t most = rng_chance(50) ? 300 : INT32_MAX / 2;
        from[r] = (int)rng_int(-most, most);
        if (rng_chance(20)) {
            from[r] = 0;
            factor[r] = -0.0f;
        }
    }
    for (int r = 0; r < few; r++)
        from_few[r] = from[(z->first + r) % rows];
    tested->add_distances(a, from, factor, z->n);
    portable->add_distances(b, from_few, take_lanes(factor, 1, rows, z->first), z->n);
    check_lanes("add_distances", a, b, z->n, z->first);
}

/* s + x * factor just beside the middle between two neighbours in binary32, nearer than binary64
 * can tell, from subnormal to large: a sum rounded to binary64 first would go the other way half of
 * the time. (1 + 2^-k) * (1 - 2^-k) = 1 - 2^-2k, and 2k > 29. */
static void check_add_midway(const sizes *z)
{
    const int rows = tested->rows, k = (int)rng_int(15, 23), shift = (int)rng_int(-40, -30);
    float *a = matrix((int64_t)z->n * rows), *x = matrix((int64_t)z->n * rows);
    const float factor = (float)ldexp(1 - ldexp(1, -k), shift);
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < z->n; i++) {
            const int subnormal = rng_chance(30);
            const int last = subnormal ? -149 : (int)rng_int(-149, 60); /* bit's exponent */
            const double top = (double)rng_int(subnormal ? 1 : 1 << 23, (1 << 24) - 1);
            const double sign_a = rng_chance(50) ? 1 : -1, sign_x = rng_chance(50) ? 1 : -1;
            a[i * rows + r] = (float)(sign_a * ldexp(top, last));
            x[i * rows + r] = (float)(sign_x * ldexp(1 + ldexp(1, -k), last - 1 - shift));
        }
    }
    compare_add_rows("add_rows, midway", a, x, factor, z);
}

/* Running maximum and sum of rows that have begun, or not. */
static void running_state(float **m, float **l)
{
    const int rows = tested->rows;
    *m = normal_matrix(rows, rng_chance(50) ? 5 : 20); /* calm for all lanes, or not */
    *l = matrix(rows);
    for (int r = 0; r < rows; r++) {
        (*l)[r] = 1.0f + 10.0f * rng_unit();
        if (rng_chance(40)) {
            (*m)[r] = -infinity();
            (*l)[r] = 0;
        }
    }
}

/* A block of up to 16 keys for running_max; half of them calm, half with rows that see no key. */
static float *block_matrix(int n)
{
    const int rows = tested->rows, dead = rng_chance(50) ? 10 : 0;
    const float spread = rng_chance(50) ? 8 : ATTN_CALM / 2; /* calm, or not by little */
    float *s =
        rng_chance(50) ? normal_matrix((int64_t)n * rows, spread) : logit_matrix((int64_t)n * rows);
    for (int r = 0; r < rows; r++)
        if (rng_chance(dead))
            for (int i = 0; i < n; i++)
                s[i * rows + r] = -infinity();
    return s;
}

/* What attn.h promises of a calm block. */
static int is_calm(const float *s, int64_t n, const float *m)
{
    for (int64_t i = 0; i < n * tested->rows; i++)
        if (!(s[i] >= -ATTN_CALM && s[i] <= ATTN_CALM))
            return 0;
    for (int r = 0; r < tested->rows; r++)
        if (!(m[r] >= -ATTN_CALM && m[r] <= ATTN_CALM))
            return 0;
    return 1;
}

/* The maximum of a block, then its exponentials. */
static void check_block(const sizes *z)
{
    const int rows = tested->rows, n = (int)rng_int(1, 16);
    float *s = block_matrix(n), *s_few = take_lanes(s, n, rows, z->first), *m, *l;
    float *alpha = matrix(rows), *alpha_few = matrix(portable->rows), *m_few, *l_few;
    attn_exp e = { s, n, NULL, NULL, { 0, rows }, 0 };
    attn_exp e_few = { s_few, n, NULL, NULL, { 0, portable->rows }, 0 };
    int found, found_few;
    running_state(&m, &l);
    for (int r = 0; r < rows; r++) /* so that few lanes decide on a rise */
        m[r] = rng_chance(3) ? INFINITY : rng_chance(90) ? m[r] + 20 : m[r];
    e.m = m;
    e.l = l;
    e_few.m = m_few = take_lanes(m, 1, rows, z->first);
    e_few.l = l_few = take_lanes(l, 1, rows, z->first);
    found = tested->running_max(s, n, m, l, alpha);
    found_few = portable->running_max(s_few, n, m_few, l_few, alpha_few);
    CHECK(found & ATTN_RAISED || !(found_few & ATTN_RAISED), "a rise was missed");
    CHECK(!(found & ATTN_IS_CALM) || is_calm(s, n, m), "not calm");
    check_lanes("running_max m", m, m_few, 1, z->first);
    check_lanes("running_max l", l, l_few, 1, z->first);
    for (int r = 0; r < portable->rows; r++) { /* Without a rise nothing is written. */
        if (!(found & ATTN_RAISED))
            alpha[(z->first + r) % rows] = 1;
        if (!(found_few & ATTN_RAISED))
            alpha_few[r] = 1;
    }
    check_lanes("running_max alpha", alpha, alpha_few, 1, z->first);
    e.calm = found & ATTN_IS_CALM;
    e.lanes = random_lanes();
    tested->exp_block(&e);
    portable->exp_block(&e_few);
    forget_lanes(s, s_few, n, z->first, e.lanes);
    forget_lanes(l, l_few, 1, z->first, e.lanes);
    check_lanes("exponentials: p", s, s_few, n, z->first);
    check_lanes("exponentials: l", l, l_few, 1, z->first);
}

static void check_masks(const sizes *z)
{
    const int rows = tested->rows, few = portable->rows;
    float *a = logit_matrix((int64_t)z->n * rows), *b = take_lanes(a, z->n, rows, z->first);
    float *c = logit_matrix((int64_t)z->n * rows), *d = take_lanes(c, z->n, rows, z->first);
    const int from = (int)rng_int(0, 40), words = (from + z->n - 1) / ATTN_ALIVE_BITS + 1;
    uint32_t *alive = test_alloc_at((size_t)(words * rows) * sizeof *alive, PLACE_PAGE_AFTER);
    uint32_t *alive_few = test_alloc((size_t)(words * few) * sizeof *alive_few);
    int begin[MAX_ROWS], end[MAX_ROWS], begin_few[MAX_ROWS], end_few[MAX_ROWS];
    for (int r = 0; r < rows; r++) {
        begin[r] = (int)rng_int(0, z->n);
        end[r] = (int)rng_int(0, z->n);
    }
    for (int i = 0; i < words * rows; i++)
        alive[i] = (uint32_t)rng_u64();
    for (int r = 0; r < few; r++) {
        const int lane = (z->first + r) % rows;
        begin_few[r] = begin[lane];
        end_few[r] = end[lane];
        for (int i = 0; i < words; i++)
            alive_few[i * few + r] = alive[i * rows + lane];
    }
    tested->clip(a, z->n, begin, end);
    portable->clip(b, z->n, begin_few, end_few);
    check_lanes("clip", a, b, z->n, z->first);
    tested->hide(c, z->n, alive, from);
    portable->hide(d, z->n, alive_few, from);
    check_lanes("hide", c, d, z->n, z->first);
}

/* A row of words before and after a rule about n keys, of which it hides some: of those before, the
 * others stay visible. No bit behind n is set, and words between those of the row stay as they are. */
typedef struct word_row {
    int n, apart, words;
    uint32_t *before, *after;
    uint8_t *hidden;
} word_row;

static word_row random_words(int n)
{
    word_row r = { .n = n, .apart = (int)rng_int(1, 5) };
    r.words = (n - 1) / ATTN_ALIVE_BITS * r.apart + 1;
    r.before = test_alloc((size_t)r.words * sizeof *r.before);
    r.after = test_alloc_at((size_t)r.words * sizeof *r.after, PLACE_PAGE_AFTER);
    r.hidden = test_alloc((size_t)n);
    for (int i = 0; i < r.words; i++)
        r.before[i] = r.after[i] = (uint32_t)rng_u64();
    return r;
}

static void check_words(const char *what, const word_row *r)
{
    for (int i = 0; i < r->words; i++)
        for (int k = i / r->apart * ATTN_ALIVE_BITS, bit = 0; bit < ATTN_ALIVE_BITS; k++, bit++) {
            const int before = r->before[i] >> bit & 1, after = r->after[i] >> bit & 1;
            CHECK(i % r->apart ? after == before
                  : k < r->n   ? after == (before && !r->hidden[k])
                               : after <= before,
                  "%s: word %d of %d, %d apart, bit %d: %d becomes %d", what, i, r->words, r->apart,
                  bit, before, after);
        }
}

/* Bytes of 0, 1, 128 and others; behind them no memory is read. */
static void check_hide_bytes(const sizes *z)
{
    const word_row r = random_words(z->n);
    const int invert = rng_chance(50);
    uint8_t *x = test_alloc_at((size_t)z->n, PLACE_PAGE_AFTER);
    for (int k = 0; k < z->n; k++) {
        x[k] = (uint8_t)(rng_chance(50) ? 0 : rng_chance(30) ? 128 : rng_u64());
        r.hidden[k] = (x[k] != 0) == invert;
    }
    tested->hide_bytes(r.after, r.apart, x, z->n, invert);
    check_words(invert ? "hide_bytes, inverted" : "hide_bytes", &r);
}

static void check_hide_others(const sizes *z)
{
    const word_row r = random_words(z->n);
    const int32_t own = rng_chance(50) ? 0 : -1;
    int32_t *ids = test_alloc_at((size_t)z->n * sizeof *ids, PLACE_PAGE_AFTER);
    for (int k = 0; k < z->n; k++) {
        ids[k] = (int32_t)rng_int(-1, 1);
        r.hidden[k] = ids[k] != own;
    }
    tested->hide_others(r.after, r.apart, ids, z->n, own);
    check_words("hide_others", &r);
}

/* Every word of the counters and keys is random. */
static void check_drop(const sizes *z)
{
    const int rows = tested->rows, few = portable->rows;
    float *a = normal_matrix((int64_t)z->n * rows, 1), *b = take_lanes(a, z->n, rows, z->first);
    uint32_t pos[MAX_ROWS], head[MAX_ROWS], pos_few[MAX_ROWS], head_few[MAX_ROWS];
    attn_drop d = { .below = rng_chance(50) ? 0x80000000u : (uint32_t)rng_u64(),
                    .first_n = (uint32_t)rng_u64(),
                    .step = rng_chance(50) ? 1 : (uint32_t)rng_int(2, 100),
                    .batch = (uint32_t)rng_u64(),
                    .pos = pos,
                    .head = head,
                    .dead = rng_chance(50) ? ATTN_DEAD : 0.0f };
    attn_drop d_few = d;
    for (int i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
        d.round_keys[i][0] = d_few.round_keys[i][0] = (uint32_t)rng_u64();
        d.round_keys[i][1] = d_few.round_keys[i][1] = (uint32_t)rng_u64();
    }
    for (int r = 0; r < rows; r++) {
        pos[r] = (uint32_t)rng_u64();
        head[r] = (uint32_t)rng_u64();
    }
    for (int r = 0; r < few; r++) {
        pos_few[r] = pos[(z->first + r) % rows];
        head_few[r] = head[(z->first + r) % rows];
    }
    d_few.pos = pos_few;
    d_few.head = head_few;
    tested->drop(a, z->n, &d);
    portable->drop(b, z->n, &d_few);
    check_lanes("drop", a, b, z->n, z->first);
}

/* The known answers published with Random123, in every lane: a word keeps its pair up to `below` of
 * the word itself. */
static void check_known_words(const sizes *z)
{
    static const struct {
        uint32_t counter[4], key[2], word;
    } known[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, 0x6627e8d5u },
        { { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u }, 0x408f276du },
        { { 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u },
          { 0xa4093822u, 0x299f31d0u },
          0xd16cfe09u },
    };
    float *p = matrix(tested->rows);
    uint32_t pos[MAX_ROWS], head[MAX_ROWS];
    (void)z;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        for (uint32_t more = 0; more < 2; more++) {
            attn_drop d = { .below = known[k].word + more,
                            .first_n = known[k].counter[0],
                            .batch = known[k].counter[3],
                            .pos = pos,
                            .head = head,
                            .dead = 2 };
            int dropped = 0;
            for (uint32_t i = 0; i < ATTN_PHILOX_ROUNDS; i++) {
                d.round_keys[i][0] = known[k].key[0] + i * ATTN_PHILOX_KEY_0;
                d.round_keys[i][1] = known[k].key[1] + i * ATTN_PHILOX_KEY_1;
            }
            for (int r = 0; r < tested->rows; r++) {
                pos[r] = known[k].counter[1];
                head[r] = known[k].counter[2];
                p[r] = 1;
            }
            tested->drop(p, 1, &d);
            for (int r = 0; r < tested->rows; r++)
                dropped += p[r] > 1;
            CHECK(dropped == (more ? tested->rows : 0), "known answer %d: %d lanes dropped", (int)k,
                  dropped);
        }
}

static void check_finite(const sizes *z)
{
    const int64_t n = 1 + rng_int(0, 100);
    float *x = vector(n), *at = x + rng_int(0, n - 1);
    static const uint32_t strange[] = { 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00001u };
    (void)z;
    *at = float_from_bits(rng_chance(50) ? 0x7f7fffffu : 0xff7fffffu);
    CHECK(tested->finite(x, n), "%d numbers, one the largest, are not finite", (int)n);
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        *at = float_from_bits(strange[i]);
        CHECK(!tested->finite(x, n), "%08x of %d numbers is finite", (unsigned)strange[i], (int)n);
    }
}

/* Both products of P and V; in pv_select a dead key, p = -0, meets a NaN. */
static void check_pv(const sizes *z)
{
    const int rows = tested->rows;
    const attn_lanes lanes = random_lanes(), all = { 0, portable->rows };
    const float size = rng_chance(30) ? 0x1p-130f : 1; /* subnormal sums */
    float *p = normal_matrix((int64_t)z->n * rows, size), *v = key_rows(z), *p_few, *o_few;
    float *o = normal_matrix(z->dim * rows, size), *alpha = normal_matrix(rows, 1);
    attn_product q, q_few;
    for (int64_t i = 0; i < (int64_t)z->n * rows; i++)
        p[i] = p[i] > 0 ? p[i] : z->dead;
    p_few = take_lanes(p, z->n, rows, z->first);
    o_few = take_lanes(o, z->dim, rows, z->first);
    tested->rescale(o, alpha, z->dim);
    portable->rescale(o_few, take_lanes(alpha, 1, rows, z->first), z->dim);
    check_lanes("rescale", o, o_few, z->dim, z->first);
    q = product_of(z, o, p, v, lanes);
    q_few = product_of(z, o_few, p_few, v, all);
    if (signbit(z->dead)) {
        v[rng_int(0, z->n - 1) * z->stride] = float_from_bits(0x7fc00000u);
        tested->pv_select(&q);
        portable->pv_select(&q_few);
    } else {
        tested->pv(&q);
        portable->pv(&q_few);
    }
    forget_lanes(o, o_few, z->dim, z->first, lanes);
    check_lanes(signbit(z->dead) ? "pv_select" : "pv", o, o_few, z->dim, z->first);
}

/* 1 to `few` lanes of a set that has another way for them. */
static attn_lanes few_lanes(void)
{
    attn_lanes lanes;
    lanes.begin = (int)rng_int(0, tested->rows - 1);
    lanes.end = lanes.begin / 4 * 4 + tested->few;
    lanes.end = lanes.end < tested->rows ? lanes.end : tested->rows;
    lanes.end = (int)rng_int(lanes.begin + 1, lanes.end);
    return lanes;
}

static int is_in(attn_lanes lanes, int lane)
{
    return lane >= lanes.begin && lane < lanes.end;
}

/* 0 in lanes without a query, whatever was there. */
static void check_other_lanes(const sizes *z)
{
    const int rows = tested->rows;
    const attn_lanes lanes = tested->few && rng_chance(50) ? few_lanes() : random_lanes();
    float *qt = normal_matrix(z->dim * rows, 1), *k = key_rows(z);
    float *s = matrix((int64_t)z->n * rows);
    const attn_product p = product_of(z, s, qt, k, lanes);
    for (int64_t i = 0; i < z->dim * rows; i++)
        qt[i] = is_in(lanes, (int)(i % rows)) ? qt[i] : 0;
    for (int64_t i = 0; i < (int64_t)z->n * rows; i++)
        s[i] = float_from_bits(0x7fc00000u);
    tested->qk(&p);
    for (int64_t i = 0; i < (int64_t)z->n * rows; i++)
        if (s[i] != s[i] || (s[i] != 0 && !is_in(lanes, (int)(i % rows)))) {
            CHECK(0, "key %d, lane %d: %08x", (int)(i / rows), (int)(i % rows),
                  (unsigned)float_bits(s[i]));
            return;
        }
    CHECK(1, "logits of lanes without a query");
}

/* A block's exponentials and products: o stays as it is where a lane sees no key. */
static void check_few_dead(const sizes *z)
{
    const int rows = tested->rows, n = (int)rng_int(1, 16);
    const attn_lanes lanes = few_lanes();
    float *s = normal_matrix((int64_t)n * rows, 4), *m = normal_matrix(rows, 4);
    float *l = normal_matrix(rows, 4), *v = normal_matrix(n * z->dim, 1);
    float *o = normal_matrix(z->dim * rows, 1), *before = matrix(z->dim * rows);
    const attn_exp e = { s, n, m, l, lanes, 0 };
    attn_product p = product_of(z, o, s, v, lanes);
    p.stride = (ptrdiff_t)z->dim;
    p.n = n;
    memcpy(before, o, (size_t)(z->dim * rows) * sizeof *o);
    for (int64_t i = 0; i < (int64_t)n * rows; i++)
        s[i] = is_in(lanes, (int)(i % rows)) ? s[i] : -infinity();
    tested->exp_block(&e);
    tested->pv(&p);
    for (int64_t i = 0; i < z->dim * rows; i++)
        if (o[i] != before[i] && !is_in(lanes, (int)(i % rows))) {
            CHECK(0, "o[%d][lane %d] moved", (int)(i / rows), (int)(i % rows));
            return;
        }
    CHECK(1, "values of lanes that see no key");
}

/* Rows as they lie, in several places and of any type, against the same rows widened. */
static void check_few_runs(const sizes *z)
{
    static const int types[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    const int rows = tested->rows, dtype = types[rng_int(0, 2)];
    const int64_t size = (int64_t)dtype_size(dtype);
    const int n = (z->n + 15) / 16 * 16;
    const int64_t dim = (z->dim + 15) / 16 * 16, stride = dim + rng_int(0, 9);
    const int64_t count = stride * (n - 1) + dim;
    const attn_lanes lanes = few_lanes();
    uint16_t *half = test_alloc((size_t)count * sizeof *half);
    attn_runs k, v;
    attn_product p = { .n = n, .dim = dim, .factor = z->factor, .lanes = lanes }, q = p;
    float *wide = normal_matrix(count, 1), *qt = normal_matrix(dim * rows, 1);
    float *s = matrix((int64_t)n * rows), *right = matrix((int64_t)n * rows);
    float *o = normal_matrix(dim * rows, 1), *right_o = matrix(dim * rows);
    memcpy(right_o, o, (size_t)(dim * rows) * sizeof *o);
    if (dtype != ATTN_F32) {
        (dtype == ATTN_BF16 ? tested->narrow_bf16 : tested->narrow_f16)(half, wide, count);
        (dtype == ATTN_BF16 ? tested->widen_bf16 : tested->widen_f16)(wide, half, count);
    }
    k = scatter_rows(dtype == ATTN_F32 ? (void *)wide : half, dtype, n, stride * size, dim * size,
                     16 * rng_int(1, 3), 16 * rng_int(1, 3));
    v = scatter_rows(dtype == ATTN_F32 ? (void *)wide : half, dtype, n, stride * size, dim * size,
                     rng_int(1, 40), rng_int(1, 20));
    p.to = s, p.by = qt, p.runs = &k;
    q.to = right, q.by = qt, q.kv = wide, q.stride = (ptrdiff_t)stride;
    tested->qk_runs(&p);
    tested->qk(&q);
    p.to = o, p.by = s, p.runs = &v;
    q.to = right_o, q.by = right;
    tested->pv_runs(&p);
    tested->pv(&q);
    CHECK(memcmp(s, right, (size_t)n * (size_t)rows * sizeof *s) == 0, "qk_runs, type %d", dtype);
    CHECK(memcmp(o, right_o, (size_t)(dim * rows) * sizeof *o) == 0, "pv_runs, type %d", dtype);
}

/* The units as f32 rows, by the layout. */
static float *widened(const unit_keys *k)
{
    float *x = vector((int64_t)k->n * k->units * UNIT), *to = x;
    for (int j = 0; j < k->n; j++)
        for (int64_t u = 0; u < k->units; u++) {
            const unsigned char *unit = k->bytes + j * k->stride + u * unit_bytes(k->dtype);
            for (int d = 0; d < UNIT; d++)
                *to++ = dtype_load(ATTN_F16, unit) * (float)unit_number(k->dtype, unit, d);
        }
    return x;
}

static int differences(const float *a, const float *b, int64_t n)
{
    int count = 0;
    for (int64_t i = 0; i < n; i++)
        count += !same_number(a[i], b[i]);
    return count;
}

/* Rows of units as they lie: in whole numbers, and as the same rows in f32. */
static void check_few_units(const sizes *z)
{
    static const int types[] = { ATTN_Q8_0, ATTN_Q5_0, ATTN_Q4_0 };
    const int rows = tested->rows, n = (z->n + 15) / 16 * 16;
    const unit_keys k = random_units(types[rng_int(0, 2)], n, 1 + z->dim % 9, 1);
    const int64_t dim = UNIT * k.units;
    const attn_lanes lanes = few_lanes();
    attn_product p = { .n = n, .dim = dim, .factor = z->factor, .lanes = lanes, .runs = &k.runs };
    attn_product q = p;
    float *wide = widened(&k), *qt = normal_matrix(dim * rows, 1);
    float *s = matrix((int64_t)n * rows), *right = matrix((int64_t)n * rows);
    float *o = normal_matrix(dim * rows, 1), *right_o = matrix(dim * rows);
    memcpy(right_o, o, (size_t)(dim * rows) * sizeof *o);
    check_unit_sums("qk_units_runs", tested->qk_units_runs, &k, lanes, z->factor);
    p.to = s, p.by = qt;
    q.to = right, q.by = qt, q.kv = wide, q.stride = (ptrdiff_t)dim;
    tested->qk_runs(&p);
    tested->qk(&q);
    CHECK(differences(s, right, (int64_t)n * rows) == 0, "qk_runs, type %d", k.dtype);
    for (int64_t i = 0; i < (int64_t)n * rows; i++)
        s[i] = (float)rng_int(0, 100) / 64;
    p.to = o, p.by = s;
    q.to = right_o, q.by = s;
    tested->pv_runs(&p);
    tested->pv(&q);
    CHECK(differences(o, right_o, dim * rows) == 0, "pv_runs, type %d", k.dtype);
}

static void check_few(const sizes *z)
{
    CHECK(tested->few < tested->rows && !tested->qk_runs == !tested->few &&
              !tested->qk_units_runs == !tested->few && !tested->pv_runs == !tested->few,
          "few is %d", tested->few);
    if (!tested->few)
        return;
    check_few_dead(z);
    check_few_runs(z);
    check_few_units(z);
}

static void check_maximum(const sizes *z)
{
    const int rows = tested->rows;
    float *s = logit_matrix((int64_t)z->n * rows), *m, *l, *m_few;
    running_state(&m, &l);
    m_few = take_lanes(m, 1, rows, z->first);
    tested->maximum(s, z->n, m);
    portable->maximum(take_lanes(s, z->n, rows, z->first), z->n, m_few);
    check_lanes("maximum", m, m_few, 1, z->first);
}

static void check_exp_sum(const sizes *z)
{
    const int rows = tested->rows;
    float *a = logit_matrix((int64_t)z->n * rows), *b = take_lanes(a, z->n, rows, z->first);
    float *m, *l, *l_few;
    running_state(&m, &l);
    l_few = take_lanes(l, 1, rows, z->first);
    tested->exp_sum(a, z->n, z->dead, m, l);
    portable->exp_sum(b, z->n, z->dead, take_lanes(m, 1, rows, z->first), l_few);
    check_lanes("exp_sum p", a, b, z->n, z->first);
    check_lanes("exp_sum l", l, l_few, 1, z->first);
}

/* A state: m, l, then o; some lanes empty on either side, or on both. */
static float *random_state(int64_t dim)
{
    const int rows = tested->rows;
    float *state = normal_matrix((dim + 2) * rows, 3);
    for (int r = 0; r < rows; r++) {
        const int empty = rng_chance(30);
        state[rows + r] = empty ? 0 : 0.5f + rng_unit();
        for (int64_t d = 0; empty && d < dim; d++)
            state[(2 + d) * rows + r] = 0;
        if (empty)
            state[r] = -infinity();
    }
    return state;
}

static void check_merge(const sizes *z)
{
    const int rows = tested->rows;
    float *a = random_state(z->dim), *b = random_state(z->dim);
    float *b_few = take_lanes(b, z->dim + 2, rows, z->first);
    tested->merge(a, b, z->dim);
    portable->merge(take_lanes(a, z->dim + 2, rows, z->first), b_few, z->dim);
    check_lanes("merge", b, b_few, z->dim + 2, z->first);
}

/* Neither -0 nor any NaN but one. */
static int is_output(float x)
{
    return x != x ? float_bits(x) == 0x7fc00000u : float_bits(x) != 0x80000000u;
}

static void check_result(const sizes *z)
{
    const int rows = tested->rows, few = portable->rows;
    const float factor = rng_chance(50) ? 1.0f : 1.0f + rng_unit();
    float *o = normal_matrix(z->dim * rows, 3), *l = normal_matrix(rows, 9);
    float *a[MAX_ROWS], *b[MAX_ROWS];
    int same = 1;
    for (int r = 0; r < rows; r++)
        a[r] = vector(z->dim);
    for (int r = 0; r < few; r++)
        b[r] = vector(z->dim);
    o[rng_int(0, rows * z->dim - 1)] = float_from_bits(0xffc12345u); /* must come out canonical */
    o[rng_int(0, rows * z->dim - 1)] = -0.0f;
    l[rng_int(0, rows - 1)] = 0;
    tested->result(a, o, l, factor, z->dim);
    portable->result(b, take_lanes(o, z->dim, rows, z->first), take_lanes(l, 1, rows, z->first),
                     factor, z->dim);
    for (int lane = 0; lane < few; lane++)
        same =
            same && memcmp(a[(z->first + lane) % rows], b[lane], (size_t)z->dim * sizeof **a) == 0;
    CHECK(same, "result");
    for (int64_t i = 0; i < rows * z->dim; i++)
        if (!is_output(a[i / z->dim][i % z->dim])) {
            CHECK(0, "result holds %08x", (unsigned)float_bits(a[i / z->dim][i % z->dim]));
            return;
        }
}

/* What gradients need of a pair, and of tanh. */
static void check_gradient(const sizes *z)
{
    const int rows = tested->rows;
    const int64_t count = (int64_t)z->n * rows;
    float *s = logit_matrix(count), *dp = normal_matrix(count, 1), *m = normal_matrix(rows, 1);
    float *r = normal_matrix(rows, 1), *delta = normal_matrix(rows, 1),
          *t = normal_matrix(count, 1);
    float *s_few = take_lanes(s, z->n, rows, z->first);
    float *dp_few = take_lanes(dp, z->n, rows, z->first);
    const float *t_few = take_lanes(t, z->n, rows, z->first);
    const float most = rng_chance(50) ? 127.0f : 0.0f;
    const attn_row_stats of = { m, r, most, delta };
    const attn_row_stats of_few = { take_lanes(m, 1, rows, z->first),
                                    take_lanes(r, 1, rows, z->first), most,
                                    take_lanes(delta, 1, rows, z->first) };
    tested->gradient(s, dp, z->n, &of);
    portable->gradient(s_few, dp_few, z->n, &of_few);
    check_lanes("gradient p", s, s_few, z->n, z->first);
    check_lanes("gradient dS", dp, dp_few, z->n, z->first);
    tested->softcap_gradient(dp, t, s, z->n);
    portable->softcap_gradient(dp_few, t_few, s_few, z->n);
    check_lanes("softcap_gradient", dp, dp_few, z->n, z->first);
}

/* Terms of outer: as many lanes as both sets have. */
enum { MOST_TERMS = 10 };

static void make_terms(const sizes *z, int lanes, ptrdiff_t stride, attn_term *large,
                       attn_term *small, int count)
{
    const int rows = tested->rows, few = portable->rows;
    for (int t = 0; t < count; t++) {
        const float *x = normal_matrix((int64_t)z->n * rows, 1);
        float *x_few = normal_matrix((int64_t)z->n * few, 1);
        for (int j = 0; j < z->n; j++)
            memcpy(x_few + j * few, x + j * rows, (size_t)lanes * sizeof *x);
        large[t].lanes.begin = (int)rng_int(0, lanes - 1);
        large[t].lanes.end = (int)rng_int(large[t].lanes.begin + 1, lanes);
        large[t].begin = 0;
        large[t].end = z->n;
        large[t].b = normal_matrix(lanes * stride, 1);
        small[t] = large[t];
        large[t].x = x;
        small[t].x = x_few;
    }
}

static void check_outer(const sizes *z)
{
    const int lanes = tested->rows < portable->rows ? tested->rows : portable->rows;
    const ptrdiff_t stride = (ptrdiff_t)(z->dim + 15) / 16 * 16;
    const int64_t count = z->n * (int64_t)stride;
    attn_term terms[MOST_TERMS], few[MOST_TERMS];
    float *to = normal_matrix(count, 1), *to_few = matrix(count);
    attn_outer f = { .to = to, .stride = stride, .n = z->n, .columns = z->dim, .term = terms };
    f.count = (int)rng_int(1, MOST_TERMS);
    f.b_stride = stride;
    memcpy(to_few, to, (size_t)count * sizeof *to);
    make_terms(z, lanes, stride, terms, few, f.count);
    tested->outer(&f);
    f.to = to_few;
    f.term = few;
    portable->outer(&f);
    for (int64_t i = 0; i < count; i++)
        if (i % stride < z->dim && !same_number(to[i], to_few[i])) {
            CHECK(0, "outer[%d] is %08x, portable %08x", (int)i, (unsigned)float_bits(to[i]),
                  (unsigned)float_bits(to_few[i]));
            return;
        }
    CHECK(1, "outer");
}

static void check_dots(const sizes *z)
{
    const int rows = tested->rows;
    float *a = normal_matrix(z->dim * rows, 1), *b = normal_matrix(z->dim * rows, 1);
    float *to = matrix(rows), *to_few = matrix(portable->rows);
    tested->dots(to, a, b, z->dim);
    portable->dots(to_few, take_lanes(a, z->dim, rows, z->first),
                   take_lanes(b, z->dim, rows, z->first), z->dim);
    check_lanes("dots", to, to_few, 1, z->first);
}

static const struct {
    const char *name;
    void (*check)(const sizes *z);
} functions[] = {
    { "storage types", check_storage },
    { "quantised types", check_quantised },
    { "pack", check_pack },
    { "qk", check_qk },
    { "units", check_units },
    { "softcap", check_softcap },
    { "add_distances", check_add_distances },
    { "sums midway", check_add_midway },
    { "add_rows", check_add_rows },
    { "clip and hide", check_masks },
    { "hide_bytes", check_hide_bytes },
    { "hide_others", check_hide_others },
    { "drop", check_drop },
    { "known words of Philox", check_known_words },
    { "a block", check_block },
    { "pv", check_pv },
    { "other lanes", check_other_lanes },
    { "few lanes", check_few },
    { "maximum", check_maximum },
    { "finite", check_finite },
    { "exp_sum", check_exp_sum },
    { "merge", check_merge },
    { "result", check_result },
    { "scales of the caller", check_scaled },
    { "gradient", check_gradient },
    { "outer", check_outer },
    { "dots", check_dots },
};

static void check_functions(void)
{
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
        for (int round = 0; round < ROUNDS; round++) {
            sizes z;
            if (!begin_case("%s, round %d", functions[f].name, round))
                continue;
            z = random_sizes();
            functions[f].check(&z);
        }
}

/* The same of matrices of small numbers: units that take subnormal ones for zero show here. */
static void check_small(void)
{
    small_round = 1;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
        for (int round = 0; round < SMALL_ROUNDS; round++) {
            sizes z;
            if (!begin_case("%s, small numbers, round %d", functions[f].name, round))
                continue;
            z = random_sizes();
            z.factor *= size_of_numbers();
            functions[f].check(&z);
        }
    small_round = 0;
}

static void check_table(void)
{
    if (!begin_case("the table itself"))
        return;
    CHECK(tested->abi == ATTN_KERNEL_ABI, "abi %d", tested->abi);
    CHECK(tested->rows > 0 && tested->rows % 4 == 0 && tested->rows <= MAX_ROWS, "rows %d",
          tested->rows);
    CHECK(strcmp(attn_kernels_name(tested), tested->name) == 0, "named '%s' and '%s'",
          attn_kernels_name(tested), tested->name);
    CHECK(T.table != NULL || attn_kernels_find(tested->name) == tested, "not found by its name");
    CHECK(attn_kernels_find("no such set") == NULL, "an unknown name gives a set");
    CHECK(attn_kernels_find(NULL) == NULL, "NULL gives a set");
    CHECK(attn_kernels_get(-1) == NULL, "set -1");
}

/* ---- which tiles the kernels see --------------------------------------------------------------
 * A table that looks at what it is given and passes it on. Queries and keys carry their number in
 * their first element, so a tile tells which pairs it holds, wherever it was copied from. */

enum { SEQ_Q = 70, SEQ_KV = 150, HEADS = 2, KV_HEADS = 1, DIM = 4, TILE = 16 };
static const float NUMBER_SCALE = 0.0009765625f; /* 2^-10 keeps the products small */

static struct {
    attn_kernels table;
    const attn_params *p;
    int (*visible)(const attn_params *p, int64_t i, int64_t j); /* brute force */
    int visits[HEADS][SEQ_Q][SEQ_KV];
    int empty_tiles, tiles, strange, largest;
    unsigned char tile_class[HEADS][SEQ_Q][SEQ_KV]; /* 1 + what the classifier said last */
    int64_t mask_calls, wrong_mask_calls;
} watch;

/* Rounds a small positive number; queries are numbered from 1 and unused lanes hold 0. */
static int number_in(float x)
{
    return x >= 0 && x < 100000.0f ? (int)(x + 0.5f) : -1;
}

static void note_pair(int lane_number, int key, int *any)
{
    const int row = lane_number - 1, h = row / SEQ_Q, i = row % SEQ_Q;
    if (row < 0)
        return;
    if (h >= HEADS || key < 0 || key >= SEQ_KV) {
        watch.strange++;
        return;
    }
    watch.visits[h][i][key]++;
    *any = *any || watch.visible(watch.p, i, key);
}

static void *watch_qk(int kernel, void *first)
{
    const attn_product *p = first;
    int any = 0;
    if (kernel != SPY_qk)
        return first;
    for (int j = 0; j < p->n; j++)
        for (int lane = p->lanes.begin; lane < p->lanes.end; lane++)
            note_pair(number_in(p->by[lane]), number_in(p->kv[j * p->stride]), &any);
    watch.tiles++;
    watch.empty_tiles += !any;
    watch.largest = p->n > watch.largest ? p->n : watch.largest;
    return first;
}

static int serial(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++)
        task(arg, i, 0);
    return 0;
}

/* q is [1, HEADS, SEQ_Q, DIM], numbered from 1; k and v [1, KV_HEADS, SEQ_KV, DIM] from 0. */
static attn_params watched_call(void)
{
    const int64_t rows = HEADS * SEQ_Q;
    attn_params p = { 0 };
    float *q = normal_matrix(rows * DIM, 1), *k = normal_matrix(SEQ_KV * DIM, 1);
    for (int64_t i = 0; i < rows; i++)
        q[i * DIM] = (float)(i + 1);
    for (int64_t j = 0; j < SEQ_KV; j++)
        k[j * DIM] = (float)j;
    p.batch = 1;
    p.num_heads_q = HEADS;
    p.num_heads_kv = KV_HEADS;
    p.seq_len_q = SEQ_Q;
    p.seq_len_kv = SEQ_KV;
    p.head_dim = DIM;
    p.scale = NUMBER_SCALE;
    p.q.data = q;
    p.k.data = k;
    p.v.data = normal_matrix(SEQ_KV * DIM, 1);
    p.o.data = matrix(rows * DIM);
    p.tile_keys = TILE;
    p.impl = ATTN_IMPL_TILED;
    p.parallel_for = serial;
    return p;
}

static void watch_run(const attn_params *p,
                      int (*visible)(const attn_params *p, int64_t i, int64_t j))
{
    attn_params watched = *p;
    int missed = 0, twice = 0;
    memset(&watch, 0, sizeof watch);
    watch.table = spy_on(tested, watch_qk);
    watch.p = p;
    watch.visible = visible;
    watched.kernels = &watch.table;
    watched.force_redo = 0;
    CHECK(test_run(&watched) == ATTN_OK, "attn_forward failed");
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < SEQ_Q; i++)
            for (int j = 0; j < SEQ_KV; j++) {
                missed += visible(p, i, j) && watch.visits[h][i][j] == 0;
                twice += watch.visits[h][i][j] > 1;
            }
    CHECK(watch.strange == 0, "%d pairs outside the problem", watch.strange);
    CHECK(watch.tiles > 0 && missed == 0, "%d visible pairs were never visited", missed);
    CHECK(T.force_redo || twice == 0, "%d pairs were visited more than once", twice);
    CHECK(watch.largest <= TILE, "a tile of %d keys", watch.largest);
    CHECK(watch.empty_tiles == 0, "%d of %d tiles hold no visible pair", watch.empty_tiles,
          watch.tiles);
}

static int64_t position(const attn_params *p, int64_t i)
{
    if (p->alignment == ATTN_ALIGN_TOP_LEFT)
        return i;
    return i + (p->alignment == ATTN_ALIGN_OFFSET ? p->q_offset[0] : SEQ_KV - SEQ_Q);
}

static int see_all(const attn_params *p, int64_t i, int64_t j)
{
    (void)i;
    return p->kv_len == NULL || j < p->kv_len[0];
}

static int see_causal(const attn_params *p, int64_t i, int64_t j)
{
    return j <= position(p, i) || (p->prefix != NULL && j < p->prefix[0]);
}

static int see_window(const attn_params *p, int64_t i, int64_t j)
{
    const int64_t pos = position(p, i);
    return (p->window_left < 0 || j >= pos - p->window_left) &&
           (p->window_right < 0 || j <= pos + p->window_right);
}

static int see_chunked(const attn_params *p, int64_t i, int64_t j)
{
    const int64_t pos = position(p, i);
    return pos >= 0 && pos / p->chunk_size == j / p->chunk_size;
}

static int see_segments(const attn_params *p, int64_t i, int64_t j)
{
    return p->q_segments[i] == p->kv_segments[j];
}

static int see_cells(const attn_params *p, int64_t i, int64_t j)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t row = i / m->block_q, column = j / m->block_k;
    const int64_t bit = row * ((SEQ_KV + m->block_k - 1) / m->block_k) + column;
    if (m->bitmap != NULL)
        return m->bitmap[bit / 8] >> (bit % 8) & 1;
    for (int32_t n = m->row_offsets[row]; n < m->row_offsets[row + 1]; n++)
        if (m->columns[n] == column)
            return 1;
    return 0;
}

static int see_tree(const attn_params *p, int64_t i, int64_t j)
{
    const int64_t node = j - (SEQ_KV - SEQ_Q);
    while (i > node && i >= 0)
        i = p->tree_parents[i];
    return node < 0 || i == node;
}

static void watch_causal(void)
{
    static const int32_t offset = -20, prefix = 37;
    for (int alignment = 0; alignment <= ATTN_ALIGN_OFFSET; alignment++)
        for (int with_prefix = 0; with_prefix < 2; with_prefix++) {
            attn_params p;
            if (!begin_case("tiles of causal, alignment %d, prefix %d", alignment, with_prefix))
                continue;
            p = watched_call();
            p.causal = 1;
            p.alignment = alignment;
            p.q_offset = alignment == ATTN_ALIGN_OFFSET ? &offset : NULL;
            p.prefix = with_prefix ? &prefix : NULL;
            watch_run(&p, see_causal);
        }
}

static void watch_windows(void)
{
    static const int64_t sides[][2] = { { 0, 0 },  { 5, 0 },  { 20, 3 },
                                        { -1, 2 }, { 2, -1 }, { -1, -1 } };
    for (size_t n = 0; n < sizeof sides / sizeof *sides; n++) {
        attn_params p;
        if (!begin_case("tiles of window %d, %d", (int)sides[n][0], (int)sides[n][1]))
            continue;
        p = watched_call();
        p.window = ATTN_WINDOW;
        p.window_left = sides[n][0];
        p.window_right = sides[n][1];
        watch_run(&p, see_window);
    }
}

static void watch_lengths(void)
{
    static const int32_t length = 50;
    attn_params p;
    if (begin_case("tiles without a mask")) {
        p = watched_call();
        watch_run(&p, see_all);
    }
    if (begin_case("tiles of kv_len")) {
        p = watched_call();
        p.kv_len = &length;
        watch_run(&p, see_all);
    }
    if (begin_case("tiles of chunk_size")) {
        p = watched_call();
        p.chunk_size = 40;
        watch_run(&p, see_chunked);
    }
}

/* Documents one after the other, as packing makes them. */
static void watch_segments(void)
{
    int32_t *q_ids, *kv_ids;
    attn_params p;
    if (!begin_case("tiles of segments"))
        return;
    p = watched_call();
    q_ids = test_alloc(SEQ_Q * sizeof *q_ids);
    kv_ids = test_alloc(SEQ_KV * sizeof *kv_ids);
    for (int i = 0; i < SEQ_Q; i++)
        q_ids[i] = i / 24;
    for (int j = 0; j < SEQ_KV; j++)
        kv_ids[j] = j / 48;
    p.q_segments = q_ids;
    p.kv_segments = kv_ids;
    watch_run(&p, see_segments);
}

static void watch_cells(void)
{
    for (int form = 0; form < 2; form++) {
        const int block = 32, rows = (SEQ_Q + block - 1) / block;
        const int columns = (SEQ_KV + block - 1) / block;
        uint8_t *bitmap;
        int32_t *offsets, *list;
        attn_params p;
        if (!begin_case("tiles of %s", form ? "CSR" : "a bitmap"))
            continue;
        p = watched_call();
        bitmap = memset(test_alloc(8), 0, 8);
        offsets = test_alloc((size_t)(rows + 1) * sizeof *offsets);
        list = test_alloc((size_t)(rows * 2) * sizeof *list);
        for (int r = 0; r <= rows; r++)
            offsets[r] = 2 * r;
        for (int r = 0; r < rows; r++)
            for (int n = 0; n < 2; n++) {
                const int column = n == 0 ? 0 : 1 + r % (columns - 1);
                list[2 * r + n] = column;
                bitmap[(r * columns + column) / 8] |= (uint8_t)(1 << (r * columns + column) % 8);
            }
        p.block_mask.block_q = p.block_mask.block_k = block;
        p.block_mask.stride_batch = p.block_mask.stride_head = ATTN_STRIDE_BROADCAST;
        p.block_mask.csr_stride_batch = p.block_mask.csr_stride_head = ATTN_STRIDE_BROADCAST;
        p.block_mask.bitmap = form ? NULL : bitmap;
        p.block_mask.row_offsets = form ? offsets : NULL;
        p.block_mask.columns = form ? list : NULL;
        watch_run(&p, see_cells);
    }
}

static void watch_tree(void)
{
    int32_t *parents;
    attn_params p;
    if (!begin_case("tiles of a tree"))
        return;
    p = watched_call();
    parents = test_alloc(SEQ_Q * sizeof *parents);
    for (int i = 0; i < SEQ_Q; i++)
        parents[i] = (i - 1) / 2 - (i == 0);
    p.tree_parents = parents;
    watch_run(&p, see_tree);
}

/* ---- the mask callback and its classifier: diagonal bands of 32 ------------------------------ */

static int see_band(const attn_params *p, int64_t i, int64_t j)
{
    const int64_t distance = position(p, i) - j;
    return distance >= -8 && distance <= 40;
}

static int band_callback(void *user, const attn_pair *at)
{
    (void)user;
    watch.mask_calls++;
    if (watch.tile_class[at->head][at->i][at->j] != 1 + ATTN_TILE_PARTIAL)
        watch.wrong_mask_calls++;
    return see_band(watch.p, at->i, at->j);
}

static int classify_band(void *user, const attn_rect *r)
{
    int64_t seen = 0, all = (r->i_end - r->i_begin) * (r->j_end - r->j_begin);
    int class;
    (void)user;
    for (int64_t i = r->i_begin; i < r->i_end; i++)
        for (int64_t j = r->j_begin; j < r->j_end; j++)
            seen += see_band(watch.p, i, j);
    class = seen == 0 ? ATTN_TILE_EMPTY : seen == all ? ATTN_TILE_FULL : ATTN_TILE_PARTIAL;
    for (int64_t h = r->head_begin; h < r->head_end; h++)
        for (int64_t i = r->i_begin; i < r->i_end; i++)
            for (int64_t j = r->j_begin; j < r->j_end; j++)
                watch.tile_class[h][i][j] = (unsigned char)(1 + class);
    return class;
}

static int classify_full(void *user, const attn_rect *r)
{
    (void)user, (void)r;
    return ATTN_TILE_FULL;
}

static void watch_classifier(void)
{
    attn_params p;
    if (begin_case("tiles of a mask callback with its classifier")) {
        p = watched_call();
        p.mask = band_callback;
        p.mask_tile = classify_band;
        watch_run(&p, see_band);
        CHECK(watch.mask_calls > 0, "the callback was never asked");
        CHECK(watch.wrong_mask_calls == 0, "%d of %d calls in tiles that are not partial",
              (int)watch.wrong_mask_calls, (int)watch.mask_calls);
    }
    if (begin_case("a classifier that calls every tile full")) {
        p = watched_call();
        p.mask = band_callback;
        p.mask_tile = classify_full;
        watch_run(&p, see_all);
        CHECK(watch.mask_calls == 0, "%d calls", (int)watch.mask_calls);
    }
}

TEST_GROUP(kernels, RUN_EACH_SET, "each kernel of the set against the portable set")
{
    tested = set_under_test();
    portable = attn_kernels_find("portable");
    if (!CHECK(tested != NULL && portable != NULL, "no kernels"))
        return;
    check_table();
    check_functions();
    check_small();
    watch_lengths();
    watch_causal();
    watch_windows();
    watch_segments();
    watch_cells();
    watch_tree();
    watch_classifier();
}
