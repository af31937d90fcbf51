/* src/naive.c - naive items: the textbook formula on a materialised matrix, in numbered passes.
 * SPDX-License-Identifier: MIT
 *
 * An item is one query head. The kernels are those of tiled items, so that naive is an honest
 * baseline. Matrix layout: for each tile of query rows [kv_len][rows] logits, then m[rows], l[rows], and
 * what src/insight.c adds.
 */
#pragma once

#include "tiled.c"

typedef struct naive_tile {
    float *logits, *m, *l, *tail;
} naive_tile;

static naive_tile naive_tile_of(const tile *t, int64_t tile_index)
{
    const int64_t rows = t->pl->rows, keys = t->s.kv_len;
    naive_tile n;
    n.logits = t->matrix + tile_index * rows * (keys + 2 + insight_rows(&t->pr->p));
    n.m = n.logits + rows * keys;
    n.l = n.m + rows;
    n.tail = n.l + rows;
    return n;
}

static int naive_rows(tile *t, int64_t head, int64_t tile_index)
{
    const row_choice choice = { head, 1, tile_index * t->pl->rows, t->s.q_len, .list = NULL };
    return set_rows(t, &choice);
}

/* 1. logits = softcap(scale * Q K^T) + bias, masked */
static void naive_logits(tile *t, const naive_tile *n)
{
    const int64_t rows = t->pl->rows, keys = t->pl->keys;
    int64_t j, k;
    for (j = 0; j < t->s.kv_len; j += keys) {
        const int count = (int)min64(keys, t->s.kv_len - j);
        const int class = tile_class(t, j, count);
        float *s = n->logits + j * rows;
        if (class == ATTN_TILE_EMPTY)
            for (k = 0; k < count * rows; k++)
                s[k] = NEG_INF;
        else
            open_logits(t, s, j, count, class, ATTN_LOGITS_SOFTMAX);
    }
}

/* watch_softmax is step 3 with insight, block by block. */
static void watch_softmax(tile *t, const naive_tile *n)
{
    const attn_lanes all = { 0, t->pl->rows };
    int64_t j;
    begin_insight(t, n->tail, NULL);
    for (j = 0; j < t->s.kv_len; j += ATTN_BLOCK) {
        const int count = (int)min64(ATTN_BLOCK, t->s.kv_len - j);
        const attn_exp e = { n->logits + j * t->pl->rows, count, n->m, n->l, all, .calm = 0 };
        keep_logits(t, n->tail, e.s, count, all, j);
        t->pl->kernels->exp_sum(e.s, count, t->dead, n->m, n->l);
        add_entropy(t, n->tail, &e);
    }
}

/* 2. m = max over keys   3. p = exp(logit - m), l = sum of p */
static void naive_softmax(tile *t, const naive_tile *n)
{
    const int count = (int)t->s.kv_len;
    int64_t r;
    for (r = 0; r < t->pl->rows; r++) {
        n->m[r] = NEG_INF;
        n->l[r] = 0.0f;
    }
    if (count > 0)
        t->pl->kernels->maximum(n->logits, count, n->m);
    if (t->insight)
        watch_softmax(t, n);
    else if (count > 0)
        t->pl->kernels->exp_sum(n->logits, count, t->dead, n->m, n->l);
}

/* 4. o = P V. Tiles end where n(j) is a multiple of their length, as packs of kernels that round do. */
static float *naive_values(tile *t, const naive_tile *n)
{
    const int64_t rows = t->pl->rows, keys = t->pl->keys;
    const attn_lanes all = { 0, t->pl->rows };
    float *state = begin_state(t);
    int64_t j, count;
    memcpy(state, n->m, (size_t)rows * sizeof *state);
    memcpy(state_l(t, state), n->l, (size_t)rows * sizeof *state);
    memcpy(state_tail(t, state), n->tail, (size_t)(rows * insight_rows(&t->pr->p)) * sizeof *state);
    for (j = 0; wants_values(&t->pr->p) && j < t->s.kv_len; j += count) {
        count = min64(keys - (t->s.key_base + j) % keys, t->s.kv_len - j);
        if (t->pr->drop_below)
            drop_keys(t, n->logits + j * rows, j, (int)count);
        open_keys(t, j, (int)count);
        add_products(t, state_o(t, state), n->logits + j * rows, j, (int)count, all, NULL);
    }
    return state;
}

static float *naive_redo(tile *t, const naive_tile *n)
{
    t->dead = ATTN_DEAD;
    naive_logits(t, n);
    naive_softmax(t, n);
    return naive_values(t, n);
}

static void naive_item(const call *c, char *slot, int64_t index)
{
    const attn_params *p = &c->pr.p;
    const int64_t head = index % p->num_heads_q;
    tile *t = open_tile(c, slot, 0);
    int64_t tiles, i;
    t->s = sequence_of(p, index / p->num_heads_q);
    t->kv_head = head / c->pr.group;
    if (p->naive_whole)
        t->matrix = c->shared + index * c->pl.matrix_floats;
    tiles = ceil_div(t->s.q_len, c->pl.rows);
    for (i = 0; i < tiles; i++) {
        const naive_tile n = naive_tile_of(t, i);
        naive_rows(t, head, i);
        naive_logits(t, &n);
    }
    for (i = 0; i < tiles; i++) {
        const naive_tile n = naive_tile_of(t, i);
        naive_softmax(t, &n);
    }
    for (i = 0; i < tiles; i++) {
        const naive_tile n = naive_tile_of(t, i);
        float *state;
        naive_rows(t, head, i);
        state = naive_values(t, &n);
        if (needs_redo(t, state)) {
            give_state(t, state);
            state = naive_redo(t, &n);
        }
        write_rows(t, state);
        give_state(t, state);
    }
}
