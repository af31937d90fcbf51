/* src/backward/naive.c - naive gradients: the textbook in numbered passes over the matrices P and dS of a head.
 * SPDX-License-Identifier: MIT
 *
 * The matrices are [row tile][key][row]. They take neither o nor stats nor lse from the forward call. Each pass quotes the
 * line of the forward that it repeats or differentiates.
 */
#pragma once

#include "items.c"

/* A textbook_rows is a tile of rows and where its part of the matrices is. */
typedef struct textbook_rows {
    grad_tile *row;
    float *p, *ds; /* Both are [kv_len][rows]. */
    /* Both are [rows]: the logit of the row's sink in base 2, and its probability. */
    float *sink, *sink_p;
} textbook_rows;

static textbook_rows open_textbook(desk *w, int64_t tile_index)
{
    const int64_t at = tile_index * w->pl->rows * w->seq.kv_len;
    textbook_rows n;
    n.row = pack_rows(w, 0, tile_index * w->pl->rows, w->seq.q_len);
    n.p = w->matrix[KEYS] + at;
    n.ds = w->matrix[VALUES] + at;
    n.sink = n.row->m; /* The textbook reads no statistics, whose room this is. */
    n.sink_p = n.row->r;
    w->row_tiles = 1;
    return n;
}

/* textbook_logits computes s = softcap(scale q.k) + bias + ALiBi, callback and masks of the open
 * keys into w->s. It returns 0 if all of them are dead. */
static int textbook_logits(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_lanes all = { 0, w->pl->rows };
    tile *t = &n->row->t;
    const int visible = tile_class(t, j0, count);
    int k;
    load_keys(w, j0, count);
    if (visible != ATTN_TILE_EMPTY)
        pair_logits(w, t, j0, count, visible, all);
    for (k = 0; k < count * w->pl->rows && visible == ATTN_TILE_EMPTY; k++)
        w->s[k] = NEG_INF;
    return visible != ATTN_TILE_EMPTY;
}

/* each_keys calls `pass` for all keys of a row tile, tile by tile. */
static void each_keys(desk *w, const textbook_rows *n,
                      void (*pass)(desk *w, const textbook_rows *n, int64_t j0, int count))
{
    int64_t j;
    for (j = 0; j < w->seq.kv_len; j += w->pl->keys)
        pass(w, n, j, (int)min64(w->pl->keys, w->seq.kv_len - j));
}

/* Pass 1 computes S, the logits. */
static void textbook_scores(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    textbook_logits(w, n, j0, count);
    memcpy(n->p + j0 * w->pl->rows, w->s, (size_t)(count * w->pl->rows) * sizeof(float));
}

static void textbook_maximum(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    w->kernels->maximum(n->p + j0 * w->pl->rows, count, n->row->sum);
}

static void textbook_exp(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    w->kernels->exp_sum(n->p + j0 * w->pl->rows, count, ATTN_DEAD, n->row->sum, n->row->sum_total);
}

/* Pass 2 computes P = exp(S - max) / sum, where the sum has the sink's exp(sink - max), and marks
 * dead pairs ATTN_DEAD. */
static void textbook_softmax(desk *w, const textbook_rows *n)
{
    const int rows = w->pl->rows;
    const int64_t count = w->seq.kv_len;
    float *m = n->row->sum, *l = n->row->sum_total;
    int64_t j;
    int r;
    for (r = 0; r < rows; r++) {
        const lane *at = &n->row->t.lanes[r];
        n->sink[r] = at->used ? sink_of(&w->pr->p, at->head) * LOG2E_HI : NEG_INF;
        m[r] = n->sink[r];
        l[r] = 0.0f;
    }
    each_keys(w, n, textbook_maximum);
    each_keys(w, n, textbook_exp);
    for (r = 0; r < rows; r++) {
        float sink = m[r] == NEG_INF ? NEG_INF : n->sink[r] - m[r];
        sink = exp2_canon(sink);
        l[r] = l[r] + sink;
        n->sink_p[r] = l[r] == 0.0f ? 0.0f : sink / l[r];
        for (j = 0; j < count; j++) {
            float *p = &n->p[j * rows + r];
            *p = is_dead(*p) ? *p : *p / l[r];
        }
    }
}

/* Pass 3 differentiates O = P V: dP = dout V^T. With dropout that is the gradient by P' V, P' = P
 * keep / (1 - dropout_p). */
static void textbook_dp(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_lanes all = { 0, w->pl->rows };
    load_keys(w, j0, count);
    pair_dp(w, n->row, j0, count, all);
    memcpy(n->ds + j0 * w->pl->rows, w->dp, (size_t)(count * w->pl->rows) * sizeof(float));
}

/* Pass 4 differentiates P = softmax(S): dS = P (dP - sum of P dP over the row), and LSE gives P
 * dlse. */
static void textbook_ds(desk *w, const textbook_rows *n)
{
    const backward *back = w->back;
    const int rows = w->pl->rows;
    const int64_t count = w->seq.kv_len;
    const float *dlse = (const float *)back->grads.g.dlse.data;
    int64_t j;
    int r;
    for (r = 0; r < rows; r++) {
        const tile *t = &n->row->t;
        const lane *at = &t->lanes[r];
        float sum = 0.0f;
        for (j = 0; j < count; j++) {
            const float x = n->p[j * rows + r] * n->ds[j * rows + r];
            sum = is_dead(n->p[j * rows + r]) ? sum : sum + x;
        }
        if (dlse && at->used)
            sum = sum - dlse[ROW_AT(back->grads.g.dlse, &t->s, at->head, t->s.q_row + at->i)];
        n->row->delta[r] = sum;
        for (j = 0; j < count; j++) {
            const float p = n->p[j * rows + r], x = n->ds[j * rows + r] - sum;
            n->ds[j * rows + r] = is_dead(p) ? ATTN_DEAD : p * x;
        }
    }
}

/* Pass 5 differentiates the sink in the softmax: dSink = -P_sink (sum of P dP - dlse). */
static void textbook_sinks(const desk *w, const textbook_rows *n)
{
    int r;
    for (r = 0; r < w->pl->rows && n->row->t.lanes[r].used; r++) {
        float *to = &w->g->dsinks[n->row->t.lanes[r].head];
        const float x = n->sink_p[r] * n->row->delta[r];
        const float sink = sink_of(&w->pr->p, n->row->t.lanes[r].head);
        *to = is_neg_inf(sink) ? *to : *to - x;
    }
}

static void add_elements(desk *w, const tile *t, const attn_sum_axes *a, int64_t j0, int count)
{
    w->axes = a;
    add_to_elements(w, t, j0, count, t->span);
}

/* Pass 6 differentiates S = callback(softcap(scale q.k) + bias - slope distance), from the outside
 * in. */
static void textbook_modifiers(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_params *p = &w->pr->p;
    const size_t bytes = (size_t)(count * w->pl->rows) * sizeof(float);
    const attn_gradient_call *grads = &w->back->grads;
    const tile *t = &n->row->t;
    float *ds = n->ds + j0 * w->pl->rows;
    if ((p->score || p->softcap > 0) && !textbook_logits(w, n, j0, count))
        return;
    memcpy(w->s, n->p + j0 * w->pl->rows, bytes);
    memcpy(w->dp, ds, bytes);
    if (p->score)
        pass_score(w, t, j0, count);
    if (grads->bias.data)
        add_elements(w, t, &grads->bias, j0, count);
    if (grads->slopes.data) {
        memcpy(ds, w->dp, bytes);
        take_distances(w, t, j0, count, t->span);
        add_elements(w, t, &grads->slopes, j0, count);
        memcpy(w->dp, ds, bytes);
    }
    if (p->softcap > 0)
        w->kernels->softcap_gradient(w->dp, w->tanh, w->s, count);
    memcpy(ds, w->dp, bytes);
}

/* Pass 7 differentiates O = P V and S = scale Q K^T: dV += P^T dout, dQ += scale dS K, dK += scale
 * dS^T Q. */
static void textbook_products(desk *w, const textbook_rows *n, int64_t j0, int count)
{
    const attn_lanes all = { 0, w->pl->rows };
    const size_t bytes = (size_t)(count * w->pl->rows) * sizeof(float);
    const attn_term dk = { w->dp, n->row->q, all, 0, count };
    const attn_term dv = { w->s, n->row->dout, all, 0, count };
    load_keys(w, j0, count);
    mark_kept(w, n->row, j0, count);
    memcpy(w->s, n->p + j0 * w->pl->rows, bytes);
    memcpy(w->dp, n->ds + j0 * w->pl->rows, bytes);
    mark_live(w, count);
    scale_kept(w, w->s, count, ATTN_DEAD);
    add_to_dq(w, n->row->dq_total, j0, count, all);
    add_terms(w, KEYS, w->total[KEYS] + j0 * w->pl->pitch[KEYS], &dk, 1, count);
    add_terms(w, VALUES, w->total[VALUES] + j0 * w->pl->pitch[VALUES], &dv, 1, count);
}

static void textbook_head(desk *w)
{
    const int64_t tiles = ceil_div(w->seq.q_len, w->pl->rows);
    int64_t i;
    for (i = 0; i < tiles; i++) {
        const textbook_rows n = open_textbook(w, i);
        each_keys(w, &n, textbook_scores);
        textbook_softmax(w, &n);
        each_keys(w, &n, textbook_dp);
        textbook_ds(w, &n);
        if (w->want & WANT_SINKS)
            textbook_sinks(w, &n);
    }
    for (i = 0; i < tiles; i++) {
        const textbook_rows n = open_textbook(w, i);
        each_keys(w, &n, textbook_modifiers);
        clear(n.row->dq_total, w->pl->rows * w->pr->p.head_dim);
        each_keys(w, &n, textbook_products);
        if (w->want & WANT_DQ)
            write_dq(w, n.row);
    }
}

/* textbook_group takes all heads of a kv head of w->seq. */
static void textbook_group(desk *w)
{
    int64_t head;
    int which;
    for (which = KEYS; which <= VALUES; which++)
        clear(w->total[which], w->seq.kv_len * w->pl->pitch[which]);
    for (head = 0; head < w->pr->group; head++) {
        w->head = w->kv_head * w->pr->group + head;
        textbook_head(w);
    }
    write_keys(w, 0, w->seq.kv_len);
}

static void textbook_item(const call *c, char *slot, int64_t index)
{
    desk *w = open_desk(c, slot);
    w->want = w->lay->want;
    w->redo = 1; /* It always selects. */
    w->seq = sequence_of(&c->pr.p, index / c->pr.p.num_heads_kv);
    w->kv_head = index % c->pr.p.num_heads_kv;
    textbook_group(w);
}

static void store_both_sums(const attn_gradient_call *grads, int first)
{
    static const int64_t from[4] = { 0, 0, 0, 0 };
    if (grads->bias.data)
        store_elements(&grads->bias, from, grads->bias.count, first);
    if (grads->slopes.data)
        store_elements(&grads->slopes, from, grads->slopes.count, first);
}

/* textbook_sums_item takes everything in one item, as all heads and batch entries add to one set of
 * sums. */
static void textbook_sums_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const attn_gradient_call *grads = &backward_of(c)->grads;
    store_both_sums(grads, 1);
    if (grads->g.dsinks)
        clear(grads->g.dsinks, p->num_heads_q);
    for (; index < p->batch * p->num_heads_kv; index++)
        textbook_item(c, slot, index);
    store_both_sums(grads, 0);
}
