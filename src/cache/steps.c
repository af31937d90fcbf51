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

static attn_status check_cache(const attn_cache *c, text *why)
{
    if (!c)
        return bad(why, ATTN_ERR_ARG, "cache is NULL");
    if (!c->begin || c->rows < 1)
        return bad(why, ATTN_ERR_ARG, "cache is not ready: call attn_cache_init first");
    return ATTN_OK;
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

static attn_status check_chosen(const attn_cache *c, const int32_t *sequences, int64_t batch,
                                text *why)
{
    int64_t b;
    if (batch < 0)
        return bad_field(why, ATTN_ERR_ARG, "batch", batch, " must be at least 0");
    if (!sequences && batch > c->num_sequences) {
        bad_field(why, ATTN_ERR_ARG, "batch", batch, " must be at most num_sequences");
        put_field(why, "", c->num_sequences);
        return ATTN_ERR_ARG;
    }
    for (b = 0; sequences && b < batch; b++)
        if (sequences[b] < 0 || sequences[b] >= c->num_sequences) {
            bad_entry(why, "sequences", b, sequences[b], " must be from 0 to num_sequences - 1, ");
            put_int(why, c->num_sequences - 1);
            return ATTN_ERR_ARG;
        }
    return ATTN_OK;
}

/* check_distinct refuses a sequence that comes twice. As long as they ascend there is nothing to
 * compare. */
static attn_status check_distinct(const int32_t *sequences, int64_t batch, text *why)
{
    int64_t b, i, top = -1;
    for (b = 0; sequences && b < batch; b++) {
        for (i = 0; sequences[b] <= top && i < b; i++)
            if (sequences[i] == sequences[b])
                return bad_entry(why, "sequences", b, sequences[b],
                                 " is there twice: a step has each sequence once");
        top = max64(top, sequences[b]);
    }
    return ATTN_OK;
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
    status = check_chosen(c, s->sequences, s->batch, why);
    if (!status)
        status = check_distinct(s->sequences, s->batch, why);
    if (!status && s->batch)
        status = check_cu_seqlens("cu_seqlens", s->cu_seqlens, s->batch, s->seq_len, why);
    for (b = 0; s->len && b < s->batch && !status; b++)
        if (s->len[b] < 0 || s->len[b] > rows_given(s, b)) {
            status = bad_entry(why, "len", b, s->len[b], " must be from 0 to ");
            put_int(why, rows_given(s, b));
        }
    return status;
}

static void put_new_keys(const attn_cache *c, const cache_part *part, text *why)
{
    put(why, "sequence ");
    put_int(why, part->sequence);
    put(why, " with ");
    put_int(why, c->length[part->sequence]);
    put(why, " keys and ");
    put_int(why, part->count);
    put(why, " new ones: ");
}

static attn_status check_room(const attn_cache *c, const cache_part *part, text *why)
{
    const int64_t present = c->length[part->sequence];
    const int64_t longest = c->rows - min64(c->window_left, present);
    if (part->count <= (c->ring ? longest : c->capacity - present))
        return ATTN_OK;
    put_new_keys(c, part, why);
    if (!c->ring)
        return bad_field(why, ATTN_ERR_FULL, "capacity", c->capacity, " is exceeded");
    put_field(why, "a ring of rows", c->rows);
    put(why, " with ");
    put_field(why, "window_left", c->window_left);
    put(why, " takes at most ");
    put_int(why, longest);
    return bad(why, ATTN_ERR_FULL, " in one step");
}

/* is_last_user tells whether all other sequences that have this page are earlier entries of the
 * step and write to it, too. They will then have taken copies, and the page is left to entry b. */
static int is_last_user(const attn_cache *c, const attn_cache_step *s, int64_t b, int64_t i,
                        int32_t page)
{
    int64_t others = c->uses[page] - 1, e;
    for (e = 0; e < b && others > 0; e++) {
        const cache_part part = part_of(s, e);
        const page_range r = pages_of(c, c->end[part.sequence], part.count);
        others -= table_of(c, part.sequence)[i] == page && has_page(c, &r, i);
    }
    return others == 0;
}

/* pages_needed counts the pages that entry b takes from the free list, for new keys and for copies
 * of shared pages. */
static int64_t pages_needed(const attn_cache *c, const attn_cache_step *s, int64_t b)
{
    const cache_part part = part_of(s, b);
    const page_range r = pages_of(c, c->end[part.sequence], part.count);
    int64_t needed = 0, n;
    for (n = 0; n < r.count; n++) {
        const int64_t i = nth_page(c, &r, n);
        const int32_t page = table_of(c, part.sequence)[i];
        needed += page < 0 || !is_last_user(c, s, b, i, page);
    }
    return needed;
}

/* check_fits tells whether the whole step fits. */
static attn_status check_fits(const attn_cache *c, const attn_cache_step *s, text *why)
{
    attn_status status = ATTN_OK;
    int64_t b, needed = 0;
    for (b = 0; b < s->batch && !status; b++) {
        const cache_part part = part_of(s, b);
        status = check_room(c, &part, why);
    }
    for (b = 0; c->page_size && b < s->batch && !status; b++)
        needed += pages_needed(c, s, b);
    if (status || needed <= c->num_free)
        return status;
    put_field(why, "num_free", c->num_free);
    put(why, " of ");
    put_field(why, "num_pages", c->num_pages);
    put(why, " is too few: the step needs ");
    put_int(why, needed);
    return bad(why, ATTN_ERR_FULL, " pages");
}

/* input_of gives k or v of a step with its strides resolved. */
static attn_tensor input_of(const attn_cache *c, const attn_cache_step *s, int side)
{
    attn_tensor t = side == CACHE_K ? s->k : s->v;
    RESOLVE_STRIDES(t, s->cu_seqlens != NULL, c->num_heads_kv, s->seq_len, dim_of(c, side));
    return t;
}

/* check_dtype says "k.dtype (2) must be f32 (0) or as stored (1)". */
static attn_status check_dtype(const char *name, int dtype, int stored, text *why)
{
    if (dtype == ATTN_F32 || dtype == stored)
        return ATTN_OK;
    put(why, name);
    bad_field(why, ATTN_ERR_ARG, ".dtype", dtype, " must be f32 (0) or as stored ");
    put(why, "(");
    put_int(why, stored);
    put(why, ")");
    return ATTN_ERR_ARG;
}

static attn_status check_input(const attn_cache *c, const attn_cache_step *s, int side, text *why)
{
    const attn_tensor t = input_of(c, s, side);
    const ptrdiff_t stride[4] = { t.stride_batch, t.stride_head, t.stride_seq, 1 };
    const int64_t batch = s->cu_seqlens ? 1 : s->batch;
    attn_status status = check_dtype(side_names[side], t.dtype, storage_of(c, side)->dtype, why);
    if (status)
        return status;
    if (!t.data && s->batch && s->seq_len) {
        put(why, side_names[side]);
        return bad(why, ATTN_ERR_ARG, ".data is NULL");
    }
    return check_extent(side_names[side], (int64_t)bytes_of(t.dtype), batch, c->num_heads_kv,
                        s->seq_len, dim_of(c, side), stride, why);
}

/* positions_of points to the first of a part's positions; NULL means its keys' numbers. */
static const int64_t *positions_of(const attn_cache_step *s, cache_place from)
{
    return s->positions ? s->positions + from.entry * s->seq_len + from.row : NULL;
}

static attn_status check_positions_given(const attn_cache_step *s, text *why)
{
    const ptrdiff_t stride[4] = { (ptrdiff_t)s->seq_len, 0, 1, 1 };
    if (!s->positions)
        return ATTN_OK;
    if (!s->rope)
        return bad(why, ATTN_ERR_ARG, "positions are given, but rope is NULL");
    return check_extent("positions", sizeof(int64_t), s->cu_seqlens ? 1 : s->batch, 1, s->seq_len,
                        1, stride, why);
}

/* no_heads makes rows without a head, so that attn_rope_apply looks at the rope and at positions,
 * and turns nothing. */
static attn_rope_rows no_heads(const attn_cache *c, const attn_cache_step *s)
{
    attn_rope_rows rows;
    memset(&rows, 0, sizeof rows);
    rows.batch = 1;
    rows.head_dim = c->head_dim;
    rows.x.dtype = s->k.dtype;
    rows.y.dtype = c->k.dtype;
    return rows;
}

/* check_turning_part is for keys with numbers from `first` on. It works on a copy of *why, so that
 * the sequence is named only before a complaint. */
static attn_status check_turning_part(const attn_cache *c, const attn_cache_step *s,
                                      const cache_part *part, int64_t first, text why)
{
    attn_rope_rows rows = no_heads(c, s);
    rows.seq_len = part->count;
    rows.positions = positions_of(s, part->from);
    rows.first = rows.positions ? NULL : &first;
    put(&why, "keys of sequence ");
    put_int(&why, part->sequence);
    put(&why, ": ");
    return attn_rope_apply(s->rope, &rows, why.at, why.left);
}

static attn_status check_turning(const attn_cache *c, const attn_cache_step *s, int extended,
                                 text *why)
{
    attn_status status = check_positions_given(s, why);
    int64_t b;
    if (!status && s->rope) {
        const attn_rope_rows none = no_heads(c, s);
        status = attn_rope_apply(s->rope, &none, why->at, why->left);
    }
    for (b = 0; s->rope && b < s->batch && !status; b++) {
        const cache_part part = part_of(s, b);
        const int64_t end = c->end[part.sequence];
        status = check_turning_part(c, s, &part, extended ? end - part.count : end, *why);
    }
    return status;
}

static attn_status check_inputs(const attn_cache *c, const attn_cache_step *s, int extended,
                                text *why)
{
    attn_status status = check_input(c, s, CACHE_K, why);
    if (!status)
        status = check_input(c, s, CACHE_V, why);
    if (!status)
        status = check_turning(c, s, extended, why);
    return status;
}
