/* src/opencl/trials.c - first use: before a program's first call a small problem runs on it, and on the CPU.
 * SPDX-License-Identifier: MIT
 *
 * Where the results differ, because of a compiler's or a driver's bug, no call uses the program. The
 * problem and all that it needs lie in memory of the driver: the caller has given none yet.
 */
#pragma once

#include "../storage.c"
#include "call.c"
#include "check.c"

enum verdict { UNTRIED, TRUSTED, DROPPED };

enum {
    TRIAL_HEADS = 2,
    TRIAL_ROWS = 20,
    TRIAL_FEW_ROWS = 7,
    TRIAL_FEWEST_ROWS = 2,
    TRIAL_KEYS = 120,
    TRIAL_DIM = 24,
    TRIAL_UNITS_DIM = 2 * UNIT, /* where K has units */
    TRIAL_COLUMNS = 256,
    TRIAL_LOGITS = 3,
    TRIAL_WORKSPACE = 1 << 20
};
#define TRIAL_BASE 1000   /* number of the first key: chunks and parts end among so few keys */
#define TRIAL_BOUND 1e-4f /* of results up to 1 and logits up to 100, in the device's own order */

typedef struct trial_results {
    float o[TRIAL_HEADS * TRIAL_ROWS * TRIAL_COLUMNS], lse[TRIAL_HEADS * TRIAL_ROWS];
    float stats[2 * TRIAL_HEADS * TRIAL_ROWS];
    float logits[TRIAL_HEADS * TRIAL_LOGITS * TRIAL_KEYS];
    float dq[TRIAL_HEADS * TRIAL_ROWS * TRIAL_DIM];
    float dk[TRIAL_KEYS * TRIAL_DIM], dv[TRIAL_KEYS * TRIAL_COLUMNS];
    float dbias[TRIAL_KEYS], dsinks[TRIAL_HEADS], dslopes[TRIAL_HEADS];
} trial_results;

/* The device has a copy of trial_arrays. */
typedef struct trial_arrays {
    float q[TRIAL_HEADS * TRIAL_ROWS * TRIAL_UNITS_DIM];
    float k[TRIAL_KEYS * TRIAL_UNITS_DIM], v[TRIAL_KEYS * TRIAL_COLUMNS];
    float dout[TRIAL_HEADS * TRIAL_ROWS * TRIAL_COLUMNS], bias[TRIAL_KEYS];
    float slopes[TRIAL_HEADS], sinks[TRIAL_HEADS];
    trial_results out;
} trial_arrays;

typedef struct trial {
    attn_opencl_call how;
    attn_opencl_buffer named;
    device_limits limits;
    attn_params p;
    attn_problem pr; /* p as the device gets it */
    int gradients;   /* nonzero: a trial of attn_backward */
    attn_gradients g;
    int64_t key_base;
    trial_arrays arrays;
    trial_results device;
} trial;

/* fill_random stores n numbers of -most..most, whole units. */
static void fill_random(void *to, int dtype, int64_t n, float most, uint32_t seed)
{
    const int unit = storages[dtype].unit;
    int64_t i, d;
    for (i = 0; i < n; i += unit) {
        float x[UNIT];
        for (d = 0; d < unit; d++)
            x[d] = (float)(int32_t)mixed(seed + (uint32_t)(i + d)) * (most / 2147483648.0f);
        attn_convert((char *)to + bytes_between(dtype, i), dtype, x, ATTN_F32, (size_t)unit);
    }
}

/* A trial_types is what K and V are stored in. A program of MIXED types has a trial for each of K. */
typedef struct trial_types {
    int k, v;
} trial_types;

static int count_trials(const variant *v, int part)
{
    if (v->kv_type != MIXED)
        return 1;
    return part == PART_BACKWARD ? LAST_PLAIN + 1 : v->whole ? MIXED - ATTN_Q8_0 : MIXED;
}

static trial_types types_of_trial(const variant *v, int part, int number)
{
    const int count = part == PART_BACKWARD ? LAST_PLAIN + 1 : MIXED;
    trial_types types = { v->kv_type, v->kv_type };
    if (v->kv_type == MIXED) {
        types.k = (v->whole ? ATTN_Q8_0 : 0) + number;
        types.v = (types.k + 1) % count;
    }
    return types;
}

/* problem_for makes a problem whose plan is the variant; its sizes fill no tile. */
static attn_params problem_for(trial *t, const variant *v, int part, trial_types types)
{
    const int has_units = storages[types.k].unit > 1;
    trial_arrays *a = &t->arrays;
    const attn_params p = {
        .batch = 1,
        .num_heads_q = TRIAL_HEADS,
        .num_heads_kv = 1,
        .seq_len_q = v->rows == FEW_ROWS ? TRIAL_FEWEST_ROWS
                     : v->rows == 16     ? TRIAL_FEW_ROWS
                                         : TRIAL_ROWS,
        .seq_len_kv = TRIAL_KEYS,
        .head_dim = has_units ? TRIAL_UNITS_DIM : TRIAL_DIM,
        .head_dim_v = v->columns - (storages[types.v].unit > 1 ? UNIT : 4),
        .integer = v->whole,
        .rotated = part == PART_ROTATE ? ATTN_ROTATED_K + ATTN_ROTATED_V : 0,
        .q = { .data = a->q },
        .k = { .data = a->k, .dtype = types.k },
        .v = { .data = a->v, .dtype = types.v },
        .o = { .data = a->out.o },
        .lse = { .data = a->out.lse },
        .stats = { .data = a->out.stats },
        .key_base = &t->key_base,
        .causal = 1,
        .window = ATTN_WINDOW,
        /* some rows see all of the first chunk; of few rows each */
        .window_left = v->rows == FEW_ROWS ? TRIAL_KEYS : TRIAL_KEYS - 25,
        .window_right = -1,
        .softcap = v->pairs ? 5 : 0,
        .dropout_p = v->pairs ? 0.25f : 0,
        .alibi_slopes = v->pairs ? a->slopes : NULL,
        .sinks = a->sinks,
        .impl = part == PART_NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED,
        .num_workers = 1,
    };
    return p;
}

/* Gradients are so small that sums of them are up to 10; the maxima of rows rise. */
static void fill_arrays(trial *t)
{
    trial_arrays *a = &t->arrays;
    const int64_t half = TRIAL_KEYS * t->p.head_dim / 2;
    const int k_type = t->p.k.dtype;
    fill_random(a->q, ATTN_F32, COUNT_OF(a->q), 32, 1);
    fill_random(a->k, k_type, half, 1, 2);
    fill_random((char *)a->k + bytes_between(k_type, half), k_type, half, 3, 3);
    fill_random(a->v, t->p.v.dtype, COUNT_OF(a->v), 1, 4);
    fill_random(a->slopes, ATTN_F32, TRIAL_HEADS, 1, 5);
    fill_random(a->dout, ATTN_F32, COUNT_OF(a->dout), 1.0f / 64, 6);
    fill_random(a->sinks, ATTN_F32, TRIAL_HEADS, 2, 7);
    fill_random(a->bias, ATTN_F32, TRIAL_KEYS, 2, 8);
    t->key_base = TRIAL_BASE;
}

/* ask_gradients asks for every gradient that has a kernel. Programs that ask pair by pair have but
 * the LSE, the others have the statistics. */
static void ask_gradients(trial *t, int pairs)
{
    trial_arrays *a = &t->arrays;
    attn_bias *bias = &t->p.bias;
    attn_gradients *g = &t->g;
    t->gradients = 1;
    g->gemms = 7;
    g->dout.data = a->dout;
    g->dq.data = a->out.dq;
    g->dk.data = a->out.dk;
    g->dv.data = a->out.dv;
    g->dsinks = a->out.dsinks;
    if (!pairs)
        return;
    memset(&t->p.stats, 0, sizeof t->p.stats);
    bias->data = a->bias;
    bias->stride_batch = bias->stride_head = bias->stride_q = ATTN_STRIDE_BROADCAST;
    bias->stride_kv = 1;
    g->dbias.data = a->out.dbias;
    g->dslopes = a->out.dslopes;
}

/* make_trial makes a trial of a program: of a part of attn_forward or of gradients. */
static void make_trial(trial *t, attn_opencl *gpu, cl_handle queue, const variant *v, int part,
                       trial_types types)
{
    attn_logits logits = { .stage = ATTN_LOGITS_SOFTMAX, .data = t->arrays.out.logits };
    memset(t, 0, sizeof *t);
    t->how.gpu = gpu;
    t->how.queue = queue;
    t->how.num_buffers = 1;
    t->how.buffers = &t->named;
    t->named.address = &t->arrays;
    t->named.bytes = sizeof t->arrays;
    t->limits = gpu->limits;
    t->limits.divide = part == PART_ROWS;
    t->p = problem_for(t, v, part, types);
    logits.num_rows = min64(TRIAL_LOGITS, t->p.seq_len_q);
    fill_arrays(t);
    if (part == PART_ROWS)
        t->p.logits = logits;
    if (part == PART_BACKWARD)
        ask_gradients(t, v->pairs);
}

/* join_statistics has m + log2(l) in place of m and l: devices that divide keys in their own order
 * choose another m. */
static void join_statistics(trial_results *of)
{
    int i;
    for (i = 0; i < COUNT_OF(of->stats); i += 2) {
        of->stats[i] = of->stats[i] + log2_canon(of->stats[i + 1]);
        of->stats[i + 1] = 0;
    }
}

/* is_near returns whether the device's results will do; *off is by how much they are off at most. */
static int is_near(const trial *t, float *off)
{
    const float *right = t->arrays.out.o, *got = t->device.o;
    const int count = (int)(sizeof t->device / sizeof *got);
    int i, all_near = 1;
    *off = 0;
    for (i = 0; i < count; i++) {
        const float d = right[i] > got[i] ? right[i] - got[i] : got[i] - right[i];
        if (bits_of(right[i]) == bits_of(got[i]))
            continue;
        if (d > *off || is_nan(d))
            *off = d;
        all_near = all_near && !t->limits.exact && d <= TRIAL_BOUND;
    }
    return all_near;
}

static attn_status call_cpu(trial *t, int gradients)
{
    return gradients ? attn_backward(&t->p, &t->g, t + 1, TRIAL_WORKSPACE)
                     : attn_forward(&t->p, t + 1, TRIAL_WORKSPACE);
}

static attn_status call_device(trial *t)
{
    text nobody = text_in(NULL, 0);
    attn_gradient_call g;
    attn_status status = attn_problem_of(&t->p, &t->pr, NULL, 0);
    if (!status && t->gradients)
        status = resolve_gradients(&t->pr.p, &t->g, &nobody);
    if (status)
        return status;
    g.g = t->g;
    add_axes(&t->pr.p, &g);
    return run_within(&t->limits, &t->how, &t->pr, t->gradients ? &g : NULL, t + 1,
                      TRIAL_WORKSPACE);
}

/* run_trial returns whether CPU and device agree on the problem; *why says how they do not. */
static int run_trial(trial *t, text *why)
{
    const attn_opencl *gpu = t->how.gpu;
    cl_int error = CL_SUCCESS;
    attn_status status = ATTN_OK;
    float off = 0;
    if (t->gradients)
        status = call_cpu(t, 0); /* they read o, and stats or lse */
    t->named.mem = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                          sizeof t->arrays, &t->arrays, &error);
    if (error) {
        explain_error(why, "its arrays", error);
        return 0;
    }
    if (!status)
        status = call_cpu(t, t->gradients);
    if (!status)
        status = call_device(t);
    if (!status)
        error =
            gpu->cl.clEnqueueReadBuffer(t->how.queue, t->named.mem, 1, offsetof(trial_arrays, out),
                                        sizeof t->device, &t->device, 0, NULL, NULL);
    gpu->cl.clReleaseMemObject(t->named.mem);
    if (status || error) {
        put(why, "it did not run");
        return 0;
    }
    if (!t->limits.exact) {
        join_statistics(&t->arrays.out);
        join_statistics(&t->device);
    }
    if (is_near(t, &off))
        return 1;
    put(why, "it is off by ");
    put_float(why, off);
    return 0;
}

/* try_program runs trials on a queue of its own: the caller's may be waiting for the caller. The
 * program stays UNTRIED where there is no memory for it now. */
static int try_program(attn_opencl *gpu, const variant *v, int part, text *why)
{
    const size_t bytes = sizeof(trial) + TRIAL_WORKSPACE;
    cl_int error = CL_SUCCESS;
    cl_handle memory = NULL, queue;
    trial *t = NULL;
    int found = UNTRIED, number;
    queue = gpu->cl.clCreateCommandQueue(gpu->context, gpu->device, 0, &error);
    if (!error)
        memory = gpu->cl.clCreateBuffer(gpu->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR,
                                        bytes, NULL, &error);
    if (!error)
        t = (trial *)gpu->cl.clEnqueueMapBuffer(queue, memory, 1, CL_MAP_READ | CL_MAP_WRITE, 0,
                                                bytes, 0, NULL, NULL, &error);
    if (error) {
        explain_error(why, "memory to try it in", error);
    } else {
        found = TRUSTED;
        for (number = 0; number < count_trials(v, part) && found == TRUSTED; number++) {
            make_trial(t, gpu, queue, v, part, types_of_trial(v, part, number));
            found = run_trial(t, why) ? TRUSTED : DROPPED;
        }
        gpu->cl.clEnqueueUnmapMemObject(queue, memory, t, 0, NULL, NULL);
        gpu->cl.clFinish(queue);
    }
    release(gpu->cl.clReleaseMemObject, memory);
    release(gpu->cl.clReleaseCommandQueue, queue);
    return found;
}

static const char *const distrusted[PART_COUNT] = {
    "kernel forward failed its first check on this device",
    "kernel merge_parts or logits failed its first check on this device",
    "kernel rotate_queries or rotate_results failed its first check on this device",
    "kernels naive failed their first check on this device",
    NULL,
    "kernels of gradients failed their first check on this device",
};

static const char untried[] = "a kernel could not be checked before its first use";

/* verdict_on judges the program of this part, and the kernel forward where it takes part: what is
 * TRUSTED may be used. */
static int verdict_on(attn_opencl *gpu, const variant *forward, int part)
{
    char sentence[200 + MOST_OPTIONS], figure[120];
    text t = text_in(sentence, sizeof sentence), why = text_in(figure, sizeof figure);
    int volatile *verdict;
    int before = UNTRIED, now;
    variant v = *forward;
    v.part = part;
    verdict = &gpu->verdicts[variant_number(&v)];
    now = LOAD(verdict);
    if (now != UNTRIED)
        return now;
    now = try_program(gpu, forward, part, &why);
    if (now != UNTRIED && !STORE_FIRST(verdict, &before, now))
        return before;
    if (now == TRUSTED)
        return now;
    put(&t, now == DROPPED ? distrusted[part] : untried);
    put(&t, ": ");
    put(&t, figure);
    put(&t, "; ");
    build_options(gpu, &v, t.at, t.left);
    say(gpu, ATTN_LOG_WARNING, sentence);
    return now;
}

/* distrust says why the call must not use its programs, or gives NULL. */
static const char *distrust(attn_opencl *gpu, const device_plan *pl)
{
    int part, found;
    for (part = 0; part < PART_COUNT && !gpu->options.unchecked; part++) {
        found = runs(pl, part) ? verdict_on(gpu, &pl->forward, part) : TRUSTED;
        if (found != TRUSTED)
            return found == DROPPED ? distrusted[part] : untried;
    }
    return NULL;
}
