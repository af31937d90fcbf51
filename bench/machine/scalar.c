/* scalar.c - the portable kernels compiled without vectorisation.
 * SPDX-License-Identifier: MIT
 *
 * The kernels of the library once more under other names, which the Makefile takes from src/ and
 * compiles with -fno-tree-vectorize: compilers vectorise them otherwise, and they would not show
 * what vectors give. Where the CPU has it, the fused multiply-add is one scalar instruction, as in
 * portable_fma. */
#define ATTN_PREFIX scalar_
#include "attn.c"
#include "machine.h"

const attn_kernels *scalar_kernels(void)
{
    static attn_kernels set;
    set = *attn_kernels_get(0);
    set.name = "scalar";
    return &set;
}
