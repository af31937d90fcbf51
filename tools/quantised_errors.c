/* quantised_errors.c - the error of O by the storage type of K and V.
 * SPDX-License-Identifier: MIT
 *
 *     sh tools/quantised_errors.sh     compares what it prints with docs/numerics.md
 *
 * A row: K, V | per cent of the size of O for 1024, 16384 and 262144 keys | the same with an outlier
 * channel in K. The reference is the textbook in double on numbers that no type has rounded; error and
 * size are roots of mean squares over ROWS rows. Scores have a deviation of 2. Rows of a second table have
 * ALiBi with slopes 1/4, 1/16 and 1/64, by which late keys weigh most: K, V and recent keys | per cent
 * for each slope, 16384 keys. */
#include "attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, DIM = 128, MOST_KEYS = 262144, OUTLIER = 37, STATIC = 2 };

static float *q, *k, *v, *o, *k_scales, *v_scales, mean[DIM];
static double *exact;
static void *k_stored, *v_stored, *workspace;

static void check(attn_status status)
{
    if (status == ATTN_OK)
        return;
    fprintf(stderr, "quantised_errors: %s\n", attn_status_string(status));
    exit(1);
}

static void *room(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p)
        exit(1);
    return p;
}

static float normal(void)
{
    static unsigned long long state = 88172645463325252ULL;
    double sum = -6;
    int i;
    for (i = 0; i < 12; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        sum += (double)(state >> 11) / 9007199254740992.0;
    }
    return (float)sum;
}

static void fill(int outliers)
{
    long n;
    for (n = 0; n < ROWS * DIM; n++)
        q[n] = 2 * normal();
    for (n = 0; n < (long)MOST_KEYS * DIM; n++) {
        k[n] = normal();
        v[n] = normal();
    }
    for (n = OUTLIER; outliers && n < (long)MOST_KEYS * DIM; n += DIM)
        k[n] += 20; /* All scores of a row move alike, so its weights stay. */
}

/* What is taken from centered keys: the mean of the first 1024. */
static void set_mean(void)
{
    long n;
    memset(mean, 0, sizeof mean);
    for (n = 0; n < 1024L * DIM; n++)
        mean[n % DIM] += k[n] / 1024;
}

/* slope: 0 means that all rows see all keys alike. Else they are the last rows, causal, with ALiBi. */
static void textbook(long keys, float slope)
{
    double *weight = room((size_t)keys * sizeof *weight);
    const double scale = 1 / sqrt((double)DIM);
    int r, d;
    long j;
    for (r = 0; r < ROWS; r++) {
        double most = -HUGE_VAL, sum = 0;
        for (j = 0; j < keys; j++) {
            weight[j] = 0;
            for (d = 0; d < DIM; d++)
                weight[j] += (double)q[r * DIM + d] * (double)k[j * DIM + d];
            weight[j] *= scale;
            if (slope > 0)
                weight[j] -= (double)slope * (double)(keys - ROWS + r - j);
            if (slope > 0 && j > keys - ROWS + r)
                weight[j] = -HUGE_VAL;
            most = fmax(most, weight[j]);
        }
        for (d = 0; d < DIM; d++)
            exact[r * DIM + d] = 0;
        for (j = 0; j < keys; j++) {
            weight[j] = exp(weight[j] - most);
            sum += weight[j];
            for (d = 0; d < DIM; d++)
                exact[r * DIM + d] += weight[j] * (double)v[j * DIM + d];
        }
        for (d = 0; d < DIM; d++)
            exact[r * DIM + d] /= sum;
    }
    free(weight);
}

/* By attn_dtype. */
static const size_t bytes_of_128[] = { 512, 256, 256, 128, 128, 136, 88, 72, 128 };

/* i8 with a scale for each channel: its largest magnitude over these keys, divided by 127. */
static void store_by_channel(int8_t *to, float *scales, const float *from, long keys)
{
    long n;
    memset(scales, 0, DIM * sizeof *scales);
    for (n = 0; n < keys * DIM; n++)
        scales[n % DIM] = fmaxf(scales[n % DIM], fabsf(from[n]) / 127.0f);
    for (n = 0; n < keys * DIM; n++)
        to[n] = (int8_t)fminf(fmaxf(rintf(from[n] / scales[n % DIM]), -127.0f), 127.0f);
}

static void store(void *to, int type, const float *from, const float *centre, int rotated,
                  long keys)
{
    float row[DIM];
    long j;
    int d;
    for (j = 0; j < keys; j++) {
        const size_t at = (size_t)j * DIM;
        memcpy(row, from + at, sizeof row);
        for (d = 0; d < DIM && centre; d++)
            row[d] -= centre[d];
        if (rotated)
            check(attn_rotate(row, 1, DIM));
        check(attn_convert((char *)to + at * bytes_of_128[type] / 128, type, row, ATTN_F32, DIM));
    }
}

/* i8 in a cache, with static scales of channels for K and V: those of the last 1024 keys of all, as of a
 * calibration. Returns the memory of the cache. */
static void *store_static(attn_params *p, long keys)
{
    const size_t other = (size_t)(MOST_KEYS - 1024) * DIM;
    attn_cache c = { .num_sequences = 1, .num_heads_kv = 1, .head_dim = DIM };
    attn_cache_step s = { .batch = 1, .seq_len = keys };
    size_t bytes;
    void *memory;
    store_by_channel(k_stored, k_scales, k + other, 1024);
    store_by_channel(v_stored, v_scales, v + other, 1024);
    c.capacity = keys;
    c.k.dtype = c.v.dtype = ATTN_I8;
    c.k_scales.data = k_scales;
    c.v_scales.data = v_scales;
    s.k.data = k;
    s.v.data = v;
    check(attn_cache_size(&c, &bytes, NULL, 0));
    memory = room(bytes);
    check(attn_cache_init(&c, memory, bytes, NULL, 0));
    check(attn_cache_append(&c, &s, NULL, 0));
    check(attn_cache_view(&c, 0, NULL, 1, p, NULL, 0, NULL, 0));
    return memory;
}

/* The scales of keys come as one a token or, with `channels`, one a channel; those of values as one a
 * token. */
static void store_scaled(attn_params *p, int channels, long keys)
{
    const ptrdiff_t one = ATTN_STRIDE_BROADCAST;
    p->k_scales.data = k_scales;
    p->v_scales.data = v_scales;
    p->v_scales.stride_dim = one;
    if (channels) {
        p->k_scales.stride_batch = p->k_scales.stride_seq = one;
        store_by_channel(k_stored, k_scales, k, keys);
    } else {
        p->k_scales.stride_dim = one;
        check(attn_quantise_i8(k_stored, k_scales, k, keys, DIM));
    }
    check(attn_quantise_i8(v_stored, v_scales, v, keys, DIM));
}

static double error(int k_type, int v_type, int integer, int rotated, int centered, int channels,
                    long keys, const float *slope, long recent)
{
    attn_params p = { .batch = 1, .num_heads_q = 1, .seq_len_q = ROWS, .head_dim = DIM };
    double wrong = 0, size = 0;
    void *cached = NULL;
    size_t bytes;
    int n;
    p.seq_len_kv = keys;
    p.q.data = q;
    p.o.data = o;
    p.k.dtype = k_type;
    p.v.dtype = v_type;
    p.integer = integer;
    p.rotated = rotated;
    p.k_centered = centered;
    p.causal = slope != NULL;
    p.alibi_slopes = slope;
    p.alibi_stride = ATTN_STRIDE_BROADCAST;
    if (recent) {
        p.recent.keys = recent;
        p.recent.ring = keys;
        p.recent.k.data = k;
        p.recent.v.data = v;
    }
    p.k.data = k_stored;
    p.v.data = v_stored;
    if (channels == STATIC) {
        cached = store_static(&p, keys);
    } else if (k_type == ATTN_I8) {
        store_scaled(&p, channels, keys);
    } else {
        store(k_stored, k_type, k, centered ? mean : NULL, rotated & ATTN_ROTATED_K, keys);
        store(v_stored, v_type, v, NULL, rotated & ATTN_ROTATED_V, keys);
    }
    check(attn_workspace_size(&p, &bytes));
    workspace = room(bytes);
    check(attn_forward(&p, workspace, bytes));
    free(workspace);
    free(cached);
    for (n = 0; n < ROWS * DIM; n++) {
        const double apart = (double)o[n] - exact[n];
        wrong += apart * apart;
        size += exact[n] * exact[n];
    }
    return 100 * sqrt(wrong / size);
}

static void print_row(const char *name, const double *per_cent, int columns)
{
    int column;
    printf("| %s |", name);
    for (column = 0; column < columns; column++)
        printf(" %.2g |", per_cent[column]);
    puts("");
}

/* Late keys weigh most, and some of them are not rounded. */
static void recent_rows(void)
{
    static const struct {
        const char *name;
        int type;
        long recent;
    } rows[] = {
        { "q8_0, 0 recent keys", ATTN_Q8_0, 0 },     { "q8_0, 64 recent keys", ATTN_Q8_0, 64 },
        { "q8_0, 256 recent keys", ATTN_Q8_0, 256 }, { "q5_0, 0 recent keys", ATTN_Q5_0, 0 },
        { "q5_0, 64 recent keys", ATTN_Q5_0, 64 },   { "q5_0, 256 recent keys", ATTN_Q5_0, 256 },
        { "q4_0, 0 recent keys", ATTN_Q4_0, 0 },     { "q4_0, 64 recent keys", ATTN_Q4_0, 64 },
        { "q4_0, 256 recent keys", ATTN_Q4_0, 256 },
    };
    static const float slopes[] = { 1.0f / 4, 1.0f / 16, 1.0f / 64 };
    enum { KINDS = sizeof rows / sizeof *rows, SLOPES = sizeof slopes / sizeof *slopes };
    double per_cent[KINDS][SLOPES];
    int row, column;
    fill(0);
    for (column = 0; column < SLOPES; column++) {
        textbook(16384, slopes[column]);
        for (row = 0; row < KINDS; row++)
            per_cent[row][column] = error(rows[row].type, rows[row].type, 0, 0, 0, 0, 16384,
                                          &slopes[column], rows[row].recent);
    }
    for (row = 0; row < KINDS; row++)
        print_row(rows[row].name, per_cent[row], SLOPES);
}

int main(void)
{
    static const struct {
        const char *name;
        int k, v, integer, rotated, centered, channels;
    } rows[] = {
        { "f32", ATTN_F32, ATTN_F32, 0, 0, 0, 0 },
        { "f16", ATTN_F16, ATTN_F16, 0, 0, 0, 0 },
        { "bf16", ATTN_BF16, ATTN_BF16, 0, 0, 0, 0 },
        { "q8_0", ATTN_Q8_0, ATTN_Q8_0, 0, 0, 0, 0 },
        { "q8_0, whole numbers", ATTN_Q8_0, ATTN_Q8_0, 1, 0, 0, 0 },
        { "q8_0, rotated", ATTN_Q8_0, ATTN_Q8_0, 0, 3, 0, 0 },
        { "q8_0, rotated, whole numbers", ATTN_Q8_0, ATTN_Q8_0, 1, 3, 0, 0 },
        { "q8_0, centered", ATTN_Q8_0, ATTN_Q8_0, 0, 0, 1, 0 },
        { "q8_0, centered, whole numbers", ATTN_Q8_0, ATTN_Q8_0, 1, 0, 1, 0 },
        { "i8, a scale per token", ATTN_I8, ATTN_I8, 0, 0, 0, 0 },
        { "i8, a scale per token, whole numbers", ATTN_I8, ATTN_I8, 1, 0, 0, 0 },
        { "i8, K with a scale per channel", ATTN_I8, ATTN_I8, 0, 0, 0, 1 },
        { "i8, K with a scale per channel, whole numbers", ATTN_I8, ATTN_I8, 1, 0, 0, 1 },
        { "i8 in a cache, static scales per channel", ATTN_I8, ATTN_I8, 0, 0, 0, STATIC },
        { "i8 in a cache, static scales per channel, whole numbers", ATTN_I8, ATTN_I8, 1, 0, 0,
          STATIC },
        { "e4m3", ATTN_E4M3, ATTN_E4M3, 0, 0, 0, 0 },
        { "e5m2", ATTN_E5M2, ATTN_E5M2, 0, 0, 0, 0 },
        { "q5_0", ATTN_Q5_0, ATTN_Q5_0, 0, 0, 0, 0 },
        { "q5_0, rotated", ATTN_Q5_0, ATTN_Q5_0, 0, 3, 0, 0 },
        { "q5_0, centered", ATTN_Q5_0, ATTN_Q5_0, 0, 0, 1, 0 },
        { "q4_0", ATTN_Q4_0, ATTN_Q4_0, 0, 0, 0, 0 },
        { "q4_0, whole numbers", ATTN_Q4_0, ATTN_Q4_0, 1, 0, 0, 0 },
        { "q4_0, rotated", ATTN_Q4_0, ATTN_Q4_0, 0, 3, 0, 0 },
        { "q4_0, centered", ATTN_Q4_0, ATTN_Q4_0, 0, 0, 1, 0 },
        { "K q8_0, V q4_0", ATTN_Q8_0, ATTN_Q4_0, 0, 0, 0, 0 },
        { "K q8_0, V q4_0, rotated", ATTN_Q8_0, ATTN_Q4_0, 0, 3, 0, 0 },
        { "K q4_0, V q8_0", ATTN_Q4_0, ATTN_Q8_0, 0, 0, 0, 0 },
    };
    enum { TYPES = sizeof rows / sizeof *rows, COLUMNS = 6 };
    double per_cent[TYPES][COLUMNS];
    int row, column;
    q = room(ROWS * DIM * sizeof *q);
    o = room(ROWS * DIM * sizeof *o);
    exact = room(ROWS * DIM * sizeof *exact);
    k = room((size_t)MOST_KEYS * DIM * sizeof *k);
    v = room((size_t)MOST_KEYS * DIM * sizeof *v);
    k_stored = room((size_t)MOST_KEYS * DIM * sizeof *k);
    v_stored = room((size_t)MOST_KEYS * DIM * sizeof *v);
    k_scales = room(MOST_KEYS * sizeof *k_scales);
    v_scales = room(MOST_KEYS * sizeof *v_scales);
    for (column = 0; column < COLUMNS; column++) {
        const long keys = 1024L << column % 3 * 4;
        if (column % 3 == 0)
            fill(column / 3);
        set_mean();
        textbook(keys, 0);
        for (row = 0; row < TYPES; row++)
            per_cent[row][column] =
                error(rows[row].k, rows[row].v, rows[row].integer, rows[row].rotated,
                      rows[row].centered, rows[row].channels, keys, NULL, 0);
    }
    for (row = 0; row < TYPES; row++)
        print_row(rows[row].name, per_cent[row], COLUMNS);
    recent_rows();
    return 0;
}
