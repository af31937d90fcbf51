/* rings.c - a case divided among ranks: a thread each, with a transport within the process.
 * SPDX-License-Identifier: MIT */
#include "jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../examples/virtual_ranks.h"
#include "../machine/team.h"

/* The arrays that are divided; those from STATS on in a backward call. */
enum { Q, K, V, O, STATS, DOUT, DQ, DK, DV, ARRAYS };

/* Whether a call reads it, or writes it. */
static const int is_output[ARRAYS] = { [O] = 1, [DQ] = 1, [DK] = 1, [DV] = 1 };

/* One of the case's arrays, and the rank's part of it, packed [batch, heads, length, dim]. */
typedef struct part {
    char *whole; /* NULL = there is none */
    char *own;
    ptrdiff_t batch, head, row; /* strides of the whole, bytes */
    int64_t heads;
    size_t bytes; /* of a row */
} part;

struct rings_rank {
    rings_job *job;
    attn_params p;
    attn_gradients g;
    int backward;
    attn_ring_stats stats;
    attn_ring_range *ranges;
    int64_t num_ranges, length;
    part parts[ARRAYS];
    void *workspace;
    size_t workspace_bytes;
    attn_status status;
};

/* ---- what is asked for */

void rings_describe(const bench_case *c, const bench_path *path, int ranks,
                    const dilated_job *dilated, rings_job *job)
{
    enum { SHARD = 1024, STRIPES = 4 }; /* stripes: of a rank; of a zig-zag two */
    const int runs = path->ring == PATH_STRIPED ? STRIPES : 2;
    const int64_t fair = c->seq_kv / (runs * ranks);
    memset(job, 0, sizeof *job);
    job->c = c;
    job->dilated = dilated;
    if (path->ring == PATH_ONE_PROCESS)
        return;
    job->num_ranks = ranks;
    job->transport = c->ranks ? team_transport() : NULL;
    job->ring.gather = path->ring == PATH_GATHER;
    job->ring.layout = path->ring == PATH_ZIGZAG    ? ATTN_RING_ZIGZAG
                       : path->ring == PATH_STRIPED ? ATTN_RING_STRIPED
                                                    : ATTN_RING_CONTIGUOUS;
    job->ring.shard = fair < 1 ? 1 : fair < SHARD ? fair : SHARD;
}

int rings_possible(const rings_job *job, char *why, size_t why_bytes)
{
    const bench_case *const c = job->c;
    const char *reason = NULL;
    if (!job->transport && job->num_ranks > virtual_ranks_most())
        reason = "more ranks than a process has here";
    if (c->seq_q != c->seq_kv)
        reason = "a ring cuts rows and keys alike: as many of both";
    if (c->keys.kind != KEYS_PLAIN || c->appends)
        reason = "the bench has rings of plain arrays";
    if (c->dilated.branches && (job->ring.layout || job->ring.gather))
        reason = "branches are divided in runs: path ring";
    if (reason)
        snprintf(why, why_bytes, "%s", reason);
    return !reason;
}

/* A transport that queries look at and that nobody calls. */
static int agree_on_nothing(void *user, int value)
{
    (void)user, (void)value;
    return -1;
}

static int begin_nothing(void *user, const void *send, size_t send_bytes, void *receive,
                         size_t receive_bytes)
{
    (void)user, (void)send, (void)send_bytes, (void)receive, (void)receive_bytes;
    return 1;
}

static int end_nothing(void *user)
{
    (void)user;
    return 1;
}

static void cancel_nothing(void *user)
{
    (void)user;
}

static attn_transport query_of(const rings_job *job, int rank)
{
    const attn_transport t = { .size = job->num_ranks,
                               .rank = rank,
                               .agree = agree_on_nothing,
                               .begin = begin_nothing,
                               .end = end_nothing,
                               .cancel = cancel_nothing };
    return t;
}

/* What a rank's call is told. */
static attn_ring ring_of(const rings_job *job, const attn_transport *transport,
                         attn_ring_stats *stats)
{
    attn_ring ring = job->ring;
    ring.transport = transport;
    ring.stats = stats;
    return ring;
}

/* A rank that is a thread has no further ones. */
static attn_params params_of(const rings_job *job, const attn_params *p)
{
    attn_params own = *p;
    if (job->transport)
        return own;
    own.parallel_for = NULL;
    own.parallel_user = NULL;
    own.num_workers = 1;
    return own;
}

/* The branches of the case; NULL = it is dense. */
static const attn_dilated *branches_of(const rings_job *job)
{
    return job->dilated->d.num_branches ? &job->dilated->d : NULL;
}

static attn_status size_of_rank(const rings_job *job, const attn_params *p, const attn_gradients *g,
                                int rank, size_t *bytes)
{
    const attn_transport transport = query_of(job, rank);
    const attn_ring ring = ring_of(job, &transport, NULL);
    const attn_dilated *const d = branches_of(job);
    if (d)
        return g ? attn_dilated_ring_backward_workspace_size(p, d, g, &ring, bytes)
                 : attn_dilated_ring_workspace_size(p, d, &ring, bytes);
    return g ? attn_ring_backward_workspace_size(p, g, &ring, bytes)
             : attn_ring_workspace_size(p, &ring, bytes);
}

/* Why the call of rank 0 is refused. */
static void say_why(const rings_job *job, const attn_params *p, const attn_gradients *g, char *why,
                    size_t why_bytes)
{
    const attn_transport transport = query_of(job, 0);
    const attn_ring ring = ring_of(job, &transport, NULL);
    const attn_dilated *const d = branches_of(job);
    if (d && g)
        attn_dilated_ring_backward_check(p, d, g, &ring, NULL, 0, why, why_bytes);
    else if (d)
        attn_dilated_ring_check(p, d, &ring, NULL, 0, why, why_bytes);
    else if (g)
        attn_ring_backward_check(p, g, &ring, NULL, 0, why, why_bytes);
    else
        attn_ring_check(p, &ring, NULL, 0, why, why_bytes);
}

attn_status rings_size(rings_job *job, const attn_params *p, const attn_gradients *g, size_t *bytes,
                       char *why, size_t why_bytes)
{
    const attn_params own = params_of(job, p);
    const attn_transport transport = query_of(job, 0);
    const attn_ring ring = ring_of(job, &transport, NULL);
    attn_ring_info info;
    attn_status status = attn_ring_describe(&own, &ring, 0, &info);
    size_t one = 0;
    *bytes = 0;
    for (int rank = 0; status == ATTN_OK && rank < job->num_ranks; rank++) {
        status = size_of_rank(job, &own, g, rank, &one);
        *bytes += one;
    }
    job->canonical = status == ATTN_OK && (info.canonical || branches_of(job));
    if (status != ATTN_OK)
        say_why(job, &own, g, why, why_bytes);
    return status;
}

/* ---- the ranks' arrays */

static part part_of(const void *whole, int dtype, const ptrdiff_t strides[3], int64_t heads,
                    int64_t dim)
{
    const ptrdiff_t width = (ptrdiff_t)case_bytes(dtype, 1);
    const part one = { (char *)(size_t)whole, NULL,  strides[0] * width,   strides[1] * width,
                       strides[2] * width,    heads, (size_t)(dim * width) };
    return one;
}

/* Of a tensor or an output: their fields have the same names. */
#define PART(t, heads, dim)                                                                        \
    part_of((t).data, (t).dtype,                                                                   \
            (const ptrdiff_t[3]){ (t).stride_batch, (t).stride_head, (t).stride_seq }, heads, dim)

static void find_parts(rings_rank *r, const attn_params *p, const attn_gradients *g)
{
    const bench_case *const c = r->job->c;
    const ptrdiff_t of_head = 2 * (ptrdiff_t)c->seq_q;
    const ptrdiff_t sums[3] = { (ptrdiff_t)c->heads_q * of_head, of_head, 2 };
    r->parts[Q] = PART(p->q, c->heads_q, c->head_dim);
    r->parts[K] = PART(p->k, c->heads_kv, c->head_dim);
    r->parts[V] = PART(p->v, c->heads_kv, c->head_dim_v);
    r->parts[O] = PART(p->o, c->heads_q, c->head_dim_v);
    if (!g)
        return;
    r->parts[STATS] = part_of(p->stats.data, ATTN_F32, sums, c->heads_q, 2);
    r->parts[DOUT] = PART(g->dout, c->heads_q, c->head_dim_v);
    r->parts[DQ] = PART(g->dq, c->heads_q, c->head_dim);
    r->parts[DK] = PART(g->dk, c->heads_kv, c->head_dim);
    r->parts[DV] = PART(g->dv, c->heads_kv, c->head_dim_v);
}

/* Copies the rank's positions of one array: from the whole, or back to it. */
static void copy_part(const rings_rank *r, const part *a, int back)
{
    char *own = a->own;
    for (int64_t b = 0; b < r->job->c->batch; b++)
        for (int64_t h = 0; h < a->heads; h++)
            for (int64_t n = 0; n < r->num_ranges; n++)
                for (int64_t i = 0; i < r->ranges[n].count; i++, own += a->bytes) {
                    char *const whole =
                        a->whole + b * a->batch + h * a->head + (r->ranges[n].begin + i) * a->row;
                    memcpy(back ? whole : own, back ? own : whole, a->bytes);
                }
}

static size_t part_bytes(const rings_rank *r, const part *a)
{
    return (size_t)r->job->c->batch * (size_t)a->heads * (size_t)r->length * a->bytes;
}

/* NaN in what the call writes; o is an input of a backward one. */
static int fill_parts(rings_rank *r)
{
    for (int n = 0; n < ARRAYS; n++) {
        part *const a = &r->parts[n];
        if (!a->whole)
            continue;
        a->own = malloc(part_bytes(r, a) + 1);
        if (!a->own)
            return 0;
        if (is_output[n] && !(n == O && r->backward))
            memset(a->own, 0xff, part_bytes(r, a));
        else
            copy_part(r, a, 0);
    }
    return 1;
}

/* data of an array, packed. */
#define OWN(t, array)                                                                              \
    ((t).data = (array).own, (t).stride_batch = (t).stride_head = (t).stride_seq = 0)

static void point_to_own(rings_rank *r)
{
    OWN(r->p.q, r->parts[Q]);
    OWN(r->p.k, r->parts[K]);
    OWN(r->p.v, r->parts[V]);
    OWN(r->p.o, r->parts[O]);
    if (!r->backward)
        return;
    r->p.stats.data = r->parts[STATS].own;
    OWN(r->g.dout, r->parts[DOUT]);
    OWN(r->g.dq, r->parts[DQ]);
    OWN(r->g.dk, r->parts[DK]);
    OWN(r->g.dv, r->parts[DV]);
}

static int find_ranges(rings_rank *r, int rank)
{
    const attn_transport transport = query_of(r->job, rank);
    const attn_ring ring = ring_of(r->job, &transport, NULL);
    attn_ring_info info;
    if (attn_ring_describe(&r->p, &ring, rank, &info) != ATTN_OK)
        return 0;
    r->length = info.length;
    r->ranges = malloc(sizeof *r->ranges * (size_t)info.ranges + 1);
    return r->ranges &&
           attn_ring_ranges(&r->p, &ring, rank, r->ranges, info.ranges, &r->num_ranges) == ATTN_OK;
}

static int make_rank(rings_job *job, int rank, const attn_params *p, const attn_gradients *g)
{
    rings_rank *const r = &job->ranks[rank];
    r->job = job;
    r->p = params_of(job, p);
    r->backward = g != NULL;
    if (g)
        r->g = *g;
    if (!find_ranges(r, rank))
        return 0;
    find_parts(r, p, g);
    if (!fill_parts(r))
        return 0;
    point_to_own(r);
    if (size_of_rank(job, &r->p, g ? &r->g : NULL, rank, &r->workspace_bytes) != ATTN_OK)
        return 0;
    r->workspace = malloc(r->workspace_bytes + 1);
    return r->workspace != NULL;
}

int rings_make(rings_job *job, const attn_params *p, const attn_gradients *g)
{
    job->ranks = calloc((size_t)job->num_ranks, sizeof *job->ranks);
    if (job->transport)
        return job->ranks && make_rank(job, job->transport->rank, p, g);
    for (int rank = 0; job->ranks && rank < job->num_ranks; rank++)
        if (!make_rank(job, rank, p, g))
            return 0;
    return job->ranks != NULL;
}

/* ---- the call */

static attn_status call_rank(rings_rank *r, const attn_transport *transport)
{
    const attn_ring ring = ring_of(r->job, transport, &r->stats);
    const attn_dilated *const d = branches_of(r->job);
    void *const workspace = r->workspace;
    const size_t bytes = r->workspace_bytes;
    if (d)
        return r->backward ? attn_dilated_ring_backward(&r->p, d, &r->g, &ring, workspace, bytes)
                           : attn_dilated_ring_forward(&r->p, d, &ring, workspace, bytes);
    return r->backward ? attn_ring_backward(&r->p, &r->g, &ring, workspace, bytes)
                       : attn_ring_forward(&r->p, &ring, workspace, bytes);
}

static void run_rank(void *arg, const attn_transport *transport)
{
    rings_rank *const r = &((rings_job *)arg)->ranks[transport->rank];
    r->status = call_rank(r, transport);
}

attn_status rings_call(rings_job *job)
{
    if (job->transport) {
        run_rank(job, job->transport);
        return job->ranks[job->transport->rank].status;
    }
    if (virtual_ranks_run(job->num_ranks, run_rank, job))
        return ATTN_ERR_CALLBACK;
    for (int rank = 0; rank < job->num_ranks; rank++)
        if (job->ranks[rank].status != ATTN_OK)
            return job->ranks[rank].status;
    return ATTN_OK;
}

/* Each process has its part of the whole, and zeros beside it. */
static int join_parts(const rings_job *job, const rings_rank *r)
{
    int joined = 1;
    for (int n = 0; n < ARRAYS; n++) {
        const part *const a = &r->parts[n];
        const size_t rows = (size_t)job->c->batch * (size_t)a->heads * (size_t)job->c->seq_q;
        if (!is_output[n] || !a->own)
            continue;
        memset(a->whole, 0, rows * a->bytes);
        copy_part(r, a, 1);
        joined &= team_join(a->whole, rows * a->bytes);
    }
    return joined;
}

int rings_collect(rings_job *job)
{
    if (job->transport)
        return join_parts(job, &job->ranks[job->transport->rank]);
    for (int rank = 0; rank < job->num_ranks; rank++)
        for (int n = 0; n < ARRAYS; n++) {
            const rings_rank *const r = &job->ranks[rank];
            if (is_output[n] && r->parts[n].own)
                copy_part(r, &r->parts[n], 1);
        }
    return 1;
}

const attn_ring_stats *rings_own(const rings_job *job)
{
    return &job->ranks[job->transport->rank].stats;
}

void *rings_keys(const rings_job *job, int rank, size_t *bytes)
{
    *bytes = part_bytes(&job->ranks[rank], &job->ranks[rank].parts[K]);
    return job->ranks[rank].parts[K].own;
}

rings_figures rings_told(const rings_job *job)
{
    rings_figures f = { 0, 0, 0 };
    double pairs = 0, most = 0;
    for (int rank = 0; rank < job->num_ranks; rank++) {
        const attn_ring_stats *const s = &job->ranks[rank].stats;
        f.moved_bytes += s->bytes_sent;
        f.exchange_seconds += s->seconds / job->num_ranks;
        pairs += s->pairs / job->num_ranks;
        if (s->pairs > most)
            most = s->pairs;
    }
    f.balance = pairs > 0 ? most / pairs : 0;
    return f;
}

static void free_rank(rings_rank *r)
{
    for (int n = 0; n < ARRAYS; n++)
        free(r->parts[n].own);
    free(r->ranges);
    free(r->workspace);
}

void rings_free(rings_job *job)
{
    for (int rank = 0; job->ranks && rank < job->num_ranks; rank++)
        free_rank(&job->ranks[rank]);
    free(job->ranks);
    job->ranks = NULL;
}
