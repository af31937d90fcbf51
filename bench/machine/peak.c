/* peak.c - the most memory that this process has had so far.
 * SPDX-License-Identifier: MIT */
#if defined __unix__ || defined __APPLE__
#define _XOPEN_SOURCE 700
#define PEAK_POSIX 1
#endif
#include "peak.h"

#ifdef __APPLE__
#define MAXRSS_UNIT 1 /* bytes there, KiB elsewhere */
#else
#define MAXRSS_UNIT 1024
#endif

#ifdef PEAK_POSIX
#include <sys/resource.h>

int64_t peak_rss(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : (int64_t)usage.ru_maxrss * MAXRSS_UNIT;
}
#else
int64_t peak_rss(void)
{
    return 0;
}
#endif
