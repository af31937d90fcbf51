/* selfcheck.c - the bench shows that it would notice: wrong results, wrong counts, wrong times.
 * SPDX-License-Identifier: MIT */
#include "selfcheck.h"

#include <stdio.h>

static int passed, failed;

void expect(int held, const char *what, double value)
{
    passed += held != 0;
    failed += held == 0;
    if (!held)
        printf("FAILED: %s (got %g)\n", what, value);
}

/* All but the device. */
static void check_all(bench_context *context)
{
    check_times();
    check_masks(context);
    check_counts();
    check_lists(context);
    check_runs(context);
    check_caches(context);
    check_gradients(context);
    check_dilated(context);
    check_refusals(context);
    check_tunings(context);
    check_paths(context);
    check_reports(context);
    check_printed();
    check_files();
}

int selfcheck(bench_context *context, int device_only)
{
    context->watch = plant_watch;
    passed = failed = 0;
    if (!device_only)
        check_all(context);
    check_devices(context);
    printf("%d passed, %d failed\n", passed, failed);
    return failed;
}
