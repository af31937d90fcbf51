/* keyword.c - attention in whole numbers for a microcontroller, of the size that spots keywords.
 * SPDX-License-Identifier: MIT
 *
 *     cc -std=c99 -O2 -ffp-contract=off examples/keyword.c ports/board_os.c ports/print.c attn.c -lm \
 *         -o keyword && ./keyword
 *
 * `make boards` runs it without an operating system, too, and docs/boards.md says what it takes there.
 *
 * A second of sound is 64 frames of 64 numbers. They come a few at a time, and each looks at itself and at
 * those before it, in two layers of attention: 4 heads of 32 numbers with their projections. (What else
 * a transformer has, norms and an MLP, has nothing to do with attention.) Numbers are stored as bytes:
 *
 *     weights        in flash, bytes with one scale for all
 *     rows           rounded to units of 32 bytes with a scale (q8_0) before they meet weights
 *     keys, values   q8_0, as the projection of each frame leaves them: a cache of a quarter of f32
 *     queries        rounded by the call itself (p.integer), so that q.k is a sum of products of bytes
 *
 * Such sums are exact. All other operations are rounded as the library and the statements below have
 * them, so a board without an FPU prints the hash that a server prints, and four frames at a time give the
 * hash of one at a time. */
#include "../attn.h"
#include "../ports/board.h"

#include <math.h>
#include <string.h>

enum {
    FRAMES = 64, AT_ONCE = 4, WIDTH = 64,
    LAYERS = 2, HEADS = 4, DIM = 32, ROW = HEADS * DIM, /* head_dim is whole units */
    UNIT = 32
};

typedef struct unit { /* as q8_0 has it */
    uint16_t scale;
    int8_t x[UNIT];
} unit;

/* ---- weights, computed by the compiler from their indices */

#define HASH(n) (((n) * 2654435761u ^ (n) * 2654435761u >> 15) * 2246822519u)
#define W1(n) (int8_t)((int)(HASH(n) >> 24) - 128)
#define W8(n) W1(n), W1(n + 1u), W1(n + 2u), W1(n + 3u), W1(n + 4u), W1(n + 5u), W1(n + 6u), W1(n + 7u)
#define W64(n) W8(n), W8(n + 8u), W8(n + 16u), W8(n + 24u), W8(n + 32u), W8(n + 40u), W8(n + 48u), W8(n + 56u)
#define W512(n) W64(n), W64(n + 64u), W64(n + 128u), W64(n + 192u), \
                W64(n + 256u), W64(n + 320u), W64(n + 384u), W64(n + 448u)
#define W4096(n) W512(n), W512(n + 512u), W512(n + 1024u), W512(n + 1536u), \
                 W512(n + 2048u), W512(n + 2560u), W512(n + 3072u), W512(n + 3584u)
#define MATRIX(n) { W4096(n * 8192u), W4096(n * 8192u + 4096u) } /* ROW * WIDTH */

enum { QUERY, KEY, VALUE, OUT, MATRICES };
static const float weight_scale = 0x1p-9f;
static const int8_t weights[LAYERS][MATRICES][ROW * WIDTH] = {
    { MATRIX(1u), MATRIX(2u), MATRIX(3u), MATRIX(4u) },
    { MATRIX(5u), MATRIX(6u), MATRIX(7u), MATRIX(8u) },
};

/* ---- what a run of the model keeps */

static unit keys[LAYERS][FRAMES][HEADS], values[LAYERS][FRAMES][HEADS];
static float x[AT_ONCE][WIDTH], q[AT_ONCE][ROW], o[AT_ONCE][ROW];
static char workspace[20 * 1024]; /* 12 KB of it where the CPU has no vectors */
static double worst, most; /* of attention in the first layer: difference, and magnitude */

enum { ATTENTION, PROJECTIONS };
static unsigned long instructions[2];

static void must(attn_status status)
{
    if (status == ATTN_OK) return;
    board_print(attn_status_string(status));
    board_exit(1);
}

/* ---- projections */

static float number(uint16_t f16)
{
    float y;
    must(attn_convert(&y, ATTN_F32, &f16, ATTN_F16, 1));
    return y;
}

/* The sum of products of bytes is exact in whatever order a compiler chooses. */
static int32_t dot(const int8_t *a, const int8_t *b)
{
    int32_t sum = 0;
    for (int i = 0; i < UNIT; i++) sum += a[i] * b[i];
    return sum;
}

/* y = w row */
static void project(float *y, int outputs, const int8_t *w, const float *row, int inputs)
{
    unit units[ROW / UNIT];
    float scales[ROW / UNIT];
    must(attn_convert(units, ATTN_Q8_0, row, ATTN_F32, (size_t)inputs));
    for (int u = 0; u < inputs / UNIT; u++) {
        scales[u] = number(units[u].scale);
        scales[u] = scales[u] * weight_scale;
    }
    for (int j = 0; j < outputs; j++) {
        y[j] = 0;
        for (int u = 0; u < inputs / UNIT; u++, w += UNIT) {
            const float term = (float)dot(units[u].x, w) * scales[u];
            y[j] = y[j] + term;
        }
    }
}

/* Queries of n frames, and their keys and values, which are stored. */
static void project_frames(int layer, int first, int n)
{
    float row[ROW];
    board_start_counting();
    for (int i = 0; i < n; i++) {
        project(q[i], ROW, weights[layer][QUERY], x[i], WIDTH);
        project(row, ROW, weights[layer][KEY], x[i], WIDTH);
        must(attn_convert(keys[layer][first + i], ATTN_Q8_0, row, ATTN_F32, ROW));
        project(row, ROW, weights[layer][VALUE], x[i], WIDTH);
        must(attn_convert(values[layer][first + i], ATTN_Q8_0, row, ATTN_F32, ROW));
    }
    instructions[PROJECTIONS] += board_counted();
}

static void add_output(int layer, int n)
{
    float y[WIDTH];
    board_start_counting();
    for (int i = 0; i < n; i++) {
        project(y, WIDTH, weights[layer][OUT], o[i], ROW);
        for (int j = 0; j < WIDTH; j++) x[i][j] = x[i][j] + y[j];
    }
    instructions[PROJECTIONS] += board_counted();
}

/* ---- attention of n frames over those up to each */

static attn_params call(int layer, int first, int n)
{
    attn_params p = {0};
    p.batch = 1;
    p.num_heads_q = HEADS;
    p.seq_len_q = n;
    p.seq_len_kv = first + n;
    p.head_dim = DIM;
    p.layout = ATTN_LAYOUT_BSHD; /* [frame, head, dim] */
    p.causal = 1;
    p.integer = 1;
    p.tile_keys = 16; /* for less workspace */
    p.k.dtype = p.v.dtype = ATTN_Q8_0;
    p.q.data = q;
    p.k.data = keys[layer];
    p.v.data = values[layer];
    p.o.data = o;
    return p;
}

static void attend(int layer, int first, int n)
{
    const attn_params p = call(layer, first, n);
    board_start_counting();
    must(attn_forward(&p, workspace, sizeof workspace));
    instructions[ATTENTION] += board_counted();
}

/* ---- the model */

static void take_frame(float *to, int frame)
{
    for (int i = 0; i < WIDTH; i++)
        to[i] = (float)(int32_t)(HASH((uint32_t)(frame * WIDTH + i)) >> 16) / 32768.0f - 1.0f;
}

static void compare_with_oracle(int first, int n);

/* The hash of what all frames become, `n` of them at a time. */
static uint64_t run(int n, int compare)
{
    uint64_t hash = FIRST_HASH;
    memset(instructions, 0, sizeof instructions);
    for (int first = 0; first < FRAMES; first += n) {
        for (int i = 0; i < n; i++) take_frame(x[i], first + i);
        for (int layer = 0; layer < LAYERS; layer++) {
            project_frames(layer, first, n);
            attend(layer, first, n);
            if (compare && layer == 0) compare_with_oracle(first, n);
            add_output(layer, n);
        }
        hash = hash_floats(hash, x[0], (size_t)n * WIDTH);
    }
    return hash;
}

/* ---- the oracle: the first layer in doubles, of keys and values that are not rounded */

static void compare_with_oracle(int first, int n)
{
    float frame[WIDTH], key[ROW], value[ROW];
    static double sum[AT_ONCE][HEADS], weighted[AT_ONCE][ROW];
    memset(sum, 0, sizeof sum);
    memset(weighted, 0, sizeof weighted);
    for (int j = 0; j < first + n; j++) {
        take_frame(frame, j);
        project(key, ROW, weights[0][KEY], frame, WIDTH);
        project(value, ROW, weights[0][VALUE], frame, WIDTH);
        for (int i = j < first ? 0 : j - first; i < n; i++)
            for (int h = 0; h < HEADS; h++) {
                double logit = 0;
                for (int d = h * DIM; d < (h + 1) * DIM; d++) logit += (double)q[i][d] * (double)key[d];
                const double p = exp(logit / sqrt(DIM));
                sum[i][h] += p;
                for (int d = h * DIM; d < (h + 1) * DIM; d++) weighted[i][d] += p * (double)value[d];
            }
    }
    for (int i = 0; i < n; i++)
        for (int d = 0; d < ROW; d++) {
            const double right = weighted[i][d] / sum[i][d / DIM];
            most = fmax(most, fabs(right));
            worst = fmax(worst, fabs((double)o[i][d] - right));
        }
}

/* ---- what it prints */

static void print_hash(const char *what, uint64_t hash)
{
    board_print(what);
    print_number(hash, 16, 16);
    board_print("\n");
}

static void print_instructions(void)
{
    print_value("keyword attention ", instructions[ATTENTION]);
    print_value("keyword projections ", instructions[PROJECTIONS]);
}

int main(void)
{
    const attn_params p = call(0, FRAMES - AT_ONCE, AT_ONCE);
    size_t need = 0;
    print_hash("hash keyword_frames ", run(AT_ONCE, 1));
    print_instructions();
    print_hash("hash keyword_frame ", run(1, 0));
    print_instructions();
    print_value("keyword error ", (uint64_t)(worst / most * 1e6 + 0.5)); /* millionths of the largest */
    must(attn_workspace_size(&p, &need));
    print_value("keyword arrays ", sizeof keys + sizeof values + sizeof x + sizeof q + sizeof o);
    print_value("keyword workspace ", need);
    board_paint_stack();
    run(AT_ONCE, 0);
    print_value("keyword stack ", board_stack_used());
    return 0;
}
