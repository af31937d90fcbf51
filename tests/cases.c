/* cases.c - runs folders of operator conformance cases, one line a case. The format is described in
 * tests/cases/README.md.
 * SPDX-License-Identifier: MIT
 */
#include "cases.h"

#include <string.h>

/* ---- folders --------------------------------------------------------------------------------- */

typedef struct totals {
    int64_t cases, passed, cached;
    double worst;
} totals;

static void run_case(const char *dir, const char *name, totals *sum)
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
    sum->worst = c.worst > sum->worst ? c.worst : sum->worst;
    printf("%-69s %s %8.5f  %s%s%s\n", name, held ? "ok    " : "FAILED", c.worst, c.why,
           c.why[0] != '\0' && c.note[0] != '\0' ? "; " : "", c.note);
    CHECK(held, "%s: %s", path, c.why);
}

static void print_origin(const char *dir)
{
    printf("%s: no cases.list here. Case folders of this format are exported from the node tests "
           "of github.com/onnx/onnx, from onnxruntime and from PyTorch's autograd; "
           "tests/cases/README.md describes the format and tests/make_cases.py writes some.\n",
           dir);
}

int run_cases(const char *dir)
{
    char name[160];
    totals sum = { 0 };
    FILE *list = case_open_file(dir, "cases.list");
    if (list == NULL) {
        print_origin(dir);
        return 1;
    }
    printf("%s (error in units of its tolerance)\n", dir);
    while (fgets(name, sizeof name, list) != NULL) {
        name[strcspn(name, "\r\n")] = '\0';
        if (name[0] != '\0' && begin_case("%s/%s", dir, name))
            run_case(dir, name, &sum);
    }
    fclose(list);
    printf("%s: %lld of %lld cases passed, %lld of them with keys in a cache; worst error %.3f of "
           "its tolerance\n",
           dir, (long long)sum.passed, (long long)sum.cases, (long long)sum.cached, sum.worst);
    case_print_executed();
    return sum.cases == 0 && T.only_case < 0;
}
