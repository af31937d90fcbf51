/* opencl.c - what attn_opencl.h promises beside results: arrays on the device, events, many threads;
 * opening one and a first call are in opencl_smoke.c. Results: build/test --impl opencl masks laws poison outputs bits stability decode.
 * SPDX-License-Identifier: MIT
 */
#include "../attn_opencl.h"
#include "gradients.h"
#include "laws.h"
#include "pool.h"
#include "system.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a device -------------------------------------------------------------------------------- */

/* Small calls of every kind, so that a simulator that looks at each access ends within seconds. */
typedef struct small_case {
    const char *name;
    int64_t heads_q, rows, keys, dim;
    int dtype, large; /* large: not with ATTN_TEST_QUICK */
    int stats;        /* asked for; gradients read them and no LSE */
    void (*change)(test_problem *t);
} small_case;

static void make_causal(test_problem *t)
{
    t->p.causal = 1;
}

static void make_window(test_problem *t)
{
    t->p.causal = 1;
    t->p.window = ATTN_WINDOW;
    t->p.window_left = 9;
    t->p.window_right = -1;
}

static void make_ragged(test_problem *t)
{
    static const int32_t rows[] = { 3, 20 }, keys[] = { 40, 33 }, from[] = { 5, 0 };
    t->p.q_len = rows;
    t->p.kv_len = keys;
    t->p.kv_begin = from;
}

static void make_paged(test_problem *t)
{
    t->p.causal = 1;
    problem_scatter(t, 16, 0);
}

static void make_ring(test_problem *t)
{
    problem_scatter(t, 0, 1);
}

static void make_redo(test_problem *t)
{
    t->p.window = ATTN_WINDOW;
    t->p.window_left = 9;
    t->p.window_right = 9;
    t->p.force_redo = 1;
}

static void make_modified(test_problem *t)
{
    static const float slopes[] = { 0.5f, 0.25f };
    t->p.softcap = 5;
    t->p.alibi_slopes = slopes;
    t->p.alibi_stride = ATTN_STRIDE_BROADCAST;
    t->p.dropout_p = 0.25f;
}

/* Rows 0 to 10 see nothing; a head has a sink. */
static void make_empty(test_problem *t)
{
    static const float sinks[] = { 0.5f, -HUGE_VALF };
    t->p.sinks = sinks;
    t->p.causal = 1;
}

static void make_paged_quantised(test_problem *t)
{
    make_paged(t);
    quantise_for_levels(t);
}

static const small_case small_cases[] = {
    { "prefill", 2, 20, 70, 24, ATTN_F32, 0, 1, NULL },
    { "prefill of f16", 2, 20, 70, 24, ATTN_F16, 0, 0, NULL },
    { "causal", 2, 20, 50, 24, ATTN_BF16, 0, 0, make_causal },
    { "window", 2, 20, 70, 8, ATTN_F32, 0, 1, make_window },
    { "ragged", 2, 20, 50, 8, ATTN_F32, 0, 1, make_ragged },
    { "paged", 2, 20, 50, 8, ATTN_F32, 0, 0, make_paged },
    { "ring", 2, 9, 50, 8, ATTN_F32, 0, 0, make_ring },
    { "redo", 1, 20, 50, 8, ATTN_F32, 0, 1, make_redo },
    { "softcap, ALiBi, dropout", 2, 20, 50, 8, ATTN_F32, 0, 1, make_modified },
    { "decode", 4, 1, 100, 40, ATTN_F32, 0, 0, NULL },
    { "decode, parts", 1, 1, 2100, 4, ATTN_F32, 0, 1, NULL },
    { "decode, parts of f16", 4, 1, 9000, 64, ATTN_F16, 1, 0, NULL },
    { "chunks in one group", 8, 70, 5000, 24, ATTN_F32, 1, 1, make_causal },
    { "columns of V in slices", 1, 3, 40, 300, ATTN_F32, 1, 1, NULL },
    { "sinks, empty rows", 2, 20, 9, 8, ATTN_F32, 0, 1, make_empty },
    { "quantised", 2, 20, 70, 64, ATTN_F32, 0, 1, quantise_for_levels },
    { "quantised, paged", 2, 20, 50, 64, ATTN_F32, 0, 0, make_paged_quantised },
    { "quantised, decode", 4, 1, 100, 160, ATTN_F32, 0, 1, quantise_for_levels },
    { "quantised, decode, parts", 1, 1, 2100, 32, ATTN_BF16, 0, 0, quantise_for_levels },
};

/* A tensor for the statistics, in any layout. */
static void ask_statistics(attn_params *p, test_tensor *stats)
{
    tensor_make(stats, ATTN_F32, (int)rng_int(0, LAYOUT_NEGATIVE), p->batch, p->num_heads_q,
                p->seq_len_q, 2);
    tensor_remember(stats);
    p->stats = tensor_output(stats);
}

static int same_statistics(const test_tensor *a, const test_tensor *b)
{
    for (int64_t n = 0; n < a->batch * a->heads * a->seq * 2; n++) {
        const int64_t row = n / 2, head = row / a->seq;
        const float x = tensor_get(a, head / a->heads, head % a->heads, row % a->seq, n % 2);
        const float y = tensor_get(b, head / a->heads, head % a->heads, row % a->seq, n % 2);
        if (memcmp(&x, &y, sizeof x) != 0)
            return 0;
    }
    return tensor_gaps_unchanged(a) && tensor_gaps_unchanged(b);
}

/* The case and its problem; 0 = it is left out. */
static int begin_small(const small_case *c, const char *how, test_problem *t)
{
    const int dtype = c->dtype;
    const test_shape shape = { .batch = 2,
                               .heads_q = c->heads_q,
                               .heads_kv = 1,
                               .seq_q = c->rows,
                               .seq_kv = c->keys,
                               .dim = c->dim,
                               .dim_v = c->dim,
                               .dtype_q = dtype,
                               .dtype_k = dtype,
                               .dtype_v = dtype,
                               .dtype_o = dtype };
    if (!begin_case("%s%s", c->name, how) || (c->large && getenv("ATTN_TEST_QUICK") != NULL))
        return 0;
    problem_make(t, &shape);
    if (c->change != NULL)
        c->change(t);
    return 1;
}

static void check_small(attn_opencl *gpu, const char *how)
{
    const attn_backend backend = attn_opencl_backend(gpu, NULL);
    for (size_t i = 0; i < sizeof small_cases / sizeof *small_cases; i++) {
        test_problem cpu, device;
        test_tensor right, got;
        if (!begin_small(&small_cases[i], how, &cpu))
            continue;
        device = cpu;
        problem_new_output(&device);
        device.p.backend = &backend;
        if (small_cases[i].stats) {
            ask_statistics(&cpu.p, &right);
            ask_statistics(&device.p, &got);
        }
        CHECK(problem_run(&cpu) && problem_run(&device), "a run failed");
        CHECK(problem_same_bits(&cpu, &device), "other bits than on the CPU");
        CHECK(!small_cases[i].stats || same_statistics(&right, &got),
              "other statistics than on the CPU");
        CHECK(problem_padding_untouched(&device), "rows beyond q_len were written");
    }
}

static void make_bias_of_keys(test_problem *t)
{
    static float bias[50];
    for (int j = 0; j < 50; j++)
        bias[j] = (float)(j % 7) * 0.25f;
    t->p.bias.data = bias;
    t->p.bias.stride_batch = t->p.bias.stride_head = t->p.bias.stride_q = ATTN_STRIDE_BROADCAST;
    t->p.bias.stride_kv = 1;
    t->p.causal = 1;
}

static void make_bias_of_rows(test_problem *t)
{
    static const float sinks[] = { 0.5f, -1.0f };
    static float bias[2 * 20];
    for (int i = 0; i < 2 * 20; i++)
        bias[i] = (float)(i % 5) * 0.5f;
    t->p.bias.data = bias;
    t->p.bias.stride_batch = t->p.bias.stride_kv = ATTN_STRIDE_BROADCAST;
    t->p.bias.stride_head = 20;
    t->p.bias.stride_q = 1;
    t->p.sinks = sinks;
}

static const small_case small_gradients[] = {
    { "gradients", 2, 20, 70, 24, ATTN_F32, 0, 1, NULL },
    { "gradients, causal, f16", 2, 20, 50, 24, ATTN_F16, 0, 0, make_causal },
    { "gradients, window, bf16", 2, 20, 70, 8, ATTN_BF16, 0, 1, make_window },
    { "gradients, ragged", 2, 20, 50, 8, ATTN_F32, 0, 1, make_ragged },
    { "gradients, redo", 1, 20, 50, 8, ATTN_F32, 0, 0, make_redo },
    { "gradients, softcap, ALiBi, dropout", 2, 20, 50, 8, ATTN_F32, 0, 1, make_modified },
    { "gradients, dbias of keys", 2, 20, 50, 8, ATTN_F32, 0, 0, make_bias_of_keys },
    { "gradients, dbias of rows, dsinks", 2, 20, 50, 8, ATTN_F32, 0, 1, make_bias_of_rows },
    { "gradients, chunks of rows and keys", 2, 1100, 1100, 72, ATTN_F32, 1, 1, make_causal },
    { "gradients, slices", 2, 70, 130, 300, ATTN_F32, 1, 0, NULL },
    { "gradients, sinks, empty rows", 2, 20, 9, 8, ATTN_F32, 0, 1, make_empty },
    { "gradients, sinks, empty rows, by the LSE", 2, 20, 9, 8, ATTN_F32, 0, 0, make_empty },
};

/* attn_backward on the device and on the CPU. */
static void check_small_gradients(attn_opencl *gpu, const char *how)
{
    const attn_backend backend = attn_opencl_backend(gpu, NULL);
    for (size_t i = 0; i < sizeof small_gradients / sizeof *small_gradients; i++) {
        gradients_case cpu, device;
        attn_backward_info info;
        test_tensor stats;
        if (!begin_small(&small_gradients[i], how, &cpu.t))
            continue;
        gradients_attach(&cpu);
        if (small_gradients[i].stats)
            ask_statistics(&cpu.t.p, &stats);
        if (!gradients_forward(&cpu))
            continue;
        if (small_gradients[i].stats)
            cpu.t.p.lse.data = NULL;
        gradients_twin(&cpu, &device);
        device.t.p.backend = &backend;
        CHECK(attn_backward_explain(&device.t.p, &device.g, &info) == ATTN_OK &&
                  strcmp(info.backend_name, "opencl") == 0,
              "it runs on %s: %s", info.backend_name, info.reasons);
        if (gradients_run(&cpu) && gradients_run(&device))
            gradients_same(&cpu, &device, "the device");
    }
}

enum { HEADS = 4, KV_HEADS = 2, ROWS = 37, KEYS = 150, DIM = 40 };
enum { Q, K, V, O, TENSORS };
static const size_t lengths[TENSORS] = { HEADS * ROWS * DIM, KV_HEADS *KEYS *DIM,
                                         KV_HEADS *KEYS *DIM, HEADS *ROWS *DIM };

/* The few functions of OpenCL that a program needs for arrays of its own. */
typedef struct driver {
    void *(*create)(void *context, uint64_t flags, size_t bytes, void *host, int32_t *error);
    int32_t (*write)(void *queue, void *memory, uint32_t wait, size_t offset, size_t bytes,
                     const void *from, uint32_t count, void *const *events, void **event);
    int32_t (*read)(void *queue, void *memory, uint32_t wait, size_t offset, size_t bytes, void *to,
                    uint32_t count, void *const *events, void **event);
    int32_t (*release)(void *memory);
    int32_t (*wait)(uint32_t count, void *const *events);
    int32_t (*release_event)(void *event);
    void *(*user_event)(void *context, int32_t *error);
    int32_t (*set_status)(void *event, int32_t status);
    void *(*queue)(void *context, void *device, uint64_t properties, int32_t *error);
    int32_t (*release_queue)(void *queue);
} driver;

static int load_driver(driver *d)
{
    void *library = system_opencl();
    return library != NULL && system_find(library, "clCreateBuffer", &d->create) &&
           system_find(library, "clEnqueueWriteBuffer", &d->write) &&
           system_find(library, "clEnqueueReadBuffer", &d->read) &&
           system_find(library, "clReleaseMemObject", &d->release) &&
           system_find(library, "clWaitForEvents", &d->wait) &&
           system_find(library, "clReleaseEvent", &d->release_event) &&
           system_find(library, "clCreateUserEvent", &d->user_event) &&
           system_find(library, "clSetUserEventStatus", &d->set_status) &&
           system_find(library, "clCreateCommandQueue", &d->queue) &&
           system_find(library, "clReleaseCommandQueue", &d->release_queue);
}

/* One call with host arrays, run on the CPU: what all others must equal. */
typedef struct subject {
    attn_opencl *gpu;
    attn_opencl_info info;
    driver cl;
    attn_params p;
    float *data[TENSORS];
} subject;

static attn_status run(const attn_params *p)
{
    size_t need = 0;
    const attn_status status = attn_workspace_size(p, &need);
    return status == ATTN_OK ? attn_forward(p, test_alloc(need), need) : status;
}

static void make_subject(subject *s)
{
    attn_params *p = &s->p;
    memset(p, 0, sizeof *p);
    for (int t = 0; t < TENSORS; t++) {
        s->data[t] = test_alloc(lengths[t] * sizeof(float));
        for (size_t i = 0; i < lengths[t]; i++)
            s->data[t][i] = 2 * rng_normal();
    }
    p->batch = 1;
    p->num_heads_q = HEADS;
    p->num_heads_kv = KV_HEADS;
    p->seq_len_q = ROWS;
    p->seq_len_kv = KEYS;
    p->head_dim = DIM;
    p->causal = 1;
    p->q.data = s->data[Q];
    p->k.data = s->data[K];
    p->v.data = s->data[V];
    p->o.data = s->data[O];
    CHECK(run(p) == ATTN_OK, "the CPU refuses");
}

static int same_output(const subject *s, const float *o)
{
    return memcmp(o, s->data[O], lengths[O] * sizeof(float)) == 0;
}

/* The tensors on the device, each `shift` floats behind the start of its buffer, under addresses
 * that are only names. */
typedef struct on_device {
    void *memory[TENSORS];
    attn_opencl_buffer named[TENSORS];
} on_device;

static void send(const subject *s, on_device *d, size_t shift)
{
    memset(d, 0, sizeof *d);
    for (int t = 0; t < TENSORS; t++) {
        const size_t bytes = lengths[t] * sizeof(float), before = shift * sizeof(float);
        int32_t error = -1;
        d->memory[t] = s->cl.create(s->info.context, 1, bytes + before, NULL, &error);
        CHECK(error == 0, "clCreateBuffer: %d", (int)error);
        if (t != O)
            CHECK(s->cl.write(s->info.queue, d->memory[t], 1, before, bytes, s->data[t], 0, NULL,
                              NULL) == 0,
                  "clEnqueueWriteBuffer");
        d->named[t].address = (const void *)(uintptr_t)(0x10000000u * (unsigned)(t + 1));
        d->named[t].bytes = bytes;
        d->named[t].mem = d->memory[t];
        d->named[t].offset = before;
    }
}

static void release(const subject *s, on_device *d)
{
    for (int t = 0; t < TENSORS; t++)
        s->cl.release(d->memory[t]);
}

static void name_tensors(attn_params *p, const on_device *d)
{
    p->q.data = d->named[Q].address;
    p->k.data = d->named[K].address;
    p->v.data = d->named[V].address;
    p->o.data = (void *)(uintptr_t)d->named[O].address;
}

static float *fetch(const subject *s, const on_device *d)
{
    float *o = test_alloc(lengths[O] * sizeof *o);
    CHECK(s->cl.read(s->info.queue, d->memory[O], 1, d->named[O].offset, lengths[O] * sizeof *o, o,
                     0, NULL, NULL) == 0,
          "clEnqueueReadBuffer");
    return o;
}

static void check_buffers(subject *s)
{
    for (size_t shift = 0; shift < 12; shift += 11) {
        attn_opencl_call call = { 0 };
        const attn_backend backend = attn_opencl_backend(s->gpu, &call);
        on_device d;
        attn_params p;
        if (!begin_case("arrays on the device, %d floats behind its start", (int)shift))
            continue;
        make_subject(s);
        send(s, &d, shift);
        call.num_buffers = TENSORS;
        call.buffers = d.named;
        p = s->p;
        p.backend = &backend;
        name_tensors(&p, &d);
        CHECK(run(&p) == ATTN_OK, "refused");
        CHECK(same_output(s, fetch(s, &d)), "other bits than with host arrays");
        release(s, &d);
    }
}

/* The functions of OpenCL 2.0 for memory that host and device share. */
typedef struct shared_memory {
    void *(*alloc)(void *context, uint64_t flags, size_t bytes, uint32_t alignment);
    void (*release)(void *context, void *memory);
    int32_t (*map)(void *queue, uint32_t wait, uint64_t flags, void *memory, size_t bytes,
                   uint32_t count, void *const *events, void **event);
    int32_t (*unmap)(void *queue, void *memory, uint32_t count, void *const *events, void **event);
    int32_t (*device)(void *device, uint32_t what, size_t bytes, void *to, size_t *size);
} shared_memory;

static int load_shared_memory(shared_memory *m, const attn_opencl_info *info)
{
    void *library = system_opencl();
    const uint32_t svm_capabilities = 0x1053;
    uint64_t kinds = 0;
    return library != NULL && system_find(library, "clSVMAlloc", &m->alloc) &&
           system_find(library, "clSVMFree", &m->release) &&
           system_find(library, "clEnqueueSVMMap", &m->map) &&
           system_find(library, "clEnqueueSVMUnmap", &m->unmap) &&
           system_find(library, "clGetDeviceInfo", &m->device) &&
           m->device(info->device_id, svm_capabilities, sizeof kinds, &kinds, NULL) == 0 &&
           (kinds & 1) != 0;
}

/* All tensors in one piece of shared memory, under their own addresses. */
static void check_shared_memory(subject *s)
{
    attn_opencl_call call = { 0 };
    const attn_backend backend = attn_opencl_backend(s->gpu, &call);
    attn_opencl_buffer all = { 0 };
    shared_memory m;
    attn_params p;
    size_t floats = 0, from[TENSORS];
    float *memory;
    if (!begin_case("arrays in shared virtual memory"))
        return;
    if (!load_shared_memory(&m, &s->info)) {
        SKIP("%s has none", s->info.device);
        return;
    }
    make_subject(s);
    for (int t = 0; t < TENSORS; t++) {
        from[t] = floats;
        floats += lengths[t];
    }
    all.bytes = floats * sizeof *memory;
    memory = m.alloc(s->info.context, 1, all.bytes, 0);
    if (!CHECK(memory != NULL && m.map(s->info.queue, 1, 2, memory, all.bytes, 0, NULL, NULL) == 0,
               "clSVMAlloc or clEnqueueSVMMap"))
        return;
    for (int t = 0; t < TENSORS; t++)
        memcpy(memory + from[t], s->data[t], t == O ? 0 : lengths[t] * sizeof *memory);
    CHECK(m.unmap(s->info.queue, memory, 0, NULL, NULL) == 0, "clEnqueueSVMUnmap");
    all.address = all.mem = memory;
    all.svm = 1;
    call.num_buffers = 1;
    call.buffers = &all;
    p = s->p;
    p.backend = &backend;
    p.q.data = memory + from[Q];
    p.k.data = memory + from[K];
    p.v.data = memory + from[V];
    p.o.data = memory + from[O];
    CHECK(run(&p) == ATTN_OK, "refused");
    CHECK(m.map(s->info.queue, 1, 1, memory, all.bytes, 0, NULL, NULL) == 0, "clEnqueueSVMMap");
    CHECK(same_output(s, memory + from[O]), "other bits than with host arrays");
    CHECK(m.unmap(s->info.queue, memory, 0, NULL, NULL) == 0, "clEnqueueSVMUnmap");
    m.release(s->info.context, memory);
}

/* q as the host's, with gaps between its rows, so that it is copied. */
static void copy_queries(const subject *s, attn_params *p)
{
    const ptrdiff_t gap = DIM + 3;
    float *q = test_alloc((size_t)(HEADS * ROWS * gap) * sizeof *q);
    for (int i = 0; i < HEADS * ROWS; i++)
        memcpy(q + i * gap, s->data[Q] + i * DIM, DIM * sizeof *q);
    p->q.data = q;
    p->q.stride_seq = gap;
    p->q.stride_head = ROWS * gap;
    p->q.stride_batch = HEADS * ROWS * gap;
}

/* The call waits for an event of the caller's and returns before it has happened. Copies of host
 * arrays do not wait for it. */
static void check_events(subject *s, int copied)
{
    attn_opencl_call call = { 0 };
    const attn_backend backend = attn_opencl_backend(s->gpu, &call);
    void *before, *end = NULL;
    const int early = getenv("ATTN_TEST_QUICK") != NULL; /* simulators run what is flushed */
    int32_t error = -1;
    on_device d;
    attn_params p;
    if (!begin_case("a call between two events%s", copied ? ", an input copied" : ""))
        return;
    make_subject(s);
    send(s, &d, 0);
    before = s->cl.user_event(s->info.context, &error);
    CHECK(error == 0, "clCreateUserEvent: %d", (int)error);
    call.num_buffers = TENSORS;
    call.buffers = d.named;
    call.num_wait = 1;
    call.wait = &before;
    call.event = &end;
    p = s->p;
    p.backend = &backend;
    name_tensors(&p, &d);
    if (copied)
        copy_queries(s, &p);
    if (early)
        CHECK(s->cl.set_status(before, 0) == 0, "clSetUserEventStatus");
    CHECK(run(&p) == ATTN_OK && end != NULL, "refused");
    if (!early)
        CHECK(s->cl.set_status(before, 0) == 0, "clSetUserEventStatus");
    CHECK(s->cl.wait(1, &end) == 0, "clWaitForEvents");
    CHECK(same_output(s, fetch(s, &d)), "other bits than on the CPU");
    s->cl.release_event(end);
    s->cl.release_event(before);
    release(s, &d);
}

/* Memory stays with the object for later calls, as much as the header says. */
static void check_pool(subject *s, const attn_opencl_options *o)
{
    attn_opencl *gpu = malloc(attn_opencl_size());
    const attn_backend backend = attn_opencl_backend(gpu, NULL);
    attn_opencl_info info[2];
    if (begin_case("memory that stays for later calls")) {
        make_subject(s);
        CHECK(attn_opencl_open(gpu, o) == ATTN_OK, "%s", attn_opencl_why(gpu));
        for (int i = 0; i < 2; i++) {
            attn_params p = s->p;
            p.backend = &backend;
            p.o.data = test_alloc(lengths[O] * sizeof(float));
            CHECK(run(&p) == ATTN_OK && same_output(s, p.o.data), "other bits");
            CHECK(attn_opencl_info_get(gpu, &info[i]) == ATTN_OK, "no information");
        }
        CHECK(info[0].pool_bytes > 0 && info[0].pool_bytes == info[1].pool_bytes,
              "%zu bytes, then %zu", info[0].pool_bytes, info[1].pool_bytes);
        attn_opencl_close(gpu);
    }
    free(gpu);
}

/* The first call of an object waits on one queue while another one runs on a second queue, which
 * must not take memory that the first still needs. */
static void check_waiting_memory(subject *s)
{
    attn_opencl_call waiting = { 0 }, other = { 0 };
    const attn_backend backends[] = { attn_opencl_backend(s->gpu, &waiting),
                                      attn_opencl_backend(s->gpu, &other) };
    void *before, *end = NULL;
    int32_t errors[2] = { -1, -1 };
    on_device d;
    attn_params p = s->p;
    float *expected = test_alloc(lengths[O] * sizeof *expected);
    p.causal = 0;
    p.o.data = expected;
    CHECK(run(&p) == ATTN_OK, "the CPU refuses");
    send(s, &d, 0);
    other.queue = s->cl.queue(s->info.context, s->info.device_id, 0, &errors[0]);
    before = s->cl.user_event(s->info.context, &errors[1]);
    CHECK(errors[0] == 0 && errors[1] == 0, "a queue: %d, an event: %d", errors[0], errors[1]);
    waiting.num_buffers = TENSORS;
    waiting.buffers = d.named;
    waiting.num_wait = 1;
    waiting.wait = &before;
    waiting.event = &end;
    p = s->p;
    p.backend = &backends[0];
    name_tensors(&p, &d);
    CHECK(run(&p) == ATTN_OK && end != NULL, "refused");
    p = s->p;
    p.causal = 0;
    p.backend = &backends[1];
    p.o.data = test_alloc(lengths[O] * sizeof(float));
    for (int i = 0; i < 2; i++) { /* the second takes memory in the other order */
        CHECK(run(&p) == ATTN_OK, "refused on the other queue");
        CHECK(memcmp(p.o.data, expected, lengths[O] * sizeof(float)) == 0, "other bits at once");
    }
    CHECK(s->cl.set_status(before, 0) == 0, "clSetUserEventStatus");
    CHECK(s->cl.wait(1, &end) == 0, "clWaitForEvents");
    CHECK(same_output(s, fetch(s, &d)), "other bits behind the event");
    s->cl.release_event(end);
    s->cl.release_event(before);
    s->cl.release_queue(other.queue);
    release(s, &d);
}

static void check_pool_of_queues(const subject *s, const attn_opencl_options *o)
{
    subject of = *s;
    attn_opencl_options options = *o;
    if (!begin_case("memory of a call that waits") || getenv("ATTN_TEST_QUICK") != NULL)
        return;
    options.unchecked = 1; /* checks would leave memory that no queue needs */
    of.gpu = malloc(attn_opencl_size());
    make_subject(&of);
    if (CHECK(attn_opencl_open(of.gpu, &options) == ATTN_OK &&
                  attn_opencl_info_get(of.gpu, &of.info) == ATTN_OK,
              "%s", attn_opencl_why(of.gpu)))
        check_waiting_memory(&of);
    attn_opencl_close(of.gpu);
    free(of.gpu);
}

/* An event with an output that the host must fetch: refused before anything is written. */
static void check_event_of_host(subject *s)
{
    void *end = NULL;
    attn_opencl_call call = { 0 };
    attn_backend backend = attn_opencl_backend(s->gpu, &call);
    attn_params p;
    attn_info info;
    if (!begin_case("an event, but results of the host's"))
        return;
    make_subject(s);
    call.event = &end;
    p = s->p;
    p.backend = &backend;
    CHECK(attn_explain(&p, &info) == ATTN_ERR_UNSUPPORTED, "accepted");
    CHECK(strcmp(info.backend_name, "none") == 0, "taken by %s", info.backend_name);
    CHECK(strstr(info.reasons, "o is not in call.buffers") != NULL, "it says \"%s\"", info.reasons);
    CHECK(run(&p) == ATTN_ERR_UNSUPPORTED && end == NULL, "it ran");
}

/* What the device refuses must not run on the CPU where arrays are the device's. */
static void check_bound(subject *s, attn_score_fn score)
{
    attn_opencl_call call = { 0 };
    const attn_backend backend = attn_opencl_backend(s->gpu, &call);
    on_device d;
    attn_params p;
    char why[300];
    if (!begin_case("a callback, but arrays on the device"))
        return;
    make_subject(s);
    send(s, &d, 0);
    call.num_buffers = TENSORS;
    call.buffers = d.named;
    p = s->p;
    p.backend = &backend;
    p.score = score;
    name_tensors(&p, &d);
    CHECK(run(&p) == ATTN_ERR_UNSUPPORTED, "it ran");
    attn_check(&p, NULL, 0, why, sizeof why);
    CHECK(strstr(why,
                 "opencl refused: score is set, but a device does not take it; the CPU cannot") !=
              NULL,
          "it says \"%s\"", why);
    release(s, &d);
}

/* ---- buffers that are not what they are said to be */

static char heard[300];

static void hear(void *user, int level, const char *sentence)
{
    (void)user;
    if (level == ATTN_LOG_WARNING)
        snprintf(heard, sizeof heard, "%s", sentence);
}

static void check_wrong_buffers(subject *s)
{
    static const struct {
        const char *sentence;
        size_t offset, bytes;
        int tensor, no_memory;
    } faults[] = {
        { "mem is NULL", 0, 0, O, 1 },
        { "an array exceeds the bytes of its buffer", 0, 64, O, 0 },
        { "an array exceeds the bytes of its buffer", 0, 64, K, 0 },
        { "offset is no multiple of the alignment of an array's elements", 2, 0, Q, 0 },
        { "offset + bytes exceed the cl_mem", (size_t)1 << 20, 0, V, 0 },
        { "offset + bytes exceed the cl_mem", SIZE_MAX - 3, 0, O, 0 },
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        attn_opencl_call call = { 0 };
        const attn_backend backend = attn_opencl_backend(s->gpu, &call);
        attn_opencl_buffer *named;
        on_device d;
        attn_params p;
        if (!begin_case("a wrong buffer: %s", faults[i].sentence))
            continue;
        make_subject(s);
        send(s, &d, 0);
        named = &d.named[faults[i].tensor];
        named->mem = faults[i].no_memory ? NULL : named->mem;
        named->offset += faults[i].offset;
        named->bytes = faults[i].bytes ? faults[i].bytes : named->bytes;
        call.num_buffers = TENSORS;
        call.buffers = d.named;
        p = s->p;
        p.backend = &backend;
        p.log = hear;
        name_tensors(&p, &d);
        heard[0] = 0;
        CHECK(run(&p) == ATTN_ERR_CALLBACK, "taken");
        CHECK(strstr(heard, faults[i].sentence) != NULL, "it says \"%s\"", heard);
        release(s, &d);
    }
}

/* ---- many threads, kernels being built by all of them at first */

typedef struct crowd {
    attn_params p[8];
    void *workspace[8];
    size_t bytes;
    attn_status status[8];
} crowd;

static void one_of_many(void *arg, int64_t index, int worker)
{
    crowd *c = arg;
    (void)worker;
    c->status[index] = attn_forward(&c->p[index], c->workspace[index], c->bytes);
}

static void check_threads(subject *s, const attn_opencl_options *o)
{
    attn_opencl *fresh;
    attn_backend backend;
    static crowd c;
    pool threads = pool_of(4, POOL_SHUFFLED, 1);
    if (!begin_case("many threads at once") || getenv("ATTN_TEST_QUICK") != NULL)
        return; /* a simulator may not be safe for threads */
    fresh = test_alloc(attn_opencl_size());
    make_subject(s);
    CHECK(attn_opencl_open(fresh, o) == ATTN_OK, "%s", attn_opencl_why(fresh));
    backend = attn_opencl_backend(fresh, NULL);
    s->p.backend = &backend;
    attn_workspace_size(&s->p, &c.bytes);
    for (int i = 0; i < 8; i++) {
        c.p[i] = s->p;
        c.p[i].o.data = test_alloc(lengths[O] * sizeof(float));
        c.workspace[i] = test_alloc(c.bytes);
    }
    pool_for(&threads, 8, one_of_many, &c);
    for (int i = 0; i < 8; i++)
        CHECK(c.status[i] == ATTN_OK && same_output(s, c.p[i].o.data), "call %d: %s", i,
              attn_status_string(c.status[i]));
    attn_opencl_close(fresh);
}

/* A call that reads nothing of the device's, or that it refuses, runs on the CPU. */
static float same_logit(void *user, const attn_pair *at, float logit)
{
    (void)user;
    (void)at;
    return logit;
}

static void check_refusal(subject *s)
{
    const attn_backend backend = attn_opencl_backend(s->gpu, NULL);
    float *o;
    attn_params p;
    attn_info info;
    if (!begin_case("a callback runs on the CPU"))
        return;
    make_subject(s);
    o = test_alloc(lengths[O] * sizeof *o);
    p = s->p;
    p.backend = &backend;
    p.score = same_logit;
    p.o.data = o;
    CHECK(attn_explain(&p, &info) == ATTN_OK && strcmp(info.backend_name, "cpu") == 0, "%s",
          info.backend_name);
    CHECK(strstr(info.reasons, "opencl refused: score is set, but a device does not take it") !=
              NULL,
          "it says \"%s\"", info.reasons);
    CHECK(run(&p) == ATTN_OK, "refused");
}

/* A device knows no parts: neither of a call nor of its gradients. */
static void check_part(subject *s)
{
    const attn_backend backend = attn_opencl_backend(s->gpu, NULL);
    const char *expected = "opencl refused: part.rows (1) is set, but a device does not take it";
    attn_gradients g = { 0 };
    attn_params p;
    attn_info info;
    attn_backward_info back;
    if (!begin_case("a part runs on the CPU"))
        return;
    make_subject(s);
    p = s->p;
    p.backend = &backend;
    p.part.rows = 1;
    p.part.row_begin = 3;
    p.part.row_count = ROWS - 7;
    CHECK(attn_explain(&p, &info) == ATTN_OK && strstr(info.reasons, expected) != NULL,
          "it says \"%s\"", info.reasons);
    g.dq.data = s->p.o.data;
    CHECK(attn_backward_explain(&p, &g, &back) == ATTN_OK && strstr(back.reasons, expected) != NULL,
          "of gradients it says \"%s\"", back.reasons);
}

/* The library on a context, a device and a queue of somebody else, here of s->gpu, which goes on
 * working when the library has closed them. */
static void check_given_queue(subject *s, const attn_opencl_options *o)
{
    attn_opencl *const gpus[] = { malloc(attn_opencl_size()), s->gpu };
    attn_opencl_options options = *o;
    attn_opencl_info info;
    if (begin_case("a queue of the caller")) {
        options.context = s->info.context;
        options.device_id = s->info.device_id;
        options.queue = s->info.queue;
        make_subject(s);
        CHECK(attn_opencl_open(gpus[0], &options) == ATTN_OK, "%s", attn_opencl_why(gpus[0]));
        CHECK(attn_opencl_info_get(gpus[0], &info) == ATTN_OK && info.queue == options.queue &&
                  info.context == options.context && info.device_id == options.device_id,
              "other handles");
        for (int i = 0; i < 2; i++) {
            const attn_backend backend = attn_opencl_backend(gpus[i], NULL);
            attn_params p = s->p;
            p.backend = &backend;
            p.o.data = test_alloc(lengths[O] * sizeof(float));
            CHECK(run(&p) == ATTN_OK && same_output(s, p.o.data), "%s", attn_opencl_why(gpus[i]));
            attn_opencl_close(gpus[0]);
        }
    }
    free(gpus[0]);
}

/* Kernels rely on the order of their queue. */
static void check_unordered_queue(subject *s, const attn_opencl_options *o)
{
    attn_opencl *gpu = malloc(attn_opencl_size());
    attn_opencl_options options = *o;
    attn_opencl_call call = { 0 };
    const attn_backend backend = attn_opencl_backend(s->gpu, &call);
    int32_t error = -1;
    if (!begin_case("a queue without order")) {
        free(gpu);
        return;
    }
    options.context = s->info.context;
    options.device_id = s->info.device_id;
    options.queue = call.queue = s->cl.queue(options.context, options.device_id, 1, &error);
    if (error != 0) {
        SKIP("%s has none", s->info.device);
    } else {
        CHECK(attn_opencl_open(gpu, &options) == ATTN_ERR_ARG &&
                  strcmp(attn_opencl_why(gpu), "options.queue must take its commands in order") ==
                      0,
              "%s", attn_opencl_why(gpu));
        attn_opencl_close(gpu);
        make_subject(s);
        s->p.backend = &backend;
        s->p.log = hear;
        heard[0] = 0;
        CHECK(run(&s->p) == ATTN_ERR_CALLBACK, "taken");
        CHECK(strstr(heard, "call.queue must take its commands in order") != NULL, "it says \"%s\"",
              heard);
        s->cl.release_queue(options.queue);
    }
    free(gpu);
}

/* The times of a call on a queue that measures; none are promised together with an event. */
static void check_times(subject *s, const attn_opencl_options *o)
{
    attn_opencl_options options = *o;
    attn_opencl *gpu = malloc(attn_opencl_size());
    attn_opencl_times times;
    attn_opencl_call call = { 0 };
    attn_backend backend;
    attn_params p;
    attn_info info;
    void *end = NULL;
    if (begin_case("the times of a call")) {
        options.profiling = 1;
        make_subject(s);
        CHECK(attn_opencl_open(gpu, &options) == ATTN_OK, "%s", attn_opencl_why(gpu));
        memset(&times, 0xff, sizeof times);
        call.times = &times;
        backend = attn_opencl_backend(gpu, &call);
        p = s->p;
        p.backend = &backend;
        CHECK(run(&p) == ATTN_OK, "refused");
        CHECK(times.kernels >= 1 && times.kernels <= 2, "%d kernels", times.kernels);
        CHECK(times.compute > 0 && times.compute < 100, "%g s for the kernels", times.compute);
        CHECK(times.to_device >= 0 && times.to_device < 100 && times.to_host >= 0 &&
                  times.to_host < 100,
              "%g s in, %g s out", times.to_device, times.to_host);
        call.event = &end;
        CHECK(attn_explain(&p, &info) == ATTN_ERR_UNSUPPORTED &&
                  strstr(info.reasons, "not in call.buffers") != NULL,
              "%s", info.reasons);
        attn_opencl_close(gpu);
    }
    free(gpu);
}

/* Two sequences share keys 0..USED-1, and what comes behind them may not even be there. */
static void check_shared_rows(attn_opencl *gpu)
{
    enum { USED = 32, WIDTH = 8, COUNT = USED * WIDTH };
    static const int32_t kv_len[] = { USED, USED };
    const attn_backend backend = attn_opencl_backend(gpu, NULL);
    float q[2 * WIDTH], cpu[2 * WIDTH], device[2 * WIDTH];
    attn_params p = { 0 };
    if (!begin_case("sequences that share keys, and others that are not there"))
        return;
    float *const keys = test_alloc_at(COUNT * sizeof *keys, PLACE_PAGE_AFTER);
    for (int i = 0; i < COUNT; i++)
        keys[i] = rng_normal();
    for (int i = 0; i < 2 * WIDTH; i++)
        q[i] = rng_normal();
    p.batch = 2;
    p.num_heads_q = p.num_heads_kv = p.seq_len_q = 1;
    p.seq_len_kv = 2 * USED; /* as many rows as both use together */
    p.head_dim = p.head_dim_v = WIDTH;
    p.kv_len = kv_len;
    p.q.data = q;
    p.k.data = p.v.data = keys;
    p.k.stride_batch = p.v.stride_batch = ATTN_STRIDE_BROADCAST;
    p.o.data = cpu;
    CHECK(run(&p) == ATTN_OK, "the CPU");
    p.backend = &backend;
    p.o.data = device;
    CHECK(run(&p) == ATTN_OK, "the device");
    CHECK(memcmp(cpu, device, sizeof cpu) == 0, "other bits than on the CPU");
}

/* A device that has memory of its own gets copies, which one that shares the host's makes when
 * asked. */
static void check_copies(const subject *s, const attn_opencl_options *o)
{
    attn_opencl_options copies = *o;
    attn_opencl *gpu = malloc(attn_opencl_size());
    copies.copies = 1;
    if (s->info.shares_memory &&
        CHECK(attn_opencl_open(gpu, &copies) == ATTN_OK, "%s", attn_opencl_why(gpu))) {
        check_small(gpu, ", copied");
        check_small_gradients(gpu, ", copied");
        check_shared_rows(gpu);
        attn_opencl_close(gpu);
    }
    free(gpu);
}

/* What is too small for the device runs on the CPU. */
static void check_least_flops(subject *s, const attn_opencl_options *o)
{
    const double flops = 2.0 * HEADS * ROWS * KEYS * (DIM + DIM) / 2;
    attn_opencl *gpu = malloc(attn_opencl_size());
    attn_opencl_options options = *o;
    for (int below = 0; below < 2; below++) {
        attn_backend backend;
        attn_params p;
        attn_info info;
        if (!begin_case("least_flops %s the call's", below ? "just above" : "exactly"))
            continue;
        options.least_flops = below ? flops * 1.001 : flops;
        make_subject(s);
        CHECK(attn_opencl_open(gpu, &options) == ATTN_OK, "%s", attn_opencl_why(gpu));
        backend = attn_opencl_backend(gpu, NULL);
        p = s->p;
        p.backend = &backend;
        CHECK(attn_explain(&p, &info) == ATTN_OK &&
                  strcmp(info.backend_name, below ? "cpu" : "opencl") == 0,
              "%s", info.reasons);
        CHECK((strstr(info.reasons, "least_flops") != NULL) == below, "%s", info.reasons);
        CHECK(run(&p) == ATTN_OK, "refused");
        attn_opencl_close(gpu);
    }
    free(gpu);
}

static void check_device(void)
{
    static subject s;
    attn_opencl_options o = { 0 };
    attn_opencl *gpu = malloc(attn_opencl_size());
    o.exact = 1;
    o.unchecked = getenv("ATTN_TEST_UNCHECKED") != NULL;
    o.device = getenv("ATTN_TEST_DEVICE");
    if (attn_opencl_open(gpu, &o) != ATTN_OK) {
        SKIP("%s", attn_opencl_why(gpu));
    } else if (attn_opencl_info_get(gpu, &s.info) != ATTN_OK || !s.info.exact) {
        SKIP("%s: %s", s.info.device, s.info.exact_why);
    } else if (CHECK(load_driver(&s.cl), "the functions that programs use are not there")) {
        s.gpu = gpu;
        check_small(gpu, "");
        check_copies(&s, &o);
        check_small_gradients(gpu, "");
        check_buffers(&s);
        check_shared_memory(&s);
        check_events(&s, 0);
        check_events(&s, 1);
        check_pool(&s, &o);
        check_pool_of_queues(&s, &o);
        check_event_of_host(&s);
        check_refusal(&s);
        check_bound(&s, same_logit);
        check_wrong_buffers(&s);
        check_given_queue(&s, &o);
        check_unordered_queue(&s, &o);
        check_times(&s, &o);
        check_least_flops(&s, &o);
        check_threads(&s, &o);
        check_part(&s);
    }
    attn_opencl_close(gpu);
    free(gpu);
}

TEST_GROUP(opencl, RUN_IF_NAMED, "a device: arrays on it, events, threads; minutes")
{
    check_device();
}
