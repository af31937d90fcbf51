/* ring_cases.c - see ring_cases.h.
 * SPDX-License-Identifier: MIT
 */
#include "ring_cases.h"
#include "oracle.h"
#include "strides.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLED_ROWS = 12, MOST_RANGES = 4096 };

/* ---- random numbers and memory of a case ----------------------------------------------------- */

static uint64_t next_random(ring_case *c)
{
    uint64_t x = c->random += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static int64_t pick(ring_case *c, int64_t low, int64_t high)
{
    return low + (int64_t)(next_random(c) % (uint64_t)(high - low + 1));
}

static int chance(ring_case *c, int percent)
{
    return pick(c, 0, 99) < percent;
}

static float normal(ring_case *c)
{
    float x = 0;
    for (int i = 0; i < 6; i++)
        x += (float)(next_random(c) >> 40) / 16777216.0f - 0.5f;
    return x * 1.4f;
}

static void *take(ring_case *c, int64_t bytes)
{
    void *block = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (block == NULL || c->blocks == (int)(sizeof c->memory / sizeof *c->memory)) {
        fprintf(stderr, "ring_cases: no memory\n");
        exit(2);
    }
    c->memory[c->blocks++] = block;
    return block;
}

/* The storage types in the order of attn_dtype: numbers that are stored together, and their bytes. */
static const struct {
    int unit, bytes;
} types[] = { { 1, 4 },   { 1, 2 },   { 1, 2 },   { 1, 1 }, { 1, 1 },
              { 32, 34 }, { 32, 22 }, { 32, 18 }, { 1, 1 } };

int64_t ring_bytes_of(int dtype, int64_t numbers)
{
    return numbers / types[dtype].unit * types[dtype].bytes;
}

static void fill(ring_case *c, attn_tensor *t, int64_t count)
{
    float *values = take(c, count * 4);
    void *stored = take(c, ring_bytes_of(t->dtype, count));
    for (int64_t i = 0; i < count; i++)
        values[i] = normal(c);
    attn_convert(stored, t->dtype, values, ATTN_F32, (size_t)count);
    t->data = stored;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static int is_within(double error, double tolerance, double *worst)
{
    if (!(error <= tolerance))
        return 0;
    if (tolerance > 0 && error / tolerance > *worst)
        *worst = error / tolerance;
    return 1;
}

static int is_lse(double value, const oracle_result *expected, double *worst)
{
    return value == expected->lse ||
           is_within(fabs(value - expected->lse), expected->lse_tolerance, worst);
}

/* Without an alive key the statistics are those of the sink, or of nothing. */
static int are_empty_stats(float sink, const float stats[2])
{
    return stats[0] == sink * 0x1.715476p+0f && stats[1] == (sink == -INFINITY ? 0.0f : 1.0f);
}

const char *ring_sums_wrong(const attn_params *p, int64_t h, const oracle_result *expected,
                            const float *lse, const float *stats, double *worst)
{
    const double ln2 = log(2.0), sink = oracle_sink(p, h) / ln2, most = expected->maximum / ln2;
    const double top = fmax(most, sink), slack = 1e-4 * (fabs(top) + 1);
    if (lse != NULL && !is_lse((double)*lse, expected, worst))
        return "lse is far from the oracle";
    if (stats == NULL)
        return NULL;
    if (expected->alive == 0)
        return are_empty_stats((float)oracle_sink(p, h), stats) ? NULL : "stats of an empty row";
    if (!is_lse(((double)stats[0] + log((double)stats[1]) / ln2) * ln2, expected, worst))
        return "m + log2(l) of stats is far from the oracle";
    return (double)stats[0] >= fmax(most - 16, sink) - slack && (double)stats[0] <= top + slack
               ? NULL
               : "m of stats is no base for the largest logit";
}

/* ---- one case -------------------------------------------------------------------------------- */

static void choose_layout(ring_case *c)
{
    static const int64_t aligned[] = { 0, 1024, 2048 }, some[] = { 0, 1, 3, 16, 24, 64, 100, 1024 };
    c->ring.layout = (int)pick(c, 0, 3);
    c->ring.gather = chance(c, 15);
    c->ring.arrival = c->kind != RING_ALIGNED && chance(c, 20);
    if (c->kind == RING_ALIGNED)
        c->ring.shard = aligned[pick(c, 0, 2)];
    else
        c->ring.shard = some[pick(c, 0, 7)];
    if (c->kind == RING_MIXED && c->ring.shard > 0 && c->ring.shard < 64)
        c->ring.shard = 100;
    if (c->ring.layout == ATTN_RING_CUSTOM)
        c->ring.shard = 0;
}

/* Cuts of the sequence, dealt at random: some ranks may get nothing. */
static void make_ranges(ring_case *c)
{
    const int64_t length = c->p.seq_len_q, unit = c->kind == RING_ALIGNED ? 1024 : 1;
    attn_ring_range *ranges = take(c, MOST_RANGES * (int64_t)sizeof *ranges);
    int64_t *first = take(c, (c->ranks + 1) * (int64_t)sizeof *first);
    int64_t cuts[16] = { 0 }, count = 1, at = 0;
    int owner[16];
    while (cuts[count - 1] < length && count < 14) {
        const int64_t most = length / 4 / unit + 1;
        cuts[count] = cuts[count - 1] + unit * pick(c, c->kind == RING_ALIGNED, most);
        count++;
    }
    cuts[count] = length;
    while (count > 1 && cuts[count - 1] > length)
        cuts[--count] = length;
    for (int64_t i = 0; i < count; i++)
        owner[i] = (int)pick(c, 0, c->ranks - 1);
    for (int r = 0; r < c->ranks; r++) {
        first[r] = at;
        for (int64_t i = 0; i < count; i++)
            if (owner[i] == r) {
                ranges[at].begin = cuts[i];
                ranges[at++].count = cuts[i + 1] - cuts[i];
            }
    }
    first[c->ranks] = at;
    c->ring.ranges = ranges;
    c->ring.first_range = first;
}

static int is_small(const ring_case *c)
{
    return c->kind == RING_SMALL || c->kind == RING_FAULTY;
}

/* Types that only K and V may have, and what goes with them. The oracle knows no rotation. */
static void choose_stored(ring_case *c)
{
    attn_params *p = &c->p;
    p->head_dim = 32 * pick(c, 1, is_small(c) ? 2 : 1);
    p->head_dim_v = 32 * pick(c, 0, is_small(c) ? 2 : 1);
    p->k.dtype = (int)pick(c, ATTN_E4M3, ATTN_Q4_0);
    p->v.dtype = (int)pick(c, ATTN_E4M3, ATTN_Q4_0);
    p->integer = p->k.dtype >= ATTN_Q8_0 && chance(c, 50);
    if (c->kind == RING_ALIGNED)
        p->rotated = (int)pick(c, 0, ATTN_ROTATED_K + ATTN_ROTATED_V);
}

static int has_gradients(const ring_case *c)
{
    return is_small(c) && !c->stored;
}

static void choose_sizes(ring_case *c)
{
    attn_params *p = &c->p;
    /* parallel_for, which may have to fail, is called for two items or more. */
    p->batch = pick(c, c->kind == RING_FAULTY ? 2 : 1, is_small(c) ? 3 : 1);
    p->num_heads_kv = pick(c, 1, 2);
    p->num_heads_q = p->num_heads_kv * pick(c, 1, 2);
    if (c->kind == RING_ALIGNED)
        p->seq_len_q = chance(c, 10) ? 1024 * pick(c, 1, 5) : pick(c, 0, 4500);
    else
        p->seq_len_q = is_small(c) ? pick(c, 0, 120) : pick(c, 200, 3000);
    if (c->kind == RING_FAULTY)
        p->seq_len_q = 100;
    p->seq_len_kv = p->seq_len_q;
    p->head_dim = pick(c, 1, is_small(c) ? 20 : 6);
    p->head_dim_v = chance(c, 50) ? 0 : pick(c, 1, 9);
    p->q.dtype = (int)pick(c, 0, 2);
    p->k.dtype = (int)pick(c, 0, 2);
    p->v.dtype = (int)pick(c, 0, 2);
    p->o.dtype = chance(c, 70) ? ATTN_F32 : (int)pick(c, 1, 2);
}

static int32_t *some_lengths(ring_case *c)
{
    int32_t *lengths = take(c, c->p.batch * 4);
    for (int64_t b = 0; b < c->p.batch; b++)
        lengths[b] = (int32_t)pick(c, 0, c->p.seq_len_q);
    return lengths;
}

static void choose_lengths(ring_case *c)
{
    attn_params *p = &c->p;
    if (chance(c, 30))
        p->q_len = some_lengths(c);
    if (chance(c, 30))
        p->kv_len = some_lengths(c);
    if (c->kind != RING_ALIGNED && p->kv_len != NULL && chance(c, 40)) {
        int32_t *begin = some_lengths(c);
        for (int64_t b = 0; b < p->batch; b++)
            begin[b] = (int32_t)pick(c, 0, p->seq_len_kv - p->kv_len[b]);
        p->kv_begin = begin;
    }
    if (chance(c, 20)) {
        int64_t *base = take(c, p->batch * 8);
        for (int64_t b = 0; b < p->batch; b++)
            base[b] = c->kind == RING_ALIGNED ? (b > 0 ? base[0] : 1024 * pick(c, 0, 9))
                                              : pick(c, 0, 5000);
        p->key_base = base;
    }
}

static void choose_masks(ring_case *c)
{
    attn_params *p = &c->p;
    p->causal = chance(c, 55);
    if (chance(c, 30))
        p->alignment = ATTN_ALIGN_TOP_LEFT;
    if (chance(c, 25)) {
        p->window = ATTN_WINDOW;
        p->window_left = chance(c, 15)  ? -1
                         : chance(c, 5) ? INT64_MAX
                                        : pick(c, 0, p->seq_len_q / 2 + 1);
        p->window_right = chance(c, 30) ? -1 : pick(c, 0, p->seq_len_q / 4 + 1);
    }
    if (chance(c, 10))
        p->chunk_size = pick(c, 1, p->seq_len_q + 1);
    if (p->causal && chance(c, 10))
        p->prefix = some_lengths(c);
    if (chance(c, 20)) { /* documents, one after the other, in some cases those of all entries */
        const int shared = chance(c, 30);
        const int64_t tokens = (shared ? 1 : p->batch) * p->seq_len_q;
        int32_t *ids = take(c, tokens * 4);
        for (int64_t i = 0; i < tokens; i++)
            ids[i] = i > 0 && chance(c, 97) ? ids[i - 1] : (int32_t)pick(c, 0, 5);
        p->q_segments = p->kv_segments = ids;
        p->q_segments_stride = p->kv_segments_stride = shared ? ATTN_STRIDE_BROADCAST : 0;
    }
    if (chance(c, 10)) { /* one row of cells for all rows */
        const int64_t cell = pick(c, 1, 3) * 16, bytes = p->seq_len_kv / cell / 8 + 1;
        uint8_t *cells = take(c, bytes);
        for (int64_t i = 0; i < bytes; i++)
            cells[i] = (uint8_t)pick(c, 0, 255);
        p->block_mask.block_q = p->block_mask.block_k = cell;
        p->block_mask.bitmap = cells;
        p->block_mask.stride_batch = p->block_mask.stride_head = ATTN_STRIDE_BROADCAST;
        p->block_mask.stride_row = ATTN_STRIDE_BROADCAST;
    }
}

/* A bias that shares any of its axes. */
static void make_bias(ring_case *c)
{
    attn_params *p = &c->p;
    const int64_t size[4] = { p->batch, p->num_heads_q, p->seq_len_q, p->seq_len_kv };
    ptrdiff_t *const strides[4] = { &p->bias.stride_batch, &p->bias.stride_head, &p->bias.stride_q,
                                    &p->bias.stride_kv };
    attn_tensor bias = { 0 };
    int64_t count = 1;
    for (int axis = 0; axis < 4; axis++) {
        if (chance(c, 35))
            *strides[axis] = ATTN_STRIDE_BROADCAST;
        else
            count *= size[axis];
    }
    bias.dtype = p->bias.dtype = (int)pick(c, 0, 2);
    fill(c, &bias, count);
    p->bias.data = bias.data;
}

static void make_slopes(ring_case *c)
{
    attn_params *p = &c->p;
    const int shared = chance(c, 50);
    float *slopes = take(c, p->batch * p->num_heads_q * 4);
    for (int64_t b = 0; b < (shared ? 1 : p->batch); b++)
        attn_alibi_slopes(slopes + b * p->num_heads_q, p->num_heads_q);
    p->alibi_slopes = slopes;
    p->alibi_stride = shared ? ATTN_STRIDE_BROADCAST : 0;
}

static void make_sinks(ring_case *c)
{
    float *sinks = take(c, c->p.num_heads_q * 4);
    for (int64_t h = 0; h < c->p.num_heads_q; h++)
        sinks[h] = normal(c);
    c->p.sinks = sinks;
}

/* Arrays over pairs, where they are small enough; and what changes logits. */
static void choose_modifiers(ring_case *c)
{
    attn_params *p = &c->p;
    const int64_t n = p->seq_len_q, pairs = n * n;
    if (n <= 600 && chance(c, 40))
        make_bias(c);
    if (n <= 2000 && chance(c, 15)) {
        uint8_t *mask = take(c, pairs);
        for (int64_t i = 0; i < pairs; i++)
            mask[i] = (uint8_t)chance(c, 70);
        p->bool_mask.data = mask;
        p->bool_mask.stride_batch = p->bool_mask.stride_head = ATTN_STRIDE_BROADCAST;
    }
    if (chance(c, 15))
        p->softcap = 5.0f;
    if (chance(c, 30))
        make_slopes(c);
    if (chance(c, 30))
        make_sinks(c);
    else
        p->softmax1 = chance(c, 10);
    if (chance(c, c->kind == RING_ALIGNED ? 3 : 10)) {
        p->dropout_p = 0.25f;
        p->dropout_seed = next_random(c);
    }
    p->force_redo = chance(c, 10);
}

/* Which gradients are asked for: those that are there, one of them at least. */
static void choose_wanted(ring_case *c)
{
    const int sums = chance(c, 20), all = c->kind == RING_FAULTY;
    oracle_gradient size[ORACLE_GRADIENTS];
    int count = 0;
    oracle_gradient_sizes(&c->p, size);
    for (int n = ORACLE_DBIAS; n < ORACLE_GRADIENTS; n++) {
        c->wanted[n] = size[n].size[1] > 0 && (all || chance(c, 80));
        count += c->wanted[n];
    }
    for (int n = 0; n < ORACLE_DBIAS; n++)
        c->wanted[n] = all || !sums || count == 0;
}

/* Logits of some rows, or of all of few; probabilities where a ring can give them. */
static void choose_logits(ring_case *c)
{
    attn_params *p = &c->p;
    const int listed = !is_small(c) || chance(c, 50);
    int64_t rows = listed ? pick(c, 1, 5) : p->seq_len_q;
    if (p->seq_len_q == 0 || !chance(c, 30))
        return;
    p->logits.stage =
        (int)pick(c, ATTN_LOGITS_RAW, c->ring.gather ? ATTN_LOGITS_SOFTMAX : ATTN_LOGITS_BIAS);
    if (listed) {
        int32_t *list = take(c, rows * 4);
        for (int64_t i = 0; i < rows; i++)
            list[i] = (int32_t)pick(c, 0, p->seq_len_q - 1);
        p->logits.rows = list;
        p->logits.num_rows = rows;
    }
    rows *= p->batch * p->num_heads_q * p->seq_len_kv;
    p->logits.data = take(c, rows * 4);
    memset(p->logits.data, 0x7f, (size_t)rows * 4);
}

static int64_t dim_v_of(const attn_params *p)
{
    return p->head_dim_v != 0 ? p->head_dim_v : p->head_dim;
}

static void make_tensors(ring_case *c)
{
    attn_params *p = &c->p;
    const int64_t rows = p->batch * p->num_heads_q * p->seq_len_q;
    const int64_t keys = p->batch * p->num_heads_kv * p->seq_len_kv;
    fill(c, &p->q, rows * p->head_dim);
    fill(c, &p->k, keys * p->head_dim);
    fill(c, &p->v, keys * dim_v_of(p));
    p->o.data = take(c, rows * dim_v_of(p) * 4);
    p->lse.data = take(c, rows * 4);
    memset(p->o.data, 0, (size_t)(rows * dim_v_of(p) * 4));
    memset(p->lse.data, 0, (size_t)rows * 4);
    if (c->sums != SUMS_LSE) {
        p->stats.data = take(c, rows * 2 * 4);
        memset(p->stats.data, 0, (size_t)rows * 2 * 4);
    }
    c->g.dout.dtype = (int)pick(c, 0, 2);
    fill(c, &c->g.dout, rows * dim_v_of(p));
    if (chance(c, 30))
        fill(c, &c->g.dlse, rows);
    c->g.dq.dtype = chance(c, 70) ? ATTN_F32 : (int)pick(c, 1, 2);
    c->g.dk.dtype = chance(c, 70) ? ATTN_F32 : (int)pick(c, 1, 2);
    c->g.dv.dtype = chance(c, 70) ? ATTN_F32 : (int)pick(c, 1, 2);
}

/* dq by one process, packed. */
static int solve_dq(ring_case *c)
{
    const attn_params *p = &c->p;
    attn_gradients g = c->g;
    size_t bytes = 0;
    attn_status status;
    void *workspace;
    g.dq.data = c->dq = take(c, p->batch * p->num_heads_q * p->seq_len_q * p->head_dim * 4);
    status = attn_backward_workspace_size(p, &g, &bytes);
    workspace = malloc(bytes > 0 ? bytes : 1);
    if (status == ATTN_OK)
        status = attn_backward(p, &g, workspace, bytes);
    free(workspace);
    return status == ATTN_OK;
}

/* The answer by one process. */
static int solve(ring_case *c)
{
    attn_info info;
    size_t bytes = 0;
    char text[120];
    void *workspace;
    attn_status status = attn_workspace_size(&c->p, &bytes);
    workspace = malloc(bytes > 0 ? bytes : 1);
    if (status == ATTN_OK)
        status = attn_forward(&c->p, workspace, bytes);
    if (status != ATTN_OK)
        snprintf(c->name, sizeof c->name, "one process: %s",
                 attn_check(&c->p, workspace, bytes, text, sizeof text));
    free(workspace);
    if (status != ATTN_OK || attn_explain(&c->p, &info) != ATTN_OK)
        return 0;
    c->pairs = info.pairs;
    if (has_gradients(c) && c->gathers && !solve_dq(c))
        return 0;
    return !has_gradients(c) || oracle_backward(&c->p, &c->g, c->expected) == 0;
}

int ring_case_make(ring_case *c, uint64_t seed, int ranks, int kind)
{
    static const char *const layouts[] = { "contiguous", "zigzag", "striped", "custom" };
    memset(c, 0, sizeof *c);
    c->random = seed * 1000003u + (uint64_t)kind;
    c->ranks = ranks;
    c->kind = kind;
    choose_sizes(c);
    c->stored = kind != RING_FAULTY && seed % 6 == 3;
    if (c->stored)
        choose_stored(c);
    choose_layout(c);
    if (c->ring.layout == ATTN_RING_CUSTOM && kind != RING_FAULTY)
        make_ranges(c);
    if (kind == RING_FAULTY) {
        c->ring.layout = (int)pick(c, 0, 2);
        c->ring.shard = 5;
        c->ring.gather = 0;
        make_bias(c);
        make_slopes(c);
        make_sinks(c);
    } else {
        choose_lengths(c);
        choose_masks(c);
        choose_modifiers(c);
    }
    c->sums = (int)pick(c, SUMS_LSE, SUMS_BOTH);
    choose_wanted(c);
    choose_logits(c);
    make_tensors(c);
    c->spread = (int)pick(c, 0, 2);
    c->forgets = (int)pick(c, 0, 2);
    c->fetches = chance(c, 20);
    c->gathers = chance(c, 35);
    if (!solve(c))
        return 0;
    snprintf(c->name, sizeof c->name, "%d ranks, %s, shard %lld%s%s, %lld positions%s%s%s", ranks,
             layouts[c->ring.layout], (long long)c->ring.shard, c->ring.gather ? ", gather" : "",
             c->ring.arrival ? ", arrival" : "", (long long)c->p.seq_len_q,
             c->p.causal ? ", causal" : "", c->p.window ? ", window" : "",
             c->stored ? ", quantised" : "");
    return 1;
}

void ring_case_free(ring_case *c)
{
    for (int i = 0; i < c->blocks; i++)
        free(c->memory[i]);
    if (has_gradients(c))
        oracle_backward_free(c->expected);
}

/* ---- a rank's own tensors -------------------------------------------------------------------- */

/* [batch, heads, length, dim] in one block; elements that no position has are 0x7f bytes. */
typedef struct local_tensor {
    int dtype;
    ptrdiff_t batch, head, seq; /* strides */
    int64_t heads, dim;
    unsigned char *data;
    size_t bytes;
} local_tensor;

/* dbias, dsinks or dslopes in one block, as tensors are. */
typedef struct local_sum {
    ptrdiff_t stride[4];
    int64_t size[4];
    float *data;
    size_t bytes;
} local_sum;

typedef struct share {
    const ring_case *c;
    const attn_transport *t;
    attn_ring_range ranges[MOST_RANGES];
    int64_t range_count, length;
    local_tensor q, k, v, o, lse, stats, dout, dlse, dq, dk, dv;
    local_sum sum[ORACLE_GRADIENTS]; /* of ORACLE_DBIAS on */
    float *logits;                   /* of the rows listed, or of this rank's */
    int64_t logits_rows;
    ring_outcome *out;
} share;

static void tell(share *s, const char *what, int64_t b, int64_t h, int64_t x, int64_t d)
{
    if (s->out->why[0] == '\0')
        snprintf(s->out->why, sizeof s->out->why,
                 "%s: rank %d of %d, b=%lld h=%lld x=%lld d=%lld: %s", s->c->name, s->t->rank,
                 s->t->size, (long long)b, (long long)h, (long long)x, (long long)d, what);
}

static void make_local(const share *s, local_tensor *t, int dtype, int64_t heads, int64_t dim)
{
    const int64_t n = s->length, unit = types[dtype].unit;
    const int64_t gap = s->c->spread == 2 ? 3 * unit : 0;
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
    t->bytes = (size_t)ring_bytes_of(dtype, s->c->p.batch * t->batch + unit);
    t->data = malloc(t->bytes);
    if (t->data == NULL)
        exit(2);
    memset(t->data, 0x7f, t->bytes);
}

/* Whether the ranks share the rows of a sum. */
static int shares_rows(const share *s, int which)
{
    return which != ORACLE_DBIAS || s->c->p.bias.stride_q == ATTN_STRIDE_BROADCAST;
}

/* A sum packed, or dbias with its axes in another order and with gaps. */
static void make_sum(share *s, int which)
{
    local_sum *t = &s->sum[which];
    const int spread = which == ORACLE_DBIAS && s->c->spread != 0;
    oracle_gradient size[ORACLE_GRADIENTS];
    ptrdiff_t count = 1;
    oracle_gradient_sizes(&s->c->p, size);
    memcpy(t->size, size[which].size, sizeof t->size);
    if (!shares_rows(s, which))
        t->size[2] = s->length;
    for (int n = 0; n < 4; n++) {
        const int axis = spread ? (n + 1) % 4 : 3 - n;
        t->stride[axis] = count;
        count = count * (ptrdiff_t)t->size[axis] + (spread ? s->c->spread : 0);
    }
    t->bytes = ((size_t)count + 8) * sizeof(float);
    t->data = malloc(t->bytes);
    if (t->data == NULL)
        exit(2);
    memset(t->data, 0x7f, t->bytes);
}

static int64_t logits_count(const share *s)
{
    return s->c->p.batch * s->c->p.num_heads_q * s->logits_rows * s->c->p.seq_len_kv;
}

static void make_logits(share *s)
{
    const attn_logits *l = &s->c->p.logits;
    s->logits_rows = l->rows != NULL ? l->num_rows : s->length;
    s->logits = malloc((size_t)logits_count(s) * 4 + 1);
    if (s->logits == NULL)
        exit(2);
    memset(s->logits, 0x7f, (size_t)logits_count(s) * 4 + 1);
}

static unsigned char *local_at(const local_tensor *t, int64_t b, int64_t h, int64_t x)
{
    return t->data + ring_bytes_of(t->dtype, b * t->batch + h * t->head + x * t->seq);
}

/* Calls function(s, b, x, position) for each own position of each batch entry. */
static void each_position(share *s, void (*function)(share *s, int64_t b, int64_t x, int64_t at))
{
    for (int64_t b = 0; b < s->c->p.batch; b++) {
        int64_t x = 0;
        for (int64_t r = 0; r < s->range_count; r++)
            for (int64_t i = 0; i < s->ranges[r].count; i++)
                function(s, b, x++, s->ranges[r].begin + i);
    }
}

static void copy_in(const share *s, const local_tensor *t, const void *whole, int64_t b, int64_t x,
                    int64_t at)
{
    const int64_t bytes = ring_bytes_of(t->dtype, t->dim), n = s->c->p.seq_len_q;
    for (int64_t h = 0; whole != NULL && h < t->heads; h++)
        memcpy(local_at(t, b, h, x), (const char *)whole + ((b * t->heads + h) * n + at) * bytes,
               (size_t)bytes);
}

static void copy_inputs(share *s, int64_t b, int64_t x, int64_t at)
{
    const attn_params *p = &s->c->p;
    copy_in(s, &s->q, p->q.data, b, x, at);
    copy_in(s, &s->k, p->k.data, b, x, at);
    copy_in(s, &s->v, p->v.data, b, x, at);
    copy_in(s, &s->dout, s->c->g.dout.data, b, x, at);
    if (s->c->g.dlse.data != NULL)
        copy_in(s, &s->dlse, s->c->g.dlse.data, b, x, at);
}

static attn_tensor as_input(const share *s, const local_tensor *t)
{
    attn_tensor a = { 0 };
    a.dtype = t->dtype;
    a.data = t->data;
    if (s->c->spread != 0)
        a.stride_batch = t->batch, a.stride_head = t->head, a.stride_seq = t->seq;
    return a;
}

static attn_output as_result(const share *s, const local_tensor *t)
{
    const attn_tensor a = as_input(s, t);
    const attn_output o = { a.dtype, a.stride_batch, a.stride_head, a.stride_seq, t->data };
    return o;
}

static void open_share(share *s)
{
    const attn_params *p = &s->c->p;
    const int64_t hq = p->num_heads_q, hkv = p->num_heads_kv, dv = dim_v_of(p);
    make_local(s, &s->q, p->q.dtype, hq, p->head_dim);
    make_local(s, &s->k, p->k.dtype, hkv, p->head_dim);
    make_local(s, &s->v, p->v.dtype, hkv, dv);
    make_local(s, &s->o, p->o.dtype, hq, dv);
    make_local(s, &s->lse, ATTN_F32, hq, 1);
    make_local(s, &s->stats, ATTN_F32, hq, 2);
    make_local(s, &s->dout, s->c->g.dout.dtype, hq, dv);
    make_local(s, &s->dlse, s->c->g.dlse.dtype, hq, 1);
    make_local(s, &s->dq, s->c->g.dq.dtype, hq, p->head_dim);
    make_local(s, &s->dk, s->c->g.dk.dtype, hkv, p->head_dim);
    make_local(s, &s->dv, s->c->g.dv.dtype, hkv, dv);
    for (int n = ORACLE_DBIAS; n < ORACLE_GRADIENTS; n++)
        make_sum(s, n);
    make_logits(s);
    each_position(s, copy_inputs);
}

static void close_share(share *s)
{
    local_tensor *const all[] = { &s->q,    &s->k,    &s->v,  &s->o,  &s->lse, &s->stats,
                                  &s->dout, &s->dlse, &s->dq, &s->dk, &s->dv };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->data);
    for (int n = ORACLE_DBIAS; n < ORACLE_GRADIENTS; n++)
        free(s->sum[n].data);
    free(s->logits);
    free(s);
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
    (void)user;
    for (int64_t i = 0; i < n / 2; i++)
        task(arg, i, 0);
    return 1;
}

typedef struct fetcher {
    const share *s;
    int fails;
} fetcher;

/* The rank's keys or values, packed. */
static void pack(const share *s, const local_tensor *t, void *to)
{
    const int64_t bytes = ring_bytes_of(t->dtype, t->dim);
    char *at = to;
    for (int64_t b = 0; b < s->c->p.batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t x = 0; x < s->length; x++, at += bytes)
                memcpy(at, local_at(t, b, h, x), (size_t)bytes);
}

static int fetch(void *user, void *k, void *v)
{
    const fetcher *f = user;
    pack(f->s, &f->s->k, k);
    pack(f->s, &f->s->v, v);
    return f->fails;
}

/* What every rank has to return. */
static attn_status status_of(const ring_fault *fault)
{
    return fault->kind == RING_FAULT_WORKSPACE  ? ATTN_ERR_WORKSPACE
           : fault->kind == RING_FAULT_ARGUMENT ? ATTN_ERR_ARG
                                                : ATTN_ERR_CALLBACK;
}

/* ---- running --------------------------------------------------------------------------------- */

/* The gradients that are asked for. */
static void ask_gradients(const share *s, attn_gradients *g)
{
    const int *wanted = s->c->wanted;
    const local_sum *bias = &s->sum[ORACLE_DBIAS];
    if (wanted[ORACLE_DQ])
        g->dq = as_result(s, &s->dq), g->dk = as_result(s, &s->dk), g->dv = as_result(s, &s->dv);
    if (wanted[ORACLE_DBIAS] && s->c->spread != 0) {
        g->dbias.stride_batch = bias->stride[0], g->dbias.stride_head = bias->stride[1];
        g->dbias.stride_q = bias->stride[2], g->dbias.stride_kv = bias->stride[3];
    }
    g->dbias.data = wanted[ORACLE_DBIAS] ? bias->data : NULL;
    g->dsinks = wanted[ORACLE_DSINKS] ? s->sum[ORACLE_DSINKS].data : NULL;
    g->dslopes = wanted[ORACLE_DSLOPES] ? s->sum[ORACLE_DSLOPES].data : NULL;
}

/* The call of this rank, forward or backward, with a fault planted. */
static attn_status call(share *s, const ring_fault *fault, int backward, attn_ring_stats *stats)
{
    attn_params p = s->c->p;
    attn_gradients g = s->c->g;
    attn_ring ring = s->c->ring;
    attn_transport t = *s->t;
    faulty f = { 0 };
    fetcher fetching = { 0 };
    const int mine = fault != NULL && fault->backward == backward && fault->rank == s->t->rank;
    size_t bytes = 0;
    char *memory;
    attn_status status;
    f.inner = s->t;
    f.fault = fault;
    if (fault != NULL && fault->backward == backward) {
        t.user = &f;
        t.agree = faulty_agree, t.begin = faulty_begin, t.end = faulty_end;
        t.cancel = faulty_cancel, t.seconds = NULL;
    }
    ring.transport = &t;
    ring.stats = stats;
    if (backward)
        ring.gather = s->c->gathers;
    p.q = as_input(s, &s->q), p.k = as_input(s, &s->k), p.v = as_input(s, &s->v);
    p.o = as_result(s, &s->o), p.lse = as_result(s, &s->lse);
    if (s->c->sums == SUMS_STATS)
        memset(&p.lse, 0, sizeof p.lse);
    if (s->c->sums != SUMS_LSE)
        p.stats = as_result(s, &s->stats);
    g.dout = as_input(s, &s->dout);
    if (g.dlse.data != NULL)
        g.dlse = as_input(s, &s->dlse);
    ask_gradients(s, &g);
    if (p.logits.data != NULL)
        p.logits.data = s->logits;
    if (s->c->forgets != 0)
        strides_forget(&p, &g, (s->c->forgets + s->t->rank) % 2, s->length, s->length);
    fetching.s = s;
    fetching.fails = mine && fault->kind == RING_FAULT_FETCH;
    if (s->c->fetches || fetching.fails) {
        ring.fetch = fetch;
        ring.fetch_user = &fetching;
        p.k.data = p.v.data = NULL;
    }
    if (mine && fault->kind == RING_FAULT_COMPUTE) {
        p.parallel_for = failing_for;
        p.num_workers = 4;
    }
    status = backward ? attn_ring_backward_workspace_size(&p, &g, &ring, &bytes)
                      : attn_ring_workspace_size(&p, &ring, &bytes);
    if (status != ATTN_OK)
        tell(s, attn_status_string(status), -1, -1, -1, -1);
    memory = malloc(bytes + 65);
    if (memory == NULL)
        exit(2);
    memset(memory, 0xff, bytes + 65);
    if (mine && fault->kind == RING_FAULT_WORKSPACE)
        bytes -= 1 + bytes / 2 * (bytes > 0);
    if (mine && fault->kind == RING_FAULT_ARGUMENT)
        p.window_left = -5, p.window = 1;
    status = backward ? attn_ring_backward(&p, &g, &ring, memory + 1, bytes)
                      : attn_ring_forward(&p, &ring, memory + 1, bytes);
    if (bytes > 0 && (unsigned char)memory[0] != 0xff)
        tell(s, "a byte before the workspace", -1, -1, -1, -1);
    if (!(mine && fault->kind == RING_FAULT_WORKSPACE))
        for (int i = 0; i < 64; i++)
            if ((unsigned char)memory[1 + bytes + (size_t)i] != 0xff)
                tell(s, "a byte behind the workspace", -1, -1, -1, i);
    free(memory);
    return status;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static int is_painted(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != 0x7f)
            return 0;
    return 1;
}

static int is_untouched(const local_tensor *t)
{
    return is_painted(t->data, t->bytes);
}

static int are_sums_untouched(const share *s)
{
    int untouched = 1;
    for (int n = ORACLE_DBIAS; n < ORACLE_GRADIENTS; n++)
        untouched &= is_painted(s->sum[n].data, s->sum[n].bytes);
    return untouched;
}

static int is_row_untouched(const local_tensor *t, int64_t b, int64_t h, int64_t x)
{
    const unsigned char *at = local_at(t, b, h, x);
    for (int64_t i = 0; i < ring_bytes_of(t->dtype, t->dim); i++)
        if (at[i] != 0x7f)
            return 0;
    return 1;
}

static int row_equals(const share *s, const local_tensor *t, const void *whole, int64_t b,
                      int64_t h, int64_t x, int64_t at)
{
    const int64_t bytes = ring_bytes_of(t->dtype, t->dim), n = s->c->p.seq_len_q;
    return memcmp(local_at(t, b, h, x), (const char *)whole + ((b * t->heads + h) * n + at) * bytes,
                  (size_t)bytes) == 0;
}

static void same_bits(share *s, int64_t b, int64_t x, int64_t at)
{
    const int64_t used = oracle_rows(&s->c->p, b);
    for (int64_t h = 0; h < s->o.heads; h++) {
        if (at >= used &&
            !(is_row_untouched(&s->o, b, h, x) && is_row_untouched(&s->lse, b, h, x) &&
              is_row_untouched(&s->stats, b, h, x)))
            tell(s, "a row beyond q_len was written", b, h, at, 0);
        if (at < used && !row_equals(s, &s->o, s->c->p.o.data, b, h, x, at))
            tell(s, "o has other bits than that of one process", b, h, at, 0);
        if (at < used && s->c->sums != SUMS_STATS &&
            !row_equals(s, &s->lse, s->c->p.lse.data, b, h, x, at))
            tell(s, "lse has other bits than that of one process", b, h, at, 0);
        if (at < used && s->c->sums != SUMS_LSE &&
            !row_equals(s, &s->stats, s->c->p.stats.data, b, h, x, at))
            tell(s, "stats have other bits than those of one process", b, h, at, 0);
    }
}

static void compare(share *s, const char *what, int dtype, const void *at, double expected,
                    double tolerance, int64_t b, int64_t h, int64_t x, int64_t d)
{
    const double value = oracle_load(dtype, at, 0);
    double error = fabs(value - expected);
    if (dtype != ATTN_F32)
        error = fmax(0, error - oracle_storage_error(dtype, fabs(expected) + tolerance));
    if (value == expected || (value != value && expected != expected))
        return;
    if (!is_within(error, tolerance, &s->out->worst))
        tell(s, what, b, h, x, d);
}

static void near_row_sums(share *s, const oracle_result *expected, int64_t b, int64_t h, int64_t x,
                          int64_t at)
{
    float lse, stats[2];
    const char *wrong;
    memcpy(&lse, local_at(&s->lse, b, h, x), sizeof lse);
    memcpy(stats, local_at(&s->stats, b, h, x), sizeof stats);
    wrong = ring_sums_wrong(&s->c->p, h, expected, s->c->sums != SUMS_STATS ? &lse : NULL,
                            s->c->sums != SUMS_LSE ? stats : NULL, &s->out->worst);
    if (wrong != NULL)
        tell(s, wrong, b, h, at, 0);
}

/* Rows chosen by their number, against the oracle. */
static void near_oracle(share *s, int64_t b, int64_t x, int64_t at)
{
    const attn_params *p = &s->c->p;
    const int64_t stride = s->length / SAMPLED_ROWS + 1, dim = dim_v_of(p);
    double o[64], tolerance[64];
    oracle_result expected = { 0 };
    if ((x % stride != 0 && !is_small(s->c)) || p->rotated)
        return;
    expected.o = o;
    expected.o_tolerance = tolerance;
    for (int64_t h = 0; h < s->o.heads; h++) {
        if (oracle_row_full(p, b, h, at, &expected) != 0)
            continue;
        for (int64_t d = 0; d < dim; d++)
            compare(s, "o", s->o.dtype, local_at(&s->o, b, h, x) + ring_bytes_of(s->o.dtype, d),
                    o[d], tolerance[d], b, h, at, d);
        near_row_sums(s, &expected, b, h, x, at);
    }
}

/* Rows of one gradient of position `at`, element `row` of the oracle's sequence, in use or not. */
static void near_gradient(share *s, const local_tensor *t, int which, int64_t b, int64_t x,
                          int64_t row, int64_t used)
{
    const oracle_gradient *e = &s->c->expected[which];
    for (int64_t h = 0; h < t->heads; h++) {
        if (row < 0 || row >= used) {
            if (!is_row_untouched(t, b, h, x))
                tell(s, "a gradient beyond the lengths was written", b, h, row, which);
            continue;
        }
        for (int64_t d = 0; d < t->dim; d++) {
            const int64_t at = ((b * t->heads + h) * e->size[2] + row) * t->dim + d;
            const void *value = local_at(t, b, h, x) + ring_bytes_of(t->dtype, d);
            const double number = oracle_load(t->dtype, value, 0);
            compare(s, oracle_gradient_name(which), t->dtype, value, e->value[at], e->tolerance[at],
                    b, h, row, d);
            if (number == 0 && signbit(number))
                tell(s, "a gradient is -0", b, h, row, which);
        }
    }
}

/* The position of row `x` of the rank. */
static int64_t position_of(const share *s, int64_t x)
{
    int r = 0;
    while (x >= s->ranges[r].count)
        x -= s->ranges[r++].count;
    return s->ranges[r].begin + x;
}

/* One element of a sum, which is painted again. */
static void near_sum(share *s, int which, const int64_t at[4])
{
    const local_sum *t = &s->sum[which];
    const oracle_gradient *e = &s->c->expected[which];
    const int64_t row = shares_rows(s, which) ? at[2] : position_of(s, at[2]);
    const int64_t n = ((at[0] * e->size[1] + at[1]) * e->size[2] + row) * e->size[3] + at[3];
    float *value = t->data + at[0] * t->stride[0] + at[1] * t->stride[1] + at[2] * t->stride[2] +
                   at[3] * t->stride[3];
    uint32_t bits;
    memcpy(&bits, value, sizeof bits);
    compare(s, oracle_gradient_name(which), ATTN_F32, value, e->value[n], e->tolerance[n], at[0],
            at[1], row, at[3]);
    if (bits == 0x80000000u)
        tell(s, "a sum is -0", at[0], at[1], row, which);
    if (shares_rows(s, which))
        s->out->shared_bits = (s->out->shared_bits ^ bits) * 0x01000193u;
    memset(value, 0x7f, sizeof *value);
}

static void near_sums(share *s)
{
    for (int which = ORACLE_DBIAS; which < ORACLE_GRADIENTS; which++) {
        const int64_t *size = s->sum[which].size;
        int64_t at[4];
        for (at[0] = 0; s->c->wanted[which] && at[0] < size[0]; at[0]++)
            for (at[1] = 0; at[1] < size[1]; at[1]++)
                for (at[2] = 0; at[2] < size[2]; at[2]++)
                    for (at[3] = 0; at[3] < size[3]; at[3]++)
                        near_sum(s, which, at);
    }
    if (!are_sums_untouched(s))
        tell(s, "something beside a sum was written", -1, -1, -1, -1);
}

static void near_gradients(share *s, int64_t b, int64_t x, int64_t at)
{
    const attn_params *p = &s->c->p;
    const int64_t key = at - (p->kv_begin != NULL ? p->kv_begin[b] : 0);
    if (!s->c->wanted[ORACLE_DQ])
        return;
    for (int64_t h = 0; s->c->gathers && s->out->stats.canonical && h < s->dq.heads; h++)
        if (at < oracle_rows(p, b) && !row_equals(s, &s->dq, s->c->dq, b, h, x, at))
            tell(s, "dq has other bits than that of one process", b, h, at, 0);
    near_gradient(s, &s->dq, ORACLE_DQ, b, x, at, oracle_rows(p, b));
    near_gradient(s, &s->dk, ORACLE_DK, b, x, key, oracle_keys(p, b));
    near_gradient(s, &s->dv, ORACLE_DV, b, x, key, oracle_keys(p, b));
}

/* After a fault: the status that it leads to, whose it is, and nothing written. */
static void check_fault(share *s, const ring_fault *fault, attn_status status,
                        const attn_ring_stats *stats)
{
    if (status != status_of(fault))
        tell(s, attn_status_string(status), fault->kind, fault->rank, fault->at, fault->backward);
    else if (stats->failed_rank != fault->rank)
        tell(s, "another rank is blamed", fault->kind, fault->rank, fault->at, stats->failed_rank);
    if ((!fault->backward &&
         !(is_untouched(&s->o) && is_untouched(&s->lse) && is_untouched(&s->stats))) ||
        !(is_untouched(&s->dq) && is_untouched(&s->dk) && is_untouched(&s->dv) &&
          are_sums_untouched(s)))
        tell(s, "an output was written in spite of a fault", fault->kind, fault->rank, fault->at,
             0);
}

static int holds(const share *s, int64_t at)
{
    int held = 0;
    for (int64_t r = 0; r < s->range_count; r++)
        held |= at >= s->ranges[r].begin && at < s->ranges[r].begin + s->ranges[r].count;
    return held;
}

/* Logits of this rank's rows have the bits of one process; others are not written. */
static void check_logits(share *s)
{
    const attn_params *p = &s->c->p;
    const attn_logits *l = &p->logits;
    const size_t bytes = (size_t)p->seq_len_kv * 4;
    const int64_t whole = l->rows != NULL ? l->num_rows : p->seq_len_q;
    for (int64_t h = 0; l->data != NULL && h < p->batch * p->num_heads_q; h++)
        for (int64_t r = 0; r < s->logits_rows; r++) {
            const int64_t at = l->rows != NULL ? l->rows[r] : position_of(s, r);
            const float *row = s->logits + (h * s->logits_rows + r) * p->seq_len_kv;
            const float *one = l->data + (h * whole + (l->rows != NULL ? r : at)) * p->seq_len_kv;
            if (holds(s, at) ? memcmp(row, one, bytes) != 0 : !is_painted(row, bytes))
                tell(s, "logits", -1, h, at, l->stage);
        }
    if (!is_painted((char *)s->logits + logits_count(s) * 4, 1))
        tell(s, "a byte behind the logits", -1, -1, -1, -1);
}

static void check_forward(share *s)
{
    attn_ring_info info;
    attn_ring ring = s->c->ring;
    ring.transport = s->t;
    if (attn_ring_describe(&s->c->p, &ring, s->t->rank, &info) != ATTN_OK ||
        info.length != s->length || info.ranges != s->range_count ||
        info.canonical != s->out->stats.canonical)
        tell(s, "attn_ring_describe tells otherwise", -1, -1, -1, -1);
    if (s->c->kind == RING_ALIGNED && !info.canonical)
        tell(s, "an aligned layout is not canonical", -1, -1, -1, -1);
    check_logits(s);
    if (info.canonical)
        each_position(s, same_bits);
    each_position(s, near_oracle);
}

static int find_ranges(share *s)
{
    attn_ring ring = s->c->ring;
    attn_status status;
    ring.transport = s->t;
    status = attn_ring_ranges(&s->c->p, &ring, s->t->rank, s->ranges, MOST_RANGES, &s->range_count);
    if (status != ATTN_OK || s->range_count > MOST_RANGES) {
        tell(s, "attn_ring_ranges failed", -1, -1, -1, -1);
        return 0;
    }
    for (int64_t r = 0; r < s->range_count; r++)
        s->length += s->ranges[r].count;
    return 1;
}

void ring_case_run(const ring_case *c, const attn_transport *t, const ring_fault *fault,
                   ring_outcome *out)
{
    share *s = calloc(1, sizeof *s);
    attn_status status;
    memset(out, 0, sizeof *out);
    if (s == NULL)
        exit(2);
    s->c = c;
    s->t = t;
    s->out = out;
    if (!find_ranges(s)) {
        free(s);
        return;
    }
    open_share(s);
    if (fault != NULL && !fault->backward)
        check_fault(s, fault, call(s, fault, 0, &out->stats), &out->stats);
    status = call(s, NULL, 0, &out->stats); /* a fault is over when the call is */
    if (status != ATTN_OK)
        tell(s, attn_status_string(status), -1, -1, -1, 0);
    else if (fault == NULL || !fault->backward)
        check_forward(s);
    if (c->sums == SUMS_BOTH) /* gradients read stats alone */
        memset(s->lse.data, 0xff, s->lse.bytes);
    if (has_gradients(c) && status == ATTN_OK && (fault == NULL || fault->backward)) {
        if (fault != NULL && fault->backward)
            check_fault(s, fault, call(s, fault, 1, &out->backward), &out->backward);
        status = call(s, NULL, 1, &out->backward);
        if (status != ATTN_OK) {
            tell(s, attn_status_string(status), -1, -1, -1, 1);
        } else {
            each_position(s, near_gradients);
            near_sums(s);
        }
    }
    close_share(s);
}
