/* error_table.c - prints the tables of docs/numerics.md.
 * SPDX-License-Identifier: MIT
 *
 *     build/error_table [LENGTHS]      1024 * 4^n keys for n = 0 .. LENGTHS - 1; 6 = to 1M
 *
 * The exit status is 1 when an error exceeds its bound or its tolerance, or when bits differ that
 * must be equal, and 2 when something could not be run; sentences about it go to stderr.
 */
#include "../tests/error_table.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct tables {
    error_cell cells[ERROR_PATHS][ERROR_QUANTITIES][ERROR_DATA][3][ERROR_LENGTHS];
    int lengths;
    int64_t values, wrong;
} tables;

static const char *const paths[] = { "Tiled", "Naive", "Parts merged by LSE" };
static const char *const quantities[] = { "O, V normal", "O, V positive", "LSE",
                                          "O stored in 16 bits" };
static const char *const datas[] = { "x1", "x4", "x16", "outlier", "absorbed" };
static const char *const dtypes[] = { "f32", "f16", "bf16" };

/* ---- taking what is measured ----------------------------------------------------------------- */

static void take_cell(void *user, const error_cell *cell)
{
    tables *t = user;
    t->cells[cell->path][cell->quantity][cell->data][cell->dtype][cell->length] = *cell;
    t->values++;
    if (cell->bound <= 1 && cell->units <= 1)
        return;
    t->wrong++;
    fprintf(stderr, "%s, %s, %s, %s, %lld keys: %.3g times the bound, %.3g times the tolerance\n",
            paths[cell->path], quantities[cell->quantity], datas[cell->data], dtypes[cell->dtype],
            (long long)error_table_keys(cell->length), cell->bound, cell->units);
}

static void take_bits(void *user, const char *name, const error_cell *at, int64_t different)
{
    tables *t = user;
    t->values++;
    if (different == 0)
        return;
    t->wrong++;
    fprintf(stderr, "%s, %s, %s, %lld keys: %lld numbers are not those of a decode step\n", name,
            datas[at->data], dtypes[at->dtype], (long long)error_table_keys(at->length),
            (long long)different);
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_number(double x)
{
    printf("%.*f", x < 10 ? 2 : x < 100 ? 1 : 0, x);
}

static void print_header(const tables *t, const char *first, const char *second)
{
    printf("| %s | %s |", first, second);
    for (int n = 0; n < t->lengths; n++)
        printf(n < 5 ? " %lldK |" : " 1M |", (long long)error_table_keys(n) / 1024);
    printf("\n|---|---|");
    for (int n = 0; n < t->lengths; n++)
        printf("---|");
    printf("\n");
}

static void print_table(const tables *t, int path, int quantity)
{
    const int stored = quantity == ERROR_O_STORED;
    printf("\n**%s: %s** (%s / %% of the bound)\n\n", paths[path], quantities[quantity],
           stored ? "ulp of that type" : "ulp of f32");
    print_header(t, "scores", "storage");
    for (int data = 0; data < ERROR_DATA; data++)
        for (int dtype = stored; dtype < 3; dtype++) {
            printf("| %s | %s |", datas[data], dtypes[dtype]);
            for (int n = 0; n < t->lengths; n++) {
                const error_cell *cell = &t->cells[path][quantity][data][dtype][n];
                printf(" ");
                print_number(cell->ulps);
                printf(" / ");
                print_number(100 * cell->bound);
                printf(" |");
            }
            printf("\n");
        }
}

/* Returns the largest share of the bound or of the tolerance over storage types and data. */
static double largest(const tables *t, int path, int quantity, int length, int of_tolerance)
{
    double most = 0;
    for (int data = 0; data < ERROR_DATA; data++)
        for (int dtype = 0; dtype < 3; dtype++) {
            const error_cell *cell = &t->cells[path][quantity][data][dtype][length];
            const double share = of_tolerance ? cell->units : cell->bound;
            if (share > most)
                most = share;
        }
    return most;
}

static void print_largest(const tables *t, int path, int quantity, int of_tolerance)
{
    printf("| %s: %s | %s |", paths[path], quantities[quantity],
           of_tolerance ? "tolerance" : "bound");
    for (int n = 0; n < t->lengths; n++) {
        printf(" ");
        print_number(100 * largest(t, path, quantity, n, of_tolerance));
        printf(" |");
    }
    printf("\n");
}

static void print_all(const tables *t)
{
    printf("**Largest share in %%, over storage types and data**\n\n");
    print_header(t, "what", "of the");
    for (int path = 0; path < ERROR_PATHS; path++)
        for (int quantity = 0; quantity <= ERROR_LSE; quantity++)
            for (int of_tolerance = 0; of_tolerance < (path == ERROR_NAIVE ? 1 : 2); of_tolerance++)
                print_largest(t, path, quantity, of_tolerance);
    for (int path = 0; path < ERROR_PATHS; path++)
        for (int quantity = 0; quantity <= ERROR_LSE; quantity++)
            print_table(t, path, quantity);
    print_table(t, ERROR_TILED, ERROR_O_STORED);
}

int main(int argc, char **argv)
{
    static tables t;
    const error_sink sink = { &t, take_cell, take_bits };
    const char *failed;
    t.lengths = argc > 1 ? atoi(argv[1]) : ERROR_LENGTHS;
    if (argc > 2 || t.lengths < 1 || t.lengths > ERROR_LENGTHS) {
        fprintf(stderr, "usage: error_table [LENGTHS], 1 to %d\n", ERROR_LENGTHS);
        return 2;
    }
    failed = error_table_measure(t.lengths, &sink);
    if (failed != NULL) {
        fprintf(stderr, "error_table: %s\n", failed);
        return 2;
    }
    print_all(&t);
    fprintf(stderr, "%lld comparisons, %lld beyond their bound\n", (long long)t.values,
            (long long)t.wrong);
    return t.wrong != 0;
}
