/* error_table.h - the error of the library over the number of keys, against the double oracle.
 * SPDX-License-Identifier: MIT
 *
 * One measuring function with two callers: the test group `numerics` (short lengths) and
 * tools/error_table.c, which writes the tables of docs/numerics.md. That page derives the bound and
 * says what the data are. Everything here is deterministic, and so is the library: the figures
 * are the same on every machine.
 */
#ifndef ATTN_TESTS_ERROR_TABLE_H
#define ATTN_TESTS_ERROR_TABLE_H

#include "../attn.h"

/* Ways to compute a row whose last bits may differ. Every other way (a prefill of many rows, a
 * decode step, each kernel set, raw states merged) must give the bits of TILED. */
enum { ERROR_TILED, ERROR_NAIVE, ERROR_LSE_PARTS, ERROR_PATHS };

/* Data: scores of standard deviation 1, 4, 16; deviation 1 with one key 16 above; made to lose as
 * much as can be: in each chunk one key and 1023 others whose p is just too small to be added. */
enum { ERROR_X1, ERROR_X4, ERROR_X16, ERROR_OUTLIER, ERROR_ABSORBED, ERROR_DATA };

/* What is compared: O where V is normal, O where V is positive with mean 1, LSE; O stored in the
 * 16-bit type of the inputs (tiled only), normal and positive V together. */
enum { ERROR_O_NORMAL, ERROR_O_POSITIVE, ERROR_LSE, ERROR_O_STORED, ERROR_QUANTITIES };

/* Lengths are 1024 * 4^index. */
enum { ERROR_LENGTHS = 6 };

/* The worst over the sampled rows. A NaN counts as infinite. */
typedef struct error_cell {
    int path, dtype, data, quantity, length;
    double ulps;  /* of f32 at the row's largest |o|; LSE: at its value; stored: of that type */
    double bound; /* of the bound, which holds for all data */
    double units; /* of the tolerance, which tests/oracle.h has: the likely size; 0 where rounding
                   * errors have a common sign, so that it does not apply: naive, ABSORBED */
} error_cell;

typedef struct error_sink {
    void *user;
    void (*cell)(void *user, const error_cell *cell);
    /* `different` of the values that `name` gave have not the bits of the tiled path. */
    void (*bits)(void *user, const char *name, const error_cell *at, int64_t different);
} error_sink;

/* Measures the first `lengths` lengths. NULL, or a sentence about what went wrong. */
const char *error_table_measure(int lengths, const error_sink *sink);

int64_t error_table_keys(int length);

#endif
