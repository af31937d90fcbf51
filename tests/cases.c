/* cases.c - runs folders of operator conformance cases, one line a case. The format is described in
 * tests/cases/README.md.
 * SPDX-License-Identifier: MIT
 */
#include "cases.h"

#include <string.h>

/* ---- folders --------------------------------------------------------------------------------- */

static int run_case(const char *dir, const char *name, double *worst)
{
    static test_case c;
    char path[CASE_PATH];
    int held;
    memset(&c, 0, sizeof c);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    c.dir = path;
    held = case_read(&c) && case_run(&c);
    worst_note(c.worst);
    *worst = c.worst > *worst ? c.worst : *worst;
    printf("%-69s %s %8.5f  %s%s%s\n", name, held ? "ok    " : "FAILED", c.worst, c.why,
           c.why[0] != '\0' && c.note[0] != '\0' ? "; " : "", c.note);
    CHECK(held, "%s: %s", path, c.why);
    return held;
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
    double worst = 0;
    int64_t passed = 0, count = 0;
    FILE *list = case_open_file(dir, "cases.list");
    if (list == NULL) {
        print_origin(dir);
        return 1;
    }
    printf("%s (error in units of its tolerance)\n", dir);
    while (fgets(name, sizeof name, list) != NULL) {
        name[strcspn(name, "\r\n")] = '\0';
        if (name[0] == '\0' || !begin_case("%s/%s", dir, name))
            continue;
        count++;
        passed += run_case(dir, name, &worst);
    }
    fclose(list);
    printf("%s: %lld of %lld cases passed; worst error %.3f of its tolerance\n", dir,
           (long long)passed, (long long)count, worst);
    case_print_executed();
    return count == 0 && T.only_case < 0;
}
