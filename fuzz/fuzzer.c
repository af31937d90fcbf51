/* fuzzer.c - the entry points of libFuzzer: `make fuzz` links them with the test program's files.
 * SPDX-License-Identifier: MIT
 *
 * One program serves all harnesses: its own file name says which it runs.
 */
#include "corpus.h"

#include "../tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t count);

static const fuzz_harness *chosen;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *slash = strrchr((*argv)[0], '/');
    const char *name = slash != NULL ? slash + 1 : (*argv)[0];
    (void)argc;
    chosen = fuzz_find(name);
    if (chosen != NULL)
        return 0;
    fprintf(stderr, "fuzzer: this file must have the name of a harness, not '%s':\n", name);
    for (const fuzz_harness *h = fuzz_harnesses; h->name != NULL; h++)
        fprintf(stderr, "  %-12s %s\n", h->name, h->what);
    exit(2);
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t count)
{
    fuzz_run(chosen, bytes, count, "input");
    if (test_failures() > 0) {
        fflush(stdout);
        abort(); /* libFuzzer keeps the input */
    }
    return 0;
}
