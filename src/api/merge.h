/* src/api/merge.h - results over parts of the keys become one.
 * SPDX-License-Identifier: MIT
 *
 * A call over a part of the keys gives either a raw state (p.partial) or a finished result with its
 * LSE. Raw states keep the bits of one call; finished results agree within a few ulp. All arrays
 * are f32 and packed, except o, lse and stats of attn_state_finish. Keys that have lost a vector
 * (p.k_centered) must have lost the same one in every part.
 */
#pragma once

/* attn_state_merge() merges the states *a and *b of two parts of the keys into *out; *a has the
 * lower keys.
 *
 * It merges out->num_rows rows of out->head_dim_v values; the sizes in *a and *b are not read. The
 * merge is canonical, with the bits of one call, if each part covers a node of the tree of
 * docs/canon.md: 1024 * 2^k keys, aligned in n, or the tail. Other merges are deterministic.
 *
 * out may be a or b, and each of its arrays may be the same array of either. Returns ATTN_ERR_ARG if
 * it overlaps them otherwise, or itself, or if a pointer is NULL or a size is negative; nothing is
 * written then. */
ATTN_API attn_status attn_state_merge(const attn_state *a, const attn_state *b, attn_state *out);

/* attn_state_finish() writes p->o, p->lse and p->stats from raw states, and applies the sink and
 * dropout's factor of *p.
 *
 * The rows of *state are numbered as attn_forward with p->partial numbers them. Shapes, strides and
 * types of o, lse and stats are those of *p; any may be off, but not all. It takes the *p of the
 * calls that gave the states, but refuses further outputs (logits) with ATTN_ERR_UNSUPPORTED.
 * Returns the errors of attn_problem_of, and ATTN_ERR_ARG if an array of *state is NULL or no
 * output is given. */
ATTN_API attn_status attn_state_finish(const attn_params *p, const attn_state *state);

/* attn_lse_merge() merges two finished results of num_rows rows over disjoint keys by their LSE. It
 * makes no stats: where gradients follow, merge raw states.
 *
 * o_a, o_b and o_out are [num_rows, head_dim_v]; lse_a, lse_b and lse_out are [num_rows]. At most
 * one of the results may have had a sink. An empty part leaves the other unchanged.
 *
 * o_out may be o_a or o_b, and lse_out may be lse_a or lse_b. Returns ATTN_ERR_ARG if an output
 * overlaps an array otherwise, or if a pointer is NULL or a size is negative; nothing is written
 * then. */
ATTN_API attn_status attn_lse_merge(int64_t num_rows, int64_t head_dim_v, const float *o_a,
                                    const float *lse_a, const float *o_b, const float *lse_b,
                                    float *o_out, float *lse_out);
