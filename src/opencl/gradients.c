/* src/opencl/gradients.c - the kernels of attn_backward.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "run.c"

/* Local memory of a work-group, at most: block_m and alpha are not there, dout_at is. */
static int64_t gradient_local_bytes(const device_plan *pl)
{
    return local_bytes_of(pl->forward.rows, pl->forward.columns) + 8 * pl->forward.rows;
}

/* Only what sessions need of a plan: the kernels of gradients count their tiles themselves. */
static device_plan plan_gradients(const attn_problem *pr, const device_limits *limits)
{
    const int64_t columns = max64(pr->p.head_dim, pr->p.head_dim_v);
    device_plan pl;
    memset(&pl, 0, sizeof pl);
    pl.forward.part = PART_BACKWARD;
    pl.forward.exact = limits->exact;
    pl.forward.kv_type = MIXED;
    pl.forward.pairs = has_pairs(&pr->p);
    pl.forward.columns = columns <= 64 ? 64 : 128;
    pl.forward.rows = 64;
    if (gradient_local_bytes(&pl) > (int64_t)limits->local_bytes)
        pl.forward.rows = 32;
    pl.programs = 1u << PART_BACKWARD;
    pl.slices = ceil_div(pr->p.head_dim, pl.forward.columns);
    return pl;
}

static array output_array(const attn_output *t, int64_t batch, int64_t heads, int64_t rows,
                          int64_t dim)
{
    const attn_tensor shape = as_tensor(t);
    return tensor_array(&shape, batch, heads, rows, dim);
}

static array sums_array(const attn_sum_axes *a)
{
    return make_array(a->data, 32, a->count[0], a->count[1], a->count[2], a->count[3], a->stride[0],
                      a->stride[1], a->stride[2], a->stride[3]);
}

static void bind_gradients(session *s, const attn_gradient_call *c)
{
    const attn_gradients *g = &c->g;
    const attn_params *p = &s->pr->p;
    const int64_t q_batch = p->cu_seqlens_q ? 1 : p->batch, h = p->num_heads_q;
    const int64_t kv_batch = p->cu_seqlens_kv ? 1 : p->batch, h_kv = p->num_heads_kv;
    const int64_t rows = p->seq_len_q, keys = p->seq_len_kv;
    const array o = output_array(&p->o, q_batch, h, rows, p->head_dim_v);
    const array lse = output_array(&p->lse, q_batch, h, rows, 1);
    const array dout = tensor_array(&g->dout, q_batch, h, rows, p->head_dim_v);
    const array dlse = tensor_array(&g->dlse, q_batch, h, rows, 1);
    const array dq = output_array(&g->dq, q_batch, h, rows, p->head_dim);
    const array dk = output_array(&g->dk, kv_batch, h_kv, keys, p->head_dim);
    const array dv = output_array(&g->dv, kv_batch, h_kv, keys, p->head_dim_v);
    const array dsinks = make_array(g->dsinks, 32, 1, 1, 1, h, 0, 0, 0, 1);
    const array dbias = sums_array(&c->bias);
    const array dslopes = sums_array(&c->slopes);
    bind_input(s, IN_O, N_O, 3, &o, fill_queries);
    bind_input(s, IN_LSE, N_LSE, 3, &lse, fill_queries);
    bind_input(s, IN_DOUT, N_DOUT, 3, &dout, fill_queries);
    bind_input(s, IN_DLSE, N_DLSE, 3, &dlse, fill_queries);
    bind_output(s, OUT_DQ, N_DQ, 3, &dq, scatter_rows);
    bind_output(s, OUT_DK, N_DK, 3, &dk, scatter_keys);
    bind_output(s, OUT_DV, N_DV, 3, &dv, scatter_keys);
    bind_output(s, OUT_DSINKS, N_DSINKS, 0, &dsinks, scatter_all);
    bind_output(s, OUT_DBIAS, N_DBIAS, 4, &dbias, scatter_all);
    bind_output(s, OUT_DSLOPES, N_DSLOPES, 4, &dslopes, scatter_all);
}

static void fill_gradient_numbers(session *s, const attn_gradients *g)
{
    const attn_params *p = &s->pr->p;
    const int columns = s->pl.forward.columns;
    int64_t *n = s->numbers;
    n[N_FLAGS] |= g->dlse.data ? F_DLSE : 0;
    n[N_DOUT_TYPE] = g->dout.dtype;
    n[N_DQ_TYPE] = g->dq.dtype;
    n[N_DK_TYPE] = g->dk.dtype;
    n[N_DV_TYPE] = g->dv.dtype;
    n[N_KEY_SLICES] = g->dk.data ? ceil_div(p->head_dim, columns) : 0;
    n[N_VALUE_SLICES] = g->dv.data ? ceil_div(p->head_dim_v, columns) : 0;
}

static void launch_statistics(session *s, cl_handle stats)
{
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { whole_groups(s->pr->max_q_len), (size_t)s->pr->p.num_heads_q,
                               (size_t)s->pr->p.batch };
    launch l = open_launch(s, &s->pl.forward, "statistics");
    int in;
    for (in = IN_O; in <= IN_DLSE; in++)
        add_memory(&l, s->input[in]);
    add_memory(&l, stats);
    close_launch(&l, "statistics", global, local);
}

/* Kernel `name`, a group for each of the tiles and slices, kv heads and sequences. Results go to
 * outputs first..last. */
static void launch_gradients(session *s, const char *name, int64_t tiles, int64_t slices,
                             cl_handle stats, int first, int last)
{
    const size_t local[3] = { CL_TX, CL_TY, 1 };
    const size_t global[3] = { (size_t)(tiles * slices) * CL_TX,
                               (size_t)s->pr->p.num_heads_kv * CL_TY, (size_t)s->pr->p.batch };
    launch l;
    if (tiles * slices == 0)
        return;
    l = open_launch(s, &s->pl.forward, name);
    add_memory(&l, s->input[IN_DOUT]);
    add_memory(&l, stats);
    for (; first <= last; first++)
        add_memory(&l, s->output[first].memory);
    close_launch(&l, name, global, local);
}

static void launch_sinks(session *s, cl_handle stats)
{
    const size_t local[3] = { CL_ROW_GROUP, 1, 1 };
    const size_t global[3] = { whole_groups(s->pr->p.num_heads_q), 1, 1 };
    launch l = open_launch(s, &s->pl.forward, "sink_gradients");
    add_memory(&l, stats);
    add_memory(&l, s->output[OUT_DSINKS].memory);
    add_int(&l, s->pr->p.batch);
    close_launch(&l, "sink_gradients", global, local);
}

/* A sum over pairs: dbias or dslopes. */
typedef struct pair_sum {
    const attn_sum_axes *axes;
    int number; /* its first number */
    cl_handle out, stats, row_sums;
} pair_sum;

static void launch_sum_ends(session *s, const pair_sum *sum, int first)
{
    const int64_t *n = sum->axes->count;
    const size_t local[3] = { 1, 1, 1 };
    const size_t global[3] = { (size_t)n[3], (size_t)n[2], (size_t)(n[0] * n[1]) };
    launch l;
    if (n[0] * n[1] * n[2] * n[3] == 0)
        return;
    l = open_launch(s, &s->pl.forward, "sum_ends");
    add_memory(&l, sum->out);
    add_int(&l, sum->number);
    add_int(&l, n[1]);
    add_int(&l, first);
    close_launch(&l, "sum_ends", global, local);
}

/* By tiles of the rows or keys of a head. */
static void launch_tiles_of_sum(session *s, const pair_sum *sum, const char *name, int64_t tiles,
                                int64_t b, int64_t head)
{
    const size_t local[3] = { CL_TX, CL_TY, 1 };
    const size_t global[3] = { (size_t)tiles * CL_TX, CL_TY, 1 };
    launch l = open_launch(s, &s->pl.forward, name);
    add_memory(&l, s->input[IN_DOUT]);
    add_memory(&l, sum->stats);
    add_memory(&l, sum->out);
    add_memory(&l, sum->row_sums);
    add_int(&l, sum->number);
    add_int(&l, b);
    add_int(&l, head);
    add_int(&l, sum->axes->kept[ATTN_AXIS_ROW]);
    add_int(&l, sum->axes->kept[ATTN_AXIS_KEY]);
    close_launch(&l, name, global, local);
}

static void launch_row_sums(session *s, const pair_sum *sum, int64_t b, int64_t head)
{
    const size_t one[3] = { 1, 1, 1 };
    launch l = open_launch(s, &s->pl.forward, "add_row_sums");
    add_memory(&l, sum->row_sums);
    add_memory(&l, sum->out);
    add_int(&l, sum->number);
    add_int(&l, b);
    add_int(&l, head);
    close_launch(&l, "add_row_sums", one, one);
}

/* Heads and sequences one after the other, as docs/canon.md has it. */
static void run_sum(session *s, const pair_sum *sum)
{
    const attn_params *p = &s->pr->p;
    const int keeps_rows = sum->axes->kept[ATTN_AXIS_ROW],
              keeps_keys = sum->axes->kept[ATTN_AXIS_KEY];
    int64_t b, head;
    launch_sum_ends(s, sum, 1);
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        for (head = 0; head < p->num_heads_q && seq.q_len > 0 && seq.kv_len > 0; head++) {
            if (keeps_keys && !keeps_rows)
                launch_tiles_of_sum(s, sum, "add_columns", ceil_div(seq.kv_len, CL_BN), b, head);
            else
                launch_tiles_of_sum(s, sum, "add_rows", ceil_div(seq.q_len, s->pl.forward.rows), b,
                                    head);
            if (!keeps_rows && !keeps_keys)
                launch_row_sums(s, sum, b, head);
        }
    }
    launch_sum_ends(s, sum, 0);
}

static void run_sums(session *s, const attn_gradient_call *c, cl_handle stats)
{
    const cl_handle row_sums =
        new_buffer(s, CL_MEM_READ_WRITE, 4 * s->pr->max_q_len, NULL, "memory for sums of rows");
    const pair_sum sums[] = {
        { &c->bias, N_DBIAS, s->output[OUT_DBIAS].memory, stats, row_sums },
        { &c->slopes, N_DSLOPES, s->output[OUT_DSLOPES].memory, stats, row_sums },
    };
    size_t i;
    for (i = 0; i < sizeof sums / sizeof *sums; i++)
        if (sums[i].axes->data)
            run_sum(s, &sums[i]);
}

static void run_gradient_kernels(session *s, const attn_gradient_call *c)
{
    const attn_gradients *g = &c->g;
    const attn_problem *pr = s->pr;
    const cl_handle stats =
        new_buffer(s, CL_MEM_READ_WRITE, 12 * all_rows(&pr->p), NULL, "memory for statistics");
    if (pr->max_q_len > 0)
        launch_statistics(s, stats);
    if (g->dq.data)
        launch_gradients(s, "query_gradients",
                         ceil_div(pr->max_q_len * pr->group, s->pl.forward.rows), s->pl.slices,
                         stats, OUT_DQ, OUT_DQ);
    launch_gradients(s, "key_gradients", ceil_div(pr->max_kv_len, CL_BN),
                     s->numbers[N_KEY_SLICES] + s->numbers[N_VALUE_SLICES], stats, OUT_DK, OUT_DV);
    if (g->dsinks)
        launch_sinks(s, stats);
    if (g->dbias.data || g->dslopes)
        run_sums(s, c, stats);
}

static attn_status run_gradients_within(const device_limits *limits, const attn_opencl_call *how,
                                        const attn_problem *pr, const attn_gradient_call *g,
                                        void *workspace, size_t bytes)
{
    const device_plan pl = plan_gradients(pr, limits);
    session *s = open_session(how, pr, &pl, workspace, bytes);
    if (!s)
        return ATTN_ERR_WORKSPACE;
    fill_gradient_numbers(s, &g->g);
    bind_inputs(s);
    bind_gradients(s, g);
    describe_call(s);
    await_inputs(s);
    run_gradient_kernels(s, g);
    finish_session(s);
    return report(s);
}

static attn_status run_gradients(const attn_backend *self, const attn_problem *pr,
                                 const attn_gradient_call *g, void *workspace, size_t bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    return run_gradients_within(&limits, how, pr, g, workspace, bytes);
}

static attn_status gradients_size(const attn_backend *self, const attn_problem *pr,
                                  const attn_gradient_call *g, size_t *bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    const device_plan pl = plan_gradients(pr, &limits);
    (void)g;
    *bytes = (size_t)session_bytes(pr, &pl);
    return ATTN_OK;
}
