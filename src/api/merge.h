/* src/api/merge.h - results over parts of the keys become one.
 * SPDX-License-Identifier: MIT
 */
#pragma once

/* out = a + b for num_rows rows of head_dim_v values, the states of two parts of the keys, a the
 * lower one. out may be a or b. Canonical (same bits as in one call) when each part covers a node
 * of the tree of docs/canon.md: 1024 * 2^k keys, aligned in n, or the tail; else deterministic.
 * Sizes are taken from out. */
ATTN_API attn_status attn_state_merge(const attn_state *a, const attn_state *b, attn_state *out);

/* Writes p->o and p->lse from raw states (numbered as attn_forward with p->partial numbers them),
 * applying the sink and dropout's factor of *p. */
ATTN_API attn_status attn_state_finish(const attn_params *p, const attn_state *state);

/* Merges two finished results of the same rows over disjoint keys by their LSE:
 * f32, o [num_rows, head_dim_v], lse [num_rows]. At most one of them may have had a sink. Out may
 * be one of the inputs. Within a few ulp of one call, not bit-identical. Empty parts are the
 * identity. */
ATTN_API attn_status attn_lse_merge(int64_t num_rows, int64_t head_dim_v, const float *o_a,
                                    const float *lse_a, const float *o_b, const float *lse_b,
                                    float *o_out, float *lse_out);
