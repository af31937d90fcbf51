/* operators_ort.c - operators of onnxruntime (domain com.microsoft) as calls of the library:
 * GroupQueryAttention and MultiHeadAttention.
 * SPDX-License-Identifier: MIT
 */
#include "cases.h"

#include <string.h>

/* ---- shared ---------------------------------------------------------------------------------- */

/* Heads first .. first+count-1 of a view. */
static case_view some_heads(const case_view *v, int64_t first, int64_t count)
{
    case_view part = *v;
    part.heads = count;
    part.data = (const unsigned char *)v->data +
                (size_t)(first * v->stride_head) * case_types[v->type].size;
    return part;
}

/* attention_bias [batch or 1, heads or 1, queries, keys]. */
static int set_attention_bias(test_case *c, case_call *a)
{
    const case_tensor *bias = case_input(c, "attention_bias");
    if (bias != NULL && (bias->rank != 4 || bias->type == BOOL || bias->dim[3] != a->keys))
        return case_fail(c, "attention_bias must be numbers [batch, heads, queries, %lld]",
                         (long long)a->keys);
    return case_set_mask(c, a, bias);
}

/* ---- GroupQueryAttention --------------------------------------------------------------------- */

/* query, key, value; without the latter two query holds the heads of all three. */
static int set_heads(test_case *c, case_call *a)
{
    const int64_t heads_q = case_integer(c, "num_heads", 0);
    const int64_t heads_kv = case_integer(c, "kv_num_heads", 0);
    const case_tensor *q = case_input(c, "query"), *k = case_input(c, "key");
    const case_tensor *v = case_input(c, "value");
    case_view all;
    if (q == NULL || q->rank != 3 || heads_q < 1 || heads_kv < 1)
        return case_fail(c, "query of rank 3, num_heads or kv_num_heads is missing");
    if ((k == NULL) != (v == NULL))
        return case_fail(c, "key and value must be given together");
    if (k != NULL)
        return case_view_of(c, q, heads_q, &a->q) && case_view_of(c, k, heads_kv, &a->k) &&
               case_view_of(c, v, heads_kv, &a->v);
    if (!case_view_of(c, q, heads_q + 2 * heads_kv, &all))
        return 0;
    a->q = some_heads(&all, 0, heads_q);
    a->k = some_heads(&all, heads_q, heads_kv);
    a->v = some_heads(&all, heads_q + heads_kv, heads_kv);
    return 1;
}

static int check_lengths(test_case *c, const case_call *a, const case_tensor *ends,
                         const case_tensor *total)
{
    if (ends == NULL || ends->type != I32 || ends->count != a->q.batch)
        return case_fail(c, "seqlens_k must be i32, one a batch entry");
    if (total == NULL || total->type != I32 || total->count != 1)
        return case_fail(c, "total_sequence_length must be one i32");
    if (a->k.seq != a->q.seq)
        return case_fail(c, "%lld queries and %lld keys", (long long)a->q.seq, (long long)a->k.seq);
    return 1;
}

/* Entry b has seqlens_k[b] + 1 keys, of which the last ones are new. A prompt that is shorter than
 * the others is padded at its end: its rows beyond are not used. */
static int set_lengths(test_case *c, case_call *a)
{
    const case_tensor *ends = case_input(c, "seqlens_k");
    const case_tensor *total = case_input(c, "total_sequence_length");
    const size_t bytes = (size_t)a->q.batch * sizeof(int32_t);
    int32_t *past = test_alloc(bytes), *rows = test_alloc(bytes);
    int padded = 0;
    if (!check_lengths(c, a, ends, total))
        return 0;
    a->keys = *(const int32_t *)total->data;
    for (int64_t b = 0; b < a->q.batch; b++) {
        const int64_t length = ((const int32_t *)ends->data)[b] + (int64_t)1;
        const int64_t before = length > a->q.seq ? length - a->q.seq : 0;
        if (length < 0 || length > a->keys || before > a->past_k.seq)
            return case_fail(c, "seqlens_k[%lld] is %lld, of %lld keys with a past of %lld",
                             (long long)b, (long long)length - 1, (long long)a->keys,
                             (long long)a->past_k.seq);
        past[b] = (int32_t)before;
        rows[b] = (int32_t)(length - before);
        padded = padded || rows[b] < a->q.seq;
    }
    a->past_len = past;
    a->new_len = rows;
    a->p.q_len = padded ? rows : NULL;
    a->p.seq_len_kv = a->keys;
    a->present_rows = a->keys > a->past_k.seq ? a->keys : a->past_k.seq;
    return 1;
}

/* position_ids of the first prompt: only their first number counts. */
static int set_positions(test_case *c, case_call *a)
{
    const case_tensor *ids = case_input(c, "position_ids");
    const int first_prompt = a->q.seq == a->keys;
    int64_t *positions;
    if (ids == NULL)
        return 1;
    if (ids->type != I64 || ids->rank != 2 || ids->dim[0] != a->q.batch || ids->dim[1] != a->q.seq)
        return case_fail(c, "position_ids must be i64 [batch, sequence]");
    positions = test_alloc((size_t)ids->count * sizeof *positions);
    for (int64_t i = 0; i < ids->count; i++)
        positions[i] = first_prompt ? ((const int64_t *)ids->data)[0] + i % a->q.seq
                                    : ((const int64_t *)ids->data)[i];
    a->positions = positions;
    return 1;
}

/* Queries are turned here, keys when the cache takes them. */
static int turn_queries(test_case *c, case_call *a)
{
    char why[CASE_WHY] = "";
    attn_rope_rows rows = { 0 };
    int64_t *first = test_alloc((size_t)a->q.batch * sizeof *first);
    for (int64_t b = 0; b < a->q.batch; b++)
        first[b] = a->past_len[b];
    rows.batch = a->q.batch;
    rows.num_heads = a->q.heads;
    rows.seq_len = a->q.seq;
    rows.head_dim = a->q.dim;
    rows.x = a->p.q;
    rows.positions = a->positions;
    rows.first = a->positions != NULL ? NULL : first;
    rows.y.data =
        test_alloc((size_t)(a->q.batch * a->q.heads * a->q.seq * a->q.dim) * sizeof(float));
    memset(&a->p.q, 0, sizeof a->p.q);
    a->p.q.data = rows.y.data;
    return case_status(c, attn_rope_apply(a->rope, &rows, why, sizeof why), why);
}

static int set_rotary(test_case *c, case_call *a, attn_rope *rope)
{
    const case_tensor *cosines = case_input(c, "cos_cache"), *sines = case_input(c, "sin_cache");
    rope->interleaved = case_integer(c, "rotary_interleaved", 0) != 0;
    if (!set_positions(c, a))
        return 0;
    if (case_integer(c, "do_rotary", 0) == 0) {
        a->positions = NULL; /* they mean nothing else */
        return 1;
    }
    if (cosines == NULL || sines == NULL || cosines->rank != 2 ||
        !case_has_shape(c, sines, 2, cosines->dim))
        return case_fail(c, "cos_cache and sin_cache must both be [position, dim/2]");
    rope->dim = 2 * cosines->dim[1];
    rope->num_positions = cosines->dim[0];
    rope->cos = case_floats(c, cosines);
    rope->sin = case_floats(c, sines);
    a->rope = rope;
    return rope->cos != NULL && rope->sin != NULL && turn_queries(c, a);
}

/* local_window_size counts the query's own key. */
static int set_window(test_case *c, case_call *a)
{
    const int64_t size = case_integer(c, "local_window_size", -1);
    if (size == -1)
        return 1;
    a->p.window = ATTN_WINDOW;
    a->p.window_left = size - 1;
    return size > 0 || case_fail(c, "local_window_size is %lld", (long long)size);
}

/* One more term in the denominator; head_sink says which, smooth_softmax 0. */
static int set_sink(test_case *c, case_call *a)
{
    const case_tensor *sink = case_input(c, "head_sink");
    const int64_t smooth = case_integer(c, "smooth_softmax", 0);
    a->p.softmax1 = sink == NULL && smooth == 1;
    if (sink == NULL)
        return 1;
    a->p.sinks = case_floats(c, sink);
    return a->p.sinks != NULL && case_has_shape(c, sink, 1, &a->q.heads);
}

/* output_qk: 1 before the softmax, where onnxruntime has 0 for hidden keys, 2 after it. */
static int set_logits(test_case *c, case_call *a)
{
    const int64_t mode = case_integer(c, "qk_output", 0);
    a->logits = case_output(c, "output_qk");
    a->stage = mode == 1 ? ATTN_LOGITS_BIAS : ATTN_LOGITS_SOFTMAX;
    if (mode < 0 || mode > 2 || (mode == 0 && a->logits != NULL))
        return case_fail(c, "qk_output is %lld", (long long)mode);
    return 1;
}

static int is_hidden(const case_call *a, int64_t b, int64_t i, int64_t j)
{
    const int64_t at = a->past_len[b] + i;
    return j >= a->past_len[b] + a->new_len[b] || (a->p.causal && j > at) ||
           (a->p.window && (j > at || j < at - a->p.window_left));
}

static void clear_hidden(const case_call *a, float *logits)
{
    for (int64_t b = 0; b < a->q.batch; b++)
        for (int64_t h = 0; h < a->q.heads; h++)
            for (int64_t i = 0; i < a->new_len[b]; i++)
                for (int64_t j = 0; j < a->keys; j++)
                    if (is_hidden(a, b, i, j))
                        logits[((b * a->q.heads + h) * a->q.seq + i) * a->keys + j] = 0;
}

int case_run_group_query(test_case *c)
{
    case_call a = { 0 };
    case_results r;
    attn_rope rope = { 0 };
    const double softcap = case_number(c, "softcap", 0);
    a.y = case_output(c, "output");
    a.present_k = case_output(c, "present_key");
    a.present_v = case_output(c, "present_value");
    if (!set_heads(c, &a) || !case_set_past(c, &a, "past_key", "past_value") ||
        !case_open_call(c, &a) || !set_lengths(c, &a))
        return 0;
    a.cached = 1;
    a.p.causal = case_integer(c, "causal", 1) != 0;
    a.p.scale = (float)case_number(c, "scale", 0);
    a.p.softcap = softcap > 0 ? (float)softcap : 0;
    if (!set_rotary(c, &a, &rope) || !set_window(c, &a) || !set_sink(c, &a) || !set_logits(c, &a) ||
        !set_attention_bias(c, &a) || !case_all_known(c) || !case_compute(c, &a, &r))
        return 0;
    if (a.logits != NULL)
        clear_hidden(&a, r.logits);
    return case_compare_results(c, &a, &r);
}

/* ---- MultiHeadAttention ---------------------------------------------------------------------- */

/* Part `part` of the `parts` that lie side by side in a tensor [batch, seq, heads, parts, dim]. */
static int packed_part(test_case *c, const case_tensor *t, int64_t parts, int64_t part,
                       case_view *v)
{
    memset(v, 0, sizeof *v);
    if (t->rank != 5 || t->dim[3] != parts || (t->type != F16 && t->type != F32))
        return case_fail(c, "%s must be packed [batch, sequence, heads, %lld, size]", t->name,
                         (long long)parts);
    v->type = t->type;
    v->batch = t->dim[0], v->seq = t->dim[1], v->heads = t->dim[2], v->dim = t->dim[4];
    v->stride_head = (ptrdiff_t)(parts * v->dim);
    v->stride_seq = v->stride_head * (ptrdiff_t)v->heads;
    v->stride_batch = v->stride_seq * (ptrdiff_t)v->seq;
    v->data = (const unsigned char *)t->data + (size_t)(part * v->dim) * case_types[t->type].size;
    return 1;
}

/* Queries, keys and values apart, keys and values in one tensor, or all three. */
static int set_parts(test_case *c, case_call *a, int64_t heads, const case_tensor *q)
{
    const case_tensor *k = case_input(c, "key"), *v = case_input(c, "value");
    if (k == NULL && v == NULL)
        return packed_part(c, q, 3, 0, &a->q) && packed_part(c, q, 3, 1, &a->k) &&
               packed_part(c, q, 3, 2, &a->v);
    if (k == NULL)
        return case_fail(c, "value without key");
    if (!case_view_of(c, q, heads, &a->q))
        return 0;
    if (v == NULL)
        return packed_part(c, k, 2, 0, &a->k) && packed_part(c, k, 2, 1, &a->v);
    return case_view_of(c, k, heads, &a->k) && case_view_of(c, v, heads, &a->v);
}

static int open_parts(test_case *c, case_call *a)
{
    const int64_t heads = case_integer(c, "num_heads", 0);
    const case_tensor *q = case_input(c, "query");
    if (q == NULL || heads < 1)
        return case_fail(c, "query or num_heads is missing");
    if (!set_parts(c, a, heads, q))
        return 0;
    return (a->q.heads == heads && a->k.heads == heads && a->v.heads == heads) ||
           case_fail(c, "a tensor does not have num_heads heads");
}

/* *v + numbers[head * dim + d], as a packed tensor of the same type. */
static void add_to(case_view *v, const float *numbers)
{
    const size_t size = case_types[v->type].size;
    unsigned char *sum = test_alloc((size_t)(v->batch * v->heads * v->seq * v->dim) * size);
    unsigned char *at = sum;
    for (int64_t b = 0; b < v->batch; b++)
        for (int64_t h = 0; h < v->heads; h++)
            for (int64_t s = 0; s < v->seq; s++)
                for (int64_t d = 0; d < v->dim; d++, at += size)
                    dtype_store(case_view_input(v).dtype, at,
                                numbers[h * v->dim + d] +
                                    case_view_at(v, b * v->stride_batch + h * v->stride_head +
                                                        s * v->stride_seq + d));
    v->data = sum;
    v->stride_seq = (ptrdiff_t)v->dim;
    v->stride_head = v->stride_seq * (ptrdiff_t)v->seq;
    v->stride_batch = v->stride_head * (ptrdiff_t)v->heads;
}

/* Input `bias`, of the projection that made queries, keys and values: one row of all three. */
static int add_projection_bias(test_case *c, case_call *a)
{
    const case_tensor *bias = case_input(c, "bias");
    const int64_t wide = a->q.heads * a->q.dim;
    const int64_t count = 2 * wide + a->v.heads * a->v.dim;
    const float *numbers;
    if (bias == NULL)
        return 1;
    numbers = case_floats(c, bias);
    if (numbers == NULL || !case_has_shape(c, bias, 1, &count))
        return 0;
    add_to(&a->q, numbers);
    add_to(&a->k, numbers + wide);
    add_to(&a->v, numbers + 2 * wide);
    return 1;
}

/* What key_padding_mask says of a key: lengths [batch], lengths before the starts of packed
 * sequences [3 * batch + 2], or 0 = padding as [batch, keys] or [batch, queries, keys]. */
static int is_padding(const case_call *a, const case_tensor *m, int64_t b, int64_t i, int64_t j)
{
    const int32_t *numbers = m->data;
    if (m->rank == 1)
        return j >= numbers[b];
    return numbers[(m->rank == 2 ? b : b * a->q.seq + i) * a->keys + j] <= 0;
}

static int check_padding(test_case *c, const case_call *a, const case_tensor *m)
{
    const int64_t batch = a->q.batch;
    const int held =
        m->type == I32 &&
        ((m->rank == 1 && (m->dim[0] == batch || m->dim[0] == 3 * batch + 2)) ||
         (m->rank == 2 && m->dim[0] == batch && m->dim[1] == a->keys) ||
         (m->rank == 3 && m->dim[0] == batch && m->dim[1] == a->q.seq && m->dim[2] == a->keys));
    return held || case_fail(c,
                             "key_padding_mask of rank %d has another shape or type than "
                             "the others give",
                             m->rank);
}

static float bias_at(const attn_bias *bias, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t at = b * step_of(bias->stride_batch) + h * step_of(bias->stride_head) +
                       i * step_of(bias->stride_q) + j * step_of(bias->stride_kv);
    return bias->data == NULL ? 0
                              : dtype_load(bias->dtype, (const unsigned char *)bias->data +
                                                            (size_t)at * dtype_size(bias->dtype));
}

/* Padding adds mask_filter_value, a number like any other, to what attention_bias adds. */
static int set_padding(test_case *c, case_call *a)
{
    const case_tensor *m = case_input(c, "key_padding_mask");
    const float filter = (float)case_number(c, "mask_filter_value", -10000);
    const attn_bias old = a->p.bias;
    const int64_t rows = a->q.seq, keys = a->keys, heads = a->q.heads;
    float *sum, *at;
    if (m == NULL)
        return 1;
    if (!check_padding(c, a, m))
        return 0;
    sum = at = test_alloc((size_t)(a->q.batch * heads * rows * keys) * sizeof *sum);
    for (int64_t b = 0; b < a->q.batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < keys; j++)
                    *at++ = bias_at(&old, b, h, i, j) + (is_padding(a, m, b, i, j) ? filter : 0);
    a->p.bias = (attn_bias){
        ATTN_F32, (ptrdiff_t)(heads * rows * keys), (ptrdiff_t)(rows * keys), (ptrdiff_t)keys, 1,
        sum
    };
    return 1;
}

int case_run_multi_head(test_case *c)
{
    case_call a = { 0 };
    case_results r;
    a.y = case_output(c, "output");
    a.present_k = case_output(c, "present_key");
    a.present_v = case_output(c, "present_value");
    a.logits = case_output(c, "qk");
    a.stage = ATTN_LOGITS_BIAS;
    if (!open_parts(c, &a) || !add_projection_bias(c, &a) ||
        !case_set_past(c, &a, "past_key", "past_value") || !case_open_call(c, &a))
        return 0;
    case_set_offset(&a, a.past_k.seq);
    a.p.causal = case_integer(c, "unidirectional", 0) != 0;
    a.p.scale = (float)case_number(c, "scale", 0);
    return set_attention_bias(c, &a) && set_padding(c, &a) && case_all_known(c) &&
           case_compute(c, &a, &r) && case_compare_results(c, &a, &r);
}
