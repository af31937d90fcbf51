/* patterns.c - masks of cells that attn_long.h builds: built once, or in every call.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include <stdlib.h>

#include "../../attn.h"

enum { LOCAL = 4, GLOBAL = 2, STRIDE = 8, RANDOM = 3, WINDOW = 3, SEED = 1 };

static attn_pattern pattern_of(const bench_case *c, int64_t cell)
{
    attn_pattern t = c->mask == MASK_LOCAL_GLOBAL ? attn_pattern_longformer(LOCAL, GLOBAL)
                     : c->mask == MASK_LOCAL_STRIDED
                         ? attn_pattern_strided(STRIDE)
                         : attn_pattern_bigbird(WINDOW, GLOBAL, RANDOM, SEED);
    t.causal = 1;
    t.seq_len_q = c->seq_q;
    t.seq_len_kv = c->seq_kv;
    t.block_q = t.block_k = cell;
    return t;
}

/* ---- how many keys a row sees */

/* A column and the diagonal of its row: the columns of the row's first and last position. */
typedef struct cell_at {
    int64_t row, column, first, last;
} cell_at;

static int local_global(const cell_at *a)
{
    return a->first - a->column <= LOCAL || a->column < GLOBAL || a->row < GLOBAL;
}

static int local_strided(const cell_at *a)
{
    const int64_t away = a->column < a->first ? a->first - a->column : 0;
    return away < STRIDE || away % STRIDE == 0;
}

static int bigbird(const cell_at *a)
{
    return a->first - a->column <= WINDOW / 2 || a->column < GLOBAL || a->row < GLOBAL;
}

static int64_t floor_of(int64_t position, int64_t cell)
{
    return position >= 0 ? position / cell : -((cell - 1 - position) / cell);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Columns up to the diagonal. A random cell is before it, so that the row sees all of its keys. */
static int64_t keys_by(const bench_case *c, int64_t cell, int64_t i, int (*shown)(const cell_at *a),
                       int64_t random)
{
    const int64_t offset = c->seq_kv - c->seq_q, row = i / cell;
    const int64_t last_row = least((row + 1) * cell, c->seq_q) - 1, end = i + offset + 1;
    cell_at a = { row, 0, floor_of(row * cell + offset, cell), floor_of(last_row + offset, cell) };
    int64_t keys = 0, left = 0;
    for (; a.column <= a.last && a.column * cell < c->seq_kv; a.column++) {
        const int64_t here = least(end - a.column * cell, cell);
        if (!shown(&a))
            left++;
        else if (here > 0)
            keys += here;
    }
    return keys + cell * least(left, random);
}

int64_t pattern_keys(const bench_case *c, int64_t cell, int64_t i)
{
    if (c->mask == MASK_LOCAL_GLOBAL)
        return keys_by(c, cell, i, local_global, 0);
    if (c->mask == MASK_LOCAL_STRIDED)
        return keys_by(c, cell, i, local_strided, 0);
    return keys_by(c, cell, i, bigbird, RANDOM);
}

/* ---- the cells */

static int build(const attn_pattern *t, const attn_pattern_info *info, mask_arrays *arrays)
{
    return attn_pattern_build(t, arrays->owned[0], info->num_offsets, arrays->owned[1],
                              info->num_columns, NULL, 0) == ATTN_OK;
}

int pattern_set(const bench_case *c, int64_t cell, attn_params *p, mask_arrays *arrays)
{
    const attn_pattern t = pattern_of(c, cell);
    attn_pattern_info info;
    if (attn_pattern_measure(&t, &info, NULL, 0) != ATTN_OK)
        return 0;
    arrays->owned[arrays->n++] = malloc(4 * (size_t)info.num_offsets);
    arrays->owned[arrays->n++] = malloc(4 * (size_t)info.num_columns + 1);
    p->causal = 1;
    return arrays->owned[0] && arrays->owned[1] && build(&t, &info, arrays) &&
           attn_pattern_use(&t, arrays->owned[0], arrays->owned[1], p) == ATTN_OK;
}

int pattern_again(const bench_case *c, int64_t cell, mask_arrays *arrays)
{
    const attn_pattern t = pattern_of(c, cell);
    attn_pattern_info info;
    return attn_pattern_measure(&t, &info, NULL, 0) == ATTN_OK && build(&t, &info, arrays);
}
