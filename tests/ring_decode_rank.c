/* ring_decode_rank.c - see ring_decode_rank.h.
 * SPDX-License-Identifier: MIT
 */
#include "ring_decode_rank.h"
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- problems -------------------------------------------------------------------------------- */

/* Both ends included. */
static int64_t draw_from(uint64_t *random, int64_t low, int64_t high)
{
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return low + (int64_t)((*random >> 33) % (uint64_t)(high - low + 1));
}

static int64_t draw(decode_problem *x, int64_t low, int64_t high)
{
    return draw_from(&x->random, low, high);
}

static int chance(decode_problem *x, int percent)
{
    return draw(x, 0, 99) < percent;
}

static void *take(decode_problem *x, int64_t bytes)
{
    void *block = calloc((size_t)bytes + 1, 1);
    if (block == NULL)
        exit(2);
    x->memory[x->blocks++] = block;
    return block;
}

static void fill(decode_problem *x, attn_tensor *t, int64_t count)
{
    float *values = malloc((size_t)(count + 1) * sizeof *values);
    void *stored = take(x, ring_bytes_of(t->dtype, count));
    if (values == NULL)
        exit(2);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)draw(x, -1000, 1000) * 0.002f;
    attn_convert(stored, t->dtype, values, ATTN_F32, (size_t)count);
    free(values);
    t->data = stored;
}

/* Numbers of 8 bits for `rows` keys of each head, with scales of tokens or of channels. */
static void fill_i8(decode_problem *x, attn_tensor *t, attn_scales *by, int64_t rows, int64_t dim)
{
    const int64_t heads = x->p.num_heads_kv;
    const int by_channel = chance(x, 50);
    const int64_t count = by_channel ? heads * dim : rows;
    signed char *stored = take(x, rows * dim);
    float *scales = take(x, count * 4);
    for (int64_t i = 0; i < rows * dim; i++)
        stored[i] = (signed char)draw(x, -128, 127);
    for (int64_t i = 0; i < count; i++)
        scales[i] = (float)draw(x, 100, 1500) * 1e-5f;
    t->data = stored;
    by->data = scales;
    if (by_channel)
        by->stride_batch = by->stride_seq = ATTN_STRIDE_BROADCAST;
    else
        by->stride_dim = ATTN_STRIDE_BROADCAST;
}

static void fill_keys(decode_problem *x, attn_tensor *t, attn_scales *by, int64_t rows, int64_t dim)
{
    if (t->dtype == ATTN_I8)
        fill_i8(x, t, by, rows, dim);
    else
        fill(x, t, rows * dim);
}

static void draw_cuts(decode_problem *x, int ranks, int kind)
{
    static const int64_t shards[] = { 1, 2, 5, 16, 24, 64, 100, 0 };
    const int64_t unit = kind == DECODE_ALIGNED ? 1024 : 1, length = x->p.seq_len_kv;
    int64_t at = 0, count = 0;
    int owner[DECODE_MOST_RANGES];
    x->ring.layout = (int)draw(x, 0, kind == DECODE_FAULTY ? 2 : 3);
    x->ring.shard = kind == DECODE_ALIGNED  ? unit * draw(x, 0, 2)
                    : kind == DECODE_FAULTY ? 8
                                            : shards[draw(x, 0, 7)];
    if (x->ring.layout != ATTN_RING_CUSTOM)
        return;
    x->ring.shard = 0;
    x->ring.ranges = x->ranges;
    x->ring.first_range = x->first;
    for (int i = 0; i < DECODE_MOST_RANGES; i++)
        owner[i] = (int)draw(x, 0, ranks - 1);
    for (int i = 0; i < DECODE_MOST_RANGES; i++) { /* in order of position, to be sorted by owner */
        const int64_t most = (length - at) / unit;
        const int64_t n = i == DECODE_MOST_RANGES - 1 ? length - at
                          : chance(x, 30)             ? 0
                                          : unit * draw(x, 0, most < 5 ? most : most / 3);
        x->ranges[i].begin = at;
        x->ranges[i].count = n;
        at += n;
    }
    {
        attn_ring_range sorted[DECODE_MOST_RANGES];
        for (int r = 0; r < ranks; r++) {
            x->first[r] = count;
            for (int i = 0; i < DECODE_MOST_RANGES; i++)
                if (owner[i] == r)
                    sorted[count++] = x->ranges[i];
        }
        x->first[ranks] = count;
        memcpy(x->ranges, sorted, sizeof sorted);
    }
}

static void draw_lengths(decode_problem *x, int kind)
{
    attn_params *p = &x->p;
    const int64_t base = 1024 * draw(x, 0, 5);
    for (int b = 0; b < 3; b++) {
        x->q_len[b] = (int32_t)draw(x, 0, p->seq_len_q);
        x->kv_len[b] = (int32_t)draw(x, 0, p->seq_len_kv);
        x->kv_begin[b] = (int32_t)draw(x, 0, p->seq_len_kv - x->kv_len[b]);
        x->prefix[b] = (int32_t)draw(x, 0, p->seq_len_kv);
        x->key_base[b] = kind == DECODE_ALIGNED ? base : draw(x, 0, 5000);
    }
    if (kind != DECODE_FAULTY && chance(x, 30))
        p->q_len = x->q_len;
    if (kind != DECODE_FAULTY && chance(x, 60))
        p->kv_len = x->kv_len;
    if (kind == DECODE_SMALL && p->kv_len && chance(x, 30))
        p->kv_begin = x->kv_begin;
    if (chance(x, 20))
        p->key_base = x->key_base;
}

static void draw_masks(decode_problem *x)
{
    attn_params *p = &x->p;
    p->causal = chance(x, 60);
    if (chance(x, 25)) {
        p->window = ATTN_WINDOW;
        p->window_left = draw(x, -1, p->seq_len_kv / 2);
        p->window_right = draw(x, -1, 20);
    }
    if (chance(x, 10))
        p->chunk_size = draw(x, 1, p->seq_len_kv + 1);
    if (p->causal && chance(x, 15))
        p->prefix = x->prefix;
    if (chance(x, 15)) {
        int32_t *q = take(x, p->batch * p->seq_len_q * 4);
        int32_t *k = take(x, p->batch * p->seq_len_kv * 4);
        for (int64_t i = 0; i < p->batch * p->seq_len_q; i++)
            q[i] = (int32_t)draw(x, 0, 2);
        for (int64_t i = 0; i < p->batch * p->seq_len_kv; i++)
            k[i] = (int32_t)draw(x, 0, 2);
        p->q_segments = q, p->kv_segments = k;
    }
}

static void draw_modifiers(decode_problem *x)
{
    attn_params *p = &x->p;
    for (int h = 0; h < 8; h++) {
        x->sinks[h] = (float)draw(x, -30, 30) * 0.1f;
        x->slopes[h] = (float)draw(x, 0, 10) * 0.05f;
    }
    p->softcap = chance(x, 15) ? 5.0f : 0.0f;
    if (chance(x, 15))
        p->alibi_slopes = x->slopes, p->alibi_stride = ATTN_STRIDE_BROADCAST;
    if (chance(x, 20))
        p->sinks = x->sinks;
    else
        p->softmax1 = chance(x, 15);
    if (chance(x, 5))
        p->dropout_p = 0.25f, p->dropout_seed = 7;
    if (chance(x, 15)) {
        attn_tensor bias = { 0 };
        fill(x, &bias, p->seq_len_q * p->seq_len_kv);
        p->bias.data = bias.data;
        p->bias.stride_batch = p->bias.stride_head = ATTN_STRIDE_BROADCAST;
    }
}

static int solve(const attn_params *p)
{
    size_t bytes = 0;
    attn_status status = attn_workspace_size(p, &bytes);
    void *workspace = malloc(bytes + 1);
    if (status == ATTN_OK)
        status = attn_forward(p, workspace, bytes);
    free(workspace);
    return status == ATTN_OK;
}

int decode_problem_make(decode_problem *x, uint64_t seed, int ranks, int kind)
{
    static const int stored[] = { ATTN_F32,  ATTN_F32,  ATTN_F16,  ATTN_BF16, ATTN_E4M3,
                                  ATTN_Q8_0, ATTN_Q5_0, ATTN_Q4_0, ATTN_I8 };
    attn_params *p = &x->p;
    int64_t rows, keys;
    memset(x, 0, sizeof *x);
    x->random = seed * 1000003u + (uint64_t)ranks;
    p->batch = kind == DECODE_FAULTY ? 3 : draw(x, 1, kind == DECODE_ALIGNED ? 1 : 3);
    p->num_heads_kv = draw(x, 1, 2);
    p->num_heads_q = p->num_heads_kv * draw(x, 1, 4);
    p->seq_len_q = chance(x, 50) ? 1 : draw(x, kind == DECODE_FAULTY, 20);
    p->seq_len_kv = kind == DECODE_FAULTY    ? 200
                    : kind == DECODE_ALIGNED ? draw(x, 0, 9000)
                                             : draw(x, 0, 200);
    p->k.dtype = stored[draw(x, 0, 8)];
    p->v.dtype = stored[draw(x, 0, 8)];
    p->head_dim = p->k.dtype >= ATTN_Q8_0 ? 32 : draw(x, 1, 12);
    p->head_dim_v = p->v.dtype >= ATTN_Q8_0 ? 32 : draw(x, 1, 12);
    p->integer = p->k.dtype >= ATTN_Q8_0 && chance(x, 50);
    x->spread = (int)draw(x, 0, 2);
    x->cached = chance(x, 60);
    draw_cuts(x, ranks, kind);
    draw_lengths(x, kind);
    if (kind != DECODE_FAULTY)
        draw_masks(x);
    draw_modifiers(x);
    rows = p->batch * p->num_heads_q * p->seq_len_q;
    keys = p->batch * p->num_heads_kv * p->seq_len_kv;
    fill(x, &p->q, rows * p->head_dim);
    fill_keys(x, &p->k, &p->k_scales, keys, p->head_dim);
    fill_keys(x, &p->v, &p->v_scales, keys, p->head_dim_v);
    p->o.data = take(x, rows * (p->head_dim_v + 3) * 4);
    p->lse.data = (float *)p->o.data + rows * p->head_dim_v;
    p->stats.data = (float *)p->lse.data + rows;
    memset(p->o.data, 0x7f, (size_t)(rows * (p->head_dim_v + 3) * 4));
    return solve(p);
}

void decode_problem_free(decode_problem *x)
{
    while (x->blocks > 0)
        free(x->memory[--x->blocks]);
}

/* ---- a rank's own keys ----------------------------------------------------------------------- */

typedef struct own_share {
    const decode_problem *x;
    const attn_transport *t;
    attn_ring_range ranges[256];
    int64_t count, length;
    attn_rows places;     /* of its keys */
    int64_t entries, seq; /* of k and v, and the rows of one */
    int32_t *table, first[3];
    void *memory[6];
    int blocks;
    uint64_t random;
    float *rows; /* o, lse, stats */
    decode_outcome *out;
} own_share;

static void tell(own_share *s, const char *what, int64_t number)
{
    if (s->out->why[0] == '\0')
        snprintf(s->out->why, sizeof s->out->why, "rank %d of %d: %s (%lld)", s->t->rank,
                 s->t->size, what, (long long)number);
}

static void *take_own(own_share *s, int64_t bytes)
{
    void *block = malloc((size_t)bytes + 1);
    if (block == NULL)
        exit(2);
    s->memory[s->blocks++] = block;
    return memset(block, 0x7f, (size_t)bytes + 1);
}

static int64_t position_of(const own_share *s, int64_t at)
{
    int64_t r = 0;
    while (at >= s->ranges[r].count)
        at -= s->ranges[r++].count;
    return s->ranges[r].begin + at;
}

/* Whether sequence b uses the rank's key `at`. */
static int is_used(const own_share *s, int64_t b, int64_t at)
{
    const attn_params *p = &s->x->p;
    const int64_t begin = p->kv_begin != NULL ? p->kv_begin[b] : 0, x = position_of(s, at);
    const int64_t keys = p->kv_len != NULL ? p->kv_len[b] : p->seq_len_kv - begin;
    return x >= begin && x < begin + keys;
}

/* The row of its sequence where the rank's key `at` lies, before pages. */
static int64_t row_of(const own_share *s, int64_t b, int64_t at)
{
    const attn_rows *rows = &s->places;
    at += rows->begin != NULL ? rows->begin[b] : 0;
    return rows->ring > 0 ? at % rows->ring : at;
}

/* A ring holds no more than the keys up to the last one in use. */
static void draw_ring(own_share *s)
{
    int64_t least = 1;
    for (int64_t b = 0; b < s->x->p.batch; b++)
        for (int64_t at = 0; at < s->length; at++)
            if (is_used(s, b, at) && at >= least)
                least = at + 1;
    s->places.ring = least + draw_from(&s->random, 0, 20);
    for (int b = 0; b < 3; b++)
        s->first[b] = (int32_t)draw_from(&s->random, 0, s->places.ring - 1);
    if (draw_from(&s->random, 0, 3) > 0)
        s->places.begin = s->first;
}

/* Pages in random order; entries that no key in use needs name none. */
static void draw_pages(own_share *s, int64_t rows)
{
    const int64_t size = s->places.page_size, batch = s->x->p.batch;
    const int64_t each = (rows + size - 1) / size, gap = draw_from(&s->random, 0, 1);
    const int64_t pages = batch * each + draw_from(&s->random, 0, 2);
    int32_t *order = take_own(s, pages * 4);
    s->table = take_own(s, batch * (each + gap) * 4); /* 0x7f7f7f7f is no page */
    for (int64_t n = 0; n < pages; n++) {
        const int64_t other = draw_from(&s->random, 0, n);
        order[n] = order[other];
        order[other] = (int32_t)n;
    }
    for (int64_t b = 0; b < batch; b++)
        for (int64_t at = 0; at < s->length; at++)
            if (is_used(s, b, at)) {
                const int64_t entry = row_of(s, b, at) / size;
                s->table[b * (each + gap) + entry] = order[b * each + entry];
            }
    s->places.table = each > 0 ? s->table : NULL;
    s->places.table_stride = gap != 0 ? (ptrdiff_t)(each + gap) : 0;
    s->places.num_pages = s->entries = pages;
    s->seq = size;
}

/* Plain arrays, pages, a ring, or pages of a ring. */
static void draw_places(own_share *s)
{
    static const int64_t sizes[] = { 0, 0, 1, 3, 16, 64 };
    s->random = s->x->random + (uint64_t)s->t->rank * 0x9e3779b97f4a7c15u;
    s->entries = s->x->p.batch;
    s->seq = s->length;
    if (!s->x->cached)
        return;
    if (draw_from(&s->random, 0, 2) == 0) {
        draw_ring(s);
        s->seq = s->places.ring;
    }
    s->places.page_size = sizes[draw_from(&s->random, 0, 5)];
    if (s->places.page_size > 0)
        draw_pages(s, s->seq);
}

static void place_of(const own_share *s, int64_t b, int64_t at, int64_t *entry, int64_t *row)
{
    const int64_t size = s->places.page_size;
    int64_t each = s->places.table_stride;
    *entry = b;
    *row = row_of(s, b, at);
    if (size == 0)
        return;
    if (each == 0)
        each = ((s->places.ring > 0 ? s->places.ring : s->length) + size - 1) / size;
    *entry = s->table[b * each + *row / size];
    *row %= size;
}

/* The keys in use of this rank alone, in one block; all else is 0x7f bytes. */
static void own_keys(own_share *s, const attn_tensor *whole, int64_t dim, attn_tensor *own)
{
    const attn_params *p = &s->x->p;
    const int64_t heads = p->num_heads_kv, gap = s->x->spread == 2 ? 32 : 0;
    const int64_t bytes = ring_bytes_of(whole->dtype, dim);
    int64_t seq = dim + gap, head = s->seq * seq + gap, batch = heads * head + gap, entry, row;
    unsigned char *data;
    if (s->x->spread == 1)
        head = dim, seq = heads * dim, batch = s->seq * seq;
    data = take_own(s, ring_bytes_of(whole->dtype, s->entries * batch + 32));
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t at = 0; at < s->length; at++)
            for (int64_t h = 0; h < heads && is_used(s, b, at); h++) {
                const int64_t from = ((b * heads + h) * p->seq_len_kv + position_of(s, at)) * dim;
                place_of(s, b, at, &entry, &row);
                memcpy(data + ring_bytes_of(whole->dtype, entry * batch + h * head + row * seq),
                       (const unsigned char *)whole->data + ring_bytes_of(whole->dtype, from),
                       (size_t)bytes);
            }
    own->data = data;
    if (s->x->spread != 0 && s->length > 0)
        own->stride_batch = (ptrdiff_t)batch, own->stride_head = (ptrdiff_t)head,
        own->stride_seq = (ptrdiff_t)seq;
}

/* Scales of tokens lie as the keys do. */
static void own_scales(own_share *s, const attn_scales *whole, attn_scales *own)
{
    attn_tensor from = { .data = whole->data }, to = { 0 };
    if (whole->data == NULL || whole->stride_seq == ATTN_STRIDE_BROADCAST)
        return;
    own_keys(s, &from, 1, &to);
    own->data = to.data;
    own->stride_batch = to.stride_batch;
    own->stride_head = to.stride_head;
    own->stride_seq = to.stride_seq;
}

static void make_own(own_share *s, attn_params *p)
{
    draw_places(s);
    own_keys(s, &s->x->p.k, p->head_dim, &p->k);
    own_keys(s, &s->x->p.v, p->head_dim_v, &p->v);
    own_scales(s, &s->x->p.k_scales, &p->k_scales);
    own_scales(s, &s->x->p.v_scales, &p->v_scales);
    p->kv_rows = s->places;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Outputs hold 0x7f bytes before a call. */
static int is_untouched(const void *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)at)[i] != 0x7f)
            return 0;
    return 1;
}

static void compare_row(own_share *s, int64_t b, int64_t h, int64_t i)
{
    const attn_params *p = &s->x->p;
    const int64_t dv = p->head_dim_v, rows = p->batch * p->num_heads_q * p->seq_len_q;
    const int64_t row = (b * p->num_heads_q + h) * p->seq_len_q + i;
    const float *const lse = s->rows + rows * dv, *const stats = lse + rows;
    const char *wrong;
    double o[64], abs[64], tolerance[64];
    oracle_result r = { 0 };
    r.o = o, r.o_abs = abs, r.o_tolerance = tolerance;
    if (oracle_row_full(p, b, h, i, &r) != 0) {
        tell(s, "the oracle failed", row);
        return;
    }
    for (int64_t d = 0; d < dv; d++) {
        const double error = fabs((double)s->rows[row * dv + d] - o[d]);
        const double part = error == 0 ? 0 : error / (tolerance[d] > 0 ? tolerance[d] : 1e-38);
        if (part > s->out->worst)
            s->out->worst = part;
        if (!(part <= 1))
            tell(s, "o is far from the oracle, row", row);
    }
    wrong = ring_sums_wrong(p, h, &r, &lse[row], &stats[2 * row], &s->out->worst);
    if (wrong != NULL)
        tell(s, wrong, row);
}

/* A row beyond q_len is left as it was. */
static void leave_row(own_share *s, int64_t b, int64_t h, int64_t i)
{
    const attn_params *p = &s->x->p;
    const int64_t dv = p->head_dim_v, rows = p->batch * p->num_heads_q * p->seq_len_q;
    const int64_t row = (b * p->num_heads_q + h) * p->seq_len_q + i;
    const float *const lse = s->rows + rows * dv, *const stats = lse + rows;
    if (!is_untouched(s->rows + row * dv, (size_t)dv * sizeof(float)) ||
        !is_untouched(&lse[row], sizeof *lse) || !is_untouched(&stats[2 * row], 2 * sizeof *stats))
        tell(s, "a row beyond q_len was written", row);
}

static void compare_rows(own_share *s, size_t bytes)
{
    const attn_params *p = &s->x->p;
    const unsigned char *at = (const unsigned char *)s->rows;
    if (s->out->stats.canonical && memcmp(s->rows, p->o.data, bytes) != 0)
        tell(s, "other bits than those of one process", 0);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t i = 0; i < p->seq_len_q; i++)
                if (i >= oracle_rows(p, b))
                    leave_row(s, b, h, i);
                else if (p->seq_len_kv <= 200)
                    compare_row(s, b, h, i);
    for (size_t i = 0; i < bytes; i++)
        s->out->sum = (s->out->sum ^ at[i]) * 0x01000193u;
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

static attn_status expected_status(const decode_problem *x)
{
    if (x->other_rows)
        return ATTN_ERR_ARG;
    if (x->fault == NULL)
        return ATTN_OK;
    return x->fault->kind == RING_FAULT_WORKSPACE  ? ATTN_ERR_WORKSPACE
           : x->fault->kind == RING_FAULT_ARGUMENT ? ATTN_ERR_ARG
                                                   : ATTN_ERR_CALLBACK;
}

/* The table names a page that is not there, where there is one. */
static void spoil(own_share *s, attn_params *p)
{
    if (p->kv_rows.page_size > 0)
        s->table[row_of(s, 0, 0) / p->kv_rows.page_size] = (int32_t)p->kv_rows.num_pages;
    else
        p->window = 1, p->window_left = -5;
}

/* ---- the call -------------------------------------------------------------------------------- */

static attn_status call_own(own_share *s)
{
    const ring_fault *fault = s->x->fault;
    const int fails = fault != NULL && fault->rank == s->t->rank;
    attn_params p = s->x->p;
    attn_ring ring = s->x->ring;
    attn_transport t = *s->t;
    faulty f = { s->t, fault, 0, 0 };
    size_t bytes = 0, whole;
    char text[200];
    unsigned char *memory;
    attn_status status;
    make_own(s, &p);
    p.o.data = s->rows;
    p.lse.data = s->rows + ((const float *)s->x->p.lse.data - (const float *)s->x->p.o.data);
    p.stats.data = s->rows + ((const float *)s->x->p.stats.data - (const float *)s->x->p.o.data);
    if (fault != NULL) {
        t.user = &f;
        t.agree = faulty_agree, t.begin = faulty_begin, t.end = faulty_end;
        t.cancel = faulty_cancel, t.seconds = NULL;
    }
    if (fails && fault->kind == RING_FAULT_COMPUTE)
        p.parallel_for = failing_for, p.num_workers = 4;
    if (s->x->other_rows && t.rank == t.size - 1)
        p.seq_len_q--;
    ring.transport = &t;
    ring.stats = &s->out->stats;
    if (attn_ring_decode_workspace_size(&p, &ring, &bytes) != ATTN_OK)
        tell(s, attn_ring_decode_check(&p, &ring, NULL, 0, text, sizeof text), 0);
    whole = bytes;
    memory = malloc(bytes + 65);
    if (memory == NULL)
        exit(2);
    memset(memory, 0xff, bytes + 65);
    if (fails && fault->kind == RING_FAULT_WORKSPACE)
        bytes--;
    if (fails && fault->kind == RING_FAULT_ARGUMENT)
        spoil(s, &p);
    status = attn_ring_decode_forward(&p, &ring, memory + 1, bytes);
    if (status != expected_status(s->x))
        tell(s,
             status ? attn_ring_decode_check(&p, &ring, memory + 1, bytes, text, sizeof text)
                    : "a fault was not noticed",
             (int)status);
    for (size_t i = 0; i < 64; i++)
        if (memory[0] != 0xff || memory[1 + whole + i] != 0xff)
            tell(s, "a byte beside the workspace was written", (int64_t)i);
    free(memory);
    return status;
}

void decode_rank_run(const decode_problem *x, const attn_transport *t, decode_outcome *out)
{
    const attn_params *p = &x->p;
    const size_t bytes =
        (size_t)(p->batch * p->num_heads_q * p->seq_len_q * (p->head_dim_v + 3)) * sizeof(float);
    own_share s = { .x = x, .t = t, .out = out };
    attn_ring ring = x->ring;
    memset(out, 0, sizeof *out);
    ring.transport = t;
    if (attn_ring_ranges(p, &ring, t->rank, s.ranges, 256, &s.count) != ATTN_OK || s.count > 256)
        tell(&s, "attn_ring_ranges", s.count);
    for (int64_t i = 0; i < s.count; i++)
        s.length += s.ranges[i].count;
    s.rows = malloc(bytes + 1);
    if (s.rows == NULL)
        exit(2);
    memset(s.rows, 0x7f, bytes);
    if (call_own(&s) == ATTN_OK) {
        compare_rows(&s, bytes);
        if (out->stats.failed_rank != -1 || out->stats.exchanges != t->size - 1)
            tell(&s, "the statistics of a call that did well", out->stats.exchanges);
    } else {
        if (!is_untouched(s.rows, bytes))
            tell(&s, "an output was written by a call that failed", 0);
        if (x->fault != NULL && out->stats.failed_rank != x->fault->rank)
            tell(&s, "another rank is said to have failed", out->stats.failed_rank);
    }
    free(s.rows);
    while (s.blocks > 0)
        free(s.memory[--s.blocks]);
}
