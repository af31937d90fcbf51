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
                          p->insight.mass;
    return p->key_list.data && !asks_more && pr->impl == ATTN_IMPL_TILED && !p->fast &&
           !p->part.rows && !p->part.keys && !p->cu_seqlens_q;
}

/* Fewer rows than these take as long. */
#define GATHER_LANES 16
/* A listed key takes as long as these others, since its rows are copied. */
#define GATHER_COST 2

/* is_sparse tells whether a row tile for each list takes less time than tiles full of rows that pass over
 * what they do not see. */
static int is_sparse(const problem *pr)
{
    const attn_params *p = &pr->p;
    const int64_t rows = times(pr->max_q_len, pr->group), lanes = lanes_of_list(pr);
    const int64_t lists = ceil_div(pr->max_q_len, rows_of_list(p));
    const int64_t listed = times(lists, min64(p->key_list.width, pr->max_kv_len));
    return times(times(listed, max64(lanes, GATHER_LANES)), GATHER_COST) <
           times(pr->max_kv_len, max64(rows, GATHER_LANES));
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
