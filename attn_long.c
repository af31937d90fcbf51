/* attn_long.c - long sequences: patterns of cells, dilated attention. The manual is attn_long.h,
 * the order of every operation docs/canon.md.
 * SPDX-License-Identifier: MIT (full text at the end of attn.c)
 * attn 0.1.0
 *
 * CONTENTS
 *    1  Patterns      which cell is visible; measured, built
 *    2  Lattice       which positions a branch takes
 *    3  Validation    every sentence about bad input
 *    4  Plan          blocks of rows, what a worker's slot holds
 *    5  Slot          an item: branches, classes of heads, spans of segments
 *    6  Strided       attention in place, states merged
 *    7  Gathered      attention on copies, results merged
 *    8  Forward       items, public functions
 *    9  Backward      gradients of the branches, added up
 */
#ifndef ATTN_INTERNAL
#define ATTN_INTERNAL
#endif
#include "attn_long.h"

/* ------------------------------------------------------------------------------------------------
 * 1  Patterns
 * --------------------------------------------------------------------------------------------- */

ATTN_API attn_pattern attn_pattern_longformer(int64_t each_side, int64_t global)
{
    attn_pattern t;
    memset(&t, 0, sizeof t);
    t.local = 1;
    t.local_before = t.local_after = each_side;
    t.global_columns = t.global_rows = global;
    return t;
}

ATTN_API attn_pattern attn_pattern_strided(int64_t stride)
{
    attn_pattern t = attn_pattern_longformer(0, 0);
    t.local_before = max64(stride, 1) - 1;
    t.stride = stride;
    return t;
}

ATTN_API attn_pattern attn_pattern_random(int64_t count, uint64_t seed)
{
    attn_pattern t = attn_pattern_longformer(0, 0);
    t.random = count;
    t.seed = seed;
    return t;
}

ATTN_API attn_pattern attn_pattern_bigbird(int64_t window, int64_t global, int64_t random,
                                           uint64_t seed)
{
    attn_pattern t = attn_pattern_longformer(0, global);
    t.local_before = max64(window, 1) / 2;
    t.local_after = max64(window, 1) - 1 - t.local_before;
    t.random = random;
    t.seed = seed;
    return t;
}

/* A pattern with its sizes in cells. */
typedef struct cell_grid {
    attn_pattern t;
    int64_t rows, columns, heads;
} cell_grid;

#define PATTERN_RULE(field, least, most) #field, offsetof(attn_pattern, field), least, most

static const size_rule pattern_rules[] = {
    { PATTERN_RULE(seq_len_q, 0, MOST) },      { PATTERN_RULE(seq_len_kv, 0, MOST) },
    { PATTERN_RULE(block_q, 0, MOST) },        { PATTERN_RULE(block_k, 0, MOST) },
    { PATTERN_RULE(num_heads, 0, INT32_MAX) }, { PATTERN_RULE(local_before, 0, MOST) },
    { PATTERN_RULE(local_after, 0, MOST) },    { PATTERN_RULE(global_columns, 0, MOST) },
    { PATTERN_RULE(global_rows, 0, MOST) },    { PATTERN_RULE(stride, 0, MOST) },
    { PATTERN_RULE(fixed, 0, MOST) },          { PATTERN_RULE(random, 0, MOST) },
};

static attn_status open_grid(const attn_pattern *t, cell_grid *grid, text *why)
{
    attn_status status;
    if (!t)
        return bad(why, ATTN_ERR_ARG, "pattern is NULL");
    status = check_counts(t, pattern_rules, COUNT_OF(pattern_rules), why);
    if (status)
        return status;
    grid->t = *t;
    grid->t.block_q = t->block_q ? t->block_q : 64;
    grid->t.block_k = t->block_k ? t->block_k : 64;
    grid->rows = ceil_div(t->seq_len_q, grid->t.block_q);
    grid->columns = ceil_div(t->seq_len_kv, grid->t.block_k);
    grid->heads = max64(t->num_heads, 1);
    if (times(grid->heads, grid->rows + 1) > INT32_MAX || grid->columns > INT32_MAX)
        return bad(why, ATTN_ERR_OVERFLOW, "the pattern has more cells than int32_t counts");
    return ATTN_OK;
}

/* A row of cells: its diagonal, and the columns it may see. */
typedef struct cell_row {
    int64_t head, row;
    int64_t first, last; /* columns of the diagonal; they may lie before column 0 */
    int64_t end;         /* columns below it */
} cell_row;

/* The column of a position, which may be negative. */
static int64_t column_of(const cell_grid *grid, int64_t position)
{
    const int64_t size = grid->t.block_k;
    return position < 0 ? -ceil_div(-position, size) : position / size;
}

static cell_row open_cell_row(const cell_grid *grid, int64_t head, int64_t row)
{
    const attn_pattern *t = &grid->t;
    const int64_t offset = t->seq_len_kv - t->seq_len_q, begin = row * t->block_q;
    const int64_t end = min64(begin + t->block_q, t->seq_len_q);
    cell_row at;
    at.head = head;
    at.row = row;
    at.first = column_of(grid, begin + offset);
    at.last = column_of(grid, end - 1 + offset);
    at.end = t->causal ? max64(0, min64(at.last + 1, grid->columns)) : grid->columns;
    return at;
}

/* Whether a part other than `random` shows the cell. */
static int shows(const attn_pattern *t, const cell_row *at, int64_t column)
{
    const int64_t before = at->first - column, after = column - at->last;
    const int64_t away = max64(0, max64(before, after)); /* from the diagonal */
    if (t->local && before <= t->local_before && after <= t->local_after)
        return 1;
    if (column < t->global_columns || at->row < t->global_rows)
        return 1;
    return (t->stride && away % t->stride == 0) || (t->fixed && column % t->fixed == t->fixed - 1);
}

/* 32 bits that depend on nothing but these numbers: splitmix64 (Steele et al. 2014) over each. */
static uint32_t cell_hash(uint64_t seed, const cell_row *at, int64_t column)
{
    const uint64_t numbers[4] = { seed, (uint64_t)at->head, (uint64_t)at->row, (uint64_t)column };
    uint64_t x = 0;
    int i;
    for (i = 0; i < 4; i++) {
        x = (x ^ numbers[i]) + 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return (uint32_t)(x >> 32);
}

/* Visible columns of a row, ascending, to `columns` unless that is NULL; returns how many. Random
 * ones by selection sampling (Knuth, TAOCP 2, algorithm 3.4.2 S): each of `left` candidates is
 * taken with probability wanted / left, so that exactly as many are taken as are wanted. */
static int64_t cells_of_row(const cell_grid *grid, const cell_row *at, int32_t *columns)
{
    const attn_pattern *t = &grid->t;
    int64_t column, left = 0, wanted = t->random, count = 0;
    for (column = 0; column < at->end && wanted; column++)
        left += !shows(t, at, column);
    wanted = min64(wanted, left);
    for (column = 0; column < at->end; column++) {
        int visible = shows(t, at, column);
        if (!visible && wanted) {
            const uint64_t x = cell_hash(t->seed, at, column);
            visible = (int64_t)((x * (uint64_t)left) >> 32) < wanted;
            wanted -= visible;
            left--;
        }
        if (visible && columns)
            columns[count] = (int32_t)column;
        count += visible;
    }
    return count;
}

static attn_status measure_cells(const cell_grid *grid, attn_pattern_info *info, text *why)
{
    int64_t head, row, all;
    info->heads = (int)grid->heads;
    info->rows = grid->rows;
    info->columns = grid->columns;
    info->num_offsets = grid->heads * (grid->rows + 1);
    for (head = 0; head < grid->heads; head++)
        for (row = 0; row < grid->rows; row++) {
            const cell_row at = open_cell_row(grid, head, row);
            info->num_columns += cells_of_row(grid, &at, NULL);
            if (info->num_columns > INT32_MAX)
                return bad(why, ATTN_ERR_OVERFLOW,
                           "the pattern has more cells than int32_t counts");
        }
    all = times(times(grid->heads, grid->rows), grid->columns);
    info->density = all ? (double)info->num_columns / (double)all : 0.0;
    return ATTN_OK;
}

ATTN_API attn_status attn_pattern_measure(const attn_pattern *t, attn_pattern_info *info, char *why,
                                          size_t why_bytes)
{
    text reason = text_in(why, why_bytes);
    cell_grid grid;
    attn_status status;
    if (!info)
        return bad(&reason, ATTN_ERR_ARG, "info is NULL");
    memset(info, 0, sizeof *info);
    status = open_grid(t, &grid, &reason);
    return status ? status : measure_cells(&grid, info, &reason);
}

static attn_status check_pattern_room(const attn_pattern_info *info, const int32_t *row_offsets,
                                      int64_t num_offsets, const int32_t *columns,
                                      int64_t num_columns, text *why)
{
    if (!row_offsets || num_offsets < info->num_offsets) {
        put_field(why, "num_offsets", row_offsets ? num_offsets : 0);
        put(why, " must be at least ");
        put_int(why, info->num_offsets);
        return bad(why, ATTN_ERR_WORKSPACE, "; attn_pattern_measure says how many");
    }
    if ((!columns && info->num_columns) || num_columns < info->num_columns) {
        put_field(why, "num_columns", columns ? num_columns : 0);
        put(why, " must be at least ");
        put_int(why, info->num_columns);
        return bad(why, ATTN_ERR_WORKSPACE, "; attn_pattern_measure says how many");
    }
    return ATTN_OK;
}

ATTN_API attn_status attn_pattern_build(const attn_pattern *t, int32_t *row_offsets,
                                        int64_t num_offsets, int32_t *columns, int64_t num_columns,
                                        char *why, size_t why_bytes)
{
    text reason = text_in(why, why_bytes);
    attn_pattern_info info;
    cell_grid grid;
    int64_t head, row, count = 0;
    attn_status status;
    memset(&info, 0, sizeof info);
    status = open_grid(t, &grid, &reason);
    if (!status)
        status = measure_cells(&grid, &info, &reason);
    if (!status)
        status = check_pattern_room(&info, row_offsets, num_offsets, columns, num_columns, &reason);
    if (status)
        return status;
    for (head = 0; head < grid.heads; head++) {
        *row_offsets++ = (int32_t)count;
        for (row = 0; row < grid.rows; row++) {
            const cell_row at = open_cell_row(&grid, head, row);
            count += cells_of_row(&grid, &at, columns ? columns + count : NULL);
            *row_offsets++ = (int32_t)count;
        }
    }
    return ATTN_OK;
}

ATTN_API attn_status attn_pattern_use(const attn_pattern *t, const int32_t *row_offsets,
                                      const int32_t *columns, attn_params *p)
{
    text why = text_in(NULL, 0);
    cell_grid grid;
    const attn_status status = open_grid(t, &grid, &why);
    if (status || !row_offsets || !columns || !p)
        return status ? status : ATTN_ERR_ARG;
    if (p->seq_len_q != grid.t.seq_len_q || p->seq_len_kv != grid.t.seq_len_kv ||
        (grid.t.num_heads && p->num_heads_q != grid.t.num_heads))
        return ATTN_ERR_ARG;
    memset(&p->block_mask, 0, sizeof p->block_mask);
    p->block_mask.block_q = grid.t.block_q;
    p->block_mask.block_k = grid.t.block_k;
    p->block_mask.row_offsets = row_offsets;
    p->block_mask.columns = columns;
    p->block_mask.csr_stride_head = grid.t.num_heads ? to_stride(grid.rows + 1) : 0;
    return ATTN_OK;
}

/* ------------------------------------------------------------------------------------------------
 * 2  Lattice: positions first, first + dilation, ... of every segment of a sequence
 * --------------------------------------------------------------------------------------------- */

typedef struct lattice {
    int64_t segment, dilation, first;
} lattice;

/* Of a branch for the head, in a sequence of so many positions. */
static lattice lattice_of(const attn_dilated_branch *branch, int64_t head, int64_t positions)
{
    lattice l;
    l.dilation = max64(branch->dilation, 1);
    l.segment = max64(branch->segment ? min64(branch->segment, positions) : positions, 1);
    l.first = (branch->offset + (branch->rotate ? head % l.dilation : 0)) % l.dilation;
    return l;
}

/* Positions from one that takes part to the next of its segment; where there is none, a number that
 * no stride overflows with. */
static int64_t step_of(const lattice *l)
{
    return min64(l->dilation, l->segment);
}

/* How many of the first `length` positions of a segment take part. */
static int64_t taken(const lattice *l, int64_t length)
{
    return length > l->first ? (length - l->first - 1) / l->dilation + 1 : 0;
}

/* Those of `positions` positions. */
static int64_t taken_of_all(const lattice *l, int64_t positions)
{
    return positions / l->segment * taken(l, l->segment) + taken(l, positions % l->segment);
}

/* Segments one after the other, whole ones or a part of one, in which some rows take part. */
typedef struct segments {
    int64_t count;
    int64_t first;      /* position of key 0 of the first one */
    int64_t keys;       /* of each */
    int64_t row0, rows; /* keys row0 .. row0 + rows-1 of each are rows */
} segments;

/* Those from position `at` on, rows being positions below `end` of a sequence of `positions`;
 * returns the position behind them. */
static int64_t next_segments(const lattice *l, int64_t at, int64_t end, int64_t positions,
                             segments *s)
{
    const int64_t begin = at / l->segment * l->segment;
    const int64_t stop = min64(begin + l->segment, positions), to = min64(end, stop);
    s->count = 1;
    s->first = begin + l->first;
    s->keys = taken(l, stop - begin);
    s->row0 = taken(l, at - begin);
    s->rows = taken(l, to - begin) - s->row0;
    if (to - at < l->segment)
        return to;
    s->count = (end - begin) / l->segment;
    return begin + s->count * l->segment;
}

/* ---- the index: positions of each lattice of each branch, one after the other */

/* How many of `length` positions of a segment lie before `first` modulo the dilation. */
static int64_t taken_before(const lattice *l, int64_t length)
{
    return length / l->dilation * l->first + min64(length % l->dilation, l->first);
}

/* Entries of one branch: all lattices, or the one of its offset. */
static int64_t index_of_branch(const attn_dilated_branch *branch, int64_t positions)
{
    const lattice l = lattice_of(branch, 0, positions);
    return branch->rotate ? positions : taken_of_all(&l, positions);
}

/* Where the lattice's entries begin among those of its branch. */
static int64_t index_of_lattice(const attn_dilated_branch *branch, const lattice *l,
                                int64_t positions)
{
    if (!branch->rotate)
        return 0;
    return positions / l->segment * taken_before(l, l->segment) +
           taken_before(l, positions % l->segment);
}

/* Writes the lattice's entries and returns how many. */
static int64_t fill_index(const lattice *l, int64_t positions, int32_t *index)
{
    int64_t begin, at, count = 0;
    for (begin = 0; begin < positions; begin += l->segment)
        for (at = begin + l->first; at < min64(begin + l->segment, positions); at += l->dilation)
            index[count++] = (int32_t)at;
    return count;
}

/* ------------------------------------------------------------------------------------------------
 * 3  Validation
 * --------------------------------------------------------------------------------------------- */

/* "branches[n].field (value)" */
static void put_branch(text *why, int64_t n, const char *field, int64_t value)
{
    put(why, "branches[");
    put_int(why, n);
    put(why, "].");
    put_field(why, field, value);
}

static attn_status check_branch(const attn_dilated_branch *branch, int n, text *why)
{
    const struct {
        const char *name;
        int64_t value;
    } counts[] = {
        { "segment", branch->segment },       { "dilation", branch->dilation },
        { "offset", branch->offset },         { "head_begin", branch->head_begin },
        { "head_count", branch->head_count },
    };
    int i;
    for (i = 0; i < COUNT_OF(counts); i++) {
        if (counts[i].value >= 0 && counts[i].value <= MOST)
            continue;
        put_branch(why, n, counts[i].name, counts[i].value);
        return bad(why, ATTN_ERR_ARG, " must be from 0 to the largest size of memory");
    }
    if (branch->offset < max64(branch->dilation, 1))
        return ATTN_OK;
    put_branch(why, n, "offset", branch->offset);
    put(why, " must be below its dilation (");
    put_int(why, max64(branch->dilation, 1));
    return bad(why, ATTN_ERR_ARG, ")");
}

/* Whatever the call. */
static attn_status check_branches(const attn_dilated *d, text *why)
{
    attn_status status = ATTN_OK;
    int n;
    if (!d)
        return bad(why, ATTN_ERR_ARG, "dilated is NULL");
    if (d->merge != ATTN_DILATED_LSE && d->merge != ATTN_DILATED_MEAN)
        return bad_field(why, ATTN_ERR_ARG, "merge", d->merge, " must be 0 (LSE) or 1 (mean)");
    if (d->variant != ATTN_DILATED_STRIDED && d->variant != ATTN_DILATED_GATHERED)
        return bad_field(why, ATTN_ERR_ARG, "variant", d->variant,
                         " must be 0 (strided) or 1 (gathered)");
    if (d->num_branches < 1)
        return bad_field(why, ATTN_ERR_ARG, "num_branches", d->num_branches, " must be at least 1");
    if (!d->branches)
        return bad(why, ATTN_ERR_ARG, "branches is NULL");
    if (d->block_rows < 0 || d->block_rows > MOST)
        return bad_field(why, ATTN_ERR_ARG, "block_rows", d->block_rows,
                         " must be 0 (chosen) or a number of rows");
    for (n = 0; n < d->num_branches && !status; n++)
        status = check_branch(&d->branches[n], n, why);
    return status;
}

/* What means nothing here, or would mean something else. Looked at first: nothing else that is set
 * then helps. */
static attn_status check_refused(const attn_params *p, text *why)
{
    const struct {
        const char *name;
        int set;
    } fields[] = {
        { "kv_begin", p->kv_begin != NULL },
        { "key_base", p->key_base != NULL },
        { "kv_rows.ring", p->kv_rows.ring != 0 },
        { "kv_rows.page_size", p->kv_rows.page_size != 0 },
        { "shared_keys", p->shared_keys != 0 },
        { "alignment", p->alignment != ATTN_ALIGN_BOTTOM_RIGHT },
        { "prefix", p->prefix != NULL },
        { "chunk_size", p->chunk_size != 0 },
        { "q_segments", p->q_segments != NULL },
        { "kv_segments", p->kv_segments != NULL },
        { "tree_parents", p->tree_parents != NULL },
        { "bit_mask", p->bit_mask.data != NULL },
        { "block_mask", p->block_mask.bitmap != NULL || p->block_mask.row_offsets != NULL },
        { "mask", p->mask != NULL },
        { "score", p->score != NULL },
        { "dropout_p", !(p->dropout_p == 0.0f) },
        { "partial", p->partial != 0 },
        { "part", p->part.rows != 0 || p->part.keys != 0 },
        { "logits", p->logits.data != NULL },
        { "backend", p->backend != NULL },
    };
    int i;
    for (i = 0; i < COUNT_OF(fields); i++)
        if (fields[i].set) {
            put(why, fields[i].name);
            return bad(why, ATTN_ERR_UNSUPPORTED,
                       " is set, but dilated attention does not take it");
        }
    return ATTN_OK;
}

/* Rows are positions, and branches are for heads that there are. */
static attn_status check_rows_and_heads(const attn_params *p, const attn_dilated *d, text *why)
{
    int64_t b;
    int n;
    for (b = 0; b < p->batch; b++) {
        const sequence s = attn_core_get()->sequence_of(p, b);
        if (s.q_len > s.kv_len)
            return bad_entry(why, "q_len", b, s.q_len,
                             " exceeds kv_len: rows are the last positions of the sequence");
    }
    for (n = 0; n < d->num_branches; n++) {
        const int64_t begin = d->branches[n].head_begin, count = d->branches[n].head_count;
        if (begin < p->num_heads_q && plus(begin, count) <= p->num_heads_q)
            continue;
        put_branch(why, n, "head_begin", begin);
        put(why, " and ");
        put_field(why, "head_count", count);
        put(why, " exceed ");
        put_field(why, "num_heads_q", p->num_heads_q);
        return bad(why, ATTN_ERR_ARG, ": a branch is for query heads that there are");
    }
    return ATTN_OK;
}

static attn_status check_mean(const attn_params *p, text *why)
{
    if (p->lse.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "lse.data is set, but a mean of branches is no softmax and has none");
    if (p->sinks || p->softmax1)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "sinks or softmax1 is set, but a mean of branches is no softmax to hold one");
    return ATTN_OK;
}

static attn_status check_index_length(const attn_dilated *d, int64_t positions, text *why)
{
    if (d->variant != ATTN_DILATED_GATHERED)
        return ATTN_OK;
    if (positions > INT32_MAX)
        return bad_field(why, ATTN_ERR_OVERFLOW, "kv_len", positions,
                         " exceeds the positions that the gathered variant can index");
    if (d->index && d->index_positions < positions) {
        put_field(why, "index_positions", d->index_positions);
        put(why, " is below the longest sequence (");
        put_int(why, positions);
        return bad(why, ATTN_ERR_ARG, ")");
    }
    return ATTN_OK;
}

/* What of a problem sizes depend on. */
typedef struct outline {
    int64_t batch, heads, group, dim, dim_v;
    int64_t rows, positions; /* of the longest sequence */
    int64_t workers;
    const attn_kernels *kernels; /* the best for so many rows, if none are asked for */
    int gathered;                /* calls see copies */
    int empty;
} outline;

/* Turns *p into *pr, or says what is wrong with *p or *d. need_data: tensors must be there. */
static attn_status validate_dilated(const attn_params *p, const attn_dilated *d, int need_data,
                                    problem *pr, text *why)
{
    const attn_core *core = attn_core_get();
    attn_status status = p ? check_refused(p, why) : ATTN_OK;
    if (!status)
        status = core->validate(p, pr, need_data, why);
    if (!status)
        status = check_branches(d, why);
    if (!status)
        status = check_rows_and_heads(&pr->p, d, why);
    if (!status && d->merge == ATTN_DILATED_MEAN)
        status = check_mean(p, why);
    if (!status)
        status = check_index_length(d, pr->max_kv_len, why);
    if (!status)
        core->settle_workers(&pr->p);
    return status;
}

static void fill_outline(const problem *pr, outline *out)
{
    out->batch = pr->p.batch;
    out->heads = pr->p.num_heads_kv;
    out->group = pr->group;
    out->dim = pr->p.head_dim;
    out->dim_v = pr->p.head_dim_v;
    out->rows = pr->max_q_len;
    out->positions = pr->max_kv_len;
    out->workers = pr->p.num_workers;
    out->kernels = pr->p.kernels;
    out->empty = pr->p.batch == 0 || pr->p.seq_len_q == 0;
}

OWN_FRAME static attn_status outline_of(const attn_params *p, const attn_dilated *d, int need_data,
                                        outline *out, text *why)
{
    problem pr;
    const attn_status status = validate_dilated(p, d, need_data, &pr, why);
    memset(out, 0, sizeof *out);
    if (status)
        return status;
    fill_outline(&pr, out);
    out->gathered = d->variant == ATTN_DILATED_GATHERED;
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 4  Plan
 *
 *    workspace = | alignment | dilated_run | slot 0 | slot 1 | ...
 *
 *    An item is the query heads of a kv head of a batch entry and, strided, a block of rows: blocks
 *    begin where a position is a multiple of their size, so that segments of the usual sizes fall
 *    into them whole. Sums are the results of a block so far, a part is what one call adds.
 * --------------------------------------------------------------------------------------------- */

#define BLOCK_LEAST 256 /* rows, so that row tiles fill up; of a branch, times its dilation, */
#define BLOCK_MOST 8192 /* up to this */
#define BLOCK_BYTES ((int64_t)1 << 22) /* of sums */
#define BLOCK_ITEMS 4                  /* of a worker */

typedef struct dilated_layout {
    int64_t block;  /* rows of an item; 0 = all */
    int64_t blocks; /* of a kv head */
    int64_t items;
    int workers;
    int64_t inner_bytes; /* workspace of a call */
    /* offsets into a slot, in bytes */
    int64_t slopes, zeros, sums, part, index, copies[3], inner, slot_bytes;
    int64_t sum_grads[3], part_grads[3], dout; /* backward */
} dilated_layout;

/* Heads of the largest class of a branch: those of a kv head that take the same positions. */
static int64_t class_heads(const attn_dilated_branch *branch, int64_t group)
{
    return branch->rotate ? ceil_div(group, max64(branch->dilation, 1)) : group;
}

static int64_t most_dilation(const attn_dilated *d)
{
    int64_t most = 1;
    int n;
    for (n = 0; n < d->num_branches; n++)
        most = max64(most, d->branches[n].dilation);
    return most;
}

static int64_t choose_block(const attn_dilated *d, const outline *out)
{
    const int64_t row_bytes = times(out->group, out->dim_v + 2) * (int64_t)sizeof(float);
    const int64_t wanted = times(BLOCK_LEAST, most_dilation(d));
    int64_t rows = BLOCK_LEAST;
    if (d->block_rows)
        return d->block_rows;
    while (rows < wanted && rows < BLOCK_MOST && 2 * rows * row_bytes <= BLOCK_BYTES)
        rows *= 2;
    while (rows > BLOCK_LEAST && times(times(out->batch, out->heads), ceil_div(out->rows, rows)) <
                                     BLOCK_ITEMS * out->workers)
        rows /= 2;
    return rows;
}

/* q, k or v as calls of a branch see them: rows a dilation apart. For a size query: no data. */
static void space_rows(attn_tensor *t, int varlen, int64_t heads, int64_t dim, int64_t dilation)
{
    const ptrdiff_t stride = stride_or(t->stride_seq, varlen ? times(heads, dim) : dim);
    t->stride_batch = t->stride_head = ATTN_STRIDE_BROADCAST;
    t->stride_seq =
        stride ? to_stride(times(stride < 0 ? -stride : stride, dilation)) : ATTN_STRIDE_BROADCAST;
}

/* *p becomes what the largest call of branch n is, as far as sizes depend on it. most: rows of an
 * item; 0 = all. */
static void largest_call(attn_params *p, const attn_dilated *d, const outline *out, int64_t most,
                         int n)
{
    const attn_dilated_branch *branch = &d->branches[n];
    const lattice l = lattice_of(branch, 0, out->positions);
    const int64_t keys = ceil_div(l.segment, l.dilation);
    const int64_t rows = most ? min64(keys, ceil_div(most, l.dilation)) : keys;
    if (!out->gathered) {
        space_rows(&p->q, p->cu_seqlens_q != NULL, p->num_heads_q, out->dim, step_of(&l));
        space_rows(&p->k, p->cu_seqlens_kv != NULL, out->heads, out->dim, step_of(&l));
        space_rows(&p->v, p->cu_seqlens_kv != NULL, out->heads, out->dim_v, step_of(&l));
    } else {
        space_rows(&p->q, 0, 1, out->dim, 1);
        space_rows(&p->k, 0, 1, out->dim, 1);
        space_rows(&p->v, 0, 1, out->dim_v, 1);
    }
    p->batch = 1;
    p->num_heads_q = class_heads(branch, out->group);
    p->num_heads_kv = 1;
    p->seq_len_q = min64(rows, out->rows);
    p->seq_len_kv = keys;
    p->q_len = p->kv_len = p->cu_seqlens_q = p->cu_seqlens_kv = NULL;
}

/* Nothing of a call is left that only makes sense for the caller's own. */
static void strip_call(attn_params *p)
{
    attn_bias *bias = &p->bias;
    attn_mask *mask = &p->bool_mask;
    memset(&p->o, 0, sizeof p->o);
    memset(&p->lse, 0, sizeof p->lse);
    bias->stride_batch = bias->stride_head = bias->stride_q = bias->stride_kv = 0;
    mask->stride_batch = mask->stride_head = mask->stride_q = mask->stride_kv = 0;
    p->alibi_stride = 0;
    p->sinks = NULL;
    p->softmax1 = 0;
    p->num_workers = 1;
    p->parallel_for = NULL;
    p->log = NULL;
}

/* Bytes of workspace for the calls of branch n. */
OWN_FRAME static attn_status size_forward(const attn_params *asked, const attn_dilated *d,
                                          const outline *out, int64_t most, int n, size_t *bytes)
{
    text why = text_in(NULL, 0);
    problem pr;
    attn_status status;
    pr.p = *asked;
    largest_call(&pr.p, d, out, most, n);
    strip_call(&pr.p);
    status = attn_core_get()->validate(&pr.p, &pr, 0, &why);
    return status ? status : attn_core_get()->size_of_call(asked, &pr, &why, bytes);
}

/* States of `rows` rows, or o and lse of them: one array. */
static int64_t place_rows(int64_t *at, int64_t rows, int64_t dim_v)
{
    return place(at, times(rows, plus(dim_v, 2)), sizeof(float));
}

/* Everything of a slot up to the workspace of its calls. */
static void plan_rows(const attn_dilated *d, const outline *out, size_t slot_head,
                      dilated_layout *lay)
{
    const int gathered = lay->block == 0;
    const int64_t all = gathered ? out->rows : min64(lay->block, out->rows);
    const int64_t rows = times(out->group, all), keys = gathered ? out->positions : 0;
    int64_t at = 0;
    place(&at, 1, slot_head);
    lay->slopes = place(&at, out->group, sizeof(float));
    lay->zeros = place(&at, out->dim_v, sizeof(float));
    lay->sums = place_rows(&at, rows, out->dim_v);
    lay->part = place_rows(&at, rows, out->dim_v);
    lay->index = place(&at, d->index ? 0 : keys, sizeof(int32_t));
    lay->copies[0] = place(&at, gathered ? times(rows, out->dim) : 0, sizeof(float));
    lay->copies[1] = place(&at, times(keys, out->dim), sizeof(float));
    lay->copies[2] = place(&at, times(keys, out->dim_v), sizeof(float));
    lay->inner = at;
}

static attn_status plan_inner(const attn_params *p, const attn_dilated *d, const outline *out,
                              dilated_layout *lay)
{
    int n;
    for (n = 0; n < d->num_branches; n++) {
        size_t bytes = 0;
        const attn_status status = size_forward(p, d, out, lay->block, n, &bytes);
        if (status)
            return status;
        lay->inner_bytes = max64(lay->inner_bytes, (int64_t)bytes);
    }
    lay->slot_bytes = plus(lay->inner, aligned(lay->inner_bytes));
    return ATTN_OK;
}

/* Items of the forward call; a block more where rows do not begin with one. */
static void plan_blocks(const outline *out, dilated_layout *lay)
{
    lay->blocks = lay->block ? ceil_div(out->rows, lay->block) + (out->rows < out->positions) : 1;
    lay->items = times(times(out->batch, out->heads), lay->blocks);
    lay->workers = (int)max64(1, min64(out->workers, lay->items));
}

/* ------------------------------------------------------------------------------------------------
 * 5  Slot: an item walks over branches, classes of heads and segments; what a call gets of them
 * --------------------------------------------------------------------------------------------- */

typedef struct dilated_run {
    call c; /* first: items get a pointer to it */
    attn_dilated d;
    dilated_layout lay;
    const attn_kernels *kernels; /* as asked for: each call has rows of its own number */
    int tile_keys;
    attn_gradients g; /* backward: strides explicit */
    int calls;        /* something but dsinks is asked for */
} dilated_run;

static const dilated_run *run_of(const call *c)
{
    return (const dilated_run *)(const void *)c;
}

/* At the start of a worker's slot. */
typedef struct dilated_slot {
    attn_params p; /* of a call */
    attn_gradients g;
    attn_status status; /* of the calls so far */
    const dilated_run *run;
    const attn_params *asked; /* the problem's */
    sequence s;
    int64_t kv_head;
    int64_t from, to; /* positions of the rows of this item */
    int64_t before;   /* position of row 0 */
    /* of the call */
    int n;                     /* branch */
    int64_t head, step, heads; /* query heads: head, head + step, ... */
    lattice l;
    segments at;
    int32_t offset;
    /* in the slot */
    char *base;
    float *slopes;
    attn_state sums, part; /* lse in m, where results are finished ones */
    char *inner;
} dilated_slot;

#define SLOT_FLOATS(w, offset) ((float *)(void *)((w)->base + (offset)))

static attn_state rows_in(const dilated_slot *w, int64_t offset, int64_t rows)
{
    attn_state s;
    s.num_rows = rows;
    s.head_dim_v = w->asked->head_dim_v;
    s.m = SLOT_FLOATS(w, offset);
    s.l = s.m + rows;
    s.o = s.l + rows;
    return s;
}

/* For kv head `kv_head` of batch entry b. */
static dilated_slot *open_slot(const call *c, char *base, int64_t b, int64_t kv_head)
{
    dilated_slot *w = (dilated_slot *)(void *)base;
    const dilated_layout *lay = &run_of(c)->lay;
    w->run = run_of(c);
    w->asked = &c->pr.p;
    w->base = base;
    w->slopes = SLOT_FLOATS(w, lay->slopes);
    w->inner = base + lay->inner;
    w->s = attn_core_get()->sequence_of(w->asked, b);
    w->kv_head = kv_head;
    w->before = w->s.kv_len - w->s.q_len;
    w->from = w->before;
    w->to = w->s.kv_len;
    return w;
}

static int64_t rows_of_item(const dilated_slot *w)
{
    return w->to - w->from;
}

/* Number among the sums of row number i of segment e and head h of the call. */
static int64_t sum_of(const dilated_slot *w, int64_t e, int64_t h, int64_t i)
{
    const int64_t head = w->head + h * w->step - w->kv_head * w->run->c.pr.group;
    const int64_t position = w->at.first + e * w->l.segment + (w->at.row0 + i) * w->l.dilation;
    return head * rows_of_item(w) + position - w->from;
}

/* Sets the lattice and the query heads of class `class` of branch n: those of the kv head that take
 * the same positions. 0 = there are no more. */
static int open_class(dilated_slot *w, int n, int64_t class)
{
    const attn_dilated_branch *branch = &w->run->d.branches[n];
    const int64_t group = w->run->c.pr.group, first = w->kv_head * group;
    const int64_t last = branch->head_count ? branch->head_begin + branch->head_count : TOO_BIG;
    const int64_t begin = max64(first, branch->head_begin), end = min64(first + group, last);
    w->n = n;
    w->step = branch->rotate ? max64(branch->dilation, 1) : 1;
    w->head = begin + class;
    if (class >= w->step || w->head >= end)
        return 0;
    w->heads = w->step == 1 ? end - begin : ceil_div(end - w->head, w->step);
    w->l = lattice_of(branch, w->head, w->s.kv_len);
    return 1;
}

/* All calls of branch n: by classes of heads, then by segments. */
static void each_call(dilated_slot *w, int n, void (*take)(dilated_slot *w))
{
    int64_t class, at;
    for (class = 0; open_class(w, n, class); class ++)
        for (at = w->from; at < w->to;) {
            at = next_segments(&w->l, at, w->to, w->s.kv_len, &w->at);
            if (w->at.rows)
                take(w);
        }
}

/* ---- what a call sees of the caller's arrays */

static ptrdiff_t given_stride(ptrdiff_t stride, int64_t times_this)
{
    const ptrdiff_t step = stride * (ptrdiff_t)times_this;
    return step ? step : ATTN_STRIDE_BROADCAST;
}

/* Strides of the call from those of the caller's tensor: segments are batch entries. */
static attn_tensor view_of(const dilated_slot *w, const attn_tensor *t, int64_t head, int64_t row)
{
    attn_tensor view = *t;
    const int64_t at = ROW_AT(*t, &w->s, head, row);
    view.data = t->data ? (const char *)t->data + at * (int64_t)bytes_of(t->dtype) : NULL;
    view.stride_batch = given_stride(t->stride_seq, w->at.count > 1 ? w->l.segment : 0);
    view.stride_head = given_stride(t->stride_head, w->step);
    view.stride_seq = given_stride(t->stride_seq, step_of(&w->l));
    return view;
}

/* Of a tensor of the query's rows; of keys. */
static attn_tensor view_rows(const dilated_slot *w, const attn_tensor *t)
{
    const int64_t position = w->at.first + w->at.row0 * w->l.dilation;
    return view_of(w, t, w->head, w->s.q_row + position - w->before);
}

static attn_tensor view_keys(const dilated_slot *w, const attn_tensor *t)
{
    return view_of(w, t, w->kv_head, w->s.kv_row + w->at.first);
}

/* Of an array of pairs: where the first one is, and its strides. */
static int64_t view_pairs(const dilated_slot *w, ptrdiff_t *batch, ptrdiff_t *head, ptrdiff_t *q,
                          ptrdiff_t *kv)
{
    const int64_t row = w->at.first + w->at.row0 * w->l.dilation - w->before;
    const int64_t at = w->s.b * *batch + w->head * *head + row * *q + w->at.first * *kv;
    *batch = w->at.count > 1 ? (*q + *kv) * (ptrdiff_t)w->l.segment : 0;
    *head *= (ptrdiff_t)w->step;
    *q *= (ptrdiff_t)step_of(&w->l);
    *kv *= (ptrdiff_t)step_of(&w->l);
    return at;
}

static void view_modifiers(dilated_slot *w)
{
    attn_bias bias = w->asked->bias;
    attn_mask mask = w->asked->bool_mask;
    int64_t at, h;
    at = view_pairs(w, &bias.stride_batch, &bias.stride_head, &bias.stride_q, &bias.stride_kv);
    if (bias.data)
        bias.data = (const char *)bias.data + at * (int64_t)bytes_of(bias.dtype);
    at = view_pairs(w, &mask.stride_batch, &mask.stride_head, &mask.stride_q, &mask.stride_kv);
    if (mask.data)
        mask.data += at;
    w->p.bias = bias;
    w->p.bool_mask = mask;
    for (h = 0; h < w->heads && w->asked->alibi_slopes; h++)
        w->slopes[h] =
            w->asked->alibi_slopes[w->s.b * w->asked->alibi_stride + w->head + h * w->step];
    w->p.alibi_slopes = w->asked->alibi_slopes ? w->slopes : NULL;
}

/* w->p becomes the call, but for where results go. */
static void open_call(dilated_slot *w)
{
    attn_params *p = &w->p;
    *p = *w->asked;
    strip_call(p);
    p->batch = w->at.count;
    p->num_heads_q = w->heads;
    p->num_heads_kv = 1;
    p->seq_len_q = w->at.rows;
    p->seq_len_kv = w->at.keys;
    p->q = view_rows(w, &w->asked->q);
    p->k = view_keys(w, &w->asked->k);
    p->v = view_keys(w, &w->asked->v);
    p->q_len = p->kv_len = p->cu_seqlens_q = p->cu_seqlens_kv = NULL;
    p->kernels = w->run->kernels;
    p->tile_keys = w->run->tile_keys;
    view_modifiers(w);
    if (w->at.rows == w->at.keys)
        return;
    w->offset = (int32_t)w->at.row0; /* one segment then */
    p->alignment = ATTN_ALIGN_OFFSET;
    p->q_offset = &w->offset;
}

static void run_call(dilated_slot *w)
{
    const attn_status status =
        attn_core_get()->forward_cpu(&w->p, w->inner, (size_t)w->run->lay.inner_bytes);
    w->status = w->status ? w->status : status;
}

/* Where a call's finished results go: f32, packed. */
static void ask_results(dilated_slot *w, int with_lse)
{
    memset(&w->p.o, 0, sizeof w->p.o);
    w->p.o.data = w->part.o;
    w->p.lse.data = with_lse ? w->part.m : NULL;
}

/* Calls `take` for each row of the call: its number in the sums, and among the call's rows. */
static void each_row(dilated_slot *w, void (*take)(dilated_slot *w, int64_t sum, int64_t row))
{
    int64_t e, h, i, row = 0;
    for (e = 0; e < w->at.count; e++)
        for (h = 0; h < w->heads; h++)
            for (i = 0; i < w->at.rows; i++)
                take(w, sum_of(w, e, h, i), row++);
}

/* ---- results of a block */

/* Branches of a mean that query head h has. */
static int branches_of_head(const attn_dilated *d, int64_t h)
{
    int n, count = 0;
    for (n = 0; n < d->num_branches; n++) {
        const attn_dilated_branch *branch = &d->branches[n];
        count += h >= branch->head_begin &&
                 (!branch->head_count || h < branch->head_begin + branch->head_count);
    }
    return count;
}

static void clear_sums(dilated_slot *w)
{
    const int64_t rows = w->run->c.pr.group * rows_of_item(w);
    int64_t r;
    w->sums = rows_in(w, w->run->lay.sums, rows);
    w->part = rows_in(w, w->run->lay.part, rows);
    for (r = 0; r < rows; r++)
        w->sums.m[r] = NEG_INF;
    memset(w->sums.l, 0, (size_t)times(rows, w->asked->head_dim_v + 1) * sizeof(float));
}

static void add_mean(dilated_slot *w, int64_t sum, int64_t row)
{
    const int64_t dim = w->asked->head_dim_v;
    float *to = w->sums.o + sum * dim;
    const float *from = w->part.o + row * dim;
    int64_t d;
    for (d = 0; d < dim; d++)
        to[d] = to[d] + from[d];
}

/* Element offset of a row of the item, in an output of the caller's. */
static int64_t place_of(const dilated_slot *w, const attn_output *t, int64_t head, int64_t i)
{
    return ROW_AT(*t, &w->s, head, w->s.q_row + w->from - w->before + i);
}

static void *element_of_output(const attn_output *t, int64_t at)
{
    return (char *)t->data + at * (int64_t)bytes_of(t->dtype);
}

/* n results as they are stored: NaN canonical, never -0. */
static void store_results(const dilated_slot *w, const attn_output *to, int64_t at, float *from,
                          int64_t n)
{
    int64_t d;
    for (d = 0; d < n; d++)
        from[d] = is_nan(from[d]) ? float_of(CANONICAL_NAN) : from[d] + 0.0f;
    store_run(w->asked->kernels, to->dtype, to->data, at, from, n);
}

/* Stores o of row number `sum` of the sums, and lse. */
static void store_sum(const dilated_slot *w, int64_t head, int64_t i, int64_t sum)
{
    const attn_output *o = &w->asked->o, *lse = &w->asked->lse;
    const int64_t dim = w->asked->head_dim_v;
    if (o->data)
        store_results(w, o, place_of(w, o, head, i), w->sums.o + sum * dim, dim);
    if (lse->data)
        store_results(w, lse, place_of(w, lse, head, i), w->sums.m + sum, 1);
}

/* Calls `finish` for each row of the item, then stores it. */
static void store_sums(dilated_slot *w, void (*finish)(dilated_slot *w, int64_t head, int64_t sum))
{
    const int64_t group = w->run->c.pr.group, rows = rows_of_item(w);
    int64_t h, i;
    for (h = 0; h < group; h++)
        for (i = 0; i < rows; i++) {
            finish(w, w->kv_head * group + h, h * rows + i);
            store_sum(w, w->kv_head * group + h, i, h * rows + i);
        }
}

static void divide_sum(dilated_slot *w, int64_t head, int64_t sum)
{
    const int64_t dim = w->asked->head_dim_v;
    const float count = (float)max64(1, branches_of_head(&w->run->d, head));
    float *o = w->sums.o + sum * dim;
    int64_t d;
    for (d = 0; d < dim; d++)
        o[d] = o[d] / count;
}

/* ------------------------------------------------------------------------------------------------
 * 6  Strided
 * --------------------------------------------------------------------------------------------- */

static void merge_state(dilated_slot *w, int64_t sum, int64_t row)
{
    const attn_state a = state_at(&w->sums, sum, w->asked->head_dim_v);
    const attn_state b = state_at(&w->part, row, w->asked->head_dim_v);
    attn_state out = a;
    out.num_rows = 1;
    out.head_dim_v = w->asked->head_dim_v;
    attn_state_merge(&a, &b, &out);
}

static void strided_call(dilated_slot *w)
{
    const int mean = w->run->d.merge == ATTN_DILATED_MEAN;
    open_call(w);
    if (mean) {
        ask_results(w, 0);
    } else {
        w->p.partial = 1;
        w->p.state = w->part;
    }
    run_call(w);
    each_row(w, mean ? add_mean : merge_state);
}

/* The sums of an item are states: sink and result. */
static void finish_states(dilated_slot *w)
{
    const int64_t head = w->kv_head * w->run->c.pr.group;
    attn_params *p = &w->p;
    memset(p, 0, sizeof *p);
    p->batch = 1;
    p->num_heads_q = p->num_heads_kv = w->run->c.pr.group;
    p->seq_len_q = rows_of_item(w);
    p->head_dim = p->head_dim_v = w->asked->head_dim_v;
    p->o = w->asked->o;
    p->lse = w->asked->lse;
    p->o.stride_batch = p->lse.stride_batch = 0;
    if (p->o.data)
        p->o.data = element_of_output(&p->o, place_of(w, &w->asked->o, head, 0));
    if (p->lse.data)
        p->lse.data = element_of_output(&p->lse, place_of(w, &w->asked->lse, head, 0));
    p->sinks = w->asked->sinks ? w->asked->sinks + head : NULL;
    p->softmax1 = w->asked->softmax1;
    p->kernels = w->asked->kernels;
    if (attn_state_finish(p, &w->sums))
        w->status = ATTN_ERR_ARG;
}

static void strided_item(const call *c, char *base, int64_t index)
{
    const dilated_layout *lay = &run_of(c)->lay;
    const int64_t number = index % lay->blocks, head = index / lay->blocks;
    dilated_slot *w = open_slot(c, base, head / c->pr.p.num_heads_kv, head % c->pr.p.num_heads_kv);
    int n;
    w->from = max64(w->before, (w->before / lay->block + number) * lay->block);
    w->to = min64(w->s.kv_len, (w->before / lay->block + number + 1) * lay->block);
    if (w->from >= w->to)
        return;
    clear_sums(w);
    for (n = 0; n < w->run->d.num_branches; n++)
        each_call(w, n, strided_call);
    if (w->run->d.merge == ATTN_DILATED_MEAN)
        store_sums(w, divide_sum);
    else
        finish_states(w);
}

/* ------------------------------------------------------------------------------------------------
 * 7  Gathered: the plain variant. Of every branch: copies of q, k, v of the positions that take
 *    part, attention on them, and its results, scattered, merge by their LSE with those so far.
 * --------------------------------------------------------------------------------------------- */

/* The lattice's positions. */
static const int32_t *index_in_call(const dilated_slot *w)
{
    const attn_dilated *d = &w->run->d;
    const attn_dilated_branch *branch = &d->branches[w->n];
    int32_t *made = (int32_t *)(void *)(w->base + w->run->lay.index);
    const lattice whole = lattice_of(branch, w->head, d->index_positions);
    int64_t at = 0;
    int n;
    if (!d->index) {
        fill_index(&w->l, w->s.kv_len, made);
        return made;
    }
    for (n = 0; n < w->n; n++)
        at += index_of_branch(&d->branches[n], d->index_positions);
    return d->index + at + index_of_lattice(branch, &whole, d->index_positions);
}

/* One row of an input, dim elements, to the place of row number `row` of copies. */
static void copy_row(const dilated_slot *w, const attn_tensor *t, int64_t head, int64_t from,
                     int64_t dim, char *copies, int64_t row)
{
    const int64_t bytes = (int64_t)bytes_of(t->dtype);
    const int64_t at = ROW_AT(*t, &w->s, head, from);
    memcpy(copies + row * dim * bytes, (const char *)t->data + at * bytes, (size_t)(dim * bytes));
}

/* Packed, as the call now has it. */
static attn_tensor packed_copies(const attn_tensor *t, const char *copies)
{
    attn_tensor packed;
    memset(&packed, 0, sizeof packed);
    packed.dtype = t->dtype;
    packed.data = copies;
    return packed;
}

static void gather_keys(dilated_slot *w, const int32_t *index)
{
    const attn_params *p = w->asked;
    char *k = w->base + w->run->lay.copies[1], *v = w->base + w->run->lay.copies[2];
    int64_t j;
    for (j = 0; j < w->at.count * w->at.keys; j++) {
        copy_row(w, &p->k, w->kv_head, w->s.kv_row + index[j], p->head_dim, k, j);
        copy_row(w, &p->v, w->kv_head, w->s.kv_row + index[j], p->head_dim_v, v, j);
    }
    w->p.k = packed_copies(&p->k, k);
    w->p.v = packed_copies(&p->v, v);
}

static void gather_rows(dilated_slot *w, const int32_t *index)
{
    const attn_tensor *q = &w->asked->q;
    char *copies = w->base + w->run->lay.copies[0];
    int64_t e, h, i, row = 0;
    for (e = 0; e < w->at.count; e++)
        for (h = 0; h < w->heads; h++)
            for (i = 0; i < w->at.rows; i++) {
                const int64_t position = index[e * w->at.keys + w->at.row0 + i];
                copy_row(w, q, w->head + h * w->step, w->s.q_row + position - w->before,
                         w->asked->head_dim, copies, row++);
            }
    w->p.q = packed_copies(q, copies);
}

static void merge_result(dilated_slot *w, int64_t sum, int64_t row)
{
    const int64_t dim = w->asked->head_dim_v;
    float *o = w->sums.o + sum * dim, *lse = w->sums.m + sum;
    attn_lse_merge(1, dim, o, lse, w->part.o + row * dim, w->part.m + row, o, lse);
}

static void gathered_call(dilated_slot *w)
{
    const int mean = w->run->d.merge == ATTN_DILATED_MEAN;
    const int64_t segment = w->at.first / w->l.segment;
    const int32_t *index = index_in_call(w) + segment * taken(&w->l, w->l.segment);
    open_call(w);
    gather_keys(w, index);
    gather_rows(w, index);
    ask_results(w, !mean);
    run_call(w);
    each_row(w, mean ? add_mean : merge_result);
}

/* A sink is a key without a value. */
static void merge_head_sink(dilated_slot *w, int64_t head, int64_t sum)
{
    const int64_t dim = w->asked->head_dim_v;
    const float sink = sink_of(w->asked, head);
    float *o = w->sums.o + sum * dim, *lse = w->sums.m + sum;
    attn_lse_merge(1, dim, o, lse, SLOT_FLOATS(w, w->run->lay.zeros), &sink, o, lse);
}

static void gathered_item(const call *c, char *base, int64_t index)
{
    dilated_slot *w =
        open_slot(c, base, index / c->pr.p.num_heads_kv, index % c->pr.p.num_heads_kv);
    int n;
    memset(SLOT_FLOATS(w, w->run->lay.zeros), 0, (size_t)w->asked->head_dim_v * sizeof(float));
    clear_sums(w);
    for (n = 0; n < w->run->d.num_branches; n++)
        each_call(w, n, gathered_call);
    store_sums(w, w->run->d.merge == ATTN_DILATED_MEAN ? divide_sum : merge_head_sink);
}

/* ------------------------------------------------------------------------------------------------
 * 8  Forward: public functions
 * --------------------------------------------------------------------------------------------- */

#define RUN_BYTES (ALIGNMENT - 1 + aligned((int64_t)sizeof(dilated_run)))

static int64_t dilated_bytes(const dilated_layout *lay, int workers)
{
    return plus(RUN_BYTES, times(workers, lay->slot_bytes));
}

/* Whether the plan fits into `have` bytes. */
static attn_status check_dilated_room(const dilated_layout *lay, int64_t have, text *why)
{
    const int64_t least = dilated_bytes(lay, 1);
    if (dilated_bytes(lay, lay->workers) >= ADDRESS_LIMIT)
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace would exceed the address space");
    if (have >= least)
        return ATTN_OK;
    put(why, "workspace_bytes (");
    put_int(why, have);
    put(why, ") must be at least ");
    put_int(why, least);
    return bad(why, ATTN_ERR_WORKSPACE, "; the workspace query of the call says what is best");
}

static int64_t bytes_given(const void *workspace, size_t bytes)
{
    const int64_t limit = ADDRESS_LIMIT;
    return !workspace ? 0 : bytes < (uint64_t)limit ? (int64_t)bytes : limit;
}

static attn_status plan_dilated(const attn_params *p, const attn_dilated *d, const outline *out,
                                dilated_layout *lay, text *why)
{
    memset(lay, 0, sizeof *lay);
    if (d->variant == ATTN_DILATED_STRIDED)
        lay->block = choose_block(d, out);
    plan_rows(d, out, sizeof(dilated_slot), lay);
    plan_blocks(out, lay);
    if (plan_inner(p, d, out, lay))
        return bad(why, ATTN_ERR_OVERFLOW, "the workspace of a branch exceeds the address space");
    return ATTN_OK;
}

/* Everything that can be wrong before a run in `have` bytes; *empty: there is nothing to run. */
static attn_status check_dilated(const attn_params *p, const attn_dilated *d, int need_data,
                                 int64_t have, dilated_layout *lay, int *empty, text *why)
{
    outline out;
    attn_status status = outline_of(p, d, need_data, &out, why);
    *empty = !status && out.empty;
    if (status || out.empty)
        return status;
    status = plan_dilated(p, d, &out, lay, why);
    return status ? status : check_dilated_room(lay, have, why);
}

ATTN_API const char *attn_dilated_check(const attn_params *p, const attn_dilated *d,
                                        const void *workspace, size_t workspace_bytes, char *buffer,
                                        size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    dilated_layout lay;
    int empty;
    const attn_status status =
        check_dilated(p, d, 1, bytes_given(workspace, workspace_bytes), &lay, &empty, &why);
    if (!status)
        put(&why, "ok");
    return buffer && buffer_bytes ? buffer : attn_status_string(status);
}

ATTN_API attn_status attn_dilated_workspace_size(const attn_params *p, const attn_dilated *d,
                                                 size_t *bytes)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    attn_status status;
    int empty;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_dilated(p, d, 0, ADDRESS_LIMIT, &lay, &empty, &why);
    *bytes = status || empty ? 0 : (size_t)dilated_bytes(&lay, lay.workers);
    return status;
}

/* The run in its workspace, for a call that has passed its checks. */
static dilated_run *open_run(const attn_params *p, const attn_dilated *d, const dilated_layout *lay,
                             void *workspace, size_t bytes)
{
    text why = text_in(NULL, 0);
    char *base = align_memory(workspace);
    dilated_run *run = (dilated_run *)(void *)base;
    const int64_t have = bytes_given(workspace, bytes);
    int i;
    memset(run, 0, sizeof *run);
    validate_dilated(p, d, 1, &run->c.pr, &why);
    run->d = *d;
    run->lay = *lay;
    run->kernels = p->kernels;
    run->tile_keys = p->tile_keys;
    run->c.pl.slot_bytes = lay->slot_bytes;
    run->c.slot_count = (int)min64(lay->workers, (have - RUN_BYTES) / lay->slot_bytes);
    run->c.slots = base + aligned((int64_t)sizeof *run);
    for (i = 0; i < run->c.slot_count; i++)
        ((dilated_slot *)(void *)(run->c.slots + i * lay->slot_bytes))->status = ATTN_OK;
    return run;
}

static attn_status run_list(dilated_run *run,
                            void (*item)(const call *c, char *slot, int64_t index))
{
    attn_status status = attn_core_get()->run_items(&run->c, run->lay.items, item);
    int i;
    for (i = 0; i < run->c.slot_count && !status; i++)
        status =
            ((const dilated_slot *)(const void *)(run->c.slots + i * run->lay.slot_bytes))->status;
    return status;
}

/* Checks of a call; *run: it is ready, NULL if there is nothing to run. */
OWN_FRAME static attn_status prepare_forward(const attn_params *p, const attn_dilated *d,
                                             void *workspace, size_t bytes, dilated_run **run)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    int empty;
    const attn_status status =
        check_dilated(p, d, 1, bytes_given(workspace, bytes), &lay, &empty, &why);
    *run = status || empty ? NULL : open_run(p, d, &lay, workspace, bytes);
    return status;
}

ATTN_API attn_status attn_dilated_forward(const attn_params *p, const attn_dilated *d,
                                          void *workspace, size_t workspace_bytes)
{
    dilated_run *run;
    const attn_status status = prepare_forward(p, d, workspace, workspace_bytes, &run);
    if (!run)
        return status;
    return run_list(run, d->variant == ATTN_DILATED_STRIDED ? strided_item : gathered_item);
}

ATTN_API int64_t attn_dilated_index_size(const attn_dilated *d, int64_t positions)
{
    text why = text_in(NULL, 0);
    int64_t entries = 0;
    int n;
    if (check_branches(d, &why) || positions < 0 || positions > INT32_MAX)
        return 0;
    for (n = 0; n < d->num_branches; n++)
        entries = plus(entries, index_of_branch(&d->branches[n], positions));
    return entries;
}

ATTN_API attn_status attn_dilated_index(const attn_dilated *d, int64_t positions, int32_t *index,
                                        int64_t entries)
{
    text why = text_in(NULL, 0);
    attn_status status = check_branches(d, &why);
    int n;
    if (!status && (positions < 0 || positions > INT32_MAX))
        status = ATTN_ERR_ARG;
    if (!status && (!index || entries < attn_dilated_index_size(d, positions)))
        status = ATTN_ERR_WORKSPACE;
    for (n = 0; n < d->num_branches && !status; n++) {
        const attn_dilated_branch *branch = &d->branches[n];
        lattice l = lattice_of(branch, 0, positions);
        if (!branch->rotate)
            index += fill_index(&l, positions, index);
        for (l.first = 0; branch->rotate && l.first < min64(l.dilation, l.segment); l.first++)
            index += fill_index(&l, positions, index);
    }
    return status;
}

/* ------------------------------------------------------------------------------------------------
 * 9  Backward: a branch's gradients are those of attn_backward, which computes probabilities from
 *    the LSE it is given: that of all branches. With a mean, branches have an o and lse of their
 *    own, computed again, and the gradient of o divided by their number.
 * --------------------------------------------------------------------------------------------- */

enum { GRAD_Q, GRAD_K, GRAD_V };

static attn_status check_wanted(const attn_params *p, const attn_dilated *d,
                                const attn_gradients *g, text *why)
{
    const int naive = p->impl == ATTN_IMPL_NAIVE || p->impl == ATTN_IMPL_AUTO;
    if (!g)
        return bad(why, ATTN_ERR_ARG, "gradients is NULL");
    if (naive && d->merge == ATTN_DILATED_LSE) /* it would take the lse of each branch */
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " must be tiled for gradients of merged branches: naive reads no lse");
    if (g->dbias.data || g->dslopes)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "dbias or dslopes is asked for, but there are dq, dk, dv and dsinks alone");
    if (d->merge == ATTN_DILATED_MEAN && g->dlse.data)
        return bad(why, ATTN_ERR_UNSUPPORTED,
                   "dlse.data is set, but a mean of branches has no lse");
    return ATTN_OK;
}

/* *p and *d into *pr, *g into *resolved, or what is wrong with them. A mean needs o and lse as
 * little as the textbook does. */
static attn_status validate_gradients(const attn_params *p, const attn_dilated *d,
                                      const attn_gradients *g, int need_data, problem *pr,
                                      attn_gradients *resolved, text *why)
{
    attn_status status = validate_dilated(p, d, need_data, pr, why);
    if (!status)
        status = check_wanted(p, d, g, why);
    if (status)
        return status;
    pr->p = *p;
    if (d->merge == ATTN_DILATED_MEAN)
        pr->p.impl = ATTN_IMPL_NAIVE;
    status = attn_backward_core_get()->validate(&pr->p, g, need_data, pr, resolved, why);
    pr->p.impl = p->impl;
    return status;
}

OWN_FRAME static attn_status outline_backward(const attn_params *p, const attn_dilated *d,
                                              const attn_gradients *g, int need_data, outline *out,
                                              text *why)
{
    attn_gradients resolved;
    problem pr;
    const attn_status status = validate_gradients(p, d, g, need_data, &pr, &resolved, why);
    memset(out, 0, sizeof *out);
    if (!status)
        fill_outline(&pr, out);
    return status;
}

static int grad_wanted(const attn_gradients *g, int which)
{
    return (which == GRAD_Q ? g->dq.data : which == GRAD_K ? g->dk.data : g->dv.data) != NULL;
}

/* A slot: sums of dq, dk, dv of a kv head; what a call adds; with a mean its o, lse and dout. */
static void plan_sum_grads(const attn_dilated *d, const outline *out, const attn_gradients *g,
                           dilated_layout *lay)
{
    const int64_t rows = times(out->group, out->rows), keys = out->positions;
    const int64_t mean_rows = d->merge == ATTN_DILATED_MEAN ? rows : 0;
    const int64_t floats[3] = { times(rows, out->dim), times(keys, out->dim),
                                times(keys, out->dim_v) };
    int64_t at = 0;
    int which;
    place(&at, 1, sizeof(dilated_slot));
    lay->slopes = place(&at, out->group, sizeof(float));
    for (which = GRAD_Q; which <= GRAD_V; which++) {
        const int64_t count = grad_wanted(g, which) ? floats[which] : 0;
        lay->sum_grads[which] = place(&at, count, sizeof(float));
        lay->part_grads[which] = place(&at, count, sizeof(float));
    }
    lay->part = place_rows(&at, mean_rows, out->dim_v);
    lay->dout = place(&at, times(mean_rows, out->dim_v), sizeof(float));
    lay->inner = at;
}

/* A tensor or output packed, where strides do not matter. */
#define PACK_STRIDES(t) ((t).stride_batch = (t).stride_head = (t).stride_seq = 0)

/* What calls of a branch ask for, as far as sizes depend on it. */
static void part_of_wanted(attn_gradients *part, const attn_gradients *g)
{
    *part = *g;
    part->dsinks = NULL;
    PACK_STRIDES(part->dout);
    PACK_STRIDES(part->dlse);
    PACK_STRIDES(part->dq);
    PACK_STRIDES(part->dk);
    PACK_STRIDES(part->dv);
}

/* Bytes of workspace for the calls of branch n; n = num_branches: for that of dsinks. */
OWN_FRAME static attn_status size_backward(const attn_params *asked, const attn_dilated *d,
                                           const outline *out, const attn_gradients *g, int n,
                                           size_t *bytes)
{
    text why = text_in(NULL, 0);
    attn_gradients part;
    problem pr;
    attn_status status;
    pr.p = *asked;
    memset(&part, 0, sizeof part);
    part.dsinks = g->dsinks;
    if (n < d->num_branches) {
        part_of_wanted(&part, g);
        largest_call(&pr.p, d, out, 0, n);
        strip_call(&pr.p);
        pr.p.batch =
            max64(1, out->positions / lattice_of(&d->branches[n], 0, out->positions).segment);
        pr.p.kernels = out->kernels;
    }
    pr.p.num_workers = 1;
    pr.p.parallel_for = NULL;
    status = attn_core_get()->validate(&pr.p, &pr, 0, &why);
    if (!status)
        *bytes = (size_t)attn_backward_core_get()->least_bytes(&pr, &part, asked);
    return status;
}

static attn_status plan_backward_calls(const attn_params *p, const attn_dilated *d,
                                       const outline *out, const attn_gradients *g,
                                       dilated_layout *lay, text *why)
{
    int n;
    for (n = 0; n <= d->num_branches; n++) {
        size_t bytes = 0, forward = 0;
        attn_status status =
            n < d->num_branches || g->dsinks ? size_backward(p, d, out, g, n, &bytes) : ATTN_OK;
        if (!status && n < d->num_branches && d->merge == ATTN_DILATED_MEAN)
            status = size_forward(p, d, out, 0, n, &forward);
        if (status)
            return bad(why, ATTN_ERR_OVERFLOW,
                       "the workspace of a branch exceeds the address space");
        lay->inner_bytes = max64(lay->inner_bytes, (int64_t)(bytes > forward ? bytes : forward));
    }
    lay->slot_bytes = plus(lay->inner, aligned(lay->inner_bytes));
    lay->blocks = 1;
    lay->items = times(out->batch, out->heads);
    lay->workers = (int)max64(1, min64(out->workers, lay->items));
    return ATTN_OK;
}

static attn_status check_dilated_backward(const attn_params *p, const attn_dilated *d,
                                          const attn_gradients *g, int need_data, int64_t have,
                                          dilated_layout *lay, text *why)
{
    outline out;
    attn_status status = outline_backward(p, d, g, need_data, &out, why);
    if (status)
        return status;
    memset(lay, 0, sizeof *lay);
    plan_sum_grads(d, &out, g, lay);
    status = plan_backward_calls(p, d, &out, g, lay, why);
    return status ? status : check_dilated_room(lay, have, why);
}

/* ---- a call */

static void run_backward_call(dilated_slot *w)
{
    const attn_status status = attn_backward_core_get()->backward_cpu(
        &w->p, &w->g, w->inner, (size_t)w->run->lay.inner_bytes);
    w->status = w->status ? w->status : status;
}

/* An output of the caller's that the call only reads. */
static attn_output view_output(const dilated_slot *w, const attn_output *t)
{
    const attn_tensor whole = as_tensor(t), view = view_rows(w, &whole);
    attn_output o = *t;
    o.data = t->data ? (char *)t->data + ((const char *)view.data - (const char *)t->data) : NULL;
    o.stride_batch = w->at.count > 1 ? view.stride_batch : 0;
    o.stride_head = w->heads > 1 ? view.stride_head : 0;
    o.stride_seq = view.stride_seq;
    return o;
}

/* The branch's own o and lse, and dout by the number of branches: packed, f32. */
static void prepare_mean_row(dilated_slot *w, int64_t e, int64_t h, int64_t i, int64_t row)
{
    const attn_tensor *dout = &w->run->g.dout;
    const int64_t head = w->head + h * w->step, dim = w->asked->head_dim_v;
    const int64_t position = w->at.first + e * w->l.segment + (w->at.row0 + i) * w->l.dilation;
    const int64_t at = ROW_AT(*dout, &w->s, head, w->s.q_row + position - w->before);
    const float count = (float)branches_of_head(&w->run->d, head);
    float *to = SLOT_FLOATS(w, w->run->lay.dout) + row * dim;
    int64_t d;
    load_run(w->asked->kernels, dout->dtype, to, dout->data, at, dim);
    for (d = 0; d < dim; d++)
        to[d] = to[d] / count;
}

static void prepare_mean(dilated_slot *w)
{
    int64_t e, h, i, row = 0;
    w->part = rows_in(w, w->run->lay.part, w->at.count * w->heads * w->at.rows);
    ask_results(w, 1);
    run_call(w);
    for (e = 0; e < w->at.count; e++)
        for (h = 0; h < w->heads; h++)
            for (i = 0; i < w->at.rows; i++)
                prepare_mean_row(w, e, h, i, row++);
}

/* n floats from part number `row` to sum number `sum`. */
static void add_row(dilated_slot *w, int which, int64_t sum, int64_t row, int64_t n)
{
    const dilated_layout *lay = &w->run->lay;
    float *to = SLOT_FLOATS(w, lay->sum_grads[which]) + sum * n;
    const float *from = SLOT_FLOATS(w, lay->part_grads[which]) + row * n;
    int64_t d;
    for (d = 0; d < n; d++)
        to[d] = to[d] + from[d];
}

static void add_dq(dilated_slot *w, int64_t sum, int64_t row)
{
    add_row(w, GRAD_Q, sum, row, w->asked->head_dim);
}

static void add_keys_of(dilated_slot *w, int which, int64_t n)
{
    int64_t e, j, row = 0;
    for (e = 0; e < w->at.count; e++)
        for (j = 0; j < w->at.keys; j++)
            add_row(w, which, w->at.first + e * w->l.segment + j * w->l.dilation, row++, n);
}

/* The call's gradients, of which o and lse are there. */
OWN_FRAME static void ask_gradients_of(dilated_slot *w)
{
    const dilated_layout *lay = &w->run->lay;
    const attn_gradients *g = &w->run->g;
    memset(&w->g, 0, sizeof w->g);
    w->g.gemms = g->gemms;
    if (w->run->d.merge == ATTN_DILATED_MEAN) {
        w->g.dout.data = SLOT_FLOATS(w, lay->dout);
    } else {
        w->g.dout = view_rows(w, &g->dout);
        w->g.dlse = view_rows(w, &g->dlse);
        w->p.o = view_output(w, &w->asked->o);
        w->p.lse = view_output(w, &w->asked->lse);
    }
    if (g->dq.data)
        w->g.dq.data = SLOT_FLOATS(w, lay->part_grads[GRAD_Q]);
    if (g->dk.data)
        w->g.dk.data = SLOT_FLOATS(w, lay->part_grads[GRAD_K]);
    if (g->dv.data)
        w->g.dv.data = SLOT_FLOATS(w, lay->part_grads[GRAD_V]);
    w->p.kernels = w->asked->kernels; /* one set: then the largest call needs most memory */
}

static void backward_call(dilated_slot *w)
{
    const attn_gradients *g = &w->run->g;
    open_call(w);
    if (w->run->d.merge == ATTN_DILATED_MEAN)
        prepare_mean(w);
    ask_gradients_of(w);
    run_backward_call(w);
    if (g->dq.data)
        each_row(w, add_dq);
    if (g->dk.data)
        add_keys_of(w, GRAD_K, w->asked->head_dim);
    if (g->dv.data)
        add_keys_of(w, GRAD_V, w->asked->head_dim_v);
}

/* ---- an item */

/* Rows of a head, n floats each, from the sums to an output of the caller's. */
static void store_grads(const dilated_slot *w, int which, const attn_output *to, int64_t head,
                        int64_t first_row, int64_t from, int64_t rows, int64_t n)
{
    float *sums = SLOT_FLOATS(w, w->run->lay.sum_grads[which]) + from * n;
    int64_t i;
    for (i = 0; i < rows; i++)
        store_results(w, to, ROW_AT(*to, &w->s, head, first_row + i), sums + i * n, n);
}

static void clear_grads(const dilated_slot *w, int which, int64_t rows, int64_t n)
{
    if (grad_wanted(&w->run->g, which))
        memset(SLOT_FLOATS(w, w->run->lay.sum_grads[which]), 0, (size_t)(rows * n) * sizeof(float));
}

static void clear_item(const dilated_slot *w)
{
    const attn_params *p = w->asked;
    clear_grads(w, GRAD_Q, w->run->c.pr.group * w->s.q_len, p->head_dim);
    clear_grads(w, GRAD_K, w->s.kv_len, p->head_dim);
    clear_grads(w, GRAD_V, w->s.kv_len, p->head_dim_v);
}

static void store_item(const dilated_slot *w)
{
    const attn_params *p = w->asked;
    const attn_gradients *g = &w->run->g;
    const int64_t group = w->run->c.pr.group, rows = w->s.q_len, keys = w->s.kv_len;
    int64_t h;
    for (h = 0; h < group && g->dq.data; h++)
        store_grads(w, GRAD_Q, &g->dq, w->kv_head * group + h, w->s.q_row, h * rows, rows,
                    p->head_dim);
    if (g->dk.data)
        store_grads(w, GRAD_K, &g->dk, w->kv_head, w->s.kv_row, 0, keys, p->head_dim);
    if (g->dv.data)
        store_grads(w, GRAD_V, &g->dv, w->kv_head, w->s.kv_row, 0, keys, p->head_dim_v);
}

static void backward_item(const call *c, char *base, int64_t index)
{
    dilated_slot *w =
        open_slot(c, base, index / c->pr.p.num_heads_kv, index % c->pr.p.num_heads_kv);
    int n;
    clear_item(w);
    for (n = 0; n < w->run->d.num_branches && w->run->calls; n++)
        each_call(w, n, backward_call);
    store_item(w);
}

/* dsinks: a sum over rows that no key enters. In the slot of the first worker. */
static attn_status run_sinks(dilated_run *run, const attn_params *p, const attn_gradients *g)
{
    dilated_slot *w = (dilated_slot *)(void *)run->c.slots;
    if (!g->dsinks)
        return ATTN_OK;
    w->p = *p;
    w->p.num_workers = 1;
    w->p.parallel_for = NULL;
    memset(&w->g, 0, sizeof w->g);
    w->g.dout = g->dout;
    w->g.dlse = g->dlse;
    w->g.dsinks = g->dsinks;
    return attn_backward_core_get()->backward_cpu(&w->p, &w->g, run->c.slots + run->lay.inner,
                                                  (size_t)run->lay.inner_bytes);
}

OWN_FRAME static attn_status prepare_backward(const attn_params *p, const attn_dilated *d,
                                              const attn_gradients *g, void *workspace,
                                              size_t bytes, dilated_run **run)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    const attn_status status =
        check_dilated_backward(p, d, g, 1, bytes_given(workspace, bytes), &lay, &why);
    if (status)
        return status;
    *run = open_run(p, d, &lay, workspace, bytes);
    (*run)->calls = g->dq.data || g->dk.data || g->dv.data;
    return validate_gradients(p, d, g, 1, &(*run)->c.pr, &(*run)->g, &why);
}

ATTN_API attn_status attn_dilated_backward(const attn_params *p, const attn_dilated *d,
                                           const attn_gradients *g, void *workspace,
                                           size_t workspace_bytes)
{
    dilated_run *run;
    attn_status status = prepare_backward(p, d, g, workspace, workspace_bytes, &run);
    if (!status)
        status = run_list(run, backward_item);
    return status ? status : run_sinks(run, p, g);
}

ATTN_API attn_status attn_dilated_backward_workspace_size(const attn_params *p,
                                                          const attn_dilated *d,
                                                          const attn_gradients *g, size_t *bytes)
{
    text why = text_in(NULL, 0);
    dilated_layout lay;
    attn_status status;
    if (!bytes)
        return ATTN_ERR_ARG;
    status = check_dilated_backward(p, d, g, 0, ADDRESS_LIMIT, &lay, &why);
    *bytes = status ? 0 : (size_t)dilated_bytes(&lay, lay.workers);
    return status;
}

ATTN_API const char *attn_dilated_backward_check(const attn_params *p, const attn_dilated *d,
                                                 const attn_gradients *g, const void *workspace,
                                                 size_t workspace_bytes, char *buffer,
                                                 size_t buffer_bytes)
{
    text why = text_in(buffer, buffer_bytes);
    dilated_layout lay;
    const attn_status status =
        check_dilated_backward(p, d, g, 1, bytes_given(workspace, workspace_bytes), &lay, &why);
    if (!status)
        put(&why, "ok");
    return buffer && buffer_bytes ? buffer : attn_status_string(status);
}
