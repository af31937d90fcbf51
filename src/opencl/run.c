/* src/opencl/run.c - the kernels of attn_forward, in order.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "bind.c"

/* simple_variant names a program of rows or of the textbook, which do not depend on tiles. */
static variant simple_variant(const session *s, int part)
{
    variant v = s->pl.forward;
    v.part = part;
    v.kv_type = MIXED;
    v.rows = v.columns = 64;
    v.pairs = 1;
    return v;
}

/* add_results adds OUTPUTS in kernels.cl, and the tiles. */
static void add_results(launch *l)
{
    int out;
    for (out = OUT_O; out <= OUT_STATE_O; out++)
        add_memory(l, l->s->array[out].memory);
    add_memory(l, l->s->tiles);
}

static void run_tiled(session *s)
{
    const size_t local[3] = { CL_TX, CL_TY, 1 }, row_local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { (size_t)s->pl.groups * CL_TX, CL_TY, 1 };
    const int64_t rows = s->pl.tiles * s->pr->p.num_heads_kv * s->pl.forward.rows;
    const size_t row_global[3] = { (size_t)rows * CL_ROW_GROUP, 1, 1 };
    const cl_handle pending =
        new_buffer(s, CL_MEM_READ_WRITE, s->pl.pending_bytes, NULL, "memory for states");
    const cl_handle parts =
        new_buffer(s, CL_MEM_READ_WRITE, s->pl.parts_bytes, NULL, "memory for parts");
    const variant merge = simple_variant(s, PART_ROWS);
    launch l;
    l = open_launch(s, &s->pl.forward, "forward");
    add_results(&l);
    add_memory(&l, pending);
    add_memory(&l, parts);
    close_launch(&l, "forward", global, local);
    if (s->pl.parts == 1)
        return;
    l = open_launch(s, &merge, "merge_parts");
    add_results(&l);
    add_memory(&l, parts);
    close_launch(&l, "merge_parts", row_global, row_local);
}

typedef struct naive_head {
    cl_handle matrix, factors;
    int64_t b, head;
    attn_sequence seq;
} naive_head;

static launch open_naive(session *s, const naive_head *at, const char *name)
{
    const variant v = simple_variant(s, PART_NAIVE);
    launch l = open_launch(s, &v, name);
    add_int(&l, at->b);
    add_int(&l, at->head);
    add_int(&l, at->seq.kv_len);
    add_memory(&l, at->matrix);
    if (strcmp(name, "naive_scores") != 0)
        add_memory(&l, at->factors);
    return l;
}

static size_t whole_groups(int64_t items)
{
    return (size_t)round_up(items, CL_ROW_GROUP);
}

static void run_naive_head(session *s, const naive_head *at)
{
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 }, rows = (size_t)at->seq.q_len;
    const size_t pairs[3] = { whole_groups(at->seq.kv_len), rows, 1 };
    const size_t queries[3] = { whole_groups(at->seq.q_len), 1, 1 };
    const size_t values[3] = { whole_groups(s->pr->p.head_dim_v), rows, 1 };
    launch l;
    if (at->seq.kv_len) {
        l = open_naive(s, at, "naive_scores");
        close_launch(&l, "naive_scores", pairs, local);
    }
    l = open_naive(s, at, "naive_softmax");
    add_memory(&l, s->array[OUT_LSE].memory);
    close_launch(&l, "naive_softmax", queries, local);
    if (s->pr->p.o.data) {
        l = open_naive(s, at, "naive_values");
        add_memory(&l, s->array[OUT_O].memory);
        close_launch(&l, "naive_values", values, local);
    }
}

static void run_naive(session *s)
{
    const attn_params *p = &s->pr->p;
    naive_head at;
    at.matrix = new_buffer(s, CL_MEM_READ_WRITE, matrix_bytes(s->pr), NULL, "memory for logits");
    at.factors = new_buffer(s, CL_MEM_READ_WRITE, 4 * s->pr->max_q_len, NULL, "memory for sums");
    for (at.b = 0; at.b < p->batch; at.b++) {
        at.seq = attn_sequence_of(s->pr, at.b);
        for (at.head = 0; at.head < p->num_heads_q && at.seq.q_len > 0; at.head++)
            run_naive_head(s, &at);
    }
}

static void run_logits(session *s)
{
    const attn_params *p = &s->pr->p;
    const variant v = simple_variant(s, PART_ROWS);
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { (size_t)p->logits.num_rows * CL_ROW_GROUP, (size_t)p->num_heads_q,
                               (size_t)p->batch };
    cl_handle list = NULL;
    launch l;
    if (!s->array[OUT_LOGITS].memory)
        return;
    if (p->logits.rows)
        list = new_buffer(s, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, p->logits.num_rows * 4,
                          (void *)(uintptr_t)p->logits.rows, "memory for a list of rows");
    l = open_launch(s, &v, "logits");
    add_memory(&l, list);
    add_memory(&l, s->array[OUT_LOGITS].memory);
    close_launch(&l, "logits", global, local);
}

static void run_forward(session *s)
{
    if (runs(&s->pl, PART_NAIVE))
        run_naive(s);
    if (runs(&s->pl, PART_FORWARD))
        run_tiled(s);
    run_logits(s);
}
