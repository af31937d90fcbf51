/* caches.h - what the files of the group cache share: the cache under test and its memory.
 * SPDX-License-Identifier: MIT
 *
 *     tests/cache.c         random operations against a model, roll-backs of rings
 *     tests/cache_bits.c    attention over caches
 *     tests/cache_misuse.c  every misuse
 */
#ifndef ATTN_TESTS_CACHES_H
#define ATTN_TESTS_CACHES_H

#include "test.h"

#include "../attn.h"

enum { WHY = 400 };

extern attn_cache cache;
extern char why[WHY]; /* the sentence of the last call */

/* Gives the shape in `cache` its memory. Nonzero: all was right. */
int cache_start(void);
/* Remembers the cache and its memory, to see later whether anything changed. */
void cache_remember(void);
int cache_is_unchanged(void);

void test_cache_bits(void);
void test_cache_misuse(void);

#endif
