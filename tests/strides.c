/* strides.c - see strides.h.
 * SPDX-License-Identifier: MIT
 */
#include "strides.h"
#include "oracle.h"

/* The strides of an array without gaps in which shared axes have no room; NULL is no field. */
static void packed_strides(ptrdiff_t *const stride[4], const int64_t size[4], int by_token,
                           ptrdiff_t packed[4])
{
    const int order[4] = { 3, by_token ? 1 : 2, by_token ? 2 : 1, 0 };
    ptrdiff_t count = 1;
    for (int n = 0; n < 4; n++) {
        const int axis = order[n];
        packed[axis] = count;
        if (stride[axis] == NULL || *stride[axis] != ATTN_STRIDE_BROADCAST)
            count *= size[axis] > 0 ? (ptrdiff_t)size[axis] : 1;
    }
}

static void forget(ptrdiff_t *const stride[4], const int64_t size[4], int by_token, int as_token)
{
    ptrdiff_t now[4], then[4];
    packed_strides(stride, size, by_token, now);
    packed_strides(stride, size, as_token, then);
    for (int axis = 0; axis < 4; axis++)
        if (stride[axis] != NULL && *stride[axis] != ATTN_STRIDE_BROADCAST) {
            *stride[axis] = *stride[axis] != 0 ? *stride[axis] : now[axis];
            *stride[axis] = *stride[axis] != then[axis] ? *stride[axis] : 0;
        }
}

/* A tensor, [token, head, dim] where it is varlen, and an array of pairs. */
#define FORGET_TENSOR(x, heads, rows, dim, varlen)                                                 \
    forget((ptrdiff_t *[]){ &(x).stride_batch, &(x).stride_head, &(x).stride_seq, NULL },          \
           (int64_t[]){ p->batch, heads, rows, dim }, (varlen) || p->layout, (varlen) || layout)
#define FORGET_PAIRS(x)                                                                            \
    forget((ptrdiff_t *[]){ &(x).stride_batch, &(x).stride_head, &(x).stride_q, &(x).stride_kv },  \
           (int64_t[]){ p->batch, p->num_heads_q, rows, keys }, 0, 0)

static void forget_masks(attn_params *p)
{
    const int64_t rows = oracle_longest(p, p->cu_seqlens_q, p->seq_len_q);
    const int64_t keys = oracle_longest(p, p->cu_seqlens_kv, p->seq_len_kv);
    attn_block_mask *m = &p->block_mask;
    attn_key_list *x = &p->key_list;
    const int64_t each = x->rows > 0 ? x->rows : 1;
    const int64_t cell_rows = m->block_q > 0 ? (rows + m->block_q - 1) / m->block_q : 0;
    const int64_t cell_columns = m->block_k > 0 ? (keys + m->block_k - 1) / m->block_k : 0;
    FORGET_PAIRS(p->bias);
    FORGET_PAIRS(p->bool_mask);
    FORGET_PAIRS(p->bit_mask);
    forget((ptrdiff_t *[]){ &m->stride_batch, &m->stride_head, &m->stride_row, NULL },
           (int64_t[]){ p->batch, p->num_heads_q, cell_rows, cell_columns }, 0, 0);
    forget((ptrdiff_t *[]){ &m->csr_stride_batch, &m->csr_stride_head, NULL, NULL },
           (int64_t[]){ p->batch, p->num_heads_q, 1, cell_rows + 1 }, 0, 0);
    forget((ptrdiff_t *[]){ &x->stride_batch, &x->stride_head, &x->stride_seq, NULL },
           (int64_t[]){ p->batch, oracle_heads_kv(p), (rows + each - 1) / each, x->width }, 0, 0);
    forget((ptrdiff_t *[]){ &p->alibi_stride, NULL, NULL, NULL },
           (int64_t[]){ p->batch, 1, 1, p->num_heads_q }, 0, 0);
}

void strides_forget(attn_params *p, attn_gradients *g, int layout, int64_t rows, int64_t keys)
{
    const int64_t hq = p->num_heads_q, hkv = oracle_heads_kv(p), dv = oracle_dim_v(p);
    const int64_t ring = p->kv_rows.ring, page = p->kv_rows.page_size;
    const int64_t kept = page != 0 ? page : ring != 0 ? ring : keys;
    const int varlen_q = p->cu_seqlens_q != NULL, varlen_kv = p->cu_seqlens_kv != NULL;
    FORGET_TENSOR(p->q, hq, rows, p->head_dim, varlen_q);
    FORGET_TENSOR(p->k, hkv, kept, p->head_dim, varlen_kv);
    FORGET_TENSOR(p->v, hkv, kept, dv, varlen_kv);
    FORGET_TENSOR(p->o, hq, rows, dv, varlen_q);
    if (p->recent.keys > 0) {
        FORGET_TENSOR(p->recent.k, hkv, p->recent.ring, p->head_dim, 0);
        FORGET_TENSOR(p->recent.v, hkv, p->recent.ring, dv, 0);
    }
    if (g != NULL) {
        FORGET_TENSOR(g->dout, hq, rows, dv, varlen_q);
        FORGET_TENSOR(g->dq, hq, rows, p->head_dim, varlen_q);
        FORGET_TENSOR(g->dk, hkv, keys, p->head_dim, varlen_kv);
        FORGET_TENSOR(g->dv, hkv, keys, dv, varlen_kv);
    }
    forget_masks(p);
    p->layout = layout;
}
