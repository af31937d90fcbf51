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

/* find_array gives the name of the first array that call.buffers name or, with `written`, of the
 * first output that they do not name. Without such an array it gives NULL. */
static const char *find_array(const attn_opencl_call *how, const attn_params *p, field_walk w,
                              int gradients, int written)
{
    while (next_field(&w)) {
        int which = w.row && !w.row->shared ? w.row->array : NO_ARRAY;
        const void *data;
        if (written)
            which = array_in_call(which, p, gradients);
        data = which >= (written ? OUT_O : IN_Q) ? field_data(w.f, w.base) : NULL;
        if (data && written == !named_buffer(how, data))
            return w.f->name;
    }
    return NULL;
}

/* find_in_call also looks at gradients, unless g is NULL, and at sums over pairs. */
static const char *find_in_call(const attn_opencl_call *how, const attn_params *p,
                                const attn_gradient_call *g, int written)
{
    const char *found = find_array(how, p, walk_fields(p), g != NULL, written);
    if (!g)
        return found;
    if (!found)
        found = find_array(how, p, walk_gradient_fields(&g->g), 1, written);
    if (!found && g->bias.data && written == !named_buffer(how, g->bias.data))
        found = "dbias";
    if (!found && g->slopes.data && written == !named_buffer(how, g->slopes.data))
        found = "dslopes";
    return found;
}

/* call_fault says why anything of the call but its plan, of the object or of its options stands
 * against it, or gives NULL. */
static const char *call_fault(const attn_opencl_call *how, const attn_problem *pr,
                              const attn_gradient_call *g)
{
    const double flops = (g ? 2.5 : 1) * call_flops(pr);
    const refusal refusals[] = {
        { how->event != NULL && how->times != NULL,
          "times are known when a call has ended: with event it returns before" },
        { pr->impl != ATTN_IMPL_NAIVE && flops < how->gpu->options.least_flops,
          "fewer operations than least_flops: too small for the device" },
    };
    return first_refusal(refusals, COUNT_OF(refusals));
}

static const char *object_fault(const attn_opencl *gpu)
{
    if (!gpu || !gpu->queue)
        return "no device is open";
    return gpu->limits.exact && !gpu->info.exact ? gpu->info.exact_why : NULL;
}

/* takes returns whether the device takes the call; *why says why not. */
static int takes(const attn_opencl_call *how, const attn_problem *pr, const attn_gradient_call *g,
                 text *why)
{
    const char *fault = object_fault(how->gpu), *missing;
    device_plan pl;
    if (refuse_unknown(walk_fields(&pr->p), why) ||
        (g && refuse_unknown(walk_gradient_fields(&g->g), why)))
        return 0;
    missing = !fault && how->event ? find_in_call(how, &pr->p, g, 1) : NULL;
    if (missing) {
        put(why, missing);
        fault = " is not in call.buffers";
    }
    if (!fault)
        fault = call_fault(how, pr, g);
    if (!fault) {
        pl = plan_device(pr, &how->gpu->limits, g != NULL);
        fault = plan_fault(pr, &how->gpu->limits, &pl);
    }
    if (!fault)
        fault = distrust(how->gpu, &pl);
    put(why, fault ? fault : "");
    return fault == NULL;
}

/* The CPU cannot take a call that waits for the device or has arrays there. */
static int supports_gradients(const attn_backend *self, const attn_problem *pr,
                              const attn_gradient_call *g, char *sentence, size_t bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    text why = text_in(sentence, bytes);
    if (takes(how, pr, g, &why))
        return 1;
    if (!how->event && !find_in_call(how, &pr->p, g, 0))
        return 0;
    put(&why, "; the CPU cannot take what waits for the device or lies there");
    return -1;
}

static int supports_call(const attn_backend *self, const attn_problem *pr, char *why,
                         size_t why_bytes)
{
    return supports_gradients(self, pr, NULL, why, why_bytes);
}
