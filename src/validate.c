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

/* This is no limit of memory, and equal on every machine. */
#define MOST_KEY_BASE ((int64_t)1 << 58)

static attn_status check_sizes(const attn_params *p, text *why)
{
    const attn_status status = check_values(call_fields, COUNT_OF(call_fields), p, why);
    if (status)
        return status;
    if (p->num_heads_kv && p->num_heads_q % p->num_heads_kv) {
        put_field(why, "num_heads_q", p->num_heads_q);
        put(why, " must be a multiple of ");
        put_field(why, "num_heads_kv", p->num_heads_kv);
        return ATTN_ERR_ARG;
    }
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
    return ATTN_OK;
}

/* A member is a field of attn_params, whose bytes tell whether it is set. */
typedef struct member {
    uint16_t offset, size;
} member;

#define MEMBER(name)                                                                               \
    {                                                                                              \
        offsetof(attn_params, name), sizeof(((attn_params *)NULL)->name)                           \
    }

static int is_set(const attn_params *p, member m)
{
    const char *at = (const char *)p + m.offset;
    uint32_t word, any = 0;
    int i;
    for (i = 0; i < m.size; i += (int)sizeof word) {
        memcpy(&word, at + i, sizeof word);
        any |= word;
    }
    return any != 0;
}

/* number_of reads an int64_t or a ptrdiff_t. */
static int64_t number_of(const attn_params *p, member m)
{
    int64_t number;
    ptrdiff_t stride;
    memcpy(&number, (const char *)p + m.offset, sizeof number);
    memcpy(&stride, (const char *)p + m.offset, sizeof stride);
    return m.size == sizeof stride ? stride : number;
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

/* Fields that mean nothing without another one are refused, not ignored; prefix without causal
 * means something: the keys that it shows are visible anyway. */
static const pair_rule pair_rules[] = {
    ALONE(cu_seqlens_kv, cu_seqlens_q, "cu_seqlens_kv is given, but cu_seqlens_q is NULL"),
    ALONE(q_segments, kv_segments, "q_segments and kv_segments: give both or neither"),
    ALONE(kv_segments, q_segments, "q_segments and kv_segments: give both or neither"),
    NUMBER_ALONE(window_left, window, " is set, but window is 0: set window = ATTN_WINDOW"),
    NUMBER_ALONE(window_right, window, " is set, but window is 0: set window = ATTN_WINDOW"),
    ALONE(mask_tile, mask, "mask_tile is given, but mask is NULL"),
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
    TOGETHER(sinks, softmax1, "softmax1 is a sink of 0 and excludes sinks: set one of them"),
};

static attn_status check_pairs_of_fields(const attn_params *p, text *why)
{
    int i = 0;
    while (i < COUNT_OF(pair_rules) && (!is_set(p, pair_rules[i].field) ||
                                        is_set(p, pair_rules[i].other) != pair_rules[i].with))
        i++;
    if (i == COUNT_OF(pair_rules))
        return ATTN_OK;
    if (pair_rules[i].name)
        put_field(why, pair_rules[i].name, number_of(p, pair_rules[i].field));
    return bad(why, ATTN_ERR_ARG, pair_rules[i].rest);
}

static attn_status check_window_sides(const attn_params *p, text *why)
{
    if (p->window_left < -1)
        return bad_field(why, ATTN_ERR_ARG, "window_left", p->window_left,
                         " must be -1 (unbounded) or more");
    if (p->window_right < -1)
        return bad_field(why, ATTN_ERR_ARG, "window_right", p->window_right,
                         " must be -1 (unbounded) or more");
    return ATTN_OK;
}

static attn_status check_alignment(const attn_params *p, text *why)
{
    if (p->alignment == ATTN_ALIGN_OFFSET && !p->q_offset)
        return bad_field(why, ATTN_ERR_ARG, "alignment", p->alignment,
                         " is ATTN_ALIGN_OFFSET, but q_offset is NULL");
    if (p->alignment != ATTN_ALIGN_OFFSET && p->q_offset)
        return bad_field(why, ATTN_ERR_ARG, "alignment", p->alignment,
                         " must be ATTN_ALIGN_OFFSET (2) when q_offset is given");
    return ATTN_OK;
}

static attn_status check_cells(const attn_params *p, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    const int given = m->bitmap || m->row_offsets;
    if (given && m->block_q == 0)
        return bad_field(why, ATTN_ERR_ARG, "block_mask.block_q", 0, " must be at least 1");
    if (given && m->block_k == 0)
        return bad_field(why, ATTN_ERR_ARG, "block_mask.block_k", 0, " must be at least 1");
    if ((m->block_q || m->block_k) && !given)
        return bad_field(why, ATTN_ERR_ARG, "block_mask.block_q", m->block_q,
                         " is set, but neither bitmap nor row_offsets is given");
    return ATTN_OK;
}

/* check_values_of_fields checks what the value of one field asks of another one. */
static attn_status check_values_of_fields(const attn_params *p, text *why)
{
    if (p->cu_seqlens_q && !p->cu_seqlens_kv && !p->kv_len)
        return bad(why, ATTN_ERR_ARG,
                   "cu_seqlens_q is given, but neither cu_seqlens_kv (packed keys) nor kv_len");
    if (p->shared_keys > p->seq_len_kv) {
        put_field(why, "shared_keys", p->shared_keys);
        put(why, " must be at most ");
        put_field(why, "seq_len_kv", p->seq_len_kv);
        return ATTN_ERR_ARG;
    }
    if (p->kv_rows.page_size && !p->kv_rows.table && p->seq_len_kv > 0)
        return bad_field(why, ATTN_ERR_ARG, "kv_rows.page_size", p->kv_rows.page_size,
                         " is set, but kv_rows.table is NULL");
    if (p->partial && p->logits.data && p->logits.stage == ATTN_LOGITS_SOFTMAX)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "logits.stage", p->logits.stage,
                         " (probabilities) needs all keys: not possible with partial");
    return ATTN_OK;
}

/* A part_rule is rows or keys of a part: its three fields and the one that bounds them. */
typedef struct part_rule {
    const char *flag, *begin_name, *count_name, *whole_name;
    int on;
    int64_t begin, count, whole;
} part_rule;

static attn_status check_part_rule(const part_rule *rule, text *why)
{
    if (!rule->on && (rule->begin || rule->count)) {
        put_field(why, rule->begin ? rule->begin_name : rule->count_name,
                  rule->begin ? rule->begin : rule->count);
        put(why, " is set, but ");
        put(why, rule->flag);
        return bad(why, ATTN_ERR_ARG, " is 0");
    }
    if (!rule->on || rule->begin + rule->count <= rule->whole)
        return ATTN_OK;
    put_field(why, rule->begin_name, rule->begin);
    put(why, " + ");
    put_field(why, rule->count_name, rule->count);
    put(why, " must be at most ");
    put_field(why, rule->whole_name, rule->whole);
    return ATTN_ERR_ARG;
}

static attn_status check_part(const attn_params *p, text *why)
{
    const attn_part *part = &p->part;
    const part_rule rows = { "part.rows", "part.row_begin", "part.row_count", "seq_len_q",
                             part->rows,  part->row_begin,  part->row_count,  p->seq_len_q };
    const part_rule keys = { "part.keys", "part.key_begin", "part.key_count", "seq_len_kv",
                             part->keys,  part->key_begin,  part->key_count,  p->seq_len_kv };
    attn_status status = check_part_rule(&rows, why);
    if (!status)
        status = check_part_rule(&keys, why);
    if (!status && part->continued && !(part->keys && p->partial))
        return bad_field(why, ATTN_ERR_ARG, "part.continued", part->continued,
                         " needs part.keys and partial");
    if (status || (!part->rows && !part->keys))
        return status;
    if (p->impl == ATTN_IMPL_NAIVE)
        return bad_field(why, ATTN_ERR_UNSUPPORTED, "impl", p->impl,
                         " (naive) takes no part of a call");
    return refuse_fields(p, BY_PART, "a part of a call", why);
}

/* check_continued wants the keys of a part that is continued in one chunk, of sequences with
 * rows. */
static attn_status check_continued(const attn_params *p, text *why)
{
    int64_t b;
    for (b = 0; p->part.continued && b < p->batch; b++) {
        const sequence s = sequence_of(p, b);
        const int64_t first = s.key_base + s.key_from, end = s.key_base + s.key_to;
        if (s.row_from == s.row_to || first >= end || first / ATTN_CHUNK == (end - 1) / ATTN_CHUNK)
            continue;
        put(why, "part.continued: keys ");
        put_field(why, "n", first);
        put(why, " to ");
        put_int(why, end - 1);
        put(why, " of sequence ");
        put_field(why, "b", b);
        return bad(why, ATTN_ERR_ARG, " must lie in one chunk, between two multiples of 1024");
    }
    return ATTN_OK;
}

typedef struct entry_rule {
    const char *name;
    const int32_t *array;
    int64_t most;
} entry_rule;

static attn_status check_entry(const entry_rule *rule, int64_t b, text *why)
{
    const int64_t value = entry32(rule->array, b, 0);
    if (value >= 0 && value <= rule->most)
        return ATTN_OK;
    bad_entry(why, rule->name, b, value, " must be from 0 to ");
    put_int(why, rule->most);
    return ATTN_ERR_ARG;
}

static attn_status check_lengths_of(const attn_params *p, int64_t b, text *why)
{
    const int64_t keys = kv_capacity(p, b), begin = entry32(p->kv_begin, b, 0);
    const entry_rule rules[] = { { "q_len", p->q_len, q_capacity(p, b) },
                                 { "kv_begin", p->kv_begin, keys },
                                 { "kv_len", p->kv_len, keys - begin },
                                 { "prefix", p->prefix, INT32_MAX } };
    attn_status status = ATTN_OK;
    int r;
    for (r = 0; r < COUNT_OF(rules) && !status; r++)
        status = check_entry(&rules[r], b, why);
    if (!status && p->key_base && (p->key_base[b] < 0 || p->key_base[b] > MOST_KEY_BASE))
        status = bad_entry(why, "key_base", b, p->key_base[b], " must be from 0 to 2^58");
    return status;
}

static attn_status check_lengths(const attn_params *p, text *why)
{
    const int64_t n = p->batch;
    int64_t b;
    attn_status status = check_cu_seqlens("cu_seqlens_q", p->cu_seqlens_q, n, p->seq_len_q, why);
    if (!status)
        status = check_cu_seqlens("cu_seqlens_kv", p->cu_seqlens_kv, n, p->seq_len_kv, why);
    for (b = 0; has_batch_arrays(p) && b < n && !status; b++)
        status = check_lengths_of(p, b, why);
    return status;
}

/* check_table wants the pages that hold the keys in use of one sequence to be there. */
static attn_status check_table(const attn_params *p, const sequence *s, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    key_place at = key_at(p, s, 0);
    int64_t j = at.left;
    while (at.entry >= 0 && at.entry < rows->num_pages && j < s->kv_len) {
        next_place(p, s, &at);
        j += at.left;
    }
    if (at.entry >= 0 && at.entry < rows->num_pages)
        return ATTN_OK;
    bad_entry(why, "kv_rows.table", at.table_entry, at.entry, " must be from 0 to ");
    put_field(why, "num_pages", rows->num_pages);
    put(why, " - 1");
    return ATTN_ERR_ARG;
}

/* check_sequence_rows wants the rows of one sequence inside the ring and in pages that exist. */
static attn_status check_sequence_rows(const attn_params *p, const sequence *s, text *why)
{
    const attn_rows *rows = &p->kv_rows;
    const int64_t begin = entry32(rows->begin, s->b, 0);
    if (begin < 0 || (rows->ring && begin >= rows->ring))
        return bad_entry(why, "kv_rows.begin", s->b, begin,
                         " must be at least 0 and below kv_rows.ring");
    if (rows->ring && s->column + s->kv_len > rows->ring) {
        put_field(why, "kv_rows.ring", rows->ring);
        put(why, " is below kv_begin + kv_len of sequence ");
        put_field(why, "b", s->b);
        put(why, ", ");
        put_int(why, s->column + s->kv_len);
        return ATTN_ERR_ARG;
    }
    return rows->page_size && s->kv_len > 0 ? check_table(p, s, why) : ATTN_OK;
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
    return ATTN_OK;
}

static attn_status check_outputs(const attn_params *p, text *why)
{
    int64_t r;
    if (p->partial && !(p->state.m && p->state.l && p->state.o))
        return bad(why, ATTN_ERR_ARG, "partial is set, but state.m, state.l or state.o is NULL");
    if (!wants_rows(p) && !p->logits.data)
        return bad(why, ATTN_ERR_ARG,
                   "o.data is NULL, and neither lse, partial nor logits is asked for");
    for (r = 0; p->logits.data && p->logits.rows && r < p->logits.num_rows; r++)
        if (p->logits.rows[r] < 0 || p->logits.rows[r] >= p->seq_len_q)
            return bad_entry(why, "logits.rows", r, p->logits.rows[r],
                             " must be a row from 0 to seq_len_q - 1");
    if (p->logits.data && !p->logits.rows && p->logits.num_rows > p->seq_len_q)
        return bad_field(why, ATTN_ERR_ARG, "logits.num_rows", p->logits.num_rows,
                         " exceeds seq_len_q, and logits.rows is NULL");
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

static attn_status check_csr_rows(const attn_params *p, int64_t first, int64_t q_len, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = q_len > 0 ? (q_len - 1) / m->block_q + 1 : 0;
    const int64_t columns = p->seq_len_kv ? (p->seq_len_kv - 1) / m->block_k + 1 : 0;
    int64_t r, c;
    for (r = first; r < first + rows; r++) {
        const int64_t begin = m->row_offsets[r], end = m->row_offsets[r + 1];
        if (begin < 0 || end < begin)
            return bad_entry(why, "block_mask.row_offsets", r + 1, end,
                             " must not be below the entry before it");
        for (c = begin; c < end; c++) {
            if (m->columns[c] < 0 || m->columns[c] >= columns)
                return bad_entry(why, "block_mask.columns", c, m->columns[c],
                                 " is no block of seq_len_kv");
            if (c > begin && m->columns[c] <= m->columns[c - 1])
                return bad_entry(why, "block_mask.columns", c, m->columns[c],
                                 " must be above the entry before it");
        }
    }
    return ATTN_OK;
}

static attn_status check_csr(const attn_params *p, text *why)
{
    const attn_block_mask *m = &p->block_mask;
    attn_status status = ATTN_OK;
    int64_t b, h, longest = 0;
    for (b = 0; b < (p->cu_seqlens_q ? p->batch : 1); b++) /* Rows count within a sequence. */
        longest = max64(longest, q_capacity(p, b));
    for (b = 0; b < (m->csr_stride_batch ? p->batch : 1) && !status; b++)
        for (h = 0; h < (m->csr_stride_head ? p->num_heads_q : 1) && !status; h++)
            status =
                check_csr_rows(p, b * m->csr_stride_batch + h * m->csr_stride_head, longest, why);
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
    if (p->backend && p->backend->abi != ATTN_KERNEL_ABI)
        return bad_field(why, ATTN_ERR_ARG, "backend->abi", p->backend->abi,
                         " is not that of this library (ATTN_KERNEL_ABI)");
    return ATTN_OK;
}

/* validate turns *in into *pr, or says in *why what is wrong. With need_data tensors must be there,
 * too. */
OWN_FRAME static attn_status validate(const attn_params *in, problem *pr, int need_data, text *why)
{
    attn_status status;
    if (!in)
        return bad(why, ATTN_ERR_ARG, "params is NULL");
    pr->p = *in;
    pr->size_query = 0;
    status = check_sizes(&pr->p, why);
    if (!status)
        status = check_numbers(&pr->p, why);
    if (!status)
        status = check_interfaces(&pr->p, why);
    if (!status)
        status = check_pairs_of_fields(&pr->p, why);
    if (!status)
        status = check_values_of_fields(&pr->p, why);
    if (!status)
        status = check_window_sides(&pr->p, why);
    if (!status)
        status = check_alignment(&pr->p, why);
    if (!status)
        status = check_cells(&pr->p, why);
    if (!status)
        status = check_part(&pr->p, why);
    if (!status)
        status = check_output_fields(call_fields, COUNT_OF(call_fields), &pr->p, why);
    if (status)
        return status;
    resolve_sizes(&pr->p);
    need_data = need_data && !is_empty(&pr->p);
    status = resolve_layouts(&pr->p, why);
    if (!status && need_data)
        status = check_tensors(&pr->p, why);
    if (!status)
        status = check_lengths(&pr->p, why);
    if (!status)
        status = check_continued(&pr->p, why);
    if (!status && need_data)
        status = check_sequences(&pr->p, why);
    if (!status && need_data)
        status = check_outputs(&pr->p, why);
    if (!status && need_data)
        status = check_tree(&pr->p, why);
    if (!status && need_data && pr->p.block_mask.row_offsets)
        status = check_csr(&pr->p, why);
    if (!status)
        resolve_numbers(pr);
    return status;
}
