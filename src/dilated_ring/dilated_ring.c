/* src/dilated_ring/dilated_ring.c - dilated attention over ranks: runs travel, then each rank computes its rows.
 * SPDX-License-Identifier: MIT
 *
 * Message `hop` of a rank holds its runs that ranks at least `hop` ranks away need, each as keys and then
 * values. A rank keeps in panels what its rows see, and passes on what must go further.
 */
#pragma once

#include "plan.c"

/* ---- runs */

/* pack_run copies rows of a run from this rank's own tensor. */
static void pack_run(const dilated_ring *r, const attn_tensor *t, int64_t bytes,
                     const shared_run *run, char *to)
{
    const int64_t first = run->position - range_of(&r->c, r->c.rank).begin;
    const int64_t entry =
        run->b * stride_or(t->stride_batch, 0) + run->kv_head * stride_or(t->stride_head, 0);
    int64_t i;
    for (i = 0; i < run->count; i++)
        memcpy(to + i * bytes,
               (const char *)input_at(t, first + i * run->dilation) +
                   bytes_between(t->dtype, entry),
               (size_t)bytes);
}

/* panel_of_run gives where a run begins in the panels at `panels`. */
static char *panel_of_run(const dilated_ring *r, int64_t panels, int64_t bytes,
                          const shared_run *run)
{
    const int64_t panel = panel_at(&r->c, run->n, run->b, run->kv_head, run->class, run->number);
    return r->base + panels + (panel + run->key) * bytes;
}

static void start_rows(dilated_ring *r, const attn_tensor *t, int64_t panels, int64_t bytes,
                       const shared_run *run)
{
    if (run->number >= 0)
        pack_run(r, t, bytes, run, panel_of_run(r, panels, bytes, run));
    if (run->hops > 0) {
        pack_run(r, t, bytes, run, r->out);
        r->out += run->count * bytes;
    }
}

/* start_run takes a run of this rank's own. */
static void start_run(void *arg, const shared_run *run)
{
    dilated_ring *r = arg;
    start_rows(r, &r->own.k, r->pl.keys, k_row_bytes(&r->c), run);
    start_rows(r, &r->own.v, r->pl.values, v_row_bytes(&r->c), run);
}

static void pass_on_rows(dilated_ring *r, int64_t panels, int64_t bytes, const shared_run *run)
{
    const size_t n = (size_t)(run->count * bytes);
    if (run->number >= 0)
        memcpy(panel_of_run(r, panels, bytes, run), r->in, n);
    if (run->hops > r->hop) {
        memcpy(r->out, r->in, n);
        r->out += n;
    }
    r->in += n;
}

/* pass_on_run takes a run that has come `hop` ranks far. */
static void pass_on_run(void *arg, const shared_run *run)
{
    dilated_ring *r = arg;
    if (run->hops < r->hop)
        return;
    pass_on_rows(r, r->pl.keys, k_row_bytes(&r->c), run);
    pass_on_rows(r, r->pl.values, v_row_bytes(&r->c), run);
}

static ring_message message_of_hop(const dilated_ring *r, int hop)
{
    const ring_cut *cuts = &r->c.cuts;
    const ring_message m = { r->base + r->pl.sent, r->base + r->pl.received,
                             message_bytes(&r->c, source_at(cuts, r->c.rank, hop - 1), hop),
                             message_bytes(&r->c, source_at(cuts, r->c.rank, hop), hop) };
    return m;
}

static attn_status exchange_runs(dilated_ring *r)
{
    attn_status status = ATTN_OK;
    r->out = r->base + r->pl.sent;
    each_run(&r->c, r->c.rank, start_run, r);
    for (r->hop = 1; r->hop <= r->pl.hops; r->hop++) {
        const ring_message m = message_of_hop(r, r->hop);
        status = begin_exchange(r->t, r->stats, &m, status);
        if (status)
            return status;
        status = end_exchange(r->t, r->stats, status);
        r->in = m.receive;
        r->out = r->base + r->pl.sent;
        if (!status)
            each_run(&r->c, source_at(&r->c.cuts, r->c.rank, r->hop), pass_on_run, r);
    }
    return agree_on_status(r->t, r->stats, status);
}

/* ---- the computation */

static attn_tensor panel_tensor(const attn_tensor *t, const char *panel, int64_t dim)
{
    const attn_tensor packed = { .dtype = t->dtype,
                                 .stride_batch = ATTN_STRIDE_BROADCAST,
                                 .stride_head = ATTN_STRIDE_BROADCAST,
                                 .stride_seq = (ptrdiff_t)dim,
                                 .data = panel };
    return packed;
}

/* open_shared_keys lets a call of a shared segment read its panel. */
static void open_shared_keys(dilated_slot *w)
{
    const dilated_ring *r = w->run->ranks;
    const dilated_cut *c = &r->c;
    const int64_t positions = sequence_of(c->p, w->s.b).kv_len, begin = w->at.first - w->l.first;
    const lattice l = lattice_of(&c->d->branches[w->n], w->of.head, positions);
    const int number = shared_number(c, c->rank, &l, positions, begin, begin);
    int64_t panel;
    if (number < 0) {
        open_own_keys(w);
        return;
    }
    panel = panel_at(c, w->n, w->s.b, w->kv_head, w->class, number);
    w->p.k = panel_tensor(&c->p->k, r->base + r->pl.keys + panel * k_row_bytes(c), c->shape.dim);
    w->p.v =
        panel_tensor(&c->p->v, r->base + r->pl.values + panel * v_row_bytes(c), c->shape.dim_v);
}

static attn_status compute_own_rows(dilated_ring *r)
{
    const attn_ring_range own = range_of(&r->c, r->c.rank);
    dilated_run *run;
    if (!r->pl.lay.slot_bytes)
        return ATTN_OK;
    run = open_run(&r->own, r->c.d, &r->pl.lay, r->base + r->pl.run, (size_t)r->pl.run_bytes);
    run->begin = own.begin;
    run->end = own.begin + own.count;
    run->open_keys = open_shared_keys;
    run->ranks = r;
    return run_list(run, strided_item);
}

/* ---- public functions */

static uint32_t mix_branches(uint32_t hash, const attn_dilated *d)
{
    int n;
    hash = mix_in(mix_in(hash, d->merge), d->num_branches);
    for (n = 0; n < d->num_branches; n++) {
        const attn_dilated_branch *branch = &d->branches[n];
        hash = mix_in(mix_in(hash, branch->rotate != 0), branch->segment);
        hash = mix_in(mix_in(hash, branch->dilation), branch->offset);
        hash = mix_in(mix_in(hash, branch->head_begin), branch->head_count);
    }
    return hash;
}

static dilated_ring *open_dilated_ring(const attn_params *p, const attn_dilated *d,
                                       const attn_ring *ring, const dilated_ring_plan *pl,
                                       attn_ring_stats *stats, void *workspace)
{
    char *base = align_memory(workspace);
    dilated_ring *r = (dilated_ring *)(void *)base;
    memset(r, 0, sizeof *r);
    r->own = *p;
    resolve_own(&r->own, own_length(p, ring));
    r->c = dilated_cut_of(&r->own, d, ring);
    r->pl = *pl;
    r->base = base;
    r->t = ring->transport;
    r->stats = stats;
    stats->canonical = 1;
    return r;
}

ATTN_API attn_status attn_dilated_ring_forward(const attn_params *p, const attn_dilated *d,
                                               const attn_ring *ring, void *workspace,
                                               size_t workspace_bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_transport(ring, &why);
    attn_ring_stats stats;
    dilated_ring_plan pl;
    if (status)
        return status;
    memset(&stats, 0, sizeof stats);
    stats.failed_rank = -1;
    status = check_dilated_ring(p, d, ring, workspace, workspace_bytes, &pl, &why);
    status = agree_on_status(ring->transport, &stats, status);
    if (!status)
        status = agree_on_call(ring->transport, &stats,
                               mix_branches(call_hash(p, 0, ring, ring->transport->size), d));
    if (!status) {
        dilated_ring *r = open_dilated_ring(p, d, ring, &pl, &stats, workspace);
        status = exchange_runs(r);
        if (!status)
            status = agree_on_status(ring->transport, &stats, compute_own_rows(r));
    }
    if (ring->stats)
        *ring->stats = stats;
    return status;
}

ATTN_API attn_status attn_dilated_ring_workspace_size(const attn_params *p, const attn_dilated *d,
                                                      const attn_ring *ring, size_t *bytes)
{
    text why = text_in(NULL, 0);
    dilated_ring_plan pl;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_dilated_query(p, d, ring, &pl, &why);
    *bytes = status ? 0 : (size_t)pl.bytes;
    return status;
}

ATTN_API const char *attn_dilated_ring_check(const attn_params *p, const attn_dilated *d,
                                             const attn_ring *ring, const void *workspace,
                                             size_t workspace_bytes, char *buffer,
                                             size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    dilated_ring_plan pl;
    return verdict(check_dilated_ring(p, d, ring, workspace, workspace_bytes, &pl, &why), buffer,
                   &why);
}
