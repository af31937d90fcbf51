/* src/api/backend.h - a device, or another implementation of attn_forward and attn_backward.
 * SPDX-License-Identifier: MIT
 *
 * attn_forward validates a call once and hands the result, an attn_problem, to p.backend. A backend
 * needs no other knowledge of the library: sizes, strides and numbers are resolved, and
 * attn_sequence_of tells for each sequence of the batch which rows and keys are in use.
 */
#pragma once

/* An attn_problem is a call that validation has passed, with every default resolved. */
typedef struct attn_problem {
    /* p is the call, with counts, strides, scale, kernels and tile_keys filled in. */
    attn_params p;
    /* impl is ATTN_IMPL_TILED or ATTN_IMPL_NAIVE. */
    int impl;
    /* Nonzero means that attn_workspace_size asks, and outputs may still be unknown. */
    int size_query;
    /* group is the number of query heads per kv head. */
    int64_t group;
    /* max_q_len counts the rows of the longest sequence of the batch that the call computes. */
    int64_t max_q_len;
    /* max_kv_len counts the keys of the longest sequence that enter. */
    int64_t max_kv_len;
    /* factor is scale * log2(e), the factor c on q.k; it is finite. */
    float factor;
    /* cap2 is softcap in base 2, and icap2 is its inverse; 0 means off. */
    float cap2, icap2;
    /* keep_factor is 1 / (1 - dropout_p). */
    float keep_factor;
    /* A Philox word below drop_below drops its key. */
    uint32_t drop_below;
    /* batch_kernels are for the rows of all batch entries at once, with shared_keys. */
    const attn_kernels *batch_kernels;
    /* batch_tile_keys is the number of keys of a tile with batch_kernels. */
    int batch_tile_keys;
} attn_problem;

/* An attn_sequence is sequence b of a batch: the rows and keys in use, where they lie, and how they
 * are numbered. */
typedef struct attn_sequence {
    int64_t b;
    /* q_row is the place of row 0 along the seq axis of q, o and lse; q_len counts rows in use. */
    int64_t q_row, q_len;
    /* kv_row is the place of key 0 in k and v, before ring and pages; kv_len counts keys in use. */
    int64_t kv_row, kv_len;
    /* The call computes rows row_from to row_to-1 of those in use, as p.part says. */
    int64_t row_from, row_to;
    /* Keys key_from to key_to-1 of those in use enter, as p.part says. */
    int64_t key_from, key_to;
    /* column is that of key 0 in bias and masks: kv_begin[b]. */
    int64_t column;
    /* offset gives pos(i) = i + offset. */
    int64_t offset;
    /* key_base gives n(j) = key_base + j. */
    int64_t key_base;
    /* prefix is p.prefix[b]. */
    int64_t prefix;
} attn_sequence;

/* attn_problem_of() validates *p as attn_forward does and fills in *problem.
 *
 * Data of tensors is not read and may be NULL. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED, and puts a sentence into why, which may be NULL. */
ATTN_API attn_status attn_problem_of(const attn_params *p, attn_problem *problem, char *why,
                                     size_t why_bytes);

/* attn_sequence_of() returns sequence b, from 0 to batch - 1. */
ATTN_API attn_sequence attn_sequence_of(const attn_problem *problem, int64_t b);

/* An attn_gradient_call holds the gradients that a backend is asked for; the level backward has its
 * fields. */
typedef struct attn_gradient_call attn_gradient_call;

/* An attn_backend is a table of functions. Set it to zero, then assign. A backend without gradients
 * leaves the last three NULL. Functions may be called from many threads at once. */
struct attn_backend {
    /* abi is ATTN_KERNEL_ABI. */
    int abi;
    /* name stands in attn_info and in log sentences. */
    const char *name;
    /* user is the backend's own. */
    void *user;
    /* supports returns above 0 where the backend takes the call. It returns 0, with a sentence in
     * why, where the CPU takes it. It returns below 0, with a sentence in why, where the CPU cannot
     * take it either because arrays are the device's; attn_forward then returns
     * ATTN_ERR_UNSUPPORTED. */
    int (*supports)(const attn_backend *self, const attn_problem *problem, char *why,
                    size_t why_bytes);
    /* workspace_size sets *bytes to what run needs. */
    attn_status (*workspace_size)(const attn_backend *self, const attn_problem *problem,
                                  size_t *bytes);
    /* run computes the call and returns what attn_forward returns. */
    attn_status (*run)(const attn_backend *self, const attn_problem *problem, void *workspace,
                       size_t workspace_bytes);
    /* supports_gradients answers for attn_backward as supports does for attn_forward. */
    int (*supports_gradients)(const attn_backend *self, const attn_problem *problem,
                              const attn_gradient_call *g, char *why, size_t why_bytes);
    /* gradients_size sets *bytes to what run_gradients needs. */
    attn_status (*gradients_size)(const attn_backend *self, const attn_problem *problem,
                                  const attn_gradient_call *g, size_t *bytes);
    /* run_gradients computes the gradients and returns what attn_backward returns. */
    attn_status (*run_gradients)(const attn_backend *self, const attn_problem *problem,
                                 const attn_gradient_call *g, void *workspace,
                                 size_t workspace_bytes);
};

/* This number changes when attn_problem, attn_backend or the kernels' interface changes. */
#define ATTN_KERNEL_ABI 9
