/* caches.h - what the files of the group cache share: the cache under test and its memory.
 * SPDX-License-Identifier: MIT
 *
 *     tests/cache.c         random operations against a model, roll-backs of rings
 *     tests/cache_bits.c    attention over caches
 *     tests/cache_misuse.c  every misuse
 *     tests/snapshot.c      the group snapshot: saving and loading
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

/* What an i8 cache stores for x, and what is read of it, as docs/canon.md defines them. */
int8_t scaled_store(float x, float scale);
float scaled_load(int8_t number, float scale);

/* A file in memory, for the callbacks of a snapshot. A call that would pass `limit` fails. */
typedef struct snapshot_file {
    unsigned char bytes[1 << 22];
    size_t size, at, limit;
} snapshot_file;
extern snapshot_file file;

int file_write(void *context, const void *bytes, size_t count);
int file_read(void *context, void *bytes, size_t count);
/* What saves `batch` sequences of the cache to `file`, or loads them from its beginning. */
attn_snapshot file_snapshot(int64_t batch, const int32_t *sequences, const attn_rope *rope);
attn_status file_save(const attn_snapshot *s);
attn_status file_load(const attn_snapshot *s);

void test_cache_bits(void);
void test_cache_misuse(void);

#endif
