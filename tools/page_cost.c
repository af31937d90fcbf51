/* page_cost.c - measures what pages of 16 keys cost a step of decoding, next to the time in which
 * memory delivers these pieces in this order when nothing is computed.
 * SPDX-License-Identifier: MIT
 *
 *     sh tools/page_cost.sh [library, default build/libattn.a]
 *
 * The shape is 32 heads over 8 key heads of 128, one row, one thread. Keys lie contiguous, in
 * pages in ascending order, or in pages in random order. The reading loop takes K in pieces of one
 * head of one page and prefetches the next piece as it reads one. All are timed in turn, by CPU
 * time; ratios are medians over the rounds. "large" memory asks for large pages of the system. */
#define _DEFAULT_SOURCE
#include "../attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { HEADS_Q = 32, HEADS_KV = 8, DIM = 128, PAGE = 16, ROUNDS = 31, WAYS = 3 };

static volatile uint64_t sink;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory_of(size_t bytes, int large)
{
    const size_t unit = (size_t)2 << 20;
    char *at = malloc(bytes + unit);
    if (at == NULL)
        exit(1);
    at += unit - (uintptr_t)at % unit;
#ifdef MADV_HUGEPAGE
    if (large)
        madvise(at, bytes, MADV_HUGEPAGE);
#endif
    for (size_t i = 0; i < bytes; i++)
        at[i] = (char)(i % 251 & 0x3b); /* no infinity in any type */
    return at;
}

/* Fills a table with pages 0.. in ascending or random order. */
static int32_t *table_of(int32_t pages, int shuffle)
{
    int32_t *table = malloc((size_t)pages * sizeof *table);
    if (table == NULL)
        exit(1);
    for (int32_t i = 0; i < pages; i++) {
        const int32_t at = shuffle ? (int32_t)((uint32_t)rand() % (uint32_t)(i + 1)) : i;
        table[i] = table[at];
        table[at] = i;
    }
    return table;
}

/* Reads the piece of every page that belongs to each head, in the order of the table; NULL = all in
 * a row. */
static void read_pieces(const char *from, const int32_t *table, int32_t pages, size_t piece)
{
    uint64_t sum = 0;
    for (int h = 0; h < HEADS_KV; h++)
        for (int32_t i = 0; i < pages; i++) {
            const int32_t here = table ? table[i] : i;
            const int32_t then = table && i + 1 < pages ? table[i + 1] : i;
            const size_t each = table ? HEADS_KV * piece : piece;
            const size_t first = table ? (size_t)h * piece : (size_t)h * (size_t)pages * piece;
            const char *at = from + first + (size_t)here * each;
            const char *next = from + first + (size_t)then * each;
            for (size_t b = 0; b < piece; b += 64) {
                uint64_t word;
                if (table)
                    __builtin_prefetch(next + b, 0, 2);
                memcpy(&word, at + b, sizeof word);
                sum += word;
            }
        }
    sink = sum;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median of time way / time 0. */
static double ratio(double time[WAYS][ROUNDS], int way)
{
    double r[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        r[i] = time[way][i] / time[0][i];
    qsort(r, ROUNDS, sizeof *r, compare);
    return r[ROUNDS / 2];
}

static void measure(int32_t keys, int dtype, int large)
{
    const size_t size = dtype == ATTN_F32 ? 4 : 2, piece = PAGE * DIM * size;
    const size_t bytes = (size_t)keys * HEADS_KV * DIM * size;
    const int32_t pages = keys / PAGE;
    void *k = memory_of(bytes, large), *v = memory_of(bytes, large);
    static float q[HEADS_Q * DIM], o[HEADS_Q * DIM];
    const int32_t *tables[WAYS] = { NULL, table_of(pages, 0), table_of(pages, 1) };
    double call[WAYS][ROUNDS], reading[WAYS][ROUNDS];
    attn_params p = { 0 };
    size_t need = 0;
    void *ws;
    p.batch = 1, p.num_heads_q = HEADS_Q, p.num_heads_kv = HEADS_KV;
    p.seq_len_q = 1, p.seq_len_kv = keys, p.head_dim = DIM, p.num_workers = 1;
    p.q.data = q, p.o.data = o, p.k.data = k, p.v.data = v;
    p.k.dtype = p.v.dtype = dtype;
    p.kv_rows.page_size = PAGE, p.kv_rows.num_pages = pages, p.kv_rows.table = tables[1];
    if (attn_workspace_size(&p, &need) != ATTN_OK || (ws = malloc(need)) == NULL)
        exit(1);
    for (int i = 0; i < ROUNDS; i++)
        for (int way = 0; way < WAYS; way++) {
            double begin = now();
            memset(&p.kv_rows, 0, sizeof p.kv_rows);
            if (tables[way] != NULL)
                p.kv_rows.page_size = PAGE, p.kv_rows.num_pages = pages,
                p.kv_rows.table = tables[way];
            if (attn_forward(&p, ws, need) != ATTN_OK)
                exit(1);
            call[way][i] = now() - begin;
            begin = now();
            read_pieces(k, tables[way], pages, piece);
            reading[way][i] = now() - begin;
        }
    printf("%-4s %6ld keys, %s memory: pages in order %.2f, in random order %.2f of the time of a "
           "contiguous call; reading alone %.2f, %.2f\n",
           dtype == ATTN_F32 ? "f32" : "f16", (long)keys, large ? "large   " : "ordinary",
           ratio(call, 1), ratio(call, 2), ratio(reading, 1), ratio(reading, 2));
}

int main(void)
{
    for (int large = 0; large < 2; large++)
        for (int dtype = ATTN_F32; dtype <= ATTN_F16; dtype++) {
            measure(256, dtype, large);
            measure(4096, dtype, large);
            measure(16384, dtype, large);
        }
    return 0;
}
