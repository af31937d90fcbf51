/* src/gather.c - whether the rows of a call read only the keys of their list.
 * SPDX-License-Identifier: MIT
 *
 * A list of keys is a mask: masks.c hides all others, beside any other mask. Where nothing else asks
 * about single keys, row tiles instead take the listed keys as if there were no others. What depends on
 * the number of a key, the canonical blocks and chunks, still goes by it, so that no bit changes.
 */
#pragma once

#include "plan.c"
#include "masks.c"

/* may_gather tells whether nothing but its list asks about single keys, and no two lists meet in a
 * row tile. */
static int may_gather(const problem *pr)
{
    const attn_params *p = &pr->p;
    const int asks_more = pair_rules_on(p) > 1 || p->bias.data || p->alibi_slopes || p->score ||
                          p->dropout_p > 0 || p->logits.data || p->recent.keys || has_insight(p) ||
                          p->insight.mass || has_skip(p);
    return p->key_list.data && !asks_more && pr->impl == ATTN_IMPL_TILED && !p->fast &&
           !p->part.rows && !p->part.keys && !p->cu_seqlens_q;
}

/* Of a key that rows pass over each pair takes as long as head_dim + head_dim_v says, and few rows as long
 * as GATHER_LANES. Of a listed key it takes twice as long, since rows are copied, and each may have a
 * block of its own. */
#define GATHER_LANES 16
#define GATHER_BLOCK 10000

/* gather_waits tells how many times the time of a worker the gathered call takes, as it divides no
 * chunk of keys. */
static int64_t gather_waits(const problem *pr, int64_t lists)
{
    const attn_params *p = &pr->p;
    const int64_t tiles = ceil_div(lanes_of_list(pr), ATTN_KERNEL_MAX_ROWS);
    const int64_t chunks = ceil_div(min64(pr->max_kv_len, p->key_list.width), ATTN_CHUNK);
    const int64_t items = times(times(p->batch, p->num_heads_kv), times(lists, tiles));
    return ceil_div(p->num_workers, max64(times(items, chunks), 1));
}

/* is_sparse tells whether a row tile for each list takes less time than tiles full of rows that pass over
 * what they do not see. */
static int is_sparse(const problem *pr)
{
    const attn_params *p = &pr->p;
    const int64_t dims = plus(p->head_dim, p->head_dim_v);
    const int64_t rows = max64(times(pr->max_q_len, pr->group), GATHER_LANES);
    const int64_t lanes = max64(lanes_of_list(pr), GATHER_LANES);
    const int64_t lists = ceil_div(pr->max_q_len, rows_of_list(p));
    const int64_t listed = times(lists, min64(p->key_list.width, pr->max_kv_len));
    const int64_t each = plus(times(times(2, dims), lanes), GATHER_BLOCK);
    return times(times(listed, each), gather_waits(pr, lists)) <
           times(times(pr->max_kv_len, dims), rows);
}

/* settle_gather decides about the call. The kernels are then those for the rows of a list. */
static void settle_gather(const attn_params *asked, problem *pr, int wanted)
{
    if (pr->gathered == wanted)
        return;
    pr->gathered = wanted;
    pr->p.kernels = asked->kernels;
    pr->p.tile_keys = asked->tile_keys;
    resolve_kernels(pr);
}
