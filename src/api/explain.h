/* src/api/explain.h - how attn_forward would run a call, and why.
 * SPDX-License-Identifier: MIT
 */
#pragma once

/* An attn_info tells how a call would run. */
typedef struct attn_info {
    int impl;                 /* the attn_impl that runs: TILED or NAIVE */
    const char *impl_name;    /* "tiled" or "naive" */
    const char *kernels_name; /* kernel set, e.g. "portable_fma" */
    const char *backend_name; /* "cpu", the name of the backend, or "none" if neither can run it */
    int tile_rows, tile_keys; /* query rows and keys of a tile */
    int workers;              /* largest number of workers that run at once */
    /* Pieces of work, with logits; of divided keys only the longest list counts. A short call (see
     * attn_forward) has none: sizes here are those of the long way, which it takes if its arrays lie among
     * each other. */
    int64_t items;
    int key_parts; /* parts of a row tile's keys, so that few rows use all workers; 1: undivided */
    size_t workspace_bytes;            /* what attn_workspace_size gives */
    size_t workspace_bytes_per_worker; /* of these, what each worker takes */
    double pairs; /* pairs that lengths, causal, window, chunked and prefix leave visible */
    double flops; /* 2 * pairs * (head_dim + head_dim_v) */
    double bytes; /* size of q, k, v, their scales and recent rows, o, lse and stats, each once */
    char reasons[512]; /* why this path is taken and no other: sentences joined by "; " */
} attn_info;

/* attn_explain() fills in *info with how attn_forward would run *p in a workspace of the best size.
 *
 * Data of tensors is not read and may be NULL. If causal, window or chunked is on, the time that it
 * takes grows with batch * seq_len_q. Returns the errors of attn_workspace_size; if *p is at fault,
 * info->reasons holds the sentence of attn_check. */
ATTN_API attn_status attn_explain(const attn_params *p, attn_info *info);
