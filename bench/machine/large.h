/* large.h - memory in large pages where the system gives them: 2 MiB instead of 4 KiB.
 * SPDX-License-Identifier: MIT
 *
 * Which 4 KiB pages a buffer gets decides by chance which of its lines displace each other in the
 * caches: decoding from equal caches of 8192 keys, timed in turn, took 0.85 to 1.25 of the time of
 * the first of them in small pages, 0.97 to 1.02 in large ones. */
#ifndef BENCH_LARGE_H
#define BENCH_LARGE_H

#include <stddef.h>

/* For free; NULL = there is no memory. Systems other than Linux may give pages of any size. */
void *large_alloc(size_t bytes);

#endif
