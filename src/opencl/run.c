/* src/opencl/run.c - the kernels of attn_forward, in order.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "bind.c"

/* simple_variant names a program of rows, of rotation or of the textbook, which do not depend on
 * tiles. */
static variant simple_variant(const session *s, int part)
{
    const variant v = { part, s->pl.forward.exact, MIXED, 64, 64, 1, 0 };
    return v;
}

/* add_results adds OUTPUTS in kernels.cl, and the tiles. */
static void add_results(launch *l)
{
    add_arrays(l, OUT_O, OUT_STATE_O);
    add_memory(l, l->s->tiles);
}

static void run_tiled(session *s)
{
    const device_plan *pl = &s->pl;
    const variant merge = simple_variant(s, PART_ROWS);
    const cl_handle pending = new_memory(s, pl->pending_bytes, "memory for states");
    const cl_handle parts = new_memory(s, pl->parts_bytes, "memory for parts");
    launch l = open_launch(s, &pl->forward, "forward");
    add_results(&l);
    add_memory(&l, pending);
    add_memory(&l, parts);
    close_launch(&l, group_of_tile(&pl->forward), pl->groups, 1, 1);
    if (pl->parts == 1)
        return;
    l = open_launch(s, &merge, "merge_parts");
    add_results(&l);
    add_memory(&l, parts);
    close_launch(&l, row_group, pl->tiles * s->pr->p.num_heads_kv * pl->forward.rows, 1, 1);
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
    return l;
}

static void run_naive_head(session *s, const naive_head *at)
{
    const int64_t rows = at->seq.q_len, keys = at->seq.kv_len;
    launch l;
    if (keys) {
        l = open_naive(s, at, "naive_scores");
        close_launch(&l, row_group, row_groups(keys), rows, 1);
    }
    l = open_naive(s, at, "naive_softmax");
    add_memory(&l, at->factors);
    add_arrays(&l, OUT_LSE, OUT_STATS);
    close_launch(&l, row_group, row_groups(rows), 1, 1);
    if (s->pr->p.o.data) {
        l = open_naive(s, at, "naive_values");
        add_memory(&l, at->factors);
        add_arrays(&l, OUT_O, OUT_O);
        close_launch(&l, row_group, row_groups(s->pr->p.head_dim_v), rows, 1);
    }
}

static void run_naive(session *s)
{
    const attn_params *p = &s->pr->p;
    naive_head at;
    at.matrix = new_memory(s, matrix_bytes(s->pr), "memory for logits");
    at.factors = new_memory(s, 4 * s->pr->max_q_len, "memory for sums");
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
    cl_handle list = NULL;
    launch l;
    if (!s->array[OUT_LOGITS].memory)
        return;
    if (p->logits.rows)
        list = new_buffer(s, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, p->logits.num_rows * 4,
                          (void *)(uintptr_t)p->logits.rows, "memory for a list of rows");
    l = open_launch(s, &v, "logits");
    add_memory(&l, list);
    add_arrays(&l, OUT_LOGITS, OUT_LOGITS);
    close_launch(&l, row_group, p->logits.num_rows, p->num_heads_q, p->batch);
}

/* launch_rows launches a kernel of rotation with one more array, a group for each row. */
static void launch_rows(session *s, const char *name, cl_handle rows, int outputs)
{
    const variant v = simple_variant(s, PART_ROTATE);
    launch l = open_launch(s, &v, name);
    add_memory(&l, rows);
    add_arrays(&l, OUT_O, OUT_O + outputs - 1);
    close_launch(&l, row_group, s->pr->max_q_len, s->pr->p.num_heads_q, s->pr->p.batch);
}

/* begin_rotation has queries rotated and rounded, and turns the other kernels to memory of ours in
 * place of q and o. */
static void begin_rotation(session *s)
{
    if (s->pl.queries_bytes) {
        const cl_handle queries = new_memory(s, s->pl.queries_bytes, "memory for queries");
        launch_rows(s, "rotate_queries", queries, 0);
        s->array[IN_Q].memory = queries;
    }
    if (s->pl.results_bytes)
        s->array[OUT_O].memory = new_memory(s, s->pl.results_bytes, "memory for results");
}

/* end_rotation has results rotated back to `o`. */
static void end_rotation(session *s, cl_handle o)
{
    const cl_handle results = s->array[OUT_O].memory;
    s->array[OUT_O].memory = o;
    if (s->pl.results_bytes)
        launch_rows(s, "rotate_results", results, 1);
}

static void run_forward(session *s)
{
    const cl_handle o = s->array[OUT_O].memory;
    begin_rotation(s);
    if (runs(&s->pl, PART_NAIVE))
        run_naive(s);
    if (runs(&s->pl, PART_FORWARD))
        run_tiled(s);
    run_logits(s);
    end_rotation(s, o);
}
