/* evict.c - keeps a cache small: the prefill of a prompt tells how much its last rows look at each
 * page of keys (SnapKV, arXiv 2404.14469; H2O, arXiv 2306.14048, sums over all rows), and decoding
 * then reads the pages that they look at most, the first one and the last ones. A page is left out
 * by leaving it out of the page table, so no key moves.
 * SPDX-License-Identifier: MIT
 *
 *     cc -O2 examples/evict.c attn.c -lm -o evict && ./evict */
#include "../attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGE = 16, PAGES = 32, TOKENS = PAGE * PAGES, DIM = 16, KEEP = 12, LAST = 4, WATCHED = 8 };

static float q[TOKENS * DIM], k[TOKENS * DIM], v[TOKENS * DIM], o[TOKENS * DIM];
static double mass[PAGES];
static float entropy[TOKENS];
static int32_t table[PAGES];

/* Fills x with numbers in [-2, 2] that are equal on every machine. */
static void fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 16) / 16384.0f - 2.0f;
    }
}

static void run(const attn_params *p)
{
    char text[200];
    size_t need;
    void *ws = attn_workspace_size(p, &need) == ATTN_OK ? malloc(need) : NULL;
    if (attn_forward(p, ws, need) != ATTN_OK) {
        puts(attn_check(p, ws, need, text, sizeof text));
        exit(1);
    }
    free(ws);
}

/* The call of the last `rows` rows, which read the first `pages` pages of the table. */
static attn_params call(int rows, int pages)
{
    attn_params p = {0};
    p.batch = 1;  p.num_heads_q = 1;
    p.seq_len_q = rows;  p.seq_len_kv = pages * PAGE;  p.head_dim = DIM;
    p.q.data = q + (TOKENS - rows) * DIM;
    p.k.data = k;  p.v.data = v;
    p.o.data = o + (TOKENS - rows) * DIM;
    p.kv_rows.page_size = PAGE;
    p.kv_rows.num_pages = PAGES;
    p.kv_rows.table = table;
    p.causal = 1;
    return p;
}

/* How much a page is worth: the first and the last ones always stay. */
static double worth(int page)
{
    return page == 0 || page >= PAGES - LAST ? HUGE_VAL : mass[page];
}

/* Puts the pages that stay into the table, in their order, and returns how many there are: those
 * with fewer than KEEP pages before them in the order of their worth. */
static int evict(void)
{
    int kept = 0;
    for (int page = 0; page < PAGES; page++) {
        int before = 0;
        for (int other = 0; other < PAGES; other++)
            before += worth(other) > worth(page) || (worth(other) == worth(page) && other < page);
        if (before < KEEP)
            table[kept++] = page;
    }
    return kept;
}

int main(void)
{
    float whole[DIM];
    double seen = 0, worst = 0, largest = 0;
    attn_params p;
    fill(q, sizeof q / sizeof *q, 1);
    fill(k, sizeof k / sizeof *k, 2);
    fill(v, sizeof v / sizeof *v, 3);
    for (int i = TOKENS - WATCHED; i < TOKENS; i++)      /* the last rows look for these keys */
        for (int d = 0; d < DIM; d++)
            q[i * DIM + d] = 3 * k[(90 + 40 * (i % 4)) * DIM + d];
    for (int page = 0; page < PAGES; page++)
        table[page] = page;

    p = call(TOKENS, PAGES);                             /* prefill */
    p.insight.entropy = entropy;
    p.insight.mass = mass;                               /* [batch, kv head, page] */
    p.insight.mass_keys = PAGE;
    p.insight.mass_rows = WATCHED;
    run(&p);
    for (int d = 0; d < DIM; d++)
        whole[d] = o[(TOKENS - 1) * DIM + d];

    p = call(1, evict());                                /* the last row again, as a step */
    run(&p);
    for (int n = 0; n < KEEP; n++)
        seen += mass[table[n]];
    for (int d = 0; d < DIM; d++) {
        worst = fmax(worst, fabs((double)(o[(TOKENS - 1) * DIM + d] - whole[d])));
        largest = fmax(largest, fabs((double)whole[d]));
    }
    printf("%d of %d pages hold %.1f %% of what the last %d rows look at\n", KEEP, PAGES,
           100 * seen / WATCHED, WATCHED);
    printf("entropy: %.2f nats in row %d, %.2f in the last row\n", (double)entropy[TOKENS / 2],
           TOKENS / 2, (double)entropy[TOKENS - 1]);
    puts(worst < 0.02 * largest ? "O changes by less than 2 %" : "O changes by more than 2 %");
    return 0;
}
