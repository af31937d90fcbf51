/* scalar.h - the portable kernels compiled without vectorisation.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_SCALAR_H
#define BENCH_SCALAR_H

#include "../../attn.h"

/* The best portable set of attn.c, one number at a time: what a plain C loop gives. */
const attn_kernels *scalar_kernels(void);

#endif
