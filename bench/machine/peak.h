/* peak.h - the most memory that this process has had so far.
 * SPDX-License-Identifier: MIT */
#ifndef BENCH_PEAK_H
#define BENCH_PEAK_H

#include <stdint.h>

/* Highest resident size of this process so far, in bytes; 0 = unknown. It never falls, so that what
 * one call takes is only seen in a process of its own. Linux counts pages in batches: it is known
 * to about 128 KiB. */
int64_t peak_rss(void);

#endif
