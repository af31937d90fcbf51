/* append.c - cases that append keys and values to a cache: the call.
 * SPDX-License-Identifier: MIT */
#include "jobs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROPE_BASE 10000.0

/* ---- the call */

static int make_rope(const bench_case *c, append_job *job, char *why, size_t why_bytes)
{
    const int64_t pairs = c->head_dim / 2, positions = KEYS_APPEND_CAPACITY;
    if (c->keys.rope == KEYS_UNTURNED)
        return 1;
    job->step.rope = &job->rope;
    if (c->keys.rope == KEYS_ROPE)
        return 1;
    job->table = malloc(sizeof(float) * (size_t)(2 * positions * pairs));
    if (!job->table)
        return snprintf(why, why_bytes, "no memory for a table"), 0;
    float *const sine = job->table + positions * pairs;
    const attn_status status =
        attn_rope_table(&job->rope, c->head_dim, 0, positions, job->table, sine, why, why_bytes);
    job->rope.cos = job->table;
    job->rope.sin = sine;
    job->rope.num_positions = positions;
    return status == ATTN_OK;
}

int append_make(const bench_case *c, const attn_params *p, uint64_t seed, append_job *job,
                char *why, size_t why_bytes)
{
    const int64_t width = c->head_dim + c->head_dim_v;
    memset(job, 0, sizeof *job);
    job->step.batch = c->batch;
    job->step.seq_len = c->seq_kv;
    job->step.k = p->k;
    job->step.v = p->v;
    job->read_back = malloc(sizeof(float) * (size_t)(c->heads_kv * c->seq_kv * width));
    if (!job->read_back)
        return snprintf(why, why_bytes, "no memory for the check"), 0;
    return make_rope(c, job, why, why_bytes) && keys_make(c, seed, &job->store, why, why_bytes);
}

int append_call(void *argument)
{
    append_job *const job = argument;
    attn_cache *const cache = &job->store.cache;
    if (cache->end[0] + job->step.seq_len > cache->capacity)
        for (int64_t b = 0; b < job->step.batch; b++)
            if (attn_cache_trim(cache, b, 0, 0, NULL, 0) != ATTN_OK)
                return 1;
    return attn_cache_append(cache, &job->step, NULL, 0) != ATTN_OK;
}

void append_free(append_job *job)
{
    free(job->table);
    free(job->read_back);
    keys_free(&job->store);
    job->table = job->read_back = NULL;
}
