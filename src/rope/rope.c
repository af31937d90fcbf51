/* src/rope/rope.c - rotary position embedding: every sentence about bad input, the public functions.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../rules.c"
#include "rows.c"

#define ROPE_MOST_DIM ((int64_t)1 << 24)
#define ROPE_MOST_POSITION ((int64_t)1 << 31)

static attn_status check_rope_dim(const attn_rope *r, int64_t head_dim, text *why)
{
    const int64_t dim = r->dim ? r->dim : head_dim;
    if (head_dim < 1)
        return bad_field(why, ATTN_ERR_ARG, "head_dim", head_dim, " must be at least 1");
    if (r->dim < 0)
        return bad_field(why, ATTN_ERR_ARG, "dim", r->dim, " must be 0 (head_dim) or more");
    if (r->dim > head_dim) {
        put_field(why, "dim", r->dim);
        put(why, " must be at most ");
        put_field(why, "head_dim", head_dim);
        return ATTN_ERR_ARG;
    }
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
    ptrdiff_t stride[4] = { 0, 0, 0, 1 };
    stride[2] = stride_or(r->table_stride, pairs);
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
    head_dim = r->dim ? r->dim : head_dim;
    if (r->cos || r->sin)
        return check_rope_table(r, head_dim / 2, why);
    return check_rope_computed(r, head_dim / 2, why);
}

/* The name is "x" or "y". check_rope_side works on a copy of *why, so that the name stands only
 * before a complaint. */
static attn_status check_rope_side(const char *name, int dtype, const void *data,
                                   const attn_rope_rows *r, const ptrdiff_t stride[4], text why)
{
    put(&why, name);
    if (dtype < ATTN_F32 || dtype > LAST_DTYPE)
        return bad_field(&why, ATTN_ERR_ARG, ".dtype", dtype, " must be an attn_dtype, 0 to 2");
    if (!data && r->batch && r->num_heads && r->seq_len)
        return bad(&why, ATTN_ERR_ARG, ".data is NULL");
    return check_extent("", (int64_t)bytes_of(dtype), r->batch, r->num_heads, r->seq_len,
                        r->head_dim, stride, &why);
}

static attn_status check_rope_sizes(const attn_rope_rows *r, text *why)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = { { "batch", r->batch }, { "num_heads", r->num_heads }, { "seq_len", r->seq_len } };
    int n;
    for (n = 0; n < COUNT_OF(sizes); n++)
        if (sizes[n].value < 0)
            return bad_field(why, ATTN_ERR_ARG, sizes[n].name, sizes[n].value,
                             " must be at least 0");
    return ATTN_OK;
}

/* check_rope_rows needs the strides of *r resolved, and those of y as the caller gave them in
 * *given. */
static attn_status check_rope_rows(const attn_rope_rows *r, const attn_output *given, text *why)
{
    const ptrdiff_t x[4] = { r->x.stride_batch, r->x.stride_head, r->x.stride_seq, 1 };
    const ptrdiff_t y[4] = { r->y.stride_batch, r->y.stride_head, r->y.stride_seq, 1 };
    const ptrdiff_t positions[4] = { r->positions_stride, 0, 1, 1 }, first[4] = { 1, 0, 0, 1 };
    attn_status status = check_rope_side("x", r->x.dtype, r->x.data, r, x, *why);
    if (!status)
        status = check_output_strides("y", given, why);
    if (!status)
        status = check_rope_side("y", r->y.dtype, r->y.data, r, y, *why);
    if (!status && r->positions && r->first)
        status = bad(why, ATTN_ERR_ARG, "positions and first: give one of them");
    if (!status && r->positions)
        status =
            check_extent("positions", sizeof(int64_t), r->batch, 1, r->seq_len, 1, positions, why);
    if (!status && r->first)
        status = check_extent("first", sizeof(int64_t), r->batch, 1, 1, 1, first, why);
    return status;
}

/* bad_position says "batch b, row i: position (p) rest". */
static attn_status bad_position(text *why, int64_t b, int64_t i, int64_t position, const char *rest)
{
    put(why, "batch ");
    put_int(why, b);
    put(why, ", row ");
    put_int(why, i);
    put(why, ": ");
    return bad_field(why, ATTN_ERR_ARG, "position", position, rest);
}

static attn_status check_rope_position(const attn_rope *r, int64_t b, int64_t i, int64_t position,
                                       text *why)
{
    if (position < -ROPE_MOST_POSITION || position > ROPE_MOST_POSITION)
        return bad_position(why, b, i, position, " must be from -2^31 to 2^31");
    if (!r->cos || (position >= 0 && position < r->num_positions))
        return ATTN_OK;
    bad_position(why, b, i, position, " must be at least 0 and below ");
    put_field(why, "num_positions", r->num_positions);
    return bad(why, ATTN_ERR_ARG, ", the rows of the table");
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

/* ------------------------------------------------------------------------------------------------
 * Public functions
 * --------------------------------------------------------------------------------------------- */

static attn_status check_job(rope_job *j, const attn_rope *rope, const attn_rope_rows *rows,
                             text *why)
{
    attn_status status;
    if (!rows)
        return bad(why, ATTN_ERR_ARG, "rows is NULL");
    status = check_rope(rope, rows->head_dim, why);
    if (!status)
        /* This comes before packed strides, which are products of the sizes. */
        status = check_rope_sizes(rows, why);
    if (status)
        return status;
    j->rope = rope;
    j->rows = *rows;
    j->dim = rope->dim ? rope->dim : rows->head_dim;
    RESOLVE_STRIDES(j->rows.x, 0, rows->num_heads, rows->seq_len, rows->head_dim);
    RESOLVE_STRIDES(j->rows.y, 0, rows->num_heads, rows->seq_len, rows->head_dim);
    j->rows.positions_stride = stride_or(rows->positions_stride, rows->seq_len);
    status = check_rope_rows(&j->rows, &rows->y, why);
    return status ? status : check_rope_positions(rope, &j->rows, why);
}

static void put_ok(char *why, size_t why_bytes)
{
    text t = text_in(why, why_bytes);
    put(&t, "ok");
}

ATTN_API attn_status attn_rope_apply(const attn_rope *rope, const attn_rope_rows *rows, char *why,
                                     size_t why_bytes)
{
    text sentence = text_in(why, why_bytes);
    rope_job j;
    const attn_status status = check_job(&j, rope, rows, &sentence);
    if (status)
        return status;
    j.kernels = attn_kernels_get(0);
    j.turn = best_turn();
    if (rows->batch && rows->num_heads && rows->seq_len)
        run_rows(&j);
    put_ok(why, why_bytes);
    return ATTN_OK;
}

static attn_status check_table_wanted(const attn_rope *rope, int64_t head_dim, int64_t first,
                                      int64_t count, const float *c, const float *s, text *why)
{
    static const ptrdiff_t packed[4] = { 0, 0, 0, 1 };
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
    if (count > ROPE_MOST_POSITION + 1 - first) {
        put_field(why, "first", first);
        put(why, " + ");
        return bad_field(why, ATTN_ERR_ARG, "count", count, " must be at most 2^31 + 1");
    }
    if (count && (!c || !s))
        return bad(why, ATTN_ERR_ARG, c ? "sin is NULL" : "cos is NULL");
    return check_extent("cos", sizeof(float), 1, 1, 1,
                        times(count, (rope->dim ? rope->dim : head_dim) / 2), packed, why);
}

ATTN_API attn_status attn_rope_table(const attn_rope *rope, int64_t head_dim, int64_t first,
                                     int64_t count, float *cos, float *sin, char *why,
                                     size_t why_bytes)
{
    text sentence = text_in(why, why_bytes);
    const attn_status status =
        check_table_wanted(rope, head_dim, first, count, cos, sin, &sentence);
    rope_source from;
    rope_block k;
    int64_t pair, i;
    if (status)
        return status;
    from = source_of(rope, rope->dim ? rope->dim : head_dim);
    for (pair = 0; pair < from.pairs && count; pair += ROPE_BLOCK) {
        begin_block(&k, &from, pair);
        for (i = 0; i < count; i++) {
            set_angles(&k, &from, first + i);
            memcpy(cos + i * from.pairs + pair, k.c, (size_t)k.n * sizeof *cos);
            memcpy(sin + i * from.pairs + pair, k.s, (size_t)k.n * sizeof *sin);
        }
    }
    put_ok(why, why_bytes);
    return ATTN_OK;
}
