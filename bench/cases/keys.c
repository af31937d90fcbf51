/* keys.c - the caches that hold the keys and values of a case.
 * SPDX-License-Identifier: MIT */
#include "jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../machine/machine.h"

double keys_cache_bytes(const bench_case *c)
{
    const double key = case_key_bytes(c);
    const double keys = c->appends ? (double)c->batch * KEYS_APPEND_CAPACITY : case_stored_keys(c);
    return c->keys.kind == KEYS_PLAIN ? 0 : keys * (double)c->heads_kv * key;
}

/* ---- an empty cache */

/* What all numbers of a side share, as rows of plain arrays do. */
static attn_scales scales_of(int dtype)
{
    static const float scale = CASE_SCALE;
    const ptrdiff_t one = ATTN_STRIDE_BROADCAST;
    const attn_scales shared = { one, one, one, one, &scale }, none = { 0, 0, 0, 0, NULL };
    return dtype == ATTN_I8 ? shared : none;
}

static attn_cache cache_of(const bench_case *c)
{
    const int ring = c->keys.kind == KEYS_RING;
    const int64_t capacity = c->appends ? KEYS_APPEND_CAPACITY : c->seq_kv;
    const attn_cache cache = { .num_sequences = c->batch,
                               .num_heads_kv = c->heads_kv,
                               .head_dim = c->head_dim,
                               .head_dim_v = c->head_dim_v,
                               .capacity = capacity,
                               .page_size = c->keys.page_size,
                               .num_pages = case_forks(c)
                                                ? (int64_t)case_stored_keys(c) / c->keys.page_size
                                                : 0,
                               .ring = ring,
                               .window_left = ring ? capacity - 1 : 0,
                               .recent = c->keys.recent,
                               .recent_rows = c->keys.recent ? capacity : 0,
                               .k.dtype = case_k_dtype(c),
                               .v.dtype = case_v_dtype(c),
                               .k_scales = scales_of(case_k_dtype(c)),
                               .v_scales = scales_of(case_v_dtype(c)) };
    return cache;
}

/* The order of a free list is any. A linear congruential generator of 2^64. */
static void shuffle(attn_cache *cache, uint64_t seed)
{
    uint64_t state = seed;
    for (int64_t i = cache->num_free - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int64_t other = (int64_t)((state >> 33) % (uint64_t)(i + 1));
        const int32_t page = cache->free_pages[i];
        cache->free_pages[i] = cache->free_pages[other];
        cache->free_pages[other] = page;
    }
}

int keys_make(const bench_case *c, uint64_t seed, keys_store *s, char *why, size_t why_bytes)
{
    size_t bytes;
    s->cache = cache_of(c);
    s->memory = NULL;
    if (attn_cache_size(&s->cache, &bytes, why, why_bytes) != ATTN_OK)
        return 0;
    s->memory = large_alloc(bytes);
    if (!s->memory)
        return snprintf(why, why_bytes, "the system gave no memory for a cache of %.2f GiB",
                        (double)bytes / 1073741824),
               0;
    memset(s->memory, 0xff, bytes); /* NaN in every type: a row that is left out fails the check */
    if (attn_cache_init(&s->cache, s->memory, bytes, why, why_bytes) != ATTN_OK)
        return 0;
    if (c->keys.kind == KEYS_PAGED)
        shuffle(&s->cache, seed);
    return 1;
}

/* ---- full */

static const void *moved(const attn_tensor *t, int64_t rows)
{
    return (const char *)t->data + case_bytes(t->dtype, rows * t->stride_seq);
}

/* Rows first .. first+count-1 of the first `batch` entries. */
static int append(const attn_params *p, int64_t batch, int64_t first, int64_t count, keys_store *s,
                  char *why, size_t why_bytes)
{
    attn_cache_step step = { .batch = batch, .seq_len = count, .k = p->k, .v = p->v };
    step.k.data = moved(&p->k, first);
    step.v.data = moved(&p->v, first);
    return attn_cache_append(&s->cache, &step, why, why_bytes) == ATTN_OK;
}

/* One key at a time; the first third twice, so that the ring overwrites it. */
static int fill_ring(const bench_case *c, const attn_params *p, keys_store *s, char *why,
                     size_t why_bytes)
{
    const int64_t lost = c->seq_kv / 3;
    int ok = 1;
    for (int64_t n = 0; ok && n < lost + c->seq_kv; n++)
        ok = append(p, c->batch, n < lost ? n : n - lost, 1, s, why, why_bytes);
    return ok;
}

static int fill_forked(const bench_case *c, const attn_params *p, keys_store *s, char *why,
                       size_t why_bytes)
{
    const int64_t shared = c->keys.shared;
    int ok = append(p, 1, 0, shared, s, why, why_bytes);
    for (int64_t b = 1; ok && b < c->batch; b++)
        ok = attn_cache_fork(&s->cache, 0, b, shared, why, why_bytes) == ATTN_OK;
    return ok && append(p, c->batch, shared, c->seq_kv - shared, s, why, why_bytes);
}

int keys_fill(const bench_case *c, const attn_params *p, keys_store *s, char *why, size_t why_bytes)
{
    if (c->keys.kind == KEYS_RING)
        return fill_ring(c, p, s, why, why_bytes);
    if (case_forks(c))
        return fill_forked(c, p, s, why, why_bytes);
    return append(p, c->batch, 0, c->seq_kv, s, why, why_bytes);
}

int keys_view(const bench_case *c, const keys_store *s, attn_params *p, char *why, size_t why_bytes)
{
    const attn_status status =
        attn_cache_view(&s->cache, 0, NULL, c->batch, p, NULL, 0, why, why_bytes);
    if (c->keys.untold)
        p->shared_keys = 0;
    return status == ATTN_OK;
}

void keys_free(keys_store *s)
{
    free(s->memory);
    s->memory = NULL;
}
