/* src/opencl/gradients.c - the kernels of attn_backward.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "run.c"

static void launch_statistics(session *s, cl_handle known)
{
    const attn_params *p = &s->pr->p;
    launch l = open_launch(s, &s->pl.forward, "statistics");
    add_arrays(&l, IN_O, IN_DLSE);
    add_memory(&l, known);
    close_launch(&l, row_group, row_groups(s->pr->max_q_len), p->num_heads_q, p->batch);
}

/* launch_gradients launches kernel `name` with groups for each kv head and sequence. Results go to
 * arrays first to last. */
static void launch_gradients(session *s, const char *name, int64_t groups, cl_handle known,
                             int first, int last)
{
    launch l;
    if (groups == 0)
        return;
    l = open_launch(s, &s->pl.forward, name);
    add_arrays(&l, IN_DOUT, IN_DOUT);
    add_memory(&l, known);
    add_arrays(&l, first, last);
    close_launch(&l, tile_group, groups, s->pr->p.num_heads_kv, s->pr->p.batch);
}

static void launch_sinks(session *s, cl_handle known)
{
    launch l = open_launch(s, &s->pl.forward, "sink_gradients");
    add_memory(&l, known);
    add_arrays(&l, OUT_DSINKS, OUT_DSINKS);
    add_int(&l, s->pr->p.batch);
    close_launch(&l, row_group, row_groups(s->pr->p.num_heads_q), 1, 1);
}

/* A pair_sum is a sum over pairs: dbias or dslopes. */
typedef struct pair_sum {
    const attn_sum_axes *axes;
    int number; /* its first number */
    cl_handle out, known, row_sums;
} pair_sum;

static void launch_sum_ends(session *s, const pair_sum *sum, int first)
{
    const int64_t *n = sum->axes->count;
    launch l;
    if (n[0] * n[1] * n[2] * n[3] == 0)
        return;
    l = open_launch(s, &s->pl.forward, "sum_ends");
    add_memory(&l, sum->out);
    add_int(&l, sum->number);
    add_int(&l, n[1]);
    add_int(&l, first);
    close_launch(&l, one_item, n[3], n[2], n[0] * n[1]);
}

/* launch_tiles_of_sum adds up tiles of the rows or keys of a head. */
static void launch_tiles_of_sum(session *s, const pair_sum *sum, const char *name, int64_t tiles,
                                int64_t b, int64_t head)
{
    launch l = open_launch(s, &s->pl.forward, name);
    add_arrays(&l, IN_DOUT, IN_DOUT);
    add_memory(&l, sum->known);
    add_memory(&l, sum->out);
    add_memory(&l, sum->row_sums);
    add_int(&l, sum->number);
    add_int(&l, b);
    add_int(&l, head);
    add_int(&l, sum->axes->kept[ATTN_AXIS_ROW]);
    add_int(&l, sum->axes->kept[ATTN_AXIS_KEY]);
    close_launch(&l, tile_group, tiles, 1, 1);
}

static void launch_row_sums(session *s, const pair_sum *sum, int64_t b, int64_t head)
{
    launch l = open_launch(s, &s->pl.forward, "add_row_sums");
    add_memory(&l, sum->row_sums);
    add_memory(&l, sum->out);
    add_int(&l, sum->number);
    add_int(&l, b);
    add_int(&l, head);
    close_launch(&l, one_item, 1, 1, 1);
}

/* run_sum takes heads and sequences one after the other, as docs/canon.md has it. */
static void run_sum(session *s, const pair_sum *sum)
{
    const attn_params *p = &s->pr->p;
    const int keeps_rows = sum->axes->kept[ATTN_AXIS_ROW];
    const int keeps_keys = sum->axes->kept[ATTN_AXIS_KEY], by_key = keeps_keys && !keeps_rows;
    int64_t b, head;
    launch_sum_ends(s, sum, 1);
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        const int64_t tiles =
            by_key ? ceil_div(seq.kv_len, CL_BN) : ceil_div(seq.q_len, s->pl.forward.rows);
        for (head = 0; head < p->num_heads_q && seq.q_len > 0 && seq.kv_len > 0; head++) {
            launch_tiles_of_sum(s, sum, by_key ? "add_columns" : "add_rows", tiles, b, head);
            if (!keeps_rows && !keeps_keys)
                launch_row_sums(s, sum, b, head);
        }
    }
    launch_sum_ends(s, sum, 0);
}

static void run_sums(session *s, const attn_gradient_call *c, cl_handle known)
{
    const cl_handle row_sums = new_memory(s, 4 * s->pr->max_q_len, "memory for sums of rows");
    const pair_sum sums[] = {
        { &c->bias, N_DBIAS, s->array[OUT_DBIAS].memory, known, row_sums },
        { &c->slopes, N_DSLOPES, s->array[OUT_DSLOPES].memory, known, row_sums },
    };
    int i;
    for (i = 0; i < COUNT_OF(sums); i++)
        if (sums[i].axes->data)
            run_sum(s, &sums[i]);
}

static void run_gradients(session *s, const attn_gradient_call *c)
{
    const attn_problem *pr = s->pr;
    const int64_t tiles = ceil_div(pr->max_q_len * pr->group, s->pl.forward.rows);
    const int64_t key_slices = s->numbers[N_KEY_SLICES] + s->numbers[N_VALUE_SLICES];
    const cl_handle known = new_memory(s, s->pl.statistics_bytes, "memory for statistics");
    if (pr->max_q_len > 0)
        launch_statistics(s, known);
    if (c->g.dq.data)
        launch_gradients(s, "query_gradients", tiles * s->pl.slices, known, OUT_DQ, OUT_DQ);
    launch_gradients(s, "key_gradients", ceil_div(pr->max_kv_len, CL_BN) * key_slices, known,
                     OUT_DK, OUT_DV);
    if (c->g.dsinks)
        launch_sinks(s, known);
    if (c->g.dbias.data || c->g.dslopes)
        run_sums(s, c, known);
}
