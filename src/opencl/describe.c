/* src/opencl/describe.c - what kernels are told besides arrays: numbers, sequences, tiles.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "arrays.c"

/* fill_numbers sets what kernels are told of fields, of the problem and of the plan. */
static void fill_numbers(const attn_problem *pr, const device_plan *pl, int64_t *n)
{
    const attn_params *p = &pr->p;
    copy_numbers(walk_fields(p), n);
    n[N_FLAGS] = flags_of(walk_fields(p)) | (p->force_redo ? F_REDO : 0);
    n[N_ITEMS] = pl->items;
    n[N_PARTS] = pl->parts;
    n[N_SLICES] = pl->slices;
    n[N_TILE_ROWS] = pl->forward.rows;
    n[N_CHUNK_KEYS] = pl->chunk_keys;
    n[N_PART_KEYS] = pl->part_keys;
    n[N_LEVELS] = pl->levels;
    n[N_GROUP] = pr->group;
    n[N_FACTOR] = bits_of(pr->factor);
    n[N_CAP2] = bits_of(pr->cap2);
    n[N_ICAP2] = bits_of(pr->icap2);
    n[N_KEEP] = bits_of(pr->keep_factor);
    n[N_DROP_BELOW] = pr->drop_below;
    n[N_SEED_LOW] = (int64_t)(p->dropout_seed & 0xffffffffu);
    n[N_SEED_HIGH] = (int64_t)(p->dropout_seed >> 32);
    n[N_DIM_V] = writes_values(p) ? p->head_dim_v : 0;
    n[N_BOOL_TYPE] = p->bool_mask.invert != 0;
    n[N_BIT_TYPE] = p->bit_mask.invert != 0;
    n[N_ALL_ROWS] = all_rows(p);
}

/* move_rows makes numbers[number] and those behind it, of a tensor like q, those of packed rows of
 * `width` floats, and keeps what they were in numbers[kept]. */
static void move_rows(const attn_params *p, int number, int kept, int64_t width, int64_t *numbers)
{
    const int64_t head = p->seq_len_q * width;
    const int64_t packed[] = { 0, p->cu_seqlens_q ? 0 : p->num_heads_q * head, head, width,
                               ATTN_F32 };
    memcpy(numbers + kept, numbers + number, sizeof packed);
    memcpy(numbers + number, packed, sizeof packed);
}

static void fill_rotation_numbers(const attn_params *p, const device_plan *pl, int64_t *n)
{
    if (pl->queries_bytes)
        move_rows(p, N_Q, N_GIVEN_Q, query_floats(p), n);
    if (pl->results_bytes)
        move_rows(p, N_O, N_ASKED_O, p->head_dim_v, n);
}

static void fill_gradient_numbers(const attn_params *p, const attn_gradients *g,
                                  const device_plan *pl, int64_t *n)
{
    const int columns = pl->forward.columns;
    copy_numbers(walk_gradient_fields(g), n);
    n[N_FLAGS] |= flags_of(walk_gradient_fields(g));
    n[N_KEY_SLICES] = g->dk.data ? ceil_div(p->head_dim, columns) : 0;
    n[N_VALUE_SLICES] = g->dv.data ? ceil_div(p->head_dim_v, columns) : 0;
}

/* describe_sequences needs numbers that have the strides of arrays already. */
static void describe_sequences(const attn_problem *pr, const int64_t *numbers, int64_t *to)
{
    const attn_params *p = &pr->p;
    int64_t b;
    for (b = 0; b < p->batch; b++, to += S_COUNT) {
        const attn_sequence s = attn_sequence_of(pr, b);
        to[S_Q_ROW] = s.q_row;
        to[S_Q_LEN] = s.q_len;
        to[S_KV_ROW] = s.kv_row;
        to[S_KV_LEN] = s.kv_len;
        to[S_COLUMN] = s.column;
        to[S_OFFSET] = s.offset;
        to[S_KEY_BASE] = s.key_base;
        to[S_PREFIX] = s.prefix;
        to[S_KV_SEGMENT] =
            s.column + entry32(p->cu_seqlens_kv, b, b * numbers[N_KV_SEGMENTS_BATCH]);
    }
}

/* describe_tiles begins with the last rows of a sequence, which a causal mask gives most to do. */
static void describe_tiles(const attn_problem *pr, const device_plan *pl, int32_t *to)
{
    const int64_t rows = pl->forward.rows;
    int64_t b, first;
    for (b = 0; b < pr->p.batch; b++) {
        const int64_t all = attn_sequence_of(pr, b).q_len * pr->group;
        for (first = round_up(all, rows) - rows; first >= 0; first -= rows, to += TILE_COUNT) {
            to[TILE_SEQUENCE] = (int32_t)b;
            to[TILE_FIRST] = (int32_t)first;
        }
    }
}
