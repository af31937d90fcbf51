/* fuzz.c - random parameters, extremes included, never crash and never write outside.
 * SPDX-License-Identifier: MIT
 *
 *     build/test fuzz [-- COUNT]        also: ATTN_FUZZ=COUNT in the environment
 *
 * Each round begins with a right call of small sizes and breaks a few of its fields, or none. All
 * functions must agree on whether it is right; a call that is, and whose tensors still lie in the
 * memory that this file owns, runs with a workspace of exactly the size asked for. Then every byte
 * that the parameters do not name as an output must be as before. Pointers are right or NULL: what
 * lies behind a wild pointer is the caller's part of the contract.
 */
#include "gradients.h"
#include "test.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_ROUNDS = 20000,
    ARENA = 1 << 13,     /* elements of each tensor's memory; tensors begin in its middle */
    LIST = 1 << 10,      /* entries of each integer array */
    LARGEST = 12,        /* of any size of a call that runs */
    FURTHEST = 60,       /* elements of any stride of a call that runs */
    WORKSPACE = 1 << 20, /* a call that needs more does not run */
    MARGIN = 64
};

/* ---- memory that the calls refer to ---------------------------------------------------------- */

static float q[ARENA], k[ARENA], v[ARENA], bias[ARENA];
static uint8_t bytes_mask[ARENA];
/* Which integer array is which. OFFSETS is last, beyond those that are broken: nobody could check
 * offsets that lead outside of the columns. */
enum {
    Q_LEN,
    KV_LEN,
    KV_BEGIN,
    CU_Q,
    CU_KV,
    Q_OFFSET,
    PREFIX,
    Q_SEG,
    KV_SEG,
    TREE,
    COLUMNS,
    LISTED,
    ROWS,
    OFFSETS,
    LISTS
};

static int32_t list32[LISTS][LIST];
static int64_t list64[LIST];
static float slopes[LIST], sinks[LIST];
static unsigned char workspace_memory[WORKSPACE + 2 * MARGIN + 128];
static unsigned char *workspace; /* its margin begins here: the least aligned of addresses */

/* All outputs, so that one walk finds a byte that changed without being named. */
static struct outputs {
    float o[ARENA], lse[ARENA], stats[ARENA], logits[ARENA], m[ARENA], l[ARENA], state_o[ARENA];
} out;
static unsigned char named[sizeof(struct outputs)];

/* The same for 64 rounds, and when one of them runs alone. */
static void fill_memory(uint64_t number)
{
    rng_seed(T.seed * 1000003u + number + 1);
    for (int i = 0; i < ARENA; i++) {
        q[i] = rng_normal();
        k[i] = rng_normal();
        v[i] = rng_normal();
        bias[i] = rng_chance(10) ? float_from_bits(0xff800000u) : rng_normal();
        bytes_mask[i] = (uint8_t)rng_int(0, 255);
    }
    for (int i = 0; i < 40; i++) {
        q[rng_int(0, ARENA - 1)] = float_from_bits((uint32_t)rng_u64());
        k[rng_int(0, ARENA - 1)] = float_from_bits((uint32_t)rng_u64());
        v[rng_int(0, ARENA - 1)] = float_from_bits((uint32_t)rng_u64());
    }
    for (int i = 0; i < LIST; i++) {
        slopes[i] = rng_unit();
        sinks[i] = rng_chance(20) ? float_from_bits(0xff800000u) : rng_normal();
    }
}

/* A call may use more entries than were set for it: those are 0, whatever an earlier call has left, so
 * that a round or an input can run alone. */
static void forget_lists(void)
{
    memset(list32, 0, sizeof list32);
    memset(list64, 0, sizeof list64);
}

/* ---- a right call ---------------------------------------------------------------------------- */

static int32_t *ints(int list, int64_t low, int64_t high)
{
    for (int i = 0; i < 64; i++)
        list32[list][i] = (int32_t)rng_int(low, high);
    return list32[list];
}

static void set_sizes(attn_params *p)
{
    p->batch = rng_int(0, 3);
    p->num_heads_kv = rng_int(1, 3);
    p->num_heads_q = p->num_heads_kv * rng_int(1, 3);
    p->seq_len_q = rng_int(0, LARGEST);
    p->seq_len_kv = rng_int(0, LARGEST);
    p->head_dim = rng_int(1, LARGEST);
    p->head_dim_v = rng_int(0, LARGEST);
    p->scale = rng_chance(50) ? 0 : rng_normal();
}

static void set_tensors(attn_params *p)
{
    p->q.data = q + ARENA / 2;
    p->k.data = k + ARENA / 2;
    p->v.data = v + ARENA / 2;
    p->o.data = out.o + ARENA / 2;
    p->lse.data = rng_chance(50) ? out.lse + ARENA / 2 : NULL;
    p->stats.data = rng_chance(50) ? out.stats + ARENA / 2 : NULL;
    p->q.dtype = (int)rng_int(0, 2);
    p->k.dtype = (int)rng_int(0, 2);
    p->v.dtype = (int)rng_int(0, 2);
    p->o.dtype = (int)rng_int(0, 2);
    if (rng_chance(20)) {
        p->logits.data = out.logits;
        p->logits.stage = (int)rng_int(0, 2);
        p->logits.num_rows = rng_chance(50) ? 0 : rng_int(0, p->seq_len_q);
        if (p->logits.num_rows > 0 && rng_chance(50))
            p->logits.rows = ints(ROWS, 0, p->seq_len_q - 1);
    }
    if (rng_chance(15)) {
        p->partial = 1;
        p->state.m = out.m;
        p->state.l = out.l;
        p->state.o = out.state_o;
    }
}

static void set_lengths(attn_params *p)
{
    if (rng_chance(20)) {
        int32_t *cu_q = list32[CU_Q], *cu_kv = list32[CU_KV];
        cu_q[0] = cu_kv[0] = 0;
        for (int64_t b = 0; b < p->batch; b++) {
            cu_q[b + 1] = (int32_t)rng_int(cu_q[b], p->seq_len_q);
            cu_kv[b + 1] = (int32_t)rng_int(cu_kv[b], p->seq_len_kv);
        }
        p->cu_seqlens_q = cu_q;
        p->cu_seqlens_kv = cu_kv;
    } else if (rng_chance(30)) {
        p->q_len = ints(Q_LEN, 0, p->seq_len_q);
        p->kv_begin = ints(KV_BEGIN, 0, p->seq_len_kv / 2);
        p->kv_len = ints(KV_LEN, 0, p->seq_len_kv - p->seq_len_kv / 2);
    }
    if (rng_chance(20)) {
        for (int i = 0; i < 64; i++)
            list64[i] = rng_int(0, 3000);
        p->key_base = list64;
    }
    if (rng_chance(20))
        p->shared_keys = rng_int(0, p->seq_len_kv); /* too few to share: the entries differ */
    if (rng_chance(30)) {
        p->alignment = ATTN_ALIGN_OFFSET;
        p->q_offset = ints(Q_OFFSET, -20, 20);
    }
}

/* Some of the rows, some of the keys. */
static void set_part(attn_params *p)
{
    attn_part *const part = &p->part;
    part->rows = rng_chance(10);
    part->keys = rng_chance(10);
    part->row_begin = part->rows ? rng_int(0, p->seq_len_q) : 0;
    part->row_count = part->rows ? rng_int(0, p->seq_len_q - part->row_begin) : 0;
    part->key_begin = part->keys ? rng_int(0, p->seq_len_kv) : 0;
    part->key_count = part->keys ? rng_int(0, p->seq_len_kv - part->key_begin) : 0;
    part->continued = part->keys && p->partial && rng_chance(50);
}

static int mask_pairs(void *user, const attn_pair *at)
{
    (void)user;
    return (at->i + at->j + at->head) % 3 != 0;
}

static int mask_tiles(void *user, const attn_rect *at)
{
    (void)user, (void)at;
    return ATTN_TILE_PARTIAL;
}

static float change_score(void *user, const attn_pair *at, float logit)
{
    (void)user;
    return logit * 0.5f + (float)at->j;
}

static void set_range_masks(attn_params *p)
{
    p->causal = rng_chance(40);
    if (rng_chance(10))
        p->prefix = ints(PREFIX, 0, LARGEST);
    if (rng_chance(20)) {
        p->window = ATTN_WINDOW;
        p->window_left = rng_int(-1, LARGEST);
        p->window_right = rng_int(-1, LARGEST);
    }
    p->chunk_size = rng_chance(10) ? rng_int(1, LARGEST) : 0;
}

static ptrdiff_t packed_or_shared(void)
{
    return rng_chance(50) ? 0 : ATTN_STRIDE_BROADCAST;
}

static void set_table_masks(attn_params *p)
{
    if (rng_chance(10)) {
        p->q_segments = ints(Q_SEG, 0, 2);
        p->kv_segments = ints(KV_SEG, 0, 2);
    }
    if (rng_chance(10)) {
        p->tree_parents = ints(TREE, -1, -1);
        p->tree_stride = (ptrdiff_t)rng_int(0, LARGEST);
    }
    if (rng_chance(10)) {
        p->bool_mask.data = bytes_mask + ARENA / 2;
        p->bool_mask.stride_batch = p->bool_mask.stride_head = packed_or_shared();
        p->bool_mask.stride_q = (ptrdiff_t)rng_int(-20, 20);
        p->bool_mask.stride_kv = (ptrdiff_t)rng_int(-2, 2);
    }
    if (rng_chance(10)) {
        p->bit_mask.data = bytes_mask;
        p->bit_mask.stride_batch = p->bit_mask.stride_head = packed_or_shared();
        p->bit_mask.stride_q = (ptrdiff_t)rng_int(0, 20);
        p->bit_mask.stride_kv = 1;
    }
    if (rng_chance(10)) {
        p->block_mask.block_q = rng_int(1, 5);
        p->block_mask.block_k = rng_int(1, 5);
        p->block_mask.bitmap = rng_chance(50) ? bytes_mask : NULL;
        if (p->block_mask.bitmap == NULL) {
            for (int i = 0; i < 64; i++)
                list32[OFFSETS][i] = i;
            p->block_mask.csr_stride_batch = p->block_mask.csr_stride_head = ATTN_STRIDE_BROADCAST;
            p->block_mask.row_offsets = list32[OFFSETS];
            p->block_mask.columns = ints(COLUMNS, 0, 0);
        }
    }
    if (rng_chance(10)) {
        p->key_list.width = 1;
        p->key_list.rows = rng_int(0, 5);
        p->key_list.data = ints(LISTED, -1, 1);
        p->key_list.stride_batch = p->key_list.stride_head = ATTN_STRIDE_BROADCAST;
        p->key_list.stride_seq = packed_or_shared();
    }
    if (rng_chance(10)) {
        p->mask = mask_pairs;
        p->mask_tile = rng_chance(50) ? mask_tiles : NULL;
    }
}

static void set_modifiers(attn_params *p)
{
    p->softcap = rng_chance(20) ? 1.0f + rng_unit() : 0;
    if (rng_chance(20)) {
        p->bias.data = bias + ARENA / 2;
        p->bias.dtype = (int)rng_int(0, 2);
        p->bias.stride_batch = p->bias.stride_head = packed_or_shared();
        p->bias.stride_q = (ptrdiff_t)rng_int(-20, 20);
        p->bias.stride_kv = (ptrdiff_t)rng_int(-2, 2);
    }
    p->alibi_slopes = rng_chance(10) ? slopes : NULL;
    p->alibi_stride = ATTN_STRIDE_BROADCAST;
    p->score = rng_chance(10) ? change_score : NULL;
    p->sinks = rng_chance(10) ? sinks : NULL;
    p->softmax1 = p->sinks == NULL && rng_chance(10);
    p->dropout_p = rng_chance(10) ? 0.5f : 0;
    p->fast = rng_chance(20);
}

static int plain_loop(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user;
    for (int64_t i = n - 1; i >= 0; i--)
        task(arg, i, 0);
    return 0;
}

static int wild_loop(void *user, int64_t n, attn_task_fn task, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++)
        task(arg, i, (int)rng_int(-2, 5));
    return rng_chance(20);
}

static void set_ways(attn_params *p)
{
    static const int64_t tiles[] = { 0, 16, 32, 128, 1024 };
    p->impl = (int)rng_int(0, 3);
    p->auto_naive_keys = rng_int(0, 20);
    p->naive_whole = rng_chance(20);
    p->tile_keys = (int)RNG_PICK(tiles);
    p->force_redo = rng_chance(10);
    p->num_workers = (int)rng_int(0, 4);
    p->parallel_for = rng_chance(10) ? wild_loop : plain_loop;
    p->kernels = rng_chance(50) ? NULL : attn_kernels_get((int)rng_int(0, 3));
}

/* Scales of bytes are taken from q, some of which are NaN and infinite. */
static void set_scaled(attn_tensor *t, attn_scales *x)
{
    t->dtype = ATTN_I8;
    x->data = q + ARENA / 2;
    x->stride_batch = packed_or_shared();
    x->stride_head = packed_or_shared();
    x->stride_seq = rng_chance(50) ? packed_or_shared() : (ptrdiff_t)rng_int(-20, 20);
    x->stride_dim = rng_chance(70) ? packed_or_shared() : (ptrdiff_t)rng_int(-2, 2);
}

static void set_scales(attn_params *p)
{
    if (rng_chance(15))
        set_scaled(&p->k, &p->k_scales);
    if (rng_chance(15))
        set_scaled(&p->v, &p->v_scales);
    p->integer = p->k.dtype == ATTN_I8 && rng_chance(20); /* heads of 32 are too large here */
}

/* The last keys a second time: with one sequence and without key_base number n lies in row n. */
static void set_recent(attn_params *p)
{
    if (!rng_chance(15))
        return;
    p->recent.keys = rng_int(1, LARGEST);
    p->recent.ring = rng_int(LARGEST, 2 * LARGEST);
    p->recent.k.data = k + ARENA / 2;
    p->recent.v.data = v + ARENA / 2;
    p->recent.k.dtype = (int)rng_int(0, 2);
    p->recent.v.dtype = (int)rng_int(0, 2);
}

/* ---- breaking it ----------------------------------------------------------------------------- */

static int64_t extreme(void)
{
    static const int64_t values[] = {
        -1,
        0,
        1,
        2,
        3,
        13,
        16,
        127,
        128,
        1 << 20,
        -(1 << 20),
        INT32_MAX,
        INT64_C(1) << 31,
        (INT64_C(1) << 31) + 1,
        INT64_C(1) << 32,
        INT64_C(1) << 40,
        INT64_C(1) << 61,
        INT64_C(1) << 62,
        INT64_MAX - 1,
        INT64_MAX,
        INT64_MIN,
        INT64_MIN + 1,
        INT32_MIN,
    };
    return RNG_PICK(values);
}

static int wild_int(void)
{
    static const int64_t values[] = { -1, 0, 1, 2, 3, 4, 5, 17, 255, INT_MAX, INT_MIN, 1000000 };
    return (int)RNG_PICK(values);
}

static float wild_float(void)
{
    static const uint32_t values[] = { 0,           0x80000000u, 0x7fc00000u, 0xffc00001u,
                                       0x7f800000u, 0xff800000u, 0x7f7fffffu, 0x00000001u,
                                       0x3f800000u, 0xbf800000u, 0x3f7fffffu, 0x0da24260u };
    return float_from_bits(values[rng_int(0, sizeof values / sizeof *values - 1)]);
}

static ptrdiff_t wild_stride(void)
{
    static const ptrdiff_t values[] = { 0,
                                        1,
                                        -1,
                                        7,
                                        -FURTHEST,
                                        FURTHEST,
                                        ATTN_STRIDE_BROADCAST,
                                        PTRDIFF_MAX,
                                        PTRDIFF_MAX / 2,
                                        ATTN_STRIDE_BROADCAST + 1,
                                        ATTN_STRIDE_BROADCAST / 2,
                                        PTRDIFF_MAX / 3 };
    return values[rng_int(0, sizeof values / sizeof *values - 1)];
}

#define AT(field) offsetof(attn_params, field)
static const size_t wide_fields[] = {
    AT(batch),           AT(num_heads_q),       AT(num_heads_kv),       AT(seq_len_q),
    AT(seq_len_kv),      AT(head_dim),          AT(head_dim_v),         AT(window_left),
    AT(window_right),    AT(chunk_size),        AT(block_mask.block_q), AT(block_mask.block_k),
    AT(logits.num_rows), AT(auto_naive_keys),   AT(shared_keys),        AT(part.row_begin),
    AT(part.row_count),  AT(part.key_begin),    AT(part.key_count),     AT(part.key_row),
    AT(recent.keys),     AT(recent.ring),       AT(recent.num_entries), AT(key_list.width),
    AT(key_list.rows),   AT(insight.mass_keys), AT(insight.mass_rows),
};
static const size_t int_fields[] = {
    AT(q.dtype),        AT(k.dtype),        AT(v.dtype),          AT(o.dtype),
    AT(lse.dtype),      AT(stats.dtype),    AT(bias.dtype),       AT(alignment),
    AT(causal),         AT(window),         AT(softmax1),         AT(partial),
    AT(logits.stage),   AT(impl),           AT(naive_whole),      AT(tile_keys),
    AT(force_redo),     AT(num_workers),    AT(bool_mask.invert), AT(part.rows),
    AT(part.keys),      AT(part.continued), AT(layout),           AT(integer),
    AT(recent.k.dtype), AT(fast),           AT(recent.v.dtype),   AT(insight.top),
};
static const size_t float_fields[] = { AT(scale), AT(softcap), AT(dropout_p), AT(skip.below) };
/* Not those of key_list: its entries are read before a call is refused. */
static const size_t stride_fields[] = {
    AT(q.stride_batch),        AT(q.stride_head),          AT(q.stride_seq),
    AT(k.stride_batch),        AT(k.stride_head),          AT(k.stride_seq),
    AT(v.stride_batch),        AT(v.stride_head),          AT(v.stride_seq),
    AT(o.stride_batch),        AT(o.stride_head),          AT(o.stride_seq),
    AT(lse.stride_batch),      AT(lse.stride_head),        AT(lse.stride_seq),
    AT(stats.stride_batch),    AT(stats.stride_head),      AT(stats.stride_seq),
    AT(bias.stride_batch),     AT(bias.stride_head),       AT(bias.stride_q),
    AT(bias.stride_kv),        AT(bool_mask.stride_batch), AT(bool_mask.stride_head),
    AT(bool_mask.stride_q),    AT(bool_mask.stride_kv),    AT(k_scales.stride_batch),
    AT(k_scales.stride_head),  AT(k_scales.stride_seq),    AT(k_scales.stride_dim),
    AT(v_scales.stride_batch), AT(v_scales.stride_head),   AT(v_scales.stride_seq),
    AT(v_scales.stride_dim),
};
static const size_t pointer_fields[] = {
    AT(q.data),         AT(k.data),         AT(v.data),        AT(o.data),
    AT(lse.data),       AT(stats.data),     AT(q_len),         AT(kv_len),
    AT(kv_begin),       AT(cu_seqlens_q),   AT(cu_seqlens_kv), AT(key_base),
    AT(q_offset),       AT(prefix),         AT(q_segments),    AT(kv_segments),
    AT(tree_parents),   AT(bool_mask.data), AT(bit_mask.data), AT(block_mask.bitmap),
    AT(bias.data),      AT(alibi_slopes),   AT(sinks),         AT(state.m),
    AT(state.l),        AT(state.o),        AT(logits.data),   AT(recent.begin),
    AT(recent.entries), AT(recent.k.data),  AT(recent.v.data), AT(k_scales.data),
    AT(v_scales.data),  AT(key_list.data),
};
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))

static void break_field(attn_params *p)
{
    unsigned char *base = (unsigned char *)p;
    const int64_t wide = extreme();
    const int narrow = wild_int();
    const float real = wild_float();
    const ptrdiff_t stride = wild_stride();
    int32_t entry = (int32_t)extreme();
    switch (rng_int(0, 5)) {
    case 0:
        memcpy(base + wide_fields[rng_int(0, COUNT(wide_fields) - 1)], &wide, sizeof wide);
        break;
    case 1:
        memcpy(base + int_fields[rng_int(0, COUNT(int_fields) - 1)], &narrow, sizeof narrow);
        break;
    case 2:
        memcpy(base + float_fields[rng_int(0, COUNT(float_fields) - 1)], &real, sizeof real);
        break;
    case 3:
        memcpy(base + stride_fields[rng_int(0, COUNT(stride_fields) - 1)], &stride, sizeof stride);
        break;
    case 4:
        memset(base + pointer_fields[rng_int(0, COUNT(pointer_fields) - 1)], 0, sizeof(void *));
        break;
    default:
        memcpy(&list32[rng_int(0, ROWS)][rng_int(0, 7)], &entry, sizeof entry);
        break;
    }
}

static void drop_arrays(attn_params *p)
{
    p->q_len = p->kv_len = p->kv_begin = p->cu_seqlens_q = p->cu_seqlens_kv = NULL;
    p->key_base = NULL;
    p->key_list.data = NULL;
    p->block_mask.row_offsets = p->block_mask.columns = p->logits.rows = NULL;
    p->q_segments = p->kv_segments = p->tree_parents = p->q_offset = p->prefix = NULL;
    p->alignment = p->alignment == ATTN_ALIGN_OFFSET ? ATTN_ALIGN_TOP_LEFT : p->alignment;
}

/* Arrays hold LIST entries: where sizes ask for more, the arrays go. */
static void drop_short_arrays(attn_params *p)
{
    const int64_t limit = 16;
    if (p->batch > limit || p->seq_len_q > limit || p->seq_len_kv > limit ||
        p->num_heads_q > limit || p->logits.num_rows > limit)
        drop_arrays(p);
}

/* Asking about a call takes time by its batch and rows, as counting pairs does. So those are either
 * moderate, or beyond all memory, which must be noticed at once. */
static void limit_counts(attn_params *p)
{
    const int64_t moderate = 300, beyond = INT64_C(1) << 60;
    if (p->batch > moderate && p->batch < beyond)
        p->batch = moderate;
    if (p->seq_len_q > moderate && p->seq_len_q < beyond)
        p->seq_len_q = moderate;
}

static attn_params random_call(void)
{
    attn_params p;
    memset(&p, 0, sizeof p);
    forget_lists();
    set_sizes(&p);
    set_tensors(&p);
    set_lengths(&p);
    set_part(&p);
    set_range_masks(&p);
    set_table_masks(&p);
    set_modifiers(&p);
    set_ways(&p);
    set_scales(&p);
    set_recent(&p);
    for (int64_t broken = rng_chance(40) ? 0 : rng_int(1, 4); broken > 0; broken--)
        break_field(&p);
    limit_counts(&p);
    drop_short_arrays(&p);
    return p;
}

/* ---- which bytes a right call may write ------------------------------------------------------ */

static int is_small_stride(ptrdiff_t s)
{
    return s == ATTN_STRIDE_BROADCAST || (s >= -FURTHEST && s <= FURTHEST);
}

/* Whether every element that *p describes lies in the memory above: packed axes reach as far as all
 * axes packed, and each other axis adds its own strides. */
static int stays_inside(const attn_params *p)
{
    const int64_t dim = larger64(p->head_dim, p->head_dim_v);
    const int64_t rows = larger64(p->seq_len_q, p->seq_len_kv);
    ptrdiff_t furthest = 0;
    for (size_t i = 0; i < sizeof wide_fields / sizeof *wide_fields && i < 7; i++) {
        int64_t size;
        memcpy(&size, (const unsigned char *)p + wide_fields[i], sizeof size);
        if (size > LARGEST + 4)
            return 0;
    }
    for (size_t i = 0; i < sizeof stride_fields / sizeof *stride_fields; i++) {
        ptrdiff_t stride;
        memcpy(&stride, (const unsigned char *)p + stride_fields[i], sizeof stride);
        if (!is_small_stride(stride))
            return 0;
        if (stride != ATTN_STRIDE_BROADCAST)
            furthest = (ptrdiff_t)larger64(furthest, larger64(stride, -stride));
    }
    if (p->recent.keys > 0 &&
        (p->recent.ring > 2 * LARGEST || p->recent.num_entries > LARGEST ||
         larger64(p->batch, p->recent.num_entries) * p->num_heads_q * p->recent.ring * dim >
             ARENA / 2))
        return 0;
    return p->logits.num_rows <= LARGEST + 4 &&
           p->batch * p->num_heads_q * rows * larger64(dim, rows) +
                   (p->batch + p->num_heads_q + 2 * rows + dim) * furthest <=
               ARENA / 2;
}

static void name_bytes(const void *at, ptrdiff_t first, size_t count)
{
    const ptrdiff_t begin = (const unsigned char *)at - (const unsigned char *)&out + first;
    if (begin >= 0 && (size_t)begin + count <= sizeof named)
        memset(named + begin, 1, count);
}

static int64_t rows_of(const attn_params *p)
{
    return p->part.rows ? p->part.row_count : p->seq_len_q;
}

/* Where packed, the order is that of the layout, or [token, h, d] with cu_seqlens. */
static void name_output(const attn_params *p, const attn_output *t, int64_t dim, int of_rows)
{
    const int varlen = p->cu_seqlens_q != NULL;
    const size_t size = dtype_size(t->dtype);
    const ptrdiff_t d = (ptrdiff_t)dim, rows = (ptrdiff_t)rows_of(p);
    const ptrdiff_t heads = (ptrdiff_t)p->num_heads_q;
    ptrdiff_t step[3] = { heads * rows * d, rows * d, d };
    if ((varlen || p->layout == ATTN_LAYOUT_BSHD) && !of_rows)
        step[1] = d, step[2] = heads * d;
    step[0] = varlen ? 0 : t->stride_batch != 0 ? t->stride_batch : step[0];
    step[1] = t->stride_head != 0 ? t->stride_head : step[1];
    step[2] = t->stride_seq != 0 ? t->stride_seq : step[2];
    for (int64_t b = 0; t->data != NULL && b < p->batch; b++)
        for (int64_t h = 0; h < p->num_heads_q; h++)
            for (int64_t s = 0; s < rows_of(p); s++)
                name_bytes(t->data, (b * step[0] + h * step[1] + s * step[2]) * (ptrdiff_t)size,
                           (size_t)dim * size);
}

static void name_outputs(const attn_params *p)
{
    const int64_t dim = p->head_dim_v != 0 ? p->head_dim_v : p->head_dim;
    const size_t rows = (size_t)(p->batch * p->num_heads_q * rows_of(p));
    const size_t asked = (size_t)(p->batch * p->num_heads_q * p->seq_len_kv) *
                         (size_t)(p->logits.num_rows != 0 ? p->logits.num_rows : p->seq_len_q);
    memset(named, 0, sizeof named);
    if (!p->partial) {
        name_output(p, &p->o, dim, 0);
        name_output(p, &p->lse, 1, 1);
        name_output(p, &p->stats, 2, 1);
    } else {
        name_bytes(p->state.m, 0, rows * sizeof(float));
        name_bytes(p->state.l, 0, rows * sizeof(float));
        name_bytes(p->state.o, 0, rows * (size_t)dim * sizeof(float));
    }
    if (p->logits.data != NULL)
        name_bytes(p->logits.data, 0, asked * sizeof(float));
}

static void check_outputs(void)
{
    enum { BLOCK = 256 }; /* most are as before: whole blocks are compared first */
    static unsigned char before[BLOCK];
    const unsigned char *bytes = (const unsigned char *)&out;
    memset(before, 0xa5, sizeof before);
    for (size_t i = 0; i < sizeof out; i += BLOCK) {
        if (memcmp(bytes + i, before, BLOCK) == 0)
            continue;
        for (size_t j = i; j < i + BLOCK; j++)
            if (bytes[j] != 0xa5 && !named[j]) {
                CHECK(0, "byte %lu of the outputs was written", (unsigned long)j);
                return;
            }
    }
    CHECK(1, "outputs");
}

/* ---- one round ------------------------------------------------------------------------------- */

static void check_margins(size_t bytes)
{
    for (size_t i = 0; i < MARGIN; i++)
        if (workspace[i] != 0x3c || workspace[MARGIN + bytes + i] != 0x3c) {
            CHECK(0, "written beyond a workspace of %lu bytes", (unsigned long)bytes);
            return;
        }
    CHECK(1, "margins");
}

static void run(const attn_params *p, int right, size_t bytes)
{
    attn_status status;
    memset(&out, 0xa5, sizeof out);
    memset(workspace, 0x3c, bytes + 2 * MARGIN);
    memset(named, 0, sizeof named);
    if (right)
        name_outputs(p);
    status = attn_forward(p, workspace + MARGIN, bytes);
    CHECK((status == ATTN_OK) == right ||
              (right && status == ATTN_ERR_CALLBACK && p->parallel_for == wild_loop),
          "attn_forward says '%s', attn_check did not", attn_status_string(status));
    check_outputs();
    check_margins(bytes);
}

static int64_t calls_run; /* right calls that ran to their end */

static void check_round(const attn_params *p)
{
    char sentence[200];
    attn_info info;
    size_t need = 0;
    const attn_status sized = attn_workspace_size(p, &need);
    const attn_status explained = attn_explain(p, &info);
    const size_t bytes = need < WORKSPACE ? need : WORKSPACE;
    int right;
    CHECK(sized == explained, "attn_workspace_size '%s', attn_explain '%s'",
          attn_status_string(sized), attn_status_string(explained));
    right = strcmp(attn_check(p, workspace + MARGIN, need, sentence, sizeof sentence), "ok") == 0;
    CHECK(!right || sized == ATTN_OK, "attn_check says ok, attn_workspace_size '%s'",
          attn_status_string(sized));
    CHECK(sentence[0] != '\0', "an empty sentence");
    calls_run += right && bytes == need && stays_inside(p);
    if (right && bytes == need && stays_inside(p))
        run(p, 1, bytes);
    else if (!right && bytes == need) /* A larger workspace would reach into other arrays. */
        run(p, 0, sized == ATTN_OK ? bytes : 256);
}

static void place_workspace(void)
{
    workspace = workspace_memory + (65 - (uintptr_t)workspace_memory % 64);
}

FUZZ_HARNESS(calls, "forward calls with extreme fields: refused by all functions, or by none")
{
    attn_params p;
    const rng_state choices = rng_now();
    (void)bytes, (void)count;
    if (workspace == NULL) {
        place_workspace();
        fill_memory(0);
        rng_resume(choices);
    }
    p = random_call();
    check_round(&p);
}

/* ---- every level refuses, and writes nothing ------------------------------------------------- */

enum { SENTENCE = 200, LEVEL_WORKSPACE = 1 << 12 };

typedef struct broken_call {
    attn_params p;
    attn_gradients g;
    attn_dilated d;
    unsigned char *memory; /* LEVEL_WORKSPACE bytes */
} broken_call;

static int fetch_nothing(void *user, const attn_fetch *tile)
{
    (void)user;
    (void)tile;
    return 1;
}

static const char *check_forward(const broken_call *c, char *text)
{
    return attn_check(&c->p, c->memory, LEVEL_WORKSPACE, text, SENTENCE);
}

static attn_status run_forward(const broken_call *c)
{
    return attn_forward(&c->p, c->memory, LEVEL_WORKSPACE);
}

static const char *check_backward(const broken_call *c, char *text)
{
    return attn_backward_check(&c->p, &c->g, c->memory, LEVEL_WORKSPACE, text, SENTENCE);
}

static attn_status run_backward(const broken_call *c)
{
    return attn_backward(&c->p, &c->g, c->memory, LEVEL_WORKSPACE);
}

static const char *check_resume(const broken_call *c, char *text)
{
    return attn_resume_check(&c->p, 0, fetch_nothing, c->memory, LEVEL_WORKSPACE, text, SENTENCE);
}

static attn_status run_resume(const broken_call *c)
{
    attn_resumable r;
    return attn_resume_begin(&r, &c->p, 0, fetch_nothing, NULL, c->memory, LEVEL_WORKSPACE);
}

static const char *check_dilated(const broken_call *c, char *text)
{
    return attn_dilated_check(&c->p, &c->d, c->memory, LEVEL_WORKSPACE, text, SENTENCE);
}

static attn_status run_dilated(const broken_call *c)
{
    return attn_dilated_forward(&c->p, &c->d, c->memory, LEVEL_WORKSPACE);
}

static const struct refusing_level {
    const char *name;
    const char *(*check)(const broken_call *c, char *text);
    attn_status (*run)(const broken_call *c);
} refusing_levels[] = {
    { "attn_forward", check_forward, run_forward },
    { "attn_backward", check_backward, run_backward },
    { "attn_resume_begin", check_resume, run_resume },
    { "attn_dilated_forward", check_dilated, run_dilated },
};

/* Sizes that grow would ask for longer arrays. */
static void break_fields(attn_params *p)
{
    const attn_params before = *p;
    for (int64_t broken = rng_int(1, 3); broken > 0; broken--)
        break_field(p);
    limit_counts(p);
    for (size_t i = 0; i < sizeof wide_fields / sizeof *wide_fields; i++)
        if (memcmp((const char *)p + wide_fields[i], (const char *)&before + wide_fields[i],
                   sizeof(int64_t)) != 0)
            memset(&p->kv_rows, 0, sizeof p->kv_rows), drop_arrays(p);
    if (p->cu_seqlens_q != before.cu_seqlens_q || p->cu_seqlens_kv != before.cu_seqlens_kv)
        memset(&p->kv_rows, 0, sizeof p->kv_rows), drop_arrays(p);
}

static int gradients_untouched(const gradients_case *s)
{
    for (int n = 0; n < ORACLE_GRADIENTS; n++)
        if (!all_bytes(s->out[n].memory, s->out[n].bytes, 0xff))
            return 0;
    return 1;
}

static void check_refusal(const struct refusing_level *level, const broken_call *c,
                          const gradients_case *s)
{
    char *text = test_alloc_at(SENTENCE, PLACE_PAGE_AFTER);
    attn_status status;
    if (strcmp(level->check(c, text), "ok") == 0)
        return; /* what it would read need not be there */
    status = level->run(c);
    CHECK(status != ATTN_OK, "%s runs what its check refuses: %s", level->name, text);
    CHECK(memchr(text, '\0', SENTENCE) != NULL && text[0] != '\0', "%s: no sentence", level->name);
    CHECK(tensor_unchanged(&s->t.o) && tensor_unchanged(&s->t.lse) &&
              tensor_unchanged(&s->t.stats) && gradients_untouched(s) &&
              all_bytes(c->memory, LEVEL_WORKSPACE, 0xff),
          "%s writes though it refuses: %s", level->name, text);
}

FUZZ_HARNESS(refused, "calls of every level with broken fields: a sentence, and nothing written")
{
    static const attn_dilated_branch branches[] = { { 0 }, { .segment = 16, .dilation = 2 } };
    gradients_case s;
    broken_call c;
    int list[6];
    (void)bytes;
    (void)count;
    memset(&c, 0, sizeof c);
    gradients_make(&s, gradients_shape(1), list, gradients_add(list, 0, 6, NULL));
    tensor_remember(&s.t.o);
    tensor_remember(&s.t.lse);
    tensor_remember(&s.t.stats);
    c.p = test_params(&s.t.p);
    c.g = s.g;
    c.d.branches = branches;
    c.d.num_branches = 2;
    c.memory = test_alloc(LEVEL_WORKSPACE);
    break_fields(&c.p);
    for (int64_t i = 0; i < COUNT(refusing_levels); i++)
        check_refusal(&refusing_levels[i], &c, &s);
}

/* ---- the group ------------------------------------------------------------------------------- */

static int64_t rounds_wanted(void)
{
    const char *text = T.argc > 0 ? T.argv[0] : getenv("ATTN_FUZZ");
    const int64_t count = text != NULL ? strtoll(text, NULL, 10) : 0;
    return count > 0 ? count : DEFAULT_ROUNDS;
}

TEST_GROUP(fuzz, RUN_ONCE, "random parameters, extremes included, never crash")
{
    const int64_t rounds = rounds_wanted();
    place_workspace();
    for (int64_t round = 0; round < rounds; round++) {
        attn_params p;
        uint64_t after;
        if (T.only_case >= 0 && round != T.only_case) {
            pass_over_case();
            continue;
        }
        begin_case("round %lld", (long long)round);
        after = rng_u64();
        if (round % 64 == 0 || T.only_case >= 0)
            fill_memory((uint64_t)round / 64);
        rng_seed(after);
        p = random_call();
        check_round(&p);
    }
    CHECK(T.only_case >= 0 || calls_run * 4 > rounds, "only %lld of %lld calls were right and ran",
          (long long)calls_run, (long long)rounds);
}
