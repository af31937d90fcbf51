/* error_table.c - see error_table.h; the bound is derived in docs/numerics.md.
 * SPDX-License-Identifier: MIT
 */
#include "error_table.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One kv head; the sampled rows are its group of query heads in a decode step, and rows 0, 37, 64,
 * 95 of a prefill, in different tiles of every kernel set. */
enum { DIM = 64, ROWS = 4, PREFILL_ROWS = 96, VALUES = ROWS * DIM, PARTS = 8 };
static const int sampled[ROWS] = { 0, 37, 64, 95 };

static const double unit = 1.0 / 16777216.0;

/* What a call writes for the sampled rows. */
typedef struct results {
    float o[VALUES], lse[ROWS];
} results;

typedef struct measuring {
    const error_sink *sink;
    error_cell at; /* storage type, data and length being measured */
    int64_t keys;
    char *k, *v;                                     /* of the storage type, as are the queries */
    float q_many[PREFILL_ROWS * DIM], q_few[VALUES]; /* room for any type */
    oracle_result expected[ROWS];
    double o[VALUES], o_abs[VALUES], o_tolerance[VALUES], o_strict[VALUES];
    const char *failed;
} measuring;

int64_t error_table_keys(int length)
{
    return (int64_t)1024 << (2 * length);
}

static size_t dtype_bytes(int dtype)
{
    return dtype == ATTN_F32 ? 4 : 2;
}

/* ---- data: counted, so that a shorter length is the beginning of a longer one ---------------- */

enum { STREAM_Q, STREAM_K, STREAM_V };

static uint64_t hash_of(int stream, int64_t index)
{
    uint64_t x = ((uint64_t)stream << 40) + (uint64_t)index + 1;
    x *= 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* About normal: the sum of four uniform numbers, mean 0, deviation 1, at most 3.5. The constant,
 * sqrt(3), is exact: some compilers evaluate in double and would not round a decimal one. */
static float normal(int stream, int64_t index)
{
    const uint64_t h = hash_of(stream, index);
    const int64_t sum = (int64_t)(h & 0xffff) + (int64_t)(h >> 16 & 0xffff) +
                        (int64_t)(h >> 32 & 0xffff) + (int64_t)(h >> 48);
    return (float)(sum - 2 * 65535) * (0x1.bb67aep+0f / 65536);
}

/* Uniform in (0, 2), mean 1. */
static float positive(int stream, int64_t index)
{
    return (float)(2 * (hash_of(stream, index) >> 48) + 1) / 65536;
}

/* Rows of DIM elements, rounded to the storage type; the columns from `normals` on are positive. */
static void fill(char *to, int dtype, int stream, int64_t rows, int normals)
{
    float row[DIM];
    for (int64_t r = 0; r < rows; r++) {
        for (int d = 0; d < DIM; d++)
            row[d] = d < normals ? normal(stream, r * DIM + d) : positive(stream, r * DIM + d);
        attn_convert(to + (size_t)r * DIM * dtype_bytes(dtype), dtype, row, ATTN_F32, DIM);
    }
}

static void fill_queries(measuring *m)
{
    const size_t row = DIM * dtype_bytes(m->at.dtype);
    fill((char *)m->q_many, m->at.dtype, STREAM_Q, PREFILL_ROWS, DIM);
    for (int r = 0; r < ROWS; r++)
        memcpy((char *)m->q_few + (size_t)r * row, (char *)m->q_many + (size_t)sampled[r] * row,
               row);
}

/* A key along the sum of the sampled queries: 2 / 8 |q|^2, about 16, for each of them. */
static void put_outlier(measuring *m, char *key)
{
    float row[DIM];
    for (int d = 0; d < DIM; d++) {
        double sum = 0;
        for (int r = 0; r < ROWS; r++)
            sum += 2 * oracle_load(m->at.dtype, m->q_few, r * DIM + d);
        row[d] = (float)sum;
    }
    attn_convert(key, m->at.dtype, row, ATTN_F32, DIM);
}

/* Every score is 0 but for the first key of each chunk, where it is 16.75: the others have a p of
 * 2^-24.2, less than half an ulp of l = 1. With v = 1 there l loses and o hardly does. */
static void put_absorbed(measuring *m, int64_t keys)
{
    const size_t row = DIM * dtype_bytes(m->at.dtype);
    float zero[DIM] = { 0 }, key[DIM] = { 134 }, one[DIM] = { 1 };
    for (int r = 0; r < PREFILL_ROWS; r++)
        attn_convert((char *)m->q_many + (size_t)r * row, m->at.dtype, one, ATTN_F32, DIM);
    for (int r = 0; r < ROWS; r++)
        memcpy((char *)m->q_few + (size_t)r * row, m->q_many, row);
    for (int d = 0; d < DIM; d++)
        one[d] = 1;
    for (int64_t j = 0; j < keys; j++)
        attn_convert(m->k + (size_t)j * row, m->at.dtype, j % 1024 == 0 ? key : zero, ATTN_F32,
                     DIM);
    for (int64_t j = 0; j < keys; j += 1024)
        attn_convert(m->v + (size_t)j * row, m->at.dtype, one, ATTN_F32, DIM);
}

/* ---- calls ----------------------------------------------------------------------------------- */

static attn_params decode_call(const measuring *m, results *to)
{
    static const float factors[ERROR_DATA] = { 1, 4, 16, 1, 1 };
    attn_params p;
    memset(&p, 0, sizeof p);
    p.batch = 1;
    p.num_heads_q = ROWS;
    p.num_heads_kv = 1;
    p.seq_len_q = 1;
    p.seq_len_kv = m->keys;
    p.head_dim = DIM;
    p.scale = factors[m->at.data] / 8;
    p.q.dtype = p.k.dtype = p.v.dtype = m->at.dtype;
    p.q.data = m->q_few;
    p.k.data = m->k;
    p.v.data = m->v;
    p.o.data = to->o;
    p.lse.data = to->lse;
    return p;
}

static void run(measuring *m, const attn_params *p)
{
    void *workspace;
    size_t bytes;
    if (m->failed != NULL)
        return;
    if (attn_workspace_size(p, &bytes) != ATTN_OK) {
        m->failed = "attn_workspace_size refused a call";
        return;
    }
    workspace = malloc(bytes);
    if (workspace == NULL)
        m->failed = "no memory for a workspace";
    else if (attn_forward(p, workspace, bytes) != ATTN_OK)
        m->failed = "attn_forward refused a call";
    free(workspace);
}

/* Keys begin .. begin + count - 1 at their old numbers; *begin stays where it is. */
static void cut_keys(attn_params *p, const int64_t *begin, int64_t count)
{
    const ptrdiff_t offset = (ptrdiff_t)*begin * DIM * (ptrdiff_t)dtype_bytes(p->k.dtype);
    p->k.data = (const char *)p->k.data + offset;
    p->v.data = (const char *)p->v.data + offset;
    p->seq_len_kv = count;
    p->key_base = begin;
}

static void run_prefill(measuring *m, results *out)
{
    static float o[PREFILL_ROWS * DIM], lse[PREFILL_ROWS];
    attn_params p = decode_call(m, out);
    p.num_heads_q = 1;
    p.seq_len_q = PREFILL_ROWS;
    p.q.data = m->q_many;
    p.o.data = o;
    p.lse.data = lse;
    run(m, &p);
    for (int r = 0; r < ROWS; r++) {
        memcpy(out->o + r * DIM, o + sampled[r] * DIM, DIM * sizeof *o);
        out->lse[r] = lse[sampled[r]];
    }
}

/* Raw states of up to 8 parts, nodes of the tree of docs/canon.md, merged pairwise. */
static void run_states(measuring *m, results *out)
{
    static float rows[PARTS][2 * ROWS + VALUES];
    const int parts = m->keys >= PARTS * 1024 ? PARTS : (int)(m->keys / 1024);
    const int64_t count = m->keys / parts;
    const attn_params whole = decode_call(m, out);
    attn_state state[PARTS];
    for (int i = 0; i < parts; i++) {
        const int64_t begin = i * count;
        attn_params p = whole;
        memset(&state[i], 0, sizeof state[i]);
        state[i].num_rows = ROWS;
        state[i].head_dim_v = DIM;
        state[i].m = rows[i];
        state[i].l = rows[i] + ROWS;
        state[i].o = rows[i] + 2 * ROWS;
        cut_keys(&p, &begin, count);
        p.o.data = p.lse.data = NULL;
        p.partial = 1;
        p.state = state[i];
        run(m, &p);
    }
    for (int step = 1; step < parts; step *= 2)
        for (int i = 0; i < parts; i += 2 * step)
            if (attn_state_merge(&state[i], &state[i + step], &state[i]) != ATTN_OK)
                m->failed = "attn_state_merge refused a call";
    if (attn_state_finish(&whole, &state[0]) != ATTN_OK)
        m->failed = "attn_state_finish refused a call";
}

/* Finished results of 8 equal parts, merged by their LSE from the left. */
static void run_lse_parts(measuring *m, results *out)
{
    const int64_t count = m->keys / PARTS;
    results part;
    for (int i = 0; i < PARTS; i++) {
        const int64_t begin = i * count;
        attn_params p = decode_call(m, i == 0 ? out : &part);
        cut_keys(&p, &begin, count);
        run(m, &p);
        if (i > 0 && attn_lse_merge(ROWS, DIM, out->o, out->lse, part.o, part.lse, out->o,
                                    out->lse) != ATTN_OK)
            m->failed = "attn_lse_merge refused a call";
    }
}

/* ---- how large an error may be: docs/numerics.md, "The bound" -------------------------------- */

typedef struct allowance {
    double o_tolerance, o_bound, lse_tolerance, lse_bound;
} allowance;

/* What depends on the path. */
typedef struct path_sums {
    double chain;  /* longest chain of additions */
    double levels; /* of merges by state */
    double merges; /* by LSE, one after the other */
} path_sums;

static path_sums sums_of(int path, int64_t keys)
{
    path_sums s = { 0, 0, 0 };
    if (path == ERROR_NAIVE) {
        s.chain = (double)keys;
        return s;
    }
    if (path == ERROR_LSE_PARTS) {
        s.merges = PARTS - 1;
        keys /= PARTS;
    }
    s.chain = keys < 1024 ? (double)keys : 1024;
    while ((int64_t)1024 << (int)s.levels < keys)
        s.levels++;
    return s;
}

/* Value d of row r, as the path allows it; d = 0 serves for LSE. */
static allowance allowance_of(const measuring *m, int path, int r, int d)
{
    const oracle_result *x = &m->expected[r];
    const path_sums s = sums_of(path, m->keys);
    const double sums = 28 + s.chain + 4 * s.levels, most = unit * (x->strict_most + sums);
    const double higher = exp(most) / (1 - most * exp(most)); /* products of errors */
    const double mean = s.merges > 0 ? x->strict_most : x->strict_mean;
    const double logs = s.merges > 0 ? x->logit_most + log((double)m->keys) : fabs(x->lse);
    const double lse = mean + sums + 2.1 * logs + 2.3 * (log((double)m->keys) + 11.1);
    const double size = fabs(x->o[d]), sizes = x->o_abs[d] + size;
    const double likely = sqrt(s.merges) * (fabs(x->lse) + 4);
    allowance a;
    a.o_bound = x->o_strict[d] + mean * size + sums * sizes + 2 * size;
    if (s.merges > 0)
        a.o_bound += (lse + s.merges * (logs + 13)) * sizes;
    a.o_bound = higher * unit * a.o_bound + ldexp((double)m->keys, -98);
    a.lse_bound = higher * unit * (lse + s.merges * (logs + 8));
    a.o_tolerance = x->o_tolerance[d] + ORACLE_FACTOR * unit * likely * x->o_abs[d];
    a.lse_tolerance = x->lse_tolerance + ORACLE_FACTOR * unit * likely;
    return a;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void raise_to(double *worst, double error)
{
    if (!(error <= *worst))
        *worst = error == error ? error : INFINITY;
}

static void note(error_cell *cell, double error, double ulp, double tolerance, double bound)
{
    raise_to(&cell->ulps, error / ulp);
    raise_to(&cell->bound, error / bound);
    if (cell->path != ERROR_NAIVE && cell->data != ERROR_ABSORBED)
        raise_to(&cell->units, error / tolerance);
}

static error_cell new_cell(const measuring *m, int path, int quantity)
{
    error_cell cell = m->at;
    cell.path = path;
    cell.quantity = quantity;
    return cell;
}

/* Largest |o| of row r among the DIM / 2 columns from begin: one kind of V. */
static double largest_o(const measuring *m, int r, int begin)
{
    double largest = 0;
    for (int d = begin; d < begin + DIM / 2; d++)
        largest = fmax(largest, fabs(m->expected[r].o[d]));
    return largest;
}

static void compare_o(const measuring *m, int path, int quantity, const results *got)
{
    const int begin = quantity == ERROR_O_NORMAL ? 0 : DIM / 2;
    error_cell cell = new_cell(m, path, quantity);
    for (int r = 0; r < ROWS; r++) {
        const double largest = largest_o(m, r, begin);
        for (int d = begin; d < begin + DIM / 2; d++) {
            const allowance a = allowance_of(m, path, r, d);
            note(&cell, fabs((double)got->o[r * DIM + d] - m->expected[r].o[d]),
                 2 * oracle_storage_error(ATTN_F32, largest), a.o_tolerance, a.o_bound);
        }
    }
    m->sink->cell(m->sink->user, &cell);
}

static void compare_lse(const measuring *m, int path, const results *got)
{
    error_cell cell = new_cell(m, path, ERROR_LSE);
    for (int r = 0; r < ROWS; r++) {
        const allowance a = allowance_of(m, path, r, 0);
        const double expected = m->expected[r].lse;
        note(&cell, fabs((double)got->lse[r] - expected),
             2 * oracle_storage_error(ATTN_F32, expected), a.lse_tolerance, a.lse_bound);
    }
    m->sink->cell(m->sink->user, &cell);
}

static void compare_stored(const measuring *m, const uint16_t *got)
{
    error_cell cell = new_cell(m, ERROR_TILED, ERROR_O_STORED);
    for (int n = 0; n < VALUES; n++) {
        const allowance a = allowance_of(m, ERROR_TILED, n / DIM, n % DIM);
        const double expected = m->o[n], size = fabs(expected);
        const double largest = largest_o(m, n / DIM, n % DIM < DIM / 2 ? 0 : DIM / 2);
        note(&cell, fabs(oracle_load(m->at.dtype, got, n) - expected),
             2 * oracle_storage_error(m->at.dtype, largest),
             a.o_tolerance + oracle_storage_error(m->at.dtype, size + a.o_tolerance),
             a.o_bound + oracle_storage_error(m->at.dtype, size + a.o_bound));
    }
    m->sink->cell(m->sink->user, &cell);
}

static void compare(const measuring *m, int path, const results *got)
{
    compare_o(m, path, ERROR_O_NORMAL, got);
    compare_o(m, path, ERROR_O_POSITIVE, got);
    compare_lse(m, path, got);
}

static void compare_bits(const measuring *m, const char *name, const results *a, const results *b)
{
    int64_t different = 0;
    for (int n = 0; n < VALUES; n++)
        different += memcmp(&a->o[n], &b->o[n], sizeof a->o[n]) != 0;
    for (int r = 0; r < ROWS; r++)
        different += memcmp(&a->lse[r], &b->lse[r], sizeof a->lse[r]) != 0;
    m->sink->bits(m->sink->user, name, &m->at, different);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static void ask_oracle(measuring *m)
{
    results unused;
    const attn_params p = decode_call(m, &unused);
    for (int r = 0; r < ROWS; r++) {
        oracle_result *x = &m->expected[r];
        memset(x, 0, sizeof *x);
        x->o = m->o + r * DIM;
        x->o_abs = m->o_abs + r * DIM;
        x->o_tolerance = m->o_tolerance + r * DIM;
        x->o_strict = m->o_strict + r * DIM;
        if (oracle_row_full(&p, 0, r, 0, x) != 0)
            m->failed = "no memory for the oracle";
    }
}

/* The ways that must give the bits of a decode step with the kernel set of this CPU; every set with
 * one kind of data, since those without fused multiply-add take 30 times as long. */
static void measure_same_bits(measuring *m, const results *tiled)
{
    const attn_kernels *set;
    results other;
    run_prefill(m, &other);
    compare_bits(m, "prefill", &other, tiled);
    run_states(m, &other);
    compare_bits(m, "merged states", &other, tiled);
    for (int i = 0; m->at.data == ERROR_X4 && (set = attn_kernels_get(i)) != NULL; i++) {
        attn_params p = decode_call(m, &other);
        p.kernels = set;
        run(m, &p);
        compare_bits(m, attn_kernels_name(set), &other, tiled);
    }
}

static void measure_stored(measuring *m)
{
    results unused;
    uint16_t o[VALUES];
    attn_params p = decode_call(m, &unused);
    p.o.dtype = m->at.dtype;
    p.o.data = o;
    run(m, &p);
    compare_stored(m, o);
}

static void measure_paths(measuring *m)
{
    results got;
    attn_params p = decode_call(m, &got);
    ask_oracle(m);
    run(m, &p);
    if (m->failed != NULL)
        return;
    compare(m, ERROR_TILED, &got);
    measure_same_bits(m, &got);
    if (m->at.dtype != ATTN_F32)
        measure_stored(m);
    p.impl = ATTN_IMPL_NAIVE;
    run(m, &p);
    compare(m, ERROR_NAIVE, &got);
    run_lse_parts(m, &got);
    compare(m, ERROR_LSE_PARTS, &got);
}

/* All but ERROR_ABSORBED. */
static void measure_data(measuring *m)
{
    const size_t row = DIM * dtype_bytes(m->at.dtype);
    char *outlier = m->k + (size_t)(m->keys / 3 * 2 + 5) * row, saved[DIM * sizeof(float)];
    memcpy(saved, outlier, row);
    for (m->at.data = 0; m->at.data < ERROR_ABSORBED && m->failed == NULL; m->at.data++) {
        if (m->at.data == ERROR_OUTLIER)
            put_outlier(m, outlier);
        measure_paths(m);
    }
    memcpy(outlier, saved, row);
}

static void measure_lengths(measuring *m, int lengths, void (*measure)(measuring *m))
{
    for (m->at.length = 0; m->at.length < lengths && m->failed == NULL; m->at.length++) {
        m->keys = error_table_keys(m->at.length);
        measure(m);
    }
}

static void measure_dtype(measuring *m, int lengths)
{
    const int64_t most = error_table_keys(lengths - 1);
    const size_t bytes = (size_t)most * DIM * dtype_bytes(m->at.dtype);
    m->k = malloc(bytes);
    m->v = malloc(bytes);
    if (m->k == NULL || m->v == NULL) {
        m->failed = "no memory for K and V";
    } else {
        fill_queries(m);
        fill(m->k, m->at.dtype, STREAM_K, most, DIM);
        fill(m->v, m->at.dtype, STREAM_V, most, DIM / 2);
        measure_lengths(m, lengths, measure_data);
        put_absorbed(m, most);
        m->at.data = ERROR_ABSORBED;
        measure_lengths(m, lengths, measure_paths);
    }
    free(m->k);
    free(m->v);
}

const char *error_table_measure(int lengths, const error_sink *sink)
{
    static measuring m;
    memset(&m, 0, sizeof m);
    m.sink = sink;
    for (m.at.dtype = 0; m.at.dtype <= ATTN_BF16 && m.failed == NULL; m.at.dtype++)
        measure_dtype(&m, lengths);
    return m.failed;
}
