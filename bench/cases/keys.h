/* keys.h - the caches that hold the keys and values of a case.
 * SPDX-License-Identifier: MIT
 *
 * Pages lie in the order of a shuffled free list, as after hours of use, and a ring has gone round
 * once and a third: nothing lies where plain arrays would have it. */
#ifndef BENCH_KEYS_H
#define BENCH_KEYS_H

#include <stddef.h>
#include <stdint.h>

#include "../../attn.h"
#include "case.h"

enum { KEYS_APPEND_CAPACITY = 4096 }; /* of a sequence, where a case only appends */

typedef struct keys_store {
    attn_cache cache;
    void *memory;
} keys_store;

/* Bytes of k and v in the case's cache; 0 = it has none. */
double keys_cache_bytes(const bench_case *c);

/* An empty cache for the case, full of NaN. 0 with a sentence in why: there is none; keys_free in
 * any case. */
int keys_make(const bench_case *c, uint64_t seed, keys_store *s, char *why, size_t why_bytes);

/* Appends the plain arrays p->k and p->v to it; 0 with a sentence. */
int keys_fill(const bench_case *c, const attn_params *p, keys_store *s, char *why,
              size_t why_bytes);

/* Sets in *p where the keys lie now; 0 with a sentence. */
int keys_view(const bench_case *c, const keys_store *s, attn_params *p, char *why,
              size_t why_bytes);

/* Faults for checks of the bench. REPEATED: the second page of sequence 0 is said to be the first
 * one; SWAPPED: they are said to be each other, so that the same keys come in another order. */
typedef enum keys_fault { KEYS_RIGHT, KEYS_REPEATED, KEYS_SWAPPED } keys_fault;
void keys_plant(keys_store *s, keys_fault fault);

void keys_free(keys_store *s);

#endif
