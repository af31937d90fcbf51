/* src/cache/write.c - extending a cache and writing keys into it.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../rotate.c"
#include "steps.c"

/* own_pages takes a page of its own for each place that new keys go to. */
static void own_pages(attn_cache *c, const cache_part *part)
{
    const page_range r = pages_of(c, c->end[part->sequence], part->count);
    int32_t *table = table_of(c, part->sequence);
    int64_t n;
    for (n = 0; n < r.count; n++) {
        const int64_t i = nth_page(c, &r, n);
        const int32_t shared = table[i];
        const cache_place whole = { shared, 0 };
        if (shared >= 0 && c->uses[shared] == 1)
            continue;
        table[i] = take_page(c);
        if (shared < 0)
            continue;
        copy_entry(c, whole, table[i], c->page_size);
        leave_page(c, shared);
    }
}

/* advance lets numbers below end - rows make room, as their rows are those of the new keys. Only
 * numbers that were present count as overwritten, not what the caller had forgotten before. */
static void advance(attn_cache *c, const cache_part *part)
{
    const int64_t q = part->sequence, end = c->end[q] + part->count;
    const int64_t begin = max64(c->begin[q], end - c->rows);
    set_numbers(c, q, begin, end, begin > c->begin[q] ? begin : c->overwritten_below[q]);
}

static void extend_all(attn_cache *c, const attn_cache_step *s)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const cache_part part = part_of(s, b);
        if (c->page_size)
            own_pages(c, &part);
        advance(c, &part);
    }
}

ATTN_API attn_status attn_cache_extend(attn_cache *c, const attn_cache_step *s, char *why_text,
                                       size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_cache(c, &why);
    status = status ? status : check_step(c, s, &why);
    status = status ? status : check_fits(c, s, &why);
    if (!status)
        extend_all(c, s); /* From here on nothing can fail. */
    return done(status, &why);
}

/* row_in_step tells where the rows of a run are in a step, whose part is the last part->count
 * numbers. */
static cache_place row_in_step(const attn_cache *c, const cache_part *part, const cache_run *run)
{
    cache_place from = part->from;
    from.row += run->number - (c->end[part->sequence] - part->count);
    return from;
}

static void turn_run(const attn_cache *c, const attn_cache_step *s, cache_place from,
                     const cache_run *run, const attn_output *to)
{
    attn_rope_rows rows = rows_to_turn(c, s, from, run->rows, &run->number);
    rows.x.data = (const char *)rows.x.data + BYTES_TO(rows.x, from, 0);
    rows.y = *to;
    rows.y.data = (char *)rows.y.data + BYTES_TO(rows.y, run->at, 0);
    apply_rope(s->rope, &rows);
}

static void copy_run(const attn_cache *c, int64_t layer, const attn_cache_step *s, cache_place from,
                     const cache_run *run, int side, const attn_output *to)
{
    const attn_scales by = scales_of_layer(c, side, layer);
    copy_heads(to, run->at, side == CACHE_K ? &s->k : &s->v, from, c->num_heads_kv, run->rows,
               side_of(c, side).dim, &by);
}

/* on_desk tells whether rows of a side go by way of a desk to a type: they are centered or rotated, or
 * turned and then rounded to what apply_rope does not write. */
static int on_desk(const attn_cache *c, const attn_cache_step *s, int side, int dtype)
{
    const int is_k = side == CACHE_K;
    if ((is_k ? s->k.dtype : s->v.dtype) > LAST_PLAIN)
        return 0; /* It is as it is stored. */
    return is_centered(c, side) || is_rotated(c, side) || (is_k && s->rope && dtype > LAST_PLAIN);
}

/* finish_desk centers and rotates the row of all heads on a desk. */
static void finish_desk(const attn_cache *c, int64_t layer, int side, float *desk)
{
    const int64_t dim = side_of(c, side).dim, n = c->num_heads_kv * dim;
    const float *const mean = is_centered(c, side) ? c->k_mean + layer * n : NULL;
    int64_t i;
    for (i = 0; i < n && mean; i++)
        desk[i] = finished(desk[i] - mean[i]);
    for (i = 0; i < n && is_rotated(c, side); i += dim)
        rotate_row(desk + i, dim);
}

/* lay_row lays a row of a step on the desk, turned, centered and rotated. */
static void lay_row(const attn_cache *c, int64_t layer, const attn_cache_step *s, int side,
                    cache_place from, int64_t number, const attn_output *desk)
{
    static const cache_place only = { 0, 0 };
    const int64_t dim = side_of(c, side).dim;
    if (side == CACHE_K && s->rope) {
        attn_rope_rows rows = rows_to_turn(c, s, from, 1, &number);
        rows.x.data = (const char *)rows.x.data + BYTES_TO(rows.x, from, 0);
        rows.y = *desk;
        apply_rope(s->rope, &rows);
    } else {
        copy_heads(desk, only, side == CACHE_K ? &s->k : &s->v, from, c->num_heads_kv, 1, dim,
                   &no_scales);
    }
    finish_desk(c, layer, side, desk->data);
}

static void desk_run(const attn_cache *c, int64_t layer, const attn_cache_step *s, int64_t q,
                     cache_place from, const cache_run *run, int side, const attn_output *to)
{
    static const cache_place only = { 0, 0 };
    const int64_t dim = side_of(c, side).dim;
    const attn_output desk = desk_of(c, layer, q, dim);
    const attn_tensor laid = as_tensor(&desk);
    const attn_scales by = scales_of_layer(c, side, layer);
    int64_t i;
    for (i = 0; i < run->rows; i++) {
        const cache_place x = { from.entry, from.row + i }, y = { run->at.entry, run->at.row + i };
        lay_row(c, layer, s, side, x, run->number + i, &desk);
        copy_heads(to, y, &laid, only, c->num_heads_kv, 1, dim, &by);
    }
}

/* write_run writes a run of one side to where it is stored, or kept as recent. */
static void write_run(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                      const cache_part *part, const cache_run *run, int side, const attn_output *to)
{
    const cache_place from = row_in_step(c, part, run);
    if (on_desk(c, s, side, to->dtype))
        desk_run(c, layer, s, part->sequence, from, run, side, to);
    else if (side == CACHE_K && s->rope)
        turn_run(c, s, from, run, to);
    else
        copy_run(c, layer, s, from, run, side, to);
}

/* write_recent writes those keys of a part that its ring of recent rows keeps. */
static void write_recent(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                         const cache_part *part, int side)
{
    const int64_t end = c->end[part->sequence];
    const attn_output to = recent_of(c, side, layer);
    cache_run run = { .number = end - min64(part->count, c->recent_rows) };
    while (next_recent(c, part->sequence, end, &run))
        write_run(c, layer, s, part, &run, side, &to);
}

static void write_part(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                       const cache_part *part)
{
    const int64_t end = c->end[part->sequence];
    int side;
    for (side = 0; side < CACHE_SIDES; side++) {
        const attn_output to = layer_of(c, side, layer);
        cache_run run = { .number = end - part->count };
        while (next_run(c, part->sequence, end, &run))
            write_run(c, layer, s, part, &run, side, &to);
        if (c->recent)
            write_recent(c, layer, s, part, side);
    }
}

static void write_all(const attn_cache *c, int64_t layer, const attn_cache_step *s)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const cache_part part = part_of(s, b);
        write_part(c, layer, s, &part);
    }
}

/* is_shared tells whether other sequences have pages of a part's last keys, after a fork before the
 * keys were written. */
static int is_shared(const attn_cache *c, const cache_part *part)
{
    page_range r;
    int64_t n;
    if (!c->page_size)
        return 0;
    r = pages_of(c, c->end[part->sequence] - part->count, part->count);
    for (n = 0; n < r.count; n++)
        if (c->uses[table_of(c, part->sequence)[nth_page(c, &r, n)]] > 1)
            return 1;
    return 0;
}

static attn_status check_extended(const attn_cache *c, const attn_cache_step *s, text *why)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const cache_part part = part_of(s, b);
        if (part.count > c->length[part.sequence])
            return bad_keys(c, &part, ATTN_ERR_ARG, "call attn_cache_extend with this step first",
                            why);
        if (is_shared(c, &part))
            return bad_keys(c, &part, ATTN_ERR_ARG,
                            "other sequences share their pages: write all layers "
                            "before attn_cache_fork",
                            why);
    }
    return ATTN_OK;
}

ATTN_API attn_status attn_cache_write(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                                      char *why_text, size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache_step resolved;
    attn_status status = check_cache(c, &why);
    status = status ? status : check_layer(c, layer, &why);
    status = status ? status : check_step(c, s, &why);
    status = status ? status : check_extended(c, s, &why);
    if (status)
        return status;
    resolved = *s;
    status = resolve_step(c, &resolved, 1, &why);
    if (!status)
        write_all(c, layer, &resolved);
    return done(status, &why);
}

ATTN_API attn_status attn_cache_append(attn_cache *c, const attn_cache_step *s, char *why_text,
                                       size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_cache_step resolved;
    attn_status status = check_cache(c, &why);
    if (!status && c->num_layers != 1)
        return bad_field(&why, ATTN_ERR_ARG, "num_layers", c->num_layers,
                         ": call attn_cache_extend, then attn_cache_write for each layer");
    status = status ? status : check_step(c, s, &why);
    if (status)
        return status;
    resolved = *s;
    status = resolve_step(c, &resolved, 0, &why);
    status = status ? status : check_fits(c, s, &why);
    if (status)
        return status;
    extend_all(c, s); /* From here on nothing can fail. */
    write_all(c, 0, &resolved);
    return done(ATTN_OK, &why);
}
