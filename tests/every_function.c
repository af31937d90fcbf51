/* every_function.c - calls every function that attn.h declares, with attn.h and attn.c alone: for
 * tests/every_function.sh, which looks for their names here.
 * SPDX-License-Identifier: MIT
 *
 * Prints one line; the exit status is 0 only where every call said what it must. What the functions
 * compute is the matter of other tests.
 */
#include "attn.h"

#include <stdio.h>
#include <string.h>

enum { ROWS = 3, DIM = 8, SIZE = ROWS * DIM };

static float x[SIZE], o[SIZE], lse[ROWS], more[2][SIZE];
static char workspace[1 << 20], text[1024];
static int calls, wrong;

static void says(int line, int held)
{
    calls++;
    if (!held) {
        wrong++;
        printf("FAILED tests/every_function.c:%d: %s\n", line, text);
    }
}
#define HOLDS(condition) says(__LINE__, (condition) != 0)
#define OK(call) HOLDS((call) == ATTN_OK)
#define WHY text, sizeof text
#define MEMORY workspace, sizeof workspace

static attn_params causal(void)
{
    attn_params p = { 0 };
    p.batch = p.num_heads_q = p.causal = 1;
    p.seq_len_q = p.seq_len_kv = ROWS;
    p.head_dim = DIM;
    p.q.data = p.k.data = p.v.data = x;
    p.o.data = o;
    p.lse.data = lse;
    return p;
}

static attn_gradients wanted(void)
{
    attn_gradients g = { 0 };
    g.dout.data = x;
    g.dq.data = more[0];
    g.dk.data = more[1];
    return g;
}

static void forward(void)
{
    const attn_params p = causal();
    const attn_pair pair = { 0 };
    attn_problem problem;
    size_t bytes;
    float slopes[4];
    unsigned short halves[ROWS];
    int8_t whole[ROWS];
    float scale;
    HOLDS(strcmp(attn_version(), ATTN_VERSION_STRING) == 0);
    HOLDS(attn_params_size() == sizeof p);
    OK(attn_workspace_size(&p, &bytes));
    HOLDS(strcmp(attn_check(&p, MEMORY, WHY), "ok") == 0);
    OK(attn_forward(&p, workspace, bytes));
    HOLDS(strcmp(attn_impl_name(ATTN_IMPL_TILED), "tiled") == 0);
    HOLDS(strcmp(attn_status_string(ATTN_OK), "ok") == 0);
    OK(attn_alibi_slopes(slopes, 4));
    OK(attn_convert(halves, ATTN_F16, x, ATTN_F32, ROWS));
    OK(attn_rotate(x, 1, ROWS));
    OK(attn_quantise_i8(whole, &scale, x, 1, ROWS));
    HOLDS(attn_dropout_keep(1, 0.0f, &pair));
    HOLDS(attn_kernels_find(attn_kernels_name(attn_kernels_get(0))) == attn_kernels_get(0));
    OK(attn_problem_of(&p, &problem, WHY));
    HOLDS(attn_sequence_of(&problem, 0).kv_len == ROWS);
}

static void words(void)
{
    attn_params p = causal();
    attn_info info;
    OK(attn_explain(&p, &info));
    HOLDS(strstr(attn_info_format(&info, WHY), "tiled") != NULL);
    OK(attn_params_from_string(&p, "impl=naive", WHY));
}

static void merge(void)
{
    static float m[ROWS], l[ROWS], sums[SIZE];
    attn_params p = causal();
    attn_state s = { 0 };
    s.num_rows = ROWS;
    s.head_dim_v = DIM;
    s.m = m;
    s.l = l;
    s.o = sums;
    p.partial = 1;
    p.state = s;
    OK(attn_forward(&p, MEMORY));
    OK(attn_state_merge(&s, &s, &s));
    p.partial = 0;
    OK(attn_state_finish(&p, &s));
    OK(attn_lse_merge(ROWS, DIM, o, lse, o, lse, o, lse));
}

static void rope(void)
{
    const attn_rope r = { 0 };
    attn_rope_rows rows = { 0 };
    rows.batch = rows.num_heads = 1;
    rows.seq_len = ROWS;
    rows.head_dim = DIM;
    rows.x.data = x;
    rows.y.data = more[0];
    OK(attn_rope_apply(&r, &rows, WHY));
    OK(attn_rope_table(&r, DIM, 0, ROWS, more[0], more[1], WHY));
}

static char saved[1 << 16];
static size_t saved_bytes;

static int put(void *context, const void *bytes, size_t count)
{
    (void)context;
    memcpy(saved + saved_bytes, bytes, count);
    saved_bytes += count;
    return 0;
}

static int get(void *context, void *bytes, size_t count)
{
    size_t *const at = context;
    memcpy(bytes, saved + *at, count);
    *at += count;
    return 0;
}

static void cache(void)
{
    static char memory[4096];
    attn_cache c = { 0 };
    attn_cache_step s = { 0 };
    attn_snapshot snapshot = { 0 };
    size_t at = 0;
    attn_params p = { 0 };
    attn_output k = { 0 }, v = { 0 };
    size_t bytes;
    c.num_sequences = 2;
    c.num_heads_kv = s.batch = 1;
    c.head_dim = DIM;
    c.capacity = 4 * ROWS;
    s.seq_len = ROWS;
    s.k.data = s.v.data = x;
    k.data = more[0];
    v.data = more[1];
    OK(attn_cache_size(&c, &bytes, WHY));
    OK(attn_cache_init(&c, memory, sizeof memory, WHY));
    OK(attn_cache_append(&c, &s, WHY));
    OK(attn_cache_extend(&c, &s, WHY));
    OK(attn_cache_write(&c, 0, &s, WHY));
    OK(attn_cache_fork(&c, 0, 1, ROWS, WHY));
    OK(attn_cache_trim(&c, 0, 0, ROWS, WHY));
    OK(attn_cache_view_size(&c, 1, &bytes, WHY));
    OK(attn_cache_view(&c, 0, NULL, 1, &p, MEMORY, WHY));
    OK(attn_cache_read(&c, 0, 0, 0, ROWS, &k, &v, WHY));
    snapshot.batch = 1;
    snapshot.write = put;
    snapshot.read = get;
    snapshot.context = &at;
    OK(attn_cache_save(&c, &snapshot, WHY));
    OK(attn_cache_trim(&c, 0, 0, 0, WHY));
    OK(attn_cache_load(&c, &snapshot, WHY));
    HOLDS(at == saved_bytes && c.end[0] == ROWS);
    HOLDS(memcmp(more[0], x, sizeof x) == 0);
}

static void backward(void)
{
    const attn_params p = causal();
    const attn_gradients g = wanted();
    attn_backward_info info;
    size_t bytes;
    OK(attn_forward(&p, MEMORY));
    OK(attn_backward_workspace_size(&p, &g, &bytes));
    HOLDS(strcmp(attn_backward_check(&p, &g, MEMORY, WHY), "ok") == 0);
    OK(attn_backward(&p, &g, workspace, bytes));
    OK(attn_backward_explain(&p, &g, &info));
}

static int fetch(void *user, const attn_fetch *tile)
{
    (void)user;
    memset(tile->k, 0, (size_t)tile->count * sizeof *x);
    memset(tile->v, 0, (size_t)tile->count * sizeof *x);
    return 0;
}

static void resume(void)
{
    static attn_resumable r;
    attn_params p = causal();
    size_t bytes;
    p.head_dim = 1;
    OK(attn_resume_memory(&p, 16, &bytes));
    HOLDS(strcmp(attn_resume_check(&p, 16, fetch, MEMORY, WHY), "ok") == 0);
    OK(attn_resume_begin(&r, &p, 16, fetch, NULL, workspace, bytes));
    OK(attn_resume_step(&r, 1));
    OK(attn_resume_end(&r));
}

static void patterns(void)
{
    const attn_pattern few[] = { attn_pattern_longformer(1, 0), attn_pattern_strided(2),
                                 attn_pattern_random(1, 7), attn_pattern_bigbird(1, 1, 1, 7) };
    static int32_t offsets[8], columns[8];
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) {
        attn_params p = causal();
        attn_pattern t = few[i];
        attn_pattern_info info;
        t.seq_len_q = t.seq_len_kv = ROWS;
        OK(attn_pattern_measure(&t, &info, WHY));
        OK(attn_pattern_build(&t, offsets, 8, columns, 8, WHY));
        OK(attn_pattern_use(&t, offsets, columns, &p));
        OK(attn_forward(&p, MEMORY));
    }
}

static void indexer(void)
{
    attn_params p = causal();
    attn_indexer by = { 0 };
    int32_t keys[ROWS];
    size_t bytes;
    by.top_k = 1;
    by.keys = keys;
    memset(&p.v, 0, sizeof p.v);
    memset(&p.o, 0, sizeof p.o);
    memset(&p.lse, 0, sizeof p.lse);
    OK(attn_index_workspace_size(&p, &by, &bytes));
    HOLDS(strcmp(attn_index_check(&p, &by, MEMORY, WHY), "ok") == 0);
    OK(attn_index(&p, &by, workspace, bytes));
}

static void dilated(void)
{
    const attn_params p = causal();
    const attn_gradients g = wanted();
    const attn_dilated_branch branch = { 0 };
    attn_dilated d = { 0 };
    int32_t index[64];
    size_t bytes;
    d.num_branches = 1;
    d.branches = &branch;
    OK(attn_dilated_workspace_size(&p, &d, &bytes));
    HOLDS(strcmp(attn_dilated_check(&p, &d, MEMORY, WHY), "ok") == 0);
    OK(attn_dilated_forward(&p, &d, workspace, bytes));
    HOLDS(attn_dilated_index_size(&d, ROWS) <= 64);
    OK(attn_dilated_index(&d, ROWS, index, 64));
    OK(attn_dilated_backward_workspace_size(&p, &d, &g, &bytes));
    HOLDS(strcmp(attn_dilated_backward_check(&p, &d, &g, MEMORY, WHY), "ok") == 0);
    OK(attn_dilated_backward(&p, &d, &g, workspace, bytes));
}

/* A ring of one rank. */
static int agree(void *user, int value)
{
    (void)user;
    return value;
}

static int begin(void *user, const void *send, size_t sent, void *receive, size_t received)
{
    (void)user, (void)send, (void)sent, (void)receive, (void)received;
    return 1;
}

static int end(void *user)
{
    (void)user;
    return 1;
}

static void cancel(void *user)
{
    (void)user;
}

static void ring(void)
{
    const attn_params p = causal();
    attn_params tiled;
    const attn_gradients g = wanted();
    const attn_dilated_branch branch = { 0 };
    attn_dilated d = { 0 };
    attn_transport alone = { 0 };
    attn_ring r = { 0 };
    attn_ring_info info;
    attn_ring_range ranges[4];
    int64_t count;
    size_t bytes;
    alone.size = 1;
    alone.agree = agree;
    alone.begin = begin;
    alone.end = end;
    alone.cancel = cancel;
    r.transport = &alone;
    OK(attn_ring_describe(&p, &r, 0, &info));
    OK(attn_ring_ranges(&p, &r, 0, ranges, 4, &count));
    OK(attn_ring_workspace_size(&p, &r, &bytes));
    HOLDS(strcmp(attn_ring_check(&p, &r, MEMORY, WHY), "ok") == 0);
    OK(attn_ring_forward(&p, &r, workspace, bytes));
    OK(attn_ring_backward_workspace_size(&p, &g, &r, &bytes));
    HOLDS(strcmp(attn_ring_backward_check(&p, &g, &r, MEMORY, WHY), "ok") == 0);
    OK(attn_ring_backward(&p, &g, &r, workspace, bytes));
    d.num_branches = 1;
    d.branches = &branch;
    OK(attn_dilated_ring_workspace_size(&p, &d, &r, &bytes));
    HOLDS(strcmp(attn_dilated_ring_check(&p, &d, &r, MEMORY, WHY), "ok") == 0);
    OK(attn_dilated_ring_forward(&p, &d, &r, workspace, bytes));
    tiled = p;
    tiled.impl = ATTN_IMPL_TILED;
    OK(attn_dilated_ring_backward_workspace_size(&tiled, &d, &g, &r, &bytes));
    HOLDS(strcmp(attn_dilated_ring_backward_check(&tiled, &d, &g, &r, MEMORY, WHY), "ok") == 0);
    OK(attn_dilated_ring_backward(&tiled, &d, &g, &r, workspace, bytes));
    OK(attn_ring_decode_workspace_size(&p, &r, &bytes));
    HOLDS(strcmp(attn_ring_decode_check(&p, &r, MEMORY, WHY), "ok") == 0);
    OK(attn_ring_decode_forward(&p, &r, workspace, bytes));
}

int main(void)
{
    for (int i = 0; i < SIZE; i++)
        x[i] = (float)(i % 5);
    forward();
    words();
    merge();
    rope();
    cache();
    backward();
    resume();
    patterns();
    indexer();
    dilated();
    ring();
    printf("%d calls, %d wrong\n", calls, wrong);
    return wrong != 0;
}
