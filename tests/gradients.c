/* gradients.c - making backward calls, running them in guarded memory, comparing what they write.
 * SPDX-License-Identifier: MIT
 */
#include "gradients.h"
#include "features.h"
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes and features --------------------------------------------------------------------- */

static int64_t random_length(int64_t most)
{
    static const int64_t edges[] = { 15, 16, 17, 23, 24, 25, 31,  32,  33,
                                     47, 48, 49, 63, 64, 65, 127, 128, 129 };
    const int64_t length = rng_chance(30) ? RNG_PICK(edges) : rng_int(1, most);
    return length < most ? length : rng_int(1, most);
}

static int64_t work_of(const test_shape *s)
{
    return s->batch * s->heads_q * s->seq_q * s->seq_kv * (s->dim + 8);
}

/* Halves one of the sizes. */
static void shrink(test_shape *s)
{
    int64_t *const sizes[] = { &s->batch, &s->heads_q, &s->seq_q, &s->seq_kv, &s->dim };
    int64_t *size = sizes[rng_int(0, 4)];
    *size = (*size + 1) / 2;
    s->heads_kv = s->heads_q;
    s->dim_v = s->dim;
}

test_shape gradients_shape(int work)
{
    static const int64_t dims[] = { 1, 2, 3, 4, 5, 8, 16, 17, 24, 32, 33, 64 };
    test_shape s;
    memset(&s, 0, sizeof s);
    s.batch = rng_int(1, 2);
    s.heads_kv = s.heads_q = rng_int(1, 2);
    s.seq_q = rng_chance(15) ? rng_int(1, 4) : random_length(rng_chance(25) ? 200 : 60);
    s.seq_kv = rng_chance(10) ? rng_int(1, 4) : random_length(rng_chance(25) ? 260 : 60);
    s.dim = s.dim_v = RNG_PICK(dims);
    s.factor_q = rng_chance(25) ? 4.0f : 1.0f;
    while (work_of(&s) > (int64_t)work * (rng_chance(2) ? 400000 : 12000))
        shrink(&s);
    return s;
}

/* What attn_backward refuses or does not look at. */
static const char *const left_out[] = { "partial", "logits" };
/* What attn_forward refuses together. */
static const char *const refused[][2] = { { "sinks", "softmax1" }, { "bitmap", "csr" } };

static int is_named(int f, const char *name)
{
    return strcmp(features[f].name, name) == 0 || strcmp(features[f].slot, name) == 0;
}

static int is_refused_with(int a, int b)
{
    for (size_t n = 0; n < sizeof refused / sizeof *refused; n++)
        if ((is_named(a, refused[n][0]) && is_named(b, refused[n][1])) ||
            (is_named(b, refused[n][0]) && is_named(a, refused[n][1])))
            return 1;
    return strcmp(features[a].slot, features[b].slot) == 0;
}

static int fits(int f, const int *list, int count, const char *const *banned)
{
    for (size_t n = 0; n < sizeof left_out / sizeof *left_out; n++)
        if (is_named(f, left_out[n]))
            return 0;
    for (int n = 0; banned != NULL && banned[n] != NULL; n++)
        if (is_named(f, banned[n]))
            return 0;
    for (int n = 0; n < count; n++)
        if (is_refused_with(f, list[n]))
            return 0;
    return 1;
}

int gradients_takes(int f)
{
    return fits(f, NULL, 0, NULL);
}

int gradients_add(int *list, int count, int most, const char *const *banned)
{
    for (int attempt = 0; attempt < most; attempt++) {
        const int f = (int)rng_int(0, feature_count - 1);
        if (fits(f, list, count, banned))
            list[count++] = f;
    }
    return count;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static int random_dtype(void)
{
    return rng_chance(70) ? ATTN_F32 : (int)rng_int(0, 2);
}

/* A tensor beside those of the problem: with cu_seqlens packed as [token, head, dim]. */
static void make_tensor(const gradients_case *s, const int32_t *cu_seqlens, test_tensor *t,
                        int dtype, int layout, int64_t heads, int64_t seq, int64_t dim)
{
    const int varlen = cu_seqlens != NULL;
    const int packed = varlen && layout == LAYOUT_PACKED;
    tensor_make(t, dtype, packed ? LAYOUT_BSHD : layout, varlen ? 1 : s->t.p.batch, heads, seq,
                dim);
    if (packed)
        t->stride_batch = t->stride_head = t->stride_seq = 0;
}

static int output_layout(void)
{
    return rng_chance(40) ? LAYOUT_PACKED : (int)rng_int(0, LAYOUT_NEGATIVE);
}

static void make_output(gradients_case *s, int which, attn_output *to, int dtype, int64_t heads,
                        int64_t seq, int64_t dim)
{
    const attn_params *p = &s->t.p;
    test_tensor t;
    make_tensor(s, which == ORACLE_DQ ? p->cu_seqlens_q : p->cu_seqlens_kv, &t, dtype,
                output_layout(), heads, seq, dim);
    *to = tensor_output(&t);
    s->out[which].memory = t.memory;
    s->out[which].bytes = t.bytes;
}

/* Packed, or the axes in any order and direction with gaps between. */
static void make_dbias(gradients_case *s, const oracle_gradient *size)
{
    attn_bias_gradient *to = &s->g.dbias;
    ptrdiff_t *const strides[] = { &to->stride_batch, &to->stride_head, &to->stride_q,
                                   &to->stride_kv };
    const int first = (int)rng_int(0, 3), packed = rng_chance(40);
    ptrdiff_t count = 1, start = 0;
    memset(to, 0, sizeof *to);
    for (int n = 0; n < 4; n++) {
        const int axis = packed ? 3 - n : (first + 3 * n) % 4;
        const ptrdiff_t length = (ptrdiff_t)size->size[axis];
        if (!packed) {
            *strides[axis] = rng_chance(25) ? -count : count;
            start += *strides[axis] < 0 ? count * (length - 1) : 0;
        }
        count = count * length + (packed ? 0 : (ptrdiff_t)rng_int(0, 2));
    }
    s->out[ORACLE_DBIAS].bytes = (size_t)count * sizeof(float);
    s->out[ORACLE_DBIAS].memory = test_alloc(s->out[ORACLE_DBIAS].bytes);
    to->data = (float *)(void *)s->out[ORACLE_DBIAS].memory + start;
}

/* A summed axis has a stride that nobody reads. */
static void spoil_summed(gradients_case *s)
{
    const attn_bias *bias = &s->t.p.bias;
    attn_bias_gradient *to = &s->g.dbias;
    const ptrdiff_t from[] = { bias->stride_batch, bias->stride_head, bias->stride_q,
                               bias->stride_kv };
    ptrdiff_t *const strides[] = { &to->stride_batch, &to->stride_head, &to->stride_q,
                                   &to->stride_kv };
    for (int axis = 0; axis < 4; axis++)
        if (from[axis] == ATTN_STRIDE_BROADCAST && rng_chance(50))
            *strides[axis] = 77777;
}

static float *make_list(gradients_case *s, int which, const oracle_gradient *size)
{
    const size_t bytes = (size_t)(size->size[0] * size->size[1]) * sizeof(float);
    s->out[which].memory = test_alloc(bytes);
    s->out[which].bytes = bytes;
    return (float *)(void *)s->out[which].memory;
}

void gradients_new_outputs(gradients_case *s, int dtype)
{
    const attn_params *p = &s->t.p;
    const int random = dtype < 0;
    oracle_gradient size[ORACLE_GRADIENTS];
    oracle_gradient_sizes(p, size);
    memset(s->out, 0, sizeof s->out);
    make_output(s, ORACLE_DQ, &s->g.dq, random ? random_dtype() : s->g.dq.dtype, p->num_heads_q,
                p->seq_len_q, p->head_dim);
    make_output(s, ORACLE_DK, &s->g.dk, random ? random_dtype() : s->g.dk.dtype, s->t.k.heads,
                p->seq_len_kv, p->head_dim);
    make_output(s, ORACLE_DV, &s->g.dv, random ? random_dtype() : s->g.dv.dtype, s->t.v.heads,
                p->seq_len_kv, s->t.v.dim);
    if (p->bias.data != NULL) {
        make_dbias(s, &size[ORACLE_DBIAS]);
        spoil_summed(s);
    }
    s->g.dsinks = p->sinks != NULL ? make_list(s, ORACLE_DSINKS, &size[ORACLE_DSINKS]) : NULL;
    s->g.dslopes =
        p->alibi_slopes != NULL ? make_list(s, ORACLE_DSLOPES, &size[ORACLE_DSLOPES]) : NULL;
}

void gradients_attach(gradients_case *s)
{
    const attn_params *p = &s->t.p;
    const test_tensor *o = &s->t.o;
    memset(&s->g, 0, sizeof s->g);
    make_tensor(s, p->cu_seqlens_q, &s->dout, random_dtype(), (int)rng_int(0, LAYOUT_NEGATIVE),
                o->heads, o->seq, o->dim);
    tensor_fill_normal(&s->dout, 1.0f);
    s->g.dout = tensor_input(&s->dout);
    /* packed as the lse is, with cu_seqlens, too */
    tensor_make(&s->dlse, ATTN_F32, output_layout(), o->batch, o->heads, o->seq, 1);
    tensor_fill_normal(&s->dlse, 1.0f);
    if (rng_chance(50))
        s->g.dlse = tensor_input(&s->dlse);
    if (p->score != NULL)
        s->g.score_derivative = features_score_derivative;
    gradients_new_outputs(s, -1);
}

void gradients_make(gradients_case *s, test_shape shape, const int *list, int count)
{
    memset(s, 0, sizeof *s);
    shape.stats = rng_aside(0, 3) != 0 ? STATS_ALWAYS : STATS_NEVER;
    features_make(&s->t, shape, list, count);
    if (shape.stats == STATS_ALWAYS && rng_aside(0, 2) == 0)
        memset(&s->t.p.lse, 0, sizeof s->t.p.lse);
    gradients_attach(s);
}

void gradients_twin(const gradients_case *a, gradients_case *b)
{
    *b = *a;
    gradients_new_outputs(b, 0);
}

static void own_tensor(test_tensor *t, const void **data)
{
    const test_tensor from = *t;
    t->memory = test_alloc(from.bytes);
    t->before = test_alloc_at(from.bytes, PLACE_HEAP);
    memcpy(t->memory, from.memory, from.bytes);
    memcpy(t->before, from.memory, from.bytes);
    t->data = t->memory + ((unsigned char *)from.data - from.memory);
    if (*data != NULL)
        *data = t->data;
}

static void own_output(test_tensor *t, attn_output *a)
{
    const void *data = a->data;
    own_tensor(t, &data);
    a->data = data != NULL ? t->data : NULL;
}

void gradients_own_inputs(gradients_case *s)
{
    own_tensor(&s->t.q, &s->t.p.q.data);
    own_tensor(&s->t.k, &s->t.p.k.data);
    own_tensor(&s->t.v, &s->t.p.v.data);
    own_output(&s->t.o, &s->t.p.o);
    own_output(&s->t.lse, &s->t.p.lse);
    own_output(&s->t.stats, &s->t.p.stats);
    own_tensor(&s->dout, &s->g.dout.data);
    own_tensor(&s->dlse, &s->g.dlse.data);
}

/* ---- the forward call ------------------------------------------------------------------------ */

static void spoil_row(test_tensor *t, int64_t b, int64_t s)
{
    for (int64_t h = 0; h < t->heads; h++)
        for (int64_t d = 0; d < t->dim; d++)
            tensor_set(t, b, h, s, d, NAN);
}

/* Rows first .. first + count - 1 but for those from `used` to `end` before they are not used. */
static void spoil_rows(test_tensor *t, const attn_params *p, int64_t b, int64_t token,
                       const int64_t range[3])
{
    const int varlen = p->cu_seqlens_q != NULL;
    if (!varlen && t->step_batch == 0 && t->batch > 1)
        return; /* another entry may use them */
    for (int64_t s = 0; s < range[2]; s++)
        if (s < range[0] || s >= range[1])
            spoil_row(t, varlen ? 0 : b, token + s);
}

/* What a cache does not use is NaN since it was made. */
static int is_cached(const attn_params *p)
{
    return p->kv_rows.ring > 0 || p->kv_rows.page_size > 0;
}

static void spoil_unused(gradients_case *s)
{
    const attn_params *p = &s->t.p;
    for (int64_t b = 0; b < p->batch; b++) {
        const int32_t *cu_q = p->cu_seqlens_q, *cu_kv = p->cu_seqlens_kv;
        const int64_t begin = p->kv_begin != NULL ? p->kv_begin[b] : 0;
        const int64_t q[] = { 0, oracle_rows(p, b), cu_q ? cu_q[b + 1] - cu_q[b] : p->seq_len_q };
        const int64_t kv[] = { begin, begin + oracle_keys(p, b),
                               cu_kv ? cu_kv[b + 1] - cu_kv[b] : p->seq_len_kv };
        spoil_rows(&s->t.q, p, b, cu_q ? cu_q[b] : 0, q);
        spoil_rows(&s->t.o, p, b, cu_q ? cu_q[b] : 0, q);
        spoil_rows(&s->t.lse, p, b, cu_q ? cu_q[b] : 0, q);
        spoil_rows(&s->t.stats, p, b, cu_q ? cu_q[b] : 0, q);
        spoil_rows(&s->dout, p, b, cu_q ? cu_q[b] : 0, q);
        spoil_rows(&s->dlse, p, b, cu_q ? cu_q[b] : 0, q);
        if (is_cached(p))
            continue;
        spoil_rows(&s->t.k, p, b, cu_kv ? cu_kv[b] : 0, kv);
        spoil_rows(&s->t.v, p, b, cu_kv ? cu_kv[b] : 0, kv);
    }
}

static void each_input(gradients_case *s, void (*function)(test_tensor *t))
{
    function(&s->t.q);
    function(&s->t.k);
    function(&s->t.v);
    function(&s->t.o);
    function(&s->t.lse);
    function(&s->t.stats);
    function(&s->dout);
    function(&s->dlse);
}

void gradients_remember(gradients_case *s)
{
    each_input(s, tensor_remember);
}

attn_params gradients_params(const attn_params *p)
{
    attn_params q = *p;
    if (q.impl == ATTN_IMPL_DEFAULT)
        q.impl = ATTN_IMPL_TILED;
    return test_params(&q);
}

int gradients_forward(gradients_case *s)
{
    const int impl = s->t.p.impl;
    int held;
    s->t.p.impl = ATTN_IMPL_TILED;
    held = problem_run(&s->t);
    s->t.p.impl = impl;
    spoil_unused(s);
    gradients_remember(s);
    return held;
}

/* ---- running --------------------------------------------------------------------------------- */

static attn_status run_in(const attn_params *p, const attn_gradients *g, size_t need)
{
    const size_t shift = test_variation() * 13u % 64;
    const int mark = test_mark();
    unsigned char *memory = test_alloc(need + shift);
    attn_status status;
    int filler_kept = 1;
    memset(memory, 0x5a, shift);
    status = attn_backward(p, g, memory + shift, need);
    for (size_t i = 0; i < shift; i++)
        filler_kept &= memory[i] == 0x5a;
    if (!filler_kept || test_margins() != 0)
        CHECK(0, "bytes beyond the ends of a buffer were written (workspace of %lu bytes)",
              (unsigned long)need);
    test_release_to(mark);
    return status;
}

attn_status backward_run(const attn_params *p, const attn_gradients *g)
{
    attn_params q = gradients_params(p);
    attn_gradients reworded = *g;
    size_t need = 0;
    attn_status status;
    test_reword(&q, &reworded);
    status = attn_backward_workspace_size(&q, &reworded, &need);
    return status == ATTN_OK ? run_in(&q, &reworded, need) : status;
}

attn_status backward_run_least(const attn_params *p, const attn_gradients *g)
{
    const attn_params q = gradients_params(p);
    char text[64];
    size_t least = 0, enough = 0;
    const attn_status status = attn_backward_workspace_size(&q, g, &enough);
    if (status != ATTN_OK)
        return status;
    while (least < enough) {
        const size_t middle = least + (enough - least) / 2;
        if (strcmp(attn_backward_check(&q, g, text, middle, text, sizeof text), "ok") == 0)
            enough = middle;
        else
            least = middle + 1;
    }
    return run_in(&q, g, least);
}

static int inputs_changed;

static void count_changed(test_tensor *t)
{
    inputs_changed += !tensor_unchanged(t);
}

/* ---- elements -------------------------------------------------------------------------------- */

void gradients_each(const oracle_gradient *of, void (*function)(void *user, const int64_t at[4]),
                    void *user)
{
    int64_t at[4];
    for (at[0] = 0; at[0] < of->size[0]; at[0]++)
        for (at[1] = 0; at[1] < of->size[1]; at[1]++)
            for (at[2] = 0; at[2] < of->size[2]; at[2]++)
                for (at[3] = 0; at[3] < of->size[3]; at[3]++)
                    function(user, at);
}

int gradients_get(const gradients_case *s, int which, const int64_t at[4], float *value)
{
    oracle_place place;
    if (!oracle_gradient_place(&s->t.p, &s->g, which, at, &place) || place.data == NULL)
        return 0;
    *value = dtype_load(place.dtype, (const unsigned char *)place.data +
                                         place.offset * (ptrdiff_t)dtype_size(place.dtype));
    return 1;
}

/* The block as it should be: 0xff but for the elements in use, carried over. */
typedef struct expected_block {
    const gradients_case *s;
    int which;
    unsigned char *bytes;
} expected_block;

static void carry_over(void *user, const int64_t at[4])
{
    const expected_block *e = user;
    const unsigned char *memory = e->s->out[e->which].memory, *from;
    oracle_place place;
    size_t size;
    if (!oracle_gradient_place(&e->s->t.p, &e->s->g, e->which, at, &place))
        return;
    size = dtype_size(place.dtype);
    from = (const unsigned char *)place.data + place.offset * (ptrdiff_t)size;
    memcpy(e->bytes + (from - memory), from, size);
}

static int only_elements_written(const gradients_case *s, int which)
{
    oracle_gradient size[ORACLE_GRADIENTS];
    expected_block e = { s, which, NULL };
    oracle_place place;
    const int64_t first[4] = { 0, 0, 0, 0 };
    int same = 1;
    oracle_gradient_sizes(&s->t.p, size);
    oracle_gradient_place(&s->t.p, &s->g, which, first, &place);
    if (s->out[which].memory == NULL)
        return 1;
    e.bytes = malloc(s->out[which].bytes + 1);
    if (e.bytes == NULL)
        return 0;
    memset(e.bytes, 0xff, s->out[which].bytes);
    if (place.data != NULL)
        gradients_each(&size[which], carry_over, &e);
    same = memcmp(e.bytes, s->out[which].memory, s->out[which].bytes) == 0;
    free(e.bytes);
    return same;
}

static int check_after(gradients_case *s, attn_status status)
{
    char text[300];
    int held = 1;
    const attn_params p = gradients_params(&s->t.p);
    if (status != ATTN_OK)
        return CHECK(0, "%s: %s", attn_status_string(status),
                     attn_backward_check(&p, &s->g, text, (size_t)-1, text, sizeof text));
    inputs_changed = 0;
    each_input(s, count_changed);
    if (inputs_changed != 0)
        held = CHECK(0, "%d input tensors were changed", inputs_changed);
    for (int n = 0; n < ORACLE_GRADIENTS; n++)
        if (!only_elements_written(s, n))
            held = CHECK(0, "%s was written outside its elements in use", oracle_gradient_name(n));
    return held && CHECK(held, "ran");
}

int gradients_run(gradients_case *s)
{
    return check_after(s, backward_run(&s->t.p, &s->g));
}

int gradients_run_least(gradients_case *s)
{
    return check_after(s, backward_run_least(&s->t.p, &s->g));
}

/* ---- comparing with the oracle --------------------------------------------------------------- */

typedef struct comparison {
    const gradients_case *s;
    const oracle_gradient *expected;
    int which;
    double worst, value, wanted;
    int64_t at[4], index;
} comparison;

static void compare(void *user, const int64_t at[4])
{
    comparison *c = user;
    const int64_t n = c->index++;
    const double expected = c->expected->value[n], tolerance = c->expected->tolerance[n];
    double value, units;
    oracle_place place;
    if (!oracle_gradient_place(&c->s->t.p, &c->s->g, c->which, at, &place))
        return;
    value = oracle_load(place.dtype, place.data, place.offset);
    units = tolerance_units(value, expected, tolerance);
    if (units > 0 && units < HUGE_VAL && place.dtype != ATTN_F32)
        units = fmax(0, units - oracle_storage_error(place.dtype, fabs(expected) + tolerance) /
                                    tolerance);
    if (!is_stored_form(place.dtype, place.data, place.offset))
        units = HUGE_VAL;
    if (!(units <= c->worst)) {
        c->worst = units;
        c->value = value, c->wanted = expected;
        memcpy(c->at, at, sizeof c->at);
    }
}

static double compare_one(const gradients_case *s, const oracle_gradient *expected, int which)
{
    const int64_t first[4] = { 0, 0, 0, 0 };
    oracle_place place;
    comparison c;
    memset(&c, 0, sizeof c);
    c.s = s, c.expected = expected, c.which = which;
    oracle_gradient_place(&s->t.p, &s->g, which, first, &place);
    if (place.data == NULL || expected->value == NULL)
        return 0;
    gradients_each(expected, compare, &c);
    CHECK(c.worst <= 1,
          "%s: %.3g times the tolerance at [%lld, %lld, %lld, %lld]: %.9g, expected "
          "%.9g",
          oracle_gradient_name(which), c.worst, (long long)c.at[0], (long long)c.at[1],
          (long long)c.at[2], (long long)c.at[3], c.value, c.wanted);
    worst_note(c.worst);
    return c.worst;
}

double gradients_check(const gradients_case *s, const oracle_gradient expected[ORACLE_GRADIENTS])
{
    double worst = 0;
    for (int n = 0; n < ORACLE_GRADIENTS; n++)
        worst = fmax(worst, compare_one(s, &expected[n], n));
    return worst;
}

double gradients_check_oracle(const gradients_case *s)
{
    oracle_gradient expected[ORACLE_GRADIENTS];
    double worst;
    if (oracle_backward(&s->t.p, &s->g, expected) != 0) {
        CHECK(0, "the oracle has no memory");
        return HUGE_VAL;
    }
    worst = gradients_check(s, expected);
    oracle_backward_free(expected);
    return worst;
}

/* ---- comparing bits -------------------------------------------------------------------------- */

typedef struct bit_comparison {
    const gradients_case *a, *b;
    int which;
    int64_t count;
    char *first;
} bit_comparison;

static void compare_bits(void *user, const int64_t at[4])
{
    bit_comparison *c = user;
    float x = 0, y = 0;
    if (gradients_get(c->a, c->which, at, &x) != gradients_get(c->b, c->which, at, &y))
        return; /* one of them was not asked for it */
    if (float_bits(x) == float_bits(y) || c->count++ > 0)
        return;
    snprintf(c->first, 200, "%s[%lld, %lld, %lld, %lld]: %.9g and %.9g",
             oracle_gradient_name(c->which), (long long)at[0], (long long)at[1], (long long)at[2],
             (long long)at[3], (double)x, (double)y);
}

int64_t gradients_differences(const gradients_case *a, const gradients_case *b, char first[200])
{
    oracle_gradient size[ORACLE_GRADIENTS], other[ORACLE_GRADIENTS];
    bit_comparison c = { a, b, 0, 0, first };
    oracle_gradient_sizes(&a->t.p, size);
    oracle_gradient_sizes(&b->t.p, other);
    for (c.which = 0; c.which < ORACLE_GRADIENTS; c.which++)
        if (memcmp(size[c.which].size, other[c.which].size, sizeof size[c.which].size) == 0)
            gradients_each(&size[c.which], compare_bits, &c);
    return c.count;
}

int gradients_same(const gradients_case *a, const gradients_case *b, const char *what)
{
    char first[200] = "";
    const int64_t count = gradients_differences(a, b, first);
    return CHECK(count == 0, "%s: %lld elements differ, first %s", what, (long long)count, first);
}
