/* scalar.c - the portable kernels compiled without vectorisation.
 * SPDX-License-Identifier: MIT
 *
 * attn.c once more under other names, by the Makefile with -fno-tree-vectorize: the portable
 * kernels of the library are vectorised by the compiler and would not show what vectors give.
 * Where the CPU has it, the fused multiply-add is one scalar instruction, as in portable_fma. */
#define ATTN_PREFIX scalar_
#define ATTN_KERNEL_API
#include "../../attn.c"
#include "scalar.h"

const attn_kernels *scalar_kernels(void)
{
    static attn_kernels set;
    set = *attn_kernels_get(0);
    set.name = "scalar";
    return &set;
}
