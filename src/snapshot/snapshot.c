/* src/snapshot/snapshot.c - sequences of a cache, saved and loaded.
 * SPDX-License-Identifier: MIT
 */
#pragma once

#include "../cache/cache.c"
#include "stream.c"

#define SNAPSHOT_FORMAT INT64_C(0x31706e736e747461) /* "attnsnp1" */
#define SNAPSHOT_RECENT INT64_C(0x316365726e747461) /* "attnrec1": with recent rows */
#define SNAPSHOT_BLOCK 64                           /* numbers */
#define SNAPSHOT_ANGLES 4096 /* the last position at which ropes are compared */

/* ---- what must agree */

#define AT(member) offsetof(attn_cache, member)

static const call_field agreed_fields[] = {
    { VALUE(num_layers, F_INT64, BY_ALL, ANY) }, { VALUE(num_heads_kv, F_INT64, BY_ALL, ANY) },
    { VALUE(head_dim, F_INT64, BY_ALL, ANY) },   { VALUE(head_dim_v, F_INT64, BY_ALL, ANY) },
    { VALUE(k.dtype, F_INT, BY_ALL, ANY) },      { VALUE(v.dtype, F_INT, BY_ALL, ANY) },
    { VALUE(rotated, F_INT, BY_ALL, ANY) },      { VALUE(window_left, F_INT64, BY_ALL, ANY) },
};

/* These follow where there are recent rows. */
static const call_field recent_fields[] = {
    { VALUE(recent, F_INT64, BY_ALL, ANY) },
    { VALUE(recent_dtype, F_INT, BY_ALL, ANY) },
};
#undef AT

typedef struct snapshot_fact {
    const char *name;
    int64_t number;
} snapshot_fact;

enum {
    OTHER_FACTS = 8,
    FACTS = COUNT_OF(agreed_fields) + OTHER_FACTS,
    RECENT_FACTS = COUNT_OF(recent_fields)
};

/* hash_angles takes positions 1, 2, 4, ..., those of a table that it has. */
OWN_FRAME static int64_t hash_angles(const attn_rope *r, int64_t dim)
{
    const int64_t end = r->cos ? min64(r->num_positions, SNAPSHOT_ANGLES + 1) : SNAPSHOT_ANGLES + 1;
    const rope_source from = source_of(r, dim);
    uint64_t hash = 0;
    rope_block k;
    int64_t pair, position;
    int i;
    for (pair = 0; pair < from.pairs; pair += ROPE_BLOCK) {
        begin_block(&k, &from, pair);
        for (position = 1; position < end; position *= 2) {
            set_angles(&k, &from, position);
            for (i = 0; i < k.n; i++)
                hash = hash_word(hash, (uint64_t)bits_of(k.s[i]) << 32 | bits_of(k.c[i]));
        }
    }
    return (int64_t)hash;
}

static int64_t hash_mean(const attn_cache *c)
{
    const int64_t n = mean_floats(c);
    uint64_t hash = c->k_mean != NULL;
    int64_t i;
    for (i = 0; i < n; i++)
        hash = hash_word(hash, bits_of(c->k_mean[i]));
    return (int64_t)hash;
}

/* hash_scales takes a scale for each number of each layer, so that it does not matter which are shared. */
static int64_t hash_scales(const attn_cache *c, int side)
{
    const int64_t dim = side_of(c, side).dim;
    uint64_t hash = 0;
    int64_t layer, i;
    for (layer = 0; layer < c->num_layers; layer++) {
        const attn_scales x = scales_of_layer(c, side, layer);
        for (i = 0; i < c->num_heads_kv * dim && x.data; i++)
            hash =
                hash_word(hash, bits_of(x.data[i / dim * x.stride_head + i % dim * x.stride_dim]));
    }
    return (int64_t)hash;
}

/* list_fields lists the values of n fields of a cache. */
static void list_fields(const attn_cache *c, const call_field *fields, int n, snapshot_fact *facts)
{
    int i;
    for (i = 0; i < n; i++) {
        facts[i].name = fields[i].name;
        facts[i].number = field_number(&fields[i], c);
    }
}

/* list_facts lists what must agree, and counts it. */
static int list_facts(const attn_cache *c, const attn_snapshot *s, snapshot_fact *facts)
{
    const attn_rope *r = s->rope;
    const int64_t dim = r ? rope_dim(r, c->head_dim) : 0;
    const snapshot_fact others[OTHER_FACTS] = {
        { "numerics version", ATTN_NUMERICS_VERSION },
        { "batch", s->batch },
        { "tag", (int64_t)s->tag },
        { "rows of a ring", c->ring ? c->rows : 0 },
        { "elements turned by rope", dim },
        { "rope.interleaved", r && r->interleaved },
        { "hash of the angles of rope", r ? hash_angles(r, dim) : 0 },
        { "hash of k_mean", hash_mean(c) },
    };
    memcpy(facts, others, sizeof others);
    list_fields(c, agreed_fields, COUNT_OF(agreed_fields), facts + OTHER_FACTS);
    list_fields(c, recent_fields, c->recent ? RECENT_FACTS : 0, facts + FACTS);
    return c->recent ? FACTS + RECENT_FACTS : FACTS;
}

/* ---- what passes */

/* stream_status says what has gone wrong by now. */
static attn_status stream_status(const stream *st, text *why)
{
    if (st->status == ATTN_ERR_CALLBACK)
        return bad_numbers(why, st->status,
                           st->loading ? "snapshot: read failed after # bytes, before its end"
                                       : "snapshot: write failed after # bytes",
                           &st->behind);
    if (st->status == ATTN_ERR_DATA)
        return bad_numbers(why, st->status, "snapshot: damaged in the first # bytes", &st->behind);
    return st->status;
}

static attn_status pass_format(const attn_cache *c, stream *st, text *why)
{
    const int64_t own = c->recent ? SNAPSHOT_RECENT : SNAPSHOT_FORMAT;
    int64_t format = own;
    begin_section(st, 8);
    pass_number(st, &format);
    if (!st->status && format != own && (format == SNAPSHOT_FORMAT || format == SNAPSHOT_RECENT))
        return bad_field(why, ATTN_ERR_ARG, "snapshot: recent of the cache", c->recent,
                         c->recent ? ", but the snapshot has no recent rows"
                                   : ", but the snapshot has recent rows");
    if (!st->status && format != own)
        return bad(why, ATTN_ERR_DATA,
                   "snapshot: the first 8 bytes must be attnsnp1 or attnrec1: it is none, or of "
                   "another version");
    end_section(st);
    return stream_status(st, why);
}

/* pass_facts passes a section of facts and wants them to agree. */
static attn_status pass_facts(stream *st, const snapshot_fact *own, int n, text *why)
{
    int64_t theirs[FACTS + RECENT_FACTS];
    attn_status status;
    int i;
    begin_section(st, n * 8);
    for (i = 0; i < n; i++) {
        theirs[i] = own[i].number;
        pass_number(st, &theirs[i]);
    }
    end_section(st);
    status = stream_status(st, why);
    for (i = 0; i < n && !status; i++)
        if (theirs[i] != own[i].number) {
            put(why, "snapshot: ");
            put(why, own[i].name);
            put_numbers(why, " (#) must be #, as here", NUMBERS(theirs[i], own[i].number));
            status = ATTN_ERR_ARG;
        }
    return status;
}

/* pass_agreed passes what every snapshot says, and then hashes of scales where there are some. */
static attn_status pass_agreed(const attn_cache *c, stream *st, text *why)
{
    snapshot_fact own[FACTS + RECENT_FACTS];
    const int n = list_facts(c, st->ends, own);
    const snapshot_fact scales[] = { { "hash of k_scales", hash_scales(c, CACHE_K) },
                                     { "hash of v_scales", hash_scales(c, CACHE_V) } };
    const attn_status status = pass_facts(st, own, n, why);
    if (status || !(c->k_scales.data || c->v_scales.data))
        return status;
    return pass_facts(st, scales, COUNT_OF(scales), why);
}

/* A kept_rows is the rows of a cache as they are stored, or those that are recent. */
typedef struct kept_rows {
    attn_output (*of)(const attn_cache *c, int side, int64_t layer);
    int (*next)(const attn_cache *c, int64_t q, int64_t end, cache_run *run);
} kept_rows;

static const kept_rows stored_rows = { layer_of, next_run };
static const kept_rows last_rows = { recent_of, next_recent };

/* pass_head_rows passes one head's rows of numbers from..to-1. */
static void pass_head_rows(const attn_cache *c, stream *st, const kept_rows *kept, int side,
                           int64_t layer, int64_t q, int64_t head, int64_t from, int64_t to)
{
    const attn_output o = kept->of(c, side, layer);
    cache_run run = { .number = from };
    while (kept->next(c, q, to, &run)) {
        char *row = (char *)o.data + BYTES_TO(o, run.at, head);
        int64_t i;
        for (i = 0; i < run.rows; i++, row += bytes_between(o.dtype, o.stride_seq))
            pass_row(st, o.dtype, row, side_of(c, side).dim);
    }
}

static void pass_block(const attn_cache *c, stream *st, const kept_rows *kept, int64_t layer,
                       int64_t q, int64_t from, int64_t to)
{
    const int64_t of_row = room_of(kept->of(c, CACHE_K, layer).dtype, c->head_dim) +
                           room_of(kept->of(c, CACHE_V, layer).dtype, c->head_dim_v);
    int64_t head;
    int side;
    begin_section(st, (to - from) * c->num_heads_kv * of_row);
    for (side = 0; side < CACHE_SIDES; side++)
        for (head = 0; head < c->num_heads_kv; head++)
            pass_head_rows(c, st, kept, side, layer, q, head, from, to);
    end_section(st);
}

static attn_status pass_rows(const attn_cache *c, stream *st, const kept_rows *kept, int64_t q,
                             int64_t begin, int64_t end, text *why)
{
    int64_t layer, from, to;
    for (layer = 0; layer < c->num_layers; layer++)
        for (from = begin; from < end && !st->status; from = to) {
            to = min64(end, (from / SNAPSHOT_BLOCK + 1) * SNAPSHOT_BLOCK);
            pass_block(c, st, kept, layer, q, from, to);
        }
    return stream_status(st, why);
}

/* A sequence_numbers is what a snapshot has of a sequence beside its rows. */
typedef struct sequence_numbers {
    int64_t begin, end, overwritten_below;
    int64_t recent_begin; /* only with recent rows */
} sequence_numbers;

static attn_status pass_numbers(const attn_cache *c, stream *st, sequence_numbers *x, text *why)
{
    begin_section(st, (c->recent ? 4 : 3) * 8);
    pass_number(st, &x->begin);
    pass_number(st, &x->end);
    pass_number(st, &x->overwritten_below);
    if (c->recent)
        pass_number(st, &x->recent_begin);
    end_section(st);
    return stream_status(st, why);
}

/* pass_sequence passes the rows of a sequence, stored ones and then recent ones, of which a smaller
 * ring keeps the last. */
static attn_status pass_sequence(const attn_cache *c, stream *st, int64_t q,
                                 const sequence_numbers *x, text *why)
{
    const attn_status status = pass_rows(c, st, &stored_rows, q, x->begin, x->end, why);
    if (status || !c->recent)
        return status;
    return pass_rows(c, st, &last_rows, q, max64(x->begin, x->recent_begin), x->end, why);
}

/* ---- saving */

static attn_status check_snapshot(const attn_cache *c, const attn_snapshot *s, text *why)
{
    attn_status status = check_cache(c, why);
    if (!status && !s)
        return bad(why, ATTN_ERR_ARG, "snapshot is NULL");
    status = status ? status : check_chosen(c, s->sequences, s->batch, 1, why);
    status = status ? status : check_distinct(s->sequences, s->batch, why);
    return status || !s->rope ? status : check_rope(s->rope, c->head_dim, why);
}

OWN_FRAME static attn_status save_all(const attn_cache *c, const attn_snapshot *s, text *why)
{
    stream st = { .ends = s };
    attn_status status = pass_format(c, &st, why);
    int64_t b;
    status = status ? status : pass_agreed(c, &st, why);
    for (b = 0; b < s->batch && !status; b++) {
        const int64_t q = entry32(s->sequences, b, b);
        sequence_numbers x = { c->begin[q], c->end[q], c->overwritten_below[q],
                               c->recent ? c->recent_begin[q] : 0 };
        status = pass_numbers(c, &st, &x, why);
        status = status ? status : pass_sequence(c, &st, q, &x, why);
    }
    return status;
}

ATTN_API attn_status attn_cache_save(const attn_cache *c, const attn_snapshot *s, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_snapshot(c, s, &why);
    if (!status && !s->write)
        return bad(&why, ATTN_ERR_ARG, "write is NULL");
    status = status ? status : save_all(c, s, &why);
    return done(status, &why);
}

/* ---- loading */

static attn_status check_empty(const attn_cache *c, const attn_snapshot *s, text *why)
{
    int64_t b;
    for (b = 0; b < s->batch; b++) {
        const int64_t q = entry32(s->sequences, b, b);
        if (c->end[q])
            return bad_entry(why, "sequences", b, q,
                             " must be empty: call attn_cache_trim(c, q, 0, 0, ...) first");
    }
    return ATTN_OK;
}

/* last_recent is the largest recent_begin with which the next row reads what is there. */
static int64_t last_recent(const attn_cache *c, const sequence_numbers *x)
{
    return c->recent ? max64(x->begin, x->end - keys_before(c)) : 0;
}

/* check_loaded trusts nothing that a snapshot says. */
static attn_status check_loaded(const attn_cache *c, const sequence_numbers *x, text *why)
{
    const int64_t most = c->ring ? c->rows : c->capacity;
    const int64_t values[] = { x->begin, x->end, x->overwritten_below };
    if (x->begin < 0 || x->end < x->begin || x->end > MOST_KEY_BASE || x->overwritten_below < 0 ||
        x->overwritten_below > x->begin ||
        (x->overwritten_below && (!c->ring || x->begin == x->end)))
        return bad_numbers(why, ATTN_ERR_DATA,
                           "snapshot: a sequence with begin #, end #, overwritten_below #", values);
    if (x->recent_begin < 0 || x->recent_begin > last_recent(c, x))
        return bad_numbers(why, ATTN_ERR_DATA,
                           "snapshot: a sequence with begin #, end #, recent_begin #",
                           NUMBERS(x->begin, x->end, x->recent_begin));
    if (x->end - x->begin > most)
        return bad_numbers(why, ATTN_ERR_FULL, "snapshot: a sequence has # keys, but capacity is #",
                           NUMBERS(x->end - x->begin, most));
    return ATTN_OK;
}

/* take_pages takes pages for an empty sequence. */
static attn_status take_pages(attn_cache *c, int64_t q, const sequence_numbers *x, text *why)
{
    page_range r;
    int64_t n;
    if (!c->page_size)
        return ATTN_OK;
    r = pages_of(c, x->begin, x->end - x->begin);
    if (r.count > c->num_free)
        return bad_numbers(why, ATTN_ERR_FULL,
                           "num_free (#) of num_pages (#) is too few: a sequence of the snapshot "
                           "needs # pages",
                           NUMBERS(c->num_free, c->num_pages, r.count));
    for (n = 0; n < r.count; n++)
        table_of(c, q)[nth_page(c, &r, n)] = take_page(c);
    return ATTN_OK;
}

static attn_status load_sequence(attn_cache *c, stream *st, int64_t q, text *why)
{
    sequence_numbers x = { 0, 0, 0, 0 };
    attn_status status = pass_numbers(c, st, &x, why);
    status = status ? status : check_loaded(c, &x, why);
    status = status ? status : take_pages(c, q, &x, why);
    status = status ? status : pass_sequence(c, st, q, &x, why);
    if (!status && c->recent)
        c->recent_begin[q] = x.recent_begin;
    if (!status)
        set_numbers(c, q, x.begin, x.end, x.overwritten_below);
    return status;
}

/* take_back makes a sequence empty again. The free list still has what was taken from it. */
static void take_back(attn_cache *c, int64_t q)
{
    int64_t i;
    set_numbers(c, q, 0, 0, 0);
    for (i = 0; i < c->pages_per_sequence; i++) {
        int32_t *page = table_of(c, q) + i;
        if (*page >= 0)
            c->uses[*page] = 0;
        *page = -1;
    }
}

OWN_FRAME static attn_status load_all(attn_cache *c, const attn_snapshot *s, text *why)
{
    const int64_t num_free = c->num_free;
    stream st = { .ends = s, .loading = 1 };
    attn_status status = pass_format(c, &st, why);
    int64_t b;
    status = status ? status : pass_agreed(c, &st, why);
    for (b = 0; b < s->batch && !status; b++)
        status = load_sequence(c, &st, entry32(s->sequences, b, b), why);
    for (b = 0; b < s->batch && status; b++)
        take_back(c, entry32(s->sequences, b, b));
    if (status)
        c->num_free = num_free;
    return status;
}

ATTN_API attn_status attn_cache_load(attn_cache *c, const attn_snapshot *s, char *why_text,
                                     size_t why_bytes)
{
    text why = text_in(why_text, why_bytes);
    attn_status status = check_snapshot(c, s, &why);
    if (!status && !s->read)
        return bad(&why, ATTN_ERR_ARG, "read is NULL");
    status = status ? status : check_empty(c, s, &why);
    status = status ? status : load_all(c, s, &why);
    return done(status, &why);
}
