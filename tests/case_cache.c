/* case_cache.c - the keys of a case in a cache: appended, viewed, read back.
 * SPDX-License-Identifier: MIT
 */
#include "cases.h"

#include <string.h>

int case_status(test_case *c, attn_status status, const char *why)
{
    return status == ATTN_OK || case_fail(c, "%s: %s", attn_status_string(status), why);
}

/* No larger than needed: a key too many is an error. */
static int open_cache(test_case *c, const case_call *a, int64_t page_size, attn_cache *cache)
{
    char why[CASE_WHY] = "";
    size_t need = 0;
    memset(cache, 0, sizeof *cache);
    cache->num_sequences = a->p.batch;
    cache->num_heads_kv = a->p.num_heads_kv;
    cache->head_dim = a->p.head_dim;
    cache->head_dim_v = a->p.head_dim_v;
    cache->capacity = a->keys > 0 ? a->keys : 1;
    cache->page_size = page_size;
    cache->k.dtype = a->storage != ATTN_F32 ? a->storage : case_view_input(&a->k).dtype;
    cache->v.dtype = a->storage != ATTN_F32 ? a->storage : case_view_input(&a->v).dtype;
    if (!case_status(c, attn_cache_size(cache, &need, why, sizeof why), why))
        return 0;
    return case_status(c, attn_cache_init(cache, test_alloc(need), need, why, sizeof why), why);
}

static int append(test_case *c, const case_view *k, const case_view *v, const int32_t *len,
                  const attn_rope *rope, const int64_t *positions, attn_cache *cache)
{
    char why[CASE_WHY] = "";
    attn_cache_step s = { 0 };
    s.batch = k->batch;
    s.seq_len = k->seq;
    s.len = len;
    s.k = case_view_input(k);
    s.v = case_view_input(v);
    s.rope = rope;
    s.positions = positions;
    return k->seq == 0 || case_status(c, attn_cache_append(cache, &s, why, sizeof why), why);
}

int case_fill_cache(test_case *c, const case_call *a, int64_t page_size, attn_cache *cache,
                    attn_params *p)
{
    char why[CASE_WHY] = "";
    if (!open_cache(c, a, page_size, cache) ||
        !append(c, &a->past_k, &a->past_v, a->past_len, NULL, NULL, cache) ||
        !append(c, &a->k, &a->v, a->new_len, a->rope, a->positions, cache) ||
        !case_status(c, attn_cache_view(cache, 0, NULL, a->p.batch, p, NULL, 0, why, sizeof why),
                     why))
        return 0;
    p->seq_len_kv = a->keys; /* not all rows of the cache: as wide as masks and logits */
    if (a->limit != NULL)
        p->kv_len = a->limit;
    return 1;
}

/* Where sequence b of [batch, heads, rows, dim] begins. */
static attn_output present_output(const case_view *v, int64_t rows, int64_t b, void *data)
{
    attn_output o = { 0 };
    const size_t bytes = (size_t)(b * v->heads * rows * v->dim) * case_types[v->type].size;
    o.dtype = case_view_input(v).dtype;
    o.stride_head = (ptrdiff_t)(rows * v->dim);
    o.stride_seq = (ptrdiff_t)v->dim;
    o.data = data == NULL ? NULL : (unsigned char *)data + bytes;
    return o;
}

int case_read_cache(test_case *c, const case_call *a, const attn_cache *cache, case_results *r)
{
    char why[CASE_WHY] = "";
    const int64_t rows = a->present_rows > 0 ? a->present_rows : a->keys;
    for (int64_t b = 0; b < a->p.batch; b++) {
        const attn_output k = present_output(&a->k, rows, b, r->present_k);
        const attn_output v = present_output(&a->v, rows, b, r->present_v);
        const int64_t count = cache->end[b] - cache->begin[b];
        if (!case_status(
                c, attn_cache_read(cache, 0, b, cache->begin[b], count, &k, &v, why, sizeof why),
                why))
            return 0;
    }
    return 1;
}
