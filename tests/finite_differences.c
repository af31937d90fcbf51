/* finite_differences.c - the oracle's gradients against differences of its own forward results.
 * SPDX-License-Identifier: MIT
 *
 * The loss is the sum of dout * o + dlse * lse over all rows in use, in double, by oracle_row. One
 * number of an input at a time moves by h and 2h to both sides; (8 D(h) - D(2h)) / 6h, with D the
 * difference of the loss between both sides, is wrong by a term of h^4 only. Inputs are multiples
 * of 2^-12 below 2^6, so that every step is exact in binary32. No library runs here: what is tested
 * is the oracle that the library is compared with, and all that tests/oracle.c says of masks.
 */
#include "backward.h"
#include "features.h"
#include "oracle.h"

#include <math.h>
#include <string.h>

/* ---- the loss -------------------------------------------------------------------------------- */

static double row_loss(const gradients_case *s, int64_t b, int64_t h, int64_t i)
{
    const int varlen = s->t.p.cu_seqlens_q != NULL;
    const int64_t tb = varlen ? 0 : b, row = varlen ? s->t.p.cu_seqlens_q[b] + i : i;
    double o[64], lse = 0, loss = 0;
    if (oracle_row(&s->t.p, b, h, i, o, NULL, &lse) != 0)
        return NAN;
    for (int64_t d = 0; d < s->dout.dim; d++)
        loss += (double)tensor_get(&s->dout, tb, h, row, d) * o[d];
    if (s->g.dlse.data != NULL && lse != -HUGE_VAL) /* an empty row: no input moves it */
        loss += (double)tensor_get(&s->dlse, tb, h, row, 0) * lse;
    return loss;
}

static double loss_of(const gradients_case *s)
{
    double loss = 0;
    for (int64_t b = 0; b < s->t.p.batch; b++)
        for (int64_t h = 0; h < s->t.p.num_heads_q; h++)
            for (int64_t i = 0; i < oracle_rows(&s->t.p, b); i++)
                loss += row_loss(s, b, h, i);
    return loss;
}

static double derivative(const gradients_case *s, float *x, float step)
{
    const float here = *x;
    double difference[2];
    for (int n = 0; n < 2; n++) {
        const float h = step * (float)(n + 1);
        *x = here + h;
        difference[n] = loss_of(s);
        *x = here - h;
        difference[n] -= loss_of(s);
    }
    *x = here;
    return (8 * difference[0] - difference[1]) / (12 * (double)step);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static void to_grid(float *x, int64_t count)
{
    for (int64_t n = 0; n < count; n++)
        if (fabsf(x[n]) < 64.0f)
            x[n] = (float)(int)(x[n] * 4096.0f) / 4096.0f;
}

static float *writable(const float *x)
{
    return (float *)(uintptr_t)x;
}

/* The number that a gradient's element is the derivative by; NULL: no such number is in use. */
static float *input_of(const gradients_case *s, int which, const int64_t at[4])
{
    const attn_params *p = &s->t.p;
    const int64_t dim_v = p->head_dim_v != 0 ? p->head_dim_v : p->head_dim;
    switch (which) {
    case ORACLE_DQ:
        return at[2] >= oracle_rows(p, at[0])
                   ? NULL
                   : writable(p->q.data) + at[3] +
                         oracle_row_offset(p, &p->q, p->head_dim, at[0], at[1], at[2]);
    case ORACLE_DK:
        return at[2] >= oracle_keys(p, at[0])
                   ? NULL
                   : writable(p->k.data) + at[3] +
                         oracle_key_offset(p, &p->k, p->head_dim, at[0], at[1], at[2]);
    case ORACLE_DV:
        return at[2] >= oracle_keys(p, at[0])
                   ? NULL
                   : writable(p->v.data) + at[3] +
                         oracle_key_offset(p, &p->v, dim_v, at[0], at[1], at[2]);
    case ORACLE_DBIAS:
        return writable(p->bias.data) + oracle_bias_index(p, at[0], at[1], at[2], at[3]);
    case ORACLE_DSINKS:
        return writable(p->sinks) + at[1];
    default:
        return writable(p->alibi_slopes) + at[0] * step_of(p->alibi_stride) + at[1];
    }
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* A callback computes in float: its noise is divided by the step. A slope moves a logit by its
 * distance: its steps are shorter. */
static const struct {
    float step, slope_step;
    double tolerance; /* times the size of the gradient */
} exact = { 0x1p-10f, 0x1p-12f, 1e-8 }, with_callback = { 0x1p-5f, 0x1p-8f, 2e-4 };

static double size_of(const oracle_gradient *of)
{
    const int64_t count = of->size[0] * of->size[1] * of->size[2] * of->size[3];
    double sum = 0;
    for (int64_t n = 0; n < count; n++)
        sum += of->value[n] * of->value[n];
    return sqrt(sum / (double)(count > 0 ? count : 1));
}

static void check_element(const gradients_case *s, const oracle_gradient *of, int which)
{
    const int scored = s->t.p.score != NULL;
    const float step = which == ORACLE_DSLOPES
                           ? scored ? with_callback.slope_step : exact.slope_step
                       : scored ? with_callback.step
                                : exact.step;
    int64_t at[4], index = 0;
    float *x;
    double found, error, allowed;
    for (int axis = 0; axis < 4; axis++) {
        at[axis] = rng_int(0, of->size[axis] - 1);
        index = index * of->size[axis] + at[axis];
    }
    x = input_of(s, which, at);
    if (x == NULL || *x == -HUGE_VALF) {
        CHECK(of->value[index] == 0, "%s: %g where no input is", oracle_gradient_name(which),
              of->value[index]);
        return;
    }
    found = derivative(s, x, step);
    error = fabs(found - of->value[index]);
    allowed =
        (scored ? with_callback.tolerance : exact.tolerance) * (size_of(of) + fabs(found) + 0.05);
    worst_note(error / allowed);
    CHECK(error <= allowed, "%s[%lld, %lld, %lld, %lld]: %.9g, by differences %.9g",
          oracle_gradient_name(which), (long long)at[0], (long long)at[1], (long long)at[2],
          (long long)at[3], of->value[index], found);
}

static void check_gradients(const gradients_case *s)
{
    oracle_gradient of[ORACLE_GRADIENTS];
    if (!CHECK(oracle_backward(&s->t.p, &s->g, of) == 0, "no memory"))
        return;
    for (int which = 0; which < ORACLE_GRADIENTS; which++)
        for (int n = 0; of[which].value != NULL && n < (which == ORACLE_DBIAS ? 16 : 6); n++)
            check_element(s, &of[which], which);
    oracle_backward_free(of);
}

/* ---- the group ------------------------------------------------------------------------------- */

static void bias_to_grid(gradients_case *s)
{
    oracle_gradient size[ORACLE_GRADIENTS];
    int64_t at[4];
    oracle_gradient_sizes(&s->t.p, size);
    for (at[0] = 0; at[0] < size[ORACLE_DBIAS].size[0]; at[0]++)
        for (at[1] = 0; at[1] < size[ORACLE_DBIAS].size[1]; at[1]++)
            for (at[2] = 0; at[2] < size[ORACLE_DBIAS].size[2]; at[2]++)
                for (at[3] = 0; at[3] < size[ORACLE_DBIAS].size[3]; at[3]++)
                    to_grid(input_of(s, ORACLE_DBIAS, at), 1);
}

static void make_tiny(gradients_case *s, const int *list, int count)
{
    test_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.batch = 2;
    shape.heads_q = shape.heads_kv = rng_int(1, 2);
    shape.seq_q = rng_int(2, 7);
    shape.seq_kv = rng_int(2, 9);
    shape.dim = rng_int(1, 5);
    shape.dim_v = rng_int(1, 4);
    gradients_make(s, shape, list, count);
    if (rng_chance(25))
        s->t.p.bias.stride_kv = ATTN_STRIDE_BROADCAST;
    to_grid(writable(s->t.p.q.data), (int64_t)(s->t.q.bytes / 4));
    to_grid(writable(s->t.p.k.data), (int64_t)(s->t.k.bytes / 4));
    to_grid(writable(s->t.p.v.data), (int64_t)(s->t.v.bytes / 4));
    if (s->t.p.sinks != NULL)
        to_grid(writable(s->t.p.sinks), s->t.p.num_heads_q);
    if (s->t.p.alibi_slopes != NULL)
        to_grid(writable(s->t.p.alibi_slopes),
                (s->t.p.batch - 1) * step_of(s->t.p.alibi_stride) + s->t.p.num_heads_q);
    bias_to_grid(s);
}

/* Storage types, layouts, caches and long calls are for the library: the oracle only looks numbers up. */
static const char *const left_out[] = { "storage", "layout",   "rows",      "long",
                                        "dims",    "bias_f16", "bias_bf16", NULL };

static int is_left_out(int f)
{
    for (int n = 0; left_out[n] != NULL; n++)
        if (strcmp(features[f].slot, left_out[n]) == 0 ||
            strcmp(features[f].name, left_out[n]) == 0)
            return 1;
    return !gradients_takes(f);
}

/* Features that each of the others meets at least once. */
static const char *const partners[] = { "bias_f32", "alibi", "softcap", "kv_begin" };
enum { PARTNERS = sizeof partners / sizeof *partners, ROUNDS = 12 };

/* Feature f alone, with a partner, and with some others. */
static int choose(int f, int round, int *list)
{
    const int partner = round < PARTNERS ? feature_find(partners[round]) : f;
    list[0] = f;
    if (round == ROUNDS - 1)
        return 1;
    if (round >= PARTNERS)
        return gradients_add(list, 1, 4, left_out);
    list[1] = partner;
    return strcmp(features[f].slot, features[partner].slot) == 0 ? 1 : 2;
}

static void finite_differences(void)
{
    for (int f = 0; f < feature_count; f++)
        for (int n = 0; n < ROUNDS; n++) {
            int list[5];
            gradients_case s;
            if (is_left_out(f)) {
                pass_over_case();
                continue;
            }
            if (!begin_case("%s, %d", features[f].name, n))
                continue;
            make_tiny(&s, list, choose(f, n, list));
            check_gradients(&s);
            CHECK(features_bad_pairs() == 0, "a callback was told a wrong position");
        }
}

/* What depends on no kernel set. */
TEST_GROUP(gradients, RUN_ONCE, "the oracle of gradients against differences; every misuse")
{
    finite_differences();
    backward_errors();
}
