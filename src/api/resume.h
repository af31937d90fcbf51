/* src/api/resume.h - attention in steps, over keys that come tile by tile: from a file,
 * flash, a network, a decompressor.
 * SPDX-License-Identifier: MIT
 *
 *     int fetch(void *user, const attn_fetch *tile) { ... }    // fills tile->k and tile->v
 *
 *     attn_resumable r;
 *     size_t need;
 *     attn_resume_memory(&p, 0, &need);                        // p as for attn_forward, k and v
 *                                                              // without data
 *     attn_status status = attn_resume_begin(&r, &p, 0, fetch, file, malloc(need), need);
 *     while (status == ATTN_OK && r.done < r.total)
 *         status = attn_resume_step(&r, 16);                   // 16 tiles, then something else
 *     if (status == ATTN_OK)
 *         status = attn_resume_end(&r);                        // writes o and lse
 *
 * Memory. One tile of K and V, the states of the rows and a workspace of attn_forward, all in the
 *   caller's block: it does not depend on the number of keys but for one state of each row of a
 *   batch entry more whenever that doubles. A million keys of 8 heads of 64 and one row: under
 *   1 MiB.
 * Bits. Those of attn_forward with all keys in memory, whatever the sizes of tiles and steps.
 * Order. Batch entries one after the other, of each its keys in ascending order, tiles that end
 *   where n(j) is a multiple of tile_keys. Tiles that lengths, causal, window, chunked and prefix
 *   hide from every row are not fetched.
 * What may be set in p. Everything but partial, logits, cu_seqlens, kv_rows, part.keys and impl
 *   naive; every mask, modifier and callback sees the whole call. k and v give their storage types;
 *   their data and strides are not used. shared_keys and backend change nothing.
 * Errors. A status, and a sentence from attn_resume_check. Nothing is written to o and lse before
 *   attn_resume_end. A fetch that fails ends its step with ATTN_ERR_CALLBACK and leaves everything
 *   as it was before that tile: the next step asks for the same tile again, or give up. After a
 *   failure of parallel_for there is no going on: every later call returns ATTN_ERR_CALLBACK.
 * Threads. p.parallel_for and p.num_workers work within a tile, by heads and rows; fetch is called
 *   by the thread that calls attn_resume_step. Several resumables may be under way at once.
 */
#pragma once

/* Keys that are wanted: `count` of one batch entry and kv head, from column `first` on. */
typedef struct attn_fetch {
    int64_t batch, kv_head;
    int64_t first, count;
    void *k; /* to be filled: count * head_dim elements of p.k.dtype, row after row */
    void *v; /* likewise with head_dim_v, of p.v.dtype */
} attn_fetch;

/* Returns 0, or nonzero when the keys cannot be had. */
typedef int (*attn_fetch_fn)(void *user, const attn_fetch *tile);

/* A call under way. Of its fields only the first three are the caller's business. */
typedef struct attn_resumable {
    int64_t done, total; /* tiles: of one batch entry and all its kv heads */
    int64_t fetched;     /* keys times kv heads that fetch has delivered */

    attn_params p;    /* as given: arrays that it points to must last until the end */
    attn_params tile; /* the call of one tile */
    attn_fetch_fn fetch;
    void *user;
    attn_status status; /* that every later call returns: there is no going on */
    int32_t *q_len;     /* of the tile's call: rows of the entry under way, else 0 */
    char *k, *v;        /* its keys */
    int64_t tile_keys, kv_heads, head_dim, head_dim_v;
    int64_t entry;      /* batch entry under way, */
    int64_t next, end;  /* its next key and the one behind its last */
    int64_t entry_rows; /* states of a batch entry */
    attn_state states;  /* of all rows: of the chunk under way, and of entries that are done */
    float *pending;     /* nodes of the merge tree of the entry under way */
    unsigned char slot_of[64]; /* 1 + the slot where the node of this level waits; 0 = none */
    void *workspace;
    size_t workspace_bytes;
} attn_resumable;

/* Bytes of memory that are best; less serves, too, with a smaller workspace of attn_forward, down
 * to what it needs. tile_keys: 16, 32, ... 1024 keys a tile; 0 = as many, up to 128, as keep K and
 * V within 256 KiB. p: k.data and v.data are not looked at. */
ATTN_API attn_status attn_resume_memory(const attn_params *p, int64_t tile_keys, size_t *bytes);

/* Starts a call in `memory`, which must last until the end and may have any alignment. */
ATTN_API attn_status attn_resume_begin(attn_resumable *r, const attn_params *p, int64_t tile_keys,
                                       attn_fetch_fn fetch, void *user, void *memory,
                                       size_t memory_bytes);

/* Fetches and takes in up to `tiles` tiles. r->done == r->total: there are no more. */
ATTN_API attn_status attn_resume_step(attn_resumable *r, int64_t tiles);

/* Writes o and lse. ATTN_ERR_ARG before the last tile: nothing is written, go on. */
ATTN_API attn_status attn_resume_end(attn_resumable *r);

/* What is wrong with the arguments of attn_resume_begin, in one English sentence, or "ok". Writes
 * at most text_bytes bytes including the terminator and returns text (or a constant string when
 * text is NULL or text_bytes is 0). */
ATTN_API const char *attn_resume_check(const attn_params *p, int64_t tile_keys, attn_fetch_fn fetch,
                                       const void *memory, size_t memory_bytes, char *text,
                                       size_t text_bytes);
