/* system.h - what tests and bench ask of the operating system: threads, pages without access, files,
 * libraries.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_TESTS_SYSTEM_H
#define ATTN_TESTS_SYSTEM_H

#include <stddef.h>
#include <stdio.h>

#if defined __unix__ || defined __APPLE__ || defined __MINGW32__ /* mingw has winpthreads */
#include <pthread.h>
#define HAVE_THREADS 1
#else
#define HAVE_THREADS 0
#endif

/* Bytes of a page; 0: the system gives no pages to programs. */
size_t system_page(void);

/* Whole pages, or NULL; access to some of them, from `at` on, then ends the program. */
void *system_map(size_t bytes);
int system_forbid(void *at, size_t bytes);
void system_unmap(void *pages, size_t bytes);

/* Whether a write to this byte ends the program; -1: nobody can tell. */
int system_dies(volatile unsigned char *at);

/* An empty file that is gone when it is closed; NULL: the system has none. */
FILE *system_temporary_file(void);

/* Loads the library of OpenCL, as attn_opencl_open does; NULL: there is none. */
void *system_opencl(void);
/* Stores the address of a function of the library at *to, a pointer to one; 0: it has none. */
int system_find(void *library, const char *name, void *to);

#endif
