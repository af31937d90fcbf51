/* src/short.c - short calls: few keys and no option, from the parameters to the kernels in one go.
 * SPDX-License-Identifier: MIT
 *
 * Rules, a plan and its tiles cost more than the arithmetic of a small call. So calls that set nothing but
 * sizes, scale, f32 tensors, lengths and causal are computed here, with the kernels of the seam in the order
 * of docs/canon.md. All else, and all that is wrong, goes the long way, which has the rules and their
 * sentences: whoever changes what a field means need not look here, as a field that is set is not short.
 */
#pragma once

#include "problem.c"

/* With -DATTN_WITHOUT_LONG_CALLS attn_forward computes only these: 10 KB of a board instead of 100. */
#ifdef ATTN_WITHOUT_LONG_CALLS
enum { HAS_LONG_CALLS = 0, SHORT_KEYS = ATTN_CHUNK };
#else
enum { HAS_LONG_CALLS = 1, SHORT_KEYS = 256 };
#endif

/* Sizes up to these need no care about overflow; a chunk has no merge tree. */
enum { SHORT_TILE = 64, SHORT_DIM = 1024, SHORT_COUNT = 1 << 15 };

/* A short_tensor is a tensor with its strides resolved; one along an axis of length 1 is 0. */
typedef struct short_tensor {
    const float *data;
    ptrdiff_t stride[3]; /* batch, head, seq */
    int64_t count[3];
    int64_t bytes; /* from the first to behind the last */
} short_tensor;

typedef struct short_call {
    const attn_params *p;
    const attn_kernels *kernels;
    short_tensor q, k, v, o;
    int group, dim, dim_v, tile; /* tile: most keys of a tile */
    float factor;
    /* ---- in the workspace */
    float *qt, *s, *m, *l, *acc, *alpha;
    float *spare; /* a row of +0, later of what nobody reads */
    const float **in;
    float **out;
    int *begin, *end; /* of each lane, in the open tile */
    int *seen;        /* keys that each lane sees: those before this number */
} short_call;

#ifdef ATTN_WITHOUT_LONG_CALLS
/* The kernels of short calls, so that no others are linked. */
static const attn_kernels short_set = { .abi = ATTN_KERNEL_ABI,
                                        .rows = LANES,
                                        .name = "portable",
                                        .pack = pack_portable,
                                        .qk = qk_portable,
                                        .clip = clip_portable,
                                        .running_max = running_max_portable,
                                        .exp_sum = exp_sum_portable,
                                        .exp_block = exp_block_portable,
                                        .finite = finite_portable,
                                        .rescale = rescale_portable,
                                        .pv = pv_portable,
                                        .pv_select = pv_select_portable,
                                        .result = result_portable };

static const attn_kernels *kernels_of_short(int64_t rows)
{
    (void)rows;
    return &short_set;
}
#else
static const attn_kernels *kernels_of_short(int64_t rows)
{
    return best_kernels(rows, 0);
}
#endif

/* ---- which calls are short */

#define FIELD_AT(member) offsetof(attn_params, member)
#define BEHIND(member) (FIELD_AT(member) + sizeof(((attn_params *)NULL)->member))
#define BETWEEN(from, to)                                                                          \
    {                                                                                              \
        (uint16_t)(from), (uint16_t)((to) - (from))                                                \
    }

/* What a short call leaves at 0: everything between the fields that it may set. */
static const member unset_in_short[] = {
    BETWEEN(FIELD_AT(integer), FIELD_AT(layout)),
    BETWEEN(BEHIND(v), FIELD_AT(o)),
    BETWEEN(BEHIND(o), FIELD_AT(q_len)),
    BETWEEN(BEHIND(kv_len), FIELD_AT(alignment)),
    BETWEEN(FIELD_AT(q_offset), FIELD_AT(causal)),
    BETWEEN(FIELD_AT(prefix), FIELD_AT(impl)),
    BETWEEN(FIELD_AT(auto_naive_keys), FIELD_AT(kernels)),
    BETWEEN(BEHIND(kernels), FIELD_AT(num_workers)),
    BETWEEN(BEHIND(log_user), sizeof(attn_params)),
};

/* is_unset looks at four words at a time. */
static int is_unset(const attn_params *p, member m)
{
    const char *at = (const char *)p + m.offset, *const end = at + m.size;
    uint32_t four[4], any = 0;
    for (; end - at >= (ptrdiff_t)sizeof four; at += sizeof four) {
        memcpy(four, at, sizeof four);
        any |= four[0] | four[1] | four[2] | four[3];
    }
    for (; at < end; at += sizeof any) {
        memcpy(four, at, sizeof any);
        any |= four[0];
    }
    return any == 0;
}

static int sets_short_fields(const attn_params *p)
{
    int i = 0;
    while (i < COUNT_OF(unset_in_short) && is_unset(p, unset_in_short[i]))
        i++;
    return i == COUNT_OF(unset_in_short) &&
           (p->impl == ATTN_IMPL_DEFAULT || p->impl == ATTN_IMPL_TILED) &&
           !(p->q.dtype | p->k.dtype | p->v.dtype | p->o.dtype);
}

static int is_between(int64_t least, int64_t value, int64_t most)
{
    return value >= least && value <= most;
}

static int has_short_sizes(const attn_params *p)
{
    const int64_t heads_kv = p->num_heads_kv ? p->num_heads_kv : p->num_heads_q;
    return is_between(0, p->batch, SHORT_COUNT) && is_between(1, p->num_heads_q, SHORT_COUNT) &&
           is_between(1, heads_kv, p->num_heads_q) && (int)p->num_heads_q % (int)heads_kv == 0 &&
           is_between(0, p->seq_len_q, SHORT_COUNT) && is_between(0, p->seq_len_kv, SHORT_KEYS) &&
           is_between(1, p->head_dim, SHORT_DIM) && is_between(0, p->head_dim_v, SHORT_DIM);
}

/* is_worth_sharing tells whether OpenMP's threads take less time than one: not below 2^18 multiply-adds,
 * some 5 microseconds. */
static int is_worth_sharing(const attn_params *p)
{
    const int64_t pairs = times(times(p->batch * p->num_heads_q, p->seq_len_q), p->seq_len_kv);
    return HAS_LONG_CALLS && OPENMP_THREADS && p->num_workers != 1 &&
           times(pairs, 2 * max64(p->head_dim, p->head_dim_v)) >= (int64_t)1 << 18;
}

static int has_short_settings(const attn_params *p)
{
    const attn_kernels *kernels = p->kernels;
    return is_between(ATTN_LAYOUT_BHSD, p->layout, ATTN_LAYOUT_BSHD) &&
           is_between(ATTN_ALIGN_BOTTOM_RIGHT, p->alignment, ATTN_ALIGN_TOP_LEFT) &&
           is_between(0, p->num_workers, p->parallel_for ? 1 : SHORT_COUNT) &&
           !is_worth_sharing(p) &&
           (!kernels ||
            (kernels->abi == ATTN_KERNEL_ABI && kernels->rows % 4 == 0 &&
             is_between(4, kernels->rows, ATTN_KERNEL_MAX_ROWS) && !kernels->pack_values));
}

/* set_tensor returns 0 where strides are below 0, broadcast or large. */
static int set_tensor(short_tensor *t, const attn_params *p, const void *data, ptrdiff_t batch,
                      ptrdiff_t head, ptrdiff_t seq, int64_t heads, int64_t rows, int64_t dim)
{
    const int tokens = p->layout == ATTN_LAYOUT_BSHD;
    const int64_t packed[3] = { heads * rows * dim, tokens ? dim : rows * dim,
                                tokens ? heads * dim : dim };
    const ptrdiff_t given[3] = { batch, head, seq };
    int64_t last = dim;
    int axis;
    t->data = (const float *)data;
    t->count[0] = p->batch;
    t->count[1] = heads;
    t->count[2] = rows;
    for (axis = 0; axis < 3; axis++) {
        const int64_t stride = t->count[axis] <= 1 ? 0 : given[axis] ? given[axis] : packed[axis];
        if (given[axis] < 0 || !is_between(0, stride, INT32_MAX))
            return 0;
        t->stride[axis] = (ptrdiff_t)stride;
        last += (t->count[axis] - 1) * stride;
    }
    t->bytes = last * (int64_t)sizeof(float);
    return t->bytes <= INT32_MAX && (uintptr_t)data % sizeof(float) == 0;
}

#define SET_TENSOR(member, heads, rows, dim)                                                       \
    set_tensor(&c->member, p, p->member.data, p->member.stride_batch, p->member.stride_head,       \
               p->member.stride_seq, heads, rows, dim)

/* has_short_tensors sets them. */
static int has_short_tensors(short_call *c)
{
    const attn_params *p = c->p;
    const int heads_kv = (int)p->num_heads_q / c->group;
    return SET_TENSOR(q, p->num_heads_q, p->seq_len_q, c->dim) &&
           SET_TENSOR(k, heads_kv, p->seq_len_kv, c->dim) &&
           SET_TENSOR(v, heads_kv, p->seq_len_kv, c->dim_v) &&
           SET_TENSOR(o, p->num_heads_q, p->seq_len_q, c->dim_v);
}

/* open_short tells whether a call is short as far as its fields say. */
static int open_short(const attn_params *p, short_call *c)
{
    if (!sets_short_fields(p) || !has_short_sizes(p) || !has_short_settings(p))
        return 0;
    c->p = p;
    c->group = p->num_heads_kv ? (int)p->num_heads_q / (int)p->num_heads_kv : 1;
    c->kernels = p->kernels ? p->kernels : kernels_of_short(p->seq_len_q * c->group);
    c->dim = (int)p->head_dim;
    c->dim_v = (int)(p->head_dim_v ? p->head_dim_v : p->head_dim);
    c->tile = (int)min64(p->seq_len_kv, SHORT_TILE);
    c->factor = score_factor(p->scale == 0.0f ? inv_sqrt_nearest((uint64_t)c->dim) : p->scale);
    return is_finite(c->factor) && has_short_tensors(c);
}

/* ---- whether memory is as it should be */

/* nests tells whether no two rows share an element, where axis `inner` lies inside the other one. */
static int nests(const short_tensor *t, int64_t dim, int inner)
{
    const int axes[3] = { inner, 3 - inner, 0 };
    int64_t run = dim;
    int i;
    for (i = 0; i < 3; i++) {
        if (t->count[axes[i]] > 1 && t->stride[axes[i]] < run)
            return 0;
        run += (t->count[axes[i]] - 1) * t->stride[axes[i]];
    }
    return 1;
}

static int lies_apart(const void *a, int64_t a_bytes, const void *b, int64_t b_bytes)
{
    const uintptr_t from = (uintptr_t)a, other = (uintptr_t)b;
    return from >= other ? from - other >= (uintptr_t)b_bytes : other - from >= (uintptr_t)a_bytes;
}

/* is_written_apart tells whether bytes that are written hold none that are read. */
static int is_written_apart(const short_call *c, const void *written, int64_t bytes)
{
    const attn_params *p = c->p;
    const int64_t lengths = p->batch * (int64_t)sizeof(int32_t);
    return lies_apart(written, bytes, c->q.data, c->q.bytes) &&
           lies_apart(written, bytes, c->k.data, c->k.bytes) &&
           lies_apart(written, bytes, c->v.data, c->v.bytes) &&
           (!p->q_len || lies_apart(written, bytes, p->q_len, lengths)) &&
           (!p->kv_len || lies_apart(written, bytes, p->kv_len, lengths));
}

static int has_short_lengths(const attn_params *p)
{
    int64_t b;
    if ((p->q_len || p->kv_len) && ((uintptr_t)p->q_len | (uintptr_t)p->kv_len) % sizeof(int32_t))
        return 0;
    for (b = 0; b < p->batch; b++)
        if (!is_between(0, entry32(p->q_len, b, 0), p->seq_len_q) ||
            !is_between(0, entry32(p->kv_len, b, 0), p->seq_len_kv))
            return 0;
    return 1;
}

/* has_short_data tells whether the call's arrays are there, apart from each other and from the workspace. */
static int has_short_data(const short_call *c, const void *workspace, int64_t bytes)
{
    return c->q.data && c->o.data && (c->p->seq_len_kv == 0 || (c->k.data && c->v.data)) &&
           has_short_lengths(c->p) && (nests(&c->o, c->dim_v, 2) || nests(&c->o, c->dim_v, 1)) &&
           lies_apart(workspace, bytes, c->o.data, c->o.bytes) &&
           is_written_apart(c, workspace, bytes) && is_written_apart(c, c->o.data, c->o.bytes);
}

/* ---- the workspace */

/* cut_off takes `count` elements off the memory from *at on. */
static void *cut_off(uintptr_t *at, int count, size_t bytes_each)
{
    const uintptr_t taken = *at;
    *at += ((size_t)count * bytes_each + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return (void *)taken;
}

/* lay_out_short divides the memory from `at` on and returns its end. */
static uintptr_t lay_out_short(short_call *c, uintptr_t at)
{
    const int rows = c->kernels->rows;
    at = (at + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    c->qt = (float *)cut_off(&at, c->dim * rows, sizeof(float));
    c->s = (float *)cut_off(&at, c->tile * rows, sizeof(float));
    c->m = (float *)cut_off(&at, (2 + c->dim_v) * rows, sizeof(float));
    c->l = c->m + rows;
    c->acc = c->l + rows;
    c->alpha = (float *)cut_off(&at, rows, sizeof(float));
    c->spare = (float *)cut_off(&at, c->dim > c->dim_v ? c->dim : c->dim_v, sizeof(float));
    c->in = (const float **)cut_off(&at, rows, sizeof(float *));
    c->out = (float **)cut_off(&at, rows, sizeof(float *));
    c->begin = (int *)cut_off(&at, 3 * rows, sizeof(int));
    c->end = c->begin + rows;
    c->seen = c->end + rows;
    return at;
}

/* ---- computing */

/* A short_tile is the rows in the lanes at the moment; lanes from `used` on have none. `hi` is the end of
 * the keys that any of them sees, which is what the last one sees. */
typedef struct short_tile {
    const float *k, *v; /* of the head */
    int used, hi;
    float dead; /* what p of a hidden key is: +0, or in the second pass ATTN_DEAD */
} short_tile;

/* Keys whose P V is still to come. */
typedef struct short_run {
    int from; /* counted in the tile */
    attn_lanes lanes;
} short_run;

static attn_lanes lanes_seeing(const short_call *c, const short_tile *t, int j)
{
    attn_lanes lanes = { 0, t->used };
    while (lanes.begin < t->used && c->seen[lanes.begin] <= j)
        lanes.begin++;
    return lanes;
}

/* clip_short hides keys j0 to j0+n-1 from the lanes that do not see them, of which there may be none. */
static void clip_short(const short_call *c, int j0, int n)
{
    int r;
    if (c->seen[0] >= j0 + n) /* The first lane sees least. */
        return;
    for (r = 0; r < c->kernels->rows; r++) {
        const int left = c->seen[r] - j0;
        c->begin[r] = 0;
        c->end[r] = left < 0 ? 0 : left < n ? left : n;
    }
    c->kernels->clip(c->s, n, c->begin, c->end);
}

static void add_run(const short_call *c, const short_tile *t, const short_run *run, int j0, int end)
{
    const ptrdiff_t stride = c->v.stride[2];
    const attn_product p = { .to = c->acc,
                             .by = c->s + run->from * c->kernels->rows,
                             .kv = t->v + (j0 + run->from) * stride,
                             .stride = stride,
                             .n = end - run->from,
                             .dim = c->dim_v,
                             .lanes = run->lanes };
    if (p.n > 0)
        (is_dead(t->dead) ? c->kernels->pv_select : c->kernels->pv)(&p);
}

/* weigh_short makes probabilities of the logits of n keys, and tells whether o must be rescaled before. */
static int weigh_short(const short_call *c, float dead, float *s, int n, attn_lanes lanes)
{
    const int found = c->kernels->running_max(s, n, c->m, c->l, c->alpha);
    const attn_exp e = { s, n, c->m, c->l, lanes, .calm = found & ATTN_IS_CALM };
    if (is_dead(dead))
        c->kernels->exp_sum(s, n, dead, c->m, c->l);
    else
        c->kernels->exp_block(&e);
    return found & ATTN_RAISED;
}

/* add_short_keys adds keys j0 to j0+n-1. P V goes over blocks together that have the same lanes and no
 * rescale between them. */
static void add_short_keys(const short_call *c, const short_tile *t, int j0, int n)
{
    const int rows = c->kernels->rows;
    const ptrdiff_t stride = c->k.stride[2];
    const attn_product p = { .to = c->s,
                             .by = c->qt,
                             .kv = t->k + j0 * stride,
                             .stride = stride,
                             .n = n,
                             .dim = c->dim,
                             .factor = c->factor,
                             .lanes = lanes_seeing(c, t, j0) };
    short_run run = { 0, p.lanes };
    int j;
    c->kernels->qk(&p);
    clip_short(c, j0, n);
    for (j = 0; j < n; j += ATTN_BLOCK) {
        const attn_lanes lanes = lanes_seeing(c, t, j0 + j);
        const int count = n - j < ATTN_BLOCK ? n - j : ATTN_BLOCK;
        const int raised = weigh_short(c, t->dead, c->s + j * rows, count, lanes);
        if (raised || lanes.begin != run.lanes.begin) {
            add_run(c, t, &run, j0, j);
            run.from = j;
            run.lanes = lanes;
        }
        if (raised)
            c->kernels->rescale(c->acc, c->alpha, c->dim_v);
    }
    add_run(c, t, &run, j0, n);
}

/* pass_short computes the state of all lanes from nothing. */
static void pass_short(const short_call *c, const short_tile *t)
{
    const int rows = c->kernels->rows;
    int j, r;
    memset(c->l, 0, (size_t)(1 + c->dim_v) * (size_t)rows * sizeof *c->l);
    for (r = 0; r < rows; r++)
        c->m[r] = NEG_INF;
    for (j = 0; j < t->hi; j += c->tile)
        add_short_keys(c, t, j, t->hi - j < c->tile ? t->hi - j : c->tile);
}

/* open_lanes sets the lanes to rows `first` and behind of a head's, which are counted as in src/tile.c. */
static void open_lanes(const short_call *c, short_tile *t, int b, int head0, int first)
{
    const attn_params *p = c->p;
    const int q_len = (int)entry32(p->q_len, b, p->seq_len_q);
    const int kv_len = (int)entry32(p->kv_len, b, p->seq_len_kv);
    const int offset = p->alignment == ATTN_ALIGN_BOTTOM_RIGHT ? kv_len - q_len : 0;
    int i = first / c->group, head = head0 + first % c->group, r;
    memset(c->spare, 0, (size_t)c->dim * sizeof *c->spare);
    t->used = t->hi = 0;
    for (r = 0; r < c->kernels->rows; r++) {
        c->in[r] = c->out[r] = c->spare;
        c->seen[r] = 0;
        if (i >= q_len)
            continue;
        c->in[r] = c->q.data + b * c->q.stride[0] + head * c->q.stride[1] + i * c->q.stride[2];
        c->out[r] = (float *)(uintptr_t)c->o.data + b * c->o.stride[0] + head * c->o.stride[1] +
                    i * c->o.stride[2];
        c->seen[r] = p->causal ? i + offset + 1 : kv_len;
        c->seen[r] = c->seen[r] < 0 ? 0 : c->seen[r] < kv_len ? c->seen[r] : kv_len;
        t->hi = c->seen[r];
        t->used++;
        if (++head == head0 + c->group) {
            head = head0;
            i++;
        }
    }
}

/* is_sound tells whether all sums of lanes that have a row are finite. In the others zero queries may have
 * met an infinity of K. */
static int is_sound(const short_call *c, const short_tile *t)
{
    const int rows = c->kernels->rows, sums = 1 + c->dim_v;
    int i = 0;
    if (c->kernels->finite(c->l, sums * (int64_t)rows))
        return 1;
    while (i < sums && c->kernels->finite(c->l + i * rows, t->used))
        i++;
    return i == sums;
}

/* add_short_rows computes the rows of one tile. Where a masked NaN or infinity may have met p = +0, the
 * second pass of docs/canon.md leaves hidden keys out by selection. */
static void add_short_rows(const short_call *c, short_tile *t)
{
    const attn_kernels *kernels = c->kernels;
    kernels->pack(c->qt, c->in, c->dim);
    t->dead = 0.0f;
    pass_short(c, t);
    if (!is_sound(c, t)) {
        t->dead = ATTN_DEAD;
        pass_short(c, t);
    }
    kernels->result(c->out, c->acc, c->l, 1.0f, c->dim_v);
}

/* rows_of_head gives NULL where there are no keys. */
static const float *rows_of_head(const short_tensor *x, int b, int head)
{
    return x->data ? x->data + b * x->stride[0] + head * x->stride[1] : NULL;
}

static void run_short(const short_call *c)
{
    const int heads_kv = (int)c->k.count[1];
    int b, head, first;
    for (b = 0; b < c->p->batch; b++)
        for (head = 0; head < heads_kv; head++) {
            const int q_rows = (int)c->p->seq_len_q * c->group;
            short_tile t;
            t.k = rows_of_head(&c->k, b, head);
            t.v = rows_of_head(&c->v, b, head);
            for (first = 0; first < q_rows; first += c->kernels->rows) {
                open_lanes(c, &t, b, head * c->group, first);
                if (t.used)
                    add_short_rows(c, &t);
            }
        }
}

/* size_of_short is attn_workspace_size for short calls. */
static attn_status size_of_short(const attn_params *p, size_t *bytes)
{
    short_call c;
    if (!p || !open_short(p, &c))
        return ATTN_ERR_UNSUPPORTED;
    *bytes = lay_out_short(&c, 0) + ALIGNMENT - 1;
    return ATTN_OK;
}

/* begin_short gives ATTN_ERR_UNSUPPORTED for a call that is not short, and ATTN_OK for one that run_short
 * can run. Rows there may be none. */
static attn_status begin_short(const attn_params *p, const void *workspace, size_t bytes,
                               short_call *c)
{
    const uintptr_t begin = (uintptr_t)workspace;
    size_t need;
    if (!p || !open_short(p, c))
        return ATTN_ERR_UNSUPPORTED;
    if (is_empty(p))
        return has_short_lengths(p) ? ATTN_OK : ATTN_ERR_ARG;
    need = lay_out_short(c, begin) - begin;
    if (!workspace || bytes < need)
        return ATTN_ERR_WORKSPACE;
    return has_short_data(c, workspace, (int64_t)need) ? ATTN_OK : ATTN_ERR_ARG;
}

/* why_not_short is all that attn_check says where there are no long calls. */
static const char *why_not_short(attn_status status)
{
    switch (status) {
    case ATTN_OK:
        return "";
    case ATTN_ERR_UNSUPPORTED:
        return "this build computes short calls only (ATTN_WITHOUT_LONG_CALLS)";
    case ATTN_ERR_WORKSPACE:
        return "workspace is NULL or smaller than attn_workspace_size says";
    default:
        return "an array is NULL or overlaps another one, or a length is out of its range";
    }
}

static attn_status forward_short(const attn_params *p, void *workspace, size_t bytes)
{
    short_call c;
    const attn_status status = begin_short(p, workspace, bytes, &c);
    if (!status && !is_empty(p))
        run_short(&c);
    return status;
}
