/* merge.c - states of parts of the keys, merged, against one call.
 * SPDX-License-Identifier: MIT
 */
#include "laws.h"
#include "oracle.h"
#include "slices.h"

#include <math.h>
#include <string.h>

/* ---- raw states along the tree of docs/canon.md ---------------------------------------------- */

typedef struct tree {
    const test_problem *t; /* one batch entry, key numbers from t->p.key_base[0] */
    int64_t first, end;    /* key numbers n present */
    int64_t rows, dim_v;
    int failed;
} tree;

attn_state states_alloc(int64_t rows, int64_t dim_v)
{
    attn_state s;
    memset(&s, 0, sizeof s);
    s.num_rows = rows;
    s.head_dim_v = dim_v;
    s.m = test_alloc((size_t)rows * sizeof(float));
    s.l = test_alloc((size_t)rows * sizeof(float));
    s.o = test_alloc((size_t)(rows * dim_v) * sizeof(float));
    return s;
}

static attn_state new_state(const tree *c)
{
    return states_alloc(c->rows, c->dim_v);
}

static void use_state(attn_params *p, attn_state state)
{
    p->partial = 1;
    p->state = state;
    memset(&p->o, 0, sizeof p->o);
    memset(&p->lse, 0, sizeof p->lse);
}

/* One call over the keys low <= n < high. */
static attn_state leaf(tree *c, int64_t low, int64_t high)
{
    attn_params p = c->t->p;
    const attn_state state = new_state(c);
    slice_keys(&p, c->t, low - c->first, high - low);
    use_state(&p, state);
    c->failed |= !run_part(&p, "a part of the keys");
    return state;
}

static attn_state merged(tree *c, const attn_state *a, attn_state *b)
{
    const int where = (int)rng_int(0, 2); /* out may be a, b or neither */
    attn_state out = where == 0 ? *a : where == 1 ? *b : new_state(c);
    const attn_status status = attn_state_merge(a, b, &out);
    c->failed |= !CHECK(status == ATTN_OK, "attn_state_merge: %s", attn_status_string(status));
    return out;
}

/* The node of `chunks` chunks from chunk `at`, which holds some keys: one call, or its halves, the
 * upper one computed first now and then. */
static attn_state node(tree *c, int64_t at, int64_t chunks)
{
    const int64_t low = at * ATTN_CHUNK, high = (at + chunks) * ATTN_CHUNK;
    const int64_t middle = (at + chunks / 2) * ATTN_CHUNK;
    attn_state a, b;
    if (chunks == 1 || rng_chance(25))
        return leaf(c, low > c->first ? low : c->first, high < c->end ? high : c->end);
    if (middle <= c->first)
        return node(c, at + chunks / 2, chunks / 2);
    if (middle >= c->end)
        return node(c, at, chunks / 2);
    if (rng_chance(50)) {
        a = node(c, at, chunks / 2);
        b = node(c, at + chunks / 2, chunks / 2);
    } else {
        b = node(c, at + chunks / 2, chunks / 2);
        a = node(c, at, chunks / 2);
    }
    return merged(c, &a, &b);
}

static int same_floats(const float *a, const float *b, int64_t count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

static void check_states(const tree *c, const attn_state *root)
{
    attn_params p = c->t->p;
    const attn_state once = new_state(c);
    use_state(&p, once);
    if (!run_part(&p, "all keys"))
        return;
    CHECK(same_floats(once.m, root->m, c->rows) && same_floats(once.l, root->l, c->rows) &&
              same_floats(once.o, root->o, c->rows * c->dim_v),
          "the raw states of parts, merged, are not those of one call");
}

/* One batch entry of 1000 to 6000 keys with key_base, masks and modifiers. */
static void make_long(test_problem *t, int64_t *base)
{
    static const char *const banned[] = { "q_len",  "kv_len",   "key_base", "long",
                                          "layout", "odd_dims", NULL };
    test_problem some;
    test_shape s;
    attn_params p;
    make_background(&some, rng_chance(30) ? "dropout" : NULL, 0, banned);
    memset(&s, 0, sizeof s);
    s.batch = 1;
    s.heads_kv = 1;
    s.heads_q = rng_int(1, 2);
    s.seq_q = rng_int(1, 6);
    s.seq_kv = rng_int(900, 6000);
    s.dim = rng_int(1, 12);
    s.dim_v = rng_int(1, 6);
    s.factor_q = 4;
    problem_make(t, &s);
    p = t->p;
    /* the background's scalars; its arrays have other sizes */
    p.causal = some.p.causal, p.window = some.p.window;
    p.window_left = some.p.window_left * 20, p.window_right = some.p.window_right;
    if (p.window_left < 0)
        p.window_left = -1;
    p.chunk_size = some.p.chunk_size * 50;
    p.softcap = some.p.softcap;
    p.scale = some.p.scale;
    p.dropout_p = some.p.dropout_p, p.dropout_seed = some.p.dropout_seed;
    p.softmax1 = rng_chance(30);
    *base = rng_chance(50) ? 0 : rng_int(0, 5000);
    p.key_base = base;
    t->p = p;
}

void law_merge(int round)
{
    test_problem a, b;
    tree c;
    attn_state root;
    int64_t base, chunks = 1;
    attn_status status;
    (void)round;
    make_long(&a, &base);
    twin(&a, &b);
    memset(&c, 0, sizeof c);
    c.t = &a;
    c.first = base;
    c.end = base + a.p.seq_len_kv;
    c.rows = a.p.seq_len_q * a.p.num_heads_q;
    c.dim_v = a.p.head_dim_v;
    while (chunks * ATTN_CHUNK < c.end)
        chunks *= 2;
    root = node(&c, 0, chunks);
    if (c.failed || !problem_run(&a))
        return;
    b.p = test_params(&b.p);
    status = attn_state_finish(&b.p, &root);
    CHECK(status == ATTN_OK, "attn_state_finish: %s", attn_status_string(status));
    compare_with_oracle(&b.p);
    if (T.impl == ATTN_IMPL_NAIVE)
        return; /* its states are right, but not those of the tree */
    check_states(&c, &root);
    CHECK(problem_same_bits(&a, &b), "merged parts, finished, and one call");
}

/* A row whose values, all -1, are rescaled to zero by a dropped key of value 1: the products leave
 * -0 or +0, as the key takes part with p = +0 or not at all. It does not show. */
void law_zero_sign(int round)
{
    float q = 1, k[17] = { 0 }, v[17], m, l, o[2];
    attn_params p = {
        .batch = 1, .num_heads_q = 1, .seq_len_q = 1, .seq_len_kv = 17, .head_dim = 1
    };
    attn_pair last = { .j = 16, .n = 16 };
    p.scale = 1;
    p.alignment = ATTN_ALIGN_TOP_LEFT;
    p.q.data = &q;
    p.k.data = k;
    p.v.data = v;
    p.partial = 1;
    p.state.m = &m;
    p.state.l = &l;
    p.dropout_p = 0.5f;
    for (p.dropout_seed = (uint64_t)round * 100; attn_dropout_keep(p.dropout_seed, 0.5f, &last);)
        p.dropout_seed++;
    for (int j = 0; j < 17; j++)
        v[j] = j < 16 ? -1.0f : 1.0f;
    k[16] = 1000;
    for (p.force_redo = 0; p.force_redo < 2; p.force_redo++) {
        p.state.o = &o[p.force_redo];
        CHECK(test_run(&p) == ATTN_OK, "refused");
        CHECK(float_bits(o[p.force_redo]) == 0, "redo %d: %08x", p.force_redo,
              (unsigned)float_bits(o[p.force_redo]));
    }
}

/* ---- finished results merged by their LSE ---------------------------------------------------- */

static attn_params into(const attn_params *p, float *o, float *lse)
{
    attn_params q = *p;
    memset(&q.o, 0, sizeof q.o);
    memset(&q.lse, 0, sizeof q.lse);
    memset(&q.stats, 0, sizeof q.stats);
    q.o.data = o;
    q.lse.data = lse;
    return q;
}

/* A part of the keys into new packed arrays. */
static int part(const test_problem *t, int64_t begin, int64_t count, int is_second, float *o,
                float *lse)
{
    attn_params p = t->p;
    slice_keys(&p, t, begin, count);
    p = into(&p, o, lse);
    if (is_second)
        p.softmax1 = 0; /* one entry of the sink over all parts */
    return run_part(&p, "a part of the keys");
}

void law_lse_merge(int round)
{
    test_problem t;
    int64_t base, rows, cut;
    float *o[2], *lse[2];
    attn_params whole;
    attn_status status;
    make_long(&t, &base);
    rows = t.p.seq_len_q * t.p.num_heads_q;
    for (int n = 0; n < 2; n++) {
        o[n] = test_alloc((size_t)(rows * t.p.head_dim_v) * sizeof(float));
        lse[n] = test_alloc((size_t)rows * sizeof(float));
    }
    cut = round % 6 == 0 ? 0 : round % 6 == 1 ? t.p.seq_len_kv : rng_int(0, t.p.seq_len_kv);
    if (!part(&t, 0, cut, 0, o[0], lse[0]) || !part(&t, cut, t.p.seq_len_kv - cut, 1, o[1], lse[1]))
        return;
    status = attn_lse_merge(rows, t.p.head_dim_v, o[0], lse[0], o[1], lse[1], o[round % 2],
                            lse[round % 2]);
    CHECK(status == ATTN_OK, "attn_lse_merge: %s", attn_status_string(status));
    whole = into(&t.p, o[round % 2], lse[round % 2]);
    compare_with_oracle(&whole);
}

/* ---- empty parts are the identity, whatever they hold ---------------------------------------- */

enum { PART_ROWS = 8, PART_DIM = 3 };

/* Row r of side 0 is empty if r & 1, of side 1 if r & 2: NaN or garbage where nobody may look. */
static void fill_part(float *m, float *l, float *o, int side)
{
    for (int r = 0; r < PART_ROWS; r++) {
        const int empty = r >> side & 1;
        m[r] = empty ? r < 4 ? float_from_bits(0x7fc00000u) : 3e38f : rng_normal();
        l[r] = empty ? 0 : 1 + rng_unit();
        for (int d = 0; d < PART_DIM; d++)
            o[r * PART_DIM + d] = !empty  ? rng_normal()
                                  : r < 4 ? float_from_bits(0xffc00001u)
                                          : HUGE_VALF;
    }
}

static void check_empty_states(int where)
{
    attn_state part[2], before[2], out;
    tree c;
    memset(&c, 0, sizeof c);
    c.rows = PART_ROWS;
    c.dim_v = PART_DIM;
    for (int side = 0; side < 2; side++) {
        part[side] = new_state(&c);
        before[side] = new_state(&c);
        fill_part(part[side].m, part[side].l, part[side].o, side);
        part[side].m[3] = -HUGE_VALF; /* empty on both sides */
        for (int d = 0; d < PART_DIM; d++)
            part[side].o[3 * PART_DIM + d] = 0;
        memcpy(before[side].m, part[side].m, PART_ROWS * sizeof(float));
        memcpy(before[side].l, part[side].l, PART_ROWS * sizeof(float));
        memcpy(before[side].o, part[side].o, PART_ROWS * PART_DIM * sizeof(float));
    }
    out = where == 0 ? part[0] : where == 1 ? part[1] : new_state(&c);
    CHECK(attn_state_merge(&part[0], &part[1], &out) == ATTN_OK, "attn_state_merge");
    for (int r = 0; r < PART_ROWS; r++) {
        const attn_state *other = &before[r & 1];
        if ((r & 3) == 0 || r == 7)
            continue;
        CHECK(same_floats(out.m + r, other->m + r, 1) && same_floats(out.l + r, other->l + r, 1) &&
                  same_floats(out.o + r * PART_DIM, other->o + r * PART_DIM, PART_DIM),
              "state %d is not that of the part with keys", r);
    }
}

static void check_empty_results(int where)
{
    float m[PART_ROWS], lse[2][PART_ROWS], o[2][PART_ROWS * PART_DIM];
    float lse_before[2][PART_ROWS], o_before[2][PART_ROWS * PART_DIM];
    float new_lse[PART_ROWS], new_o[PART_ROWS * PART_DIM];
    float *lse_out = where == 2 ? new_lse : lse[where], *o_out = where == 2 ? new_o : o[where];
    for (int side = 0; side < 2; side++) {
        fill_part(m, lse[side], o[side], side);
        for (int r = 0; r < PART_ROWS; r++)
            if (r >> side & 1)
                lse[side][r] = -HUGE_VALF;
        for (int d = 0; d < PART_DIM; d++)
            o[side][3 * PART_DIM + d] = 0;
    }
    memcpy(lse_before, lse, sizeof lse);
    memcpy(o_before, o, sizeof o);
    CHECK(attn_lse_merge(PART_ROWS, PART_DIM, o[0], lse[0], o[1], lse[1], o_out, lse_out) ==
              ATTN_OK,
          "attn_lse_merge");
    for (int r = 0; r < PART_ROWS; r++)
        if ((r & 3) != 0 && r != 7)
            CHECK(same_floats(lse_out + r, lse_before[r & 1] + r, 1) &&
                      same_floats(o_out + r * PART_DIM, o_before[r & 1] + r * PART_DIM, PART_DIM),
                  "result %d is not that of the part with keys", r);
}

void law_empty_parts(int round)
{
    if (round % 2 == 0)
        check_empty_states(round / 2 % 3);
    else
        check_empty_results(round / 2 % 3);
}
