/* attn_opencl.c - attn_forward on OpenCL devices: see attn_opencl.h. The arithmetic is in
 * kernels.cl.
 * SPDX-License-Identifier: MIT
 * attn 0.1.0
 *
 * tools/amalgamate.sh makes this file from the rooms in src/opencl/ and from those rooms of src/
 * that a host shares with the CPU: edit there.
 */
/* Whole rooms are here, some functions of which only attn.c needs. */
#if defined __GNUC__ || defined __clang__
#pragma GCC diagnostic ignored "-Wunused-function"
#endif

#undef ATTN_WITHOUT_SENTENCES /* The options of a program are a text. */

#include "opencl.c"
