/* large.h - memory in large pages where the system gives them: 2 MiB instead of 4 KiB.
 * SPDX-License-Identifier: MIT
 *
 * Which 4 KiB pages a buffer gets decides by chance which of its lines displace each other in the
 * caches, and two equal buffers are then read at speeds that differ by a quarter and more. */
#ifndef BENCH_LARGE_H
#define BENCH_LARGE_H

#include <stddef.h>

/* NULL = there is no memory. Systems other than Linux may give pages of any size. */
void *large_alloc(size_t bytes);
void large_free(void *memory);

#endif
