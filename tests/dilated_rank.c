/* dilated_rank.c - see dilated_rank.h.
 * SPDX-License-Identifier: MIT
 */
#include "dilated_rank.h"
#include "oracle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a rank's own tensors -------------------------------------------------------------------- */

/* [batch, heads, length, dim] in one block; elements that no position has are 0x7f bytes. */
typedef struct own_tensor {
    int dtype;
    ptrdiff_t batch, head, seq; /* strides */
    int64_t heads, dim;
    unsigned char *data;
    size_t bytes;
} own_tensor;

enum { TQ, TK, TV, TO, TLSE, TSTATS, TDOUT, TDLSE, TDQ, TDK, TDV, TENSORS };

static int is_sums(int which) /* p.layout is not theirs */
{
    return which == TLSE || which == TSTATS || which == TDLSE;
}

static int by_key(int which)
{
    return which == TK || which == TV || which == TDK || which == TDV;
}

typedef struct own_share {
    const dilated_rank_case *c;
    const attn_transport *t;
    attn_ring_range range;
    own_tensor of[TENSORS];
    int first_output, end_output; /* what the call may write */
    dilated_rank_outcome *out;
} own_share;

static void tell(own_share *s, const char *what, int64_t b, int64_t h, int64_t x)
{
    if (s->out->why[0] == '\0')
        snprintf(s->out->why, sizeof s->out->why, "rank %d of %d, b=%lld h=%lld x=%lld: %s",
                 s->t->rank, s->t->size, (long long)b, (long long)h, (long long)x, what);
}

static void make_own(own_share *s, int which, int dtype, int64_t heads, int64_t dim)
{
    own_tensor *t = &s->of[which];
    const int64_t n = s->range.count, gap = s->c->spread == 2 ? 32 : 0; /* whole units */
    t->dtype = dtype;
    t->heads = heads;
    t->dim = dim;
    t->seq = (ptrdiff_t)(dim + gap);
    t->head = (ptrdiff_t)(n * t->seq + gap);
    t->batch = (ptrdiff_t)(heads * t->head + gap);
    if (s->c->spread == 1) {
        t->head = (ptrdiff_t)dim;
        t->seq = (ptrdiff_t)(heads * dim);
        t->batch = (ptrdiff_t)(n * heads * dim);
    }
    t->bytes = (size_t)ring_bytes_of(dtype, s->c->p.batch * t->batch + 32);
    t->data = malloc(t->bytes);
    if (t->data == NULL)
        exit(2);
    memset(t->data, 0x7f, t->bytes);
}

static unsigned char *own_at(const own_tensor *t, int64_t b, int64_t h, int64_t x)
{
    return t->data + ring_bytes_of(t->dtype, b * t->batch + h * t->head + x * t->seq);
}

static attn_output as_output(const own_share *s, int which)
{
    const own_tensor *t = &s->of[which];
    attn_output o = { 0 };
    o.dtype = t->dtype;
    o.data = t->data;
    if (s->c->spread == 2 || (s->c->spread == 1 && is_sums(which)))
        o.stride_batch = t->batch, o.stride_head = t->head, o.stride_seq = t->seq;
    return o;
}

static attn_tensor as_tensor(const attn_output *o)
{
    const attn_tensor t = { .dtype = o->dtype,
                            .stride_batch = o->stride_batch,
                            .stride_head = o->stride_head,
                            .stride_seq = o->stride_seq,
                            .data = o->data };
    return t;
}

/* A tensor of the whole problem. */
static attn_tensor whole(const own_share *s, int which)
{
    static const attn_gradients none;
    const attn_params *p = &s->c->p;
    const attn_gradients *g = s->c->g != NULL ? s->c->g : &none;
    const attn_tensor all[TENSORS] = {
        [TQ] = p->q,
        [TK] = p->k,
        [TV] = p->v,
        [TO] = as_tensor(&p->o),
        [TLSE] = as_tensor(&p->lse),
        [TSTATS] = as_tensor(&p->stats),
        [TDOUT] = g->dout,
        [TDLSE] = g->dlse,
        [TDQ] = as_tensor(&g->dq),
        [TDK] = as_tensor(&g->dk),
        [TDV] = as_tensor(&g->dv),
    };
    return all[which];
}

/* Where a row of the whole problem lies. */
static const unsigned char *whole_at(const own_share *s, int which, int64_t b, int64_t h, int64_t x)
{
    const attn_params *p = &s->c->p;
    const attn_tensor t = whole(s, which);
    const int64_t dim = s->of[which].dim;
    const int64_t at = by_key(which) ? oracle_key_offset(p, &t, dim, b, h, x)
                                     : oracle_row_offset(p, &t, dim, b, h, x);
    return (const unsigned char *)t.data + ring_bytes_of(t.dtype, at);
}

static int is_output(const own_share *s, int which)
{
    return which >= s->first_output && which < s->end_output;
}

static void open_own(own_share *s)
{
    const attn_params *p = &s->c->p;
    const int64_t hq = p->num_heads_q, hkv = oracle_heads_kv(p), dv = oracle_dim_v(p);
    const int64_t dims[TENSORS] = { p->head_dim, p->head_dim, dv,          dv,          1, 2,
                                    dv,          1,           p->head_dim, p->head_dim, dv };
    s->first_output = s->c->g != NULL ? TDQ : TO;
    s->end_output = s->c->g != NULL ? TENSORS : TDOUT;
    for (int which = TQ; which < TENSORS; which++) {
        make_own(s, which, whole(s, which).dtype, by_key(which) ? hkv : hq, dims[which]);
        if (whole(s, which).data == NULL || is_output(s, which))
            continue;
        for (int64_t b = 0; b < p->batch; b++)
            for (int64_t h = 0; h < s->of[which].heads; h++)
                for (int64_t x = 0; x < s->range.count; x++)
                    memcpy(own_at(&s->of[which], b, h, x),
                           whole_at(s, which, b, h, s->range.begin + x),
                           (size_t)ring_bytes_of(s->of[which].dtype, s->of[which].dim));
    }
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* The bits of one process in rows in use; nothing else is written. */
static void compare_output(own_share *s, int which)
{
    static const char *const sentences[TENSORS] = {
        [TO] = "o has other bits than that of one process",
        [TLSE] = "lse has other bits than that of one process",
        [TSTATS] = "stats have other bits than those of one process",
        [TDQ] = "dq has other bits than that of one process",
        [TDK] = "dk has other bits than that of one process",
        [TDV] = "dv has other bits than that of one process",
    };
    const own_tensor *t = &s->of[which];
    const size_t bytes = (size_t)ring_bytes_of(t->dtype, t->dim);
    unsigned char *expected = malloc(t->bytes);
    if (expected == NULL)
        exit(2);
    memset(expected, 0x7f, t->bytes);
    for (int64_t b = 0; b < s->c->p.batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t x = 0; x < s->range.count; x++) {
                const int64_t at = s->range.begin + x;
                unsigned char *to = expected + (own_at(t, b, h, x) - t->data);
                if (at < oracle_rows(&s->c->p, b))
                    memcpy(to, whole_at(s, which, b, h, at), bytes);
                if (memcmp(to, own_at(t, b, h, x), bytes) != 0)
                    tell(s, sentences[which], b, h, at);
            }
    if (memcmp(expected, t->data, t->bytes) != 0)
        tell(s, "written outside the rows", -1, -1, which);
    free(expected);
}

static void check_untouched(own_share *s)
{
    for (int which = s->first_output; which < s->end_output; which++)
        for (size_t i = 0; i < s->of[which].bytes; i++)
            if (s->of[which].data[i] != 0x7f)
                tell(s, "an output was written by a call that failed", -1, -1, which);
}

/* ---- faults ---------------------------------------------------------------------------------- */

typedef struct faulty {
    const attn_transport *inner;
    const ring_fault *fault;
    int begins, ends;
} faulty;

static int fails_here(const faulty *f, int kind, int number)
{
    return f->fault->kind == kind && f->fault->rank == f->inner->rank && f->fault->at == number;
}

static int faulty_agree(void *user, int value)
{
    const faulty *f = user;
    return f->inner->agree(f->inner->user, value);
}

static int faulty_begin(void *user, const void *send, size_t send_bytes, void *receive,
                        size_t receive_bytes)
{
    faulty *f = user;
    if (fails_here(f, RING_FAULT_BEGIN, f->begins++))
        return 1;
    return f->inner->begin(f->inner->user, send, send_bytes, receive, receive_bytes);
}

static int faulty_end(void *user)
{
    faulty *f = user;
    const int failed = f->inner->end(f->inner->user);
    return fails_here(f, RING_FAULT_END, f->ends++) ? 1 : failed;
}

static void faulty_cancel(void *user)
{
    const faulty *f = user;
    f->inner->cancel(f->inner->user);
}

static int failing_for(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user, (void)n, (void)task, (void)arg;
    return 1;
}

/* What every rank has to return. */
static attn_status expected_status(const dilated_rank_case *c)
{
    if (c->other_branches)
        return ATTN_ERR_ARG;
    if (c->fault == NULL)
        return ATTN_OK;
    return c->fault->kind == RING_FAULT_WORKSPACE  ? ATTN_ERR_WORKSPACE
           : c->fault->kind == RING_FAULT_ARGUMENT ? ATTN_ERR_ARG
                                                   : ATTN_ERR_CALLBACK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static void set_tensors(const own_share *s, attn_params *p, attn_gradients *g)
{
    attn_tensor *const in[TENSORS] = {
        [TQ] = &p->q, [TK] = &p->k, [TV] = &p->v, [TDOUT] = &g->dout, [TDLSE] = &g->dlse
    };
    attn_output *const out[TENSORS] = { [TO] = &p->o,   [TLSE] = &p->lse, [TSTATS] = &p->stats,
                                        [TDQ] = &g->dq, [TDK] = &g->dk,   [TDV] = &g->dv };
    p->layout = s->c->spread == 1 ? ATTN_LAYOUT_BSHD : ATTN_LAYOUT_BHSD;
    for (int which = TQ; which < TENSORS; which++) {
        const attn_output own = as_output(s, which);
        if (whole(s, which).data == NULL)
            continue;
        if (in[which] != NULL)
            *in[which] = as_tensor(&own);
        else
            *out[which] = own;
    }
}

/* The three functions, of a forward call or of gradients. */
static attn_status size_of_call(const attn_params *p, const attn_dilated *d,
                                const attn_gradients *g, const attn_ring *ring, size_t *bytes)
{
    return g != NULL ? attn_dilated_ring_backward_workspace_size(p, d, g, ring, bytes)
                     : attn_dilated_ring_workspace_size(p, d, ring, bytes);
}

static attn_status make_call(const attn_params *p, const attn_dilated *d, const attn_gradients *g,
                             const attn_ring *ring, void *memory, size_t bytes)
{
    return g != NULL ? attn_dilated_ring_backward(p, d, g, ring, memory, bytes)
                     : attn_dilated_ring_forward(p, d, ring, memory, bytes);
}

static const char *check_call(const attn_params *p, const attn_dilated *d, const attn_gradients *g,
                              const attn_ring *ring, void *memory, size_t bytes, char text[200])
{
    return g != NULL ? attn_dilated_ring_backward_check(p, d, g, ring, memory, bytes, text, 200)
                     : attn_dilated_ring_check(p, d, ring, memory, bytes, text, 200);
}

static void check_margins(own_share *s, const unsigned char *memory, size_t bytes)
{
    int whole = memory[0] == 0xff;
    for (size_t i = 0; i < 64; i++)
        whole &= memory[1 + bytes + i] == 0xff;
    if (!whole)
        tell(s, "a byte beside the workspace was written", -1, -1, -1);
}

static void break_call(const own_share *s, attn_params *p, attn_dilated *d,
                       attn_dilated_branch *first)
{
    const ring_fault *fault = s->c->fault;
    if (s->c->other_branches && s->t->rank == s->t->size - 1) {
        *first = d->branches[0];
        first->dilation = first->dilation > 1 ? first->dilation + 1 : 2;
        d->branches = first;
        d->num_branches = 1;
    }
    if (fault == NULL || fault->rank != s->t->rank)
        return;
    if (fault->kind == RING_FAULT_ARGUMENT)
        p->window = 1, p->window_left = -5;
}

static attn_status call_own(own_share *s)
{
    const ring_fault *fault = s->c->fault;
    attn_params p = s->c->p;
    attn_dilated d = s->c->d;
    attn_dilated_branch first;
    attn_gradients own_g = { 0 };
    const attn_gradients *g = s->c->g != NULL ? &own_g : NULL;
    attn_ring ring = s->c->ring;
    attn_transport t = *s->t;
    faulty f = { s->t, fault, 0, 0 };
    size_t bytes = 0;
    char text[200];
    unsigned char *memory;
    attn_status status;
    if (g != NULL)
        own_g = *s->c->g;
    set_tensors(s, &p, &own_g);
    if (fault != NULL) {
        t.user = &f;
        t.agree = faulty_agree, t.begin = faulty_begin, t.end = faulty_end;
        t.cancel = faulty_cancel, t.seconds = NULL;
    }
    if (fault != NULL && fault->kind == RING_FAULT_COMPUTE && fault->rank == t.rank)
        p.parallel_for = failing_for, p.num_workers = 4;
    ring.transport = &t;
    ring.stats = &s->out->stats;
    if (size_of_call(&p, &d, g, &ring, &bytes) != ATTN_OK)
        tell(s, check_call(&p, &d, g, &ring, NULL, 0, text), -1, -1, -1);
    memory = malloc(bytes + 65);
    if (memory == NULL)
        exit(2);
    memset(memory, 0xff, bytes + 65);
    if (fault != NULL && fault->kind == RING_FAULT_WORKSPACE && fault->rank == t.rank)
        bytes--;
    break_call(s, &p, &d, &first);
    status = make_call(&p, &d, g, &ring, memory + 1, bytes);
    if (status != expected_status(s->c))
        tell(s,
             status ? check_call(&p, &d, g, &ring, memory + 1, bytes, text)
                    : "a fault was not noticed",
             -1, -1, (int)status);
    check_margins(s, memory, bytes);
    free(memory);
    return status;
}

void dilated_rank_run(const dilated_rank_case *c, const attn_transport *t,
                      dilated_rank_outcome *out)
{
    own_share s = { .c = c, .t = t, .out = out };
    attn_ring ring = c->ring;
    int64_t count = 0;
    memset(out, 0, sizeof *out);
    ring.transport = t;
    if (attn_ring_ranges(&c->p, &ring, t->rank, &s.range, 1, &count) != ATTN_OK || count > 1)
        tell(&s, "attn_ring_ranges", -1, -1, -1);
    if (count == 0)
        memset(&s.range, 0, sizeof s.range);
    open_own(&s);
    if (call_own(&s) != ATTN_OK) {
        if (c->fault == NULL || c->fault->kind != RING_FAULT_COMPUTE)
            check_untouched(&s);
        if (c->fault != NULL && out->stats.failed_rank != c->fault->rank)
            tell(&s, "another rank is said to have failed", -1, -1, out->stats.failed_rank);
    } else {
        for (int which = s.first_output; which < s.end_output; which++)
            if (whole(&s, which).data != NULL)
                compare_output(&s, which);
        if (!out->stats.canonical || out->stats.failed_rank != -1)
            tell(&s, "the statistics of a call that did well", -1, -1, -1);
    }
    for (int which = 0; which < TENSORS; which++)
        free(s.of[which].data);
}

/* ---- problems of their own ------------------------------------------------------------------- */

/* Both ends included. */
static int64_t draw(uint64_t *random, int64_t low, int64_t high)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((*random >> 33) % (uint64_t)(high - low + 1));
}

static void draw_branches(dilated_rank_problem *x, uint64_t *random)
{
    x->c.d.num_branches = (int)draw(random, 1, 3);
    x->c.d.branches = x->branches;
    for (int n = 0; n < x->c.d.num_branches; n++) {
        x->branches[n].segment = draw(random, 0, 60);
        x->branches[n].dilation = draw(random, 1, 7);
        x->branches[n].rotate = (int)draw(random, 0, 1);
        x->branches[n].offset = draw(random, 0, x->branches[n].dilation - 1);
    }
}

/* What a problem has in its memory: o and dq as q, dk and dv as k. */
enum { MQ, MO, MDOUT, MDQ, MK, MV, MDK, MDV, MSTATS, MEMORIES };

static void place_memory(dilated_rank_problem *x, float *at[MEMORIES], uint64_t *random)
{
    const attn_params *p = &x->c.p;
    const int64_t rows = p->batch * p->num_heads_q * p->seq_len_q;
    const int64_t keys = p->batch * p->num_heads_kv * p->seq_len_kv;
    const int64_t all = 4 * (rows + keys) * p->head_dim + 2 * rows;
    x->memory = malloc((size_t)all * sizeof *x->memory);
    if (x->memory == NULL)
        exit(2);
    for (int64_t i = 0; i < all; i++)
        x->memory[i] = (float)draw(random, -1000, 1000) * 0.002f;
    at[0] = x->memory;
    for (int i = 1; i < MEMORIES; i++)
        at[i] = at[i - 1] + (i <= MK ? rows : keys) * p->head_dim;
}

static int run_one_process(const attn_params *p, const attn_dilated *d, const attn_gradients *g)
{
    size_t bytes = 0, more = 0;
    attn_status status = attn_dilated_workspace_size(p, d, &bytes);
    void *workspace;
    if (status == ATTN_OK && g != NULL)
        status = attn_dilated_backward_workspace_size(p, d, g, &more);
    workspace = malloc(bytes + more + 1);
    if (status == ATTN_OK)
        status = attn_dilated_forward(p, d, workspace, bytes);
    if (status == ATTN_OK && g != NULL)
        status = attn_dilated_backward(p, d, g, workspace, more);
    free(workspace);
    return status == ATTN_OK;
}

static void draw_problem(dilated_rank_problem *x, uint64_t seed, int ranks)
{
    uint64_t random = seed * 1000003u + (uint64_t)ranks;
    attn_params *p = &x->c.p;
    float *at[MEMORIES];
    memset(x, 0, sizeof *x);
    p->batch = draw(&random, 1, 2);
    p->num_heads_kv = draw(&random, 1, 2);
    p->num_heads_q = p->num_heads_kv * draw(&random, 1, 4);
    p->seq_len_q = p->seq_len_kv = draw(&random, 1, 90);
    p->head_dim = 8;
    p->causal = (int)draw(&random, 0, 1);
    x->c.ring.shard = draw(&random, 1, 20);
    x->c.spread = (int)draw(&random, 0, 2);
    x->c.d.merge = (int)draw(&random, 0, 1);
    draw_branches(x, &random);
    place_memory(x, at, &random);
    p->q.data = at[MQ], p->k.data = at[MK], p->v.data = at[MV], p->o.data = at[MO];
    p->stats.data = x->c.d.merge == ATTN_DILATED_LSE ? at[MSTATS] : NULL;
    x->g.dout.data = at[MDOUT];
    x->g.dq.data = at[MDQ], x->g.dk.data = at[MDK], x->g.dv.data = at[MDV];
}

int dilated_rank_make(dilated_rank_problem *x, uint64_t seed, int ranks)
{
    draw_problem(x, seed, ranks);
    return run_one_process(&x->c.p, &x->c.d, NULL);
}

int dilated_rank_make_gradients(dilated_rank_problem *x, uint64_t seed, int ranks)
{
    draw_problem(x, seed, ranks);
    x->c.p.impl = ATTN_IMPL_TILED;
    x->c.g = &x->g;
    return run_one_process(&x->c.p, &x->c.d, &x->g);
}
