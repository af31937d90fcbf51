/* operators.c - attention of ONNX as calls of the library: Attention and FlexAttention (preview);
 * and the table of all operators.
 * SPDX-License-Identifier: MIT
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
    case_call a = { 0 };
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
    case_set_scale(c, &a);
    return case_set_mask(c, &a, case_input(c, "attn_mask")) && set_lengths(c, &a) &&
           case_all_known(c) && run_call(c, &a);
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
    { "score_mod", "none", score_none },
    { "score_mod", "add_constant", score_add_constant },
    { "score_mod", "softcap", score_softcap },
    { "score_mod", "causal_top_left", score_causal },
    { "score_mod", "add_q_minus_k", score_distance },
    { "prob_mod", "none", score_none },
    { "prob_mod", "multiply_constant", prob_multiply },
};

static int modify(test_case *c, case_call *a, const char *which)
{
    const char *text = case_text(c, which, "none");
    const size_t length = strcspn(text, ":");
    double x = 0;
    if (text[length] == ':' && !case_to_number(c, text + length + 1, &x))
        return 0;
    for (size_t i = 0; i < sizeof modifiers / sizeof *modifiers; i++)
        if (strcmp(modifiers[i].attribute, which) == 0 && strlen(modifiers[i].word) == length &&
            strncmp(modifiers[i].word, text, length) == 0 && modifiers[i].apply(a, x))
            return 1;
    return case_fail(c, "unknown %s '%s'", which, text);
}

static int run_flex_attention(test_case *c)
{
    case_call a = { 0 };
    char text[80];
    a.y = case_output(c, "Y");
    if (!open_call(c, &a, 0, 0))
        return 0;
    case_set_scale(c, &a);
    if (!modify(c, &a, "score_mod") || !modify(c, &a, "prob_mod") || !case_all_known(c))
        return 0;
    if (a.factor != 1) {
        snprintf(text, sizeof text, "prob_mod done by the runner: %g * O", a.factor);
        case_note(c, text);
    }
    return run_call(c, &a);
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int (*run)(test_case *c);
} operators[] = {
    { "Attention", run_attention },
    { "FlexAttention", run_flex_attention },
    { "SdpaGrad", case_run_sdpa_grad },
    { "RotaryEmbedding", case_run_rotary },
    { "TensorScatter", case_run_scatter },
    { "GroupQueryAttention", case_run_group_query },
    { "MultiHeadAttention", case_run_multi_head },
};

int case_run(test_case *c)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (strcmp(operators[i].name, c->op) == 0)
            return operators[i].run(c);
    return case_fail(c, "unknown operator '%s'", c->op);
}
