/* corpus.h - the harnesses of the fuzzer by name.
 * SPDX-License-Identifier: MIT
 */
#ifndef ATTN_FUZZ_CORPUS_H
#define ATTN_FUZZ_CORPUS_H

#include <stddef.h>

typedef struct fuzz_harness {
    const char *name, *what;
    void (*run)(const char *bytes, size_t count);
} fuzz_harness;

extern const fuzz_harness fuzz_harnesses[]; /* the last has no name */

/* NULL: there is none. */
const fuzz_harness *fuzz_find(const char *name);
/* Runs it as a case of the test program; what fails is counted there (test_failures). */
void fuzz_run(const fuzz_harness *h, const void *bytes, size_t count, const char *name);

#endif
