/* src/validate.c - validation: every rule about the parameters and its sentence.
 * SPDX-License-Identifier: MIT
 *
 * Each check returns ATTN_OK or the status whose reason it has put into *why. Behind validation
 * nothing checks arguments.
 */
#pragma once

#include "rules.c"
#include "problem.c"
#include "keys.c"
#include "masks.c"
#include "overlap.c"

static attn_status check_sizes(const attn_params *p, text *why)
{
    const attn_status status = check_values(call_fields, COUNT_OF(call_fields), p, why);
    if (status)
        return status;
    if (p->num_heads_kv && p->num_heads_q % p->num_heads_kv)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "num_heads_q (#) must be a multiple of num_heads_kv (#)",
                           NUMBERS(p->num_heads_q, p->num_heads_kv));
    if (p->tile_keys &&
        (p->tile_keys < 16 || p->tile_keys > 1024 || (p->tile_keys & (p->tile_keys - 1))))
        return bad_field(why, ATTN_ERR_ARG, "tile_keys", p->tile_keys,
                         " must be 0 or a power of two from 16 to 1024");
    return ATTN_OK;
}

static attn_status check_numbers(const attn_params *p, text *why)
{
    if (!is_finite(score_factor(p->scale)))
        return bad_number(why, "scale", p->scale, " times log2(e) must be finite");
    if (!is_finite(p->softcap) || p->softcap < 0)
        return bad_number(why, "softcap", p->softcap, " must be finite and at least 0");
    if (p->softcap > 0 && !(p->softcap > 1e-30f && p->softcap < 1e30f))
        return bad_number(why, "softcap", p->softcap, " must be 0 or between 1e-30 and 1e30");
    if (!(p->dropout_p >= 0 && p->dropout_p < 1))
        return bad_number(why, "dropout_p", p->dropout_p, " must be at least 0 and below 1");
    if (!(p->skip.below >= 0 && p->skip.below < 1))
        return bad_number(why, "skip.below", p->skip.below, " must be at least 0 and below 1");
    return ATTN_OK;
}

/* A pair_rule is about a field that must not stand alone, or not together with another one. */
typedef struct pair_rule {
    member field, other;
    /* Nonzero refuses it if the other one is set, and 0 if the other one is not. */
    int with;
    const char *name; /* name is that of the number to be shown; NULL means none. */
    const char *rest;
} pair_rule;

#define ALONE(field, other, rest)                                                                  \
    {                                                                                              \
        MEMBER(field), MEMBER(other), 0, NULL, rest                                                \
    }
#define NUMBER_ALONE(field, other, rest)                                                           \
    {                                                                                              \
        MEMBER(field), MEMBER(other), 0, #field, rest                                              \
    }
#define TOGETHER(field, other, rest)                                                               \
    {                                                                                              \
        MEMBER(field), MEMBER(other), 1, NULL, rest                                                \
    }

#define NEEDS_LOGITS(who)                                                                          \
    "k_centered: logits of a row lack one number, and " who " needs them whole"

/* Fields that mean nothing without another one are refused, not ignored; prefix without causal
 * means something: the keys that it shows are visible anyway. */
static const pair_rule pair_rules[] = {
    ALONE(prefix, causal, "prefix is given, but causal, which it widens, is 0"),
    ALONE(cu_seqlens_kv, cu_seqlens_q, "cu_seqlens_kv is given, but cu_seqlens_q is NULL"),
    ALONE(q_segments, kv_segments, "q_segments and kv_segments: give both or neither"),
    ALONE(kv_segments, q_segments, "q_segments and kv_segments: give both or neither"),
    NUMBER_ALONE(window_left, window, " is set, but window is 0: set window = ATTN_WINDOW"),
    NUMBER_ALONE(window_right, window, " is set, but window is 0: set window = ATTN_WINDOW"),
    ALONE(mask_tile, mask, "mask_tile is given, but mask is NULL"),
    NUMBER_ALONE(key_list.width, key_list.data, " is set, but key_list.data is NULL"),
    NUMBER_ALONE(key_list.rows, key_list.data, " is set, but key_list.data is NULL"),
    ALONE(key_list.data, key_list.width,
          "key_list.width (0) must be at least 1: entries of a list"),
    TOGETHER(block_mask.bitmap, block_mask.row_offsets,
             "block_mask.bitmap and row_offsets: give one of them"),
    ALONE(block_mask.row_offsets, block_mask.columns,
          "block_mask.row_offsets and columns: give both or neither"),
    ALONE(block_mask.columns, block_mask.row_offsets,
          "block_mask.row_offsets and columns: give both or neither"),
    TOGETHER(cu_seqlens_kv, kv_rows, "kv_rows and cu_seqlens_kv: give one of them"),
    ALONE(kv_rows.begin, kv_rows.ring,
          "kv_rows.begin is given, but kv_rows.ring, the rows of a sequence, is 0"),
    ALONE(kv_rows.table, kv_rows.page_size,
          "kv_rows.page_size (0) must be at least 1 when kv_rows.table is given"),
    NUMBER_ALONE(kv_rows.table_stride, kv_rows.page_size, " is set, but kv_rows.page_size is 0"),
    NUMBER_ALONE(kv_rows.num_pages, kv_rows.page_size, " is set, but kv_rows.page_size is 0"),
    TOGETHER(k_centered, softcap, NEEDS_LOGITS("softcap")),
    TOGETHER(k_centered, score, NEEDS_LOGITS("score")),
    TOGETHER(k_centered, sinks, NEEDS_LOGITS("sinks")),
    TOGETHER(k_centered, softmax1, NEEDS_LOGITS("softmax1")),
    TOGETHER(k_centered, logits.data, NEEDS_LOGITS("logits")),
    NUMBER_ALONE(recent.ring, recent.keys, " is set, but recent.keys is 0"),
    ALONE(recent.begin, recent.keys, "recent.begin is given, but recent.keys is 0"),
    ALONE(recent.entries, recent.keys, "recent.entries is given, but recent.keys is 0"),
    NUMBER_ALONE(recent.num_entries, recent.entries, " is set, but recent.entries is NULL"),
    ALONE(recent.k.data, recent.keys, "recent.k.data is given, but recent.keys is 0"),
    ALONE(recent.v.data, recent.keys, "recent.v.data is given, but recent.keys is 0"),
    ALONE(skip.below, skip.dropped,
          "skip.below is set, but skip.dropped, which says how much was left out, is NULL"),
    ALONE(skip.dropped, skip.below, "skip.dropped is given, but skip.below is 0"),
    TOGETHER(skip.below, fast, "skip.below and fast: leave one of them out"),
    TOGETHER(skip.below, partial, "skip.below is set, but raw states (partial) hold no bound"),
    TOGETHER(skip.below, logits.data, "skip.below is set, but logits need every key"),
    TOGETHER(skip.below, insight, "skip.below is set, but insight needs every key"),
    TOGETHER(sinks, softmax1, "softmax1 is a sink of 0 and excludes sinks: set one of them"),
    NUMBER_ALONE(part.row_begin, part.rows, " is set, but part.rows is 0"),
    NUMBER_ALONE(part.row_count, part.rows, " is set, but part.rows is 0"),
    NUMBER_ALONE(part.key_begin, part.keys, " is set, but part.keys is 0"),
    NUMBER_ALONE(part.key_count, part.keys, " is set, but part.keys is 0"),
    NUMBER_ALONE(part.key_row, part.keys, " is set, but part.keys is 0"),
    NUMBER_ALONE(part.key_row, kv_rows,
                 " is set, but kv_rows is not: k and v then begin with key part.key_begin"),
};

static attn_status check_pairs_of_fields(const attn_params *p, text *why)
{
    const pair_rule *rule = pair_rules, *end = pair_rules + COUNT_OF(pair_rules);
    while (rule < end && (!is_set(p, rule->field) || is_set(p, rule->other) != rule->with))
        rule++;
    if (rule == end)
        return ATTN_OK;
    if (rule->name)
        put_field(why, rule->name,
                  number_at((const char *)p + rule->field.offset, rule->field.size));
    return bad(why, ATTN_ERR_ARG, rule->rest);
}

/* check_settings checks what one field asks of the value of another one. */
static attn_status check_settings(const attn_params *p, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    const int by_offset = p->alignment == ATTN_ALIGN_OFFSET,
              has_cells = m->bitmap || m->row_offsets;
    const struct {
        int wrong;
        const char *name;
        int64_t value;
        const char *rest;
    } rules[] = {
        { p->kv_rows.page_size && !p->kv_rows.table && keys_held(p) > 0, "kv_rows.page_size",
          p->kv_rows.page_size, " is set, but kv_rows.table is NULL" },
        { p->recent.keys && !p->recent.ring, "recent.keys", p->recent.keys,
          " is set, but recent.ring, the rows of its k and v, is 0" },
        { p->window_left < -1, "window_left", p->window_left, " must be -1 (unbounded) or more" },
        { p->window_right < -1, "window_right", p->window_right,
          " must be -1 (unbounded) or more" },
        { by_offset && !p->q_offset, "alignment", p->alignment,
          " is ATTN_ALIGN_OFFSET, but q_offset is NULL" },
        { !by_offset && p->q_offset, "alignment", p->alignment,
          " must be ATTN_ALIGN_OFFSET (2) when q_offset is given" },
        { has_cells && !m->block_q, "block_mask.block_q", 0, " must be at least 1" },
        { has_cells && !m->block_k, "block_mask.block_k", 0, " must be at least 1" },
        { m->block_q && !has_cells, "block_mask.block_q", m->block_q,
          " is set, but neither bitmap nor row_offsets is given" },
        { m->block_k && !has_cells, "block_mask.block_k", m->block_k,
          " is set, but neither bitmap nor row_offsets is given" },
        { p->part.continued && !(p->part.keys && p->partial), "part.continued", p->part.continued,
          " needs part.keys and partial" },
        { p->insight.top && !p->insight.top_key && !p->insight.top_prob, "insight.top",
          p->insight.top, " is set, but insight.top_key and insight.top_prob are NULL" },
        { !p->insight.top && (p->insight.top_key || p->insight.top_prob), "insight.top", 0,
          " must be at least 1 when insight.top_key or insight.top_prob is given" },
        { p->insight.top && p->seq_len_kv > INT32_MAX, "seq_len_kv", p->seq_len_kv,
          " exceeds 2^31 - 1, and insight.top_key has 32 bits" },
        { p->insight.mass && !p->insight.mass_keys, "insight.mass_keys", 0,
          " must be at least 1 when insight.mass is given" },
        { p->insight.mass_keys && !p->insight.mass, "insight.mass_keys", p->insight.mass_keys,
          " is set, but insight.mass is NULL" },
        { p->insight.mass_rows && !p->insight.mass, "insight.mass_rows", p->insight.mass_rows,
          " is set, but insight.mass is NULL" },
    };
    int r = 0;
    while (r < COUNT_OF(rules) && !rules[r].wrong)
        r++;
    if (r == COUNT_OF(rules))
        return ATTN_OK;
    return bad_field(why, ATTN_ERR_ARG, rules[r].name, rules[r].value, rules[r].rest);
}

static attn_status check_scales(const attn_params *p, text *why)
{
    const attn_status status = check_scales_given("k", p->k.dtype, &p->k_scales, why);
    return status ? status : check_scales_given("v", p->v.dtype, &p->v_scales, why);
}

/* check_limits checks what one field allows another one to be. */
static attn_status check_limits(const attn_params *p, text *why)
{
    const attn_part *part = &p->part;
    if (p->cu_seqlens_q && !p->cu_seqlens_kv && !p->kv_len)
        return bad(why, ATTN_ERR_ARG,
                   "cu_seqlens_q is given, but neither cu_seqlens_kv (packed keys) nor kv_len");
    if (p->shared_keys > p->seq_len_kv)
        return bad_numbers(why, ATTN_ERR_ARG, "shared_keys (#) must be at most seq_len_kv (#)",
                           NUMBERS(p->shared_keys, p->seq_len_kv));
    if (part->rows && part->row_begin + part->row_count > p->seq_len_q)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "part.row_begin (#) + part.row_count (#) must be at most seq_len_q (#)",
                           NUMBERS(part->row_begin, part->row_count, p->seq_len_q));
    if (part->keys && part->key_begin + part->key_count > p->seq_len_kv)
        return bad_numbers(why, ATTN_ERR_ARG,
                           "part.key_begin (#) + part.key_count (#) must be at most seq_len_kv (#)",
                           NUMBERS(part->key_begin, part->key_count, p->seq_len_kv));
    return ATTN_OK;
}

/* check_support refuses what has a meaning, but is not built. */
static attn_status check_support(const attn_params *p, text *why)
{
    if (p->integer && !storages[p->k.dtype].unpack)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "integer", p->integer,
                         " needs k.dtype 5 for q8_0, 6 for q5_0, 7 for q4_0 or 8 for i8");
    if ((p->partial || p->part.keys) && p->logits.data && p->logits.stage == ATTN_LOGITS_SOFTMAX)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "logits.stage", p->logits.stage,
                         " (probabilities) needs all keys: not possible with partial or part.keys");
    if (p->partial && (has_insight(p) || p->insight.mass))
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "partial", p->partial,
                         " is set: raw states hold no insight");
    if (p->recent.keys && (p->impl == ATTN_IMPL_NAIVE || wants_pairs(p)))
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "recent.keys", p->recent.keys,
                         wants_pairs(p) ? " is set: logits and mass need one version of each key"
                                        : " is set: impl naive reads one version of each key");
    if (has_skip(p) && p->impl == ATTN_IMPL_NAIVE)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " (naive) takes all keys: skip.below must be 0");
    if (!p->part.rows && !p->part.keys)
        return ATTN_OK;
    if (p->impl == ATTN_IMPL_NAIVE)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " (naive) takes no part of a call");
    return refuse_fields(p, BY_PART, "a part of a call", why);
}

/* check_whole_numbers wants scales of whole numbers to go to queries or to logits, not to both. */
static attn_status check_whole_numbers(const attn_params *p, text *why)
{
    const attn_scales *x = &p->k_scales;
    if (!p->integer || !has_scales(p->k.dtype))
        return ATTN_OK;
    if (p->head_dim % UNIT)
        return bad_field(why, ATTN_ERR_ARG, "head_dim", p->head_dim,
                         " must be a multiple of 32 where integer is set");
    if (x->stride_dim && (x->stride_seq || (p->kv_rows.page_size && x->stride_batch)))
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "integer", p->integer,
                         " needs k_scales that all channels or all keys of a head share: set "
                         "stride_dim, or stride_seq (with pages also stride_batch), to "
                         "ATTN_STRIDE_BROADCAST");
    return ATTN_OK;
}

static attn_status check_units(const attn_params *p, text *why)
{
    const char *const own = p->head_dim_v == p->head_dim ? "head_dim" : "head_dim_v";
    attn_status status = check_whole_units("k", &p->k, "head_dim", p->head_dim, why);
    status = status ? status : check_whole_units("v", &p->v, own, p->head_dim_v, why);
    return status ? status : check_whole_numbers(p, why);
}

/* check_continued wants the keys of each sequence with rows to lie in one chunk. */
static attn_status check_continued(const attn_params *p, text *why)
{
    int64_t b;
    for (b = 0; p->part.continued && b < kinds_of(p); b++) {
        const sequence s = sequence_of(p, b);
        const int64_t first = s.key_base + s.key_from, end = s.key_base + s.key_to;
        if (s.row_from == s.row_to || first >= end || first / ATTN_CHUNK == (end - 1) / ATTN_CHUNK)
            continue;
        return bad_numbers(why, ATTN_ERR_ARG,
                           "part.continued: keys n (#) to # of sequence b (#) must lie in one "
                           "chunk, between two multiples of 1024",
                           NUMBERS(first, end - 1, b));
    }
    return ATTN_OK;
}

static attn_status check_lengths_of(const attn_params *p, int64_t b, text *why)
{
    const int64_t keys = kv_capacity(p, b), begin = entry32(p->kv_begin, b, 0);
    const struct {
        const char *name;
        const int32_t *array;
        int64_t most;
    } rules[] = { { "q_len", p->q_len, q_capacity(p, b) },
                  { "kv_begin", p->kv_begin, keys },
                  { "kv_len", p->kv_len, keys - begin } };
    int r;
    for (r = 0; r < COUNT_OF(rules); r++) {
        const int64_t value = entry32(rules[r].array, b, 0);
        if (value < 0 || value > rules[r].most)
            return bad_limit(why, rules[r].name, b, value, rules[r].most);
    }
    return ATTN_OK;
}

static attn_status check_lengths(const attn_params *p, text *why)
{
    const int64_t n = p->batch;
    const int given = p->q_len || p->kv_begin || p->kv_len;
    int64_t b;
    attn_status status = check_cu_seqlens("cu_seqlens_q", p->cu_seqlens_q, n, p->seq_len_q, why);
    if (!status)
        status = check_cu_seqlens("cu_seqlens_kv", p->cu_seqlens_kv, n, p->seq_len_kv, why);
    for (b = 0; given && b < n && !status; b++)
        status = check_lengths_of(p, b, why);
    return status;
}

/* check_table wants the pages that hold the keys in use of one sequence to be there. */
static attn_status check_table(const attn_params *p, const sequence *s, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    key_place at = key_at(p, s, s->key_from);
    int64_t j = s->key_from + at.left;
    while (at.entry >= 0 && at.entry < rows->num_pages && j < s->key_to) {
        next_place(p, s, &at);
        j += at.left;
    }
    if (at.entry >= 0 && at.entry < rows->num_pages)
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "kv_rows.table[#] (#) must be from 0 to num_pages (#) - 1",
                       NUMBERS(at.table_entry, at.entry, rows->num_pages));
}

/* check_sequence_rows wants the rows of one sequence inside the ring and in pages that exist. */
static attn_status check_sequence_rows(const attn_params *p, const sequence *s, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    const int64_t begin = entry32(rows->begin, s->b, 0);
    const int64_t end = s->kv_row - begin + s->key_to; /* of its rows, from that of `begin` on */
    if (begin < 0 || (rows->ring && begin >= rows->ring))
        return bad_entry(why, "kv_rows.begin", s->b, begin,
                         " must be at least 0 and below kv_rows.ring");
    if (s->key_from >= s->key_to)
        return ATTN_OK;
    if (rows->ring && end > rows->ring)
        return bad_numbers(why, ATTN_ERR_ARG,
                           p->part.keys
                               ? "kv_rows.ring (#) is below the rows up to the last key in use of "
                                 "sequence b (#), #"
                               : "kv_rows.ring (#) is below kv_begin + kv_len of sequence b (#), #",
                           NUMBERS(rows->ring, s->b, end));
    return rows->page_size ? check_table(p, s, why) : ATTN_OK;
}

static attn_status check_sequences(const attn_params *p, text *why)
{
    attn_status status = ATTN_OK;
    int64_t b;
    for (b = 0; is_scattered(p) && b < p->batch && !status; b++) {
        const sequence s = sequence_of(p, b);
        status = check_sequence_rows(p, &s, why);
    }
    return status;
}

/* check_tensors wants the tensors that the call reads to be there. */
static attn_status check_tensors(const attn_params *p, text *why)
{
    const int has_keys = keys_held(p) > 0;
    if (!p->q.data)
        return bad(why, ATTN_ERR_ARG, "q.data is NULL");
    if (has_keys && !p->k.data)
        return bad(why, ATTN_ERR_ARG, "k.data is NULL");
    if (has_keys && wants_values(p) && !p->v.data)
        return bad(why, ATTN_ERR_ARG, "v.data is NULL");
    if (has_keys && p->recent.keys && !p->recent.k.data)
        return bad(why, ATTN_ERR_ARG, "recent.k.data is NULL");
    if (has_keys && p->recent.keys && wants_values(p) && !p->recent.v.data)
        return bad(why, ATTN_ERR_ARG, "recent.v.data is NULL");
    return ATTN_OK;
}

/* check_held wants the ring of a sequence to hold what the first row that reads from it, which reads the
 * oldest, needs. */
COLD static attn_status check_held(const attn_params *p, const range_list *ranges,
                                   const sequence *s, text *why)
{
    const int64_t end = s->key_base + s->kv_len, last = end - p->recent.ring;
    const int64_t begin = p->recent.begin ? max64(p->recent.begin[s->b], last) : last;
    int64_t row = s->row_from, lo, hi, first = 0;
    for (; row < s->row_to; row++) {
        visible_range(ranges, p, s, row + s->offset, &lo, &hi);
        first = max64(lo, recent_from(p, row + s->offset));
        if (first < hi)
            break;
    }
    first += s->key_base;
    if (row == s->row_to || begin <= first)
        return ATTN_OK;
    return bad_numbers(why, ATTN_ERR_ARG,
                       "recent: the first row of sequence b (#) reads keys n from # on, but the "
                       "ring, of # rows, has those from # on",
                       NUMBERS(s->b, first, p->recent.ring, begin));
}

/* check_recent wants each sequence to have an entry and what it reads of it. */
COLD static attn_status check_recent(const attn_params *p, text *why)
{
    const range_list ranges = ranges_of(p);
    attn_status status = ATTN_OK;
    int64_t b;
    for (b = 0; p->recent.keys && b < p->batch && !status; b++) {
        const int64_t entry = entry32(p->recent.entries, b, b);
        const sequence s = sequence_of(p, b);
        if (p->recent.entries && (entry < 0 || entry >= p->recent.num_entries))
            return bad_limit(why, "recent.entries", b, entry, p->recent.num_entries - 1);
        status = check_held(p, &ranges, &s, why);
    }
    return status;
}

static attn_status check_outputs(const attn_params *p, text *why)
{
    int64_t r;
    if (p->partial && !(p->state.m && p->state.l && p->state.o))
        return bad(why, ATTN_ERR_ARG, "partial is set, but state.m, state.l or state.o is NULL");
    if (!wants_rows(p) && !wants_pairs(p))
        return bad(
            why, ATTN_ERR_ARG,
            "o.data is NULL, and none of lse, stats, insight, partial and logits is asked for");
    for (r = 0; p->logits.data && p->logits.rows && r < p->logits.num_rows; r++)
        if (p->logits.rows[r] < 0 || p->logits.rows[r] >= p->seq_len_q)
            return bad_entry(why, "logits.rows", r, p->logits.rows[r],
                             " must be a row from 0 to seq_len_q - 1");
    if (p->logits.data && !p->logits.rows && p->logits.num_rows > rows_held(p))
        return bad_field(why, ATTN_ERR_ARG, "logits.num_rows", p->logits.num_rows,
                         " exceeds the rows of the call or part, and logits.rows is NULL");
    return ATTN_OK;
}

static attn_status check_tree(const attn_params *p, text *why)
{
    int64_t b, i;
    for (b = 0; p->tree_parents && b < p->batch; b++) {
        const sequence s = sequence_of(p, b);
        const int64_t at = p->cu_seqlens_q ? s.q_row : b * p->tree_stride;
        for (i = 0; i < s.q_len; i++) {
            const int32_t parent = p->tree_parents[at + i];
            if (parent < -1 || parent >= i)
                return bad_entry(why, "tree_parents", at + i, parent,
                                 " must be -1 or an earlier node of its tree");
        }
    }
    return ATTN_OK;
}

/* check_offsets checks the offsets of `rows` rows of cells, of which none has more than `columns`. */
static attn_status check_offsets(const int32_t *offsets, int64_t first, int64_t rows,
                                 int64_t columns, text *why)
{
    int64_t r;
    if (rows > 0 && offsets[first] < 0)
        return bad_entry(why, "block_mask.row_offsets", first, offsets[first],
                         " must be at least 0");
    for (r = first; r < first + rows; r++) {
        const int64_t begin = offsets[r], end = offsets[r + 1];
        if (end < begin)
            return bad_after(why, "block_mask.row_offsets", r + 1, end,
                             " is below the entry before it", begin);
        if (end - begin > columns)
            return bad_entry(why, "block_mask.row_offsets", r + 1, end,
                             " leaves its row more blocks than seq_len_kv has");
    }
    return ATTN_OK;
}

/* check_csr_rows checks a head. No column is read before all offsets are right: their last one says
 * how many columns there are. */
static attn_status check_csr_rows(const attn_params *p, int64_t first, int64_t q_len, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = q_len > 0 ? (q_len - 1) / m->block_q + 1 : 0;
    const int64_t columns = p->seq_len_kv ? (p->seq_len_kv - 1) / m->block_k + 1 : 0;
    const attn_status status = check_offsets(m->row_offsets, first, rows, columns, why);
    int64_t r, c;
    for (r = first; r < first + rows && !status; r++)
        for (c = m->row_offsets[r]; c < m->row_offsets[r + 1]; c++) {
            if (m->columns[c] < 0 || m->columns[c] >= columns)
                return bad_limit(why, "block_mask.columns", c, m->columns[c], columns - 1);
            if (c > m->row_offsets[r] && m->columns[c] <= m->columns[c - 1])
                return bad_after(why, "block_mask.columns", c, m->columns[c],
                                 " must be above the entry before it", m->columns[c - 1]);
        }
    return status;
}

static attn_status check_csr(const attn_params *p, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t entries = !m->row_offsets ? 0 : m->csr_stride_batch ? p->batch : 1;
    const int64_t heads = m->csr_stride_head ? p->num_heads_q : 1;
    attn_status status = ATTN_OK;
    const int64_t rows = longest(p->cu_seqlens_q, p->batch, p->seq_len_q);
    int64_t b, h;
    for (b = 0; b < entries && !status; b++)
        for (h = 0; h < heads && !status; h++)
            status = check_csr_rows(p, b * m->csr_stride_batch + h * m->csr_stride_head, rows, why);
    return status;
}

/* check_list wants the numbers of one list to ascend, and entries below 0 to be its last. */
static attn_status check_list(const attn_params *p, key_numbers list, text *why)
{
    const int64_t first = list.at - p->key_list.data;
    int64_t k;
    for (k = 0; k < list.count; k++) {
        const int64_t value = list.at[k], before = k ? list.at[k - 1] : -1;
        if (value >= p->seq_len_kv)
            return bad_limit(why, "key_list.data", first + k, value, p->seq_len_kv - 1);
        if (k && before < 0 && value >= 0)
            return bad_after(why, "key_list.data", first + k, value,
                             " must be below 0, too, behind the entry before it", before);
        if (k && value >= 0 && value <= before)
            return bad_after(why, "key_list.data", first + k, value,
                             " must be above the entry before it", before);
    }
    return ATTN_OK;
}

/* check_lists looks at the lists of rows in use. */
static attn_status check_lists(const attn_params *p, text *why)
{
    attn_status status = ATTN_OK;
    int64_t b, head, i;
    for (b = 0; p->key_list.data && b < p->batch && !status; b++) {
        const sequence s = sequence_of(p, b);
        for (head = 0; head < p->num_heads_kv && !status; head++)
            for (i = 0; i < s.q_len && !status; i += rows_of_list(p))
                status = check_list(p, whole_list(p, b, head, i), why);
    }
    return status;
}

static attn_status check_interfaces(const attn_params *p, text *why)
{
    if (p->kernels && p->kernels->abi != ATTN_KERNEL_ABI)
        return bad_field(why, ATTN_ERR_ARG, "kernels->abi", p->kernels->abi,
                         " is not that of this library (ATTN_KERNEL_ABI)");
    if (p->kernels &&
        (p->kernels->rows < 4 || p->kernels->rows > ATTN_KERNEL_MAX_ROWS || p->kernels->rows % 4))
        return bad_field(why, ATTN_ERR_ARG, "kernels->rows", p->kernels->rows,
                         " must be a multiple of 4 from 4 to 64");
    if (p->kernels && p->kernels->pack_values && !p->fast)
        return bad(why, ATTN_ERR_ARG,
                   "kernels round what they multiply to bf16, which fast must allow");
    if (p->backend && p->backend->abi != ATTN_KERNEL_ABI)
        return bad_field(why, ATTN_ERR_ARG, "backend->abi", p->backend->abi,
                         " is not that of this library (ATTN_KERNEL_ABI)");
    return ATTN_OK;
}

/* Each of these checks relies on those before it. */
typedef attn_status (*check_fn)(const attn_params *p, text *why);

/* These look at the parameters as they are given, */
static const check_fn checks_of_fields[] = { check_sizes,           check_numbers, check_interfaces,
                                             check_pairs_of_fields, check_limits,  check_settings,
                                             check_scales,          check_support };
/* these at lengths and positions, once sizes and strides are resolved, */
static const check_fn checks_of_lengths[] = { check_units, check_lengths, check_continued };
/* and these at what a run reads and writes, but for the places of keys. */
static const check_fn checks_of_data[] = { check_tensors, check_recent, check_outputs,
                                           check_tree,    check_csr,    check_lists };

/* end_of_use is an end_of_use_fn for calls. Pages and rings count whole. */
static int64_t end_of_use(const attn_params *p, int axis, int64_t count, int64_t b)
{
    sequence s;
    if (axis == AXIS_KEY && is_scattered(p))
        return count;
    s = sequence_of(p, b);
    switch (axis) {
    case AXIS_ROW:
        return s.row_from < s.row_to ? s.q_row + s.row_to : 0;
    case AXIS_KEY:
        return s.key_from < s.key_to ? s.kv_row + s.key_to : 0;
    case AXIS_SEQ_Q:
    case AXIS_LONGEST_Q:
        return s.row_to;
    case AXIS_SEQ_KV:
    case AXIS_LONGEST_KV:
        return s.column + s.key_to;
    default:
        return count;
    }
}

/* leave_out_unused makes a set count only rows and keys that sequences use. */
static void leave_out_unused(const attn_params *p, array_set *s)
{
    s->p = p;
    s->end_of_use = end_of_use;
}

/* check_call_apart wants what a call writes, and `memory` unless it is NULL, to lie apart from
 * everything else. The call writes results, or raw states with p.partial. */
OWN_FRAME static attn_status check_call_apart(const attn_params *p, const area *memory, text *why)
{
    const call_axes x = axes_in_use(p);
    array_set s = { .table = call_fields,
                    .n = COUNT_OF(call_fields),
                    .base = p,
                    .x = &x,
                    .written = p->partial ? OUTPUT_STATE : OUTPUT_RESULT };
    leave_out_unused(p, &s);
    return check_written(&s, 1, memory, why);
}

static attn_status run_checks(const check_fn *checks, int n, const attn_params *p, text *why)
{
    attn_status status = ATTN_OK;
    int i;
    for (i = 0; i < n && !status; i++)
        status = checks[i](p, why);
    return status;
}

/* check_arrays_given looks at arrays, once the other checks have passed, but not at where a cache has keys:
 * check_sequences does. */
static attn_status check_arrays_given(const attn_params *p, text *why)
{
    return is_empty(p) ? ATTN_OK : run_checks(checks_of_data, COUNT_OF(checks_of_data), p, why);
}

/* validate turns *in into *pr, or says what is wrong. With need_data it looks at arrays, too. */
OWN_FRAME static attn_status validate(const attn_params *in, problem *pr, int need_data, text *why)
{
    attn_params *p = &pr->p;
    attn_status status;
    if (!in)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    *p = *in;
    pr->size_query = pr->gathered = 0;
    status = run_checks(checks_of_fields, COUNT_OF(checks_of_fields), p, why);
    if (!status)
        status = check_output_fields(call_fields, COUNT_OF(call_fields), p, why);
    if (status)
        return status;
    resolve_sizes(p);
    status = resolve_layouts(p, why);
    if (!status)
        status = run_checks(checks_of_lengths, COUNT_OF(checks_of_lengths), p, why);
    if (!status && need_data)
        status = check_arrays_given(p, why);
    if (!status && need_data && !is_empty(p))
        status = check_sequences(p, why);
    if (!status)
        resolve_numbers(pr);
    return status;
}
