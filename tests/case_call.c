/* case_call.c - the tensors of a case as one call of the library, and results compared.
 * SPDX-License-Identifier: MIT
 *
 * Tensors go to the library where they lie: rank 3 and rank 4 are strides. Where there is a past,
 * keys and values go through a cache, once contiguous and once in pages.
 */
#include "cases.h"

#include <string.h>

static const double HOPELESS = 1e9; /* units: an error that no tolerance covers */

/* ---- tensors as the library sees them -------------------------------------------------------- */

int case_view_of(test_case *c, const case_tensor *t, int64_t heads, case_view *v)
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

attn_tensor case_view_input(const case_view *v)
{
    attn_tensor t = { 0 };
    t.dtype = v->type == F16 ? ATTN_F16 : ATTN_F32;
    t.stride_batch = v->stride_batch;
    t.stride_head = v->stride_head;
    t.stride_seq = v->stride_seq;
    t.data = v->data;
    return t;
}

/* ---- comparing ------------------------------------------------------------------------------- */

float case_view_at(const case_view *v, int64_t i)
{
    return (float)case_element(v->type, v->data, i);
}

double case_element(int type, const void *data, int64_t i)
{
    if (type == F64)
        return ((const double *)data)[i];
    if (type == F32)
        return (double)((const float *)data)[i];
    return (double)dtype_load(ATTN_F16, (const unsigned char *)data + 2 * i);
}

double case_tolerance(const test_case *c, const case_tensor *want, double w)
{
    const double rtol = want->rtol < 0 ? c->rtol : want->rtol;
    const double atol = want->atol < 0 ? c->atol : want->atol;
    return rtol * (w < 0 ? -w : w) + atol;
}

/* abs(g - w) in units of what is allowed. NaN and infinities must coincide. */
static double error_units(double g, double w, double allowed)
{
    double off = g - w;
    if (g == w || (g != g && w != w))
        return 0;
    if (g != g || w != w || off - off != 0 || allowed == 0)
        return HOPELESS;
    return (off < 0 ? -off : off) / allowed;
}

/* Stored numbers as blocks of rows, used[b] rows in each block of batch entry b; NULL = all. */
typedef struct blocks {
    int64_t batch, blocks, rows, row;
    const int32_t *used;
} blocks;

static void compare_element(test_case *c, const case_tensor *want, int64_t i, double got)
{
    const double w = case_element(want->type, want->data, i);
    const double units = error_units(got, w, case_tolerance(c, want, w));
    if (units > 1)
        case_fail(c, "%s[%lld] is %.9g, stored is %.9g", want->name, (long long)i, got, w);
    if (units > c->worst)
        c->worst = units;
}

static int is_stored_nan(const case_tensor *want, int64_t i)
{
    const double w = case_element(want->type, want->data, i);
    return w != w;
}

/* Where the stored number is the textbook's NaN, the output of zero rows, if there is one, holds
 * what is wanted; elsewhere both do. */
static void compare_span(test_case *c, const case_tensor *want, int type, const void *got,
                         double factor, int64_t first, int64_t count)
{
    for (int64_t i = first; i < first + count; i++) {
        const double g = factor * case_element(type, got, i);
        if (want->zero_rows != NULL)
            compare_element(c, want->zero_rows, i, g);
        if (want->zero_rows == NULL || !is_stored_nan(want, i))
            compare_element(c, want, i, g);
    }
}

static int zero_rows_fit(test_case *c, const case_tensor *want)
{
    case_tensor *twin = want->zero_rows;
    if (twin == NULL)
        return 1;
    if (twin->rtol < 0)
        twin->rtol = want->rtol, twin->atol = want->atol;
    return case_has_shape(c, twin, want->rank, want->dim);
}

void case_note_zero_rows(test_case *c)
{
    char text[CASE_WHY] = "";
    size_t used = 0;
    for (int n = 0; n < c->output_count; n++) {
        const case_tensor *want = &c->outputs[n];
        int64_t count = 0;
        for (int64_t i = 0; want->zero_rows != NULL && i < want->count; i++)
            count += is_stored_nan(want, i);
        if (count > 0)
            snprintf(text + used, sizeof text - used, "%s %s (%lld of %lld)",
                     used > 0 ? "," : "NaN that the textbook has for rows without a key, in",
                     want->name, (long long)count, (long long)want->count);
        used = strlen(text);
    }
    if (used > 0)
        snprintf(text + used, sizeof text - used, ", not compared: their *_zero_rows are");
    if (used > 0)
        case_note(c, text);
}

/* `got` is packed like the stored output, of type F16 or F32; `factor` multiplies it. */
static int compare_blocks(test_case *c, const case_tensor *want, int type, const void *got,
                          double factor, const blocks *at)
{
    char text[120];
    int64_t left_out = 0;
    if (!zero_rows_fit(c, want))
        return 0;
    for (int64_t n = 0; n < at->batch * at->blocks; n++) {
        const int64_t used = at->used != NULL ? at->used[n / at->blocks] : at->rows;
        compare_span(c, want, type, got, factor, n * at->rows * at->row, used * at->row);
        left_out += at->rows - used;
    }
    if (left_out > 0) {
        snprintf(text, sizeof text, "%s: %lld unused rows left out", want->name,
                 (long long)left_out);
        case_note(c, text);
    }
    return c->why[0] == '\0';
}

int case_compare(test_case *c, case_tensor *want, int type, const void *got)
{
    const blocks all = { 1, 1, 1, want->count, NULL };
    return compare_blocks(c, want, type, got, 1, &all);
}

int case_has_shape(test_case *c, const case_tensor *t, int rank, const int64_t *dim)
{
    int held = t->rank == rank && (t->type == F16 || t->type == F32 || t->type == F64);
    for (int i = 0; held && i < rank; i++)
        held = t->dim[i] == dim[i];
    return held || case_fail(c, "%s has another shape or type than the others give", t->name);
}

/* ---- one call -------------------------------------------------------------------------------- */

int case_set_past(test_case *c, case_call *a, const char *past_k, const char *past_v)
{
    const case_tensor *k = case_input(c, past_k), *v = case_input(c, past_v);
    if (k == NULL && v == NULL)
        return 1;
    if (k == NULL || v == NULL)
        return case_fail(c, "%s and %s must be given together", past_k, past_v);
    if (k->rank != 4 || v->rank != 4)
        return case_fail(c, "%s and %s must have rank 4", past_k, past_v);
    a->cached = 1;
    return case_view_of(c, k, 0, &a->past_k) && case_view_of(c, v, 0, &a->past_v);
}

static int past_fits(const case_view *past, const case_view *now)
{
    return past->type == now->type && past->batch == now->batch && past->heads == now->heads &&
           past->dim == now->dim;
}

static int check_views(test_case *c, const case_call *a)
{
    if (a->k.batch != a->q.batch || a->v.batch != a->q.batch || a->k.heads != a->v.heads ||
        a->k.seq != a->v.seq || a->k.dim != a->q.dim)
        return case_fail(c, "the shapes of queries, keys and values do not fit");
    if (a->q.heads == 0 || a->k.heads == 0)
        return case_fail(c, "a tensor without heads");
    if (a->past_k.data != NULL && (!past_fits(&a->past_k, &a->k) || !past_fits(&a->past_v, &a->v) ||
                                   a->past_k.seq != a->past_v.seq))
        return case_fail(c, "the past does not fit the new keys");
    return 1;
}

int case_open_call(test_case *c, case_call *a)
{
    if (!check_views(c, a))
        return 0;
    if (a->present_k != NULL || a->present_v != NULL)
        a->cached = 1;
    a->keys = a->past_k.seq + a->k.seq;
    a->mask_keys = -1;
    a->factor = 1;
    a->p.batch = a->q.batch;
    a->p.num_heads_q = a->q.heads;
    a->p.num_heads_kv = a->k.heads;
    a->p.seq_len_q = a->q.seq;
    a->p.seq_len_kv = a->keys;
    a->p.head_dim = a->q.dim;
    a->p.head_dim_v = a->v.dim;
    a->p.q = case_view_input(&a->q);
    a->p.k = case_view_input(&a->k);
    a->p.v = case_view_input(&a->v);
    return 1;
}

/* A scale of 0 asks for all logits 0; to the library 0 means the default, so q becomes 0, and k
 * for its gradient of q. */
void case_set_scale(test_case *c, case_call *a)
{
    const size_t bytes = (size_t)a->q.dim * sizeof(float);
    attn_tensor *const zero[] = { &a->p.q, &a->p.k };
    if (case_text(c, "scale", NULL) == NULL)
        return;
    a->p.scale = (float)case_number(c, "scale", 0);
    for (int i = 0; i < 2 && a->p.scale == 0; i++) {
        zero[i]->data = memset(test_alloc(bytes), 0, bytes);
        zero[i]->stride_batch = zero[i]->stride_head = zero[i]->stride_seq = ATTN_STRIDE_BROADCAST;
    }
}

void case_set_offset(case_call *a, int64_t offset)
{
    int32_t *all = test_alloc((size_t)a->q.batch * sizeof *all);
    for (int64_t b = 0; b < a->q.batch; b++)
        all[b] = (int32_t)offset;
    a->p.q_offset = all;
    a->p.alignment = ATTN_ALIGN_OFFSET;
}

const float *case_floats(test_case *c, const case_tensor *t)
{
    float *numbers;
    if (t->type == F32)
        return t->data;
    if (t->type != F16) {
        case_fail(c, "%s has type %s", t->name, case_types[t->type].name);
        return NULL;
    }
    numbers = test_alloc((size_t)t->count * sizeof *numbers);
    for (int64_t i = 0; i < t->count; i++)
        numbers[i] = (float)case_element(F16, t->data, i);
    return numbers;
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* Strides of a mask aligned at the right to [batch, heads, q, keys]. A
 * last dimension shorter than the keys ends the visible keys (from opset 24 of ONNX on also one of
 * 1). */
static int mask_strides(test_case *c, case_call *a, const case_tensor *m, ptrdiff_t *stride)
{
    const int64_t size[4] = { a->q.batch, a->q.heads, a->q.seq, a->keys };
    const int one_key = c->opset >= 24 && strcmp(c->op, "Attention") == 0;
    ptrdiff_t step = 1;
    for (int axis = 3; axis >= 0; axis--) {
        const int from = axis - (4 - m->rank);
        const int64_t dim = from >= 0 ? m->dim[from] : 1;
        const int broadcast = from < 0 || (dim == 1 && (axis < 3 || !one_key));
        stride[axis] = broadcast || dim == 1 ? ATTN_STRIDE_BROADCAST : step;
        if (axis == 3 && !broadcast && dim < size[3])
            a->mask_keys = dim;
        else if (!broadcast && dim != size[axis])
            return case_fail(c, "axis %d of %s is %lld, not %lld or 1", from, m->name,
                             (long long)dim, (long long)size[axis]);
        step *= (ptrdiff_t)dim;
    }
    return 1;
}

int case_set_mask(test_case *c, case_call *a, const case_tensor *m)
{
    ptrdiff_t stride[4];
    if (m == NULL)
        return 1;
    if (m->rank > 4)
        return case_fail(c, "%s has rank %d", m->name, m->rank);
    if (!mask_strides(c, a, m, stride))
        return 0;
    if (m->count == 0) {
        a->mask_keys = 0;
    } else if (m->type == BOOL) {
        const attn_mask mask = { 0, stride[0], stride[1], stride[2], stride[3], m->data };
        a->p.bool_mask = mask;
    } else if (m->type == F16 || m->type == F32) {
        const attn_bias bias = { m->type == F16 ? ATTN_F16 : ATTN_F32,
                                 stride[0],
                                 stride[1],
                                 stride[2],
                                 stride[3],
                                 m->data };
        a->p.bias = bias;
    } else {
        return case_fail(c, "%s has type %s", m->name, case_types[m->type].name);
    }
    return 1;
}

/* ---- what really ran, over all cases of this process ----------------------------------------- */

static struct {
    const char *what, *impl, *kernels;
    int64_t calls;
} executed[16];
enum { MAX_EXECUTED = sizeof executed / sizeof *executed };

void case_count_executed(const char *what, const char *impl, const char *kernels)
{
    int i = 0;
    while (i < MAX_EXECUTED - 1 && executed[i].calls > 0 &&
           (strcmp(executed[i].what, what) != 0 || strcmp(executed[i].impl, impl) != 0 ||
            strcmp(executed[i].kernels, kernels) != 0))
        i++;
    executed[i].what = what;
    executed[i].impl = impl;
    executed[i].kernels = kernels;
    executed[i].calls++;
}

static int execute(test_case *c, const attn_params *p)
{
    const attn_params used = test_params(p);
    char text[200];
    const attn_status status = test_run(p);
    const char *why;
    attn_info info;
    if (status != ATTN_OK)
        return case_fail(c, "%s: %s", attn_status_string(status),
                         attn_check(&used, NULL, 0, text, sizeof text));
    if (attn_explain(&used, &info) != ATTN_OK)
        return case_fail(c, "attn_explain fails");
    if (T.backend != NULL && strcmp(info.backend_name, T.backend->name) != 0) {
        case_count_executed("attention that the device refused", info.impl_name, info.kernels_name);
        why = strstr(info.reasons, "refused: ");
        return device_refused(info.reasons) || case_fail(c, "%s", why != NULL ? why : "refused");
    }
    case_count_executed("attention", info.impl_name,
                        T.backend != NULL ? T.backend->name : info.kernels_name);
    return 1;
}

void case_print_executed(void)
{
    for (int i = 0; i < MAX_EXECUTED; i++)
        if (executed[i].calls > 0)
            printf("executed so far: %s, %s with %s: %lld calls\n", executed[i].what,
                   executed[i].impl, executed[i].kernels, (long long)executed[i].calls);
}

/* ---- results --------------------------------------------------------------------------------- */

/* The type of results for a stored tensor: f16 if that is f16, else f32; NULL = f32. */
static int result_type(const case_tensor *want)
{
    return want != NULL && want->type == F16 ? F16 : F32;
}

/* An output buffer in the order of the stored tensor; without one, of rank 4. */
static int give_output(test_case *c, const case_call *a, attn_output *o, case_results *r)
{
    const case_tensor *want = a->y;
    const case_view *q = &a->q;
    const int rank = want != NULL && want->rank == 3 ? 3 : 4;
    const int64_t dim4[] = { q->batch, q->heads, q->seq, a->v.dim };
    const int64_t dim3[] = { q->batch, q->seq, q->heads * a->v.dim };
    const ptrdiff_t d = (ptrdiff_t)a->v.dim, s = (ptrdiff_t)q->seq, h = (ptrdiff_t)q->heads;
    if (want == NULL && !a->backward)
        return case_fail(c, "the case has no output to compare");
    if (want != NULL && !case_has_shape(c, want, rank, rank == 3 ? dim3 : dim4))
        return 0;
    r->y = test_alloc((size_t)(q->batch * h * s * d) * case_types[result_type(want)].size);
    o->dtype = result_type(want) == F16 ? ATTN_F16 : ATTN_F32;
    o->stride_batch = h * s * d;
    o->stride_head = rank == 3 ? d : s * d;
    o->stride_seq = rank == 3 ? h * d : d;
    o->data = r->y;
    return 1;
}

static int give_lse(test_case *c, const case_call *a, attn_params *p, case_results *r)
{
    const int64_t rows[] = { a->q.batch, a->q.heads, a->q.seq };
    if (a->lse != NULL || a->backward)
        r->lse = test_alloc((size_t)(rows[0] * rows[1] * rows[2]) * sizeof *r->lse);
    p->lse.data = r->lse;
    if (a->backward) /* gradients read them in place of the lse */
        p->stats.data = test_alloc((size_t)(rows[0] * rows[1] * rows[2] * 2) * sizeof *r->lse);
    return a->lse == NULL || case_has_shape(c, a->lse, 3, rows);
}

static int give_logits(test_case *c, const case_call *a, case_results *r)
{
    const int64_t pairs[] = { a->q.batch, a->q.heads, a->q.seq, a->keys };
    if (a->logits == NULL)
        return 1;
    r->logits = test_alloc((size_t)a->logits->count * sizeof *r->logits);
    return case_has_shape(c, a->logits, 4, pairs);
}

static int give_present(test_case *c, const case_call *a, const case_tensor *want,
                        const case_view *v, void **to)
{
    const int64_t rows = a->present_rows > 0 ? a->present_rows : a->keys;
    const int64_t dim[] = { v->batch, v->heads, rows, v->dim };
    if (want == NULL)
        return 1;
    *to = test_alloc((size_t)want->count * case_types[v->type].size);
    return case_has_shape(c, want, 4, dim);
}

static int give_results(test_case *c, const case_call *a, attn_params *p, case_results *r)
{
    memset(r, 0, sizeof *r);
    return give_output(c, a, &p->o, r) && give_lse(c, a, p, r) && give_logits(c, a, r) &&
           give_present(c, a, a->present_k, &a->k, &r->present_k) &&
           give_present(c, a, a->present_v, &a->v, &r->present_v);
}

/* The stages before the masks hold every pair, also those of keys beyond the limit, which masks may
 * have no columns for. */
static int run_logits(test_case *c, const case_call *a, const attn_params *p, float *logits)
{
    attn_params raw = *p;
    if (logits == NULL)
        return 1;
    raw.o.data = raw.lse.data = raw.stats.data = NULL;
    raw.logits.stage = a->stage;
    raw.logits.data = logits;
    if (a->stage <= ATTN_LOGITS_SOFTCAP) {
        raw.kv_len = NULL;
        raw.bool_mask.data = NULL;
        raw.bias.data = NULL;
    }
    return execute(c, &raw);
}

/* One run with results of its own; page_size < 0: without a cache. */
static int run(test_case *c, const case_call *a, int64_t page_size, case_results *r)
{
    attn_params p = a->p;
    attn_cache cache;
    if (!give_results(c, a, &p, r))
        return 0;
    p.kv_len = a->limit;
    if (page_size >= 0 &&
        (!case_fill_cache(c, a, page_size, &cache, &p) || !case_read_cache(c, a, &cache, r)))
        return 0;
    r->p = p;
    return execute(c, &p) && run_logits(c, a, &p, r->logits);
}

static int same(const case_tensor *t, const void *a, const void *b, size_t size)
{
    return t == NULL || memcmp(a, b, (size_t)t->count * size) == 0;
}

static int same_results(const case_call *a, const case_results *x, const case_results *y)
{
    const size_t f = sizeof(float), k = case_types[a->k.type].size;
    return same(a->y, x->y, y->y, case_types[result_type(a->y)].size) &&
           same(a->lse, x->lse, y->lse, f) && same(a->logits, x->logits, y->logits, f) &&
           same(a->present_k, x->present_k, y->present_k, k) &&
           same(a->present_v, x->present_v, y->present_v, case_types[a->v.type].size);
}

static int compute(test_case *c, const case_call *a, case_results *r)
{
    case_results paged;
    if (!a->cached)
        return run(c, a, -1, r);
    if (!run(c, a, 0, r) || !run(c, a, CASE_PAGE, &paged))
        return 0;
    if (!same_results(a, r, &paged))
        return case_fail(c, "a cache in pages gives other bits than a contiguous one");
    c->cached = 1;
    case_note(c, "in a cache, contiguous and in pages: same bits");
    return 1;
}

int case_compute(test_case *c, const case_call *a, case_results *r)
{
    return compute(c, a, r) && (T.storage == ATTN_F32 || case_check_stored(c, a));
}

static int compare_present(test_case *c, const case_call *a, case_tensor *want, const case_view *v,
                           const void *got)
{
    int32_t *used;
    if (want == NULL)
        return 1;
    used = test_alloc((size_t)v->batch * sizeof *used);
    for (int64_t b = 0; b < v->batch; b++)
        used[b] = (int32_t)((a->past_len != NULL ? a->past_len[b] : a->past_k.seq) +
                            (a->new_len != NULL ? a->new_len[b] : a->k.seq));
    return compare_blocks(c, want, v->type, got, 1,
                          &(blocks){ v->batch, v->heads, want->dim[2], v->dim, used });
}

int case_compare_results(test_case *c, const case_call *a, const case_results *r)
{
    const case_view *q = &a->q;
    const int32_t *used = a->p.q_len;
    const int64_t width = q->heads * a->v.dim;
    const blocks by_token = { q->batch, 1, q->seq, width, used };
    const blocks by_head = { q->batch, q->heads, q->seq, a->v.dim, used };
    const blocks pairs = { q->batch, q->heads, q->seq, a->keys, used };
    const blocks rows = { q->batch, q->heads, q->seq, 1, used };
    if (a->y != NULL)
        compare_blocks(c, a->y, result_type(a->y), r->y, a->factor,
                       a->y->rank == 3 ? &by_token : &by_head);
    if (a->lse != NULL)
        compare_blocks(c, a->lse, F32, r->lse, 1, &rows);
    if (a->logits != NULL)
        compare_blocks(c, a->logits, F32, r->logits, 1, &pairs);
    compare_present(c, a, a->present_k, &a->k, r->present_k);
    compare_present(c, a, a->present_v, &a->v, r->present_v);
    return c->why[0] == '\0';
}
