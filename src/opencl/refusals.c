/* src/opencl/refusals.c - what the device does not do.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "trials.c"

/* As attn_explain counts them; the pairs of a sequence that is masked are all counted, or half of
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

/* Of a function that says whether a call is supported; fault NULL = it is. bound: to the device,
 * the CPU cannot take it. */
static int answer(const char *fault, int bound, char *why, size_t why_bytes)
{
    text t = text_in(why, why_bytes);
    put(&t, fault ? fault : "");
    if (fault && bound)
        put(&t, "; the CPU cannot take what waits for the device or lies there");
    return !fault ? 1 : bound ? -1 : 0;
}

static const char not_open[] = "no device is open";

static int any_named(const attn_opencl_call *how, const void *const *data, size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        if (data[i] && named_buffer(how, data[i]))
            return 1;
    return 0;
}

/* Whether the caller waits for the device's event, or has arrays there. */
static int is_bound(const attn_opencl_call *how, const attn_params *p)
{
    const void *const data[] = { p->q.data,     p->k.data,      p->v.data,         p->o.data,
                                 p->lse.data,   p->bias.data,   p->bool_mask.data, p->bit_mask.data,
                                 p->q_segments, p->kv_segments, p->state.m,        p->state.l,
                                 p->state.o,    p->logits.data };
    return how->event || any_named(how, data, COUNT_OF(data));
}

static int is_gradient_bound(const attn_opencl_call *how, const attn_params *p,
                             const attn_gradients *g)
{
    const void *const data[] = { g->dout.data, g->dlse.data,  g->dq.data, g->dk.data,
                                 g->dv.data,   g->dbias.data, g->dsinks,  g->dslopes };
    return is_bound(how, p) || any_named(how, data, COUNT_OF(data));
}

/* What of the call, the object or its options stands against it, or NULL. */
static const char *refuse_call(const attn_opencl_call *how, const attn_problem *pr,
                               const device_plan *pl)
{
    const attn_opencl *gpu = how->gpu;
    const attn_params *resolved = &pr->p;
    const refusal refusals[] = {
        { gpu->exact && !gpu->info.exact, gpu->info.exact_why },
        { how->event != NULL && host_output(how, resolved), host_output(how, resolved) },
        { how->event != NULL && how->times != NULL, times_or_event },
        { !runs(pl, PART_NAIVE) && call_flops(pr) < gpu->least_flops, too_few_flops },
    };
    return first_refusal(refusals, COUNT_OF(refusals));
}

static int supports_call(const attn_backend *self, const attn_problem *pr, char *why,
                         size_t why_bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    attn_opencl *gpu = how->gpu;
    device_limits limits;
    device_plan pl;
    const char *fault;
    if (!gpu || !gpu->queue)
        return answer(not_open, is_bound(how, &pr->p), why, why_bytes);
    limits = limits_of(&gpu->info, gpu->exact);
    pl = plan_device(pr, &limits);
    fault = refuse_call(how, pr, &pl);
    if (!fault)
        fault = refuse_plan(pr, &limits, &pl);
    if (!fault)
        fault = distrust(gpu, &pl, 0);
    return answer(fault, is_bound(how, &pr->p), why, why_bytes);
}

/* The first gradient that the host would have to fetch, or NULL. */
static const char *host_gradient(const attn_opencl_call *how, const attn_gradients *g)
{
    const named_output outputs[] = {
        { "dq is not in call.buffers", g->dq.data },
        { "dk is not in call.buffers", g->dk.data },
        { "dv is not in call.buffers", g->dv.data },
        { "dsinks is not in call.buffers", g->dsinks },
        { "dbias is not in call.buffers", g->dbias.data },
        { "dslopes is not in call.buffers", g->dslopes },
    };
    return first_on_host(how, outputs, sizeof outputs / sizeof *outputs);
}

/* Likewise of gradients. */
static const char *refuse_gradients(const attn_opencl_call *how, const attn_problem *pr,
                                    const attn_gradients *g, const device_limits *limits,
                                    const device_plan *pl)
{
    const attn_opencl *gpu = how->gpu;
    const attn_params *resolved = &pr->p;
    const int64_t most = most_memory(limits);
    const char *fetched = how->event ? host_gradient(how, g) : NULL;
    const refusal refusals[] = {
        { gpu->exact && !gpu->info.exact, gpu->info.exact_why },
        { fetched != NULL, fetched },
        { how->event != NULL && how->times != NULL, times_or_event },
        { resolved->score != NULL, "score is a callback" },
        { resolved->mask != NULL, "mask is a callback" },
        { pr->impl == ATTN_IMPL_NAIVE, "naive gradients are the CPU's" },
        { 2.5 * call_flops(pr) < gpu->least_flops, too_few_flops },
        { pr->max_kv_len > MOST_KEYS, too_many_keys },
        { pr->max_q_len > MOST_KEYS / pr->group, too_many_rows },
        { 12 * all_rows(resolved) > most, "statistics of rows exceed an array of the device" },
        { gradient_local_bytes(pl) > (int64_t)limits->local_bytes, too_little_local },
    };
    return first_refusal(refusals, COUNT_OF(refusals));
}

static int supports_gradients(const attn_backend *self, const attn_problem *pr,
                              const attn_gradient_call *g, char *why, size_t why_bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    attn_opencl *gpu = how->gpu;
    const int bound = is_gradient_bound(how, &pr->p, &g->g);
    device_limits limits;
    device_plan pl;
    const char *fault;
    if (!gpu || !gpu->queue)
        return answer(not_open, bound, why, why_bytes);
    limits = limits_of(&gpu->info, gpu->exact);
    pl = plan_gradients(pr, &limits);
    fault = refuse_gradients(how, pr, &g->g, &limits, &pl);
    if (!fault)
        fault = distrust(gpu, &pl, 1);
    return answer(fault, bound, why, why_bytes);
}
