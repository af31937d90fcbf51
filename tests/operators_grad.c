/* operators_grad.c - SdpaGrad, the textbook's attention with its gradients, as calls of
 * attn_forward and attn_backward.
 * SPDX-License-Identifier: MIT
 *
 * A case runs tiled, with the gradients by both numbers of products, and naive; --impl leaves one
 * of the two.
 */
#include "cases.h"

#include "../attn.h"

#include <string.h>

enum { DQ, DK, DV, DMASK, GRADIENTS };

typedef struct gradient_case {
    case_call a;
    case_view dy; /* data NULL = none */
    const case_tensor *mask;
    case_tensor *want[GRADIENTS]; /* NULL = not stored */
} gradient_case;

static const struct {
    const char *name, *note;
    int impl;
    int gemms[3], runs;
} ways[] = {
    { "tiled", "tiled, gemms 0, 5 and 7: same bits", ATTN_IMPL_TILED, { 0, 5, 7 }, 3 },
    { "naive", "naive", ATTN_IMPL_NAIVE, { 0, 0, 0 }, 1 },
};
enum { WAYS = sizeof ways / sizeof *ways };

/* ---- reading --------------------------------------------------------------------------------- */

static int open_tensors(test_case *c, gradient_case *g)
{
    const case_tensor *q = case_input(c, "Q"), *k = case_input(c, "K"), *v = case_input(c, "V");
    const case_tensor *dy = case_input(c, "dY");
    g->mask = case_input(c, "attn_mask");
    if (q == NULL || k == NULL || v == NULL)
        return case_fail(c, "one of Q, K, V is missing");
    if (!case_view_of(c, q, 0, &g->a.q) || !case_view_of(c, k, 0, &g->a.k) ||
        !case_view_of(c, v, 0, &g->a.v) || !case_open_call(c, &g->a))
        return 0;
    return dy == NULL || case_view_of(c, dy, 0, &g->dy);
}

static int open_outputs(test_case *c, gradient_case *g)
{
    static const char *const names[GRADIENTS] = { "dQ", "dK", "dV", "dMask" };
    g->a.y = case_output(c, "Y");
    g->a.lse = case_output(c, "lse");
    for (int n = 0; n < GRADIENTS; n++) {
        g->want[n] = case_output(c, names[n]);
        if (g->want[n] != NULL && g->dy.data == NULL)
            return case_fail(c, "%s without dY", names[n]);
    }
    return c->output_count > 0 || case_fail(c, "the case has no output to compare");
}

static int check_shapes(test_case *c, const gradient_case *g)
{
    const case_view *q = &g->a.q, *k = &g->a.k, *v = &g->a.v, *dy = &g->dy;
    const int64_t dim[DMASK][4] = { { q->batch, q->heads, q->seq, q->dim },
                                    { k->batch, k->heads, k->seq, k->dim },
                                    { v->batch, v->heads, v->seq, v->dim } };
    if (dy->data != NULL &&
        (dy->batch != q->batch || dy->heads != q->heads || dy->seq != q->seq || dy->dim != v->dim))
        return case_fail(c, "dY has another shape than Y");
    for (int n = 0; n < DMASK; n++)
        if (g->want[n] != NULL && !case_has_shape(c, g->want[n], 4, dim[n]))
            return 0;
    if (g->want[DMASK] == NULL)
        return 1;
    if (g->mask == NULL || g->mask->type == BOOL)
        return case_fail(c, "dMask without a mask of numbers");
    return case_has_shape(c, g->want[DMASK], g->mask->rank, g->mask->dim);
}

static int set_mask(test_case *c, gradient_case *g)
{
    const case_tensor *m = g->mask;
    const int64_t keys = m != NULL && m->rank > 0 ? m->dim[m->rank - 1] : 1;
    if (keys != 1 && keys != g->a.keys)
        return case_fail(c, "attn_mask has %lld columns for %lld keys", (long long)keys,
                         (long long)g->a.keys);
    return case_set_mask(c, &g->a, m);
}

static void set_attributes(test_case *c, case_call *a)
{
    a->p.causal = case_integer(c, "is_causal", 0) != 0;
    a->p.softcap = (float)case_number(c, "softcap", 0);
    case_set_scale(c, a);
    case_set_offset(a, case_integer(c, "causal_offset", 0));
}

/* ---- running --------------------------------------------------------------------------------- */

/* In a workspace of the size asked for and any alignment, between canaries. */
static int run_backward(test_case *c, const attn_params *p, const attn_gradients *g)
{
    const size_t shift = test_variation() * 13u % 64;
    const attn_params used = test_params(p);
    const int mark = test_mark();
    attn_backward_info info;
    unsigned char *memory;
    char text[200];
    size_t need = 0;
    attn_status status = attn_backward_workspace_size(&used, g, &need);
    memory = test_alloc(need + shift);
    if (status == ATTN_OK)
        status = attn_backward(&used, g, memory + shift, need);
    if (status != ATTN_OK)
        return case_fail(c, "attn_backward: %s: %s", attn_status_string(status),
                         attn_backward_check(&used, g, memory + shift, need, text, sizeof text));
    if (test_margins() != 0)
        return case_fail(c, "attn_backward wrote beyond the ends of a buffer");
    test_release_to(mark);
    if (attn_backward_explain(&used, g, &info) != ATTN_OK)
        return case_fail(c, "attn_backward_explain fails");
    if (T.backend != NULL && strcmp(info.backend_name, T.backend->name) != 0) {
        case_count_executed("gradients that the device refused", attn_impl_name(info.impl),
                            info.kernels_name);
        return device_refused(info.reasons) || case_fail(c, "%s", info.reasons);
    }
    case_count_executed(info.gemms == 7 ? "gradients by 7 products" : "gradients by 5 products",
                        attn_impl_name(info.impl),
                        T.backend != NULL ? T.backend->name : info.kernels_name);
    return 1;
}

static int is_half(const gradient_case *g, int n)
{
    return n != DMASK && g->want[n]->type == F16; /* the gradient of a bias is always f32 */
}

static size_t gradient_bytes(const gradient_case *g, int n)
{
    return (size_t)g->want[n]->count * (is_half(g, n) ? 2 : 4);
}

/* The stored gradients, of the forward call that p is; got[n] stays NULL for the others. */
static int compute(test_case *c, const gradient_case *g, const attn_params *p, int gemms,
                   void **got)
{
    attn_gradients all = { 0 };
    attn_output *const outputs[DMASK] = { &all.dq, &all.dk, &all.dv };
    for (int n = 0; n < GRADIENTS; n++)
        got[n] = g->want[n] != NULL ? test_alloc(gradient_bytes(g, n)) : NULL;
    for (int n = 0; n < DMASK; n++) {
        outputs[n]->dtype = got[n] != NULL && is_half(g, n) ? ATTN_F16 : ATTN_F32;
        outputs[n]->data = got[n];
    }
    all.gemms = gemms;
    all.dbias.data = got[DMASK];
    all.dout = case_view_input(&g->dy);
    return run_backward(c, p, &all);
}

static int same_gradients(test_case *c, const gradient_case *g, int gemms, void *const *a,
                          void *const *b)
{
    for (int n = 0; n < GRADIENTS; n++)
        if (g->want[n] != NULL && memcmp(a[n], b[n], gradient_bytes(g, n)) != 0)
            return case_fail(c, "%s has other bits with gemms %d than with 0", g->want[n]->name,
                             gemms);
    return 1;
}

static int run_way(test_case *c, gradient_case *g, int way)
{
    case_results r;
    void *first[GRADIENTS], *other[GRADIENTS];
    g->a.p.impl = ways[way].impl;
    c->doing = ways[way].name;
    if (!case_compute(c, &g->a, &r) || !case_compare_results(c, &g->a, &r))
        return 0;
    if (g->dy.data == NULL)
        return 1;
    if (!compute(c, g, &r.p, ways[way].gemms[0], first))
        return 0;
    for (int n = 0; n < GRADIENTS; n++)
        if (g->want[n] != NULL && !case_compare(c, g->want[n], is_half(g, n) ? F16 : F32, first[n]))
            return 0;
    for (int i = 1; i < ways[way].runs; i++)
        if (!compute(c, g, &r.p, ways[way].gemms[i], other) ||
            !same_gradients(c, g, ways[way].gemms[i], first, other))
            return 0;
    case_note(c, ways[way].note);
    return 1;
}

int case_run_sdpa_grad(test_case *c)
{
    gradient_case g = { 0 };
    g.a.backward = 1;
    if (!open_tensors(c, &g) || !open_outputs(c, &g) || !check_shapes(c, &g) || !set_mask(c, &g))
        return 0;
    set_attributes(c, &g.a);
    if (!case_all_known(c))
        return 0;
    if (g.dy.data == NULL)
        case_note(c, "without dY: forward only");
    for (int way = 0; way < WAYS; way++)
        if ((T.impl == ATTN_IMPL_DEFAULT || T.impl == ways[way].impl) && !run_way(c, &g, way))
            return 0;
    return 1;
}
