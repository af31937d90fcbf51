/* src/api/index.h - an indexer: the keys that rows should attend to, for attention sparse by token.
 * SPDX-License-Identifier: MIT
 *
 * attn_index scores each key that a row sees by small heads of its own, and names the keys of the largest
 * scores in the lists that p.key_list reads:
 *
 *     score(i, j) = sum over index heads h of weight(i, h) * relu(scale * q(i, h).k(j))
 *
 * This is the lightning indexer of DeepSeek-V3.2, which has 64 heads of 128, one key head and lists of
 * 2048 keys. All kv heads of the attention share a list here:
 *
 *     attn_params s = {0};                               // the index heads and what their rows see
 *     s.batch = 1;  s.num_heads_q = 64;  s.num_heads_kv = 1;
 *     s.seq_len_q = rows;  s.seq_len_kv = keys;  s.head_dim = 128;
 *     s.q.data = index_q;  s.k.data = index_k;  s.causal = 1;
 *     attn_indexer x = {0};
 *     x.weights = weights;  x.top_k = 2048;  x.keys = lists;    // int32_t [rows * 2048]
 *     attn_index_workspace_size(&s, &x, &need);
 *     attn_index(&s, &x, ws, need);
 *     p.key_list.data = lists;  p.key_list.width = 2048;        // and attn_forward(&p, ...)
 *     p.key_list.stride_head = ATTN_STRIDE_BROADCAST;
 */
#pragma once

/* An attn_index_activation is what becomes of scale * q.k before it is weighed. */
typedef enum attn_index_activation {
    ATTN_INDEX_RELU = 0,  /* A number below 0 becomes 0. */
    ATTN_INDEX_LINEAR = 1 /* Nothing. */
} attn_index_activation;

/* An attn_indexer says how keys are scored and where their numbers go. Set it to zero, then assign. */
typedef struct attn_indexer {
    int activation; /* attn_index_activation */
    int64_t top_k;  /* entries of a list, at least 1 */
    /* [batch, seq_len_q, num_heads_q], or [token, num_heads_q] with cu_seqlens_q; NULL means 1. */
    const float *weights;
    /* Elements of weights between batch entries, rows and heads; 0 means packed. */
    ptrdiff_t weights_stride_batch, weights_stride_seq, weights_stride_head;
    /* [batch, num_heads_kv, seq_len_q, top_k]: the lists, as attn_key_list has them with `rows` 0. */
    int32_t *keys;
    float *scores; /* as keys: the score of each key, -inf where a list is filled up; NULL: off */
    /* Elements of keys and of scores between batch entries, key heads and rows; 0 means packed. */
    ptrdiff_t stride_batch, stride_head, stride_seq;
} attn_indexer;

/* attn_index_workspace_size() sets *bytes to the best size of a workspace for attn_index. As with
 * attn_workspace_size, that of the longest call serves shorter ones. Returns the errors of attn_index
 * that need no data. */
ATTN_API attn_status attn_index_workspace_size(const attn_params *p, const attn_indexer *x,
                                               size_t *bytes);

/* attn_index() writes the numbers of the top_k keys with the largest scores of each row, ascending.
 *
 * *p describes the index heads: sizes, q, k, scale, lengths, masks, caches and workers mean what they mean
 * to attn_forward, and every storage type of K serves. The num_heads_q / num_heads_kv heads that read a
 * key head make one score together and one list. A row sees a key if the masks show it to all of these
 * heads. Number j counts within the sequence, from kv_begin on.
 *
 * Of equal scores the lower key comes first. A key whose score is NaN or -inf is in no list. A row with
 * fewer than top_k keys gets all of them, and -1 fills up its list. Rows beyond q_len are left untouched,
 * and rows of a sequence count from 0 with cu_seqlens_q. Scores are canonical (docs/canon.md), so the lists
 * are the same for any number of workers, tiles, pages, batch, chunks of a prompt and kernel set.
 *
 * The time is that of Q K^T. Memory beyond the lists is 16 bytes for each entry of the lists that workers
 * have at hand. Workers divide rows, and keys where rows are few. Each field that changes a softmax or its
 * output is refused by its name: v, o, lse, stats, bias, ALiBi, softcap, score, sinks, dropout, insight and
 * others. Devices and parts of a call are not built. Returns ATTN_ERR_ARG, ATTN_ERR_OVERFLOW,
 * ATTN_ERR_UNSUPPORTED, ATTN_ERR_WORKSPACE, and ATTN_ERR_CALLBACK if parallel_for failed. */
ATTN_API attn_status attn_index(const attn_params *p, const attn_indexer *x, void *workspace,
                                size_t workspace_bytes);

/* attn_index_check() says in one sentence what is wrong with *p, *x and the workspace, or "ok", as
 * attn_check does. */
ATTN_API const char *attn_index_check(const attn_params *p, const attn_indexer *x,
                                      const void *workspace, size_t workspace_bytes, char *text,
                                      size_t text_bytes);
