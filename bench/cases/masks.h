/* masks.h - the masks that a case can have, and how many pairs each of them shows.
 * SPDX-License-Identifier: MIT
 *
 * One table: name, what it sets in attn_params (with small arrays of its own) and its visible
 * pairs, counted here from the definition and not by the library. Masks that a length alone does
 * not settle follow a fixed pattern of the case's shape, see masks.c. */
#ifndef BENCH_MASKS_H
#define BENCH_MASKS_H

#include <stddef.h>

#include "../../attn.h"
#include "case.h"

typedef enum mask_kind {
    MASK_FULL, /* none */
    /* by position */
    MASK_CAUSAL,
    MASK_CAUSAL_TOP_LEFT,
    MASK_CAUSAL_OFFSET,
    MASK_WINDOW,
    MASK_WINDOW_BOTH,
    MASK_CHUNKED,
    MASK_PREFIX,
    /* by lengths and documents */
    MASK_KV_LENGTHS,
    MASK_Q_LENGTHS,
    MASK_LEFT_PADDING,
    MASK_VARLEN,
    MASK_DOCUMENTS,
    /* by arrays and callbacks */
    MASK_BOOLEAN,
    MASK_BITS,
    MASK_BLOCKS,
    MASK_BLOCKS_CSR,
    MASK_BLOCKS_TENTH,
    MASK_LOCAL_GLOBAL,
    MASK_LOCAL_STRIDED,
    MASK_BIGBIRD,
    MASK_CALLBACK,
    MASK_CALLBACK_TILES,
    MASK_TREE,
    /* modifiers of the logits, which hide nothing */
    MASK_BIAS,
    MASK_BIAS_F16,
    MASK_BIAS_BF16,
    MASK_ALIBI,
    MASK_SOFTCAP,
    MASK_SCORE,
    /* and of the softmax */
    MASK_SINKS,
    MASK_SOFTMAX1,
    MASK_DROPOUT,
    NUM_MASKS
} mask_kind;

const char *mask_name(int kind);
const char *mask_what(int kind);

/* The kind of this name; -1 = there is none. */
int mask_find(const char *name);

/* Visible (query, key) pairs of the case over batch and heads, exactly. Takes time in proportion to
 * batch * seq_q. */
double mask_pairs(const bench_case *c);

/* Whether attn_explain counts the pairs of this kind, too: others it counts as visible. */
int mask_explained(int kind);

/* Whether every key is seen by some row, so that all of k and v is read. */
int mask_reads_all(int kind);

/* Whether attn_long.h builds the cells of this kind. */
int mask_is_pattern(int kind);

/* Whether the kind adds a bias for each pair. */
int mask_has_bias(int kind);

/* Derivative of the score callback of MASK_SCORE. */
float mask_score_derivative(void *user, const attn_pair *at, float logit);

/* Bytes of the arrays whose size goes with seq_q * seq_kv. */
double mask_bytes(const bench_case *c);

enum { MASK_MAX_ARRAYS = 2 };

typedef struct mask_arrays {
    void *owned[MASK_MAX_ARRAYS];
    int n;
} mask_arrays;

/* The layout of the case's tensors: varlen packs them as [token, head, dim], whatever it says. */
case_layout mask_layout(const bench_case *c);

/* Sets the fields of the mask in *p, which holds the sizes of the case; varlen changes these.
 * 0 = no memory; mask_free in any case. */
int mask_set(const bench_case *c, attn_params *p, mask_arrays *arrays);

/* Builds the cells of a pattern once more, where they are, as a program does that keeps none; 0 =
 * failed. For others it does nothing. */
int mask_again(const bench_case *c, mask_arrays *arrays);

void mask_free(mask_arrays *arrays);

#endif
