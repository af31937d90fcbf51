/* case_call.c - the tensors of a case as one call of the library, and results compared.
 * SPDX-License-Identifier: MIT
 *
 * Tensors go to the library where they lie: rank 3 and rank 4 are strides, a mask of any rank is
 * strides of 0. Only a past is joined with the new keys in a buffer of its own.
 */
#include "cases.h"

#include <string.h>

static const double HOPELESS = 1e9; /* units: an error that no tolerance covers */

/* ---- tensors as the library sees them -------------------------------------------------------- */

/* Rank 4: [batch, head, seq, dim]; rank 3: [batch, seq, head * dim]. */
static int case_view_of(test_case *c, const case_tensor *t, int64_t heads, case_view *v)
{
    memset(v, 0, sizeof *v);
    if (t->type != F16 && t->type != F32)
        return case_fail(c, "%s has type %s", t->name, case_types[t->type].name);
    v->type = t->type;
    v->data = t->data;
    v->batch = t->dim[0];
    if (t->rank == 4) {
        v->heads = t->dim[1], v->seq = t->dim[2], v->dim = t->dim[3];
        v->stride_seq = (ptrdiff_t)v->dim;
        v->stride_head = (ptrdiff_t)(v->seq * v->dim);
    } else if (t->rank == 3 && heads > 0 && t->dim[2] % heads == 0) {
        v->heads = heads, v->seq = t->dim[1], v->dim = t->dim[2] / heads;
        v->stride_head = (ptrdiff_t)v->dim;
        v->stride_seq = (ptrdiff_t)t->dim[2];
    } else {
        return case_fail(c, "%s of rank %d does not hold %lld heads", t->name, t->rank,
                         (long long)heads);
    }
    v->stride_batch = (ptrdiff_t)(v->heads * v->seq * v->dim);
    return 1;
}

/* Copies the keys of `from` to the rows of `to` (packed, seq_to rows a head) from `first` on. */
static void copy_rows(const case_view *from, unsigned char *to, int64_t seq_to, int64_t first)
{
    const size_t size = case_types[from->type].size;
    const size_t row = (size_t)from->dim * size;
    for (int64_t b = 0; b < from->batch; b++)
        for (int64_t h = 0; h < from->heads; h++)
            for (int64_t s = 0; s < from->seq; s++) {
                const int64_t at = b * from->stride_batch + h * from->stride_head +
                                   s * from->stride_seq;
                const int64_t into = (b * from->heads + h) * seq_to + first + s;
                memcpy(to + (size_t)into * row,
                       (const unsigned char *)from->data + (size_t)at * size, row);
            }
}

/* The past followed by the new keys, packed; either may be NULL. */
static int join(test_case *c, const case_tensor *past, case_view *v)
{
    case_view old = *v, joined = *v;
    unsigned char *data;
    old.seq = 0;
    if (past != NULL && (past->rank != 4 || !case_view_of(c, past, 0, &old)))
        return case_fail(c, "%s must have rank 4", past->name);
    if (old.type != v->type || old.batch != v->batch || old.heads != v->heads || old.dim != v->dim)
        return case_fail(c, "%s does not fit the new keys", past->name);
    joined.seq = old.seq + v->seq;
    joined.stride_seq = (ptrdiff_t)v->dim;
    joined.stride_head = (ptrdiff_t)(joined.seq * v->dim);
    joined.stride_batch = joined.stride_head * (ptrdiff_t)v->heads;
    data = test_alloc((size_t)(joined.stride_batch * v->batch) * case_types[v->type].size);
    copy_rows(&old, data, joined.seq, 0);
    copy_rows(v, data, joined.seq, old.seq);
    joined.data = data;
    *v = joined;
    return 1;
}

static attn_tensor case_view_input(const case_view *v)
{
    attn_tensor t = {0};
    t.dtype = v->type == F16 ? ATTN_F16 : ATTN_F32;
    t.stride_batch = v->stride_batch;
    t.stride_head = v->stride_head;
    t.stride_seq = v->stride_seq;
    t.data = v->data;
    return t;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static double element(int type, const void *data, int64_t i)
{
    if (type == F64)
        return ((const double *)data)[i];
    if (type == F32)
        return (double)((const float *)data)[i];
    return (double)dtype_load(ATTN_F16, (const unsigned char *)data + 2 * i);
}

/* abs(g - w) in units of atol + rtol * abs(w). NaN and infinities must coincide. */
static double error_units(double g, double w, double rtol, double atol)
{
    double off = g - w, allowed = rtol * (w < 0 ? -w : w) + atol;
    if (g == w || (g != g && w != w))
        return 0;
    if (g != g || w != w || off - off != 0 || allowed == 0)
        return HOPELESS;
    return (off < 0 ? -off : off) / allowed;
}

/* `got` is packed like the stored output, of type F16 or F32; `factor` multiplies it. */
static int case_compare(test_case *c, case_tensor *want, int type, const void *got, double factor)
{
    const double rtol = want->rtol < 0 ? c->rtol : want->rtol;
    const double atol = want->atol < 0 ? c->atol : want->atol;
    char twin[80];
    case_tensor *zero_rows;
    snprintf(twin, sizeof twin, "%s_zero_rows", want->name);
    zero_rows = case_output(c, twin);
    if (zero_rows != NULL && zero_rows->count == want->count) {
        case_note(c, "textbook NaN replaced by its zero rows");
        want = zero_rows;
    }
    for (int64_t i = 0; i < want->count; i++) {
        const double g = factor * element(type, got, i), w = element(want->type, want->data, i);
        const double units = error_units(g, w, rtol, atol);
        if (units > 1)
            case_fail(c, "%s[%lld] is %.9g, stored is %.9g", want->name, (long long)i, g, w);
        if (units > c->worst)
            c->worst = units;
    }
    return c->why[0] == '\0';
}

static int case_has_shape(test_case *c, const case_tensor *t, int rank, const int64_t *dim)
{
    int held = t->rank == rank && (t->type == F16 || t->type == F32 || t->type == F64);
    for (int i = 0; held && i < rank; i++)
        held = t->dim[i] == dim[i];
    return held ||
           case_fail(c, "output %s has another shape or type than the inputs give", t->name);
}

/* ---- one call -------------------------------------------------------------------------------- */

/* What really ran, over all cases of this process. */
static struct {
    const char *impl, *kernels;
    int64_t calls;
} executed[16];
enum { MAX_EXECUTED = sizeof executed / sizeof *executed };

static void count_execution(const attn_params *p)
{
    const attn_params used = test_params(p);
    attn_info info;
    int i = 0;
    if (attn_explain(&used, &info) != ATTN_OK)
        return;
    while (i < MAX_EXECUTED - 1 && executed[i].calls > 0 &&
           (strcmp(executed[i].impl, info.impl_name) != 0 ||
            strcmp(executed[i].kernels, info.kernels_name) != 0))
        i++;
    executed[i].impl = info.impl_name;
    executed[i].kernels = info.kernels_name;
    executed[i].calls++;
}

static int case_execute(test_case *c, const attn_params *p)
{
    const attn_params used = test_params(p);
    char text[200];
    const attn_status status = test_run(p);
    if (status == ATTN_OK) {
        count_execution(p);
        return 1;
    }
    return case_fail(c, "%s: %s", attn_status_string(status),
                     attn_check(&used, NULL, 0, text, sizeof text));
}

/* Sizes and tensors from Q, K, V; joins the past. */
int case_open_call(test_case *c, case_call *a, int64_t heads_q, int64_t heads_kv,
                   const char *past_k, const char *past_v)
{
    case_tensor *q = case_input(c, "Q"), *k = case_input(c, "K"), *v = case_input(c, "V");
    case_tensor *old_k = case_input(c, past_k), *old_v = case_input(c, past_v);
    if (q == NULL || k == NULL || v == NULL)
        return case_fail(c, "one of Q, K, V is missing");
    if (!case_view_of(c, q, heads_q, &a->q) || !case_view_of(c, k, heads_kv, &a->k) ||
        !case_view_of(c, v, heads_kv, &a->v))
        return 0;
    if ((old_k == NULL) != (old_v == NULL))
        return case_fail(c, "%s and %s must be given together", past_k, past_v);
    a->past = old_k != NULL && old_k->rank == 4 ? old_k->dim[2] : 0;
    if (old_k != NULL || a->present_k != NULL)
        if (!join(c, old_k, &a->k))
            return 0;
    if (old_v != NULL || a->present_v != NULL)
        if (!join(c, old_v, &a->v))
            return 0;
    if (a->k.batch != a->q.batch || a->v.batch != a->q.batch || a->k.heads != a->v.heads ||
        a->k.seq != a->v.seq || a->k.dim != a->q.dim)
        return case_fail(c, "the shapes of Q, K and V do not fit");
    if (a->q.heads == 0 || a->k.heads == 0)
        return case_fail(c, "a tensor without heads");
    if ((heads_q > 0 && a->q.heads != heads_q) || (heads_kv > 0 && a->k.heads != heads_kv))
        return case_fail(c, "the numbers of heads do not fit the shapes");
    a->mask_keys = -1;
    a->factor = 1;
    a->p.batch = a->q.batch;
    a->p.num_heads_q = a->q.heads;
    a->p.num_heads_kv = a->k.heads;
    a->p.seq_len_q = a->q.seq;
    a->p.seq_len_kv = a->k.seq;
    a->p.head_dim = a->q.dim;
    a->p.head_dim_v = a->v.dim;
    a->p.q = case_view_input(&a->q);
    a->p.k = case_view_input(&a->k);
    a->p.v = case_view_input(&a->v);
    return 1;
}

/* A scale of 0 asks for all logits 0; to the library 0 means the default, so q becomes 0. */
void case_set_scale(case_call *a, double scale)
{
    a->p.scale = (float)scale;
    if (a->p.scale != 0)
        return;
    a->p.q.data = memset(test_alloc((size_t)a->q.dim * 4), 0, (size_t)a->q.dim * 4);
    a->p.q.stride_batch = a->p.q.stride_head = a->p.q.stride_seq = ATTN_STRIDE_BROADCAST;
}

/* Strides of a mask aligned at the right to [batch, heads, q, keys]; 0 where it is broadcast. A
 * last dimension shorter than the keys ends the visible keys (from opset 24 on also one of 1). */
static int mask_strides(test_case *c, case_call *a, const case_tensor *m, ptrdiff_t *stride)
{
    const int64_t size[4] = {a->q.batch, a->q.heads, a->q.seq, a->k.seq};
    ptrdiff_t step = 1;
    for (int axis = 3; axis >= 0; axis--) {
        const int from = axis - (4 - m->rank);
        const int64_t dim = from >= 0 ? m->dim[from] : 1;
        const int broadcast = from < 0 || (dim == 1 && (axis < 3 || c->opset < 24));
        stride[axis] = broadcast || dim == 1 ? 0 : step;
        if (axis == 3 && !broadcast && dim < size[3])
            a->mask_keys = dim;
        else if (!broadcast && dim != size[axis])
            return case_fail(c, "axis %d of %s is %lld, not %lld or 1", from, m->name,
                             (long long)dim, (long long)size[axis]);
        step *= (ptrdiff_t)dim;
    }
    return 1;
}

int case_set_mask(test_case *c, case_call *a)
{
    const case_tensor *m = case_input(c, "attn_mask");
    ptrdiff_t stride[4];
    if (m == NULL)
        return 1;
    if (!mask_strides(c, a, m, stride))
        return 0;
    if (m->count == 0) {
        a->mask_keys = 0;
    } else if (m->type == BOOL) {
        const attn_mask mask = {0, stride[0], stride[1], stride[2], stride[3], m->data};
        a->p.bool_mask = mask;
    } else if (m->type == F16 || m->type == F32) {
        const attn_bias bias = {m->type == F16 ? ATTN_F16 : ATTN_F32, stride[0], stride[1],
                                stride[2], stride[3], m->data};
        a->p.bias = bias;
    } else {
        return case_fail(c, "%s has type %s", m->name, case_types[m->type].name);
    }
    return 1;
}

/* Keys in use and the position of the first query of each batch entry. */
int case_set_lengths(test_case *c, case_call *a)
{
    const case_tensor *nonpad = case_input(c, "nonpad_kv_seqlen");
    const size_t bytes = (size_t)a->q.batch * sizeof(int32_t);
    int32_t *keys = test_alloc(bytes), *offset = test_alloc(bytes);
    const int64_t limit = a->mask_keys >= 0 ? a->mask_keys : a->k.seq;
    const int has_past = case_input(c, "past_key") != NULL;
    if (nonpad != NULL && (nonpad->type != I64 || nonpad->count != a->q.batch))
        return case_fail(c, "nonpad_kv_seqlen must be i64, one a batch entry");
    for (int64_t b = 0; b < a->q.batch; b++) {
        int64_t length = nonpad != NULL ? ((const int64_t *)nonpad->data)[b] : a->k.seq;
        if (length < -INT32_MAX / 2 || length > INT32_MAX / 2)
            return case_fail(c, "nonpad_kv_seqlen[%lld] is out of range", (long long)b);
        offset[b] = (int32_t)(has_past || nonpad == NULL ? a->past : length - a->q.seq);
        length = length < limit ? length : limit;
        keys[b] = (int32_t)(length > 0 ? length : 0);
    }
    a->p.kv_len = keys;
    a->p.q_offset = offset;
    a->p.alignment = ATTN_ALIGN_OFFSET;
    return 1;
}

void case_set_window(case_call *a, int64_t left, int64_t right)
{
    if (left < 0 && right < 0)
        return;
    a->p.window = ATTN_WINDOW;
    a->p.window_left = left < 0 ? -1 : left;
    a->p.window_right = right < 0 ? -1 : right;
}

/* An output buffer in the order of the stored tensor `want`, f16 if that is f16, else f32. */
static int give_output(test_case *c, case_call *a, case_tensor *want)
{
    const int is_half = want->type == F16;
    const case_view *q = &a->q;
    const int64_t dim4[] = {q->batch, q->heads, q->seq, a->v.dim};
    const int64_t dim3[] = {q->batch, q->seq, q->heads * a->v.dim};
    const ptrdiff_t d = (ptrdiff_t)a->v.dim, s = (ptrdiff_t)q->seq, h = (ptrdiff_t)q->heads;
    attn_output o = {0};
    if (!case_has_shape(c, want, want->rank == 3 ? 3 : 4, want->rank == 3 ? dim3 : dim4))
        return 0;
    o.dtype = is_half ? ATTN_F16 : ATTN_F32;
    o.data = test_alloc((size_t)want->count * (is_half ? 2 : 4));
    o.stride_batch = h * s * d;
    o.stride_head = want->rank == 3 ? d : s * d;
    o.stride_seq = want->rank == 3 ? h * d : d;
    a->p.o = o;
    return 1;
}

/* Logits are asked for in the same call at the stages that know the masks. The two before them hold
 * every pair, also those of keys beyond the length: a call of their own, without lengths. */
int case_run_logits(test_case *c, case_call *a, int64_t stage)
{
    const int64_t dim[] = {a->q.batch, a->q.heads, a->q.seq, a->k.seq};
    attn_params raw = a->p;
    if (a->logits == NULL)
        return 1;
    if (stage < ATTN_LOGITS_RAW || stage > ATTN_LOGITS_SOFTMAX)
        return case_fail(c, "qk_matmul_output_mode is %lld", (long long)stage);
    if (!case_has_shape(c, a->logits, 4, dim))
        return 0;
    raw.o.data = raw.lse.data = NULL;
    raw.logits.stage = (int)stage;
    raw.logits.data = test_alloc((size_t)a->logits->count * sizeof(float));
    if (stage <= ATTN_LOGITS_SOFTCAP)
        raw.kv_len = NULL;
    return case_execute(c, &raw) && case_compare(c, a->logits, F32, raw.logits.data, 1);
}

int case_run_call(test_case *c, case_call *a)
{
    const int64_t rows[] = {a->q.batch, a->q.heads, a->q.seq};
    if (a->y == NULL)
        return case_fail(c, "there is no output Y");
    if (!give_output(c, a, a->y))
        return 0;
    if (a->lse != NULL) {
        if (!case_has_shape(c, a->lse, 3, rows))
            return 0;
        a->p.lse.data = test_alloc((size_t)a->lse->count * sizeof(float));
    }
    if (!case_execute(c, &a->p))
        return 0;
    case_compare(c, a->y, a->y->type == F16 ? F16 : F32, a->p.o.data, a->factor);
    if (a->lse != NULL)
        case_compare(c, a->lse, F32, a->p.lse.data, 1);
    return c->why[0] == '\0';
}

int case_compare_present(test_case *c, case_tensor *want, const case_view *got)
{
    const int64_t dim[] = {got->batch, got->heads, got->seq, got->dim};
    if (want == NULL)
        return 1;
    return case_has_shape(c, want, 4, dim) && case_compare(c, want, got->type, got->data, 1);
}

void case_print_executed(void)
{
    for (int i = 0; i < MAX_EXECUTED; i++)
        if (executed[i].calls > 0)
            printf("executed so far: %s with %s: %lld calls\n", executed[i].impl,
                   executed[i].kernels, (long long)executed[i].calls);
}
