/* board.c - calls whose results have the same bits on every machine, with and without an operating
 * system. tools/boards.sh builds it for each target and compares what it prints with what it prints on
 * the machine at hand.
 * SPDX-License-Identifier: MIT
 *
 *     board                        prints everything; status 1 if a check fails
 *     board WORK N    only runs shape N of `shapes`, for emulators that count instructions: attn, loop ...
 *
 * Lines begin with a word: `kernels` (sets of the build that this CPU has, the chosen one first), `hash`
 * CASE HASH, `passed` or `failed` CHECK, `params`, `workspace` (the least) and `stack` BYTES, `count` N WORK
 * INSTRUCTIONS. Inputs are multiples of 2^-14, made from integers.
 */
#include "board.h"

#include "../attn.h"

#include <math.h>
#include <string.h>

enum { HEADS = 4, KV_HEADS = 2, ROWS = 24, KEYS = 70, DIM = 32 };

static float q[HEADS * ROWS * DIM], k[KV_HEADS * KEYS * DIM], v[KV_HEADS * KEYS * DIM];
static float o[HEADS * ROWS * DIM], expected[HEADS * ROWS * DIM], gradients[3][KEYS * DIM];
static float stats[2 * ROWS * 2], logits[KEYS];
static int32_t byte_logits[KEYS];
static uint16_t narrow_q[HEADS * ROWS * DIM], narrow_k[KV_HEADS * KEYS * DIM],
    narrow_v[KV_HEADS * KEYS * DIM];
static const float sinks[HEADS] = { 0.5f, -1.0f, 0.25f, 2.0f };
static float slopes[HEADS];
static char workspace[100 * 1024];

/* ---- data and calls */

static void fill(float *x, int n, uint32_t stream)
{
    for (int i = 0; i < n; i++) {
        uint32_t h = (stream << 20) + (uint32_t)i;
        h = (h ^ h >> 16) * UINT32_C(0x7feb352d);
        h = (h ^ h >> 15) * UINT32_C(0x846ca68b);
        x[i] = (float)((int32_t)(h >> 17) - 16384) / 16384.0f;
    }
}

static attn_params shaped(int heads, int kv_heads, int rows, int keys, int dim)
{
    attn_params p = { 0 };
    p.batch = 1;
    p.num_heads_q = heads;
    p.num_heads_kv = kv_heads;
    p.seq_len_q = rows;
    p.seq_len_kv = keys;
    p.head_dim = dim;
    p.causal = 1;
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    return p;
}

static int forward(const attn_params *p)
{
    return attn_forward(p, workspace, sizeof workspace) == ATTN_OK;
}

static int convert_kv(attn_params *p, int type)
{
    const size_t n = (size_t)(p->num_heads_kv * p->seq_len_kv * p->head_dim);
    p->k.dtype = p->v.dtype = type;
    p->k.data = narrow_k;
    p->v.data = narrow_v;
    return attn_convert(narrow_k, type, k, ATTN_F32, n) == ATTN_OK &&
           attn_convert(narrow_v, type, v, ATTN_F32, n) == ATTN_OK;
}

/* ---- the cases: each sets up a call of the full size, runs it, and leaves results in o and gradients */

static int run_causal(attn_params *p)
{
    return forward(p);
}

static int run_window(attn_params *p)
{
    p->window = 1;
    p->window_left = 20;
    p->softcap = 3.0f;
    return forward(p);
}

static int run_alibi(attn_params *p)
{
    p->alibi_slopes = slopes;
    p->sinks = sinks;
    return attn_alibi_slopes(slopes, HEADS) == ATTN_OK && forward(p);
}

static int run_dropout(attn_params *p)
{
    p->dropout_p = 0.25f;
    p->dropout_seed = 7;
    return forward(p);
}

/* q, k, v and o in 16 bits. */
static int run_narrow(attn_params *p, int type)
{
    p->q.dtype = p->o.dtype = type;
    p->q.data = narrow_q;
    return convert_kv(p, type) &&
           attn_convert(narrow_q, type, q, ATTN_F32, HEADS * ROWS * DIM) == ATTN_OK && forward(p);
}

static int run_f16(attn_params *p)
{
    return run_narrow(p, ATTN_F16);
}

static int run_bf16(attn_params *p)
{
    return run_narrow(p, ATTN_BF16);
}

static int run_q8_0(attn_params *p)
{
    return convert_kv(p, ATTN_Q8_0) && forward(p);
}

static int run_integer(attn_params *p)
{
    p->integer = 1;
    return run_q8_0(p);
}

/* One row, whose keys are divided among three workers. */
static int run_decode(attn_params *p)
{
    p->seq_len_q = 1;
    p->num_workers = 3;
    return forward(p);
}

/* Of half the heads and in small tiles, for the sake of the workspace. dout is o, which makes the loss half
 * the sum of o * o. */
static int run_gradients(attn_params *p)
{
    attn_gradients g = { 0 };
    p->num_heads_q = 2;
    p->num_heads_kv = 1;
    p->tile_keys = 16;
    p->stats.data = stats;
    if (!forward(p))
        return 0;
    memcpy(expected, o, sizeof o);
    g.dout.data = expected;
    g.dq.data = gradients[0];
    g.dk.data = gradients[1];
    g.dv.data = gradients[2];
    return attn_backward(p, &g, workspace, sizeof workspace) == ATTN_OK;
}

static const struct board_case {
    const char *name;
    int (*run)(attn_params *);
} cases[] = {
    { "causal", run_causal },       { "window", run_window },   { "alibi", run_alibi },
    { "dropout", run_dropout },     { "f16", run_f16 },         { "bf16", run_bf16 },
    { "q8_0", run_q8_0 },           { "integer", run_integer }, { "decode", run_decode },
    { "gradients", run_gradients },
};

/* ---- hashes */

/* Results of 16 bits are widened, exactly. */
static uint64_t hash_results(const attn_params *p)
{
    const size_t n = (size_t)(p->num_heads_q * p->seq_len_q * p->head_dim);
    attn_convert(expected, ATTN_F32, o, p->o.dtype, n);
    uint64_t hash = hash_floats(FIRST_HASH, expected, n);
    return hash_floats(hash, gradients[0], sizeof gradients / sizeof gradients[0][0]);
}

static int print_case(const struct board_case *c)
{
    attn_params p = shaped(HEADS, KV_HEADS, ROWS, KEYS, DIM);
    memset(o, 0, sizeof o);
    memset(gradients, 0, sizeof gradients);
    const int ran = c->run(&p);
    board_print(ran ? "hash " : "failed ");
    board_print(c->name);
    board_print(" ");
    if (ran)
        print_number(hash_results(&p), 16, 16);
    board_print("\n");
    return ran;
}

/* ---- the textbook: row i of n sees the first keys - n + i + 1 keys */

static void loop_row(const attn_params *p, const float *row, float *to, const float *keys,
                     const float *values, int64_t visible)
{
    const int64_t dim = p->head_dim;
    const float scale = 1.0f / sqrtf((float)dim);
    float most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < visible; j++) {
        float dot = 0;
        for (int64_t d = 0; d < dim; d++)
            dot += row[d] * keys[j * dim + d];
        logits[j] = dot * scale;
        most = logits[j] > most ? logits[j] : most;
    }
    for (int64_t j = 0; j < visible; j++) {
        logits[j] = expf(logits[j] - most);
        sum += logits[j];
    }
    for (int64_t d = 0; d < dim; d++)
        to[d] = 0;
    for (int64_t j = 0; j < visible; j++)
        for (int64_t d = 0; d < dim; d++)
            to[d] += logits[j] / sum * values[j * dim + d];
}

static void loop(const attn_params *p, float *to)
{
    const int64_t dim = p->head_dim, rows = p->seq_len_q, keys = p->seq_len_kv;
    for (int64_t at = 0; at < p->num_heads_q * rows; at++) {
        const int64_t kv = at / rows / (p->num_heads_q / p->num_heads_kv) * keys * dim;
        loop_row(p, q + at * dim, to + at * dim, k + kv, v + kv, keys - rows + at % rows + 1);
    }
}

/* ---- checks */

static int check_loop(void)
{
    const attn_params p = shaped(HEADS, KV_HEADS, ROWS, KEYS, DIM);
    float worst = 0;
    if (!forward(&p))
        return 0;
    loop(&p, expected);
    for (int i = 0; i < HEADS * ROWS * DIM; i++)
        worst = fabsf(o[i] - expected[i]) <= worst ? worst : fabsf(o[i] - expected[i]);
    return worst < 1e-6f;
}

/* The last row alone, as a decode step computes it, has the bits of the whole. */
static int check_decode(void)
{
    attn_params p = shaped(1, 1, ROWS, KEYS, DIM);
    if (!forward(&p))
        return 0;
    memcpy(expected, o + (ROWS - 1) * DIM, DIM * sizeof *o);
    p.seq_len_q = 1;
    p.q.data = q + (ROWS - 1) * DIM;
    return forward(&p) && memcmp(o, expected, DIM * sizeof *o) == 0;
}

/* Tiles of other sizes do not change a bit. */
static int check_tiles(void)
{
    attn_params p = shaped(HEADS, KV_HEADS, ROWS, KEYS, DIM);
    if (!forward(&p))
        return 0;
    memcpy(expected, o, sizeof o);
    p.tile_keys = 32;
    return forward(&p) && memcmp(o, expected, sizeof o) == 0;
}

/* A call that cannot run writes nothing. */
static int check_refusal(void)
{
    attn_params p = shaped(HEADS, 3, ROWS, KEYS, DIM);
    memset(o, 0, sizeof o);
    memset(expected, 0, sizeof expected);
    return attn_forward(&p, workspace, sizeof workspace) == ATTN_ERR_ARG &&
           attn_forward(&p, NULL, 0) == ATTN_ERR_ARG && memcmp(o, expected, sizeof o) == 0;
}

static const struct board_check {
    const char *name;
    int (*passes)(void);
} checks[] = {
    { "loop", check_loop },
    { "decode", check_decode },
    { "tiles", check_tiles },
    { "refusal", check_refusal },
};

static int print_check(const struct board_check *c)
{
    const int passed = c->passes();
    board_print(passed ? "passed " : "failed ");
    board_print(c->name);
    board_print("\n");
    return passed;
}

/* ---- the textbook in whole numbers: bytes with one scale for all, and probabilities of seven bits */

static const int8_t *const byte_k = (const int8_t *)narrow_k, *const byte_v =
                                                                  (const int8_t *)narrow_v;

static void to_bytes(int8_t *to, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (int8_t)(x[i] * 127.0f);
}

static void bytes_row(const attn_params *p, const float *row, float *to, int64_t visible)
{
    const int64_t dim = p->head_dim;
    const float scale = 1.0f / (sqrtf((float)dim) * (127.0f * 127.0f));
    int8_t q8[DIM], weight[KEYS];
    int32_t most = INT32_MIN, sum = 0;
    to_bytes(q8, row, dim);
    for (int64_t j = 0; j < visible; j++) {
        byte_logits[j] = 0;
        for (int64_t d = 0; d < dim; d++)
            byte_logits[j] += q8[d] * byte_k[j * dim + d];
        most = byte_logits[j] > most ? byte_logits[j] : most;
    }
    for (int64_t j = 0; j < visible; j++) {
        weight[j] = (int8_t)(expf((float)(byte_logits[j] - most) * scale) * 127.0f + 0.5f);
        sum += weight[j];
    }
    for (int64_t d = 0; d < dim; d++) {
        int32_t value = 0;
        for (int64_t j = 0; j < visible; j++)
            value += weight[j] * byte_v[j * dim + d];
        to[d] = (float)value / ((float)sum * 127.0f);
    }
}

/* ---- what a call takes */

static const struct board_shape {
    int rows, keys, dim;
} shapes[] = { { 1, 64, 16 }, { 16, 16, 16 }, { 1, 64, 32 }, { 64, 64, 32 } };
enum { SHAPES = sizeof shapes / sizeof shapes[0], SIZED = 1 };

static attn_params shape_call(int n)
{
    return shaped(1, 1, shapes[n].rows, shapes[n].keys, shapes[n].dim);
}

static void run_nothing(const attn_params *p)
{
    (void)p;
}

static void run_attn(const attn_params *p)
{
    forward(p);
}

static void run_loop(const attn_params *p)
{
    loop(p, expected);
}

static void run_bytes(const attn_params *p)
{
    for (int64_t i = 0; i < p->seq_len_q; i++)
        bytes_row(p, q + i * p->head_dim, expected + i * p->head_dim,
                  p->seq_len_kv - p->seq_len_q + i + 1);
}

static void prepare_nothing(attn_params *p)
{
    (void)p;
}

static void prepare_integer(attn_params *p)
{
    p->integer = 1;
    convert_kv(p, ATTN_Q8_0);
}

static void prepare_bytes(attn_params *p)
{
    to_bytes((int8_t *)narrow_k, k, p->seq_len_kv * p->head_dim);
    to_bytes((int8_t *)narrow_v, v, p->seq_len_kv * p->head_dim);
}

static const struct board_work {
    const char *name;
    void (*prepare)(attn_params *);
    void (*run)(const attn_params *);
    int unit; /* what head_dim is a multiple of */
} works[] = {
    { "nothing", prepare_nothing, run_nothing, 1 }, { "attn", prepare_nothing, run_attn, 1 },
    { "loop", prepare_nothing, run_loop, 1 },       { "integer", prepare_integer, run_attn, 32 },
    { "bytes", prepare_bytes, run_bytes, 32 },
};
enum { WORKS = sizeof works / sizeof works[0] };

static void print_count(int n, const struct board_work *work)
{
    attn_params p = shape_call(n);
    if (p.head_dim % work->unit != 0)
        return;
    work->prepare(&p);
    board_start_counting();
    work->run(&p);
    const unsigned long counted = board_counted();
    board_print("count ");
    print_number((uint64_t)n, 10, 1);
    board_print(" ");
    board_print(work->name);
    print_value(" ", counted);
}

/* The bytes with which attn_check is content, of which more are better up to attn_workspace_size. */
static size_t least_workspace(const attn_params *p)
{
    size_t too_few = 0, enough = sizeof workspace;
    char text[16];
    while (enough - too_few > 1) {
        const size_t bytes = (too_few + enough) / 2;
        if (strcmp(attn_check(p, workspace, bytes, text, sizeof text), "ok") == 0)
            enough = bytes;
        else
            too_few = bytes;
    }
    return enough;
}

static void print_sizes(void)
{
    const attn_params p = shape_call(SIZED);
    print_value("params ", sizeof p);
    print_value("workspace ", least_workspace(&p));
    board_paint_stack();
    run_attn(&p);
    print_value("stack ", board_stack_used());
}

static void print_kernels(void)
{
    board_print("kernels");
    for (int i = 0; attn_kernels_get(i) != NULL; i++) {
        board_print(" ");
        board_print(attn_kernels_name(attn_kernels_get(i)));
    }
    board_print("\n");
}

static int print_all(void)
{
    int good = 1;
    print_kernels();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        good &= print_case(cases + i);
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++)
        good &= print_check(checks + i);
    print_sizes();
    for (int n = 0; n < SHAPES; n++)
        for (int i = 0; i < WORKS; i++)
            print_count(n, works + i);
    return good;
}

static int run_one(const char *name, const char *n)
{
    const attn_params p = shape_call(n[0] - '0');
    for (int i = 0; i < WORKS; i++)
        if (strcmp(name, works[i].name) == 0)
            works[i].run(&p);
    return 1;
}

int main(int argc, char **argv)
{
    fill(q, HEADS * ROWS * DIM, 1);
    fill(k, KV_HEADS * KEYS * DIM, 2);
    fill(v, KV_HEADS * KEYS * DIM, 3);
    return !(argc == 3 ? run_one(argv[1], argv[2]) : print_all());
}
