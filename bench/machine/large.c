/* large.c - memory in large pages where the system gives them: 2 MiB instead of 4 KiB.
 * SPDX-License-Identifier: MIT */
#if defined __linux__
#define _GNU_SOURCE
#include <sys/mman.h>
#endif
#include "machine.h"

#include <stdlib.h>

#ifdef MADV_HUGEPAGE
#define LARGE_PAGE ((size_t)1 << 21)

/* Whole pages: none is shared with a neighbour. What madvise answers does not matter. */
void *large_alloc(size_t bytes)
{
    void *memory = NULL;
    const size_t whole = (bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    if (whole < bytes || posix_memalign(&memory, LARGE_PAGE, whole))
        return NULL;
    madvise(memory, whole, MADV_HUGEPAGE);
    return memory;
}
#else
void *large_alloc(size_t bytes)
{
    return malloc(bytes);
}
#endif
