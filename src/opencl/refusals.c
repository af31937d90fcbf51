/* src/opencl/refusals.c - what the device does not do.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "trials.c"

/* call_flops counts as attn_explain does, but all pairs of a sequence that is masked, or half of
 * them if it is causal: what a mask hides is not worth a walk over it at every call. */
static double call_flops(const attn_problem *pr)
{
    const attn_params *p = &pr->p;
    double pairs = 0;
    int64_t b;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        pairs += (double)s.q_len * (double)s.kv_len;
    }
    return 2.0 * pairs * (double)p->num_heads_q * (double)(p->head_dim + p->head_dim_v) /
           (p->causal && pr->max_q_len > 1 ? 2 : 1);
}

static const char times_or_event[] =
    "times are known when a call has ended: with event it returns before";
static const char too_few_flops[] = "fewer operations than least_flops: too small for the device";

/* is_bound returns whether the CPU cannot take the call: the caller waits for the device's event,
 * or has arrays there. g is NULL for attn_forward. */
static int is_bound(const attn_opencl_call *how, const attn_params *p, const attn_gradient_call *g)
{
    const void *const sums[] = { g ? g->bias.data : NULL, g ? g->slopes.data : NULL };
    field_walk walks[2];
    int found = how->event != NULL, i;
    walks[0] = walk_fields(p);
    walks[1] = g ? walk_gradient_fields(&g->g) : walks[0];
    for (i = 0; i < 2; i++) {
        field_walk *w = &walks[i];
        found |= sums[i] && named_buffer(how, sums[i]);
        while (next_field(w)) {
            const int there = w->row && w->row->array && !w->row->shared;
            const void *data = there ? field_data(w->f, w->base) : NULL;
            found |= data && named_buffer(how, data);
        }
    }
    return found;
}

/* has_host_output returns whether the host would have to fetch an array that the call writes; *why
 * then says which. */
static int has_host_output(const attn_opencl_call *how, const attn_params *p, field_walk w,
                           int gradients, text *why)
{
    while (next_field(&w)) {
        const int which = w.row ? array_in_call(w.row->array, p, gradients) : NO_ARRAY;
        const void *data = which >= OUT_O ? field_data(w.f, w.base) : NULL;
        if (data && !named_buffer(how, data)) {
            put(why, w.f->name);
            put(why, " is not in call.buffers");
            return 1;
        }
    }
    return 0;
}

/* is_host_sum asks the same of a sum over pairs. */
static int is_host_sum(const attn_opencl_call *how, const attn_sum_axes *sum, const char *name,
                       text *why)
{
    if (!sum->data || named_buffer(how, sum->data))
        return 0;
    put(why, name);
    put(why, " is not in call.buffers");
    return 1;
}

/* refuse_call returns whether anything of the call but its plan, of the object or of its options
 * stands against it; *why then says what. */
static int refuse_call(const attn_opencl_call *how, const attn_problem *pr,
                       const attn_gradient_call *g, text *why)
{
    const attn_opencl *gpu = how->gpu;
    const double flops = (g ? 2.5 : 1) * call_flops(pr);
    const refusal exact[] = { { gpu->exact && !gpu->info.exact, gpu->info.exact_why } };
    const refusal others[] = {
        { how->event != NULL && how->times != NULL, times_or_event },
        { pr->impl != ATTN_IMPL_NAIVE && flops < gpu->least_flops, too_few_flops },
    };
    if (refuse(exact, COUNT_OF(exact), why))
        return 1;
    if (how->event && has_host_output(how, &pr->p, walk_fields(&pr->p), g != NULL, why))
        return 1;
    if (how->event && g &&
        (has_host_output(how, &pr->p, walk_gradient_fields(&g->g), 1, why) ||
         is_host_sum(how, &g->bias, "dbias", why) || is_host_sum(how, &g->slopes, "dslopes", why)))
        return 1;
    return refuse(others, COUNT_OF(others), why);
}

/* takes returns whether the device takes the call; *why says why not. */
static int takes(const attn_opencl_call *how, const attn_problem *pr, const attn_gradient_call *g,
                 text *why)
{
    attn_opencl *gpu = how->gpu;
    device_limits limits;
    device_plan pl;
    const char *fault;
    if (!gpu || !gpu->queue) {
        put(why, "no device is open");
        return 0;
    }
    limits = limits_of(&gpu->info, gpu->exact);
    pl = plan_device(pr, &limits, g != NULL);
    if (refuse_call(how, pr, g, why) || refuse_plan(pr, &limits, &pl, why))
        return 0;
    fault = distrust(gpu, &pl, g != NULL);
    put(why, fault ? fault : "");
    return fault == NULL;
}

/* answer answers as backends do: see attn_backend. */
static int answer(const attn_opencl_call *how, const attn_problem *pr, const attn_gradient_call *g,
                  text why)
{
    if (takes(how, pr, g, &why))
        return 1;
    if (!is_bound(how, &pr->p, g))
        return 0;
    put(&why, "; the CPU cannot take what waits for the device or lies there");
    return -1;
}

static int supports_call(const attn_backend *self, const attn_problem *pr, char *why,
                         size_t why_bytes)
{
    return answer((const attn_opencl_call *)self->user, pr, NULL, text_in(why, why_bytes));
}

static int supports_gradients(const attn_backend *self, const attn_problem *pr,
                              const attn_gradient_call *g, char *why, size_t why_bytes)
{
    return answer((const attn_opencl_call *)self->user, pr, g, text_in(why, why_bytes));
}
