/* magnitude_errors.c - the error of O, dQ and dV over the size of the logits, by storage type.
 * SPDX-License-Identifier: MIT
 *
 *     sh tools/magnitude_errors.sh              compares what it prints with docs/numerics.md
 *     sh tools/magnitude_errors.sh REVISION     prints it for another revision's attn.c
 *
 * A row: data | O | dQ, dV from stats | dQ, dV from the LSE alone, in units of 1e-7. O: |error| / sum
 * of p |v|, largest / root of the mean square. dQ / dV: largest |error| / largest gradient. The
 * reference is the textbook in double on the inputs as stored. */
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, ROWS = 24, KEYS = 1500, DIM = 64 };
#if ATTN_NUMERICS_VERSION > 1
#define GIVE_STATS(p) ((p).stats.data = stats)
#define TAKE_STATS(p) ((p).stats.data = NULL)
#else /* it has the LSE alone */
#define GIVE_STATS(p) ((void)stats)
#define TAKE_STATS(p) ((void)0)
#endif

enum { Q_SIZE = HEADS * ROWS * DIM, K_SIZE = HEADS * KEYS * DIM };

static float q[Q_SIZE], k[K_SIZE], v[K_SIZE], o[Q_SIZE], dout[Q_SIZE], dq[Q_SIZE], dk[K_SIZE],
    dv[K_SIZE], lse[HEADS * ROWS], stats[2 * HEADS * ROWS];
static unsigned short q_stored[Q_SIZE], k_stored[K_SIZE];

/* ---- data */

static void check(attn_status status)
{
    if (status == ATTN_OK)
        return;
    fprintf(stderr, "magnitude_errors: %s\n", attn_status_string(status));
    exit(1);
}

static unsigned long long state;

static double uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 9007199254740992.0;
}

static float normal(void)
{
    double sum = -6;
    int i;
    for (i = 0; i < 12; i++)
        sum += uniform();
    return (float)sum;
}

/* What the logits are: of this deviation, 0 for sums of small integers, which are exact; and, where
 * `near` is not 0, all about as large as that, from even channels that hold one number in all keys. */
typedef struct data_kind {
    double deviation, near, scale;
    int dim, runs;
} data_kind;

static void fill(float *x, int rows, const data_kind *kind, int is_q)
{
    const int mixed = kind->near > 0, dim = kind->dim;
    const double channels = mixed ? dim / 2 : dim;
    const double factor = sqrt(kind->deviation / sqrt(channels) / kind->scale);
    const double level = sqrt(kind->near / channels / kind->scale);
    int i, d;
    for (i = 0; i < rows; i++)
        for (d = 0; d < dim; d++, x++)
            if (kind->deviation == 0)
                *x = (float)(int)(normal() * 3);
            else if (mixed && d % 2 == 0)
                *x = (float)(level * (is_q ? 1 + 0.1 * (double)normal() : 1));
            else
                *x = (float)(factor * (double)normal());
}

/* The numbers become those that the storage type holds. */
static void store(int dtype, float *x, unsigned short *stored, int n)
{
    if (dtype == ATTN_F32)
        return;
    check(attn_convert(stored, dtype, x, ATTN_F32, (size_t)n));
    check(attn_convert(x, ATTN_F32, stored, dtype, (size_t)n));
}

/* ---- the library */

static void *workspace;
static size_t workspace_bytes;

static void reserve(size_t bytes)
{
    if (bytes > workspace_bytes && !(workspace = realloc(workspace, workspace_bytes = bytes)))
        exit(1);
}

static void run_forward(const attn_params *p)
{
    size_t bytes = 0;
    check(attn_workspace_size(p, &bytes));
    reserve(bytes);
    check(attn_forward(p, workspace, workspace_bytes));
}

static void run_backward(const attn_params *p)
{
    attn_gradients g = { 0 };
    size_t bytes = 0;
    g.dout.data = dout;
    g.dq.data = dq;
    g.dk.data = dk;
    g.dv.data = dv;
    check(attn_backward_workspace_size(p, &g, &bytes));
    reserve(bytes);
    check(attn_backward(p, &g, workspace, workspace_bytes));
}

/* ---- the textbook */

typedef struct gradient_errors {
    double dq, dv, largest_dq, largest_dv;
} gradient_errors;

typedef struct errors {
    double most, squares;
    long count;
    gradient_errors from_stats, from_lse;
} errors;

static double dq_right[Q_SIZE];
static double dv_right[K_SIZE];

static double dot(const float *a, const float *b, int dim)
{
    double sum = 0;
    int d;
    for (d = 0; d < dim; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

static void softmax(const attn_params *p, const float *row, const float *keys, double *weight)
{
    double most = -HUGE_VAL, sum = 0;
    int j;
    for (j = 0; j < KEYS; j++)
        most = fmax(most, weight[j] = (double)p->scale *
                                      dot(row, keys + j * p->head_dim, (int)p->head_dim));
    for (j = 0; j < KEYS; j++)
        sum += weight[j] = exp(weight[j] - most);
    for (j = 0; j < KEYS; j++)
        weight[j] /= sum;
}

static void compare_row(const attn_params *p, int head, int i, errors *e)
{
    static double weight[KEYS];
    const int dim = (int)p->head_dim, at = (head * ROWS + i) * dim, keys = head * KEYS * dim;
    double right[DIM] = { 0 }, delta = 0;
    int j, d;
    softmax(p, q + at, k + keys, weight);
    for (d = 0; d < dim; d++) {
        double size = 0, error;
        for (j = 0; j < KEYS; j++) {
            right[d] += weight[j] * (double)v[keys + j * dim + d];
            size += weight[j] * fabs((double)v[keys + j * dim + d]);
        }
        error = fabs((double)o[at + d] - right[d]) / size;
        e->most = fmax(e->most, error);
        e->squares += error * error;
        e->count++;
        delta += (double)dout[at + d] * right[d];
    }
    for (j = 0; j < KEYS; j++) {
        const double ds = weight[j] * (dot(dout + at, v + keys + j * dim, dim) - delta);
        for (d = 0; d < dim; d++) {
            dq_right[at + d] += (double)p->scale * ds * (double)k[keys + j * dim + d];
            dv_right[keys + j * dim + d] += weight[j] * (double)dout[at + d];
        }
    }
}

static void compare(const attn_params *p, errors *e)
{
    int head, i;
    memset(dq_right, 0, sizeof dq_right);
    memset(dv_right, 0, sizeof dv_right);
    for (head = 0; head < HEADS; head++)
        for (i = 0; i < ROWS; i++)
            compare_row(p, head, i, e);
}

static void compare_gradients(int dim, gradient_errors *e)
{
    int i;
    for (i = 0; i < HEADS * ROWS * dim; i++) {
        e->dq = fmax(e->dq, fabs((double)dq[i] - dq_right[i]));
        e->largest_dq = fmax(e->largest_dq, fabs(dq_right[i]));
    }
    for (i = 0; i < HEADS * KEYS * dim; i++) {
        e->dv = fmax(e->dv, fabs((double)dv[i] - dv_right[i]));
        e->largest_dv = fmax(e->largest_dv, fabs(dv_right[i]));
    }
}

/* ---- the table */

static void fill_all(const data_kind *kind, int dtype)
{
    const int q_size = HEADS * ROWS * kind->dim, k_size = HEADS * KEYS * kind->dim;
    int i;
    fill(q, HEADS * ROWS, kind, 1);
    fill(k, HEADS * KEYS, kind, 0);
    for (i = 0; i < k_size; i++)
        v[i] = normal();
    for (i = 0; i < q_size; i++)
        dout[i] = normal();
    store(dtype, q, q_stored, q_size);
    store(dtype, k, k_stored, k_size);
}

static attn_params call_of(const data_kind *kind, int dtype)
{
    attn_params p = { 0 };
    p.batch = 1;
    p.num_heads_q = p.num_heads_kv = HEADS;
    p.seq_len_q = ROWS;
    p.seq_len_kv = KEYS;
    p.head_dim = kind->dim;
    p.scale = (float)kind->scale;
    p.q.dtype = p.k.dtype = dtype;
    p.q.data = dtype == ATTN_F32 ? (const void *)q : q_stored;
    p.k.data = dtype == ATTN_F32 ? (const void *)k : k_stored;
    p.v.data = v;
    p.o.data = o;
    p.lse.data = lse;
    GIVE_STATS(p);
    return p;
}

static void put_gradients(const gradient_errors *e)
{
    printf(" %.3g / %.3g |", 1e7 * e->dq / e->largest_dq, 1e7 * e->dv / e->largest_dv);
}

static void measure(const char *name, double number, int dtype, const data_kind *kind)
{
    errors e = { 0 };
    int n;
    state = 88172645463325252ull;
    for (n = 0; n < kind->runs; n++) {
        attn_params p;
        fill_all(kind, dtype);
        p = call_of(kind, dtype);
        run_forward(&p);
        compare(&p, &e);
        run_backward(&p);
        compare_gradients(kind->dim, &e.from_stats);
        TAKE_STATS(p);
        run_backward(&p);
        compare_gradients(kind->dim, &e.from_lse);
    }
    printf("| %s%g | %.3g / %.3g |", name, number, 1e7 * e.most,
           1e7 * sqrt(e.squares / (double)e.count));
    put_gradients(&e.from_stats);
    put_gradients(&e.from_lse);
    printf("\n");
    fflush(stdout);
}

int main(void)
{
    static const char *const names[] = { "f32", "f16", "bf16" };
    static const double deviations[] = { 5, 20, 70, 1000 }, levels[] = { 1000, 10000 },
                        scales[] = { 1, 8, 512 };
    char name[32];
    int type, i;
    for (type = ATTN_F32; type <= ATTN_BF16; type++) {
        for (i = 0; i < 4; i++) {
            const data_kind kind = { deviations[i], 0, 0.125, DIM, i < 3 ? 8 : 32 };
            sprintf(name, "%s, deviation ", names[type]);
            measure(name, deviations[i], type, &kind);
        }
        for (i = 0; i < 2; i++) {
            const data_kind kind = { 5, levels[i], 0.125, DIM, 8 };
            sprintf(name, "%s, all near ", names[type]);
            measure(name, levels[i], type, &kind);
        }
    }
    for (i = 0; i < 3; i++) {
        const data_kind kind = { 0, 0, scales[i], DIM / 2, 8 };
        measure("exact sums, scale ", scales[i], ATTN_F32, &kind);
    }
    return 0;
}
