/* multi_expert.c - two experts, one attention: a prefix is read once, an action is refined many
 * times.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 -ffp-contract=off examples/multi_expert.c attn.c -o multi_expert
 *     ./multi_expert
 *
 * Models of robots work like this (pi0, built on PaliGemma): a wide expert reads what the robot
 * sees and is told, and a narrow one makes an action from noise in several steps of flow matching.
 * Each has its own weights and width. Only queries, keys and values have one shape, and they
 * meet in one attention:
 *
 *     tokens        0 .. PREFIX-1                PREFIX .. LENGTH-1
 *     expert        READER, 128 wide             ACTOR, 48 wide
 *     looks at      the whole prefix             the prefix, and actions up to its own
 *                   (p.causal with p.prefix: a prefix language model)
 *
 * In every other layer a token looks at most WINDOW tokens back. The prefix does not depend on the
 * action, so its keys and values are cached once for all layers. Each step appends those of the
 * action and then trims them away again. The result must have the bits of the same steps without a
 * cache, in which every layer takes prefix and action at once. */
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    READER, ACTOR, EXPERTS,
    PREFIX = 48, ACTION = 10, LENGTH = PREFIX + ACTION,
    LAYERS = 3, HEADS_Q = 4, HEADS_KV = 2, HEAD_DIM = 256, WINDOW = 20,
    WIDTH_Q = HEADS_Q * HEAD_DIM, WIDTH_KV = HEADS_KV * HEAD_DIM,
    WIDEST = 128, STEPS = 5
};

static const int width[EXPERTS] = {128, 48};

/* The weights of an expert in one layer. It uses as much of each matrix as its width fills. */
typedef struct weights {
    float query[WIDEST * WIDTH_Q], key[WIDEST * WIDTH_KV], value[WIDEST * WIDTH_KV];
    float out[WIDTH_Q * WIDEST];
} weights;

/* Hidden rows of one expert, and the outputs of its layers, which are compared at the end. */
typedef struct rows {
    int expert, n, first; /* first is the position of its first row */
    float x[PREFIX * WIDEST];
} rows;

typedef struct trace {
    float attention[STEPS][LAYERS][ACTION * WIDTH_Q]; /* the action's rows */
    float action[STEPS][ACTION * WIDEST];             /* after each step */
} trace;

static weights model[LAYERS][EXPERTS];
static const attn_rope rope; /* base 10000, half-split, as in Gemma */
static char why[300];

static void must(attn_status status)
{
    if (status == ATTN_OK) return;
    printf("%s: %s\n", attn_status_string(status), why);
    exit(1);
}

/* ---- products; each float operation a statement, so that the bits are the same everywhere */

static void fill(float *x, int n, float size, uint32_t *seed)
{
    for (int i = 0; i < n; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        x[i] = (float)((int32_t)(*seed >> 8) - (1 << 23)) * 0x1p-23f;
        x[i] = x[i] * size;
    }
}

/* y = x w */
static void product(float *y, const float *x, const float *w, int n, int inputs, int outputs)
{
    for (int r = 0; r < n; r++, x += inputs, y += outputs) {
        for (int j = 0; j < outputs; j++) y[j] = 0;
        for (int i = 0; i < inputs; i++)
            for (int j = 0; j < outputs; j++) {
                const float term = x[i] * w[i * outputs + j];
                y[j] = y[j] + term;
            }
    }
}

/* y = y + size * x */
static void add(float *y, float size, const float *x, int n)
{
    for (int i = 0; i < n; i++) {
        const float term = size * x[i];
        y[i] = y[i] + term;
    }
}

/* ---- one layer of one expert: rows to queries, keys and values; what attention gave to rows */

static void project(const rows *r, int layer, float *q, float *k, float *v)
{
    const weights *w = &model[layer][r->expert];
    product(q, r->x, w->query, r->n, width[r->expert], WIDTH_Q);
    product(k, r->x, w->key, r->n, width[r->expert], WIDTH_KV);
    product(v, r->x, w->value, r->n, width[r->expert], WIDTH_KV);
}

static void take_in(rows *r, int layer, const float *o)
{
    static float y[PREFIX * WIDEST];
    product(y, o, model[layer][r->expert].out, r->n, WIDTH_Q, width[r->expert]);
    add(r->x, 1, y, r->n * width[r->expert]);
}

/* ---- the attention that they share */

static void turn(float *x, int heads, int64_t first, int n)
{
    attn_rope_rows r = {0};
    r.batch = 1;
    r.num_heads = heads;
    r.seq_len = n;
    r.head_dim = HEAD_DIM;
    r.layout = ATTN_LAYOUT_BSHD; /* [token, head, dim] */
    r.x.data = x;
    r.y.data = x;
    r.first = &first;
    must(attn_rope_apply(&rope, &r, why, sizeof why));
}

/* Computes attention of the n newest tokens over the keys of *p, by the masks of this layer. */
static void attend(attn_params *p, int layer, const float *q, int n, float *o)
{
    static const int32_t prefix[1] = {PREFIX};
    static char workspace[1 << 20];
    p->num_heads_q = HEADS_Q;
    p->seq_len_q = n;
    p->layout = ATTN_LAYOUT_BSHD;
    p->q.data = q;
    p->o.data = o;
    p->causal = 1;
    p->prefix = prefix;
    if (layer % 2 == 1) {
        p->window = ATTN_WINDOW;
        p->window_left = WINDOW;
        p->window_right = -1; /* the prefix also looks ahead */
    }
    attn_check(p, workspace, sizeof workspace, why, sizeof why);
    must(attn_forward(p, workspace, sizeof workspace));
}

/* ---- with a cache: new rows, after those that it has */

static void set_step(attn_cache_step *s, const rows *r, const float *k, const float *v)
{
    s->batch = 1;
    s->seq_len = r->n;
    s->layout = ATTN_LAYOUT_BSHD;
    s->k.data = k;
    s->v.data = v;
    s->rope = &rope;
}

/* Runs all layers. `attention` (may be NULL) keeps the output of each. */
static void pass_cached(attn_cache *c, rows *r, float (*attention)[ACTION * WIDTH_Q])
{
    static float q[PREFIX * WIDTH_Q], k[PREFIX * WIDTH_KV], v[PREFIX * WIDTH_KV];
    static float o[PREFIX * WIDTH_Q];
    attn_cache_step s = {0};
    set_step(&s, r, k, v);
    must(attn_cache_extend(c, &s, why, sizeof why));
    for (int layer = 0; layer < LAYERS; layer++) {
        attn_params p = {0};
        project(r, layer, q, k, v);
        turn(q, HEADS_Q, r->first, r->n);
        must(attn_cache_write(c, layer, &s, why, sizeof why));
        must(attn_cache_view(c, layer, NULL, 1, &p, NULL, 0, why, sizeof why));
        attend(&p, layer, q, r->n, o);
        if (attention) memcpy(attention[layer], o, sizeof attention[layer]);
        take_in(r, layer, o);
    }
}

/* ---- without: two segments of queries, keys and values, one after the other */

static void pass_whole(rows *prefix, rows *action, float (*attention)[ACTION * WIDTH_Q])
{
    static float q[LENGTH * WIDTH_Q], k[LENGTH * WIDTH_KV], v[LENGTH * WIDTH_KV];
    static float o[LENGTH * WIDTH_Q];
    for (int layer = 0; layer < LAYERS; layer++) {
        attn_params p = {0};
        project(prefix, layer, q, k, v);
        project(action, layer, q + PREFIX * WIDTH_Q, k + PREFIX * WIDTH_KV,
                v + PREFIX * WIDTH_KV);
        turn(q, HEADS_Q, 0, LENGTH);
        turn(k, HEADS_KV, 0, LENGTH);
        p.batch = 1;
        p.num_heads_kv = HEADS_KV;
        p.seq_len_kv = LENGTH;
        p.head_dim = HEAD_DIM;
        p.k.data = k;
        p.v.data = v;
        attend(&p, layer, q, LENGTH, o);
        memcpy(attention[layer], o + PREFIX * WIDTH_Q, sizeof attention[layer]);
        take_in(prefix, layer, o);
        take_in(action, layer, o + PREFIX * WIDTH_Q);
    }
}

/* ---- flow matching: what the actor says is the direction in which the action moves */

static void move(float *action, const rows *said)
{
    add(action, 1.0f / STEPS, said->x, ACTION * width[ACTOR]);
}

static rows rows_from(int expert, const float *x)
{
    rows r = {0};
    r.expert = expert;
    r.n = expert == READER ? PREFIX : ACTION;
    r.first = expert == READER ? 0 : PREFIX;
    memcpy(r.x, x, (size_t)(r.n * width[expert]) * sizeof *x);
    return r;
}

static void refine_cached(attn_cache *c, const float *seen, const float *noise, trace *t)
{
    float action[ACTION * WIDEST];
    rows prefix = rows_from(READER, seen);
    memcpy(action, noise, sizeof action);
    pass_cached(c, &prefix, NULL); /* once */
    for (int step = 0; step < STEPS; step++) {
        rows r = rows_from(ACTOR, action);
        pass_cached(c, &r, t->attention[step]);
        move(action, &r);
        memcpy(t->action[step], action, sizeof action);
        must(attn_cache_trim(c, 0, 0, PREFIX, why, sizeof why));
    }
}

static void refine_whole(const float *seen, const float *noise, trace *t)
{
    float action[ACTION * WIDEST];
    memcpy(action, noise, sizeof action);
    for (int step = 0; step < STEPS; step++) {
        rows prefix = rows_from(READER, seen), r = rows_from(ACTOR, action);
        pass_whole(&prefix, &r, t->attention[step]);
        move(action, &r);
        memcpy(t->action[step], action, sizeof action);
    }
}

/* ---- comparing */

static void make_model(uint32_t *seed)
{
    for (int layer = 0; layer < LAYERS; layer++)
        for (int e = 0; e < EXPERTS; e++) {
            weights *w = &model[layer][e];
            const float size = e == READER ? 0.15f : 0.25f; /* about 1.7 / root of the width */
            fill(w->query, width[e] * WIDTH_Q, size, seed);
            fill(w->key, width[e] * WIDTH_KV, size, seed);
            fill(w->value, width[e] * WIDTH_KV, size, seed);
            fill(w->out, WIDTH_Q * width[e], 0.03f, seed);
        }
}

static int compare(const trace *a, const trace *b)
{
    int same = 1;
    for (int step = 0; step < STEPS; step++) {
        int layers = 0;
        for (int layer = 0; layer < LAYERS; layer++)
            layers += memcmp(a->attention[step][layer], b->attention[step][layer],
                             sizeof a->attention[step][layer]) == 0;
        const int end = memcmp(a->action[step], b->action[step], sizeof a->action[step]) == 0;
        printf("step %d: action begins %9.6f %9.6f, same bits in %d of %d layers and at the end: "
               "%s\n", step + 1, (double)a->action[step][0], (double)a->action[step][1], layers,
               LAYERS, end ? "yes" : "NO");
        same = same && layers == LAYERS && end;
    }
    return same;
}

int main(void)
{
    static trace cached, whole;
    static float seen[PREFIX * WIDEST], noise[ACTION * WIDEST];
    attn_cache c = {0};
    size_t bytes;
    void *memory;
    uint32_t seed = 1;
    int same;
    make_model(&seed);
    fill(seen, PREFIX * width[READER], 1, &seed);
    fill(noise, ACTION * width[ACTOR], 1, &seed);
    c.num_sequences = 1;
    c.num_layers = LAYERS;
    c.num_heads_kv = HEADS_KV;
    c.head_dim = HEAD_DIM;
    c.capacity = LENGTH;
    must(attn_cache_size(&c, &bytes, why, sizeof why));
    memory = malloc(bytes);
    must(attn_cache_init(&c, memory, bytes, why, sizeof why));

    refine_cached(&c, seen, noise, &cached);
    refine_whole(seen, noise, &whole);
    printf("%d tokens read by an expert of width %d, %d actions by one of width %d, in %d layers\n"
           "with %d query heads and %d key heads of %d; every second layer looks back %d tokens\n",
           PREFIX, width[READER], ACTION, width[ACTOR], LAYERS, HEADS_Q, HEADS_KV, HEAD_DIM,
           WINDOW);
    same = compare(&cached, &whole);
    printf("the prefix went through the layers once with the cache, %d times without\n", STEPS);
    free(memory);
    return same ? 0 : 1;
}
