/* operators.c - the operators of conformance cases as calls of the library.
 * SPDX-License-Identifier: MIT
 *
 * Attention (ONNX), FlexAttention (ONNX preview) and SdpaGrad (the textbook formula; its forward
 * outputs).
 */
#include "cases.h"

#include <string.h>

/* ---- operators ------------------------------------------------------------------------------- */

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
    if (!case_open_call(c, &a, heads_q, heads_kv, "past_key", "past_value"))
        return 0;
    a.p.causal = case_integer(c, "is_causal", 0) != 0;
    a.p.softcap = softcap > 0 ? (float)softcap : 0;
    case_set_window(&a, left, right);
    if (case_text(c, "scale", NULL) != NULL)
        case_set_scale(&a, case_number(c, "scale", 0));
    if (!case_set_mask(c, &a) || !case_set_lengths(c, &a) || !case_all_known(c))
        return 0;
    return case_run_call(c, &a) && case_run_logits(c, &a, stage) &&
           case_compare_present(c, a.present_k, &a.k) && case_compare_present(c, a.present_v, &a.v);
}

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
    if (!case_open_call(c, &a, 0, 0, "past_key", "past_value"))
        return 0;
    if (case_text(c, "scale", NULL) != NULL)
        case_set_scale(&a, case_number(c, "scale", 0));
    if (!modify(c, &a, "score_mod") || !modify(c, &a, "prob_mod") || !case_all_known(c))
        return 0;
    if (a.factor != 1) {
        snprintf(text, sizeof text, "prob_mod done by the runner: %g * O", a.factor);
        case_note(c, text);
    }
    return case_run_call(c, &a);
}

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
    if (!case_open_call(c, &a, 0, 0, "past_key", "past_value"))
        return 0;
    a.p.causal = case_integer(c, "is_causal", 0) != 0;
    a.p.softcap = softcap > 0 ? (float)softcap : 0;
    if (case_text(c, "scale", NULL) != NULL)
        case_set_scale(&a, case_number(c, "scale", 0));
    offset = test_alloc((size_t)a.q.batch * sizeof *offset);
    for (int64_t b = 0; b < a.q.batch; b++)
        offset[b] = (int32_t)shift;
    a.p.q_offset = offset;
    a.p.alignment = ATTN_ALIGN_OFFSET;
    case_note(c, "forward only");
    if (!case_set_mask(c, &a) || !case_all_known(c))
        return 0;
    return a.mask_keys < 0 ? case_run_call(c, &a)
                           : case_fail(c, "attn_mask is shorter than the keys");
}

static int not_built(test_case *c)
{
    return case_fail(c, "not built: %s", c->op);
}

static const struct {
    const char *name;
    int (*run)(test_case *c);
} operators[] = {
    {"Attention", run_attention},     {"FlexAttention", run_flex_attention},
    {"SdpaGrad", run_sdpa_grad},      {"RotaryEmbedding", not_built},
    {"TensorScatter", not_built},     {"GroupQueryAttention", not_built},
    {"MultiHeadAttention", not_built},
};

int case_run(test_case *c)
{
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (strcmp(operators[i].name, c->op) == 0)
            return operators[i].run(c);
    return case_fail(c, "unknown operator '%s'", c->op);
}
