/* src/api/cache.h - caches of keys and values for generating text: contiguous, ring,
 * paged.
 * SPDX-License-Identifier: MIT
 *
 *     attn_cache c = {0};
 *     c.num_sequences = 1;  c.num_heads_kv = 8;  c.head_dim = 128;  c.capacity = 4096;
 *     size_t need;
 *     attn_cache_size(&c, &need, why, sizeof why);
 *     attn_cache_init(&c, malloc(need), need, why, sizeof why);
 *
 *     attn_cache_step s = {0};                       // new keys and values, a prompt or one token
 *     s.batch = 1;  s.seq_len = n;  s.k.data = k;  s.v.data = v;  s.rope = &rope;
 *     attn_cache_append(&c, &s, why, sizeof why);
 *
 *     attn_params p = {0};                           // attention over all that is cached
 *     attn_cache_view(&c, 0, NULL, 1, &p, NULL, 0, why, sizeof why);
 *     p.num_heads_q = 32;  p.seq_len_q = n;  p.causal = 1;  p.q.data = q;  p.o.data = o;
 *     attn_forward(&p, workspace, workspace_bytes);
 *
 * Numbers. Key number n of a sequence is its n-th since the sequence began, 0, 1, 2, ...; numbers
 *   begin .. end-1 are present. Rolling back and appending again gives the same numbers again. A
 *   view's key j is number begin + j, key_base is begin: so positions, masks and bits of a result
 *   are those of an uncut, unpaged, unwrapped sequence (docs/canon.md).
 * Rows. Number n lies in row n modulo `rows` of its sequence, rows = capacity (paged: rounded up to
 *   whole pages). Contiguous: rows of the sequence's own storage. Paged: slot row % page_size of
 *   page table[row / page_size]; pages are taken from a free list when keys are appended, given
 *   back by trim, counted when sequences share them, copied before a shared one is written.
 * Ring. With c.ring the oldest keys make room for new ones, and a query may look back at
 *   c.window_left keys. window_left + n rows take steps of n keys, and can roll back n.
 * Layers. All layers of a model share numbers, lengths and tables: attn_cache_extend once a step,
 *   then attn_cache_write and attn_cache_view for each layer. attn_cache_append is both for one.
 * Memory. None is allocated: attn_cache_size tells what attn_cache_init needs, with any alignment.
 *   Storage may be the caller's own instead: c.k.data and c.v.data set before. All of it stays in
 *   place as long as the cache or a view of it is used. Storage of K and of V, and what is written
 *   from (a step's k, v) and read to (attn_cache_read's), must not overlap. Stack below 4 KiB.
 * Threads. A function that takes a const attn_cache may run in many threads at once, one that does
 *   not needs the cache for itself. attn_cache_write needs its layer's rows of its sequences for
 *   itself: beside it may run writes, reads and attn_forward of other layers or other sequences.
 * Errors. A sentence in why (may be NULL), and nothing was changed, in the cache or anywhere.
 */
#pragma once

#include "rope.h"

typedef enum attn_cache_layout {
    ATTN_CACHE_HND = 0, /* [sequence or page, head, row, dim] */
    ATTN_CACHE_NHD = 1  /* [sequence or page, row, head, dim] */
} attn_cache_layout;

/* Set it to zero, then assign the first part, then attn_cache_size and attn_cache_init. */
typedef struct attn_cache {
    /* ---- shape; not to be changed after attn_cache_init */
    int64_t num_sequences; /* > 0: that there is room for */
    int64_t num_layers;    /* 0 = 1 */
    int64_t num_heads_kv;  /* > 0 */
    int64_t head_dim;      /* > 0 */
    int64_t head_dim_v;    /* 0 = head_dim */
    int64_t capacity;      /* > 0: keys of a sequence, at most */
    int64_t page_size;     /* keys of a page, any number; 0 = not paged */
    int64_t num_pages;     /* paged: of all sequences; 0 = as many as they can need */
    int ring;              /* nonzero: the oldest keys make room for new ones */
    int64_t window_left;   /* ring: keys before its own that a query may see, below capacity; 0 =
                            * whatever is there: then results depend on what the ring still has */
    int layout;            /* attn_cache_layout, where strides are packed */
    attn_output k, v;      /* dtype: how keys and values are stored, chosen separately. data NULL:
                            * in the memory given to attn_cache_init; else the caller's storage of
                            * all layers. stride_batch: between sequences, paged: between pages.
                            * stride_seq: between rows. 0 = packed in `layout` */
    ptrdiff_t k_stride_layer, v_stride_layer; /* 0 = packed: [layer, ...] */

    /* ---- state, set by the functions below, to be read only */
    int64_t rows;               /* of a sequence */
    int64_t pages_per_sequence; /* entries of a sequence's table */
    int64_t *begin, *end;       /* [num_sequences] numbers present: begin .. end-1 */
    int64_t *overwritten_below; /* [num_sequences] numbers below it made room in the ring; those
                                 * that the caller had forgotten before do not count */
    int32_t *length;            /* [num_sequences] end - begin */
    int32_t *first_row;         /* [num_sequences] row of number begin */
    int32_t *table;             /* paged: [num_sequences, pages_per_sequence], -1 = none */
    int32_t *uses;              /* paged: [num_pages] sequences that have this page */
    int32_t *free_pages;        /* paged: [num_pages] the first num_free are free, last one next */
    int64_t num_free;
} attn_cache;

/* New keys and values. Set it to zero, then assign. */
typedef struct attn_cache_step {
    int64_t batch;             /* sequences that get some; 0 = nothing to do */
    const int32_t *sequences;  /* [batch] which, each at most once; NULL = 0, 1, ... */
    int64_t seq_len;           /* rows of k and v per batch entry; with cu_seqlens: rows in all */
    const int32_t *len;        /* [batch] rows in use, 0 allowed; NULL = all */
    const int32_t *cu_seqlens; /* [batch + 1] packed rows: entry b has rows cu[b] .. cu[b+1]-1 */
    attn_tensor k; /* [batch, num_heads_kv, seq_len, head_dim], with cu_seqlens [token, head, dim];
                    * f32, or as the cache stores them */
    attn_tensor v; /* [batch, num_heads_kv, seq_len, head_dim_v], likewise */
    const attn_rope *rope;    /* keys are stored turned to their position; NULL = as they are */
    const int64_t *positions; /* [batch, seq_len], with cu_seqlens [token]: for rope; NULL = each
                                * key's number */
} attn_cache_step;

/* Bytes that attn_cache_init needs for the shape in *c. */
ATTN_API attn_status attn_cache_size(const attn_cache *c, size_t *bytes, char *why,
                                     size_t why_bytes);

/* An empty cache of that shape, in memory that stays the caller's. Storage is not cleared. Refused,
 * as attn_cache_size is, for a cache that is ready: set *c to zero and assign again. */
ATTN_API attn_status attn_cache_init(attn_cache *c, void *memory, size_t bytes, char *why,
                                     size_t why_bytes);

/* Makes room for the keys of *s (k, v, rope, positions are not looked at): ends advance, pages are
 * taken and shared ones copied, a ring loses its oldest. ATTN_ERR_FULL if capacity or pages do not
 * suffice for all of them, or if a ring would lose what the step's first query looks at: a step has
 * at most rows - window_left keys of a sequence. */
ATTN_API attn_status attn_cache_extend(attn_cache *c, const attn_cache_step *s, char *why,
                                       size_t why_bytes);

/* Stores one layer's k and v of the same *s that the cache was extended by last. If it fails, the
 * new numbers are there all the same, with anything in their rows: attn_cache_trim takes them back,
 * which a ring always allows. */
ATTN_API attn_status attn_cache_write(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                                      char *why, size_t why_bytes);

/* Both, for a cache of one layer. */
ATTN_API attn_status attn_cache_append(attn_cache *c, const attn_cache_step *s, char *why,
                                       size_t why_bytes);

/* Keeps of a sequence only numbers begin .. end-1, which must be present: the next key gets number
 * end. Rolls back (end), forgets the oldest (begin), and empties, (begin, begin); (0, 0) is always
 * allowed and starts afresh. A ring refuses to go back where a query at `end` would look at keys
 * that were overwritten. Not at keys that were forgotten: a begin above the one that there was
 * forgets all below it, those overwritten included, and so does emptying. Pages without a key are
 * given back. */
ATTN_API attn_status attn_cache_trim(attn_cache *c, int64_t sequence, int64_t begin, int64_t end,
                                     char *why, size_t why_bytes);

/* The empty sequence `to` begins as sequence `from` up to number end-1: paged, by sharing its
 * pages; else by a copy of its rows. */
ATTN_API attn_status attn_cache_fork(attn_cache *c, int64_t from, int64_t to, int64_t end,
                                     char *why, size_t why_bytes);

/* Bytes that attn_cache_view needs for `batch` chosen sequences. */
ATTN_API attn_status attn_cache_view_size(const attn_cache *c, int64_t batch, size_t *bytes,
                                          char *why, size_t why_bytes);

/* Sets those fields of *p that say what is cached: batch, num_heads_kv, seq_len_kv (= rows: with
 * kv_len = NULL attn_workspace_size then tells what serves for good), head_dim, head_dim_v, k, v,
 * kv_len, key_base, kv_rows, kv_begin and cu_seqlens_kv (NULL); shared_keys (of a paged cache the
 * keys in pages with which all entries begin, else 0: set it afterwards if you know of more); of a
 * ring the window, if off, and else its left side must not exceed c->window_left. Entry b is
 * sequences[b], in any order, NULL = 0, 1, ..., which needs no memory; else the arrays lie in
 * memory, of any alignment. They are those of the cache at this moment: take a new view after
 * every change. Begin each view with *p set to zero: a ring's window stays in it. Columns of bias,
 * masks and segments, prefix and q_offset count from the first key that is present; p->seq_len_kv,
 * the number of columns, may be lowered, not below the largest kv_len. With a ring only the rows
 * of the last step, at most rows - window_left, are sure to find all their keys. */
ATTN_API attn_status attn_cache_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                                     int64_t batch, attn_params *p, void *memory, size_t bytes,
                                     char *why, size_t why_bytes);

/* Copies keys and values of numbers first .. first+count-1 of a sequence, [num_heads_kv, count,
 * dim], to k and v (stride_batch is not used), as f32 or as stored. k or v NULL, or its data: not
 * wanted. */
ATTN_API attn_status attn_cache_read(const attn_cache *c, int64_t layer, int64_t sequence,
                                     int64_t first, int64_t count, const attn_output *k,
                                     const attn_output *v, char *why, size_t why_bytes);
