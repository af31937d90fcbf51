/* corpus.c - the harnesses of the fuzzer by name, and the inputs that are kept, run by the tests.
 * SPDX-License-Identifier: MIT
 *
 *     build/test corpus                        all of fuzz/corpus/HARNESS/
 *     build/test corpus -- HARNESS FILE...     these files, with any compiler
 *
 * A harness is a function that begins with FUZZ_HARNESS, in any file of tests/ or fuzz/: `make`
 * finds it. It runs in the test program with inputs from files, and in build/fuzz/HARNESS with those
 * that libFuzzer makes (fuzzer.c, docs/testing.md).
 */
#include "corpus.h"

#include "../tests/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* build/harnesses.inc has a line FUZZ_HARNESS(...) for each. */
#undef FUZZ_HARNESS
#define FUZZ_HARNESS(name, what) void fuzz_##name(const char *bytes, size_t count);
#include "harnesses.inc"
#undef FUZZ_HARNESS
#define FUZZ_HARNESS(name, what) { #name, what, fuzz_##name },
const fuzz_harness fuzz_harnesses[] = {
#include "harnesses.inc"
    { NULL, NULL, NULL }
};

enum { MOST_BYTES = 1 << 16 };

const fuzz_harness *fuzz_find(const char *name)
{
    const fuzz_harness *h = fuzz_harnesses;
    while (h->name != NULL && strcmp(h->name, name) != 0)
        h++;
    return h->name != NULL ? h : NULL;
}

static int64_t number_of_sets(void)
{
    int count = 0;
    while (attn_kernels_get(count) != NULL)
        count++;
    return count;
}

/* The input is copied so that nothing but its own bytes can be read. */
void fuzz_run(const fuzz_harness *h, const void *bytes, size_t count, const char *name)
{
    char *copy;
    if (!begin_case("%s, %s", h->name, name))
        return;
    copy = test_alloc_at(count, PLACE_PAGE_AFTER);
    memcpy(copy, bytes, count);
    rng_bytes(copy, count);
    T.kernels = attn_kernels_name(attn_kernels_get((int)rng_int(0, number_of_sets() - 1)));
    h->run(copy, count);
    T.kernels = NULL;
    test_release();
}

static void run_file(const fuzz_harness *h, const char *path)
{
    static unsigned char bytes[MOST_BYTES];
    FILE *file = fopen(path, "rb");
    size_t count;
    if (!CHECK(file != NULL, "%s cannot be read", path))
        return;
    count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    fuzz_run(h, bytes, count, path);
}

static void run_arguments(void)
{
    const fuzz_harness *h = fuzz_find(T.argv[0]);
    if (CHECK(h != NULL, "there is no harness '%s'", T.argv[0]))
        for (int i = 1; i < T.argc; i++)
            run_file(h, T.argv[i]);
}

/* build/corpus.inc has a line "HARNESS/FILE", for each, as C has no way to read a folder. */
static const char *const kept[] = {
#include "corpus.inc"
};

static void run_kept(void)
{
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        char path[300], name[100];
        const fuzz_harness *h;
        snprintf(path, sizeof path, "fuzz/corpus/%s", kept[i]);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(kept[i], "/"), kept[i]);
        h = fuzz_find(name);
        if (CHECK(h != NULL, "there is no harness '%s'", name))
            run_file(h, path);
    }
}

TEST_GROUP(corpus, RUN_ONCE, "inputs that the fuzzer's harnesses keep")
{
    if (T.argc > 0)
        run_arguments();
    else
        run_kept();
}
