/* patterns.h - masks of cells that attn_long.h builds: built once, or in every call.
 * SPDX-License-Identifier: MIT
 *
 * All of them are causal. How many keys a row sees is counted here from the definition of the
 * pattern and not by the library. */
#ifndef BENCH_PATTERNS_H
#define BENCH_PATTERNS_H

#include "masks.h"

/* Keys that row i sees; cell: rows and keys of a cell. */
int64_t pattern_keys(const bench_case *c, int64_t cell, int64_t i);

/* Builds the cells and sets them in *p; 0 = no memory. */
int pattern_set(const bench_case *c, int64_t cell, attn_params *p, mask_arrays *arrays);

/* Builds them once more, where they are. */
int pattern_again(const bench_case *c, int64_t cell, mask_arrays *arrays);

#endif
