/* llm.c - a small language model in the style of Llama and Gemma, served in five ways.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 -ffp-contract=off examples/llm.c attn.c -lm -o llm
 *     ./llm [--cache TYPE] [QUESTION [TOKENS]]
 *
 *     naive    computes the whole text anew for each token, by the textbook formula
 *     tiled    computes the whole text anew for each token, by the online softmax
 *     cached   has a contiguous KV cache: the prompt at once, then one token a step
 *     ring     keeps only the window in layers that have one; the prompt comes in chunks
 *     paged    lets two texts share the pages of their common beginning, and decodes both at once
 *
 * All ways must choose the same tokens, and all but naive from logits of the same bits. With a TYPE
 * (f16, bf16, q8_0, q5_0, q4_0, e4m3 or e5m2) caches store keys and values in it, and the last three
 * ways must agree with each other; how far they are from f32 is printed. "q8_0 integer" computes
 * scores in whole numbers, too. The model has RMSNorm, grouped-query attention, RoPE and SwiGLU; a token is a character. The weights are
 * random, and so is the text. Every float operation is a statement of its own and only sqrtf comes
 * from a library, so that the text is the same on every machine. */
#include "../attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SYMBOLS = 96, /* ' ' to '~', and the end of a line */
    WIDTH = 48,
    LAYERS = 4,
    HEADS_Q = 4,
    HEADS_KV = 2,
    HEAD_DIM = 32,
    WIDTH_Q = HEADS_Q * HEAD_DIM,
    WIDTH_KV = HEADS_KV * HEAD_DIM,
    HIDDEN = 96,
    WINDOW = 24,   /* how many tokens every other layer looks back */
    LONGEST = 256, /* most tokens of a text */
    CHUNK = 16,    /* how many tokens of a prompt the ring gets at a time */
    PAGE = 16
};

/* ---- the model: nothing but floats, one struct */

typedef struct block {
    float norm_attention[WIDTH];
    float query[WIDTH][WIDTH_Q], key[WIDTH][WIDTH_KV], value[WIDTH][WIDTH_KV];
    float out[WIDTH_Q][WIDTH];
    float norm_hidden[WIDTH];
    float gate[WIDTH][HIDDEN], up[WIDTH][HIDDEN], down[HIDDEN][WIDTH];
} block;

typedef struct model {
    float embedding[SYMBOLS][WIDTH];
    block blocks[LAYERS];
    float norm[WIDTH];
    float logits[WIDTH][SYMBOLS];
} model;

/* Every other layer sees only a window, as in Gemma. */
static int is_local(int layer)
{
    return layer % 2 == 0;
}

/* The variance gain^2 / inputs lets a product with these numbers keep the size of its input. */
static void fill(float *w, int inputs, int outputs, float gain, uint32_t *seed)
{
    const float scale = gain * sqrtf(3.0f / (float)inputs);
    for (int i = 0; i < inputs * outputs; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        w[i] = (float)((int32_t)(*seed >> 8) - (1 << 23)) * 0x1p-23f;
        w[i] = w[i] * scale;
    }
}

static void ones(float *w)
{
    for (int i = 0; i < WIDTH; i++) w[i] = 1;
}

static void make_model(model *m, uint32_t seed)
{
    fill(m->embedding[0], 1, SYMBOLS * WIDTH, 1, &seed);
    for (int i = 0; i < LAYERS; i++) {
        block *b = &m->blocks[i];
        ones(b->norm_attention);
        fill(b->query[0], WIDTH, WIDTH_Q, 1.5f, &seed); /* some tokens must stand out */
        fill(b->key[0], WIDTH, WIDTH_KV, 1.5f, &seed);
        fill(b->value[0], WIDTH, WIDTH_KV, 1.5f, &seed);
        fill(b->out[0], WIDTH_Q, WIDTH, 1, &seed);
        ones(b->norm_hidden);
        fill(b->gate[0], WIDTH, HIDDEN, 1, &seed);
        fill(b->up[0], WIDTH, HIDDEN, 1, &seed);
        fill(b->down[0], HIDDEN, WIDTH, 1, &seed);
    }
    ones(m->norm);
    fill(m->logits[0], WIDTH, SYMBOLS, 2, &seed);
}

/* ---- its layers, on any number of rows */

/* y = x w */
static void product(float *y, const float *x, const float *w, int rows, int inputs, int outputs)
{
    for (int r = 0; r < rows; r++, x += inputs, y += outputs) {
        for (int j = 0; j < outputs; j++) y[j] = 0;
        for (int i = 0; i < inputs; i++)
            for (int j = 0; j < outputs; j++) {
                const float term = x[i] * w[i * outputs + j];
                y[j] = y[j] + term;
            }
    }
}

static void add(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i++) y[i] = y[i] + x[i];
}

/* y = weight * x / root of the mean of x^2 */
static void rms_norm(float *y, const float *x, const float *weight, int rows)
{
    for (int r = 0; r < rows; r++, x += WIDTH, y += WIDTH) {
        float sum = 0, root;
        for (int i = 0; i < WIDTH; i++) {
            const float square = x[i] * x[i];
            sum = sum + square;
        }
        sum = sum / WIDTH;
        sum = sum + 1e-5f;
        root = sqrtf(sum);
        for (int i = 0; i < WIDTH; i++) {
            const float unit = x[i] / root;
            y[i] = unit * weight[i];
        }
    }
}

/* e^x for x within some tens of 0: the series of e^(x/64), squared six times. */
static float exponential(float x)
{
    const float r = x / 64;
    float y = 1;
    for (int k = 6; k > 0; k--) {
        y = y * r;
        y = y / (float)k;
        y = y + 1;
    }
    for (int k = 0; k < 6; k++) y = y * y;
    return y;
}

/* gate = gate / (1 + e^-gate) * up */
static void swiglu(float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++) {
        float e = exponential(-gate[i]);
        e = 1 + e;
        e = gate[i] / e;
        gate[i] = e * up[i];
    }
}

static void feed_forward(float *y, const float *x, const block *b, int rows)
{
    static float gate[LONGEST * HIDDEN], up[LONGEST * HIDDEN];
    product(gate, x, b->gate[0], rows, WIDTH, HIDDEN);
    product(up, x, b->up[0], rows, WIDTH, HIDDEN);
    swiglu(gate, up, rows * HIDDEN);
    product(y, gate, b->down[0], rows, HIDDEN, WIDTH);
}

/* ---- what caches store */

static const char *const types[] = {"f32",  "f16",  "bf16", "e4m3", "e5m2",
                                    "q8_0", "q5_0", "q4_0"}; /* in the order of attn_dtype */
enum { TYPES = sizeof types / sizeof *types };
static int stored = ATTN_F32, integer;

/* "q8_0", or "q8_0 integer". */
static int choose_type(const char *word)
{
    const size_t length = strcspn(word, " ");
    integer = strcmp(word + length, " integer") == 0;
    for (stored = 0; stored < TYPES; stored++)
        if (strlen(types[stored]) == length && memcmp(types[stored], word, length) == 0)
            return !word[length] || integer;
    return 0;
}

/* ---- ways of serving: what a mode keeps from step to step */

typedef struct mode {
    const char *name;
    int impl;   /* attn_impl */
    int caches; /* 0: none; 1: one for all layers; 2: another one for layers with a window */
    int page_size, sequences;
    int chunk; /* tokens of a prompt at a time */
} mode;

static const mode modes[] = {
    {"naive", ATTN_IMPL_NAIVE, 0, 0, 1, LONGEST},
    {"tiled", ATTN_IMPL_TILED, 0, 0, 1, LONGEST},
    {"cached", ATTN_IMPL_TILED, 1, 0, 1, LONGEST},
    {"ring", ATTN_IMPL_TILED, 2, 0, 1, CHUNK},
    {"paged", ATTN_IMPL_TILED, 1, PAGE, 2, LONGEST},
};
enum { MODES = sizeof modes / sizeof *modes, NAIVE = 0, TILED = 1, CACHED = 2 };

typedef struct store {
    const mode *how;
    attn_cache cache[2];
    void *memory[2];
} store;

static char why[300];

static void must(attn_status status)
{
    if (status == ATTN_OK) return;
    printf("%s: %s\n", attn_status_string(status), why);
    exit(1);
}

static void open_store(store *s, const mode *how)
{
    static const store none;
    *s = none;
    s->how = how;
    for (int i = 0; i < how->caches; i++) {
        attn_cache *c = &s->cache[i];
        size_t bytes;
        c->num_sequences = how->sequences;
        c->num_layers = LAYERS / how->caches;
        c->num_heads_kv = HEADS_KV;
        c->head_dim = HEAD_DIM;
        c->k.dtype = stored;
        c->v.dtype = stored;
        c->capacity = LONGEST;
        c->page_size = how->page_size;
        if (i == 1) { /* WINDOW keys before a chunk, and the chunk itself */
            c->ring = 1;
            c->window_left = WINDOW;
            c->capacity = WINDOW + how->chunk;
        }
        must(attn_cache_size(c, &bytes, why, sizeof why));
        s->memory[i] = malloc(bytes);
        must(attn_cache_init(c, s->memory[i], bytes, why, sizeof why));
    }
}

static void close_store(store *s)
{
    free(s->memory[0]);
    free(s->memory[1]);
}

/* A step reads the next n tokens of each of its sequences, from position first[b] on. */
typedef struct step {
    int batch, n;
    int32_t sequences[2];
    int64_t first[2];
} step;

/* ---- attention: of new rows over these rows, or over what a cache has */

static const attn_rope rope; /* base 10000, half-split, all of the head */

static void turn(const step *in, float *x, int heads)
{
    attn_rope_rows r = {0};
    r.batch = in->batch;
    r.num_heads = heads;
    r.seq_len = in->n;
    r.head_dim = HEAD_DIM;
    r.layout = ATTN_LAYOUT_BSHD;
    r.x.data = x;
    r.y.data = x;
    r.first = in->first;
    must(attn_rope_apply(&rope, &r, why, sizeof why));
}

static void set_step(attn_cache_step *s, const step *in, const float *k, const float *v)
{
    s->batch = in->batch;
    s->sequences = in->sequences;
    s->seq_len = in->n;
    s->layout = ATTN_LAYOUT_BSHD;
    s->k.data = k;
    s->v.data = v;
    s->rope = &rope;
}

/* Stores this layer's keys and values; *p then says what is there. */
static void look_up(const store *s, int layer, const step *in, const float *k, const float *v,
                    attn_params *p)
{
    static char memory[4096]; /* for the lengths and tables of chosen sequences */
    const int two = s->how->caches == 2;
    const attn_cache *c = &s->cache[two && is_local(layer)];
    const int64_t at = two ? layer / 2 : layer;
    attn_cache_step added = {0};
    set_step(&added, in, k, v);
    must(attn_cache_write(c, at, &added, why, sizeof why));
    must(attn_cache_view(c, at, in->sequences, in->batch, p, memory, sizeof memory, why,
                         sizeof why));
}

static void look_here(const step *in, float *k, const float *v, attn_params *p)
{
    turn(in, k, HEADS_KV);
    p->batch = in->batch;
    p->num_heads_kv = HEADS_KV;
    p->seq_len_kv = in->n;
    p->head_dim = HEAD_DIM;
    p->k.data = k;
    p->v.data = v;
}

static void attend(const store *s, int layer, const step *in, float *q, float *k, const float *v,
                   float *o)
{
    static char workspace[1 << 20];
    attn_params p = {0};
    turn(in, q, HEADS_Q);
    p.causal = 1;
    if (is_local(layer)) {
        p.window = ATTN_WINDOW;
        p.window_left = WINDOW;
    }
    if (s->how->caches)
        look_up(s, layer, in, k, v, &p);
    else
        look_here(in, k, v, &p);
    p.integer = s->how->caches && integer;
    p.num_heads_q = HEADS_Q;
    p.seq_len_q = in->n;
    p.layout = ATTN_LAYOUT_BSHD; /* [batch, token, head, dim], as products leave them */
    p.q.data = q;
    p.o.data = o;
    p.impl = s->how->impl;
    attn_check(&p, workspace, sizeof workspace, why, sizeof why);
    must(attn_forward(&p, workspace, sizeof workspace));
}

/* ---- the transformer: from tokens to the logits of what follows each row's end */

static void transform(const model *m, store *s, const step *in, const unsigned char *tokens,
                      float logits[][SYMBOLS])
{
    static float x[LONGEST * WIDTH], y[LONGEST * WIDTH], o[LONGEST * WIDTH_Q];
    static float q[LONGEST * WIDTH_Q], k[LONGEST * WIDTH_KV], v[LONGEST * WIDTH_KV];
    const int rows = in->batch * in->n;
    attn_cache_step added = {0};
    set_step(&added, in, k, v);
    for (int i = 0; i < s->how->caches; i++)
        must(attn_cache_extend(&s->cache[i], &added, why, sizeof why));
    for (int r = 0; r < rows; r++)
        memcpy(x + r * WIDTH, m->embedding[tokens[r]], sizeof m->embedding[0]);
    for (int layer = 0; layer < LAYERS; layer++) {
        const block *b = &m->blocks[layer];
        rms_norm(y, x, b->norm_attention, rows);
        product(q, y, b->query[0], rows, WIDTH, WIDTH_Q);
        product(k, y, b->key[0], rows, WIDTH, WIDTH_KV);
        product(v, y, b->value[0], rows, WIDTH, WIDTH_KV);
        attend(s, layer, in, q, k, v, o);
        product(y, o, b->out[0], rows, WIDTH_Q, WIDTH);
        add(x, y, rows * WIDTH);
        rms_norm(y, x, b->norm_hidden, rows);
        feed_forward(o, y, b, rows);
        add(x, o, rows * WIDTH);
    }
    for (int b = 0; b < in->batch; b++) {
        rms_norm(y, x + ((b + 1) * in->n - 1) * WIDTH, m->norm, 1);
        product(logits[b], y, m->logits[0], 1, WIDTH, SYMBOLS);
    }
}

/* ---- texts */

typedef struct text {
    int sequence;                   /* of the caches */
    int length, seen;               /* tokens; those that the model has seen */
    int prompt;                     /* tokens that were given */
    unsigned char token[LONGEST];
    float logits[LONGEST][SYMBOLS]; /* [i]: from which token i was chosen */
} text;

/* Adds a string to the text, as far as there is room. */
static void give(text *t, const char *s)
{
    for (; *s && t->length < LONGEST; s++) {
        const int symbol = *s - ' ';
        t->token[t->length++] = (unsigned char)(symbol >= 0 && symbol < 95 ? symbol : 95);
    }
    t->prompt = t->length;
}

/* The model reads the next n tokens of each text. */
static void look_at(const model *m, store *s, text **texts, int batch, int n)
{
    static float logits[2][SYMBOLS];
    unsigned char tokens[LONGEST];
    step in = {0};
    in.batch = batch;
    in.n = n;
    for (int b = 0; b < batch; b++) {
        in.sequences[b] = texts[b]->sequence;
        in.first[b] = texts[b]->seen;
        memcpy(tokens + b * n, texts[b]->token + texts[b]->seen, (size_t)n);
    }
    transform(m, s, &in, tokens, logits);
    for (int b = 0; b < batch; b++) {
        texts[b]->seen += n;
        if (texts[b]->seen < LONGEST)
            memcpy(texts[b]->logits[texts[b]->seen], logits[b], sizeof logits[b]);
    }
}

/* The model reads up to `end`, in pieces of at most `chunk` tokens. */
static void read_up_to(const model *m, store *s, text *t, int end)
{
    const int chunk = s->how->chunk;
    while (t->seen < end) look_at(m, s, &t, 1, end - t->seen < chunk ? end - t->seen : chunk);
}

static int best_of(const float *logits, int except)
{
    int best = except == 0;
    for (int i = 0; i < SYMBOLS; i++)
        if (i != except && logits[i] > logits[best]) best = i;
    return best;
}

/* Returns by how much the best logit exceeds the second. */
static float margin_of(const float *logits)
{
    const int best = best_of(logits, -1);
    return logits[best] - logits[best_of(logits, best)];
}

static void choose(text *t)
{
    t->token[t->length] = (unsigned char)best_of(t->logits[t->length], -1);
    t->length++;
}

/* ---- generating */

static void print_kept(const store *s)
{
    printf("%s:", s->how->name);
    for (int i = 0; i < s->how->caches; i++) {
        const attn_cache *c = &s->cache[i];
        printf("%s %d layers keep keys %d to %d", i ? "," : "", (int)c->num_layers,
               (int)c->begin[0], (int)c->end[0] - 1);
    }
    puts("");
}

/* Continues one text after the other. */
static void answer_singly(const model *m, const mode *how, text *texts, int more)
{
    for (int i = 0; i < 2; i++) {
        text *t = &texts[i];
        store s;
        open_store(&s, how);
        for (int made = 0; made < more; made++) {
            if (!how->caches) t->seen = 0;
            read_up_to(m, &s, t, t->length);
            choose(t);
        }
        if (i == 1 && how->caches) print_kept(&s);
        close_store(&s);
    }
}

static void print_pages(const attn_cache *c, int shared)
{
    int common = 0;
    for (int i = 0; i < c->num_pages; i++) common += c->uses[i] == 2;
    printf("paged: %d pages of %d in use, %d of them by both texts, which share %d tokens\n",
           (int)(c->num_pages - c->num_free), PAGE, common, shared);
}

/* Continues both texts at once, after their common beginning. */
static void answer_together(const model *m, const mode *how, text *texts, int shared, int more)
{
    text *both[2] = {&texts[0], &texts[1]};
    store s;
    open_store(&s, how);
    both[1]->sequence = 1;
    read_up_to(m, &s, both[0], shared);
    must(attn_cache_fork(&s.cache[0], 0, 1, shared, why, sizeof why));
    both[1]->seen = shared;
    for (int i = 0; i < 2; i++) read_up_to(m, &s, both[i], both[i]->length);
    for (int made = 0; made < more; made++) {
        if (made > 0) look_at(m, &s, both, 2, 1);
        for (int i = 0; i < 2; i++) choose(both[i]);
    }
    print_pages(&s.cache[0], shared);
    close_store(&s);
}

/* ---- comparing */

static void print_tokens(const char *before, const unsigned char *tokens, int n)
{
    printf("%-8s\"", before);
    for (int i = 0; i < n; i++) putchar(tokens[i] < 95 ? tokens[i] + ' ' : '|');
    puts("\"");
}

static int same_tokens(const text *a, const text *b)
{
    return a->length == b->length && memcmp(a->token, b->token, (size_t)a->length) == 0;
}

/* Returns the largest difference of two logits from which the same token was chosen. */
static float difference(const text *a, const text *b)
{
    float most = 0;
    for (int i = a->prompt; i < a->length; i++)
        for (int j = 0; j < SYMBOLS; j++) {
            const float d = fabsf(a->logits[i][j] - b->logits[i][j]);
            if (!(d <= most)) most = d;
        }
    return most;
}

static int same_logits(const text *a, const text *b)
{
    return memcmp(a->logits[a->prompt], b->logits[a->prompt],
                  (size_t)(a->length - a->prompt) * sizeof a->logits[0]) == 0;
}

static float smallest_margin(const text *t)
{
    float least = INFINITY;
    for (int i = t->prompt; i < t->length; i++) least = fminf(least, margin_of(t->logits[i]));
    return least;
}

static const char *yes(int is)
{
    return is ? "yes" : "NO";
}

/* What another type of the caches does: their ways agree, and how far they are from f32. */
static int compare_stored(text answers[][2])
{
    int tokens = 0, all = 0, bits = 1;
    float off = 0;
    for (int i = 0; i < 2; i++) {
        const text *exact = &answers[TILED][i], *t = &answers[CACHED][i];
        int at = exact->prompt;
        print_tokens("prompt", t->token, t->prompt);
        print_tokens("f32", exact->token + exact->prompt, exact->length - exact->prompt);
        print_tokens(types[stored], t->token + t->prompt, t->length - t->prompt);
        for (int j = CACHED; j < MODES; j++) {
            const text *other = &answers[j][i];
            bits = bits && same_tokens(t, other) && same_logits(t, other);
        }
        for (; at < t->length && t->token[at] == exact->token[at]; at++)
            for (int j = 0; j < SYMBOLS; j++)
                off = fmaxf(off, fabsf(t->logits[at][j] - exact->logits[at][j]));
        tokens += at - t->prompt;
        all += t->length - t->prompt;
    }
    printf("same bits of every logit in cached, ring, paged: %s\n", yes(bits));
    printf("tokens before the first that f32 would not choose: %d of %d\n", tokens, all);
    printf("largest difference of a logit of these: %.4f\n", (double)off);
    return bits;
}

static int compare(text answers[][2])
{
    int tokens = 1, bits = 1;
    float margin = INFINITY, off = 0;
    for (int i = 0; i < 2; i++) {
        const text *t = &answers[TILED][i];
        print_tokens("prompt", t->token, t->prompt);
        for (int j = 0; j < MODES; j++) {
            const text *other = &answers[j][i];
            print_tokens(modes[j].name, other->token + t->prompt, t->length - t->prompt);
            tokens = tokens && same_tokens(t, other);
            bits = bits && (j == NAIVE || same_logits(t, other));
        }
        margin = fminf(margin, smallest_margin(t));
        off = fmaxf(off, difference(t, &answers[NAIVE][i]));
    }
    printf("same tokens in every mode: %s\n", yes(tokens));
    printf("same bits of every logit in tiled, cached, ring, paged: %s\n", yes(bits));
    printf("smallest margin of a choice: %.4f\n", (double)margin);
    printf("naive differs by less than a hundredth of it: %s\n", yes(off < margin / 100));
    return tokens && bits && off < margin / 100;
}

int main(int argc, char **argv)
{
    static const char shared[] =
        "Answer as briefly as you can, in plain words, without repeating. ";
    static model m;
    static text answers[MODES][2];
    const int with_type = argc > 2 && strcmp(argv[1], "--cache") == 0;
    char **const words = argv + (with_type ? 3 : 1);
    const int count = argc - (with_type ? 3 : 1);
    const char *questions[2] = {count > 0 ? words[0] : "Who are you?", "What is a cache for?"};
    int more = count > 1 ? atoi(words[1]) : 20;
    if (with_type && !choose_type(argv[2])) {
        printf("--cache %s: no type; there are f32, f16, bf16, e4m3, e5m2, q8_0, q5_0, q4_0\n",
               argv[2]);
        return 1;
    }
    make_model(&m, 12);
    printf("a model of %d weights, %d layers of width %d, %d query and %d key heads of %d;\n"
           "every other layer looks back %d tokens only\n",
           (int)(sizeof m / sizeof *m.norm), LAYERS, WIDTH, HEADS_Q, HEADS_KV, HEAD_DIM, WINDOW);
    for (int j = 0; j < MODES; j++) {
        for (int i = 0; i < 2; i++) {
            give(&answers[j][i], shared);
            give(&answers[j][i], questions[i]);
            if (more < 1 || more > LONGEST - answers[j][i].length) {
                printf("a question and %d tokens: too long, or nothing to do\n", more);
                return 1;
            }
        }
        if (modes[j].sequences == 2)
            answer_together(&m, &modes[j], answers[j], (int)sizeof shared - 1, more);
        else
            answer_singly(&m, &modes[j], answers[j], more);
    }
    return (stored == ATTN_F32 ? compare(answers) : compare_stored(answers)) ? 0 : 1;
}
