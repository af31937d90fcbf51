/* src/cache/steps.c - a step of a cache: every rule about new keys and its sentence.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../call.h"
#include "../rope/rope.c"
#include "pages.c"

/* A cache_part is what one batch entry of a step brings. */
typedef struct cache_part {
    int64_t sequence, count;
    cache_place from; /* from is where its rows begin in k and v. */
} cache_part;

/* rows_given counts the rows of k and v that are entry b's, in use or not. */
static int64_t rows_given(const attn_cache_step *s, int64_t b)
{
    return s->cu_seqlens ? (int64_t)s->cu_seqlens[b + 1] - s->cu_seqlens[b] : s->seq_len;
}

static cache_part part_of(const attn_cache_step *s, int64_t b)
{
    cache_part part;
    part.sequence = entry32(s->sequences, b, b);
    part.count = entry32(s->len, b, rows_given(s, b));
    part.from.entry = s->cu_seqlens ? 0 : b;
    part.from.row = entry32(s->cu_seqlens, b, 0);
    return part;
}

/* check_cache wants a cache that is ready, and the scales, which stay the caller's. */
static attn_status check_cache(const attn_cache *c, text *why)
{
    attn_status status;
    if (!c)
        return bad(why, ATTN_ERR_ARG, "cache is NULL");
    if (!c->begin || c->rows < 1)
        return bad(why, ATTN_ERR_ARG, "cache is not ready: call attn_cache_init first");
    status = check_scales_given("k", c->k.dtype, &c->k_scales, why);
    return status ? status : check_scales_given("v", c->v.dtype, &c->v_scales, why);
}

/* check_index says "name (value) must be from 0 to `most`". */
static attn_status check_index(const char *name, int64_t value, int64_t most, text *why)
{
    if (value >= 0 && value <= most)
        return ATTN_OK;
    bad_field(why, ATTN_ERR_ARG, name, value, " must be from 0 to ");
    put_int(why, most);
    return ATTN_ERR_ARG;
}

static attn_status check_layer(const attn_cache *c, int64_t layer, text *why)
{
    return check_index("layer", layer, c->num_layers - 1, why);
}

static attn_status check_sequence(const attn_cache *c, const char *name, int64_t q, text *why)
{
    return check_index(name, q, c->num_sequences - 1, why);
}

/* check_chosen does not read a list that is longer than it can be: `once` tells that a sequence may come
 * only once. */
static attn_status check_chosen(const attn_cache *c, const int32_t *sequences, int64_t batch,
                                int once, text *why)
{
    int64_t b;
    if (batch < 0)
        return bad_field(why, ATTN_ERR_ARG, "batch", batch, " must be at least 0");
    if ((once || !sequences) && batch > c->num_sequences)
        return bad_numbers(why, ATTN_ERR_ARG, "batch (#) must be at most num_sequences (#)",
                           NUMBERS(batch, c->num_sequences));
    for (b = 0; sequences && b < batch; b++) {
        const int64_t values[] = { b, sequences[b], c->num_sequences - 1 };
        if (values[1] < 0 || values[1] > values[2])
            return bad_numbers(why, ATTN_ERR_ARG,
                               "sequences[#] (#) must be from 0 to num_sequences - 1, #", values);
    }
    return ATTN_OK;
}

/* A step is looked through once for each range of this number of sequences: a bit of the stack for
 * each of them. */
#define SEEN_SEQUENCES 4096

/* check_distinct_from refuses a sequence of a range that comes twice, and tells where the next range
 * that has any begins. */
OWN_FRAME static attn_status check_distinct_from(const int32_t *sequences, int64_t batch,
                                                 int64_t *first, text *why)
{
    uint8_t seen[SEEN_SEQUENCES / 8] = { 0 };
    int64_t b, next = INT64_MAX;
    for (b = 0; b < batch; b++) {
        const int64_t at = sequences[b] - *first;
        if (at >= SEEN_SEQUENCES)
            next = min64(next, sequences[b]);
        if (at < 0 || at >= SEEN_SEQUENCES)
            continue;
        if (seen[at / 8] >> at % 8 & 1)
            return bad_entry(why, "sequences", b, sequences[b],
                             " is there twice: each may come once");
        seen[at / 8] = (uint8_t)(seen[at / 8] | 1 << at % 8);
    }
    *first = next;
    return ATTN_OK;
}

/* check_distinct refuses a sequence that comes twice. Where they ascend there is none. */
static attn_status check_distinct(const int32_t *sequences, int64_t batch, text *why)
{
    attn_status status = ATTN_OK;
    int64_t b = 1, first = 0;
    while (sequences && b < batch && sequences[b] > sequences[b - 1])
        b++;
    while (sequences && b < batch && first < INT64_MAX && !status)
        status = check_distinct_from(sequences, batch, &first, why);
    return status;
}

static attn_status check_step(const attn_cache *c, const attn_cache_step *s, text *why)
{
    attn_status status;
    int64_t b;
    if (!s)
        return bad(why, ATTN_ERR_ARG, "step is NULL");
    if (s->seq_len < 0 || s->seq_len > MOST)
        return bad_field(why, ATTN_ERR_ARG, "seq_len", s->seq_len,
                         s->seq_len < 0 ? " must be at least 0" : " is no length in memory");
    status = check_chosen(c, s->sequences, s->batch, 1, why);
    status = status ? status : check_distinct(s->sequences, s->batch, why);
    if (!status && s->batch)
        status = check_cu_seqlens("cu_seqlens", s->cu_seqlens, s->batch, s->seq_len, why);
    for (b = 0; s->len && b < s->batch && !status; b++) {
        const int64_t values[] = { b, s->len[b], rows_given(s, b) };
        if (values[1] < 0 || values[1] > values[2])
            status = bad_numbers(why, ATTN_ERR_ARG, "len[#] (#) must be from 0 to #", values);
    }
    return status;
}

/* bad_keys says "sequence q with n keys and m new ones: rest". */
static attn_status bad_keys(const attn_cache *c, const cache_part *part, attn_status status,
                            const char *rest, text *why)
{
    const int64_t values[] = { part->sequence, c->length[part->sequence], part->count };
    put_numbers(why, "sequence # with # keys and # new ones: ", values);
    return bad(why, status, rest);
}

/* keys_before counts the keys before its own that a row reads from the recent rows. */
static int64_t keys_before(const attn_cache *c)
{
    const int windowed = c->ring && c->window_left;
    if (!c->recent)
        return 0;
    return windowed ? min64(c->recent - 1, c->window_left) : c->recent - 1;
}

/* check_recent_room keeps a step from overwriting recent keys that its first row reads. */
static attn_status check_recent_room(const attn_cache *c, const cache_part *part, text *why)
{
    const int64_t present = c->length[part->sequence];
    const int64_t most = c->recent_rows - min64(keys_before(c), present);
    if (!c->recent || part->count <= most)
        return ATTN_OK;
    bad_keys(c, part, ATTN_ERR_FULL, "", why);
    return bad_numbers(why, ATTN_ERR_FULL,
                       "a ring of recent_rows (#) with recent (#) takes at most # in one step",
                       NUMBERS(c->recent_rows, c->recent, most));
}

static attn_status check_room(const attn_cache *c, const cache_part *part, text *why)
{
    const int64_t present = c->length[part->sequence];
    const int64_t longest = c->rows - min64(c->window_left, present);
    const int64_t values[] = { c->rows, c->window_left, longest };
    if (part->count <= (c->ring ? longest : c->capacity - present))
        return check_recent_room(c, part, why);
    bad_keys(c, part, ATTN_ERR_FULL, "", why);
    if (!c->ring)
        return bad_field(why, ATTN_ERR_FULL, "capacity", c->capacity, " is exceeded");
    return bad_numbers(why, ATTN_ERR_FULL,
                       "a ring of rows (#) with window_left (#) takes at most # in one step",
                       values);
}

/* count_users adds `change` to the users of each page that entry b writes to, and returns how many
 * pages it takes from the free list: one for each place, unless it was the last to use the page. */
static int64_t count_users(attn_cache *c, const attn_cache_step *s, int64_t b, int32_t change)
{
    const cache_part part = part_of(s, b);
    const page_range r = pages_of(c, c->end[part.sequence], part.count);
    int64_t needed = 0, n;
    for (n = 0; n < r.count; n++) {
        const int32_t page = table_of(c, part.sequence)[nth_page(c, &r, n)];
        needed += page < 0 || (c->uses[page] += change) > 0;
    }
    return needed;
}

/* pages_needed counts the pages that a step takes, for new keys and for copies of shared pages. An
 * entry takes a copy and no longer uses the page, which is left to the last of its users. The counts
 * of users say so meanwhile, and are then put back. */
static int64_t pages_needed(attn_cache *c, const attn_cache_step *s)
{
    int64_t needed = 0, b;
    for (b = 0; b < s->batch; b++)
        needed += count_users(c, s, b, -1);
    for (b = 0; b < s->batch; b++)
        count_users(c, s, b, 1);
    return needed;
}

/* check_fits tells whether the whole step fits. */
static attn_status check_fits(attn_cache *c, const attn_cache_step *s, text *why)
{
    attn_status status = ATTN_OK;
    int64_t values[] = { c->num_free, c->num_pages, 0 }, b;
    for (b = 0; b < s->batch && !status; b++) {
        const cache_part part = part_of(s, b);
        status = check_room(c, &part, why);
    }
    if (c->page_size && !status)
        values[2] = pages_needed(c, s);
    if (status || values[2] <= c->num_free)
        return status;
    return bad_numbers(why, ATTN_ERR_FULL,
                       "num_free (#) of num_pages (#) is too few: the step needs # pages", values);
}

/* ---- what a step brings */

#define AT(member) offsetof(attn_cache_step, member)

static const call_field step_fields[] = {
    { LAYOUT },
    { TENSOR(k, AXIS_BATCH, AXIS_HEAD_KV, AXIS_ROW, AXIS_DIM, BY_ALL) },
    { TENSOR(v, AXIS_BATCH, AXIS_HEAD_KV, AXIS_ROW, AXIS_DIM_V, BY_ALL) },
    { GRID(positions, F_I64, BY_ALL, AXIS_BATCH, AXIS_NONE, AXIS_ROW, AXIS_NONE) },
};
#undef AT

static call_axes axes_of_rows(const attn_cache *c, int64_t batch, int64_t rows)
{
    const call_axes x = { .count = { [AXIS_NONE] = 1,
                                     [AXIS_BATCH] = batch,
                                     [AXIS_HEAD_KV] = c->num_heads_kv,
                                     [AXIS_ROW] = rows,
                                     [AXIS_DIM] = c->head_dim,
                                     [AXIS_DIM_V] = c->head_dim_v } };
    return x;
}

/* check_dtype takes plain types and the one that is stored. */
static attn_status check_dtype(const attn_cache *c, int side, int dtype, text *why)
{
    const cache_side s = side_of(c, side);
    const int64_t values[] = { dtype, s.storage.dtype };
    if ((dtype >= 0 && dtype <= LAST_PLAIN) || dtype == s.storage.dtype)
        return ATTN_OK;
    put(why, s.name);
    return bad_numbers(why, ATTN_ERR_ARG,
                       ".dtype (#) must be as stored (#) or one of these: " PLAIN_DTYPES, values);
}

/* check_rows wants rows of K and V, whose strides are resolved, to be whole units of their types. */
static attn_status check_rows(const attn_cache *c, const attn_tensor *k, const attn_tensor *v,
                              text *why)
{
    const attn_status status = check_whole_units("k", k, "head_dim", c->head_dim, why);
    return status ? status : check_whole_units("v", v, "head_dim_v", c->head_dim_v, why);
}

static attn_status check_data(const attn_cache_step *s, text *why)
{
    if ((!s->k.data || !s->v.data) && s->batch && s->seq_len)
        return bad(why, ATTN_ERR_ARG, s->k.data ? "v.data is NULL" : "k.data is NULL");
    return ATTN_OK;
}

/* rows_to_turn gives `count` rows of k from `from` on, with numbers from *first on, as rows to turn. */
static attn_rope_rows rows_to_turn(const attn_cache *c, const attn_cache_step *s, cache_place from,
                                   int64_t count, const int64_t *first)
{
    const int64_t at = from.entry * s->seq_len + from.row;
    const attn_rope_rows rows = {
        .batch = 1,
        .num_heads = c->num_heads_kv,
        .seq_len = count,
        .head_dim = c->head_dim,
        .x = s->k,
        .positions = s->positions ? s->positions + at : NULL,
        .first = s->positions ? NULL : first,
    };
    return rows;
}

static attn_status check_angles_apart(const attn_cache *c, const attn_rope *rope, text *why)
{
    attn_rope angles = *rope;
    call_axes x;
    const array_set set = angles_of(&angles, c->head_dim, &x);
    return check_arrays_apart(c, &set, why);
}

/* check_turning works on a copy of *why, so that a sequence is named only before a complaint. */
static attn_status check_turning(const attn_cache *c, const attn_cache_step *s, int extended,
                                 text *why)
{
    attn_status status = ATTN_OK;
    int64_t b;
    if (!s->rope)
        return s->positions ? bad(why, ATTN_ERR_ARG, "positions are given, but rope is NULL")
                            : ATTN_OK;
    if (s->k.dtype > LAST_PLAIN)
        return bad_field(why, ATTN_ERR_ARG, "k.dtype", s->k.dtype,
                         ": rope turns keys before they are stored: " PLAIN_DTYPES);
    status = check_rope(s->rope, c->head_dim, why);
    status = status ? status : check_angles_apart(c, s->rope, why);
    for (b = 0; b < s->batch && !status; b++) {
        const cache_part part = part_of(s, b);
        const int64_t first = c->end[part.sequence] - (extended ? part.count : 0);
        const attn_rope_rows rows = rows_to_turn(c, s, part.from, part.count, &first);
        text named = *why;
        put_numbers(&named, "keys of sequence #: ", &part.sequence);
        status = check_rope_positions(s->rope, &rows, &named);
    }
    return status;
}

/* resolve_step gives k and v of *s their strides, or *why says what is wrong with its arrays. */
static attn_status resolve_step(const attn_cache *c, attn_cache_step *s, int extended, text *why)
{
    const int packed = s->cu_seqlens != NULL, n = COUNT_OF(step_fields);
    call_axes x = axes_of_rows(c, packed ? 1 : s->batch, s->seq_len);
    const array_set set = { .table = step_fields, .n = n, .base = s, .x = &x };
    attn_status status = check_values(step_fields, n, s, why);
    x.packed_q = packed;
    x.layout = s->layout;
    status = status ? status : check_dtype(c, CACHE_K, s->k.dtype, why);
    status = status ? status : check_dtype(c, CACHE_V, s->v.dtype, why);
    status = status ? status : check_data(s, why);
    status = status ? status : resolve_arrays(step_fields, n, s, &x, why);
    status = status ? status : check_rows(c, &s->k, &s->v, why);
    status = status ? status : check_arrays_apart(c, &set, why);
    return status ? status : check_turning(c, s, extended, why);
}
