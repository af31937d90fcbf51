/* src/patterns.c - block-sparse patterns: which cells are visible; measured, built.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "api/patterns.h"
#include "overlap.c"
#include "rules.c"

ATTN_API attn_pattern attn_pattern_longformer(int64_t each_side, int64_t global)
{
    const attn_pattern t = { .local = 1,
                             .local_before = each_side,
                             .local_after = each_side,
                             .global_columns = global,
                             .global_rows = global };
    return t;
}

ATTN_API attn_pattern attn_pattern_strided(int64_t stride)
{
    attn_pattern t = attn_pattern_longformer(0, 0);
    t.local_before = stride > 0 ? stride - 1 : -1; /* is refused later */
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
    t.local_before = window / 2;
    t.local_after = window > 0 ? window - 1 - t.local_before : -1;
    t.random = random;
    t.seed = seed;
    return t;
}

/* A cell_grid is a pattern with its sizes in cells. */
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

/* A cell_row is a row of cells: its diagonal, and the columns it may see. */
typedef struct cell_row {
    int64_t head, row;
    int64_t first, last; /* These are the columns of the diagonal, which may lie before column 0. */
    int64_t end;         /* The row may see columns below end. */
} cell_row;

/* column_of gives the column of a position, which may be negative. */
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
    const int64_t last = column_of(grid, end - 1 + offset);
    const cell_row at = { head, row, column_of(grid, begin + offset), last,
                          .end = t->causal ? max64(0, min64(last + 1, grid->columns))
                                           : grid->columns };
    return at;
}

/* shows tells whether a part other than `random` shows the cell. */
static int shows(const attn_pattern *t, const cell_row *at, int64_t column)
{
    const int64_t before = at->first - column, after = column - at->last;
    const int64_t away = max64(0, max64(before, after)); /* It is the distance from the diagonal. */
    if (t->local && before <= t->local_before && after <= t->local_after)
        return 1;
    if (column < t->global_columns || at->row < t->global_rows)
        return 1;
    return (t->stride && away % t->stride == 0) || (t->fixed && column % t->fixed == t->fixed - 1);
}

/* cell_hash is splitmix64 (Steele et al. 2014) over each of these numbers. */
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

/* cells_of_row writes the visible columns of a row, ascending, to `columns` unless that is NULL,
 * and returns how many there are. It draws random ones by selection sampling (Knuth, TAOCP 2,
 * algorithm 3.4.2 S): each of `left` candidates is taken with probability wanted / left, so that
 * exactly `wanted` are taken. */
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

/* measure_pattern opens the grid of a pattern and counts its cells. */
static attn_status measure_pattern(const attn_pattern *t, cell_grid *grid, attn_pattern_info *info,
                                   text *why)
{
    const attn_status status = open_grid(t, grid, why);
    int64_t head, row, all;
    memset(info, 0, sizeof *info);
    if (status)
        return status;
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
    return info ? measure_pattern(t, &grid, info, &reason)
                : bad(&reason, ATTN_ERR_ARG, "info is NULL");
}

static attn_status check_pattern_room(const attn_pattern_info *info, const int32_t *row_offsets,
                                      int64_t num_offsets, const int32_t *columns,
                                      int64_t num_columns, text *why)
{
    const int64_t each = (int64_t)sizeof *columns;
    const area a = area_of_bytes("row_offsets", row_offsets, info->num_offsets * each);
    const area b = area_of_bytes("columns", columns, info->num_columns * each);
    if (!row_offsets || num_offsets < info->num_offsets)
        return bad_numbers(why, ATTN_ERR_WORKSPACE,
                           "num_offsets (#) must be at least #; attn_pattern_measure says how many",
                           NUMBERS(row_offsets ? num_offsets : 0, info->num_offsets));
    if ((!columns && info->num_columns) || num_columns < info->num_columns)
        return bad_numbers(why, ATTN_ERR_WORKSPACE,
                           "num_columns (#) must be at least #; attn_pattern_measure says how many",
                           NUMBERS(columns ? num_columns : 0, info->num_columns));
    return check_pair(&a, &b, why);
}

ATTN_API attn_status attn_pattern_build(const attn_pattern *t, int32_t *row_offsets,
                                        int64_t num_offsets, int32_t *columns, int64_t num_columns,
                                        char *why, size_t why_bytes)
{
    text reason = text_in(why, why_bytes);
    attn_pattern_info info;
    cell_grid grid;
    int64_t head, row, count = 0;
    attn_status status = measure_pattern(t, &grid, &info, &reason);
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
    p->block_mask.csr_stride_batch = ATTN_STRIDE_BROADCAST;
    p->block_mask.csr_stride_head = grid.t.num_heads ? 0 : ATTN_STRIDE_BROADCAST;
    return ATTN_OK;
}
