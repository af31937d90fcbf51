/* src/dilated_ring/plan.c - the plan of a rank of dilated attention, and what can be wrong with the call.
 * SPDX-License-Identifier: MIT
 *
 *     workspace = | alignment | dilated_ring | panels | computed rows | messages, then the run of attn_dilated |
 *
 * A panel is the keys, or values, of one shared segment that take part, for one class of heads of a kv
 * head. Panels lie in the order: branch, batch entry, kv head, class, number of the segment. Gradients
 * have panels of rows, too: those of q, dout and so on, each row with all heads of the class.
 */
#pragma once

#include "shared.c"

/* Keys travel, and for gradients rows do. */
enum { BY_KEYS, BY_ROWS, SIDES };

/* What travels of a key, and of a row. Sums are statistics, or the LSE. */
enum { KEY_K, KEY_V, KEY_ARRAYS };
enum { ROW_Q, ROW_DOUT, ROW_O, ROW_SUMS, ROW_DLSE, MOST_CARRIED };

/* A carried is a tensor of which positions travel. */
typedef struct carried {
    attn_tensor from;
    int64_t dim, bytes; /* bytes are those of dim elements. */
    /* A tensor that the rank computes has `computed` bytes, and one for each branch `branch` each. */
    int64_t computed, branch;
} carried;

/* A dilated_side is what travels, and how ranks share it. */
typedef struct dilated_side {
    dilated_cut c;
    int count;
    carried of[MOST_CARRIED];
} dilated_side;

typedef struct side_plan {
    int hops; /* hops counts the exchanges. */
    int64_t panels[MOST_CARRIED];
} side_plan;

typedef struct dilated_ring_plan {
    dilated_layout lay; /* lay is that of this rank's rows. */
    side_plan side[SIDES];
    int64_t computed[MOST_CARRIED]; /* These are tensors of rows. */
    int64_t sent, received, run, run_bytes, bytes;
} dilated_ring_plan;

/* A dilated_ring is one call on one rank, and stands at the beginning of its workspace. */
typedef struct dilated_ring {
    attn_params own; /* own and own_g have the rank's tensors with explicit strides. */
    attn_gradients own_g;
    dilated_side side[SIDES];
    int sides; /* sides is 1 without gradients. */
    dilated_ring_plan pl;
    const attn_transport *t;
    attn_ring_stats *stats;
    char *base; /* The plan's offsets count from base. */
    const char *in;
    char *out;      /* Runs are read at in and written at out. */
    int under, hop; /* Side `under` is under way. */
} dilated_ring;

#define DILATED_RING_HEAD aligned((int64_t)sizeof(dilated_ring))

/* A panel_shape holds sizes of the panels of a branch on this rank. A shorter sequence shares no other
 * segments than the whole one, and none longer. */
typedef struct panel_shape {
    int64_t segments, classes, rows; /* rows counts those of all heads, or keys. */
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
        s.rows = times(ceil_div(max64(shared[0].count, shared[s.segments - 1].count), l.dilation),
                       c->by_rows ? class_heads(branch, c->group) : 1);
    return s;
}

/* rows_of_branches counts the rows of the panels of the first n branches. */
static int64_t rows_of_branches(const dilated_cut *c, int n)
{
    int64_t rows = 0;
    while (n-- > 0) {
        const panel_shape s = panel_shape_of(c, n);
        rows = plus(rows, times(c->shape.entries_kv, times(s.segments * s.classes, s.rows)));
    }
    return rows;
}

/* panel_at counts the rows before a panel. */
static int64_t panel_at(const dilated_cut *c, int n, int64_t b, int64_t kv_head, int64_t class,
                        int number)
{
    const panel_shape s = panel_shape_of(c, n);
    const int64_t entry = (b * c->heads_kv + kv_head) * s.classes + class;
    return rows_of_branches(c, n) + (entry * s.segments + number) * s.rows;
}

static void carry_tensor(dilated_side *s, const attn_tensor *t, int64_t dim)
{
    carried *x = &s->of[s->count++];
    x->from = *t;
    x->dim = dim;
    x->bytes = room_of(t->dtype, dim);
}

/* carry_computed carries rows that this rank computes as f32, packed; each of `branches` has its own. */
static void carry_computed(dilated_side *s, int64_t dim, int branches)
{
    const int64_t length = range_of(&s->c, s->c.rank).count, heads = s->c.p->num_heads_q;
    const int64_t row = times(dim, sizeof(float));
    const attn_tensor packed = { .stride_seq = (ptrdiff_t)dim,
                                 .stride_head = to_stride(times(length, dim)),
                                 .stride_batch = to_stride(times(heads, times(length, dim))) };
    carried *x = &s->of[s->count];
    carry_tensor(s, &packed, dim);
    x->branch = times(row, times(s->c.shape.entries_q, length));
    x->computed = times(branches, x->branch);
    if (branches == 1)
        x->branch = 0;
}

/* With a mean each branch has an o and statistics of its own, and all have one share of dout. */
static void carry_rows_of_mean(dilated_side *s)
{
    const attn_dilated *d = s->c.d;
    carry_tensor(s, &s->c.p->q, s->c.shape.dim);
    carry_computed(s, s->c.shape.dim_v, 1);
    carry_computed(s, s->c.shape.dim_v, d->num_branches);
    carry_computed(s, 2, d->num_branches);
}

static void carry_rows(dilated_side *s, const attn_gradients *g)
{
    const attn_params *p = s->c.p;
    const ring_shape *shape = &s->c.shape;
    const attn_tensor o = as_tensor(&p->o);
    const attn_tensor sums = as_tensor(p->stats.data ? &p->stats : &p->lse);
    carry_tensor(s, &p->q, shape->dim);
    carry_tensor(s, &g->dout, shape->dim_v);
    carry_tensor(s, &o, shape->dim_v);
    carry_tensor(s, &sums, p->stats.data ? 2 : 1);
    if (g->dlse.data)
        carry_tensor(s, &g->dlse, 1);
}

/* open_sides tells what travels, and returns the number of sides. */
static int open_sides(const attn_params *p, const attn_dilated *d, const attn_gradients *g,
                      const attn_ring *ring, dilated_side side[SIDES])
{
    memset(side, 0, SIDES * sizeof *side);
    side[BY_KEYS].c = side[BY_ROWS].c = dilated_cut_of(p, d, ring);
    side[BY_ROWS].c.by_rows = 1;
    carry_tensor(&side[BY_KEYS], &p->k, side->c.shape.dim);
    carry_tensor(&side[BY_KEYS], &p->v, side->c.shape.dim_v);
    if (g && d->merge == ATTN_DILATED_MEAN)
        carry_rows_of_mean(&side[BY_ROWS]);
    else if (g)
        carry_rows(&side[BY_ROWS], g);
    return g ? SIDES : 1;
}

/* bytes_carried counts those of a row of all arrays. */
static int64_t bytes_carried(const dilated_side *s)
{
    int64_t bytes = 0;
    int i;
    for (i = 0; i < s->count; i++)
        bytes = plus(bytes, s->of[i].bytes);
    return bytes;
}

/* A message_size counts what goes `hop` ranks far, and the furthest way of all. */
typedef struct message_size {
    int hop, furthest;
    int64_t rows;
} message_size;

static void count_run(void *arg, const shared_run *run)
{
    message_size *m = arg;
    m->furthest = run->hops > m->furthest ? run->hops : m->furthest;
    if (run->hops >= m->hop)
        m->rows = plus(m->rows, times(run->count, run->of.heads));
}

/* message_bytes counts the bytes of what rank `source` has for ranks at least `hop` ranks away. */
static int64_t message_bytes(const dilated_side *s, int source, int hop)
{
    message_size m = { hop, 0, 0 };
    each_run(&s->c, source, count_run, &m);
    return times(m.rows, bytes_carried(s));
}

static int furthest_hop(const dilated_cut *c)
{
    message_size m = { 0, 0, 0 };
    int source;
    for (source = 0; source < c->cuts.ranks; source++)
        each_run(c, source, count_run, &m);
    return m.furthest;
}

/* plan_side places the panels and returns the bytes of the largest message. */
static int64_t plan_side(const dilated_side *s, side_plan *pl, int64_t *at)
{
    const dilated_cut *c = &s->c;
    const int64_t rows = rows_of_branches(c, c->d->num_branches);
    int64_t most = 0;
    int i, hop;
    pl->hops = furthest_hop(c);
    for (i = 0; i < s->count; i++)
        pl->panels[i] = place(at, times(rows, s->of[i].bytes), 1);
    for (hop = 0; hop <= pl->hops; hop++) /* What is passed on is part of what has come. */
        most = max64(most, message_bytes(s, source_at(&c->cuts, c->rank, hop), hop + !hop));
    return most;
}

OWN_FRAME static void plan_dilated_ring(const attn_params *p, const attn_dilated *d,
                                        const attn_gradients *g, const attn_ring *ring,
                                        dilated_ring_plan *pl)
{
    dilated_side side[SIDES];
    const int sides = open_sides(p, d, g, ring, side);
    int64_t most = 0, end;
    int i;
    pl->bytes = DILATED_RING_HEAD;
    for (i = 0; i < sides; i++)
        most = max64(most, plan_side(&side[i], &pl->side[i], &pl->bytes));
    for (i = 0; i < side[BY_ROWS].count; i++)
        pl->computed[i] = place(&pl->bytes, side[BY_ROWS].of[i].computed, 1);
    pl->run = end = pl->bytes;
    pl->sent = place(&end, most, 1);
    pl->received = place(&end, pl->side[BY_KEYS].hops + pl->side[BY_ROWS].hops ? most : 0, 1);
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
                                          const attn_gradients *g, const attn_ring *ring, text *why)
{
    if (g && (g->dbias.data || g->dsinks || g->dslopes))
        return bad(
            why, ATTN_ERR_UNSUPPORTED,
            "dbias, dsinks and dslopes are not built for branches over ranks: leave them NULL");
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
                                             const attn_gradients *g, const attn_ring *ring,
                                             outline *out, text *why)
{
    attn_gradients resolved;
    problem pr;
    attn_status status = g ? validate_gradients(p, d, g, 0, &pr, &resolved, why)
                           : validate_dilated(p, d, 0, &pr, why);
    if (!status)
        status = check_rows_are_keys(&pr.p, why);
    if (status)
        return status;
    fill_outline(&pr, out);
    out->rows = out->keys = own_length(p, ring);
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

/* plan_own_gradients plans calls of segments that lie in this rank, and then calls of shared ones, which
 * see more rows or keys than the rank has, but are asked for dq alone or for dk and dv. */
static attn_status plan_own_gradients(const attn_params *p, const attn_dilated *d,
                                      const attn_gradients *g, outline *out, dilated_layout *lay,
                                      text *why)
{
    const int64_t positions = out->positions;
    attn_gradients by_parts = *g;
    attn_status status;
    by_parts.gemms = 7;
    plan_sum_grads(d, out, g, lay);
    out->positions = out->rows;
    status = plan_backward_calls(p, d, out, g, lay, why);
    out->positions = out->rows = positions;
    return status ? status : plan_backward_calls(p, d, out, &by_parts, lay, why);
}

/* check_dilated_query checks what a size depends on, and plans. A forward call has no g, and
 * `gradients` tells which of the two calls it is. */
static attn_status check_dilated_query(const attn_params *p, const attn_dilated *d,
                                       const attn_gradients *g, int gradients,
                                       const attn_ring *ring, dilated_ring_plan *pl, text *why)
{
    outline out;
    attn_status status = check_query(p, g, gradients, ring, why);
    memset(pl, 0, sizeof *pl);
    if (!status)
        status = check_one_range(p, ring, why);
    if (!status)
        status = check_ring_of_branches(p, d, g, ring, why);
    if (!status)
        status = outline_of_rank(p, d, g, ring, &out, why);
    if (!status && !out.empty)
        status = g ? plan_own_gradients(p, d, g, &out, &pl->lay, why)
                   : plan_own_rows(p, d, &out, &pl->lay, why);
    if (status)
        return status;
    plan_dilated_ring(p, d, g, ring, pl);
    if (pl->bytes >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    return ATTN_OK;
}

/* check_dilated_ring checks everything that can be wrong on one rank. */
static attn_status check_dilated_ring(const attn_params *p, const attn_dilated *d,
                                      const attn_gradients *g, int gradients, const attn_ring *ring,
                                      const void *workspace, size_t bytes, dilated_ring_plan *pl,
                                      text *why)
{
    const int64_t have = bytes_given(workspace, bytes);
    int64_t length;
    area a;
    attn_status status = check_dilated_query(p, d, g, gradients, ring, pl, why);
    if (status)
        return status;
    length = own_length(p, ring);
    status = check_tensors_held(p, g, ring, length, d->merge == ATTN_DILATED_MEAN, why);
    if (!status && have < pl->bytes)
        status = too_small(why, have, pl->bytes,
                           g ? "attn_dilated_ring_backward_workspace_size"
                             : "attn_dilated_ring_workspace_size");
    a = area_of_bytes("the workspace", workspace, status ? 0 : pl->bytes);
    return status ? status : check_ring_memory(p, g, ring, length, &a, why);
}
