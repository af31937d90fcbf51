/* src/api/cache.h - caches of keys and values for generating text: contiguous, ring, paged.
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
 * Numbers. The keys of a sequence have numbers 0, 1, 2, ... from its beginning, and numbers begin
 *   to end-1 are present. After a roll-back new keys get the numbers that became free. Key j of a
 *   view is number begin + j, and the view's key_base is begin. Positions, masks and bits of a
 *   result are therefore those of an uncut, unpaged, unwrapped sequence (docs/canon.md).
 * Rows. A sequence has `rows` rows, which is capacity or, if paged, capacity rounded up to whole
 *   pages. Number n lies in row n modulo rows. If the cache is contiguous, that is a row of the
 *   sequence's own storage. If it is paged, it is slot row % page_size of page
 *   table[row / page_size]. Appending keys takes pages from a free list, and trimming gives them
 *   back. Each page has a count of the sequences that share it, and a shared page is copied before a
 *   write.
 * Ring. With c.ring the oldest keys make room for new ones, and a query may look back at
 *   c.window_left keys. A ring of window_left + n rows takes steps of up to n keys and can roll
 *   back n keys.
 * Recent keys. With c.recent the last keys of each sequence are kept a second time in full precision, in
 *   a ring of their own whatever the layout is. Appending writes both, trimming and forking refuse an end
 *   whose next row would miss some of them.
 * Layers. All layers of a model share numbers, lengths and tables. In each step, call
 *   attn_cache_extend once, then attn_cache_write and attn_cache_view for each layer.
 *   attn_cache_append does both for a cache of one layer.
 * Memory. attn_cache_size tells what attn_cache_init needs, with any alignment. Storage may be the
 *   caller's own instead, if c.k.data and c.v.data are set before. All this memory must stay in
 *   place as long as the cache or a view of it is used.
 * Aliasing. What is written, which is the storage of K and of V, the state, the outputs of
 *   attn_cache_read and the memory of a view, must not overlap anything else. The k and v of a step
 *   may overlap each other.
 * Threads. A function that takes a const attn_cache may run in many threads at once; any other
 *   needs the cache for itself. attn_cache_write needs its layer's rows of its sequences for
 *   itself: writes, reads and attn_forward of other layers or other sequences may run beside it.
 * Errors. A function that fails changes nothing, neither in the cache nor elsewhere, unless it says
 *   otherwise.
 */
#pragma once

#include "rope.h"

/* An attn_cache is a cache of some sequences. Set it to zero, assign the shape, then call
 * attn_cache_size and attn_cache_init. */
typedef struct attn_cache {
    /* ---- shape. It must not be changed after attn_cache_init. */

    int64_t num_sequences; /* sequences that the cache has room for, at least 1 */
    int64_t num_layers;    /* layers; 0 means 1 */
    int64_t num_heads_kv;  /* kv heads, at least 1 */
    int64_t head_dim;      /* elements of a k vector, at least 1 */
    int64_t head_dim_v;    /* elements of a v vector; 0 means head_dim */
    int64_t capacity;      /* largest number of keys of a sequence, at least 1 */
    int64_t page_size;     /* keys of a page; 0 means that the cache is not paged */
    int64_t num_pages;     /* pages of all sequences; 0 means as many as they can need */
    int ring;              /* nonzero: the oldest keys make room for new ones */
    /* Keys before its own that a query of a ring may see, below capacity. With 0 it sees all that
     * are there, and results depend on what the ring still has. */
    int64_t window_left;
    /* attn_layout. Storage is [sequence or page, head, row, dim], or [sequence or page, row, head,
     * dim]. 0 means BHSD. */
    int layout;
    /* Storage of all layers, each of k and v in its own type; with units of 32, head_dim and all
     * strides are multiples of 32. NULL data puts it into the memory of attn_cache_init. stride_batch
     * lies between sequences or, if paged, between pages; stride_seq lies between rows; 0 means packed
     * in `layout`. */
    attn_output k, v;
    /* Scales of K and V in ATTN_I8, given with that type and only then: f32 [num_layers, num_heads_kv,
     * head_dim] and [num_layers, num_heads_kv, head_dim_v]. They come from a calibration, such as the
     * largest magnitude of each channel over earlier texts, divided by 127, and must stay as they are.
     * stride_batch lies between layers. Any axis may be shared (ATTN_STRIDE_BROADCAST); all keys share
     * scales, so stride_seq must be 0 or that. A number x is stored as x / scale, rounded once to f32 and
     * then to the nearest whole number, ties to even, at most 127 in magnitude. A NaN, and every number
     * with a scale of 0, is stored as 0. Rows given in ATTN_I8 are stored as they are. */
    attn_scales k_scales, v_scales;
    /* Sum of ATTN_ROTATED_K and ATTN_ROTATED_V: rows are rotated after they are turned and before they
     * are rounded, and views say so to attn_forward. Rows given in an 8-bit float type, in units or in
     * ATTN_I8 are stored as they are, and attn_cache_read gives what is stored: see attn_rotate. */
    int rotated;
    /* [num_layers, num_heads_kv, head_dim], which must stay as it is, or NULL. It is subtracted from keys
     * after they are turned and before they are rotated, such as the mean of the keys of earlier texts:
     * what is left needs fewer bits. Logits of a row then lack one number, its q.k_mean, which changes
     * no probability; views say so to attn_forward (p.k_centered). Rows given in an 8-bit float type, in
     * units or in ATTN_I8 are stored as they are. Source: Zhang et al. 2024 (arXiv 2410.02367). */
    const float *k_mean;
    /* How many keys, its own and those before it, a row reads unrounded, though turned, centered and
     * rotated: the last words of a text then lose nothing to quantisation. A row reads number n so if
     * n > its own number - recent, in whatever step it comes (p.recent). 0 means that every key is read
     * as stored. */
    int64_t recent;
    /* Rows of each sequence's ring of recent keys, at least `recent`. A ring of recent + n - 1 rows takes
     * steps of up to n keys and can roll back n keys. 0 means recent + 255; `rows` are enough in any
     * case. */
    int64_t recent_rows;
    int recent_dtype; /* attn_dtype of recent rows: 0 means ATTN_F32; ATTN_F16 or ATTN_BF16 */
    ptrdiff_t k_stride_layer, v_stride_layer; /* elements; 0 means packed: [layer, ...] */

    /* ---- state. The functions below set it, and callers may read it. */

    int64_t rows;               /* rows of a sequence */
    int64_t pages_per_sequence; /* entries of a sequence's table */
    int64_t *begin, *end;       /* [num_sequences], numbers begin to end-1 are present */
    /* [num_sequences], the ring has overwritten numbers below this one; those that the caller had
     * forgotten before do not count. */
    int64_t *overwritten_below;
    int32_t *length;     /* [num_sequences], end - begin */
    int32_t *first_row;  /* [num_sequences], row of number begin */
    int32_t *table;      /* [num_sequences, pages_per_sequence], pages; -1 means none */
    int32_t *uses;       /* [num_pages], sequences that have this page */
    int32_t *free_pages; /* [num_pages], of which the first num_free are free; the last is next */
    int64_t num_free;    /* free pages */
    /* [num_sequences], the ring of recent keys has those of numbers recent_begin to end-1; NULL without
     * `recent`, as the three below. */
    int64_t *recent_begin;
    int32_t *recent_entries; /* [num_sequences], 0, 1, ...: the entries of a view */
    /* [num_layers, num_sequences, num_heads_kv, recent_rows, dim]. */
    void *recent_k, *recent_v;
    /* [num_layers, num_sequences, num_heads_kv, largest dim], scratch where attn_cache_write turns,
     * centers and rotates rows in f32 before it rounds them; NULL if it need not. */
    float *desks;
    int64_t state_bytes; /* of the arrays from `begin` on, all but storage */
} attn_cache;

/* An attn_cache_step is a set of new keys and values. Set it to zero, then assign. With cu_seqlens
 * rows are numbered by token. k and v are in f32, f16, bf16 or the type of the cache; keys that are
 * turned are in f32, f16 or bf16. */
typedef struct attn_cache_step {
    int64_t batch;            /* sequences that get keys; 0 stores nothing, and is no error */
    const int32_t *sequences; /* [batch], each at most once; NULL means 0, 1, ... */
    int64_t seq_len;          /* rows of k and v per batch entry, or in all with cu_seqlens */
    const int32_t *len;       /* [batch], rows in use, 0 is allowed; NULL means all */
    /* [batch + 1], borders of packed rows: entry b has rows cu[b] to cu[b+1]-1. NULL means not
     * packed. */
    const int32_t *cu_seqlens;
    int layout;    /* attn_layout of k and v, unless packed by token; 0 means BHSD */
    attn_tensor k; /* [batch, num_heads_kv, seq_len, head_dim], or [token, head, dim] */
    attn_tensor v; /* [batch, num_heads_kv, seq_len, head_dim_v], or [token, head, dim] */
    /* Turns keys to their positions before they are stored; NULL stores them as they are. */
    const attn_rope *rope;
    /* [batch, seq_len], or [token], positions for rope; NULL means each key's number. */
    const int64_t *positions;
} attn_cache_step;

/* attn_cache_size() sets *bytes to what attn_cache_init needs for the shape in *c. As a special
 * case, it refuses a cache that attn_cache_init has set up: set *c to zero and assign again.
 * Returns ATTN_ERR_ARG or ATTN_ERR_OVERFLOW. */
ATTN_API attn_status attn_cache_size(const attn_cache *c, size_t *bytes, char *why,
                                     size_t why_bytes);

/* attn_cache_init() makes *c an empty cache of its shape, in memory that stays the caller's.
 *
 * Storage is not cleared. Returns the errors of attn_cache_size, and ATTN_ERR_WORKSPACE if the
 * memory is NULL or too small. */
ATTN_API attn_status attn_cache_init(attn_cache *c, void *memory, size_t bytes, char *why,
                                     size_t why_bytes);

/* attn_cache_extend() makes room for the keys of *s: ends advance, pages are taken, shared pages
 * are copied, and a ring loses its oldest keys.
 *
 * It does not read k, v, rope and positions of *s. In a ring, a step has at most rows - window_left
 * keys of a sequence; otherwise the ring would lose keys that the step's first query sees. Returns
 * ATTN_ERR_ARG, and ATTN_ERR_FULL if that limit, the capacity or the pages do not suffice for all
 * keys. With c.recent a step has at most recent_rows - (recent - 1) keys, or as many more as a young
 * sequence lacks, for the same reason. */
ATTN_API attn_status attn_cache_extend(attn_cache *c, const attn_cache_step *s, char *why,
                                       size_t why_bytes);

/* attn_cache_write() stores one layer's k and v of *s, the step by which the cache was last
 * extended.
 *
 * It cannot tell another step from that one unless its rows are more than the sequence has: a longer one
 * writes over older keys. If it fails, the new numbers are still present, with undefined rows; attn_cache_trim takes
 * them back, which a ring always allows. Returns ATTN_ERR_ARG or ATTN_ERR_OVERFLOW. */
ATTN_API attn_status attn_cache_write(const attn_cache *c, int64_t layer, const attn_cache_step *s,
                                      char *why, size_t why_bytes);

/* attn_cache_append() extends and writes a cache of one layer. Returns their errors. */
ATTN_API attn_status attn_cache_append(attn_cache *c, const attn_cache_step *s, char *why,
                                       size_t why_bytes);

/* attn_cache_trim() keeps only numbers begin to end-1 of a sequence, and the next key gets number
 * end.
 *
 * The numbers must be present. A lower end rolls back, a higher begin forgets the oldest keys, and
 * (begin, begin) empties the sequence. As a special case, (0, 0) is always allowed and starts
 * afresh. Pages without a key are given back.
 *
 * A ring cannot roll back to an end whose query would look at keys that were overwritten, and
 * returns ATTN_ERR_ARG. Keys that the caller forgets are not looked at: raising begin forgets all
 * keys below it, overwritten ones included, and so does emptying. With c.recent an end is refused in the
 * same way if the ring of recent keys has lost some of the recent - 1 keys before it. */
ATTN_API attn_status attn_cache_trim(attn_cache *c, int64_t sequence, int64_t begin, int64_t end,
                                     char *why, size_t why_bytes);

/* attn_cache_fork() makes the empty sequence `to` begin with numbers up to end-1 of sequence
 * `from`.
 *
 * It shares pages if the cache is paged, and copies rows otherwise. Returns ATTN_ERR_ARG if `to` is
 * `from` or not empty, if the numbers are not present, or if a ring could not roll back to end. */
ATTN_API attn_status attn_cache_fork(attn_cache *c, int64_t from, int64_t to, int64_t end,
                                     char *why, size_t why_bytes);

/* attn_cache_view_size() sets *bytes to what attn_cache_view needs for `batch` chosen sequences.
 * Returns ATTN_ERR_ARG or ATTN_ERR_OVERFLOW. */
ATTN_API attn_status attn_cache_view_size(const attn_cache *c, int64_t batch, size_t *bytes,
                                          char *why, size_t why_bytes);

/* attn_cache_view() sets those fields of *p that say what is cached in a layer.
 *
 * Entry b of the batch is sequences[b], in any order. NULL means 0, 1, ... and needs no memory;
 * otherwise arrays of the view lie in `memory`, of any alignment. The arrays are those of the cache
 * at this moment: take a new view after every change.
 *
 *   - batch, num_heads_kv, head_dim, head_dim_v, k, v, k_scales, v_scales, recent, kv_len, key_base and
 *     kv_rows get what the cache has, and so do rotated and k_centered; kv_begin and cu_seqlens_kv become NULL. p->layout is left as it is, because k and v
 *     get strides: it says how q and o lie, whatever c->layout is.
 *   - seq_len_kv, the number of columns, becomes rows, and attn_workspace_size with kv_len = NULL
 *     then gives a size that serves every later view. The caller may lower it down to the largest
 *     kv_len.
 *   - shared_keys becomes the number of keys in the pages with which all entries begin, or 0 if the
 *     cache is not paged. The caller may set it afterwards if more keys are equal.
 *   - The window of a ring with a window_left is set if it is off; if it is on, its left side must
 *     not exceed c->window_left. As the window stays in *p, begin each view with *p set to zero.
 *
 * Columns of bias, masks and segments, prefix and q_offset count from the first key that is
 * present. With a ring only the rows of the last step, at most rows - window_left, are sure to find
 * all their keys. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW, or ATTN_ERR_WORKSPACE if the memory is
 * too small. */
ATTN_API attn_status attn_cache_view(const attn_cache *c, int64_t layer, const int32_t *sequences,
                                     int64_t batch, attn_params *p, void *memory, size_t bytes,
                                     char *why, size_t why_bytes);

/* attn_cache_read() copies keys and values of numbers first to first+count-1 of a sequence to *k
 * and *v.
 *
 * Both are [num_heads_kv, count, dim] whatever the layout of the cache is, in f32, f16, bf16 or as
 * stored, and their stride_batch is not used. Numbers of ATTN_I8 are read as number * scale,
 * rounded to f32 and then to the type of the array. k or v is not wanted if it or its data is
 * NULL. Returns ATTN_ERR_ARG if the numbers are not present, or ATTN_ERR_OVERFLOW. */
ATTN_API attn_status attn_cache_read(const attn_cache *c, int64_t layer, int64_t sequence,
                                     int64_t first, int64_t count, const attn_output *k,
                                     const attn_output *v, char *why, size_t why_bytes);
