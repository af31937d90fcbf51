/* src/rope/rope.c - rotary position embedding: every sentence about bad input, the public functions.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../overlap.c"
#include "rows.c"

#define ROPE_MOST_DIM ((int64_t)1 << 24)
#define ROPE_MOST_POSITION ((int64_t)1 << 31)

static int64_t rope_dim(const attn_rope *r, int64_t head_dim)
{
    return r->dim ? r->dim : head_dim;
}

static attn_status check_rope_dim(const attn_rope *r, int64_t head_dim, text *why)
{
    const int64_t dim = rope_dim(r, head_dim), values[] = { r->dim, head_dim };
    if (head_dim < 1)
        return bad_field(why, ATTN_ERR_ARG, "head_dim", head_dim, " must be at least 1");
    if (r->dim < 0)
        return bad_field(why, ATTN_ERR_ARG, "dim", r->dim, " must be 0 (head_dim) or more");
    if (r->dim > head_dim)
        return bad_numbers(why, ATTN_ERR_ARG, "dim (#) must be at most head_dim (#)", values);
    if (dim % 2 != 0)
        return bad_field(why, ATTN_ERR_ARG, r->dim ? "dim" : "head_dim", dim,
                         " must be even, or an even dim given: elements turn in pairs");
    if (dim > ROPE_MOST_DIM)
        return bad_field(why, ATTN_ERR_ARG, r->dim ? "dim" : "head_dim", dim,
                         " must be at most 16777216");
    return ATTN_OK;
}

/* A rope_number_rule says with which scalings a number of attn_rope may be other than 0, and in
 * what range. */
typedef struct rope_number_rule {
    const char *name;
    size_t offset; /* offset is that of a float. */
    /* scalings has a bit for each scaling with which the number means something. */
    unsigned scalings;
    float least;
    int above; /* Nonzero means that least itself is too small. */
    float most;
    const char *rest;
} rope_number_rule;

#define ROPE_WITH(scaling) (1u << (scaling))
#define ROPE_WITH_ANY (~0u)
#define ROPE_LARGEST 0x1.fffffep+127f
#define ROPE_NUMBER(field) #field, offsetof(attn_rope, field)

static const rope_number_rule number_rules[] = {
    { ROPE_NUMBER(base), ROPE_WITH_ANY, 1.0f, 1, ROPE_LARGEST,
      " must be 0 (10000) or above 1 and finite" },
    { ROPE_NUMBER(factor), ROPE_WITH_ANY & ~ROPE_WITH(ATTN_ROPE_NONE), 1.0f, 0, ROPE_LARGEST,
      " must be 0 (1) or at least 1 and finite" },
    { ROPE_NUMBER(beta_fast), ROPE_WITH(ATTN_ROPE_YARN), 1e-6f, 0, 1e6f,
      " must be 0 (32) or from 1e-6 to 1e6" },
    { ROPE_NUMBER(beta_slow), ROPE_WITH(ATTN_ROPE_YARN), 1e-6f, 0, 1e6f,
      " must be 0 (1) or from 1e-6 to 1e6" },
    { ROPE_NUMBER(low_freq_factor), ROPE_WITH(ATTN_ROPE_LLAMA3), 1e-6f, 0, 1e6f,
      " must be 0 (1) or from 1e-6 to 1e6" },
    { ROPE_NUMBER(high_freq_factor), ROPE_WITH(ATTN_ROPE_LLAMA3), 1e-6f, 0, 1e6f,
      " must be 0 (4) or from 1e-6 to 1e6" },
    { ROPE_NUMBER(attention_factor), ROPE_WITH_ANY, 0.0f, 1, ROPE_LARGEST,
      " must be 0 (the usual) or positive and finite" },
};

static attn_status check_rope_number(const attn_rope *r, const rope_number_rule *rule, text *why)
{
    float x;
    memcpy(&x, (const char *)r + rule->offset, sizeof x);
    if (x == 0)
        return ATTN_OK;
    if (!(rule->above ? x > rule->least : x >= rule->least) || !(x <= rule->most))
        return bad_number(why, rule->name, x, rule->rest);
    if (!(rule->scalings & ROPE_WITH(r->scaling)) && x != 1.0f) {
        bad_number(why, rule->name, x, " means nothing with ");
        put_field(why, "scaling", r->scaling);
        return ATTN_ERR_ARG;
    }
    return ATTN_OK;
}

/* YARN and LLAMA3 compare frequencies, which are up to 1 / (2 pi) turns before freq_factors divide
 * them, so those must keep them below a turn. The other scalings only need a factor that numbers of
 * 64 bits can be divided by. */
#define ROPE_LEAST_COMPARED 0.16f
#define ROPE_LEAST_DIVISOR 1e-6f

static attn_status check_rope_freq_factors(const attn_rope *r, int64_t pairs, text *why)
{
    const int compared = r->scaling == ATTN_ROPE_YARN || r->scaling == ATTN_ROPE_LLAMA3;
    const float least = compared ? ROPE_LEAST_COMPARED : ROPE_LEAST_DIVISOR;
    int64_t i;
    for (i = 0; r->freq_factors && i < pairs; i++)
        if (!(r->freq_factors[i] >= least && r->freq_factors[i] <= ROPE_LARGEST)) {
            put(why, "freq_factors[");
            put_int(why, i);
            return bad_number(why, "]", r->freq_factors[i],
                              compared ? " must be at least 0.16 with this scaling, and finite"
                                       : " must be at least 1e-6 and finite");
        }
    return ATTN_OK;
}

static attn_status bad_order(text *why, const char *low_name, float low, const char *high_name,
                             float high)
{
    bad_number(why, low_name, low, " must be below ");
    return bad_number(why, high_name, high, "");
}

/* check_rope_order checks what only YARN and LLAMA3 need. */
static attn_status check_rope_order(const attn_rope *r, text *why)
{
    const float low = or_default(r->low_freq_factor, 1.0f);
    const float high = or_default(r->high_freq_factor, 4.0f);
    const float slow = or_default(r->beta_slow, 1.0f), fast = or_default(r->beta_fast, 32.0f);
    if (r->scaling != ATTN_ROPE_YARN && r->scaling != ATTN_ROPE_LLAMA3)
        return ATTN_OK;
    if (r->original_length < 1 || r->original_length > ROPE_MOST_POSITION)
        return bad_field(why, ATTN_ERR_ARG, "original_length", r->original_length,
                         " must be from 1 to 2147483648 with this scaling");
    if (r->scaling == ATTN_ROPE_YARN)
        return slow < fast ? ATTN_OK : bad_order(why, "beta_slow", slow, "beta_fast", fast);
    if (!(low < high))
        return bad_order(why, "low_freq_factor", low, "high_freq_factor", high);
    if (high > (float)r->original_length * 0.5f)
        return bad_number(why, "high_freq_factor", high,
                          " must be at most half of original_length");
    return ATTN_OK;
}

static attn_status check_rope_computed(const attn_rope *r, int64_t pairs, text *why)
{
    attn_status status = ATTN_OK;
    int n;
    if (r->scaling < ATTN_ROPE_NONE || r->scaling > ATTN_ROPE_LLAMA3)
        return bad_field(why, ATTN_ERR_ARG, "scaling", r->scaling,
                         " must be an attn_rope_scaling, 0 to 4");
    for (n = 0; n < COUNT_OF(number_rules) && !status; n++)
        status = check_rope_number(r, &number_rules[n], why);
    if (!status)
        status = check_rope_order(r, why);
    return status ? status : check_rope_freq_factors(r, pairs, why);
}

static attn_status check_rope_table(const attn_rope *r, int64_t pairs, text *why)
{
    const ptrdiff_t stride[4] = { 0, 0, stride_or(r->table_stride, pairs), 1 };
    if (!r->cos || !r->sin)
        return bad(why, ATTN_ERR_ARG, "cos and sin: give both or neither");
    if (r->num_positions < 0)
        return bad_field(why, ATTN_ERR_ARG, "num_positions", r->num_positions,
                         " must be at least 0");
    return check_extent("cos", sizeof(float), 1, 1, r->num_positions, pairs, stride, why);
}

static attn_status check_rope(const attn_rope *r, int64_t head_dim, text *why)
{
    attn_status status;
    if (!r)
        return bad(why, ATTN_ERR_ARG, "rope is NULL");
    status = check_rope_dim(r, head_dim, why);
    if (status)
        return status;
    return r->cos || r->sin ? check_rope_table(r, rope_dim(r, head_dim) / 2, why)
                            : check_rope_computed(r, rope_dim(r, head_dim) / 2, why);
}

#define AT(member) offsetof(attn_rope_rows, member)

static const call_field rope_fields[] = {
    { VALUE(batch, F_INT64, BY_ALL, 0, INT64_MAX) },
    { VALUE(num_heads, F_INT64, BY_ALL, 0, INT64_MAX) },
    { VALUE(seq_len, F_INT64, BY_ALL, 0, INT64_MAX) },
    { LAYOUT },
    { DTYPE(x.dtype, BY_ALL) },
    { DTYPE(y.dtype, BY_ALL) },
    { TENSOR(x, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL) },
    { TENSOR(y, AXIS_BATCH, AXIS_HEAD, AXIS_ROW, AXIS_DIM, BY_ALL), .output = OUTPUT_RESULT },
    { GRID(positions, F_I64, BY_ALL, AXIS_BATCH, AXIS_NONE, AXIS_ROW, AXIS_NONE),
      .stride = { AT(positions_stride) } },
    { GRID(first, F_I64, BY_ALL, AXIS_BATCH, AXIS_NONE, AXIS_NONE, AXIS_NONE) },
};
#undef AT

static attn_status check_rope_pointers(const attn_rope_rows *r, text *why)
{
    if ((!r->x.data || !r->y.data) && r->batch && r->num_heads && r->seq_len)
        return bad(why, ATTN_ERR_ARG, r->x.data ? "y.data is NULL" : "x.data is NULL");
    if (r->positions && r->first)
        return bad(why, ATTN_ERR_ARG, "positions and first: give one of them");
    return ATTN_OK;
}

static call_axes axes_of_turn(const attn_rope_rows *r)
{
    const call_axes x = { .count = { [AXIS_NONE] = 1,
                                     [AXIS_BATCH] = r->batch,
                                     [AXIS_HEAD] = r->num_heads,
                                     [AXIS_ROW] = r->seq_len,
                                     [AXIS_DIM] = r->head_dim },
                          .layout = r->layout };
    return x;
}

/* resolve_rope_rows gives *r its strides, or *why says what is wrong with it. */
static attn_status resolve_rope_rows(attn_rope_rows *r, text *why)
{
    const call_axes x = axes_of_turn(r);
    const int n = COUNT_OF(rope_fields);
    attn_status status = check_values(rope_fields, n, r, why);
    status = status ? status : check_output_fields(rope_fields, n, r, why);
    status = status ? status : check_rope_pointers(r, why);
    return status ? status : resolve_arrays(rope_fields, n, r, &x, why);
}

static attn_status check_rope_position(const attn_rope *r, int64_t b, int64_t i, int64_t position,
                                       text *why)
{
    const int64_t values[] = { b, i, position, r->num_positions };
    if (position < -ROPE_MOST_POSITION || position > ROPE_MOST_POSITION)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "batch #, row #: position (#) must be from -2^31 to 2^31", values);
    if (!r->cos || (position >= 0 && position < r->num_positions))
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "batch #, row #: position (#) must be at least 0 and below "
                       "num_positions (#), the rows of the table",
                       values);
}

/* positioned_entries counts the batch entries that may have positions of their own: one where all
 * share them. */
static int64_t positioned_entries(const attn_rope_rows *r)
{
    const int shared = r->positions ? r->positions_stride == 0 : !r->first;
    return shared ? min64(r->batch, 1) : r->batch;
}

/* check_rope_positions also looks where there are no heads to turn, as nothing but positions bounds
 * batch and seq_len then. Without an array it is enough to look at the first and last row of a
 * batch entry; of 2^32 + 2 rows one has a position that is refused. */
static attn_status check_rope_positions(const attn_rope *rope, const attn_rope_rows *r, text *why)
{
    const int64_t most = r->positions ? INT64_MAX : 2 * ROPE_MOST_POSITION + 1;
    const int64_t last = min64(r->seq_len - 1, most);
    const int64_t step = r->positions ? 1 : max64(last, 1);
    attn_status status = ATTN_OK;
    int64_t b, i;
    for (b = 0; r->seq_len && b < positioned_entries(r) && !status; b++) {
        if (r->first && (r->first[b] < -ROPE_MOST_POSITION || r->first[b] > ROPE_MOST_POSITION))
            return bad_entry(why, "first", b, r->first[b], " must be from -2^31 to 2^31");
        for (i = 0; i <= last && !status; i += step)
            status = check_rope_position(rope, b, i, position_of(r, b, i), why);
    }
    return status;
}

/* ---- public functions */

#define AT(member) offsetof(attn_rope, member)

static const call_field angle_fields[] = {
    { GRID(cos, F_F32, BY_ALL, AXIS_NONE, AXIS_NONE, AXIS_ROW, AXIS_DIM),
      .stride = { [2] = AT(table_stride) } },
    { GRID(sin, F_F32, BY_ALL, AXIS_NONE, AXIS_NONE, AXIS_ROW, AXIS_DIM),
      .stride = { [2] = AT(table_stride) } },
    { GRID(freq_factors, F_F32, BY_ALL, AXIS_NONE, AXIS_NONE, AXIS_NONE, AXIS_DIM) },
};
#undef AT

/* angles_of gives the arrays that *r reads; it resolves strides, and drops what a table replaces. */
static array_set angles_of(attn_rope *r, int64_t head_dim, call_axes *x)
{
    const int64_t pairs = rope_dim(r, head_dim) / 2;
    const call_axes axes = {
        .count = { [AXIS_NONE] = 1, [AXIS_ROW] = r->num_positions, [AXIS_DIM] = pairs }
    };
    const array_set s = { .table = angle_fields, .n = COUNT_OF(angle_fields), .base = r, .x = x };
    *x = axes;
    r->table_stride = stride_or(r->table_stride, pairs);
    if (r->cos)
        r->freq_factors = NULL;
    return s;
}

/* check_rope_apart lets rows turn in place: equal data, strides and type. */
static attn_status check_rope_apart(const attn_rope *rope, const attn_rope_rows *resolved,
                                    text *why)
{
    attn_rope angles = *rope;
    attn_rope_rows r = *resolved;
    const call_axes x = axes_of_turn(&r);
    call_axes of_angles;
    const array_set sets[] = {
        { rope_fields, COUNT_OF(rope_fields), &r, &x, .written = OUTPUT_RESULT },
        angles_of(&angles, r.head_dim, &of_angles),
    };
    if (r.x.data == r.y.data && r.x.dtype == r.y.dtype && r.x.stride_batch == r.y.stride_batch &&
        r.x.stride_head == r.y.stride_head && r.x.stride_seq == r.y.stride_seq)
        r.x.data = NULL;
    return check_written(sets, 2, NULL, why);
}

/* apply_rope takes rows with their strides resolved. */
static void apply_rope(const attn_rope *rope, const attn_rope_rows *resolved)
{
    const rope_job j = { rope, *resolved, rope_dim(rope, resolved->head_dim), attn_kernels_get(0),
                         best_turn() };
    if (resolved->batch && resolved->num_heads && resolved->seq_len)
        run_rows(&j);
}

static attn_status check_rope_call(const attn_rope *rope, attn_rope_rows *rows, text *why)
{
    attn_status status = check_rope(rope, rows->head_dim, why);
    status = status ? status : resolve_rope_rows(rows, why);
    status = status ? status : check_rope_apart(rope, rows, why);
    return status ? status : check_rope_positions(rope, rows, why);
}

ATTN_API attn_status attn_rope_apply(const attn_rope *rope, const attn_rope_rows *rows,
                                     char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_rope_rows resolved;
    attn_status status;
    if (!rows)
        return bad(&why, ATTN_ERR_ARG, "rows is NULL");
    resolved = *rows;
    status = check_rope_call(rope, &resolved, &why);
    if (!status)
        apply_rope(rope, &resolved);
    return done(status, &why);
}

static attn_status check_table_wanted(const attn_rope *rope, int64_t head_dim, int64_t first,
                                      int64_t count, const float *c, const float *s, text *why)
{
    static const ptrdiff_t packed[4] = { 0, 0, 0, 1 };
    const int64_t values[] = { first, count };
    const attn_status status = check_rope(rope, head_dim, why);
    if (status)
        return status;
    if (rope->cos)
        return bad(why, ATTN_ERR_ARG,
                   "rope has a table: to compute one, set its cos and sin to NULL");
    if (count < 0)
        return bad_field(why, ATTN_ERR_ARG, "count", count, " must be at least 0");
    if (first < -ROPE_MOST_POSITION || first > ROPE_MOST_POSITION)
        return bad_field(why, ATTN_ERR_ARG, "first", first, " must be from -2^31 to 2^31");
    if (count > ROPE_MOST_POSITION + 1 - first)
        return bad_numbers(why, ATTN_ERR_ARG, "first (#) + count (#) must be at most 2^31 + 1",
                           values);
    if (count && (!c || !s))
        return bad(why, ATTN_ERR_ARG, c ? "sin is NULL" : "cos is NULL");
    return check_extent("cos", sizeof(float), 1, 1, 1, times(count, rope_dim(rope, head_dim) / 2),
                        packed, why);
}

/* check_table_apart is about the tables that attn_rope_table writes. */
static attn_status check_table_apart(const attn_rope *rope, int64_t head_dim, int64_t count,
                                     const float *c, const float *s, text *why)
{
    const int64_t bytes = count * (rope_dim(rope, head_dim) / 2) * (int64_t)sizeof *c;
    const area a = area_of_bytes("cos", c, bytes), b = area_of_bytes("sin", s, bytes);
    attn_rope angles = *rope;
    call_axes x;
    const array_set set = angles_of(&angles, head_dim, &x);
    attn_status status = check_pair(&a, &b, why);
    status = status ? status : check_written(&set, 1, &a, why);
    return status ? status : check_written(&set, 1, &b, why);
}

ATTN_API attn_status attn_rope_table(const attn_rope *rope, int64_t head_dim, int64_t first,
                                     int64_t count, float *cos, float *sin, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_table_wanted(rope, head_dim, first, count, cos, sin, &why);
    rope_source from;
    rope_block k;
    int64_t pair, i;
    status = status ? status : check_table_apart(rope, head_dim, count, cos, sin, &why);
    if (status)
        return status;
    from = source_of(rope, rope_dim(rope, head_dim));
    for (pair = 0; pair < from.pairs && count; pair += ROPE_BLOCK) {
        begin_block(&k, &from, pair);
        for (i = 0; i < count; i++) {
            set_angles(&k, &from, first + i);
            memcpy(cos + i * from.pairs + pair, k.c, (size_t)k.n * sizeof *cos);
            memcpy(sin + i * from.pairs + pair, k.s, (size_t)k.n * sizeof *sin);
        }
    }
    return done(ATTN_OK, &why);
}
