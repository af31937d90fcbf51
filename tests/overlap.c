/* overlap.c - what a call writes shares no byte with anything else, and legal neighbours stay legal.
 * SPDX-License-Identifier: MIT
 *
 * Random tensors in one small buffer are compared with a map that has a mark for each byte: a call is
 * refused if and only if the map has two. Each field is tried against each output of every level.
 */
#include "test.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT = 4096, SLOTS = 48, ROOM = 1 << 20 };

static union { /* aligned for every element */
    int64_t align;
    unsigned char at[SLOTS * SLOT];
} pool;
static union {
    int64_t align;
    unsigned char at[ROOM];
} room;
static char why[300];

static void *slot(int n)
{
    return pool.at + n * SLOT;
}

/* ---- each field against each output ---------------------------------------------------------- */

typedef struct field {
    const char *name;
    size_t offset;  /* of the pointer */
    int misaligned; /* nonzero: its elements have more than a byte */
} field;

#define IN(member)                                                                                 \
    {                                                                                              \
#member, offsetof(attn_params, member), 1                                                  \
    }
#define TENSOR_IN(member)                                                                          \
    {                                                                                              \
#member, offsetof(attn_params, member.data), 1                                             \
    }

static const field inputs[] = {
    TENSOR_IN(q),
    TENSOR_IN(k),
    TENSOR_IN(v),
    IN(q_len),
    IN(kv_len),
    IN(kv_begin),
    IN(key_base),
    IN(q_offset),
    IN(prefix),
    IN(q_segments),
    IN(kv_segments),
    IN(tree_parents),
    TENSOR_IN(bias),
    IN(alibi_slopes),
    IN(sinks),
    IN(logits.rows),
    IN(block_mask.row_offsets),
    IN(block_mask.columns),
    { "key_list.data", offsetof(attn_params, key_list.data), 0 },
    { "bool_mask", offsetof(attn_params, bool_mask.data), 0 },
    { "bit_mask", offsetof(attn_params, bit_mask.data), 0 },
};
static const field results[] = { TENSOR_IN(o), TENSOR_IN(lse), TENSOR_IN(stats), IN(logits.data) };
static const field states[] = { IN(state.m), IN(state.l), IN(state.o), IN(logits.data) };

enum { INPUTS = sizeof inputs / sizeof *inputs, OUTPUTS = 4, B = 2, H = 2, S = 3, N = 5, D = 4 };

static void point(void *base, const field *f, void *at)
{
    memcpy((char *)base + f->offset, &at, sizeof at);
}

static unsigned char before[sizeof pool.at];

static void fill_ones(void *at, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(int32_t); i++)
        ((int32_t *)at)[i] = 1;
}

/* Everything that a call may have, each array in a slot of its own. All integers are 1, so that
 * every sequence has a row and a key, and nodes of trees are roots. */
static attn_params everything(int partial)
{
    const field *outputs = partial ? states : results;
    attn_params p = { 0 };
    fill_ones(pool.at, sizeof pool.at);
    p.batch = B;
    p.num_heads_q = H;
    p.num_heads_kv = 1;
    p.seq_len_q = S;
    p.seq_len_kv = N;
    p.head_dim = D;
    p.causal = 1;
    p.partial = partial;
    p.alignment = ATTN_ALIGN_OFFSET;
    p.logits.num_rows = 2;
    p.block_mask.block_q = p.block_mask.block_k = 2;
    p.key_list.width = 1;
    p.logits.stage = ATTN_LOGITS_BIAS;
    for (int i = 0; i < INPUTS; i++)
        point(&p, &inputs[i], slot(i));
    for (int i = 0; i < OUTPUTS; i++)
        point(&p, &outputs[i], slot(INPUTS + i));
    memset((void *)(uintptr_t)p.tree_parents, 0xff, SLOT);
    memcpy(before, pool.at, sizeof before);
    return p;
}

static int has_both(const char *a, const char *b)
{
    char text[100];
    snprintf(text, sizeof text, "%s overlaps %s:", a, b);
    return strncmp(why, text, strlen(text)) == 0;
}

static void expect_pair(const attn_params *p, const char *a, const char *b, void *ws)
{
    attn_check(p, ws, ROOM, why, sizeof why);
    CHECK(has_both(a, b) || has_both(b, a), "%s in the memory of %s: %s", a, b, why);
    CHECK(attn_forward(p, ws, ROOM) == ATTN_ERR_ARG, "%s in the memory of %s runs", a, b);
    CHECK(memcmp(pool.at, before, sizeof before) == 0, "%s in the memory of %s: written", a, b);
}

static void check_fields(int partial)
{
    const field *outputs = partial ? states : results;
    const attn_params right = everything(partial);
    attn_params p = right;
    attn_check(&p, room.at, ROOM, why, sizeof why);
    CHECK(strcmp(why, "ok") == 0, "%s", why);
    for (int o = 0; o < OUTPUTS; o++) {
        for (int i = 0; i < INPUTS; i++) {
            p = right; /* An output goes to the input, as that has to be read. */
            point(&p, &outputs[o], slot(i));
            expect_pair(&p, outputs[o].name, inputs[i].name, room.at);
        }
        for (int i = 0; i < OUTPUTS; i++) {
            p = right;
            if (i == o)
                continue;
            point(&p, &outputs[i], slot(INPUTS + o));
            expect_pair(&p, outputs[o].name, outputs[i].name, room.at);
        }
        p = right;
        point(&p, &outputs[o], slot(0));
        expect_pair(&p, outputs[o].name, "q", room.at);
    }
    for (int i = 0; i < INPUTS + OUTPUTS; i++) {
        const field *f = i < INPUTS ? &inputs[i] : &outputs[i - INPUTS];
        p = right;
        fill_ones(room.at, 2 * SLOT);
        if (f->offset == offsetof(attn_params, tree_parents))
            memset(room.at, 0xff, 2 * SLOT);
        point(&p, f, room.at + 64);
        expect_pair(&p, "the workspace", f->name, room.at);
        if (!f->misaligned)
            continue;
        p = right;
        point(&p, f, (unsigned char *)slot(SLOTS - 2) + 1);
        attn_check(&p, room.at, ROOM, why, sizeof why);
        CHECK(strstr(why, "its address must be a multiple of") &&
                  strncmp(why, f->name, strlen(f->name)) == 0,
              "%s at an odd address: %s", f->name, why);
    }
}

/* What a call does not write may lie anywhere. */
static void check_unwritten(void)
{
    attn_params p = everything(1);
    p.o.data = slot(0);
    attn_check(&p, room.at, ROOM, why, sizeof why);
    CHECK(strcmp(why, "ok") == 0, "o beside partial: %s", why);
    p = everything(0);
    p.state.m = slot(0);
    attn_check(&p, room.at, ROOM, why, sizeof why);
    CHECK(strcmp(why, "ok") == 0, "state without partial: %s", why);
}

/* Arrays end with the rows and keys that lengths leave in use, and o begins there. */
static void check_ends(void)
{
    static const int32_t cu[] = { 0, 1, S };
    static const int32_t rows[] = { 1, 2 };
    int32_t *segments = slot(SLOTS - 4);
    attn_params p = everything(0);
    p.q_segments = p.kv_segments = p.tree_parents = NULL;
    p.key_base = NULL;
    p.q_len = rows;
    p.kv_len = rows;
    p.kv_begin = p.prefix = NULL;
    p.q.data = slot(1);
    p.q.stride_batch = S * D;
    p.q.stride_head = B * S * D;
    p.o.data = (float *)slot(1) + 2 * D; /* Row 2 of q is not in use. */
    p.o.stride_batch = 4 * S * D;
    p.o.stride_head = 16 * S * D;
    p.o.stride_seq = 64 * S * D;
    attn_check(&p, room.at, ROOM, why, sizeof why);
    CHECK(strcmp(why, "ok") == 0, "o behind the rows of q in use: %s", why);
    p = everything(0);
    p.q_len = p.kv_len = p.kv_begin = p.prefix = p.q_offset = p.tree_parents = NULL;
    p.key_base = NULL;
    p.causal = p.alignment = 0;
    p.block_mask.row_offsets = p.block_mask.columns = NULL;
    p.block_mask.block_q = p.block_mask.block_k = 0;
    p.seq_len_kv = S;
    p.cu_seqlens_q = p.cu_seqlens_kv = cu;
    p.q_segments = p.kv_segments = segments;
    p.o.data = (float *)(void *)(segments + S);
    p.bias.data = p.bool_mask.data = p.bit_mask.data = NULL;
    attn_check(&p, room.at, ROOM, why, sizeof why);
    CHECK(strcmp(why, "ok") == 0, "o behind a list of tokens: %s", why);
    p.o.data = (float *)(void *)(segments + S - 1);
    attn_check(&p, room.at, ROOM, why, sizeof why);
    CHECK(has_both("o", "q_segments"), "o on the last token: %s", why);
}

/* ---- random tensors against a map of bytes --------------------------------------------------- */

typedef struct strides {
    ptrdiff_t batch, head, seq;
} strides;

static strides random_strides(void)
{
    static const int64_t some[] = { 3, 4, 5, 8, 9, 12, 16, 24, 32, 36, 40, 48, 64, 72, 96 };
    const strides s = { (ptrdiff_t)(RNG_PICK(some) * (rng_chance(20) ? -1 : 1)),
                        (ptrdiff_t)(RNG_PICK(some) * (rng_chance(20) ? -1 : 1)),
                        (ptrdiff_t)(RNG_PICK(some) * (rng_chance(20) ? -1 : 1)) };
    return s;
}

/* Marks the floats of a tensor; returns how many were marked before. */
static int mark(const attn_params *p, int64_t heads, int64_t rows, int64_t dim, strides s,
                int64_t from, unsigned char *map)
{
    int twice = 0;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++)
                for (int64_t d = 0; d < dim; d++)
                    twice += map[from + b * s.batch + h * s.head + i * s.seq + d]++;
    return twice;
}

static float *floats(int64_t from)
{
    return (float *)(void *)room.at + from;
}

/* o and k of one buffer, with a workspace apart. */
static int random_pair(int *refused)
{
    static unsigned char map[1 << 12];
    static float q[512], v[512];
    enum { MIDDLE = 1 << 11 };
    attn_params p = { 0 };
    int twice;
    const strides so = random_strides(), sk = rng_chance(50) ? so : random_strides();
    const int64_t at = MIDDLE + rng_int(-100, 100), other = MIDDLE + rng_int(-100, 100);
    p.batch = rng_int(1, 3);
    p.num_heads_q = p.num_heads_kv = rng_int(1, 3);
    p.seq_len_q = rng_int(1, 4);
    p.seq_len_kv = rng_int(1, 4);
    p.head_dim = rng_int(1, 6);
    p.q.data = q;
    p.v.data = v;
    p.k.data = floats(other);
    p.o.data = floats(at);
    p.o.stride_batch = so.batch;
    p.o.stride_head = so.head;
    p.o.stride_seq = so.seq;
    p.k.stride_batch = sk.batch;
    p.k.stride_head = sk.head;
    p.k.stride_seq = sk.seq;
    memset(map, 0, sizeof map);
    twice = mark(&p, p.num_heads_q, p.seq_len_q, p.head_dim, so, at, map);
    if (!twice) { /* Inputs may share elements among themselves: only those of o count. */
        for (int i = 0; i < (int)sizeof map; i++)
            map[i] = map[i] ? 100 : 0;
        mark(&p, p.num_heads_kv, p.seq_len_kv, p.head_dim, sk, other, map);
        for (int i = 0; i < (int)sizeof map; i++)
            twice += map[i] > 100;
    }
    attn_check(&p, pool.at, sizeof pool.at, why, sizeof why);
    *refused += twice > 0;
    return CHECK(twice ? strstr(why, "overlaps k") || strstr(why, "rows share elements")
                       : strcmp(why, "ok") == 0,
                 "%d floats twice: %s", twice, why);
}

/* ---- neighbours in one buffer are computed as if apart --------------------------------------- */

static attn_params small_call(int64_t heads, int64_t rows, int64_t keys, int64_t dim)
{
    attn_params p = { 0 };
    p.batch = 2;
    p.num_heads_q = p.num_heads_kv = heads;
    p.seq_len_q = rows;
    p.seq_len_kv = keys;
    p.head_dim = dim;
    return p;
}

/* Rows of q, k, v and o are [token, 4, head, dim]. */
static void check_interleaved(void)
{
    const int64_t n = rng_int(1, 9), h = rng_int(1, 3), d = rng_int(1, 9);
    const int64_t count = 2 * h * n * d, row = 4 * h * d;
    float *const all = test_alloc((size_t)(4 * count) * sizeof *all);
    float *const packed = test_alloc((size_t)(4 * count) * sizeof *all);
    attn_params p = small_call(h, n, n, d), apart = p;
    int wrong = 0;
    for (int64_t i = 0; i < 4 * count; i++)
        all[i] = rng_normal();
    for (int64_t b = 0, at = 0; b < 2; b++)
        for (int64_t head = 0; head < h; head++)
            for (int64_t i = 0; i < n; i++)
                for (int64_t c = 0; c < d; c++, at++)
                    for (int t = 0; t < 3; t++)
                        packed[t * count + at] = all[(b * n + i) * row + (t * h + head) * d + c];
    p.q.stride_batch = (ptrdiff_t)(n * row);
    p.q.stride_head = (ptrdiff_t)d;
    p.q.stride_seq = (ptrdiff_t)row;
    p.k = p.v = p.q;
    memcpy(&p.o, &p.q, sizeof p.o);
    p.q.data = all;
    p.k.data = all + h * d;
    p.v.data = all + 2 * h * d;
    p.o.data = all + 3 * h * d;
    apart.q.data = packed;
    apart.k.data = packed + count;
    apart.v.data = packed + 2 * count;
    apart.o.data = packed + 3 * count;
    CHECK(attn_forward(&p, room.at, ROOM) == ATTN_OK &&
              attn_forward(&apart, room.at, ROOM) == ATTN_OK,
          "%s", attn_check(&p, room.at, ROOM, why, sizeof why));
    for (int64_t b = 0, at = 0; b < 2; b++)
        for (int64_t head = 0; head < h; head++)
            for (int64_t i = 0; i < n; i++)
                for (int64_t c = 0; c < d; c++, at++)
                    wrong += float_bits(packed[3 * count + at]) !=
                             float_bits(all[(b * n + i) * row + (3 * h + head) * d + c]);
    CHECK(wrong == 0, "%d elements differ", wrong);
    p.o.stride_seq = (ptrdiff_t)(row - 1); /* walks into q */
    attn_check(&p, room.at, ROOM, why, sizeof why);
    CHECK(n < 2 || strncmp(why, "o", 1) == 0, "o walks into q: %s", why);
}

static void check_stats(void)
{
    attn_params p = everything(0);
    p.q_len = NULL;
    p.stats.stride_seq = 1;
    attn_check(&p, room.at, ROOM, why, sizeof why);
    CHECK(strstr(why, "stats: with its strides rows share elements (rows of 2, "), "%s", why);
    CHECK(strstr(why, ", stride_seq 1): a row takes 2 floats"), "%s", why);
}

/* ---- strides of axes of length 1 ------------------------------------------------------------- */

static void spoil(attn_tensor *t, int64_t batch, int64_t heads, int64_t rows, ptrdiff_t stride)
{
    t->stride_batch = batch == 1 ? stride : 0;
    t->stride_head = heads == 1 ? stride : 0;
    t->stride_seq = rows == 1 ? stride : 0;
}

static void spoil_output(attn_output *o, int64_t batch, int64_t heads, int64_t rows,
                         ptrdiff_t stride)
{
    attn_tensor t;
    spoil(&t, batch, heads, rows, stride == ATTN_STRIDE_BROADCAST ? stride + 1 : stride);
    o->stride_batch = t.stride_batch;
    o->stride_head = t.stride_head;
    o->stride_seq = t.stride_seq;
}

static int agree(void *user, int value)
{
    (void)user;
    return value;
}

static int begin_exchange(void *user, const void *send, size_t n, void *receive, size_t m)
{
    (void)user, (void)send, (void)n, (void)receive, (void)m;
    return 0;
}

static int end_exchange(void *user)
{
    (void)user;
    return 0;
}

static void cancel_exchange(void *user)
{
    (void)user;
}

static const attn_transport alone = {
    1, 0, NULL, agree, begin_exchange, end_exchange, cancel_exchange, NULL
};

static int fetch_keys(void *user, const attn_fetch *want)
{
    const attn_params *p = user;
    const size_t bytes = (size_t)(want->count * p->head_dim) * sizeof(float);
    memcpy(want->k, (const float *)p->k.data + want->first * p->head_dim, bytes);
    memcpy(want->v, (const float *)p->v.data + want->first * p->head_dim, bytes);
    return 0;
}

enum { WHOLE, NAIVE, PART, RESUME, DILATED, RING, WAYS };

/* Batch 1 and one head: o of a way to compute it. */
static attn_status run_way(int way, attn_params p)
{
    const attn_dilated_branch branch = { 0 };
    const attn_dilated d = { .num_branches = 1, .branches = &branch };
    const attn_ring ring = { .transport = &alone };
    attn_resumable r;
    attn_status status;
    p.impl = way == NAIVE ? ATTN_IMPL_NAIVE : ATTN_IMPL_DEFAULT;
    p.part.rows = way == PART;
    p.part.row_count = way == PART ? p.seq_len_q : 0;
    if (way == DILATED)
        return attn_dilated_forward(&p, &d, room.at, ROOM);
    if (way == RING)
        return attn_ring_forward(&p, &ring, room.at, ROOM);
    if (way != RESUME)
        return attn_forward(&p, room.at, ROOM);
    status = attn_resume_begin(&r, &p, 0, fetch_keys, &p, room.at, ROOM);
    if (!status)
        status = attn_resume_step(&r, INT64_MAX);
    return status ? status : attn_resume_end(&r);
}

static const char *say_way(int way, const attn_params *p, void *ws)
{
    const attn_dilated_branch branch = { 0 };
    const attn_dilated d = { .num_branches = 1, .branches = &branch };
    const attn_ring ring = { .transport = &alone };
    if (way == DILATED)
        return attn_dilated_check(p, &d, ws, ROOM, why, sizeof why);
    if (way == RING)
        return attn_ring_check(p, &ring, ws, ROOM, why, sizeof why);
    if (way == RESUME)
        return attn_resume_check(p, 0, fetch_keys, ws, ROOM, why, sizeof why);
    return attn_check(p, ws, ROOM, why, sizeof why);
}

static const ptrdiff_t extremes[] = { PTRDIFF_MAX, PTRDIFF_MIN + 1, PTRDIFF_MIN, PTRDIFF_MAX / 2 };

/* q, k and v of `rows` rows, o and its gradients one after the other. */
static attn_params line_of(float *x, int64_t rows)
{
    attn_params p = small_call(1, rows, rows, D);
    p.batch = 1;
    for (int64_t i = 0; i < 3 * rows * D; i++)
        x[i] = rng_normal();
    p.q.data = x;
    p.k.data = x + rows * D;
    p.v.data = x + 2 * rows * D;
    p.o.data = x + 3 * rows * D;
    p.lse.data = x + 4 * rows * D;
    p.stats.data = x + 5 * rows * D;
    return p;
}

static void check_extremes(ptrdiff_t stride, int64_t rows)
{
    float *const x = test_alloc((size_t)(6 * rows * D) * sizeof *x);
    float packed[4 * D];
    const attn_params right = line_of(x, rows);
    attn_params p = right;
    attn_gradients g = { 0 }, plain;
    float dq[2][2 * D];
    spoil(&p.q, 1, 1, rows, stride);
    spoil(&p.k, 1, 1, rows, stride);
    spoil(&p.v, 1, 1, rows, stride);
    spoil_output(&p.o, 1, 1, rows, stride);
    spoil_output(&p.lse, 1, 1, rows, stride);
    spoil_output(&p.stats, 1, 1, rows, stride);
    for (int way = 0; way < WAYS; way++) {
        CHECK(run_way(way, right) == ATTN_OK, "way %d: %s", way, say_way(way, &right, room.at));
        memcpy(packed, right.o.data, (size_t)(rows * D) * sizeof(float));
        memset(right.o.data, 0, (size_t)(rows * D) * sizeof(float));
        CHECK(run_way(way, p) == ATTN_OK, "way %d: %s", way, say_way(way, &p, room.at));
        CHECK(memcmp(packed, p.o.data, (size_t)(rows * D) * sizeof(float)) == 0,
              "way %d: other bits with strides of axes of length 1", way);
    }
    g.dout.data = right.q.data;
    plain = g;
    g.dq.data = dq[0];
    plain.dq.data = dq[1];
    spoil(&g.dout, 1, 1, rows, stride);
    spoil_output(&g.dq, 1, 1, rows, stride);
    CHECK(attn_backward(&right, &plain, room.at, ROOM) == ATTN_OK &&
              attn_backward(&p, &g, room.at, ROOM) == ATTN_OK,
          "%s", attn_backward_check(&p, &g, room.at, ROOM, why, sizeof why));
    CHECK(memcmp(dq[0], dq[1], (size_t)(rows * D) * sizeof(float)) == 0, "other gradients");
}

static void check_extreme_rows(ptrdiff_t stride)
{
    float x[D] = { 1, 2, 3, 4 }, y[D], packed[D];
    const int64_t first = 3;
    const attn_rope rope = { 0 };
    attn_rope_rows r = { .batch = 1, .num_heads = 1, .seq_len = 1, .head_dim = D, .first = &first };
    attn_cache c = { .num_sequences = 1, .num_heads_kv = 1, .head_dim = D, .capacity = 1 };
    attn_cache_step s = { .batch = 1, .seq_len = 1 };
    r.x.data = x;
    r.y.data = packed;
    CHECK(attn_rope_apply(&rope, &r, why, sizeof why) == ATTN_OK, "%s", why);
    r.y.data = y;
    spoil(&r.x, 1, 1, 1, stride);
    spoil_output(&r.y, 1, 1, 1, stride);
    CHECK(attn_rope_apply(&rope, &r, why, sizeof why) == ATTN_OK, "%s", why);
    CHECK(memcmp(y, packed, sizeof y) == 0, "other rows");
    spoil_output(&c.k, 1, 1, 1, stride);
    spoil_output(&c.v, 1, 1, 1, stride);
    c.k.data = y;
    c.v.data = packed;
    c.k_stride_layer = PTRDIFF_MAX;
    CHECK(attn_cache_init(&c, room.at, ROOM, why, sizeof why) == ATTN_OK, "%s", why);
    s.k = r.x;
    s.v = r.x;
    CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_OK, "%s", why);
    CHECK(memcmp(y, x, sizeof y) == 0, "other keys");
}

/* ---- levels ---------------------------------------------------------------------------------- */

static void check_levels(void)
{
    float *const x = test_alloc(12 * D * sizeof *x);
    const attn_params right = line_of(x, 2);
    for (int way = 0; way < WAYS; way++) {
        attn_params p = right;
        p.o.data = x;
        say_way(way, &p, room.at);
        CHECK(has_both("o", "q"), "way %d: %s", way, why);
        CHECK(run_way(way, p) == ATTN_ERR_ARG, "way %d runs", way);
        p.o.data = room.at + 128;
        say_way(way, &p, room.at);
        CHECK(strstr(why, way == RESUME ? "the memory overlaps o" : "the workspace overlaps o"),
              "way %d: %s", way, why);
        CHECK(run_way(way, p) == ATTN_ERR_ARG, "way %d runs", way);
        p = right;
        p.q.data = room.at + 128;
        CHECK(run_way(way, p) == ATTN_ERR_ARG, "way %d runs with q in its workspace", way);
    }
}

static void expect_gradients(const attn_params *p, const attn_gradients *g, const char *a,
                             const char *b)
{
    attn_backward_check(p, g, room.at, ROOM, why, sizeof why);
    CHECK(has_both(a, b) || has_both(b, a), "%s in the memory of %s: %s", a, b, why);
    CHECK(attn_backward(p, g, room.at, ROOM) == ATTN_ERR_ARG, "%s on %s runs", a, b);
}

/* Rows of stats that no forward call can have written. */
static void check_stats_read(attn_params p, const attn_gradients *g)
{
    p.q_len = NULL;
    p.stats.stride_seq = 1;
    attn_backward_check(&p, g, room.at, ROOM, why, sizeof why);
    CHECK(strstr(why, "stats: with its strides rows share elements"), "%s", why);
    CHECK(attn_backward(&p, g, room.at, ROOM) == ATTN_ERR_ARG, "such stats are read");
}

static void check_gradients(void)
{
    static const field outputs[] = {
        { "dq", offsetof(attn_gradients, dq.data), 1 },
        { "dk", offsetof(attn_gradients, dk.data), 1 },
        { "dv", offsetof(attn_gradients, dv.data), 1 },
        { "dbias", offsetof(attn_gradients, dbias.data), 1 },
        { "dsinks", offsetof(attn_gradients, dsinks), 1 },
        { "dslopes", offsetof(attn_gradients, dslopes), 1 },
    };
    enum { GRADIENTS = sizeof outputs / sizeof *outputs };
    attn_params p = everything(0);
    attn_gradients right = { 0 }, g;
    p.logits.data = NULL;
    p.logits.rows = NULL;
    p.logits.num_rows = 0;
    right.dout.data = slot(INPUTS + OUTPUTS);
    for (int i = 0; i < GRADIENTS; i++)
        point(&right, &outputs[i], slot(INPUTS + OUTPUTS + 1 + i));
    attn_backward_check(&p, &right, room.at, ROOM, why, sizeof why);
    CHECK(strcmp(why, "ok") == 0, "%s", why);
    check_stats_read(p, &right);
    for (int i = 0; i < GRADIENTS; i++) {
        for (int other = 0; other < INPUTS; other++) {
            if (strcmp(inputs[other].name, "logits.rows") == 0)
                continue;
            g = right;
            point(&g, &outputs[i], slot(other));
            expect_gradients(&p, &g, outputs[i].name, inputs[other].name);
        }
        for (int other = 0; other < GRADIENTS; other++) {
            g = right;
            if (other == i)
                continue;
            point(&g, &outputs[i], slot(INPUTS + OUTPUTS + 1 + other));
            expect_gradients(&p, &g, outputs[i].name, outputs[other].name);
        }
        g = right;
        point(&g, &outputs[i], p.stats.data);
        expect_gradients(&p, &g, outputs[i].name, "stats");
        g = right;
        point(&g, &outputs[i], room.at + 64);
        expect_gradients(&p, &g, "the workspace", outputs[i].name);
        g = right;
        point(&g, &outputs[i], (unsigned char *)slot(SLOTS - 2) + 2);
        attn_backward_check(&p, &g, room.at, ROOM, why, sizeof why);
        CHECK(strstr(why, "its address must be a multiple of 4"), "%s: %s", outputs[i].name, why);
    }
}

static void check_rope(void)
{
    float x[40] = { 0 };
    const attn_rope rope = { 0 };
    attn_rope_rows r = { .batch = 1, .num_heads = 2, .seq_len = 2, .head_dim = D };
    r.x.data = r.y.data = x;
    CHECK(attn_rope_apply(&rope, &r, why, sizeof why) == ATTN_OK, "in place: %s", why);
    r.y.stride_head = D;
    r.y.stride_seq = 2 * D;
    CHECK(attn_rope_apply(&rope, &r, why, sizeof why) == ATTN_ERR_ARG && has_both("y", "x"),
          "in place with other strides: %s", why);
    r.y.stride_head = r.y.stride_seq = 0;
    r.y.data = x + 1;
    CHECK(attn_rope_apply(&rope, &r, why, sizeof why) == ATTN_ERR_ARG && has_both("y", "x"),
          "one element on: %s", why);
}

/* What a rope reads: cosines, sines or divisors, of two positions and D / 2 pairs. */
enum { ANGLES_AT = 10, ANGLES = 3, PAIRS = D / 2 };

static int angles_length(int which)
{
    return which == 2 ? PAIRS : 2 * PAIRS;
}

static attn_rope rope_at(float *at, int which)
{
    static const float ones[2 * PAIRS] = { 1, 1, 1, 1 };
    attn_rope rope = { 0 };
    if (which == 2) {
        rope.freq_factors = at;
    } else {
        rope.cos = which == 0 ? at : ones;
        rope.sin = which == 1 ? at : ones;
        rope.num_positions = 2;
    }
    return rope;
}

/* y before, over and behind what the rope reads; then tables, and keys of a cache. */
static void check_angles(void)
{
    static const char *const names[ANGLES] = { "cos", "sin", "freq_factors" };
    const attn_rope plain = { 0 };
    float x[32], input[2 * D] = { 0 };
    attn_rope_rows r = { .batch = 1, .num_heads = 1, .seq_len = 2, .head_dim = D };
    r.x.data = input;
    for (int i = 0; i < 32; i++)
        x[i] = 1;
    for (int n = 0; n < ANGLES; n++)
        for (int at = 0; at < 24; at++) {
            const attn_rope rope = rope_at(x + ANGLES_AT, n);
            const int meets = at < ANGLES_AT + angles_length(n) && ANGLES_AT < at + 2 * D;
            attn_status status;
            r.y.data = x + at;
            status = attn_rope_apply(&rope, &r, why, sizeof why);
            CHECK(status == (meets ? ATTN_ERR_ARG : ATTN_OK), "%s, y at %d", names[n], at);
            if (meets)
                CHECK(has_both("y", names[n]), "%s, y at %d: %s", names[n], at, why);
            for (int i = 0; i < 32; i++)
                x[i] = 1;
        }
    for (int at = 0; at < 12; at++)
        CHECK(attn_rope_table(&plain, D, 0, 2, x + 4, x + at, why, sizeof why) ==
                  (at > 0 && at < 8 ? ATTN_ERR_ARG : ATTN_OK),
              "a table of sines at %d: %s", at, why);
    for (int i = 0; i < 32; i++)
        x[i] = 1;
    const attn_rope factors = rope_at(x + ANGLES_AT, 2);
    CHECK(attn_rope_table(&factors, D, 0, 2, x + 7, x + 20, why, sizeof why) == ATTN_ERR_ARG &&
              has_both("cos", "freq_factors"),
          "cosines over divisors: %s", why);
    CHECK(attn_rope_table(&factors, D, 0, 2, x + 20, x + 7, why, sizeof why) == ATTN_ERR_ARG &&
              has_both("sin", "freq_factors"),
          "sines over divisors: %s", why);
}

static void check_turned_keys(void)
{
    float *const kv = test_alloc(2 * 8 * D * sizeof *kv);
    attn_cache c = { .num_sequences = 1, .num_heads_kv = 1, .head_dim = D, .capacity = 8 };
    attn_cache_step s = { .batch = 1, .seq_len = 1 };
    for (int i = 0; i < 2 * 8 * D; i++)
        kv[i] = 1;
    c.k.data = kv;
    c.v.data = kv + 8 * D;
    s.k.data = s.v.data = slot(0);
    CHECK(attn_cache_init(&c, room.at, ROOM, why, sizeof why) == ATTN_OK, "%s", why);
    for (int n = 0; n < ANGLES; n++) {
        const attn_rope over_k = rope_at(kv + 7 * D, n), over_v = rope_at(kv + 15 * D, n);
        s.rope = &over_k;
        CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_ERR_ARG, "angles %d in k", n);
        CHECK(has_both("the cache's k", n == 0   ? "cos"
                                        : n == 1 ? "sin"
                                                 : "freq_factors"),
              "%s", why);
        s.rope = &over_v;
        CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_ERR_ARG, "angles %d in v", n);
    }
}

static void check_pattern(void)
{
    const attn_pattern t = {
        .seq_len_q = 3, .seq_len_kv = 3, .block_q = 1, .block_k = 1, .local = 1
    };
    int32_t x[16];
    for (int at = 0; at < 12; at++)
        CHECK(attn_pattern_build(&t, x + 4, 4, x + at, 4, why, sizeof why) ==
                  (at > 1 && at < 8 ? ATTN_ERR_ARG : ATTN_OK),
              "columns at %d of offsets at 4: %s", at, why);
}

static void check_cache(void)
{
    float *const kv = test_alloc(2 * 2 * 8 * D * sizeof *kv);
    attn_cache c = { .num_sequences = 2, .num_heads_kv = 1, .head_dim = D, .capacity = 8 };
    attn_cache_step s = { .batch = 2, .seq_len = 1 };
    attn_output k = { 0 };
    c.k.stride_seq = c.v.stride_seq = 2 * D; /* [sequence, row, 2, dim] */
    c.k.stride_head = c.v.stride_head = 2 * D;
    c.k.stride_batch = c.v.stride_batch = 8 * 2 * D;
    c.k.data = kv;
    c.v.data = kv + D - 1;
    CHECK(attn_cache_init(&c, room.at, ROOM, why, sizeof why) == ATTN_ERR_ARG &&
              has_both("the cache's v", "the cache's k"),
          "%s", why);
    c.v.data = kv + D;
    CHECK(attn_cache_init(&c, kv, ROOM, why, sizeof why) == ATTN_ERR_ARG, "memory in storage");
    CHECK(attn_cache_init(&c, room.at, ROOM, why, sizeof why) == ATTN_OK, "%s", why);
    s.k.data = s.v.data = kv + 2 * D;
    CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_ERR_ARG &&
              has_both("the cache's k", "k"),
          "%s", why);
    s.k.data = s.v.data = slot(0);
    CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_OK, "%s", why);
    k.data = kv;
    CHECK(attn_cache_read(&c, 0, 0, 0, 1, &k, NULL, why, sizeof why) == ATTN_ERR_ARG, "read");
}

/* A step of many sequences that do not ascend, and pages that many share. */
static void check_many(void)
{
    enum { MANY = 9000 };
    int32_t *const order = test_alloc(MANY * sizeof *order);
    attn_cache c = { .num_sequences = MANY,
                     .num_heads_kv = 1,
                     .head_dim = 1,
                     .capacity = 2,
                     .page_size = 2,
                     .num_pages = MANY };
    attn_cache_step s = { .batch = 1, .seq_len = 1, .sequences = order };
    float *const x = test_alloc(MANY * sizeof *x);
    size_t need = 0;
    void *memory;
    memset(x, 0, MANY * sizeof *x);
    CHECK(attn_cache_size(&c, &need, why, sizeof why) == ATTN_OK, "%s", why);
    memory = test_alloc(need);
    CHECK(attn_cache_init(&c, memory, need, why, sizeof why) == ATTN_OK, "%s", why);
    s.k.data = s.v.data = x;
    order[0] = 0;
    CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_OK, "%s", why);
    for (int i = 1; i < MANY; i++)
        attn_cache_fork(&c, 0, i, 1, why, sizeof why);
    for (int i = 0; i < MANY; i++)
        order[i] = (int32_t)((int64_t)i * 4999 % MANY);
    s.batch = MANY;
    order[MANY - 1] = order[1];
    CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_ERR_ARG &&
              strstr(why, "is there twice"),
          "%s", why);
    s.batch = MANY - 1; /* one user is not in the step: all others take copies */
    c.num_free--;
    CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_ERR_FULL &&
              strstr(why, "the step needs 8999 pages"),
          "%s", why);
    CHECK(c.uses[c.table[0]] == MANY, "the count of users is %d", (int)c.uses[c.table[0]]);
    order[MANY - 1] = (int32_t)((int64_t)(MANY - 1) * 4999 % MANY);
    s.batch = MANY; /* the last one keeps the page */
    CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_ERR_FULL &&
              strstr(why, "the step needs 8999 pages"),
          "%s", why);
    c.num_free++;
    CHECK(attn_cache_append(&c, &s, why, sizeof why) == ATTN_OK, "%s", why);
    CHECK(c.num_free == 0, "%d pages are free", (int)c.num_free);
}

/* ---- merges: the arrays of two results and of their sum, anywhere in one buffer --------------- */

enum { M_ROWS = 3, M_DIM = 2, M_VALUES = M_ROWS * M_DIM, M_RESULT = M_VALUES + 2 * M_ROWS };
enum { M_ROOM = 3 * M_RESULT };

/* A result: its values, then a number of each row, or two; finished ones have one. */
typedef struct places {
    int at[3];
} places;

static int m_length(int array)
{
    return array == 0 ? M_VALUES : M_ROWS;
}

static int m_clash(const places *x, const places *y, int arrays)
{
    for (int i = 0; i < arrays; i++)
        for (int j = 0; j < arrays; j++)
            if (!(i == j && x->at[i] == y->at[j]) && x->at[i] < y->at[j] + m_length(j) &&
                y->at[j] < x->at[i] + m_length(i))
                return 1;
    return 0;
}

static attn_status m_merge(float *x, const places *r, int arrays)
{
    attn_state s[3];
    for (int i = 0; i < 3; i++) {
        s[i].num_rows = M_ROWS;
        s[i].head_dim_v = M_DIM;
        s[i].o = x + r[i].at[0];
        s[i].m = x + r[i].at[1];
        s[i].l = x + r[i].at[2];
    }
    return arrays == 3
               ? attn_state_merge(&s[0], &s[1], &s[2])
               : attn_lse_merge(M_ROWS, M_DIM, s[0].o, s[0].m, s[1].o, s[1].m, s[2].o, s[2].m);
}

static void random_places(places *r)
{
    const int like = (int)rng_int(0, 2); /* the sum is the first result, the second or neither */
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 3; i++) {
            r[n].at[i] = n * M_RESULT + (i ? M_VALUES + (i - 1) * M_ROWS : 0);
            if (n == 2 && like < 2)
                r[n].at[i] = r[like].at[i];
            if (rng_chance(12))
                r[n].at[i] = (int)rng_int(0, M_ROOM - m_length(i));
        }
}

/* A sum is refused if it shares anything but the same array, and else is that in memory of its own. */
static void check_merge(int arrays, int *refused)
{
    float x[M_ROOM], kept[M_ROOM], apart[M_ROOM];
    places r[3], own[3];
    attn_status status;
    random_places(r);
    for (int i = 0; i < M_ROOM; i++)
        x[i] = kept[i] = 0.1f + rng_unit();
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 3; i++) {
            own[n].at[i] = n * M_RESULT + (i ? M_VALUES + (i - 1) * M_ROWS : 0);
            memcpy(apart + own[n].at[i], x + r[n].at[i], (size_t)m_length(i) * sizeof *x);
        }
    status = m_merge(x, r, arrays);
    if (m_clash(&r[2], &r[0], arrays) || m_clash(&r[2], &r[1], arrays) ||
        m_clash(&r[2], &r[2], arrays)) {
        ++*refused;
        CHECK(status == ATTN_ERR_ARG, "merged over its own inputs");
        CHECK(!memcmp(x, kept, sizeof x), "a refused merge has written");
        return;
    }
    CHECK(status == ATTN_OK, "refused: %s", attn_status_string(status));
    CHECK(m_merge(apart, own, arrays) == ATTN_OK, "refused apart");
    for (int i = 0; i < arrays; i++)
        CHECK(!memcmp(x + r[2].at[i], apart + own[2].at[i], (size_t)m_length(i) * sizeof *x),
              "array %d of the sum depends on where it is", i);
}

static void check_merges(void)
{
    for (int arrays = 2; arrays <= 3; arrays++) {
        int refused = 0;
        for (int i = 0; i < 2000; i++)
            check_merge(arrays, &refused);
        CHECK(refused > 400 && refused < 1600, "%d of 2000 refused", refused);
    }
}

/* ---- short calls run where attn_check is content, with them and with the long way */

static void check_short_call(int *refused, int *shorts)
{
    enum { FLOATS = 5000, PLACES = 6, STEPS = 80 };
    float *const memory = test_alloc(FLOATS * sizeof *memory);
    float *place[PLACES];
    attn_params p = {
        .batch = 2, .num_heads_q = 2, .num_heads_kv = 1, .seq_len_q = 2, .head_dim = 4
    };
    const int spread = (int)rng_int(2, STEPS);
    attn_params longer;
    int ok;
    p.batch = rng_int(1, 2);
    p.seq_len_kv = rng_int(1, 5);
    if (rng_int(0, 9) == 0)
        p.seq_len_q = 0;
    p.causal = (int)rng_int(0, 1);
    p.layout = (int)rng_int(0, 1);
    memset(memory, 0, FLOATS * sizeof *memory);
    for (int i = 0; i < PLACES; i++)
        place[i] =
            memory + rng_int(0, spread) * 4 + (i == 5 ? 4 * spread + (int)rng_int(0, 24) : 0);
    p.q.data = place[0];
    p.k.data = place[1];
    p.v.data = place[2];
    p.o.data = place[3];
    p.kv_len = rng_int(0, 1) ? (const int32_t *)(const void *)place[4] : NULL;
    if (rng_int(0, 2) == 0)
        p.o.stride_seq = rng_int(1, 20);
    if (rng_int(0, 2) == 0)
        p.o.stride_head = rng_int(1, 40);
    if (rng_int(0, 3) == 0)
        p.q.stride_seq = rng_int(4, 20);
    if (rng_int(0, 9) == 0)
        p.o.stride_batch = ATTN_STRIDE_BROADCAST;
    for (int b = 0; p.kv_len != NULL && b < 2; b++)
        ((int32_t *)(void *)place[4])[b] = rng_int(0, 5) ? 1 : (int32_t)rng_int(-1, 6);
    *shorts += test_is_short(&p);
    longer = p;
    longer.tuning = "attn-tuning 1 end";
    ok = strcmp(attn_check(&longer, place[5], 15000, why, sizeof why), "ok") == 0;
    *refused += !ok;
    CHECK((strcmp(attn_check(&p, place[5], 15000, why, sizeof why), "ok") == 0) == ok,
          "attn_check, of the long way another: %s", why);
    CHECK((attn_forward(&p, place[5], 15000) == ATTN_OK) == ok, "attn_check says: %s", why);
}

TEST_GROUP(overlap, RUN_ONCE, "outputs that share bytes are refused, and neighbours are not")
{
    int refused = 0, shorts = 0;
    for (int partial = 0; partial < 2; partial++)
        if (begin_case("each field on each output, partial %d", partial))
            check_fields(partial);
    if (begin_case("what is not written"))
        check_unwritten();
    if (begin_case("ends of arrays"))
        check_ends();
    if (begin_case("statistics with strides of the lse"))
        check_stats();
    for (int round = 0; round < 4000; round++)
        if (begin_case("random tensors, %d", round))
            random_pair(&refused);
    CHECK(!all_cases_run() || (refused > 800 && refused < 3600), "%d of 4000 refused", refused);
    refused = 0;
    for (int round = 0; round < 3000; round++)
        if (begin_case("short calls, %d", round))
            check_short_call(&refused, &shorts);
    CHECK(!all_cases_run() || (refused > 600 && refused < 2800 && shorts > 2000),
          "%d of 3000 refused, %d short", refused, shorts);
    for (int round = 0; round < 50; round++)
        if (begin_case("interleaved, %d", round))
            check_interleaved();
    for (int i = 0; i < (int)(sizeof extremes / sizeof *extremes); i++) {
        for (int rows = 1; rows <= 2; rows++)
            if (begin_case("strides of %lld, %d rows", (long long)extremes[i], rows))
                check_extremes(extremes[i], rows);
        if (begin_case("strides of %lld, rope and cache", (long long)extremes[i]))
            check_extreme_rows(extremes[i]);
    }
    if (begin_case("every level"))
        check_levels();
    if (begin_case("gradients"))
        check_gradients();
    if (begin_case("rope"))
        check_rope();
    if (begin_case("angles"))
        check_angles();
    if (begin_case("angles of a cache"))
        check_turned_keys();
    if (begin_case("pattern"))
        check_pattern();
    if (begin_case("cache"))
        check_cache();
    if (begin_case("merges"))
        check_merges();
    if (begin_case("many sequences"))
        check_many();
}
