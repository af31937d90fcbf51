/* src/opencl/run.c - the kernels of a call, in order.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "arrays.c"

static int64_t float_number(float x)
{
    return (int64_t)bits_of(x);
}

/* What kernels do, by flag: the mask table's column for devices. */
static int64_t flags_of(const attn_params *p)
{
    const struct {
        int on;
        int64_t flag;
    } flags[] = {
        { p->causal != 0, F_CAUSAL },
        { p->window != 0, F_WINDOW },
        { p->chunk_size != 0, F_CHUNKED },
        { p->block_mask.bitmap != NULL, F_BITMAP },
        { p->block_mask.row_offsets != NULL, F_CSR },
        { p->tree_parents != NULL, F_TREE },
        { p->q_segments != NULL, F_SEGMENTS },
        { p->bool_mask.data != NULL, F_BOOL },
        { p->bit_mask.data != NULL, F_BITS },
        { p->softcap > 0, F_SOFTCAP },
        { p->bias.data != NULL, F_BIAS },
        { p->alibi_slopes != NULL, F_ALIBI },
        { p->dropout_p > 0, F_DROPOUT },
        { p->softmax1 != 0, F_SOFTMAX1 },
        { p->sinks != NULL, F_SINKS },
        { p->partial != 0, F_PARTIAL },
        { p->o.data != NULL, F_O },
        { p->lse.data != NULL, F_LSE },
        { p->force_redo != 0, F_REDO },
    };
    int64_t all = 0;
    size_t i;
    for (i = 0; i < sizeof flags / sizeof *flags; i++)
        all |= flags[i].on ? flags[i].flag : 0;
    return all;
}

/* Of all heads, as in state_row. */
static int64_t all_rows(const attn_params *p)
{
    return p->num_heads_q * p->seq_len_q * (p->cu_seqlens_q ? 1 : p->batch);
}

static void fill_numbers(session *s)
{
    const attn_problem *pr = s->pr;
    const attn_params *p = &pr->p;
    int64_t *n = s->numbers;
    n[N_FLAGS] = flags_of(p);
    n[N_ITEMS] = s->pl.items;
    n[N_PARTS] = s->pl.parts;
    n[N_SLICES] = s->pl.slices;
    n[N_TILE_ROWS] = s->pl.forward.rows;
    n[N_HEADS] = p->num_heads_q;
    n[N_HEADS_KV] = p->num_heads_kv;
    n[N_GROUP] = pr->group;
    n[N_DIM] = p->head_dim;
    n[N_DIM_V] = writes_values(p) ? p->head_dim_v : 0;
    n[N_STATE_ROWS] = p->seq_len_q;
    n[N_VARLEN] = p->cu_seqlens_q != NULL;
    n[N_CHUNK_KEYS] = s->pl.chunk_keys;
    n[N_PART_KEYS] = s->pl.part_keys;
    n[N_LEVELS] = s->pl.levels;
    n[N_FACTOR] = float_number(pr->factor);
    n[N_CAP2] = float_number(pr->cap2);
    n[N_ICAP2] = float_number(pr->icap2);
    n[N_KEEP] = float_number(pr->keep_factor);
    n[N_DROP_BELOW] = pr->drop_below;
    n[N_SEED_LOW] = (int64_t)(p->dropout_seed & 0xffffffffu);
    n[N_SEED_HIGH] = (int64_t)(p->dropout_seed >> 32);
    n[N_WINDOW_LEFT] = p->window_left;
    n[N_WINDOW_RIGHT] = p->window_right;
    n[N_CHUNKED] = p->chunk_size;
    n[N_Q_TYPE] = p->q.dtype;
    n[N_K_TYPE] = p->k.dtype;
    n[N_V_TYPE] = p->v.dtype;
    n[N_O_TYPE] = p->o.dtype;
    n[N_RING] = p->kv_rows.ring;
    n[N_PAGE_SIZE] = p->kv_rows.page_size;
    n[N_STAGE] = p->logits.stage;
    n[N_CHOSEN_LIST] = p->logits.rows != NULL;
    n[N_COLUMN_COUNT] = p->seq_len_kv;
    n[N_SCALE] = float_number(p->scale);
    n[N_ALL_ROWS] = all_rows(p);
}

static void bind_inputs(session *s)
{
    const attn_params *p = &s->pr->p;
    const int64_t q_batch = p->cu_seqlens_q ? 1 : p->batch;
    const array q = tensor_array(&p->q, q_batch, p->num_heads_q, p->seq_len_q, p->head_dim);
    const array k = keys_array(p, &p->k, p->head_dim), v = keys_array(p, &p->v, p->head_dim_v);
    bind_input(s, IN_Q, N_Q, 3, &q, fill_queries);
    bind_input(s, IN_K, N_K, 3, &k, fill_keys);
    if (writes_values(p))
        bind_input(s, IN_V, N_V, 3, &v, fill_keys);
    bind_masks(s);
    bind_columns(s);
    bind_lists(s);
}

static void bind_outputs(session *s)
{
    const attn_params *p = &s->pr->p;
    const int64_t q_batch = p->cu_seqlens_q ? 1 : p->batch;
    const int64_t h = p->num_heads_q, rows = p->seq_len_q, dim = p->head_dim_v;
    const int64_t each = p->cu_seqlens_q ? 0 : h * rows; /* raw states: as a packed lse */
    const attn_tensor o_shape = as_tensor(&p->o), lse_shape = as_tensor(&p->lse);
    const int64_t columns = p->seq_len_kv, chosen = p->logits.num_rows;
    const array o = tensor_array(&o_shape, q_batch, h, rows, dim);
    const array lse = tensor_array(&lse_shape, q_batch, h, rows, 1);
    const array m = make_array(p->state.m, 32, q_batch, h, rows, 1, each, rows, 1, 1);
    const array l = make_array(p->state.l, 32, q_batch, h, rows, 1, each, rows, 1, 1);
    const array state_o =
        make_array(p->state.o, 32, q_batch, h, rows, dim, each * dim, rows * dim, dim, 1);
    const array logits = make_array(p->logits.data, 32, p->batch, h, chosen, columns,
                                    h * chosen * columns, chosen * columns, columns, 1);
    if (p->partial) {
        bind_output(s, OUT_M, N_STATE_M, 0, &m, scatter_rows);
        bind_output(s, OUT_L, N_STATE_L, 0, &l, scatter_rows);
        bind_output(s, OUT_STATE_O, N_STATE_O, 0, &state_o, scatter_rows);
    } else {
        bind_output(s, OUT_O, N_O, 3, &o, scatter_rows);
        bind_output(s, OUT_LSE, N_LSE, 3, &lse, scatter_rows);
    }
    bind_output(s, OUT_LOGITS, N_LOGITS, 0, &logits, scatter_logits);
}

/* Descriptions that lie behind the session in the workspace: sequences, then tiles. */
static int64_t *sequences_of(session *s)
{
    return (int64_t *)(void *)((char *)s + round_up((int64_t)sizeof *s, ALIGNMENT));
}

static int32_t *tiles_of(session *s)
{
    return (int32_t *)(void *)(sequences_of(s) + s->pr->p.batch * S_COUNT);
}

static int64_t session_bytes(const attn_problem *pr, const device_plan *pl)
{
    return ALIGNMENT + round_up((int64_t)sizeof(session), ALIGNMENT) +
           pr->p.batch * S_COUNT * (int64_t)sizeof(int64_t) +
           pl->tiles * TILE_COUNT * (int64_t)sizeof(int32_t);
}

static void describe_sequences(session *s)
{
    const attn_params *p = &s->pr->p;
    int64_t *to = sequences_of(s), b;
    for (b = 0; b < p->batch; b++, to += S_COUNT) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        to[S_Q_ROW] = seq.q_row;
        to[S_Q_LEN] = seq.q_len;
        to[S_KV_ROW] = seq.kv_row;
        to[S_KV_LEN] = seq.kv_len;
        to[S_COLUMN] = seq.column;
        to[S_OFFSET] = seq.offset;
        to[S_KEY_BASE] = seq.key_base;
        to[S_PREFIX] = seq.prefix;
        to[S_KV_SEGMENT] = seq.column + (p->cu_seqlens_kv ? p->cu_seqlens_kv[b]
                                                          : b * s->numbers[N_KV_SEGMENTS_BATCH]);
    }
}

/* The last rows of a sequence first: with a causal mask they have most to do. */
static void describe_tiles(session *s)
{
    const attn_params *p = &s->pr->p;
    const int64_t rows = s->pl.forward.rows;
    int32_t *to = tiles_of(s);
    int64_t b, first;
    for (b = 0; b < p->batch; b++) {
        const attn_sequence seq = attn_sequence_of(s->pr, b);
        const int64_t all = seq.q_len * s->pr->group;
        for (first = round_up(all, rows) - rows; first >= 0; first -= rows, to += TILE_COUNT) {
            to[TILE_SEQUENCE] = (int32_t)b;
            to[TILE_FIRST] = (int32_t)first;
        }
    }
}

static void describe_call(session *s)
{
    const cl_flags flags = CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR;
    describe_sequences(s);
    if (s->pl.tiles)
        describe_tiles(s);
    s->numbers_buffer = new_buffer(s, flags, sizeof s->numbers, s->numbers, "memory for numbers");
    s->sequences =
        new_buffer(s, flags, s->pr->p.batch * S_COUNT * 8, sequences_of(s), "memory for sequences");
    if (s->pl.tiles)
        s->tiles =
            new_buffer(s, flags, s->pl.tiles * TILE_COUNT * 4, tiles_of(s), "memory for tiles");
}

/* The programs of rows and of the textbook do not depend on tiles. */
static variant simple_variant(const session *s, int part)
{
    variant v = s->pl.forward;
    v.part = part;
    v.kv_type = MIXED;
    v.rows = v.columns = 64;
    v.pairs = 1;
    return v;
}

/* OUTPUTS in kernels.cl, and the tiles. */
static void add_results(launch *l)
{
    int out;
    for (out = OUT_O; out <= OUT_STATE_O; out++)
        add_memory(l, l->s->output[out].memory);
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
    add_memory(&l, s->output[OUT_LSE].memory);
    close_launch(&l, "naive_softmax", queries, local);
    if (s->pr->p.o.data) {
        l = open_naive(s, at, "naive_values");
        add_memory(&l, s->output[OUT_O].memory);
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
    if (!s->output[OUT_LOGITS].memory)
        return;
    if (p->logits.rows)
        list = new_buffer(s, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, p->logits.num_rows * 4,
                          (void *)(uintptr_t)p->logits.rows, "memory for a list of rows");
    l = open_launch(s, &v, "logits");
    add_memory(&l, list);
    add_memory(&l, s->output[OUT_LOGITS].memory);
    close_launch(&l, "logits", global, local);
}

/* What the call waits for, and what is waited for at its end. */
static void await_inputs(session *s)
{
    if (s->call->num_wait > 0 && !s->call->wait)
        has_failed(s, INVALID_VALUE, "call.wait is NULL");
    if (!s->error && s->call->num_wait > 0)
        has_failed(s,
                   s->gpu->cl.clEnqueueBarrierWithWaitList(s->queue, (cl_uint)s->call->num_wait,
                                                           s->call->wait, NULL),
                   "waiting for the caller's events");
}

static void finish_session(session *s)
{
    int out;
    for (out = 0; out < OUTPUT_COUNT && !s->call->event; out++)
        fetch_output(s, out);
    if (!s->error && s->call->event)
        has_failed(s, s->gpu->cl.clEnqueueMarkerWithWaitList(s->queue, 0, NULL, s->call->event),
                   "the event of the end");
    if (!s->error && s->call->event)
        has_failed(s, s->gpu->cl.clFlush(s->queue), "handing over the kernels");
    else
        has_failed(s, s->gpu->cl.clFinish(s->queue), "the end of the kernels");
    if (s->call->times)
        read_times(s);
    while (s->buffer_count > 0)
        s->gpu->cl.clReleaseMemObject(s->buffers[--s->buffer_count]);
}

typedef struct named_output {
    const char *why;
    const void *data;
} named_output;

/* Why the host would have to fetch one of them, or NULL. */
static const char *first_on_host(const attn_opencl_call *how, const named_output *outputs,
                                 size_t count)
{
    size_t i;
    for (i = 0; i < count; i++)
        if (outputs[i].data && !named_buffer(how, outputs[i].data))
            return outputs[i].why;
    return NULL;
}

static const char *host_output(const attn_opencl_call *how, const attn_params *p)
{
    const named_output outputs[] = {
        { "o is not in call.buffers", p->partial ? NULL : p->o.data },
        { "lse is not in call.buffers", p->partial ? NULL : p->lse.data },
        { "state.m is not in call.buffers", p->partial ? p->state.m : NULL },
        { "state.l is not in call.buffers", p->partial ? p->state.l : NULL },
        { "state.o is not in call.buffers", p->partial ? p->state.o : NULL },
        { "logits is not in call.buffers", p->logits.data },
    };
    return first_on_host(how, outputs, sizeof outputs / sizeof *outputs);
}

static attn_status report(const session *s)
{
    char sentence[200];
    text t = text_in(sentence, sizeof sentence);
    if (!s->error)
        return ATTN_OK;
    explain_error(&t, s->failed, s->error);
    say(s->gpu, ATTN_LOG_WARNING, sentence);
    if (s->pr->p.log)
        s->pr->p.log(s->pr->p.log_user, ATTN_LOG_WARNING, sentence);
    return ATTN_ERR_CALLBACK;
}

/* A session at the start of the workspace, or NULL: it is too small. */
static session *open_session(const attn_opencl_call *how, const attn_problem *pr,
                             const device_plan *pl, void *workspace, size_t bytes)
{
    char *base = (char *)workspace;
    session *s;
    if (!workspace || (int64_t)bytes < session_bytes(pr, pl))
        return NULL;
    base = align_memory(base);
    s = (session *)(void *)base;
    memset(s, 0, sizeof *s);
    s->gpu = how->gpu;
    s->call = how;
    s->pr = pr;
    s->pl = *pl;
    s->queue = how->queue ? how->queue : how->gpu->queue;
    if (how->times)
        memset(how->times, 0, sizeof *how->times);
    if (how->queue && !is_in_order(s->gpu, s->queue))
        has_failed(s, INVALID_QUEUE, "call.queue must take its commands in order");
    fill_numbers(s);
    return s;
}

static attn_status run_within(const device_limits *limits, const attn_opencl_call *how,
                              const attn_problem *pr, void *workspace, size_t bytes)
{
    const device_plan pl = plan_device(pr, limits);
    session *s = open_session(how, pr, &pl, workspace, bytes);
    if (!s)
        return ATTN_ERR_WORKSPACE;
    bind_inputs(s); /* copies of the host's: waiting for the caller's events must not hold them */
    bind_outputs(s);
    describe_call(s);
    await_inputs(s);
    if (runs(&pl, PART_NAIVE))
        run_naive(s);
    if (runs(&pl, PART_FORWARD))
        run_tiled(s);
    run_logits(s);
    finish_session(s);
    return report(s);
}

static attn_status run_call(const attn_backend *self, const attn_problem *pr, void *workspace,
                            size_t bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    return run_within(&limits, how, pr, workspace, bytes);
}

static attn_status call_workspace(const attn_backend *self, const attn_problem *pr, size_t *bytes)
{
    const attn_opencl_call *how = (const attn_opencl_call *)self->user;
    const device_limits limits = limits_of(&how->gpu->info, how->gpu->exact);
    const device_plan pl = plan_device(pr, &limits);
    *bytes = (size_t)session_bytes(pr, &pl);
    return ATTN_OK;
}
