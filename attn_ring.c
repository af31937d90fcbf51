/* attn_ring.c - context parallelism: keys and values travel round a ring of ranks. The manual is
 * attn_ring.h. On top of attn_forward, attn_state_merge and attn_backward, of which it calls parts
 * (p.part).
 * SPDX-License-Identifier: MIT (full text at the end of attn.c)
 * attn 0.1.0
 *
 * CONTENTS
 *    1  Cut           which rank holds which positions
 *    2  Tree          the nodes of the merge tree that a range is made of
 *    3  Checks        every sentence about bad input
 *    4  Plan          what the workspace holds
 *    5  Agreement     statuses, parameters; exchanges
 *    6  Parts         some rows against some keys
 *    7  Forward       states, merged along the tree as keys arrive
 *    8  Backward      gradients by keys and values travel behind them
 *    9  Public functions
 */
#ifndef ATTN_INTERNAL
#define ATTN_INTERNAL
#endif
#include "attn_ring.h"

#ifndef ATTN_ASSERT
#define ATTN_ASSERT(x) ((void)0)
#endif

/* ------------------------------------------------------------------------------------------------
 * 1  Cut: the layouts but CUSTOM are runs of units, dealt to the ranks
 * --------------------------------------------------------------------------------------------- */

#define RING_MOST_RANKS 4096
#define RING_MOST_LENGTH ((int64_t)1 << 45) /* products of units and ranks fit into 64 bits */

typedef struct ring_cut {
    const attn_ring *ring;
    int ranks;
    int along_tree; /* all cuts are between chunks: states merge along the tree */
    int64_t length, unit, units, runs;
    int64_t shift;  /* n of position x: x + shift, in every sequence */
    int64_t chunks; /* that the root of the tree covers */
} ring_cut;

static int64_t run_begin(const ring_cut *c, int64_t run)
{
    const int64_t each = c->units / c->runs, rest = c->units % c->runs;
    return min64(c->length, (run * each + run * rest / c->runs) * c->unit);
}

static int owner_of_run(const ring_cut *c, int64_t run)
{
    if (c->ring->layout == ATTN_RING_STRIPED)
        return (int)(run % c->ranks);
    return (int)(run < c->ranks ? run : 2 * (int64_t)c->ranks - 1 - run);
}

/* Range number `at` of a rank as the layout deals them, empty ones included; 0 = no such. */
static int dealt_range(const ring_cut *c, int rank, int64_t at, attn_ring_range *range)
{
    const attn_ring *ring = c->ring;
    int64_t run = rank + at * c->ranks;
    if (ring->layout == ATTN_RING_CUSTOM) {
        if (at >= ring->first_range[rank + 1] - ring->first_range[rank])
            return 0;
        *range = ring->ranges[ring->first_range[rank] + at];
        return 1;
    }
    if (ring->layout == ATTN_RING_ZIGZAG && at == 1)
        run = 2 * (int64_t)c->ranks - 1 - rank;
    if (run >= c->runs)
        return 0;
    range->begin = run_begin(c, run);
    range->count = run_begin(c, run + 1) - range->begin;
    return 1;
}

/* The next range of a rank: no empty ones, adjoining ones as one. *at begins as 0. */
static int next_range(const ring_cut *c, int rank, int64_t *at, attn_ring_range *range)
{
    attn_ring_range more;
    while (dealt_range(c, rank, *at, range) && range->count == 0)
        ++*at;
    if (!dealt_range(c, rank, *at, range))
        return 0;
    while (dealt_range(c, rank, ++*at, &more) &&
           (more.count == 0 || more.begin == range->begin + range->count))
        range->count += more.count;
    return 1;
}

/* How many positions a rank holds; its ranges and the longest of them may be asked for, too. */
static int64_t held_by(const ring_cut *c, int rank, int64_t *ranges, int64_t *longest)
{
    attn_ring_range range;
    int64_t at = 0, sum = 0, count = 0, most = 0;
    while (next_range(c, rank, &at, &range)) {
        sum += range.count;
        most = max64(most, range.count);
        count++;
    }
    if (ranges)
        *ranges = count;
    if (longest)
        *longest = most;
    return sum;
}

/* The range of a CUSTOM layout that begins at position x: its end and owner; -1 = there is none. */
static int64_t custom_end(const attn_ring *ring, int ranks, int64_t x, int *owner)
{
    int64_t i;
    for (*owner = 0; *owner < ranks; ++*owner)
        for (i = ring->first_range[*owner]; i < ring->first_range[*owner + 1]; i++)
            if (ring->ranges[i].begin == x && ring->ranges[i].count > 0)
                return x + ring->ranges[i].count;
    return -1;
}

/* Along the sequence: who holds what lies from position *x on, up to where; *x moves there. *run
 * begins as 0, as *x does. */
static int next_owner(const ring_cut *c, int64_t *run, int64_t *x)
{
    int owner = 0;
    if (c->ring->layout == ATTN_RING_CUSTOM) {
        *x = custom_end(c->ring, c->ranks, *x, &owner);
        return owner;
    }
    while (run_begin(c, *run + 1) == *x)
        ++*run;
    owner = owner_of_run(c, *run);
    *x = run_begin(c, ++*run);
    return owner;
}

/* n - position of the keys of a sequence; -1 for a key_base that attn_forward refuses. */
static int64_t shift_of(const attn_params *p, int64_t b)
{
    const int64_t base = p->key_base ? p->key_base[b] : 0;
    return base < 0 || base > (int64_t)1 << 58 ? -1 : base - entry32(p->kv_begin, b, 0);
}

/* Whether every cut lies between two chunks of every sequence. */
static int cuts_between_chunks(const ring_cut *c, const attn_params *p)
{
    attn_ring_range range;
    int64_t at, b;
    int rank;
    for (b = 0; (p->key_base || p->kv_begin) && b < p->batch; b++)
        if (shift_of(p, b) != shift_of(p, 0) || shift_of(p, b) < 0 || shift_of(p, b) % ATTN_CHUNK)
            return 0;
    for (rank = 0; rank < c->ranks; rank++)
        for (at = 0; next_range(c, rank, &at, &range);)
            if (range.begin % ATTN_CHUNK)
                return 0;
    return 1;
}

static ring_cut cut_of(const attn_params *p, const attn_ring *ring, int ranks)
{
    ring_cut c;
    c.ring = ring;
    c.ranks = ranks;
    c.length = p->seq_len_kv;
    c.unit = ring->shard ? ring->shard : ATTN_CHUNK;
    c.units = ceil_div(c.length, c.unit);
    c.runs = ring->layout == ATTN_RING_ZIGZAG ? 2 * (int64_t)ranks : ranks;
    if (ring->layout == ATTN_RING_STRIPED)
        c.runs = max64(c.units, 1);
    c.along_tree = !ring->arrival && cuts_between_chunks(&c, p);
    c.shift = c.along_tree && p->batch > 0 ? shift_of(p, 0) : 0;
    for (c.chunks = 1; c.chunks * ATTN_CHUNK < c.length + c.shift;)
        c.chunks *= 2;
    return c;
}

/* Whether the bits are those of one process: also where one rank holds everything. */
static int is_canonical(const ring_cut *c)
{
    attn_ring_range range;
    int64_t at;
    int rank, whole = c->length == 0;
    for (rank = 0; rank < c->ranks && !whole; rank++)
        for (at = 0; next_range(c, rank, &at, &range);)
            whole |= range.count == c->length;
    return c->along_tree || c->ring->gather || whole;
}

/* ------------------------------------------------------------------------------------------------
 * 2  Tree: node (level, index) covers the chunks from index * 2^level on, 2^level of them. What
 *    lies before the first key and behind the last one is empty, and there from the beginning.
 * --------------------------------------------------------------------------------------------- */

typedef struct ring_node {
    int level;
    int64_t index, begin, end; /* begin, end: positions */
} ring_node;

/* Chunks *from .. *to - 1 that a range fills. */
static void chunks_of(const ring_cut *c, const attn_ring_range *range, int64_t *from, int64_t *to)
{
    const int64_t end = range->begin + range->count;
    *from = range->begin == 0 ? 0 : (range->begin + c->shift) / ATTN_CHUNK;
    *to = end == c->length ? c->chunks : (end + c->shift) / ATTN_CHUNK;
}

/* The largest node from chunk *from on that ends at chunk `to` at the latest; *from moves behind
 * it. */
static ring_node next_node(const ring_cut *c, int64_t *from, int64_t to)
{
    ring_node node;
    int64_t size = 1;
    node.level = 0;
    while (*from % (2 * size) == 0 && *from + 2 * size <= to) {
        size *= 2;
        node.level++;
    }
    node.index = *from / size;
    node.begin = min64(c->length, max64(0, *from * ATTN_CHUNK - c->shift));
    *from += size;
    node.end = min64(c->length, max64(0, *from * ATTN_CHUNK - c->shift));
    return node;
}

static int64_t count_nodes(const ring_cut *c, int64_t from, int64_t to)
{
    int64_t count = 0;
    for (; from < to; count++)
        next_node(c, &from, to);
    return count;
}

static int64_t nodes_of_rank(const ring_cut *c, int rank)
{
    attn_ring_range range;
    int64_t at = 0, from, to, count = 0;
    while (next_range(c, rank, &at, &range)) {
        chunks_of(c, &range, &from, &to);
        count += c->along_tree ? count_nodes(c, from, to) : 1;
    }
    return count;
}

/* Whose keys a rank has after so many exchanges. */
static int source_at(const ring_cut *c, int rank, int step)
{
    return (rank - step + 2 * c->ranks) % c->ranks;
}

/* States that wait when the keys of steps 0..step have come: the nodes that what has come is made
 * of. */
static int64_t waiting_after(const ring_cut *c, int rank, int step)
{
    int64_t x = 0, run = 0, from, to, count = 0;
    attn_ring_range come = { 0, 0 };
    while (x < c->length) {
        const int64_t begin = x;
        const int owner = next_owner(c, &run, &x);
        if (source_at(c, rank, owner) <= step) { /* rank - owner: the step at which it comes */
            come.count += x - begin;
        } else {
            chunks_of(c, &come, &from, &to);
            count += come.count ? count_nodes(c, from, to) : 0;
            come.begin = x;
            come.count = 0;
        }
    }
    chunks_of(c, &come, &from, &to);
    return count + (come.count ? count_nodes(c, from, to) : 0);
}

/* Room for the states that wait and those of the keys that come next. */
static int64_t states_at_once(const ring_cut *c, int rank)
{
    int64_t most = 1, waiting = 0;
    int step;
    if (c->ring->gather)
        return 1;
    if (!c->along_tree)
        return 2;
    for (step = 0; step < c->ranks; step++) {
        most = max64(most, waiting + nodes_of_rank(c, source_at(c, rank, step)));
        waiting = waiting_after(c, rank, step);
    }
    return most;
}

/* ------------------------------------------------------------------------------------------------
 * 3  Checks. Each returns ATTN_OK or the status whose reason it has put into *why.
 * --------------------------------------------------------------------------------------------- */

static attn_status check_layout(const attn_ring *ring, text *why)
{
    static const size_rule rules[] = {
        { "ring.layout", offsetof(attn_ring, layout), 0, ATTN_RING_CUSTOM },
    };
    static const size_rule counts[] = {
        { "ring.shard", offsetof(attn_ring, shard), 0, RING_MOST_LENGTH },
    };
    const int custom = ring->layout == ATTN_RING_CUSTOM;
    attn_status status = check_enums(ring, rules, COUNT_OF(rules), why);
    if (!status)
        status = check_counts(ring, counts, COUNT_OF(counts), why);
    if (status)
        return status;
    if (custom && ring->shard)
        return bad_field(why, ATTN_ERR_ARG, "ring.shard", ring->shard,
                         " is set, but ring.layout is ATTN_RING_CUSTOM");
    if (custom && (!ring->ranges || !ring->first_range))
        return bad(why, ATTN_ERR_ARG,
                   "ring.layout is ATTN_RING_CUSTOM, but ring.ranges or first_range is NULL");
    if (!custom && (ring->ranges || ring->first_range))
        return bad_field(why, ATTN_ERR_ARG, "ring.layout", ring->layout,
                         " must be ATTN_RING_CUSTOM (3) when ring.ranges is given");
    return ATTN_OK;
}

static attn_status check_first_ranges(const attn_ring *ring, int ranks, text *why)
{
    int rank;
    if (ring->first_range[0] < 0)
        return bad_entry(why, "ring.first_range", 0, ring->first_range[0], " must be at least 0");
    for (rank = 1; rank <= ranks; rank++)
        if (ring->first_range[rank] < ring->first_range[rank - 1])
            return bad_entry(why, "ring.first_range", rank, ring->first_range[rank],
                             " is below the entry before it");
    return ATTN_OK;
}

static attn_status check_ranges_of(const attn_ring *ring, int rank, int64_t length, text *why)
{
    int64_t i, end = 0;
    for (i = ring->first_range[rank]; i < ring->first_range[rank + 1]; i++) {
        const attn_ring_range *range = &ring->ranges[i];
        if (range->count < 0 || range->count > length)
            return bad_entry(why, "ring.ranges.count", i, range->count,
                             " must be from 0 to seq_len_kv");
        if (range->begin < end || range->begin > length - range->count)
            return bad_entry(why, "ring.ranges.begin", i, range->begin,
                             " must follow the range before it, and end within seq_len_kv");
        end = range->begin + range->count;
    }
    return ATTN_OK;
}

/* Every position is in one range of a CUSTOM layout. */
static attn_status check_custom(const attn_ring *ring, int ranks, int64_t length, text *why)
{
    attn_status status = check_first_ranges(ring, ranks, why);
    int64_t x = 0, end, i, visited = 0, filled = 0;
    int rank;
    for (rank = 0; rank < ranks && !status; rank++)
        status = check_ranges_of(ring, rank, length, why);
    if (status)
        return status;
    for (i = ring->first_range[0]; i < ring->first_range[ranks]; i++)
        filled += ring->ranges[i].count > 0;
    for (; x < length; x = end, visited++) {
        end = custom_end(ring, ranks, x, &rank);
        if (end < 0)
            return bad_field(why, ATTN_ERR_ARG, "ring.ranges: position", x,
                             " is in no range, or inside one that begins in another");
    }
    if (visited != filled)
        return bad_field(why, ATTN_ERR_ARG, "ring.ranges: number", filled,
                         " of ranges that are not empty: some positions are in two");
    return ATTN_OK;
}

/* What a ring does not take. */
static attn_status check_ring_params(const attn_params *p, text *why)
{
    static const size_rule batch = { "batch", offsetof(attn_params, batch), 0, MOST };
    const attn_part *part = &p->part;
    const attn_status status = check_counts(p, &batch, 1, why);
    if (status)
        return status;
    if (p->seq_len_q != p->seq_len_kv) {
        put_field(why, "seq_len_q", p->seq_len_q);
        put(why, " must be ");
        put_field(why, "seq_len_kv", p->seq_len_kv);
        return bad(why, ATTN_ERR_UNSUPPORTED, ": a ring cuts rows and keys alike");
    }
    if (p->seq_len_kv < 0 || p->seq_len_kv > RING_MOST_LENGTH)
        return bad_field(why, ATTN_ERR_OVERFLOW, "seq_len_kv", p->seq_len_kv,
                         " must be from 0 to 2^45 for a ring");
    if (p->cu_seqlens_q || p->cu_seqlens_kv)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "cu_seqlens_q: a ring tells documents apart by q_segments and kv_segments");
    if (p->kv_rows.ring || p->kv_rows.page_size)
        return bad(why, ATTN_ERR_UNSUPPORTED, "kv_rows: a ring takes no caches");
    if (p->partial)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "partial", p->partial,
                         ": a ring writes o and lse");
    if (p->logits.data)
        return bad(why, ATTN_ERR_UNSUPPORTED, "logits: not built for a ring");
    if (part->rows || part->keys)
        return bad(why, ATTN_ERR_UNSUPPORTED, "part: a ring makes parts of its own");
    if (p->impl == ATTN_IMPL_NAIVE)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " (naive): a ring is built for ATTN_IMPL_TILED");
    return ATTN_OK;
}

/* Parameters and layout for so many ranks; not the tensors. */
static attn_status check_cut(const attn_params *p, const attn_ring *ring, int ranks, text *why)
{
    attn_status status = ATTN_OK;
    if (!p)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    if (ranks < 1 || ranks > RING_MOST_RANKS)
        return bad_field(why, ATTN_ERR_ARG, "transport.size", ranks, " must be from 1 to 4096");
    status = check_ring_params(p, why);
    if (!status)
        status = check_layout(ring, why);
    if (!status && ring->layout == ATTN_RING_CUSTOM)
        status = check_custom(ring, ranks, p->seq_len_kv, why);
    return status;
}

/* Without this no agreement is possible. */
static attn_status check_transport(const attn_ring *ring, text *why)
{
    const attn_transport *t = ring ? ring->transport : NULL;
    if (!ring)
        return bad(why, ATTN_ERR_ARG, "ring is NULL");
    if (!t)
        return bad(why, ATTN_ERR_ARG, "ring.transport is NULL");
    if (!t->agree || !t->begin || !t->end || !t->cancel)
        return bad(why, ATTN_ERR_ARG, "transport.agree, begin, end or cancel is NULL");
    if (t->size < 1 || t->size > RING_MOST_RANKS)
        return bad_field(why, ATTN_ERR_ARG, "transport.size", t->size, " must be from 1 to 4096");
    if (t->rank < 0 || t->rank >= t->size)
        return bad_field(why, ATTN_ERR_ARG, "transport.rank", t->rank,
                         " must be from 0 to size - 1");
    return ATTN_OK;
}

static attn_status check_ring_gradients(const attn_params *p, const attn_gradients *g,
                                        const attn_ring *ring, text *why)
{
    if (g->dbias.data || g->dsinks || g->dslopes)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "dbias, dsinks and dslopes are not built for a ring: leave them NULL");
    if (ring->gather)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "ring.gather", ring->gather,
                         " has no gradients: the same layout without it does");
    if (!p->o.data)
        return bad(why, ATTN_ERR_ARG, "o.data is NULL: gradients need the o of the forward call");
    return ATTN_OK;
}

/* The call as one of this rank's tensors: a part, packed as they are. */
static void take_local(attn_params *local, const attn_params *p, const attn_ring *ring,
                       int64_t length)
{
    *local = *p;
    local->backend = NULL; /* only the arguments are looked at */
    local->part.rows = local->part.keys = 1;
    local->part.row_count = local->part.key_count = length;
    if (ring->fetch)
        local->k.data = local->v.data = ring; /* not read */
}

/* The sentence of an attn_forward or attn_backward that gets no workspace: they would run, if that
 * is all that is missing. */
OWN_FRAME static attn_status check_tensors_held(const attn_params *p, const attn_gradients *g,
                                                const attn_ring *ring, int64_t length, text *why)
{
    attn_params local;
    attn_status status;
    take_local(&local, p, ring, length);
    status = g ? attn_backward(&local, g, NULL, 0) : attn_forward(&local, NULL, 0);
    if (status == ATTN_OK || status == ATTN_ERR_WORKSPACE)
        return ATTN_OK;
    if (g && why->left)
        attn_backward_check(&local, g, NULL, 0, why->at, why->left);
    else if (why->left)
        attn_check(&local, NULL, 0, why->at, why->left);
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 4  Plan: a pure function of parameters, layout and rank
 *
 *    workspace = | alignment | ring_call | entries | buffer 0 | buffer 1 | ... | work of a part |
 * --------------------------------------------------------------------------------------------- */

/* Sizes of one position of a shard. */
typedef struct ring_shape {
    int64_t entries_q, entries_kv; /* batch * heads */
    int64_t dim, dim_v;
    int64_t k_bytes, v_bytes; /* of a position of all entries */
} ring_shape;

typedef struct ring_plan {
    ring_cut cuts;
    ring_shape shape;
    int rank;
    int64_t length, longest;          /* positions of this rank; of the rank that has most */
    int64_t row_range, key_range;     /* the longest range of this rank, of any rank */
    int64_t slots, slot_floats, rows; /* states; a state of all rows; rows of all entries */
    int64_t entries, entry_count, used;
    int64_t buffer[2], states, gathered;
    int64_t gift, dq, part_dq, part_dk, part_dv; /* backward */
    int64_t work, work_bytes, bytes;
} ring_plan;

typedef struct ring_entry {
    int64_t index;
    int level, slot; /* slot: -1 = an empty state */
} ring_entry;

/* One call on one rank, at the beginning of its workspace. */
typedef struct ring_call {
    attn_params p; /* of the part that is computed */
    attn_gradients g;
    attn_params own; /* of the rank's tensors: strides explicit */
    attn_gradients own_g;
    ring_plan pl;
    const attn_transport *t;
    attn_ring_stats *stats;
    const attn_core *core;
    char *base; /* what the plan's offsets count from */
    ring_entry *entries;
    int64_t entry_count;
} ring_call;

#define RING_HEAD aligned((int64_t)sizeof(ring_call))

static ring_shape shape_of(const attn_params *p)
{
    const int64_t heads_kv = p->num_heads_kv ? p->num_heads_kv : p->num_heads_q;
    ring_shape s;
    s.dim = p->head_dim;
    s.dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    s.entries_q = times(p->batch, p->num_heads_q);
    s.entries_kv = times(p->batch, heads_kv);
    s.k_bytes = times(times(s.entries_kv, s.dim), (int64_t)bytes_of(p->k.dtype));
    s.v_bytes = times(times(s.entries_kv, s.dim_v), (int64_t)bytes_of(p->v.dtype));
    return s;
}

/* Of a shard: values lie behind keys; dk and dv likewise. */
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
    int64_t longest, nodes = 0;
    int rank;
    pl->length = held_by(&pl->cuts, pl->rank, NULL, &pl->row_range);
    pl->longest = pl->key_range = 0;
    for (rank = 0; rank < pl->cuts.ranks; rank++) {
        pl->longest = max64(pl->longest, held_by(&pl->cuts, rank, NULL, &longest));
        pl->key_range = max64(pl->key_range, longest);
        nodes += nodes_of_rank(&pl->cuts, rank);
    }
    pl->entry_count = nodes;
}

/* Workspace of the largest part of a forward call: any shorter one works in it. Without kv_begin
 * the first keys are as many as any others. */
OWN_FRAME static attn_status forward_part_bytes(const attn_params *p, const ring_cut *c, int rank,
                                                size_t *bytes)
{
    attn_params part = *p;
    int64_t longest;
    int r;
    part.part.rows = 1;
    held_by(c, rank, NULL, &part.part.row_count);
    part.part.keys = !c->ring->gather;
    for (r = 0; part.part.keys && r < c->ranks; r++) {
        held_by(c, r, NULL, &longest);
        part.part.key_count = max64(part.part.key_count, longest);
    }
    part.partial = 1;
    part.kv_begin = NULL;
    return attn_workspace_size(&part, bytes);
}

/* Every part gives all three gradients, in f32. */
static attn_status gradients_bytes(const attn_params *p, const attn_gradients *g, size_t *bytes)
{
    attn_gradients all;
    size_t need;
    attn_status status;
    memset(&all, 0, sizeof all);
    all.gemms = g->gemms;
    all.dlse.data = g->dlse.data;
    all.score_derivative = g->score_derivative;
    all.dq.data = all.dk.data = all.dv.data = bytes; /* not written */
    status = attn_backward_workspace_size(p, &all, &need);
    *bytes = need > *bytes ? need : *bytes;
    return status;
}

/* Sets the part's keys to the next range of any rank; 0 = there is none. */
static int next_keys(const ring_cut *c, int *rank, int64_t *at, attn_part *part)
{
    attn_ring_range keys;
    for (; *rank < c->ranks; ++*rank, *at = 0)
        if (next_range(c, *rank, at, &keys)) {
            part->key_begin = keys.begin;
            part->key_count = keys.count;
            return 1;
        }
    return 0;
}

/* Workspace of a backward call, which a shorter one may exceed: all parts are asked. Without
 * lengths those of the same counts need the same. */
OWN_FRAME static attn_status backward_part_bytes(const attn_params *p, const attn_gradients *g,
                                                 const ring_cut *c, int own, size_t *bytes)
{
    const int lengths = p->q_len || p->kv_len || p->kv_begin;
    attn_params part = *p;
    attn_ring_range rows;
    attn_status status = ATTN_OK;
    int64_t cursor = 0, at, row_count = -1, key_count = -1;
    int rank;
    part.part.rows = part.part.keys = 1;
    while (!status && next_range(c, own, &cursor, &rows)) {
        part.part.row_begin = rows.begin;
        part.part.row_count = rows.count;
        rank = 0;
        for (at = 0; !status && next_keys(c, &rank, &at, &part.part);) {
            if (!lengths && rows.count == row_count && part.part.key_count == key_count)
                continue;
            status = gradients_bytes(&part, g, bytes);
            row_count = rows.count;
            key_count = part.part.key_count;
        }
    }
    return status;
}

static void plan_ring_forward(ring_plan *pl)
{
    const ring_shape *s = &pl->shape;
    pl->rows = times(s->entries_q, pl->length);
    pl->slot_floats = whole_lines(times(pl->rows, plus(s->dim_v, 2)));
    pl->slots = states_at_once(&pl->cuts, pl->rank);
    pl->entries = place(&pl->bytes, pl->entry_count, sizeof(ring_entry));
    pl->used = place(&pl->bytes, pl->slots, 1);
    pl->buffer[0] = place(&pl->bytes, shard_bytes(s, pl->longest), 1);
    pl->buffer[1] = place(&pl->bytes, pl->cuts.ranks > 1 ? shard_bytes(s, pl->longest) : 0, 1);
    pl->states = place(&pl->bytes, times(pl->slots, pl->slot_floats), sizeof(float));
    pl->gathered =
        place(&pl->bytes, pl->cuts.ring->gather ? shard_bytes(s, pl->cuts.length) : 0, 1);
}

static void plan_ring_backward(ring_plan *pl)
{
    const ring_shape *s = &pl->shape;
    const int64_t gift = gift_floats(s, pl->longest);
    const int64_t both = plus(shard_bytes(s, pl->longest), times(gift, sizeof(float)));
    const int64_t row_floats = times(s->entries_q, s->dim);
    pl->buffer[0] = place(&pl->bytes, both, 1);
    pl->buffer[1] = place(&pl->bytes, both, 1);
    pl->gift = place(&pl->bytes, gift, sizeof(float));
    pl->dq = place(&pl->bytes, times(row_floats, pl->length), sizeof(float));
    pl->part_dq = place(&pl->bytes, times(row_floats, pl->row_range), sizeof(float));
    pl->part_dk = place(&pl->bytes, dv_at(s, pl->key_range), sizeof(float));
    pl->part_dv =
        place(&pl->bytes, times(times(s->entries_kv, s->dim_v), pl->key_range), sizeof(float));
}

/* Workspace of the parts. */
static attn_status size_of_parts(const attn_params *p, const attn_gradients *g,
                                 const attn_ring *ring, size_t *bytes)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    *bytes = 0;
    return g ? backward_part_bytes(p, g, &c, ring->transport->rank, bytes)
             : forward_part_bytes(p, &c, ring->transport->rank, bytes);
}

/* With so many bytes for the parts. */
static void plan_ring(const attn_params *p, int gradients, const attn_ring *ring, size_t work,
                      ring_plan *pl)
{
    memset(pl, 0, sizeof *pl);
    pl->rank = ring->transport->rank;
    pl->cuts = cut_of(p, ring, ring->transport->size);
    pl->shape = shape_of(p);
    plan_lengths(pl);
    pl->work_bytes = work > (size_t)ADDRESS_LIMIT ? TOO_BIG : (int64_t)work;
    pl->bytes = RING_HEAD;
    if (gradients)
        plan_ring_backward(pl);
    else
        plan_ring_forward(pl);
    pl->work = place(&pl->bytes, pl->work_bytes, 1);
    pl->bytes = plus(pl->bytes, ALIGNMENT - 1); /* as the workspace begins anywhere */
}

OWN_FRAME static int64_t planned_bytes(const attn_params *p, int gradients, const attn_ring *ring,
                                       size_t work)
{
    ring_plan pl;
    plan_ring(p, gradients, ring, work, &pl);
    return pl.bytes;
}

/* Bytes of workspace that a call needs. */
static attn_status ring_bytes(const attn_params *p, const attn_gradients *g, const attn_ring *ring,
                              int64_t *bytes)
{
    size_t work;
    const attn_status status = size_of_parts(p, g, ring, &work);
    *bytes = status ? 0 : planned_bytes(p, g != NULL, ring, work);
    return !status && *bytes >= ADDRESS_LIMIT ? ATTN_ERR_OVERFLOW : status;
}

OWN_FRAME static int64_t own_length(const attn_params *p, const attn_ring *ring)
{
    const ring_cut c = cut_of(p, ring, ring->transport->size);
    return held_by(&c, ring->transport->rank, NULL, NULL);
}

/* Everything that can be wrong on one rank. */
OWN_FRAME static attn_status check_ring(const attn_params *p, const attn_gradients *g,
                                        int gradients, const attn_ring *ring, const void *workspace,
                                        size_t bytes, text *why)
{
    int64_t need;
    attn_status status = check_transport(ring, why);
    if (!status)
        status = check_cut(p, ring, ring->transport->size, why);
    if (!status && gradients && !g)
        status = bad(why, ATTN_ERR_ARG, "gradients is NULL");
    if (!status && gradients)
        status = check_ring_gradients(p, g, ring, why);
    if (status)
        return status;
    status = check_tensors_held(p, g, ring, own_length(p, ring), why);
    if (!status)
        status = ring_bytes(p, g, ring, &need);
    if (status == ATTN_ERR_OVERFLOW && why->left)
        bad_field(why, status, "seq_len_kv", p->seq_len_kv,
                  ": the workspace of a ring would exceed the address space");
    if (status || (workspace && bytes >= (size_t)need))
        return status;
    put(why, "workspace_bytes (");
    put_int(why, workspace ? (int64_t)bytes : 0);
    put(why, ") must be at least ");
    put_int(why, need);
    return bad(why, ATTN_ERR_WORKSPACE,
               "; attn_ring_workspace_size or attn_ring_backward_workspace_size tells");
}

/* ------------------------------------------------------------------------------------------------
 * 5  Agreement: before anything is sent, with each exchange, before the outputs are written
 * --------------------------------------------------------------------------------------------- */

static double ring_seconds(const attn_transport *t)
{
    return t->seconds ? t->seconds(t->user) : 0;
}

/* The status of the lowest rank that has one: it gives the largest number. */
static attn_status agree_on_status(const attn_transport *t, attn_ring_stats *stats,
                                   attn_status status)
{
    const double from = ring_seconds(t);
    const int worst = t->agree(t->user, status ? (t->size - t->rank) * 16 + (int)status : 0);
    stats->seconds += ring_seconds(t) - from;
    if (worst > 0) {
        stats->failed_rank = t->size - worst / 16;
        return (attn_status)(worst % 16);
    }
    if (status || worst < 0)
        stats->failed_rank = t->rank;
    return worst < 0 ? ATTN_ERR_CALLBACK : status;
}

static uint32_t mix_in(uint32_t hash, int64_t value)
{
    const uint64_t u = (uint64_t)value * 0x9e3779b97f4a7c15u;
    return (hash ^ (uint32_t)(u >> 32) ^ (uint32_t)u) * 0x01000193u + 1;
}

static uint32_t mix_layout(uint32_t hash, const attn_ring *ring, int ranks)
{
    const int custom = ring->layout == ATTN_RING_CUSTOM;
    int64_t i;
    hash = mix_in(hash, ring->layout);
    hash = mix_in(hash, ring->gather != 0);
    hash = mix_in(hash, ring->arrival != 0);
    hash = mix_in(hash, ring->shard);
    for (i = custom ? ring->first_range[0] : 0; custom && i < ring->first_range[ranks]; i++) {
        hash = mix_in(hash, ring->ranges[i].begin);
        hash = mix_in(hash, ring->ranges[i].count);
    }
    return hash;
}

/* What has to be the same on every rank, or messages would not fit or results mean nothing. */
static uint32_t call_hash(const attn_params *p, int gradients, const attn_ring *ring, int ranks)
{
    const int64_t numbers[] = { gradients,
                                p->batch,
                                p->num_heads_q,
                                p->num_heads_kv,
                                p->seq_len_kv,
                                p->head_dim,
                                p->head_dim_v,
                                p->k.dtype,
                                p->v.dtype,
                                p->causal,
                                p->alignment,
                                p->window,
                                p->window_left,
                                p->window_right,
                                p->chunk_size,
                                bits_of(p->scale),
                                bits_of(p->softcap),
                                bits_of(p->dropout_p),
                                (int64_t)p->dropout_seed,
                                p->softmax1,
                                p->prefix != NULL,
                                p->q_segments != NULL,
                                p->sinks != NULL,
                                p->tree_parents != NULL,
                                p->alibi_slopes != NULL,
                                p->bias.data != NULL,
                                p->bool_mask.data != NULL,
                                p->bit_mask.data != NULL,
                                p->block_mask.bitmap != NULL,
                                p->block_mask.row_offsets != NULL,
                                p->mask != NULL,
                                p->score != NULL };
    uint32_t hash = mix_layout(0x811c9dc5u, ring, ranks);
    int64_t b;
    int i;
    for (i = 0; i < COUNT_OF(numbers); i++)
        hash = mix_in(hash, numbers[i]);
    for (b = 0; b < p->batch; b++) {
        hash = mix_in(hash, entry32(p->q_len, b, p->seq_len_q));
        hash = mix_in(hash, entry32(p->kv_len, b, p->seq_len_kv));
        hash = mix_in(hash, shift_of(p, b));
        hash = mix_in(hash, entry32(p->prefix, b, 0));
        hash = mix_in(hash, entry32(p->q_offset, b, 0));
    }
    for (i = 0; i < p->num_heads_q; i++) {
        hash = mix_in(hash, p->sinks ? bits_of(p->sinks[i]) : 0);
        hash = mix_in(hash, p->alibi_slopes ? bits_of(p->alibi_slopes[i]) : 0);
    }
    return hash;
}

/* All numbers are the same if the largest and the smallest are. */
static attn_status agree_on_call(const attn_transport *t, attn_ring_stats *stats, uint32_t hash)
{
    const int most = 0x3fffffff, own = (int)(hash & 0x3fffffffu);
    const int high = t->agree(t->user, own), low = t->agree(t->user, most - own);
    stats->failed_rank = -1;
    if (high < 0 || low < 0)
        return ATTN_ERR_CALLBACK;
    return high == most - low ? ATTN_OK : ATTN_ERR_ARG;
}

/* A message, from the beginning of a buffer on. */
typedef struct ring_message {
    const char *send;
    char *receive;
    int64_t send_bytes, receive_bytes;
} ring_message;

/* Begins an exchange if no rank has failed; returns what they agree on. */
static attn_status begin_exchange(ring_call *c, const ring_message *m, attn_status status)
{
    const attn_transport *t = c->t;
    const double from = ring_seconds(t);
    int begun = 0;
    if (!status) {
        begun = t->begin(t->user, m->send, (size_t)m->send_bytes, m->receive,
                         (size_t)m->receive_bytes) == 0;
        status = begun ? ATTN_OK : ATTN_ERR_CALLBACK;
    }
    c->stats->seconds += ring_seconds(t) - from;
    status = agree_on_status(t, c->stats, status);
    if (status && begun)
        t->cancel(t->user);
    if (status)
        return status;
    c->stats->exchanges++;
    c->stats->bytes_sent += (double)m->send_bytes;
    c->stats->bytes_received += (double)m->receive_bytes;
    return ATTN_OK;
}

/* Ends it, whatever this rank's status is. */
static attn_status end_exchange(ring_call *c, attn_status status)
{
    const double from = ring_seconds(c->t);
    const int failed = c->t->end(c->t->user);
    c->stats->seconds += ring_seconds(c->t) - from;
    return status ? status : failed ? ATTN_ERR_CALLBACK : ATTN_OK;
}

/* ------------------------------------------------------------------------------------------------
 * 6  Parts: a range of this rank's rows against some keys of a shard
 * --------------------------------------------------------------------------------------------- */

/* 0 would mean packed. */
static void name_broadcast(attn_tensor *t)
{
    if (t->stride_batch == 0)
        t->stride_batch = ATTN_STRIDE_BROADCAST;
    if (t->stride_head == 0)
        t->stride_head = ATTN_STRIDE_BROADCAST;
    if (t->stride_seq == 0)
        t->stride_seq = ATTN_STRIDE_BROADCAST;
}

/* Strides of the rank's own tensors as numbers, since those of a range of them are the same. */
static void resolve_own(attn_params *p, int64_t length)
{
    const int64_t heads_kv = p->num_heads_kv ? p->num_heads_kv : p->num_heads_q;
    const int64_t dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    RESOLVE_STRIDES(p->q, 0, p->num_heads_q, length, p->head_dim);
    RESOLVE_STRIDES(p->k, 0, heads_kv, length, p->head_dim);
    RESOLVE_STRIDES(p->v, 0, heads_kv, length, dim_v);
    RESOLVE_STRIDES(p->o, 0, p->num_heads_q, length, dim_v);
    RESOLVE_STRIDES(p->lse, 0, p->num_heads_q, length, 1);
    name_broadcast(&p->q);
    if (p->window && p->window_left > TOO_BIG) /* as attn_forward takes them */
        p->window_left = -1;
    if (p->window && p->window_right > TOO_BIG)
        p->window_right = -1;
}

static void resolve_own_gradients(const attn_params *p, attn_gradients *g, int64_t length)
{
    const int64_t heads_kv = p->num_heads_kv ? p->num_heads_kv : p->num_heads_q;
    const int64_t dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    RESOLVE_STRIDES(g->dout, 0, p->num_heads_q, length, dim_v);
    RESOLVE_STRIDES(g->dlse, 0, p->num_heads_q, length, 1);
    RESOLVE_STRIDES(g->dq, 0, p->num_heads_q, length, p->head_dim);
    RESOLVE_STRIDES(g->dk, 0, heads_kv, length, p->head_dim);
    RESOLVE_STRIDES(g->dv, 0, heads_kv, length, dim_v);
    name_broadcast(&g->dout);
    name_broadcast(&g->dlse);
}

static const void *input_at(const attn_tensor *t, int64_t at)
{
    const ptrdiff_t step = t->stride_seq == ATTN_STRIDE_BROADCAST ? 0 : t->stride_seq;
    return t->data ? (const char *)t->data + (ptrdiff_t)at * step * (ptrdiff_t)bytes_of(t->dtype)
                   : NULL;
}

static void *output_at(const attn_output *t, int64_t at)
{
    return t->data ? (char *)t->data + (ptrdiff_t)at * t->stride_seq * (ptrdiff_t)bytes_of(t->dtype)
                   : NULL;
}

/* The part's rows: a range, which begins at row `at` of this rank's. */
static void set_part_rows(ring_call *c, const attn_ring_range *range, int64_t at)
{
    attn_params *p = &c->p;
    p->part.rows = 1;
    p->part.row_begin = range->begin;
    p->part.row_count = range->count;
    p->q.data = input_at(&c->own.q, at);
    p->o.data = output_at(&c->own.o, at);
    p->lse.data = output_at(&c->own.lse, at);
    c->g.dout.data = input_at(&c->own_g.dout, at);
    c->g.dlse.data = input_at(&c->own_g.dlse, at);
}

/* Keys that lie packed among `length` ones. */
static void set_key_strides(attn_tensor *t, int64_t heads, int64_t length, int64_t dim)
{
    t->stride_seq = (ptrdiff_t)dim;
    t->stride_head = (ptrdiff_t)(length * dim);
    t->stride_batch = (ptrdiff_t)(heads * length * dim);
}

/* The part's keys: positions begin..end - 1, which begin at `at` of a shard of `length`. */
static void set_part_keys(ring_call *c, const char *shard, int64_t length, int64_t at,
                          int64_t begin, int64_t end)
{
    attn_params *p = &c->p;
    const ring_shape *s = &c->pl.shape;
    const int64_t heads = p->batch ? s->entries_kv / p->batch : 0;
    p->part.keys = 1;
    p->part.key_begin = begin;
    p->part.key_count = end - begin;
    p->k.data = shard + at * s->dim * (int64_t)bytes_of(p->k.dtype);
    p->v.data = shard + values_at(s, length) + at * s->dim_v * (int64_t)bytes_of(p->v.dtype);
    set_key_strides(&p->k, heads, length, s->dim);
    set_key_strides(&p->v, heads, length, s->dim_v);
}

/* One tensor of the rank's own keys or values, packed. */
static void pack_own(const ring_call *c, const attn_tensor *t, int64_t dim, char *to)
{
    const int64_t bytes = dim * (int64_t)bytes_of(t->dtype), length = c->pl.length;
    const int64_t batch = c->own.batch, heads = batch ? c->pl.shape.entries_kv / batch : 0;
    int64_t b, h, x;
    for (b = 0; b < batch; b++)
        for (h = 0; h < heads; h++)
            for (x = 0; x < length; x++, to += bytes)
                memcpy(to,
                       (const char *)t->data +
                           (ptrdiff_t)bytes_of(t->dtype) *
                               ((ptrdiff_t)b * t->stride_batch + (ptrdiff_t)h * t->stride_head +
                                (ptrdiff_t)x * t->stride_seq),
                       (size_t)bytes);
}

/* The rank's own shard into the first buffer. */
static attn_status load_own(ring_call *c)
{
    const attn_ring *ring = c->pl.cuts.ring;
    char *k = c->base + c->pl.buffer[0], *v = k + values_at(&c->pl.shape, c->pl.length);
    if (ring->fetch)
        return ring->fetch(ring->fetch_user, k, v) ? ATTN_ERR_CALLBACK : ATTN_OK;
    pack_own(c, &c->own.k, c->pl.shape.dim, k);
    pack_own(c, &c->own.v, c->pl.shape.dim_v, v);
    return ATTN_OK;
}

/* Whether the part has a pair that may be visible; counts. */
static int has_pairs(ring_call *c)
{
    const double pairs = c->core->visible_pairs(&c->p);
    c->stats->pairs += pairs;
    c->stats->calls += pairs > 0;
    c->stats->skipped += !(pairs > 0);
    return pairs > 0;
}

/* ------------------------------------------------------------------------------------------------
 * 7  Forward. A slot is the raw states of all rows of this rank, range by range.
 * --------------------------------------------------------------------------------------------- */

static attn_state slot_state(const ring_call *c, int slot)
{
    const int64_t rows = c->pl.rows;
    attn_state s;
    s.m = (float *)(void *)(c->base + c->pl.states) + slot * c->pl.slot_floats;
    s.l = s.m + rows;
    s.o = s.l + rows;
    s.num_rows = rows;
    s.head_dim_v = c->pl.shape.dim_v;
    return s;
}

/* A slot of empty states. */
static int take_slot(ring_call *c)
{
    char *used = c->base + c->pl.used;
    attn_state s;
    int slot = 0, i, count = 0;
    int64_t r;
    while (used[slot])
        slot++;
    ATTN_ASSERT(slot < c->pl.slots);
    used[slot] = 1;
    for (i = 0; i < c->pl.slots; i++)
        count += used[i];
    if (count > c->stats->max_pending)
        c->stats->max_pending = count;
    s = slot_state(c, slot);
    for (r = 0; r < s.num_rows; r++)
        s.m[r] = NEG_INF;
    memset(s.l, 0, (size_t)(s.num_rows * (1 + s.head_dim_v)) * sizeof *s.l);
    return slot;
}

/* The states of two slots in one of them. */
static int merge_slots(ring_call *c, int lower, int upper)
{
    attn_state a, b;
    if (lower < 0 || upper < 0)
        return lower < 0 ? upper : lower;
    a = slot_state(c, lower);
    b = slot_state(c, upper);
    attn_state_merge(&a, &b, &a);
    c->base[c->pl.used + upper] = 0;
    return lower;
}

/* The entry of a node, which leaves the list, or -2. Not along the tree: what has come so far. */
static int take_entry(ring_call *c, int level, int64_t index)
{
    int64_t i;
    for (i = 0; i < c->entry_count; i++) {
        const ring_entry entry = c->entries[i];
        if (entry.level != level || entry.index != index)
            continue;
        c->entries[i] = c->entries[--c->entry_count];
        return entry.slot;
    }
    return -2;
}

/* A node is complete: with its sibling it is the node above. */
static void add_entry(ring_call *c, int level, int64_t index, int slot)
{
    const int along_tree = c->pl.cuts.along_tree;
    ring_entry *entry;
    int other;
    while ((other = take_entry(c, level, along_tree ? index ^ 1 : 0)) > -2) {
        slot = along_tree && index % 2 == 0 ? merge_slots(c, slot, other)
                                            : merge_slots(c, other, slot);
        level += along_tree;
        index /= 2;
    }
    entry = &c->entries[c->entry_count++];
    entry->level = level;
    entry->index = index;
    entry->slot = slot;
}

/* Every range of this rank's rows against the keys of the part: a new slot in *slot, unless the
 * masks leave nothing. */
static attn_status compute_rows(ring_call *c, int *slot)
{
    attn_ring_range range;
    attn_status status = ATTN_OK;
    int64_t cursor = 0, at = 0;
    for (; !status && next_range(&c->pl.cuts, c->pl.rank, &cursor, &range); at += range.count) {
        set_part_rows(c, &range, at);
        if (!has_pairs(c))
            continue;
        if (*slot < 0)
            *slot = take_slot(c);
        c->p.state = slot_state(c, *slot);
        c->p.state.m += at * c->pl.shape.entries_q;
        c->p.state.l += at * c->pl.shape.entries_q;
        c->p.state.o += at * c->pl.shape.entries_q * c->pl.shape.dim_v;
        status = attn_forward(&c->p, c->base + c->pl.work, (size_t)c->pl.work_bytes);
    }
    return status;
}

/* The keys of one range, which begin at `at` of a shard of `length`, node by node. */
static attn_status compute_range(ring_call *c, const char *shard, int64_t length, int64_t at,
                                 const attn_ring_range *range)
{
    const ring_cut *cuts = &c->pl.cuts;
    attn_status status = ATTN_OK;
    ring_node node = { 0, 0, 0, 0 };
    int64_t from = 0, to = 1;
    int slot;
    if (cuts->along_tree)
        chunks_of(cuts, range, &from, &to);
    while (from < to && !status) {
        if (cuts->along_tree) {
            node = next_node(cuts, &from, to);
        } else {
            node.begin = range->begin;
            node.end = range->begin + range->count;
            from = to;
        }
        slot = -1;
        set_part_keys(c, shard, length, at + node.begin - range->begin, node.begin, node.end);
        if (node.begin < node.end)
            status = compute_rows(c, &slot);
        add_entry(c, node.level, node.index, slot);
    }
    return status;
}

/* The keys of rank `source`. */
static attn_status compute_shard(ring_call *c, int source, const char *shard)
{
    const int64_t length = held_by(&c->pl.cuts, source, NULL, NULL);
    attn_ring_range range;
    attn_status status = ATTN_OK;
    int64_t cursor = 0, at = 0;
    for (; !status && next_range(&c->pl.cuts, source, &cursor, &range); at += range.count)
        status = compute_range(c, shard, length, at, &range);
    return status;
}

/* Keys or values of a range of a shard to their place in the whole sequence. */
static void scatter_range(char *to, const char *shard, int64_t entries, int64_t bytes,
                          int64_t whole, int64_t length, int64_t at, const attn_ring_range *range)
{
    int64_t e;
    for (e = 0; e < entries; e++)
        memcpy(to + (e * whole + range->begin) * bytes, shard + (e * length + at) * bytes,
               (size_t)(range->count * bytes));
}

static void gather_shard(ring_call *c, int source, const char *shard)
{
    const ring_shape *s = &c->pl.shape;
    const int64_t length = held_by(&c->pl.cuts, source, NULL, NULL), whole = c->pl.cuts.length;
    char *to = c->base + c->pl.gathered;
    attn_ring_range range;
    int64_t cursor = 0, at = 0;
    for (; next_range(&c->pl.cuts, source, &cursor, &range); at += range.count) {
        scatter_range(to, shard, s->entries_kv, s->dim * (int64_t)bytes_of(c->p.k.dtype), whole,
                      length, at, &range);
        scatter_range(to + values_at(s, whole), shard + values_at(s, length), s->entries_kv,
                      s->dim_v * (int64_t)bytes_of(c->p.v.dtype), whole, length, at, &range);
    }
}

/* This rank's rows against all keys at once. */
static attn_status compute_gathered(ring_call *c)
{
    attn_status status;
    int slot = -1;
    set_part_keys(c, c->base + c->pl.gathered, c->pl.cuts.length, 0, 0, c->pl.cuts.length);
    c->p.part.keys = 0; /* all of them */
    c->p.part.key_begin = c->p.part.key_count = 0;
    status = compute_rows(c, &slot);
    add_entry(c, 0, 0, slot);
    return status;
}

static ring_message forward_message(const ring_call *c, int step)
{
    const ring_cut *cuts = &c->pl.cuts;
    const int source = source_at(cuts, c->pl.rank, step);
    const int next = source_at(cuts, c->pl.rank, step + 1);
    ring_message m;
    m.send = c->base + c->pl.buffer[step % 2];
    m.receive = c->base + c->pl.buffer[(step + 1) % 2];
    m.send_bytes = shard_bytes(&c->pl.shape, held_by(cuts, source, NULL, NULL));
    m.receive_bytes = shard_bytes(&c->pl.shape, held_by(cuts, next, NULL, NULL));
    return m;
}

static attn_status write_outputs(ring_call *c)
{
    attn_ring_range range;
    attn_status status = ATTN_OK;
    int64_t cursor = 0, at = 0;
    int slot = c->entry_count ? c->entries[0].slot : -1;
    ATTN_ASSERT(c->entry_count <= 1);
    if (slot < 0)
        slot = take_slot(c);
    c->p.partial = 0;
    c->p.part.keys = 0;
    c->p.part.key_begin = c->p.part.key_count = 0;
    for (; !status && next_range(&c->pl.cuts, c->pl.rank, &cursor, &range); at += range.count) {
        attn_state state = slot_state(c, slot);
        set_part_rows(c, &range, at);
        state.m += at * c->pl.shape.entries_q;
        state.l += at * c->pl.shape.entries_q;
        state.o += at * c->pl.shape.entries_q * state.head_dim_v;
        status = attn_state_finish(&c->p, &state);
    }
    return status;
}

static attn_status ring_attention(ring_call *c)
{
    const ring_cut *cuts = &c->pl.cuts;
    attn_status status = load_own(c);
    int step;
    c->p.partial = 1;
    for (step = 0; step < cuts->ranks; step++) {
        const int source = source_at(cuts, c->pl.rank, step), last = step == cuts->ranks - 1;
        const char *shard = c->base + c->pl.buffer[step % 2];
        if (!last) {
            const ring_message m = forward_message(c, step);
            status = begin_exchange(c, &m, status);
            if (status)
                return status;
        }
        if (!status && cuts->ring->gather)
            gather_shard(c, source, shard);
        else if (!status)
            status = compute_shard(c, source, shard);
        if (!last)
            status = end_exchange(c, status);
    }
    if (!status && cuts->ring->gather)
        status = compute_gathered(c);
    status = agree_on_status(c->t, c->stats, status);
    return status ? status : write_outputs(c);
}

/* ------------------------------------------------------------------------------------------------
 * 8  Backward. Message t holds the keys and values of step t, up to the last that somebody lacks,
 *    and behind them the gradients of those of step t - 1, to which each rank has added its rows'.
 *    After message R, R the number of ranks, those are home.
 * --------------------------------------------------------------------------------------------- */

/* Where gradients lie in the buffer of message t. */
static int64_t gift_at(const ring_call *c, int t)
{
    const ring_cut *cuts = &c->pl.cuts;
    if (t >= cuts->ranks)
        return 0;
    return shard_bytes(&c->pl.shape, held_by(cuts, source_at(cuts, c->pl.rank, t), NULL, NULL));
}

static int64_t gift_bytes(const ring_call *c, int step)
{
    const int64_t length =
        held_by(&c->pl.cuts, source_at(&c->pl.cuts, c->pl.rank, step), NULL, NULL);
    return gift_floats(&c->pl.shape, length) * (int64_t)sizeof(float);
}

static ring_message backward_message(const ring_call *c, int t)
{
    const int keys = t <= c->pl.cuts.ranks - 2, gifts = t > 0;
    ring_message m;
    m.send = c->base + c->pl.buffer[t % 2] + (keys ? 0 : gift_at(c, t));
    m.receive = c->base + c->pl.buffer[(t + 1) % 2];
    m.send_bytes = (keys ? gift_at(c, t) : 0) + (gifts ? gift_bytes(c, t - 1) : 0);
    m.receive_bytes = (keys ? gift_at(c, t + 1) : 0) + (gifts ? gift_bytes(c, t) : 0);
    return m;
}

static void add_floats(float *to, const float *from, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++)
        to[i] = to[i] + from[i];
}

/* [entries, count, dim] to rows `at` and on of [entries, length, dim]. */
static void add_rows(float *to, int64_t length, int64_t at, const float *from, int64_t count,
                     int64_t entries, int64_t dim)
{
    int64_t e;
    for (e = 0; e < entries; e++)
        add_floats(to + (e * length + at) * dim, from + e * count * dim, count * dim);
}

static float *floats_at(const ring_call *c, int64_t offset)
{
    return (float *)(void *)(c->base + offset);
}

/* Gradients of a part go to packed f32 arrays, zero where attn_backward writes nothing. */
static void set_part_gradients(ring_call *c)
{
    const ring_shape *s = &c->pl.shape;
    const int64_t rows = c->p.part.row_count, keys = c->p.part.key_count;
    memset(c->base + c->pl.part_dq, 0, (size_t)(s->entries_q * rows * s->dim) * sizeof(float));
    memset(c->base + c->pl.part_dk, 0, (size_t)(s->entries_kv * keys * s->dim) * sizeof(float));
    memset(c->base + c->pl.part_dv, 0, (size_t)(s->entries_kv * keys * s->dim_v) * sizeof(float));
    memset(&c->g.dq, 0, sizeof c->g.dq);
    c->g.dk = c->g.dv = c->g.dq;
    c->g.dq.data = c->base + c->pl.part_dq;
    c->g.dk.data = c->base + c->pl.part_dk;
    c->g.dv.data = c->base + c->pl.part_dv;
}

/* Keys of one range, which begin at `at` of a shard of `length`, against all rows of this rank. */
static attn_status backward_range(ring_call *c, int64_t length, int64_t at)
{
    const ring_shape *s = &c->pl.shape;
    float *gift = floats_at(c, c->pl.gift);
    const int64_t keys = c->p.part.key_count;
    attn_ring_range range;
    attn_status status = ATTN_OK;
    int64_t cursor = 0, row = 0;
    for (; !status && next_range(&c->pl.cuts, c->pl.rank, &cursor, &range); row += range.count) {
        set_part_rows(c, &range, row);
        if (!has_pairs(c))
            continue;
        set_part_gradients(c);
        status = attn_backward(&c->p, &c->g, c->base + c->pl.work, (size_t)c->pl.work_bytes);
        add_rows(floats_at(c, c->pl.dq), c->pl.length, row, floats_at(c, c->pl.part_dq),
                 range.count, s->entries_q, s->dim);
        add_rows(gift, length, at, floats_at(c, c->pl.part_dk), keys, s->entries_kv, s->dim);
        add_rows(gift + dv_at(s, length), length, at, floats_at(c, c->pl.part_dv), keys,
                 s->entries_kv, s->dim_v);
    }
    return status;
}

/* The rows' gradients by the keys of rank `source`: into `gift`; and by the rows. */
static attn_status backward_shard(ring_call *c, int source, const char *shard)
{
    const int64_t length = held_by(&c->pl.cuts, source, NULL, NULL);
    attn_ring_range range;
    attn_status status = ATTN_OK;
    int64_t cursor = 0, at = 0;
    memset(c->base + c->pl.gift, 0, (size_t)gift_floats(&c->pl.shape, length) * sizeof(float));
    for (; !status && next_range(&c->pl.cuts, source, &cursor, &range); at += range.count) {
        set_part_keys(c, shard, length, at, range.begin, range.begin + range.count);
        status = backward_range(c, length, at);
    }
    return status;
}

/* A row of f32 to an output's row `x` of this rank. */
static void store_row(const attn_output *to, int64_t b, int64_t h, int64_t x, const float *from,
                      int64_t dim)
{
    char *at = (char *)output_at(to, x);
    at += (ptrdiff_t)bytes_of(to->dtype) *
          ((ptrdiff_t)b * to->stride_batch + (ptrdiff_t)h * to->stride_head);
    attn_convert(at, to->dtype, from, ATTN_F32, (size_t)dim);
}

/* Rows first..end - 1 of one batch entry of an output; `from` is [entries, length, dim]. */
static void store_gradient(const ring_call *c, const attn_output *to, int64_t heads, int64_t dim,
                           int64_t b, int64_t first, int64_t end, const float *from)
{
    int64_t h, x;
    for (h = 0; to->data && h < heads; h++)
        for (x = first; x < end; x++)
            store_row(to, b, h, x, from + ((b * heads + h) * c->pl.length + x) * dim, dim);
}

/* Of the rows and keys in use: `home` holds dk and dv. */
static void write_gradients(ring_call *c, const float *home)
{
    const ring_shape *s = &c->pl.shape;
    const attn_gradients *g = &c->own_g;
    attn_ring_range range;
    int64_t cursor = 0, at = 0, b;
    for (; next_range(&c->pl.cuts, c->pl.rank, &cursor, &range); at += range.count) {
        set_part_rows(c, &range, at);
        set_part_keys(c, NULL, c->pl.length, 0, range.begin, range.begin + range.count);
        for (b = 0; b < c->p.batch; b++) {
            const sequence q = c->core->sequence_of(&c->p, b);
            const int64_t row = at - range.begin, key = row + q.column;
            const int64_t heads_kv = s->entries_kv / c->p.batch;
            store_gradient(c, &g->dq, c->p.num_heads_q, s->dim, b, row + q.row_from, row + q.row_to,
                           floats_at(c, c->pl.dq));
            store_gradient(c, &g->dk, heads_kv, s->dim, b, key + q.key_from, key + q.key_to, home);
            store_gradient(c, &g->dv, heads_kv, s->dim_v, b, key + q.key_from, key + q.key_to,
                           home + dv_at(s, c->pl.length));
        }
    }
}

/* What this rank adds joins what came with message t. */
static void join_gifts(ring_call *c, int t)
{
    float *to = floats_at(c, c->pl.buffer[(t + 1) % 2] + gift_at(c, t + 1));
    const float *own = floats_at(c, c->pl.gift);
    if (t == 0)
        memcpy(to, own, (size_t)gift_bytes(c, t));
    else
        add_floats(to, own, gift_bytes(c, t) / (int64_t)sizeof(float));
}

static attn_status ring_gradients(ring_call *c)
{
    const ring_cut *cuts = &c->pl.cuts;
    const int exchanges = cuts->ranks > 1;
    attn_status status = load_own(c);
    int t;
    memset(c->base + c->pl.dq, 0,
           (size_t)(c->pl.shape.entries_q * c->pl.shape.dim * c->pl.length) * sizeof(float));
    for (t = 0; t < cuts->ranks + exchanges; t++) {
        const ring_message m = backward_message(c, t);
        if (exchanges)
            status = begin_exchange(c, &m, status);
        if (exchanges && status)
            return status;
        if (!status && t < cuts->ranks)
            status =
                backward_shard(c, source_at(cuts, c->pl.rank, t), c->base + c->pl.buffer[t % 2]);
        if (exchanges)
            status = end_exchange(c, status);
        if (!status && t < cuts->ranks)
            join_gifts(c, t);
    }
    status = agree_on_status(c->t, c->stats, status);
    if (!status)
        write_gradients(c, floats_at(c, c->pl.buffer[t % 2]));
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 9  Public functions
 * --------------------------------------------------------------------------------------------- */

ATTN_API attn_status attn_ring_ranges(const attn_params *p, const attn_ring *ring, int rank,
                                      attn_ring_range *ranges, int64_t most, int64_t *count)
{
    text why = text_in(NULL, 0);
    attn_ring_range range;
    attn_status status;
    ring_cut cuts;
    int64_t at = 0;
    if (!ring || !ring->transport || !count || most < 0 || (most > 0 && !ranges) || rank < 0 ||
        rank >= ring->transport->size)
        return ATTN_ERR_ARG;
    *count = 0;
    status = check_cut(p, ring, ring->transport->size, &why);
    if (status)
        return status;
    for (cuts = cut_of(p, ring, ring->transport->size); next_range(&cuts, rank, &at, &range);
         ++*count)
        if (*count < most)
            ranges[*count] = range;
    return ATTN_OK;
}

ATTN_API attn_status attn_ring_describe(const attn_params *p, const attn_ring *ring, int rank,
                                        attn_ring_info *info)
{
    text why = text_in(NULL, 0);
    attn_status status;
    ring_cut cuts;
    int r;
    if (!info)
        return ATTN_ERR_ARG;
    memset(info, 0, sizeof *info);
    if (!ring || !ring->transport || rank < 0 || rank >= ring->transport->size)
        return ATTN_ERR_ARG;
    status = check_cut(p, ring, ring->transport->size, &why);
    if (status)
        return status;
    cuts = cut_of(p, ring, ring->transport->size);
    info->canonical = is_canonical(&cuts);
    info->length = held_by(&cuts, rank, &info->ranges, NULL);
    for (r = 0; r < cuts.ranks; r++)
        info->longest = max64(info->longest, held_by(&cuts, r, NULL, NULL));
    return ATTN_OK;
}

static attn_status ring_size(const attn_params *p, const attn_gradients *g, int gradients,
                             const attn_ring *ring, size_t *bytes)
{
    text why = text_in(NULL, 0);
    int64_t need = 0;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    *bytes = 0;
    status = check_transport(ring, &why);
    if (!status)
        status = check_cut(p, ring, ring->transport->size, &why);
    if (!status && gradients && !g)
        status = ATTN_ERR_ARG;
    if (!status && gradients)
        status = check_ring_gradients(p, g, ring, &why);
    if (!status)
        status = ring_bytes(p, g, ring, &need);
    *bytes = status ? 0 : (size_t)need;
    return status;
}

ATTN_API attn_status attn_ring_workspace_size(const attn_params *p, const attn_ring *ring,
                                              size_t *bytes)
{
    return ring_size(p, NULL, 0, ring, bytes);
}

ATTN_API attn_status attn_ring_backward_workspace_size(const attn_params *p,
                                                       const attn_gradients *g,
                                                       const attn_ring *ring, size_t *bytes)
{
    return ring_size(p, g, 1, ring, bytes);
}

static const char *ring_sentence(const attn_params *p, const attn_gradients *g, int gradients,
                                 const attn_ring *ring, const void *workspace, size_t bytes,
                                 char *buffer, size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    const attn_status status = check_ring(p, g, gradients, ring, workspace, bytes, &why);
    if (!status)
        put(&why, "ok");
    return buffer && buffer_bytes ? buffer : attn_status_string(status);
}

ATTN_API const char *attn_ring_check(const attn_params *p, const attn_ring *ring,
                                     const void *workspace, size_t workspace_bytes, char *buffer,
                                     size_t buffer_bytes)
{
    return ring_sentence(p, NULL, 0, ring, workspace, workspace_bytes, buffer, buffer_bytes);
}

ATTN_API const char *attn_ring_backward_check(const attn_params *p, const attn_gradients *g,
                                              const attn_ring *ring, const void *workspace,
                                              size_t workspace_bytes, char *buffer,
                                              size_t buffer_bytes)
{
    return ring_sentence(p, g, 1, ring, workspace, workspace_bytes, buffer, buffer_bytes);
}

/* The call, made ready in its workspace. */
OWN_FRAME static ring_call *open_ring_call(const attn_params *p, const attn_gradients *g,
                                           const attn_ring *ring, attn_ring_stats *stats,
                                           void *workspace)
{
    char *base = (char *)workspace;
    ring_call *c;
    size_t work;
    base = align_memory(base);
    c = (ring_call *)(void *)base;
    memset(c, 0, sizeof *c);
    size_of_parts(p, g, ring, &work); /* cannot fail: it has passed before */
    plan_ring(p, g != NULL, ring, work, &c->pl);
    c->base = base;
    c->t = ring->transport;
    c->stats = stats;
    c->core = attn_core_get();
    c->own = *p;
    resolve_own(&c->own, c->pl.length);
    c->p = c->own;
    if (g) {
        c->own_g = *g;
        resolve_own_gradients(p, &c->own_g, c->pl.length);
        c->g = c->own_g;
    } else {
        memset(base + c->pl.used, 0, (size_t)c->pl.slots);
        c->entries = (ring_entry *)(void *)(base + c->pl.entries);
    }
    stats->canonical = !g && is_canonical(&c->pl.cuts);
    return c;
}

static attn_status ring_run(const attn_params *p, const attn_gradients *g, int gradients,
                            const attn_ring *ring, void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    attn_status status = check_transport(ring, &why);
    attn_ring_stats stats;
    ring_call *c;
    if (status)
        return status;
    memset(&stats, 0, sizeof stats);
    stats.failed_rank = -1;
    status = check_ring(p, g, gradients, ring, workspace, bytes, &why);
    status = agree_on_status(ring->transport, &stats, status);
    if (!status)
        status = agree_on_call(ring->transport, &stats,
                               call_hash(p, gradients, ring, ring->transport->size));
    if (!status) {
        c = open_ring_call(p, g, ring, &stats, workspace);
        status = g ? ring_gradients(c) : ring_attention(c);
    }
    if (ring->stats)
        *ring->stats = stats;
    return status;
}

ATTN_API attn_status attn_ring_forward(const attn_params *p, const attn_ring *ring, void *workspace,
                                       size_t workspace_bytes)
{
    return ring_run(p, NULL, 0, ring, workspace, workspace_bytes);
}

ATTN_API attn_status attn_ring_backward(const attn_params *p, const attn_gradients *g,
                                        const attn_ring *ring, void *workspace,
                                        size_t workspace_bytes)
{
    return ring_run(p, g, 1, ring, workspace, workspace_bytes);
}
