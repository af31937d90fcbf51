/* cases.c - runs folders of operator conformance cases, one line a case. The format is described in
 * tests/cases/README.md.
 * SPDX-License-Identifier: MIT
 */
#include "cases.h"

#include <string.h>

/* ---- folders --------------------------------------------------------------------------------- */

typedef struct totals {
    int64_t cases, passed, cached, stored;
    double worst, worst_stored;
} totals;

static void print_case(const char *name, const test_case *c)
{
    const int failed = c->why[0] != '\0';
    printf("%-69s %s %8.5f  %s%s%s\n", name, failed ? "FAILED" : "ok    ", c->worst, c->why,
           failed && c->note[0] != '\0' ? "; " : "", c->note);
}

/* A case without a call in T.storage shows nothing that it does not show without --storage. */
static void judge(const test_case *c)
{
    if (c->why[0] == '\0' && T.storage != ATTN_F32 && c->stored == 0)
        SKIP("%s: %s", c->dir, c->left_out[0] != '\0' ? c->left_out : "a call without K and V");
    else
        CHECK(c->why[0] == '\0', "%s: %s", c->dir, c->why);
}

static void run_case(const char *dir, const char *name, int lines, totals *sum)
{
    static test_case c;
    char path[CASE_PATH];
    int held;
    memset(&c, 0, sizeof c);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    c.dir = path;
    held = case_read(&c) && case_run(&c);
    if (held)
        case_note_zero_rows(&c);
    worst_note(c.worst);
    sum->cases++;
    sum->passed += held;
    sum->cached += c.cached;
    sum->stored += c.stored > 0;
    sum->worst = c.worst > sum->worst ? c.worst : sum->worst;
    sum->worst_stored = c.worst_stored > sum->worst_stored ? c.worst_stored : sum->worst_stored;
    if (lines)
        print_case(name, &c);
    judge(&c);
}

static void print_origin(const char *dir)
{
    printf("%s: no cases.list here. Case folders of this format are exported from the node tests "
           "of github.com/onnx/onnx, from onnxruntime and from PyTorch's autograd; "
           "tests/cases/README.md describes the format and tests/make_cases.py writes some.\n",
           dir);
}

int run_cases(const char *dir, int lines)
{
    char name[160];
    totals sum = { 0 };
    FILE *list = case_open_file(dir, "cases.list");
    if (list == NULL) {
        print_origin(dir);
        return 1;
    }
    if (lines)
        printf("%s (error in units of its tolerance)\n", dir);
    while (fgets(name, sizeof name, list) != NULL) {
        name[strcspn(name, "\r\n")] = '\0';
        if (name[0] != '\0' && begin_case("%s/%s", dir, name))
            run_case(dir, name, lines, &sum);
    }
    fclose(list);
    printf("%s: %lld of %lld cases passed, %lld of them with keys in a cache; worst error %.3f of "
           "its tolerance\n",
           dir, (long long)sum.passed, (long long)sum.cases, (long long)sum.cached, sum.worst);
    if (T.storage != ATTN_F32)
        printf("%s: %lld of them again with K and V in %s; worst error %.3f of its bound\n", dir,
               (long long)sum.stored, dtype_name(T.storage), sum.worst_stored);
    if (lines)
        case_print_executed();
    return sum.cases == 0 && all_cases_run();
}

TEST_GROUP(stored_cases, RUN_ONCE, "tests/cases again with K and V in each storage type")
{
    const test_options given = T;
    if (T.storage != ATTN_F32 || T.backend != NULL) {
        SKIP("this is for the CPU, and sets the storage type itself");
        return;
    }
    T.kernels = T.only != NULL ? T.only : attn_kernels_name(attn_kernels_get(0));
    for (T.storage = ATTN_F16; T.storage <= ATTN_I8; T.storage++)
        CHECK(run_cases("tests/cases", 0) == 0, "cannot run the cases of tests/cases");
    T = given;
}
