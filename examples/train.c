/* train.c - a small transformer learns to write like the text that it is given.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 -ffp-contract=off examples/train.c attn.c -lm -o train
 *     ./train [--steps N] [...] [FILE ...]              (--help lists the options)
 *
 * The model has RMSNorm before each part, grouped-query attention with RoPE, SwiGLU and a linear
 * layer for the logits; Adam trains it; a token is a byte. attn_forward computes attention and
 * attn_backward its gradients. The chain rule for the rest is written out here. There are three
 * parts:
 *
 *     1. The first steps are repeated by other tiles, kernels and numbers of products, which must
 *        give the same bits of every loss and of all weights, and by the textbook formula
 *        (impl=naive), which must come near.
 *     2. Training shows the loss on a tenth of the text that the model never learns from.
 *     3. Writing goes token by token, with a KV cache that keeps as many tokens as training saw.
 *
 * --storage adds a fourth part: the loss that is held out, with K and V in fewer bits.
 * --check-gradients compares every gradient with differences of the loss instead. Every float
 * operation is a statement of its own and only sqrtf comes from a library, so that training gives
 * the same bits on every machine. It needs a compiler that vectorises with -O2 (gcc 12, clang). */
#include "../attn.h"

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static char why[300];

static void stop(const char *sentence)
{
    puts(sentence);
    exit(1);
}

static void must(attn_status status)
{
    if (status == ATTN_OK) return;
    printf("%s: %s\n", attn_status_string(status), why);
    exit(1);
}

/* ---- options */

enum { MOST_ROWS = 65536 }; /* rows of a batch: all sizes then fit into int */

typedef struct options {
    int steps, layers, width, heads, context, batch, seed, sample;
    int check_gradients, storage;
} options;

static const struct option {
    const char *name;
    size_t field;
    int usual, quick, least, most;
    const char *about;
} option_table[] = {
    {"--steps", offsetof(options, steps), 600, 40, 1, 1000000, "of training"},
    {"--layers", offsetof(options, layers), 3, 2, 1, 16, "attention and feed-forward each"},
    {"--width", offsetof(options, width), 64, 32, 2, 1024, "floats a token between layers"},
    {"--heads", offsetof(options, heads), 4, 4, 1, 64, "of queries; half as many of keys, if even"},
    {"--context", offsetof(options, context), 128, 48, 2, 4096, "tokens that one looks back on"},
    {"--batch", offsetof(options, batch), 8, 4, 1, 256, "pieces of text a step"},
    {"--seed", offsetof(options, seed), 1, 1, 0, 1000000, "of all that is random"},
    {"--sample", offsetof(options, sample), 600, 80, 1, 10000, "tokens to write"},
};
enum { OPTIONS = sizeof option_table / sizeof *option_table };

static int *field(options *o, const struct option *row)
{
    return (int *)(void *)((char *)o + row->field);
}

static void help(int status)
{
    puts("train [OPTION ...] [FILE ...]: files of text, else README.md attn.h attn.c\n"
         "  option       usual  with --quick");
    for (int i = 0; i < OPTIONS; i++)
        printf("  %-11s %6d %6d  %s\n", option_table[i].name, option_table[i].usual,
               option_table[i].quick, option_table[i].about);
    puts("  --quick            a run of a second; options behind it change it\n"
         "  --storage          tell the loss with K and V in fewer bits, at the end\n"
         "  --check-gradients  hold gradients against differences of the loss, and stop");
    exit(status);
}

static void preset(options *o, int quick)
{
    for (int i = 0; i < OPTIONS; i++)
        *field(o, &option_table[i]) = quick ? option_table[i].quick : option_table[i].usual;
}

/* Tells whether argv[0] is an option with a number behind it. */
static int take_number(options *o, char **argv)
{
    for (int i = 0; i < OPTIONS; i++) {
        const struct option *row = &option_table[i];
        char *end = NULL;
        if (strcmp(argv[0], row->name) != 0) continue;
        const long n = argv[1] ? strtol(argv[1], &end, 10) : 0;
        if (!end || end == argv[1] || *end || n < row->least || n > row->most) {
            printf("%s %s: must be a number from %d to %d\n", row->name, argv[1] ? argv[1] : "",
                   row->least, row->most);
            exit(1);
        }
        *field(o, row) = (int)n;
        return 1;
    }
    return 0;
}

/* Moves the names of files to the front of argv and returns how many there are. */
static int read_options(options *o, char **argv)
{
    int files = 0;
    preset(o, 0);
    o->check_gradients = o->storage = 0;
    for (char **a = argv; *a; a++) {
        if (strcmp(*a, "--quick") == 0)
            preset(o, 1);
        else if (strcmp(*a, "--check-gradients") == 0)
            o->check_gradients = 1;
        else if (strcmp(*a, "--storage") == 0)
            o->storage = 1;
        else if (take_number(o, a))
            a++;
        else if (**a != '-')
            argv[files++] = *a;
        else if (strcmp(*a, "--help") == 0)
            help(0);
        else {
            printf("%s is no option of this program\n", *a);
            help(1);
        }
    }
    if (o->width % (2 * o->heads) != 0)
        stop("--width must be a multiple of twice --heads: RoPE turns pairs");
    if (o->batch * o->context > MOST_ROWS)
        stop("--batch times --context must be at most 65536");
    return files;
}

/* ---- memory, given back at the end */

static void *taken[1000];
static int num_taken;

static void *take(size_t n, size_t size)
{
    void *memory = calloc(n ? n : 1, size);
    if (!memory || num_taken == (int)(sizeof taken / sizeof *taken)) stop("not enough memory");
    return taken[num_taken++] = memory;
}

static float *floats(size_t n)
{
    return take(n, sizeof(float));
}

static void give_back(void)
{
    while (num_taken > 0) free(taken[--num_taken]);
}

/* All calls share one workspace, as large as the largest needs. */
static void *workspace(size_t need)
{
    static void *memory;
    static size_t size;
    if (need > size) {
        memory = take(need, 1);
        size = need;
    }
    return memory;
}

/* sqrtf of x87 libraries returns more digits than a float has, and only a store takes them off. */
static float square_root(float x)
{
    volatile float y = sqrtf(x);
    return y;
}

/* ---- random numbers: a linear congruence modulo 2^64, of which the upper half is used */

static uint32_t random_bits(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*seed >> 32);
}

static int random_below(int n, uint64_t *seed)
{
    return (int)(((uint64_t)random_bits(seed) * (uint64_t)n) >> 32);
}

/* Returns a number from 0 to below 1. */
static float random_float(uint64_t *seed)
{
    return (float)(random_bits(seed) >> 8) * 0x1p-24f;
}

/* ---- text: files, of which the last tenth is held out; bytes that occur are numbered */

typedef struct text {
    unsigned char *learned, *held_out; /* tokens */
    int num_learned, num_held_out;
    int symbols;
    unsigned char byte[256]; /* the byte that each token stands for */
} text;

static size_t read_file(const char *name, unsigned char **bytes)
{
    FILE *f = fopen(name, "rb");
    long size = -1;
    if (f && fseek(f, 0, SEEK_END) == 0) size = ftell(f);
    if (size < 0 || size > 1L << 28 || fseek(f, 0, SEEK_SET) != 0) {
        printf("cannot read %s: run this in the folder that has README.md, attn.h and attn.c, "
               "or name files of text\n", name);
        exit(1);
    }
    *bytes = take((size_t)size, 1);
    if (fread(*bytes, 1, (size_t)size, f) != (size_t)size) stop("a file changed while it was read");
    fclose(f);
    return (size_t)size;
}

static void append(unsigned char **to, int *length, const unsigned char *from, size_t n)
{
    unsigned char *longer;
    if (n > (size_t)(INT_MAX - *length)) stop("too much text");
    longer = take((size_t)*length + n, 1);
    if (*length) memcpy(longer, *to, (size_t)*length);
    if (n) memcpy(longer + *length, from, n);
    *to = longer;
    *length += (int)n;
}

static void number_bytes(text *t)
{
    unsigned char number[256] = {0};
    for (int i = 0; i < t->num_learned; i++) number[t->learned[i]] = 1;
    for (int i = 0; i < t->num_held_out; i++) number[t->held_out[i]] = 1;
    for (int b = 0; b < 256; b++) {
        if (!number[b]) continue;
        t->byte[t->symbols] = (unsigned char)b;
        number[b] = (unsigned char)t->symbols++;
    }
    for (int i = 0; i < t->num_learned; i++) t->learned[i] = number[t->learned[i]];
    for (int i = 0; i < t->num_held_out; i++) t->held_out[i] = number[t->held_out[i]];
}

static void read_text(text *t, char **files, int num_files, int context)
{
    static char *own[] = {"README.md", "attn.h", "attn.c"};
    if (num_files == 0) {
        files = own;
        num_files = 3;
    }
    for (int i = 0; i < num_files; i++) {
        unsigned char *bytes;
        const size_t size = read_file(files[i], &bytes), first = size - size / 10;
        append(&t->learned, &t->num_learned, bytes, first);
        append(&t->held_out, &t->num_held_out, bytes + first, size - first);
    }
    if (t->num_held_out <= context) stop("the text must be longer than ten times --context");
    number_bytes(t);
}

/* ---- products of matrices; element (r, c) at x[r * down + c * across] */

typedef struct view {
    const float *x;
    ptrdiff_t down, across;
} view;

static view matrix(const float *x, int columns)
{
    const view v = {x, columns, 1};
    return v;
}

static view transposed(const float *x, int columns)
{
    const view v = {x, 1, columns};
    return v;
}

enum { INNER = 64, COLUMNS = 32 }; /* the size of a panel of w, which stays in L1 */

/* panel = n rows and m columns of w, padded with zeros */
static void pack(float *panel, view w, int n, int m)
{
    memset(panel, 0, INNER * COLUMNS * sizeof *panel);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < m; j++) panel[i * COLUMNS + j] = w.x[i * w.down + j * w.across];
}

/* y[j] += x0 panel[0][j] + x1 panel[1][j] + ..., one after the other; `across` is from x to x */
static void add_four(float *restrict y, const float *restrict x, ptrdiff_t across,
                     const float *restrict panel)
{
    const float x0 = x[0], x1 = x[across], x2 = x[2 * across], x3 = x[3 * across];
    for (int j = 0; j < COLUMNS; j++) {
        const float t0 = x0 * panel[j];
        const float t1 = x1 * panel[j + COLUMNS];
        const float t2 = x2 * panel[j + 2 * COLUMNS];
        const float t3 = x3 * panel[j + 3 * COLUMNS];
        float sum = y[j];
        sum = sum + t0;
        sum = sum + t1;
        sum = sum + t2;
        sum = sum + t3;
        y[j] = sum;
    }
}

static void add_one(float *restrict y, float x, const float *restrict panel)
{
    for (int j = 0; j < COLUMNS; j++) {
        const float term = x * panel[j];
        y[j] = y[j] + term;
    }
}

/* y += x panel, for one row of x with n elements */
static void add_row(float *y, const float *x, ptrdiff_t across, const float *panel, int n)
{
    int i = 0;
    for (; i + 4 <= n; i += 4) add_four(y, x + i * across, across, panel + i * COLUMNS);
    for (; i < n; i++) add_one(y, x[i * across], panel + i * COLUMNS);
}

/* y += x panel, for many rows and m columns of y */
static void add_panel(float *y, int y_columns, view x, const float *panel, int rows, int n, int m)
{
    float part[COLUMNS] = {0};
    for (int r = 0; r < rows; r++, y += y_columns) {
        if (m < COLUMNS) memcpy(part, y, (size_t)m * sizeof *y);
        add_row(m < COLUMNS ? part : y, x.x + r * x.down, x.across, panel, n);
        if (m < COLUMNS) memcpy(y, part, (size_t)m * sizeof *y);
    }
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* y += x w: each element sums its terms in one order, however many rows there are */
static void add_product(float *y, view x, view w, int rows, int inner, int columns)
{
    static float panel[INNER * COLUMNS];
    for (int i = 0; i < inner; i += INNER)
        for (int j = 0; j < columns; j += COLUMNS) {
            const view part = {w.x + i * w.down + j * w.across, w.down, w.across};
            const view factors = {x.x + i * x.across, x.down, x.across};
            const int n = least(INNER, inner - i), m = least(COLUMNS, columns - j);
            pack(panel, part, n, m);
            add_panel(y + j, columns, factors, panel, rows, n, m);
        }
}

/* ---- the model: tensors, each a part of one array of weights */

enum { EMBEDDING, NORM, LOGITS, BLOCKS }; /* then for each layer: */
enum { NORM_ATTENTION, QUERY, KEY, VALUE, OUT, NORM_HIDDEN, GATE, UP, DOWN, PER_BLOCK };
enum { MOST_LAYERS = 16, MOST_TENSORS = BLOCKS + MOST_LAYERS * PER_BLOCK };

typedef struct tensor {
    const char *name;
    int inputs, outputs; /* the shape [inputs, outputs]; a norm has one input */
    float size;          /* root of inputs * variance of its random weights; 0 = all are 1 */
    float *weight, *gradient;
} tensor;

typedef struct model {
    int layers, width, heads_q, heads_kv, head_dim, hidden, context, symbols;
    int num_tensors;
    tensor tensors[MOST_TENSORS];
    int count;                                      /* number of weights */
    float *weights, *gradients, *moment1, *moment2; /* moments of Adam */
} model;

static tensor *in_block(model *m, int layer, int which)
{
    return &m->tensors[BLOCKS + layer * PER_BLOCK + which];
}

static void name_tensors(model *m)
{
    const int w = m->width, q = m->heads_q * m->head_dim, kv = m->heads_kv * m->head_dim;
    const float added = 2 * (float)m->layers; /* times, by the last tensor of each part */
    const float root = square_root(added);
    const float last = 1 / root;
    const tensor ends[BLOCKS] = {{"embedding", m->symbols, w, 0.5f, NULL, NULL},
                                 {"norm", 1, w, 0, NULL, NULL},
                                 {"logits", w, m->symbols, 0.5f, NULL, NULL}};
    const tensor block[PER_BLOCK] = {
        {"norm_attention", 1, w, 0, NULL, NULL},      {"query", w, q, 1, NULL, NULL},
        {"key", w, kv, 1, NULL, NULL},                {"value", w, kv, 1, NULL, NULL},
        {"out", q, w, last, NULL, NULL},              {"norm_hidden", 1, w, 0, NULL, NULL},
        {"gate", w, m->hidden, 1, NULL, NULL},        {"up", w, m->hidden, 1, NULL, NULL},
        {"down", m->hidden, w, last, NULL, NULL}};
    memcpy(m->tensors, ends, sizeof ends);
    for (int i = 0; i < m->layers; i++) memcpy(in_block(m, i, 0), block, sizeof block);
    m->num_tensors = BLOCKS + m->layers * PER_BLOCK;
}

static void make_model(model *m, const options *o, int symbols)
{
    m->layers = o->layers;
    m->width = o->width;
    m->heads_q = o->heads;
    m->heads_kv = o->heads % 2 ? o->heads : o->heads / 2;
    m->head_dim = o->width / o->heads;
    m->hidden = (o->width * 8 / 3 + 15) / 16 * 16;
    m->context = o->context;
    m->symbols = symbols;
    name_tensors(m);
    for (int i = 0; i < m->num_tensors; i++)
        m->count += m->tensors[i].inputs * m->tensors[i].outputs;
    m->weights = floats((size_t)m->count);
    m->gradients = floats((size_t)m->count);
    m->moment1 = floats((size_t)m->count);
    m->moment2 = floats((size_t)m->count);
    for (int i = 0, at = 0; i < m->num_tensors; i++) {
        tensor *t = &m->tensors[i];
        t->weight = m->weights + at;
        t->gradient = m->gradients + at;
        at += t->inputs * t->outputs;
    }
}

/* Draws new weights and resets Adam. An embedding is looked up, not multiplied, so it has one
 * input. */
static void begin(model *m, uint64_t seed)
{
    memset(m->moment1, 0, (size_t)m->count * sizeof(float));
    memset(m->moment2, 0, (size_t)m->count * sizeof(float));
    for (int i = 0; i < m->num_tensors; i++) {
        const tensor *t = &m->tensors[i];
        const float square = 3 / (float)(i == EMBEDDING ? 1 : t->inputs);
        const float root = square_root(square);
        const float most = t->size * root;
        for (int j = 0; j < t->inputs * t->outputs; j++) {
            float x = 2 * random_float(&seed);
            x = x - 1;
            t->weight[j] = t->size > 0 ? x * most : 1;
        }
    }
}

/* ---- what a pass through the model leaves for the way back */

typedef struct layer {
    float *x, *normed, *q, *k, *v, *o, *stats;               /* attention */
    float *middle, *normed_hidden, *gate, *up, *hidden;      /* feed-forward */
} layer;

typedef struct pass {
    int sequences, tokens; /* the numbers of sequences and of tokens in each */
    int64_t first;         /* position of the first token; several sequences begin at 0 */
    const attn_cache *cache; /* NULL: tokens look only at each other */
} pass;

/* How K and V are stored. */
typedef struct storage {
    const char *name;
    int dtype, rotated, integer;
    int recent; /* keys that a row reads before they are rounded */
} storage;

typedef struct run {
    model m;
    const storage *stored; /* NULL: as products leave them */
    void *stored_k, *stored_v;
    attn_params how; /* how attention is computed: impl, kernels, tile_keys */
    int gemms;
    attn_rope turn, turn_back;
    layer layers[MOST_LAYERS + 1]; /* the last one uses only x */
    float *normed, *logits;
    float *dx, *dnormed, *dq, *dk, *dv, *dout, *dgate, *dup, *dhidden;
} run;

/* Gradients of a rotation turn by the opposite angle, which negates the sines. */
static void make_rope(run *r, int positions)
{
    const int half = r->m.head_dim / 2, n = positions * half;
    float *cosines = floats((size_t)n), *sines = floats((size_t)n), *back = floats((size_t)n);
    const attn_rope computed = {0};
    must(attn_rope_table(&computed, r->m.head_dim, 0, positions, cosines, sines, why, sizeof why));
    for (int i = 0; i < n; i++) back[i] = -sines[i];
    r->turn.cos = r->turn_back.cos = cosines;
    r->turn.sin = sines;
    r->turn_back.sin = back;
    r->turn.num_positions = r->turn_back.num_positions = positions;
}

static void make_run(run *r, int rows, int positions)
{
    const model *m = &r->m;
    const size_t n = (size_t)rows, w = n * (size_t)m->width, hidden = n * (size_t)m->hidden;
    const size_t q = n * (size_t)(m->heads_q * m->head_dim);
    const size_t kv = n * (size_t)(m->heads_kv * m->head_dim);
    for (int i = 0; i < m->layers; i++) {
        layer *l = &r->layers[i];
        l->x = floats(w), l->normed = floats(w), l->middle = floats(w);
        l->q = floats(q), l->k = floats(kv), l->v = floats(kv), l->o = floats(q);
        l->stats = floats(2 * n * (size_t)m->heads_q);
        l->normed_hidden = floats(w);
        l->gate = floats(hidden), l->up = floats(hidden), l->hidden = floats(hidden);
    }
    r->layers[m->layers].x = floats(w);
    r->stored_k = floats(kv), r->stored_v = floats(kv);
    r->normed = floats(w), r->logits = floats(n * (size_t)m->symbols);
    r->dx = floats(w), r->dnormed = floats(w);
    r->dq = floats(q), r->dk = floats(kv), r->dv = floats(kv), r->dout = floats(q);
    r->dgate = floats(hidden), r->dup = floats(hidden), r->dhidden = floats(hidden);
    make_rope(r, positions);
}

static void clear(float *x, int n)
{
    memset(x, 0, (size_t)n * sizeof *x);
}

/* ---- linear layers: y = x w */

static void linear(float *y, const float *x, const tensor *w, int rows)
{
    clear(y, rows * w->outputs);
    add_product(y, matrix(x, w->inputs), matrix(w->weight, w->outputs), rows, w->inputs,
                w->outputs);
}

/* y = x + z w */
static void add_linear(float *y, const float *x, const float *z, const tensor *w, int rows)
{
    memcpy(y, x, (size_t)(rows * w->outputs) * sizeof *y);
    add_product(y, matrix(z, w->inputs), matrix(w->weight, w->outputs), rows, w->inputs,
                w->outputs);
}

/* dw += x^T dy, dx += dy w^T */
static void linear_back(float *dx, const float *dy, const float *x, const tensor *w, int rows)
{
    add_product(w->gradient, transposed(x, w->inputs), matrix(dy, w->outputs), w->inputs, rows,
                w->outputs);
    add_product(dx, matrix(dy, w->outputs), transposed(w->weight, w->outputs), rows, w->outputs,
                w->inputs);
}

/* ---- RMSNorm: y = weight * x / root of the mean of x^2 */

static float root_mean_square(const float *x, int n)
{
    static const float little = 1e-5f;
    float sum = 0;
    for (int i = 0; i < n; i++) {
        const float square = x[i] * x[i];
        sum = sum + square;
    }
    sum = sum / (float)n;
    sum = sum + little;
    return square_root(sum);
}

static void norm(float *y, const float *x, const tensor *t, int rows)
{
    const int n = t->outputs;
    for (int r = 0; r < rows; r++, x += n, y += n) {
        const float root = root_mean_square(x, n);
        for (int i = 0; i < n; i++) {
            const float unit = x[i] / root;
            y[i] = unit * t->weight[i];
        }
    }
}

/* With u = x / root, du = weight * dy: dweight += dy * u, dx += (du - u * mean(du * u)) / root */
static void norm_back(float *dx, const float *dy, const float *x, const tensor *t, int rows)
{
    const int n = t->outputs;
    for (int r = 0; r < rows; r++, x += n, dy += n, dx += n) {
        const float root = root_mean_square(x, n);
        float mean = 0;
        for (int i = 0; i < n; i++) {
            const float unit = x[i] / root;
            const float term = dy[i] * unit;
            const float weighted = term * t->weight[i];
            t->gradient[i] = t->gradient[i] + term;
            mean = mean + weighted;
        }
        mean = mean / (float)n;
        for (int i = 0; i < n; i++) {
            const float unit = x[i] / root;
            const float common = unit * mean;
            float d = t->weight[i] * dy[i];
            d = d - common;
            d = d / root;
            dx[i] = dx[i] + d;
        }
    }
}

/* ---- functions that libraries compute in different bits. Constants have names: a variable is
 * rounded to float, which x87 code does not do to a constant in the middle of an expression. */

/* e^x = 2^n e^r, by the series of e^r for |r| at most ln(2)/2; x is taken from -80 to 80 */
static float exponential(float x)
{
    static const float term[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
    static const float inverse = 1.44269504f, high = 0.693145752f, low = 1.42860677e-6f;
    float y = term[0], power, n, part;
    uint32_t bits;
    x = x < -80 ? -80 : x > 80 ? 80 : x;
    n = x * inverse; /* of ln 2 */
    n = n < 0 ? n - 0.5f : n + 0.5f;
    n = (float)(int)n;
    part = n * high; /* and low: ln 2 in two parts, the first of few bits */
    x = x - part;
    part = n * low;
    x = x - part;
    for (int i = 1; i < 7; i++) {
        y = y * x;
        y = y + term[i];
    }
    bits = (uint32_t)((int)n + 127) << 23;
    memcpy(&power, &bits, sizeof power);
    y = y * power;
    return y;
}

/* ln x for x from 1 on: halved until below 1.5, then 2 artanh((x - 1) / (x + 1)) */
static float logarithm(float x)
{
    static const float ln2 = 0.693147182f;
    float halvings = 0, t, square, y = 0;
    for (; x >= 1.5f; halvings++) x = x / 2;
    t = x - 1;
    x = x + 1;
    t = t / x;
    square = t * t;
    for (int k = 11; k > 0; k -= 2) {
        const float term = 2 / (float)k;
        y = y * square;
        y = y + term;
    }
    y = y * t;
    t = halvings * ln2;
    y = y + t;
    return y;
}

/* ---- SwiGLU: hidden = gate * s * up, s = 1 / (1 + e^-gate) */

static float sigmoid(float x)
{
    float y = exponential(-x);
    y = 1 + y;
    y = 1 / y;
    return y;
}

static void swiglu(float *hidden, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++) {
        const float swish = gate[i] * sigmoid(gate[i]);
        hidden[i] = swish * up[i];
    }
}

/* dup = d * gate * s, dgate = d * up * (s + gate * s * (1 - s)) */
static void swiglu_back(float *dgate, float *dup, const float *d, const float *gate,
                        const float *up, int n)
{
    for (int i = 0; i < n; i++) {
        const float s = sigmoid(gate[i]);
        const float swish = gate[i] * s;
        float slope = 1 - s;
        slope = swish * slope;
        slope = s + slope;
        dup[i] = d[i] * swish;
        slope = slope * up[i];
        dgate[i] = d[i] * slope;
    }
}

/* ---- attention */

static void turn(const attn_rope *rope, const model *m, const pass *in, float *x, int heads)
{
    attn_rope_rows rows = {0};
    rows.batch = in->sequences;
    rows.num_heads = heads;
    rows.seq_len = in->tokens;
    rows.head_dim = m->head_dim;
    rows.layout = ATTN_LAYOUT_BSHD;
    rows.first = in->sequences == 1 ? &in->first : NULL;
    rows.x.data = x;
    rows.y.data = x;
    must(attn_rope_apply(rope, &rows, why, sizeof why));
}

/* Describes the call for a layer whose q, k and v are ready, forward or backward. No token looks
 * farther back than --context, so that the model can write longer texts than it was trained on. */
static attn_params call_of(const run *r, const layer *l, const pass *in)
{
    const model *m = &r->m;
    attn_params p = r->how;
    p.batch = in->sequences;
    p.num_heads_q = m->heads_q;
    p.num_heads_kv = m->heads_kv;
    p.seq_len_q = p.seq_len_kv = in->tokens;
    p.head_dim = m->head_dim;
    p.causal = 1;
    p.window = ATTN_WINDOW;
    p.window_left = m->context - 1;
    p.layout = ATTN_LAYOUT_BSHD; /* [sequence, token, head, dim], as products leave them */
    p.q.data = l->q;
    p.k.data = l->k;
    p.v.data = l->v;
    p.o.data = l->o;
    p.stats.data = l->stats;
    return p;
}

static void add_to_step(attn_cache_step *s, const run *r, const layer *l, const pass *in)
{
    s->batch = in->sequences;
    s->seq_len = in->tokens;
    s->rope = &r->turn;
    s->layout = ATTN_LAYOUT_BSHD;
    s->k.data = l->k;
    s->v.data = l->v;
}

/* Stores the turned keys and the values of a layer as r->stored says. */
static void store_keys(const run *r, const layer *l, const pass *in, attn_params *p)
{
    const storage *s = r->stored;
    const int64_t rows = (int64_t)in->sequences * in->tokens * r->m.heads_kv;
    const size_t n = (size_t)rows * (size_t)r->m.head_dim;
    if (s->rotated & ATTN_ROTATED_K) must(attn_rotate(l->k, rows, r->m.head_dim));
    if (s->rotated & ATTN_ROTATED_V) must(attn_rotate(l->v, rows, r->m.head_dim));
    must(attn_convert(r->stored_k, s->dtype, l->k, ATTN_F32, n));
    must(attn_convert(r->stored_v, s->dtype, l->v, ATTN_F32, n));
    p->k.data = r->stored_k;
    p->v.data = r->stored_v;
    p->k.dtype = p->v.dtype = s->dtype;
    p->rotated = s->rotated;
    p->integer = s->integer;
    if (s->recent == 0) return;
    p->recent.keys = s->recent;
    p->recent.ring = in->tokens;
    p->recent.k.data = l->k;
    p->recent.v.data = l->v;
}

static void attend(const run *r, int number, const pass *in)
{
    const layer *l = &r->layers[number];
    attn_params p = call_of(r, l, in);
    attn_cache_step added = {0};
    size_t need;
    turn(&r->turn, &r->m, in, l->q, r->m.heads_q);
    if (in->cache) {
        add_to_step(&added, r, l, in);
        must(attn_cache_write(in->cache, number, &added, why, sizeof why));
        must(attn_cache_view(in->cache, number, NULL, 1, &p, NULL, 0, why, sizeof why));
    } else {
        turn(&r->turn, &r->m, in, l->k, r->m.heads_kv);
    }
    if (r->stored) store_keys(r, l, in, &p);
    attn_check(&p, NULL, 0, why, sizeof why);
    must(attn_workspace_size(&p, &need));
    must(attn_forward(&p, workspace(need), need));
}

/* Computes the gradients by q, k and v, before they were turned, from the gradient by o. */
static void attend_back(const run *r, int number, const pass *in)
{
    const model *m = &r->m;
    const attn_params p = call_of(r, &r->layers[number], in);
    attn_gradients g = {0};
    size_t need;
    g.gemms = r->gemms;
    g.dout.data = r->dout;
    g.dq.data = r->dq;
    g.dk.data = r->dk;
    g.dv.data = r->dv;
    attn_backward_check(&p, &g, NULL, 0, why, sizeof why);
    must(attn_backward_workspace_size(&p, &g, &need));
    must(attn_backward(&p, &g, workspace(need), need));
    turn(&r->turn_back, m, in, r->dq, m->heads_q);
    turn(&r->turn_back, m, in, r->dk, m->heads_kv);
}

/* ---- through the layers and back */

static void forward(run *r, const pass *in, const unsigned char *tokens)
{
    model *m = &r->m;
    const int rows = in->sequences * in->tokens, width = m->width;
    for (int i = 0; i < rows; i++)
        memcpy(r->layers[0].x + i * width, m->tensors[EMBEDDING].weight + tokens[i] * width,
               (size_t)width * sizeof(float));
    for (int i = 0; i < m->layers; i++) {
        const layer *l = &r->layers[i];
        const tensor *b = in_block(m, i, 0);
        norm(l->normed, l->x, &b[NORM_ATTENTION], rows);
        linear(l->q, l->normed, &b[QUERY], rows);
        linear(l->k, l->normed, &b[KEY], rows);
        linear(l->v, l->normed, &b[VALUE], rows);
        attend(r, i, in);
        add_linear(l->middle, l->x, l->o, &b[OUT], rows);
        norm(l->normed_hidden, l->middle, &b[NORM_HIDDEN], rows);
        linear(l->gate, l->normed_hidden, &b[GATE], rows);
        linear(l->up, l->normed_hidden, &b[UP], rows);
        swiglu(l->hidden, l->gate, l->up, rows * m->hidden);
        add_linear(l[1].x, l->middle, l->hidden, &b[DOWN], rows);
    }
    norm(r->normed, r->layers[m->layers].x, &m->tensors[NORM], rows);
    linear(r->logits, r->normed, &m->tensors[LOGITS], rows);
}

/* dx is the gradient by the layer's output on entry, and by its input on return. */
static void layer_back(run *r, int number, const pass *in)
{
    model *m = &r->m;
    const layer *l = &r->layers[number];
    const tensor *b = in_block(m, number, 0);
    const int rows = in->sequences * in->tokens;
    clear(r->dhidden, rows * m->hidden);
    linear_back(r->dhidden, r->dx, l->hidden, &b[DOWN], rows);
    swiglu_back(r->dgate, r->dup, r->dhidden, l->gate, l->up, rows * m->hidden);
    clear(r->dnormed, rows * m->width);
    linear_back(r->dnormed, r->dgate, l->normed_hidden, &b[GATE], rows);
    linear_back(r->dnormed, r->dup, l->normed_hidden, &b[UP], rows);
    norm_back(r->dx, r->dnormed, l->middle, &b[NORM_HIDDEN], rows);
    clear(r->dout, rows * m->heads_q * m->head_dim);
    linear_back(r->dout, r->dx, l->o, &b[OUT], rows);
    attend_back(r, number, in);
    clear(r->dnormed, rows * m->width);
    linear_back(r->dnormed, r->dq, l->normed, &b[QUERY], rows);
    linear_back(r->dnormed, r->dk, l->normed, &b[KEY], rows);
    linear_back(r->dnormed, r->dv, l->normed, &b[VALUE], rows);
    norm_back(r->dx, r->dnormed, l->x, &b[NORM_ATTENTION], rows);
}

/* Computes the gradients by all weights from that by the logits, which has taken their place. */
static void backward(run *r, const pass *in, const unsigned char *tokens)
{
    model *m = &r->m;
    const int rows = in->sequences * in->tokens, width = m->width;
    clear(m->gradients, m->count);
    clear(r->dnormed, rows * width);
    clear(r->dx, rows * width);
    linear_back(r->dnormed, r->logits, r->normed, &m->tensors[LOGITS], rows);
    norm_back(r->dx, r->dnormed, r->layers[m->layers].x, &m->tensors[NORM], rows);
    for (int i = m->layers - 1; i >= 0; i--) layer_back(r, i, in);
    for (int i = 0; i < rows; i++) {
        float *d = m->tensors[EMBEDDING].gradient + tokens[i] * width;
        for (int j = 0; j < width; j++) d[j] = d[j] + r->dx[i * width + j];
    }
}

/* z = e^(z / temperature), divided by the largest of them. Returns their sum. */
static float exponentials(float *z, int n, float temperature)
{
    float most = z[0], sum = 0;
    for (int i = 1; i < n; i++) most = z[i] > most ? z[i] : most;
    for (int i = 0; i < n; i++) {
        z[i] = z[i] - most;
        z[i] = z[i] / temperature;
        z[i] = exponential(z[i]);
        sum = sum + z[i];
    }
    return sum;
}

/* Returns the mean of -ln(probability of the next token). z becomes its gradient by the logits. */
static float cross_entropy(float *z, const unsigned char *follows, int rows, int symbols)
{
    float total = 0;
    for (int r = 0; r < rows; r++, z += symbols) {
        float sum, chosen, scale;
        float loss = z[follows[r]];
        float most = z[0];
        for (int i = 1; i < symbols; i++) most = z[i] > most ? z[i] : most;
        loss = most - loss;
        sum = exponentials(z, symbols, 1);
        loss = loss + logarithm(sum);
        total = total + loss;
        scale = sum * (float)rows;
        for (int i = 0; i < symbols; i++) z[i] = z[i] / scale;
        chosen = 1 / (float)rows;
        z[follows[r]] = z[follows[r]] - chosen;
    }
    total = total / (float)rows;
    return total;
}

/* ---- Adam (Kingma and Ba 2014, arXiv 1412.6980), with a rate that rises, then falls */

static float rate_of(int step, int steps)
{
    static const float most = 0.006f;
    const int warm = steps / 20 + 1;
    float rate = step < warm ? (float)(step + 1) / (float)warm
                             : (float)(steps - step) / (float)(steps - warm);
    rate = rate * most;
    return rate;
}

static float power(float x, int n)
{
    float y = 1;
    for (int i = 0; i < n; i++) y = y * x;
    return y;
}

static void adam(model *m, int step, float rate)
{
    const float keep1 = 0.9f, new1 = 0.1f, keep2 = 0.99f, new2 = 0.01f, little = 1e-8f;
    const float whole1 = 1 - power(keep1, step + 1), whole2 = 1 - power(keep2, step + 1);
    for (int i = 0; i < m->count; i++) {
        const float g = m->gradients[i];
        float change = g - m->moment1[i], root = g * g;
        change = change * new1;
        m->moment1[i] = m->moment1[i] + change;
        root = root - m->moment2[i];
        root = root * new2;
        m->moment2[i] = m->moment2[i] + root;
        root = m->moment2[i] / whole2;
        root = square_root(root);
        root = root + little;
        change = m->moment1[i] / whole1;
        change = change / root;
        change = change * rate;
        m->weights[i] = m->weights[i] - change;
    }
}

/* ---- steps */

typedef struct trainer {
    run r;
    options o;
    text t;
    uint64_t seed;                   /* chooses the pieces of text */
    unsigned char *tokens, *follows; /* a batch, and the token after each of its tokens */
} trainer;

static pass whole_batch(const trainer *t)
{
    const pass in = {t->o.batch, t->o.context, 0, NULL};
    return in;
}

static void copy_piece(trainer *t, int number, const unsigned char *from)
{
    const size_t n = (size_t)t->o.context;
    memcpy(t->tokens + (size_t)number * n, from, n);
    memcpy(t->follows + (size_t)number * n, from + 1, n);
}

static void draw_batch(trainer *t)
{
    for (int i = 0; i < t->o.batch; i++)
        copy_piece(t, i, t->t.learned + random_below(t->t.num_learned - t->o.context, &t->seed));
}

static float loss_of_batch(trainer *t)
{
    const pass in = whole_batch(t);
    forward(&t->r, &in, t->tokens);
    return cross_entropy(t->r.logits, t->follows, in.sequences * in.tokens, t->r.m.symbols);
}

static float gradients_of_batch(trainer *t)
{
    const pass in = whole_batch(t);
    const float loss = loss_of_batch(t);
    backward(&t->r, &in, t->tokens);
    return loss;
}

static float train_step(trainer *t, int step)
{
    float loss;
    draw_batch(t);
    loss = gradients_of_batch(t);
    adam(&t->r.m, step, rate_of(step, t->o.steps));
    return loss;
}

static void start_again(trainer *t)
{
    begin(&t->r.m, (uint64_t)t->o.seed);
    t->seed = (uint64_t)t->o.seed + 1;
}

/* Returns the mean loss over four batches, spread over the held-out text. */
static float held_out_loss(trainer *t)
{
    const int pieces = 4 * t->o.batch, room = t->t.num_held_out - t->o.context - 1;
    float sum = 0;
    for (int i = 0; i < pieces; i++) {
        copy_piece(t, i % t->o.batch, t->t.held_out + (int64_t)room * i / (pieces - 1));
        if (i % t->o.batch == t->o.batch - 1) sum = sum + loss_of_batch(t);
    }
    return sum / 4;
}

/* ---- 1. the same steps in other ways */

static const struct way {
    const char *options; /* a text for attn_params_from_string */
    int gemms;
} ways[] = {
    {"impl=tiled", 0},
    {"impl=tiled kernels=portable tile_keys=16", 5},
    {"impl=tiled tile_keys=128", 7},
    {"impl=naive", 0},
};
enum { WAYS = sizeof ways / sizeof *ways, NAIVE = WAYS - 1, COMPARED = 6 };

static void choose_way(trainer *t, const struct way *way)
{
    const attn_params none = {0};
    t->r.how = none;
    t->r.gemms = way->gemms;
    must(attn_params_from_string(&t->r.how, way->options, why, sizeof why));
}

typedef struct trace {
    float loss[COMPARED], held_out;
    float *first; /* the gradients of the first step */
    uint64_t hash; /* of all weights after the last step */
} trace;

/* Hashes by FNV-1a, in words of 32 bits. */
static uint64_t hash_of(const float *x, int n)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        hash = (hash ^ bits) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static void follow(trainer *t, const struct way *way, trace *seen)
{
    const model *m = &t->r.m;
    choose_way(t, way);
    start_again(t);
    seen->first = floats((size_t)m->count);
    for (int step = 0; step < COMPARED; step++) {
        seen->loss[step] = train_step(t, step);
        if (step == 0) memcpy(seen->first, m->gradients, (size_t)m->count * sizeof(float));
    }
    seen->hash = hash_of(m->weights, m->count);
}

static float loss_difference(const trace *a, const trace *b)
{
    float most = 0;
    for (int i = 0; i < COMPARED; i++) {
        const float d = fabsf(a->loss[i] - b->loss[i]) / b->loss[i];
        if (!(d <= most)) most = d;
    }
    return most;
}

/* Returns the largest difference in units of the largest element of its tensor. */
static float gradient_difference(const model *m, const float *a, const float *b)
{
    float worst = 0;
    for (int i = 0; i < m->num_tensors; i++) {
        const int n = m->tensors[i].inputs * m->tensors[i].outputs;
        float most = 0, off = 0;
        for (int j = 0; j < n; j++, a++, b++) {
            const float d = fabsf(*a - *b);
            if (!(d <= off)) off = d;
            most = fmaxf(most, fabsf(*b));
        }
        if (!(off <= worst * most)) worst = off / most;
    }
    return worst;
}

static const char *yes(int is)
{
    return is ? "yes" : "NO";
}

/* Naive rounds in another order, by some units of 2^-24 in each O and each gradient, and layers
 * and steps add to that. The tolerance of 1e-5, or 168 of these units, leaves them room and is
 * still far below the effect of one key or term too many or too few. Weights are not compared:
 * where a gradient is nearly 0, Adam divides it, and with it its rounding error, by its own
 * size. */
static int compare_naive(const trainer *t, const trace *naive, const trace *tiled)
{
    const float allowed = 1e-5f;
    const float loss = loss_difference(naive, tiled);
    const float gradient = gradient_difference(&t->r.m, naive->first, tiled->first);
    const int good = loss <= allowed && gradient <= allowed;
    printf("  naive: losses differ by up to %.2e of themselves, gradients of the first step by up\n"
           "  to %.2e of the largest of their tensor; at most %.0e: %s\n",
           (double)loss, (double)gradient, (double)allowed, yes(good));
    return good;
}

static int compare_ways(trainer *t)
{
    static trace seen[WAYS];
    int same = 1;
    printf("\n%d steps in other ways: loss of the first and last, hash of all weights\n", COMPARED);
    for (int i = 0; i < WAYS; i++) {
        follow(t, &ways[i], &seen[i]);
        if (i == NAIVE) break;
        printf("  %-41s gemms=%d  %.9g  %.9g  %016llx\n", ways[i].options, ways[i].gemms,
               (double)seen[i].loss[0], (double)seen[i].loss[COMPARED - 1],
               (unsigned long long)seen[i].hash);
        same = same && seen[i].hash == seen[0].hash &&
               memcmp(seen[i].loss, seen[0].loss, sizeof seen[0].loss) == 0;
    }
    printf("  the same bits: %s\n", yes(same));
    choose_way(t, &ways[0]);
    return compare_naive(t, &seen[NAIVE], &seen[0]) && same;
}

/* ---- 2. training */

static void print_step(trainer *t, int step, float loss, time_t began)
{
    const float held_out = held_out_loss(t);
    const double used = difftime(time(NULL), began);
    printf("  step %6d  loss %.9g  held out %.9g  %.0f s left\n", step, (double)loss,
           (double)held_out, used * (t->o.steps - step) / step);
    fflush(stdout);
}

static int train(trainer *t)
{
    const time_t began = time(NULL);
    const int every = t->o.steps < 12 ? 1 : t->o.steps / 12;
    float sum = 0, before, after;
    int fell;
    start_again(t);
    before = held_out_loss(t);
    printf("\n%d steps; losses are means of the last %d and of what is held out\n", t->o.steps,
           every);
    for (int step = 0; step < t->o.steps; step++) {
        sum = sum + train_step(t, step);
        if ((step + 1) % every) continue;
        print_step(t, step + 1, sum / (float)every, began);
        sum = 0;
    }
    after = held_out_loss(t);
    fell = after < 0.9f * before;
    printf("  held out: from %.9g to %.9g, hash of all weights %016llx\n"
           "  it fell by more than a tenth: %s\n", (double)before, (double)after,
           (unsigned long long)hash_of(t->r.m.weights, t->r.m.count), yes(fell));
    return fell;
}

/* ---- 3. writing */

typedef struct page {
    int prompt, length;
    unsigned char *token;
    float *logits; /* [length, symbols] from which the next token was drawn; from prompt - 1 on */
} page;

static unsigned char draw(const float *logits, int symbols, uint64_t *seed)
{
    float chance[256], left;
    int i = 0;
    memcpy(chance, logits, (size_t)symbols * sizeof *chance);
    left = exponentials(chance, symbols, 0.7f); /* below 1: likely tokens come more often */
    left = left * random_float(seed);
    for (; i < symbols - 1 && left >= chance[i]; i++) left = left - chance[i];
    return (unsigned char)i;
}

/* Makes a ring with room for the tokens that one looks back on, and for the prompt. */
static void make_cache(attn_cache *c, const model *m, int prompt)
{
    size_t need;
    c->num_sequences = 1;
    c->num_layers = m->layers;
    c->num_heads_kv = m->heads_kv;
    c->head_dim = m->head_dim;
    c->ring = 1;
    c->window_left = m->context - 1;
    c->capacity = c->window_left + prompt;
    must(attn_cache_size(c, &need, why, sizeof why));
    must(attn_cache_init(c, take(need, 1), need, why, sizeof why));
}

static void write_page(trainer *t, page *to)
{
    const int symbols = t->r.m.symbols;
    const size_t row = (size_t)symbols * sizeof(float);
    uint64_t seed = (uint64_t)t->o.seed + 2;
    attn_cache cache = {0};
    pass in = {1, to->prompt, 0, &cache};
    make_cache(&cache, &t->r.m, to->prompt);
    for (int at = 0; at < to->length; at += in.tokens, in.tokens = 1) {
        attn_cache_step added = {0};
        const int end = at + in.tokens;
        in.first = at;
        add_to_step(&added, &t->r, &t->r.layers[0], &in);
        must(attn_cache_extend(&cache, &added, why, sizeof why));
        forward(&t->r, &in, to->token + at);
        memcpy(to->logits + (end - 1) * symbols, t->r.logits + (in.tokens - 1) * symbols, row);
        if (end < to->length)
            to->token[end] = draw(to->logits + (end - 1) * symbols, symbols, &seed);
    }
}

/* Tells whether one pass over all tokens, without a cache, gives logits of the same bits. */
static int same_in_one_pass(trainer *t, const page *written)
{
    const int symbols = t->r.m.symbols, first = (written->prompt - 1) * symbols;
    const pass in = {1, written->length, 0, NULL};
    forward(&t->r, &in, written->token);
    return memcmp(t->r.logits + first, written->logits + first,
                  (size_t)(written->length * symbols - first) * sizeof(float)) == 0;
}

static void print_tokens(const text *t, const unsigned char *tokens, int n)
{
    for (int i = 0; i < n; i++) putchar(t->byte[tokens[i]]);
}

static int write_text(trainer *t)
{
    page p = {t->o.context / 2, 0, NULL, NULL};
    int same;
    p.length = p.prompt + t->o.sample;
    p.token = take((size_t)p.length, 1);
    p.logits = floats((size_t)p.length * (size_t)t->r.m.symbols);
    memcpy(p.token, t->t.held_out + (t->t.num_held_out - p.prompt) / 2, (size_t)p.prompt);
    write_page(t, &p);
    same = same_in_one_pass(t, &p);
    printf("\n%d tokens that were held out, and %d that the model writes behind |\n", p.prompt,
           t->o.sample);
    puts("----------------------------------------------------------------");
    print_tokens(&t->t, p.token, p.prompt);
    putchar('|');
    print_tokens(&t->t, p.token + p.prompt, t->o.sample);
    puts("\n----------------------------------------------------------------");
    printf("the cache gives the bits of one pass over all of it: %s\n", yes(same));
    return same;
}

/* ---- 4. fewer bits */

enum { BOTH = ATTN_ROTATED_K + ATTN_ROTATED_V };
static const storage storages[] = {
    {"f32", ATTN_F32, 0, 0, 0},
    {"f32, rotated", ATTN_F32, BOTH, 0, 0},
    {"f16", ATTN_F16, 0, 0, 0},
    {"bf16", ATTN_BF16, 0, 0, 0},
    {"q8_0", ATTN_Q8_0, 0, 0, 0},
    {"q8_0, whole numbers", ATTN_Q8_0, 0, 1, 0},
    {"q8_0, rotated", ATTN_Q8_0, BOTH, 0, 0},
    {"q8_0, rotated, whole numbers", ATTN_Q8_0, BOTH, 1, 0},
    {"e4m3", ATTN_E4M3, 0, 0, 0},
    {"e4m3, rotated", ATTN_E4M3, BOTH, 0, 0},
    {"e5m2", ATTN_E5M2, 0, 0, 0},
    {"e5m2, rotated", ATTN_E5M2, BOTH, 0, 0},
    {"q5_0", ATTN_Q5_0, 0, 0, 0},
    {"q5_0, whole numbers", ATTN_Q5_0, 0, 1, 0},
    {"q5_0, rotated", ATTN_Q5_0, BOTH, 0, 0},
    {"q5_0, rotated, whole numbers", ATTN_Q5_0, BOTH, 1, 0},
    {"q4_0", ATTN_Q4_0, 0, 0, 0},
    {"q4_0, whole numbers", ATTN_Q4_0, 0, 1, 0},
    {"q4_0, rotated", ATTN_Q4_0, BOTH, 0, 0},
    {"q4_0, rotated, whole numbers", ATTN_Q4_0, BOTH, 1, 0},
    {"q4_0, 8 recent keys", ATTN_Q4_0, 0, 0, 8},
    {"q4_0, 32 recent keys", ATTN_Q4_0, 0, 0, 32},
};

/* The loss in f32 comes first. Rotation alone must not change it, and q8_0 hardly. */
static int compare_storages(trainer *t)
{
    const int units = t->r.m.head_dim % 32 == 0;
    float exact = 0;
    int good = 1;
    puts("\n| K and V | loss of what is held out | more than in f32 |\n|---|---|---|");
    for (size_t i = 0; i < sizeof storages / sizeof *storages; i++) {
        const storage *s = &storages[i];
        float loss;
        if (s->dtype >= ATTN_Q8_0 && !units) continue;
        t->r.stored = s;
        loss = held_out_loss(t);
        exact = i == 0 ? loss : exact;
        if (s->dtype <= ATTN_Q8_0) good = fabsf(loss - exact) < 0.01f * exact && good;
        printf("| %s | %.5f | %+.5f |\n", s->name, (double)loss, (double)(loss - exact));
    }
    t->r.stored = NULL;
    if (!units) puts("q8_0, q5_0 and q4_0 need heads of 32, as --width 128 --heads 4 has them");
    printf("within a hundredth of f32 down to 8 bits: %s\n", yes(good));
    return good;
}

/* ---- gradients against differences of the loss */

enum { LARGEST, HALF, OTHER_HALF, SIGNS, DIRECTIONS };

/* Makes a direction of length 1: the largest gradient alone, a random half, or random signs. */
static void direct(float *u, const float *g, int n, int kind, uint64_t *seed)
{
    float sum = 0;
    int largest = 0;
    for (int i = 0; i < n; i++) {
        const int bit = (int)(random_bits(seed) >> 31);
        if (fabsf(g[i]) > fabsf(g[largest])) largest = i;
        u[i] = kind == SIGNS ? (float)(2 * bit - 1) : bit ? g[i] : 0;
    }
    if (kind == LARGEST) {
        clear(u, n);
        u[largest] = 1;
    }
    for (int i = 0; i < n; i++) sum += u[i] * u[i];
    for (int i = 0; i < n && sum > 0; i++) u[i] /= square_root(sum);
}

/* (loss(w + h u) - loss(w - h u)) / 2h */
static float slope_along(trainer *t, const tensor *w, const float *u, float *kept, int n)
{
    const float h = 0.01f;
    float loss[2];
    memcpy(kept, w->weight, (size_t)n * sizeof *kept);
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < n; i++) w->weight[i] = kept[i] + (side ? h : -h) * u[i];
        loss[side] = loss_of_batch(t);
    }
    memcpy(w->weight, kept, (size_t)n * sizeof *kept);
    return (loss[1] - loss[0]) / (2 * h);
}

/* A loss is right to about 2^-22, so a slope is right to 2^-22 / 0.02, or 1e-5. */
static int check_tensor(trainer *t, const tensor *w, const float *g, float *u, uint64_t *seed)
{
    const int n = w->inputs * w->outputs;
    float *kept = u + n;
    int good = 1;
    for (int kind = 0; kind < DIRECTIONS; kind++) {
        float slope, expected = 0, size = 0;
        direct(u, g, n, kind, seed);
        for (int i = 0; i < n; i++) {
            expected += u[i] * g[i];
            size += fabsf(u[i] * g[i]);
        }
        slope = slope_along(t, w, u, kept, n);
        if (kind == HALF)
            printf("  %-15s %12.6f %12.6f\n", w->name, (double)expected, (double)slope);
        if (fabsf(slope - expected) <= 0.01f * size + 5e-5f) continue;
        printf("  %-15s %12.6f %12.6f differ, direction %d\n", w->name, (double)expected,
               (double)slope, kind);
        good = 0;
    }
    return good;
}

static int check_gradients(trainer *t)
{
    const model *m = &t->r.m;
    float *g = floats((size_t)m->count), *u = floats(2 * (size_t)m->count);
    uint64_t seed = 1;
    int good = 1;
    start_again(t);
    draw_batch(t);
    gradients_of_batch(t);
    memcpy(g, m->gradients, (size_t)m->count * sizeof *g);
    puts("\nslopes of the loss:  by gradients, by differences");
    for (int i = 0; i < m->num_tensors; i++) {
        const tensor *w = &m->tensors[i];
        good = check_tensor(t, w, g + (w->gradient - m->gradients), u, &seed) && good;
    }
    printf("within a hundredth, in %d directions a tensor: %s\n", DIRECTIONS, yes(good));
    return good;
}

int main(int argc, char **argv)
{
    static trainer t;
    const int files = read_options(&t.o, argv + (argc > 0));
    int good, rows, longest;
    read_text(&t.t, argv + 1, files, t.o.context);
    make_model(&t.r.m, &t.o, t.t.symbols);
    longest = t.o.context / 2 + t.o.sample;
    rows = t.o.batch * t.o.context;
    make_run(&t.r, rows > longest ? rows : longest, longest > t.o.context ? longest : t.o.context);
    t.tokens = take((size_t)rows, 1);
    t.follows = take((size_t)rows, 1);
    printf("a model of %d weights, %d layers of width %d, %d query and %d key heads of %d;\n"
           "%d bytes of text, %d held out, %d different ones; %d pieces of %d a step\n",
           t.r.m.count, t.r.m.layers, t.r.m.width, t.r.m.heads_q, t.r.m.heads_kv, t.r.m.head_dim,
           t.t.num_learned, t.t.num_held_out, t.t.symbols, t.o.batch, t.o.context);
    if (t.o.check_gradients) {
        good = check_gradients(&t);
    } else {
        good = compare_ways(&t);
        good = train(&t) && good;
        good = write_text(&t) && good;
        if (t.o.storage) good = compare_storages(&t) && good;
    }
    give_back();
    return good ? 0 : 1;
}
