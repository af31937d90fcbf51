/* src/api/backend.h - a device, or another implementation of attn_forward and attn_backward.
 * SPDX-License-Identifier: MIT
 *
 * attn_forward validates a call once and hands the result, an attn_problem, to p.backend. A backend
 * needs no other knowledge of the library: sizes, strides and numbers are resolved, and
 * attn_sequence_of tells for each sequence of the batch which rows and keys are in use.
 */
#pragma once

/* A call that validation has passed, with every default resolved. */
typedef struct attn_problem {
    attn_params p;       /* counts, strides, scale, kernels and tile_keys are filled in */
    int impl;            /* ATTN_IMPL_TILED or ATTN_IMPL_NAIVE */
    int size_query;      /* nonzero: attn_workspace_size asks, and outputs may still be unknown */
    int64_t group;       /* query heads per kv head */
    int64_t max_q_len;   /* rows of the longest sequence of the batch that the call computes */
    int64_t max_kv_len;  /* keys of the longest sequence that enter */
    float factor;        /* c = scale * log2(e), the factor on q */
    float cap2, icap2;   /* softcap in base 2, and its inverse; 0 = off */
    float keep_factor;   /* 1 / (1 - dropout_p) */
    uint32_t drop_below; /* a Philox word below it drops its key */
    const attn_kernels *batch_kernels; /* for the rows of all batch entries at once: shared_keys */
    int batch_tile_keys;               /* keys of a tile with them */
} attn_problem;

/* Sequence b of a batch: the rows and keys in use, where they lie, and how they are numbered. */
typedef struct attn_sequence {
    int64_t b;
    int64_t q_row, q_len;     /* place of row 0 along the seq axis of q, o, lse; rows in use */
    int64_t kv_row, kv_len;   /* place of key 0 in k and v, before ring and pages; keys in use */
    int64_t row_from, row_to; /* the rows in use that the call computes: p.part */
    int64_t key_from, key_to; /* the keys in use that enter: p.part */
    int64_t column;           /* of key 0 in bias and masks: kv_begin[b] */
    int64_t offset;           /* pos(i) = i + offset */
    int64_t key_base;         /* n(j) = key_base + j */
    int64_t prefix;           /* p.prefix[b] */
} attn_sequence;

/* Validates *p as attn_forward does and fills in *problem, or puts a sentence into why (may be
 * NULL). Pointers to tensors are not read and may be NULL. */
ATTN_API attn_status attn_problem_of(const attn_params *p, attn_problem *problem, char *why,
                                     size_t why_bytes);

/* Sequence b, from 0 to batch - 1. */
ATTN_API attn_sequence attn_sequence_of(const attn_problem *problem, int64_t b);

/* The gradients that a backend is asked for: see attn_backward. */
typedef struct attn_gradient_call attn_gradient_call;

/* Set it to zero, then assign. supports answers above 0 where the backend takes the call; 0, with a
 * sentence in why, where the CPU takes it; below 0, with a sentence, where the CPU cannot take it
 * either because arrays are the device's: the call then returns ATTN_ERR_UNSUPPORTED. A backend
 * without gradients leaves the last three NULL. */
struct attn_backend {
    int abi; /* ATTN_KERNEL_ABI */
    const char *name;
    void *user;
    int (*supports)(const attn_backend *self, const attn_problem *problem, char *why,
                    size_t why_bytes);
    attn_status (*workspace_size)(const attn_backend *self, const attn_problem *problem,
                                  size_t *bytes);
    attn_status (*run)(const attn_backend *self, const attn_problem *problem, void *workspace,
                       size_t workspace_bytes);
    int (*supports_gradients)(const attn_backend *self, const attn_problem *problem,
                              const attn_gradient_call *g, char *why, size_t why_bytes);
    attn_status (*gradients_size)(const attn_backend *self, const attn_problem *problem,
                                  const attn_gradient_call *g, size_t *bytes);
    attn_status (*run_gradients)(const attn_backend *self, const attn_problem *problem,
                                 const attn_gradient_call *g, void *workspace,
                                 size_t workspace_bytes);
};

#define ATTN_KERNEL_ABI 8
