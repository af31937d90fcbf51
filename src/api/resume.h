/* src/api/resume.h - attention in steps, over keys that come tile by tile: from a file, flash, a
 * network, a decompressor.
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
 *         status = attn_resume_end(&r);                        // writes o, lse, stats
 *
 * Memory. The caller's block holds one tile of K and V, the states of the rows and a workspace of
 *   attn_forward. Its size hardly depends on the number of keys: twice as many keys need one more
 *   state for each row of a batch entry. A million keys of 8 heads of 64 and one row take under
 *   1 MiB.
 * Bits. The result has the bits of attn_forward with all keys in memory, whatever the sizes of
 *   tiles and steps.
 * Order. Batch entries come one after the other, and the keys of each come in ascending order. A
 *   tile ends where n(j) is a multiple of tile_keys. A tile that lengths, causal, window, chunked
 *   and prefix hide from every row is not fetched.
 * What may be set in p. Every field may be set except partial, logits, insight, cu_seqlens,
 *   kv_rows, recent, k_scales, v_scales, fast and part.keys, and impl must not be naive; AUTO runs tiled.
 *   Every mask, modifier and callback sees the whole call. Of k and v only the storage types count, which may be any but ATTN_I8; data and
 *   strides are not used. shared_keys and backend change nothing.
 * Errors. Nothing is written to o, lse and stats before attn_resume_end. A fetch that fails ends
 *   its step with ATTN_ERR_CALLBACK and leaves everything as it was before that tile: the next step
 *   asks for the tile again, or the caller gives up. After a failure of parallel_for every later
 *   call returns ATTN_ERR_CALLBACK.
 * Threads. p.parallel_for and p.num_workers work within a tile, by heads and rows. fetch is called
 *   by the thread that calls attn_resume_step. Several resumables may be under way at once, each
 *   used by one thread at a time.
 */
#pragma once

/* An attn_fetch asks for `count` keys of one batch entry and kv head, from column `first` on. */
typedef struct attn_fetch {
    int64_t batch, kv_head;
    int64_t first, count;
    void *k; /* to fill with count * head_dim elements of p.k.dtype, row after row, in units of 32
              * where the type has them */
    void *v; /* to fill with count * head_dim_v elements of p.v.dtype, row after row */
} attn_fetch;

/* A fetch callback fills tile->k and tile->v and returns 0, or returns nonzero if the keys cannot
 * be had. */
typedef int (*attn_fetch_fn)(void *user, const attn_fetch *tile);

/* An attn_resumable is a call under way. Callers read its first fields; the others are internal. */
typedef struct attn_resumable {
    int64_t done, total; /* tiles done, and all; a tile has all kv heads of one batch entry */
    int64_t fetched;     /* keys times kv heads that fetch has delivered */

    /* ---- internal */

    attn_params p;    /* the call as given; arrays that it points to must last until the end */
    attn_params tile; /* the call of one tile */
    attn_fetch_fn fetch;
    void *user;
    attn_status status; /* an error here is what every later call returns */
    int32_t *q_len;     /* rows in the tile's call: those of the entry under way, 0 for others */
    char *k, *v;        /* keys of the tile */
    int64_t tile_keys, kv_heads, head_dim, head_dim_v;
    int64_t entry;      /* batch entry under way */
    int64_t next, end;  /* its next key, and the one behind its last */
    int64_t entry_rows; /* states of a batch entry */
    attn_state states;  /* states of all rows: of the chunk under way, and of entries done */
    float *waiting[64]; /* nodes of the entry's merge tree, by their level */
    float *pending;     /* where the next node goes */
    void *workspace;
    size_t workspace_bytes;
} attn_resumable;

/* attn_resume_memory() sets *bytes to the best size of memory for attn_resume_begin.
 *
 * Less serves too, with a smaller workspace of attn_forward, down to what one worker needs. A tile
 * has tile_keys keys, a power of two from 16 to 1024; 0 means the most, up to 128, that keep K and
 * V within 256 KiB. k.data and v.data are not read. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW or
 * ATTN_ERR_UNSUPPORTED. */
ATTN_API attn_status attn_resume_memory(const attn_params *p, int64_t tile_keys, size_t *bytes);

/* attn_resume_begin() starts a call in `memory`, which may have any alignment and must last until
 * the end.
 *
 * tile_keys is that of attn_resume_memory, and `user` is the first argument of fetch. Returns the
 * errors of attn_resume_memory, and ATTN_ERR_WORKSPACE if the memory is NULL or too small. */
ATTN_API attn_status attn_resume_begin(attn_resumable *r, const attn_params *p, int64_t tile_keys,
                                       attn_fetch_fn fetch, void *user, void *memory,
                                       size_t memory_bytes);

/* attn_resume_step() fetches and takes in up to `tiles` tiles. There are no more once r->done ==
 * r->total. Returns ATTN_ERR_ARG or ATTN_ERR_CALLBACK. */
ATTN_API attn_status attn_resume_step(attn_resumable *r, int64_t tiles);

/* attn_resume_end() writes o, lse and stats. Before the last tile it returns ATTN_ERR_ARG, writes
 * nothing, and the call may go on. */
ATTN_API attn_status attn_resume_end(attn_resumable *r);

/* attn_resume_check() is attn_check for the arguments of attn_resume_begin. */
ATTN_API const char *attn_resume_check(const attn_params *p, int64_t tile_keys, attn_fetch_fn fetch,
                                       const void *memory, size_t memory_bytes, char *text,
                                       size_t text_bytes);
