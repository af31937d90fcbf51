/* src/opencl/plan.c - the plan: sizes of a call, a pure function of device and problem.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../tree.c"
#include "fields.c"

#define MOST_KEYS ((int64_t)1 << 30) /* of a sequence: kernels count them in 32 bits */
#define WHOLE ((int64_t)1 << 62)     /* keys of a part that is not divided */
#define GROUPS_PER_UNIT 4            /* work-groups for a compute unit to choose from */

/* A program holds the kernels of one part of kernels.cl, built for one choice of each option. */
enum program_part { PART_FORWARD, PART_ROWS, PART_NAIVE, PART_CHECK, PART_BACKWARD, PART_COUNT };

typedef struct variant {
    int part, exact;
    int kv_type; /* an attn_dtype, or MIXED */
    int rows;    /* of a tile: 16, 32, 64 */
    int columns; /* of V: 64, 128, 256 */
    int pairs;
} variant;

enum { MIXED = 3 };

/* The plan depends on device_limits besides the problem. */
typedef struct device_limits {
    int compute_units;
    size_t local_bytes, allocation_bytes;
    int exact;
    int divide; /* keys even where they are few: for a first use */
} device_limits;

typedef struct device_plan {
    variant forward;
    int64_t tiles, parts, slices, items, groups;
    int64_t chunk_keys, part_keys;
    int64_t levels; /* of the tree: states of a work-group that may wait at once */
    int64_t pending_bytes, parts_bytes; /* of device memory */
    int64_t statistics_bytes;           /* of rows, for gradients */
    int64_t local_bytes;                /* of a work-group */
    unsigned programs;                  /* that the call runs: bit 1 << part */
} device_plan;

/* local_bytes_of counts the local memory of a work-group of the kernel forward: see its arrays. */
static int64_t local_bytes_of(int rows, int columns)
{
    const int64_t slices = (int64_t)(rows + CL_BN) * 36;
    const int64_t values = (int64_t)(columns <= 128 ? 32 : 16) * columns;
    const int64_t blocks = CL_BN / CL_BLOCK;
    return 4 * (max64(slices, values) + rows * (CL_BN + 1) + rows * (2 + 2 * blocks + 2) + 6) +
           8 * (rows + 2 * CL_BN);
}

static int64_t round_up(int64_t n, int64_t to)
{
    return ceil_div(n, to) * to;
}

static int64_t most_of(const attn_problem *pr,
                       int64_t (*of)(const attn_problem *, const attn_sequence *))
{
    int64_t b, most = 0;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        most = max64(most, of(pr, &s));
    }
    return most;
}

/* parts_of counts the parts of part_keys each, counted from n = 0, that the keys of a sequence
 * touch. */
static int64_t parts_of(const attn_sequence *s, int64_t part_keys)
{
    if (s->kv_len == 0)
        return 0;
    return (s->key_base + s->kv_len - 1) / part_keys - s->key_base / part_keys + 1;
}

/* chunks_of counts the chunks that the keys of a sequence touch. */
static int64_t chunks_of(const attn_problem *pr, const attn_sequence *s)
{
    (void)pr;
    return parts_of(s, ATTN_CHUNK);
}

/* count_parts gives the most parts of any sequence, at least 1. */
static int64_t count_parts(const attn_problem *pr, int64_t part_keys)
{
    int64_t b, most = 1;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        most = max64(most, parts_of(&s, part_keys));
    }
    return most;
}

static int64_t count_tiles(const attn_problem *pr, int rows)
{
    int64_t b, n = 0;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        n += ceil_div(s.q_len * pr->group, rows);
    }
    return n;
}

/* These flags must be asked pair by pair; callbacks are refused before. */
#define F_BY_PAIR                                                                                  \
    (F_BITMAP | F_CSR | F_TREE | F_SEGMENTS | F_BOOL_MASK | F_BIT_MASK | F_SOFTCAP | F_BIAS |      \
     F_ALIBI | F_DROPOUT)

static int has_pairs(const attn_params *p)
{
    return (flags_of(walk_fields(p)) & F_BY_PAIR) != 0;
}

/* divide_keys divides the keys of few tiles, which do not fill the device. Exact parts are nodes of
 * the tree. */
static void divide_keys(const attn_problem *pr, const device_limits *limits, device_plan *pl)
{
    const int64_t wanted = (int64_t)limits->compute_units * GROUPS_PER_UNIT;
    const int64_t whole = pl->tiles * pr->p.num_heads_kv * pl->slices;
    const int64_t unit = limits->exact ? ATTN_CHUNK : 4 * CL_BN;
    int64_t parts = min64(CL_MAX_PARTS, wanted / max64(1, whole));
    pl->part_keys = WHOLE;
    pl->parts = 1;
    if (parts > 1 && (limits->divide || pr->max_kv_len > unit)) {
        pl->part_keys = unit;
        while (count_parts(pr, pl->part_keys) > parts)
            pl->part_keys *= 2;
        pl->parts = count_parts(pr, pl->part_keys);
        if (pl->parts == 1)
            pl->part_keys = WHOLE;
    }
    pl->chunk_keys = limits->exact ? ATTN_CHUNK : pl->part_keys;
}

static int writes_values(const attn_params *p)
{
    return p->partial || p->o.data;
}

static unsigned choose_programs(const attn_problem *pr, const device_plan *pl)
{
    const attn_params *p = &pr->p;
    const int naive = pr->impl == ATTN_IMPL_NAIVE;
    const int tiled =
        !naive && pl->items > 0 && (pr->size_query || writes_values(p) || p->lse.data);
    const int rows = (tiled && pl->parts > 1) || p->logits.data;
    return (tiled ? 1u << PART_FORWARD : 0) | (rows ? 1u << PART_ROWS : 0) |
           (naive ? 1u << PART_NAIVE : 0);
}

static int runs(const device_plan *pl, int part)
{
    return (pl->programs >> part & 1) != 0;
}

static device_plan plan_forward(const attn_problem *pr, const device_limits *limits)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pr->max_q_len * pr->group;
    const int64_t columns = writes_values(p) || pr->size_query ? p->head_dim_v : 1;
    int64_t chunks;
    device_plan pl;
    memset(&pl, 0, sizeof pl);
    pl.forward.part = PART_FORWARD;
    pl.forward.exact = limits->exact;
    pl.forward.kv_type = p->k.dtype == p->v.dtype ? p->k.dtype : MIXED;
    pl.forward.pairs = has_pairs(p);
    pl.forward.columns = columns <= 64 ? 64 : columns <= 128 ? 128 : 256;
    pl.forward.rows = rows <= 16 ? 16 : pl.forward.columns == 256 ? 32 : 64; /* in registers */
    while (pl.forward.rows > 16 &&
           local_bytes_of(pl.forward.rows, pl.forward.columns) > (int64_t)limits->local_bytes)
        pl.forward.rows /= 2;
    pl.tiles = count_tiles(pr, pl.forward.rows);
    pl.slices = ceil_div(columns, pl.forward.columns);
    divide_keys(pr, limits, &pl);
    pl.items = pl.tiles * p->num_heads_kv * pl.parts * pl.slices;
    chunks = min64(most_of(pr, chunks_of), pl.part_keys / ATTN_CHUNK); /* that become one */
    pl.levels = limits->exact ? tree_levels(chunks) : 0;
    pl.groups =
        pl.levels ? min64(pl.items, (int64_t)limits->compute_units * GROUPS_PER_UNIT) : pl.items;
    pl.pending_bytes = 4 * pl.groups * pl.levels * pl.forward.rows * (pl.forward.columns + 2);
    pl.parts_bytes = pl.parts == 1 ? 0
                                   : 4 * pl.tiles * p->num_heads_kv * pl.forward.rows * pl.parts *
                                         (p->head_dim_v + 2);
    pl.programs = choose_programs(pr, &pl);
    pl.local_bytes =
        runs(&pl, PART_NAIVE) ? 0 : local_bytes_of(pl.forward.rows, pl.forward.columns);
    return pl;
}

/* all_rows counts the rows of all heads, as state_row numbers them. */
static int64_t all_rows(const attn_params *p)
{
    return p->num_heads_q * p->seq_len_q * (p->cu_seqlens_q ? 1 : p->batch);
}

/* The kernels of gradients have no block_m and alpha in local memory, but dout_at. */
static int64_t gradient_local_bytes(const device_plan *pl)
{
    return local_bytes_of(pl->forward.rows, pl->forward.columns) + 8 * pl->forward.rows;
}

/* plan_gradients plans what sessions need: the kernels of gradients count tiles themselves. */
static device_plan plan_gradients(const attn_problem *pr, const device_limits *limits)
{
    const int64_t columns = max64(pr->p.head_dim, pr->p.head_dim_v);
    device_plan pl;
    memset(&pl, 0, sizeof pl);
    pl.forward.part = PART_BACKWARD;
    pl.forward.exact = limits->exact;
    pl.forward.kv_type = MIXED;
    pl.forward.pairs = has_pairs(&pr->p);
    pl.forward.columns = columns <= 64 ? 64 : 128;
    pl.forward.rows = 64;
    if (gradient_local_bytes(&pl) > (int64_t)limits->local_bytes)
        pl.forward.rows = 32;
    pl.local_bytes = gradient_local_bytes(&pl);
    pl.statistics_bytes = 12 * all_rows(&pr->p);
    pl.programs = 1u << PART_BACKWARD;
    pl.slices = ceil_div(pr->p.head_dim, pl.forward.columns);
    return pl;
}

/* plan_device plans attn_backward where gradients is nonzero, else attn_forward. */
static device_plan plan_device(const attn_problem *pr, const device_limits *limits, int gradients)
{
    return gradients ? plan_gradients(pr, limits) : plan_forward(pr, limits);
}

/* matrix_bytes counts the bytes of the logits of a head, which the textbook stores. */
static int64_t matrix_bytes(const attn_problem *pr)
{
    const int countable = pr->max_q_len <= MOST_KEYS && pr->max_kv_len <= MOST_KEYS;
    return countable ? 4 * pr->max_q_len * pr->max_kv_len : INT64_MAX;
}

typedef struct refusal {
    int applies;
    const char *why;
} refusal;

/* refuse returns whether one of the refusals applies; *why then has the first. */
static int refuse(const refusal *refusals, int count, text *why)
{
    int i = 0;
    while (i < count && !refusals[i].applies)
        i++;
    put(why, i < count ? refusals[i].why : "");
    return i < count;
}

/* refuse_plan returns whether no device of these limits can run the call; *why then says why. */
static int refuse_plan(const attn_problem *pr, const device_limits *limits, const device_plan *pl,
                       text *why)
{
    const int naive = pr->impl == ATTN_IMPL_NAIVE, gradients = runs(pl, PART_BACKWARD);
    const int64_t most = min64((int64_t)limits->allocation_bytes, INT64_MAX / 4); /* of an array */
    const refusal refusals[] = {
        { naive && gradients, "naive gradients are the CPU's" },
        { naive && pr->p.partial, "naive on a device has no raw states" },
        { naive && matrix_bytes(pr) > most, "the logits of a head exceed an array of the device" },
        { pr->max_kv_len > MOST_KEYS, "a sequence has more than 2^30 keys" },
        { pr->max_q_len > MOST_KEYS / pr->group, "a sequence has more than 2^30 rows of a group" },
        { pl->local_bytes > (int64_t)limits->local_bytes,
          "its work-groups have too little local memory for a tile" },
        { pl->pending_bytes > most || pl->parts_bytes > most,
          "partial states exceed an array of the device" },
        { pl->statistics_bytes > most, "statistics of rows exceed an array of the device" },
    };
    return refuse_unknown(&pr->p, why) || refuse(refusals, COUNT_OF(refusals), why);
}
