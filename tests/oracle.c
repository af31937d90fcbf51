/* oracle.c - textbook attention in double. Everything by definition, nothing by cleverness.
 * SPDX-License-Identifier: MIT
 */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double unit = 1.0 / 16777216.0; /* u of binary32 */
static const double bf16_unit = 65536.0;     /* u of bf16, in u of binary32 */

/* ---- storage ------------------------------------------------------------------------------- */

static double load_f32(const void *data, ptrdiff_t index)
{
    float value;
    memcpy(&value, (const char *)data + index * 4, sizeof value);
    return (double)value;
}

static double load_f16(const void *data, ptrdiff_t index)
{
    uint16_t bits;
    double magnitude;
    memcpy(&bits, (const char *)data + index * 2, sizeof bits);
    if ((bits & 0x7c00) == 0x7c00)
        magnitude = (bits & 0x3ff) != 0 ? NAN : INFINITY;
    else if ((bits & 0x7c00) == 0)
        magnitude = ldexp((double)(bits & 0x3ff), -24);
    else
        magnitude = ldexp((double)(1024 + (bits & 0x3ff)), ((bits >> 10) & 31) - 25);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

static double load_bf16(const void *data, ptrdiff_t index)
{
    uint16_t bits;
    uint32_t wide;
    float value;
    memcpy(&bits, (const char *)data + index * 2, sizeof bits);
    wide = (uint32_t)bits << 16;
    memcpy(&value, &wide, sizeof value);
    return (double)value;
}

/* A float of 8 bits with this many bits of fraction and this bias of its exponent. */
static double load_8(int code, int fraction_bits, int bias)
{
    const int exponent = (code & 127) >> fraction_bits, one = 1 << fraction_bits;
    const int fraction = code & (one - 1);
    const double size = ldexp(exponent > 0 ? one + fraction : fraction,
                              (exponent > 0 ? exponent : 1) - bias - fraction_bits);
    return code & 128 ? -size : size;
}

static double load_e4m3(const void *data, ptrdiff_t index)
{
    const int code = ((const unsigned char *)data)[index];
    return (code & 127) == 127 ? NAN : load_8(code, 3, 7);
}

static double load_e5m2(const void *data, ptrdiff_t index)
{
    const int code = ((const unsigned char *)data)[index];
    if ((code & 127) < 124)
        return load_8(code, 2, 15);
    return (code & 127) > 124 ? NAN : code & 128 ? -INFINITY : INFINITY;
}

/* Units of 32 numbers: a scale, then whole numbers. */
static double load_q8_0(const void *data, ptrdiff_t index)
{
    const unsigned char *from = (const unsigned char *)data + index / 32 * 34;
    const int q = from[2 + index % 32];
    return load_f16(from, 0) * (q < 128 ? q : q - 256);
}

static double load_q5_0(const void *data, ptrdiff_t index)
{
    const unsigned char *from = (const unsigned char *)data + index / 32 * 22;
    const int i = (int)(index % 32);
    const int lower = i < 16 ? from[6 + i] % 16 : from[6 + i - 16] / 16;
    const int upper = from[2 + i / 8] >> i % 8 & 1;
    return load_f16(from, 0) * (16 * upper + lower - 16);
}

/* Without its scale. */
static double load_i8(const void *data, ptrdiff_t index)
{
    return ((const signed char *)data)[index];
}

static double load_q4_0(const void *data, ptrdiff_t index)
{
    const unsigned char *from = (const unsigned char *)data + index / 32 * 18;
    const int i = (int)(index % 32);
    return load_f16(from, 0) * ((i < 16 ? from[2 + i] % 16 : from[2 + i - 16] / 16) - 8);
}

double oracle_load(int dtype, const void *data, ptrdiff_t index)
{
    static double (*const loaders[])(const void *, ptrdiff_t) = { load_f32,  load_f16,  load_bf16,
                                                                  load_e4m3, load_e5m2, load_q8_0,
                                                                  load_q5_0, load_q4_0, load_i8 };
    return loaders[dtype](data, index);
}

double oracle_storage_error(int dtype, double value)
{
    static const struct {
        int digits, lowest; /* of the significand; exponent of the smallest subnormal */
        double steps;       /* of a unit: what its largest number is divided by */
    } formats[] = { { 24, -149, 0 }, { 11, -24, 0 }, { 8, -133, 0 }, { 4, -9, 0 },
                    { 3, -16, 0 },   { 0, 0, 254 },  { 0, 0, 16 },   { 0, 0, 8 } };
    int exponent = 0;
    double ulp;
    if (!(fabs(value) < INFINITY))
        return 0;
    if (formats[dtype].steps > 0)
        return fabs(value) * (1 / formats[dtype].steps + 1.0 / 2048); /* the scale is in f16 */
    frexp(value, &exponent);
    ulp = ldexp(1.0, exponent - formats[dtype].digits);
    return fmax(ulp, ldexp(1.0, formats[dtype].lowest)) / 2;
}

/* ---- sizes of one batch entry ---------------------------------------------------------------- */

int64_t oracle_heads_kv(const attn_params *p)
{
    return p->num_heads_kv != 0 ? p->num_heads_kv : p->num_heads_q;
}

int64_t oracle_dim_v(const attn_params *p)
{
    return p->head_dim_v != 0 ? p->head_dim_v : p->head_dim;
}

int64_t oracle_first_key(const attn_params *p, int64_t b)
{
    return p->kv_begin != NULL ? p->kv_begin[b] : 0;
}

static int64_t token_q(const attn_params *p, int64_t b)
{
    return p->cu_seqlens_q != NULL ? p->cu_seqlens_q[b] : 0;
}

static int64_t token_kv(const attn_params *p, int64_t b)
{
    return p->cu_seqlens_kv != NULL ? p->cu_seqlens_kv[b] : 0;
}

int64_t oracle_rows(const attn_params *p, int64_t b)
{
    if (p->q_len != NULL)
        return p->q_len[b];
    if (p->cu_seqlens_q != NULL)
        return p->cu_seqlens_q[b + 1] - p->cu_seqlens_q[b];
    return p->seq_len_q;
}

int64_t oracle_keys(const attn_params *p, int64_t b)
{
    int64_t keys = p->seq_len_kv;
    if (p->kv_len != NULL)
        return p->kv_len[b];
    if (p->cu_seqlens_kv != NULL)
        keys = p->cu_seqlens_kv[b + 1] - p->cu_seqlens_kv[b];
    return keys - oracle_first_key(p, b);
}

int64_t oracle_offset(const attn_params *p, int64_t b)
{
    if (p->alignment == ATTN_ALIGN_OFFSET)
        return p->q_offset[b];
    if (p->alignment == ATTN_ALIGN_TOP_LEFT)
        return 0;
    return oracle_keys(p, b) - oracle_rows(p, b);
}

static int64_t key_base(const attn_params *p, int64_t b)
{
    return p->key_base != NULL ? p->key_base[b] : 0;
}

attn_pair oracle_pair(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    attn_pair at;
    at.batch = b, at.head = h, at.i = i, at.j = j;
    at.pos = key_base(p, b) + i + oracle_offset(p, b);
    at.n = key_base(p, b) + j;
    return at;
}

static ptrdiff_t step(ptrdiff_t given, int64_t packed)
{
    if (given == ATTN_STRIDE_BROADCAST)
        return 0;
    return given != 0 ? given : (ptrdiff_t)packed;
}

/* Where an element lies. Packed axes follow one another, the last one fastest; by_token swaps the
 * second and the third. A shared axis takes no room. */
static ptrdiff_t index_in(const ptrdiff_t stride[4], const int64_t size[4], const int64_t at[4],
                          int by_token)
{
    const int order[4] = { 3, by_token ? 1 : 2, by_token ? 2 : 1, 0 };
    int64_t packed = 1;
    ptrdiff_t sum = 0;
    for (int n = 0; n < 4; n++) {
        const int axis = order[n];
        sum += (ptrdiff_t)at[axis] * step(stride[axis], packed);
        if (stride[axis] != ATTN_STRIDE_BROADCAST)
            packed *= size[axis] > 0 ? size[axis] : 1;
    }
    return sum;
}

ptrdiff_t oracle_row_offset(const attn_params *p, const attn_tensor *t, int64_t dim, int64_t b,
                            int64_t h, int64_t i)
{
    const int varlen = p->cu_seqlens_q != NULL;
    const ptrdiff_t stride[4] = { t->stride_batch, t->stride_head, t->stride_seq, 0 };
    const int64_t size[4] = { p->batch, p->num_heads_q, p->seq_len_q, dim };
    const int64_t at[4] = { varlen ? 0 : b, h, varlen ? token_q(p, b) + i : i, 0 };
    return index_in(stride, size, at, varlen || p->layout == ATTN_LAYOUT_BSHD);
}

/* Where element d of key j lies in an array that follows the keys. */
static ptrdiff_t key_index(const attn_params *p, const ptrdiff_t stride[4], int64_t dim, int64_t b,
                           int64_t kv_head, int64_t j, int64_t d, int by_token)
{
    const attn_rows *place = &p->kv_rows;
    const int varlen = p->cu_seqlens_kv != NULL;
    int64_t size[4] = { p->batch, oracle_heads_kv(p), p->seq_len_kv, dim };
    int64_t at[4] = { varlen ? 0 : b, kv_head, oracle_first_key(p, b) + j, d };
    if (varlen)
        at[2] += token_kv(p, b);
    if (place->begin != NULL)
        at[2] += place->begin[b];
    if (place->ring > 0) {
        size[2] = place->ring;
        at[2] %= place->ring;
    }
    if (place->page_size > 0) {
        const int64_t entries = (size[2] - 1) / place->page_size + 1;
        at[0] = place->table[b * step(place->table_stride, entries) + at[2] / place->page_size];
        size[2] = place->page_size;
        at[2] %= place->page_size;
    }
    return index_in(stride, size, at, by_token);
}

ptrdiff_t oracle_key_offset(const attn_params *p, const attn_tensor *t, int64_t dim, int64_t b,
                            int64_t kv_head, int64_t j)
{
    const ptrdiff_t stride[4] = { t->stride_batch, t->stride_head, t->stride_seq, 0 };
    return key_index(p, stride, dim, b, kv_head, j, 0,
                     p->cu_seqlens_kv != NULL || p->layout == ATTN_LAYOUT_BSHD);
}

/* What the caller's scales say about element d of key j: 1 where there are none. */
static float scale_of(const attn_params *p, const attn_scales *x, int64_t dim, int64_t b,
                      int64_t kv_head, int64_t j, int64_t d)
{
    const ptrdiff_t stride[4] = { x->stride_batch, x->stride_head, x->stride_seq, x->stride_dim };
    return x->data != NULL ? x->data[key_index(p, stride, dim, b, kv_head, j, d, 0)] : 1.0f;
}

/* ---- masks: one small question each ---------------------------------------------------------- */

typedef struct pair_at {
    int64_t b, h, i, j, pos, column, rows, keys; /* pos without key_base */
} pair_at;

static int causal_shows(const attn_params *p, const pair_at *a)
{
    if (!p->causal)
        return 1;
    return a->j <= a->pos || (p->prefix != NULL && a->j < p->prefix[a->b]);
}

static int window_shows(const attn_params *p, const pair_at *a)
{
    if (!p->window)
        return 1;
    return (p->window_left < 0 || a->pos - a->j <= p->window_left) &&
           (p->window_right < 0 || a->j - a->pos <= p->window_right);
}

static int64_t floor_div(int64_t a, int64_t b)
{
    const int64_t quotient = a / b;
    return quotient - (a % b < 0);
}

static int chunk_shows(const attn_params *p, const pair_at *a)
{
    const int64_t base = key_base(p, a->b);
    if (p->chunk_size == 0)
        return 1;
    return floor_div(base + a->pos, p->chunk_size) == floor_div(base + a->j, p->chunk_size);
}

static int64_t token_index(int64_t b, int64_t s, ptrdiff_t stride, int64_t packed, int64_t token,
                           int is_varlen)
{
    if (is_varlen)
        return token + s;
    return b * step(stride, packed) + s;
}

static int segment_shows(const attn_params *p, const pair_at *a)
{
    int64_t q, kv;
    if (p->q_segments == NULL)
        return 1;
    q = token_index(a->b, a->i, p->q_segments_stride, p->seq_len_q, token_q(p, a->b),
                    p->cu_seqlens_q != NULL);
    kv = token_index(a->b, a->column, p->kv_segments_stride, p->seq_len_kv, token_kv(p, a->b),
                     p->cu_seqlens_kv != NULL);
    return p->q_segments[q] == p->kv_segments[kv];
}

static int tree_shows(const attn_params *p, const pair_at *a)
{
    const int64_t node = a->j - (a->keys - a->rows);
    int64_t walk = a->i;
    if (p->tree_parents == NULL || node < 0)
        return 1;
    while (walk > node)
        walk = p->tree_parents[token_index(a->b, walk, p->tree_stride, p->seq_len_q,
                                           token_q(p, a->b), p->cu_seqlens_q != NULL)];
    return walk == node;
}

int64_t oracle_longest(const attn_params *p, const int32_t *cuts, int64_t length)
{
    int64_t most = 0;
    for (int64_t b = 0; cuts != NULL && b < p->batch; b++)
        most = cuts[b + 1] - cuts[b] > most ? cuts[b + 1] - cuts[b] : most;
    return cuts != NULL ? most : length;
}

static ptrdiff_t pair_index(const attn_params *p, const ptrdiff_t stride[4], int64_t b, int64_t h,
                            int64_t i, int64_t column)
{
    const int64_t size[4] = { p->batch, p->num_heads_q,
                              oracle_longest(p, p->cu_seqlens_q, p->seq_len_q),
                              oracle_longest(p, p->cu_seqlens_kv, p->seq_len_kv) };
    const int64_t at[4] = { b, h, i, column };
    return index_in(stride, size, at, 0);
}

static ptrdiff_t mask_index(const attn_params *p, const attn_mask *mask, const pair_at *a)
{
    const ptrdiff_t stride[4] = { mask->stride_batch, mask->stride_head, mask->stride_q,
                                  mask->stride_kv };
    return pair_index(p, stride, a->b, a->h, a->i, a->column);
}

ptrdiff_t oracle_bias_index(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t column)
{
    const ptrdiff_t stride[4] = { p->bias.stride_batch, p->bias.stride_head, p->bias.stride_q,
                                  p->bias.stride_kv };
    return pair_index(p, stride, b, h, i, column);
}

static int bool_shows(const attn_params *p, const pair_at *a)
{
    if (p->bool_mask.data == NULL)
        return 1;
    return (p->bool_mask.data[mask_index(p, &p->bool_mask, a)] != 0) == (p->bool_mask.invert == 0);
}

static int bit_of(const uint8_t *bits, ptrdiff_t index)
{
    const ptrdiff_t byte = index >= 0 ? index / 8 : -((7 - index) / 8);
    return (bits[byte] >> (index - byte * 8)) & 1;
}

static int bit_shows(const attn_params *p, const pair_at *a)
{
    if (p->bit_mask.data == NULL)
        return 1;
    return bit_of(p->bit_mask.data, mask_index(p, &p->bit_mask, a)) == (p->bit_mask.invert == 0);
}

static int64_t cells_of(int64_t length, int64_t cell)
{
    return (length + cell - 1) / cell;
}

static int csr_shows(const attn_params *p, const pair_at *a, int64_t row, int64_t column)
{
    const attn_block_mask *m = &p->block_mask;
    const int64_t rows = cells_of(oracle_longest(p, p->cu_seqlens_q, p->seq_len_q), m->block_q);
    const ptrdiff_t stride[4] = { m->csr_stride_batch, m->csr_stride_head, 0, 0 };
    const int64_t size[4] = { p->batch, p->num_heads_q, 1, rows + 1 };
    const int64_t at[4] = { a->b, a->h, 0, row };
    const int32_t *offset = m->row_offsets + index_in(stride, size, at, 0);
    for (int32_t e = offset[0]; e < offset[1]; e++)
        if (m->columns[e] == column)
            return 1;
    return 0;
}

static int block_shows(const attn_params *p, const pair_at *a)
{
    const attn_block_mask *m = &p->block_mask;
    const ptrdiff_t stride[4] = { m->stride_batch, m->stride_head, m->stride_row, 0 };
    int64_t at[4] = { a->b, a->h, 0, 0 }, size[4] = { p->batch, p->num_heads_q, 0, 0 };
    if (m->block_q == 0 || m->block_k == 0)
        return 1;
    at[2] = a->i / m->block_q;
    at[3] = a->j / m->block_k;
    if (m->bitmap == NULL)
        return csr_shows(p, a, at[2], at[3]);
    size[2] = cells_of(oracle_longest(p, p->cu_seqlens_q, p->seq_len_q), m->block_q);
    size[3] = cells_of(oracle_longest(p, p->cu_seqlens_kv, p->seq_len_kv), m->block_k);
    return bit_of(m->bitmap, index_in(stride, size, at, 0));
}

static int list_shows(const attn_params *p, const pair_at *a)
{
    const attn_key_list *x = &p->key_list;
    const int64_t each = x->rows > 0 ? x->rows : 1;
    const ptrdiff_t stride[4] = { x->stride_batch, x->stride_head, x->stride_seq, 0 };
    const int64_t size[4] = { p->batch, p->num_heads_kv,
                              cells_of(oracle_longest(p, p->cu_seqlens_q, p->seq_len_q), each),
                              x->width };
    int64_t at[4] = { a->b, 0, a->i / each, 0 }, n;
    const int32_t *list;
    if (x->data == NULL)
        return 1;
    at[1] = a->h / (p->num_heads_q / p->num_heads_kv);
    list = x->data + index_in(stride, size, at, 0);
    for (n = 0; n < x->width && list[n] >= 0 && list[n] < a->j; n++)
        continue;
    return n < x->width && list[n] == a->j;
}

static int callback_shows(const attn_params *p, const pair_at *a)
{
    attn_pair at;
    if (p->mask == NULL)
        return 1;
    at = oracle_pair(p, a->b, a->h, a->i, a->j);
    return p->mask(p->callback_user, &at) != 0;
}

int oracle_visible(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    static int (*const masks[])(const attn_params *, const pair_at *) = {
        causal_shows, window_shows, chunk_shows, segment_shows, tree_shows,
        bool_shows,   bit_shows,    block_shows, list_shows,    callback_shows,
    };
    pair_at a;
    a.b = b, a.h = h, a.i = i, a.j = j;
    a.pos = i + oracle_offset(p, b);
    a.column = oracle_first_key(p, b) + j;
    a.rows = oracle_rows(p, b), a.keys = oracle_keys(p, b);
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++)
        if (!masks[m](p, &a))
            return 0;
    return 1;
}

/* ---- logits ---------------------------------------------------------------------------------- */

double oracle_scale(const attn_params *p)
{
    /* the default is a binary32 number, too */
    return p->scale != 0 ? (double)p->scale : (double)(float)(1.0 / sqrt((double)p->head_dim));
}

enum { QUERY_UNIT = 32 };

/* p->integer: the scale of the unit of a query that begins at `first`; `by` multiplies it before. */
static float query_scale(const attn_params *p, ptrdiff_t first, const float *by)
{
    float most = 0;
    for (int i = 0; i < QUERY_UNIT; i++)
        most = fmaxf(most, fabsf((float)oracle_load(p->q.dtype, p->q.data, first + i) * by[i]));
    return most / 127.0f;
}

/* The whole number that p->integer makes of an element, times the scale. */
static double rounded(double x, float scale)
{
    float inverse, y;
    if (scale == 0 || !(1.0f / scale < INFINITY))
        return 0;
    inverse = 1.0f / scale;
    y = (float)x * inverse;
    return nearbyint((double)y) * (double)scale;
}

/* scale * q.k, and scale * sum |q k|. */
static double raw_logit(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j,
                        double *magnitude)
{
    const int64_t kv_head = h / (p->num_heads_q / oracle_heads_kv(p));
    const ptrdiff_t q = oracle_row_offset(p, &p->q, p->head_dim, b, h, i);
    const ptrdiff_t k = oracle_key_offset(p, &p->k, p->head_dim, b, kv_head, j);
    /* Scales of channels go to the query where that is rounded. */
    const int to_query =
        p->integer && p->k_scales.data != NULL && p->k_scales.stride_dim != ATTN_STRIDE_BROADCAST;
    double sum = 0, sum_abs = 0;
    float scale = 0, by[QUERY_UNIT];
    for (int64_t d = 0; d < p->head_dim; d++) {
        const double given = oracle_load(p->q.dtype, p->q.data, q + (ptrdiff_t)d);
        double product = oracle_load(p->k.dtype, p->k.data, k + (ptrdiff_t)d);
        if (p->integer && d % QUERY_UNIT == 0) {
            for (int n = 0; n < QUERY_UNIT; n++)
                by[n] = to_query ? scale_of(p, &p->k_scales, p->head_dim, b, kv_head, j, d + n) : 1;
            scale = query_scale(p, q + (ptrdiff_t)d, by);
        }
        if (!to_query)
            product *= (double)scale_of(p, &p->k_scales, p->head_dim, b, kv_head, j, d);
        product = p->integer ? product : (double)(float)product;
        product *= p->integer ? rounded((double)((float)given * by[d % QUERY_UNIT]), scale) : given;
        sum += product;
        sum_abs += fabs(product);
    }
    *magnitude = sum_abs * fabs(oracle_scale(p));
    return sum * oracle_scale(p);
}

static double bias_at(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (p->bias.data == NULL)
        return 0;
    return oracle_load(p->bias.dtype, p->bias.data,
                       oracle_bias_index(p, b, h, i, oracle_first_key(p, b) + j));
}

static double alibi_at(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t distance = i + oracle_offset(p, b) - j;
    if (p->alibi_slopes == NULL)
        return 0;
    return -(double)p->alibi_slopes[(ptrdiff_t)b * step(p->alibi_stride, p->num_heads_q) +
                                    (ptrdiff_t)h] *
           (double)(distance < 0 ? -distance : distance);
}

/* *error: e_j / u without its last term; *magnitude: scale * sum |q k|. */
static double logit_of(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j, int stage,
                       double *error, double *magnitude)
{
    double logit = raw_logit(p, b, h, i, j, magnitude), size;
    size = 2 * *magnitude + 3 * fabs(logit);
    if (p->fast)
        size += 2 * bf16_unit * *magnitude;
    if (stage >= ATTN_LOGITS_SOFTCAP && p->softcap != 0) {
        const double t = tanh(logit / (double)p->softcap);
        logit = t * (double)p->softcap;
        size = size * (1 - t * t) + 6 * fabs(logit); /* tanh itself is good to 3 ulp */
    }
    if (stage >= ATTN_LOGITS_BIAS) {
        const double bias = bias_at(p, b, h, i, j), alibi = alibi_at(p, b, h, i, j);
        logit = logit + bias + alibi;
        size += 2 * fabs(bias) + 2 * fabs(alibi) + 3 * fabs(logit);
        if (bias == -INFINITY || !oracle_visible(p, b, h, i, j))
            logit = -INFINITY; /* whatever else the sum may be */
        if (p->score != NULL && logit != -INFINITY) {
            const attn_pair at = oracle_pair(p, b, h, i, j);
            logit = (double)p->score(p->callback_user, &at, (float)logit);
            size += 3 * fabs(logit);
        }
    }
    *error = size;
    return logit;
}

double oracle_logit(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j, int stage,
                    double *error)
{
    double size, magnitude;
    const double logit = logit_of(p, b, h, i, j, stage, &size, &magnitude);
    if (error != NULL)
        *error = size;
    return logit;
}

/* ---- dropout: Philox4x32-10, Salmon et al. 2011 ---------------------------------------------- */

static void philox_round(uint32_t c[4], uint32_t key0, uint32_t key1)
{
    const uint64_t a = (uint64_t)0xd2511f53u * c[0], b = (uint64_t)0xcd9e8d57u * c[2];
    const uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(b >> 32) ^ c1 ^ key0;
    c[1] = (uint32_t)b;
    c[2] = (uint32_t)(a >> 32) ^ c3 ^ key1;
    c[3] = (uint32_t)a;
}

int oracle_kept(const attn_params *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attn_pair at = oracle_pair(p, b, h, i, j);
    uint32_t counter[4];
    uint32_t key0 = (uint32_t)p->dropout_seed, key1 = (uint32_t)(p->dropout_seed >> 32);
    counter[0] = (uint32_t)(uint64_t)at.n;
    counter[1] = (uint32_t)(uint64_t)at.pos;
    counter[2] = (uint32_t)(uint64_t)at.head;
    counter[3] = (uint32_t)(uint64_t)at.batch;
    for (int round = 0; round < 10; round++) {
        philox_round(counter, key0, key1);
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return (double)counter[0] >= floor((double)p->dropout_p * 4294967296.0);
}

/* ---- one row --------------------------------------------------------------------------------- */

typedef struct row_state {
    double *logits, *errors; /* of every key; row_weights turns the logits into weights */
    double *strict;          /* E of every key; NULL = not wanted */
    int64_t keys;
    double maximum;    /* of logits and sink */
    double sum;        /* of exp(logit - maximum) */
    double mean_error; /* sum of p e */
    double sink;       /* -inf = none */
} row_state;

double oracle_sink(const attn_params *p, int64_t h)
{
    if (p->softmax1)
        return 0;
    return p->sinks != NULL ? (double)p->sinks[h] : -INFINITY;
}

/* Pass 1: logits, their maximum, how many are alive. A NaN or +inf logit makes maximum NaN. */
static void row_logits(const attn_params *p, int64_t b, int64_t h, int64_t i, row_state *s,
                       oracle_result *out)
{
    out->alive = 0;
    out->maximum = -INFINITY;
    s->sink = p->partial ? -INFINITY : oracle_sink(p, h);
    for (int64_t j = 0; j < s->keys; j++) {
        double logit = -INFINITY, error = 0, magnitude = 0;
        if (oracle_visible(p, b, h, i, j))
            logit = logit_of(p, b, h, i, j, ATTN_LOGITS_BIAS, &error, &magnitude);
        s->logits[j] = logit;
        s->errors[j] = error;
        if (s->strict != NULL)
            s->strict[j] = (double)(p->head_dim + 3) * magnitude;
        out->alive += logit != -INFINITY;
        if (!(logit <= out->maximum))
            out->maximum = logit < INFINITY ? logit : NAN;
        if (out->maximum != out->maximum)
            break;
    }
    s->maximum = out->maximum >= s->sink ? out->maximum : s->sink;
    if (out->maximum != out->maximum)
        s->maximum = NAN;
}

/* Pass 2: the sum of the exponentials and the mean error of the logits. */
static void row_sum(row_state *s)
{
    s->sum = s->sink == -INFINITY ? 0 : exp(s->sink - s->maximum);
    s->mean_error = s->sum * (3 * fabs(s->sink == -INFINITY ? 0 : s->sink) +
                              fabs(s->sink == -INFINITY ? 0 : s->sink - s->maximum));
    for (int64_t j = 0; j < s->keys; j++) {
        if (s->logits[j] != -INFINITY) {
            const double e = exp(s->logits[j] - s->maximum);
            s->errors[j] += fabs(s->logits[j] - s->maximum);
            s->mean_error += e * s->errors[j];
            s->sum += e;
        }
    }
    s->mean_error /= s->sum;
}

/* The same for the strict bound. */
static void row_strict(row_state *s, oracle_result *out)
{
    out->strict_mean = out->strict_most = out->logit_most = 0;
    for (int64_t j = 0; j < s->keys; j++) {
        if (s->logits[j] != -INFINITY) {
            s->strict[j] += 1.25 * fabs(s->logits[j] - s->maximum);
            out->strict_mean += exp(s->logits[j] - s->maximum) / s->sum * s->strict[j];
            out->strict_most = fmax(out->strict_most, s->strict[j]);
            out->logit_most = fmax(out->logit_most, fabs(s->logits[j]));
        }
    }
}

/* Pass 3: logits become weights: p times dropout's factor; -1 = dead or dropped, no part of O. */
static void row_weights(const attn_params *p, int64_t b, int64_t h, int64_t i, row_state *s)
{
    const double factor = p->dropout_p != 0 ? 1 / (1 - (double)p->dropout_p) : 1;
    for (int64_t j = 0; j < s->keys; j++) {
        if (s->logits[j] == -INFINITY || (p->dropout_p != 0 && !oracle_kept(p, b, h, i, j)))
            s->logits[j] = -1;
        else
            s->logits[j] = exp(s->logits[j] - s->maximum) / s->sum * factor;
    }
}

/* The likely error of a sum over keys, in u. Chains of tiled end at 1024 keys. In the one chain of naive
 * small terms meet a sum so large that their roundings have one sign, so that the error grows with the
 * keys: 108 u were seen with 2025 of them. */
static double likely_chain(const attn_params *p, int64_t alive)
{
    const int64_t keys = alive < 1024 ? alive : 1024;
    return sqrt((double)keys) + (p->impl == ATTN_IMPL_NAIVE ? (double)(alive - keys) / 8 : 0);
}

/* Pass 4: column d of O. */
static void row_column(const attn_params *p, int64_t b, int64_t h, int64_t d, const row_state *s,
                       const oracle_result *out)
{
    const int64_t head = h / (p->num_heads_q / oracle_heads_kv(p));
    double o = 0, o_abs = 0, o_error = 0, o_strict = 0, sums;
    for (int64_t j = 0; j < s->keys; j++) {
        const double weight = s->logits[j];
        double v;
        if (weight < 0)
            continue;
        v = oracle_load(p->v.dtype, p->v.data,
                        oracle_key_offset(p, &p->v, oracle_dim_v(p), b, head, j) + (ptrdiff_t)d);
        v = (double)(float)(v * (double)scale_of(p, &p->v_scales, oracle_dim_v(p), b, head, j, d));
        o += weight * v;
        o_abs += weight * fabs(v);
        o_error += weight * fabs(v) * s->errors[j];
        if (s->strict != NULL)
            o_strict += weight * fabs(v) * s->strict[j];
    }
    if (s->strict != NULL)
        out->o_strict[d] = o_strict;
    sums = 6 + likely_chain(p, out->alive) + (p->fast ? 2 * bf16_unit : 0);
    if (out->o != NULL)
        out->o[d] = o;
    if (out->o_abs != NULL)
        out->o_abs[d] = o_abs;
    if (out->o_tolerance != NULL)
        out->o_tolerance[d] =
            ORACLE_FACTOR * unit * (o_error + (s->mean_error + sums) * o_abs) +
            ldexp((double)out->alive + 1, -126); /* what flushing of subnormals may take away */
}

static void row_empty(const attn_params *p, const row_state *s, oracle_result *out)
{
    out->lse = s->sink;
    out->lse_tolerance = 0;
    for (int64_t d = 0; d < oracle_dim_v(p); d++) {
        if (out->o != NULL)
            out->o[d] = 0;
        if (out->o_abs != NULL)
            out->o_abs[d] = 0;
        if (out->o_tolerance != NULL)
            out->o_tolerance[d] = 0;
    }
}

static void row_nan(const attn_params *p, oracle_result *out)
{
    out->lse = NAN;
    out->lse_tolerance = 0;
    for (int64_t d = 0; d < oracle_dim_v(p); d++) {
        if (out->o != NULL)
            out->o[d] = NAN;
        if (out->o_abs != NULL)
            out->o_abs[d] = NAN;
        if (out->o_tolerance != NULL)
            out->o_tolerance[d] = 0;
    }
}

static void row_finish(const attn_params *p, int64_t b, int64_t h, int64_t i, row_state *s,
                       oracle_result *out)
{
    row_logits(p, b, h, i, s, out);
    if (out->maximum != out->maximum) {
        row_nan(p, out);
        return;
    }
    if (out->alive == 0) {
        row_empty(p, s, out);
        return;
    }
    row_sum(s);
    out->lse = s->maximum + log(s->sum);
    out->lse_tolerance = ORACLE_FACTOR * unit *
                         (s->mean_error + 6 + 2 * fabs(out->lse) + 2 * fabs(s->maximum) +
                          likely_chain(p, out->alive));
    if (s->strict != NULL)
        row_strict(s, out);
    if (out->o == NULL && out->o_abs == NULL && out->o_tolerance == NULL)
        return;
    row_weights(p, b, h, i, s);
    for (int64_t d = 0; d < oracle_dim_v(p); d++)
        row_column(p, b, h, d, s, out);
}

int oracle_row_full(const attn_params *p, int64_t b, int64_t h, int64_t i, oracle_result *out)
{
    row_state s;
    double *scratch;
    memset(&s, 0, sizeof s);
    if (b >= p->batch || h >= p->num_heads_q || i >= oracle_rows(p, b))
        return 1;
    s.keys = oracle_keys(p, b);
    scratch = malloc(sizeof *scratch * (3 * (size_t)s.keys + 1));
    if (scratch == NULL)
        return 2;
    s.logits = scratch;
    s.errors = scratch + s.keys;
    s.strict = out->o_strict != NULL ? scratch + 2 * s.keys : NULL;
    row_finish(p, b, h, i, &s, out);
    free(scratch);
    return 0;
}

int oracle_row(const attn_params *p, int64_t b, int64_t h, int64_t i, double *o, double *o_abs,
               double *lse)
{
    oracle_result out;
    int status;
    memset(&out, 0, sizeof out);
    out.o = o;
    out.o_abs = o_abs;
    status = oracle_row_full(p, b, h, i, &out);
    if (status == 0 && lse != NULL)
        *lse = out.lse;
    return status;
}
