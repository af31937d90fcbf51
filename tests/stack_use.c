/* stack_use.c - how many bytes of stack a call takes: runs it on a painted stack of its own and
 * looks how far the paint is gone. tests/stack.sh builds it in several ways and compares with the
 * limit.
 * SPDX-License-Identifier: MIT
 *
 * usage: stack_use LIMIT      prints one line a call; status 1 if one exceeds LIMIT
 */
#define _DEFAULT_SOURCE
#include "../attn_simd.h"
#include "../attn.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STACK = 1 << 18, PAINT = 0xa5, ROWS = 150, DIM = 40 };

static attn_params params;
static void *workspace;
static size_t workspace_bytes;
static char text[300];
static float states[2][ROWS * (DIM + 2)];
/* q, k, v, o, and what a call writes besides. */
enum { LSE = 4, DQ, DK, DV, DBIAS, ARRAYS };
static float everything[ARRAYS][ROWS * DIM];

static void run_nothing(void)
{
}

static void run_forward(void)
{
    if (attn_forward(&params, workspace, workspace_bytes) != ATTN_OK)
        abort();
}

/* The results of rows lie in arrays that a forward call does not write. */
static void run_insight(void)
{
    static attn_params plain;
    void *room;
    size_t bytes;
    plain = params;
    params.insight.top = 4;
    params.insight.entropy = everything[LSE];
    params.insight.top_prob = everything[DQ];
    params.insight.mass = (double *)(void *)everything[DK];
    params.insight.mass_keys = 8;
    if (attn_workspace_size(&params, &bytes) != ATTN_OK || (room = malloc(bytes)) == NULL ||
        attn_forward(&params, room, bytes) != ATTN_OK)
        abort();
    free(room);
    params = plain;
}

static void run_skip(void)
{
    static attn_params plain;
    void *room;
    size_t bytes;
    plain = params;
    params.impl = ATTN_IMPL_TILED;
    params.skip.below = 0.5f;
    params.skip.dropped = everything[DQ];
    if (attn_workspace_size(&params, &bytes) != ATTN_OK || (room = malloc(bytes)) == NULL ||
        attn_forward(&params, room, bytes) != ATTN_OK)
        abort();
    free(room);
    params = plain;
}

static void run_index(void)
{
    static attn_params s;
    attn_indexer x = { 0 };
    void *room;
    size_t bytes;
    s.batch = params.batch;
    s.num_heads_q = params.num_heads_q;
    s.num_heads_kv = params.num_heads_kv;
    s.seq_len_q = params.seq_len_q;
    s.seq_len_kv = params.seq_len_kv;
    s.head_dim = params.head_dim;
    s.q = params.q;
    s.k = params.k;
    s.kernels = params.kernels;
    s.causal = 1;
    x.top_k = 2;
    x.keys = (int32_t *)(void *)everything[DQ];
    x.scores = everything[DK];
    if (attn_index_workspace_size(&s, &x, &bytes) != ATTN_OK || (room = malloc(bytes)) == NULL ||
        attn_index(&s, &x, room, bytes) != ATTN_OK)
        abort();
    free(room);
}

static void run_check(void)
{
    static attn_params wrong;
    wrong = params;
    wrong.num_heads_kv = 5;
    attn_check(&wrong, workspace, workspace_bytes, text, sizeof text);
    attn_check(&params, workspace, 1, text, sizeof text);
}

static void run_explain(void)
{
    static attn_info info;
    if (attn_explain(&params, &info) != ATTN_OK)
        abort();
}

static void run_states(void)
{
    attn_state a = { ROWS, DIM, NULL, NULL, NULL };
    a.m = states[0];
    a.l = a.m + ROWS;
    a.o = a.l + ROWS;
    attn_state_merge(&a, &a, &a);
    attn_state_finish(&params, &a);
}

/* 16-bit rows, of which not all elements turn: the longest way. */
static void run_rope(void)
{
    static uint16_t x[ROWS * DIM];
    attn_rope rope = { 0 };
    attn_rope_rows rows = { 0 };
    rope.dim = DIM - 2;
    rope.scaling = ATTN_ROPE_YARN;
    rope.original_length = 4096;
    rows.batch = rows.num_heads = 1;
    rows.seq_len = ROWS;
    rows.head_dim = DIM;
    rows.x.dtype = ATTN_F16;
    rows.y.dtype = ATTN_BF16;
    rows.x.data = x;
    rows.y.data = everything[3];
    if (attn_rope_apply(&rope, &rows, text, sizeof text) != ATTN_OK ||
        attn_rope_table(&rope, DIM, 0, ROWS, everything[2], everything[3], NULL, 0) != ATTN_OK)
        abort();
}

/* A ring of pages, turned keys, a copy of a shared page; every other function once. */
static void run_cache(void)
{
    static char memory[1 << 16], room[1 << 10];
    static attn_cache c;
    static attn_cache_step s;
    static attn_params p;
    static attn_rope rope;
    const int32_t chosen[] = { 1, 0 };
    attn_output k = { 0, 0, 0, 0, NULL };
    memset(&c, 0, sizeof c);
    c.num_sequences = 2;
    c.num_heads_kv = s.batch = c.ring = 1;
    c.head_dim = DIM;
    c.capacity = 32;
    c.page_size = 5;
    c.k.dtype = ATTN_F16;
    c.window_left = 7;
    s.seq_len = 13;
    s.k.data = everything[0];
    s.v.data = everything[1];
    s.rope = &rope;
    k.data = everything[3];
    if (attn_cache_init(&c, memory, sizeof memory, text, sizeof text) != ATTN_OK ||
        attn_cache_append(&c, &s, text, sizeof text) != ATTN_OK ||
        attn_cache_fork(&c, 0, 1, 13, text, sizeof text) != ATTN_OK ||
        attn_cache_append(&c, &s, text, sizeof text) != ATTN_OK ||
        attn_cache_view(&c, 0, chosen, 2, &p, room, sizeof room, text, sizeof text) != ATTN_OK ||
        attn_cache_read(&c, 0, 1, 0, 13, &k, NULL, text, sizeof text) != ATTN_OK ||
        attn_cache_trim(&c, 0, 20, 24, text, sizeof text) != ATTN_OK)
        abort();
}

/* All gradients, with everything that a pair of tiles may pass, both ways. */
static void run_backward(void)
{
    static float dsinks[1], dslopes[1];
    static attn_params p;
    static attn_gradients g;
    size_t bytes;
    void *room;
    if (params.batch != 1)
        return;
    p = params;
    p.lse.data = everything[LSE];
    p.bias.data = everything[1];
    p.bias.stride_batch = p.bias.stride_head = ATTN_STRIDE_BROADCAST;
    p.bias.stride_q = p.bias.stride_kv = ATTN_STRIDE_BROADCAST;
    p.softmax1 = 0;
    p.sinks = everything[1];
    g.dout.data = everything[0];
    g.dq.data = everything[DQ];
    g.dk.data = everything[DK];
    g.dv.data = everything[DV];
    g.dbias.data = everything[DBIAS];
    g.dsinks = dsinks;
    g.dslopes = dslopes;
    for (g.gemms = 5; g.gemms <= 7; g.gemms += 2) {
        if (attn_backward_workspace_size(&p, &g, &bytes) != ATTN_OK)
            abort();
        room = malloc(bytes);
        attn_backward_check(&p, &g, room, bytes, text, sizeof text);
        if (attn_backward(&p, &g, room, bytes) != ATTN_OK)
            abort();
        free(room);
    }
}

/* Branches in both merges and variants, and their gradients. */
static void run_dilated(void)
{
    static attn_dilated_branch branches[2];
    static attn_dilated d;
    static attn_params p;
    static attn_gradients g;
    size_t bytes, back;
    void *room;
    if (params.batch != 1)
        return;
    p = params;
    p.dropout_p = 0;
    branches[0].segment = 40;
    branches[1].dilation = 3;
    d.num_branches = 2;
    d.branches = branches;
    d.merge = p.impl == ATTN_IMPL_NAIVE; /* which has gradients of a mean only */
    for (; d.merge < 2; d.merge++)
        for (d.variant = 0; d.variant < 2; d.variant++) {
            p.lse.data = d.merge ? NULL : states[0];
            p.softmax1 = !d.merge;
            g.dout.data = everything[0];
            g.dq.data = everything[DQ];
            g.dk.data = everything[DK];
            g.dv.data = everything[DV];
            if (attn_dilated_workspace_size(&p, &d, &bytes) != ATTN_OK ||
                attn_dilated_backward_workspace_size(&p, &d, &g, &back) != ATTN_OK)
                abort();
            bytes = bytes > back ? bytes : back;
            room = malloc(bytes);
            attn_dilated_check(&p, &d, room, bytes, text, sizeof text);
            attn_dilated_backward_check(&p, &d, &g, room, bytes, text, sizeof text);
            if (attn_dilated_forward(&p, &d, room, bytes) != ATTN_OK ||
                attn_dilated_backward(&p, &d, &g, room, bytes) != ATTN_OK)
                abort();
            free(room);
        }
}

static int fetch(void *user, const attn_fetch *tile)
{
    (void)user;
    memset(tile->k, 0, (size_t)(tile->count * DIM) * sizeof(float));
    memset(tile->v, 0, (size_t)(tile->count * DIM) * sizeof(float));
    return 0;
}

static void run_resume(void)
{
    static attn_resumable r;
    static attn_params p;
    size_t bytes;
    void *room;
    if (params.batch != 1 || params.impl == ATTN_IMPL_NAIVE)
        return;
    p = params;
    if (attn_resume_memory(&p, 0, &bytes) != ATTN_OK)
        abort();
    room = malloc(bytes);
    attn_resume_check(&p, 0, fetch, room, bytes, text, sizeof text);
    if (attn_resume_begin(&r, &p, 0, fetch, NULL, room, bytes) != ATTN_OK ||
        attn_resume_step(&r, ROWS) != ATTN_OK || attn_resume_end(&r) != ATTN_OK)
        abort();
    free(room);
}

/* Two ranks, of which the other one sends what it gets and finds all well. */
static int echo_agree(void *user, int value)
{
    (void)user;
    return value;
}

static int echo_begin(void *user, const void *send, size_t send_bytes, void *receive,
                      size_t receive_bytes)
{
    (void)user;
    memcpy(receive, send, send_bytes < receive_bytes ? send_bytes : receive_bytes);
    return 0;
}

static int echo_end(void *user)
{
    (void)user;
    return 0;
}

static void echo_cancel(void *user)
{
    (void)user;
}

static void in_workspace(const attn_params *p, const attn_gradients *g, const attn_ring *ring)
{
    size_t bytes = 0;
    void *room;
    if (g ? attn_ring_backward_workspace_size(p, g, ring, &bytes)
          : attn_ring_workspace_size(p, ring, &bytes))
        abort();
    room = malloc(bytes);
    if (g)
        attn_ring_backward_check(p, g, ring, room, bytes, text, sizeof text);
    else
        attn_ring_check(p, ring, room, bytes, text, sizeof text);
    if (g ? attn_ring_backward(p, g, ring, room, bytes) : attn_ring_forward(p, ring, room, bytes))
        abort();
    free(room);
}

static void run_ring(void)
{
    static const attn_transport echo = { 2,          0,        NULL,        echo_agree,
                                         echo_begin, echo_end, echo_cancel, NULL };
    static attn_params p;
    static attn_gradients g;
    static attn_ring ring;
    if (params.batch != 1 || params.impl == ATTN_IMPL_NAIVE)
        return;
    p = params;
    p.lse.data = everything[LSE];
    ring.transport = &echo;
    ring.shard = 10;
    ring.layout = ATTN_RING_ZIGZAG;
    in_workspace(&p, NULL, &ring);
    g.dout.data = everything[0];
    g.dq.data = everything[DQ];
    g.dk.data = everything[DK];
    g.dv.data = everything[DV];
    in_workspace(&p, &g, &ring);
}

static void branches_in_workspace(const attn_params *p, const attn_dilated *d,
                                  const attn_gradients *g, const attn_ring *ring)
{
    size_t bytes = 0;
    void *room;
    if (g ? attn_dilated_ring_backward_workspace_size(p, d, g, ring, &bytes)
          : attn_dilated_ring_workspace_size(p, d, ring, &bytes))
        abort();
    room = malloc(bytes);
    if (g)
        attn_dilated_ring_backward_check(p, d, g, ring, room, bytes, text, sizeof text);
    else
        attn_dilated_ring_check(p, d, ring, room, bytes, text, sizeof text);
    if (g ? attn_dilated_ring_backward(p, d, g, ring, room, bytes)
          : attn_dilated_ring_forward(p, d, ring, room, bytes))
        abort();
    free(room);
}

static void run_ring_decode(void)
{
    static const attn_transport echo = { 2,          0,        NULL,        echo_agree,
                                         echo_begin, echo_end, echo_cancel, NULL };
    static attn_params p;
    static attn_ring ring;
    size_t bytes;
    void *room;
    if (params.batch != 1 || params.impl == ATTN_IMPL_NAIVE)
        return;
    p = params;
    ring.transport = &echo;
    ring.shard = 10;
    if (attn_ring_decode_workspace_size(&p, &ring, &bytes) != ATTN_OK)
        abort();
    room = malloc(bytes);
    attn_ring_decode_check(&p, &ring, room, bytes, text, sizeof text);
    if (attn_ring_decode_forward(&p, &ring, room, bytes) != ATTN_OK)
        abort();
    free(room);
}

static void run_dilated_ring(void)
{
    static const attn_transport echo = { 2,          0,        NULL,        echo_agree,
                                         echo_begin, echo_end, echo_cancel, NULL };
    static attn_dilated_branch branches[2];
    static attn_dilated d;
    static attn_params p;
    static attn_gradients g;
    static attn_ring ring;
    if (params.batch != 1 || params.impl == ATTN_IMPL_NAIVE)
        return;
    p = params;
    p.dropout_p = 0;
    branches[0].segment = 40;
    branches[1].dilation = 3;
    d.num_branches = 2;
    d.branches = branches;
    ring.transport = &echo;
    ring.shard = 10;
    branches_in_workspace(&p, &d, NULL, &ring);
    p.impl = ATTN_IMPL_TILED;
    p.lse.data = everything[LSE];
    g.dout.data = everything[0];
    g.dq.data = everything[DQ];
    g.dk.data = everything[DK];
    g.dv.data = everything[DV];
    branches_in_workspace(&p, &d, &g, &ring);
}

static void *start(void *call)
{
    (*(void (**)(void))call)();
    return NULL;
}

/* Bytes from the end of the stack down to the lowest one that changed. */
static size_t measure(void (*call)(void))
{
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_t thread;
    size_t untouched = 0;
    if (stack == MAP_FAILED)
        abort();
    memset(stack, PAINT, STACK);
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, stack, STACK) ||
        pthread_create(&thread, &attributes, start, &call))
        abort();
    pthread_join(thread, NULL);
    while (untouched < STACK && (unsigned char)stack[untouched] == PAINT)
        untouched++;
    munmap(stack, STACK);
    return STACK - untouched;
}

/* The rows of two batch entries, of which the second one's keys are those of the first. */
static void share_keys(void)
{
    params.batch = 2;
    params.seq_len_q = 1;
    params.k.stride_batch = params.v.stride_batch = ATTN_STRIDE_BROADCAST;
    params.shared_keys = ROWS;
    params.alibi_slopes = NULL;
    params.dropout_p = 0;
}

enum { TILED, NAIVE, SHARED, WAYS };
static const char *const ways[WAYS] = { "tiled", "naive", "shared prefix" };

static void set_params(int way, const attn_kernels *kernels)
{
    static const float slopes[] = { 0.5f, 0.25f, 0.5f, 0.25f };
    memset(&params, 0, sizeof params);
    params.batch = 1;
    params.num_heads_q = 1;
    params.seq_len_q = params.seq_len_kv = ROWS;
    params.head_dim = DIM;
    params.q.data = everything[0];
    params.k.data = everything[1];
    params.v.data = everything[2];
    params.o.data = everything[3];
    params.causal = 1;
    params.softcap = 20.0f;
    params.alibi_slopes = slopes;
    params.alibi_stride = ATTN_STRIDE_BROADCAST;
    params.softmax1 = 1;
    params.dropout_p = 0.1f;
    params.force_redo = 1;
    params.impl = way == NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_TILED;
    params.kernels = kernels;
    if (way == SHARED)
        share_keys();
    free(workspace);
    if (attn_workspace_size(&params, &workspace_bytes) != ATTN_OK)
        abort();
    workspace = malloc(workspace_bytes);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
        size_t more; /* than the limit: these call the others */
    } calls[] = { { "attn_forward", run_forward, 0 },
                  { "attn_check", run_check, 0 },
                  { "insight", run_insight, 0 },
                  { "skip", run_skip, 0 },
                  { "attn_index", run_index, 0 },
                  { "attn_explain", run_explain, 0 },
                  { "attn_state_finish", run_states, 0 },
                  { "attn_rope_apply", run_rope, 0 },
                  { "attn_cache", run_cache, 0 },
                  { "attn_backward", run_backward, 512 },
                  { "attn_resume", run_resume, 1536 },
                  { "attn_dilated", run_dilated, 1280 },
                  { "attn_ring", run_ring, 2048 },
                  { "attn_dilated_ring", run_dilated_ring, 3072 },
                  { "attn_ring_decode", run_ring_decode, 2048 } };
    const size_t limit = argc > 1 ? (size_t)atol(argv[1]) : 4096;
    const attn_kernels *kernels;
    int failed = 0;
    size_t c;
    for (int k = 0; (kernels = attn_kernels_get(k)) != NULL; k++)
        for (int way = 0; way < WAYS; way++)
            for (c = 0; c < sizeof calls / sizeof *calls; c++) {
                size_t used;
                set_params(way, kernels);
                calls[c].run(); /* lazy binding takes stack in a first call */
                used = measure(calls[c].run) - measure(run_nothing);
                failed |= used > limit + calls[c].more;
                printf("%s %5zu bytes  %s, %s, %s\n",
                       used > limit + calls[c].more ? "FAILED" : "ok    ", used, calls[c].name,
                       ways[way], attn_kernels_name(kernels));
            }
    free(workspace);
    return failed;
}
