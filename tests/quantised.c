/* quantised.c - storage types that only K and V may have: their bytes, and calls that read them.
 * SPDX-License-Identifier: MIT
 *
 * Bytes are compared with what another program made (tests/make_quantised.py), and with the readers of
 * the oracle. A call over quantised K and V must have the bits of a call
 * over the same values in f32, with any masks and modifiers.
 */
#include "features.h"
#include "laws.h"
#include "oracle.h"
#include "pool.h"
#include "quantised_bytes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { UNIT = 32, UNITS = (int)(sizeof quantised_numbers / sizeof *quantised_numbers) };

/* The readers of the oracle are written from the definitions of the types. */
typedef struct quantised_type {
    int dtype, numbers, bytes; /* of a unit */
} quantised_type;

static const quantised_type types[] = {
    { ATTN_E4M3, 1, 1 },     { ATTN_E5M2, 1, 1 },     { ATTN_Q8_0, UNIT, 34 },
    { ATTN_Q5_0, UNIT, 22 }, { ATTN_Q4_0, UNIT, 18 }, { ATTN_I8, 1, 1 },
};
/* The last one has scales of the caller's, and attn_convert does not know it. */
enum { I8 = (int)(sizeof types / sizeof *types) - 1, TYPES = I8 };

static const char *type_name(const quantised_type *type)
{
    static const char *const names[] = { "e4m3", "e5m2", "q8_0", "q5_0", "q4_0", "i8" };
    return names[type - types];
}

static int same_number(float value, double expected)
{
    return isnan(expected) ? isnan(value)
                           : (double)value == expected && !signbit(value) == !signbit(expected);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Random bytes, and of floats every one. */
static void check_read(int round)
{
    const quantised_type *type = &types[round];
    const int units = type->numbers == 1 ? 256 : 2000, count = units * type->numbers;
    unsigned char *bytes = test_alloc((size_t)(units * type->bytes));
    float *values = test_alloc((size_t)count * sizeof *values);
    int wrong = 0;
    for (int n = 0; n < units * type->bytes; n++)
        bytes[n] = (unsigned char)(type->numbers == 1 ? n : rng_int(0, 255));
    CHECK(attn_convert(values, ATTN_F32, bytes, type->dtype, (size_t)count) == ATTN_OK, "refused");
    for (int n = 0; n < count; n++)
        wrong += !same_number(values[n], oracle_load(type->dtype, bytes, n));
    CHECK(wrong == 0, "%d of %d numbers of %s are read wrong", wrong, count, type_name(type));
}

/* The nearest code to a number of at least 0, ties to even, among codes 0 to `most`. */
static int nearest_code(const quantised_type *type, double value, int most)
{
    unsigned char code = 0, next;
    while (code < most) {
        double below, above;
        next = (unsigned char)(code + 1);
        below = value - oracle_load(type->dtype, &code, 0);
        above = oracle_load(type->dtype, &next, 0) - value;
        if (below < above || (below == above && code % 2 == 0))
            break;
        code++;
    }
    return code;
}

/* Every value of a type, the middle to the next one, and the floats beside both. What rounds beyond
 * the last finite number is named apart. */
static void check_store(int round)
{
    const quantised_type *type = &types[round];
    const int e4m3 = type->dtype == ATTN_E4M3, most = e4m3 ? 126 : 123;
    const double limit = e4m3 ? 464 : 61440; /* where the next number would be nearer, or as near */
    for (int n = 0; n <= most; n++)
        for (int kind = 0; kind < 6; kind++) {
            unsigned char code = (unsigned char)n, next = (unsigned char)(n < most ? n + 1 : n),
                          got[2];
            const double low = oracle_load(type->dtype, &code, 0),
                         high = n < most ? oracle_load(type->dtype, &next, 0) : 2 * limit - low;
            float value[2];
            int want;
            value[0] = (float)(kind < 3 ? low : (low + high) / 2);
            value[0] =
                float_from_bits(float_bits(value[0]) + (kind % 3 == 1 && value[0] > 0 ? 0xffffffffu
                                                        : kind % 3 == 2               ? 1u
                                                                                      : 0u));
            value[1] = -value[0];
            want = value[0] > limit || (!e4m3 && value[0] == limit)
                       ? most + 1
                       : nearest_code(type, value[0], most);
            CHECK(attn_convert(got, type->dtype, value, ATTN_F32, 2) == ATTN_OK && got[0] == want &&
                      got[1] == (want | 128),
                  "%s of %a is %02x, expected %02x", type_name(type), value[0], got[0], want);
        }
}

/* What gguf made of the same numbers. Its scales are little-endian. */
static void check_bytes(int round)
{
    static const struct {
        const uint8_t *bytes;
        const uint32_t *read;
    } made[] = { { *quantised_q8_0, *read_q8_0 },
                 { *quantised_q5_0, *read_q5_0 },
                 { *quantised_q4_0, *read_q4_0 } };
    const quantised_type *type = &types[2 + round];
    unsigned char got[UNITS * 34], want[34];
    float values[UNITS * UNIT], read[UNITS * UNIT];
    memcpy(values, quantised_numbers, sizeof values);
    CHECK(attn_convert(got, type->dtype, values, ATTN_F32, UNITS * UNIT) == ATTN_OK, "refused");
    CHECK(attn_convert(read, ATTN_F32, got, type->dtype, UNITS * UNIT) == ATTN_OK, "not read");
    for (int u = 0; u < UNITS; u++) {
        const uint8_t *bytes = made[round].bytes + u * type->bytes;
        const uint16_t scale = (uint16_t)(bytes[0] | bytes[1] << 8);
        memcpy(want, bytes, (size_t)type->bytes);
        memcpy(want, &scale, sizeof scale);
        CHECK(memcmp(want, got + u * type->bytes, (size_t)type->bytes) == 0,
              "%s: unit %d has other bytes than gguf's", type_name(type), u);
        CHECK(memcmp(read + u * UNIT, made[round].read + u * UNIT, UNIT * sizeof(float)) == 0,
              "%s: unit %d is read as other numbers than gguf's", type_name(type), u);
    }
}

/* A number that is not finite must not vanish in a unit, and what fits no f16 scale neither. */
static void check_strange(int round)
{
    static const float strange[] = { NAN, INFINITY, -INFINITY, 3e38f, -3e38f };
    const quantised_type *type = &types[2 + round];
    unsigned char bytes[34];
    float x[UNIT];
    for (size_t s = 0; s < sizeof strange / sizeof *strange; s++) {
        for (int i = 0; i < UNIT; i++)
            x[i] = rng_normal();
        x[rng_int(0, UNIT - 1)] = strange[s];
        CHECK(attn_convert(bytes, type->dtype, x, ATTN_F32, UNIT) == ATTN_OK &&
                  attn_convert(x, ATTN_F32, bytes, type->dtype, UNIT) == ATTN_OK,
              "refused");
        for (int i = 0; i < UNIT; i++)
            CHECK(isnan(x[i]) || (isinf(x[i]) && isfinite(strange[s])), "%g became %g",
                  (double)strange[s], (double)x[i]);
    }
    for (int i = 0; i < UNIT; i++) /* ggml's scale of zeros is 0 / 127, 0 / -16 or 0 / -8. */
        x[i] = i < 5 ? -0.0f : 0.0f;
    CHECK(attn_convert(bytes, type->dtype, x, ATTN_F32, UNIT) == ATTN_OK &&
              !signbit(dtype_load(ATTN_F16, bytes)) == (type->dtype == ATTN_Q8_0),
          "the scale of zeros");
    CHECK(attn_convert(bytes, type->dtype, x, ATTN_F32, UNIT - 1) == ATTN_ERR_ARG, "31 numbers");
    CHECK(attn_convert(x, ATTN_F32, bytes, type->dtype, 1) == ATTN_ERR_ARG, "1 number");
}

/* attn_quantise_i8 beside what attn.h says of it, with halves that tie. */
static void check_quantise(int round)
{
    static const float strange[] = { NAN, INFINITY, -INFINITY, 0.0f, 1e-40f };
    enum { ROWS = 7 };
    const int dim = (int)rng_int(1, 70);
    float *x = test_alloc_at((size_t)(ROWS * dim) * sizeof *x, PLACE_PAGE_AFTER);
    signed char *q = test_alloc_at((size_t)(ROWS * dim), PLACE_PAGE_AFTER);
    float *scales = test_alloc_at(ROWS * sizeof *scales, PLACE_PAGE_AFTER);
    for (int i = 0; i < ROWS * dim; i++)
        x[i] = round % 2 ? rng_normal() : (float)rng_int(-254, 254) / 2;
    for (int r = 0; r < ROWS && round % 2 == 0; r++)
        x[r * dim] = 127;
    for (int s = 0; s < 5; s++)
        x[s * dim + rng_int(0, dim - 1)] = strange[s];
    CHECK(attn_quantise_i8((int8_t *)q, scales, x, ROWS, dim) == ATTN_OK, "refused");
    for (int r = 0; r < ROWS; r++) {
        float most = 0, inverse;
        int finite = 1;
        for (int d = 0; d < dim; d++) {
            most = fmaxf(most, fabsf(x[r * dim + d]));
            finite &= isfinite(x[r * dim + d]);
        }
        most = most / 127.0f;
        inverse = most > 0 ? 1.0f / most : 0.0f;
        inverse = isfinite(inverse) ? inverse : 0.0f;
        CHECK(finite ? scales[r] == most : isnan(scales[r]), "row %d: scale %g", r,
              (double)scales[r]);
        for (int d = 0; d < dim; d++) {
            const float y = x[r * dim + d] * inverse;
            const int want = finite ? (int)nearbyint((double)y) : 0;
            if (!CHECK(q[r * dim + d] == want, "row %d: %g is %d, not %d", r,
                       (double)x[r * dim + d], q[r * dim + d], want))
                return;
        }
    }
    CHECK(attn_quantise_i8(NULL, scales, x, 1, 1) == ATTN_ERR_ARG &&
              attn_quantise_i8((int8_t *)q, NULL, x, 1, 1) == ATTN_ERR_ARG &&
              attn_quantise_i8((int8_t *)q, scales, NULL, 1, 1) == ATTN_ERR_ARG &&
              attn_quantise_i8((int8_t *)q, scales, x, -1, 1) == ATTN_ERR_ARG &&
              attn_quantise_i8((int8_t *)q, scales, x, 1, 0) == ATTN_ERR_ARG &&
              attn_quantise_i8((int8_t *)q, scales, x, INT64_MAX / 4, 8) == ATTN_ERR_ARG &&
              attn_quantise_i8(NULL, NULL, NULL, 0, 1) == ATTN_OK &&
              attn_convert(x, ATTN_F32, q, ATTN_I8, 1) == ATTN_ERR_ARG &&
              attn_convert(q, ATTN_I8, x, ATTN_F32, 1) == ATTN_ERR_ARG,
          "bad arguments are taken, or good ones are not");
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Axes along which scales are one. */
enum { ONE_BATCH = 1, ONE_HEAD = 2, ONE_KEY = 4, ONE_DIM = 8 };

/* Scales of a tensor that has these numbers of batch entries and heads, in some layout, NaN in between. */
static attn_scales make_scales(const test_tensor *t, int64_t batch, int64_t heads, int one)
{
    const int64_t count[4] = { one & ONE_BATCH ? 1 : batch, one & ONE_HEAD ? 1 : heads,
                               one & ONE_KEY ? 1 : t->seq, one & ONE_DIM ? 1 : t->dim };
    const int64_t gap = rng_chance(30) ? 2 : 1, row = count[3] * gap + (rng_chance(30) ? 5 : 0);
    const int64_t entry = count[1] * count[2] * row;
    const int by_token = rng_chance(50);
    float *data = test_alloc((size_t)(count[0] * entry) * sizeof *data);
    attn_scales x = { .data = data };
    x.stride_dim = (ptrdiff_t)gap;
    x.stride_seq = (ptrdiff_t)(by_token ? count[1] * row : row);
    x.stride_head = (ptrdiff_t)(by_token ? row : count[2] * row);
    x.stride_batch = (ptrdiff_t)entry;
    for (int64_t r = 0; r < count[0] * count[1] * count[2]; r++)
        for (int64_t d = 0; d < count[3]; d++)
            data[r * row + d * gap] = rng_chance(3)   ? 0.0f
                                      : rng_chance(5) ? -0.01f * rng_unit()
                                                      : 0.002f + 0.03f * rng_unit();
    return x;
}

/* Strides of 0 where they say it, else explicit ones; and shared axes by their name. */
static void name_scales(attn_scales *x, const test_tensor *t, int one)
{
    const int packed = x->stride_dim == 1 &&
                       x->stride_seq == (one & ONE_DIM ? 1 : (ptrdiff_t)t->dim) &&
                       x->stride_head == x->stride_seq * (one & ONE_KEY ? 1 : (ptrdiff_t)t->seq);
    if (packed && rng_chance(50))
        x->stride_batch = x->stride_head = x->stride_seq = x->stride_dim = 0;
    x->stride_batch = one & ONE_BATCH ? ATTN_STRIDE_BROADCAST : x->stride_batch;
    x->stride_head = one & ONE_HEAD ? ATTN_STRIDE_BROADCAST : x->stride_head;
    x->stride_seq = one & ONE_KEY ? ATTN_STRIDE_BROADCAST : x->stride_seq;
    x->stride_dim = one & ONE_DIM ? ATTN_STRIDE_BROADCAST : x->stride_dim;
}

/* A row as bytes, and as the values that these stand for. */
static void store_scaled(signed char *to, float *values, int64_t dim, const float *scale,
                         ptrdiff_t step)
{
    for (int64_t d = 0; d < dim; d++) {
        const float by = scale[d * step], x = values[d] / by;
        const int q = x >= -128 && x <= 127 ? (int)x : (int)rng_int(-128, 127);
        to[d] = (signed char)q;
        values[d] = (float)q * by;
    }
}

static void store_row(const quantised_type *type, unsigned char *to, float *values, int64_t dim)
{
    CHECK(attn_convert(to, type->dtype, values, ATTN_F32, (size_t)dim) == ATTN_OK &&
              attn_convert(values, ATTN_F32, to, type->dtype, (size_t)dim) == ATTN_OK,
          "not converted");
}

/* K or V as units of a type, its rows in some layout; the tensor gets the values that they stand for.
 * Strides that are packed may be 0. Scales, which ATTN_I8 has, are one along these axes at least. */
static attn_tensor quantise_by(const attn_params *p, test_tensor *t, const quantised_type *type,
                               attn_scales *scales, int one)
{
    const int64_t pad = rng_chance(50) ? UNIT : 0, row = t->dim + pad;
    const int64_t heads = t->layout == LAYOUT_SHARED_HEADS ? 1 : t->heads;
    const int64_t batch = t->layout == LAYOUT_SHARED_BATCH ? 1 : t->batch;
    const int by_token = rng_chance(50);
    attn_tensor x = { .dtype = type->dtype };
    const int64_t elements = batch * heads * t->seq * row;
    unsigned char *data = test_alloc((size_t)(elements / type->numbers * type->bytes));
    float *values = test_alloc((size_t)t->dim * sizeof *values);
    memset(data, 0xff, (size_t)(elements / type->numbers * type->bytes)); /* NaN between rows */
    x.stride_seq = (ptrdiff_t)(by_token ? heads * row : row);
    x.stride_head = (ptrdiff_t)(by_token ? row : t->seq * row);
    x.stride_batch = (ptrdiff_t)(heads * t->seq * row);
    if (scales != NULL) {
        one |= (batch < t->batch ? ONE_BATCH : 0) | (heads < t->heads ? ONE_HEAD : 0);
        *scales = make_scales(t, batch, heads, one);
    }
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t s = 0; s < t->seq; s++) {
                const int64_t at = b * x.stride_batch + h * x.stride_head + s * x.stride_seq;
                unsigned char *to = data + at / type->numbers * type->bytes;
                for (int64_t d = 0; d < t->dim; d++)
                    values[d] = tensor_get(t, b, h, s, d);
                if (scales != NULL)
                    store_scaled((signed char *)to, values, t->dim,
                                 scales->data + (one & ONE_BATCH ? 0 : b * scales->stride_batch) +
                                     (one & ONE_HEAD ? 0 : h * scales->stride_head) +
                                     (one & ONE_KEY ? 0 : s * scales->stride_seq),
                                 one & ONE_DIM ? 0 : scales->stride_dim);
                else
                    store_row(type, to, values, t->dim);
                for (int64_t d = 0; d < t->dim; d++)
                    tensor_set(t, b, h, s, d, values[d]);
            }
    tensor_remember(t);
    x.data = data;
    if (!pad && by_token == (p->layout || p->cu_seqlens_kv) && rng_chance(50))
        x.stride_batch = x.stride_head = x.stride_seq = 0; /* packed */
    if (heads < t->heads)
        x.stride_head = ATTN_STRIDE_BROADCAST;
    if (batch < t->batch)
        x.stride_batch = ATTN_STRIDE_BROADCAST;
    if (scales != NULL)
        name_scales(scales, t, one);
    return x;
}

static attn_tensor quantise(const attn_params *p, test_tensor *t, const quantised_type *type)
{
    return quantise_by(p, t, type, NULL, 0);
}

/* One of K and V may stay as it is, or with `scaled` have another type than ATTN_I8. */
static void quantise_some(test_problem *a, test_problem *b, int scaled)
{
    const int which = (int)rng_int(0, 3);
    twin(a, b);
    if (which != 0 && scaled)
        b->p.k = quantise_by(&a->p, &a->k, &types[I8], &b->p.k_scales, (int)rng_int(0, 15));
    else if (which != 0)
        b->p.k = quantise(&a->p, &a->k, &types[rng_int(0, TYPES - 1)]);
    if (which != 1 && scaled && rng_chance(80))
        b->p.v = quantise_by(&a->p, &a->v, &types[I8], &b->p.v_scales, (int)rng_int(0, 15));
    else if (which != 1)
        b->p.v = quantise(&a->p, &a->v, &types[rng_int(0, TYPES - 1)]);
}

static void say_strides(attn_tensor *x, const attn_params *p, int64_t keys, int64_t dim)
{
    const int64_t heads = x->stride_head == ATTN_STRIDE_BROADCAST ? 1 : oracle_heads_kv(p);
    const int by_token = p->layout || p->cu_seqlens_kv != NULL;
    if (x->stride_seq == 0)
        x->stride_seq = (ptrdiff_t)(by_token ? heads * dim : dim);
    if (x->stride_head == 0)
        x->stride_head = (ptrdiff_t)(by_token ? dim : keys * dim);
    if (x->stride_batch == 0)
        x->stride_batch = (ptrdiff_t)(heads * keys * dim);
}

void quantise_for_levels(test_problem *t)
{
    const quantised_type *k = &types[rng_int(0, TYPES - 1)], *v = &types[rng_int(0, TYPES - 1)];
    t->p.k = quantise(&t->p, &t->k, k);
    t->p.v = quantise(&t->p, &t->v, v);
    say_strides(&t->p.k, &t->p, t->k.seq, t->k.dim);
    say_strides(&t->p.v, &t->p, t->v.seq, t->v.dim);
    t->p.integer = k->numbers == UNIT && rng_chance(50);
    t->p.rotated = (int)rng_int(0, ATTN_ROTATED_K + ATTN_ROTATED_V);
}

/* What promises no bits is held to the oracle's bound. */
static void compare(test_problem *a, test_problem *b, const char *what)
{
    if (!T.exact) {
        problem_check(b);
        return;
    }
    if (problem_run(a) && problem_run(b))
        CHECK(problem_same_bits(a, b), "%s: bits differ", what);
}

test_shape whole_units(test_shape s)
{
    s.dim = UNIT * rng_int(1, rng_chance(80) ? 4 : 10);
    s.dim_v = UNIT * rng_int(1, 4);
    return s;
}

/* Any masks, any shape. */
static void run_background(int round, int scaled)
{
    static const char *const banned[] = { "odd_dims", "mixed", "varlen", NULL };
    int list[MAX_BACKGROUND];
    const int count = pick_background(list, NULL, 1, banned);
    test_problem a, b;
    features_make(&a, whole_units(shape_random()), list, count);
    a.p.impl = round % 3 == 2 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    quantise_some(&a, &b, scaled);
    if (round % 4 == 1)
        b.p.tile_keys = 16;
    compare(&a, &b, "quantised");
}

static void check_background(int round)
{
    run_background(round, 0);
}

static void check_scaled(int round)
{
    run_background(round, 1);
}

/* Sequences of one tensor. */
static void run_packed(int scaled)
{
    static const char *const banned[] = { "odd_dims", "mixed", NULL };
    int list[MAX_BACKGROUND];
    const int count = pick_background(list, "varlen", 0, banned);
    test_problem a, b;
    features_make(&a, whole_units(shape_random()), list, count);
    quantise_some(&a, &b, scaled);
    compare(&a, &b, "sequences");
}

static void check_packed(int round)
{
    (void)round;
    run_packed(0);
}

static void check_scaled_packed(int round)
{
    (void)round;
    run_packed(1);
}

/* Few rows against many keys, in pages and rings, one worker and five, keys divided. */
static void run_decode(int round, int scaled)
{
    static const int64_t pages[] = { 0, 1, 5, 16, 48, 256 };
    test_shape s = { .batch = rng_int(1, 2), .heads_kv = 2 };
    pool workers = pool_of(5, POOL_SHUFFLED, 0);
    test_problem a, b;
    s.heads_q = s.heads_kv * rng_int(1, 8);
    s.seq_q = rng_int(1, 4);
    s.seq_kv = rng_int(20, rng_chance(20) ? 3000 : 600);
    problem_make(&a, (s = whole_units(s), &s));
    a.p.causal = 1;
    problem_scatter(&a, pages[round % 6], round / 6 % 2);
    quantise_some(&a, &b, scaled);
    compare(&a, &b, "decoding");
    b.p.num_workers = workers.workers;
    b.p.tuning = rng_chance(50) ? "attn-tuning 1 split_work 1 end" : NULL;
    b.p.parallel_for = pool_for;
    b.p.parallel_user = &workers;
    CHECK(test_run(&b.p) == ATTN_OK && (!T.exact || problem_same_bits(&a, &b)),
          "decoding, five workers");
}

static attn_status run_on_cpu(const attn_params *p)
{
    const attn_backend *device = T.backend;
    attn_status status;
    T.backend = NULL;
    status = test_run(p);
    T.backend = device;
    return status;
}

static void check_decode(int round)
{
    run_decode(round, 0);
}

static void check_scaled_decode(int round)
{
    run_decode(round, 1);
}

/* Keys that all entries have, read once: the same bits, with scales of keys and of channels. */
static void check_scaled_prefix(int round)
{
    enum { BATCH = 3, HEADS = 2, GROUP = 4, KEYS = 300, DIM = 64 };
    const int by_channel = round % 2, rows = 1 + round % 3;
    const int64_t scales = HEADS * (by_channel ? DIM : KEYS);
    float *q = test_alloc((size_t)(BATCH * HEADS * GROUP * rows * DIM) * sizeof *q);
    int8_t *k = test_alloc(HEADS * KEYS * DIM);
    float *by = test_alloc((size_t)(BATCH * scales) * sizeof *by), *o[2];
    attn_info info;
    attn_params p = { .batch = BATCH,
                      .num_heads_q = HEADS * GROUP,
                      .num_heads_kv = HEADS,
                      .seq_len_q = rows,
                      .seq_len_kv = KEYS,
                      .head_dim = DIM,
                      .integer = round / 2 % 2,
                      .causal = 1 };
    for (int i = 0; i < BATCH * HEADS * GROUP * rows * DIM; i++)
        q[i] = rng_normal();
    for (int i = 0; i < HEADS * KEYS * DIM; i++)
        k[i] = (int8_t)rng_int(-128, 127);
    for (int64_t i = 0; i < BATCH * scales; i++) /* every entry has an equal copy */
        by[i] = i < scales ? 0.002f + 0.03f * rng_unit() : by[i - scales];
    p.q.data = q;
    p.k.dtype = p.v.dtype = ATTN_I8;
    p.k.data = p.v.data = k;
    p.k.stride_batch = p.v.stride_batch = ATTN_STRIDE_BROADCAST;
    p.k_scales.data = by;
    *(by_channel ? &p.k_scales.stride_seq : &p.k_scales.stride_dim) = ATTN_STRIDE_BROADCAST;
    p.v_scales = p.k_scales;
    for (int way = 0; way < 2; way++) {
        p.shared_keys = way ? 290 : 0;
        p.o.data = o[way] = test_alloc((size_t)(BATCH * HEADS * GROUP * rows * DIM) * sizeof *q);
        CHECK(test_run(&p) == ATTN_OK, "refused");
    }
    CHECK(attn_explain(&p, &info) == ATTN_OK && strstr(info.reasons, "prefix of 288 keys") != NULL,
          "%s", info.reasons);
    CHECK(memcmp(o[0], o[1], (size_t)(BATCH * HEADS * GROUP * rows * DIM) * sizeof *q) == 0,
          "bits differ");
}

/* Whole numbers: within the bounds of the oracle, whichever way; and the tiled way has the bits of the
 * portable kernels, of small tiles and of several workers. */
static void run_whole(int round, const quantised_type *type)
{
    static const char *const banned[] = { "odd_dims", "mixed", "part", "backend", NULL };
    static const int64_t pages[] = { 0, 1, 5, 16 };
    pool workers = pool_of(3, POOL_SHUFFLED, 0);
    int list[MAX_BACKGROUND], sets = 0;
    const int count = pick_background(list, round % 4 == 3 ? "varlen" : NULL, 1, banned);
    test_problem a, b;
    features_make(&a, whole_units(shape_random()), list, round % 2 ? count : 0);
    if (round % 2 == 0)
        problem_scatter(&a, pages[round / 2 % 4], round / 8 % 2);
    a.p.impl = round % 5 == 4 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    twin(&a, &b);
    if (type == &types[I8]) /* one scale for each key, or for each channel */
        b.p.k =
            quantise_by(&a.p, &a.k, type, &b.p.k_scales,
                        (int)rng_int(0, 3) | (round / 3 % 2 ? ONE_DIM | (int)rng_int(0, 1) * ONE_KEY
                                              : a.p.kv_rows.page_size ? ONE_KEY | ONE_BATCH
                                                                      : ONE_KEY));
    else
        b.p.k = quantise(&a.p, &a.k, type);
    if (rng_chance(50))
        b.p.v = quantise(&a.p, &a.v, &types[rng_int(0, TYPES - 1)]);
    b.p.integer = 1;
    problem_check(&b);
    if (b.p.impl == ATTN_IMPL_NAIVE)
        return;
    a = b;
    problem_new_output(&a);
    while (attn_kernels_get(sets) != NULL)
        sets++;
    a.p.kernels = attn_kernels_get(sets - 1);
    a.p.tile_keys = 16;
    a.p.num_workers = workers.workers;
    a.p.tuning = "attn-tuning 1 split_work 1 end";
    a.p.parallel_for = pool_for;
    a.p.parallel_user = &workers;
    CHECK(run_on_cpu(&a.p) == ATTN_OK && (!T.exact || problem_same_bits(&a, &b)),
          "%s: other bits another way", type_name(type));
}

static void check_whole(int round)
{
    run_whole(round, &types[2 + round % 3]);
}

static void check_scaled_whole(int round)
{
    run_whole(round, &types[I8]);
}

/* A query that is not finite has NaN as every score, one that is 0 or too small to have a scale has 0;
 * neither changes another row. */
static void check_strange_queries(int round)
{
    enum { ROWS = 3, KEYS = 40, DIM = 64 };
    static const float strange[] = { NAN, INFINITY, -INFINITY, 0.0f, 1e-40f };
    float *q = test_alloc(ROWS * DIM * sizeof *q), *k = test_alloc(KEYS * DIM * sizeof *k);
    float *logits[2], *o[2];
    attn_params p = { .batch = 1,
                      .num_heads_q = 1,
                      .seq_len_q = ROWS,
                      .seq_len_kv = KEYS,
                      .head_dim = DIM,
                      .integer = 1 };
    for (int i = 0; i < ROWS * DIM; i++)
        q[i] = rng_normal();
    for (int i = 0; i < KEYS * DIM; i++)
        k[i] = rng_normal();
    p.q.data = q;
    p.v.data = k;
    p.k.dtype = ATTN_Q8_0;
    p.k.data = test_alloc(KEYS * DIM / UNIT * 34);
    attn_convert((void *)(size_t)p.k.data, ATTN_Q8_0, k, ATTN_F32, KEYS * DIM);
    for (int way = 0; way < 2; way++) {
        for (int d = 0; d < DIM && way == 1; d++)
            if (round >= 3 || d == 40)
                q[DIM + d] = strange[round];
        p.logits.data = logits[way] = test_alloc(ROWS * KEYS * sizeof *logits[0]);
        p.o.data = o[way] = test_alloc(ROWS * DIM * sizeof *o[0]);
        CHECK(test_run(&p) == ATTN_OK, "refused");
    }
    for (int r = 0; r < ROWS; r += 2)
        CHECK(memcmp(logits[0] + r * KEYS, logits[1] + r * KEYS, KEYS * sizeof *logits[0]) == 0 &&
                  memcmp(o[0] + r * DIM, o[1] + r * DIM, DIM * sizeof *o[0]) == 0,
              "row %d beside a strange one differs", r);
    for (int j = 0; j < KEYS; j++)
        if (round < 3 ? !isnan(logits[1][KEYS + j]) : logits[1][KEYS + j] != 0) {
            CHECK(0, "key %d has the score %g", j, (double)logits[1][KEYS + j]);
            return;
        }
}

/* ---- rotation -------------------------------------------------------------------------------- */

/* Element (i, d) of the Hadamard matrices that rotate rows of dim elements. */
static double rotation_at(int64_t dim, int64_t i, int64_t d)
{
    int64_t n = 256, both;
    int odd = 0;
    while (n > dim)
        n /= 2;
    if (i < n || d < n) {
        if (i >= n || d >= n)
            return 0;
        for (both = i & d; both > 0; both /= 2)
            odd ^= both & 1;
        return (odd ? -1 : 1) / sqrt((double)n);
    }
    return rotation_at(dim - n, i - n, d - n);
}

static void check_rotate(int round)
{
    static const int64_t dims[] = { 1, 2, 3, 16, 31, 64, 80, 96, 112, 128, 256, 300, 576 };
    const int64_t dim = dims[round], rows = 3;
    float *x = test_alloc_at((size_t)(rows * dim) * sizeof *x, PLACE_PAGE_AFTER);
    float *before = test_alloc((size_t)(rows * dim) * sizeof *before);
    double worst = 0;
    for (int64_t i = 0; i < rows * dim; i++)
        x[i] = before[i] = rng_normal();
    CHECK(attn_rotate(x, rows, dim) == ATTN_OK, "refused");
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < dim; i++) {
            double sum = 0;
            for (int64_t d = 0; d < dim; d++)
                sum += rotation_at(dim, i, d) * (double)before[r * dim + d];
            worst = fmax(worst, fabs(sum - (double)x[r * dim + i]));
        }
    CHECK(worst < 2e-6, "rows of %d are off by %g", (int)dim, worst);
    CHECK(attn_rotate(NULL, 1, dim) == ATTN_ERR_ARG && attn_rotate(x, -1, dim) == ATTN_ERR_ARG &&
              attn_rotate(x, 1, 0) == ATTN_ERR_ARG && attn_rotate(x, 0, dim) == ATTN_OK,
          "bad arguments are taken, or good ones are not");
}

/* A call rotates q as attn_rotate does, and O back. */
static void check_rotated(int round)
{
    static const char *const banned[] = { "mixed", "storage", "logits", "part", NULL };
    int list[MAX_BACKGROUND];
    const int count = pick_background(list, round % 4 == 3 ? "varlen" : NULL, 1, banned);
    test_problem a, b;
    features_make(&a, shape_random(), list, count);
    a.p.impl = round % 5 == 4 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    twin(&a, &b); /* It has the queries of a, and runs before they are rotated. */
    b.p.rotated = ATTN_ROTATED_K;
    if (!problem_run(&b))
        return;
    for (int64_t n = 0; n < a.q.batch * a.q.heads * a.q.seq; n++) {
        const int64_t s = n % a.q.seq, h = n / a.q.seq % a.q.heads, at = n / a.q.seq / a.q.heads;
        float row[1024];
        for (int64_t d = 0; d < a.q.dim; d++)
            row[d] = tensor_get(&a.q, at, h, s, d);
        attn_rotate(row, 1, a.q.dim);
        for (int64_t d = 0; d < a.q.dim; d++)
            tensor_set(&a.q, at, h, s, d, row[d]);
    }
    tensor_remember(&a.q);
    if (problem_run(&a))
        CHECK(problem_same_bits(&a, &b), "bits differ");
}

/* A row of O as a rotated call has it. Rows that no call wrote are alike, and have no number. */
static int is_rotated_back(const test_problem *a, const test_problem *b, int64_t n)
{
    const test_tensor *o = &a->o;
    const int64_t s = n % o->seq, h = n / o->seq % o->heads, at = n / o->seq / o->heads;
    float row[1024];
    int same = 1, wrong = 0, number = 0;
    for (int64_t d = 0; d < o->dim; d++) {
        row[d] = tensor_get(o, at, h, s, d);
        number |= isfinite(row[d]) && row[d] != 0;
        same &= float_bits(row[d]) == float_bits(tensor_get(&b->o, at, h, s, d));
    }
    attn_rotate(row, 1, o->dim);
    for (int64_t d = 0; d < o->dim; d++) {
        const float got = tensor_get(&b->o, at, h, s, d), want = row[d] + 0.0f;
        wrong |=
            want != want ? float_bits(got) != 0x7fc00000u : float_bits(got) != float_bits(want);
    }
    return (same && !number) || !wrong;
}

static void check_rotated_back(int round)
{
    static const char *const banned[] = { "mixed", "storage", "logits", "part", "partial", NULL };
    int list[MAX_BACKGROUND];
    const int count = pick_background(list, round % 4 == 3 ? "varlen" : NULL, 1, banned);
    test_problem a, b;
    int64_t wrong = 0;
    features_make(&a, shape_random(), list, count);
    a.p.impl = round % 5 == 4 ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    for (int64_t s = 0; s < a.v.seq && round % 3 == 0; s += 5)
        tensor_set(&a.v, 0, 0, s, rng_int(0, a.v.dim - 1), s % 2 ? INFINITY : -INFINITY);
    tensor_remember(&a.v);
    twin(&a, &b);
    b.p.rotated = ATTN_ROTATED_V;
    if (!problem_run(&a) || !problem_run(&b))
        return;
    for (int64_t n = 0; n < a.o.batch * a.o.heads * a.o.seq; n++)
        wrong += !is_rotated_back(&a, &b, n);
    CHECK(wrong == 0, "%d rows of O are not rotated back", (int)wrong);
}

static double product(const float *x, const float *y, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* O as it was, but for rounding, where a vector is taken from all keys; LSE lacks scale * q.vector. */
static void check_centered(int round)
{
    enum { HEADS = 2, ROWS = 9, KEYS = 100, DIM = 48 };
    float *q = test_alloc(HEADS * ROWS * DIM * sizeof *q), *v = test_alloc(KEYS * DIM * sizeof *v);
    float *k[2], *o[2], *lse[2], mean[DIM];
    for (int i = 0; i < HEADS * ROWS * DIM; i++)
        q[i] = rng_normal();
    for (int d = 0; d < DIM; d++)
        mean[d] = 4 * rng_normal();
    for (int way = 0; way < 2; way++) {
        attn_params p = { .batch = 1, .num_heads_q = HEADS, .num_heads_kv = 1, .seq_len_q = ROWS };
        k[way] = test_alloc(KEYS * DIM * sizeof *k[0]);
        p.lse.data = lse[way] = test_alloc(HEADS * ROWS * sizeof *lse[0]);
        p.o.data = o[way] = test_alloc(HEADS * ROWS * DIM * sizeof *o[0]);
        for (int i = 0; i < KEYS * DIM; i++) {
            if (way == 0)
                k[0][i] = rng_normal() + mean[i % DIM], v[i] = rng_normal();
            else
                k[1][i] = k[0][i] - mean[i % DIM];
        }
        p.seq_len_kv = KEYS;
        p.head_dim = DIM;
        p.causal = round % 2;
        p.q.data = q;
        p.k.data = k[way];
        p.v.data = v;
        p.k_centered = way;
        p.impl = round % 4 < 2 ? ATTN_IMPL_TILED : ATTN_IMPL_NAIVE;
        CHECK(test_run(&p) == ATTN_OK, "refused");
    }
    for (int i = 0; i < HEADS * ROWS * DIM; i++)
        if (!CHECK(fabsf(o[0][i] - o[1][i]) < 1e-4f, "O is %g, not %g", (double)o[1][i],
                   (double)o[0][i]))
            return;
    for (int r = 0; r < HEADS * ROWS; r++) {
        const double lacks = product(q + r * DIM, mean, DIM) / sqrt((double)DIM);
        CHECK(fabs((double)lse[0][r] - (double)lse[1][r] - lacks) < 1e-4, "lse of row %d: %g", r,
              (double)lse[1][r]);
    }
}

/* K of this type and O in one buffer, O behind K or inside its last unit; and what the call is said to
 * touch. */
static void check_places(int round)
{
    enum { ROWS = 5, DIM = 64 };
    const quantised_type *type = &types[round];
    const size_t k_bytes = (size_t)(ROWS * DIM / type->numbers * type->bytes);
    const size_t rest = (4 - k_bytes % 4) % 4; /* O begins where a float may lie. */
    unsigned char *both = test_alloc(rest + k_bytes + ROWS * DIM * sizeof(float));
    float *q = test_alloc(ROWS * DIM * sizeof *q), *v = test_alloc(ROWS * DIM * sizeof *v);
    attn_params p = {
        .batch = 1, .num_heads_q = 1, .seq_len_q = ROWS, .seq_len_kv = ROWS, .head_dim = DIM
    };
    attn_info info;
    size_t bytes = 0;
    char why[200];
    memset(both, 0, k_bytes + rest);
    memset(q, 0, ROWS * DIM * sizeof *q);
    memset(v, 0, ROWS * DIM * sizeof *v);
    p.q.data = q;
    p.v.data = v;
    p.k.dtype = type->dtype;
    p.k.data = both + rest;
    p.o.data = both + rest + k_bytes;
    CHECK(attn_workspace_size(&p, &bytes) == ATTN_OK, "no size");
    CHECK(strcmp(attn_check(&p, test_alloc(bytes), bytes, why, sizeof why), "ok") == 0, "%s", why);
    p.o.data = both + rest + k_bytes - 4;
    CHECK(strstr(attn_check(&p, test_alloc(bytes), bytes, why, sizeof why), "o ") == why, "%s",
          why);
    CHECK(attn_explain(&p, &info) == ATTN_OK &&
              info.bytes == (double)k_bytes + 3.0 * ROWS * DIM * sizeof(float),
          "%g bytes for %zu of K", info.bytes, k_bytes);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void expect_status(const attn_params *p, attn_status status, const char *sentence)
{
    char why[400];
    size_t bytes;
    attn_check(p, NULL, 0, why, sizeof why);
    CHECK(strcmp(why, sentence) == 0, "\"%s\", expected \"%s\"", why, sentence);
    CHECK(attn_workspace_size(p, &bytes) == status, "a size is given all the same");
}

static void expect(const attn_params *p, const char *sentence)
{
    expect_status(p, ATTN_ERR_ARG, sentence);
}

static void check_misuse(int round)
{
    attn_params p = {
        .batch = 1, .num_heads_q = 2, .seq_len_q = 3, .seq_len_kv = 4, .head_dim = 80
    };
    size_t bytes;
    (void)round;
    p.k.dtype = ATTN_Q8_0;
    expect(&p, "head_dim (80) must be a multiple of 32: k.dtype is q8_0");
    p.head_dim = 64;
    p.head_dim_v = 40;
    p.v.dtype = ATTN_Q4_0;
    expect(&p, "head_dim_v (40) must be a multiple of 32: v.dtype is q4_0");
    p.head_dim_v = 0;
    p.v.stride_head = -72;
    expect(&p, "v.stride_head (-72) must be a multiple of 32: v.dtype is q4_0");
    p.v.stride_head = 0;
    p.k.stride_seq = 100;
    expect(&p, "k.stride_seq (100) must be a multiple of 32: k.dtype is q8_0");
    p.k.stride_seq = 0;
    p.num_heads_kv = 1; /* Strides that nothing uses do not matter. */
    p.k.stride_head = 1;
    p.v.stride_batch = 100;
    CHECK(attn_workspace_size(&p, &bytes) == ATTN_OK, "strides of axes of length 1 matter");
    p.k.dtype = 9;
    expect(&p,
           "k.dtype (9) must be at most 8: 0 is f32, 1 is f16, 2 is bf16, 3 is e4m3, 4 is e5m2, "
           "5 is q8_0, 6 is q5_0, 7 is q4_0, 8 is i8");
    p.k.dtype = ATTN_E4M3;
    p.integer = 2;
    expect_status(&p, ATTN_ERR_UNSUPPORTED,
                  "integer (2) needs k.dtype 5 for q8_0, 6 for q5_0, 7 for q4_0 or 8 for i8");
    p.integer = 0;
    p.q.dtype = ATTN_E4M3;
    expect(&p, "q.dtype (3) must be at most 2: 0 is f32, 1 is f16, 2 is bf16");
}

static attn_params scaled_call(void)
{
    static const float scales[64];
    attn_params p = {
        .batch = 1, .num_heads_q = 2, .seq_len_q = 3, .seq_len_kv = 4, .head_dim = 64
    };
    p.k.dtype = p.v.dtype = ATTN_I8;
    p.k_scales.data = p.v_scales.data = scales;
    p.k_scales.stride_dim = p.v_scales.stride_dim = ATTN_STRIDE_BROADCAST;
    return p;
}

static void check_scales_misuse(int round)
{
    static const float scales[1];
    attn_params p = scaled_call();
    attn_resumable *memory = NULL;
    attn_dilated_branch branch = { .segment = 4 };
    const attn_dilated dilated = { .branches = &branch, .num_branches = 1 };
    size_t bytes;
    char why[400];
    (void)round;
    CHECK(attn_workspace_size(&p, &bytes) == ATTN_OK, "refused");
    p.k_scales.data = NULL;
    expect(&p, "k.dtype (8) is i8, but k_scales.data is NULL");
    p = scaled_call();
    p.v_scales.data = NULL;
    expect(&p, "v.dtype (8) is i8, but v_scales.data is NULL");
    p = scaled_call();
    p.k.dtype = ATTN_Q8_0;
    expect(&p, "k.dtype (5) must be 8 for i8 when k_scales is given");
    p = scaled_call();
    p.v.dtype = ATTN_F32;
    expect(&p, "v.dtype (0) must be 8 for i8 when v_scales is given");
    p = scaled_call();
    p.q.dtype = ATTN_I8;
    expect(&p, "q.dtype (8) must be at most 2: 0 is f32, 1 is f16, 2 is bf16");
    p = scaled_call();
    p.integer = 1;
    p.head_dim = 72;
    p.k_scales.stride_dim = ATTN_STRIDE_BROADCAST;
    expect(&p, "head_dim (72) must be a multiple of 32 where integer is set");
    p.head_dim = 64;
    CHECK(attn_workspace_size(&p, &bytes) == ATTN_OK, "refused");
    p.k_scales.stride_dim = 0;
    p.k_scales.stride_batch = ATTN_STRIDE_BROADCAST;
    expect_status(&p, ATTN_ERR_UNSUPPORTED,
                  "integer (1) needs k_scales that all channels or all keys of a head share: set "
                  "stride_dim, or stride_seq (with pages also stride_batch), to "
                  "ATTN_STRIDE_BROADCAST");
    p.k_scales.stride_seq = ATTN_STRIDE_BROADCAST;
    CHECK(attn_workspace_size(&p, &bytes) == ATTN_OK, "scales of channels are refused");
    p.kv_rows.page_size = 2;
    p.kv_rows.num_pages = 2;
    p.kv_rows.table = (const int32_t[]){ 0, 1 };
    CHECK(attn_workspace_size(&p, &bytes) == ATTN_OK, "scales of channels are refused in pages");
    p.k_scales.stride_batch = 0;
    expect_status(&p, ATTN_ERR_UNSUPPORTED,
                  "integer (1) needs k_scales that all channels or all keys of a head share: set "
                  "stride_dim, or stride_seq (with pages also stride_batch), to "
                  "ATTN_STRIDE_BROADCAST");
    p = scaled_call();
    p.k_scales.stride_head = PTRDIFF_MAX / 2;
    expect_status(
        &p, ATTN_ERR_OVERFLOW,
        "k_scales: batch (1) x heads (2) x rows (4) x columns (64) with its strides exceeds "
        "the address space");
    p = scaled_call();
    p.k_scales.data = (const float *)(const void *)((const char *)scales + 1);
    expect(&p, "k_scales: its address must be a multiple of 4, the alignment of its elements");
    p = scaled_call();
    attn_resume_check(&p, 0, NULL, memory, 0, why, sizeof why);
    CHECK(strcmp(why, "k_scales is set, but attn_resume_begin does not take it") == 0, "%s", why);
    attn_dilated_check(&p, &dilated, NULL, 0, why, sizeof why);
    CHECK(strcmp(why, "k_scales is set, but dilated attention does not take it") == 0, "%s", why);
}

/* O in the memory of scales, just behind them, and on the last of them. */
static void check_scale_places(int round)
{
    enum { KEYS = 5, DIM = 64 };
    float *both = test_alloc((KEYS + DIM) * sizeof *both), *q = test_alloc(DIM * sizeof *q);
    int8_t *k = test_alloc(KEYS * DIM), *v = test_alloc(KEYS * DIM);
    attn_params p = scaled_call();
    size_t bytes = 0;
    char why[200];
    memset(both, 0, (KEYS + DIM) * sizeof *both);
    memset(q, 0, DIM * sizeof *q);
    p.num_heads_q = p.seq_len_q = 1;
    p.seq_len_kv = KEYS;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    *(round % 2 ? &p.k_scales.data : &p.v_scales.data) = both;
    *(round % 2 ? &p.v_scales.data : &p.k_scales.data) = test_alloc(KEYS * sizeof *both);
    p.o.data = both + KEYS - round / 2;
    CHECK(attn_workspace_size(&p, &bytes) == ATTN_OK, "no size");
    attn_check(&p, test_alloc(bytes), bytes, why, sizeof why);
    CHECK(strcmp(why, round < 2 ? "ok"
                      : round == 2
                          ? "o overlaps v_scales: what a call writes needs memory of its own"
                          : "o overlaps k_scales: what a call writes needs memory of its "
                            "own") == 0,
          "%s", why);
}

/* Gradients take plain types alone and say so, of every level; tests/ring_errors.c has the ring. */
static void check_gradients(int round)
{
    static const struct {
        int dtype, integer, rotated;
        const char *sentence;
    } calls[] = {
        { ATTN_Q8_0, 0, 0,
          "k.dtype (5) is set, but attn_backward does not take it: 0 is f32, 1 is f16, 2 is bf16" },
        { ATTN_Q8_0, 1, 0, "integer (1) is set, but attn_backward does not take it" },
        { ATTN_F32, 0, 3,
          "rotated (3) is set, but attn_backward does not take it: 1 is K, 2 is V, 3 is both" },
    };
    static float numbers[4 * 64], o[4 * 64], dq[4 * 64];
    const attn_gradients g = { .dq.data = dq };
    const attn_dilated_branch branch = { .segment = 4 };
    const attn_dilated dilated = { .branches = &branch, .num_branches = 1 };
    attn_params p = {
        .batch = 1, .num_heads_q = 1, .seq_len_q = 4, .seq_len_kv = 4, .head_dim = 64
    };
    char why[400];
    p.q.data = p.k.data = p.v.data = numbers;
    p.o.data = o;
    p.k.dtype = calls[round].dtype;
    p.integer = calls[round].integer;
    p.rotated = calls[round].rotated;
    attn_backward_check(&p, &g, NULL, 0, why, sizeof why);
    CHECK(strcmp(why, calls[round].sentence) == 0, "attn_backward: %s", why);
    attn_dilated_backward_check(&p, &dilated, &g, NULL, 0, why, sizeof why);
    CHECK(strcmp(why, calls[round].sentence) == 0, "attn_dilated_backward: %s", why);
}

enum { ON_CPU, WHERE_EXACT, EVERYWHERE };

TEST_GROUP(quantised, RUN_EACH_SET, "storage types of K and V: their bytes, and the bits of f32")
{
    static const struct {
        const char *name;
        void (*run)(int round);
        int rounds, once, runs;
    } checks[] = {
        { "numbers read", check_read, TYPES, 1, ON_CPU },
        { "floats of 8 bits written", check_store, 2, 1, ON_CPU },
        { "bytes of another program", check_bytes, 3, 1, ON_CPU },
        { "numbers that are not finite", check_strange, 3, 1, ON_CPU },
        { "misuse", check_misuse, 1, 1, ON_CPU },
        { "gradients", check_gradients, 3, 1, ON_CPU },
        { "places", check_places, TYPES, 1, ON_CPU },
        { "any masks", check_background, 60, 0, EVERYWHERE },
        { "sequences", check_packed, 20, 0, EVERYWHERE },
        { "decoding", check_decode, 48, 0, EVERYWHERE },
        { "whole numbers", check_whole, 60, 0, EVERYWHERE },
        { "rotated rows", check_rotate, 13, 1, ON_CPU },
        { "rotated keys", check_rotated, 40, 0, WHERE_EXACT },
        { "rotated values", check_rotated_back, 40, 0, WHERE_EXACT },
        { "centered keys", check_centered, 8, 0, EVERYWHERE },
        { "strange queries", check_strange_queries, 5, 0, EVERYWHERE },
        { "rows of bytes", check_quantise, 6, 1, ON_CPU },
        { "misuse of scales", check_scales_misuse, 1, 1, ON_CPU },
        { "scales in places", check_scale_places, 4, 1, ON_CPU },
        { "scales, shared keys", check_scaled_prefix, 12, 0, ON_CPU },
        { "scales, any masks", check_scaled, 60, 0, ON_CPU },
        { "scales, sequences", check_scaled_packed, 20, 0, ON_CPU },
        { "scales, decoding", check_scaled_decode, 48, 0, ON_CPU },
        { "scales, whole numbers", check_scaled_whole, 60, 0, ON_CPU },
    };
    if (((!T.exact || T.impl) && !T.backend) || T.storage) {
        SKIP("quantised K and V are for exact calls of the CPU, and for devices");
        return;
    }
    for (size_t n = 0; n < sizeof checks / sizeof *checks; n++)
        for (int round = 0; round < checks[n].rounds; round++)
            if ((checks[n].once && !T.best && T.only_case < 0) ||
                (checks[n].runs == ON_CPU && T.backend) ||
                (checks[n].runs == WHERE_EXACT && !T.exact))
                pass_over_case();
            else if (begin_case("%s, %d", checks[n].name, round))
                checks[n].run(round);
}
