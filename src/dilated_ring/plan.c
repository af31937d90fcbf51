/* src/dilated_ring/plan.c - the plan of a rank of dilated attention, and what can be wrong with the call.
 * SPDX-License-Identifier: MIT
 *
 *     workspace = | alignment | dilated_ring | keys | values | messages, then the run of attn_dilated |
 *
 * A panel is the keys, or values, of one shared segment that take part, for one class of heads of a kv
 * head. Panels lie in the order: branch, batch entry, kv head, class, number of the segment.
 */
#pragma once

#include "shared.c"

typedef struct dilated_ring_plan {
    dilated_layout lay; /* lay is that of this rank's rows. */
    int hops;           /* hops counts the exchanges. */
    int64_t keys, values, sent, received, run, run_bytes, bytes;
} dilated_ring_plan;

/* A dilated_ring is one call on one rank, and stands at the beginning of its workspace. */
typedef struct dilated_ring {
    attn_params own; /* own has the rank's tensors with explicit strides. */
    dilated_cut c;
    dilated_ring_plan pl;
    const attn_transport *t;
    attn_ring_stats *stats;
    char *base; /* The plan's offsets count from base. */
    const char *in;
    char *out; /* Runs are read at in and written at out. */
    int hop;
} dilated_ring;

#define DILATED_RING_HEAD aligned((int64_t)sizeof(dilated_ring))

/* A panel_shape holds sizes of the panels of a branch on this rank. A shorter sequence shares no other
 * segments than the whole one, and none longer. */
typedef struct panel_shape {
    int64_t segments, classes, keys;
} panel_shape;

static panel_shape panel_shape_of(const dilated_cut *c, int n)
{
    const attn_dilated_branch *branch = &c->d->branches[n];
    const lattice l = lattice_of(branch, 0, c->cuts.length);
    attn_ring_range shared[2];
    panel_shape s = { 0, 0, 0 };
    s.segments = shared_segments(c, c->rank, &l, c->cuts.length, shared);
    s.classes = branch->rotate ? min64(l.dilation, c->group) : 1;
    if (s.segments)
        s.keys = ceil_div(max64(shared[0].count, shared[s.segments - 1].count), l.dilation);
    return s;
}

/* keys_of_branches counts the keys of the panels of the first n branches. */
static int64_t keys_of_branches(const dilated_cut *c, int n)
{
    int64_t keys = 0;
    while (n-- > 0) {
        const panel_shape s = panel_shape_of(c, n);
        keys = plus(keys, times(c->shape.entries_kv, times(s.segments * s.classes, s.keys)));
    }
    return keys;
}

/* panel_at counts the keys before a panel. */
static int64_t panel_at(const dilated_cut *c, int n, int64_t b, int64_t kv_head, int64_t class,
                        int number)
{
    const panel_shape s = panel_shape_of(c, n);
    const int64_t entry = (b * c->heads_kv + kv_head) * s.classes + class;
    return keys_of_branches(c, n) + (entry * s.segments + number) * s.keys;
}

static int64_t k_row_bytes(const dilated_cut *c)
{
    return room_of(c->p->k.dtype, c->shape.dim);
}

static int64_t v_row_bytes(const dilated_cut *c)
{
    return room_of(c->p->v.dtype, c->shape.dim_v);
}

/* A message_size counts what goes `hop` ranks far, and the furthest way of all. */
typedef struct message_size {
    int hop, furthest;
    int64_t keys;
} message_size;

static void count_run(void *arg, const shared_run *run)
{
    message_size *m = arg;
    m->furthest = run->hops > m->furthest ? run->hops : m->furthest;
    if (run->hops >= m->hop)
        m->keys = plus(m->keys, run->count);
}

/* message_bytes counts the bytes of what rank `source` has for ranks at least `hop` ranks away. */
static int64_t message_bytes(const dilated_cut *c, int source, int hop)
{
    message_size m = { hop, 0, 0 };
    each_run(c, source, count_run, &m);
    return times(m.keys, k_row_bytes(c) + v_row_bytes(c));
}

static int furthest_hop(const dilated_cut *c)
{
    message_size m = { 0, 0, 0 };
    int source;
    for (source = 0; source < c->cuts.ranks; source++)
        each_run(c, source, count_run, &m);
    return m.furthest;
}

static void plan_dilated_ring(const dilated_cut *c, dilated_ring_plan *pl)
{
    const int64_t keys = keys_of_branches(c, c->d->num_branches);
    int64_t most = 0, end;
    int hop;
    pl->hops = furthest_hop(c);
    for (hop = 0; hop <= pl->hops; hop++) /* What is passed on is part of what has come. */
        most = max64(most, message_bytes(c, source_at(&c->cuts, c->rank, hop), hop + !hop));
    pl->bytes = DILATED_RING_HEAD;
    pl->keys = place(&pl->bytes, times(keys, k_row_bytes(c)), 1);
    pl->values = place(&pl->bytes, times(keys, v_row_bytes(c)), 1);
    pl->run = end = pl->bytes;
    pl->sent = place(&end, most, 1);
    pl->received = place(&end, pl->hops ? most : 0, 1);
    pl->run_bytes = dilated_bytes(&pl->lay, pl->lay.workers);
    pl->bytes = max64(end, plus(pl->run, pl->run_bytes));
    pl->bytes = plus(pl->bytes, ALIGNMENT - 1); /* The workspace may begin anywhere. */
}

/* ---- what can be wrong */

static attn_status check_one_range(const attn_params *p, const attn_ring *ring, text *why)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    int rank;
    for (rank = 0; rank < c.ranks; rank++)
        if (share_of(&c, rank).ranges > 1)
            return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.layout", ring->layout,
                             " gives a rank several ranges, and dilated attention takes one");
    return ATTN_OK;
}

/* check_ring_of_branches refuses what only a ring of whole attention takes. */
static attn_status check_ring_of_branches(const attn_params *p, const attn_dilated *d,
                                          const attn_ring *ring, text *why)
{
    if (p->kv_begin)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "kv_begin is set, but ranks of dilated attention cut rows and keys alike");
    if (p->prefix)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "prefix is set, but ranks gather only the keys up to their last row");
    if (ring->gather)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.gather", ring->gather,
                         " is set, but dilated attention always gathers what ranks share");
    if (ring->arrival)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.arrival", ring->arrival,
                         " is set, but dilated attention merges branches in their order");
    if (ring->fetch)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "ring.fetch is set, but dilated attention reads k.data and v.data");
    if (d && d->variant == ATTN_DILATED_GATHERED)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "variant", d->variant,
                         " (gathered) is not built for ranks: leave it 0 (strided)");
    return ATTN_OK;
}

static attn_status check_rows_are_keys(const attn_params *p, text *why)
{
    int64_t b;
    for (b = 0; b < kinds_of(p); b++) {
        const sequence s = sequence_of(p, b);
        if (s.q_len != s.kv_len)
            return bad_entry(why, "q_len", b, s.q_len,
                             " must be kv_len: over ranks every position is a row");
    }
    return ATTN_OK;
}

/* outline_of_rank makes *out the outline of this rank's rows. */
OWN_FRAME static attn_status outline_of_rank(const attn_params *p, const attn_dilated *d,
                                             const attn_ring *ring, outline *out, text *why)
{
    problem pr;
    attn_status status = validate_dilated(p, d, 0, &pr, why);
    if (!status)
        status = check_rows_are_keys(&pr.p, why);
    if (status)
        return status;
    fill_outline(&pr, out);
    out->rows = own_length(p, ring);
    out->gathered = 0;
    out->empty = p->batch == 0 || out->rows == 0;
    return status;
}

/* plan_own_rows plans the calls of this rank, whose keys lie where the caller has them or in panels. */
static attn_status plan_own_rows(const attn_params *p, const attn_dilated *d, outline *out,
                                 dilated_layout *lay, text *why)
{
    attn_status status = plan_dilated(p, d, out, lay, why);
    out->gathered = 1;
    if (!status)
        status = plan_inner(p, d, out, lay);
    return status;
}

/* check_dilated_query checks what a size depends on, and plans. */
static attn_status check_dilated_query(const attn_params *p, const attn_dilated *d,
                                       const attn_ring *ring, dilated_ring_plan *pl, text *why)
{
    outline out;
    dilated_cut c;
    attn_status status = check_query(p, NULL, 0, ring, why);
    memset(pl, 0, sizeof *pl);
    if (!status)
        status = check_one_range(p, ring, why);
    if (!status)
        status = check_ring_of_branches(p, d, ring, why);
    if (!status)
        status = outline_of_rank(p, d, ring, &out, why);
    if (!status && !out.empty)
        status = plan_own_rows(p, d, &out, &pl->lay, why);
    if (status)
        return status;
    c = dilated_cut_of(p, d, ring);
    plan_dilated_ring(&c, pl);
    if (pl->bytes >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    return ATTN_OK;
}

/* check_dilated_ring checks everything that can be wrong on one rank. */
static attn_status check_dilated_ring(const attn_params *p, const attn_dilated *d,
                                      const attn_ring *ring, const void *workspace, size_t bytes,
                                      dilated_ring_plan *pl, text *why)
{
    const int64_t have = bytes_given(workspace, bytes);
    int64_t length;
    area a;
    attn_status status = check_dilated_query(p, d, ring, pl, why);
    if (status)
        return status;
    length = own_length(p, ring);
    status = check_tensors_held(p, NULL, ring, length, why);
    if (!status && have < pl->bytes)
        status = too_small(why, have, pl->bytes, "attn_dilated_ring_workspace_size");
    a = area_of_bytes("the workspace", workspace, status ? 0 : pl->bytes);
    return status ? status : check_ring_memory(p, NULL, ring, length, &a, why);
}
