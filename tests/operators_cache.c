/* operators_cache.c - operators that src/rope/ and src/cache/ do without attention:
 * RotaryEmbedding and TensorScatter (ONNX).
 * SPDX-License-Identifier: MIT
 */
#include "cases.h"

#include <string.h>

/* ---- RotaryEmbedding ------------------------------------------------------------------------- */

/* position_ids; without them row i of batch entry b takes line b * rows + i of the tables. */
static int set_positions(test_case *c, const case_view *x, const case_tensor *ids,
                         attn_rope_rows *rows)
{
    int64_t *first;
    if (ids != NULL) {
        rows->positions = ids->data;
        return (ids->type == I64 && ids->rank == 2 && ids->dim[0] == x->batch &&
                ids->dim[1] == x->seq) ||
               case_fail(c, "position_ids must be i64 [batch, sequence]");
    }
    first = test_alloc((size_t)x->batch * sizeof *first);
    for (int64_t b = 0; b < x->batch; b++)
        first[b] = b * x->seq;
    rows->first = first;
    return 1;
}

/* Tables [position, dim/2] with position_ids, else [batch, row, dim/2]. */
static int set_tables(test_case *c, const case_view *x, attn_rope *rope, attn_rope_rows *rows)
{
    const case_tensor *cosines = case_input(c, "cos_cache"), *sines = case_input(c, "sin_cache");
    const case_tensor *ids = case_input(c, "position_ids");
    const int64_t half = (rope->dim > 0 ? rope->dim : x->dim) / 2;
    int64_t dim[3] = { x->batch, x->seq, half };
    if (cosines == NULL || sines == NULL)
        return case_fail(c, "cos_cache or sin_cache is missing");
    if (ids != NULL)
        dim[0] = cosines->dim[0], dim[1] = half;
    if (!set_positions(c, x, ids, rows) || !case_has_shape(c, cosines, ids != NULL ? 2 : 3, dim) ||
        !case_has_shape(c, sines, ids != NULL ? 2 : 3, dim))
        return 0;
    rope->num_positions = half > 0 ? cosines->count / half : 0;
    rope->cos = case_floats(c, cosines);
    rope->sin = case_floats(c, sines);
    return rope->cos != NULL && rope->sin != NULL;
}

/* Turned into another buffer, then in place: the same bits. */
static int turn(test_case *c, const attn_rope *rope, attn_rope_rows *rows, int type, case_tensor *y)
{
    const size_t bytes = (size_t)y->count * case_types[type].size;
    char why[CASE_WHY] = "";
    void *in_place = memcpy(test_alloc(bytes), rows->x.data, bytes);
    void *other = rows->y.data = test_alloc(bytes);
    if (!case_status(c, attn_rope_apply(rope, rows, why, sizeof why), why))
        return 0;
    rows->x.data = rows->y.data = in_place;
    if (!case_status(c, attn_rope_apply(rope, rows, why, sizeof why), why))
        return 0;
    if (memcmp(in_place, other, bytes) != 0)
        return case_fail(c, "in place it gives other bits");
    return case_compare(c, y, type, other);
}

static attn_rope_rows rows_of(const case_view *x)
{
    attn_rope_rows rows = { 0 };
    rows.batch = x->batch;
    rows.num_heads = x->heads;
    rows.seq_len = x->seq;
    rows.head_dim = x->dim;
    rows.x = case_view_input(x);
    rows.y.dtype = rows.x.dtype;
    rows.y.stride_batch = x->stride_batch;
    rows.y.stride_head = x->stride_head;
    rows.y.stride_seq = x->stride_seq;
    return rows;
}

int case_run_rotary(test_case *c)
{
    attn_rope rope = { 0 };
    attn_rope_rows rows;
    case_view x;
    const case_tensor *input = case_input(c, "X");
    case_tensor *y = case_output(c, "Y");
    const int64_t heads = case_integer(c, "num_heads", 0);
    rope.interleaved = case_integer(c, "interleaved", 0) != 0;
    rope.dim = case_integer(c, "rotary_embedding_dim", 0);
    if (input == NULL || y == NULL)
        return case_fail(c, "X or Y is missing");
    if (!case_view_of(c, input, heads, &x))
        return 0;
    if (heads > 0 && x.heads != heads)
        return case_fail(c, "X has %lld heads, num_heads is %lld", (long long)x.heads,
                         (long long)heads);
    rows = rows_of(&x);
    return set_tables(c, &x, &rope, &rows) && case_has_shape(c, y, input->rank, input->dim) &&
           case_all_known(c) && turn(c, &rope, &rows, x.type, y);
}

/* ---- TensorScatter --------------------------------------------------------------------------- */

/* [batch, ..., rows, ...] as [batch, heads, rows, dim] around `axis`, counted from the end if
 * negative. */
static int scatter_view(test_case *c, const case_tensor *t, int64_t axis, case_view *v)
{
    const int at = (int)(axis < 0 ? axis + t->rank : axis);
    if (axis < -t->rank || at < 1 || at >= t->rank)
        return case_fail(c, "axis %lld of %s of rank %d", (long long)axis, t->name, t->rank);
    if (t->type != F16 && t->type != F32)
        return case_fail(c, "%s has type %s", t->name, case_types[t->type].name);
    memset(v, 0, sizeof *v);
    v->type = t->type;
    v->data = t->data;
    v->batch = t->dim[0];
    v->seq = t->dim[at];
    v->heads = v->dim = 1;
    for (int i = 1; i < t->rank; i++)
        if (i != at)
            *(i < at ? &v->heads : &v->dim) *= t->dim[i];
    return 1;
}

/* The rows that sequence b is said to have: a ring goes on at the same row after each turn. */
static int scatter_lengths(test_case *c, const case_view *past, int ring, int32_t *length)
{
    const case_tensor *at = case_input(c, "write_indices");
    if (at != NULL && (at->type != I64 || at->rank != 1 || at->count != past->batch))
        return case_fail(c, "write_indices must be i64, one a batch entry");
    for (int64_t b = 0; b < past->batch; b++) {
        int64_t index = at != NULL ? ((const int64_t *)at->data)[b] : 0;
        if (index < 0 || (!ring && index > past->seq))
            return case_fail(c, "write_indices[%lld] is %lld", (long long)b, (long long)index);
        length[b] = (int32_t)(ring && past->seq > 0 ? index % past->seq : index);
    }
    return 1;
}

static int64_t shape_count(const case_view *v)
{
    return v->batch * v->heads * v->seq * v->dim;
}

/* A cache on storage of the caller's own, in which past_cache lies already. */
static int open_scatter(test_case *c, const case_view *past, int ring, attn_cache *cache)
{
    const size_t bytes = (size_t)shape_count(past) * case_types[past->type].size;
    char why[CASE_WHY] = "";
    size_t need = 0;
    memset(cache, 0, sizeof *cache);
    cache->num_sequences = past->batch;
    cache->num_heads_kv = past->heads;
    cache->head_dim = past->dim;
    cache->capacity = past->seq;
    cache->ring = ring;
    cache->k.dtype = cache->v.dtype = past->type == F16 ? ATTN_F16 : ATTN_F32;
    cache->k.data = memcpy(test_alloc(bytes), past->data, bytes);
    cache->v.data = memcpy(test_alloc(bytes), past->data, bytes);
    if (!case_status(c, attn_cache_size(cache, &need, why, sizeof why), why))
        return 0;
    return case_status(c, attn_cache_init(cache, test_alloc(need), need, why, sizeof why), why);
}

static int scatter(test_case *c, attn_cache *cache, const case_view *update, const int32_t *length,
                   int64_t rows)
{
    char why[CASE_WHY] = "";
    attn_cache_step before = { 0 }, s = { 0 };
    before.batch = s.batch = update->batch;
    before.seq_len = rows;
    before.len = length;
    s.seq_len = update->seq;
    s.k.dtype = s.v.dtype = cache->k.dtype;
    s.k.data = s.v.data = update->data;
    return case_status(c, attn_cache_extend(cache, &before, why, sizeof why), why) &&
           case_status(c, attn_cache_append(cache, &s, why, sizeof why), why);
}

static int open_views(test_case *c, case_view *past, case_view *update)
{
    const case_tensor *old = case_input(c, "past_cache"), *rows = case_input(c, "update");
    const int64_t axis = case_integer(c, "axis", -2);
    if (old == NULL || rows == NULL)
        return case_fail(c, "past_cache or update is missing");
    if (!scatter_view(c, old, axis, past) || !scatter_view(c, rows, axis, update))
        return 0;
    return (rows->rank == old->rank && update->type == past->type && update->batch == past->batch &&
            update->heads == past->heads && update->dim == past->dim) ||
           case_fail(c, "update does not fit past_cache");
}

/* Keys and values alike hold past_cache and get the update; all rows are compared. */
int case_run_scatter(test_case *c)
{
    const case_tensor *old = case_input(c, "past_cache");
    case_tensor *want = case_output(c, "present_cache");
    const char *mode = case_text(c, "mode", "linear");
    const int ring = strcmp(mode, "circular") == 0;
    case_view past, update;
    attn_cache cache;
    int32_t *length;
    if (!ring && strcmp(mode, "linear") != 0)
        return case_fail(c, "unknown mode '%s'", mode);
    if (!open_views(c, &past, &update))
        return 0;
    if (want == NULL || want->type != past.type)
        return case_fail(c, "there is no present_cache of the type of past_cache");
    length = test_alloc((size_t)past.batch * sizeof *length);
    if (!case_has_shape(c, want, old->rank, old->dim) || !scatter_lengths(c, &past, ring, length) ||
        !case_all_known(c) || !open_scatter(c, &past, ring, &cache) ||
        !scatter(c, &cache, &update, length, past.seq))
        return 0;
    c->cached = 1;
    case_note(c, "by a cache on the caller's storage");
    want->rtol = want->atol = 0; /* equality, whatever the case says */
    return case_compare(c, want, want->type, cache.k.data) &&
           case_compare(c, want, want->type, cache.v.data);
}
