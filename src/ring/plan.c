/* src/ring/plan.c - the plan of a rank: a pure function of parameters, layout and rank.
 * SPDX-License-Identifier: MIT
 *
 *     workspace = | alignment | ring_call | entries | buffer 0 | buffer 1 | ... | work of a part |
 *
 * Sums over rows, that is dsinks, dslopes and dbias, lie one behind the other. The ranks add up what is
 * a sum over all rows, which is the first part of them: a bias with rows comes last, and has a gradient
 * of this rank's rows.
 */
#pragma once

#include "nodes.c"
#include "validate.c"

/* A ring_shape holds sizes of one position of a shard. */
typedef struct ring_shape {
    int64_t entries_q, entries_kv; /* Each is batch * heads. */
    int64_t dim, dim_v;
    int64_t k_bytes, v_bytes; /* These are bytes of a position of all entries. */
} ring_shape;

typedef struct ring_plan {
    ring_cut cuts;
    ring_shape shape;
    int rank;
    /* length counts the positions of this rank, and longest those of the rank that has most. */
    int64_t length, longest;
    /* row_range is the longest range of this rank, and key_range that of any rank. */
    int64_t row_range, key_range;
    /* slots counts states, slot_floats is the size of a state of all rows, and rows counts those of
     * all entries. */
    int64_t slots, slot_floats, rows;
    int64_t entries, entry_count, used;
    int64_t buffer[2], states, gathered, logit_rows;
    int64_t gift, dq, part_dq, part_keys; /* The backward call has these. */
    int64_t sink_floats, slope_floats, sum_floats;
    int64_t shared_floats; /* shared_floats counts the sums over the rows of all ranks. */
    attn_sum_axes
        bias; /* bias has the axes of dbias on this rank, and no data if none is wanted. */
    int64_t sums, arrived, part_sums, part_bias;
    int64_t work, work_bytes, bytes;
} ring_plan;

typedef struct ring_entry {
    tree_node node;
    int slot; /* A slot of -1 is an empty state. */
} ring_entry;

/* A ring_call is one call on one rank, and stands at the beginning of its workspace. */
typedef struct ring_call {
    attn_params p; /* p is the part that is computed. */
    attn_gradients g;
    attn_params own; /* own has the rank's tensors with explicit strides. */
    attn_gradients own_g;
    ring_plan pl;
    const attn_transport *t;
    attn_ring_stats *stats;
    char *base; /* The plan's offsets count from base. */
    ring_entry *entries;
    int64_t entry_count;
} ring_call;

static float *floats_at(const ring_call *c, int64_t offset)
{
    return (float *)(void *)(c->base + offset);
}

static float *zeros_at(const ring_call *c, int64_t offset, int64_t count)
{
    return memset(c->base + offset, 0, (size_t)count * sizeof(float));
}

#define RING_HEAD aligned((int64_t)sizeof(ring_call))

static ring_shape shape_of(const attn_params *p)
{
    const int64_t heads_kv = p->num_heads_kv ? p->num_heads_kv : p->num_heads_q;
    ring_shape s;
    s.dim = p->head_dim;
    s.dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    s.entries_q = times(p->batch, p->num_heads_q);
    s.entries_kv = times(p->batch, heads_kv);
    s.k_bytes = times(s.entries_kv, room_of(p->k.dtype, s.dim));
    s.v_bytes = times(s.entries_kv, room_of(p->v.dtype, s.dim_v));
    return s;
}

/* values_at relies on this: in a shard values lie behind keys, and dv lies behind dk. */
static int64_t values_at(const ring_shape *s, int64_t length)
{
    return aligned(times(s->k_bytes, length));
}

static int64_t shard_bytes(const ring_shape *s, int64_t length)
{
    return plus(values_at(s, length), aligned(times(s->v_bytes, length)));
}

static int64_t dv_at(const ring_shape *s, int64_t length)
{
    return times(times(s->entries_kv, s->dim), length);
}

static int64_t gift_floats(const ring_shape *s, int64_t length)
{
    return whole_lines(plus(dv_at(s, length), times(times(s->entries_kv, s->dim_v), length)));
}

static void plan_lengths(ring_plan *pl)
{
    const ring_share own = share_of(&pl->cuts, pl->rank);
    int rank;
    pl->length = own.length;
    pl->row_range = own.longest;
    for (rank = 0; rank < pl->cuts.ranks; rank++) {
        const ring_share share = share_of(&pl->cuts, rank);
        pl->longest = max64(pl->longest, share.length);
        pl->key_range = max64(pl->key_range, share.longest);
        pl->entry_count += nodes_of_rank(&pl->cuts, rank);
    }
}

/* forward_part_bytes sizes the largest part of a forward call, as any shorter one works in its
 * workspace. Without kv_begin the first keys are as many as any others. */
OWN_FRAME static attn_status forward_part_bytes(const attn_params *p, const ring_cut *c, int rank,
                                                size_t *bytes)
{
    attn_params part = *p;
    attn_status status;
    size_t need;
    int r;
    part.part.rows = 1;
    part.part.row_count = share_of(c, rank).longest;
    part.part.keys = !c->ring->gather;
    for (r = 0; part.part.keys && r < c->ranks; r++)
        part.part.key_count = max64(part.part.key_count, share_of(c, r).longest);
    part.partial = 1;
    part.kv_begin = NULL;
    part.logits.data = NULL;
    status = attn_workspace_size(&part, bytes);
    if (status || !p->logits.data)
        return status;
    part.partial = 0;
    part.o.data = part.lse.data = part.stats.data = NULL;
    part.logits = p->logits;
    if (!part.logits.rows)
        part.logits.num_rows = min64(part.logits.num_rows, part.part.row_count);
    status = attn_workspace_size(&part, &need);
    *bytes = need > *bytes ? need : *bytes;
    return status;
}

/* Every part gives dq, dk and dv, in f32. */
static attn_status gradients_bytes(const attn_params *p, const attn_gradients *g, size_t *bytes)
{
    attn_gradients all;
    size_t need;
    attn_status status;
    memset(&all, 0, sizeof all);
    all.gemms = g->gemms;
    all.dlse.data = g->dlse.data;
    all.score_derivative = g->score_derivative;
    all.dbias = g->dbias;
    all.dsinks = g->dsinks;
    all.dslopes = g->dslopes;
    all.dq.data = all.dk.data = all.dv.data = bytes; /* They are not written. */
    status = attn_backward_workspace_size(p, &all, &need);
    *bytes = need > *bytes ? need : *bytes;
    return status;
}

/* next_keys sets the part's keys to the next range of any rank, or once to all where they are gathered. It
 * returns 0 after the last. */
static int next_keys(const ring_cut *c, int *rank, ring_walk *w, attn_part *part)
{
    if (c->ring->gather) {
        part->keys = 0;
        return !(*rank)++;
    }
    for (; *rank < c->ranks; ++*rank, memset(w, 0, sizeof *w))
        if (next_range(c, *rank, w)) {
            part->key_begin = w->range.begin;
            part->key_count = w->range.count;
            return 1;
        }
    return 0;
}

/* backward_part_bytes asks about all parts, as a shorter backward call may need more workspace.
 * Without lengths, parts of equal counts have equal needs. */
OWN_FRAME static attn_status backward_part_bytes(const attn_params *p, const attn_gradients *g,
                                                 const ring_cut *c, int own, size_t *bytes)
{
    const int lengths = p->q_len || p->kv_len || p->kv_begin;
    attn_params part = *p;
    attn_status status;
    ring_walk rows = { 0 };
    int64_t row_count = -1, key_count = -1;
    part.part.rows = part.part.keys = 1;
    part.logits.data = NULL;
    status = gradients_bytes(&part, g, bytes); /* A rank without rows checks the fields, too. */
    while (!status && next_range(c, own, &rows)) {
        ring_walk keys = { 0 };
        int rank = 0;
        part.part.row_begin = rows.range.begin;
        part.part.row_count = rows.range.count;
        part.part.keys = 1;
        part.part.key_begin = part.part.key_count = 0; /* dsinks come from a part of no keys. */
        status = gradients_bytes(&part, g, bytes);
        while (!status && next_keys(c, &rank, &keys, &part.part)) {
            if (!lengths && part.part.row_count == row_count && part.part.key_count == key_count)
                continue;
            status = gradients_bytes(&part, g, bytes);
            row_count = part.part.row_count;
            key_count = part.part.key_count;
        }
    }
    return status;
}

/* place_gathered makes room for all keys and values. */
static int64_t place_gathered(ring_plan *pl)
{
    const int gather = pl->cuts.ring->gather;
    return place(&pl->bytes, gather ? shard_bytes(&pl->shape, pl->cuts.length) : 0, 1);
}

static void plan_ring_forward(const attn_params *p, ring_plan *pl)
{
    const ring_shape *s = &pl->shape;
    const int lists_rows = p->logits.data && !p->logits.rows;
    pl->rows = times(s->entries_q, pl->length);
    pl->slot_floats = whole_lines(times(pl->rows, plus(s->dim_v, 2)));
    pl->slots = states_at_once(&pl->cuts, pl->rank);
    pl->entries = place(&pl->bytes, pl->entry_count, sizeof(ring_entry));
    pl->used = place(&pl->bytes, pl->slots, 1);
    pl->buffer[0] = place(&pl->bytes, shard_bytes(s, pl->longest), 1);
    pl->buffer[1] = place(&pl->bytes, pl->cuts.ranks > 1 ? shard_bytes(s, pl->longest) : 0, 1);
    pl->states = place(&pl->bytes, times(pl->slots, pl->slot_floats), sizeof(float));
    pl->gathered = place_gathered(pl);
    pl->logit_rows = place(&pl->bytes, lists_rows ? pl->length : 0, sizeof(int32_t));
}

/* bias_of_rows gives the packed axes of dbias of `rows` rows. */
static attn_sum_axes bias_of_rows(const attn_params *p, const attn_gradients *g, int64_t rows)
{
    static const ptrdiff_t packed[4] = { 0, 0, 0, 0 };
    const ptrdiff_t of_bias[4] = { p->bias.stride_batch, p->bias.stride_head, p->bias.stride_q,
                                   p->bias.stride_kv };
    attn_sum_axes a = { .data = g->dbias.data,
                        .count = { p->batch, p->num_heads_q, rows, p->seq_len_kv } };
    int axis;
    for (axis = 0; axis < 4; axis++)
        a.kept[axis] = of_bias[axis] != ATTN_STRIDE_BROADCAST;
    pack_axes(&a, packed);
    return a;
}

static int64_t floats_of_bias(const attn_sum_axes *a)
{
    return a->data ? times(times(a->count[0], a->count[1]), times(a->count[2], a->count[3])) : 0;
}

/* keeps_pairs tells whether an element of dbias sums no rows and no keys, so that one part has all of it. */
static int keeps_pairs(const attn_sum_axes *bias)
{
    return bias->kept[ATTN_AXIS_ROW] && bias->kept[ATTN_AXIS_KEY];
}

static void plan_sums(const attn_params *p, const attn_gradients *g, ring_plan *pl)
{
    const int64_t sets = p->alibi_stride == ATTN_STRIDE_BROADCAST ? 1 : p->batch;
    const attn_sum_axes of_part = bias_of_rows(p, g, pl->row_range);
    int64_t floats;
    pl->sink_floats = g->dsinks ? p->num_heads_q : 0;
    pl->slope_floats = g->dslopes ? times(sets, p->num_heads_q) : 0;
    pl->bias = bias_of_rows(p, g, pl->length);
    floats = plus(pl->sink_floats, pl->slope_floats);
    pl->sum_floats = plus(floats, floats_of_bias(&pl->bias));
    pl->shared_floats = pl->bias.kept[ATTN_AXIS_ROW] ? floats : pl->sum_floats;
    pl->sums = place(&pl->bytes, pl->sum_floats, sizeof(float));
    pl->arrived = place(&pl->bytes, pl->shared_floats, sizeof(float));
    pl->part_sums = place(&pl->bytes, max64(pl->sink_floats, pl->slope_floats), sizeof(float));
    pl->part_bias =
        place(&pl->bytes, keeps_pairs(&of_part) ? 0 : floats_of_bias(&of_part), sizeof(float));
}

static void plan_ring_backward(const attn_params *p, const attn_gradients *g, ring_plan *pl)
{
    const ring_shape *s = &pl->shape;
    const int gather = pl->cuts.ring->gather; /* Then gradients travel after the keys. */
    const int64_t shard = shard_bytes(s, pl->longest), gift = gift_floats(s, pl->longest);
    const int64_t gift_room = times(gift, sizeof(float));
    const int64_t message = gather ? max64(shard, gift_room) : plus(shard, gift_room);
    const int64_t keys = gather ? pl->cuts.length : pl->key_range; /* of a part */
    const int64_t row_floats = times(s->entries_q, s->dim);
    pl->buffer[0] = place(&pl->bytes, message, 1);
    pl->buffer[1] = place(&pl->bytes, message, 1);
    pl->gathered = place_gathered(pl);
    pl->gift = place(&pl->bytes, gather ? gift_floats(s, keys) : gift, sizeof(float));
    pl->dq = place(&pl->bytes, times(row_floats, pl->length), sizeof(float));
    pl->part_dq = place(&pl->bytes, times(row_floats, pl->row_range), sizeof(float));
    pl->part_keys = place(&pl->bytes, gift_floats(s, keys), sizeof(float));
    plan_sums(p, g, pl);
}

/* size_of_parts sizes the workspace of the parts. */
static attn_status size_of_parts(const attn_params *p, const attn_gradients *g,
                                 const attn_ring *ring, size_t *bytes)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    *bytes = 0;
    return g ? backward_part_bytes(p, g, &c, ring->transport->rank, bytes)
             : forward_part_bytes(p, &c, ring->transport->rank, bytes);
}

/* plan_ring gives the parts `work` bytes. */
static void plan_ring(const attn_params *p, const attn_gradients *g, const attn_ring *ring,
                      size_t work, ring_plan *pl)
{
    memset(pl, 0, sizeof *pl);
    pl->rank = ring->transport->rank;
    pl->cuts = cut_of(p, ring, ring->transport->size);
    pl->shape = shape_of(p);
    plan_lengths(pl);
    pl->work_bytes = work > (size_t)ADDRESS_LIMIT ? TOO_BIG : (int64_t)work;
    pl->bytes = RING_HEAD;
    if (g)
        plan_ring_backward(p, g, pl);
    else
        plan_ring_forward(p, pl);
    pl->work = place(&pl->bytes, pl->work_bytes, 1);
    pl->bytes = plus(pl->bytes, ALIGNMENT - 1); /* The workspace may begin anywhere. */
}

OWN_FRAME static int64_t planned_bytes(const attn_params *p, const attn_gradients *g,
                                       const attn_ring *ring, size_t work)
{
    ring_plan pl;
    plan_ring(p, g, ring, work, &pl);
    return pl.bytes;
}

/* ring_bytes counts the bytes of workspace that a call needs. */
static attn_status ring_bytes(const attn_params *p, const attn_gradients *g, const attn_ring *ring,
                              int64_t *bytes)
{
    size_t work;
    const attn_status status = size_of_parts(p, g, ring, &work);
    *bytes = status ? 0 : planned_bytes(p, g, ring, work);
    return !status && *bytes >= ADDRESS_LIMIT ? ATTN_ERR_OVERFLOW : status;
}

OWN_FRAME static int64_t own_length(const attn_params *p, const attn_ring *ring)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    return share_of(&c, ring->transport->rank).length;
}

/* check_ring_memory wants the workspace to lie apart, in a call that has passed its checks. */
OWN_FRAME static attn_status check_ring_memory(const attn_params *p, const attn_gradients *g,
                                               const attn_ring *ring, int64_t length,
                                               const area *memory, text *why)
{
    attn_gradients resolved;
    problem pr;
    take_local(&pr.p, p, ring, length);
    validate(&pr.p, &pr, 0, why);
    if (!g)
        return check_call_apart(&pr.p, memory, why);
    resolved = *g;
    resolve_gradients(&pr.p, &resolved, why);
    return check_gradients_apart(&pr.p, &resolved, memory, why);
}

/* check_ring checks everything that can be wrong on one rank. */
OWN_FRAME static attn_status check_ring(const attn_params *p, const attn_gradients *g,
                                        int gradients, const attn_ring *ring, const void *workspace,
                                        size_t bytes, text *why)
{
    const int64_t have = bytes_given(workspace, bytes);
    int64_t need, length;
    area a;
    attn_status status = check_query(p, g, gradients, ring, why);
    if (status)
        return status;
    length = own_length(p, ring);
    status = check_tensors_held(p, g, ring, length, 0, why);
    if (status)
        return status;
    status = ring_bytes(p, g, ring, &need);
    if (status == ATTN_ERR_OVERFLOW)
        return bad_field(why, status, "seq_len_kv", p->seq_len_kv,
                         ": the workspace of a ring would exceed the address space");
    if (!status && have < need)
        status = too_small(why, have, need,
                           g ? "attn_ring_backward_workspace_size" : "attn_ring_workspace_size");
    a = area_of_bytes("the workspace", workspace, status ? 0 : need);
    return status ? status : check_ring_memory(p, g, ring, length, &a, why);
}
