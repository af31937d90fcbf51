/* bits.h - what bits.c and bits_backward.c share: the inputs of a case and calls of parts of it.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_BITS_H
#define ATTN_TESTS_BITS_H

#include "test.h"

#include "bits_data.h"
#include "golden.h"

enum { MAX_BATCH = 4 };

/* Everything of one case: packed inputs, and the outputs that all pieces of a run fill. */
typedef struct fixture {
    const bits_case *c;
    int batch, dv;
    size_t size;        /* bytes of an element of q, k, v, o */
    int k_type, v_type; /* attn_dtype of k and v, */
    size_t key, value;  /* and the bytes of a row */
    void *q, *k, *v, *bias, *recent_k, *recent_v;
    float *k_scales, *v_scales;
    float *sinks, *slopes;
    unsigned char *o;          /* [batch, hq, sq, dv], of the storage type */
    float *lse, *m, *l, *acc;  /* [batch, hq, sq]; acc [.., dv] */
    float *stats;              /* [batch, hq, sq, 2] */
    float *logits;             /* [batch, hq, sq, skv] */
    float *entropy, *top_prob; /* [batch, hq, sq]; [.., top] */
    float *dropped;            /* [batch, hq, sq] */
    int32_t *top_key;
} fixture;

/* The part of a problem that one call computes. j: keys of each sequence, cut to its length. */
typedef struct piece {
    int b, batch, i, rows, j, keys;
    int whole; /* as the case says it, without arrays that say the same */
} piece;

/* Arrays that attn_params points to. */
typedef struct arrays {
    int32_t q_len[MAX_BATCH], kv_len[MAX_BATCH], kv_begin[MAX_BATCH], offset[MAX_BATCH];
    int64_t key_base[MAX_BATCH];
} arrays;

/* `count` elements of `size` bytes, by test_alloc. */
void *make_input(const bits_case *c, int count, size_t size,
                 uint32_t (*element)(const bits_case *, uint32_t));
void make_fixture(fixture *f, const bits_case *c);
/* The call of a piece, without its outputs. */
attn_params piece_params(const fixture *f, const piece *w, arrays *a);

/* Element `at` of `size` bytes enters an FNV hash, which starts at EMPTY_HASH. */
#define EMPTY_HASH UINT64_C(0xcbf29ce484222325)
void feed(uint64_t *hash, const void *data, size_t at, size_t size);

/* A parallel_for: every index once, in steps of about 3/8 of n, on workers that have nothing to do
 * with it. user: an int, how many. */
int shuffled(void *user, int64_t n, attn_task_fn task, void *arg);

/* Subnormal inputs and results are taken for zero from one to the other, as a caller may have set
 * the unit; 0 = no such mode is known here. */
int flush_begin(uint64_t *mode);
void flush_end(uint64_t mode);

int between(int low, int x, int high);
/* Not to be repeated where products are slow. */
int is_large(const bits_case *c);
enum { ONCE = 2 }; /* of quick: see bits.c */
/* The cases of attn_backward, and of attn_index. */
void check_gradients(int quick);
void check_index(int quick);

#endif
