/* operators.c - the operators of ONNX and of the textbook as calls of the library.
 * SPDX-License-Identifier: MIT
 *
 * Attention, RotaryEmbedding, TensorScatter (ONNX), FlexAttention (ONNX preview) and SdpaGrad (the
 * textbook formula; its forward outputs).
 */
#include "cases.h"

#include <string.h>

/* ---- Attention ------------------------------------------------------------------------------- */

static int open_call(test_case *c, case_call *a, int64_t heads_q, int64_t heads_kv)
{
    const case_tensor *q = case_input(c, "Q"), *k = case_input(c, "K"), *v = case_input(c, "V");
    if (q == NULL || k == NULL || v == NULL)
        return case_fail(c, "one of Q, K, V is missing");
    if (!case_view_of(c, q, heads_q, &a->q) || !case_view_of(c, k, heads_kv, &a->k) ||
        !case_view_of(c, v, heads_kv, &a->v) || !case_set_past(c, a, "past_key", "past_value") ||
        !case_open_call(c, a))
        return 0;
    if ((heads_q > 0 && a->q.heads != heads_q) || (heads_kv > 0 && a->k.heads != heads_kv))
        return case_fail(c, "the numbers of heads do not fit the shapes");
    return 1;
}

/* A scale of 0 asks for all logits 0; to the library 0 means the default, so q becomes 0. */
static void set_scale(test_case *c, case_call *a)
{
    if (case_text(c, "scale", NULL) == NULL)
        return;
    a->p.scale = (float)case_number(c, "scale", 0);
    if (a->p.scale != 0)
        return;
    a->p.q.data = memset(test_alloc((size_t)a->q.dim * 4), 0, (size_t)a->q.dim * 4);
    a->p.q.stride_batch = a->p.q.stride_head = a->p.q.stride_seq = ATTN_STRIDE_BROADCAST;
}

/* Keys in use and the position of the first query of each batch entry. */
static int set_lengths(test_case *c, case_call *a)
{
    const case_tensor *nonpad = case_input(c, "nonpad_kv_seqlen");
    const size_t bytes = (size_t)a->q.batch * sizeof(int32_t);
    int32_t *keys = test_alloc(bytes), *offset = test_alloc(bytes);
    const int64_t limit = a->mask_keys >= 0 ? a->mask_keys : a->keys;
    const int has_past = a->past_k.data != NULL;
    if (nonpad != NULL && (nonpad->type != I64 || nonpad->count != a->q.batch))
        return case_fail(c, "nonpad_kv_seqlen must be i64, one a batch entry");
    for (int64_t b = 0; b < a->q.batch; b++) {
        int64_t length = nonpad != NULL ? ((const int64_t *)nonpad->data)[b] : a->keys;
        if (length < -INT32_MAX / 2 || length > INT32_MAX / 2)
            return case_fail(c, "nonpad_kv_seqlen[%lld] is out of range", (long long)b);
        offset[b] = (int32_t)(has_past || nonpad == NULL ? a->past_k.seq : length - a->q.seq);
        length = length < limit ? length : limit;
        keys[b] = (int32_t)(length > 0 ? length : 0);
    }
    a->limit = nonpad != NULL || a->mask_keys >= 0 ? keys : NULL;
    a->p.q_offset = offset;
    a->p.alignment = ATTN_ALIGN_OFFSET;
    return 1;
}

static void set_window(case_call *a, int64_t left, int64_t right)
{
    if (left < 0 && right < 0)
        return;
    a->p.window = ATTN_WINDOW;
    a->p.window_left = left < 0 ? -1 : left;
    a->p.window_right = right < 0 ? -1 : right;
}

static int run_call(test_case *c, const case_call *a)
{
    case_results r;
    return case_compute(c, a, &r) && case_compare_results(c, a, &r);
}

static int run_attention(test_case *c)
{
    case_call a = {0};
    const int64_t heads_q = case_integer(c, "q_num_heads", 0);
    const int64_t heads_kv = case_integer(c, "kv_num_heads", 0);
    const int64_t stage = case_integer(c, "qk_matmul_output_mode", 0);
    const int64_t left = case_integer(c, "left_window_size", -1);
    const int64_t right = case_integer(c, "right_window_size", -1);
    const double softcap = case_number(c, "softcap", 0);
    case_text(c, "softmax_precision", NULL); /* read and ignored: always f32 here */
    a.y = case_output(c, "Y");
    a.present_k = case_output(c, "present_key");
    a.present_v = case_output(c, "present_value");
    a.logits = case_output(c, "qk_matmul_output");
    if (stage < ATTN_LOGITS_RAW || stage > ATTN_LOGITS_SOFTMAX)
        return case_fail(c, "qk_matmul_output_mode is %lld", (long long)stage);
    a.stage = (int)stage;
    if (!open_call(c, &a, heads_q, heads_kv))
        return 0;
    a.p.causal = case_integer(c, "is_causal", 0) != 0;
    a.p.softcap = softcap > 0 ? (float)softcap : 0;
    set_window(&a, left, right);
    set_scale(c, &a);
    return case_set_mask(c, &a, case_input(c, "attn_mask")) && set_lengths(c, &a) &&
           case_all_known(c) && run_call(c, &a);
}

/* ---- RotaryEmbedding ------------------------------------------------------------------------- */

/* position_ids; without them row i of batch entry b takes line b * rows + i of the tables. */
static int set_positions(test_case *c, const case_view *x, const case_tensor *ids,
                         attn_rope_rows *rows)
{
    int64_t *first;
    if (ids != NULL) {
        rows->positions = ids->data;
        return (ids->type == I64 && ids->rank == 2 && ids->dim[0] == x->batch &&
                ids->dim[1] == x->seq) ||
               case_fail(c, "position_ids must be i64 [batch, sequence]");
    }
    first = test_alloc((size_t)x->batch * sizeof *first);
    for (int64_t b = 0; b < x->batch; b++)
        first[b] = b * x->seq;
    rows->first = first;
    return 1;
}

/* Tables [position, dim/2] with position_ids, else [batch, row, dim/2]. */
static int set_tables(test_case *c, const case_view *x, attn_rope *rope, attn_rope_rows *rows)
{
    const case_tensor *cosines = case_input(c, "cos_cache"), *sines = case_input(c, "sin_cache");
    const case_tensor *ids = case_input(c, "position_ids");
    const int64_t half = (rope->dim > 0 ? rope->dim : x->dim) / 2;
    int64_t dim[3] = {x->batch, x->seq, half};
    if (cosines == NULL || sines == NULL)
        return case_fail(c, "cos_cache or sin_cache is missing");
    if (ids != NULL)
        dim[0] = cosines->dim[0], dim[1] = half;
    if (!set_positions(c, x, ids, rows) || !case_has_shape(c, cosines, ids != NULL ? 2 : 3, dim) ||
        !case_has_shape(c, sines, ids != NULL ? 2 : 3, dim))
        return 0;
    rope->num_positions = half > 0 ? cosines->count / half : 0;
    rope->cos = case_floats(c, cosines);
    rope->sin = case_floats(c, sines);
    return rope->cos != NULL && rope->sin != NULL;
}

/* Turned into another buffer, then in place: the same bits. */
static int turn(test_case *c, const attn_rope *rope, attn_rope_rows *rows, int type,
                case_tensor *y)
{
    const size_t bytes = (size_t)y->count * case_types[type].size;
    char why[CASE_WHY] = "";
    void *in_place = memcpy(test_alloc(bytes), rows->x.data, bytes);
    void *other = rows->y.data = test_alloc(bytes);
    if (!case_status(c, attn_rope_apply(rope, rows, why, sizeof why), why))
        return 0;
    rows->x.data = rows->y.data = in_place;
    if (!case_status(c, attn_rope_apply(rope, rows, why, sizeof why), why))
        return 0;
    if (memcmp(in_place, other, bytes) != 0)
        return case_fail(c, "in place it gives other bits");
    return case_compare(c, y, type, other);
}

static int run_rotary(test_case *c)
{
    attn_rope rope = {0};
    attn_rope_rows rows = {0};
    case_view x;
    const case_tensor *input = case_input(c, "X");
    case_tensor *y = case_output(c, "Y");
    const int64_t heads = case_integer(c, "num_heads", 0);
    rope.interleaved = case_integer(c, "interleaved", 0) != 0;
    rope.dim = case_integer(c, "rotary_embedding_dim", 0);
    if (input == NULL || y == NULL)
        return case_fail(c, "X or Y is missing");
    if (!case_view_of(c, input, heads, &x) || !set_tables(c, &x, &rope, &rows) ||
        !case_has_shape(c, y, input->rank, input->dim) || !case_all_known(c))
        return 0;
    if (heads > 0 && x.heads != heads)
        return case_fail(c, "X has %lld heads, num_heads is %lld", (long long)x.heads,
                         (long long)heads);
    rows.batch = x.batch;
    rows.num_heads = x.heads;
    rows.seq_len = x.seq;
    rows.head_dim = x.dim;
    rows.x = case_view_input(&x);
    rows.y.dtype = rows.x.dtype;
    rows.y.stride_batch = x.stride_batch;
    rows.y.stride_head = x.stride_head;
    rows.y.stride_seq = x.stride_seq;
    return turn(c, &rope, &rows, x.type, y);
}

/* ---- TensorScatter --------------------------------------------------------------------------- */

/* [batch, ..., rows, ...] as [batch, heads, rows, dim] around `axis`, counted from the end if
 * negative. */
static int scatter_view(test_case *c, const case_tensor *t, int64_t axis, case_view *v)
{
    const int at = (int)(axis < 0 ? axis + t->rank : axis);
    if (axis < -t->rank || at < 1 || at >= t->rank)
        return case_fail(c, "axis %lld of %s of rank %d", (long long)axis, t->name, t->rank);
    if (t->type != F16 && t->type != F32)
        return case_fail(c, "%s has type %s", t->name, case_types[t->type].name);
    memset(v, 0, sizeof *v);
    v->type = t->type;
    v->data = t->data;
    v->batch = t->dim[0];
    v->seq = t->dim[at];
    v->heads = v->dim = 1;
    for (int i = 1; i < t->rank; i++)
        if (i != at)
            *(i < at ? &v->heads : &v->dim) *= t->dim[i];
    return 1;
}

/* The rows that sequence b is said to have: a ring goes on at the same row after each turn. */
static int scatter_lengths(test_case *c, const case_view *past, int ring, int32_t *length)
{
    const case_tensor *at = case_input(c, "write_indices");
    if (at != NULL && (at->type != I64 || at->rank != 1 || at->count != past->batch))
        return case_fail(c, "write_indices must be i64, one a batch entry");
    for (int64_t b = 0; b < past->batch; b++) {
        int64_t index = at != NULL ? ((const int64_t *)at->data)[b] : 0;
        if (index < 0 || (!ring && index > past->seq))
            return case_fail(c, "write_indices[%lld] is %lld", (long long)b, (long long)index);
        length[b] = (int32_t)(ring && past->seq > 0 ? index % past->seq : index);
    }
    return 1;
}

/* A cache on storage of the caller's own, in which past_cache lies already. */
static int open_scatter(test_case *c, const case_view *past, int ring, attn_cache *cache)
{
    const size_t bytes = (size_t)(past->batch * past->heads * past->seq * past->dim) *
                         case_types[past->type].size;
    char why[CASE_WHY] = "";
    size_t need = 0;
    memset(cache, 0, sizeof *cache);
    cache->num_sequences = past->batch;
    cache->num_heads_kv = past->heads;
    cache->head_dim = past->dim;
    cache->capacity = past->seq;
    cache->ring = ring;
    cache->k.dtype = cache->v.dtype = past->type == F16 ? ATTN_F16 : ATTN_F32;
    cache->k.data = memcpy(test_alloc(bytes), past->data, bytes);
    cache->v.data = memcpy(test_alloc(bytes), past->data, bytes);
    if (!case_status(c, attn_cache_size(cache, &need, why, sizeof why), why))
        return 0;
    return case_status(c, attn_cache_init(cache, test_alloc(need), need, why, sizeof why), why);
}

static int scatter(test_case *c, attn_cache *cache, const case_view *update,
                   const int32_t *length, int64_t rows)
{
    char why[CASE_WHY] = "";
    attn_cache_step before = {0}, s = {0};
    before.batch = s.batch = update->batch;
    before.seq_len = rows;
    before.len = length;
    s.seq_len = update->seq;
    s.k.dtype = s.v.dtype = cache->k.dtype;
    s.k.data = s.v.data = update->data;
    return case_status(c, attn_cache_extend(cache, &before, why, sizeof why), why) &&
           case_status(c, attn_cache_append(cache, &s, why, sizeof why), why);
}

/* Keys and values alike hold past_cache and get the update; all rows are compared. */
static int run_scatter(test_case *c)
{
    const case_tensor *old = case_input(c, "past_cache"), *new_rows = case_input(c, "update");
    case_tensor *want = case_output(c, "present_cache");
    const int64_t axis = case_integer(c, "axis", -2);
    const char *mode = case_text(c, "mode", "linear");
    const int ring = strcmp(mode, "circular") == 0;
    case_view past, update;
    attn_cache cache;
    int32_t *length;
    if (old == NULL || new_rows == NULL || want == NULL)
        return case_fail(c, "past_cache, update or present_cache is missing");
    if (!ring && strcmp(mode, "linear") != 0)
        return case_fail(c, "unknown mode '%s'", mode);
    if (!scatter_view(c, old, axis, &past) || !scatter_view(c, new_rows, axis, &update) ||
        !case_has_shape(c, want, old->rank, old->dim))
        return 0;
    if (update.type != past.type || want->type != past.type || update.batch != past.batch ||
        update.heads != past.heads || update.dim != past.dim)
        return case_fail(c, "update does not fit past_cache");
    length = test_alloc((size_t)past.batch * sizeof *length);
    if (!scatter_lengths(c, &past, ring, length) || !case_all_known(c) ||
        !open_scatter(c, &past, ring, &cache) || !scatter(c, &cache, &update, length, past.seq))
        return 0;
    c->cached = 1;
    case_note(c, "by a cache on the caller's storage");
    want->rtol = want->atol = 0; /* equality, whatever the case says */
    return case_compare(c, want, want->type, cache.k.data) &&
           case_compare(c, want, want->type, cache.v.data);
}

/* ---- FlexAttention --------------------------------------------------------------------------- */

static float add_constant(void *user, const attn_pair *at, float logit)
{
    (void)at;
    return logit + *(const float *)user;
}

static float add_q_minus_k(void *user, const attn_pair *at, float logit)
{
    (void)user;
    return logit + (float)(at->i - at->j);
}

static int score_none(case_call *a, double x)
{
    (void)a, (void)x;
    return 1;
}

static int score_add_constant(case_call *a, double x)
{
    a->constant = (float)x;
    a->p.score = add_constant;
    a->p.callback_user = &a->constant;
    return 1;
}

static int score_softcap(case_call *a, double x)
{
    a->p.softcap = (float)x;
    return x > 0;
}

static int score_causal(case_call *a, double x)
{
    (void)x;
    a->p.causal = 1;
    a->p.alignment = ATTN_ALIGN_TOP_LEFT;
    return 1;
}

static int score_distance(case_call *a, double x)
{
    (void)x;
    a->p.score = add_q_minus_k;
    return 1;
}

static int prob_multiply(case_call *a, double x)
{
    a->factor = x;
    return 1;
}

/* FlexAttention's sub-graphs, each restated by the case as one word with at most one number. */
static const struct {
    const char *attribute, *word;
    int (*apply)(case_call *a, double x);
} modifiers[] = {
    {"score_mod", "none", score_none},
    {"score_mod", "add_constant", score_add_constant},
    {"score_mod", "softcap", score_softcap},
    {"score_mod", "causal_top_left", score_causal},
    {"score_mod", "add_q_minus_k", score_distance},
    {"prob_mod", "none", score_none},
    {"prob_mod", "multiply_constant", prob_multiply},
};

static int modify(test_case *c, case_call *a, const char *which)
{
    const char *text = case_text(c, which, "none");
    const size_t length = strcspn(text, ":");
    double x = 0;
    if (text[length] == ':' && !case_to_number(c, text + length + 1, &x))
        return 0;
    for (size_t i = 0; i < sizeof modifiers / sizeof *modifiers; i++)
        if (strcmp(modifiers[i].attribute, which) == 0 &&
            strlen(modifiers[i].word) == length && strncmp(modifiers[i].word, text, length) == 0 &&
            modifiers[i].apply(a, x))
            return 1;
    return case_fail(c, "unknown %s '%s'", which, text);
}

static int run_flex_attention(test_case *c)
{
    case_call a = {0};
    char text[80];
    a.y = case_output(c, "Y");
    if (!open_call(c, &a, 0, 0))
        return 0;
    set_scale(c, &a);
    if (!modify(c, &a, "score_mod") || !modify(c, &a, "prob_mod") || !case_all_known(c))
        return 0;
    if (a.factor != 1) {
        snprintf(text, sizeof text, "prob_mod done by the runner: %g * O", a.factor);
        case_note(c, text);
    }
    return run_call(c, &a);
}

/* ---- SdpaGrad -------------------------------------------------------------------------------- */

static int run_sdpa_grad(test_case *c)
{
    static const char *const gradients[] = {"dQ", "dK", "dV", "dMask", "dQ_zero_rows",
                                            "dK_zero_rows", "dV_zero_rows"};
    case_call a = {0};
    const int64_t shift = case_integer(c, "causal_offset", 0);
    const double softcap = case_number(c, "softcap", 0);
    int32_t *offset;
    case_input(c, "dY");
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++)
        case_output(c, gradients[i]);
    case_output(c, "Y_zero_rows");
    a.y = case_output(c, "Y");
    a.lse = case_output(c, "lse");
    if (!open_call(c, &a, 0, 0))
        return 0;
    a.p.causal = case_integer(c, "is_causal", 0) != 0;
    a.p.softcap = softcap > 0 ? (float)softcap : 0;
    set_scale(c, &a);
    offset = test_alloc((size_t)a.q.batch * sizeof *offset);
    for (int64_t b = 0; b < a.q.batch; b++)
        offset[b] = (int32_t)shift;
    a.p.q_offset = offset;
    a.p.alignment = ATTN_ALIGN_OFFSET;
    case_note(c, "forward only");
    if (!case_set_mask(c, &a, case_input(c, "attn_mask")) || !case_all_known(c))
        return 0;
    return a.mask_keys < 0 ? run_call(c, &a)
                           : case_fail(c, "attn_mask is shorter than the keys");
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*run)(test_case *c);
} operators[] = {
    {"Attention", run_attention},     {"FlexAttention", run_flex_attention},
    {"SdpaGrad", run_sdpa_grad},      {"RotaryEmbedding", run_rotary},
    {"TensorScatter", run_scatter},   {"GroupQueryAttention", case_run_group_query},
    {"MultiHeadAttention", case_run_multi_head},
};

int case_run(test_case *c)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (strcmp(operators[i].name, c->op) == 0)
            return operators[i].run(c);
    return case_fail(c, "unknown operator '%s'", c->op);
}
