/* src/api/explain.h - how attn_forward would run a call, and why.
 * SPDX-License-Identifier: MIT
 */
#pragma once

/* An attn_info tells how a call would run. */
typedef struct attn_info {
    /* impl is the attn_impl that runs: TILED or NAIVE. */
    int impl;
    /* impl_name is "tiled" or "naive". */
    const char *impl_name;
    /* kernels_name is the kernel set, e.g. "portable_fma". */
    const char *kernels_name;
    /* backend_name is "cpu" or the name of the backend. */
    const char *backend_name;
    /* One tile has tile_rows query rows and tile_keys keys. */
    int tile_rows, tile_keys;
    /* workers is the number of workers that can run at once. */
    int workers;
    /* items counts the independent pieces of work: those of the longest list, where keys are
     * divided, and those of logits. */
    int64_t items;
    /* key_parts is the number of parts into which the keys of a row tile are divided, so that few
     * rows use all workers; 1 means that they are not divided. */
    int key_parts;
    /* These are the bytes that attn_workspace_size tells, and those of one worker among them. */
    size_t workspace_bytes, workspace_bytes_per_worker;
    /* pairs counts the pairs that lengths, causal, window, chunked and prefix leave visible. */
    double pairs;
    /* flops is 2 * pairs * (head_dim + head_dim_v). */
    double flops;
    /* bytes is the size of q, k, v, o and lse, each touched once. */
    double bytes;
    /* reasons says why this path was taken and not another, one sentence each, "; " between. */
    char reasons[512];
} attn_info;

/* attn_explain() fills in *info with how attn_forward would run *p in a workspace of the best size.
 *
 * Data of tensors is not read and may be NULL. It takes time in proportion to batch * seq_len_q
 * where causal, window or chunked is on. It may run in many threads at once. Returns the errors of
 * attn_workspace_size; after one that *p causes, info->reasons holds the sentence of attn_check. */
ATTN_API attn_status attn_explain(const attn_params *p, attn_info *info);
