/* src/api/snapshot.h - snapshots: sequences of a cache as bytes, to go on later or elsewhere.
 * SPDX-License-Identifier: MIT
 *
 *     static int put(void *file, const void *bytes, size_t count)
 *     {
 *         return fwrite(bytes, 1, count, file) != count;
 *     }
 *
 *     attn_snapshot s = {0};                         // sequence 0, such as a prompt that comes often
 *     s.batch = 1;  s.rope = &rope;  s.tag = model_hash;
 *     s.write = put;  s.context = file;
 *     attn_cache_save(&c, &s, why, sizeof why);
 *     ...
 *     s.read = get;                                  // into another cache, which then goes on
 *     attn_cache_load(&other, &s, why, sizeof why);
 *
 * Same bits. A snapshot holds the stored bytes of K and V, by number. What is computed and appended
 *   after a load has the bits that it would have had without. The other cache may have another layout,
 *   page size, capacity and byte order. A load refuses a snapshot that differs in num_layers,
 *   num_heads_kv, head_dim, head_dim_v, a storage type, `rotated`, k_mean, k_scales, v_scales, recent,
 *   recent_dtype, ring or window_left, in the rows of a ring, in the rope of its keys, in s.batch, in s.tag, or in the numerics version.
 * Format. All numbers are 64-bit integers, least significant byte first. A head says what must agree; behind
 *   it, where K or V is of ATTN_I8, stand hashes of the scales.
 *   Each sequence follows: its begin, end and overwritten_below, with recent keys also recent_begin, then
 *   for each layer its rows in blocks of up to 64 numbers, which end before a multiple of 64: K and then V
 *   as [head, row, dim], and behind them the recent rows. The head, the hashes of scales, the numbers of a
 *   sequence, and each block end with a hash of everything so far. The first eight bytes name the format and its version:
 *   attnsnp1, or attnrec1 with recent keys.
 * Damage. The hash finds every change within one word of eight bytes, and misses about one in 2^64 of
 *   other damages. It is no signature: whoever can write a file can make one that loads. What such a
 *   file says is checked all the same, before anything is done with it.
 * Sharing. Sequences that share pages are saved one by one, and do not share after a load. To keep
 *   pages shared, save one of them, and call attn_cache_fork after the load.
 * Aliasing. The callbacks must not change the cache.
 */
#pragma once

#include "cache.h"

/* An attn_snapshot says what is saved or loaded, and how. Set it to zero, then assign. */
typedef struct attn_snapshot {
    int64_t batch;            /* sequences */
    const int32_t *sequences; /* [batch], each at most once; NULL means 0, 1, ... */
    /* How the keys were turned before they were stored; NULL means that the cache did not turn them.
     * Ropes agree if they turn alike: rope.dim, interleaved, and the angles of positions 1, 2, 4, ...
     * 4096. A table that ends before 4096 is compared at those that it has, and agrees only with tables
     * that have the same ones. */
    const attn_rope *rope;
    /* Any number of the caller's, such as a hash of the model's weights, that a load must repeat. */
    uint64_t tag;
    /* Each takes `count` bytes and returns 0 if all went well. A load reads just the bytes of a
     * snapshot. */
    int (*write)(void *context, const void *bytes, size_t count);
    int (*read)(void *context, void *bytes, size_t count);
    void *context; /* goes to both */
} attn_snapshot;

/* attn_cache_save() writes sequences of *c by s->write.
 *
 * Returns ATTN_ERR_ARG, or ATTN_ERR_CALLBACK if s->write fails. It may run beside other functions that
 * take a const attn_cache. */
ATTN_API attn_status attn_cache_save(const attn_cache *c, const attn_snapshot *s, char *why,
                                     size_t why_bytes);

/* attn_cache_load() makes sequences of *c, which must be as attn_cache_trim(c, q, 0, 0) leaves them,
 * those that s->read gives, in the order in which they were saved.
 *
 * Unless it returns ATTN_OK, the sequences stay empty. Returns ATTN_ERR_ARG if the snapshot does not
 * agree with *c and *s, ATTN_ERR_DATA if it is none or damaged, ATTN_ERR_FULL if *c has too few rows or
 * pages, and ATTN_ERR_CALLBACK if s->read fails, as it does at the end of a file that was cut off. */
ATTN_API attn_status attn_cache_load(attn_cache *c, const attn_snapshot *s, char *why,
                                     size_t why_bytes);
