/* src/opencl/plan.c - the plan: sizes of a call, a pure function of device and problem.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../tree.c"
#include "fields.c"

#define MOST_KEYS ((int64_t)1 << 30) /* of a sequence: kernels count them in 32 bits */
#define WHOLE ((int64_t)1 << 62)     /* keys of a part that is not divided */

enum { FEW_ROWS = 4 };          /* a tile of them has fewer items */
enum { ITEMS_PER_UNIT = 1024 }; /* of work-groups for a compute unit to choose from */

/* A program holds the kernels of one part of kernels.cl, built for one choice of each option. */
enum program_part {
    PART_FORWARD,
    PART_ROWS,
    PART_ROTATE,
    PART_NAIVE,
    PART_CHECK,
    PART_BACKWARD,
    PART_COUNT
};

typedef struct variant {
    int part, exact;
    int kv_type; /* an attn_dtype, or MIXED */
    int rows;    /* of a tile: FEW_ROWS, 16, 32, 64 */
    int columns; /* of V: 64, 128, 256 */
    int pairs;
    int whole; /* scores are of whole numbers */
} variant;

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
    int64_t queries_bytes;              /* of queries rotated or rounded, 0 = read as given */
    int64_t results_bytes;              /* of results that are then rotated back */
    int64_t statistics_bytes;           /* of rows, for gradients */
    int64_t local_bytes;                /* of a work-group */
    unsigned programs;                  /* that the call runs: bit 1 << part */
} device_plan;

/* A row takes these bytes of local memory beside its logits: of the kernel forward m, l, block_m,
 * alpha, lo, hi and q_at; of the kernels of gradients m, l, inverse, lo, hi, q_at and dout_at. */
enum {
    FORWARD_ROW_BYTES = 4 * (2 + 2 * (CL_BN / CL_BLOCK) + 2) + 8,
    GRADIENT_ROW_BYTES = 4 * (3 + 2) + 8 * 2
};

/* local_bytes_of counts the local memory of a work-group of the kernels for tiles: see their
 * arrays. */
static int64_t local_bytes_of(int rows, int columns, int row_bytes)
{
    const int64_t slices = (int64_t)(rows + CL_BN) * 36;
    const int64_t values = (int64_t)(columns <= 128 ? 32 : 16) * columns;
    return 4 * (max64(slices, values) + rows * (CL_BN + 4) + 6) + (int64_t)rows * row_bytes +
           8 * 2 * CL_BN;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return ceil_div(n, to) * to;
}

/* count_parts gives the most parts of part_keys each, counted from n = 0, that the keys of a
 * sequence touch, at least 1. */
static int64_t count_parts(const attn_problem *pr, int64_t part_keys)
{
    int64_t b, most = 1;
    for (b = 0; b < pr->p.batch; b++) {
        const attn_sequence s = attn_sequence_of(pr, b);
        const int64_t end = s.key_base + s.kv_len;
        most = max64(most, (end - 1) / part_keys - s.key_base / part_keys + 1);
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

/* groups_wanted counts the work-groups that fill the device. */
static int64_t groups_wanted(const device_limits *limits, const device_plan *pl)
{
    return (int64_t)limits->compute_units * ITEMS_PER_UNIT /
           (CL_TX * min64(pl->forward.rows, CL_TY));
}

/* divide_keys divides the keys of few tiles, which do not fill the device. Exact parts are nodes of
 * the tree. */
static void divide_keys(const attn_problem *pr, const device_limits *limits, device_plan *pl)
{
    const int64_t whole = pl->tiles * pr->p.num_heads_kv * pl->slices;
    const int64_t unit = limits->exact ? ATTN_CHUNK : CL_BN;
    int64_t parts = min64(CL_MAX_PARTS, groups_wanted(limits, pl) / max64(1, whole));
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

/* all_rows counts the rows of all heads, as state_row numbers them. */
static int64_t all_rows(const attn_params *p)
{
    return p->num_heads_q * p->seq_len_q * (p->cu_seqlens_q ? 1 : p->batch);
}

/* query_floats counts the floats of a row of queries rotated or rounded, which is followed by a scale
 * for each unit of whole numbers. */
static int64_t query_floats(const attn_params *p)
{
    return p->head_dim + (p->integer ? p->head_dim / CL_UNIT : 0);
}

static void plan_rotation(const attn_problem *pr, device_plan *pl)
{
    const attn_params *p = &pr->p;
    const int runs_any = pr->max_q_len > 0;
    if (runs_any && (p->integer || p->rotated & ATTN_ROTATED_K))
        pl->queries_bytes = times(all_rows(p), 4 * query_floats(p));
    if (runs_any && p->rotated & ATTN_ROTATED_V && p->o.data && !p->partial)
        pl->results_bytes = times(all_rows(p), 4 * p->head_dim_v);
}

static unsigned choose_programs(const attn_problem *pr, const device_plan *pl)
{
    const attn_params *p = &pr->p;
    const int rows = pr->size_query || writes_values(p) || p->lse.data || p->stats.data;
    const int tiled = pl->items > 0 && rows;
    const unsigned others = (p->logits.data ? 1u << PART_ROWS : 0) |
                            (pl->queries_bytes || pl->results_bytes ? 1u << PART_ROTATE : 0);
    if (pr->impl == ATTN_IMPL_NAIVE)
        return 1u << PART_NAIVE | others;
    return (tiled ? 1u << PART_FORWARD : 0) | (tiled && pl->parts > 1 ? 1u << PART_ROWS : 0) |
           others;
}

static int runs(const device_plan *pl, int part)
{
    return (pl->programs >> part & 1) != 0;
}

/* forward_variant has tiles as large as registers and local memory allow. */
static variant forward_variant(const attn_problem *pr, const device_limits *limits, int64_t columns)
{
    const attn_params *p = &pr->p;
    const int64_t rows = pr->max_q_len * pr->group;
    variant v = { PART_FORWARD, limits->exact, p->k.dtype, 64, 256, has_pairs(p), p->integer != 0 };
    if (p->k.dtype != p->v.dtype)
        v.kv_type = MIXED;
    if (columns <= 128)
        v.columns = columns <= 64 ? 64 : 128;
    v.rows = rows <= FEW_ROWS ? FEW_ROWS : rows <= 16 ? 16 : v.columns == 256 ? 32 : 64;
    while (v.rows > 16 &&
           local_bytes_of(v.rows, v.columns, FORWARD_ROW_BYTES) > (int64_t)limits->local_bytes)
        v.rows /= 2;
    return v;
}

static device_plan plan_forward(const attn_problem *pr, const device_limits *limits)
{
    const attn_params *p = &pr->p;
    const int64_t columns = writes_values(p) || pr->size_query ? p->head_dim_v : 1;
    device_plan pl = { .forward = forward_variant(pr, limits, columns) };
    int64_t chunks;
    pl.tiles = count_tiles(pr, pl.forward.rows);
    pl.slices = ceil_div(columns, pl.forward.columns);
    divide_keys(pr, limits, &pl);
    pl.items = pl.tiles * p->num_heads_kv * pl.parts * pl.slices;
    chunks = min64(count_parts(pr, ATTN_CHUNK), pl.part_keys / ATTN_CHUNK); /* that become one */
    pl.levels = limits->exact ? log2_up(chunks) : 0;
    pl.groups = pl.levels ? min64(pl.items, groups_wanted(limits, &pl)) : pl.items;
    pl.pending_bytes = 4 * pl.groups * pl.levels * pl.forward.rows * (pl.forward.columns + 2);
    if (pl.parts > 1)
        pl.parts_bytes =
            4 * pl.tiles * p->num_heads_kv * pl.forward.rows * pl.parts * (p->head_dim_v + 2);
    plan_rotation(pr, &pl);
    pl.programs = choose_programs(pr, &pl);
    if (!runs(&pl, PART_NAIVE))
        pl.local_bytes = local_bytes_of(pl.forward.rows, pl.forward.columns, FORWARD_ROW_BYTES);
    return pl;
}

static int64_t gradient_local_bytes(const device_plan *pl)
{
    return local_bytes_of(pl->forward.rows, pl->forward.columns, GRADIENT_ROW_BYTES);
}

/* plan_gradients plans what sessions need: the kernels of gradients count tiles themselves. */
static device_plan plan_gradients(const attn_problem *pr, const device_limits *limits)
{
    const int columns = max64(pr->p.head_dim, pr->p.head_dim_v) <= 64 ? 64 : 128;
    device_plan pl = {
        .forward = { PART_BACKWARD, limits->exact, MIXED, 64, columns, has_pairs(&pr->p), 0 },
        .programs = 1u << PART_BACKWARD,
        .slices = ceil_div(pr->p.head_dim, columns),
        .statistics_bytes = 4 * KNOWN_COUNT * all_rows(&pr->p),
    };
    if (gradient_local_bytes(&pl) > (int64_t)limits->local_bytes)
        pl.forward.rows = 32;
    pl.local_bytes = gradient_local_bytes(&pl);
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

/* first_refusal gives the sentence of the first refusal that applies, or NULL. */
static const char *first_refusal(const refusal *refusals, int count)
{
    int i = 0;
    while (i < count && !refusals[i].applies)
        i++;
    return i < count ? refusals[i].why : NULL;
}

/* plan_fault says why no device of these limits can run the call, or gives NULL. */
static const char *plan_fault(const attn_problem *pr, const device_limits *limits,
                              const device_plan *pl)
{
    const int naive = pr->impl == ATTN_IMPL_NAIVE, gradients = runs(pl, PART_BACKWARD);
    const int64_t most = min64((int64_t)limits->allocation_bytes, INT64_MAX / 4); /* of an array */
    const refusal refusals[] = {
        { naive && gradients, "naive gradients are the CPU's" },
        { gradients && (pr->p.kv_rows.ring || pr->p.kv_rows.page_size),
          "gradients of keys in a cache are the CPU's" },
        { naive && pr->p.partial, "naive on a device has no raw states" },
        { naive && matrix_bytes(pr) > most, "the logits of a head exceed an array of the device" },
        { pr->max_kv_len > MOST_KEYS, "a sequence has more than 2^30 keys" },
        { pr->max_q_len > MOST_KEYS / pr->group, "a sequence has more than 2^30 rows of a group" },
        { pl->local_bytes > (int64_t)limits->local_bytes,
          "its work-groups have too little local memory for a tile" },
        { pl->pending_bytes > most || pl->parts_bytes > most,
          "partial states exceed an array of the device" },
        { pl->queries_bytes > most || pl->results_bytes > most,
          "rotated or rounded rows exceed an array of the device" },
        { pl->statistics_bytes > most, "statistics of rows exceed an array of the device" },
    };
    return first_refusal(refusals, COUNT_OF(refusals));
}
