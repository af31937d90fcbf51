/* devices.c - paths of an OpenCL device: wrong results are refused there, too; where time goes; and
 * what is said where there is none.
 * SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../bench/cases/jobs.h"
#include "../../bench/cases/cases.h"
#include "../../bench/commands/commands.h"
#include "selfcheck.h"

static bench_result run_on(bench_context *x, const char *path, const char *shape, keys_kind keys)
{
    case_list list = { .n = 0 };
    bench_result r;
    shape_case(shape, &list);
    list.cases[0].iterations = 3;
    list.cases[0].keys.kind = keys;
    list.cases[0].keys.page_size = keys == KEYS_PAGED ? 16 : 0;
    run_case(x, &list.cases[0], path, &r);
    return r;
}

/* ---- a call of known parts: the median of three, whose parts add up */

static int parts_call(void *argument)
{
    static const double computed[] = { 2e-9, 3e-9, 1e-9 };
    static int calls;
    attn_opencl_times *const t = ((device_job *)argument)->how.times;
    t->to_device = t->to_host = 1e-9;
    t->compute = computed[calls++ % 3];
    t->kernels = 2;
    return 0;
}

static int failing_call(void *argument)
{
    (void)argument;
    return 1;
}

static void check_split(void)
{
    device_job job = { .how = { 0 } };
    bench_result r = { .launch_ms = 0 };
    expect(on_device_split(parts_call, &job, &job, 3, &r) && r.launches == 2, "the parts of a call",
           (double)r.launches);
    expect(fabs(r.to_device_ms - 1e-6) < 1e-12 && fabs(r.to_host_ms - 1e-6) < 1e-12 &&
               r.compute_ms > 0.9e-6 && r.compute_ms < 3.1e-6,
           "in milliseconds", r.compute_ms);
    expect(job.how.times == NULL, "timed calls are not measured command by command", 0);
    expect(!on_device_split(failing_call, &job, &job, 3, &r), "a call that fails", 0);
}

/* ---- the crossover */

static void check_crossover(void)
{
    const double cpu[] = { 1, 2, 4, 8 }, late[] = { 3, 1, 5, 7 }, never[] = { 0, 0, 0, 8 };
    const double always[] = { 0, 1, 2, 3 };
    expect(tune_crossover_of(cpu, late, 4) == 3, "faster at every greater length", 0);
    expect(tune_crossover_of(cpu, never, 4) == 4, "not at the greatest", 0);
    expect(tune_crossover_of(cpu, always, 4) == 0 && tune_crossover_of(cpu, cpu, 0) == 0,
           "at all of them", 0);
}

/* ---- no device */

static void check_absence(bench_context *x, const char *path, const char *why)
{
    const bench_result r = run_on(x, path, "1,1,1,8,8,8", KEYS_PLAIN);
    expect(r.absent && !strcmp(r.skipped, why), "a path without a device is absent", 0);
    expect(!strncmp(why, "no OpenCL device (", 18) && why[strlen(why) - 1] == ')',
           "with the reason", 0);
}

/* ---- a device */

static void check_device_path(bench_context *x, const bench_path *path)
{
    const bench_result r = run_on(x, path->name, "1,4,2,40,200,32", KEYS_PLAIN);
    expect(!r.skipped[0] && r.samples == 3, r.skipped, r.err_tolerance);
    expect(r.device[0] && !strcmp(r.kernels, "opencl"), "a row of a device says so", 0);
    expect(r.compute_ms > 0 && r.launch_ms >= 0 && r.launches > 0 && r.compute_gflops > 0,
           "a call computes", r.compute_ms);
    expect(path->device != PATH_DEVICE_ARRAYS || r.to_host_ms == 0,
           "what is on the device is not copied", r.to_host_ms);
    faults.spoil = 1;
    const bench_result spoilt = run_on(x, path->name, "1,4,2,40,200,32", KEYS_PLAIN);
    expect(run_was_wrong(&spoilt), "a spoilt result of a device is refused", spoilt.err_tolerance);
    faults.spoil = -1;
    const bench_result bit = run_on(x, path->name, "1,4,2,40,200,32", KEYS_PLAIN);
    faults.spoil = 0;
    expect(run_was_wrong(&bit) == (path->device == PATH_EXACT),
           "one other bit is refused where bits are those of the CPU", bit.err_tolerance);
}

/* In one order only: their kernels take some devices a minute to build. */
static void check_device_gradients(bench_context *x)
{
    case_list list = { .n = 0 };
    bench_result r;
    shape_case("1,4,2,40,100,32", &list);
    list.cases[0].iterations = 2;
    list.cases[0].backward = 1;
    run_case(x, &list.cases[0], "opencl_exact", &r);
    if (r.absent)
        return;
    expect(!r.skipped[0] && !strcmp(r.pass, "backward"), r.skipped, r.err_tolerance);
    faults.spoil = 1;
    run_case(x, &list.cases[0], "opencl_exact", &r);
    faults.spoil = 0;
    expect(run_was_wrong(&r), "a spoilt gradient of a device is refused", r.err_tolerance);
}

static void check_device_keys(bench_context *x, const bench_path *path)
{
    const char *const shape = "2,4,2,1,200,32";
    const bench_result r = run_on(x, path->name, shape, KEYS_PAGED);
    if (path->device == PATH_DEVICE_ARRAYS) {
        expect(strstr(r.skipped, "arrays of the host only") != NULL, "caches are the host's", 0);
        return;
    }
    expect(!r.skipped[0], r.skipped, r.err_tolerance);
    faults.pages = KEYS_SWAPPED;
    const bench_result wrong = run_on(x, path->name, shape, KEYS_PAGED);
    faults.pages = KEYS_RIGHT;
    expect(run_was_wrong(&wrong), "a wrong page is refused on a device", wrong.err_tolerance);
}

void check_devices(bench_context *x)
{
    check_split();
    check_crossover();
    for (int i = 0; path_get(i); i++) {
        const bench_path *const path = path_get(i);
        char why[256];
        if (!path->device)
            continue;
        if (!path_usable(path, 1, why, sizeof why)) {
            check_absence(x, path->name, why);
            continue;
        }
        check_device_path(x, path);
        check_device_keys(x, path);
    }
    check_device_gradients(x);
}
