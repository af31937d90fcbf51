/* src/api/explain.h - what attn_forward would do with a call, and why.
 * SPDX-License-Identifier: MIT
 */
#pragma once

/* What attn_forward would do with *p in a workspace of workspace_bytes, and why. */
typedef struct attn_info {
    int impl;                 /* attn_impl that runs: TILED or NAIVE */
    const char *impl_name;    /* "tiled", "naive" */
    const char *kernels_name; /* kernel set, e.g. "portable_fma" */
    const char *backend_name; /* "cpu" or the backend's */
    int tile_rows, tile_keys; /* query rows and keys of one tile */
    int workers;              /* that can run at once */
    int64_t items;            /* independent pieces of work: of the longest list where keys are
                                * divided, and those of logits */
    int key_parts;            /* into which the keys of a row tile are divided, so that few rows
                                * use all workers; 1 = not divided */
    size_t workspace_bytes, workspace_bytes_per_worker;
    double pairs;      /* visible by lengths, causal, window, chunked and prefix */
    double flops;      /* 2 * pairs * (head_dim + head_dim_v) */
    double bytes;      /* of q, k, v, o, lse, each touched once */
    char reasons[512]; /* why this path and not another, one sentence each, "; " between */
} attn_info;

/* Takes time in proportion to batch * seq_len_q where causal, window or chunked is on. */
ATTN_API attn_status attn_explain(const attn_params *p, attn_info *info);
