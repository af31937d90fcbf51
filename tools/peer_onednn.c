/* peer_onednn.c - attention and a matrix product by oneDNN's graph API, on its CPU engine.
 * SPDX-License-Identifier: MIT
 *
 * `make compare-peers ONEDNN=PREFIX` compiles it where PREFIX/include/oneapi/dnnl/dnnl_graph.h
 * is. */
#include "peer_onednn.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <oneapi/dnnl/dnnl_graph.h>

/* The tensors of a graph; their numbers are oneDNN's ids of them, too. */
enum { Q, K, V, SCALE, MASK, LOGITS, SCALED, MASKED, WEIGHTS, O, TENSORS, NONE };
enum { MOST_DIMS = 5, MOST_INPUTS = 5 };

enum attribute { PLAIN, TRANSPOSED_B, LAST_AXIS };

/* One operation: out = kind(a, b). */
typedef struct step {
    dnnl_graph_op_kind_t kind;
    int a, b, out;
    enum attribute attribute;
} step;

static const step full[] = {
    { dnnl_graph_op_matmul, Q, K, LOGITS, TRANSPOSED_B },
    { dnnl_graph_op_multiply, LOGITS, SCALE, SCALED, PLAIN },
    { dnnl_graph_op_softmax, SCALED, NONE, WEIGHTS, LAST_AXIS },
    { dnnl_graph_op_matmul, WEIGHTS, V, O, PLAIN },
};
static const step causal[] = {
    { dnnl_graph_op_matmul, Q, K, LOGITS, TRANSPOSED_B },
    { dnnl_graph_op_multiply, LOGITS, SCALE, SCALED, PLAIN },
    { dnnl_graph_op_add, SCALED, MASK, MASKED, PLAIN },
    { dnnl_graph_op_softmax, MASKED, NONE, WEIGHTS, LAST_AXIS },
    { dnnl_graph_op_matmul, WEIGHTS, V, O, PLAIN },
};
static const step product[] = { { dnnl_graph_op_matmul, Q, K, O, PLAIN } };

enum { FULL_STEPS = 4, CAUSAL_STEPS = 5, PRODUCT_STEPS = 1 };

struct peer_onednn {
    dnnl_status_t status; /* of the first call that failed */
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_graph_graph_t graph;
    dnnl_graph_partition_t partition;
    dnnl_graph_compiled_partition_t compiled;
    dnnl_graph_logical_tensor_t described[TENSORS], in[MOST_INPUTS], out;
    void *data[TENSORS]; /* NULL: oneDNN's own */
    const_dnnl_graph_tensor_t inputs[MOST_INPUTS], output;
    size_t in_count;
    float scale;
    float *mask;
};

static int ok(peer_onednn *p, dnnl_status_t status)
{
    if (p->status == dnnl_success)
        p->status = status;
    return p->status == dnnl_success;
}

/* [1, outer..., rows, columns], contiguous. */
static void describe(peer_onednn *p, int id, dnnl_data_type_t type, const dnnl_dim_t *outer,
                     int outer_count, dnnl_dim_t rows, dnnl_dim_t columns)
{
    dnnl_dims_t dims = { 1 };
    int n = 1;
    for (int i = 0; i < outer_count; i++)
        dims[n++] = outer[i];
    dims[n++] = rows;
    dims[n++] = columns;
    ok(p, dnnl_graph_logical_tensor_init_with_dims(&p->described[id], (size_t)id, type, n, dims,
                                                   dnnl_graph_layout_type_strided,
                                                   dnnl_graph_tensor_property_variable));
}

static void describe_attention(peer_onednn *p, const peer_shape *s)
{
    static const dnnl_data_type_t types[] = { dnnl_f32, dnnl_f16, dnnl_bf16 };
    const dnnl_data_type_t type = types[s->dtype];
    const int group = s->heads_q / s->heads_kv, outer = group > 1 ? 2 : 1;
    const dnnl_dim_t of_q[] = { s->heads_kv, group }, of_kv[] = { s->heads_kv, 1 },
                     shared[] = { 1, 1 };
    describe(p, Q, type, of_q, outer, s->rows, s->dim);
    describe(p, K, type, of_kv, outer, s->seq, s->dim);
    describe(p, V, type, of_kv, outer, s->seq, s->dim);
    describe(p, SCALE, dnnl_f32, shared, outer, 1, 1);
    describe(p, MASK, dnnl_f32, shared, outer, s->rows, s->seq);
    for (int id = LOGITS; id <= MASKED; id++)
        describe(p, id, dnnl_f32, of_q, outer, s->rows, s->seq);
    describe(p, WEIGHTS, type, of_q, outer, s->rows, s->seq);
    describe(p, O, type, of_q, outer, s->rows, s->dim);
}

static void set_attribute(peer_onednn *p, dnnl_graph_op_t op, enum attribute attribute)
{
    const uint8_t yes = 1;
    const int64_t last = -1;
    if (attribute == TRANSPOSED_B)
        ok(p, dnnl_graph_op_set_attr_bool(op, dnnl_graph_op_attr_transpose_b, &yes, 1));
    if (attribute == LAST_AXIS)
        ok(p, dnnl_graph_op_set_attr_s64(op, dnnl_graph_op_attr_axis, &last, 1));
}

/* The graph keeps a copy of the operation. */
static void add_step(peer_onednn *p, const step *s, size_t id)
{
    dnnl_graph_op_t op;
    if (!ok(p, dnnl_graph_op_create(&op, id, s->kind, "step")))
        return;
    set_attribute(p, op, s->attribute);
    ok(p, dnnl_graph_op_add_input(op, &p->described[s->a]));
    if (s->b != NONE)
        ok(p, dnnl_graph_op_add_input(op, &p->described[s->b]));
    ok(p, dnnl_graph_op_add_output(op, &p->described[s->out]));
    ok(p, dnnl_graph_add_op(p->graph, op));
    dnnl_graph_op_destroy(op);
}

/* Takes the whole graph as one partition; of several, no single one would be attention. */
static int take_partition(peer_onednn *p)
{
    size_t count = 0;
    uint8_t supported = 0;
    if (!ok(p, dnnl_graph_graph_finalize(p->graph)) ||
        !ok(p, dnnl_graph_graph_filter(p->graph, dnnl_graph_partition_policy_fusion)) ||
        !ok(p, dnnl_graph_graph_get_partition_num(p->graph, &count)))
        return 0;
    if (count != 1)
        return ok(p, dnnl_unimplemented);
    return ok(p, dnnl_graph_graph_get_partitions(p->graph, 1, &p->partition)) &&
           ok(p, dnnl_graph_partition_is_supported(p->partition, &supported)) &&
           ok(p, supported ? dnnl_success : dnnl_unimplemented);
}

static const_dnnl_graph_tensor_t bind(peer_onednn *p, const dnnl_graph_logical_tensor_t *t)
{
    dnnl_graph_tensor_t tensor = NULL;
    ok(p, dnnl_graph_tensor_create(&tensor, t, p->engine, p->data[t->id]));
    return tensor;
}

/* The partition says in which order it takes its inputs. */
static int compile(peer_onednn *p)
{
    const dnnl_graph_logical_tensor_t *in[MOST_INPUTS], *out = &p->out;
    if (!ok(p, dnnl_graph_partition_get_input_ports_num(p->partition, &p->in_count)) ||
        !ok(p, p->in_count <= MOST_INPUTS ? dnnl_success : dnnl_runtime_error) ||
        !ok(p, dnnl_graph_partition_get_input_ports(p->partition, p->in_count, p->in)))
        return 0;
    for (size_t i = 0; i < p->in_count; i++)
        in[i] = &p->in[i];
    p->out = p->described[O];
    if (!ok(p, dnnl_graph_compiled_partition_create(&p->compiled, p->partition)) ||
        !ok(p, dnnl_graph_partition_compile(p->partition, p->compiled, p->in_count, in, 1, &out,
                                            p->engine)))
        return 0;
    for (size_t i = 0; i < p->in_count; i++)
        p->inputs[i] = bind(p, in[i]);
    p->output = bind(p, out);
    return p->status == dnnl_success;
}

static int build(peer_onednn *p, const step *steps, size_t count)
{
    if (!ok(p, dnnl_engine_create(&p->engine, dnnl_cpu, 0)) ||
        !ok(p, dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags)) ||
        !ok(p, dnnl_graph_graph_create(&p->graph, dnnl_cpu)))
        return 0;
    for (size_t i = 0; i < count; i++)
        add_step(p, &steps[i], i);
    return take_partition(p) && compile(p);
}

static float *causal_mask(const peer_shape *s)
{
    float *const mask = malloc((size_t)s->rows * (size_t)s->seq * sizeof *mask);
    for (int i = 0; mask && i < s->rows; i++)
        for (int j = 0; j < s->seq; j++)
            mask[(size_t)i * (size_t)s->seq + (size_t)j] = j <= i ? 0 : -INFINITY;
    return mask;
}

/* Returns the peer, or NULL with why where it could not be built. Versions differ in the types that
 * an operation may mix. */
static peer_onednn *built(peer_onednn *p, const step *steps, size_t count, char *why,
                          size_t why_bytes)
{
    if (build(p, steps, count))
        return p;
    const int lacking = p->status == dnnl_unimplemented || p->status == dnnl_invalid_graph_op;
    snprintf(why, why_bytes, "%s", lacking ? "" : dnnl_status2str(p->status));
    peer_onednn_close(p);
    return NULL;
}

/* oneDNN takes the address of what it reads without const. */
static void *unconst(const void *data)
{
    void *address;
    memcpy(&address, &data, sizeof address);
    return address;
}

peer_onednn *peer_onednn_open(const peer_shape *s, const void *q, const void *k, const void *v,
                              void *o, char *why, size_t why_bytes)
{
    peer_onednn *const p = calloc(1, sizeof *p);
    snprintf(why, why_bytes, "no memory");
    if (!p)
        return NULL;
    p->scale = 1 / sqrtf((float)s->dim);
    if (s->causal && !(p->mask = causal_mask(s))) {
        free(p);
        return NULL;
    }
    p->data[Q] = unconst(q);
    p->data[K] = unconst(k);
    p->data[V] = unconst(v);
    p->data[SCALE] = &p->scale;
    p->data[MASK] = p->mask;
    p->data[O] = o;
    describe_attention(p, s);
    return built(p, s->causal ? causal : full, s->causal ? CAUSAL_STEPS : FULL_STEPS, why,
                 why_bytes);
}

peer_onednn *peer_onednn_product(int n, const float *a, const float *b, float *c, char *why,
                                 size_t why_bytes)
{
    peer_onednn *const p = calloc(1, sizeof *p);
    snprintf(why, why_bytes, "no memory");
    if (!p)
        return NULL;
    p->data[Q] = unconst(a);
    p->data[K] = unconst(b);
    p->data[O] = c;
    describe(p, Q, dnnl_f32, NULL, 0, n, n);
    describe(p, K, dnnl_f32, NULL, 0, n, n);
    describe(p, O, dnnl_f32, NULL, 0, n, n);
    return built(p, product, PRODUCT_STEPS, why, why_bytes);
}

int peer_onednn_run(peer_onednn *p)
{
    return dnnl_graph_compiled_partition_execute(p->compiled, p->stream, p->in_count, p->inputs, 1,
                                                 &p->output) != dnnl_success ||
           dnnl_stream_wait(p->stream) != dnnl_success;
}

static void destroy_tensor(const_dnnl_graph_tensor_t tensor)
{
    if (tensor)
        dnnl_graph_tensor_destroy(unconst(tensor));
}

void peer_onednn_close(peer_onednn *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->in_count && i < MOST_INPUTS; i++)
        destroy_tensor(p->inputs[i]);
    destroy_tensor(p->output);
    if (p->compiled)
        dnnl_graph_compiled_partition_destroy(p->compiled);
    if (p->partition)
        dnnl_graph_partition_destroy(p->partition);
    if (p->graph)
        dnnl_graph_graph_destroy(p->graph);
    if (p->stream)
        dnnl_stream_destroy(p->stream);
    if (p->engine)
        dnnl_engine_destroy(p->engine);
    free(p->mask);
    free(p);
}

void peer_onednn_version(char *text, size_t text_bytes)
{
    const dnnl_version_t *const v = dnnl_version();
    snprintf(text, text_bytes, "%d.%d.%d", v->major, v->minor, v->patch);
}

const char *peer_onednn_runtime(void)
{
    static const struct {
        unsigned runtime;
        const char *name;
    } known[] = { { DNNL_RUNTIME_SEQ, "sequential" },
                  { DNNL_RUNTIME_OMP, "OpenMP" },
                  { DNNL_RUNTIME_TBB, "TBB" },
                  { DNNL_RUNTIME_THREADPOOL, "thread pool" },
                  { DNNL_RUNTIME_DPCPP, "SYCL" } };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].runtime == dnnl_version()->cpu_runtime)
            return known[i].name;
    return "unknown";
}

const char *peer_onednn_isa(void)
{
    return dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
}
