/* src/api/backend.h - what a device, or another implementation, needs to run calls.
 * SPDX-License-Identifier: MIT
 *
 * attn_forward validates a call once and hands the result, an attn_problem, to p.backend. A backend
 * needs no other knowledge of the library: sizes, strides and numbers are resolved, and
 * attn_sequence_of tells for each sequence of the batch which rows and keys are in use.
 */
#pragma once

/* An attn_problem is a call that validation has passed, with every default resolved. */
typedef struct attn_problem {
    /* The call, with counts, strides, scale, kernels and tile_keys filled in. Here a stride of 0
     * means that the axis is shared, and layout counts no more. */
    attn_params p;
    int impl;            /* ATTN_IMPL_TILED or ATTN_IMPL_NAIVE */
    int gathered;        /* nonzero: rows of the CPU read only the keys of their list */
    int size_query;      /* nonzero: attn_workspace_size asks, and outputs may still be unknown */
    int64_t group;       /* query heads per kv head */
    int64_t max_q_len;   /* most rows that the call computes in one sequence */
    int64_t max_kv_len;  /* most keys that enter in one sequence */
    float factor;        /* scale * log2(e), the finite factor c on q.k */
    float cap2, icap2;   /* softcap in base 2, and its inverse; 0 means off */
    float keep_factor;   /* 1 / (1 - dropout_p) */
    uint32_t drop_below; /* a Philox word below it drops its key */
    /* Kernels for the rows of all batch entries at once, with shared_keys. */
    const attn_kernels *batch_kernels;
    int batch_tile_keys; /* keys of a tile with batch_kernels */
} attn_problem;

/* An attn_view says which rows, keys and query heads of a larger call a call has. Dropout, callbacks,
 * segments and chunks go by their numbers there; a call that is no part of another one is its own
 * view. */
struct attn_view {
    int64_t batch;           /* batch entry, of all entries of the view */
    int64_t head, head_step; /* query head h is head + h * head_step */
    int64_t row, key, step;  /* row i is row + i * step, and key j is key + j * step */
    int64_t entry;           /* row and key are this number larger in each further entry */
    int64_t before;          /* row i there is position before + i */
    int64_t bit;             /* bit_mask begins at this bit of its data */
};

/* An attn_sequence is sequence b of a batch: the rows and keys in use, where they lie, and how they
 * are numbered. */
typedef struct attn_sequence {
    int64_t b;
    int64_t q_row, q_len;     /* place of row 0 along the seq axis of q and outputs; rows in use */
    int64_t kv_row, kv_len;   /* place of key 0 in k and v, before ring and pages; keys in use */
    int64_t row_from, row_to; /* rows row_from to row_to-1 of those in use are computed (p.part) */
    int64_t key_from, key_to; /* keys key_from to key_to-1 of those in use enter (p.part) */
    int64_t column;           /* column of key 0 in bias and masks: kv_begin[b] */
    int64_t offset;           /* pos(i) = i + offset */
    int64_t key_base;         /* n(j) = key_base + j */
    int64_t prefix;           /* p.prefix[b] */
    attn_view view;           /* of entry b, so that its `entry` has been added */
} attn_sequence;

/* attn_problem_of() validates *p as attn_forward does and fills in *problem.
 *
 * Data of tensors is not read and may be NULL. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED. */
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
    int abi;          /* ATTN_KERNEL_ABI */
    const char *name; /* as attn_info and log sentences give it */
    void *user;       /* the backend's own */
    /* supports returns a number above 0 if the backend takes the call; otherwise it puts a sentence
     * into why. 0 leaves the call to the CPU. A number below 0 means that the CPU cannot take the
     * call either, because arrays are the device's; attn_forward then returns
     * ATTN_ERR_UNSUPPORTED. It must refuse an attn_dtype that it does not know. */
    int (*supports)(const attn_backend *self, const attn_problem *problem, char *why,
                    size_t why_bytes);
    /* workspace_size sets *bytes to what run needs. */
    attn_status (*workspace_size)(const attn_backend *self, const attn_problem *problem,
                                  size_t *bytes);
    /* run computes the call and returns what attn_forward returns. */
    attn_status (*run)(const attn_backend *self, const attn_problem *problem, void *workspace,
                       size_t workspace_bytes);
    /* supports_gradients answers for attn_backward as supports does for attn_forward. With kv_rows dk and dv
     * do not lie as k and v do: see attn_backward. */
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
#define ATTN_KERNEL_ABI 22
